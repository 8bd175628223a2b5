/* SPDX-License-Identifier: MIT-0 */
/* Implements the loops over memory: copy, fill, convert, reduce and scale.
 *
 * The cost of a collective is to read every input and write every output once, and these loops come
 * close to the bandwidth of the memory. There is one loop for each type and operation, in plain C
 * or in vector types of the compiler. Conversions are also compiled for vectors of 32 bytes, which
 * are used if the CPU has them. Large copies may use streaming stores, which bypass the caches.
 * Called by the collectives and messages of comm, by moves, points and the strategies of
 * dpar_train.h, and by the other modules of host. */
#include "kernel.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "cpu.h"

/* x87 rounds when it stores, not when it adds. With x87, or without vector types, the loops over
 * elements further below are used. */
#if defined(__GNUC__) && !defined(DPARI_NO_VECTOR) &&                                              \
    !(defined(__i386__) && !defined(__SSE2_MATH__))
#define DPARI_KERN_VECTOR 1
#else
#define DPARI_KERN_VECTOR 0
#endif

#if DPARI_KERN_VECTOR && defined(__SSE2__)
#define DPARI_KERN_STREAM 1
#else
#define DPARI_KERN_STREAM 0
#endif

/* In bytes: a cache line, and how far ahead of a read memory is prefetched into the first-level and
 * the second-level cache. */
enum { DPARI_KERN_LINE = 64, DPARI_KERN_AHEAD = 1024, DPARI_KERN_FAR_AHEAD = 2048 };

#if defined(__GNUC__)
#define dpari_kern_move(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#else
static void dpari_kern_move(void *to, const void *from, int64_t bytes)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    int64_t i;
    for (i = 0; i < bytes; i++) {
        t[i] = f[i];
    }
}
#endif

/* The arguments of a reduction. Bytes [at, end) of the arrays are whole cache lines. */
typedef struct dpari_kern_job {
    void *const *out;
    const void *const *in;
    int64_t bytes, at, end;
    int32_t outs, ins, type, op, stream;
} dpari_kern_job;

/* The types of integers, with the vectors in which sums and products wrap and in which elements are
 * compared, the type of an element, and that of a quotient by a number of inputs. */
#define DPARI_KERN_INTS(X)                                                                         \
    X(DPAR_I8, dpari_kern_u16, dpari_kern_i16, int8_t, int32_t)                                    \
    X(DPAR_U8, dpari_kern_u16, dpari_kern_u16, uint8_t, int32_t)                                   \
    X(DPAR_I32, dpari_kern_u4, dpari_kern_i4, int32_t, int32_t)                                    \
    X(DPAR_U32, dpari_kern_u4, dpari_kern_u4, uint32_t, uint32_t)                                  \
    X(DPAR_I64, dpari_kern_u2, dpari_kern_i2, int64_t, int64_t)                                    \
    X(DPAR_U64, dpari_kern_u2, dpari_kern_u2, uint64_t, uint64_t)

#if DPARI_KERN_VECTOR

#define DPARI_KERN_INLINE static DPARI_INLINED __attribute__((always_inline))

typedef float dpari_kern_f4 __attribute__((vector_size(16)));
typedef double dpari_kern_d2 __attribute__((vector_size(16)));
typedef int8_t dpari_kern_i16 __attribute__((vector_size(16)));
typedef uint8_t dpari_kern_u16 __attribute__((vector_size(16)));
typedef int32_t dpari_kern_i4 __attribute__((vector_size(16)));
typedef uint32_t dpari_kern_u4 __attribute__((vector_size(16)));
typedef int64_t dpari_kern_i2 __attribute__((vector_size(16)));
typedef uint64_t dpari_kern_u2 __attribute__((vector_size(16)));

/* The unit of a reduction: a line of memory, or half a line of 16-bit elements converted to f32. */
typedef struct dpari_kern_quad {
    dpari_kern_u4 v[4];
} dpari_kern_quad;

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_get(const unsigned char *from)
{
    dpari_kern_u4 v;
    __builtin_memcpy(&v, from, 16);
    return v;
}

/* Returns a where `mask` is set, and b elsewhere. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_pick(dpari_kern_u4 mask, dpari_kern_u4 a,
                                                dpari_kern_u4 b)
{
    return (a & mask) | (b & ~mask);
}

/* True if any bit of a mask of whole elements is set. The compiler assumes that this is unlikely,
 * so the code behind it may be slow. */
DPARI_KERN_INLINE int dpari_kern_some(dpari_kern_u4 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_kern_f4)mask) != 0, 0) != 0;
#else
    const dpari_kern_u2 m = (dpari_kern_u2)mask;
    return __builtin_expect((m[0] | m[1]) != 0, 0) != 0;
#endif
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_all(uint32_t x)
{
    const dpari_kern_u4 v = {x, x, x, x};
    return v;
}

/* Converts the f16 in the high half of each word to f32. Exponents move from bias 15 to 127, and
 * twice as far for infinity and NaN. Subnormals get the exponent of 2^-14, which is then subtracted
 * again. This is exact, and no f32 is subnormal, so no mode of the floating-point unit matters. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_widen_f16(dpari_kern_u4 half)
{
    const dpari_kern_u4 size = (half >> 3) & 0x0fffe000u;
    const dpari_kern_u4 top = (dpari_kern_u4)((dpari_kern_i4)size > 0x0f7fffff);
    const dpari_kern_u4 under = (dpari_kern_u4)((dpari_kern_i4)size < 0x00800000);
    const dpari_kern_u4 moved = size + 0x38000000u + (top & 0x38000000u) + (under & 0x00800000u);
    const dpari_kern_f4 less = (dpari_kern_f4)(under & 0x38800000u);
    return (dpari_kern_u4)((dpari_kern_f4)moved - less) | (half & 0x80000000u);
}

/* Converts f32 below 65536 to f16 in the low half of each word, to nearest even. Adding 2^13 times
 * the power of two below the value (at least 2^-14) leaves the rounded digits in the last bits of
 * the sum. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_f16(dpari_kern_u4 x)
{
    const dpari_kern_u4 size = x & 0x7fffffffu, exponent = size & 0x7f800000u;
    const dpari_kern_u4 normal = (dpari_kern_u4)((dpari_kern_i4)exponent > 0x38800000);
    const dpari_kern_u4 above = (exponent - 0x38800000u) & normal;
    const dpari_kern_u4 shifter = above + 0x3f000000u;
    const dpari_kern_u4 sum = (dpari_kern_u4)((dpari_kern_f4)size + (dpari_kern_f4)shifter);
    return (sum - shifter + (above >> 13)) | ((x ^ size) >> 16);
}

/* Does the same for values that may be too large, infinite or NaN. 0x477fffff is the largest f32
 * below 65536. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_any_f16(dpari_kern_u4 x)
{
    const dpari_kern_u4 size = x & 0x7fffffffu;
    const dpari_kern_u4 nan = (dpari_kern_u4)((dpari_kern_i4)size > 0x7f800000);
    const dpari_kern_u4 over = (dpari_kern_u4)((dpari_kern_i4)size > 0x477fffff);
    const dpari_kern_u4 top = (((x >> 16) & 0x8000u & ~nan) | (nan & 0x200u)) + 0x7c00u;
    return dpari_kern_pick(over, top, dpari_kern_narrow_f16(x));
}

/* Converts f32 to bf16 in the high half of each word, to nearest even. The low half is undefined.
 */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_bf16(dpari_kern_u4 x)
{
    return x + 0x7fffu + ((x >> 16) & 1u);
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_any_bf16(dpari_kern_u4 x)
{
    const dpari_kern_u4 nan = (dpari_kern_u4)((dpari_kern_i4)(x & 0x7fffffffu) > 0x7f800000);
    return dpari_kern_pick(nan, dpari_kern_all(0x7fc00000u), dpari_kern_narrow_bf16(x));
}

/* These do the same, but are not inlined, because a loop seldom needs them and would otherwise
 * contain them many times. */
DPARI_STATIC_NOINLINE dpari_kern_u4 dpari_kern_narrow_rare_f16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_any_f16(x);
}

DPARI_STATIC_NOINLINE dpari_kern_u4 dpari_kern_narrow_rare_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_any_bf16(x);
}

/* Converts eight 16-bit elements to f32: those in the low halves of words, and those in the high
 * halves. This needs no shuffles and does not depend on the byte order. */
DPARI_KERN_INLINE void dpari_kern_widen(dpari_kern_u4 raw, int32_t type, dpari_kern_u4 *low,
                                        dpari_kern_u4 *high)
{
    if (type == DPAR_BF16) {
        *low = raw << 16;
        *high = raw & 0xffff0000u;
    } else {
        *low = dpari_kern_widen_f16(raw << 16);
        *high = dpari_kern_widen_f16(raw);
    }
}

