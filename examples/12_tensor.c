/* SPDX-License-Identifier: MIT-0 */
/* 12 - computes a tensor-parallel MLP. Each rank has a part of both matrices, and one all-reduce
 * gives what the whole matrices give on one rank, on any number of ranks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/12_tensor.c -o build/12 && build/12 --ranks 4
 *   token 2, by parts:  0.5391 -0.8320 -1.0430 -0.1992 0.3281 -0.0938 -0.3047 0.5391
 *   token 2, one rank:  0.5391 -0.8320 -1.0430 -0.1992 0.3281 -0.0938 -0.3047 0.5391
 */
#include "dpar_train.h"
#include <stdio.h>
enum { TOKENS = 5, WIDTH = 8, HIDDEN = 24 }; /* HIDDEN is cut over the ranks */

/* Computes y = down relu(up x). Each rank has some rows of up and the same columns of down. */
static int mlp(dpar_comm *comm, double *y)
{
    int64_t first = 0, own = 0; /* hidden units of this rank */
    dpar_split_range(DPAR_SPLIT_EVEN, HIDDEN, comm->size, comm->rank, &first, &own);
    const dpar_linear up = {.kind = DPAR_LINEAR_COLUMN, .in = WIDTH, .out = own};
    const dpar_linear down = {.kind = DPAR_LINEAR_ROW, .in = own, .out = WIDTH};
    double x[TOKENS * WIDTH], hidden[TOKENS * HIDDEN];
    double w_up[HIDDEN * WIDTH], w_down[WIDTH * HIDDEN];
    const dpar_linear_arrays up_arrays = {.w = w_up, .x = x, .y = hidden};
    const dpar_linear_arrays down_arrays = {.w = w_down, .x = hidden, .y = y};
    dpar_tensor_parallel group;
    for (int i = 0; i < own * WIDTH; i++) {
        w_up[i] = ((first + i / WIDTH) * 5 + i % WIDTH * 3) % 11 / 8.0 - 0.625;
        w_down[i] = (i / own * 7 + first + i % own) % 9 / 8.0 - 0.5;
    }
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        x[i] = (i / WIDTH * 3 + i % WIDTH) % 7 / 4.0 - 0.75;
    }
    if (dpar_tensor_parallel_init(&group, comm, DPAR_F64, TOKENS, NULL, NULL) < 0 ||
        dpar_linear_forward(&group, &up, &up_arrays) < 0) { /* no communication */
        return dpar_fail(comm, NULL);
    }
    for (int i = 0; i < TOKENS * own; i++) {
        hidden[i] = hidden[i] > 0 ? hidden[i] : 0;
    }
    /* One all-reduce; afterwards all ranks have the whole y. */
    return dpar_linear_forward(&group, &down, &down_arrays) < 0 ? dpar_fail(comm, NULL) : 0;
}

static void print_token(const char *title, const double *values)
{
    printf("%s", title);
    for (int i = 0; i < WIDTH; i++) {
        printf(" %.4f", values[i]);
    }
    printf("\n");
}

static int layer(dpar_comm *world, void *unused)
{
    double by_parts[TOKENS * WIDTH], one_rank[TOKENS * WIDTH];
    dpar_comm *self = NULL; /* a communicator of this rank only */
    (void)unused;
    if (dpar_comm_split(world, world->rank, 0, &self) < 0 || mlp(world, by_parts) != 0 ||
        mlp(self, one_rank) != 0) {
        return dpar_fail(world, NULL);
    }
    if (world->rank == 0) {
        print_token("token 2, by parts: ", by_parts + 2 * WIDTH);
        print_token("token 2, one rank: ", one_rank + 2 * WIDTH);
    }
    return dpar_comm_free(self) < 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, layer, NULL);
}
