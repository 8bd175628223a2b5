/* SPDX-License-Identifier: MIT-0 */
/* Context parallelism. Each document is a dpar_split that is made when it is needed, so that memory
 * does not grow with the number of documents. */
#include "context.h"

#include "index_private.h"

/* Checks the ends of packed documents, of which ends[0] is the start of the first one. */
static dpar_status dpari_context_ends(int32_t docs, const int64_t *ends, int32_t ranks,
                                      dpar_why *why)
{
    int32_t k;
    if (docs < 0 || ranks < 1 || ends[0] != 0) {
        return dpari_wrong(why,
                           "docs=%d must be at least 0, ends[0]=%ld must be 0, ranks=%d at least 1",
                           docs, docs < 0 ? 0 : ends[0], ranks);
    }
    for (k = 0; k < docs; k++) {
        if (ends[k + 1] < ends[k]) {
            return dpari_wrong(why, "document %d ends at %ld, before it begins at %ld", k,
                               ends[k + 1], ends[k]);
        }
    }
    if (ends[docs] > INT64_C(1) << 61) {
        return dpari_say(DPAR_E_RANGE, why, "%ld tokens exceed 2^61", ends[docs]);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_packed_init(dpar_packed *packed, int32_t docs,
                                                 const int64_t *ends, int32_t ranks, int32_t rule,
                                                 dpar_why *why)
{
    dpar_status st = dpari_context_ends(docs, ends, ranks, why);
    if (st == DPAR_OK && rule != DPAR_SPLIT_CHUNK && rule != DPAR_SPLIT_EVEN &&
        rule != DPAR_SPLIT_ZIGZAG && rule != DPAR_SPLIT_CYCLIC) {
        st = dpari_wrong(why, "rule is %d: documents need CHUNK, EVEN, ZIGZAG or CYCLIC", rule);
    }
    if (st == DPAR_OK) {
        packed->docs = docs;
        packed->ranks = ranks;
        packed->rule = rule;
        packed->ends = ends;
    }
    return st;
}

/* Makes the split of document k. It cannot fail, because dpar_packed_init checked the numbers. */
static void dpari_packed_split(const dpar_packed *packed, int32_t k, dpar_split *split)
{
    (void)dpar_split_init(split, packed->rule, packed->ends[k + 1] - packed->ends[k], packed->ranks,
                          1, NULL);
}

DPAR_API int64_t dpar_packed_rank_count(const dpar_packed *packed, int32_t rank,
                                        int64_t *local_ends)
{
    int64_t size = 0;
    int32_t k;
    dpar_split s;
    for (k = 0; k < packed->docs; k++) {
        if (local_ends != NULL) {
            local_ends[k] = size;
        }
        dpari_packed_split(packed, k, &s);
        size += dpar_split_part_count(&s, rank);
    }
    if (local_ends != NULL) {
        local_ends[k] = size;
    }
    return size;
}

DPAR_API int dpar_packed_next(const dpar_packed *packed, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count)
{
    dpar_split s;
    for (; cursor->doc < packed->docs; cursor->doc++, cursor->local = 0) {
        int64_t at, run;
        dpari_packed_split(packed, cursor->doc, &s);
        at = dpar_split_global(&s, rank, cursor->local, &run);
        if (at >= 0) {
            *doc = cursor->doc;
            *first = packed->ends[cursor->doc] + at;
            *count = run;
            cursor->local += run;
            return 1;
        }
    }
    return 0;
}

/* Counts the query-key pairs of n tokens of a document from `first` on, which see first + 1, ...,
 * first + n keys. */
static int64_t dpari_causal_pairs(int64_t first, int64_t n)
{
    int64_t most, last = n % 2 == 0 ? n / 2 : n;
    int64_t half = n % 2 == 0 ? n + 1 : (n + 1) / 2;
    if (!dpari_mul(first, n, &most) || !dpari_mul(last, half, &last) || last > INT64_MAX - most) {
        return INT64_MAX;
    }
    return most + last;
}

/* Counts the query-key pairs of a stripe, whose tokens rank, rank + ranks, ... see rank + 1, rank +
 * 1 + ranks, ... keys. */
static int64_t dpari_stripe_pairs(const dpar_packed *packed, int32_t doc, int32_t rank)
{
    dpar_split s;
    int64_t n, steps, half, sum;
    dpari_packed_split(packed, doc, &s);
    n = dpar_split_part_count(&s, rank);
    steps = n % 2 == 0 ? n - 1 : n; /* n (n - 1) / 2 without an overflow of n (n - 1) */
    half = n % 2 == 0 ? n / 2 : (n - 1) / 2;
    if (n < 1) {
        return 0;
    }
    if (!dpari_mul(steps, half, &steps) || !dpari_mul(steps, packed->ranks, &steps) ||
        !dpari_mul(n, (int64_t)rank + 1, &sum) || sum > INT64_MAX - steps) {
        return INT64_MAX;
    }
    return sum + steps;
}

DPAR_API DPARI_COLD int64_t dpar_packed_pairs(const dpar_packed *packed, int32_t rank)
{
    dpar_packed_cursor cursor;
    int64_t pairs = 0, first, n, more;
    int32_t doc;
    for (doc = 0; packed->rule == DPAR_SPLIT_CYCLIC && doc < packed->docs; doc++) {
        more = dpari_stripe_pairs(packed, doc, rank);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    if (packed->rule == DPAR_SPLIT_CYCLIC) {
        return pairs;
    }
    dpari_zero(&cursor, sizeof(cursor));
    while (dpar_packed_next(packed, rank, &cursor, &doc, &first, &n)) {
        more = dpari_causal_pairs(first - packed->ends[doc], n);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    return pairs;
}
