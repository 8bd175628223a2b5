/* SPDX-License-Identifier: MIT-0 */
/* halo_box_groups - moves several boxes of an exchange at once: the two sides of a block in one
 * loop, and tiny boxes from a list. Private. */
#ifndef DPARI_HALO_HALO_BOX_GROUPS_H
#define DPARI_HALO_HALO_BOX_GROUPS_H

#include "../host/strided.h"

enum { DPARI_STRIDE_FEW = 8 }; /* the most runs of a box in a list */

/* One run in a list: offsets in bytes from the two addresses that are passed with the list. */
typedef struct dpari_stride_spot {
    int32_t to, from;
} dpari_stride_spot;

/* ---- of this header's own modules ---- */

/* Writes the runs of a small box, one per entry, in the order of its walk. Lists are for boxes that
 * take longer to set up than to move. Returns the number of entries, or 0 if there are more than
 * DPARI_STRIDE_FEW or if such a box cannot be in a list.
 *
 * to_at, from_at: bytes from the addresses that are passed with the list to index 0 of the box. */
DPARI_INTERNAL int32_t dpari_stride_list(const dpari_stride *stride, int64_t to_at, int64_t from_at,
                                         dpari_stride_spot *list);
/* True if two boxes, each of which can be in a list, may be in the same list. */
DPARI_INTERNAL int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b);
/* True if two large boxes may be moved as a group: they have the same steps and number of rows, and
 * runs for which there is a loop. apart: bytes between the two boxes in this rank's array; they
 * must begin in the same row. takes: 1 if they are copied to that array, 0 if from it. */
DPARI_INTERNAL int dpari_stride_groups(const dpari_stride *a, const dpari_stride *b, int64_t apart,
                                       int takes);
/* Moves n entries of a list one after the other. stride: any box of the list. If it has more than
 * DPARI_STRIDE_FEW runs, the list is a group of such boxes, with two entries for each: where its
 * walk begins, and the number of runs in a row. They are moved in one walk, one run of each in
 * turn. */
DPARI_INTERNAL void dpari_stride_run_list(const dpari_stride *stride, const dpari_stride_spot *list,
                                          int64_t n, void *to, const void *from);

/* Moves two boxes, in one walk if they have the same shape. This is for the two sides of a block,
 * which are often in the same cache lines and pages. Neither box may read or write what the other
 * one writes. */
DPARI_INTERNAL void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                            const dpari_stride *b, void *to_b, const void *from_b);

#endif
