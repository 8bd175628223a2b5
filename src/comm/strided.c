/* SPDX-License-Identifier: MIT-0 */
#include "strided.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "elements.h"
#include "kernel.h"

/* Loops: by what is moved at once. Of a run between two powers of 2 the first and the last bytes
 * are moved, which overlap. FOUR: of 33 to 64 bytes two from either end. */
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
    DPARI_STRIDE_MIDDLE,  /* long, but not for the C library's copy, by vectors of 32 bytes */
    DPARI_STRIDE_SUM_F32, /* one by one; then runs of 2, 3, 4, 5 to 7 */
    DPARI_STRIDE_SUM_F32_2,
    DPARI_STRIDE_SUM_F32_3,
    DPARI_STRIDE_SUM_F32_4,
    DPARI_STRIDE_SUM_F32_7,
    DPARI_STRIDE_SUM_F64, /* one by one; then runs of 2, 3 to 4, 5 to 7 */
    DPARI_STRIDE_SUM_F64_2,
    DPARI_STRIDE_SUM_F64_4,
    DPARI_STRIDE_SUM_F64_7,
    DPARI_STRIDE_DENSE, /* combined where it lies, row by row */
    DPARI_STRIDE_BUFFER /* anything else, through a small dense buffer */
};

#define DPARI_STRIDE_ROOM 128 /* elements of a buffer */
#define DPARI_STRIDE_NEAR 64  /* runs after which their lines are surely still near */
#define DPARI_STRIDE_NEAR_BYTES 16384
#define DPARI_STRIDE_TURN 32     /* runs of one of two pieces before the other's: measured */
#define DPARI_STRIDE_AHEAD 1024  /* bytes asked for before they are met, of short runs: measured */
#define DPARI_STRIDE_FIRST 32768 /* of long ones, at once: what the first level holds */
#define DPARI_STRIDE_LINE 64
#define DPARI_STRIDE_APART 512 /* bytes between rows that a core does not fetch ahead: measured */
#define DPARI_STRIDE_SOON 48   /* runs until what is asked for then is met: measured, Xeon */
#define DPARI_STRIDE_ASKED 16  /* runs at least that are moved between two askings */
#define DPARI_STRIDE_LONGEST 1024 /* bytes: longer rows the library copies: measured, EPYC */
#define DPARI_STRIDE_ROW 128      /* runs of a row whose lines may be asked for at once */
#define DPARI_STRIDE_ZEROS 256
#define DPARI_STRIDE_FULL 8    /* elements from which a row is combined as one: measured, EPYC */
#define DPARI_STRIDE_SOME 512  /* elements from which their lines are asked for: measured */
#define DPARI_STRIDE_PACK 2048 /* bytes in one piece to what another core has: measured, EPYC */
#define DPARI_STRIDE_PACK_PART 256 /* of each of two boxes: measured, Xeon */
#define DPARI_STRIDE_PACK_SOON 512 /* bytes until lines that are asked for are met: the same */
#define DPARI_STRIDE_WITHIN 512    /* bytes that accesses lie apart which meet: measured, EPYC */
#define DPARI_STRIDE_PAGE 4096
#define DPARI_STRIDE_PACKED 65536 /* boxes of more wait for their own memory: measured, EPYC */

/* x87 rounds when it stores, not when it adds. */
#if defined(__i386__) && !defined(__SSE2_MATH__)
#define DPARI_STRIDE_ADDS 0
#else
#define DPARI_STRIDE_ADDS 1
#endif

#if defined(__GNUC__)
#define dpari_stride_copy(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#define DPARI_STRIDE_INLINE static inline __attribute__((always_inline))
#define DPARI_STRIDE_ALIGNED __attribute__((aligned(64)))
#else
#define dpari_stride_copy(to, from, bytes) dpari_kern_copy(to, from, (int64_t)(bytes), 0)
#define DPARI_STRIDE_INLINE static
#define DPARI_STRIDE_ALIGNED
#endif

#if defined(__GNUC__) && DPARI_STRIDE_ADDS && !defined(DPARI_NO_VECTOR)
#define DPARI_STRIDE_VECTOR 1
#else
#define DPARI_STRIDE_VECTOR 0
#endif

/* Vectors of 32 bytes where the CPU has them: a store takes as long as one of 16. */
#if DPARI_STRIDE_VECTOR && defined(__x86_64__)
#define DPARI_STRIDE_WIDE 1
#define DPARI_STRIDE_IN_WIDE __attribute__((target("avx2")))
#else
#define DPARI_STRIDE_WIDE 0
#endif

/* Rows of n runs each. */
typedef struct dpari_stride_rows {
    unsigned char *to;
    const unsigned char *from;
    unsigned char *zero; /* of the first run: what becomes 0 when it has been moved, if any does */
    int64_t n, rows, to_step, from_step, zero_step, to_row, from_row, zero_row;
    int64_t run; /* bytes */
    int zeroes;
} dpari_stride_rows;

