/* SPDX-License-Identifier: MIT-0 */
/* lanes - private: loops over parts of rows that process several elements at once, for norms,
 * cross-entropy, attention and codes of 8 bits. On x86-64 there are several versions of each: for
 * vectors of 64 and 32 bytes, and by elements. All give the same bits: products are not fused with
 * sums, and sums have one order. */
#ifndef DPARI_TRAIN_LANES_H
#define DPARI_TRAIN_LANES_H

#include "../base/arith.h"

/* Codes of 8 bits (I8, F8) of `count` numbers, in blocks of `block` that have an f32 scale each. */
typedef struct dpari_lanes_blocks {
    const unsigned char *code, *scale;
    int64_t code_step, scale_step; /* bytes from one block to the next */
    int64_t block, count;
    int32_t type, add; /* add: 1 to add to x */
} dpari_lanes_blocks;

/* Functions on rows of n elements of type F64 or F32. Rows do not overlap unless they are the same.
 * Elements are converted to f64. A sum has 16 chains (8 in f32), where chain c adds elements c,
 * c + 16, ...; then halves are added: c and c + 8, and so on. */
typedef struct dpari_lanes {
    void (*widen)(double *to, const float *from, int64_t n);
    void (*thin)(float *to, const double *from, int64_t n);
    double (*total)(const void *x, int32_t type, int64_t n);
    /* about: the sum of (x - mean)^2. product: the sum of x (y - mean); *total receives the sum of
     * x unless it is NULL */
    double (*about)(const void *x, int32_t type, double mean, int64_t n);
    double (*product)(const void *x, const void *y, int32_t type, double mean, int64_t n,
                      double *total);
    /* The largest of x and `most` */
    double (*largest)(const void *x, int32_t type, double most, int64_t n);
    /* to = a (x - mean) + b; by: a, mean, b */
    void (*line)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* to = by[0] (by[1] y - by[2] - (x - by[3]) by[4]) */
    void (*slope)(void *to, const void *x, const void *y, int32_t type, const double *by,
                  int64_t n);
    /* to = by[1] e^(x - by[0]) + by[2]; the power is accurate to 1e-15, and 0 below e^-708. With
     * `to` NULL nothing is stored. Returns the sum of the powers */
    double (*exps)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* x = log(1 + x), 0 <= x <= 1 */
    void (*logs)(double *x, int64_t n);
    /* to[j] = scale (x . row j) for n rows, which are `step` elements apart. The sum is in f32, the
     * product with scale in f64 */
    void (*scores)(double *to, const float *x, const float *row, int64_t step, int64_t n,
                   int64_t width, double scale);
    /* y = keep y + by[0] row 0 + by[1] row 1 + ..., n of them, in that order */
    void (*mix)(float *y, float keep, const float *by, const float *row, int64_t step, int64_t n,
                int64_t width);
    /* y = keep y + by x */
    void (*add)(float *y, float keep, float by, const float *x, int64_t n);
    /* Returns the bits of the largest |x|, which are above those of infinity for NaN */
    uint32_t (*size)(const float *x, int64_t n);
    /* codes: computes codes (I8, F8) of x / scale, where x is finite and scale is above 0. values:
     * computes x = scale x code, or adds it to x. NaN has no sign and no payload */
    void (*codes)(unsigned char *code, const float *x, float scale, int64_t n, int32_t type);
    void (*values)(float *x, const dpari_lanes_blocks *blocks);
} dpari_lanes;

/* Returns the functions for a call of this much work, counted in elements of a sum. The CPU is
 * queried only if that pays. */
DPARI_INTERNAL dpari_lanes dpari_lanes_for(int64_t work);

#endif