/* Converts them back. For bf16 only NaN needs special care, and the sum of both numbers is NaN if
 * one of them is. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow(dpari_kern_u4 low, dpari_kern_u4 high,
                                                  int32_t type)
{
    if (type == DPAR_BF16) {
        const dpari_kern_f4 sum = (dpari_kern_f4)low + (dpari_kern_f4)high;
        if (dpari_kern_some((dpari_kern_u4)(sum != sum))) {
            low = dpari_kern_narrow_rare_bf16(low);
            high = dpari_kern_narrow_rare_bf16(high);
        } else {
            low = dpari_kern_narrow_bf16(low);
            high = dpari_kern_narrow_bf16(high);
        }
        return (low >> 16) | (high & 0xffff0000u);
    }
    if (dpari_kern_some((dpari_kern_u4)((dpari_kern_i4)(low & 0x7fffffffu) > 0x477fffff) |
                        (dpari_kern_u4)((dpari_kern_i4)(high & 0x7fffffffu) > 0x477fffff))) {
        return dpari_kern_narrow_rare_f16(low) | (dpari_kern_narrow_rare_f16(high) << 16);
    }
    return dpari_kern_narrow_f16(low) | (dpari_kern_narrow_f16(high) << 16);
}

DPARI_KERN_INLINE int dpari_kern_is16(int32_t type)
{
    return type == DPAR_BF16 || type == DPAR_F16;
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_f16(dpari_kern_u4 x)
{
    return dpari_kern_widen_f16(dpari_kern_narrow_any_f16(x) << 16);
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_bf16(x) & 0xffff0000u;
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_any_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_any_bf16(x) & 0xffff0000u;
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_rare_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_rare_bf16(x) & 0xffff0000u;
}

/* Rounds f32 to values that bf16 has. The sum of four numbers is NaN if one of them is. */
DPARI_KERN_INLINE void dpari_kern_round(dpari_kern_quad *x)
{
    const dpari_kern_f4 sum = ((dpari_kern_f4)x->v[0] + (dpari_kern_f4)x->v[1]) +
                              ((dpari_kern_f4)x->v[2] + (dpari_kern_f4)x->v[3]);
    if (dpari_kern_some((dpari_kern_u4)(sum != sum))) {
        DPARI_FOUR(x->v[q] = dpari_kern_round_rare_bf16(x->v[q]));
    } else {
        DPARI_FOUR(x->v[q] = dpari_kern_round_bf16(x->v[q]));
    }
}

/* Loads elements and converts them to the type in which they are accumulated. */
DPARI_KERN_INLINE void dpari_kern_load(dpari_kern_quad *x, const unsigned char *from, int32_t type)
{
    if (dpari_kern_is16(type)) {
        dpari_kern_widen(dpari_kern_get(from), type, &x->v[0], &x->v[1]);
        dpari_kern_widen(dpari_kern_get(from + 16), type, &x->v[2], &x->v[3]);
    } else {
        DPARI_FOUR(x->v[q] = dpari_kern_get(from + 16 * q));
        if (type == DPARI_KERN_THROUGH(DPAR_BF16)) {
            dpari_kern_round(x);
        }
    }
}

/* Returns x + y for floats. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_plus(dpari_kern_u4 x, dpari_kern_u4 y, int32_t type)
{
    return type == DPAR_F64 ? (dpari_kern_u4)((dpari_kern_d2)x + (dpari_kern_d2)y)
                            : (dpari_kern_u4)((dpari_kern_f4)x + (dpari_kern_f4)y);
}

DPARI_KERN_INLINE void dpari_kern_add(dpari_kern_quad *x, const dpari_kern_quad *y, int32_t type)
{
    DPARI_FOUR(x->v[q] = dpari_kern_plus(x->v[q], y->v[q], type));
}

/* A mask of the elements that are NaN, in F64 or F32. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_nan(dpari_kern_u4 x, int32_t type)
{
    return type == DPAR_F64 ? (dpari_kern_u4)((dpari_kern_d2)x != (dpari_kern_d2)x)
                            : (dpari_kern_u4)((dpari_kern_f4)x != (dpari_kern_f4)x);
}

/* Replaces each NaN by the same one. Which of two NaN a sum returns depends on the order of the
 * operands of an instruction, which compilers choose freely. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_quiet(dpari_kern_u4 x, int32_t type)
{
    const dpari_kern_u2 f64 = {UINT64_C(0x7ff8) << 48, UINT64_C(0x7ff8) << 48};
    return dpari_kern_pick(dpari_kern_nan(x, type),
                           type == DPAR_F64 ? (dpari_kern_u4)f64 : dpari_kern_all(0x7fc00000u), x);
}

/* Does that for a line. The sum of four numbers is NaN if one of them is. If only infinities or an
 * overflow make it NaN, no element changes. */
DPARI_KERN_INLINE void dpari_kern_one_nan(dpari_kern_quad *x, int32_t type)
{
    const dpari_kern_u4 sum = dpari_kern_plus(dpari_kern_plus(x->v[0], x->v[1], type),
                                              dpari_kern_plus(x->v[2], x->v[3], type), type);
    if (dpari_kern_some(dpari_kern_nan(sum, type))) {
        DPARI_FOUR(x->v[q] = dpari_kern_quiet(x->v[q], type));
    }
}

/* Return x / n and x * n for floats. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_over(dpari_kern_u4 x, int32_t type, int32_t n)
{
    const float nf = (float)n;
    const double nd = n;
    const dpari_kern_f4 f = {nf, nf, nf, nf};
    const dpari_kern_d2 d = {nd, nd};
    return type == DPAR_F64 ? (dpari_kern_u4)((dpari_kern_d2)x / d)
                            : (dpari_kern_u4)((dpari_kern_f4)x / f);
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_times(dpari_kern_u4 x, float n)
{
    const dpari_kern_f4 f = {n, n, n, n};
    return (dpari_kern_u4)((dpari_kern_f4)x * f);
}

/* Stores 16 bytes without using the cache. `to` is aligned to 16. */
DPARI_KERN_INLINE void dpari_kern_past(unsigned char *to, dpari_kern_u4 v)
{
#if !DPARI_KERN_STREAM
    __builtin_memcpy(to, &v, 16);
#elif defined(__clang__)
    __builtin_nontemporal_store(v, (dpari_kern_u4 *)(void *)to);
#else
    __builtin_ia32_movntps((float *)(void *)to, (dpari_kern_f4)v);
#endif
}

/* Orders streaming stores before later stores, which only a fence does. */
static void dpari_kern_fence(void)
{
#if DPARI_KERN_STREAM
    __asm__ __volatile__("sfence" : : : "memory");
#endif
}

DPARI_KERN_INLINE void dpari_kern_store(unsigned char *to, const dpari_kern_quad *x, int32_t stream)
{
    if (stream && ((uintptr_t)to & 15) == 0) {
        DPARI_FOUR(dpari_kern_past(to + 16 * q, x->v[q]));
    } else {
        DPARI_FOUR(__builtin_memcpy(to + 16 * q, &x->v[q], 16));
    }
}

/* Prefetches. The address may be past the array, because a prefetch never faults. It is computed as
 * a number, because a pointer out of bounds would be undefined. */
DPARI_KERN_INLINE void dpari_kern_ahead(const unsigned char *from)
{
    __builtin_prefetch((const void *)((uintptr_t)from + DPARI_KERN_AHEAD));
}

/* Prefetches memory that will be written, because stores wait for their lines one after the other.
 * left: the bytes from `to` to the end. Lines after it may be those that another core writes. */
DPARI_KERN_INLINE void dpari_kern_ahead_to(const void *to, int64_t left)
{
    const unsigned char *line = (const unsigned char *)to + DPARI_KERN_AHEAD;
    if (left > DPARI_KERN_AHEAD) {
#if defined(__x86_64__) /* the builtin would prefetch the line for reading */
        __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
        __builtin_prefetch(line, 1);
#endif
    }
}

/* Divides accumulators by divide_by, unless it is 0, multiplies those of f16 by `times`, and
 * converts them to the type that is stored. */
DPARI_KERN_INLINE void dpari_kern_finish(dpari_kern_quad *x, int32_t type, int32_t divide_by,
                                         float times)
{
    if (divide_by > 0) {
        DPARI_FOUR(x->v[q] = dpari_kern_over(x->v[q], type, divide_by));
    }
    if (type == DPAR_F16) {
        DPARI_FOUR(x->v[q] = dpari_kern_times(x->v[q], times));
    }
    if (type == DPAR_F32 || type == DPAR_F64) {
        dpari_kern_one_nan(x, type);
    } else if (type == DPARI_KERN_THROUGH(DPAR_BF16)) {
        dpari_kern_round(x);
    } else if (dpari_kern_is16(type)) {
        x->v[0] = dpari_kern_narrow(x->v[0], x->v[1], type);
        x->v[1] = dpari_kern_narrow(x->v[2], x->v[3], type);
    }
}

DPARI_KERN_INLINE const unsigned char *dpari_kern_at(const void *in, int64_t at)
{
    const unsigned char *from = (const unsigned char *)in + at;
    dpari_kern_ahead(from);
    return from;
}

/* Sums the lines of [at, end), all of them whole. It is inlined with constant arguments where that
 * makes it faster. A line of 16-bit elements is two quads, which a core can work on at the same
 * time. */
DPARI_KERN_INLINE void dpari_kern_sum(void *const *out, int32_t outs, const void *const *in,
                                      int32_t ins, const dpari_kern_job *job, int32_t type)
{
    const int32_t average = job->op == DPAR_AVG, stream = job->stream;
    const int32_t two = dpari_kern_is16(type);
    /* for a power of two a product gives the same bits as a division, and without a branch the sums
     * stay in registers */
    const int32_t product = type == DPAR_F16 && (ins & (ins - 1)) == 0;
    const int32_t divide_by = average && !product ? ins : 0;
    const float times = average && product ? 1 / (float)ins : 1;
    const int64_t end = job->end;
    int64_t at;
    int32_t i;
    for (at = job->at; at < end; at += DPARI_KERN_LINE) {
        const unsigned char *from = dpari_kern_at(in[0], at);
        dpari_kern_quad x, high, y;
        dpari_kern_load(&x, from, type);
        if (two) {
            dpari_kern_load(&high, from + 32, type);
        }
        for (i = 1; i < ins; i++) {
            from = dpari_kern_at(in[i], at);
            dpari_kern_load(&y, from, type);
            dpari_kern_add(&x, &y, type);
            if (two) {
                dpari_kern_load(&y, from + 32, type);
                dpari_kern_add(&high, &y, type);
            }
        }
        dpari_kern_finish(&x, type, divide_by, times);
        if (two) {
            dpari_kern_finish(&high, type, divide_by, times);
            x.v[2] = high.v[0];
            x.v[3] = high.v[1];
        }
        if (two && !stream) {
            dpari_kern_ahead_to((const unsigned char *)out[0] + at, end - at);
        }
        dpari_kern_store((unsigned char *)out[0] + at, &x, stream);
        for (i = 1; i < outs; i++) {
            dpari_kern_store((unsigned char *)out[i] + at, &x, stream);
        }
    }
}

