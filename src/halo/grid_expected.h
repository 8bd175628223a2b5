/* SPDX-License-Identifier: MIT-0 */
/* grid_expected - cuts a grid where the caller's code cuts it (dpar_grid_desc.expected_count).
 * Private. */
#ifndef DPARI_HALO_GRID_EXPECTED_H
#define DPARI_HALO_GRID_EXPECTED_H

#include "grid_object.h"

/* Compares the block of each rank with the expected count. If a rank has another one, cuts the grid
 * again, so that all ranks have what they expect. Collective. Fails on all ranks with DPAR_E_ARG if
 * that is impossible, and with DPAR_E_RANGE if an array would then be too large. */
DPARI_INTERNAL dpar_status dpari_gx_cut_as_expected(dpari_gx *grid, dpar_comm *comm, dpar_why *why);

#endif
