/* SPDX-License-Identifier: MIT-0 */
/* halo_world: a world of RANKS ranks in one process, each with an array of up to MOST points. Lists
 * of up to LISTS transfers are executed, and each point of each array is compared with the whole
 * grid by `image`, a definition without blocks that the test provides. */
#ifndef HALO_WORLD_H
#define HALO_WORLD_H

#include "axes.h"
#include "boxes.h"
#include "points.h"

/* Replaces x by the point that its value comes from and sets the number of quarter turns. Returns 0
 * if it comes from nowhere. */
static int image(const dpar_halo *h, int64_t *x, int *turn);

static inline int64_t ring(int64_t i, int64_t n)
{
    return (i % n + n) % n;
}

/* Wraps x along periodic dims. Returns 0 if it is not on the grid. */
static inline int wrapped(const dpar_halo *h, int64_t *x)
{
    int32_t d;
    for (d = 0; d < h->grid.dims; d++) {
        int64_t n = dpar_halo_points(h, d);
        x[d] = h->periodic >> d & 1u ? ring(x[d], n) : x[d];
        if (x[d] < 0 || x[d] >= n) {
            return 0;
        }
    }
    return 1;
}

static int64_t number(const dpar_halo *h, const int64_t *x)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < h->grid.dims; d++) {
        at = at * dpar_halo_points(h, d) + x[d];
    }
    return at + 1;
}

/* ---- a world in one process ------------------------------------------------------------------ */

static int64_t array[RANKS][MOST], was[RANKS][MOST];
static int arrived[RANKS][MOST], turned[RANKS][MOST];
static dpar_box held[RANKS], mine[RANKS];
static int has[RANKS], holds[RANKS];
static size_t count_of[RANKS]; /* of each array */

static void fill(const dpar_halo *h)
{
    int rank;
    for (rank = 0; rank < RANKS; rank++) {
        int64_t x[6];
        has[rank] = dpar_halo_owned(h, rank, &mine[rank]);
        holds[rank] = dpar_halo_box(h, rank, &held[rank]);
        CHECK(holds[rank] || !has[rank]);
        count_of[rank] = holds[rank] ? (size_t)dpar_box_volume(&held[rank]) : 0;
        CHECK(count_of[rank] <= MOST);
        memset(array[rank], 0, count_of[rank] * sizeof array[0][0]);
        memset(arrived[rank], 0, count_of[rank] * sizeof arrived[0][0]);
        if (has[rank]) {
            CHECK(box_contains(&held[rank], &mine[rank]));
            memcpy(x, mine[rank].lo, sizeof x);
            do {
                array[rank][at_of(&held[rank], x)] = number(h, x);
            } while (next_point(&mine[rank], x));
        }
        memcpy(was[rank], array[rank], count_of[rank] * sizeof array[0][0]);
    }
}

typedef struct entry {
    int from, to;
    dpar_transfer t;
} entry;
static entry got[LISTS], sent[LISTS];

static int list_all(const dpar_halo *h, int direction, int mode, entry *list)
{
    int rank, n = 0;
    for (rank = 0; rank < RANKS; rank++) {
        dpar_halo_cursor w;
        dpar_transfer t;
        CHECK_INT(dpar_halo_first(&w, h, rank, direction, mode, NULL), DPAR_OK);
        while (dpar_halo_next(&w, &t)) {
            CHECK(n < LISTS && t.peer >= 0 && t.peer < RANKS);
            list[n].from = direction == DPAR_TRANSFER_SEND ? rank : t.peer;
            list[n].to = direction == DPAR_TRANSFER_SEND ? t.peer : rank;
            list[n++].t = t;
        }
        CHECK(!dpar_halo_next(&w, &t));
    }
    return n;
}

/* Computes where element j (of the sender's box) of a received transfer is in the receiver's and in
 * the sender's array. */
