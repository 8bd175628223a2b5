/* SPDX-License-Identifier: MIT-0 */
/* Copies boxes between strided arrays. strided.h has the calls.
 *
 * dpari_stride_prepare does all decisions once: it drops dims of one element, merges dims that are
 * contiguous on both sides, sorts the others, and chooses a loop by run length, types and
 * operation. dpari_stride_run then only walks. Conversions and long sums go through a small buffer.
 * Called by halo_prepare.c, grid.c and mem.c. */
#include "strided.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "elements.h"
#include "kernel.h"
#include "strided_loops.h"

/* The numbers marked "measured" are from an AMD EPYC. */
#define DPARI_STRIDE_ROOM 128 /* elements of a buffer */
#define DPARI_STRIDE_NEAR 64  /* runs whose lines are surely still in the cache afterwards */
#define DPARI_STRIDE_NEAR_BYTES 16384
#define DPARI_STRIDE_FIRST 32768  /* bytes of long runs that are prefetched first (one L1 cache) */
#define DPARI_STRIDE_LONGEST 1024 /* bytes; memcpy is faster for longer rows (measured) */
#define DPARI_STRIDE_ZEROS 256
#define DPARI_STRIDE_FULL 8     /* elements from which a row is combined as a whole (measured) */
#define DPARI_STRIDE_SOME 512   /* elements from which their lines are prefetched (measured) */
#define DPARI_STRIDE_WITHIN 512 /* bytes; sides this close modulo a page disturb each other */
#define DPARI_STRIDE_PAGE 4096
#define DPARI_STRIDE_PACKED 65536 /* bytes up to which boxes are packed (measured) */

static void dpari_stride_ask_to_read(const unsigned char *f)
{
#if defined(__GNUC__)
    __builtin_prefetch(f);
#else
    (void)f;
#endif
}

/* ---- loops over runs ---- */

DPARI_STRIDE_INLINE void dpari_stride_rows_of(const dpari_stride_rows *k, int32_t loop, int zero)
{
    const int apart = dpari_stride_sums(loop);
    const int64_t n = k->n, to_step = k->to_step, from_step = k->from_step;
    const int64_t zero_step = k->zero_step, last = k->run - dpari_stride_width(loop);
    unsigned char *to = k->to, *z_row = k->zero;
    const unsigned char *from = k->from;
    int64_t row, i;
    for (row = k->rows; row > 0; row--) {
        unsigned char *t = to, *z = z_row;
        const unsigned char *f = from;
        for (i = n; i > 0; i--) {
            dpari_stride_one(t, f, apart ? z : dpari_stride_writable(f), last, loop, zero);
            t += to_step;
            f += from_step;
            z += apart ? zero_step : 0;
        }
        to += k->to_row;
        from += k->from_row;
        z_row += apart ? k->zero_row : 0;
    }
}

#if DPARI_STRIDE_WIDE
/* Copies a run of 65 to 1024 bytes. memcpy has a higher cost per call: full halos of 24^3 take 1.9
 * us with it and 1.55 us with this. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void
dpari_stride_middle(unsigned char *t, const unsigned char *f, int64_t run)
{
    const int64_t last = run - 32;
    dpari_stride_u4 a, b, c, d;
    int64_t at = 0;
    for (; at <= last - 96; at += 128) {
        dpari_stride_copy(&a, f + at, 32);
        dpari_stride_copy(&b, f + at + 32, 32);
        dpari_stride_copy(&c, f + at + 64, 32);
        dpari_stride_copy(&d, f + at + 96, 32);
        dpari_stride_copy(t + at, &a, 32);
        dpari_stride_copy(t + at + 32, &b, 32);
        dpari_stride_copy(t + at + 64, &c, 32);
        dpari_stride_copy(t + at + 96, &d, 32);
    }
    for (; at < last; at += 32) {
        dpari_stride_copy(&a, f + at, 32);
        dpari_stride_copy(t + at, &a, 32);
    }
    dpari_stride_copy(&a, f + last, 32);
    dpari_stride_copy(t + last, &a, 32);
}

DPARI_STRIDE_IN_WIDE static void dpari_stride_middle_rows(const dpari_stride_rows *k)
{
    const int64_t n = k->n, to_step = k->to_step, from_step = k->from_step, run = k->run;
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    int64_t row, i;
    for (row = k->rows; row > 0; row--, to += k->to_row, from += k->from_row) {
        unsigned char *t = to;
        const unsigned char *f = from;
        for (i = n; i > 0; i--, t += to_step, f += from_step) {
            dpari_stride_middle(t, f, run);
        }
    }
}
#endif

static void dpari_stride_long_rows(const dpari_stride_rows *k)
{
    const int64_t n = k->n, to_step = k->to_step, from_step = k->from_step, run = k->run;
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    int64_t row, i;
    for (row = k->rows; row > 0; row--, to += k->to_row, from += k->from_row) {
        unsigned char *t = to;
        const unsigned char *f = from;
        for (i = n; i > 0; i--, t += to_step, f += from_step) {
            dpari_stride_copy(t, f, run);
        }
    }
}

DPARI_API DPARI_STRIDE_ALIGNED void dpari_stride_move(const dpari_stride_rows *k, int32_t loop)
{
    const dpari_stride_rows r = *k; /* a copy, so that the loops need not read it again */
    switch (2 * loop + k->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_rows_of(&r, id, 0); break;                                           \
    case 2 * id + 1: dpari_stride_rows_of(&r, id, 1); break;
        DPARI_STRIDE_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_SUMS(DPARI_STRIDE_CASE)
        DPARI_STRIDE_OTHER_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
#if DPARI_STRIDE_WIDE
    case 2 * DPARI_STRIDE_MIDDLE: dpari_stride_middle_rows(k); break;
#endif
    default: dpari_stride_long_rows(k); break;
    }
}

