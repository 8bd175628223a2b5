/* SPDX-License-Identifier: MIT-0 */
/* elements: numbers of the four float types by their definition, for tests of tables of operations:
 * scalar double or float, 16-bit values one by one. */
#ifndef DPAR_TEST_ELEMENTS_H
#define DPAR_TEST_ELEMENTS_H

#include "check.h"
#include "bf16.h"
#include "f16.h"
#include "random_bits.h"

#include <stdlib.h>

enum { MOST = 700, GUARD = 16 };

static const int32_t floats[4] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16};
static const int64_t counts[] = {0, 1, 7, 127, 128, 129, 300};
enum { COUNTS = 7 };

/* Returns a number in -1 .. 1. */
static double number(void)
{
    return (double)(random_bits() >> 11) / 4503599627370496.0 - 1.0;
}

/* ---- elements by definition */

static double read_at(const void *at, int64_t i, int32_t type)
{
    uint16_t h;
    if (type == DPAR_F64) {
        return ((const double *)at)[i];
    }
    if (type == DPAR_F32) {
        return (double)((const float *)at)[i];
    }
    h = ((const uint16_t *)at)[i];
    if (type == DPAR_F16) {
        return (double)f16_value(h);
    }
    return (double)bf16_value(h);
}

/* Rounds v to nearest even of a type, through a float. */
static double rounded(double v, int32_t type)
{
    const float f = (float)v;
    int e;
    if (type == DPAR_F64 || v != v) {
        return v;
    }
    if (type == DPAR_F32 || f - f != 0.0f) {
        return (double)f;
    }
    if (type == DPAR_BF16) {
        return (double)bf16_value(bf16_of(f));
    }
    (void)frexp((double)f, &e);
    e = e < -13 ? -13 : e;
    v = ldexp(rint(ldexp((double)f, 11 - e)), e - 11);
    return fabs(v) >= 65520.0 ? (v < 0 ? (double)-INFINITY : (double)INFINITY) : v;
}

static void write_at(void *at, int64_t i, int32_t type, double v)
{
    const double r = rounded(v, type), size = fabs(r);
    uint32_t x;
    float f = (float)r;
    int e;
    if (type == DPAR_F64) {
        ((double *)at)[i] = r;
    } else if (type == DPAR_F32) {
        ((float *)at)[i] = f;
    } else if (type == DPAR_BF16) {
        ((uint16_t *)at)[i] = bf16_of(f);
    } else {
        (void)frexp(size, &e);
        x = size < ldexp(1, -14) ? (uint32_t)ldexp(size, 24)
                                 : (uint32_t)ldexp(size, 11 - e) + ((uint32_t)(e + 13) << 10);
        ((uint16_t *)at)[i] = (uint16_t)(x | (r < 0 ? 0x8000u : 0u));
    }
}

static int same(double a, double b)
{
    return (a != a && b != b) || (a >= b && a <= b);
}

static void fill(void *at, int64_t n, int32_t type)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        write_at(at, i, type, 4.0 * number());
    }
}

#endif
