/* SPDX-License-Identifier: MIT-0 */
#include "split.h"

#include "../base/arith.h"

static const int64_t dpari_split_limit = INT64_C(1) << 62;

/* ---- division by a constant ------------------------------------------------------------------ */

/* The high half of a product. */
static uint64_t dpari_high(uint64_t a, uint64_t b)
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

/* n / by[k] for 0 <= n < 2^63. With v = floor((2^64 - 1) / d), floor(n v / 2^64) is the quotient or
 * one less, since n / d - n v / 2^64 <= n (1 + 1/d) / 2^64 < 1. */
static int64_t dpari_split_div(const dpar_split *s, int k, int64_t n, int64_t *rest)
{
    int64_t d = s->by[k], q = (int64_t)dpari_high((uint64_t)n, s->inverse[k]), r = n - q * d;
    int more = r >= d;
    *rest = more ? r - d : r;
    return q + more;
}

static void dpari_split_by(dpar_split *s, int k, int64_t divisor)
{
    s->by[k] = divisor > 0 ? divisor : 1;
    s->inverse[k] = UINT64_MAX / (uint64_t)s->by[k];
}

/* ---- making --------------------------------------------------------------------------------- */

static dpar_status dpari_split_check(int64_t count, int32_t parts, dpar_why *why)
{
    if (parts < 1) {
        return dpari_say(DPAR_E_ARG, why, "# parts: there must be at least 1", parts, 0, 0, 0);
    }
    if (count < 0) {
        return dpari_say(DPAR_E_ARG, why, "# elements: there must be 0 or more", count, 0, 0, 0);
    }
    if (count > dpari_split_limit) {
        return dpari_say(DPAR_E_RANGE, why, "# elements: at most 2^62 can be split", count, 0, 0,
                         0);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_split_init(dpar_split *s, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, int32_t source, dpar_why *why)
{
    dpar_split made;
    dpar_status st = dpari_split_check(count, parts, why);
    int32_t blocked = rule == DPAR_BLOCK_CYCLIC || rule == DPAR_STRIDED;
    if (st != DPAR_OK) {
        return st;
    }
    if (rule < 0 || rule >= DPAR_SPLITS || rule == DPAR_RAGGED) {
        return dpari_say(DPAR_E_ARG, why, "rule #: there are 0 to 7, and RAGGED has its own init",
                         rule, 0, 0, 0);
    }
    if (blocked && block < 1) {
        return dpari_say(DPAR_E_ARG, why, "block #: blocks and pieces are at least 1", block, 0, 0,
                         0);
    }
    if (rule == DPAR_BLOCK_CYCLIC && (source < 0 || source >= parts)) {
        return dpari_say(DPAR_E_ARG, why, "source #: it is one of the # parts", source, parts, 0,
                         0);
    }
    dpari_zero(&made, sizeof(made));
    made.rule = rule;
    made.parts = parts;
    made.count = count;
    made.block = rule == DPAR_STRIPE ? 1 : blocked ? block : 0;
    made.source = rule == DPAR_BLOCK_CYCLIC ? source : 0;
    switch (rule) {
    case DPAR_EVEN:
        dpari_split_by(&made, 0, count / parts + 1);
        dpari_split_by(&made, 1, count / parts);
        break;
    case DPAR_FLOOR:
        dpari_split_by(&made, 0, count);
        dpari_split_by(&made, 1, parts);
        break;
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE:
        dpari_split_by(&made, 0, made.block);
        dpari_split_by(&made, 1, parts);
        break;
    case DPAR_STRIDED: /* elements of a piece; of a part of a full piece */
        dpari_split_by(&made, 0, dpari_ceil_div(count, block));
        dpari_split_by(&made, 1, dpari_ceil_div(made.by[0], parts));
        break;
    default:
        dpari_split_by(&made, 0,
                       dpari_ceil_div(count, rule == DPAR_ZIGZAG ? 2 * (int64_t)parts : parts));
    }
    *s = made;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_split_ragged(dpar_split *s, int32_t parts, const int64_t *cuts,
                                       dpar_why *why)
{
    dpar_status st = dpari_split_check(parts < 1 ? 0 : cuts[parts], parts, why);
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (cuts[0] != 0) {
        return dpari_say(DPAR_E_ARG, why, "cut 0 is #: the first part begins at 0", cuts[0], 0, 0,
                         0);
    }
    for (p = 0; p < parts; p++) {
        if (cuts[p + 1] < cuts[p]) {
            return dpari_say(DPAR_E_ARG, why, "cut # is # and cut # is #: cuts ascend", p, cuts[p],
                             (int64_t)p + 1, cuts[p + 1]);
        }
    }
    dpari_zero(s, sizeof(*s));
    s->rule = DPAR_RAGGED;
    s->parts = parts;
    s->count = cuts[parts];
    s->cuts = cuts;
    return DPAR_OK;
}

/* floor(a b / c) for a < 2^62, 0 <= b <= c < 2^31, without a product that overflows. */
static int64_t dpari_share(int64_t a, int64_t b, int64_t c)
{
    return a / c * b + a % c * b / c;
}

DPAR_API dpar_status dpar_split_weights(int64_t *cuts, int64_t count, int32_t parts,
                                        const int64_t *weights, int64_t atom, dpar_why *why)
{
    dpar_status st = dpari_split_check(count, parts, why);
    int64_t all = 0, before = 0, atoms;
    int32_t p;
    if (st != DPAR_OK) {
        return st;
    }
    if (atom < 1) {
        return dpari_say(DPAR_E_ARG, why, "atom #: it is at least 1", atom, 0, 0, 0);
    }
    for (p = 0; p < parts; p++) {
        if (weights[p] < 0) {
            return dpari_say(DPAR_E_ARG, why, "weight # is #: weights are 0 or more", p, weights[p],
                             0, 0);
        }
        all = weights[p] > INT32_MAX - all ? (int64_t)INT32_MAX + 1 : all + weights[p];
        if (all > INT32_MAX) {
            return dpari_say(DPAR_E_RANGE, why, "the sum of # weights passes 2^31 - 1", parts, 0, 0,
                             0);
        }
    }
    if (all == 0) {
        return dpari_say(DPAR_E_ARG, why, "all # weights are 0", parts, 0, 0, 0);
    }
    atoms = dpari_ceil_div(count, atom);
    for (p = 0; p <= parts; p++) {
        int64_t cut = dpari_share(atoms, before, all);
        cuts[p] = cut > count / atom ? count : cut * atom; /* the last atom may be short */
        before += p < parts ? weights[p] : 0;
    }
    return DPAR_OK;
}

/* Runs that are filled up to `most` each: how many are needed. */
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

DPAR_API dpar_status dpar_split_balance(int64_t *cuts, int64_t items, const int64_t *cost,
                                        int32_t parts, dpar_why *why)
{
    dpar_status st = dpari_split_check(items, parts, why);
    int64_t i, all = 0, low = 0, high, load = 0;
    int32_t p = 0;
    if (st != DPAR_OK) {
        return st;
    }
    for (i = 0; i < items; i++) {
        if (cost[i] < 0 || cost[i] > dpari_split_limit - all) {
            return dpari_say(cost[i] < 0 ? DPAR_E_ARG : DPAR_E_RANGE, why,
                             "cost # is #: costs are 0 or more, their sum at most 2^62", i, cost[i],
                             0, 0);
        }
        all += cost[i];
        low = dpari_most(low, cost[i]);
    }
    for (high = all; low < high;) { /* the least maximum that `parts` runs can keep */
        int64_t middle = low + (high - low) / 2;
        if (dpari_balance_runs(items, cost, middle) <= parts) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    cuts[0] = 0;
    for (i = 0; i < items; i++) { /* full, or no more than one item for each run that is left */
        if (i > cuts[p] && (cost[i] > low - load || items - i < parts - p)) {
            cuts[++p] = i;
            load = 0;
        }
        load += cost[i];
    }
    while (p < parts) {
        cuts[++p] = items;
    }
    return DPAR_OK;
}

/* ---- contiguous rules ----------------------------------------------------------------------- */

/* floor(N p/P) = (N/P) p + (N%P) p / P: the second product is below 2^62. */
static int64_t dpari_floor_cut(const dpar_split *s, int32_t p)
{
    int64_t rest, each = dpari_split_div(s, 1, s->count, &rest);
    return each * p + dpari_split_div(s, 1, rest * p, &rest);
}

/* Where part p begins, 0 <= p <= P. p b <= N + P: no product overflows. */
static int64_t dpari_split_cut(const dpar_split *s, int32_t p)
{
    switch (s->rule) {
    case DPAR_CHUNK: return dpari_least(s->count, p * s->by[0]);
    case DPAR_EVEN: {
        int64_t each = s->by[0] - 1;
        return each * p + dpari_least(p, s->count - each * s->parts);
    }
    case DPAR_FLOOR: return dpari_floor_cut(s, p);
    default: return s->cuts[p];
    }
}

/* The last part that begins at or before i and is not empty, by halving. */
static int32_t dpari_split_search(const dpar_split *s, int64_t i)
{
    int32_t low = 0, high = s->parts; /* cut(low) <= i < cut(high) */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (dpari_split_cut(s, middle) <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

static int32_t dpari_even_owner(const dpar_split *s, int64_t i)
{
    int64_t longer = s->count - (s->by[0] - 1) * s->parts, rest; /* parts with one more */
    int64_t p = dpari_split_div(s, 0, i, &rest);
    return (int32_t)(p < longer ? p : dpari_split_div(s, 1, i - longer, &rest));
}

/* floor(N p/P) <= i  <=>  p <= (P (i+1) - 1) / N: divided where that fits, else searched for. */
static int32_t dpari_floor_owner(const dpar_split *s, int64_t i)
{
    int64_t rest;
    if (i >= INT64_MAX / s->parts - 1) {
        return dpari_split_search(s, i);
    }
    return (int32_t)dpari_split_div(s, 0, s->parts * (i + 1) - 1, &rest);
}

static int32_t dpari_split_part(const dpar_split *s, int64_t i)
{
    int64_t rest;
    switch (s->rule) {
    case DPAR_CHUNK: return (int32_t)dpari_split_div(s, 0, i, &rest);
    case DPAR_EVEN: return dpari_even_owner(s, i);
    case DPAR_FLOOR: return dpari_floor_owner(s, i);
    default: return dpari_split_search(s, i);
    }
}

/* ---- scattered rules ------------------------------------------------------------------------ */

/* All of them deal segments: STRIDED's pieces, ZIGZAG's chunks, cyclic blocks. */
static int dpari_split_scattered(const dpar_split *s)
{
    return s->rule == DPAR_BLOCK_CYCLIC || s->rule == DPAR_STRIPE || s->rule == DPAR_STRIDED ||
           s->rule == DPAR_ZIGZAG;
}

/* BLOCK_CYCLIC, 0-based (ScaLAPACK): block j belongs to (source + j) mod P. */
static int32_t dpari_cyclic_find(const dpar_split *s, int64_t i, int64_t *local, int64_t *run)
{
    int64_t in, turn, block = dpari_split_div(s, 0, i, &in), left = s->count - i, to;
    int64_t round = dpari_split_div(s, 1, block, &turn);
    *local = s->block * round + in;
    *run = s->parts == 1 ? left : dpari_least(left, s->block - in);
    to = turn + s->source;
    return (int32_t)(to >= s->parts ? to - s->parts : to);
}

/* The turn of a part: 0 for the one that has the first block. */
static int32_t dpari_cyclic_turn(const dpar_split *s, int32_t part)
{
    return part >= s->source ? part - s->source : part - s->source + s->parts;
}

/* NUMROC. */
static int64_t dpari_cyclic_size(const dpar_split *s, int32_t part)
{
    int64_t in, extra, blocks = dpari_split_div(s, 0, s->count, &in);
    int64_t rounds = dpari_split_div(s, 1, blocks, &extra);
    int32_t turn = dpari_cyclic_turn(s, part);
    return rounds * s->block + (turn < extra ? s->block : turn == extra ? in : 0);
}

static int64_t dpari_cyclic_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run)
{
    int64_t in, round = dpari_split_div(s, 0, local, &in), i;
    i = (round * s->parts + dpari_cyclic_turn(s, part)) * s->block + in;
    *run = s->parts == 1 ? s->count - i : dpari_least(s->count - i, s->block - in);
    return i;
}

/* STRIDED: where part p lies inside a piece of `length`, and how much it has of it. */
static int64_t dpari_piece_part(const dpar_split *s, int64_t length, int32_t p, int64_t *offset)
{
    int64_t b = length == s->by[0] ? s->by[1] : dpari_ceil_div(length, s->parts);
    *offset = dpari_least(length, p * b);
    return dpari_least(b, length - *offset);
}

/* Elements of the piece that begins at `start`. */
static int64_t dpari_piece_length(const dpar_split *s, int64_t start)
{
    return dpari_least(s->by[0], s->count - start);
}

/* Pieces of one element, or one part: then part 0 has everything, in one run. */
static int dpari_strided_whole(const dpar_split *s)
{
    return s->by[0] == s->by[1];
}

static int32_t dpari_strided_find(const dpar_split *s, int64_t i, int64_t *local, int64_t *run)
{
    int64_t in, piece = dpari_split_div(s, 0, i, &in), length, offset, of_full, rest, size, part;
    length = dpari_piece_length(s, i - in);
    if (length == s->by[0]) {
        part = dpari_split_div(s, 1, in, &rest);
    } else {
        part = in / dpari_ceil_div(length, s->parts);
    }
    size = dpari_piece_part(s, length, (int32_t)part, &offset);
    of_full = length == s->by[0] ? size : dpari_piece_part(s, s->by[0], (int32_t)part, &rest);
    *local = piece * of_full + in - offset;
    *run = dpari_strided_whole(s) ? s->count - i : size - (in - offset);
    return (int32_t)part;
}

static int64_t dpari_strided_size(const dpar_split *s, int32_t part)
{
    int64_t in, offset, pieces = dpari_split_div(s, 0, s->count, &in);
    return pieces * dpari_piece_part(s, s->by[0], part, &offset) +
           (in > 0 ? dpari_piece_part(s, in, part, &offset) : 0);
}

static int64_t dpari_strided_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run)
{
    int64_t offset, of_full = dpari_piece_part(s, s->by[0], part, &offset), rest, size, in;
    int64_t pieces = dpari_split_div(s, 0, s->count, &rest), piece;
    if (of_full == s->by[1]) {
        piece = dpari_split_div(s, 1, local, &in);
    } else {
        piece = of_full > 0 ? local / of_full : pieces;
    }
    piece = dpari_least(pieces, piece);
    local -= piece * of_full;
    size = dpari_piece_part(s, dpari_piece_length(s, piece * s->by[0]), part, &offset);
    rest = piece * s->by[0] + offset + local;
    *run = dpari_strided_whole(s) ? s->count - rest : size - local;
    return rest;
}

/* ZIGZAG: chunk c of 2P. */
static int64_t dpari_zigzag_cut(const dpar_split *s, int64_t c)
{
    return dpari_least(s->count, c * s->by[0]);
}

static int64_t dpari_zigzag_first(const dpar_split *s, int32_t part)
{
    return dpari_zigzag_cut(s, (int64_t)part + 1) - dpari_zigzag_cut(s, part);
}

/* The two middle chunks touch: part P-1 has one run. */
static int64_t dpari_zigzag_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run)
{
    int64_t first = dpari_zigzag_first(s, part), second = 2 * (int64_t)s->parts - 1 - part, i;
    if (part == s->parts - 1 || local >= first) {
        i = part == s->parts - 1 ? dpari_zigzag_cut(s, part) + local
                                 : dpari_zigzag_cut(s, second) + local - first;
        *run = dpari_zigzag_cut(s, second + 1) - i;
    } else {
        i = dpari_zigzag_cut(s, part) + local;
        *run = first - local;
    }
    return i;
}

static int32_t dpari_zigzag_find(const dpar_split *s, int64_t i, int64_t *local, int64_t *run)
{
    int64_t in, chunk = dpari_split_div(s, 0, i, &in), last = 2 * (int64_t)s->parts - 1;
    int32_t part = (int32_t)(chunk < s->parts ? chunk : last - chunk);
    *local = chunk < s->parts ? in : dpari_zigzag_first(s, part) + in;
    (void)dpari_zigzag_global(s, part, *local, run);
    return part;
}

static int64_t dpari_zigzag_size(const dpar_split *s, int32_t part)
{
    int64_t second = 2 * (int64_t)s->parts - 1 - part;
    return dpari_zigzag_first(s, part) + dpari_zigzag_cut(s, second + 1) -
           dpari_zigzag_cut(s, second);
}

/* ---- the promise ---------------------------------------------------------------------------- */

DPAR_API int64_t dpar_split_size(const dpar_split *s, int32_t part)
{
    if (part < 0 || part >= s->parts) {
        return 0;
    }
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE: return dpari_cyclic_size(s, part);
    case DPAR_STRIDED: return dpari_strided_size(s, part);
    case DPAR_ZIGZAG: return dpari_zigzag_size(s, part);
    default: return dpari_split_cut(s, part + 1) - dpari_split_cut(s, part);
    }
}

DPAR_API int64_t dpar_split_most(const dpar_split *s)
{
    int64_t most = 0;
    int32_t p;
    switch (s->rule) {
    case DPAR_FLOOR: return dpari_ceil_div(s->count, s->parts);
    case DPAR_BLOCK_CYCLIC: return dpari_cyclic_size(s, s->source);
    case DPAR_ZIGZAG: return dpari_most(dpar_split_size(s, 0), dpar_split_size(s, s->parts - 1));
    case DPAR_RAGGED:
        for (p = 0; p < s->parts; p++) {
            most = dpari_most(most, dpar_split_size(s, p));
        }
        return most;
    default: return dpar_split_size(s, 0); /* earlier parts are never shorter */
    }
}

DPAR_API int64_t dpar_split_offset(const dpar_split *s, int32_t part)
{
    int64_t i = dpar_split_global(s, part, 0, NULL);
    return i < 0 ? s->count : i;
}

DPAR_API int32_t dpar_split_owner(const dpar_split *s, int64_t i)
{
    int64_t local, run;
    if (i < 0 || i >= s->count) {
        return -1;
    }
    return dpari_split_scattered(s) ? dpar_split_find(s, i, &local, &run) : dpari_split_part(s, i);
}

DPAR_API int32_t dpar_split_find(const dpar_split *s, int64_t i, int64_t *local, int64_t *run)
{
    int64_t at = 0, left = 0;
    int32_t part;
    if (i < 0 || i >= s->count) {
        return -1;
    }
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE: part = dpari_cyclic_find(s, i, &at, &left); break;
    case DPAR_STRIDED: part = dpari_strided_find(s, i, &at, &left); break;
    case DPAR_ZIGZAG: part = dpari_zigzag_find(s, i, &at, &left); break;
    default:
        part = dpari_split_part(s, i);
        at = i - dpari_split_cut(s, part);
        left = run != NULL ? dpari_split_cut(s, part + 1) - i : 0;
    }
    if (local != NULL) {
        *local = at;
    }
    if (run != NULL) {
        *run = left;
    }
    return part;
}

DPAR_API int64_t dpar_split_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run)
{
    int64_t i, left;
    if (local < 0 || local >= dpar_split_size(s, part)) {
        return -1;
    }
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE: i = dpari_cyclic_global(s, part, local, &left); break;
    case DPAR_STRIDED: i = dpari_strided_global(s, part, local, &left); break;
    case DPAR_ZIGZAG: i = dpari_zigzag_global(s, part, local, &left); break;
    default: i = dpari_split_cut(s, part) + local; left = dpari_split_cut(s, part + 1) - i;
    }
    if (run != NULL) {
        *run = left;
    }
    return i;
}

