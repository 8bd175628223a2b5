/* SPDX-License-Identifier: MIT-0 */
/* exchange - many transfers at once: in which rounds, with which peer, under which names, and
 * whether boxes cover an array. For these the whole picture is needed; memory is the caller's. */
#ifndef DPARI_INDEX_EXCHANGE_H
#define DPARI_INDEX_EXCHANGE_H

#include "../base/box.h"

/* One message, between members of two sets (or of one: then they are counted as senders and as
 * receivers; a rank sends and receives at once). */
typedef struct dpar_edge {
    int32_t from, to; /* 0 .. senders-1, 0 .. receivers-1 */
} dpar_edge;

/* Messages, and scratch of `cells` numbers: senders + receivers, times the rounds to fill in who
 * goes when. */
typedef struct dpar_exchange {
    const dpar_edge *edge;
    int64_t n; /* messages */
    int32_t senders, receivers;
    int64_t *scratch;
    int64_t cells;
} dpar_exchange;

/* How many rounds they need when in each round a rank sends at most one and receives at most one:
 * the most that any rank sends or any receives (Koenig 1916); and, where round is not NULL, which
 * round each goes in: round[k] in 0 .. *rounds - 1, no rank twice on a side. E_ARG when an edge is
 * outside or a number negative. E_ROOM when the scratch is too small: *rounds is written where it
 * has senders + receivers numbers, round[] never. The same on all ranks.
 * O(n (senders + receivers)) at worst, O(n rounds) mostly. */
DPAR_API dpar_status dpar_exchange_rounds(const dpar_exchange *e, int32_t *rounds, int32_t *round,
                                          dpar_why *why);

/* Do n boxes cover an array of extent[0 .. dims-1], each element once? OK, or E_ARG and a sentence
 * that says which box is outside, which two overlap, or how many elements no box has and which is
 * the first; E_RANGE for an array of more than 2^63 - 1 elements. Empty boxes are passed over.
 * order: scratch of n numbers. O(n log n + pairs that overlap in the dim where the boxes are
 * thinnest). */
DPAR_API dpar_status dpar_box_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                    int32_t n, int32_t *order, dpar_why *why);

#endif
