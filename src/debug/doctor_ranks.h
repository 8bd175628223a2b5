/* SPDX-License-Identifier: MIT-0 */
/* doctor_ranks - private: what the ranks of a communicator exchange for dpar_doctor, how fast
 * messages between them are, and what is wrong with the ranks together. All conclusions and lines
 * are a function of the exchanged data, so that tests can present any job. */
#ifndef DPARI_DEBUG_DOCTOR_RANKS_H
#define DPARI_DEBUG_DOCTOR_RANKS_H

#include "../comm/comm.h"
#include "checkup.h"

/* What each rank sends to all others first. The layout of these 128 bytes is the same in all
 * versions of dpar from 0.2 on, so that ranks of different versions can recognise that. */
typedef struct dpari_doctor_who {
    int32_t version;     /* DPAR_VERSION */
    int32_t chart_bytes; /* sizeof(dpari_doctor_chart) */
    uint64_t machine;    /* hash of the boot_id of its kernel; 0 if unknown */
    int32_t share;       /* the lowest rank with which it shares memory; -1 if the engine shares
                            none */
    int32_t socket;      /* socket of all its cores; -1 if several */
    char host[64];
    int32_t padding[10];
} dpari_doctor_who;

enum {                        /* how two ranks reach each other, nearest first */
       DPARI_DOCTOR_SOCKET,   /* shared memory, on one socket */
       DPARI_DOCTOR_MEMORY,   /* shared memory */
       DPARI_DOCTOR_UNSHARED, /* messages, although they are on one node */
       DPARI_DOCTOR_BETWEEN,  /* messages between two nodes */
       DPARI_DOCTOR_LEVELS
};

/* What a rank has measured with another one. */
typedef struct dpari_doctor_link {
    int32_t peer; /* -1 if nothing was measured */
    double latency_s, bytes_s;
} dpari_doctor_link;

/* What each rank sends to rank 0 after that. */
typedef struct dpari_doctor_chart {
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t cores, sockets, gpus;
    int32_t local_rank; /* -1 if unknown */
    int64_t memory, shm;
    int64_t port;       /* the fastest of `ports`, Mb/s; 0 if unknown */
    int64_t text_bytes; /* bytes of the lines about this rank by itself */
    double timeout_s;
    dpari_doctor_link within, between; /* to the next rank of its node, and to the next node */
    char gpu[44];    /* the device it would use, as in CUDA_VISIBLE_DEVICES; "" if none */
    char ports[100]; /* "eth0 25 Gb/s, ib0" */
    char mpi[48];
} dpari_doctor_chart;

/* All ranks. chart and text exist only on rank 0. */
typedef struct dpari_doctor_job {
    int32_t size, nodes, most; /* ranks, nodes, ranks of the fullest node */
    const dpari_doctor_who *who;
    const dpari_doctor_chart *chart;
    const char *text;       /* the lines about each rank by itself, rank after rank */
    int32_t *node, *local;  /* [size] the node of each rank, its position among the ranks there */
    int32_t *first, *ranks; /* [nodes] the first rank of each node, the number of its ranks */
    char *mark;             /* [size] scratch */
} dpari_doctor_job;

/* Returns the bytes of node, local, first, ranks and mark for so many ranks. */
DPARI_INTERNAL int64_t dpari_doctor_job_bytes(int32_t size);
/* Numbers the nodes, and sets these arrays in `memory`. */
DPARI_INTERNAL void dpari_doctor_number_nodes(dpari_doctor_job *job, void *memory);
/* Returns how two ranks reach each other, DPARI_DOCTOR_x. */
DPARI_INTERNAL int32_t dpari_doctor_level(const dpari_doctor_job *job, int32_t a, int32_t b);
/* Pairs of ranks exchange messages in rounds, in which each node has one pair, or none. The rounds
 * of pairs within nodes are first. dpari_doctor_rounds returns the number of rounds.
 * dpari_doctor_meets returns the rank that `me` meets in a round, or -1. dpari_doctor_leads returns
 * 1 if `me` leads its pair, which means that it measures. */
DPARI_INTERNAL int32_t dpari_doctor_rounds(const dpari_doctor_job *job);
DPARI_INTERNAL int32_t dpari_doctor_meets(const dpari_doctor_job *job, int32_t round, int32_t me);
DPARI_INTERNAL int dpari_doctor_leads(const dpari_doctor_job *job, int32_t round, int32_t me);

/* Write the lines about the nodes, and about the speed of each level. */
DPARI_INTERNAL void dpari_doctor_say_nodes(const dpari_doctor_job *job, dpar_text *out);
DPARI_INTERNAL void dpari_doctor_say_levels(const dpari_doctor_job *job, dpar_text *out);
/* Writes what is wrong with the ranks by themselves and together. Returns how many things are. */
DPARI_INTERNAL int32_t dpari_doctor_compare(const dpari_doctor_job *job, dpar_text *out);
/* Writes a line if versions of dpar differ. Returns the number of lines. Needs no charts. */
DPARI_INTERNAL int32_t dpari_doctor_versions(const dpari_doctor_job *job, dpar_text *out);

/* Fills in the chart of this rank. */
DPARI_INTERNAL void dpari_doctor_fill(const dpari_site *site, const dpari_checkup *checkup,
                                      dpari_doctor_chart *chart);
/* Replaces contradictory numbers of the launcher by those of the communicator, which was made
 * without them. */
DPARI_INTERNAL void dpari_doctor_joined(const dpar_comm *world, dpari_checkup *checkup);
/* Makes the whole report, in `out` of rank 0. COLLECTIVE. Returns the number of things that are
 * wrong, on all ranks, or -1 if the communicator broke; world->why then has the reason. checkup:
 * the facts of this rank; its numbers of ranks and nodes become those of the communicator. */
DPARI_INTERNAL int32_t dpari_doctor_together(const dpari_site *site, dpari_checkup *checkup,
                                             dpar_comm *world, dpar_text *out);

#endif
