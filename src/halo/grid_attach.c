/* SPDX-License-Identifier: MIT-0 */
/* Adds arrays to a grid. Implements dpar_grid_array and dpar_grid_attach.
 *
 * Each rank first checks and allocates without the others. The ranks then agree that all have
 * succeeded and describe the same array, and look for a known shape that it has on all ranks. */
#include "grid.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/world.h"
#include "grid_arrays.h"
#include "grid_object.h"
#include "grid_plans.h"
#include "grid_shape.h"

/* Checks that an array may be attached at this address. */
static DPARI_COLD dpar_status dpari_gx_check_place(const dpari_gx *grid,
                                                   const dpari_gx_shape *shape, void *at,
                                                   int64_t low, int64_t high, dpar_why *why)
{
    const int32_t rank = grid->head.comm->rank;
    const dpari_gx_array *array = dpari_gx_overlapping(grid, shape, at, low, high);
    if (dpari_gx_in_progress(grid, at) || (array && dpari_gx_in_progress(grid, array->at))) {
        return dpari_wrong(
            why,
            "dpar_grid_attach: rank %d has an exchange of the array at this address that "
            "has not ended",
            rank);
    }
    if (array && array->memory) {
        return dpari_wrong(
            why,
            "dpar_grid_attach: the array of rank %d has elements in common with one of "
            "dpar_grid_array, and begins %ld bytes after its first own point",
            rank, (int64_t)(uintptr_t)at - (int64_t)(uintptr_t)array->at);
    }
    return DPAR_OK;
}

/* Removes the arrays that have elements in common with a new one. Usually their memory was freed
 * and used again. If it was not, their next exchange reports an unknown address. */
static DPARI_COLD void dpari_gx_forget(dpari_gx *grid, const dpari_gx_shape *shape, void *u,
                                       int64_t low, int64_t high)
{
    dpari_gx_array *array;
    dpari_gx_plan *plan;
    int32_t i;
    for (;;) {
        array = dpari_gx_overlapping(grid, shape, u, low, high);
        if (array == NULL) {
            return;
        }
        for (plan = grid->plans; plan; plan = plan->next) {
            plan->before = NULL;
            grid->now = grid;
            for (i = 0; i < plan->count; i++) {
                if (plan->at[i] == array->at) {
                    plan->at[i] = plan; /* bind again */
                }
            }
        }
        array->at = array; /* an address that no array has */
        array->low = array->high = 0;
    }
}

/* Adds an array to the table, after all ranks have agreed on it. Its shape is `known`, or the new
 * shape `fresh` if `known` is NULL. */
static DPARI_COLD void dpari_gx_remember(dpari_gx *grid, dpari_gx_shape *known,
                                         dpari_gx_shape *fresh, void *u, void *memory, int64_t low,
                                         int64_t high)
{
    dpari_gx_array *array = dpari_gx_find(grid, u);
    dpari_gx_plan *plan;
    int32_t i;
    if (!known) {
        known = fresh;
        known->number = grid->shapes_known++;
        known->next = grid->shapes;
        grid->shapes = known;
    } else {
        dpari_os_unmap(fresh, (int64_t)sizeof *fresh);
    }
    if (array || grid->desc.type != 0) {
        /* This address may have had another shape before, and addresses that were taken for arrays
         * of desc.type may now be inside this array, so that all are looked up again. */
        for (plan = grid->plans; plan; plan = plan->next) {
            plan->before = NULL;
            grid->now = grid;
            for (i = 0; i < plan->count && !plan->active; i++) {
                if (plan->at[i] == u || plan->shape[i] == &grid->plain) {
                    plan->at[i] = plan; /* bind again */
                }
            }
        }
    }
    dpari_gx_forget(grid, known, u, low, high);
    if (!array) {
        array = &grid->pages->array[grid->pages->count++];
        array->at = u;
        array->memory = memory;
    }
    array->shape = known;
    array->number = grid->arrays++;
    array->low = low;
    array->high = high;
}

/* Allocates an array from the communicator. *at receives the address of its first own point. Arrays
 * begin at different places of a page, because equal places in several pages use the same set of a
 * cache. */
