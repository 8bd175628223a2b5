/* SPDX-License-Identifier: MIT-0 */
/* Tests halo: executes every transfer list over all ranks and compares each point of each local
 * array with the whole grid, by a definition that does not use blocks. Also tests the adjoint by
 * its dot product, folds against the tables of FMS mpp_domains (facts/halo.md 4.6), and periodic
 * lines in which other libraries lose halo cells (4.5). Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"
#include "random.h"

enum { RANKS = 12, MOST = 3000, LISTS = 20000 };

#include "halo_world.h"

/* ---- the whole grid -------------------------------------------------------------------------- */

/* Replaces x by the point that its value comes from. Returns 0 if there is none. */
static int image(const dpar_halo *h, int64_t *x, int *turn)
{
    int32_t d;
    for (d = 0; d < h->grid.dims; d++) {
        int64_t n = dpar_halo_points(h, d);
        if (h->folds && d == h->fold && x[d] >= n) {
            *turn = 2;
            x[d] = 2 * (n - 1) + 1 - h->on_row - x[d];
            x[h->mirror] = dpar_halo_points(h, h->mirror) - 1 + h->shift - x[h->mirror];
        } else if (h->folds && d == h->fold && h->on_row && x[d] == n - 1) {
            int64_t columns = dpar_halo_points(h, h->mirror);
            int64_t i = ring(x[h->mirror], columns);
            int64_t other = ring(columns - 1 + h->shift - i, columns);
            *turn = other < i ? 2 : 0;
            x[h->mirror] = other < i ? other : i; /* the first of each pair counts */
        }
        if (h->periodic >> d & 1u) {
            x[d] = ring(x[d], n);
        }
        if (x[d] < 0 || x[d] >= n) {
            return 0;
        }
    }
    return 1;
}

/* ---- grids ----------------------------------------------------------------------------------- */

/* Checks the points and their owners by the definitions of the kinds of points. */
static void check_points(const dpar_halo *h)
{
    int64_t n = h->grid.extent[0], faces = n > 0 && h->points[0] != DPAR_HALO_AT_CELLS;
    int64_t points = n + (faces && h->periodic == 0), i;
    int32_t rank;
    CHECK_INT(dpar_halo_points(h, 0), points);
    for (rank = 0; rank < h->grid.mesh.size; rank++) {
        int64_t size = dpar_layout_count(&h->grid, rank), lo = 0, shape;
        int owner_of_face;
        dpar_layout_local(&h->grid, rank, &shape, &lo);
        for (i = 0; i < points; i++) {
            int owns = i >= lo && i < lo + size; /* the point's cell, or the one above the face */
            if (points > n && h->points[0] == DPAR_HALO_AT_LOW_FACES && i == n) {
                owns = size > 0 && lo + size == n;
            }
            if (points > n && h->points[0] == DPAR_HALO_AT_HIGH_FACES) { /* the cell below it */
                owns = i == 0 ? size > 0 && lo == 0 : i - 1 >= lo && i - 1 < lo + size;
            }
            owner_of_face = has[rank] && i >= mine[rank].lo[0] && i < mine[rank].hi[0];
            CHECK_INT(owner_of_face, owns);
        }
    }
}

/* Checks everything in one dim. */
static void test_line(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR};
    int64_t n;
    int32_t parts, rule, low, high, periodic, points;
    for (n = 0; n <= 7; n++) {
        for (parts = 1; parts <= 5; parts++) {
            for (rule = 0; rule < 3; rule++) {
                dpar_halo h;
                grid_of(&h, 1, &n, &parts, &rules[rule]);
                for (low = 0; low <= n + 3; low += 1 + (low > 2)) {
                    for (high = 0; high <= n + 2; high += 1 + (high > 2)) {
                        for (periodic = 0; periodic < 2; periodic++) {
                            for (points = 0; points < 3; points++) {
                                h.low[0] = low;
                                h.high[0] = high;
                                h.periodic = (uint32_t)periodic;
                                h.points[0] = points;
                                check_halo(&h);
                                check_points(&h);
                            }
                        }
                    }
                }
            }
        }
    }
}

