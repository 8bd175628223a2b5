/* SPDX-License-Identifier: MIT-0 */
/* halo_prepare - how the items of a plan are copied: each one's loops, lists of the runs of small
 * ones, two that are walked together. Private. */
#ifndef DPARI_HALO_HALO_PREPARE_H
#define DPARI_HALO_HALO_PREPARE_H

#include "halo_plan.h"

/* The copies of an item: giving; taking with `op`. */
DPARI_INTERNAL void dpari_hx_prepare(const dpar_halo_plan *x, dpari_hx_item *it, int32_t op);
/* The lists of a step's S: of those that come first, and of the others. All lists. */
DPARI_INTERNAL void dpari_hx_gather_sends(const dpar_halo_plan *x, const dpari_hx_step *p,
                                          int takes);
DPARI_INTERNAL void dpari_hx_gather_all(const dpar_halo_plan *x);
/* The dim of the rows of a box in this rank's array, the shortest steps; -1: there are too many. */
DPARI_INTERNAL int32_t dpari_hx_row_of(const dpari_hx_item *it);
/* Everything, for all items, once they are listed and places in memory are known. */
DPARI_INTERNAL void dpari_hx_finish_items(dpar_halo_plan *x);

#endif
