/* SPDX-License-Identifier: MIT-0 */
/* gpt_loops - the loops of gpt_host.h, compiled for each width of vectors that a CPU may have.
 * gpt_products.h (matrix products) and gpt_rows.h (norms, activations, softmax) contain the loops.
 * They are included below once per width in bytes: 64 (AVX-512) and 32 (AVX2) on x86-64, and the 16
 * that every target of GCC and clang has. Other compilers, and GPT_SCALAR, get plain loops, whose
 * width is 0. gpt_loops_here chooses when the program runs, so a program that is compiled with -O2
 * for any x86-64 is as fast as one that is compiled for this CPU.
 *
 * A sum may differ in its last bits between widths, because wider CPUs also fuse products and sums.
 * On one machine every call uses the same width. */
#ifndef GPT_LOOPS_H
#define GPT_LOOPS_H

/* The loops of one width. gpt_products.h and gpt_rows.h describe each. */
typedef struct gpt_loops {
    void (*product)(const dpar_matmul *product);
    void (*add)(int64_t n, const gpt_real *a, const gpt_real *b, gpt_real *to);
    void (*activate)(int64_t n, const gpt_real *gate, const gpt_real *up, gpt_real *act);
    void (*activate_back)(int64_t n, const gpt_real *gate, const gpt_real *up, const gpt_real *dact,
                          gpt_real *dgate, gpt_real *dup);
    void (*norm)(int64_t n, int centred, const gpt_real *x, const gpt_real *scale,
                 const gpt_real *bias, double *stat, gpt_real *to);
    void (*norm_back)(int64_t rows, int64_t n, int centred, const gpt_real *x,
                      const gpt_real *scale, const double *stat, const gpt_real *dh,
                      const gpt_real *add, gpt_real *dx, double *sum);
    double (*softmax)(int64_t n, gpt_real *x);
    void (*exps)(int64_t n, gpt_real less, gpt_real *x);
    void (*slope)(int64_t n, gpt_real less, const gpt_real *p, gpt_real *x);
} gpt_loops;

#ifdef __GNUC__
#define GPT_INLINE static inline __attribute__((always_inline))
#else
#define GPT_INLINE static inline
#endif

/* Unrolls a loop of a constant number of rounds, so that its arrays of vectors are registers. */
#if defined(__clang__)
#define GPT_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define GPT_UNROLL _Pragma("GCC unroll 32")
#else
#define GPT_UNROLL
#endif

/* The names of this width's types and functions: GPT_NAME(x) is x_64 for vectors of 64 bytes. */
#define GPT_JOIN(name, bytes) name##_##bytes
#define GPT_NAME_OF(name, bytes) GPT_JOIN(name, bytes)
#define GPT_NAME(name) GPT_NAME_OF(name, GPT_BYTES)

/* GPT_ROWS_OF_TILE: see gpt_products.h. With GPT_LANES_OF_TILE vectors each, AVX-512 has registers
 * for 8 rows, and AVX2, which has half as many, for 6. */
#define GPT_LANES_OF_TILE 2
#if defined(__GNUC__) && defined(__x86_64__) && !defined(GPT_SCALAR)
#define GPT_WIDE 1
#define GPT_BYTES 64
#define GPT_TARGET __attribute__((target("avx512f")))
#define GPT_ROWS_OF_TILE 8
#include "gpt_products.h"
#include "gpt_rows.h"
#undef GPT_BYTES
#undef GPT_TARGET
#undef GPT_ROWS_OF_TILE
#define GPT_BYTES 32
#define GPT_TARGET __attribute__((target("avx2,fma")))
#define GPT_ROWS_OF_TILE 6
#include "gpt_products.h"
#include "gpt_rows.h"
#undef GPT_BYTES
#undef GPT_TARGET
#undef GPT_ROWS_OF_TILE
#else
#define GPT_WIDE 0
#endif

#if defined(__GNUC__) && !defined(GPT_SCALAR)
#define GPT_BYTES 16
#else
#define GPT_BYTES 0
#endif
#define GPT_TARGET
#if defined(__aarch64__)
#define GPT_ROWS_OF_TILE 8
#else
#define GPT_ROWS_OF_TILE 4
#endif
#include "gpt_products.h"
#include "gpt_rows.h"

/* The loops for vectors of `bytes`, or NULL if this CPU or compiler does not have such. */
static inline const gpt_loops *gpt_loops_of(int bytes)
{
#if GPT_WIDE
    if (bytes == 64) {
        return __builtin_cpu_supports("avx512f") ? &gpt_loops_64 : NULL;
    }
    if (bytes == 32) {
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &gpt_loops_32
                                                                               : NULL;
    }
#endif
    return bytes == GPT_BYTES ? &GPT_NAME(gpt_loops) : NULL;
}

/* The loops for the widest vectors of this CPU. */
static inline const gpt_loops *gpt_loops_here(void)
{
    const gpt_loops *loops = gpt_loops_of(64);
    if (loops == NULL) {
        loops = gpt_loops_of(32);
    }
    return loops != NULL ? loops : &GPT_NAME(gpt_loops);
}

#endif
