/* SPDX-License-Identifier: MIT-0 */
/* split - who has which elements of one dim: `count` elements over `parts` parts, by a rule that
 * has a name. The systems that people use disagree about what "block" means. Integers only, no
 * tables.
 *
 *     dpar_split_owner(DPAR_SPLIT_CHUNK, 1000, 7, 500);                     part 3 has element 500
 *     dpar_split_range(DPAR_SPLIT_CHUNK, 1000, 7, 3, &first, &count);       part 3 has 143, from
 * 429 on
 *
 * A dpar_split answers by all rules, and quicker in a loop. */
#ifndef DPARI_INDEX_SPLIT_H
#define DPARI_INDEX_SPLIT_H

#include "../base/base.h"

/* The rules, for part p of P and N elements. The example: 10 elements over 4 parts. */
enum {
    /* b = ceil(N/P): [min(N, p b), min(N, (p+1) b)): 3 3 3 1. torch.chunk, DTensor, FSDP, FFTW-MPI,
     * MPI darray BLOCK, HPF BLOCK, PetscSplitOwnershipEqual. Empty parts are the last ones. */
    DPAR_SPLIT_CHUNK,
    /* N/P + (p < N%P) elements: 3 3 2 2. numpy.array_split, torch.tensor_split, PETSc DMDA,
     * DeepSpeed, cuDecomp, heFFTe, AMReX, hypre. Empty parts are the last ones. */
    DPAR_SPLIT_EVEN,
    /* [floor(N p/P), floor(N (p+1)/P)): 2 3 2 3. p4est. Empty parts lie between full ones. */
    DPAR_SPLIT_FLOOR,
    /* Blocks of `block`, dealt round from part `source`. ScaLAPACK, MPI darray CYCLIC(k). */
    DPAR_SPLIT_BLOCK_CYCLIC,
    /* Any ascending cuts: [cuts[p], cuts[p+1]). Ragged and weighted shards, whole atoms. */
    DPAR_SPLIT_RAGGED,
    /* CHUNK into `block` pieces, each of them CHUNK into P; part p has the p-th part of every
     * piece. DTensor's strided shard (FSDP over TP), fused QKV and gate/up. */
    DPAR_SPLIT_STRIDED,
    /* CHUNK into 2P chunks; part p has chunks p and 2P-1-p. Causal context parallelism. */
    DPAR_SPLIT_ZIGZAG,
    /* p, p+P, p+2P, ...: BLOCK_CYCLIC(1). Striped attention. */
    DPAR_SPLIT_CYCLIC,
    DPAR_SPLIT_RULE_COUNT
};

/* The part that has element i of `count`, by any rule but BLOCK_CYCLIC, RAGGED and STRIDED. -1 when
 * i is outside, or where dpar_split_init would refuse. O(1). */
DPAR_API int32_t dpar_split_owner(int32_t rule, int64_t count, int32_t parts, int64_t i);
/* The elements of a part by CHUNK, EVEN or FLOOR, whose parts are one run: *elements of them, from
 * *first on. A part that has none has *first = `count`. E_ARG or E_RANGE, nothing written: another
 * rule, no such part, or what dpar_split_init would refuse. O(1). */
DPAR_API dpar_status dpar_split_range(int32_t rule, int64_t count, int32_t parts, int32_t part,
                                      int64_t *first, int64_t *elements);

/* A value; make it with an init function. Within a part, local indices 0, 1, ... run through its
 * elements in ascending global order. */
typedef struct dpar_split {
    int32_t rule;     /* DPAR_SPLIT_CHUNK, ... */
    int32_t parts;    /* P, at least 1 */
    int32_t source;   /* BLOCK_CYCLIC: the part of the first block, 0..parts-1. The init sets 0; set
                         yours after it */
    uint8_t shift[2]; /* private: see inverse */
    int64_t count;    /* N, elements, 0..2^62 */
    int64_t block;    /* BLOCK_CYCLIC: elements of a block; STRIDED: pieces */
    const int64_t *cuts;         /* RAGGED: parts + 1 of them, the caller's */
    int64_t by[2];               /* private: what indices are divided by */
    uint64_t inverse[2];         /* private: their inverses, times 2^shift */
    int64_t rounds, extra, tail; /* private: the count in whole rounds, and what is left */
} dpar_split;

