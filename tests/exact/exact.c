/* SPDX-License-Identifier: MIT-0 */
/* Tests exact sums, dot products and norms without ranks against integers of 4500 bits that are
 * added bit by bit: all types, data of many kinds, any order and cut, boxes, sums that are merged,
 * all rounding modes, and with subnormal numbers flushed to zero. fast_math.sh compiles it with
 * -Ofast. */
#define CHECK_THREADS
#include "check.h"
#include "exact_oracle.h"

#include <fenv.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { MOST = 2600 };

static uint64_t seed = 1;

static uint64_t lot(void) /* splitmix64 */
{
    uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int64_t below(int64_t n)
{
    return (int64_t)(lot() % (uint64_t)n);
}

/* ---- data ------------------------------------------------------------------------------------ */

enum { NARROW, MIDDLE, WIDE, ALL, SUBNORMAL, HUGE_ONES, CANCEL, INTEGERS, ZEROS, EQUAL, SPECIAL, KINDS };

/* Writes element i of a type from a sign, a biased exponent and a fraction. */
static void put(void *x, int64_t i, int type, uint64_t sign, int64_t exponent, uint64_t fraction)
{
    int bits, exponents, smallest, b;
    uint64_t value;
    oracle_type(type, &bits, &exponents, &smallest);
    value = sign % 2 << (bits + exponents) | (uint64_t)exponent << bits |
            fraction % (UINT64_C(1) << bits);
    for (b = 0; b < dpar_type_bytes(type); b++) {
        ((unsigned char *)x)[i * dpar_type_bytes(type) + b] = (unsigned char)(value >> 8 * b);
    }
}

static void fill(void *x, int64_t n, int type, int kind)
{
    const int bytes = dpar_type_bytes(type);
    int fraction, exponents, smallest;
    int64_t i, top, base;
    oracle_type(type, &fraction, &exponents, &smallest);
    top = (INT64_C(1) << exponents) - 2;
    base = below(top - 1) + 1;
    for (i = 0; i < n; i++) {
        uint64_t bits = lot();
        int64_t e = base, range = kind == NARROW ? 8 : kind == MIDDLE ? 45 : 120;
        if (kind <= WIDE) {
            e = base - below(range);
            e = e < 1 ? 1 : e;
        } else if (kind == ALL || kind == CANCEL || kind == SPECIAL) {
            e = below(top + 1);
        } else if (kind == SUBNORMAL) {
            e = below(3);
        } else if (kind == HUGE_ONES) {
            e = top - below(2);
        } else if (kind == INTEGERS) {
            e = top / 2 + below(fraction);
            bits &= ~((UINT64_C(1) << (fraction - (e - top / 2))) - 1);
        } else if (kind == ZEROS) {
            e = below(3) == 0 ? base : 0;
            bits = e == 0 ? 0 : bits;
        } else if (kind == EQUAL) {
            bits = base % 2 == 0 ? (uint64_t)base * 12345 : ~UINT64_C(0) - (uint64_t)base;
        }
        put(x, i, type, kind == EQUAL ? 0 : lot(), e, bits);
        if (kind == CANCEL && i > 0 && below(8) != 0) { /* minus an earlier element */
            unsigned char *at = (unsigned char *)x;
            memcpy(at + i * bytes, at + below(i) * bytes, (size_t)bytes);
            at[i * bytes + bytes - 1] ^= 128;
        }
    }
    if (kind == SPECIAL && n > 0) {
        const int which = (int)below(6);
        put(x, below(n), type, lot(), top + 1, which == 0 ? 1 + lot() % 100 : 0);
        if (which >= 4) {
            put(x, below(n), type, lot(), top + 1, 0);
        }
        if (which == 5) {
            put(x, below(n), type, lot(), 0, 0);
        }
    }
}

/* ---- comparisons ----------------------------------------------------------------------------- */

static const int types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16};

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}

/* True if all digits of the sum are right: they are 0 once the oracle's bits are subtracted. */
static int same_digits(const dpar_exact *sum, const oracle *o)
{
    dpar_exact rest = *sum;
    int i, digits = 0;
    for (i = 0; i < ORACLE_BITS; i++) {
        const int bit = i - ORACLE_ONE + 32 * 68;
        if (o->plus[i] != o->minus[i]) {
            rest.word[bit / 32] += (o->minus[i] - o->plus[i]) * (INT64_C(1) << bit % 32);
        }
    }
    dpar_exact_normalize(&rest);
    for (i = 0; i < DPAR_EXACT_DIGITS; i++) {
        digits += rest.word[i] != 0;
    }
    return digits == 0 && rest.word[136] == o->nan && rest.word[137] == o->inf &&
           rest.word[138] == o->minus_inf;
}

