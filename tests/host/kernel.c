/* SPDX-License-Identifier: MIT-0 */
/* kernel: compares reductions of each type, operation, and number of inputs and outputs with scalar
 * loops over float, double and integers, in rank order. 16-bit rounding is compared with a search
 * for the nearest of all 65536 values, computed in double. The bits must not depend on alignment,
 * count, position or kind of stores. Conversions of whole arrays are compared with the same
 * rounding, and between f32 and f64 with the compiler's own; so are rows that are copied, scaled
 * and summed. NaN and infinity must be found at each position in arrays of each length. */
#include "dpar_comm.h"

#include "check.h"
#include "random_bits.h"

#include <stdlib.h>

enum { MOST = 4097, INS = 9, OUTS = 4, GUARD = 64, ROOM = 8 * MOST + 4 * GUARD };

static const int32_t types[] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I8,
                                DPAR_U8,  DPAR_I32, DPAR_U32,  DPAR_I64, DPAR_U64};
static const int32_t ops[] = {DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
static const int64_t counts[] = {0, 1, 2, 3, 7, 16, 31, 32, 33, 65, 130, 257, 1001, MOST};

/* ---- 16-bit floats, by definition */

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

/* Returns the value of an IEEE 754 binary16: (-1)^s 2^(e-15) 1.m, or 2^-14 0.m for e = 0. */
static double half_value(uint32_t h)
{
    const int e = (int)((h >> 10) & 31), m = (int)(h & 1023);
    double size = e == 0 ? ldexp(m, -24) : ldexp(1024 + m, e - 25);
    if (e == 31) {
        size = m == 0 ? (double)INFINITY : (double)NAN;
    }
    return (h & 0x8000u) != 0 ? -size : size;
}

static double bfloat_value(uint32_t b)
{
    return (double)float_of(b << 16);
}

static double value_of(uint32_t b, int32_t type)
{
    return type == DPAR_F16 ? half_value(b) : bfloat_value(b);
}

/* Returns the bits of the value nearest to `size`, by a search: values rise with the bits. The
 * value that would follow the largest finite one is infinity and counts in the distance. */
static uint32_t nearest(double size, int32_t type)
{
    const uint32_t top = type == DPAR_F16 ? 0x7c00u : 0x7f80u;
    const double beyond = type == DPAR_F16 ? 65536.0 : ldexp(1, 128);
    uint32_t low = 0, high = top;
    double below, above;
    if (size >= beyond) {
        return top;
    }
    while (high - low > 1) { /* value(low) <= size < value(high) */
        uint32_t middle = low + (high - low) / 2;
        if (value_of(middle, type) <= size) {
            low = middle;
        } else {
            high = middle;
        }
    }
    below = size - value_of(low, type);
    above = (high == top ? beyond : value_of(high, type)) - size;
    if (below != above) {
        return below < above ? low : high;
    }
    return low % 2 == 0 ? low : high;
}

/* Searches all 65536 values, which is slow, to check the search above. */
static uint32_t nearest_of_all(double size, int32_t type)
{
    const uint32_t top = type == DPAR_F16 ? 0x7c00u : 0x7f80u;
    const double beyond = type == DPAR_F16 ? 65536.0 : ldexp(1, 128);
    double least = (double)INFINITY;
    uint32_t best = 0, h;
    for (h = 0; h < 65536; h++) {
        double v = (h & 0x7fffu) == top ? beyond : value_of(h, type), away;
        if (v != v || (h & 0x8000u) != 0) {
            continue;
        }
        away = fabs(v - size);
        if (away < least || (away == least && h % 2 == 0)) {
            least = away;
            best = h;
        }
    }
    return size >= beyond ? top : best;
}

/* Returns the rounded bits; 0xffff for any NaN. */
static uint32_t rounded(float x, int32_t type)
{
    const uint32_t sign = (bits_of(x) >> 16) & 0x8000u;
    return x != x ? 0xffffu : sign | nearest(fabs((double)x), type);
}

static uint32_t kernel_narrow(uint32_t x, int32_t type)
{
#if DPARI_KERN_VECTOR
    dpari_kern_u4 low = {x, ~x, x, 1}, high = {7, x, x, x}, r;
    uint32_t word[4];
    r = dpari_kern_narrow(low, high, type);
    memcpy(word, &r, 16);
    CHECK((word[0] & 0xffffu) == (word[2] & 0xffffu) && (word[0] & 0xffffu) == word[3] >> 16);
    return word[2] & 0xffffu;
#else
    return (uint32_t)dpari_kern_narrow(x, type);
#endif
}

static uint32_t kernel_widen(uint32_t h, int32_t type)
{
#if DPARI_KERN_VECTOR
    dpari_kern_u4 raw = {h, h << 16, h | h << 16, ~h}, low, high;
    uint32_t a[4], b[4];
    dpari_kern_widen(raw, type, &low, &high);
    memcpy(a, &low, 16);
    memcpy(b, &high, 16);
    CHECK(a[0] == b[1] && a[0] == a[2] && a[0] == b[2] && a[1] == 0 && b[0] == 0);
    return a[0];
#else
    return (uint32_t)dpari_kern_widen(h, type);
#endif
}

static int is_nan(uint32_t h, int32_t type)
{
    const double v = value_of(h, type);
    return v != v;
}

static void check_narrow(uint32_t x, int32_t type)
{
    const uint32_t want = rounded(float_of(x), type), got = kernel_narrow(x, type);
    const int same = want == 0xffffu ? is_nan(got, type) : got == want;
    CHECK(same);
    if (!same) {
        printf("  %s of %08x: %04x, not %04x\n", dpar_type_name(type), x, got, want);
    }
}

/* Tests each value, each boundary between two of them, and the f32 on both sides of each boundary,
 * which are all points where rounding could be wrong. */
static void test_rounding(int32_t type)
{
    uint32_t h, k;
    for (h = 0; h < 65536; h++) {
        const double v = value_of(h, type);
        const uint32_t wide = kernel_widen(h, type);
        if (v != v) {
            CHECK(float_of(wide) != float_of(wide) && is_nan(kernel_narrow(wide, type), type));
            continue;
        }
        CHECK_INT(wide, bits_of((float)v));
        if (type == DPAR_F16 && fabs(v) < 65536.0) {
            const double up = (h & 0x7fffu) == 0x7bffu ? 65536.0 : fabs(half_value(h + 1));
            const uint32_t tie = bits_of((float)((fabs(v) + up) / 2)) | (h & 0x8000u) << 16;
            for (k = 0; k < 3; k++) {
                check_narrow(tie - 1 + k, type);
                check_narrow(wide - (wide % 0x80000000u != 0) + k, type);
            }
        } else {
            static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
            for (k = 0; k < 6; k++) {
                check_narrow(wide | low[k], type);
            }
        }
    }
    for (k = 0; k < 300000; k++) {
        check_narrow((uint32_t)(random_bits() >> 32), type);
    }
}

static void test_search(int32_t type)
{
    int k;
    for (k = 0; k < 200; k++) {
        const uint32_t h = (uint32_t)(random_bits() % 0x7b00u);
        const double a = value_of(h, type), b = value_of(h + 1, type);
        const double x = k % 4 == 0 ? (a + b) / 2 : a + (b - a) * (double)(k % 4) / 4;
        CHECK_INT(nearest(x, type), nearest_of_all(x, type));
    }
    CHECK_INT(nearest(type == DPAR_F16 ? 65520.0 : ldexp(511, 119), type),
              nearest_of_all(type == DPAR_F16 ? 65520.0 : ldexp(511, 119), type));
}

/* ---- reductions, by loops over one element */

static uint64_t load_bits(const unsigned char *from, int32_t type)
{
    uint8_t a;
    uint16_t b;
    uint32_t c;
    uint64_t d;
    switch (dpar_type_bytes(type)) {
    case 1: memcpy(&a, from, 1); return a;
    case 2: memcpy(&b, from, 2); return b;
    case 4: memcpy(&c, from, 4); return c;
    default: memcpy(&d, from, 8); return d;
    }
}

static double double_of(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

#define NAN_BITS UINT64_C(0xfedcba9876543210) /* any NaN; no test number has these bits */

/* Does not compare NaN: the callers handle it before, because it makes the result NaN. */
#define EXTREME(TYPE, a, b) (op == DPAR_MAX ? ((a) > (b) ? (a) : (b)) : ((a) < (b) ? (a) : (b)))

static uint64_t expected_f64(const uint64_t *x, int32_t ins, int32_t op)
{
    volatile double r = double_of(x[0]);
    uint64_t bits;
    double d;
    int32_t i;
    for (i = 1; i < ins; i++) {
        const double y = double_of(x[i]);
        if (op == DPAR_MAX || op == DPAR_MIN) {
            r = r != r || y != y ? (double)NAN : EXTREME(double, r, y);
        } else {
            r = op == DPAR_PRODUCT ? r * y : r + y;
        }
    }
    d = op == DPAR_AVG ? r / ins : r;
    memcpy(&bits, &d, 8);
    return d != d ? NAN_BITS : bits;
}

static uint64_t expected_f32(const uint64_t *x, int32_t ins, int32_t type, int32_t op)
{
    volatile float r = 0;
    float f;
    int32_t i;
    for (i = 0; i < ins; i++) {
        const float y =
            type == DPAR_F32 ? float_of((uint32_t)x[i]) : (float)value_of((uint32_t)x[i], type);
        if (i == 0) {
            r = y;
        } else if (op == DPAR_MAX || op == DPAR_MIN) {
            r = r != r || y != y ? (float)NAN : EXTREME(float, r, y);
        } else {
            r = op == DPAR_PRODUCT ? r * y : r + y;
        }
    }
    f = r;
    if (op == DPAR_AVG) {
        f = r / (float)ins;
    }
    if (f != f) {
        return NAN_BITS;
    }
    return type == DPAR_F32 ? bits_of(f) : rounded(f, type);
}

/* Reduces integers modulo 2^64 and cuts to the type at the end, which is the same as wrapping in
 * each step. */
static int64_t sign_out(uint64_t bits, int32_t type)
{
    switch (type) {
    case DPAR_I8: return (int8_t)(uint8_t)bits;
    case DPAR_I32: return (int32_t)(uint32_t)bits;
    default: return (int64_t)bits;
    }
}

static uint64_t expected_int(const uint64_t *x, int32_t ins, int32_t type, int32_t op)
{
    const int is_signed = type == DPAR_I8 || type == DPAR_I32 || type == DPAR_I64;
    const int32_t width = dpar_type_bytes(type);
    const uint64_t all = width == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * width) - 1;
    uint64_t sum = 0, product = 1, best = x[0];
    int32_t i;
    for (i = 0; i < ins; i++) {
        const int above = is_signed ? sign_out(x[i], type) > sign_out(best, type) : x[i] > best;
        sum += x[i];
        product *= x[i];
        if (x[i] != best && above == (op == DPAR_MAX)) {
            best = x[i];
        }
    }
    sum &= all;
    switch (op) {
    case DPAR_SUM: return sum;
    case DPAR_AVG:
        return is_signed ? (uint64_t)(sign_out(sum, type) / ins) & all : sum / (uint64_t)ins;
    case DPAR_PRODUCT: return product & all;
    default: return best;
    }
}

static uint64_t expected(const uint64_t *x, int32_t ins, int32_t type, int32_t op)
{
    switch (type) {
    case DPAR_F64: return expected_f64(x, ins, op);
    case DPAR_F32:
    case DPAR_F16:
    case DPAR_BF16: return expected_f32(x, ins, type, op);
    default: return expected_int(x, ins, type, op);
    }
}

static int same_value(uint64_t got, uint64_t want, int32_t type, int32_t op)
{
    double g;
    switch (type) {
    case DPAR_F64: g = double_of(got); break;
    case DPAR_F32: g = (double)float_of((uint32_t)got); break;
    case DPAR_F16:
    case DPAR_BF16: g = value_of((uint32_t)got, type); break;
    default: return got == want;
    }
    if (want == NAN_BITS) {
        return g != g;
    }
    if ((op == DPAR_MAX || op == DPAR_MIN) && g == 0) { /* a zero of either sign */
        return (want & ~(UINT64_C(1) << (8 * dpar_type_bytes(type) - 1))) == 0;
    }
    return got == want;
}

/* Stores random values: mostly numbers of size near 1, so that sums round; one in eight has any
 * bits (NaN, infinity, subnormals, largest); one in eight is a zero of either sign. Some of these
 * come in runs over all inputs. */
static void put_random(unsigned char *to, int32_t type, int64_t e)
{
    const uint64_t kind =
        e % 5 == 4 ? (uint64_t)e / 5 % 8 : random_bits() % 8 + (e % 5 < 2 ? 2 : 0);
    const double x = ((double)(random_bits() >> 11) / 9007199254740992.0 - 0.5) * 8;
    uint64_t bits = random_bits();
    const float f = (float)x;
    if (dpar_type_bytes(type) <= 1 || type == DPAR_I32 || type >= DPAR_U32) {
        memcpy(to, &bits, (size_t)dpar_type_bytes(type));
        return;
    }
    if (kind == 1) {
        bits = bits % 2 << (8 * dpar_type_bytes(type) - 1);
    } else if (kind > 1 && type == DPAR_F64) {
        memcpy(&bits, &x, 8);
    } else if (kind > 1) {
        bits = type == DPAR_F32 ? bits_of(f) : rounded(f, type);
    }
    if (dpar_type_bytes(type) == 2) {
        const uint16_t h = (uint16_t)bits;
        memcpy(to, &h, 2);
    } else if (type == DPAR_F32) {
        const uint32_t w = (uint32_t)bits;
        memcpy(to, &w, 4);
    } else {
        memcpy(to, &bits, 8);
    }
}

static unsigned char given[INS][8 * MOST], base[8 * MOST];
static unsigned char in_room[INS][ROOM], out_room[OUTS][ROOM];

/* Returns an address for an array `shift` elements after the beginning of a cache line. */
static unsigned char *placed(unsigned char *room, int64_t shift, int32_t width)
{
    unsigned char *at = room + GUARD;
    return at + ((0 - (uintptr_t)at) & 63) + shift * width;
}

static int untouched(const unsigned char *from, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++) {
        if (from[i] != 0xa5) {
            return 0;
        }
    }
    return 1;
}

