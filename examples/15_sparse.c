/* SPDX-License-Identifier: MIT-0 */
/* 15 - a sparse matrix without a grid, and conjugate gradients. Each rank has rows and names by
 * their ids the columns that it reads; dpar finds who has them. On any number of ranks:
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. examples/15_sparse.c -o build/15 && build/15 --ranks 4
 *
 *   32 iterations, x[0] is 2.018662
 */
#include "dpar_points.h"
#include <stdio.h>
enum { N = 1000, ROW = 4 }; /* row i: 4 at i, -1 at both neighbours in a ring and at its opposite */

static int solve(dpar_comm *world, void *unused)
{
    static int64_t id[N * ROW], ghost[N * ROW + 1], m, i;
    static int32_t column[N * ROW], *c;
    static double x[N], r[N], q[N], rr, before, dq, step;
    const int64_t first = N * world->rank / world->size;
    const int64_t end = N * (world->rank + 1) / world->size, own = end - first;
    dpar_points *p = NULL;
    dpar_why why;
    int turns = 0;
    for (i = 0; i < ROW * own; i++, m += id[i - 1] < first || id[i - 1] >= end) {
        const int64_t k = first + i / ROW, of[] = {k, (k + 1) % N, (k + N - 1) % N, N - 1 - k};
        ghost[m] = id[i] = of[i % ROW]; /* kept where it is another rank's */
    }
    if (unused || dpar_points_make(world, NULL, own, ghost, m, &p, &why) < 0) {
        return dpar_fail(world, &why);
    }
    dpar_points_to_local(p, id, ROW * own, column); /* columns as places in d, */
    double *d = dpar_points_array(p, DPAR_F64, 1);  /* with the others' values behind own ones */
    for (i = 0; d && i < own; i++) {
        r[i] = (double)((first + i) % 7);
        rr += r[i] * r[i];
    }
    for (rr = dpar_sum(world, rr), before = 1.0; rr > 1e-20; turns++) {
        for (i = 0; i < own; i++) {
            d[i] = r[i] + rr / before * d[i];
        }
        dpar_points_exchange(p, d);
        for (i = 0, c = column, dq = 0.0; i < own; i++, c += ROW) {
            q[i] = 4.0 * d[c[0]] - d[c[1]] - d[c[2]] - d[c[3]];
            dq += d[i] * q[i];
        }
        step = rr / dpar_sum(world, dq), before = rr;
        for (i = 0, rr = 0.0; i < own; i++) {
            x[i] += step * d[i], r[i] -= step * q[i];
            rr += r[i] * r[i];
        }
        rr = dpar_sum(world, rr);
    }
    if (world->rank == 0) {
        printf("%d iterations, x[0] is %.6f\n", turns, x[0]);
    }
    return dpar_points_free(p) < 0 ? dpar_fail(world, NULL) : 0;
}
int main(int argc, char **argv)
{
    return dpar_launch_main(argc, argv, solve, NULL);
}
