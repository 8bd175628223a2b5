/* SPDX-License-Identifier: MIT-0 */
/* update - the numbers of one step of an optimizer on gradients that are divided among ranks.
 * dpar_zero1_update and dpar_fsdp_update compute the norm of all gradients, clip them, and update
 * the weights. If a gradient is NaN or infinite, they skip the step as a whole on all ranks, as
 * PyTorch's GradScaler does: weights, moments and the number of steps keep their bits.
 *
 *     dpar_update update = {0};                          mixed precision with loss scaling
 *     update.clip = 1.0;
 *     each step:
 *         backward of scale * loss
 *         update.rate = rate;
 *         update.factor = 1.0 / scale;
 *         status = dpar_zero1_update(zero1, &update);    or dpar_fsdp_update(fsdp, &update)
 *         if (status == DPAR_SKIPPED) {
 *             scale /= 2.0;                              on all ranks
 *         }
 *         ... update.norm is the norm of the gradients of the loss ...
 *
 * DPAR_SKIPPED is positive, so it is not an error. Zero the gradients as after any other step.
 *
 * For an optimizer of your own, dpar_ddp_norm, dpar_zero1_norm and dpar_fsdp_norm do the first half
 * of such a step. Your update then multiplies each gradient by update.scale. */
#ifndef DPARI_TRAIN_UPDATE_H
#define DPARI_TRAIN_UPDATE_H

#include "../comm/comm.h"

/* The numbers of a step. Zero it and fill in what differs from the defaults. All ranks pass the
 * same rate, clip and factor. */
typedef struct dpar_update {
    double rate;   /* learning rate */
    double clip;   /* largest norm of all gradients (dpar_optimizer_clip); 0 or less means no
                      limit */
    double factor; /* gradients are multiplied by it before they are clipped; 0 selects 1 */
    /* The ranks that hold other parameters of the same model, such as tensor-parallel ranks and
     * pipeline stages. The norm is then that of all their gradients. NULL if there are none. Costs
     * one more all-reduce of 8 bytes. If they pass other numbers, the step fails with
     * DPAR_E_MISMATCH. */
    dpar_comm *model;
    /* [parameters of the ddp or fsdp] 1 for a parameter of which a lower rank of `model` has a
     * copy, such as the norms of tensor-parallel layers, so that the norm counts it once. NULL if
     * there are none. */
    const uint8_t *duplicate;
    /* Set to the norm of all gradients, after `factor` and before `clip`. It is NaN or infinite if
     * the step is skipped. A norm that is too large for f64 also skips the step. */
    double norm;
    double scale; /* set to the number by which gradients are multiplied: factor times the clip */
} dpar_update;

#endif
