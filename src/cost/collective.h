/* SPDX-License-Identifier: MIT-0 */
/* collective - how many seconds a collective takes on a real machine: the model that the planner
 * uses.
 *
 *     dpar_cluster_group_init(&g, &cluster, 8, 1);                          8 ranks side by side
 *     dpar_collective_predict(&cluster, &g, DPAR_CALL_ALL_REDUCE, 1e9, &cost);
 *     cost.seconds
 *
 * Bytes are those of the FULL vector, the "size" of nccl-tests: all-gather's output,
 * reduce-scatter's input, all-to-all's buffer of one rank. A textbook's ring all-reduce of n ranks
 * takes 2 (n-1)/n * bytes / Bps. The bus bandwidth of nccl-tests is bytes / time, times 2 (n-1)/n
 * for an all-reduce and (n-1)/n for gathers, scatters and all-to-all. */
#ifndef DPARI_COST_COLLECTIVE_H
#define DPARI_COST_COLLECTIVE_H

#include "cluster.h"

/* The algorithm that was found the cheapest. */
enum {
    DPAR_ALG_RING,
    DPAR_ALG_PAIRWISE,
    DPAR_ALG_TREE,
    DPAR_ALG_IN_SWITCH,    /* NVLS, SHARP */
    DPAR_ALG_HIERARCHICAL, /* inside the node, across, inside */
    DPAR_ALG_COUNT
};

/* A group of ranks as it lies on the machine. */
typedef struct dpar_cluster_group {
    int32_t size;     /* ranks */
    int32_t per_node; /* ranks of the group on one node, >= 1 */
    int32_t nodes;    /* = ceil(size / per_node) */
    int32_t sharing;  /* such groups at once on one node, which share its NICs; >= 1 */
} dpar_cluster_group;

/* What a collective takes. */
typedef struct dpar_collective_cost {
    double seconds;
    int32_t algorithm; /* DPAR_ALG_* */
    double link_bytes; /* sent by a GPU over the in-node links */
    double nic_bytes;  /* sent by a GPU over the NICs */
    double nic_Bps;    /* bytes/s a GPU that the group gets of the NICs */
    double latency_s;  /* the part of `seconds` that does not shrink with the bytes */
} dpar_collective_cost;

/* The group of n ranks that are `stride` ranks apart, and how many such groups share a node. All
 * groups together fill the machine. Where they do not lie alike (4 ranks on nodes of 6) it is one
 * that straddles two nodes: the slowest paces the others. O(1). */
DPAR_API void dpar_cluster_group_init(dpar_cluster_group *g, const dpar_cluster *c, int32_t n,
                                      int32_t stride);

/* The predictor: the cheapest of the algorithms that the machine has. These are flat ring, tree,
 * hierarchical, in-switch (all-reduce only, from the size where it wins) and a low-latency
 * protocol. Gathers and scatters across nodes are rings, as NCCL's are. O(1), about 50 ns.
 *
 * The calibration of `c` gives latency by step, saturation by size and ranks. A node's groups share
 * its NICs. bytes <= 0, size 1 and a kind that is none cost nothing. Rules and sources:
 * collective.c. tests/cost/collective.c prints the errors against published tables. */
DPAR_API void dpar_collective_predict(const dpar_cluster *c, const dpar_cluster_group *g,
                                      int32_t kind, double bytes, dpar_collective_cost *cost);

#endif
