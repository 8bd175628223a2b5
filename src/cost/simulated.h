/* SPDX-License-Identifier: MIT-0 */
/* simulated - a plan's pipeline once more, action by action: what the closed forms of step.h and
 * memory.h say of the bubble and of the activations, checked on the schedule that would run.
 *
 *     dpar_plan_simulation sim;
 *     dpar_plan_simulate(&job, &plan, &sim, memory, sizeof memory, &why);
 *     sim.slower                                       0.03: 3 % more than plan.step.total */
#ifndef DPARI_COST_SIMULATED_H
#define DPARI_COST_SIMULATED_H

#include "planner.h"

/* What the simulation says of a plan. */
typedef struct dpar_plan_simulation {
    double total;  /* seconds of the step */
    double slower; /* than plan.step.total, as a share; below 0: faster */
    double bubble; /* share of the makespan of all ranks that they stand idle */
    double memory; /* bytes of the rank with most */
    double larger; /* than plan.memory.total, as a share */
} dpar_plan_simulation;

/* Simulates the plan's schedule with the times, messages and activations of each stage: uneven
 * ones, the first with its embedding, the last with its logits. The backward's two halves take the
 * compute's half each. A plan without a pipeline is as it was priced.
 *
 * Messages wait for their data only, not for other messages. On one NCCL communicator, where they
 * do wait, the lists of dpar_schedule_lower take up to 8 % longer while a message takes less than a
 * fifth of a forward. dpar_schedule_times.transport gives the time where it takes more.
 *
 * mem is aligned as for int64_t; 16 MB are enough for some 100,000 forwards. From there on fewer
 * micro-batches are simulated, and the slowest rank's time is added for the rest. E_ROOM says how
 * many bytes. Errors as dpar_schedule_generate and dpar_plan_price. O(stages x micro-batches). */
DPAR_API dpar_status dpar_plan_simulate(const dpar_job *job, const dpar_plan *plan,
                                        dpar_plan_simulation *sim, void *mem, int64_t bytes,
                                        dpar_why *why);

#endif
