/* SPDX-License-Identifier: MIT-0 */
/* terms - private: predicts the memory and the time of a strategy from the prices of its stages. */
#ifndef DPARI_COST_TERMS_H
#define DPARI_COST_TERMS_H

#include "memory.h"
#include "price.h"
#include "step.h"

/* memory.c */

/* Predicts the memory of the rank that needs the most. Strategies that differ only in dp, shard,
 * zero, micro_batches, offload and overlap have the same stages. */
DPARI_INTERNAL void dpari_price_memory(const dpar_job *job, const dpar_strategy *strategy,
                                       const dpari_stages *stages, dpar_memory_usage *memory);
/* Returns 1 if a plan fits with a margin, otherwise 0: `upper` less `late` into `limit` bytes of a
 * GPU (0 selects its memory), and the offloaded bytes of all GPUs of a node into the node's memory.
 */
DPARI_INTERNAL int32_t dpari_memory_fits(const dpar_job *job, const dpar_memory_usage *memory,
                                         double limit);
/* Returns 1 if a plan can run, otherwise 0. It compares `lower`, because the allocator releases its
 * cache before it fails. */
DPARI_INTERNAL int32_t dpari_memory_runs(const dpar_job *job, const dpar_memory_usage *memory);
/* Returns the bytes of weights, gradients and optimizer state per rank for `params` parameters on d
 * ranks at ZeRO stage 0..3 (Rajbhandari 2020). */
DPARI_INTERNAL double dpari_zero_bytes(const dpar_recipe *recipe, double params, int32_t stage,
                                       int32_t d);
/* Returns how many micro-batches' activations a pipeline rank holds at most under a schedule, in
 * units of a full stage. Returns 0 if the rank, a degree or the schedule does not exist. */
DPARI_INTERNAL double dpari_in_flight(int32_t schedule, int32_t pp, int32_t vp, int32_t rank,
                                      int32_t micro_batches);

/* step.c */

/* Predicts the time of a step. */
DPARI_INTERNAL void dpari_price_step(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stages *stages, dpar_step_cost *cost);
/* Does the same, but prices the stages itself. The strategy must have passed
 * dpari_strategy_check. */
DPARI_INTERNAL void dpari_step_of(const dpar_job *job, const dpar_strategy *strategy,
                                  dpar_step_cost *cost);
/* Returns the seconds of one message between stages. */
DPARI_INTERNAL double dpari_boundary_seconds(const dpar_job *job, const dpar_strategy *strategy);
/* Counts the gradients, and the weights of ZeRO, that the ranks of a stage send in a step. */
DPARI_INTERNAL void dpari_tally_data(const dpar_job *job, const dpar_strategy *strategy,
                                     const dpari_stage *st, dpari_tally *tally);

#endif
