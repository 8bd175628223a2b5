/* SPDX-License-Identifier: MIT-0 */
/* moment_codes - private: the 8-bit codes of an optimizer's moments (moment_type DPAR_F8). A block
 * of 256 elements is a record of 256 codes and the block's scale. optimizer.h says what a code
 * means. */
#ifndef DPARI_HOST_MOMENT_CODES_H
#define DPARI_HOST_MOMENT_CODES_H

#include "../base/arith.h"

enum { DPARI_MOMENT_BLOCK = 256, DPARI_MOMENT_RECORD = DPARI_MOMENT_BLOCK + 4 };

/* The bits of a code of m without its sign. A code of v has one more, and no sign. */
enum { DPARI_MOMENT_BITS = 7 };

/* Returns n, rounded up to whole blocks if moments of this type are codes. */
DPARI_INTERNAL int64_t dpari_moment_whole(int32_t type, int64_t n);
/* Returns the bytes of n moments, which begin with a block and are rounded up to whole blocks. */
DPARI_INTERNAL int64_t dpari_moment_bytes(int32_t type, int64_t n);
/* Returns the bytes from the first moment of a piece that begins at element `index` to element i of
 * it. If moments are codes, both are the beginnings of the elements' blocks. */
DPARI_INTERNAL int64_t dpari_moment_at(int32_t type, uint64_t index, int64_t i);

/* The moments of a block: m, which is signed, and v, which is not. */
typedef struct dpari_moment_block {
    unsigned char *record[2];
    float x[2][DPARI_MOMENT_BLOCK + 4]; /* the optimizer's vectors may end beyond the block */
    int32_t moments;                    /* 1 or 2 */
} dpari_moment_block;
/* Computes the values block->x of the records. wide is dpari_cpu_wide. */
DPARI_INTERNAL void dpari_moment_load(dpari_moment_block *block, int wide);
/* Stores the values in the records, rounded stochastically. Uses words 8 number .. 8 number + 7 of
 * a stream (random.h), where `number` is the block's. */
DPARI_INTERNAL void dpari_moment_store(dpari_moment_block *block, uint64_t seed, uint64_t stream,
                                       uint64_t number, int wide);

#endif
