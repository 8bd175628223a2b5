/* SPDX-License-Identifier: MIT-0 */
/* lattice_speed - measures the exchange of lattice Boltzmann populations (D3Q19, f64):
 * dpar_grid_field.direction, all populations by dpar_grid, and MPI by hand.
 *
 *     mpicc -O2 -DDPAR_IMPLEMENTATION -I. bench/lattice_speed.c -o build/lattice_speed
 *     mpirun -np 2 build/lattice_speed [SECONDS]      of each row (default 0.5)
 *
 * Each rank has n^3 cells, cut in the first dim and periodic in all. By hand, the 5 populations
 * that cross a face are packed, sent and unpacked, then those of the next dim with the halo cells
 * received so far, which brings the edges. In the dims that are not cut, the planes are copied.
 * Populations are stored per cell (cells) or one after the other (planes). A sample is the slowest
 * rank's time of exchanges back to back, divided by their number. Prints the least and the median
 * us of each way, and the ratios of dpar's to MPI's.
 *
 * Exit codes: 0 done; 1 a call failed or a population is wrong. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "dpar_halo.h"
#include "dpar_mpi.h"

#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>

enum { Q = 19, SAMPLES = 31, WAYS = 3 };

static int8_t direction[Q][3];

typedef struct lattice {
    dpar_comm *comm;
    dpar_grid *grid[2]; /* with directions, and without */
    double *u;          /* its first own cell */
    int64_t n, stride[3], comp;
    double *buffer[4]; /* sent down, sent up, received from below, from above */
} lattice;

/* Copies the plane `at` of the populations that move by `sign` in dim d to a buffer, or back. */
static double *plane(const lattice *s, int d, int sign, int64_t at, double *to, int back)
{
    const int p = d == 0 ? 1 : 0, q = d == 2 ? 1 : 2;
    const int64_t b = p < d ? 1 : 0, c = q < d ? 1 : 0; /* halos that are filled already */
    for (int k = 0; k < Q; k++) {
        if (direction[k][d] != sign) {
            continue;
        }
        for (int64_t i = -b; i < s->n + b; i++) {
            double *from = s->u + k * s->comp + at * s->stride[d] + i * s->stride[p];
            for (int64_t j = -c; j < s->n + c; j++, to++) {
                if (back) {
                    from[j * s->stride[q]] = *to;
                } else {
                    *to = from[j * s->stride[q]];
                }
            }
        }
    }
    return to;
}

static void by_hand(const lattice *s)
{
    const int size = s->comm->size, rank = s->comm->rank;
    for (int d = 0; d < 3; d++) {
        double *const *b = s->buffer;
        const int count = (int)(plane(s, d, 1, s->n - 1, b[1], 0) - b[1]);
        plane(s, d, -1, 0, b[0], 0);
        if (d == 0 && size > 1) {
            const int low = (rank + size - 1) % size, high = (rank + 1) % size;
            MPI_Request r[4];
            MPI_Irecv(b[2], count, MPI_DOUBLE, low, 1, MPI_COMM_WORLD, &r[0]);
            MPI_Irecv(b[3], count, MPI_DOUBLE, high, 2, MPI_COMM_WORLD, &r[1]);
            MPI_Isend(b[1], count, MPI_DOUBLE, high, 1, MPI_COMM_WORLD, &r[2]);
            MPI_Isend(b[0], count, MPI_DOUBLE, low, 2, MPI_COMM_WORLD, &r[3]);
            MPI_Waitall(4, r, MPI_STATUSES_IGNORE);
            plane(s, d, 1, -1, b[2], 1);
            plane(s, d, -1, s->n, b[3], 1);
        } else {
            plane(s, d, 1, -1, b[1], 1);
            plane(s, d, -1, s->n, b[0], 1);
        }
    }
}

static void exchange(const lattice *s, int way)
{
    if (way == 2) {
        by_hand(s);
    } else {
        dpar_grid_exchange(s->grid[way], s->u);
    }
}

/* Returns the number of populations that would step into the block and are wrong. Cells have their
 * number in the whole grid. */
static int wrong(const lattice *s, int way)
{
    const int64_t n = s->n, all = n * s->comm->size;
    int mistakes = 0;
    for (int turn = 0; turn < 2; turn++) {
        for (int64_t i = 0; i < (n + 2) * (n + 2) * (n + 2) * Q; i++) {
            const int64_t k = i % Q, z = i / Q / (n + 2) / (n + 2) - 1;
            const int64_t y = i / Q / (n + 2) % (n + 2) - 1, x = i / Q % (n + 2) - 1;
            const int64_t a = z + direction[k][0], b = y + direction[k][1], c = x + direction[k][2];
            double *at =
                s->u + k * s->comp + z * s->stride[0] + y * s->stride[1] + x * s->stride[2];
            const int own = z >= 0 && z < n && y >= 0 && y < n && x >= 0 && x < n;
            const int needed = a >= 0 && a < n && b >= 0 && b < n && c >= 0 && c < n;
            const int64_t from = (s->comm->rank * n + z + all) % all;
            const int64_t cell = (from * n + (y + n) % n) * n + (x + n) % n;
            if (turn == 0) {
                *at = own ? (double)(cell * Q + k) : -1.0;
            } else if (needed && *at != (double)(cell * Q + k)) {
                mistakes++;
            }
        }
        if (turn == 0) {
            exchange(s, way);
        }
    }
    return mistakes;
}

