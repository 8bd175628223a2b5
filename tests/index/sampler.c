/* SPDX-License-Identifier: MIT-0 */
/* Tests sampler: torch's DistributedSampler and randperm, Megatron's sampler, exact coverage,
 * resuming, and the permutation that needs no memory. Vectors I1-I5 of facts/index_math.md: ports
 * of pytorch torch/utils/data/distributed.py and aten randperm, which reproduce the 10000th output
 * that the C++ standard prescribes (rand.predef) and published outputs of torch. Run with:
 * tests/run test index. */
#include "dpar.h"

#include "check.h"

enum { MOST = 512 };

static dpar_status init(dpar_sampler *s, int32_t rest, int64_t count, int32_t ranks, int64_t run,
                        int64_t consumed, dpar_why *why)
{
    dpar_sampler made;
    dpar_status st;
    memset(&made, 0, sizeof made);
    made.remainder = rest;
    made.count = count;
    made.ranks = ranks;
    made.run = run;
    made.first = consumed;
    st = dpar_sampler_init(&made, why);
    if (st == DPAR_OK) {
        *s = made;
    }
    return st;
}

/* Makes one rank that reads a whole epoch in the order of a seed. */
static dpar_status permute(dpar_sampler *s, int64_t count, uint64_t seed, uint64_t epoch,
                           dpar_why *why)
{
    memset(s, 0, sizeof *s);
    s->ranks = 1;
    s->count = count;
    s->shuffle = 1;
    s->seed = seed;
    s->epoch = epoch;
    return dpar_sampler_init(s, why);
}

/* ---- torch, by the words of its source: a list that is extended, cut and strided ------------- */

static int torch_list(int n, int ranks, int drop, int *list)
{
    int each = drop && n % ranks != 0 ? n / ranks : (n + ranks - 1) / ranks; /* ceil((n-r)/r) */
    int total, i;
    total = each * ranks;
    for (i = 0; i < total && n > 0; i++) {
        list[i] = i % n;
    }
    return n > 0 ? total : 0;
}

static void test_torch(void)
{
    int list[MOST], n, ranks, rest, r, k;
    for (n = 0; n <= 40; n++) {
        for (ranks = 1; ranks <= 12; ranks++) {
            for (rest = DPAR_SAMPLER_PAD; rest <= DPAR_SAMPLER_DROP; rest++) {
                int total = torch_list(n, ranks, rest == DPAR_SAMPLER_DROP, list);
                dpar_sampler s;
                CHECK_INT(init(&s, rest, n, ranks, 1, 0, NULL), DPAR_OK);
                for (r = 0; r < ranks; r++) {
                    CHECK_INT(dpar_sampler_rank_count(&s, r), total / ranks);
                    for (k = 0; k < total / ranks; k++) {
                        CHECK_INT(dpar_sampler_at(&s, r, k), list[r + k * ranks]);
                    }
                    CHECK_INT(dpar_sampler_at(&s, r, k), -1);
                }
                CHECK_INT(dpar_sampler_common_count(&s), total / ranks);
                CHECK_INT(dpar_sampler_rank_count(&s, -1) + dpar_sampler_rank_count(&s, ranks), 0);
                CHECK_INT(dpar_sampler_at(&s, ranks, 0), -1);
                CHECK_INT(dpar_sampler_at(&s, 0, -1), -1);
            }
        }
    }
}

/* Compares with Megatron's MegatronPretrainingSampler: of batches of micro-batch x ranks
 * consecutive samples rank r takes [r mbs, (r + 1) mbs); the last, partial batch is used only
 * without drop_last. */
