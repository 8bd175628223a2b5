/* SPDX-License-Identifier: MIT-0 */
/* Tests halo geometries: poles against positions on the sphere, masked owners, points that two
 * ranks hold, and the periodic sweep of facts/halo.md 4.5. Compares each point of each array with
 * the whole grid, by definitions that do not use blocks. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"
#include "random.h"

enum { RANKS = 12, MOST = 800, LISTS = 20000 };

#include "halo_world.h"

/* Maps rows by their distance from a pole in half cells; a negative distance is on the other side,
 * half way round. */
static int over_pole(const dpar_halo *h, int high, int64_t *x)
{
    int64_t rows = dpar_halo_points(h, h->fold), columns = dpar_halo_points(h, h->mirror);
    uint32_t pole = high ? DPAR_HALO_POLE_HIGH : DPAR_HALO_POLE_LOW;
    int half = (h->pole_rows & pole) == 0;
    int64_t row = x[h->fold], q = 2 * (high ? rows - 1 - row : row) + half;
    if ((h->poles & pole) == 0 || q >= 0) {
        return 0;
    }
    row = (-q - half) / 2;
    x[h->fold] = high ? rows - 1 - row : row;
    x[h->mirror] += columns / 2;
    return 1;
}

static int image(const dpar_halo *h, int64_t *x, int *turn)
{
    if (h->poles != 0 && (over_pole(h, 0, x) || over_pole(h, 1, x))) {
        *turn = 2;
    }
    if (h->folds && x[h->fold] >= dpar_halo_points(h, h->fold)) { /* as in halo.c */
        x[h->fold] = 2 * (dpar_halo_points(h, h->fold) - 1) + 1 - h->on_row - x[h->fold];
        x[h->mirror] = dpar_halo_points(h, h->mirror) - 1 + h->shift - x[h->mirror];
        *turn = 2;
    } else if (h->folds && h->on_row && x[h->fold] == dpar_halo_points(h, h->fold) - 1) {
        int64_t columns = dpar_halo_points(h, h->mirror), i = ring(x[h->mirror], columns);
        int64_t other = ring(columns - 1 + h->shift - i, columns);
        *turn = other < i ? 2 : 0;
        x[h->mirror] = other < i ? other : i;
    }
    return wrapped(h, x);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- poles ----------------------------------------------------------------------------------- */

/* Checks all poles of all small grids, cut by rows and columns. */
static void test_poles(void)
{
    static const int32_t rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    int64_t extent[2];
    int32_t parts[2];
    for (extent[0] = 1; extent[0] <= 4; extent[0]++) {
        for (extent[1] = 2; extent[1] <= 8; extent[1] += 2) {
            for (parts[0] = 1; parts[0] <= 3; parts[0]++) {
                for (parts[1] = 1; parts[1] <= 4; parts[1]++) {
                    int what;
                    for (what = 0; what < 9 * 3; what++) { /* each pole: none, beside, on a row */
                        int low = what % 3, high = what / 3 % 3, points = what / 9;
                        dpar_halo h;
                        int64_t rows;
                        grid_of(&h, 2, extent, parts, rule);
                        h.mirror = 1;
                        h.periodic = 2;
                        h.points[0] = points;
                        h.poles =
                            (low ? DPAR_HALO_POLE_LOW : 0u) | (high ? DPAR_HALO_POLE_HIGH : 0u);
                        h.pole_rows = (low == 2 ? DPAR_HALO_POLE_LOW : 0u) |
                                      (high == 2 ? DPAR_HALO_POLE_HIGH : 0u);
                        rows = dpar_halo_points(&h, 0);
                        h.low[0] = least(below(4), rows - (low == 2));
                        h.high[0] = least(below(4), rows - (high == 2));
                        h.low[1] = below(4);
                        h.high[1] = below(4);
                        h.shape = below(4) != 0;
                        check_halo(&h);
                    }
                }
            }
        }
    }
}

/* Checks three dims, rows not first, and a fold opposite a pole. */
static void test_random_poles(void)
{
    int trial, folded = 0;
    for (trial = 0; trial < 1500; trial++) {
        static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR};
        int32_t dims = 2 + below(2), parts[3], rule[3], d, left = RANKS;
        int64_t extent[3], rows;
        dpar_halo h;
        for (d = 0; d < dims; d++) {
            parts[d] = 1 + below(left < 4 ? left : 4);
            left /= parts[d];
            extent[d] = 1 + below(dims == 2 ? 7 : 3);
            rule[d] = rules[below(3)];
        }
        extent[dims - 1] = 2 * (1 + below(3));
        grid_of(&h, dims, extent, parts, rule);
        h.shape = below(3);
        h.fold = below(dims - 1);
        h.mirror = dims - 1;
        h.periodic = ((uint32_t)below(1 << dims) | 1u << h.mirror) & ~(1u << h.fold);
        for (d = 0; d < dims; d++) {
            h.low[d] = below(3);
            h.high[d] = below(3);
            h.points[d] = below(3);
        }
        h.poles = 1 + (uint32_t)below(3);
        h.pole_rows = h.poles & (uint32_t)below(4);
        h.folds = h.poles == DPAR_HALO_POLE_LOW && below(2);
        h.on_row = h.folds && below(2);
        h.shift = h.folds ? below(3) - 1 : 0;
        folded += h.folds;
        rows = dpar_halo_points(&h, h.fold);
        h.low[h.fold] = least(h.low[h.fold], rows - (int)(h.pole_rows & 1u) - h.on_row);
        h.high[h.fold] =
            least(h.high[h.fold], rows - (h.folds ? h.on_row : (int)(h.pole_rows >> 1 & 1u)));
        if (h.low[h.fold] < 0) {
            continue;
        }
        check_halo(&h);
    }
    CHECK(folded > 100);
}

