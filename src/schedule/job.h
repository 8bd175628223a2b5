/* SPDX-License-Identifier: MIT-0 */
/* job - what a pipeline has to do, within which memory. Integers only. */
#ifndef DPARI_SCHEDULE_JOB_H
#define DPARI_SCHEDULE_JOB_H

#include "simulate.h"

/* What is made small. SPAN is the longest time from a rank's first start to its last end: what a
 * step takes when each rank may step its optimizer and go on alone, and what papers on zero bubbles
 * measure. Each action starts as early as the order of its rank lets it. */
enum { DPAR_LEAST_MAKESPAN, DPAR_LEAST_SPAN };
enum { DPAR_PIPE_RANKS = 4096, DPAR_PIPE_STAGES = 16384 }; /* at most */

/* One step of a pipeline of one chain: each micro-batch goes F(0) .. F(stages - 1), then I (or B)
 * back to stage 0, and W of a stage any time after its I. Zero-initialise it. */
typedef struct dpar_pipe_job {
    int32_t ranks, stages, micros; /* at least 1; stages x micros at most 2^28 */
    int32_t map;                   /* DPAR_MAP_LOOP or DPAR_MAP_V; not read when rank_of is given */
    int32_t split;                 /* 1: I and W are two actions; 0: B is both in one piece */
    int32_t objective;             /* DPAR_LEAST_MAKESPAN or DPAR_LEAST_SPAN */
    const uint16_t *rank_of;       /* [stages], each rank has a stage; NULL: map */
    /* Times, messages and memory, as dpar_times has them. Read: forward, input, weight, backward,
     * latency, bytes, bandwidth, hold_forward (0 or more), hold_input, hold_weight (0 or less; with
     * hold_forward their sum is 0), hold_always. Messages are DPAR_SENDS_BUFFERED on links of their
     * own; bandwidth at most INT64_MAX / 10. Without any hold_forward an activation counts as 1,
     * from F to B or W. */
    const dpar_times *times;
    dpar_each cap; /* [ranks]: the most that a rank may hold at any time; a 0: no limit */
    int64_t nodes; /* dpar_schedule_auto: how long it goes on searching; 0: not */
} dpar_pipe_job;

typedef struct dpar_pipe_result {
    int64_t makespan, span; /* of the schedule */
    int64_t bound;          /* no schedule has a smaller objective; equal to it: none is better */
    int64_t nodes;          /* that the search visited; 0 when there was none */
} dpar_pipe_result;

#endif