/* ---- any type and operation, block by block: one loop for each ---- */

enum { DPARI_KERN_BLOCK = 32 }; /* vectors, few enough to stay in the first-level cache */

/* Returns n vectors of accumulators for the memory at `from`: converted into `room`, or `from`
 * itself if no conversion is needed. */
static const unsigned char *dpari_kern_load_any(dpari_kern_u4 *room, const unsigned char *from,
                                                int32_t n, int32_t type)
{
    int32_t k;
    if (type == DPAR_BF16) {
        for (k = 0; k < n; k += 2) {
            dpari_kern_widen(dpari_kern_get(from + 8 * k), DPAR_BF16, &room[k], &room[k + 1]);
        }
    } else if (type == DPAR_F16) {
        for (k = 0; k < n; k += 2) {
            dpari_kern_widen(dpari_kern_get(from + 8 * k), DPAR_F16, &room[k], &room[k + 1]);
        }
    } else if (type == DPARI_KERN_THROUGH(DPAR_BF16)) {
        for (k = 0; k < n; k++) {
            room[k] = dpari_kern_round_any_bf16(dpari_kern_get(from + 16 * k));
        }
    } else if (type == DPARI_KERN_THROUGH(DPAR_F16)) {
        for (k = 0; k < n; k++) {
            room[k] = dpari_kern_round_f16(dpari_kern_get(from + 16 * k));
        }
    } else {
        return from;
    }
    return (const unsigned char *)room;
}

/* Computes to = x op y for n vectors; `to` may be x. s and t are the vectors of x and y. */
#define DPARI_KERN_EACH(VECTOR, RESULT)                                                            \
    for (k = 0; k < n; k++) {                                                                      \
        const VECTOR s = (VECTOR)dpari_kern_get(x + 16 * k);                                       \
        const VECTOR t = (VECTOR)dpari_kern_get(y + 16 * k);                                       \
        to[k] = (dpari_kern_u4)(RESULT);                                                           \
    }

/* Returns s where `above` is greater than `below` (x and y, or y and x) or s is NaN, otherwise t.
 */
#define DPARI_KERN_BEYOND(VECTOR)                                                                  \
    DPARI_KERN_EACH(VECTOR,                                                                        \
                    dpari_kern_pick((dpari_kern_u4)((VECTOR)dpari_kern_get(above + 16 * k) >       \
                                                    (VECTOR)dpari_kern_get(below + 16 * k)) |      \
                                        (dpari_kern_u4)(s != s),                                   \
                                    (dpari_kern_u4)s, (dpari_kern_u4)t))

/* Defines a case of the switch below. */
#define DPARI_KERN_MEET(kind, wraps, compares, one, quotient)                                      \
    case kind:                                                                                     \
        if (op == DPAR_MAX || op == DPAR_MIN) {                                                    \
            DPARI_KERN_BEYOND(compares)                                                            \
        } else if (op == DPAR_PRODUCT) {                                                           \
            DPARI_KERN_EACH(wraps, s *t)                                                           \
        } else {                                                                                   \
            DPARI_KERN_EACH(wraps, s + t)                                                          \
        }                                                                                          \
        break;

static void dpari_kern_meet_any(dpari_kern_u4 *to, const unsigned char *x, const unsigned char *y,
                                int32_t n, int32_t type, int32_t op)
{
    const unsigned char *above = op == DPAR_MAX ? x : y;
    const unsigned char *below = op == DPAR_MAX ? y : x;
    int32_t k;
    switch (type < DPAR_TYPE_COUNT && !dpari_kern_is16(type) ? type : DPAR_F32) {
        DPARI_KERN_INTS(DPARI_KERN_MEET)
        DPARI_KERN_MEET(DPAR_F64, dpari_kern_d2, dpari_kern_d2, double, double)
        DPARI_KERN_MEET(DPAR_F32, dpari_kern_f4, dpari_kern_f4, float, float)
    default: break;
    }
}

/* Defines a case that divides integers one by one, because compilers have no better method. */
#define DPARI_KERN_DIVIDE(kind, wraps, compares, one, quotient)                                    \
    case kind:                                                                                     \
        for (k = 0; k < n * (int32_t)(16 / sizeof(one)); k++) {                                    \
            one each;                                                                              \
            __builtin_memcpy(&each, (unsigned char *)x + k * (int32_t)sizeof each, sizeof each);   \
            each = (one)((quotient)each / (quotient)by);                                           \
            __builtin_memcpy((unsigned char *)x + k * (int32_t)sizeof each, &each, sizeof each);   \
        }                                                                                          \
        break;

/* Computes x = x / by. by is >= 1, so that nothing overflows. */
static void dpari_kern_divide_any(dpari_kern_u4 *x, int32_t n, int32_t type, int32_t by)
{
    int32_t k;
    switch (type) {
        DPARI_KERN_INTS(DPARI_KERN_DIVIDE)
    default:
        for (k = 0; k < n; k++) {
            x[k] = dpari_kern_over(x[k], type, by);
        }
        break;
    }
}

/* Converts accumulators to the type that is stored. */
static void dpari_kern_finish_any(dpari_kern_u4 *x, int32_t n, int32_t type)
{
    int32_t k;
    switch (type) {
    case DPAR_F64:
        for (k = 0; k < n; k++) {
            x[k] = dpari_kern_quiet(x[k], DPAR_F64);
        }
        break;
    case DPAR_F32:
        for (k = 0; k < n; k++) {
            x[k] = dpari_kern_quiet(x[k], DPAR_F32);
        }
        break;
    case DPAR_BF16:
        for (k = 0; k < n; k += 2) {
            x[k / 2] = dpari_kern_narrow(x[k], x[k + 1], DPAR_BF16);
        }
        break;
    case DPAR_F16:
        for (k = 0; k < n; k += 2) {
            x[k / 2] = dpari_kern_narrow(x[k], x[k + 1], DPAR_F16);
        }
        break;
    default:
        if (type >= DPAR_TYPE_COUNT) {
            (void)dpari_kern_load_any(x, (const unsigned char *)x, n, type);
        }
        break;
    }
}

static void dpari_kern_store_any(unsigned char *to, const dpari_kern_u4 *x, int64_t bytes,
                                 int32_t stream)
{
    int64_t at = 0;
    if (stream && ((uintptr_t)to & 15) == 0) {
        for (; bytes - at >= 16; at += 16) {
            dpari_kern_past(to + at, x[at / 16]);
        }
    }
    __builtin_memcpy(to + at, (const unsigned char *)x + at, (size_t)(bytes - at));
}

/* Reduces bytes [at, end) of the arrays, of any type and operation. */
DPARI_STATIC_NOINLINE void dpari_kern_any(const dpari_kern_job *job, int64_t at, int64_t end)
{
    const int32_t wide = dpari_kern_is16(job->type) ? 2 : 1;
    dpari_kern_u4 x[DPARI_KERN_BLOCK], y[DPARI_KERN_BLOCK], spare[2][DPARI_KERN_BLOCK];
    int64_t bytes, ask;
    int32_t i;
    for (; at < end; at += bytes) {
        const unsigned char *sum = NULL;
        int32_t n;
        bytes = dpari_least(end - at, 16 * DPARI_KERN_BLOCK / wide);
        n = wide * (int32_t)((bytes + 15) / 16);
        for (i = 0; i < job->ins; i++) {
            const unsigned char *from = (const unsigned char *)job->in[i] + at;
            for (ask = 0; ask < bytes; ask += DPARI_KERN_LINE) {
                dpari_kern_ahead(from + ask);
            }
            if (bytes % 16 != 0) {
                spare[i > 0][bytes / 16] = dpari_kern_all(0);
                from = (const unsigned char *)__builtin_memcpy(spare[i > 0], from, (size_t)bytes);
            }
            from = dpari_kern_load_any(i == 0 ? x : y, from, n, job->type);
            if (i > 0) {
                dpari_kern_meet_any(x, sum, from, n, job->type, job->op);
                from = (const unsigned char *)x;
            }
            sum = from;
        }
        if (job->ins == 1 && sum != (const unsigned char *)x) {
            __builtin_memcpy(x, sum, (size_t)(16 * n));
        }
        if (job->op == DPAR_AVG) {
            dpari_kern_divide_any(x, n, job->type, job->ins);
        }
        dpari_kern_finish_any(x, n, job->type);
        for (i = 0; i < job->outs; i++) {
            dpari_kern_store_any((unsigned char *)job->out[i] + at, x, bytes, job->stream);
        }
    }
}

/* ---- sums of gradients, for which training waits ---- */

DPARI_KERN_INLINE void dpari_kern_sum_many(const dpari_kern_job *job, int32_t type)
{
    dpari_kern_sum(job->out, job->outs, job->in, job->ins, job, type);
}

/* Sums two inputs, whose pointers stay in registers. */
DPARI_KERN_INLINE void dpari_kern_sum_two(const dpari_kern_job *job, int32_t outs, int32_t type)
{
    const void *in[2];
    void *out[2];
    in[0] = job->in[0];
    in[1] = job->in[1];
    out[0] = job->out[0];
    out[1] = job->out[job->outs - 1];
    dpari_kern_sum(out, outs, in, 2, job, type);
}

