/* SPDX-License-Identifier: MIT-0 */
/* kernel_random - draws random numbers in kernels, for dropout.
 *
 * Your kernels can call these functions. They compute the random numbers of dpar_random_uniform
 * (random.h), and apply dropout with them. They also work on the host, in every file that includes
 * this header. The same elements are dropped whatever the launch, and on every rank. Four
 * consecutive floats, of which the first has an index in the whole array that is a multiple of
 * four, are drawn at once:
 *
 *     __global__ void drop(dpar_cuda_dropout d, float4 *x, int64_t fours)
 *     {
 *         const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
 *         if (i < fours) {
 *             dpar_cuda_dropout_four(&d, (uint64_t)i, &x[i].x, &x[i].x);
 *         }
 *     }
 *
 * In the backward pass the same call, with dy in place of x, gives dx. This has not been run on a
 * device yet. */
#ifndef DPARI_CUDA_KERNEL_RANDOM_H
#define DPARI_CUDA_KERNEL_RANDOM_H

#include "../base/arith.h"

#if defined(__CUDACC__)
#define DPAR_CUDA_FN __host__ __device__ static inline
#else
#define DPAR_CUDA_FN DPARI_FN
#endif

/* Computes the four words of a block of a stream, words 4 block to 4 block + 3. Each is the number
 * of dpar_random_uniform times 2^32, rounded down. */
DPAR_CUDA_FN void dpari_cuda_random_four(uint64_t seed, uint64_t stream, uint64_t block,
                                         uint32_t *words)
{
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)stream;
    uint32_t d = (uint32_t)(stream >> 32), low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    int round;
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (round = 0; round < 10; round++) {
        const uint64_t x = (uint64_t)a * UINT64_C(0xD2511F53);
        const uint64_t y = (uint64_t)c * UINT64_C(0xCD9E8D57);
        a = (uint32_t)(y >> 32) ^ b ^ low;
        b = (uint32_t)y;
        c = (uint32_t)(x >> 32) ^ d ^ high;
        d = (uint32_t)x;
        low += UINT32_C(0x9E3779B9);
        high += UINT32_C(0xBB67AE85);
    }
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}

/* Returns word `index` of a stream. */
DPAR_CUDA_FN uint32_t dpari_cuda_random_word(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    dpari_cuda_random_four(seed, stream, index / 4, words);
    words[0] = index % 4 < 2 ? words[0] : words[2]; /* selects instead of indexing, so that the
                                                       words stay in registers */
    words[1] = index % 4 < 2 ? words[1] : words[3];
    return index % 2 == 0 ? words[0] : words[1];
}

/* Describes dropout. It can be passed to a kernel by value. */
typedef struct dpar_cuda_dropout {
    uint64_t seed, stream;
    uint64_t dropped; /* an element is dropped if its word is below this */
    float kept;       /* 1 - p, rounded to f32 */
    float reserved;   /* 0 */
} dpar_cuda_dropout;

/* Fills in dropout of probability p, 0 to 1: an element is dropped if its random number of (seed,
 * stream) is below p. */
DPAR_CUDA_FN void dpar_cuda_dropout_init(dpar_cuda_dropout *d, uint64_t seed, uint64_t stream,
                                         double p)
{
    const double most = p * 4294967296.0; /* exact; a word is dropped if word + 1/2 is below it */
    d->seed = seed;
    d->stream = stream;
    d->dropped = 0;
    if (p >= 1.0) {
        d->dropped = UINT64_C(4294967296);
    } else if (p > 0.0) {
        const uint64_t whole = (uint64_t)most;
        d->dropped = whole + (most - (double)whole > 0.5 ? 1 : 0);
    }
    d->kept = (float)(1.0 - p);
    d->reserved = 0.0f;
}

/* Returns the result of dropout for an element whose random word is `word`: 0, or x / (1 - p) in
 * f32. */
DPAR_CUDA_FN float dpari_cuda_dropout_word(const dpar_cuda_dropout *d, uint32_t word, float x)
{
#if defined(__CUDA_ARCH__)
    return word < d->dropped ? 0.0f : __fdiv_rn(x, d->kept);
#else
    return word < d->dropped ? 0.0f : x / d->kept;
#endif
}

/* Returns the result of dropout for element `index` of the whole array. dpar_cuda_dropout_four
 * costs a quarter of this for each element. */
DPAR_CUDA_FN float dpar_cuda_dropout_one(const dpar_cuda_dropout *d, uint64_t index, float x)
{
    return dpari_cuda_dropout_word(d, dpari_cuda_random_word(d->seed, d->stream, index), x);
}

/* Applies dropout to four elements of the whole array, 4 block to 4 block + 3. y may be x. */
DPAR_CUDA_FN void dpar_cuda_dropout_four(const dpar_cuda_dropout *d, uint64_t block, const float *x,
                                         float *y)
{
    uint32_t words[4];
    dpari_cuda_random_four(d->seed, d->stream, block, words);
    y[0] = dpari_cuda_dropout_word(d, words[0], x[0]);
    y[1] = dpari_cuda_dropout_word(d, words[1], x[1]);
    y[2] = dpari_cuda_dropout_word(d, words[2], x[2]);
    y[3] = dpari_cuda_dropout_word(d, words[3], x[3]);
}

#endif
