/* SPDX-License-Identifier: MIT-0 */
/* Tests route: compares the cost of every route with a relaxation over all states, and executes
 * each step; vectors E1-E4, E11, E12 of facts/index_math.md; no route moves more than DTensor's
 * own. Run with: tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"
#include "transfer_totals.h"

enum { NODES = 20000, STEPS = 16, STATES = 4000 };

static dpar_route_node nodes[NODES];
static dpar_route_step steps[STEPS];
static int32_t count;

static int64_t cost_of(const dpar_route_step *s, int32_t n)
{
    int64_t sum = 0;
    int32_t i;
    for (i = 0; i < n; i++) {
        sum += s[i].elements;
    }
    return sum;
}

static dpar_status plan(const dpar_layout *from, const dpar_layout *to, const int64_t *byte_cost,
                        int64_t step_cost, dpar_route_step *s, int32_t room, int32_t *n,
                        dpar_route_node *node, int32_t node_room, dpar_why *why)
{
    dpar_route_desc q;
    q.from = from;
    q.to = to;
    q.byte_cost = byte_cost;
    q.step_cost = step_cost;
    q.nodes = node;
    q.node_capacity = node_room;
    return dpar_route_plan(&q, s, room, n, why);
}

/* Computes the largest local shape of any rank, to which collectives pad. Shards of routes are
 * CHUNK, whose first part is the longest. */
static void padded_shape(const dpar_layout *l, int64_t *padded)
{
    int32_t d, k;
    for (d = 0; d < l->dims; d++) {
        padded[d] = l->extent[d];
    }
    for (k = 0; k < l->mesh.axes; k++) {
        const dpar_placement *how = &l->axis[l->order[k]];
        const int64_t ranks = l->mesh.axis[l->order[k]].size;
        if (how->kind == DPAR_PLACEMENT_SHARD) {
            padded[how->dim] = (padded[how->dim] + ranks - 1) / ranks;
        }
    }
}

static int64_t local_elements(const dpar_layout *l)
{
    int64_t shape[6], n = 1;
    int32_t d;
    padded_shape(l, shape);
    for (d = 0; d < l->dims; d++) {
        n *= shape[d];
    }
    return n;
}

/* Returns what each of n ranks gets of a rank's array when dim `to` is cut into n more parts,
 * padded. */
static int64_t chunk_of(const dpar_layout *l, int32_t to, int64_t n)
{
    int64_t shape[6];
    padded_shape(l, shape);
    return shape[to] > 0 ? local_elements(l) / shape[to] * ((shape[to] + n - 1) / n) : 0;
}

/* Checks the description of a step: the dims that its axis cuts before and after it. */
static void check_step(const dpar_route_step *s, const dpar_layout *before,
                       const dpar_layout *after)
{
    if (s->kind == DPAR_ROUTE_STEP_PERMUTE) {
        CHECK(s->axis == -1 && s->from == -1 && s->to == -1);
        return;
    }
    CHECK_INT(s->from,
              before->axis[s->axis].kind == DPAR_PLACEMENT_SHARD ? before->axis[s->axis].dim : -1);
    if (s->kind == DPAR_ROUTE_STEP_SWAP) {
        CHECK(s->to > s->axis && s->to < before->mesh.axes);
        return;
    }
    CHECK_INT(s->to,
              after->axis[s->axis].kind == DPAR_PLACEMENT_SHARD ? after->axis[s->axis].dim : -1);
}

/* Checks that every step has the stated result and moves the stated amount (transfer lists agree),
 * and that the last one reaches the goal. */
