/* SPDX-License-Identifier: MIT-0 */
/* redistribute - lists the transfers that move an array from one layout to another, on the same
 * ranks or on others. Each rank computes its own list without communication, and the lists of all
 * ranks agree.
 *
 *     dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_RECV, 0);
 *     while (dpar_redistribute_next(&w, &t)) {
 *         t.peer sends t.extent elements, which arrive at t.mine
 *     }
 *
 * dpar_redistribute of dpar_comm.h moves the array. A rank number means the same process in both
 * meshes. If the ranks of one mesh are the processes of another job, set its first_rank so that no
 * number is in both meshes. Use DPAR_REDISTRIBUTE_PRIMARY to read files that another job's ranks
 * wrote, because rank n here does not hold what rank n wrote.
 */
#ifndef DPARI_INDEX_REDISTRIBUTE_H
#define DPARI_INDEX_REDISTRIBUTE_H

#include "layout.h"

/* Checks whether an array can be redistributed from layout `from` to layout `to`. Fails with
 * DPAR_E_ARG if not. Costs O(axes).
 *
 * Both layouts must have the same dims and extents. There are two cases in which an axis of `to`
 * may be Partial. Either the axis is Partial in `from` too, at the same place of the same mesh and
 * with the same op, and its sums stay as they are. Or a sum begins: coordinate 0 of the axis
 * receives the array, and the others must fill theirs with zeros.
 */
DPAR_API dpar_status dpar_redistribute_check(const dpar_layout *from, const dpar_layout *to,
                                             dpar_why *why);

/* The direction of a walk. */
enum {
    DPAR_TRANSFER_RECV, /* the transfers that a rank receives */
    DPAR_TRANSFER_SEND  /* the transfers that a rank sends */
};

/* A value of `per_node`: copy 0 sends everything, which is needed for files that copy 0 wrote. */
enum { DPAR_REDISTRIBUTE_PRIMARY = -1 };

/* A walk over one rank's transfers: call dpar_redistribute_first, then dpar_redistribute_next until
 * it returns 0. It holds copies of both layouts and takes about 2 KB. */
typedef struct dpar_redistribute_cursor {
    dpar_layout mine, other; /* private, as are all fields */
    int32_t rank, me, sends, per_node, nested, state;
    int32_t copies, copy, partials, partial, combine;
    int32_t phase, fresh, node, mate, mates, taker, takers, around;
    int32_t first, line, units, left;
    int32_t now, op; /* the current transfer */
    uint32_t free_from, part_from, free_to;
    int32_t coord[DPAR_MAX_AXES], peer[DPAR_MAX_AXES], base[DPAR_MAX_AXES];
    int32_t guest[DPAR_MAX_AXES];
    int32_t grid[DPAR_MAX_DIMS], outer[DPAR_MAX_DIMS], share[DPAR_MAX_DIMS];
    int64_t into, low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS];
    int64_t at[DPAR_MAX_DIMS], begin[DPAR_MAX_DIMS], length[DPAR_MAX_DIMS], there[DPAR_MAX_DIMS];
    int64_t held[DPAR_MAX_DIMS], lead[DPAR_MAX_DIMS], cut[DPAR_MAX_DIMS], cut_length[DPAR_MAX_DIMS];
} dpar_redistribute_cursor;

/* Begins the list of the transfers that a rank receives, or of those that it sends.
 *
 * direction:  DPAR_TRANSFER_RECV or DPAR_TRANSFER_SEND.
 * per_node:   number of consecutive ranks on a node, for meshes whose strides nest, as those of the
 *             init functions do. 0 ignores nodes. DPAR_REDISTRIBUTE_PRIMARY lets copy 0 send
 *             everything.
 *
 * A rank receives each of its elements of `to` once. From Partial sources it receives each
 * contribution once, the first with DPAR_COPY and the others with the op. The k-th send from a to b
 * is the k-th receive of b from a.
 *
 * If several ranks hold a copy, the receiver takes its own. If it has none, the copies on its node
 * send, or all copies if its node has none. Copies share the sending evenly. As long as a box has
 * at least as many receivers as copies, each copy serves the same number of whole receivers;
 * several copies serve each remaining receiver, in even shares. A copy sends at most its even share
 * plus the largest box, so a box may arrive in pieces. It arrives whole if the receivers cut rows
 * (CHUNK, EVEN, FLOOR) and their number and the number of copies have a common divisor, because
 * shares then end where rows end.
 *
 * Each Partial rank sends its contribution directly. From Partial to Shard that is a
 * reduce-scatter. From Partial to Replicate each rank receives every contribution. It costs less to
 * go through a layout that shards the sums, as dpar_route_plan does.
 *
 * Fails with DPAR_E_ARG if dpar_redistribute_check refuses the layouts, per_node is below -1 or
 * there is no such direction. A step costs O(axes x dims), and a list O(its transfers). If there
 * are copies, a sender also spends O(transfers to the ranks of its node) and the time to skip
 * receivers that have a nearer copy.
 */
DPAR_API dpar_status dpar_redistribute_first(dpar_redistribute_cursor *cursor,
                                             const dpar_layout *from, const dpar_layout *to,
                                             int32_t rank, int32_t direction, int32_t per_node);

/* Advances to the next transfer of the list. Returns 1, or 0 when there is none left.
 *
 * Receives are ordered by box, the last dim fastest, and within a box by sender. Sends are ordered
 * by rank, with the ranks of the own node before all others. Costs O(axes x dims).
 */
DPAR_API int dpar_redistribute_next(dpar_redistribute_cursor *cursor, dpar_transfer *t);

#endif
