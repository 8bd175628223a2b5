/* SPDX-License-Identifier: MIT-0 */
/* halo_items - lists the boxes that the steps of a plan move. Private. */
#ifndef DPARI_HALO_HALO_ITEMS_H
#define DPARI_HALO_HALO_ITEMS_H

#include "halo_plan.h"

/* Sets the items and the flows of all steps, after the peers have described their arrays. */
DPARI_INTERNAL void dpari_hx_list_items(dpar_halo_plan *plan);

#endif
