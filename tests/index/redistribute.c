/* SPDX-License-Identifier: MIT-0 */
/* Tests redistribute: executes random and exhaustive pairs of layouts over all ranks and compares
 * the result with the array; vectors E1-E7 and D6-D8 of facts/index_math.md. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"
#include "random.h"
#include "index_oracle.h"
#include "transfer_totals.h"

#include <stdlib.h>

enum { RANKS = 40, MOST = 600, LISTS = 4000 };

/* ---- a world in one process ------------------------------------------------------------------ */

static int64_t before[RANKS][MOST], after[RANKS][MOST];
static int arrived[RANKS][MOST];

/* Returns the number in global index i, or the share of it that a partial rank holds: their sum is
 * i + 1. */
static int64_t value_of(int64_t global, int32_t partial, int32_t partials)
{
    return partial == 0 ? global + 1 - 100 * (partials - 1) : 100;
}

static void fill(const dpar_layout *l)
{
    int32_t rank, d;
    uint32_t partial = axes_that(l, DPAR_PLACEMENT_PARTIAL);
    for (rank = l->mesh.first_rank; rank < l->mesh.first_rank + l->mesh.size; rank++) {
        int64_t shape[6], index[6], global[6], n, run;
        dpar_layout_local(l, rank, shape, NULL);
        for (n = 0; nth(l->dims, shape, n, index); n++) {
            for (d = 0; d < l->dims; d++) {
                global[d] = dpar_layout_global(l, rank, d, index[d], &run);
            }
            before[rank][n] = value_of(at_of(l->dims, l->extent, global),
                                       dpar_mesh_group_index(&l->mesh, partial, rank),
                                       dpar_mesh_group_size(&l->mesh, partial));
        }
    }
}

static int64_t delivered;

/* Executes every receive list by reading the peers' arrays. */
static void run_receives(const dpar_layout *from, const dpar_layout *to, int32_t per_node)
{
    static dpar_redistribute_cursor w;
    dpar_transfer t;
    int32_t rank, d;
    memset(arrived, 0, sizeof arrived);
    memset(after, 0, sizeof after);
    delivered = 0;
    for (rank = 0; rank < RANKS; rank++) {
        int64_t shape[6], there[6], index[6], a[6], b[6], n;
        CHECK_INT(dpar_redistribute_first(&w, from, to, rank, DPAR_TRANSFER_RECV, per_node),
                  DPAR_OK);
        dpar_layout_local(to, rank, shape, NULL);
        while (dpar_redistribute_next(&w, &t)) {
            dpar_layout_local(from, t.peer, there, NULL);
            for (n = 0; nth(t.dims, t.extent, n, index); n++) {
                for (d = 0; d < t.dims; d++) {
                    a[d] = t.mine[d] + index[d];
                    b[d] = t.theirs[d] + index[d];
                    CHECK(a[d] < shape[d] && b[d] < there[d]);
                }
                if (t.op == DPAR_COPY) {
                    CHECK_INT(arrived[rank][at_of(t.dims, shape, a)], 0);
                    after[rank][at_of(t.dims, shape, a)] = 0;
                }
                arrived[rank][at_of(t.dims, shape, a)]++;
                after[rank][at_of(t.dims, shape, a)] += before[t.peer][at_of(t.dims, there, b)];
                delivered++;
            }
        }
    }
}

/* Returns 1 if the rank receives: it has coordinate 0 in all partial axes that only `to` has. */
static int receives(const dpar_layout *from, const dpar_layout *to, int32_t rank)
{
    int32_t i;
    for (i = 0; i < to->mesh.axes; i++) {
        int stays = i < from->mesh.axes && from->axis[i].kind == DPAR_PLACEMENT_PARTIAL;
        if (to->axis[i].kind == DPAR_PLACEMENT_PARTIAL && !stays &&
            mesh_coord(&to->mesh, rank, i) > 0) {
            return 0;
        }
    }
    return 1;
}

static void check_result(const dpar_layout *from, const dpar_layout *to)
{
    uint32_t was = axes_that(from, DPAR_PLACEMENT_PARTIAL), stays = 0;
    int32_t rank, d, i, times;
    for (i = 0; i < to->mesh.axes; i++) {
        stays |= to->axis[i].kind == DPAR_PLACEMENT_PARTIAL ? was & 1u << i : 0;
    }
    times = dpar_mesh_group_size(&from->mesh, was & ~stays);
    for (rank = to->mesh.first_rank; rank < to->mesh.first_rank + to->mesh.size; rank++) {
        int64_t shape[6], index[6], global[6], n, run;
        dpar_layout_local(to, rank, shape, NULL);
        for (n = 0; nth(to->dims, shape, n, index); n++) {
            int64_t expect;
            for (d = 0; d < to->dims; d++) {
                global[d] = dpar_layout_global(to, rank, d, index[d], &run);
            }
            if (!receives(from, to, rank)) {
                CHECK_INT(arrived[rank][n], 0);
                continue;
            }
            CHECK_INT(arrived[rank][n], times);
            expect = at_of(to->dims, to->extent, global) + 1;
            if (stays != 0) { /* the sum over the reduced axes only */
                int32_t whole = dpar_mesh_group_size(&from->mesh, was);
                expect = dpar_mesh_group_index(&from->mesh, stays, rank) == 0
                             ? expect - 100 * (whole - times)
                             : 100 * times;
            }
            CHECK_INT(after[rank][n], expect);
        }
    }
}

typedef struct entry {
    int32_t from, to;
    dpar_transfer t;
} entry;
static entry sent[LISTS], got[LISTS];

static int list_all(const dpar_layout *from, const dpar_layout *to, int32_t per_node, int direction,
                    entry *list)
{
    static dpar_redistribute_cursor w;
    int32_t rank, n = 0;
    for (rank = 0; rank < RANKS; rank++) {
        CHECK_INT(dpar_redistribute_first(&w, from, to, rank, direction, per_node), DPAR_OK);
        while (n < LISTS && dpar_redistribute_next(&w, &list[n].t)) {
            list[n].from = direction == DPAR_TRANSFER_SEND ? rank : list[n].t.peer;
            list[n].to = direction == DPAR_TRANSFER_SEND ? list[n].t.peer : rank;
            n++;
        }
    }
    return n;
}

/* Checks that the k-th send from a to b matches the k-th receive of b from a, with the sides
 * swapped. */
static void check_pairs(const dpar_layout *from, const dpar_layout *to, int32_t per_node)
{
    int n = list_all(from, to, per_node, DPAR_TRANSFER_SEND, sent), k, j;
    static char used[LISTS];
    CHECK_INT(list_all(from, to, per_node, DPAR_TRANSFER_RECV, got), n);
    if (n == LISTS) { /* too many lists to compare */
        return;
    }
    memset(used, 0, sizeof used);
    for (k = 0; k < n; k++) {
        for (j = 0; j < n; j++) {
            if (!used[j] && got[j].from == sent[k].from && got[j].to == sent[k].to) {
                break;
            }
        }
        CHECK(j < n);
        used[j] = 1;
        CHECK(memcmp(sent[k].t.extent, got[j].t.extent, sizeof got[j].t.extent) == 0);
        CHECK(memcmp(sent[k].t.mine, got[j].t.theirs, sizeof got[j].t.mine) == 0);
        CHECK(memcmp(sent[k].t.theirs, got[j].t.mine, sizeof got[j].t.mine) == 0);
        CHECK(memcmp(sent[k].t.global, got[j].t.global, sizeof got[j].t.global) == 0);
        CHECK_INT(sent[k].t.op, got[j].t.op);
    }
}

/* Checks that a receiver which holds the element takes it from itself, and that one with a copy on
 * its node takes it from there. */
static void check_near(const dpar_layout *from, int32_t per_node, int n)
{
    int k, rank;
    int32_t d;
    if (axes_that(from, DPAR_PLACEMENT_PARTIAL) != 0) {
        return;
    }
    for (k = 0; k < n; k++) {
        int here = 0, nearby = 0;
        for (rank = 0; rank < RANKS; rank++) {
            int holds = dpar_layout_count(from, rank) > 0;
            for (d = 0; d < from->dims; d++) {
                int64_t i = got[k].t.global[d], run;
                int64_t local = dpari_layout_before(from, rank, d, i);
                holds = holds && dpar_layout_global(from, rank, d, local, &run) == i;
            }
            here += holds && rank == got[k].to;
            nearby += holds && rank / per_node == got[k].to / per_node;
        }
        CHECK_INT(got[k].from == got[k].to, here);
        CHECK_INT(got[k].from / per_node == got[k].to / per_node, nearby > 0);
    }
}

static void check_move(const dpar_layout *from, const dpar_layout *to, int32_t per_node)
{
    fill(from);
    run_receives(from, to, per_node);
    check_result(from, to);
    check_pairs(from, to, per_node);
    if (per_node > 0) {
        check_near(from, per_node, list_all(from, to, per_node, DPAR_TRANSFER_RECV, got));
    }
}