/* Returns the loop that copies runs of so many bytes. */
static int32_t dpari_stride_loop_of(int64_t run)
{
    if (run > 64) {
        return DPARI_STRIDE_LONG;
    }
    if (run > 16) {
        return run > 32 ? DPARI_STRIDE_FOUR_16 : DPARI_STRIDE_TWO_16;
    }
    if (run > 8) {
        return run < 16 ? DPARI_STRIDE_TWO_8 : DPARI_STRIDE_16;
    }
    if (run > 4) {
        return run < 8 ? DPARI_STRIDE_TWO_4 : DPARI_STRIDE_8;
    }
    if (run > 2) {
        return run < 4 ? DPARI_STRIDE_TWO_2 : DPARI_STRIDE_4;
    }
    return run < 2 ? DPARI_STRIDE_1 : DPARI_STRIDE_2;
}

/* ---- through a buffer ---- */

static void dpari_stride_negate(void *values, int64_t count, int32_t type)
{
    const int32_t width = dpar_type_bytes(type);
    const int real = dpari_is_float(type);
    unsigned char *at = (unsigned char *)values;
    int64_t i;
    for (i = 0; i < count; i++, at += width) {
        uint64_t x8;
        uint32_t x4;
        uint16_t x2;
        switch (width) {
        case 8:
            dpari_stride_copy(&x8, at, 8);
            x8 = real ? x8 ^ (UINT64_C(1) << 63) : 0 - x8;
            dpari_stride_copy(at, &x8, 8);
            break;
        case 4:
            dpari_stride_copy(&x4, at, 4);
            x4 = real ? x4 ^ ((uint32_t)1 << 31) : 0 - x4;
            dpari_stride_copy(at, &x4, 4);
            break;
        case 2: /* only floats */
            dpari_stride_copy(&x2, at, 2);
            x2 = (uint16_t)(x2 ^ 0x8000u);
            dpari_stride_copy(at, &x2, 2);
            break;
        default: *at = (unsigned char)(0 - *at); break;
        }
    }
}

/* Copies to a dense buffer, whose rows follow each other; the next function copies from one. */
static void dpari_stride_gather(void *dense, const dpari_stride_rows *k, int32_t size)
{
    dpari_stride_rows g = *k;
    g.to = (unsigned char *)dense;
    g.to_step = g.run = size;
    g.to_row = k->n * size;
    dpari_stride_move(&g, dpari_stride_loop_of(size));
}

static void dpari_stride_scatter(const dpari_stride_rows *k, const void *dense, int32_t size)
{
    dpari_stride_rows g = *k;
    g.from = (const unsigned char *)dense;
    g.from_step = g.run = size;
    g.from_row = k->n * size;
    dpari_stride_move(&g, dpari_stride_loop_of(size));
}

/* Converts, negates and combines at most DPARI_STRIDE_ROOM elements in a buffer. */
static void dpari_stride_small(const dpari_stride *s, const dpari_stride_rows *k)
{
    uint64_t room[2][DPARI_STRIDE_ROOM];
    const int32_t from_size = dpar_type_bytes(s->from_type), to_size = dpar_type_bytes(s->to_type);
    const int64_t count = k->n * k->rows;
    const void *in[2];
    void *out = room[1], *value = room[0];
    dpari_stride_rows target = *k;
    dpari_stride_gather(value, k, from_size);
    if (s->through != s->from_type) {
        dpari_kern_convert(room[1], s->through, room[0], s->from_type, count);
        value = room[1];
        out = room[0];
    }
    if (s->through != s->to_type) {
        void *before = value;
        dpari_kern_convert(out, s->to_type, value, s->through, count);
        value = out;
        out = before;
    }
    if (s->negate) {
        dpari_stride_negate(value, count, s->to_type);
    }
    if (s->op != DPAR_COPY) {
        target.from = k->to;
        target.from_step = k->to_step;
        target.from_row = k->to_row;
        dpari_stride_gather(out, &target, to_size);
        in[0] = out;
        in[1] = value;
        dpari_kern_reduce(&value, 1, in, 2, count, s->to_type, s->op, 0);
    }
    dpari_stride_scatter(k, value, to_size);
}