/* Checks latitude rows 0 and 7 next to the poles of an 8 x 12 grid, as a code that crosses poles
 * expects them. */
static void test_pole_by_hand(void)
{
    static const int64_t extent[] = {8, 12};
    static const int32_t parts[] = {2, 2}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    dpar_halo h;
    dpar_halo_cursor w;
    dpar_transfer t;
    dpar_box core;
    int seen = 0;
    grid_of(&h, 2, extent, parts, rule);
    h.shape = DPAR_STENCIL_STAR;
    h.low[0] = h.high[0] = 2;
    h.periodic = 2;
    h.mirror = 1;
    h.poles = DPAR_HALO_POLE_LOW | DPAR_HALO_POLE_HIGH;
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL), DPAR_OK);
    while (dpar_halo_next(&w, &t)) {
        if (t.turn == 2) { /* rows 0 and 1 of the other side, in reverse order; columns unchanged */
            CHECK(t.peer == 1 && t.mine[0] == 0 && t.theirs[0] == 2 && t.extent[0] == 2);
            CHECK(t.mine[1] == 0 && t.theirs[1] == 0 && t.extent[1] == 6 && t.flip == 1);
            CHECK(t.swap[0] == t.swap[1] && t.global[0] == -2);
            seen++;
        } else {
            CHECK(t.peer == 2 && t.flip == 0 && t.turn == 0);
        }
    }
    CHECK_INT(seen, 1);
    CHECK(
        !dpar_halo_interior(&h, 0, &core)); /* two rows wait for the pole, two for the neighbour */
    h.poles = DPAR_HALO_POLE_HIGH;
    CHECK(dpar_halo_interior(&h, 0, &core) && core.lo[0] == 0 && core.hi[0] == 2);
}

/* ---- masked owners --------------------------------------------------------------------------- */

