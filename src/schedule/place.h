/* SPDX-License-Identifier: MIT-0 */
/* place - how many of a model's layers each stage of a pipeline gets, chosen together with the
 * schedule: an embedding before and a loss behind make the outer stages heavier, and what a stage
 * may weigh depends on when it is waited for. */
#ifndef DPARI_SCHEDULE_PLACE_H
#define DPARI_SCHEDULE_PLACE_H

#include "auto.h"

/* Working memory; `given` as below. -1 when the numbers are out of their domain. O(1). */
DPAR_API int64_t dpar_layers_bytes(const dpar_pipe_job *job, int32_t layers,
                                   const dpar_schedule *given);
/* Cuts `layers` layers into job->stages runs, none empty: stage s gets the layers cuts[s] ..
 * cuts[s + 1] - 1. job is as for dpar_auto_schedule, but in job->times forward, input, weight,
 * backward, hold_forward, hold_input, hold_weight and hold_always are of layers (of[layers], a
 * stage has the sum of its own; without hold_forward a stage's activation counts as 1); latency,
 * bytes and bandwidth are of the edges between stages.
 *
 * `given`: a schedule of one chain on the job's ranks, stages and micro-batches, from
 * dpar_order_make, say: its lists stay, layers move, dpar_simulate judges. NULL: each way to cut
 * gets the schedule that dpar_auto_schedule makes for it, without a search; the best one's goes
 * into *s and `room`, of dpar_schedule_bytes(ranks, stages, dpar_pipe_actions(job)) bytes (with
 * `given` s and room are not touched).
 *
 * Starts from the runs of dpar_split_balance over the time of a micro-batch, and from equal
 * numbers of layers; then moves a layer from one stage to another, the stages between passing one
 * on, while the objective gets smaller, or the bytes over the caps do; judges at most `tries` ways
 * to cut. Of 1486 random small jobs 1450 came out as good as the best of all ways to cut, the
 * others up to 4 % longer. result->bound is of this way to cut; result->nodes says how many were
 * judged.
 *
 * DPAR_OK; DPAR_MORE: `tries` were used up. E_MEMORY: no way was found that keeps the caps, with
 * the sentence of dpar_pipe_check or the rank with its peak. E_ARG, E_RANGE, E_ROOM; what
 * dpar_simulate says of `given`. */
DPAR_API dpar_status dpar_layers_place(const dpar_pipe_job *job, int32_t layers,
                                       const dpar_schedule *given, int64_t tries, int64_t *cuts,
                                       dpar_schedule *s, void *room, int64_t room_bytes,
                                       dpar_pipe_result *result, void *mem, int64_t bytes,
                                       dpar_why *why);

#endif
