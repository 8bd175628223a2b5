/* SPDX-License-Identifier: MIT-0 */
/* optimize - makes a schedule for the times, messages and memory that a pipeline really has, stage
 * by stage.
 *
 *     job.ranks = job.stages = 4;
 *     job.micro_batches = 8;
 *     job.split = 1;                                  I and W are separate actions
 *     job.times = &times;                             measured
 *     dpar_schedule_optimize(&s, &job, &result, memory, sizeof memory, &why);
 */
#ifndef DPARI_SCHEDULE_OPTIMIZE_H
#define DPARI_SCHEDULE_OPTIMIZE_H

#include "job.h"

/* Makes the best schedule that it can find for a job within its caps. The schedule has F, I and W,
 * or F and B, and no messages. Returns DPAR_OK if the objective equals result->bound, so that no
 * schedule is better, or DPAR_MORE if there may be a better one. The schedule is the same on every
 * machine, and never worse than those of generate.h.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is the least number that it needs. More bytes give the exact search a larger
 *       table. After the call only the bytes of the schedule itself are in use.
 *
 * The result is the best, by the objective and then by the other measure, of
 *
 *  - if each rank has one stage, the eight variants of the heuristic of sail-sg's zero-bubble
 *    scheduler (Qi 2023), here with the times and memory of each stage. In each of its rounds every
 *    stage runs an I, from the last stage to the first, with F before them and W in the gaps;
 *  - list schedules, in which a free rank runs the preferred one of the actions that are ready.
 *    There are up to twelve rules of preference, and for each nine limits on the micro-batches
 *    between a stage's F and its I. A micro-batch is admitted only if the oldest one can still
 *    finish, which prevents deadlock;
 *  - the schedules of generate.h that have the stages and ranks of the job and keep its caps;
 *  - the best list schedule, improved by changing its limits stage by stage, until nothing helps or
 *    job->nodes actions have been tried;
 *  - if stages x micro-batches is at most 48 and the bound is not reached, an exact search of at
 *    most job->nodes nodes (10^6 take about a second).
 *
 * With job->nodes = 0 the last two methods are skipped. The others try about 2^25 actions at most;
 * with 64 ranks and 512 micro-batches they take half a second. Costs O(rules x actions x ranks).
 *
 * Fails with DPAR_E_ARG for a job out of its domain, DPAR_E_RANGE if a sum of times or bytes
 * exceeds 2^60, or DPAR_E_ROOM if `bytes` is too small. Fails with DPAR_E_MEMORY if a cap cannot
 * hold one micro-batch on all stages of its rank. Every schedule needs that much, and with it there
 * is a schedule. The message is, for example, "cannot fit: rank 2 needs 3 activations of 10 bytes,
 * its cap is 20".
 */
DPAR_API dpar_status dpar_schedule_optimize(dpar_schedule *schedule,
                                            const dpar_schedule_optimize_desc *job,
                                            dpar_schedule_optimize_result *result, void *mem,
                                            int64_t bytes, dpar_why *why);

#endif
