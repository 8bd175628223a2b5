/* SPDX-License-Identifier: MIT-0 */
/* Vectorised loops over rows, for norms, cross-entropy, attention and 8-bit codes. Each loop exists
 * in two versions: with GCC's vector extensions, for AVX2 if the CPU has it at run time, and for
 * single elements. Both give the same bits, because sums have 16 chains (8 in f32) with a fixed
 * order, and products are not fused with sums. vector_loops.h describes each loop.
 *
 * dpari_lanes_for returns the table of functions for this CPU. layers.c, layers_norm.c, sequence.c
 * and tests call it. */
#include "vector_loops.h"

#include "../base/real.h"
#include "../base/type.h"
#include "cpu.h"
#include "elements.h"
#include "vectors.h"

/* Returns the scale of block i. */
static float dpari_lanes_scale(const dpari_lanes_blocks *b, int64_t i)
{
    float scale;
    dpari_elements_bits(&scale, b->scale + i * b->scale_step, 4);
    return scale;
}

#if DPARI_LANES_VECTOR

/* ---- sums and maps of rows ------------------------------------------------------------------- */

/* Sixteen doubles: the 16 chains of a sum, or 16 elements of a row. */
typedef struct dpari_lanes_16 {
    dpari_lanes_d4 v[4];
} dpari_lanes_16;

DPARI_LANES_INLINE void dpari_lanes_all(dpari_lanes_16 *to, double x)
{
    const dpari_lanes_d4 all = DPARI_LANES_ALL4(x);
    DPARI_FOUR(to->v[q] = all);
}

/* Adds the 16 chains in the order that vector_loops.h describes. */
DPARI_LANES_INLINE double dpari_lanes_fold(const dpari_lanes_16 *x)
{
    const dpari_lanes_d4 s = (x->v[0] + x->v[2]) + (x->v[1] + x->v[3]);
    return (s[0] + s[2]) + (s[1] + s[3]);
}

DPARI_LANES_INLINE void dpari_lanes_widen(double *to, const float *from, int64_t n, int wide)
{
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        dpari_lanes_f4 a, b;
        dpari_lanes_d4 x, y;
        dpari_lanes_get(&a, from + i);
        dpari_lanes_get(&b, from + i + 4);
        DPARI_LANES_CONVERT(wide, "vcvtps2pd", x, a, dpari_lanes_d4);
        DPARI_LANES_CONVERT(wide, "vcvtps2pd", y, b, dpari_lanes_d4);
        dpari_lanes_put(to + i, &x);
        dpari_lanes_put(to + i + 4, &y);
    }
    for (; i < n; i++) {
        to[i] = (double)from[i];
    }
}

DPARI_LANES_INLINE void dpari_lanes_thin(float *to, const double *from, int64_t n, int wide)
{
    int64_t i;
    for (i = 0; i + 8 <= n; i += 8) {
        dpari_lanes_f4 a, b;
        dpari_lanes_d4 x, y;
        dpari_lanes_get(&x, from + i);
        dpari_lanes_get(&y, from + i + 4);
        DPARI_LANES_CONVERT(wide, "vcvtpd2psy", a, x, dpari_lanes_f4);
        DPARI_LANES_CONVERT(wide, "vcvtpd2psy", b, y, dpari_lanes_f4);
        dpari_lanes_put(to + i, &a);
        dpari_lanes_put(to + i + 4, &b);
    }
    for (; i < n; i++) {
        to[i] = (float)from[i];
    }
}

/* Loads elements i .. i + 15 as doubles; dpari_lanes_store does the opposite. */
DPARI_LANES_INLINE void dpari_lanes_load(dpari_lanes_16 *to, const void *x, int64_t i, int32_t type,
                                         int wide)
{
    if (type == DPAR_F64) {
        DPARI_FOUR(dpari_lanes_get(&to->v[q], (const double *)x + i + 4 * q));
    } else {
        const dpari_lanes_m4 *f = (const dpari_lanes_m4 *)(const void *)((const float *)x + i);
        DPARI_FOUR(DPARI_LANES_CONVERT(wide, "vcvtps2pd", to->v[q], f[q], dpari_lanes_d4));
    }
}

DPARI_LANES_INLINE void dpari_lanes_store(void *x, int64_t i, int32_t type,
                                          const dpari_lanes_16 *from, int wide)
{
    dpari_lanes_f4 f;
    if (type == DPAR_F64) {
        DPARI_FOUR(dpari_lanes_put((double *)x + i + 4 * q, &from->v[q]));
    } else {
        DPARI_FOUR(DPARI_LANES_CONVERT(wide, "vcvtpd2psy", f, from->v[q], dpari_lanes_f4);
                   dpari_lanes_put((float *)x + i + 4 * q, &f));
    }
}

/* Copies the last elements, from i on, to `room`, and fills the remainder of `room` with `rest`. */
DPARI_STATIC_NOINLINE const double *dpari_lanes_last(double *room, const void *x, int64_t i,
                                                     int64_t n, int32_t type, double rest)
{
    int64_t k;
    for (k = 0; k < DPARI_LANES_D; k++) {
        room[k] = i + k < n ? dpari_element_get(x, type, i + k) : rest;
    }
    return room;
}

DPARI_STATIC_NOINLINE void dpari_lanes_last_store(void *x, int64_t i, int64_t n, int32_t type,
                                                  const double *room)
{
    int64_t k;
    for (k = 0; i + k < n; k++) {
        dpari_element_put(x, type, i + k, room[k]);
    }
}

/* What a sum adds: x, (x - mean)^2, x (y - mean), or the latter and x separately. */
enum { DPARI_LANES_TOTAL, DPARI_LANES_ABOUT, DPARI_LANES_PRODUCT, DPARI_LANES_BOTH };

DPARI_LANES_INLINE void dpari_lanes_sum_16(dpari_lanes_16 *sum, dpari_lanes_16 *first, int what,
                                           const void *x, const void *y, double mean, int64_t i,
                                           int32_t type, int wide)
{
    const dpari_lanes_d4 less = DPARI_LANES_ALL4(mean);
    dpari_lanes_16 p, z;
    dpari_lanes_load(&p, x, i, type, wide);
    if (what == DPARI_LANES_TOTAL) {
        DPARI_FOUR(sum->v[q] += p.v[q]);
    } else if (what == DPARI_LANES_ABOUT) {
        DPARI_FOUR(sum->v[q] += (p.v[q] - less) * (p.v[q] - less));
    } else {
        dpari_lanes_load(&z, y, i, type, wide);
        DPARI_FOUR(sum->v[q] += p.v[q] * (z.v[q] - less));
    }
    if (what == DPARI_LANES_BOTH) {
        DPARI_FOUR(first->v[q] += p.v[q]);
    }
}

