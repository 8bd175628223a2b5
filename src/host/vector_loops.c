/* SPDX-License-Identifier: MIT-0 */
/* Vectorised loops over rows, for norms, cross-entropy, attention and 8-bit codes. Each loop has
 * two parts: whole vectors, with GCC's vector extensions, and then the elements that are left.
 * Without vectors, or if the CPU is not queried, the second part processes all elements. Both give
 * the same bits, because sums have 16 chains (8 in f32) with a fixed order, and products are not
 * fused with sums. vector_loops.h describes each loop.
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
/* The number of elements that `loop` has processed by whole vectors. On x86-64 only the loops for
 * AVX2 (wide = 1) do so. */
#define DPARI_LANES_WHOLE(wide, loop) ((wide) || !DPARI_LANES_ASKED ? (loop) : 0)
#else
#define DPARI_LANES_INLINE static
#define DPARI_LANES_WHOLE(wide, loop) ((void)(wide), 0)
#endif

/* ---- sums and maps of rows ------------------------------------------------------------------- */

/* The 16 chains of a sum, or 16 elements of a row. */
#if DPARI_LANES_VECTOR
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

DPARI_LANES_INLINE int64_t dpari_lanes_widen_whole(double *to, const float *from, int64_t n,
                                                   int wide)
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
    return i;
}

DPARI_LANES_INLINE int64_t dpari_lanes_thin_whole(float *to, const double *from, int64_t n,
                                                  int wide)
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
    return i;
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

#else
typedef struct dpari_lanes_16 {
    double v[DPARI_LANES_D];
} dpari_lanes_16;

static void dpari_lanes_all(dpari_lanes_16 *to, double x)
{
    int32_t k;
    for (k = 0; k < DPARI_LANES_D; k++) {
        to->v[k] = x;
    }
}

static double dpari_lanes_fold(const dpari_lanes_16 *x)
{
    double c[DPARI_LANES_D];
    int32_t k, half;
    dpari_elements_bits(c, x, sizeof c);
    for (half = DPARI_LANES_D / 2; half > 0; half /= 2) {
        for (k = 0; k < half; k++) {
            c[k] += c[k + half];
        }
    }
    return c[0];
}
#endif

DPARI_LANES_INLINE void dpari_lanes_widen(double *to, const float *from, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_widen_whole(to, from, n, wide));
    for (; i < n; i++) {
        to[i] = (double)from[i];
    }
}

DPARI_LANES_INLINE void dpari_lanes_thin(float *to, const double *from, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_thin_whole(to, from, n, wide));
    for (; i < n; i++) {
        to[i] = (float)from[i];
    }
}

/* What a sum adds: x, (x - mean)^2, x (y - mean), or the latter and x separately. */
enum { DPARI_LANES_TOTAL, DPARI_LANES_ABOUT, DPARI_LANES_PRODUCT, DPARI_LANES_BOTH };

#if DPARI_LANES_VECTOR
DPARI_LANES_INLINE int64_t dpari_lanes_sum_whole(dpari_lanes_16 *sum, dpari_lanes_16 *first,
                                                 int what, const void *x, const void *y,
                                                 int32_t type, double mean, int64_t n, int wide)
{
    const dpari_lanes_d4 less = DPARI_LANES_ALL4(mean);
    dpari_lanes_16 p, z;
    int64_t i;
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
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
    return i;
}
#endif

