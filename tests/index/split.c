/* SPDX-License-Identifier: MIT-0 */
/* Tests split: compares every rule with its definition for all N <= 40 and P <= 12; vectors A13,
 * B1-B9, B11, B12 and F3 of facts/index_math.md, with the source at each; extremes. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "check.h"
#include "split_oracle.h"

enum { MOST = 64 };

static void check_part(const dpar_split *s, const int *owner, int n, int part)
{
    int64_t local = 0, run = -1, left = 0, at;
    int i, first = n;
    for (i = 0; i < n; i++) {
        CHECK_INT(dpari_split_before(s, part, i), local);
        if (owner[i] != part) {
            continue;
        }
        first = first == n ? i : first;
        CHECK_INT(dpar_split_global(s, part, local, &run), i);
        CHECK_INT(dpar_split_locate(s, i, &at, &left), part);
        CHECK_INT(at, local);
        CHECK_INT(left, run);
        for (at = i; at < n && owner[at] == part; at++) { /* the longest run, and not longer */
        }
        CHECK_INT(run, at - i);
        local++;
    }
    CHECK_INT(dpar_split_part_count(s, part), local);
    CHECK_INT(dpari_split_before(s, part, n), local);
    CHECK_INT(dpari_split_before(s, part, n + 5), local);
    CHECK_INT(dpar_split_part_first(s, part), first);
    CHECK_INT(dpar_split_global(s, part, local, &run), -1);
    CHECK_INT(dpar_split_global(s, part, -1, &run), -1);
}

/* Checks the calls without a split: those for rules that need only numbers, and refusals for the
 * others. */
static void check_without(const dpar_split *s, const int *owner, int n)
{
    const int numbers = s->rule != DPAR_SPLIT_BLOCK_CYCLIC && s->rule != DPAR_SPLIT_RAGGED &&
                        s->rule != DPAR_SPLIT_STRIDED;
    int i, part;
    for (i = -1; i <= n; i++) {
        CHECK_INT(dpar_split_owner(s->rule, n, s->parts, i),
                  numbers && i >= 0 && i < n ? owner[i] : -1);
    }
    for (part = -1; part <= s->parts; part++) {
        const int one_run = s->rule == DPAR_SPLIT_CHUNK || s->rule == DPAR_SPLIT_EVEN ||
                            s->rule == DPAR_SPLIT_FLOOR;
        int64_t first = -7, elements = -7;
        int begins = n, many = 0;
        for (i = n - 1; i >= 0; i--) {
            begins = owner[i] == part ? i : begins;
            many += owner[i] == part;
        }
        if (one_run && part >= 0 && part < s->parts) {
            CHECK_INT(dpar_split_range(s->rule, n, s->parts, part, &first, &elements), DPAR_OK);
            CHECK_INT(first, begins);
            CHECK_INT(elements, many);
        } else {
            CHECK_INT(dpar_split_range(s->rule, n, s->parts, part, &first, &elements), DPAR_E_ARG);
            CHECK_INT(first, -7);
            CHECK_INT(elements, -7);
        }
    }
}

static void check_all(const dpar_split *s, const int *owner, int n)
{
    int i, part;
    for (i = 0; i < n; i++) {
        CHECK_INT(dpar_split_locate(s, i, NULL, NULL), owner[i]);
        CHECK(s->rule != DPAR_SPLIT_EVEN || dpari_even_of(n, s->parts, i) == owner[i]);
        CHECK(i == 0 || owner[i] >= owner[i - 1] || !dpari_split_in_order(s));
    }
    CHECK_INT(dpar_split_locate(s, -1, NULL, NULL), -1);
    CHECK_INT(dpar_split_locate(s, n, NULL, NULL), -1);
    check_without(s, owner, n);
    for (part = 0; part < s->parts; part++) {
        check_part(s, owner, n, part);
    }
    CHECK(dpari_split_in_order(s) == (s->rule == DPAR_SPLIT_CHUNK || s->rule == DPAR_SPLIT_EVEN ||
                                      s->rule == DPAR_SPLIT_FLOOR || s->rule == DPAR_SPLIT_RAGGED));
    CHECK_INT(dpar_split_part_count(s, -1), 0);
    CHECK_INT(dpar_split_part_count(s, s->parts), 0);
}

