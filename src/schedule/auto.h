/* SPDX-License-Identifier: MIT-0 */
/* auto - a schedule made for the times, the messages and the memory that a pipeline really has,
 * stage by stage. */
#ifndef DPARI_SCHEDULE_AUTO_H
#define DPARI_SCHEDULE_AUTO_H

#include "exact.h"

/* Working memory that dpar_auto_schedule needs at least (mostly 16 bytes a stage and micro-batch,
 * and 8 an action); what is handed over beyond that becomes the table of the exact search. -1 when
 * dpar_pipe_check refuses the job. O(stages x ranks). */
DPAR_API int64_t dpar_auto_bytes(const dpar_pipe_job *job);

/* Makes a schedule (F, I and W, or F and B; no messages) that keeps the caps, into `room` of
 * dpar_schedule_bytes(ranks, stages, dpar_pipe_actions(job)) bytes. The best, in the objective and
 * then in the other measure, of
 *   - with one stage a rank, rounds of an I on every stage, from the last to the first, with F's
 *     before and W's in the gaps: the heuristic of sail-sg's zero-bubble scheduler (Qi 2023), its
 *     eight variants, with times and memory of each stage;
 *   - list schedules: a rank that is free takes the best of what is there, by twelve rules of
 *     preference, each with nine limits on the micro-batches between a stage's F and its I. A
 *     micro-batch is let in only while the oldest one can still get through: no deadlock;
 *   - the orders of generate.h that are of this shape and keep the caps: never worse than those;
 *   - the best list with its limits changed stage by stage, while that helps, for at most `nodes`
 *     actions tried;
 *   - where stages x micro-batches is at most 48 and the bound is not met: dpar_exact_search for at
 *     most `nodes` nodes (10^6 take about a second).
 * At most some 2^25 actions are tried before `nodes` count: 64 ranks and 512 micro-batches take
 * half a second. nodes = 0: neither of the last two.
 *
 * DPAR_OK: no schedule is better (its objective is result->bound); DPAR_MORE: one may be. Both
 * leave a schedule. Same input, same schedule, on every machine. Errors: what dpar_pipe_check says;
 * E_ARG; E_ROOM. `room` and `mem` are aligned as for int64_t. O(rules x actions x ranks). */
DPAR_API dpar_status dpar_auto_schedule(const dpar_pipe_job *job, int64_t nodes, dpar_schedule *s,
                                        void *room, int64_t room_bytes, dpar_pipe_result *result,
                                        void *mem, int64_t bytes, dpar_why *why);

#endif
