/* SPDX-License-Identifier: MIT-0 */
/* tensor - runs layers whose weights are cut over the ranks of a communicator (tensor parallelism),
 * forward and backward. Each gives what one rank with the whole weights would give, up to rounding.
 * heads.h says which heads, vocabulary rows and tokens a rank has. random.h has random numbers that
 * do not depend on who draws them.
 *
 *     dpar_tensor_parallel t;                                     what the layers of a group share
 *     dpar_tensor_parallel_init(&t, c, DPAR_F32, tokens, counts, &why);
 *     up.kind = DPAR_LINEAR_COLUMN;   up.in = 512;    up.out = 2048 / c->size;
 *     down.kind = DPAR_LINEAR_ROW;    down.in = 2048 / c->size;   down.out = 512;
 *     dpar_linear_forward(&t, &up, &a);                  no communication
 *     ... the activation, on a.y ...
 *     dpar_linear_forward(&t, &down, &b);                one all-reduce
 *     dpar_linear_backward(&t, &down, &b);               no communication
 *     dpar_linear_backward(&t, &up, &a);                 one all-reduce, during the weight gradient
 *
 * All matrices are row-major, and each token is a row. Types are F64 and F32. Every function is
 * collective over the communicator unless its comment says that it is local. If an argument is
 * wrong on one rank, that rank gets DPAR_E_ARG and the communicator breaks, so that the other ranks
 * notice; the message is in comm->why. If t is NULL or all zero, because init failed, only the
 * caller gets DPAR_E_ARG.
 *
 * Sequence parallelism. If `counts` is given, each rank has only its own tokens outside of such a
 * pair of layers. Column layers gather the tokens and row layers scatter them; backward does the
 * opposite. The traffic is the same as without, and the activations between the pairs are smaller
 * by the number of ranks. Any number of tokens is allowed. A rank then computes the gradients of
 * the norms' weights from its own tokens only, so sum these gradients over the ranks once a step.
 *
 * Arrays are in the memory of the communicator (comm->mem). If that is a device's, set `matmul`,
 * and put ids, targets and sums where both host and device reach them (page-locked). No function
 * waits for the device. */
#ifndef DPARI_TRAIN_TENSOR_H
#define DPARI_TRAIN_TENSOR_H

#include "../comm/comm.h"

#include "layers.h"
#include "../index/heads.h"
#include "../index/split.h"

/* ---- products of matrices ---- */

/* Describes a product of matrices: c = alpha op(a) op(b) + beta c, where op(a) is m x k and op(b)
 * is k x n. If beta is 0, c is not read. */
typedef struct dpar_matmul {
    int32_t type;                     /* of a, b and c: DPAR_F64 or DPAR_F32 */
    int32_t transpose_a, transpose_b; /* 1 if a is stored as k x m, or b as n x k */
    int32_t reserved;                 /* 0 */
    int64_t m, n, k;                  /* 0 or more; if k is 0, c becomes beta c */
    double alpha, beta;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc; /* elements from one row to the next, at least 1 */
} dpar_matmul;
/* Computes a product of matrices: a callback of yours that calls cblas_sgemm, cuBLAS or another
 * library. An error that it returns breaks the communicator. */
typedef dpar_status (*dpar_matmul_kernel)(void *user, const dpar_matmul *call);
/* Computes a product of matrices in plain C, with sums in f64 that are rounded once. Layers use it
 * if they have no other `matmul`. Local. O(m n k). Fails with DPAR_E_ARG, without a message, for
 * other types and sizes below 0. */
DPAR_API dpar_status dpar_matmul_host(void *user, const dpar_matmul *call);

/* ---- what layers share ---- */

/* What the layers of a group share. dpar_tensor_parallel_init fills it in. */
typedef struct dpar_tensor_parallel {
    dpar_comm *comm;
    int32_t type; /* of all arrays: DPAR_F64 or DPAR_F32 */
    /* All tokens of a step. With sequence parallelism, part r is the range of tokens of rank r
     * (CHUNK, EVEN, FLOOR or RAGGED). */
    dpar_split tokens;
    int64_t *counts; /* sequence parallelism: comm->size numbers for dpar, which you must not touch
                        while a function runs; otherwise NULL */
    dpar_matmul_kernel matmul; /* NULL selects dpar_matmul_host */
    void *user;                /* passed to matmul */
} dpar_tensor_parallel;
/* Fills in what the layers of a group share.
 *
 * tokens: number of all tokens of a step, which are split by DPAR_SPLIT_EVEN. If another step has
 *         n tokens, call dpar_split_init(&tp->tokens, DPAR_SPLIT_EVEN, n, tp->tokens.parts, 0,
 * NULL). counts: comm->size numbers that select sequence parallelism, or NULL.
 *
 * Local. O(1). Fails with DPAR_E_ARG. */
DPAR_API dpar_status dpar_tensor_parallel_init(dpar_tensor_parallel *tp, dpar_comm *comm,
                                               int32_t type, int64_t tokens, int64_t *counts,
                                               dpar_why *why);
/* ---- linear layers: y = x w^T + bias ---- */

