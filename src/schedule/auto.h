/* SPDX-License-Identifier: MIT-0 */
/* auto - makes a schedule for the times, messages and memory that a pipeline really has, stage by
 * stage.
 *
 *     job.ranks = job.stages = 4;
 *     job.micro_batches = 8;
 *     job.split = 1;                                  I and W apart
 *     job.times = &times;                             measured
 *     dpar_schedule_optimize(&s, &job, &result, memory, sizeof memory, &why);
 */
#ifndef DPARI_SCHEDULE_AUTO_H
#define DPARI_SCHEDULE_AUTO_H

#include "job.h"

/* Makes the best schedule that it finds for a job within its caps: F, I and W, or F and B, without
 * messages. Returns DPAR_OK if no schedule is better, because the objective equals result->bound,
 * or DPAR_MORE if one may be. The schedule is the same on every machine, and never worse than the
 * orders of generate.h.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs at least. More gives the exact search a larger
 *       table. Memory behind the schedule's own bytes is free again afterwards.
 *
 * The result is the best, by the objective and then by the other measure, of
 *
 *  - with one stage per rank, the eight variants of the heuristic of sail-sg's zero-bubble
 *    scheduler (Qi 2023), with the times and memory of each stage. Rounds with an I on every stage
 *    run from the last stage to the first, with F before and W in the gaps;
 *  - list schedules, in which a free rank takes the best action that is ready, by twelve rules of
 *    preference, each with nine limits on the micro-batches between a stage's F and its I. A
 *    micro-batch is admitted only if the oldest one can still finish, which prevents deadlock;
 *  - the orders of generate.h that have this shape and keep the caps;
 *  - the best list schedule with its limits changed stage by stage as long as that helps, for at
 *    most job->nodes actions tried;
 *  - if stages x micro-batches is at most 48 and the bound is not reached, an exact search of at
 *    most job->nodes nodes (10^6 take about a second).
 *
 * With job->nodes = 0 the last two are skipped. About 2^25 actions are tried before `nodes` counts:
 * 64 ranks and 512 micro-batches take half a second. Costs O(rules x actions x ranks).
 *
 * Fails with DPAR_E_ARG for a job out of its domain, DPAR_E_RANGE if a sum of times or bytes
 * exceeds 2^60, or DPAR_E_ROOM if `bytes` is too small. Fails with DPAR_E_MEMORY if a cap cannot
 * hold one micro-batch on all stages of its rank, which every schedule needs and which is
 * sufficient. The message is, for example, "cannot fit: rank 2 needs 3 activations of 10 bytes, its
 * cap is 20".
 */
DPAR_API dpar_status dpar_schedule_optimize(dpar_schedule *schedule,
                                            const dpar_schedule_optimize_desc *job,
                                            dpar_schedule_optimize_result *result, void *mem,
                                            int64_t bytes, dpar_why *why);

#endif
