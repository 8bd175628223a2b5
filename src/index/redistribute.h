/* SPDX-License-Identifier: MIT-0 */
/* redistribute - an array from one layout to another, on the same ranks or on others: who sends
 * which box to whom. Each rank lists its own transfers without talking, and no rank's list
 * contradicts another's.
 *
 *     dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_RECV, 0);
 *     while (dpar_redistribute_next(&w, &t)) {
 *         t.peer sends t.extent elements, which arrive at t.mine
 *     }
 *
 * dpar_redistribute of dpar_comm.h moves the array. Rank n of both meshes is one process. Ranks
 * of another job are other processes: give that mesh an offset. Files that another job's rank n
 * wrote are not what rank n holds: read them with DPAR_REDISTRIBUTE_PRIMARY. */
#ifndef DPARI_INDEX_REDISTRIBUTE_H
#define DPARI_INDEX_REDISTRIBUTE_H

#include "layout.h"

/* Can `from` become `to`? E_ARG with a sentence when not. O(axes).
 *
 * Both have the same dims and extents. A Partial axis of `to` is one of two things. It is Partial
 * in `from` too, at the same place of the same mesh with the same op: sums stay as they are. Or a
 * sum begins: coordinate 0 of that axis receives the array, and the others must fill theirs with
 * zeros. */
DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why);

/* The walk over one rank's transfers: first, then next until 0. It copies the layouts. About 2 KB,
 * the caller's. */
enum { DPAR_TRANSFER_RECV, DPAR_TRANSFER_SEND };
enum {
    DPAR_REDISTRIBUTE_PRIMARY = -1
}; /* as per_node: copy 0 always sends, as where copy 0 wrote the files */
typedef struct dpar_redistribute_cursor {
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
} dpar_redistribute_cursor;

/* Begins the list of all that `rank` receives, or of all that it sends. It receives its elements of
 * `to`, each once. From Partial sources it receives each contribution once: the first with
 * DPAR_COPY, the others with the op. Not collective: no rank talks. The k-th send from a to b is
 * the k-th receive of b from a.
 *
 * Where several ranks have a copy, the receiver takes its own. Else the copies on its node send it;
 * else all copies do. per_node > 0 consecutive ranks are a node, for meshes whose strides nest, as
 * those of every init. per_node 0: there are no nodes.
 *
 * Copies share the sending evenly. While a box has at least as many receivers as copies, each copy
 * serves as many of them. Several copies serve each receiver that is left over, with even shares. A
 * copy sends at most its even share and the largest box more. So a box may come in pieces. It stays
 * whole where receivers cut rows (CHUNK, EVEN, FLOOR) and their number and that of the copies have
 * a common divisor: shares end where rows do.
 *
 * Each Partial rank sends its contribution directly. From P to S that is a reduce-scatter. From P
 * to R it is dear: see dpar_redistribute_reduced.
 *
 * E_ARG, without a sentence: what dpar_redistribute_check refuses, a per_node below -1, another
 * direction. A step costs O(axes x dims), a list O(its transfers). A sender with copies also takes
 * O(what the ranks of its node receive of it), and passes over receivers that have a nearer
 * copy. */
DPAR_API dpar_status dpar_redistribute_first(dpar_redistribute_cursor *w, const dpar_layout *from,
                                             const dpar_layout *to, int32_t rank, int32_t direction,
                                             int32_t per_node);
/* 1 and the next transfer, or 0 at the end. Receives come by box, the last dim fastest, each box by
 * its senders. Sends come to the node first, rank by rank, then to all others. O(axes x dims). */
DPAR_API int dpar_redistribute_next(dpar_redistribute_cursor *w, dpar_transfer *t);

/* What a rank's walk adds up to, in elements; 2^63 - 1 stands for that and more. */
typedef struct dpar_transfer_totals {
    int64_t transfers; /* how many, those to itself too */
    int64_t kept;      /* elements that stay on the rank */
    int64_t near_by;   /* elements that go to another rank of the node */
    int64_t away;      /* elements that go to another node; without per_node all that move */
} dpar_transfer_totals;
/* Walks what is left of w: what a redistribution costs a rank. It takes as long as the rest of the
 * walk. For the memory at once, add dpar_layout_count of both layouts. */
DPAR_API void dpar_transfers_total(dpar_redistribute_cursor *w, dpar_transfer_totals *sum);

/* A cheaper way where `to` replicates Partial axes (an all-reduce): shard the sums first. MORE: go
 * from -> *middle -> to. OK: go directly. *middle cuts the longest dim by the Partial axes,
 * innermost. O(axes). */
DPAR_API dpar_status dpar_redistribute_reduced(const dpar_layout *from, const dpar_layout *to,
                                               dpar_layout *middle);
/* A cheaper way to read a saved array where `to` has replicas: not all of them read all. MORE: go
 * saved -> *middle -> to. *middle shards `to` over its replicated axes, so that the first move
 * reads each element once and the second passes it on. OK: there are no replicas. O(axes). */
DPAR_API dpar_status dpar_redistribute_spread(const dpar_layout *to, dpar_layout *middle);

/* Which rank should play which part of `to`, so that least moves? rank_of[p] becomes the rank of
 * `from` that plays rank p of `to`. All are different; what they have already is the most there can
 * be (the assignment problem, solved exactly).
 *
 * Both meshes have n <= 2^15 ranks, counted with the last axis fastest, as dpar_mesh_group_member
 * counts over all axes. scratch: n^2 + 4 (n + 1) numbers. E_ARG: they have not, the arrays differ,
 * or one is Partial (a share of a sum is not the sum). E_RANGE: a share is above 2^46 elements.
 * O(n^3 + n^2 x runs of a rank x axes). */
DPAR_API dpar_status dpar_redistribute_assign(const dpar_layout *from, const dpar_layout *to,
                                              int32_t *rank_of, int64_t *scratch, dpar_why *why);

#endif
