/* SPDX-License-Identifier: MIT-0 */
/* Gives blocks to other ranks. All ranks send their weights, rank 0 decides and sends the new
 * owners, and then each block of each array is one message, or a copy if it stays. The old arrays
 * remain as they are until everything has arrived. */
#include "blocks.h"

#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/object_memory.h"
#include "../host/kernel.h"
#include "blocks_cut.h"
#include "blocks_object.h"
#include "blocks_owner.h"
#include "blocks_plan.h"

/* A move in progress. */
typedef struct dpari_blocks_mover {
    dpari_blocks *blocks;
    const dpar_blocks_move_desc *desc;
    dpar_blocks_rebalance_result result;
    void *memory;          /* of what follows, except for `block` */
    double *weight;        /* [total] of all blocks */
    unsigned char *exists; /* [total] */
    int32_t *owner, *slot; /* [total] new ones */
    void *scratch;         /* for blocks_owner.h */
    dpar_call *call;       /* [old and new blocks of this rank] */
    dpar_work *work;
    dpar_block *block; /* [count] this rank's new blocks */
    int32_t count;
} dpari_blocks_mover;

static DPARI_COLD void dpari_blocks_move_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_mover *move = (const dpari_blocks_mover *)given;
    const dpar_blocks_move_desc *desc = move->desc;
    const dpari_blocks_array *array;
    uint64_t hash = 1;
    int32_t i = 0;
    for (array = move->blocks->arrays; array; array = array->next) {
        i++;
    }
    dpari_fact(facts, "number of arrays", 0, i);
    for (array = move->blocks->arrays, i = 0; array; array = array->next) {
        dpari_fact(facts, "shape of array # (counted from the newest)", i++, array->shape->number);
    }
    dpari_fact(facts, "steps", 0, desc->steps);
    dpari_fact_real(facts, "seconds_per_byte", 0, desc->seconds_per_byte);
    dpari_fact_real(facts, "seconds", 0, desc->seconds);
    dpari_fact_real(facts, "seconds_per_weight", 0, desc->seconds_per_weight);
    dpari_fact_real(facts, "threshold", 0, desc->threshold);
    for (i = 0; i < move->blocks->head.total && desc->owner; i++) {
        hash = dpari_hash(hash, move->blocks->owner[i] < 0 ? -1 : desc->owner[i]);
    }
    dpari_fact_hash(facts, "owner", 0, desc->owner ? hash : 0);
}

/* Checks a call, and allocates what does not depend on the new owners. Local. */
static DPARI_COLD dpar_status dpari_blocks_begin_move(dpari_blocks_mover *move, dpar_why *why)
{
    const dpari_blocks *blocks = move->blocks;
    const dpari_blocks_array *array;
    const int64_t total = blocks->head.total;
    dpar_blocks_assign_desc assign;
    int32_t pass, i;
    dpari_room room = dpari_room_of(NULL);
    if (!move->desc) {
        return dpari_wrong(why, "dpar_blocks_move: desc is NULL");
    }
    if (blocks->in_use > 0) {
        return dpari_wrong(why, "dpar_blocks_move: %d exchanges have not ended", blocks->in_use);
    }
    for (array = blocks->arrays; array; array = array->next) {
        if (!array->memory) {
            return dpari_wrong(why,
                               "dpar_blocks_move: an array is attached; free its handle before "
                               "blocks move, and attach it again afterwards");
        }
    }
    if (!move->desc->weight && !move->desc->owner && blocks->head.count > 0) {
        return dpari_wrong(why, "dpar_blocks_move: weight and owner are both NULL");
    }
    for (i = 0; i < blocks->head.total && move->desc->owner; i++) {
        if (blocks->owner[i] >= 0 &&
            (move->desc->owner[i] < 0 || move->desc->owner[i] >= blocks->head.comm->size)) {
            return dpari_wrong(why,
                               "dpar_blocks_move: owner of block %d is %d, but must be 0 to %d", i,
                               move->desc->owner[i], blocks->head.comm->size - 1);
        }
    }
    dpari_blocks_set_assign(blocks, &assign);
    for (pass = 0; pass < 2; pass++) {
        move->weight = (double *)dpari_room_take(&room, total, sizeof *move->weight);
        move->owner = (int32_t *)dpari_room_take(&room, total, sizeof *move->owner);
        move->slot = (int32_t *)dpari_room_take(&room, total, sizeof *move->slot);
        move->scratch = dpari_room_take(&room, assign.bytes, 1);
        move->exists = (unsigned char *)dpari_room_take(&room, total, 1);
        if (pass == 0) {
            move->memory = dpari_object_alloc(blocks->head.comm, room.used);
            if (!move->memory) {
                return dpari_say(DPAR_E_MEMORY, why, "dpar_blocks_move: no memory for %ld bytes",
                                 room.used);
            }
            room = dpari_room_of(move->memory);
        }
    }
    for (i = 0; i < blocks->head.total; i++) {
        dpar_block block;
        int32_t d;
        move->exists[i] = blocks->owner[i] >= 0;
        if (blocks->owner[i] != blocks->head.comm->rank) {
            continue;
        }
        dpari_blocks_describe(blocks, i, &block);
        move->weight[i] = move->desc->weight ? move->desc->weight[blocks->slot[i]] : 1.0;
        for (d = 0; d < blocks->head.dims && !move->desc->weight; d++) {
            move->weight[i] *= (double)block.count[d];
        }
    }
    return DPAR_OK;
}

