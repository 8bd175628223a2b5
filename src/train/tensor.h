/* SPDX-License-Identifier: MIT-0 */
/* tensor - tensor parallelism: layers whose weights are cut over the ranks of a communicator,
 * forward and backward. Each gives what one rank with the whole weights would give, to rounding.
 * heads.h says which heads, rows and tokens a rank has; random.h has random numbers that do not
 * depend on who draws them.
 *
 *     dpar_tensor_parallel t;                                     what the layers of a group share
 *     dpar_tensor_parallel_init(&t, c, DPAR_F32, tokens, counts, &why);
 *     up.kind = DPAR_LINEAR_COLUMN;   up.in = 512;    up.out = 2048 / c->size;
 *     down.kind = DPAR_LINEAR_ROW;    down.in = 2048 / c->size;   down.out = 512;
 *     dpar_linear_forward(&t, &up, &a);                  nothing travels
 *     ... the activation, on a.y ...
 *     dpar_linear_forward(&t, &down, &b);                one all-reduce
 *     dpar_linear_backward(&t, &down, &b);               nothing travels
 *     dpar_linear_backward(&t, &up, &a);                 one all-reduce, under the weight gradient
 *
 * All is row-major: a token is a row. Types are F64 and F32. Every function is COLLECTIVE over the
 * communicator unless it says that it is local. What is wrong on one rank (E_ARG) breaks the
 * communicator, so that the others hear of it; the sentence is in comm->why. A t that is NULL or
 * all zero (init refused) is E_ARG for the caller alone.
 *
 * With counts (sequence parallel) each rank has its own tokens outside of such a pair: column
 * layers gather them, row layers scatter them, the other way round in backward. As many bytes
 * travel, and activations between the pairs are cut by the ranks; any number of tokens will do.
 * There a rank computes the gradients of norms' weights of its own tokens alone: sum them over the
 * ranks once a step.
 *
 * Arrays lie in the memory of the communicator (comm->mem). Where that is a device's, give
 * `matmul`. ids, targets and sums then lie where host and device reach them (page-locked). Nothing
 * waits for the device. */
#ifndef DPARI_TRAIN_TENSOR_H
#define DPARI_TRAIN_TENSOR_H

#include "../comm/comm.h"

#include "layers.h"
#include "../index/heads.h"
#include "../index/split.h"

/* ---- products of matrices ---- */

/* A product of matrices: c = alpha op(a) op(b) + beta c; op(a) is m x k, op(b) k x n. With beta 0 c
 * is not read. */
typedef struct dpar_matmul {
    int32_t type;                     /* DPAR_F64 or DPAR_F32: of a, b and c */
    int32_t transpose_a, transpose_b; /* 1: it lies in memory as k x m, n x k */
    int32_t room;                     /* 0 */
    int64_t m, n, k;                  /* may be 0: c becomes beta c */
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc; /* elements from row to row, at least 1 */
} dpar_matmul;
/* Your product: cblas_sgemm, cuBLAS, ... An error that it returns breaks the communicator. */
typedef dpar_status (*dpar_matmul_kernel)(void *user, const dpar_matmul *call);
/* The product that layers use when they are given none: plain C, sums in f64, rounded once. E_ARG,
 * without a sentence, for other types and a size below 0. Local. O(m n k). */
DPAR_API dpar_status dpar_matmul_host(void *user, const dpar_matmul *call);

/* ---- what layers share ---- */

/* What the layers of a group share. dpar_tensor_parallel_init fills it in. */
typedef struct dpar_tensor_parallel {
    dpar_comm *comm;
    int32_t type;      /* DPAR_F64 or DPAR_F32 */
    dpar_split tokens; /* all tokens of a step. Sequence parallel: which of them a rank has, one run
                          after the other (CHUNK, EVEN, FLOOR, RAGGED) */
    int64_t *counts;   /* sequence parallel: comm->size numbers for dpar, which nobody else touches
                          while a function runs; else NULL */
    dpar_matmul_kernel matmul; /* NULL: dpar_matmul_host */
    void *user;
} dpar_tensor_parallel;
/* Fills in what layers share: tokens by DPAR_SPLIT_EVEN. For a step of other tokens:
 * dpar_split_resize(&t->tokens, n). E_ARG with a sentence. Local. O(1). */
