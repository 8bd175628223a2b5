/* SPDX-License-Identifier: MIT-0 */
/* deep_halo - measures the time of a step if ranks exchange only every k-th step, with a halo k
 * cells wide (dpar_grid_desc.steps), and compares it with dpar_halo_cost_choose_steps.
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. bench/deep_halo.c -o deep_halo && ./deep_halo
 *     mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. bench/deep_halo.c -o deep_halo_mpi
 *     mpiexec -n 2 ./deep_halo_mpi [ranks per node]
 *
 * Each rank has n x n cells of a 5-point stencil, or n x n x n of a 7-point stencil, in f64. The
 * ranks are cut along dim 0, which is periodic. A line for each k from 1 to 8: the step in us, the
 * least of several rounds in which all k take turns, and the predicted one. The prediction gets the
 * time of a cell from sub-steps without exchanges, and two constants of the machine, latency and
 * bandwidth, from exchanges of 1 and of 8 cells. The last line of a case says which k is the
 * fastest, which one was predicted, and the ratio of the times of both: 1 is the best choice.
 *
 * Exit codes: 0 done; 1 an operation failed or the bits differ from those of k = 1. */
#define _GNU_SOURCE
#include "dpar_cost.h"
#include "dpar_halo.h"
#ifdef USE_MPI
#include "dpar_mpi.h"
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

enum { MOST = 8, ROUNDS = 7 };

typedef struct deep {
    dpar_grid *grid;
    double *u, *v;
    double step_s, exchange_s; /* the least of all rounds, of the slowest rank */
} deep;

typedef struct job {
    int dims;
    int64_t n;
    int steps; /* of a round: a multiple of all k */
} job;

static void compute(const dpar_grid *grid, const double *restrict u, double *restrict v,
                    const dpar_box *box)
{
    const int64_t *s = grid->stride;
    const int flat = grid->dims == 2;
    const int64_t below = flat ? 0 : box->lo[1], above = flat ? 1 : box->hi[1];
    const int last = grid->dims - 1;
    for (int64_t z = box->lo[0]; z < box->hi[0]; z++) {
        for (int64_t y = below; y < above; y++) {
            const double *from = u + z * s[0] + (flat ? 0 : y * s[1]);
            double *to = v + z * s[0] + (flat ? 0 : y * s[1]);
            if (flat) {
                for (int64_t x = box->lo[last]; x < box->hi[last]; x++) {
                    to[x] = 0.5 * from[x] +
                            0.125 * (from[x - 1] + from[x + 1] + from[x - s[0]] + from[x + s[0]]);
                }
                continue;
            }
            for (int64_t x = box->lo[last]; x < box->hi[last]; x++) {
                to[x] = 0.4 * from[x] + 0.1 * (from[x - 1] + from[x + 1] + from[x - s[1]] +
                                               from[x + s[1]] + from[x - s[0]] + from[x + s[0]]);
            }
        }
    }
}

static int fail(dpar_comm *comm)
{
    return dpar_fail(comm, NULL);
}

/* Makes the grid and the arrays for k steps between exchanges. Values depend on the global cell. */
static int make(dpar_comm *comm, const job *given, int k, deep *made)
{
    dpar_grid_desc desc;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    memset(made, 0, sizeof *made);
    desc.dims = given->dims;
    for (int d = 0; d < given->dims; d++) {
        desc.cells[d] = given->n * (d == 0 ? comm->size : 1);
        desc.parts[d] = d == 0 ? comm->size : 1;
    }
    desc.periodic[0] = 1;
    desc.halo = 1; /* walls need no more */
    desc.halo_low[0] = desc.halo_high[0] = k;
    desc.steps = k;
    desc.star = k == 1;
    if (dpar_grid_make(comm, &desc, &made->grid, &why) < 0) {
        return dpar_fail(comm, &why);
    }
    made->u = (double *)dpar_grid_array(made->grid, DPAR_F64, NULL);
    made->v = (double *)dpar_grid_array(made->grid, DPAR_F64, NULL);
    if (made->u == NULL || made->v == NULL) {
        return fail(comm);
    }
    for (int64_t z = 0; z < made->grid->count[0]; z++) {
        for (int64_t y = 0; y < (given->dims == 2 ? 1 : given->n); y++) {
            for (int64_t x = 0; x < given->n; x++) {
                const int64_t row = given->dims == 2 ? 0 : y * made->grid->stride[1];
                made->u[z * made->grid->stride[0] + row + x] =
                    sin((double)((made->grid->first[0] + z) * 7 + y * 3 + x));
            }
        }
    }
    made->step_s = made->exchange_s = 1e9;
    return 0;
}

static int steps(deep *code, int count)
{
    dpar_box box;
    while (count > 0) {
        if (dpar_grid_exchange(code->grid, code->u) < 0) {
            return fail(code->grid->comm);
        }
        for (int32_t j = 0; dpar_grid_valid(code->grid, j, &box); j++) {
            double *swap = code->u;
            compute(code->grid, code->u, code->v, &box);
            code->u = code->v;
            code->v = swap;
            count--;
        }
    }
    return 0;
}