/* The fewer instructions an element needs, the more constant arguments help. For f32 and f64 the
 * numbers of inputs and of outputs are constant (otherwise 26 % slower in the first-level cache),
 * for f32 through bf16 none (6 %), and for bf16 and f16 none, because two long arrays use vectors
 * of 32 bytes if the CPU has them. There is no loop for f32 through f16, because block
 * by block it takes only 8 % longer. */
#define DPARI_KERN_SUMS(name, type)                                                                \
    DPARI_STATIC_NOINLINE void name(const dpari_kern_job *job)                                     \
    {                                                                                              \
        if (job->ins != 2 || job->outs > 2) {                                                      \
            dpari_kern_sum_many(job, type);                                                        \
        } else if (job->outs == 2) {                                                               \
            dpari_kern_sum_two(job, 2, type);                                                      \
        } else {                                                                                   \
            dpari_kern_sum_two(job, 1, type);                                                      \
        }                                                                                          \
    }
DPARI_KERN_SUMS(dpari_kern_sum_f32, DPAR_F32)
DPARI_KERN_SUMS(dpari_kern_sum_f64, DPAR_F64)

DPARI_STATIC_NOINLINE void dpari_kern_sum_bf16(const dpari_kern_job *job)
{
    dpari_kern_sum_many(job, DPAR_BF16);
}

DPARI_STATIC_NOINLINE void dpari_kern_sum_through_bf16(const dpari_kern_job *job)
{
    dpari_kern_sum_many(job, DPARI_KERN_THROUGH(DPAR_BF16));
}

DPARI_STATIC_NOINLINE void dpari_kern_sum_f16(const dpari_kern_job *job)
{
    dpari_kern_sum_many(job, DPAR_F16);
}

/* ---- MAX and MIN, which are NaN if one input is ---- */

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_choose(dpari_kern_u4 s, dpari_kern_u4 t, int32_t type,
                                                  int32_t most)
{
    const dpari_kern_u4 above = most ? s : t;
    const dpari_kern_u4 below = most ? t : s;
    dpari_kern_u4 more = (dpari_kern_u4)((dpari_kern_i4)above > (dpari_kern_i4)below);
    if (type == DPAR_F32) {
        more = (dpari_kern_u4)((dpari_kern_f4)above > (dpari_kern_f4)below);
    } else if (type == DPAR_F64) {
        more = (dpari_kern_u4)((dpari_kern_d2)above > (dpari_kern_d2)below);
    }
    return dpari_kern_pick(type == DPAR_I32 ? more : more | dpari_kern_nan(s, type), s, t);
}

DPARI_KERN_INLINE void dpari_kern_most(const dpari_kern_job *job, int32_t type, int32_t most)
{
    int64_t at;
    int32_t i;
    for (at = job->at; at < job->end; at += DPARI_KERN_LINE) {
        dpari_kern_quad x, y;
        dpari_kern_load(&x, dpari_kern_at(job->in[0], at), type);
        for (i = 1; i < job->ins; i++) {
            dpari_kern_load(&y, dpari_kern_at(job->in[i], at), type);
            DPARI_FOUR(x.v[q] = dpari_kern_choose(x.v[q], y.v[q], type, most));
        }
        dpari_kern_finish(&x, type, 0, 1.0f);
        for (i = 0; i < job->outs; i++) {
            dpari_kern_store((unsigned char *)job->out[i] + at, &x, job->stream);
        }
    }
}

#define DPARI_KERN_MOST(name, type)                                                                \
    DPARI_STATIC_NOINLINE void name(const dpari_kern_job *job)                                     \
    {                                                                                              \
        if (job->op == DPAR_MAX) {                                                                 \
            dpari_kern_most(job, type, 1);                                                         \
        } else {                                                                                   \
            dpari_kern_most(job, type, 0);                                                         \
        }                                                                                          \
    }
DPARI_KERN_MOST(dpari_kern_most_f32, DPAR_F32)
DPARI_KERN_MOST(dpari_kern_most_f64, DPAR_F64)
DPARI_KERN_MOST(dpari_kern_most_i32, DPAR_I32)

static int dpari_kern_whole_most(const dpari_kern_job *job)
{
    switch (job->op == DPAR_MAX || job->op == DPAR_MIN ? job->type : DPAR_TYPE_COUNT) {
    case DPAR_F32: dpari_kern_most_f32(job); return 1;
    case DPAR_F64: dpari_kern_most_f64(job); return 1;
    case DPAR_I32: dpari_kern_most_i32(job); return 1;
    default: return 0;
    }
}

static void dpari_kern_whole(const dpari_kern_job *job)
{
    switch (job->op == DPAR_SUM || job->op == DPAR_AVG ? job->type : DPAR_TYPE_COUNT) {
    case DPAR_F32: dpari_kern_sum_f32(job); break;
    case DPAR_F64: dpari_kern_sum_f64(job); break;
    case DPAR_F16: dpari_kern_sum_f16(job); break;
    case DPAR_BF16: dpari_kern_sum_bf16(job); break;
    case DPARI_KERN_THROUGH(DPAR_BF16): dpari_kern_sum_through_bf16(job); break;
    default:
        if (!dpari_kern_whole_most(job)) {
            dpari_kern_any(job, job->at, job->end);
        }
        break;
    }
}

#if defined(__x86_64__)
static int64_t dpari_kern_wide_sum(const dpari_kern_job *job);
#endif

/* Runs a reduction. Lines are those of the first destination. */
static void dpari_kern_run(dpari_kern_job *job)
{
    const uintptr_t past = (uintptr_t)job->out[0] & (DPARI_KERN_LINE - 1);
    job->at = job->bytes < 512 || past == 0 ? 0 : DPARI_KERN_LINE - (int64_t)past;
    job->end = job->bytes - (job->bytes - job->at) % DPARI_KERN_LINE;
    if (job->at > 0) {
        dpari_kern_any(job, 0, job->at);
    }
#if defined(__x86_64__)
    job->at = dpari_kern_wide_sum(job);
#endif
    if (job->at < job->end) {
        dpari_kern_whole(job);
    }
    if (job->end < job->bytes) {
        dpari_kern_any(job, job->end, job->bytes);
    }
    if (job->stream) {
        dpari_kern_fence();
    }
}

#else /* by elements */

/* Returns the bits of one element. The bits of an accumulator are those of an element, or of an f32
 * for 16-bit types. */
static uint64_t dpari_kern_get(const unsigned char *from, int32_t width)
{
    uint8_t a = 0;
    uint16_t b = 0;
    uint32_t c = 0;
    uint64_t d = 0;
    switch (width) {
    case 1: dpari_kern_move(&a, from, 1); return a;
    case 2: dpari_kern_move(&b, from, 2); return b;
    case 4: dpari_kern_move(&c, from, 4); return c;
    default: dpari_kern_move(&d, from, 8); return d;
    }
}

static void dpari_kern_put(unsigned char *to, uint64_t bits, int32_t width)
{
    const uint8_t a = (uint8_t)(bits & 0xff);
    const uint16_t b = (uint16_t)(bits & 0xffff);
    const uint32_t c = (uint32_t)(bits & 0xffffffffu);
    switch (width) {
    case 1: dpari_kern_move(to, &a, 1); break;
    case 2: dpari_kern_move(to, &b, 2); break;
    case 4: dpari_kern_move(to, &c, 4); break;
    default: dpari_kern_move(to, &bits, 8); break;
    }
}

static uint64_t dpari_kern_widen(uint64_t bits, int32_t type)
{
    const uint32_t h = (uint32_t)bits, sign = (h & 0x8000u) << 16;
    uint32_t size = h & 0x7fffu, exponent = 0x38800000u;
    if (type == DPAR_BF16) {
        return h << 16;
    }
    if (type != DPAR_F16) {
        return bits;
    }
    if (size >= 0x7c00u) { /* infinity, or NaN, which becomes quiet as in arithmetic */
        return sign | (size << 13) | (size > 0x7c00u ? 0x7fc00000u : 0x7f800000u);
    }
    if (size >= 0x400u) {
        return sign | ((size << 13) + 0x38000000u);
    }
    if (size == 0) {
        return sign;
    }
    while (size < 0x400u) { /* a subnormal is shifted at most 10 times */
        size <<= 1;
        exponent -= 0x800000u;
    }
    return sign | (exponent + ((size & 0x3ffu) << 13));
}

/* Shifts `bits` out, rounding to nearest even. */
static uint32_t dpari_kern_shift(uint32_t x, uint32_t bits)
{
    const uint32_t half = (uint32_t)1 << (bits - 1);
    return (x + half - 1 + ((x >> bits) & 1u)) >> bits;
}

static uint64_t dpari_kern_narrow(uint64_t bits, int32_t type)
{
    const uint32_t x = (uint32_t)bits, sign = (x >> 16) & 0x8000u, size = x & 0x7fffffffu;
    const uint32_t exponent = size >> 23;
    if (type == DPAR_BF16) {
        return size > 0x7f800000u ? 0x7fc0u : dpari_kern_shift(x, 16);
    }
    if (type == DPAR_F32) {
        return size > 0x7f800000u ? 0x7fc00000u : x;
    }
    if (type == DPAR_F64) {
        return (bits & INT64_MAX) > UINT64_C(0x7ff) << 52 ? UINT64_C(0x7ff8) << 48 : bits;
    }
    if (type != DPAR_F16) {
        return bits;
    }
    if (size >= 0x47800000u) { /* 65536 and above, infinity and NaN */
        return size > 0x7f800000u ? 0x7e00u : sign | 0x7c00u;
    }
    if (exponent >= 113) {
        return sign | dpari_kern_shift(size - 0x38000000u, 13);
    }
    if (exponent < 102) { /* below half the smallest subnormal */
        return sign;
    }
    return sign | dpari_kern_shift((size & 0x7fffffu) | 0x800000u, 126 - exponent);
}

