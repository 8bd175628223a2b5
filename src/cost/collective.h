/* SPDX-License-Identifier: MIT-0 */
/* collective - what a collective costs on a real machine, in seconds: the model that the planner
 * uses. Bytes are those of the FULL vector: all-gather's output, reduce-scatter's input,
 * all-to-all's buffer of one rank (the "size" of nccl-tests). A textbook's ring all-reduce of n
 * ranks takes 2 (n-1)/n * bytes / Bps. The bus bandwidth of nccl-tests is bytes / time, times
 * 2 (n-1)/n for an all-reduce and (n-1)/n for gathers, scatters and all-to-all. */
#ifndef DPARI_COST_COLLECTIVE_H
#define DPARI_COST_COLLECTIVE_H

#include "cluster.h"

/* What was found the cheapest. */
enum {
    DPAR_ALG_RING,
    DPAR_ALG_PAIRWISE,
    DPAR_ALG_TREE,
    DPAR_ALG_IN_SWITCH,    /* NVLS, SHARP */
    DPAR_ALG_HIERARCHICAL, /* inside the node, across, inside */
    DPAR_ALGS
};

/* A group of ranks as it lies on the machine. */
typedef struct dpar_group {
    int32_t size;     /* ranks */
    int32_t per_node; /* of them on one node, >= 1 */
    int32_t nodes;    /* = ceil(size / per_node) */
    int32_t sharing;  /* such groups at once on one node: they share its NICs; >= 1 */
} dpar_group;

typedef struct dpar_collective_cost {
    double seconds;
    int32_t algorithm; /* DPAR_ALG_* */
    double link_bytes; /* sent by a GPU over the in-node links */
    double nic_bytes;  /* sent by a GPU over the NICs */
    double nic_Bps;    /* what the group gets of the NICs, a GPU */
    double latency_s;  /* the part of `seconds` that does not shrink with the bytes */
} dpar_collective_cost;

/* The group of n ranks that are `stride` ranks apart, and how many such groups share a node. All
 * groups together fill the machine; where they do not lie alike (4 ranks on nodes of 6) it is one
 * that straddles two nodes, as the slowest paces the others. O(1). */
DPAR_API void dpar_group_init(dpar_group *g, const dpar_cluster *c, int32_t n, int32_t stride);

/* The predictor: the cheapest of the algorithms that the machine has (flat ring, tree,
 * hierarchical, in-switch, low-latency protocol), with the calibration of `c`: latency by step,
 * saturation by size and ranks, NICs shared by the groups of a node, in-switch reduction
 * (all-reduce only) from the size where it wins. Gathers and scatters across nodes are rings, as
 * NCCL's are. Rules and sources: collective.c. bytes <= 0 or size 1 cost nothing. Errors against
 * published tables: tests/cost/collective.c prints them. A kind that is none costs nothing. O(1),
 * about 50 ns. */
DPAR_API void dpar_collective_predict(const dpar_cluster *c, const dpar_group *g, int32_t kind,
                                      double bytes, dpar_collective_cost *cost);

#endif
