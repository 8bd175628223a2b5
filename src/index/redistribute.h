/* SPDX-License-Identifier: MIT-0 */
/* redistribute - an array from one layout to another, on the same ranks or on others: who sends
 * which box to whom. Each rank lists its own transfers alone, and no rank's list contradicts
 * another's. Rank n of both meshes is one process. Ranks of another job are others: give that mesh
 * an offset. Files of another job's rank n are not what rank n holds: read them with DPAR_PRIMARY.
 */
#ifndef DPARI_INDEX_REDISTRIBUTE_H
#define DPARI_INDEX_REDISTRIBUTE_H

#include "layout.h"

/* Can `from` become `to`? Same dims and extents; a Partial axis of `to` must be one of `from` too
 * (same place in the same mesh, same op: sums stay as they are), or a sum that begins: then
 * coordinate 0 of that axis receives the array and the others must fill theirs with zeros. E_ARG
 * with a sentence otherwise. O(axes). */
DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why);

/* The walk over one rank's transfers: first, then next until 0. The layouts are copied. About 2 KB;
 * the caller's. */
enum { DPAR_RECEIVES, DPAR_SENDS };
enum { DPAR_PRIMARY = -1 }; /* as per_node: copy 0 sends, always (files that copy 0 wrote) */
typedef struct dpar_transfers {
    dpar_layout mine, other; /* private, all of it */
    int32_t rank, me, sends, per_node, nested, state;
    int32_t copies, copy, partials, partial, combine;
    int32_t phase, fresh, node, mate, mates, taker, takers, around;
    int32_t first, line, units, left;
    int32_t now, op; /* the transfer that was reached */
    uint32_t free_from, part_from, free_to;
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES], base[DPAR_MAX_AXES];
    int32_t guest[DPAR_MAX_AXES];
    int32_t grid[DPAR_MAX_DIMS], outer[DPAR_MAX_DIMS], share[DPAR_MAX_DIMS];
    int64_t into, low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int64_t at[DPAR_MAX_DIMS], begin[DPAR_MAX_DIMS], length[DPAR_MAX_DIMS], there[DPAR_MAX_DIMS];
    int64_t held[DPAR_MAX_DIMS], lead[DPAR_MAX_DIMS], cut[DPAR_MAX_DIMS], cut_length[DPAR_MAX_DIMS];
} dpar_transfers;

/* All that `rank` receives (its elements of `to`, each once; of Partial sources each contribution
 * once, the first with DPAR_COPY, the others with the op), or all that it sends. Not collective and
 * without talking: the k-th send from a to b is the k-th receive of b from a.
 *
 * Which replica sends: the receiver itself when it holds the element; else those on its node
 * (per_node > 0 consecutive ranks are a node; of meshes whose strides nest, as those of every init
 * do); else all. They share the sending: while a box has as many receivers as there are copies,
 * each copy serves as many of them; of those that are left each is served by the copies in its
 * part of the line, each with its even share. Where the receivers cut rows (CHUNK, EVEN, FLOOR) and
 * their number and that of the copies have a common divisor, shares end where rows do, so that
 * boxes stay whole; else a box may come in pieces. A copy sends at most the even share and the
 * largest box more. With Partial sources each partial rank contributes directly: for P to S that is
 * a reduce-scatter; for P to R reduce first (dpar_redistribute_reduced).
 *
 * E_ARG as dpar_redistribute_check, which has the sentence, and for a per_node below -1 or another
 * direction. Each step O(axes x dims); a list O(its own transfers); that of a sender with copies
 * also O(what the ranks of its node receive of it), and it passes over receivers that have a copy
 * nearer. */
DPAR_API dpar_status dpar_transfers_first(dpar_transfers *w, const dpar_layout *from,
                                          const dpar_layout *to, int32_t rank, int32_t direction,
                                          int32_t per_node);
/* 1 and the next transfer, or 0 at the end. Order: receives by box, the last dim fastest, each box
 * by its senders; sends to the node first, rank by rank, then to all others. O(axes x dims). */
DPAR_API int dpar_transfers_next(dpar_transfers *w, dpar_transfer *t);

/* What a rank's walk adds up to. Elements; 2^63 - 1 stands for that and more. */
typedef struct dpar_transfer_totals {
    int64_t transfers; /* all, to itself too */
    int64_t kept;      /* elements that stay on the rank */
    int64_t near_by;   /* that cross to a rank of the same node */
    int64_t away;      /* that cross nodes (all that cross, without per_node) */
} dpar_transfer_totals;
/* Walks what is left of w: what a redistribution costs a rank. (At once it holds its array of
 * `from` and its array of `to`: dpar_layout_numel of both.) Costs what the
 * rest of the walk does. */
DPAR_API void dpar_transfers_total(dpar_transfers *w, dpar_transfer_totals *sum);

/* Where Partial axes are replicated by `to` (all-reduce), the cheap way goes over a layout that
 * shards the sums first: writes that one to *middle and returns MORE: from -> middle -> to. The
 * Partial axes are put on the longest dim, innermost. OK: go directly. O(axes). */
DPAR_API dpar_status dpar_redistribute_reduced(const dpar_layout *from, const dpar_layout *to,
                                               dpar_layout *middle);
/* Where `to` has replicas, they need not all read the same: *middle shards `to` over its replicated
 * axes, so that saved -> middle reads each element once, and middle -> to passes it on. MORE with
 * *middle written; OK: there are no replicas. O(axes). */
DPAR_API dpar_status dpar_redistribute_spread(const dpar_layout *to, dpar_layout *middle);

/* Which rank should play which part of `to` so that least moves: rank_of[p] becomes the number of
 * the rank of `from` for the p-th rank of `to`, all different, the sum of what they have already
 * the greatest there is (the assignment problem, exact). Both meshes have n <= 2^15 ranks, counted
 * with the last axis fastest as dpar_mesh_group_member does over all axes. E_ARG when they have
 * not, or the arrays differ, or one is Partial (a share of a sum is not the sum); E_RANGE for
 * shares above 2^46 elements. scratch: n^2 + 4 (n + 1) numbers. O(n^3 + n^2 x runs of a rank x
 * axes). */
DPAR_API dpar_status dpar_redistribute_assign(const dpar_layout *from, const dpar_layout *to,
                                              int32_t *rank_of, int64_t *scratch, dpar_why *why);

#endif
