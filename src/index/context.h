/* SPDX-License-Identifier: MIT-0 */
/* context - which tokens of a packed sequence a context-parallel rank has. Three ways: each
 * document cut by a rule, tokens dealt by their cost, contiguous slices. A single sequence is one
 * document, or just a dpar_split (DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_CYCLIC).
 *
 *     const int64_t ends[4] = {0, 4000, 4096, 8192};    three documents
 *     dpar_packed_init(&p, 3, ends, 8, DPAR_SPLIT_ZIGZAG, &why);
 *     dpar_packed_cursor at = {0, 0};
 *     while (dpar_packed_next(&p, rank, &at, &doc, &first, &count)) {
 *         tokens first to first + count - 1 of document doc
 *     } */
#ifndef DPARI_INDEX_CONTEXT_H
#define DPARI_INDEX_CONTEXT_H

#include "split.h"

/* ---- each document by itself ---- */

/* Documents laid end to end: document k is tokens [ends[k], ends[k + 1]), ends[0] = 0 (THD's
 * cumulative lengths). Some may be empty. `rule` cuts each into `ranks` parts; a rank has its parts
 * in the order of the documents.
 *
 * ZIGZAG is torch's head-tail, and what Megatron and TransformerEngine do. They pad each document
 * so that 2 x ranks divides its length. Here other lengths are cut unevenly; nothing is lost. */
typedef struct dpar_packed {
    int32_t docs, ranks, rule;
    const int64_t *ends; /* docs + 1 of them, the caller's */
} dpar_packed;
/* rule: DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_ZIGZAG or DPAR_SPLIT_CYCLIC. E_ARG, and
 * E_RANGE above 2^61 tokens, with a sentence. O(docs). */
DPAR_API dpar_status dpar_packed_init(dpar_packed *p, int32_t docs, const int64_t *ends,
                                      int32_t ranks, int32_t rule, dpar_why *why);
/* Tokens of a rank; 0 for a rank outside. local_ends (docs + 1 entries, or NULL) receives where
 * each document ends in them: the rank's own cumulative lengths. O(docs). */
DPAR_API int64_t dpar_packed_rank_count(const dpar_packed *p, int32_t rank, int64_t *local_ends);
/* Where token i lies: its rank, and its local index there (may be NULL); -1 outside. O(docs). */
DPAR_API int32_t dpar_packed_locate(const dpar_packed *p, int64_t i, int64_t *local);
/* The runs of a rank in order; begin with a zeroed cursor. 1: tokens [*first, *first + *count) of
 * document *doc. 0: no more. O(1) each, and O(docs) over all. */
typedef struct dpar_packed_cursor {
    int32_t doc;
    int64_t local;
} dpar_packed_cursor;
DPAR_API int dpar_packed_next(const dpar_packed *p, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count);
/* Query-key pairs of a rank under causal attention inside documents: its share of the work. At most
 * 2^63 - 1. O(runs), STRIPE O(docs). */
DPAR_API int64_t dpar_packed_pairs(const dpar_packed *p, int32_t rank);

/* ---- by cost ---- */

/* torch's PTRR: blocks of tokens dealt to ranks by their cost. Units in descending order of cost,
 * equal ones in their order, go to the ranks in rows, every second row backwards.
 *
 * owner[i] is the rank of unit i. order lists rank 0's units ascending, then rank 1's, and so on.
 * Both are `units` long, the caller's. E_DIVIDE: ranks do not divide units. E_ARG: units below 0 or
 * ranks below 1. Each has a sentence. O(units log(units)). */
DPAR_API dpar_status dpar_context_balance(int64_t units, const int64_t *cost, int32_t ranks,
                                          int32_t *owner, int64_t *order, dpar_why *why);

/* ---- contiguous slices ---- */

/* What a rank of "llama3" attention needs. Queries [q_lo, q_hi) are its slice. Documents first <= k
 * < first + docs have tokens in it. It gathers keys [k_lo, k_hi). */
typedef struct dpar_varlen {
    int64_t q_lo, q_hi, k_lo, k_hi;
    int64_t longest_q, longest_k; /* of its documents, as kernels ask for */
    int32_t first, docs;
} dpar_varlen;
/* A rank's contiguous slice of all tokens, by CHUNK whatever p->rule is. causal: keys end with the
 * slice; else with its last document.
 *
 * q_ends and k_ends (each docs + 1 long, or NULL) receive cumulative lengths of the queries and
 * keys of its documents, from 0 on: the arguments of a variable-length attention. Empty documents
 * in between are kept. E_ARG, without a sentence: no such rank. O(docs). */
DPAR_API dpar_status dpar_varlen_slice(const dpar_packed *p, int32_t rank, int causal,
                                       dpar_varlen *v, int64_t *q_ends, int64_t *k_ends);

#endif
