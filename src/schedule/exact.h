/* SPDX-License-Identifier: MIT-0 */
/* exact - private: is a job possible, how good can its schedule be, and the best one of a tiny job,
 * by exhaustive search. Integers only. */
#ifndef DPARI_SCHEDULE_EXACT_H
#define DPARI_SCHEDULE_EXACT_H

#include "../base/arith.h"
#include "job.h"

/* Checks whether a job is in its domain and fits. Fails with DPAR_E_ARG, DPAR_E_RANGE if a sum of
 * times or bytes exceeds 2^60, or DPAR_E_MEMORY if a cap cannot hold one micro-batch on all stages
 * of its rank, which every schedule needs and which is sufficient: "cannot fit: rank 2 needs 3
 * activations of 10 bytes, its cap is 20". O(stages x ranks). */
DPARI_INTERNAL dpar_status dpari_pipe_check(const dpar_schedule_optimize_desc *job, dpar_why *why);
/* Actions of a schedule of this job: stages x micros x 3 when split, else 2. O(1). */
DPARI_INTERNAL int64_t dpari_pipe_actions(const dpar_schedule_optimize_desc *job);
/* A lower bound on the objective; -1 when dpari_pipe_check refuses. The largest over ranks of its
 * work, with (makespan) the shortest way to its first stage and back from its last action to stage
 * 0; over stages of the way of one micro-batch, the others one behind the other at that stage; and
 * of what caps cost: the time that activations are held at least, times their bytes, over the cap,
 * and, where only A of a stage fit, ceil(micros / A) times the least that one is held.
 * O(stages x ranks). */
DPARI_INTERNAL int64_t dpari_pipe_bound(const dpar_schedule_optimize_desc *job);

/* The best schedule of a tiny job, by depth-first branch and bound: whenever a rank is free it does
 * one of the actions that are ready, or waits for the next arrival. States that were searched to
 * the end stand in a table and are not searched again. Up to 12 ranks, 24 stages and 255
 * micro-batches; F and I take 1 to 2^31 - 1, W and messages 0 to that. In practice: stages x micros
 * up to 24. */

/* Working memory with a table of `entries` states, 1 to 2^31: more table, less search. -1 when the
 * job is out of its domain. O(stages). */
DPARI_INTERNAL int64_t dpari_exact_bytes(const dpar_schedule_optimize_desc *job, int64_t entries);
/* Visits at most `nodes` states. *s is laid out by dpar_schedule_init for ranks, stages and
 * dpari_pipe_actions(job); what is found and better than `known` (0: nothing is known) is written
 * into it. DPAR_OK: there is no better one than *s. DPAR_MORE: the nodes were used up, *s is the
 * best so far and result->bound says how good it could get. result->makespan is 0 and *s untouched
 * when nothing better than `known` was found. E_ARG and E_ROOM, and what dpari_pipe_check says. mem
 * is aligned as for int64_t; all of it is used. */
DPARI_INTERNAL dpar_status dpari_exact_search(const dpar_schedule_optimize_desc *job, int64_t nodes,
                                              int64_t known, dpar_schedule *s,
                                              dpar_schedule_optimize_result *result, void *mem,
                                              int64_t bytes, dpar_why *why);

#endif
