/* SPDX-License-Identifier: MIT-0 */
/* Plans a redistribution as collectives. A layout is encoded as a 64-bit state, one byte for each
 * mesh axis, and each collective is an edge from one state to another with a cost. Dijkstra's
 * algorithm finds the least expensive path, with a hash table and a heap in the caller's nodes. */
#include "route.h"

#include "index_private.h"

DPAR_API DPARI_COLD const char *dpar_route_step_name(int32_t kind)
{
    switch (kind) {
    case DPAR_ROUTE_STEP_SLICE: return "slice";
    case DPAR_ROUTE_STEP_TO_PARTIAL: return "start-sum";
    case DPAR_ROUTE_STEP_ALL_GATHER: return "all-gather";
    case DPAR_ROUTE_STEP_ALL_TO_ALL: return "all-to-all";
    case DPAR_ROUTE_STEP_REDUCE_SCATTER: return "reduce-scatter";
    case DPAR_ROUTE_STEP_ALL_REDUCE: return "all-reduce";
    case DPAR_ROUTE_STEP_SWAP: return "swap";
    case DPAR_ROUTE_STEP_PERMUTE: return "permute";
    default: return "?";
    }
}

/* ---- states ---------------------------------------------------------------------------------- */

/* A state is a layout as a number, with a byte for each axis. The high half of a byte is the dim
 * that the axis cuts, or R (replicated) or P (partial). The low half is the position of the axis
 * among the cuts of that dim, with 0 for the outermost cut. */
enum { DPARI_STATE_R = 15, DPARI_STATE_P = 14 };

static int32_t dpari_state_dim(uint64_t state, int32_t axis)
{
    return (int32_t)(state >> (8 * axis + 4) & 15u);
}

static int32_t dpari_state_place(uint64_t state, int32_t axis)
{
    return (int32_t)(state >> (8 * axis) & 15u);
}

static uint64_t dpari_state_put(uint64_t state, int32_t axis, int32_t dim, int32_t place)
{
    state &= ~((uint64_t)255 << (8 * axis));
    return state | (uint64_t)(uint32_t)(16 * dim + place) << (8 * axis);
}

static int32_t dpari_state_cuts(uint64_t state, int32_t axes, int32_t dim)
{
    int32_t i, n = 0;
    for (i = 0; i < axes; i++) {
        n += dpari_state_dim(state, i) == dim;
    }
    return n;
}

/* Encodes a layout. Axes of size 1 have no effect and count as replicated. */
static dpar_status dpari_state_of(const dpar_layout *layout, uint64_t *state, dpar_why *why)
{
    uint64_t s = 0;
    int32_t k;
    for (k = 0; k < layout->mesh.axes; k++) {
        s = dpari_state_put(s, k, DPARI_STATE_R, 0);
    }
    for (k = 0; k < layout->mesh.axes; k++) {
        int32_t axis = layout->order[k];
        const dpar_placement *placement = &layout->axis[axis];
        if (layout->mesh.axis[axis].size == 1 || placement->kind == DPAR_PLACEMENT_REPLICATE) {
            continue;
        }
        if (placement->kind == DPAR_PLACEMENT_SHARD && placement->rule != DPAR_SPLIT_CHUNK) {
            return dpari_wrong(why, "axis %d shards by rule %d: routes need CHUNK", axis,
                               placement->rule);
        }
        if (placement->kind == DPAR_PLACEMENT_PARTIAL) {
            s = dpari_state_put(s, axis, DPARI_STATE_P, 0);
        } else {
            s = dpari_state_put(s, axis, placement->dim,
                                dpari_state_cuts(s, layout->mesh.axes, placement->dim));
        }
    }
    *state = s;
    return DPAR_OK;
}

/* Returns the padded elements of a dim under the cuts of a state. */
static int64_t dpari_state_extent(const dpar_layout *layout, uint64_t state, int32_t dim)
{
    int64_t n = layout->extent[dim];
    int32_t place, i;
    for (place = 0; place < layout->mesh.axes; place++) {
        for (i = 0; i < layout->mesh.axes; i++) {
            if (dpari_state_dim(state, i) == dim && dpari_state_place(state, i) == place) {
                n = dpari_ceil_div(n, layout->mesh.axis[i].size);
            }
        }
    }
    return n;
}