/* Of `length` elements that begin at `start`: how many lie before i. */
static int64_t dpari_split_past(int64_t i, int64_t start, int64_t length)
{
    return i <= start ? 0 : dpari_least(i - start, length);
}

/* Of the first i elements those of `part`: what the rule would give it if there were only i, but
 * for the cuts, which stay where they are. */
DPAR_API int64_t dpar_split_before(const dpar_split *s, int32_t part, int64_t i)
{
    int64_t in, offset, piece, size, turn;
    if (part < 0 || part >= s->parts || i <= 0) {
        return 0;
    }
    i = dpari_least(i, s->count);
    switch (s->rule) {
    case DPAR_BLOCK_CYCLIC:
    case DPAR_STRIPE:
        piece = dpari_split_div(s, 1, dpari_split_div(s, 0, i, &in), &turn) * s->block;
        offset = turn - dpari_cyclic_turn(s, part);
        return piece + (offset > 0 ? s->block : offset == 0 ? in : 0);
    case DPAR_STRIDED:
        piece = dpari_split_div(s, 0, i, &in);
        size = piece * dpari_piece_part(s, s->by[0], part, &offset);
        turn = dpari_piece_part(s, dpari_piece_length(s, i - in), part, &offset);
        return size + dpari_split_past(in, offset, turn);
    case DPAR_ZIGZAG:
        size = 2 * (int64_t)s->parts - 1 - part;
        piece = dpari_zigzag_cut(s, size);
        return dpari_split_past(i, dpari_zigzag_cut(s, part), dpari_zigzag_first(s, part)) +
               dpari_split_past(i, piece, dpari_zigzag_cut(s, size + 1) - piece);
    default: return dpari_split_past(i, dpari_split_cut(s, part), dpar_split_size(s, part));
    }
}
