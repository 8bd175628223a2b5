/* SPDX-License-Identifier: MIT-0 */
/* kernel - private: loops over memory that copy, convert, reduce and scale. A collective must at
 * least read every input once and write every output once; these loops come close to that cost in
 * plain C at -O2. */
#ifndef DPARI_HOST_KERNEL_H
#define DPARI_HOST_KERNEL_H

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"

/* Repeats a statement for q = 0, 1, 2 and 3. In a loop gcc would keep the vectors in memory. */
#define DPARI_FOUR(statement)                                                                      \
    do {                                                                                           \
        {                                                                                          \
            enum { q = 0 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        {                                                                                          \
            enum { q = 1 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        {                                                                                          \
            enum { q = 2 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        {                                                                                          \
            enum { q = 3 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* Reduces: sets each of `count` elements of every out[j] to in[0][e] op in[1][e] op ..., in that
 * order. F16 and BF16 accumulate in f32 and are rounded once, to nearest even. AVG is the sum (of
 * 16-bit types the sum in f32) divided by `ins`. Sums and products of integers wrap, and AVG of
 * integers divides the wrapped sum towards zero. MAX and MIN of a NaN are NaN, of +0 and -0 either
 * of them. A NaN in the result is the quiet one without sign or payload. A single input is copied
 * bit by bit. The bits of an element depend neither on alignment, `stream` and `count` nor on its
 * position.
 *
 * For type DPARI_KERN_THROUGH(wire) with wire F16 or BF16, elements are F32. Each input, also a
 * single one, and the result are rounded to `wire` as dpari_kern_convert does, and the sums between
 * are F32. The bits are those of arrays that are rounded, reduced as `wire`, and widened.
 *
 * type:   one that can be reduced, or DPARI_KERN_THROUGH for SUM and AVG.
 * stream: not 0 to bypass the cache. For outputs larger than the cache; up to 12 times slower for
 *         small ones. The outputs are visible to all that see a later store.
 *
 * op is DPAR_SUM .. DPAR_MIN; ins, outs >= 1; count >= 0. Pointers are aligned to the type. An out
 * may be exactly an in; otherwise nothing may overlap. Local; O((ins + outs) count). */
#define DPARI_KERN_THROUGH(wire) (DPAR_F32 + 256 * (wire))
DPARI_API void dpari_kern_reduce(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                                 int64_t count, int32_t type, int32_t op, int32_t stream);

/* The type of the elements in memory, and the type in which a message would have them. */
DPARI_FN int32_t dpari_kern_stored(int32_t type)
{
    return type & 255;
}
DPARI_FN int32_t dpari_kern_wire(int32_t type)
{
    return type < 256 ? type : type / 256;
}

/* Copies `bytes`, nothing if <= 0. `to` must not overlap `from`, but may be equal to it; then
 * nothing is done. `stream` as above. Local; O(bytes). */
DPARI_API void dpari_kern_copy(void *to, const void *from, int64_t bytes, int32_t stream);

/* Copies one of many rows of `bytes` each, and prefetches the next one at `next`. If stream is not
 * 0, it bypasses the cache, and dpari_kern_rows_end must be called after the last row. */
DPARI_API void dpari_kern_row(void *to, const void *from, const void *next, int64_t bytes,
                              int32_t stream);
DPARI_API void dpari_kern_rows_end(int32_t stream);

/* Prefetches memory that will be read soon, at most its first 4 KiB. */
DPARI_API void dpari_kern_ask(const void *at, int64_t bytes);

/* Computes to[e] = 0 + by[0] row[0][e] + by[1] row[1][e] + ... with n terms for e < count, in f64
 * and in that order, rounded once. type is F64 or F32. `ahead` rows of next[] are prefetched.
 * stream as in dpari_kern_row. */
DPARI_API void dpari_kern_mix(void *to, const void *const *row, const double *by, int32_t n,
                              const void *const *next, int32_t ahead, int64_t count, int32_t type,
                              int32_t stream);
/* Computes to[i] = by x[i] for n f32, rounded once. `by` must be exact in f32. `to` may be x. */
DPARI_API void dpari_kern_scale(void *to, const void *x, double by, int64_t n);

/* Converts `count` elements: F64 to F32 and F32 to F16 or BF16, to nearest even, where a NaN
 * becomes the quiet one without sign or payload; and back, exactly, where a NaN keeps sign and
 * payload, and becomes quiet if it is F16 or becomes F64. Runs at the speed of memory, f16 at half
 * of it. The arrays must not overlap. */
DPARI_API void dpari_kern_convert(void *to, int32_t to_type, const void *from, int32_t from_type,
                                  int64_t count);

/* Returns the index of the first of `count` floats (F64, F32, F16, BF16) that is NaN or infinite,
 * or count if there is none. */
DPARI_API int64_t dpari_kern_finite(const void *in, int64_t count, int32_t type);

/* ---- of this header's own modules ---- */

/* Computes to[i] = by x[i], the product in f64, rounded once. A NaN has no sign or payload. `to`
 * may be x. */
DPARI_INTERNAL void dpari_kern_scaled(float *to, const float *x, double by, int64_t n);
/* Adds x, of BF16 or F16, to `to`. A NaN has no sign or payload. */
DPARI_INTERNAL void dpari_kern_add_to(float *to, const void *x, int32_t type, int64_t n);

/* Does what dpari_kern_copy does, for memory that another core has just written: copies line by
 * line and prefetches. */
DPARI_INTERNAL void dpari_kern_fetch(void *to, const void *from, int64_t bytes);
/* Runs two dpari_kern_fetch in turns, line by line. */
DPARI_INTERNAL void dpari_kern_fetch_beside(void *to, const void *from, void *to_2,
                                            const void *from_2, int64_t bytes);

#endif
