/* SPDX-License-Identifier: MIT-0 */
/* Adds blocks of elements exactly with vectors of doubles.
 *
 * A first pass finds the largest exponent E of a block, and the smallest exponent e of its elements
 * that are not zero. All elements are then below 2^(E + 1) and multiples of 2^(e - 52). With
 * M = 1.5 * 2^(E + 9), the difference high = (x + M) - M is x rounded to a multiple of
 * u = 2^(E - 43), and low = x - high, at most u, is exact. The sum of 512 values of `high` is at
 * most 2^53 u, so that every partial sum is exact. So is every sum of values of `low`, at most
 * 2^(E - 34), if these are multiples of 2^(E - 87): if E - e is 35 or less. Otherwise `low` is cut
 * once more in the same manner, 44 bits below, which suffices if E - e is 79 or less. No result is
 * subnormal, so that flushing to zero changes nothing. All other blocks, and all blocks if the CPU
 * does not round to nearest, are left to the integers of exact_bins.c.
 *
 * The fraction of an f32 has 23 bits. Its sum in doubles is exact if E - e is 20 or less, otherwise
 * it is cut as above. A product of two f32 is exact in f64. A product of two f64 is the rounded
 * product and its error, which a fused multiplication gives exactly; both are cut, the error 53
 * bits below.
 *
 * DPARI_EX_KEEP hides a value from the compiler, which might otherwise simplify (x + M) - M to x
 * with -ffast-math. */
#include "exact_loops.h"

#include "../host/elements.h"

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9) && !defined(DPARI_NO_VECTOR) &&     \
    !defined(__CUDACC__) &&                                                                        \
    (defined(__x86_64__) || (defined(__aarch64__) && defined(__AARCH64EL__)))
#define DPARI_EX_VECTOR 1
#else
#define DPARI_EX_VECTOR 0
#endif

#if DPARI_EX_VECTOR

#if defined(__x86_64__)
enum { DPARI_EX_BYTES = 32 }; /* of a vector */
#define DPARI_EX_TARGET __attribute__((target("avx2,fma"), noinline))
#define DPARI_EX_KEEP(v) __asm__("" : "+x"(v))
#define DPARI_EX_MAX(to, v) __asm__("vpmaxud %1, %0, %0" : "+x"(to) : "x"(v))
#define DPARI_EX_MIN(to, v) __asm__("vpminud %1, %0, %0" : "+x"(to) : "x"(v))
/* minus becomes a * b + minus, rounded once */
#define DPARI_EX_FUSED(minus, a, b) __asm__("vfmadd231pd %2, %1, %0" : "+x"(minus) : "x"(a), "x"(b))
#else
enum { DPARI_EX_BYTES = 16 };
#define DPARI_EX_TARGET __attribute__((noinline))
#define DPARI_EX_KEEP(v) __asm__("" : "+w"(v))
#define DPARI_EX_MAX(to, v) __asm__("umax %0.4s, %0.4s, %1.4s" : "+w"(to) : "w"(v))
#define DPARI_EX_MIN(to, v) __asm__("umin %0.4s, %0.4s, %1.4s" : "+w"(to) : "w"(v))
#define DPARI_EX_FUSED(minus, a, b)                                                                \
    __asm__("fmla %0.2d, %1.2d, %2.2d" : "+w"(minus) : "w"(a), "w"(b))
#endif

typedef double dpari_ex_reals __attribute__((vector_size(DPARI_EX_BYTES)));
typedef float dpari_ex_floats __attribute__((vector_size(DPARI_EX_BYTES / 2)));
typedef uint64_t dpari_ex_longs __attribute__((vector_size(DPARI_EX_BYTES)));
typedef uint32_t dpari_ex_words __attribute__((vector_size(DPARI_EX_BYTES)));
enum {
    DPARI_EX_LANES = DPARI_EX_BYTES / 8,
    DPARI_EX_AHEAD = 4096 /* bytes by which the next block is prefetched */
};

/* A vector and its elements. (With memcpy, gcc would keep the vector in memory during a loop.) */
typedef union dpari_ex_lanes {
    dpari_ex_reals reals;
    dpari_ex_words words;
    double real[DPARI_EX_LANES];
    uint32_t word[DPARI_EX_BYTES / 4];
} dpari_ex_lanes;

/* The exponents of a block, without bias. */
typedef struct dpari_ex_exponents {
    int32_t most, least; /* least: of the elements that are not zero */
    int32_t usable;      /* 0 if an element is not finite, or subnormal */
    int32_t zero;        /* 1 if all elements are zero */
} dpari_ex_exponents;