/* Rows of n runs of a, each followed by that of b, which lies `to_b`, `from_b`, `zero_b` bytes on.
 */
typedef struct dpari_stride_pair dpari_stride_pair;
typedef void dpari_stride_pair_loop(const dpari_stride_pair *k);
struct dpari_stride_pair {
    dpari_stride_rows a;
    int64_t to_b, from_b, zero_b;
    int64_t next;  /* bytes from each run's target to one that is asked for: */
    int64_t soon;  /* so many runs of a row do; */
    int64_t least; /* and of the last row: beyond the box a peer may be about to write */
    dpari_stride_pair_loop *round; /* goes over both at once; NULL: nothing does */
};

static unsigned char *dpari_stride_writable(const unsigned char *at)
{
    return (unsigned char *)(uintptr_t)at;
}

/* ---- asking for lines ---- */

DPARI_DOOR void dpari_stride_ask_line(const unsigned char *t)
{
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*t)); /* the builtin asks for one to be read */
#elif defined(__GNUC__)
    __builtin_prefetch(t, 1);
#else
    (void)t;
#endif
}

static void dpari_stride_ask_to_read(const unsigned char *f)
{
#if defined(__GNUC__)
    __builtin_prefetch(f);
#else
    (void)f;
#endif
}

/* ---- one run: inlined with a constant loop ---- */

/* Is it a loop of sums? */
DPARI_STRIDE_INLINE int dpari_stride_sums(int32_t loop)
{
    return loop >= DPARI_STRIDE_SUM_F32 && loop <= DPARI_STRIDE_SUM_F64_7;
}

/* The bytes of a piece, and how many pieces a run is moved in. */
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

/* All is read before any is written. last: bytes from a run's beginning to its last piece. */
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

/* t + f, one NaN for all, as dpari_kern_reduce has it. */
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

/* The first `bytes` bytes, 8 or 16, of a vector, and back. */
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

/* Seldom: what is behind it may be slow. */
DPARI_STRIDE_INLINE int dpari_stride_any(dpari_stride_u2 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_stride_f4)mask) != 0, 0) != 0;
#else
    return __builtin_expect((mask[0] | mask[1]) != 0, 0) != 0;
#endif
}

/* The sum of what is at t and f. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_met(const unsigned char *t, const unsigned char *f,
                                                     int32_t bytes, int32_t f64)
{
    return dpari_stride_plus(dpari_stride_get(t, bytes), dpari_stride_get(f, bytes), f64);
}

/* One NaN for all. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_quiet(dpari_stride_u2 x, int32_t f64)
{
    const uint64_t quiet = f64 ? UINT64_C(0x7ff8) << 48 : UINT64_C(0x7fc000007fc00000);
    const dpari_stride_u2 both = {quiet, quiet}, bad = dpari_stride_nan(x, f64);
    return (x & ~bad) | (both & bad);
}

/* As dpari_stride_copy_run. A sum of all is NaN if one is. */
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

/* Moves the run at f to t, or adds it there; zero: that at z becomes 0. */
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

/* ---- loops over runs ---- */

