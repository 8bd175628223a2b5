/* SPDX-License-Identifier: MIT-0 */
/* random_private - private: the words behind the numbers of random.h, and rounding by them. */
#ifndef DPARI_TRAIN_RANDOM_PRIVATE_H
#define DPARI_TRAIN_RANDOM_PRIVATE_H

#include "../base/arith.h"

/* The four words 4 block .. 4 block + 3 of a stream. */
DPARI_INTERNAL void dpari_random_block(uint64_t seed, uint64_t stream, uint64_t block,
                                       uint32_t *words);
/* F32 to BF16, element i up or down by word index + i, by its high half (shift 16) or its low one
 * (0); NaN and infinities as they are, what BF16 holds exactly, too. O(count). */
DPARI_INTERNAL void dpari_random_round(void *to, const void *from, int64_t count, uint64_t seed,
                                       uint64_t stream, uint64_t index, int32_t shift);

#endif
