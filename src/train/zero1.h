/* SPDX-License-Identifier: MIT-0 */
/* zero1 - trains with ZeRO-1 on the flat arrays of a training code. Each rank keeps the optimizer's
 * state only for its share of the weights, updates that share, and gathers the shares of the other
 * ranks.
 *
 *     dpar_ddp_over(world, grads, n, DPAR_F32, &d, &why);          over.h
 *     dpar_optimizer_init(&adamw, DPAR_OPTIMIZER_ADAMW);
 *     each step:
 *         backward; dpar_ddp_done(d, ...) where you like
 *         dpar_zero1_step(d, params, &adamw, rate, 1.0);           in place of the update
 *
 * dpar_zero1_step ends the pass by itself. Gradients are then sent only to the rank that owns their
 * share, and a step sends as many bytes as dpar_ddp_end alone does. If you call dpar_ddp_end first,
 * for instance to inspect the averages, the step uses them and sends half as much again.
 *
 * A rank's share is elements first .. first + count - 1 of the flat array: ceil(n / ranks) for each
 * rank, fewer for the last ones. To save the state, each rank writes each of its arrays at offset
 * `first` of that array's file. To load it on any number of ranks, each rank reads the elements of
 * its present share.
 *
 *     for (k = 0; (m = dpar_zero1_state(d, k, &first, &count, &type)) != NULL; k++) {
 *         pwrite(file[k], m, count * dpar_type_bytes(type), first * dpar_type_bytes(type));
 *     }
 *     dpar_zero1_resume(d, &adamw, steps, &why);      in a new job; then the same loop with pread
 *
 * The weights equal those of one rank up to the rounding of the averaged gradients, because the
 * update is element by element (optimizer.h), and of the norm if there is a clip. There are no
 * F32 masters for 16-bit weights here: use optimizer.stochastic, or fsdp.h. */
#ifndef DPARI_TRAIN_ZERO1_H
#define DPARI_TRAIN_ZERO1_H

#include "ddp.h"
#include "optimizer.h"

/* Updates the weights with the averages of d's gradients: one step of the optimizer.
 *
 * d:         made by dpar_ddp_over, of one flat array of n gradients. Afterwards only this rank's
 *            share of that array holds averages.
 * params:    [n] weights, of the gradients' type. Afterwards they are whole and equal on all ranks.
 * optimizer: its numbers may change from step to step, its kind and moment_type may not.
 * rate:      learning rate.
 * clip:      largest norm of all gradients (dpar_optimizer_clip); 0 or less means no limit.
 *
 * Collective. Costs a reduce-scatter and an all-gather of n elements, with a clip an all-reduce of
 * 8 bytes, and O(n / ranks). The first step allocates the state with dpar_comm_alloc: n / ranks
 * elements for each moment.
 *
 * Fails with DPAR_E_ARG if the optimizer is invalid or not the one of the first step, rate is not
 * finite, clip is NaN, params is NULL, or d was not made by dpar_ddp_over. If that is so on all
 * ranks, nothing was done and you may try again. DPAR_E_MEMORY and DPAR_E_MISMATCH in the first
 * step also do no harm. In later steps DPAR_E_MISMATCH breaks the communicator: ranks gave
 * different numbers, or only some got DPAR_E_ARG. Other errors are those of comm.h. The message is
 * in c->why. */
DPAR_API dpar_status dpar_zero1_step(dpar_ddp *d, void *params, const dpar_optimizer *optimizer,
                                     double rate, double clip);

/* A range of elements with its own weight decay and rate, like a parameter group of PyTorch. */
typedef struct dpar_zero1_group {
    int64_t first, count; /* elements first .. first + count - 1 of the flat array */
    double decay;         /* weight decay in place of the optimizer's; 0 means none */
    double rate;          /* factor for the rate of the step; 0 selects 1 */
} dpar_zero1_group;
/* Sets the groups that apply from the next step on. Elements in no group use the optimizer's decay
 * and the rate of the step.
 *
 * group: [groups] in ascending order without overlap. The array is copied.
 *
 * Collective: the same groups on all ranks, compared with small collectives. O(groups). Fails with
 * DPAR_E_MISMATCH if they differ, DPAR_E_ARG or DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_zero1_groups(dpar_ddp *d, const dpar_zero1_group *group, int32_t groups,
                                       dpar_why *why);

/* Returns this rank's share of an array of the optimizer's state, in the memory of the
 * communicator. Returns NULL if the optimizer has no such array, or no state yet: before the first
 * step and before dpar_zero1_resume.
 *
 * array: for AdamW 0 is m and 1 is v; for SGD with momentum 0 is the momentum.
 * first: set to the first element of the share in the flat array. May be NULL.
 * count: set to the number of elements. May be NULL.
 * type:  set to their type. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_zero1_state(dpar_ddp *d, int32_t array, int64_t *first, int64_t *count,
                                int32_t *type);
/* Prepares d to continue a training that was saved after `steps` steps: the next step is number
 * steps + 1. Allocates the state, filled with 0, if there is none yet. Once you have filled in the
 * saved state, training on the same number of ranks gives the same bits as if it had not stopped.
 *
 * Collective. Fails with DPAR_E_ARG, DPAR_E_MEMORY, or DPAR_E_MISMATCH if ranks gave different
 * optimizers or steps. */
DPAR_API dpar_status dpar_zero1_resume(dpar_ddp *d, const dpar_optimizer *optimizer, int64_t steps,
                                       dpar_why *why);

#endif
