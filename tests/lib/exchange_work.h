/* SPDX-License-Identifier: MIT-0 */
/* exchange_work: the same ring of values for each kind of exchange (a halo, points, a grid), so
 * that tests of faults are written once for all.
 *
 * Each rank owns EXCHANGE_CELLS cells in a row. Its ghosts are the last cell of the rank below it
 * and the first cell of the rank above it. The ring is open at its ends if desc.open is 1. With
 * desc.one_way there is only the ghost below, so that values go up only. */
#ifndef DPAR_EXCHANGE_WORK_H
#define DPAR_EXCHANGE_WORK_H

#include "dpar_debug.h"
#include "dpar_halo.h"
#include "dpar_points.h"

#include <string.h>

/* 16 doubles per cell are long enough to be read in place */
enum { EXCHANGE_CELLS = 3, EXCHANGE_NUMBERS = 16, EXCHANGE_METHODS = 4 };

typedef struct exchange_desc {
    int32_t method; /* as DPAR_HALO_x and DPAR_POINTS_x, which are the same numbers */
    int32_t open, one_way, timers, tag;
} exchange_desc;

typedef struct exchange_work {
    const struct exchange_kind *kind;
    dpar_comm *comm;
    exchange_desc desc;
    dpar_halo shape; /* of the halo */
    dpar_halo_plan *halo;
    dpar_points *points;
    dpar_grid *grid;
    dpar_points_field vector;
    double *memory;        /* from dpar_comm_alloc */
    double *own;           /* [EXCHANGE_CELLS][EXCHANGE_NUMBERS] */
    double *below, *above; /* ghosts; NULL if there is none */
} exchange_work;

/* A kind of exchange. For messages: its name, the function that ends it, and what it exchanges. */
typedef struct exchange_kind {
    const char *name, *end_name, *item;
    int32_t methods; /* how many methods it has */
    dpar_status (*make)(exchange_work *w, dpar_why *why);
    dpar_status (*begin)(exchange_work *w);
    dpar_status (*reduce)(exchange_work *w,
                          int32_t op); /* begins an adjoint; NULL if it has none */
    dpar_status (*test)(exchange_work *w);
    dpar_status (*end)(exchange_work *w);
    dpar_status (*free)(exchange_work *w);
    void (*report)(exchange_work *w, dpar_text *out); /* NULL if it has none */
} exchange_kind;

/* ---- halo ---- */

static dpar_status exchange_halo_make(exchange_work *w, dpar_why *why)
{
    const int32_t ranks = w->comm->size;
    const int64_t cells = EXCHANGE_CELLS * (int64_t)ranks;
    const dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_halo_field field;
    dpar_halo_plan_desc desc;
    memset(&field, 0, sizeof field);
    memset(&desc, 0, sizeof desc);
    (void)dpar_mesh_init(&mesh, "x", &ranks, DPAR_ORDER_LAST_FASTEST, ranks, NULL);
    (void)dpar_layout_init(&w->shape.grid, &mesh, 1, &cells, &cut, NULL);
    w->shape.periodic = !w->desc.open;
    w->shape.low[0] = 1;
    w->shape.high[0] = !w->desc.one_way;
    field.halo = &w->shape;
    field.type = DPAR_F64;
    field.components = EXCHANGE_NUMBERS;
    field.data = w->memory;
    desc.field = &field;
    desc.field_count = 1;
    desc.method = w->desc.method;
    desc.timers = w->desc.timers;
    desc.tag = w->desc.tag;
    w->own = w->memory + EXCHANGE_NUMBERS;
    w->below = w->memory;
    w->above = w->own + EXCHANGE_CELLS * EXCHANGE_NUMBERS;
    return dpar_halo_plan_make(w->comm, &desc, &w->halo, why);
}

static dpar_status exchange_halo_begin(exchange_work *w)
{
    return dpar_halo_plan_begin(w->halo);
}
static dpar_status exchange_halo_reduce(exchange_work *w, int32_t op)
{
    return dpar_halo_plan_reduce_begin(w->halo, op);
}
static dpar_status exchange_halo_test(exchange_work *w)
{
    return dpar_halo_plan_test(w->halo);
}
static dpar_status exchange_halo_end(exchange_work *w)
{
    return dpar_halo_plan_end(w->halo);
}
static dpar_status exchange_halo_free(exchange_work *w)
{
    return dpar_halo_plan_free(w->halo);
}
static void exchange_halo_report(exchange_work *w, dpar_text *out)
{
    dpar_halo_plan_report(w->halo, out);
}

/* ---- points ---- */

