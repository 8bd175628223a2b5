/* SPDX-License-Identifier: MIT-0 */
/* 08 - trains the regression of example 07 with ZeRO-3. Weights, gradients and the optimizer's
 * state are cut over the ranks; the weights of a layer are whole only while it is used.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/08_zero3.c -o build/08 && build/08 --ranks 4
 *   4 ranks: weights 2.0000 -3.0000 0.5000
 *   build/08 --ranks 1
 *   1 ranks: weights 2.0000 -3.0000 0.5000
 */
#include "dpar_train.h"
#include <stdio.h>
enum { SAMPLES = 48, WEIGHTS = 3, STEPS = 100 };

/* Adds the gradient of one sample to grads. */
static void backward(int sample, const float *weights, float *grads)
{
    const double x[WEIGHTS] = {sample % 7 / 3.0 - 1.0, sample % 5 / 2.0 - 1.0, 1.0};
    const double error =
        (weights[0] - 2.0) * x[0] + (weights[1] + 3.0) * x[1] + (weights[2] - 0.5) * x[2];
    for (int i = 0; i < WEIGHTS; i++) {
        grads[i] += (float)(2.0 * error * x[i]);
    }
}

/* Makes the weights whole on every rank. Returns NULL after an error. */
static const float *gather(dpar_fsdp *fsdp, int32_t direction)
{
    const int failed = dpar_fsdp_unshard(fsdp, 0, direction) < 0;
    return failed ? NULL : (const float *)dpar_fsdp_weight(fsdp, 0);
}

static int train(dpar_comm *world, void *unused)
{
    const int64_t sizes[1] = {WEIGHTS}; /* the number of weights of each layer: there is one */
    /* Zeros select ZeRO-3 in f32; prefetch gathers a layer while the one before it is used. */
    dpar_fsdp_desc desc = {.units = 1, .count = sizes, .prefetch = 1};
    dpar_fsdp *fsdp = NULL;
    dpar_why why;
    (void)unused;
    dpar_optimizer_init(&desc.optimizer, DPAR_OPTIMIZER_SGD);
    if (dpar_fsdp_make(world, &desc, &fsdp, &why) < 0) {
        return dpar_fail(world, &why);
    }
    for (int step = 0; step < STEPS; step++) { /* weights begin at 0; dpar_fsdp_set changes that */
        dpar_fsdp_zero(fsdp);
        dpar_fsdp_begin(fsdp, 1);
        const float *weights = gather(fsdp, DPAR_ACTION_BACKWARD); /* whole until reshard */
        if (weights == NULL) {
            return dpar_fail(world, NULL);
        }
        for (int s = world->rank; s < SAMPLES; s += world->size) {
            backward(s, weights, (float *)dpar_fsdp_gradient(fsdp, 0, NULL));
        }
        /* Ready sends the gradients, end waits for their averages, step updates the weights. */
        if (dpar_fsdp_reshard(fsdp, 0, DPAR_ACTION_BACKWARD) < 0 || dpar_fsdp_ready(fsdp, 0) < 0 ||
            dpar_fsdp_end(fsdp) < 0 || dpar_fsdp_step(fsdp, 0.3 * world->size / SAMPLES, 1.0) < 0) {
            return dpar_fail(world, NULL);
        }
    }
    const float *weights = gather(fsdp, DPAR_ACTION_FORWARD);
    if (weights == NULL) {
        return dpar_fail(world, NULL);
    }
    if (world->rank == 0) {
        printf("%d ranks: weights %.4f %.4f %.4f\n", (int)world->size, weights[0], weights[1],
               weights[2]);
    }
    return dpar_fsdp_free(fsdp) < 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, train, NULL);
}
