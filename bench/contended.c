/* SPDX-License-Identifier: MIT-0 */
/* contended - measures ranks that share their cores with each other or with another program. It
 * times an exchange of halos, two all-reduces and a step of training, done by dpar or by MPI alone.
 * bench/contended.sh builds it with each MPI library, runs both ways in turns beside busy processes
 * and prints dpar's time over MPI's, where less than 1 means that dpar is faster.
 *
 *     mpicc -O2 -DDPAR_IMPLEMENTATION -I. bench/contended.c -o contended -lm
 *     mpirun --bind-to none -np 2 ./contended dpar        or: mpi
 *
 * Prints one line for each operation: its name, and the median and the mean of its us on rank 0.
 * The mean includes the slices of time that the scheduler takes from a rank; the median does not.
 *
 * Exit codes: 0 done; 1 no memory, or dpar refused the ranks; 2 wrong arguments. */
#include "dpar_halo.h"
#include "dpar_mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CELLS = 480, HALO = 2, MOST = 4000, LARGE = 1 << 14, GRADIENTS = 1 << 18, WORK = 96 };

typedef struct bench {
    dpar_comm *world;
    dpar_grid *grid;
    void *array;
    double *field;
    int64_t own, stride;
    float *small, *large, *gradients, *sum;
    double *sent, *received;
    int by_mpi;
} bench;

/* The exchange of dpar_grid written by hand. The ranks are a row along x, which is the contiguous
 * dim, so that the halo of a side is HALO cells of each line. */
static void exchange_by_mpi(bench *state)
{
    const int left = state->world->rank > 0 ? state->world->rank - 1 : MPI_PROC_NULL;
    const int right =
        state->world->rank + 1 < state->world->size ? state->world->rank + 1 : MPI_PROC_NULL;
    const int to[2] = {left, right}, from[2] = {right, left};
    const int64_t first[2] = {0, state->own - HALO}, ghost[2] = {state->own, -HALO};
    int side;
    for (side = 0; side < 2; side++) {
        int64_t y;
        for (y = 0; y < CELLS; y++) {
            memcpy(state->sent + y * HALO, state->field + y * state->stride + first[side],
                   HALO * sizeof(double));
        }
        MPI_Sendrecv(state->sent, CELLS * HALO, MPI_DOUBLE, to[side], 0, state->received,
                     CELLS * HALO, MPI_DOUBLE, from[side], 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (y = 0; y < CELLS && from[side] != MPI_PROC_NULL; y++) {
            memcpy(state->field + y * state->stride + ghost[side], state->received + y * HALO,
                   HALO * sizeof(double));
        }
    }
}

static void exchange(bench *state)
{
    if (state->by_mpi) {
        exchange_by_mpi(state);
    } else {
        dpar_grid_exchange(state->grid, state->array);
    }
}

static void reduce(bench *state, float *in, float *out, int count)
{
    if (state->by_mpi) {
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
        dpar_all_reduce(state->world, in, out, count, DPAR_F32, DPAR_SUM, NULL);
    }
}

static void reduce_small(bench *state)
{
    reduce(state, state->small, state->sum, 1);
}

static void reduce_large(bench *state)
{
    reduce(state, state->large, state->sum, LARGE);
}

/* A step of training: about a millisecond of matrix products, then the sums of 1 MiB of gradients
 * in four buckets. */
static void train(bench *state)
{
    float *matrix = state->large, *product = state->gradients;
    int i, j, k, bucket;
    for (i = 0; i < WORK; i++) {
        for (k = 0; k < WORK; k++) {
            for (j = 0; j < WORK; j++) {
                product[i * WORK + j] += matrix[i * WORK + k] * matrix[k * WORK + j];
            }
        }
    }
    for (bucket = 0; bucket < 4; bucket++) {
        reduce(state, state->gradients + bucket * GRADIENTS / 4,
               state->sum + bucket * GRADIENTS / 4, GRADIENTS / 4);
    }
}

static int ascending(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Times an operation and prints its line. A tenth as many calls that do not count come before. */
static void row(bench *state, const char *name, void (*operation)(bench *), int count)
{
    static double time[MOST];
    double mean = 0;
    int i;
    for (i = 0; i < count / 10 + 1; i++) {
        operation(state);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (i = 0; i < count; i++) {
        const double began = MPI_Wtime();
        operation(state);
        time[i] = MPI_Wtime() - began;
        mean += time[i] / count;
    }
    qsort(time, (size_t)count, sizeof time[0], ascending);
    if (state->world->rank == 0) {
        printf("%s %.2f %.2f\n", name, time[count / 2] * 1e6, mean * 1e6);
        fflush(stdout);
    }
}

static float *zeros(size_t count)
{
    float *memory = (float *)calloc(count, sizeof(float));
    if (memory == NULL) {
        fprintf(stderr, "contended: no memory for an array of %zu bytes\n", count * sizeof(float));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

int main(int argc, char **argv)
{
    dpar_grid_desc desc;
    dpar_why why;
    bench state;
    int failed;
    if (argc != 2 || (strcmp(argv[1], "mpi") != 0 && strcmp(argv[1], "dpar") != 0)) {
        fprintf(stderr, "contended: the argument has to be 'dpar' or 'mpi', not '%s'\n",
                argc > 1 ? argv[1] : "");
        return 2;
    }
    memset(&state, 0, sizeof state);
    MPI_Init(&argc, &argv);
    state.by_mpi = strcmp(argv[1], "mpi") == 0;
    memset(&desc, 0, sizeof desc);
    desc.dims = 2;
    desc.cells[0] = CELLS;
    desc.cells[1] = CELLS;
    desc.parts[0] = 1;
    desc.halo = HALO;
    failed = dpar_mpi_make(MPI_COMM_WORLD, NULL, &state.world, &why) < 0 ||
             dpar_grid_make(state.world, &desc, &state.grid, &why) < 0;
    if (failed) {
        fprintf(stderr, "contended: the grid of %d x %d cells cannot be made: %s\n", (int)CELLS,
                (int)CELLS, why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    state.own = state.grid->count[1];
    state.stride = state.own + 2 * HALO;
    state.array = dpar_grid_array(state.grid, DPAR_F64, NULL);
    if (state.array == NULL) {
        fprintf(stderr, "contended: no memory for an array of the grid: %s\n",
                state.world->why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    state.field = (double *)(void *)zeros(2 * (size_t)((CELLS + 2 * HALO) * state.stride)) +
                  HALO * state.stride + HALO;
    state.small = zeros(1);
    state.large = zeros(LARGE);
    state.gradients = zeros(GRADIENTS);
    state.sum = zeros(GRADIENTS);
    state.sent = (double *)(void *)zeros(2 * CELLS * HALO);
    state.received = (double *)(void *)zeros(2 * CELLS * HALO);
    row(&state, "exchange", exchange, 4000);
    row(&state, "all_reduce_4B", reduce_small, 4000);
    row(&state, "all_reduce_64KiB", reduce_large, 2000);
    row(&state, "train_step", train, 200);
    dpar_grid_free(state.grid);
    dpar_comm_free(state.world);
    MPI_Finalize();
    return 0;
}
