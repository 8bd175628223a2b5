/* SPDX-License-Identifier: MIT-0 */
/* Finds out whether two arrays of a plan have an element in common. Fields may be interleaved with
 * any strides, so that comparing address ranges is not enough. Two arrays have an element in common
 * if some sum of multiples of their strides is the distance between them. A search over these sums,
 * with bounds on the part that the remaining strides can add, is exact. It ends after a number of
 * tries (2^20 in a plan) and then assumes that the arrays have no element in common. Called by
 * dpar_halo_plan_make, and by dpar_grid_attach for two arrays. */
#include "halo_overlap.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../index/halo.h"
#include "halo_plan.h"

enum {
    DPARI_HX_SEARCH = 1 << 20, /* number of tries in a plan */
    DPARI_HX_PAIR = 16         /* tries counted for a pair even if its search ends at once */
};

/* A set of elements of `unit` bytes, at base + the sum over dims of stride * t with 0 <= t <= last.
 */
typedef struct dpari_hx_cells {
    int64_t base, unit;
    int32_t dims;
    int64_t stride[DPARI_HX_DIMS], last[DPARI_HX_DIMS]; /* strides in bytes */
} dpari_hx_cells;

/* Computes the elements of a part of a field (data or compact halo). Returns 0 if there are none.
 */
static DPARI_COLD int dpari_hx_cells_of(const dpar_halo_field *field, int32_t rank, int32_t part,
                                        dpari_hx_cells *cells)
{
    const int32_t dims = field->halo->grid.dims, components = dpari_hx_components(field);
    dpari_hx_array array;
    dpari_hx_spot spot;
    dpar_box own, all, slab;
    int64_t at[DPAR_MAX_DIMS] = {0}, points = 0;
    int32_t d;
    dpari_zero(cells, sizeof *cells);
    cells->unit = dpar_type_bytes(field->type);
    if (!dpari_hx_boxes(field->halo, rank, &own, &all)) {
        return 0;
    }
    if (part == DPARI_HX_HALOS) {
        for (d = 0; field->compact_halo && dpar_halo_slab(field->halo, rank, d, &slab); d++) {
            points += dpar_box_volume(&slab) * components;
        }
        cells->base = (int64_t)(uintptr_t)field->compact_halo;
        cells->dims = 1;
        cells->stride[0] = cells->unit;
        cells->last[0] = points - 1;
        return points > 0;
    }
    dpari_hx_array_of(&array, field, rank);
    slab = all;
    dpari_hx_inside(field->halo, &slab);
    for (d = 0; d < dims; d++) {
        at[d] = array.compact ? array.low[d] : slab.lo[d] - all.lo[d];
        cells->last[d] = (array.compact ? array.own[d] : slab.hi[d] - slab.lo[d]) - 1;
        if (!field->data || cells->last[d] < 0) {
            return 0;
        }
    }
    dpari_hx_place(&array, at, components, &spot);
    cells->dims = dims + 1;
    cells->last[dims] = components - 1;
    for (d = 0; d <= dims; d++) {
        cells->stride[d] = spot.stride[d] * cells->unit;
    }
    cells->base = (int64_t)(uintptr_t)field->data + spot.at * cells->unit;
    return 1;
}

/* Computes the addresses where a set of elements begins and ends. */
static DPARI_COLD void dpari_hx_span(const dpari_hx_cells *cells, int64_t *span)
{
    int32_t d;
    span[0] = cells->base;
    span[1] = cells->base + cells->unit;
    for (d = 0; d < cells->dims; d++) {
        span[0] += dpari_least(cells->stride[d] * cells->last[d], 0);
        span[1] += dpari_most(cells->stride[d] * cells->last[d], 0);
    }
}

/* The search for a sum of step * t, with least <= t <= most for each step, that is in the range
 * from low to high. The steps are in descending order. */
typedef struct dpari_hx_sums {
    int32_t n; /* number of steps */
    int64_t step[2 * DPARI_HX_DIMS], least[2 * DPARI_HX_DIMS], most[2 * DPARI_HX_DIMS];
    int64_t low, high;
    /* for each step, bounds of the sum over the steps after it */
    int64_t lowest[2 * DPARI_HX_DIMS], highest[2 * DPARI_HX_DIMS];
    int64_t left; /* tries that are left */
} dpari_hx_sums;