static void test_brute_force(void)
{
    int owner[MOST], rule, n, p, block, source, i;
    for (rule = 0; rule < DPAR_SPLIT_RULE_COUNT; rule++) {
        int blocks = rule == DPAR_SPLIT_BLOCK_CYCLIC || rule == DPAR_SPLIT_STRIDED ? 14 : 1;
        for (n = 0; n <= 40 && rule != DPAR_SPLIT_RAGGED; n++) {
            for (p = 1; p <= 12; p++) {
                for (block = 1; block <= blocks; block++) {
                    for (source = 0; source < (rule == DPAR_SPLIT_BLOCK_CYCLIC ? p : 1); source++) {
                        dpar_split s, other;
                        CHECK_INT(dpar_split_init(&s, rule, n, p, block, NULL), DPAR_OK);
                        CHECK_INT(dpar_split_init(&other, rule, 99, p, block, NULL), DPAR_OK);
                        s.source = other.source = source;
                        dpari_split_resize(&other, n);
                        CHECK(memcmp(&s, &other, sizeof s) == 0);
                        for (i = 0; i < n; i++) {
                            owner[i] = owner_of(rule, i, n, p, block, source);
                        }
                        check_all(&s, owner, n);
                    }
                }
            }
        }
    }
}

/* Checks all ascending cuts of up to 6 elements into up to 4 parts. */
static void test_ragged(void)
{
    int64_t cuts[5];
    int owner[MOST], n, p, code, i, k;
    for (p = 1; p <= 4; p++) {
        for (n = 0; n <= 6; n++) {
            for (code = 0; code < 7 * 7 * 7; code++) {
                dpar_split s;
                int rest = code, ascending = 1;
                cuts[0] = 0;
                for (k = 1; k < p; k++, rest /= 7) {
                    cuts[k] = rest % 7;
                    ascending = ascending && cuts[k] >= cuts[k - 1];
                }
                cuts[p] = n;
                ascending = ascending && cuts[p] >= cuts[p - 1] && rest == 0;
                if (!ascending) {
                    continue;
                }
                CHECK_INT(dpar_split_init_ragged(&s, p, cuts, NULL), DPAR_OK);
                for (i = 0; i < n; i++) {
                    for (k = 0; cuts[k + 1] <= i; k++) {
                    }
                    owner[i] = k;
                }
                check_all(&s, owner, n);
            }
        }
    }
}

static void sizes(int rule, int64_t n, int32_t p, int64_t block, int32_t source, const int *expect)
{
    dpar_split s;
    int32_t i;
    CHECK_INT(dpar_split_init(&s, rule, n, p, block, NULL), DPAR_OK);
    s.source = source;
    for (i = 0; i < p; i++) {
        CHECK_INT(dpar_split_part_count(&s, i), expect[i]);
    }
}

static void cuts_are(int rule, int64_t n, int32_t p, const int *cuts)
{
    dpar_split s;
    int32_t i;
    CHECK_INT(dpar_split_init(&s, rule, n, p, 1, NULL), DPAR_OK);
    for (i = 0; i < p; i++) {
        CHECK_INT(dpar_split_part_count(&s, i), cuts[i + 1] - cuts[i]);
        if (cuts[i] < cuts[i + 1]) {
            CHECK_INT(dpar_split_part_first(&s, i), cuts[i]);
        }
    }
}

static void indices(int rule, int64_t n, int32_t p, int64_t block, int32_t part, const int *expect,
                    int count)
{
    dpar_split s;
    int i;
    CHECK_INT(dpar_split_init(&s, rule, n, p, block, NULL), DPAR_OK);
    CHECK_INT(dpar_split_part_count(&s, part), count);
    for (i = 0; i < count; i++) {
        CHECK_INT(dpar_split_global(&s, part, i, NULL), expect[i]);
    }
}

