/* SPDX-License-Identifier: MIT-0 */
/* checkup - private: what dpar_doctor looks at, apart from how it judges it, so that tests can put
 * any machine before it. */
#ifndef DPARI_DEBUG_CHECKUP_H
#define DPARI_DEBUG_CHECKUP_H

#include "../comm/job.h"
#include "../comm/launch.h"
#include "../comm/os.h"

enum { DPARI_DOCTOR_NAMES = 32, DPARI_DOCTOR_NAME = 24 };

/* Names in a directory of the system; longer names are cut. */
typedef struct dpari_names {
    int32_t count;
    char name[DPARI_DOCTOR_NAMES][DPARI_DOCTOR_NAME];
} dpari_names;

/* A machine and a job, as far as the judgement depends on them. */
typedef struct dpari_checkup {
    dpar_launcher_info job;
    dpar_status job_status; /* of finding it, with the sentence */
    dpar_why job_why;
    int32_t nodes;                         /* of the job; 0: nobody says */
    int32_t here;                          /* ranks of the job on this node */
    int32_t beside;                        /* on other nodes that run this kernel: containers */
    int32_t cores;                         /* of the machine */
    int32_t allowed;                       /* to this process */
    double quota;                          /* cores that the cgroup grants; 0: all */
    int64_t memory, memory_free;           /* bytes; 0: not known */
    int64_t memory_limit;                  /* of the cgroup; 0: none */
    int64_t shm, shm_free;                 /* of /dev/shm; -1: there is none */
    int32_t memfd;                         /* memory without a name works */
    int32_t cma;                           /* 0: a process may read another's memory, or errno */
    int32_t yama;                          /* ptrace_scope; -1: there is no such file */
    int64_t page;                          /* bytes */
    char huge[24];                         /* huge pages of shared memory */
    char load[16];                         /* of the last minute, as the system says it; "" */
    int32_t runnable;                      /* threads that run or wait for a core; -1: not known */
    int64_t addresses, locked, open_files; /* ulimit -v, -l (bytes), -n; -1: unlimited */
    int64_t file_bytes;                    /* ulimit -f; -1: unlimited */
    int32_t gpus;                          /* of NVIDIA's that the machine shows */
    int32_t infiniband, slingshot;         /* are there such cards? */
    dpari_names links;                     /* network interfaces, */
    uint32_t up;                           /* bit i: link i is up, */
    int64_t speed[DPARI_DOCTOR_NAMES];     /* of each, Mb/s; 0: not known */
    int32_t sockets;                       /* of the machine; 0: not known */
    int32_t socket;                        /* that this process keeps to; -1: to none */
    char mpi[48];                          /* file of the MPI that is loaded; "" */
} dpari_checkup;

/* Cores that the cgroups of this process grant (0: all) and their limit on memory (0: none). */
DPARI_INTERNAL double dpari_doctor_quota(const dpari_site *site);
DPARI_INTERNAL int64_t dpari_doctor_memory_limit(const dpari_site *site);
/* All that can be read of the files of a site. */
DPARI_INTERNAL void dpari_doctor_files(const dpari_site *site, dpari_checkup *c);
/* What is not wrong for dpar, but will be for others: a line "note: ...", or nothing. */
DPARI_INTERNAL void dpari_doctor_note(const dpari_checkup *c, dpar_text *out);
/* What is wrong with it: a line "WRONG: ... -> ..." each; how many. */
DPARI_INTERNAL int32_t dpari_doctor_judge(const dpari_site *site, const dpari_checkup *c,
                                          dpar_text *out);
/* The machine and the job that this process is in. Forks a child. */
DPARI_INTERNAL void dpari_doctor_look(const dpari_site *site, dpari_checkup *c);
/* Sockets, from c->cores and the CPUs of this process. */
DPARI_INTERNAL void dpari_doctor_sockets(const dpari_site *site, const uint64_t *cpus,
                                         dpari_checkup *c);
DPARI_INTERNAL void dpari_doctor_host(char name[256]);

/* True if ranks of the job are on other nodes too. */
DPARI_INTERNAL int dpari_doctor_spread(const dpari_checkup *c);
/* An interface that joins this machine to others: up, and no bridge or tunnel of this machine. */
DPARI_INTERNAL int dpari_doctor_is_network(const dpari_checkup *c, int32_t i);
/* Devices that CUDA_VISIBLE_DEVICES leaves; all where it is not set. */
DPARI_INTERNAL int32_t dpari_doctor_visible(const char *list, int32_t gpus);
/* How many CPUs a mask has. */
DPARI_INTERNAL int32_t dpari_doctor_bits(const uint64_t *mask);

/* The first word of a line, and blanks up to the column of what follows. */
DPARI_INTERNAL void dpari_doctor_head(dpar_text *out, const char *title);
/* "47.2 GiB"; below 0: "unlimited". */
DPARI_INTERNAL void dpari_doctor_bytes(dpar_text *out, int64_t bytes);

#endif