/* Checks two and three dims with folds. */
static void test_random(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR};
    int trial, folded = 0;
    for (trial = 0; trial < 2500; trial++) {
        int32_t dims = 2 + below(2), parts[3], rule[3], d, left = RANKS;
        int64_t extent[3];
        dpar_halo h;
        for (d = 0; d < dims; d++) {
            parts[d] = 1 + below(left < 4 ? left : 4);
            left /= parts[d];
            extent[d] = 1 + below(dims == 2 ? 9 : 5);
            rule[d] = rules[below(3)];
        }
        grid_of(&h, dims, extent, parts, rule);
        h.shape = below(3);
        h.periodic = (uint32_t)below(1 << dims);
        for (d = 0; d < dims; d++) {
            h.low[d] = below(4);
            h.high[d] = below(4);
            h.points[d] = below(3);
        }
        if (below(2)) {
            h.folds = 1;
            h.fold = below(dims - 1);
            h.mirror = h.fold + 1 + below(dims - 1 - h.fold);
            h.periodic = (h.periodic | 1u << h.mirror) & ~(1u << h.fold);
            h.on_row = below(2);
            h.shift = below(3) - 1;
            if (h.high[h.fold] > dpar_halo_points(&h, h.fold) - h.on_row) {
                continue;
            }
            folded++;
        }
        check_halo(&h);
    }
    CHECK(folded > 800);
}

/* Checks that each of two copies of a grid exchanges with itself, and two axes that cut one dim. */
static void test_replicas_and_nesting(void)
{
    static const int32_t size[] = {2, 2, 3};
    static const int64_t extent[] = {7, 6};
    dpar_placement p[3];
    dpar_mesh m;
    dpar_halo h;
    int k, n;
    memset(&h, 0, sizeof h);
    p[0] = dpar_replicate();
    p[1] = dpar_shard(0);
    p[2] = dpar_shard(1);
    CHECK_INT(dpar_mesh_init(&m, "a b c", size, DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &m, 2, extent, p, NULL), DPAR_OK);
    h.shape = DPAR_STENCIL_BOX;
    h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
    h.periodic = 3;
    check_halo(&h);
    n = list_all(&h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, got);
    for (k = 0; k < n; k++) {
        CHECK_INT(got[k].from / 6, got[k].to / 6);
    }
    p[0] = dpar_shard(0);
    CHECK_INT(dpar_layout_init(&h.grid, &m, 2, extent, p, NULL), DPAR_OK);
    check_halo(&h);
    p[1] = dpar_shard(1);
    p[2] = dpar_replicate();
    CHECK_INT(dpar_layout_init(&h.grid, &m, 2, extent, p, NULL), DPAR_OK);
    check_halo(&h);
    n = list_all(&h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, got);
    for (k = 0; k < n; k++) {
        CHECK_INT(got[k].from % 3, got[k].to % 3);
    }
    for (k = 0; k < 3; k++) {
        p[k] = dpar_replicate();
    }
    memset(&h, 0, sizeof h); /* one point without dims: every rank has it, and it has no halo */
    CHECK_INT(dpar_layout_init(&h.grid, &m, 0, extent, p, NULL), DPAR_OK);
    CHECK_INT(list_all(&h, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, got), 0);
    CHECK_INT(list_all(&h, DPAR_TRANSFER_SEND, DPAR_HALO_FORWARD, sent), 0);
}

/* Checks the caller's own cuts with empty blocks; the periodic lines of facts/halo.md 4.5 in which
 * GHEX 5f6e529 (replayed) leaves 0, 1, 2, 4 and 3 halo cells without a sender. */