/* Reduces elements [first, first + count) in one variant and compares the bits with `base`. */
static void check_variant(int32_t type, int32_t op, int32_t ins, int32_t outs, int64_t first,
                          int64_t count, int32_t apart, int in_place, int32_t stream)
{
    const int32_t width = dpar_type_bytes(type);
    const size_t bytes = (size_t)(count * width);
    const void *in[INS];
    void *out[OUTS];
    int32_t i;
    int good = 1;
    for (i = 0; i < ins; i++) {
        unsigned char *at = placed(in_room[i], apart == 2 ? i + 1 : apart, width);
        memset(at - GUARD, 0xa5, bytes + 2 * GUARD);
        memcpy(at, given[i] + first * width, bytes);
        in[i] = at;
    }
    for (i = 0; i < outs; i++) {
        unsigned char *at = placed(out_room[i], apart == 2 ? 3 * i + 2 : apart, width);
        memset(at - GUARD, 0xa5, bytes + 2 * GUARD);
        out[i] = at;
        if (in_place && i < ins) { /* the last inputs are also the first outputs */
            out[i] = placed(in_room[ins - 1 - i], apart == 2 ? ins - i : apart, width);
        }
    }
    dpari_kern_reduce(out, outs, in, ins, count, type, op, stream);
    for (i = 0; i < outs; i++) {
        const unsigned char *at = (const unsigned char *)out[i];
        good &= memcmp(at, base + first * width, bytes) == 0;
        good &= untouched(at - GUARD, GUARD) && untouched(at + bytes, GUARD);
    }
    for (i = in_place ? ins - outs : ins; --i >= 0;) {
        good &= memcmp(in[i], given[i] + first * width, bytes) == 0;
    }
    CHECK(good);
    if (!good) {
        printf("  %s op %d, %d to %d, from %d count %d, shift %d in place %d stream %d\n",
               dpar_type_name(type), op, ins, outs, (int)first, (int)count, apart, in_place,
               stream);
    }
}

