/* SPDX-License-Identifier: MIT-0 */
/* checkup - private: the facts that dpar_doctor collects about a machine and a job, and what is
 * wrong with them. Collecting the facts is separate from checking them, so that tests can present
 * any machine. */
#ifndef DPARI_DEBUG_CHECKUP_H
#define DPARI_DEBUG_CHECKUP_H

#include "../comm/job.h"
#include "../comm/launch.h"
#include "../comm/os.h"

enum { DPARI_DOCTOR_NAMES = 32, DPARI_DOCTOR_NAME = 24 };

/* The names in a system directory. Longer names are cut. */
typedef struct dpari_names {
    int32_t count;
    char name[DPARI_DOCTOR_NAMES][DPARI_DOCTOR_NAME];
} dpari_names;

/* The facts about a machine and a job. */
typedef struct dpari_checkup {
    dpar_launcher_info job;
    dpar_status job_status; /* result of dpari_job_here, whose message is in job_why */
    dpar_why job_why;
    int32_t nodes;                         /* nodes of the job; 0 if unknown */
    int32_t here;                          /* ranks of the job on this node */
    int32_t beside;                        /* ranks in other containers on this machine */
    int32_t cores;                         /* cores of the machine */
    int32_t allowed;                       /* cores that this process may use */
    double quota;                          /* cores that the cgroup grants; 0 if unlimited */
    int64_t memory, memory_free;           /* bytes; 0 if unknown */
    int64_t memory_limit;                  /* limit of the cgroup in bytes; 0 if none */
    int64_t shm, shm_free;                 /* bytes of /dev/shm; -1 if there is none */
    int32_t memfd;                         /* 1 if memfd_create works */
    int32_t cma;                           /* 0 if process_vm_readv works, otherwise errno */
    int32_t yama;                          /* ptrace_scope; -1 if there is no such file */
    int64_t page;                          /* bytes */
    char huge[24];                         /* setting of huge pages for shared memory */
    char load[16];                         /* load of the last minute as text; "" if unknown */
    int32_t runnable;                      /* threads that run or wait for a core; -1 if unknown */
    int64_t addresses, locked, open_files; /* ulimit -v, -l (bytes), -n; -1 if unlimited */
    int64_t file_bytes;                    /* ulimit -f in bytes; -1 if unlimited */
    int32_t gpus;                          /* NVIDIA GPUs of the machine */
    int32_t infiniband, slingshot;         /* 1 if the machine has such a card */
    dpari_names links;                     /* network interfaces */
    uint32_t up;                           /* bit i is set if interface i is up */
    int64_t speed[DPARI_DOCTOR_NAMES];     /* speed of each interface in Mb/s; 0 if unknown */
    int32_t sockets;                       /* sockets of the machine; 0 if unknown */
    int32_t socket;                        /* socket of the allowed cores; -1 if on several */
    char mpi[48];                          /* file of the loaded MPI library; "" if none */
} dpari_checkup;

/* Return the cores that the cgroups of this process grant (0 if all), and their limit on memory in
 * bytes (0 if none). */
DPARI_INTERNAL double dpari_doctor_quota(const dpari_site *site);
DPARI_INTERNAL int64_t dpari_doctor_memory_limit(const dpari_site *site);
/* Sets the facts that are read from files. */
DPARI_INTERNAL void dpari_doctor_files(const dpari_site *site, dpari_checkup *checkup);
/* Writes a line "note: ..." if /dev/shm is large enough for dpar, but not for other libraries. */
DPARI_INTERNAL void dpari_doctor_note(const dpari_checkup *checkup, dpar_text *out);
/* Writes a line "WRONG: ... -> ..." for each thing that is wrong. Returns how many there are. */
DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *checkup,
                                          dpar_text *out);
/* Collects the facts about the machine and the job of this process. Forks a child. */
DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *checkup);
/* Counts the sockets, and finds the socket of the CPUs in the mask `cpus`. Reads checkup->cores. */
DPARI_INTERNAL void dpari_doctor_sockets(const dpari_site *site, const uint64_t *cpus,
                                         dpari_checkup *checkup);
/* Sets `name` to the host name. */
DPARI_INTERNAL void dpari_doctor_host(char name[256]);

/* True if ranks of the job are on other nodes too. */
DPARI_INTERNAL int dpari_doctor_spread(const dpari_checkup *checkup);
/* True if interface i connects this machine to others: it is up and not a bridge or tunnel of this
 * machine. */
DPARI_INTERNAL int dpari_doctor_is_network(const dpari_checkup *checkup, int32_t i);
/* Returns the number of devices in `list`, the value of CUDA_VISIBLE_DEVICES, or `gpus` if it is
 * NULL. */
DPARI_INTERNAL int32_t dpari_doctor_visible(const char *list, int32_t gpus);
/* Returns the number of CPUs in a mask. */
DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask);

/* Writes the first word of a line, and spaces up to the column at which its text begins. */
DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title);
/* Appends "47.2 GiB", or "unlimited" for a negative number. */
DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes);

#endif
