/* SPDX-License-Identifier: MIT-0 */
/* cover - checks whether boxes cover an array. The check needs all boxes at once, in the
 * caller's memory.
 *
 *     dpar_box_cover(2, extent, box, n, order, &why);    DPAR_OK if each element is in one box
 */
#ifndef DPARI_INDEX_COVER_H
#define DPARI_INDEX_COVER_H

#include "../base/box.h"

/* Checks whether n boxes cover an array so that each element is in exactly one box. Empty boxes are
 * ignored.
 *
 * extent:  [dims], the shape of the array.
 * order:   [n], scratch.
 *
 * Fails with DPAR_E_ARG if not. The message then names a box that is outside the array, two boxes
 * that overlap, or the number of elements that are in no box and the first of them. Fails with
 * DPAR_E_RANGE if the array has more than 2^63 - 1 elements. Costs O(n log n + pairs that overlap
 * in the dim where the boxes are thinnest).
 */
DPAR_API dpar_status dpar_box_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                    int32_t n, int32_t *order, dpar_why *why);

#endif
