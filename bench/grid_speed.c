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
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Ascending; the median. */
static double median(double *sample)
{
    qsort(sample, SAMPLES, sizeof *sample, ascending);
    return sample[SAMPLES / 2];
}

typedef struct turn {
    dpar_grid *g;
    dpar_halo_plan *x; /* of the full API, over the same arrays */
    void *list[ARRAYS];
    int row;
} turn;

static void exchange(turn *t, int simple)
{
    if (t->row == 1) {
        void *swap = t->list[0];
        t->list[0] = t->list[1];
        t->list[1] = swap;
        if (!simple) {
            dpar_halo_plan_bind(t->x, 0, t->list[0], NULL);
        }
    }
    if (!simple) {
        dpar_halo_plan_exchange(t->x);
    } else if (t->row < 2) {
        dpar_grid_exchange(t->g, t->list[0]);
    } else {
        dpar_grid_exchange_many(t->g, t->list, ARRAYS, 0);
    }
}

static double sample_of(dpar_comm *c, turn *t, int simple, int times)
{
    double took;
    int i;
    dpar_barrier(c, NULL);
    took = now();
    for (i = 0; i < times; i++) {
        exchange(t, simple);
    }
    return dpar_max(c, (now() - took) / times);
}

/* Fills own cells, and looks at a halo cell of each side after an exchange. */
static int wrong(dpar_comm *c, turn *t, int simple)
{
    const int64_t step = t->g->stride[0], n = t->g->count[0];
    const double own = 7.0 + c->rank, other = 7.0 + (c->rank + 1) % c->size;
    double *u;
    int64_t i;
    int bad = 0;
    exchange(t, simple);
    u = (double *)t->list[0];
    for (i = 0; i < n; i++) {
        u[i * step] = own;
    }
    u[-step] = u[n * step] = 0;
    dpar_barrier(c, NULL);
    if (t->row == 1) { /* the next exchange is of the other one */
        exchange(t, simple);
    }
    exchange(t, simple);
    bad += u[-step] != other || u[n * step] != other;
    dpar_barrier(c, NULL);
    return bad;
}

static dpar_halo_plan *full_api(dpar_comm *c, turn *t, int n)
{
    dpar_halo_field f[ARRAYS] = {{0}};
    dpar_halo_plan_desc o = {0};
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int i, d;
    for (i = 0; i < n; i++) {
        f[i].halo = dpar_grid_halo(t->g);
        f[i].type = DPAR_F64;
        f[i].data = t->list[i];
        for (d = 0; d < 3; d++) {
            f[i].stride[d] = t->g->stride[d];
        }
    }
    o.field = f;
    o.field_count = n;
    if (dpar_halo_plan_make(c, &o, &x, &why) < 0) {
        dpar_fail(c, &why);
    }
    return x;
}

static int rows(dpar_comm *c, int cells, int width, double seconds)
{
    static const char *const name[ROWS] = {"one", "swapped", "eight"};
    static double sample[2][SAMPLES], ratio[SAMPLES];
    dpar_grid_desc d = {0};
    turn t = {0};
    dpar_why why;
    int i, k, times, bad = 0;
    d.dims = 3;
    d.cells[0] = (int64_t)cells * c->size;
    d.cells[1] = d.cells[2] = cells;
    d.halo = width;
    d.parts[0] = c->size;
    d.periodic[0] = d.periodic[1] = d.periodic[2] = 1;
    if (dpar_grid_make(c, &d, &t.g, &why) < 0) {
        return dpar_fail(c, &why);
    }
    for (i = 0; i < ARRAYS; i++) {
        t.list[i] = dpar_grid_array(t.g, DPAR_F64, NULL);
        if (!t.list[i]) {
            return dpar_fail(c, NULL);
        }
    }
    for (t.row = 0; t.row < ROWS; t.row++) {
        t.x = full_api(c, &t, t.row < 2 ? 1 : ARRAYS);
        if (!t.x) {
            fprintf(stderr, "grid_speed: rank %d: no halo plan for the row '%s': %s\n", c->rank,
                    name[t.row], c->why.text);
            return 1;
        }
        bad += wrong(c, &t, 0) + wrong(c, &t, 1);
        times = 1 + (int)(seconds / (2 * SAMPLES) / (sample_of(c, &t, 0, 50) + 1e-9));
        for (i = 0; i < SAMPLES; i++) {
            for (k = 0; k < 2; k++) { /* the first of a pair in turns */
                const int simple = (i + k) % 2;
                sample[simple][i] = sample_of(c, &t, simple, times);
            }
            ratio[i] = sample[1][i] / sample[0][i];
        }
        if (c->rank == 0) {
            const double full = median(sample[0]), simple = median(sample[1]);
            printf("%3d %5d  %-8s %9.3f %9.3f  %9.3f %9.3f  %6.3f %6.3f\n", cells, width,
                   name[t.row], 1e6 * sample[0][0], 1e6 * full, 1e6 * sample[1][0], 1e6 * simple,
                   sample[1][0] / sample[0][0], median(ratio));
            fflush(stdout);
        }
        dpar_halo_plan_free(t.x);
    }
    return bad != 0 || dpar_grid_free(t.g) < 0;
}

static int each(dpar_comm *c, void *arg)
{
    const double seconds = *(const double *)arg;
    int cells, width, bad = 0;
    if (c->rank == 0) {
        puts("  n width  arrays    full: least, median us   grid: least, median us   ratios");
    }
    for (cells = 16; cells <= 64 && !bad; cells *= 2) {
        for (width = 1; width < 3 && !bad; width++) {
            bad = rows(c, cells, width, seconds);
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