static int64_t dpari_state_elements(const dpar_layout *layout, uint64_t state)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < layout->dims; d++) { /* an empty dim makes the product 0, even after
                                            INT64_MAX */
        if (!dpari_mul(n, dpari_state_extent(layout, state, d), &n)) {
            n = INT64_MAX;
        }
    }
    return n;
}

/* True if both layouts are cut into equal tiles of the same shape, so that tiles only change ranks.
 */
static int dpari_state_tiles(const dpar_layout *layout, uint64_t a, uint64_t b)
{
    int32_t d, i;
    for (d = 0; d < layout->dims; d++) {
        int64_t parts_a = 1, parts_b = 1;
        for (i = 0; i < layout->mesh.axes; i++) {
            parts_a *= dpari_state_dim(a, i) == d ? layout->mesh.axis[i].size : 1;
            parts_b *= dpari_state_dim(b, i) == d ? layout->mesh.axis[i].size : 1;
        }
        if (parts_a != parts_b || layout->extent[d] % parts_a != 0) {
            return 0;
        }
    }
    for (i = 0; i < layout->mesh.axes; i++) {
        if ((dpari_state_dim(a, i) == DPARI_STATE_P) != (dpari_state_dim(b, i) == DPARI_STATE_P)) {
            return 0;
        }
    }
    return 1;
}

/* Returns the state after a step, which must be possible. */
static uint64_t dpari_state_step(uint64_t state, int32_t axes, const dpar_route_step *p,
                                 uint64_t goal)
{
    if (p->kind == DPAR_ROUTE_STEP_PERMUTE) {
        return goal;
    }
    if (p->kind == DPAR_ROUTE_STEP_SWAP) {
        uint64_t a = state >> (8 * p->axis) & 255u, b = state >> (8 * p->to) & 255u;
        return state ^ (a ^ b) << (8 * p->axis) ^ (a ^ b) << (8 * p->to);
    }
    state = dpari_state_put(
        state, p->axis, p->kind == DPAR_ROUTE_STEP_TO_PARTIAL ? DPARI_STATE_P : DPARI_STATE_R, 0);
    return p->to < 0 ? state
                     : dpari_state_put(state, p->axis, p->to, dpari_state_cuts(state, axes, p->to));
}

/* ---- search ---------------------------------------------------------------------------------- */

typedef struct dpari_route {
    const dpar_layout *layout; /* the layout from which the route starts */
    const int64_t *byte_cost;
    int64_t step_cost;
    uint64_t goal;
    dpar_route_node *node; /* [room]; the first `known` are in use */
    int32_t known, room;
    int32_t heaped; /* node[0..heaped-1].heap is a binary heap of node numbers */
} dpari_route;

/* Puts node k into slot s of the heap. */
static void dpari_heap_put(dpari_route *route, int32_t s, int32_t k)
{
    route->node[s].heap = k;
    route->node[k].slot = s;
}

static int64_t dpari_heap_cost(const dpari_route *route, int32_t s)
{
    return route->node[route->node[s].heap].cost;
}

static void dpari_heap_rise(dpari_route *route, int32_t s, int32_t k)
{
    while (s > 0 && dpari_heap_cost(route, (s - 1) / 2) > route->node[k].cost) {
        dpari_heap_put(route, s, route->node[(s - 1) / 2].heap);
        s = (s - 1) / 2;
    }
    dpari_heap_put(route, s, k);
}

static int32_t dpari_heap_pop(dpari_route *route)
{
    int32_t top = route->node[0].heap, last = route->node[--route->heaped].heap, s = 0, child;
    for (; (child = 2 * s + 1) < route->heaped; s = child) {
        if (child + 1 < route->heaped &&
            dpari_heap_cost(route, child + 1) < dpari_heap_cost(route, child)) {
            child++;
        }
        if (dpari_heap_cost(route, child) >= route->node[last].cost) {
            break;
        }
        dpari_heap_put(route, s, route->node[child].heap);
    }
    dpari_heap_put(route, s, last);
    route->node[top].slot = -1; /* settled */
    return top;
}

/* Finds the node of a state, or makes it, in a hash table with open addressing. Returns its number,
 * or -1 if there is no capacity left. */
static int32_t dpari_route_find(dpari_route *route, uint64_t state)
{
    uint64_t mixed = (state ^ state >> 29) * UINT64_C(0x9e3779b97f4a7c15);
    int32_t at = (int32_t)((mixed >> 33) % (uint64_t)(uint32_t)route->room);
    while (route->node[at].hash != 0) {
        int32_t k = route->node[at].hash - 1;
        if (route->node[k].state == state) {
            return k;
        }
        at = at + 1 < route->room ? at + 1 : 0;
    }
    if (route->known + 1 >= route->room) { /* one slot stays empty, so that a search ends */
        return -1;
    }
    route->node[at].hash = route->known + 1;
    route->node[route->known].state = state;
    route->node[route->known].cost = -1;
    return route->known++;
}

