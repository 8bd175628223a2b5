/* SPDX-License-Identifier: MIT-0 */
/* Tests heads (attention heads, vocabularies, sequences and layers on ranks) with vectors F1, F2,
 * F5 and B12 of facts/index_math.md, and by brute force over small cases: every head, row, token
 * and layer is on some rank, and on only one except for marked copies. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "check.h"

/* Checks F2: Megatron-LM's grouped-query attention (a port): (8,2,4) and (8,4,2). */
static void test_megatron_heads(void)
{
    dpar_heads h;
    dpar_heads_share s;
    int32_t r;
    CHECK_INT(dpar_heads_init(&h, INT32_MAX, 1, INT32_MAX, DPAR_SPLIT_EVEN, NULL), DPAR_OK);
    CHECK_INT(dpar_heads_local(&h, INT32_MAX - 1).first_query, INT32_MAX - 1);
    CHECK_INT(dpar_heads_init(&h, 8, 2, 4, DPAR_HEADS_DIVIDE, NULL), DPAR_OK);
    for (r = 0; r < 4; r++) {
        s = dpar_heads_local(&h, r);
        CHECK(s.first_query == 2 * r && s.queries == 2 && s.first_group == r / 2 && s.groups == 1);
        CHECK(s.copy == r % 2 && s.copies == 2);
    }
    CHECK_INT(dpar_heads_init(&h, 8, 4, 2, DPAR_HEADS_DIVIDE, NULL), DPAR_OK);
    for (r = 0; r < 2; r++) {
        s = dpar_heads_local(&h, r);
        CHECK(s.first_query == 4 * r && s.queries == 4 && s.first_group == 2 * r && s.groups == 2);
        CHECK(s.copy == 0 && s.copies == 1);
    }
}

/* Checks that all heads are in order, key-value heads on the ranks of their queries, and copies
 * numbered. */
static void test_all_heads(void)
{
    int32_t groups, each, ranks, rule, r, k;
    for (groups = 1; groups <= 8; groups++) {
        for (each = 1; each <= 5; each++) {
            for (ranks = 1; ranks <= 10; ranks++) {
                for (rule = DPAR_SPLIT_CHUNK; rule <= DPAR_SPLIT_EVEN; rule++) {
                    int32_t next = 0, held[8] = {0}, most_q = 0, most_g = 0;
                    dpar_heads h;
                    dpar_status strict =
                        dpar_heads_init(&h, groups * each, groups, ranks, DPAR_HEADS_DIVIDE, NULL);
                    int divides = (groups >= ranks ? groups % ranks : ranks % groups) == 0 &&
                                  groups * each % ranks == 0;
                    CHECK_INT(strict, divides ? DPAR_OK : DPAR_E_DIVIDE);
                    CHECK_INT(dpar_heads_init(&h, groups * each, groups, ranks, rule, NULL),
                              DPAR_OK);
                    for (r = 0; r < ranks; r++) {
                        dpar_heads_share s = dpar_heads_local(&h, r);
                        if (s.queries > 0) {
                            CHECK_INT(s.first_query, next);
                            CHECK_INT(s.first_query / each, s.first_group);
                            CHECK_INT((s.first_query + s.queries - 1) / each,
                                      s.first_group + s.groups - 1);
                        }
                        next += s.queries;
                        for (k = s.first_group; k < s.first_group + s.groups; k++) {
                            CHECK_INT(s.copy, held[k]);
                            held[k]++;
                        }
                        CHECK(!divides || s.queries == groups * each / ranks);
                        most_q = s.queries > most_q ? s.queries : most_q;
                        most_g = s.groups > most_g ? s.groups : most_g;
                    }
                    CHECK_INT(next, groups * each);
                    for (r = 0; r < ranks; r++) {
                        dpar_heads_share s = dpar_heads_local(&h, r);
                        for (k = s.first_group; k < s.first_group + s.groups; k++) {
                            CHECK_INT(s.copies, held[k]);
                        }
                        CHECK(s.groups > 0 || s.copies == 0);
                    }
                    for (k = 0; k < groups; k++) {
                        CHECK(held[k] > 0);
                    }
                    /* the rank that has the most, as heads.h defines it */
                    for (r = 0; groups < ranks && dpar_heads_local(&h, r).first_group < groups - 1;
                         r++) {
                    }
                    r = groups < ranks ? r : 0;
                    CHECK_INT(dpar_heads_local(&h, r).queries, most_q);
                    CHECK_INT(dpar_heads_local(&h, 0).groups, most_g);
                }
            }
        }
    }
}

