/* SPDX-License-Identifier: MIT-0 */
/* 19 - heat spreads in an ocean of blocks around an island; halfway, blocks move for balance
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/19_blocks.c -o build/19 && build/19 --ranks 4
 *   heat 2560.000000, 19 blocks moved, imbalance 1.333 before, 1.020 after
 */
#include "dpar_blocks.h"
#include <stdio.h>

enum { NY = 6, NX = 12, SIDE = 16, STEPS = 400 };

static double spread(const double *u, double *next, int64_t row)
{
    double heat = 0.0;
    for (int64_t y = 0; y < SIDE; y++) {
        for (int64_t x = y * row; x < y * row + SIDE; x++) {
            const double near[4] = {u[x - row], u[x + row], u[x - 1], u[x + 1]};
            next[x] = u[x];
            for (int k = 0; k < 4; k++) {
                next[x] += near[k] < 0.0 ? 0.0 : 0.2 * (near[k] - u[x]); /* -1: land */
            }
            heat += next[x];
        }
    }
    return heat;
}

static int ocean(dpar_comm *world, void *unused)
{
    unsigned char exists[NY * NX];
    double weight[NY * NX], heat = 0.0;
    dpar_blocks_rebalance_result result = {0};
    dpar_blocks_desc desc = {.dims = 2, .halo = 1, .star = 1, .periodic = {0, 1}, .exists = exists};
    dpar_blocks_move_desc change = {.weight = weight, .steps = STEPS / 2};
    dpar_blocks *blocks = NULL;
    dpar_blocks_array *u[2] = {NULL, NULL};
    (void)unused;
    for (int i = 0; i < NY * NX; i++) {
        exists[i] = i / NX < 2 || i / NX > 3 || i % NX < 5 || i % NX > 6;
    }
    desc.cells[0] = NY * SIDE;
    desc.cells[1] = NX * SIDE;
    desc.block[0] = desc.block[1] = SIDE;
    dpar_require(world, dpar_blocks_make(world, &desc, &blocks, NULL), NULL);
    for (int k = 0; k < 2; k++) {
        dpar_require(world, dpar_blocks_array_make(blocks, DPAR_F64, NULL, &u[k], NULL), NULL);
        for (int i = 0; i < blocks->count; i++) {
            for (int64_t j = 0, row = u[k]->stride[0]; j < row * row; j++) {
                const int own = j / row % (row - 1) > 0 && j % row % (row - 1) > 0;
                ((double *)u[k]->block[i])[j - row - 1] =
                    own ? 10.0 * (blocks->block[i].number == 28) : -1.0;
            }
        }
    }
    for (int step = 0; step < STEPS; step++) {
        dpar_require(world, dpar_blocks_exchange(blocks, u[step % 2]), NULL);
        heat = 0.0;
        for (int i = 0; i < blocks->count; i++) { /* could be a parallel loop of OpenMP */
            heat += spread(u[step % 2]->block[i], u[1 - step % 2]->block[i], u[0]->stride[0]);
            weight[i] = blocks->block[i].first[1] < NX / 2 * SIDE ? 2.0 : 1.0;
        }
        if (step == STEPS / 2) {
            dpar_require(world, dpar_blocks_move(blocks, &change, &result, NULL), NULL);
        }
    }
    heat = dpar_sum(world, heat);
    dpar_quiet(world); /* only rank 0 prints */
    printf("heat %.6f, %d blocks moved, imbalance %.3f before, %.3f after\n", heat,
           (int)result.blocks_moved, result.before.imbalance, result.after.imbalance);
    return dpar_blocks_free(blocks) < 0 ? dpar_fail(world, NULL) : 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, ocean, NULL);
}
