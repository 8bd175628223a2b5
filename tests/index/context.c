/* SPDX-License-Identifier: MIT-0 */
/* Tests context (tokens of packed documents on ranks) with vector F4 of facts/index_math.md
 * (TransformerEngine test_cp_utils.py) and all small packings by brute force. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "check.h"
#include "split_oracle.h"

/* Checks F4: documents [0, 8, 16), cp 2. */
static void test_thd(void)
{
    static const int64_t ends[] = {0, 8, 16};
    static const int64_t token[2][8] = {{0, 1, 6, 7, 8, 9, 14, 15}, {2, 3, 4, 5, 10, 11, 12, 13}};
    dpar_packed p;
    int64_t first, count, local_ends[3];
    int32_t doc, r;
    CHECK_INT(dpar_packed_init(&p, 2, ends, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    for (r = 0; r < 2; r++) {
        CHECK_INT(dpar_packed_rank_count(&p, r, local_ends), 8);
        CHECK(local_ends[0] == 0 && local_ends[1] == 4 && local_ends[2] == 8);
        dpar_packed_cursor cursor = {0, 0};
        int64_t local = 0, i;
        while (dpar_packed_next(&p, r, &cursor, &doc, &first, &count)) {
            for (i = 0; i < count; i++, local++) {
                CHECK_INT(first + i, token[r][local]);
            }
        }
        CHECK_INT(local, 8);
    }
    /* each rank does the same work, which is the purpose of the zigzag */
    CHECK(dpar_packed_pairs(&p, 0) == 36 && dpar_packed_pairs(&p, 1) == 36);
}

/* Checks all packings of three documents of 0 to 5 tokens with all rules: each token occurs once
 * and in order. */
static void check_packed(const dpar_packed *p)
{
    int64_t local_ends[4], total = 0, pairs = 0, all = 0, i;
    int32_t r;
    for (r = 0; r < p->ranks; r++) {
        dpar_packed_cursor cursor;
        int64_t next = 0, last = -1, first, n, mine = 0;
        int32_t doc = 0, k;
        int64_t size = dpar_packed_rank_count(p, r, local_ends);
        CHECK_INT(dpar_packed_rank_count(p, r, NULL), size);
        memset(&cursor, 0, sizeof cursor);
        for (k = 0; k < p->docs; k++) { /* by the definition of the rule */
            int64_t length = p->ends[k + 1] - p->ends[k];
            CHECK_INT(local_ends[k], next);
            for (i = 0; i < length; i++) {
                if (owner_of(p->rule, (int)i, (int)length, p->ranks, 1, 0) == r) {
                    mine += i + 1;
                    next++;
                }
            }
        }
        CHECK(local_ends[k] == next && size == next);
        CHECK_INT(dpar_packed_pairs(p, r), mine);
        for (next = 0; dpar_packed_next(p, r, &cursor, &doc, &first, &n); next += n) {
            CHECK(n > 0 && first >= p->ends[doc] && first + n <= p->ends[doc + 1]);
            CHECK(first > last);
            for (i = first - p->ends[doc]; i < first - p->ends[doc] + n; i++) {
                const int length = (int)(p->ends[doc + 1] - p->ends[doc]);
                CHECK_INT(owner_of(p->rule, (int)i, length, p->ranks, 1, 0), r);
            }
            last = first + n - 1;
        }
        CHECK_INT(next, size);
        total += size;
        pairs += mine;
    }
    for (i = 0; i < p->docs; i++) {
        int64_t length = p->ends[i + 1] - p->ends[i];
        all += length * (length + 1) / 2;
    }
    CHECK(total == p->ends[p->docs] && pairs == all);
    CHECK(dpar_packed_rank_count(p, p->ranks, NULL) == 0 && dpar_packed_rank_count(p, -1, NULL) == 0);
}

static void test_all_packings(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_CYCLIC};
    int64_t ends[4];
    int trial, rule;
    int32_t docs, ranks, k;
    for (trial = 0; trial < 512; trial++) {
        for (ends[0] = 0, k = 0; k < 3; k++) {
            ends[k + 1] = ends[k] + (trial >> 3 * k & 7);
        }
        for (ranks = 1; ranks <= 4; ranks++) {
            for (docs = trial < 8 ? 0 : 3; docs <= 3; docs++) {
                for (rule = 0; rule < 4; rule++) {
                    dpar_packed p;
                    CHECK_INT(dpar_packed_init(&p, docs, ends, ranks, rules[rule], NULL), DPAR_OK);
                    check_packed(&p);
                }
            }
        }
    }
}

/* Checks Megatron #1669: 7 valid tokens on 2 ranks stay 7. */
static void test_not_lost(void)
{
    static const int64_t ends[] = {0, 7};
    dpar_packed p;
    CHECK_INT(dpar_packed_init(&p, 1, ends, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_rank_count(&p, 0, NULL) + dpar_packed_rank_count(&p, 1, NULL), 7);
}

static void test_refusals(void)
{
    static const int64_t bad[] = {0, 5, 3}, late[] = {1, 2};
    static const int64_t huge[] = {0, (INT64_C(1) << 61) + 1}, below[] = {0, -1, 3};
    static const int64_t large[] = {0, (INT64_C(1) << 61) - 1, INT64_C(1) << 61};
    dpar_packed p;
    dpar_why why;
    CHECK_INT(dpar_packed_init(&p, 2, bad, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "document 1 ends at 3, before it begins at 5");
    CHECK_INT(dpar_packed_init(&p, 2, below, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, late, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "docs=1 must be at least 0, ends[0]=1 must be 0, ranks=2 at least 1");
    CHECK_INT(dpar_packed_init(&p, -1, bad, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, bad, 0, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, bad, 1, DPAR_SPLIT_RAGGED, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, huge, 1, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_packed_init(&p, 2, large, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_rank_count(&p, 0, NULL) + dpar_packed_rank_count(&p, 1, NULL), INT64_C(1) << 61);
    CHECK_INT(dpar_packed_pairs(&p, 1), INT64_MAX);
    CHECK_INT(dpar_packed_init(&p, 1, large, 2, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX); /* immediately, however many tokens */
    CHECK_INT(dpar_packed_pairs(&p, 2), 0);
    CHECK_INT(dpar_packed_init(&p, 1, large, 2, DPAR_SPLIT_CHUNK, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    { /* n tokens on one rank: n (n + 1) / 2 for the largest n that fits, and for the next, although
       * its two parts n (n - 1) / 2 and n fit */
        int64_t edge[] = {0, (INT64_C(1) << 32) - 1};
        CHECK_INT(dpar_packed_init(&p, 1, edge, 1, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
        CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX - (INT64_C(1) << 31) + 1);
        edge[1]++;
        CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    }
}

int main(void)
{
    test_thd();
    test_all_packings();
    test_not_lost();
    test_refusals();
    return CHECK_DONE();
}