/* Compares the rows of the fused weight with a list made head by head. */
static void test_qkv(void)
{
    int32_t groups, each, ranks, r, order;
    for (groups = 1; groups <= 4; groups++) {
        for (each = 1; each <= 4; each++) {
            for (ranks = 1; ranks <= 6; ranks++) {
                for (order = 0; order < 2; order++) {
                    dpar_heads h;
                    CHECK_INT(
                        dpar_heads_init(&h, groups * each, groups, ranks, DPAR_SPLIT_EVEN, NULL),
                        DPAR_OK);
                    for (r = 0; r < ranks; r++) {
                        dpar_heads_share s = dpar_heads_local(&h, r);
                        char want[3 * 64], got[3 * 64];
                        int64_t at[2], before = -1;
                        int32_t k, n;
                        memset(want, 0, sizeof want);
                        memset(got, 0, sizeof got);
                        for (k = 0; k < groups * each; k++) {
                            int at = order == DPAR_HEADS_QKV_BY_GROUP
                                         ? k / each * (each + 2) + k % each
                                         : k;
                            memset(want + 3 * at,
                                   k >= s.first_query && k < s.first_query + s.queries, 3);
                        }
                        for (k = 0; k < groups; k++) {
                            int mine = k >= s.first_group && k < s.first_group + s.groups,
                                q = groups * each;
                            int key =
                                order == DPAR_HEADS_QKV_BY_GROUP ? k * (each + 2) + each : q + k;
                            int value = order == DPAR_HEADS_QKV_BY_GROUP ? key + 1 : q + groups + k;
                            memset(want + 3 * key, mine, 3);
                            memset(want + 3 * value, mine, 3);
                        }
                        for (n = 0; dpar_heads_rows(&h, r, order, 3, n, at); n++) {
                            CHECK(at[0] > before && at[1] > at[0]); /* each with its length */
                            memset(got + at[0], 1, (size_t)(at[1] - at[0]));
                            before = at[1];
                        }
                        CHECK(n <= 3);
                        CHECK(memcmp(want, got, sizeof want) == 0);
                        CHECK(!dpar_heads_rows(&h, r, order, 3, -1, at));
                    }
                }
            }
        }
    }
    {
        dpar_heads h;
        int64_t at[2];
        CHECK_INT(dpar_heads_init(&h, 64, 8, 8, DPAR_HEADS_DIVIDE, NULL), DPAR_OK);
        CHECK(dpar_heads_rows(&h, 1, DPAR_HEADS_QKV_BY_GROUP, 128, 0, at));
        CHECK(at[0] == 10 * 128 && at[1] == 20 * 128); /* Llama-3-70B: one group of 8 + 2 heads */
        CHECK(!dpar_heads_rows(&h, 8, 0, 128, 0, at) && !dpar_heads_rows(&h, -1, 0, 128, 0, at));
        CHECK(!dpar_heads_rows(&h, 0, 0, 0, 0, at));
        CHECK(!dpar_heads_rows(&h, 0, 0, INT64_MAX, 0, at));
    }
}

/* Checks that each rank receives what the other sends, that nothing is lost, and that offsets are
 * running sums. */