/* Writes the rows that neighbours read, as a step does, so that they are not in the neighbours'
 * caches. */
static void write_rows(deep *code)
{
    const int64_t rows = code->grid->count[0];
    dpar_box box;
    memset(&box, 0, sizeof box);
    for (int d = 0; d < code->grid->dims; d++) {
        box.hi[d] = code->grid->count[d];
    }
    box.hi[0] = MOST;
    compute(code->grid, code->v, code->u, &box);
    box.lo[0] = rows - MOST;
    box.hi[0] = rows;
    compute(code->grid, code->v, code->u, &box);
}

/* Measures an exchange after the rows that it sends were written. */
static int measure_exchange(deep *code)
{
    enum { TIMES = 100 };
    double took[2];
    for (int with = 0; with < 2; with++) {
        double began;
        if (dpar_barrier(code->grid->comm, NULL) < 0) {
            return 1;
        }
        began = now();
        for (int i = 0; i < TIMES; i++) {
            write_rows(code);
            if (with && dpar_grid_exchange(code->grid, code->u) < 0) {
                return fail(code->grid->comm);
            }
        }
        took[with] = dpar_max(code->grid->comm, now() - began) / TIMES;
    }
    if (took[1] - took[0] < code->exchange_s) {
        code->exchange_s = took[1] - took[0];
    }
    return 0;
}

/* Runs one round with k steps between exchanges. */
static int one_round(const job *given, deep *code)
{
    dpar_comm *comm = code->grid->comm;
    double began, took;
    if (dpar_grid_exchange(code->grid, code->u) < 0 || dpar_barrier(comm, NULL) < 0) {
        return 1;
    }
    began = now();
    if (steps(code, given->steps) != 0) {
        return 1;
    }
    took = dpar_max(comm, now() - began) / given->steps;
    code->step_s = took < code->step_s ? took : code->step_s;
    return 0;
}

/* Returns the seconds per cell and step of the rank's own block, without exchanges. */
static double measure_cell(const job *given, deep *code)
{
    double least = 1e9, cells = 1;
    dpar_box box;
    memset(&box, 0, sizeof box);
    for (int d = 0; d < given->dims; d++) {
        box.hi[d] = given->n;
        cells *= (double)given->n;
    }
    for (int i = 0; i < ROUNDS; i++) {
        const double began = now();
        double took;
        for (int k = 0; k < given->steps; k++) {
            compute(code->grid, k % 2 ? code->v : code->u, k % 2 ? code->u : code->v, &box);
        }
        took = dpar_max(code->grid->comm, now() - began) / given->steps / cells;
        least = took < least ? took : least;
    }
    return least;
}

static dpar_halo_cost_desc cost_job(const job *given, int32_t ranks, int32_t per_node, int64_t k)
{
    dpar_halo_cost_desc cost;
    memset(&cost, 0, sizeof cost);
    cost.ranks = ranks;
    cost.per_node = per_node;
    cost.dims = given->dims;
    cost.shape = k > 1 ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
    cost.periodic = 1;
    cost.bytes = 8;
    for (int d = 0; d < given->dims; d++) {
        cost.cells[d] = given->n * (d == 0 ? ranks : 1);
        cost.width[d] = d == 0 ? k : 1;
    }
    return cost;
}

/* Sets latency and bandwidth so that the exchanges of 1 and MOST cells take the measured times. */
static int fit(const job *given, int32_t ranks, int32_t per_node, const deep *code,
               dpar_halo_rates *rates, dpar_halo_cost *grid)
{
    dpar_halo_cost_desc thin = cost_job(given, ranks, per_node, 1);
    dpar_halo_cost_desc wide = cost_job(given, ranks, per_node, MOST);
    const int nodes = per_node < ranks;
    dpar_halo_cost most;
    double per_byte, latency, units;
    dpar_why why;
    memset(grid, 0, sizeof *grid);
    for (int d = 0; d < given->dims; d++) {
        grid->parts[d] = d == 0 ? ranks : 1;
        grid->stride[d] = 1;
    }
    most = *grid;
    dpar_halo_rates_init(rates);
    rates->copy_Bps = 1; /* so that seconds are bytes, each counted as often as it is copied */
    rates->run_s = rates->peer_s = rates->message_s = rates->nic_Bps = 0;
    if (dpar_halo_cost_predict(&thin, rates, grid, &why) < 0 ||
        dpar_halo_cost_predict(&wide, rates, &most, &why) < 0) {
        return dpar_fail(NULL, &why);
    }
    per_byte = (code[MOST - 1].exchange_s - code[0].exchange_s) / (most.copy_s - grid->copy_s);
    per_byte = per_byte > 1e-12 ? per_byte : 1e-12;
    units = grid->peers > 0 ? grid->peers : 1;
    latency = (code[0].exchange_s - per_byte * grid->copy_s) / units;
    rates->copy_Bps = 1 / per_byte;
    *(nodes ? &rates->message_s : &rates->peer_s) = latency > 0 ? latency : 0;
    return 0;
}