/* ---- random pairs ---------------------------------------------------------------------------- */

static dpar_layout random_layout(const dpar_mesh *mesh, int32_t dims, const int64_t *extent,
                                 int partials)
{
    dpar_placement p[4];
    int32_t order[4] = {0, 1, 2, 3}, i, k;
    dpar_layout l;
    for (i = 0; i < mesh->axes; i++) {
        int what = below(8);
        p[i] = dpar_replicate();
        if (what == 0 && partials) {
            p[i] = dpar_partial(DPAR_SUM);
        } else if (what > 2 && dims > 0) {
            do {
                p[i] = dpar_shard_by(below(dims), below(3) ? 0 : below(DPAR_SPLIT_RULE_COUNT),
                                     1 + below(3));
            } while (p[i].rule == DPAR_SPLIT_RAGGED);
        }
        k = i + below(mesh->axes - i);
        { /* in random order */
            int32_t swap = order[i];
            order[i] = order[k];
            order[k] = swap;
        }
    }
    cut_in(p, mesh->axes, order);
    CHECK_INT(dpar_layout_init(&l, mesh, dims, extent, p, NULL), DPAR_OK);
    return l;
}

static dpar_mesh random_mesh(int32_t axes, int most)
{
    int32_t size[4], i, left = most;
    dpar_mesh m;
    for (i = 0; i < axes; i++) {
        size[i] = 1 + below(left < 4 ? left : 4);
        left /= size[i];
    }
    CHECK_INT(dpar_mesh_init(&m, axis_names(axes), size, below(2), 0, NULL), DPAR_OK);
    m.first_rank = below(RANKS - m.size + 1);
    return m;
}

static void test_random(void)
{
    int trial, refused = 0, done = 0;
    random_seed = 12345; /* so that the result does not depend on earlier tests */
    for (trial = 0; trial < 6000; trial++) {
        int64_t extent[3];
        int32_t dims = below(4), d, most = 9;
        dpar_mesh a, b;
        dpar_layout from, to;
        for (d = 0; d < dims; d++) {
            extent[d] = below(dims == 1 ? 40 : most);
        }
        a = random_mesh(1 + below(3), 24);
        b = below(2) ? a : random_mesh(1 + below(3), 24);
        from = random_layout(&a, dims, extent, trial % 3 == 0);
        to = random_layout(&b, dims, extent, trial % 3 == 0);
        if (dpar_redistribute_check(&from, &to, NULL) != DPAR_OK) {
            refused++;
            continue;
        }
        check_move(&from, &to, below(4));
        done++;
    }
    CHECK(done > 5000 && refused > 10);
}

/* Checks every pair of placements on a mesh of (2, 3), 1-d and 2-d, uneven. */
static void test_all_pairs(void)
{
    static const int32_t size[] = {2, 3};
    static const int64_t extent[] = {7, 5};
    int code;
    for (code = 0; code < 7 * 7 * 7 * 7; code++) {
        dpar_placement p[4];
        int rest = code, i;
        dpar_mesh m;
        dpar_layout from, to;
        for (i = 0; i < 4; i++, rest /= 7) {
            int what = rest % 7;
            p[i] = what == 0   ? dpar_replicate()
                   : what == 1 ? dpar_partial(DPAR_SUM)
                   : what < 4  ? dpar_shard(what - 2)
                   : what == 4 ? dpar_shard_by(0, DPAR_SPLIT_CYCLIC, 0)
                   : what == 5 ? dpar_shard_by(1, DPAR_SPLIT_ZIGZAG, 0)
                               : dpar_shard_by(0, DPAR_SPLIT_STRIDED, 3);
        }
        CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&from, &m, 2, extent, p, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&to, &m, 2, extent, p + 2, NULL), DPAR_OK);
        if (dpar_redistribute_check(&from, &to, NULL) == DPAR_OK) {
            check_move(&from, &to, 2);
            if (dpari_layout_same(&from, &to)) { /* equal layouts move nothing */
                dpar_redistribute_cursor w;
                transfer_totals sum;
                for (i = 0; i < 6; i++) {
                    (void)dpar_redistribute_first(&w, &from, &to, i, DPAR_TRANSFER_RECV, 0);
                    transfers_total(&w, &sum);
                    CHECK_INT(sum.away, 0);
                    CHECK_INT(sum.kept, dpar_layout_count(&to, i));
                }
            }
        }
    }
}

/* ---- vectors --------------------------------------------------------------------------------- */

static dpar_layout line(int64_t n, int32_t parts)
{
    dpar_placement p = dpar_shard(0);
    dpar_mesh m;
    dpar_layout l;
    CHECK_INT(dpar_mesh_init(&m, "a", &parts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &m, 1, &n, &p, NULL), DPAR_OK);
    return l;
}

/* Compares what a rank receives with rows of (source, first index, one past the last). */
static void receives_are(const dpar_layout *from, const dpar_layout *to, int32_t rank,
                         const int *expect, int rows)
{
    dpar_redistribute_cursor w;
    dpar_transfer t;
    int k = 0;
    CHECK_INT(dpar_redistribute_first(&w, from, to, rank, DPAR_TRANSFER_RECV, 0), DPAR_OK);
    while (dpar_redistribute_next(&w, &t) && k < rows) {
        CHECK_INT(t.peer, expect[3 * k]);
        CHECK_INT(t.global[0], expect[3 * k + 1]);
        CHECK_INT(t.global[0] + t.extent[0], expect[3 * k + 2]);
        k++;
    }
    CHECK_INT(k, rows);
    CHECK(!dpar_redistribute_next(&w, &t));
}

#define ARE(...)                                                                                   \
    (const int[])                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void test_vectors(void)
{
    dpar_layout a = line(12, 2), b = line(12, 3), c = line(10, 4), d = line(10, 3);
    dpar_layout line10 = line(10, 2), saved = line(128, 8), loaded = line(128, 4);
    dpar_redistribute_cursor w;
    dpar_transfer t;
    /* E5: intersections of CHUNK parts */
    receives_are(&a, &b, 0, ARE(0, 0, 4), 1);
    receives_are(&a, &b, 1, ARE(0, 4, 6, 1, 6, 8), 2);
    receives_are(&a, &b, 2, ARE(1, 8, 12), 1);
    receives_are(&c, &d, 0, ARE(0, 0, 3, 1, 3, 4), 2);
    receives_are(&c, &d, 1, ARE(1, 4, 6, 2, 6, 8), 2);
    receives_are(&c, &d, 2, ARE(2, 8, 9, 3, 9, 10), 2);
    /* E6, E7: Megatron's refit tiles, with adjacent ones merged; 10 over 2 to 3, which Megatron
     * refuses */
    b = line(10, 2);
    receives_are(&b, &d, 1, ARE(0, 4, 5, 1, 5, 8), 2);
    a = line(8, 4);
    b = line(8, 2);
    receives_are(&a, &b, 0, ARE(0, 0, 2, 1, 2, 4), 2);
    receives_are(&a, &b, 1, ARE(2, 4, 6, 3, 6, 8), 2);
    receives_are(&line10, &d, 0, ARE(0, 0, 4), 1);
    receives_are(&line10, &d, 2, ARE(1, 8, 10), 1);
    /* D6, D7: checkpoint reads, 128 elements from 8 ranks by 4 and of 4 by 8, rank 1 */
    receives_are(&saved, &loaded, 1, ARE(2, 32, 48, 3, 48, 64), 2);
    receives_are(&loaded, &saved, 1, ARE(0, 16, 32), 1);
    CHECK_INT(dpar_redistribute_first(&w, &loaded, &saved, 1, DPAR_TRANSFER_RECV, 0), DPAR_OK);
    CHECK(dpar_redistribute_next(&w, &t) && t.theirs[0] == 16 && t.mine[0] == 0);
}

/* Checks E1, E3, E4: DTensor's greedy planner takes 3, 3, 2, 1 and 2 collectives for these moves of
 * an 8x8x8 array on a 2x2x2 mesh; here each is one exchange in which each rank gets only what it
 * needs. */
