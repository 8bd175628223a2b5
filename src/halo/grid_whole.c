/* SPDX-License-Identifier: MIT-0 */
/* Gathers a whole array on rank 0 and scatters it from there, rank after rank. Implements
 * dpar_grid_gather and dpar_grid_scatter. */
#include "grid.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../host/mem_private.h"
#include "../index/halo.h"
#include "grid_arrays.h"
#include "grid_object.h"
#include "grid_plans.h"
#include "grid_shape.h"
#include "grid_start.h"

/* The memory between which dpar_grid_gather and dpar_grid_scatter move blocks. */
typedef struct dpari_gx_block {
    const dpari_gx_shape *shape;
    char *array; /* this rank's array */
    char *whole; /* on rank 0: the whole array */
    char *dense; /* one block, dense in C order, as it is sent */
    int back;    /* 0 gathers, 1 scatters */
} dpari_gx_block;

/* Copies a block between block->dense and this rank's array or, with `whole`, rank 0's whole array.
 * block->back determines the direction. */
static DPARI_COLD dpar_status dpari_gx_copy(const dpari_gx *grid, const dpari_gx_block *block,
                                            const dpar_box *own, int whole)
{
    const dpari_gx_shape *shape = block->shape;
    const int32_t dims = grid->head.dims;
    const int out = block->back == whole; /* 1 copies into block->dense */
    dpar_mem_box box;
    dpar_status status;
    int64_t dense = shape->field.components, step = dense, at = 0;
    int64_t *there = out ? box.from_stride : box.to_stride;
    int64_t *here = out ? box.to_stride : box.from_stride;
    char *array = whole ? block->whole : block->array;
    int32_t d;
    dpari_zero(&box, sizeof box);
    box.to_type = box.from_type = shape->type;
    box.op = DPAR_COPY;
    box.dims = dims + 1;
    box.extent[dims] = dense;
    there[dims] = whole ? 1 : shape->field.component_stride;
    here[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        box.extent[d] = own->hi[d] - own->lo[d];
        there[d] = whole ? step : shape->field.stride[d];
        here[d] = dense;
        at += whole ? own->lo[d] * step : 0;
        step *= dpar_halo_points(&shape->halo, d);
        dense *= box.extent[d];
    }
    array += whole ? at * dpar_type_bytes(shape->type) : shape->origin;
    box.to = out ? block->dense : array;
    box.from = out ? array : block->dense;
    if (!grid->mem) {
        return dpari_mem_move_box(&box);
    }
    status = grid->mem->move(grid->mem->ctx, &box, 1);
    if (status != DPAR_OK) {
        return status;
    }
    return grid->mem->wait(grid->mem->ctx);
}

/* Moves the blocks, rank after rank. To gather, the owner copies its array into a dense block and
 * sends it to rank 0, which copies it into the whole array. To scatter, the steps are done in
 * reverse order. */
static DPARI_COLD dpar_status dpari_gx_blocks(const dpari_gx *grid, const dpari_gx_block *block)
{
    enum { ARRAY, MESSAGE, WHOLE, STEPS };
    dpar_comm *comm = grid->head.comm;
    const int32_t end = comm->rank > 0 ? comm->rank + 1 : comm->size;
    const int receives = block->back == (comm->rank > 0);
    const int32_t type = block->shape->type;
    dpar_box own;
    int32_t r, i;
    for (r = comm->rank; r < end; r++) { /* rank 0 handles all blocks, other ranks only their own */
        const int64_t count = dpari_gx_owned(block->shape, r, &own);
        const int32_t other = comm->rank > 0 ? 0 : r;
        for (i = 0; count > 0 && i < STEPS; i++) {
            const int step = block->back ? WHOLE - i : i;
            dpar_status status = DPAR_OK;
            if (step == MESSAGE && other == comm->rank) {
                continue;
            }
            if (step == MESSAGE && receives) {
                status = dpar_recv(comm, block->dense, count, type, other, 0, NULL);
            } else if (step == MESSAGE) {
                status = dpar_send(comm, block->dense, count, type, other, 0, NULL);
            } else if ((step == ARRAY && r == comm->rank) || (step == WHOLE && comm->rank == 0)) {
                status = dpari_gx_copy(grid, block, &own, step == WHOLE);
            }
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* Does the local part of gathering and scattering: checks the array and allocates *block, as large
 * as the largest block that this rank handles. Rank 0 handles all blocks. */
static DPARI_COLD dpar_status dpari_gx_whole_block(const dpari_gx_set *set, const void *whole,
                                                   int pins, void **block, dpar_why *why)
{
    const dpari_gx *grid = set->grid;
    const dpar_comm *comm = grid->head.comm;
    const int32_t end = comm->rank > 0 ? comm->rank + 1 : comm->size;
    const dpari_gx_shape *shape;
    int64_t bytes = 0;
    dpar_box own;
    int32_t r;
    dpar_status status = dpari_gx_check_set(set, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (comm->rank == 0 && !whole) {
        return dpari_wrong(why, "grid: the whole array is NULL on rank 0");
    }
    shape = dpari_gx_shape_at(grid, set->list[0]);
    if (shape->packed) { /* the address may be unknown so far */
        status = dpari_gx_check_start(grid, shape, set->list[0], "grid", why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (r = comm->rank; r < end; r++) {
        bytes = dpari_most(bytes, dpari_gx_owned(shape, r, &own));
    }
    bytes *= dpar_type_bytes(shape->type);
    status = dpar_comm_alloc(grid->head.comm, bytes, block);
    if (status == DPAR_OK && pins) {
        status = grid->mem->pin(grid->mem->ctx, *block, bytes);
    }
    if (status == DPAR_OK) {
        return DPAR_OK;
    }
    return dpari_say(status, why, "grid: %ld bytes for a block cannot be allocated", bytes);
}

/* Gathers the array on rank 0, or with `back` scatters it from there. Collective. */
static DPARI_COLD dpar_status dpari_gx_whole(dpari_gx *grid, void *at, void *whole, int back)
{
    const dpari_gx_set set = {grid, &at, 1, 0, DPARI_GX_HALOS};
    dpari_gx_block part;
    void *block = NULL;
    dpar_comm *comm;
    dpar_status status;
    dpar_why why;
    int pins;
    if (!grid) {
        return DPAR_E_ARG;
    }
    comm = grid->head.comm;
    pins = grid->mem && grid->mem != comm->mem;
    status = dpari_gx_whole_block(&set, whole, pins, &block, &why);
    status = dpari_gx_agree_on_set(&set, status, &why);
    status = dpari_gx_say(grid, status, &why);
    if (status == DPAR_OK) {
        part.shape = dpari_gx_shape_at(grid, at);
        part.array = (char *)at;
        part.whole = (char *)whole;
        part.dense = (char *)block;
        part.back = back;
        status = dpari_gx_blocks(grid, &part);
        if (pins) {
            (void)grid->mem->unpin(grid->mem->ctx, block);
        }
    }
    dpar_comm_release(comm, block);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole)
{
    return dpari_gx_whole(dpari_gx_of(grid), u, whole, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole)
{
    union { /* `whole` is only read, but dpari_gx_whole also gathers */
        const void *given;
        void *read;
    } w;
    w.given = whole;
    return dpari_gx_whole(dpari_gx_of(grid), u, w.read, 1);
}