static void test_ragged(void)
{
    static const int64_t cuts[][5] = {{0, 8, 16},   {0, 1, 5, 9}, {0, 2, 6, 10},
                                      {0, 3, 6, 9}, {0, 2},       {0, 0, 3, 3, 5}};
    static const int32_t parts[] = {2, 3, 3, 3, 1, 4}, width[] = {2, 2, 3, 4, 3, 4};
    int k;
    for (k = 0; k < 6; k++) {
        dpar_placement p = dpar_shard_by(0, DPAR_SPLIT_RAGGED, 0);
        int64_t n = cuts[k][parts[k]];
        dpar_mesh m;
        dpar_halo h;
        memset(&h, 0, sizeof h);
        p.cuts = cuts[k];
        CHECK_INT(dpar_mesh_init(&m, "a", &parts[k], DPAR_ORDER_LAST_FASTEST, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_layout_init(&h.grid, &m, 1, &n, &p, NULL), DPAR_OK);
        h.low[0] = h.high[0] = width[k];
        h.periodic = 1;
        check_halo(&h);
    }
}

/* Checks two ranks in a ring: both neighbours are the same peer, and the low halo comes first on
 * both sides. A single rank is its own neighbour. */
static void test_order(void)
{
    static const int64_t n = 8;
    static const int32_t rule = DPAR_SPLIT_EVEN;
    int32_t parts;
    for (parts = 1; parts <= 2; parts++) {
        dpar_halo h;
        dpar_halo_cursor w;
        dpar_transfer t;
        int32_t rank = parts - 1;
        grid_of(&h, 1, &n, &parts, &rule);
        h.low[0] = h.high[0] = 1;
        h.periodic = 1;
        CHECK_INT(dpar_halo_first(&w, &h, rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL),
                  DPAR_OK);
        CHECK(dpar_halo_next(&w, &t));
        CHECK(t.peer == 0 && t.mine[0] == 0 && t.extent[0] == 1);
        CHECK_INT(t.theirs[0], 8 / parts); /* the last cell, which follows a halo of one */
        CHECK(dpar_halo_next(&w, &t));
        CHECK(t.peer == 0 && t.mine[0] == 8 / parts + 1 && t.theirs[0] == 1);
        CHECK(!dpar_halo_next(&w, &t));
    }
}

/* FMS mpp_domains, north fold, no symmetric memory (facts/halo.md 4.6), 1-based with isg = 1:
 * T: i' = ieg + 1 - i, j' = 2 jeg - j + 1; E: i' = ieg - i, j' as T; N: i' as T, j' = 2 jeg - j;
 * C: i' = ieg - i, j' = 2 jeg - j. */
static void test_fold_tables(void)
{
    static const int on_row[] = {0, 0, 1, 1}, shift[] = {0, -1, 0, -1};
    int point;
    for (point = 0; point < 4; point++) {
        static const int64_t extent[] = {6, 8};
        static const int32_t parts[] = {2, 3}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
        dpar_halo h;
        int64_t i, j;
        grid_of(&h, 2, extent, parts, rule);
        h.low[0] = h.high[0] = h.low[1] = h.high[1] = 2;
        h.periodic = 2;
        h.folds = 1;
        h.fold = 0;
        h.mirror = 1;
        h.on_row = on_row[point];
        h.shift = shift[point];
        check_halo(&h);
        for (j = 7; j <= 8; j++) {
            for (i = 1; i <= 8; i++) {
                int64_t x[6], to_i = 8 + 1 - i, to_j = 2 * 6 - j + 1;
                int turn = 0;
                to_i -= point == 1 || point == 3;
                to_j -= point >= 2;
                x[0] = j - 1;
                x[1] = i - 1;
                CHECK(image(&h, x, &turn));
                CHECK_INT(x[0] + 1, to_j);
                CHECK_INT(x[1] + 1, to_i < 1 ? to_i + 8 : to_i);
            }
        }
    }
}

/* Returns 1 if rows, on_row and shift put both of two rows beyond the fold where the geometry has
 * them. Coordinates are twice those of the cells: point (j, i) of a kind is at (2 j + up, 2 i +
 * right), and T cells have up = right = 0. The fold turns the plane by 180 degrees about (pivot,
 * pivot_x). */
static int folds_so(int64_t rows, int on_row, int shift, int up, int right, int64_t pivot,
                    int64_t pivot_x)
{
    const int64_t extent[] = {rows, 8};
    static const int32_t parts[] = {1, 1}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h;
    int64_t i, j;
    grid_of(&h, 2, extent, parts, rule);
    h.high[0] = 2;
    h.periodic = 2;
    h.folds = 1;
    h.mirror = 1;
    h.on_row = on_row;
    h.shift = shift;
    check_halo(&h);
    for (j = rows; j < rows + 2; j++) {
        for (i = 0; i < 8; i++) {
            int64_t x[6], to_j = 2 * pivot - (2 * j + up), to_i = 2 * pivot_x - (2 * i + right);
            int turn = 0;
            x[0] = j;
            x[1] = i;
            if (!image(&h, x, &turn) || 2 * x[0] + up != to_j ||
                (2 * x[1] + right - to_i) % 16 != 0) {
                return 0;
            }
        }
    }
    return 1;
}

/* Checks the table in halo.h by geometry: with n rows of T cells the pivot is on a corner above the
 * last row or on a point of it. A kind has the rows that are not beyond the fold. Of all values of
 * on_row and shift, only those of the table are right. */
static void test_fold_pivots(void)
{
    static const int table[2][4][3] = {/* n - rows, on_row and shift of T, u, v and corners */
                                       {{0, 0, 0}, {0, 0, -1}, {0, 1, 0}, {0, 1, -1}},
                                       {{0, 1, 1}, {0, 1, 0}, {1, 0, 1}, {1, 0, 0}}};
    const int64_t n = 6;
    int on_point, kind, on_row, shift;
    for (on_point = 0; on_point < 2; on_point++) {
        const int64_t pivot = 2 * (n - 1) + !on_point, pivot_x = on_point ? 0 : -1;
        for (kind = 0; kind < 4; kind++) {
            const int up = kind >= 2, right = kind % 2;
            const int *row = table[on_point][kind];
            int64_t rows = n + 2;
            while (2 * (rows - 1) + up > pivot) {
                rows--;
            }
            CHECK_INT(n - rows, row[0]);
            for (on_row = 0; on_row <= 1; on_row++) {
                for (shift = -1; shift <= 1; shift++) {
                    CHECK_INT(folds_so(rows, on_row, shift, up, right, pivot, pivot_x),
                              on_row == row[1] && shift == row[2]);
                }
            }
        }
    }
}

/* Checks that the row on a fold is received too, so that rows within `high` of it wait for it. */
static void test_fold_core(void)
{
    static const int64_t extent[] = {12, 8};
    static const int32_t parts[] = {2, 2}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h;
    dpar_box core;
    grid_of(&h, 2, extent, parts, rule);
    h.low[0] = h.high[0] = 2;
    h.periodic = 2;
    h.folds = 1;
    h.mirror = 1;
    CHECK(dpar_halo_interior(&h, 3, &core) && core.lo[0] == 8 && core.hi[0] == 10);
    h.on_row = 1;
    CHECK(dpar_halo_interior(&h, 3, &core) && core.lo[0] == 8 && core.hi[0] == 9);
    CHECK(dpar_halo_interior(&h, 0, &core) && core.lo[0] == 0 && core.hi[0] == 4);
    CHECK(core.lo[1] == 0 && core.hi[1] == 4);
}

/* Checks a million ranks with extents near the limit: the list of one rank is short and quickly
 * made. */
static void test_large(void)
{
    static const int64_t extent[] = {INT64_C(1) << 60, (INT64_C(1) << 60) - 1};
    static const int32_t parts[] = {1024, 2048}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK};
    dpar_halo h;
    dpar_halo_cursor w;
    dpar_transfer t;
    int n = 0, direction;
    grid_of(&h, 2, extent, parts, rule);
    h.low[0] = h.high[0] = h.low[1] = h.high[1] = 3;
    h.periodic = 3;
    for (direction = 0; direction < 2; direction++) {
        CHECK_INT(dpar_halo_first(&w, &h, 2047, direction, DPAR_HALO_FORWARD, NULL), DPAR_OK);
        while (dpar_halo_next(&w, &t)) {
            CHECK(t.peer != 2047);
            n++;
        }
    }
    CHECK_INT(n, 16);
    h.low[0] = h.high[1] = INT64_C(1) << 60;
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL), DPAR_OK);
    for (n = 0; n < 100 && dpar_halo_next(&w, &t); n++) {
        CHECK(dpar_transfer_volume(&t) != 0);
    }
}

