/* SPDX-License-Identifier: MIT-0 */
/* cold_halo - measures halo exchanges as they are in a code, where each follows computation that
 * has evicted the plan, the arrays and the code of the exchange from the caches, beside the same
 * exchange packed by hand over MPI in the same run.
 *
 *   mpicc -O2 -DDPAR_IMPLEMENTATION -I. bench/cold_halo.c -o build/cold_halo -lm
 *   mpirun -np 2 build/cold_halo [CELLS [FIELDS [DEPTH [MB [SAMPLES [BARRIER [SETS]]]]]]]
 *                                 480    1       1      8   400      0        6
 *
 * The grid of CELLS x CELLS doubles is cut along the contiguous dim into as many strips as there
 * are ranks, so that a halo is a column, as in CloverLeaf on 2 ranks. Arrays are from malloc. SETS
 * other lists of fields have been exchanged before, as in a code with several masks. Before each
 * sample a rank reads and writes MB megabytes of other memory (0: none), and all ranks meet at a
 * barrier in shared memory that runs no code of MPI or dpar. If BARRIER is 1, they call MPI_Barrier
 * before, which brings MPI's code and data back into the caches. A sample is the time of the
 * slowest rank. By hand and dpar take turns. Prints the median and the lower quartile of both in
 * microseconds, their ratio, and the microseconds of the first exchange of the fields, which
 * includes planning, and of the first one of another set. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dpar_halo.h"
#include "dpar_mpi.h"
#include "../helpers/clock.h"

enum { MOST_FIELDS = 16, EDGE = 2, MOST_SAMPLES = 5000 };

static struct {
    int rank, ranks, rows, columns, cells, fields, depth;
    int64_t stride;
    double *field[MOST_FIELDS];
    double *out[2], *in[2];
} block;

/* A barrier of ranks that share memory: `arrived` counts arrivals. */
static struct {
    long *arrived, turns;
    int by_mpi; /* 1 runs MPI_Barrier before, which warms the caches for MPI */
} meeting;

static void meet(void)
{
    if (meeting.by_mpi) {
        MPI_Barrier(MPI_COMM_WORLD);
    }
    meeting.turns += block.ranks;
    __atomic_add_fetch(meeting.arrived, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(meeting.arrived, __ATOMIC_ACQUIRE) < meeting.turns) {
    }
}

/* Copies columns of all fields between the arrays and a buffer. first: the first column, from the
 * first own one. */
static void columns(double *buffer, int first, int packs)
{
    for (int f = 0; f < block.fields; f++) {
        double *field = block.field[f] + first;
        for (int y = 0; y < block.rows; y++) {
            for (int x = 0; x < block.depth; x++) {
                if (packs) {
                    *buffer++ = field[y * block.stride + x];
                } else {
                    field[y * block.stride + x] = *buffer++;
                }
            }
        }
    }
}

static void by_hand(void)
{
    const int count = block.rows * block.depth * block.fields;
    const int peer[2] = {block.rank - 1, block.rank + 1};
    MPI_Request requests[4];
    MPI_Status statuses[4];
    int n = 0;
    for (int side = 0; side < 2; side++) {
        if (peer[side] < 0 || peer[side] >= block.ranks) {
            continue;
        }
        columns(block.out[side], side == 0 ? 0 : block.columns - block.depth, 1);
        MPI_Isend(block.out[side], count, MPI_DOUBLE, peer[side], side, MPI_COMM_WORLD,
                  &requests[n++]);
        MPI_Irecv(block.in[side], count, MPI_DOUBLE, peer[side], 1 - side, MPI_COMM_WORLD,
                  &requests[n++]);
    }
    MPI_Waitall(n, requests, statuses);
    for (int side = 0; side < 2; side++) {
        if (peer[side] >= 0 && peer[side] < block.ranks) {
            columns(block.in[side], side == 0 ? -block.depth : block.columns, 0);
        }
    }
}

/* Fills own cells with numbers that the peers can compute, and halos with -1. */
static void fill(int turn)
{
    const int first = block.rank * block.columns;
    for (int f = 0; f < MOST_FIELDS; f++) {
        for (int y = 0; y < block.rows; y++) {
            for (int x = -EDGE; x < block.columns + EDGE; x++) {
                const int own = x >= 0 && x < block.columns;
                block.field[f][y * block.stride + x] =
                    own ? turn + f + 0.001 * y + 1000.0 * (first + x) : -1.0;
            }
        }
    }
}

/* Returns the number of wrong cells. */
static int wrong(int turn)
{
    const int first = block.rank * block.columns;
    int count = 0;
    for (int f = 0; f < block.fields; f++) {
        for (int y = 0; y < block.rows; y++) {
            for (int x = -block.depth; x < block.columns + block.depth; x++) {
                const int there = first + x >= 0 && first + x < block.cells;
                const double expected = turn + f + 0.001 * y + 1000.0 * (first + x);
                count += block.field[f][y * block.stride + x] != (there ? expected : -1.0);
            }
        }
    }
    return count;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void sweep(double *memory, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        memory[i] = 0.5 * memory[i] + 1.0;
    }
}

