/* SPDX-License-Identifier: MIT-0 */
/* random - random numbers that no number of ranks changes: for initial values, and for dropout on
 * activations that several ranks have. Number `index` of a stream is a function of (seed, stream,
 * index) alone: it does not matter which rank draws it, in which order, or who drew the others.
 * There is no state.
 *
 * Element (i, j) of an array of `width` columns, with a stream for each layer and step:
 *
 *     u = dpar_random_uniform(seed, stream, i width + j);
 *     y = u < p ? 0 : x / (1 - p);
 *     dx = u < p ? 0 : dy / (1 - p);
 *
 * `index` is the place in the whole array. Ranks then have equal numbers where they hold the same
 * elements, and others elsewhere, as one rank would. On a device: dpar_cuda.h has these numbers,
 * and this dropout in f32, as functions for kernels (dpar_cuda_random_four,
 * dpar_cuda_dropout_four). The generator counts: Philox4x32-10 (Salmon, Moraes, Dror and Shaw,
 * SC11). */
#ifndef DPARI_TRAIN_RANDOM_H
#define DPARI_TRAIN_RANDOM_H

#include "../base/base.h"

/* A uniform number within (0, 1), never an end of it: (word + 1/2) / 2^32. The words of a stream
 * are those of its blocks, four in each: key = seed, counter = (block, stream), low words first.
 * The word is the number times 2^32, cut off. Local, O(1). */
DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* A normal number of mean 0 and deviation 1, within +-6.34: the inverse of the normal distribution
 * (Wichura's AS 241, within 1e-12) at the uniform number. Local, O(1). */
DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
