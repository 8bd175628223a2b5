/* SPDX-License-Identifier: MIT-0 */
/* box - a rectangle of indices, and a rectangle that travels from one rank to another. */
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

/* One rectangle that goes from one rank to another, or stays where peer is the rank itself.
 * Layouts, redistributions and halos list these.
 *
 *     send:     element j of dim d goes from mine[d] + j here to theirs[d] + j at the peer
 *     receive:  it comes from theirs[d] + j at the peer to mine[d] + j here
 *
 * Both sides list the same transfers in the same order: the k-th send from a to b is the k-th
 * receive of b from a. A packed message holds the box in the sender's order, the last dim fastest.
 *
 * Folded grids, poles and cubed spheres use the rest. Where bit d of `flip` is set, the receiver
 * counts dim d backwards: extent[d] - 1 - j in place of j. Where swap[0] and swap[1] differ, these
 * two dims change places on the way. `extent` is then the sender's: what the sender has at j
 * arrives at j with the two exchanged. `flip` reverses dims of the receiver.
 *
 * Vectors turn where the grid does. A pair (u along the last dim, v along the one before) arrives
 * after `turn` quarter turns as (-v, u) for 1, (-u, -v) for 2, (v, -u) for 3. Over folds and poles
 * `turn` is 2: each component changes its sign. */
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
enum { DPAR_COPY, DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN, DPAR_OP_COUNT };

/* Elements of a transfer: the product of its extents, -1 past 2^63 - 1. O(dims). */
DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *t);

#endif