/* Returns the number whose bits these are: an f64, or an f32. */
static double dpari_kern_number(uint64_t bits, int32_t type)
{
    const uint32_t low = (uint32_t)bits;
    double d;
    float f;
    dpari_kern_move(&d, &bits, 8);
    dpari_kern_move(&f, &low, 4);
    return type == DPAR_F64 ? d : (double)f;
}

/* Computes x op y for floats. AVG divides by the integer y. Each result is stored in memory,
 * because x87 rounds only then: f64 perhaps twice, and f32 correctly, because the result of an
 * operation in f64, rounded to f32, equals that in f32. */
static uint64_t dpari_kern_meet_floats(uint64_t x, uint64_t y, int32_t type, int32_t op)
{
    const double a = dpari_kern_number(x, type);
    const double b = op == DPAR_AVG ? (double)y : dpari_kern_number(y, type);
    volatile double exact;
    volatile float f;
    double d;
    float rounded;
    uint32_t low;
    switch (op) {
    case DPAR_PRODUCT: exact = a * b; break;
    case DPAR_MAX: return a > b || a != a ? x : y;
    case DPAR_MIN: return a < b || a != a ? x : y;
    case DPAR_AVG: exact = a / b; break;
    default: exact = a + b; break;
    }
    d = exact;
    f = (float)d;
    rounded = f;
    dpari_kern_move(&x, &d, 8);
    dpari_kern_move(&low, &rounded, 4);
    return type == DPAR_F64 ? x : low;
}

#define DPARI_KERN_MEET(kind, wraps, compares, one, quotient)                                      \
    case kind:                                                                                     \
        switch (op) {                                                                              \
        case DPAR_PRODUCT: return x * y;                                                           \
        case DPAR_MAX: return (one)x > (one)y ? x : y;                                             \
        case DPAR_MIN: return (one)x > (one)y ? y : x;                                             \
        case DPAR_AVG: return (uint64_t)((quotient)(one)x / (quotient)y);                          \
        default: return x + y;                                                                     \
        }

/* Computes x op y for accumulators. AVG divides x by the number y. */
static uint64_t dpari_kern_meet(uint64_t x, uint64_t y, int32_t type, int32_t op)
{
    switch (type) {
        DPARI_KERN_INTS(DPARI_KERN_MEET)
    default: return dpari_kern_meet_floats(x, y, type, op);
    }
}

/* Rounds an accumulator to the type `wire`. */
static uint64_t dpari_kern_round(uint64_t x, int32_t wire, int32_t type)
{
    return wire == type ? x : dpari_kern_widen(dpari_kern_narrow(x, wire), wire);
}

static void dpari_kern_run(dpari_kern_job *job)
{
    const int32_t type = dpari_kern_stored(job->type), wire = dpari_kern_wire(job->type);
    const int32_t width = dpar_type_bytes(type);
    const int32_t op = job->op == DPAR_AVG ? DPAR_SUM : job->op;
    const uint64_t all = UINT64_MAX >> (64 - 8 * (width == 2 ? 4 : width));
    int64_t at;
    int32_t i;
    for (at = 0; at < job->bytes; at += width) {
        uint64_t x =
            dpari_kern_widen(dpari_kern_get((const unsigned char *)job->in[0] + at, width), type);
        x = dpari_kern_round(x, wire, type);
        for (i = 1; i < job->ins; i++) {
            const unsigned char *from = (const unsigned char *)job->in[i] + at;
            uint64_t y = dpari_kern_widen(dpari_kern_get(from, width), type);
            x = dpari_kern_meet(x, dpari_kern_round(y, wire, type), type, op) & all;
        }
        if (job->op == DPAR_AVG && job->ins > 1) {
            x = dpari_kern_meet(x, (uint64_t)job->ins, type, DPAR_AVG);
        }
        x = dpari_kern_narrow(dpari_kern_round(x, wire, type), type);
        for (i = 0; i < job->outs; i++) {
            dpari_kern_put((unsigned char *)job->out[i] + at, x, width);
        }
    }
}

#endif /* DPARI_KERN_VECTOR */

#if DPARI_KERN_STREAM
/* Copies whole lines of the destination with streaming stores, after an unaligned head. `to` has at
 * least one line. */
static void dpari_kern_copy_past(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    const int64_t head = (int64_t)((0 - (uintptr_t)to) & (DPARI_KERN_LINE - 1));
    int64_t at;
    dpari_kern_move(to, from, head);
    for (at = head; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        dpari_kern_quad x;
        dpari_kern_ahead(from + at);
        dpari_kern_load(&x, from + at, DPAR_U8);
        dpari_kern_store(to + at, &x, 1);
    }
    dpari_kern_move(to + at, from + at, bytes - at);
    dpari_kern_fence();
}
#endif

DPARI_API DPARI_NOINLINE void dpari_kern_copy(void *to, const void *from, int64_t bytes,
                                              int32_t stream)
{
    if (bytes <= 0 || to == from) {
        return;
    }
#if DPARI_KERN_STREAM
    if (stream && bytes >= 4 * DPARI_KERN_LINE) {
        dpari_kern_copy_past((unsigned char *)to, (const unsigned char *)from, bytes);
        return;
    }
#endif
    (void)stream;
    dpari_kern_move(to, from, bytes);
}

#if DPARI_KERN_VECTOR
DPARI_KERN_INLINE void dpari_kern_fetch_line(unsigned char *to, const unsigned char *from)
{
    dpari_kern_quad x;
    dpari_kern_load(&x, from, DPAR_U8);
    /* into the second-level cache, because more lines can be fetched into it at a time than into
     * the first */
    __builtin_prefetch((const void *)((uintptr_t)from + DPARI_KERN_FAR_AHEAD), 0, 2);
    dpari_kern_store(to, &x, 0);
}
#endif

DPARI_INTERNAL void dpari_kern_fetch(void *to, const void *from, int64_t bytes)
{
    int64_t at = 0;
#if DPARI_KERN_VECTOR
    for (; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        dpari_kern_fetch_line((unsigned char *)to + at, (const unsigned char *)from + at);
    }
#endif
    dpari_kern_copy((unsigned char *)to + at, (const unsigned char *)from + at, bytes - at, 0);
}

DPARI_INTERNAL void dpari_kern_fetch_beside(void *to, const void *from, void *to_2,
                                            const void *from_2, int64_t bytes)
{
    int64_t at = 0;
#if DPARI_KERN_VECTOR
    for (; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        dpari_kern_fetch_line((unsigned char *)to + at, (const unsigned char *)from + at);
        dpari_kern_fetch_line((unsigned char *)to_2 + at, (const unsigned char *)from_2 + at);
    }
#endif
    dpari_kern_copy((unsigned char *)to + at, (const unsigned char *)from + at, bytes - at, 0);
    dpari_kern_copy((unsigned char *)to_2 + at, (const unsigned char *)from_2 + at, bytes - at, 0);
}

DPARI_API void dpari_kern_row(void *to, const void *from, const void *next, int64_t bytes,
                              int32_t stream)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    int64_t at = 0;
#if DPARI_KERN_VECTOR
    const int64_t ahead = dpari_least(bytes, DPARI_KERN_FAR_AHEAD);
    if (stream && bytes >= 4 * DPARI_KERN_LINE) {
        at = (int64_t)((0 - (uintptr_t)t) & (DPARI_KERN_LINE - 1));
        dpari_kern_move(t, f, at);
    }
    for (; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        const int64_t then = at + ahead;
        const uintptr_t of = (uintptr_t)(then < bytes ? from : next);
        dpari_kern_quad x;
        __builtin_prefetch((const void *)(of + (uintptr_t)(then < bytes ? then : then - bytes)), 0,
                           2);
        dpari_kern_load(&x, f + at, DPAR_U8);
        dpari_kern_store(t + at, &x, stream);
    }
#else
    (void)next;
    (void)stream;
#endif
    dpari_kern_move(t + at, f + at, bytes - at);
}

DPARI_API void dpari_kern_rows_end(int32_t stream)
{
#if DPARI_KERN_VECTOR
    if (stream) {
        dpari_kern_fence();
    }
#else
    (void)stream;
#endif
}

DPARI_API void dpari_kern_ask(const void *at, int64_t bytes)
{
#if DPARI_KERN_VECTOR
    const int64_t end = dpari_least(bytes, 4096);
    int64_t i;
    for (i = 0; i < end; i += DPARI_KERN_LINE) {
        __builtin_prefetch((const unsigned char *)at + i, 0, 2);
    }
#else
    (void)at;
    (void)bytes;
#endif
}

#if DPARI_KERN_VECTOR
/* Reduces one f32, such as a loss or a norm, faster than a whole line would be and with the same
 * bits. */
static void dpari_kern_one_f32(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                               int32_t average)
{
    float x, y;
    uint32_t quiet = 0x7fc00000u;
    __builtin_memcpy(&x, in[0], 4);
    for (int32_t i = 1; i < ins; i++) {
        __builtin_memcpy(&y, in[i], 4);
        x += y;
    }
    x = average ? x / (float)ins : x;
    if (x != x) {
        __builtin_memcpy(&x, &quiet, 4);
    }
    for (int32_t i = 0; i < outs; i++) {
        __builtin_memcpy(out[i], &x, 4);
    }
}
#endif

/* Copies one input to many outputs, in pieces that stay in the cache until all outputs have them.
 */
static void dpari_kern_spread(const dpari_kern_job *job)
{
    const int64_t piece = 16384;
    int64_t at;
    int32_t i;
    for (at = 0; at < job->bytes; at += piece) {
        for (i = 0; i < job->outs; i++) {
            dpari_kern_copy((unsigned char *)job->out[i] + at,
                            (const unsigned char *)job->in[0] + at,
                            dpari_least(piece, job->bytes - at), job->stream);
        }
    }
}

