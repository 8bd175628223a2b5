/* SPDX-License-Identifier: MIT-0 */
/* dpar_grid beside the full API: the same arrays, the same exchanges, in turns.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/grid_speed.c -o grid_speed
 *     ./grid_speed [seconds a row] [ranks]            1, and 2 processes of this machine: 2
 *
 * f64, box, width 1 or 2, periodic in all dims, n^3 cells a rank, cut in the first dim. Rows: one
 * array; two that are swapped after each exchange; eight in one message a peer. A sample is the
 * slowest rank's time of exchanges back to back, divided by their number. Least and median us of
 * either, the ratio of the least, and the median of the ratios sample by sample. One rank's halos
 * are its own cells: what the calls cost beside them shows best there. The halos of the last
 * exchange are checked. */
#include "dpar_halo.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SAMPLES = 61, ARRAYS = 8, ROWS = 3 };

static double now(void)
{
    struct timespec stamp;
    clock_gettime(CLOCK_MONOTONIC, &stamp);
    return (double)stamp.tv_sec + 1e-9 * (double)stamp.tv_nsec;
}

static int ascending(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return x < y ? -1 : x > y;
}

/* Ascending; the median. */
static double median(double *sample)
{
    qsort(sample, SAMPLES, sizeof *sample, ascending);
    return sample[SAMPLES / 2];
}

typedef struct turn {
    dpar_grid *grid;
    dpar_halo_plan *plan; /* of the full API, over the same arrays */
    void *list[ARRAYS];
    int row;
} turn;

static void exchange(turn *state, int simple)
{
    if (state->row == 1) {
        void *swap = state->list[0];
        state->list[0] = state->list[1];
        state->list[1] = swap;
        if (!simple) {
            dpar_halo_plan_bind(state->plan, 0, state->list[0], NULL);
        }
    }
    if (!simple) {
        dpar_halo_plan_exchange(state->plan);
    } else if (state->row < 2) {
        dpar_grid_exchange(state->grid, state->list[0]);
    } else {
        dpar_grid_exchange_many(state->grid, state->list, ARRAYS, 0);
    }
}

static double sample_of(dpar_comm *comm, turn *state, int simple, int times)
{
    double took;
    int i;
    dpar_barrier(comm, NULL);
    took = now();
    for (i = 0; i < times; i++) {
        exchange(state, simple);
    }
    return dpar_max(comm, (now() - took) / times);
}

/* Fills own cells, and looks at a halo cell of each side after an exchange. */
static int wrong(dpar_comm *comm, turn *state, int simple)
{
    const int64_t step = state->grid->stride[0], n = state->grid->count[0];
    const double own = 7.0 + comm->rank, other = 7.0 + (comm->rank + 1) % comm->size;
    double *values;
    int64_t i;
    int bad = 0;
    exchange(state, simple);
    values = (double *)state->list[0];
    for (i = 0; i < n; i++) {
        values[i * step] = own;
    }
    values[-step] = values[n * step] = 0;
    dpar_barrier(comm, NULL);
    if (state->row == 1) { /* the next exchange is of the other one */
        exchange(state, simple);
    }
    exchange(state, simple);
    bad += values[-step] != other || values[n * step] != other;
    dpar_barrier(comm, NULL);
    return bad;
}

static dpar_halo_plan *full_api(dpar_comm *comm, turn *state, int n)
{
    dpar_halo_field fields[ARRAYS] = {{0}};
    dpar_halo_plan_desc desc = {0};
    dpar_halo_plan *plan = NULL;
    dpar_why why;
    int i, d;
    for (i = 0; i < n; i++) {
        fields[i].halo = dpar_grid_halo(state->grid);
        fields[i].type = DPAR_F64;
        fields[i].data = state->list[i];
        for (d = 0; d < 3; d++) {
            fields[i].stride[d] = state->grid->stride[d];
        }
    }
    desc.field = fields;
    desc.field_count = n;
    if (dpar_halo_plan_make(comm, &desc, &plan, &why) < 0) {
        dpar_fail(comm, &why);
    }
    return plan;
}

static int rows(dpar_comm *comm, int cells, int width, double seconds)
{
    static const char *const name[ROWS] = {"one", "swapped", "eight"};
    static double sample[2][SAMPLES], ratio[SAMPLES];
    dpar_grid_desc desc = {0};
    turn state = {0};
    dpar_why why;
    int i, k, times, bad = 0;
    desc.dims = 3;
    desc.cells[0] = (int64_t)cells * comm->size;
    desc.cells[1] = desc.cells[2] = cells;
    desc.halo = width;
    desc.parts[0] = comm->size;
    desc.periodic[0] = desc.periodic[1] = desc.periodic[2] = 1;
    if (dpar_grid_make(comm, &desc, &state.grid, &why) < 0) {
        return dpar_fail(comm, &why);
    }
    for (i = 0; i < ARRAYS; i++) {
        state.list[i] = dpar_grid_array(state.grid, DPAR_F64, NULL);
        if (!state.list[i]) {
            return dpar_fail(comm, NULL);
        }
    }
    for (state.row = 0; state.row < ROWS; state.row++) {
        state.plan = full_api(comm, &state, state.row < 2 ? 1 : ARRAYS);
        if (!state.plan) {
            fprintf(stderr, "grid_speed: rank %d: no halo plan for the row '%s': %s\n", comm->rank,
                    name[state.row], comm->why.text);
            return 1;
        }
        bad += wrong(comm, &state, 0) + wrong(comm, &state, 1);
        times = 1 + (int)(seconds / (2 * SAMPLES) / (sample_of(comm, &state, 0, 50) + 1e-9));
        for (i = 0; i < SAMPLES; i++) {
            for (k = 0; k < 2; k++) { /* the first of a pair in turns */
                const int simple = (i + k) % 2;
                sample[simple][i] = sample_of(comm, &state, simple, times);
            }
            ratio[i] = sample[1][i] / sample[0][i];
        }
        if (comm->rank == 0) {
            const double full = median(sample[0]), simple = median(sample[1]);
            printf("%3d %5d  %-8s %9.3f %9.3f  %9.3f %9.3f  %6.3f %6.3f\n", cells, width,
                   name[state.row], 1e6 * sample[0][0], 1e6 * full, 1e6 * sample[1][0],
                   1e6 * simple, sample[1][0] / sample[0][0], median(ratio));
            fflush(stdout);
        }
        dpar_halo_plan_free(state.plan);
    }
    return bad != 0 || dpar_grid_free(state.grid) < 0;
}

static int each(dpar_comm *comm, void *arg)
{
    const double seconds = *(const double *)arg;
    int cells, width, bad = 0;
    if (comm->rank == 0) {
        puts("  n width  arrays    full: least, median us   grid: least, median us   ratios");
    }
    for (cells = 16; cells <= 64 && !bad; cells *= 2) {
        for (width = 1; width < 3 && !bad; width++) {
            bad = rows(comm, cells, width, seconds);
        }
    }
    return bad;
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? atof(argv[1]) : 1.0;
    const int ranks = argc > 2 ? atoi(argv[2]) : 2;
    dpar_why why;
    if (dpar_launch(ranks, each, &seconds, NULL, &why) < 0) {
        fprintf(stderr, "grid_speed: %d ranks: %s\n", ranks, why.text);
        return 1;
    }
    return 0;
}
