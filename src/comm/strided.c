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
    DPARI_STRIDE_4,
    DPARI_STRIDE_8,
    DPARI_STRIDE_16,
    DPARI_STRIDE_TWO_2,
    DPARI_STRIDE_TWO_4,
    DPARI_STRIDE_TWO_8,
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
typedef uint64_t dpari_stride_16 __attribute__((vector_size(16)));
#else
#define dpari_stride_copy(to, from, bytes) dpari_kern_copy(to, from, (int64_t)(bytes), 0)
typedef struct dpari_stride_16 {
    uint64_t a, b;
} dpari_stride_16;
#endif

/* Rows of n runs each; or n runs of a list. */
typedef struct dpari_stride_rows {
    const dpari_stride_spot *list; /* NULL: rows */
    unsigned char *to;
    const unsigned char *from;
    int64_t n, rows, to_step, from_step, to_row, from_row;
    int64_t run, beside;
} dpari_stride_rows;

/* The loop over k's rows of one type, at t and f; that of rows alone is short enough to be inlined.
 */
#define DPARI_STRIDE_LOOP(name, type, ...) DPARI_STRIDE_LOOP_IN(, name, type, __VA_ARGS__)
#define DPARI_STRIDE_LOOP_IN(in, name, type, ...)                                                  \
    in static void name##_rows(const dpari_stride_rows *k)                                         \
    {                                                                                              \
        const int64_t n = k->n, to_step = k->to_step, from_step = k->from_step;                    \
        const int64_t last = k->run - (int64_t)sizeof(type), beside = k->beside;                   \
        unsigned char *to = k->to;                                                                 \
        const unsigned char *from = k->from;                                                       \
        int64_t row, i;                                                                            \
        for (row = k->rows; row > 0; row--, to += k->to_row, from += k->from_row) {                \
            unsigned char *t = to;                                                                 \
            const unsigned char *f = from;                                                         \
            for (i = n; i > 0; i--, t += to_step, f += from_step) {                                \
                __VA_ARGS__                                                                        \
            }                                                                                      \
        }                                                                                          \
        (void)last, (void)beside;                                                                  \
    }                                                                                              \
    in static void name(const dpari_stride_rows *k)                                                \
    {                                                                                              \
        const int64_t n = k->n, last = k->run - (int64_t)sizeof(type), beside = k->beside;         \
        unsigned char *to = k->to;                                                                 \
        const unsigned char *from = k->from;                                                       \
        const dpari_stride_spot *list = k->list;                                                   \
        int64_t i;                                                                                 \
        if (!list) {                                                                               \
            name##_rows(k);                                                                        \
            return;                                                                                \
        }                                                                                          \
        for (i = 0; i < n; i++) {                                                                  \
            unsigned char *t = to + list[i].to;                                                    \
            const unsigned char *f = from + list[i].from;                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        (void)last, (void)beside;                                                                  \
    }

/* Rows of n runs of a, each followed by that of b, which lies `to_b`, `from_b` bytes on. */
typedef struct dpari_stride_pair dpari_stride_pair;
typedef void dpari_stride_pair_loop(const dpari_stride_pair *k);
struct dpari_stride_pair {
    unsigned char *to;
    const unsigned char *from;
    int64_t n, rows, to_step, from_step, to_row, from_row, to_b, from_b, beside_a, beside_b;
    int64_t next;  /* bytes from each run's target to one that is asked for: */
    int64_t soon;  /* so many runs of a row do; */
    int64_t least; /* and of the last row: beyond the box a peer may be about to write */
    int64_t after; /* bytes to what `ahead` asks for */
    int64_t every; /* in every so many runs */
    int64_t run;
    int32_t ahead;
    dpari_stride_pair_loop *round; /* goes over both at once; NULL: nothing does */
};

#if defined(__GNUC__)
#define DPARI_STRIDE_PAIR_ASK(k, t, f)                                                             \
    if ((k)->ahead == DPARI_STRIDE_FROM) {                                                         \
        __builtin_prefetch((f) + (k)->after);                                                      \
        __builtin_prefetch((f) + (k)->from_b + (k)->after);                                        \
    } else if ((k)->ahead == DPARI_STRIDE_TO) {                                                    \
        dpari_stride_ask_line((t) + (k)->after);                                                   \
        dpari_stride_ask_line((t) + (k)->to_b + (k)->after);                                       \
    }
#else
#define DPARI_STRIDE_PAIR_ASK(k, t, f) (void)0;
#endif

/* A run of a at t_a and f_a, then that of b. */
#define DPARI_STRIDE_BOTH(...)                                                                     \
    {                                                                                              \
        unsigned char *t = t_a;                                                                    \
        const unsigned char *f = f_a;                                                              \
        const int64_t beside = a_beside;                                                           \
        (void)beside;                                                                              \
        __VA_ARGS__                                                                                \
    }                                                                                              \
    {                                                                                              \
        unsigned char *t = t_a + to_b;                                                             \
        const unsigned char *f = f_a + from_b;                                                     \
        const int64_t beside = b_beside;                                                           \
        (void)beside;                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Where nothing is asked for the loop is a bare one: it is met in each row of a block. */
#define DPARI_STRIDE_PAIR(name, type, ...)                                                         \
    static void name(const dpari_stride_pair *k)                                                   \
    {                                                                                              \
        const int64_t n = k->n, to_step = k->to_step, from_step = k->from_step;                    \
        const int64_t to_b = k->to_b, from_b = k->from_b;                                          \
        const int64_t a_beside = k->beside_a, b_beside = k->beside_b, next = k->next;              \
        const int64_t last = k->run - (int64_t)sizeof(type);                                       \
        int64_t row, i;                                                                            \
        for (row = 0; row < k->rows; row++) {                                                      \
            unsigned char *t_a = k->to + row * k->to_row;                                          \
            const unsigned char *f_a = k->from + row * k->from_row;                                \
            const int64_t soon = row + 1 < k->rows ? k->soon : k->least;                           \
            const int64_t asks = k->ahead ? n : soon;                                              \
            int64_t left = 0;                                                                      \
            for (i = 0; i < asks; i++, t_a += to_step, f_a += from_step) {                         \
                if (left-- == 0) {                                                                 \
                    DPARI_STRIDE_PAIR_ASK(k, t_a, f_a)                                             \
                    left += k->every;                                                              \
                }                                                                                  \
                if (i < soon) {                                                                    \
                    dpari_stride_ask_line(t_a + next);                                             \
                    dpari_stride_ask_line(t_a + to_b + next);                                      \
                }                                                                                  \
                DPARI_STRIDE_BOTH(__VA_ARGS__)                                                     \
            }                                                                                      \
            for (; i < n; i++, t_a += to_step, f_a += from_step) {                                 \
                DPARI_STRIDE_BOTH(__VA_ARGS__)                                                     \
            }                                                                                      \
        }                                                                                          \
        (void)last;                                                                                \
    }

DPARI_STRIDE_LOOP(dpari_stride_loop_long, uint8_t, dpari_stride_copy(t, f, k->run);)

#if defined(__GNUC__) && DPARI_STRIDE_ADDS && !defined(DPARI_NO_VECTOR)
#define DPARI_STRIDE_VECTOR 1
typedef double dpari_stride_d2 __attribute__((vector_size(16)));
typedef float dpari_stride_f4 __attribute__((vector_size(16)));
typedef uint64_t dpari_stride_u2 __attribute__((vector_size(16)));

static inline int dpari_stride_some_nan(dpari_stride_u2 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_stride_f4)mask) != 0, 0) != 0;
#else
    return __builtin_expect((mask[0] | mask[1]) != 0, 0) != 0;