/* Returns n x each, limited to INT64_MAX / 1024, so that sums of prices do not overflow. */
static int64_t dpari_route_price(int64_t n, int64_t each)
{
    int64_t price;
    return dpari_mul(n, each, &price) && price < INT64_MAX / 1024 ? price : INT64_MAX / 1024;
}

/* Returns the padded elements that each of `size` ranks gets if a dim of the state is cut further.
 */
static int64_t dpari_state_chunk(const dpar_layout *layout, uint64_t state, int32_t dim,
                                 int64_t size)
{
    int64_t n = dpari_state_elements(layout, state),
            extent = dpari_state_extent(layout, state, dim);
    return extent > 0 ? n / extent * dpari_ceil_div(extent, size) : 0;
}

/* Returns how many elements a rank receives in a step. */
static int64_t dpari_route_moved(const dpari_route *route, uint64_t state, const dpar_route_step *p)
{
    int64_t n = dpari_state_elements(route->layout, state), size;
    if (p->kind == DPAR_ROUTE_STEP_SLICE || p->kind == DPAR_ROUTE_STEP_TO_PARTIAL) {
        return 0;
    }
    if (p->kind == DPAR_ROUTE_STEP_PERMUTE || p->kind == DPAR_ROUTE_STEP_SWAP) {
        return n;
    }
    size = route->layout->mesh.axis[p->axis].size;
    switch (p->kind) {
    case DPAR_ROUTE_STEP_ALL_GATHER: return dpari_route_price(n, size - 1);
    case DPAR_ROUTE_STEP_ALL_REDUCE: return 2 * (n - n / size);
    default:
        return dpari_route_price(dpari_state_chunk(route->layout, state, p->to, size), size - 1);
    }
}

/* Returns the cost of an element along an axis, or with -1 along the most expensive one. */
static int64_t dpari_route_each(const dpari_route *route, int32_t axis)
{
    int64_t most = 0;
    int32_t i;
    if (route->byte_cost == NULL) {
        return 1;
    }
    for (i = 0; i < route->layout->mesh.axes; i++) {
        if (route->layout->mesh.axis[i].size > 1) {
            most = dpari_most(most, route->byte_cost[i]);
        }
    }
    return axis >= 0 ? route->byte_cost[axis] : most;
}

/* Takes a step from node k. Returns 0 if there is no capacity for the node to which it leads. */
static int dpari_route_try(dpari_route *route, int32_t k, int32_t kind, int32_t axis, int32_t from,
                           int32_t to)
{
    const int64_t each = dpari_route_each(route, kind == DPAR_ROUTE_STEP_SWAP ? -1 : axis);
    dpar_route_step p;
    int64_t cost;
    int32_t next;
    p.kind = kind;
    p.axis = axis;
    p.from = from;
    p.to = to;
    p.held = 0;
    p.elements = dpari_route_moved(route, route->node[k].state, &p);
    /* costs count in sixteenths, plus one per step, so that of equally expensive routes the shorter
     * one is taken */
    cost = dpari_route_price(p.elements, each) + (p.elements > 0 ? route->step_cost : 0);
    cost = route->node[k].cost + 1 + 16 * cost;
    next = dpari_route_find(
        route, dpari_state_step(route->node[k].state, route->layout->mesh.axes, &p, route->goal));
    if (next < 0) {
        return 0;
    }
    if (route->node[next].cost >= 0 && route->node[next].cost <= cost) {
        return 1;
    }
    if (route->node[next].cost < 0) {
        route->node[next].slot = route->heaped++;
    }
    route->node[next].cost = cost;
    route->node[next].before = k;
    route->node[next].step = p;
    dpari_heap_rise(route, route->node[next].slot, next);
    return 1;
}