static void print_case(const job *given, const dpar_comm *comm, int32_t per_node, const deep *code,
                       const dpar_halo_cost_steps *cost, double cell_s)
{
    int best = 1;
    const int nodes = per_node < comm->size;
    for (int k = 2; k <= MOST; k++) {
        best = code[k - 1].step_s < code[best - 1].step_s ? k : best;
    }
    printf("%ld^%d cells per rank, %d ranks on %s, %.2f ns a cell, exchanges of %.1f to %.1f us\n",
           (long)given->n, given->dims, (int)comm->size, nodes ? "different nodes" : "one node",
           1e9 * cell_s, 1e6 * code[0].exchange_s, 1e6 * code[MOST - 1].exchange_s);
    for (int k = 1; k <= MOST; k++) {
        printf("  k %d  %9.2f us per step, predicted %9.2f\n", k, 1e6 * code[k - 1].step_s,
               1e6 * cost->seconds[k - 1]);
    }
    printf("  fastest k %d (%.2f times as fast as k = 1), predicted %d, ratio %.3f\n", best,
           code[0].step_s / code[best - 1].step_s, (int)cost->best,
           code[cost->best - 1].step_s / code[best - 1].step_s);
    fflush(stdout);
}

/* Compares the own cells of all k with those of k = 1, bit by bit. */
static int same_bits(const job *given, const deep *code)
{
    int64_t wrong = 0;
    for (int k = 2; k <= MOST; k++) {
        const dpar_grid *a = code[0].grid, *b = code[k - 1].grid;
        for (int64_t z = 0; z < a->count[0]; z++) {
            for (int64_t y = 0; y < (given->dims == 2 ? 1 : given->n); y++) {
                const int64_t at = z * a->stride[0] + (given->dims == 2 ? 0 : y * a->stride[1]);
                const int64_t to = z * b->stride[0] + (given->dims == 2 ? 0 : y * b->stride[1]);
                wrong += memcmp(code[0].u + at, code[k - 1].u + to, (size_t)given->n * 8) != 0;
            }
        }
    }
    return wrong == 0;
}

static int measure(dpar_comm *comm, const job *given, int32_t per_node)
{
    deep code[MOST];
    dpar_halo_rates rates;
    dpar_halo_cost grid;
    dpar_halo_cost_desc one;
    dpar_halo_cost_steps cost;
    double cell_s;
    dpar_why why;
    for (int k = 1; k <= MOST; k++) {
        if (make(comm, given, k, &code[k - 1]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < MOST; k++) {
            if (one_round(given, &code[k]) != 0) {
                return 1;
            }
        }
    }
    if (!same_bits(given, code)) {
        printf("rank %d: the bits differ\n", (int)comm->rank);
        return 1;
    }
    cell_s = measure_cell(given, &code[0]);
    for (int i = 0; i < ROUNDS; i++) {
        if (measure_exchange(&code[0]) != 0 || measure_exchange(&code[MOST - 1]) != 0) {
            return 1;
        }
    }
    if (fit(given, comm->size, per_node, code, &rates, &grid) != 0) {
        return 1;
    }
    one = cost_job(given, comm->size, per_node, 1);
    if (dpar_halo_cost_choose_steps(&one, &rates, &grid, cell_s, &cost, &why) < 0) {
        return dpar_fail(comm, &why);
    }
    cost.best = 1; /* of those that are measured */
    for (int k = 2; k <= MOST; k++) {
        if (cost.seconds[k - 1] > 0 && cost.seconds[k - 1] < cost.seconds[cost.best - 1]) {
            cost.best = k;
        }
    }
    if (comm->rank == 0) {
        print_case(given, comm, per_node, code, &cost, cell_s);
    }
    for (int k = 0; k < MOST; k++) {
        if (dpar_grid_free(code[k].grid) < 0) {
            return fail(comm);
        }
    }
    return 0;
}

static int each(dpar_comm *comm, void *arg)
{
    static const job list[] = {{2, 32, 840 * 8}, {2, 128, 840 * 4}, {2, 512, 840},
                               {3, 16, 840 * 4}, {3, 32, 840 * 2},  {3, 64, 840}};
    const int32_t per_node = *(int32_t *)arg > 0 ? *(int32_t *)arg : comm->size;
    pin(comm->rank);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        job given = list[i];
        if (per_node < comm->size) { /* messages take longer, so fewer steps do */
            given.steps = 840;
        }
        if (measure(comm, &given, per_node) != 0) {
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    int32_t per_node = argc > 1 ? (int32_t)atoi(argv[1]) : 0;
    dpar_why why;
#ifdef USE_MPI
    dpar_comm *comm = NULL;
    int bad;
    MPI_Init(&argc, &argv);
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &comm, &why) < 0) {
        MPI_Abort(MPI_COMM_WORLD, dpar_fail(NULL, &why));
    }
    bad = each(comm, &per_node);
    if (bad) {
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    (void)dpar_comm_free(comm);
    MPI_Finalize();
    return 0;
#else
    if (dpar_launch(2, each, &per_node, NULL, &why) < 0) {
        return dpar_fail(NULL, &why);
    }
    return 0;
#endif
}
