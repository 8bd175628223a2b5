/* SPDX-License-Identifier: MIT-0 */
/* grid_object - the data of a grid, and the handle that callers have of it. Private. */
#ifndef DPARI_HALO_GRID_OBJECT_H
#define DPARI_HALO_GRID_OBJECT_H

#include "../comm/engine.h"
#include "grid.h"

typedef struct dpari_gx_mirror dpari_gx_mirror;

enum {
    DPARI_GX_SHAPES = 256, /* the most shapes; dpari_gx_known compares them, a byte each */
    DPARI_GX_KNOWN = 72,   /* number of entries of arrays that are allocated together */
    DPARI_GX_ALIGN = 64,   /* alignment of the first own point, in bytes: a cache line */
    DPARI_GX_PAGE = 4096,  /* bytes of a page */
    DPARI_GX_SKEW = 320    /* each array begins this number of bytes further in a page than the one
                              before it, so that arrays do not use the same sets of a cache */
};

/* The kind of an array. Arrays of one shape can be exchanged with the same plan. */
typedef struct dpari_gx_shape {
    struct dpari_gx_shape *next;
    dpar_halo halo;        /* the whole halo of the array */
    dpar_grid_field field; /* with strides and component_stride, also if the array is dense */
    int32_t number;        /* the same on all ranks */
    int32_t type, components;
    int32_t reach;  /* 1 if peers may read the arrays in place */
    int32_t packed; /* 1 for arrays of desc.type: their addresses may change from call to call, so
                       that they are always packed */
} dpari_gx_shape;

/* An array that was allocated by dpar_grid_array or attached. */
typedef struct dpari_gx_array {
    void *at; /* the address of its first own point */
    const dpari_gx_shape *shape;
    void *memory;      /* the allocation of dpar_grid_array; NULL if the array is the caller's */
    int64_t number;    /* in the order in which arrays became known; the same on all ranks */
    int64_t low, high; /* addresses where its points begin and end */
} dpari_gx_array;

/* Entries of arrays are allocated in pages, because they must not move. */
typedef struct dpari_gx_page {
    struct dpari_gx_page *next;
    int32_t count;
    dpari_gx_array array[DPARI_GX_KNOWN];
} dpari_gx_page;

/* A planned exchange of some arrays to some depth. */
typedef struct dpari_gx_plan {
    struct dpari_gx_plan *next;
    dpar_halo_plan *exchange;
    void **at;    /* [count] the arrays that are bound. The address of this plan, which no array
                 has, if an array must be bound again */
    void *before; /* in a plan of one array: the array that was bound before this one, or NULL */
    const dpari_gx_shape **shape; /* [count] */
    dpar_halo *halo;              /* [count] the halos to exchange if depth is not 0 */
    dpar_halo_field *field;       /* [count] */
    void *rest;                   /* memory of the next two lists */
    dpari_gx_mirror *mirror;      /* [mirrors] dim after dim */
    dpar_mem_box *box;            /* [mirrors] of arrays in a device's memory, otherwise NULL */
    int64_t bytes, rest_bytes;    /* sizes of this struct's memory and of `rest` */
    int32_t count;                /* number of arrays */
    int32_t depth;                /* in cells; 0 is the whole halo */
    int32_t mirrors;
    int32_t active; /* 1 if its exchange has begun and not ended */
} dpari_gx_plan;

/* A grid. The caller has a pointer to its first field. */
typedef struct dpari_gx {
    dpar_grid head;
    dpar_grid_desc desc;
    dpari_on_end ending; /* its entry in the communicator's list, which sets head.comm to NULL */
    const dpar_mem *mem; /* functions for arrays in a device's memory; NULL for the host's */
    /* the halo's width on each side of each dim, and the largest of these */
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS], widest;
    dpar_halo halo;                /* of cells */
    dpari_gx_shape plain;          /* the shape of unknown addresses, if desc.type is set */
    int64_t plain_low, plain_high; /* bytes from such an address to the ends of its points */
    dpari_gx_shape *shapes;
    dpari_gx_page *pages;
    dpari_gx_plan *plans; /* in the order in which they were made, which is the same on all ranks */
    /* The plan that ran last, of those with one array, the whole halo and no mirrors, in a grid
     * without desc.check. dpar_grid_exchange runs it at once if its array is passed again. */
    dpari_gx_plan *quick;
    void *now; /* the array bound to `quick`, or the grid's own address if there is none */
    dpar_halo_plan *now_exchange; /* quick->exchange */
    int64_t arrays;               /* number of arrays that became known so far */
    int64_t bytes;                /* size of this struct's memory */
    int32_t shapes_known;         /* number of shapes */
    int32_t under_way;            /* number of exchanges that have begun and not ended */
} dpari_gx;

/* Returns the grid behind a handle, or NULL if the handle is NULL or its world was closed. */
DPARI_INTERNAL dpari_gx *dpari_gx_of(dpar_grid *grid);
/* Returns the grid behind a handle, even if its world was closed, for functions that only read it.
 */
DPARI_INTERNAL const dpari_gx *dpari_gx_in(const dpar_grid *grid);
/* Reports the failure of a call that has no `why`: leaves its message in comm->why. If the
 * communicator is broken, keeps the first error's status and message. */
DPARI_INTERNAL dpar_status dpari_gx_say(dpari_gx *grid, dpar_status status, const dpar_why *why);
/* True if the value is 0 or 1. */
DPARI_INTERNAL int dpari_gx_flag(int32_t v);
/* Allocates a grid and, after it in memory, copies of its cuts. */
DPARI_INTERNAL dpar_status dpari_gx_new(const dpar_grid_desc *desc, dpari_gx **grid, dpar_why *why);

#endif
