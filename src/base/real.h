/* SPDX-License-Identifier: MIT-0 */
/* real - private: the few functions of <math.h> that the library needs, without -lm.
 * Header-only. Relative error below 1e-12 on double targets. */
#ifndef DPARI_BASE_REAL_H
#define DPARI_BASE_REAL_H

#include "arith.h"

/* Returns m and sets *e such that x = m * 2^e and 1 <= m < 2, for finite x > 0. It multiplies by
 * powers of two, 2^32 at first, because it must not assume the bits of a double, which has only 32
 * on AVR. With -ffast-math an infinite x may get here: the bounds on k end the loops then, and the
 * result is useless. */
DPARI_FN double dpari_split(double x, int32_t *e)
{
    int32_t k = 0;
    while (x >= 4294967296.0 && k < 1024) {
        x *= 1.0 / 4294967296.0;
        k += 32;
    }
    while (x < 1.0 / 4294967296.0 && k > -1100) {
        x *= 4294967296.0;
        k -= 32;
    }
    while (x >= 2.0 && k < 1060) {
        x *= 0.5;
        k++;
    }
    while (x < 1.0 && k > -1140) {
        x *= 2.0;
        k--;
    }
    *e = k;
    return x;
}

/* Returns sqrt(x), or 0 for x <= 0. Newton's method computes the root of the mantissa. */
DPARI_FN double dpari_sqrt(double x)
{
    int32_t e, i;
    double m, r;
    if (!(x > 0.0) || !dpari_finite(x)) {
        return x != x ? x : 0.0;
    }
    m = dpari_split(x, &e);
    r = 1.0;
    if (e % 2 != 0) {
        m *= 2.0;
        e--;
    }
    for (i = 0; i < 6; i++) {
        r = 0.5 * (r + m / r);
    }
    for (; e > 0; e -= 2) {
        r *= 2.0;
    }
    for (; e < 0; e += 2) {
        r *= 0.5;
    }
    return r;
}

/* Returns log2(x) for finite x > 0, NaN for NaN, otherwise 0. It sums the atanh series of the
 * mantissa, which is within a factor of sqrt(2) of 1. */
DPARI_FN double dpari_log2(double x)
{
    int32_t e, k;
    double m, y, y2, term, sum = 0.0;
    if (!(x > 0.0) || !dpari_finite(x)) {
        return x != x ? x : 0.0;
    }
    m = dpari_split(x, &e);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e++;
    }
    y = (m - 1.0) / (m + 1.0);
    y2 = y * y;
    term = y;
    for (k = 1; k < 30; k += 2) {
        sum += term / k;
        term *= y2;
    }
    return (double)e + 2.0 * sum * 1.4426950408889634;
}

/* Returns ln(x) for finite x > 0, NaN for NaN, otherwise 0. */
DPARI_FN double dpari_log(double x)
{
    return dpari_log2(x) * 0.6931471805599453;
}

/* Returns e^x with a relative error of 2e-15; 0 below -745, and e^709 above 709, near the limits of
 * a double. With x = k ln 2 + f and |f| < 0.35, e^f is a Taylor polynomial of degree 13 and 2^k is
 * computed by squaring, because the bits of a double are not known. ln 2 is given in two parts, so
 * that k times the first one is exact. There is no division and no loop over terms, because softmax
 * calls it for each element. */
DPARI_FN double dpari_exp(double x)
{
    double f, sum, power = 1.0, base = x < 0.0 ? 0.5 : 2.0;
    int32_t k;
    if (!(x > -745.0)) {
        return x < 0.0 ? 0.0 : x; /* NaN stays NaN */
    }
    x = x < 709.0 ? x : 709.0;
    k = (int32_t)((x < 0.0 ? -x : x) * 1.4426950408889634 + 0.5);
    f = x < 0.0 ? -(double)k : (double)k;
    f = (x - f * 0.693147180369123816490) - f * 1.90821492927058770002e-10;
    sum = 1.0 / 6227020800.0;
    sum = sum * f + 1.0 / 479001600.0;
    sum = sum * f + 1.0 / 39916800.0;
    sum = sum * f + 1.0 / 3628800.0;
    sum = sum * f + 1.0 / 362880.0;
    sum = sum * f + 1.0 / 40320.0;
    sum = sum * f + 1.0 / 5040.0;
    sum = sum * f + 1.0 / 720.0;
    sum = sum * f + 1.0 / 120.0;
    sum = sum * f + 1.0 / 24.0;
    sum = sum * f + 1.0 / 6.0;
    sum = sum * f + 0.5;
    sum = sum * f + 1.0;
    sum = sum * f + 1.0;
    for (; k > 0; k >>= 1) {
        power *= k % 2 != 0 ? base : 1.0;
        base *= base;
    }
    return sum * power;
}

/* Returns the least k with 2^k >= n, for n >= 1. */
DPARI_FN int32_t dpari_ceil_log2(int64_t n)
{
    int32_t k = 0;
    while (k < 62 && ((int64_t)1 << k) < n) {
        k++;
    }
    return k;
}

#endif
