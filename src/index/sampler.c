/* SPDX-License-Identifier: MIT-0 */
/* Samplers. Positions are dealt to ranks by arithmetic only, without tables. Shuffling without
 * memory is a Feistel network on just enough bits for the count, applied again until the result is
 * below the count. dpar_sampler_shuffle repeats torch's generator and algorithm bit for bit. */
#include "sampler.h"

#include "index_private.h"

/* ---- the samples of a rank ------------------------------------------------------------------- */

static void dpari_permutation_set(dpar_sampler *sampler);
static int64_t dpari_permutation_walk(const dpar_sampler *sampler, int64_t x);

DPAR_API DPARI_COLD dpar_status dpar_sampler_init(dpar_sampler *sampler, dpar_why *why)
{
    const int64_t most = INT64_C(1) << 62;
    if (sampler->remainder < DPAR_SAMPLER_PAD || sampler->remainder > DPAR_SAMPLER_EXACT) {
        return dpari_wrong(why, "remainder is %d: must be 0 (pad), 1 (drop) or 2 (exact)",
                           sampler->remainder);
    }
    if (sampler->ranks < 1 || sampler->run < 0) {
        return dpari_wrong(why, "ranks=%d must be at least 1, run=%ld at least 0", sampler->ranks,
                           sampler->run);
    }
    if (sampler->count < 0 || sampler->count > most || sampler->run > most / sampler->ranks) {
        return dpari_say(sampler->count < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                         "count is %ld, ranks %d x run %ld: each must be 0 to 2^62", sampler->count,
                         sampler->ranks, sampler->run);
    }
    if (sampler->first < 0 || sampler->first > sampler->count) {
        return dpari_wrong(why, "first is %ld: must be 0 to count, %ld", sampler->first,
                           sampler->count);
    }
    sampler->run = sampler->run > 0 ? sampler->run : 1;
    dpari_permutation_set(sampler);
    return DPAR_OK;
}

/* Returns the number of whole rounds, in each of which every rank reads one run, in the remaining
 * samples. *after receives the number of samples after these rounds. */
static int64_t dpari_sampler_rounds(const dpar_sampler *sampler, int64_t *after)
{
    int64_t left = sampler->count - sampler->first, round = sampler->run * sampler->ranks;
    *after = left % round;
    return left / round;
}

DPAR_API int64_t dpar_sampler_rank_count(const dpar_sampler *sampler, int32_t rank)
{
    int64_t after, rounds = dpari_sampler_rounds(sampler, &after);
    if (rank < 0 || rank >= sampler->ranks) {
        return 0;
    }
    if (sampler->remainder == DPAR_SAMPLER_PAD) {
        return (rounds + (after > 0)) * sampler->run;
    }
    if (sampler->remainder == DPAR_SAMPLER_DROP) {
        return rounds * sampler->run;
    }
    return rounds * sampler->run +
           dpari_most(0, dpari_least(sampler->run, after - rank * sampler->run));
}

DPAR_API int64_t dpar_sampler_common_count(const dpar_sampler *sampler)
{
    return dpar_sampler_rank_count(sampler, sampler->ranks - 1) / sampler->run * sampler->run;
}

DPAR_API int64_t dpar_sampler_at(const dpar_sampler *sampler, int32_t rank, int64_t k)
{
    int64_t at;
    if (k < 0 || k >= dpar_sampler_rank_count(sampler, rank)) {
        return -1;
    }
    at = sampler->first + k / sampler->run * (sampler->run * sampler->ranks) + rank * sampler->run +
         k % sampler->run;
    at = at < sampler->count ? at : at % sampler->count; /* padding repeats the list, as in torch */
    return sampler->shuffle ? dpari_permutation_walk(sampler, at) : at;
}

DPAR_API int64_t dpar_sampler_consumed(const dpar_sampler *sampler, int64_t k)
{
    int64_t most = dpar_sampler_rank_count(sampler, 0);
    if (k < 0 || k > most || (k % sampler->run != 0 && k != most)) {
        return -1;
    }
    return k == most && sampler->remainder != DPAR_SAMPLER_DROP
               ? sampler->count
               : sampler->first + k * sampler->ranks;
}

/* ---- MT19937 --------------------------------------------------------------------------------- */

/* The generator of Matsumoto and Nishimura (1998), with their initialisation of 2002. */
static void dpari_mt19937_init(dpar_mt19937 *g, uint64_t seed)
{
    uint32_t i;
    g->word[0] = (uint32_t)(seed & 0xffffffffu);
    for (i = 1; i < 624; i++) {
        uint32_t before = g->word[i - 1];
        g->word[i] = UINT32_C(1812433253) * (before ^ before >> 30) + i;
    }
    g->at = 624;
}