static void test_one_exchange(void)
{
    static const int8_t from[][3] = {{0, 0, 0}, {0, 1, 0}, {0, 1, 2}, {1, 0, 0}, {0, 0, 0}};
    static const int8_t to[][3] = {{1, 1, 1}, {1, 0, 0}, {2, 1, 0}, {-1, 0, 0}, {-1, 0, 0}};
    static const int64_t extent[] = {8, 8, 8};
    static const int32_t size[] = {2, 2, 2};
    int k, i, rank;
    for (k = 0; k < 5; k++) {
        dpar_placement p[6];
        dpar_mesh m;
        dpar_layout a, b;
        for (i = 0; i < 3; i++) {
            p[i] = dpar_shard(from[k][i]);
            p[3 + i] = to[k][i] < 0 ? dpar_replicate() : dpar_shard(to[k][i]);
        }
        CHECK_INT(dpar_mesh_init(&m, "a b c", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&a, &m, 3, extent, p, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&b, &m, 3, extent, p + 3, NULL), DPAR_OK);
        check_move(&a, &b, 4);
        for (rank = 0; rank < 8; rank++) {
            dpar_redistribute_cursor w;
            transfer_totals sum;
            (void)dpar_redistribute_first(&w, &a, &b, rank, DPAR_TRANSFER_RECV, 0);
            transfers_total(&w, &sum);
            CHECK_INT(sum.kept + sum.away, dpar_layout_count(&b, rank));
            CHECK(sum.away <= dpar_layout_count(&b, rank));
        }
    }
}

/* Checks that replicas share the sending: 8 copies of an array, read by 8 ranks that hold none of
 * it. */
static void test_balance(void)
{
    static const int32_t size[] = {8};
    static const int64_t extent[] = {64, 4};
    int32_t rank, dims;
    for (dims = 0; dims < 2; dims++) {
        dpar_placement r = dpar_replicate(), s = dpar_shard(dims);
        dpar_mesh a, b;
        dpar_layout from, to;
        CHECK_INT(dpar_mesh_init(&a, "a", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        b = a;
        b.first_rank = 8;
        CHECK_INT(dpar_layout_init(&from, &a, 2, extent, &r, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&to, &b, 2, extent, dims ? &r : &s, NULL), DPAR_OK);
        for (rank = 0; rank < 8; rank++) {
            dpar_redistribute_cursor w;
            transfer_totals sum;
            (void)dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 0);
            transfers_total(&w, &sum);
            CHECK_INT(sum.transfers, 1);
            CHECK_INT(sum.away, dims ? 256 : 32);
        }
        check_move(&from, &to, DPAR_REDISTRIBUTE_PRIMARY); /* now copy 0 sends everything */
        for (rank = 0; rank < 8; rank++) {
            dpar_redistribute_cursor w;
            transfer_totals sum;
            (void)dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND,
                                          DPAR_REDISTRIBUTE_PRIMARY);
            transfers_total(&w, &sum);
            CHECK_INT(sum.transfers, rank == 0 ? 8 : 0);
        }
    }
}

/* Checks that copies send the same number of elements, whatever the boxes: R on two ranks read by
 * four with uneven cuts; and any shards and rules with other ranks as readers. A copy sends what
 * the rule of the header states: the boxes of `takers / n` receivers, and its share of one more. */
static void test_bytes(void)
{
    static const int64_t cuts[] = {0, 100, 101, 201, 202};
    int64_t elements = 202, sent[2];
    int32_t two = 2, four = 4, rank, trial;
    dpar_placement all = dpar_replicate(), uneven = dpar_shard(0);
    dpar_mesh a, b;
    dpar_layout from, to;
    dpar_redistribute_cursor w;
    transfer_totals sum;
    uneven.rule = DPAR_SPLIT_RAGGED;
    uneven.cuts = cuts;
    CHECK_INT(dpar_mesh_init(&a, "a", &two, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_mesh_init(&b, "a", &four, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    b.first_rank = 2;
    CHECK_INT(dpar_layout_init(&from, &a, 1, &elements, &all, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &b, 1, &elements, &uneven, NULL), DPAR_OK);
    check_move(&from, &to, 0);
    for (rank = 0; rank < 2; rank++) {
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 0), DPAR_OK);
        transfers_total(&w, &sum);
        sent[rank] = sum.away;
    }
    CHECK(sent[0] == 101 && sent[1] == 101);
    for (trial = 0; trial < 600; trial++) {
        int32_t copies = 1 + below(6), takers = 1 + below(7), readers = 1 + below(3), size[2];
        dpar_placement p[2];
        int64_t extent[2], most = 0, least = INT64_MAX, long_side, one, v;
        extent[0] = 1 + below(24);
        extent[1] = 1 + below(24);
        v = extent[0] * extent[1];
        size[0] = takers;
        size[1] = readers;
        p[0] = dpar_replicate();
        p[1] = dpar_shard(below(2));
        CHECK_INT(dpar_mesh_init(&a, "a", &copies, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_mesh_init(&b, "a b", size, below(2), 0, NULL), DPAR_OK);
        b.first_rank = copies;
        CHECK_INT(dpar_layout_init(&from, &a, 2, extent, &all, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&to, &b, 2, extent, p, NULL), DPAR_OK);
        for (rank = 0; rank < copies; rank++) {
            CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 0),
                      DPAR_OK);
            transfers_total(&w, &sum);
            most = sum.away > most ? sum.away : most;
            least = sum.away < least ? sum.away : least;
        }
        long_side = extent[0] >= extent[1] ? extent[0] : extent[1];
        one = takers % copies == 0 ? 0 : copies / (takers % copies);
        if (one > 0) { /* an even share along the longest dim, or at most twice that of a grid */
            int64_t slab = (long_side + one - 1) / one * (v / long_side), twice = 2 * v / one;
            one = slab > twice ? slab : twice;
            for (rank = copies; rank < copies + b.size; rank++) { /* or the box of one reader */
                v = dpar_layout_count(&to, rank);
                one = v > one ? v : one;
            }
        }
        v = extent[0] * extent[1];
        CHECK(least >= takers / copies * v && most <= takers / copies * v + one);
    }
}

/* Checks that a sender's list costs what it sends, not what its copies send: one of 2^20 copies has
 * one box. */
static void test_own_sends(void)
{
    static const int32_t many[] = {1024, 1024};
    static const int64_t extent[] = {2048, 4096};
    dpar_placement r[2], s[2];
    dpar_mesh a, b;
    dpar_layout from, to;
    dpar_redistribute_cursor w;
    transfer_totals sum;
    int32_t rank;
    int64_t total = 0;
    r[0] = r[1] = dpar_replicate();
    s[0] = dpar_shard(0);
    s[1] = dpar_shard(1);
    CHECK_INT(dpar_mesh_init(&a, "a b", many, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    b = a;
    b.first_rank = 1 << 20;
    CHECK_INT(dpar_layout_init(&from, &a, 2, extent, r, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &b, 2, extent, s, NULL), DPAR_OK);
    for (rank = 0; rank < 1 << 20;
         rank += 1009) { /* would take two minutes with all boxes of the copies */
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 8), DPAR_OK);
        transfers_total(&w, &sum);
        CHECK(sum.transfers > 0 && sum.transfers <= 1024 && sum.away == 8);
        total += sum.transfers;
    }
    CHECK(total > 0);
}

