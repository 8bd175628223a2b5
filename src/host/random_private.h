/* SPDX-License-Identifier: MIT-0 */
/* random_private - private: the random words from which random.h makes its numbers, and stochastic
 * rounding with them. */
#ifndef DPARI_HOST_RANDOM_PRIVATE_H
#define DPARI_HOST_RANDOM_PRIVATE_H

#include "../base/arith.h"

/* Computes words 4 block .. 4 block + 3 of a stream into words[4]. */
DPARI_INTERNAL void dpari_random_block(uint64_t seed, uint64_t stream, uint64_t block,
                                       uint32_t *words);
/* Rounds F32 to BF16 stochastically. Element i is rounded up or down depending on 16 bits of word
 * index + i: the high half if shift is 16, the low half if it is 0. NaN, infinities and numbers
 * that BF16 represents exactly keep their values. O(count). */
DPARI_INTERNAL void dpari_random_round(void *to, const void *from, int64_t count, uint64_t seed,
                                       uint64_t stream, uint64_t index, int32_t shift);

#endif
