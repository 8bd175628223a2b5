/* SPDX-License-Identifier: MIT-0 */
/* random - random numbers that do not depend on the number of ranks: for initial values, and for
 * dropout on activations that several ranks hold. Number `index` of a stream is a function of
 * (seed, stream, index) only. It does not matter which rank draws it, in which order, or who drew
 * the others, because there is no state.
 *
 * Dropout of element (i, j) of an array of `width` columns, with one stream for each layer and
 * step:
 *
 *     u = dpar_random_uniform(seed, stream, i width + j);
 *     y = u < p ? 0 : x / (1 - p);
 *     dx = u < p ? 0 : dy / (1 - p);
 *
 * Let `index` be the place in the whole array. Ranks that hold the same element then draw the same
 * number for it, the one that a single rank would draw. For a device, dpar_cuda.h has these numbers
 * and this dropout in f32 as functions for kernels (dpar_cuda_dropout_one, dpar_cuda_dropout_four).
 * The generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC11), which encrypts a counter.
 */
#ifndef DPARI_TRAIN_RANDOM_H
#define DPARI_TRAIN_RANDOM_H

#include "../base/base.h"

/* Returns a uniform random number strictly between 0 and 1: (word + 1/2) / 2^32 of the 32-bit word
 * at this place of the stream. The number times 2^32, cut off, is the word.
 *
 * Each Philox block gives four words, with the key = seed and the counter = (block, stream), low
 * words first. Local. O(1). */
DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Returns a normal random number with mean 0 and standard deviation 1, between -6.34 and 6.34. It
 * is the inverse of the normal distribution (Wichura's AS 241, within 1e-12) at the uniform number
 * of this place. Local. O(1). */
DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
