/* SPDX-License-Identifier: MIT-0 */
/* Flat buffers. Parameters are placed one after another, each at a multiple of the alignment. A
 * bucket ends once it is full, and its end is rounded up to a whole multiple. The part of a
 * parameter on a rank is the intersection of two intervals. dpar_train.h calls this for DDP and
 * FSDP. */
#include "flat.h"

#include "index_private.h"

static const int64_t dpari_flat_limit = INT64_C(1) << 62;

/* ---- placing parameters ---------------------------------------------------------------------- */

/* Rounds a up to a multiple of m. Returns 0 if that exceeds 2^62. */
static int dpari_round_up(int64_t a, int64_t m, int64_t *up)
{
    int64_t rest = a % m, add = rest == 0 ? 0 : m - rest;
    if (a > dpari_flat_limit || add > dpari_flat_limit - a) {
        return 0;
    }
    *up = a + add;
    return 1;
}

/* Places a parameter of n elements at the next multiple of `align`, and moves *end to its end. */
static dpar_status dpari_flat_place(int32_t i, int64_t n, int64_t align, int64_t *end,
                                    int64_t *start, dpar_why *why)
{
    int64_t at;
    if (n < 0) {
        return dpari_wrong(why, "parameter %d has a negative count, %ld", i, n);
    }
    if (!dpari_round_up(*end, align, &at) || n > dpari_flat_limit - at) {
        return dpari_say(DPAR_E_RANGE, why, "parameter %d of %ld elements ends past 2^62", i, n);
    }
    *start = at;
    *end = at + n;
    return DPAR_OK;
}