static dpar_status exchange_points_make(exchange_work *w, dpar_why *why)
{
    const int64_t first = EXCHANGE_CELLS * (int64_t)w->comm->rank;
    const int64_t cells = EXCHANGE_CELLS * (int64_t)w->comm->size;
    int64_t ghost[2];
    dpar_points_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.own_count = EXCHANGE_CELLS;
    desc.ghost_id = ghost;
    desc.method = w->desc.method;
    desc.timers = w->desc.timers;
    desc.tag = w->desc.tag;
    w->own = w->memory;
    if (!w->desc.open || first > 0) {
        w->below = w->own + EXCHANGE_CELLS * EXCHANGE_NUMBERS;
        ghost[desc.ghost_count++] = (first + cells - 1) % cells;
    }
    if (!w->desc.one_way && (!w->desc.open || first + EXCHANGE_CELLS < cells)) {
        w->above = w->own + (EXCHANGE_CELLS + desc.ghost_count) * EXCHANGE_NUMBERS;
        ghost[desc.ghost_count++] = (first + EXCHANGE_CELLS) % cells;
    }
    w->vector.type = DPAR_F64;
    w->vector.components = EXCHANGE_NUMBERS;
    w->vector.data = w->own;
    return dpar_points_make(w->comm, &desc, &w->points, why);
}

static dpar_status exchange_points_begin(exchange_work *w)
{
    return dpar_points_begin_many(w->points, &w->vector, 1);
}
static dpar_status exchange_points_reduce(exchange_work *w, int32_t op)
{
    return dpar_points_reduce_begin_many(w->points, &w->vector, 1, op);
}
static dpar_status exchange_points_test(exchange_work *w)
{
    return dpar_points_test(w->points);
}
static dpar_status exchange_points_end(exchange_work *w)
{
    return dpar_points_end(w->points);
}
static dpar_status exchange_points_free(exchange_work *w)
{
    return dpar_points_free(w->points);
}
static void exchange_points_report(exchange_work *w, dpar_text *out)
{
    dpar_points_report(w->points, out);
}

/* ---- grid ---- */

static dpar_status exchange_grid_make(exchange_work *w, dpar_why *why)
{
    dpar_grid_desc desc;
    dpar_grid_field field;
    dpar_status status;
    memset(&desc, 0, sizeof desc);
    memset(&field, 0, sizeof field);
    desc.dims = 1;
    desc.cells[0] = EXCHANGE_CELLS * (int64_t)w->comm->size;
    desc.halo_low[0] = 1;
    desc.halo_high[0] = !w->desc.one_way;
    desc.periodic[0] = !w->desc.open;
    field.components = EXCHANGE_NUMBERS;
    status = dpar_grid_make(w->comm, &desc, &w->grid, why);
    if (status != DPAR_OK) {
        return status;
    }
    w->own = (double *)dpar_grid_array(w->grid, DPAR_F64, &field);
    if (w->own == NULL) {
        return w->comm->status;
    }
    w->below = w->own - EXCHANGE_NUMBERS;
    w->above = w->own + EXCHANGE_CELLS * EXCHANGE_NUMBERS;
    return DPAR_OK;
}

static dpar_status exchange_grid_begin(exchange_work *w)
{
    return dpar_grid_begin(w->grid, w->own);
}
static dpar_status exchange_grid_test(exchange_work *w)
{
    return dpar_grid_test(w->grid, w->own);
}
static dpar_status exchange_grid_end(exchange_work *w)
{
    return dpar_grid_end(w->grid, w->own);
}
static dpar_status exchange_grid_free(exchange_work *w)
{
    return dpar_grid_free(w->grid);
}

/* ---- all kinds ---- */

enum { EXCHANGE_HALO, EXCHANGE_POINTS, EXCHANGE_GRID, EXCHANGE_KINDS };
static const exchange_kind exchange_kinds[EXCHANGE_KINDS] = {
    {"halo", "dpar_halo_plan_end", "field", EXCHANGE_METHODS, exchange_halo_make,
     exchange_halo_begin, exchange_halo_reduce, exchange_halo_test, exchange_halo_end,
     exchange_halo_free, exchange_halo_report},
    {"points", "dpar_points_end", "vector", EXCHANGE_METHODS, exchange_points_make,
     exchange_points_begin, exchange_points_reduce, exchange_points_test, exchange_points_end,
     exchange_points_free, exchange_points_report},
    {"halo", "dpar_grid_end", "field", 1, exchange_grid_make, exchange_grid_begin, NULL,
     exchange_grid_test, exchange_grid_end, exchange_grid_free, NULL}};

