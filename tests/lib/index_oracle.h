/* SPDX-License-Identifier: MIT-0 */
/* index_oracle: n-d indices one by one, in C order. */
#ifndef DPAR_INDEX_ORACLE_H
#define DPAR_INDEX_ORACLE_H

#include "dpar.h"

static inline int64_t at_of(int32_t dims, const int64_t *shape, const int64_t *index)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < dims; d++) {
        at = at * shape[d] + index[d];
    }
    return at;
}

/* Sets the n-th index of a box of `shape`. Returns 0 past the end. */
static inline int nth(int32_t dims, const int64_t *shape, int64_t n, int64_t *index)
{
    int32_t d;
    for (d = dims - 1; d >= 0; d--) {
        if (shape[d] == 0) {
            return 0;
        }
        index[d] = n % shape[d];
        n /= shape[d];
    }
    return n == 0;
}

#endif