static int64_t check_route(const dpar_layout *from, const dpar_layout *to, int exact)
{
    dpar_layout at = *from, next;
    dpar_redistribute_cursor w;
    transfer_totals sum;
    int32_t i, rank;
    dpar_why why;
    CHECK_INT(plan(from, to, NULL, 0, steps, STEPS, &count, nodes, NODES, &why), DPAR_OK);
    for (i = 0; i < count; i++) {
        int64_t most = 0, both = local_elements(&at);
        CHECK_INT(dpar_route_step_apply(&at, &steps[i], to, &next, NULL), DPAR_OK);
        check_step(&steps[i], &at, &next);
        for (rank = 0; rank < at.mesh.size; rank++) {
            CHECK_INT(dpar_redistribute_first(&w, &at, &next, rank, DPAR_TRANSFER_RECV, 0),
                      DPAR_OK);
            transfers_total(&w, &sum);
            most = sum.away > most ? sum.away : most;
        }
        if (steps[i].kind != DPAR_ROUTE_STEP_ALL_REDUCE) { /* its sums are reduced on the route */
            CHECK(most <= steps[i].elements);
            CHECK(!exact || steps[i].kind == DPAR_ROUTE_STEP_SWAP ||
                  steps[i].kind == DPAR_ROUTE_STEP_PERMUTE || most == steps[i].elements);
        }
        CHECK_INT(steps[i].held, both + local_elements(&next));
        at = next;
    }
    for (rank = 0; rank < at.mesh.size; rank++) {
        int64_t a[6], b[6], c[6], d[6];
        memset(a, 0, sizeof a);
        memset(b, 0, sizeof b);
        memset(c, 0, sizeof c);
        memset(d, 0, sizeof d);
        dpar_layout_local(&at, rank, a, b);
        dpar_layout_local(to, rank, c, d);
        CHECK(memcmp(a, c, sizeof a) == 0 && memcmp(b, d, sizeof b) == 0);
    }
    return cost_of(steps, count);
}

static dpar_layout on(const dpar_mesh *m, int32_t dims, const int64_t *extent, const int *dim,
                      const int32_t *order)
{
    dpar_placement p[4];
    dpar_layout l;
    int32_t i;
    for (i = 0; i < m->axes; i++) {
        p[i] = dim[i] == -1   ? dpar_replicate()
               : dim[i] == -2 ? dpar_partial(DPAR_SUM)
                              : dpar_shard(dim[i]);
    }
    if (order != NULL) {
        cut_in(p, m->axes, order);
    }
    CHECK_INT(dpar_layout_init(&l, m, dims, extent, p, NULL), DPAR_OK);
    return l;
}

