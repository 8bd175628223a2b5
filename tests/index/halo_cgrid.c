/* SPDX-License-Identifier: MIT-0 */
/* Tests halo for pairs of fields on the faces of a cubed sphere's cells (C- and D-grids).
 * Identifies each point by its place on the surface of a cube in space (cube_space.h) and each
 * component by its direction there: the owner of a point at the place of a halo point owns its
 * value, and the two directions determine the sign. Run with: tests/run test index. */
#include "dpar.h"

#include "axes.h"
#include "check.h"
#include "random.h"
#include "cube_space.h"
#include "points.h"

enum { RANKS = 24, MOST = 1600, LISTS = 20000, SIDE = 6 };

/* The two fields: 0 is u, along x; 1 is v, along y. */
static dpar_halo grid[2];
static int64_t array[2][RANKS][MOST], was[2][RANKS][MOST];
static int arrived[2][RANKS][MOST];
static dpar_box held[2][RANKS], mine[2][RANKS];
static int has[RANKS];

typedef struct entry {
    int field, from, to;
    dpar_transfer t;
} entry;
static entry got[LISTS], sent[LISTS];

/* The owner of the point at a place: field, face, y, x, and the direction of the component
 * there. */
typedef struct owner {
    int count, field, direction;
    int64_t at[3];
} owner;
static owner owners[2 * SIDE + 1][2 * SIDE + 1][2 * SIDE + 1];

/* ---- who owns which place -------------------------------------------------------------------- */

static owner *owner_at(int64_t n, const int64_t *p)
{
    return &owners[p[0] + n][p[1] + n][p[2] + n];
}

/* Records the owners of both fields' n x n points of each face. No two are at one place, borders
 * included. */
static void find_owners(int64_t n)
{
    const int32_t last = grid[0].grid.dims - 1;
    int64_t x[DPAR_MAX_DIMS] = {0}, p[3];
    int field, direction;
    memset(owners, 0, sizeof owners);
    for (field = 0; field < 2; field++) {
        for (x[0] = 0; x[0] < 6; x[0]++) {
            for (x[last - 1] = 0; x[last - 1] < n; x[last - 1]++) {
                for (x[last] = 0; x[last] < n; x[last]++) {
                    owner *o;
                    CHECK(cube_position(&grid[field], field, x, p, &direction));
                    o = owner_at(n, p);
                    CHECK_INT(o->count++, 0);
                    o->field = field;
                    o->direction = direction;
                    o->at[0] = x[0];
                    o->at[1] = x[last - 1];
                    o->at[2] = x[last];
                }
            }
        }
    }
}

/* Replaces the field and x by the field and point whose value appears at x. Returns 0 if there is
 * none. */
static int image(int64_t n, int *field, int64_t *x, int *sign)
{
    const dpar_halo *h = &grid[*field];
    const int32_t last = h->grid.dims - 1;
    const owner *o;
    int64_t p[3];
    int32_t d;
    int direction;
    for (d = 1; d < last - 1; d++) { /* levels */
        int64_t points = dpar_halo_points(h, d);
        x[d] = h->periodic >> d & 1u ? (x[d] % points + points) % points : x[d];
        if (x[d] < 0 || x[d] >= points) {
            return 0;
        }
    }
    if (!cube_position(h, *field, x, p, &direction)) {
        return 0;
    }
    o = owner_at(n, p);
    CHECK_INT(o->count, 1);
    if (o->count != 1) {
        return 0;
    }
    CHECK(direction == o->direction || direction == -o->direction);
    *sign = direction == o->direction ? 1 : -1;
    *field = o->field;
    x[0] = o->at[0];
    x[last - 1] = o->at[1];
    x[last] = o->at[2];
    return 1;
}

/* ---- both fields on all ranks ---------------------------------------------------------------- */

static int64_t number(int field, const int64_t *x)
{
    int64_t at = field;
    int32_t d;
    for (d = 0; d < grid[field].grid.dims; d++) {
        at = at * 16 + x[d];
    }
    return at + 1;
}

static void fill(void)
{
    int field, rank;
    memset(array, 0, sizeof array);
    memset(arrived, 0, sizeof arrived);
    for (field = 0; field < 2; field++) {
        for (rank = 0; rank < RANKS; rank++) {
            int64_t x[DPAR_MAX_DIMS];
            has[rank] = dpar_halo_owned(&grid[field], rank, &mine[field][rank]);
            CHECK_INT(dpar_halo_box(&grid[field], rank, &held[field][rank]), has[rank]);
            if (!has[rank]) {
                continue;
            }
            CHECK(dpar_box_volume(&held[field][rank]) <= MOST);
            memcpy(x, mine[field][rank].lo, sizeof x);
            do {
                array[field][rank][at_of(&held[field][rank], x)] = number(field, x);
            } while (next_point(&mine[field][rank], x));
        }
    }
    memcpy(was, array, sizeof was);
}

