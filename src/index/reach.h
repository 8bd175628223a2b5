/* SPDX-License-Identifier: MIT-0 */
/* reach - private: the functions about points and their owners that the walk over a halo's
 * transfers calls. */
#ifndef DPARI_INDEX_REACH_H
#define DPARI_INDEX_REACH_H

#include "index_private.h"
#include "halo.h"

/* Computes the coordinates of a rank's block. Returns 1, or 0 if it has none. */
DPARI_API int dpari_halo_coords(const dpar_halo *halo, int32_t rank, int32_t *coord);
/* True if every halo point is outside the block in one dim only. */
DPARI_API int dpari_halo_star(const dpar_halo *halo);
enum { DPARI_EDGE_WEST, DPARI_EDGE_EAST, DPARI_EDGE_SOUTH, DPARI_EDGE_NORTH };
/* Returns the face of a cubed sphere beyond an edge (-x, +x, -y, +y) of a face. *turn receives the
 * quarter turns by which vectors from there are rotated here (`turn` of dpar_transfer). Returns -1
 * if there is no such face or edge. */
DPARI_API int32_t dpari_halo_edge(int32_t face, int32_t edge, int32_t *turn);

/* Computes, in one dim of the rank at coord[], the points that it owns and the points in its array.
 * If it owns none, `own` is an empty range at the start of the array. Returns 1, or 0 if it has
 * neither. */
DPARI_API int dpari_halo_range(const dpar_halo *halo, const int32_t *coord, int32_t d, int64_t *own,
                               int64_t *box);

/* ---- of this header's own modules ---- */

/* Finds the owner of point i of a dim. coord receives its coordinates on the axes that cut the dim,
 * and at[0], at[1] the range of points that it owns. */
DPARI_INTERNAL void dpari_halo_owner(const dpar_halo *halo, int32_t d, int64_t i, int32_t *coord,
                                     int64_t *at);
/* True if there are other points beyond the ends of a dim, so that it has as many faces as cells.
 */
DPARI_INTERNAL int dpari_halo_closed(const dpar_halo *halo, int32_t d);
/* Returns in how many dims at once a halo point may be outside the points that its rank owns. */
DPARI_INTERNAL int32_t dpari_halo_outside(const dpar_halo *halo);
/* Returns the number of rows beyond a pole, without the row that is held twice. */
DPARI_INTERNAL int64_t dpari_halo_behind(const dpar_halo *halo, uint32_t pole);

#endif
