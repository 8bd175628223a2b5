/* SPDX-License-Identifier: MIT-0 */
/* Finds out whether two arrays of a plan have an element in common. Fields may be interleaved with
 * any strides, so comparing address ranges is not enough. Two arrays meet if some sum of multiples
 * of their strides is the distance between them. A search over these sums, with bounds on what the
 * remaining strides can add, is exact. It gives up after a number of tries (2^20 in a plan) and
 * then assumes that they do not meet. Called by dpar_halo_plan_make. */
#include "halo_apart.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../index/halo.h"
#include "halo_plan.h"

enum {
    DPARI_HX_SEARCH = 1 << 20, /* of a plan; arrays that these do not settle are allowed */
    DPARI_HX_PAIR = 16         /* tries that a pair costs anyway */
};

/* Elements of `unit` bytes at base + sum over dims of stride * t, 0 <= t <= last. */
typedef struct dpari_hx_cells {
    int64_t base, unit;
    int32_t dims;
    int64_t stride[DPARI_HX_DIMS], last[DPARI_HX_DIMS]; /* strides in bytes */
} dpari_hx_cells;

/* The elements of a part of a field; 0: none. */
static DPARI_COLD int dpari_hx_cells_of(const dpar_halo_field *f, int32_t rank, int32_t part,
                                        dpari_hx_cells *g)
{
    const int32_t dims = f->halo->grid.dims, components = dpari_hx_components(f);
    dpari_hx_array a;
    dpari_hx_spot spot;
    dpar_box own, all, slab;
    int64_t at[DPAR_MAX_DIMS] = {0}, points = 0;
    int32_t d;
    dpari_zero(g, sizeof *g);
    g->unit = dpar_type_bytes(f->type);
    if (!dpari_hx_boxes(f->halo, rank, &own, &all)) {
        return 0;
    }
    if (part == DPARI_HX_HALOS) {
        for (d = 0; f->compact_halo && dpar_halo_slab(f->halo, rank, d, &slab); d++) {
            points += dpar_box_volume(&slab) * components;
        }
        g->base = (int64_t)(uintptr_t)f->compact_halo;
        g->dims = 1;
        g->stride[0] = g->unit;
        g->last[0] = points - 1;
        return points > 0;
    }
    dpari_hx_array_of(&a, f, rank);
    slab = all;
    dpari_hx_inside(f->halo, &slab);
    for (d = 0; d < dims; d++) {
        at[d] = a.compact ? a.low[d] : slab.lo[d] - all.lo[d];
        g->last[d] = (a.compact ? a.own[d] : slab.hi[d] - slab.lo[d]) - 1;
        if (!f->data || g->last[d] < 0) {
            return 0;
        }
    }
    dpari_hx_place(&a, at, components, &spot);
    g->dims = dims + 1;
    g->last[dims] = components - 1;
    for (d = 0; d <= dims; d++) {
        g->stride[d] = spot.stride[d] * g->unit;
    }
    g->base = (int64_t)(uintptr_t)f->data + spot.at * g->unit;
    return 1;
}

/* Where they begin and end. */
static DPARI_COLD void dpari_hx_span(const dpari_hx_cells *g, int64_t *span)
{
    int32_t d;
    span[0] = g->base;
    span[1] = g->base + g->unit;
    for (d = 0; d < g->dims; d++) {
        span[0] += dpari_least(g->stride[d] * g->last[d], 0);
        span[1] += dpari_most(g->stride[d] * g->last[d], 0);
    }
}

/* Sums of step * t, least <= t <= most, steps descending. */
typedef struct dpari_hx_sums {
    int32_t n;
    int64_t step[2 * DPARI_HX_DIMS], least[2 * DPARI_HX_DIMS], most[2 * DPARI_HX_DIMS];
    int64_t low, high;                                             /* the range to be hit */
    int64_t lowest[2 * DPARI_HX_DIMS], highest[2 * DPARI_HX_DIMS]; /* of the steps after this one */
    int64_t left;                                                  /* tries */
} dpari_hx_sums;

static DPARI_COLD void dpari_hx_add_step(dpari_hx_sums *z, int64_t step, int64_t least,
                                         int64_t most)
{
    int32_t k = z->n, i;
    if (least == most) { /* of one point */
        return;
    }
    if (step < 0) {
        dpari_hx_add_step(z, -step, -most, -least);
        return;
    }
    while (k > 0 && z->step[k - 1] < step) {
        k--;
    }
    if (k == 0 || z->step[k - 1] != step) {
        for (i = z->n++; i > k; i--) {
            z->step[i] = z->step[i - 1];
            z->least[i] = z->least[i - 1];
            z->most[i] = z->most[i - 1];
        }
        z->step[k] = step;
        z->least[k] = z->most[k] = 0;
        k++;
    }
    z->least[k - 1] += least;
    z->most[k - 1] += most;
}

