/* SPDX-License-Identifier: MIT-0 */
/* grid_access - what the checks of dpar_debug.h read of an array of a grid. Private. */
#ifndef DPARI_HALO_GRID_ACCESS_H
#define DPARI_HALO_GRID_ACCESS_H

#include "../base/arith.h"
#include "grid.h"

typedef struct dpari_gx_access {
    const dpar_grid_desc *desc;
    const dpar_grid_field *field; /* with components and all strides, also if they are defaults */
    unsigned char *first;         /* the first own point */
    const int64_t *low, *high;    /* [dims] width of the halo */
    int64_t widest;               /* the largest of these */
    int32_t steps;                /* desc.steps, at least 1 */
    int32_t type;
    int32_t device; /* 1 if arrays are in memory that the CPU cannot reach */
} dpari_gx_access;

/* Describes an array. Returns 1, or 0 if it is not an array of the grid, or the grid's world was
 * closed. */
DPARI_API int dpari_gx_access_to(dpar_grid *grid, void *array, dpari_gx_access *access);

#endif
