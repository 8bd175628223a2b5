/* SPDX-License-Identifier: MIT-0 */
/* zero1 - trains with ZeRO-1 on the flat arrays of a training code. Each rank keeps the optimizer's
 * state only for its share of the weights, updates that share, and gathers the shares of the other
 * ranks.
 *
 *     desc.gradients = grads;  ...  dpar_ddp_make(world, &desc, &ddp, &why);          ddp.h
 *     dpar_optimizer_init(&adamw, DPAR_OPTIMIZER_ADAMW);
 *     dpar_zero1_desc zero = {0};
 *     zero.weights = weights;
 *     zero.optimizer = &adamw;
 *     dpar_zero1_make(ddp, &zero, &zero1, &why);
 *     each step:
 *         backward; dpar_ddp_ready(ddp, i) where you like
 *         dpar_zero1_step(zero1, rate, 1.0);                       in place of the update
 *     dpar_zero1_free(zero1);
 *     dpar_ddp_free(ddp);
 *
 * dpar_zero1_step ends the pass by itself. Gradients are then sent only to the rank that owns their
 * share, and a step sends as many bytes as dpar_ddp_end alone does. If you call dpar_ddp_end first,
 * for instance to inspect the averages, the step uses them and sends half as much again, and so
 * does the first step after it. If you look at averages and then take no step, call dpar_ddp_zero
 * or dpar_ddp_begin(ddp, 1) on all ranks before the next backward: otherwise the next step takes
 * its gradients for averages.
 *
 * A rank's share is elements first .. first + count - 1 of the flat array: ceil(n / ranks) for each
 * rank, fewer for the last ones. To save the state, each rank writes each of its arrays at offset
 * `first` of that array's file. To load it on any number of ranks, make it with desc.steps, and
 * each rank reads the elements of its present share: the same loop with pread.
 *
 *     for (k = 0; (m = dpar_zero1_state(zero1, k, &first, &count, &type)) != NULL; k++) {
 *         pwrite(file[k], m, count * dpar_type_bytes(type), first * dpar_type_bytes(type));
 *     }
 *
 * The weights equal those of one rank up to the rounding of the averaged gradients, because the
 * update is element by element (optimizer.h), and of the norm if there is a clip. There are no
 * F32 masters for 16-bit weights here: use optimizer.stochastic, or fsdp.h. */
#ifndef DPARI_TRAIN_ZERO1_H
#define DPARI_TRAIN_ZERO1_H

#include "ddp.h"
#include "optimizer.h"

/* A range of elements with its own weight decay and rate, like a parameter group of PyTorch. */
typedef struct dpar_zero1_group {
    int64_t first, count; /* elements first .. first + count - 1 of the flat array */
    double decay;         /* weight decay in place of the optimizer's; 0 means none */
    double rate;          /* factor for the rate of the step; 0 selects 1 */
} dpar_zero1_group;

/* Describes a zero1. Zero it and fill in what differs from the defaults. All ranks give the same
 * values, except addresses. */
typedef struct dpar_zero1_desc {
    void *weights; /* [elements of all parameters], of the gradients' type and in their order. They
                      stay yours, and in place as long as the zero1 exists */
    /* Yours, as long as the zero1 exists: each step reads it. Its numbers may change, its kind and
     * moment_type may not. */
    const dpar_optimizer *optimizer;
    /* [groups] in ascending order without overlap. Copied. Elements in no group use the optimizer's
     * decay and the rate of the step. To change them, free the zero1 and make another. */
    const dpar_zero1_group *group;
    int32_t groups;
    int64_t steps; /* steps that were done before, of a checkpoint: the next one is steps + 1 */
} dpar_zero1_desc;

/* ZeRO-1 on the gradients of a ddp: a handle. */
typedef struct dpar_zero1 dpar_zero1;

/* Makes a zero1 on the gradients of a ddp. Allocates the optimizer's state with dpar_comm_alloc,
 * n / ranks elements for each moment, and sets it to 0. Once you have filled in a saved state,
 * training on the same number of ranks gives the same bits as if it had not stopped.
 *
 * ddp: averages one flat array of n gradients (desc.gradients), without hook, wire_type and sum. It
 *      has no other zero1.
 *
 * Collective, and no pass may be under way. Compares the descriptors with small collectives.
 * O(groups + n / ranks). Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG or
 * DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_zero1_make(dpar_ddp *ddp, const dpar_zero1_desc *desc, dpar_zero1 **zero1,
                                     dpar_why *why);
/* Frees a zero1: before dpar_ddp_free. NULL is allowed. Local, but all ranks call it between the
 * same passes, because the next pass sends averages to all ranks again. Fails with DPAR_E_ARG if a
 * pass of the ddp is under way on a communicator that is not broken. */
DPAR_API dpar_status dpar_zero1_free(dpar_zero1 *zero1);
/* Updates the weights with the averages of the gradients: one step of the optimizer. Afterwards the
 * weights are whole and equal on all ranks, and only this rank's share of the gradients holds
 * averages.
 *
 * rate: learning rate.
 * clip: largest norm of all gradients (dpar_optimizer_clip); 0 or less means no limit.
 *
 * Collective. Costs a reduce-scatter and an all-gather of n elements, with a clip an all-reduce of
 * 8 bytes, and O(n / ranks).
 *
 * Fails with DPAR_E_ARG if the optimizer is invalid or not of the kind given to dpar_zero1_make,
 * rate is not finite, clip is NaN, or the pass under way was begun with last = 0. If that is so on
 * all ranks, and they had reported the same gradients, nothing was done and you may try again.
 * DPAR_E_MISMATCH breaks the communicator: ranks gave different numbers, or only some got
 * DPAR_E_ARG. Other errors are those of comm.h. The message is in comm->why. */
DPAR_API dpar_status dpar_zero1_step(dpar_zero1 *zero1, double rate, double clip);
/* Returns this rank's share of an array of the optimizer's state, in the memory of the
 * communicator. Returns NULL if the optimizer has no such array.
 *
 * array: for AdamW 0 is m and 1 is v; for SGD with momentum 0 is the momentum.
 * first: set to the first element of the share in the flat array. May be NULL.
 * count: set to the number of elements. May be NULL.
 * type:  set to their type. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_zero1_state(dpar_zero1 *zero1, int32_t array, int64_t *first, int64_t *count,
                                int32_t *type);

#endif
