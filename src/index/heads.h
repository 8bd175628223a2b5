/* SPDX-License-Identifier: MIT-0 */
/* heads - computes which parts of a transformer belong to each tensor, sequence or pipeline
 * parallel rank: attention heads, rows of fused weights, rows of the vocabulary, layers.
 *
 *     dpar_heads_init(&h, 64, 8, 16, DPAR_SPLIT_EVEN, &why);    64 queries in 8 groups on 16 ranks
 *     share = dpar_heads_local(&h, rank);                 4 queries and 1 group, held by 2 ranks
 */
#ifndef DPARI_INDEX_HEADS_H
#define DPARI_INDEX_HEADS_H

#include "split.h"

/* ---- attention heads ----
 *
 * Query heads share key-value heads in groups (grouped-query attention, GQA). One group is
 * multi-query attention (MQA), and as many groups as query heads is multi-head attention (MHA).
 */

/* The distribution of the heads of an attention layer, made by dpar_heads_init. */
typedef struct dpar_heads {
    int32_t queries; /* number of query heads */
    int32_t groups;  /* number of groups, which is the number of key-value heads; divides queries */
    int32_t ranks;   /* number of tensor-parallel ranks */
    /* DPAR_SPLIT_EVEN balances the shares. DPAR_SPLIT_CHUNK gives the last ranks less, as padding
     * does. DPAR_HEADS_DIVIDE requires equal shares. */
    int32_t rule;
} dpar_heads;
enum {
    DPAR_HEADS_DIVIDE = DPAR_SPLIT_RULE_COUNT
}; /* a rule: equal shares, or DPAR_E_DIVIDE as in Megatron */

/* Distributes heads over tensor-parallel ranks. If there are at least as many groups as ranks, the
 * rule splits the groups, together with their queries. If there are fewer, the ranks are split
 * among the groups, and each rank has a copy of its group's key-value head and a share of its
 * queries. The result is Megatron's wherever Megatron's sizes divide.
 *
 * Fails with DPAR_E_ARG, or DPAR_E_DIVIDE if `groups` does not divide `queries` or, with
 * DPAR_HEADS_DIVIDE, shares are not equal. Costs O(1).
 */
DPAR_API dpar_status dpar_heads_init(dpar_heads *heads, int32_t queries, int32_t groups,
                                     int32_t ranks, int32_t rule, dpar_why *why);

/* The heads that one rank has. */
typedef struct dpar_heads_share {
    int32_t first_query, queries; /* the first query head of the rank, and how many it has */
    int32_t first_group, groups;  /* the first key-value head of the rank, and how many it has */
    /* This rank is number `copy` of `copies` ranks that hold these groups. Copy 0 is primary: it
     * saves them, and the gradients of the other copies are added to its own. */
    int32_t copy, copies;
} dpar_heads_share;

/* Computes the heads that a rank has. All fields are 0 for a rank outside 0..ranks-1. A rank
 * without heads has queries 0; if there are at least as many groups as ranks, its groups and copies
 * are 0 too. Costs O(1).
 *
 * Programs that pad heads pad them to the most that any rank has. Rank 0 has the most groups and
 * the most queries, except that with fewer groups than ranks the first rank of the last group has
 * the most queries.
 */
DPAR_API dpar_heads_share dpar_heads_local(const dpar_heads *heads, int32_t rank);

/* The order of rows in the fused query-key-value weight. */
enum {
    DPAR_HEADS_QKV_BY_GROUP, /* queries, key and value of the first group, then those of the next
                          group, as in Megatron */
    DPAR_HEADS_QKV_BY_KIND   /* all queries, then all keys, then all values, as in Hugging Face and
                                vLLM */
};

/* Finds the n-th run of rows [rows[0], rows[1]) of the fused weight that a rank has. Returns 1, or
 * 0 past the last run.
 *
 * order:  DPAR_HEADS_QKV_BY_GROUP or DPAR_HEADS_QKV_BY_KIND.
 * width:  rows of a head.
 *
 * Runs are in ascending order and as long as possible; there are at most three. (For the fused gate
 * and up weight use DPAR_SPLIT_STRIDED with 2 pieces.) Costs O(1).
 */
DPAR_API int dpar_heads_rows(const dpar_heads *heads, int32_t rank, int32_t order, int64_t width,
                             int32_t n, int64_t rows[2]);

/* ---- vocabulary ---- */

/* A vocabulary whose rows are distributed over ranks, made by dpar_vocab_init. */
typedef struct dpar_vocab {
    int64_t count, added;         /* tokens of the model, and tokens added to it later */
    int64_t padded, padded_added; /* rows for each of the two, over all ranks */
    int32_t ranks;
} dpar_vocab;

/* Distributes a vocabulary over ranks. Rows are padded to whole multiples and cut into equal
 * shares. For Megatron, multiple is its divisor (128) x ranks. For vLLM, multiple is 64, applied
 * first to the model's tokens and then to all tokens together.
 *
 * Fails with DPAR_E_ARG, DPAR_E_RANGE, or DPAR_E_DIVIDE if shares are not equal. Costs O(1).
 */
DPAR_API dpar_status dpar_vocab_init(dpar_vocab *vocab, int64_t count, int64_t added,
                                     int64_t multiple, int32_t ranks, dpar_why *why);

/* Counts the rows of a rank: padded / ranks for the model's tokens, then padded_added / ranks for
 * added ones. Costs O(1). */
DPAR_API int64_t dpar_vocab_row_count(const dpar_vocab *vocab);

/* Finds the row at which a rank holds token `id`. Returns -1 if another rank holds it or there is
 * no such token; then look up row 0, set the result to zero, and sum over the ranks. Ids of added
 * tokens begin at `count`. Costs O(1). */
DPAR_API int64_t dpar_vocab_row(const dpar_vocab *vocab, int32_t rank, int64_t id);

/* Finds the token in a row of a rank. Returns -1 for padding. Costs O(1). */
DPAR_API int64_t dpar_vocab_id(const dpar_vocab *vocab, int32_t rank, int64_t row);

/* ---- layers over pipeline stages ---- */

/* A distribution of layers over pipeline stages. Zero it, then set the fields. */
typedef struct dpar_stage_layers_desc {
    int32_t layers, stages;
    int32_t chunks; /* runs of layers on a stage (interleaved schedules); 0 selects 1 */
    /* Layers of the first and of the last stage, over all chunks; 0 gives them as many as the
     * others. */
    int32_t first_layers, last_layers;
    int32_t embedding, loss; /* 1 counts it as a layer, before the first or after the last */
    /* 1 lets every second chunk run from the last stage to the first, so that stage 0 has both ends
     * of the model (V schedules). */
    int32_t v_shape;
} dpar_stage_layers_desc;

/* Computes the layers [*lo, *hi) of one chunk of a stage. Shares are equal; if they do not divide,
 * the first ones have one layer more. To cut by cost use dpar_split_balance. Fails with DPAR_E_ARG
 * or DPAR_E_DIVIDE. Costs O(1). */
DPAR_API dpar_status dpar_stage_layers(const dpar_stage_layers_desc *s, int32_t stage,
                                       int32_t chunk, int32_t *lo, int32_t *hi, dpar_why *why);

#endif
