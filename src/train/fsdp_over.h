/* SPDX-License-Identifier: MIT-0 */
/* fsdp_over - ZeRO-3 in few lines: weights, gradients and the optimizer's state are cut over the
 * ranks, and a layer's weights are whole while it is used.
 *
 *     const int64_t numel[] = {embedding, layer, layer, output};      weights of each, in one array
 *     dpar_fsdp_over(world, numel, 4, DPAR_OPTIMIZER_ADAMW, &f, &why);
 *     for (u = 0; u < 4; u++) dpar_fsdp_set(f, u, initial[u]);
 *     each step:
 *         dpar_fsdp_start(f);
 *         forward, each layer u:
 *             w = dpar_fsdp_use(f, u, DPAR_ACTION_FORWARD);
 *             ...
 *             dpar_fsdp_done(f, u, DPAR_ACTION_FORWARD);
 *         backward, each layer u from the last:
 *             w = dpar_fsdp_use(f, u, DPAR_ACTION_BACKWARD), g = dpar_fsdp_gradient(f, u, NULL);
 *             ... adds to g ...
 *             dpar_fsdp_done(f, u, DPAR_ACTION_BACKWARD);                     its gradients leave
 *         dpar_fsdp_update(f, rate, 1.0);
 *     dpar_fsdp_free(f);
 *
 * To look at weights, as in evaluation: use and done, forward, between steps.
 *
 * All is float, a step is one micro-batch, and the next layer's weights come while one is used.
 * Other types, ZeRO-1 and 2, micro-batches, several parameters a layer, tied weights and replicas:
 * dpar_fsdp_make, of whose functions these are made. They mix: f is a dpar_fsdp, and so are its
 * checkpoints. */
#ifndef DPARI_TRAIN_FSDP_OVER_H
#define DPARI_TRAIN_FSDP_OVER_H

#include "fsdp.h"

/* Cuts `units` arrays over the ranks, numel[u] floats each: dpar_fsdp_make with zero = 3, a unit
 * and a parameter each, a prefetch of 1 and an optimizer (DPAR_OPTIMIZER_ADAMW, DPAR_OPTIMIZER_SGD)
 * with the numbers of dpar_optimizer_init. Weights are 0 before dpar_fsdp_set. COLLECTIVE. Errors
 * and cost as dpar_fsdp_make. */
DPAR_API dpar_status dpar_fsdp_over(dpar_comm *c, const int64_t *numel, int32_t units,
                                    int32_t optimizer, dpar_fsdp **fsdp, dpar_why *why);

/* A step begins: gradients are 0. dpar_fsdp_zero and dpar_fsdp_begin. Local. O(units). */
DPAR_API dpar_status dpar_fsdp_start(dpar_fsdp *f);
/* The weights of unit u, whole until done; NULL after an error, c->why says which. Backward:
 * dpar_fsdp_gradient(f, u, NULL) is where its gradients are added. dpar_fsdp_unshard and _weight.
 * COLLECTIVE: all ranks in the same order. Errors and cost as dpar_fsdp_unshard. */
DPAR_API const void *dpar_fsdp_use(dpar_fsdp *f, int32_t u, int32_t direction);
/* Unit u is not used for now; backward: its gradients are whole, and leave. dpar_fsdp_reshard, and
 * backward dpar_fsdp_ready. COLLECTIVE. Errors and cost as theirs. */
DPAR_API dpar_status dpar_fsdp_done(dpar_fsdp *f, int32_t u, int32_t direction);
/* The step ends: weights are updated with the gradients' averages over the ranks. clip: the largest
 * norm of all gradients (dpar_optimizer_clip); 0 and less: any. dpar_fsdp_end, with a clip
 * dpar_fsdp_norm, and dpar_fsdp_step. COLLECTIVE. Errors and cost as theirs. */
DPAR_API dpar_status dpar_fsdp_update(dpar_fsdp *f, double rate, double clip);

#endif