static int ascending(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

static double measure(const lattice *s, int way, int times)
{
    double took;
    dpar_barrier(s->comm, NULL);
    took = now();
    for (int i = 0; i < times; i++) {
        exchange(s, way);
    }
    return dpar_max(s->comm, (now() - took) / times) * 1e6;
}

static int row(dpar_comm *comm, int64_t n, int planes, double seconds)
{
    static double sample[WAYS][SAMPLES];
    const int64_t cells = (n + 2) * (n + 2) * (n + 2);
    lattice s = {0};
    void *memory;
    int times;
    s.comm = comm;
    s.n = n;
    s.comp = planes ? cells : 1;
    s.stride[2] = planes ? 1 : Q;
    s.stride[1] = s.stride[2] * (n + 2);
    s.stride[0] = s.stride[1] * (n + 2);
    dpar_require(comm, dpar_comm_alloc(comm, 8 * cells * Q, &memory), NULL);
    s.u = (double *)memory + s.stride[0] + s.stride[1] + s.stride[2];
    for (int i = 0; i < 4; i++) {
        s.buffer[i] = (double *)malloc(8 * 5 * (size_t)((n + 2) * (n + 2)));
    }
    for (int way = 0; way < 2; way++) {
        dpar_grid_desc desc = {0};
        dpar_grid_field field = {0};
        dpar_why why;
        desc.dims = 3;
        desc.halo = 1;
        for (int d = 0; d < 3; d++) {
            desc.parts[d] = d == 0 ? comm->size : 1;
            desc.cells[d] = n * desc.parts[d];
            desc.periodic[d] = 1;
        }
        field.components = Q;
        field.component_stride = planes ? cells : 0;
        field.direction = way == 0 ? &direction[0][0] : NULL;
        dpar_require(comm, dpar_grid_make(comm, &desc, &s.grid[way], &why), &why);
        dpar_require(comm, dpar_grid_attach(s.grid[way], s.u, DPAR_F64, &field, &why), &why);
    }
    for (int way = 0; way < WAYS; way++) {
        const int mistakes = wrong(&s, way);
        if (dpar_max(comm, mistakes) > 0) {
            printf("%d^3: way %d: %d populations are wrong\n", (int)n, way, mistakes);
            return 1;
        }
    }
    times = (int)(seconds * 1e6 / SAMPLES / 2 / measure(&s, 2, 20));
    times = (int)dpar_max(comm, times > 3 ? times : 3);
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
        printf("%3d^3 %s  direction %7.2f %7.2f  all %7.2f %7.2f  MPI %7.2f %7.2f  ratios of "
               "medians %.2f %.2f, of least %.2f %.2f\n",
               (int)n, planes ? "planes" : "cells ", sample[0][0], sample[0][m], sample[1][0],
               sample[1][m], sample[2][0], sample[2][m], sample[0][m] / sample[2][m],
               sample[1][m] / sample[2][m], sample[0][0] / sample[2][0],
               sample[1][0] / sample[2][0]);
    }
    for (int i = 0; i < 4; i++) {
        free(s.buffer[i]);
    }
    dpar_grid_free(s.grid[0]);
    dpar_grid_free(s.grid[1]);
    dpar_comm_release(comm, memory);
    return 0;
}

int main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 0.5;
    dpar_comm *comm = NULL;
    dpar_why why;
    int bad = 0, k = 0;
    for (int i = 0; i < 27; i++) { /* no corners */
        const int z = i / 9 - 1, y = i / 3 % 3 - 1, x = i % 3 - 1;
        if (z * y * x == 0) {
            direction[k][0] = (int8_t)z;
            direction[k][1] = (int8_t)y;
            direction[k++][2] = (int8_t)x;
        }
    }
    MPI_Init(&argc, &argv);
    dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &comm, &why), &why);
    pin(comm->rank);
    for (int64_t n = 16; n <= 64 && !bad; n *= 2) {
        bad = row(comm, n, 1, seconds) || row(comm, n, 0, seconds);
    }
    dpar_comm_free(comm);
    MPI_Finalize();
    return bad;
}
