/* SPDX-License-Identifier: MIT-0 */
/* vector_loops - private: loops over rows that process several elements at once, for norms,
 * cross-entropy, attention and 8-bit codes. On x86-64 there are two versions of each loop: for
 * vectors of 32 bytes, and for single elements. Both give the same bits, because products are not
 * fused with sums, and sums always have the same order. */
#ifndef DPARI_HOST_VECTOR_LOOPS_H
#define DPARI_HOST_VECTOR_LOOPS_H

#include "../base/arith.h"

/* 8-bit codes (I8, F8) of `count` numbers, in blocks of `block` numbers with one F32 scale each. */
typedef struct dpari_lanes_blocks {
    const unsigned char *code, *scale;
    int64_t code_step, scale_step; /* bytes from one block to the next */
    int64_t block, count;
    int32_t type, add; /* add: 1 if values are added to x */
} dpari_lanes_blocks;

/* Functions on rows of n elements of type F64 or F32. Rows do not overlap unless they are the same.
 * Elements are converted to f64 unless a comment says f32. A sum has 16 chains (8 in f32): chain c
 * adds elements c, c + 16, ... Then the upper half of the chains is added to the lower half: c + 8
 * to c, or in f32 c + 4 to c, and so on. */
typedef struct dpari_lanes {
    /* Convert F32 to F64, and F64 to F32. */
    void (*widen)(double *to, const float *from, int64_t n);
    void (*thin)(float *to, const double *from, int64_t n);
    /* Returns the sum of x. */
    double (*total)(const void *x, int32_t type, int64_t n);
    /* Returns the sum of (x - mean)^2. */
    double (*about)(const void *x, int32_t type, double mean, int64_t n);
    /* Returns the sum of x (y - mean). Sets *total to the sum of x unless total is NULL. */
    double (*product)(const void *x, const void *y, int32_t type, double mean, int64_t n,
                      double *total);
    /* Returns the largest of x and `most`. */
    double (*largest)(const void *x, int32_t type, double most, int64_t n);
    /* Computes to = by[0] (x - by[1]) + by[2]. */
    void (*line)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* Computes to = by[0] (by[1] y - by[2] - (x - by[3]) by[4]). */
    void (*slope)(void *to, const void *x, const void *y, int32_t type, const double *by,
                  int64_t n);
    /* Computes to = by[1] e^(x - by[0]) + by[2], unless `to` is NULL. Returns the sum of the
     * powers. A power has a relative error of at most 1e-15, and is 0 below e^-708. */
    double (*exps)(void *to, const void *x, int32_t type, const double *by, int64_t n);
    /* Computes x = log(1 + x) for 0 <= x <= 1. */
    void (*logs)(double *x, int64_t n);
    /* Computes to[j] = scale (x . row j) for n rows, which are `step` elements apart. Sums are in
     * f32, the product with scale is in f64. */
    void (*scores)(double *to, const float *x, const float *row, int64_t step, int64_t n,
                   int64_t width, double scale);
    /* Computes y = keep y + by[0] row 0 + ... + by[n - 1] row n - 1, in this order, in f32. */
    void (*mix)(float *y, float keep, const float *by, const float *row, int64_t step, int64_t n,
                int64_t width);
    /* Computes y = keep y + by x, in f32. */
    void (*add)(float *y, float keep, float by, const float *x, int64_t n);
    /* Returns the bits of the largest |x|. If x contains NaN, they are above those of infinity. */
    uint32_t (*size)(const float *x, int64_t n);
    /* Computes the codes (I8, F8) of x / scale, where x is finite and scale is above 0. */
    void (*codes)(unsigned char *code, const float *x, float scale, int64_t n, int32_t type);
    /* Computes x = scale code, or adds that to x. All NaNs get the same bits. */
    void (*values)(float *x, const dpari_lanes_blocks *blocks);
} dpari_lanes;

/* Returns the functions for a call that processes `work` elements. The CPU is queried only if that
 * takes little time compared with the work. */
DPARI_INTERNAL dpari_lanes dpari_lanes_for(int64_t work);

#endif
