/* SPDX-License-Identifier: MIT-0 */
/* 15 - solves a sparse system by conjugate gradients. dpar finds out which rank owns which column.
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/15_sparse.c -o build/15 && build/15 --ranks 4
 *   32 iterations, x[0] is 2.018662
 */
#include "dpar_points.h"
#include <stdio.h>
enum { N = 1000, ROW = 3 }; /* row i: 4 at i, -1 at its two neighbours (cyclic) and N - 1 - i */

static int solve(dpar_comm *world, void *unused)
{
    static int64_t id[N * ROW], ghost[N * ROW];
    static int32_t column[N * ROW];
    static double x[N], r[N], q[N];
    int64_t first = 0, own = 0, ghosts = 0, steps;
    double rr = 0.0, before = 1.0;
    dpar_points *plan = NULL;
    dpar_why why;
    (void)unused;
    dpar_split_range(DPAR_SPLIT_EVEN, N, world->size, world->rank, &first, &own);
    for (int64_t i = 0; i < ROW * own; i++) {
        const int64_t row = first + i / ROW;
        const int64_t columns[ROW] = {(row + 1) % N, (row + N - 1) % N, N - 1 - row};
        id[i] = columns[i % ROW];
        if (id[i] < first || id[i] >= first + own) {
            ghost[ghosts++] = id[i]; /* another rank owns it */
        }
    }
    const dpar_points_desc desc = {.own_count = own, .ghost_count = ghosts, .ghost_id = ghost};
    if (dpar_points_make(world, &desc, &plan, &why) < 0) { /* rows are numbered rank after rank */
        return dpar_fail(world, &why);
    }
    double *d = (double *)dpar_points_array(plan, DPAR_F64, 1); /* own values, then ghosts */
    if (d == NULL || dpar_points_to_local(plan, id, ROW * own, column) < 0) { /* indices into d */
        return dpar_fail(world, NULL);
    }
    for (int64_t i = 0; i < own; i++) {
        r[i] = (double)((first + i) % 7);
        rr += r[i] * r[i];
    }
    rr = dpar_sum(world, rr);
    for (steps = 0; rr > 1e-20; steps++) {
        double dq = 0.0;
        for (int64_t i = 0; i < own; i++) {
            d[i] = r[i] + rr / before * d[i];
        }
        dpar_points_exchange(plan, d);
        for (int64_t i = 0; i < own; i++) {
            const int32_t *c = column + ROW * i;
            q[i] = 4.0 * d[i] - d[c[0]] - d[c[1]] - d[c[2]];
            dq += d[i] * q[i];
        }
        const double step = rr / dpar_sum(world, dq);
        before = rr;
        rr = 0.0;
        for (int64_t i = 0; i < own; i++) {
            x[i] += step * d[i];
            r[i] -= step * q[i];
            rr += r[i] * r[i];
        }
        rr = dpar_sum(world, rr); /* NaN after an error, which ends the loop */
    }
    if (world->rank == 0 && world->status == 0) {
        printf("%d iterations, x[0] is %.6f\n", (int)steps, x[0]);
    }
    if (world->status < 0 || dpar_points_free(plan) < 0) {
        return dpar_fail(world, NULL);
    }
    return 0;
}

int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, solve, NULL);
}
