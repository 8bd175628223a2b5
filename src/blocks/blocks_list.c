/* SPDX-License-Identifier: MIT-0 */
/* Lists boxes and prepares their copies. The lists of ../index/halo.h give the transfers of each
 * block. A forward plan takes what they receive, and an adjoint takes what they send, in their
 * order, which does not depend on the owners of blocks. */
#include "blocks_list.h"

#include "../base/type.h"
#include "../comm/object_memory.h"
#include "../index/redistribute.h"

/* ---- listing --------------------------------------------------------------------------------- */

/* Returns the receiver's dim for the sender's dim d. */
static int32_t dpari_blocks_swapped(const dpar_transfer *transfer, int32_t d)
{
    if (d == transfer->swap[0]) {
        return transfer->swap[1];
    }
    return d == transfer->swap[1] ? transfer->swap[0] : d;
}

/* Sets where a transfer reads and writes, in elements. The receiver's dims are put into the
 * sender's order, and flipped dims begin at their other end, with a negative step. */
static DPARI_COLD void dpari_blocks_place(const dpari_blocks_shape *shape,
                                          const dpar_transfer *transfer, int sends,
                                          dpari_blocks_box *box)
{
    const int64_t *stride = shape->field.stride, *low = shape->halo.low;
    const int64_t *to = sends ? transfer->theirs : transfer->mine;
    const int64_t *from = sends ? transfer->mine : transfer->theirs;
    const int32_t dims = transfer->dims;
    int32_t d;
    box->to_at = box->from_at = 0;
    for (d = 0; d < dims; d++) {
        const int32_t e = dpari_blocks_swapped(transfer, d);
        const int flips = (int)(transfer->flip >> e & 1u);
        box->extent[d] = transfer->extent[d];
        box->from_step[d] = stride[d];
        box->from_at += (from[d] - low[d]) * stride[d];
        box->to_step[d] = flips ? -stride[e] : stride[e];
        box->to_at += (to[e] - low[e]) * stride[e];
        box->to_at += flips ? (transfer->extent[d] - 1) * stride[e] : 0;
    }
    box->extent[dims] = shape->field.components;
    box->from_step[dims] = box->to_step[dims] = shape->field.component_stride;
}

/* Adds a transfer to the list, or only counts it if list->box is NULL. */
static DPARI_COLD void dpari_blocks_add(const dpari_blocks_shape *shape, int32_t array,
                                        const dpar_transfer *transfer, dpari_blocks_box *as,
                                        int sends, dpari_blocks_list *list)
{
    const int64_t bytes = dpar_type_bytes(shape->type);
    const int32_t parts = shape->field.vector == 2 && (transfer->turn & 1) != 0 ? 2 : 1;
    int32_t part;
    for (part = 0; part < parts; part++) {
        if (list->box) {
            dpari_blocks_box *box = &list->box[list->count];
            *box = *as;
            box->array = array;
            box->part = parts > 1 ? part : -1;
            box->turn = transfer->turn;
            box->place = list->count;
            dpari_blocks_place(shape, transfer, sends, box);
            if (parts > 1) { /* u and v change places */
                box->extent[transfer->dims] = 1;
                box->to_at += part * shape->field.component_stride;
                box->from_at += (1 - part) * shape->field.component_stride;
            }
            box->to_at *= bytes;
            box->from_at *= bytes;
            list->sorted[list->count] = list->count;
        }
        list->count++;
    }
}

/* Lists the boxes of a block in one direction. */
static DPARI_COLD dpar_status dpari_blocks_list_block(const dpari_blocks *blocks,
                                                      const dpari_blocks_plan *plan, int32_t number,
                                                      int32_t direction, dpari_blocks_list *list,
                                                      dpar_why *why)
{
    const int sends = direction == DPAR_TRANSFER_SEND;
    const int takes = sends == (plan->op != DPAR_COPY);
    dpar_halo_cursor cursor;
    dpar_transfer transfer;
    int32_t array;
    for (array = 0; array < plan->arrays; array++) {
        const dpari_blocks_shape *shape = plan->shape[array];
        const dpar_status status =
            dpar_halo_first(&cursor, &shape->halo, number, direction, DPAR_HALO_FORWARD, why);
        if (status != DPAR_OK) {
            return status;
        }
        while (dpar_halo_next(&cursor, &transfer)) {
            dpari_blocks_box as;
            dpari_zero(&as, sizeof as);
            as.rank = blocks->owner[transfer.peer];
            as.to = sends ? transfer.peer : number;
            as.from = sends ? number : transfer.peer;
            as.takes = takes;
            if (as.rank >= 0 && (takes || as.rank != blocks->head.comm->rank)) {
                dpari_blocks_add(shape, array, &transfer, &as, sends, list);
            }
        }
    }
    return DPAR_OK;
}

/* ---- sorting --------------------------------------------------------------------------------- */

/* True if box a is before box b: by rank, those that are taken first, and then by the two blocks.
 * The transfers between two blocks are in the same order on both ranks. */
static DPARI_COLD int dpari_blocks_precedes(const dpari_blocks_box *a, const dpari_blocks_box *b)
{
    const int64_t difference[6] = {(int64_t)a->rank - b->rank, (int64_t)b->takes - a->takes,
                                   (int64_t)a->to - b->to,     (int64_t)a->array - b->array,
                                   (int64_t)a->from - b->from, a->place - b->place};
    int32_t i = 0;
    while (i < 5 && difference[i] == 0) {
        i++;
    }
    return difference[i] < 0;
}

