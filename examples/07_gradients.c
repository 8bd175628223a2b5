/* SPDX-License-Identifier: MIT-0 */
/* 07 - averages gradients over the ranks, in the array that a training code has anyway. A small
 * regression over 48 samples ends at the same weights on any number of ranks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/07_gradients.c -o build/07 && build/07 --ranks 4
 *   4 ranks: weights 2.0000 -3.0000 0.5000, loss 6.570 at first, 0.000 at the end
 *   build/07 --ranks 1
 *   1 ranks: weights 2.0000 -3.0000 0.5000, loss 6.570 at first, 0.000 at the end
 * The same program runs under mpiexec -n 4 build/07, srun and torchrun. */
#include "dpar_train.h"
#include <stdio.h>
enum { SAMPLES = 48, WEIGHTS = 3, STEPS = 100 };

/* Adds the gradient of one sample to grads and returns the sample's loss. dpar does not see it. */
static double backward(int sample, const float *weights, float *grads)
{
    const double x[WEIGHTS] = {sample % 7 / 3.0 - 1.0, sample % 5 / 2.0 - 1.0, 1.0};
    const double error =
        (weights[0] - 2.0) * x[0] + (weights[1] + 3.0) * x[1] + (weights[2] - 0.5) * x[2];
    for (int i = 0; i < WEIGHTS; i++) {
        grads[i] += (float)(2.0 * error * x[i]);
    }
    return error * error;
}

static int train(dpar_comm *world, void *unused)
{
    const float share = (float)SAMPLES / (float)world->size; /* samples per rank, on average */
    float weights[WEIGHTS] = {0};
    double loss[STEPS] = {0};
    void *memory = NULL;
    const int64_t count = WEIGHTS;
    dpar_ddp_desc desc = {0};
    dpar_ddp *ddp = NULL;
    dpar_why why;
    (void)unused;
    if (dpar_comm_alloc(world, sizeof weights, &memory) < 0) { /* in place of malloc */
        return dpar_fail(world, NULL);
    }
    float *grads = (float *)memory;
    desc.params = 1; /* all weights together; more: the parts that dpar_ddp_ready reports */
    desc.count = &count;
    desc.type = DPAR_F32;
    desc.gradients = grads;
    if (dpar_comm_check_equal(world, weights, WEIGHTS, DPAR_F32, &why) < 0 || /* all start alike */
        dpar_ddp_make(world, &desc, &ddp, &why) < 0) {
        return dpar_fail(world, &why);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int s = world->rank; s < SAMPLES; s += world->size) {
            loss[step] += backward(s, weights, grads) / share;
        }
        if (dpar_ddp_end(ddp) < 0) { /* afterwards grads are the averages over the ranks */
            return dpar_fail(world, NULL);
        }
        for (int i = 0; i < WEIGHTS; i++) {
            weights[i] -= 0.3f * grads[i] / share;
            grads[i] = 0.0f;
        }
        loss[step] = dpar_mean(world, loss[step]);
    }
    if (dpar_ddp_free(ddp) < 0 || world->status < 0) { /* the status tells if dpar_mean failed */
        return dpar_fail(world, NULL);
    }
    if (world->rank == 0) {
        printf("%d ranks: weights %.4f %.4f %.4f, loss %.3f at first, %.3f at the end\n",
               (int)world->size, weights[0], weights[1], weights[2], loss[0], loss[STEPS - 1]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, train, NULL);
}
