/* SPDX-License-Identifier: MIT-0 */
/* price - private: layers are priced first, then stages, then (terms.h) memory and step; each level
 * depends on fewer options than the one before, so the planner keeps a level while it walks the
 * options of the next. */
#ifndef DPARI_COST_PRICE_H
#define DPARI_COST_PRICE_H

#include "collective.h"
#include "inner.h"

/* FLOP/s of matrix products in a format, or in the next wider one that the GPU has. */
DPARI_API double dpari_matrix_peak(const dpar_gpu *g, int32_t format, int32_t element);

/* What the run does at once (DPAR_OVERLAP_*), when the strategy leaves it to the software. */
DPARI_API int32_t dpari_overlap_of(const dpar_job *job, const dpar_strategy *s);
/* Share of hidden communication that the compute loses. */
DPARI_API double dpari_contention(const dpar_job *job);

/* What is called while something is priced, for dpar_traffic_count; NULL elsewhere. Bytes of all
 * `ranks` ranks of a stage. */
typedef struct dpari_tally {
    double ranks;
    double forward[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
    double backward[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
} dpari_tally;
/* A call of n ranks on `bytes` (of the full vector), made so often in forward and in backward. */
DPARI_API void dpari_tally_add(dpari_tally *t, int32_t what, int32_t kind, int32_t n, double bytes,
                               double forward, double backward);

/* One layer of a class, one micro-batch, one rank. Seconds and bytes. */
typedef struct dpari_layer_price {
    dpari_tally *tally;
    double forward, backward;           /* compute, launch floor not yet applied */
    double again[DPAR_RECOMPUTE_COUNT]; /* forward work repeated in the backward */
    double attention; /* of forward: the scores and their product with the values */
    double host_forward, host_backward; /* the host's time to launch it: a floor */
    double tp_forward, tp_backward, tp_again;
    double cp_forward, cp_backward;
    double ep_forward, ep_backward;
    double halo_forward, halo_backward;
    double params, expert_params;      /* weights on this rank */
    double kept[DPAR_RECOMPUTE_COUNT]; /* activation bytes from forward to backward */
    double transient;                  /* bytes, alive during its backward only */
    double send;                       /* bytes of its output, on this rank */
    double link_forward, nic_forward;  /* bytes of TP, CP, EP, halo: sent again by recomputation */
    double link_backward, nic_backward;
} dpari_layer_price;

/* Depends on tp, sp, cp, cp_kind, ep, etp, micro_batch, tiles (and overlap's TP bit). */
typedef struct dpari_layers {
    dpari_layer_price of[DPAR_MAX_LAYER_CLASSES];
    double dummies, head_dummies; /* bytes of weight gradients that only look like some */
} dpari_layers;
DPARI_API void dpari_price_layers(const dpar_job *job, const dpar_strategy *s, dpari_layers *out);
/* Layer i alone, and what it calls. */
DPARI_API void dpari_tally_layer(const dpar_job *job, const dpar_strategy *s, int32_t i,
                                 dpari_tally *tally);

/* One pipeline rank: its layers summed, one micro-batch. */
typedef struct dpari_stage {
    int32_t rank;
    double layers; /* blocks */
    double forward, backward, again, host;
    double tp, cp, ep, halo;
    double sent; /* of these what the forward sends */
    double params, expert_params;
    double kept;   /* bytes a micro-batch */
    double logits; /* bytes, on the last stage */
    double transient;
    double boundary;              /* bytes of the activation that it receives */
    double dummies, head_dummies; /* as in dpari_layers */
    double largest;               /* weights of its largest layer */
    double link_bytes, nic_bytes;
    double total; /* seconds of one micro-batch, forward and backward, all in */
} dpari_stage;

DPARI_API void dpari_price_stage(const dpar_job *job, const dpar_strategy *s,
                                 const dpari_layers *layers, int32_t rank, dpari_stage *st);

/* Layers of class i (blocks) in a pipeline rank. */
DPARI_API double dpari_stage_blocks(const dpar_workload *w, const dpar_strategy *s, int32_t rank,
                                    int32_t i);
/* Which chunk a rank computes as its v-th. */
DPARI_API int64_t dpari_chunk_of(const dpar_strategy *s, int32_t rank, int32_t v);
/* Are the first and the last chunk on different ranks? */
DPARI_API int dpari_ends_apart(const dpar_strategy *s);
/* The ranks that can be the worst: first, second, last, and with blocks of several classes those
 * around each change of class; the slowest of them where they are too many. Depends also on pp, vp,
 * schedule, recompute, recompute_layers. */
enum { DPARI_MAX_STAGES = 8 };
typedef struct dpari_stages {
    int32_t n;
    dpari_stage of[DPARI_MAX_STAGES];
    dpari_stage whole; /* all pp ranks together */
    double sum_total;  /* seconds of one micro-batch through all of them */
    double send;       /* bytes of one boundary, on one rank */
} dpari_stages;
DPARI_API void dpari_price_stages(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_layers *layers, dpari_stages *out);

/* E_ARG with a sentence for bytes that a parameter cannot have, or a format without a peak. */
DPARI_API dpar_status dpari_recipe_check(const dpar_recipe *r, dpar_why *why);
#endif
