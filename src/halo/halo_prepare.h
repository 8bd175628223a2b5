/* SPDX-License-Identifier: MIT-0 */
/* halo_prepare - decides how the items of a plan are copied: the loops of each item, lists of small
 * items, and pairs that are copied in one loop. Private. */
#ifndef DPARI_HALO_HALO_PREPARE_H
#define DPARI_HALO_HALO_PREPARE_H

#include "halo_plan.h"

/* Prepares the two copies of an item: for when this rank takes it with `op`, and for when it gives
 * it. */
DPARI_INTERNAL void dpari_hx_prepare(const dpar_halo_plan *plan, dpari_hx_item *it, int32_t op);
/* Combines small items of a step's S into lists: first the items that wait for no peer, then the
 * other items. */
DPARI_INTERNAL void dpari_hx_gather_sends(const dpar_halo_plan *plan, const dpari_hx_step *step,
                                          int takes);
/* Combines small items of all steps into lists. */
DPARI_INTERNAL void dpari_hx_gather_all(const dpar_halo_plan *plan);
/* Returns the dim of the rows of a box, which is the dim with the shortest stride in this rank's
 * array, or -1 if there are too many rows to prefetch. */
DPARI_INTERNAL int32_t dpari_hx_row_of(const dpari_hx_item *it);
/* Prepares all items of a plan, after they have been listed and assigned places in memory. */
DPARI_INTERNAL void dpari_hx_finish_items(dpar_halo_plan *plan);

#endif
