/* SPDX-License-Identifier: MIT-0 */
/* heads - what tensor, sequence and pipeline parallel ranks have of a transformer: attention heads,
 * rows of fused weights, the vocabulary, layers. */
#ifndef DPARI_INDEX_HEADS_H
#define DPARI_INDEX_HEADS_H

#include "split.h"

/* ---- attention heads: grouped queries (GQA), one group (MQA), as many groups as heads (MHA) ----
 */

typedef struct dpar_heads {
    int32_t queries; /* query heads */
    int32_t groups;  /* key-value heads; a multiple of queries share each */
    int32_t ranks;   /* tensor parallel */
    int32_t rule; /* DPAR_EVEN: balanced; DPAR_CHUNK: the last ranks have less (what padding is) */
} dpar_heads;
enum { DPAR_HEADS_DIVIDE = DPAR_SPLITS }; /* a rule: equal shares or none, as Megatron */

/* At least as many groups as ranks: groups are split by the rule, their queries with them. Fewer:
 * ranks are split among the groups, each rank has a copy of its group's key-value head and a share
 * of its queries. Where Megatron's divisibility holds, this is Megatron's; where it does not,
 * DPAR_HEADS_DIVIDE is E_DIVIDE with a sentence; by the other rules only groups must divide
 * queries. E_ARG. O(1). */
DPAR_API dpar_status dpar_heads_init(dpar_heads *h, int32_t queries, int32_t groups, int32_t ranks,
                                     int32_t rule, dpar_why *why);

typedef struct dpar_heads_share {
    int32_t query, queries; /* the first query head of a rank, and how many */
    int32_t group, groups;  /* the first key-value head, and how many */
    int32_t copy, copies;   /* which of how many ranks that hold these groups. Copy 0 is primary: it
                               saves them; gradients of the others are added to its */
} dpar_heads_share;
/* All zero for a rank outside. One without heads has queries 0; with no fewer groups than ranks
 * groups and copies 0, too. The most of any rank, what
 * the others are padded to: rank 0 has the most groups, and the most queries but for fewer groups
 * than ranks, where the first rank of the last group has them. O(1). */
DPAR_API dpar_heads_share dpar_heads_local(const dpar_heads *h, int32_t rank);

/* Rows of the fused query-key-value weight that a rank has. */
enum {
    DPAR_QKV_BY_GROUP, /* each group's queries, key, value, then the next group's: Megatron */
    DPAR_QKV_BY_KIND   /* all queries, all keys, all values: Hugging Face, vLLM */
};
/* The n-th run of rows [rows[0], rows[1]), in order and as long as they are; 0 past the last (at
 * most three). `width`: rows of a head. The fused gate and up weight is DPAR_STRIDED with 2 pieces.
 * O(1). */
DPAR_API int dpar_heads_rows(const dpar_heads *h, int32_t rank, int32_t order, int64_t width,
                             int32_t n, int64_t rows[2]);

/* ---- vocabulary ---- */

typedef struct dpar_vocab {
    int64_t count, added;         /* tokens of the model, and tokens added to it later */
    int64_t padded, padded_added; /* rows for each, in all ranks */
    int32_t ranks;
} dpar_vocab;
/* Rows are padded to whole multiples. Megatron: multiple = divisor (128) x ranks. vLLM: multiple
 * 64, the model's tokens and then all together. Each part is cut into equal shares: E_DIVIDE when
 * they are not; E_ARG, E_RANGE. O(1). */
DPAR_API dpar_status dpar_vocab_init(dpar_vocab *v, int64_t count, int64_t added, int64_t multiple,
                                     int32_t ranks, dpar_why *why);
/* Rows of a rank: padded / ranks for tokens of the model, then padded_added / ranks for added ones.
 * O(1). */
DPAR_API int64_t dpar_vocab_rows(const dpar_vocab *v);
/* The row at which a rank holds token `id`; -1 when it does not (look up row 0 and zero the result,
 * then sum over ranks), also for ids that do not exist. Added ids begin at `count`. O(1). */
DPAR_API int64_t dpar_vocab_row(const dpar_vocab *v, int32_t rank, int64_t id);
/* The token in that row; -1 for padding. O(1). */
DPAR_API int64_t dpar_vocab_id(const dpar_vocab *v, int32_t rank, int64_t row);

/* ---- layers over pipeline stages ---- */

/* Zero it and fill it in. */
typedef struct dpar_stages {
    int32_t layers, stages;
    int32_t chunks;          /* of layers on a stage, interleaved; 0: 1 */
    int32_t first, last;     /* layers of the first and last stage, all chunks; 0: as the others */
    int32_t embedding, loss; /* 1: counts as a layer, before the first one and after the last */
    int32_t turns; /* 1: every second chunk runs back (V schedules): stage 0 has the ends */
} dpar_stages;
/* Layers [*lo, *hi) of one chunk of a stage: equal shares, the first ones longer by one where they
 * do not divide. By cost: dpar_split_balance. E_ARG, E_DIVIDE with a sentence. O(1). */
DPAR_API dpar_status dpar_stage_layers(const dpar_stages *s, int32_t stage, int32_t chunk,
                                       int32_t *lo, int32_t *hi, dpar_why *why);

#endif
