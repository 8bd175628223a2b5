/* SPDX-License-Identifier: MIT-0 */
/* price - private: prices layers, then stages; terms.h turns these into memory and time. The layers
 * depend on few options of a strategy, the stages on more. So the planner keeps the prices of one
 * level while it walks the options of the next. */
#ifndef DPARI_COST_PRICE_H
#define DPARI_COST_PRICE_H

#include "collective.h"
#include "cost_private.h"

/* Returns the FLOP/s of matrix products in a format, or in the next wider one that the GPU has. */
DPARI_INTERNAL double dpari_matrix_peak(const dpar_gpu *gpu, int32_t format, int32_t element);

/* Returns what a run overlaps, bits DPAR_OVERLAP_*: the strategy's, or for DEFAULT the stack's. */
DPARI_INTERNAL int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *strategy);
/* Returns the compute time lost per second of hidden communication. */
DPARI_INTERNAL double dpari_contention(const dpar_job *job);

/* Bytes that all `ranks` ranks of a stage send in the calls that are priced. Only
 * dpar_traffic_count passes one; other callers pass NULL. */
typedef struct dpari_tally {
    double ranks;
    double forward[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
    double backward[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
} dpari_tally;
/* Adds a call of n ranks on a full vector of `bytes`, made `forward` times in the forward and
 * `backward` times in the backward. */
DPARI_INTERNAL void dpari_tally_add(dpari_tally *tally, int32_t what, int32_t kind, int32_t n,
                                    double bytes, double forward, double backward);

/* Sets the group of two neighbours among n ranks that are `stride` apart. */
DPARI_INTERNAL void dpari_pair_init(dpar_cluster_group *group, const dpar_cluster *cluster,
                                    int32_t n, int32_t stride);
/* Returns the cells of the faces of a tile: both sides of every cut axis, which a full-duplex link
 * carries at the same time. */
DPARI_INTERNAL double dpari_halo_cells(const dpar_workload *work, const dpar_workload_layer *layer,
                                       const dpar_strategy *strategy);

/* The price of one layer of a class for one micro-batch on one rank, in seconds and bytes. */
typedef struct dpari_layer_price {
    dpari_tally *tally;
    double forward, backward;           /* compute, without the time of launches */
    double again[DPAR_RECOMPUTE_COUNT]; /* forward work repeated in the backward */
    double attention; /* part of forward: scores, and their product with the values */
    double host_forward, host_backward; /* host time to launch its kernels, a lower bound of its
                                           time */
    double tp_forward, tp_backward, tp_again;
    double cp_forward, cp_backward;
    double ep_forward, ep_backward;
    double halo_forward, halo_backward;
    double params, expert_params;      /* number of weights on this rank */
    double kept[DPAR_RECOMPUTE_COUNT]; /* activation bytes from forward to backward */
    double transient;                  /* bytes that exist only during its backward */
    double send;                       /* bytes of its output, on this rank */
    double link_forward, nic_forward;  /* bytes sent by TP, CP, EP and halo; recomputation repeats
                                          them */
    double link_backward, nic_backward;
} dpari_layer_price;

/* The prices of all layer classes. They depend on tp, sp, cp, cp_kind, ep, etp, micro_batch, tiles
 * and the TP bit of overlap. */
typedef struct dpari_layers {
    dpari_layer_price of[DPAR_MAX_LAYER_CLASSES];
    double dummies, head_dummies; /* bytes of the dummy weight gradients of Megatron-Core */
} dpari_layers;
DPARI_INTERNAL void dpari_price_layers(const dpar_job *job, const dpar_strategy *strategy,
                                       dpari_layers *out);
/* Counts the calls of one layer of class i. */
DPARI_INTERNAL void dpari_tally_layer(const dpar_job *job, const dpar_strategy *strategy, int32_t i,
                                      dpari_tally *tally);

/* The price of one pipeline rank: the sum over its layers, for one micro-batch. */
typedef struct dpari_stage {
    int32_t rank;
    double layers; /* number of blocks */
    double forward, backward, again, host;
    double tp, cp, ep, halo;
    double sent; /* the part of tp, cp, ep and halo that is in the forward */
    double params, expert_params;
    double kept;   /* bytes per micro-batch */
    double logits; /* bytes, on the last stage */
    double transient;
    double boundary;              /* bytes of the activation that it receives */
    double dummies, head_dummies; /* as in dpari_layers */
    double largest;               /* weights of its largest layer */
    double link_bytes, nic_bytes;
    double total; /* seconds of one micro-batch, forward and backward, everything included */
} dpari_stage;

/* Returns the seconds of a stage on the device, without waits for the host. */
DPARI_FN double dpari_stage_device(const dpari_stage *st)
{
    return st->forward + st->backward + st->again + st->tp + st->cp + st->ep + st->halo;
}
/* Returns the share of a rank's `layers` layers that full recomputation repeats. */
DPARI_FN double dpari_recomputed_share(const dpar_strategy *strategy, double layers)
{
    const double most = strategy->recompute_layers;
    return most > 0.0 && layers > most ? most / layers : 1.0;
}

DPARI_INTERNAL void dpari_price_stage(const dpar_job *job, const dpar_strategy *strategy,
                                      const dpari_layers *layers, int32_t rank, dpari_stage *st);

/* Returns the bytes that a rank sends to the next stage for a micro-batch. */
DPARI_INTERNAL double dpari_boundary_bytes(const dpar_job *job, const dpar_strategy *strategy,
                                           const dpari_layers *layers);
/* Returns the number of layers of class i (blocks) on a pipeline rank. */
DPARI_INTERNAL double dpari_stage_blocks(const dpar_workload *work, const dpar_strategy *strategy,
                                         int32_t rank, int32_t i);
/* Returns the number of the v-th chunk of a rank. */
DPARI_INTERNAL int64_t dpari_chunk_of(const dpar_strategy *strategy, int32_t rank, int32_t v);
/* Returns 1 if the first and the last chunk are on different ranks, otherwise 0. */
DPARI_INTERNAL int dpari_ends_apart(const dpar_strategy *strategy);
/* The prices of the pipeline ranks that can be the worst: the first, the second, the last, and
 * those around each change of class if there are blocks of several classes. If there are too many,
 * the fastest are left out. The stages depend on pp, vp, schedule, recompute and recompute_layers
 * in addition to the options of the layers. */
enum { DPARI_MAX_STAGES = 8 };
typedef struct dpari_stages {
    int32_t n;
    dpari_stage of[DPARI_MAX_STAGES];
    dpari_stage whole; /* sum over all pp ranks */
    double sum_total;  /* seconds of one micro-batch through all of them */
    double send;       /* bytes of one boundary, on one rank */
} dpari_stages;
DPARI_INTERNAL void dpari_price_stages(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_layers *layers, dpari_stages *out);

/* Checks the bytes per parameter and the format of the products. Fails with DPAR_E_ARG. */
DPARI_INTERNAL dpar_status dpari_recipe_check(const dpar_recipe *recipe, dpar_why *why);
#endif
