/* SPDX-License-Identifier: MIT-0 */
/* 10 - a pipeline that runs: each rank is a stage with one weight; 8 micro-batches go through all
 * of them and back, by 1F1B. Together they learn to multiply by 3, on any number of ranks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/10_pipeline_run.c -o build/10 && build/10 --ranks 4
 *
 *   4 stages together multiply by 3.0000
 */
#include "dpar_train.h"
#include <stdio.h>

enum { MICROS = 8 };
typedef struct stage { double weight, gradient, kept[MICROS]; } stage; /* of each micro-batch */

static dpar_status work(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    stage *s = (stage *)ctx;
    const double sample = t->action.micro - 3.5, *in = (const double *)t->in;
    double *kept = &s->kept[t->action.micro], out; /* from its forward to its backward */
    if (t->action.kind == DPAR_ACTION_FORWARD) {
        *kept = in != NULL ? *in : sample; /* NULL: the first stage */
        out = s->weight * *kept;
    } else {
        const double gradient = in != NULL ? *in : s->weight * *kept - 3.0 * sample; /* the loss */
        s->gradient += gradient * *kept / MICROS;
        out = gradient * s->weight;
    }
    if (t->out != NULL && why != NULL) { /* NULL: nobody behind, or before */
        *(double *)t->out = out;
    }
    return DPAR_OK;
}

static int train(dpar_comm *world, void *unused)
{
    stage mine = {1.0, 0.0, {0}}; /* at first they multiply by 1 */
    double all = 0.0;
    dpar_pipeline_desc o = {0};
    dpar_pipeline *p = NULL;
    dpar_why why;
    o.type = DPAR_F64, o.count = 1; /* what goes from stage to stage */
    o.forward = o.backward = work, o.ctx = &mine;
    if (unused || dpar_pipeline_make(world, "1f1b", MICROS, &o, &p, &why) < 0) {
        return dpar_fail(world, &why);
    }
    for (int step = 0; step < 200 && dpar_pipeline_run(p, 1, &why) == DPAR_OK; step++) {
        mine.weight -= 0.01 * mine.gradient;
        mine.gradient = 0.0;
    }
    dpar_all_reduce(world, &mine.weight, &all, 1, DPAR_F64, DPAR_PRODUCT, NULL);
    if (world->rank == 0) {
        printf("%d stages together multiply by %.4f\n", (int)world->size, all);
    }
    return dpar_pipeline_free(p) < 0 || world->status < 0 ? dpar_fail(world, NULL) : 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, train, NULL);
}
