/* SPDX-License-Identifier: MIT-0 */
/* points: the points of boxes one by one, the last dim fastest. */
#ifndef DPAR_POINTS_H
#define DPAR_POINTS_H

/* Returns where x is in an array of the box. */
static inline int64_t at_of(const dpar_box *box, const int64_t *x)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < box->dims; d++) {
        at = at * (box->hi[d] - box->lo[d]) + x[d] - box->lo[d];
    }
    return at;
}

/* Advances to the next point of a box. Returns 0 at the end. */
static int next_point(const dpar_box *box, int64_t *x)
{
    int32_t d;
    for (d = box->dims - 1; d >= 0; d--) {
        if (++x[d] < box->hi[d]) {
            return 1;
        }
        x[d] = box->lo[d];
    }
    return 0;
}

/* Advances to the next element of a transfer, from 0 on. Returns 0 at the end. */
static inline int next_of(const dpar_transfer *t, int64_t *j)
{
    int32_t d;
    for (d = t->dims - 1; d >= 0; d--) {
        if (++j[d] < t->extent[d]) {
            return 1;
        }
        j[d] = 0;
    }
    return 0;
}

#endif