static void places(const entry *e, const int64_t *j, int64_t *here, int64_t *there)
{
    int64_t a = 0, b = 0;
    int32_t d;
    for (d = 0; d < e->t.dims; d++) {
        int32_t s = d == e->t.swap[0] ? e->t.swap[1] : d == e->t.swap[1] ? e->t.swap[0] : d;
        int64_t k = e->t.flip >> d & 1u ? e->t.extent[s] - 1 - j[s] : j[s];
        int64_t to = held[e->to].hi[d] - held[e->to].lo[d];
        int64_t from = held[e->from].hi[d] - held[e->from].lo[d];
        CHECK(e->t.mine[d] >= 0 && e->t.mine[d] + k < to);
        CHECK(e->t.theirs[d] >= 0 && e->t.theirs[d] + j[d] < from);
        a = a * to + e->t.mine[d] + k;
        b = b * from + e->t.theirs[d] + j[d];
    }
    *here = a;
    *there = b;
}

static void deliver(const entry *list, int n)
{
    int k;
    for (k = 0; k < n; k++) {
        int64_t j[6] = {0, 0, 0, 0, 0, 0}, here, there;
        CHECK(dpar_transfer_volume(&list[k].t) > 0);
        do {
            places(&list[k], j, &here, &there);
            array[list[k].to][here] = was[list[k].from][there];
            arrived[list[k].to][here]++;
            turned[list[k].to][here] = list[k].t.turn;
        } while (next_of(&list[k].t, j));
    }
}

/* Returns 1 if a rank owns x, otherwise 0. */
static int owned(const dpar_halo *h, const int64_t *x)
{
    int rank, d, in = 0;
    for (rank = 0; rank < RANKS && !in; rank++) {
        for (d = 0, in = has[rank]; in && d < h->grid.dims; d++) {
            in = x[d] >= mine[rank].lo[d] && x[d] < mine[rank].hi[d];
        }
    }
    return in;
}

/* Checks each point of each local array. */
static void check_values(const dpar_halo *h)
{
    int rank;
    for (rank = 0; rank < RANKS; rank++) {
        int64_t x[6], from[6];
        if (!holds[rank]) {
            continue;
        }
        memcpy(x, held[rank].lo, sizeof x);
        do {
            int64_t at = at_of(&held[rank], x), expect;
            int d, outside = 0, comes, seam = 0, turn = 0;
            memcpy(from, x, sizeof from);
            for (d = 0; d < h->grid.dims; d++) {
                outside += !has[rank] || x[d] < mine[rank].lo[d] || x[d] >= mine[rank].hi[d];
            }
            comes = image(h, from, &turn) && (h->owner == NULL || owned(h, from));
            if (outside == 0) { /* only the row on a fold is written */
                seam = memcmp(from, x, (size_t)h->grid.dims * sizeof x[0]) != 0;
                CHECK_INT(arrived[rank][at], seam);
            } else {
                comes = comes && (outside == 1 || !has[rank] || h->shape == DPAR_STENCIL_BOX ||
                                  (outside == 2 && h->shape == DPAR_STENCIL_EDGES));
                CHECK_INT(arrived[rank][at], comes);
            }
            if (arrived[rank][at]) {
                CHECK_INT(turned[rank][at], turn);
            }
            expect = comes ? number(h, from) : outside == 0 ? number(h, x) : 0;
            CHECK_INT(array[rank][at], expect);
        } while (next_point(&held[rank], x));
    }
}

/* Checks that the k-th send from a to b matches the k-th receive of b from a. */
static void check_pairs(int sends, int receives)
{
    static int next[RANKS][RANKS];
    int k;
    CHECK_INT(sends, receives);
    memset(next, 0, sizeof next);
    for (k = 0; k < sends; k++) {
        int *at = &next[sent[k].from][sent[k].to];
        while (*at < receives && (got[*at].from != sent[k].from || got[*at].to != sent[k].to)) {
            ++*at;
        }
        CHECK(*at < receives);
        if (*at < receives) {
            const dpar_transfer *a = &sent[k].t, *b = &got[*at].t;
            CHECK(memcmp(a->extent, b->extent, sizeof a->extent) == 0);
            CHECK(memcmp(a->mine, b->theirs, sizeof a->mine) == 0);
            CHECK(memcmp(a->theirs, b->mine, sizeof a->mine) == 0);
            CHECK(a->flip == b->flip && a->op == b->op && a->turn == b->turn);
            CHECK(memcmp(a->swap, b->swap, sizeof a->swap) == 0);
        }
        ++*at;
    }
}

/* Checks <E x, y> = <x, E' y> with y random on all points. E' adds what halos hold to their owners
 * and then clears the halos and what E overwrote. All numbers are integers, so the equality is
 * exact. */
