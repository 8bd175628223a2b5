/* SPDX-License-Identifier: MIT-0 */
/* Splits. Queries are called in loops, so division by the block or the number of parts is replaced
 * by multiplication with an inverse that dpar_split_init computes. Contiguous rules are described
 * by where a part begins; scattered rules by whole rounds of blocks and the elements after them. */
#include "split.h"

#include "index_private.h"

static const int64_t dpari_split_limit = INT64_C(1) << 62;

/* Functions that are called for single elements are inlined, unless the compiler optimises for
 * size. */
#if defined(__GNUC__) && defined(__OPTIMIZE__) && !defined(__OPTIMIZE_SIZE__)
#define DPARI_HOT static __inline__ __attribute__((always_inline))
#else
#define DPARI_HOT static
#endif

/* ---- division by a constant ------------------------------------------------------------------ */

/* Returns the high 64 bits of a product. */
DPARI_HOT uint64_t dpari_high(uint64_t a, uint64_t b)
{
#if defined(__SIZEOF_INT128__)
    __extension__ typedef unsigned __int128 dpari_u128;
    return (uint64_t)((dpari_u128)a * b >> 64);
#else
    uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    uint64_t mid = a1 * b0 + (a0 * b0 >> 32), low = a0 * b1 + (mid & 0xffffffffu);
    return a1 * b1 + (mid >> 32) + (low >> 32);
#endif
}

/* Returns n / by[k], for 0 <= n < 2^63. With 2^(l-1) < d <= 2^l and v = ceil(2^(63+l) / d), which
 * fits into 64 bits, n v / 2^(63+l) exceeds n / d by less than 1 / d, so that its floor is the
 * quotient. */
DPARI_HOT int64_t dpari_split_div(const dpar_split *split, int k, int64_t n, int64_t *rest)
{
    int64_t q = (int64_t)(dpari_high((uint64_t)n << 1, split->inverse[k]) >> split->shift[k]);
    *rest = n - q * split->by[k];
    return q;
}

/* Returns floor(2^127 / d) for 2^63 < d < 2^64, by long division with two digits of 32 bits. */
static uint64_t dpari_inverse(uint64_t d)
{
    uint64_t d1 = d >> 32, d0 = d & 0xffffffffu, high = (uint64_t)1 << 63, q = 0;
    int digit;
    for (digit = 0; digit < 2; digit++) {
        uint64_t guess = high / d1, rest = high % d1; /* at most 2 too large */
        while (rest <= 0xffffffffu && (guess > 0xffffffffu || guess * d0 > rest << 32)) {
            guess--;
            rest += d1;
        }
        high = (high << 32) - guess * d;
        q = q << 32 | guess;
    }
    return q;
}

/* Returns the number of bits of d > 0. */
static int dpari_bits(uint64_t d)
{
#if defined(__SIZEOF_INT128__)
    return 64 - __builtin_clzll(d);
#else
    int bits = 1, step;
    for (step = 32; step > 0; step /= 2) {
        int more = d >> step != 0;
        bits += more ? step : 0;
        d >>= more ? step : 0;
    }
    return bits;
#endif
}

/* Sets divisor number k and its inverse. */
static void dpari_split_by(dpar_split *split, int k, int64_t divisor)
{
    uint64_t d = divisor > 0 ? (uint64_t)divisor : 1;
    int bits = dpari_bits(d);
    split->by[k] = (int64_t)d;
    d <<= 64 - bits;              /* moves its highest bit to the top */
    if (d == (uint64_t)1 << 63) { /* a power of two */
        split->inverse[k] = d;
        bits--;
    } else {
        split->inverse[k] = dpari_inverse(d) + 1;
    }
    split->shift[k] = (uint8_t)bits;
}

/* ---- making ---------------------------------------------------------------------------------- */

