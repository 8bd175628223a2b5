/* SPDX-License-Identifier: MIT-0 */
/* lanes - private: loops over parts of rows that take several elements at once, for norms,
 * cross-entropy, attention and codes of 8 bits. On x86-64 there are two of each, for vectors of 32
 * bytes and by elements. The bits are the same: nothing is fused, and sums have one order. */
#ifndef DPARI_TRAIN_LANES_H
#define DPARI_TRAIN_LANES_H

#include "../base/arith.h"

/* Codes of 8 bits (I8, F8) of `count` numbers, in blocks of `block` that have an f32 scale each. */
typedef struct dpari_lanes_blocks {
    const unsigned char *code, *scale;
    int64_t code_step, scale_step; /* bytes from a block's to the next one's */
    int64_t block, count;
    int32_t type, add; /* add: 1: to what is there */
} dpari_lanes_blocks;

/* Rows of n elements of a type, F64 or F32; rows do not overlap unless they are the same. Numbers
 * are taken as f64. A sum goes by 16 chains, chain c of elements c, c + 16, ..., in f32 by 8; then
 * halves are added: c and c + 8, and so on. */
typedef struct dpari_lanes {
    void (*widen)(double *to, const float *from, int64_t n);
    void (*thin)(float *to, const double *from, int64_t n);
    double (*total)(const void *x, int32_t type, int64_t n);
    /* Sums of (x - mean)^2; of x (y - mean), and *total (NULL: not wanted) that of x */
    double (*about)(const void *x, int32_t type, double mean, int64_t n);
    double (*product)(const void *x, const void *y, int32_t type, double mean, int64_t n,
                      double *total);
    /* The largest, and that of `most` */
    double (*largest)(const void *x, int32_t type, double most, int64_t n);
    /* to = a (x - mean) + b; by: a, mean, b */
    void (*line)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* to = by[0] (by[1] y - by[2] - (x - by[3]) by[4]) */
    void (*slope)(void *to, const void *x, const void *y, int32_t type, const double *by,
                  int64_t n);
    /* to = by[1] e^(x - by[0]) + by[2], the power within 1e-15, 0 below e^-708. NULL: it stays.
     * Returns the sum of the powers */
    double (*exps)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* x = log(1 + x), 0 <= x <= 1 */
    void (*logs)(double *x, int64_t n);
    /* In f32. to[j] = scale (x . row j of n), rows `step` apart, the product with scale in f64 */
    void (*scores)(double *to, const float *x, const float *row, int64_t step, int64_t n,
                   int64_t width, double scale);
    /* y = keep y + by[0] row 0 + by[1] row 1 + ..., n of them, in that order */
    void (*mix)(float *y, float keep, const float *by, const float *row, int64_t step, int64_t n,
                int64_t width);
    /* y = keep y + by x */
    void (*add)(float *y, float keep, float by, const float *x, int64_t n);
    /* The bits of the largest |x|: above those of infinity for NaN */
    uint32_t (*size)(const float *x, int64_t n);
    /* Codes (I8, F8) of x / scale, which are finite and scale is above 0. Values of codes, times
     * scale, or x + that: NaN without sign and payload */
    void (*codes)(unsigned char *code, const float *x, float scale, int64_t n, int32_t type);
    void (*values)(float *x, const dpari_lanes_blocks *blocks);
} dpari_lanes;

/* What a call of so much work takes, in elements of a sum: the CPU is asked where that pays. */
DPARI_INTERNAL dpari_lanes dpari_lanes_for(int64_t work);

#endif