static void test_megatron(void)
{
    int n, ranks, mbs, drop, from, r, i;
    for (n = 0; n <= 40; n++) {
        for (ranks = 1; ranks <= 5; ranks++) {
            for (mbs = 1; mbs <= 4; mbs++) {
                for (drop = 0; drop < 2; drop++) {
                    int rest = drop ? DPAR_SAMPLER_DROP : DPAR_SAMPLER_EXACT;
                    int64_t k[5] = {0, 0, 0, 0, 0}, common = 0;
                    dpar_sampler s;
                    CHECK_INT(init(&s, rest, n, ranks, mbs, 0, NULL), DPAR_OK);
                    for (from = 0; from < n; from += mbs * ranks) {
                        int full = from + mbs * ranks <= n;
                        for (r = 0; r < ranks && (full || !drop); r++) {
                            for (i = from + r * mbs; i < from + (r + 1) * mbs && i < n; i++) {
                                CHECK_INT(dpar_sampler_at(&s, r, k[r]++), i);
                            }
                        }
                        common += full ? mbs : 0;
                    }
                    for (r = 0; r < ranks; r++) {
                        CHECK_INT(dpar_sampler_rank_count(&s, r), k[r]);
                    }
                    CHECK_INT(dpar_sampler_common_count(&s), common);
                }
            }
        }
    }
}

/* Checks that each sample occurs once if all ranks stop after k samples and other ranks
 * continue. */
static void test_exact_and_resume(void)
{
    int n, ranks, other, run, r;
    int64_t k, j;
    for (n = 0; n <= 30; n++) {
        for (ranks = 1; ranks <= 6; ranks++) {
            for (other = 1; other <= 6; other++) {
                for (run = 1; run <= 3; run++) {
                    dpar_sampler s, t;
                    CHECK_INT(init(&s, DPAR_SAMPLER_EXACT, n, ranks, run, 0, NULL), DPAR_OK);
                    for (k = 0; k <= dpar_sampler_common_count(&s); k += run) {
                        int seen[MOST] = {0};
                        int64_t done = dpar_sampler_consumed(&s, k), total = 0;
                        CHECK_INT(done, k * ranks);
                        CHECK_INT(init(&t, DPAR_SAMPLER_EXACT, n, other, run, done, NULL), DPAR_OK);
                        for (r = 0; r < ranks; r++) {
                            for (j = 0; j < k; j++) {
                                seen[dpar_sampler_at(&s, r, j)]++;
                            }
                        }
                        for (r = 0; r < other; r++) {
                            for (j = 0; j < dpar_sampler_rank_count(&t, r); j++) {
                                seen[dpar_sampler_at(&t, r, j)]++;
                            }
                            CHECK(dpar_sampler_rank_count(&t, 0) - dpar_sampler_rank_count(&t, r) <=
                                  run);
                            CHECK(r == 0 || dpar_sampler_rank_count(&t, r - 1) >=
                                                dpar_sampler_rank_count(&t, r));
                        }
                        for (r = 0; r < n; r++) {
                            CHECK_INT(seen[r], 1);
                            total += seen[r];
                        }
                        CHECK_INT(total, n);
                        CHECK_INT(dpar_sampler_consumed(&t, dpar_sampler_rank_count(&t, 0)), n);
                    }
                }
            }
        }
    }
}

/* Checks that resuming on the same number of ranks gives the rest of the order, with padding and
 * dropping too. */
static void test_same_tail(void)
{
    int n, ranks, rest, run, r;
    int64_t k, j;
    for (n = 1; n <= 30; n++) {
        for (ranks = 1; ranks <= 5; ranks++) {
            for (rest = 0; rest < 3; rest++) {
                for (run = 1; run <= 3; run++) {
                    dpar_sampler s, t;
                    CHECK_INT(init(&s, rest, n, ranks, run, 0, NULL), DPAR_OK);
                    for (k = 0; k * ranks <= n && k <= dpar_sampler_rank_count(&s, 0); k += run) {
                        CHECK_INT(init(&t, rest, n, ranks, run, dpar_sampler_consumed(&s, k), NULL),
                                  DPAR_OK);
                        for (r = 0; r < ranks; r++) {
                            int64_t size = dpar_sampler_rank_count(&s, r);
                            CHECK_INT(dpar_sampler_rank_count(&t, r), size > k ? size - k : 0);
                            for (j = k; j < size; j++) {
                                CHECK_INT(dpar_sampler_at(&t, r, j - k), dpar_sampler_at(&s, r, j));
                            }
                        }
                    }
                    CHECK_INT(dpar_sampler_consumed(&s, dpar_sampler_rank_count(&s, 0) + 1), -1);
                    CHECK_INT(dpar_sampler_consumed(&s, -1), -1);
                    CHECK(run == 1 || dpar_sampler_rank_count(&s, 0) <= 1 ||
                          dpar_sampler_consumed(&s, 1) == -1);
                }
            }
        }
    }
}

