/* SPDX-License-Identifier: MIT-0 */
/* block_sums - private: sums and extremes over the threads of a warp or of a block, which are
 * combined in a fixed order: within a warp by halves, then over the warps. All threads have to
 * call, and all get the result. */
#ifndef DPARI_CUDA_BLOCK_SUMS_H
#define DPARI_CUDA_BLOCK_SUMS_H

#include "launch.h"

#define DPARI_CUDA_WARPS (DPARI_CUDA_THREADS / 32)

struct dpari_cuda_plus {
    template <typename T> __device__ static inline T of(T x, T y)
    {
        return dpari_cuda_add(x, y);
    }
};

struct dpari_cuda_least {
    template <typename T> __device__ static inline T of(T x, T y)
    {
        return y < x ? y : x;
    }
};

struct dpari_cuda_greatest {
    template <typename T> __device__ static inline T of(T x, T y)
    {
        return y > x ? y : x;
    }
};

/* Combines the x of LANES neighbouring threads of a warp. */
template <typename Op, int LANES = 32, typename T>
__device__ static inline T dpari_cuda_warp_all(T x)
{
    for (int bits = LANES / 2; bits > 0; bits /= 2) {
        x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, bits));
    }
    return x;
}

/* Combines the x of all warps of a block, after `start`. */
template <typename Op, typename T> __device__ static inline T dpari_cuda_block_all(T x, T start)
{
    __shared__ T part[DPARI_CUDA_WARPS];
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = x;
    }
    __syncthreads();
    for (int w = 0; w < DPARI_CUDA_WARPS; w++) {
        start = Op::of(start, part[w]);
    }
    return start;
}

__device__ static inline double dpari_cuda_warp_sum(double x)
{
    return dpari_cuda_warp_all<dpari_cuda_plus>(x);
}

__device__ static inline double dpari_cuda_block_sum(double x)
{
    return dpari_cuda_block_all<dpari_cuda_plus>(dpari_cuda_warp_sum(x), 0.0);
}

__device__ static inline int64_t dpari_cuda_block_least(int64_t x)
{
    return dpari_cuda_block_all<dpari_cuda_least>(dpari_cuda_warp_all<dpari_cuda_least>(x),
                                                  INT64_MAX);
}

#endif
