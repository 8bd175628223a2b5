/* SPDX-License-Identifier: MIT-0 */
/* stochastic - private: rounding to BF16 by random numbers. */
#ifndef DPARI_CUDA_STOCHASTIC_H
#define DPARI_CUDA_STOCHASTIC_H

#include "four.h"
#include "kernel_random.h"

/* Computes the random words of elements `at` to at + 3. */
__device__ static inline void dpari_cuda_randoms(uint64_t seed, uint64_t stream, uint64_t at,
                                                 uint32_t *four)
{
    uint32_t low[4], high[4];
    const uint32_t skip = (uint32_t)(at % 4);
    dpari_cuda_random_four(seed, stream, at / 4, low);
    if (skip != 0) {
        dpari_cuda_random_four(seed, stream, (at + 3) / 4, high);
    } else {
        memcpy(high, low, sizeof high);
    }
    DPARI_CUDA_UNROLL
    for (uint32_t e = 0; e < 4; e++) { /* selects instead of indexing, so that the words stay in
                                          registers */
        const uint32_t a = e + skip;
        uint32_t word = high[2];
        word = a == 5 ? high[1] : word;
        word = a == 4 ? high[0] : word;
        word = a == 3 ? low[3] : word;
        word = a == 2 ? low[2] : word;
        word = a == 1 ? low[1] : word;
        four[e] = a == 0 ? low[0] : word;
    }
}

/* Rounds F32 to BF16, up or down depending on 16 random bits (dpar_mem_round). */
DPARI_CUDA_FN uint16_t dpari_cuda_stochastic(float f, uint32_t bits)
{
    uint32_t x = dpari_cuda_bits<uint32_t>(f);
    if ((x & 0x7f800000u) != 0x7f800000u) {
        x += bits;
    } else {
        x |= (x & 0x7fffffu) != 0 ? 0x400000u : 0u; /* a NaN stays a NaN */
    }
    return (uint16_t)(x >> 16);
}

/* Rounds a four to BF16 by the high halves of the random words (SHIFT 16) or the low ones (0). */
template <int SHIFT, typename W>
__device__ static inline void dpari_cuda_narrow_by(dpari_cuda_four *four, const W *from,
                                                   const uint32_t *words)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        float f;
        dpari_cuda_as(from[e], &f);
        const uint32_t half = dpari_cuda_stochastic(f, words[e] >> SHIFT & 0xffffu);
        four->x[e / 2] = e % 2 == 0 ? half : four->x[e / 2] | half << 16;
    }
}

/* Rounds weights, or a copy of them, to BF16: elements `at` to at + 3 of the whole array. */
template <typename W>
__device__ static inline void dpari_cuda_narrow_random(dpari_cuda_four *four, const W *from,
                                                       uint64_t seed, uint64_t stream, uint64_t at)
{
    uint32_t words[4];
    dpari_cuda_randoms(seed, stream, at, words);
    dpari_cuda_narrow_by<16>(four, from, words);
}

#endif