DPARI_API void dpari_kern_reduce(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                                 int64_t count, int32_t type, int32_t op, int32_t stream)
{
    dpari_kern_job job;
#if DPARI_KERN_VECTOR
    if (count == 1 && ins > 1 && type == DPAR_F32 && (op == DPAR_SUM || op == DPAR_AVG)) {
        dpari_kern_one_f32(out, outs, in, ins, op == DPAR_AVG);
        return;
    }
#endif
    job.out = out;
    job.in = in;
    job.bytes = count * dpar_type_bytes(dpari_kern_stored(type));
    job.outs = outs;
    job.ins = ins;
    job.type = type;
    job.op = op;
    job.stream = stream;
    if (ins > 1 || type >= DPAR_TYPE_COUNT) {
        dpari_kern_run(&job);
    } else if (outs == 1) {
        dpari_kern_copy(out[0], in[0], job.bytes, stream);
    } else {
        dpari_kern_spread(&job);
    }
}

/* ---- conversions ----------------------------------------------------------------------------- */

#if DPARI_KERN_VECTOR
enum { DPARI_KERN_GROUP = 16 }; /* elements, a line of f32 */

/* Returns the vector of words i, j, k and l, where 0 .. 3 are those of a and 4 .. 7 those of b. */
#if defined(__clang__)
#define DPARI_KERN_WORDS(a, b, i, j, k, l)                                                         \
    ((dpari_kern_u4)__builtin_shufflevector(a, b, i, j, k, l))
#else
#define DPARI_KERN_WORDS(a, b, i, j, k, l) dpari_kern_words(a, b, i, j, k, l)
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_words(dpari_kern_u4 a, dpari_kern_u4 b, uint32_t i,
                                                 uint32_t j, uint32_t k, uint32_t l)
{
    const dpari_kern_u4 which = {i, j, k, l};
    return __builtin_shuffle(a, b, which);
}
#endif

DPARI_KERN_INLINE void dpari_kern_put(unsigned char *to, dpari_kern_u4 v)
{
    __builtin_memcpy(to, &v, 16);
}

/* In memory, even 16-bit elements come first. They are the low halves of words, or the high halves
 * on a big-endian CPU. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
enum { DPARI_KERN_HIGH_FIRST = 1 };
#else
enum { DPARI_KERN_HIGH_FIRST = 0 };
#endif

/* Convert eight 16-bit elements to f32, and back. */
DPARI_KERN_INLINE void dpari_kern_wide(unsigned char *to, const unsigned char *from, int32_t type)
{
    dpari_kern_u4 low, high, even, odd;
    dpari_kern_widen(dpari_kern_get(from), type, &low, &high);
    even = DPARI_KERN_HIGH_FIRST ? high : low;
    odd = DPARI_KERN_HIGH_FIRST ? low : high;
    dpari_kern_put(to, DPARI_KERN_WORDS(even, odd, 0, 4, 1, 5));
    dpari_kern_put(to + 16, DPARI_KERN_WORDS(even, odd, 2, 6, 3, 7));
}

DPARI_KERN_INLINE void dpari_kern_thin(unsigned char *to, const unsigned char *from, int32_t type)
{
    const dpari_kern_u4 a = dpari_kern_get(from), b = dpari_kern_get(from + 16);
    const dpari_kern_u4 even = DPARI_KERN_WORDS(a, b, 0, 2, 4, 6);
    const dpari_kern_u4 odd = DPARI_KERN_WORDS(a, b, 1, 3, 5, 7);
    dpari_kern_put(to, DPARI_KERN_HIGH_FIRST ? dpari_kern_narrow(odd, even, type)
                                             : dpari_kern_narrow(even, odd, type));
}

/* Convert four f64 to f32, and back. */
DPARI_KERN_INLINE void dpari_kern_thin_f64(unsigned char *to, const unsigned char *from)
{
    const dpari_kern_d2 a = (dpari_kern_d2)dpari_kern_get(from);
    const dpari_kern_d2 b = (dpari_kern_d2)dpari_kern_get(from + 16);
    const dpari_kern_f4 f = {(float)a[0], (float)a[1], (float)b[0], (float)b[1]};
    const dpari_kern_u4 nan = (dpari_kern_u4)(f != f);
    dpari_kern_put(to, dpari_kern_pick(nan, dpari_kern_all(0x7fc00000u), (dpari_kern_u4)f));
}

/* Loads two f32 as f64, which compilers turn into one instruction. */
DPARI_KERN_INLINE dpari_kern_d2 dpari_kern_two(const unsigned char *from)
{
    float f[2];
    __builtin_memcpy(f, from, 8);
    {
        const dpari_kern_d2 d = {(double)f[0], (double)f[1]};
        return d;
    }
}
DPARI_KERN_INLINE void dpari_kern_wide_f64(unsigned char *to, const unsigned char *from)
{
    dpari_kern_put(to, (dpari_kern_u4)dpari_kern_two(from));
    dpari_kern_put(to + 16, (dpari_kern_u4)dpari_kern_two(from + 8));
}