DPAR_API dpar_status dpar_tensor_parallel_init(dpar_tensor_parallel *t, dpar_comm *c, int32_t type,
                                               int64_t tokens, int64_t *counts, dpar_why *why);
/* ---- linear layers: y = x w^T + bias ---- */

enum {
    DPAR_LINEAR_COLUMN = 1, /* each rank has some of the outputs: x is whole */
    DPAR_LINEAR_ROW /* each rank has some of the inputs: y is the sum of all ranks' products */
};
/* A linear layer: y = x w^T + bias. The weight is w[out][in], as torch has it. A rank of a column
 * layer has whole rows of it, a rank of a row layer a piece of each row. Shares may differ from
 * rank to rank, and be 0. */
typedef struct dpar_linear {
    int32_t kind;
    int32_t room;    /* 0 */
    int64_t in, out; /* of this rank's weight */
} dpar_linear;

/* The arrays of a linear layer. n is all tokens. own is the rank's share of them
 * (dpar_split_part_count of t->tokens), or n where not sequence parallel. */
typedef struct dpar_linear_arrays {
    const void *w;    /* [out][in] */
    const void *bias; /* [out]; NULL: none. A row layer's is the same on all ranks */
    const void *x;    /* column: [own][in]; row: [n][in] */
    void *y;          /* column: [n][out]; row: [own][out] */
    const void *dy;   /* as y */
    void *dx;         /* as x; NULL: not wanted (the first layer, or only weights) */
    void *dw;         /* as w; NULL: not wanted (only inputs: zero-bubble schedules) */
    void *dbias;      /* [out]; NULL: not wanted. A row layer's is whole on every rank */
    void *whole;      /* sequence parallel: column: [n][in], the inputs of all;
                         row: [n][out], forward the part of y, backward the dy of all */
    void *whole_dx;   /* sequence parallel, column, backward: [n][in], the part of dx */
    /* 1: `whole` already has what would be gathered. Column: since forward, or from another layer
     * that reads the same x. Row, backward: the call for dx left it there for a later call for
     * dw. */
    int32_t kept;
    int32_t add;    /* 1: dw and dbias are added to (micro-batches) */
    int32_t add_dx; /* column: 1: dx (sequence parallel: whole_dx) has the parts of layers that read
                       the same x */
    int32_t open;   /* and 1: others follow, no collective yet */
} dpar_linear_arrays;

/* y of a layer. Column: nothing travels, or with sequence parallel an all-gather of n in. Row: an
 * all-reduce of n out, or a reduce-scatter. The bias is added last, once. E_ARG as the top of this
 * file says, else errors of matmul and as comm.h. 2 n in out of arithmetic. */
DPAR_API dpar_status dpar_linear_forward(const dpar_tensor_parallel *t, const dpar_linear *layer,
                                         const dpar_linear_arrays *a);
/* dx = dy w, dw = dy^T x, dbias = sum of dy. Column: an all-reduce of n in while dw is computed.
 * Sequence parallel: an all-gather (unless kept) while dx is, and a reduce-scatter while dw is.
 * Row: nothing, or an all-gather of n out (unless kept). With dpar_comm_progress it all moves on
 * meanwhile. Errors as forward. With dx and dw twice its arithmetic. */
DPAR_API dpar_status dpar_linear_backward(const dpar_tensor_parallel *t, const dpar_linear *layer,
                                          const dpar_linear_arrays *a);

/* A column layer's y has some of the features, a row layer's x too. A layer between that wants all
 * of them gets them by dpar_redistribute, from features that are cut to features that all have;
 * it gives the gradient its own again by the opposite (move.h). */

/* ---- vocabulary ---- */

/* An embedding: y[token] = table[id of the token]. */
typedef struct dpar_embedding {
    /* heads.h says which of the table's rows a rank has: dpar_vocab_row_count */
    dpar_vocab vocab;
    int64_t width;
} dpar_embedding;
typedef struct dpar_embedding_arrays {
    const int32_t *ids; /* [n] of all tokens, the same on all ranks */
    const void *table;  /* [rows][width]. Forward reads */
    void *y;            /* [own][width]. Forward writes */
    const void *dy;     /* [own][width]. Backward reads, */
    void *dtable;       /* [rows][width]: writes; rows without a token and padding become 0 */
    void *whole;        /* sequence parallel: [n][width]; else NULL */
    int32_t add;        /* 1: dtable is added to (micro-batches) */
    int32_t room;       /* 0 */
} dpar_embedding_arrays;
/* A rank looks up what it has, and the sum over ranks is y: an all-reduce of n width, or a
 * reduce-scatter. The same bits on any number of ranks. E_ARG: an id that does not exist.
 * E_MISMATCH: ranks give another vocabulary or other ids, found as by dpar_cross_entropy_forward.
 * O(n width). */
