/* SPDX-License-Identifier: MIT-0 */
/* grid_plans - which plan exchanges which arrays. Private. */
#ifndef DPARI_HALO_GRID_PLANS_H
#define DPARI_HALO_GRID_PLANS_H

#include "../comm/agree.h"
#include "grid_object.h"

/* The arrays and the depth of an exchange, which the ranks compare. */
typedef struct dpari_gx_numbers {
    const dpari_gx *grid;
    void *const *list;
    int32_t count, depth;
} dpari_gx_numbers;

/* Returns the plan of the exchange in progress that u takes part in, or NULL. */
DPARI_INTERNAL dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u);
/* Checks the arrays and the depth of an exchange, without the other ranks. */
DPARI_INTERNAL dpar_status dpari_gx_check_list(const dpari_gx *grid, void *const *list,
                                               int32_t count, int32_t depth, dpar_why *why);
/* Lists the numbers of the arrays, which are compared in grids with desc.check and before
 * gathering. */
DPARI_INTERNAL void dpari_gx_state_list(dpari_facts *facts, const void *given);
/* Finds or makes the plan of an exchange, and binds the arrays to it. */
DPARI_INTERNAL dpar_status dpari_gx_bind_plan(dpari_gx *grid, void *const *list, int32_t n,
                                              int32_t depth, dpari_gx_plan **plan);
/* Fast path for codes that swap two arrays: if u was bound to grid->quick before the array that is
 * bound now, binds u again and returns 1, otherwise returns 0. */
DPARI_INTERNAL int dpari_gx_rebind(dpari_gx *grid, void *u);
/* Frees all plans and their memory. Returns the first failure. comm is NULL if its world was
 * closed, which has freed the plans themselves. */
DPARI_INTERNAL dpar_status dpari_gx_free_plans(dpari_gx *grid, const dpar_comm *comm);

#endif
