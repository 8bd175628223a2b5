/* SPDX-License-Identifier: MIT-0 */
/* exchange: rounds are matchings and as few as the largest degree; relabelling against all
 * permutations; coverage against counting; vectors D8, D9, E9, E10 of facts/index_math.md. */
#include "dpar.h"

#include "check.h"
#include "random.h"

enum { EDGES = 400, SIDE = 16 };

static dpar_exchange many(const dpar_edge *edge, int64_t n, int senders, int receivers,
                          int64_t *scratch, int64_t cells)
{
    dpar_exchange e;
    e.edge = edge;
    e.n = n;
    e.senders = senders;
    e.receivers = receivers;
    e.scratch = scratch;
    e.cells = cells;
    return e;
}

static int32_t check_rounds(const dpar_edge *edge, int n, int senders, int receivers)
{
    static int64_t table[2 * SIDE * EDGES];
    static int32_t round[EDGES];
    dpar_exchange e = many(edge, n, senders, receivers, table, senders + receivers);
    int32_t rounds = -1, same = -1, degree[2 * SIDE] = {0}, most = 0;
    int k, j;
    for (k = 0; k < n; k++) {
        int a = ++degree[edge[k].from], b = ++degree[SIDE + edge[k].to];
        most = a > most ? a : most;
        most = b > most ? b : most;
    }
    CHECK_INT(dpar_exchange_rounds(&e, &rounds, NULL, NULL), DPAR_OK);
    CHECK_INT(rounds, most);
    round[0] = 99;
    if (rounds > 1) { /* room for one round alone, then for one number too few */
        CHECK_INT(dpar_exchange_rounds(&e, &same, round, NULL), DPAR_E_ROOM);
        e.cells = (int64_t)(senders + receivers) * rounds - 1;
        CHECK_INT(dpar_exchange_rounds(&e, &same, round, NULL), DPAR_E_ROOM);
        CHECK(same == rounds && round[0] == 99);
    }
    e.cells = (int64_t)(senders + receivers) * (rounds > 1 ? rounds : 1);
    CHECK_INT(dpar_exchange_rounds(&e, &same, round, NULL), DPAR_OK);
    CHECK_INT(same, rounds);
    for (k = 0; k < n; k++) {
        CHECK(round[k] >= 0 && round[k] < rounds);
        for (j = 0; j < k; j++) {
            CHECK(round[k] != round[j] ||
                  (edge[k].from != edge[j].from && edge[k].to != edge[j].to));
        }
    }
    return rounds;
}

static void test_rounds(void)
{
    static dpar_edge edge[EDGES];
    static int64_t table[64];
    int32_t round[4], rounds, trial, n, i, j, k;
    dpar_why why;
    for (trial = 0; trial < 400; trial++) { /* multigraphs too */
        int senders = 1 + below(SIDE), receivers = 1 + below(SIDE);
        n = below(150);
        for (k = 0; k < n; k++) {
            edge[k].from = below(senders);
            edge[k].to = below(receivers);
        }
        (void)check_rounds(edge, n, senders, receivers);
    }
    for (n = 2; n <= 8; n++) { /* E10: a complete all-to-all takes n - 1 rounds: 3, 4, 5, 7 */
        for (i = 0, k = 0; i < n; i++) {
            for (j = 0; j < n; j++) {
                edge[k].from = i;
                edge[k].to = j;
                k += i != j;
            }
        }
        CHECK_INT(check_rounds(edge, k, n, n), n - 1);
    }
    /* what is outside or negative is refused, and nothing is written */
    for (k = 0; k < 8; k++) {
        static const int bad[8][4] = {{1, 4, 4, 64},  {1, -4, 4, 64}, {1, 4, -4, 64},
                                      {-1, 4, 4, 64}, {0, -4, 4, 64}, {0, 4, -4, 64},
                                      {2, 4, 4, 7},   {2, 4, 4, 64}};
        dpar_exchange e = many(edge, bad[k][0], bad[k][1], bad[k][2], table, bad[k][3]);
        edge[0].from = k == 0 ? 4 : 1;
        edge[0].to = 0;
        edge[1].from = 1;
        edge[1].to = k == 7 ? 9 : 1;
        rounds = round[0] = round[1] = 77;
        CHECK_INT(dpar_exchange_rounds(&e, &rounds, round, &why),
                  k == 6 ? DPAR_E_ROOM : DPAR_E_ARG);
        CHECK(rounds == 77 && round[0] == 77 && round[1] == 77);
        if (k == 0 || k == 7) {
            CHECK_TEXT(why.text, k == 0 ? "message 0 goes from 4 to 0: that is outside"
                                        : "message 1 goes from 1 to 9: that is outside");
        }
    }
    {
        dpar_exchange e = many(edge, 0, 0, 0, table, 0); /* nothing to do */
        CHECK_INT(dpar_exchange_rounds(&e, &rounds, round, &why), DPAR_OK);
        CHECK_INT(rounds, 0);
        e = many(edge, 2, 4, 4, table, 8);
        edge[0].from = 0;
        edge[0].to = edge[1].to = 2; /* two arrive at one rank */
        CHECK_INT(dpar_exchange_rounds(&e, &rounds, round, &why), DPAR_E_ROOM);
        CHECK_TEXT(why.text, "2 rounds of 8 ranks: scratch of 8 numbers is too small");
        CHECK_INT(rounds, 2);
    }
}

