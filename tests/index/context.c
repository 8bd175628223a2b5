/* SPDX-License-Identifier: MIT-0 */
/* context: vector F4 of facts/index_math.md (TransformerEngine test_cp_utils.py), PTRR and llama3
 * slices by the words of their sources, all small packings by brute force. */
#include "dpar.h"

#include "check.h"
#include "split_oracle.h"

enum { MOST = 128 };

/* F4: documents [0, 8, 16), cp 2. */
static void test_thd(void)
{
    static const int64_t ends[] = {0, 8, 16};
    static const int64_t token[2][8] = {{0, 1, 6, 7, 8, 9, 14, 15}, {2, 3, 4, 5, 10, 11, 12, 13}};
    dpar_packed p;
    int64_t local, local_ends[3];
    int r, k;
    CHECK_INT(dpar_packed_init(&p, 2, ends, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    for (r = 0; r < 2; r++) {
        CHECK_INT(dpar_packed_rank_count(&p, r, local_ends), 8);
        CHECK(local_ends[0] == 0 && local_ends[1] == 4 && local_ends[2] == 8);
        for (k = 0; k < 8; k++) {
            CHECK_INT(dpar_packed_locate(&p, token[r][k], &local), r);
            CHECK_INT(local, k);
        }
    }
    /* each rank does the same work: that is what the zigzag is for */
    CHECK(dpar_packed_pairs(&p, 0) == 36 && dpar_packed_pairs(&p, 1) == 36);
}

/* All packings of three documents of 0..5 tokens, all rules: each token once, in order, both ways.
 */
static void check_packed(const dpar_packed *p)
{
    int64_t local_ends[4], total = 0, pairs = 0, all = 0, i;
    int32_t r;
    for (r = 0; r < p->ranks; r++) {
        dpar_packed_cursor cursor;
        int64_t next = 0, first, n, local, mine = 0;
        int32_t doc = 0, k;
        int64_t size = dpar_packed_rank_count(p, r, local_ends);
        CHECK_INT(dpar_packed_rank_count(p, r, NULL), size);
        memset(&cursor, 0, sizeof cursor);
        for (k = 0; k < p->docs; k++) { /* by the words of the rule */
            int64_t length = p->ends[k + 1] - p->ends[k];
            CHECK_INT(local_ends[k], next);
            for (i = 0; i < length; i++) {
                if (owner_of(p->rule, (int)i, (int)length, p->ranks, 1, 0) == r) {
                    CHECK_INT(dpar_packed_locate(p, p->ends[k] + i, &local), r);
                    CHECK_INT(dpar_packed_locate(p, p->ends[k] + i, NULL), r);
                    CHECK_INT(local, next);
                    mine += i + 1;
                    next++;
                }
            }
        }
        CHECK(local_ends[k] == next && size == next);
        CHECK_INT(dpar_packed_pairs(p, r), mine);
        for (next = 0; dpar_packed_next(p, r, &cursor, &doc, &first, &n); next += n) {
            CHECK(n > 0 && first >= p->ends[doc] && first + n <= p->ends[doc + 1]);
            for (i = 0; i < n; i++) {
                CHECK_INT(dpar_packed_locate(p, first + i, &local), r);
                CHECK_INT(local, next + i);
            }
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
    CHECK(dpar_packed_locate(p, -1, NULL) == -1 && dpar_packed_locate(p, total, NULL) == -1);
    CHECK(dpar_packed_rank_count(p, p->ranks, NULL) == 0 &&
          dpar_packed_rank_count(p, -1, NULL) == 0);
}

static void test_all_packings(void)
{
    static const int32_t rules[] = {DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_ZIGZAG,
                                    DPAR_SPLIT_CYCLIC};
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

/* Megatron #1669: 7 valid tokens on 2 ranks are 7. */
static void test_not_lost(void)
{
    static const int64_t ends[] = {0, 7};
    dpar_packed p;
    CHECK_INT(dpar_packed_init(&p, 1, ends, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_rank_count(&p, 0, NULL) + dpar_packed_rank_count(&p, 1, NULL), 7);
}

/* PTRR by its words: sort descending and stable, rows of P, odd rows reversed. */
static void test_deal(void)
{
    int64_t cost[MOST], order[MOST], units, i, k;
    int32_t owner[MOST], ranks;
    uint32_t x = 7;
    for (units = 0; units <= 60; units++) {
        for (ranks = 1; ranks <= 7; ranks++) {
            int64_t rank_of[MOST], at = 0;
            if (units % ranks != 0) {
                continue;
            }
            for (i = 0; i < units; i++) {
                x = x * 1664525u + 1013904223u;
                cost[i] = (int64_t)(x >> 28) - 3;
            }
            CHECK_INT(dpar_context_balance(units, cost, ranks, owner, order, NULL), DPAR_OK);
            for (i = 0; i < units; i++) { /* the place of unit i among all */
                int64_t place = 0;
                for (k = 0; k < units; k++) {
                    place += cost[k] > cost[i] || (cost[k] == cost[i] && k < i);
                }
                rank_of[i] = place / ranks % 2 ? ranks - 1 - place % ranks : place % ranks;
                CHECK_INT(owner[i], rank_of[i]);
            }
            for (k = 0; k < ranks; k++) {
                for (i = 0; i < units; i++) {
                    if (rank_of[i] == k) {
                        CHECK_INT(order[at], i);
                        at++;
                    }
                }
                CHECK_INT(at, (k + 1) * units / ranks);
            }
        }
    }
}

/* ring-flash-attention's llama3_flash_attn_prepare_cu_seqlens, by its words. */
static void test_varlen(void)
{
    int64_t ends[5], q_ends[5], k_ends[5], i;
    int trial, causal;
    int32_t ranks, r, k;
    for (trial = 0; trial < 625; trial++) {
        int left = trial;
        for (ends[0] = 0, k = 0; k < 4; k++, left /= 5) {
            ends[k + 1] = ends[k] + left % 5;
        }
        for (ranks = 1; ranks <= 4; ranks++) {
            for (causal = 0; causal < 2; causal++) {
                dpar_packed p;
                int64_t next = 0;
                CHECK_INT(dpar_packed_init(&p, 4, ends, ranks, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
                for (r = 0; r < ranks; r++) {
                    dpar_varlen v;
                    int64_t longest_q = 0, longest_k = 0;
                    q_ends[0] = k_ends[0] = 77;
                    CHECK_INT(dpar_varlen_slice(&p, r, causal, &v, q_ends, k_ends), DPAR_OK);
                    CHECK_INT(dpar_varlen_slice(&p, r, causal, &v, NULL, NULL), DPAR_OK);
                    CHECK(v.q_lo == next && v.q_hi >= v.q_lo);
                    next = v.q_hi;
                    CHECK(q_ends[0] == 0 && k_ends[0] == 0);
                    CHECK_INT(q_ends[v.docs], v.q_hi - v.q_lo);
                    CHECK_INT(k_ends[v.docs], v.k_hi - v.k_lo);
                    if (v.q_hi == v.q_lo) {
                        CHECK(v.docs == 0 && v.longest_q == 0 && v.longest_k == 0);
                        continue;
                    }
                    for (i = v.q_lo; i < v.q_hi; i++) { /* each query finds all keys it may see */
                        int64_t doc = 0, at = 0;
                        while (ends[doc + 1] <= i) {
                            doc++;
                        }
                        CHECK(doc >= v.first && doc < v.first + v.docs);
                        at = doc - v.first;
                        CHECK(i - v.q_lo >= q_ends[at] && i - v.q_lo < q_ends[at + 1]);
                        CHECK_INT(v.k_lo + k_ends[at], ends[doc]);
                        CHECK(v.k_lo + k_ends[at + 1] > i);
                        CHECK(causal || v.k_lo + k_ends[at + 1] == ends[doc + 1]);
                    }
                    CHECK(ends[v.first] <= v.q_lo && ends[v.first + 1] > v.q_lo);
                    CHECK(ends[v.first + v.docs] >= v.q_hi && ends[v.first + v.docs - 1] < v.q_hi);
                    CHECK(!causal || v.k_hi == v.q_hi);
                    for (k = 0; k < v.docs; k++) {
                        int64_t q = q_ends[k + 1] - q_ends[k], n = k_ends[k + 1] - k_ends[k];
                        longest_q = q > longest_q ? q : longest_q;
                        longest_k = n > longest_k ? n : longest_k;
                    }
                    CHECK(v.longest_q == longest_q && v.longest_k == longest_k);
                }
                CHECK_INT(next, ends[4]);
            }
        }
    }
}

static void test_refusals(void)
{
    static const int64_t bad[] = {0, 5, 3}, late[] = {1, 2};
    static const int64_t huge[] = {0, (INT64_C(1) << 61) + 1}, below[] = {0, -1, 3};
    static const int64_t large[] = {0, (INT64_C(1) << 61) - 1, INT64_C(1) << 61};
    int64_t cost[3] = {1, 2, 3}, order[3];
    int32_t owner[3];
    dpar_packed p;
    dpar_varlen v;
    dpar_why why;
    CHECK_INT(dpar_packed_init(&p, 2, bad, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "document 1 ends at 3, the one before at 5");
    CHECK_INT(dpar_packed_init(&p, 2, below, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, late, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "1 documents that begin at 1 on 2 ranks");
    CHECK_INT(dpar_packed_init(&p, -1, bad, 2, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, bad, 0, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, bad, 1, DPAR_SPLIT_RAGGED, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, huge, 1, DPAR_SPLIT_ZIGZAG, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_packed_init(&p, 2, large, 2, DPAR_SPLIT_ZIGZAG, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_rank_count(&p, 0, NULL) + dpar_packed_rank_count(&p, 1, NULL), INT64_C(1)
                                                                                             << 61);
    CHECK_INT(dpar_packed_pairs(&p, 1), INT64_MAX);
    CHECK_INT(dpar_packed_init(&p, 1, large, 2, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX); /* at once, however many tokens */
    CHECK_INT(dpar_packed_pairs(&p, 2), 0);
    CHECK_INT(dpar_packed_init(&p, 1, large, 2, DPAR_SPLIT_CHUNK, NULL), DPAR_OK);
    CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    { /* n tokens on one rank: n (n + 1) / 2, the last that fits and the first that does not, though
         its two parts do: n (n - 1) / 2 and n */
        int64_t edge[] = {0, (INT64_C(1) << 32) - 1};
        CHECK_INT(dpar_packed_init(&p, 1, edge, 1, DPAR_SPLIT_CYCLIC, NULL), DPAR_OK);
        CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX - (INT64_C(1) << 31) + 1);
        edge[1]++;
        CHECK_INT(dpar_packed_pairs(&p, 0), INT64_MAX);
    }
    CHECK_INT(dpar_context_balance(3, cost, 2, owner, order, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "2 ranks do not divide 3 units");
    CHECK_INT(dpar_context_balance(-3, cost, 3, owner, order, &why), DPAR_E_ARG);
    CHECK_INT(dpar_context_balance(3, cost, 0, owner, order, &why), DPAR_E_ARG);
    CHECK_INT(dpar_packed_init(&p, 1, bad, 2, DPAR_SPLIT_CHUNK, NULL), DPAR_OK);
    CHECK_INT(dpar_varlen_slice(&p, 2, 1, &v, NULL, NULL), DPAR_E_ARG);
    CHECK_INT(dpar_varlen_slice(&p, -1, 1, &v, NULL, NULL), DPAR_E_ARG);
}

int main(void)
{
    test_thd();
    test_all_packings();
    test_not_lost();
    test_deal();
    test_varlen();
    test_refusals();
    return CHECK_DONE();
}
