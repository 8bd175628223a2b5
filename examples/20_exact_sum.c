/* SPDX-License-Identifier: MIT-0 */
/* 20 - adds a field whose large values cancel, exactly and as a loop does. The exact sum and norm
 * are the same on any number of ranks; the plain sum is not.
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/20_exact_sum.c -o build/20 && build/20 --ranks 4
 *   sum 5000, norm 31854008616983312
 *   a plain sum on 4 ranks: 100
 */
#include "dpar_halo.h"

#include "dpar_exact.h"
#include <stdio.h>

enum { NY = 100, NX = 1000 };

static int add(dpar_comm *world, void *unused)
{
    dpar_grid_desc desc = {.dims = 2, .cells = {NY, NX}, .halo = 1};
    dpar_grid *grid = NULL;
    dpar_exact_term terms[2];
    double result[2], plain = 0.0;
    dpar_why why;
    (void)unused;
    if (dpar_grid_make(world, &desc, &grid, &why) < 0) {
        return dpar_fail(world, &why);
    }
    double *u = dpar_grid_array(grid, DPAR_F64, NULL);
    if (u == NULL) {
        return dpar_fail(world, NULL);
    }
    for (int64_t j = 0; j < grid->count[0]; j++) {
        for (int64_t i = 0; i < grid->count[1]; i++) {
            const int64_t y = grid->first[0] + j, x = grid->first[1] + i;
            const double large = x % 4 < 2 ? 1e15 : -1e15; /* cancels along each row */
            u[j * grid->stride[0] + i] = y % 2 == 0 ? 0.1 : large / (double)(y * y);
            plain += u[j * grid->stride[0] + i];
        }
    }
    if (dpar_exact_grid_term(grid, u, DPAR_F64, NULL, &terms[0]) < 0) {
        return dpar_fail(world, NULL);
    }
    terms[1] = terms[0];
    terms[1].kind = DPAR_EXACT_NORM;
    if (dpar_exact_many(world, terms, 2, result) < 0) {
        return dpar_fail(world, NULL);
    }
    plain = dpar_sum(world, plain);
    if (world->rank == 0) {
        printf("sum %.17g, norm %.17g\n", result[0], result[1]);
        printf("a plain sum on %d ranks: %.17g\n", (int)world->size, plain);
    }
    return dpar_grid_free(grid) < 0 ? dpar_fail(world, NULL) : 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, add, NULL);
}
