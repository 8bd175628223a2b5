/* SPDX-License-Identifier: MIT-0 */
/* exchange - schedules messages in rounds, and checks whether boxes cover an array. Both need all
 * messages or boxes at once, in the caller's memory.
 *
 *     dpar_exchange e = {edge, n, senders, receivers, scratch, cells};
 *     dpar_exchange_rounds(&e, &rounds, round, &why);    edge[k] is sent in round round[k]
 */
#ifndef DPARI_INDEX_EXCHANGE_H
#define DPARI_INDEX_EXCHANGE_H

#include "../base/box.h"

/* One message, from a member of one set to a member of another. If both sets are the same ranks,
 * each rank counts once as sender and once as receiver, because it can send and receive at the same
 * time. */
typedef struct dpar_edge {
    int32_t from, to; /* 0 .. senders-1, 0 .. receivers-1 */
} dpar_edge;

/* A set of messages to be scheduled. */
typedef struct dpar_exchange {
    const dpar_edge *edge;
    int64_t n; /* number of messages */
    int32_t senders, receivers;
    /* [cells]. Needs senders + receivers numbers, times the number of rounds if `round` is to be
     * filled. */
    int64_t *scratch;
    int64_t cells;
} dpar_exchange;

/* Computes the least number of rounds in which all messages can be sent, if a rank sends at most
 * one and receives at most one message per round. It is the most messages that any rank sends or
 * receives (Koenig 1916). The result is the same on all ranks.
 *
 * round:  [n], receives the round of each message, 0 .. *rounds - 1; may be NULL.
 *
 * Fails with DPAR_E_ARG if an edge is outside the sets or a number is negative, DPAR_E_ROOM if the
 * scratch is too small, or DPAR_E_RANGE if a rank has more than 2^31 - 1 messages. With DPAR_E_ROOM
 * *rounds is still written if there are senders + receivers numbers; round[] is not. Costs O(n
 * (senders + receivers)) at worst, and mostly O(n rounds).
 */
DPAR_API dpar_status dpar_exchange_rounds(const dpar_exchange *e, int32_t *rounds, int32_t *round,
                                          dpar_why *why);

/* Checks whether n boxes cover an array so that each element is in exactly one box. Empty boxes are
 * ignored.
 *
 * extent:  [dims], the shape of the array.
 * order:   [n], scratch.
 *
 * Fails with DPAR_E_ARG if not. The message then names a box that is outside, two boxes that
 * overlap, or the number of elements that no box has and the first of them. Fails with DPAR_E_RANGE
 * if the array has more than 2^63 - 1 elements. Costs O(n log n + pairs that overlap in the dim
 * where the boxes are thinnest).
 */
DPAR_API dpar_status dpar_box_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                    int32_t n, int32_t *order, dpar_why *why);

#endif
