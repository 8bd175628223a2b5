/* SPDX-License-Identifier: MIT-0 */
/* grid_plans - finds or makes the plan that exchanges some arrays of a grid. Private. */
#ifndef DPARI_HALO_GRID_PLANS_H
#define DPARI_HALO_GRID_PLANS_H

#include "grid_mirrors.h"
#include "grid_object.h"

/* What an exchange does. */
enum {
    DPARI_GX_HALOS,  /* fills halos, or adds them to their owners */
    DPARI_GX_SHARED, /* copies shared points from their owners to the other ranks that hold them */
    DPARI_GX_COMBINE /* combines the values of shared points on all ranks that hold them */
};

/* A planned exchange of some arrays to some depth. */
struct dpari_gx_plan {
    struct dpari_gx_plan *next;
    dpar_halo_plan *exchange;     /* bound to the arrays that were exchanged last */
    const dpari_gx_shape **shape; /* [count] */
    dpar_halo_field *field;       /* [count] as they were when the plan was made */
    dpar_halo *halo; /* [count] the halos to exchange, where they are not those of shapes */
    dpari_gx_mirrors mirrors;
    int64_t bytes;  /* size of this struct's memory */
    int32_t count;  /* number of arrays */
    int32_t depth;  /* in cells; 0 is the whole halo */
    int32_t kind;   /* DPARI_GX_HALOS, ... */
    int32_t active; /* 1 if its exchange has begun and not ended */
    int32_t stale;  /* 1 if a bound address may have another shape now, or be unknown */
    int32_t number; /* of its key; DPARI_GX_KEYS or more if it has none */
};

/* Arrays of a grid that are to be exchanged together, to a depth in cells. */
typedef struct dpari_gx_set {
    dpari_gx *grid;
    void *const *list; /* [count] */
    int32_t count;
    int32_t depth; /* 0 is the whole halo */
    int32_t kind;  /* DPARI_GX_HALOS, ... */
} dpari_gx_set;

/* Checks the arrays and the depth, without the other ranks. */
DPARI_INTERNAL dpar_status dpari_gx_check_set(const dpari_gx_set *set, dpar_why *why);
/* Compares the arrays and the depth between ranks. Every rank calls it with the status that it has
 * so far. Collective. */
DPARI_INTERNAL dpar_status dpari_gx_agree_on_set(const dpari_gx_set *set, dpar_status status,
                                                 dpar_why *why);

/* Finds or makes the plan of an exchange, and binds the arrays to it. */
DPARI_INTERNAL dpar_status dpari_gx_bind_plan(const dpari_gx_set *set, dpari_gx_plan **plan);
/* Fast path for codes that swap two arrays: if u has the shape of the array that grid->quick
 * exchanges, binds u to it and returns 1, otherwise returns 0. */
DPARI_INTERNAL int dpari_gx_rebind(dpari_gx *grid, void *u);
/* Returns the plan of the exchange in progress that u takes part in, or NULL. */
DPARI_INTERNAL dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u);
/* Makes plans that are bound to an array at this address look up their arrays again, and plans
 * with arrays of desc.type, because their addresses may be inside a new array. */
DPARI_INTERNAL void dpari_gx_look_up_again(dpari_gx *grid, const void *at);
/* Frees all plans and their memory. Returns the first failure. comm is NULL if its world was
 * closed, which has freed the plans themselves. */
DPARI_INTERNAL dpar_status dpari_gx_free_plans(dpari_gx *grid, const dpar_comm *comm);

#endif
