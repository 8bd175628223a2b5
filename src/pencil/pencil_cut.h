/* SPDX-License-Identifier: MIT-0 */
/* pencil_cut - computes which points each rank's pencil along an axis has, and which grids of ranks
 * are best. Private. */
#ifndef DPARI_PENCIL_PENCIL_CUT_H
#define DPARI_PENCIL_PENCIL_CUT_H

#include "../base/arith.h"

enum {
    DPARI_PENCIL_DIRECTIONS = 9, /* direction 3 * from + to (pencil_plan.h); from is never to */
    DPARI_PENCIL_MOST_GRIDS = 8, /* grids that are tried with desc.measure */
    DPARI_PENCIL_MESSAGE_BYTES = 4096 /* cost of a message in addition to its bytes: one or two
                                         microseconds, at a few GB/s */
};

/* The array and its cut, equal on all ranks. */
typedef struct dpari_pencil_cut {
    int64_t size[3];
    int64_t point; /* bytes */
    int32_t grid[2];
    int32_t order;       /* DPAR_PENCIL_x */
    int32_t rank_order;  /* DPAR_ORDER_x */
    int32_t last_larger; /* 1 if the last parts of a dim have one point more */
} dpari_pencil_cut;

/* The points of a rank's pencil; all counts are 0 if there are none. Strides are in points. */
typedef struct dpari_pencil_box {
    int64_t first[3], count[3], stride[3];
} dpari_pencil_box;

/* Computes the box of a rank's pencil along `axis`. O(1). */
DPARI_INTERNAL dpari_pencil_box dpari_pencil_box_of(const dpari_pencil_cut *cut, int32_t rank,
                                                    int32_t axis);
/* Sets the strides of a box to those of a contiguous array that has only this box, with the dims in
 * the order of pencils along `axis`. */
DPARI_INTERNAL void dpari_pencil_pack_strides(const dpari_pencil_cut *cut, int32_t axis,
                                              dpari_pencil_box *box);
/* Computes the points that two boxes have in common, with strides of 0. Returns their number. */
DPARI_INTERNAL int64_t dpari_pencil_common(const dpari_pencil_box *a, const dpari_pencil_box *b,
                                           dpari_pencil_box *common);
/* Lists the best grids of `ranks` ranks, the best one first, at most DPARI_PENCIL_MOST_GRIDS. They
 * have the numbers of cut->grid that are not 0. Returns how many are listed, 0 if no grid fits. */
DPARI_INTERNAL int32_t dpari_pencil_grids(const dpari_pencil_cut *cut, int32_t ranks,
                                          int32_t (*grid)[2]);

#endif