DPAR_API dpar_status dpar_embedding_forward(const dpar_tensor_parallel *t,
                                            const dpar_embedding *layer,
                                            const dpar_embedding_arrays *a);
/* dtable[row] = the sum of dy over its tokens, in their order. Nothing travels, or with sequence
 * parallel an all-gather of n width into `whole`. The same bits on any number of ranks. E_ARG as
 * forward. O((n + rows) width). */
DPAR_API dpar_status dpar_embedding_backward(const dpar_tensor_parallel *t,
                                             const dpar_embedding *layer,
                                             const dpar_embedding_arrays *a);

/* Cross-entropy over a vocabulary that ranks share. With lse = ln of the sum over the whole
 * vocabulary of exp(logit) and V = count + added tokens:
 *
 *     loss = lse - (1 - smoothing) logit[target] - smoothing / V (sum of all logits) + z lse^2
 *
 * Smoothing is torch's (Megatron's e is e V / (V - 1) here), z-loss PaLM's (1e-4). */
typedef struct dpar_cross_entropy {
    /* rows of padding do not count: they are not read, and their gradient is 0 */
    dpar_vocab vocab;
    double smoothing; /* 0 .. 1 */
    double z;
    int32_t ignore; /* 1 + a token that does not count as a target; 0: none. Targets below 0
                       (torch's -100) never count. Loss and gradient of both are 0 */
    int32_t room;   /* 0 */
} dpar_cross_entropy;
typedef struct dpar_cross_entropy_arrays {
    void *logits; /* [n][dpar_vocab_row_count] of all tokens, on sequence parallel ranks too.
                     Forward reads them, backward makes gradients of them */
    const int32_t *targets;      /* [n] token ids, the same on all ranks */
    double *lse;                 /* [n]. Forward writes, backward reads */
    double *loss;                /* [n]. Forward writes, z-loss included; NULL: not wanted */
    dpar_cross_entropy_sum *sum; /* sum over tokens; NULL: not wanted */
    void *scratch;               /* [3 n (ranks + 1)] of type, for forward */
} dpar_cross_entropy_arrays;
/* Losses of the tokens, over a vocabulary that ranks share. One all-gather of three numbers a
 * token: the largest logit of the rank, the sum of exponentials relative to it, its part of the
 * target's share: 12 bytes (f64: 24). From these the ranks compute the same bits. Sums over the
 * vocabulary are in f64. Loss and sum are equal on all ranks: add them up over data parallel ones
 * only. O(n rows).
 *
 * E_ARG: a target that does not exist. E_MISMATCH: ranks give another vocabulary, targets, ignore,
 * smoothing or z, on engines that compare calls (shared memory, MPI with check). */
DPAR_API dpar_status dpar_cross_entropy_forward(const dpar_tensor_parallel *t,
                                                const dpar_cross_entropy *e,
                                                const dpar_cross_entropy_arrays *a);
/* The logits become scale times the gradient of the sum of losses. For their mean scale = 1 /
 * tokens of all ranks. Local. Errors as forward. O(n rows). */
DPAR_API dpar_status dpar_cross_entropy_backward(const dpar_tensor_parallel *t,
                                                 const dpar_cross_entropy *e,
                                                 const dpar_cross_entropy_arrays *a, double scale);

/* ---- attention heads ---- */

/* Attention needs no function of its own: a column layer of the fused weight's rows that
 * dpar_heads_rows names, attention over the rank's heads, a row layer.
 *
 * But where there are fewer key-value heads than ranks, several ranks hold the same one, and each
 * sees the gradient of its own queries only. With share = dpar_heads_local(&heads, c->rank),
 *
 *     dpar_comm_split(c, share.group, c->rank, &same);
 *
 * on all ranks makes a communicator of those that have the same one. They sum their gradients of
 * keys and values once a step, after the last micro-batch. dw is [(queries + 2) width][in], queries
 * first. Sum 2 width in elements of it from share.queries width in on, and the last 2 width of its
 * dbias. */

#endif
