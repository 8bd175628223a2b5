/* SPDX-License-Identifier: MIT-0 */
/* blocks - compares many blocks per rank (dpar_blocks.h) with one block per rank (dpar_grid), on the
 * same cells in the same run.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/blocks.c -o build/blocks -lm && build/blocks [RANKS [SAMPLES]]
 *
 * Each rank has blocks of 32 x 32 columns of 60 levels, f64, with a halo of one cell. The levels are
 * the first dim (u[60][y][x]) or the last one (u[y][x][60]). A step computes a stencil of five points
 * of all cells and exchanges the halo. `exchange` and `compute` are its parts. Samples of both
 * are taken in turns; a sample is the time of the slowest rank. Prints the median us of one block
 * per rank and of many, the ratio of the medians, and that of the smallest samples.
 *
 * Exit codes: 0 done; 1 a call failed, or the results differ. */
#include "dpar_blocks.h"
#include "dpar_halo.h"

#include "../helpers/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEVELS = 60, SIDE = 32, MOST_SAMPLES = 401, COUNT = 4 };
enum { EXCHANGE, COMPUTE, STEP };

typedef struct work {
    dpar_comm *comm;
    int32_t last; /* 1 if levels are the last dim */
    dpar_grid *grid;
    dpar_blocks *blocks;
    double *one[2];
    dpar_blocks_array *many[2];
    int32_t now; /* which of the two arrays has the values */
} work;

/* Computes one block: count and stride in the order y, x, level. */
static void stencil(const double *from, double *to, const int64_t *count, const int64_t *stride)
{
    const int64_t rows = stride[1], columns = stride[0];
    for (int64_t k = 0; k < (stride[2] == 1 ? 1 : count[2]); k++) {
        for (int64_t y = 0; y < count[0]; y++) {
            const double *f = from + k * stride[2] + y * columns;
            double *t = to + k * stride[2] + y * columns;
            const int64_t n = stride[2] == 1 ? count[1] * count[2] : count[1];
            for (int64_t x = 0; x < n; x++) {
                t[x] = 0.6 * f[x] + 0.1 * (f[x - rows] + f[x + rows] + f[x - columns] + f[x + columns]);
            }
        }
    }
}

/* Puts numbers of dims into the order y, x, level. */
static void sorted(const work *w, const int64_t *in, int64_t *out)
{
    out[0] = in[w->last ? 0 : 1];
    out[1] = in[w->last ? 1 : 2];
    out[2] = in[w->last ? 2 : 0];
}

static void step_one(work *w, int part)
{
    int64_t count[3], stride[3];
    if (part != EXCHANGE) {
        sorted(w, w->grid->count, count);
        sorted(w, w->grid->stride, stride);
        stencil(w->one[w->now], w->one[!w->now], count, stride);
        w->now = !w->now;
    }
    if (part != COMPUTE) {
        dpar_require(w->comm, dpar_grid_exchange(w->grid, w->one[w->now]), NULL);
    }
}

static void step_many(work *w, int part)
{
    int64_t count[3], stride[3];
    sorted(w, w->many[0]->stride, stride);
    for (int32_t i = 0; i < w->blocks->count && part != EXCHANGE; i++) {
        sorted(w, w->blocks->block[i].count, count);
        stencil((const double *)w->many[w->now]->block[i], (double *)w->many[!w->now]->block[i], count, stride);
    }
    w->now = part == EXCHANGE ? w->now : !w->now;
    if (part != COMPUTE) {
        dpar_require(w->comm, dpar_blocks_exchange(w->blocks, w->many[w->now]), NULL);
    }
}

