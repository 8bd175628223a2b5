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

/* How many rounds n messages need when in each round a rank sends at most one and receives at most
 * one: the most that any rank sends or any receives (Koenig 1916). degree: scratch of senders +
 * receivers numbers. -1 when an edge is outside or a number of ranks negative. O(n). */
DPAR_API int32_t dpar_rounds_needed(const dpar_edge *edge, int64_t n, int32_t senders,
                                    int32_t receivers, int32_t *degree);
/* And which round each goes in: round[k] in 0 .. rounds-1, no rank twice on a side. table: scratch
 * of (senders + receivers) * rounds numbers. E_ARG, round[] untouched, when `rounds` are fewer than
 * needed, an edge is outside or a number is negative. O(n (senders + receivers)) at worst, O(n
 * rounds) mostly. The same on all ranks. */
DPAR_API dpar_status dpar_rounds_color(const dpar_edge *edge, int64_t n, int32_t senders,
                                       int32_t receivers, int32_t rounds, int64_t *table,
                                       int32_t *round, dpar_why *why);

/* Orders of a complete all-to-all over n ranks, where no list is needed: the peer of `rank` in
 * round 0 .. n-1; round 0 is the rank itself (PAIRS: some round is). */
enum {
    DPAR_ORDER_RING,   /* to rank + round, from rank - round; any n */
    DPAR_ORDER_XOR,    /* rank ^ round: both ways with one peer; n a power of two, else as PAIRS */
    DPAR_ORDER_PAIRS,  /* (round - rank) mod n: both ways with one peer; any n */
    DPAR_ORDER_GROUPED /* cuDecomp's: near and far peers in turn, `group` ranks a node */
};
/* -1 when an argument is out of range. GROUPED is a permutation in every round when group divides n
 * or n is a power of two. */
DPAR_API int32_t dpar_exchange_peer(int32_t order, int32_t n, int32_t group, int32_t rank,
                                    int32_t round);

/* Which rank should play which part so that least moves: kept[r * n + p] is what rank r has already
 * of what part p needs (dpar_redistribute_kept counts it); rank_of[p] becomes the rank for part p,
 * all different, the sum of what is kept the greatest there is (the assignment problem, exact). n
 * <= 2^15, kept 0 .. 2^46. scratch: 4 (n + 1) numbers. O(n^3). */
DPAR_API dpar_status dpar_relabel(int32_t n, const int64_t *kept, int32_t *rank_of,
                                  int64_t *scratch, dpar_why *why);

/* Do n boxes cover an array of extent[0 .. dims-1], each element once? OK, or E_ARG and a sentence
 * that says which box is outside, which two overlap, or how many elements no box has and which is
 * the first. Empty boxes are passed over. order: scratch of n numbers. O(n log n + pairs that
 * overlap in the dim where the boxes are thinnest). */
DPAR_API dpar_status dpar_boxes_cover(int32_t dims, const int64_t *extent, const dpar_box *box,
                                      int32_t n, int32_t *order, dpar_why *why);

#endif