/* Adds up a row. total: the sum of x if `what` is BOTH. */
DPARI_LANES_INLINE double dpari_lanes_sum(int what, const void *x, const void *y, int32_t type,
                                          double mean, int64_t n, double *total, int wide)
{
    dpari_lanes_16 sum, first;
    double c[DPARI_LANES_D], d[DPARI_LANES_D];
    int64_t i;
    dpari_lanes_all(&sum, 0.0);
    dpari_lanes_all(&first, 0.0);
    i = DPARI_LANES_WHOLE(wide,
                          dpari_lanes_sum_whole(&sum, &first, what, x, y, type, mean, n, wide));
    if (i < n) {
        dpari_elements_bits(c, &sum, sizeof c);
        dpari_elements_bits(d, &first, sizeof d);
        for (; i < n; i++) {
            const double each = dpari_element_get(x, type, i);
            double by = 1.0;
            if (what == DPARI_LANES_ABOUT) {
                by = each - mean;
            } else if (what != DPARI_LANES_TOTAL) {
                by = dpari_element_get(y, type, i) - mean;
            }
            c[i % DPARI_LANES_D] += (what == DPARI_LANES_ABOUT ? by : each) * by;
            d[i % DPARI_LANES_D] += each;
        }
        dpari_elements_bits(&sum, c, sizeof c);
        dpari_elements_bits(&first, d, sizeof d);
    }
    if (what == DPARI_LANES_BOTH) {
        *total = dpari_lanes_fold(&first);
    }
    return dpari_lanes_fold(&sum);
}

DPARI_LANES_INLINE double dpari_lanes_product(const void *x, const void *y, int32_t type,
                                              double mean, int64_t n, double *total, int wide)
{
    if (total != NULL) {
        return dpari_lanes_sum(DPARI_LANES_BOTH, x, y, type, mean, n, total, wide);
    }
    return dpari_lanes_sum(DPARI_LANES_PRODUCT, x, y, type, mean, n, NULL, wide);
}

#if DPARI_LANES_VECTOR
DPARI_LANES_INLINE void dpari_lanes_more(dpari_lanes_d4 *a, const dpari_lanes_d4 *x)
{
    const dpari_lanes_u4 above = (dpari_lanes_u4)(*x > *a);
    *a = (dpari_lanes_d4)(((dpari_lanes_u4)*x & above) | ((dpari_lanes_u4)*a & ~above));
}

DPARI_LANES_INLINE int64_t dpari_lanes_largest_whole(double *most, const void *x, int32_t type,
                                                     int64_t n, int wide)
{
    dpari_lanes_16 all, p;
    int64_t i, k;
    dpari_lanes_all(&all, *most);
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_load(&p, x, i, type, wide);
        DPARI_FOUR(dpari_lanes_more(&all.v[q], &p.v[q]));
    }
    dpari_lanes_more(&all.v[0], &all.v[1]);
    dpari_lanes_more(&all.v[2], &all.v[3]);
    dpari_lanes_more(&all.v[0], &all.v[2]);
    for (k = 0; k < 4; k++) {
        *most = all.v[0][k] > *most ? all.v[0][k] : *most;
    }
    return i;
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

DPARI_LANES_INLINE int64_t dpari_lanes_map_whole(void *to, const void *x, const void *y,
                                                 int32_t type, const double *by, int64_t n,
                                                 int wide)
{
    const double last = y != NULL ? by[4] : 0.0;
    const double with[5] = {by[0], by[1], by[2], y != NULL ? by[3] : 0.0, last};
    int64_t i;
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_map_16(to, x, y, i, type, with, wide);
    }
    return i;
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

/* The last elements are completed to a vector too, because one power takes as long as a vector. */
DPARI_LANES_INLINE int64_t dpari_lanes_exps_whole(dpari_lanes_16 *sum, void *to, const void *x,
                                                  int32_t type, const double *by, int64_t n,
                                                  int wide)
{
    const double with[3] = {by[0], by[1], by[2]};
    double room[DPARI_LANES_D];
    int64_t i, k;
    for (i = 0; i + DPARI_LANES_D <= n; i += DPARI_LANES_D) {
        dpari_lanes_exps_16(sum, to, x, i, type, with, wide);
    }
    if (i < n) {
        for (k = 0; k < DPARI_LANES_D; k++) {
            room[k] = i + k < n ? dpari_element_get(x, type, i + k) : with[0] - 1000.0;
        }
        dpari_lanes_exps_16(sum, to != NULL ? room : NULL, room, 0, DPAR_F64, with, wide);
        for (k = 0; to != NULL && i + k < n; k++) {
            dpari_element_put(to, type, i + k, room[k]);
        }
    }
    return n;
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

DPARI_LANES_INLINE int64_t dpari_lanes_logs_whole(double *x, int64_t n)
{
    dpari_lanes_d4 p;
    int64_t i;
    for (i = 0; i + 4 <= n; i += 4) {
        dpari_lanes_get(&p, x + i);
        dpari_lanes_log(&p);
        dpari_lanes_put(x + i, &p);
    }
    return i;
}

/* Computes e^x with the operations of dpari_lanes_exp. */
DPARI_LANES_INLINE double dpari_lanes_exp_one(double x)
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
#else
/* doubles may have extra precision, with which the function above would be wrong */
#define dpari_lanes_exp_one(x) dpari_exp(x)
#endif

DPARI_LANES_INLINE double dpari_lanes_largest(const void *x, int32_t type, double most, int64_t n,
                                              int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_largest_whole(&most, x, type, n, wide));
    for (; i < n; i++) {
        const double each = dpari_element_get(x, type, i);
        most = each > most ? each : most;
    }
    return most;
}