static void check_base(int32_t type, int32_t op, int32_t ins)
{
    const int32_t width = dpar_type_bytes(type);
    const void *in[INS];
    void *out[1];
    uint64_t x[INS];
    int64_t e;
    int32_t i;
    for (i = 0; i < ins; i++) {
        in[i] = given[i];
    }
    out[0] = base;
    dpari_kern_reduce(out, 1, in, ins, MOST, type, op, 0);
    for (e = 0; e < MOST; e++) {
        uint64_t got = load_bits(base + e * width, type), want;
        for (i = 0; i < ins; i++) {
            x[i] = load_bits(given[i] + e * width, type);
        }
        want = ins == 1 ? x[0] : expected(x, ins, type, op);
        CHECK(ins == 1 ? got == want : same_value(got, want, type, op));
        if (ins == 1 ? got != want : !same_value(got, want, type, op)) {
            printf("  %s op %d of %d, element %d: %llx, not %llx\n", dpar_type_name(type), op, ins,
                   (int)e, (unsigned long long)got, (unsigned long long)want);
            return;
        }
    }
}

static void test_type(int32_t type)
{
    int64_t e;
    int32_t i, ins, outs, apart, variant;
    size_t o, c;
    for (e = 0; e < MOST; e++) {
        for (i = 0; i < INS; i++) {
            put_random(given[i] + e * dpar_type_bytes(type), type, e);
        }
    }
    for (o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
        for (ins = 1; ins <= INS; ins++) {
            check_base(type, ops[o], ins);
            for (c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                for (variant = 0; variant < 3 * OUTS * 4; variant++) {
                    const int64_t first = counts[c] == MOST ? 0 : (int64_t)(random_bits() % 500);
                    apart = variant % 3;
                    outs = variant / 3 % OUTS + 1;
                    check_variant(type, ops[o], ins, outs, first, counts[c], apart,
                                  variant / 12 % 2, variant / 24);
                }
            }
        }
    }
}

