/* SPDX-License-Identifier: MIT-0 */
/* grid_speed - measures what the short interface dpar_grid costs above the full one,
 * dpar_halo_plan: both exchange the same halos of the same arrays, in turns.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/grid_speed.c -o grid_speed
 *     ./grid_speed [SECONDS [RANKS]]      of each row (default 1), processes of this machine (2)
 *
 * Each rank has n^3 cells of f64, cut in the first dim, periodic in all dims, with a halo of width
 * 1 or 2 that includes edges and corners. The rows exchange one array, two arrays that are swapped
 * after each exchange, and eight arrays in one message per neighbour.
 *
 * A sample is the slowest rank's time of exchanges back to back, divided by their number. Printed
 * are the smallest and the median us of both interfaces, and two ratios, dpar_grid's time over the
 * full interface's: that of the smallest samples, and the median of the ratios of neighbouring
 * samples. 1 means that dpar_grid costs nothing. On one rank the halos are its own cells, which
 * shows the cost of the calls best. Halos are checked before each row.
 *
 * Exit codes: 0 done; 1 a call failed or a halo is wrong; 2 wrong arguments. */
#include "dpar_halo.h"

#include "../helpers/clock.h"

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 61, ARRAYS = 8, ROWS = 3 };

static int ascending(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Sorts SAMPLES samples and returns their median. */
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

/* Exchanges by dpar_grid if `simple`, otherwise by the full interface. */
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

/* Returns the seconds of one of `times` exchanges on the slowest rank. */
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

/* Fills own cells, exchanges, and returns 1 if a halo cell at either side is wrong. */
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
    if (state->row == 1) { /* the next exchange is of the other array of the two */
        exchange(state, simple);
    }
    exchange(state, simple);
    bad += values[-step] != other || values[n * step] != other;
    dpar_barrier(comm, NULL);
    return bad;
}

/* Makes the plan of the full interface for the first n arrays of the grid; NULL on failure. */
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

/* Measures and prints the three rows of one block size and halo width. */
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
            fprintf(stderr, "grid_speed: rank %d: row '%s': the halo plan cannot be made: %s\n",
                    comm->rank, name[state.row], comm->why.text);
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
    double seconds = 1.0;
    int ranks = 2;
    dpar_why why;
    if (argc > 1) {
        seconds = atof(argv[1]);
    }
    if (argc > 2) {
        ranks = atoi(argv[2]);
    }
    if (argc > 3 || !(seconds > 0.0) || ranks < 1) {
        fprintf(
            stderr,
            "grid_speed: %g seconds, %d ranks, %d arguments; usage: %s [SECONDS [RANKS]], seconds "
            "above 0 and at least 1 rank\n",
            seconds, ranks, argc - 1, argv[0]);
        return 2;
    }
    if (dpar_launch(ranks, each, &seconds, NULL, &why) < 0) {
        fprintf(stderr, "grid_speed: %d ranks did not finish: %s\n", ranks, why.text);
        return 1;
    }
    return 0;
}
