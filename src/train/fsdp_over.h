/* SPDX-License-Identifier: MIT-0 */
/* fsdp_over - trains with ZeRO-3 in few lines. The weights, gradients and optimizer state are cut
 * over the ranks, and the weights of a layer are whole only while it is used.
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
 *             w = dpar_fsdp_use(f, u, DPAR_ACTION_BACKWARD);
 *             g = dpar_fsdp_gradient(f, u, NULL);
 *             ... adds to g ...
 *             dpar_fsdp_done(f, u, DPAR_ACTION_BACKWARD);             its gradients are sent
 *         dpar_fsdp_update(f, rate, 1.0);
 *     dpar_fsdp_free(f);
 *
 * To read weights between steps, as evaluation does, call dpar_fsdp_use and dpar_fsdp_done with
 * DPAR_ACTION_FORWARD.
 *
 * All numbers are float, a step is one micro-batch, and the weights of the next layer are gathered
 * while one is used. For other types, ZeRO-1 and 2, micro-batches, several parameters in a layer,
 * tied weights and replicas use dpar_fsdp_make. The functions here are made of those of fsdp.h. You
 * may mix them, because f is a dpar_fsdp, and its checkpoints are the same. */
#ifndef DPARI_TRAIN_FSDP_OVER_H
#define DPARI_TRAIN_FSDP_OVER_H

#include "fsdp.h"

/* Makes a model of `units` arrays of floats that are cut over the ranks. It calls dpar_fsdp_make
 * with zero = 3, one parameter in each unit and a prefetch of 1. The weights are 0 until
 * dpar_fsdp_set.
 *
 * numel:     [units] floats of each array.
 * optimizer: DPAR_OPTIMIZER_ADAMW or DPAR_OPTIMIZER_SGD, with the numbers of dpar_optimizer_init.
 *
 * Collective over c. Costs and fails as dpar_fsdp_make. */
DPAR_API dpar_status dpar_fsdp_over(dpar_comm *c, const int64_t *numel, int32_t units,
                                    int32_t optimizer, dpar_fsdp **fsdp, dpar_why *why);

/* Begins a step with all gradients 0: dpar_fsdp_zero and dpar_fsdp_begin in one call. Local.
 * O(units). Fails as dpar_fsdp_begin does. */
DPAR_API dpar_status dpar_fsdp_start(dpar_fsdp *f);
/* Gathers the weights of unit u and returns their address, or NULL after an error, whose message is
 * in c->why. They stay whole until dpar_fsdp_done.
 *
 * direction: DPAR_ACTION_FORWARD or DPAR_ACTION_BACKWARD. In backward, add the gradients at
 *            dpar_fsdp_gradient(f, u, NULL).
 *
 * Collective: all ranks call it in the same order. Costs and fails as dpar_fsdp_unshard. */
DPAR_API const void *dpar_fsdp_use(dpar_fsdp *f, int32_t u, int32_t direction);
/* Ends the use of unit u. In backward it also marks the unit's gradients as complete and sends
 * them. It calls dpar_fsdp_reshard, and in backward dpar_fsdp_ready.
 *
 * Collective. Costs and fails as those two. */
DPAR_API dpar_status dpar_fsdp_done(dpar_fsdp *f, int32_t u, int32_t direction);
/* Ends the step and updates the weights with the gradients averaged over the ranks. It calls
 * dpar_fsdp_end, dpar_fsdp_norm if there is a clip, and dpar_fsdp_step.
 *
 * rate: learning rate.
 * clip: largest norm of all gradients (dpar_optimizer_clip); 0 or less means no limit.
 *
 * Collective. Costs and fails as those three. */
DPAR_API dpar_status dpar_fsdp_update(dpar_fsdp *f, double rate, double clip);

#endif