/* Adds a step. Merges it with an equal step, and replaces a negative step by its absolute value. */
static DPARI_COLD void dpari_hx_add_step(dpari_hx_sums *sums, int64_t step, int64_t least,
                                         int64_t most)
{
    int32_t k = sums->n, i;
    if (least == most) { /* a dim of one point adds nothing, because both are 0 */
        return;
    }
    if (step < 0) {
        dpari_hx_add_step(sums, -step, -most, -least);
        return;
    }
    while (k > 0 && sums->step[k - 1] < step) {
        k--;
    }
    if (k == 0 || sums->step[k - 1] != step) {
        for (i = sums->n++; i > k; i--) {
            sums->step[i] = sums->step[i - 1];
            sums->least[i] = sums->least[i - 1];
            sums->most[i] = sums->most[i - 1];
        }
        sums->step[k] = step;
        sums->least[k] = sums->most[k] = 0;
        k++;
    }
    sums->least[k - 1] += least;
    sums->most[k - 1] += most;
}

/* True if `sum` plus some sum over steps k, k + 1, ... is in the range from low to high. Tries only
 * those factors of step k for which the later steps can still reach the range. */
static DPARI_COLD int dpari_hx_can_reach(dpari_hx_sums *sums, int32_t k, int64_t sum)
{
    int64_t t, last;
    if (k == sums->n) {
        return sum >= sums->low && sum <= sums->high;
    }
    t = dpari_most(sums->least[k],
                   -dpari_floor_div(sum + sums->highest[k] - sums->low, sums->step[k]));
    last = dpari_least(sums->most[k],
                       dpari_floor_div(sums->high - sum - sums->lowest[k], sums->step[k]));
    for (; t <= last && sums->left > 0; t++) {
        sums->left--;
        if (dpari_hx_can_reach(sums, k + 1, sum + t * sums->step[k])) {
            return 1;
        }
    }
    return 0;
}

/* True if two sets have a byte in common; false if the tries in *left do not suffice to find one.
 * Two elements overlap if the distance between their addresses, which is a sum of strides, is less
 * than the number of bytes of the lower element. */
static DPARI_COLD int dpari_hx_cells_meet(const dpari_hx_cells *a, const dpari_hx_cells *b,
                                          int64_t *left)
{
    dpari_hx_sums sums;
    int32_t d;
    int meet;
    dpari_zero(&sums, sizeof sums);
    for (d = 0; d < a->dims; d++) {
        dpari_hx_add_step(&sums, a->stride[d], -a->last[d], 0);
    }
    for (d = 0; d < b->dims; d++) {
        dpari_hx_add_step(&sums, b->stride[d], 0, b->last[d]);
    }
    for (d = sums.n - 1; d > 0; d--) {
        sums.lowest[d - 1] = sums.lowest[d] + sums.step[d] * sums.least[d];
        sums.highest[d - 1] = sums.highest[d] + sums.step[d] * sums.most[d];
    }
    sums.low = 1 - b->unit;
    sums.high = a->unit - 1;
    sums.left = *left - DPARI_HX_PAIR;
    meet = dpari_hx_can_reach(&sums, 0, b->base - a->base);
    *left = sums.left;
    return meet;
}

/* True if parts p and q have an element in common. Each field has two parts: data and halos. */
static DPARI_COLD int dpari_hx_parts_meet(const dpar_halo_field *fields, int32_t rank, int32_t p,
                                          int32_t q, int64_t *left)
{
    const dpar_halo_field *field = &fields[p / 2], *g = &fields[q / 2];
    dpari_hx_cells a, b;
    return dpari_hx_mem(field) == dpari_hx_mem(g) && dpari_hx_cells_of(field, rank, p % 2, &a) &&
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
                why,
                "field %d: its array on rank %d has elements in the %ld bytes of the plan's "
                "memory",
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
                    why, "field %d: data and compact_halo have elements in common on rank %d",
                    p / 2, rank);
            }
            return dpari_wrong(
                why,
                "fields %d and %d have elements in common on rank %d; their memory begins %ld "
                "bytes apart",
                q / 2, p / 2, rank, span[2 * p] - span[2 * q]);
        }
    }
    return DPAR_OK;
}
