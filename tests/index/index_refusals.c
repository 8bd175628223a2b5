/* SPDX-License-Identifier: MIT-0 */
/* Tests what dpar.h refuses, one wrong number at a time, with the message; and numbers so large
 * that a product exceeds 2^63, which is reported or saturates. The other tests of a module are
 * about correct input; tests/compile/coverage.sh counts both. Run with: tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"
#include "refused.h"
#include "transfer_totals.h"

#include <stdlib.h>

static const int64_t large = INT64_C(1) << 61;

static dpar_mesh mesh_of(const char *names, int32_t a, int32_t b)
{
    dpar_mesh m;
    int32_t size[2];
    size[0] = a, size[1] = b;
    CHECK_INT(dpar_mesh_init(&m, names, size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    return m;
}

static dpar_layout layout_of(const dpar_mesh *m, int32_t dims, const int64_t *extent,
                             dpar_placement a, dpar_placement b)
{
    dpar_layout l;
    dpar_placement p[2];
    p[0] = a, p[1] = b;
    CHECK_INT(dpar_layout_init(&l, m, dims, extent, p, NULL), DPAR_OK);
    return l;
}

static void test_mesh(void)
{
    dpar_mesh m = mesh_of("a b", 2, 3), view, one = mesh_of("a b", 1, 1);
    dpar_why why;
    int32_t size[2] = {2, 3}, coord[2] = {-1, 0}, sizes[3] = {2, 3, 1};
    REFUSED(dpar_mesh_init(&view, "sixteen_letters_", size, 0, 0, &why), DPAR_E_ARG,
            "1 to 15 are allowed");
    CHECK_INT(dpar_mesh_rank(&m, coord), -1);
    coord[0] = 2;
    CHECK_INT(dpar_mesh_rank(&m, coord), -1);
    CHECK_INT(dpar_mesh_shift(&m, 0, 2, 1, 0), -1);
    CHECK_INT(dpar_mesh_shift(&m, 0, -1, 1, 0), -1);
    CHECK_INT(dpar_mesh_group_member(&m, 1, 0, -1), -1);
    CHECK_INT(dpar_mesh_group_member(&m, 1, 0, 2), -1);
    REFUSED(dpar_mesh_init_from_order(&view, "a a", "a b", sizes, 6, &why), DPAR_E_ARG,
            "'a' is in the order twice");
    sizes[0] = 0;
    REFUSED(dpar_mesh_init_from_order(&view, "a b", "a b", sizes, 6, &why), DPAR_E_ARG,
            "axis 'a' has size 0");
    REFUSED(dpar_mesh_view(&view, &m, "c d", size, 0, NULL), DPAR_OK, NULL);
    size[0] = 4;
    REFUSED(dpar_mesh_view(&view, &m, "c d", size, 0, &why), DPAR_E_DIVIDE, "12 ranks");
    size[0] = 3, size[1] = 2; /* one axis per name, but with other ranks */
    REFUSED(dpar_mesh_view(&view, &m, "a b", size, 0, &why), DPAR_E_DIVIDE, "their groups differ");
    m.axis[0].stride = 4; /* ranks 0 1 2 4 5 6 */
    size[0] = 2, size[1] = 3;
    REFUSED(dpar_mesh_view(&view, &m, "c d", size, 0, &why), DPAR_E_DIVIDE,
            "axis 'a' has stride 4");
    size[0] = size[1] = 1;
    REFUSED(dpar_mesh_view(&view, &one, "c d", size, 0, NULL), DPAR_OK, NULL);
    CHECK_INT(view.size, 1);
}