/* All there are: those for two pieces, and of these those for lists; the others. */
#define DPARI_STRIDE_LIST_COPIES(X)                                                                \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)
#define DPARI_STRIDE_PAIR_COPIES(X)                                                                \
    DPARI_STRIDE_LIST_COPIES(X)                                                                    \
    X(DPARI_STRIDE_1)                                                                              \
    X(DPARI_STRIDE_2)                                                                              \
    X(DPARI_STRIDE_TWO_2)                                                                          \
    X(DPARI_STRIDE_TWO_4)                                                                          \
    X(DPARI_STRIDE_FOUR_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_PAIR_SUMS(X)                                                                  \
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
#define DPARI_STRIDE_PAIR_SUMS(X)                                                                  \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F64)
#define DPARI_STRIDE_OTHER_SUMS(X)
#else
#define DPARI_STRIDE_PAIR_SUMS(X)
#define DPARI_STRIDE_OTHER_SUMS(X)
#endif

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

/* r is what all loops read of k at once. */
DPARI_STRIDE_INLINE void dpari_stride_both_of(const dpari_stride_pair *r,
                                              const dpari_stride_pair *k, int32_t loop, int zero)
{
    const int apart = zero && dpari_stride_sums(loop);
    const int64_t n = r->a.n, to_step = r->a.to_step, from_step = r->a.from_step;
    const int64_t last = r->a.run - dpari_stride_width(loop), next = k->next;
    const int64_t to_b = r->to_b, from_b = r->from_b;
    const int64_t zero_step = apart ? k->a.zero_step : 0, zero_b = apart ? k->zero_b : 0;
    unsigned char *to = r->a.to, *z_row = apart ? k->a.zero : to;
    const unsigned char *from = r->a.from;
    int64_t row, i;
    for (row = k->a.rows; row > 0; row--) {
        const int64_t soon = row > 1 ? k->soon : k->least;
        unsigned char *t = to, *z = z_row;
        const unsigned char *f = from;
        for (i = 0; i < n; i++) {
            if (i < soon) {
                dpari_stride_ask_line(t + next);
                dpari_stride_ask_line(t + to_b + next);
            }
            dpari_stride_one(t, f, apart ? z : dpari_stride_writable(f), last, loop, zero);
            dpari_stride_one(t + to_b, f + from_b,
                             apart ? z + zero_b : dpari_stride_writable(f + from_b), last, loop,
                             zero);
            t += to_step;
            f += from_step;
            z += zero_step;
        }
        to += k->a.to_row;
        from += k->a.from_row;
        z_row += apart ? k->a.zero_row : 0;
    }
}

#if DPARI_STRIDE_WIDE
typedef uint64_t dpari_stride_u4 __attribute__((vector_size(32)));

/* A run of 65 to 1024 bytes: the library's copy asks too much of each (halos of 24^3 in full 1.9
 * us, 1.55 so). */
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

/* Can the loop make what it has moved 0? */
static int dpari_stride_zeroes(int32_t loop)
{
    return loop < DPARI_STRIDE_LONG || dpari_stride_sums(loop);
}

/* k->zeroes only where the loop can do it. */
DPARI_STRIDE_ALIGNED static void dpari_stride_move(const dpari_stride_rows *k, int32_t loop)
{
    const dpari_stride_rows r = *k; /* read here, not by each loop */
    switch (2 * loop + k->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_rows_of(&r, id, 0); break;                                           \
    case 2 * id + 1: dpari_stride_rows_of(&r, id, 1); break;
        DPARI_STRIDE_PAIR_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_PAIR_SUMS(DPARI_STRIDE_CASE)
        DPARI_STRIDE_OTHER_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
#if DPARI_STRIDE_WIDE
    case 2 * DPARI_STRIDE_MIDDLE: dpari_stride_middle_rows(k); break;
#endif
    default: dpari_stride_long_rows(k); break;
    }
}

/* k's runs, wherever they lie. */
DPARI_STRIDE_INLINE void dpari_stride_list_of(const dpari_stride_rows *k,
                                              const dpari_stride_spot *list, int32_t loop, int zero)
{
    const int64_t n = k->n, last = k->run - dpari_stride_width(loop);
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    int64_t i;
    for (i = 0; i < n; i++) {
        const unsigned char *f = from + list[i].from;
        dpari_stride_one(to + list[i].to, f, dpari_stride_writable(f), last, loop, zero);
    }
}

static void dpari_stride_move_list(const dpari_stride_rows *k, const dpari_stride_spot *list,
                                   int32_t loop)
{
    int64_t i;
    switch (2 * loop + k->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_list_of(k, list, id, 0); break;                                      \
    case 2 * id + 1: dpari_stride_list_of(k, list, id, 1); break;
        DPARI_STRIDE_LIST_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_PAIR_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default:
        for (i = 0; i < k->n; i++) {
            dpari_stride_rows one = *k;
            one.n = 1;
            one.to = k->to + list[i].to;
            one.from = k->from + list[i].from;
            one.zero = dpari_stride_writable(one.from);
            dpari_stride_move(&one, loop);
        }
        break;
    }
}

static int32_t dpari_stride_loop_of(int64_t run)
{
    if (run > 64) {
        return DPARI_STRIDE_LONG;
    }
    if (run > 16) {
        return run > 32 ? DPARI_STRIDE_FOUR_16 : DPARI_STRIDE_TWO_16;
    }
    if (run >= 8) {
        return run == 8 ? DPARI_STRIDE_8 : run < 16 ? DPARI_STRIDE_TWO_8 : DPARI_STRIDE_16;
    }
    if (run >= 4) {
        return run == 4 ? DPARI_STRIDE_4 : DPARI_STRIDE_TWO_4;
    }
    return run == 1 ? DPARI_STRIDE_1 : run == 2 ? DPARI_STRIDE_2 : DPARI_STRIDE_TWO_2;
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
        case 2: /* floats alone */
            dpari_stride_copy(&x2, at, 2);
            x2 = (uint16_t)(x2 ^ 0x8000u);
            dpari_stride_copy(at, &x2, 2);
            break;
        default: *at = (unsigned char)(0 - *at); break;
        }
    }
}

/* To or from a dense buffer, whose rows follow each other. */
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

/* At most DPARI_STRIDE_ROOM elements. */
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

/* Sums of rows, as dpari_kern_reduce makes them, without what a call of it takes: rows of a box are
 * short. The first few one by one until vectors are aligned (a vector across two lines is stored
 * twice), four vectors at a time as long as their sum, which is NaN if one is, is none, vectors,
 * the last few. */
#if DPARI_STRIDE_VECTOR
/* A row, a pointer into each array, and where it ends; zero: what was read becomes 0. */
typedef struct dpari_stride_sides {
    unsigned char *t;
    const unsigned char *f, *end;
    int zero;
} dpari_stride_sides;