/* Computes `line`, or `slope` if y is not NULL. */
DPARI_LANES_INLINE void dpari_lanes_map(void *to, const void *x, const void *y, int32_t type,
                                        const double *by, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_map_whole(to, x, y, type, by, n, wide));
    for (; i < n; i++) {
        double v = dpari_element_get(x, type, i);
        if (y == NULL) {
            v = by[0] * (v - by[1]) + by[2];
        } else {
            v = by[0] * (by[1] * dpari_element_get(y, type, i) - by[2] - (v - by[3]) * by[4]);
        }
        dpari_element_put(to, type, i, v);
    }
}

DPARI_LANES_INLINE double dpari_lanes_exps(void *to, const void *x, int32_t type, const double *by,
                                           int64_t n, int wide)
{
    dpari_lanes_16 sum;
    double c[DPARI_LANES_D];
    int64_t i;
    dpari_lanes_all(&sum, 0.0);
    i = DPARI_LANES_WHOLE(wide, dpari_lanes_exps_whole(&sum, to, x, type, by, n, wide));
    if (i < n) {
        dpari_elements_bits(c, &sum, sizeof c);
        for (; i < n; i++) {
            const double power = dpari_lanes_exp_one(dpari_element_get(x, type, i) - by[0]);
            c[i % DPARI_LANES_D] += power;
            if (to != NULL) {
                dpari_element_put(to, type, i, by[1] * power + by[2]);
            }
        }
        dpari_elements_bits(&sum, c, sizeof c);
    }
    return dpari_lanes_fold(&sum);
}

DPARI_LANES_INLINE void dpari_lanes_logs(double *x, int64_t n, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_logs_whole(x, n));
    int32_t k;
    for (; i < n; i++) {
        const double y = x[i] / (x[i] + 2.0), y2 = y * y;
        double sum = 0.0;
        for (k = 31; k > 0; k -= 2) {
            sum = sum * y2 + 2.0 / (double)k;
        }
        x[i] = sum * y;
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

#if DPARI_LANES_VECTOR
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

DPARI_LANES_INLINE int64_t dpari_lanes_scores_whole(double *to, const float *x, const float *row,
                                                    int64_t step, int64_t n, int64_t width,
                                                    double scale)
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
    return n;
}

DPARI_LANES_INLINE int64_t dpari_lanes_mix_whole(float *y, float keep, const float *by,
                                                 const float *row, int64_t step, int64_t n,
                                                 int64_t width)
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
    return c;
}

DPARI_LANES_INLINE int64_t dpari_lanes_add_whole(float *y, float keep, float by, const float *x,
                                                 int64_t n)
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
    return i;
}
#endif