static void check_adjoint(const dpar_halo *h, int mode)
{
    static int64_t y[RANKS][MOST];
    static int seen[RANKS][MOST];
    int64_t left = 0, right = 0, place;
    int rank, k, n = list_all(h, DPAR_TRANSFER_RECV, mode, got);
    uint32_t r = 1;
    check_pairs(list_all(h, DPAR_TRANSFER_SEND, mode, sent), n);
    for (rank = 0; rank < RANKS; rank++) {
        /* Records the points that E writes. */
        memcpy(seen[rank], arrived[rank], count_of[rank] * sizeof arrived[0][0]);
        for (place = 0; holds[rank] && place < dpar_box_volume(&held[rank]); place++) {
            r = r * 1664525u + 1013904223u;
            y[rank][place] = (int64_t)(r >> 20) - 2048;
            /* Points that are neither owned nor written have no value. */
            y[rank][place] *= array[rank][place] != 0;
            left += array[rank][place] * y[rank][place];
        }
    }
    for (rank = 0; rank < RANKS; rank++) {
        memcpy(array[rank], y[rank], count_of[rank] * sizeof array[0][0]);
    }
    for (k = 0; k < n; k++) {
        int64_t j[6] = {0, 0, 0, 0, 0, 0}, here, there;
        CHECK_INT(got[k].t.op, DPAR_SUM);
        do {
            places(&got[k], j, &here, &there);
            array[got[k].to][here] += y[got[k].from][there];
        } while (next_of(&got[k].t, j));
    }
    for (rank = 0; rank < RANKS; rank++) {
        for (place = 0; holds[rank] && place < dpar_box_volume(&held[rank]); place++) {
            right += seen[rank][place] ? 0 : was[rank][place] * array[rank][place];
        }
    }
    CHECK_INT(left, right);
}

/* Checks core and boundary: together they are the owned points, and no stencil of the core reads
 * what is received. */
static void check_core(const dpar_halo *h)
{
    int rank, d;
    for (rank = 0; rank < RANKS; rank++) {
        dpar_box core, slab;
        int64_t points = 0, x[6];
        int n, cores;
        CHECK_INT(dpar_halo_outputs(h, rank, &core), has[rank]);
        if (!has[rank]) {
            CHECK(!dpar_halo_interior(h, rank, &core) && !dpar_halo_boundary(h, rank, 0, &slab));
            continue;
        }
        CHECK(box_contains(&mine[rank], &core) && box_contains(&core, &mine[rank]));
        cores = dpar_halo_interior(h, rank, &core);
        for (n = 0; dpar_halo_boundary(h, rank, n, &slab); n++) {
            CHECK(box_contains(&mine[rank], &slab) && dpar_box_volume(&slab) > 0);
            CHECK(!cores || !box_intersect(&core, &slab, &slab));
            CHECK(dpar_halo_boundary(h, rank, n, &slab));
            points += dpar_box_volume(&slab);
        }
        CHECK(n <= 2 * h->grid.dims);
        points += cores ? dpar_box_volume(&core) : 0;
        CHECK_INT(points, dpar_box_volume(&mine[rank]));
        if (h->shape == DPAR_STENCIL_BOX && !(h->folds && h->on_row) && h->owner == NULL &&
            !h->cube) { /* the core is the largest such box */
            int64_t most = 0;
            memcpy(x, mine[rank].lo, sizeof x);
            do {
                dpar_box reach = mine[rank];
                int64_t y[6];
                int waits = 0;
                for (d = 0; d < h->grid.dims; d++) {
                    reach.lo[d] = x[d] - h->low[d];
                    reach.hi[d] = x[d] + h->high[d] + 1;
                }
                memcpy(y, reach.lo, sizeof y);
                do {
                    waits = arrived[rank][at_of(&held[rank], y)];
                } while (!waits && next_point(&reach, y));
                most += !waits;
            } while (next_point(&mine[rank], x));
            CHECK_INT(cores ? dpar_box_volume(&core) : 0, most);
        }
        if (!cores) {
            continue;
        }
        /* the stencil's reach, cut to points that have an image */
        for (d = 0; d < h->grid.dims; d++) {
            core.lo[d] -= h->low[d];
            core.hi[d] += h->high[d];
        }
        memcpy(x, core.lo, sizeof x);
        do {
            CHECK(h->shape == DPAR_STENCIL_STAR || arrived[rank][at_of(&held[rank], x)] == 0);
        } while (next_point(&core, x));
    }
}

