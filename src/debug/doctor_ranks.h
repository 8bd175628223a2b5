/* SPDX-License-Identifier: MIT-0 */
/* doctor_ranks - private: what the ranks of a communicator tell each other for dpar_doctor, how
 * fast messages between them are, and what is wrong with them together. What is decided and said is
 * a function of what was told, so that tests can put any job before it. */
#ifndef DPARI_DEBUG_DOCTOR_RANKS_H
#define DPARI_DEBUG_DOCTOR_RANKS_H

#include "../comm/comm.h"
#include "checkup.h"

/* What each tells all others first; these 128 bytes are the same in all versions of dpar from 0.2
 * on, so that ranks of two versions can find that out. */
typedef struct dpari_doctor_who {
    int32_t version;     /* DPAR_VERSION */
    int32_t chart_bytes; /* sizeof(dpari_doctor_chart) */
    uint64_t machine;    /* hash of what its kernel calls this boot; 0: not known */
    int32_t share;       /* the lowest rank of those with which it shares memory; -1: that is not
                            how this engine works */
    int32_t socket;      /* that it keeps to; -1: to none */
    char host[64];
    int32_t room[10];
} dpari_doctor_who;

enum { /* how two ranks reach each other, nearest first */
       DPARI_DOCTOR_SOCKET,
       DPARI_DOCTOR_MEMORY,
       DPARI_DOCTOR_UNSHARED, /* on one node, by messages as if it were two */
       DPARI_DOCTOR_BETWEEN,
       DPARI_DOCTOR_LEVELS
};

/* What a rank measured with another. */
typedef struct dpari_doctor_link {
    int32_t peer; /* -1: nothing */
    double latency_s, bytes_s;
} dpari_doctor_link;

/* What each tells rank 0 after that. */
typedef struct dpari_doctor_chart {
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t cores, sockets, gpus;
    int32_t local_rank; /* -1: the launcher does not say */
    int64_t memory, shm;
    int64_t port;       /* the fastest of `ports`, Mb/s; 0: not known */
    int64_t text_bytes; /* of its own complaints */
    double timeout_s;
    dpari_doctor_link within, between; /* to the next rank of its node; of the next node */
    char gpu[44];    /* the device it would take, as CUDA_VISIBLE_DEVICES says it; "": none */
    char ports[100]; /* "eth0 25 Gb/s, ib0" */
    char mpi[48];
} dpari_doctor_chart;

/* The ranks as all see them, or as rank 0 does. */
typedef struct dpari_doctor_job {
    int32_t size, nodes, most; /* ranks, nodes, ranks of the fullest node */
    const dpari_doctor_who *who;
    const dpari_doctor_chart *chart; /* NULL: not here */
    const char *text;                /* their complaints, one rank's after the other's */
    int32_t *node, *local;           /* of each rank: its node, its place among the ranks there */
    int32_t *first, *ranks;          /* of each node: its first rank, how many */
    char *mark;                      /* of each rank: scratch */
} dpari_doctor_job;

/* Bytes of node, local, first, ranks and mark for so many ranks; numbers the nodes, in `memory`. */
DPARI_INTERNAL int64_t dpari_doctor_job_bytes(int32_t size);
DPARI_INTERNAL void dpari_doctor_number_nodes(dpari_doctor_job *j, void *memory);
/* DPARI_DOCTOR_x of two ranks. */
DPARI_INTERNAL int32_t dpari_doctor_level(const dpari_doctor_job *j, int32_t a, int32_t b);
/* Pairs of ranks exchange messages in rounds, in which each node has one pair, or none. The rounds
 * of pairs within nodes are first. dpari_doctor_rounds returns the number of rounds.
 * dpari_doctor_meets returns the rank that `me` meets in a round, or -1. dpari_doctor_leads returns
 * 1 if `me` leads its pair, which means that it measures. */
DPARI_INTERNAL int32_t dpari_doctor_rounds(const dpari_doctor_job *j);
DPARI_INTERNAL int32_t dpari_doctor_meets(const dpari_doctor_job *j, int32_t round, int32_t me);
DPARI_INTERNAL int dpari_doctor_leads(const dpari_doctor_job *j, int32_t round, int32_t me);

/* Lines: the nodes; the levels. */
DPARI_INTERNAL void dpari_doctor_say_nodes(const dpari_doctor_job *j, dpar_text *out);
DPARI_INTERNAL void dpari_doctor_say_levels(const dpari_doctor_job *j, dpar_text *out);
/* What is wrong with them together, or with some by themselves: how many things. */
DPARI_INTERNAL int32_t dpari_doctor_compare(const dpari_doctor_job *j, dpar_text *out);
/* True if all ranks have the same version of dpar. Needs no charts. */
DPARI_INTERNAL int32_t dpari_doctor_versions(const dpari_doctor_job *j, dpar_text *out);

/* What a rank tells of itself. */
DPARI_INTERNAL void dpari_doctor_fill(const dpari_site *site, const dpari_checkup *c,
                                      dpari_doctor_chart *chart);
/* What the launcher's numbers are worth once there is a communicator. */
DPARI_INTERNAL void dpari_doctor_joined(const dpar_comm *world, dpari_checkup *c);
/* All of it. On rank 0 `out` gets all that there is to say, on the others nothing. COLLECTIVE. How
 * many things are wrong, on all ranks; -1: the communicator is broken, and says why. c: what this
 * rank has looked at; its numbers of ranks and nodes become those of the communicator. */
DPARI_INTERNAL int32_t dpari_doctor_together(const dpari_site *site, dpari_checkup *c,
                                             dpar_comm *world, dpar_text *out);

#endif
