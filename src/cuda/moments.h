/* SPDX-License-Identifier: MIT-0 */
/* moments - private: count, mean and sum of squares about the mean, and how to merge two of them.
 */
#ifndef DPARI_CUDA_MOMENTS_H
#define DPARI_CUDA_MOMENTS_H

#include "numbers.h"

struct dpari_cuda_three_of {
    double count, mean, m2;
};

/* Merges b into a. share: b's part of both counts. both: the product of the counts over their
 * sum. */
__device__ static inline void dpari_cuda_three_join_by(dpari_cuda_three_of *a,
                                                       const dpari_cuda_three_of &b, double share,
                                                       double both)
{
    const double delta = b.mean - a->mean;
    if (a->count <= 0.0) {
        *a = b;
        return;
    }
    a->mean = dpari_cuda_add(a->mean, dpari_cuda_mul(delta, share));
    a->m2 = dpari_cuda_add(
        a->m2, dpari_cuda_add(b.m2, dpari_cuda_mul(dpari_cuda_mul(delta, delta), both)));
    a->count += b.count;
}

__device__ static inline void dpari_cuda_three_join(dpari_cuda_three_of *a,
                                                    const dpari_cuda_three_of &b)
{
    const double n = a->count + b.count;
    if (a->count == b.count && n > 0.0 && n < 67108864.0) { /* 2^26: both are exact */
        dpari_cuda_three_join_by(a, b, 0.5, 0.5 * b.count);
    } else if (b.count > 0.0) {
        dpari_cuda_three_join_by(a, b, b.count / n, a->count * b.count / n);
    }
}

#endif
