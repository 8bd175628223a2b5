/* SPDX-License-Identifier: MIT-0 */
/* random - numbers from counters: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC11). Number
 * `index` of a stream is a function of (seed, stream, index) alone, so that it does not matter
 * which rank draws it, in which order, or whether anyone drew the others. Let `index` be the place
 * in the whole array: ranks then agree where they hold the same elements, and hold different
 * numbers where they hold different ones, as one rank would. */
#ifndef DPARI_TRAIN_RANDOM_H
#define DPARI_TRAIN_RANDOM_H

#include "../base/base.h"

/* The four numbers 4 block .. 4 block + 3 of a stream. key = seed, counter = (block, stream), low
 * words first. Local, O(1), as all here. */
DPAR_API void dpar_random_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *words);
/* One number. */
DPAR_API uint32_t dpar_random_word(uint64_t seed, uint64_t stream, uint64_t index);
/* (word + 1/2) / 2^32: within (0, 1), never an end of it. */
DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Of mean 0 and deviation 1: the inverse of the normal distribution (Wichura's AS 241, within
 * 1e-12) at that; within +-6.34. */
DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

#endif
