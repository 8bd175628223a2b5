/* SPDX-License-Identifier: MIT-0 */
/* context - computes which tokens of a packed sequence each context-parallel rank has, if a rule
 * cuts each document. A single sequence is one document, or simply a dpar_split (DPAR_SPLIT_ZIGZAG,
 * DPAR_SPLIT_CYCLIC).
 *
 *     const int64_t ends[4] = {0, 4000, 4096, 8192};    three documents
 *     dpar_packed_init(&p, 3, ends, 8, DPAR_SPLIT_ZIGZAG, &why);
 *     dpar_packed_cursor at = {0, 0};
 *     while (dpar_packed_next(&p, rank, &at, &doc, &first, &count)) {
 *         tokens first to first + count - 1 of document doc
 *     }
 */
#ifndef DPARI_INDEX_CONTEXT_H
#define DPARI_INDEX_CONTEXT_H

#include "split.h"

/* Documents laid end to end, each cut into parts for the ranks, made by dpar_packed_init. Document
 * k is tokens [ends[k], ends[k + 1]) with ends[0] = 0 (THD's cumulative lengths), and may be empty.
 * `rule` cuts each document into `ranks` parts; a rank has its parts in the order of the documents.
 *
 * ZIGZAG is torch's head-tail method, which Megatron and TransformerEngine use too. They pad each
 * document so that 2 x ranks divides its length. Here other lengths are cut unevenly and nothing is
 * padded.
 */
typedef struct dpar_packed {
    int32_t docs, ranks, rule;
    const int64_t *ends; /* [docs + 1], the caller's */
} dpar_packed;

/* Distributes documents over ranks by DPAR_SPLIT_CHUNK, DPAR_SPLIT_EVEN, DPAR_SPLIT_ZIGZAG or
 * DPAR_SPLIT_CYCLIC. `ends` must live as long as *packed. Fails with DPAR_E_ARG, or DPAR_E_RANGE
 * above 2^61 tokens. Costs O(docs).
 */
DPAR_API dpar_status dpar_packed_init(dpar_packed *packed, int32_t docs, const int64_t *ends,
                                      int32_t ranks, int32_t rule, dpar_why *why);

/* Counts the tokens of a rank. Returns 0 for a rank outside 0..ranks-1.
 *
 * local_ends:  [docs + 1], receives where each document ends in the rank's tokens: its own
 *              cumulative lengths. May be NULL.
 *
 * Costs O(docs).
 */
DPAR_API int64_t dpar_packed_rank_count(const dpar_packed *packed, int32_t rank,
                                        int64_t *local_ends);

/* The position of dpar_packed_next in the runs of a rank. Begin with an all-zero cursor. */
typedef struct dpar_packed_cursor {
    int32_t doc;
    int64_t local;
} dpar_packed_cursor;

/* Advances to the next run of a rank, tokens [*first, *first + *count) of document *doc. Returns 1,
 * or 0 when there is none left. Costs O(1) for each run, and O(docs) over all. */
DPAR_API int dpar_packed_next(const dpar_packed *packed, int32_t rank, dpar_packed_cursor *cursor,
                              int32_t *doc, int64_t *first, int64_t *count);

/* Counts the query-key pairs of a rank under causal attention inside documents, which is its share
 * of the work. The result is at most 2^63 - 1. Costs O(runs), and O(docs) for CYCLIC. */
DPAR_API int64_t dpar_packed_pairs(const dpar_packed *packed, int32_t rank);

#endif
