/* SPDX-License-Identifier: MIT-0 */
/* tensor - runs layers whose weights are divided among the ranks of a communicator (tensor
 * parallelism), forward and backward. The results equal those of one rank with the whole weights,
 * up to rounding. heads.h computes which heads, vocabulary rows and tokens a rank has. random.h has
 * random numbers that do not depend on the rank that draws them.
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
 * Sequence parallelism. If `counts` is not NULL, each rank has only its own tokens before a column
 * layer and after a row layer. Column layers gather the tokens and row layers scatter them;
 * backward does the opposite. The traffic is the same as without sequence parallelism, but with R
 * ranks a rank stores only 1 / R of the activations between these pairs of layers. Any number of
 * tokens is allowed. A rank computes the gradients of weights between the pairs (norms) from its
 * own tokens only, so sum these gradients over the ranks once per step.
 *
 * Arrays are in the memory of the communicator (comm->mem). If that is the memory of a device, set
 * `matmul`, and use page-locked memory, which both host and device can access, for ids, targets and
 * sums. No function waits for the device. */
#ifndef DPARI_TRAIN_TENSOR_H
#define DPARI_TRAIN_TENSOR_H

#include "../comm/comm.h"

#include "../host/layers.h"
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
/* Computes a product of matrices. It is your callback, which calls cblas_sgemm, cuBLAS or another
 * library. An error that it returns breaks the communicator. */
typedef dpar_status (*dpar_matmul_kernel)(void *user, const dpar_matmul *call);
/* Computes a product of matrices in plain C, with sums in f64 that are rounded once. Layers call it
 * if `matmul` is NULL. Local. O(m n k). Fails with DPAR_E_ARG, without a message, for other types
 * and for sizes below 0. */
DPAR_API dpar_status dpar_matmul_host(void *user, const dpar_matmul *call);

/* ---- what layers share ---- */

/* Values that the layers of a group share. dpar_tensor_parallel_init fills them in. */
typedef struct dpar_tensor_parallel {
    dpar_comm *comm;
    int32_t type; /* of all arrays: DPAR_F64 or DPAR_F32 */
    /* All tokens of a step. With sequence parallelism, part r is the range of tokens of rank r
     * (CHUNK, EVEN, FLOOR or RAGGED). */
    dpar_split tokens;
    int64_t *counts; /* sequence parallelism: [comm->size] memory for dpar, which you must not touch
                        while a function runs; otherwise NULL */
    dpar_matmul_kernel matmul; /* NULL selects dpar_matmul_host */
    void *user;                /* passed to matmul */
} dpar_tensor_parallel;
/* Fills in the values that the layers of a group share.
 *
 * tokens: number of all tokens of a step, which are split by DPAR_SPLIT_EVEN. If the number changes
 *         to n, call
 *         dpar_split_init(&tp->tokens, DPAR_SPLIT_EVEN, n, tp->tokens.parts, 0, NULL).
 * counts: memory for comm->size numbers, which selects sequence parallelism, or NULL.
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
/* Describes a linear layer, y = x w^T + bias, with the weight w[out][in] as in PyTorch. In a column
 * layer each rank has some rows of w, in a row layer it has some columns of w. The numbers may
 * differ from rank to rank, and may be 0. */
typedef struct dpar_linear {
    int32_t kind;     /* DPAR_LINEAR_COLUMN or DPAR_LINEAR_ROW */
    int32_t reserved; /* 0 */
    int64_t in, out;  /* columns and rows of this rank's part of w */
} dpar_linear;

/* Arrays of a linear layer. n is the number of all tokens. With sequence parallelism, own is the
 * number of this rank's tokens (dpar_split_part_count of t->tokens); otherwise it is n. */