/* Adds up a row. total: the sum of x if `what` is BOTH. */
DPARI_LANES_INLINE double dpari_lanes_sum(int what, const void *x, const void *y, int32_t type,
                                          double mean, int64_t n, double *total, int wide)
{
    dpari_lanes_16 sum, first;
    double room[2][DPARI_LANES_D];
    int64_t i = 0;
    dpari_lanes_all(&sum, 0.0);
    dpari_lanes_all(&first, 0.0);
    for (; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_sum_16(&sum, &first, what, x, y, mean, i, type, wide);
    }
    if (i < n) {
        (void)dpari_lanes_last(room[0], x, i, n, type, what == DPARI_LANES_ABOUT ? mean : 0.0);
        if (what >= DPARI_LANES_PRODUCT) {
            (void)dpari_lanes_last(room[1], y, i, n, type, mean);
        }
        dpari_lanes_sum_16(&sum, &first, what, room[0], room[1], mean, 0, DPAR_F64, wide);
    }
    if (what == DPARI_LANES_BOTH) {
        *total = dpari_lanes_fold(&first);
    }
    return dpari_lanes_fold(&sum);
}

DPARI_LANES_INLINE double dpari_lanes_total(const void *x, int32_t type, int64_t n, int wide)
{
    return dpari_lanes_sum(DPARI_LANES_TOTAL, x, x, type, 0.0, n, NULL, wide);
}

DPARI_LANES_INLINE double dpari_lanes_about(const void *x, int32_t type, double mean, int64_t n,
                                            int wide)
{
    return dpari_lanes_sum(DPARI_LANES_ABOUT, x, x, type, mean, n, NULL, wide);
}

DPARI_LANES_INLINE double dpari_lanes_product(const void *x, const void *y, int32_t type,
                                              double mean, int64_t n, double *total, int wide)
{
    if (total != NULL) {
        return dpari_lanes_sum(DPARI_LANES_BOTH, x, y, type, mean, n, total, wide);
    }
    return dpari_lanes_sum(DPARI_LANES_PRODUCT, x, y, type, mean, n, NULL, wide);
}

DPARI_LANES_INLINE void dpari_lanes_more(dpari_lanes_d4 *a, const dpari_lanes_d4 *x)
{
    const dpari_lanes_u4 above = (dpari_lanes_u4)(*x > *a);
    *a = (dpari_lanes_d4)(((dpari_lanes_u4)*x & above) | ((dpari_lanes_u4)*a & ~above));
}

DPARI_LANES_INLINE double dpari_lanes_largest(const void *x, int32_t type, double most, int64_t n,
                                              int wide)
{
    dpari_lanes_16 all, p;
    double room[DPARI_LANES_D];
    int64_t i = 0;
    dpari_lanes_all(&all, most);
    for (; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_load(&p, x, i, type, wide);
        DPARI_FOUR(dpari_lanes_more(&all.v[q], &p.v[q]));
    }
    if (i < n) {
        dpari_lanes_load(&p, dpari_lanes_last(room, x, i, n, type, most), 0, DPAR_F64, wide);
        DPARI_FOUR(dpari_lanes_more(&all.v[q], &p.v[q]));
    }
    dpari_lanes_more(&all.v[0], &all.v[1]);
    dpari_lanes_more(&all.v[2], &all.v[3]);
    dpari_lanes_more(&all.v[0], &all.v[2]);
    for (i = 0; i < 4; i++) {
        most = all.v[0][i] > most ? all.v[0][i] : most;
    }
    return most;
}

/* Computes 16 elements of `line`, or of `slope` if y is not NULL. */
DPARI_LANES_INLINE void dpari_lanes_map_16(void *to, const void *x, const void *y, int64_t i,
                                           int32_t type, const double *by, int wide)
{
    dpari_lanes_16 p, g;
    dpari_lanes_load(&p, x, i, type, wide);
    if (y == NULL) {
        const dpari_lanes_d4 a = DPARI_LANES_ALL4(by[0]), mean = DPARI_LANES_ALL4(by[1]);
        const dpari_lanes_d4 b = DPARI_LANES_ALL4(by[2]);
        DPARI_FOUR(p.v[q] = a * (p.v[q] - mean) + b);
    } else {
        const dpari_lanes_d4 inverse = DPARI_LANES_ALL4(by[0]), scale = DPARI_LANES_ALL4(by[1]);
        const dpari_lanes_d4 mean = DPARI_LANES_ALL4(by[2]), middle = DPARI_LANES_ALL4(by[3]);
        const dpari_lanes_d4 slope = DPARI_LANES_ALL4(by[4]);
        dpari_lanes_load(&g, y, i, type, wide);
        DPARI_FOUR(p.v[q] = inverse * (scale * g.v[q] - mean - (p.v[q] - middle) * slope));
    }
    dpari_lanes_store(to, i, type, &p, wide);
}

DPARI_LANES_INLINE void dpari_lanes_line(void *to, const void *x, int32_t type, const double *by,
                                         int64_t n, int wide)
{
    const double with[3] = {by[0], by[1], by[2]};
    double room[DPARI_LANES_D];
    int64_t i = 0;
    for (; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_map_16(to, x, NULL, i, type, with, wide);
    }
    if (i < n) {
        dpari_lanes_map_16(room, dpari_lanes_last(room, x, i, n, type, 0.0), NULL, 0, DPAR_F64,
                           with, wide);
        dpari_lanes_last_store(to, i, n, type, room);
    }
}

DPARI_LANES_INLINE void dpari_lanes_slope(void *to, const void *x, const void *y, int32_t type,
                                          const double *by, int64_t n, int wide)
{
    const double with[5] = {by[0], by[1], by[2], by[3], by[4]};
    double room[2][DPARI_LANES_D];
    int64_t i = 0;
    for (; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_map_16(to, x, y, i, type, with, wide);
    }
    if (i < n) {
        dpari_lanes_map_16(room[0], dpari_lanes_last(room[0], x, i, n, type, 0.0),
                           dpari_lanes_last(room[1], y, i, n, type, 0.0), 0, DPAR_F64, with, wide);
        dpari_lanes_last_store(to, i, n, type, room[0]);
    }
}

/* Computes the smaller of x and `most`. A NaN in x remains. */
DPARI_LANES_INLINE void dpari_lanes_least(dpari_lanes_d4 *to, const dpari_lanes_d4 *x,
                                          const dpari_lanes_d4 *most, int wide)
{
    dpari_lanes_u4 over;
#if DPARI_LANES_ASM
    if (wide) { /* in assembly, because gcc would emit four instructions */
        __asm__("vminpd %1, %2, %0" : "=x"(*to) : "x"(*x), "x"(*most));
        return;
    }
#endif
    (void)wide;
    over = (dpari_lanes_u4)(*x > *most);
    *to = (dpari_lanes_d4)(((dpari_lanes_u4)*x & ~over) | ((dpari_lanes_u4)*most & over));
}

/* Computes x = e^x and z = e^z. Two vectors are processed at once, because their operations do not
 * depend on each other. x is split into k ln 2 + f, where k is an integer, which adding 1.5 2^52
 * leaves in the last bits. ln 2 is stored in two parts, so that k times the first part is exact.
 * e^f for |f| < 0.347 is a Taylor sum of degree 12 with an error below 2e-16. Its terms are added
 * in pairs (Estrin), so that few operations depend on each other. 2^k is made from its bits. NaN
 * remains NaN, because f is NaN. */