static void test_ulysses(void)
{
    int64_t tokens, heads;
    int32_t ranks, r, q;
    for (tokens = 0; tokens < 12; tokens++) {
        for (heads = 1; heads < 9; heads++) {
            for (ranks = 1; ranks < 6; ranks++) {
                int64_t send[6][6], receive[6][6], at[6], to[6], sum = 0;
                dpar_split s, h;
                CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_CHUNK, tokens, ranks, 0, NULL), DPAR_OK);
                CHECK_INT(dpar_split_init(&h, DPAR_SPLIT_EVEN, heads, ranks, 0, NULL), DPAR_OK);
                for (r = 0; r < ranks; r++) {
                    int64_t a = 0, b = 0;
                    CHECK_INT(dpari_ulysses_counts(&s, &h, r, 5, send[r], at, receive[r], to, NULL),
                              DPAR_OK);
                    CHECK_INT(dpari_ulysses_counts(&s, &h, r, 5, NULL, NULL, NULL, NULL, NULL),
                              DPAR_OK);
                    for (q = 0; q < ranks; q++) {
                        CHECK(at[q] == a && to[q] == b);
                        a += send[r][q];
                        b += receive[r][q];
                    }
                    CHECK_INT(a, dpar_split_part_count(&s, r) * heads * 5);
                    CHECK_INT(b, dpar_split_part_count(&h, r) * tokens * 5);
                    sum += a;
                }
                for (r = 0; r < ranks; r++) {
                    for (q = 0; q < ranks; q++) {
                        CHECK_INT(send[r][q], receive[q][r]);
                    }
                }
                CHECK_INT(sum, tokens * heads * 5);
            }
        }
    }
    {
        dpar_split s, h;
        dpar_why why;
        CHECK_INT(dpar_split_init(&s, DPAR_SPLIT_EVEN, INT64_C(1) << 61, 4, 0, NULL), DPAR_OK);
        CHECK_INT(dpar_split_init(&h, DPAR_SPLIT_EVEN, 64, 4, 0, NULL), DPAR_OK);
        CHECK_INT(dpari_ulysses_counts(&s, &h, 0, 1, NULL, NULL, NULL, NULL, &why), DPAR_E_RANGE);
        CHECK_INT(dpari_ulysses_counts(&s, &h, 4, 1, NULL, NULL, NULL, NULL, &why), DPAR_E_ARG);
        CHECK_INT(dpari_ulysses_counts(&s, &h, -1, 1, NULL, NULL, NULL, NULL, &why), DPAR_E_ARG);
        CHECK_INT(dpari_ulysses_counts(&s, &h, 0, 0, NULL, NULL, NULL, NULL, &why), DPAR_E_ARG);
        CHECK_INT(dpar_split_init(&h, DPAR_SPLIT_EVEN, 64, 3, 0, NULL), DPAR_OK);
        CHECK_INT(dpari_ulysses_counts(&s, &h, 0, 1, NULL, NULL, NULL, NULL, &why), DPAR_E_ARG);
        CHECK_TEXT(why.text, "rank=0 is not one of 4 parts of the sequence, the heads have 3 "
                             "parts, or width=1 is below 1");
    }
}

/* Checks F1: Megatron-LM's _vocab_size_with_padding (a port): (vocabulary, divisor, tp). */
static void test_vocab(void)
{
    static const int64_t size[] = {50257, 50257, 128000, 1}, padded[] = {50304, 51200, 128000, 128};
    static const int32_t tp[] = {1, 8, 8, 1};
    int64_t count, added, multiple, id, row;
    int32_t ranks, r;
    dpar_vocab v;
    for (r = 0; r < 4; r++) {
        CHECK_INT(dpar_vocab_init(&v, size[r], 0, 128 * tp[r], tp[r], NULL), DPAR_OK);
        CHECK(v.padded == padded[r] && v.padded_added == 0);
        CHECK_INT(dpar_vocab_row_count(&v) * tp[r], padded[r]);
    }
    /* vLLM's VocabParallelEmbedding, 32000 + 16 added (LoRA) on 2: 32000 and 64 rows, 16032 per
     * rank; added ids begin at 32000 */
    CHECK_INT(dpar_vocab_init(&v, 32000, 16, 64, 2, NULL), DPAR_OK);
    CHECK(v.padded == 32000 && v.padded_added == 64 && dpar_vocab_row_count(&v) == 16032);
    CHECK(dpar_vocab_row(&v, 0, 32000) == 16000 && dpar_vocab_row(&v, 0, 32015) == 16015);
    CHECK(dpar_vocab_row(&v, 1, 16000) == 0 && dpar_vocab_row(&v, 1, 32000) == -1);
    for (count = 0; count <= 20; count++) {
        for (added = 0; added <= 9; added++) {
            for (multiple = 1; multiple <= 8; multiple++) {
                for (ranks = 1; ranks <= 4; ranks++) {
                    int64_t rows = (count + multiple - 1) / multiple * multiple;
                    int64_t all = (rows + added + multiple - 1) / multiple * multiple;
                    int fits = rows % ranks == 0 && (all - rows) % ranks == 0, held = 0;
                    CHECK_INT(dpar_vocab_init(&v, count, added, multiple, ranks, NULL),
                              fits ? DPAR_OK : DPAR_E_DIVIDE);
                    if (!fits) {
                        continue;
                    }
                    CHECK(v.padded == rows && v.padded_added == all - rows);
                    for (r = 0; r < ranks; r++) {
                        for (row = 0; row < dpar_vocab_row_count(&v); row++) {
                            id = dpar_vocab_id(&v, r, row);
                            CHECK(id == -1 || dpar_vocab_row(&v, r, id) == row);
                            held += id >= 0;
                        }
                        CHECK(dpar_vocab_id(&v, r, row) == -1 && dpar_vocab_id(&v, r, -1) == -1);
                        for (id = -2; id < count + added + 3; id++) {
                            row = dpar_vocab_row(&v, r, id);
                            CHECK(row == -1 || dpar_vocab_id(&v, r, row) == id);
                        }
                    }
                    CHECK_INT(held, count + added);
                    CHECK(dpar_vocab_row(&v, ranks, 0) == -1 && dpar_vocab_row(&v, -1, 0) == -1);
                    CHECK(dpar_vocab_id(&v, ranks, 0) == -1 && dpar_vocab_id(&v, -1, 0) == -1);
                }
            }
        }
    }
}

