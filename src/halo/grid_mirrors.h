/* SPDX-License-Identifier: MIT-0 */
/* grid_mirrors - fills the halos at mirrors. Private. */
#ifndef DPARI_HALO_GRID_MIRRORS_H
#define DPARI_HALO_GRID_MIRRORS_H

#include "../comm/mem.h"
#include "../comm/strided.h"
#include "grid_object.h"

/* One box of halo cells beyond a mirror, and the copy that fills it. */
typedef struct dpari_gx_mirror {
    int32_t item;        /* number of the array in the plan */
    int32_t dim;         /* of the mirror */
    int64_t to, from;    /* bytes from the address of the array */
    dpari_stride stride; /* the copy by the CPU */
    dpar_mem_box box;    /* the same copy in a device's memory */
} dpari_gx_mirror;

/* Lists the boxes that mirrors fill, dim after dim, and returns their number. If `mirror` is NULL,
 * only counts them. */
DPARI_INTERNAL int32_t dpari_gx_mirrors(const dpari_gx *grid, const dpari_gx_shape *const *shape,
                                        int32_t n, int32_t depth, dpari_gx_mirror *mirror);
/* Fills the halos at mirrors, after an exchange. */
DPARI_INTERNAL dpar_status dpari_gx_fill(const dpari_gx *grid, dpari_gx_plan *plan);

#endif