/* Converts one group of DPARI_KERN_GROUP elements. */
DPARI_KERN_INLINE void dpari_kern_group(unsigned char *to, int32_t to_type,
                                        const unsigned char *from, int32_t from_type)
{
    int32_t i;
    for (i = 0; i < DPARI_KERN_GROUP; i += 8) {
        if (dpari_kern_is16(from_type)) {
            dpari_kern_wide(to + 4 * i, from + 2 * i, from_type);
        } else if (dpari_kern_is16(to_type)) {
            dpari_kern_thin(to + 2 * i, from + 4 * i, to_type);
        } else if (to_type == DPAR_F64) {
            dpari_kern_wide_f64(to + 8 * i, from + 4 * i);
            dpari_kern_wide_f64(to + 8 * i + 32, from + 4 * i + 16);
        } else {
            dpari_kern_thin_f64(to + 4 * i, from + 8 * i);
            dpari_kern_thin_f64(to + 4 * i + 16, from + 8 * i + 32);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_kern_group_any(unsigned char *to, int32_t to_type,
                                                const unsigned char *from, int32_t from_type)
{
    dpari_kern_group(to, to_type, from, from_type);
}

/* Defines a function for each pair of types, which converts `count` elements, a multiple of a
 * group. */
#define DPARI_KERN_GROUPS(name, to_type, to_bytes, from_type, from_bytes)                          \
    DPARI_STATIC_NOINLINE void name(unsigned char *to, const unsigned char *from, int64_t count)   \
    {                                                                                              \
        int64_t i;                                                                                 \
        for (i = 0; i < count; i += DPARI_KERN_GROUP) {                                            \
            dpari_kern_ahead(from + i * (from_bytes));                                             \
            if ((to_type) == DPAR_F64) {                                                           \
                dpari_kern_ahead_to(to + 8 * i, 8 * (count - i));                                  \
                dpari_kern_ahead_to(to + 8 * i + 64, 8 * (count - i) - 64);                        \
            }                                                                                      \
            dpari_kern_group(to + i * (to_bytes), to_type, from + i * (from_bytes), from_type);    \
        }                                                                                          \
    }

DPARI_KERN_GROUPS(dpari_kern_bf16_f32, DPAR_F32, 4, DPAR_BF16, 2)
DPARI_KERN_GROUPS(dpari_kern_f16_f32, DPAR_F32, 4, DPAR_F16, 2)
DPARI_KERN_GROUPS(dpari_kern_f32_bf16, DPAR_BF16, 2, DPAR_F32, 4)
DPARI_KERN_GROUPS(dpari_kern_f32_f16, DPAR_F16, 2, DPAR_F32, 4)
DPARI_KERN_GROUPS(dpari_kern_f32_f64, DPAR_F64, 8, DPAR_F32, 4)
DPARI_KERN_GROUPS(dpari_kern_f64_f32, DPAR_F32, 4, DPAR_F64, 8)

/* ---- the same with vectors of 32 bytes ---- */

#if defined(__x86_64__)
#define DPARI_KERN_WIDE 1
#define DPARI_KERN_IN_WIDE __attribute__((target("avx2,f16c"))) static
enum { DPARI_KERN_ASKS = 131072 }; /* elements from which a query of the CPU's features pays off */
typedef uint32_t dpari_kern_w8 __attribute__((vector_size(32)));
typedef int32_t dpari_kern_s8 __attribute__((vector_size(32)));
typedef float dpari_kern_f8 __attribute__((vector_size(32)));
typedef long long dpari_kern_l4 __attribute__((vector_size(32)));

/* Loads eight f16 as f32. */
__attribute__((target("avx2,f16c"), always_inline)) static DPARI_INLINED void
dpari_kern_wide_half(dpari_kern_f8 *to, const unsigned char *from)
{
    const dpari_kern_u4 x = dpari_kern_get(from);
    __asm__("vcvtph2ps %1, %0" : "=x"(*to) : "x"(x));
}

/* Stores 16 floats as 16-bit elements. Returns 0 if one of them is NaN; then nothing is stored. */
__attribute__((target("avx2,f16c"), always_inline)) static DPARI_INLINED int
dpari_kern_wide_put(unsigned char *to, const dpari_kern_f8 *low, const dpari_kern_f8 *high,
                    int32_t type)
{
    const dpari_kern_f8 sum = *low + *high;
    dpari_kern_w8 a = (dpari_kern_w8)*low, b = (dpari_kern_w8)*high;
    dpari_kern_l4 all;
    dpari_kern_u4 x, y;
    if (__builtin_expect(__builtin_ia32_movmskps256((dpari_kern_f8)(sum != sum)) != 0, 0)) {
        return 0;
    }
    if (type == DPAR_F16) { /* $0 rounds to nearest even */
        __asm__("vcvtps2ph $0, %1, %0" : "=x"(x) : "x"(*low));
        __asm__("vcvtps2ph $0, %1, %0" : "=x"(y) : "x"(*high));
        dpari_kern_put(to, x);
        dpari_kern_put(to + 16, y);
        return 1;
    }
    a = (a + 0x7fffu + ((a >> 16) & 1u)) >> 16;
    b = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    all = (dpari_kern_l4)__builtin_ia32_packusdw256((dpari_kern_s8)a, (dpari_kern_s8)b);
    all = __builtin_ia32_permdi256(all, 0xd8); /* halves of a and of b side by side */
    __builtin_memcpy(to, &all, 32);
    return 1;
}

/* Converts f32 to 16 bits. Groups with a NaN, which are rare, are converted without wide vectors.
 */
__attribute__((target("avx2,f16c"), always_inline)) static DPARI_INLINED void
dpari_kern_wide_thin(unsigned char *to, const unsigned char *from, int64_t count, int32_t type)
{
    int64_t i;
    for (i = 0; i < count; i += DPARI_KERN_GROUP) {
        dpari_kern_f8 a, b;
        dpari_kern_ahead(from + 4 * i);
        __builtin_memcpy(&a, from + 4 * i, 32);
        __builtin_memcpy(&b, from + 4 * i + 32, 32);
        if (!dpari_kern_wide_put(to + 2 * i, &a, &b, type)) {
            dpari_kern_group_any(to + 2 * i, type, from + 4 * i, DPAR_F32);
        }
    }
}

DPARI_KERN_IN_WIDE void dpari_kern_wide_f32_bf16(unsigned char *to, const unsigned char *from,
                                                 int64_t count)
{
    dpari_kern_wide_thin(to, from, count, DPAR_BF16);
}

DPARI_KERN_IN_WIDE void dpari_kern_wide_f32_f16(unsigned char *to, const unsigned char *from,
                                                int64_t count)
{
    dpari_kern_wide_thin(to, from, count, DPAR_F16);
}

DPARI_KERN_IN_WIDE void dpari_kern_wide_f16_f32(unsigned char *to, const unsigned char *from,
                                                int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i += 8) {
        dpari_kern_f8 a;
        dpari_kern_ahead(from + 2 * i);
        dpari_kern_wide_half(&a, from + 2 * i);
        __builtin_memcpy(to + 4 * i, &a, 32);
    }
}

/* Sums two inputs of f16 from job->at on. Returns where the rest begins. If 16 elements have a NaN
 * among them, dpari_kern_any sums them. */
DPARI_KERN_IN_WIDE int64_t dpari_kern_wide_sum_f16(const dpari_kern_job *job)
{
    const unsigned char *x = (const unsigned char *)job->in[0];
    const unsigned char *y = (const unsigned char *)job->in[1];
    unsigned char *to = (unsigned char *)job->out[0];
    int64_t at;
    for (at = job->at; at + 32 <= job->end; at += 32) {
        dpari_kern_f8 low, high, other;
        dpari_kern_ahead(x + at);
        dpari_kern_ahead(y + at);
        dpari_kern_wide_half(&low, x + at);
        dpari_kern_wide_half(&other, y + at);
        low += other;
        dpari_kern_wide_half(&high, x + at + 16);
        dpari_kern_wide_half(&other, y + at + 16);
        high += other;
        if (!dpari_kern_wide_put(to + at, &low, &high, DPAR_F16)) {
            dpari_kern_any(job, at, at + 32);
        }
    }
    return at;
}

static int64_t dpari_kern_wide_sum(const dpari_kern_job *job)
{
    if (job->op != DPAR_SUM || job->ins != 2 || job->outs != 1 || job->stream ||
        job->end - job->at < 2 * DPARI_KERN_ASKS || job->type != DPAR_F16 || !dpari_cpu_wide()) {
        return job->at;
    }
    return dpari_kern_wide_sum_f16(job);
}

/* Converts groups if there is a loop with wide vectors for these types. Returns 0 if there is
 * none. */
static int dpari_kern_wide_groups(unsigned char *to, int32_t to_type, const unsigned char *from,
                                  int32_t from_type, int64_t count)
{
    if (from_type == DPAR_F16) {
        dpari_kern_wide_f16_f32(to, from, count);
    } else if (to_type == DPAR_BF16) {
        dpari_kern_wide_f32_bf16(to, from, count);
    } else if (to_type == DPAR_F16) {
        dpari_kern_wide_f32_f16(to, from, count);
    } else {
        return 0;
    }
    return 1;
}
#else
#define DPARI_KERN_WIDE 0
#endif

static void dpari_kern_groups(unsigned char *to, int32_t to_type, const unsigned char *from,
                              int32_t from_type, int64_t count)
{
#if DPARI_KERN_WIDE
    if (count >= DPARI_KERN_ASKS && dpari_cpu_wide() &&
        dpari_kern_wide_groups(to, to_type, from, from_type, count)) {
        return;
    }
#endif
    if (from_type == DPAR_BF16) {
        dpari_kern_bf16_f32(to, from, count);
    } else if (from_type == DPAR_F16) {
        dpari_kern_f16_f32(to, from, count);
    } else if (to_type == DPAR_BF16) {
        dpari_kern_f32_bf16(to, from, count);
    } else if (to_type == DPAR_F16) {
        dpari_kern_f32_f16(to, from, count);
    } else if (to_type == DPAR_F64) {
        dpari_kern_f32_f64(to, from, count);
    } else {
        dpari_kern_f64_f32(to, from, count);
    }
}
#else
#define DPARI_KERN_WIDE 0
enum { DPARI_KERN_GROUP = 1 };

/* Converts one element. The f32 of an f64 is stored in memory, because x87 rounds only then. */
static void dpari_kern_group_any(unsigned char *to, int32_t to_type, const unsigned char *from,
                                 int32_t from_type)
{
    const int32_t width = dpar_type_bytes(from_type);
    volatile float f;
    double d;
    uint64_t x = dpari_kern_get(from, width);
    uint32_t bits = (uint32_t)x;
    float value;
    if (from_type == DPAR_F64) {
        dpari_kern_move(&d, &x, 8);
        f = (float)d;
        value = f;
        dpari_kern_move(&bits, &value, 4);
        x = dpari_kern_narrow(bits, DPAR_F32);
    } else if (to_type == DPAR_F64) {
        dpari_kern_move(&value, &bits, 4);
        d = (double)value;
        dpari_kern_move(&x, &d, 8);
    } else {
        x = to_type == DPAR_F32 ? dpari_kern_widen(x, from_type) : dpari_kern_narrow(x, to_type);
    }
    dpari_kern_put(to, x, dpar_type_bytes(to_type));
}

static void dpari_kern_groups(unsigned char *to, int32_t to_type, const unsigned char *from,
                              int32_t from_type, int64_t count)
{
    const int32_t to_size = dpar_type_bytes(to_type), from_size = dpar_type_bytes(from_type);
    int64_t i;
    for (i = 0; i < count; i++) {
        dpari_kern_group_any(to + i * to_size, to_type, from + i * from_size, from_type);
    }
}
#endif

DPARI_API void dpari_kern_convert(void *to, int32_t to_type, const void *from, int32_t from_type,
                                  int64_t count)
{
    unsigned char in[8 * DPARI_KERN_GROUP] = {0}, out[8 * DPARI_KERN_GROUP];
    const int32_t to_size = dpar_type_bytes(to_type), from_size = dpar_type_bytes(from_type);
    const int64_t left = count % DPARI_KERN_GROUP, whole = count - left;
    if (whole > 0) {
        dpari_kern_groups((unsigned char *)to, to_type, (const unsigned char *)from, from_type,
                          whole);
    }
    if (left > 0) {
        dpari_kern_move(in, (const unsigned char *)from + whole * from_size, left * from_size);
        dpari_kern_group_any(out, to_type, in, from_type);
        dpari_kern_move((unsigned char *)to + whole * to_size, out, left * to_size);
    }
}

/* ---- rows and scaling ------------------------------------------------------------------------ */

#if DPARI_KERN_VECTOR
/* Rounds four f64 to f32. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_four(dpari_kern_d2 a, dpari_kern_d2 b)
{
#if defined(__SSE2__)
    const dpari_kern_f4 x = __builtin_ia32_cvtpd2ps(a), y = __builtin_ia32_cvtpd2ps(b);
    return DPARI_KERN_WORDS((dpari_kern_u4)x, (dpari_kern_u4)y, 0, 1, 4, 5);
#else
    const dpari_kern_f4 f = {(float)a[0], (float)a[1], (float)b[0], (float)b[1]};
    return (dpari_kern_u4)f;
#endif
}

/* Mixes a line of f32. */
DPARI_KERN_INLINE void dpari_kern_mix_line(dpari_kern_quad *x, const void *const *row,
                                           const double *by, int32_t n, int64_t at)
{
    dpari_kern_d2 low[4] = {{0.0, 0.0}}, high[4] = {{0.0, 0.0}};
    int32_t j;
    for (j = 0; j < n; j++) {
        const unsigned char *from = (const unsigned char *)row[j] + at;
        const dpari_kern_d2 w = {by[j], by[j]};
        DPARI_FOUR(low[q] += w * dpari_kern_two(from + 16 * q);
                   high[q] += w * dpari_kern_two(from + 16 * q + 8));
    }
    DPARI_FOUR(x->v[q] = dpari_kern_four(low[q], high[q]));
}
#endif

DPARI_API void dpari_kern_mix(void *to, const void *const *row, const double *by, int32_t n,
                              const void *const *next, int32_t ahead, int64_t count, int32_t type,
                              int32_t stream)
{
    int64_t e = 0;
    int32_t j;
#if DPARI_KERN_VECTOR
    for (; type == DPAR_F32 && count - e >= 16; e += 16) {
        dpari_kern_quad x;
        for (j = 0; j < ahead; j++) {
            __builtin_prefetch((const float *)next[j] + e, 0, 2);
        }
        dpari_kern_mix_line(&x, row, by, n, e * 4);
        dpari_kern_store((unsigned char *)to + e * 4, &x, stream);
    }
#else
    (void)next;
    (void)ahead;
    (void)stream;
#endif
    for (; e < count; e++) {
        double sum = 0.0;
        for (j = 0; j < n; j++) {
            sum += by[j] * (type == DPAR_F32 ? (double)((const float *)row[j])[e]
                                             : ((const double *)row[j])[e]);
        }
        if (type == DPAR_F32) {
            ((float *)to)[e] = (float)sum;
        } else {
            ((double *)to)[e] = sum;
        }
    }
}

/* Scales at most 8 elements; each NaN becomes the same one. */
static void dpari_kern_scaled_some(float *to, const float *x, double by, int64_t n)
{
    const uint32_t quiet = 0x7fc00000u;
    int64_t i;
    for (i = 0; i < n; i++) {
        to[i] = (float)(by * (double)x[i]);
        if (to[i] != to[i]) {
            dpari_kern_move(to + i, &quiet, 4);
        }
    }
}

DPARI_INTERNAL void dpari_kern_scaled(float *to, const float *x, double by, int64_t n)
{
    int64_t i, k;
    for (i = 0; i < n; i += k) {
        k = dpari_least(8, n - i);
#if DPARI_KERN_VECTOR
        if (k == 8) {
            const dpari_kern_d2 times = {by, by};
            const unsigned char *at = (const unsigned char *)(x + i);
            dpari_kern_ahead(at);
            dpari_kern_ahead_to(to + i, 4 * (n - i));
            const dpari_kern_u4 c =
                dpari_kern_four(times * dpari_kern_two(at), times * dpari_kern_two(at + 8));
            const dpari_kern_u4 d =
                dpari_kern_four(times * dpari_kern_two(at + 16), times * dpari_kern_two(at + 24));
            const dpari_kern_f4 sum = (dpari_kern_f4)c + (dpari_kern_f4)d;
            if (!dpari_kern_some((dpari_kern_u4)(sum != sum))) {
                dpari_kern_put((unsigned char *)(to + i), c);
                dpari_kern_put((unsigned char *)(to + i + 4), d);
                continue;
            }
        }
#endif
        dpari_kern_scaled_some(to + i, x + i, by, k);
    }
}

#if DPARI_KERN_VECTOR
/* Adds eight elements of BF16 or F16 at `from` to the f32 at `to`. */
DPARI_KERN_INLINE void dpari_kern_add_eight(unsigned char *to, const unsigned char *from,
                                            int32_t type)
{
    dpari_kern_u4 low, high, even, odd;
    dpari_kern_f4 a = (dpari_kern_f4)dpari_kern_get(to), sum;
    dpari_kern_f4 b = (dpari_kern_f4)dpari_kern_get(to + 16);
    dpari_kern_widen(dpari_kern_get(from), type, &low, &high);
    even = DPARI_KERN_HIGH_FIRST ? high : low;
    odd = DPARI_KERN_HIGH_FIRST ? low : high;
    a += (dpari_kern_f4)DPARI_KERN_WORDS(even, odd, 0, 4, 1, 5);
    b += (dpari_kern_f4)DPARI_KERN_WORDS(even, odd, 2, 6, 3, 7);
    sum = a + b;
    if (dpari_kern_some((dpari_kern_u4)(sum != sum))) {
        a = (dpari_kern_f4)dpari_kern_quiet((dpari_kern_u4)a, DPAR_F32);
        b = (dpari_kern_f4)dpari_kern_quiet((dpari_kern_u4)b, DPAR_F32);
    }
    dpari_kern_put(to, (dpari_kern_u4)a);
    dpari_kern_put(to + 16, (dpari_kern_u4)b);
}
#endif

DPARI_INTERNAL void dpari_kern_add_to(float *to, const void *from, int32_t type, int64_t n)
{
    const unsigned char *f = (const unsigned char *)from;
    float x[8];
    void *out[1];
    const void *in[2];
    int64_t i = 0;
#if DPARI_KERN_VECTOR
    for (; n - i >= 8; i += 8) {
        dpari_kern_ahead(f + 2 * i);
        dpari_kern_ahead_to(to + i, 4 * (n - i));
        if (type == DPAR_BF16) {
            dpari_kern_add_eight((unsigned char *)(to + i), f + 2 * i, DPAR_BF16);
        } else {
            dpari_kern_add_eight((unsigned char *)(to + i), f + 2 * i, DPAR_F16);
        }
    }
#endif
    for (; i < n; i += 8) {
        const int64_t some = dpari_least(8, n - i);
        out[0] = to + i;
        in[0] = to + i;
        in[1] = x;
        dpari_kern_convert(x, DPAR_F32, f + 2 * i, type, some);
        dpari_kern_reduce(out, 1, in, 2, some, DPAR_F32, DPAR_SUM, 0);
    }
}

DPARI_API void dpari_kern_scale(void *to, const void *x, double by, int64_t n)
{
    int64_t i = 0;
#if DPARI_KERN_VECTOR
    /* the product of two f32 is exact in f64, so a product in f32 rounds it equally */
    const dpari_kern_f4 times = {(float)by, (float)by, (float)by, (float)by};
    for (; n - i >= 4; i += 4) {
        dpari_kern_f4 v = (dpari_kern_f4)dpari_kern_get((const unsigned char *)x + i * 4);
        v *= times;
        __builtin_memcpy((unsigned char *)to + i * 4, &v, 16);
    }
#endif
    for (; i < n; i++) {
        ((float *)to)[i] = (float)(by * (double)((const float *)x)[i]);
    }
}

/* ---- searching for NaN and infinity ---------------------------------------------------------- */

/* True if all bits of the exponent are set, as in NaN and infinity. */
static int dpari_kern_odd(const unsigned char *at, int32_t type)
{
    uint64_t f64;
    uint32_t f32;
    uint16_t f16;
    switch (type) {
    case DPAR_F64: dpari_kern_move(&f64, at, 8); return (~f64 & UINT64_C(0x7ff0000000000000)) == 0;
    case DPAR_F32: dpari_kern_move(&f32, at, 4); return (~f32 & 0x7f800000u) == 0;
    default:
        dpari_kern_move(&f16, at, 2);
        return (~(uint32_t)f16 & (type == DPAR_F16 ? 0x7c00u : 0x7f80u)) == 0;
    }
}

#if DPARI_KERN_VECTOR
typedef uint16_t dpari_kern_u8 __attribute__((vector_size(16)));

/* A vector that repeats 8 bytes. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_mask(uint64_t bits)
{
    const dpari_kern_u2 v = {bits, bits};
    return (dpari_kern_u4)v;
}

/* Compares exponents with `found`. The half of an f64 that has no exponent never matches. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_hits(const unsigned char *at, dpari_kern_u4 exponent,
                                                dpari_kern_u4 found, int32_t halves)
{
    const dpari_kern_u4 x = dpari_kern_get(at) & exponent;
    return halves ? (dpari_kern_u4)((dpari_kern_u8)x == (dpari_kern_u8)found)
                  : (dpari_kern_u4)(x == found);
}

/* Returns the first line of [0, end) with a NaN or infinity, or end. */
DPARI_KERN_INLINE int64_t dpari_kern_seek(const unsigned char *in, int64_t end, uint64_t exponent,
                                          uint64_t found, int32_t halves)
{
    const dpari_kern_u4 e = dpari_kern_mask(exponent), f = dpari_kern_mask(found);
    int64_t at;
    for (at = 0; at < end; at += DPARI_KERN_LINE) {
        const unsigned char *line = in + at;
        dpari_kern_u4 hits;
        dpari_kern_ahead(line);
        hits =
            (dpari_kern_hits(line, e, f, halves) | dpari_kern_hits(line + 16, e, f, halves)) |
            (dpari_kern_hits(line + 32, e, f, halves) | dpari_kern_hits(line + 48, e, f, halves));
        if (dpari_kern_some(halves ? hits | hits << 16 : hits)) {
            break;
        }
    }
    return at;
}
#endif

/* Returns the bytes of the whole lines at the beginning that have no NaN or infinity. */
static int64_t dpari_kern_skip(const unsigned char *in, int64_t bytes, int32_t type)
{
#if DPARI_KERN_VECTOR
    const int64_t end = bytes - bytes % DPARI_KERN_LINE;
    switch (type) {
    case DPAR_F64:
        return dpari_kern_seek(in, end, UINT64_C(0x7ff0000000000000), UINT64_C(0x7ff0000000000001),
                               0);
    case DPAR_F32:
        return dpari_kern_seek(in, end, UINT64_C(0x7f8000007f800000), UINT64_C(0x7f8000007f800000),
                               0);
    case DPAR_F16:
        return dpari_kern_seek(in, end, UINT64_C(0x7c007c007c007c00), UINT64_C(0x7c007c007c007c00),
                               1);
    default:
        return dpari_kern_seek(in, end, UINT64_C(0x7f807f807f807f80), UINT64_C(0x7f807f807f807f80),
                               1);
    }
#else
    (void)in;
    (void)bytes;
    (void)type;
    return 0;
#endif
}

DPARI_API int64_t dpari_kern_finite(const void *in, int64_t count, int32_t type)
{
    const int32_t each = dpar_type_bytes(type);
    const unsigned char *at = (const unsigned char *)in;
    int64_t i = dpari_kern_skip(at, count * each, type) / each;
    while (i < count && !dpari_kern_odd(at + i * each, type)) {
        i++;
    }
    return i;
}