/* ---- vectors --------------------------------------------------------------------------------- */

/* Checks I1: the 10000th output of std::mt19937 with its default seed 5489, from the C++
 * standard. */
static void test_mt19937(void)
{
    static dpar_mt19937 g, h;
    uint32_t v = 0;
    int i;
    dpari_mt19937_init(&g, 5489);
    dpari_mt19937_init(&h, (UINT64_C(77) << 32) + 5489); /* the high half is ignored */
    for (i = 0; i < 10000; i++) {
        v = dpari_mt19937_next(&g);
        CHECK(v == dpari_mt19937_next(&h));
        CHECK(i != 0 || v == UINT32_C(3499211612));
    }
    CHECK(v == UINT32_C(4123659995));
}

static uint64_t mixed(uint64_t hash, uint64_t v) /* FNV-1a with whole words */
{
    return (hash ^ v) * UINT64_C(1099511628211);
}

/* Compares the first 2000 outputs of libstdc++ 12's std::mt19937, executed, as one hash per
 * seed. */
static void test_mt19937_all(void)
{
    static const uint32_t seed[] = {5489, 0, 42, UINT32_MAX};
    static const uint64_t expect[] = {UINT64_C(10931799941853574938),
                                      UINT64_C(11796528990770039684), UINT64_C(2718019077216055615),
                                      UINT64_C(6403234158577050216)};
    static dpar_mt19937 g;
    int k, i;
    for (k = 0; k < 4; k++) {
        uint64_t hash = UINT64_C(14695981039346656037);
        memset(&g, 0x5a, sizeof g);
        dpari_mt19937_init(&g, seed[k]);
        for (i = 0; i < 2000; i++) {
            hash = mixed(hash, dpari_mt19937_next(&g));
        }
        CHECK(hash == expect[k]);
    }
}

