/* SPDX-License-Identifier: MIT-0 */
/* Adds arrays to a grid. Implements dpar_grid_array and dpar_grid_attach.
 *
 * Each rank first checks and allocates without the others. The ranks then agree that all have
 * succeeded and describe the same array, and look for a known shape that it has on all ranks. */
#include "grid.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/heap.h"
#include "../comm/shm.h"
#include "../comm/world.h"
#include "grid_arrays.h"
#include "grid_object.h"
#include "grid_plans.h"
#include "grid_shape.h"
#include "grid_start.h"
#include "grid_walls.h"

enum {
    DPARI_GX_ALIGN = 64,  /* alignment of the first own point, in bytes: a cache line */
    DPARI_GX_PAGE = 4096, /* bytes of a page */
    DPARI_GX_SKEW = 320   /* each array begins this number of bytes further in a page than the one
                             before it, so that arrays do not use the same sets of a cache */
};

/* One array that is being added. */
typedef struct dpari_gx_adding {
    const dpari_gx *grid;
    dpari_gx_shape *shape; /* allocated, in case the shape is a new one */
    void *at;              /* the address of its first own point; NULL if it must be allocated */
    void *memory;          /* its allocation; NULL if the array is the caller's */
} dpari_gx_adding;

/* Checks that the caller's array may be attached. */
static DPARI_COLD dpar_status dpari_gx_check_place(const dpari_gx_adding *adding, dpar_why *why)
{
    const dpari_gx *grid = adding->grid;
    const int32_t rank = grid->head.comm->rank;
    const dpar_status status =
        dpari_gx_check_start(grid, adding->shape, adding->at, "dpar_grid_attach", why);
    int32_t next = 0;
    int busy = dpari_gx_in_progress(grid, adding->at) != NULL;
    if (status != DPAR_OK) {
        return status;
    }
    for (;;) {
        const dpari_gx_array *array = dpari_gx_overlapping(grid, adding->shape, adding->at, &next);
        if (!array) {
            break;
        }
        busy |= dpari_gx_in_progress(grid, array->at) != NULL;
        if (array->memory && !busy) {
            return dpari_wrong(
                why,
                "dpar_grid_attach: the array of rank %d has elements in common with one of "
                "dpar_grid_array, and begins %ld bytes after its first own point",
                rank, (int64_t)(uintptr_t)adding->at - (int64_t)(uintptr_t)array->at);
        }
    }
    if (busy) {
        return dpari_wrong(
            why,
            "dpar_grid_attach: rank %d has an exchange of the array at this address that "
            "has not ended",
            rank);
    }
    return DPAR_OK;
}

/* Allocates an array from the communicator. Arrays begin at different places of a page, because
 * equal places in several pages use the same set of a cache. */
