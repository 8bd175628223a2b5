/* SPDX-License-Identifier: MIT-0 */
/* heads - what tensor, sequence and pipeline parallel ranks have of a transformer: attention heads,
 * rows of fused weights, the vocabulary, layers.
 *
 *     dpar_heads_init(&h, 64, 8, 16, DPAR_SPLIT_EVEN, &why);    64 queries in 8 groups on 16 ranks
 *     share = dpar_heads_local(&h, rank);                 4 queries, 1 group, held twice */
#ifndef DPARI_INDEX_HEADS_H
#define DPARI_INDEX_HEADS_H

#include "split.h"

/* ---- attention heads ----
 *
 * Grouped queries (GQA); one group is MQA, as many groups as heads MHA. */

/* How the heads of an attention layer are cut. dpar_heads_init makes it. */
typedef struct dpar_heads {
    int32_t queries; /* query heads */
    int32_t groups;  /* key-value heads; must divide queries */
    int32_t ranks;   /* tensor parallel */
    int32_t rule; /* DPAR_SPLIT_EVEN: balanced; DPAR_SPLIT_CHUNK: the last ranks have less, as with
                     padding */
} dpar_heads;
enum {
    DPAR_HEADS_DIVIDE = DPAR_SPLIT_RULE_COUNT
}; /* a rule: equal shares or E_DIVIDE, as Megatron */

/* Heads over tensor-parallel ranks. With at least as many groups as ranks the rule splits the
 * groups, and their queries go with them. With fewer, the ranks are split among the groups: each
 * has a copy of its group's key-value head and a share of its queries. Where Megatron's sizes
 * divide, this is Megatron's answer.
 *
 * E_DIVIDE with a sentence: groups do not divide queries, or with DPAR_HEADS_DIVIDE shares are not
 * equal. E_ARG. O(1). */
DPAR_API dpar_status dpar_heads_init(dpar_heads *h, int32_t queries, int32_t groups, int32_t ranks,
                                     int32_t rule, dpar_why *why);

/* What one rank has of the heads. */
typedef struct dpar_heads_share {
    int32_t query, queries; /* the first query head of a rank, and how many */
    int32_t group, groups;  /* the first key-value head, and how many */
    int32_t copy, copies;   /* which of how many ranks that hold these groups. Copy 0 is primary: it
                               saves them, and the others' gradients are added to its own */
} dpar_heads_share;
/* What a rank has of the heads: all zero for a rank outside. A rank without heads has queries 0;
 * with at least as many groups as ranks its groups and copies are 0 too. O(1).
 *
 * The others are padded to the most of any rank. Rank 0 has the most groups, and the most queries.
 * With fewer groups than ranks the first rank of the last group has the most queries. */
DPAR_API dpar_heads_share dpar_heads_local(const dpar_heads *h, int32_t rank);

/* Rows of the fused query-key-value weight that a rank has. */
enum {
    DPAR_HEADS_QKV_BY_GROUP, /* each group's queries, key, value, then the next group's: Megatron */
    DPAR_HEADS_QKV_BY_KIND   /* all queries, all keys, all values: Hugging Face, vLLM */
};
/* The n-th run of rows [rows[0], rows[1]) of a rank, in order, each as long as it can be. 0 past
 * the last; there are at most three. `width`: rows of a head. (The fused gate and up weight is
 * DPAR_SPLIT_STRIDED with 2 pieces.) O(1). */
DPAR_API int dpar_heads_rows(const dpar_heads *h, int32_t rank, int32_t order, int64_t width,
                             int32_t n, int64_t rows[2]);

/* ---- vocabulary ---- */

/* A vocabulary whose rows ranks share. dpar_vocab_init makes it. */
typedef struct dpar_vocab {
    int64_t count, added;         /* tokens of the model; tokens added to it later */
    int64_t padded, padded_added; /* rows for each, over all ranks */
    int32_t ranks;
} dpar_vocab;
/* A vocabulary over ranks: rows are padded to whole multiples and cut into equal shares. Megatron:
 * multiple = divisor (128) x ranks. vLLM: multiple 64, first for the model's tokens, then for all
 * together. E_DIVIDE: shares are not equal. E_ARG, E_RANGE. O(1). */
DPAR_API dpar_status dpar_vocab_init(dpar_vocab *v, int64_t count, int64_t added, int64_t multiple,
                                     int32_t ranks, dpar_why *why);
/* Rows of a rank: padded / ranks for the model's tokens, then padded_added / ranks for added ones.
 * O(1). */
DPAR_API int64_t dpar_vocab_row_count(const dpar_vocab *v);
/* The row at which a rank holds token `id`; added ids begin at `count`. -1: another rank holds it,
 * or there is no such token. Then look up row 0, zero the result, and sum over the ranks. O(1). */
DPAR_API int64_t dpar_vocab_row(const dpar_vocab *v, int32_t rank, int64_t id);
/* The token in that row; -1 for padding. O(1). */
DPAR_API int64_t dpar_vocab_id(const dpar_vocab *v, int32_t rank, int64_t row);

/* ---- layers over pipeline stages ---- */

/* How layers are cut into stages. Zero it and fill it in. */
typedef struct dpar_stage_layers_desc {
    int32_t layers, stages;
    int32_t chunks; /* runs of layers on a stage (interleaved schedules); 0: 1 */
    /* layers of the first and of the last stage, all chunks; 0: as the others */
    int32_t first, last;
    int32_t embedding, loss; /* 1: counts as a layer, before the first and after the last */
    int32_t turns; /* 1: V schedules: every second chunk runs backwards, so that stage 0 has both
                      ends */
} dpar_stage_layers_desc;
/* Layers [*lo, *hi) of one chunk of a stage: equal shares; where they do not divide, the first ones
 * have one layer more. dpar_split_balance cuts by cost. E_ARG, E_DIVIDE with a sentence. O(1). */
DPAR_API dpar_status dpar_stage_layers(const dpar_stage_layers_desc *s, int32_t stage,
                                       int32_t chunk, int32_t *lo, int32_t *hi, dpar_why *why);

#endif
