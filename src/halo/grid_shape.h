/* SPDX-License-Identifier: MIT-0 */
/* grid_shape - describes where the points of an array are: its halo, components and strides.
 * Private. */
#ifndef DPARI_HALO_GRID_SHAPE_H
#define DPARI_HALO_GRID_SHAPE_H

#include "grid_object.h"

enum { DPARI_GX_DIRECTIONS = 64 }; /* the most components with directions */

/* The kind of an array. Arrays of one shape can be exchanged with the same plan. */
struct dpari_gx_shape {
    struct dpari_gx_shape *next;
    dpar_halo halo;        /* the whole halo of the array */
    dpari_gx_walls *walls; /* NULL unless the grid has desc.exchange_walls */
    dpar_grid_field field; /* with components, mirrors and all strides, also if they are the
                              defaults. Mirrors are NONE, FACE or CELL */
    int64_t low, high; /* bytes from the address of an array to where its points begin and end */
    int64_t origin;    /* bytes from the address of an array to its first own point */
    int8_t direction[DPARI_GX_DIRECTIONS][DPAR_MAX_DIMS]; /* only if field.direction is not NULL,
                                                              which points here */
    int32_t number;                                       /* the same on all ranks */
    int32_t type;
    int32_t reach;  /* 1 if peers may read the arrays in place */
    int32_t packed; /* 1 for arrays of desc.type: their addresses may change from call to call, so
                       that they are always packed */
};

/* Returns the number of points of this rank's array in a dim, with its halo. */
DPARI_INTERNAL int64_t dpari_gx_points(const dpari_gx *grid, const dpar_grid_field *field,
                                       int32_t d);
/* Returns the number of halo cells in a dim that an exchange of this depth fills below the block
 * (side 0) or above it (side 1). */
DPARI_INTERNAL int64_t dpari_gx_width(const dpari_gx *grid, int32_t depth, int32_t d, int side);
/* Checks the description of an array, and computes its shape on a rank. field: NULL means cells.
 * Local. Fails with DPAR_E_ARG or DPAR_E_RANGE. */
DPARI_INTERNAL dpar_status dpari_gx_make_shape(const dpari_gx *grid, int32_t type,
                                               const dpar_grid_field *field, int32_t rank,
                                               dpari_gx_shape *shape, dpar_why *why);
/* True if two shapes are the same, so that a plan for one can exchange arrays of the other. */
DPARI_INTERNAL int dpari_gx_alike(const dpari_gx *grid, const dpari_gx_shape *a,
                                  const dpari_gx_shape *b);
/* True if one of two arrays, which are `apart` bytes from each other, consists of some components
 * of the other one, with the same points and strides. */
DPARI_INTERNAL int dpari_gx_part_of(const dpari_gx *grid, const dpari_gx_shape *a,
                                    const dpari_gx_shape *b, int64_t apart);
/* Computes the box of points that a rank owns, and returns the number of their elements. If it is
 * 0, *own is not set. */
DPARI_INTERNAL int64_t dpari_gx_owned(const dpari_gx_shape *shape, int32_t rank, dpar_box *own);

#endif
