/* SPDX-License-Identifier: MIT-0 */
/* Copies boxes between strided arrays. strided.h has the calls.
 *
 * dpari_stride_prepare makes all decisions once: it drops dims of one element, merges dims that are
 * contiguous on both sides, sorts the others, and chooses a loop by run length, types and
 * operation. dpari_stride_run then only walks. Conversions and long sums go through a small buffer.
 * Called by halo_prepare.c, grid_mirrors.c and mem.c. */
#include "strided.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "elements.h"
#include "kernel.h"
#include "strided_loops.h"

/* The numbers marked "measured" are from an AMD EPYC. */
#define DPARI_STRIDE_ROOM 128 /* elements of a buffer */
#define DPARI_STRIDE_NEAR 64  /* runs whose lines are surely all still in the cache afterwards */
#define DPARI_STRIDE_NEAR_BYTES 16384
#define DPARI_STRIDE_FIRST 32768  /* bytes of long runs that are prefetched first (one L1 cache) */
#define DPARI_STRIDE_LONGEST 1024 /* bytes; memcpy is faster for longer rows (measured) */
#define DPARI_STRIDE_ZEROS 256
#define DPARI_STRIDE_FULL 8     /* elements from which a row is combined as a whole (measured) */
#define DPARI_STRIDE_SOME 512   /* number of elements from which lines are prefetched (measured) */
#define DPARI_STRIDE_WITHIN 512 /* bytes; sides this close modulo a page evict each other */
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

DPARI_STRIDE_INLINE void dpari_stride_rows_of(const dpari_stride_rows *rows, int32_t loop, int zero)
{
    const int apart = dpari_stride_sums(loop);
    const int64_t n = rows->n, to_step = rows->to_step, from_step = rows->from_step;
    const int64_t zero_step = rows->zero_step, last = rows->run - dpari_stride_width(loop);
    unsigned char *to = rows->to, *z_row = rows->zero;
    const unsigned char *from = rows->from;
    int64_t row, i;
    for (row = rows->rows; row > 0; row--) {
        unsigned char *t = to, *z = z_row;
        const unsigned char *f = from;
        for (i = n; i > 0; i--) {
            dpari_stride_one(t, f, apart ? z : dpari_stride_writable(f), last, loop, zero);
            t += to_step;
            f += from_step;
            z += apart ? zero_step : 0;
        }
        to += rows->to_row;
        from += rows->from_row;
        z_row += apart ? rows->zero_row : 0;
    }
}

#if DPARI_STRIDE_WIDE
/* Copies a run of 65 to 1024 bytes. memcpy has a higher cost per call: full halos of 24^3 take 1.9
 * us with it and 1.55 us with this. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void
dpari_stride_middle(unsigned char *t, const unsigned char *f, int64_t run)
{
    const int64_t last = run - 32;
    dpari_stride_u4 v[4];
    int64_t at = 0;
    for (; at <= last - 96; at += 128) {
        DPARI_FOUR(dpari_stride_copy(&v[q], f + at + 32 * q, 32));
        DPARI_FOUR(dpari_stride_copy(t + at + 32 * q, &v[q], 32));
    }
    for (; at < last; at += 32) {
        dpari_stride_copy(&v[0], f + at, 32);
        dpari_stride_copy(t + at, &v[0], 32);
    }
    dpari_stride_copy(&v[0], f + last, 32);
    dpari_stride_copy(t + last, &v[0], 32);
}

DPARI_STRIDE_IN_WIDE static void dpari_stride_middle_rows(const dpari_stride_rows *rows)
{
    const int64_t n = rows->n, to_step = rows->to_step, from_step = rows->from_step,
                  run = rows->run;
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t row, i;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        unsigned char *t = to;
        const unsigned char *f = from;
        for (i = n; i > 0; i--, t += to_step, f += from_step) {
            dpari_stride_middle(t, f, run);
        }
    }
}
#endif

static void dpari_stride_long_rows(const dpari_stride_rows *rows)
{
    const int64_t n = rows->n, to_step = rows->to_step, from_step = rows->from_step,
                  run = rows->run;
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t row, i;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        unsigned char *t = to;
        const unsigned char *f = from;
        for (i = n; i > 0; i--, t += to_step, f += from_step) {
            dpari_stride_copy(t, f, run);
        }
    }
}

DPARI_API DPARI_STRIDE_ALIGNED void dpari_stride_move(const dpari_stride_rows *rows, int32_t loop)
{
    const dpari_stride_rows r = *rows; /* a copy, so that the loops need not read it again */
    switch (2 * loop + rows->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_rows_of(&r, id, 0); break;                                           \
    case 2 * id + 1: dpari_stride_rows_of(&r, id, 1); break;
        DPARI_STRIDE_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_SUMS(DPARI_STRIDE_CASE)
        DPARI_STRIDE_OTHER_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
#if DPARI_STRIDE_WIDE
    case 2 * DPARI_STRIDE_MIDDLE: dpari_stride_middle_rows(rows); break;
#endif
    default: dpari_stride_long_rows(rows); break;
    }
}