static void test_refusals(void)
{
    static const int32_t size[] = {2, 2};
    static const int64_t extent[] = {4, 4}, other[] = {4, 5};
    dpar_placement p[2], q[2];
    dpar_mesh m;
    dpar_layout a, b;
    dpar_redistribute_cursor w;
    dpar_why why;
    p[0] = dpar_shard(0);
    p[1] = dpar_replicate();
    CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&a, &m, 2, extent, p, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&b, &m, 2, other, p, NULL), DPAR_OK);
    CHECK_INT(dpar_redistribute_check(&a, &b, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 1 has 4 elements before and 5 after");
    CHECK_INT(dpar_layout_init(&b, &m, 1, other, p, NULL), DPAR_OK);
    CHECK_INT(dpar_redistribute_check(&a, &b, &why), DPAR_E_ARG);
    CHECK_INT(dpar_redistribute_first(&w, &a, &a, 0, 7, 0), DPAR_E_ARG);
    CHECK_INT(dpar_redistribute_first(&w, &a, &a, 0, DPAR_TRANSFER_SEND, -2), DPAR_E_ARG);
    CHECK_INT(dpar_redistribute_first(&w, &a, &a, 0, DPAR_TRANSFER_SEND, DPAR_REDISTRIBUTE_PRIMARY),
              DPAR_OK);
    q[0] = dpar_partial(DPAR_MAX);
    q[1] = dpar_partial(DPAR_SUM);
    CHECK_INT(dpar_layout_init(&b, &m, 2, extent, q, NULL), DPAR_OK);
    CHECK_INT(dpar_redistribute_check(&a, &b, &why), DPAR_E_ARG); /* a maximum cannot begin */
    CHECK_INT(dpar_redistribute_check(&b, &a, &why), DPAR_E_ARG); /* two that do not commute */
    CHECK_TEXT(why.text, "axis 1 is partial by op 1, another by op 4: reduce one at a time");
}

static dpar_layout one_axis(int32_t ranks, int32_t offset, dpar_placement p)
{
    static const int64_t extent[] = {24, 7};
    dpar_mesh m;
    dpar_layout l;
    CHECK_INT(dpar_mesh_init(&m, "a", &ranks, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    m.first_rank = offset;
    CHECK_INT(dpar_layout_init(&l, &m, 2, extent, &p, NULL), DPAR_OK);
    return l;
}

/* Checks that a Partial axis may stay only if it is unchanged: the same operation and ranks. */
static void test_partial_stays(void)
{
    dpar_layout p = one_axis(4, 0, dpar_partial(DPAR_SUM)), q = p, r;
    CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_OK);
    q = one_axis(4, 0, dpar_partial(DPAR_MAX));
    CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_redistribute_check(&q, &q, NULL), DPAR_OK);
    CHECK_INT(dpar_redistribute_check(&q, &p, NULL), DPAR_E_ARG);
    q = one_axis(4, 4, dpar_partial(DPAR_SUM));
    CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_E_ARG);
    q = one_axis(2, 0, dpar_partial(DPAR_SUM));
    CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_E_ARG);
    q = p;
    q.mesh.axis[0].stride = 2;
    CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_E_ARG);
    q = p;
    q.extent[0] = 25; /* the first dim */
    CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_E_ARG);
    r = one_axis(4, 0, dpar_replicate());
    CHECK_INT(dpar_redistribute_check(&p, &r, NULL), DPAR_OK);
    CHECK_INT(dpar_redistribute_check(&r, &p, NULL), DPAR_OK); /* a sum that begins */
    q = one_axis(1, 0, dpar_partial(DPAR_MAX));                /* one rank needs no reduction */
    r = one_axis(1, 0, dpar_shard(0));
    CHECK_INT(dpar_redistribute_check(&q, &r, NULL), DPAR_OK);
    {
        static const int32_t size[] = {4, 1};
        static const int64_t extent[] = {24, 7};
        dpar_placement how[2];
        dpar_mesh m;
        how[0] = dpar_partial(DPAR_SUM);
        how[1] = dpar_replicate();
        CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&q, &m, 2, extent, how, NULL), DPAR_OK);
        CHECK_INT(dpar_redistribute_check(&p, &q, NULL), DPAR_E_ARG); /* not the same mesh */
        how[1] = dpar_partial(DPAR_MAX); /* on one rank there is nothing to combine */
        CHECK_INT(dpar_layout_init(&q, &m, 2, extent, how, NULL), DPAR_OK);
        r = one_axis(4, 0, dpar_shard(0));
        CHECK_INT(dpar_redistribute_check(&q, &r, NULL), DPAR_OK);
        {
            dpar_redistribute_cursor w;
            dpar_transfer t;
            int k;
            CHECK_INT(dpar_redistribute_first(&w, &q, &r, 1, DPAR_TRANSFER_RECV, 0), DPAR_OK);
            for (k = 0; dpar_redistribute_next(&w, &t); k++) {
                CHECK_INT(t.op, k == 0 ? DPAR_COPY : DPAR_SUM);
            }
            CHECK_INT(k, 4);
        }
        r = q; /* a sum stays and a maximum is reduced, which do not commute */
        r.axis[1] = dpar_replicate();
        q.mesh.axis[1].size = r.mesh.axis[1].size = 2;
        CHECK_INT(dpar_redistribute_check(&q, &r, NULL), DPAR_OK);
        r.axis[0] = dpar_replicate();
        CHECK_INT(dpar_redistribute_check(&q, &r, NULL), DPAR_E_ARG);
    }
}

/* Checks meshes whose ranks do not ascend: 0 2 4 3 5 7. Every element still arrives once, with
 * nodes or without. */
static void test_crossed(void)
{
    static const int32_t sizes[2][2] = {{2, 3}, {3, 2}};
    static const int64_t extent[] = {12, 5};
    int code, node, turn;
    for (code = 0; code < 162; code++) {
        const int32_t *size = sizes[code / 81];
        dpar_placement p[4];
        dpar_mesh m, k;
        dpar_layout a, b;
        int i, left = code % 81;
        for (i = 0; i < 4; i++, left /= 3) {
            p[i] = left % 3 < 2 ? dpar_shard(left % 3) : dpar_replicate();
        }
        CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        k = m;
        m.axis[0].stride = size[1];
        m.axis[1].stride = size[0];
        CHECK(dpari_mesh_injective(&m));
        k.first_rank = 3;
        CHECK_INT(dpar_layout_init(&a, &m, 2, extent, p, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&b, &k, 2, extent, p + 2, NULL), DPAR_OK);
        for (node = 0; node <= 4; node += 2) {
            for (turn = 0; turn < 2; turn++) {
                const dpar_layout *from = turn ? &b : &a, *to = turn ? &a : &b;
                int32_t rank;
                memset(before, 0, sizeof before);
                for (rank = 0; rank < RANKS; rank++) { /* fill() needs consecutive ranks */
                    int64_t shape[6], index[6], global[6], n, run;
                    int32_t d;
                    dpar_layout_local(from, rank, shape, NULL);
                    for (n = 0; nth(2, shape, n, index); n++) {
                        for (d = 0; d < 2; d++) {
                            global[d] = dpar_layout_global(from, rank, d, index[d], &run);
                        }
                        before[rank][n] = at_of(2, extent, global) + 1;
                    }
                }
                run_receives(from, to, node);
                for (rank = 0; rank < RANKS; rank++) {
                    int64_t shape[6], index[6], global[6], n, run;
                    int32_t d;
                    dpar_layout_local(to, rank, shape, NULL);
                    for (n = 0; nth(2, shape, n, index); n++) {
                        for (d = 0; d < 2; d++) {
                            global[d] = dpar_layout_global(to, rank, d, index[d], &run);
                        }
                        CHECK_INT(after[rank][n], at_of(2, extent, global) + 1);
                        CHECK_INT(arrived[rank][n], 1);
                    }
                }
                check_pairs(from, to, node);
            }
        }
    }
}

/* Checks the totals of a walk by kind: 4 shards to the same in reverse, nodes of 2, ranks 1 to
 * 4. */
static void test_totals(void)
{
    dpar_layout from = one_axis(4, 0, dpar_shard(0)), to = one_axis(4, 1, dpar_shard(0));
    static const int64_t expect[][3] = {{0, 42, 0}, {0, 0, 42}, {0, 42, 0}, {0, 0, 42}};
    dpar_redistribute_cursor w;
    transfer_totals sum;
    int32_t rank, node;
    for (rank = 1; rank <= 4; rank++) { /* rank takes what rank - 1 has: 6 rows of 7 */
        for (node = 0; node <= 2; node += 2) {
            const int64_t *e = expect[rank - 1];
            CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_RECV, node),
                      DPAR_OK);
            transfers_total(&w, &sum);
            CHECK_INT(sum.transfers, 1);
            CHECK_INT(sum.kept, 0);
            CHECK_INT(sum.near_by, node ? e[1] : 0);
            CHECK_INT(sum.away, node ? e[2] : 42);
        }
    }
    CHECK_INT(dpar_redistribute_first(&w, &from, &from, 2, DPAR_TRANSFER_RECV, 2), DPAR_OK);
    transfers_total(&w, &sum);
    CHECK(sum.kept == 42 && sum.near_by == 0 && sum.away == 0);
    CHECK_INT(dpar_redistribute_first(&w, &from, &to, 0, DPAR_TRANSFER_RECV, 2), DPAR_OK);
    transfers_total(&w, &sum); /* rank 0 is not in `to` */
    CHECK(sum.transfers == 0 && sum.kept == 0 && sum.near_by == 0 && sum.away == 0);
}

/* Checks that copies 0..3 of a shard, on ranks such as 0, 2, 4, 6, serve their nodes first, in
 * turns, so that in a node no rank sends more than one transfer more than another. */
static void test_node_balance(void)
{
    static const int32_t size[] = {4, 2};
    static const int64_t extent[] = {24, 7};
    dpar_placement p[2];
    dpar_mesh m;
    dpar_layout from, to = one_axis(8, 8, dpar_shard(0));
    int32_t rank, order, node;
    for (order = 0; order < 2; order++) {
        for (node = 0; node <= 16; node += 4) {
            int64_t most = 0, least = 99, all = 0;
            dpar_redistribute_cursor w;
            p[0] = dpar_replicate();
            p[1] = dpar_shard(0);
            CHECK_INT(dpar_mesh_init(&m, "a b", size, order, 0, NULL), DPAR_OK);
            CHECK_INT(dpar_layout_init(&from, &m, 2, extent, p, NULL), DPAR_OK);
            for (rank = 0; rank < 8; rank++) {
                transfer_totals sum;
                CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, node),
                          DPAR_OK);
                transfers_total(&w, &sum);
                most = sum.transfers > most ? sum.transfers : most;
                least = sum.transfers < least ? sum.transfers : least;
                all += sum.transfers;
            }
            CHECK(all == 8 && most == 1 && least == 1); /* each copy serves one reader */
        }
    }
}

/* Makes shards and copies of one array on at most 16 ranks from `offset` on; returns 0 if there
 * would be more. */