DPARI_LANES_INLINE void dpari_lanes_scores(double *to, const float *x, const float *row,
                                           int64_t step, int64_t n, int64_t width, double scale,
                                           int wide)
{
    const int64_t whole = width - width % DPARI_LANES_F;
    int64_t i,
        j = DPARI_LANES_WHOLE(wide, dpari_lanes_scores_whole(to, x, row, step, n, width, scale));
    for (; j < n; j++, row += step) {
        float c[DPARI_LANES_F] = {0.0f}, more = 0.0f;
        for (i = 0; i < whole; i++) {
            c[i % DPARI_LANES_F] += x[i] * row[i];
        }
        for (; i < width; i++) {
            more += x[i] * row[i];
        }
        c[0] = ((c[0] + c[4]) + (c[2] + c[6])) + ((c[1] + c[5]) + (c[3] + c[7]));
        to[j] = (double)(c[0] + more) * scale;
    }
}

DPARI_LANES_INLINE void dpari_lanes_mix(float *y, float keep, const float *by, const float *row,
                                        int64_t step, int64_t n, int64_t width, int wide)
{
    int64_t j, c = DPARI_LANES_WHOLE(wide, dpari_lanes_mix_whole(y, keep, by, row, step, n, width));
    for (; c < width; c++) {
        y[c] *= keep;
        for (j = 0; j < n; j++) {
            y[c] += by[j] * row[j * step + c];
        }
    }
}

DPARI_LANES_INLINE void dpari_lanes_add(float *y, float keep, float by, const float *x, int64_t n,
                                        int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_add_whole(y, keep, by, x, n));
    for (; i < n; i++) {
        y[i] = keep * y[i] + by * x[i];
    }
}

/* ---- 8-bit codes ----------------------------------------------------------------------------- */

#if DPARI_LANES_VECTOR
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

DPARI_LANES_INLINE int64_t dpari_lanes_size_whole(uint32_t *most, const float *x, int64_t n,
                                                  int wide)
{
    dpari_lanes_i8 a = DPARI_LANES_ALL8(0), b = a;
    int64_t i;
    int32_t k;
    for (i = 0; i + 2 * DPARI_LANES_F <= n; i += 2 * DPARI_LANES_F) {
        dpari_lanes_sizes(&a, x + i, wide);
        dpari_lanes_sizes(&b, x + i + DPARI_LANES_F, wide);
    }
    dpari_lanes_sizes(&a, (const float *)(const void *)&b, wide);
    for (k = 0; k < DPARI_LANES_F; k++) {
        *most = (uint32_t)a[k] > *most ? (uint32_t)a[k] : *most;
    }
    return i;
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

DPARI_LANES_INLINE int64_t dpari_lanes_codes_whole(unsigned char *code, const float *x, float scale,
                                                   int64_t n, int32_t type)
{
    const dpari_lanes_f8 by = DPARI_LANES_ALL8(scale);
    const int64_t whole = n - n % DPARI_LANES_D;
    int64_t i = 0;
    for (; type == DPAR_I8 && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_codes(code + i, x + i, &by, DPAR_I8);
    }
    for (; i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_codes(code + i, x + i, &by, DPAR_F8);
    }
    return whole;
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

/* Computes the values of a block. If one of them may be NaN, an element of `all` becomes NaN. Cases
 * with few operations per element have separate loops. */
DPARI_LANES_INLINE int64_t dpari_lanes_values_whole(float *x, const unsigned char *code,
                                                    float scale, int64_t n, int32_t type, int add,
                                                    float *all, int wide)
{
    const int64_t whole = n - n % DPARI_LANES_D;
    dpari_lanes_f8 nan;
    int64_t i = 0;
    dpari_lanes_get(&nan, all);
    for (; wide && type == DPAR_I8 && !add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_I8, 0, &nan, 1);
    }
    for (; wide && type == DPAR_I8 && add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_I8, 1, &nan, 1);
    }
    for (; wide && type == DPAR_F8 && !add && i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, DPAR_F8, 0, &nan, 1);
    }
    for (; i < whole; i += DPARI_LANES_D) {
        dpari_lanes_sixteen_values(x + i, code + i, scale, type, add, &nan, wide);
    }
    dpari_lanes_put(all, &nan);
    return whole;
}
#endif

DPARI_LANES_INLINE uint32_t dpari_lanes_size(const float *x, int64_t n, int wide)
{
    uint32_t most = 0, bits;
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_size_whole(&most, x, n, wide));
    for (; i < n; i++) {
        dpari_elements_bits(&bits, x + i, 4);
        bits &= 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most;
}