/* A split by any rule but RAGGED, which has its own init. `block`: BLOCK_CYCLIC's block and
 * STRIDED's pieces, at least 1; other rules ignore it. E_ARG or E_RANGE with a sentence, *s
 * untouched. O(1). */
DPAR_API dpar_status dpar_split_init(dpar_split *s, int32_t rule, int64_t count, int32_t parts,
                                     int64_t block, dpar_why *why);
/* Changes the number of elements to another, 0..2^62; the rule stays. RAGGED keeps its cuts, which
 * must end there. Cannot fail. O(1). */
DPAR_API void dpar_split_resize(dpar_split *s, int64_t count);
/* RAGGED: parts by cuts, cuts[0] = 0 <= cuts[1] <= ... <= cuts[parts] = the number of elements. The
 * array must outlive the split. E_ARG: no parts, or cuts that do not begin at 0 or do not ascend.
 * E_RANGE: more than 2^62 elements. Each has a sentence. O(parts).
 *
 * cuDecomp's gdims_dist splits the first `even` elements by EVEN and gives the rest to the last
 * part that has some. Its cuts are the offsets of that EVEN, and `count` from the first empty part
 * on. */
DPAR_API dpar_status dpar_split_init_ragged(dpar_split *s, int32_t parts, const int64_t *cuts,
                                            dpar_why *why);
/* Cuts by weights: fills cuts[0 .. parts] so that part p gets about count weights[p] / (their sum),
 * in whole atoms of `atom` elements; the last atom may be short. No part is an atom or more away
 * from its share: cut(p) = floor(A W(p) / W) atoms, A = ceil(count / atom), W(p) the sum of the
 * first p weights.
 *
 * Weights are at least 0, not all 0, of a sum below 2^31. E_ARG: a number out of its domain.
 * E_RANGE: too large a one. Each has a sentence, cuts untouched. O(parts). */
DPAR_API dpar_status dpar_split_weighted_cuts(int64_t *cuts, int64_t count, int32_t parts,
                                              const int64_t *weights, int64_t atom, dpar_why *why);
/* Cuts a row of items, as the layers of a model, into `parts` runs so that the heaviest run is as
 * light as can be. Part p has items cuts[p] to cuts[p+1] - 1.
 *
 * Within that least maximum each run, from the first on, comes as near as it can to an even share
 * of what is left. While there are enough items no run is empty. Costs are at least 0, of a sum
 * below 2^62. E_ARG: a number out of its domain. E_RANGE: too large a one. Each has a sentence.
 * O(items x log(sum)). */
DPAR_API dpar_status dpar_split_balance(int64_t *cuts, int64_t items, const int64_t *cost,
                                        int32_t parts, dpar_why *why);

/* Elements of a part; 0 for parts outside 0..P-1. The largest part is 0; of BLOCK_CYCLIC `source`,
 * of ZIGZAG 0 or P-1, of FLOOR and RAGGED any. O(1). */
DPAR_API int64_t dpar_split_part_count(const dpar_split *s, int32_t part);
/* The first element of a part; `count` for a part that has none, as in DTensor: an empty shard is
 * never taken for another one. O(1). */
DPAR_API int64_t dpar_split_part_first(const dpar_split *s, int32_t part);
/* Where element i lies: returns the part that has it, -1 when i is not in 0..N-1. *local: its index
 * in the part. *run: how many elements from i on lie one after another there. Both may be NULL.
 * O(1); RAGGED, and FLOOR when N P passes 2^63 - 1, O(log parts). */
DPAR_API int32_t dpar_split_locate(const dpar_split *s, int64_t i, int64_t *local, int64_t *run);
/* The element that is number `local` of `part`; -1 when there is none. *run as above. The runs [g,
 * g + n) of a part:
 *
 *     for (l = 0; (g = dpar_split_global(&s, p, l, &n)) >= 0; l += n)
 *
 * O(1). */
DPAR_API int64_t dpar_split_global(const dpar_split *s, int32_t part, int64_t local, int64_t *run);

#endif
