/* SPDX-License-Identifier: MIT-0 */
/* collective - predicts the time of a collective operation on a machine. The planner uses it for
 * all communication.
 *
 *     dpar_cluster_group_init(&g, &cluster, 8, 1);                          8 neighbouring ranks
 *     dpar_collective_predict(&cluster, &g, DPAR_CALL_ALL_REDUCE, 1e9, &cost);
 *     cost.seconds                             the predicted time of the call
 *
 * Bytes always count the FULL vector, which is the "size" of nccl-tests: the output of an
 * all-gather, the input of a reduce-scatter, one rank's buffer of an all-to-all. By the textbook, a
 * ring all-reduce of n ranks whose links carry Bps bytes/s takes 2 (n-1)/n * bytes / Bps. The bus
 * bandwidth of nccl-tests is (bytes / time) * factor. The factor is 2 (n-1)/n for an all-reduce and
 * (n-1)/n for all-gather, reduce-scatter and all-to-all. */
#ifndef DPARI_COST_COLLECTIVE_H
#define DPARI_COST_COLLECTIVE_H

#include "cluster.h"

/* The algorithms of a collective. dpar_collective_predict names the one that it found fastest. */
enum {
    DPAR_ALG_RING,         /* a ring over all ranks */
    DPAR_ALG_PAIRWISE,     /* messages between pairs: all-to-all, point to point */
    DPAR_ALG_TREE,         /* trees between the nodes */
    DPAR_ALG_IN_SWITCH,    /* the switch adds the values: NVLS, SHARP */
    DPAR_ALG_HIERARCHICAL, /* first inside the nodes, then between them, then inside again */
    DPAR_ALG_COUNT         /* number of algorithms */
};

/* A group of ranks and its distribution over the nodes of the machine. */
typedef struct dpar_cluster_group {
    int32_t size;     /* ranks of the group */
    int32_t per_node; /* ranks of the group on one node, >= 1 */
    int32_t nodes;    /* nodes that the group spans: size / per_node, rounded up */
    int32_t sharing;  /* groups of this kind on one node, which share its NICs; >= 1 */
} dpar_cluster_group;

/* The predicted cost of a collective. */
typedef struct dpar_collective_cost {
    double seconds;    /* time of the call */
    int32_t algorithm; /* DPAR_ALG_* */
    double link_bytes; /* bytes that a GPU sends over the links inside the node */
    double nic_bytes;  /* bytes that a GPU sends over the NICs */
    double nic_Bps;    /* bytes/s that the NICs give to each GPU of the group */
    double latency_s;  /* the part of `seconds` that does not shrink with the bytes */
} dpar_collective_cost;

/* Describes a group of n ranks that are `stride` ranks apart, and counts how many such groups share
 * a node. All these groups together fill the machine. If some of them span two nodes and others do
 * not, as groups of 4 ranks on nodes of 6 GPUs, the result describes one that spans two nodes. The
 * slowest group holds up the others. O(1). */
DPAR_API void dpar_cluster_group_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                      int32_t n, int32_t stride);

/* Predicts the time of one collective call.
 *
 * cluster: the machine. If it has measured times (cluster->curve), they replace the formulas.
 * group:   the group of ranks; the groups of a node share its NICs.
 * kind:    DPAR_CALL_ALL_REDUCE, ...
 * bytes:   size of the full vector; ignored for a barrier.
 * cost:    the result. All of it is 0 for a group of one rank, for no bytes, and for an unknown
 *          kind.
 *
 * The prediction is that of the fastest algorithm that the machine has: flat ring, tree,
 * hierarchical, a low-latency protocol, and in-switch reduction. In-switch reduction exists for
 * all-reduce only, and is the fastest only for large vectors. All-gather and reduce-scatter between
 * nodes are rings, as in NCCL. With one rank per node they may also be trees on Hopper and
 * Blackwell (NCCL's PAT). The calibration of `cluster` gives the latency of a step and the share of
 * the bandwidth that collectives reach. The bandwidth also depends on the size and the number of
 * ranks.
 *
 * O(1), about 50 ns. The rules and their sources are in collective.c; tests/cost/collective.c
 * prints the errors against published tables. */
DPAR_API void dpar_collective_predict(const dpar_cluster *cluster, const dpar_cluster_group *group,
                                      int32_t kind, double bytes, dpar_collective_cost *cost);

#endif
