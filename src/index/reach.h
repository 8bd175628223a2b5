/* SPDX-License-Identifier: MIT-0 */
/* reach - private: what the walk over a halo's transfers asks about points and their owners. */
#ifndef DPARI_INDEX_REACH_H
#define DPARI_INDEX_REACH_H

#include "inner.h"
#include "halo.h"

/* The coordinates of a rank's block; 0: it has none. */
DPARI_API int dpari_halo_coords(const dpar_halo *h, int32_t rank, int32_t *coord);
/* True if every halo point is outside the block in one dim only. */
DPARI_API int dpari_halo_star(const dpar_halo *h);
enum { DPARI_EDGE_WEST, DPARI_EDGE_EAST, DPARI_EDGE_SOUTH, DPARI_EDGE_NORTH };
/* The face of a cubed sphere beyond an edge (-x, +x, -y, +y) of a face, and how many quarter turns
 * a vector makes on its way from there to here (`turn` of dpar_transfer); -1 when there is no such
 * face or edge. */
DPARI_API int32_t dpari_halo_edge(int32_t face, int32_t edge, int32_t *turn);

/* ---- of this header's own modules ---- */

/* The owner of point i of a dim: the coordinates of the axes that cut it, and what it owns. */
DPARI_INTERNAL void dpari_halo_owner(const dpar_halo *h, int32_t d, int64_t i, int32_t *coord,
                                     int64_t *at);
/* One dim of the rank at coord[]: its own points, and what its array holds. Without points of its
 * own they are empty and lie at the beginning. 0 when it has neither. */
DPARI_INTERNAL int dpari_halo_range(const dpar_halo *h, const int32_t *coord, int32_t d,
                                    int64_t *own, int64_t *box);
/* True if the end of a dim meets other points, so that the dim has as many faces as cells. */
DPARI_INTERNAL int dpari_halo_closed(const dpar_halo *h, int32_t d);
/* Of how many dims at once halo points may lie outside. */
DPARI_INTERNAL int32_t dpari_halo_outside(const dpar_halo *h);
/* Rows behind a pole: not the one that is held twice. */
DPARI_INTERNAL int64_t dpari_halo_behind(const dpar_halo *h, uint32_t pole);

#endif
