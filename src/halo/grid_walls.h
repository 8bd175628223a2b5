/* SPDX-License-Identifier: MIT-0 */
/* grid_walls - lets an exchange include the halo cells beyond walls
 * (dpar_grid_desc.exchange_walls). Private. */
#ifndef DPARI_HALO_GRID_WALLS_H
#define DPARI_HALO_GRID_WALLS_H

#include "grid_object.h"
#include "grid_shape.h"

/* What an exchange of arrays of a shape sends: the halo of a grid that has the cells beyond its
 * walls as well. The rank next to a wall owns these cells. */
struct dpari_gx_walls {
    dpar_halo halo;
    int64_t first[DPAR_MAX_DIMS]; /* this rank's first own cell in that grid, relative to its first
                                     cell in the grid; at most 0 */
    int64_t bytes;                /* size of this struct's memory, which ends with the cuts */
};

/* True if the cells beyond an end of dim d, low (side 0) or high, are sent with the block that is
 * next to it. field: with resolved mirrors, as in dpari_gx_shape. */
DPARI_INTERNAL int dpari_gx_sends_beyond(const dpari_gx *grid, const dpar_grid_field *field,
                                         int32_t d, int side);
/* Makes shape->walls if the grid has desc.exchange_walls. Local. */
DPARI_INTERNAL dpar_status dpari_gx_make_walls(const dpari_gx *grid, dpari_gx_shape *shape,
                                               dpar_why *why);
/* Frees shape->walls. */
DPARI_INTERNAL void dpari_gx_free_walls(dpari_gx_shape *shape);
/* Describes an array of this shape as a field of an exchange. */
DPARI_INTERNAL void dpari_gx_field(const dpari_gx *grid, const dpari_gx_shape *shape, void *at,
                                   dpar_halo_field *field);
/* Returns the halo that an exchange of arrays of this shape fills. */
DPARI_INTERNAL const dpar_halo *dpari_gx_sent(const dpari_gx_shape *shape);

#endif
