/* SPDX-License-Identifier: MIT-0 */
/* grid_reduce - measures sums at the vertices that blocks share: dpar_grid_reduce, the same sums by
 * an adjoint and an exchange of shared points, and MPI by hand.
 *
 *     mpicc -O2 -DDPAR_IMPLEMENTATION -I. bench/grid_reduce.c -o build/grid_reduce
 *     mpirun -np 2 build/grid_reduce [SECONDS]      of each row (default 0.5)
 *
 * Each rank has n^3 cells and (n + 1)^3 vertices of f64, or n cells and n + 1 vertices in a row in
 * the rows "16 points". By hand, planes are packed, sent to the neighbours of one dim and added,
 * then those of the next dim. A sample is the slowest rank's time of sums back to back, divided by
 * their number. Prints the smallest and median us of each way, and the ratios of dpar_grid_reduce
 * to the other two, of the medians of samples taken in turns. All values are 0, so that they stay
 * finite; one sum of ones is compared before.
 *
 * Exit codes: 0 done; 1 a call failed or a sum is wrong. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dpar_halo.h"
#include "dpar_mpi.h"

#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 41, WAYS = 3 };

typedef struct sums {
    dpar_comm *comm;
    dpar_grid *grid;
    dpar_halo_plan *plan; /* of shared points */
    double *u;
    int64_t points[3], stride[3];
    int32_t low[3], high[3]; /* neighbours, or -1 */
    double *plane[4];        /* sent low, sent high, received from low, from high */
} sums;

/* Copies a plane of vertices to `to`, or adds `to` to it. */
static void plane(const sums *s, int d, int64_t at, double *to, int adds)
{
    const int p = d == 0 ? 1 : 0, q = d == 2 ? 1 : 2;
    for (int64_t i = 0; i < s->points[p]; i++) {
        double *from = s->u + at * s->stride[d] + i * s->stride[p];
        for (int64_t j = 0; j < s->points[q]; j++, to++) {
            if (adds) {
                from[j * s->stride[q]] += *to;
            } else {
                *to = from[j * s->stride[q]];
            }
        }
    }
}

static void by_hand(const sums *s)
{
    for (int d = 0; d < 3; d++) {
        const int n = (int)(s->points[0] * s->points[1] * s->points[2] / s->points[d]);
        MPI_Request r[4];
        int k = 0;
        if (s->low[d] >= 0) {
            MPI_Irecv(s->plane[2], n, MPI_DOUBLE, s->low[d], d, MPI_COMM_WORLD, &r[k++]);
        }
        if (s->high[d] >= 0) {
            MPI_Irecv(s->plane[3], n, MPI_DOUBLE, s->high[d], d, MPI_COMM_WORLD, &r[k++]);
        }
        if (s->low[d] >= 0) {
            plane(s, d, 0, s->plane[0], 0);
            MPI_Isend(s->plane[0], n, MPI_DOUBLE, s->low[d], d, MPI_COMM_WORLD, &r[k++]);
        }
        if (s->high[d] >= 0) {
            plane(s, d, s->points[d] - 1, s->plane[1], 0);
            MPI_Isend(s->plane[1], n, MPI_DOUBLE, s->high[d], d, MPI_COMM_WORLD, &r[k++]);
        }
        MPI_Waitall(k, r, MPI_STATUSES_IGNORE);
        if (s->low[d] >= 0) {
            plane(s, d, 0, s->plane[2], 1);
        }
        if (s->high[d] >= 0) {
            plane(s, d, s->points[d] - 1, s->plane[3], 1);
        }
    }
}

static void sum(const sums *s, int way)
{
    if (way == 0) {
        dpar_grid_reduce(s->grid, s->u, DPAR_SUM);
    } else if (way == 1) {
        dpar_halo_plan_reduce(s->plan, DPAR_SUM);
        dpar_halo_plan_exchange(s->plan);
    } else {
        by_hand(s);
    }
}

/* Returns the number of vertices at which a sum of ones is not the number of their holders. */
static int wrong(const sums *s, int way)
{
    const dpar_grid *g = s->grid;
    int mistakes = 0;
    for (int64_t i = 0; i < s->points[0] * s->points[1] * s->points[2]; i++) {
        s->u[i] = 1;
    }
    sum(s, way);
    for (int64_t i = 0; i < s->points[0] * s->points[1] * s->points[2]; i++) {
        double holders = 1;
        for (int d = 0; d < 3; d++) {
            const int64_t x = i / s->stride[d] % s->points[d];
            holders *= (x == 0 && s->low[d] >= 0) || (x == g->count[d] && s->high[d] >= 0) ? 2 : 1;
        }
        mistakes += s->u[i] != holders;
        s->u[i] = 0;
    }
    return mistakes;
}

