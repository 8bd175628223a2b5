/* SPDX-License-Identifier: MIT-0 */
/* collective - what a collective costs: the textbook formulas, NCCL's own tuner, and the model of
 * the real machine that the planner uses. Seconds; bytes are those of the FULL vector (nccl-tests'
 * "size": all-gather's output, reduce-scatter's input, all-to-all's buffer of one rank). */
#ifndef DPARI_COST_COLLECTIVE_H
#define DPARI_COST_COLLECTIVE_H

#include "cluster.h"

enum {
    DPAR_ALG_RING,
    DPAR_ALG_RECURSIVE_DOUBLING,
    DPAR_ALG_RECURSIVE_HALVING,
    DPAR_ALG_RABENSEIFNER,
    DPAR_ALG_BINOMIAL,
    DPAR_ALG_BRUCK,
    DPAR_ALG_PAIRWISE,
    DPAR_ALG_SCATTER_DOUBLING, /* broadcast: scatter + recursive-doubling all-gather */
    DPAR_ALG_SCATTER_RING,     /* broadcast: scatter + ring all-gather */
    DPAR_ALG_CHAIN,            /* pipelined chain with the best number of pieces */
    DPAR_ALG_TREE,             /* pipelined double binary tree */
    DPAR_ALG_IN_SWITCH,        /* NVLS, SHARP */
    DPAR_ALG_DISSEMINATION,
    DPAR_ALG_HIERARCHICAL, /* inside the node, across, inside */
    DPAR_ALGS
};

/* "ring", ...; "?" for a number that is none. Static text. */
DPAR_API const char *dpar_algorithm_name(int32_t algorithm);

/* The ring all-reduce of the textbooks: 2 (n-1)/n * bytes / Bps, 0 for n = 1. It is exactly that:
 * no latency, no saturation. (28 GB, 8 ranks, 600 GB/s: 0.0817 s, although 600 is NVLink's two-way
 * figure.) */
DPAR_API double dpar_ring_all_reduce(double bytes, int32_t n, double Bps);

/* alpha-beta-gamma cost of one algorithm on n ranks (MPICH's comments; Thakur, Rabenseifner, Gropp
 * 2005; HIERARCHICAL is the predictor's alone, which knows the nodes): alpha seconds a message,
 * beta seconds a byte, gamma seconds a byte reduced. E_UNKNOWN when the pair does not exist or the
 * algorithm is not defined for this n; *seconds untouched then. */
DPAR_API dpar_status dpar_collective_textbook(int32_t kind, int32_t algorithm, int32_t n,
                                              double bytes, double alpha, double beta, double gamma,
                                              double *seconds);

/* nccl-tests' bus bandwidth factor: bytes/time * factor = bus bandwidth. */
DPAR_API double dpar_bus_factor(int32_t kind, int32_t n);

/* A group of ranks as it lies on the machine. */
typedef struct dpar_group {
    int32_t size;     /* ranks */
    int32_t per_node; /* of them on one node, >= 1 */
    int32_t nodes;    /* = ceil(size / per_node) */
    int32_t sharing;  /* such groups at once on one node: they share its NICs; >= 1 */
} dpar_group;

typedef struct dpar_collective_cost {
    double seconds;
    int32_t algorithm;
    double link_bytes; /* sent by a GPU over the in-node links */
    double nic_bytes;  /* sent by a GPU over the NICs */
    double nic_Bps;    /* what the group gets of the NICs, a GPU */
    double latency_s;  /* the part of `seconds` that does not shrink with the bytes */
} dpar_collective_cost;

/* The group of n ranks that are `stride` ranks apart, and how many such groups share a node. All
 * groups together fill the machine; where they do not lie alike (4 ranks on nodes of 6) it is one
 * that straddles two nodes, as the slowest paces the others. O(1). */
DPAR_API dpar_group dpar_group_place(const dpar_cluster *c, int32_t n, int32_t stride);

/* The predictor: the cheapest of the algorithms that the machine has (flat ring, tree,
 * hierarchical, in-switch, low-latency protocol), with the calibration of `c`: latency by step,
 * saturation by size and ranks, NICs shared by the groups of a node, in-switch reduction
 * (all-reduce only) from the size where it wins. Gathers and scatters across nodes are rings, as
 * NCCL's are. Rules and sources: collective.c. bytes <= 0 or size 1 cost nothing. Errors against
 * published tables: tests/cost/collective.c prints them. A kind that is none costs nothing. O(1),
 * about 50 ns. */
DPAR_API void dpar_collective_cost_of(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                      double bytes, dpar_collective_cost *cost);

/* NCCL 2.30's tuner (src/graph/tuning.cc): its own prediction of the time of each algorithm and
 * protocol, and the best. A bar and a tie-breaker, not the predictor: it exists to rank, and is
 * 7-32 % off as a clock. All-reduce, all-gather, reduce-scatter, broadcast, reduce. *seconds and
 * the names of the winner; E_UNKNOWN for a chip or kind that it has no table for, size 1 or bytes <
 * 0. */
DPAR_API dpar_status dpar_nccl_tuner(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                     double bytes, double *seconds, const char **algorithm,
                                     const char **protocol);

#endif