DPARI_LANES_INLINE void dpari_lanes_exp(dpari_lanes_d4 *x, dpari_lanes_d4 *z, int wide)
{
    const dpari_lanes_d4 low = DPARI_LANES_ALL4(-708.0), high = DPARI_LANES_ALL4(709.0);
    const dpari_lanes_u4 under = (dpari_lanes_u4)(*x < low);
    const dpari_lanes_u4 under_2 = (dpari_lanes_u4)(*z < low);
    dpari_lanes_d4 y, y_2;
    dpari_lanes_least(&y, x, &high, wide);
    dpari_lanes_least(&y_2, z, &high, wide);
    const dpari_lanes_d4 turned = y * 1.4426950408889634 + 6755399441055744.0;
    const dpari_lanes_d4 turned_2 = y_2 * 1.4426950408889634 + 6755399441055744.0;
    const dpari_lanes_d4 k = turned - 6755399441055744.0;
    const dpari_lanes_d4 k_2 = turned_2 - 6755399441055744.0;
    const dpari_lanes_d4 g = y - k * 0.693147180369123816490;
    const dpari_lanes_d4 g_2 = y_2 - k_2 * 0.693147180369123816490;
    const dpari_lanes_d4 f = g - k * 1.90821492927058770002e-10;
    const dpari_lanes_d4 f_2 = g_2 - k_2 * 1.90821492927058770002e-10;
    const dpari_lanes_u4 power = ((dpari_lanes_u4)turned << 52) + (UINT64_C(1023) << 52);
    const dpari_lanes_u4 power_2 = ((dpari_lanes_u4)turned_2 << 52) + (UINT64_C(1023) << 52);
    const dpari_lanes_d4 f2 = f * f;
    const dpari_lanes_d4 f2_2 = f_2 * f_2;
    const dpari_lanes_d4 a = (f + 1.0) + (f * (1.0 / 6.0) + 0.5) * f2;
    const dpari_lanes_d4 a_2 = (f_2 + 1.0) + (f_2 * (1.0 / 6.0) + 0.5) * f2_2;
    const dpari_lanes_d4 f4 = f2 * f2;
    const dpari_lanes_d4 f4_2 = f2_2 * f2_2;
    const dpari_lanes_d4 b =
        (f * (1.0 / 120.0) + 1.0 / 24.0) + (f * (1.0 / 5040.0) + 1.0 / 720.0) * f2;
    const dpari_lanes_d4 b_2 =
        (f_2 * (1.0 / 120.0) + 1.0 / 24.0) + (f_2 * (1.0 / 5040.0) + 1.0 / 720.0) * f2_2;
    const dpari_lanes_d4 c =
        (f * (1.0 / 362880.0) + 1.0 / 40320.0) + (f * (1.0 / 39916800.0) + 1.0 / 3628800.0) * f2;
    const dpari_lanes_d4 c_2 = (f_2 * (1.0 / 362880.0) + 1.0 / 40320.0) +
                               (f_2 * (1.0 / 39916800.0) + 1.0 / 3628800.0) * f2_2;
    const dpari_lanes_d4 sum = (a + b * f4) + (c + f4 * (1.0 / 479001600.0)) * (f4 * f4);
    const dpari_lanes_d4 sum_2 =
        (a_2 + b_2 * f4_2) + (c_2 + f4_2 * (1.0 / 479001600.0)) * (f4_2 * f4_2);
    *x = (dpari_lanes_d4)((dpari_lanes_u4)(sum * (dpari_lanes_d4)power) & ~under);
    *z = (dpari_lanes_d4)((dpari_lanes_u4)(sum_2 * (dpari_lanes_d4)power_2) & ~under_2);
}

DPARI_LANES_INLINE void dpari_lanes_exps_16(dpari_lanes_16 *sum, void *to, const void *x, int64_t i,
                                            int32_t type, const double *by, int wide)
{
    const dpari_lanes_d4 less = DPARI_LANES_ALL4(by[0]), times = DPARI_LANES_ALL4(by[1]);
    const dpari_lanes_d4 plus = DPARI_LANES_ALL4(by[2]);
    dpari_lanes_16 p;
    int32_t k;
    dpari_lanes_load(&p, x, i, type, wide);
    DPARI_FOUR(p.v[q] -= less);
    if (wide) {
        dpari_lanes_exp(&p.v[0], &p.v[1], wide);
        dpari_lanes_exp(&p.v[2], &p.v[3], wide);
    }
    for (k = 0; k < 4 && !wide; k += 2) { /* a loop, which is as fast with fewer registers */
        dpari_lanes_exp(&p.v[k], &p.v[k + 1], wide);
    }
    DPARI_FOUR(sum->v[q] += p.v[q]);
    if (to != NULL) {
        DPARI_FOUR(p.v[q] = times * p.v[q] + plus);
        dpari_lanes_store(to, i, type, &p, wide);
    }
}

/* The same loop processes full groups of 16 elements and then the last elements, which are copied
 * to `room`. */
DPARI_LANES_INLINE double dpari_lanes_exps(void *to, const void *x, int32_t type, const double *by,
                                           int64_t n, int wide)
{
    const double with[3] = {by[0], by[1], by[2]};
    const int64_t whole = n - n % DPARI_LANES_D;
    const void *at = x;
    void *out = to;
    int32_t as = type;
    int64_t i = 0, end = whole;
    double room[DPARI_LANES_D];
    dpari_lanes_16 sum;
    dpari_lanes_all(&sum, 0.0);
    for (;;) {
        for (; i < end; i += DPARI_LANES_D) {
            dpari_lanes_exps_16(&sum, out, at, i, as, with, wide);
        }
        if (at == room || whole == n) {
            break;
        }
        at = dpari_lanes_last(room, x, whole, n, type, with[0] - 1000.0);
        out = to != NULL ? room : NULL;
        as = DPAR_F64;
        i = 0;
        end = DPARI_LANES_D;
    }
    if (to != NULL && whole < n) {
        dpari_lanes_last_store(to, whole, n, type, room);
    }
    return dpari_lanes_fold(&sum);
}

/* Computes x = log(1 + x) = 2 atanh(x / (2 + x)) for 0 <= x <= 1. The argument of atanh is at most
 * 1 / 3, so that 16 terms of its series leave an error below 1e-16. */
DPARI_LANES_INLINE void dpari_lanes_log(dpari_lanes_d4 *x)
{
    const dpari_lanes_d4 y = *x / (*x + 2.0), y2 = y * y;
    dpari_lanes_d4 sum = y2 * (2.0 / 31.0) + 2.0 / 29.0;
    sum = sum * y2 + 2.0 / 27.0;
    sum = sum * y2 + 2.0 / 25.0;
    sum = sum * y2 + 2.0 / 23.0;
    sum = sum * y2 + 2.0 / 21.0;
    sum = sum * y2 + 2.0 / 19.0;
    sum = sum * y2 + 2.0 / 17.0;
    sum = sum * y2 + 2.0 / 15.0;
    sum = sum * y2 + 2.0 / 13.0;
    sum = sum * y2 + 2.0 / 11.0;
    sum = sum * y2 + 2.0 / 9.0;
    sum = sum * y2 + 2.0 / 7.0;
    sum = sum * y2 + 2.0 / 5.0;
    sum = sum * y2 + 2.0 / 3.0;
    sum = sum * y2 + 2.0;
    *x = sum * y;
}