static dpar_status dpari_split_check(int64_t count, int32_t parts, dpar_why *why)
{
    if (parts < 1) {
        return dpari_wrong(why, "%d parts: there must be at least 1", parts);
    }
    if (count < 0) {
        return dpari_wrong(why, "%ld elements: there must be 0 or more", count);
    }
    if (count > dpari_split_limit) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements: at most 2^62 can be split", count);
    }
    return DPAR_OK;
}

/* Computes the divisors of a rule, and the rest of the count after whole rounds. */
DPARI_INTERNAL void dpari_split_resize(dpar_split *split, int64_t count)
{
    int64_t blocks, parts = split->parts;
    split->count = count;
    split->rounds = count / parts;
    split->extra = count % parts;
    switch (split->rule) {
    case DPAR_SPLIT_EVEN:
        dpari_split_by(split, 0, split->rounds + 1);
        dpari_split_by(split, 1, split->rounds);
        break;
    case DPAR_SPLIT_FLOOR:
        split->tail = count <= INT64_MAX / parts; /* P N fits */
        dpari_split_by(split, 0, count);
        dpari_split_by(split, 1, parts);
        break;
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        dpari_split_by(split, 0, split->block);
        dpari_split_by(split, 1, parts);
        blocks = count / split->block;
        split->tail = count % split->block;
        split->rounds = blocks / parts;
        split->extra = blocks % parts;
        break;
    case DPAR_SPLIT_STRIDED: /* by[0] elements in a piece, by[1] of them in a part */
        dpari_split_by(split, 0, dpari_ceil_div(count, split->block));
        dpari_split_by(split, 1, dpari_ceil_div(split->by[0], parts));
        split->rounds = count / split->by[0];
        split->tail = count % split->by[0];
        break;
    case DPAR_SPLIT_RAGGED: break;
    default:
        dpari_split_by(split, 0,
                       dpari_ceil_div(count, split->rule == DPAR_SPLIT_ZIGZAG ? 2 * parts : parts));
    }
}

DPAR_API dpar_status dpar_split_init(dpar_split *split, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int32_t blocked = rule == DPAR_SPLIT_BLOCK_CYCLIC || rule == DPAR_SPLIT_STRIDED;
    if (st != DPAR_OK) {
        return st;
    }
    if (rule < 0 || rule >= DPAR_SPLIT_RULE_COUNT || rule == DPAR_SPLIT_RAGGED) {
        return dpari_wrong(why, "rule %d does not exist, or is RAGGED (use dpar_split_init_ragged)",
                           rule);
    }
    if (blocked && block < 1) {
        return dpari_wrong(why, "block is %ld: must be at least 1", block);
    }
    dpari_zero(split, sizeof(*split));
    split->rule = rule;
    split->parts = parts;
    split->block = blocked ? block : 0;
    if (rule == DPAR_SPLIT_CYCLIC) {
        split->block = 1;
    }
    dpari_split_resize(split, count);
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_split_init_ragged(dpar_split *split, int32_t parts,
                                                       const int64_t *cuts, dpar_why *why)
{
    dpar_status st = dpari_split_check(parts < 1 ? 0 : cuts[parts], parts, why);
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (cuts[0] != 0) {
        return dpari_wrong(why, "cuts[0] is %ld: must be 0", cuts[0]);
    }
    for (p = 0; p < parts; p++) {
        if (cuts[p + 1] < cuts[p]) {
            return dpari_wrong(why, "cuts[%d] is %ld, but cuts[%ld] is only %ld", p, cuts[p],
                               (int64_t)p + 1, cuts[p + 1]);
        }
    }
    dpari_zero(split, sizeof(*split));
    split->rule = DPAR_SPLIT_RAGGED;
    split->parts = parts;
    split->count = cuts[parts];
    split->cuts = cuts;
    return DPAR_OK;
}

/* Returns floor(a b / c) for a < 2^62, 0 <= b <= c < 2^31, without a product that overflows. */
static int64_t dpari_share(int64_t a, int64_t b, int64_t c)
{
    return a / c * b + a % c * b / c;
}

DPAR_API DPARI_COLD dpar_status dpar_split_weighted_cuts(int64_t *cuts, int64_t count,
                                                         int32_t parts, const int64_t *weights,
                                                         int64_t atom, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int64_t all = 0, before = 0, atoms;
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (atom < 1) {
        return dpari_wrong(why, "atom is %ld: must be at least 1", atom);
    }
    for (p = 0; p < parts; p++) {
        if (weights[p] < 0) {
            return dpari_wrong(why, "weights[%d] is %ld: must be at least 0", p, weights[p]);
        }
        all = weights[p] > INT32_MAX - all ? (int64_t)INT32_MAX + 1 : all + weights[p];
        if (all > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "the sum of %d weights exceeds 2^31 - 1", parts);
        }
    }
    if (all == 0) {
        return dpari_wrong(why, "all %d weights are 0", parts);
    }
    atoms = dpari_ceil_div(count, atom);
    for (p = 0; p <= parts; p++) {
        int64_t cut = dpari_share(atoms, before, all);
        cuts[p] = cut > count / atom ? count : cut * atom; /* the last atom may be short */
        before += p < parts ? weights[p] : 0;
    }
    return DPAR_OK;
}

