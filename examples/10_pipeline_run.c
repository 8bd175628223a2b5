/* SPDX-License-Identifier: MIT-0 */
/* 10 - runs a pipeline by 1F1B. Each rank is a stage with one weight; they learn to multiply by 3.
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/10_pipeline_run.c -o build/10 && build/10 --ranks 4
 *   4 stages together multiply by 3.0000
 */
#include "dpar_train.h"
#include <stdio.h>
enum { MICROS = 8, STEPS = 200 };
typedef struct stage {
    double weight, gradient;
    double input[MICROS]; /* kept from forward to backward */
} stage;

/* Computes forward or backward of one micro-batch. Stages send each other one f64 for it. */
static dpar_status work(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    stage *mine = (stage *)ctx;
    const double sample = task->action.micro_batch - 3.5;
    const double *in = (const double *)task->in;
    double *input = &mine->input[task->action.micro_batch];
    double out;
    (void)why; /* for a message if this fails */
    if (task->action.kind == DPAR_ACTION_FORWARD) {
        *input = in != NULL ? *in : sample; /* the first stage receives nothing */
        out = mine->weight * *input;
    } else {
        const double error = mine->weight * *input - 3.0 * sample; /* the loss's gradient */
        const double gradient = in != NULL ? *in : error; /* the last stage receives nothing */
        mine->gradient += gradient * *input / MICROS;
        out = gradient * mine->weight;
    }
    if (task->out != NULL) { /* NULL if there is no stage to send to */
        *(double *)task->out = out;
    }
    return DPAR_OK;
}

static int train(dpar_comm *world, void *unused)
{
    stage mine = {1.0, 0.0, {0}};
    double product = 0.0;
    const dpar_pipeline_desc desc = {.order = "1f1b",
                                     .micro_batches = MICROS,
                                     .type = DPAR_F64,
                                     .count = 1,
                                     .forward = work,
                                     .backward = work,
                                     .ctx = &mine};
    dpar_pipeline *pipeline = NULL;
    dpar_why why;
    (void)unused;
    if (dpar_pipeline_make(world, &desc, &pipeline, &why) < 0) {
        return dpar_fail(world, &why);
    }
    for (int step = 0; step < STEPS; step++) {
        if (dpar_pipeline_run(pipeline, 1, &why) < 0) {
            return dpar_fail(world, &why);
        }
        mine.weight -= 0.01 * mine.gradient;
        mine.gradient = 0.0;
    }
    dpar_all_reduce(world, &mine.weight, &product, 1, DPAR_F64, DPAR_PRODUCT, NULL);
    if (dpar_pipeline_free(pipeline) < 0 || world->status < 0) {
        return dpar_fail(world, NULL);
    }
    if (world->rank == 0) {
        printf("%d stages together multiply by %.4f\n", (int)world->size, product);
    }
    return 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, train, NULL);
}