/* Masks random blocks and gives the others to ranks in random order. */
static void test_masked(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR};
    int trial, masked = 0;
    for (trial = 0; trial < 1500; trial++) {
        int32_t dims = 1 + below(2), parts[2], rule[2], owner[RANKS], d, i, n = RANKS, blocks = 1;
        int32_t free_ranks[RANKS];
        int64_t extent[2];
        dpar_halo h;
        dpar_box box;
        for (d = 0; d < dims; d++) {
            parts[d] = 1 + below(dims == 1 ? 8 : 3);
            blocks *= parts[d];
            extent[d] = 1 + below(9);
            rule[d] = rules[below(3)];
        }
        grid_of(&h, dims, extent, parts, rule);
        for (i = 0; i < RANKS; i++) {
            free_ranks[i] = i;
        }
        for (i = 0; i < blocks; i++) {
            int32_t k = below(n);
            owner[i] = below(3) ? free_ranks[k] : -1;
            masked += owner[i] < 0;
            if (owner[i] >= 0) {
                free_ranks[k] = free_ranks[--n];
            }
        }
        h.owner = owner;
        h.shape = below(3);
        h.periodic = (uint32_t)below(1 << dims);
        for (d = 0; d < dims; d++) {
            h.low[d] = below(4);
            h.high[d] = below(4);
            h.points[d] = below(3);
        }
        if (dims == 2 && below(3) == 0) {
            extent[1] += extent[1] % 2;
            grid_of(&h, dims, extent, parts, rule);
            h.owner = owner;
            h.mirror = 1;
            h.periodic = 2;
            h.poles = DPAR_HALO_POLE_HIGH;
            h.high[0] = 1;
            h.low[1] = h.high[1] = 1;
        }
        check_halo(&h);
        for (i = 0; i < n; i++) { /* ranks without a block have no points */
            CHECK(!dpar_halo_owned(&h, free_ranks[i], &box));
            CHECK(!dpar_halo_box(&h, free_ranks[i], &box));
            CHECK_INT(dpar_halo_slab_points(&h, free_ranks[i]), 0);
        }
        CHECK(!dpar_halo_owned(&h, -1, &box));
    }
    CHECK(masked > 1000);
}

/* Checks an ocean of 3 x 3 blocks whose middle one is land: corners next to it are still received
 * (an exchange that is ordered by dims through the missing rank loses them). */
static void test_land(void)
{
    static const int64_t extent[] = {6, 6};
    static const int32_t parts[] = {3, 3}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    static const int32_t owner[] = {0, 1, 2, 3, -1, 4, 5, 6, 7};
    dpar_halo h;
    dpar_halo_cursor w;
    dpar_transfer t;
    int n = 0, diagonal = 0;
    grid_of(&h, 2, extent, parts, rule);
    h.low[0] = h.high[0] = h.low[1] = h.high[1] = 1;
    h.owner = owner;
    check_halo(&h);
    CHECK_INT(dpar_halo_first(&w, &h, 1, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL), DPAR_OK);
    while (dpar_halo_next(&w, &t)) { /* block 1 receives from 0, 2, 3 and 5, not from 4 */
        CHECK(t.peer == 0 || t.peer == 2 || t.peer == 3 || t.peer == 4);
        diagonal += t.extent[0] == 1 && t.extent[1] == 1;
        n++;
    }
    CHECK(n == 4 && diagonal == 2);
}

/* ---- points that two ranks hold -------------------------------------------------------------- */

/* Checks that all faces of a rank's cells are in its array, that those it does not own and the
 * second half of a row on a fold are received, and that nothing else is. */
static void check_sync(const dpar_halo *h)
{
    int rank, n;
    fill(h);
    n = list_all(h, DPAR_TRANSFER_RECV, DPAR_HALO_SYNC, got);
    deliver(got, n);
    check_pairs(list_all(h, DPAR_TRANSFER_SEND, DPAR_HALO_SYNC, sent), n);
    for (rank = 0; rank < RANKS; rank++) {
        int64_t x[6], from[6];
        int32_t coord[DPAR_MAX_AXES];
        if (!has[rank]) {
            continue;
        }
        CHECK(dpar_mesh_coords(&h->grid.mesh, rank, coord));
        memcpy(x, held[rank].lo, sizeof x);
        do {
            int64_t at = at_of(&held[rank], x), lo, hi;
            int d, turn = 0, mine_too = 1, owns = 1, comes;
            for (d = 0; d < h->grid.dims; d++) {
                CHECK(dpari_layout_span(&h->grid, coord, d, &lo, &hi));
                hi += h->points[d] != DPAR_HALO_AT_CELLS;
                if (h->periodic >> d & 1u && h->points[d] == DPAR_HALO_AT_HIGH_FACES) {
                    lo--; /* there face i has the number of the cell below it */
                    hi--;
                }
                mine_too = mine_too && x[d] >= lo && x[d] < hi;
                owns = owns && x[d] >= mine[rank].lo[d] && x[d] < mine[rank].hi[d];
            }
            memcpy(from, x, sizeof from);
            comes = mine_too && image(h, from, &turn);
            if (owns) {
                comes = memcmp(from, x, (size_t)h->grid.dims * sizeof x[0]) != 0;
            }
            CHECK_INT(arrived[rank][at], comes);
            CHECK_INT(array[rank][at], comes ? number(h, from) : owns ? number(h, x) : 0);
            CHECK(!comes || turned[rank][at] == turn);
        } while (next_point(&held[rank], x));
    }
    check_adjoint(h, DPAR_HALO_SYNC_ADJOINT);
}