/* Checks F5: Megatron-LM's document: 16 layers, pp 4, 2 chunks: stage 0 has 1, 2, 9, 10 and so
 * on. */
static void test_interleaved(void)
{
    dpar_stage_layers_desc s;
    int32_t stage, chunk, lo, hi;
    memset(&s, 0, sizeof s);
    s.layers = 16;
    s.stages = 4;
    s.chunks = 2;
    for (stage = 0; stage < 4; stage++) {
        for (chunk = 0; chunk < 2; chunk++) {
            CHECK_INT(dpar_stage_layers(&s, stage, chunk, &lo, &hi, NULL), DPAR_OK);
            CHECK(lo + 1 == 8 * chunk + 2 * stage + 1 && hi == lo + 2);
        }
    }
    s.v_shape = 1; /* a V: stage 0 has the first and the last */
    CHECK_INT(dpar_stage_layers(&s, 0, 1, &lo, &hi, NULL), DPAR_OK);
    CHECK(lo == 14 && hi == 16);
    CHECK_INT(dpar_stage_layers(&s, 3, 1, &lo, &hi, NULL), DPAR_OK);
    CHECK(lo == 8 && hi == 10);
}

/* Checks that every layer occurs once, in pipeline order, that shares differ by at most one, and
 * that numbers fixed by the caller are kept. */
static void test_all_stages(void)
{
    dpar_stage_layers_desc s;
    int32_t v, lo, hi;
    memset(&s, 0, sizeof s);
    for (s.layers = 0; s.layers <= 20; s.layers++) {
        for (s.stages = 1; s.stages <= 5; s.stages++) {
            for (s.chunks = 0; s.chunks <= 3; s.chunks++) {
                for (s.v_shape = 0; s.v_shape < 2; s.v_shape++) {
                    for (v = 0; v < 4; v++) {
                        int32_t chunks = s.chunks > 0 ? s.chunks : 1, next = 0, k;
                        int32_t all = s.stages * chunks;
                        s.embedding = v & 1;
                        s.loss = v >> 1;
                        for (k = 0; k < all; k++) {
                            int32_t chunk = k / s.stages, stage = k % s.stages, share;
                            stage = s.v_shape && chunk % 2 ? s.stages - 1 - stage : stage;
                            CHECK_INT(dpar_stage_layers(&s, stage, chunk, &lo, &hi, NULL), DPAR_OK);
                            CHECK(lo == next && hi >= lo);
                            next = hi;
                            share = (s.layers + s.embedding + s.loss) / all +
                                    (k < (s.layers + s.embedding + s.loss) % all);
                            if (k > 0 && k < all - 1 && v == 0) {
                                CHECK_INT(hi - lo, share);
                            }
                            CHECK(k > 0 || hi - lo == share - s.embedding || hi == 0 ||
                                  hi == s.layers);
                        }
                        CHECK_INT(next, s.layers);
                    }
                }
            }
        }
    }
}

