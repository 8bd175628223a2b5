/* SPDX-License-Identifier: MIT-0 */
/* optimizer_private - private: what strategies ask of an optimizer that was judged. */
#ifndef DPARI_TRAIN_OPTIMIZER_PRIVATE_H
#define DPARI_TRAIN_OPTIMIZER_PRIVATE_H

#include "../base/arith.h"
#include "optimizer.h"

/* How many arrays it keeps beside weights: 2, 1 or 0. dpar_optimizer_check took it. */
DPARI_INTERNAL int32_t dpari_optimizer_moments(const dpar_optimizer *o);
/* And their type, beside weights of this one. */
DPARI_INTERNAL int32_t dpari_optimizer_moment_type(const dpar_optimizer *o, int32_t weight_type);
/* E_ARG, with a sentence whose '#' are these numbers in order. */
DPARI_INTERNAL dpar_status dpari_optimizer_say(dpar_why *why, const char *form, double a, double b,
                                               double c);

#endif
