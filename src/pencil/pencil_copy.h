/* SPDX-License-Identifier: MIT-0 */
/* pencil_copy - copies a box of points between two arrays whose dims may be in different orders.
 * Private. */
#ifndef DPARI_PENCIL_PENCIL_COPY_H
#define DPARI_PENCIL_PENCIL_COPY_H

#include "../host/strided.h"

/* A prepared copy. If the same dim is the innermost on both sides, dpari_stride copies runs along
 * it. Otherwise the box is copied in tiles of the two innermost dims. */
typedef struct dpari_pencil_copy {
    int64_t to_at, from_at; /* bytes from the start of an array to the box */
    int32_t tiled;          /* 1 if the box is copied in tiles */
    int32_t whole[2];       /* 1 if the box is contiguous in `to`, and in `from` */
    int32_t same;           /* 1 if the points have the same order on both sides */
    int64_t bytes;          /* of the box */
    dpari_stride stride;
    /* For tiles: bytes of a point, and the dims: innermost of `to`, innermost of `from`, other. */
    int64_t point, count[3], to[3], from[3];
} dpari_pencil_copy;

/* Prepares a copy of `count` points along each dim. to, from: the points from one index to the next
 * on each side. point: bytes of a point. wide: dpari_cpu_wide. */
DPARI_INTERNAL void dpari_pencil_prepare(dpari_pencil_copy *copy, const int64_t *count,
                                         const int64_t *to, const int64_t *from, int64_t point,
                                         int32_t wide);
/* Copies from `from` + from_at to `to` + to_at. The two must not overlap. */
DPARI_INTERNAL void dpari_pencil_run(const dpari_pencil_copy *copy, unsigned char *to,
                                     const unsigned char *from);

#endif