static dpar_mesh mesh_of(int32_t axes, const int32_t *size)
{
    dpar_mesh m;
    CHECK_INT(dpar_mesh_init(&m, axis_names(axes), size, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    return m;
}

/* ---- an independent search: relax all steps between all states until nothing changes --------- */

static dpar_layout state[STATES];
static int64_t best[STATES];
static int states;

static int known(const dpar_layout *l)
{
    int k;
    for (k = 0; k < states; k++) {
        if (dpari_layout_same(&state[k], l)) {
            return k;
        }
    }
    return -1;
}

static int innermost(const dpar_layout *l, int32_t axis)
{
    int32_t k, last = -1;
    for (k = 0; k < l->mesh.axes; k++) {
        const dpar_placement *p = &l->axis[l->order[k]];
        if (p->kind == DPAR_PLACEMENT_SHARD && p->dim == l->axis[axis].dim) {
            last = l->order[k];
        }
    }
    return last == axis;
}

/* Returns the cost of a step as the header describes it; -1 if it is impossible. */
static int64_t price(const dpar_layout *l, dpar_route_step *s)
{
    const dpar_placement *p = &l->axis[s->axis];
    int64_t n = local_elements(l), size = l->mesh.axis[s->axis].size;
    if (p->kind == DPAR_PLACEMENT_SHARD && !innermost(l, s->axis)) {
        return -1;
    }
    if (p->kind == DPAR_PLACEMENT_REPLICATE) {
        s->kind = DPAR_ROUTE_STEP_SLICE;
        return s->to < 0 ? -1 : 0;
    }
    if (p->kind == DPAR_PLACEMENT_PARTIAL) {
        s->kind = s->to < 0 ? DPAR_ROUTE_STEP_ALL_REDUCE : DPAR_ROUTE_STEP_REDUCE_SCATTER;
        return s->to < 0 ? 2 * (n - n / size) : (size - 1) * chunk_of(l, s->to, size);
    }
    s->kind = s->to < 0 ? DPAR_ROUTE_STEP_ALL_GATHER : DPAR_ROUTE_STEP_ALL_TO_ALL;
    return s->to == p->dim ? -1 : (size - 1) * (s->to < 0 ? n : chunk_of(l, s->to, size));
}

/* Returns the least cost from `from` to `to` without swaps and permutes (uneven extents). */
static int64_t relaxed(const dpar_layout *from, const dpar_layout *to)
{
    int k, axis, dim, changed = 1, at;
    states = 1;
    state[0] = *from;
    best[0] = 0;
    while (changed) {
        changed = 0;
        for (k = 0; k < states; k++) {
            for (axis = 0; axis < from->mesh.axes; axis++) {
                for (dim = -1; dim < from->dims; dim++) {
                    dpar_route_step s = {0, 0, -1, 0, 0, 0};
                    dpar_layout next;
                    int64_t cost;
                    s.axis = axis;
                    s.to = dim;
                    cost = price(&state[k], &s);
                    if (cost < 0) {
                        continue;
                    }
                    CHECK_INT(dpar_route_step_apply(&state[k], &s, to, &next, NULL), DPAR_OK);
                    at = known(&next);
                    if (at < 0) {
                        CHECK(states < STATES);
                        state[states] = next;
                        best[states] = INT64_MAX;
                        at = states++;
                    }
                    if (best[k] + cost < best[at]) {
                        best[at] = best[k] + cost;
                        changed = 1;
                    }
                }
            }
        }
    }
    at = known(to);
    return at < 0 ? -1 : best[at];
}

static const int32_t orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

static void test_relaxed(void)
{
    static const int32_t size[] = {2, 3, 5};
    static const int64_t extent[] = {101, 47}; /* prime: no swaps; sizes differ: no permute */
    dpar_mesh m = mesh_of(3, size);
    int code;
    for (code = 0; code < 4 * 4 * 4 * 3 * 3 * 3 * 36; code += 37) {
        int rest = code, i, a[3], b[3];
        dpar_layout from, to;
        for (i = 0; i < 3; i++, rest /= 4) {
            a[i] = rest % 4 - 2;
        }
        for (i = 0; i < 3; i++, rest /= 3) {
            b[i] = rest % 3 - 1;
        }
        from = on(&m, 2, extent, a, orders[rest % 6]);
        to = on(&m, 2, extent, b, orders[rest / 6]);
        CHECK_INT(check_route(&from, &to, 0), relaxed(&from, &to));
    }
}

/* Checks every pair of layouts of a 12 x 12 array on (2, 3, 2) with swaps allowed: steps execute,
 * and no route costs more than one without swaps. */
static void test_even(void)
{
    static const int32_t size[] = {2, 3, 2};
    static const int64_t extent[] = {12, 12};
    dpar_mesh m = mesh_of(3, size);
    int code, swaps = 0;
    for (code = 0; code < 4 * 4 * 4 * 3 * 3 * 3 * 36; code += 53) {
        int rest = code, i, a[3], b[3];
        dpar_layout from, to;
        int64_t with, without;
        for (i = 0; i < 3; i++, rest /= 4) {
            a[i] = rest % 4 - 2;
        }
        for (i = 0; i < 3; i++, rest /= 3) {
            b[i] = rest % 3 - 1;
        }
        from = on(&m, 2, extent, a, orders[rest % 6]);
        to = on(&m, 2, extent, b, orders[rest / 6]);
        with = check_route(&from, &to, 1);
        without = relaxed(&from, &to);
        CHECK(with <= without);
        swaps += with < without;
    }
    CHECK(swaps > 20);
}

/* ---- vectors --------------------------------------------------------------------------------- */

static void test_vectors(void)
{
    static const int32_t twos[] = {2, 2, 2}, two_three[] = {2, 3}, e12_size[] = {2, 2, 3, 2};
    static const int64_t cube[] = {8, 8, 8}, six = 6, twelve[] = {12, 12};
    static const int e1[][6] = {{0, 0, 0, 1, 1, 1},
                                {0, 1, 0, 1, 0, 0},
                                {0, 1, 2, 2, 1, 0},
                                {1, 0, 0, -1, 0, 0},
                                {0, 0, -1, -1, 1, 0}};
    static const int64_t block_rows[] = {12, 5};
    static const int greedy[] = {3, 3, 2, 1, 2}; /* E1, E4: DTensor's collectives */
    static const int32_t tail[] = {1, 2, 0}, e12_from[] = {1, 0, 3, 2}, e12_to[] = {3, 2, 1, 0};
    dpar_mesh m = mesh_of(3, twos);
    dpar_layout from, to;
    int k, i, moving;
    for (k = 0; k < 5; k++) {
        from = on(&m, 3, cube, e1[k], NULL);
        to = on(&m, 3, cube, e1[k] + 3, NULL);
        (void)check_route(&from, &to, 1);
        CHECK_INT(plan(&from, &to, NULL, 1000, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
        for (i = 0, moving = 0; i < count; i++) {
            moving += steps[i].elements > 0;
        }
        CHECK(moving <= greedy[k]);
    }
    /* E2: S to R, R to S, P to R */
    from = on(&m, 3, cube, ((const int[]){-1, -1, 0}), NULL);
    to = on(&m, 3, cube, ((const int[]){-1, -1, -1}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 256);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_ALL_GATHER);
    CHECK_INT(check_route(&to, &from, 1), 0);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_SLICE);
    from = on(&m, 3, cube, ((const int[]){-1, -1, -2}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 512);
    CHECK_TEXT(dpar_route_step_name(steps[0].kind), count == 1 ? "all-reduce" : "reduce-scatter");
    CHECK_INT(steps[0].held, count == 1 ? 1024 : 768); /* 512 and 512, or a half of it */
    to = on(&m, 3, cube, ((const int[]){-1, -1, 0}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 256);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_REDUCE_SCATTER);
    CHECK_INT(steps[0].held, 768);
    /* E2: P to BlockShard: (3,4,5) in blocks of 5 is 12 rows of 5, CHUNKed (A15, flat.c) */
    m = mesh_of(1, twos);
    from = on(&m, 2, block_rows, ((const int[]){-2}), NULL);
    to = on(&m, 2, block_rows, ((const int[]){0}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 30);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_REDUCE_SCATTER);
    m = mesh_of(3, twos);
    /* E3: order (0,1,2) to (1,2): DTensor takes 3 all-to-alls of 32, an all-gather of 64 and 1
     * all-to-all of 64 elements; the search may not move more */
    from = on(&m, 3, cube, ((const int[]){0, 0, 0}), NULL);
    to = on(&m, 3, cube, ((const int[]){-1, 0, 0}), tail);
    CHECK(check_route(&from, &to, 1) <= 3 * 32 + 64 + 64);
    /* E11: [3{x}6] to [2{y}6]: slice, permute, all-gather */
    m = mesh_of(2, two_three);
    from = on(&m, 1, &six, ((const int[]){0, -1}), NULL);
    to = on(&m, 1, &six, ((const int[]){-1, 0}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 2);
    CHECK_INT(count, 3);
    CHECK(steps[0].kind == DPAR_ROUTE_STEP_SLICE && steps[1].kind == DPAR_ROUTE_STEP_SWAP &&
          steps[2].kind == DPAR_ROUTE_STEP_ALL_GATHER);
    /* E12: partir lists minor to major; its program has six exchanges of tiles and two all-to-alls
     */
    m = mesh_of(4, e12_size);
    from = on(&m, 2, twelve, ((const int[]){0, 0, 1, 1}), e12_from);
    to = on(&m, 2, twelve, ((const int[]){1, 1, 0, 0}), e12_to);
    CHECK(check_route(&from, &to, 1) <= 8 * 6);
    CHECK(count <= 8);
}

static void test_prices(void)
{
    static const int32_t size[] = {4, 4};
    static const int64_t extent[] = {16, 16}, dear_outside[] = {1, 100}, dear_inside[] = {100, 1};
    dpar_mesh m = mesh_of(2, size);
    dpar_layout from = on(&m, 2, extent, ((const int[]){-2, -2}), NULL);
    dpar_layout to = on(&m, 2, extent, ((const int[]){-1, -1}), NULL);
    CHECK_INT(plan(&from, &to, dear_outside, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    /* hierarchical: reduce-scatter on the inexpensive axis, the expensive one on a quarter,
     * gather */
    CHECK(count >= 3 && steps[0].kind == DPAR_ROUTE_STEP_REDUCE_SCATTER && steps[0].axis == 0);
    CHECK(steps[count - 1].kind == DPAR_ROUTE_STEP_ALL_GATHER && steps[count - 1].axis == 0);
    CHECK_INT(plan(&from, &to, dear_inside, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(steps[0].axis == 1 && steps[count - 1].axis == 1);
    CHECK_INT(plan(&from, &to, NULL, 1000000, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK_INT(count, 2); /* expensive steps: two all-reduces */
}

/* Checks each rule of the cost's definition where it decides: slices are free, one element is a
 * move, steps that cost nothing, and costs above 2^63. */
static void test_costs(void)
{
    static const int32_t pair[] = {2}, uneven[] = {3, 2}, many[] = {2, 4096}, size[] = {2, 2, 2};
    static const int64_t two = 2, six = 6, large = INT64_C(1) << 40, even[] = {8, 8, 8};
    static const int64_t dear[] = {INT64_C(1) << 20, 1}, dearer[] = {INT64_C(1) << 23, 1};
    static const int64_t none[] = {0, 0, 0};
    dpar_mesh m = mesh_of(1, pair);
    dpar_layout from = on(&m, 1, &two, ((const int[]){-2}), NULL);
    dpar_layout to = on(&m, 1, &two, ((const int[]){-1}), NULL);
    /* 2 elements in one step or 1 and 1 in two */
    CHECK_INT(plan(&from, &to, NULL, 10, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_ALL_REDUCE && steps[0].elements == 2);
    /* an all-reduce of 6 by 3 is 8; of a slice of 3 it is 4, plus 3 to gather them */
    m = mesh_of(2, uneven);
    from = on(&m, 1, &six, ((const int[]){-2, -1}), NULL);
    to = on(&m, 1, &six, ((const int[]){-1, -1}), NULL);
    CHECK_INT(check_route(&from, &to, 0), 7);
    CHECK_INT(steps[0].kind, DPAR_ROUTE_STEP_SLICE);
    /* 2^40 elements at 2^20 or 2^23 each: everything above the limit costs the same, a part costs
     * less */
    m = mesh_of(2, many);
    from = on(&m, 1, &large, ((const int[]){-2, -2}), NULL);
    to = on(&m, 1, &large, ((const int[]){-1, -1}), NULL);
    CHECK_INT(plan(&from, &to, dear, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(steps[0].kind == DPAR_ROUTE_STEP_REDUCE_SCATTER && steps[0].axis == 1);
    CHECK_INT(plan(&from, &to, dearer, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(steps[0].kind == DPAR_ROUTE_STEP_REDUCE_SCATTER && steps[0].axis == 1);
    /* if nothing costs anything, the fewest steps win: a swap costs nothing either */
    m = mesh_of(3, size);
    from = on(&m, 3, even, ((const int[]){0, 1, 2}), NULL);
    to = on(&m, 3, even, ((const int[]){0, 2, 1}), NULL);
    CHECK_INT(plan(&from, &to, none, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK_INT(count, 1);
}

/* Checks that three axes of one size change roles in a ring by one exchange of tiles, where swaps
 * take two; but not if the tiles are uneven or their shapes differ. */
static void test_permute(void)
{
    static const int32_t size[] = {2, 2, 2}, four[] = {2, 2, 4};
    static const int64_t even[] = {8, 8, 8}, uneven[] = {8, 7, 8};
    dpar_mesh m = mesh_of(3, size), n = mesh_of(3, four);
    dpar_layout from = on(&m, 3, even, ((const int[]){0, 1, 2}), NULL);
    dpar_layout to = on(&m, 3, even, ((const int[]){1, 2, 0}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 64);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_PERMUTE);
    CHECK(steps[0].axis == -1 && steps[0].from == -1 && steps[0].to == -1);
    from = on(&m, 3, uneven, ((const int[]){0, 1, 2}), NULL);
    to = on(&m, 3, uneven, ((const int[]){1, 2, 0}), NULL);
    (void)check_route(&from, &to, 0);
    CHECK(count > 1);
    from = on(&n, 3, even, ((const int[]){0, 1, 2}), NULL);
    to = on(&n, 3, even, ((const int[]){1, 2, 0}), NULL);
    (void)check_route(&from, &to, 1);
    CHECK(count > 1);
    from = on(&m, 3, even, ((const int[]){0, 1, -2}), NULL); /* sums have no tiles */
    to = on(&m, 3, even, ((const int[]){-2, 0, 1}), NULL);
    CHECK_INT(plan(&from, &to, NULL, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(count > 1);
}

/* Checks memory for exactly the last step and node, and steps that are impossible. */
static void test_room(void)
{
    static const int32_t size[] = {2, 2};
    static const int64_t extent[] = {8, 8}, vast[] = {INT64_C(1) << 62, 1};
    enum { ENOUGH = 12 };
    dpar_mesh m = mesh_of(2, size);
    dpar_layout a = on(&m, 2, extent, ((const int[]){-1, -1}), NULL);
    dpar_layout b = on(&m, 2, extent, ((const int[]){0, 1}), NULL), after;
    dpar_route_step step = {DPAR_ROUTE_STEP_SLICE, 2, -1, 0, 0, 0};
    dpar_why why;
    int32_t room;
    CHECK_INT(plan(&a, &b, NULL, INT32_MAX, steps, 2, &count, nodes, NODES, &why), DPAR_OK);
    CHECK_INT(count, 2);
    CHECK_INT(plan(&a, &b, NULL, 0, steps, 1, &count, nodes, NODES, &why), DPAR_E_ROOM);
    for (room = 0; room < 40; room++) { /* any capacity is enough or reported */
        dpar_status st;
        memset(nodes, 0x7f, sizeof nodes); /* memory around the arrays is not ours */
        st = plan(&a, &b, NULL, 0, steps, STEPS, &count, nodes + 1, room, &why);
        CHECK(memcmp(&nodes[0], &nodes[NODES - 1], sizeof nodes[0]) == 0);
        CHECK(memcmp(&nodes[room + 1], &nodes[NODES - 1], sizeof nodes[0]) == 0);
        CHECK_INT(st, room < 2 ? DPAR_E_ARG : room < ENOUGH ? DPAR_E_ROOM : DPAR_OK);
    }
    CHECK_INT(plan(&a, &a, NULL, 0, steps, 0, &count, nodes, 2, &why), DPAR_OK);
    CHECK_INT(count, 0);
    CHECK_INT(dpar_route_step_apply(&a, &step, &b, &after, &why), DPAR_E_ARG); /* axis 2 of 2 */
    step.axis = 0;
    step.to = 2;
    CHECK_INT(dpar_route_step_apply(&a, &step, &b, &after, &why), DPAR_E_ARG); /* dim 2 of 2 */
    step.kind = DPAR_ROUTE_STEP_SWAP;
    CHECK_INT(dpar_route_step_apply(&b, &step, &a, &after, &why), DPAR_E_ARG); /* axis 2 of 2 */
    step.axis = 2;
    step.to = 0;
    CHECK_INT(dpar_route_step_apply(&b, &step, &a, &after, &why), DPAR_E_ARG);
    step.axis = 1;
    CHECK_INT(dpar_route_step_apply(&b, &step, &a, &after, &why), DPAR_OK);
    CHECK(after.axis[0].dim == 1 && after.axis[1].dim == 0);
    a = on(&m, 1, vast, ((const int[]){-1, -1}), NULL);
    b = on(&m, 1, vast, ((const int[]){0, -1}), NULL);
    CHECK_INT(plan(&b, &a, NULL, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK_INT(steps[count - 1].held, (INT64_C(1) << 62) + (INT64_C(1) << 61));
    b = on(&m, 1, vast, ((const int[]){-2, -1}), NULL); /* 2^62 and 2^62 */
    CHECK_INT(plan(&b, &a, NULL, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    for (room = 0; room < count; room++) {
        CHECK(steps[room].held <= INT64_MAX && steps[room].held > INT64_C(1) << 61);
    }
    for (room = 0; room < 3; room++) { /* an empty array: nothing is held and nothing moves */
        int64_t empty[3] = {INT64_C(1) << 62, INT64_C(1) << 62, INT64_C(1) << 62};
        empty[room] = 0;
        a = on(&m, 3, empty, ((const int[]){0, -1}), NULL);
        b = on(&m, 3, empty, ((const int[]){1, -1}), NULL);
        CHECK_INT(plan(&a, &b, NULL, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
        CHECK(count == 1 && cost_of(steps, count) == 0);
        CHECK_INT(steps[0].held, 0);
    }
}

/* Checks the cost of SWAP, and where it is not possible. */
static void test_swap(void)
{
    static const int32_t size[] = {2, 2, 2}, thin[] = {2, 2, 1}, four[] = {4, 1};
    static const int64_t even[] = {8, 8, 8}, uneven[] = {8, 7, 8}, column[] = {64, 1};
    static const int64_t six[] = {6, 6, 6};
    static const int64_t first[] = {1000, 1, 1}, last[] = {1, 1, 1000}, one[] = {1, 1, 1};
    dpar_mesh m = mesh_of(3, size), n = mesh_of(3, thin), k = mesh_of(2, four);
    dpar_mesh pair = mesh_of(2, size);
    dpar_layout from = on(&m, 3, even, ((const int[]){0, 1, 2}), NULL);
    dpar_layout to = on(&m, 3, even, ((const int[]){1, 0, -1}), NULL);
    int i;
    CHECK_INT(check_route(&from, &to, 1), 64 + 64); /* swap, then gather; gather first costs 192 */
    CHECK(count == 2 && steps[0].kind == DPAR_ROUTE_STEP_SWAP && steps[0].axis == 0 &&
          steps[0].to == 1);
    from = on(&m, 3, uneven, ((const int[]){0, 1, 2}), NULL);
    to = on(&m, 3, uneven, ((const int[]){1, 0, -1}), NULL);
    (void)check_route(&from, &to, 0);
    for (i = 0; i < count; i++) {
        CHECK(steps[i].kind != DPAR_ROUTE_STEP_SWAP && steps[i].kind != DPAR_ROUTE_STEP_PERMUTE);
    }
    /* 7 rows are uneven under the first axis, and 7 columns under the last: no swap of 4 x 4. Its
     * axis cuts the dim of 8 too, which moves 4 x 2; the two axes swap there, 7 x 2; the other axis
     * moves back */
    for (i = 0; i < 2; i++) {
        const int64_t odd[] = {8 - !i, 8 - i};
        from = on(&pair, 2, odd, ((const int[]){0, 1}), NULL);
        to = on(&pair, 2, odd, ((const int[]){1, 0}), NULL);
        CHECK_INT(check_route(&from, &to, 0), 8 + 14 + 8);
        CHECK(count == 3 && steps[0].kind == DPAR_ROUTE_STEP_ALL_TO_ALL && steps[0].to == 1 - i);
    }
    /* tiles of 3 x 3 x 3 are even though 3 is not: swap, then gather */
    from = on(&m, 3, six, ((const int[]){0, 1, 2}), NULL);
    to = on(&m, 3, six, ((const int[]){1, 0, -1}), NULL);
    CHECK_INT(check_route(&from, &to, 1), 27 + 27);
    CHECK(count == 2 && steps[0].kind == DPAR_ROUTE_STEP_SWAP);
    /* the most expensive axis of more than one rank counts, whichever it is */
    from = on(&m, 3, even, ((const int[]){0, 1, 2}), NULL);
    to = on(&m, 3, even, ((const int[]){0, 2, 1}), NULL);
    CHECK_INT(plan(&from, &to, first, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(count > 1);
    CHECK_INT(plan(&from, &to, one, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(count == 1 && steps[0].elements == 64);
    to = on(&m, 3, even, ((const int[]){1, 0, 2}), NULL);
    CHECK_INT(plan(&from, &to, last, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK(count > 1);
    from = on(&n, 3, even, ((const int[]){0, 1, -1}), NULL);
    to = on(&n, 3, even, ((const int[]){1, 0, -1}), NULL);
    CHECK_INT(plan(&from, &to, last, 0, steps, STEPS, &count, nodes, NODES, NULL), DPAR_OK);
    CHECK_INT(count, 1);
    /* an all-to-all onto a dim that does not divide is padded: rank 0 receives 3 of 4 blocks */
    from = on(&k, 2, column, ((const int[]){0, -1}), NULL);
    to = on(&k, 2, column, ((const int[]){1, -1}), NULL);
    CHECK_INT(check_route(&from, &to, 0), 48);
}

static void test_refusals(void)
{
    static const int32_t size[] = {2, 2}, other[] = {4, 1};
    static const int64_t extent[] = {8, 8}, odd[] = {8, 9, 8};
    dpar_mesh m = mesh_of(2, size), n = mesh_of(2, other);
    dpar_layout a = on(&m, 2, extent, ((const int[]){0, 1}), NULL), b = a, c;
    dpar_layout to = on(&m, 2, extent, ((const int[]){1, 0}), NULL);
    dpar_layout sum = on(&m, 2, extent, ((const int[]){-2, 0}), NULL);
    dpar_route_step bad = {DPAR_ROUTE_STEP_SLICE, 5, -1, 0, 0, 0};
    int k, sums;
    dpar_why why;
    b.axis[0] = dpar_shard_by(0, DPAR_SPLIT_CYCLIC, 0);
    CHECK_INT(plan(&b, &to, NULL, 0, steps, STEPS, &count, nodes, NODES, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axis 0 shards by rule 7: routes need CHUNK");
    c = on(&n, 2, extent, ((const int[]){0, 1}), NULL);
    CHECK_INT(plan(&a, &c, NULL, 0, steps, STEPS, &count, nodes, NODES, &why), DPAR_E_ARG);
    c = on(&m, 2, odd, ((const int[]){0, 1}), NULL);
    CHECK_INT(plan(&a, &c, NULL, 0, steps, STEPS, &count, nodes, NODES, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 1 has 8 elements before and 9 after");
    c = on(&m, 2, odd + 1, ((const int[]){0, 1}), NULL);
    CHECK_INT(plan(&a, &c, NULL, 0, steps, STEPS, &count, nodes, NODES, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 0 has 8 elements before and 9 after");
    CHECK_INT(plan(&a, &to, NULL, 0, steps, STEPS, &count, nodes, 3, &why), DPAR_E_ROOM);
    CHECK_INT(plan(&a, &to, NULL, 0, steps, 0, &count, nodes, NODES, &why), DPAR_E_ROOM);
    CHECK_INT(plan(&a, &to, NULL, -1, steps, STEPS, &count, nodes, NODES, &why), DPAR_E_ARG);
    CHECK_INT(plan(&a, &sum, NULL, 0, steps, STEPS, &count, nodes, NODES, &why), DPAR_OK);
    CHECK(steps[count - 1].kind == DPAR_ROUTE_STEP_TO_PARTIAL ||
          steps[0].kind == DPAR_ROUTE_STEP_ALL_GATHER);
    (void)check_route(&a, &sum, 0);
    for (k = 0, sums = 0; k < count; k++) {
        sums += steps[k].kind == DPAR_ROUTE_STEP_TO_PARTIAL;
    }
    CHECK_INT(sums, 1);
    c = on(&m, 2, extent, ((const int[]){-1, 0}), NULL); /* one step, and nothing moves */
    CHECK_INT(check_route(&c, &sum, 1), 0);
    CHECK(count == 1 && steps[0].kind == DPAR_ROUTE_STEP_TO_PARTIAL && steps[0].axis == 0);
    CHECK_INT(dpar_route_step_apply(&a, &bad, &to, &c, &why), DPAR_E_ARG);
    CHECK_TEXT(dpar_route_step_name(99), "?");
}

int main(void)
{
    test_relaxed();
    test_even();
    test_vectors();
    test_prices();
    test_costs();
    test_permute();
    test_room();
    test_swap();
    test_refusals();
    return CHECK_DONE();
}