/* Adds rows with the results of dpari_kern_reduce but without the cost of a call, because rows of a
 * box are short. First, single elements until vectors are aligned, because a vector across two
 * lines is stored twice. Then four vectors at a time, as long as their sum is not NaN, which it is
 * if one element is NaN. Then single vectors, and last the remaining elements. */
#if DPARI_STRIDE_VECTOR
/* A row: a pointer into each array, and its end. If `zero` is set, what was read becomes 0. */
typedef struct dpari_stride_sides {
    unsigned char *t;
    const unsigned char *f, *end;
    int zero;
} dpari_stride_sides;

/* Adds up to `end`, `width` bytes at a time: elements, or vectors. */
DPARI_STRIDE_INLINE void dpari_stride_dense_by(dpari_stride_sides *d, const unsigned char *end,
                                               int32_t width, int32_t f64)
{
    for (; end - d->f >= width; d->t += width, d->f += width) {
        if (width == 16) {
            dpari_stride_sum_run(d->t, d->f, 0, 16, 1, f64);
        } else if (f64) {
            dpari_stride_sum_f64(d->t, d->f);
        } else {
            dpari_stride_sum_f32(d->t, d->f);
        }
        if (d->zero) {
            dpari_stride_zero_run(dpari_stride_writable(d->f), 0, width, 1);
        }
    }
}

DPARI_STRIDE_INLINE void dpari_stride_dense_four(dpari_stride_sides *d, int32_t f64)
{
    for (; d->end - d->f >= 64; d->t += 64, d->f += 64) {
        const dpari_stride_u2 a =
            dpari_stride_plus(dpari_stride_get(d->t, 16), dpari_stride_get(d->f, 16), f64);
        const dpari_stride_u2 b = dpari_stride_plus(dpari_stride_get(d->t + 16, 16),
                                                    dpari_stride_get(d->f + 16, 16), f64);
        const dpari_stride_u2 c = dpari_stride_plus(dpari_stride_get(d->t + 32, 16),
                                                    dpari_stride_get(d->f + 32, 16), f64);
        const dpari_stride_u2 e = dpari_stride_plus(dpari_stride_get(d->t + 48, 16),
                                                    dpari_stride_get(d->f + 48, 16), f64);
        const dpari_stride_u2 all =
            dpari_stride_plus(dpari_stride_plus(a, b, f64), dpari_stride_plus(c, e, f64), f64);
        if (dpari_stride_any(dpari_stride_nan(all, f64))) {
            break;
        }
        dpari_stride_put(d->t, a, 16);
        dpari_stride_put(d->t + 16, b, 16);
        dpari_stride_put(d->t + 32, c, 16);
        dpari_stride_put(d->t + 48, e, 16);
        if (d->zero) {
            dpari_stride_zero_run(dpari_stride_writable(d->f), 48, 16, 4);
        }
    }
}

#if DPARI_STRIDE_WIDE
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE int dpari_stride_nan_wide(const dpari_stride_u4 *x,
                                                                   int32_t f64)
{
    const dpari_stride_f8 mask =
        f64 ? (dpari_stride_f8)((dpari_stride_d4)*x != (dpari_stride_d4)*x)
            : (dpari_stride_f8)((dpari_stride_f8)*x != (dpari_stride_f8)*x);
    return __builtin_expect(__builtin_ia32_movmskps256(mask) != 0, 0) != 0;
}

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_dense_wide(dpari_stride_sides *d,
                                                                      int32_t f64)
{
    const dpari_stride_u4 zero = {0, 0, 0, 0};
    unsigned char *read;
    for (; d->end - d->f >= 128; d->t += 128, d->f += 128) {
        const dpari_stride_u4 a = dpari_stride_met_wide(d->t, d->f, f64);
        const dpari_stride_u4 b = dpari_stride_met_wide(d->t + 32, d->f + 32, f64);
        const dpari_stride_u4 c = dpari_stride_met_wide(d->t + 64, d->f + 64, f64);
        const dpari_stride_u4 e = dpari_stride_met_wide(d->t + 96, d->f + 96, f64);
        const dpari_stride_u4 ab = dpari_stride_plus_wide(&a, &b, f64);
        const dpari_stride_u4 ce = dpari_stride_plus_wide(&c, &e, f64);
        const dpari_stride_u4 all = dpari_stride_plus_wide(&ab, &ce, f64);
        if (dpari_stride_nan_wide(&all, f64)) {
            break;
        }
        dpari_stride_copy(d->t, &a, 32);
        dpari_stride_copy(d->t + 32, &b, 32);
        dpari_stride_copy(d->t + 64, &c, 32);
        dpari_stride_copy(d->t + 96, &e, 32);
        if (d->zero) {
            read = dpari_stride_writable(d->f);
            dpari_stride_copy(read, &zero, 32);
            dpari_stride_copy(read + 32, &zero, 32);
            dpari_stride_copy(read + 64, &zero, 32);
            dpari_stride_copy(read + 96, &zero, 32);
        }
    }
    for (; d->end - d->f >= 32; d->t += 32, d->f += 32) {
        const dpari_stride_u4 a = dpari_stride_met_wide(d->t, d->f, f64);
        if (dpari_stride_nan_wide(&a, f64)) {
            break;
        }
        dpari_stride_copy(d->t, &a, 32);
        if (d->zero) {
            dpari_stride_copy(dpari_stride_writable(d->f), &zero, 32);
        }
    }
}
#endif