static int some_shards(dpar_layout *l, int32_t offset)
{
    static const int64_t extent[] = {32, 16};
    dpar_placement p[3];
    dpar_mesh m;
    int32_t size[3], dim, i;
    for (i = 0; i < 3; i++) {
        size[i] = 1 << below(3);
        dim = below(3);
        p[i] = dim < 2 ? dpar_shard(dim) : dpar_replicate();
    }
    if (size[0] * size[1] * size[2] > 16) {
        return 0;
    }
    CHECK_INT(dpar_mesh_init(&m, "a b c", size, below(2), 0, NULL), DPAR_OK);
    m.first_rank = offset;
    CHECK_INT(dpar_layout_init(l, &m, 2, extent, p, NULL), DPAR_OK);
    return 1;
}

/* Checks that copies share the sending: for each shard of the source, on other ranks than the
 * readers, no copy sends two boxes more than another. */
static void test_shares(void)
{
    int trial;
    for (trial = 0; trial < 400; trial++) {
        int32_t rank, group;
        int64_t sent_by[RANKS];
        dpar_layout from, to;
        if (!some_shards(&from, 0) || !some_shards(&to, 20)) {
            continue;
        }
        for (rank = 0; rank < from.mesh.size; rank++) {
            static dpar_redistribute_cursor w;
            transfer_totals sum;
            CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 0),
                      DPAR_OK);
            transfers_total(&w, &sum);
            sent_by[rank] = sum.transfers;
        }
        for (rank = 0; rank < from.mesh.size; rank++) {
            uint32_t free_axes = axes_that(&from, DPAR_PLACEMENT_REPLICATE);
            for (group = 0; group < dpar_mesh_group_size(&from.mesh, free_axes); group++) {
                int32_t other = dpar_mesh_group_member(&from.mesh, free_axes, rank, group);
                CHECK(sent_by[rank] - sent_by[other] <= 1);
            }
        }
    }
}

/* Checks copies for readers that cut evenly, with one copy per reader: each box arrives whole, and
 * each copy sends one, for all dims and proportions. */
static void test_whole_boxes(void)
{
    static const int32_t cuts[][3] = {{8, 2, 1}, {2, 4, 2}, {1, 1, 16}, {3, 5, 1}, {4, 1, 4}};
    size_t k;
    for (k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
        int32_t n = cuts[k][0] * cuts[k][1] * cuts[k][2], rank, d, i;
        const int64_t extent[] = {120, 120, 80};
        dpar_placement p[3];
        dpar_mesh m, readers;
        dpar_layout from, to;
        p[0] = dpar_replicate();
        CHECK_INT(dpar_mesh_init(&m, "a", &n, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&from, &m, 3, extent, p, NULL), DPAR_OK);
        for (d = 0; d < 3; d++) {
            p[d] = dpar_shard(d);
        }
        CHECK_INT(dpar_mesh_init(&readers, "a b c", cuts[k], DPAR_ORDER_LAST_FASTEST, 0, NULL),
                  DPAR_OK);
        readers.first_rank = 100;
        CHECK_INT(dpar_layout_init(&to, &readers, 3, extent, p, NULL), DPAR_OK);
        for (rank = 0; rank < n; rank++) {
            for (i = 0; i < 2; i++) {
                static dpar_redistribute_cursor w;
                transfer_totals sum;
                CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank + (i ? 0 : 100),
                                                  i ? DPAR_TRANSFER_SEND : DPAR_TRANSFER_RECV, 0),
                          DPAR_OK);
                transfers_total(&w, &sum);
                CHECK_INT(sum.transfers, 1);
                CHECK_INT(sum.away, 120 * 120 * 80 / n);
            }
        }
    }
}

/* Checks readers whose rows do not divide evenly: boxes are not cut if there is a copy for each;
 * few are cut if the numbers of copies and readers differ, and no copy sends more than two
 * boxes. */
static void test_uneven_rows(void)
{
    static const struct {
        int32_t copies, shards, readers; /* [copies R, shards S0] to others [readers S0] */
        int64_t rows, columns, pieces;
    } c[] = {{64, 1, 64, 1000, 4096, 63}, /* CHUNK: 62 of 16 rows, one of 8 */
             {1024, 1, 1024, 1000, 2048, 1000},
             {48, 1, 48, 11008, 4096, 48},
             {2, 1, 2, 127, 200, 2},
             {64, 1, 48, 11008, 4096, 64 + 48},
             {16, 64, 1024, 50257, 4096, 1006 + 64 + 16}, /* 50 rows per reader, 786 per shard */
             {16, 64, 1024, 128256, 4096, 1018 + 64 + 16},
             {8, 1, 5, 1000, 100, 8 + 5}};
    size_t k;
    for (k = 0; k < sizeof c / sizeof c[0]; k++) {
        int32_t size[2], i, rank;
        int64_t extent[2], pieces = 0, moved = 0, most = 0;
        dpar_placement p[2];
        dpar_mesh m;
        dpar_layout from, to;
        static dpar_redistribute_cursor w;
        transfer_totals sum;
        size[0] = c[k].copies;
        size[1] = c[k].shards;
        extent[0] = c[k].rows;
        extent[1] = c[k].columns;
        p[0] = dpar_replicate();
        p[1] = dpar_shard(0);
        CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&from, &m, 2, extent, p, NULL), DPAR_OK);
        CHECK_INT(dpar_mesh_init(&m, "a", &c[k].readers, DPAR_ORDER_LAST_FASTEST, 0, NULL),
                  DPAR_OK);
        m.first_rank = 5000;
        CHECK_INT(dpar_layout_init(&to, &m, 2, extent, p + 1, NULL), DPAR_OK);
        for (i = 0; i < 2; i++) {
            for (rank = 0; rank < (i ? from : to).mesh.size; rank++) {
                CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank + (i ? 0 : 5000),
                                                  i ? DPAR_TRANSFER_SEND : DPAR_TRANSFER_RECV, 0),
                          DPAR_OK);
                transfers_total(&w, &sum);
                pieces += i ? sum.transfers : 0;
                moved += i ? 0 : sum.away;
                most = i && sum.away > most ? sum.away : most;
            }
        }
        CHECK_INT(moved, c[k].rows * c[k].columns);
        CHECK(pieces <= c[k].pieces);
        CHECK(most <= 2 * ((c[k].rows + c[k].readers - 1) / c[k].readers) * c[k].columns);
    }
}

/* Checks an all-gather inside nodes, and copies to copies: a rank that has a box keeps it, and the
 * others are served by as many as possible, so that each rank sends the same amount. */
static void test_holders_aside(void)
{
    static const int32_t sizes[][2] = {{4, 2}, {16, 2}, {8, 8}, {8, 4}, {2, 2}, {3, 3}};
    static const int64_t extent[] = {192, 10};
    size_t k;
    for (k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        dpar_placement p[2];
        dpar_mesh m;
        dpar_layout from, to;
        int32_t rank, n = sizes[k][0] * sizes[k][1], per_node;
        p[0] = dpar_replicate();
        p[1] = dpar_shard(0);
        CHECK_INT(dpar_mesh_init(&m, "a b", sizes[k], DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&from, &m, 2, extent, p, NULL), DPAR_OK);
        p[1] = dpar_replicate();
        CHECK_INT(dpar_layout_init(&to, &m, 2, extent, p, NULL), DPAR_OK);
        for (per_node = 0; per_node <= (n % 8 == 0 ? 8 : 0); per_node += 8) {
            for (rank = 0; rank < n; rank++) {
                static dpar_redistribute_cursor w;
                transfer_totals sum;
                CHECK_INT(
                    dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, per_node),
                    DPAR_OK);
                transfers_total(&w, &sum);
                CHECK_INT(sum.near_by + sum.away, (sizes[k][1] - 1) * 1920 / sizes[k][1]);
            }
        }
    }
}

/* Checks that a sender's list costs what the ranks of its node take, however scattered that is in
 * what it holds: 2^17 copies of 8 shards of 2^24 rows, dealt one by one to 2^20 ranks, and the same
 * on one mesh (nothing moves). Walking through what is held would take 2^21 boxes per rank of the
 * node. */
