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
 *         backward, which may call dpar_ddp_ready(ddp, i)
 *         dpar_zero1_step(zero1, rate, 1.0);                       in place of the update
 *     dpar_zero1_free(zero1);
 *     dpar_ddp_free(ddp);
 *
 * dpar_zero1_step also ends the pass. Gradients are then sent only to the rank that owns their
 * share, and a step sends as many bytes as dpar_ddp_end does in ordinary training. If you call
 * dpar_ddp_end before the step, for instance to inspect the averages, the step uses these averages.
 * This step and the next one then send 50 % more. If you inspect averages and skip the step, call
 * dpar_ddp_zero or dpar_ddp_begin(ddp, 1) on all ranks before the next backward. Otherwise the next
 * step would take the new gradients for averages.
 *
 * A rank's share is elements first .. first + count - 1 of the flat array. It has ceil(n / ranks)
 * elements, fewer on the last ranks. To save the state, each rank writes each of its arrays at
 * offset `first` of that array's file. To load it on any number of ranks, make the zero1 with
 * desc.steps. Then each rank reads the elements of its present share in the same loop with pread.
 *
 *     for (k = 0; (m = dpar_zero1_state(zero1, k, &first, &count, &type)) != NULL; k++) {
 *         pwrite(file[k], m, count * dpar_type_bytes(type), first * dpar_type_bytes(type));
 *     }
 *
 * Your own optimizer. dpar_zero1_norm ends the pass, so that this rank's share of the gradients
 * holds averages. You update this rank's share of the weights, and dpar_zero1_gather sends it to
 * the other ranks. Make the zero1 with an optimizer that has no state, and keep your own for the
 * share:
 *
 *     dpar_optimizer_init(&none, DPAR_OPTIMIZER_SGD);
 *     zero.optimizer = &none;  ...  dpar_zero1_make(ddp, &zero, &zero1, &why);
 *     dpar_zero1_state(zero1, 0, &first, &count, NULL);
 *     each step:
 *         status = dpar_zero1_norm(zero1, &update);
 *         for (i = first; status == DPAR_OK && i < first + count; i++) {
 *             g = update.scale * grads[i];  ...  weights[i] -= ...  state[i - first] = ...
 *         }
 *         if (status == DPAR_OK) dpar_zero1_gather(zero1);
 *
 * For optimizers that need whole matrices, such as Muon and Shampoo, see matrices.h.
 *
 * Each element is updated separately (optimizer.h). The weights therefore differ from those of
 * training on one rank only by the rounding of the averages and, with a clip, of the norm. 16-bit
 * weights have no F32 masters here: use optimizer.stochastic, or fsdp.h. */
#ifndef DPARI_TRAIN_ZERO1_H
#define DPARI_TRAIN_ZERO1_H

#include "../host/optimizer.h"
#include "ddp.h"
#include "update.h"

/* A range of elements that is a parameter group. */
typedef struct dpar_zero1_group {
    int64_t first, count;         /* elements first .. first + count - 1 of the flat array */
    dpar_optimizer_group numbers; /* optimizer.h */
} dpar_zero1_group;

/* Describes a zero1. Zero it and fill in what differs from the defaults. All ranks pass the same
 * values, except for addresses. */
typedef struct dpar_zero1_desc {
    void *weights; /* [elements of all parameters], of the gradients' type and in their order. You
                      keep them until the zero1 is freed */
    /* Your optimizer, which you keep until the zero1 is freed, because each step reads it. You may
     * change its numbers between steps, but not its kind or moment_type. */
    const dpar_optimizer *optimizer;
    /* [groups] in ascending order without overlap. Make copies them; to change them, free the zero1
     * and make another. Elements in no group use the optimizer's decay and the rate of the step. */
    const dpar_zero1_group *group;
    int32_t groups;
    int64_t steps; /* steps that were done before a checkpoint was saved; 0 for new training */
} dpar_zero1_desc;

/* A handle to ZeRO-1 training on the gradients of a ddp. */
typedef struct dpar_zero1 dpar_zero1;