static int list_all(int direction, int mode, entry *list)
{
    int field, rank, n = 0;
    for (field = 0; field < 2; field++) {
        for (rank = 0; rank < RANKS; rank++) {
            dpar_halo_cursor w;
            dpar_transfer t;
            CHECK_INT(dpar_halo_first(&w, &grid[field], rank, direction, mode, NULL), DPAR_OK);
            while (dpar_halo_next(&w, &t)) {
                CHECK(n < LISTS && t.peer >= 0 && t.peer < RANKS);
                list[n].field = field;
                list[n].from = direction == DPAR_TRANSFER_SEND ? rank : t.peer;
                list[n].to = direction == DPAR_TRANSFER_SEND ? t.peer : rank;
                list[n++].t = t;
            }
        }
    }
    return n;
}

/* Returns the field whose array is at the owner's end, by the rules of halo.h. */
static int owner_field(const entry *e)
{
    return e->t.turn % 2 ? 1 - e->field : e->field;
}

static int sign_of(const entry *e, int arrives_in)
{
    return e->t.turn == 2 || e->t.turn == (arrives_in == 0 ? 1 : 3) ? -1 : 1;
}

/* Sets the places at both ends of element j of the sender's box of a received transfer. */
static void places(const entry *e, int to_field, int from_field, const int64_t *j, int64_t *here,
                   int64_t *there)
{
    const dpar_box *to = &held[to_field][e->to], *from = &held[from_field][e->from];
    int64_t a = 0, b = 0;
    int32_t d;
    for (d = 0; d < e->t.dims; d++) {
        int32_t s = d == e->t.swap[0] ? e->t.swap[1] : d == e->t.swap[1] ? e->t.swap[0] : d;
        int64_t k = e->t.flip >> d & 1u ? e->t.extent[s] - 1 - j[s] : j[s];
        CHECK(e->t.mine[d] >= 0 && e->t.mine[d] + k < to->hi[d] - to->lo[d]);
        CHECK(e->t.theirs[d] >= 0 && e->t.theirs[d] + j[d] < from->hi[d] - from->lo[d]);
        a = a * (to->hi[d] - to->lo[d]) + e->t.mine[d] + k;
        b = b * (from->hi[d] - from->lo[d]) + e->t.theirs[d] + j[d];
    }
    *here = a;
    *there = b;
}

static void deliver(int n)
{
    int k;
    for (k = 0; k < n; k++) {
        const entry *e = &got[k];
        const int from = owner_field(e);
        int64_t j[DPAR_MAX_DIMS] = {0}, here, there;
        do {
            places(e, e->field, from, j, &here, &there);
            array[e->field][e->to][here] = sign_of(e, e->field) * was[from][e->from][there];
            arrived[e->field][e->to][here]++;
        } while (next_of(&e->t, j));
    }
}

/* Returns 1 if some rank owns point x, otherwise 0. */
static int owned(int field, const int64_t *x)
{
    int rank, d, in = 0;
    for (rank = 0; rank < RANKS && !in; rank++) {
        for (d = 0, in = has[rank]; in && d < grid[field].grid.dims; d++) {
            in = x[d] >= mine[field][rank].lo[d] && x[d] < mine[field][rank].hi[d];
        }
    }
    return in;
}

/* Returns 1 if an exchange writes point x of a rank. With sync it writes only faces of its own
 * cells. */
static int is_filled(int field, int rank, const int64_t *x, int sync)
{
    const dpar_halo *h = &grid[field];
    int d, outside = 0, shared = 1;
    for (d = 0; d < h->grid.dims; d++) {
        const int64_t lo = mine[field][rank].lo[d], hi = mine[field][rank].hi[d];
        outside += x[d] < lo || x[d] >= hi;
        shared = shared && x[d] >= lo - (h->points[d] == DPAR_HALO_AT_HIGH_FACES) &&
                 x[d] < hi + (h->points[d] == DPAR_HALO_AT_LOW_FACES);
    }
    return sync ? outside > 0 && shared
                : outside == 1 || (outside > 1 && h->shape == DPAR_STENCIL_BOX) ||
                      (outside == 2 && h->shape == DPAR_STENCIL_EDGES);
}