#endif
}
#define DPARI_STRIDE_NARROW_NAN(mask) dpari_stride_some_nan((dpari_stride_u2)(mask))
#else
#define DPARI_STRIDE_VECTOR 0
#endif

/* Vectors of 32 bytes where the CPU has them: a store takes as long as one of 16. */
#if DPARI_STRIDE_VECTOR && defined(__x86_64__)
#define DPARI_STRIDE_WIDE 1
#define DPARI_STRIDE_IN_WIDE __attribute__((target("avx2")))
typedef double dpari_stride_d4 __attribute__((vector_size(32)));
typedef float dpari_stride_f8 __attribute__((vector_size(32)));
typedef uint64_t dpari_stride_u4 __attribute__((vector_size(32)));

#define dpari_stride_wide_nan(mask)                                                                \
    (__builtin_expect(__builtin_ia32_movmskps256((dpari_stride_f8)(mask)) != 0, 0) != 0)

/* Rows of 65 to 1024 bytes: the library's copy asks too much of each (halos of 24^3 in full 1.9 us,
 * 1.55 so). */
DPARI_STRIDE_LOOP_IN(
    DPARI_STRIDE_IN_WIDE, dpari_stride_loop_middle, dpari_stride_u4, dpari_stride_u4 a, b, c, d;
    int64_t at = 0; for (; at <= last - 96; at += 128) {
        dpari_stride_copy(&a, f + at, 32);
        dpari_stride_copy(&b, f + at + 32, 32);
        dpari_stride_copy(&c, f + at + 64, 32);
        dpari_stride_copy(&d, f + at + 96, 32);
        dpari_stride_copy(t + at, &a, 32);
        dpari_stride_copy(t + at + 32, &b, 32);
        dpari_stride_copy(t + at + 64, &c, 32);
        dpari_stride_copy(t + at + 96, &d, 32);
    } for (; at < last; at += 32) {
        dpari_stride_copy(&a, f + at, 32);
        dpari_stride_copy(t + at, &a, 32);
    } dpari_stride_copy(&a, f + last, 32);
    dpari_stride_copy(t + last, &a, 32);)
#else
#define DPARI_STRIDE_WIDE 0
#endif

/* ---- copies and sums of short runs ---- */

/* What is read and written at once, at t and f: all of a run; its first and last bytes, which may
 * overlap; two pieces from either end. last: bytes from a run's beginning to its last piece. */
#define DPARI_STRIDE_COPY_ONE(type)                                                                \
    type x;                                                                                        \
    dpari_stride_copy(&x, f, sizeof x);                                                            \
    dpari_stride_copy(t, &x, sizeof x);
#define DPARI_STRIDE_COPY_TWO(type)                                                                \
    type x, y;                                                                                     \
    dpari_stride_copy(&x, f, sizeof x);                                                            \
    dpari_stride_copy(&y, f + last, sizeof y);                                                     \
    dpari_stride_copy(t, &x, sizeof x);                                                            \
    dpari_stride_copy(t + last, &y, sizeof y);
#define DPARI_STRIDE_COPY_FOUR(type)                                                               \
    type z, w;                                                                                     \
    dpari_stride_copy(&z, f + sizeof z, sizeof z);                                                 \
    dpari_stride_copy(&w, f + last - sizeof w, sizeof w);                                          \
    DPARI_STRIDE_COPY_TWO(type)                                                                    \
    dpari_stride_copy(t + sizeof z, &z, sizeof z);                                                 \
    dpari_stride_copy(t + last - sizeof w, &w, sizeof w);

