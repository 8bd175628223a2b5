/* SPDX-License-Identifier: MIT-0 */
/* halo_share - lists the boxes of a plan in which every rank that holds a shared point combines the
 * values of all of them (DPARI_HX_COMBINE). Private. */
#ifndef DPARI_HALO_HALO_SHARE_H
#define DPARI_HALO_HALO_SHARE_H

#include "../base/arith.h"
#include "../index/halo.h"
#include "../index/redistribute.h"

/* A value of desc.shared, and of the moves of a walk, that only dpar_grid_reduce uses: all ranks
 * send their values of shared points to each other, so that one exchange is enough. */
enum { DPARI_HX_COMBINE = 0x434f4d42 };

/* A walk over these boxes. Arrays are indexed by dim, then by side: 0 is the low one. */
typedef struct dpari_hx_shared {
    int64_t points[DPAR_MAX_DIMS];     /* number of points that `rank` holds, with shared ones */
    int32_t shared[DPAR_MAX_DIMS][2];  /* 1 if a neighbour holds the outermost points, too */
    int32_t further[DPAR_MAX_DIMS][2]; /* the neighbour's rank minus `rank` */
    int32_t dims, rank;
    int32_t gives; /* 1 in a walk over the boxes that `rank` gives */
    int32_t next;  /* number of the next candidate */
} dpari_hx_shared;

/* Begins a walk over the boxes that `rank` takes (DPAR_TRANSFER_SEND, because these plans run as
 * adjoints) or gives (DPAR_TRANSFER_RECV). Each rank has one block of the grid, axis d of the mesh
 * cuts dim d, and the halo consists of the shared points. Returns DPAR_DONE if the rank has no
 * points. */
DPARI_INTERNAL dpar_status dpari_hx_share_begin(dpari_hx_shared *share, const dpar_halo *halo,
                                                int32_t rank, int32_t direction);
/* Advances to the next box. Returns 1, or 0 if no box is left. The values of a point are combined
 * in the order of the boxes. transfer->op is DPAR_COPY if the values of the box replace those of
 * the receiver, and DPAR_SUM if they are combined with them. */
DPARI_INTERNAL int dpari_hx_share_next(dpari_hx_shared *share, dpar_transfer *transfer);

#endif