static void test_scattered_sends(void)
{
    static const int32_t many[] = {131072, 8}, square[] = {1024, 1024};
    static const int32_t rules[] = {DPAR_SPLIT_CYCLIC, DPAR_SPLIT_STRIDED, DPAR_SPLIT_ZIGZAG,
                                    DPAR_SPLIT_BLOCK_CYCLIC};
    int64_t rows = 1 << 24;
    int32_t k, rank;
    for (k = 0; k < 4; k++) {
        dpar_placement p[2];
        dpar_mesh m;
        dpar_layout from, to;
        static dpar_redistribute_cursor w;
        transfer_totals sum;
        int32_t all = 1 << 20;
        p[0] = dpar_replicate();
        p[1] = dpar_shard(0);
        CHECK_INT(dpar_mesh_init(&m, "a b", many, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&from, &m, 1, &rows, p, NULL), DPAR_OK);
        CHECK_INT(dpar_mesh_init(&m, "a", &all, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        p[0] = dpar_shard_by(0, rules[k], rules[k] == DPAR_SPLIT_BLOCK_CYCLIC ? 4 : 8);
        CHECK_INT(dpar_layout_init(&to, &m, 1, &rows, p, NULL), DPAR_OK);
        for (rank = 4320; rank < 4328; rank++) { /* a node: it has every shard once */
            int64_t there = 0, here;
            int32_t q;
            CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 8),
                      DPAR_OK);
            transfers_total(&w, &sum);
            here = sum.kept + sum.near_by;
            CHECK_INT(sum.away, 0);
            for (q = 4320; q < 4328; q++) { /* what its ranks report that they get from it */
                dpar_transfer t;
                CHECK_INT(dpar_redistribute_first(&w, &from, &to, q, DPAR_TRANSFER_RECV, 8),
                          DPAR_OK);
                while (dpar_redistribute_next(&w, &t)) {
                    there += t.peer == rank ? t.extent[0] : 0;
                }
            }
            CHECK_INT(here, there);
        }
        CHECK_INT(dpar_mesh_init(&m, "a b", square, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        p[1] = p[0];
        p[0] = dpar_shard(0);
        CHECK_INT(dpar_layout_init(&to, &m, 1, &rows, p, NULL), DPAR_OK);
        p[1] = dpar_replicate();
        CHECK_INT(dpar_layout_init(&from, &m, 1, &rows, p, NULL), DPAR_OK);
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, 4321, DPAR_TRANSFER_SEND, 0), DPAR_OK);
        transfers_total(&w, &sum);
        CHECK_INT(sum.kept, dpar_layout_count(&to, 4321));
        CHECK_INT(sum.away, 0);
    }
}

/* Checks more copies than elements: 12 copies of 2 x 4 elements, one reader for each quarter. The
 * readers' cuts make 2 x 2 parts and leave 3 shares each, but a part has only 2 indices along dim
 * 1: 2 x 4 parts of one element, for copies 0 to 7; the other copies send nothing. */
static void test_few_elements(void)
{
    static const int64_t extent[] = {2, 4};
    static const int32_t cuts[] = {2, 2};
    int32_t copies = 12, rank;
    dpar_placement p[2];
    dpar_mesh m, readers;
    dpar_layout from, to;
    p[0] = dpar_replicate();
    CHECK_INT(dpar_mesh_init(&m, "a", &copies, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&from, &m, 2, extent, p, NULL), DPAR_OK);
    p[0] = dpar_shard(0);
    p[1] = dpar_shard(1);
    CHECK_INT(dpar_mesh_init(&readers, "a b", cuts, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    readers.first_rank = copies;
    CHECK_INT(dpar_layout_init(&to, &readers, 2, extent, p, NULL), DPAR_OK);
    check_move(&from, &to, 0);
    for (rank = 0; rank < copies; rank++) {
        dpar_redistribute_cursor w;
        dpar_transfer t;
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 0), DPAR_OK);
        CHECK_INT(dpar_redistribute_next(&w, &t), rank < 8);
        if (rank < 8) {
            CHECK(t.extent[0] == 1 && t.global[0] == rank / 4);
            CHECK(t.extent[1] == 1 && t.global[1] == rank % 4);
            CHECK(!dpar_redistribute_next(&w, &t));
        }
    }
}

/* Checks the largest number of readers, a prime n: their cuts have no divisor in common with 3
 * copies, so each copy has a third of the 3 n elements, n of them, and reader q of 3 takes from
 * copy 3 q / n. */
static void test_most_readers(void)
{
    int32_t copies = 3, n = INT32_MAX, k;
    int64_t extent = 3 * (int64_t)n;
    dpar_placement p = dpar_replicate();
    dpar_mesh m;
    dpar_layout from, to;
    CHECK_INT(dpar_mesh_init(&m, "a", &copies, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&from, &m, 1, &extent, &p, NULL), DPAR_OK);
    p = dpar_shard(0);
    CHECK_INT(dpar_mesh_init(&m, "a", &n, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &m, 1, &extent, &p, NULL), DPAR_OK);
    for (k = 1; k < 6; k++) { /* the middle of the sixths */
        int32_t q = n / 12 + n / 6 * k;
        int64_t peer = 3 * (int64_t)q / n;
        dpar_redistribute_cursor w;
        dpar_transfer t;
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, q, DPAR_TRANSFER_RECV, 0), DPAR_OK);
        CHECK(dpar_redistribute_next(&w, &t));
        CHECK_INT(t.peer, peer);
        CHECK(t.extent[0] == 3 && t.global[0] == 3 * (int64_t)q && t.theirs[0] == t.global[0]);
        CHECK(!dpar_redistribute_next(&w, &t));
    }
}

/* Checks the largest number of copies, an odd number n, for two readers of 8 elements: reader r has
 * the units [r n, r n + n) of a line of which copy c has [2 c, 2 c + 2). Element x is in the last
 * copy that begins before unit (x + 1) n / 8 of the box. */
static void test_most_copies(void)
{
    int32_t copies = INT32_MAX - 2, readers = 2, r, x;
    int64_t extent = 8, n = copies;
    dpar_placement p = dpar_replicate();
    dpar_mesh m;
    dpar_layout from, to;
    CHECK_INT(dpar_mesh_init(&m, "a", &readers, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&to, &m, 1, &extent, &p, NULL), DPAR_OK);
    CHECK_INT(dpar_mesh_init(&m, "a", &copies, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    m.first_rank = 2;
    CHECK_INT(dpar_layout_init(&from, &m, 1, &extent, &p, NULL), DPAR_OK);
    for (r = 0; r < readers; r++) {
        dpar_redistribute_cursor w, sender;
        dpar_transfer t, s;
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, r, DPAR_TRANSFER_RECV, 0), DPAR_OK);
        for (x = 0; x < 8; x++) {
            int64_t last = r * n + ((x + 1) * n + 7) / 8 - 1; /* the unit before that one */
            CHECK(dpar_redistribute_next(&w, &t));
            CHECK_INT(t.peer, 2 + last / 2);
            CHECK(t.global[0] == x && t.extent[0] == 1);
            CHECK_INT(dpar_redistribute_first(&sender, &from, &to, t.peer, DPAR_TRANSFER_SEND, 0),
                      DPAR_OK);
            CHECK(dpar_redistribute_next(&sender, &s));
            CHECK(s.peer == r && s.global[0] == x && s.extent[0] == 1);
            CHECK(!dpar_redistribute_next(&sender, &s));
        }
        CHECK(!dpar_redistribute_next(&w, &t));
    }
}

/* Checks boxes of 2^80 elements, more than can be counted, sent to ranks of the node: same as those
 * of 4 x 4. */
