/* SPDX-License-Identifier: MIT-0 */
/* vectors - private: vectors of 32 bytes, in which the loops of training are written once. They are
 * compiled for AVX2 and for what the compiler assumes. */
#ifndef DPARI_HOST_VECTORS_H
#define DPARI_HOST_VECTORS_H

#include "../base/arith.h"
#include "kernel.h"

#if defined(__GNUC__) && (defined(__clang__) || __GNUC__ >= 9) && !defined(DPARI_NO_VECTOR) &&     \
    !(defined(__i386__) && !defined(__SSE2_MATH__))
#define DPARI_LANES_VECTOR 1
#else
#define DPARI_LANES_VECTOR 0
#endif

/* 1 if this is compiled for plain x86-64, so that the CPU may have vectors that the compiler does
 * not use, and is queried at run time. */
#if DPARI_LANES_VECTOR && defined(__x86_64__) && !defined(__AVX2__)
#define DPARI_LANES_ASKED 1
#else
#define DPARI_LANES_ASKED 0
#endif

/* 1 if some instructions are written in assembly. Clang does not need that. Without optimization,
 * gcc would keep the branch with instructions that the CPU may not have. */
#if defined(__x86_64__) && !defined(__clang__) && defined(__OPTIMIZE__)
#define DPARI_LANES_ASM 1
#else
#define DPARI_LANES_ASM 0
#endif

enum { DPARI_LANES_D = 16, DPARI_LANES_F = 8 }; /* chains of a sum in f64, and in f32 */

#if DPARI_LANES_VECTOR
#define DPARI_LANES_INLINE static DPARI_INLINED __attribute__((always_inline))
typedef double dpari_lanes_d4 __attribute__((vector_size(32)));
typedef float dpari_lanes_f8 __attribute__((vector_size(32)));
typedef float dpari_lanes_f4 __attribute__((vector_size(16)));
typedef float dpari_lanes_m4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint64_t dpari_lanes_u4 __attribute__((vector_size(32)));
typedef uint32_t dpari_lanes_u8 __attribute__((vector_size(32)));
typedef int32_t dpari_lanes_w4 __attribute__((vector_size(16)));
#if defined(__SSE2__) /* types of the builtins */
typedef short dpari_lanes_h8 __attribute__((vector_size(16)));
typedef char dpari_lanes_b16 __attribute__((vector_size(16)));
#endif
typedef int32_t dpari_lanes_i8 __attribute__((vector_size(32)));

#define dpari_lanes_get(to, from) __builtin_memcpy(to, from, sizeof *(to))
#define dpari_lanes_put(to, from) __builtin_memcpy(to, from, sizeof *(from))

/* A vector whose elements are all x. Functions get vectors by address, because targets without such
 * vectors cannot pass them by value in registers. */
#define DPARI_LANES_ALL4(x)                                                                        \
    {                                                                                              \
        x, x, x, x                                                                                 \
    }
#define DPARI_LANES_ALL8(x)                                                                        \
    {                                                                                              \
        x, x, x, x, x, x, x, x                                                                     \
    }

/* Converts a vector. In the functions for AVX2 (wide = 1) it is one instruction in assembly,
 * because gcc would emit five. */
#if DPARI_LANES_ASM
#define DPARI_LANES_CONVERT(wide, instruction, to, from, type)                                     \
    do {                                                                                           \
        if (wide) {                                                                                \
            __asm__(instruction " %1, %0" : "=x"(to) : "xm"(from));                                \
        } else {                                                                                   \
            (to) = __builtin_convertvector(from, type);                                            \
        }                                                                                          \
    } while (0)
#else
#define DPARI_LANES_CONVERT(wide, instruction, to, from, type)                                     \
    ((void)(wide), (to) = __builtin_convertvector(from, type))
#endif
#endif

#endif
