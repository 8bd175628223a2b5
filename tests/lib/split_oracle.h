/* SPDX-License-Identifier: MIT-0 */
/* split_oracle: the owner of an element by the definition of each rule, for comparison by brute
 * force. Include it after dpar.h. */
#ifndef DPAR_SPLIT_ORACLE_H
#define DPAR_SPLIT_ORACLE_H

/* Returns the piece of torch.chunk: pieces of ceil(n / p) elements; -1 if there is no p-th
 * piece. */
static int chunk_of(int i, int n, int p)
{
    int b = (n + p - 1) / p;
    return b > 0 ? i / b : 0;
}

/* Returns the owner of element i by the definition of the rule. */
static int owner_of(int rule, int i, int n, int p, int block, int source)
{
    int k, at;
    switch (rule) {
    case DPAR_SPLIT_CHUNK: return chunk_of(i, n, p);
    case DPAR_SPLIT_EVEN:
        /* numpy.array_split: the first n % p parts have n / p + 1 elements */
        for (k = 0, at = 0; k < p; k++) {
            at += n / p + (k < n % p);
            if (i < at) {
                return k;
            }
        }
        return -1;
    case DPAR_SPLIT_FLOOR:
        for (k = 0; n * (k + 1) / p <= i; k++) {
        }
        return k;
    case DPAR_SPLIT_BLOCK_CYCLIC: return (source + i / block) % p;
    case DPAR_SPLIT_CYCLIC: return i % p;
    case DPAR_SPLIT_STRIDED: {
        int piece = (n + block - 1) / block, start = i / piece * piece;
        int length = n - start < piece ? n - start : piece;
        return chunk_of(i - start, length, p);
    }
    default: /* ZIGZAG */ k = chunk_of(i, n, 2 * p); return k < p ? k : 2 * p - 1 - k;
    }
}

#endif
