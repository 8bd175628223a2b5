/* SPDX-License-Identifier: MIT-0 */
/* Finds out whether two sides of boxes have a byte in common. The difference of their addresses
 * must then be a sum of multiples of their steps. A bounded search over these sums is exact for
 * boxes of one array, and assumes an overlap where it would take too long. ../halo/halo_overlap.c
 * does the same for the arrays of a plan. */
#include "box_overlap.h"

DPARI_INTERNAL int dpari_cuda_box_empty(const dpar_mem_box *b)
{
    int32_t d;
    int empty = 0;
    for (d = 0; d < b->dims; d++) {
        empty |= b->extent[d] <= 0;
    }
    return empty;
}

DPARI_INTERNAL int dpari_cuda_side_of(const dpar_mem_box *b, int of_to, dpari_cuda_side *s)
{
    const int64_t width = dpari_cuda_width(of_to ? b->to_type : b->from_type);
    int32_t d, k, differ = 1;
    memset(s, 0, sizeof *s);
    s->base = s->end = of_to ? (uintptr_t)b->to : (uintptr_t)b->from;
    s->width = (int32_t)width;
    for (d = 0; d < b->dims; d++) {
        int64_t step = (of_to ? b->to_stride[d] : b->from_stride[d]) * width;
        const int64_t more = (b->extent[d] - 1) * step;
        if (more == 0) {
            continue;
        }
        if (more < 0) {
            s->base -= (uintptr_t)-more;
            step = -step;
        } else {
            s->end += (uintptr_t)more;
        }
        for (k = s->dims++; k > 0 && s->step[k - 1] > step; k--) {
            s->step[k] = s->step[k - 1];
            s->extent[k] = s->extent[k - 1];
        }
        s->step[k] = step;
        s->extent[k] = b->extent[d];
        differ = differ && (k == 0 || s->step[k - 1] != step);
    }
    s->end += (uintptr_t)width;
    return differ;
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

/* Adds the steps and lengths of both sides to the lattice. Returns 0 if there are too many
 * different steps. */
static int dpari_cuda_lay(const dpari_cuda_side *a, const dpari_cuda_side *b, dpari_cuda_lattice *l)
{
    int32_t i = a->dims - 1, k = b->dims - 1;
    while (i >= 0 || k >= 0) {
        const int from_a = k < 0 || (i >= 0 && a->step[i] > b->step[k]);
        const int64_t step = from_a ? a->step[i] : b->step[k];
        const int64_t far_end = from_a ? a->extent[i--] - 1 : b->extent[k--] - 1;
        if (l->dims == 0 || l->step[l->dims - 1] != step) {
            if (l->dims == DPAR_MEM_DIMS) {
                return 0;
            }
            l->step[l->dims++] = step;
        }
        l->high[l->dims - 1] += from_a ? far_end : 0;
        l->low[l->dims - 1] -= from_a ? 0 : far_end;
    }
    return 1;
}

/* True if a side of a and a side of b have a byte in common. The result is exact for boxes of one
 * array, and true in cases that are too complicated. */
static int dpari_cuda_touch(const dpar_mem_box *a, int a_to, const dpar_mem_box *b, int b_to)
{
    dpari_cuda_side first, second;
    dpari_cuda_lattice l;
    (void)dpari_cuda_side_of(a, a_to, &first);
    (void)dpari_cuda_side_of(b, b_to, &second);
    if (first.base >= second.end || second.base >= first.end) {
        return 0;
    }
    memset(&l, 0, sizeof l);
    l.tries = 64;
    if (first.width != second.width || !dpari_cuda_lay(&first, &second, &l) ||
        (int64_t)(second.base - first.base) % first.width != 0) {
        return 1;
    }
    return dpari_cuda_solves(&l, 0, (int64_t)(second.base - first.base));
}

DPARI_INTERNAL int dpari_cuda_follows(const dpar_mem_box *a, const dpar_mem_box *b)
{
    if (dpari_cuda_box_empty(a) || dpari_cuda_box_empty(b)) {
        return 0;
    }
    if (a->op == DPAR_COPY && b->op == DPAR_COPY) {
        return 0; /* dpar_mem.move requires that no copy writes what another box reads or writes */
    }
    return dpari_cuda_touch(a, 1, b, 1) || dpari_cuda_touch(a, 1, b, 0) ||
           dpari_cuda_touch(a, 0, b, 1) || ((a->clear || b->clear) && dpari_cuda_touch(a, 0, b, 0));
}
