/* SPDX-License-Identifier: MIT-0 */
/* kernel - private: the loops over memory of the shared-memory engine. What a collective costs is
 * reading every input once and writing every output once; these loops come near to it by plain C
 * at -O2. */
#ifndef DPARI_COMM_KERNEL_H
#define DPARI_COMM_KERNEL_H

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"

/* Each of `count` elements of every out[j] becomes in[0][e] op in[1][e] op ..., in that order. F16
 * and BF16 accumulate in f32 and round once, to nearest even; AVG is the sum (of 16 bits: in f32)
 * divided by `ins`; sums and products of integers wrap, AVG of integers divides what wrapped
 * towards zero. MAX and MIN of a NaN are NaN, of +0 and -0 either. A NaN that comes out is the
 * quiet one without sign or payload. One input is copied bit by bit. The bits of an element do not
 * depend on alignment, on `stream`, on `count` nor on its place.
 * Of type DPARI_KERN_THROUGH(wire), wire F16 or BF16, elements are F32: each input, one alone too,
 * and the result are rounded to `wire`, as dpari_kern_convert does, and what lies between is F32:
 * the bits of rounded arrays that are reduced as `wire` and widened.
 *
 * Domain: types that can be reduced, or SUM and AVG of DPARI_KERN_THROUGH; op DPAR_SUM..DPAR_MIN;
 * ins, outs >= 1; count >= 0. Pointers are aligned to the type; an out may be exactly an in,
 * nothing else overlaps. `stream` != 0: the outs go past the cache (for outputs larger than it; up
 * to 12 times slower on small ones) and are visible in order to whoever sees a later store. Local;
 * O((ins + outs) count). */
#define DPARI_KERN_THROUGH(wire) (DPAR_F32 + 256 * (wire))
DPARI_API void dpari_kern_reduce(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                                 int64_t count, int32_t type, int32_t op, int32_t stream);

/* The type that lies in memory, and the one that a message would hold. */
DPARI_FN int32_t dpari_kern_stored(int32_t type)
{
    return type & 255;
}
DPARI_FN int32_t dpari_kern_wire(int32_t type)
{
    return type < 256 ? type : type / 256;
}

/* Copies `bytes` (nothing when <= 0) to `to`, which does not overlap `from`, or is it (then there
 * is nothing to do). `stream` as above. Local; O(bytes). */
DPARI_API void dpari_kern_copy(void *to, const void *from, int64_t bytes, int32_t stream);

/* One of many rows, of `bytes` each: copies it while the row at `next`, which comes after it, is
 * asked for. stream != 0: past the cache, and when all are done dpari_kern_rows_end(). */
DPARI_API void dpari_kern_row(void *to, const void *from, const void *next, int64_t bytes,
                              int32_t stream);
DPARI_API void dpari_kern_rows_end(int32_t stream);

/* Asks for memory that will be read soon; at most its first 4 KiB. Touches nothing. */
DPARI_API void dpari_kern_ask(const void *at, int64_t bytes);

/* to[e] = 0 + by[0] row[0][e] + by[1] row[1][e] + ..., n of them, in f64 and in that order, rounded
 * once: e < count, F64 or F32. `ahead` rows of next[] are asked for meanwhile. stream as of
 * dpari_kern_row. */
DPARI_API void dpari_kern_mix(void *to, const void *const *row, const double *by, int32_t n,
                              const void *const *next, int32_t ahead, int64_t count, int32_t type,
                              int32_t stream);
/* to[i] = by x[i] of n f32, rounded once; `by` is one that f32 holds. `to` may be x. */
DPARI_API void dpari_kern_scale(void *to, const void *x, double by, int64_t n);

/* `count` elements as another type: F64 to F32, F32 to F16 or BF16 to nearest even (a NaN becomes
 * the quiet one without sign or payload), and back, exactly (NaN: sign and payload too; quiet, of
 * F16 and to F64). At the speed of memory, f16 at half of it. No overlap. */
DPARI_API void dpari_kern_convert(void *to, int32_t to_type, const void *from, int32_t from_type,
                                  int64_t count);

/* The first of `count` floats (F64, F32, F16, BF16) that is NaN or infinite; count: none is. */
DPARI_API int64_t dpari_kern_finite(const void *in, int64_t count, int32_t type);

/* ---- of this header's own modules ---- */

/* to[i] = by x[i], the product in f64, rounded once; NaN without sign and payload. `to` may be x.
 */
DPARI_INTERNAL void dpari_kern_scaled(float *to, const float *x, double by, int64_t n);
/* to[i] += x[i], x of BF16 or F16; NaN likewise. */
DPARI_INTERNAL void dpari_kern_add_to(float *to, const void *x, int32_t type, int64_t n);

/* dpari_kern_copy from memory that another core has just written: by lines, asking ahead. */
DPARI_INTERNAL void dpari_kern_fetch(void *to, const void *from, int64_t bytes);
/* Two of dpari_kern_fetch at once, line by line. */
DPARI_INTERNAL void dpari_kern_fetch_beside(void *to, const void *from, void *to_2,
                                            const void *from_2, int64_t bytes);

#endif
