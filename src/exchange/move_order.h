/* SPDX-License-Identifier: MIT-0 */
/* move_order - stores what a move receives, and combines it in the order of the list. Private. */
#ifndef DPARI_EXCHANGE_MOVE_ORDER_H
#define DPARI_EXCHANGE_MOVE_ORDER_H

#include "move_streams.h"

/* Returns the end of the group of items that begins at item `begin`: parts of one box, each from a
 * different rank, which are reduced together. */
DPARI_INTERNAL int64_t dpari_group_end(dpari_move *move, int64_t begin);
/* Combines the parts that have arrived, in the order of the list, as far as possible. With `dry` it
 * only counts them. */
DPARI_INTERNAL void dpari_move_combine(dpari_move *move, int dry);
/* Handles the present message of a stream when it has arrived: stores its copies in the array,
 * unless they were received there, and notes the first part to combine. With `dry` it stores
 * nothing. */
DPARI_INTERNAL void dpari_stream_arrive(dpari_move *move, dpari_move_stream *stream, int dry);
/* Copies the boxes that this rank sends to itself, unless some of them are combined. */
DPARI_INTERNAL void dpari_move_self(dpari_move *move, int dry);
/* Finds out in which round each message is received, by receiving without data. */
DPARI_INTERNAL void dpari_move_plan(dpari_move *move);
/* True if the next message of a stream is received in this round. A message with parts to combine
 * is received once all parts of the message before it have been combined; the receiver tells the
 * sender in which round that is. */
DPARI_FN int dpari_receives_now(const dpari_move_stream *stream)
{
    return stream->message < stream->messages && !stream->loaded;
}

#endif