static void compare(const dpar_exact *sum, const oracle *o, int type, int kind, int64_t n)
{
    const uint64_t got = bits_of(dpar_exact_result(sum, type)), expected = oracle_result(o, type);
    CHECK(got == expected);
    CHECK(same_digits(sum, o));
    if (got != expected) {
        printf("  %s, kind %d, %d elements: %016llx, expected %016llx\n", dpar_type_name(type), kind,
               (int)n, (unsigned long long)got, (unsigned long long)expected);
    }
}

/* Adds x, or the products of x and y, in pieces of random lengths and in random order. */
static void add_pieces(dpar_exact *sum, const unsigned char *x, const unsigned char *y, int64_t n,
                       int type)
{
    const int bytes = dpar_type_bytes(type);
    int64_t cut[8], at[8], i, pieces = 1 + below(7);
    dpar_exact other;
    memset(&other, 0, sizeof other);
    cut[0] = 0;
    for (i = 1; i < pieces; i++) {
        cut[i] = cut[i - 1] + below(n - cut[i - 1] + 1);
    }
    for (i = 0; i < pieces; i++) {
        at[i] = i;
    }
    for (i = pieces - 1; i > 0; i--) {
        const int64_t j = below(i + 1), swap = at[i];
        at[i] = at[j];
        at[j] = swap;
    }
    for (i = 0; i < pieces; i++) {
        const int64_t first = cut[at[i]], last = at[i] + 1 < pieces ? cut[at[i] + 1] : n;
        dpar_exact *to = below(2) ? sum : &other;
        if (y) {
            CHECK_INT(dpar_exact_add_dot(to, x + first * bytes, y + first * bytes, last - first, type), 0);
        } else {
            CHECK_INT(dpar_exact_add(to, x + first * bytes, last - first, type), 0);
        }
    }
    dpar_exact_merge(sum, &other);
}

static void one_case(int type, int kind, int64_t n, int other_kind)
{
    static double memory[2][MOST + 9];
    static oracle sum, dot, square;
    unsigned char *x = (unsigned char *)memory[0] + below(9) * dpar_type_bytes(type);
    unsigned char *y = (unsigned char *)memory[1] + below(9) * dpar_type_bytes(type);
    dpar_exact got, again;
    int64_t i;
    fill(x, n, type, kind);
    fill(y, n, type, other_kind);
    memset(&sum, 0, sizeof sum);
    memset(&dot, 0, sizeof dot);
    memset(&square, 0, sizeof square);
    for (i = 0; i < n; i++) {
        const oracle_number a = oracle_read(x, i, type), b = oracle_read(y, i, type);
        oracle_add(&sum, x, i, type);
        oracle_add_product(&dot, a, b);
        oracle_add_product(&square, a, a);
    }
    memset(&got, 0, sizeof got);
    add_pieces(&got, x, NULL, n, type);
    compare(&got, &sum, type, kind, n);
    compare(&got, &sum, types[below(4)], kind, n); /* rounded to another type */
    memset(&again, 0, sizeof again);
    add_pieces(&again, x, NULL, n, type);
    dpar_exact_normalize(&got);
    dpar_exact_normalize(&again);
    CHECK(memcmp(got.word, again.word, sizeof got.word) == 0);
    memset(&got, 0, sizeof got);
    add_pieces(&got, x, y, n, type);
    compare(&got, &dot, type, kind, n);
    CHECK(oracle_is_root(&dot, type, bits_of(dpar_exact_root(&got, type))));
    memset(&got, 0, sizeof got);
    add_pieces(&got, x, x, n, type);
    compare(&got, &square, type, kind, n);
    i = types[below(4)];
    CHECK(oracle_is_root(&square, type, bits_of(dpar_exact_root(&got, type))));
    CHECK(oracle_is_root(&square, (int)i, bits_of(dpar_exact_root(&got, (int32_t)i))));
}

static void cases(int rounds)
{
    int r;
    for (r = 0; r < rounds; r++) {
        const int type = types[r % 4], kind = r / 4 % KINDS;
        const int64_t n = below(4) == 0 ? below(MOST) : below(600);
        one_case(type, kind, n, below(2) ? kind : (int)below(KINDS));
    }
}

/* ---- boxes ----------------------------------------------------------------------------------- */

