/* SPDX-License-Identifier: MIT-0 */
/* grid_check - finds stencils that read stale cells of a deep halo (dpar_grid_desc.steps). The
 * calls do nothing unless the grid was made with desc.check = 1, so that they can stay in a code.
 *
 *     dpar_grid_exchange(g, u);
 *     for (j = 0; dpar_grid_valid(g, j, &box); j++) {
 *         dpar_grid_poison(g, &v, 1, &why);               v is overwritten: NaN everywhere
 *         ... compute the cells of box of v from u ...
 *         dpar_grid_check_step(g, &v, 1, j, &why);        names array, cell and sub-step
 *         ... swap u and v ...
 *     }
 *
 * Cells that are not valid hold a NaN that tells which cell of which array it is, and since when.
 * It passes through sums and products, so that the cells that were computed from it name their
 * source. RISC-V processors and most GPUs replace such NaNs by another; then the source is unknown.
 */
#ifndef DPARI_DEBUG_GRID_CHECK_H
#define DPARI_DEBUG_GRID_CHECK_H

#include "../base/base.h"
#include "../halo/grid.h"

/* Sets all points of arrays to NaN, own ones too, except those beyond walls. Call it before a
 * sub-step for arrays that it overwrites; dpar_grid_check_step then also finds cells that the
 * sub-step leaves out.
 *
 * arrays: [count], 1 to 4096 arrays of DPAR_F64 or DPAR_F32, in memory that the CPU can reach.
 *
 * Local. Costs O(points). Fails with DPAR_E_ARG if an address is not that of such an array. Does
 * nothing unless desc.check is 1. */
DPAR_API dpar_status dpar_grid_poison(dpar_grid *grid, void *const *arrays, int32_t count,
                                      dpar_why *why);
/* Checks the arrays that sub-step j has written, and sets their halo cells that are not valid
 * afterwards to NaN. Call it after each sub-step, before dpar_grid_reflect.
 *
 * arrays: [count], as for dpar_grid_poison; their own values must not be NaN.
 * j:      the sub-step, as for dpar_grid_valid.
 *
 * The message names array (from 0), cell (index in the whole grid) and sub-step. It also names a
 * stale cell that was read, if the processor passes NaNs on. The following faults are found. A
 * sub-step is one too many. An array was not exchanged or reflected. A stencil is wider than its
 * radius, halo / steps; the message says which halo it needs. A loop covers more cells than those
 * of dpar_grid_valid, or after dpar_grid_poison fewer.
 *
 * Collective: all ranks pass the same arrays and fail if one has found a fault. Costs O(points) and
 * a small all-reduce. Fails with DPAR_E_ARG, and with the errors of the communicator. Does nothing
 * unless desc.check is 1. */
DPAR_API dpar_status dpar_grid_check_step(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t j, dpar_why *why);

#endif
