/* SPDX-License-Identifier: MIT-0 */
/* route - a redistribution on one mesh as a sequence of collectives: the one that moves least. */
#ifndef DPARI_INDEX_ROUTE_H
#define DPARI_INDEX_ROUTE_H

#include "layout.h"

/* What one step does, along one mesh axis. */
enum {
    DPAR_STEP_SLICE,          /* R -> S(to): each rank keeps its part; nothing moves */
    DPAR_STEP_START_SUM,      /* R -> P: rank 0 of the axis keeps the array, others zeros */
    DPAR_STEP_ALL_GATHER,     /* S(from) -> R */
    DPAR_STEP_ALL_TO_ALL,     /* S(from) -> S(to) */
    DPAR_STEP_REDUCE_SCATTER, /* P -> S(to) */
    DPAR_STEP_ALL_REDUCE,     /* P -> R */
    DPAR_STEP_SWAP,           /* two axes change roles: whole tiles change ranks */
    DPAR_STEP_PERMUTE,        /* to the goal at once: whole tiles change ranks */
    DPAR_STEPS
};
/* "all-gather", ...; "?" for others. Static text. O(1). */
DPAR_API const char *dpar_redistribute_step_name(int32_t kind);

typedef struct dpar_route_step {
    int32_t kind, axis; /* axis -1: PERMUTE */
    int32_t from, to;   /* dims, -1 where there is none; SWAP: `to` is the other axis */
    int64_t elements;   /* that a rank receives, at most */
    int64_t held;       /* that it holds at once, at most: what it has and what it gets, padded */
} dpar_route_step;

/* A place of the search; the caller's scratch. */
typedef struct dpar_route_node {
    uint64_t state; /* private, all of it */
    int64_t cost;
    int32_t before, heap, slot, hash;
    dpar_route_step step;
} dpar_route_node;

/* What is asked. Zero it and fill it in. */
typedef struct dpar_route {
    const dpar_layout *from, *to; /* on one mesh */
    const int64_t *byte_cost;     /* of each mesh axis; NULL: 1 for each */
    int64_t step_cost;            /* where something moves, 0..2^31 - 1 */
    dpar_route_node *nodes;       /* scratch; 1,000 do for 4 axes and 3 dims, 20,000 for 5 and 4 */
    int32_t node_room;
} dpar_route;

/* The cheapest sequence from one layout to another on the same mesh, CHUNK shards only (strided
 * ones: dpar_layout_unstride first). A cut can be gathered or moved when it is the innermost of its
 * dim, and comes in as the innermost, as in DTensor. Where cuts are even, two axes may change roles
 * if they cut the same dim or are of one size, and PERMUTE ends a route where both layouts have the
 * same tiles (arXiv 2112.01075's collective permutes).
 *
 * Cost of a step: elements received times byte_cost[axis] (SWAP, PERMUTE: the dearest axis), plus
 * step_cost where something moves. Received: all-gather (n-1) x what a
 * rank has, all-to-all and reduce-scatter (n-1)/n of it with dim `to` padded to n equal parts,
 * all-reduce 2 (n-1)/n, SWAP and PERMUTE all of it, slices nothing; padded sizes. Exact (Dijkstra),
 * so never worse than a greedy or another search over these moves.
 *
 * steps: room for `room` of them, *count how many there are. E_ROOM when they or the nodes are too
 * few, E_ARG when the layouts are not as above, E_NONE when no sequence does it. Not collective:
 * the same on all ranks. */
DPAR_API dpar_status dpar_redistribute_plan(const dpar_route *q, dpar_route_step *steps,
                                            int32_t room, int32_t *count, dpar_why *why);
/* The layout after a step of a plan that begins at l (a step of another is not noticed). E_ARG with
 * a sentence: no such axis or dim. O(axes). */
DPAR_API dpar_status dpar_redistribute_step(const dpar_layout *l, const dpar_route_step *step,
                                            const dpar_layout *goal, dpar_layout *after,
                                            dpar_why *why);

#endif
