/* SPDX-License-Identifier: MIT-0 */
/* random_private - private: the random words that the numbers of random.h are made of, and
 * stochastic rounding with them. */
#ifndef DPARI_TRAIN_RANDOM_PRIVATE_H
#define DPARI_TRAIN_RANDOM_PRIVATE_H

#include "../base/arith.h"

/* Computes the four words 4 block .. 4 block + 3 of a stream. */
DPARI_INTERNAL void dpari_random_block(uint64_t seed, uint64_t stream, uint64_t block,
                                       uint32_t *words);
/* Rounds F32 to BF16 stochastically. Whether element i is rounded up or down depends on word index
 * + i: on its high half with shift 16, on its low half with shift 0. NaN, infinities and numbers
 * that BF16 holds exactly keep their values. O(count). */
DPARI_INTERNAL void dpari_random_round(void *to, const void *from, int64_t count, uint64_t seed,
                                       uint64_t stream, uint64_t index, int32_t shift);

#endif
