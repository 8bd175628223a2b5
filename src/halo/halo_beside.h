/* SPDX-License-Identifier: MIT-0 */
/* halo_beside - private: what an exchange does with many boxes at once: the two sides of a block in
 * one loop, and tiny boxes from a list. */
#ifndef DPARI_HALO_HALO_BESIDE_H
#define DPARI_HALO_HALO_BESIDE_H

#include "../comm/strided.h"

enum { DPARI_STRIDE_FEW = 8 }; /* runs of a box that may stand in a list */

/* One run in a list: bytes from the addresses that the list is run with. */
typedef struct dpari_stride_spot {
    int32_t to, from;
} dpari_stride_spot;

/* ---- of this header's own modules ---- */

/* Boxes so small that each takes longer to begin than to move: the runs of one, in the order of its
 * walk, as an entry each, for addresses that lie to_at and from_at bytes before those of run.
 * Returns how many; 0: more than DPARI_STRIDE_FEW, or there are no lists of such. */
DPARI_INTERNAL int32_t dpari_stride_list(const dpari_stride *s, int64_t to_at, int64_t from_at,
                                         dpari_stride_spot *list);
/* True if two boxes that lists are made of may be in the same list. */
DPARI_INTERNAL int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b);
/* n entries, of s and boxes alike, one after the other. */
DPARI_INTERNAL void dpari_stride_run_list(const dpari_stride *s, const dpari_stride_spot *list,
                                          int64_t n, void *to, const void *from);

/* Both, in one walk where they have one shape: for the two sides of a box, which often lie in the
 * same lines and pages. What one writes the other neither reads nor writes. */
DPARI_INTERNAL void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                            const dpari_stride *b, void *to_b, const void *from_b);

#endif
