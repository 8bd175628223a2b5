/* SPDX-License-Identifier: MIT-0 */
/* 08 - the regression of 07 by ZeRO-3: weights, gradients and the optimizer's state are cut over
 * the ranks; a unit's weights are whole while they are used.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/08_zero3.c -o build/08 && build/08 --ranks 4
 *   4 ranks: weights 2.0000 -3.0000 0.5000
 *   build/08 --ranks 1
 *   1 ranks: weights 2.0000 -3.0000 0.5000
 * With dpar_fsdp_make and zero = 1 or 2 it is the same with more memory. */
#include "dpar_train.h"
#include <stdio.h>
enum { SAMPLES = 48, WEIGHTS = 3, STEPS = 100 };

/* Adds a sample's part of the gradient. */
static void backward(int sample, const float *w, float *grads)
{
    const double x[WEIGHTS] = {sample % 7 / 3.0 - 1.0, sample % 5 / 2.0 - 1.0, 1.0};
    const double error = (w[0] - 2.0) * x[0] + (w[1] + 3.0) * x[1] + (w[2] - 0.5) * x[2];
    for (int i = 0; i < WEIGHTS; i++) {
        grads[i] += (float)(2.0 * error * x[i]);
    }
}

static int train(dpar_comm *world, void *unused)
{
    const int64_t numel[1] = {WEIGHTS}; /* of one layer; a model: of each */
    const float zeros[WEIGHTS] = {0}, *w;
    dpar_fsdp *f = NULL;
    dpar_why why;
    if (unused || dpar_fsdp_over(world, numel, 1, DPAR_OPTIMIZER_SGD, &f, &why) < 0) {
        return dpar_fail(world, &why);
    }
    dpar_fsdp_set(f, 0, zeros);
    for (int step = 0; step < STEPS && world->status == 0; step++) {
        dpar_fsdp_start(f);
        w = (const float *)dpar_fsdp_use(f, 0, DPAR_ACTION_BACKWARD); /* whole, until done */
        for (int s = world->rank; s < SAMPLES && w != NULL; s += world->size) {
            backward(s, w, (float *)dpar_fsdp_gradient(f, 0, NULL));
        }
        dpar_fsdp_done(f, 0, DPAR_ACTION_BACKWARD);
        dpar_fsdp_update(f, 0.3 * world->size / SAMPLES, 0); /* by the averages over the ranks */
    }
    w = (const float *)dpar_fsdp_use(f, 0, DPAR_ACTION_FORWARD);
    if (w != NULL && world->rank == 0) {
        printf("%d ranks: weights %.4f %.4f %.4f\n", (int)world->size, w[0], w[1], w[2]);
    }
    return dpar_fsdp_free(f) < 0 || world->status < 0 ? dpar_fail(world, NULL) : 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, train, NULL);
}