/* Rounds 0 <= x < 2^31 to the nearest integer, ties to even. */
DPARI_LANES_INLINE uint32_t dpari_lanes_even(float x)
{
    const uint32_t n = (uint32_t)x;
    const float rest = x - (float)n;
    return n + (rest > 0.5f || (!(rest < 0.5f) && n % 2 != 0));
}

/* Returns the code of a number without its sign. */
DPARI_LANES_INLINE uint32_t dpari_lanes_code(float x, int32_t type)
{
    uint32_t bits;
    if (type == DPAR_I8) {
        return x >= 127.0f ? 127 : dpari_lanes_even(x);
    }
    if (x >= 448.0f) {
        return 0x7e;
    }
    if (x < 0.015625f) { /* 2^-6: steps of 2^-9 */
        return dpari_lanes_even(x * 512.0f);
    }
    dpari_elements_bits(&bits, &x, 4);
    return ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
}

DPARI_LANES_INLINE void dpari_lanes_codes(unsigned char *code, const float *x, float scale,
                                          int64_t n, int32_t type, int wide)
{
    int64_t i = DPARI_LANES_WHOLE(wide, dpari_lanes_codes_whole(code, x, scale, n, type));
    for (; i < n; i++) {
        const float y = x[i] / scale;
        const uint32_t c = dpari_lanes_code(y < 0.0f ? -y : y, type);
        const uint32_t less = type == DPAR_I8 ? 256 - c : c + 128;
        code[i] = (unsigned char)(y < 0.0f && c != 0 ? less : c);
    }
}

DPARI_LANES_INLINE float dpari_lanes_number(unsigned char code, int32_t type)
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

/* Computes the values of all blocks, and gives all NaNs the same bits if there may be any. */
DPARI_LANES_INLINE void dpari_lanes_values(float *x, const dpari_lanes_blocks *b, int wide)
{
    const int64_t count = b->count, block = b->block, step = b->code_step;
    const int32_t type = b->type, add = b->add;
    float all[DPARI_LANES_F] = {0.0f}, nan = 0.0f;
    int64_t at, i = 0, k;
    for (at = 0; at < count; at += block, i++) {
        const float scale = dpari_lanes_scale(b, i);
        const unsigned char *code = b->code + i * step;
        const int64_t n = block < count - at ? block : count - at;
        nan += scale - scale;
        k = DPARI_LANES_WHOLE(
            wide, dpari_lanes_values_whole(x + at, code, scale, n, type, add, all, wide));
        for (; k < n; k++) {
            const float v = dpari_lanes_number(code[k], type) * scale;
            x[at + k] = add ? x[at + k] + v : v;
            nan += x[at + k] - x[at + k];
        }
    }
    for (k = 0; k < DPARI_LANES_F; k++) {
        nan += all[k] - all[k];
    }
    if (nan != nan) {
        dpari_elements_quiet(x, count);
    }
}

/* ---- the tables ------------------------------------------------------------------------------ */

/* Defines the functions of a table. The attribute `in` says for which CPU the inlined loops are
 * compiled. */
#define DPARI_LANES_PLAIN
#define DPARI_LANES_LOOP(in, name, result, statement, ...)                                         \
    in static result name(__VA_ARGS__)                                                             \
    {                                                                                              \
        statement;                                                                                 \
    }