DPARI_LANES_INLINE void dpari_lanes_logs(double *x, int64_t n)
{
    double room[4] = {0.0, 0.0, 0.0, 0.0};
    dpari_lanes_d4 p;
    int64_t i, k;
    for (i = 0; i + 4 <= n; i += 4) {
        dpari_lanes_get(&p, x + i);
        dpari_lanes_log(&p);
        dpari_lanes_put(x + i, &p);
    }
    for (k = 0; k < n - i; k++) {
        room[k] = x[i + k];
    }
    dpari_lanes_get(&p, room);
    dpari_lanes_log(&p);
    dpari_lanes_put(room, &p);
    for (k = 0; k < n - i; k++) {
        x[i + k] = room[k];
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

/* A vector of words i, j, k and l, where words 0 .. 3 are those of a and 4 .. 7 those of b. */
#if defined(__clang__)
#define DPARI_LANES_WORDS(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define DPARI_LANES_WORDS(a, b, i, j, k, l) dpari_lanes_words(a, b, i, j, k, l)
DPARI_LANES_INLINE dpari_lanes_f4 dpari_lanes_words(dpari_lanes_f4 a, dpari_lanes_f4 b, int32_t i,
                                                    int32_t j, int32_t k, int32_t l)
{
    const dpari_lanes_w4 which = {i, j, k, l};
    return __builtin_shuffle(a, b, which);
}
#endif

/* Adds the two halves of a vector. */
DPARI_LANES_INLINE void dpari_lanes_half(dpari_lanes_f4 *to, const dpari_lanes_f8 *x)
{
    dpari_lanes_f4 a, b;
    __builtin_memcpy(&a, x, 16);
    __builtin_memcpy(&b, (const unsigned char *)x + 16, 16);
    *to = a + b;
}

/* Computes the scores of four rows at once, so that each element of x is loaded once. */
DPARI_LANES_INLINE void dpari_lanes_scores_four(double *to, const float *x,
                                                const float *const row[4], int64_t width,
                                                double scale)
{
    dpari_lanes_f8 a = DPARI_LANES_ALL8(0.0f), b = a, c = a, d = a, u, p, q, r, s;
    dpari_lanes_f4 e, f, g, h, first, second;
    dpari_lanes_d4 sum;
    float more[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    int64_t i;
    for (i = 0; i + DPARI_LANES_F <= width; i += DPARI_LANES_F) {
        dpari_lanes_get(&u, x + i);
        dpari_lanes_get(&p, row[0] + i);
        dpari_lanes_get(&q, row[1] + i);
        dpari_lanes_get(&r, row[2] + i);
        dpari_lanes_get(&s, row[3] + i);
        a += u * p;
        b += u * q;
        c += u * r;
        d += u * s;
    }
    for (; i < width; i++) {
        more[0] += x[i] * row[0][i];
        more[1] += x[i] * row[1][i];
        more[2] += x[i] * row[2][i];
        more[3] += x[i] * row[3][i];
    }
    dpari_lanes_half(&e, &a);
    dpari_lanes_half(&f, &b);
    dpari_lanes_half(&g, &c);
    dpari_lanes_half(&h, &d);
    first = DPARI_LANES_WORDS(e, f, 0, 4, 1, 5) + DPARI_LANES_WORDS(e, f, 2, 6, 3, 7);
    second = DPARI_LANES_WORDS(g, h, 0, 4, 1, 5) + DPARI_LANES_WORDS(g, h, 2, 6, 3, 7);
    e = DPARI_LANES_WORDS(first, second, 0, 1, 4, 5) + DPARI_LANES_WORDS(first, second, 2, 3, 6, 7);
    dpari_lanes_get(&f, more);
    e += f;
    sum = __builtin_convertvector(e, dpari_lanes_d4) * scale;
    dpari_lanes_put(to, &sum);
}

DPARI_LANES_INLINE void dpari_lanes_scores(double *to, const float *x, const float *row,
                                           int64_t step, int64_t n, int64_t width, double scale)
{
    double room[4];
    int64_t j, k;
    for (j = 0; j < n; j += 4) {
        const float *each[4];
        for (k = 0; k < 4; k++) { /* if fewer than four rows are left, the last one is repeated */
            each[k] = row + dpari_least(j + k, n - 1) * step;
        }
        dpari_lanes_scores_four(n - j < 4 ? room : to + j, x, each, width, scale);
        for (k = 0; k < n - j && n - j < 4; k++) {
            to[j + k] = room[k];
        }
    }
}

DPARI_LANES_INLINE void dpari_lanes_mix(float *y, float keep, const float *by, const float *row,
                                        int64_t step, int64_t n, int64_t width)
{
    int64_t c = 0, j;
    for (; c + 4 * DPARI_LANES_F <= width; c += 4 * DPARI_LANES_F) {
        dpari_lanes_f8 p, q, r, s, k, l, m, o;
        const float *at = row + c;
        dpari_lanes_get(&p, y + c);
        dpari_lanes_get(&q, y + c + 8);
        dpari_lanes_get(&r, y + c + 16);
        dpari_lanes_get(&s, y + c + 24);
        p *= keep;
        q *= keep;
        r *= keep;
        s *= keep;
        for (j = 0; j < n; j++, at += step) {
            const dpari_lanes_f8 w = DPARI_LANES_ALL8(by[j]);
            dpari_lanes_get(&k, at);
            dpari_lanes_get(&l, at + 8);
            dpari_lanes_get(&m, at + 16);
            dpari_lanes_get(&o, at + 24);
            p += w * k;
            q += w * l;
            r += w * m;
            s += w * o;
        }
        dpari_lanes_put(y + c, &p);
        dpari_lanes_put(y + c + 8, &q);
        dpari_lanes_put(y + c + 16, &r);
        dpari_lanes_put(y + c + 24, &s);
    }
    for (; c + DPARI_LANES_F <= width; c += DPARI_LANES_F) {
        dpari_lanes_f8 p, k;
        dpari_lanes_get(&p, y + c);
        p *= keep;
        for (j = 0; j < n; j++) {
            const dpari_lanes_f8 w = DPARI_LANES_ALL8(by[j]);
            dpari_lanes_get(&k, row + j * step + c);
            p += w * k;
        }
        dpari_lanes_put(y + c, &p);
    }
    for (; c < width; c++) {
        y[c] *= keep;
        for (j = 0; j < n; j++) {
            y[c] += by[j] * row[j * step + c];
        }
    }
}

DPARI_LANES_INLINE void dpari_lanes_add(float *y, float keep, float by, const float *x, int64_t n)
{
    const dpari_lanes_f8 k = DPARI_LANES_ALL8(keep), w = DPARI_LANES_ALL8(by);
    int64_t i;
    for (i = 0; i + DPARI_LANES_F <= n; i += DPARI_LANES_F) {
        dpari_lanes_f8 p, q;
        dpari_lanes_get(&p, y + i);
        dpari_lanes_get(&q, x + i);
        p = k * p + w * q;
        dpari_lanes_put(y + i, &p);
    }
    for (; i < n; i++) {
        y[i] = keep * y[i] + by * x[i];
    }
}

/* ---- 8-bit codes ----------------------------------------------------------------------------- */

/* Computes the larger of each |x| and `most`. Compares them as integers, because the bits of |x|
 * are ordered like |x|. */
DPARI_LANES_INLINE void dpari_lanes_sizes(dpari_lanes_i8 *most, const float *x, int wide)
{
    dpari_lanes_i8 p, above;
    dpari_lanes_get(&p, x);
    p &= 0x7fffffff;
#if DPARI_LANES_ASM
    if (wide) { /* in assembly, because gcc would emit two slower instructions */
        __asm__("vpmaxsd %1, %0, %0" : "+x"(*most) : "x"(p));
        return;
    }
#endif
    (void)wide;
    above = p > *most;
    *most = (p & above) | (*most & ~above);
}

DPARI_LANES_INLINE const float *dpari_lanes_eight(const float *x, int64_t n, float *room)
{
    int64_t i;
    if (n >= DPARI_LANES_F) {
        return x;
    }
    for (i = 0; i < DPARI_LANES_F; i++) {
        room[i] = i < n ? x[i] : 0.0f;
    }
    return room;
}

DPARI_LANES_INLINE uint32_t dpari_lanes_size(const float *x, int64_t n, int wide)
{
    dpari_lanes_i8 a = DPARI_LANES_ALL8(0), b = a;
    float room[DPARI_LANES_F];
    int32_t most = 0, k;
    int64_t i;
    for (i = 0; i + 2 * DPARI_LANES_F <= n; i += 2 * DPARI_LANES_F) {
        dpari_lanes_sizes(&a, x + i, wide);
        dpari_lanes_sizes(&b, x + i + DPARI_LANES_F, wide);
    }
    for (; i < n; i += DPARI_LANES_F) {
        dpari_lanes_sizes(&a, dpari_lanes_eight(x + i, n - i, room), wide);
    }
    dpari_lanes_sizes(&a, (const float *)(const void *)&b, wide);
    for (k = 0; k < DPARI_LANES_F; k++) {
        most = a[k] > most ? a[k] : most;
    }
    return (uint32_t)most;
}

/* Rounds to signed integers: for |x| below 2^22, adding 1.5 2^23 leaves the rounded integer in the
 * last bits. */
DPARI_LANES_INLINE void dpari_lanes_code_i8(dpari_lanes_i8 *code, const dpari_lanes_f8 *x)
{
    *code = (dpari_lanes_i8)(*x + 12582912.0f) & 0xff;
}

/* Computes codes of F8. Below 2^-6, F8 numbers are multiples of 2^-9. Adding 2^14 leaves the
 * multiple in the last bits. No code exceeds 0x7e, because x exceeds 448 at most by a rounding
 * error. */
DPARI_LANES_INLINE void dpari_lanes_code_f8(dpari_lanes_i8 *code, const dpari_lanes_f8 *x)
{
    const dpari_lanes_i8 bits = (dpari_lanes_i8)*x, size = bits & 0x7fffffff;
    const dpari_lanes_i8 under = (dpari_lanes_i8)((dpari_lanes_f8)size + 16384.0f) & 0xff;
    const dpari_lanes_i8 usual = (size + (0x7ffff - (120 << 23)) + (size >> 20 & 1)) >> 20;
    const dpari_lanes_i8 low = size < 0x3c800000;
    const dpari_lanes_i8 all = (under & low) | (usual & ~low);
    *code = all | (((bits >> 24) & 0x80) & (all != 0));
}

/* Stores 16 integers from 0 to 255 as bytes. dpari_lanes_unpack loads 16 bytes as signed integers.
 */
DPARI_LANES_INLINE void dpari_lanes_pack(unsigned char *to, const dpari_lanes_i8 *x)
{
#if defined(__SSE2__)
    dpari_lanes_w4 a, b, c, d;
    dpari_lanes_h8 low, high;
    dpari_lanes_b16 all;
    __builtin_memcpy(&a, x, 16);
    __builtin_memcpy(&b, (const unsigned char *)x + 16, 16);
    __builtin_memcpy(&c, (const unsigned char *)x + 32, 16);
    __builtin_memcpy(&d, (const unsigned char *)x + 48, 16);
    low = __builtin_ia32_packssdw128(a, b);
    high = __builtin_ia32_packssdw128(c, d);
    all = __builtin_ia32_packuswb128(low, high);
    dpari_lanes_put(to, &all);
#else
    int32_t i;
    for (i = 0; i < 16; i++) {
        to[i] = (unsigned char)x[i / 8][i % 8];
    }
#endif
}

DPARI_LANES_INLINE void dpari_lanes_unpack(dpari_lanes_i8 to[2], const unsigned char *from,
                                           int wide)
{
#if DPARI_LANES_ASM
    const dpari_lanes_b16 none = {0};
    const dpari_lanes_h8 zero = {0};
    dpari_lanes_b16 all;
    dpari_lanes_h8 low, high;
    dpari_lanes_w4 each[4];
    if (wide) {
        __asm__("vpmovsxbd %1, %0" : "=x"(to[0]) : "m"(*(const int64_t *)(const void *)from));
        __asm__("vpmovsxbd %1, %0" : "=x"(to[1]) : "m"(*(const int64_t *)(const void *)(from + 8)));
        return;
    }
    dpari_lanes_get(&all, from); /* below, each byte becomes the highest of a word */
    low = (dpari_lanes_h8)__builtin_ia32_punpcklbw128(none, all);
    high = (dpari_lanes_h8)__builtin_ia32_punpckhbw128(none, all);
    each[0] = (dpari_lanes_w4)__builtin_ia32_punpcklwd128(zero, low) >> 24;
    each[1] = (dpari_lanes_w4)__builtin_ia32_punpckhwd128(zero, low) >> 24;
    each[2] = (dpari_lanes_w4)__builtin_ia32_punpcklwd128(zero, high) >> 24;
    each[3] = (dpari_lanes_w4)__builtin_ia32_punpckhwd128(zero, high) >> 24;
    __builtin_memcpy(to, each, 64);
#else
    int32_t i;
    (void)wide;
    for (i = 0; i < 16; i++) {
        to[i / 8][i % 8] = from[i] < 128 ? (int32_t)from[i] : (int32_t)from[i] - 256;
    }
#endif
}

DPARI_LANES_INLINE void dpari_lanes_sixteen_codes(unsigned char *code, const float *x,
                                                  const dpari_lanes_f8 *scale, int32_t type)
{
    dpari_lanes_f8 p, q;
    dpari_lanes_i8 all[2];
    dpari_lanes_get(&p, x);
    dpari_lanes_get(&q, x + 8);
    p /= *scale;
    q /= *scale;
    if (type == DPAR_I8) {
        dpari_lanes_code_i8(&all[0], &p);
        dpari_lanes_code_i8(&all[1], &q);
    } else {
        dpari_lanes_code_f8(&all[0], &p);
        dpari_lanes_code_f8(&all[1], &q);
    }
    dpari_lanes_pack(code, all);
}

/* Computes less than 16 codes. */
DPARI_STATIC_NOINLINE void dpari_lanes_last_codes(unsigned char *code, const float *x, float scale,
                                                  int64_t n, int32_t type)
{
    const dpari_lanes_f8 by = DPARI_LANES_ALL8(scale);
    float room[DPARI_LANES_D] = {0.0f};
    unsigned char last[DPARI_LANES_D];
    int64_t k;
    for (k = 0; k < n; k++) {
        room[k] = x[k];
    }
    dpari_lanes_sixteen_codes(last, room, &by, type);
    for (k = 0; k < n; k++) {
        code[k] = last[k];
    }
}

DPARI_LANES_INLINE void dpari_lanes_codes(unsigned char *code, const float *x, float scale,
                                          int64_t n, int32_t type, int wide)
{
    const dpari_lanes_f8 by = DPARI_LANES_ALL8(scale);
    const int64_t whole = n - n % DPARI_LANES_D;
    int64_t i = 0;
    (void)wide;
    for (; type == DPAR_I8 && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_codes(code + i, x + i, &by, DPAR_I8);
    }
    for (; i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_codes(code + i, x + i, &by, DPAR_F8);
    }
    if (whole < n) {
        dpari_lanes_last_codes(code + whole, x + whole, scale, n - whole, type);
    }
}

DPARI_LANES_INLINE void dpari_lanes_lesser(dpari_lanes_f8 *x, const dpari_lanes_f8 *y, int wide)
{
#if DPARI_LANES_ASM
    if (wide) {
        __asm__("vminps %1, %0, %0" : "+x"(*x) : "x"(*y));
        return;
    }
#endif
    {
        const dpari_lanes_i8 less = (dpari_lanes_i8)(*y < *x);
        (void)wide;
        *x = (dpari_lanes_f8)(((dpari_lanes_i8)*y & less) | ((dpari_lanes_i8)*x & ~less));
    }
}

/* Computes the values of F8 codes. u is the code with the exponent of an F32. From 2^-6 on the
 * value is u, and below it is 2 u - 2^-6. In both cases it is the smaller of the two. */
DPARI_LANES_INLINE void dpari_lanes_value_f8(dpari_lanes_f8 *x, const dpari_lanes_i8 *code,
                                             int wide)
{
    const dpari_lanes_f8 u = (dpari_lanes_f8)(((*code & 0x7f) + (120 << 3)) << 20);
    *x = u + (u - 1.0f / 64.0f);
    dpari_lanes_lesser(x, &u, wide);
    *x = (dpari_lanes_f8)((dpari_lanes_i8)*x | (*code & INT32_MIN));
}

DPARI_LANES_INLINE void dpari_lanes_value(dpari_lanes_f8 *p, const float *x,
                                          const dpari_lanes_i8 *code, float scale, int32_t type,
                                          int add, int wide)
{
    dpari_lanes_f8 q;
    if (type == DPAR_I8) {
        *p = __builtin_convertvector(*code, dpari_lanes_f8) * scale;
    } else {
        const dpari_lanes_i8 nan = (*code & 0x7f) == 0x7f;
        dpari_lanes_value_f8(p, code, wide);
        *p *= scale;
        *p = (dpari_lanes_f8)(((dpari_lanes_i8)*p & ~nan) | (nan & 0x7fc00000));
    }
    if (add) {
        dpari_lanes_get(&q, x);
        *p = q + *p;
    }
}

/* Computes 16 values. If one of them is NaN, an element of `all` becomes NaN. That may also happen
 * if one is infinite. */
DPARI_LANES_INLINE void dpari_lanes_sixteen_values(float *x, const unsigned char *code, float scale,
                                                   int32_t type, int add, dpari_lanes_f8 *all,
                                                   int wide)
{
    dpari_lanes_i8 c[2];
    dpari_lanes_f8 p, q;
    dpari_lanes_unpack(c, code, wide);
    dpari_lanes_value(&p, x, &c[0], scale, type, add, wide);
    dpari_lanes_value(&q, x + 8, &c[1], scale, type, add, wide);
    dpari_lanes_put(x, &p);
    dpari_lanes_put(x + 8, &q);
    if (add) {
        *all += p + q;
    }
}

DPARI_LANES_INLINE void dpari_lanes_last_values(float *x, const unsigned char *code, float scale,
                                                int64_t n, int32_t type, int add,
                                                dpari_lanes_f8 *all, int wide)
{
    unsigned char room[DPARI_LANES_D] = {0};
    float last[DPARI_LANES_D] = {0.0f};
    int64_t k;
    for (k = 0; k < n; k++) {
        room[k] = code[k];
        last[k] = x[k];
    }
    dpari_lanes_sixteen_values(last, room, scale, type, add, all, wide);
    for (k = 0; k < n; k++) {
        x[k] = last[k];
    }
}

/* Computes the values of a block. Cases with few operations per element have separate loops. */
DPARI_LANES_INLINE void dpari_lanes_values_block(float *x, const unsigned char *code, float scale,
                                                 int64_t n, int32_t type, int add,
                                                 dpari_lanes_f8 *all, int wide)
{
    const int64_t whole = n - n % DPARI_LANES_D;
    int64_t i = 0;
    for (; wide && type == DPAR_I8 && !add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_I8, 0, all, 1);
    }
    for (; wide && type == DPAR_I8 && add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_I8, 1, all, 1);
    }
    for (; wide && type == DPAR_F8 && !add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_F8, 0, all, 1);
    }
    for (; i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, type, add, all, wide);
    }
    if (whole < n) {
        dpari_lanes_last_values(x + whole, code + whole, scale, n - whole, type, add, all, wide);
    }
}