static void test_sync(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_FLOOR};
    int trial;
    for (trial = 0; trial < 3000; trial++) {
        int32_t dims = 1 + below(3), parts[3], rule[3], d, left = RANKS;
        int64_t extent[3];
        dpar_halo h;
        for (d = 0; d < dims; d++) {
            parts[d] = 1 + below(left < 4 ? left : 4);
            left /= parts[d];
            extent[d] = 1 + below(dims < 3 ? 7 : 3);
            rule[d] = rules[below(3)];
        }
        grid_of(&h, dims, extent, parts, rule);
        h.shape = below(3); /* points where four ranks meet are received all the same */
        h.periodic = (uint32_t)below(1 << dims);
        if (dims > 1 && below(3) == 0) {
            h.folds = 1;
            h.fold = 0;
            h.mirror = 1;
            h.periodic = (h.periodic | 2u) & ~1u;
            h.on_row = below(2);
            h.shift = below(3) - 1;
        }
        for (d = 0; d < dims; d++) {
            h.points[d] = below(3);
            h.low[d] = below(2) + (h.points[d] == DPAR_HALO_AT_HIGH_FACES);
            h.high[d] = below(2) + (h.points[d] == DPAR_HALO_AT_LOW_FACES);
        }
        if (h.folds && h.high[0] > dpar_halo_points(&h, 0) - h.on_row) {
            continue;
        }
        check_sync(&h);
    }
}

static void test_sync_refusals(void)
{
    static const int64_t extent = 8;
    static const int32_t parts = 2, rule = DPAR_SPLIT_EVEN;
    dpar_halo h;
    dpar_halo_cursor w;
    dpar_why why;
    grid_of(&h, 1, &extent, &parts, &rule);
    h.low[0] = 1;
    h.points[0] = DPAR_HALO_AT_LOW_FACES;
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, DPAR_HALO_SYNC, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "dim 0: SYNC needs a halo that holds the other face, but low=1 and high=0");
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, &why), DPAR_OK);
    h.points[0] = DPAR_HALO_AT_HIGH_FACES;
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_SEND, DPAR_HALO_SYNC, &why), DPAR_OK);
    h.low[0] = 0;
    h.high[0] = 1;
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_SEND, DPAR_HALO_SYNC_ADJOINT, &why),
              DPAR_E_ARG);
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_SEND, 4, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "direction=1 must be 0 or 1, mode=4 must be 0 to 3");
}

/* ---- the sweep of facts/halo.md 4.5 ---------------------------------------------------------- */