/* By `width` up to `end`: elements, or vectors. */
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
typedef double dpari_stride_d4 __attribute__((vector_size(32)));
typedef float dpari_stride_f8 __attribute__((vector_size(32)));

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_plus_wide(const dpari_stride_u4 *x, const dpari_stride_u4 *y, int32_t f64)
{
    return f64 ? (dpari_stride_u4)((dpari_stride_d4)*x + (dpari_stride_d4)*y)
               : (dpari_stride_u4)((dpari_stride_f8)*x + (dpari_stride_f8)*y);
}

/* The sum of the vectors at t and f. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_met_wide(const unsigned char *t, const unsigned char *f, int32_t f64)
{
    dpari_stride_u4 x, y;
    dpari_stride_copy(&x, t, 32);
    dpari_stride_copy(&y, f, 32);
    return dpari_stride_plus_wide(&x, &y, f64);
}

/* Of f64, one NaN for all. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_quiet_wide(const unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    const dpari_stride_u4 all = {quiet, quiet, quiet, quiet};
    const dpari_stride_u4 sum = dpari_stride_met_wide(t, f, 1);
    const dpari_stride_u4 bad = (dpari_stride_u4)((dpari_stride_d4)sum != (dpari_stride_d4)sum);
    return (sum & ~bad) | (all & bad);
}

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

/* A row of `bytes` bytes at d->t and d->f. `width`: of the vectors that begin aligned. */
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

DPARI_APART void dpari_stride_dense_f32(const dpari_stride_rows *k)
{
    dpari_stride_dense_of(k, 0);
}

DPARI_APART void dpari_stride_dense_f64(const dpari_stride_rows *k)
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

DPARI_STRIDE_IN_WIDE DPARI_APART void dpari_stride_wide_f32(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 0, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_APART void dpari_stride_wide_f64(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 1, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_APART void dpari_stride_wide_zero_f32(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 0, 1);
}

DPARI_STRIDE_IN_WIDE DPARI_APART void dpari_stride_wide_zero_f64(const dpari_stride_rows *k)
{
    dpari_stride_wide_of(k, 1, 1);
}
#endif

typedef void dpari_stride_loop(const dpari_stride_rows *k);

/* NULL: there is none. clear: what was read becomes 0, which k->zeroes says too. */
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

/* A Zen core finds lines in its first cache by bits 6 to 11 of their addresses and a hash: bits 12
 * to 19, each xor one of 27, 26, 25, 20 to 24 (Lipp et al. 2020, "Take A Way"). Of lines alike in
 * both it keeps one. */
static int dpari_stride_twins(const unsigned char *t, const unsigned char *f)
{
    const uint64_t both = (uint64_t)((uintptr_t)t ^ (uintptr_t)f), high = both >> 20;
    return (((both >> 12) ^ (high >> 7 & 1) ^ (high >> 5 & 2) ^ (high >> 3 & 4) ^ high << 3) &
            255) == 0;
}

/* Rows by way of `room`, where what was read becomes 0. */
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

/* Sums of rows; what was read becomes 0. Of rows that are twins each access would evict a line that
 * the next one needs: they are set aside first, as many as fit (64^3, 2 wide, where a quarter of
 * the rows are: 17.5 us, 15 so). */
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

/* 1: what was read is 0, if it was to be. */
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

/* Zeroes over what was read, which is still near. */
DPARI_APART void dpari_stride_wipe(const dpari_stride_rows *k, int64_t run, int32_t loop)
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

static void dpari_stride_ask_lines(const unsigned char *at, int64_t bytes)
{
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += DPARI_STRIDE_LINE) {
        dpari_stride_ask_line(at);
    }
}

/* Runs that are to lie densely in what another core has used last: gathered in near memory while
 * those lines come, then stored in one piece, as whole lines. At most DPARI_STRIDE_PACK bytes. */
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

/* The steps of k's two innermost dims, and what becomes 0. */
DPARI_STRIDE_INLINE void dpari_stride_steps(const dpari_stride *s, dpari_stride_rows *k)
{
    k->to_step = s->dim[0].to;
    k->from_step = s->dim[0].from;
    k->to_row = s->dim[1].to;
    k->from_row = s->dim[1].from;
    k->run = s->run;
    k->zeroes = s->zeroes != 0;
    if (s->beside != 0) {
        k->zero = k->to + s->beside;
        k->zero_step = k->to_step;
        k->zero_row = k->to_row;
    } else {
        k->zero = dpari_stride_writable(k->from);
        k->zero_step = k->from_step;
        k->zero_row = k->from_row;
    }
}

/* `rows` rows of n. */
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
    if (s->clear && s->zeroes == 0) {
        dpari_stride_wipe(
            &k, s->loop < DPARI_STRIDE_SUM_F32 ? s->run : dpar_type_bytes(s->from_type), s->loop);
    }
}

/* Asks for the lines that are written next: stores wait for theirs one after the other, what is
 * asked for comes at once. */
