/* SPDX-License-Identifier: MIT-0 */
/* grid_object - the data of a grid, and the handle that callers have of it. Private.
 *
 * The address of an array is kept once, in the table of known arrays. What a plan exchanges is kept
 * once too, in its exchange (dpari_hx_bound). */
#ifndef DPARI_HALO_GRID_OBJECT_H
#define DPARI_HALO_GRID_OBJECT_H

#include "../comm/engine.h"
#include "grid.h"

typedef struct dpari_gx_shape dpari_gx_shape; /* grid_shape.h */
typedef struct dpari_gx_array dpari_gx_array; /* grid_arrays.h */
typedef struct dpari_gx_plan dpari_gx_plan;   /* grid_plans.h */
typedef struct dpari_gx_walls dpari_gx_walls; /* grid_walls.h */

/* What a search for plans reads of each, next to each other in memory: a code has several plans,
 * and between two exchanges it evicts them from the caches. */
enum { DPARI_GX_KEYS = 16 };
typedef struct dpari_gx_key {
    dpari_gx_plan *plan;
    const void *at;              /* an address whose array has the shape `shape`, or NULL */
    const dpari_gx_shape *shape; /* of its first array */
    int32_t count, depth;        /* as in the plan */
} dpari_gx_key;

/* A grid. The caller has a pointer to its first field. */
typedef struct dpari_gx {
    dpar_grid head;
    dpar_grid_desc desc;
    dpari_on_end ending; /* its entry in the communicator's list, which sets head.comm to NULL */
    const dpar_mem *mem; /* functions for arrays in a device's memory; NULL for the host's */
    int64_t bytes;       /* size of this struct's memory */

    /* Of grid_cut.c: the halo's width on each side of each dim, and the largest of these. */
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS], widest;
    int32_t steps;  /* desc.steps, at least 1 */
    dpar_halo halo; /* of cells */
    int64_t *cuts;  /* of grid_expected.c: memory of desc.cuts; NULL if the caller has set them */
    int64_t cut_bytes;

    /* Of grid_arrays.c. */
    dpari_gx_shape *shapes;
    dpari_gx_shape *plain; /* the shape of unknown addresses; NULL if desc.type is 0 */
    dpari_gx_array *array; /* [room], of which the first `known` are used */
    int64_t arrays;        /* number of arrays that became known so far */
    int32_t shapes_known, known, room;

    /* Of grid_plans.c. */
    int32_t under_way;    /* number of exchanges that have begun and not ended */
    dpari_gx_plan *plans; /* in the order in which they were made, which is the same on all ranks */
    /* The plan that ran last, of those with one array, the whole halo and no mirrors, in a grid
     * without desc.check. dpar_grid_exchange runs it at once if its array is passed again. NULL if
     * plans must be searched. */
    dpari_gx_plan *quick;
    int32_t keys; /* number of keys: of the first plans, in their order */
    dpari_gx_key key[DPARI_GX_KEYS];
} dpari_gx;

/* Returns the description of a grid, with the defaults that dpar_grid_make has filled in. */
DPARI_FN const dpar_grid_desc *dpari_gx_desc_of(const dpar_grid *grid)
{
    return &((const dpari_gx *)(const void *)grid)->desc;
}

/* ---- of this header's own modules ---- */

/* Returns the grid behind a handle, or NULL if the handle is NULL or its world was closed. */
DPARI_INTERNAL dpari_gx *dpari_gx_of(dpar_grid *grid);
/* Reports the failure of a call that has no `why`: leaves its message in comm->why. If the
 * communicator is broken, keeps the first error's status and message. */
DPARI_INTERNAL dpar_status dpari_gx_say(dpari_gx *grid, dpar_status status, const dpar_why *why);
/* Allocates a grid and, after it in memory, copies of its cuts. */
DPARI_INTERNAL dpar_status dpari_gx_new(const dpar_grid_desc *desc, dpari_gx **grid, dpar_why *why);
/* Releases the memory of a grid, without its arrays and plans. */
DPARI_INTERNAL void dpari_gx_release(dpari_gx *grid);

#endif