/* Returns the loop that copies runs of `run` bytes. */
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
static void dpari_stride_gather(void *dense, const dpari_stride_rows *rows, int32_t size)
{
    dpari_stride_rows g = *rows;
    g.to = (unsigned char *)dense;
    g.to_step = g.run = size;
    g.to_row = rows->n * size;
    dpari_stride_move(&g, dpari_stride_loop_of(size));
}

static void dpari_stride_scatter(const dpari_stride_rows *rows, const void *dense, int32_t size)
{
    dpari_stride_rows g = *rows;
    g.from = (const unsigned char *)dense;
    g.from_step = g.run = size;
    g.from_row = rows->n * size;
    dpari_stride_move(&g, dpari_stride_loop_of(size));
}

/* Converts, negates and combines at most DPARI_STRIDE_ROOM elements in a buffer. */
static void dpari_stride_small(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    uint64_t room[2][DPARI_STRIDE_ROOM];
    const int32_t from_size = stride->from_bytes, to_size = stride->to_bytes;
    const int64_t count = rows->n * rows->rows;
    const void *in[2];
    void *out = room[1], *value = room[0];
    dpari_stride_rows target = *rows;
    dpari_stride_gather(value, rows, from_size);
    if (stride->through != stride->from_type) {
        dpari_kern_convert(room[1], stride->through, room[0], stride->from_type, count);
        value = room[1];
        out = room[0];
    }
    if (stride->through != stride->to_type) {
        void *before = value;
        dpari_kern_convert(out, stride->to_type, value, stride->through, count);
        value = out;
        out = before;
    }
    if (stride->negate) {
        dpari_stride_negate(value, count, stride->to_type);
    }
    if (stride->op != DPAR_COPY) {
        target.from = rows->to;
        target.from_step = rows->to_step;
        target.from_row = rows->to_row;
        dpari_stride_gather(out, &target, to_size);
        in[0] = out;
        in[1] = value;
        dpari_kern_reduce(&value, 1, in, 2, count, stride->to_type, stride->op, 0);
    }
    dpari_stride_scatter(rows, value, to_size);
}

/* Adds rows with the results of dpari_kern_reduce but without the cost of a call, because rows of a
 * box are short. First, single elements until vectors are aligned, because a vector across two
 * lines is stored twice. Then four vectors at a time, as long as their sum is not NaN, which it is
 * if one element is NaN. Then single vectors, and last the remaining elements. */
#if DPARI_STRIDE_VECTOR
/* A row: a pointer into each array, and its end. If `zero` is set, the elements that were read
 * become 0. */
typedef struct dpari_stride_sides {
    unsigned char *t;
    const unsigned char *f, *end;
    int zero;
} dpari_stride_sides;

/* Adds all elements before `end`, `width` bytes at a time, which is one element or a vector. */
DPARI_STRIDE_INLINE void dpari_stride_dense_by(dpari_stride_sides *sides, const unsigned char *end,
                                               int32_t width, int32_t f64)
{
    for (; end - sides->f >= width; sides->t += width, sides->f += width) {
        if (width == 16) {
            dpari_stride_sum_run(sides->t, sides->f, 0, 16, 1, f64);
        } else if (f64) {
            dpari_stride_sum_f64(sides->t, sides->f);
        } else {
            dpari_stride_sum_f32(sides->t, sides->f);
        }
        if (sides->zero) {
            dpari_stride_zero_run(dpari_stride_writable(sides->f), 0, width, 1);
        }
    }
}