/* Computes the values of all blocks, and gives all NaNs the same bits if there may be any. If the
 * scale is a number, only an F8 code can give NaN. */
DPARI_LANES_INLINE void dpari_lanes_values(float *x, const dpari_lanes_blocks *b, int wide)
{
    const int64_t count = b->count, block = b->block, step = b->code_step;
    const int32_t type = b->type, add = b->add;
    dpari_lanes_f8 all = DPARI_LANES_ALL8(0.0f);
    int32_t k, nan = 0;
    int64_t at, i = 0;
    for (at = 0; at < count; at += block, i++) {
        const float scale = dpari_lanes_scale(b, i);
        all += scale - scale;
        dpari_lanes_values_block(x + at, b->code + i * step, scale,
                                 block < count - at ? block : count - at, type, add, &all, wide);
    }
    for (k = 0; k < DPARI_LANES_F; k++) {
        nan |= all[k] != all[k];
    }
    if (nan) {
        dpari_elements_quiet(x, count);
    }
}

#endif

/* The same loops for single elements, in the same order. They are used without vectors, and for
 * calls that are so small that the CPU is not queried. */
#if !DPARI_LANES_VECTOR || DPARI_LANES_ASKED

static double dpari_each_fold(const double *c)
{
    const double a = (c[0] + c[8]) + (c[4] + c[12]), b = (c[1] + c[9]) + (c[5] + c[13]);
    const double d = (c[2] + c[10]) + (c[6] + c[14]), e = (c[3] + c[11]) + (c[7] + c[15]);
    return (a + d) + (b + e);
}

