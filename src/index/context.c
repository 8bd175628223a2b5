/* SPDX-License-Identifier: MIT-0 */
/* Context parallelism. Packed documents are one dpar_split per document, made when it is needed, so
 * that memory does not grow with the number of documents. The balanced method sorts units by cost
 * and deals them out in rows. */
#include "context.h"

#include "inner.h"

/* ---- each document by itself --------------------------------------------------------------------
 */

static dpar_status dpari_context_ends(int32_t docs, const int64_t *ends, int32_t ranks,
                                      dpar_why *why)
{
    int32_t k;
    if (docs < 0 || ranks < 1 || ends[0] != 0) {
        return dpari_say(DPAR_E_ARG, why, "# documents that begin at # on # ranks", docs,
                         docs < 0 ? 0 : ends[0], ranks, 0);
    }
    for (k = 0; k < docs; k++) {
        if (ends[k + 1] < ends[k]) {
            return dpari_say(DPAR_E_ARG, why, "document # ends at #, the one before at #", k,
                             ends[k + 1], ends[k], 0);
        }
    }
    if (ends[docs] > INT64_C(1) << 61) {
        return dpari_say(DPAR_E_RANGE, why, "# tokens: at most 2^61", ends[docs], 0, 0, 0);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_packed_init(dpar_packed *p, int32_t docs, const int64_t *ends,
                                                 int32_t ranks, int32_t rule, dpar_why *why)
{
    dpar_status st = dpari_context_ends(docs, ends, ranks, why);
    if (st == DPAR_OK && rule != DPAR_SPLIT_CHUNK && rule != DPAR_SPLIT_EVEN &&
        rule != DPAR_SPLIT_ZIGZAG && rule != DPAR_SPLIT_CYCLIC) {
        st = dpari_say(DPAR_E_ARG, why, "rule #: CHUNK, EVEN, ZIGZAG or STRIPE cut documents", rule,
                       0, 0, 0);
    }
    if (st == DPAR_OK) {
        p->docs = docs;
        p->ranks = ranks;
        p->rule = rule;
        p->ends = ends;
    }
    return st;
}

/* Document k's parts. Checked at init: it cannot fail. */
static void dpari_packed_split(const dpar_packed *p, int32_t k, dpar_split *s)
{
    (void)dpar_split_init(s, p->rule, p->ends[k + 1] - p->ends[k], p->ranks, 1, NULL);
}

DPAR_API int64_t dpar_packed_rank_count(const dpar_packed *p, int32_t rank, int64_t *local_ends)
{
    int64_t size = 0;
    int32_t k;
    dpar_split s;
    for (k = 0; k < p->docs; k++) {
        if (local_ends != NULL) {
            local_ends[k] = size;
        }
        dpari_packed_split(p, k, &s);
        size += dpar_split_part_count(&s, rank);
    }
    if (local_ends != NULL) {
        local_ends[k] = size;
    }
    return size;
}

/* The document that has token i: the last one that begins at or before it and is not empty. */
static int32_t dpari_packed_doc(int32_t docs, const int64_t *ends, int64_t i)
{
    int32_t low = 0, high = docs; /* ends[low] <= i < ends[high] */
    while (high - low > 1) {
        int32_t middle = low + (high - low) / 2;
        if (ends[middle] <= i) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

DPAR_API int32_t dpar_packed_locate(const dpar_packed *p, int64_t i, int64_t *local)
{
    int32_t doc, rank, k;
    int64_t at = 0;
    dpar_split s;
    if (i < 0 || i >= p->ends[p->docs]) {
        return -1;
    }
    doc = dpari_packed_doc(p->docs, p->ends, i);
    dpari_packed_split(p, doc, &s);
    rank = dpar_split_locate(&s, i - p->ends[doc], &at, NULL);
    for (k = 0; k < doc && local != NULL; k++) {
        dpari_packed_split(p, k, &s);
        at += dpar_split_part_count(&s, rank);
    }
    if (local != NULL) {
        *local = at;
    }
    return rank;
}

DPAR_API int dpar_packed_next(const dpar_packed *p, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count)
{
    dpar_split s;
    for (; cursor->doc < p->docs; cursor->doc++, cursor->local = 0) {
        int64_t at, run;
        dpari_packed_split(p, cursor->doc, &s);
        at = dpar_split_global(&s, rank, cursor->local, &run);
        if (at >= 0) {
            *doc = cursor->doc;
            *first = p->ends[cursor->doc] + at;
            *count = run;
            cursor->local += run;
            return 1;
        }
    }
    return 0;
}

/* Tokens first .. first + n - 1 of a document see first + 1, ..., first + n keys. */
static int64_t dpari_causal_pairs(int64_t first, int64_t n)
{
    int64_t most, last = n % 2 == 0 ? n / 2 : n, half = n % 2 == 0 ? n + 1 : (n + 1) / 2;
    if (!dpari_mul(first, n, &most) || !dpari_mul(last, half, &last) || last > INT64_MAX - most) {
        return INT64_MAX;
    }
    return most + last;
}

/* A stripe's tokens rank, rank + ranks, ... see rank + 1, rank + 1 + ranks, ... keys. */
static int64_t dpari_stripe_pairs(const dpar_packed *p, int32_t doc, int32_t rank)
{
    dpar_split s;
    int64_t n, steps, half, sum;
    dpari_packed_split(p, doc, &s);
    n = dpar_split_part_count(&s, rank);
    steps = n % 2 == 0 ? n - 1 : n; /* n (n - 1) / 2 without its product first */
    half = n % 2 == 0 ? n / 2 : (n - 1) / 2;
    if (n < 1) {
        return 0;
    }
    if (!dpari_mul(steps, half, &steps) || !dpari_mul(steps, p->ranks, &steps) ||
        !dpari_mul(n, (int64_t)rank + 1, &sum) || sum > INT64_MAX - steps) {
        return INT64_MAX;
    }
    return sum + steps;
}

DPAR_API DPARI_COLD int64_t dpar_packed_pairs(const dpar_packed *p, int32_t rank)
{
    dpar_packed_cursor cursor;
    int64_t pairs = 0, first, n, more;
    int32_t doc;
    for (doc = 0; p->rule == DPAR_SPLIT_CYCLIC && doc < p->docs; doc++) {
        more = dpari_stripe_pairs(p, doc, rank);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    if (p->rule == DPAR_SPLIT_CYCLIC) {
        return pairs;
    }
    dpari_zero(&cursor, sizeof(cursor));
    while (dpar_packed_next(p, rank, &cursor, &doc, &first, &n)) {
        more = dpari_causal_pairs(first - p->ends[doc], n);
        pairs = more > INT64_MAX - pairs ? INT64_MAX : pairs + more;
    }
    return pairs;
}

/* ---- by cost ------------------------------------------------------------------------------------
 */

/* What is sorted: units by descending cost, or by owner, equal ones by number. */
typedef struct dpari_deal {
    const int64_t *cost; /* or NULL: */
    const int32_t *owner;
} dpari_deal;

static int dpari_deal_before(const dpari_deal *by, int64_t a, int64_t b)
{
    if (by->cost != NULL && by->cost[a] != by->cost[b]) {
        return by->cost[a] > by->cost[b];
    }
    if (by->cost == NULL && by->owner[a] != by->owner[b]) {
        return by->owner[a] < by->owner[b];
    }
    return a < b;
}

static void dpari_deal_swap(int64_t *order, int64_t a, int64_t b)
{
    int64_t swap = order[a];
    order[a] = order[b];
    order[b] = swap;
}

/* Heapsort: no memory, no recursion, always n log n; the order is total, so the result is unique.
 */
static DPARI_COLD void dpari_deal_sort(const dpari_deal *by, int64_t n, int64_t *order)
{
    int64_t begin, end = n, at, child;
    for (begin = n / 2; end > 1;) {
        if (begin > 0) {
            begin--;
        } else {
            dpari_deal_swap(order, 0, --end);
        }
        for (at = begin; (child = 2 * at + 1) < end; at = child) { /* sink */
            if (child + 1 < end && dpari_deal_before(by, order[child], order[child + 1])) {
                child++;
            }
            if (!dpari_deal_before(by, order[at], order[child])) {
                break;
            }
            dpari_deal_swap(order, at, child);
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_context_balance(int64_t units, const int64_t *cost,
                                                     int32_t ranks, int32_t *owner, int64_t *order,
                                                     dpar_why *why)
{
    dpari_deal by;
    int64_t i;
    if (units < 0 || ranks < 1) {
        return dpari_say(DPAR_E_ARG, why, "# units for # ranks", units, ranks, 0, 0);
    }
    if (units % ranks != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "# ranks do not divide # units", ranks, units, 0, 0);
    }
    for (i = 0; i < units; i++) {
        order[i] = i;
    }
    by.cost = cost;
    by.owner = owner;
    dpari_deal_sort(&by, units, order);
    for (i = 0; i < units; i++) {
        int32_t column = (int32_t)(i % ranks);
        owner[order[i]] = i / ranks % 2 == 0 ? column : ranks - 1 - column;
    }
    by.cost = NULL;
    dpari_deal_sort(&by, units, order);
    return DPAR_OK;
}

/* ---- contiguous slices --------------------------------------------------------------------------
 */

DPAR_API DPARI_COLD dpar_status dpar_varlen_slice(const dpar_packed *p, int32_t rank, int causal,
                                                  dpar_varlen *v, int64_t *q_ends, int64_t *k_ends)
{
    const int64_t *ends = p->ends;
    const int32_t docs = p->docs;
    dpar_varlen made;
    dpar_split s;
    int64_t q = 0, k = 0;
    int32_t j;
    if (rank < 0 || rank >= p->ranks) {
        return DPAR_E_ARG;
    }
    (void)dpar_split_init(&s, DPAR_SPLIT_CHUNK, ends[docs], p->ranks, 0, NULL);
    dpari_zero(&made, sizeof(made));
    made.q_lo = made.q_hi = made.k_lo = made.k_hi = dpar_split_part_first(&s, rank);
    made.q_hi += dpar_split_part_count(&s, rank);
    if (made.q_hi > made.q_lo) {
        made.first = dpari_packed_doc(docs, ends, made.q_lo);
        made.docs = dpari_packed_doc(docs, ends, made.q_hi - 1) + 1 - made.first;
        made.k_lo = ends[made.first];
        made.k_hi = causal ? made.q_hi : ends[made.first + made.docs];
    }
    for (j = 0; j <= made.docs; j++) {
        int64_t end = ends[made.first + j], q_end, k_end;
        q_end = dpari_most(0, dpari_least(end, made.q_hi) - made.q_lo);
        k_end = dpari_most(0, dpari_least(end, made.k_hi) - made.k_lo);
        made.longest_q = dpari_most(made.longest_q, j > 0 ? q_end - q : 0);
        made.longest_k = dpari_most(made.longest_k, j > 0 ? k_end - k : 0);
        q = q_end;
        k = k_end;
        if (q_ends != NULL) {
            q_ends[j] = q;
        }
        if (k_ends != NULL) {
            k_ends[j] = k;
        }
    }
    *v = made;
    return DPAR_OK;
}
