/* SPDX-License-Identifier: MIT-0 */
/* Stores and combines what a move receives.
 *
 * Parts that are reduced must be combined in the order of the list, not of arrival. A message
 * therefore stays in scratch until the parts before it have been combined, and only then is the
 * next message of its stream received. Since this depends only on the lists, a receiver can
 * simulate it without data: with `dry`, the functions only count. Called by move_rounds and
 * move_lists. */
#include "move_order.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../comm/comm.h"

DPARI_INTERNAL int64_t dpari_group_end(dpari_move *move, int64_t begin)
{
    dpari_move_side *in = &move->in;
    int64_t i = begin;
    move->stamp++;
    do {
        in->stream[in->item[i].stream].stamp = move->stamp;
        i++;
    } while (i < in->items && in->item[i].continues &&
             in->stream[in->item[i].stream].stamp != move->stamp);
    return i;
}

/* Returns how many elements of a group can be reduced now. The messages of all its streams must
 * have them, and `leader`, the copy to which they are added, must have stored them. leader is NULL
 * if they are added to elements that are complete. */
static int64_t dpari_group_ready(const dpari_move *move, const dpari_move_item *leader,
                                 int64_t begin, int64_t end)
{
    const int64_t done = move->in.item[begin].done;
    int64_t n = move->in.item[begin].volume - done, i;
    for (i = begin; i < end; i++) {
        const dpari_move_stream *stream = &move->in.stream[move->in.item[i].stream];
        if (!stream->loaded) { /* if loaded is set, this part is the next one of its stream */
            return 0;
        }
        n = dpari_least(n, stream->m_count - stream->take_at);
    }
    return leader == NULL || leader->done >= done + n ? n : 0;
}

/* Marks n elements of a stream's next part as combined, and skips copies that follow it. */
static void dpari_stream_take(const dpari_move_side *in, dpari_move_stream *stream, int64_t n)
{
    stream->take_offset += n;
    stream->take_at += n;
    if (stream->take_offset == in->item[stream->take].volume) {
        stream->take_offset = 0;
        stream->take = in->item[stream->take].next;
        while (stream->take_at < stream->m_count && in->item[stream->take].op == DPAR_COPY) {
            stream->take_at += in->item[stream->take].volume;
            stream->take = in->item[stream->take].next;
        }
    }
    stream->loaded = stream->take_at < stream->m_count;
}

/* Reduces n elements of a group, and advances its streams. With `dry` it only does the latter. */
static void dpari_group_reduce(dpari_move *move, int64_t begin, int64_t end, int64_t n, int dry)
{
    dpari_move_side *in = &move->in;
    const dpari_move_item *it = &in->item[begin];
    const int64_t done = it->done;
    int64_t i;
    for (i = begin; i < end; i++) {
        const dpari_move_stream *stream = &in->stream[in->item[i].stream];
        move->part[1 + i - begin] =
            dry ? NULL : stream->memory + stream->take_at * move->boxes.bytes;
    }
    if (!dry) {
        dpari_item_combine(&move->boxes, &in->array, it, done, done + n, move->part,
                           (int32_t)(1 + end - begin), it->op);
    }
    for (i = begin; i < end; i++) {
        dpari_stream_take(in, &in->stream[in->item[i].stream], n);
        in->item[i].done += n;
    }
}

DPARI_INTERNAL void dpari_move_combine(dpari_move *move, int dry)
{
    dpari_move_side *in = &move->in;
    while (move->head < in->items) {
        const dpari_move_item *it = &in->item[move->head], *leader = NULL;
        int64_t begin = move->head, end, n;
        if (it->op == DPAR_COPY) {
            if (begin + 1 < in->items && in->item[begin + 1].continues) {
                leader = it;
                begin++;
            } else if (it->done < it->volume) {
                return;
            } else {
                move->head++;
                continue;
            }
        }
        end = dpari_group_end(move, begin);
        n = dpari_group_ready(move, leader, begin, end);
        if (n == 0) {
            return;
        }
        dpari_group_reduce(move, begin, end, n, dry);
        if (in->item[begin].done == in->item[begin].volume) {
            move->head = end;
        }
    }
}

DPARI_INTERNAL void dpari_stream_arrive(dpari_move *move, dpari_move_stream *stream, int dry)
{
    dpari_move_side *in = &move->in;
    int64_t i = stream->m_item, offset = stream->m_offset, at = 0;
    while (at < stream->m_count) {
        dpari_move_item *it = &in->item[i];
        const int64_t n = dpari_least(it->volume - offset, stream->m_count - at);
        if (it->op != DPAR_COPY && !stream->loaded) {
            stream->loaded = 1;
            stream->take = i;
            stream->take_offset = offset;
            stream->take_at = at;
        } else if (it->op == DPAR_COPY) {
            if (!dry && stream->memory != NULL) {
                dpari_item_unpack(&move->boxes, &in->array, it, offset, offset + n,
                                  stream->memory + at * move->boxes.bytes);
            }
            it->done += n;
        }
        at += n;
        offset = 0;
        i = it->next;
    }
    dpari_boxes_flush(&move->boxes);
}

DPARI_INTERNAL void dpari_move_self(dpari_move *move, int dry)
{
    const int32_t me = move->comm->rank;
    dpari_move_stream *to, *from;
    int64_t i, k;
    if (move->in.of_peer[me] == 0 || move->out.of_peer[me] == 0) {
        return;
    }
    to = &move->in.stream[move->in.of_peer[me] - 1];
    from = &move->out.stream[move->out.of_peer[me] - 1];
    if (to->ops) {
        return;
    }
    for (i = to->first, k = from->first; i >= 0;
         i = move->in.item[i].next, k = move->out.item[k].next) {
        if (!dry) {
            dpari_item_copy(&move->boxes, &move->in.array, &move->in.item[i], &move->out.array,
                            &move->out.item[k]);
        }
        move->in.item[i].done = move->in.item[i].volume;
    }
    dpari_boxes_flush(&move->boxes);
    to->messages = from->messages = 0;
}

DPARI_INTERNAL void dpari_move_plan(dpari_move *move)
{
    int64_t round, i;
    int32_t k, more = 0;
    for (k = 0; k < move->in.streams; k++) {
        more |= move->in.stream[k].round != NULL;
    }
    if (!more) {
        return;
    }
    dpari_move_self(move, 1);
    for (round = 0; more; round++) {
        more = 0;
        for (k = 0; k < move->in.streams; k++) {
            dpari_move_stream *stream = &move->in.stream[k];
            if (dpari_receives_now(stream)) {
                if (stream->round != NULL) {
                    stream->round[stream->message] = (int32_t)round;
                }
                dpari_stream_cut(move, &move->in, stream);
                dpari_stream_arrive(move, stream, 1);
                more = 1;
            }
        }
        dpari_move_combine(move, 1);
    }
    for (k = 0; k < move->in.streams; k++) {
        dpari_stream_rewind(&move->in.stream[k]);
    }
    for (i = 0; i < move->in.items; i++) {
        move->in.item[i].done = 0;
    }
    move->head = 0;
}
