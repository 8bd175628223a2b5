/* SPDX-License-Identifier: MIT-0 */
/* traffic - counts the bytes that a step sends, by purpose and by operation. The numbers are those
 * that communicators count (dpar_comm.sent), to the byte.
 *
 *     dpar_traffic_count(&job, &strategy, &t);
 *     t.bytes[DPAR_TRAFFIC_DP][DPAR_CALL_ALL_REDUCE] */
#ifndef DPARI_COST_TRAFFIC_H
#define DPARI_COST_TRAFFIC_H

#include "../base/type.h"
#include "strategy.h"

/* The bytes that all ranks of the job together send in one step. Divided by dpar_strategy_ranks
 * they are the mean per rank; if all cuts are even, every rank sends as much. */
typedef struct dpar_traffic {
    /* bytes by purpose, DPAR_TRAFFIC_*, and by operation; messages are under DPAR_CALL_SEND_RECV */
    double bytes[DPAR_TRAFFIC_COUNT][DPAR_CALL_COLLECTIVE_COUNT];
    double total; /* sum of all `bytes` */
} dpar_traffic;

/* Counts the traffic of one step of a strategy that dpar_plan_price accepts. It counts all calls
 * that dpar_plan_price prices, and those that are too small to be priced. The numbers are whole and
 * exact if the degrees divide what they cut. O(pp x layer classes).
 *
 * An operation counts as in dpar_comm.sent (comm.h), for all n ranks of a group together. With a
 * full vector of S bytes an all-reduce is 2 (n-1) S bytes. All-gather, reduce-scatter and
 * all-to-all are (n-1) S bytes, and a message is S bytes.
 *
 *     DP    zero=0: an all-reduce of the gradients (ddp.h).
 *           zero=1: a reduce-scatter of the gradients and an all-gather of the weights.
 *           zero=2: the reduce-scatter in each micro-batch (fsdp.h with `reduce_last`: as zero=1).
 *           zero=3: as zero=2, with the weights gathered twice in each micro-batch. Without a
 *           pipeline, two units are not gathered again at each turn from forward to backward and
 *           back, because they are still there (fsdp.h: prefetch=1; dpar_plan_price counts them).
 *           Replicas add an all-reduce of the shards.
 *     TP    all-reduces of a layer's regions, forward and backward. With sp=1 all-gathers and
 *           reduce-scatters instead; a column layer's input is gathered again in the backward
 *           (tensor.h: reuse_gathered=0), and once per step there is an all-reduce of the gradients
 *           of norms and positions, which see only the tokens of their rank. The loss adds an
 *           all-gather of three numbers per token.
 *     CP    ring: keys and values forward and backward, and their gradients, with cp - 1 hops each,
 *           in the model's element (16 bits; sequence.h sends gradients in f32, which is twice as
 *           much). Ulysses: q, k, v and the output, and their gradients.
 *     EP    rows to the experts and back, forward and backward; the numbers of rows; an all-reduce
 *           of three numbers that tells whether the capacity suffices (expert.h: DROP_NONE). All
 *           ranks are assumed to get the same number of tokens. With etp > 1 rows are gathered and
 *           summed over etp ranks.
 *     PP    one message each way for each micro-batch and pair of neighbouring chunks on different
 *           ranks; tied embeddings add an all-reduce of their gradient.
 *     HALO  the halo of a tile with neighbours on all sides.
 *
 * Not counted are:
 *
 *  - padding: ddp.h starts parameters at multiples of 64 elements, and fsdp.h makes the shards of a
 *    unit equal. dpar_buckets_init and dpar_fsdp_layout report how much that is.
 *  - messages of a training run that are not part of the model's step: a norm for clipping
 * (dpar_fsdp_update, 8 bytes), the balancing loss, losses to print.
 *  - what the planner does not model: copies of key-value heads with tp > kv_heads, and the second
 *    copy of the weights in DualPipe. */
DPAR_API void dpar_traffic_count(const dpar_job *job, const dpar_strategy *strategy,
                                 dpar_traffic *traffic);

#endif
