/* SPDX-License-Identifier: MIT-0 */
/* boxes: functions on two boxes for tests, written independently of the library. */
#ifndef BOXES_H
#define BOXES_H

#include "dpar.h"

/* Writes the intersection to *out, which may be a or b. Returns 0 if it is empty or the dims
 * differ. */
static inline int box_intersect(const dpar_box *a, const dpar_box *b, dpar_box *out)
{
    dpar_box both = *a;
    int32_t d;
    for (d = 0; a->dims == b->dims && d < a->dims; d++) {
        both.lo[d] = a->lo[d] > b->lo[d] ? a->lo[d] : b->lo[d];
        both.hi[d] = a->hi[d] < b->hi[d] ? a->hi[d] : b->hi[d];
        if (both.hi[d] <= both.lo[d]) {
            return 0;
        }
    }
    if (a->dims == b->dims) {
        *out = both;
    }
    return a->dims == b->dims;
}

/* Returns 1 if each element of `inner` is in `outer`, otherwise 0. */
static inline int box_contains(const dpar_box *outer, const dpar_box *inner)
{
    dpar_box both;
    return outer->dims == inner->dims &&
           (dpar_box_volume(inner) == 0 || (box_intersect(outer, inner, &both) &&
                                            dpar_box_volume(&both) == dpar_box_volume(inner)));
}

#endif
