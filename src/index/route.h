/* SPDX-License-Identifier: MIT-0 */
/* route - finds the least expensive sequence of collectives that redistributes an array on one
 * mesh.
 *
 *     dpar_route_desc q = {&from, &to, NULL, 0, nodes, 1000};
 *     dpar_route_plan(&q, steps, 8, &count, &why);    such as all-gather, then all-to-all
 */
#ifndef DPARI_INDEX_ROUTE_H
#define DPARI_INDEX_ROUTE_H

#include "layout.h"

/* The kinds of steps, each along one mesh axis. R means replicated, S(d) a shard of dim d, P
 * partial. */
enum {
    DPAR_ROUTE_STEP_SLICE,      /* R -> S(to): each rank keeps its part, and nothing is sent */
    DPAR_ROUTE_STEP_TO_PARTIAL, /* R -> P: rank 0 of the axis keeps the array, the others hold zeros
                                 */
    DPAR_ROUTE_STEP_ALL_GATHER, /* S(from) -> R */
    DPAR_ROUTE_STEP_ALL_TO_ALL, /* S(from) -> S(to) */
    DPAR_ROUTE_STEP_REDUCE_SCATTER, /* P -> S(to) */
    DPAR_ROUTE_STEP_ALL_REDUCE,     /* P -> R */
    DPAR_ROUTE_STEP_SWAP, /* two axes exchange their roles: whole tiles are sent to other ranks */
    DPAR_ROUTE_STEP_PERMUTE, /* directly to the goal: whole tiles are sent to other ranks */
    DPAR_ROUTE_STEP_COUNT
};

/* Returns the name of a kind of step, "all-gather", ..., or "?" for any other number. The text is
 * static. */
DPAR_API const char *dpar_route_step_name(int32_t kind);

/* One step of a plan. */
typedef struct dpar_route_step {
    int32_t kind, axis; /* axis is -1 for PERMUTE */
    int32_t from, to;   /* dims, -1 if the step has none; for SWAP, `to` is the other axis */
    int64_t elements;   /* maximum number of elements that a rank receives */
    /* Maximum number of elements that a rank holds at one time: what it has and what it receives,
     * padded. */
    int64_t held;
} dpar_route_step;

/* A node of the search, for which the caller provides the memory. */
typedef struct dpar_route_node {
    uint64_t state; /* private, as are all fields */
    int64_t cost;
    int32_t before, heap, slot, hash;
    dpar_route_step step;
} dpar_route_node;

/* A redistribution to be planned. Zero it, then set the fields. */
typedef struct dpar_route_desc {
    const dpar_layout *from, *to; /* two layouts of one array on the same mesh */
    /* [axes], cost of an element along each mesh axis; NULL makes each cost 1 */
    const int64_t *byte_cost;
    int64_t step_cost; /* cost of a step that sends anything, 0..2^31 - 1 */
    /* [node_capacity], scratch. 1,000 nodes suffice for 4 axes and 3 dims, 20,000 for 5 axes and 4
     * dims. */
    dpar_route_node *nodes;
    int32_t node_capacity;
} dpar_route_desc;

/* Finds the least expensive sequence of collectives from one layout to another on the same mesh.
 * The result is the same on all ranks.
 *
 * steps:  [room], receives the steps.
 * count:  receives the number of steps.
 *
 * Shards must be CHUNK; strided ones are refused. The moves are DTensor's: the innermost cut of a
 * dim can be gathered or moved, and becomes the innermost one of its new dim. If all cuts are even
 * there are two more moves. SWAP lets two axes exchange roles if they cut the same dim or have the
 * same size. PERMUTE ends a route if both layouts have the same tiles (the collective permutes of
 * arXiv 2112.01075).
 *
 * A step costs the elements received times byte_cost[axis], plus step_cost if anything is sent.
 * SWAP and PERMUTE use the most expensive axis. Over n ranks, with padded sizes, a rank receives
 *
 *     all-gather                     (n-1) x what a rank has
 *     all-to-all, reduce-scatter     (n-1)/n of it, dim `to` padded to n equal parts
 *     all-reduce                     2 (n-1)/n of it
 *     swap, permute                  all of it
 *     slice, start of a sum          nothing
 *
 * The search is exact (Dijkstra's algorithm), so that no other sequence of these moves is less
 * expensive. Fails with DPAR_E_ROOM if there are too few steps or nodes, DPAR_E_ARG if the layouts
 * are not as described, or DPAR_E_NONE if no sequence exists.
 */
DPAR_API dpar_status dpar_route_plan(const dpar_route_desc *q, dpar_route_step *steps, int32_t room,
                                     int32_t *count, dpar_why *why);

/* Computes the layout after a step of a plan, from the layout before it. It does not
 * detect a step of another plan. Fails with DPAR_E_ARG if there is no such axis or dim. Costs
 * O(axes). */
DPAR_API dpar_status dpar_route_step_apply(const dpar_layout *layout, const dpar_route_step *step,
                                           const dpar_layout *goal, dpar_layout *after,
                                           dpar_why *why);

#endif
