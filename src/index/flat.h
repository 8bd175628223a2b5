/* SPDX-License-Identifier: MIT-0 */
/* flat - arrays laid end to end in one buffer that ranks share: FSDP's flat parameter, the buckets
 * of DDP and of the distributed optimizer, and which boxes an interval of such a buffer is. */
#ifndef DPARI_INDEX_FLAT_H
#define DPARI_INDEX_FLAT_H

#include "../base/box.h"

/* ---- a flat parameter: FSDP1, ZeRO ---- */

typedef struct dpar_flat {
    int32_t ranks;
    int64_t total; /* elements, parameters with the gaps between them */
    int64_t shard; /* elements of a rank: total rounded up to whole shards */
} dpar_flat;

/* Lays parameters of numel[i] elements in order, each start a multiple of `align` elements (FSDP1:
 * 16 bytes, or 1), and cuts the whole into equal shards, the last padded. start[i] receives where
 * each begins. E_ARG, E_RANGE with a sentence. Not collective. O(params). */
DPAR_API dpar_status dpar_flat_init(dpar_flat *f, int32_t params, const int64_t *numel,
                                    int64_t align, int32_t ranks, int64_t *start, dpar_why *why);

/* What a rank has of one parameter. */
typedef struct dpar_piece {
    int64_t count;     /* elements */
    int64_t in_param;  /* where they begin in the parameter, */
    int64_t in_shard;  /* in the rank's shard, */
    int64_t in_bucket; /* in the bucket (of a flat parameter: the whole), */
    int64_t in_buffer; /* in the buffer */
} dpar_piece;
/* The piece of a parameter at start, numel that lies in a rank's shard. 0, and nothing written,
 * when there is none. O(1). */
DPAR_API int dpar_flat_piece(const dpar_flat *f, int64_t start, int64_t numel, int32_t rank,
                             dpar_piece *piece);

/* ---- buckets ---- */

/* Parameters from the last to the first, as gradients become ready. Zero it and fill it in. */
typedef struct dpar_bucketing {
    int64_t first; /* the first bucket is closed when it has as many elements; 0: as the others */
    int64_t size;  /* the others; 0: never, all in one */
    int64_t align; /* starts of parameters are multiples of it; 0: 1 */
    int64_t multiple; /* ends of buckets are multiples of lcm(ranks, multiple); 0: 1 */
    int32_t ranks;    /* that share each bucket equally; 0: 1 */
} dpar_bucketing;
/* PyTorch's DDP: buckets of 25 MiB, the first of 1 MiB, nothing padded. */
DPAR_API dpar_bucketing dpar_bucketing_ddp(int64_t element_bytes);
/* Megatron's distributed optimizer: starts at multiples of 64, ends of lcm(dp, 128); its
 * high-bandwidth mode has lcm(dp, 65536): set multiple. */
DPAR_API dpar_bucketing dpar_bucketing_megatron(int64_t size, int32_t ranks);

typedef struct dpar_bucket {
    int64_t lo, hi; /* in the buffer, padding included: each rank has (hi - lo) / ranks of it */
    int64_t used;   /* elements, without the padding at its end: lo + used <= hi */
    int32_t first, last; /* parameters first <= i < last */
} dpar_bucket;
/* Fills start[0 .. params-1] and up to `room` buckets, in the buffer's order (that of the last
 * parameters first); *buckets is how many there are. Call with room 0 to count. E_ARG, E_RANGE with
 * a sentence. Not collective; equal on all ranks. O(params). */
DPAR_API dpar_status dpar_buckets_make(const dpar_bucketing *how, int32_t params,
                                       const int64_t *numel, int64_t *start, dpar_bucket *bucket,
                                       int32_t room, int32_t *buckets, dpar_why *why);
/* What one of `ranks` equal shares of a bucket has of a parameter. 0 when nothing. O(1). */
DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t numel, int32_t rank, dpar_piece *piece);

/* ---- intervals of a flattened array ---- */

/* The boxes that elements [*at, end) of an array in C order make up, in order; at most 2 dims - 1
 * of them. Begin with *at = the first; 1 and the next box, *at moved behind it, or 0 at the end.
 * `end` past the array is its end; 0 too where an extent is below 1, *at is negative or the
 * extents' product does not fit 63 bits. RaggedShard, BlockShard: split rows or blocks, times their
 * elements. O(dims). */
DPAR_API int dpar_flat_next_box(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                                dpar_box *box);

#endif