#define ARE(...)                                                                                   \
    (const int[])                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static void test_vectors(void)
{
    dpar_split s;
    int64_t local;
    int i;
    static const int owner[10] = {2, 2, 2, 3, 3, 3, 0, 0, 0, 1};
    static const int at[10] = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1};
    /* 1.1: five rules share the name "block" */
    sizes(DPAR_SPLIT_CHUNK, 10, 4, 0, 0, ARE(3, 3, 3, 1));
    sizes(DPAR_SPLIT_EVEN, 10, 4, 0, 0, ARE(3, 3, 2, 2));
    sizes(DPAR_SPLIT_FLOOR, 10, 4, 0, 0, ARE(2, 3, 2, 3));
    sizes(DPAR_SPLIT_CHUNK, 5, 4, 0, 0, ARE(2, 2, 1, 0));
    sizes(DPAR_SPLIT_EVEN, 9, 8, 0, 0, ARE(2, 1, 1, 1, 1, 1, 1, 1));
    sizes(DPAR_SPLIT_FLOOR, 9, 8, 0, 0, ARE(1, 1, 1, 1, 1, 1, 1, 2));
    sizes(DPAR_SPLIT_FLOOR, 7, 3, 0, 0, ARE(2, 2, 3));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 9, 8, 2, 0, ARE(2, 2, 2, 2, 1, 0, 0, 0));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 7, 3, 2, 0, ARE(3, 2, 2));
    /* A13: DTensor's CHUNK, where offsets of empty parts are N */
    cuts_are(DPAR_SPLIT_CHUNK, 5, 4, ARE(0, 2, 4, 5, 5));
    cuts_are(DPAR_SPLIT_CHUNK, 7, 3, ARE(0, 3, 6, 7));
    cuts_are(DPAR_SPLIT_CHUNK, 6, 4, ARE(0, 2, 4, 6, 6));
    cuts_are(DPAR_SPLIT_CHUNK, 9, 8, ARE(0, 2, 4, 6, 8, 9, 9, 9, 9));
    CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_CHUNK, 1, 4, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_split_part_first(&s, 3), 1);
    /* B1: EVEN, DeepSpeed partition_uniform; B2: FLOOR, p4est */
    cuts_are(DPAR_SPLIT_EVEN, 10, 4, ARE(0, 3, 6, 8, 10));
    cuts_are(DPAR_SPLIT_EVEN, 7, 3, ARE(0, 3, 5, 7));
    cuts_are(DPAR_SPLIT_EVEN, 2, 4, ARE(0, 1, 2, 2, 2));
    cuts_are(DPAR_SPLIT_EVEN, 8, 4, ARE(0, 2, 4, 6, 8));
    cuts_are(DPAR_SPLIT_FLOOR, 10, 4, ARE(0, 2, 5, 7, 10));
    cuts_are(DPAR_SPLIT_FLOOR, 7, 3, ARE(0, 2, 4, 7));
    cuts_are(DPAR_SPLIT_FLOOR, 2, 4, ARE(0, 0, 1, 1, 2));
    /* B3: PetscSplitOwnershipEqual */
    sizes(DPAR_SPLIT_CHUNK, 9, 8, 0, 0, ARE(2, 2, 2, 2, 1, 0, 0, 0));
    sizes(DPAR_SPLIT_CHUNK, 2, 4, 0, 0, ARE(1, 1, 0, 0));
    /* B5: numroc, ScaLAPACK 2.2.1 executed */
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 9, 2, 2, 0, ARE(5, 4));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 9, 3, 2, 0, ARE(4, 3, 2));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 3, 0, ARE(3, 3, 3, 1));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 3, 2, ARE(3, 1, 3, 3));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 5, 4, 64, 0, ARE(5, 0, 0, 0));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 0, 3, 2, 0, ARE(0, 0, 0));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 17, 3, 4, 1, ARE(4, 8, 5));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 16, 2, 4, 1, ARE(8, 8));
    sizes(DPAR_SPLIT_BLOCK_CYCLIC, 100, 6, 8, 5, ARE(16, 16, 16, 16, 16, 20));
    /* B6: indxg2p and indxg2l, N=10 NB=3 P=4 src=2, there 1-based */
    CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 3, NULL), DPAR_OK);
    s.source = 2;
    for (i = 0; i < 10; i++) {
        CHECK_INT(dpar_split_locate(&s, i, &local, NULL), owner[i]);
        CHECK_INT(local + 1, at[i]);
    }
    /* B7-B9: MPI darray, executed: BLOCK is CHUNK, BLOCK(4) and CYCLIC(k) block-cyclic */
    for (i = 0; i < 3; i++) {
        indices(DPAR_SPLIT_CHUNK, 10, 4, 0, i, ARE(3 * i, 3 * i + 1, 3 * i + 2), 3);
        indices(DPAR_SPLIT_CHUNK, 5, 4, 0, i, ARE(2 * i, 2 * i + 1), i < 2 ? 2 : 1);
        indices(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 3, i, ARE(3 * i, 3 * i + 1, 3 * i + 2), 3);
    }
    indices(DPAR_SPLIT_CHUNK, 10, 4, 0, 3, ARE(9), 1);
    indices(DPAR_SPLIT_CHUNK, 5, 4, 0, 3, ARE(0), 0);
    indices(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 3, 3, ARE(9), 1);
    indices(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 4, 0, ARE(0, 1, 2, 3), 4);
    indices(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 4, 1, ARE(4, 5, 6, 7), 4);
    indices(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 4, 2, ARE(8, 9), 2);
    indices(DPAR_SPLIT_BLOCK_CYCLIC, 10, 4, 4, 3, ARE(0), 0);
    indices(DPAR_SPLIT_CYCLIC, 10, 4, 0, 0, ARE(0, 4, 8), 3);
    indices(DPAR_SPLIT_CYCLIC, 10, 4, 0, 1, ARE(1, 5, 9), 3);
    indices(DPAR_SPLIT_CYCLIC, 10, 4, 0, 2, ARE(2, 6), 2);
    indices(DPAR_SPLIT_CYCLIC, 10, 4, 0, 3, ARE(3, 7), 2);
    /* F3: zigzag */
    indices(DPAR_SPLIT_ZIGZAG, 8, 2, 0, 0, ARE(0, 1, 6, 7), 4);
    indices(DPAR_SPLIT_ZIGZAG, 8, 2, 0, 1, ARE(2, 3, 4, 5), 4);
    indices(DPAR_SPLIT_ZIGZAG, 16, 4, 0, 2, ARE(4, 5, 10, 11), 4);
    indices(DPAR_SPLIT_ZIGZAG, 16, 4, 0, 3, ARE(6, 7, 8, 9), 4);
    /* A9, A12: strided shards, as shipped */
    indices(DPAR_SPLIT_STRIDED, 8, 4, 2, 1, ARE(1, 5), 2);
    indices(DPAR_SPLIT_STRIDED, 8, 2, 2, 1, ARE(2, 3, 6, 7), 4);
    indices(DPAR_SPLIT_STRIDED, 5, 2, 2, 0, ARE(0, 1, 3), 3);
    indices(DPAR_SPLIT_STRIDED, 5, 2, 2, 1, ARE(2, 4), 2);
}

