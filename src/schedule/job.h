/* SPDX-License-Identifier: MIT-0 */
/* job - what a pipeline has to do and within which memory: the question that dpar_schedule_optimize
 * answers. Integers only. */
#ifndef DPARI_SCHEDULE_JOB_H
#define DPARI_SCHEDULE_JOB_H

#include "simulate.h"

/* What is made small: the makespan, or the span. The span is the longest time from a rank's first
 * start to its last end. It is the step's time when each rank may step its optimizer and go on
 * alone; papers on zero bubbles measure it. Each action starts as early as the order of its rank
 * lets it. */
enum { DPAR_OBJECTIVE_MAKESPAN, DPAR_OBJECTIVE_SPAN };
enum { DPAR_PIPE_RANKS = 4096, DPAR_PIPE_STAGES = 16384 }; /* at most */

/* One step of a pipeline of one chain. Each micro-batch goes F(0) .. F(stages - 1), then I (or B)
 * back to stage 0; W of a stage comes any time after its I. Zero it and fill it in. */
typedef struct dpar_schedule_optimize_desc {
    int32_t ranks, stages, micros; /* at least 1; stages x micros at most 2^28 */
    int32_t map;       /* DPAR_STAGE_MAP_LOOP or DPAR_STAGE_MAP_V; not read when rank_of is given */
    int32_t split;     /* 1: I and W are two actions; 0: B is both in one piece */
    int32_t objective; /* DPAR_OBJECTIVE_MAKESPAN or DPAR_OBJECTIVE_SPAN */
    const uint16_t *rank_of; /* [stages], each rank has a stage; NULL: map */
    /* Times, messages and memory, as dpar_schedule_times has them. Without any hold_forward an
     * activation counts as 1, from F to B or W. Messages are DPAR_SEND_MODE_BUFFERED on links of
     * their own.
     *
     * Read are forward, input, weight, backward, latency, bytes, bandwidth (at most INT64_MAX / 10)
     * and hold_always; hold_forward (0 or more), hold_input and hold_weight (0 or less). With
     * hold_forward the three add up to 0. */
    const dpar_schedule_times *times;
    dpar_stage_values cap; /* [ranks]: the most that a rank may hold at any time; 0: no limit */
    int64_t nodes; /* dpar_schedule_optimize: how long it goes on searching; 0: it does not */
} dpar_schedule_optimize_desc;

/* How good the schedule is that was found. */
typedef struct dpar_schedule_optimize_result {
    int64_t makespan, span; /* of the schedule */
    int64_t bound; /* no schedule has a smaller objective; equal to it: this one is the best */
    int64_t nodes; /* nodes that the search visited; 0: it did not search */
} dpar_schedule_optimize_result;

#endif
