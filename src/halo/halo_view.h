/* SPDX-License-Identifier: MIT-0 */
/* halo_view - what the reports and checks of dpar_debug.h read of a plan. Private. */
#ifndef DPARI_HALO_HALO_VIEW_H
#define DPARI_HALO_HALO_VIEW_H

#include "halo_plan.h"

/* Checks that no exchange is in progress and that the CPU may read the plan's arrays. */
DPARI_INTERNAL dpar_status dpari_hx_may_look(const dpar_halo_plan *plan, dpar_why *why);
/* Returns box k of the halo cells that a forward exchange fills, or NULL if there is no box k. */
DPARI_INTERNAL const dpari_hx_item *dpari_hx_received(const dpar_halo_plan *plan, int64_t k);
/* Returns the address at which the CPU can read the cells of a box, and their steps. Cells in the
 * memory of a device are first copied. Returns NULL if that fails. */
DPARI_INTERNAL const unsigned char *dpari_hx_look_at(const dpar_halo_plan *plan,
                                                     const dpari_hx_item *it, const int64_t **step);
/* Sets all cells of a box to one element of at most 8 bytes. */
DPARI_INTERNAL void dpari_hx_fill_cells(const dpar_halo_plan *plan, const dpari_hx_item *it,
                                        const uint64_t *element);
/* Returns the owner of the cell that a box has at here[]. */
DPARI_INTERNAL int32_t dpari_hx_owner(const dpar_halo_plan *plan, const dpari_hx_item *it,
                                      const int64_t *here);
/* Returns the address of a point of this rank's local box, and sets its strides in elements. */
DPARI_INTERNAL const unsigned char *dpari_hx_point(const dpar_halo_plan *plan, int32_t field,
                                                   const int64_t *at, int64_t *stride);
/* True if a part of a field (DPARI_HX_OWN, DPARI_HX_HALOS) is packed only because it is not in
 * registered memory, from which peers that share memory could read it directly. */
DPARI_INTERNAL int dpari_hx_unreached(const dpar_halo_plan *plan, int32_t field, int32_t part);
/* Writes the number of exchanges and, if the plan has timers, how long each took. */
DPARI_INTERNAL void dpari_hx_put_exchanges(const dpar_halo_plan *plan, dpar_text *out);

#endif