/* What was read, or lies beside a sum, in a line that is written anyway, becomes 0. */
#define DPARI_STRIDE_ZERO(at, type)                                                                \
    {                                                                                              \
        const type zero = {0};                                                                     \
        dpari_stride_copy((unsigned char *)(uintptr_t)(at), &zero, sizeof zero);                   \
    }
#define DPARI_STRIDE_ZERO_ONE(at, type) DPARI_STRIDE_ZERO(at, type)
#define DPARI_STRIDE_ZERO_TWO(at, type)                                                            \
    DPARI_STRIDE_ZERO(at, type) DPARI_STRIDE_ZERO((at) + last, type)
#define DPARI_STRIDE_ZERO_FOUR(at, type)                                                           \
    DPARI_STRIDE_ZERO_TWO(at, type)                                                                \
    DPARI_STRIDE_ZERO((at) + sizeof(type), type)                                                   \
    DPARI_STRIDE_ZERO((at) + last - sizeof(type), type)

/* t + f, one NaN for all, as dpari_kern_reduce has it. */
#define DPARI_STRIDE_SUM(type, word, quiet)                                                        \
    type x, y;                                                                                     \
    word q = quiet;                                                                                \
    dpari_stride_copy(&x, t, sizeof x);                                                            \
    dpari_stride_copy(&y, f, sizeof y);                                                            \
    x += y;                                                                                        \
    if (x != x) {                                                                                  \
        dpari_stride_copy(&x, &q, sizeof x);                                                       \
    }                                                                                              \
    dpari_stride_copy(t, &x, sizeof x);
#define DPARI_STRIDE_SUM_OF_F32 DPARI_STRIDE_SUM(float, uint32_t, 0x7fc00000u)
#define DPARI_STRIDE_SUM_OF_F64 DPARI_STRIDE_SUM(double, uint64_t, UINT64_C(0x7ff8) << 48)

#if DPARI_STRIDE_VECTOR
/* The same of a vector, `words` of it. */
#define DPARI_STRIDE_QUIET_F32 (UINT64_C(0x7fc000007fc00000))
#define DPARI_STRIDE_QUIET_F64 (UINT64_C(0x7ff8) << 48)
#define DPARI_STRIDE_ADD(vector, words, some_nan, quiet, x, y)                                     \
    x += y;                                                                                        \
    if (some_nan(x != x)) {                                                                        \
        const words bad = (words)(x != x);                                                         \
        x = (vector)(((words)x & ~bad) | (bad & (quiet)));                                         \
    }

#define DPARI_STRIDE_MET(name, vector, quiet)                                                      \
    static inline vector name(const unsigned char *t, const unsigned char *f)                      \
    {                                                                                              \
        vector x, y;                                                                               \
        dpari_stride_copy(&x, t, sizeof x);                                                        \
        dpari_stride_copy(&y, f, sizeof y);                                                        \
        DPARI_STRIDE_ADD(vector, dpari_stride_u2, DPARI_STRIDE_NARROW_NAN, quiet, x, y)            \
        return x;                                                                                  \
    }
DPARI_STRIDE_MET(dpari_stride_met_f4, dpari_stride_f4, DPARI_STRIDE_QUIET_F32)
DPARI_STRIDE_MET(dpari_stride_met_d2, dpari_stride_d2, DPARI_STRIDE_QUIET_F64)

/* Of words of two f32 each. */
static const uint32_t dpari_stride_first_f32[2] = {0xffffffffu, 0};
static inline uint64_t dpari_stride_add_f2(uint64_t one, uint64_t other)
{
    dpari_stride_u2 a = {one, 0}, b = {other, 0};
    dpari_stride_f4 x = (dpari_stride_f4)a, y = (dpari_stride_f4)b;
    DPARI_STRIDE_ADD(dpari_stride_f4, dpari_stride_u2, DPARI_STRIDE_NARROW_NAN,
                     DPARI_STRIDE_QUIET_F32, x, y)
    a = (dpari_stride_u2)x;
    return a[0];
}

static inline uint64_t dpari_stride_met_f2(const unsigned char *t, const unsigned char *f)
{
    uint64_t x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    return dpari_stride_add_f2(x, y);
}

#define DPARI_STRIDE_SUM_ONE(type, met)                                                            \
    const type x = met(t, f);                                                                      \
    dpari_stride_copy(t, &x, sizeof x);
#define DPARI_STRIDE_SUM_TWO(type, met)                                                            \
    const type x = met(t, f), y = met(t + last, f + last);                                         \
    dpari_stride_copy(t, &x, sizeof x);                                                            \
    dpari_stride_copy(t + last, &y, sizeof y);
#define DPARI_STRIDE_SUM_FOUR(type, met)                                                           \
    const type z = met(t + sizeof z, f + sizeof z);                                                \
    const type w = met(t + last - sizeof w, f + last - sizeof w);                                  \
    DPARI_STRIDE_SUM_TWO(type, met)                                                                \
    dpari_stride_copy(t + sizeof z, &z, sizeof z);                                                 \
    dpari_stride_copy(t + last - sizeof w, &w, sizeof w);
#endif