/* Scans two vectors. `size` clears signs, and `one` is 1. Zero minus 1 has the largest exponent, so
 * that zeros do not count as least. */
#define DPARI_EX_SCAN(vector, size, one)                                                           \
    do {                                                                                           \
        vector a, b;                                                                               \
        __builtin_memcpy(&a, at, sizeof a);                                                        \
        __builtin_memcpy(&b, at + sizeof a, sizeof b);                                             \
        a &= size;                                                                                 \
        b &= size;                                                                                 \
        DPARI_EX_MAX(most, a);                                                                     \
        DPARI_EX_MAX(other_most, b);                                                               \
        a -= one;                                                                                  \
        b -= one;                                                                                  \
        DPARI_EX_MIN(least, a);                                                                    \
        DPARI_EX_MIN(other_least, b);                                                              \
    } while (0)

/* Finds the exponents of a block. Only the words that contain an exponent are of use. */
DPARI_EX_TARGET static void dpari_ex_scan(dpari_ex_exponents *found, const void *x, int64_t n,
                                          int32_t type)
{
    const dpari_ex_words none = {0};
    dpari_ex_words most = none, other_most = none, least = ~none, other_least = ~none;
    const unsigned char *at = (const unsigned char *)x;
    const unsigned char *const end = at + n * (type == DPAR_F64 ? 8 : 4);
    const int32_t skip = type == DPAR_F64 ? 2 : 1, fraction = type == DPAR_F64 ? 20 : 23;
    const int32_t bias = type == DPAR_F64 ? 1023 : 127;
    dpari_ex_lanes highest, lowest;
    uint32_t high = 0, low = UINT32_MAX;
    int32_t i;
    if (type == DPAR_F64) {
        const dpari_ex_longs one = ((dpari_ex_longs)none - 1) >> 63, size = ~(one << 63);
        for (; at < end; at += 2 * sizeof one) {
            DPARI_EX_SCAN(dpari_ex_longs, size, one);
        }
    } else {
        const dpari_ex_words one = (none - 1) >> 31, size = ~(one << 31);
        for (; at < end; at += 2 * sizeof one) {
            DPARI_EX_SCAN(dpari_ex_words, size, one);
        }
    }
    DPARI_EX_MAX(most, other_most);
    DPARI_EX_MIN(least, other_least);
    highest.words = most;
    lowest.words = least;
    for (i = skip - 1; i < DPARI_EX_BYTES / 4; i += skip) {
        high = highest.word[i] > high ? highest.word[i] : high;
        low = lowest.word[i] < low ? lowest.word[i] : low;
    }
    found->zero = low == UINT32_MAX;
    high >>= fraction;
    low >>= fraction;
    found->usable = high <= (uint32_t)(2 * bias) && low > 0;
    found->most = (int32_t)high - bias;
    found->least = (int32_t)low - bias;
}

/* Adds v, cut by M, to the sums `high` and `low`. If `wide`, what is left is cut by N before. */
#define DPARI_EX_CUT(v, M, high)                                                                   \
    do {                                                                                           \
        dpari_ex_reals cut = (v) + (M);                                                            \
        DPARI_EX_KEEP(cut);                                                                        \
        cut -= (M);                                                                                \
        DPARI_EX_KEEP(cut);                                                                        \
        (high) += cut;                                                                             \
        (v) -= cut;                                                                                \
        DPARI_EX_KEEP(v);                                                                          \
    } while (0)
#define DPARI_EX_ADD(v, M, N, high, middle, low)                                                   \
    do {                                                                                           \
        DPARI_EX_CUT(v, M, high);                                                                  \
        if (wide) {                                                                                \
            DPARI_EX_CUT(v, N, middle);                                                            \
        }                                                                                          \
        (low) += (v);                                                                              \
    } while (0)

/* Loads a vector of doubles, from f64 or f32. */
#define DPARI_EX_LOAD(v, at) __builtin_memcpy(&(v), at, sizeof(v))
#if defined(__x86_64__)
#define DPARI_EX_WIDEN(v, at)                                                                      \
    do {                                                                                           \
        dpari_ex_floats narrow;                                                                    \
        __builtin_memcpy(&narrow, at, sizeof narrow);                                              \
        __asm__("vcvtps2pd %1, %0" : "=x"(v) : "x"(narrow));                                       \
    } while (0)
