/* SPDX-License-Identifier: MIT-0 */
/* Makes the streams of a move.
 *
 * The transfers are walked twice: once to know how much scratch they need at most, and once more to
 * make their items in it. The items of one peer form a stream, which is cut into messages of about
 * piece_bytes. Called by move_order, move_rounds, move_lists and move. */
#include "move_streams.h"

#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/memory_calls.h"
#include "../comm/os.h"
#include "../comm/shm.h"

/* ---- checks and messages --------------------------------------------------------------------- */

DPARI_INTERNAL dpar_status dpari_move_init(dpari_move *move, dpar_comm *comm,
                                           const dpar_redistribute_desc *desc, dpar_why *why)
{
    /* bytes: by default the messages of all peers have ALL together, and each one LEAST to MOST;
     * boxes from ALONE on share no message */
    enum { LEAST = 1 << 16, MOST = 1 << 20, ALL = 1 << 25, ALONE = 1 << 14 };
    const int64_t usual = dpari_most(LEAST, dpari_least(MOST, ALL / comm->size));
    int32_t bytes;
    dpari_zero(move, sizeof *move);
    desc = desc != NULL ? desc : &move->none;
    bytes = dpar_type_bytes(desc->type);
    move->comm = move->boxes.comm = comm;
    move->source.rank = comm->rank;
    move->desc = desc;
    move->boxes.type = desc->type;
    move->boxes.bytes = bytes;
    if (bytes == 0) {
        return dpari_wrong(why, "type %s (%d) has no elements of whole bytes",
                           dpar_type_name(desc->type), desc->type);
    }
    if (desc->tag < 0 || desc->piece_bytes < 0 || desc->scratch_bytes < 0) {
        return dpari_wrong(
            why, "tag is %d, piece_bytes %ld, scratch_bytes %ld, but none may be negative",
            desc->tag, desc->piece_bytes, desc->scratch_bytes);
    }
    move->piece = dpari_most(1, (desc->piece_bytes > 0 ? desc->piece_bytes : usual) / bytes);
    move->alone = dpari_least(move->piece, ALONE / bytes);
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void dpari_move_state(dpari_facts *facts, const void *given)
{
    const dpari_move *move = (const dpari_move *)given;
    dpari_fact_type(facts, "type", 0, move->desc->type);
    dpari_fact(facts, "tag", 0, move->desc->tag);
    dpari_fact(facts, "elements of a message", 0, move->piece);
}

DPARI_INTERNAL dpar_status dpari_move_failed(const dpari_move *move, dpar_status status,
                                             dpar_why *why)
{
    if (why != NULL && status < 0) {
        *why = move->comm->why;
    }
    return status;
}

DPARI_INTERNAL int dpari_move_overlaps(const dpari_move *move, int64_t in_bytes, int64_t out_bytes)
{
    const uintptr_t in = (uintptr_t)move->desc->in, out = (uintptr_t)move->desc->out;
    return in_bytes > 0 && out_bytes > 0 && in < out + (uintptr_t)out_bytes &&
           out < in + (uintptr_t)in_bytes;
}

/* ---- walking the transfers ------------------------------------------------------------------- */

static dpar_status dpari_source_begin(dpari_move_source *source, int32_t direction, dpar_why *why)
{
    source->direction = direction;
    source->at = 0;
    if (source->from == NULL) {
        return DPAR_OK;
    }
    if (source->per_node < DPAR_REDISTRIBUTE_PRIMARY) {
        return dpari_wrong(why, "ranks_per_node is %d, but must be -1 or more", source->per_node);
    }
    if (dpar_redistribute_check(source->from, source->to, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    return dpar_redistribute_first(&source->walk, source->from, source->to, source->rank, direction,
                                   source->per_node);
}

/* Returns the next transfer, or NULL if there is none, and notes whether it continues the one
 * before it. */
static const dpar_transfer *dpari_source_next(dpari_move_source *source)
{
    dpar_transfer *t = &source->transfer[source->at % 2];
    if (source->from != NULL) {
        if (!dpar_redistribute_next(&source->walk, t)) {
            return NULL;
        }
    } else if (source->at == source->count[source->direction]) {
        return NULL;
    } else {
        *t = source->list[source->direction][source->at];
    }
    source->at++;
    source->continues =
        source->at > 1 && dpari_transfer_continues(&source->transfer[source->at % 2], t);
    return t;
}

/* Counts the transfers of one direction. */
static DPARI_COLD dpar_status dpari_source_total(dpari_move_source *source, int32_t direction,
                                                 dpari_move_totals *sum, dpar_why *why)
{
    const dpar_transfer *t;
    const dpar_status status = dpari_source_begin(source, direction, why);
    dpari_zero(sum, sizeof *sum);
    if (status != DPAR_OK) {
        return status;
    }
    while ((t = dpari_source_next(source)) != NULL) {
        const int64_t volume = dpar_transfer_volume(t);
        if (volume < 0 || volume > (INT64_C(1) << 62) - sum->elements) {
            return dpari_say(DPAR_E_RANGE, why, "more than 2^62 elements are moved");
        }
        if (t->op != DPAR_COPY) {
            sum->ops = 1;
            sum->apart |= !source->continues;
            sum->own_ops |= t->peer == source->rank;
        }
        if (t->peer == source->rank) {
            sum->own += volume;
        }
        sum->elements += volume;
        sum->items++;
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_move_count(dpari_move *move, dpar_why *why)
{
    const dpar_status status =
        dpari_source_total(&move->source, DPAR_TRANSFER_SEND, &move->sum[DPAR_TRANSFER_SEND], why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_source_total(&move->source, DPAR_TRANSFER_RECV, &move->sum[DPAR_TRANSFER_RECV],
                              why);
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* Adds n * each bytes to *a, rounded up to cache lines. Returns 0 if the sum would exceed 2^62. */
static int dpari_scratch_add(int64_t *a, int64_t n, int64_t each)
{
    int64_t more;
    if (!dpari_mul(n, each, &more) || more > (INT64_C(1) << 62) - 128 - *a) {
        return 0;
    }
    *a += more / 64 * 64 + 64;
    return 1;
}

/* True if messages from this rank to itself need slots, because their boxes are combined. All other
 * boxes of this rank are copied from array to array. */
static DPARI_COLD int dpari_own_has_slots(const dpari_move *move)
{
    return move->sum[DPAR_TRANSFER_SEND].own_ops || move->sum[DPAR_TRANSFER_RECV].own_ops;
}

static DPARI_COLD int dpari_scratch_side(int64_t *bytes, const dpari_move *move,
                                         const dpari_move_totals *sum)
{
    const int64_t piece = move->piece, streams = dpari_least(sum->items, move->comm->size);
    const int64_t own = dpari_own_has_slots(move) ? 0 : sum->own;
    const int64_t messages = streams - (own > 0);
    const int64_t slots = dpari_least(
        sum->elements - own, piece <= INT64_MAX / (messages + 1) ? piece * messages : INT64_MAX);
    return dpari_scratch_add(bytes, sum->items, (int64_t)sizeof(dpari_move_item)) &&
           dpari_scratch_add(bytes, streams, (int64_t)sizeof(dpari_move_stream)) &&
           dpari_scratch_add(bytes, move->comm->size, 4) &&
           dpari_scratch_add(bytes, slots, move->boxes.bytes) &&
           dpari_scratch_add(bytes, streams, 128) && /* slots and tables of rounds begin at cache
                                                        lines */
           (!sum->ops || dpari_scratch_add(bytes, sum->items + sum->elements / piece + 1, 4));
}

DPARI_INTERNAL int64_t dpari_move_bytes(const dpari_move *move)
{
    const dpari_move_totals *in = &move->sum[DPAR_TRANSFER_RECV];
    const int64_t streams = dpari_least(in->items, move->comm->size);
    const int64_t stages = move->comm->mem != NULL && in->ops ? streams + 2 : 0;
    int64_t bytes = 64; /* to reach the first cache line */
    if (!dpari_scratch_side(&bytes, move, &move->sum[DPAR_TRANSFER_SEND]) ||
        !dpari_scratch_side(&bytes, move, in) ||
        !dpari_scratch_add(&bytes, 2 * (streams + 1), (int64_t)sizeof(void *)) ||
        !dpari_scratch_add(&bytes, move->comm->size, 4 * 8) ||
        !dpari_scratch_add(&bytes,
                           move->comm->mem != NULL ? DPARI_MOVE_BOXES : DPARI_MOVE_BOXES_HERE,
                           (int64_t)sizeof(dpar_mem_box)) ||
        !dpari_scratch_add(&bytes, stages, DPARI_MOVE_STAGE) ||
        !dpari_scratch_add(&bytes, 1, DPARI_MOVE_ZERO)) {
        return -1;
    }
    return bytes;
}

DPARI_INTERNAL dpar_status dpari_move_scratch(dpari_move *move, int64_t bytes, dpar_why *why)
{
    const dpar_redistribute_desc *desc = move->desc;
    const int there = move->comm->mem != NULL;
    dpar_status status = DPAR_OK;
    if (bytes < 0) {
        return dpari_say(DPAR_E_RANGE, why, "more than 2^62 bytes of scratch are needed");
    }
    move->bytes = bytes;
    if ((desc->scratch != NULL || desc->scratch_bytes > 0) && bytes > desc->scratch_bytes) {
        return dpari_say(DPAR_E_ROOM, why, "scratch has %ld bytes, but %ld are needed",
                         desc->scratch_bytes, bytes);
    }
    if (there && desc->device_scratch != NULL && bytes > desc->device_scratch_bytes) {
        return dpari_say(DPAR_E_ROOM, why, "scratch has %ld bytes, but %ld are needed",
                         desc->device_scratch_bytes, bytes);
    }
    move->scratch = desc->scratch;
    if (there) {
        move->there = desc->device_scratch;
        if (desc->device_scratch == NULL) {
            status = dpar_comm_alloc(move->comm, bytes, &move->there);
        }
        if (desc->scratch == NULL) { /* also after a failure; dpari_move_end releases it */
            move->scratch = dpari_os_pages(bytes);
        }
        if (status == DPAR_OK && move->scratch == NULL) {
            return dpari_say(DPAR_E_MEMORY, why, "no %ld bytes of scratch", bytes);
        }
    } else if (desc->scratch == NULL) {
        status = dpari_shm_scratch(move->comm, bytes, &move->scratch);
    }
    return dpari_move_failed(move, status, why);
}

DPARI_INTERNAL dpar_status dpari_move_end(const dpari_move *move, dpar_status status, dpar_why *why)
{
    const int there = move->comm->mem != NULL;
    if (there && move->desc->device_scratch == NULL && move->there != NULL) {
        (void)dpari_do_wait(move->comm); /* until nothing uses it any more; over NCCL the release
                                            waits */
        dpar_comm_release(move->comm, move->there);
    }
    if (move->desc->scratch == NULL && move->scratch != NULL) {
        if (there) {
            dpari_os_unmap(move->scratch, move->bytes);
        } else {
            dpar_comm_release(move->comm, move->scratch);
        }
    }
    if (status == DPAR_E_ROOM) {
        dpari_needs_bytes(why, move->bytes);
    }
    return status;
}

/* Takes memory for n elements of `each` bytes from scratch, at a cache line. */
static void *dpari_carve(dpari_move *move, int64_t n, int64_t each)
{
    unsigned char *at = move->next;
    move->next += n * each / 64 * 64 + 64;
    return at;
}

/* ---- lists into streams ---------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_stream_cut(const dpari_move *move, const dpari_move_side *side,
                                     dpari_move_stream *stream)
{
    const dpari_move_item *it = &side->item[stream->item];
    stream->m_item = stream->item;
    stream->m_offset = stream->offset;
    stream->m_count = 0;
    stream->message++;
    if (it->volume >= move->alone) {
        stream->m_count = dpari_least(move->piece, it->volume - stream->offset);
        stream->offset += stream->m_count;
        if (stream->offset == it->volume) {
            stream->item = it->next;
            stream->offset = 0;
        }
        return;
    }
    while (stream->item >= 0 && side->item[stream->item].volume < move->alone &&
           stream->m_count + side->item[stream->item].volume <= move->piece) {
        stream->m_count += side->item[stream->item].volume;
        stream->item = side->item[stream->item].next;
    }
}

DPARI_INTERNAL void dpari_stream_rewind(dpari_move_stream *stream)
{
    stream->item = stream->first;
    stream->offset = 0;
    stream->message = 0;
    stream->loaded = 0;
    stream->m_count = 0;
}

/* Returns the stream of a peer, which it makes if there is none yet. */
static dpari_move_stream *dpari_stream_of(dpari_move_side *side, int32_t peer)
{
    dpari_move_stream *stream;
    if (side->of_peer[peer] == 0) {
        stream = &side->stream[side->streams++];
        dpari_zero(stream, sizeof *stream);
        stream->peer = peer;
        stream->first = stream->last = -1;
        side->of_peer[peer] = side->streams;
    }
    return &side->stream[side->of_peer[peer] - 1];
}

static void dpari_side_fill(dpari_move_side *side, dpari_move_source *source)
{
    const dpar_transfer *t;
    while ((t = dpari_source_next(source)) != NULL) {
        dpari_move_item *it = &side->item[side->items];
        dpari_move_stream *stream = dpari_stream_of(side, t->peer);
        dpari_item_init(it, t, &side->array);
        it->continues = source->continues;
        it->stream = side->of_peer[t->peer] - 1;
        if (stream->last >= 0) {
            side->item[stream->last].next = side->items;
        } else {
            stream->first = side->items;
        }
        stream->last = side->items++;
        stream->ops |= t->op != DPAR_COPY;
        stream->elements += it->volume;
    }
}

/* Counts the messages of each stream, and takes memory for one of them and for the table of
 * rounds. */
static void dpari_side_cut(dpari_move *move, dpari_move_side *side)
{
    unsigned char **next = move->comm->mem != NULL ? &move->next_there : &move->next;
    int32_t i;
    for (i = 0; i < side->streams; i++) {
        dpari_move_stream *s = &side->stream[i];
        int64_t most = 0;
        dpari_stream_rewind(s);
        while (s->item >= 0) {
            dpari_stream_cut(move, side, s);
            most = dpari_most(most, s->m_count);
        }
        s->messages = s->message;
        dpari_stream_rewind(s);
        s->slot = *next;
        if (s->peer != move->comm->rank || dpari_own_has_slots(move)) {
            *next += dpari_room_up(most * move->boxes.bytes);
        }
        if (s->ops && s->messages > 1) {
            s->round = (int32_t *)dpari_carve(move, s->messages, 4);
        }
    }
}

static DPARI_COLD void dpari_side_build(dpari_move *move, dpari_move_side *side, int32_t direction)
{
    const int64_t items = move->sum[direction].items;
    const int64_t streams = dpari_least(items, move->comm->size);
    side->item = (dpari_move_item *)dpari_carve(move, items, (int64_t)sizeof(dpari_move_item));
    side->stream =
        (dpari_move_stream *)dpari_carve(move, streams, (int64_t)sizeof(dpari_move_stream));
    side->of_peer = (int32_t *)dpari_carve(move, move->comm->size, 4);
    dpari_zero(side->of_peer, (size_t)move->comm->size * 4);
    (void)dpari_source_begin(&move->source, direction, NULL); /* cannot fail, because it succeeded
                                                                 before */
    dpari_side_fill(side, &move->source);
    dpari_side_cut(move, side);
}

DPARI_INTERNAL void dpari_move_build(dpari_move *move)
{
    unsigned char *scratch = (unsigned char *)move->scratch, *there = (unsigned char *)move->there;
    dpari_move_boxes *boxes = &move->boxes;
    move->next = scratch + (64 - (uintptr_t)scratch % 64) % 64;
    boxes->most = DPARI_MOVE_BOXES_HERE;
    if (move->comm->mem != NULL) {
        boxes->most = DPARI_MOVE_BOXES;
        move->zero = there + (64 - (uintptr_t)there % 64) % 64;
        move->next_there = move->zero + DPARI_MOVE_ZERO;
    } else {
        move->zero = (unsigned char *)dpari_carve(move, 1, DPARI_MOVE_ZERO);
    }
    boxes->box = (dpar_mem_box *)dpari_carve(move, boxes->most, (int64_t)sizeof(dpar_mem_box));
    dpari_side_build(move, &move->out, DPAR_TRANSFER_SEND);
    dpari_side_build(move, &move->in, DPAR_TRANSFER_RECV);
    move->part =
        (const void **)dpari_carve(move, 2 * (move->in.streams + 1), (int64_t)sizeof(void *));
    move->word = (int64_t *)dpari_carve(move, move->comm->size, 32);
    boxes->stage = move->next_there;
}
