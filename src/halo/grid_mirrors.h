/* SPDX-License-Identifier: MIT-0 */
/* grid_mirrors - fills the halos at mirrors. Private. */
#ifndef DPARI_HALO_GRID_MIRRORS_H
#define DPARI_HALO_GRID_MIRRORS_H

#include "../host/mem.h"
#include "../host/strided.h"
#include "grid_object.h"

/* One box of halo cells beyond a mirror, and the copy that fills it. */
typedef struct dpari_gx_mirror {
    int32_t item;        /* number of the array in the exchange */
    int32_t dim;         /* of the mirror */
    int64_t to, from;    /* bytes from the address of the array */
    dpari_stride stride; /* the copy by the CPU */
    dpar_mem_box box;    /* the same copy in a device's memory */
} dpari_gx_mirror;

/* The mirrors of an exchange of some arrays. */
typedef struct dpari_gx_mirrors {
    dpari_gx_mirror *mirror; /* [count] dim after dim */
    dpar_mem_box *box;       /* [count] of arrays in a device's memory, otherwise NULL */
    int32_t count;
} dpari_gx_mirrors;

/* Counts the boxes that mirrors fill in the halo of an array, to this depth. */
DPARI_INTERNAL int32_t dpari_gx_count_mirrors(const dpari_gx *grid, const dpari_gx_shape *shape,
                                              int32_t depth);
/* Lists these boxes for n arrays, dim after dim. */
DPARI_INTERNAL void dpari_gx_list_mirrors(const dpari_gx *grid, const dpari_gx_shape *const *shape,
                                          int32_t n, int32_t depth, dpari_gx_mirror *mirror);
/* Fills the halos at mirrors of the arrays that an exchange is bound to, after the exchange. */
DPARI_INTERNAL dpar_status dpari_gx_fill(const dpari_gx *grid, const dpari_gx_mirrors *mirrors,
                                         const dpar_halo_plan *exchange);

#endif