/* Makes a zero1 on the gradients of a ddp. Allocates the optimizer's state with dpar_comm_alloc,
 * n / ranks elements per moment, and sets it to 0. If you load a saved state, training on the same
 * number of ranks continues with the same bits as if it had not stopped.
 *
 * ddp: must average one flat array of n gradients (desc.gradients), without hook, wire_type and
 *      sum, and must have no other zero1.
 *
 * Collective, while no pass is in progress. Compares the descriptors with small collectives.
 * O(groups + n / ranks). Fails on all ranks with DPAR_E_MISMATCH if they differ, DPAR_E_ARG or
 * DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_zero1_make(dpar_ddp *ddp, const dpar_zero1_desc *desc, dpar_zero1 **zero1,
                                     dpar_why *why);
/* Frees a zero1. Call it before dpar_ddp_free. NULL is allowed. Local, but all ranks must call it
 * between the same two passes, because later passes send the averages to all ranks again. Fails
 * with DPAR_E_ARG if a pass of the ddp is in progress and the communicator is not broken. */
DPAR_API dpar_status dpar_zero1_free(dpar_zero1 *zero1);
/* Ends the pass and updates the weights by one step of the optimizer. Afterwards all ranks have all
 * weights, and only this rank's share of the gradients holds averages.
 *
 * update: rate, clip and others (update.h). Sets its norm.
 *
 * Returns DPAR_SKIPPED if a gradient is NaN or infinite. The pass has then ended as well, but
 * weights, moments and the number of steps are unchanged on all ranks.
 *
 * Collective. Costs a reduce-scatter and an all-gather of n elements, an all-reduce of 8 bytes, and
 * O(n / ranks).
 *
 * Fails with DPAR_E_ARG if the optimizer is invalid or has another kind than in dpar_zero1_make, a
 * number of the update is out of its domain, or the pass in progress was begun with last = 0. If
 * this happens on all ranks, and they had reported the same gradients, nothing was done and you may
 * call it again. Fails with DPAR_E_MISMATCH, which breaks the communicator, if ranks passed
 * different numbers or only some ranks failed with DPAR_E_ARG. Other errors are those of comm.h.
 * The message is in comm->why. */
DPAR_API dpar_status dpar_zero1_update(dpar_zero1 *zero1, dpar_update *update);
/* Does what dpar_zero1_update does with this rate and clip, and returns the same status. */
DPAR_API dpar_status dpar_zero1_step(dpar_zero1 *zero1, double rate, double clip);
/* Does the first half of dpar_zero1_update: ends the pass, and sets update->norm and update->scale.
 * Only this rank's share of the gradients holds averages then. Continue with your own update and
 * dpar_zero1_gather, or with dpar_zero1_update, which uses these averages. If you do neither, call
 * dpar_ddp_zero or dpar_ddp_begin(ddp, 1) before the next backward, as after dpar_ddp_end.
 *
 * Returns DPAR_SKIPPED if a gradient is NaN or infinite; nothing else is then to be called.
 *
 * Collective. Costs a reduce-scatter of n elements, an all-reduce of 8 bytes, and O(n / ranks).
 * Fails like dpar_zero1_update. */
DPAR_API dpar_status dpar_zero1_norm(dpar_zero1 *zero1, dpar_update *update);
/* Sends this rank's share of the weights, which you have changed, to all other ranks, and counts a
 * step.
 *
 * Collective. Costs an all-gather of n elements. Fails with DPAR_E_ARG if a pass is in progress.
 * Other errors are those of comm.h. */
DPAR_API dpar_status dpar_zero1_gather(dpar_zero1 *zero1);
/* Returns this rank's share of an array of the optimizer's state, in the memory of the
 * communicator. Returns NULL if the optimizer has no such array.
 *
 * Moments of type DPAR_F8 are records of 260 bytes (optimizer.h). Their `first` and `count` are in
 * bytes, and shares are multiples of 256 elements, so that the loop above saves and loads them.
 *
 * array: 0 selects m of AdamW or the momentum of SGD, 1 selects v of AdamW.
 * first: set to the first element of the share in the flat array, even if there is no such array.
 *        May be NULL.
 * count: set to the number of its elements, even if there is no such array. May be NULL.
 * type:  set to the type of its elements. May be NULL.
 *
 * Local. O(1). */
DPAR_API void *dpar_zero1_state(dpar_zero1 *zero1, int32_t array, int64_t *first, int64_t *count,
                                int32_t *type);

#endif