static void dpari_each_widen(double *to, const float *from, int64_t n, int wide)
{
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        to[i] = (double)from[i];
    }
}

static void dpari_each_thin(float *to, const double *from, int64_t n, int wide)
{
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        to[i] = (float)from[i];
    }
}

static double dpari_each_total(const void *x, int32_t type, int64_t n, int wide)
{
    double c[16] = {0.0};
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        c[i % 16] += dpari_element_get(x, type, i);
    }
    return dpari_each_fold(c);
}

static double dpari_each_about(const void *x, int32_t type, double mean, int64_t n, int wide)
{
    double c[16] = {0.0};
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        const double less = dpari_element_get(x, type, i) - mean;
        c[i % 16] += less * less;
    }
    return dpari_each_fold(c);
}

static double dpari_each_product(const void *x, const void *y, int32_t type, double mean, int64_t n,
                                 double *total, int wide)
{
    double c[16] = {0.0};
    int64_t i;
    for (i = 0; i < n; i++) {
        c[i % 16] += dpari_element_get(x, type, i) * (dpari_element_get(y, type, i) - mean);
    }
    if (total != NULL) {
        *total = dpari_each_total(x, type, n, wide);
    }
    return dpari_each_fold(c);
}

static double dpari_each_largest(const void *x, int32_t type, double most, int64_t n, int wide)
{
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        const double each = dpari_element_get(x, type, i);
        most = each > most ? each : most;
    }
    return most;
}

