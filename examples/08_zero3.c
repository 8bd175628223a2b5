/* SPDX-License-Identifier: MIT-0 */
/* 08 - the regression of 07 by ZeRO-3: weights, gradients and the optimizer's state are cut over
 * the ranks; a unit's weights are whole while they are used.
 *
 *   cc -DDPAR_IMPLEMENTATION -I. examples/08_zero3.c -o build/08 && build/08 --ranks 4
 *   4 ranks: weights 2.0000 -3.0000 0.5000
 *   build/08 --ranks 1
 *   1 ranks: weights 2.0000 -3.0000 0.5000
 * With options.zero = 1 or 2 it is the same with more memory. */
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
    const int32_t params_of[1] = {1}; /* one unit of one parameter; a model: a unit a layer */
    const int64_t numel[1] = {WEIGHTS};
    const float zeros[WEIGHTS] = {0}, *w;
    dpar_fsdp_options o = {0};
    dpar_fsdp *f = NULL;
    dpar_why why;
    (void)unused;
    o.units = 1, o.params_of = params_of, o.numel = numel, o.zero = 3;
    o.type = o.compute = o.gradient = DPAR_F32;
    dpar_optimizer_init(&o.optimizer, DPAR_SGD);
    if (dpar_fsdp_make(world, &o, &f, &why) < 0) {
        return dpar_fail(world, &why);
    }
    dpar_fsdp_set(f, 0, zeros);
    for (int step = 0; step < STEPS && world->status == 0; step++) {
        dpar_fsdp_zero(f), dpar_fsdp_begin(f, 1), dpar_fsdp_unshard(f, 0, DPAR_BACKWARD);
        w = (const float *)dpar_fsdp_weight(f, 0); /* whole, from here to reshard */
        for (int s = world->rank; s < SAMPLES && w != NULL; s += world->size) {
            backward(s, w, (float *)dpar_fsdp_gradient(f, 0, NULL));
        }
        dpar_fsdp_reshard(f, 0, DPAR_BACKWARD), dpar_fsdp_ready(f, 0);
        dpar_fsdp_end(f); /* each rank has the averages of its shard */
        dpar_fsdp_step(f, 0.3, (double)world->size / SAMPLES);
    }
    if (dpar_fsdp_unshard(f, 0, DPAR_FORWARD) == DPAR_OK && world->rank == 0) {
        w = (const float *)dpar_fsdp_weight(f, 0);
        printf("%d ranks: weights %.4f %.4f %.4f\n", (int)world->size, w[0], w[1], w[2]);
    }
    return dpar_fsdp_free(f) < 0 || world->status < 0 ? dpar_fail(world, NULL) : 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, train, NULL);
}