static void check_values(int sync)
{
    const int64_t n = grid[0].grid.extent[grid[0].grid.dims - 1];
    int field, rank;
    for (field = 0; field < 2; field++) {
        for (rank = 0; rank < RANKS; rank++) {
            int64_t x[DPAR_MAX_DIMS], from[DPAR_MAX_DIMS];
            if (!has[rank]) {
                continue;
            }
            memcpy(x, held[field][rank].lo, sizeof x);
            do {
                const int64_t at = at_of(&held[field][rank], x);
                int source = field, sign = 1;
                int64_t expect = 0;
                memcpy(from, x, sizeof from);
                if (is_filled(field, rank, x, sync) && image(n, &source, from, &sign) &&
                    owned(source, from)) {
                    CHECK_INT(arrived[field][rank][at], 1);
                    expect = sign * number(source, from);
                } else {
                    CHECK_INT(arrived[field][rank][at], 0);
                    expect = was[field][rank][at];
                }
                CHECK_INT(array[field][rank][at], expect);
            } while (next_point(&held[field][rank], x));
        }
    }
}

/* Checks that the k-th send from a to b matches the k-th receive of b from a, for each field. */
static void check_pairs(int sends, int receives)
{
    static int next[2][RANKS][RANKS];
    int k;
    CHECK_INT(sends, receives);
    memset(next, 0, sizeof next);
    for (k = 0; k < sends; k++) {
        int *at = &next[sent[k].field][sent[k].from][sent[k].to];
        while (*at < receives && (got[*at].field != sent[k].field ||
                                  got[*at].from != sent[k].from || got[*at].to != sent[k].to)) {
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

/* Checks <E x, y> = <x, E' y> over both fields, with y random at points that E writes or leaves. */
static void check_adjoint(int mode)
{
    static int64_t y[2][RANKS][MOST];
    int64_t left = 0, right = 0, place;
    int field, rank, k, n = list_all(DPAR_TRANSFER_RECV, mode, got);
    check_pairs(list_all(DPAR_TRANSFER_SEND, mode, sent), n);
    for (field = 0; field < 2; field++) {
        for (rank = 0; rank < RANKS; rank++) {
            for (place = 0; has[rank] && place < dpar_box_volume(&held[field][rank]); place++) {
                y[field][rank][place] = array[field][rank][place] ? below(4096) - 2048 : 0;
                left += array[field][rank][place] * y[field][rank][place];
            }
        }
    }
    memcpy(array, y, sizeof array);
    for (k = 0; k < n; k++) {
        const entry *e = &got[k];
        const int to = owner_field(e);
        int64_t j[DPAR_MAX_DIMS] = {0}, here, there;
        CHECK_INT(e->t.op, DPAR_SUM);
        do {
            places(e, to, e->field, j, &here, &there);
            array[to][e->to][here] += sign_of(e, to) * y[e->field][e->from][there];
        } while (next_of(&e->t, j));
    }
    for (field = 0; field < 2; field++) {
        for (rank = 0; rank < RANKS; rank++) {
            for (place = 0; has[rank] && place < dpar_box_volume(&held[field][rank]); place++) {
                right += arrived[field][rank][place]
                             ? 0
                             : was[field][rank][place] * array[field][rank][place];
            }
        }
    }
    CHECK_INT(left, right);
}

static void check_both(void)
{
    const int32_t last = grid[0].grid.dims - 1;
    int sync, n, field, room = 1;
    CHECK(dpar_halo_check(&grid[0], NULL) == DPAR_OK && dpar_halo_check(&grid[1], NULL) == DPAR_OK);
    find_owners(grid[0].grid.extent[last]);
    for (field = 0; field < 2; field++) {
        for (n = 0; n <= last; n++) {
            CHECK(n < last - 1 || dpar_halo_points(&grid[field], n) == grid[0].grid.extent[n]);
            room = room &&
                   (grid[field].points[n] != DPAR_HALO_AT_LOW_FACES || grid[field].high[n] > 0) &&
                   (grid[field].points[n] != DPAR_HALO_AT_HIGH_FACES || grid[field].low[n] > 0);
        }
    }
    for (sync = 0; sync <= room; sync++) {
        fill();
        n = list_all(DPAR_TRANSFER_RECV, sync ? DPAR_HALO_SYNC : DPAR_HALO_FORWARD, got);
        deliver(n);
        check_values(sync);
        check_pairs(list_all(DPAR_TRANSFER_SEND, sync ? DPAR_HALO_SYNC : DPAR_HALO_FORWARD, sent),
                    n);
        check_adjoint(sync ? DPAR_HALO_SYNC_ADJOINT : DPAR_HALO_ADJOINT);
    }
}

/* Describes u and v on faces below or above cells, along their own component (C-grid) or across it
 * (D-grid). */
static void pair_on(int32_t dims, const int64_t *extent, const int32_t *parts, int32_t faces,
                    int d_grid)
{
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_FLOOR};
    dpar_placement p[4];
    dpar_mesh m;
    int32_t d;
    int field;
    memset(grid, 0, sizeof grid);
    for (d = 0; d < dims; d++) {
        p[d] = dpar_shard_by(d, rules[below(3)], 0);
    }
    CHECK_INT(dpar_mesh_init(&m, axis_names(dims), parts, DPAR_ORDER_LAST_FASTEST, 0, NULL),
              DPAR_OK);
    for (field = 0; field < 2; field++) {
        dpar_halo *h = &grid[field];
        CHECK_INT(dpar_layout_init(&h->grid, &m, dims, extent, p, NULL), DPAR_OK);
        h->cube = 1;
        h->points[(field == 0) != d_grid ? dims - 1 : dims - 2] = faces;
        h->partner = &grid[1 - field];
    }
}

/* Checks faces that are whole, in pairs, alone and cut; widths 0 to 3 and as wide as a face,
 * different for u and v. */
static void test_pairs(void)
{
    int64_t extent[3], width;
    int32_t parts[3];
    int kind, field;
    extent[0] = 6;
    for (extent[1] = 1; extent[1] <= SIDE; extent[1]++) {
        extent[2] = extent[1];
        for (parts[0] = 1; parts[0] <= 6; parts[0]++) {
            for (parts[1] = 1; parts[1] <= 3; parts[1]++) {
                for (parts[2] = 1; parts[2] <= 3; parts[2]++) {
                    for (width = 0; width <= 4; width++) {
                        const int64_t w = width < extent[1] ? width : extent[1];
                        if (parts[0] * parts[1] * parts[2] > RANKS ||
                            (extent[1] > 3 && below(3) != 0)) {
                            continue;
                        }
                        kind = below(4);
                        pair_on(3, extent, parts, 1 + kind % 2, kind / 2);
                        for (field = 0; field < 2; field++) {
                            dpar_halo *h = &grid[field];
                            h->shape = below(3);
                            h->low[1] = h->high[2] = w;
                            h->high[1] = below(2) ? w : below((int)extent[1] + 1);
                            h->low[2] = below(2) ? w : below((int)extent[1] + 1);
                        }
                        check_both();
                    }
                }
            }
        }
    }
}

/* Checks levels, which have their own points, between the faces and y; and masked tiles. */
static void test_levels_and_masks(void)
{
    int trial, field;
    for (trial = 0; trial < 60; trial++) {
        int64_t extent[4];
        int32_t parts[4], owner_of[RANKS], i, levels = below(3), periodic = below(2),
                                              masks = below(2);
        extent[0] = 6;
        extent[1] = 1 + below(3);
        extent[2] = extent[3] = 1 + below(3);
        parts[0] = 1 + below(6);
        parts[1] = 1 + below(2);
        parts[2] = 1 + below(2);
        parts[3] = 24 / parts[0] / parts[1] / parts[2] > 1 ? 1 + below(2) : 1;
        pair_on(4, extent, parts, 1 + below(2), below(2));
        for (i = 0; i < grid[0].grid.mesh.size; i++) {
            owner_of[i] = below(4) ? grid[0].grid.mesh.size - 1 - i : -1;
        }
        for (field = 0; field < 2; field++) {
            dpar_halo *h = &grid[field];
            h->shape = below(3);
            h->periodic = (uint32_t)periodic << 1;
            h->points[1] = levels;
            h->low[1] = below(2);
            h->high[1] = below(2);
            h->low[2] = h->low[3] = h->high[3] = 1;
            h->high[2] = extent[2];
            h->owner = masks ? owner_of : NULL;
        }
        check_both();
    }
}

/* Checks the statements in halo.h: u on face 0's east edge is the u of face 1's west edge; u on
 * face 1's east edge is the v on face 3's south edge with the same sign; beyond a border that a
 * third face owns, the value is that face's. */
static void test_words(void)
{
    static const int64_t extent[] = {6, 4, 4};
    static const int32_t parts[] = {6, 1, 1};
    dpar_halo_cursor w;
    dpar_transfer t;
    int seen = 0;
    pair_on(3, extent, parts, DPAR_HALO_AT_LOW_FACES, 0);
    grid[0].low[1] = grid[0].high[1] = grid[0].low[2] = 1;
    grid[0].high[2] = 2;
    grid[1].low[1] = 3;
    CHECK_INT(dpar_halo_first(&w, &grid[0], 0, DPAR_TRANSFER_RECV, DPAR_HALO_SYNC, NULL), DPAR_OK);
    CHECK(dpar_halo_next(&w, &t) && t.peer == 1 && t.turn == 0 && t.mine[2] == 1 + 4);
    CHECK(t.theirs[2] == 1 && t.extent[1] == 4 && t.extent[2] == 1);
    CHECK(!dpar_halo_next(&w, &t));
    CHECK_INT(dpar_halo_first(&w, &grid[0], 1, DPAR_TRANSFER_RECV, DPAR_HALO_SYNC, NULL), DPAR_OK);
    CHECK(dpar_halo_next(&w, &t) && t.peer == 3 && t.turn == 3 && t.mine[2] == 1 + 4);
    CHECK(t.swap[0] == 1 && t.swap[1] == 2 && t.flip == 1u << 1 && t.mine[1] == 1);
    CHECK(t.theirs[1] == 3 && t.theirs[2] == 0 && t.extent[1] == 1 && t.extent[2] == 4);
    CHECK(!dpar_halo_next(&w, &t));
    /* face 2 is north of face 0 and turned: its north border, at x = 0, is face 4's west border */
    CHECK_INT(dpar_halo_first(&w, &grid[0], 0, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL),
              DPAR_OK);
    while (dpar_halo_next(&w, &t)) {
        if (t.mine[1] == 1 + 4 && t.mine[2] == 1) {
            CHECK(t.peer == 4 && t.turn == 2 && t.extent[1] == 1 && t.extent[2] == 1);
            CHECK(t.theirs[1] == 1 + 3 - 0 && t.theirs[2] == 1);
            seen++;
        }
    }
    CHECK_INT(seen, 1);
}

static void test_refusals(void)
{
    static const int64_t extent[] = {6, 4, 4}, other[] = {6, 5, 5};
    static const int32_t parts[] = {2, 2, 2};
    dpar_placement p[3];
    dpar_halo_cursor w;
    dpar_halo h, v;
    dpar_why why;
    int32_t d;
    pair_on(3, extent, parts, DPAR_HALO_AT_LOW_FACES, 0);
    h = grid[0];
    v = grid[1];
    h.partner = &v;
    CHECK_INT(dpar_halo_check(&h, NULL), DPAR_OK);
#define REFUSED(change, status, sentence)                                                          \
    do {                                                                                           \
        h = grid[0];                                                                               \
        v = grid[1];                                                                               \
        h.partner = &v;                                                                            \
        change;                                                                                    \
        CHECK_INT(dpar_halo_check(&h, &why), status);                                              \
        CHECK_TEXT(why.text, sentence);                                                            \
    } while (0)
#define SAME "partner must be on the same cubed sphere: same grid, periodic and owner"
#define POINTS(a, b, c)                                                                            \
    "a cubed sphere with points " a " in dim 0, " b " in y, " c                                    \
    " in x: must be AT_CELLS in dim 0 and in y or x (two corners have no owner)"
    for (d = 0; d < 3; d++) {
        p[d] = dpar_shard(d);
    }
    REFUSED(h.points[1] = 2, DPAR_E_ARG, POINTS("0", "2", "1"));
    REFUSED(h.points[0] = 1, DPAR_E_ARG, POINTS("1", "0", "1"));
    REFUSED(v.cube = 0, DPAR_E_ARG, SAME);
    REFUSED(h.cube = 0, DPAR_E_ARG, SAME);
    REFUSED(v.owner = &d, DPAR_E_ARG, SAME);
    REFUSED(CHECK_INT(dpar_layout_init(&v.grid, &h.grid.mesh, 3, other, p, NULL), DPAR_OK),
            DPAR_E_ARG, SAME);
    REFUSED(v.points[1] = DPAR_HALO_AT_HIGH_FACES, DPAR_E_ARG,
            "points is 1 in dim 2, but the partner's is 2 in dim 1: they must be equal");
    REFUSED(v.low[1] = -1, DPAR_E_RANGE, "dim 1 has halos of -1 and 0: each must be 0 to 2^60");
    h = grid[0];
    h.partner = NULL;
    CHECK_INT(dpar_halo_check(&h, &why), DPAR_OK); /* its boxes are known to be right */
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "fields on faces of a cubed sphere come in pairs (u, v), but partner is NULL");
}

int main(void)
{
    random_seed = 9;
    test_words();
    test_pairs();
    test_levels_and_masks();
    test_refusals();
    return CHECK_DONE();
}