/* Returns how many runs are needed if the cost of each is at most `most`. */
static int64_t dpari_balance_runs(int64_t items, const int64_t *cost, int64_t most)
{
    int64_t i, runs = items > 0, load = 0;
    for (i = 0; i < items; i++) {
        if (cost[i] > most - load) {
            runs++;
            load = 0;
        }
        load += cost[i];
    }
    return runs;
}

/* Sets cuts[p] to the earliest start of run p with which the runs from p on stay within `most`. */
static void dpari_balance_latest(int64_t items, const int64_t *cost, int64_t most, int32_t parts,
                                 int64_t *cuts)
{
    int64_t i = items, load;
    int32_t p;
    cuts[parts] = items;
    for (p = parts - 1; p > 0; p--) {
        for (load = 0; i > 0 && cost[i - 1] <= most - load; i--) {
            load += cost[i - 1];
        }
        cuts[p] = i;
    }
}

/* Cuts from the front, each time where the run is nearest to an even share of the remaining cost.
 * No run exceeds `most`, and none is empty as long as there are enough items. */
static void dpari_balance_cut(int64_t items, const int64_t *cost, int64_t most, int64_t left,
                              int32_t parts, int64_t *cuts)
{
    int64_t i = 0;
    int32_t p;
    cuts[0] = 0;
    for (p = 1; p < parts; p++) {
        int64_t share = left / (parts - p + 1), load = 0;
        int64_t least = dpari_most(cuts[p], dpari_least(items, cuts[p - 1] + 1));
        int64_t last = dpari_most(least, items - (parts - p));
        while (i < least ||
               (i < last && cost[i] <= most - load && load + cost[i] - share < share - load)) {
            load += cost[i++];
        }
        left -= load;
        cuts[p] = i;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_split_balance(int64_t *cuts, int64_t items,
                                                   const int64_t *cost, int32_t parts,
                                                   dpar_why *why)
{
    dpar_status st = dpari_split_check(items, parts, why);
    int64_t i, all = 0, low = 0, high;
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < items; i++) {
        if (cost[i] < 0 || cost[i] > dpari_split_limit - all) {
            return dpari_say(cost[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "cost[%ld] is %ld: each must be at least 0, their sum at most 2^62", i,
                             cost[i]);
        }
        all += cost[i];
        low = dpari_most(low, cost[i]);
    }
    for (high = all; low < high;) { /* bisection: the least maximum with `parts` runs */
        int64_t middle = low + (high - low) / 2;
        if (dpari_balance_runs(items, cost, middle) <= parts) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    dpari_balance_latest(items, cost, low, parts, cuts);
    dpari_balance_cut(items, cost, low, all, parts, cuts);
    return DPAR_OK;
}

/* ---- contiguous rules ------------------------------------------------------------------------ */

/* Returns where part p begins, 0 <= p <= P. With chunks of b elements p b <= N + P, so that no
 * product overflows. For FLOOR, floor(N p / P) = (N / P) p + (N % P) p / P, with the second product
 * below 2^62. */
DPARI_HOT int64_t dpari_split_cut(const dpar_split *split, int64_t p)
{
    int64_t rest;
    switch (split->rule) {
    case DPAR_SPLIT_CHUNK: return dpari_least(split->count, p * split->by[0]);
    case DPAR_SPLIT_EVEN: return split->rounds * p + dpari_least(p, split->extra);
    case DPAR_SPLIT_FLOOR:
        return split->rounds * p + dpari_split_div(split, 1, split->extra * p, &rest);
    default: return split->cuts[p];
    }
}

/* Finds the last part that begins at or before i and is not empty, by bisection. */
static int32_t dpari_split_search(const dpar_split *split, int64_t i)
{
    int32_t low = 0, high = split->parts; /* cut(low) <= i < cut(high) */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (dpari_split_cut(split, middle) <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

DPARI_HOT int64_t dpari_even_part(const dpar_split *split, int64_t i)
{
    int64_t rest, p = dpari_split_div(split, 0, i, &rest);
    return p < split->extra ? p : dpari_split_div(split, 1, i - split->extra, &rest);
}

/* floor(N p / P) <= i is the same as p <= (P (i + 1) - 1) / N. That division gives the part if the
 * product fits, otherwise a search does. */
DPARI_HOT int64_t dpari_floor_part(const dpar_split *split, int64_t i)
{
    int64_t rest;
    return split->tail ? dpari_split_div(split, 0, split->parts * (i + 1) - 1, &rest)
                       : dpari_split_search(split, i);
}

/* ---- scattered rules ------------------------------------------------------------------------- */

/* BLOCK_CYCLIC, 0-based (ScaLAPACK): block j belongs to (source + j) mod P. */
DPARI_HOT int64_t dpari_cyclic_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t in, turn, block = dpari_split_div(split, 0, i, &in);
    *local = split->block * dpari_split_div(split, 1, block, &turn) + in;
    turn += split->source;
    return turn >= split->parts ? turn - split->parts : turn;
}

/* Returns the position of a part in a round: 0 for the part that has the first block. */
DPARI_HOT int64_t dpari_cyclic_turn(const dpar_split *split, int64_t part)
{
    return part >= split->source ? part - split->source : part - split->source + split->parts;
}

/* Returns how many elements of the blocks after the full rounds a part has. */
DPARI_HOT int64_t dpari_cyclic_last(const dpar_split *split, int64_t turn)
{
    if (turn < split->extra) {
        return split->block;
    }
    return turn == split->extra ? split->tail : 0;
}

DPARI_HOT int64_t dpari_cyclic_global(const dpar_split *split, int64_t part, int64_t local)
{
    int64_t in, round = dpari_split_div(split, 0, local, &in),
                turn = dpari_cyclic_turn(split, part);
    if (round >= split->rounds && (round > split->rounds || in >= dpari_cyclic_last(split, turn))) {
        return -1;
    }
    return (round * split->parts + turn) * split->block + in;
}

/* For STRIDED, returns how many elements of a full piece part p has. */
DPARI_HOT int64_t dpari_strided_full(const dpar_split *split, int64_t p)
{
    return dpari_least(split->by[1], split->by[0] - dpari_least(split->by[0], p * split->by[1]));
}

/* Returns how many elements of the last, short piece part p has. *offset receives where they begin
 * in the piece. */
static int64_t dpari_strided_last(const dpar_split *split, int64_t p, int64_t *offset)
{
    int64_t b = dpari_ceil_div(split->tail, split->parts);
    *offset = dpari_least(split->tail, p * b);
    return dpari_least(b, split->tail - *offset);
}

DPARI_HOT int64_t dpari_strided_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t in, piece = dpari_split_div(split, 0, i, &in), part, rest;
    if (piece < split->rounds) {
        part = dpari_split_div(split, 1, in, &rest);
        *local = piece * dpari_least(split->by[1], split->by[0] - in + rest) + rest;
        return part;
    }
    part = in / dpari_ceil_div(split->tail, split->parts);
    (void)dpari_strided_last(split, part, &rest);
    *local = piece * dpari_strided_full(split, part) + in - rest;
    return part;
}

DPARI_HOT int64_t dpari_strided_global(const dpar_split *split, int64_t part, int64_t local)
{
    int64_t full = dpari_strided_full(split, part), piece = split->rounds, offset;
    if (full == split->by[1]) {
        piece = dpari_split_div(split, 1, local, &offset);
    } else if (full > 0) {
        piece = local / full;
    }
    if (piece < split->rounds) {
        return piece * (split->by[0] - full) + part * split->by[1] + local;
    }
    local -= split->rounds * full;
    if (local >= dpari_strided_last(split, part, &offset)) {
        return -1;
    }
    return split->rounds * split->by[0] + offset + local;
}

/* For ZIGZAG, returns where chunk c of 2 P begins. */
DPARI_HOT int64_t dpari_zigzag_cut(const dpar_split *split, int64_t c)
{
    return dpari_least(split->count, c * split->by[0]);
}

/* These functions count the elements of a part's first chunk, and of its second one. */
DPARI_HOT int64_t dpari_zigzag_first(const dpar_split *split, int64_t part)
{
    return dpari_zigzag_cut(split, part + 1) - dpari_zigzag_cut(split, part);
}

DPARI_HOT int64_t dpari_zigzag_second(const dpar_split *split, int64_t part)
{
    return dpari_zigzag_first(split, 2 * (int64_t)split->parts - 1 - part);
}

/* If the second chunk of a part has elements, the first one is full. */
DPARI_HOT int64_t dpari_zigzag_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t in, chunk = dpari_split_div(split, 0, i, &in);
    if (chunk < split->parts) {
        *local = in;
        return chunk;
    }
    *local = split->by[0] + in;
    return 2 * (int64_t)split->parts - 1 - chunk;
}

DPARI_HOT int64_t dpari_zigzag_global(const dpar_split *split, int64_t part, int64_t local)
{
    int64_t first = dpari_zigzag_first(split, part), chunk = 2 * (int64_t)split->parts - 1 - part;
    if (local < first) {
        return dpari_zigzag_cut(split, part) + local;
    }
    return local - first < dpari_zigzag_second(split, part)
               ? dpari_zigzag_cut(split, chunk) + (local - first)
               : -1;
}

/* ---- any rule -------------------------------------------------------------------------------- */

DPARI_HOT int dpari_split_has(const dpar_split *split, int32_t part)
{
    return part >= 0 && part < split->parts;
}

/* Finds the part that has i, 0 <= i < N, and its local index there. */
DPARI_HOT int32_t dpari_split_find(const dpar_split *split, int64_t i, int64_t *local)
{
    int64_t part;
    switch (split->rule) {
    case DPAR_SPLIT_CHUNK: return (int32_t)dpari_split_div(split, 0, i, local);
    case DPAR_SPLIT_BLOCK_CYCLIC: return (int32_t)dpari_cyclic_find(split, i, local);
    case DPAR_SPLIT_CYCLIC: *local = dpari_split_div(split, 1, i, &part); return (int32_t)part;
    case DPAR_SPLIT_STRIDED: return (int32_t)dpari_strided_find(split, i, local);
    case DPAR_SPLIT_ZIGZAG: return (int32_t)dpari_zigzag_find(split, i, local);
    case DPAR_SPLIT_EVEN: part = dpari_even_part(split, i); break;
    case DPAR_SPLIT_FLOOR: part = dpari_floor_part(split, i); break;
    default: part = dpari_split_search(split, i);
    }
    *local = i - dpari_split_cut(split, part);
    return (int32_t)part;
}

/* Returns the element at index `local` of a part that exists, or -1. */
DPARI_HOT int64_t dpari_split_global(const dpar_split *split, int32_t part, int64_t local)
{
    int64_t cut;
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC: return dpari_cyclic_global(split, part, local);
    case DPAR_SPLIT_STRIDED: return dpari_strided_global(split, part, local);
    case DPAR_SPLIT_ZIGZAG: return dpari_zigzag_global(split, part, local);
    default:
        cut = dpari_split_cut(split, part);
        return local < dpari_split_cut(split, (int64_t)part + 1) - cut ? cut + local : -1;
    }
}

/* Counts the elements from i on that are consecutive in the part, where i has index `local`. */
static int64_t dpari_split_run(const dpar_split *split, int32_t part, int64_t i, int64_t local)
{
    int64_t in, left = split->count - i;
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        (void)dpari_split_div(split, 0, local, &in);
        return split->parts == 1 ? left : dpari_least(left, split->block - in);
    case DPAR_SPLIT_STRIDED:
        if (split->by[0] ==
            split->by[1]) { /* with pieces of one element or only one part, part 0 has everything */
            return left;
        }
        if (dpari_split_div(split, 0, i, &in) < split->rounds) {
            return part * split->by[1] + dpari_strided_full(split, part) - in;
        }
        left = dpari_strided_last(split, part, &local);
        return local + left - in;
    case DPAR_SPLIT_ZIGZAG: /* the two middle chunks are adjacent, so part P-1 has one run */
        in = dpari_zigzag_first(split, part);
        return local < in && part < split->parts - 1
                   ? in - local
                   : in + dpari_zigzag_second(split, part) - local;
    default: return dpari_split_cut(split, (int64_t)part + 1) - i;
    }
}

