/* SPDX-License-Identifier: MIT-0 */
/* flat - places arrays one after another in a buffer that ranks share: FSDP's flat parameter, and
 * the buckets of DDP and of the distributed optimizer. It also splits an interval of a flattened
 * array into boxes.
 *
 *     dpar_buckets_desc how = {0};
 *     how.params = 3;
 *     how.count = numel;                      elements of each parameter
 *     how.ranks = 4;                          one bucket, 4 equal shards
 *     how.forward = 1;
 *     dpar_buckets_init(&how, start, bucket, 1, &buckets, &why);
 *     dpar_bucket_piece(&bucket[0], 4, start[i], numel[i], rank, &piece);
 */
#ifndef DPARI_INDEX_FLAT_H
#define DPARI_INDEX_FLAT_H

#include "../base/box.h"

/* ---- buckets ---- */

/* The order of parameters in a buffer, and how the buffer is cut into buckets. Zero it, then set
 * the fields.
 *
 * For PyTorch's DDP set size to 25 MiB / bytes of an element and first to 1 MiB / bytes of an
 * element; nothing is padded. For Megatron's distributed optimizer set align to 64, multiple to 128
 * (65536 in its high-bandwidth mode) and ranks to the number of data-parallel ranks. For the flat
 * parameter of FSDP1 or ZeRO set forward, size 0, ranks and align (16 bytes, or 1), which gives one
 * bucket of equal shards, the last one padded.
 */
typedef struct dpar_buckets_desc {
    int32_t params;       /* number of parameters */
    int32_t ranks;        /* ranks that share each bucket equally; 0 selects 1 */
    const int64_t *count; /* [params], elements of each parameter */
    int64_t first; /* the first bucket ends once it has this many elements; 0 selects `size` */
    /* the other buckets end once they have this many elements; 0 puts all parameters into one
     * bucket */
    int64_t size;
    int64_t align;    /* parameters begin at multiples of this number; 0 selects 1 */
    int64_t multiple; /* buckets end at multiples of lcm(ranks, multiple); 0 selects 1 */
    /* 0 places parameters from the last to the first, the order in which gradients become ready; 1
     * places them from the first to the last. */
    int32_t forward;
} dpar_buckets_desc;

/* A bucket: a part of the buffer that holds whole parameters. */
typedef struct dpar_bucket {
    /* The bucket's range in the buffer, with padding: lo <= i < hi. Each rank has (hi - lo) / ranks
     * elements. */
    int64_t lo, hi;
    int64_t used;                   /* elements without the padding at the end: lo + used <= hi */
    int32_t first_param, end_param; /* first_param <= i < end_param */
} dpar_bucket;

/* Computes where each parameter begins and how the buffer is cut into buckets. The result is the
 * same on all ranks.
 *
 * start:    [params], receives the first element of each parameter in the buffer.
 * bucket:   [room], receives the buckets in the order of the buffer.
 * buckets:  receives the number of buckets, which may exceed `room`. Call with room 0 to count
 *           them.
 *
 * Fails with DPAR_E_ARG or DPAR_E_RANGE. Costs O(params).
 */
DPAR_API dpar_status dpar_buckets_init(const dpar_buckets_desc *how, int64_t *start,
                                       dpar_bucket *bucket, int32_t room, int32_t *buckets,
                                       dpar_why *why);

/* The part of one parameter that a rank has. */
typedef struct dpar_piece {
    int64_t count;     /* number of elements */
    int64_t in_param;  /* first element, as an index in the parameter */
    int64_t in_shard;  /* first element, as an index in the rank's shard */
    int64_t in_bucket; /* first element, as an index in the bucket */
    int64_t in_buffer; /* first element, as an index in the buffer */
} dpar_piece;

/* Computes the part of a parameter that is in a rank's share of a bucket. Returns 1, or 0 if there
 * is none; *piece is then unchanged.
 *
 * ranks:         the number of equal shares of the bucket.
 * start, numel:  the first element of the parameter in the buffer, and its number of elements.
 *
 * Costs O(1).
 */
DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t numel, int32_t rank, dpar_piece *piece);

/* ---- intervals of a flattened array ---- */

/* Advances to the next of the boxes that make up elements [*at, end) of a flattened array. Returns
 * 1, or 0 when there is none left.
 *
 * extent:  [dims], the shape of the array, which is in C order.
 * at:      the first element on the first call; the function moves it past the box.
 * end:     one past the last element; larger numbers mean the end of the array.
 *
 * There are at most 2 dims - 1 boxes. Also returns 0 if an extent is below 1, *at is negative, or
 * the product of the extents does not fit in 63 bits. For RaggedShard and BlockShard, split rows or
 * blocks by a dpar_split and multiply by their elements. Costs O(dims).
 */
DPAR_API int dpar_flat_next(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                            dpar_box *box);

#endif
