/* SPDX-License-Identifier: MIT-0 */
/* checkup - private: the facts that dpar_doctor collects about a process and its machine, and what
 * is wrong with them. Collecting the facts is separate from checking them, so that tests can
 * present any machine. */
#ifndef DPARI_DEBUG_CHECKUP_H
#define DPARI_DEBUG_CHECKUP_H

#include "../comm/comm.h"
#include "../comm/job.h"
#include "../comm/launch.h"
#include "../comm/os.h"

/* The facts about a process, its machine and its job. */
typedef struct dpari_checkup {
    dpar_launcher_info job;
    dpar_status job_status; /* result of dpari_job_here, whose message is in job_why */
    dpar_why job_why;
    int32_t nodes;   /* nodes of the job; 0 if unknown */
    int32_t here;    /* ranks of the job on this node */
    int32_t cores;   /* cores of the machine */
    int32_t allowed; /* cores that this process may use, those in `cpus` */
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t quota;                 /* hundredths of a core that the cgroup grants; INT32_MAX if
                                      unlimited */
    int64_t memory, memory_free;   /* bytes; 0 if unknown */
    int64_t memory_limit;          /* limit of the cgroup in bytes; 0 if none */
    int64_t shm, shm_free;         /* bytes of /dev/shm; -1 if there is none */
    int32_t memfd;                 /* 1 if memfd_create works */
    int32_t cma;                   /* 0 if process_vm_readv works, otherwise errno */
    int32_t yama;                  /* ptrace_scope; 0 if there is no such file */
    int64_t addresses, file_bytes; /* ulimit -v and -f in bytes; -1 if unlimited */
    int64_t open_files;            /* ulimit -n; -1 if unlimited */
    int32_t gpus;                  /* NVIDIA GPUs of the machine */
    char gpu[44];                  /* the GPU that this rank would use, as in CUDA_VISIBLE_DEVICES;
                                      "" if none */
    char mpi[48];                  /* file of the loaded MPI library; "" if none */
} dpari_checkup;

/* Collects the facts about this process, its machine and its job. Forks a child. */
DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup);
/* Writes the facts, a line for each subject. world: NULL, or the communicator that the process
 * has. */
DPARI_INTERNAL void dpari_doctor_say(const dpari_site *site, const dpari_checkup *checkup,
                                     const dpar_comm *world, dpar_text *out);
/* Writes a line "WRONG: ... -> ..." for each thing that is wrong. Returns how many there are. */
DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *checkup,
                                          dpar_text *out);

/* Returns the number of CPUs in a mask. */
DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask);
/* Sets `name` to the host name. */
DPARI_INTERNAL void dpari_doctor_host(char name[256]);
/* Writes the first word of a line, and spaces up to the column at which its text begins. */
DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title);
/* Appends "47.2 GiB", or "unlimited" for a negative number. */
DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes);

#endif