/* Begins a row of `bytes` bytes at d->t and d->f. width: bytes of the vectors that are aligned. */
DPARI_STRIDE_INLINE void dpari_stride_dense_begin(dpari_stride_sides *d, int64_t bytes,
                                                  int32_t width, int32_t f64)
{
    const uintptr_t first = (0 - (uintptr_t)d->t) % (uintptr_t)width;
    d->end = d->f + bytes;
    dpari_stride_dense_by(d, d->f + dpari_least((int64_t)first, bytes), f64 ? 8 : 4, f64);
}

DPARI_STRIDE_INLINE void dpari_stride_dense_end(dpari_stride_sides *d, int32_t f64)
{
    dpari_stride_dense_by(d, d->end, 16, f64);
    dpari_stride_dense_by(d, d->end, f64 ? 8 : 4, f64);
}

DPARI_STRIDE_INLINE void dpari_stride_dense_of(const dpari_stride_rows *k, int32_t f64)
{
    const int64_t bytes = k->n * (f64 ? 8 : 4);
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    dpari_stride_sides d;
    int64_t row;
    d.zero = k->zeroes;
    for (row = k->rows; row > 0; row--, to += k->to_row, from += k->from_row) {
        d.t = to;
        d.f = from;
        dpari_stride_dense_begin(&d, bytes, 16, f64);
        dpari_stride_dense_four(&d, f64);
        dpari_stride_dense_end(&d, f64);
    }
}