#else
#define DPARI_EX_WIDEN(v, at)                                                                      \
    do {                                                                                           \
        dpari_ex_floats narrow;                                                                    \
        __builtin_memcpy(&narrow, at, sizeof narrow);                                              \
        (v) = __builtin_convertvector(narrow, dpari_ex_reals);                                     \
    } while (0)
#endif

/* Adds the lanes of two vectors, exactly. */
#define DPARI_EX_FOLD(to, a, b)                                                                    \
    do {                                                                                           \
        dpari_ex_lanes both;                                                                       \
        int32_t lane;                                                                              \
        both.reals = (a) + (b);                                                                    \
        (to) = 0.0;                                                                                \
        for (lane = 0; lane < DPARI_EX_LANES; lane++) {                                            \
            (to) += both.real[lane];                                                               \
        }                                                                                          \
    } while (0)

#define DPARI_EX_PREFETCH(at) __builtin_prefetch((const char *)(at) + DPARI_EX_AHEAD)

/* Returns 1.5 * 2^exponent. */
static double dpari_ex_large(int32_t exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52 | UINT64_C(1) << 51;
    double large;
    dpari_elements_bits(&large, &bits, 8);
    return large;
}

/* Adds f64 in two or three parts. most: the largest exponent. */
DPARI_EX_TARGET static void dpari_ex_sum_64(double *part, const double *x, int64_t n, int32_t most,
                                            int wide)
{
    const dpari_ex_reals zero = {0};
    const dpari_ex_reals M = zero + dpari_ex_large(most + 9), N = zero + dpari_ex_large(most - 35);
    dpari_ex_reals high = zero, middle = zero, low = zero, other_high = zero, other_low = zero;
    int64_t i;
    for (i = 0; i < n; i += 2 * DPARI_EX_LANES) {
        dpari_ex_reals a, b;
        DPARI_EX_PREFETCH(x + i);
        DPARI_EX_LOAD(a, x + i);
        DPARI_EX_LOAD(b, x + i + DPARI_EX_LANES);
        DPARI_EX_ADD(a, M, N, high, middle, low);
        DPARI_EX_ADD(b, M, N, other_high, middle, other_low);
    }
    DPARI_EX_FOLD(part[0], high, other_high);
    DPARI_EX_FOLD(part[1], low, other_low);
    DPARI_EX_FOLD(part[2], middle, zero);
}

/* Adds f32 in one part. */
DPARI_EX_TARGET static void dpari_ex_sum_32(double *part, const float *x, int64_t n)
{
    const dpari_ex_reals zero = {0};
    dpari_ex_reals sum[4] = {zero, zero, zero, zero};
    int64_t i;
    for (i = 0; i < n; i += 4 * DPARI_EX_LANES) {
        dpari_ex_reals v[4];
        DPARI_EX_PREFETCH(x + i);
        DPARI_FOUR(DPARI_EX_WIDEN(v[q], x + i + (int)q * (int)DPARI_EX_LANES));
        DPARI_FOUR(sum[q] += v[q]);
    }
    sum[0] += sum[2];
    sum[1] += sum[3];
    DPARI_EX_FOLD(part[0], sum[0], sum[1]);
}

/* Adds f32, or products of f32, in two or three parts. */
DPARI_EX_TARGET static void dpari_ex_cut_32(double *part, const float *x, const float *y, int64_t n,
                                            int32_t most, int wide)
{
    const dpari_ex_reals zero = {0};
    const dpari_ex_reals M = zero + dpari_ex_large(most + 9), N = zero + dpari_ex_large(most - 35);
    dpari_ex_reals high = zero, middle = zero, low = zero, other_high = zero, other_low = zero;
    int64_t i;
    for (i = 0; i < n; i += 2 * DPARI_EX_LANES) {
        dpari_ex_reals a, b;
        DPARI_EX_PREFETCH(x + i);
        DPARI_EX_WIDEN(a, x + i);
        DPARI_EX_WIDEN(b, x + i + DPARI_EX_LANES);
        if (y) {
            dpari_ex_reals c, d;
            DPARI_EX_PREFETCH(y + i);
            DPARI_EX_WIDEN(c, y + i);
            DPARI_EX_WIDEN(d, y + i + DPARI_EX_LANES);
            a *= c;
            b *= d;
            DPARI_EX_KEEP(a);
            DPARI_EX_KEEP(b);
        }
        DPARI_EX_ADD(a, M, N, high, middle, low);
        DPARI_EX_ADD(b, M, N, other_high, middle, other_low);
    }
    DPARI_EX_FOLD(part[0], high, other_high);
    DPARI_EX_FOLD(part[1], low, other_low);
    DPARI_EX_FOLD(part[2], middle, zero);
}

