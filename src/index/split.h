/* SPDX-License-Identifier: MIT-0 */
/* split - computes which part owns which elements of one dim: `count` elements over `parts` parts,
 * by a named rule, because the common systems disagree about what "block" means. It uses integers
 * only and no tables.
 *
 *     dpar_split_owner(DPAR_SPLIT_CHUNK, 1000, 7, 500);                     3: the owning part
 *     dpar_split_range(DPAR_SPLIT_CHUNK, 1000, 7, 3, &first, &count);       143 from 429 on
 *
 * These two functions work for some rules. A dpar_split works for all rules, and is faster in a
 * loop.
 */
#ifndef DPARI_INDEX_SPLIT_H
#define DPARI_INDEX_SPLIT_H

#include "../base/base.h"

/* The rules by which N elements are divided over P parts. The numbers are the sizes of 10 elements
 * over 4 parts. */
enum {
    /* Blocks of b = ceil(N/P): part p owns [min(N, p b), min(N, (p+1) b)): 3 3 3 1. Used by
     * torch.chunk, DTensor, FSDP, FFTW-MPI, MPI darray BLOCK, HPF BLOCK, PetscSplitOwnershipEqual.
     * Empty parts are last. */
    DPAR_SPLIT_CHUNK,
    /* Balanced: part p owns N/P + (p < N%P) elements: 3 3 2 2. Used by numpy.array_split,
     * torch.tensor_split, PETSc DMDA, DeepSpeed, cuDecomp, heFFTe, AMReX, hypre. Empty parts are
     * last. */
    DPAR_SPLIT_EVEN,
    /* Rounded down: part p owns [floor(N p/P), floor(N (p+1)/P)): 2 3 2 3. Used by p4est. Empty
     * parts are between full ones. */
    DPAR_SPLIT_FLOOR,
    /* Blocks of `block` elements, dealt in turn from part `source` on. Used by ScaLAPACK and as MPI
     * darray CYCLIC(k). */
    DPAR_SPLIT_BLOCK_CYCLIC,
    /* Any ascending cuts: part p owns [cuts[p], cuts[p+1]). For ragged and weighted shards and
     * whole atoms. */
    DPAR_SPLIT_RAGGED,
    /* `block` pieces by CHUNK, each of them divided over P by CHUNK; part p owns the p-th share of
     * every piece. Used by DTensor's strided shard (FSDP over TP), fused QKV and gate/up
     * weights. */
    DPAR_SPLIT_STRIDED,
    /* 2P chunks by CHUNK; part p owns chunks p and 2P-1-p. For causal context parallelism. */
    DPAR_SPLIT_ZIGZAG,
    /* Every P-th element: part p owns p, p+P, p+2P, ..., as BLOCK_CYCLIC with blocks of 1. For
     * striped attention. */
    DPAR_SPLIT_CYCLIC,
    DPAR_SPLIT_RULE_COUNT
};

/* Finds the part that owns element i of `count`, by any rule except BLOCK_CYCLIC, RAGGED and
 * STRIDED. Returns -1 if i is outside or dpar_split_init would refuse the numbers. Costs O(1). */
DPAR_API int32_t dpar_split_owner(int32_t rule, int64_t count, int32_t parts, int64_t i);

/* Computes the elements of a part by CHUNK, EVEN or FLOOR, whose parts are contiguous: *elements of
 * them, from *first on. A part without elements has *first = `count`.
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE for another rule, a part that does not exist, or numbers
 * that dpar_split_init would refuse. Costs O(1).
 */
DPAR_API dpar_status dpar_split_range(int32_t rule, int64_t count, int32_t parts, int32_t part,
                                      int64_t *first, int64_t *elements);

/* A division of elements over parts, made by dpar_split_init or dpar_split_init_ragged. Within a
 * part, local indices 0, 1, ... number its elements in ascending global order. */
typedef struct dpar_split {
    int32_t rule;  /* DPAR_SPLIT_CHUNK, ... */
    int32_t parts; /* number of parts, at least 1 */
    /* For BLOCK_CYCLIC, the part of the first block, 0..parts-1. dpar_split_init sets 0; set yours
     * after it. */
    int32_t source;
    uint8_t shift[2];            /* private: see inverse */
    int64_t count;               /* number of elements, 0..2^62 */
    int64_t block;               /* BLOCK_CYCLIC: elements of a block; STRIDED: number of pieces */
    const int64_t *cuts;         /* RAGGED: [parts + 1], the caller's */
    int64_t by[2];               /* private: the divisors of indices */
    uint64_t inverse[2];         /* private: their inverses, times 2^shift */
    int64_t rounds, extra, tail; /* private: whole rounds in `count`, and the rest */
} dpar_split;