/* Kinds of linear layers. */
enum {
    DPAR_LINEAR_COLUMN = 1, /* each rank has some of the outputs; x is whole */
    DPAR_LINEAR_ROW /* each rank has some of the inputs; y is the sum of all ranks' products */
};
/* Describes a linear layer, y = x w^T + bias, with the weight w[out][in] as in PyTorch. A rank of a
 * column layer has whole rows of it, and a rank of a row layer has a piece of each row. Shares may
 * differ from rank to rank, and may be 0. */
typedef struct dpar_linear {
    int32_t kind;     /* DPAR_LINEAR_COLUMN or DPAR_LINEAR_ROW */
    int32_t reserved; /* 0 */
    int64_t in, out;  /* of this rank's weight */
} dpar_linear;

/* Arrays of a linear layer. n is the number of all tokens. With sequence parallelism, own is the
 * number of this rank's tokens (dpar_split_part_count of t->tokens); otherwise it is n. */
typedef struct dpar_linear_arrays {
    const void *w;    /* [out][in] */
    const void *bias; /* [out], or NULL if there is none; for a row layer the same on all ranks */
    const void *x;    /* column: [own][in]; row: [n][in] */
    void *y;          /* column: [n][out]; row: [own][out] */
    const void *dy;   /* as y */
    void *dx;         /* as x; NULL if not wanted (first layer, or a call for weights only) */
    void *dw;         /* as w; NULL if not wanted (a call for inputs only, as in zero-bubble
                         schedules) */
    void *dbias;      /* [out]; NULL if not wanted; for a row layer it is whole on every rank */
    /* Sequence parallelism. Column: [n][in], the inputs of all tokens. Row: [n][out], in forward
     * this rank's part of y, in backward the dy of all tokens. */
    void *gathered;
    void *gathered_dx; /* sequence parallelism, column, backward: [n][in], this rank's part of dx */
    /* 1 if `gathered` already contains what would be gathered. Column: from forward, or from
     * another layer that reads the same x. Row: backward for dx left it there for a later call for
     * dw. */
    int32_t reuse_gathered;
    int32_t accumulate;    /* 1 adds to dw and dbias (micro-batches) */
    int32_t accumulate_dx; /* column: 1 if dx (sequence parallelism: gathered_dx) already contains
                              the parts of layers that read the same x, and this one is added */
    int32_t defer_reduce; /* column: 1 if more layers with the same x follow, so that the collective
                             waits for the last of them */
} dpar_linear_arrays;

/* Computes the output y of a linear layer. The bias is added last, once.
 *
 * Collective. A column layer communicates only with sequence parallelism: an all-gather of n in
 * elements. A row layer costs an all-reduce of n out elements, or a reduce-scatter with sequence
 * parallelism. The arithmetic is 2 n in out. Fails with DPAR_E_ARG as described at the top of this
 * file, with the errors of matmul, and with those of comm.h. */
DPAR_API dpar_status dpar_linear_forward(const dpar_tensor_parallel *tp, const dpar_linear *layer,
                                         const dpar_linear_arrays *arrays);
/* Computes the gradients of a linear layer: dx = dy w, dw = dy^T x, and dbias = the sum of dy.
 *
 * Collective. A column layer costs an all-reduce of n in elements while dw is computed. With
 * sequence parallelism it is an all-gather (unless reuse_gathered) while dx is computed, and a
 * reduce-scatter while dw is computed. A row layer communicates only with sequence parallelism: an
 * all-gather of n out elements (unless reuse_gathered). With dpar_comm_progress this overlaps
 * completely. With dx and dw the arithmetic is twice that of dpar_linear_forward. Fails as
 * dpar_linear_forward does. */
DPAR_API dpar_status dpar_linear_backward(const dpar_tensor_parallel *tp, const dpar_linear *layer,
                                          const dpar_linear_arrays *arrays);

/* The y of a column layer, and the x of a row layer, have only some of the features. If a layer
 * between them needs all features, dpar_redistribute (move.h) makes the cut features whole on every
 * rank, and the opposite dpar_redistribute cuts its gradient. */

/* ---- vocabulary ---- */

/* Describes an embedding: y[token] = table[id of the token]. */
typedef struct dpar_embedding {
    dpar_vocab vocab; /* heads.h: this rank has dpar_vocab_row_count rows of the table */
    int64_t width;    /* elements of a row */
} dpar_embedding;
/* Arrays of an embedding. n, own and rows are as above: all tokens, this rank's tokens, and this
 * rank's rows of the table. */
typedef struct dpar_embedding_arrays {
    const int32_t *ids; /* [n] of all tokens, the same on all ranks */
    const void *table;  /* [rows][width]; forward reads it */
    void *y;            /* [own][width]; forward writes it */
    const void *dy;     /* [own][width]; backward reads it */
    void *dtable;   /* [rows][width]; backward writes it, with 0 for rows without a token and for
                       padding */
    void *gathered; /* sequence parallelism: [n][width]; otherwise NULL */
    int32_t accumulate; /* 1 adds to dtable (micro-batches) */
    int32_t reserved;   /* 0 */
} dpar_embedding_arrays;
/* Computes the output y of an embedding. Each rank looks up the rows that it has, and y is the sum
 * over the ranks, which has the same bits on any number of ranks.
 *
 * Collective. Costs an all-reduce of n width elements, or a reduce-scatter with sequence
 * parallelism, and O(n width). Fails with DPAR_E_ARG if an id does not exist. Fails with
 * DPAR_E_MISMATCH if ranks give different vocabularies or ids, which is noticed by the engines that
 * dpar_cross_entropy_forward names. */
