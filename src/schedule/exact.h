/* SPDX-License-Identifier: MIT-0 */
/* exact - private: checks whether a job is possible, bounds how good its schedule can be, and finds
 * the best schedule of a tiny job by exhaustive search. Integers only. */
#ifndef DPARI_SCHEDULE_EXACT_H
#define DPARI_SCHEDULE_EXACT_H

#include "../base/arith.h"
#include "job.h"

/* Checks whether a job is in its domain and fits. Fails with DPAR_E_ARG, with DPAR_E_RANGE if a sum
 * of times or bytes exceeds 2^60, or with DPAR_E_MEMORY if a cap cannot hold one micro-batch on all
 * stages of its rank: "cannot fit: rank 2 needs 3 activations of 10 bytes, its cap is 20". Every
 * schedule needs that much memory, and it is enough for one. O(stages x ranks). */
DPARI_INTERNAL dpar_status dpari_pipe_check(const dpar_schedule_optimize_desc *job, dpar_why *why);
/* Returns the number of actions in a schedule of this job: three per stage and micro-batch if
 * backwards are split, otherwise two. O(1). */
DPARI_INTERNAL int64_t dpari_pipe_actions(const dpar_schedule_optimize_desc *job);
/* Returns a lower bound of the objective, or -1 if dpari_pipe_check refuses the job. It is the
 * largest of these:
 *
 *  - for each rank, its work; for the makespan also the shortest time before its first stage can
 *    start, and from its last action back to stage 0;
 *  - for each stage, the time in which one micro-batch passes the whole chain, plus the time in
 *    which the other micro-batches pass that stage one after another;
 *  - for each rank with a cap, the sum of bytes x least time held over its activations, divided by
 *    the cap;
 *  - for each stage of which only A activations fit under the cap, ceil(micros / A) times the least
 *    time that one of them is held.
 *
 * O(stages x ranks).
 */
DPARI_INTERNAL int64_t dpari_pipe_bound(const dpar_schedule_optimize_desc *job);

/* The search finds the best schedule of a tiny job by depth-first branch and bound. Whenever a rank
 * is free, it runs one of the actions that are ready, or waits for the next arrival. A table keeps
 * the states that were searched to the end, so that they are not searched again. Jobs may have up
 * to 12 ranks, 24 stages and 255 micro-batches. F and I may take 1 to 2^31 - 1, W and messages 0 to
 * 2^31 - 1. In practice jobs of up to 24 stages x micro-batches can be searched to the end. */

/* Returns the bytes of working memory for a search with a table of `entries` states, 1 to 2^31. A
 * larger table shortens the search. Returns -1 if the job is out of its domain. O(stages). */
DPARI_INTERNAL int64_t dpari_exact_bytes(const dpar_schedule_optimize_desc *job, int64_t entries);
/* Searches at most `nodes` states for a schedule whose objective is smaller than `known`; 0 means
 * that none is known.
 *
 * schedule: initialised by dpar_schedule_init for the ranks and stages of the job and
 *           dpari_pipe_actions(job) actions. Receives the best schedule found. If none is better
 *           than `known`, it is unchanged and result->makespan is 0.
 * mem:      aligned as for int64_t; all of it is used.
 *
 * Returns DPAR_OK if no better schedule exists, or DPAR_MORE if the nodes were used up before that
 * was known; result->bound is then a lower bound. Fails with DPAR_E_ARG, DPAR_E_ROOM, and as
 * dpari_pipe_check does.
 */
DPARI_INTERNAL dpar_status dpari_exact_search(const dpar_schedule_optimize_desc *job, int64_t nodes,
                                              int64_t known, dpar_schedule *schedule,
                                              dpar_schedule_optimize_result *result, void *mem,
                                              int64_t bytes, dpar_why *why);

#endif