static void boxes(int rounds)
{
    static double x[MOST], y[MOST];
    static oracle o;
    int r;
    for (r = 0; r < rounds; r++) {
        const int type = types[below(4)], kind = (int)below(SPECIAL);
        dpar_exact_term term = dpar_exact_sum_of(x, 0, type);
        dpar_exact got;
        int64_t extent[3], at[3], need_x = 1, need_y = 1;
        int d, order[3] = {0, 1, 2};
        memset(&got, 0, sizeof got);
        memset(&o, 0, sizeof o);
        fill(x, MOST, type, kind);
        fill(y, MOST, type, kind);
        term.kind = (int32_t)below(3);
        term.y = y;
        term.dims = 3;
        for (d = 2; d >= 0; d--) { /* dims of any order in memory, with gaps */
            const int swap = order[d], j = (int)below(d + 1);
            order[d] = order[j];
            order[j] = swap;
        }
        for (d = 0; d < 3; d++) {
            const int k = order[d];
            term.extent[k] = extent[k] = below(20) == 0 ? 0 : 1 + below(d == 0 && below(3) == 0 ? 300 : 9);
            term.x_stride[k] = need_x;
            term.y_stride[k] = need_y;
            need_x *= extent[k] + below(2);
            need_y *= extent[k] + below(2);
            need_x = need_x > 0 ? need_x : 1;
            need_y = need_y > 0 ? need_y : 1;
        }
        if (need_x > MOST || need_y > MOST) {
            continue;
        }
        if (below(3) == 0 && extent[1] > 0) { /* one dim from its end */
            term.x = (const char *)term.x + (extent[1] - 1) * term.x_stride[1] * dpar_type_bytes(type);
            term.x_stride[1] = -term.x_stride[1];
        }
        for (at[0] = 0; at[0] < extent[0]; at[0]++) {
            for (at[1] = 0; at[1] < extent[1]; at[1]++) {
                for (at[2] = 0; at[2] < extent[2]; at[2]++) {
                    int64_t i = 0, j = 0;
                    for (d = 0; d < 3; d++) {
                        i += at[d] * term.x_stride[d];
                        j += at[d] * term.y_stride[d];
                    }
                    if (term.kind == DPAR_EXACT_SUM) {
                        oracle_add(&o, term.x, i, type);
                    } else {
                        const oracle_number a = oracle_read(term.x, i, type);
                        const oracle_number b = oracle_read(term.y, j, type);
                        oracle_add_product(&o, a, term.kind == DPAR_EXACT_NORM ? a : b);
                    }
                }
            }
        }
        CHECK_INT(dpar_exact_add_term(&got, &term), 0);
        compare(&got, &o, type, kind, extent[0] * extent[1] * extent[2]);
    }
}

/* ---- single cases ---------------------------------------------------------------------------- */

static uint64_t sum_of(const double *x, int64_t n)
{
    dpar_exact sum;
    memset(&sum, 0, sizeof sum);
    dpar_exact_add(&sum, x, n, DPAR_F64);
    return bits_of(dpar_exact_result(&sum, DPAR_F64));
}