/* Decides about the new owners. Only rank 0 calls it. */
static DPARI_COLD dpar_status dpari_blocks_decide(dpari_blocks_mover *move, dpar_why *why)
{
    const dpari_blocks *blocks = move->blocks;
    const dpar_blocks_move_desc *desc = move->desc;
    dpar_blocks_rebalance_result *result = &move->result;
    dpar_blocks_assign_desc assign;
    dpar_blocks_rebalance_desc change;
    const dpari_blocks_array *array;
    dpar_status status;
    int32_t i;
    dpari_blocks_set_assign(blocks, &assign);
    assign.order = blocks->order;
    assign.exists = move->exists;
    assign.weight = move->weight;
    assign.memory = move->scratch;
    dpari_zero(&change, sizeof change);
    for (array = blocks->arrays; array; array = array->next) {
        change.block_bytes += array->shape->bytes;
    }
    if (!desc->owner) {
        change.blocks = &assign;
        change.owner = blocks->owner;
        change.steps = desc->steps;
        change.seconds_per_byte = desc->seconds_per_byte;
        change.seconds = desc->seconds;
        change.seconds_per_weight = desc->seconds_per_weight;
        change.threshold = desc->threshold;
        return dpar_blocks_rebalance(&change, move->owner, result, why);
    }
    for (i = 0; i < blocks->head.total; i++) {
        move->owner[i] = move->exists[i] ? desc->owner[i] : -1;
        result->blocks_moved += move->owner[i] != blocks->owner[i];
    }
    result->bytes_moved = result->blocks_moved * change.block_bytes;
    result->pays = result->blocks_moved > 0;
    status = dpar_blocks_measure(&assign, blocks->owner, &result->before, why);
    return status == DPAR_OK ? dpar_blocks_measure(&assign, move->owner, &result->after, why)
                             : status;
}

/* Gives rank 0's decision to all ranks. Collective. */
static DPARI_COLD dpar_status dpari_blocks_share_decision(dpari_blocks_mover *move, dpar_why *why)
{
    dpar_comm *comm = move->blocks->head.comm;
    const int64_t total = move->blocks->head.total;
    dpar_status status =
        dpar_all_reduce(comm, move->weight, move->weight, total, DPAR_F64, DPAR_SUM, NULL);
    if (status == DPAR_OK) {
        status = comm->rank == 0 ? dpari_blocks_decide(move, why) : DPAR_OK;
        status = dpari_agree(comm, status, why);
    }
    if (status == DPAR_OK) {
        status = dpar_broadcast(comm, move->owner, total, DPAR_I32, 0, NULL);
    }
    if (status == DPAR_OK) {
        status =
            dpar_broadcast(comm, &move->result, (int64_t)sizeof move->result, DPAR_U8, 0, NULL);
    }
    return status;
}

/* Allocates the new arrays and lists. Local. */
static DPARI_COLD dpar_status dpari_blocks_alloc_move(dpari_blocks_mover *move, dpar_why *why)
{
    dpari_blocks *blocks = move->blocks;
    dpar_comm *comm = blocks->head.comm;
    dpari_blocks_array *array;
    dpar_status status =
        dpari_blocks_list_own(blocks, move->owner, move->slot, &move->block, &move->count, why);
    const int64_t calls = (int64_t)blocks->head.count + move->count + 1;
    if (status != DPAR_OK) {
        return status;
    }
    move->call = (dpar_call *)dpari_object_alloc(comm, calls * (int64_t)sizeof *move->call);
    move->work = (dpar_work *)dpari_object_alloc(comm, calls * (int64_t)sizeof *move->work);
    if (!move->call || !move->work) {
        return dpari_say(DPAR_E_MEMORY, why, "dpar_blocks_move: no memory for %ld messages", calls);
    }
    for (array = blocks->arrays; array; array = array->next) {
        void *memory = NULL;
        int32_t i;
        status = dpar_comm_alloc(comm, dpari_most(move->count * array->shape->bytes, 1), &memory);
        if (status != DPAR_OK) {
            return dpari_repeat(status, why, comm->why.text);
        }
        array->next_memory = (unsigned char *)memory;
        array->next_block =
            (void **)dpari_object_alloc(comm, (move->count + 1) * (int64_t)sizeof(void *));
        if (!array->next_block) {
            return dpari_say(DPAR_E_MEMORY, why, "dpar_blocks_move: no memory for a table");
        }
        for (i = 0; i < move->count; i++) {
            array->next_block[i] =
                array->next_memory + i * array->shape->bytes + array->shape->origin;
        }
    }
    return DPAR_OK;
}