DPARI_STATIC_NOINLINE void dpari_stride_dense_f32(const dpari_stride_rows *k)
{
    dpari_stride_dense_of(k, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_dense_f64(const dpari_stride_rows *k)
{
    dpari_stride_dense_of(k, 1);
}

#if DPARI_STRIDE_WIDE
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_wide_of(const dpari_stride_rows *k,
                                                                   int32_t f64, int zero)
{
    const int64_t bytes = k->n * (f64 ? 8 : 4);
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    dpari_stride_sides d;
    int64_t row;
    d.zero = zero;
    for (row = k->rows; row > 0; row--, to += k->to_row, from += k->from_row) {
        d.t = to;
        d.f = from;
        dpari_stride_dense_begin(&d, bytes, 32, f64);
        dpari_stride_dense_wide(&d, f64);
        dpari_stride_dense_by(&d, d.end, f64 ? 8 : 4, f64);
    }
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void dpari_stride_wide_f32(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 0, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void dpari_stride_wide_f64(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 1, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_wide_zero_f32(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 0, 1);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_wide_zero_f64(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 1, 1);
}
#endif

typedef void dpari_stride_loop(const dpari_stride_rows *k);

/* Returns the loop for a dense row, or NULL if there is none. clear: what was read becomes 0; it
 * must agree with k->zeroes. */
static dpari_stride_loop *dpari_stride_dense_loop(const dpari_stride *s, int clear)
{
    const int32_t f64 = s->to_type == DPAR_F64;
    if (s->op != DPAR_SUM || (!f64 && s->to_type != DPAR_F32)) {
        return NULL;
    }
#if DPARI_STRIDE_WIDE
    if (s->wide) {
        if (clear) {
            return f64 ? dpari_stride_wide_zero_f64 : dpari_stride_wide_zero_f32;
        }
        return f64 ? dpari_stride_wide_f64 : dpari_stride_wide_f32;
    }
#endif
    (void)clear;
    return f64 ? dpari_stride_dense_f64 : dpari_stride_dense_f32;
}

/* True if two addresses are twins, which means that a Zen core keeps only one of their lines in its
 * first-level cache. It finds lines there by bits 6 to 11 of their addresses and by a hash: bits 12
 * to 19, each xor one of 27, 26, 25, 20 to 24 (Lipp et al. 2020, "Take A Way"). Lines that agree in
 * both are twins. */
static int dpari_stride_twins(const unsigned char *t, const unsigned char *f)
{
    const uint64_t both = (uint64_t)((uintptr_t)t ^ (uintptr_t)f), high = both >> 20;
    return (((both >> 12) ^ (high >> 7 & 1) ^ (high >> 5 & 2) ^ (high >> 3 & 4) ^ high << 3) &
            255) == 0;
}

/* Adds rows through the buffer `room`, and sets to 0 what was read. */
static void dpari_stride_add_aside(const dpari_stride_rows *k, unsigned char *room,
                                   dpari_stride_loop *add, int64_t size)
{
    const int64_t bytes = k->n * size;
    dpari_stride_rows aside = *k;
    aside.to = room;
    aside.to_row = bytes;
    aside.zero = dpari_stride_writable(k->from);
    aside.zero_row = k->from_row;
    aside.run = bytes % 16 == 0 ? 16 : 8;
    aside.to_step = aside.from_step = aside.zero_step = aside.run;
    aside.n = bytes / aside.run;
    dpari_stride_move(&aside, bytes % 16 == 0 ? DPARI_STRIDE_16 : DPARI_STRIDE_8);
    aside = *k;
    aside.from = room;
    aside.from_row = bytes;
    aside.zeroes = 0;
    add(&aside);
}

/* Adds rows and sets to 0 what was read. If rows are twins, each access would evict a line that the
 * next one needs. They are copied to a buffer first, as many as fit. For 64^3 with halos of 2,
 * where a quarter of the rows are twins, this takes 15 us instead of 17.5. */
static void dpari_stride_dense_clear(const dpari_stride *s, const dpari_stride_rows *k)
{
    unsigned char room[DPARI_STRIDE_PACK];
    const int64_t size = dpar_type_bytes(s->to_type), most = (int64_t)sizeof room / size;
    dpari_stride_loop *add = dpari_stride_dense_loop(s, 0), *both = dpari_stride_dense_loop(s, 1);
    dpari_stride_rows some = *k;
    int64_t at, row, group;
    if (k->to_row != k->from_row || k->n * size % 8 != 0 ||
        ((uintptr_t)k->to - (uintptr_t)k->from + DPARI_STRIDE_WITHIN) % DPARI_STRIDE_PAGE >
            2 * DPARI_STRIDE_WITHIN) {
        both(k);
        return;
    }
    for (at = 0; at < k->n; at += some.n) {
        some.n = dpari_least(k->n - at, most);
        group = most / some.n;
        for (row = 0; row < k->rows; row += some.rows) {
            some.to = k->to + at * size + row * k->to_row;
            some.from = k->from + at * size + row * k->from_row;
            some.rows = dpari_least(k->rows - row, group);
            if (dpari_stride_twins(some.to, some.from)) {
                dpari_stride_add_aside(&some, room, add, size);
                continue;
            }
            while (some.rows < k->rows - row &&
                   !dpari_stride_twins(some.to + some.rows * k->to_row,
                                       some.from + some.rows * k->from_row)) {
                some.rows = dpari_least(k->rows - row, some.rows + group);
            }
            both(&some);
        }
    }
}
#endif

/* Combines dense rows. Returns 1 if what was read is 0 already, if it must be. */
static int dpari_stride_dense(const dpari_stride *s, const dpari_stride_rows *k)
{
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    int64_t row;
#if DPARI_STRIDE_VECTOR
    dpari_stride_loop *loop = dpari_stride_dense_loop(s, 0);
    if (loop && k->zeroes) {
        dpari_stride_dense_clear(s, k);
        return 1;
    }
    if (loop) {
        loop(k);
        return 1;
    }
#endif
    for (row = 0; row < k->rows; row++, to += k->to_row, from += k->from_row) {
        const void *in[2];
        void *out = to;
        in[0] = to;
        in[1] = from;
        dpari_kern_reduce(&out, 1, in, 2, k->n, s->to_type, s->op, 0);
    }
    return 0;
}

/* ---- the walk ---- */

/* Sets to 0 what was read, which is still in the cache. */
DPARI_STATIC_NOINLINE void dpari_stride_wipe(const dpari_stride_rows *k, int64_t run, int32_t loop)
{
    static const unsigned char zero[DPARI_STRIDE_ZEROS] = {0};
    dpari_stride_rows z = *k;
    const unsigned char *from = k->from;
    int64_t at;
    z.from = zero;
    z.from_step = z.from_row = 0;
    z.zeroes = 0;
    z.to_step = k->from_step;
    z.to_row = k->from_row;
    for (at = 0; at < run; at += z.run) {
        z.run = run - at < DPARI_STRIDE_ZEROS ? run - at : DPARI_STRIDE_ZEROS;
        z.to = dpari_stride_writable(from + at);
        dpari_stride_move(&z, z.run > 64 ? loop : dpari_stride_loop_of(z.run));
    }
}

/* Packs runs into lines that another core has used last. They are gathered in a local buffer while
 * those lines are fetched, and then stored in one piece, as whole lines. At most DPARI_STRIDE_PACK
 * bytes. */
static void dpari_stride_pack(const dpari_stride *s, const dpari_stride_rows *k)
{
    unsigned char room[DPARI_STRIDE_PACK];
    dpari_stride_rows nearby = *k;
    const int64_t row = k->n * s->run;
    dpari_stride_ask_lines(k->to, k->rows * row);
    nearby.to = room;
    nearby.to_row = row;
    dpari_stride_move(&nearby, s->loop);
    dpari_stride_copy(k->to, room, k->rows * row);
}

/* Runs `rows` rows of n runs. */
static void dpari_stride_some(const dpari_stride *s, unsigned char *to, const unsigned char *from,
                              int64_t rows, int64_t n)
{
    dpari_stride_rows k;
    k.to = to;
    k.from = from;
    k.rows = rows;
    k.n = n;
    dpari_stride_steps(s, &k);
    if (s->packs) {
        dpari_stride_pack(s, &k);
        return;
    }
    switch (s->loop) {
    case DPARI_STRIDE_DENSE:
        k.zeroes = s->clear;
        if (dpari_stride_dense(s, &k)) {
            return;
        }
        break;
    case DPARI_STRIDE_BUFFER: dpari_stride_small(s, &k); break;
    default: dpari_stride_move(&k, s->loop); break;
    }
    if (s->clear && !dpari_stride_zeroes(s->loop)) {
        dpari_stride_wipe(
            &k, s->loop < DPARI_STRIDE_SUM_F32 ? s->run : dpar_type_bytes(s->from_type), s->loop);
    }
}

DPARI_API void dpari_stride_ask_ahead(const dpari_stride *s, const unsigned char *to,
                                      const unsigned char *from, int64_t after, int64_t bytes)
{
    const int64_t line = s->back ? -DPARI_STRIDE_LINE : DPARI_STRIDE_LINE;
    const unsigned char *at = s->ahead == DPARI_STRIDE_TO ? to : from;
    at += s->back ? -after : after;
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += line) {
        if (s->ahead == DPARI_STRIDE_FROM) {
            dpari_stride_ask_to_read(at);
        } else {
            dpari_stride_ask_line(at);
        }
    }
}

/* Runs `rows` rows of each piece, in turns of `turn` elements of each. */
static void dpari_stride_turns(const dpari_stride *const *s, unsigned char *const *to,
                               const unsigned char *const *from, int32_t pieces, int64_t row,
                               int64_t rows, int64_t turn)
{
    const int64_t n = s[0]->dim[0].count;
    int64_t at;
    int32_t p;
    for (at = 0; at < n; at += turn) {
        const int64_t some = n - at < turn ? n - at : turn;
        for (p = 0; p < pieces; p++) {
            unsigned char *t = to[p] + row * s[p]->dim[1].to + at * s[p]->dim[0].to;
            const unsigned char *f = from[p] + row * s[p]->dim[1].from + at * s[p]->dim[0].from;
            if (s[p]->asks) {
                dpari_stride_ask(s[p], t, rows, some);
            }
            dpari_stride_ask_ahead(s[p], t, f, DPARI_STRIDE_AHEAD, rows * some * s[p]->each);
        }
        for (p = 0; p < pieces; p++) {
            dpari_stride_some(s[p], to[p] + row * s[p]->dim[1].to + at * s[p]->dim[0].to,
                              from[p] + row * s[p]->dim[1].from + at * s[p]->dim[0].from, rows,
                              some);
        }
    }
}

DPARI_API void dpari_stride_walk(const dpari_stride *const *s, unsigned char **to,
                                 const unsigned char **from, int32_t pieces, int64_t part,
                                 int64_t turn)
{
    int64_t index[DPARI_STRIDE_DIMS] = {0};
    const int64_t rows = s[0]->dim[1].count;
    int32_t p, d;
    for (p = 0; p < pieces; p++) {
        dpari_stride_ask_ahead(s[p], to[p], from[p], 0, s[p]->first);
    }
    for (;;) {
        int64_t row;
        for (row = 0; row < rows; row += part) {
            dpari_stride_turns(s, to, from, pieces, row, rows - row < part ? rows - row : part,
                               turn);
        }
        for (d = 2; d < s[0]->dims && ++index[d] == s[0]->dim[d].count; d++) {
            for (p = 0; p < pieces; p++) {
                to[p] -= (index[d] - 1) * s[p]->dim[d].to;
                from[p] -= (index[d] - 1) * s[p]->dim[d].from;
            }
            index[d] = 0;
        }
        if (d >= s[0]->dims) {
            return;
        }
        for (p = 0; p < pieces; p++) {
            to[p] += s[p]->dim[d].to;
            from[p] += s[p]->dim[d].from;
        }
    }
}

DPARI_API void dpari_stride_run(const dpari_stride *s, void *to, const void *from)
{
    unsigned char *t = (unsigned char *)to + s->to_start;
    const unsigned char *f = (const unsigned char *)from + s->from_start;
    if (s->simple) {
        dpari_stride_ask_ahead(s, t, f, 0, s->first);
        dpari_stride_some(s, t, f, s->dim[1].count, s->dim[0].count);
    } else if (s->loop != DPARI_STRIDE_NONE) {
        dpari_stride_walk(&s, &t, &f, 1, s->part, s->turn);
    }
}

/* ---- preparing ---- */

/* Lists the dims of more than one element, with steps in bytes, ordered by step from the smallest
 * one. Dims that go backwards on both sides are reversed. */
static void dpari_stride_sort(dpari_stride *s, const dpari_stride_piece *p)
{
    const int64_t to_size = dpar_type_bytes(p->to_type), from_size = dpar_type_bytes(p->from_type);
    int32_t d, i;
    for (d = p->dims - 1; d >= 0; d--) {
        const int64_t n = p->extent[d];
        int64_t to = p->to[d] * to_size, from = p->from[d] * from_size;
        if (n == 1) {
            continue;
        }
        if (to < 0 && from <= 0) {
            s->to_start += (n - 1) * to;
            s->from_start += (n - 1) * from;
            to = -to;
            from = -from;
        }
        for (i = s->dims;
             i > 0 && dpari_stride_size(s->dim[i - 1].to) + dpari_stride_size(s->dim[i - 1].from) >
                          dpari_stride_size(to) + dpari_stride_size(from);
             i--) {
            s->dim[i] = s->dim[i - 1];
        }
        s->dim[i].count = n;
        s->dim[i].to = to;
        s->dim[i].from = from;
        s->dims++;
    }
}

/* Removes dim d. */
DPARI_STATIC_NOINLINE void dpari_stride_drop(dpari_stride *s, int32_t d)
{
    for (s->dims--; d < s->dims; d++) {
        s->dim[d] = s->dim[d + 1];
    }
}

/* Merges a dim with the one below it if it continues where that one ends on both sides. */
static void dpari_stride_merge(dpari_stride *s)
{
    int32_t d = 0;
    while (d + 1 < s->dims) {
        if (s->dim[d + 1].to == s->dim[d].count * s->dim[d].to &&
            s->dim[d + 1].from == s->dim[d].count * s->dim[d].from) {
            const int64_t n = s->dim[d].count * s->dim[d + 1].count;
            dpari_stride_drop(s, d + 1);
            s->dim[d].count = n;
        } else {
            d++;
        }
    }
}

/* Exchanges a dim of less than 8 elements with the next one if that is longer, because a short loop
 * is slow. */
DPARI_STATIC_NOINLINE void dpari_stride_lengthen(dpari_stride *s, int32_t d)
{
    if (s->dims > d + 1 && s->dim[d].count < 8 && s->dim[d + 1].count > s->dim[d].count) {
        const dpari_stride_dim first = s->dim[d];
        s->dim[d] = s->dim[d + 1];
        s->dim[d + 1] = first;
    }
}

/* Chooses the loop for a box that is not just copied. `together` is set if the innermost dim is
 * contiguous. */
static int32_t dpari_stride_choose(const dpari_stride *s, int together)
{
    static const int32_t f32[DPARI_STRIDE_FULL] = {DPARI_STRIDE_NONE,      DPARI_STRIDE_SUM_F32,
                                                   DPARI_STRIDE_SUM_F32_2, DPARI_STRIDE_SUM_F32_3,
                                                   DPARI_STRIDE_SUM_F32_4, DPARI_STRIDE_SUM_F32_7,
                                                   DPARI_STRIDE_SUM_F32_7, DPARI_STRIDE_SUM_F32_7};
    static const int32_t f64[DPARI_STRIDE_FULL] = {DPARI_STRIDE_NONE,      DPARI_STRIDE_SUM_F64,
                                                   DPARI_STRIDE_SUM_F64_2, DPARI_STRIDE_SUM_F64_4,
                                                   DPARI_STRIDE_SUM_F64_4, DPARI_STRIDE_SUM_F64_7,
                                                   DPARI_STRIDE_SUM_F64_7, DPARI_STRIDE_SUM_F64_7};
    const int plain =
        s->op != DPAR_COPY && s->from_type == s->to_type && s->through == s->to_type && !s->negate;
    if (plain && together && s->dim[0].count >= DPARI_STRIDE_FULL) {
        return DPARI_STRIDE_DENSE;
    }
    if (plain && DPARI_STRIDE_ADDS && s->op == DPAR_SUM) {
        if (s->to_type == DPAR_F64) {
            return f64[DPARI_STRIDE_VECTOR && together ? s->dim[0].count : 1];
        }
        if (s->to_type == DPAR_F32) {
            return f32[DPARI_STRIDE_VECTOR && together ? s->dim[0].count : 1];
        }
    }
    return DPARI_STRIDE_BUFFER;
}

static void dpari_stride_turn_back(dpari_stride *s)
{
    int32_t d;
    for (d = 0; d < s->dims; d++) {
        if (s->loop == DPARI_STRIDE_DENSE && d == 0) {
            continue;
        }
        s->to_start += (s->dim[d].count - 1) * s->dim[d].to;
        s->from_start += (s->dim[d].count - 1) * s->dim[d].from;
        s->dim[d].to = -s->dim[d].to;
        s->dim[d].from = -s->dim[d].from;
    }
}

/* Plans how memory that another core has is prefetched. Short runs are prefetched as the walk
 * proceeds. Long runs are prefetched at the beginning if they are written; when they are read, a
 * core prefetches them by itself. Returns how many runs or elements may be moved at a time. */
static int64_t dpari_stride_plan_ahead(dpari_stride *s, const dpari_stride_piece *p, int64_t room)
{
    const int32_t size = dpar_type_bytes(p->ahead == DPARI_STRIDE_TO ? p->to_type : p->from_type);
    const int64_t bytes = s->elements * size;
    s->ahead = p->ahead;
    s->back = p->back;
    if (s->ahead == 0 || bytes < DPARI_STRIDE_AHEAD / 2) {
        return room;
    }
    if (s->loop == DPARI_STRIDE_LONG || s->loop == DPARI_STRIDE_MIDDLE) {
        s->first = s->ahead == DPARI_STRIDE_TO ? dpari_least(bytes, DPARI_STRIDE_FIRST) : 0;
        return room;
    }
    s->packs = p->ahead == DPARI_STRIDE_TO && !p->back && s->loop < DPARI_STRIDE_LONG &&
               bytes <= DPARI_STRIDE_PACKED && s->dim[0].to == s->run &&
               s->dim[0].count * s->run <= DPARI_STRIDE_PACK &&
               (s->dims < 2 || s->dim[1].to == s->dim[0].count * s->run);
    if (s->packs) {
        return dpari_least(room, DPARI_STRIDE_PACK / s->run);
    }
    if (s->loop != DPARI_STRIDE_DENSE) {
        s->first = DPARI_STRIDE_AHEAD;
        s->each = s->loop == DPARI_STRIDE_BUFFER ? size : s->run;
        return s->loop == DPARI_STRIDE_BUFFER ? room : dpari_least(room, DPARI_STRIDE_TURN);
    }
    return room;
}

static void dpari_stride_plan(dpari_stride *s, const dpari_stride_piece *p)
{
    const int32_t size = dpar_type_bytes(s->from_type);
    const int together =
        s->dims > 0 && s->dim[0].to == dpar_type_bytes(s->to_type) && s->dim[0].from == size;
    int64_t room = INT64_MAX;
    s->run = together ? s->dim[0].count * size : size;
    if (s->op == DPAR_COPY && s->from_type == s->to_type && s->through == s->to_type &&
        !s->negate) {
        if (together) {
            dpari_stride_drop(s, 0);
        }
        s->loop = p->wide && s->run > 64 && s->run <= DPARI_STRIDE_LONGEST
                      ? DPARI_STRIDE_MIDDLE
                      : dpari_stride_loop_of(s->run);
    } else {
        s->loop = dpari_stride_choose(s, together);
        if (dpari_stride_sums(s->loop)) {
            if (s->loop != DPARI_STRIDE_SUM_F32 && s->loop != DPARI_STRIDE_SUM_F64) {
                dpari_stride_drop(s, 0);
            } else {
                s->run = size;
            }
        }
    }
    if (dpari_stride_sums(s->loop) && !s->clear) {
        s->beside = p->beside * size;
    }
    if (s->loop == DPARI_STRIDE_DENSE) {
        dpari_stride_lengthen(s, 1);
    } else if (s->run <= 64) {
        dpari_stride_lengthen(s, 0);
    }
    for (int32_t d = s->dims; d < DPARI_STRIDE_DIMS; d++) {
        s->dim[d].count = 1;
        s->dim[d].to = s->dim[d].from = 0;
    }
    if (s->loop == DPARI_STRIDE_BUFFER) {
        room = DPARI_STRIDE_ROOM;
    } else if (s->clear) {
        room = DPARI_STRIDE_NEAR;
        if (s->loop == DPARI_STRIDE_DENSE) {
            room = DPARI_STRIDE_NEAR_BYTES / size;
        } else if (s->run > DPARI_STRIDE_NEAR_BYTES / DPARI_STRIDE_NEAR) {
            room = 1 + DPARI_STRIDE_NEAR_BYTES / s->run;
        }
    }
    if (s->loop < DPARI_STRIDE_LONG && s->elements >= DPARI_STRIDE_SOME &&
        dpari_stride_size(s->dim[0].to) >= 64 && dpari_stride_size(s->dim[0].from) < 64) {
        s->asks = 1;
        room = room < DPARI_STRIDE_TURN ? room : DPARI_STRIDE_TURN;
    }
    room = dpari_stride_plan_ahead(s, p, room);
    if (p->back) {
        dpari_stride_turn_back(s);
    }
    s->turn = room < s->dim[0].count ? room : s->dim[0].count;
    s->part = room / s->turn;
    s->simple = !s->asks && s->each == 0 && s->dims <= 2 && s->turn == s->dim[0].count &&
                s->part >= s->dim[1].count;
}

DPARI_API DPARI_COLD void dpari_stride_prepare(dpari_stride *s, const dpari_stride_piece *p)
{
    const int32_t width = dpar_type_bytes(p->through);
    int32_t d;
    s->loop = DPARI_STRIDE_NONE;
    s->dims = s->asks = s->ahead = s->back = 0;
    s->first = s->each = 0;
    s->simple = s->packs = 0;
    s->wide = p->wide;
    s->beside = 0;
    s->run = s->part = s->turn = s->to_start = s->from_start = 0;
    s->to_type = p->to_type;
    s->from_type = p->from_type;
    s->through =
        width > 0 && width < dpar_type_bytes(p->to_type) && width < dpar_type_bytes(p->from_type)
            ? p->through
            : p->from_type;
    s->op = p->op;
    s->negate = p->negate;
    s->clear = p->clear;
    s->elements = 1;
    for (d = 0; d < p->dims; d++) {
        s->elements *= p->extent[d];
    }
    if (s->elements > 0) {
        dpari_stride_sort(s, p);
        dpari_stride_merge(s);
        dpari_stride_plan(s, p);
    }
}
