/* SPDX-License-Identifier: MIT-0 */
/* place - how many of a model's layers each stage of a pipeline gets, chosen together with the
 * schedule. An embedding before and a loss behind make the outer stages heavier, and what a stage
 * may weigh depends on when others wait for it.
 *
 *     how.job = &job;                                 times of layers, not of stages
 *     how.layers = 32;
 *     how.tries = 200;
 *     how.cuts = cuts;                                [stages + 1]
 *     dpar_schedule_partition(&s, &how, &result, memory, dpar_schedule_place_bytes(&how), &why); */
#ifndef DPARI_SCHEDULE_PLACE_H
#define DPARI_SCHEDULE_PLACE_H

#include "auto.h"

/* Layers to be placed. Zero it and fill it in. */
typedef struct dpar_schedule_partition_desc {
    /* As for dpar_schedule_optimize, but for layers. In job->times forward, input, weight,
     * backward, hold_forward, hold_input, hold_weight and hold_always are of layers, of[layers]. A
     * stage has the sum of its own; without hold_forward its activation counts as 1. latency, bytes
     * and bandwidth are of the edges between stages. job->nodes is not read. */
    const dpar_schedule_optimize_desc *job;
    int32_t layers;
    /* NULL: each way to cut gets the schedule that dpar_schedule_optimize makes for it. Else a
     * schedule of one chain on the job's ranks, stages and micro-batches, say from
     * dpar_schedule_generate. Its lists stay, layers move, dpar_schedule_simulate judges. */
    const dpar_schedule *given;
    int64_t tries; /* ways to cut that are judged, at most */
    /* [stages + 1], the answer: stage s gets the layers cuts[s] .. cuts[s + 1] - 1. */
    int64_t *cuts;
} dpar_schedule_partition_desc;

/* Bytes of memory that dpar_schedule_partition takes. -1 when the numbers are out of their domain.
 * O(1). */
DPAR_API int64_t dpar_schedule_place_bytes(const dpar_schedule_partition_desc *how);
/* Cuts the layers into job->stages runs, none empty. The best cut's schedule goes into *s and the
 * first bytes of mem (aligned as for int64_t). Where `given` is set, *s is untouched and may be
 * NULL. result->bound is of this cut; result->nodes says how many were judged.
 *
 * It starts from the runs of dpar_split_balance over the time of a micro-batch, and from equal
 * numbers of layers. Then it moves a layer from one stage to another, the stages between passing
 * one on, while the objective or the bytes over the caps get smaller. Of 1486 random small jobs
 * 1450 came out as good as the best of all cuts, the others up to 4 % longer.
 *
 * DPAR_OK. DPAR_MORE: `tries` were used up. E_MEMORY: no cut was found that keeps the caps; the
 * sentence is that of dpar_schedule_optimize, or names the rank with its peak. E_ARG, E_RANGE,
 * E_ROOM, and what dpar_schedule_simulate says of `given`. It costs about `tries` times
 * dpar_schedule_optimize, or dpar_schedule_simulate of `given`. */
DPAR_API dpar_status dpar_schedule_partition(dpar_schedule *s,
                                             const dpar_schedule_partition_desc *how,
                                             dpar_schedule_optimize_result *result, void *mem,
                                             int64_t bytes, dpar_why *why);

#endif
