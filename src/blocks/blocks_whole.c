/* SPDX-License-Identifier: MIT-0 */
/* Gathers a whole array on rank 0 and scatters it from there, rank after rank. The own points of
 * all blocks of a rank are one message. */
#include "blocks.h"

#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/object_memory.h"
#include "../host/mem_private.h"
#include "blocks_object.h"

/* What a call moves. */
typedef struct dpari_blocks_whole {
    const dpari_blocks *blocks;
    const dpari_blocks_array *array;
    unsigned char *whole; /* on rank 0: the whole array */
    unsigned char *dense; /* own points of one rank, block after block */
    int32_t back;         /* 0 gathers, 1 scatters */
} dpari_blocks_whole;

/* Counts the bytes of a rank's own points. */
static DPARI_COLD int64_t dpari_blocks_own_bytes(const dpari_blocks_whole *move, int32_t rank)
{
    const dpari_blocks_shape *shape = move->array->shape;
    int64_t points = 0;
    dpar_box own;
    int32_t i;
    for (i = 0; i < move->blocks->head.total; i++) {
        if (move->blocks->owner[i] == rank && dpar_halo_owned(&shape->halo, i, &own)) {
            points += dpar_box_volume(&own);
        }
    }
    return points * shape->field.components * dpar_type_bytes(shape->type);
}

/* Copies the own points of a block between `dense` and this rank's array or, with in_whole, rank
 * 0's whole array. Returns the bytes. out: 1 copies into `dense`. */
static DPARI_COLD int64_t dpari_blocks_copy_block(const dpari_blocks_whole *move, int32_t number,
                                                  int in_whole, int out, unsigned char *dense)
{
    const dpari_blocks_shape *shape = move->array->shape;
    const int64_t bytes = dpar_type_bytes(shape->type);
    const int32_t dims = shape->halo.grid.dims;
    int64_t step = shape->field.components, next = step, at = 0;
    unsigned char *array;
    dpar_mem_box box;
    int64_t *there = out ? box.from_stride : box.to_stride;
    int64_t *here = out ? box.to_stride : box.from_stride;
    dpar_box own;
    int32_t d;
    dpari_zero(&box, sizeof box);
    (void)dpar_halo_owned(&shape->halo, number, &own);
    box.to_type = box.from_type = shape->type;
    box.op = DPAR_COPY;
    box.dims = dims + 1;
    box.extent[dims] = step;
    there[dims] = in_whole ? 1 : shape->field.component_stride;
    here[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        box.extent[d] = own.hi[d] - own.lo[d];
        there[d] = in_whole ? step : shape->field.stride[d];
        here[d] = next;
        at += own.lo[d] * step;
        step *= dpar_halo_points(&shape->halo, d);
        next *= box.extent[d];
    }
    array = in_whole ? move->whole + at * bytes
                     : (unsigned char *)move->array->head.block[move->blocks->slot[number]];
    box.to = out ? dense : array;
    box.from = out ? array : dense;
    (void)dpari_mem_move_box(&box); /* the type has been checked */
    return next * bytes;
}

/* Copies the own points of all blocks of a rank. */
static DPARI_COLD void dpari_blocks_copy_rank(const dpari_blocks_whole *move, int32_t rank,
                                              int in_whole)
{
    unsigned char *dense = move->dense;
    int32_t i;
    for (i = 0; i < move->blocks->head.total; i++) {
        if (move->blocks->owner[i] == rank) {
            dense += dpari_blocks_copy_block(move, i, in_whole, move->back == in_whole, dense);
        }
    }
}

/* Moves the points of one rank: array, message and whole array in this order, or back. */
static DPARI_COLD dpar_status dpari_blocks_move_rank(const dpari_blocks_whole *move, int32_t rank)
{
    enum { ARRAY, MESSAGE, WHOLE, STEPS };
    dpar_comm *comm = move->blocks->head.comm;
    const int64_t bytes = dpari_blocks_own_bytes(move, rank);
    const int32_t other = comm->rank > 0 ? 0 : rank;
    int32_t i;
    for (i = 0; i < STEPS && bytes > 0; i++) {
        const int32_t step = move->back ? WHOLE - i : i;
        dpar_status status = DPAR_OK;
        if (step == MESSAGE && rank > 0) {
            status = move->back == (comm->rank > 0)
                         ? dpar_recv(comm, move->dense, bytes, DPAR_U8, other, 0, NULL)
                         : dpar_send(comm, move->dense, bytes, DPAR_U8, other, 0, NULL);
        } else if ((step == ARRAY && rank == comm->rank) || (step == WHOLE && comm->rank == 0)) {
            dpari_blocks_copy_rank(move, rank, step == WHOLE);
        }
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_blocks_whole_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_whole *move = (const dpari_blocks_whole *)given;
    dpari_fact(facts, "scatters", 0, move->back);
    dpari_fact(facts, "shape of the array", 0, move->array->shape->number);
}

/* Checks a call, and allocates move->dense for the ranks that this one handles. Local. */
static DPARI_COLD dpar_status dpari_blocks_prepare_whole(dpari_blocks_whole *move, int32_t first,
                                                         int32_t end, dpar_why *why)
{
    int64_t most = 1;
    int32_t r;
    if (!move->array || move->array->head.blocks != &move->blocks->head || move->array->plan) {
        return dpari_wrong(why, "blocks gather or scatter: the array is NULL, of other blocks, or "
                                "an exchange of it has not ended");
    }
    if (!move->whole && first == 0) {
        return dpari_wrong(why, "blocks gather or scatter: whole is NULL on rank 0");
    }
    for (r = first; r < end; r++) {
        most = dpari_most(most, dpari_blocks_own_bytes(move, r));
    }
    move->dense = (unsigned char *)dpari_object_alloc(move->blocks->head.comm, most);
    if (!move->dense) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks gather or scatter: no memory for %ld bytes",
                         most);
    }
    return DPAR_OK;
}

/* Gathers or scatters. */
static DPARI_COLD dpar_status dpari_blocks_move_whole(dpar_blocks *blocks,
                                                      const dpar_blocks_array *array, void *whole,
                                                      int32_t back)
{
    dpari_blocks_whole move;
    dpar_comm *comm;
    dpar_why *why;
    dpar_status status;
    int32_t first, end, r;
    if (!blocks) {
        return DPAR_E_ARG;
    }
    comm = blocks->comm;
    why = dpari_why_of(comm, NULL);
    first = comm->rank;
    end = first > 0 ? first + 1 : comm->size;
    dpari_zero(&move, sizeof move);
    move.blocks = dpari_blocks_of(blocks);
    move.array = dpari_blocks_array_of(array);
    move.whole = (unsigned char *)whole;
    move.back = back;
    status = dpari_blocks_prepare_whole(&move, first, end, why);
    status = dpari_agree_on(comm, status, "blocks", dpari_blocks_whole_state, &move, why);
    for (r = first; r < end && status == DPAR_OK; r++) {
        status = dpari_blocks_move_rank(&move, r);
    }
    dpari_object_release(move.dense);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_gather(dpar_blocks *blocks, dpar_blocks_array *array,
                                                   void *whole)
{
    return dpari_blocks_move_whole(blocks, array, whole, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_scatter(dpar_blocks *blocks, dpar_blocks_array *array,
                                                    const void *whole)
{
    return dpari_blocks_move_whole(blocks, array, (void *)(uintptr_t)whole, 1);
}
