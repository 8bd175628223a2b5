/* SPDX-License-Identifier: MIT-0 */
/* pencil_cut - which points each rank has as a pencil along each axis, and which grid of ranks is
 * best. Private. */
#ifndef DPARI_PENCIL_PENCIL_CUT_H
#define DPARI_PENCIL_PENCIL_CUT_H

#include "../base/arith.h"

enum {
    DPARI_PENCIL_WAYS = 9,            /* 3 * from + to; those with from == to are not used */
    DPARI_PENCIL_MOST_GRIDS = 8,      /* grids that are tried with desc.measure */
    DPARI_PENCIL_MESSAGE_BYTES = 4096 /* what a message costs beyond its bytes: a microsecond or
                                         two, at some GB/s */
};

/* The array and its cut, equal on all ranks. */
typedef struct dpari_pencil_cut {
    int64_t size[3];
    int64_t point; /* bytes */
    int32_t grid[2];
    int32_t order; /* DPAR_PENCIL_x */
} dpari_pencil_cut;

/* The points of a rank along an axis; all counts are 0 if there are none. Strides are in points. */
typedef struct dpari_pencil_box {
    int64_t first[3], count[3], stride[3];
} dpari_pencil_box;

/* Computes the box of a rank. O(1). */
DPARI_INTERNAL dpari_pencil_box dpari_pencil_box_of(const dpari_pencil_cut *cut, int32_t rank,
                                                    int32_t axis);
/* Sets the strides of a box to those of an array of its own, with the dims in the order of pencils
 * along `axis`. */
DPARI_INTERNAL void dpari_pencil_pack_strides(const dpari_pencil_cut *cut, int32_t axis,
                                              dpari_pencil_box *box);
/* Computes the points that two boxes have in common, with strides of 0. Returns their number. */
DPARI_INTERNAL int64_t dpari_pencil_common(const dpari_pencil_box *a, const dpari_pencil_box *b,
                                           dpari_pencil_box *common);
/* Lists the best grids of `ranks` ranks, the best one first, at most DPARI_PENCIL_MOST_GRIDS.
 * Numbers of cut->grid that are not 0 are kept. Returns how many there are; 0 if no grid has that
 * many ranks. */
DPARI_INTERNAL int32_t dpari_pencil_grids(const dpari_pencil_cut *cut, int32_t ranks,
                                          int32_t (*grid)[2]);

#endif