static void test_weights(void)
{
    static const int64_t even[] = {1, 1, 1, 1}, some[] = {3, 0, 1}, none[] = {0, 0},
                         bad[] = {2, -1};
    static const int64_t huge[] = {2147483647, 1};
    int64_t cuts[5];
    dpar_why why;
    CHECK_INT(dpar_split_weighted_cuts(cuts, 10, 4, even, 1, NULL), DPAR_OK); /* FLOOR's cuts */
    CHECK(cuts[0] == 0 && cuts[1] == 2 && cuts[2] == 5 && cuts[3] == 7 && cuts[4] == 10);
    CHECK_INT(dpar_split_weighted_cuts(cuts, 16, 3, some, 4, NULL), DPAR_OK);
    CHECK(cuts[1] == 12 && cuts[2] == 12 && cuts[3] == 16);
    CHECK_INT(dpar_split_weighted_cuts(cuts, 13, 3, some, 4, NULL),
              DPAR_OK); /* a shorter last atom */
    CHECK(cuts[1] == 12 && cuts[2] == 12 && cuts[3] == 13);
    CHECK_INT(dpar_split_weighted_cuts(cuts, INT64_C(1) << 62, 3, some, 1, NULL), DPAR_OK);
    CHECK(cuts[1] == INT64_C(3) << 60 && cuts[3] == INT64_C(1) << 62);
    CHECK_INT(dpar_split_weighted_cuts(cuts, 5, 2, none, 1, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "all 2 weights are 0");
    CHECK_INT(dpar_split_weighted_cuts(cuts, 5, 2, bad, 1, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "weights[1] is -1: must be at least 0");
    CHECK_INT(dpar_split_weighted_cuts(cuts, 5, 2, huge, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_split_weighted_cuts(cuts, 5, 2, some, 0, &why), DPAR_E_ARG);
}

/* Returns the least maximum over all cuts of n items into p runs, by trying all of them. */
static int64_t least_maximum(const int64_t *cost, int n, int p)
{
    int64_t best = INT64_MAX, load;
    int code, all = 1, k, i;
    for (k = 0; k < p - 1; k++) {
        all *= n + 1;
    }
    for (code = 0; code < all; code++) {
        int rest = code, before = 0, ok = 1;
        int64_t most = 0;
        for (k = 0; k < p && ok; k++, rest /= n + 1) {
            int cut = k == p - 1 ? n : rest % (n + 1);
            ok = cut >= before;
            for (load = 0, i = before; i < cut; i++) {
                load += cost[i];
            }
            most = load > most ? load : most;
            before = cut;
        }
        best = ok && most < best ? most : best;
    }
    return best;
}

static void check_balance(const int64_t *cost, int n, int p)
{
    int64_t cuts[8], load, most = 0,
                           fenced[16] = {0}; /* the items before and behind cost nothing */
    int k, i;
    memcpy(fenced + 1, cost, (size_t)n * sizeof cost[0]);
    CHECK_INT(dpar_split_balance(cuts, n, fenced + 1, p, NULL), DPAR_OK);
    CHECK(cuts[0] == 0 && cuts[p] == n);
    for (k = 0; k < p; k++) {
        CHECK(cuts[k] <= cuts[k + 1]);
        CHECK(n < p || cuts[k] < cuts[k + 1]);
        for (load = 0, i = (int)cuts[k]; i < cuts[k + 1]; i++) {
            load += cost[i];
        }
        most = load > most ? load : most;
    }
    CHECK_INT(most, least_maximum(cost, n, p));
}

/* Returns the cost of the heaviest run minus that of the lightest. */
static int64_t spread_of(const int64_t *cost, int n, int p)
{
    int64_t cuts[8], most = 0, least = INT64_MAX;
    int k, i;
    CHECK_INT(dpar_split_balance(cuts, n, cost, p, NULL), DPAR_OK);
    for (k = 0; k < p; k++) {
        int64_t load = 0;
        for (i = (int)cuts[k]; i < cuts[k + 1]; i++) {
            load += cost[i];
        }
        most = load > most ? load : most;
        least = load < least ? load : least;
    }
    return most - least;
}

/* Compares with B11 (DeepSpeed test_partition_balanced): its cuts and its spreads; checks that the
 * maximum is always the least. */
static void test_balance(void)
{
    static const int64_t a[] = {0, 1, 2, 3, 3, 3}, b[] = {0, 11, 19, 30, 30, 30}, c[] = {1, 2, 1};
    static const int64_t d[] = {1, 1, 1, 1, 1}, e[] = {1, 1, 1, 1, 0, 1}, bad[] = {1, -2};
    static const int64_t heavy[] = {9, 1, 1, 1, 1};
    static const struct {
        int n, p;
        int64_t cost[5], cuts[5];
    } shares[] = {{3, 2, {4, 2, 5}, {0, 2, 3}},
                  {3, 2, {1, 6, 2}, {0, 2, 3}},
                  {4, 3, {0, 5, 0, 5}, {0, 2, 3, 4}},
                  {5, 4, {1, 5, 4, 1, 5}, {0, 1, 2, 4, 5}},
                  {3, 2, {1, 2, 1}, {0, 1, 3}}};
    int64_t cuts[8], random[7];
    uint32_t state = 1;
    dpar_why why;
    int p, n, k, i;
    for (p = 1; p <= 5; p++) {
        check_balance(a, 6, p);
        check_balance(b, 6, p);
        check_balance(c, 3, p);
        check_balance(d, 5, p);
        check_balance(e, 6, p);
    }
    for (k = 0; k < 300; k++) {
        n = k % 7;
        for (i = 0; i < n; i++) {
            state = state * 1664525u + 1013904223u;
            random[i] = state >> 28;
        }
        check_balance(random, n, 1 + k % 4);
    }
    CHECK_INT(dpar_split_balance(cuts, 6, a, 4, NULL), DPAR_OK); /* 0,3,4,5,6 */
    CHECK(cuts[1] == 3 && cuts[2] == 4 && cuts[3] == 5 && cuts[4] == 6);
    CHECK_INT(dpar_split_balance(cuts, 6, b, 4, NULL), DPAR_OK); /* the same, times 10 */
    CHECK(cuts[1] == 3 && cuts[2] == 4 && cuts[3] == 5 && cuts[4] == 6);
    CHECK_INT(dpar_split_balance(cuts, 5, heavy, 3, NULL), DPAR_OK); /* 9, 2, 2 */
    CHECK(cuts[1] == 1 && cuts[2] == 3);
    CHECK_INT(dpar_split_balance(cuts, 5, heavy, 4, NULL), DPAR_OK); /* 9, 1, 1, 2 */
    CHECK(cuts[1] == 1 && cuts[2] == 2 && cuts[3] == 3);
    for (i = 0; i < 5; i++) { /* least maximum, then nearest to even, then the shorter one */
        CHECK_INT(dpar_split_balance(cuts, shares[i].n, shares[i].cost, shares[i].p, NULL),
                  DPAR_OK);
        for (k = 0; k <= shares[i].p; k++) {
            CHECK_INT(cuts[k], shares[i].cuts[k]);
        }
        check_balance(shares[i].cost, shares[i].n, shares[i].p);
    }
    CHECK_INT(spread_of(c, 3, 4), 2);
    CHECK_INT(spread_of(d, 5, 4), 1);
    CHECK_INT(spread_of(e, 6, 4), 1);
    CHECK_INT(dpar_split_balance(cuts, 2, bad, 2, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "cost[1] is -2") != NULL);
}

/* Checks N = 2^62, P = 2^31 - 1: the maps invert each other at both ends and at random
 * positions. */
static void test_extremes(void)
{
    static const int64_t count[] = {INT64_C(1) << 62, (INT64_C(1) << 62) - 1, 2147483648, 1};
    static const int32_t parts[] = {2147483647, 2147483646, 3, 1};
    static const int64_t block[] = {1, 7, 2147483647, INT64_C(1) << 62, INT64_MAX};
    uint64_t state = 88172645463325252u;
    int rule, i, j, k, t;
    for (rule = 0; rule < DPAR_SPLIT_RULE_COUNT; rule++) {
        for (i = 0; i < 4 * 4 * 5 && rule != DPAR_SPLIT_RAGGED; i++) {
            dpar_split s;
            j = i / 4 % 4;
            k = i / 16;
            CHECK_INT(dpar_split_init(&s, rule, count[i % 4], parts[j], block[k], NULL), DPAR_OK);
            for (t = 0; t < 40; t++) {
                int64_t local, run, back, at;
                int32_t part;
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                at = (int64_t)(state >> 1) % s.count;
                at = t == 0 ? 0 : t == 1 ? s.count - 1 : at;
                part = dpar_split_locate(&s, at, &local, &run);
                CHECK(part >= 0 && part < s.parts && part == dpar_split_locate(&s, at, NULL, NULL));
                CHECK_INT(dpar_split_global(&s, part, local, &back), at);
                CHECK(run == back && run >= 1 && at + run <= s.count);
                CHECK_INT(dpari_split_before(&s, part, at), local);
                CHECK(dpar_split_part_count(&s, part) > local);
            }
        }
    }
}

static void refuse(int rule, int64_t n, int32_t p, int64_t block, int status, const char *text)
{
    dpar_split s, before;
    dpar_why why;
    memset(&s, 5, sizeof s);
    before = s;
    CHECK_INT(dpar_split_init(&s, rule, n, p, block, &why), status);
    CHECK_TEXT(why.text, text);
    CHECK(memcmp(&s, &before, sizeof s) == 0);
}

static void test_refusals(void)
{
    static const int64_t falls[] = {0, 3, 2}, late[] = {1, 2}, long_one[] = {0, INT64_MAX};
    dpar_split s;
    dpar_why why;
    refuse(DPAR_SPLIT_CHUNK, 5, 0, 0, DPAR_E_ARG, "0 parts: there must be at least 1");
    refuse(DPAR_SPLIT_CHUNK, -5, 2, 0, DPAR_E_ARG, "-5 elements: there must be 0 or more");
    refuse(DPAR_SPLIT_EVEN, INT64_MAX, 2, 0, DPAR_E_RANGE,
           "9223372036854775807 elements: at most 2^62 can be split");
    refuse(DPAR_SPLIT_BLOCK_CYCLIC, 5, 2, 0, DPAR_E_ARG, "block is 0: must be at least 1");
    refuse(DPAR_SPLIT_RAGGED, 5, 2, 1, DPAR_E_ARG,
           "rule 4 does not exist, or is RAGGED (use dpar_split_init_ragged)");
    refuse(99, 5, 2, 1, DPAR_E_ARG,
           "rule 99 does not exist, or is RAGGED (use dpar_split_init_ragged)");
    CHECK_INT(dpar_split_init_ragged(&s, 2, falls, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "cuts[1] is 3, but cuts[2] is only 2");
    CHECK_INT(dpar_split_init_ragged(&s, 1, late, &why), DPAR_E_ARG);
    CHECK_INT(dpar_split_init_ragged(&s, 1, long_one, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_split_init_ragged(&s, 0, late, &why), DPAR_E_ARG);
}

/* Checks edges that brute force over legal values does not reach. */
static void test_edges(void)
{
    static const int64_t none[] = {0, 0, 0}, below[] = {0, -1, 3};
    int64_t cost[] = {INT64_C(1) << 61, INT64_C(1) << 61, 1}, cuts[8], at = 77, run = 77;
    int64_t weight[] = {INT32_MAX - 5, 5, 1};
    dpar_split s;
    dpar_why why;
    int rule, k;
    for (rule = 0; rule < DPAR_SPLIT_RULE_COUNT; rule++) {
        if (rule == DPAR_SPLIT_RAGGED) {
            CHECK_INT(dpar_split_init_ragged(&s, 2, none, NULL), DPAR_OK);
        } else {
            CHECK_INT(dpar_split_init(&s, rule, 7, 2, 2, NULL), DPAR_OK);
        }
        CHECK_INT(dpar_split_locate(&s, -1, &at, &run), -1);
        CHECK_INT(dpar_split_locate(&s, s.count, &at, &run), -1);
        CHECK(at == 77 && run == 77);
        CHECK(dpari_split_before(&s, -1, 5) == 0 && dpari_split_before(&s, 2, 5) == 0);
        CHECK(dpar_split_global(&s, -1, 0, &run) == -1 && dpar_split_global(&s, 2, 0, &run) == -1);
    }
    CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_RULE_COUNT, 7, 2, 2, &why), DPAR_E_ARG);
    CHECK_INT(dpar_split_init(&s, -1, 7, 2, 2, &why), DPAR_E_ARG);
    CHECK_INT(dpar_split_init_ragged(&s, 2, below, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "cuts[0] is 0, but cuts[1] is only -1");
    CHECK_INT(dpar_split_weighted_cuts(cuts, 100, 2, weight, 1, NULL),
              DPAR_OK); /* 2^31 - 1 in total */
    CHECK_INT(dpar_split_weighted_cuts(cuts, 100, 3, weight, 1, &why), DPAR_E_RANGE);
    for (k = 0; k < 8; k++) {
        cuts[k] = 99;
    }
    CHECK_INT(dpar_split_balance(cuts, 2, cost, 2, NULL), DPAR_OK); /* 2^62 in total */
    CHECK(cuts[0] == 0 && cuts[1] == 1 && cuts[2] == 2 && cuts[3] == 99);
    CHECK_INT(dpar_split_balance(cuts, 3, cost, 2, &why), DPAR_E_RANGE);
    cost[0] = cost[1] = 3;
    CHECK_INT(dpar_split_balance(cuts, 2, cost, 4, NULL), DPAR_OK); /* the first runs are filled */
    CHECK(cuts[0] == 0 && cuts[1] == 1 && cuts[2] == 2 && cuts[3] == 2 && cuts[4] == 2);
    CHECK_INT(cuts[5], 99);
}

/* B4: cuDecomp (a port): 10 over 4; 12 over 4 with gdims_dist 10: the offsets of EVEN, and from the
 * first empty part on the count, as split.h defines. */
static void rest(int64_t *cuts, int64_t count, int64_t even, int32_t parts)
{
    dpar_split e;
    int32_t p;
    CHECK_INT(dpar_split_init(&e, DPAR_SPLIT_EVEN, even, parts, 0, NULL), DPAR_OK);
    for (p = 0; p <= parts; p++) {
        cuts[p] = p > 0 && dpar_split_part_count(&e, p) == 0 ? count : dpar_split_part_first(&e, p);
    }
    cuts[0] = 0;
}

static void test_rest(void)
{
    static const int64_t ten[] = {0, 3, 6, 8, 10}, twelve[] = {0, 3, 6, 8, 12};
    int64_t cuts[13], count, even;
    int32_t parts, p;
    rest(cuts, 10, 10, 4);
    CHECK(memcmp(cuts, ten, sizeof ten) == 0);
    rest(cuts, 12, 10, 4);
    CHECK(memcmp(cuts, twelve, sizeof twelve) == 0);
    for (count = 0; count <= 20; count++) {
        for (even = 0; even <= count; even++) {
            for (parts = 1; parts <= 12; parts++) {
                dpar_split s, e;
                int32_t last = 0;
                rest(cuts, count, even, parts);
                CHECK_INT(dpar_split_init_ragged(&s, parts, cuts, NULL), DPAR_OK);
                CHECK_INT(dpar_split_init(&e, DPAR_SPLIT_EVEN, even, parts, 0, NULL), DPAR_OK);
                for (p = 0; p < parts; p++) {
                    last = dpar_split_part_count(&e, p) > 0 ? p : last;
                }
                for (p = 0; p < parts; p++) {
                    CHECK_INT(dpar_split_part_count(&s, p),
                              dpar_split_part_count(&e, p) + (p == last ? count - even : 0));
                }
            }
        }
    }
}

static uint64_t rng(void) /* xorshift64 */
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Compares divisors of every length, including powers of two and their neighbours, with / and %,
 * for indices up to the last one, at multiples and next to them. */
static void test_divisors(void)
{
    const int64_t last = (INT64_C(1) << 62) - 1;
    int bits, trial;
    for (bits = 0; bits <= 62; bits++) {
        for (trial = 0; trial < 400; trial++) {
            uint64_t near_by = trial < 100 ? (uint64_t)(trial % 5) - 2 : rng() >> 1 >> (63 - bits);
            int64_t d = (int64_t)(((uint64_t)1 << bits) + near_by), i, local;
            int32_t parts = 1 + (int32_t)(rng() % (trial % 2 ? 5 : INT32_MAX)), k;
            dpar_split s;
            d = d < 1 ? 1 : d;
            CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_BLOCK_CYCLIC, last + 1, parts, d, NULL),
                      DPAR_OK);
            for (k = 0; k < 12; k++) {
                i = (int64_t)(rng() >> (2 + rng() % 62));
                i = k < 3 ? last - k : k < 6 ? i / d * d + k - 4 : i; /* -1, 0, 1 beside it */
                i = i < 0 ? 0 : i > last ? last : i;
                CHECK_INT(dpar_split_locate(&s, i, &local, NULL), i / d % parts);
                CHECK_INT(local, i / d / parts * d + i % d);
            }
        }
    }
    for (trial = 0; trial < 2000; trial++) { /* P N close to 2^63, and the last element */
        dpar_split s;
        int64_t run = -2, count = INT64_C(1) << (34 + trial % 28);
        int32_t parts;
        count -= 1 + (int64_t)(rng() % (uint64_t)(count >> (1 + trial % 30)));
        parts = (int32_t)(INT64_MAX / count < INT32_MAX ? INT64_MAX / count : INT32_MAX);
        CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_FLOOR, count, parts, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_split_locate(&s, count - 1, NULL, NULL), parts - 1);
        CHECK_INT(dpar_split_locate(&s, count, NULL, &run), -1);
        CHECK_INT(dpar_split_locate(&s, -1, NULL, &run), -1);
        CHECK_INT(dpar_split_locate(&s, count, &run, NULL), -1);
        CHECK_INT(dpar_split_locate(&s, -1, &run, NULL), -1);
        CHECK_INT(run, -2);
    }
}

int main(void)
{
    test_brute_force();
    test_ragged();
    test_vectors();
    test_weights();
    test_balance();
    test_extremes();
    test_refusals();
    test_rest();
    test_edges();
    test_divisors();
    return CHECK_DONE();
}
