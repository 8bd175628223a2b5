/* SPDX-License-Identifier: MIT-0 */
/* exact - what a pipeline has to do, within which memory; and the best order for a tiny one, by
 * exhaustive search. Integers only. */
#ifndef DPARI_SCHEDULE_EXACT_H
#define DPARI_SCHEDULE_EXACT_H

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
    /* Times, messages and memory, as for dpar_simulate. Read: forward, input, weight, backward,
     * latency, bytes, bandwidth, hold_forward (0 or more), hold_input, hold_weight (0 or less; with
     * hold_forward their sum is 0), hold_always. Messages are DPAR_SENDS_BUFFERED on links of their
     * own; bandwidth at most INT64_MAX / 10. Without any hold_forward an activation counts as 1,
     * from F to B or W. */
    const dpar_times *times;
    dpar_each cap; /* [ranks]: the most that a rank may hold at any time; a 0: no limit */
} dpar_pipe_job;

typedef struct dpar_pipe_result {
    int64_t makespan, span; /* of the schedule */
    int64_t bound;          /* no schedule has a smaller objective; equal to it: none is better */
    int64_t nodes;          /* that the search visited; 0 when there was none */
} dpar_pipe_result;

/* Is the job in its domain, and does it fit? E_ARG; E_RANGE when a sum of times or bytes passes
 * 2^60; E_MEMORY when a cap cannot hold one micro-batch on all stages of its rank, which every
 * order needs and which is enough: "cannot fit: rank 2 needs 3 activations of 10 bytes, its cap is
 * 20". O(stages x ranks). */
DPAR_API dpar_status dpar_pipe_check(const dpar_pipe_job *job, dpar_why *why);
/* Actions of a schedule of this job: stages x micros x 3 when split, else 2. O(1). */
DPAR_API int64_t dpar_pipe_actions(const dpar_pipe_job *job);
/* A lower bound on the objective; -1 when dpar_pipe_check refuses. The largest over ranks of its
 * work, with (makespan) the shortest way to its first stage and back from its last action to stage
 * 0; over stages of the way of one micro-batch, the others one behind the other at that stage; and
 * of what caps cost: the time that activations are held at least, times their bytes, over the cap,
 * and, where only A of a stage fit, ceil(micros / A) times the least that one is held.
 * O(stages x ranks). */
DPAR_API int64_t dpar_pipe_bound(const dpar_pipe_job *job);

/* The best schedule of a tiny job, by depth-first branch and bound: whenever a rank is free it does
 * one of the actions that are ready, or waits for the next arrival. States that were searched to
 * the end stand in a table and are not searched again. Up to 12 ranks, 24 stages and 255
 * micro-batches; F and I take 1 to 2^31 - 1, W and messages 0 to that. In practice: stages x micros
 * up to 24. */

/* Working memory with a table of `entries` states, 1 to 2^31: more table, less search. -1 when the
 * job is out of its domain. O(stages). */
DPAR_API int64_t dpar_exact_bytes(const dpar_pipe_job *job, int64_t entries);
/* Visits at most `nodes` states. *s is laid out by dpar_schedule_lay for ranks, stages and
 * dpar_pipe_actions(job); what is found and better than `known` (0: nothing is known) is written
 * into it. DPAR_OK: there is no better one than *s. DPAR_MORE: the nodes were used up, *s is the
 * best so far and result->bound says how good it could get. result->makespan is 0 and *s untouched
 * when nothing better than `known` was found. E_ARG and E_ROOM, and what dpar_pipe_check says. mem
 * is aligned as for int64_t; all of it is used. */
DPAR_API dpar_status dpar_exact_search(const dpar_pipe_job *job, int64_t nodes, int64_t known,
                                       dpar_schedule *s, dpar_pipe_result *result, void *mem,
                                       int64_t bytes, dpar_why *why);

#endif