/* Reduces 1000 inputs, more than 8 bits hold. For i8 all 1 the sum wraps to 1000 - 1024 = -24,
 * divided by 1000 it is 0. For u8 all 255 it is 255000 mod 256 = 24; for i8 -128 twice it is 0. */
static void test_many(void)
{
    static int8_t one = 1, low = -128;
    static uint8_t full = 255;
    static float tenth = 0.1f;
    static const void *in[1000];
    float sum = 0.1f, f_out = 0;
    int8_t i_out = 77;
    uint8_t u_out = 77;
    void *out[1];
    int i;
    for (i = 0; i < 1000; i++) {
        in[i] = &one;
    }
    out[0] = &i_out;
    dpari_kern_reduce(out, 1, in, 1000, 1, DPAR_I8, DPAR_SUM, 0);
    CHECK_INT(i_out, -24);
    dpari_kern_reduce(out, 1, in, 1000, 1, DPAR_I8, DPAR_AVG, 1);
    CHECK_INT(i_out, 0);
    in[0] = in[1] = &low;
    dpari_kern_reduce(out, 1, in, 2, 1, DPAR_I8, DPAR_AVG, 0);
    CHECK_INT(i_out, 0);
    for (i = 0; i < 1000; i++) {
        in[i] = &full;
    }
    out[0] = &u_out;
    dpari_kern_reduce(out, 1, in, 1000, 1, DPAR_U8, DPAR_SUM, 0);
    CHECK_INT(u_out, 24);
    for (i = 0; i < 1000; i++) {
        in[i] = &tenth;
        sum = i > 0 ? sum + tenth : tenth;
    }
    out[0] = &f_out;
    dpari_kern_reduce(out, 1, in, 1000, 1, DPAR_F32, DPAR_SUM, 0);
    CHECK_INT(bits_of(f_out), bits_of(sum));
}

