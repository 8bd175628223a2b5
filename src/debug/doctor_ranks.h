/* SPDX-License-Identifier: MIT-0 */
/* doctor_ranks - private: what the ranks of a communicator exchange for dpar_doctor, how fast
 * messages between them are, and what is wrong with the ranks together. The report depends only on
 * the exchanged data, so that tests can present any job. */
#ifndef DPARI_DEBUG_DOCTOR_RANKS_H
#define DPARI_DEBUG_DOCTOR_RANKS_H

#include "../comm/comm.h"
#include "checkup.h"

/* The record that each rank first sends to all others. The layout of its 128 bytes is the same in
 * all versions of dpar from 0.2 on, so that ranks notice if their versions differ. */
typedef struct dpari_doctor_who {
    int32_t version;     /* DPAR_VERSION */
    int32_t chart_bytes; /* sizeof(dpari_doctor_chart) */
    uint64_t machine;    /* hash of the boot_id of its kernel; 0 if unknown */
    int32_t share;       /* the lowest rank with which it shares memory; -1 if the engine shares
                            none */
    int32_t socket;      /* the socket that all its cores are on; -1 if they are on several, or the
                            machine has only one */
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

/* The speed of messages between this rank and a peer. */
typedef struct dpari_doctor_link {
    int32_t peer;     /* -1 if nothing was measured */
    double latency_s; /* time of 8 bytes in one direction, in seconds */
    double bytes_s;   /* rate of 1 MiB in one direction, in bytes per second */
} dpari_doctor_link;

/* The facts and measurements that each rank then sends to rank 0. */
typedef struct dpari_doctor_chart {
    uint64_t cpus[DPARI_CPU_WORDS];
    int32_t cores, sockets, gpus;
    int32_t local_rank; /* -1 if unknown */
    int64_t memory, shm;
    int64_t port;       /* the fastest port, even if not in `ports`, Mb/s; 0 if unknown */
    int64_t text_bytes; /* bytes of the lines that the rank writes about itself */
    double timeout_s;
    dpari_doctor_link within, between; /* to the next rank of its node, and to the next node */
    char gpu[44];    /* the device it would use, as in CUDA_VISIBLE_DEVICES; "" if none */
    char ports[100]; /* "eth0 25 Gb/s, ib0" */
    char mpi[48];
} dpari_doctor_chart;

/* The job as its ranks describe it. chart and text are set only on rank 0. */
typedef struct dpari_doctor_job {
    int32_t size, nodes, most; /* ranks, nodes, ranks of the fullest node */
    const dpari_doctor_who *who;
    const dpari_doctor_chart *chart;
    const char *text;       /* the lines that each rank writes about itself, rank after rank */
    int32_t *node, *local;  /* [size] the node of each rank, and its position among the ranks of the
                               node */
    int32_t *first, *ranks; /* [nodes] the first rank of each node, and its number of ranks */
    char *mark;             /* [size] 1 for the ranks that a line is about */
} dpari_doctor_job;

/* Returns the bytes of node, local, first, ranks and mark for `size` ranks. */
DPARI_INTERNAL int64_t dpari_doctor_job_bytes(int32_t size);
/* Numbers the nodes, and places node, local, first, ranks and mark in `memory`. */
DPARI_INTERNAL void dpari_doctor_number_nodes(dpari_doctor_job *job, void *memory);
/* Returns how two ranks reach each other, DPARI_DOCTOR_x. */
DPARI_INTERNAL int32_t dpari_doctor_level(const dpari_doctor_job *job, int32_t a, int32_t b);
/* Links are measured in rounds, in which each node takes part in at most one pair of ranks. Pairs
 * within nodes come first. dpari_doctor_rounds returns the number of rounds. dpari_doctor_meets
 * returns the rank with which `me` exchanges messages in a round, or -1. dpari_doctor_leads returns
 * 1 if `me` is the rank of its pair that measures the times. */
DPARI_INTERNAL int32_t dpari_doctor_rounds(const dpari_doctor_job *job);
DPARI_INTERNAL int32_t dpari_doctor_meets(const dpari_doctor_job *job, int32_t round, int32_t me);
DPARI_INTERNAL int dpari_doctor_leads(const dpari_doctor_job *job, int32_t round, int32_t me);

/* Write the lines about the nodes, and about the speed of each level. */
DPARI_INTERNAL void dpari_doctor_say_nodes(const dpari_doctor_job *job, dpar_text *out);
DPARI_INTERNAL void dpari_doctor_say_levels(const dpari_doctor_job *job, dpar_text *out);
/* Writes what is wrong with each rank, and with the ranks together. Returns the number of lines
 * WRONG. */
DPARI_INTERNAL int32_t dpari_doctor_compare(const dpari_doctor_job *job, dpar_text *out);
/* Writes a line if versions of dpar differ. Returns the number of lines. Needs no charts. */
DPARI_INTERNAL int32_t dpari_doctor_versions(const dpari_doctor_job *job, dpar_text *out);

/* If the launcher's numbers contradict each other, replaces them by the rank and size of the
 * communicator, which was made without them. */
DPARI_INTERNAL void dpari_doctor_joined(const dpar_comm *world, dpari_checkup *checkup);
/* Makes the whole report, in `out` of rank 0. COLLECTIVE. Returns on all ranks the number of things
 * that are wrong, or -1 if the communicator broke; world->why then has the reason. checkup: the
 * facts of this rank; its numbers of nodes and of ranks on this node become those of the
 * communicator. */
DPARI_INTERNAL int32_t dpari_doctor_together(const dpari_site *site, dpari_checkup *checkup,
                                             dpar_comm *world, dpar_text *out);

#endif
