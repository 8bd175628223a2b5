/* SPDX-License-Identifier: MIT-0 */
/* exact_oracle: sums of floats and of products, bit by bit. A number without sign is a list of
 * bits, one in each char, from 2^-2200 up. Positive and negative elements have a sum each. Nothing
 * is computed in floating point, so that tests may be compiled with -ffast-math. */
#ifndef DPAR_EXACT_ORACLE_H
#define DPAR_EXACT_ORACLE_H

#include "dpar_exact.h"

#include <stdlib.h>
#include <string.h>

enum { ORACLE_BITS = 4500, ORACLE_ONE = 2200 };

typedef struct oracle {
    unsigned char plus[ORACLE_BITS], minus[ORACLE_BITS];
    int nan, inf, minus_inf;
} oracle;

/* Fraction bits, exponent bits, and exponent of the smallest positive number of a type. */
static inline void oracle_type(int type, int *fraction, int *exponents, int *smallest)
{
    *fraction = type == DPAR_F64 ? 52 : type == DPAR_F32 ? 23 : type == DPAR_BF16 ? 7 : 10;
    *exponents = type == DPAR_F64 ? 11 : type == DPAR_F16 ? 5 : 8;
    *smallest = type == DPAR_F64 ? -1074 : type == DPAR_F32 ? -149 : type == DPAR_BF16 ? -133 : -24;
}

static inline void oracle_set_bit(unsigned char *bits, int at)
{
    while (bits[at]) {
        bits[at++] = 0;
    }
    bits[at] = 1;
}

/* An element: mantissa * 2^exponent. */
typedef struct oracle_number {
    uint64_t mantissa;
    int exponent, negative, inf, nan;
} oracle_number;

static inline oracle_number oracle_read(const void *x, int64_t i, int type)
{
    const unsigned char *at = (const unsigned char *)x + i * dpar_type_bytes(type);
    int fraction, exponents, smallest, e;
    oracle_number r;
    uint64_t bits = 0;
    int b;
    for (b = dpar_type_bytes(type) - 1; b >= 0; b--) { /* little endian */
        bits = bits * 256 + at[b];
    }
    oracle_type(type, &fraction, &exponents, &smallest);
    memset(&r, 0, sizeof r);
    r.negative = (int)(bits >> (fraction + exponents));
    e = (int)(bits >> fraction) % (1 << exponents);
    r.mantissa = bits % (UINT64_C(1) << fraction);
    r.inf = e == (1 << exponents) - 1 && r.mantissa == 0;
    r.nan = e == (1 << exponents) - 1 && r.mantissa != 0;
    if (e == 0) {
        r.exponent = smallest;
    } else {
        r.mantissa += UINT64_C(1) << fraction;
        r.exponent = smallest + e - 1;
    }
    return r;
}

static inline void oracle_count(oracle *o, int nan, int negative)
{
    o->nan += nan;
    o->inf += !nan && !negative;
    o->minus_inf += !nan && negative;
}

static inline void oracle_add(oracle *o, const void *x, int64_t i, int type)
{
    const oracle_number a = oracle_read(x, i, type);
    int b;
    if (a.nan || a.inf) {
        oracle_count(o, a.nan, a.negative);
        return;
    }
    for (b = 0; b < 64; b++) {
        if (a.mantissa >> b & 1) {
            oracle_set_bit(a.negative ? o->minus : o->plus, ORACLE_ONE + a.exponent + b);
        }
    }
}

static inline void oracle_add_product(oracle *o, oracle_number a, oracle_number b)
{
    const int negative = a.negative != b.negative;
    int j, k;
    if (a.nan || b.nan || a.inf || b.inf) {
        const int zero = (!a.inf && a.mantissa == 0) || (!b.inf && b.mantissa == 0);
        oracle_count(o, a.nan || b.nan || zero, negative);
        return;
    }
    for (j = 0; j < 64; j++) {
        for (k = 0; k < 64 && (a.mantissa >> j & 1); k++) {
            if (b.mantissa >> k & 1) {
                oracle_set_bit(negative ? o->minus : o->plus,
                               ORACLE_ONE + a.exponent + b.exponent + j + k);
            }
        }
    }
}

/* Returns -1, 0 or 1. */
static inline int oracle_compare(const unsigned char *a, const unsigned char *b)
{
    int i;
    for (i = ORACLE_BITS - 1; i >= 0; i--) {
        if (a[i] != b[i]) {
            return a[i] > b[i] ? 1 : -1;
        }
    }
    return 0;
}

/* Computes a - b, for a >= b, as by hand. */
static inline void oracle_subtract(unsigned char *to, const unsigned char *a,
                                   const unsigned char *b)
{
    int i, borrow = 0;
    for (i = 0; i < ORACLE_BITS; i++) {
        const int d = a[i] - b[i] - borrow;
        borrow = d < 0;
        to[i] = (unsigned char)(d + 2 * borrow);
    }
}