static int ascending(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

static double measure(const sums *s, int way, int times)
{
    double took;
    dpar_barrier(s->comm, NULL);
    took = now();
    for (int i = 0; i < times; i++) {
        sum(s, way);
    }
    return dpar_max(s->comm, (now() - took) / times) * 1e6;
}

/* Makes a grid of `cells` cells a rank in each dim, cut in all dims or in the first one. */
static void make(sums *s, const int64_t *cells, int flat)
{
    dpar_grid_desc desc = {0};
    dpar_grid_field field = {0};
    dpar_halo_plan_desc plan = {0};
    dpar_halo_field points = {0};
    static dpar_halo halo;
    int parts[3] = {0};
    dpar_why why;
    MPI_Dims_create(s->comm->size, flat ? 1 : 3, parts);
    desc.dims = 3;
    for (int d = 0; d < 3; d++) {
        desc.parts[d] = flat && d > 0 ? 1 : parts[d];
        desc.cells[d] = cells[d] * desc.parts[d];
        field.location[d] = DPAR_HALO_AT_FACES;
    }
    dpar_require(s->comm, dpar_grid_make(s->comm, &desc, &s->grid, &why), &why);
    s->u = (double *)dpar_grid_array(s->grid, DPAR_F64, &field);
    for (int d = 2; d >= 0; d--) {
        const int32_t *at = s->grid->coord, *of = s->grid->parts;
        const int32_t step = d == 2 ? 1 : d == 1 ? of[2] : of[2] * of[1];
        s->points[d] = cells[d] + 1;
        s->stride[d] = d == 2 ? 1 : s->stride[d + 1] * s->points[d + 1];
        s->low[d] = at[d] > 0 ? s->comm->rank - step : -1;
        s->high[d] = at[d] + 1 < of[d] ? s->comm->rank + step : -1;
    }
    for (int i = 0; i < 4; i++) {
        s->plane[i] = (double *)malloc(8 * (size_t)(s->points[0] * s->points[1] * s->points[2]));
    }
    halo = *dpar_grid_halo(s->grid);
    for (int d = 0; d < 3; d++) {
        halo.high[d] = 1;
        halo.points[d] = DPAR_HALO_AT_FACES;
        points.stride[d] = s->stride[d];
    }
    points.halo = &halo;
    points.type = DPAR_F64;
    points.data = s->u;
    plan.field = &points;
    plan.field_count = 1;
    plan.shared = 1;
    dpar_require(s->comm, dpar_halo_plan_make(s->comm, &plan, &s->plan, &why), &why);
}

static int row(dpar_comm *comm, const char *name, const int64_t *cells, int flat, double seconds)
{
    static double sample[WAYS][SAMPLES];
    sums s = {0};
    int times;
    s.comm = comm;
    make(&s, cells, flat);
    for (int way = 0; way < WAYS; way++) {
        if (dpar_max(comm, wrong(&s, way)) > 0) {
            printf("%s: way %d: %d sums are wrong\n", name, way, wrong(&s, way));
            return 1;
        }
    }
    times = (int)(seconds * 1e6 / SAMPLES / (measure(&s, 2, 100) + measure(&s, 0, 100)));
    times = (int)dpar_max(comm, times > 5 ? times : 5);
    for (int k = 0; k < SAMPLES; k++) {
        for (int way = 0; way < WAYS; way++) {
            sample[way][k] = measure(&s, way, times);
        }
    }
    for (int way = 0; way < WAYS; way++) {
        qsort(sample[way], SAMPLES, sizeof sample[way][0], ascending);
    }
    if (comm->rank == 0) {
        const int m = SAMPLES / 2;
        printf("%-12s reduce %7.2f %7.2f  two exchanges %7.2f %7.2f  MPI %7.2f %7.2f  ratios of "
               "medians %.2f %.2f, of least %.2f %.2f\n",
               name, sample[0][0], sample[0][m], sample[1][0], sample[1][m], sample[2][0],
               sample[2][m], sample[0][m] / sample[1][m], sample[0][m] / sample[2][m],
               sample[0][0] / sample[1][0], sample[0][0] / sample[2][0]);
    }
    dpar_halo_plan_free(s.plan);
    dpar_grid_free(s.grid);
    for (int i = 0; i < 4; i++) {
        free(s.plane[i]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    const int64_t cells[5][3] = {{8, 1, 7}, {8, 1, 4095}, {8, 8, 8}, {20, 20, 20}, {64, 64, 64}};
    const char *const name[5] = {"16 points", "8192 points", "8^3", "20^3", "64^3"};
    dpar_comm *comm;
    dpar_why why;
    int bad = 0;
    MPI_Init(&argc, &argv);
    dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &comm, &why), &why);
    pin(comm->rank);
    for (int k = 0; k < 5 && !bad; k++) {
        bad = row(comm, name[k], cells[k], k < 2, seconds);
    }
    dpar_comm_free(comm);
    MPI_Finalize();
    return bad;
}
