/* SPDX-License-Identifier: MIT-0 */
/* zero1 - ZeRO-1 on the flat arrays of a training code. Each rank keeps the optimizer's state only
 * for its share of the weights, updates that share, and gathers the others.
 *
 *     dpar_ddp_over(world, grads, n, DPAR_F32, &d, &why);          over.h
 *     dpar_optimizer_init(&adamw, DPAR_OPTIMIZER_ADAMW);
 *     each step:
 *         backward; dpar_ddp_done(d, ...) where you like
 *         dpar_zero1_step(d, params, &adamw, rate, 1.0);           in place of the update
 *
 * dpar_zero1_step ends the pass by itself. Gradients then go only to the owners of their shares,
 * and a step sends as much as dpar_ddp_end does. After dpar_ddp_end it uses the averages that are
 * there, and a step sends half as much more.
 *
 * A rank's share is elements first .. first + count - 1 of the flat array: ceil(n / ranks) each,
 * the last ranks less. To save: each rank writes its state at `first` of a file for each array. To
 * load on any number of ranks: each reads what its share is now.
 *
 *     for (k = 0; (m = dpar_zero1_state(d, k, &first, &count, &type)) != NULL; k++) {
 *         pwrite(file[k], m, count * dpar_type_bytes(type), first * dpar_type_bytes(type));
 *     }
 *     dpar_zero1_resume(d, &adamw, steps, &why);      in a new job; then the same loop with pread
 *
 * Weights are those of one rank to the rounding of the gradients' average, element by element
 * (optimizer.h); with a clip, of the norm too. Weights in 16 bits have no masters here: see
 * optimizer.stochastic, or fsdp.h. */
#ifndef DPARI_TRAIN_ZERO1_H
#define DPARI_TRAIN_ZERO1_H

#include "ddp.h"
#include "optimizer.h"

/* One step: updates params[n], of the gradients' type, with the averages of d's gradients.
 * Afterwards params are whole and the same on all ranks, and grads holds averages in this rank's
 * share alone. d is a dpar_ddp_over of one flat array. clip: the largest norm of all gradients
 * (dpar_optimizer_clip); 0 and less: any. The optimizer's numbers may change from step to step, its
 * kind and moment_type not.
 *
 * COLLECTIVE. A reduce-scatter and an all-gather of n, with a clip an all-reduce of 8 bytes; O(n /
 * ranks). The first step takes the state from dpar_comm_alloc: (moments) n / ranks elements.
 *
 * E_ARG: an optimizer that is none or another one, a rate or clip that is no number, params is
 * NULL, d is of a list or not of dpar_ddp_over. Where all ranks are E_ARG nothing is done, and the
 * next step may be right. E_MEMORY, E_MISMATCH in the first step leave all well. Later, where ranks
 * give different numbers or one is E_ARG alone, E_MISMATCH breaks the communicator. Errors as
 * comm.h. The sentence is in c->why. */
DPAR_API dpar_status dpar_zero1_step(dpar_ddp *d, void *params, const dpar_optimizer *optimizer,
                                     double rate, double clip);

/* Elements first .. first + count - 1 of the flat array, which are updated otherwise than the
 * optimizer says. */
typedef struct dpar_zero1_group {
    int64_t first, count;
    double decay; /* of weights, in place of the optimizer's; 0: none */
    double rate;  /* times the step's rate; 0: 1 */
} dpar_zero1_group;
/* Sets the groups from the next step on. They are in ascending order and do not overlap. Elements
 * in none go by the optimizer's own decay and the step's rate. The array is copied. COLLECTIVE: the
 * same on all ranks (E_MISMATCH else). E_ARG with a sentence, E_MEMORY. Small collectives compare.
 * O(groups). */
DPAR_API dpar_status dpar_zero1_groups(dpar_ddp *d, const dpar_zero1_group *group, int32_t groups,
                                       dpar_why *why);

/* This rank's share of an array of the optimizer, in the memory of the communicator. array: AdamW 0
 * is m, 1 is v; SGD with momentum has 0. It has `count` elements of `type` (NULL: not wanted), for
 * elements `first` and on of the flat array. NULL: no such array, or none yet: before the first
 * step and dpar_zero1_resume. Local. O(1). */
DPAR_API void *dpar_zero1_state(dpar_ddp *d, int32_t array, int64_t *first, int64_t *count,
                                int32_t *type);
/* Resumes: the next step is number steps + 1. Takes the state, which is 0, where there is none yet.
 * With what was saved in it training goes on bit by bit as if it had not stopped, on as many ranks.
 * COLLECTIVE. E_ARG, E_MEMORY with a sentence; E_MISMATCH: ranks gave different optimizers or
 * steps. */
DPAR_API dpar_status dpar_zero1_resume(dpar_ddp *d, const dpar_optimizer *optimizer, int64_t steps,
                                       dpar_why *why);

#endif