/* The bits of a double mantissa * 2^exponent, which is exact. */
static inline uint64_t oracle_double(int negative, uint64_t mantissa, int exponent)
{
    const uint64_t sign = negative ? UINT64_C(1) << 63 : 0;
    if (mantissa == 0) {
        return sign;
    }
    while (mantissa < UINT64_C(1) << 52 && exponent > -1074) {
        mantissa *= 2;
        exponent--;
    }
    while (mantissa >= UINT64_C(1) << 53) {
        mantissa /= 2;
        exponent++;
    }
    return sign + mantissa +
           (mantissa >= UINT64_C(1) << 52 ? (uint64_t)(exponent + 1074) << 52 : 0);
}

/* The bits of the sum as a double, rounded to a type. */
static inline uint64_t oracle_result(const oracle *o, int type)
{
    static const uint64_t inf = UINT64_C(0x7ff) << 52, nan = UINT64_C(0xfff) << 51;
    const int order = oracle_compare(o->plus, o->minus);
    unsigned char rest[ORACLE_BITS];
    uint64_t mantissa = 0;
    int fraction, exponents, smallest, top, last, i, below = 0;
    oracle_type(type, &fraction, &exponents, &smallest);
    if (o->nan || (o->inf && o->minus_inf)) {
        return nan;
    }
    if (o->inf || o->minus_inf) {
        return inf + (o->minus_inf ? UINT64_C(1) << 63 : 0);
    }
    if (order == 0) {
        return 0;
    }
    oracle_subtract(rest, order > 0 ? o->plus : o->minus, order > 0 ? o->minus : o->plus);
    for (top = ORACLE_BITS - 1; !rest[top]; top--) {
    }
    last = top - fraction;
    last = last < ORACLE_ONE + smallest ? ORACLE_ONE + smallest : last;
    for (i = top; i >= last; i--) {
        mantissa = mantissa * 2 + rest[i];
    }
    for (i = 0; i < last - 1; i++) {
        below |= rest[i];
    }
    if (rest[last - 1] && (below || mantissa % 2 == 1)) {
        mantissa++;
    }
    /* the largest number is below 2^(2^(exponents - 1)) */
    for (i = 63; i >= 0 && !(mantissa >> i & 1); i--) {
    }
    if (mantissa != 0 && i + last - ORACLE_ONE >= 1 << (exponents - 1)) {
        return inf + (order < 0 ? UINT64_C(1) << 63 : 0);
    }
    return oracle_double(order < 0, mantissa, last - ORACLE_ONE);
}

/* True if `bits`, a double, is the root of the sum, rounded to a type: the sum is between the
 * squares of the middles between it and its neighbours. */
static inline int oracle_is_root(const oracle *o, int type, uint64_t bits)
{
    static const uint64_t inf = UINT64_C(0x7ff) << 52, nan = UINT64_C(0xfff) << 51;
    const int order = oracle_compare(o->plus, o->minus);
    unsigned char sum[ORACLE_BITS];
    oracle square;
    oracle_number r, middle;
    int fraction, exponents, smallest, side;
    oracle_type(type, &fraction, &exponents, &smallest);
    if (o->nan || o->minus_inf || (!o->inf && order < 0)) {
        return bits == nan;
    }
    if (o->inf) {
        return bits == inf;
    }
    if (order == 0) {
        return bits == 0;
    }
    if (bits == inf) { /* only for numbers that exceed the largest one */
        r.mantissa = UINT64_C(1) << fraction;
        r.exponent = (1 << (exponents - 1)) - fraction;
    } else {
        r = oracle_read(&bits, 0, DPAR_F64);
    }
    while (r.mantissa % 2 == 0 && r.mantissa != 0) {
        r.mantissa /= 2;
        r.exponent++;
    }
    while (r.mantissa < UINT64_C(1) << fraction && r.exponent > smallest && r.mantissa != 0) {
        r.mantissa *= 2;
        r.exponent--;
    }
    if (r.mantissa == 0) {
        r.exponent = smallest;
    }
    if (r.mantissa >= UINT64_C(1) << (fraction + 1) || r.exponent < smallest) {
        return 0; /* the type has no such number */
    }
    oracle_subtract(sum, o->plus, o->minus);
    for (side = -1; side <= 1; side += 2) {
        int compared;
        memset(&square, 0, sizeof square);
        memset(&middle, 0, sizeof middle);
        middle.mantissa = 4 * r.mantissa + (uint64_t)(2 * side);
        middle.exponent = r.exponent - 2;
        if (side < 0 && r.mantissa == UINT64_C(1) << fraction && r.exponent > smallest) {
            middle.mantissa++; /* the number below is half as far away */
        }
        if (r.mantissa == 0 && side < 0) {
            continue;
        }
        oracle_add_product(&square, middle, middle);
        compared = oracle_compare(sum, square.plus);
        if (compared == 0 ? r.mantissa % 2 == 1 : compared != -side) {
            return 0;
        }
        if (bits == inf && side < 0) {
            return 1;
        }
    }
    return 1;
}

#endif
