/* SPDX-License-Identifier: MIT-0 */
/* box - describes a box of indices, and a box of values that one rank sends to another. */
#ifndef DPARI_BASE_BOX_H
#define DPARI_BASE_BOX_H

#include "base.h"

enum { DPAR_MAX_DIMS = 6 }; /* the most dimensions that an array may have */

/* A box of indices: lo[d] <= i < hi[d] in every dim d. It is empty if hi[d] <= lo[d] in any dim.
 * Dim 0 is the slowest in memory, as in C and torch. */
typedef struct dpar_box {
    int32_t dims; /* 0..DPAR_MAX_DIMS; a box with 0 dims holds one element */
    int64_t lo[DPAR_MAX_DIMS], hi[DPAR_MAX_DIMS];
} dpar_box;

/* Counts the elements of a box. Returns 0 if the box is empty and -1 if there are more than
 * 2^63 - 1. Costs O(dims). */
DPAR_API int64_t dpar_box_volume(const dpar_box *box);

/* A box of values that one rank sends to another, or copies locally if `peer` is the rank itself.
 * Redistributions and halos are lists of transfers.
 *
 *     send:     element j of dim d is sent from mine[d] + j here to theirs[d] + j at the peer
 *     receive:  it is received from theirs[d] + j at the peer into mine[d] + j here
 *
 * Both sides list the same transfers in the same order: the k-th send from a to b is the k-th
 * receive of b from a. A packed message holds the box in the sender's order, the last dim fastest.
 *
 * Only folded grids, poles and cubed spheres set flip, swap and turn. If bit d of `flip` is set,
 * the receiver counts its dim d backwards, so that element j arrives at extent[d] - 1 - j. If
 * swap[0] and swap[1] differ, the receiver has these two dims exchanged: `extent` is the sender's,
 * and what the sender has at index j arrives at j with the two indices exchanged.
 *
 * Where the grid is rotated, vectors must be rotated too. After `turn` quarter turns a pair (u
 * along the last dim, v along the one before it) becomes (-v, u) for 1, (-u, -v) for 2 and (v, -u)
 * for 3. Across folds and poles `turn` is 2, which means that each component changes its sign. */
typedef struct dpar_transfer {
    int32_t peer;  /* the other rank */
    int32_t dims;  /* 0..DPAR_MAX_DIMS */
    int32_t op;    /* DPAR_COPY, DPAR_SUM, ...: what the receiver does with the values */
    uint32_t flip; /* bit d: dim d of the receiver is reversed */
    int64_t extent[DPAR_MAX_DIMS]; /* elements along each dim, at least 1 */
    int64_t mine[DPAR_MAX_DIMS];   /* first element in this rank's local array */
    int64_t theirs[DPAR_MAX_DIMS]; /* first element in the peer's local array */
    int64_t global[DPAR_MAX_DIMS]; /* first element in the global array, on this rank's side */
    int32_t swap[2];               /* the two dims that are exchanged; equal if none are */
    int32_t turn;                  /* quarter turns of vectors, 0..3 */
} dpar_transfer;

/* How a received value is combined with the value that is already there. */
enum {
    DPAR_COPY, /* replaces it */
    DPAR_SUM,
    DPAR_AVG,
    DPAR_PRODUCT,
    DPAR_MAX,
    DPAR_MIN,
    DPAR_OP_COUNT
};

/* Counts the elements of a transfer, the product of its extents. Returns -1 if there are more than
 * 2^63 - 1. Costs O(dims). */
DPAR_API int64_t dpar_transfer_volume(const dpar_transfer *transfer);

#endif