/* Compares a few sums with values computed by hand. */
static void test_known(void)
{
    static const uint16_t f16[][3] = {
        {0x7bff, 0x7bff, 0x7c00}, /* 65504 + 65504: infinity */
        {0x7bff, 0xfbff, 0x0000}, /* x - x = +0 */
        {0x8000, 0x8000, 0x8000}, /* -0 + -0 = -0 */
        {0x0001, 0x0001, 0x0002}, /* subnormals are exact */
        {0x03ff, 0x0001, 0x0400}, /* up to the smallest normal */
        {0x3c00, 0x1000, 0x3c00}, /* 1 + 2^-11 ties to even, down */
        {0x3c01, 0x1000, 0x3c02}, /* 1 + 3 * 2^-11 ties to even, up */
    };
    size_t k;
    for (k = 0; k < sizeof(f16) / sizeof(f16[0]); k++) {
        uint16_t sum = 0xeeee;
        const void *in[2];
        void *out[1];
        in[0] = &f16[k][0];
        in[1] = &f16[k][1];
        out[0] = &sum;
        dpari_kern_reduce(out, 1, in, 2, 1, DPAR_F16, DPAR_SUM, 0);
        CHECK_INT(sum, f16[k][2]);
    }
}

/* Checks that sums of bf16 round once: 1 and eight times 2^-9 give 1 + 2^-6; rounding each sum to 8
 * bits would leave 1. */
static void test_round_once(void)
{
    static const uint16_t one = 0x3f80, tiny = 0x3b00;
    const void *in[INS];
    uint16_t sum = 0;
    void *out[1];
    int i;
    for (i = 0; i < INS; i++) {
        in[i] = i == 0 ? &one : &tiny;
    }
    out[0] = &sum;
    dpari_kern_reduce(out, 1, in, INS, 1, DPAR_BF16, DPAR_SUM, 0);
    CHECK_INT(sum, 0x3f82);
}

static void test_copy(void)
{
    static const int64_t sizes[] = {-1,  0,   1,   15,  63,   64,   65,    127,  255,
                                    256, 257, 319, 320, 4095, 4096, 12345, 32768};
    size_t s, i;
    int from, to, stream;
    for (i = 0; i < sizeof(given[0]); i++) {
        given[0][i] = (unsigned char)random_bits();
    }
    for (s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const size_t bytes = sizes[s] < 0 ? 0 : (size_t)sizes[s];
        for (from = 0; from < 3; from++) {
            for (to = 0; to < 66; to++) {
                for (stream = 0; stream < 2; stream++) {
                    unsigned char *at = placed(out_room[0], to, 1);
                    memset(at - GUARD, 0xa5, bytes + 2 * GUARD);
                    dpari_kern_copy(at, given[0] + 5 * from, sizes[s], stream);
                    CHECK(memcmp(at, given[0] + 5 * from, bytes) == 0);
                    CHECK(untouched(at - GUARD, GUARD) && untouched(at + bytes, GUARD));
                }
            }
        }
    }
    memcpy(base, given[0], sizeof(base));
    dpari_kern_copy(base, base, sizeof(base), 1);
    CHECK(memcmp(base, given[0], sizeof(base)) == 0);
}

/* ---- rows */

static void test_rows(void)
{
    static const int64_t sizes[] = {0, 1, 63, 64, 65, 255, 256, 257, 1000, 2048, 4111};
    size_t s;
    int from, to, stream;
    for (s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const size_t bytes = (size_t)sizes[s];
        for (from = 0; from < 3; from++) {
            for (to = 0; to < 66; to += 3) {
                for (stream = 0; stream < 2; stream++) {
                    unsigned char *at = placed(out_room[0], to, 1);
                    memset(at - GUARD, 0xa5, bytes + 2 * GUARD);
                    dpari_kern_ask(given[1], sizes[s]);
                    dpari_kern_row(at, given[0] + 5 * from, given[1], sizes[s], stream);
                    dpari_kern_rows_end(stream);
                    CHECK(memcmp(at, given[0] + 5 * from, bytes) == 0);
                    CHECK(untouched(at - GUARD, GUARD) && untouched(at + bytes, GUARD));
                }
            }
        }
    }
}

/* Sums n rows of `count` numbers in double from 0 on, in their order, and rounds once. */
static void check_mix(int32_t type, int32_t n, int64_t count, int32_t stream)
{
    static const double by[INS] = {0.5, -1.0 / 3.0, 3.0, 1e-30, 1.0, -0.0, 7.0, 1e30, 0.1};
    const int32_t each = dpar_type_bytes(type);
    unsigned char *at = placed(out_room[0], (int)count % 5, each);
    const void *row[INS];
    double weight[INS];
    int64_t e;
    int32_t j;
    for (j = 0; j < n; j++) {
        row[j] = given[j] + each * (j % 3);
        /* products are exact, so that fused operations give the same */
        weight[j] = (double)(float)by[j];
        for (e = 0; e < count; e++) { /* finite values of all magnitudes near 1, and zeros */
            const double x = (double)(int32_t)(uint32_t)random_bits() / 65536.0;
            const float f = e % 9 == 0 ? -0.0f : (float)x;
            const double d = e % 9 == 0 ? -0.0 : (double)(float)(x / 3.0);
            memcpy(given[j] + each * (j % 3) + each * e, type == DPAR_F32 ? (const void *)&f : &d,
                   (size_t)each);
        }
    }
    memset(at - GUARD, 0xa5, (size_t)(count * each + 2 * GUARD));
    dpari_kern_mix(at, row, weight, n, row, n / 2, count, type, stream);
    dpari_kern_rows_end(stream);
    CHECK(untouched(at - GUARD, GUARD) && untouched(at + count * each, GUARD));
    for (e = 0; e < count; e++) {
        volatile double sum = 0.0;
        volatile float f;
        double got;
        for (j = 0; j < n; j++) {
            const volatile double product =
                weight[j] * (type == DPAR_F32 ? (double)((const float *)row[j])[e]
                                              : ((const double *)row[j])[e]);
            sum += product;
        }
        f = (float)sum;
        got = type == DPAR_F32 ? (double)((const float *)(const void *)at)[e]
                               : ((const double *)(const void *)at)[e];
        CHECK(got == (type == DPAR_F32 ? (double)f : sum));
        CHECK((signbit(got) != 0) == (signbit(type == DPAR_F32 ? (double)f : sum) != 0));
    }
}