/* The most that a permutation of n <= 7 keeps, trying all by Heap's exchanges. */
static int64_t best_of_all(int n, const int64_t *kept)
{
    int64_t best = -1, sum;
    int perm[8], count[8] = {0}, i = 0, k, swap;
    for (k = 0; k < n; k++) {
        perm[k] = k;
    }
    do {
        for (k = 0, sum = 0; k < n; k++) {
            sum += kept[perm[k] * n + k];
        }
        best = sum > best ? sum : best;
        for (; i < n && count[i] >= i; i++) {
            count[i] = 0;
        }
        if (i < n) {
            k = i % 2 ? count[i] : 0;
            swap = perm[k];
            perm[k] = perm[i];
            perm[i] = swap;
            count[i]++;
            i = 0;
        }
    } while (i < n);
    return best;
}

static void test_relabel(void)
{
    static const int64_t cycle[9] = {0, 10, 0, 0, 0, 10, 10, 0, 0}, bad[1] = {-1};
    int64_t kept[64], scratch[64], sum;
    int32_t rank_of[8], trial, n, k;
    dpar_why why;
    CHECK_INT(dpari_exchange_assign(3, cycle, rank_of, scratch, NULL),
              DPAR_OK); /* E9: nothing moves */
    CHECK(rank_of[1] == 0 && rank_of[2] == 1 && rank_of[0] == 2);
    for (trial = 0; trial < 600; trial++) {
        uint32_t seen = 0;
        int most = trial % 2 ? 5 : 1000;
        n = trial % 8;
        for (k = 0; k < n * n; k++) {
            kept[k] = below(most);
        }
        CHECK_INT(dpari_exchange_assign(n, kept, rank_of, scratch, NULL), DPAR_OK);
        for (k = 0, sum = 0; k < n; k++) {
            sum += kept[rank_of[k] * n + k];
            seen |= 1u << rank_of[k];
        }
        CHECK(seen == (1u << n) - 1u);
        CHECK_INT(sum, n > 0 ? best_of_all(n, kept) : 0);
    }
    CHECK_INT(dpari_exchange_assign(-1, kept, rank_of, scratch, &why), DPAR_E_ARG);
    CHECK_INT(dpari_exchange_assign(1, bad, rank_of, scratch, &why), DPAR_E_RANGE);
}

static dpar_box box2(int64_t a, int64_t b, int64_t c, int64_t d)
{
    dpar_box box;
    memset(&box, 0, sizeof box);
    box.dims = 2;
    box.lo[0] = a;
    box.hi[0] = b;
    box.lo[1] = c;
    box.hi[1] = d;
    return box;
}