/* Checks slabs of 2^31 x 2^31 and 2^32 x 2^30 points, one more than can be counted. */
static void test_too_many_points(void)
{
    static const int32_t parts[] = {1, 1}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    static const int64_t extent[] = {INT64_C(1) << 32, INT64_C(1) << 30};
    dpar_halo h;
    grid_of(&h, 2, extent, parts, rule);
    h.periodic = 3;
    h.low[0] = h.high[0] = INT64_C(1) << 30;
    h.low[1] = h.high[1] = INT64_C(1) << 29;
    CHECK_INT(dpar_halo_slab_points(&h, 0), -1);
    h.low[1]--; /* 2^31 (2^31 - 1) and 2^32 (2^30 - 1) */
    CHECK_INT(dpar_halo_slab_points(&h, 0), INT64_MAX - (INT64_C(3) << 31) + 1);
    h.low[0] = h.high[0] = INT64_C(1) << 32;
    h.low[1] = h.high[1] = INT64_C(1) << 30;
    CHECK_INT(dpar_halo_slab_points(&h, 0), -1);
}

/* Checks that a mesh may have the maximum number of axes. */
static void test_most_axes(void)
{
    static const int64_t extent[] = {12, 5};
    int32_t sizes[DPAR_MAX_AXES], i;
    dpar_placement p[DPAR_MAX_AXES];
    dpar_mesh mesh;
    dpar_halo h;
    dpar_box own;
    memset(&h, 0, sizeof h);
    for (i = 0; i < DPAR_MAX_AXES; i++) {
        sizes[i] = i == 0 ? 6 : 1;
        p[i] = i == 0 ? dpar_shard(0) : dpar_replicate();
    }
    CHECK_INT(
        dpar_mesh_init(&mesh, axis_names(DPAR_MAX_AXES), sizes, DPAR_ORDER_LAST_FASTEST, 0, NULL),
        DPAR_OK);
    CHECK_INT(dpar_layout_init(&h.grid, &mesh, 2, extent, p, NULL), DPAR_OK);
    h.low[0] = h.high[0] = 1;
    CHECK_INT(dpar_halo_check(&h, NULL), DPAR_OK);
    CHECK(dpar_halo_owned(&h, 5, &own));
    CHECK_INT(own.lo[0], 10);
}

