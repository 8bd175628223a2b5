/* SPDX-License-Identifier: MIT-0 */
/* Performs two lists of transfers: dpar_transfers_exchange of move.h. Ranks compare their lists
 * before anything is sent, because users write them. */
#include "move.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "move_items.h"
#include "move_order.h"
#include "move_rounds.h"
#include "move_streams.h"

/* Checks the list of one direction. */
static dpar_status dpari_list_check(const dpari_move *move, int32_t direction, const int64_t *shape,
                                    int32_t dims, dpar_why *why)
{
    const dpar_transfer *list = move->source.list[direction];
    int64_t i;
    for (i = 0; i < move->source.count[direction]; i++) {
        const dpar_status status = dpari_transfer_check(&list[i], dims, shape, move->boxes.type,
                                                        direction == DPAR_TRANSFER_RECV, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (list[i].peer < 0 || list[i].peer >= move->comm->size) {
            return dpari_wrong(why, "transfer %ld: peer %d is not a rank of %d ranks", i,
                               list[i].peer, move->comm->size);
        }
    }
    return DPAR_OK;
}

/* Fails if an average does not follow a copy to the same box, because it needs all its parts at
 * once. */
static dpar_status dpari_list_averages(dpari_move *move, dpar_why *why)
{
    int64_t i, end;
    for (i = 0; i < move->in.items; i = end) {
        end = i + 1;
        if (move->in.item[i].op == DPAR_COPY && end < move->in.items &&
            move->in.item[end].continues) {
            end = dpari_group_end(move, end);
        } else if (move->in.item[i].op == DPAR_AVG) {
            return dpari_wrong(why, "receive %ld: an average must follow a copy to the same box",
                               i);
        }
    }
    return DPAR_OK;
}

/* Writes two numbers for each peer: the number of boxes of its stream, and a hash of what must be
 * equal at both ends. word: [2 * ranks]. */
static void dpari_side_words(const dpari_move *move, const dpari_move_side *side, int64_t *word)
{
    int32_t k, d;
    dpari_zero(word, (size_t)move->comm->size * 16);
    for (k = 0; k < side->streams; k++) {
        const dpari_move_stream *stream = &side->stream[k];
        int64_t *of = &word[2 * stream->peer], i;
        uint64_t hash = dpari_hash((uint64_t)side->array.dims, stream->round != NULL);
        for (i = stream->first; i >= 0; i = side->item[i].next) {
            for (d = 0; d < side->array.dims; d++) {
                hash = dpari_hash(hash, side->item[i].extent[d]);
            }
            of[0]++;
        }
        of[1] = (int64_t)hash;
    }
}

/* Compares the lists of all ranks: each must receive what the others send to it. If any two differ,
 * all ranks fail. */
static dpar_status dpari_lists_fit(dpari_move *move, dpar_why *why)
{
    const int32_t me = move->comm->rank;
    int64_t *mine = move->word, *theirs = mine + 2 * (int64_t)move->comm->size;
    dpar_status st;
    int32_t k;
    dpari_side_words(move, &move->out, mine);
    st = dpar_all_to_all(move->comm, mine, theirs, 2, DPAR_I64, NULL);
    if (st != DPAR_OK) {
        return dpari_move_failed(move, st, why);
    }
    dpari_side_words(move, &move->in, mine);
    for (k = 0; k < move->comm->size && st == DPAR_OK; k++) {
        if (theirs[2 * k] != mine[2 * k]) {
            st = dpari_say(DPAR_E_MISMATCH, why,
                           "rank %d sends %ld boxes to rank %d, whose list expects %ld", k,
                           theirs[2 * k], me, mine[2 * k]);
        } else if (theirs[2 * k + 1] != mine[2 * k + 1]) {
            st = dpari_say(
                DPAR_E_MISMATCH, why,
                "rank %d sends rank %d %ld boxes, but their extents or ops are not as expected", k,
                me, mine[2 * k]);
        }
    }
    return dpari_agree(move->comm, st, why);
}

/* Checks the arrays and lists of one rank. */
static dpar_status dpari_lists_check(dpari_move *move, dpar_why *why)
{
    const dpar_redistribute_desc *desc = move->desc;
    const int64_t sends = desc->send_count, receives = desc->receive_count;
    int32_t dims = 0; /* those of the first transfer, which all others must have */
    int64_t reads = 0, writes = 0;
    dpar_status status = DPAR_OK;
    if (sends < 0 || receives < 0 || (sends > 0 && (!desc->send || !desc->in)) ||
        (receives > 0 && (!desc->receive || !desc->out))) {
        return dpari_wrong(why,
                           "%ld sends or %ld receives: below 0, or their list or array is NULL",
                           sends, receives);
    }
    if (sends > 0) {
        dims = desc->send->dims;
        status = dpari_array_init(&move->out.array, dims, desc->in_shape, move->boxes.bytes, &reads,
                                  why);
    } else if (receives > 0) {
        dims = desc->receive->dims;
    }
    if (status == DPAR_OK && receives > 0) {
        status = dpari_array_init(&move->in.array, dims, desc->out_shape, move->boxes.bytes,
                                  &writes, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_list_check(move, DPAR_TRANSFER_SEND, desc->in_shape, dims, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_list_check(move, DPAR_TRANSFER_RECV, desc->out_shape, dims, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->out.array.from = (const unsigned char *)desc->in;
    move->in.array.to = (unsigned char *)desc->out;
    if (sends > 0 && receives > 0 && desc->in != desc->out &&
        dpari_move_overlaps(move, reads * move->boxes.bytes, writes * move->boxes.bytes)) {
        return dpari_wrong(why, "in and out overlap, but are not the same");
    }
    return DPAR_OK;
}

/* Does the local part of dpar_transfers_exchange: checks the arguments, provides scratch and builds
 * the streams in it. */
static dpar_status dpari_lists_build(dpari_move *move, dpar_comm *comm,
                                     const dpar_redistribute_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_move_init(move, comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->source.list[DPAR_TRANSFER_SEND] = desc->send;
    move->source.list[DPAR_TRANSFER_RECV] = desc->receive;
    move->source.count[DPAR_TRANSFER_SEND] = desc->send_count;
    move->source.count[DPAR_TRANSFER_RECV] = desc->receive_count;
    status = dpari_lists_check(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_move_count(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_move_scratch(move, dpari_move_bytes(move), why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_move_build(move);
    return dpari_list_averages(move, why);
}

/* Does the collective part. Every rank calls it with the status of its local part; if that failed
 * on one rank, all ranks fail. */
static dpar_status dpari_lists_move(dpari_move *move, dpar_status status, dpar_why *why)
{
    status = dpari_agree_on(move->comm, status, "transfers", dpari_move_state, move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_lists_fit(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_move_go(move, why);
}

DPAR_API DPARI_COLD dpar_status dpar_transfers_exchange(dpar_comm *comm,
                                                        const dpar_redistribute_desc *move,
                                                        dpar_why *why)
{
    dpari_move lists;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_lists_build(&lists, comm, move, why);
    status = dpari_lists_move(&lists, status, why);
    return dpari_move_end(&lists, status, why);
}