/* Checks I2: torch.randperm(10) after manual_seed(0) and manual_seed(42). */
static void test_randperm(void)
{
    static const int64_t zero[] = {4, 1, 7, 5, 3, 9, 0, 8, 6, 2};
    static const int64_t forty_two[] = {2, 6, 1, 8, 4, 5, 0, 9, 3, 7};
    static dpar_mt19937 g;
    int64_t order[MOST], n;
    dpar_why why;
    memset(order, 0x5a, sizeof order);
    memset(&g, 0x5a, sizeof g);
    CHECK_INT(dpar_sampler_shuffle(order, 10, 0, &g, NULL), DPAR_OK);
    CHECK(memcmp(order, zero, sizeof zero) == 0);
    CHECK_INT(dpar_sampler_shuffle(order, 10, 42, &g, NULL), DPAR_OK);
    CHECK(memcmp(order, forty_two, sizeof forty_two) == 0);
    for (n = 0; n < 300; n++) {
        int seen[MOST] = {0};
        int64_t i;
        CHECK_INT(dpar_sampler_shuffle(order, n, (uint64_t)n, &g, NULL), DPAR_OK);
        for (i = 0; i < n; i++) {
            CHECK(order[i] >= 0 && order[i] < n && seen[order[i]]++ == 0);
        }
    }
    CHECK_INT(dpar_sampler_shuffle(order, -1, 0, &g, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "count is -1: must be at least 0");
}

#ifdef DPAR_IMPLEMENTATION
/* Checks, on few elements, the algorithm for 214748364 and more: for each i takes a 64-bit draw,
 * its first word high; element draw mod (i + 1) moves to i, and i takes its place (aten
 * randperm). */
static void test_randperm_inside_out(void)
{
    static dpar_mt19937 g, h;
    int64_t order[MOST], expect[MOST], n, i;
    for (n = 0; n < 200; n++) {
        dpari_mt19937_init(&g, (uint64_t)n);
        dpari_mt19937_init(&h, (uint64_t)n);
        dpari_randperm_inside_out(&g, n, order);
        for (i = 0; i < n; i++) {
            uint64_t high = dpari_mt19937_next(&h), low = dpari_mt19937_next(&h);
            int64_t z = (int64_t)((high * UINT64_C(4294967296) + low) % (uint64_t)(i + 1));
            expect[i] = z == i ? i : expect[z];
            expect[z] = i;
        }
        CHECK(n == 0 || memcmp(order, expect, (size_t)n * sizeof order[0]) == 0);
    }
}
#endif

/* Checks vectors I3, I4 and I5. */
static void test_vectors(void)
{
    static const int pad[4][3] = {{0, 4, 8}, {1, 5, 9}, {2, 6, 0}, {3, 7, 1}};
    static const int shuffled[4][3] = {{4, 3, 6}, {1, 9, 2}, {7, 0, 4}, {5, 8, 1}};
    static dpar_mt19937 g;
    int64_t order[10];
    dpar_sampler s;
    int r, k;
    CHECK_INT(dpar_sampler_shuffle(order, 10, 0 + 0, &g, NULL), DPAR_OK); /* seed + epoch */
    CHECK_INT(init(&s, DPAR_SAMPLER_PAD, 10, 4, 1, 0, NULL), DPAR_OK);
    for (r = 0; r < 4; r++) {
        for (k = 0; k < 3; k++) {
            CHECK_INT(dpar_sampler_at(&s, r, k), pad[r][k]);
            CHECK_INT(order[dpar_sampler_at(&s, r, k)], shuffled[r][k]);
        }
    }
    CHECK_INT(init(&s, DPAR_SAMPLER_DROP, 10, 4, 1, 0, NULL), DPAR_OK);
    for (r = 0; r < 4; r++) {
        CHECK_INT(dpar_sampler_rank_count(&s, r), 2);
        CHECK_INT(dpar_sampler_at(&s, r, 0), r);
        CHECK_INT(dpar_sampler_at(&s, r, 1), r + 4);
    }
    CHECK_INT(init(&s, DPAR_SAMPLER_PAD, 5, 8, 1, 0, NULL), DPAR_OK);
    for (r = 0; r < 8; r++) {
        CHECK_INT(dpar_sampler_rank_count(&s, r), 1);
        CHECK_INT(dpar_sampler_at(&s, r, 0), r % 5);
    }
    CHECK_INT(init(&s, DPAR_SAMPLER_PAD, 1, 4, 1, 0, NULL), DPAR_OK);
    for (r = 0; r < 4; r++) {
        CHECK_INT(dpar_sampler_at(&s, r, 0), 0);
    }
}

/* ---- the permutation ------------------------------------------------------------------------- */

/* Finds the position of value v: applies the rounds in reverse, then follows the cycle to a
 * position inside. */
static int64_t backwards(const dpar_sampler *s, int64_t v)
{
    const uint64_t low_mask = ((uint64_t)1 << s->low) - 1, high_mask = ((uint64_t)1 << s->high) - 1;
    do {
        uint64_t low = (uint64_t)v & low_mask, high = (uint64_t)v >> s->low;
        uint32_t i;
        for (i = DPARI_ROUNDS; i-- > 0;) {
            low ^= dpari_round(s, high, 2 * i + 1) & low_mask;
            high ^= dpari_round(s, low, 2 * i) & high_mask;
        }
        v = (int64_t)(high << s->low | low);
    } while (v >= s->count);
    return v;
}

static void test_permutation(void)
{
    int64_t n, i;
    dpar_sampler p, q;
    dpar_why why;
    for (n = 0; n <= 300; n++) {
        int seen[MOST] = {0};
        dpar_sampler s;
        CHECK_INT(init(&s, DPAR_SAMPLER_PAD, n, 3, 2, 0, NULL), DPAR_OK);
        CHECK_INT(permute(&p, n, 7, (uint64_t)n, NULL), DPAR_OK);
        for (i = 0; i < n; i++) {
            int64_t v = dpari_permutation_walk(&p, i);
            CHECK(v >= 0 && v < n && seen[v]++ == 0);
            CHECK_INT(backwards(&p, v), i);
            CHECK_INT(dpar_sampler_at(&p, 0, i), v);
        }
        q = s; /* three ranks read the same order in turns */
        q.shuffle = 1;
        q.seed = 7;
        q.epoch = (uint64_t)n;
        CHECK_INT(dpar_sampler_init(&q, NULL), DPAR_OK);
        for (i = 0; i < dpar_sampler_rank_count(&s, 1); i++) {
            CHECK_INT(dpar_sampler_at(&q, 1, i),
                      dpari_permutation_walk(&p, dpar_sampler_at(&s, 1, i)));
        }
        CHECK_INT(dpari_permutation_walk(&p, n), -1);
        CHECK_INT(dpari_permutation_walk(&p, -1), -1);
    }
    for (i = 0; i < 1000; i++) { /* the largest */
        CHECK_INT(permute(&p, INT64_C(1) << 62, 1, (uint64_t)i, NULL), DPAR_OK);
        n = (INT64_C(1) << 62) - 1 - i * INT64_C(4611686018427387);
        CHECK_INT(backwards(&p, dpari_permutation_walk(&p, n)), n);
    }
    CHECK_INT(permute(&p, 1000, 5, 0, NULL), DPAR_OK);
    CHECK_INT(permute(&q, 1000, 5, 1, NULL), DPAR_OK);
    for (i = 0, n = 0; i < 1000; i++) {
        n += dpari_permutation_walk(&p, i) == dpari_permutation_walk(&q, i);
    }
    CHECK(n < 10); /* epochs differ: 1 of 1000 agrees on average */
    CHECK_INT(permute(&p, -1, 0, 0, &why), DPAR_E_ARG);
    CHECK_INT(permute(&p, INT64_MAX, 0, 0, &why), DPAR_E_RANGE);
}

/* Checks that the order of an epoch is what it was in the first release, on every version and every
 * machine. */
static void test_permutation_stays(void)
{
    static const int64_t ten[] = {9, 1, 7, 0, 2, 8, 4, 5, 3, 6};
    static const int64_t count[] = {10, 1000, 1000000007, INT64_C(1) << 62};
    static const uint64_t expect[] = {UINT64_C(2299526950853966741), UINT64_C(14642658100602649899),
                                      UINT64_C(5339110898055097994), UINT64_C(1227202633712745192)};
    dpar_sampler p;
    int k, i;
    CHECK_INT(permute(&p, 10, 1, 2, NULL), DPAR_OK);
    for (i = 0; i < 10; i++) {
        CHECK_INT(dpari_permutation_walk(&p, i), ten[i]);
    }
    CHECK_INT(permute(&p, 16, 1, 2, NULL), DPAR_OK); /* a power of two needs no larger one */
    CHECK(p.low == 2 && p.high == 2);
    for (k = 0; k < 4; k++) {
        uint64_t hash = UINT64_C(14695981039346656037);
        CHECK_INT(permute(&p, count[k], 12345, (uint64_t)k, NULL), DPAR_OK);
        for (i = 0; i < 1000; i++) {
            hash = mixed(hash, (uint64_t)dpari_permutation_walk(&p, i % count[k]));
        }
        CHECK(hash == expect[k]);
    }
}

/* Checks that every position gets every value equally often, and that neighbours separate.
 * Chi-square with 49 x 50 cells from 20000 keys: mean 2450, deviation 70; five deviations are
 * allowed. Seeds are fixed, so the test passes always or never. */
static void test_permutation_spread(void)
{
    enum { N = 50, KEYS = 20000 };
    static int count[N][N], apart[N];
    double chi = 0.0, each = (double)KEYS / N, gap = 0.0;
    int i, v, k;
    for (k = 0; k < KEYS; k++) {
        dpar_sampler p;
        CHECK_INT(permute(&p, N, (uint64_t)k, 3, NULL), DPAR_OK);
        for (i = 0; i < N; i++) {
            count[i][dpari_permutation_walk(&p, i)]++;
        }
        apart[(dpari_permutation_walk(&p, 1) - dpari_permutation_walk(&p, 0) + N) % N]++;
    }
    for (i = 0; i < N; i++) {
        for (v = 0; v < N; v++) {
            chi += (count[i][v] - each) * (count[i][v] - each) / each;
        }
        gap += i > 0 ? (apart[i] - KEYS / 49.0) * (apart[i] - KEYS / 49.0) / (KEYS / 49.0) : 0.0;
    }
    CHECK(chi > 2450 - 350 && chi < 2450 + 350);
    CHECK(gap > 48 - 40 && gap < 48 + 50); /* 48 degrees, deviation 9.8 */
}

static void test_refusals(void)
{
    dpar_sampler s;
    dpar_why why;
    CHECK_INT(init(&s, 3, 10, 4, 1, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "remainder is 3: must be 0 (pad), 1 (drop) or 2 (exact)");
    CHECK_INT(init(&s, -1, 10, 4, 1, 0, &why), DPAR_E_ARG);
    CHECK_INT(init(&s, 0, 10, 0, 1, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "ranks=0 must be at least 1, run=1 at least 0");
    CHECK_INT(init(&s, 0, 10, 4, -1, 0, &why), DPAR_E_ARG);
    CHECK_INT(init(&s, 0, 10, 4, 0, 0, &why), DPAR_OK);
    CHECK_INT(s.run, 1);
    CHECK_INT(init(&s, 0, -1, 4, 1, 0, &why), DPAR_E_ARG);
    CHECK_INT(init(&s, 0, INT64_MAX, 4, 1, 0, &why), DPAR_E_RANGE);
    CHECK_INT(init(&s, 0, 10, INT32_MAX, INT64_MAX, 0, &why), DPAR_E_RANGE);
    CHECK_INT(init(&s, 0, 10, 4, 1, 11, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "first is 11: must be 0 to count, 10");
    CHECK_INT(init(&s, 0, 10, 4, 1, -1, &why), DPAR_E_ARG);
    CHECK_INT(init(&s, 0, 10, 1, INT64_C(1) << 62, 0, NULL), DPAR_OK);
    /* the largest values */
    CHECK_INT(init(&s, 0, INT64_C(1) << 62, INT32_MAX, INT64_C(1) << 31, 0, NULL), DPAR_OK);
    CHECK(dpar_sampler_at(&s, INT32_MAX - 1, dpar_sampler_rank_count(&s, INT32_MAX - 1) - 1) >= 0);
}

int main(void)
{
    test_torch();
    test_megatron();
    test_exact_and_resume();
    test_same_tail();
    test_mt19937();
    test_mt19937_all();
    test_randperm();
#ifdef DPAR_IMPLEMENTATION
    test_randperm_inside_out();
#endif
    test_vectors();
    test_permutation();
    test_permutation_stays();
    test_permutation_spread();
    test_refusals();
    return CHECK_DONE();
}
