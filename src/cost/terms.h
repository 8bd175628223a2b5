/* SPDX-License-Identifier: MIT-0 */
/* terms - private: the memory and the time of a strategy whose stages are priced. */
#ifndef DPARI_COST_TERMS_H
#define DPARI_COST_TERMS_H

#include "memory.h"
#include "price.h"
#include "step.h"

/* memory.c */

/* Memory of the rank that needs the most. What differs in dp, shard, zero, micro_batches, offload
 * and overlap alone has the same stages. */
DPARI_API void dpari_price_memory(const dpar_job *job, const dpar_strategy *s,
                                  const dpari_stages *stages, dpar_memory_usage *m);
/* The same from the start. The strategy must have passed dpari_strategy_check. O(layer classes). */
DPARI_API void dpari_memory_of(const dpar_job *job, const dpar_strategy *s, dpar_memory_usage *m);
/* Does it fit with room to spare? The upper figure, less what is `late`, into `limit` bytes of a
 * GPU (0: what it has), and what is offloaded by all GPUs of a node into the node's memory. */
DPARI_API int32_t dpari_memory_fits(const dpar_job *job, const dpar_memory_usage *m, double limit);
/* Can it run? The allocator gives its cache back before it fails: the least reserve is enough. */
DPARI_API int32_t dpari_memory_runs(const dpar_job *job, const dpar_memory_usage *m);
/* ZeRO's table: bytes a rank of `params` parameters over d ranks at stage 0..3 (Rajbhandari 2020).
 */
DPARI_API double dpari_zero_bytes(const dpar_recipe *r, double params, int32_t stage, int32_t d);
/* Micro-batches whose activations pipeline rank `rank` of 0..pp-1 holds, in full-stage units, by
 * schedule; 0 for a rank, degree or schedule that is none. */
DPARI_API double dpari_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                                 int32_t micro_batches);

/* step.c */

DPARI_API void dpari_price_step(const dpar_job *job, const dpar_strategy *s,
                                const dpari_stages *stages, dpar_step_cost *t);
/* The same from the start. The strategy must have passed dpari_strategy_check. */
DPARI_API void dpari_step_of(const dpar_job *job, const dpar_strategy *s, dpar_step_cost *t);
/* Seconds of one message between stages. */
DPARI_API double dpari_boundary_seconds(const dpar_job *job, const dpar_strategy *s);
/* Gradients and weights of ZeRO that this stage's ranks send in a step. */
DPARI_API void dpari_tally_data(const dpar_job *job, const dpar_strategy *s, const dpari_stage *st,
                                dpari_tally *tally);

#endif