/* Makes a ring. Collective. desc may be NULL. */
static dpar_status exchange_make(exchange_work *w, int32_t kind, dpar_comm *comm,
                                 const exchange_desc *desc, dpar_why *why)
{
    void *memory = NULL;
    dpar_status status;
    memset(w, 0, sizeof *w);
    w->kind = &exchange_kinds[kind];
    w->comm = comm;
    if (desc) {
        w->desc = *desc;
    }
    status = dpar_comm_alloc(
        comm, (EXCHANGE_CELLS + 2) * EXCHANGE_NUMBERS * (int64_t)sizeof(double), &memory);
    if (status != DPAR_OK) {
        return status;
    }
    w->memory = (double *)memory;
    status = w->kind->make(w, why);
    if (w->desc.one_way) {
        w->above = NULL;
    }
    if (w->desc.open && comm->rank == 0) {
        w->below = NULL;
    }
    if (w->desc.open && comm->rank == comm->size - 1) {
        w->above = NULL;
    }
    return status;
}

/* Frees the ring; its memory remains until the communicator is closed. */
static inline dpar_status exchange_free(exchange_work *w)
{
    return w->kind->free(w);
}

/* Returns number k of a cell of a rank in a round. In a ghost the rank is that which has it. */
static inline double exchange_value(int64_t rank, int cell, int k, int round)
{
    return 10000.0 * round + 100.0 * (double)rank + 20.0 * cell + k;
}

static inline void exchange_put(double *at, int64_t rank, int cell, int round)
{
    int k;
    for (k = 0; at && k < EXCHANGE_NUMBERS; k++) {
        at[k] = exchange_value(rank, cell, k, round);
    }
}

/* Sets all cells. Ghosts have the numbers of cells 3 and 4 of this rank, as before an adjoint. */
static inline void exchange_fill(exchange_work *w, int round)
{
    int cell;
    for (cell = 0; cell < EXCHANGE_CELLS; cell++) {
        exchange_put(w->own + cell * EXCHANGE_NUMBERS, w->comm->rank, cell, round);
    }
    exchange_put(w->below, w->comm->rank, EXCHANGE_CELLS, round);
    exchange_put(w->above, w->comm->rank, EXCHANGE_CELLS + 1, round);
}

/* Returns how many numbers are wrong after a forward exchange. */
static inline int exchange_wrong(const exchange_work *w, int round)
{
    const int64_t me = w->comm->rank, ranks = w->comm->size;
    int k, cell, wrong = 0;
    for (k = 0; k < EXCHANGE_NUMBERS; k++) {
        for (cell = 0; cell < EXCHANGE_CELLS; cell++) {
            wrong += w->own[cell * EXCHANGE_NUMBERS + k] != exchange_value(me, cell, k, round);
        }
        wrong += w->below && w->below[k] != exchange_value((me + ranks - 1) % ranks,
                                                           EXCHANGE_CELLS - 1, k, round);
        wrong += w->above && w->above[k] != exchange_value((me + 1) % ranks, 0, k, round);
    }
    return wrong;
}

/* Returns how many numbers are wrong after an adjoint sum. */
static inline int exchange_wrong_sum(const exchange_work *w, int round)
{
    const int64_t me = w->comm->rank, ranks = w->comm->size;
    const int is_last = w->desc.open && me == ranks - 1, is_first = w->desc.open && me == 0;
    int k, cell, wrong = 0;
    for (k = 0; k < EXCHANGE_NUMBERS; k++) {
        for (cell = 0; cell < EXCHANGE_CELLS; cell++) {
            double want = exchange_value(me, cell, k, round);
            if (cell == EXCHANGE_CELLS - 1 && !is_last) { /* the ghost below of the rank above */
                want += exchange_value((me + 1) % ranks, EXCHANGE_CELLS, k, round);
            }
            if (cell == 0 && !is_first && !w->desc.one_way) {
                want += exchange_value((me + ranks - 1) % ranks, EXCHANGE_CELLS + 1, k, round);
            }
            wrong += w->own[cell * EXCHANGE_NUMBERS + k] != want;
        }
        wrong += w->below && w->below[k] != 0;
        wrong += w->above && w->above[k] != 0;
    }
    return wrong;
}

/* Ends an exchange that has begun with this status, at once or by testing. A rank that only tests
 * has no deadline, so it waits after `tests` tests. */
static inline dpar_status exchange_finish(exchange_work *w, dpar_status status, int tests)
{
    while (status == DPAR_OK && tests-- > 0) {
        status = w->kind->test(w);
        if (status == DPAR_OK) {
            break;
        }
        status = status == DPAR_MORE ? DPAR_OK : status;
    }
    return status == DPAR_OK ? w->kind->end(w) : status;
}

static inline dpar_status exchange_run(exchange_work *w)
{
    return exchange_finish(w, w->kind->begin(w), 0);
}

#endif