static void test_cart(void)
{
    dpar_why why;
    dpar_cart cart, line;
    dpar_mapping place;
    dpar_stencil s;
    dpar_cart_choose_desc g;
    int32_t parts[DPAR_MAX_DIMS] = {2, 2}, i;
    int64_t cut, zero = 0;
    CHECK_INT(dpar_cart_init(&cart, 2, parts, 0, &why), DPAR_OK);
    REFUSED(dpar_cart_init(&cart, -1, parts, 0, &why), DPAR_E_ARG, "not -1");
    REFUSED(dpar_cart_init(&cart, 9, parts, 0, &why), DPAR_E_ARG, "not 9");
    memset(&g, 0, sizeof g);
    g.ranks = 4, g.dims = -1;
    REFUSED(dpar_cart_choose_parts(&g, parts, &cut, &why), DPAR_E_ARG, "not -1");
    g.dims = 9;
    REFUSED(dpar_cart_choose_parts(&g, parts, &cut, &why), DPAR_E_ARG, "not 9");
    g.dims = 2, g.cells[0] = 0, g.cells[1] = 4;
    parts[0] = parts[1] = 0;
    REFUSED(dpar_cart_choose_parts(&g, parts, &cut, &why), DPAR_E_ARG, "dim 0: cells=0");
    g.cells[0] = 4, g.weight[1] = -1;
    REFUSED(dpar_cart_choose_parts(&g, parts, &cut, &why), DPAR_E_ARG, "weight=-1");
    for (i = -1; i <= DPAR_MAPPING_COUNT; i += DPAR_MAPPING_COUNT + 1) {
        REFUSED(dpar_mapping_init(&place, &cart, i, 1, &why), DPAR_E_ARG, "kind=");
    }
    REFUSED(dpar_mapping_init(&place, &cart, 0, 0, &why), DPAR_E_ARG, "per_node=0");
    REFUSED(dpar_mapping_init(&place, &cart, DPAR_MAPPING_BRICKS, 3, &why), DPAR_E_DIVIDE, "");
    memset(&s, 0, sizeof s);
    s.shape = 99;
    REFUSED(dpar_mapping_choose(&place, &cart, 2, &s, &why), DPAR_E_ARG, "shape is 99");
    s.shape = DPAR_STENCIL_STAR;
    s.bytes = 8;
    s.block[0] = s.block[1] = s.width[0] = s.width[1] = 1;
    REFUSED(dpar_mapping_choose(&place, &cart, 0, &s, &why), DPAR_E_ARG, "per_node=0");
    s.bytes = 0; /* counts messages, not bytes */
    REFUSED(dpar_mapping_choose(&place, &cart, 2, &s, NULL), DPAR_OK, NULL);
    s.bytes = 8;
    parts[0] = 3;
    CHECK_INT(dpar_cart_init(&line, 1, parts, 0, NULL), DPAR_OK);
    REFUSED(dpar_mapping_choose(&place, &line, 2, &s, NULL), DPAR_OK, NULL); /* no bricks of 2 */
    memset(parts, 0, sizeof parts);
    CHECK_INT(dpari_cart_next_parts(0, 2, parts), DPAR_E_ARG);
    CHECK_INT(dpari_cart_next_parts(4, 0, parts), DPAR_E_ARG);
    CHECK_INT(dpari_cart_next_parts(4, 9, parts), DPAR_E_ARG);
    parts[0] = -1;
    CHECK_INT(dpari_cart_next_parts(4, 2, parts), DPAR_E_ARG);
    parts[0] = 3; /* no divisor of 4 */
    CHECK_INT(dpari_cart_next_parts(4, 2, parts), DPAR_E_ARG);
    parts[0] = 2, parts[1] = 0;
    CHECK_INT(dpari_cart_next_parts(4, 2, parts), DPAR_E_ARG);
    memset(parts, 0, sizeof parts);
    for (i = 0; i < DPAR_MAX_DIMS; i++) {
        g.cells[i] = INT64_MAX, g.weight[i] = 0;
    }
    g.dims = DPAR_MAX_DIMS, g.ranks = 4;
    REFUSED(dpar_cart_choose_parts(&g, parts, &cut, &why), DPAR_E_RANGE,
            "7 x 9223372036854775807 x");
    CHECK(strlen(why.text) < sizeof why.text - 1); /* no grid has a longer message */
    CHECK_INT(dpar_cart_choose_parts(&g, parts, &cut, NULL), DPAR_E_RANGE);
    parts[0] = 1; /* one part of the longest row, the longest there is */
    CHECK_INT(dpar_cart_owner(1, g.cells, parts, &zero), 0);
}

static void test_split(void)
{
    dpar_split s;
    dpar_why why;
    int64_t cuts[3] = {0, 1, 2}, cost[2] = {1, 1}, run;
    const int64_t past = (INT64_C(1) << 62) + 1;
    REFUSED(dpar_split_init(&s, DPAR_SPLIT_CHUNK, 4, 0, 0, &why), DPAR_E_ARG, "0 parts");
    REFUSED(dpar_split_init(&s, DPAR_SPLIT_CHUNK, -4, 1, 0, &why), DPAR_E_ARG, "-4 elements");
    REFUSED(dpar_split_init(&s, DPAR_SPLIT_CHUNK, past, 1, 0, &why), DPAR_E_RANGE, "at most 2^62");
    REFUSED(dpar_split_init_ragged(&s, 0, cuts, &why), DPAR_E_ARG, "0 parts");
    REFUSED(dpar_split_weighted_cuts(cuts, 4, 0, cost, 1, &why), DPAR_E_ARG, "0 parts");
    REFUSED(dpar_split_balance(cuts, 2, cost, 0, &why), DPAR_E_ARG, "0 parts");
    CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_BLOCK_CYCLIC, 7, 3, 1, NULL), DPAR_OK);
    CHECK_INT(dpar_split_locate(&s, 5, NULL, &run), 2);
    CHECK_INT(run, 1);
    CHECK_INT(dpar_split_locate(&s, 5, NULL, NULL), 2);
}

