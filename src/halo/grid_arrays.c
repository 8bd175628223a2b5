/* SPDX-License-Identifier: MIT-0 */
/* Keeps the table of the arrays that a grid knows, and finds them by address.
 *
 * Arrays of desc.type need not be in the table: any address that is neither known nor inside a
 * known array is taken for one of them. */
#include "grid_arrays.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../comm/os.h"
#include "grid_shape.h"
#include "grid_walls.h"
#include "halo_overlap.h"

enum {
    DPARI_GX_SHAPES = 256, /* the most shapes; dpari_gx_find_shape compares them, a byte each */
    DPARI_GX_ROOM = 128    /* entries of the first table: a page of 4096 bytes */
};

/* ---- finding --------------------------------------------------------------------------------- */

DPARI_INTERNAL dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at)
{
    int32_t i;
    for (i = 0; i < grid->known; i++) {
        if (grid->array[i].at == at) {
            return &grid->array[i];
        }
    }
    return NULL;
}

DPARI_INTERNAL dpari_gx_array *
dpari_gx_overlapping(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, int32_t *next)
{
    dpar_halo_field field[2];
    int64_t span[8];
    while (*next < grid->known) {
        dpari_gx_array *array = &grid->array[(*next)++];
        const int64_t apart = (int64_t)(uintptr_t)at - (int64_t)(uintptr_t)array->at;
        if (apart == 0 || apart + shape->low >= array->shape->high ||
            apart + shape->high <= array->shape->low ||
            dpari_gx_part_of(grid, shape, array->shape, apart)) {
            continue;
        }
        dpari_zero(field, sizeof field);
        dpari_gx_field(grid, array->shape, array->at, &field[0]);
        dpari_gx_field(grid, shape, at, &field[1]);
        if (dpari_hx_disjoint(field, 2, grid->head.comm->rank, span, NULL) != DPAR_OK) {
            return array;
        }
    }
    return NULL;
}

DPARI_INTERNAL const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at)
{
    int32_t next = 0;
    if (!grid->plain || !at) {
        return NULL;
    }
    return dpari_gx_overlapping(grid, grid->plain, at, &next);
}

DPARI_INTERNAL const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at)
{
    const dpari_gx_array *array = dpari_gx_find(grid, at);
    if (array) {
        return array->shape;
    }
    return at && !dpari_gx_in_another(grid, at) ? grid->plain : NULL;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Adds a shape to the list of known shapes. */
static DPARI_COLD void dpari_gx_add_shape(dpari_gx *grid, dpari_gx_shape *shape)
{
    shape->number = grid->shapes_known++;
    shape->next = grid->shapes;
    grid->shapes = shape;
}

/* Allocates a shape. */
static DPARI_COLD dpar_status dpari_gx_new_shape(dpari_gx_shape **shape, dpar_why *why)
{
    *shape = (dpari_gx_shape *)dpari_os_pages((int64_t)sizeof **shape);
    if (*shape) {
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                     (int64_t)sizeof **shape);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_shape(dpari_gx_shape *shape)
{
    if (shape) {
        dpari_gx_free_walls(shape);
    }
    dpari_os_unmap(shape, (int64_t)sizeof *shape);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank,
                                                          dpar_why *why)
{
    dpari_gx_shape *plain;
    dpar_status status = dpari_gx_new_shape(&plain, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_gx_add_shape(grid, plain);
    grid->plain = plain;
    status = dpari_gx_make_shape(grid, grid->desc.type, NULL, rank, plain, why);
    plain->packed = 1;
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_gx_make_walls(grid, plain, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_find_shape(dpari_gx *grid,
                                                          const dpari_gx_shape *fresh,
                                                          dpari_gx_shape **known, dpar_why *why)
{
    uint8_t mine[DPARI_GX_SHAPES], all[DPARI_GX_SHAPES];
    dpari_gx_shape *shape;
    dpar_comm *comm = grid->head.comm;
    dpar_status status;
    dpari_zero(mine, sizeof mine);
    for (shape = grid->shapes; shape; shape = shape->next) {
        mine[shape->number] = (uint8_t)dpari_gx_alike(grid, shape, fresh);
    }
    status = dpar_all_reduce(comm, mine, all, grid->shapes_known, DPAR_U8, DPAR_MIN, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    shape = grid->shapes;
    while (shape && !all[shape->number]) {
        shape = shape->next;
    }
    *known = shape;
    if (shape || grid->shapes_known < DPARI_GX_SHAPES) { /* the same on all ranks */
        return DPAR_OK;
    }
    return dpari_say(DPAR_E_RANGE, why,
                     "grid: its arrays have more than %d different shapes (a shape is a type and a "
                     "field)",
                     (int32_t)DPARI_GX_SHAPES);
}

/* ---- the table ------------------------------------------------------------------------------- */

/* Returns the bytes of a table of n entries. */
static int64_t dpari_gx_table_bytes(int32_t n)
{
    return n * (int64_t)sizeof(dpari_gx_array);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_room(dpari_gx *grid, dpari_gx_shape **fresh,
                                                         dpar_why *why)
{
    const int32_t room = grid->room > 0 ? 2 * grid->room : DPARI_GX_ROOM;
    dpari_gx_array *wider;
    int32_t i;
    if (grid->known < grid->room) {
        return dpari_gx_new_shape(fresh, why);
    }
    wider = (dpari_gx_array *)dpari_os_pages(dpari_gx_table_bytes(room));
    if (!wider) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                         dpari_gx_table_bytes(room));
    }
    for (i = 0; i < grid->known; i++) {
        wider[i] = grid->array[i];
    }
    dpari_os_unmap(grid->array, dpari_gx_table_bytes(grid->room));
    grid->array = wider;
    grid->room = room;
    return dpari_gx_new_shape(fresh, why);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_remember(dpari_gx *grid, dpari_gx_shape *known,
                                                 dpari_gx_shape *fresh, void *at, void *memory)
{
    dpari_gx_array *array = dpari_gx_find(grid, at);
    if (known) {
        dpari_gx_free_shape(fresh);
    } else {
        dpari_gx_add_shape(grid, fresh);
    }
    if (!array) {
        array = &grid->array[grid->known++];
        array->at = at;
        array->memory = memory;
    }
    array->shape = known ? known : fresh;
    array->number = grid->arrays++;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_forget(dpari_gx *grid, dpari_gx_array *array)
{
    *array = grid->array[--grid->known];
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm)
{
    int32_t i;
    for (i = 0; i < grid->known; i++) {
        dpar_comm_release(comm, grid->array[i].memory);
    }
    dpari_os_unmap(grid->array, dpari_gx_table_bytes(grid->room));
    while (grid->shapes) {
        dpari_gx_shape *shape = grid->shapes;
        grid->shapes = shape->next;
        dpari_gx_free_shape(shape);
    }
}