/* ---- queries --------------------------------------------------------------------------------- */

DPAR_API int64_t dpar_split_part_count(const dpar_split *split, int32_t part)
{
    int64_t offset;
    if (!dpari_split_has(split, part)) {
        return 0;
    }
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        return split->rounds * split->block +
               dpari_cyclic_last(split, dpari_cyclic_turn(split, part));
    case DPAR_SPLIT_STRIDED:
        return split->rounds * dpari_strided_full(split, part) +
               dpari_strided_last(split, part, &offset);
    case DPAR_SPLIT_ZIGZAG:
        return dpari_zigzag_first(split, part) + dpari_zigzag_second(split, part);
    default: return dpari_split_cut(split, (int64_t)part + 1) - dpari_split_cut(split, part);
    }
}

DPARI_API int dpari_split_in_order(const dpar_split *split)
{
    return split->rule == DPAR_SPLIT_CHUNK || split->rule == DPAR_SPLIT_EVEN ||
           split->rule == DPAR_SPLIT_FLOOR || split->rule == DPAR_SPLIT_RAGGED;
}

DPARI_INTERNAL int32_t dpari_even_of(int64_t n, int32_t parts, int64_t i)
{
    /* not longer * (each + 1), because each + 1 overflows if one part has 2^63 - 1 elements */
    const int64_t each = n / parts, longer = n % parts, beyond = longer * each + longer;
    return (int32_t)(i < beyond ? i / (each + 1) : longer + (i - beyond) / each);
}