/* Moves the entry `at` of a heap of n entries down to its place. */
static DPARI_COLD void dpari_blocks_sift(dpari_blocks_list *list, int64_t at, int64_t n)
{
    const int64_t moved = list->sorted[at];
    int64_t child;
    for (child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && dpari_blocks_precedes(&list->box[list->sorted[child]],
                                                   &list->box[list->sorted[child + 1]])) {
            child++;
        }
        if (!dpari_blocks_precedes(&list->box[moved], &list->box[list->sorted[child]])) {
            break;
        }
        list->sorted[at] = list->sorted[child];
        at = child;
    }
    list->sorted[at] = moved;
}

/* Sorts the boxes by a heap, in O(n log n) without memory. */
static DPARI_COLD void dpari_blocks_sort(dpari_blocks_list *list)
{
    int64_t i;
    for (i = list->count / 2 - 1; i >= 0; i--) {
        dpari_blocks_sift(list, i, list->count);
    }
    for (i = list->count - 1; i > 0; i--) {
        const int64_t last = list->sorted[i];
        list->sorted[i] = list->sorted[0];
        list->sorted[0] = last;
        dpari_blocks_sift(list, 0, i);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_list_boxes(const dpari_blocks *blocks,
                                                              const dpari_blocks_plan *plan,
                                                              dpari_blocks_list *list,
                                                              dpar_why *why)
{
    dpari_room room = dpari_room_of(NULL);
    int32_t pass, i;
    dpari_zero(list, sizeof *list);
    for (pass = 0; pass < 2; pass++) {
        const int32_t first = plan->op == DPAR_COPY ? DPAR_TRANSFER_RECV : DPAR_TRANSFER_SEND;
        list->count = 0;
        for (i = 0; i < 2 * blocks->head.count; i++) {
            const int32_t n = blocks->head.count;
            const dpar_status status = dpari_blocks_list_block(
                blocks, plan, blocks->block[i % n].number,
                i < n ? first : DPAR_TRANSFER_RECV + DPAR_TRANSFER_SEND - first, list, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
        if (pass == 0) {
            const int64_t bytes = list->count * (int64_t)(sizeof *list->box + sizeof *list->sorted);
            room.at = (unsigned char *)dpari_object_alloc(blocks->head.comm,
                                                          bytes + 2 * DPARI_ROOM_ALIGN);
            if (!room.at) {
                return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", bytes);
            }
            list->box = (dpari_blocks_box *)dpari_room_take(&room, list->count, sizeof *list->box);
            list->sorted = (int64_t *)dpari_room_take(&room, list->count, sizeof *list->sorted);
        }
    }
    dpari_blocks_sort(list);
    return DPAR_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Computes the steps of packed values: dense, in the order of dims that the field names. `step` are
 * the steps of the array from which they are packed. Returns the elements that are contiguous in
 * it. */
static DPARI_COLD int64_t dpari_blocks_pack_steps(const dpari_blocks_shape *shape,
                                                  const dpari_blocks_box *box, const int64_t *step,
                                                  int64_t *dense)
{
    const dpar_blocks_field *field = &shape->field;
    const int32_t dims = shape->halo.grid.dims;
    int64_t next = 1, run = 1;
    int32_t k;
    for (k = 0; k <= dims; k++) { /* the fastest first */
        int32_t d = k - !field->planes;
        if (d >= 0 && d < dims) {
            d = field->order == DPAR_ORDER_FIRST_FASTEST ? d : dims - 1 - d;
        } else {
            d = dims; /* components */
        }
        dense[d] = next;
        if (run == next && (box->extent[d] == 1 || dpari_size(step[d]) == run)) {
            run *= box->extent[d];
        }
        next *= box->extent[d];
    }
    return run;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_blocks_run(const dpari_blocks_plan *plan,
                                                   const dpari_blocks_box *box)
{
    int64_t dense[DPARI_STRIDE_DIMS];
    const dpari_blocks_shape *shape = plan->shape[box->array];
    const int64_t *step = plan->op == DPAR_COPY ? box->from_step : box->to_step;
    return dpari_blocks_pack_steps(shape, box, step, dense) * dpar_type_bytes(shape->type);
}

DPARI_INTERNAL DPARI_COLD void dpari_blocks_prepare(const dpari_blocks_plan *plan,
                                                    const dpari_blocks_box *box, int32_t packed,
                                                    int32_t shares, int32_t clears,
                                                    dpari_blocks_item *item)
{
    const dpari_blocks_shape *shape = plan->shape[box->array];
    const int32_t dims = shape->halo.grid.dims + 1, forward = plan->op == DPAR_COPY;
    const int64_t *to = forward ? box->to_step : box->from_step;
    const int64_t *from = forward ? box->from_step : box->to_step;
    dpari_stride_piece piece;
    int64_t dense[DPARI_STRIDE_DIMS];
    int32_t d;
    (void)dpari_blocks_pack_steps(shape, box, from, dense);
    if (packed) {
        *(box->takes ? &from : &to) = dense;
    }
    dpari_zero(&piece, sizeof piece);
    piece.dims = dims;
    piece.to_type = piece.from_type = shape->type;
    piece.wide = plan->wide;
    for (d = 0; d < dims; d++) {
        piece.extent[d] = box->extent[d];
        piece.to[d] = clears ? from[d] : to[d];
        piece.from[d] = clears ? 0 : from[d];
    }
    if (box->takes) {
        piece.op = plan->op;
        piece.negate = box->part >= 0 ? (box->turn == 1) == (box->part == 0)
                                      : shape->field.vector != 0 && box->turn == 2;
        piece.clear = !forward && item->peer < 0;
        piece.ahead = packed && shares ? DPARI_STRIDE_FROM : 0;
    } else if (!clears) {
        piece.clear = !forward;
        piece.ahead = packed && shares ? DPARI_STRIDE_TO : 0;
    }
    dpari_stride_prepare(&item->move, &piece);
}
