/* SPDX-License-Identifier: MIT-0 */
/* grid_arrays - the table of the arrays that a grid knows, and of their shapes. Private. */
#ifndef DPARI_HALO_GRID_ARRAYS_H
#define DPARI_HALO_GRID_ARRAYS_H

#include "grid_object.h"

/* Returns the known array at this address, or NULL. */
DPARI_INTERNAL dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at);
/* Returns a known array that has elements in common with an array at `at` whose points are between
 * the addresses low and high, or NULL. Arrays that are components of each other do not count. */
DPARI_INTERNAL dpari_gx_array *dpari_gx_overlapping(const dpari_gx *grid,
                                                    const dpari_gx_shape *shape, void *at,
                                                    int64_t low, int64_t high);
/* Returns a known array that has elements in common with an array of desc.type at this address, or
 * NULL. */
DPARI_INTERNAL const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at);
/* Returns the shape of the array at this address, or NULL if it is not an array of the grid. An
 * address that is not known has the shape of desc.type, unless it is inside a known array. */
DPARI_INTERNAL const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at);
/* Makes grid->plain, the shape of unknown addresses. Ranks do not tell each other where arrays of
 * this shape are. The shape is therefore the same for all kinds of memory, and peers never read
 * such arrays in place. */
DPARI_INTERNAL dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank, dpar_why *why);
/* Finds the known shape that the new array has on all ranks. *known is NULL if there is none; all
 * ranks then add a new shape. Collective. */
DPARI_INTERNAL dpar_status dpari_gx_known(dpari_gx *grid, const dpari_gx_shape *wanted,
                                          dpari_gx_shape **known);
/* Allocates the entry of another array, and a shape in case the array has a new one. */
DPARI_INTERNAL dpar_status dpari_gx_new_entry(dpari_gx *grid, dpari_gx_shape **fresh,
                                              dpar_why *why);
/* Frees the arrays of dpar_grid_array and the tables of arrays and shapes. */
DPARI_INTERNAL void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm);

#endif
