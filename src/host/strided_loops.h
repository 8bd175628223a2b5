/* SPDX-License-Identifier: MIT-0 */
/* strided_loops - private: copies or adds one run of a box. These functions are inlined with
 * constant arguments into the loops of strided.c and of halo_box_groups. */
#ifndef DPARI_HOST_STRIDED_LOOPS_H
#define DPARI_HOST_STRIDED_LOOPS_H

#include "../base/arith.h"
#include "kernel.h"
#include "strided.h"

/* The loops, named for the bytes that are moved at a time. A run between two powers of 2 is moved
 * as two overlapping pieces at its ends (TWO), and one of 33 to 64 bytes as two from each end
 * (FOUR). */
enum {
    DPARI_STRIDE_NONE,
    DPARI_STRIDE_1,
    DPARI_STRIDE_2,
    DPARI_STRIDE_TWO_2,
    DPARI_STRIDE_4,
    DPARI_STRIDE_TWO_4,
    DPARI_STRIDE_8,
    DPARI_STRIDE_TWO_8,
    DPARI_STRIDE_16,
    DPARI_STRIDE_TWO_16,
    DPARI_STRIDE_FOUR_16,
    DPARI_STRIDE_LONG,
    DPARI_STRIDE_MIDDLE,  /* long, but too short for memcpy; vectors of 32 bytes */
    DPARI_STRIDE_SUM_F32, /* single elements; the next ones are for runs of 2, 3, 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F32_2,
    DPARI_STRIDE_SUM_F32_3,
    DPARI_STRIDE_SUM_F32_4,
    DPARI_STRIDE_SUM_F32_7,
    DPARI_STRIDE_SUM_F64, /* single elements; the next ones are for runs of 2, 3 to 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F64_2,
    DPARI_STRIDE_SUM_F64_4,
    DPARI_STRIDE_SUM_F64_7,
    DPARI_STRIDE_DENSE, /* combined in place, row by row */
    DPARI_STRIDE_BUFFER /* all other cases, through a small dense buffer */
};

#define DPARI_STRIDE_TURN 32    /* runs of one piece before those of the other one (measured) */
#define DPARI_STRIDE_AHEAD 1024 /* bytes by which short runs are prefetched ahead (measured) */
#define DPARI_STRIDE_LINE 64
#define DPARI_STRIDE_PACK 2048 /* bytes packed at a time (measured, EPYC) */

/* Sums are not computed with x87, which rounds when it stores and not when it adds. */
#if defined(__i386__) && !defined(__SSE2_MATH__)
#define DPARI_STRIDE_ADDS 0
#else
#define DPARI_STRIDE_ADDS 1
#endif

#if defined(__GNUC__)
#define dpari_stride_copy(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#define DPARI_STRIDE_INLINE static DPARI_INLINED __attribute__((always_inline))
#define DPARI_STRIDE_ALIGNED __attribute__((aligned(64)))
#else
#define dpari_stride_copy(to, from, bytes) dpari_kern_copy(to, from, (int64_t)(bytes), 0)
#define DPARI_STRIDE_INLINE static DPARI_INLINED
#define DPARI_STRIDE_ALIGNED
#endif

#if defined(__GNUC__) && DPARI_STRIDE_ADDS && !defined(DPARI_NO_VECTOR)
#define DPARI_STRIDE_VECTOR 1
#else
#define DPARI_STRIDE_VECTOR 0
#endif

/* Vectors of 32 bytes are used if the CPU has them, because a store of 32 bytes takes as long as
 * one of 16. */
#if DPARI_STRIDE_VECTOR && defined(__x86_64__)
#define DPARI_STRIDE_WIDE 1
#define DPARI_STRIDE_IN_WIDE __attribute__((target("avx2")))
#else
#define DPARI_STRIDE_WIDE 0
#endif

DPARI_STRIDE_INLINE unsigned char *dpari_stride_writable(const unsigned char *at)
{
    return (unsigned char *)(uintptr_t)at;
}

/* ---- prefetching ---- */