static void dpari_each_line(void *to, const void *x, int32_t type, const double *by, int64_t n,
                            int wide)
{
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        dpari_element_put(to, type, i, by[0] * (dpari_element_get(x, type, i) - by[1]) + by[2]);
    }
}

static void dpari_each_slope(void *to, const void *x, const void *y, int32_t type, const double *by,
                             int64_t n, int wide)
{
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        const double g = by[1] * dpari_element_get(y, type, i) - by[2];
        const double less = (dpari_element_get(x, type, i) - by[3]) * by[4];
        dpari_element_put(to, type, i, by[0] * (g - less));
    }
}

#if DPARI_LANES_VECTOR
/* Computes e^x with the operations of dpari_lanes_exp. */
static double dpari_each_exp(double x)
{
    const double y = x > 709.0 ? 709.0 : x;
    const double turned = y * 1.4426950408889634 + 6755399441055744.0;
    const double k = turned - 6755399441055744.0;
    const double f = (y - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    const double f2 = f * f, f4 = f2 * f2;
    const double a = (f + 1.0) + (f * (1.0 / 6.0) + 0.5) * f2;
    const double b = (f * (1.0 / 120.0) + 1.0 / 24.0) + (f * (1.0 / 5040.0) + 1.0 / 720.0) * f2;
    const double c =
        (f * (1.0 / 362880.0) + 1.0 / 40320.0) + (f * (1.0 / 39916800.0) + 1.0 / 3628800.0) * f2;
    const double sum = (a + b * f4) + (c + f4 * (1.0 / 479001600.0)) * (f4 * f4);
    uint64_t bits;
    double power;
    if (x < -708.0 || x != x) {
        return x < -708.0 ? 0.0 : x;
    }
    dpari_elements_bits(&bits, &turned, 8);
    bits = (bits << 52) + (UINT64_C(1023) << 52);
    dpari_elements_bits(&power, &bits, 8);
    return sum * power;
}
#endif

static double dpari_each_exps(void *to, const void *x, int32_t type, const double *by, int64_t n,
                              int wide)
{
    double c[16] = {0.0};
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
#if DPARI_LANES_VECTOR
        const double power = dpari_each_exp(dpari_element_get(x, type, i) - by[0]);
#else /* doubles may have extra precision, with which dpari_each_exp would be wrong */
        const double power = dpari_exp(dpari_element_get(x, type, i) - by[0]);
#endif
        c[i % 16] += power;
        if (to != NULL) {
            dpari_element_put(to, type, i, by[1] * power + by[2]);
        }
    }
    return dpari_each_fold(c);
}

static void dpari_each_logs(double *x, int64_t n)
{
    int64_t i;
    int32_t k;
    for (i = 0; i < n; i++) {
        const double y = x[i] / (x[i] + 2.0), y2 = y * y;
        double sum = 0.0;
        for (k = 31; k > 0; k -= 2) {
            sum = sum * y2 + 2.0 / (double)k;
        }
        x[i] = sum * y;
    }
}

static void dpari_each_scores(double *to, const float *x, const float *row, int64_t step, int64_t n,
                              int64_t width, double scale)
{
    const int64_t whole = width - width % 8;
    int64_t i, j;
    for (j = 0; j < n; j++, row += step) {
        float c[8] = {0.0f}, more = 0.0f;
        for (i = 0; i < whole; i++) {
            c[i % 8] += x[i] * row[i];
        }
        for (; i < width; i++) {
            more += x[i] * row[i];
        }
        c[0] = ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]));
        to[j] = (double)(c[0] + more) * scale;
    }
}

static void dpari_each_mix(float *y, float keep, const float *by, const float *row, int64_t step,
                           int64_t n, int64_t width)
{
    int64_t c, j;
    for (c = 0; c < width; c++) {
        y[c] *= keep;
        for (j = 0; j < n; j++) {
            y[c] += by[j] * row[j * step + c];
        }
    }
}

static void dpari_each_add(float *y, float keep, float by, const float *x, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        y[i] = keep * y[i] + by * x[i];
    }
}

