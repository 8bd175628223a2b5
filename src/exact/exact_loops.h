/* SPDX-License-Identifier: MIT-0 */
/* exact_loops - private: adds a block of elements exactly with vectors of doubles, if the exponents
 * of its elements are close enough. */
#ifndef DPARI_EXACT_EXACT_LOOPS_H
#define DPARI_EXACT_EXACT_LOOPS_H

#include "../base/arith.h"
#include "../base/type.h"

enum {
    DPARI_EX_BLOCK = 512, /* most elements of a block */
    DPARI_EX_STEP = 16,   /* the elements of a block are a multiple of this number */
    DPARI_EX_PARTS = 6
};

/* Returns 1 if this CPU has the vectors and rounds to nearest. */
DPARI_INTERNAL int dpari_ex_has_vectors(void);

/* Sets part[] to doubles whose exact sum is that of n elements, or of the products x[i] * y[i] if y
 * is not NULL. type is F64 or F32. Returns their number, or -1 if the block has an element that is
 * not finite, or exponents that are too different, too large or too small. */
DPARI_INTERNAL int32_t dpari_ex_block(double *part, const void *x, const void *y, int64_t n,
                                      int32_t type);

#endif
