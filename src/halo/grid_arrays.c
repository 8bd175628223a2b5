/* SPDX-License-Identifier: MIT-0 */
/* Keeps the table of the arrays that a grid knows, and finds them by address.
 *
 * An array of desc.type is not in the table. Its address is unknown, and it is not inside a known
 * array either. */
#include "grid_arrays.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/os.h"
#include "halo_overlap.h"
#include "grid_shape.h"

DPARI_INTERNAL dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at)
{
    dpari_gx_page *page;
    int32_t i;
    for (page = grid->pages; page; page = page->next) {
        for (i = 0; i < page->count; i++) {
            if (page->array[i].at == at) {
                return &page->array[i];
            }
        }
    }
    return NULL;
}

DPARI_INTERNAL dpari_gx_array *dpari_gx_overlapping(const dpari_gx *grid,
                                                    const dpari_gx_shape *shape, void *at,
                                                    int64_t low, int64_t high)
{
    dpar_halo_field field[2];
    int64_t span[8];
    dpari_gx_page *page;
    int32_t i;
    for (page = grid->pages; page; page = page->next) {
        for (i = 0; i < page->count; i++) {
            dpari_gx_array *array = &page->array[i];
            if (array->low >= high || low >= array->high || array->at == at ||
                dpari_gx_part_of(grid, shape, at, array)) {
                continue;
            }
            dpari_zero(field, sizeof field);
            dpari_gx_field(grid, array->shape, array->at, &field[0]);
            dpari_gx_field(grid, shape, at, &field[1]);
            if (dpari_hx_disjoint(field, 2, grid->head.comm->rank, span, NULL) != DPAR_OK) {
                return array;
            }
        }
    }
    return NULL;
}

DPARI_INTERNAL const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at)
{
    const int64_t address = (int64_t)(uintptr_t)at;
    return dpari_gx_overlapping(grid, &grid->plain, at, address + grid->plain_low,
                                address + grid->plain_high);
}

DPARI_INTERNAL const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at)
{
    const dpari_gx_array *array = dpari_gx_find(grid, at);
    if (array) {
        return array->shape;
    }
    if (!at || grid->desc.type == 0 || dpari_gx_in_another(grid, at)) {
        return NULL;
    }
    return &grid->plain;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank,
                                                          dpar_why *why)
{
    const int32_t type = grid->desc.type;
    dpar_grid_field none;
    int64_t low, high;
    dpar_status status;
    dpari_zero(&none, sizeof none);
    status = dpari_gx_check_field(grid, type, &none, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_gx_shape_of(grid, type, &none, &grid->plain);
    status = dpari_gx_check_span(grid, &grid->plain, rank, &low, &high, why);
    if (status != DPAR_OK) {
        return status;
    }
    grid->plain_low = low * dpar_type_bytes(type);
    grid->plain_high = high * dpar_type_bytes(type);
    grid->plain.packed = 1;
    grid->shapes = &grid->plain;
    grid->shapes_known = 1;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_known(dpari_gx *grid, const dpari_gx_shape *wanted,
                                                     dpari_gx_shape **known)
{
    uint8_t mine[DPARI_GX_SHAPES], all[DPARI_GX_SHAPES];
    dpari_gx_shape *shape;
    dpar_status status;
    *known = NULL;
    dpari_zero(mine, sizeof mine);
    for (shape = grid->shapes; shape; shape = shape->next) {
        mine[shape->number] = (uint8_t)dpari_gx_alike(grid, shape, wanted);
    }
    status =
        dpar_all_reduce(grid->head.comm, mine, all, grid->shapes_known, DPAR_U8, DPAR_MIN, NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (shape = grid->shapes; shape; shape = shape->next) {
        if (all[shape->number]) {
            *known = shape;
            break;
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_new_entry(dpari_gx *grid, dpari_gx_shape **fresh,
                                                         dpar_why *why)
{
    dpari_gx_page *page = grid->pages;
    *fresh = (dpari_gx_shape *)dpari_os_pages((int64_t)sizeof **fresh);
    if (!page || page->count == DPARI_GX_KNOWN) {
        page = (dpari_gx_page *)dpari_os_pages((int64_t)sizeof *page);
        if (page) {
            page->next = grid->pages;
            grid->pages = page;
        }
    }
    if (!page || !*fresh) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                         (int64_t)(sizeof **fresh + sizeof *page));
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm)
{
    int32_t i;
    while (grid->pages) {
        dpari_gx_page *page = grid->pages;
        for (i = 0; i < page->count; i++) {
            dpar_comm_release(comm, page->array[i].memory);
        }
        grid->pages = page->next;
        dpari_os_unmap(page, (int64_t)sizeof *page);
    }
    while (grid->shapes) {
        dpari_gx_shape *shape = grid->shapes;
        grid->shapes = shape->next;
        if (shape != &grid->plain) {
            dpari_os_unmap(shape, (int64_t)sizeof *shape);
        }
    }
}