/* D8, D9 (DCP test_planner.py): valid; overlap; missing volume; out of bounds. */
static void test_cover_vectors(void)
{
    static const int64_t four = 4;
    dpar_box box[4];
    int32_t order[4], i;
    dpar_why why;
    memset(box, 0, sizeof box);
    for (i = 0; i < 4; i++) {
        box[i].dims = 1;
        box[i].lo[0] = 3 - i;
        box[i].hi[0] = 4 - i;
    }
    CHECK_INT(dpar_box_cover(1, &four, box, 4, order, &why), DPAR_OK);
    CHECK_INT(dpar_box_cover(1, &four, box, 3, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "1 elements are in no box: the first is 0");
    box[3].hi[0] = 2;
    CHECK_INT(dpar_box_cover(1, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "boxes 2 and 3 both have 1 elements");
    box[0].hi[0] = 5;
    CHECK_INT(dpar_box_cover(1, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "box 0 is not inside: indices 3 to 4 of a dim of 4");
    CHECK_INT(dpar_box_cover(0, &four, box, 0, order, &why), DPAR_E_ARG); /* a scalar, no box */
    CHECK_TEXT(why.text, "1 elements are in no box: the first begins (0, 0, 0)");
    CHECK_INT(dpar_box_cover(7, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "4 boxes of 7 dims: at least 0, and 0 to 6 dims");
    CHECK_INT(dpar_box_cover(-1, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "4 boxes of -1 dims: at least 0, and 0 to 6 dims");
    CHECK_INT(dpar_box_cover(1, &four, box, -4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "-4 boxes of 1 dims: at least 0, and 0 to 6 dims");
    box[0].lo[0] = -4; /* an extent of it */
    CHECK_INT(dpar_box_cover(1, &box[0].lo[0], box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "extent[0] = -4 is negative");
}

/* The fewest dims and the most; an array without elements, which no box need have. */
static void test_cover_limits(void)
{
    static const int64_t ones[DPAR_MAX_DIMS] = {1, 1, 1, 1, 1, 1}, none[] = {4, 0};
    dpar_box box[2];
    int32_t order[2], d;
    dpar_why why;
    memset(box, 0, sizeof box); /* of 0 dims: one element, in each */
    CHECK_INT(dpar_box_cover(0, NULL, box, 1, order, NULL), DPAR_OK);
    CHECK_INT(dpar_box_cover(0, NULL, box, 2, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "boxes 0 and 1 both have 1 elements");
    box[0].dims = DPAR_MAX_DIMS;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        box[0].hi[d] = 1;
    }
    CHECK_INT(dpar_box_cover(DPAR_MAX_DIMS, ones, box, 1, order, NULL), DPAR_OK);
    CHECK_INT(dpar_box_cover(DPAR_MAX_DIMS, ones, box, 0, order, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_box_cover(2, none, NULL, 0, order, NULL), DPAR_OK);
    box[0] = box2(0, 4, 0, 1);
    CHECK_INT(dpar_box_cover(2, none, box, 1, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "box 0 is not inside: indices 0 to 0 of a dim of 0");
}

/* Random tilings of a rectangle by cutting it, then with a box removed, moved or doubled. */
static void test_cover_random(void)
{
    int trial;
    for (trial = 0; trial < 3000; trial++) {
        int64_t extent[2];
        dpar_box box[20];
        int32_t order[20], n = 1, k, i, j, hits[12][12];
        int doubled = 0, missing = 0, first = -1;
        dpar_status st;
        dpar_why why;
        char expect[240];
        extent[0] = 1 + below(12);
        extent[1] = 1 + below(12);
        box[0] = box2(0, extent[0], 0, extent[1]);
        for (k = below(14); k > 0; k--) { /* cut a box along a dim */
            int32_t b = below(n), d = below(2);
            int64_t at = box[b].lo[d] + below((int)(box[b].hi[d] - box[b].lo[d]) + 1);
            box[n] = box[b];
            box[n++].lo[d] = at;
            box[b].hi[d] = at;
        }
        k = below(n);
        if (trial % 3 == 1) {
            box[k] = box[--n];
        } else if (trial % 3 == 2) {
            box[n++] = box[k];
        }
        memset(hits, 0, sizeof hits);
        for (k = 0; k < n; k++) {
            for (i = (int)box[k].lo[0]; i < box[k].hi[0]; i++) {
                for (j = (int)box[k].lo[1]; j < box[k].hi[1]; j++) {
                    hits[i][j]++;
                }
            }
        }
        for (i = 0; i < extent[0]; i++) {
            for (j = 0; j < extent[1]; j++) {
                doubled += hits[i][j] > 1;
                missing += hits[i][j] == 0;
                first = hits[i][j] == 0 && first < 0 ? i * 100 + j : first;
            }
        }
        st = dpar_box_cover(2, extent, box, n, order, &why);
        CHECK_INT(st, doubled + missing > 0 ? DPAR_E_ARG : DPAR_OK);
        if (missing > 0 && doubled == 0) {
            snprintf(expect, sizeof expect, "%d elements are in no box: the first is (%d, %d)",
                     missing, first / 100, first % 100);
            CHECK_TEXT(why.text, expect);
        }
    }
}

/* Tilings of one to three dims, in any order: whole; one tile moved onto another (as much missing
 * as doubled); one left out; empty ones anywhere, outside too. */
static void test_cover_tilings(void)
{
    int trial;
    for (trial = 0; trial < 4000; trial++) {
        int32_t dims = 1 + trial % 3, d, order[80], n = 0, k, i, a, b;
        int64_t extent[3], cut[3][5];
        dpar_box box[80], swap;
        dpar_why why;
        int parts[3] = {1, 1, 1};
        memset(box, 0, sizeof box);
        for (d = 0; d < dims; d++) {
            parts[d] = 1 + below(dims == 1 ? 4 : 3);
            for (cut[d][0] = 0, k = 0; k < parts[d]; k++) {
                cut[d][k + 1] = cut[d][k] + 1 + below(4);
            }
            extent[d] = cut[d][parts[d]];
        }
        for (k = 0; k < parts[0] * parts[1] * parts[2]; k++) {
            int rest = k;
            for (box[n].dims = dims, d = 0; d < dims; d++, rest /= parts[d - 1]) {
                box[n].lo[d] = cut[d][rest % parts[d]];
                box[n].hi[d] = cut[d][rest % parts[d] + 1];
            }
            n++;
            if (below(3) == 0) { /* an empty one: in one dim, or turned round */
                box[n] = box[n - 1];
                d = below(dims);
                box[n].hi[d] = box[n].lo[d] - below(2);
                box[n].lo[dims - 1 - d] += below(2) * 100;
                box[n].hi[dims - 1 - d] += d == dims - 1 - d ? 0 : 100;
                box[n].hi[d] = box[n].lo[d] < box[n].hi[d] ? box[n].lo[d] : box[n].hi[d];
                n++;
            }
        }
        for (k = n - 1; k > 0; k--) {
            i = below(k + 1);
            swap = box[k];
            box[k] = box[i];
            box[i] = swap;
        }
        memset(order, 0x7f, sizeof order);
        CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_OK);
        CHECK(n == 80 || order[n] == 0x7f7f7f7f);
        for (a = 0; a < n && dpar_box_volume(&box[a]) == 0; a++) {
        }
        for (b = n - 1; b > a && dpar_box_volume(&box[b]) == 0; b--) {
        }
        swap = box[b];
        if (b > a) { /* b becomes as large a piece of a */
            for (d = 0; d < dims; d++) {
                box[b].lo[d] = box[a].lo[d];
                box[b].hi[d] = box[a].lo[d] + 1;
            }
            CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_E_ARG);
            CHECK(strstr(why.text, "both have 1 elements") != NULL);
        }
        box[b] = swap;
        box[b].hi[dims - 1]--; /* a row is missing */
        CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "both") == NULL);
        box[b] = swap;
        box[b].hi[0] = extent[0] + 1;
        CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "not inside") != NULL);
    }
}

/* Limits, and arguments that make no sense. */
static void test_edges(void)
{
    static const dpar_edge beyond[] = {{0, 2}}, before[] = {{0, -1}}, other[] = {{2, 0}};
    int64_t kept[9] = {0}, scratch[20];
    int32_t rounds, rank_of[3] = {7, 7, 7}, n;
    dpar_why why;
    {
        static const dpar_edge *const bad[] = {beyond, before, other};
        dpar_exchange e;
        for (n = 0; n < 3; n++) {
            e = many(bad[n], 1, 2, 2, scratch, 20);
            CHECK_INT(dpar_exchange_rounds(&e, &rounds, NULL, &why), DPAR_E_ARG);
        }
        e = many(beyond, 1, 1, 3, scratch + 1, 4);
        memset(scratch, 0x7f, sizeof scratch);
        CHECK_INT(dpar_exchange_rounds(&e, &rounds, NULL, NULL), DPAR_OK);
        CHECK_INT(rounds, 1);
        CHECK(scratch[0] == INT64_C(0x7f7f7f7f7f7f7f7f) &&
              scratch[5] == scratch[0]); /* 4 of them */
    }
    kept[8] = -1; /* the last */
    {
        dpar_box box[2]; /* an empty one at the ends of the numbers */
        int64_t extent[2] = {4, 4};
        int32_t order[2];
        box[0] = box2(0, 4, 0, 4);
        box[1] = box2(INT64_MAX, INT64_MIN, 0, 1);
        CHECK_INT(dpar_box_cover(2, extent, box, 2, order, &why), DPAR_OK);
    }
    CHECK_INT(dpari_exchange_assign(3, kept, rank_of, scratch, &why), DPAR_E_RANGE);
    kept[8] = (INT64_C(1) << 46) + 1;
    CHECK_INT(dpari_exchange_assign(3, kept, rank_of, scratch, &why), DPAR_E_RANGE);
    CHECK_INT(rank_of[0], 7);
    kept[8] = INT64_C(1) << 46;
    memset(scratch, 0x5a, sizeof scratch);
    CHECK_INT(dpari_exchange_assign(3, kept, rank_of, scratch, NULL), DPAR_OK);
    CHECK(rank_of[2] == 2 && scratch[16] == INT64_C(0x5a5a5a5a5a5a5a5a)); /* 4 (n + 1) of them */
}

static void test_volume(void)
{
    dpar_transfer t;
    memset(&t, 0, sizeof t);
    t.dims = 2;
    t.extent[0] = 3;
    t.extent[1] = 5;
    CHECK_INT(dpar_transfer_volume(&t), 15);
}

int main(void)
{
    random_seed = 7;
    test_rounds();
    test_relabel();
    test_cover_vectors();
    test_cover_limits();
    test_cover_random();
    test_cover_tilings();
    test_edges();
    test_volume();
    return CHECK_DONE();
}
