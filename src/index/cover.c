/* SPDX-License-Identifier: MIT-0 */
/* Checks whether boxes cover an array. The boxes are sorted along the dim in which they are
 * thinnest, so that each box is compared only with the few that begin before it ends. If none
 * overlap, the volumes show whether elements are missing. */
#include "cover.h"

#include "index_private.h"

static int dpari_box_empty(const dpar_box *b)
{
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        if (b->hi[d] <= b->lo[d]) {
            return 1;
        }
    }
    return 0;
}

/* Sorts order[] by lo[dim]. Heap sort needs no additional memory. */
static void dpari_sort_boxes(const dpar_box *box, int32_t n, int32_t dim, int32_t *order)
{
    int32_t start = n / 2, end = n;
    while (end > 1) {
        int32_t at, child, value;
        if (start > 0) {
            value = order[--start];
        } else {
            value = order[--end];
            order[end] = order[0];
        }
        for (at = start; (child = 2 * at + 1) < end; at = child) {
            if (child + 1 < end && box[order[child]].lo[dim] < box[order[child + 1]].lo[dim]) {
                child++;
            }
            if (box[order[child]].lo[dim] <= box[value].lo[dim]) {
                break;
            }
            order[at] = order[child];
        }
        order[at] = value;
    }
}

/* Returns the dim along which the boxes are thinnest on average. The thickness is measured in
 * thousandths of the extent. */
static int32_t dpari_thin_dim(int32_t dims, const int64_t *extent, const dpar_box *box,
                              const int32_t *order, int32_t n)
{
    int64_t least = INT64_MAX;
    int32_t d, k, best = 0;
    for (d = 0; d < dims; d++) {
        int64_t unit = dpari_most(1, extent[d] / 1000), sum = 0;
        for (k = 0; k < n; k++) {
            sum += (box[order[k]].hi[d] - box[order[k]].lo[d]) / unit;
        }
        if (sum < least) {
            least = sum;
            best = d;
        }
    }
    return best;
}

/* Finds the first element that is in no box, with the last dim fastest. If one row along the last
 * dim is covered, the same boxes cover the next rows until the first of these boxes ends. The
 * search skips these rows, and does the same in the other dims. */
static void dpari_first_missing(int32_t dims, const int64_t *extent, const dpar_box *box,
                                const int32_t *order, int32_t n, int64_t *at)
{
    int64_t next[DPAR_MAX_DIMS];
    int32_t d, k, in;
    for (d = 0; d < dims; d++) {
        at[d] = 0;
        next[d] = INT64_MAX;
    }
    for (;;) {
        for (k = 0, in = 0; k < n && !in; k++) {
            const dpar_box *b = &box[order[k]];
            for (d = 0, in = 1; d < dims; d++) {
                in = in && at[d] >= b->lo[d] && at[d] < b->hi[d];
            }
            for (d = 0; d < dims && in; d++) {
                next[d] = dpari_least(next[d], b->hi[d]);
            }
        }
        if (!in) {
            return;
        }
        for (d = dims - 1; d >= 0; d--) {
            at[d] = next[d];
            next[d] = INT64_MAX;
            if (at[d] < extent[d]) {
                break;
            }
            at[d] = 0;
        }
        if (d < 0) {
            return;
        }
    }
}

/* Fails with a message that names the first missing element. */
static dpar_status dpari_cover_gap(int32_t dims, const int64_t *extent, const dpar_box *box,
                                   const int32_t *order, int32_t n, int64_t missing, dpar_why *why)
{
    int64_t at[DPAR_MAX_DIMS];
    at[0] = at[1] = at[2] = 0; /* for an array without dims */
    dpari_first_missing(dims, extent, box, order, n, at);
    if (dims == 1) {
        return dpari_wrong(why, "%ld elements are in no box: the first is %ld", missing, at[0]);
    }
    if (dims == 2) {
        return dpari_wrong(why, "%ld elements are in no box: the first is (%ld, %ld)", missing,
                           at[0], at[1]);
    }
    return dpari_wrong(why,
                       "%ld elements are in no box: the first is (%ld, %ld, %ld) in dims 0 to 2",
                       missing, at[0], at[1], at[2]);
}

DPAR_API DPARI_COLD dpar_status dpar_box_cover(int32_t dims, const int64_t *extent,
                                               const dpar_box *box, int32_t n, int32_t *order,
                                               dpar_why *why)
{
    dpar_box whole, both;
    int64_t left;
    int32_t d, i, j, dim, used = 0;
    if (dims < 0 || dims > DPAR_MAX_DIMS || n < 0) {
        return dpari_wrong(why, "n=%d must be at least 0, dims=%d must be 0 to %d", n, dims,
                           (int32_t)DPAR_MAX_DIMS);
    }
    dpari_zero(&whole, sizeof(whole));
    whole.dims = dims;
    for (d = 0; d < dims; d++) {
        whole.hi[d] = extent[d];
        if (extent[d] < 0) {
            return dpari_wrong(why, "extent[%d] = %ld is negative", d, extent[d]);
        }
    }
    left = dpar_box_volume(&whole);
    if (left < 0) {
        return dpari_say(DPAR_E_RANGE, why, "the array has more than 2^63 - 1 elements");
    }
    for (i = 0; i < n; i++) {
        if (box[i].dims != dims) {
            return dpari_wrong(why, "box %d has %d dims, but the array has %d", i, box[i].dims,
                               dims);
        }
        if (dpari_box_empty(&box[i])) {
            continue;
        }
        for (d = 0; d < dims; d++) {
            if (box[i].lo[d] < 0 || box[i].hi[d] > extent[d]) {
                return dpari_wrong(why,
                                   "box %d: indices %ld to %ld are not all inside a dim of %ld", i,
                                   box[i].lo[d], box[i].hi[d] - 1, extent[d]);
            }
        }
        order[used++] = i;
    }
    dim = dpari_thin_dim(dims, extent, box, order, used);
    dpari_sort_boxes(box, dims > 0 ? used : 0, dim, order);
    for (i = 0; i < used; i++) {
        const dpar_box *a = &box[order[i]];
        left -= dpar_box_volume(a);
        for (j = i + 1; j < used && (dims == 0 || box[order[j]].lo[dim] < a->hi[dim]); j++) {
            if (dpari_box_intersect(a, &box[order[j]], &both)) {
                return dpari_wrong(why, "boxes %ld and %ld overlap in %ld elements",
                                   dpari_least(order[i], order[j]), dpari_most(order[i], order[j]),
                                   dpar_box_volume(&both));
            }
        }
    }
    return left == 0 ? DPAR_OK : dpari_cover_gap(dims, extent, box, order, used, left, why);
}
