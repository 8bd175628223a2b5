/* SPDX-License-Identifier: MIT-0 */
/* simulated - checks the time and memory of a plan by simulating its pipeline action by action. The
 * closed forms of step.h and memory.h estimate the bubble and the activations; the simulation
 * counts them on the schedule that would run.
 *
 *     dpar_plan_simulation sim;
 *     dpar_plan_simulate(&job, &plan, &sim, memory, sizeof memory, &why);
 *     sim.slower                                       0.03: 3 % more than plan.step.total */
#ifndef DPARI_COST_SIMULATED_H
#define DPARI_COST_SIMULATED_H

#include "planner.h"

/* The result of simulating a plan. */
typedef struct dpar_plan_simulation {
    double total;  /* seconds of the step */
    double slower; /* total / plan.step.total - 1; negative if the simulation is faster */
    double bubble; /* share of the makespan, over all ranks, in which they are idle */
    double memory; /* bytes of the rank that needs the most */
    double larger; /* memory / plan.memory.total - 1 */
} dpar_plan_simulation;

/* Simulates the plan's pipeline schedule with the times, messages and activations of each stage.
 * Stages may be uneven: the first one includes the embedding, the last one the logits. Each half of
 * a split backward takes half of its compute. For a plan without a pipeline the result is its
 * price.
 *
 * job, plan: a job and a plan that dpar_plan_price or a search has written.
 * sim:       the result.
 * mem:       scratch memory of `bytes` bytes, aligned as for int64_t. 16 MB are enough for about
 *            100,000 forwards. Beyond that fewer micro-batches are simulated, and the time of the
 *            slowest rank is added for each of the others.
 *
 * The simulation assumes that a message waits only for its data, not for other messages. On one
 * NCCL communicator messages also wait for each other. The lists of dpar_schedule_lower then take
 * up to 8 % longer, as long as a message takes less than a fifth of a forward. For longer messages
 * use dpar_schedule_times.transport.
 *
 * Local. O(stages x micro-batches). Fails with DPAR_E_ROOM if mem is too small. why->bytes is then
 * the number of bytes that the failed step needs; a call with as many may fail again in a later
 * step that needs more. Otherwise it fails like dpar_schedule_generate and dpar_plan_price. */
DPAR_API dpar_status dpar_plan_simulate(const dpar_job *job, const dpar_plan *plan,
                                        dpar_plan_simulation *sim, void *mem, int64_t bytes,
                                        dpar_why *why);

#endif
