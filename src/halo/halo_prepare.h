/* SPDX-License-Identifier: MIT-0 */
/* halo_prepare - decides how the items of a plan are copied: the loops of each item, lists of small
 * items, and pairs that are copied in one loop. Private. */
#ifndef DPARI_HALO_HALO_PREPARE_H
#define DPARI_HALO_HALO_PREPARE_H

#include "halo_plan.h"

/* Prepares the two copies of an item: when this rank gives it, and when it takes it with `op`. */
DPARI_INTERNAL void dpari_hx_prepare(const dpar_halo_plan *plan, dpari_hx_item *it, int32_t op);
/* Makes the lists of a step's S: of the items that come first, and of the others. The second
 * function makes all lists of a plan. */
DPARI_INTERNAL void dpari_hx_gather_sends(const dpar_halo_plan *plan, const dpari_hx_step *step,
                                          int takes);
DPARI_INTERNAL void dpari_hx_gather_all(const dpar_halo_plan *plan);
/* Returns the dim of the rows of a box, which has the shortest stride in this rank's array, or -1
 * if there are too many rows to prefetch. */
DPARI_INTERNAL int32_t dpari_hx_row_of(const dpari_hx_item *it);
/* Prepares all items of a plan, once they are listed and their places in memory are known. */
DPARI_INTERNAL void dpari_hx_finish_items(dpar_halo_plan *plan);

#endif
