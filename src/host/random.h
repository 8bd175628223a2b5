/* SPDX-License-Identifier: MIT-0 */
/* random - computes random numbers that do not depend on the number of ranks: for initial values,
 * and for dropout on activations that several ranks hold. There is no state: number `index` of a
 * stream is a function of (seed, stream, index) only. It is the same on every rank, in whatever
 * order numbers are drawn.
 *
 * This is dropout of element (i, j) of an array of `width` columns, with one stream per layer and
 * step:
 *
 *     u = dpar_random_uniform(seed, stream, i width + j);
 *     y = u < p ? 0 : x / (1 - p);
 *     dx = u < p ? 0 : dy / (1 - p);
 *
 * Let `index` be the position in the whole array. Ranks that hold the same element then draw the
 * same number for it as a single rank would. For kernels on a device, dpar_cuda.h has functions for
 * these numbers and for this dropout in f32 (dpar_cuda_dropout_one, dpar_cuda_dropout_four). The
 * generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC11), which encrypts a counter. */
#ifndef DPARI_HOST_RANDOM_H
#define DPARI_HOST_RANDOM_H

#include "../base/base.h"

/* Returns a uniform random number strictly between 0 and 1. It is (word + 1/2) / 2^32, where word
 * is the 32-bit word `index` of the stream.
 *
 * Each Philox block gives four words, with the key seed and the counter (block, stream), low words
 * first. Local. O(1). */
DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Returns a normal random number with mean 0 and standard deviation 1, between -6.34 and 6.34. It
 * is the inverse of the normal distribution function (Wichura's AS 241, within 1e-12) at
 * dpar_random_uniform(seed, stream, index). Local. O(1). */
DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
