/* SPDX-License-Identifier: MIT-0 */
/* optimizer_private - private: what zero1 and fsdp need to know of an optimizer that
 * dpar_optimizer_check has accepted. */
#ifndef DPARI_HOST_OPTIMIZER_PRIVATE_H
#define DPARI_HOST_OPTIMIZER_PRIVATE_H

#include "../base/arith.h"
#include "optimizer.h"

/* Returns the number of moments of an optimizer: 0, 1 or 2. */
DPARI_INTERNAL int32_t dpari_optimizer_moments(const dpar_optimizer *optimizer);
/* Returns the type of the moments for weights of weight_type. */
DPARI_INTERNAL int32_t dpari_optimizer_moment_type(const dpar_optimizer *optimizer,
                                                   int32_t weight_type);
/* Checks parameter group `index` for the function `name`. */
DPARI_INTERNAL dpar_status dpari_optimizer_check_group(const dpar_optimizer_group *group,
                                                       const char *name, int32_t index,
                                                       dpar_why *why);
/* Changes an optimizer and a rate to those of a parameter group. */
DPARI_INTERNAL void dpari_optimizer_use_group(const dpar_optimizer_group *group,
                                              dpar_optimizer *optimizer, double *rate);
/* Writes a message into why, unless that is NULL, and returns DPAR_E_ARG. The format is that of
 * dpari_text_print, which also has numbers of type double. */
DPARI_INTERNAL dpar_status dpari_optimizer_say(dpar_why *why, const char *form, ...)
    DPARI_PRINTF(2, 3);

#endif