static void test_layout(void)
{
    dpar_mesh m = mesh_of("a b", 2, 2);
    dpar_layout l, other;
    dpar_placement p[2];
    dpar_box_cursor cursor;
    dpar_box box;
    dpar_why why;
    int64_t extent[DPAR_MAX_DIMS] = {8, 8}, cuts[3] = {0, 3, 7}, stride[DPAR_MAX_DIMS];
    p[1] = dpar_replicate();
    p[0] = dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 2);
    p[0].source = 2;
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_ARG,
            "source is 2: must be one of the 2");
    p[0].source = -1;
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_ARG, "source is -1");
    p[0] = dpar_shard_by(0, DPAR_SPLIT_RAGGED, 0);
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_ARG, "axis 0: RAGGED needs cuts");
    p[0].cuts = cuts;
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_DIVIDE, "the cuts end at 7");
    cuts[1] = -1;
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_ARG, "but cuts[1] is only -1");
    p[0] = dpar_replicate();
    p[0].kind = DPAR_PLACEMENT_REPLICATE - 1;
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_ARG, "does not exist");
    p[0].kind = DPAR_PLACEMENT_PARTIAL + 1;
    p[0].op = DPAR_SUM;
    REFUSED(dpar_layout_init(&l, &m, 2, extent, p, &why), DPAR_E_ARG, "does not exist");
    l = layout_of(&m, 2, extent, dpar_shard(0), dpar_replicate());
    CHECK_INT(dpar_layout_global(&l, 0, 0, -1, NULL), -1);
    CHECK_INT(dpar_layout_global(&l, 0, 0, 4, NULL), -1);
    memset(&cursor, 0, sizeof cursor);
    CHECK_INT(dpar_layout_next(&l, 3, &cursor, &box, NULL), 1); /* no position requested */
    CHECK_INT(box.lo[0], 4);
    /* the same, except which axis cuts: one, the other, both */
    other = layout_of(&m, 2, extent, dpar_replicate(), dpar_shard(0));
    CHECK_INT(dpari_layout_same(&l, &other), 0);
    other = layout_of(&m, 2, extent, dpar_shard(0), dpar_shard(0));
    CHECK_INT(dpari_layout_same(&l, &other), 0);
    CHECK_INT(dpari_layout_same(&other, &l), 0);
    /* strides beyond 2^63 are limited to it */
    extent[0] = extent[1] = extent[2] = large;
    l = layout_of(&m, 3, extent, dpar_replicate(), dpar_replicate());
    dpar_layout_strides(&l, 0, NULL, stride);
    CHECK_INT(stride[2], 1);
    CHECK_INT(stride[1], large);
    CHECK_INT(stride[0], INT64_MAX);
}

static void test_redistribute(void)
{
    dpar_mesh m = mesh_of("a b", 2, 2), small = mesh_of("a", 4, 0);
    dpar_layout from, to, other;
    dpar_redistribute_cursor w;
    transfer_totals sum;
    dpar_why why;
    int64_t extent[DPAR_MAX_DIMS] = {8, 8}, huge[3];
    int32_t n;
    from = layout_of(&m, 2, extent, dpar_shard(0), dpar_replicate());
    to = layout_of(&m, 2, extent, dpar_replicate(), dpar_shard(1));
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 0, 2, 0), DPAR_E_ARG);
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 0, -1, 0), DPAR_E_ARG);
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 0, DPAR_TRANSFER_SEND, -2), DPAR_E_ARG);
    other = from;
    other.extent[0] = 9;
    CHECK_INT(dpar_redistribute_first(&w, &from, &other, 0, DPAR_TRANSFER_SEND, 0), DPAR_E_ARG);
    /* partial sums that move to a mesh of fewer axes, or to an axis that is not partial */
    from = layout_of(&m, 2, extent, dpar_partial(DPAR_SUM), dpar_partial(DPAR_SUM));
    to = layout_of(&small, 2, extent, dpar_partial(DPAR_SUM), dpar_replicate());
    REFUSED(dpar_redistribute_check(&from, &to, &why), DPAR_E_ARG, "an old one must stay");
    to = layout_of(&small, 2, extent, dpar_replicate(), dpar_replicate());
    CHECK_INT(dpar_redistribute_check(&from, &to, NULL), DPAR_OK);
    /* more than 2^63 - 1 elements: the totals are 2^63 - 1 */
    huge[0] = huge[1] = huge[2] = large;
    from = layout_of(&m, 3, huge, dpar_shard(0), dpar_shard(1));
    to = layout_of(&m, 3, huge, dpar_shard(1), dpar_shard(0));
    for (n = DPAR_TRANSFER_RECV; n <= DPAR_TRANSFER_SEND; n++) {
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, 1, n, 0), DPAR_OK);
        transfers_total(&w, &sum);
        CHECK_INT(sum.away, INT64_MAX);
    }
    /* in sums: 2^62 - 1, the same again, and a third time */
    huge[0] = (INT64_C(1) << 62) - 1;
    huge[1] = 4;
    from = layout_of(&m, 2, huge, dpar_replicate(), dpar_shard(1));
    to = layout_of(&m, 2, huge, dpar_replicate(), dpar_replicate());
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 1, DPAR_TRANSFER_RECV, 0), DPAR_OK);
    transfers_total(&w, &sum);
    CHECK(sum.away > 0 && sum.kept > 0);
    huge[1] = 8; /* the share of three others, each nearly 2^63 */
    from = layout_of(&small, 2, huge, dpar_shard(1), dpar_replicate());
    to = layout_of(&small, 2, huge, dpar_replicate(), dpar_replicate());
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 1, DPAR_TRANSFER_RECV, 0), DPAR_OK);
    transfers_total(&w, &sum);
    CHECK_INT(sum.away, INT64_MAX);
    huge[0] = huge[1] = huge[2] = large; /* and copies, of which one is nearest */
    from = layout_of(&m, 3, huge, dpar_shard(0), dpar_replicate());
    to = layout_of(&m, 3, huge, dpar_replicate(), dpar_shard(0));
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 1, DPAR_TRANSFER_RECV, 2), DPAR_OK);
    transfers_total(&w, &sum);
    CHECK_INT(sum.away, INT64_MAX); /* from rank 2, which has the half that rank 1 needs */
}