DPAR_API int64_t dpar_split_part_first(const dpar_split *split, int32_t part)
{
    int64_t i = dpar_split_global(split, part, 0, NULL);
    return i < 0 ? split->count : i;
}

/* Not inlined, so that callers that need no run do not pay for it. */
DPARI_STATIC_NOINLINE int32_t dpari_split_find_run(const dpar_split *split, int64_t i,
                                                   int64_t *local, int64_t *run)
{
    int64_t at;
    int32_t part;
    if (i < 0 || i >= split->count) {
        return -1;
    }
    part = dpari_split_find(split, i, &at);
    *run = dpari_split_run(split, part, i, at);
    if (local != NULL) {
        *local = at;
    }
    return part;
}

DPAR_API int32_t dpar_split_locate(const dpar_split *split, int64_t i, int64_t *local, int64_t *run)
{
    int64_t at;
    int32_t part;
    if (run != NULL) {
        return dpari_split_find_run(split, i, local, run);
    }
    if (i < 0 || i >= split->count) {
        return -1;
    }
    part = dpari_split_find(split, i, &at);
    if (local != NULL) {
        *local = at;
    }
    return part;
}

DPAR_API int64_t dpar_split_global(const dpar_split *split, int32_t part, int64_t local,
                                   int64_t *run)
{
    int64_t i =
        dpari_split_has(split, part) && local >= 0 ? dpari_split_global(split, part, local) : -1;
    if (run != NULL && i >= 0) {
        *run = dpari_split_run(split, part, i, local);
    }
    return i;
}