/* Takes all steps of one axis. */
static int dpari_route_axis(dpari_route *route, int32_t k, int32_t axis)
{
    uint64_t state = route->node[k].state;
    int32_t at = dpari_state_dim(state, axis), d, ok = 1, axes = route->layout->mesh.axes;
    int32_t kind = DPAR_ROUTE_STEP_ALL_TO_ALL;
    if (route->layout->mesh.axis[axis].size == 1) {
        return 1;
    }
    if (at < DPAR_MAX_DIMS &&
        dpari_state_place(state, axis) + 1 < dpari_state_cuts(state, axes, at)) {
        return 1; /* only the innermost cut can change */
    }
    if (at == DPARI_STATE_R) {
        kind = DPAR_ROUTE_STEP_SLICE;
    } else if (at == DPARI_STATE_P) {
        kind = DPAR_ROUTE_STEP_REDUCE_SCATTER;
    }
    for (d = 0; d < route->layout->dims && ok; d++) {
        ok = d == at || dpari_route_try(route, k, kind, axis, at < DPAR_MAX_DIMS ? at : -1, d);
    }
    if (at == DPARI_STATE_P) {
        ok = ok && dpari_route_try(route, k, DPAR_ROUTE_STEP_ALL_REDUCE, axis, -1, -1);
    } else if (at != DPARI_STATE_R) {
        ok = ok && dpari_route_try(route, k, DPAR_ROUTE_STEP_ALL_GATHER, axis, at, -1);
    } else if (dpari_state_dim(route->goal, axis) == DPARI_STATE_P) {
        ok = ok && dpari_route_try(route, k, DPAR_ROUTE_STEP_TO_PARTIAL, axis, -1, -1);
    }
    return ok;
}

/* True if a dim has equal tiles under a state. Replication, which is not a dim, counts as equal. */
static int dpari_state_even(const dpar_layout *layout, uint64_t state, int32_t dim)
{
    int64_t parts = 1;
    int32_t i;
    for (i = 0; i < layout->mesh.axes; i++) {
        parts *= dpari_state_dim(state, i) == dim ? layout->mesh.axis[i].size : 1;
    }
    return dim >= DPAR_MAX_DIMS || layout->extent[dim] % parts == 0;
}

/* Takes the steps that exchange an axis with a later one. */
static int dpari_route_swaps(dpari_route *route, int32_t k, int32_t axis)
{
    uint64_t state = route->node[k].state;
    int32_t a = dpari_state_dim(state, axis), b, i, ok = 1;
    for (i = axis + 1; i < route->layout->mesh.axes && ok; i++) {
        b = dpari_state_dim(state, i);
        if ((a == b && a < DPAR_MAX_DIMS) ||
            (a != b && route->layout->mesh.axis[axis].size == route->layout->mesh.axis[i].size &&
             a != DPARI_STATE_P && b != DPARI_STATE_P)) {
            ok = !dpari_state_even(route->layout, state, a) ||
                 !dpari_state_even(route->layout, state, b) ||
                 dpari_route_try(route, k, DPAR_ROUTE_STEP_SWAP, axis, a < DPAR_MAX_DIMS ? a : -1,
                                 i);
        }
    }
    return ok;
}

static dpar_status dpari_route_search(dpari_route *route, uint64_t start, int32_t *end)
{
    int32_t k = dpari_route_find(route, start), axis;
    route->node[k].cost = 0;
    route->node[k].before = -1;
    route->node[k].slot = route->heaped++;
    dpari_heap_put(route, 0, k);
    while (route->heaped > 0) {
        k = dpari_heap_pop(route);
        if (route->node[k].state == route->goal) {
            *end = k;
            return DPAR_OK;
        }
        if (dpari_state_tiles(route->layout, route->node[k].state, route->goal) &&
            !dpari_route_try(route, k, DPAR_ROUTE_STEP_PERMUTE, -1, -1, -1)) {
            return DPAR_E_ROOM;
        }
        for (axis = 0; axis < route->layout->mesh.axes; axis++) {
            if (!dpari_route_axis(route, k, axis) || !dpari_route_swaps(route, k, axis)) {
                return DPAR_E_ROOM;
            }
        }
    }
    return DPAR_E_NONE;
}

static dpar_status dpari_route_ends(const dpar_layout *from, const dpar_layout *to, uint64_t *start,
                                    uint64_t *goal, dpar_why *why)
{
    int32_t i;
    dpar_status st;
    if (!dpari_mesh_same(&from->mesh, &to->mesh) || from->dims != to->dims) {
        return dpari_wrong(why, "from and to must have the same mesh and number of dims");
    }
    for (i = 0; i < from->dims; i++) {
        if (from->extent[i] != to->extent[i]) {
            return dpari_wrong(why, "dim %d has %ld elements before and %ld after", i,
                               from->extent[i], to->extent[i]);
        }
    }
    st = dpari_state_of(from, start, why);
    return st == DPAR_OK ? dpari_state_of(to, goal, why) : st;
}

