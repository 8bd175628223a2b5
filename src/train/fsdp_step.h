/* SPDX-License-Identifier: MIT-0 */
/* fsdp_step - the step of the optimizer on the shards of an fsdp: its own, or yours. */
#ifndef DPARI_TRAIN_FSDP_STEP_H
#define DPARI_TRAIN_FSDP_STEP_H

#include "fsdp.h"
#include "update.h"

/* Updates the weights by one step of the optimizer, after the norm of all gradients was computed.
 *
 * update: rate, clip and others (update.h). Sets its norm.
 *
 * Returns DPAR_SKIPPED if a gradient is NaN or infinite. Weights, moments and the number of steps
 * are then unchanged on all ranks.
 *
 * Collective over comm, desc.replicas and update->model. Costs an all-reduce of 8 bytes in each of
 * them and O(elements of the shards). Fails with DPAR_E_ARG if a pass is in progress, the latest
 * one was begun with last = 0, or a number of the update is out of its domain. Fails with
 * DPAR_E_MISMATCH, which breaks the communicators, if ranks passed different numbers or only some
 * ranks failed with DPAR_E_ARG. Other errors are those of comm.h. */
DPAR_API dpar_status dpar_fsdp_update(dpar_fsdp *fsdp, dpar_update *update);
/* Does the first half of dpar_fsdp_update: sets update->norm and update->scale. Squares are summed
 * in f64, first over this rank's shards, then over the ranks in rank order. Returns DPAR_SKIPPED if
 * the norm is not finite. Collective, costs and fails like dpar_fsdp_update.
 *
 * If a rank has several fsdp objects, such as one for experts, call it for each of them. The norm
 * of the model is the root of the sum of the squared norms. */
DPAR_API dpar_status dpar_fsdp_norm(dpar_fsdp *fsdp, dpar_update *update);
/* Does the second half of dpar_fsdp_update: updates the weights by one step of the optimizer.
 *
 * rate:   learning rate, finite.
 * factor: gradients are multiplied by it (update->scale); finite. It is not a clip, as the last
 *         argument of dpar_zero1_step is.
 *
 * Local. O(elements of the shards). Fails with DPAR_E_ARG, and does nothing, if a pass is in
 * progress, the latest one was begun with last = 0, or a number is not finite. */
DPAR_API dpar_status dpar_fsdp_step(dpar_fsdp *fsdp, double rate, double factor);
/* Tells the fsdp that you changed masters through dpar_fsdp_state, and counts a step. The next
 * unshard of each unit gathers its weights again. All ranks call it after the change.
 *
 * Local. O(units), and waits for weights that are being gathered. Fails with DPAR_E_ARG if a pass
 * is in progress. */
DPAR_API dpar_status dpar_fsdp_changed(dpar_fsdp *fsdp);

#endif
