/* SPDX-License-Identifier: MIT-0 */
#include "box_overlap.h"

/* Sets [lo, hi) to the bytes between which a side of a box is. */
static void dpari_cuda_extent(const dpar_mem_box *b, int of_to, uintptr_t *lo, uintptr_t *hi)
{
    const int64_t width = dpari_cuda_width(of_to ? b->to_type : b->from_type);
    const uintptr_t at = of_to ? (uintptr_t)b->to : (uintptr_t)b->from;
    int64_t before = 0, behind = 0;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        const int64_t step = of_to ? b->to_stride[d] : b->from_stride[d];
        if (b->extent[d] <= 0) {
            *lo = *hi = at;
            return;
        }
        if (step < 0) {
            before += (b->extent[d] - 1) * step * width;
        } else {
            behind += (b->extent[d] - 1) * step * width;
        }
    }
    *lo = at - (uintptr_t)-before;
    *hi = at + (uintptr_t)(behind + width);
}

/* A search for integers x_d with low_d <= x_d <= high_d and difference = sum over d of x_d step_d.
 * Steps are descending. `tries` bounds the search; when no tries are left, a solution is assumed to
 * exist. */
struct dpari_cuda_lattice {
    int64_t step[DPAR_MEM_DIMS], low[DPAR_MEM_DIMS], high[DPAR_MEM_DIMS];
    int32_t dims, tries;
};

static int dpari_cuda_solves(dpari_cuda_lattice *l, int32_t d, int64_t difference)
{
    int64_t below = 0, above = 0, x, first, last;
    int32_t k;
    if (d == l->dims) {
        return difference == 0;
    }
    for (k = d + 1; k < l->dims; k++) { /* the range that the shorter steps can contribute */
        below += l->low[k] * l->step[k];
        above += l->high[k] * l->step[k];
    }
    first = difference - above;
    last = difference - below;
    first = first >= 0 ? (first + l->step[d] - 1) / l->step[d] : -(-first / l->step[d]);
    last = last >= 0 ? last / l->step[d] : -((-last + l->step[d] - 1) / l->step[d]);
    first = first < l->low[d] ? l->low[d] : first;
    last = last > l->high[d] ? l->high[d] : last;
    for (x = first; x <= last; x++) {
        if (l->tries-- <= 0 || dpari_cuda_solves(l, d + 1, difference - x * l->step[d])) {
            return 1;
        }
    }
    return 0;
}

/* Adds the steps and lengths of a side to the lattice, and sets *base to the lowest address of that
 * side. Returns 0 if there are too many different steps. */
static int dpari_cuda_lay(const dpar_mem_box *b, int of_to, int sign, dpari_cuda_lattice *l,
                          int64_t *base)
{
    const int64_t width = dpari_cuda_width(of_to ? b->to_type : b->from_type);
    int32_t d, k;
    *base = (int64_t)(of_to ? (uintptr_t)b->to : (uintptr_t)b->from);
    for (d = 0; d < b->dims; d++) {
        int64_t step = (of_to ? b->to_stride[d] : b->from_stride[d]) * width;
        const int64_t far_end = b->extent[d] - 1;
        if (far_end == 0 || step == 0) {
            continue;
        }
        if (step < 0) {
            *base += far_end * step;
            step = -step;
        }
        for (k = 0; k < l->dims && l->step[k] != step; k++) {
        }
        if (k == l->dims) {
            if (l->dims == DPAR_MEM_DIMS) {
                return 0;
            }
            for (l->dims++; k > 0 && l->step[k - 1] < step; k--) {
                l->step[k] = l->step[k - 1];
                l->low[k] = l->low[k - 1];
                l->high[k] = l->high[k - 1];
            }
            l->step[k] = step;
            l->low[k] = l->high[k] = 0;
        }
        l->low[k] -= sign > 0 ? 0 : far_end;
        l->high[k] += sign > 0 ? far_end : 0;
    }
    return 1;
}

/* True if a side of a and a side of b have a byte in common. The result is exact for boxes of one
 * array, and true in cases that are too complicated. */
static int dpari_cuda_touch(const dpar_mem_box *a, int a_to, const dpar_mem_box *b, int b_to)
{
    const int32_t a_width = dpari_cuda_width(a_to ? a->to_type : a->from_type);
    const int32_t b_width = dpari_cuda_width(b_to ? b->to_type : b->from_type);
    uintptr_t a_lo, a_hi, b_lo, b_hi;
    dpari_cuda_lattice l;
    int64_t a_base, b_base;
    dpari_cuda_extent(a, a_to, &a_lo, &a_hi);
    dpari_cuda_extent(b, b_to, &b_lo, &b_hi);
    if (a_lo >= b_hi || b_lo >= a_hi || a_lo == a_hi || b_lo == b_hi) {
        return 0;
    }
    memset(&l, 0, sizeof l);
    l.tries = 64;
    if (a_width != b_width || !dpari_cuda_lay(a, a_to, 1, &l, &a_base) ||
        !dpari_cuda_lay(b, b_to, -1, &l, &b_base) || (b_base - a_base) % a_width != 0) {
        return 1;
    }
    return dpari_cuda_solves(&l, 0, b_base - a_base);
}

DPARI_INTERNAL int dpari_cuda_follows(const dpar_mem_box *a, const dpar_mem_box *b)
{
    if (a->op == DPAR_COPY && b->op == DPAR_COPY) {
        return 0; /* dpar_mem.move requires that no copy writes what another box reads or writes */
    }
    return dpari_cuda_touch(a, 1, b, 1) || dpari_cuda_touch(a, 1, b, 0) ||
           dpari_cuda_touch(a, 0, b, 1) || ((a->clear || b->clear) && dpari_cuda_touch(a, 0, b, 0));
}