static void test_wraps(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_CHUNK};
    int64_t n, cases = 0;
    int32_t parts;
    for (n = 1; n <= 12; n++) {
        for (parts = 1; parts <= 6; parts++) {
            dpar_halo h;
            grid_of(&h, 1, &n, &parts, &rules[(n + parts) % 2]);
            h.periodic = 1;
            for (h.low[0] = 0; h.low[0] <= 2 * n; h.low[0]++) {
                for (h.high[0] = 0; h.high[0] <= 2 * n; h.high[0]++) {
                    check_halo(&h);
                    cases++;
                }
            }
        }
    }
    CHECK_INT(cases, 6 * 2924); /* sum over n of (2 n + 1)^2, six rank counts */
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void test_refusals(void)
{
    static const int64_t extent[] = {6, 8};
    static const int32_t parts[] = {2, 3}, rule[] = {DPAR_SPLIT_EVEN, DPAR_SPLIT_EVEN};
    static const int32_t two[] = {0, 1, 2, 3, 4, 1}, bad[] = {0, 1, 2, -2, 3, 4};
    dpar_halo h, good;
    dpar_halo_cursor w;
    dpar_why why;
    grid_of(&good, 2, extent, parts, rule);
    good.poles = 3;
    good.pole_rows = 1;
    good.mirror = 1;
    good.periodic = 2;
    good.low[0] = 5;
    good.high[0] = 6;
    CHECK_INT(dpar_halo_check(&good, NULL), DPAR_OK);
#define REFUSED(change, status, sentence)                                                          \
    do {                                                                                           \
        h = good;                                                                                  \
        change;                                                                                    \
        CHECK_INT(dpar_halo_check(&h, &why), status);                                              \
        CHECK_TEXT(why.text, sentence);                                                            \
    } while (0)
    REFUSED(h.poles = 4, DPAR_E_ARG,
            "poles=4 must be 0 to 3, and pole_rows=1 may only have bits of poles");
    REFUSED(h.poles = 2, DPAR_E_ARG,
            "poles=2 must be 0 to 3, and pole_rows=1 may only have bits of poles");
    REFUSED(h.poles = 0, DPAR_E_ARG,
            "poles=0 must be 0 to 3, and pole_rows=1 may only have bits of poles");
    REFUSED(h.folds = 1, DPAR_E_ARG, "dim 0 has both a fold and a pole at its high end");
    REFUSED(h.periodic = 0, DPAR_E_ARG,
            "fold=0 must not be periodic, mirror=1 must be a later, periodic dim");
    REFUSED(h.periodic = 3, DPAR_E_ARG,
            "fold=0 must not be periodic, mirror=1 must be a later, periodic dim");
    REFUSED(h.fold = 1, DPAR_E_ARG,
            "fold=1 must not be periodic, mirror=1 must be a later, periodic dim");
    REFUSED(h.fold = -1, DPAR_E_ARG,
            "fold=-1 must not be periodic, mirror=1 must be a later, periodic dim");
    REFUSED(h.mirror = 2, DPAR_E_ARG,
            "fold=0 must not be periodic, mirror=2 must be a later, periodic dim");
    REFUSED(h.grid.extent[1] = 7, DPAR_E_ARG, "7 columns around a pole: the number must be even");
    REFUSED(h.low[0] = 6, DPAR_E_RANGE,
            "a halo over the fold or a pole needs 6 rows, but there are 5");
    REFUSED(h.poles = 1; h.folds = h.on_row = 1;
            h.high[0] = 5, DPAR_E_RANGE,
            "a halo over the fold or a pole needs 5 rows, but there are 4");
    REFUSED(h.high[0] = 7, DPAR_E_RANGE,
            "a halo over the fold or a pole needs 7 rows, but there are 6");
    REFUSED(h.owner = bad, DPAR_E_ARG, "owner[3] is -2: must be a rank or -1");
    REFUSED(h.owner = two; h.grid.mesh.first_rank = 1, DPAR_E_ARG,
                           "owner needs a mesh of ranks 0, 1, ..., not of 1 to 6");
    h = good;
    h.owner = two;
    CHECK_INT(dpar_halo_first(&w, &h, 0, DPAR_TRANSFER_RECV, 0, &why), DPAR_OK);
    CHECK_INT(dpar_halo_first(&w, &h, 1, DPAR_TRANSFER_RECV, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "rank 1 owns 2 blocks, more than one");
}

/* Runs the quick tests first, because tests/mutate.sh stops at the first failure. */
int main(void)
{
    random_seed = 7;
    test_refusals();
    test_sync_refusals();
    test_pole_by_hand();
    test_land();
    test_poles();
    test_random_poles();
    test_masked();
    test_sync();
    test_wraps();
    return CHECK_DONE();
}
