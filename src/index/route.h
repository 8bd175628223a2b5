/* SPDX-License-Identifier: MIT-0 */
/* route - a redistribution on one mesh as a sequence of collectives: the cheapest there is.
 *
 *     dpar_route_desc q = {&from, &to, NULL, 0, nodes, 1000};
 *     dpar_route_plan(&q, steps, 8, &count, &why);    as all-gather, then all-to-all */
#ifndef DPARI_INDEX_ROUTE_H
#define DPARI_INDEX_ROUTE_H

#include "layout.h"

/* What one step does, along one mesh axis. */
enum {
    DPAR_ROUTE_STEP_SLICE,          /* R -> S(to): each rank keeps its part; nothing moves */
    DPAR_ROUTE_STEP_TO_PARTIAL,     /* R -> P: rank 0 of the axis keeps the array, others zeros */
    DPAR_ROUTE_STEP_ALL_GATHER,     /* S(from) -> R */
    DPAR_ROUTE_STEP_ALL_TO_ALL,     /* S(from) -> S(to) */
    DPAR_ROUTE_STEP_REDUCE_SCATTER, /* P -> S(to) */
    DPAR_ROUTE_STEP_ALL_REDUCE,     /* P -> R */
    DPAR_ROUTE_STEP_SWAP,           /* two axes change roles: whole tiles change ranks */
    DPAR_ROUTE_STEP_PERMUTE,        /* to the goal at once: whole tiles change ranks */
    DPAR_ROUTE_STEP_COUNT
};
/* "all-gather", ...; "?" for others. Static text. O(1). */
DPAR_API const char *dpar_route_step_name(int32_t kind);

/* One collective of the sequence. */
typedef struct dpar_route_step {
    int32_t kind, axis; /* axis -1: PERMUTE */
    int32_t from, to;   /* dims, -1 where there is none; SWAP: `to` is the other axis */
    int64_t elements;   /* received by a rank, at most */
    int64_t held;       /* held by a rank at once, at most: what it has and what it gets, padded */
} dpar_route_step;

/* A node of the search: scratch, the caller's. */
typedef struct dpar_route_node {
    uint64_t state; /* private, all of it */
    int64_t cost;
    int32_t before, heap, slot, hash;
    dpar_route_step step;
} dpar_route_node;

/* A redistribution to be planned. Zero it and fill it in. */
typedef struct dpar_route_desc {
    const dpar_layout *from, *to; /* on one mesh */
    const int64_t *byte_cost;     /* cost of an element along each mesh axis; NULL: 1 for each */
    int64_t step_cost;            /* cost of a step in which something moves, 0..2^31 - 1 */
    /* scratch; 1,000 suffice for 4 axes and 3 dims, 20,000 for 5 axes and 4 */
    dpar_route_node *nodes;
    int32_t node_room;
} dpar_route_desc;

/* The cheapest sequence of collectives from one layout to another on the same mesh. Shards are
 * CHUNK; dpar_layout_unstride turns strided ones into these. *count steps are written to `steps`,
 * which has room for `room`. Not collective: the same on all ranks.
 *
 * The moves are DTensor's: a cut can be gathered or moved when it is the innermost of its dim, and
 * arrives as the innermost. Where cuts are even there are two more. SWAP: two axes change roles
 * when they cut the same dim or are of one size. PERMUTE ends a route when both layouts have the
 * same tiles (the collective permutes of arXiv 2112.01075).
 *
 * A step costs the elements received times byte_cost[axis], of SWAP and PERMUTE the dearest axis's.
 * step_cost is added where something moves. A rank receives, of padded sizes over n ranks:
 *
 *     all-gather                     (n-1) x what a rank has
 *     all-to-all, reduce-scatter     (n-1)/n of it, dim `to` padded to n equal parts
 *     all-reduce                     2 (n-1)/n of it
 *     swap, permute                  all of it
 *     slice, start of a sum          nothing
 *
 * The search is exact (Dijkstra): no other sequence of these moves is cheaper. E_ROOM: too few
 * steps or nodes. E_ARG: the layouts are not as above. E_NONE: no sequence does it. */
DPAR_API dpar_status dpar_route_plan(const dpar_route_desc *q, dpar_route_step *steps, int32_t room,
                                     int32_t *count, dpar_why *why);
/* The layout after a step of a plan that begins at l. It does not notice a step of another plan.
 * E_ARG with a sentence: no such axis or dim. O(axes). */
DPAR_API dpar_status dpar_route_step_apply(const dpar_layout *l, const dpar_route_step *step,
                                           const dpar_layout *goal, dpar_layout *after,
                                           dpar_why *why);

#endif