/* Checks slabs: each halo point (of a star: with one dim outside) is in exactly one of them, no
 * owned point is in any, and each transfer that is received outside of the owned points is in
 * one. */
static void check_slabs(const dpar_halo *h, int transfers)
{
    int rank, k;
    for (rank = 0; rank < RANKS; rank++) {
        dpar_box slab;
        int64_t x[6], points = 0;
        int n, count = 0;
        CHECK(!dpar_halo_slab(h, rank, -1, &slab));
        while (dpar_halo_slab(h, rank, count, &slab)) {
            CHECK(holds[rank] && dpar_box_volume(&slab) > 0);
            CHECK(box_contains(&held[rank], &slab));
            points += dpar_box_volume(&slab);
            count++;
        }
        CHECK(count <= 2 * h->grid.dims);
        CHECK_INT(dpar_halo_slab_points(h, rank), points);
        if (!holds[rank]) {
            continue;
        }
        memcpy(x, held[rank].lo, sizeof x);
        do {
            int outside = 0, in = 0, d;
            for (d = 0; d < h->grid.dims; d++) {
                outside += !has[rank] || x[d] < mine[rank].lo[d] || x[d] >= mine[rank].hi[d];
            }
            for (n = 0; n < count && dpar_halo_slab(h, rank, n, &slab); n++) {
                int all = 1;
                for (d = 0; d < h->grid.dims; d++) {
                    all = all && x[d] >= slab.lo[d] && x[d] < slab.hi[d];
                }
                in += all;
            }
            CHECK_INT(in, outside == 1 ||
                              (outside > 1 && (!has[rank] || h->shape != DPAR_STENCIL_STAR)));
        } while (next_point(&held[rank], x));
    }
    for (k = 0; k < transfers; k++) {
        dpar_box box, slab;
        int d, n, in = 0;
        box.dims = h->grid.dims;
        for (d = 0; d < h->grid.dims; d++) {
            const int32_t *swap = got[k].t.swap;
            int32_t s = d == swap[0] ? swap[1] : d == swap[1] ? swap[0] : d;
            box.lo[d] = held[got[k].to].lo[d] + got[k].t.mine[d];
            box.hi[d] = box.lo[d] + got[k].t.extent[s];
        }
        for (n = 0; dpar_halo_slab(h, got[k].to, n, &slab); n++) {
            in += box_contains(&slab, &box);
        }
        CHECK_INT(in, !has[got[k].to] || !box_contains(&mine[got[k].to], &box));
    }
}

static void check_halo(const dpar_halo *h)
{
    int n;
    CHECK_INT(dpar_halo_check(h, NULL), DPAR_OK);
    for (n = 0; n < h->grid.dims; n++) {
        int64_t cells = h->grid.extent[n];
        int faces = h->points[n] != DPAR_HALO_AT_CELLS && (h->periodic & 1u << n) == 0 && cells > 0;
        CHECK_INT(dpar_halo_points(h, n), cells + faces);
    }
    fill(h);
    n = list_all(h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, got);
    deliver(got, n);
    check_values(h);
    check_core(h);
    check_slabs(h, n);
    check_pairs(list_all(h, DPAR_TRANSFER_SEND, DPAR_HALO_FORWARD, sent), n);
    check_adjoint(h, DPAR_HALO_ADJOINT);
}

/* Makes a grid whose dim d is cut into parts[d] by rule[d]. */
static void grid_of(dpar_halo *h, int32_t dims, const int64_t *extent, const int32_t *parts,
                    const int32_t *rule)
{
    dpar_placement p[4];
    dpar_mesh m;
    int32_t d;
    memset(h, 0, sizeof *h);
    h->shape = DPAR_STENCIL_BOX;
    for (d = 0; d < dims; d++) {
        p[d] = dpar_shard_by(d, rule[d], 0);
    }
    CHECK_INT(dpar_mesh_init(&m, axis_names(dims), parts, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    CHECK_INT(dpar_layout_init(&h->grid, &m, dims, extent, p, NULL), DPAR_OK);
}

#endif