static void dpari_mt19937_turn(dpar_mt19937 *g)
{
    int32_t i;
    for (i = 0; i < 624; i++) {
        const uint32_t next = g->word[i < 623 ? i + 1 : 0];
        const uint32_t both = (g->word[i] & 0x80000000u) | (next & 0x7fffffffu);
        const uint32_t odd = (both & 1u) != 0 ? 0x9908b0dfu : 0;
        g->word[i] = g->word[i < 227 ? i + 397 : i - 227] ^ both >> 1 ^ odd;
    }
    g->at = 0;
}

static uint32_t dpari_mt19937_next(dpar_mt19937 *g)
{
    uint32_t y;
    if (g->at >= 624) {
        dpari_mt19937_turn(g);
    }
    y = g->word[g->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* ---- randperm -------------------------------------------------------------------------------- */

static void dpari_randperm_forward(dpar_mt19937 *g, int64_t n, int64_t *order)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        order[i] = i;
    }
    for (i = 0; i < n - 1; i++) {
        int64_t j = i + (int64_t)(dpari_mt19937_next(g) % (uint64_t)(n - i)), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

static void dpari_randperm_inside_out(dpar_mt19937 *g, int64_t n, int64_t *order)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint64_t high = dpari_mt19937_next(g), draw = high << 32 | dpari_mt19937_next(g);
        int64_t j = (int64_t)(draw % (uint64_t)(i + 1));
        order[i] = i;
        order[i] = order[j];
        order[j] = i;
    }
}

DPAR_API dpar_status dpar_sampler_shuffle(int64_t *order, int64_t count, uint64_t seed,
                                          dpar_mt19937 *scratch, dpar_why *why)
{
    if (count < 0) {
        return dpari_wrong(why, "count is %ld: must be at least 0", count);
    }
    dpari_mt19937_init(scratch, seed);
    if (count < (int64_t)(UINT32_MAX / 20)) {
        dpari_randperm_forward(scratch, count, order);
    } else {
        dpari_randperm_inside_out(scratch, count, order);
    }
    return DPAR_OK;
}

/* ---- Feistel --------------------------------------------------------------------------------- */

/* Mixes x so that each bit of it affects every bit of the result. It is the finaliser of splitmix64
 * (Steele, Lea, Flood 2014; variant 13 of Stafford's mixers). */
static uint64_t dpari_mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* The function of a round. Multiples of 2^64 / golden ratio make the keys of the rounds different.
 */
static uint64_t dpari_round(const dpar_sampler *sampler, uint64_t half, uint32_t round)
{
    return dpari_mix(half + dpari_mix(sampler->key + (round + 1) * UINT64_C(0x9e3779b97f4a7c15)));
}

enum { DPARI_ROUNDS = 6 }; /* a round changes both halves */

static uint64_t dpari_feistel(const dpar_sampler *sampler, uint64_t x)
{
    const uint64_t low_mask = ((uint64_t)1 << sampler->low) - 1,
                   high_mask = ((uint64_t)1 << sampler->high) - 1;
    uint64_t low = x & low_mask, high = x >> sampler->low;
    uint32_t i;
    for (i = 0; i < DPARI_ROUNDS; i++) {
        high ^= dpari_round(sampler, low, 2 * i) & high_mask;
        low ^= dpari_round(sampler, high, 2 * i + 1) & low_mask;
    }
    return high << sampler->low | low;
}

static void dpari_permutation_set(dpar_sampler *sampler)
{
    int32_t bits = 2;
    while (bits < 62 && (INT64_C(1) << bits) < sampler->count) {
        bits++;
    }
    sampler->key = dpari_mix(dpari_mix(sampler->seed) + sampler->epoch);
    sampler->low = bits / 2;
    sampler->high = bits - bits / 2;
}

/* Returns the sample at position x, or -1 outside of 0..count-1. It needs fewer than two steps on
 * average. */
static int64_t dpari_permutation_walk(const dpar_sampler *sampler, int64_t x)
{
    if (x < 0 || x >= sampler->count) {
        return -1;
    }
    do { /* x is on a cycle of the permutation, so the loop returns into the range */
        x = (int64_t)dpari_feistel(sampler, (uint64_t)x);
    } while (x >= sampler->count);
    return x;
}
