/* SPDX-License-Identifier: MIT-0 */
/* traffic - how many bytes a step sends, by what for and by which operation. They are what
 * communicators count (dpar_comm.sent), to the byte.
 *
 *     dpar_traffic_count(&job, &strategy, &t);
 *     t.bytes[DPAR_TRAFFIC_DP][DPAR_CALL_ALL_REDUCE] */
#ifndef DPARI_COST_TRAFFIC_H
#define DPARI_COST_TRAFFIC_H

#include "../base/type.h"
#include "strategy.h"

/* Bytes that all ranks of the job together hand to others in one step. A rank's mean is that over
 * dpar_strategy_ranks, and its own number where all cuts are even. */
typedef struct dpar_traffic {
    double bytes[DPAR_TRAFFIC_COUNT]
                [DPAR_CALL_COLLECTIVE_COUNT]; /* by DPAR_TRAFFIC_*; messages: DPAR_CALL_SEND_RECV */
    double total;
} dpar_traffic;

/* The traffic of one step of a strategy that dpar_plan_price takes. The calls are those that it
 * prices, and what is too small to be priced. Whole numbers, exact, where degrees divide what they
 * cut. O(pp x layer classes).
 *
 * Each operation counts as dpar_comm.sent does (comm.h), for the n ranks of a group together and a
 * full vector of S bytes. An all-reduce is 2 (n-1) S; all-gather, reduce-scatter and all-to-all are
 * (n-1) S; a message is S.
 *
 *     DP    zero=0: an all-reduce of the gradients (ddp.h). 1: a reduce-scatter and an all-gather
 *           of the weights. 2: a reduce-scatter each micro-batch (fsdp.h with once: as 1). 3: as 2,
 *           and weights gathered twice a micro-batch; without a pipeline less the two units that
 *           are still there at each turn from forward to backward and back (fsdp.h: prefetch=1;
 *           dpar_plan_price counts them). Replicas: an all-reduce of the shards.
 *     TP    a layer's regions forward and backward: all-reduces; sp=1: all-gathers and
 *           reduce-scatters, what a column layer gathered is gathered again (tensor.h: kept=0), and
 *           once a step an all-reduce of the gradients of what sees a rank's tokens only (norms,
 *           positions). The loss: an all-gather of three numbers a token.
 *     CP    ring: keys and values forward and backward, and their gradients, each cp - 1 hops, in
 *           the model's element (of 16 bits: sequence.h sends gradients in f32, twice that).
 *           Ulysses: q, k, v and out, and their gradients.
 *     EP    rows there and back, forward and backward; counts of rows, and an all-reduce of three
 *           numbers that says whether there is room (expert.h: DROP_NONE). Tokens go to all ranks
 *           alike. etp > 1: rows gathered and summed over it.
 *     PP    a message for each micro-batch and pair of neighbouring chunks on different ranks,
 *           there and back.
 *     HALO  of a tile with neighbours on all sides.
 *
 * Not in it:
 *
 *  - padding. ddp.h starts parameters at multiples of 64 elements, fsdp.h makes shards of a unit
 *    equal; dpar_ddp_bucket and dpar_fsdp_layout say by how much.
 *  - what a run asks for besides a step of the model: a norm for clipping (dpar_fsdp_norm, 8
 *    bytes), the balancing loss, losses to print.
 *  - what the planner does not know of: copies of key-value heads with tp > kv_heads, the second
 *    copy of the weights in DualPipe. */
DPAR_API void dpar_traffic_count(const dpar_job *job, const dpar_strategy *s, dpar_traffic *t);

#endif