static DPARI_COLD dpar_status dpari_gx_alloc(dpari_gx_adding *adding, dpar_why *why)
{
    const dpari_gx *grid = adding->grid;
    dpar_comm *comm = grid->head.comm;
    const dpari_gx_shape *shape = adding->shape;
    const int64_t below = shape->origin - shape->low;
    const int64_t first = /* bytes in front of the first own point */
        grid->arrays * DPARI_GX_SKEW % DPARI_GX_PAGE +
        (below + DPARI_GX_ALIGN - 1) / DPARI_GX_ALIGN * DPARI_GX_ALIGN;
    dpar_status status;
    if (grid->mem != comm->mem) {
        return dpari_wrong(
            why, "dpar_grid_array: desc.mem is not the memory of the communicator, so that dpar "
                 "cannot allocate in it; use dpar_grid_attach with an array of your own");
    }
    status = dpar_comm_alloc(comm, first + shape->high - shape->origin, &adding->memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    adding->at = (char *)adding->memory + first - shape->origin;
    return DPAR_OK;
}

/* Does the local part of adding an array: checks it and allocates its entry and, for
 * dpar_grid_array, its memory. */
static DPARI_COLD dpar_status dpari_gx_add_here(dpari_gx *grid, dpari_gx_adding *adding,
                                                int32_t type, const dpar_grid_field *field,
                                                int attached, dpar_why *why)
{
    const int32_t rank = grid->head.comm->rank;
    dpar_status status = dpari_gx_make_room(grid, &adding->shape, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (attached && !adding->at) {
        return dpari_wrong(why,
                           "dpar_grid_attach: the array of rank %d is NULL; a rank without cells "
                           "passes any other address, a different one for each array",
                           rank);
    }
    status = dpari_gx_make_shape(grid, type, field, rank, adding->shape, why);
    if (status == DPAR_OK) {
        status = dpari_gx_make_walls(grid, adding->shape, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    return attached ? dpari_gx_check_place(adding, why) : dpari_gx_alloc(adding, why);
}

/* Lists what must be equal on all ranks when an array becomes known. */
static DPARI_COLD void dpari_gx_state_array(dpari_facts *facts, const void *given)
{
    const dpari_gx_adding *adding = (const dpari_gx_adding *)given;
    const dpar_grid_field *field = &adding->shape->field;
    int32_t d, k;
    dpari_fact(facts, "the number of arrays so far", 0, adding->grid->arrays);
    dpari_fact_type(facts, "type", 0, adding->shape->type);
    dpari_fact(facts, "components", 0, field->components);
    for (d = 0; d < adding->grid->head.dims; d++) {
        dpari_fact(facts, "location[#]", d, field->location[d]);
        dpari_fact(facts, "odd[#]", d, field->odd[d]);
        dpari_fact(facts, "mirror_low[#]", d, field->mirror_low[d]);
        dpari_fact(facts, "mirror_high[#]", d, field->mirror_high[d]);
    }
    dpari_fact(facts, "whether directions are set (1) or not (0)", 0, field->direction != NULL);
    for (k = 0; field->direction && k < field->components; k++) {
        uint64_t hash = 1;
        for (d = 0; d < adding->grid->head.dims; d++) {
            hash = dpari_hash(hash, adding->shape->direction[k][d]);
        }
        dpari_fact_hash(facts, "the direction of component #", k, hash);
    }
}

/* Does the collective part of adding an array. Every rank calls it with the status of its local
 * part. *known receives the array's shape if all ranks have it already, otherwise NULL. */
static DPARI_COLD dpar_status dpari_gx_add_together(dpari_gx *grid, const dpari_gx_adding *adding,
                                                    dpar_status status, dpari_gx_shape **known,
                                                    dpar_why *why)
{
    const dpar_comm *comm = grid->head.comm;
    status = dpari_agree_on(grid->head.comm, status, "grid", dpari_gx_state_array, adding, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!grid->mem) {
        const dpari_world *world = dpari_world_of(comm->node ? comm->node : comm);
        adding->shape->reach = world && dpari_ref(world, adding->at, 1) != 0;
    }
    return dpari_gx_find_shape(grid, adding->shape, known, why);
}

/* Makes an array known, in place of those that have elements in common with it. Usually their
 * memory was freed and used again. If it was not, their next exchange reports an unknown address.
 * This address may have had another shape before, so that plans look up their arrays again. */
static DPARI_COLD void dpari_gx_replace(dpari_gx *grid, const dpari_gx_adding *adding,
                                        dpari_gx_shape *known)
{
    for (;;) {
        int32_t next = 0;
        dpari_gx_array *array = dpari_gx_overlapping(grid, adding->shape, adding->at, &next);
        if (!array) {
            break;
        }
        dpari_gx_look_up_again(grid, array->at);
        dpari_gx_forget(grid, array);
    }
    dpari_gx_look_up_again(grid, adding->at);
    dpari_gx_remember(grid, known, adding->shape, adding->at, adding->memory);
}

/* Adds the caller's array at `at`, or one from the communicator. Returns its address, or NULL. */
static DPARI_COLD void *dpari_gx_add(dpari_gx *grid, int32_t type, const dpar_grid_field *field,
                                     int attached, void *at, dpar_status *status, dpar_why *why)
{
    dpari_gx_shape *known = NULL;
    dpari_gx_adding adding;
    adding.grid = grid;
    adding.shape = NULL;
    adding.at = at;
    adding.memory = NULL;
    *status = dpari_gx_add_here(grid, &adding, type, field, attached, why);
    *status = dpari_gx_add_together(grid, &adding, *status, &known, why);
    if (*status != DPAR_OK) {
        dpar_comm_release(grid->head.comm, adding.memory);
        dpari_gx_free_shape(adding.shape);
        return NULL;
    }
    dpari_gx_replace(grid, &adding, known);
    return adding.at;
}

DPAR_API DPARI_COLD void *dpar_grid_array(dpar_grid *grid, int32_t type,
                                          const dpar_grid_field *field)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_why why;
    dpar_status status;
    void *u;
    if (g == NULL) {
        return NULL;
    }
    u = dpari_gx_add(g, type, field, 0, NULL, &status, &why);
    (void)dpari_gx_say(g, status, &why);
    return u;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                                 const dpar_grid_field *field, dpar_why *why)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_status status;
    if (!g) {
        return dpari_wrong(why, "dpar_grid_attach: grid %s",
                           grid ? "was closed with its world" : "is NULL");
    }
    (void)dpari_gx_add(g, type, field, 1, u, &status, why);
    return status;
}