DPARI_STRIDE_INLINE void dpari_stride_dense_four(dpari_stride_sides *sides, int32_t f64)
{
    for (; sides->end - sides->f >= 64; sides->t += 64, sides->f += 64) {
        dpari_stride_u2 v[4], all;
        DPARI_FOUR(v[q] = dpari_stride_met(sides->t + 16 * q, sides->f + 16 * q, 16, f64));
        all = dpari_stride_plus(dpari_stride_plus(v[0], v[1], f64),
                                dpari_stride_plus(v[2], v[3], f64), f64);
        if (dpari_stride_any(dpari_stride_nan(all, f64))) {
            break;
        }
        DPARI_FOUR(dpari_stride_put(sides->t + 16 * q, v[q], 16));
        if (sides->zero) {
            dpari_stride_zero_run(dpari_stride_writable(sides->f), 48, 16, 4);
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

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_dense_wide(dpari_stride_sides *sides,
                                                                      int32_t f64)
{
    const dpari_stride_u4 zero = {0, 0, 0, 0};
    unsigned char *read;
    for (; sides->end - sides->f >= 128; sides->t += 128, sides->f += 128) {
        dpari_stride_u4 v[4], low, high;
        DPARI_FOUR(v[q] = dpari_stride_met_wide(sides->t + 32 * q, sides->f + 32 * q, f64));
        low = dpari_stride_plus_wide(&v[0], &v[1], f64);
        high = dpari_stride_plus_wide(&v[2], &v[3], f64);
        low = dpari_stride_plus_wide(&low, &high, f64);
        if (dpari_stride_nan_wide(&low, f64)) {
            break;
        }
        DPARI_FOUR(dpari_stride_copy(sides->t + 32 * q, &v[q], 32));
        if (sides->zero) {
            read = dpari_stride_writable(sides->f);
            DPARI_FOUR(dpari_stride_copy(read + 32 * q, &zero, 32));
        }
    }
    for (; sides->end - sides->f >= 32; sides->t += 32, sides->f += 32) {
        const dpari_stride_u4 a = dpari_stride_met_wide(sides->t, sides->f, f64);
        if (dpari_stride_nan_wide(&a, f64)) {
            break;
        }
        dpari_stride_copy(sides->t, &a, 32);
        if (sides->zero) {
            dpari_stride_copy(dpari_stride_writable(sides->f), &zero, 32);
        }
    }
}
#endif

/* Begins a row of `bytes` bytes at sides->t and sides->f. width: bytes of the vectors that are
 * aligned. */
DPARI_STRIDE_INLINE void dpari_stride_dense_begin(dpari_stride_sides *sides, int64_t bytes,
                                                  int32_t width, int32_t f64)
{
    const uintptr_t first = (0 - (uintptr_t)sides->t) % (uintptr_t)width;
    sides->end = sides->f + bytes;
    dpari_stride_dense_by(sides, sides->f + dpari_least((int64_t)first, bytes), f64 ? 8 : 4, f64);
}

DPARI_STRIDE_INLINE void dpari_stride_dense_end(dpari_stride_sides *sides, int32_t f64)
{
    dpari_stride_dense_by(sides, sides->end, 16, f64);
    dpari_stride_dense_by(sides, sides->end, f64 ? 8 : 4, f64);
}

DPARI_STRIDE_INLINE void dpari_stride_dense_of(const dpari_stride_rows *rows, int32_t f64)
{
    const int64_t bytes = rows->n * (f64 ? 8 : 4);
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    dpari_stride_sides d;
    int64_t row;
    d.zero = rows->zeroes;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        d.t = to;
        d.f = from;
        dpari_stride_dense_begin(&d, bytes, 16, f64);
        dpari_stride_dense_four(&d, f64);
        dpari_stride_dense_end(&d, f64);
    }
}

DPARI_STATIC_NOINLINE void dpari_stride_dense_f32(const dpari_stride_rows *rows)
{
    dpari_stride_dense_of(rows, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_dense_f64(const dpari_stride_rows *rows)
{
    dpari_stride_dense_of(rows, 1);
}

#if DPARI_STRIDE_WIDE
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_wide_of(const dpari_stride_rows *rows,
                                                                   int32_t f64, int zero)
{
    const int64_t bytes = rows->n * (f64 ? 8 : 4);
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    dpari_stride_sides d;
    int64_t row;
    d.zero = zero;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        d.t = to;
        d.f = from;
        dpari_stride_dense_begin(&d, bytes, 32, f64);
        dpari_stride_dense_wide(&d, f64);
        dpari_stride_dense_by(&d, d.end, f64 ? 8 : 4, f64);
    }
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void dpari_stride_wide_f32(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 0, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void dpari_stride_wide_f64(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 1, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_wide_zero_f32(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 0, 1);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_wide_zero_f64(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 1, 1);
}
#endif

typedef void dpari_stride_loop(const dpari_stride_rows *k);

/* Returns the loop for a dense row, or NULL if there is none. clear: 1 if the elements that were
 * read become 0; it must be equal to rows->zeroes. */
static dpari_stride_loop *dpari_stride_dense_loop(const dpari_stride *stride, int clear)
{
    const int32_t f64 = stride->to_type == DPAR_F64;
    if (stride->op != DPAR_SUM || (!f64 && stride->to_type != DPAR_F32)) {
        return NULL;
    }
#if DPARI_STRIDE_WIDE
    if (stride->wide) {
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

/* Adds rows through the buffer `room`, and sets the elements that were read to 0. */
static void dpari_stride_add_aside(const dpari_stride_rows *rows, unsigned char *room,
                                   dpari_stride_loop *add, int64_t size)
{
    const int64_t bytes = rows->n * size;
    dpari_stride_rows aside = *rows;
    aside.to = room;
    aside.to_row = bytes;
    aside.zero = dpari_stride_writable(rows->from);
    aside.zero_row = rows->from_row;
    aside.run = bytes % 16 == 0 ? 16 : 8;
    aside.to_step = aside.from_step = aside.zero_step = aside.run;
    aside.n = bytes / aside.run;
    dpari_stride_move(&aside, bytes % 16 == 0 ? DPARI_STRIDE_16 : DPARI_STRIDE_8);
    aside = *rows;
    aside.from = room;
    aside.from_row = bytes;
    aside.zeroes = 0;
    add(&aside);
}

/* Adds rows and sets the elements that were read to 0. If rows are twins, each access would evict a
 * line that the next one needs. Such rows are copied to a buffer first, as many as fit into it. For
 * 64^3 with halos of 2, where a quarter of the rows are twins, this takes 15 us instead of 17.5. */
static void dpari_stride_dense_clear(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    unsigned char room[DPARI_STRIDE_PACK];
    const int64_t size = stride->to_bytes, most = (int64_t)sizeof room / size;
    dpari_stride_loop *add = dpari_stride_dense_loop(stride, 0),
                      *both = dpari_stride_dense_loop(stride, 1);
    dpari_stride_rows some = *rows;
    int64_t at, row, group;
    if (rows->to_row != rows->from_row || rows->n * size % 8 != 0 ||
        ((uintptr_t)rows->to - (uintptr_t)rows->from + DPARI_STRIDE_WITHIN) % DPARI_STRIDE_PAGE >
            2 * DPARI_STRIDE_WITHIN) {
        both(rows);
        return;
    }
    for (at = 0; at < rows->n; at += some.n) {
        some.n = dpari_least(rows->n - at, most);
        group = most / some.n;
        for (row = 0; row < rows->rows; row += some.rows) {
            some.to = rows->to + at * size + row * rows->to_row;
            some.from = rows->from + at * size + row * rows->from_row;
            some.rows = dpari_least(rows->rows - row, group);
            if (dpari_stride_twins(some.to, some.from)) {
                dpari_stride_add_aside(&some, room, add, size);
                continue;
            }
            while (some.rows < rows->rows - row &&
                   !dpari_stride_twins(some.to + some.rows * rows->to_row,
                                       some.from + some.rows * rows->from_row)) {
                some.rows = dpari_least(rows->rows - row, some.rows + group);
            }
            both(&some);
        }
    }
}
#endif

/* Combines dense rows. Returns 1 if elements that must be set to 0 are 0 already. */
static int dpari_stride_dense(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t row;
#if DPARI_STRIDE_VECTOR
    dpari_stride_loop *loop = dpari_stride_dense_loop(stride, 0);
    if (loop && rows->zeroes) {
        dpari_stride_dense_clear(stride, rows);
        return 1;
    }
    if (loop) {
        loop(rows);
        return 1;
    }
#endif
    for (row = 0; row < rows->rows; row++, to += rows->to_row, from += rows->from_row) {
        const void *in[2];
        void *out = to;
        in[0] = to;
        in[1] = from;
        dpari_kern_reduce(&out, 1, in, 2, rows->n, stride->to_type, stride->op, 0);
    }
    return 0;
}

/* ---- the walk ---- */

/* Sets the elements that were read to 0, while they are still in the cache. */
DPARI_STATIC_NOINLINE void dpari_stride_wipe(const dpari_stride_rows *rows, int64_t run,
                                             int32_t loop)
{
    static const unsigned char zero[DPARI_STRIDE_ZEROS] = {0};
    dpari_stride_rows z = *rows;
    const unsigned char *from = rows->from;
    int64_t at;
    z.from = zero;
    z.from_step = z.from_row = 0;
    z.zeroes = 0;
    z.to_step = rows->from_step;
    z.to_row = rows->from_row;
    for (at = 0; at < run; at += z.run) {
        z.run = run - at < DPARI_STRIDE_ZEROS ? run - at : DPARI_STRIDE_ZEROS;
        z.to = dpari_stride_writable(from + at);
        dpari_stride_move(&z, z.run > 64 ? loop : dpari_stride_loop_of(z.run));
    }
}

/* Packs runs into lines that another core has used last. They are gathered in a local buffer while
 * those lines are fetched, and then stored in one piece, as whole lines. All runs together must
 * have at most DPARI_STRIDE_PACK bytes. */
static void dpari_stride_pack(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    unsigned char room[DPARI_STRIDE_PACK];
    dpari_stride_rows nearby = *rows;
    const int64_t row = rows->n * stride->run;
    dpari_stride_ask_lines(rows->to, rows->rows * row);
    nearby.to = room;
    nearby.to_row = row;
    dpari_stride_move(&nearby, stride->loop);
    dpari_stride_copy(rows->to, room, rows->rows * row);
}

/* Runs `rows` rows of n runs. */
static void dpari_stride_some(const dpari_stride *stride, unsigned char *to,
                              const unsigned char *from, int64_t rows, int64_t n)
{
    dpari_stride_rows k;
    k.to = to;
    k.from = from;
    k.rows = rows;
    k.n = n;
    dpari_stride_steps(stride, &k);
    if (stride->packs) {
        dpari_stride_pack(stride, &k);
        return;
    }
    switch (stride->loop) {
    case DPARI_STRIDE_DENSE:
        k.zeroes = stride->clear;
        if (dpari_stride_dense(stride, &k)) {
            return;
        }
        break;
    case DPARI_STRIDE_BUFFER: dpari_stride_small(stride, &k); break;
    default: dpari_stride_move(&k, stride->loop); break;
    }
    if (stride->clear && !dpari_stride_zeroes(stride->loop)) {
        dpari_stride_wipe(&k,
                          stride->loop < DPARI_STRIDE_SUM_F32 ? stride->run : stride->from_bytes,
                          stride->loop);
    }
}

DPARI_API void dpari_stride_ask_ahead(const dpari_stride *stride, const unsigned char *to,
                                      const unsigned char *from, int64_t after, int64_t bytes)
{
    const int64_t line = stride->back ? -DPARI_STRIDE_LINE : DPARI_STRIDE_LINE;
    const unsigned char *at = stride->ahead == DPARI_STRIDE_TO ? to : from;
    at += stride->back ? -after : after;
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += line) {
        if (stride->ahead == DPARI_STRIDE_FROM) {
            dpari_stride_ask_to_read(at);
        } else {
            dpari_stride_ask_line(at);
        }
    }
}

/* Runs `rows` rows of each piece, alternating between the pieces every `turn` runs. */
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

DPARI_API void dpari_stride_run(const dpari_stride *stride, void *to, const void *from)
{
    unsigned char *t = (unsigned char *)to + stride->to_start;
    const unsigned char *f = (const unsigned char *)from + stride->from_start;
    if (stride->simple) {
        dpari_stride_ask_ahead(stride, t, f, 0, stride->first);
        dpari_stride_some(stride, t, f, stride->dim[1].count, stride->dim[0].count);
    } else if (stride->loop != DPARI_STRIDE_NONE) {
        dpari_stride_walk(&stride, &t, &f, 1, stride->part, stride->turn);
    }
}

/* ---- preparing ---- */

/* Lists the dims of more than one element, with steps in bytes, ordered by step from the smallest
 * one. Dims that go backwards on both sides are reversed. */
static void dpari_stride_sort(dpari_stride *stride, const dpari_stride_piece *piece)
{
    const int64_t to_size = stride->to_bytes, from_size = stride->from_bytes;
    int32_t d, i;
    for (d = piece->dims - 1; d >= 0; d--) {
        const int64_t n = piece->extent[d];
        int64_t to = piece->to[d] * to_size, from = piece->from[d] * from_size;
        if (n == 1) {
            continue;
        }
        if (to < 0 && from <= 0) {
            stride->to_start += (n - 1) * to;
            stride->from_start += (n - 1) * from;
            to = -to;
            from = -from;
        }
        for (i = stride->dims; i > 0 && dpari_stride_size(stride->dim[i - 1].to) +
                                                dpari_stride_size(stride->dim[i - 1].from) >
                                            dpari_stride_size(to) + dpari_stride_size(from);
             i--) {
            stride->dim[i] = stride->dim[i - 1];
        }
        stride->dim[i].count = n;
        stride->dim[i].to = to;
        stride->dim[i].from = from;
        stride->dims++;
    }
}

/* Removes dim d. */
DPARI_STATIC_NOINLINE void dpari_stride_drop(dpari_stride *stride, int32_t d)
{
    for (stride->dims--; d < stride->dims; d++) {
        stride->dim[d] = stride->dim[d + 1];
    }
}

/* Merges a dim with the next inner one if, on both sides, it continues where that one ends. */
static void dpari_stride_merge(dpari_stride *stride)
{
    int32_t d = 0;
    while (d + 1 < stride->dims) {
        if (stride->dim[d + 1].to == stride->dim[d].count * stride->dim[d].to &&
            stride->dim[d + 1].from == stride->dim[d].count * stride->dim[d].from) {
            const int64_t n = stride->dim[d].count * stride->dim[d + 1].count;
            dpari_stride_drop(stride, d + 1);
            stride->dim[d].count = n;
        } else {
            d++;
        }
    }
}

/* Exchanges a dim of less than 8 elements with the next one if that is longer, because a short loop
 * is slow. */
DPARI_STATIC_NOINLINE void dpari_stride_lengthen(dpari_stride *stride, int32_t d)
{
    if (stride->dims > d + 1 && stride->dim[d].count < 8 &&
        stride->dim[d + 1].count > stride->dim[d].count) {
        const dpari_stride_dim first = stride->dim[d];
        stride->dim[d] = stride->dim[d + 1];
        stride->dim[d + 1] = first;
    }
}

/* Chooses the loop for a box that is not just copied. `together` is set if the innermost dim is
 * contiguous on both sides. */
static int32_t dpari_stride_choose(const dpari_stride *stride, int together)
{
    static const int32_t f32[DPARI_STRIDE_FULL] = {DPARI_STRIDE_NONE,      DPARI_STRIDE_SUM_F32,
                                                   DPARI_STRIDE_SUM_F32_2, DPARI_STRIDE_SUM_F32_3,
                                                   DPARI_STRIDE_SUM_F32_4, DPARI_STRIDE_SUM_F32_7,
                                                   DPARI_STRIDE_SUM_F32_7, DPARI_STRIDE_SUM_F32_7};
    static const int32_t f64[DPARI_STRIDE_FULL] = {DPARI_STRIDE_NONE,      DPARI_STRIDE_SUM_F64,
                                                   DPARI_STRIDE_SUM_F64_2, DPARI_STRIDE_SUM_F64_4,
                                                   DPARI_STRIDE_SUM_F64_4, DPARI_STRIDE_SUM_F64_7,
                                                   DPARI_STRIDE_SUM_F64_7, DPARI_STRIDE_SUM_F64_7};
    const int plain = stride->op != DPAR_COPY && stride->from_type == stride->to_type &&
                      stride->through == stride->to_type && !stride->negate;
    if (plain && together && stride->dim[0].count >= DPARI_STRIDE_FULL) {
        return DPARI_STRIDE_DENSE;
    }
    if (plain && DPARI_STRIDE_ADDS && stride->op == DPAR_SUM) {
        if (stride->to_type == DPAR_F64) {
            return f64[DPARI_STRIDE_VECTOR && together ? stride->dim[0].count : 1];
        }
        if (stride->to_type == DPAR_F32) {
            return f32[DPARI_STRIDE_VECTOR && together ? stride->dim[0].count : 1];
        }
    }
    return DPARI_STRIDE_BUFFER;
}

static void dpari_stride_turn_back(dpari_stride *stride)
{
    int32_t d;
    for (d = 0; d < stride->dims; d++) {
        if (stride->loop == DPARI_STRIDE_DENSE && d == 0) {
            continue;
        }
        stride->to_start += (stride->dim[d].count - 1) * stride->dim[d].to;
        stride->from_start += (stride->dim[d].count - 1) * stride->dim[d].from;
        stride->dim[d].to = -stride->dim[d].to;
        stride->dim[d].from = -stride->dim[d].from;
    }
}

/* Plans how memory that another core used last is prefetched. Short runs are prefetched as the walk
 * proceeds. Long runs are prefetched at the beginning if they are written; if they are read, the
 * processor prefetches them itself. Returns how many runs or elements may be moved at a time. */
static int64_t dpari_stride_plan_ahead(dpari_stride *stride, const dpari_stride_piece *piece,
                                       int64_t room)
{
    const int32_t size = piece->ahead == DPARI_STRIDE_TO ? stride->to_bytes : stride->from_bytes;
    const int64_t bytes = stride->elements * size;
    stride->ahead = piece->ahead;
    stride->back = piece->back;
    if (stride->ahead == 0 || bytes < DPARI_STRIDE_AHEAD / 2) {
        return room;
    }
    if (stride->loop == DPARI_STRIDE_LONG || stride->loop == DPARI_STRIDE_MIDDLE) {
        stride->first =
            stride->ahead == DPARI_STRIDE_TO ? dpari_least(bytes, DPARI_STRIDE_FIRST) : 0;
        return room;
    }
    stride->packs = piece->ahead == DPARI_STRIDE_TO && !piece->back &&
                    stride->loop < DPARI_STRIDE_LONG && bytes <= DPARI_STRIDE_PACKED &&
                    stride->dim[0].to == stride->run &&
                    stride->dim[0].count * stride->run <= DPARI_STRIDE_PACK &&
                    (stride->dims < 2 || stride->dim[1].to == stride->dim[0].count * stride->run);
    if (stride->packs) {
        return dpari_least(room, DPARI_STRIDE_PACK / stride->run);
    }
    if (stride->loop != DPARI_STRIDE_DENSE) {
        stride->first = DPARI_STRIDE_AHEAD;
        stride->each = stride->loop == DPARI_STRIDE_BUFFER ? size : stride->run;
        return stride->loop == DPARI_STRIDE_BUFFER ? room : dpari_least(room, DPARI_STRIDE_TURN);
    }
    return room;
}

static void dpari_stride_plan(dpari_stride *stride, const dpari_stride_piece *piece)
{
    const int32_t size = stride->from_bytes;
    const int together =
        stride->dims > 0 && stride->dim[0].to == stride->to_bytes && stride->dim[0].from == size;
    int64_t room = INT64_MAX;
    stride->run = together ? stride->dim[0].count * size : size;
    if (stride->op == DPAR_COPY && stride->from_type == stride->to_type &&
        stride->through == stride->to_type && !stride->negate) {
        if (together) {
            dpari_stride_drop(stride, 0);
        }
        stride->loop = piece->wide && stride->run > 64 && stride->run <= DPARI_STRIDE_LONGEST
                           ? DPARI_STRIDE_MIDDLE
                           : dpari_stride_loop_of(stride->run);
    } else {
        stride->loop = dpari_stride_choose(stride, together);
        if (dpari_stride_sums(stride->loop)) {
            if (stride->loop != DPARI_STRIDE_SUM_F32 && stride->loop != DPARI_STRIDE_SUM_F64) {
                dpari_stride_drop(stride, 0);
            } else {
                stride->run = size;
            }
        }
    }
    if (dpari_stride_sums(stride->loop) && !stride->clear) {
        stride->beside = piece->beside * size;
    }
    if (stride->loop == DPARI_STRIDE_DENSE) {
        dpari_stride_lengthen(stride, 1);
    } else if (stride->run <= 64) {
        dpari_stride_lengthen(stride, 0);
    }
    for (int32_t d = stride->dims; d < DPARI_STRIDE_DIMS; d++) {
        stride->dim[d].count = 1;
        stride->dim[d].to = stride->dim[d].from = 0;
    }
    if (stride->loop == DPARI_STRIDE_BUFFER) {
        room = DPARI_STRIDE_ROOM;
    } else if (stride->clear) {
        room = DPARI_STRIDE_NEAR;
        if (stride->loop == DPARI_STRIDE_DENSE) {
            room = DPARI_STRIDE_NEAR_BYTES / size;
        } else if (stride->run > DPARI_STRIDE_NEAR_BYTES / DPARI_STRIDE_NEAR) {
            room = 1 + DPARI_STRIDE_NEAR_BYTES / stride->run;
        }
    }
    if (stride->loop < DPARI_STRIDE_LONG && stride->elements >= DPARI_STRIDE_SOME &&
        dpari_stride_size(stride->dim[0].to) >= 64 && dpari_stride_size(stride->dim[0].from) < 64) {
        stride->asks = 1;
        room = room < DPARI_STRIDE_TURN ? room : DPARI_STRIDE_TURN;
    }
    room = dpari_stride_plan_ahead(stride, piece, room);
    if (piece->back) {
        dpari_stride_turn_back(stride);
    }
    stride->turn = room < stride->dim[0].count ? room : stride->dim[0].count;
    stride->part = room / stride->turn;
    stride->simple = !stride->asks && stride->each == 0 && stride->dims <= 2 &&
                     stride->turn == stride->dim[0].count && stride->part >= stride->dim[1].count;
}

DPARI_API DPARI_COLD void dpari_stride_prepare(dpari_stride *stride,
                                               const dpari_stride_piece *piece)
{
    const int32_t to_bytes = dpar_type_bytes(piece->to_type);
    const int32_t from_bytes =
        piece->from_type == piece->to_type ? to_bytes : dpar_type_bytes(piece->from_type);
    const int32_t width = piece->through == 0 ? 0 : dpar_type_bytes(piece->through);
    int32_t d;
    stride->loop = DPARI_STRIDE_NONE;
    stride->dims = stride->asks = stride->ahead = stride->back = 0;
    stride->first = stride->each = 0;
    stride->simple = stride->packs = 0;
    stride->wide = piece->wide;
    stride->beside = 0;
    stride->run = stride->part = stride->turn = stride->to_start = stride->from_start = 0;
    stride->to_type = piece->to_type;
    stride->from_type = piece->from_type;
    stride->to_bytes = to_bytes;
    stride->from_bytes = from_bytes;
    stride->through =
        width > 0 && width < to_bytes && width < from_bytes ? piece->through : piece->from_type;
    stride->op = piece->op;
    stride->negate = piece->negate;
    stride->clear = piece->clear;
    stride->elements = 1;
    for (d = 0; d < piece->dims; d++) {
        stride->elements *= piece->extent[d];
    }
    if (stride->elements > 0) {
        dpari_stride_sort(stride, piece);
        dpari_stride_merge(stride);
        dpari_stride_plan(stride, piece);
    }
}
