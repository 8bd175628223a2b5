/* SPDX-License-Identifier: MIT-0 */
/* Tests cart (process grids, Cartesian topologies, placement of ranks) by brute force over every
 * small case, and with vectors C19-C22, G and H of facts/index_math.md, whose sources are named at
 * the vectors. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"

static int64_t power3(int32_t n)
{
    return n > 0 ? 3 * power3(n - 1) : 1;
}

/* ---- dims_create ---- */

/* Finds the answer of MPICH 4.0.2's MPI_Dims_create by trying every non-increasing
 * factorisation. */
static int32_t rule_best[8];
static int32_t rule_found;

static void rule_try(int32_t dims, int32_t at, int32_t n, int32_t *x)
{
    int32_t d, gap, best_gap;
    if (at == dims - 1) {
        int better = !rule_found;
        if (at > 0 && n > x[at - 1]) {
            return;
        }
        x[at] = n;
        gap = x[0] - x[at];
        best_gap = rule_best[0] - rule_best[at];
        if (!better && gap != best_gap) {
            better = gap < best_gap;
        } else if (!better && x[at] != rule_best[at]) {
            better = x[at] > rule_best[at];
        } else if (!better) {
            for (d = 0; d < dims && x[d] == rule_best[d]; d++) {
            }
            better = d < dims && x[d] < rule_best[d];
        }
        for (d = 0; better && d < dims; d++) {
            rule_best[d] = x[d];
        }
        rule_found = 1;
        return;
    }
    for (d = 1; (int64_t)d * d <= n; d++) {
        int32_t pair[2], k;
        pair[0] = d;
        pair[1] = n / d;
        for (k = 0; n % d == 0 && k < 1 + (pair[1] != d); k++) {
            if (at == 0 || pair[k] <= x[at - 1]) {
                x[at] = pair[k];
                rule_try(dims, at + 1, n / pair[k], x);
            }
        }
    }
}

static void test_dims_rule(void)
{
    int32_t n, dims, d, x[8];
    for (dims = 1; dims <= 5; dims++) {
        for (n = 1; n <= (dims < 5 ? 10000 : 1000); n++) {
            int32_t got[8] = {0}, same = 1;
            rule_found = 0;
            rule_try(dims, 0, n, x);
            CHECK_INT(dpar_cart_dims(n, dims, got, NULL), DPAR_OK);
            for (d = 0; d < dims; d++) {
                same = same && got[d] == rule_best[d];
            }
            CHECK(same);
        }
    }
}

/* Checks the same rule for sizes at which squares of parts exceed 2^31. */
static void test_dims_rule_large(void)
{
    int32_t i, dims, d, x[8];
    for (dims = 2; dims <= 4; dims++) {
        for (i = 0; i < 24; i++) { /* includes 2, 4, 6 .. times a large prime */
            int32_t n = i < 12 ? 2147483647 - i : 1999999 * (i - 10) + i % 3, got[8] = {0},
                    same = 1;
            rule_found = 0;
            rule_try(dims, 0, n, x);
            CHECK_INT(dpar_cart_dims(n, dims, got, NULL), DPAR_OK);
            for (d = 0; d < dims; d++) {
                same = same && got[d] == rule_best[d];
            }
            CHECK(same);
        }
    }
}

static void check_dims(int32_t n, int32_t dims, int32_t a, int32_t b, int32_t c, int32_t d)
{
    int32_t got[4] = {0};
    CHECK_INT(dpar_cart_dims(n, dims, got, NULL), DPAR_OK);
    CHECK_INT(got[0], a);
    CHECK_INT(got[1], b);
    CHECK_INT(got[2], c);
    CHECK_INT(got[3], d);
}

/* Checks vector G: results of MPICH 4.0.2 and Open MPI 4.1.4, executed; MPICH's result where they
 * differ. */
