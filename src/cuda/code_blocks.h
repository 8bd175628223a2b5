/* SPDX-License-Identifier: MIT-0 */
/* code_blocks - private: blocks of numbers that are stored as codes with a scale. */
#ifndef DPARI_CUDA_CODE_BLOCKS_H
#define DPARI_CUDA_CODE_BLOCKS_H

#include "operations.h"
#include "block_sums.h"
#include "four.h"

struct dpari_cuda_quant {
    dpar_mem_quantize q;
    int64_t blocks;
    int32_t even, even_code; /* 1: the numbers, and the codes, of all blocks can be accessed as
                                vectors */
    int32_t warps;           /* 1: a warp has a block of numbers; 0: all threads of a block together
                                have one */
    int32_t room;
};

/* Returns the bits of the largest |x| of a warp. They are compared as integers, so that NaN and
 * infinity are the largest. */
__device__ static inline uint32_t dpari_cuda_largest(uint32_t mine)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, mine);
#else
    return dpari_cuda_warp_all<dpari_cuda_greatest>(mine);
#endif
}

/* Loads four of a block's numbers as F32; those beyond its end are 0. */
__device__ static inline void dpari_cuda_quant_load(const dpari_cuda_quant &s, int32_t type,
                                                    int64_t first, int64_t n, int64_t i, float *x)
{
    const int32_t width = dpari_cuda_width(type);
    dpari_cuda_four four;
    if (i < n) {
        dpari_cuda_load<0>(&four, (const unsigned char *)s.q.x + first * width, i, n, width,
                           s.even);
        dpari_cuda_widen(&four, type, x);
    } else {
        x[0] = x[1] = x[2] = x[3] = 0.0f;
    }
}

__device__ static inline int64_t dpari_cuda_quant_count(const dpari_cuda_quant &s, int64_t b)
{
    const int64_t left = s.q.count - b * s.q.block;
    if (b >= s.blocks) {
        return 0;
    }
    return left < s.q.block ? left : s.q.block;
}

__device__ static inline uint32_t dpari_cuda_larger(const float *x, uint32_t largest)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const uint32_t size = dpari_cuda_bits<uint32_t>(x[e]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Stores codes i to i + 3 of a block of n codes, each of which has BITS bits. The next function
 * loads them from block b. */
template <int BITS>
__device__ static inline void dpari_cuda_put_codes(const dpari_cuda_quant &s, unsigned char *code,
                                                   int64_t n, int64_t i, uint32_t four)
{
    code += i * BITS / 8;
    if (s.even_code && i + 4 <= n) {
        if (BITS == 8) {
            *(uint32_t *)(void *)code = four;
        } else {
            *(uint16_t *)(void *)code = (uint16_t)four;
        }
        return;
    }
    for (int e = 0; e < 4 && i + e < n; e += 8 / BITS) {
        code[e * BITS / 8] = (unsigned char)(four >> (BITS * e));
    }
}

template <int BITS>
__device__ static inline uint32_t dpari_cuda_get_codes(const dpari_cuda_quant &s, int64_t b,
                                                       int64_t n, int64_t i)
{
    const unsigned char *code = (const unsigned char *)s.q.code + b * s.q.code_step + i * BITS / 8;
    uint32_t four = 0;
    if (s.even_code && i + 4 <= n) {
        return BITS == 8 ? *(const uint32_t *)(const void *)code
                         : (uint32_t) * (const uint16_t *)(const void *)code;
    }
    for (int e = 0; e < 4 && i + e < n; e += 8 / BITS) {
        four |= (uint32_t)code[e * BITS / 8] << (BITS * e);
    }
    return four;
}

#endif