/* Adds products of f64 in four or six parts. */
DPARI_EX_TARGET static void dpari_ex_dot_64(double *part, const double *x, const double *y,
                                            int64_t n, int32_t most, int wide)
{
    const dpari_ex_reals zero = {0};
    const dpari_ex_reals M = zero + dpari_ex_large(most + 9), N = zero + dpari_ex_large(most - 35);
    const dpari_ex_reals error_M = zero + dpari_ex_large(most - 44);
    const dpari_ex_reals error_N = zero + dpari_ex_large(most - 88);
    dpari_ex_reals high = zero, middle = zero, low = zero;
    dpari_ex_reals error_high = zero, error_middle = zero, error_low = zero;
    int64_t i;
    for (i = 0; i < n; i += DPARI_EX_LANES) {
        dpari_ex_reals a, b, product, error;
        DPARI_EX_PREFETCH(x + i);
        DPARI_EX_PREFETCH(y + i);
        DPARI_EX_LOAD(a, x + i);
        DPARI_EX_LOAD(b, y + i);
        product = a * b;
        DPARI_EX_KEEP(product);
        error = -product;
        DPARI_EX_FUSED(error, a, b);
        DPARI_EX_ADD(product, M, N, high, middle, low);
        DPARI_EX_ADD(error, error_M, error_N, error_high, error_middle, error_low);
    }
    DPARI_EX_FOLD(part[0], high, zero);
    DPARI_EX_FOLD(part[1], low, zero);
    DPARI_EX_FOLD(part[2], error_high, zero);
    DPARI_EX_FOLD(part[3], error_low, zero);
    DPARI_EX_FOLD(part[4], middle, zero);
    DPARI_EX_FOLD(part[5], error_middle, zero);
}

DPARI_INTERNAL int dpari_ex_has_vectors(void)
{
    double one = 1.0, little = dpari_ex_large(-60), above, below;
    DPARI_EX_KEEP(one);
    DPARI_EX_KEEP(little);
    above = one + little;
    below = one - little;
    DPARI_EX_KEEP(above);
    DPARI_EX_KEEP(below);
    if (above != one || below != one) { /* the CPU does not round to nearest */
        return 0;
    }
#if defined(__x86_64__) && !(defined(__AVX2__) && defined(__FMA__))
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return 1;
#endif
}

DPARI_INTERNAL int32_t dpari_ex_block(double *part, const void *x, const void *y, int64_t n,
                                      int32_t type)
{
    dpari_ex_exponents a, b;
    int32_t most, spread;
    int wide;
    dpari_ex_scan(&a, x, n, type);
    most = a.most;
    spread = a.most - a.least;
    if (y) {
        b = a;
        if (y != x) {
            dpari_ex_scan(&b, y, n, type);
        }
        if (!b.usable) {
            return -1;
        }
        a.zero |= b.zero;
        most += b.most + 1;
        spread += b.most - b.least + 1;
    }
    if (!a.usable) {
        return -1;
    }
    if (a.zero) {
        return 0;
    }
    if (type == DPAR_F32) {
        const int32_t narrow = y ? 41 : 64;
        if (!y && spread <= 20) {
            dpari_ex_sum_32(part, (const float *)x, n);
            return 1;
        }
        if (spread > narrow + 44) {
            return -1;
        }
        dpari_ex_cut_32(part, (const float *)x, (const float *)y, n, most, spread > narrow);
        return spread > narrow ? 3 : 2;
    }
    if (spread > 79 || most > 1000 || most < (y ? -830 : -890)) {
        return -1;
    }
    wide = spread > 35;
    if (y) {
        dpari_ex_dot_64(part, (const double *)x, (const double *)y, n, most, wide);
        return wide ? 6 : 4;
    }
    dpari_ex_sum_64(part, (const double *)x, n, most, wide);
    return wide ? 3 : 2;
}

#else

DPARI_INTERNAL int dpari_ex_has_vectors(void)
{
    return 0;
}

DPARI_INTERNAL int32_t dpari_ex_block(double *part, const void *x, const void *y, int64_t n,
                                      int32_t type)
{
    (void)part;
    (void)x;
    (void)y;
    (void)n;
    (void)type;
    return -1;
}

#endif