static void test_mix(void)
{
    static const int64_t lengths[] = {0, 1, 15, 16, 17, 64, 100, 257};
    size_t s;
    int32_t n;
    for (s = 0; s < sizeof(lengths) / sizeof(lengths[0]); s++) {
        for (n = 0; n <= INS; n++) {
            check_mix(DPAR_F32, n, lengths[s], (int32_t)s % 2);
            check_mix(DPAR_F64, n, lengths[s], 0);
        }
    }
}

/* Compares products with those that the compiler computes in f32. The guards must not change. */
static void test_scale(void)
{
    float x[40], y[48];
    int32_t n, i;
    for (n = 0; n < 40; n++) {
        for (i = 0; i < 48; i++) {
            y[i] = 77.0f;
            x[i % 40] = (float)(int32_t)(uint32_t)random_bits() / 3e5f;
        }
        x[n / 2] = -0.0f;
        dpari_kern_scale(y + 1, x, (double)-0.7f, n);
        for (i = 0; i < n; i++) {
            volatile float want = x[i] * -0.7f;
            CHECK(memcmp(&y[i + 1], (const void *)(uintptr_t)&want, 4) == 0);
        }
        CHECK(y[0] == 77.0f && y[n + 1] == 77.0f);
    }
}

/* ---- conversions of arrays */

/* Returns an element of `type` with these bits converted to another type. NAN_BITS is a NaN without
 * sign or payload. */
static uint64_t converted(uint64_t bits, int32_t from, int32_t to)
{
    volatile float f = from == DPAR_F64 ? (float)double_of(bits) : float_of((uint32_t)bits);
    const double d = from == DPAR_F16 || from == DPAR_BF16 ? value_of((uint32_t)bits, from) : 0;
    double wide = (double)f;
    uint64_t r;
    if (d != d) {
        const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
        return from == DPAR_BF16 ? bits << 16 : sign | 0x7fc00000u | (bits & 0x3ffu) << 13;
    }
    if (from == DPAR_F16 || from == DPAR_BF16) {
        return bits_of((float)d);
    }
    if (to == DPAR_F64) {
        memcpy(&r, &wide, 8);
        return r;
    }
    if (f != f) {
        return NAN_BITS;
    }
    return to == DPAR_F32 ? bits_of(f) : rounded(f, to);
}

static uint64_t quiet_nan(int32_t type)
{
    return type == DPAR_F32 ? 0x7fc00000u : type == DPAR_F16 ? 0x7e00u : 0x7fc0u;
}

/* Converts in[n], which is aligned to its type only; out has guards before and after it. */
static void check_convert(const unsigned char *in, int32_t from, int32_t to, int64_t n)
{
    const int32_t width = dpar_type_bytes(to), each = dpar_type_bytes(from);
    const size_t bytes = (size_t)(n * width);
    unsigned char *at = placed(out_room[0], n % 7, width);
    int64_t e;
    memset(at - GUARD, 0xa5, bytes + 2 * GUARD);
    dpari_kern_convert(at, to, in, from, n);
    CHECK(untouched(at - GUARD, GUARD) && untouched(at + bytes, GUARD));
    for (e = 0; e < n; e++) {
        const uint64_t x = load_bits(in + e * each, from), got = load_bits(at + e * width, to);
        uint64_t want = converted(x, from, to);
        want = want == NAN_BITS ? quiet_nan(to) : want;
        if (got != want) {
            CHECK(0);
            printf("  %s %llx to %s: %llx, not %llx (%d of %d)\n", dpar_type_name(from),
                   (unsigned long long)x, dpar_type_name(to), (unsigned long long)got,
                   (unsigned long long)want, (int)e, (int)n);
            return;
        }
    }
}

static const int32_t pairs[][2] = {{DPAR_BF16, DPAR_F32}, {DPAR_F16, DPAR_F32},
                                   {DPAR_F32, DPAR_BF16}, {DPAR_F32, DPAR_F16},
                                   {DPAR_F32, DPAR_F64},  {DPAR_F64, DPAR_F32}};
enum { PAIRS = sizeof(pairs) / sizeof(pairs[0]) };

/* Returns an f64 near the limits of f32: exact, between two values, a tie, too large, or
 * subnormal. */
static uint64_t f64_near_f32(void)
{
    const uint64_t r = random_bits();
    double d = (double)float_of((uint32_t)(r >> 32));
    uint64_t bits;
    memcpy(&bits, &d, 8);
    return r % 4 == 0 ? random_bits() : bits + (r % 8 < 3 ? 0 : (r >> 3 & 3) << 28 | (r >> 5 & 1));
}