static void test_beyond_counting(void)
{
    static const int64_t small[] = {4, 4}, large[] = {INT64_C(1) << 42, INT64_C(1) << 42};
    int32_t ranks = 4, rank, d;
    dpar_placement held = dpar_replicate(), cut = dpar_shard(0);
    dpar_layout from[2], to[2];
    dpar_mesh m;
    CHECK_INT(dpar_mesh_init(&m, "a", &ranks, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    for (d = 0; d < 2; d++) {
        CHECK_INT(dpar_layout_init(&from[d], &m, 2, d ? large : small, &held, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&to[d], &m, 2, d ? large : small, &cut, NULL), DPAR_OK);
    }
    for (rank = 0; rank < ranks; rank++) {
        static dpar_redistribute_cursor a, b;
        dpar_transfer t, u;
        int lists = 0;
        CHECK_INT(dpar_redistribute_first(&a, &from[0], &to[0], rank, DPAR_TRANSFER_SEND, 4),
                  DPAR_OK);
        CHECK_INT(dpar_redistribute_first(&b, &from[1], &to[1], rank, DPAR_TRANSFER_SEND, 4),
                  DPAR_OK);
        for (; dpar_redistribute_next(&a, &t); lists++) {
            CHECK(dpar_redistribute_next(&b, &u));
            CHECK_INT(u.peer, t.peer);
            for (d = 0; d < 2; d++) {
                CHECK_INT(u.extent[d], t.extent[d] << 40);
                CHECK_INT(u.mine[d], t.mine[d] << 40);
                CHECK_INT(u.theirs[d], t.theirs[d] << 40);
            }
        }
        CHECK(!dpar_redistribute_next(&b, &u));
        CHECK_INT(lists, 1); /* to itself: a rank that has a box keeps it */
    }
}

/* ---- who sends, by definition ---------------------------------------------------------------- */

/* Returns 1 if the ranks of a mesh ascend when they are listed with the largest stride slowest. */
static int ascends(const dpar_mesh *m)
{
    int32_t i;
    for (i = 1; i < m->size; i++) {
        if (dpar_mesh_group_member(m, UINT32_MAX, m->first_rank, i) <=
            dpar_mesh_group_member(m, UINT32_MAX, m->first_rank, i - 1)) {
            return 0;
        }
    }
    return 1;
}

/* Returns how many parts the axes of a layout make of dim d. *rows is 2 if each has consecutive
 * indices and all nearly the same number, 1 if only consecutive, otherwise 0. */
static int32_t parts_of(const dpar_layout *l, int32_t d, int *rows)
{
    int32_t parts = 1, i;
    *rows = 2;
    for (i = 0; i < l->mesh.axes; i++) {
        if (l->axis[i].kind == DPAR_PLACEMENT_SHARD && l->axis[i].dim == d &&
            l->mesh.axis[i].size > 1) {
            int rule = l->axis[i].rule;
            parts *= l->mesh.axis[i].size;
            *rows = rule == DPAR_SPLIT_CHUNK || rule == DPAR_SPLIT_EVEN || rule == DPAR_SPLIT_FLOOR
                        ? *rows
                    : rule == DPAR_SPLIT_RAGGED ? *rows > 0
                                                : 0;
        }
    }
    *rows = parts > 1 ? *rows : 0;
    return parts;
}

/* Returns where part i of n begins when `size` indices are cut evenly, the first parts one
 * longer. */
static int64_t even_part(int64_t size, int32_t n, int32_t i)
{
    int64_t at = 0;
    int32_t k;
    for (k = 0; k < i; k++) {
        at += size / n + (k < size % n);
    }
    return at;
}

/* Returns x moved to the nearest local index of `rank` at which another part of `to` begins or the
 * array ends; of two that are equally near the later one. */
static int64_t nearest_end(const dpar_layout *from, const dpar_layout *to, int32_t rank, int32_t d,
                           int64_t size, int64_t x)
{
    int64_t best = 0, i;
    int32_t last[6], now[6], k;
    memset(last, 0, sizeof last);
    for (i = 1; i <= size; i++) {
        int64_t g[2];
        int other = i == size;
        for (k = 0; k < 2 && !other; k++) {
            g[k] = dpar_layout_global(from, rank, d, i - 1 + k, NULL);
            memset(now, 0, sizeof now);
            CHECK(dpar_layout_locate(to, d, g[k], now, NULL, NULL));
            other = k == 1 && memcmp(now, last, sizeof now) != 0;
            memcpy(last, now, sizeof now);
        }
        if (other && llabs(i - x) <= llabs(best - x)) {
            best = i;
        }
    }
    return x == 0 ? 0 : best;
}

/* Returns the dim to cut further: not yet cut for this purpose, at least 2 indices per part,
 * preferring one that `to` cuts into rows, then the one with the longest parts; -1 if none. */
static int32_t dim_to_cut(const dpar_layout *to, int32_t dims, const int64_t *shape,
                          const int32_t *outer, const int32_t *part)
{
    int32_t d, best = -1;
    int rows, best_rows = 0;
    for (d = 0; d < dims; d++) {
        (void)parts_of(to, d, &rows);
        if (part[d] == outer[d] && shape[d] / part[d] > 1 &&
            (best < 0 || (rows > 0) > best_rows ||
             ((rows > 0) == best_rows && shape[d] / part[d] > shape[best] / part[best]))) {
            best = d;
            best_rows = rows > 0;
        }
    }
    return best;
}

/* Returns which of `shares` parts of what `rank` holds contains local index x[]. A dim that `to`
 * cuts finer, into even rows, is cut where these end, into as many parts as divide both the shares
 * and the ratio of the two cuts; the remaining shares cut those parts. */
static int32_t share_of(const dpar_layout *from, const dpar_layout *to, int32_t rank,
                        int32_t shares, const int64_t *shape, const int64_t *x)
{
    int32_t outer[6], part[6], number = 0, d, i, k, finer, own, dims = from->dims;
    int rows, held;
    for (d = 0; d < dims; d++) {
        outer[d] = 1;
        own = parts_of(from, d, &held);
        finer = parts_of(to, d, &rows);
        rows = own > 1 && held == 0 ? 0 : rows; /* both sides must have rows */
        for (i = finer; i > 1; i--) {           /* by their largest common divisor */
            if (finer % i == 0 && own % i == 0) {
                finer /= i;
                break;
            }
        }
        for (i = shares; i > 1 && rows == 2; i--) {
            if (shares % i == 0 && finer % i == 0) {
                outer[d] = i;
                break;
            }
        }
        part[d] = outer[d];
        shares /= outer[d];
    }
    while (shares > 1 && (d = dim_to_cut(to, dims, shape, outer, part)) >= 0) {
        i = shares < shape[d] / outer[d] ? shares : (int32_t)(shape[d] / outer[d]);
        part[d] *= i;
        shares /= i;
    }
    for (d = 0; d < dims; d++) {
        int32_t found = 0, more = part[d] / outer[d];
        for (i = 0; i < outer[d]; i++) {
            int64_t a = even_part(shape[d], outer[d], i), b = even_part(shape[d], outer[d], i + 1);
            a = outer[d] > 1 ? nearest_end(from, to, rank, d, shape[d], a) : a;
            b = outer[d] > 1 ? nearest_end(from, to, rank, d, shape[d], b) : b;
            for (k = 0; k < more; k++) {
                int64_t at = a + even_part(b - a, more, k), end = a + even_part(b - a, more, k + 1);
                found = x[d] >= at && x[d] < end ? i * more + k : found;
            }
        }
        number = number * part[d] + found;
    }
    return number;
}

/* Returns which of n copies has local index x[] of the box of receiver `which` of the last `left`
 * ones, which do not divide the copies: the boxes form a line that is cut into n even pieces. */
static int32_t line_of(const dpar_layout *to, int32_t dims, const int64_t *shape, int32_t n,
                       int32_t left, int32_t which, const int64_t *x)
{
    static const int32_t ones[] = {1, 1, 1, 1, 1, 1};
    int32_t d = dim_to_cut(to, dims, shape, ones, ones), c, best = -1;
    for (c = 0; c < n;
         c++) { /* copy c has [c left, (c+1) left) of left n; the box n from which n */
        int64_t begin = (int64_t)c * left - (int64_t)which * n, end = begin + left;
        if (end <= 0 || begin >= n) {
            continue;
        }
        begin = begin < 0 ? 0 : begin;
        end = end > n ? n : end;
        if (d < 0 || (x[d] >= shape[d] * begin / n && x[d] < shape[d] * end / n)) {
            best = best < 0 ? c : best;
        }
    }
    return best;
}

/* Returns the rank that has to send element global[] to q by the rule of the header; -1 if no rank
 * has it. */
static int32_t sender_of(const dpar_layout *from, const dpar_layout *to, int32_t per_node,
                         int32_t q, const int64_t *global)
{
    uint32_t copies = axes_that(from, DPAR_PLACEMENT_REPLICATE),
             same = axes_that(to, DPAR_PLACEMENT_REPLICATE);
    int32_t pool[RANKS], n = 0, all, takers = 0, number = 0, left, first, d, i, r;
    int64_t shape[6], local[6], run;
    for (r = 0; r < RANKS; r++) {
        int holds = dpar_layout_count(from, r) > 0;
        for (d = 0; d < from->dims; d++) {
            local[d] = dpari_layout_before(from, r, d, global[d]);
            holds = holds && dpar_layout_global(from, r, d, local[d], &run) == global[d];
        }
        if (holds) {
            break;
        }
    }
    if (r == RANKS) {
        return -1;
    }
    dpar_layout_local(from, r, shape, NULL);
    all = dpar_mesh_group_size(&from->mesh, copies);
    if (per_node < 0) {
        return dpar_mesh_group_member(&from->mesh, copies, r, 0);
    }
    for (i = 0; i < all; i++) {
        int32_t copy = dpar_mesh_group_member(&from->mesh, copies, r, i);
        if (copy == q) {
            return q;
        }
        if (per_node > 0 && ascends(&from->mesh) && copy / per_node == q / per_node) {
            pool[n++] = copy;
        }
    }
    for (i = 0; i < dpar_mesh_group_size(&to->mesh, same); i++) {
        int32_t taker = dpar_mesh_group_member(&to->mesh, same, q, i);
        if (n == 0 || n == all || !ascends(&to->mesh) || taker / per_node == q / per_node) {
            number = taker == q ? takers : number;
            takers++;
        }
    }
    for (i = 0; i < all && n == 0; i++) {
        pool[i] = dpar_mesh_group_member(&from->mesh, copies, r, i);
    }
    n = n == 0 ? all : n;
    left = takers % n;
    if (number < takers - left) { /* one for each, a copy further per least common multiple */
        int32_t each = takers / n, common = n;
        while (common % each != 0) {
            common += n;
        }
        return pool[(number + number / common) % n];
    }
    number -= takers - left;
    if (n % left == 0) {
        first = number * (n / left);
        return pool[first + share_of(from, to, r, n / left, shape, local)];
    }
    return pool[line_of(to, from->dims, shape, n, left, number, local)];
}

/* Makes a mesh whose strides are in any order, with gaps or interleaved; its last rank is below
 * RANKS. */
static dpar_mesh scattered_mesh(void)
{
    for (;;) {
        dpar_mesh m = random_mesh(1 + below(3), 12);
        int32_t i, last = 0;
        for (i = 0; i < m.axes; i++) {
            m.axis[i].stride = below(2) ? m.axis[i].stride * (1 + below(3)) : 1 + below(9);
            last += (m.axis[i].size - 1) * m.axis[i].stride;
        }
        if (last < RANKS && dpari_mesh_injective(&m)) {
            m.first_rank = below(RANKS - last);
            return m;
        }
    }
}

/* Checks that each element arrives once and from the rank that the header names, and that both
 * sides agree. Returns how many successive boxes of one receiver have two senders. */
static int check_senders(const dpar_layout *from, const dpar_layout *to, int32_t per_node)
{
    int64_t taken[RANKS] = {0};
    int32_t rank, d;
    int n, k, shared = 0;
    check_pairs(from, to, per_node);
    n = list_all(from, to, per_node, DPAR_TRANSFER_RECV, got);
    for (k = 0; k < n && n < LISTS; k++) {
        int64_t index[6], global[6], at;
        for (at = 0; nth(to->dims, got[k].t.extent, at, index); at++) {
            for (d = 0; d < to->dims; d++) {
                global[d] = got[k].t.global[d] + index[d];
            }
            CHECK_INT(got[k].from, sender_of(from, to, per_node, got[k].to, global));
            taken[got[k].to]++;
        }
        shared += k > 0 && got[k].to == got[k - 1].to && got[k].from != got[k - 1].from;
    }
    for (rank = 0; rank < RANKS && n < LISTS; rank++) {
        CHECK_INT(taken[rank], dpar_layout_count(to, rank));
    }
    return shared;
}

/* Checks any two meshes, and nodes of any size. */
static void test_senders(void)
{
    int trial, crossed = 0, shared = 0;
    random_seed = 5; /* few of the long ones, to take 2 seconds */
    for (trial = 0; trial < 2500; trial++) {
        dpar_mesh a = scattered_mesh(), b = trial % 4 == 0 ? a : scattered_mesh();
        int32_t dims = 1 + below(2), per_node = below(14) - 1;
        int64_t extent[2];
        dpar_layout from, to;
        extent[0] = 1 + below(trial % 50 == 0 ? 400 : 9); /* long: nearly even parts as well */
        extent[1] = 1 + below(9);
        from = random_layout(&a, dims, extent, 0);
        to = random_layout(&b, dims, extent, 0);
        crossed += !ascends(&a);
        shared += check_senders(&from, &to, per_node);
    }
    CHECK(crossed > 100 && shared > 1000);
}

/* Makes `copies` of `shards` parts of n elements on the first ranks, and what `readers` ranks from
 * rank `first` on take of them. */
static void some_copies(int64_t n, int32_t copies, int32_t shards, dpar_placement held,
                        int32_t readers, int32_t first, dpar_placement taken, dpar_layout *from,
                        dpar_layout *to)
{
    int32_t size[2];
    dpar_placement p[2];
    dpar_mesh m;
    size[0] = copies;
    size[1] = shards;
    p[0] = dpar_replicate();
    p[1] = held;
    CHECK_INT(dpar_mesh_init(&m, "a b", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(from, &m, 1, &n, p, NULL), DPAR_OK);
    CHECK_INT(dpar_mesh_init(&m, "a", &readers, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    m.first_rank = first;
    CHECK_INT(dpar_layout_init(to, &m, 1, &n, &taken, NULL), DPAR_OK);
}

/* Checks shares of about as many elements as there are parts; and senders that walk through what a
 * rank of their node takes, also for rank 0, of which other senders have a part. */
static void test_small_shares(void)
{
    dpar_layout from, to;
    int32_t n, copies, shards;
    for (n = 1; n <= 30; n++) {
        for (copies = 2; copies <= 6; copies++) {
            for (shards = 1; shards <= 3; shards++) {
                dpar_placement s = dpar_shard(0);
                some_copies(n, copies, shards, s, 12, 20, s, &from, &to);
                (void)check_senders(&from, &to, 0);
                some_copies(n, copies, shards, s, 5, 20, s, &from, &to);
                (void)check_senders(&from, &to, 0);
            }
        }
        some_copies(n, 2, 2, dpar_shard_by(0, DPAR_SPLIT_CYCLIC, 0), 3, 0,
                    dpar_shard_by(0, DPAR_SPLIT_CYCLIC, 0), &from, &to);
        (void)check_senders(&from, &to, 2);
    }
}

/* Checks that senders may do that with the maximum number of axes, with the two sides cut in
 * opposite orders. */
static void test_turned_axes(void)
{
    static const int32_t size[] = {2, 2, 1, 1, 1, 1, 1, 3}, back[] = {7, 6, 5, 4, 3, 2, 1, 0};
    int64_t n = 48;
    dpar_placement p[8], q[8];
    dpar_mesh m;
    dpar_layout from, to;
    int i;
    for (i = 0; i < 8; i++) {
        p[i] = dpar_replicate();
        q[i] = dpar_replicate();
    }
    p[1] = dpar_shard_by(0, DPAR_SPLIT_CYCLIC, 0);
    q[0] = dpar_shard(0);
    q[7] = p[1];
    CHECK_INT(dpar_mesh_init(&m, "a b c d e f g h", size, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    CHECK_INT(dpar_layout_init(&from, &m, 1, &n, p, NULL), DPAR_OK);
    cut_in(q, 8, back);
    CHECK_INT(dpar_layout_init(&to, &m, 1, &n, q, NULL), DPAR_OK);
    (void)check_senders(&from, &to, 3); /* a sender has 12 elements, a taker 8 in their range */
}

/* Checks that a sender which walks through what a rank of its node takes visits only its own part:
 * of 2^34 elements, of which two readers take every other one, 2^14. All of them would take
 * minutes. */
static void test_turned_cost(void)
{
    dpar_layout from, to;
    int32_t rank;
    some_copies(INT64_C(1) << 34, 2, 1 << 20, dpar_shard(0), 2, 0,
                dpar_shard_by(0, DPAR_SPLIT_CYCLIC, 0), &from, &to);
    for (rank = 0; rank < 2; rank++) { /* its shard has no other copy on the node */
        dpar_redistribute_cursor w;
        transfer_totals sum;
        CHECK_INT(dpar_redistribute_first(&w, &from, &to, rank, DPAR_TRANSFER_SEND, 2), DPAR_OK);
        transfers_total(&w, &sum);
        CHECK_INT(sum.kept, 1 << 13);
        CHECK_INT(sum.near_by, 1 << 13);
        CHECK_INT(sum.away, 0);
        CHECK_INT(sum.transfers, 1 << 14); /* one by one */
    }
}

static void test_box(void)
{
    dpar_box a = {2, {0, 0}, {4, 4}}, b = {2, {2, 3}, {9, 9}}, c = {2, {4, 0}, {5, 5}}, out;
    dpar_box empty = {2, {7, 7}, {7, 9}}, huge = {2, {INT64_MIN, 0}, {INT64_MAX, 1}};
    CHECK_INT(dpar_box_volume(&a), 16);
    CHECK_INT(dpar_box_volume(&empty), 0);
    CHECK_INT(dpar_box_volume(&huge), -1);
    CHECK(dpari_box_intersect(&a, &b, &out));
    CHECK(out.lo[0] == 2 && out.hi[0] == 4 && out.lo[1] == 3 && out.hi[1] == 4);
    CHECK(!dpari_box_intersect(&a, &c, &out));
    CHECK(dpari_box_contains(&a, &out) && !dpari_box_contains(&a, &b) &&
          dpari_box_contains(&a, &empty));
}

int main(void)
{
    random_seed = 12345;
    test_small_shares();
    test_senders(); /* runs the test that notices most mutants first */
    test_all_pairs();
    test_random();
    test_vectors();
    test_one_exchange();
    test_balance();
    test_bytes();
    test_own_sends();
    test_refusals();
    test_partial_stays();
    test_totals();
    test_node_balance();
    test_shares();
    test_whole_boxes();
    test_uneven_rows();
    test_holders_aside();
    test_scattered_sends();
    test_few_elements();
    test_most_readers();
    test_most_copies();
    test_beyond_counting();
    test_crossed();
    test_turned_axes();
    test_turned_cost();
    test_box();
    return CHECK_DONE();
}