static void test_dims_table(void)
{
    static const int32_t t[][10] = {
        {1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
        {2, 2, 1, 2, 1, 1, 2, 1, 1, 1},
        {3, 3, 1, 3, 1, 1, 3, 1, 1, 1},
        {4, 2, 2, 2, 2, 1, 2, 2, 1, 1},
        {7, 7, 1, 7, 1, 1, 7, 1, 1, 1},
        {8, 4, 2, 2, 2, 2, 2, 2, 2, 1},
        {12, 4, 3, 3, 2, 2, 3, 2, 2, 1},
        {16, 4, 4, 4, 2, 2, 2, 2, 2, 2},
        {24, 6, 4, 4, 3, 2, 3, 2, 2, 2},
        {36, 6, 6, 4, 3, 3, 3, 3, 2, 2},
        {60, 10, 6, 5, 4, 3, 5, 3, 2, 2},
        {64, 8, 8, 4, 4, 4, 4, 4, 2, 2},
        {72, 9, 8, 6, 4, 3, 4, 3, 3, 2},
        {100, 10, 10, 5, 5, 4, 5, 5, 2, 2},
        {128, 16, 8, 8, 4, 4, 4, 4, 4, 2},
        {180, 15, 12, 6, 6, 5, 5, 4, 3, 3},
        {256, 16, 16, 8, 8, 4, 4, 4, 4, 4},
        {360, 20, 18, 10, 6, 6, 6, 5, 4, 3},
        {512, 32, 16, 8, 8, 8, 8, 4, 4, 4},
        {2310, 55, 42, 15, 14, 11, 11, 7, 6, 5},
        {4096, 64, 64, 16, 16, 16, 8, 8, 8, 8},
        {1000000000, 32000, 31250, 1000, 1000, 1000, 200, 200, 200, 125},
    };
    size_t i;
    for (i = 0; i < sizeof t / sizeof t[0]; i++) {
        check_dims(t[i][0], 2, t[i][1], t[i][2], 0, 0);
        check_dims(t[i][0], 3, t[i][3], t[i][4], t[i][5], 0);
        check_dims(t[i][0], 4, t[i][6], t[i][7], t[i][8], t[i][9]);
    }
    check_dims(240, 2, 16, 15, 0, 0);
    check_dims(504, 3, 9, 8, 7, 0);
    check_dims(2592, 4, 9, 8, 6, 6);
}

static void test_dims_fixed(void)
{
    int32_t x[8] = {0, 3, 0, 0, 0, 0, 0, 0}, d;
    int64_t product = 1;
    dpar_why why;
    CHECK_INT(dpar_cart_dims(24, 3, x, &why), DPAR_OK); /* G, both libraries executed */
    CHECK(x[0] == 4 && x[1] == 3 && x[2] == 2);
    x[0] = x[2] = 0;
    CHECK_INT(dpar_cart_dims(7, 3, x, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "the fixed parts multiply to 3, which does not divide 7 ranks");
    CHECK(x[0] == 0 && x[1] == 3 && x[2] == 0);
    x[0] = 4;
    x[2] = 1;
    CHECK_INT(dpar_cart_dims(24, 3, x, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "the parts multiply to 12, but there are 24 ranks");
    CHECK_INT(dpar_cart_dims(12, 3, x, &why), DPAR_OK);
    x[0] = -1;
    CHECK_INT(dpar_cart_dims(12, 3, x, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "parts[0] is -1: give 0 to have it chosen, or at least 1");
    CHECK_INT(dpar_cart_dims(0, 3, x, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "ranks=0 must be at least 1, dims=3 must be 0 to 8");
    CHECK_INT(dpar_cart_dims(12, 9, x, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_cart_dims(1, 0, x, NULL), DPAR_OK);
    CHECK_INT(dpar_cart_dims(2, 0, x, NULL), DPAR_E_DIVIDE);
    x[0] = x[1] = x[2] = 2147483647;
    CHECK_INT(dpar_cart_dims(2147483647, 3, x, NULL), DPAR_E_DIVIDE);
    for (d = 0; d < 3; d++) {
        x[d] = 0;
    }
    CHECK_INT(dpar_cart_dims(2147483647, 3, x, NULL), DPAR_OK); /* a prime */
    CHECK(x[0] == 2147483647 && x[1] == 1 && x[2] == 1);
    for (d = 0; d < 8; d++) {
        x[d] = 0;
    }
    CHECK_INT(dpar_cart_dims(2095133040, 8, x, NULL), DPAR_OK); /* 1600 divisors */
    for (d = 0; d < 8; d++) {
        product *= x[d];
        CHECK(d == 0 || x[d] <= x[d - 1]);
    }
    CHECK_INT(product, 2095133040);
}

/* Checks that with fewer than 1 or more than DPAR_MAX_AXES dims the parts are not read. */
static void test_dims_count(void)
{
    int32_t ones[DPAR_MAX_AXES + 1], d;
    for (d = 0; d <= DPAR_MAX_AXES; d++) {
        ones[d] = 1;
    }
    for (d = -1; d <= DPAR_MAX_AXES + 1; d++) {
        const int legal = d >= 0 && d <= DPAR_MAX_AXES;
        CHECK_INT(dpar_cart_dims(1, d, ones, NULL), legal ? DPAR_OK : DPAR_E_ARG);
    }
}

#ifdef DPAR_IMPLEMENTATION
/* Checks the property that the search's bound relies on: the logarithm is never too large, and at
 * most a little more than 1 too small. */
static void test_log2(void)
{
    int64_t v = 1, near[3];
    int32_t i, k;
    for (i = 0; i < 4000; i++) {
        near[0] = v;
        near[1] = i;
        near[2] = (INT64_C(1) << i % 63) - (i < 2000);
        for (k = 0; k < 3; k++) {
            if (near[k] > 0) {
                double right = log2((double)near[k]) * 65536;
                int32_t got = dpari_cart_log2(near[k]);
                CHECK(got < right + 1e-6 && got > right - 1.001);
            }
        }
        v = v < INT64_MAX / 80 ? v + v / 80 + 1 : INT64_MAX - i;
    }
}
#endif

/* ---- least cut ---- */

static dpar_status create(int32_t ranks, int32_t dims, const int64_t *cells, const int64_t *weight,
                          uint32_t periodic, int32_t *parts, int64_t *cut, dpar_why *why)
{
    dpar_cart_choose_desc g;
    int32_t d;
    memset(&g, 0, sizeof g);
    g.ranks = ranks;
    g.dims = dims;
    g.periodic = periodic;
    for (d = 0; d < dims && d < DPAR_MAX_DIMS; d++) {
        g.cells[d] = cells[d];
        g.weight[d] = weight != NULL ? weight[d] : 0;
    }
    return dpar_cart_choose_parts(&g, parts, cut, why);
}

static void test_next(void)
{
    int32_t n, dims, a, b, c, x[6];
    for (n = 1; n <= 60; n++) {
        x[0] = 0;
        for (a = 1; a <= n; a++) {
            for (b = 1; b <= n; b++) {
                for (c = 1; a * b * c <= n; c++) {
                    if (a * b * c == n) {
                        CHECK_INT(dpari_cart_next_parts(n, 3, x), DPAR_OK);
                        CHECK(x[0] == a && x[1] == b && x[2] == c);
                    }
                }
            }
        }
        CHECK_INT(dpari_cart_next_parts(n, 3, x), DPAR_DONE);
        CHECK(x[0] == n && x[1] == 1 && x[2] == 1);
    }
    for (dims = 1; dims <= 6; dims++) { /* 432 = 2^4 3^3: C(k+3, 4) C(k+2, 3) of them */
        static const int32_t count[] = {1, 20, 150, 700, 2450, 7056};
        x[0] = 0;
        for (a = 0; dpari_cart_next_parts(432, dims, x) == DPAR_OK; a++) {
        }
        CHECK_INT(a, count[dims - 1]);
    }
    x[0] = 5;
    x[1] = 2;
    CHECK_INT(dpari_cart_next_parts(12, 2, x), DPAR_E_ARG);
    x[0] = 0;
    CHECK_INT(dpari_cart_next_parts(0, 2, x), DPAR_E_ARG);
    CHECK_INT(dpari_cart_next_parts(12, 7, x), DPAR_E_ARG);
    CHECK_INT(dpari_cart_next_parts(2147483647, 2, x), DPAR_OK);
    CHECK(x[0] == 1 && x[1] == 2147483647);
    CHECK_INT(dpari_cart_next_parts(2147483647, 2, x), DPAR_OK);
    CHECK(x[0] == 2147483647 && x[1] == 1);
    CHECK_INT(dpari_cart_next_parts(2147483647, 2, x), DPAR_DONE);
}

static uint32_t random_state = 1;

static int32_t random_below(int32_t n)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (int32_t)((random_state >> 8) % (uint32_t)n);
}

/* Computes the cut face by face. */
static int64_t slow_cut(int32_t dims, const int64_t *cells, const int64_t *weight,
                        uint32_t periodic, const int32_t *parts)
{
    int64_t sum = 0;
    int32_t d, e;
    for (d = 0; d < dims; d++) {
        int64_t face = weight[d];
        for (e = 0; e < dims; e++) {
            face *= e != d ? cells[e] : 1;
        }
        sum += face * (parts[d] - 1 + ((periodic >> d & 1u) && parts[d] > 1));
    }
    return sum;
}

static void test_cut_brute_force(void)
{
    int32_t i, d;
    for (i = 0; i < 60000; i++) {
        int32_t dims = 1 + random_below(4), ranks = 1 + random_below(96);
        int32_t fixed[6] = {0}, x[6], best[6] = {0}, got[6];
        int64_t cells[6], weight[6], least = -1, cut = -5;
        uint32_t periodic = (uint32_t)random_below(16);
        dpar_status st;
        for (d = 0; d < dims; d++) {
            cells[d] = 1 + random_below(i % 2 ? 40 : 12);
            weight[d] = i % 3 ? 1 : random_below(4) + (d == dims - 1); /* all 0 would mean 1 */
            fixed[d] = random_below(6) == 0 ? 1 + random_below(3) : 0;
            fixed[d] = fixed[d] <= cells[d] ? fixed[d] : 0;
            got[d] = fixed[d];
        }
        x[0] = 0;
        while (dpari_cart_next_parts(ranks, dims, x) == DPAR_OK) {
            int64_t here = slow_cut(dims, cells, weight, periodic, x);
            int legal = 1;
            for (d = 0; d < dims; d++) {
                legal = legal && x[d] <= cells[d] && (fixed[d] == 0 || fixed[d] == x[d]);
            }
            if (legal && (least < 0 || here < least)) {
                least = here;
                memcpy(best, x, sizeof best);
            }
        }
        st = create(ranks, dims, cells, weight, periodic, got, &cut, NULL);
        if (least < 0) {
            CHECK(st == DPAR_E_NONE || st == DPAR_E_DIVIDE);
            CHECK(cut == -5 && memcmp(got, fixed, (size_t)dims * sizeof got[0]) == 0);
        } else {
            CHECK_INT(st, DPAR_OK);
            CHECK_INT(cut, least);
            CHECK(memcmp(got, best, (size_t)dims * sizeof got[0]) == 0);
            cut = -5; /* all parts fixed: returns the cut of these */
            CHECK_INT(create(ranks, dims, cells, weight, periodic, got, &cut, NULL), DPAR_OK);
            CHECK_INT(cut, least);
        }
    }
}

static void check_grid(int64_t a, int64_t b, int64_t c, int32_t ranks, int32_t x, int32_t y,
                       int32_t z, int64_t expected)
{
    int64_t cells[3], cut = 0;
    int32_t parts[3] = {0, 0, 0};
    const int32_t dims = c > 0 ? 3 : 2;
    cells[0] = a;
    cells[1] = b;
    cells[2] = c;
    CHECK_INT(create(ranks, dims, cells, NULL, 0, parts, &cut, NULL), DPAR_OK);
    CHECK_INT(parts[0], x);
    CHECK_INT(parts[1], y);
    CHECK_INT(parts[2], z);
    if (expected > 0) {
        CHECK_INT(cut, expected);
    }
}

static void test_grid_vectors(void)
{
    check_grid(64, 64, 64, 8, 2, 2, 2, 12288); /* H1: PETSc DMDA, where it finds the optimum */
    check_grid(64, 64, 64, 12, 2, 2, 3, 16384);
    check_grid(128, 64, 32, 16, 4, 2, 2, 18432);
    check_grid(100, 100, 10, 16, 4, 4, 1, 6000);
    check_grid(64, 64, 64, 7, 1, 1, 7, 24576);
    check_grid(100, 100, 100, 8, 2, 2, 2, 0); /* H2: LAMMPS' best grids */
    check_grid(100, 100, 100, 12, 2, 2, 3, 0);
    check_grid(200, 100, 100, 8, 2, 2, 2, 0);
    check_grid(100, 100, 100, 7, 1, 1, 7, 0);
    check_grid(512, 512, 0, 20, 4, 5, 0, 0); /* H3: heFFTe test_units_nompi.cpp */
    check_grid(512, 512, 0, 17, 1, 17, 0, 0);
    check_grid(512, 512, 0, 128, 8, 16, 0, 0);
    check_grid(3, 3, 3, 8, 2, 2, 2, 27);        /* H4: heFFTe finds none */
    check_grid(128, 32, 16, 18, 9, 2, 1, 6144); /* H5: DMDA cuts 11264 */
    check_grid(16, 16, 24, 18, 2, 3, 3, 1664);  /* and 2432 */
}

static void test_grid_cut_of_dmda(void)
{
    static const int64_t cells[2][3] = {{128, 32, 16}, {16, 16, 24}};
    int32_t parts[2][3] = {{3, 2, 3}, {1, 2, 9}};
    int64_t cut = 0;
    CHECK_INT(create(18, 3, cells[0], NULL, 0, parts[0], &cut, NULL), DPAR_OK); /* H5 */
    CHECK_INT(cut, 11264);
    CHECK_INT(create(18, 3, cells[1], NULL, 0, parts[1], &cut, NULL), DPAR_OK);
    CHECK_INT(cut, 2432);
}

static void test_grid_large(void)
{
    /* Compares 10^6 ranks with all 784 ordered factorisations, for skewed extents, weights and
     * periodic axes. */
    static const int64_t cells[][3] = {{4096, 4096, 4096}, {100000, 5000, 137}, {1000000, 3, 10}};
    size_t i;
    for (i = 0; i < 3; i++) {
        static const int64_t weight[] = {3, 1, 7};
        int32_t x[3] = {0, 0, 0}, best[3] = {0, 0, 0}, got[3] = {0, 0, 0};
        int64_t least = -1, cut = 0;
        while (dpari_cart_next_parts(1000000, 3, x) == DPAR_OK) {
            int64_t here = slow_cut(3, cells[i], weight, 5, x);
            if (x[0] <= cells[i][0] && x[1] <= cells[i][1] && x[2] <= cells[i][2] &&
                (least < 0 || here < least)) {
                least = here;
                memcpy(best, x, sizeof best);
            }
        }
        CHECK_INT(create(1000000, 3, cells[i], weight, 5, got, &cut, NULL), DPAR_OK);
        CHECK_INT(cut, least);
        CHECK(memcmp(got, best, sizeof best) == 0);
    }
}

static void test_grid_extremes(void)
{
    static const int64_t huge[6] = {INT64_C(4611686018427387904), 1, 1, 1, 1, 1};
    static const int64_t twice[] = {INT64_C(4611686018427387904), 2};
    static const int64_t wide[6] = {1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20};
    static const int64_t small[6] = {9, 70, 80, 90, 100, 110};
    static const int64_t none[6] = {INT64_C(9223372036854775807), 0};
    static const int64_t plate[2] = {120, 100};
    int32_t x[6] = {0, 0, 0, 0, 0, 0}, d;
    int64_t cut = -5, product = 1;
    dpar_why why;
    CHECK_INT(create(2147483647, 1, huge, NULL, 0, x, &cut, NULL), DPAR_OK);
    CHECK(x[0] == 2147483647 && cut == 2147483646);
    x[0] = 0;
    CHECK_INT(create(8, 2, twice, NULL, 0, x, &cut, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text,
               "the cut of 4611686018427387904 x 2 cells into 8 parts may exceed 2^63 - 1");
    CHECK_INT(create(8, 6, wide, NULL, 0, x, &cut, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "the faces of 1048576 x 1048576 x 1048576 x 1048576 x 1048576 x 1048576 "
                         "cells across dim 0 exceed 2^63 - 1");
    CHECK_INT(create(8, 2, none, NULL, 0, x, &cut, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 1: cells=0 must be at least 1, weight=1 at least 0");
    CHECK_INT(create(0, 1, none, NULL, 0, x, &cut, &why), DPAR_E_ARG);
    CHECK_INT(create(1, 7, none, NULL, 0, x, &cut, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dims must be 0 to 6, not 7");
    CHECK_INT(create(11, 1, small, NULL, 0, x, &cut, &why), DPAR_E_NONE);
    CHECK_TEXT(why.text, "no grid of 11 ranks has at most 9 parts");
    x[0] = 1; /* so that only 100 parts remain */
    CHECK_INT(create(119, 2, plate, NULL, 0, x, &cut, &why), DPAR_E_NONE);
    CHECK_TEXT(why.text, "no grid of 119 ranks has at most 120 x 100 parts, where parts[0] is 1");
    x[1] = 7;
    CHECK_INT(create(77, 3, small, NULL, 0, x, &cut, &why), DPAR_OK);
    x[1] = 7;
    x[2] = 0;
    CHECK_INT(create(581, 3, small, NULL, 0, x, &cut, &why), DPAR_E_NONE);
    CHECK_TEXT(why.text, "no grid of 581 ranks has at most 9 x 70 x 80 parts, where parts[0] is 1 "
                         "and parts[1] is 7");
    x[0] = 10;
    x[1] = 0;
    CHECK_INT(create(10, 1, small, NULL, 0, x, &cut, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dim 0 is fixed at 10 parts but has only 9 cells");
    x[0] = 0;
    CHECK_INT(create(1, 0, small, NULL, 0, x, &cut, &why), DPAR_OK);
    CHECK_INT(cut, 0);
    CHECK_INT(create(2095133040, 6, small, NULL, 63, x, &cut, &why), DPAR_OK);
    for (d = 0; d < 6; d++) {
        product *= x[d];
        CHECK(x[d] <= small[d]);
    }
    CHECK_INT(product, 2095133040);
}

/* Checks the largest accepted numbers: the most expensive cut is 2^63 - 3 if every cell is a part
 * and every axis is cut once more than it is here (5 divides 2^63 - 3). */
static void test_grid_limits(void)
{
    const int64_t fifth = INT64_C(1844674407370955161), cells[] = {5, 1};
    int64_t weight[] = {0, 0}, cut = -5;
    int32_t x[] = {0, 0};
    weight[0] = fifth;
    CHECK_INT(create(5, 1, cells, weight, 0, x, &cut, NULL), DPAR_OK);
    CHECK_INT(cut, 4 * fifth);
    x[0] = x[1] = 0;
    weight[1] = 1; /* the other axis costs 5 */
    CHECK_INT(create(5, 2, cells, weight, 0, x, &cut, NULL), DPAR_E_RANGE);
    x[0] = 0;
    weight[0] = fifth + 1;
    CHECK_INT(create(5, 1, cells, weight, 0, x, &cut, NULL), DPAR_E_RANGE);
    CHECK(x[0] == 0 && cut == 4 * fifth);
}

/* ---- Cartesian topology ---- */

/* Returns the row-major rank at coordinates inside the grid, and the coordinates of a rank. */
static int32_t cart_rank(const dpar_cart *c, const int32_t *at)
{
    int32_t d, rank = 0;
    for (d = 0; d < c->dims; d++) {
        if (at[d] < 0 || at[d] >= c->parts[d]) {
            return -1;
        }
        rank = rank * c->parts[d] + at[d];
    }
    return rank;
}

static void cart_coords(const dpar_cart *c, int32_t rank, int32_t *at)
{
    int32_t d;
    for (d = c->dims - 1; d >= 0; d--) {
        at[d] = rank % c->parts[d];
        rank /= c->parts[d];
    }
}

static void test_stencil_axes(void)
{
    CHECK_INT(dpari_stencil_axes(DPAR_STENCIL_STAR, 3), 1);
    CHECK_INT(dpari_stencil_axes(DPAR_STENCIL_EDGES, 3), 2);
    CHECK_INT(dpari_stencil_axes(DPAR_STENCIL_EDGES, 1), 1);
    CHECK_INT(dpari_stencil_axes(DPAR_STENCIL_BOX, 3), 3);
    CHECK_INT(dpari_stencil_axes(3, 3), 0);
}

static void test_cart_init(void)
{
    static const int32_t big[] = {65536, 32768, 1}, bad[] = {2, 0}, top[] = {1, 2147483647};
    static const int32_t n[] = {2, 3, 4};
    int32_t dims;
    dpar_cart c;
    dpar_why why;
    memset(&c, 1, sizeof c);
    CHECK_INT(dpar_cart_init(&c, 3, big, 0, &why), DPAR_E_RANGE);
    CHECK_TEXT(why.text, "axes 0 to 1 make 2147483648 ranks, more than 2^31 - 1");
    CHECK_INT(dpar_cart_init(&c, 2, bad, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "parts[1] is 0: must be at least 1");
    CHECK_INT(dpar_cart_init(&c, 7, bad, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "dims must be 0 to 6, not 7");
    CHECK_INT(c.dims, 0x01010101);
    CHECK_INT(dpar_cart_init(&c, 2, top, 3, NULL), DPAR_OK);
    CHECK_INT(c.size, 2147483647);
    for (dims = 0; dims <= 3; dims++) { /* closed axes that do not exist are skipped */
        CHECK_INT(dpar_cart_init(&c, dims, n, 7, NULL), DPAR_OK);
        CHECK(c.dims == dims && c.periodic == (1u << dims) - 1u);
        CHECK_INT(c.size, dims < 2 ? 1 + dims : dims == 2 ? 6 : 24);
    }
}

/* ---- placement ---- */

/* Returns a stencil whose edges all count 1. */
static dpar_stencil edges(int32_t shape)
{
    dpar_stencil s;
    int32_t d;
    s.shape = shape;
    s.bytes = 1;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        s.block[d] = s.width[d] = 1;
    }
    return s;
}

static dpar_cart cart_of(int32_t dims, int32_t a, int32_t b, int32_t c, uint32_t periodic)
{
    dpar_cart cart;
    int32_t n[4];
    n[0] = a;
    n[1] = b;
    n[2] = c;
    n[3] = 2;
    CHECK_INT(dpar_cart_init(&cart, dims, n, periodic, NULL), DPAR_OK);
    return cart;
}

static int32_t rank_at(const dpar_mapping *p, int32_t a, int32_t b, int32_t c)
{
    int32_t at[3];
    at[0] = a;
    at[1] = b;
    at[2] = c;
    return dpar_mapping_rank(p, at);
}

/* Fills in by hand a mapping to bricks with these sides, listed from the fastest axis. */
static dpar_mapping bricks_of(const dpar_cart *c, int32_t per_node, const int32_t *sides,
                              const int32_t *order)
{
    dpar_mapping p;
    int32_t d;
    CHECK_INT(dpar_mapping_init(&p, c, DPAR_MAPPING_ROW_MAJOR, per_node, NULL), DPAR_OK);
    p.kind = DPAR_MAPPING_BRICKS;
    for (d = 0; d < c->dims; d++) {
        p.brick[d] = sides[d];
        p.order[d] = order != NULL ? order[d] : p.order[d];
    }
    return p;
}

static void test_place_tables(void)
{
    static const int32_t h7[4][4] = {{0, 1, 4, 5}, {2, 3, 6, 7}, {8, 9, 12, 13}, {10, 11, 14, 15}};
    static const int32_t h8[4][4] = {{0, 2, 8, 10}, {1, 3, 9, 11}, {4, 6, 12, 14}, {5, 7, 13, 15}};
    static const int32_t h10[16][2] = {{0, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 3},
                                       {1, 3}, {1, 2}, {2, 2}, {2, 3}, {3, 3}, {3, 2},
                                       {3, 1}, {2, 1}, {2, 0}, {3, 0}};
    static const int32_t xyz[] = {0, 1, 2}, cores[] = {2, 2, 1};
    dpar_cart flat = cart_of(2, 4, 4, 1, 0), cube = cart_of(3, 4, 4, 1, 0);
    dpar_mapping p;
    int32_t i, j;
    CHECK_INT(dpar_mapping_init(&p, &flat, DPAR_MAPPING_BRICKS, 4, NULL), DPAR_OK);
    for (i = 0; i < 4; i++) {
        for (j = 0; j < 4; j++) {
            CHECK_INT(rank_at(&p, i, j, 0), h7[i][j]); /* H7: by definition */
        }
    }
    p = bricks_of(&cube, 4, cores, xyz);
    for (i = 0; i < 4; i++) {
        for (j = 0; j < 4; j++) {
            CHECK_INT(rank_at(&p, i, j, 0), h8[i][j]); /* H8: LAMMPS, two-level */
        }
    }
    CHECK_INT(dpar_mapping_init(&p, &flat, DPAR_MAPPING_MORTON, 4, NULL), DPAR_OK);
    for (i = 0; i < 4; i++) {
        for (j = 0; j < 4; j++) {
            CHECK_INT(rank_at(&p, j, i, 0), h7[i][j]); /* H9: rows of y, x lowest; p4est */
        }
    }
    cube = cart_of(3, 4, 4, 4, 0);
    CHECK_INT(dpar_mapping_init(&p, &cube, DPAR_MAPPING_MORTON, 8, NULL), DPAR_OK);
    CHECK_INT(rank_at(&p, 3, 0, 0), 9);
    CHECK_INT(dpar_mapping_init(&p, &flat, DPAR_MAPPING_HILBERT, 4, NULL), DPAR_OK);
    for (i = 0; i < 16; i++) {
        CHECK_INT(rank_at(&p, h10[i][0], h10[i][1], 0), i); /* H10 */
    }
}

/* Checks that rank and coordinates invert each other, and that Hilbert's curve steps to a neighbour
 * where the grid is a cube. */
static void check_place(const dpar_mapping *p, int steps)
{
    static unsigned char seen[4096];
    int32_t r, d, at[6], before[6] = {0};
    memset(seen, 0, sizeof seen);
    for (r = 0; r < p->grid.size; r++) {
        int32_t far = 0;
        CHECK_INT(dpar_mapping_coords(p, r, at), DPAR_OK);
        CHECK_INT(dpar_mapping_rank(p, at), r);
        d = cart_rank(&p->grid, at);
        CHECK(d >= 0 && seen[d]++ == 0);
        for (d = 0; d < p->grid.dims; d++) {
            far += at[d] > before[d] ? at[d] - before[d] : before[d] - at[d];
            before[d] = at[d];
        }
        CHECK(!steps || far == (r > 0));
    }
    CHECK_INT(dpar_mapping_coords(p, r, at), DPAR_E_ARG);
    CHECK_INT(dpar_mapping_coords(p, -1, at), DPAR_E_ARG);
    at[0] = p->grid.parts[0];
    CHECK_INT(dpar_mapping_rank(p, at), DPAR_PROC_NULL);
    at[0] = -1;
    CHECK_INT(dpar_mapping_rank(p, at), DPAR_PROC_NULL);
}

/* Computes the total and the worst cost with a table of ranks. */
static void slow_cost(const dpar_mapping *p, const dpar_stencil *s, int64_t *total, int64_t *worst)
{
    static int64_t node[4096];
    int32_t r, o, d, at[6], next[6];
    memset(node, 0, sizeof node);
    *total = *worst = 0;
    for (r = 0; r < p->grid.size; r++) {
        int32_t home;
        cart_coords(&p->grid, r, at);
        home = dpar_mapping_rank(p, at) / p->per_node;
        for (o = 0; o < power3(p->grid.dims); o++) {
            int64_t w = s->bytes, moves = 0, i = o, inside = 1;
            for (d = p->grid.dims - 1; d >= 0; d--, i /= 3) {
                const int32_t by = (int32_t)(i % 3 - 1), n = p->grid.parts[d];
                moves += by != 0;
                w *= by != 0 ? s->width[d] : s->block[d];
                next[d] = at[d] + by;
                if (p->grid.periodic >> d & 1u) {
                    next[d] = (next[d] + n) % n;
                }
                inside = inside && next[d] >= 0 && next[d] < n;
            }
            if (moves == 0 || !inside || (moves > 1 && s->shape == DPAR_STENCIL_STAR) ||
                (moves > 2 && s->shape == DPAR_STENCIL_EDGES)) {
                continue;
            }
            if (dpar_mapping_rank(p, next) / p->per_node != home) {
                node[home] += w;
                *total += w;
            }
        }
    }
    *total /= 2;
    for (r = 0; r < p->grid.size; r++) {
        *worst = node[r] > *worst ? node[r] : *worst;
    }
}

static void check_cost(const dpar_mapping *p)
{
    dpar_stencil s = edges(DPAR_STENCIL_STAR);
    int64_t total = 0, worst = 0, slow_total, slow_worst;
    int32_t d, k;
    for (k = 0; k < 4; k++) {
        dpar_stencil plain;
        s.shape = k % 3;
        memset(&plain, 0, sizeof plain); /* no bytes: edges just count */
        plain.shape = s.shape;
        plain.width[0] = k;
        for (d = 0; k == 2 && d < 6; d++) {
            s.bytes = 8;
            s.block[d] = 10 + d;
            s.width[d] = 1 + d;
        }
        slow_cost(p, &s, &slow_total, &slow_worst);
        CHECK_INT(dpar_mapping_cost(p, &s, &total, &worst, NULL), DPAR_OK);
        CHECK_INT(total, slow_total);
        CHECK_INT(worst, slow_worst);
        if (k < 2) {
            CHECK_INT(dpar_mapping_cost(p, &plain, &total, &worst, NULL), DPAR_OK);
            CHECK(total == slow_total && worst == slow_worst);
        }
    }
}

/* Advances to the next sides of a brick of g ranks that divide the parts of the grid. */
static dpar_status next_brick(int32_t g, int32_t dims, const int32_t *parts, int32_t *side)
{
    dpar_status status;
    int32_t d;
    do {
        status = dpari_cart_next_parts(g, dims, side);
        for (d = 0; d < dims && parts[d] % side[d] == 0; d++) {
        }
    } while (status == DPAR_OK && d < dims);
    return status;
}

static void test_place_brute_force(void)
{
    int32_t n[3], dims, g, kind, best[3];
    uint32_t periodic;
    for (dims = 1; dims <= 3; dims++) {
        for (n[0] = 1; n[0] <= 6; n[0]++) {
            for (n[1] = 1; n[1] <= (dims > 1 ? 5 : 1); n[1]++) {
                for (n[2] = 1; n[2] <= (dims > 2 ? 4 : 1); n[2]++) {
                    for (g = 1; g <= 8; g++) {
                        dpar_mapping p;
                        dpar_cart c;
                        dpar_status st = DPAR_OK;
                        periodic = (uint32_t)(n[0] + n[1] * 3 + g) & 7u;
                        CHECK_INT(dpar_cart_init(&c, dims, n, periodic, NULL), DPAR_OK);
                        for (kind = 0; kind < DPAR_MAPPING_COUNT; kind++) {
                            st = dpar_mapping_init(&p, &c, kind, g, NULL);
                            if (st == DPAR_OK) {
                                check_place(&p, 0);
                                check_cost(&p);
                            } else {
                                CHECK(kind == DPAR_MAPPING_BRICKS);
                                best[0] = 0; /* then no brick exists */
                                CHECK(next_brick(g, dims, n, best) == DPAR_DONE);
                            }
                        }
                    }
                }
            }
        }
    }
}

/* Checks that no other brick has fewer edges between nodes. */
static void test_bricks_are_best(void)
{
    static const int32_t grids[][3] = {{8, 8, 1}, {4, 6, 8}, {12, 3, 4}, {16, 2, 2}, {6, 6, 6}};
    size_t i;
    int32_t g;
    for (i = 0; i < 5; i++) {
        for (g = 1; g <= 24; g++) {
            dpar_cart c = cart_of(3, grids[i][0], grids[i][1], grids[i][2], (uint32_t)(g & 7));
            dpar_stencil s = edges(DPAR_STENCIL_STAR);
            int32_t q[3] = {0, 0, 0};
            int64_t least, total, worst;
            dpar_mapping p, other;
            if (dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, g, NULL) != DPAR_OK) {
                continue;
            }
            CHECK_INT(dpar_mapping_cost(&p, &s, &least, &worst, NULL), DPAR_OK);
            while (next_brick(g, 3, c.parts, q) == DPAR_OK) {
                other = bricks_of(&c, g, q, NULL);
                CHECK_INT(dpar_mapping_cost(&other, &s, &total, &worst, NULL), DPAR_OK);
                CHECK(total >= least);
            }
        }
    }
}

static void test_curves(void)
{
    int32_t n[6], dims, d, side;
    for (dims = 1; dims <= 6; dims++) {
        for (side = 1; side <= (dims < 3 ? 32 : dims == 3 ? 16 : dims == 4 ? 8 : 4); side *= 2) {
            dpar_mapping p;
            dpar_cart c;
            for (d = 0; d < dims; d++) {
                n[d] = side;
            }
            CHECK_INT(dpar_cart_init(&c, dims, n, 0, NULL), DPAR_OK);
            CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_HILBERT, 4, NULL), DPAR_OK);
            check_place(&p, 1);
            CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_MORTON, 4, NULL), DPAR_OK);
            check_place(&p, 0);
        }
    }
}

/* Checks that inside a grid the order is that of the cube around it, with positions skipped. */
static void test_skipping(void)
{
    int32_t a, b, kind, i, n, at[3];
    for (a = 1; a <= 8; a++) {
        for (b = 1; b <= 8; b++) {
            for (kind = DPAR_MAPPING_MORTON; kind <= DPAR_MAPPING_HILBERT; kind++) {
                dpar_cart whole = cart_of(3, 8, 8, 8, 0), part = cart_of(3, a, b, 8, 0);
                dpar_mapping all, some;
                dpar_mapping_init(&all, &whole, kind, 4, NULL);
                dpar_mapping_init(&some, &part, kind, 4, NULL);
                for (i = 0, n = 0; i < 512; i++) {
                    dpar_mapping_coords(&all, i, at);
                    if (at[0] < a && at[1] < b) {
                        CHECK_INT(dpar_mapping_rank(&some, at), n);
                        n++;
                    }
                }
                CHECK_INT(n, part.size);
            }
        }
    }
}

/* Checks that row-major is MPI's order in any number of dims, and that all fields of a mapping and
 * a stencil are set. */
static void test_row_major(void)
{
    static const int32_t n[] = {2, 3, 1, 2, 2, 3};
    int32_t dims, d, r, at[6];
    for (dims = 0; dims <= 6; dims++) {
        uint32_t named = 0;
        dpar_mapping p;
        dpar_cart c;
        dpar_stencil s;
        memset(&p, 0x7f, sizeof p);
        memset(&s, 0x7f, sizeof s);
        CHECK_INT(dpar_cart_init(&c, dims, n, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_ROW_MAJOR, 4, NULL), DPAR_OK);
        s = edges(DPAR_STENCIL_BOX);
        for (r = 0; r < c.size; r++) {
            CHECK_INT(dpar_mapping_coords(&p, r, at), DPAR_OK);
            CHECK_INT(cart_rank(&c, at), r);
            CHECK_INT(dpar_mapping_rank(&p, at), r);
        }
        for (d = 0; d < 6; d++) {
            CHECK(p.brick[d] == 1 && s.block[d] == 1 && s.width[d] == 1);
            CHECK(p.order[d] >= 0 && p.order[d] < 6);
            named |= 1u << p.order[d];
        }
        CHECK_INT(named, 63); /* every axis once */
    }
}

/* Checks that Hilbert's curve through a cube of side 2 visits the corners in the order of the
 * reflected Gray code, turned by one axis (Hamilton's curve with entry 0 and direction 0), and the
 * counts of Morton's curve. */
static void test_corners(void)
{
    static const int32_t n[] = {2, 2, 2, 2, 2, 2};
    int32_t dims, d, at[6];
    for (dims = 0; dims <= 6; dims++) {
        uint32_t w;
        dpar_mapping hilbert, morton;
        dpar_cart c;
        CHECK_INT(dpar_cart_init(&c, dims, n, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_mapping_init(&hilbert, &c, DPAR_MAPPING_HILBERT, 4, NULL), DPAR_OK);
        CHECK_INT(dpar_mapping_init(&morton, &c, DPAR_MAPPING_MORTON, 4, NULL), DPAR_OK);
        for (w = 0; w < (uint32_t)c.size; w++) {
            for (d = 0; d < dims; d++) {
                at[(d + 1) % dims] = (int32_t)((w ^ w >> 1) >> d & 1u);
            }
            CHECK_INT(dpar_mapping_rank(&hilbert, at), w);
            for (d = 0; d < dims; d++) {
                at[d] = (int32_t)(w >> d & 1u);
            }
            CHECK_INT(dpar_mapping_rank(&morton, at), w);
        }
    }
}

/* Checks that no sides have a smaller surface, and that among equal ones these have the fewest
 * nodes along axis 0. */
static void test_sides(void)
{
    int32_t q[2], g;
    for (g = 1; g <= 48; g++) {
        dpar_cart c = cart_of(2, 8, 6, 1, (uint32_t)g & 3u);
        int64_t least = -1;
        int32_t best[2] = {0, 0};
        dpar_mapping p;
        dpar_status st = dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, g, NULL);
        for (q[0] = 8; q[0] > 0; q[0]--) {
            static const int64_t cells[] = {8, 6}, ones[] = {1, 1};
            int32_t nodes[2];
            q[1] = g / q[0];
            if (q[0] * q[1] != g || 8 % q[0] != 0 || 6 % q[1] != 0) {
                continue;
            }
            nodes[0] = 8 / q[0];
            nodes[1] = 6 / q[1];
            if (least < 0 || slow_cut(2, cells, ones, c.periodic, nodes) < least) {
                least = slow_cut(2, cells, ones, c.periodic, nodes);
                memcpy(best, q, sizeof best);
            }
        }
        CHECK_INT(st, least >= 0 ? DPAR_OK : DPAR_E_DIVIDE);
        CHECK(st != DPAR_OK || (p.brick[0] == best[0] && p.brick[1] == best[1]));
    }
}

/* Returns the best placement and its cost. */
static dpar_status best_of(dpar_mapping *p, const dpar_cart *c, int32_t g, const dpar_stencil *s,
                           int64_t *total, int64_t *worst, dpar_why *why)
{
    dpar_status st = dpar_mapping_choose(p, c, g, s, why);
    return st == DPAR_OK && total != NULL ? dpar_mapping_cost(p, s, total, worst, why) : st;
}

static void check_edges(const dpar_cart *c, int32_t kind, int32_t g, int64_t total, int64_t worst)
{
    dpar_stencil s = edges(DPAR_STENCIL_STAR);
    dpar_mapping p;
    int64_t sum = 0, most = 0;
    CHECK_INT(dpar_mapping_init(&p, c, kind, g, NULL), DPAR_OK);
    CHECK_INT(dpar_mapping_cost(&p, &s, &sum, &most, NULL), DPAR_OK);
    CHECK_INT(sum, total);
    CHECK_INT(most, worst);
}

/* Checks H6 and H11: the number of edges between nodes, in total and the most at one node. */
static void test_edges(void)
{
    dpar_cart c = cart_of(2, 8, 8, 1, 0);
    dpar_stencil s = edges(DPAR_STENCIL_STAR);
    dpar_mapping p;
    int64_t total, worst;
    check_edges(&c, DPAR_MAPPING_ROW_MAJOR, 16, 24, 16);
    check_edges(&c, DPAR_MAPPING_BRICKS, 16, 16, 8);
    check_edges(&c, DPAR_MAPPING_HILBERT, 16, 16, 8);
    check_edges(&c, DPAR_MAPPING_MORTON, 16, 16, 8);
    CHECK_INT(best_of(&p, &c, 16, &s, &total, &worst, NULL), DPAR_OK);
    CHECK(p.kind == DPAR_MAPPING_BRICKS && total == 16 && worst == 8);
    c = cart_of(3, 4, 4, 4, 0);
    check_edges(&c, DPAR_MAPPING_ROW_MAJOR, 8, 64, 20);
    check_edges(&c, DPAR_MAPPING_BRICKS, 8, 48, 12);
    c = cart_of(2, 6, 4, 1, 0);
    check_edges(&c, DPAR_MAPPING_ROW_MAJOR, 6, 14, 9);
    check_edges(&c, DPAR_MAPPING_BRICKS, 6, 10, 5);
    c = cart_of(2, 7, 7, 1, 0); /* 7 do not fit as a brick better than a row; 5 not at all */
    CHECK_INT(best_of(&p, &c, 5, &s, NULL, NULL, NULL), DPAR_OK);
    CHECK(p.kind == DPAR_MAPPING_HILBERT);
    c = cart_of(2, 4, 4, 1, 0);
    CHECK_INT(best_of(&p, &c, 16, &s, &total, &worst, NULL), DPAR_OK);
    CHECK(p.kind == DPAR_MAPPING_ROW_MAJOR && total == 0 && worst == 0); /* only one node */
}

static void test_place_best(void)
{
    int32_t i, kind;
    for (i = 0; i < 300; i++) {
        dpar_cart c = cart_of(3, 1 + random_below(6), 1 + random_below(6), 1 + random_below(6),
                              (uint32_t)random_below(8));
        dpar_stencil s = edges(random_below(2));
        int32_t g = 1 + random_below(9), d, e;
        int64_t total, worst, sum, most, weight[3];
        dpar_mapping best, p;
        for (d = 0; d < 3 && i % 2; d++) { /* blocks and halos of any shape */
            s.block[d] = 1 + random_below(40);
            s.width[d] = random_below(4);
        }
        s.bytes = 1 + random_below(9);
        for (d = 0; d < 3; d++) { /* bytes that cross a plane between two ranks */
            for (weight[d] = s.bytes, e = 0; e < 3; e++) {
                weight[d] *= e == d ? s.width[e] : s.block[e];
            }
        }
        CHECK_INT(best_of(&best, &c, g, &s, &total, &worst, NULL), DPAR_OK);
        CHECK_INT(dpar_mapping_cost(&best, &s, &sum, &most, NULL), DPAR_OK);
        CHECK(sum == total && most == worst);
        if (best.kind == DPAR_MAPPING_BRICKS) { /* compared by the bytes that really cross */
            CHECK_INT(dpari_place_bricks(&p, &c, g, weight, NULL), DPAR_OK);
            CHECK(memcmp(p.brick, best.brick, 3 * sizeof p.brick[0]) == 0);
        }
        for (kind = 0; kind < DPAR_MAPPING_COUNT; kind++) {
            dpar_status st = kind == DPAR_MAPPING_BRICKS
                                 ? dpari_place_bricks(&p, &c, g, weight, NULL)
                                 : dpar_mapping_init(&p, &c, kind, g, NULL);
            if (st == DPAR_OK) {
                CHECK_INT(dpar_mapping_cost(&p, &s, &sum, &most, NULL), DPAR_OK);
                CHECK(most > worst || (most == worst && sum >= total));
            }
        }
    }
}

/* Checks the largest accepted halos: 3 ranks in a ring send 6 w = 2^63 - 2 bytes. */
static void test_cost_limits(void)
{
    const int64_t w = INT64_C(1537228672809129301);
    dpar_cart ring = cart_of(1, 3, 1, 1, 1);
    dpar_stencil s = edges(DPAR_STENCIL_STAR);
    int64_t total = 5, worst = 5;
    int32_t kind;
    for (kind = 0; kind < DPAR_MAPPING_COUNT; kind++) {
        dpar_mapping p;
        CHECK_INT(dpar_mapping_init(&p, &ring, kind, 1, NULL), DPAR_OK);
        s.bytes = w;
        CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, NULL), DPAR_OK);
        CHECK(total == 3 * w && worst == 2 * w);
        s.bytes = w + 1;
        CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, NULL), DPAR_E_RANGE);
        CHECK(total == 3 * w && worst == 2 * w);
    }
}

/* Checks the message when a grid was changed so that its size is not the product of its parts. */
static void test_place_of_no_grid(void)
{
    dpar_cart c = cart_of(2, 3, 3, 1, 0);
    dpar_mapping p;
    dpar_why why;
    c.size = 8;
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, 4, &why), DPAR_E_NONE);
    CHECK_TEXT(why.text, "no grid of 2 ranks has at most 3 x 3 parts");
}

static void test_place_refusals(void)
{
    static const int32_t top[] = {2147483647}, wide[] = {46340, 46340};
    dpar_cart c = cart_of(2, 4, 4, 1, 0);
    dpar_stencil s = edges(DPAR_STENCIL_BOX);
    dpar_mapping p;
    dpar_why why;
    int64_t total = 5, worst = 5;
    int32_t at[2];
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_COUNT, 4, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "kind=4 must be 0 to 3, per_node=4 at least 1");
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, 0, &why), DPAR_E_ARG);
    CHECK_INT(best_of(&p, &c, 0, &s, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "kind=0 must be 0 to 3, per_node=0 at least 1");
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, 3, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "per_node is 3, which does not divide 16 ranks");
    c = cart_of(2, 2, 9, 1, 0);
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, 18, &why), DPAR_OK);
    c = cart_of(3, 3, 3, 4, 0);
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, 8, &why), DPAR_E_DIVIDE);
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_HILBERT, 8, &why), DPAR_OK);
    s.block[2] = -1;
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "axis 2: block -1, width 1 or bytes 1 is negative");
    s.block[2] = 0; /* no cells, no halo and no bytes, so nothing crosses */
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_OK);
    s = edges(DPAR_STENCIL_BOX);
    for (at[0] = 0; at[0] < 3; at[0]++) {
        s.width[at[0]] = s.block[at[0]] = 0;
    }
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_OK);
    CHECK(total == 0 && worst == 0);
    s.bytes = -1;
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_E_ARG);
    s = edges(DPAR_STENCIL_BOX);
    s.width[0] = -1;
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_E_ARG);
    s = edges(DPAR_STENCIL_BOX);
    s.block[0] = -1;
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_E_ARG);
    s = edges(DPAR_STENCIL_BOX);
    total = worst = 5;
    s.block[2] = INT64_C(4611686018427387904);
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, &why), DPAR_E_RANGE);
    CHECK_INT(best_of(&p, &c, 8, &s, &total, &worst, &why), DPAR_E_RANGE);
    CHECK(total == 5 && worst == 5);
    CHECK_INT(dpar_cart_init(&c, 1, top, 1, NULL), DPAR_OK);
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_HILBERT, 8, NULL), DPAR_OK);
    CHECK_INT(dpar_mapping_coords(&p, 2147483646, at), DPAR_OK);
    CHECK_INT(at[0], 2147483646);
    CHECK_INT(dpar_cart_init(&c, 2, wide, 3, NULL), DPAR_OK);
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_MORTON, 8, NULL), DPAR_OK);
    CHECK_INT(dpar_mapping_coords(&p, 2147395599, at), DPAR_OK);
    CHECK_INT(dpar_mapping_rank(&p, at), 2147395599);
    s = edges(DPAR_STENCIL_STAR);
    CHECK_INT(dpar_mapping_init(&p, &c, DPAR_MAPPING_BRICKS, 4, NULL), DPAR_OK);
    CHECK_INT(dpar_mapping_cost(&p, &s, &total, &worst, NULL), DPAR_OK); /* at once: closed form */
    CHECK_INT(total, 2147395600);
    CHECK_INT(worst, 8);
}

