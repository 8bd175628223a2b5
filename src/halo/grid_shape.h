/* SPDX-License-Identifier: MIT-0 */
/* grid_shape - where the points of an array are: its halo, components and strides. Private. */
#ifndef DPARI_HALO_GRID_SHAPE_H
#define DPARI_HALO_GRID_SHAPE_H

#include "grid_object.h"

/* Returns the number of points of this rank's array in a dim, with its halo. */
DPARI_INTERNAL int64_t dpari_gx_points(const dpari_gx *grid, const dpar_grid_field *field,
                                       int32_t d);
/* Returns the number of halo cells in a dim that an exchange of this depth fills below the block
 * (side 0) or above it (side 1). */
DPARI_INTERNAL int64_t dpari_gx_width(const dpari_gx *grid, int32_t depth, int32_t d, int side);
/* Checks type, components and points of an array, without the other ranks. */
DPARI_INTERNAL dpar_status dpari_gx_check_field(const dpari_gx *grid, int32_t type,
                                                const dpar_grid_field *field, dpar_why *why);
/* Describes the shape of an array: its halo, and the default strides if the field sets none. */
DPARI_INTERNAL void dpari_gx_shape_of(const dpari_gx *grid, int32_t type,
                                      const dpar_grid_field *field, dpari_gx_shape *shape);
/* Computes the distance in elements from the address of an array to its first element in memory
 * (*low) and to one past the last (*high). Returns 0, or 1 + the dim whose stride reaches further
 * than 2^57 bytes, where dim number `dims` means the components. */
DPARI_INTERNAL int32_t dpari_gx_span(const dpari_gx *grid, const dpari_gx_shape *shape,
                                     int64_t *low, int64_t *high);
/* Checks that the addresses of an array are not too far apart and that it does not overlap
 * itself. */
DPARI_INTERNAL dpar_status dpari_gx_check_span(const dpari_gx *grid, const dpari_gx_shape *shape,
                                               int32_t rank, int64_t *low, int64_t *high,
                                               dpar_why *why);
/* True if two shapes are the same, so that a plan for one can exchange arrays of the other. */
DPARI_INTERNAL int dpari_gx_alike(const dpari_gx *grid, const dpari_gx_shape *a,
                                  const dpari_gx_shape *b);
/* True if the array consists of some components of another one, with the same points and
 * strides. */
DPARI_INTERNAL int dpari_gx_part_of(const dpari_gx *grid, const dpari_gx_shape *shape,
                                    const void *at, const dpari_gx_array *array);
/* Describes an array as a field of a plan. */
DPARI_INTERNAL void dpari_gx_field(const dpari_gx *grid, const dpari_gx_shape *shape, void *at,
                                   dpar_halo_field *field);
/* Computes the box of points that a rank owns, and returns the number of their elements. */
DPARI_INTERNAL int64_t dpari_gx_owned(const dpari_gx_shape *shape, int32_t rank, dpar_box *own);

#endif
