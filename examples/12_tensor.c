/* SPDX-License-Identifier: MIT-0 */
/* 12 - a tensor-parallel layer: each rank has a part of both matrices of an MLP, and one all-reduce
 * gives what the whole matrices give on one rank, on any number of ranks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/12_tensor.c -o build/12 && build/12 --ranks 4
 *
 *   token 2, by parts:  0.5391 -0.8320 -1.0430 -0.1992 0.3281 -0.0938 -0.3047 0.5391
 *   token 2, one rank:  0.5391 -0.8320 -1.0430 -0.1992 0.3281 -0.0938 -0.3047 0.5391
 */
#include "dpar_train.h"
#include <stdio.h>
enum { TOKENS = 5, WIDTH = 8, HIDDEN = 24 }; /* HIDDEN is cut: over 1, 2, 3, 4, 6, 8 ranks */

/* y = down relu(up x), each rank with its rows of up and its columns of down. */
static dpar_status mlp(dpar_comm *c, double *y)
{
    const int own = HIDDEN / c->size, first = c->rank * own;
    double x[TOKENS * WIDTH], up[HIDDEN * WIDTH], down[WIDTH * HIDDEN], h[TOKENS * HIDDEN];
    dpar_linear a = {DPAR_LINEAR_COLUMN, 0, WIDTH, own}, b = {DPAR_LINEAR_ROW, 0, own, WIDTH};
    dpar_linear_arrays p = {0}, q = {0};
    dpar_tensor_parallel t;
    for (int i = 0; i < own * WIDTH; i++) {
        up[i] = ((first + i / WIDTH) * 5 + i % WIDTH * 3) % 11 / 8.0 - 0.625;
        down[i] = (i / own * 7 + first + i % own) % 9 / 8.0 - 0.5;
    }
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        x[i] = (i / WIDTH * 3 + i % WIDTH) % 7 / 4.0 - 0.75;
    }
    p.w = up, p.x = x, p.y = h;
    q.w = down, q.x = h, q.y = y;
    dpar_tensor_parallel_init(&t, c, DPAR_F64, TOKENS, NULL, NULL);
    dpar_linear_forward(&t, &a, &p); /* nothing travels */
    for (int i = 0; i < TOKENS * own; i++) {
        h[i] = h[i] > 0 ? h[i] : 0;
    }
    return dpar_linear_forward(&t, &b, &q); /* one all-reduce: y is whole on all ranks */
}

static int layer(dpar_comm *world, void *unused)
{
    double y[2][TOKENS * WIDTH];
    dpar_comm *alone = NULL; /* each rank by itself */
    if (unused || dpar_comm_split(world, world->rank, 0, &alone) < 0 || mlp(world, y[0]) < 0 ||
        mlp(alone, y[1]) < 0) {
        return dpar_fail(world, NULL);
    }
    for (int k = 0; k < 2 && world->rank == 0; k++) {
        printf(k == 0 ? "token 2, by parts: " : "token 2, one rank: ");
        for (int i = 2 * WIDTH; i < 3 * WIDTH; i++) {
            printf(" %.4f%s", y[k][i], i == 3 * WIDTH - 1 ? "\n" : "");
        }
    }
    return dpar_comm_free(alone) < 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, layer, NULL);
}
