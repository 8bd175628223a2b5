/* SPDX-License-Identifier: MIT-0 */
/* elements - private: loads and stores floats of any type as blocks of doubles, so that loops over
 * parameters have one form for all types. Header-only. */
#ifndef DPARI_HOST_ELEMENTS_H
#define DPARI_HOST_ELEMENTS_H

#include "../base/arith.h"
#include "../base/type.h"
#include "kernel.h"

enum { DPARI_ELEMENTS = 128 }; /* elements of a block, which is 1 KiB of doubles */

DPARI_FN int dpari_is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

/* True for F64 and F32, the types of the host's loops over scores, gates and moments. */
DPARI_FN int dpari_is_wide(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32;
}

/* Returns the wide type for sums and weights of a type: F64 for F64, otherwise F32. */
DPARI_FN int32_t dpari_wide_type(int32_t type)
{
    return type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

/* True for the roundings that are allowed: F64 to F32, and F32 to 16 bits. */
DPARI_FN int dpari_narrows(int32_t from, int32_t to)
{
    return (from == DPAR_F64 && to == DPAR_F32) ||
           (from == DPAR_F32 && (to == DPAR_F16 || to == DPAR_BF16));
}

/* Read and write one element of F64 or F32. */
DPARI_FN double dpari_element_get(const void *data, int32_t type, int64_t at)
{
    return type == DPAR_F64 ? ((const double *)data)[at] : (double)((const float *)data)[at];
}

DPARI_FN void dpari_element_put(void *data, int32_t type, int64_t at, double v)
{
    if (type == DPAR_F64) {
        ((double *)data)[at] = v;
    } else {
        ((float *)data)[at] = (float)v;
    }
}

/* Copies the bits of a value into a variable of another type. */
#if defined(__GNUC__)
#define dpari_elements_bits(to, from, bytes) __builtin_memcpy(to, from, bytes)
#else
#define dpari_elements_bits(to, from, bytes) dpari_kern_copy(to, from, bytes, 0)
#endif

/* Gives all NaNs the same bits. */
DPARI_FN void dpari_elements_quiet(float *x, int64_t n)
{
    const uint32_t quiet = 0x7fc00000u;
    int64_t i;
    for (i = 0; i < n; i++) {
        if (x[i] != x[i]) {
            dpari_elements_bits(x + i, &quiet, 4);
        }
    }
}

/* Loads elements i .. i + n - 1, n <= DPARI_ELEMENTS, of F64, F32, BF16 or F16. */
DPARI_FN void dpari_elements_load(double *to, const void *from, int64_t i, int64_t n, int32_t type)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    float f[DPARI_ELEMENTS];
    if (type == DPAR_F64) {
        dpari_kern_copy(to, at, n * 8, 0);
    } else if (type == DPAR_F32) {
        dpari_kern_convert(to, DPAR_F64, at, DPAR_F32, n);
    } else {
        dpari_kern_convert(f, DPAR_F32, at, type, n);
        dpari_kern_convert(to, DPAR_F64, f, DPAR_F32, n);
    }
}

/* Stores n doubles as elements i .. i + n - 1 of `type`, rounded to nearest even. For 16-bit types
 * they are rounded to F32 first. */
DPARI_FN void dpari_elements_store(void *to, const double *from, int64_t i, int64_t n, int32_t type)
{
    unsigned char *at = (unsigned char *)to + i * dpar_type_bytes(type);
    float f[DPARI_ELEMENTS];
    if (type == DPAR_F64) {
        dpari_kern_copy(at, from, n * 8, 0);
        return;
    }
    if (type == DPAR_F32) {
        dpari_kern_convert(at, DPAR_F32, from, DPAR_F64, n);
        return;
    }
    dpari_kern_convert(f, DPAR_F32, from, DPAR_F64, n);
    dpari_kern_convert(at, type, f, DPAR_F32, n);
}

/* The CPU's instruction for square roots, which rounds correctly. sqrt of the C library would set
 * errno and need -lm. */
#if defined(__GNUC__) && defined(__AVX__) && !defined(DPARI_NO_VECTOR)
#define DPARI_ELEMENTS_ROOT(y, x) __asm__("vsqrtsd %1, %1, %0" : "=x"(y) : "x"(x))
#elif defined(__GNUC__) && defined(__x86_64__) && !defined(DPARI_NO_VECTOR)
#define DPARI_ELEMENTS_ROOT(y, x) __asm__("sqrtsd %1, %0" : "=x"(y) : "x"(x))
#elif defined(__GNUC__) && defined(__aarch64__) && !defined(DPARI_NO_VECTOR)
#define DPARI_ELEMENTS_ROOT(y, x) __asm__("fsqrt %d0, %d1" : "=w"(y) : "w"(x))
#endif

/* Returns sqrt(x), or 0 for x <= 0. */
#if defined(DPARI_ELEMENTS_ROOT)
DPARI_FN double dpari_elements_sqrt(double x)
{
    double y = 0.0;
    if (x > 0.0 || x != x) {
        DPARI_ELEMENTS_ROOT(y, x);
    }
    return y;
}
#else
/* Computes it without such an instruction, with a relative error of at most 2^-52; below 1e-300 it
 * returns 0. A first approximation of 1 / sqrt(x) comes from the bits of x (Lomont 2003). Four
 * Newton steps, which need no division, and one Heron step improve it. */
DPARI_FN double dpari_elements_sqrt(double x)
{
    uint64_t bits;
    double y, s;
    int32_t i;
    if (!(x > 1e-300) || !dpari_finite(x)) {
        return x > 1e-300 || x != x ? x : 0.0;
    }
    dpari_elements_bits(&bits, &x, 8);
    bits = UINT64_C(0x5fe6eb50c7b537a9) - (bits >> 1);
    dpari_elements_bits(&y, &bits, 8);
    for (i = 0; i < 4; i++) {
        y = y * (1.5 - 0.5 * x * y * y);
    }
    s = x * y;
    return s + 0.5 * y * (x - s * s);
}
#endif

#endif