/* Tests lengths up to 70 at each alignment of elements: all bits of 16-bit types, and f32 near each
 * 16-bit value and random ones. All 16-bit values must survive the conversion there and back. */
static void test_convert(const int32_t *pair)
{
    const int32_t from = pair[0], to = pair[1], each = dpar_type_bytes(from);
    static unsigned char *const in = given[0];
    uint32_t h, k;
    int64_t n;
    for (n = 0; n <= 70; n++) {
        for (k = 0; k < 70; k++) {
            put_random(in + (n % 5 + k) * each, from, k);
        }
        check_convert(in + n % 5 * each, from, to, n);
    }
    for (h = 0; h < 65536; h += 4096) {
        for (k = 0; k < 4096; k++) {
            static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0xfff, 0x1001};
            const uint16_t u = (uint16_t)(h + k);
            const uint32_t w = (h + k) << 16 | low[random_bits() % 8];
            const uint64_t d = f64_near_f32();
            memcpy(in + k * (uint32_t)each,
                   each == 2   ? (const void *)&u
                   : each == 4 ? (const void *)&w
                               : (const void *)&d,
                   (size_t)each);
        }
        check_convert(in, from, to, 4096);
    }
    for (h = 0; h < 32; h++) {
        for (k = 0; k < 4096; k++) {
            const uint64_t d = random_bits();
            memcpy(in + k * (uint32_t)each, &d, (size_t)each);
        }
        check_convert(in, from, to, 4096);
    }
}

/* Compares a conversion large enough for wider vectors with pieces of 4096 elements; some are
 * NaN. */
static void test_convert_large(const int32_t *pair)
{
    enum { MANY = 140001, PIECE = 4096 };
    const int32_t from = pair[0], to = pair[1];
    const int64_t each = dpar_type_bytes(from), width = dpar_type_bytes(to);
    unsigned char *in = (unsigned char *)malloc((size_t)(MANY * (each + 2 * width)));
    unsigned char *whole = in + MANY * each, *pieces = whole + MANY * width;
    int64_t i;
    CHECK(in != NULL);
    if (in == NULL) {
        return;
    }
    for (i = 0; i < MANY; i++) {
        const uint64_t d = from == DPAR_F64 ? f64_near_f32() : random_bits();
        const float f = (float)i * 0.37f;
        memcpy(in + i * each, i % 5 == 0 || each != 4 ? (const void *)&d : (const void *)&f,
               (size_t)each);
    }
    dpari_kern_convert(whole, to, in, from, MANY);
    for (i = 0; i < MANY; i += PIECE) {
        dpari_kern_convert(pieces + i * width, to, in + i * each, from,
                           MANY - i < PIECE ? MANY - i : PIECE);
    }
    CHECK(memcmp(whole, pieces, (size_t)(MANY * width)) == 0);
    free(in);
}

/* ---- f32 rounded before it is added */

static void put_bits(unsigned char *to, uint64_t bits, int32_t type)
{
    const uint16_t b = (uint16_t)bits;
    const uint32_t c = (uint32_t)bits;
    switch (dpar_type_bytes(type)) {
    case 2: memcpy(to, &b, 2); break;
    case 4: memcpy(to, &c, 4); break;
    default: memcpy(to, &bits, 8); break;
    }
}

/* Reduces `ins` arrays of n f32 through the wire type: each is rounded, reduced in that type, and
 * widened. */
static void check_through(int32_t wire, int32_t op, int32_t ins, int32_t outs, int64_t n,
                          int stream)
{
    static unsigned char half[INS][4096 * 2], sum[4096 * 2], want[4096 * 4];
    const size_t bytes = (size_t)n * 4;
    const void *in[INS], *rounded_in[INS];
    void *out[2], *one[1];
    int32_t i;
    for (i = 0; i < ins; i++) {
        unsigned char *at = placed(in_room[i], n % 5 + i, 4);
        memcpy(at, given[i], bytes);
        in[i] = at;
        dpari_kern_convert(half[i], wire, given[i], DPAR_F32, n);
        rounded_in[i] = half[i];
    }
    one[0] = sum;
    dpari_kern_reduce(one, 1, rounded_in, ins, n, wire, op, 0);
    dpari_kern_convert(want, DPAR_F32, sum, wire, n);
    for (i = 0; i < outs; i++) { /* one of the outputs overwrites an input */
        unsigned char *at = placed(out_room[i], n % 3, 4);
        memset(at - GUARD, 0xa5, bytes + 2 * GUARD);
        out[i] = i == 0 ? placed(in_room[ins - 1], n % 5 + ins - 1, 4) : at;
    }
    dpari_kern_reduce(out, outs, in, ins, n, DPARI_KERN_THROUGH(wire), op, stream);
    for (i = 0; i < outs; i++) {
        const unsigned char *at = (const unsigned char *)out[i];
        CHECK(memcmp(at, want, bytes) == 0);
        CHECK(i == 0 || (untouched(at - GUARD, GUARD) && untouched(at + bytes, GUARD)));
    }
}

