/* SPDX-License-Identifier: MIT-0 */
/* Sends and receives the messages of a move.
 *
 * In each round at most one message of each stream is sent or received, so that scratch holds one
 * message per peer. The receivers plan in which round they receive the messages that are combined,
 * and tell the senders before the first round. Called by move_lists and move. */
#include "move_rounds.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "move_order.h"

/* True if the present message is contiguous in the array. Sets *at to its offset there, in
 * elements. */
static int dpari_stream_in_place(const dpari_move_side *side, const dpari_move_stream *stream,
                                 int64_t *at)
{
    const dpari_move_item *it = &side->item[stream->m_item];
    int64_t run;
    if (stream->m_count > it->volume - stream->m_offset) {
        return 0;
    }
    run = dpari_item_run(&side->array, it);
    if (stream->m_offset / run != (stream->m_offset + stream->m_count - 1) / run) {
        return 0;
    }
    *at = dpari_item_at(&side->array, it, stream->m_offset);
    return 1;
}

/* Cuts the next message of a send and returns its address: in the array if it is contiguous there,
 * otherwise in the slot, into which it is packed. */
static const unsigned char *dpari_stream_load(dpari_move *move, dpari_move_stream *stream)
{
    int64_t i, offset, at = 0;
    dpari_stream_cut(move, &move->out, stream);
    if (dpari_stream_in_place(&move->out, stream, &at)) {
        return move->out.array.from + at * move->boxes.bytes;
    }
    i = stream->m_item;
    offset = stream->m_offset;
    for (at = 0; at < stream->m_count; i = move->out.item[i].next) {
        const dpari_move_item *it = &move->out.item[i];
        const int64_t n = dpari_least(it->volume - offset, stream->m_count - at);
        dpari_item_pack(&move->boxes, &move->out.array, it, offset, offset + n,
                        stream->slot + at * move->boxes.bytes);
        at += n;
        offset = 0;
    }
    dpari_boxes_flush(&move->boxes);
    return stream->slot;
}

/* Returns a stream by its number: sends first, then receives. */
static dpari_move_stream *dpari_move_stream_at(dpari_move *move, int32_t number)
{
    if (number < move->out.streams) {
        return &move->out.stream[number];
    }
    return &move->in.stream[number - move->out.streams];
}

/* Waits for the operations of all streams, also after a failure, because the memory of messages is
 * released next. Returns `first` or, if that is DPAR_OK, the first failure of a wait. */
static dpar_status dpari_move_wait(dpari_move *move, dpar_status first)
{
    int32_t i;
    for (i = 0; i < move->out.streams + move->in.streams; i++) {
        const dpar_status status = dpar_wait(&dpari_move_stream_at(move, i)->work);
        if (first == DPAR_OK) {
            first = status;
        }
    }
    return first;
}

/* Sends the table of rounds from receivers to senders. Only streams that combine parts and have
 * several messages have one. */
static dpar_status dpari_move_tell(dpari_move *move)
{
    dpar_comm *comm = move->comm;
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < move->out.streams + move->in.streams && status == DPAR_OK; i++) {
        dpari_move_stream *stream = dpari_move_stream_at(move, i);
        if (stream->round == NULL || stream->peer == comm->rank) {
            continue;
        }
        if (i < move->out.streams) {
            status = dpar_recv(comm, stream->round, stream->messages, DPAR_I32, stream->peer,
                               move->desc->tag, &stream->work);
        } else {
            status = dpar_send(comm, stream->round, stream->messages, DPAR_I32, stream->peer,
                               move->desc->tag, &stream->work);
        }
    }
    return dpari_move_wait(move, status);
}

/* Handles the next message from this rank to itself as if it had arrived, because it has parts to
 * combine. */
static void dpari_move_own(dpari_move *move, dpari_move_stream *stream)
{
    dpari_move_stream *from = &move->out.stream[move->out.of_peer[move->comm->rank] - 1];
    dpari_stream_cut(move, &move->in, stream);
    stream->memory = dpari_stream_load(move, from);
    dpari_stream_arrive(move, stream, 0);
}

static int dpari_sends_now(const dpari_move *move, const dpari_move_stream *stream, int64_t round)
{
    return stream->peer != move->comm->rank && stream->message < stream->messages &&
           (stream->round != NULL ? stream->round[stream->message] : stream->message) == round;
}