/* Takes a sample: the slowest rank's seconds of one step. */
static double sample(work *w, int many, int part)
{
    double seconds, slowest;
    const double began = (dpar_require(w->comm, dpar_barrier(w->comm, NULL), NULL), now());
    for (int i = 0; i < COUNT; i++) {
        (many ? step_many : step_one)(w, part);
    }
    seconds = (now() - began) / COUNT;
    dpar_require(w->comm, dpar_all_reduce(w->comm, &seconds, &slowest, 1, DPAR_F64, DPAR_MAX, NULL), NULL);
    return slowest;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Writes the same values into the own cells of both. */
static void fill(work *w)
{
    for (int which = 0; which < 2; which++) {
        const int32_t n = which ? w->blocks->count : 1;
        for (int32_t i = 0; i < n; i++) {
            int64_t first[3], count[3], stride[3];
            double *u = which ? (double *)w->many[0]->block[i] : w->one[0];
            sorted(w, which ? w->blocks->block[i].first : w->grid->first, first);
            sorted(w, which ? w->blocks->block[i].count : w->grid->count, count);
            sorted(w, which ? w->many[0]->stride : w->grid->stride, stride);
            for (int64_t y = 0; y < count[0]; y++) {
                for (int64_t x = 0; x < count[1]; x++) {
                    for (int64_t k = 0; k < count[2]; k++) {
                        const int64_t at = ((first[0] + y) * 7 + (first[1] + x) * 13 + k * 5) % 101;
                        u[y * stride[0] + x * stride[1] + k * stride[2]] = (double)at;
                    }
                }
            }
        }
    }
    w->now = 0;
    dpar_require(w->comm, dpar_grid_exchange(w->grid, w->one[0]), NULL);
    dpar_require(w->comm, dpar_blocks_exchange(w->blocks, w->many[0]), NULL);
}

/* Returns the sum of squares over all own cells of one block per rank, or of many. */
static double square_sum(work *w, int many)
{
    double sum = 0, all;
    for (int32_t i = 0; i < (many ? w->blocks->count : 1); i++) {
        int64_t count[3], stride[3];
        const double *u = many ? (const double *)w->many[w->now]->block[i] : w->one[w->now];
        sorted(w, many ? w->blocks->block[i].count : w->grid->count, count);
        sorted(w, many ? w->many[0]->stride : w->grid->stride, stride);
        for (int64_t y = 0; y < count[0]; y++) {
            for (int64_t x = 0; x < count[1]; x++) {
                for (int64_t k = 0; k < count[2]; k++) {
                    const double v = u[y * stride[0] + x * stride[1] + k * stride[2]];
                    sum += v * v;
                }
            }
        }
    }
    dpar_require(w->comm, dpar_all_reduce(w->comm, &sum, &all, 1, DPAR_F64, DPAR_SUM, NULL), NULL);
    return all;
}

/* Measures ny x nx blocks in all. */
static int measure(dpar_comm *comm, int64_t ny, int64_t nx, int32_t last, int samples)
{
    static double t[2][MOST_SAMPLES];
    const int32_t y = last ? 0 : 1, x = last ? 1 : 2, z = last ? 2 : 0;
    dpar_grid_desc desc = {0};
    dpar_blocks_desc cut = {0};
    work w = {0};
    double one, many;
    dpar_why why;
    w.comm = comm;
    w.last = last;
    desc.dims = cut.dims = 3;
    desc.cells[y] = cut.cells[y] = ny * SIDE;
    desc.cells[x] = cut.cells[x] = nx * SIDE;
    desc.cells[z] = cut.cells[z] = LEVELS;
    cut.block[y] = cut.block[x] = SIDE;
    for (int32_t d = 0; d < 3; d++) {
        const int64_t width = d != z;
        desc.halo_low[d] = desc.halo_high[d] = cut.halo_low[d] = cut.halo_high[d] = width;
        desc.periodic[d] = cut.periodic[d] = (int32_t)width;
    }
    dpar_require(comm, dpar_grid_make(comm, &desc, &w.grid, &why), &why);
    dpar_require(comm, dpar_blocks_make(comm, &cut, &w.blocks, &why), &why);
    for (int i = 0; i < 2; i++) {
        w.one[i] = (double *)dpar_grid_array(w.grid, DPAR_F64, NULL);
        dpar_require(comm, w.one[i] ? DPAR_OK : DPAR_E_MEMORY, NULL);
        dpar_require(comm, dpar_blocks_array_make(w.blocks, DPAR_F64, NULL, &w.many[i], &why), &why);
    }
    fill(&w);
    for (int i = 0; i < 3; i++) {
        step_one(&w, STEP);
    }
    one = square_sum(&w, 0);
    w.now = 0;
    for (int i = 0; i < 3; i++) {
        step_many(&w, STEP);
    }
    many = square_sum(&w, 1);
    if (one < many * (1 - 1e-12) || one > many * (1 + 1e-12)) {
        printf("blocks: results differ: %.17g and %.17g\n", one, many);
        return 1;
    }
    for (int part = EXCHANGE; part <= STEP; part++) {
        for (int i = 0; i < samples; i++) {
            t[0][i] = sample(&w, 0, part);
            t[1][i] = sample(&w, 1, part);
        }
        qsort(t[0], (size_t)samples, sizeof t[0][0], by_size);
        qsort(t[1], (size_t)samples, sizeof t[1][0], by_size);
        if (comm->rank == 0) {
            printf("%2dx%-2d blocks, levels %s, %-8s  one %8.1f us  many %8.1f us  ratio %5.2f  of the fastest %5.2f\n",
                   (int)ny, (int)nx, last ? "last " : "first", part == EXCHANGE ? "exchange" : part == COMPUTE ? "compute" : "step",
                   t[0][samples / 2] * 1e6, t[1][samples / 2] * 1e6, t[1][samples / 2] / t[0][samples / 2],
                   t[1][0] / t[0][0]);
            fflush(stdout);
        }
    }
    dpar_require(comm, dpar_blocks_free(w.blocks), NULL);
    dpar_require(comm, dpar_grid_free(w.grid), NULL);
    return 0;
}

static int all(dpar_comm *comm, void *arg)
{
    const int samples = *(const int *)arg;
    static const int64_t shape[3][2] = {{2, 2}, {4, 4}, {8, 8}};
    for (int32_t last = 0; last < 2; last++) {
        for (int i = 0; i < 3; i++) {
            if (measure(comm, shape[i][0], shape[i][1], last, samples)) {
                return 1;
            }
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 2, samples = argc > 2 ? atoi(argv[2]) : 21;
    dpar_why why;
    samples = samples < 1 || samples > MOST_SAMPLES ? 21 : samples;
    if (dpar_launch(ranks, all, &samples, NULL, &why) != DPAR_OK) {
        printf("blocks: %s\n", why.text);
        return 1;
    }
    return 0;
}