static void test_refusals(void)
{
    static const int64_t extent[] = {6, 8};
    static const int32_t parts[] = {2, 3}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    static const int64_t three[] = {4, 6, 8};
    static const int32_t parts_of_three[] = {1, 2, 2};
    static const int32_t rule_of_three[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h, good;
    dpar_halo_cursor w;
    dpar_why why;
    grid_of(&good, 2, extent, parts, rule);
    good.folds = 1;
    good.mirror = 1;
    good.periodic = 2;
    CHECK_INT(dpar_halo_check(&good, NULL), DPAR_OK);
#define REFUSED(change, status, sentence)                                                          \
    do {                                                                                           \
        h = good;                                                                                  \
        change;                                                                                    \
        CHECK_INT(dpar_halo_check(&h, &why), status);                                              \
        CHECK_TEXT(why.text, sentence);                                                            \
        CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, 0, NULL), status);                \
    } while (0)
    REFUSED(memset(&h.grid, 0, sizeof h.grid), DPAR_E_ARG,
            "grid has 0 dims, 0 ranks and 0 axes: use dpar_layout_init");
#define GRID(dims, axes) "grid has " dims " dims, 6 ranks and " axes " axes: use dpar_layout_init"
    REFUSED(h.grid.dims = 9, DPAR_E_ARG, GRID("9", "2"));
    REFUSED(h.grid.dims = -1, DPAR_E_ARG, GRID("-1", "2"));
    REFUSED(h.grid.mesh.axes = -1, DPAR_E_ARG, GRID("2", "-1"));
    REFUSED(h.grid.mesh.axes = DPAR_MAX_AXES + 1, DPAR_E_ARG, GRID("2", "9"));
    REFUSED(h.grid.extent[0] = -3, DPAR_E_RANGE, "dim 0 has -3 cells: must be 0 to 2^60");
    REFUSED(h.low[1] = -1, DPAR_E_RANGE, "dim 1 has halos of -1 and 0: each must be 0 to 2^60");
    REFUSED(h.high[0] = (INT64_C(1) << 60) + 1, DPAR_E_RANGE,
            "dim 0 has halos of 0 and 1152921504606846977: each must be 0 to 2^60");
    REFUSED(h.low[1] = 128, DPAR_E_RANGE,
            "dim 1 has halos of 128 and 0: must be less than 16 times its 8 points");
    REFUSED(h.low[1] = INT64_MAX, DPAR_E_RANGE,
            "dim 1 has halos of 9223372036854775807 and 0: each must be 0 to 2^60");
    REFUSED(h.high[1] = -2, DPAR_E_RANGE, "dim 1 has halos of 0 and -2: each must be 0 to 2^60");
    REFUSED(h.on_row = 2, DPAR_E_ARG, "on_row=2 must be 0 or 1, shift=0 must be -1 to 1");
    REFUSED(h.shift = -2, DPAR_E_ARG, "on_row=0 must be 0 or 1, shift=-2 must be -1 to 1");
    REFUSED(h.on_row = 1; h.high[0] = 6, DPAR_E_RANGE,
                          "a halo over the fold or a pole needs 6 rows, but there are 5");
    REFUSED(
        h.grid.axis[0].rule = DPAR_SPLIT_CYCLIC, DPAR_E_ARG,
        "axis 0 cuts dim 0 by rule 7: a halo needs contiguous blocks (CHUNK, EVEN, FLOOR, RAGGED)");
    REFUSED(h.shape = 3, DPAR_E_ARG, "shape is 3, which is no DPAR_STENCIL_x");
    REFUSED(h.periodic = 4, DPAR_E_ARG, "periodic is 4, but the grid has only 2 dims");
    REFUSED(h.points[0] = 3, DPAR_E_ARG, "points[0] is 3, which is no DPAR_HALO_AT_x");
    REFUSED(
        h.grid.axis[1].rule = DPAR_SPLIT_CYCLIC, DPAR_E_ARG,
        "axis 1 cuts dim 1 by rule 7: a halo needs contiguous blocks (CHUNK, EVEN, FLOOR, RAGGED)");
    REFUSED(h.folds = 2, DPAR_E_ARG, "folds is 2, cube is 0: each must be 0 or 1");
    REFUSED(h.cube = 1 << 30, DPAR_E_ARG, "folds is 1, cube is 1073741824: each must be 0 or 1");
    REFUSED(h.fold = 1, DPAR_E_ARG, "fold is 1, mirror is 1: need 0 <= fold < mirror < 2");
    REFUSED(h.mirror = 2, DPAR_E_ARG, "fold is 0, mirror is 2: need 0 <= fold < mirror < 2");
    REFUSED(h.periodic = 0, DPAR_E_ARG,
            "fold=0 must not be periodic, mirror=1 must be a later, periodic dim");
    REFUSED(h.periodic = 3, DPAR_E_ARG,
            "fold=0 must not be periodic, mirror=1 must be a later, periodic dim");
    REFUSED(h.shift = 2, DPAR_E_ARG, "on_row=0 must be 0 or 1, shift=2 must be -1 to 1");
    REFUSED(h.on_row = -1, DPAR_E_ARG, "on_row=-1 must be 0 or 1, shift=0 must be -1 to 1");
    REFUSED(h.high[0] = 7, DPAR_E_RANGE,
            "a halo over the fold or a pole needs 7 rows, but there are 6");
    REFUSED(h.grid.extent[1] = 1;
            h.low[1] = 16, DPAR_E_RANGE,
            "dim 1 has halos of 16 and 0: must be less than 16 times its 1 points");
    h = good;
    h.low[0] = 6 * 1000; /* no axis is periodic */
    CHECK_INT(dpar_halo_check(&h, NULL), DPAR_OK);
    grid_of(&h, 3, three, parts_of_three, rule_of_three);
    h.folds = h.fold = 1;
    h.mirror = 2;
    h.periodic = 4;
    CHECK_INT(dpar_halo_check(&h, NULL), DPAR_OK);
    h.periodic = 6;
    CHECK_INT(dpar_halo_check(&h, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fold=1 must not be periodic, mirror=2 must be a later, periodic dim");
    CHECK_INT(dpar_halo_first(&w, &good, 0, 2, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_halo_first(&w, &good, 0, 0, 4, &why), DPAR_E_ARG);
    CHECK_INT(dpar_halo_first(&w, &good, 99, DPAR_TRANSFER_SEND, 0, NULL),
              DPAR_OK); /* not a rank of the grid */
    {
        dpar_transfer t;
        CHECK(!dpar_halo_next(&w, &t));
    }
}

/* Runs the quick tests first, because tests/mutate.sh stops at the first failure. */
int main(void)
{
    random_seed = 99;
    test_most_axes();
    test_refusals();
    test_ragged();
    test_order();
    test_large();
    test_too_many_points();
    test_fold_tables();
    test_fold_pivots();
    test_fold_core();
    test_replicas_and_nesting();
    test_line();
    test_random();
    return CHECK_DONE();
}
