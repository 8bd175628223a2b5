/* SPDX-License-Identifier: MIT-0 */
/* boxes - what tests ask about two boxes, written apart from the library. */
#ifndef BOXES_H
#define BOXES_H

#include "dpar.h"

/* What both hold, into *out (may be one of them); 0 when that is empty or the dims differ. */
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

/* Is every element of `inner` in `outer`? */
static inline int box_contains(const dpar_box *outer, const dpar_box *inner)
{
    dpar_box both;
    return outer->dims == inner->dims &&
           (dpar_box_volume(inner) == 0 || (box_intersect(outer, inner, &both) &&
                                            dpar_box_volume(&both) == dpar_box_volume(inner)));
}

#endif
