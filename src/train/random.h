/* SPDX-License-Identifier: MIT-0 */
/* random - numbers from counters: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, SC11). Number
 * `index` of a stream is a function of (seed, stream, index) alone, so that it does not matter
 * which rank draws it, in which order, or whether anyone drew the others. Let `index` be the place
 * in the whole array: ranks then agree where they hold the same elements, and hold different
 * numbers where they hold different ones, as one rank would. */
#ifndef DPARI_TRAIN_RANDOM_H
#define DPARI_TRAIN_RANDOM_H

#include "../base/base.h"

/* Within (0, 1), never an end of it: (word + 1/2) / 2^32, where the words of a stream are those of
 * its blocks, four in each: key = seed, counter = (block, stream), low words first. A word itself
 * is the product with 2^32, cut off. Local, O(1), as all here. */
DPAR_API double dpar_random_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Of mean 0 and deviation 1: the inverse of the normal distribution (Wichura's AS 241, within
 * 1e-12) at that; within +-6.34. */
DPAR_API double dpar_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* A dense piece of a whole array, and the stream that the whole array is drawn from: element (i, j)
 * of the piece by number (row + i) width + column + j. Ranks that hold the same elements (dropout
 * on activations that all have) draw the same numbers, others different ones, as one rank would: no
 * state to keep apart. */
typedef struct dpar_random_piece {
    uint64_t seed, stream; /* a stream for each purpose: layer, step, micro-batch */
    int64_t rows, columns; /* of the piece */
    int64_t row, column;   /* where it begins in the whole array, */
    int64_t width;         /* whose rows have so many */
} dpar_random_piece;
/* y = x / (1 - p) where the number at the element is at least p, else 0; y may be x. dx from dy by
 * the same call. 0 <= p < 1. type: F64, F32. Local. */
DPAR_API void dpar_random_dropout(const dpar_random_piece *r, int32_t type, double p, const void *x,
                                  void *y);

#endif