DPAR_API dpar_status dpar_embedding_forward(const dpar_tensor_parallel *tp,
                                            const dpar_embedding *layer,
                                            const dpar_embedding_arrays *a);
/* Computes the gradient of an embedding's table: dtable[row] is the sum of dy over the tokens of
 * that row, in their order. It has the same bits on any number of ranks.
 *
 * Collective. Communicates only with sequence parallelism: an all-gather of n width elements into
 * `gathered`. O((n + rows) width). Fails with DPAR_E_ARG as dpar_embedding_forward does. */
DPAR_API dpar_status dpar_embedding_backward(const dpar_tensor_parallel *tp,
                                             const dpar_embedding *layer,
                                             const dpar_embedding_arrays *a);

/* Describes a cross-entropy over a vocabulary that ranks share. With lse = ln of the sum over the
 * whole vocabulary of exp(logit) and V = count + added tokens:
 *
 *     loss = lse - (1 - smoothing) logit[target] - smoothing / V (sum of all logits) + z_loss lse^2
 *
 * Smoothing is that of PyTorch (Megatron's e corresponds to e V / (V - 1) here). The z-loss is that
 * of PaLM, where z_loss is 1e-4. */
typedef struct dpar_cross_entropy {
    dpar_vocab vocab; /* rows of padding are ignored: their logits are not read, and their gradient
                         is 0 */
    double smoothing; /* 0 .. 1 */
    double z_loss;
    int32_t ignore;   /* 1 + a token that is not counted as a target; 0 if there is none. Targets
                         below 0, such as PyTorch's -100, are never counted. The loss and gradient
                         of targets that are not counted are 0 */
    int32_t reserved; /* 0 */
} dpar_cross_entropy;
/* Arrays of a cross-entropy. n is the number of all tokens, also with sequence parallelism. */
typedef struct dpar_cross_entropy_arrays {
    void *logits;                /* [n][dpar_vocab_row_count]; forward reads them, backward replaces
                                    them by their gradients */
    const int32_t *targets;      /* [n] token ids, the same on all ranks */
    double *lse;                 /* [n]; forward writes it, backward reads it */
    double *loss;                /* [n]; forward writes it, z-loss included; NULL if not wanted */
    dpar_cross_entropy_sum *sum; /* sums over the tokens; NULL if not wanted */
    void *scratch;               /* [3 n (ranks + 1)] of type, for forward */
} dpar_cross_entropy_arrays;
/* Computes the losses of the tokens over a vocabulary that ranks share. Losses and sum are equal on
 * all ranks, bit by bit, so add them up over data-parallel ranks only.
 *
 * Collective. Costs O(n rows) and one all-gather of three numbers for each token, 12 bytes (f64:
 * 24). These are the largest logit of the rank, the sum of exponentials relative to it, and the
 * rank's part of the target's share. Sums over the vocabulary are in f64.
 *
 * Fails with DPAR_E_ARG if a target does not exist. Fails with DPAR_E_MISMATCH if ranks give a
 * different vocabulary, targets, ignore, smoothing or z_loss, on engines that compare calls: shared
 * memory, and MPI with check. */
DPAR_API dpar_status dpar_cross_entropy_forward(const dpar_tensor_parallel *tp,
                                                const dpar_cross_entropy *e,
                                                const dpar_cross_entropy_arrays *a);
/* Replaces the logits by `scale` times the gradient of the sum of the losses. For the gradient of
 * the mean, scale is 1 / the tokens of all data-parallel ranks. Local. O(n rows). Fails as
 * dpar_cross_entropy_forward does. */
DPAR_API dpar_status dpar_cross_entropy_backward(const dpar_tensor_parallel *tp,
                                                 const dpar_cross_entropy *e,
                                                 const dpar_cross_entropy_arrays *a, double scale);

/* ---- attention heads ---- */

/* Attention needs no function of its own. Use a column layer with the rows of the fused weight that
 * dpar_heads_rows names, then attention over the rank's heads, then a row layer.
 *
 * If there are fewer key-value heads than ranks, several ranks hold the same one, and each computes
 * only the gradient from its own queries. With share = dpar_heads_local(&heads, c->rank),
 *
 *     dpar_comm_split(c, share.first_group, c->rank, &same);
 *
 * on all ranks makes a communicator of the ranks that hold the same key-value head. They have to
 * sum the gradients of keys and values once a step, after the last micro-batch. dw is
 * [(queries + 2) width][in] with the queries first: sum its 2 width in elements from element
 * share.queries width in on, and the last 2 width elements of its dbias. */

#endif
