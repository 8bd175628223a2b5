/* SPDX-License-Identifier: MIT-0 */
/* flat - arrays laid end to end in one buffer that ranks share: FSDP's flat parameter, the buckets
 * of DDP and of the distributed optimizer, and which boxes an interval of such a buffer is. */
#ifndef DPARI_INDEX_FLAT_H
#define DPARI_INDEX_FLAT_H

#include "../base/box.h"

/* ---- buckets ---- */

/* How parameters lie in a buffer and how that is cut. Zero it and fill it in.
 * PyTorch's DDP: size 25 MiB / bytes of an element, first 1 MiB, nothing padded. Megatron's
 * distributed optimizer: align 64, multiple 128 (65536 in its high-bandwidth mode), ranks: the
 * data-parallel ones. A flat parameter of FSDP1 or ZeRO: forward, size 0, ranks, align (16 bytes,
 * or 1): one bucket, of which each rank has an equal shard, the last padded. */
typedef struct dpar_bucketing {
    int32_t params;
    int32_t ranks;        /* that share each bucket equally; 0: 1 */
    const int64_t *numel; /* elements of each parameter */
    int64_t first; /* the first bucket is closed when it has as many elements; 0: as the others */
    int64_t size;  /* the others; 0: never, all in one */
    int64_t align; /* starts of parameters are multiples of it; 0: 1 */
    int64_t multiple; /* ends of buckets are multiples of lcm(ranks, multiple); 0: 1 */
    int32_t forward;  /* 0: from the last parameter to the first, as gradients become ready; 1: from
                         the first on */
} dpar_bucketing;

typedef struct dpar_bucket {
    int64_t lo, hi; /* in the buffer, padding included: each rank has (hi - lo) / ranks of it */
    int64_t used;   /* elements, without the padding at its end: lo + used <= hi */
    int32_t first, last; /* parameters first <= i < last */
} dpar_bucket;
/* Fills start[0 .. params-1], where each parameter begins, and up to `room` buckets, in the
 * buffer's order; *buckets is how many there are. Call with room 0 to count. E_ARG, E_RANGE with a
 * sentence. Not collective; equal on all ranks. O(params). */
DPAR_API dpar_status dpar_buckets_init(const dpar_bucketing *how, int64_t *start,
                                       dpar_bucket *bucket, int32_t room, int32_t *buckets,
                                       dpar_why *why);

/* What a rank has of one parameter. */
typedef struct dpar_piece {
    int64_t count;     /* elements */
    int64_t in_param;  /* where they begin in the parameter, */
    int64_t in_shard;  /* in the rank's shard, */
    int64_t in_bucket; /* in the bucket, */
    int64_t in_buffer; /* in the buffer */
} dpar_piece;
/* What rank's one of `ranks` equal shares of a bucket has of a parameter at start, numel. 0, and
 * nothing written, when nothing. O(1). */
DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t numel, int32_t rank, dpar_piece *piece);

/* ---- intervals of a flattened array ---- */

/* The boxes that elements [*at, end) of an array in C order make up, in order; at most 2 dims - 1
 * of them. Begin with *at = the first; 1 and the next box, *at moved behind it, or 0 at the end.
 * `end` past the array is its end; 0 too where an extent is below 1, *at is negative or the
 * extents' product does not fit 63 bits. RaggedShard, BlockShard: split rows or blocks, times their
 * elements. O(dims). */
DPAR_API int dpar_flat_next(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                            dpar_box *box);

#endif