/* Returns how many of `length` elements from `start` on are before i. */
static int64_t dpari_split_past(int64_t i, int64_t start, int64_t length)
{
    return i <= start ? 0 : dpari_least(i - start, length);
}

/* Counts the elements of `part` among the first i elements. The cuts are those of the whole count,
 * not of i elements. */
DPARI_INTERNAL int64_t dpari_split_before(const dpar_split *split, int32_t part, int64_t i)
{
    int64_t in, offset, piece, size, turn;
    if (!dpari_split_has(split, part) || i <= 0) {
        return 0;
    }
    i = dpari_least(i, split->count);
    switch (split->rule) {
    case DPAR_SPLIT_BLOCK_CYCLIC:
    case DPAR_SPLIT_CYCLIC:
        piece = dpari_split_div(split, 1, dpari_split_div(split, 0, i, &in), &turn) * split->block;
        offset = turn - dpari_cyclic_turn(split, part);
        if (offset > 0) {
            return piece + split->block;
        }
        return offset == 0 ? piece + in : piece;
    case DPAR_SPLIT_STRIDED:
        piece = dpari_split_div(split, 0, i, &in);
        size = dpari_strided_full(split, part);
        offset = part * split->by[1];
        turn = piece < split->rounds ? size : dpari_strided_last(split, part, &offset);
        return piece * size + dpari_split_past(in, offset, turn);
    case DPAR_SPLIT_ZIGZAG:
        size = 2 * (int64_t)split->parts - 1 - part;
        return dpari_split_past(i, dpari_zigzag_cut(split, part), dpari_zigzag_first(split, part)) +
               dpari_split_past(i, dpari_zigzag_cut(split, size), dpari_zigzag_second(split, part));
    default:
        return dpari_split_past(i, dpari_split_cut(split, part),
                                dpar_split_part_count(split, part));
    }
}

/* ---- without a split ---- */

DPAR_API int32_t dpar_split_owner(int32_t rule, int64_t count, int32_t parts, int64_t i)
{
    dpar_split s; /* made with a block of 0, which the rules that need a block refuse */
    return dpar_split_init(&s, rule, count, parts, 0, NULL) == DPAR_OK
               ? dpar_split_locate(&s, i, NULL, NULL)
               : -1;
}

DPAR_API dpar_status dpar_split_range(int32_t rule, int64_t count, int32_t parts, int32_t part,
                                      int64_t *first, int64_t *elements)
{
    dpar_split s;
    const dpar_status st = dpar_split_init(&s, rule, count, parts, 0, NULL);
    if (st < 0) {
        return st;
    }
    if (part < 0 || part >= parts || rule > DPAR_SPLIT_FLOOR) {
        return DPAR_E_ARG;
    }
    *first = dpar_split_part_first(&s, part);
    *elements = dpar_split_part_count(&s, part);
    return DPAR_OK;
}