/* All there are: loop, name, type, how many of it, what is done. */
#define DPARI_STRIDE_EACH_COPY(X)                                                                  \
    X(1, copy_1, uint8_t, ONE, DPARI_STRIDE_COPY_ONE(uint8_t))                                     \
    X(2, copy_2, uint16_t, ONE, DPARI_STRIDE_COPY_ONE(uint16_t))                                   \
    X(4, copy_4, uint32_t, ONE, DPARI_STRIDE_COPY_ONE(uint32_t))                                   \
    X(8, copy_8, uint64_t, ONE, DPARI_STRIDE_COPY_ONE(uint64_t))                                   \
    X(16, copy_16, dpari_stride_16, ONE, DPARI_STRIDE_COPY_ONE(dpari_stride_16))                   \
    X(TWO_2, copy_two_2, uint16_t, TWO, DPARI_STRIDE_COPY_TWO(uint16_t))                           \
    X(TWO_4, copy_two_4, uint32_t, TWO, DPARI_STRIDE_COPY_TWO(uint32_t))                           \
    X(TWO_8, copy_two_8, uint64_t, TWO, DPARI_STRIDE_COPY_TWO(uint64_t))                           \
    X(TWO_16, copy_two_16, dpari_stride_16, TWO, DPARI_STRIDE_COPY_TWO(dpari_stride_16))           \
    X(FOUR_16, copy_four_16, dpari_stride_16, FOUR, DPARI_STRIDE_COPY_FOUR(dpari_stride_16))
#if DPARI_STRIDE_ADDS
#define DPARI_STRIDE_EACH_SCALAR(X)                                                                \
    X(SUM_F32, sum_f32, float, ONE, DPARI_STRIDE_SUM_OF_F32)                                       \
    X(SUM_F64, sum_f64, double, ONE, DPARI_STRIDE_SUM_OF_F64)
#else
#define DPARI_STRIDE_EACH_SCALAR(X)
#endif
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_EACH_SUM(X)                                                                   \
    DPARI_STRIDE_EACH_SCALAR(X)                                                                    \
    X(SUM_F32_2, sum_f32_2, uint64_t, ONE, DPARI_STRIDE_SUM_ONE(uint64_t, dpari_stride_met_f2))    \
    X(SUM_F32_3, sum_f32_3, uint64_t, TWO, DPARI_STRIDE_SUM_TWO(uint64_t, dpari_stride_met_f2))    \
    X(SUM_F32_4, sum_f32_4, dpari_stride_f4, ONE,                                                  \
      DPARI_STRIDE_SUM_ONE(dpari_stride_f4, dpari_stride_met_f4))                                  \
    X(SUM_F32_7, sum_f32_7, dpari_stride_f4, TWO,                                                  \
      DPARI_STRIDE_SUM_TWO(dpari_stride_f4, dpari_stride_met_f4))                                  \
    X(SUM_F64_2, sum_f64_2, dpari_stride_d2, ONE,                                                  \
      DPARI_STRIDE_SUM_ONE(dpari_stride_d2, dpari_stride_met_d2))                                  \
    X(SUM_F64_4, sum_f64_4, dpari_stride_d2, TWO,                                                  \
      DPARI_STRIDE_SUM_TWO(dpari_stride_d2, dpari_stride_met_d2))                                  \
    X(SUM_F64_7, sum_f64_7, dpari_stride_d2, FOUR,                                                 \
      DPARI_STRIDE_SUM_FOUR(dpari_stride_d2, dpari_stride_met_d2))
#else
#define DPARI_STRIDE_EACH_SUM(X) DPARI_STRIDE_EACH_SCALAR(X)
#endif