/* Prefetches the line at t, which will be written. */
DPARI_STRIDE_INLINE void dpari_stride_ask_line(const unsigned char *t)
{
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*t)); /* the builtin would prefetch the line for reading */
#elif defined(__GNUC__)
    __builtin_prefetch(t, 1);
#else
    (void)t;
#endif
}

DPARI_STRIDE_INLINE void dpari_stride_ask_lines(const unsigned char *at, int64_t bytes)
{
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += DPARI_STRIDE_LINE) {
        dpari_stride_ask_line(at);
    }
}

/* Prefetches the lines that are written next. Stores wait for their lines one after the other,
 * whereas prefetches run in parallel. */
DPARI_STRIDE_INLINE void dpari_stride_ask(const dpari_stride *stride, unsigned char *to,
                                          int64_t rows, int64_t n)
{
    const int64_t step = stride->dim[0].to;
    int64_t row, i;
    for (row = 0; row < rows; row++, to += stride->dim[1].to) {
        const unsigned char *t = to;
        for (i = n; i > 0; i--, t += step) {
            dpari_stride_ask_line(t);
        }
    }
}

/* ---- one run: inlined with a constant loop ---- */

/* True if the loop computes sums. */
DPARI_STRIDE_INLINE int dpari_stride_sums(int32_t loop)
{
    return loop >= DPARI_STRIDE_SUM_F32 && loop <= DPARI_STRIDE_SUM_F64_7;
}

/* True if the loop can set to 0 what it has moved. */
DPARI_STRIDE_INLINE int dpari_stride_zeroes(int32_t loop)
{
    return loop < DPARI_STRIDE_LONG || dpari_stride_sums(loop);
}

/* Returns the bytes of a piece; the next function returns the number of pieces of a run. */
DPARI_STRIDE_INLINE int32_t dpari_stride_width(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_1: return 1;
    case DPARI_STRIDE_2:
    case DPARI_STRIDE_TWO_2: return 2;
    case DPARI_STRIDE_4:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_SUM_F32: return 4;
    case DPARI_STRIDE_8:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_SUM_F32_2:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F64: return 8;
    default: return 16;
    }
}

DPARI_STRIDE_INLINE int32_t dpari_stride_pieces(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_TWO_2:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_TWO_16:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F32_7:
    case DPARI_STRIDE_SUM_F64_4: return 2;
    case DPARI_STRIDE_FOUR_16:
    case DPARI_STRIDE_SUM_F64_7: return 4;
    default: return 1;
    }
}

