/* SPDX-License-Identifier: MIT-0 */
/* Counts the elements of boxes and transfers without overflow, and compares and intersects boxes.
 * Called by layouts, redistributions and halos. */
#include "box.h"

#include "base_private.h"

DPAR_API int64_t dpar_box_volume(const dpar_box *box)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < box->dims; d++) { /* checked first, because the other dims of an empty box may
                                         be large */
        if (box->hi[d] <= box->lo[d]) {
            return 0;
        }
    }
    for (d = 0; d < box->dims; d++) {
        int64_t extent;
        if (box->lo[d] < 0 && box->hi[d] > INT64_MAX + box->lo[d]) {
            return -1;
        }
        extent = box->hi[d] - box->lo[d];
        if (!dpari_mul(n, extent, &n)) {
            return -1;
        }
    }
    return n;
}

DPARI_INTERNAL int dpari_box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out)
{
    dpar_box both;
    int32_t d;
    if (a->dims != b->dims) {
        return 0;
    }
    dpari_zero(&both, sizeof(both));
    both.dims = a->dims;
    for (d = 0; d < a->dims; d++) {
        both.lo[d] = dpari_most(a->lo[d], b->lo[d]);
        both.hi[d] = dpari_least(a->hi[d], b->hi[d]);
        if (both.hi[d] <= both.lo[d]) {
            return 0;
        }
    }
    *out = both;
    return 1;
}

DPARI_API int dpari_box_contains(const dpar_box *outer, const dpar_box *inner)
{
    int32_t d;
    if (outer->dims != inner->dims) {
        return 0;
    }
    for (d = 0; d < inner->dims; d++) {
        if (inner->hi[d] <= inner->lo[d]) {
            return 1;
        }
    }
    for (d = 0; d < inner->dims; d++) {
        if (inner->lo[d] < outer->lo[d] || inner->hi[d] > outer->hi[d]) {
            return 0;
        }
    }
    return 1;
}

DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *transfer)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        if (!dpari_mul(n, transfer->extent[d], &n)) {
            return -1;
        }
    }
    return n;
}
