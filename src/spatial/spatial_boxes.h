/* SPDX-License-Identifier: MIT-0 */
/* spatial_boxes - private: which inputs the outputs of a layer read, the boxes of a rank, and
 * tiles. Local. */
#ifndef DPARI_SPATIAL_SPATIAL_BOXES_H
#define DPARI_SPATIAL_SPATIAL_BOXES_H

#include "../base/arith.h"
#include "spatial.h"

/* True if the layer has a window along the dim. Other dims are left as they are. */
DPARI_INTERNAL int dpari_spatial_touches(const dpar_spatial_desc *layer, int32_t d);
/* Returns how a dim is padded. Interpolation has no padding by zeros, and repeats the ends
 * instead. */
DPARI_INTERNAL int32_t dpari_spatial_padding(const dpar_spatial_desc *layer, int32_t d);
/* True if the padding of a dim is a constant. */
DPARI_INTERNAL int dpari_spatial_pads_constant(const dpar_spatial_desc *layer, int32_t d);
/* Checks a layer and sets m[] to its outputs of each dim. */
DPARI_INTERNAL dpar_status dpari_spatial_outputs(const dpar_spatial_desc *layer, int64_t *m,
                                                 dpar_why *why);
/* Lays out the outputs over the ranks.
 *
 * cuts: memory for the cuts of all axes. If it is NULL, outputs that follow are laid out like
 *       balanced ones, for callers that do not use their layout. */
DPARI_INTERNAL dpar_status dpari_spatial_layout(const dpar_spatial_desc *layer, const int64_t *m,
                                                int64_t *cuts, dpar_layout *out, dpar_why *why);
/* Describes the halo of a layer. out: the layout of its outputs. */
DPARI_INTERNAL void dpari_spatial_halo(const dpar_spatial_desc *layer, const dpar_layout *out,
                                       dpar_halo *halo);
/* Computes the boxes of a rank: its own inputs, its outputs, and the smallest box for its input
 * arrays. Boxes without points have dims 0, and so have all boxes of a rank that does not exist. */
DPARI_INTERNAL void dpari_spatial_boxes_of(const dpar_spatial_desc *layer, const int64_t *m,
                                           int32_t rank, dpar_box *own, dpar_box *out,
                                           dpar_box *in);
/* Sets `in` to the box of inputs that the outputs of `out` read. Returns 0 if they read none. */
DPARI_INTERNAL int dpari_spatial_needs(const dpar_spatial_desc *layer, const dpar_box *out,
                                       dpar_box *in);
/* Sets `core` to the outputs of a dim that read only own points and constants. */
DPARI_INTERNAL void dpari_spatial_inner(const dpar_spatial_desc *layer, int32_t d,
                                        const int64_t *own, const int64_t *out, int64_t *core);
/* Returns the offset of a point of a plane in a tile, in elements. */
DPARI_INTERNAL int64_t dpari_tile_at(const dpar_tile *tile, int64_t plane, const int64_t *point);

#endif