#define DPARI_LANES_TABLE(in, table, wide)                                                         \
    DPARI_LANES_LOOP(in, table##_widen, void, dpari_lanes_widen(to, from, n, wide), double *to,    \
                     const float *from, int64_t n)                                                 \
    DPARI_LANES_LOOP(in, table##_thin, void, dpari_lanes_thin(to, from, n, wide), float *to,       \
                     const double *from, int64_t n)                                                \
    DPARI_LANES_LOOP(in, table##_total, double,                                                    \
                     return dpari_lanes_sum(DPARI_LANES_TOTAL, x, x, type, 0.0, n, NULL, wide),    \
                     const void *x, int32_t type, int64_t n)                                       \
    DPARI_LANES_LOOP(in, table##_about, double,                                                    \
                     return dpari_lanes_sum(DPARI_LANES_ABOUT, x, x, type, mean, n, NULL, wide),   \
                     const void *x, int32_t type, double mean, int64_t n)                          \
    DPARI_LANES_LOOP(in, table##_product, double,                                                  \
                     return dpari_lanes_product(x, y, type, mean, n, sum, wide), const void *x,    \
                     const void *y, int32_t type, double mean, int64_t n, double *sum)             \
    DPARI_LANES_LOOP(in, table##_largest, double,                                                  \
                     return dpari_lanes_largest(x, type, most, n, wide), const void *x,            \
                     int32_t type, double most, int64_t n)                                         \
    DPARI_LANES_LOOP(in, table##_line, void, dpari_lanes_map(to, x, NULL, type, by, n, wide),      \
                     void *to, const void *x, int32_t type, const double *by, int64_t n)           \
    DPARI_LANES_LOOP(in, table##_slope, void, dpari_lanes_map(to, x, y, type, by, n, wide),        \
                     void *to, const void *x, const void *y, int32_t type, const double *by,       \
                     int64_t n)                                                                    \
    DPARI_LANES_LOOP(in, table##_exps, double, return dpari_lanes_exps(to, x, type, by, n, wide),  \
                     void *to, const void *x, int32_t type, const double *by, int64_t n)           \
    DPARI_LANES_LOOP(in, table##_logs, void, dpari_lanes_logs(x, n, wide), double *x, int64_t n)   \
    DPARI_LANES_LOOP(in, table##_scores, void,                                                     \
                     dpari_lanes_scores(to, x, row, step, n, width, scale, wide), double *to,      \
                     const float *x, const float *row, int64_t step, int64_t n, int64_t width,     \
                     double scale)                                                                 \
    DPARI_LANES_LOOP(                                                                              \
        in, table##_mix, void, dpari_lanes_mix(y, keep, by, row, step, n, width, wide), float *y,  \
        float keep, const float *by, const float *row, int64_t step, int64_t n, int64_t width)     \
    DPARI_LANES_LOOP(in, table##_add, void, dpari_lanes_add(y, keep, by, x, n, wide), float *y,    \
                     float keep, float by, const float *x, int64_t n)                              \
    DPARI_LANES_LOOP(in, table##_size, uint32_t, return dpari_lanes_size(x, n, wide),              \
                     const float *x, int64_t n)                                                    \
    DPARI_LANES_LOOP(in, table##_codes, void, dpari_lanes_codes(code, x, scale, n, type, wide),    \
                     unsigned char *code, const float *x, float scale, int64_t n, int32_t type)    \
    DPARI_LANES_LOOP(in, table##_values, void, dpari_lanes_values(x, b, wide), float *x,           \
                     const dpari_lanes_blocks *b)                                                  \
    static dpari_lanes table(void)                                                                 \
    {                                                                                              \
        dpari_lanes l; /* with an initializer, compilers would put addresses into data */          \
        l.widen = table##_widen;                                                                   \
        l.thin = table##_thin;                                                                     \
        l.total = table##_total;                                                                   \
        l.about = table##_about;                                                                   \
        l.product = table##_product;                                                               \
        l.largest = table##_largest;                                                               \
        l.line = table##_line;                                                                     \
        l.slope = table##_slope;                                                                   \
        l.exps = table##_exps;                                                                     \
        l.logs = table##_logs;                                                                     \
        l.scores = table##_scores;                                                                 \
        l.mix = table##_mix;                                                                       \
        l.add = table##_add;                                                                       \
        l.size = table##_size;                                                                     \
        l.codes = table##_codes;                                                                   \
        l.values = table##_values;                                                                 \
        return l;                                                                                  \
    }
DPARI_LANES_TABLE(DPARI_LANES_PLAIN, dpari_lanes_usual, 0)
#if DPARI_LANES_ASKED
DPARI_LANES_TABLE(__attribute__((target("avx2"))), dpari_lanes_wide, 1)
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