/* Sends the blocks of an array, or copies those that stay. Messages between two ranks are in the
 * order of blocks. Collective. */
static DPARI_COLD dpar_status dpari_blocks_send_blocks(const dpari_blocks_mover *move,
                                                       const dpari_blocks_array *array)
{
    const dpari_blocks *blocks = move->blocks;
    dpar_comm *comm = blocks->head.comm;
    const int64_t bytes = array->shape->bytes;
    int32_t i, n = 0;
    dpar_status status;
    for (i = 0; i < blocks->head.total; i++) {
        const int gives = blocks->owner[i] == comm->rank, takes = move->owner[i] == comm->rank;
        unsigned char *from = array->memory + blocks->slot[i] * bytes;
        unsigned char *to = array->next_memory + move->slot[i] * bytes;
        dpar_call *call = &move->call[n];
        if (gives && takes) {
            dpari_kern_copy(to, from, bytes, 0);
        } else if (gives || takes) {
            dpari_zero(call, sizeof *call);
            call->kind = gives ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call->type = DPAR_U8;
            call->root = gives ? move->owner[i] : blocks->owner[i];
            call->count = bytes;
            call->in = gives ? from : NULL;
            call->out = gives ? NULL : to;
            n++;
        }
    }
    status = n > 0 ? dpar_batch(comm, move->call, n, move->work) : DPAR_OK;
    return status == DPAR_OK && n > 0 ? dpar_wait_all(move->work, n) : status;
}

/* Replaces the owners and arrays by the new ones, which are then the ones to release. */
static DPARI_COLD void dpari_blocks_commit(dpari_blocks_mover *move)
{
    dpari_blocks *blocks = move->blocks;
    dpar_block *block = blocks->block;
    dpari_blocks_array *array;
    int32_t i;
    for (i = 0; i < blocks->head.total; i++) {
        blocks->owner[i] = move->owner[i];
        blocks->slot[i] = move->slot[i];
    }
    blocks->block = move->block;
    blocks->head.block = move->block;
    blocks->head.count = move->count;
    move->block = block;
    for (array = blocks->arrays; array; array = array->next) {
        unsigned char *memory = array->memory;
        void **table = array->head.block;
        array->memory = array->next_memory;
        array->head.block = array->next_block;
        array->next_memory = memory;
        array->next_block = table;
    }
}

/* Releases everything that the move does not need any more. */
static DPARI_COLD void dpari_blocks_end_move(dpari_blocks_mover *move)
{
    dpari_blocks_array *array;
    for (array = move->blocks->arrays; array; array = array->next) {
        dpar_comm_release(move->blocks->head.comm, array->next_memory);
        dpari_object_release(array->next_block);
        array->next_memory = NULL;
        array->next_block = NULL;
    }
    dpari_object_release(move->block);
    dpari_object_release(move->call);
    dpari_object_release(move->work);
    dpari_object_release(move->memory);
}

DPAR_API DPARI_COLD dpar_status dpar_blocks_move(dpar_blocks *blocks,
                                                 const dpar_blocks_move_desc *desc,
                                                 dpar_blocks_rebalance_result *result,
                                                 dpar_why *why)
{
    dpari_blocks_mover move;
    dpari_blocks_array *array;
    dpar_comm *comm;
    dpar_status status;
    if (!blocks) {
        return dpari_wrong(why, "dpar_blocks_move: blocks is NULL");
    }
    comm = blocks->comm;
    why = dpari_why_of(comm, why);
    dpari_zero(&move, sizeof move);
    move.blocks = dpari_blocks_of(blocks);
    move.desc = desc;
    status = dpari_blocks_begin_move(&move, why);
    status = dpari_agree_on(comm, status, "dpar_blocks_move", dpari_blocks_move_state, &move, why);
    if (status == DPAR_OK) {
        status = dpari_blocks_share_decision(&move, why);
    }
    if (status == DPAR_OK && move.result.blocks_moved > 0) {
        status = dpari_blocks_alloc_move(&move, why);
        status = dpari_agree(comm, status, why);
        for (array = move.blocks->arrays; array && status == DPAR_OK; array = array->next) {
            status = dpari_blocks_send_blocks(&move, array);
        }
        if (status == DPAR_OK) {
            status = dpari_blocks_free_plans(move.blocks);
        }
        if (status == DPAR_OK) {
            dpari_blocks_commit(&move);
        }
    }
    if (status == DPAR_OK && result) {
        *result = move.result;
    }
    dpari_blocks_end_move(&move);
    return status;
}
