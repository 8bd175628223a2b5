/* SPDX-License-Identifier: MIT-0 */
/* auto - a schedule made for the times, the messages and the memory that a pipeline really has,
 * stage by stage.
 *
 *     job.ranks = job.stages = 4;
 *     job.micros = 8;
 *     job.split = 1;                                  I and W apart
 *     job.times = &times;                             measured
 *     dpar_schedule_optimize(&s, &job, &result, memory, sizeof memory, &why); */
#ifndef DPARI_SCHEDULE_AUTO_H
#define DPARI_SCHEDULE_AUTO_H

#include "job.h"

/* Bytes of memory that dpar_schedule_optimize needs at least: the schedule, and mostly 16 bytes a
 * stage and micro-batch and 8 an action to work in. More memory becomes the table of the exact
 * search. -1 with a sentence for a job that is out of its domain or cannot fit. O(stages x ranks).
 */
DPAR_API int64_t dpar_schedule_auto_bytes(const dpar_schedule_optimize_desc *job, dpar_why *why);

/* Makes a schedule that keeps the caps, in mem (aligned as for int64_t): F, I and W, or F and B; no
 * messages. It is never worse than the orders of generate.h. DPAR_OK: no schedule is better; its
 * objective is result->bound. DPAR_MORE: one may be. Both leave a schedule, the same on every
 * machine. mem behind its own bytes is free again.
 *
 * It is the best, in the objective and then in the other measure, of
 *
 *  - with one stage a rank, the eight variants of the heuristic of sail-sg's zero-bubble scheduler
 *    (Qi 2023), with times and memory of each stage. Rounds of an I on every stage go from the last
 *    to the first, with F's before and W's in the gaps;
 *  - list schedules: a free rank takes the best of what is there, by twelve rules of preference,
 *    each with nine limits on the micro-batches between a stage's F and its I. A micro-batch is let
 *    in only while the oldest one can still get through: no deadlock;
 *  - the orders of generate.h that have this shape and keep the caps;
 *  - the best list with its limits changed stage by stage while that helps, for at most job->nodes
 *    actions tried;
 *  - where stages x micro-batches is at most 48 and the bound is not met, an exact search of at
 *    most job->nodes nodes (10^6 take about a second).
 *
 * About 2^25 actions are tried before `nodes` count: 64 ranks and 512 micro-batches take half a
 * second. job->nodes = 0 leaves out the last two. O(rules x actions x ranks).
 *
 * E_ARG: a job out of its domain. E_RANGE: a sum of times or bytes passes 2^60. E_ROOM. E_MEMORY: a
 * cap cannot hold one micro-batch on all stages of its rank, which every order needs and which is
 * enough: "cannot fit: rank 2 needs 3 activations of 10 bytes, its cap is 20". */
DPAR_API dpar_status dpar_schedule_optimize(dpar_schedule *s,
                                            const dpar_schedule_optimize_desc *job,
                                            dpar_schedule_optimize_result *result, void *mem,
                                            int64_t bytes, dpar_why *why);

#endif