static void test_given_stages(void)
{
    dpar_stage_layers_desc s;
    int32_t lo, hi, k, next, chunks;
    memset(&s, 0, sizeof s);
    s.stages = 4;
    for (chunks = 1; chunks <= 2; chunks++) {
        for (s.layers = 8; s.layers <= 30; s.layers++) {
            for (s.first_layers = 0; s.first_layers <= 4; s.first_layers += 2) {
                for (s.last_layers = 0; s.last_layers <= 4; s.last_layers += 2) {
                    int32_t held[4] = {0, 0, 0, 0};
                    s.chunks = chunks;
                    for (k = 0, next = 0; k < 4 * chunks; k++) {
                        CHECK_INT(dpar_stage_layers(&s, k % 4, k / 4, &lo, &hi, NULL), DPAR_OK);
                        CHECK(lo == next);
                        next = hi;
                        held[k % 4] += hi - lo;
                    }
                    CHECK_INT(next, s.layers);
                    CHECK(s.first_layers == 0 || held[0] == s.first_layers);
                    CHECK(s.last_layers == 0 || held[3] == s.last_layers);
                    CHECK(held[1] - held[2] >= 0 && held[1] - held[2] <= chunks);
                }
            }
        }
    }
}

static void test_refusals(void)
{
    dpar_heads h;
    dpar_vocab v;
    dpar_stage_layers_desc s;
    dpar_why why;
    int32_t lo = 7, hi = 7;
    CHECK_INT(dpar_heads_init(&h, 32, 8, 12, DPAR_HEADS_DIVIDE, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "8 key-value heads and tp=12: one must be a multiple of the other");
    CHECK_INT(dpar_heads_init(&h, 12, 4, 8, DPAR_HEADS_DIVIDE, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "tp=8 does not divide 12 attention heads");
    CHECK_INT(dpar_heads_init(&h, 32, 5, 1, DPAR_SPLIT_EVEN, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "5 key-value heads do not divide 32 query heads");
    CHECK_INT(dpar_heads_init(&h, 0, 1, 1, DPAR_SPLIT_EVEN, &why), DPAR_E_ARG);
    CHECK_INT(dpar_heads_init(&h, 1, 0, 1, DPAR_SPLIT_EVEN, &why), DPAR_E_ARG);
    CHECK_INT(dpar_heads_init(&h, 1, 1, 0, DPAR_SPLIT_EVEN, &why), DPAR_E_ARG);
    CHECK_INT(dpar_heads_init(&h, 1, 1, 1, DPAR_SPLIT_CYCLIC, &why), DPAR_E_ARG);
    CHECK_INT(dpar_vocab_init(&v, INT64_C(1) << 61, INT64_C(1) << 61, INT64_C(1) << 59, 1, NULL),
              DPAR_OK);
    CHECK_INT(dpar_vocab_init(&v, (INT64_C(1) << 61) + 1, 0, 1, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_vocab_init(&v, 0, (INT64_C(1) << 61) + 1, 1, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_vocab_init(&v, 0, 0, (INT64_C(1) << 59) + 1, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_heads_init(&h, 8, 8, 4, DPAR_SPLIT_EVEN, NULL), DPAR_OK);
    {
        int64_t at[2]; /* the heads of one row; as many rows as fit */
        CHECK(dpar_heads_rows(&h, 3, DPAR_HEADS_QKV_BY_GROUP, 1, 0, at) && at[0] == 18 &&
              at[1] == 24);
        CHECK(dpar_heads_rows(&h, 0, DPAR_HEADS_QKV_BY_GROUP, INT64_MAX / 24, 0, at));
        CHECK(!dpar_heads_rows(&h, 0, DPAR_HEADS_QKV_BY_GROUP, INT64_MAX / 24 + 1, 0, at));
    }
    CHECK(dpar_heads_local(&h, 4).copies == 0 && dpar_heads_local(&h, -1).groups == 0);
    CHECK_INT(dpar_vocab_init(&v, -1, 0, 1, 1, &why), DPAR_E_ARG);
    CHECK_INT(dpar_vocab_init(&v, 1, -1, 1, 1, &why), DPAR_E_ARG);
    CHECK_INT(dpar_vocab_init(&v, 1, 0, 0, 1, &why), DPAR_E_ARG);
    CHECK_INT(dpar_vocab_init(&v, 1, 0, 1, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_vocab_init(&v, INT64_MAX, 0, 1, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_vocab_init(&v, 1, INT64_MAX, 1, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_vocab_init(&v, 1, 0, INT64_MAX, 1, &why), DPAR_E_RANGE);
    CHECK_INT(dpar_vocab_init(&v, 32000, 16, 64, 3, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text,
               "32000 and 64 rows do not split evenly over 3 ranks: choose another multiple");
    memset(&s, 0, sizeof s);
    s.layers = 10;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "layers=10, first_layers=0 and last_layers=0 must be at least 0, stages=0 "
                         "and chunks=1 at least 1");
    s.stages = 2;
    CHECK_INT(dpar_stage_layers(&s, 2, 0, &lo, &hi, &why), DPAR_E_ARG);
    CHECK_INT(dpar_stage_layers(&s, -1, 0, &lo, &hi, &why), DPAR_E_ARG);
    CHECK_INT(dpar_stage_layers(&s, 0, 1, &lo, &hi, &why), DPAR_E_ARG);
    CHECK_INT(dpar_stage_layers(&s, 0, -1, &lo, &hi, &why), DPAR_E_ARG);
    s.first_layers = 11;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    s.first_layers = 4;
    s.last_layers = 4; /* two layers are left but no stage is */
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    CHECK_TEXT(why.text, "first_layers=4 and last_layers=4 do not fit 10 layers on 2 stages");
    s.stages = 1;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    s.stages = 4;
    s.chunks = 3;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    s.chunks = -1;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_ARG);
    s.chunks = 1;
    s.loss = 1;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_ARG);
    s.loss = 0;
    s.v_shape = 1;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_ARG);
    s.v_shape = 0;
    s.embedding = 1;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_ARG);
    s.embedding = 0;
    s.first_layers = s.last_layers = 0;
    for (lo = -1; lo <= 2; lo += 3) { /* neither 0 nor 1 */
        s.loss = lo;
        CHECK_INT(dpar_stage_layers(&s, 0, 0, &hi, &hi, &why), DPAR_E_ARG);
        s.loss = 0;
        s.embedding = lo;
        CHECK_INT(dpar_stage_layers(&s, 0, 0, &hi, &hi, &why), DPAR_E_ARG);
        s.embedding = 0;
        s.v_shape = lo;
        CHECK_INT(dpar_stage_layers(&s, 0, 0, &hi, &hi, &why), DPAR_E_ARG);
        s.v_shape = 0;
    }
    lo = 7;
    s.chunks = 2;
    s.first_layers = 3; /* each must be whole chunks */
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    s.first_layers = 0;
    s.last_layers = 3;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    s.chunks = 1;
    s.stages = 2; /* exactly all of them are fixed */
    s.first_layers = 7;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, NULL), DPAR_OK);
    CHECK(lo == 0 && hi == 7);
    CHECK_INT(dpar_stage_layers(&s, 1, 0, &lo, &hi, NULL), DPAR_OK);
    CHECK(lo == 7 && hi == 10);
    s.first_layers = 6; /* one layer is left over */
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_DIVIDE);
    lo = hi = 7;
    s.last_layers = 0;
    s.first_layers = 1; /* a fixed stage of one layer */
    s.stages = 4;
    {
        int32_t a, b;
        CHECK_INT(dpar_stage_layers(&s, 0, 0, &a, &b, NULL), DPAR_OK);
        CHECK(a == 0 && b == 1);
        CHECK_INT(dpar_stage_layers(&s, 1, 0, &a, &b, NULL), DPAR_OK);
        CHECK(a == 1 && b == 4);
        CHECK_INT(dpar_stage_layers(&s, 2, 0, &a, &b, NULL), DPAR_OK);
        CHECK(a == 4 && b == 7);
        s.v_shape = 1;
        CHECK_INT(dpar_stage_layers(&s, 0, 0, &a, &b, &why), DPAR_E_ARG);
        s.first_layers = 0;
        s.last_layers = 1;
        CHECK_INT(dpar_stage_layers(&s, 0, 0, &a, &b, &why), DPAR_E_ARG);
        s.v_shape = 0;
        CHECK_INT(dpar_stage_layers(&s, 3, 0, &a, &b, NULL), DPAR_OK);
        CHECK(a == 9 && b == 10);
        s.last_layers = 0;
    }
    s.first_layers = -1;
    CHECK_INT(dpar_stage_layers(&s, 0, 0, &lo, &hi, &why), DPAR_E_ARG);
    CHECK(lo == 7 && hi == 7);
}

int main(void)
{
    test_megatron_heads();
    test_all_heads();
    test_qkv();
    test_ulysses();
    test_vocab();
    test_interleaved();
    test_all_stages();
    test_given_stages();
    test_refusals();
    return CHECK_DONE();
}