DPARI_API DPARI_COLD dpar_status dpari_flat_init(dpari_flat *flat, int32_t params,
                                                 const int64_t *numel, int64_t align, int32_t ranks,
                                                 int64_t *start, dpar_why *why)
{
    int64_t end = 0, padded;
    int32_t i;
    if (params < 0 || align < 1 || ranks < 1) {
        return dpari_wrong(why, "params %d must be at least 0, align %ld and ranks %d at least 1",
                           params, align, ranks);
    }
    for (i = 0; i < params; i++) {
        int64_t at;
        dpar_status st = dpari_flat_place(i, numel[i], align, &end, &at, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    if (!dpari_round_up(end, ranks, &padded)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements, padded for %d ranks, exceed 2^62", end,
                         ranks);
    }
    flat->ranks = ranks;
    flat->total = end;
    flat->shard = padded / ranks;
    for (i = 0, end = 0; i < params; i++) {
        (void)dpari_flat_place(i, numel[i], align, &end, &start[i], NULL);
    }
    return DPAR_OK;
}

/* Computes the piece of a parameter that is in [lo, hi) of a buffer. Returns 0 if there is none. */
static int dpari_flat_cut(int64_t lo, int64_t hi, int64_t start, int64_t numel, dpar_piece *piece)
{
    int64_t from = dpari_most(lo, start), to;
    if (start < 0 || numel > INT64_MAX - start) {
        return 0;
    }
    to = dpari_least(hi, start + numel);
    if (to <= from) { /* also if numel is negative */
        return 0;
    }
    piece->count = to - from;
    piece->in_param = from - start;
    piece->in_shard = from - lo;
    piece->in_bucket = from;
    piece->in_buffer = from;
    return 1;
}

DPARI_API int dpari_flat_piece(const dpari_flat *flat, int64_t start, int64_t numel, int32_t rank,
                               dpar_piece *piece)
{
    return rank >= 0 && rank < flat->ranks &&
           dpari_flat_cut(rank * flat->shard, rank * flat->shard + flat->shard, start, numel,
                          piece);
}

/* ---- buckets --------------------------------------------------------------------------------- */

DPARI_API dpar_buckets_desc dpari_bucketing_ddp(int64_t element_bytes)
{
    dpar_buckets_desc how;
    dpari_zero(&how, sizeof(how));
    how.first = dpari_ceil_div(INT64_C(1) << 20, dpari_most(1, element_bytes));
    how.size = dpari_ceil_div(INT64_C(25) << 20, dpari_most(1, element_bytes));
    return how;
}

/* Places one parameter after the other and ends a bucket once it is full. `start` and `bucket` are
 * filled unless they are NULL. */
static dpar_status dpari_buckets_walk(const dpar_buckets_desc *how, int64_t unit, int64_t *start,
                                      dpar_bucket *bucket, int32_t room, int32_t *buckets,
                                      dpar_why *why)
{
    int64_t align = dpari_most(1, how->align), lo = 0, end = 0, at = 0;
    int32_t i, k, begun = 0, n = 0;
    for (k = 0; k < how->params; k++) {
        int64_t limit = n == 0 && how->first > 0 ? how->first : how->size;
        dpar_status st;
        i = how->forward ? k : how->params - 1 - k;
        st = dpari_flat_place(i, how->count[i], align, &end, &at, why);
        if (st != DPAR_OK) {
            return st;
        }
        if (start != NULL) {
            start[i] = at;
        }
        if (k + 1 < how->params && (limit == 0 || end - lo < limit)) {
            continue;
        }
        at = end;
        if (!dpari_round_up(end, unit, &end)) {
            return dpari_say(DPAR_E_RANGE, why, "bucket %d ends past 2^62", n);
        }
        if (bucket != NULL && n < room) {
            bucket[n].lo = lo;
            bucket[n].hi = end;
            bucket[n].used = at - lo;
            bucket[n].first_param = how->forward ? begun : i;
            bucket[n].end_param = how->forward ? k + 1 : how->params - begun;
        }
        n++;
        lo = end;
        begun = k + 1;
    }
    *buckets = n;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_buckets_init(const dpar_buckets_desc *how, int64_t *start,
                                                  dpar_bucket *bucket, int32_t capacity,
                                                  int32_t *buckets, dpar_why *why)
{
    int64_t ranks = how->ranks > 0 ? how->ranks : 1, unit = dpari_most(1, how->multiple);
    int32_t n = 0;
    dpar_status st;
    if (how->params < 0 || how->first < 0 || how->size < 0 || how->ranks < 0 || how->align < 0 ||
        how->multiple < 0) {
        return dpari_wrong(
            why,
            "params=%d, first=%ld, size=%ld, ranks=%d, align=%ld, multiple=%ld: none "
            "may be negative",
            how->params, how->first, how->size, how->ranks, how->align, how->multiple);
    }
    if (!dpari_mul(unit / dpari_gcd(unit, ranks), ranks, &unit)) {
        return dpari_say(DPAR_E_RANGE, why, "lcm(multiple %ld, ranks %ld) exceeds 2^63",
                         how->multiple, ranks);
    }
    st = dpari_buckets_walk(how, unit, NULL, NULL, 0, &n, why);
    return st != DPAR_OK ? st
                         : dpari_buckets_walk(how, unit, start, bucket, capacity, buckets, why);
}

DPAR_API int dpar_bucket_piece(const dpar_bucket *bucket, int32_t ranks, int64_t start,
                               int64_t count, int32_t rank, dpar_piece *piece)
{
    int64_t shard, lo;
    if (rank < 0 || rank >= ranks) {
        return 0;
    }
    shard = (bucket->hi - bucket->lo) / ranks;
    lo = bucket->lo + rank * shard;
    if (!dpari_flat_cut(lo, lo + shard, start, count, piece)) {
        return 0;
    }
    piece->in_bucket -= bucket->lo;
    return 1;
}

/* ---- intervals ------------------------------------------------------------------------------- */

DPAR_API int dpar_flat_next(int32_t dims, const int64_t *extent, int64_t *at, int64_t end,
                            dpar_box *box)
{
    int64_t rows = 1, all = 1, left, index = *at, inner;
    int32_t d, k;
    if (dims < 1 || dims > DPAR_MAX_DIMS || *at < 0) {
        return 0;
    }
    for (d = 0; d < dims; d++) {
        if (extent[d] < 1 || !dpari_mul(all, extent[d], &all)) {
            return 0;
        }
    }
    end = dpari_least(end, all);
    if (end <= *at) {
        return 0;
    }
    left = end - *at;
    for (d = dims - 1; d > 0; d--) { /* the dims that the box has whole */
        if (index % extent[d] != 0 || rows * extent[d] > left) {
            break;
        }
        rows *= extent[d];
        index /= extent[d];
    }
    box->dims = dims;
    for (k = dims - 1; k > d; k--) {
        box->lo[k] = 0;
        box->hi[k] = extent[k];
    }
    inner = dpari_least(left / rows, d > 0 ? extent[d] - index % extent[d] : left / rows);
    for (k = d; k >= 0; k--) {
        box->lo[k] = k > 0 ? index % extent[k] : index;
        box->hi[k] = box->lo[k] + (k == d ? inner : 1);
        index = k > 0 ? index / extent[k] : 0;
    }
    *at += inner * rows;
    return 1;
}