static int64_t dpari_route_sum(int64_t a, int64_t b)
{
    return a > INT64_MAX - b ? INT64_MAX : a + b;
}

DPAR_API DPARI_COLD dpar_status dpar_route_plan(const dpar_route_desc *desc, dpar_route_step *steps,
                                                int32_t capacity, int32_t *count, dpar_why *why)
{
    dpar_route_node *nodes = desc->nodes;
    dpari_route r;
    uint64_t start;
    int32_t k, end = 0, n = 0;
    dpar_status st;
    dpari_zero(&r, sizeof(r));
    st = dpari_route_ends(desc->from, desc->to, &start, &r.goal, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (desc->node_capacity < 2 || desc->step_cost < 0 || desc->step_cost > INT32_MAX) {
        return dpari_wrong(
            why, "node_capacity=%d must be at least 2, step_cost=%ld must be 0 to 2^31 - 1",
            desc->node_capacity, desc->step_cost);
    }
    r.layout = desc->from;
    r.byte_cost = desc->byte_cost;
    r.step_cost = desc->step_cost;
    r.node = nodes;
    r.room = desc->node_capacity;
    dpari_zero(nodes, (size_t)desc->node_capacity * sizeof(*nodes));
    st = dpari_route_search(&r, start, &end);
    if (st != DPAR_OK) {
        if (st == DPAR_E_ROOM) {
            dpari_needs_bytes(why, 0);
            return dpari_say(st, why, "node_capacity %d is too small for this search",
                             desc->node_capacity);
        }
        return dpari_say(st, why, "no sequence of collectives makes that layout");
    }
    for (k = end; nodes[k].before >= 0; k = nodes[k].before) {
        n++;
    }
    if (n > capacity) {
        dpari_needs_bytes(why, 0);
        return dpari_say(DPAR_E_ROOM, why, "the plan has %d steps, but capacity is %d", n,
                         capacity);
    }
    *count = n;
    for (k = end; nodes[k].before >= 0; k = nodes[k].before) {
        steps[--n] = nodes[k].step;
        steps[n].held = dpari_state_elements(r.layout, nodes[k].state);
        steps[n].held = dpari_route_sum(
            steps[n].held, dpari_state_elements(r.layout, nodes[nodes[k].before].state));
    }
    return DPAR_OK;
}

/* ---- applying -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_route_step_apply(const dpar_layout *layout,
                                                      const dpar_route_step *step,
                                                      const dpar_layout *goal, dpar_layout *after,
                                                      dpar_why *why)
{
    dpar_placement *placement;
    int8_t order[DPAR_MAX_AXES];
    int32_t axis = step->axis, k, n;
    if (step->kind == DPAR_ROUTE_STEP_PERMUTE) {
        *after = *goal;
        return DPAR_OK;
    }
    if (step->kind == DPAR_ROUTE_STEP_SWAP && axis >= 0 && axis < layout->mesh.axes &&
        step->to >= 0 && step->to < layout->mesh.axes) {
        *after = *layout;
        after->axis[axis] = layout->axis[step->to];
        after->axis[step->to] = layout->axis[axis];
        for (k = 0; k < layout->mesh.axes; k++) {
            order[k] = layout->order[k];
            if (layout->order[k] == axis) {
                order[k] = (int8_t)step->to;
            } else if (layout->order[k] == step->to) {
                order[k] = (int8_t)axis;
            }
        }
        dpari_layout_cut_in(after, order);
        return DPAR_OK;
    }
    if (axis < 0 || axis >= layout->mesh.axes || step->to >= layout->dims) {
        return dpari_wrong(why, "the step's axis %d or dim %d does not exist", axis, step->to);
    }
    *after = *layout;
    placement = &after->axis[axis];
    if (step->kind == DPAR_ROUTE_STEP_TO_PARTIAL) {
        *placement = goal->axis[axis];
    } else {
        *placement = step->to < 0 ? dpar_replicate() : dpar_shard(step->to);
    }
    for (k = 0, n = 0; k < layout->mesh.axes; k++) { /* the axis of the step cuts last */
        if (layout->order[k] != axis) {
            order[n++] = layout->order[k];
        }
    }
    order[n] = (int8_t)axis;
    dpari_layout_cut_in(after, order);
    return DPAR_OK;
}