static void test_cover(void)
{
    dpar_why why;
    dpar_box box[1];
    int64_t extent[3] = {4, 4, 4};
    int32_t order[1], k;
    box[0].dims = 2;
    REFUSED(dpar_box_cover(3, extent, box, 1, order, &why), DPAR_E_ARG, "box 0 has 2 dims");
    box[0].dims = 3;
    for (k = 0; k < 3; k++) {
        box[0].lo[k] = 0, box[0].hi[k] = 4;
    }
    CHECK_INT(dpar_box_cover(3, extent, box, 1, order, NULL), DPAR_OK);
    box[0].lo[1] = -1;
    REFUSED(dpar_box_cover(3, extent, box, 1, order, &why), DPAR_E_ARG, "not all inside");
    box[0].lo[1] = 0, box[0].hi[2] = 5;
    REFUSED(dpar_box_cover(3, extent, box, 1, order, &why), DPAR_E_ARG, "not all inside");
    extent[0] = extent[1] = extent[2] = large;
    REFUSED(dpar_box_cover(3, extent, box, 1, order, &why), DPAR_E_RANGE, "more than 2^63 - 1");
}

static void test_route(void)
{
    static const char *const names[] = {
        "?",          "slice", "start-sum", "all-gather", "all-to-all", "reduce-scatter",
        "all-reduce", "swap",  "permute",   "?"};
    dpar_mesh m = mesh_of("a b", 2, 2), line = mesh_of("a", 4, 0);
    dpar_layout from, to, after;
    dpar_route_desc q;
    static dpar_route_node nodes[200];
    dpar_route_step steps[10];
    dpar_why why;
    int64_t extent[DPAR_MAX_DIMS] = {8, 8};
    int32_t k, count, room, made = 0;
    for (k = -1; k <= DPAR_ROUTE_STEP_COUNT; k++) {
        CHECK_TEXT(dpar_route_step_name(k), names[k + 1]);
    }
    from = layout_of(&m, 2, extent, dpar_shard(0), dpar_partial(DPAR_SUM));
    to = layout_of(&m, 2, extent, dpar_shard(1), dpar_shard(0));
    memset(&q, 0, sizeof q);
    q.from = &from, q.to = &to, q.nodes = nodes;
    for (room = 2; room < 200; room++) { /* too little memory at each point in turn */
        q.node_capacity = room;
        k = dpar_route_plan(&q, steps, 10, &count, &why);
        CHECK(k == DPAR_OK || (k == DPAR_E_ROOM && strstr(why.text, "is too small") != NULL));
        CHECK(!made || k == DPAR_OK); /* and more memory does no harm */
        made = made || k == DPAR_OK;
    }
    CHECK(made);
    from = layout_of(&m, 2, extent, dpar_replicate(), dpar_shard(0)); /* a sum that begins */
    to = layout_of(&m, 2, extent, dpar_partial(DPAR_SUM), dpar_shard(1));
    for (room = 2, made = 0; room < 200; room++) {
        q.node_capacity = room;
        k = dpar_route_plan(&q, steps, 10, &count, &why);
        CHECK(k == DPAR_OK || (k == DPAR_E_ROOM && strstr(why.text, "is too small") != NULL));
        made += k == DPAR_OK;
    }
    CHECK(made > 0 && made < 198);
    { /* three axes that swap places */
        dpar_mesh cube;
        dpar_placement p[3];
        int32_t size[3] = {2, 2, 2};
        CHECK_INT(dpar_mesh_init(&cube, "a b c", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        p[0] = dpar_shard(0), p[1] = dpar_shard(1), p[2] = dpar_shard(0);
        CHECK_INT(dpar_layout_init(&from, &cube, 2, extent, p, NULL), DPAR_OK);
        p[0] = dpar_shard(1), p[1] = dpar_shard(0), p[2] = dpar_shard(1);
        CHECK_INT(dpar_layout_init(&to, &cube, 2, extent, p, NULL), DPAR_OK);
        for (room = 2, made = 0; room < 200; room++) {
            q.node_capacity = room;
            k = dpar_route_plan(&q, steps, 10, &count, &why);
            CHECK(k == DPAR_OK || (k == DPAR_E_ROOM && strstr(why.text, "is too small") != NULL));
            made += k == DPAR_OK;
        }
        CHECK(made > 0 && made < 198);
    }
    from = layout_of(&m, 2, extent, dpar_shard(0), dpar_shard(1)); /* tiles that swap places */
    to = layout_of(&m, 2, extent, dpar_shard(1), dpar_shard(0));
    for (room = 2, made = 0; room < 200; room++) {
        q.node_capacity = room;
        k = dpar_route_plan(&q, steps, 10, &count, &why);
        CHECK(k == DPAR_OK || (k == DPAR_E_ROOM && strstr(why.text, "is too small") != NULL));
        made += k == DPAR_OK;
    }
    CHECK(made > 0 && made < 198);
    q.node_capacity = 1;
    REFUSED(dpar_route_plan(&q, steps, 10, &count, &why), DPAR_E_ARG, "node_capacity=1");
    q.node_capacity = 200, q.step_cost = -1;
    REFUSED(dpar_route_plan(&q, steps, 10, &count, &why), DPAR_E_ARG, "step_cost=-1");
    q.step_cost = INT64_C(1) << 31;
    REFUSED(dpar_route_plan(&q, steps, 10, &count, &why), DPAR_E_ARG, "step_cost=21474");
    q.step_cost = 0;
    to = layout_of(&m, 1, extent, dpar_shard(0), dpar_replicate());
    REFUSED(dpar_route_plan(&q, steps, 10, &count, &why), DPAR_E_ARG, "number of dims");
    to = layout_of(&line, 2, extent, dpar_shard(0), dpar_replicate());
    REFUSED(dpar_route_plan(&q, steps, 10, &count, &why), DPAR_E_ARG, "the same mesh");
    memset(steps, 0, sizeof steps);
    steps[0].kind = DPAR_ROUTE_STEP_ALL_GATHER, steps[0].axis = -1, steps[0].to = -1;
    REFUSED(dpar_route_step_apply(&from, steps, &to, &after, &why), DPAR_E_ARG, "axis -1");
    steps[0].axis = 2;
    REFUSED(dpar_route_step_apply(&from, steps, &to, &after, &why), DPAR_E_ARG, "axis 2");
    steps[0].axis = 0, steps[0].to = 2;
    REFUSED(dpar_route_step_apply(&from, steps, &to, &after, &why), DPAR_E_ARG, "or dim 2");
    for (k = 0; k < 4; k++) {
        static const int32_t wrong[4][2] = {{-1, 1}, {2, 1}, {0, -1}, {0, 2}};
        steps[0].kind = DPAR_ROUTE_STEP_SWAP, steps[0].axis = wrong[k][0],
        steps[0].to = wrong[k][1];
        if (k != 2) {
            REFUSED(dpar_route_step_apply(&from, steps, &to, &after, &why), DPAR_E_ARG,
                    "the step's axis");
        } else { /* without another axis: the gathering step */
            CHECK_INT(dpar_route_step_apply(&from, steps, &to, &after, &why), DPAR_OK);
            CHECK_INT(after.axis[0].kind, DPAR_PLACEMENT_REPLICATE);
        }
    }
}

static void test_flat_and_heads(void)
{
    dpar_buckets_desc how, fine;
    dpar_bucket bucket[2];
    dpar_stage_layers_desc st, wrong;
    dpar_why why;
    int64_t numel[1] = {10}, start[1];
    int32_t n, k, lo, hi;
    memset(&fine, 0, sizeof fine);
    fine.params = 1, fine.count = numel;
    CHECK_INT(dpar_buckets_init(&fine, start, bucket, 2, &n, NULL), DPAR_OK);
    for (k = 0; k < 6; k++) {
        how = fine;
        how.params = k == 0 ? -1 : 1;
        how.first = -(k == 1), how.size = -(k == 2), how.ranks = -(k == 3);
        how.align = -(k == 4), how.multiple = -(k == 5);
        REFUSED(dpar_buckets_init(&how, start, bucket, 2, &n, &why), DPAR_E_ARG,
                "none may be negative");
    }
    how = fine;
    how.multiple = INT64_MAX, how.ranks = 2;
    REFUSED(dpar_buckets_init(&how, start, bucket, 2, &n, &why), DPAR_E_RANGE, "exceed");
    how = fine; /* the rounded end of the buffer exceeds 2^62 */
    numel[0] = (INT64_C(1) << 62) - 1;
    how.multiple = 5;
    CHECK_INT(dpar_buckets_init(&how, start, bucket, 2, &n, &why), DPAR_E_RANGE);
    numel[0] = INT64_MAX; /* and before rounding */
    CHECK_INT(dpar_buckets_init(&how, start, bucket, 2, &n, &why), DPAR_E_RANGE);
    memset(&st, 0, sizeof st);
    st.layers = 8, st.stages = 2;
    CHECK_INT(dpar_stage_layers(&st, 0, 0, &lo, &hi, NULL), DPAR_OK);
    for (k = 0; k < 5; k++) {
        wrong = st;
        wrong.layers = k == 0 ? -1 : 8;
        wrong.stages = k == 1 ? 0 : 2;
        wrong.chunks = -(k == 2), wrong.first_layers = -(k == 3), wrong.last_layers = -(k == 4);
        REFUSED(dpar_stage_layers(&wrong, 0, 0, &lo, &hi, &why), DPAR_E_ARG, "last_layers=");
    }
}

static void test_ulysses(void)
{
    dpar_split seq, heads;
    dpar_why why;
    int64_t n[4][4];
    CHECK_INT(dpar_split_init(&seq, DPAR_SPLIT_CHUNK, INT64_C(1) << 40, 4, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_split_init(&heads, DPAR_SPLIT_CHUNK, 8, 4, 0, NULL), DPAR_OK);
    REFUSED(dpari_ulysses_counts(&seq, &heads, 0, INT64_C(1) << 30, n[0], n[1], n[2], n[3], &why),
            DPAR_E_RANGE, "exceed");
}

static void test_context(void)
{
    dpar_packed p;
    int64_t ends[4] = {0, 0, 0, 0};
    /* documents so long that the pairs exceed 2^63: each one's, and their sum */
    ends[1] = large;
    CHECK_INT(dpar_packed_init(&p, 1, ends, 2, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    CHECK_INT(dpar_packed_init(&p, 1, ends, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    /* n tokens on a rank such that the pairs of one document fit and those of two do not: n (n + 1)
     * / 2 near 2^62.7 */
    ends[1] = INT64_C(3600000000);
    ends[2] = 2 * ends[1];
    CHECK_INT(dpar_packed_init(&p, 2, ends, 1, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    CHECK_INT(dpar_packed_init(&p, 2, ends, 1, DPAR_SPLIT_CHUNK, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    CHECK_INT(dpar_packed_init(&p, 1, ends, 1, DPAR_SPLIT_CHUNK, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), ends[1] / 2 * (ends[1] + 1));
    ends[1] = large; /* 2^31 tokens per rank, with steps of 2^30 between them */
    CHECK_INT(dpar_packed_init(&p, 1, ends, 1 << 30, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 7), INT64_MAX);
    /* a stripe on one rank: n (n - 1) / 2 = 2^63 - 2^31 fits, n more do not */
    ends[1] = INT64_C(1) << 32;
    CHECK_INT(dpar_packed_init(&p, 1, ends, 1, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    /* a later part: first x n fits and n (n + 1) / 2 fits, but not their sum */
    ends[1] = INT64_C(5000000000);
    CHECK_INT(dpar_packed_init(&p, 1, ends, 2, DPAR_SPLIT_CHUNK, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 1), INT64_MAX);
    CHECK_INT(dpar_packed_init(&p, 1, ends, 2, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    /* tokens 1, 3, ... see 2, 4, ..., n keys: n / 2 (n / 2 + 1) */
    CHECK_INT(dpar_packed_pairs(&p, 1), ends[1] / 2 * (ends[1] / 2 + 1));
}

static void test_window(void)
{
    dpar_window v;
    dpar_why why;
    int64_t n;
    memset(&v, 0, sizeof v);
    v.kernel = 3, v.kind = -1;
    REFUSED(dpar_window_outputs(&v, 8, &n, &why), DPAR_E_ARG, "window kind -1");
    v.kind = 4;
    REFUSED(dpar_window_outputs(&v, 8, &n, &why), DPAR_E_ARG, "window kind 4");
    v.kind = DPAR_WINDOW_INTERPOLATION, v.kernel = 2;
    CHECK_INT(dpari_window_check(&v, 1 << 20, 1, &why), DPAR_OK);
    REFUSED(dpari_window_check(&v, 0, 1, &why), DPAR_E_RANGE,
            "0 inputs, 1 outputs: an interpolation");
    REFUSED(dpari_window_check(&v, (INT64_C(1) << 30) + 1, 1, &why), DPAR_E_RANGE, "interpolation");
    REFUSED(dpari_window_check(&v, 1, 0, &why), DPAR_E_RANGE,
            "1 inputs, 0 outputs: an interpolation");
    REFUSED(dpari_window_check(&v, 1, (INT64_C(1) << 30) + 1, &why), DPAR_E_RANGE, "interpolation");
}

static dpar_halo halo_of(const dpar_mesh *m, int64_t n)
{
    dpar_halo h;
    int64_t extent[2];
    extent[0] = extent[1] = n;
    memset(&h, 0, sizeof h);
    h.grid = layout_of(m, 2, extent, dpar_shard(0), dpar_shard(1));
    h.low[0] = h.low[1] = h.high[0] = h.high[1] = 1;
    return h;
}

/* Makes a halo of six faces of n x n cells, each in one block. */
static dpar_halo cube_of(int64_t n)
{
    dpar_halo h;
    dpar_mesh m;
    dpar_placement p = dpar_shard(0);
    int64_t extent[3];
    int32_t six = 6;
    extent[0] = 6, extent[1] = extent[2] = n;
    memset(&h, 0, sizeof h);
    CHECK_INT(dpar_mesh_init(&m, "a", &six, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &m, 3, extent, &p, NULL), DPAR_OK);
    h.low[1] = h.low[2] = h.high[1] = h.high[2] = 1;
    h.cube = 1;
    return h;
}

static void test_halo(void)
{
    dpar_mesh m = mesh_of("a b", 2, 2);
    dpar_halo h = halo_of(&m, 8), wrong, u, v;
    dpar_layout out;
    dpar_halo_cursor w;
    dpar_why why;
    int64_t extent[2] = {8, 8};
    int32_t owner[6] = {0, 1, 2, 3, 4, 5};
    REFUSED(dpar_halo_check(NULL, &why), DPAR_E_ARG, "the halo is NULL");
    wrong = h;
    wrong.grid.extent[1] = (INT64_C(1) << 60) + 1;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_RANGE, "dim 1 has 115");
    wrong.grid.extent[1] = -1;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_RANGE, "dim 1 has -1 cells");
    wrong = h;
    wrong.points[1] = DPAR_HALO_AT_CELLS - 1;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "points[1] is -1");
    wrong.points[1] = DPAR_HALO_AT_HIGH_FACES + 1;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "is no DPAR_HALO_AT_x");
    wrong = h;
    wrong.folds = 1, wrong.fold = -1, wrong.mirror = 1, wrong.periodic = 2;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "fold is -1");
    wrong = h; /* owners are counted from the mesh's first rank */
    wrong.owner = owner;
    wrong.grid.mesh.first_rank = 1;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "ranks 0, 1, ..., not of");
    wrong = h;
    wrong.owner = owner;
    wrong.grid.mesh.axis[0].stride = 4;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "not of 0 to 5");
    /* outputs that are cut in another way: along another dim, or not contiguously */
    out = layout_of(&m, 2, extent, dpar_shard(1), dpar_shard(0));
    wrong = h;
    wrong.outputs = &out;
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "axis 0 must cut the same dim");
    out = layout_of(&m, 2, extent, dpar_shard_by(0, DPAR_SPLIT_BLOCK_CYCLIC, 1), dpar_shard(1));
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "axis 0 must cut the same dim");
    out = layout_of(&m, 2, extent, dpar_replicate(), dpar_shard(1));
    REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "axis 0 must cut the same dim");
    { /* both axes cut dim 0, in either order, and an axis that cuts nothing */
        dpar_placement p[2];
        p[0] = p[1] = dpar_shard(0);
        h.grid = layout_of(&m, 2, extent, p[0], p[1]);
        wrong = h;
        wrong.outputs = &out;
        p[0].order = 1, p[1].order = 0;
        CHECK_INT(dpar_layout_init(&out, &m, 2, extent, p, NULL), DPAR_OK);
        REFUSED(dpar_halo_check(&wrong, &why), DPAR_E_ARG, "axis 0 must cut the same dim");
        wrong.grid = out = layout_of(&m, 2, extent, dpar_shard(0), dpar_replicate());
        CHECK_INT(dpar_halo_check(&wrong, NULL), DPAR_OK);
        h = halo_of(&m, 8);
    }
    { /* numbers of points beyond 2^63 */
        int64_t far[4];
        int32_t dims;
        far[0] = far[1] = far[2] = far[3] = INT64_C(1) << 59;
        for (dims = 3; dims <= 4; dims++) {
            wrong = h;
            wrong.grid = layout_of(&m, dims, far, dpar_shard(0), dpar_replicate());
            wrong.low[2] = wrong.high[2] = 1;
            CHECK_INT(dpar_halo_check(&wrong, NULL), DPAR_OK);
            CHECK_INT(dpar_halo_slab_points(&wrong, 0), -1);
        }
    }
    { /* outputs of a grid that has no inputs */
        dpar_box box;
        wrong = halo_of(&m, 0);
        wrong.low[0] = wrong.low[1] = wrong.high[0] = wrong.high[1] = 0;
        out = layout_of(&m, 2, extent, dpar_shard(0), dpar_shard(1));
        wrong.outputs = &out;
        CHECK_INT(dpar_halo_box(&wrong, 0, &box) ? dpar_box_volume(&box) > 0 : 0, 0);
    }
    { /* a cube whose mesh has an axis that cuts nothing */
        dpar_transfer t;
        int64_t faces[3] = {6, 4, 4};
        int64_t n = 0;
        dpar_mesh two = mesh_of("a b", 6, 2);
        wrong = cube_of(4);
        wrong.grid = layout_of(&two, 3, faces, dpar_shard(0), dpar_replicate());
        CHECK_INT(dpar_halo_first(&w, &wrong, 0, DPAR_TRANSFER_RECV, 0, NULL), DPAR_OK);
        while (dpar_halo_next(&w, &t)) {
            n += dpar_transfer_volume(&t);
        }
        CHECK_INT(n, 16); /* a row of each of four neighbours: a star */
    }
    /* a grid of no cells with windows is accepted: there is nothing to read */
    wrong = halo_of(&m, 0);
    wrong.low[0] = wrong.low[1] = wrong.high[0] = wrong.high[1] = 0;
    wrong.window[0].kernel = 3;
    CHECK_INT(dpar_halo_check(&wrong, NULL), DPAR_OK);
    /* walks */
    REFUSED(dpar_halo_first(&w, &h, 0, 2, 0, &why), DPAR_E_ARG, "direction=2");
    REFUSED(dpar_halo_first(&w, &h, 0, -1, 0, &why), DPAR_E_ARG, "direction=-1");
    REFUSED(dpar_halo_first(&w, &h, 0, 0, -1, &why), DPAR_E_ARG, "mode=-1");
    REFUSED(dpar_halo_first(&w, &h, 0, 0, 4, &why), DPAR_E_ARG, "mode=4");
    owner[1] = 0;
    wrong = h;
    wrong.owner = owner;
    REFUSED(dpar_halo_first(&w, &wrong, 0, 0, 0, &why), DPAR_E_ARG, "rank 0 owns 2 blocks");
    owner[0] = owner[1] = -1; /* any number of blocks may be masked, which is rank -1 */
    CHECK_INT(dpar_halo_first(&w, &wrong, -1, 0, 0, NULL), DPAR_OK);
    owner[0] = 0, owner[1] = 1;
    /* pairs of fields on the faces of a cube */
    u = cube_of(8);
    v = u;
    u.points[2] = DPAR_HALO_AT_LOW_FACES;
    REFUSED(dpar_halo_first(&w, &u, 0, 0, 0, &why), DPAR_E_ARG, "in pairs (u, v)");
    u.points[2] = DPAR_HALO_AT_CELLS, u.points[1] = DPAR_HALO_AT_LOW_FACES;
    REFUSED(dpar_halo_first(&w, &u, 0, 0, 0, &why), DPAR_E_ARG, "in pairs (u, v)");
    v.points[2] = DPAR_HALO_AT_LOW_FACES;
    u.partner = &v;
    CHECK_INT(dpar_halo_check(&u, NULL), DPAR_OK);
    v.window[1].kernel = 3;
    REFUSED(dpar_halo_check(&u, &why), DPAR_E_ARG, "a window, which excludes a partner");
    v.window[1].kernel = 0;
    v.periodic = 1;
    CHECK(dpar_halo_check(&u, &why) == DPAR_E_ARG);
    v.periodic = 0;
    u.window[1].kernel = 3; /* a cube may not have windows */
    REFUSED(dpar_halo_check(&u, &why), DPAR_E_ARG, "window");
}

int main(void)
{
    test_mesh();
    test_cart();
    test_split();
    test_layout();
    test_redistribute();
    test_cover();
    test_route();
    test_flat_and_heads();
    test_ulysses();
    test_context();
    test_window();
    test_halo();
    return CHECK_DONE();
}
