/* SPDX-License-Identifier: MIT-0 */
/* exchange - many transfers seen at once: in which rounds they go, and whether boxes cover an
 * array. These need the whole picture; its memory is the caller's.
 *
 *     dpar_exchange e = {edge, n, senders, receivers, scratch, cells};
 *     dpar_exchange_rounds(&e, &rounds, round, &why);    round[k]: when edge[k] goes */
#ifndef DPARI_INDEX_EXCHANGE_H
#define DPARI_INDEX_EXCHANGE_H

#include "../base/box.h"

/* One message, from a member of one set to a member of another. Where both sets are the same ranks,
 * each is counted once as sender and once as receiver: a rank sends and receives at once. */
typedef struct dpar_edge {
    int32_t from, to; /* 0 .. senders-1, 0 .. receivers-1 */
} dpar_edge;

/* The messages, and scratch of `cells` numbers: senders + receivers; times the rounds when `round`
 * is to be filled. */
typedef struct dpar_exchange {
    const dpar_edge *edge;
    int64_t n; /* messages */
    int32_t senders, receivers;
    int64_t *scratch;
    int64_t cells;
} dpar_exchange;

/* In how many rounds can all messages go, when in each a rank sends at most one and receives at
 * most one? *rounds is the most that any rank sends or receives (Koenig 1916). round[k] (round may
 * be NULL) is message k's, 0 .. *rounds - 1. The same on all ranks.
 *
 * E_ARG: an edge is outside or a number negative. E_ROOM: the scratch is too small; *rounds is
 * still written where there are senders + receivers numbers, round[] never. E_RANGE: a rank has
 * more than 2^31 - 1 messages. O(n (senders + receivers)) at worst, mostly O(n rounds). */
DPAR_API dpar_status dpar_exchange_rounds(const dpar_exchange *e, int32_t *rounds, int32_t *round,
                                          dpar_why *why);

/* Do n boxes cover an array of extent[0 .. dims-1], each element once? OK, or E_ARG with a
 * sentence: which box is outside, which two overlap, or how many elements no box has and which is
 * the first. E_RANGE: the array has more than 2^63 - 1 elements. Empty boxes are ignored. order:
 * scratch of n numbers. O(n log n + pairs that overlap in the dim where the boxes are thinnest). */
DPAR_API dpar_status dpar_box_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                    int32_t n, int32_t *order, dpar_why *why);

#endif
