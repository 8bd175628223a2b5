/* SPDX-License-Identifier: MIT-0 */
/* Tests cover, which checks whether boxes tile an array, against counting cells, with vectors D8
 * and D9 of facts/index_math.md. Run with: tests/run test index. */
#include "dpar.h"

#include "check.h"
#include "random.h"

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
    CHECK_TEXT(why.text, "boxes 2 and 3 overlap in 1 elements");
    box[0].hi[0] = 5;
    CHECK_INT(dpar_box_cover(1, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "box 0: indices 3 to 4 are not all inside a dim of 4");
    CHECK_INT(dpar_box_cover(0, &four, box, 0, order, &why), DPAR_E_ARG); /* a scalar, no box */
    CHECK_TEXT(why.text, "1 elements are in no box: the first is (0, 0, 0) in dims 0 to 2");
    CHECK_INT(dpar_box_cover(7, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "n=4 must be at least 0, dims=7 must be 0 to 6");
    CHECK_INT(dpar_box_cover(-1, &four, box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "n=4 must be at least 0, dims=-1 must be 0 to 6");
    CHECK_INT(dpar_box_cover(1, &four, box, -4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "n=-4 must be at least 0, dims=1 must be 0 to 6");
    box[0].lo[0] = -4; /* used as the extent */
    CHECK_INT(dpar_box_cover(1, &box[0].lo[0], box, 4, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "extent[0] = -4 is negative");
}

/* Checks the fewest and the most dims, and an array without elements, which no box needs to
 * cover. */
static void test_cover_limits(void)
{
    static const int64_t ones[DPAR_MAX_DIMS] = {1, 1, 1, 1, 1, 1}, none[] = {4, 0};
    dpar_box box[2];
    int32_t order[2], d;
    dpar_why why;
    memset(box, 0, sizeof box); /* 0 dims: one element, which each box contains */
    CHECK_INT(dpar_box_cover(0, NULL, box, 1, order, NULL), DPAR_OK);
    CHECK_INT(dpar_box_cover(0, NULL, box, 2, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "boxes 0 and 1 overlap in 1 elements");
    box[0].dims = DPAR_MAX_DIMS;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        box[0].hi[d] = 1;
    }
    CHECK_INT(dpar_box_cover(DPAR_MAX_DIMS, ones, box, 1, order, NULL), DPAR_OK);
    CHECK_INT(dpar_box_cover(DPAR_MAX_DIMS, ones, box, 0, order, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_box_cover(2, none, NULL, 0, order, NULL), DPAR_OK);
    box[0] = box2(0, 4, 0, 1);
    CHECK_INT(dpar_box_cover(2, none, box, 1, order, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "box 0: indices 0 to 0 are not all inside a dim of 0");
}

/* Cuts a rectangle at random into tiles, then removes, moves or duplicates a box. */
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

/* Checks tilings in one to three dims, in any order: complete; with one tile moved onto another
 * (the same volume missing and doubled); with one tile left out; with empty boxes anywhere, outside
 * too. */
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
            if (below(3) == 0) { /* an empty box: empty in one dim, or with its bounds swapped */
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
        if (b > a) { /* b becomes a part of a that has b's size */
            for (d = 0; d < dims; d++) {
                box[b].lo[d] = box[a].lo[d];
                box[b].hi[d] = box[a].lo[d] + 1;
            }
            CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_E_ARG);
            CHECK(strstr(why.text, "overlap in 1 elements") != NULL);
        }
        box[b] = swap;
        box[b].hi[dims - 1]--; /* a row is missing */
        CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "overlap") == NULL);
        box[b] = swap;
        box[b].hi[0] = extent[0] + 1;
        CHECK_INT(dpar_box_cover(dims, extent, box, n, order, &why), DPAR_E_ARG);
        CHECK(strstr(why.text, "not all inside") != NULL);
    }
}

/* Checks an empty box at the limits of the integers. */
static void test_cover_far(void)
{
    int64_t extent[2] = {4, 4};
    dpar_box box[2];
    int32_t order[2];
    dpar_why why;
    box[0] = box2(0, 4, 0, 4);
    box[1] = box2(INT64_MAX, INT64_MIN, 0, 1);
    CHECK_INT(dpar_box_cover(2, extent, box, 2, order, &why), DPAR_OK);
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
    test_cover_vectors();
    test_cover_limits();
    test_cover_random();
    test_cover_tilings();
    test_cover_far();
    test_volume();
    return CHECK_DONE();
}