/* True if `sum` plus some sum over steps k, k + 1, ... is between low and high. */
static DPARI_COLD int dpari_hx_meets(dpari_hx_sums *z, int32_t k, int64_t sum)
{
    int64_t t, last;
    if (k == z->n) {
        return sum >= z->low && sum <= z->high;
    }
    t = dpari_most(z->least[k], -dpari_floor_div(sum + z->highest[k] - z->low, z->step[k]));
    last = dpari_least(z->most[k], dpari_floor_div(z->high - sum - z->lowest[k], z->step[k]));
    for (; t <= last && z->left > 0; t++) {
        z->left--;
        if (dpari_hx_meets(z, k + 1, sum + t * z->step[k])) {
            return 1;
        }
    }
    return 0;
}

/* Two elements are in one place when the difference of their addresses, which is a sum of strides,
 * is less than either's width. */
static DPARI_COLD int dpari_hx_cells_meet(const dpari_hx_cells *a, const dpari_hx_cells *b,
                                          int64_t *left)
{
    dpari_hx_sums z;
    int32_t d;
    int meet;
    dpari_zero(&z, sizeof z);
    for (d = 0; d < a->dims; d++) {
        dpari_hx_add_step(&z, a->stride[d], -a->last[d], 0);
    }
    for (d = 0; d < b->dims; d++) {
        dpari_hx_add_step(&z, b->stride[d], 0, b->last[d]);
    }
    for (d = z.n - 1; d > 0; d--) {
        z.lowest[d - 1] = z.lowest[d] + z.step[d] * z.least[d];
        z.highest[d - 1] = z.highest[d] + z.step[d] * z.most[d];
    }
    z.low = 1 - b->unit;
    z.high = a->unit - 1;
    z.left = *left - DPARI_HX_PAIR;
    meet = dpari_hx_meets(&z, 0, b->base - a->base);
    *left = z.left;
    return meet;
}

/* True if parts p and q have an element in common. Each field has two parts: data and halos. */
static DPARI_COLD int dpari_hx_parts_meet(const dpar_halo_field *fields, int32_t rank, int32_t p,
                                          int32_t q, int64_t *left)
{
    const dpar_halo_field *f = &fields[p / 2], *g = &fields[q / 2];
    dpari_hx_cells a, b;
    return dpari_hx_mem(f) == dpari_hx_mem(g) && dpari_hx_cells_of(f, rank, p % 2, &a) &&
           dpari_hx_cells_of(g, rank, q % 2, &b) && dpari_hx_cells_meet(&a, &b, left);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_clear_of(const dpar_halo_field *fields, int32_t n,
                                                        int32_t rank, const void *memory,
                                                        int64_t bytes, dpar_why *why)
{
    dpari_hx_cells a, b;
    int64_t left = DPARI_HX_SEARCH;
    int32_t p;
    dpari_zero(&b, sizeof b);
    b.base = (int64_t)(uintptr_t)memory;
    b.unit = bytes;
    for (p = 0; p < 2 * n; p++) {
        if (!dpari_hx_mem(&fields[p / 2]) && dpari_hx_cells_of(&fields[p / 2], rank, p % 2, &a) &&
            dpari_hx_cells_meet(&a, &b, &left)) {
            return dpari_wrong(
                why, "field %d: rank %d has cells of it in the %ld bytes of the plan's memory",
                p / 2, rank, bytes);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_disjoint(const dpar_halo_field *fields, int32_t n,
                                                        int32_t rank, int64_t *span, dpar_why *why)
{
    dpari_hx_cells a;
    int64_t left = DPARI_HX_SEARCH;
    int32_t p, q;
    for (p = 0; p < 2 * n; p++) {
        span[2 * p] = span[2 * p + 1] = 0;
        if (dpari_hx_cells_of(&fields[p / 2], rank, p % 2, &a)) {
            dpari_hx_span(&a, span + 2 * p);
        }
        for (q = 0; q < p && left > 0; q++) {
            if (span[2 * p] >= span[2 * q + 1] || span[2 * q] >= span[2 * p + 1] ||
                !dpari_hx_parts_meet(fields, rank, p, q, &left)) {
                continue;
            }
            if (p / 2 == q / 2) {
                return dpari_wrong(
                    why, "field %d: its data and its halos have elements of rank %d in common",
                    p / 2, rank);
            }
            return dpari_wrong(why,
                               "fields %d and %d have elements of rank %d in common: their memory "
                               "begins %ld bytes apart",
                               q / 2, p / 2, rank, span[2 * p] - span[2 * q]);
        }
    }
    return DPAR_OK;
}