typedef struct dpar_linear_arrays {
    const void *w;    /* [out][in] */
    const void *bias; /* [out], or NULL if there is none; for a row layer the same on all ranks */
    const void *x;    /* column: [own][in]; row: [n][in] */
    void *y;          /* column: [n][out]; row: [own][out] */
    const void *dy;   /* shape of y */
    void *dx;         /* shape of x; NULL if not wanted (first layer, or a call for weights only) */
    void *dw;         /* shape of w; NULL if not wanted (a call for inputs only, as in zero-bubble
                         schedules) */
    void *dbias;      /* [out]; NULL if not wanted; for a row layer it is complete on every rank */
    /* Sequence parallelism. Column: [n][in] the inputs of all tokens. Row: [n][out], in forward
     * this rank's term of y, in backward the dy of all tokens. */
    void *gathered;
    void *gathered_dx; /* sequence parallelism, column, backward: [n][in] this rank's term of dx */
    /* 1 if `gathered` already contains the gathered values, so that they are not sent again. In a
     * column layer they are from forward, or from another layer with the same x. In a row layer
     * they are from an earlier call of backward for dx, and this call computes dw. */
    int32_t reuse_gathered;
    int32_t accumulate;    /* 1 adds to dw and dbias (micro-batches) */
    int32_t accumulate_dx; /* column: 1 adds to dx (sequence parallelism: gathered_dx), which
                              already contains the terms of other layers with the same x */
    int32_t defer_reduce;  /* column: 1 if another layer with the same x follows and adds to dx, so
                              that dx is not reduced in this call */
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
 * sequence parallelism it costs instead an all-gather (unless reuse_gathered) while dx is computed,
 * and a reduce-scatter while dw is computed. A row layer communicates only with sequence
 * parallelism: an all-gather of n out elements (unless reuse_gathered). With dpar_comm_progress, a
 * column layer's collectives overlap completely with the products. With dx and dw the arithmetic is
 * twice that of dpar_linear_forward. Fails like dpar_linear_forward. */
DPAR_API dpar_status dpar_linear_backward(const dpar_tensor_parallel *tp, const dpar_linear *layer,
                                          const dpar_linear_arrays *arrays);

/* On each rank, the y of a column layer and the x of a row layer have only some of the features. If
 * a layer between them needs all features, gather them with dpar_redistribute (move.h), and divide
 * the gradient again with the opposite dpar_redistribute. */

/* ---- vocabulary ---- */

/* Describes an embedding: y[token] = table[id of the token]. */
typedef struct dpar_embedding {
    dpar_vocab vocab; /* heads.h: this rank has dpar_vocab_row_count rows of the table */
    int64_t width;    /* elements of a row */
} dpar_embedding;
/* Arrays of an embedding. n is the number of all tokens, own the number of this rank's tokens as
 * for linear layers, and rows the number of this rank's rows of the table. */
typedef struct dpar_embedding_arrays {
    const int32_t *ids; /* [n] of all tokens, the same on all ranks */
    const void *table;  /* [rows][width]; forward reads it */
    void *y;            /* [own][width]; forward writes it */
    const void *dy;     /* [own][width]; backward reads it */
    void *dtable;       /* [rows][width]; backward writes it, with 0 in rows that no token uses */
    void *gathered;     /* sequence parallelism: [n][width]; otherwise NULL */
    int32_t accumulate; /* 1 adds to dtable (micro-batches) */
    int32_t reserved;   /* 0 */
} dpar_embedding_arrays;
/* Computes the output y of an embedding. Each rank looks up the rows that it has, and y is the sum
 * over the ranks. It has the same bits on any number of ranks.
 *
 * Collective. Costs an all-reduce of n width elements, or a reduce-scatter with sequence
 * parallelism, and O(n width). Fails with DPAR_E_ARG if an id does not exist. Fails with
 * DPAR_E_MISMATCH if ranks pass different vocabularies or ids, but only on engines that compare
 * calls: shared memory, and MPI with its option `check`. */
DPAR_API dpar_status dpar_embedding_forward(const dpar_tensor_parallel *tp,
                                            const dpar_embedding *layer,
                                            const dpar_embedding_arrays *arrays);
/* Computes the gradient of an embedding's table: dtable[row] is the sum of dy over the tokens that
 * use the row, in the order of the tokens. It has the same bits on any number of ranks.
 *
 * Collective. Communicates only with sequence parallelism: an all-gather of n width elements into
 * `gathered`. O((n + rows) width). Fails like dpar_embedding_forward. */
DPAR_API dpar_status dpar_embedding_backward(const dpar_tensor_parallel *tp,
                                             const dpar_embedding *layer,
                                             const dpar_embedding_arrays *arrays);

/* Describes a cross-entropy over a vocabulary that is divided among the ranks. With lse = ln(sum of
 * exp(logit) over the vocabulary) and V = vocab.count + vocab.added:
 *
 *     loss = lse - (1 - smoothing) logit[target] - smoothing / V (sum of all logits) + z_loss lse^2
 *
 * Smoothing is defined as in PyTorch (Megatron's e corresponds to e V / (V - 1) here). The z-loss
 * is that of PaLM, which uses z_loss = 1e-4. */
typedef struct dpar_cross_entropy {
    dpar_vocab vocab; /* rows of padding are ignored: their logits are not read, and their gradient
                         is 0 */
    double smoothing; /* 0 .. 1 */
    double z_loss;
    int32_t ignore;   /* 1 + the id of a target that is not counted; 0 if there is none. Targets
                         below 0, such as PyTorch's -100, are never counted. A target that is not
                         counted has loss and gradient 0 */
    int32_t reserved; /* 0 */
} dpar_cross_entropy;
/* Arrays of a cross-entropy. n is the number of all tokens, also with sequence parallelism. */
typedef struct dpar_cross_entropy_arrays {
    void *logits;                /* [n][dpar_vocab_row_count]; forward reads them, backward replaces
                                    them by their gradients */
    const int32_t *targets;      /* [n] token ids, the same on all ranks */
    double *lse;                 /* [n]; forward writes it, backward reads it */
    double *loss;                /* [n]; forward writes it, including z-loss; NULL if not wanted */
    dpar_cross_entropy_sum *sum; /* sums over the tokens; NULL if not wanted */
    void *scratch;               /* [3 n (ranks + 1)] of tp->type, used by forward */
} dpar_cross_entropy_arrays;
/* Computes the loss of each token over a vocabulary that is divided among the ranks. Losses and sum
 * are equal on all ranks, bit by bit, so add them up over data-parallel ranks only.
 *
 * Collective. Costs O(n rows) and one all-gather of three numbers per token, 12 bytes (f64: 24).
 * The numbers are the rank's largest logit, the sum of exponentials relative to it, and the rank's
 * terms of the loss that do not depend on lse. Sums over the vocabulary are in f64.
 *
 * Fails with DPAR_E_ARG if a target does not exist. Fails with DPAR_E_MISMATCH if ranks pass a
 * different vocabulary, targets, ignore, smoothing or z_loss, but only on engines that compare
 * calls: shared memory, and MPI with its option `check`. */
DPAR_API dpar_status dpar_cross_entropy_forward(const dpar_tensor_parallel *tp,
                                                const dpar_cross_entropy *layer,
                                                const dpar_cross_entropy_arrays *arrays);
/* Replaces the logits by `scale` times the gradient of the sum of the losses. For the gradient of
 * the mean, pass 1 / (number of tokens of all data-parallel ranks). Local. O(n rows). Fails with
 * DPAR_E_ARG if `layer` or `arrays` is NULL. */
DPAR_API dpar_status dpar_cross_entropy_backward(const dpar_tensor_parallel *tp,
                                                 const dpar_cross_entropy *layer,
                                                 const dpar_cross_entropy_arrays *arrays,
                                                 double scale);

/* ---- attention heads ---- */

/* There is no special function for attention. Use a column layer with the rows of the fused weight
 * that dpar_heads_rows computes, then attention over the rank's heads, then a row layer.
 *
 * If there are fewer key-value heads than ranks, several ranks hold the same one, and each computes
 * only the gradient from its own queries. With share = dpar_heads_local(&heads, c->rank),
 *
 *     dpar_comm_split(c, share.first_group, c->rank, &same);
 *
 * on all ranks makes a communicator of the ranks that hold the same key-value head. They must sum
 * the gradients of keys and values once per step, after the last micro-batch. dw is
 * [(queries + 2) width][in] with the queries first. Sum its last 2 width in elements, which begin
 * at element share.queries width in, and the last 2 width elements of dbias. */

#endif