static uint32_t dpari_each_size(const float *x, int64_t n, int wide)
{
    uint32_t most = 0, bits;
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        dpari_elements_bits(&bits, x + i, 4);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

/* Rounds 0 <= x < 2^31 to the nearest integer, ties to even. */
static uint32_t dpari_each_even(float x)
{
    const uint32_t n = (uint32_t)x;
    const float rest = x - (float)n;
    return n + (rest > 0.5f || (!(rest < 0.5f) && n % 2 != 0));
}

/* Returns the code of a number without its sign. */
static uint32_t dpari_each_code(float x, int32_t type)
{
    uint32_t bits;
    if (type == DPAR_I8) {
        return x >= 127.0f ? 127 : dpari_each_even(x);
    }
    if (x >= 448.0f) {
        return 0x7e;
    }
    if (x < 0.015625f) { /* 2^-6: steps of 2^-9 */
        return dpari_each_even(x * 512.0f);
    }
    dpari_elements_bits(&bits, &x, 4);
    return ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
}

static void dpari_each_codes(unsigned char *code, const float *x, float scale, int64_t n,
                             int32_t type, int wide)
{
    int64_t i;
    (void)wide;
    for (i = 0; i < n; i++) {
        const float y = x[i] / scale;
        const uint32_t c = dpari_each_code(y < 0.0f ? -y : y, type);
        const uint32_t less = type == DPAR_I8 ? 256 - c : c + 128;
        code[i] = (unsigned char)(y < 0.0f && c != 0 ? less : c);
    }
}

static float dpari_each_value(unsigned char code, int32_t type)
{
    uint32_t bits;
    float x;
    if (type == DPAR_I8) {
        return (float)(code < 128 ? (int32_t)code : (int32_t)code - 256);
    }
    bits = code & 0x7fu;
    if (bits < 8) {
        x = (float)bits / 512.0f;
    } else {
        bits = bits == 0x7f ? 0x7fc00000u : (bits + (120u << 3)) << 20;
        dpari_elements_bits(&x, &bits, 4);
    }
    return code < 128 || bits > 0x7f800000u ? x : -x;
}

static void dpari_each_values(float *x, const dpari_lanes_blocks *b, int wide)
{
    int64_t at, i = 0, k;
    (void)wide;
    for (at = 0; at < b->count; at += b->block, i++) {
        const float scale = dpari_lanes_scale(b, i);
        for (k = 0; k < b->block && at + k < b->count; k++) {
            const float v = dpari_each_value(b->code[i * b->code_step + k], b->type) * scale;
            x[at + k] = b->add ? x[at + k] + v : v;
        }
    }
    dpari_elements_quiet(x, b->count);
}
#endif

/* ---- the tables ------------------------------------------------------------------------------ */

/* Defines the functions of a table. The attribute `in` says for which CPU the inlined loops are
 * compiled. */
#define DPARI_LANES_PLAIN
#define DPARI_LANES_TABLE(in, table, loop, wide)                                                   \
    in static void table##_widen(double *to, const float *from, int64_t n)                         \
    {                                                                                              \
        loop##_widen(to, from, n, wide);                                                           \
    }                                                                                              \
    in static void table##_thin(float *to, const double *from, int64_t n)                          \
    {                                                                                              \
        loop##_thin(to, from, n, wide);                                                            \
    }                                                                                              \
    in static double table##_total(const void *x, int32_t type, int64_t n)                         \
    {                                                                                              \
        return loop##_total(x, type, n, wide);                                                     \
    }                                                                                              \
    in static double table##_about(const void *x, int32_t type, double mean, int64_t n)            \
    {                                                                                              \
        return loop##_about(x, type, mean, n, wide);                                               \
    }                                                                                              \
    in static double table##_product(const void *x, const void *y, int32_t type, double mean,      \
                                     int64_t n, double *sum)                                       \
    {                                                                                              \
        return loop##_product(x, y, type, mean, n, sum, wide);                                     \
    }                                                                                              \
    in static double table##_largest(const void *x, int32_t type, double most, int64_t n)          \
    {                                                                                              \
        return loop##_largest(x, type, most, n, wide);                                             \
    }                                                                                              \
    in static void table##_line(void *to, const void *x, int32_t type, const double *by,           \
                                int64_t n)                                                         \
    {                                                                                              \
        loop##_line(to, x, type, by, n, wide);                                                     \
    }                                                                                              \
    in static void table##_slope(void *to, const void *x, const void *y, int32_t type,             \
                                 const double *by, int64_t n)                                      \
    {                                                                                              \
        loop##_slope(to, x, y, type, by, n, wide);                                                 \
    }                                                                                              \
    in static double table##_exps(void *to, const void *x, int32_t type, const double *by,         \
                                  int64_t n)                                                       \
    {                                                                                              \
        return loop##_exps(to, x, type, by, n, wide);                                              \
    }                                                                                              \
    in static void table##_scores(double *to, const float *x, const float *row, int64_t step,      \
                                  int64_t n, int64_t width, double scale)                          \
    {                                                                                              \
        loop##_scores(to, x, row, step, n, width, scale);                                          \
    }                                                                                              \
    in static void table##_mix(float *y, float keep, const float *by, const float *row,            \
                               int64_t step, int64_t n, int64_t width)                             \
    {                                                                                              \
        loop##_mix(y, keep, by, row, step, n, width);                                              \
    }                                                                                              \
    in static void table##_add(float *y, float keep, float by, const float *x, int64_t n)          \
    {                                                                                              \
        loop##_add(y, keep, by, x, n);                                                             \
    }                                                                                              \
    in static uint32_t table##_size(const float *x, int64_t n)                                     \
    {                                                                                              \
        return loop##_size(x, n, wide);                                                            \
    }                                                                                              \
    in static void table##_codes(unsigned char *code, const float *x, float scale, int64_t n,      \
                                 int32_t type)                                                     \
    {                                                                                              \
        loop##_codes(code, x, scale, n, type, wide);                                               \
    }                                                                                              \
    in static void table##_values(float *x, const dpari_lanes_blocks *b)                           \
    {                                                                                              \
        loop##_values(x, b, wide);                                                                 \
    }                                                                                              \
    in static void table##_logs(double *x, int64_t n)                                              \
    {                                                                                              \
        loop##_logs(x, n);                                                                         \
    }                                                                                              \
    static dpari_lanes table(void)                                                                 \
    {                                                                                              \
        dpari_lanes l;                                                                             \
        l.widen = table##_widen;                                                                   \
        l.thin = table##_thin;                                                                     \
        l.total = table##_total;                                                                   \
        l.about = table##_about;                                                                   \
        l.product = table##_product;                                                               \
        l.largest = table##_largest;                                                               \
        l.line = table##_line;                                                                     \
        l.slope = table##_slope;                                                                   \
        l.exps = table##_exps;                                                                     \
        l.scores = table##_scores;                                                                 \
        l.mix = table##_mix;                                                                       \
        l.add = table##_add;                                                                       \
        l.size = table##_size;                                                                     \
        l.codes = table##_codes;                                                                   \
        l.values = table##_values;                                                                 \
        l.logs = table##_logs;                                                                     \
        return l;                                                                                  \
    }
#if !DPARI_LANES_VECTOR || DPARI_LANES_ASKED
DPARI_LANES_TABLE(DPARI_LANES_PLAIN, dpari_lanes_usual, dpari_each, 0)
#else
DPARI_LANES_TABLE(DPARI_LANES_PLAIN, dpari_lanes_usual, dpari_lanes, 0)
#endif
#if DPARI_LANES_ASKED
DPARI_LANES_TABLE(__attribute__((target("avx2"))), dpari_lanes_wide, dpari_lanes, 1)
#endif

/* With fewer elements the CPU is not queried, because that takes as long as processing some
 * thousands of elements. */
enum { DPARI_LANES_ASKS = 4096 };

DPARI_INTERNAL dpari_lanes dpari_lanes_for(int64_t work)
{
#if DPARI_LANES_ASKED
    if (work >= DPARI_LANES_ASKS && dpari_cpu_wide()) {
        return dpari_lanes_wide();
    }
#endif
    (void)work;
    return dpari_lanes_usual();
}
