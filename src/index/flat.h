/* SPDX-License-Identifier: MIT-0 */
/* flat - arrays laid end to end in one buffer that ranks share: FSDP's flat parameter, the buckets
 * of DDP and of the distributed optimizer. Also: which boxes an interval of such a buffer is.
 *
 *     dpar_buckets_desc how = {0};
 *     how.params = 3;
 *     how.numel = numel;                      elements of each
 *     how.ranks = 4;                          one bucket, 4 equal shards
 *     how.forward = 1;
 *     dpar_buckets_init(&how, start, bucket, 1, &buckets, &why);
 *     dpar_bucket_piece(&bucket[0], 4, start[i], numel[i], rank, &piece); */
#ifndef DPARI_INDEX_FLAT_H
#define DPARI_INDEX_FLAT_H

#include "../base/box.h"

/* ---- buckets ---- */

/* How parameters lie in a buffer, and how the buffer is cut. Zero it and fill it in.
 *
 * PyTorch's DDP: size 25 MiB / bytes of an element, first 1 MiB / the same, nothing padded.
 * Megatron's distributed optimizer: align 64, multiple 128 (65536 in its high-bandwidth mode),
 * ranks: the data-parallel ones. The flat parameter of FSDP1 or ZeRO: forward, size 0, ranks, align
 * (16 bytes, or 1). That is one bucket of equal shards, the last one padded. */
typedef struct dpar_buckets_desc {
    int32_t params;
    int32_t ranks;        /* ranks that share each bucket equally; 0: 1 */
    const int64_t *numel; /* elements of each parameter */
    int64_t first;        /* the first bucket ends when it has as many elements; 0: as the others */
    int64_t size;     /* the others end when they have as many; 0: all parameters in one bucket */
    int64_t align;    /* parameters begin at multiples of it; 0: 1 */
    int64_t multiple; /* buckets end at multiples of lcm(ranks, multiple); 0: 1 */
    int32_t forward;  /* 0: from the last parameter to the first, as gradients become ready; 1: from
                         the first */
} dpar_buckets_desc;

/* A bucket: a part of the buffer that holds whole parameters. */
typedef struct dpar_bucket {
    int64_t lo, hi; /* in the buffer, padding included; each rank has (hi - lo) / ranks elements */
    int64_t used;   /* elements without the padding at the end: lo + used <= hi */
    int32_t first, last; /* parameters first <= i < last */
} dpar_bucket;
/* Fills start[0 .. params-1], where each parameter begins, and up to `room` buckets in the buffer's
 * order. *buckets: how many there are; call with room 0 to count. E_ARG, E_RANGE with a sentence.
 * Not collective: the same on all ranks. O(params). */
DPAR_API dpar_status dpar_buckets_init(const dpar_buckets_desc *how, int64_t *start,
                                       dpar_bucket *bucket, int32_t room, int32_t *buckets,
                                       dpar_why *why);

/* The part of one parameter that a rank has. */
typedef struct dpar_piece {
    int64_t count;     /* elements */
    int64_t in_param;  /* where they begin: in the parameter */
    int64_t in_shard;  /* in the rank's shard */
    int64_t in_bucket; /* in the bucket */
    int64_t in_buffer; /* in the buffer */
} dpar_piece;
/* The part of a parameter (of numel elements from start on) in a rank's share of a bucket, one of
 * `ranks` equal ones. 1; 0, nothing written, when there is none. O(1). */
DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t numel, int32_t rank, dpar_piece *piece);

/* ---- intervals of a flattened array ---- */

/* The boxes that elements [*at, end) of an array in C order make up, in order: at most 2 dims - 1.
 * Begin with *at = the first element. 1: the next box, *at moved behind it. 0: no more.
 *
 * An `end` past the array is its end. 0 too where an extent is below 1, *at is negative, or the
 * product of the extents does not fit 63 bits. RaggedShard, BlockShard: split rows or blocks by a
 * dpar_split, times their elements. O(dims). */
DPAR_API int dpar_flat_next(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                            dpar_box *box);

#endif