/* Reads the whole run before it writes. last: offset of the last piece of the run, in bytes. */
DPARI_STRIDE_INLINE void dpari_stride_copy_run(unsigned char *t, const unsigned char *f,
                                               int64_t last, int32_t width, int32_t pieces)
{
    unsigned char a[16], b[16], c[16], d[16];
    dpari_stride_copy(a, f, width);
    if (pieces > 1) {
        dpari_stride_copy(b, f + last, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(c, f + width, width);
        dpari_stride_copy(d, f + last - width, width);
    }
    dpari_stride_copy(t, a, width);
    if (pieces > 1) {
        dpari_stride_copy(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(t + width, c, width);
        dpari_stride_copy(t + last - width, d, width);
    }
}

DPARI_STRIDE_INLINE void dpari_stride_zero_run(unsigned char *z, int64_t last, int32_t width,
                                               int32_t pieces)
{
    const unsigned char zero[16] = {0};
    dpari_stride_copy(z, zero, width);
    if (pieces > 1) {
        dpari_stride_copy(z + last, zero, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(z + width, zero, width);
        dpari_stride_copy(z + last - width, zero, width);
    }
}

/* Adds f to t. Each NaN becomes the same one, as in dpari_kern_reduce. */
DPARI_STRIDE_INLINE void dpari_stride_sum_f32(unsigned char *t, const unsigned char *f)
{
    const uint32_t quiet = 0x7fc00000u;
    float x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

DPARI_STRIDE_INLINE void dpari_stride_sum_f64(unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    double x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

#if DPARI_STRIDE_VECTOR
typedef double dpari_stride_d2 __attribute__((vector_size(16)));
typedef float dpari_stride_f4 __attribute__((vector_size(16)));
typedef uint64_t dpari_stride_u2 __attribute__((vector_size(16)));

/* Load and store the first `bytes` bytes, 8 or 16, of a vector. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_get(const unsigned char *from, int32_t bytes)
{
    dpari_stride_u2 v = {0, 0};
    if (bytes == 8) {
        uint64_t x;
        dpari_stride_copy(&x, from, 8);
        v[0] = x;
    } else {
        dpari_stride_copy(&v, from, 16);
    }
    return v;
}

DPARI_STRIDE_INLINE void dpari_stride_put(unsigned char *to, dpari_stride_u2 v, int32_t bytes)
{
    dpari_stride_copy(to, &v, bytes);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_plus(dpari_stride_u2 x, dpari_stride_u2 y,
                                                      int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x + (dpari_stride_d2)y)
               : (dpari_stride_u2)((dpari_stride_f4)x + (dpari_stride_f4)y);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_nan(dpari_stride_u2 x, int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x != (dpari_stride_d2)x)
               : (dpari_stride_u2)((dpari_stride_f4)x != (dpari_stride_f4)x);
}

/* True if a mask has any bit set. Marked as unlikely, so the code after it may be slow. */
DPARI_STRIDE_INLINE int dpari_stride_any(dpari_stride_u2 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_stride_f4)mask) != 0, 0) != 0;
#else
    return __builtin_expect((mask[0] | mask[1]) != 0, 0) != 0;
#endif
}

/* Returns the sum of the elements at t and f. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_met(const unsigned char *t, const unsigned char *f,
                                                     int32_t bytes, int32_t f64)
{
    return dpari_stride_plus(dpari_stride_get(t, bytes), dpari_stride_get(f, bytes), f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_quiet(dpari_stride_u2 x, int32_t f64)
{
    const uint64_t quiet = f64 ? UINT64_C(0x7ff8) << 48 : UINT64_C(0x7fc000007fc00000);
    const dpari_stride_u2 both = {quiet, quiet}, bad = dpari_stride_nan(x, f64);
    return (x & ~bad) | (both & bad);
}

/* Adds a run, as dpari_stride_copy_run copies one. The sum of all elements is NaN if one of them
 * is.
 */
DPARI_STRIDE_INLINE void dpari_stride_sum_run(unsigned char *t, const unsigned char *f,
                                              int64_t last, int32_t width, int32_t pieces,
                                              int32_t f64)
{
    dpari_stride_u2 a = dpari_stride_met(t, f, width, f64), b = a, c = a, d = a, all = a;
    if (pieces > 1) {
        b = dpari_stride_met(t + last, f + last, width, f64);
        all = dpari_stride_plus(a, b, f64);
    }
    if (pieces > 2) {
        c = dpari_stride_met(t + width, f + width, width, f64);
        d = dpari_stride_met(t + last - width, f + last - width, width, f64);
        all = dpari_stride_plus(all, dpari_stride_plus(c, d, f64), f64);
    }
    if (dpari_stride_any(dpari_stride_nan(all, f64))) {
        a = dpari_stride_quiet(a, f64);
        b = dpari_stride_quiet(b, f64);
        c = dpari_stride_quiet(c, f64);
        d = dpari_stride_quiet(d, f64);
    }
    dpari_stride_put(t, a, width);
    if (pieces > 1) {
        dpari_stride_put(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_put(t + width, c, width);
        dpari_stride_put(t + last - width, d, width);
    }
}
#endif

/* Copies the run at f to t, or adds it there. If `zero` is set, the run at z becomes 0. */
DPARI_STRIDE_INLINE void dpari_stride_one(unsigned char *t, const unsigned char *f,
                                          unsigned char *z, int64_t last, int32_t loop, int zero)
{
    const int32_t width = dpari_stride_width(loop), pieces = dpari_stride_pieces(loop);
    if (loop == DPARI_STRIDE_SUM_F32) {
        dpari_stride_sum_f32(t, f);
    } else if (loop == DPARI_STRIDE_SUM_F64) {
        dpari_stride_sum_f64(t, f);
    } else if (!dpari_stride_sums(loop)) {
        dpari_stride_copy_run(t, f, last, width, pieces);
    } else {
#if DPARI_STRIDE_VECTOR
        dpari_stride_sum_run(t, f, last, width, pieces, loop > DPARI_STRIDE_SUM_F64);
#endif
    }
    if (zero) {
        dpari_stride_zero_run(z, last, width, pieces);
    }
}

#if DPARI_STRIDE_WIDE
typedef uint64_t dpari_stride_u4 __attribute__((vector_size(32)));

typedef double dpari_stride_d4 __attribute__((vector_size(32)));
typedef float dpari_stride_f8 __attribute__((vector_size(32)));

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_plus_wide(const dpari_stride_u4 *x, const dpari_stride_u4 *y, int32_t f64)
{
    return f64 ? (dpari_stride_u4)((dpari_stride_d4)*x + (dpari_stride_d4)*y)
               : (dpari_stride_u4)((dpari_stride_f8)*x + (dpari_stride_f8)*y);
}

/* Returns the sum of the vectors at t and f. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_met_wide(const unsigned char *t, const unsigned char *f, int32_t f64)
{
    dpari_stride_u4 x, y;
    dpari_stride_copy(&x, t, 32);
    dpari_stride_copy(&y, f, 32);
    return dpari_stride_plus_wide(&x, &y, f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_quiet_wide(const unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    const dpari_stride_u4 all = {quiet, quiet, quiet, quiet};
    const dpari_stride_u4 sum = dpari_stride_met_wide(t, f, 1);
    const dpari_stride_u4 bad = (dpari_stride_u4)((dpari_stride_d4)sum != (dpari_stride_d4)sum);
    return (sum & ~bad) | (all & bad);
}

#endif

/* Sets in `rows` the steps of the two innermost dims, and the memory that is set to 0. */
DPARI_STRIDE_INLINE void dpari_stride_steps(const dpari_stride *stride, dpari_stride_rows *rows)
{
    rows->to_step = stride->dim[0].to;
    rows->from_step = stride->dim[0].from;
    rows->to_row = stride->dim[1].to;
    rows->from_row = stride->dim[1].from;
    rows->run = stride->run;
    rows->zeroes = stride->beside != 0 || (stride->clear && dpari_stride_zeroes(stride->loop));
    if (stride->beside != 0) {
        rows->zero = rows->to + stride->beside;
        rows->zero_step = rows->to_step;
        rows->zero_row = rows->to_row;
    } else {
        rows->zero = dpari_stride_writable(rows->from);
        rows->zero_step = rows->from_step;
        rows->zero_row = rows->from_row;
    }
}

DPARI_STRIDE_INLINE int64_t dpari_stride_size(int64_t step)
{
    return step < 0 ? -step : step;
}

/* Lists of all loops of short copies and of sums. */
#define DPARI_STRIDE_COPIES(X)                                                                     \
    X(DPARI_STRIDE_1)                                                                              \
    X(DPARI_STRIDE_2)                                                                              \
    X(DPARI_STRIDE_TWO_2)                                                                          \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_TWO_4)                                                                          \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)                                                                         \
    X(DPARI_STRIDE_FOUR_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F32_2)                                                                      \
    X(DPARI_STRIDE_SUM_F32_3)                                                                      \
    X(DPARI_STRIDE_SUM_F32_4)                                                                      \
    X(DPARI_STRIDE_SUM_F64)                                                                        \
    X(DPARI_STRIDE_SUM_F64_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64_4)
#define DPARI_STRIDE_OTHER_SUMS(X)                                                                 \
    X(DPARI_STRIDE_SUM_F32_7)                                                                      \
    X(DPARI_STRIDE_SUM_F64_7)
#elif DPARI_STRIDE_ADDS
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F64)
#define DPARI_STRIDE_OTHER_SUMS(X)
#else
#define DPARI_STRIDE_SUMS(X)
#define DPARI_STRIDE_OTHER_SUMS(X)
#endif

#endif