static void dpari_stride_ask(const dpari_stride *s, unsigned char *to, int64_t rows, int64_t n)
{
    const int64_t step = s->dim[0].to;
    int64_t row, i;
    for (row = 0; row < rows; row++, to += s->dim[1].to) {
        const unsigned char *t = to;
        for (i = n; i > 0; i--, t += step) {
            dpari_stride_ask_line(t);
        }
    }
}

/* Asks for the lines of `bytes` bytes of the side that another core has, `after` bytes on from
 * where a walk is. */
DPARI_APART void dpari_stride_ask_ahead(const dpari_stride *s, const unsigned char *to,
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

/* `rows` rows of each piece, `turn` elements of each at a time. */
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

/* All of one piece, or of two of one shape, `part` rows of each in turn. */
static void dpari_stride_walk(const dpari_stride *const *s, unsigned char **to,
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

DPARI_DOOR void dpari_stride_run(const dpari_stride *s, void *to, const void *from)
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

static int dpari_stride_alike(const dpari_stride *a, const dpari_stride *b)
{
    int32_t d;
    for (d = 0; d < DPARI_STRIDE_DIMS && a->dim[d].count == b->dim[d].count; d++) {
    }
    return d == DPARI_STRIDE_DIMS && a->dims == b->dims && a->loop != DPARI_STRIDE_NONE &&
           b->loop != DPARI_STRIDE_NONE;
}

/* ---- two pieces in one loop ---- */

static int64_t dpari_stride_size(int64_t step)
{
    return step < 0 ? -step : step;
}

/* The halos of both sides of a row next to what is summed into: |h x ... y g| becomes
 * |0 x+g ... y+h 0|, where h of a and g of b, and so |h x| and |y g| are one vector each. */
#if DPARI_STRIDE_VECTOR
DPARI_STRIDE_INLINE void dpari_stride_round_one(unsigned char *low, unsigned char *high,
                                                int32_t bytes, int32_t f64)
{
    const dpari_stride_u2 sum = dpari_stride_quiet(dpari_stride_met(low, high, bytes, f64), f64);
    const uint32_t words[4] = {UINT32_MAX, bytes == 8 ? 0 : UINT32_MAX, 0, 0};
    dpari_stride_u2 first;
    dpari_stride_copy(&first, words, sizeof first);
    dpari_stride_put(low, sum & ~first, bytes);
    dpari_stride_put(high, sum & first, bytes);
}

DPARI_STRIDE_INLINE void dpari_stride_round(const dpari_stride_pair *k, int32_t bytes, int32_t f64)
{
    const int64_t n = k->a.n, step = k->a.to_step, next = k->next, to_b = k->to_b;
    int64_t row, i;
    for (row = 0; row < k->a.rows; row++) {
        const int64_t soon = row + 1 < k->a.rows ? k->soon : k->least;
        unsigned char *high = k->a.to + row * k->a.to_row;
        unsigned char *low = dpari_stride_writable(k->a.from) + row * k->a.to_row;
        for (i = 0; i < n; i++, high += step, low += step) {
            if (i < soon) {
                dpari_stride_ask_line(high + next);
                dpari_stride_ask_line(high + to_b + next);
            }
            dpari_stride_round_one(low, high, bytes, f64);
        }
    }
}

DPARI_APART void dpari_stride_round_f32(const dpari_stride_pair *k)
{
    dpari_stride_round(k, 8, 0);
}

DPARI_APART void dpari_stride_round_f32_2(const dpari_stride_pair *k)
{
    dpari_stride_round(k, 16, 0);
}

DPARI_APART void dpari_stride_round_f64(const dpari_stride_pair *k)
{
    dpari_stride_round(k, 16, 1);
}

#if DPARI_STRIDE_WIDE
/* Two f64 from each side. */
DPARI_STRIDE_IN_WIDE DPARI_APART void dpari_stride_round_f64_2(const dpari_stride_pair *k)
{
    const dpari_stride_u4 first = {UINT64_MAX, UINT64_MAX, 0, 0};
    const int64_t n = k->a.n, step = k->a.to_step, next = k->next, to_b = k->to_b;
    int64_t row, i;
    for (row = 0; row < k->a.rows; row++) {
        const int64_t soon = row + 1 < k->a.rows ? k->soon : k->least;
        unsigned char *high = k->a.to + row * k->a.to_row;
        unsigned char *low = dpari_stride_writable(k->a.from) + row * k->a.to_row;
        for (i = 0; i < n; i++, high += step, low += step) {
            const dpari_stride_u4 sum = dpari_stride_quiet_wide(low, high);
            const dpari_stride_u4 of_low = sum & ~first, of_high = sum & first;
            if (i < soon) {
                dpari_stride_ask_line(high + next);
                dpari_stride_ask_line(high + to_b + next);
            }
            dpari_stride_copy(low, &of_low, 32);
            dpari_stride_copy(high, &of_high, 32);
        }
    }
}
#endif
#endif

/* Makes k go round where its two do, whose sums are of `step` bytes each; 0: they do not, or x and
 * y overlap, in a block narrower than its two halos. */
static DPARI_UNUSED int dpari_stride_goes_round(dpari_stride_pair *k, uintptr_t step)
{
    const uintptr_t to = (uintptr_t)k->a.to, from = (uintptr_t)k->a.from;
    const uintptr_t to_b = to + (uintptr_t)k->to_b, from_b = from + (uintptr_t)k->from_b;
    if (k->a.to_step != k->a.from_step || k->a.to_row != k->a.from_row) {
        return 0;
    }
    if (from_b == to + step && to_b == from + step) {
        return to >= from + 2 * step;
    }
    if (from != to_b + step || to != from_b + step || to_b < from_b + 2 * step) {
        return 0;
    }
    k->a.from += k->from_b; /* b has the low halo: it goes first */
    k->a.to += k->to_b;
    k->from_b = -k->from_b;
    k->to_b = -k->to_b;
    return 1;
}

/* NULL: there is none. */
static dpari_stride_pair_loop *dpari_stride_round_of(dpari_stride_pair *k, const dpari_stride *s)
{
#if DPARI_STRIDE_VECTOR
    if (s->loop == DPARI_STRIDE_SUM_F32 && dpari_stride_goes_round(k, 4)) {
        return dpari_stride_round_f32;
    }
    if (s->loop == DPARI_STRIDE_SUM_F32_2 && dpari_stride_goes_round(k, 8)) {
        return dpari_stride_round_f32_2;
    }
    if (s->loop == DPARI_STRIDE_SUM_F64 && dpari_stride_goes_round(k, 8)) {
        return dpari_stride_round_f64;
    }
#endif
#if DPARI_STRIDE_WIDE
    if (s->loop == DPARI_STRIDE_SUM_F64_2 && s->wide && dpari_stride_goes_round(k, 16)) {
        return dpari_stride_round_f64_2;
    }
#endif
    (void)k, (void)s;
    return NULL;
}

/* Of the loops that dpari_stride_pairs allows. */
DPARI_STRIDE_ALIGNED static void dpari_stride_move_pair(const dpari_stride_pair *k, int32_t loop)
{
    const dpari_stride_pair r = *k; /* read here, not by each loop */
    if (k->round) {
        k->round(k);
        return;
    }
    switch (2 * loop + k->a.zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_both_of(&r, k, id, 0); break;                                        \
    case 2 * id + 1: dpari_stride_both_of(&r, k, id, 1); break;
        DPARI_STRIDE_PAIR_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_PAIR_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: break;
    }
}

static int dpari_stride_has_pair(int32_t loop)
{
    switch (loop) {
#define DPARI_STRIDE_CASE(id) case id:
        DPARI_STRIDE_PAIR_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_PAIR_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
        return 1;
    default: return 0;
    }
}

/* Is there a loop for both? Of short copies and of sums. */
static int dpari_stride_pairs(const dpari_stride *a, const dpari_stride *b)
{
    int32_t d;
    for (d = 0; d < 2; d++) {
        if (a->dim[d].to != b->dim[d].to || a->dim[d].from != b->dim[d].from) {
            return 0;
        }
    }
    return a->dims <= 2 && a->loop == b->loop && a->run == b->run && a->ahead == b->ahead &&
           a->each == b->each && a->asks == b->asks && a->packs == b->packs &&
           a->clear == b->clear && (a->beside != 0) == (b->beside != 0) &&
           dpari_stride_has_pair(a->loop);
}

static void dpari_stride_ask_both(const unsigned char *at, int64_t to_b, int64_t bytes)
{
    dpari_stride_ask_lines(at, bytes);
    dpari_stride_ask_lines(at + to_b, bytes);
}

/* As dpari_stride_pack, some rows at a time; the lines of those that come DPARI_STRIDE_PACK_SOON
 * later are asked for in between: more at once than a core waits for hold up what it reads. (32^3
 * cut along the contiguous dim 6.4 us in parts of 2048 bytes, 5.9 so, on a Xeon.) */
static void dpari_stride_pack_pair(const dpari_stride_pair *k, int32_t loop)
{
    unsigned char room[2][DPARI_STRIDE_PACK];
    const int64_t row = k->a.n * k->a.run, bytes = k->a.rows * row;
    const int64_t most = dpari_most(1, DPARI_STRIDE_PACK_PART / row);
    dpari_stride_pair some = *k;
    int64_t at, asked = dpari_least(bytes, DPARI_STRIDE_PACK_SOON);
    some.a.to = room[0];
    some.to_b = DPARI_STRIDE_PACK;
    some.soon = some.least = 0;
    dpari_stride_ask_both(k->a.to, k->to_b, asked);
    for (at = 0; at < bytes; at += some.a.rows * row) {
        const int64_t next = dpari_least(at + most * row, bytes), part = next - at;
        const int64_t soon = dpari_least(next + DPARI_STRIDE_PACK_SOON, bytes);
        some.a.rows = part / row;
        dpari_stride_move_pair(&some, loop);
        dpari_stride_ask_both(k->a.to + asked, k->to_b, soon - asked);
        asked = soon;
        dpari_stride_copy(k->a.to + at, room[0], part);
        dpari_stride_copy(k->a.to + at + k->to_b, room[1], part);
        some.a.from += some.a.rows * k->a.from_row;
    }
}

/* Of a at to[0], from[0] and b at to[1], from[1]. */
static void dpari_stride_pair_of(dpari_stride_pair *k, const dpari_stride *a,
                                 unsigned char *const *to, const unsigned char *const *from,
                                 const dpari_stride *b)
{
    k->a.to = to[0];
    k->a.from = from[0];
    k->a.n = a->dim[0].count;
    k->a.rows = a->dim[1].count;
    dpari_stride_steps(a, &k->a);
    k->to_b = (int64_t)((uintptr_t)to[1] - (uintptr_t)to[0]);
    k->from_b = (int64_t)((uintptr_t)from[1] - (uintptr_t)from[0]);
    k->zero_b = a->beside != 0 ? k->to_b + b->beside - a->beside : k->from_b;
    k->round = a->clear && a->each == 0 ? dpari_stride_round_of(k, a) : NULL;
    k->next = k->soon = k->least = 0;
    if (a->asks && k->a.n <= DPARI_STRIDE_ROW) { /* rows that are short: the next row's */
        k->next = k->a.to_row;
        k->soon = k->a.n;
    } else if (a->asks || dpari_stride_size(k->a.to_step) >= DPARI_STRIDE_APART) {
        k->next = DPARI_STRIDE_SOON * k->a.to_step;
        k->soon = k->a.n;
        k->least = k->a.n - DPARI_STRIDE_SOON;
    }
}

/* Both, some runs at a time, after those lines of another core's side that come later are asked
 * for: some rows, or a part of one. */
static void dpari_stride_pair_ahead(const dpari_stride *s, dpari_stride_pair *k)
{
    const dpari_stride_pair all = *k;
    const int64_t most = dpari_most(DPARI_STRIDE_ASKED, DPARI_STRIDE_AHEAD / s->each);
    const int64_t rows = dpari_most(1, most / all.a.n);
    int64_t row, i;
    for (row = 0; row < all.a.rows; row += k->a.rows) {
        k->a.rows = dpari_least(rows, all.a.rows - row);
        for (i = 0; i < all.a.n; i += k->a.n) {
            const int64_t least = row + k->a.rows < all.a.rows ? all.soon : all.least;
            k->a.to = all.a.to + row * all.a.to_row + i * all.a.to_step;
            k->a.from = all.a.from + row * all.a.from_row + i * all.a.from_step;
            k->a.zero = all.a.zero + row * all.a.zero_row + i * all.a.zero_step;
            k->a.n = dpari_least(most, all.a.n - i);
            k->soon = all.soon - i;
            k->least = least - i;
            dpari_stride_ask_ahead(s, k->a.to, k->a.from, DPARI_STRIDE_AHEAD,
                                   k->a.rows * k->a.n * s->each);
            dpari_stride_ask_ahead(s, k->a.to + k->to_b, k->a.from + k->from_b, DPARI_STRIDE_AHEAD,
                                   k->a.rows * k->a.n * s->each);
            dpari_stride_move_pair(k, s->loop);
        }
    }
}

/* Both, run by run in turns. 0: there is no such loop. */
static int dpari_stride_run_pair(const dpari_stride *a, unsigned char *const *to,
                                 const unsigned char *const *from, const dpari_stride *b)
{
    dpari_stride_pair k;
    if (!dpari_stride_pairs(a, b)) {
        return 0;
    }
    dpari_stride_pair_of(&k, a, to, from, b);
    dpari_stride_ask_ahead(a, to[0], from[0], 0, a->first);
    dpari_stride_ask_ahead(b, to[1], from[1], 0, b->first);
    if (a->asks) {
        dpari_stride_ask(a, to[0], 1, dpari_least(k.a.n, DPARI_STRIDE_ROW));
        dpari_stride_ask(b, to[1], 1, dpari_least(k.a.n, DPARI_STRIDE_ROW));
    }
    if (a->packs) {
        dpari_stride_pack_pair(&k, a->loop);
    } else if (a->each > 0) {
        dpari_stride_pair_ahead(a, &k);
    } else {
        dpari_stride_move_pair(&k, a->loop);
    }
    return 1;
}

DPARI_DOOR void dpari_stride_run_beside(const dpari_stride *a, void *to_a, const void *from_a,
                                        const dpari_stride *b, void *to_b, const void *from_b)
{
    const dpari_stride *s[2];
    unsigned char *to[2];
    const unsigned char *from[2];
    int64_t part = a->part < b->part ? a->part : b->part;
    int64_t turn = a->turn < b->turn ? a->turn : b->turn;
    if (a->run > 64 || a->elements <= DPARI_STRIDE_TURN || !dpari_stride_alike(a, b)) {
        dpari_stride_run(a, to_a, from_a);
        dpari_stride_run(b, to_b, from_b);
        return;
    }
    s[0] = a;
    s[1] = b;
    to[0] = (unsigned char *)to_a + a->to_start;
    to[1] = (unsigned char *)to_b + b->to_start;
    from[0] = (const unsigned char *)from_a + a->from_start;
    from[1] = (const unsigned char *)from_b + b->from_start;
    if (dpari_stride_run_pair(a, to, from, b)) {
        return;
    }
    if (!a->packs || !b->packs) {
        turn = turn < DPARI_STRIDE_TURN ? turn : DPARI_STRIDE_TURN;
        while (part > 1 && part * turn > DPARI_STRIDE_TURN) {
            part /= 2;
        }
    }
    dpari_stride_walk(s, to, from, 2, part, turn);
}

/* ---- lists ---- */

DPARI_DOOR int32_t dpari_stride_list(const dpari_stride *s, int64_t to_at, int64_t from_at,
                                     dpari_stride_spot *list)
{
    int64_t runs = 1, k;
    int32_t d;
    if (s->loop == DPARI_STRIDE_NONE || s->loop == DPARI_STRIDE_LONG ||
        s->loop >= DPARI_STRIDE_DENSE || (s->clear && s->loop == DPARI_STRIDE_MIDDLE) ||
        s->beside != 0) {
        return 0;
    }
    for (d = 0; d < s->dims; d++) {
        runs *= s->dim[d].count;
        if (runs > DPARI_STRIDE_FEW) {
            return 0;
        }
    }
    for (k = 0; k < runs; k++) {
        int64_t to = to_at + s->to_start, from = from_at + s->from_start, rest = k;
        for (d = 0; d < s->dims; d++) {
            to += rest % s->dim[d].count * s->dim[d].to;
            from += rest % s->dim[d].count * s->dim[d].from;
            rest /= s->dim[d].count;
        }
        if (to != (int32_t)to || from != (int32_t)from) {
            return 0;
        }
        list[k].to = (int32_t)to;
        list[k].from = (int32_t)from;
    }
    return (int32_t)runs;
}

DPARI_DOOR int dpari_stride_lists_alike(const dpari_stride *a, const dpari_stride *b)
{
    return a->loop == b->loop && a->run == b->run && a->clear == b->clear;
}

DPARI_DOOR void dpari_stride_run_list(const dpari_stride *s, const dpari_stride_spot *list,
                                      int64_t n, void *to, const void *from)
{
    dpari_stride_rows k;
    int64_t i;
    k.to = (unsigned char *)to;
    k.from = (const unsigned char *)from;
    k.zero = k.to;
    k.zeroes = s->clear;
    k.n = n;
    k.rows = 1;
    k.to_step = k.from_step = k.zero_step = k.to_row = k.from_row = k.zero_row = 0;
    k.run = s->run;
    for (i = 0; i < n && s->ahead == DPARI_STRIDE_TO; i++) {
        dpari_stride_ask_line((const unsigned char *)to + list[i].to);
    }
    dpari_stride_move_list(&k, list, s->loop);
}

/* ---- preparing ---- */

/* Dims of more than one element, in bytes, forwards where both sides go backwards, the one with
 * the smallest steps first. */
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

/* Takes dim d out. */
DPARI_APART void dpari_stride_drop(dpari_stride *s, int32_t d)
{
    for (s->dims--; d < s->dims; d++) {
        s->dim[d] = s->dim[d + 1];
    }
}

/* Dims that go on where the one below ends are one. */
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

/* A loop of two or three elements is none: better the next dim's. */
DPARI_APART void dpari_stride_lengthen(dpari_stride *s, int32_t d)
{
    if (s->dims > d + 1 && s->dim[d].count < 8 && s->dim[d + 1].count > s->dim[d].count) {
        const dpari_stride_dim first = s->dim[d];
        s->dim[d] = s->dim[d + 1];
        s->dim[d + 1] = first;
    }
}

/* The loop of what is not just copied. `together`: the innermost dim lies in one piece. */
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

/* How far what another core has is asked for ahead: of short runs as the walk goes on; of long
 * ones, which a core fetches ahead by itself when it reads them, all that is written at first.
 * Returns how many runs or elements may then be moved at a time. */
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
    s->zeroes = s->beside != 0 || (s->clear && dpari_stride_zeroes(s->loop));
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

DPARI_DOOR void dpari_stride_prepare(dpari_stride *s, const dpari_stride_piece *p)
{
    const int32_t width = dpar_type_bytes(p->through);
    int32_t d;
    s->loop = DPARI_STRIDE_NONE;
    s->dims = s->asks = s->ahead = s->back = 0;
    s->first = s->each = 0;
    s->simple = s->packs = 0;
    s->wide = p->wide;
    s->beside = s->zeroes = 0;
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
