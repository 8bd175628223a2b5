/* SPDX-License-Identifier: MIT-0 */
/* Optimizers as values. */
#ifndef OPTIMIZERS_H
#define OPTIMIZERS_H

#include "dpar_train.h"

static inline dpar_optimizer adamw(void)
{
    dpar_optimizer o;
    dpar_optimizer_init(&o, DPAR_OPTIMIZER_ADAMW);
    return o;
}

static inline dpar_optimizer sgd(double momentum)
{
    dpar_optimizer o;
    dpar_optimizer_init(&o, DPAR_OPTIMIZER_SGD);
    o.momentum = momentum;
    return o;
}

static inline int32_t moments_of(const dpar_optimizer *o)
{
    int32_t moments = -1;
    return dpar_optimizer_check(o, DPAR_F32, &moments, NULL, NULL) == DPAR_OK ? moments : -1;
}

/* Returns the type of moments for weights of a type; DPAR_TYPE_NONE if there are none. */
static inline int32_t moment_type_of(const dpar_optimizer *o, int32_t weight_type)
{
    int32_t type = DPAR_TYPE_NONE;
    (void)dpar_optimizer_check(o, weight_type, NULL, &type, NULL);
    return type;
}

#endif
