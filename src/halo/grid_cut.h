/* SPDX-License-Identifier: MIT-0 */
/* grid_cut - checks the description of a grid, and cuts its cells into one block per rank. Private.
 */
#ifndef DPARI_HALO_GRID_CUT_H
#define DPARI_HALO_GRID_CUT_H

#include "../comm/agree.h"
#include "grid_object.h"

/* Checks the description of grid->desc, and cuts the cells into one block per rank. Local. */
DPARI_INTERNAL dpar_status dpari_gx_cut_cells(dpari_gx *grid, const dpar_comm *comm, dpar_why *why);
/* Cuts the cells into one block per rank, where desc.cuts says. Sets grid->halo and the public head
 * of the grid. Local. */
DPARI_INTERNAL dpar_status dpari_gx_cut(dpari_gx *grid, const dpar_comm *comm, dpar_why *why);
/* Returns the number of cells of a part of dim d, and sets *first to its first cell. */
DPARI_INTERNAL int64_t dpari_gx_cells_of_part(const dpari_gx *grid, int32_t d, int32_t part,
                                              int64_t *first);
/* True if this rank has no cells. Its arrays then have no points, and no memory is touched. */
DPARI_INTERNAL int dpari_gx_is_empty(const dpari_gx *grid);
/* Checks that the array of this rank holds all cells that mirrors of these kinds reflect. */
DPARI_INTERNAL dpar_status dpari_gx_check_mirrors(const dpari_gx *grid, const int32_t *low,
                                                  const int32_t *high, dpar_why *why);
/* Lists the fields of a description that must be equal on all ranks. */
DPARI_INTERNAL void dpari_gx_state(dpari_facts *facts, const void *given);

#endif
