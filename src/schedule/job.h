/* SPDX-License-Identifier: MIT-0 */
/* job - describes the work of a pipeline and the memory of its ranks, the input of
 * dpar_schedule_optimize. Integers only. */
#ifndef DPARI_SCHEDULE_JOB_H
#define DPARI_SCHEDULE_JOB_H

#include "simulate.h"

/* What dpar_schedule_optimize minimises. Each action starts as early as the order of its rank
 * allows.
 */
enum {
    DPAR_OBJECTIVE_MAKESPAN, /* the time until the last rank has finished */
    /* The span, which is the longest time from a rank's first start to its last end. It is the time
     * of a step if each rank may step its optimizer and continue without waiting for the others;
     * papers on zero bubbles measure it. */
    DPAR_OBJECTIVE_SPAN
};

/* One step of a pipeline with one chain. Each micro-batch runs F on stages 0 to stages - 1, then I
 * (or B) back to stage 0; the W of a stage may run at any time after its I. Zero it, then set the
 * fields. */
typedef struct dpar_schedule_optimize_desc {
    /* At least 1 each; at most 4096 ranks, 16384 stages and 65535 micro-batches, and stages x
     * micro_batches at most 2^28. */
    int32_t ranks, stages, micro_batches;
    int32_t map;       /* DPAR_STAGE_MAP_LOOP or DPAR_STAGE_MAP_V; not read if rank_of is given */
    int32_t split;     /* 1 makes I and W two actions; 0 makes B one action */
    int32_t objective; /* DPAR_OBJECTIVE_MAKESPAN or DPAR_OBJECTIVE_SPAN */
    const uint16_t *rank_of; /* [stages]; each rank needs a stage; NULL selects `map` */
    /* Times, messages and memory, as in dpar_schedule_times. Without hold_forward an activation
     * counts as 1, from F to B or W. Messages are DPAR_SEND_MODE_BUFFERED, each on a link of its
     * own.
     *
     * Only these fields are read: forward, input, weight, backward, latency, bytes, bandwidth (at
     * most INT64_MAX / 10), hold_always, hold_forward (0 or more), hold_input and hold_weight (0 or
     * less). With hold_forward the last three must add up to 0.
     */
    const dpar_schedule_times *times;
    dpar_stage_values cap; /* [ranks], the most that each rank may hold at any time; 0 means no
                              limit */
    int64_t nodes;         /* nodes that dpar_schedule_optimize may search; 0 disables the search */
} dpar_schedule_optimize_desc;

/* How good a schedule is. */
typedef struct dpar_schedule_optimize_result {
    int64_t makespan, span; /* makespan and span of the schedule */
    /* A lower bound of the objective over all schedules. If the schedule reaches it, the schedule
     * is the best. */
    int64_t bound;
    int64_t nodes; /* nodes that the search visited; 0 if it did not search */
} dpar_schedule_optimize_result;

#endif
