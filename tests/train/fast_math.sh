#!/bin/sh
# SPDX-License-Identifier: MIT-0
# Compiles a program of one file with -Ofast, as training codes are compiled, and checks that a step with an
# infinite or NaN gradient is still skipped: -ffast-math lets the compiler assume that comparisons never meet one.
. tests/compile/common.sh
cat > "$work/fast.c" << 'END'
#include "dpar_train.h"
#include <stdio.h>
#include <string.h>
static float number(unsigned bits) /* the compiler must not know which */
{
    volatile unsigned hidden = bits;
    unsigned copy = hidden;
    float x;
    memcpy(&x, &copy, sizeof x);
    return x;
}
int main(int argc, char **argv)
{
    static const unsigned bits[3] = {0x3f000000u, 0x7f800000u, 0x7fc00000u}; /* 0.5, infinite, NaN */
    float weight[8] = {0}, before[8], *gradient;
    int64_t count = 8;
    void *memory = NULL;
    dpar_comm *world = NULL;
    dpar_ddp_desc desc = {0};
    dpar_zero1_desc zero = {0};
    dpar_optimizer adamw;
    dpar_ddp *ddp = NULL;
    dpar_zero1 *zero1 = NULL;
    dpar_why why;
    int bad = 0;
    dpar_require(NULL, dpar_init_or_launch(&argc, &argv, NULL, &world, &why), &why);
    dpar_require(world, dpar_comm_alloc(world, sizeof weight, &memory), NULL);
    gradient = (float *)memory;
    desc.params = 1;
    desc.count = &count;
    desc.type = DPAR_F32;
    desc.gradients = gradient;
    dpar_require(world, dpar_ddp_make(world, &desc, &ddp, NULL), NULL);
    dpar_optimizer_init(&adamw, DPAR_OPTIMIZER_ADAMW);
    zero.weights = weight;
    zero.optimizer = &adamw;
    dpar_require(world, dpar_zero1_make(ddp, &zero, &zero1, NULL), NULL);
    for (int step = 0; step < 6; step++) {
        const int kind = step % 3;
        dpar_status status;
        for (int i = 0; i < 8; i++) {
            gradient[i] = number(bits[i == 5 && world->rank == world->size - 1 ? kind : 0]);
        }
        memcpy(before, weight, sizeof weight);
        status = dpar_zero1_step(zero1, 0.1, step < 3 ? 0.0 : 1.0);
        bad += status != (kind == 0 ? DPAR_OK : DPAR_SKIPPED);
        bad += (memcmp(before, weight, sizeof weight) == 0) != (kind != 0);
    }
    dpar_require(world, dpar_zero1_free(zero1), NULL);
    dpar_require(world, dpar_ddp_free(ddp), NULL);
    if (bad > 0) {
        fprintf(stderr, "rank %d: %d wrong results\n", (int)world->rank, bad);
        return 1;
    }
    return dpar_finalize(world);
}
END
try $CC -std=c99 -D_GNU_SOURCE -Ofast -w -DDPAR_STATIC -DDPAR_IMPLEMENTATION -I. "$work/fast.c" -o "$work/fast" -lm
for ranks in 1 2 3; do
    try "$work/fast" --ranks $ranks
done
echo "a step with a gradient that is not finite is skipped with -Ofast, too"