static void known(void)
{
    const double overflow[] = {1e308, 1e308, -1e308};
    const double too_large[] = {1.7976931348623157e308, 1.7976931348623157e308};
    const double half[] = {1.0, 0x1p-53}, more[] = {1.0, 0x1p-53, 0x1p-1074};
    const double odd[] = {0x1.0000000000001p0, 0x1p-53};
    const double limit[] = {1.7976931348623157e308, 0x1p969}, under[] = {1.7976931348623157e308, 0x1.fp969};
    const double over[] = {1.7976931348623157e308, 0x1p970};
    const double minus_zero[] = {-0.0, -0.0}, tiny[] = {-0x1p-600, 0x1p-600};
    double x[1000], sum;
    dpar_exact e;
    int64_t i;
    CHECK(sum_of(overflow, 3) == bits_of(1e308));
    CHECK(sum_of(too_large, 2) == UINT64_C(0x7ff0000000000000));
    CHECK(sum_of(half, 2) == bits_of(1.0));
    CHECK(sum_of(more, 3) == bits_of(0x1.0000000000001p0));
    CHECK(sum_of(odd, 2) == bits_of(0x1.0000000000002p0));
    CHECK(sum_of(limit, 2) == bits_of(1.7976931348623157e308));
    CHECK(sum_of(under, 2) == bits_of(1.7976931348623157e308));
    CHECK(sum_of(over, 2) == UINT64_C(0x7ff0000000000000));
    CHECK(sum_of(minus_zero, 2) == 0);
    CHECK(sum_of(minus_zero, 0) == 0);
    memset(&e, 0, sizeof e);
    dpar_exact_add_dot(&e, tiny, tiny + 1, 1, DPAR_F64);
    CHECK(bits_of(dpar_exact_result(&e, DPAR_F64)) == UINT64_C(0x8000000000000000)); /* as -2^-1200 */
    /* 0.1 a thousand times, as Python's math.fsum has it */
    for (i = 0; i < 1000; i++) {
        x[i] = 0.1;
    }
    CHECK(sum_of(x, 1000) == bits_of(100.0));
    /* the largest number 2^29 times, so that digits carry in between; its negative cancels it */
    memset(&e, 0, sizeof e);
    for (i = 0; i < 1000; i++) {
        x[i] = 1.7976931348623157e308;
    }
    dpar_exact_add(&e, x, 1000, DPAR_F64);
    for (i = 0; i < 40; i++) {
        dpar_exact_merge(&e, &e);
    }
    CHECK(bits_of(dpar_exact_result(&e, DPAR_F64)) == UINT64_C(0x7ff0000000000000));
    for (i = 0; i < 1000; i++) {
        x[i] = -1.7976931348623157e308;
    }
    {
        dpar_exact m;
        memset(&m, 0, sizeof m);
        dpar_exact_add(&m, x, 1000, DPAR_F64);
        for (i = 0; i < 40; i++) {
            dpar_exact_merge(&m, &m);
        }
        dpar_exact_merge(&e, &m);
    }
    x[0] = 0.75;
    dpar_exact_add(&e, x, 1, DPAR_F64);
    CHECK(bits_of(dpar_exact_result(&e, DPAR_F64)) == bits_of(0.75));
    /* wrong calls add nothing */
    CHECK_INT(dpar_exact_add(NULL, x, 1, DPAR_F64), DPAR_E_ARG);
    CHECK_INT(dpar_exact_add(&e, NULL, 1, DPAR_F64), DPAR_E_ARG);
    CHECK_INT(dpar_exact_add(&e, NULL, 0, DPAR_F64), DPAR_OK);
    CHECK_INT(dpar_exact_add(&e, x, -1, DPAR_F64), DPAR_E_ARG);
    CHECK_INT(dpar_exact_add(&e, x, 1, DPAR_I32), DPAR_E_ARG);
    CHECK_INT(dpar_exact_add_dot(&e, x, NULL, 1, DPAR_F64), DPAR_E_ARG);
    CHECK_INT(dpar_exact_add_term(&e, NULL), DPAR_E_ARG);
    dpar_exact_merge(&e, NULL);
    dpar_exact_normalize(NULL);
    CHECK(bits_of(dpar_exact_result(&e, DPAR_F64)) == bits_of(0.75));
    CHECK(bits_of(dpar_exact_result(&e, DPAR_I64)) == UINT64_C(0x7ff8000000000000));
    CHECK(bits_of(dpar_exact_root(&e, DPAR_TYPE_NONE)) == UINT64_C(0x7ff8000000000000));
    sum = dpar_exact_result(NULL, DPAR_F64);
    CHECK(bits_of(sum) == 0);
}

/* More additions than digits can take without carries. */
static void many_additions(void)
{
    dpar_exact e, limit;
    double x[16];
    int64_t i;
    memset(&e, 0, sizeof e);
    for (i = 0; i < 16; i++) {
        x[i] = i % 2 ? 0x1p600 : 0x1.fffffffffffffp0; /* too different for vectors */
    }
    dpar_exact_add(&e, x, 16, DPAR_F64);
    limit = e;
    limit.pending = (INT64_C(1) << 28) - 8; /* as after so many additions */
    for (i = 0; i < 4; i++) {
        dpar_exact_add(&e, x, 16, DPAR_F64);
        dpar_exact_add(&limit, x, 16, DPAR_F64);
    }
    CHECK(limit.pending < 100);
    dpar_exact_normalize(&e);
    dpar_exact_normalize(&limit);
    CHECK(memcmp(e.word, limit.word, sizeof e.word) == 0);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 240;
    known();
    many_additions();
    cases(rounds);
    boxes(rounds);
#ifndef __FAST_MATH__ /* compilers with -ffast-math assume the default modes, for the oracle too */
#if defined(FE_UPWARD) && defined(FE_DOWNWARD) && defined(FE_TOWARDZERO)
    {
        const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
        int m;
        for (m = 0; m < 3; m++) {
            fesetround(modes[m]);
            cases(rounds / 3);
        }
        fesetround(FE_TONEAREST);
    }
#endif
#endif
#if defined(__SSE2__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* flush subnormal results, and take subnormals for zero */
    cases(rounds / 2);
#endif
    return CHECK_DONE();
}