/* Makes a split by any rule except RAGGED, which has dpar_split_init_ragged.
 *
 * block:  the block of BLOCK_CYCLIC or the pieces of STRIDED, at least 1; other rules ignore it.
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE and leaves *split unchanged. Costs O(1).
 */
DPAR_API dpar_status dpar_split_init(dpar_split *split, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, dpar_why *why);

/* Makes a RAGGED split from cuts, 0 = cuts[0] <= cuts[1] <= ... <= cuts[parts] = the number of
 * elements. The array must live as long as the split.
 *
 * cuDecomp's gdims_dist splits the first `even` elements by EVEN and gives the rest to the last
 * part that has some. Its cuts are the offsets of that EVEN split, and `count` from the first empty
 * part on.
 *
 * Fails with DPAR_E_ARG if there are no parts or the cuts do not begin at 0 or do not ascend, or
 * DPAR_E_RANGE above 2^62 elements. Costs O(parts).
 */
DPAR_API dpar_status dpar_split_init_ragged(dpar_split *split, int32_t parts, const int64_t *cuts,
                                            dpar_why *why);

/* Computes cuts so that part p gets about count weights[p] / (sum of the weights) elements, in
 * whole atoms.
 *
 * cuts:     [parts + 1], receives the cuts, which dpar_split_init_ragged takes.
 * weights:  [parts], at least 0, not all 0, with a sum below 2^31.
 * atom:     elements of an atom; the last atom may be shorter.
 *
 * No part is an atom or more away from its share: cut(p) = floor(A W(p) / W) atoms, with A =
 * ceil(count / atom), W(p) the sum of the first p weights and W the sum of all. Fails with
 * DPAR_E_ARG for a number out of its domain or DPAR_E_RANGE for one that is too large. Costs
 * O(parts).
 */
DPAR_API dpar_status dpar_split_weighted_cuts(int64_t *cuts, int64_t count, int32_t parts,
                                              const int64_t *weights, int64_t atom, dpar_why *why);

/* Cuts a row of items, such as the layers of a model, into runs so that the most expensive run is
 * as inexpensive as possible. Part p gets items cuts[p] to cuts[p+1] - 1.
 *
 * cost:  [items], at least 0, with a sum below 2^62.
 *
 * Among the cuts with that least maximum, each run, from the first one on, costs as close as
 * possible to an even share of the remaining cost. No run is empty as long as there are enough
 * items. Fails with DPAR_E_ARG for a number out of its domain or DPAR_E_RANGE for one that is too
 * large. Costs O(items log(sum)).
 */
DPAR_API dpar_status dpar_split_balance(int64_t *cuts, int64_t items, const int64_t *cost,
                                        int32_t parts, dpar_why *why);

/* Counts the elements of a part. Returns 0 for a part outside 0..parts-1. The largest part is part
 * 0; for BLOCK_CYCLIC it is `source`, for ZIGZAG part 0 or parts-1, for FLOOR and RAGGED any. Costs
 * O(1). */
DPAR_API int64_t dpar_split_part_count(const dpar_split *split, int32_t part);

/* Finds the first element of a part. Returns `count` for a part without elements, as DTensor does,
 * so that an empty shard cannot be mistaken for another one. Costs O(1). */
DPAR_API int64_t dpar_split_part_first(const dpar_split *split, int32_t part);

/* Finds the part that owns element i. Returns -1 if i is not in 0..count-1.
 *
 * local:  receives the index of the element in the part; may be NULL.
 * run:    receives how many elements from i on are consecutive in the part; may be NULL.
 *
 * Costs O(1). RAGGED, and FLOOR if count * parts exceeds 2^63 - 1, cost O(log parts).
 */
DPAR_API int32_t dpar_split_locate(const dpar_split *split, int64_t i, int64_t *local,
                                   int64_t *run);

/* Finds the element with local index `local` in a part. Returns -1 if there is none. `run` is as in
 * dpar_split_locate. This loop visits the runs [g, g + n) of a part:
 *
 *     for (l = 0; (g = dpar_split_global(&split, p, l, &n)) >= 0; l += n)
 *
 * Costs O(1).
 */
DPAR_API int64_t dpar_split_global(const dpar_split *split, int32_t part, int64_t local,
                                   int64_t *run);

#endif