/* Posts the receives of a round: into the array if the message is a copy and contiguous there,
 * otherwise into the slot. */
static dpar_status dpari_round_receive(dpari_move *move)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        dpari_move_stream *stream = &move->in.stream[k];
        unsigned char *place = stream->slot;
        int64_t at;
        dpar_status st;
        stream->fresh = dpari_receives_now(stream) && stream->peer != move->comm->rank;
        if (!stream->fresh) {
            continue;
        }
        dpari_stream_cut(move, &move->in, stream);
        stream->memory = place;
        if (move->in.item[stream->m_item].op == DPAR_COPY &&
            dpari_stream_in_place(&move->in, stream, &at)) {
            stream->memory = NULL;
            place = move->in.array.to + at * move->boxes.bytes;
        }
        st = dpar_recv(move->comm, place, stream->m_count, move->boxes.type, stream->peer,
                       move->desc->tag, &stream->work);
        if (st < 0) {
            return st;
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_round_send(dpari_move *move, int64_t round, int32_t *more)
{
    int32_t k;
    for (k = 0; k < move->out.streams; k++) {
        dpari_move_stream *stream = &move->out.stream[k];
        dpar_status st;
        *more |= stream->peer != move->comm->rank && stream->message < stream->messages;
        if (!dpari_sends_now(move, stream, round)) {
            continue;
        }
        st = dpar_wait(&stream->work); /* the slot must be free; on a device dpari_round_free has
                                          waited already */
        if (st == DPAR_OK) {
            const unsigned char *message = dpari_stream_load(move, stream);
            st = dpar_send(move->comm, message, stream->m_count, move->boxes.type, stream->peer,
                           move->desc->tag, &stream->work);
        }
        if (st < 0) {
            return st;
        }
    }
    return DPAR_OK;
}

/* Waits for the receives of a round, handles its messages, and combines what can be combined. Sets
 * *more to 1 if messages may be left. */
static dpar_status dpari_round_end(dpari_move *move, int32_t *more)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        dpari_move_stream *stream = &move->in.stream[k];
        dpar_status st;
        *more |= stream->message < stream->messages;
        if (stream->peer == move->comm->rank && dpari_receives_now(stream)) {
            dpari_move_own(move, stream);
        }
        if (stream->fresh) {
            st = dpar_wait(&stream->work);
            if (st < 0) {
                return st;
            }
            dpari_stream_arrive(move, stream, 0);
        }
    }
    dpari_move_combine(move, 0);
    return DPAR_OK;
}

/* On a device, waits until the slots of all sends of this round are free, before the first message
 * of the round is posted, so that all messages begin together. Otherwise the wait of one stream
 * would delay the others. */
static dpar_status dpari_round_free(dpari_move *move, int64_t round)
{
    int32_t i;
    if (move->comm->mem == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < move->out.streams; i++) {
        if (dpari_sends_now(move, &move->out.stream[i], round)) {
            const dpar_status status = dpar_wait(&move->out.stream[i].work);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* Runs one round, with at most one message of each stream. Sets *more to 1 if messages may be
 * left. */
static dpar_status dpari_move_round(dpari_move *move, int64_t round, int32_t *more)
{
    dpar_status status = dpari_round_free(move, round);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_round_receive(move);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_round_send(move, round, more);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_round_end(move, more);
}

static dpar_status dpari_move_p2p(dpari_move *move)
{
    dpar_status status = dpari_move_tell(move);
    int64_t round;
    int32_t more = 1;
    for (round = 0; status == DPAR_OK && more; round++) {
        more = 0;
        status = dpari_move_round(move, round, &more);
    }
    return dpari_move_wait(move, status);
}

DPARI_INTERNAL dpar_status dpari_move_go(dpari_move *move, dpar_why *why)
{
    dpar_status status;
    dpari_move_plan(move);
    dpari_move_self(move, 0);
    dpari_move_combine(move, 0);
    status = dpari_move_p2p(move);
    if (status == DPAR_OK) {
        status = move->comm->status; /* includes failures on the device */
    }
    if (status != DPAR_OK) {
        return dpari_move_failed(move, status, why);
    }
    if (move->head != move->in.items) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "only %ld of %ld boxes arrived: the lists do not match", move->head,
                         move->in.items);
    }
    return DPAR_OK;
}
