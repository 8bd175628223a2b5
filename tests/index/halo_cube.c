/* SPDX-License-Identifier: MIT-0 */
/* Tests halo for cubed spheres: neighbours by their position on the surface of a cube in space,
 * vectors by the directions there, and the twelve contacts of FMS' cubic mosaic. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "check.h"
#include "random.h"

enum { RANKS = 24, MOST = 1200, LISTS = 30000 };

#include "halo_world.h"

/* The frames of the faces as in halo.h: outward, x, y. 1, 2, 3 are axes; negative ones point
 * down. */
static const int frame[6][3] = {{1, 2, 3},    {2, -1, 3},  {3, -1, -2},
                                {-1, -3, -2}, {-2, -3, 1}, {-3, 2, 1}};

static void add(int64_t *p, int axis, int64_t times)
{
    p[(axis < 0 ? -axis : axis) - 1] += axis < 0 ? -times : times;
}

/* Computes where a cell's middle is on a cube from -n to n, with the part beyond one edge of its
 * face bent down, and the directions of its x and y there. Returns 0 beyond two edges. */
static int position(int64_t n, int64_t face, int64_t y, int64_t x, int64_t *p, int *along_x,
                    int *along_y)
{
    const int *f = frame[face];
    int64_t a = 2 * x + 1 - n, b = 2 * y + 1 - n, ea = (a < 0 ? -a : a) - n,
            eb = (b < 0 ? -b : b) - n;
    if ((ea > 0 && eb > 0) || ea > 2 * n || eb > 2 * n) {
        return 0;
    }
    p[0] = p[1] = p[2] = 0;
    *along_x = ea > 0 ? (a > 0 ? -f[0] : f[0]) : f[1];
    *along_y = eb > 0 ? (b > 0 ? -f[0] : f[0]) : f[2];
    add(p, f[0], n - (ea > 0 ? ea : 0) - (eb > 0 ? eb : 0));
    add(p, f[1], ea > 0 ? (a > 0 ? n : -n) : a);
    add(p, f[2], eb > 0 ? (b > 0 ? n : -n) : b);
    return 1;
}

static int image(const dpar_halo *h, int64_t *x, int *turn)
{
    int32_t last = h->grid.dims - 1, d;
    int64_t n = h->grid.extent[last], p[3], q[3], f, i, j;
    int u, v, ex, ey, found = 0;
    for (d = 1; d < last - 1; d++) { /* levels */
        int64_t points = dpar_halo_points(h, d);
        x[d] = h->periodic >> d & 1u ? (x[d] % points + points) % points : x[d];
        if (x[d] < 0 || x[d] >= points) {
            return 0;
        }
    }
    if (!position(n, x[0], x[last - 1], x[last], p, &u, &v)) {
        return 0;
    }
    for (f = 0; f < 6; f++) {
        for (j = 0; j < n; j++) {
            for (i = 0; i < n; i++) {
                CHECK(position(n, f, j, i, q, &ex, &ey));
                if (memcmp(p, q, sizeof p) == 0) {
                    found++;
                    x[0] = f;
                    x[last - 1] = j;
                    x[last] = i;
                    /* (u, v) here is of (ex, ey) there: 1 (-v, u), 2 (-u, -v), 3 (v, -u) */
                    *turn = u == ex ? 0 : u == -ey ? 1 : u == -ex ? 2 : u == ey ? 3 : -1;
                    CHECK(v == (*turn == 0 ? ey : *turn == 1 ? ex : *turn == 2 ? -ey : -ex));
                }
            }
        }
    }
    CHECK_INT(found, 1);
    return found;
}

/* Checks that every face is right-handed: x cross y points outward. */
static void test_frames(void)
{
    int f;
    for (f = 0; f < 6; f++) {
        int x = frame[f][1], y = frame[f][2], ax = x < 0 ? -x : x, ay = y < 0 ? -y : y;
        int sign = (x < 0 ? -1 : 1) * (y < 0 ? -1 : 1) * (ay == ax % 3 + 1 ? 1 : -1);
        CHECK_INT(frame[f][0], sign * (6 - ax - ay));
    }
}

/* The contacts of define_cubic_mosaic in FMS' test_mpp_domains: tile, edge, tile, edge, and whether
 * the second edge is traversed backwards. Tiles are numbered from 1; north is beyond the last j. */
