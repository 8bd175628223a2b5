/* SPDX-License-Identifier: MIT-0 */
/* grid_arrays - the table of the arrays that a grid knows, and of their shapes. Private. */
#ifndef DPARI_HALO_GRID_ARRAYS_H
#define DPARI_HALO_GRID_ARRAYS_H

#include "grid_object.h"

/* An array that was allocated by dpar_grid_array or attached. */
struct dpari_gx_array {
    void *at; /* the address of its first own point */
    const dpari_gx_shape *shape;
    void *memory;   /* the allocation of dpar_grid_array; NULL if the array is the caller's */
    int64_t number; /* in the order in which arrays became known; the same on all ranks */
};

/* Returns the known array at this address, or NULL. */
DPARI_INTERNAL dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at);
/* Returns the next known array, from entry *next of the table on, that has elements in common with
 * an array of this shape at `at`, or NULL. Sets *next to the entry after it. An array at the same
 * address does not count, nor do arrays that are components of each other. */
DPARI_INTERNAL dpari_gx_array *
dpari_gx_overlapping(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, int32_t *next);
/* Returns a known array that has elements in common with an array of desc.type at this address,
 * which is not known, or NULL. */
DPARI_INTERNAL const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at);
/* Returns the shape of the array at this address, or NULL if it is not an array of the grid. An
 * address that is not known has the shape of desc.type, unless it is inside a known array. */
DPARI_INTERNAL const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at);

/* Makes grid->plain, the shape of unknown addresses. Ranks do not tell each other where arrays of
 * this shape are. The shape is therefore the same for all kinds of memory, and peers never read
 * such arrays in place. */
DPARI_INTERNAL dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank, dpar_why *why);
/* Makes room for one more array, and allocates a shape in case the array has a new one. */
DPARI_INTERNAL dpar_status dpari_gx_make_room(dpari_gx *grid, dpari_gx_shape **fresh,
                                              dpar_why *why);
/* Finds the known shape that a new array has on all ranks. *known is NULL if there is none; all
 * ranks then add the new shape. Collective. Fails with DPAR_E_RANGE if there are too many. */
DPARI_INTERNAL dpar_status dpari_gx_find_shape(dpari_gx *grid, const dpari_gx_shape *fresh,
                                               dpari_gx_shape **known, dpar_why *why);
/* Adds an array to the table, or replaces the one at the same address. Its shape is `known`, or the
 * new shape `fresh`, which otherwise is released, if `known` is NULL. */
DPARI_INTERNAL void dpari_gx_remember(dpari_gx *grid, dpari_gx_shape *known, dpari_gx_shape *fresh,
                                      void *at, void *memory);
/* Removes an array of the caller from the table. */
DPARI_INTERNAL void dpari_gx_forget(dpari_gx *grid, dpari_gx_array *array);
/* Frees a shape that is not in the table. NULL does nothing. */
DPARI_INTERNAL void dpari_gx_free_shape(dpari_gx_shape *shape);
/* Frees the arrays of dpar_grid_array and the tables of arrays and shapes. */
DPARI_INTERNAL void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm);

#endif