/* Checks every cell of small grids in 1 to 3 dims: exactly one rank's block contains it, and owner
 * names that rank. The parts of a dim differ by at most one cell, the longer ones come first, and
 * ranks are row-major. */
static void test_owner_and_range(void)
{
    int64_t cells[3], first[3], count[3], at[3];
    int32_t parts[3], dims, rank, ranks, d, trial;
    for (trial = 0; trial < 3 * 6 * 6 * 6; trial++) {
        int64_t held = 0, all = 1;
        dims = trial % 3 + 1;
        for (d = 0, ranks = 1; d < 3; d++) {
            cells[d] = d < dims ? (trial / 3 * (d + 3) + 5 * d) % 8 : 1;
            parts[d] = d < dims ? trial / 3 / (d == 0 ? 1 : d == 1 ? 6 : 36) % 6 + 1 : 1;
            ranks *= parts[d];
            all *= cells[d];
            first[d] = 0;
            count[d] = 1;
        }
        for (rank = 0; rank < ranks; rank++) {
            int32_t coord[3], left = rank;
            CHECK_INT(dpar_cart_range(dims, cells, parts, rank, first, count), DPAR_OK);
            for (d = dims - 1; d >= 0; d--) {
                coord[d] = left % parts[d];
                left /= parts[d];
                CHECK_INT(count[d], cells[d] / parts[d] + (coord[d] < cells[d] % parts[d]));
                CHECK(coord[d] > 0 || first[d] == 0);
            }
            for (at[0] = first[0]; at[0] < first[0] + count[0]; at[0]++) {
                for (at[1] = first[1]; at[1] < first[1] + count[1]; at[1]++) {
                    for (at[2] = first[2]; at[2] < first[2] + count[2]; at[2]++) {
                        CHECK_INT(dpar_cart_owner(dims, cells, parts, at), rank);
                        held++;
                    }
                }
            }
        }
        CHECK_INT(held, all);
        at[0] = cells[0];
        at[1] = at[2] = 0;
        CHECK_INT(dpar_cart_owner(dims, cells, parts, at), -1);
        at[0] = -1;
        CHECK_INT(dpar_cart_owner(dims, cells, parts, at), -1);
        first[0] = -7;
        CHECK_INT(dpar_cart_range(dims, cells, parts, ranks, first, count), DPAR_E_ARG);
        CHECK_INT(dpar_cart_range(dims, cells, parts, -1, first, count), DPAR_E_ARG);
        CHECK_INT(dpar_cart_range(0, cells, parts, 0, first, count), DPAR_E_ARG);
        CHECK_INT(dpar_cart_range(DPAR_MAX_DIMS + 1, cells, parts, 0, first, count), DPAR_E_ARG);
        parts[dims - 1] = 0;
        CHECK_INT(dpar_cart_range(dims, cells, parts, 0, first, count), DPAR_E_ARG);
        at[0] = 0;
        CHECK_INT(dpar_cart_owner(dims, cells, parts, at), -1);
        parts[dims - 1] = 1;
        cells[dims - 1] = -1;
        CHECK_INT(dpar_cart_range(dims, cells, parts, 0, first, count), DPAR_E_ARG);
        CHECK_INT(first[0], -7);
    }
    /* 2^31 ranks are too many; of 2^31 - 1 ranks the last one has the last of 2^62 cells */
    cells[0] = cells[1] = INT64_C(1) << 62;
    parts[0] = 65536;
    parts[1] = 32768;
    CHECK_INT(dpar_cart_range(2, cells, parts, 0, first, count), DPAR_E_ARG);
    parts[0] = INT32_MAX;
    CHECK_INT(dpar_cart_range(1, cells, parts, INT32_MAX - 1, first, count), DPAR_OK);
    CHECK_INT(first[0] + count[0], cells[0]);
    at[0] = cells[0] - 1;
    CHECK_INT(dpar_cart_owner(1, cells, parts, at), INT32_MAX - 1);
}

int main(void)
{
    test_owner_and_range();
    test_dims_rule();
    test_dims_rule_large();
    test_dims_table();
    test_dims_fixed();
    test_dims_count();
#ifdef DPAR_IMPLEMENTATION
    test_log2();
#endif
    test_next();
    test_cut_brute_force();
    test_grid_vectors();
    test_grid_cut_of_dmda();
    test_grid_large();
    test_grid_extremes();
    test_grid_limits();
    test_cart_init();
    test_stencil_axes();
    test_place_tables();
    test_place_brute_force();
    test_bricks_are_best();
    test_curves();
    test_skipping();
    test_row_major();
    test_corners();
    test_sides();
    test_edges();
    test_place_best();
    test_cost_limits();
    test_place_refusals();
    test_place_of_no_grid();
    return CHECK_DONE();
}