static void test_contacts(void)
{
    enum { W = DPARI_EDGE_WEST, E = DPARI_EDGE_EAST, S = DPARI_EDGE_SOUTH, N = DPARI_EDGE_NORTH };
    static const int contact[12][5] = {{1, E, 2, W, 0}, {1, N, 3, W, 1}, {1, W, 5, N, 1},
                                       {1, S, 6, N, 0}, {2, N, 3, S, 0}, {2, E, 4, S, 1},
                                       {2, S, 6, E, 1}, {3, E, 4, W, 0}, {3, N, 5, W, 1},
                                       {4, N, 5, S, 0}, {4, E, 6, S, 1}, {5, E, 6, W, 0}};
    static const int64_t extent[] = {6, 5, 5};
    static const int32_t parts[] = {1, 1, 1},
                         rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h;
    int32_t turn = 77;
    int c, k;
    grid_of(&h, 3, extent, parts, rule);
    for (c = 0; c < 12; c++) {
        const int *t = contact[c];
        CHECK_INT(dpari_halo_edge(t[0] - 1, t[1], &turn), t[2] - 1);
        CHECK_INT(dpari_halo_edge(t[2] - 1, t[3], &turn), t[0] - 1);
        for (k = 0; k < 5; k++) { /* the cell beyond the first edge is the cell at the second */
            int64_t x[3], to = t[4] ? 4 - k : k;
            int turns = 0;
            x[0] = t[0] - 1;
            x[1] = t[1] == S ? -1 : t[1] == N ? 5 : k;
            x[2] = t[1] == W ? -1 : t[1] == E ? 5 : k;
            CHECK(image(&h, x, &turns));
            CHECK_INT(x[0], t[2] - 1);
            CHECK_INT(x[1], t[3] == S ? 0 : t[3] == N ? 4 : to);
            CHECK_INT(x[2], t[3] == W ? 0 : t[3] == E ? 4 : to);
            CHECK(dpari_halo_edge(t[0] - 1, t[1], &turn) >= 0 && turn == turns);
        }
    }
    turn = 77;
    CHECK_INT(dpari_halo_edge(6, W, &turn), -1);
    CHECK_INT(dpari_halo_edge(-1, W, &turn), -1);
    CHECK_INT(dpari_halo_edge(0, 4, &turn), -1);
    CHECK_INT(dpari_halo_edge(0, -1, &turn), -1);
    CHECK_INT(turn, 77);
}

/* Checks faces that are whole, in pairs and alone; tiles of any shape; widths up to N; stars. */
static void test_cubes(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK, DPAR_SPLIT_FLOOR};
    int64_t extent[3];
    int32_t parts[3], rule[3];
    extent[0] = 6;
    for (extent[1] = 1; extent[1] <= 4; extent[1]++) {
        extent[2] = extent[1];
        for (parts[0] = 1; parts[0] <= 6; parts[0]++) {
            for (parts[1] = 1; parts[1] <= 3; parts[1]++) {
                for (parts[2] = 1; parts[2] <= 3; parts[2]++) {
                    int64_t width;
                    if (parts[0] * parts[1] * parts[2] > RANKS) {
                        continue;
                    }
                    for (width = 0; width <= extent[1]; width++) {
                        dpar_halo h;
                        rule[0] = rules[below(3)];
                        rule[1] = rules[below(3)];
                        rule[2] = rules[below(3)];
                        grid_of(&h, 3, extent, parts, rule);
                        h.cube = 1;
                        h.shape = below(3) != 0;
                        h.low[1] = h.high[2] = width;
                        h.high[1] = below((int)extent[1] + 1);
                        h.low[2] = below((int)extent[1] + 1);
                        check_halo(&h);
                    }
                }
            }
        }
    }
}

/* Checks levels between the faces and y, also cut; and masked tiles. */
static void test_levels_and_masks(void)
{
    static const int32_t rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK,
                                   DPAR_SPLIT_EVEN};
    int trial;
    for (trial = 0; trial < 60; trial++) {
        int64_t extent[4];
        int32_t parts[4], owner[RANKS], i;
        dpar_halo h;
        extent[0] = 6;
        extent[1] = 1 + below(3);
        extent[2] = extent[3] = 1 + below(3);
        parts[0] = 1 + below(6);
        parts[1] = 1 + below(2);
        parts[2] = 1 + below(2);
        parts[3] = 24 / parts[0] / parts[1] / parts[2] > 1 ? 1 + below(2) : 1;
        grid_of(&h, 4, extent, parts, rule);
        h.cube = 1;
        h.shape = below(3);
        h.periodic = (uint32_t)below(2) << 1;
        h.points[1] = below(3);
        h.low[1] = below(2);
        h.high[1] = below(2);
        h.low[2] = h.low[3] = h.high[3] = 1;
        h.high[2] = extent[2];
        if (below(2)) {
            for (i = 0; i < h.grid.mesh.size; i++) {
                owner[i] = below(4) ? h.grid.mesh.size - 1 - i : -1;
            }
            h.owner = owner;
        }
        check_halo(&h);
    }
}