/* Of each: rows and lists of one box, rows of two; what was read stays, or becomes 0. */
#define DPARI_STRIDE_LOOPS(id, name, type, pieces, ...)                                            \
    DPARI_STRIDE_LOOP(dpari_stride_##name, type, __VA_ARGS__)                                      \
    DPARI_STRIDE_LOOP(dpari_stride_##name##_clear, type,                                           \
                      __VA_ARGS__ DPARI_STRIDE_ZERO_##pieces(f, type))                             \
    DPARI_STRIDE_PAIR(dpari_stride_##name##_pair, type, __VA_ARGS__)                               \
    DPARI_STRIDE_PAIR(dpari_stride_##name##_pair_clear, type,                                      \
                      __VA_ARGS__ DPARI_STRIDE_ZERO_##pieces(f, type))
#define DPARI_STRIDE_LOOPS_BESIDE(id, name, type, pieces, ...)                                     \
    DPARI_STRIDE_LOOP(dpari_stride_##name##_beside, type,                                          \
                      __VA_ARGS__ DPARI_STRIDE_ZERO_##pieces(t + beside, type))                    \
    DPARI_STRIDE_PAIR(dpari_stride_##name##_pair_beside, type,                                     \
                      __VA_ARGS__ DPARI_STRIDE_ZERO_##pieces(t + beside, type))
DPARI_STRIDE_EACH_COPY(DPARI_STRIDE_LOOPS)
DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_LOOPS)
DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_LOOPS_BESIDE)

static void dpari_stride_move_beside(const dpari_stride_rows *k, int32_t loop)
{
    switch (loop) {
#define DPARI_STRIDE_CASE(id, name, ...)                                                           \
    case DPARI_STRIDE_##id: dpari_stride_##name##_beside(k); break;
        DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: (void)k; break;
    }
}

/* 0: there is no such loop. */
static int dpari_stride_move_and_clear(const dpari_stride_rows *k, int32_t loop)
{
    switch (loop) {
#define DPARI_STRIDE_CASE(id, name, ...)                                                           \
    case DPARI_STRIDE_##id: dpari_stride_##name##_clear(k); return 1;
        DPARI_STRIDE_EACH_COPY(DPARI_STRIDE_CASE)
        DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: return 0;
    }
}

static void dpari_stride_move(const dpari_stride_rows *k, int32_t loop)
{
    switch (loop) {
#define DPARI_STRIDE_CASE(id, name, ...)                                                           \
    case DPARI_STRIDE_##id: dpari_stride_##name(k); break;
        DPARI_STRIDE_EACH_COPY(DPARI_STRIDE_CASE)
        DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
#if DPARI_STRIDE_WIDE
    case DPARI_STRIDE_MIDDLE: dpari_stride_loop_middle(k); break;
#endif
    default: dpari_stride_loop_long(k); break;
    }
}

/* Is it a loop of sums? */
static int dpari_stride_sums(const dpari_stride *s)
{
    return s->loop >= DPARI_STRIDE_SUM_F32 && s->loop <= DPARI_STRIDE_SUM_F64_7;
}

static int32_t dpari_stride_loop_of(int64_t run)
{
    if (run > 64) {
        return DPARI_STRIDE_LONG;
    }
    if (run > 32) {
        return DPARI_STRIDE_FOUR_16;
    }
    switch (run) {
    case 1: return DPARI_STRIDE_1;
    case 2: return DPARI_STRIDE_2;
    case 3: return DPARI_STRIDE_TWO_2;
    case 4: return DPARI_STRIDE_4;
    case 8: return DPARI_STRIDE_8;
    case 16: return DPARI_STRIDE_16;
    default: break;
    }
    return run < 8 ? DPARI_STRIDE_TWO_4 : run < 16 ? DPARI_STRIDE_TWO_8 : DPARI_STRIDE_TWO_16;
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
 * short. */
#if DPARI_STRIDE_VECTOR
/* Rows of n: the first few one by one until vectors are aligned (a vector across two lines is
 * stored twice), four vectors at a time (their sum is NaN if one is), vectors, the last few. From
 * the first four of a row whose sum is NaN on vector by vector, from the first with a NaN on one by
 * one. */
#define DPARI_STRIDE_DENSE_SUM(name, in, type, vector, some_nan, wipe, ...)                        \
    in static void name(const dpari_stride_rows *k)                                                \
    {                                                                                              \
        enum { SIZE = (int)sizeof(vector) };                                                       \
        const int64_t bytes = k->n * (int64_t)sizeof(type);                                        \
        unsigned char *to = k->to;                                                                 \
        const unsigned char *from = k->from;                                                       \
        int64_t row;                                                                               \
        for (row = k->rows; row > 0; row--, to += k->to_row, from += k->from_row) {                \
            const int64_t first =                                                                  \
                dpari_least((int64_t)((0 - (uintptr_t)to) % (uintptr_t)SIZE), bytes);              \
            unsigned char *t = to;                                                                 \
            const unsigned char *f = from, *end = from + bytes;                                    \
            vector a, b, c, d, e, g, h, i;                                                         \
            for (; f < from + first; t += sizeof(type), f += sizeof(type)) {                       \
                __VA_ARGS__                                                                        \
            }                                                                                      \
            for (; end - f >= 4 * SIZE; t += 4 * SIZE, f += 4 * SIZE) {                            \
                dpari_stride_copy(&e, f, SIZE);                                                    \
                dpari_stride_copy(&g, f + SIZE, SIZE);                                             \
                dpari_stride_copy(&h, f + 2 * SIZE, SIZE);                                         \
                dpari_stride_copy(&i, f + 3 * SIZE, SIZE);                                         \
                dpari_stride_copy(&a, t, SIZE);                                                    \
                dpari_stride_copy(&b, t + SIZE, SIZE);                                             \
                dpari_stride_copy(&c, t + 2 * SIZE, SIZE);                                         \
                dpari_stride_copy(&d, t + 3 * SIZE, SIZE);                                         \
                a += e;                                                                            \
                b += g;                                                                            \
                c += h;                                                                            \
                d += i;                                                                            \
                e = (a + b) + (c + d);                                                             \
                if (some_nan(e != e)) {                                                            \
                    break;                                                                         \
                }                                                                                  \
                dpari_stride_copy(t, &a, SIZE);                                                    \
                dpari_stride_copy(t + SIZE, &b, SIZE);                                             \
                dpari_stride_copy(t + 2 * SIZE, &c, SIZE);                                         \
                dpari_stride_copy(t + 3 * SIZE, &d, SIZE);                                         \
                wipe(f, vector) wipe(f + SIZE, vector) wipe(f + 2 * SIZE, vector)                  \
                    wipe(f + 3 * SIZE, vector)                                                     \
            }                                                                                      \
            for (; end - f >= SIZE; t += SIZE, f += SIZE) {                                        \
                dpari_stride_copy(&a, t, SIZE);                                                    \
                dpari_stride_copy(&e, f, SIZE);                                                    \
                a += e;                                                                            \
                if (some_nan(a != a)) {                                                            \
                    break;                                                                         \
                }                                                                                  \
                dpari_stride_copy(t, &a, SIZE);                                                    \
                wipe(f, vector)                                                                    \
            }                                                                                      \
            for (; f < end; t += sizeof(type), f += sizeof(type)) {                                \
                __VA_ARGS__                                                                        \
            }                                                                                      \
        }                                                                                          \
    }

#define DPARI_STRIDE_KEEP(at, type)
#define DPARI_STRIDE_DENSE_TWO(name, in, type, vector, some_nan, ...)                              \
    DPARI_STRIDE_DENSE_SUM(name, in, type, vector, some_nan, DPARI_STRIDE_KEEP, __VA_ARGS__)       \
    DPARI_STRIDE_DENSE_SUM(name##_clear, in, type, vector, some_nan, DPARI_STRIDE_ZERO,            \
                           __VA_ARGS__ DPARI_STRIDE_ZERO(f, type))

DPARI_STRIDE_DENSE_TWO(dpari_stride_dense_f32, , float, dpari_stride_f4, DPARI_STRIDE_NARROW_NAN,
                       DPARI_STRIDE_SUM_OF_F32)
DPARI_STRIDE_DENSE_TWO(dpari_stride_dense_f64, , double, dpari_stride_d2, DPARI_STRIDE_NARROW_NAN,
                       DPARI_STRIDE_SUM_OF_F64)
#endif
#if DPARI_STRIDE_WIDE
DPARI_STRIDE_DENSE_TWO(dpari_stride_wide_f32, DPARI_STRIDE_IN_WIDE, float, dpari_stride_f8,
                       dpari_stride_wide_nan, DPARI_STRIDE_SUM_OF_F32)
DPARI_STRIDE_DENSE_TWO(dpari_stride_wide_f64, DPARI_STRIDE_IN_WIDE, double, dpari_stride_d4,
                       dpari_stride_wide_nan, DPARI_STRIDE_SUM_OF_F64)
#endif

#if DPARI_STRIDE_VECTOR
typedef void dpari_stride_loop(const dpari_stride_rows *k);

/* NULL: there is none. */
static dpari_stride_loop *dpari_stride_dense_loop(const dpari_stride *s, int clear)
{
    const int32_t f64 = s->to_type == DPAR_F64;
    if (s->op != DPAR_SUM || (!f64 && s->to_type != DPAR_F32)) {
        return NULL;
    }
#if DPARI_STRIDE_WIDE
    if (s->wide) {
        if (clear) {
            return f64 ? dpari_stride_wide_f64_clear : dpari_stride_wide_f32_clear;
        }
        return f64 ? dpari_stride_wide_f64 : dpari_stride_wide_f32;
    }
#endif
    if (clear) {
        return f64 ? dpari_stride_dense_f64_clear : dpari_stride_dense_f32_clear;
    }
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
    aside.to_step = aside.from_step = bytes % 16 == 0 ? 16 : 8;
    aside.n = bytes / aside.to_step;
    (void)dpari_stride_move_and_clear(&aside, bytes % 16 == 0 ? DPARI_STRIDE_16 : DPARI_STRIDE_8);
    aside = *k;
    aside.from = room;
    aside.from_row = bytes;
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

/* 1: what was read is 0. */
static int dpari_stride_dense(const dpari_stride *s, const dpari_stride_rows *k)
{
    unsigned char *to = k->to;
    const unsigned char *from = k->from;
    int64_t row;
#if DPARI_STRIDE_VECTOR
    dpari_stride_loop *loop = dpari_stride_dense_loop(s, 0);
    if (loop && s->clear) {
        dpari_stride_dense_clear(s, k);
        return 1;
    }
    if (loop) {
        loop(k);
        return 0;
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
static void dpari_stride_wipe(const dpari_stride_rows *k, int64_t run)
{
    static const unsigned char zero[DPARI_STRIDE_ZEROS] = {0};
    dpari_stride_rows z = *k;
    const unsigned char *from = k->from;
    int64_t at;
    z.from = zero;
    z.from_step = z.from_row = 0;
    z.to_step = k->from_step;
    z.to_row = k->from_row;
    for (at = 0; at < run; at += z.run) {
        z.run = run - at < DPARI_STRIDE_ZEROS ? run - at : DPARI_STRIDE_ZEROS;
        z.to = (unsigned char *)(uintptr_t)(from + at);
        dpari_stride_move(&z, dpari_stride_loop_of(z.run));
    }
}

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
    if (s->clear) {
        (void)dpari_stride_move_and_clear(&nearby, s->loop);
    } else {
        dpari_stride_move(&nearby, s->loop);
    }
    dpari_stride_copy(k->to, room, k->rows * row);
}

/* `rows` rows of n. */
static void dpari_stride_some(const dpari_stride *s, unsigned char *to, const unsigned char *from,
                              int64_t rows, int64_t n)
{
    dpari_stride_rows k;
    k.list = NULL;
    k.to = to;
    k.from = from;
    k.rows = rows;
    k.n = n;
    k.to_step = s->dim[0].to;
    k.from_step = s->dim[0].from;
    k.to_row = s->dim[1].to;
    k.from_row = s->dim[1].from;
    k.run = s->run;
    k.beside = s->beside;
    if (s->packs) {
        dpari_stride_pack(s, &k);
        return;
    }
    if (s->beside != 0) {
        dpari_stride_move_beside(&k, s->loop);
        return;
    }
    if (s->clear && dpari_stride_move_and_clear(&k, s->loop)) {
        return;
    }
    switch (s->loop) {
    case DPARI_STRIDE_DENSE:
        if (dpari_stride_dense(s, &k)) {
            return;
        }
        break;
    case DPARI_STRIDE_BUFFER: dpari_stride_small(s, &k); break;
    default: dpari_stride_move(&k, s->loop); break;
    }
    if (s->clear) {
        dpari_stride_wipe(&k,
                          s->loop < DPARI_STRIDE_SUM_F32 ? s->run : dpar_type_bytes(s->from_type));
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
static void dpari_stride_ask_ahead(const dpari_stride *s, const unsigned char *to,
                                   const unsigned char *from, int64_t after, int64_t bytes)
{
#if defined(__GNUC__)
    const int64_t line = s->back ? -DPARI_STRIDE_LINE : DPARI_STRIDE_LINE;
    const unsigned char *at = s->ahead == DPARI_STRIDE_TO ? to : from;
    at += s->back ? -after : after;
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += line) {
        if (s->ahead == DPARI_STRIDE_FROM) {
            __builtin_prefetch(at);
        } else {
            dpari_stride_ask_line(at);
        }
    }
#else
    (void)s, (void)to, (void)from, (void)after, (void)bytes;
#endif
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
#define DPARI_STRIDE_ROUND_ONE(type, ...)                                                          \
    {                                                                                              \
        type x, y;                                                                                 \
        dpari_stride_copy(&x, low, sizeof x);                                                      \
        dpari_stride_copy(&y, high, sizeof y);                                                     \
        __VA_ARGS__                                                                                \
        dpari_stride_copy(low, &x, sizeof x);                                                      \
        dpari_stride_copy(high, &y, sizeof y);                                                     \
    }
#define DPARI_STRIDE_ROUND(name, in, type, ...)                                                    \
    in static void name(const dpari_stride_pair *k)                                                \
    {                                                                                              \
        const int64_t n = k->n, step = k->to_step, next = k->next, to_b = k->to_b;                 \
        int64_t row, i;                                                                            \
        for (row = 0; row < k->rows; row++) {                                                      \
            unsigned char *high = k->to + row * k->to_row;                                         \
            unsigned char *low = (unsigned char *)(uintptr_t)k->from + row * k->to_row;            \
            const int64_t soon = row + 1 < k->rows ? k->soon : k->least;                           \
            for (i = 0; i < soon; i++, high += step, low += step) {                                \
                dpari_stride_ask_line(high + next);                                                \
                dpari_stride_ask_line(high + to_b + next);                                         \
                DPARI_STRIDE_ROUND_ONE(type, __VA_ARGS__)                                          \
            }                                                                                      \
            for (; i < n; i++, high += step, low += step) {                                        \
                DPARI_STRIDE_ROUND_ONE(type, __VA_ARGS__)                                          \
            }                                                                                      \
        }                                                                                          \
    }
#define DPARI_STRIDE_ROUND_VECTOR(name, in, vector, words, some_nan, quiet, ...)                   \
    DPARI_STRIDE_ROUND(name, in, vector, const vector zero = {0};                                  \
                       DPARI_STRIDE_ADD(vector, words, some_nan, quiet, x, y) y = zero;            \
                       __VA_ARGS__)
DPARI_STRIDE_ROUND_VECTOR(dpari_stride_round_f64, , dpari_stride_d2, dpari_stride_u2,
                          DPARI_STRIDE_NARROW_NAN, DPARI_STRIDE_QUIET_F64, y[0] = x[0];
                          x[0] = 0;)
DPARI_STRIDE_ROUND_VECTOR(dpari_stride_round_f32_2, , dpari_stride_f4, dpari_stride_u2,
                          DPARI_STRIDE_NARROW_NAN, DPARI_STRIDE_QUIET_F32, y[0] = x[0];
                          y[1] = x[1]; x[0] = x[1] = 0;)
DPARI_STRIDE_ROUND(dpari_stride_round_f32, , uint64_t, uint64_t mask;
                   dpari_stride_copy(&mask, dpari_stride_first_f32, sizeof mask);
                   x = dpari_stride_add_f2(x, y); y = x & mask; x &= ~mask;)
#endif
#if DPARI_STRIDE_WIDE
DPARI_STRIDE_ROUND_VECTOR(dpari_stride_round_f64_2, DPARI_STRIDE_IN_WIDE, dpari_stride_d4,
                          dpari_stride_u4, dpari_stride_wide_nan, DPARI_STRIDE_QUIET_F64,
                          y[0] = x[0];
                          y[1] = x[1]; x[0] = x[1] = 0;)
#endif

/* Makes k go round where its two do, whose sums are of `step` bytes each; 0: they do not, or x and
 * y overlap, in a block narrower than its two halos. */
static int dpari_stride_goes_round(dpari_stride_pair *k, uintptr_t step)
{
    const uintptr_t to = (uintptr_t)k->to, from = (uintptr_t)k->from;
    const uintptr_t to_b = to + (uintptr_t)k->to_b, from_b = from + (uintptr_t)k->from_b;
    if (k->to_step != k->from_step || k->to_row != k->from_row) {
        return 0;
    }
    if (from_b == to + step && to_b == from + step) {
        return to >= from + 2 * step;
    }
    if (from != to_b + step || to != from_b + step || to_b < from_b + 2 * step) {
        return 0;
    }
    k->from += k->from_b; /* b has the low halo: it goes first */
    k->to += k->to_b;
    k->from_b = -k->from_b;
    k->to_b = -k->to_b;
    return 1;
}

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

static void dpari_stride_move_pair(const dpari_stride_pair *k, const dpari_stride *s)
{
    if (k->round) {
        k->round(k);
        return;
    }
    switch (s->loop) {
#define DPARI_STRIDE_CASE(id, name, ...)                                                           \
    case DPARI_STRIDE_##id:                                                                        \
        if (s->clear) {                                                                            \
            dpari_stride_##name##_pair_clear(k);                                                   \
        } else {                                                                                   \
            dpari_stride_##name##_pair(k);                                                         \
        }                                                                                          \
        break;
        DPARI_STRIDE_EACH_COPY(DPARI_STRIDE_CASE)
        DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: break;
    }
}

static void dpari_stride_move_pair_beside(const dpari_stride_pair *k, const dpari_stride *s)
{
    switch (s->loop) {
#define DPARI_STRIDE_CASE(id, name, ...)                                                           \
    case DPARI_STRIDE_##id: dpari_stride_##name##_pair_beside(k); break;
        DPARI_STRIDE_EACH_SUM(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
    default: (void)k; break;
    }
}

/* Is there a loop for both? Of short copies and of sums. */
static int dpari_stride_pairs(const dpari_stride *a, const dpari_stride *b)
{
    const int copies = a->loop < DPARI_STRIDE_LONG, sums = dpari_stride_sums(a);
    int32_t d;
    for (d = 0; d < 2; d++) {
        if (a->dim[d].to != b->dim[d].to || a->dim[d].from != b->dim[d].from) {
            return 0;
        }
    }
    return a->dims <= 2 && a->loop == b->loop && a->run == b->run && a->ahead == b->ahead &&
           a->each == b->each && a->asks == b->asks && a->packs == b->packs &&
           a->clear == b->clear && (a->beside != 0) == (b->beside != 0) && (copies || sums);
}

/* Targets that are asked for in time: of rows that are short those of the next row. */
static void dpari_stride_pair_next(dpari_stride_pair *k, const dpari_stride *a)
{
    const int64_t step = dpari_stride_size(k->to_step);
    k->next = k->soon = k->least = 0;
    if (a->asks && k->n <= DPARI_STRIDE_ROW) {
        k->next = k->to_row;
        k->soon = k->n;
    } else if (a->asks || step >= DPARI_STRIDE_APART) {
        k->next = DPARI_STRIDE_SOON * k->to_step;
        k->soon = k->n;
        k->least = k->n - DPARI_STRIDE_SOON;
    }
}

static void dpari_stride_ask_both(const unsigned char *at, int64_t to_b, int64_t bytes)
{
    dpari_stride_ask_lines(at, bytes);
    dpari_stride_ask_lines(at + to_b, bytes);
}

/* As dpari_stride_pack, some rows at a time; the lines of those that come DPARI_STRIDE_PACK_SOON
 * later are asked for in between: more at once than a core waits for hold up what it reads. (32^3
 * cut along the contiguous dim 6.4 us in parts of 2048 bytes, 5.9 so, on a Xeon.) */
static void dpari_stride_pack_pair(const dpari_stride_pair *k, const dpari_stride *s)
{
    unsigned char room[2][DPARI_STRIDE_PACK];
    const int64_t row = k->n * s->run, bytes = k->rows * row;
    const int64_t most = dpari_most(1, DPARI_STRIDE_PACK_PART / row);
    dpari_stride_pair some = *k;
    int64_t at, asked = dpari_least(bytes, DPARI_STRIDE_PACK_SOON);
    some.to = room[0];
    some.to_b = DPARI_STRIDE_PACK;
    dpari_stride_ask_both(k->to, k->to_b, asked);
    for (at = 0; at < bytes; at += some.rows * row) {
        const int64_t next = dpari_least(at + most * row, bytes), part = next - at;
        const int64_t soon = dpari_least(next + DPARI_STRIDE_PACK_SOON, bytes);
        some.rows = part / row;
        dpari_stride_move_pair(&some, s);
        dpari_stride_ask_both(k->to + asked, k->to_b, soon - asked);
        asked = soon;
        dpari_stride_copy(k->to + at, room[0], part);
        dpari_stride_copy(k->to + at + k->to_b, room[1], part);
        some.from += some.rows * k->from_row;
    }
}

/* Of a at to[0], from[0] and b at to[1], from[1]. */
static void dpari_stride_pair_of(dpari_stride_pair *k, const dpari_stride *a,
                                 unsigned char *const *to, const unsigned char *const *from,
                                 const dpari_stride *b)
{
    k->to = to[0];
    k->from = from[0];
    k->n = a->dim[0].count;
    k->rows = a->dim[1].count;
    k->to_step = a->dim[0].to;
    k->from_step = a->dim[0].from;
    k->to_row = a->dim[1].to;
    k->from_row = a->dim[1].from;
    k->to_b = (int64_t)((uintptr_t)to[1] - (uintptr_t)to[0]);
    k->from_b = (int64_t)((uintptr_t)from[1] - (uintptr_t)from[0]);
    k->beside_a = a->beside;
    k->beside_b = b->beside;
    k->after = a->back ? -DPARI_STRIDE_AHEAD : DPARI_STRIDE_AHEAD;
    k->run = a->run;
    k->ahead = a->each > 0 ? a->ahead : 0;
    k->every = dpari_most(1, DPARI_STRIDE_LINE / a->run);
    k->round = a->clear && k->ahead == 0 ? dpari_stride_round_of(k, a) : NULL;
    dpari_stride_pair_next(k, a);
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
        dpari_stride_ask(a, to[0], 1, dpari_least(k.n, DPARI_STRIDE_ROW));
        dpari_stride_ask(b, to[1], 1, dpari_least(k.n, DPARI_STRIDE_ROW));
    }
    if (a->packs) {
        dpari_stride_pack_pair(&k, a);
    } else if (a->beside != 0) {
        dpari_stride_move_pair_beside(&k, a);
    } else {
        dpari_stride_move_pair(&k, a);
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
    k.list = list;
    k.to = (unsigned char *)to;
    k.from = (const unsigned char *)from;
    k.n = n;
    k.rows = 0;
    k.to_step = k.from_step = k.to_row = k.from_row = 0;
    k.run = s->run;
    k.beside = 0;
    for (i = 0; i < n && s->ahead == DPARI_STRIDE_TO; i++) {
        dpari_stride_ask_line(k.to + list[i].to);
    }
    if (s->clear) {
        (void)dpari_stride_move_and_clear(&k, s->loop);
    } else {
        dpari_stride_move(&k, s->loop);
    }
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
static void dpari_stride_drop(dpari_stride *s, int32_t d)
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
static void dpari_stride_lengthen(dpari_stride *s, int32_t d)
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
        if (dpari_stride_sums(s)) {
            if (s->loop != DPARI_STRIDE_SUM_F32 && s->loop != DPARI_STRIDE_SUM_F64) {
                dpari_stride_drop(s, 0);
            } else {
                s->run = size;
            }
        }
    }
    if (dpari_stride_sums(s) && !s->clear) {
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

DPARI_DOOR void dpari_stride_prepare(dpari_stride *s, const dpari_stride_piece *p)
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