int main(int argc, char **argv)
{
    static double mine[2][MOST_SAMPLES], slowest[2][MOST_SAMPLES];
    int words[7] = {480, 1, 1, 8, 400, 0, 6};
    double first[2];
    dpar_grid_desc desc;
    dpar_grid_field layout;
    dpar_comm *world;
    dpar_grid *grid;
    MPI_Win window;
    double *memory;
    int64_t sweeps;
    int bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &block.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &block.ranks);
    for (int i = 1; i < argc && i <= 7; i++) {
        words[i - 1] = atoi(argv[i]);
    }
    meeting.by_mpi = words[5];
    block.cells = words[0];
    block.fields = words[1];
    block.depth = words[2];
    if (block.cells % block.ranks != 0 || block.cells / block.ranks < EDGE || block.fields < 1 ||
        block.fields > MOST_FIELDS || block.depth < 1 || block.depth > EDGE || words[3] < 0 ||
        words[6] < 0 || words[6] >= MOST_FIELDS || words[4] < 1 || words[4] > MOST_SAMPLES) {
        fprintf(stderr,
                "cold_halo: CELLS is a multiple of the ranks, FIELDS 1 to %d, DEPTH 1 to %d, "
                "SAMPLES 1 to %d\n",
                MOST_FIELDS, EDGE, MOST_SAMPLES);
        return 2;
    }
    block.rows = block.cells;
    block.columns = block.cells / block.ranks;
    block.stride = block.columns + 2 * EDGE + 1;
    for (int side = 0; side < 2; side++) {
        const size_t bytes = sizeof(double) * (size_t)(block.rows * block.depth * block.fields);
        block.out[side] = (double *)malloc(bytes);
        block.in[side] = (double *)malloc(bytes);
    }
    for (int f = 0; f < MOST_FIELDS; f++) {
        block.field[f] =
            (double *)malloc(sizeof(double) * (size_t)(block.rows * block.stride)) + EDGE;
    }
    sweeps = (int64_t)words[3] << 17;
    memory = (double *)calloc((size_t)sweeps + 1, sizeof *memory);
    {
        void *at;
        MPI_Aint size;
        int unit;
        MPI_Win_allocate_shared(block.rank == 0 ? 64 : 0, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &at,
                                &window);
        MPI_Win_shared_query(window, 0, &size, &unit, &at);
        meeting.arrived = (long *)at;
        if (block.rank == 0) {
            *meeting.arrived = 0;
        }
        MPI_Barrier(MPI_COMM_WORLD);
    }
    dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, NULL), NULL);
    memset(&desc, 0, sizeof desc);
    memset(&layout, 0, sizeof layout);
    desc.dims = 2;
    desc.cells[0] = block.rows;
    desc.cells[1] = block.cells;
    desc.parts[0] = 1;
    desc.parts[1] = block.ranks;
    desc.halo = EDGE;
    layout.stride[0] = block.stride;
    layout.stride[1] = 1;
    dpar_require(world, dpar_grid_make(world, &desc, &grid, NULL), NULL);
    for (int f = 0; f < MOST_FIELDS; f++) {
        dpar_require(world, dpar_grid_attach(grid, block.field[f], DPAR_F64, &layout, NULL), NULL);
    }
    fill(0); /* otherwise the first exchange would measure page faults */
    for (int set = 0; set < words[6]; set++) {
        dpar_require(
            world, dpar_grid_exchange_many(grid, (void *const *)block.field, set + 2, block.depth),
            NULL);
    }
    for (int set = 0; set < 2; set++) { /* the fields to the depth, and to another depth */
        double began;
        meet();
        began = now();
        dpar_require(world,
                     dpar_grid_exchange_many(grid, (void *const *)block.field, block.fields,
                                             set == 0 ? block.depth : 3 - block.depth),
                     NULL);
        first[set] = now() - began;
    }
    for (int i = 0; i < words[4]; i++) {
        for (int turn = 0; turn < 2; turn++) {
            double began;
            if (i % 50 == 0) {
                fill(2 * i + turn);
            }
            sweep(memory, sweeps);
            meet();
            began = now();
            if (turn == 0) {
                by_hand();
            } else {
                dpar_require(world,
                             dpar_grid_exchange_many(grid, (void *const *)block.field, block.fields,
                                                     block.depth),
                             NULL);
            }
            mine[turn][i] = now() - began;
            bad += i % 50 == 0 ? wrong(2 * i + turn) : 0;
            meet();
        }
    }
    for (int turn = 0; turn < 2; turn++) {
        MPI_Reduce(mine[turn], slowest[turn], words[4], MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        qsort(slowest[turn], (size_t)words[4], sizeof(double), ascending);
    }
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (block.rank == 0) {
        const double *hand = slowest[0], *dpar = slowest[1];
        const int half = words[4] / 2, quarter = words[4] / 4;
        printf("%d x %d, %d fields, depth %d, after %d MB: by hand %.1f (%.1f) us, dpar %.1f "
               "(%.1f) us, "
               "ratio %.2f (%.2f); first exchange %.0f us, of a second set %.0f us; %d wrong\n",
               block.cells, block.cells, block.fields, block.depth, words[3], 1e6 * hand[half],
               1e6 * hand[quarter], 1e6 * dpar[half], 1e6 * dpar[quarter], dpar[half] / hand[half],
               dpar[quarter] / hand[quarter], 1e6 * first[0], 1e6 * first[1], bad);
    }
    dpar_grid_free(grid);
    dpar_comm_free(world);
    MPI_Win_free(&window);
    MPI_Finalize();
    return bad != 0;
}
