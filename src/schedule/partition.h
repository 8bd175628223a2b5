/* SPDX-License-Identifier: MIT-0 */
/* partition - chooses how many layers of a model each stage of a pipeline gets, together with the
 * schedule. An embedding at the start and a loss at the end make the outer stages heavier, and how
 * heavy a stage may be depends on when other stages wait for it.
 *
 *     how.job = &job;                                 times of layers, not of stages
 *     how.layers = 32;
 *     how.tries = 200;
 *     how.cuts = cuts;                                [stages + 1]
 *     dpar_schedule_partition(&s, &how, &result, memory, sizeof memory, &why);
 */
#ifndef DPARI_SCHEDULE_PARTITION_H
#define DPARI_SCHEDULE_PARTITION_H

#include "optimize.h"

/* Layers to be placed on stages. Zero it, then set the fields. */
typedef struct dpar_schedule_partition_desc {
    /* The job as for dpar_schedule_optimize, but with numbers for layers. In job->times forward,
     * input, weight, backward, hold_forward, hold_input, hold_weight and hold_always are values of
     * layers, each[layers]. The value of a stage is the sum over its layers, except that without
     * hold_forward its activation counts as 1. latency, bytes and bandwidth are those of the edges
     * between stages. job->nodes is not read. */
    const dpar_schedule_optimize_desc *job;
    int32_t layers;
    /* NULL makes a schedule with dpar_schedule_optimize for each cut. Otherwise a schedule of one
     * chain with the job's ranks, stages and micro-batches, such as one from
     * dpar_schedule_generate. Its lists stay as they are while layers move, and
     * dpar_schedule_simulate computes the objective.
     */
    const dpar_schedule *given;
    int64_t tries; /* the most cuts to evaluate */
    /* [stages + 1], receives the result: stage s gets layers cuts[s] .. cuts[s + 1] - 1. */
    int64_t *cuts;
} dpar_schedule_partition_desc;

/* Cuts the layers into job->stages runs, none of them empty, so that the objective is as small as
 * the search can make it. Returns DPAR_OK, or DPAR_MORE if `tries` cuts were evaluated before the
 * search ended.
 *
 * schedule: receives the schedule of the best cut. With `given` it is unchanged and may be NULL.
 * result:   receives makespan, span and bound of this cut, and in `nodes` the number of cuts that
 *           were evaluated.
 * mem:      aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *           why->bytes is how many it needs. The schedule is at its front.
 *
 * The search starts twice: from the cut of dpar_split_balance by the time of a micro-batch, and
 * from equal numbers of layers. It moves a layer from one stage to another, and each stage in
 * between passes one on, as long as this decreases the bytes over the caps or the objective. For
 * 1450 of 1486 random small jobs the result was as good as the best of all cuts; for the others it
 * was up to 4 % longer.
 *
 * Fails with DPAR_E_MEMORY if no cut was found that keeps the caps; the message is that of
 * dpar_schedule_optimize, or names the rank with its peak. Fails with DPAR_E_ARG, DPAR_E_RANGE,
 * DPAR_E_ROOM, and as dpar_schedule_simulate does for `given`. Costs about `tries` times
 * dpar_schedule_optimize, or dpar_schedule_simulate with `given`.
 */
DPAR_API dpar_status dpar_schedule_partition(dpar_schedule *schedule,
                                             const dpar_schedule_partition_desc *how,
                                             dpar_schedule_optimize_result *result, void *mem,
                                             int64_t bytes, dpar_why *why);

#endif
