/* SPDX-License-Identifier: MIT-0 */
/* grid_start - recognises the address of a whole array in place of that of its first own point.
 * Private. */
#ifndef DPARI_HALO_GRID_START_H
#define DPARI_HALO_GRID_START_H

#include "grid_object.h"
#include "grid_shape.h"

/* Checks that `at` can be the address of an array of this shape. Fails with DPAR_E_ARG if it is the
 * beginning of a block of malloc that has the size of the whole array, although addresses are those
 * of first own points. caller: begins the message. Local. */
DPARI_INTERNAL dpar_status dpari_gx_check_start(const dpari_gx *grid, const dpari_gx_shape *shape,
                                                const void *at, const char *caller, dpar_why *why);

#endif