static DPARI_COLD dpar_status dpari_gx_alloc(dpari_gx *grid, int64_t bytes_each, int64_t low,
                                             int64_t high, void **memory, void **at, dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    const int64_t below = -low * bytes_each;
    const int64_t skew = grid->arrays * DPARI_GX_SKEW % DPARI_GX_PAGE +
                         (below + DPARI_GX_ALIGN - 1) / DPARI_GX_ALIGN * DPARI_GX_ALIGN;
    const dpar_status status = dpar_comm_alloc(comm, skew + high * bytes_each, memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    *at = (char *)*memory + skew;
    return DPAR_OK;
}

/* One array that is being added. */
typedef struct dpari_gx_adding {
    const dpar_grid_field *field;
    dpari_gx_shape *fresh; /* allocated, in case the shape is a new one */
    void *at;              /* the address of its first own point */
    void *memory;          /* its allocation; NULL if the array is the caller's */
    int64_t low, high;     /* addresses where its points begin and end */
    int32_t type;
    int32_t attached; /* 1 if the array is the caller's */
} dpari_gx_adding;

/* Does the local part of adding an array: checks it and allocates its entry and, for
 * dpar_grid_array, its memory. */
static DPARI_COLD dpar_status dpari_gx_add_here(dpari_gx *grid, dpari_gx_adding *adding,
                                                dpar_why *why)
{
    const dpar_comm *comm = grid->head.comm;
    const int64_t bytes = dpar_type_bytes(adding->type);
    int64_t low, high;
    dpar_status status = dpari_gx_new_entry(grid, &adding->fresh, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_check_field(grid, adding->type, adding->field, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (adding->attached && !adding->at) {
        return dpari_wrong(why, "dpar_grid_attach: the array of rank %d is NULL", comm->rank);
    }
    dpari_gx_shape_of(grid, adding->type, adding->field, adding->fresh);
    status = dpari_gx_check_span(grid, adding->fresh, comm->rank, &low, &high, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!adding->attached) {
        if (grid->mem != comm->mem) {
            return dpari_wrong(
                why,
                "dpar_grid_array: desc.mem is not the memory of the communicator, so that dpar "
                "cannot allocate in it; use dpar_grid_attach with an array of your own");
        }
        status = dpari_gx_alloc(grid, bytes, low, high, &adding->memory, &adding->at, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    adding->low = (int64_t)(uintptr_t)adding->at + low * bytes;
    adding->high = (int64_t)(uintptr_t)adding->at + high * bytes;
    if (!adding->attached) {
        return DPAR_OK;
    }
    return dpari_gx_check_place(grid, adding->fresh, adding->at, adding->low, adding->high, why);
}

/* An array that is being added, for dpari_gx_state_array. */
typedef struct dpari_gx_given {
    const dpar_grid *grid;
    const dpari_gx_shape *shape;
    int64_t arrays;
} dpari_gx_given;

/* Lists what must be equal on all ranks when an array becomes known. */
static DPARI_COLD void dpari_gx_state_array(dpari_facts *facts, const void *given)
{
    const dpari_gx_given *args = (const dpari_gx_given *)given;
    int32_t d;
    dpari_fact(facts, "the number of arrays so far", 0, args->arrays);
    dpari_fact_type(facts, "type", 0, args->shape->type);
    dpari_fact(facts, "components", 0, args->shape->components);
    for (d = 0; d < args->grid->dims; d++) {
        dpari_fact(facts, "location[#]", d, args->shape->field.location[d]);
        dpari_fact(facts, "odd[#]", d, args->shape->field.odd[d]);
    }
}

/* Does the collective part of adding an array. Every rank calls it with the status of its local
 * part. *known receives the array's shape if all ranks have it already, otherwise NULL. */
static DPARI_COLD dpar_status dpari_gx_add_together(dpari_gx *grid, dpari_gx_adding *adding,
                                                    dpar_status status, dpari_gx_shape **known,
                                                    dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    dpari_gx_given given;
    given.grid = &grid->head;
    given.arrays = grid->arrays;
    given.shape = adding->fresh;
    status = dpari_agree_on(comm, status, "grid", dpari_gx_state_array, &given, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!grid->mem) {
        const dpari_world *world = dpari_world_of(comm->node ? comm->node : comm);
        adding->fresh->reach = world && dpari_ref(world, adding->at, 1) != 0;
    }
    status = dpari_gx_known(grid, adding->fresh, known);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (*known == NULL && grid->shapes_known == DPARI_GX_SHAPES) { /* the same on all ranks */
        return dpari_say(
            DPAR_E_RANGE, why,
            "grid: its arrays have more than %d different shapes (a shape is a type and a "
            "field)",
            (int32_t)DPARI_GX_SHAPES);
    }
    return DPAR_OK;
}

/* Adds the caller's array at `at`, or one from the communicator. Returns its address, or NULL. */
static DPARI_COLD void *dpari_gx_add(dpari_gx *grid, int32_t type, const dpar_grid_field *field,
                                     int attached, void *at, dpar_status *status, dpar_why *why)
{
    dpari_gx_shape *known = NULL;
    dpar_grid_field none;
    dpari_gx_adding adding;
    dpari_zero(&none, sizeof none);
    dpari_zero(&adding, sizeof adding);
    adding.field = field ? field : &none;
    adding.at = at;
    adding.type = type;
    adding.attached = attached;
    *status = dpari_gx_add_here(grid, &adding, why);
    *status = dpari_gx_add_together(grid, &adding, *status, &known, why);
    if (*status != DPAR_OK) {
        dpar_comm_release(grid->head.comm, adding.memory);
        dpari_os_unmap(adding.fresh, (int64_t)sizeof *adding.fresh);
        return NULL;
    }
    dpari_gx_remember(grid, known, adding.fresh, adding.at, adding.memory, adding.low, adding.high);
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
    if (u == NULL) {
        (void)dpari_gx_say(g, status, &why);
    }
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