/* Checks what the header promises of one edge: east of face 1 is the south of face 3, turned. */
static void test_one_edge(void)
{
    static const int64_t extent[] = {6, 4, 4};
    static const int32_t parts[] = {6, 1, 1},
                         rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h;
    dpar_halo_cursor w;
    dpar_transfer t;
    int edges = 0, seen = 0;
    grid_of(&h, 3, extent, parts, rule);
    h.cube = 1;
    h.shape = DPAR_STENCIL_BOX;
    h.low[1] = h.high[1] = h.low[2] = h.high[2] = 2;
    CHECK_INT(dpar_halo_first(&w, &h, 1, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL), DPAR_OK);
    while (dpar_halo_next(&w, &t)) {
        edges++;
        if (t.peer == 3) { /* x' = 3 - y, y' = x - 4 */
            CHECK(t.turn == 3 && t.swap[0] == 1 && t.swap[1] == 2 && t.flip == 1u << 1);
            CHECK(t.extent[1] == 2 && t.extent[2] == 4 && t.extent[0] == 1);
            CHECK(t.mine[1] == 2 && t.mine[2] == 6 && t.theirs[1] == 2 && t.theirs[2] == 2);
            seen++;
        }
    }
    CHECK(edges == 4 && seen == 1);
}

static void test_refusals(void)
{
    static const int64_t extent[] = {6, 4, 4};
    static const int32_t parts[] = {2, 2, 2},
                         rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h, good;
    dpar_why why;
    grid_of(&good, 3, extent, parts, rule);
    good.cube = 1;
    CHECK_INT(dpar_halo_check(&good, NULL), DPAR_OK);
#define REFUSED(change, sentence)                                                                  \
    do {                                                                                           \
        h = good;                                                                                  \
        change;                                                                                    \
        CHECK_INT(dpar_halo_check(&h, &why), DPAR_E_ARG);                                          \
        CHECK_TEXT(why.text, sentence);                                                            \
    } while (0)
#define CUBE(dims)                                                                                 \
    "a cubed sphere has " dims " dims, but needs at least 3, with extents 6, ..., N, N"
#define DIM(d, n)                                                                                  \
    "dim " d " of a cubed sphere cannot be periodic, have windows or halos wider than " n
#define POINTS(a, b, c)                                                                            \
    "a cubed sphere with points " a " in dim 0, " b " in y, " c                                    \
    " in x: must be AT_CELLS in dim 0 and in y or x (two corners have no owner)"
    REFUSED(h.grid.dims = 2, CUBE("2"));
    REFUSED(h.grid.extent[0] = 5, CUBE("3"));
    REFUSED(h.grid.extent[2] = 5, CUBE("3"));
    REFUSED(h.folds = 1; h.mirror = 1; h.periodic = 2, "a cubed sphere cannot have folds or poles");
    REFUSED(h.poles = 1; h.mirror = 2; h.periodic = 4, "a cubed sphere cannot have folds or poles");
    REFUSED(h.low[0] = 1, DIM("0", "0"));
    REFUSED(h.high[0] = 1, DIM("0", "0"));
    REFUSED(h.low[1] = 5, DIM("1", "4"));
    REFUSED(h.high[2] = 5, DIM("2", "4"));
    REFUSED(h.periodic = 1, DIM("0", "0"));
    REFUSED(h.periodic = 4, DIM("2", "4"));
    REFUSED(h.points[1] = 1; h.points[2] = 2, POINTS("0", "1", "2"));
    REFUSED(h.points[0] = 2, POINTS("2", "0", "0"));
    REFUSED(h.window[2].kernel = 3, DIM("2", "4"));
}

int main(void)
{
    random_seed = 5;
    test_frames();
    test_contacts();
    test_one_edge();
    test_cubes();
    test_levels_and_masks();
    test_refusals();
    return CHECK_DONE();
}
