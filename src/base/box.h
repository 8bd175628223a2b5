/* SPDX-License-Identifier: MIT-0 */
/* box - a rectangle of indices, and one rectangle that travels: what layouts, redistributions and
 * halos speak in. */
#ifndef DPARI_BASE_BOX_H
#define DPARI_BASE_BOX_H

#include "base.h"

enum { DPAR_MAX_DIMS = 6 };

/* Indices lo[d] <= i < hi[d] of every dim; empty when hi[d] <= lo[d] for one of them. Dim 0 is the
 * slowest in memory, as in C and torch. */
typedef struct dpar_box {
    int32_t dims; /* 0..DPAR_MAX_DIMS; a box of no dims holds one element */
    int64_t lo[DPAR_MAX_DIMS], hi[DPAR_MAX_DIMS];
} dpar_box;

/* Elements of a box: 0 when it is empty, -1 when there are more than 2^63 - 1. O(dims). */
DPAR_API int64_t dpar_box_volume(const dpar_box *box);

/* One rectangle that goes from a rank to another (or stays: peer is the rank itself). Both sides
 * list the same transfers in the same order, so that the k-th send to a peer meets its k-th receive
 * from here. Of a send, element j of dim d goes from mine[d] + j to theirs[d] + j; of a receive it
 * comes from theirs[d] + j to mine[d] + j. Where bit d of `flip` is set (folds) the receiver's end
 * counts backwards: extent[d] - 1 - j in place of j. A packed message holds the box in the sender's
 * order, the last dim fastest.
 *
 * Two dims may change places on the way (edges of a cubed sphere): `extent` is the sender's, and
 * what lies at j of the sender arrives at j with j[swap[0]] and j[swap[1]] exchanged, the extents
 * likewise; `flip` then reverses dims of the receiver. Vectors turn where the grid does: a pair (u
 * along the last dim, v along the one before) arrives after `turn` quarter turns, 1: (-v, u), 2:
 * (-u, -v), 3: (v, -u). Over folds and poles it is 2, so that each component changes its sign. */
typedef struct dpar_transfer {
    int32_t peer;                  /* the other rank */
    int32_t dims;                  /* 0..DPAR_MAX_DIMS */
    int32_t op;                    /* DPAR_COPY, or how the receiver combines: DPAR_SUM, ... */
    uint32_t flip;                 /* bit d: dim d arrives in reverse order */
    int64_t extent[DPAR_MAX_DIMS]; /* elements along each dim, >= 1 */
    int64_t mine[DPAR_MAX_DIMS];   /* where it begins in this rank's local array */
    int64_t theirs[DPAR_MAX_DIMS]; /* and in the peer's */
    int64_t global[DPAR_MAX_DIMS]; /* and in the whole array, on this rank's side */
    int32_t swap[2];               /* these dims change places; the same twice: none do */
    int32_t turn;                  /* quarter turns of a vector, 0..3 */
} dpar_transfer;

/* How what arrives meets what is there. */
enum { DPAR_COPY, DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN, DPAR_OPS };

/* Elements of a transfer: the product of its extents, -1 past 2^63 - 1. O(dims). */
DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *t);

#endif