/* Tests f32 near the limits of 16-bit types, ties, infinities, NaN and random values. */
static void test_through(int32_t wire)
{
    static const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0xfff, 0x1000, 0x1001};
    int32_t ins, i, turn;
    int64_t e, n;
    for (turn = 0; turn < 200; turn++) {
        n = turn < 130 ? turn : 4096 - turn;
        for (i = 0; i < INS; i++) {
            for (e = 0; e < n; e++) {
                const uint64_t r = random_bits();
                uint32_t w = (uint32_t)(r >> 32);
                w = r % 3 == 0 ? (w & 0xffff0000u) | low[r / 3 % 9] : w;
                w = turn % 2 == 0 ? (w & 0x8fffffffu) | 0x30000000u : w; /* no NaN: -20 to 20 */
                put_bits(given[i] + e * 4, w, DPAR_F32);
            }
        }
        for (ins = 1; ins <= 3; ins++) {
            check_through(wire, turn % 4 < 2 ? DPAR_SUM : DPAR_AVG, ins, 1 + turn % 2, n,
                          turn % 3 == 0);
        }
        check_through(wire, DPAR_AVG, INS, 2, n, 0);
    }
}

/* Fills an array with the largest finite values of both signs, and puts one or two values that are
 * not finite into it. */
static void test_finite(int32_t type)
{
    const int32_t each = dpar_type_bytes(type), top = type == DPAR_F16 ? 10 : 7;
    const uint64_t sign = (uint64_t)1 << (8 * each - 1);
    const uint64_t infinite = type == DPAR_F64   ? UINT64_C(0x7ff) << 52
                              : type == DPAR_F32 ? 0x7f800000u
                                                 : UINT64_C(0x7fff) >> top << top;
    const uint64_t bad[] = {infinite, infinite | sign, infinite | 1, infinite | sign | 1,
                            infinite | (sign - 1)};
    int64_t n, e;
    for (n = 0; n <= 150; n++) {
        unsigned char *at = placed(out_room[1], n % 9, each);
        for (e = 0; e < n; e++) {
            put_bits(at + e * each, (infinite - 1) | (e % 2 == 0 ? sign : 0), type);
        }
        put_bits(at + n * each, infinite, type); /* after the end */
        CHECK_INT(dpari_kern_finite(at, n, type), n);
        for (e = 0; e < n; e++) {
            const uint64_t was = load_bits(at + e * each, type);
            put_bits(at + e * each, bad[e % 5], type);
            CHECK_INT(dpari_kern_finite(at, n, type), e);
            put_bits(at + (n - 1) * each, bad[(e + n) % 5], type);
            CHECK_INT(dpari_kern_finite(at, n, type), e);
            put_bits(at + (n - 1) * each, (infinite - 1) | ((n - 1) % 2 == 0 ? sign : 0), type);
            put_bits(at + e * each, was, type);
        }
    }
}

/* ---- sums long enough for wider vectors */

static void long_sums(int32_t type)
{
    enum { LONG = 140001, PART = 999 };
    static uint16_t x[LONG + 8], y[LONG + 8], whole[LONG + 8], parts[LONG + 8];
    int32_t at, in_place;
    /* random bits with NaN, infinities and subnormals; some blocks have none */
    for (at = 0; at < LONG + 8; at++) {
        x[at] = (uint16_t)(random_bits() >> 20 & (at / 64 % 3 ? 0xbfff : 0xffff));
        y[at] = (uint16_t)(random_bits() >> 20 & (at / 64 % 3 ? 0xbfff : 0xffff));
    }
    for (at = 0; at < 8; at++) {
        for (in_place = 0; in_place < 2; in_place++) {
            const void *in[2];
            void *out[1];
            int32_t i;
            memcpy(whole, x, sizeof x);
            in[0] = in_place ? whole + at : x + at;
            in[1] = y + (at * 3) % 8;
            out[0] = whole + at;
            dpari_kern_reduce(out, 1, in, 2, LONG, type, DPAR_SUM, 0);
            memcpy(parts, x, sizeof x);
            for (i = 0; i < LONG; i += PART) {
                in[0] = x + at + i;
                in[1] = y + (at * 3) % 8 + i;
                out[0] = parts + at + i;
                dpari_kern_reduce(out, 1, in, 2, LONG - i < PART ? LONG - i : PART, type, DPAR_SUM,
                                  0);
            }
            CHECK(memcmp(whole, parts, sizeof whole) == 0);
        }
    }
}

int main(void)
{
    size_t t;
    for (t = 0; t < PAIRS; t++) {
        test_convert(pairs[t]);
        test_convert_large(pairs[t]);
    }
    for (t = 0; t < 4; t++) { /* the float types */
        test_finite(types[t]);
    }
    test_through(DPAR_F16);
    test_through(DPAR_BF16);
    test_search(DPAR_F16);
    test_search(DPAR_BF16);
    test_rounding(DPAR_F16);
    test_rounding(DPAR_BF16);
    test_known();
    test_round_once();
    test_many();
    test_copy();
    test_rows();
    test_mix();
    test_scale();
    for (t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        test_type(types[t]);
    }
    long_sums(DPAR_BF16);
    long_sums(DPAR_F16);
    return CHECK_DONE();
}
