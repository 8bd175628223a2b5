/* SPDX-License-Identifier: MIT-0 */
/* gpt - the model of train_gpt.c, built of dpar's layers: a GPT whose weights are divided over
 * tensor-parallel ranks, its tokens over context-parallel ranks, and its experts over
 * expert-parallel ranks. However it is divided, the model is the same: initial values depend on the
 * global index, and results and gradients agree to rounding.
 *
 *     gpt_bytes(&config, &comms, bytes, &why);    gpt_init(memory, bytes, &config, &comms, &g, ..);
 *     layer 0 is the embedding, 1 .. blocks the blocks, blocks + 1 the head (norm, table, loss)
 *     gpt_parameter_of(g, layer, slot, &p);       what this rank has of each parameter
 *     gpt_forward(g, layer, weights, &batch, in, out, kept);
 *     gpt_backward(g, layer, GPT_BOTH, weights, gradients, &batch, dout, din, kept, NULL);
 *     gpt_sum(g, layer, gradients);               then over the data-parallel ranks: the caller
 *
 * A pipeline stage is any run of layers, which the caller chains. Nothing is allocated.
 *
 * A block has the norm first: x += out(attention(query, key, value of norm(x))); x += mlp(norm(x)).
 * The mlp is SwiGLU or GELU, or a mixture of experts of that kind. Only the layer norm has biases.
 *
 * The arithmetic is in gpt_host.h, and for the memory of a device (GPT_CUDA, and communicators with
 * its mem) in gpt_cuda.h. Arrays are then in the device's memory; ids, targets, batch.sum and
 * batch.shared are in memory that both reach (gpt_open_shared). Only experts make the host wait,
 * because it counts their tokens.
 *
 * Include dpar.h before it. Needs -lm. */
#ifndef GPT_H
#define GPT_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The type of activations, weights and gradients: float, or double to compare results. */
#ifdef GPT_DOUBLE
typedef double gpt_real;
enum { GPT_TYPE = DPAR_F64 };
#else
typedef float gpt_real;
enum { GPT_TYPE = DPAR_F32 };
#endif

/* ---- configuration --------------------------------------------------------------------------- */

enum { GPT_SAMPLES = 256 };

/* The shape of the model, the same on all ranks. Set it to zero and fill it in. */
typedef struct gpt_config {
    int32_t vocab;           /* 256: bytes */
    int32_t width, blocks;   /* features of a token; number of blocks */
    int32_t heads, groups;   /* heads of queries, and of keys and values (0 for heads); groups must
                                divide heads, and heads width */
    int32_t hidden;          /* features within the mlp */
    int32_t samples, length; /* of a micro-batch, before context parallelism divides it */
    int32_t layer_norm;      /* 1: layer norm in place of RMS norm */
    int32_t gelu;            /* 1: GELU in place of SwiGLU */
    int32_t tied;            /* 1: the head's table is the embedding's */
    int32_t sp;              /* 1: between layers tokens are cut over tp (sequence parallelism) */
    int32_t ulysses;         /* 1: context parallelism by Ulysses in place of the ring */
    int32_t experts;         /* 0: none */
    int32_t choices;         /* experts of a token */
    int32_t every;           /* every n-th block has them; 0: 1 */
    int32_t expert_hidden;   /* 0: hidden */
    int32_t shared;          /* hidden features of the expert that all tokens use; 0: none */
    int32_t drop;            /* DPAR_EXPERTS_DROP_NONE, ... */
    int32_t steer;           /* 1: loads are counted for gpt_steer */
    double factor;           /* capacity, but for DPAR_EXPERTS_DROP_NONE, */
    double rows;    /* which has room for so many times an even share; 0: for all that could come */
    double balance; /* coefficient of the balancing loss; 0: none */
    double smoothing, z_loss; /* of the cross-entropy */
    uint64_t seed;
} gpt_config;

/* The communicators. All must be set; one of a single rank means that nothing is divided. The
 * caller frees them. */
typedef struct gpt_comms {
    dpar_comm *tp, *cp;
    dpar_comm *ep;   /* experts are cut over these, some of `data` */
    dpar_comm *data; /* all ranks of the stage with this rank's place in tp: over their tokens the
                        loads of experts are balanced */
} gpt_comms;

#ifdef GPT_CUDA
/* cuBLAS, if there is one: alpha op(a) op(b) + beta c, column by column; 0 is fine. */
typedef int gpt_multiplies(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                           const gpt_real *alpha, const gpt_real *a, int lda, const gpt_real *b,
                           int ldb, const gpt_real *beta, gpt_real *c, int ldc);
typedef struct gpt_products {
    void *library, *handle; /* handle NULL: kernels of gpt_cuda.h */
    gpt_multiplies *multiply;
    int (*destroy)(void *handle);
} gpt_products;
#endif

/* A rank's part of the model: plans and scratch memory, no weights. The first four fields may be
 * read. */
typedef struct gpt {
    gpt_config config; /* nothing in it is 0 for a default any more */
    gpt_comms comms;
    int64_t tokens; /* of this context parallel rank: rows of ids and targets */
    int64_t own;    /* rows of activations between layers: tokens, or with sp a share of them */

    int64_t first, whole; /* where `own` begin in `tokens`; tokens of the micro-batch */
    int64_t head, heads_width, groups_width; /* features of a head, this rank's queries, keys */
    dpar_tensor_parallel tensor;
    dpar_heads heads;
    dpar_heads_share share;
    dpar_comm *same; /* ranks with the same key-value heads; NULL: this one alone */
    dpar_vocab vocab;
    dpar_split hidden, shared, expert_hidden; /* features over tp */
    int64_t ends[GPT_SAMPLES + 1];
    dpar_attention_desc attention; /* ring or Ulysses */
    dpar_attention_plan *attend;
    dpar_split cut; /* Ulysses: tokens */
    dpar_experts_desc layer;
    dpar_experts_plan *experts;
    int64_t first_expert, my_experts, rows, routing;
    int64_t plan_bytes[2];
    void *plan_memory[2];      /* attention; experts */
    int64_t *counts, *rows_of; /* of tensor; elements of each rank's rows */
    int32_t *position;         /* of each token in its sample; where arrays are */
    double *bias, *load;       /* [blocks][experts] */
    gpt_real *own_a, *own_b, *own_c, *all, *part, *q, *k, *v, *wide, *scores, *expert_rows,
        *dweight, *dlogits;
    double *few;
    void *entropy, *pending;
#ifdef GPT_CUDA
    gpt_products products;
#endif
} gpt;

/* ---- the interface --------------------------------------------------------------------------- */

/* The parameters that layers have some of; weights and gradients are indexed by them. */
enum {
    GPT_TABLE,
    GPT_POSITION,
    GPT_NORM_1,
    GPT_NORM_1_BIAS,
    GPT_QUERY,
    GPT_KEY,
    GPT_VALUE,
    GPT_OUT,
    GPT_NORM_2,
    GPT_NORM_2_BIAS,
    GPT_GATE, /* and two more: of the mlp, or of the shared expert */
    GPT_UP,
    GPT_DOWN,
    GPT_ROUTER,
    GPT_EXPERT_GATE,
    GPT_EXPERT_UP,
    GPT_EXPERT_DOWN,
    GPT_SLOTS
};
enum { GPT_SUM_NONE, GPT_SUM_TP, GPT_SUM_SAME };
enum { GPT_PLANS, GPT_ARRAYS, GPT_SHARED, GPT_PIECES }; /* gpt_bytes */

typedef struct gpt_parameter {
    char name[40];  /* "block3.query", whatever the cutting */
    int32_t dims;   /* 1 .. 3 */
    int32_t expert; /* 1: cut over ep: its gradient is to be summed over the ranks of `data` with
                       the same place in ep; else over all of data */
    int32_t tied;   /* 1: the head's, which is the embedding's: of the same name and initial values.
                       Where both are on one rank give its pointers; else sum both gradients */
    int32_t decay;  /* 1: a matrix */
    int32_t sum;    /* what gpt_sum does: GPT_SUM_TP, ... */
    int32_t copy, copies; /* of the tp ranks that have this piece: norms count copy 0 only */
    int64_t whole[3];     /* the whole array, C order; */
    int64_t local[3];     /* of it this rank's dense piece; 0 is possible; */
    int64_t at[3]; /* where that begins. What passes `whole` is padding: 0, as its gradient */
    int64_t numel; /* of the piece, padding included */
    double mean, deviation; /* initial values: normal, */
    uint64_t stream;        /* by global index */
} gpt_parameter;

/* A micro-batch. */
typedef struct gpt_batch {
    const int32_t *ids, *targets; /* gpt_pick's; targets below 0 do not count */
    double scale;                 /* of the loss: 1 / tokens that count in a step, of all ranks */
    double balance;               /* of the balancing loss: 1 / micro-batches of a step */
    double loss;                  /* the head ADDS the losses of `tokens`, equal on all of tp, */
    double counted;               /* and how many counted; */
    dpar_cross_entropy_sum *sum;  /* not NULL: it leaves both there instead, when its turn comes */
    void *shared;                 /* GPT_CUDA: of the layer, as `kept`, gpt_shared_bytes */
    double balancing; /* experts their balancing loss times balance, equal on all of data and tp */
} gpt_batch;

/* The parts of backward. I computes the gradient of the input; it stores in `pending` what W needs,
 * and does not touch the gradients of weights. W computes those from `pending` and `kept` only,
 * without messages. BOTH gives the same bits as I and then W, and its `pending` may be NULL. */
enum { GPT_INPUT = 1, GPT_WEIGHT = 2, GPT_BOTH = 3 };

/* ---- small things ---------------------------------------------------------------------------- */

static inline dpar_status gpt_refuse(dpar_why *why, const char *text)
{
    if (why != NULL) {
        snprintf(why->text, sizeof why->text, "gpt: %s", text);
    }
    return DPAR_E_ARG;
}

/* Memory that is handed out in pieces. Without memory it only counts the bytes. */
typedef struct gpt_room {
    char *memory;
    int64_t used;
} gpt_room;

static inline void *gpt_take(gpt_room *room, int64_t n, size_t each)
{
    void *at = room->memory == NULL ? NULL : room->memory + room->used;
    room->used += (n * (int64_t)each + 63) / 64 * 64;
    return at;
}

static inline gpt_real *gpt_take_real(gpt_room *room, int64_t n)
{
    return (gpt_real *)gpt_take(room, n, sizeof(gpt_real));
}

/* Returns from the function if a call fails. */
#define GPT_TRY(call)                                                                              \
    do {                                                                                           \
        const dpar_status gpt_status = (call);                                                     \
        if (gpt_status != DPAR_OK) {                                                               \
            return gpt_status;                                                                     \
        }                                                                                          \
    } while (0)

/* True if block `layer` has experts. */
static inline int gpt_mixes(const gpt *model, int32_t layer)
{
    return model->config.experts > 0 && layer > 0 && layer <= model->config.blocks &&
           layer % model->config.every == 0;
}

/* Features of the mlp, or of the shared expert. */
static inline const dpar_split *gpt_hidden(const gpt *model, int32_t layer)
{
    return gpt_mixes(model, layer) ? &model->shared : &model->hidden;
}

static inline int64_t gpt_mine(const gpt *model, const dpar_split *split)
{
    return dpar_split_part_count(split, model->comms.tp->rank);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* The matrix product that layers use. */
static inline dpar_status gpt_matmul(void *user, const dpar_matmul *product);

/* Computes c = alpha op(a) op(b), or adds it to c, for matrices of this rank. */
static inline void gpt_multiply(gpt *model, int add, int64_t m, int64_t n, int64_t k, double alpha,
                                const gpt_real *a, int64_t lda, int transpose_a, const gpt_real *b,
                                int64_t ldb, int transpose_b, gpt_real *c, int64_t ldc)
{
    dpar_matmul product;
    memset(&product, 0, sizeof product);
    product.type = GPT_TYPE;
    product.transpose_a = transpose_a;
    product.transpose_b = transpose_b;
    product.m = m;
    product.n = n;
    product.k = k;
    product.alpha = alpha;
    product.beta = add ? 1.0 : 0.0;
    product.a = a;
    product.b = b;
    product.c = c;
    product.lda = lda;
    product.ldb = ldb;
    product.ldc = ldc;
    (void)gpt_matmul(model, &product);
}

/* y = x w^T; dx (+)= dy w; dw += dy^T x: of n rows. */
static inline void gpt_apply(gpt *model, int64_t n, int64_t in, int64_t out, const gpt_real *x,
                             const gpt_real *w, gpt_real *y, int add)
{
    gpt_multiply(model, add, n, out, in, 1.0, x, in, 0, w, in, 1, y, out);
}

static inline void gpt_apply_input(gpt *model, int64_t n, int64_t in, int64_t out,
                                   const gpt_real *dy, const gpt_real *w, gpt_real *dx, int add)
{
    gpt_multiply(model, add, n, in, out, 1.0, dy, out, 0, w, in, 0, dx, in);
}

static inline void gpt_apply_weight(gpt *model, int64_t n, int64_t in, int64_t out,
                                    const gpt_real *dy, const gpt_real *x, gpt_real *dw)
{
    gpt_multiply(model, 1, out, in, n, 1.0, dy, out, 1, x, in, 0, dw, in);
}

/* SwiGLU: gate sigmoid(gate) up. GELU: as GPT-2 has it, with a tanh, written as a sigmoid:
 * up sigmoid(2 c (up + d up^3)), where c is sqrt(2 / pi). */
#define GPT_GELU_C 0.7978845608028654
#define GPT_GELU_D 0.044715

#ifdef GPT_CUDA
#include "gpt_cuda.h"
#else
#include "gpt_host.h"
#endif

/* ---- layers that are divided over tp: tensor.h ----------------------------------------------- */

/* Gathers the rows of all ranks. */
static inline dpar_status gpt_gather(gpt *model, const gpt_real *own, gpt_real *all)
{
    if (model->config.sp) {
        return dpar_all_gather_v(model->comms.tp, own, all, model->rows_of, NULL, GPT_TYPE, NULL);
    }
    gpt_copy(model, all, own, model->tokens * model->config.width);
    return DPAR_OK;
}

/* Computes this rank's own rows of the sum of the ranks' parts. */
static inline dpar_status gpt_reduce(gpt *model, const gpt_real *part, gpt_real *own)
{
    if (model->config.sp) {
        return dpar_reduce_scatter_v(model->comms.tp, part, own, model->rows_of, GPT_TYPE, DPAR_SUM,
                                     NULL);
    }
    return dpar_all_reduce(model->comms.tp, part, own, model->tokens * model->config.width,
                           GPT_TYPE, DPAR_SUM, NULL);
}

/* A linear layer of which this rank has `in` x `out`. Column layers expect x to be gathered. */
static inline dpar_linear gpt_linear_of(gpt *model, int32_t kind, int64_t in, int64_t out,
                                        const gpt_real *w, gpt_real *x, dpar_linear_arrays *arrays)
{
    dpar_linear linear;
    memset(&linear, 0, sizeof linear);
    memset(arrays, 0, sizeof *arrays);
    linear.kind = kind;
    linear.in = in;
    linear.out = out;
    arrays->w = w;
    arrays->x = x;
    arrays->reuse_gathered = 1;
    arrays->accumulate = 1;
    arrays->gathered = kind == DPAR_LINEAR_COLUMN ? x : model->all;
    arrays->gathered_dx = model->all;
    return linear;
}

/* Computes y from x, of all tokens; row layers compute y of own tokens only. */
static inline dpar_status gpt_linear(gpt *model, int32_t kind, int64_t in, int64_t out,
                                     const gpt_real *w, gpt_real *x, gpt_real *y)
{
    dpar_linear_arrays arrays;
    const dpar_linear linear = gpt_linear_of(model, kind, in, out, w, x, &arrays);
    arrays.y = y;
    return dpar_linear_forward(&model->tensor, &linear, &arrays);
}

/* Column layers that read the same x share one dx, which is reduced after the last of them. */
enum { GPT_ALONE = 0, GPT_BEGIN = 1, GPT_GO_ON = 3, GPT_END = 2 };

/* Computes dx (column layers: of own tokens) from dy of all tokens. If dw is not NULL it is added
 * to while dx is being reduced. */
static inline dpar_status gpt_linear_back(gpt *model, int32_t kind, int64_t in, int64_t out,
                                          const gpt_real *w, gpt_real *x, gpt_real *dy,
                                          gpt_real *dx, gpt_real *dw, int turn)
{
    dpar_linear_arrays arrays;
    const dpar_linear linear = gpt_linear_of(model, kind, in, out, w, x, &arrays);
    arrays.dy = dy;
    arrays.dx = dx;
    arrays.dw = dw;
    arrays.gathered = kind == DPAR_LINEAR_COLUMN ? x : dy;
    arrays.defer_reduce = turn & 1;
    arrays.accumulate_dx = turn >> 1;
    return dpar_linear_backward(&model->tensor, &linear, &arrays);
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Computes the norm of own rows (gpt_norm_rows), and gathers h of all tokens. */
static inline dpar_status gpt_norm(gpt *model, const gpt_real *x, const gpt_real *scale,
                                   const gpt_real *bias, double *stat, gpt_real *h)
{
    gpt_real *to = model->config.sp ? model->own_b : h;
    gpt_norm_rows(model, x, scale, bias, stat, to);
    return model->config.sp ? gpt_gather(model, to, h) : DPAR_OK;
}

/* ---- the memory kept for backward (kept), and from I to W (pending) -------------------------- */

typedef struct gpt_kept {
    gpt_real *x, *h; /* input, normed */
    double *norm, *norm_2;
    gpt_real *q, *k, *v, *mixed, *sums; /* of attention, its result and lse */
    void *heads;         /* Ulysses: what it keeps for backward, in place of q, k, v */
    gpt_real *x_2, *h_2; /* after attention */
    gpt_real *gate, *up, *act;
    gpt_real *logits, *weight; /* of the router; of the head */
    double *lse, *loads;
    int32_t *chosen;
    void *routing;
    dpar_experts_routing **route;
    dpar_router_load *load;
    gpt_real *rows, *rows_gate, *rows_up, *rows_act, *results;
} gpt_kept;

/* Places the arrays that a layer keeps: in `room`, and those that the host and a device both reach
 * in `shared`, which is `room` without a device. */
static inline void gpt_lay_kept(const gpt *model, int32_t layer, gpt_room *room, gpt_room *shared,
                                gpt_kept *kept)
{
    const int64_t n = model->tokens, width = model->config.width, own = model->own * width;
    const int64_t hidden = n * gpt_mine(model, gpt_hidden(model, layer));
    const int64_t experts = model->config.experts;
    const int64_t rows = model->rows * gpt_mine(model, &model->expert_hidden);
    memset(kept, 0, sizeof *kept);
    if (layer == 0) {
        return;
    }
    kept->x = gpt_take_real(room, own);
    kept->norm = (double *)gpt_take(room, 2 * model->own, sizeof(double));
    kept->h = gpt_take_real(room, n * width);
    if (layer > model->config.blocks) {
        kept->logits = gpt_take_real(room, n * dpar_vocab_row_count(&model->vocab));
        kept->lse = (double *)gpt_take(room, n, sizeof(double));
        return;
    }
    kept->q = model->q;
    kept->k = model->k;
    kept->v = model->v;
    if (model->config.ulysses) {
        kept->heads = gpt_take(room, model->attend->saved_bytes, 1);
    } else {
        kept->q = gpt_take_real(room, n * model->heads_width);
        kept->k = gpt_take_real(room, n * model->groups_width);
        kept->v = gpt_take_real(room, n * model->groups_width);
        kept->sums = gpt_take_real(room, n * model->heads_width / model->head);
    }
    kept->mixed = gpt_take_real(room, n * model->heads_width);
    kept->x_2 = gpt_take_real(room, own);
    kept->norm_2 = (double *)gpt_take(room, 2 * model->own, sizeof(double));
    kept->h_2 = gpt_take_real(room, n * width);
    kept->gate = model->config.gelu ? NULL : gpt_take_real(room, hidden);
    kept->up = gpt_take_real(room, hidden);
    kept->act = gpt_take_real(room, hidden);
    if (gpt_mixes(model, layer)) {
        kept->logits = gpt_take_real(shared, n * experts);
        kept->weight = gpt_take_real(shared, n * model->config.choices);
        kept->chosen = (int32_t *)gpt_take(shared, n * model->config.choices, sizeof(int32_t));
        kept->loads = (double *)gpt_take(shared, 2 * experts + 1, sizeof(double));
        kept->load = (dpar_router_load *)gpt_take(shared, 1, sizeof *kept->load);
        kept->route = (dpar_experts_routing **)gpt_take(shared, 1, sizeof *kept->route);
        kept->routing = gpt_take(shared, model->routing, 1);
        kept->rows = gpt_take_real(room, model->rows * width);
        kept->rows_gate = model->config.gelu ? NULL : gpt_take_real(room, rows);
        kept->rows_up = gpt_take_real(room, rows);
        kept->rows_act = gpt_take_real(room, rows);
        kept->results = gpt_take_real(room, n * model->config.choices * width);
    }
}

/* Gradients of the results of products. W multiplies these with kept inputs. */
typedef struct gpt_pending {
    double *norm, *norm_2; /* gradients of scale and bias */
    gpt_real *dmixed;      /* of the attention's result after `out`: of all tokens */
    gpt_real *dq, *dk, *dv;
    gpt_real *dy, *dgate, *dup; /* of the mlp's result: of all tokens */
    gpt_real *dlogits, *results, *rows_gate, *rows_up;
} gpt_pending;

static inline int64_t gpt_lay_pending(const gpt *model, int32_t layer, void *memory,
                                      gpt_pending *pending)
{
    const int64_t n = model->tokens, width = model->config.width;
    const int64_t hidden = n * gpt_mine(model, gpt_hidden(model, layer));
    const int64_t rows = model->rows * gpt_mine(model, &model->expert_hidden);
    gpt_room room = {NULL, 0};
    room.memory = (char *)memory;
    memset(pending, 0, sizeof *pending);
    if (layer == 0) {
        pending->dy = gpt_take_real(&room, n * width);
        return room.used;
    }
    pending->norm = (double *)gpt_take(&room, 2 * width, sizeof(double));
    if (layer > model->config.blocks) {
        return room.used;
    }
    pending->norm_2 = (double *)gpt_take(&room, 2 * width, sizeof(double));
    pending->dmixed = gpt_take_real(&room, n * width);
    pending->dq = gpt_take_real(&room, n * model->heads_width);
    pending->dk = gpt_take_real(&room, n * model->groups_width);
    pending->dv = gpt_take_real(&room, n * model->groups_width);
    pending->dy = gpt_take_real(&room, n * width);
    pending->dgate = model->config.gelu ? NULL : gpt_take_real(&room, hidden);
    pending->dup = gpt_take_real(&room, hidden);
    if (gpt_mixes(model, layer)) {
        pending->dlogits = gpt_take_real(&room, n * model->config.experts);
        pending->results = gpt_take_real(&room, model->rows * width);
        pending->rows_gate = model->config.gelu ? NULL : gpt_take_real(&room, rows);
        pending->rows_up = gpt_take_real(&room, rows);
    }
    return room.used;
}

/* Bytes that a layer keeps from F to B or W, those in batch.shared (gpt_shared_bytes), and those
 * from I to W (gpt_pending_bytes), as multiples of 64. Local. */
static inline int64_t gpt_kept_bytes(const gpt *model, int32_t layer)
{
    gpt_room room = {NULL, 0}, shared = {NULL, 0};
    gpt_kept kept;
    gpt_lay_kept(model, layer, &room, GPT_APART ? &shared : &room, &kept);
    return room.used;
}

static inline int64_t gpt_shared_bytes(const gpt *model, int32_t layer)
{
    gpt_room room = {NULL, 0}, shared = {NULL, 0};
    gpt_kept kept;
    gpt_lay_kept(model, layer, &room, GPT_APART ? &shared : &room, &kept);
    return shared.used;
}

/* The places of the kept arrays. */
static inline gpt_kept gpt_kept_in(const gpt *model, int32_t layer, void *kept,
                                   const gpt_batch *batch)
{
    gpt_room room = {NULL, 0}, shared = {NULL, 0};
    gpt_kept places;
    room.memory = (char *)kept;
    shared.memory = (char *)batch->shared;
    gpt_lay_kept(model, layer, &room, GPT_APART ? &shared : &room, &places);
    return places;
}

static inline int64_t gpt_pending_bytes(const gpt *model, int32_t layer)
{
    gpt_pending pending;
    return gpt_lay_pending(model, layer, NULL, &pending);
}

/* ---- embedding ------------------------------------------------------------------------------- */

static inline dpar_embedding gpt_embedding(const gpt *model)
{
    dpar_embedding embedding;
    memset(&embedding, 0, sizeof embedding);
    embedding.vocab = model->vocab;
    embedding.width = model->config.width;
    return embedding;
}

static inline dpar_status gpt_embed(gpt *model, const gpt_real *const *weights,
                                    const gpt_batch *batch, gpt_real *out)
{
    const int64_t n = model->config.width;
    const dpar_embedding embedding = gpt_embedding(model);
    dpar_embedding_arrays arrays;
    memset(&arrays, 0, sizeof arrays);
    arrays.ids = batch->ids;
    arrays.table = weights[GPT_TABLE];
    arrays.y = out;
    arrays.gathered = model->all;
    GPT_TRY(dpar_embedding_forward(&model->tensor, &embedding, &arrays));
    gpt_add_rows(model, out, weights[GPT_POSITION], model->position + model->first, model->own, n);
    return DPAR_OK;
}

/* Adds to the gradients of the embedding. dy is of all tokens, so that every rank has the whole
 * gradients of positions. */
static inline dpar_status gpt_embed_weight(gpt *model, gpt_real *const *dw, const gpt_batch *batch,
                                           const gpt_real *dy)
{
    const int64_t width = model->config.width;
    const dpar_embedding embedding = gpt_embedding(model);
    dpar_embedding_arrays arrays;
    dpar_tensor_parallel all = model->tensor;
    all.counts = NULL; /* dy is gathered already */
    memset(&arrays, 0, sizeof arrays);
    arrays.ids = batch->ids;
    arrays.dy = dy;
    arrays.dtable = dw[GPT_TABLE];
    arrays.accumulate = 1;
    gpt_sum_rows(model, dw[GPT_POSITION], dy, model->position, model->tokens, width);
    return dpar_embedding_backward(&all, &embedding, &arrays);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Attention by the ring or by Ulysses, as it was planned. */
static inline dpar_attention_arrays gpt_attention_arrays(const gpt_kept *kept)
{
    dpar_attention_arrays arrays;
    memset(&arrays, 0, sizeof arrays);
    arrays.q = kept->q;
    arrays.k = kept->k;
    arrays.v = kept->v;
    arrays.out = kept->mixed;
    arrays.lse = kept->sums;
    arrays.saved = kept->heads;
    return arrays;
}

static inline dpar_status gpt_attend(gpt *model, const gpt_kept *kept)
{
    const dpar_attention_arrays arrays = gpt_attention_arrays(kept);
    return dpar_attention_forward(model->attend, &arrays);
}

static inline dpar_status gpt_attend_back(gpt *model, const gpt_kept *kept, const gpt_real *dmixed,
                                          const gpt_pending *pending)
{
    dpar_attention_arrays arrays = gpt_attention_arrays(kept);
    arrays.out_gradient = dmixed;
    arrays.q_gradient = pending->dq;
    arrays.k_gradient = pending->dk;
    arrays.v_gradient = pending->dv;
    return dpar_attention_backward(model->attend, &arrays);
}

/* ---- the mlp --------------------------------------------------------------------------------- */

static inline dpar_status gpt_mlp(gpt *model, int32_t layer, const gpt_real *const *weights,
                                  const gpt_kept *kept, gpt_real *y)
{
    const int64_t n = model->config.width, hidden = gpt_mine(model, gpt_hidden(model, layer));
    GPT_TRY(gpt_linear(model, DPAR_LINEAR_COLUMN, n, hidden, weights[GPT_UP], kept->h_2, kept->up));
    if (!model->config.gelu) {
        GPT_TRY(gpt_linear(model, DPAR_LINEAR_COLUMN, n, hidden, weights[GPT_GATE], kept->h_2,
                           kept->gate));
    }
    gpt_activate(model, model->tokens * hidden, kept->gate, kept->up, kept->act);
    return gpt_linear(model, DPAR_LINEAR_ROW, hidden, n, weights[GPT_DOWN], kept->act, y);
}

/* Computes dh of own tokens from pending->dy. */
static inline dpar_status gpt_mlp_input(gpt *model, int32_t layer, const gpt_real *const *weights,
                                        gpt_real *const *dw, const gpt_kept *kept,
                                        const gpt_pending *pending, gpt_real *dh)
{
    const int64_t n = model->config.width, hidden = gpt_mine(model, gpt_hidden(model, layer));
    const int gate = !model->config.gelu;
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_ROW, hidden, n, weights[GPT_DOWN], kept->act,
                            pending->dy, model->wide, dw[GPT_DOWN], GPT_ALONE));
    gpt_activate_back(model, model->tokens * hidden, kept->gate, kept->up, model->wide,
                      pending->dgate, pending->dup);
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_COLUMN, n, hidden, weights[GPT_UP], kept->h_2,
                            pending->dup, dh, dw[GPT_UP], gate ? GPT_BEGIN : GPT_ALONE));
    return gate ? gpt_linear_back(model, DPAR_LINEAR_COLUMN, n, hidden, weights[GPT_GATE],
                                  kept->h_2, pending->dgate, dh, dw[GPT_GATE], GPT_END)
                : DPAR_OK;
}

/* ---- experts: expert.h; the hidden features of each are divided over tp ---------------------- */

static inline dpar_router gpt_router(const gpt *model, int32_t layer, const gpt_batch *batch)
{
    dpar_router router;
    memset(&router, 0, sizeof router);
    router.experts = model->config.experts;
    router.choices = model->config.choices;
    router.score = DPAR_ROUTER_SOFTMAX;
    router.normalise = model->config.choices > 1;
    router.type = GPT_TYPE;
    router.balance = model->config.balance * batch->balance;
    router.bias = model->config.steer ? model->bias + (layer - 1) * model->config.experts : NULL;
    return router;
}

static inline dpar_router_arrays gpt_router_arrays(const gpt *model, const gpt_kept *kept)
{
    dpar_router_arrays arrays;
    memset(&arrays, 0, sizeof arrays);
    arrays.tokens = model->tokens;
    arrays.logits = kept->logits;
    arrays.chosen = kept->chosen;
    arrays.weight = kept->weight;
    arrays.sums = kept->loads;
    arrays.scratch = model->few;
    return arrays;
}

static inline dpar_experts_arrays gpt_experts_arrays(const gpt_kept *kept)
{
    dpar_experts_arrays arrays;
    memset(&arrays, 0, sizeof arrays);
    arrays.x = kept->h_2;
    arrays.rows = kept->rows;
    arrays.weight = kept->weight;
    arrays.saved = kept->results;
    return arrays;
}

/* Decides which expert gets which token. The ranks of tp have the same h and so decide alike. */
static inline dpar_status gpt_choose(gpt *model, int32_t layer, const gpt_real *const *weights,
                                     gpt_batch *batch, const gpt_kept *kept)
{
    const int32_t experts = model->config.experts;
    const dpar_router router = gpt_router(model, layer, batch);
    const dpar_router_arrays arrays = gpt_router_arrays(model, kept);
    dpar_experts_choices choices;
    dpar_why *why = &model->comms.ep->why;
    int32_t expert;
    gpt_apply(model, model->tokens, model->config.width, experts, kept->h_2, weights[GPT_ROUTER],
              kept->logits, 0);
    gpt_wait(model);
    GPT_TRY(dpar_router_forward(&router, &arrays, why));
    if (model->config.steer || model->config.balance > 0.0) {
        GPT_TRY(dpar_router_balance(&router, model->comms.data, &arrays, kept->load));
        batch->balancing += kept->load->loss;
        for (expert = 0; expert < experts; expert++) {
            model->load[(layer - 1) * experts + expert] += kept->load->chosen[expert];
        }
    }
    choices.tokens = model->tokens;
    choices.chosen = kept->chosen;
    choices.weight = kept->weight;
    return dpar_experts_route(model->experts, kept->routing, model->routing, &choices, kept->route,
                              why);
}

/* The part of the kept rows that belongs to an expert of this rank. Its results are written to the
 * returned `results`. */
static inline gpt_kept gpt_rows_of(const gpt *model, const gpt_kept *kept, int64_t expert)
{
    const int64_t at = (*kept->route)->first[expert];
    const int64_t hidden = at * gpt_mine(model, &model->expert_hidden);
    gpt_kept rows = *kept;
    rows.rows = kept->rows + at * model->config.width;
    rows.rows_gate = model->config.gelu ? NULL : kept->rows_gate + hidden;
    rows.rows_up = kept->rows_up + hidden;
    rows.rows_act = kept->rows_act + hidden;
    rows.results = model->expert_rows + at * model->config.width;
    return rows;
}

/* The same for the gradients of those rows. */
static inline gpt_pending gpt_gradient_rows_of(const gpt *model, const gpt_kept *kept,
                                               const gpt_pending *pending, int64_t expert)
{
    const int64_t at = (*kept->route)->first[expert];
    const int64_t hidden = at * gpt_mine(model, &model->expert_hidden);
    gpt_pending rows = *pending;
    rows.results = pending->results + at * model->config.width;
    rows.rows_gate = model->config.gelu ? NULL : pending->rows_gate + hidden;
    rows.rows_up = pending->rows_up + hidden;
    return rows;
}

static inline dpar_status gpt_mixture(gpt *model, int32_t layer, const gpt_real *const *weights,
                                      gpt_batch *batch, const gpt_kept *kept, gpt_real *y)
{
    const int64_t n = model->config.width, hidden = gpt_mine(model, &model->expert_hidden);
    const int64_t shared = gpt_mine(model, &model->shared);
    dpar_experts_arrays arrays = gpt_experts_arrays(kept);
    int64_t expert;
    GPT_TRY(gpt_choose(model, layer, weights, batch, kept));
    GPT_TRY(dpar_experts_dispatch(model->experts, *kept->route, &arrays));
    for (expert = 0; expert < model->my_experts; expert++) {
        const int64_t count = (*kept->route)->count[expert], one = expert * hidden * n;
        const gpt_kept rows = gpt_rows_of(model, kept, expert);
        gpt_apply(model, count, n, hidden, rows.rows, weights[GPT_EXPERT_UP] + one, rows.rows_up,
                  0);
        if (rows.rows_gate != NULL) {
            gpt_apply(model, count, n, hidden, rows.rows, weights[GPT_EXPERT_GATE] + one,
                      rows.rows_gate, 0);
        }
        gpt_activate(model, count * hidden, rows.rows_gate, rows.rows_up, rows.rows_act);
        gpt_apply(model, count, hidden, n, rows.rows_act, weights[GPT_EXPERT_DOWN] + one,
                  rows.results, 0);
    }
    /* These results come from this rank's hidden features alone; tp sums them at the end. */
    arrays.results = model->expert_rows;
    arrays.y = model->part;
    GPT_TRY(dpar_experts_combine(model->experts, *kept->route, &arrays));
    if (model->config.shared > 0) {
        gpt_apply(model, model->tokens, n, shared, kept->h_2, weights[GPT_UP], kept->up, 0);
        if (kept->gate != NULL) {
            gpt_apply(model, model->tokens, n, shared, kept->h_2, weights[GPT_GATE], kept->gate, 0);
        }
        gpt_activate(model, model->tokens * shared, kept->gate, kept->up, kept->act);
        gpt_apply(model, model->tokens, shared, n, kept->act, weights[GPT_DOWN], model->part, 1);
    }
    return gpt_reduce(model, model->part, y);
}

/* Fills model->part with this tp rank's part of dh. It comes from the shared expert and, on the
 * first rank only, from the router, because every rank has the same router. */
static inline dpar_status gpt_mixture_tokens(gpt *model, int32_t layer,
                                             const gpt_real *const *weights, const gpt_batch *batch,
                                             const gpt_kept *kept, const gpt_pending *pending)
{
    const int64_t n = model->config.width, shared = gpt_mine(model, &model->shared);
    const dpar_router router = gpt_router(model, layer, batch);
    dpar_router_arrays arrays = gpt_router_arrays(model, kept);
    gpt_real *dlogits = GPT_APART ? model->dlogits : pending->dlogits;
    arrays.dweight = model->dweight;
    arrays.dlogits = dlogits;
    gpt_wait(model);
    GPT_TRY(dpar_router_backward(&router, &arrays, router.balance > 0.0 ? kept->load : NULL,
                                 &model->comms.ep->why));
    gpt_copy(model, pending->dlogits, dlogits, model->tokens * model->config.experts);
    if (model->comms.tp->rank == 0) {
        gpt_apply_input(model, model->tokens, n, model->config.experts, pending->dlogits,
                        weights[GPT_ROUTER], model->part, 1);
    }
    if (model->config.shared > 0) {
        gpt_apply_input(model, model->tokens, shared, n, pending->dy, weights[GPT_DOWN],
                        model->wide, 0);
        gpt_activate_back(model, model->tokens * shared, kept->gate, kept->up, model->wide,
                          pending->dgate, pending->dup);
        gpt_apply_input(model, model->tokens, n, shared, pending->dup, weights[GPT_UP], model->part,
                        1);
        if (kept->gate != NULL) {
            gpt_apply_input(model, model->tokens, n, shared, pending->dgate, weights[GPT_GATE],
                            model->part, 1);
        }
    }
    return DPAR_OK;
}

static inline dpar_status gpt_mixture_input(gpt *model, int32_t layer,
                                            const gpt_real *const *weights, const gpt_batch *batch,
                                            const gpt_kept *kept, const gpt_pending *pending,
                                            gpt_real *dh)
{
    const int64_t n = model->config.width, hidden = gpt_mine(model, &model->expert_hidden);
    dpar_experts_arrays arrays = gpt_experts_arrays(kept);
    int64_t expert;
    arrays.dy = pending->dy;
    arrays.dresults = pending->results;
    arrays.dweight = model->dweight;
    GPT_TRY(dpar_experts_combine_backward(model->experts, *kept->route, &arrays));
    GPT_TRY(dpar_all_reduce(model->comms.tp, model->dweight, model->dweight,
                            model->tokens * model->config.choices, GPT_TYPE, DPAR_SUM, NULL));
    for (expert = 0; expert < model->my_experts; expert++) {
        const int64_t count = (*kept->route)->count[expert], one = expert * hidden * n;
        const gpt_kept rows = gpt_rows_of(model, kept, expert);
        const gpt_pending deltas = gpt_gradient_rows_of(model, kept, pending, expert);
        gpt_apply_input(model, count, hidden, n, deltas.results, weights[GPT_EXPERT_DOWN] + one,
                        model->wide, 0);
        gpt_activate_back(model, count * hidden, rows.rows_gate, rows.rows_up, model->wide,
                          deltas.rows_gate, deltas.rows_up);
        gpt_apply_input(model, count, n, hidden, deltas.rows_up, weights[GPT_EXPERT_UP] + one,
                        rows.results, 0);
        if (rows.rows_gate != NULL) {
            gpt_apply_input(model, count, n, hidden, deltas.rows_gate,
                            weights[GPT_EXPERT_GATE] + one, rows.results, 1);
        }
    }
    arrays.drows = model->expert_rows;
    arrays.dx = model->part;
    GPT_TRY(dpar_experts_dispatch_backward(model->experts, *kept->route, &arrays));
    GPT_TRY(gpt_mixture_tokens(model, layer, weights, batch, kept, pending));
    return gpt_reduce(model, model->part, dh);
}

static inline void gpt_mixture_weight(gpt *model, gpt_real *const *dw, const gpt_kept *kept,
                                      const gpt_pending *pending)
{
    const int64_t n = model->config.width, hidden = gpt_mine(model, &model->expert_hidden);
    int64_t expert;
    gpt_apply_weight(model, model->tokens, n, model->config.experts, pending->dlogits, kept->h_2,
                     dw[GPT_ROUTER]);
    for (expert = 0; expert < model->my_experts; expert++) {
        const int64_t count = (*kept->route)->count[expert], one = expert * hidden * n;
        const gpt_kept rows = gpt_rows_of(model, kept, expert);
        const gpt_pending deltas = gpt_gradient_rows_of(model, kept, pending, expert);
        gpt_apply_weight(model, count, hidden, n, deltas.results, rows.rows_act,
                         dw[GPT_EXPERT_DOWN] + one);
        gpt_apply_weight(model, count, n, hidden, deltas.rows_up, rows.rows,
                         dw[GPT_EXPERT_UP] + one);
        if (rows.rows_gate != NULL) {
            gpt_apply_weight(model, count, n, hidden, deltas.rows_gate, rows.rows,
                             dw[GPT_EXPERT_GATE] + one);
        }
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static inline dpar_status gpt_block(gpt *model, int32_t layer, const gpt_real *const *weights,
                                    gpt_batch *batch, const gpt_real *in, gpt_real *out,
                                    const gpt_kept *kept)
{
    const int64_t n = model->config.width;
    const int64_t own = model->own * n;
    const int64_t q = model->heads_width;
    const int64_t kv = model->groups_width;
    gpt_copy(model, kept->x, in, own);
    GPT_TRY(gpt_norm(model, kept->x, weights[GPT_NORM_1], weights[GPT_NORM_1_BIAS], kept->norm,
                     kept->h));
    GPT_TRY(gpt_linear(model, DPAR_LINEAR_COLUMN, n, q, weights[GPT_QUERY], kept->h, kept->q));
    GPT_TRY(gpt_linear(model, DPAR_LINEAR_COLUMN, n, kv, weights[GPT_KEY], kept->h, kept->k));
    GPT_TRY(gpt_linear(model, DPAR_LINEAR_COLUMN, n, kv, weights[GPT_VALUE], kept->h, kept->v));
    GPT_TRY(gpt_attend(model, kept));
    GPT_TRY(gpt_linear(model, DPAR_LINEAR_ROW, q, n, weights[GPT_OUT], kept->mixed, model->own_a));
    gpt_add(model, kept->x_2, kept->x, model->own_a, own);
    GPT_TRY(gpt_norm(model, kept->x_2, weights[GPT_NORM_2], weights[GPT_NORM_2_BIAS], kept->norm_2,
                     kept->h_2));
    GPT_TRY(gpt_mixes(model, layer) ? gpt_mixture(model, layer, weights, batch, kept, model->own_a)
                                    : gpt_mlp(model, layer, weights, kept, model->own_a));
    gpt_add(model, out, kept->x_2, model->own_a, own);
    return DPAR_OK;
}

/* Computes din from dout. Where dw has room for a gradient, it is computed while messages travel.
 */
static inline dpar_status gpt_block_input(gpt *model, int32_t layer, const gpt_real *const *weights,
                                          gpt_real *const *dw, const gpt_batch *batch,
                                          const gpt_real *dout, gpt_real *din, const gpt_kept *kept,
                                          const gpt_pending *pending)
{
    const int64_t n = model->config.width, q = model->heads_width, kv = model->groups_width;
    GPT_TRY(gpt_gather(model, dout, pending->dy));
    GPT_TRY(gpt_mixes(model, layer)
                ? gpt_mixture_input(model, layer, weights, batch, kept, pending, model->own_a)
                : gpt_mlp_input(model, layer, weights, dw, kept, pending, model->own_a));
    gpt_norm_back(model, kept->x_2, weights[GPT_NORM_2], kept->norm_2, model->own_a, dout,
                  model->own_c, pending->norm_2);
    GPT_TRY(gpt_gather(model, model->own_c, pending->dmixed));
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_ROW, q, n, weights[GPT_OUT], kept->mixed,
                            pending->dmixed, model->q, dw[GPT_OUT], GPT_ALONE));
    GPT_TRY(gpt_attend_back(model, kept, model->q, pending));
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_COLUMN, n, q, weights[GPT_QUERY], kept->h,
                            pending->dq, model->own_a, dw[GPT_QUERY], GPT_BEGIN));
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_COLUMN, n, kv, weights[GPT_KEY], kept->h,
                            pending->dk, model->own_a, dw[GPT_KEY], GPT_GO_ON));
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_COLUMN, n, kv, weights[GPT_VALUE], kept->h,
                            pending->dv, model->own_a, dw[GPT_VALUE], GPT_END));
    gpt_norm_back(model, kept->x, weights[GPT_NORM_1], kept->norm, model->own_a, model->own_c, din,
                  pending->norm);
    return DPAR_OK;
}

/* Computes the gradients of weights; with `both`, only those that gpt_block_input left out. */
static inline void gpt_block_weight(gpt *model, int32_t layer, gpt_real *const *dw, int both,
                                    const gpt_kept *kept, const gpt_pending *pending)
{
    const int64_t n = model->config.width, q = model->heads_width, kv = model->groups_width;
    const int64_t hidden = gpt_mine(model, gpt_hidden(model, layer));
    gpt_norm_weight(model, pending->norm, dw[GPT_NORM_1], dw[GPT_NORM_1_BIAS]);
    gpt_norm_weight(model, pending->norm_2, dw[GPT_NORM_2], dw[GPT_NORM_2_BIAS]);
    if (!both) {
        gpt_apply_weight(model, model->tokens, q, n, pending->dmixed, kept->mixed, dw[GPT_OUT]);
        gpt_apply_weight(model, model->tokens, n, q, pending->dq, kept->h, dw[GPT_QUERY]);
        gpt_apply_weight(model, model->tokens, n, kv, pending->dk, kept->h, dw[GPT_KEY]);
        gpt_apply_weight(model, model->tokens, n, kv, pending->dv, kept->h, dw[GPT_VALUE]);
    }
    if (gpt_mixes(model, layer)) {
        gpt_mixture_weight(model, dw, kept, pending);
    }
    if (gpt_mixes(model, layer) ? model->config.shared > 0
                                : !both) { /* the mlp, or the shared expert */
        gpt_apply_weight(model, model->tokens, hidden, n, pending->dy, kept->act, dw[GPT_DOWN]);
        gpt_apply_weight(model, model->tokens, n, hidden, pending->dup, kept->h_2, dw[GPT_UP]);
        if (kept->gate != NULL) {
            gpt_apply_weight(model, model->tokens, n, hidden, pending->dgate, kept->h_2,
                             dw[GPT_GATE]);
        }
    }
}

/* ---- the head -------------------------------------------------------------------------------- */

static inline dpar_cross_entropy gpt_entropy(const gpt *model)
{
    dpar_cross_entropy entropy;
    memset(&entropy, 0, sizeof entropy);
    entropy.vocab = model->vocab;
    entropy.smoothing = model->config.smoothing;
    entropy.z_loss = model->config.z_loss;
    return entropy;
}

static inline dpar_cross_entropy_arrays gpt_entropy_arrays(const gpt *model, const gpt_batch *batch,
                                                           const gpt_kept *kept)
{
    dpar_cross_entropy_arrays arrays;
    memset(&arrays, 0, sizeof arrays);
    arrays.logits = kept->logits;
    arrays.targets = batch->targets;
    arrays.lse = kept->lse;
    arrays.scratch = model->entropy;
    return arrays;
}

static inline dpar_status gpt_head(gpt *model, const gpt_real *const *weights, gpt_batch *batch,
                                   const gpt_real *in, const gpt_kept *kept)
{
    const int64_t n = model->config.width, rows = dpar_vocab_row_count(&model->vocab);
    const dpar_cross_entropy entropy = gpt_entropy(model);
    dpar_cross_entropy_sum sum = {0.0, 0.0, 0};
    dpar_cross_entropy_arrays arrays = gpt_entropy_arrays(model, batch, kept);
    arrays.sum = batch->sum != NULL ? batch->sum : &sum;
    gpt_copy(model, kept->x, in, model->own * n);
    GPT_TRY(gpt_norm(model, kept->x, weights[GPT_NORM_1], weights[GPT_NORM_1_BIAS], kept->norm,
                     kept->h));
    GPT_TRY(
        gpt_linear(model, DPAR_LINEAR_COLUMN, n, rows, weights[GPT_TABLE], kept->h, kept->logits));
    GPT_TRY(dpar_cross_entropy_forward(&model->tensor, &entropy, &arrays));
    batch->loss += sum.loss + sum.z_loss;
    batch->counted += (double)sum.tokens;
    return DPAR_OK;
}

/* Turns the logits in `kept` into their gradients, in place. */
static inline dpar_status gpt_head_input(gpt *model, const gpt_real *const *weights,
                                         gpt_real *const *dw, const gpt_batch *batch, gpt_real *din,
                                         const gpt_kept *kept, const gpt_pending *pending)
{
    const int64_t n = model->config.width, rows = dpar_vocab_row_count(&model->vocab);
    const dpar_cross_entropy entropy = gpt_entropy(model);
    const dpar_cross_entropy_arrays arrays = gpt_entropy_arrays(model, batch, kept);
    GPT_TRY(dpar_cross_entropy_backward(&model->tensor, &entropy, &arrays, batch->scale));
    GPT_TRY(gpt_linear_back(model, DPAR_LINEAR_COLUMN, n, rows, weights[GPT_TABLE], kept->h,
                            kept->logits, model->own_a, dw[GPT_TABLE], GPT_ALONE));
    gpt_norm_back(model, kept->x, weights[GPT_NORM_1], kept->norm, model->own_a, NULL, din,
                  pending->norm);
    return DPAR_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Computes out from in, both this rank's rows. The embedding has no in and the head no out. The
 * caller may reuse in afterwards. COLLECTIVE over tp and cp, with experts also over ep and data.
 * Errors are those of the layers; the communicator's why has the message. */
static inline dpar_status gpt_forward(gpt *model, int32_t layer, const gpt_real *const *weights,
                                      gpt_batch *batch, const gpt_real *in, gpt_real *out,
                                      void *kept)
{
    const gpt_kept arrays = gpt_kept_in(model, layer, kept, batch);
    if (layer == 0) {
        return gpt_embed(model, weights, batch, out);
    }
    if (layer > model->config.blocks) {
        return gpt_head(model, weights, batch, in, &arrays);
    }
    return gpt_block(model, layer, weights, batch, in, out, &arrays);
}

/* parts: GPT_INPUT, ... dout and din have the shapes of out and in and may not share memory. Adds
 * to the gradients. COLLECTIVE like gpt_forward, except where parts ask for weights alone. */
static inline dpar_status gpt_backward(gpt *model, int32_t layer, int32_t parts,
                                       const gpt_real *const *weights, gpt_real *const *gradients,
                                       const gpt_batch *batch, const gpt_real *dout, gpt_real *din,
                                       void *kept, void *pending)
{
    const int both = parts == GPT_BOTH, head = layer > model->config.blocks;
    gpt_real *const none[GPT_SLOTS] = {NULL}, *const *dw = both ? gradients : none;
    const gpt_kept arrays = gpt_kept_in(model, layer, kept, batch);
    gpt_pending deltas;
    gpt_lay_pending(model, layer, pending != NULL ? pending : model->pending, &deltas);
    if (parts & GPT_INPUT) {
        if (layer == 0) {
            GPT_TRY(gpt_gather(model, dout, deltas.dy));
        } else if (head) {
            GPT_TRY(gpt_head_input(model, weights, dw, batch, din, &arrays, &deltas));
        } else {
            GPT_TRY(gpt_block_input(model, layer, weights, dw, batch, dout, din, &arrays, &deltas));
        }
    }
    if (!(parts & GPT_WEIGHT)) {
        return DPAR_OK;
    }
    if (layer == 0) {
        return gpt_embed_weight(model, gradients, batch, deltas.dy);
    }
    if (!head) {
        gpt_block_weight(model, layer, gradients, both, &arrays, &deltas);
        return DPAR_OK;
    }
    if (!both) {
        gpt_apply_weight(model, model->tokens, model->config.width,
                         dpar_vocab_row_count(&model->vocab), arrays.logits, arrays.h,
                         gradients[GPT_TABLE]);
    }
    gpt_norm_weight(model, deltas.norm, gradients[GPT_NORM_1], gradients[GPT_NORM_1_BIAS]);
    return DPAR_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

/* What the length of a parameter's dim is. */
enum {
    GPT_NOTHING,
    GPT_WIDTH,
    GPT_IDS, /* tp cuts this one and those below up to EXPERT_HIDDEN */
    GPT_HEADS,
    GPT_GROUPS,
    GPT_HIDDEN,
    GPT_EXPERT_HIDDEN,
    GPT_EXPERTS, /* ep cuts this one */
    GPT_PLACES,
    GPT_CHOICES
};
typedef struct gpt_slot {
    const char *name;
    int32_t dim[3];
} gpt_slot;
static const gpt_slot gpt_slots[GPT_SLOTS] = {
    {"table", {GPT_IDS, GPT_WIDTH, 0}},
    {"position", {GPT_PLACES, GPT_WIDTH, 0}},
    {"norm", {GPT_WIDTH, 0, 0}},
    {"norm_bias", {GPT_WIDTH, 0, 0}},
    {"query", {GPT_HEADS, GPT_WIDTH, 0}},
    {"key", {GPT_GROUPS, GPT_WIDTH, 0}},
    {"value", {GPT_GROUPS, GPT_WIDTH, 0}},
    {"out", {GPT_WIDTH, GPT_HEADS, 0}},
    {"norm2", {GPT_WIDTH, 0, 0}},
    {"norm2_bias", {GPT_WIDTH, 0, 0}},
    {"gate", {GPT_HIDDEN, GPT_WIDTH, 0}},
    {"up", {GPT_HIDDEN, GPT_WIDTH, 0}},
    {"down", {GPT_WIDTH, GPT_HIDDEN, 0}},
    {"router", {GPT_CHOICES, GPT_WIDTH, 0}},
    {"expert_gate", {GPT_EXPERTS, GPT_EXPERT_HIDDEN, GPT_WIDTH}},
    {"expert_up", {GPT_EXPERTS, GPT_EXPERT_HIDDEN, GPT_WIDTH}},
    {"expert_down", {GPT_EXPERTS, GPT_WIDTH, GPT_EXPERT_HIDDEN}},
};

static inline int gpt_has(const gpt *model, int32_t layer, int32_t slot)
{
    const int block = layer > 0 && layer <= model->config.blocks, mixes = gpt_mixes(model, layer);
    switch (slot) {
    case GPT_TABLE: return !block;
    case GPT_POSITION: return layer == 0;
    case GPT_NORM_1: return layer > 0;
    case GPT_NORM_1_BIAS: return layer > 0 && model->config.layer_norm;
    case GPT_NORM_2_BIAS: return block && model->config.layer_norm;
    case GPT_GATE: return block && !model->config.gelu && (!mixes || model->config.shared > 0);
    case GPT_UP:
    case GPT_DOWN: return block && (!mixes || model->config.shared > 0);
    case GPT_ROUTER:
    case GPT_EXPERT_UP:
    case GPT_EXPERT_DOWN: return mixes;
    case GPT_EXPERT_GATE: return mixes && !model->config.gelu;
    default: return block;
    }
}

/* Sets the length of dim d and this rank's piece of it. */
static inline void gpt_dim(const gpt *model, int32_t layer, int32_t kind, int32_t dim,
                           gpt_parameter *parameter)
{
    const gpt_config *config = &model->config;
    const int32_t rank = model->comms.tp->rank;
    const dpar_split *hidden =
        kind == GPT_HIDDEN ? gpt_hidden(model, layer) : &model->expert_hidden;
    int64_t whole = 1, at = 0, local = -1;
    switch (kind) {
    case GPT_WIDTH: whole = config->width; break;
    case GPT_PLACES: whole = config->length; break;
    case GPT_CHOICES: whole = config->experts; break;
    case GPT_IDS:
        whole = config->vocab;
        local = dpar_vocab_row_count(&model->vocab);
        at = rank * local;
        break;
    case GPT_HEADS:
        whole = config->width;
        local = model->heads_width;
        at = model->share.first_query * model->head;
        break;
    case GPT_GROUPS:
        whole = config->groups * model->head;
        local = model->groups_width;
        at = model->share.first_group * model->head;
        break;
    case GPT_HIDDEN:
    case GPT_EXPERT_HIDDEN:
        whole = hidden->count;
        local = gpt_mine(model, hidden);
        at = dpar_split_part_first(hidden, rank);
        break;
    case GPT_EXPERTS:
        whole = config->experts;
        local = model->my_experts;
        at = model->first_expert;
        break;
    default: break;
    }
    parameter->whole[dim] = whole;
    parameter->local[dim] = local < 0 ? whole : local;
    parameter->at[dim] = at;
}

/* Returns 1 and fills *p, or returns 0 if the layer has no such parameter. Local. */
static inline int gpt_parameter_of(const gpt *model, int32_t layer, int32_t slot,
                                   gpt_parameter *parameter)
{
    const int32_t from = slot == GPT_TABLE && model->config.tied ? 0 : layer;
    const int down = slot == GPT_OUT || slot == GPT_DOWN || slot == GPT_EXPERT_DOWN;
    const int word = slot == GPT_TABLE || slot == GPT_POSITION;
    char where[16] = "embedding";
    int32_t dim;
    if (layer < 0 || layer > model->config.blocks + 1 || !gpt_has(model, layer, slot)) {
        return 0;
    }
    memset(parameter, 0, sizeof *parameter);
    for (dim = 0; dim < 3; dim++) {
        parameter->dims += gpt_slots[slot].dim[dim] != GPT_NOTHING;
        gpt_dim(model, layer, gpt_slots[slot].dim[dim], dim, parameter);
    }
    parameter->numel = parameter->local[0] * parameter->local[1] * parameter->local[2];
    if (from > 0) {
        snprintf(where, sizeof where, from > model->config.blocks ? "head" : "block%d", (int)from);
    }
    snprintf(parameter->name, sizeof parameter->name, "%s.%s", where, gpt_slots[slot].name);
    parameter->expert = slot >= GPT_EXPERT_GATE;
    parameter->tied = from != layer;
    parameter->decay = parameter->dims > 1;
    parameter->copies = 1;
    if (slot == GPT_KEY || slot == GPT_VALUE) {
        parameter->copy = model->share.copy;
        parameter->copies = model->share.copies;
        parameter->sum = model->same != NULL ? GPT_SUM_SAME : GPT_SUM_NONE;
    } else if (parameter->dims == 1 || slot == GPT_POSITION || slot == GPT_ROUTER) {
        parameter->copy = model->comms.tp->rank;
        parameter->copies = model->comms.tp->size;
        parameter->sum = model->config.sp && parameter->dims == 1 ? GPT_SUM_TP : GPT_SUM_NONE;
    }
    parameter->mean = slot == GPT_NORM_1 || slot == GPT_NORM_2 ? 1.0 : 0.0;
    if (parameter->dims == 1) {
        parameter->deviation = 0.0;
    } else {
        parameter->deviation =
            word ? 0.02 : 1.0 / sqrt((double)parameter->whole[parameter->dims - 1]);
    }
    if (down) { /* like GPT-2, so that the sum over all blocks does not grow with their number */
        parameter->deviation /= sqrt(2.0 * model->config.blocks);
    }
    parameter->stream = (uint64_t)from * GPT_SLOTS + (uint64_t)slot;
    return 1;
}

/* Writes the initial values of this rank's piece of a parameter. Local. */
static inline void gpt_fill(const gpt *model, const gpt_parameter *parameter, gpt_real *values)
{
    int64_t i;
    for (i = 0; i < parameter->numel; i++) {
        const int64_t x = parameter->at[2] + i % parameter->local[2];
        const int64_t rest = i / parameter->local[2];
        const int64_t y = parameter->at[1] + rest % parameter->local[1];
        const int64_t z = parameter->at[0] + rest / parameter->local[1];
        const int64_t at = (z * parameter->whole[1] + y) * parameter->whole[2] + x;
        double value = parameter->mean;
        if (parameter->deviation > 0.0) {
            value += parameter->deviation *
                     dpar_random_normal(model->config.seed, parameter->stream, (uint64_t)at);
        }
        values[i] =
            z < parameter->whole[0] ? (gpt_real)value : (gpt_real)0; /* padding of the table */
    }
}

/* Sums over tp the gradients of which each rank has a part: those of norms, which with sp come from
 * a rank's own tokens, and those of key-value heads that several ranks have. Call it once when the
 * gradients are complete, before data-parallel ranks sum them. A program that reduces after every
 * micro-batch, from gradients of 0, calls it before each reduction. COLLECTIVE over tp. */
static inline dpar_status gpt_sum(gpt *model, int32_t layer, gpt_real *const *gradients)
{
    dpar_status st = DPAR_OK;
    gpt_parameter parameter;
    int32_t slot;
    for (slot = 0; slot < GPT_SLOTS && st == DPAR_OK; slot++) {
        if (gpt_parameter_of(model, layer, slot, &parameter) && parameter.sum != GPT_SUM_NONE) {
            st = dpar_all_reduce(parameter.sum == GPT_SUM_TP ? model->comms.tp : model->same,
                                 gradients[slot], gradients[slot], parameter.numel, GPT_TYPE,
                                 DPAR_SUM, NULL);
        }
    }
    return st;
}

/* ---- experts balanced by a bias -------------------------------------------------------------- */

/* Call it after a step: moves each bias by `rate` against the expert's load since the last call.
 * The loads count the tokens of all ranks of data, so the biases stay equal on all of them.
 * DeepSeek-V3 uses 0.001. Local. */
static inline void gpt_steer(gpt *model, double rate)
{
    const int32_t experts = model->config.experts;
    int32_t layer, i;
    double all;
    for (layer = 1; layer <= model->config.blocks; layer++) {
        double *const bias = model->bias + (layer - 1) * experts;
        double *const chosen = model->load + (layer - 1) * experts;
        if (gpt_mixes(model, layer)) {
            all = 0.0;
            for (i = 0; i < experts; i++) {
                all += chosen[i];
            }
            /* The loads are whole numbers, so that the comparison is exact. */
            for (i = 0; i < experts; i++) {
                if (chosen[i] * experts < all) {
                    bias[i] += rate;
                } else if (chosen[i] * experts > all) {
                    bias[i] -= rate;
                }
            }
            memset(chosen, 0, (size_t)experts * sizeof *chosen);
        }
    }
}

/* The biases [experts] of a layer, which checkpoints keep, or NULL if it has none. Local. */
static inline double *gpt_bias(gpt *model, int32_t layer)
{
    return gpt_mixes(model, layer) ? model->bias + (layer - 1) * model->config.experts : NULL;
}

/* ---- planning -------------------------------------------------------------------------------- */

static inline dpar_status gpt_check(const gpt_config *config, const gpt_comms *comms, dpar_why *why)
{
    if (config->vocab < 2 || config->width < 1 || config->blocks < 0 || config->heads < 1 ||
        config->hidden < 1 || config->length < 1 || config->samples < 1 ||
        config->samples > GPT_SAMPLES) {
        return gpt_refuse(why,
                          "vocab must be 2 or more, width, heads, hidden and length 1 or more, "
                          "samples 1 to 256");
    }
    if (config->groups < 1 || config->heads % config->groups != 0 ||
        config->width % config->heads != 0) {
        return gpt_refuse(why, "groups must divide heads, and heads must divide width");
    }
    if (config->experts < 0 || config->shared < 0 || (config->experts > 0 && config->choices < 1) ||
        config->every < 1) {
        return gpt_refuse(why,
                          "with experts, choices and every must be 1 or more, and no number of "
                          "experts may be negative");
    }
    if (comms->tp == NULL || comms->cp == NULL || comms->ep == NULL || comms->data == NULL) {
        return gpt_refuse(why, "tp, cp, ep and data must all be set, if only to one rank");
    }
    return gpt_cannot(config, comms) != NULL ? gpt_refuse(why, gpt_cannot(config, comms)) : DPAR_OK;
}

/* Turns the DPAR_E_ROOM of a plan that was given too little memory into the bytes that it needs. */
static inline dpar_status gpt_asked(dpar_status st, const dpar_why *why, int64_t *bytes)
{
    if (st != DPAR_E_ROOM) {
        return st;
    }
    *bytes = why->bytes;
    return DPAR_OK;
}

static inline dpar_status gpt_plan_attention(gpt *model, dpar_why *why)
{
    const gpt_config *config = &model->config;
    dpar_comm *cp = model->comms.cp;
    int32_t i;
    dpar_attention_desc *desc = &model->attention;
    for (i = 0; i <= config->samples; i++) {
        model->ends[i] = (int64_t)i * config->length;
    }
    GPT_TRY(dpar_packed_init(&desc->tokens, config->samples, model->ends, cp->size,
                             DPAR_SPLIT_ZIGZAG, why));
    desc->heads = model->share.queries;
    desc->groups = model->share.groups;
    desc->width = (int32_t)model->head;
    desc->type = GPT_TYPE;
    desc->causal = 1;
    desc->forward = gpt_attend_block;
    desc->backward = gpt_attend_block_back;
    desc->user = model;
    model->tokens = dpar_packed_rank_count(&desc->tokens, cp->rank, NULL);
    if (config->ulysses) {
        GPT_TRY(dpar_split_init(&model->cut, DPAR_SPLIT_EVEN, model->whole, cp->size, 1, why));
        desc->method = dpar_attention_ulysses;
        desc->tokens.rule = DPAR_SPLIT_EVEN;
        model->tokens = dpar_split_part_count(&model->cut, cp->rank);
    }
    desc->bytes = 1; /* too few, so that the call says how many it needs */
    return gpt_asked(dpar_attention_make(cp, desc, &model->attend, why), why,
                     &model->plan_bytes[0]);
}

static inline dpar_status gpt_plan_experts(gpt *model, dpar_why *why)
{
    const gpt_config *config = &model->config;
    dpar_comm *ep = model->comms.ep;
    dpar_experts_desc *desc = &model->layer;
    int32_t rank;
    if (config->experts == 0) {
        return DPAR_OK;
    }
    GPT_TRY(dpar_split_init(&desc->experts, DPAR_SPLIT_EVEN, config->experts, ep->size, 1, why));
    model->first_expert = dpar_split_part_first(&desc->experts, ep->rank);
    model->my_experts = dpar_split_part_count(&desc->experts, ep->rank);
    desc->choices = config->choices;
    desc->drop = config->drop;
    desc->capacity_factor = config->factor;
    desc->width = config->width;
    desc->type = GPT_TYPE;
    /* max_tokens is that of the rank with most tokens. */
    for (rank = 0; rank < model->comms.cp->size; rank++) {
        const int64_t n = config->ulysses
                              ? dpar_split_part_count(&model->cut, rank)
                              : dpar_packed_rank_count(&model->attention.tokens, rank, NULL);
        desc->max_tokens = n > desc->max_tokens ? n : desc->max_tokens;
    }
    /* Room for all rows that could come or, if the config says so, for config->rows even shares. */
    model->rows = ep->size * desc->max_tokens *
                  (config->choices < model->my_experts ? config->choices : model->my_experts);
    if (config->drop == DPAR_EXPERTS_DROP_NONE && config->rows > 0.0) {
        const double even =
            (double)(ep->size * desc->max_tokens * config->choices * model->my_experts);
        const int64_t some = (int64_t)ceil(even / config->experts * config->rows);
        desc->max_rows = some < model->rows ? some : model->rows;
        model->rows = desc->max_rows;
    }
    GPT_TRY(
        dpar_experts_make(ep, desc, &model->experts, why)); /* for the size of a routing alone */
    model->routing = model->experts->routing_bytes;
    GPT_TRY(dpar_experts_free(model->experts));
    model->experts = NULL;
    desc->bytes = 1; /* too few, so that the call says how many it needs */
    return gpt_asked(dpar_experts_make(ep, desc, &model->experts, why), why, &model->plan_bytes[1]);
}

/* Sets everything except the plans, which only say how many bytes they need. COLLECTIVE. */
static inline dpar_status gpt_plan(gpt *model, const gpt_config *config, const gpt_comms *comms,
                                   dpar_why *why)
{
    gpt_config *filled = &model->config;
    dpar_comm *tp = comms->tp;
    int32_t ranks;
    memset(model, 0, sizeof *model);
    *filled = *config;
    filled->groups = filled->groups > 0 ? filled->groups : filled->heads;
    filled->every = filled->every > 0 ? filled->every : 1;
    filled->expert_hidden = filled->expert_hidden > 0 ? filled->expert_hidden : filled->hidden;
    model->comms = *comms;
    GPT_TRY(gpt_check(filled, comms, why));
    ranks = tp->size;
    GPT_TRY(
        dpar_heads_init(&model->heads, filled->heads, filled->groups, ranks, DPAR_SPLIT_EVEN, why));
    GPT_TRY(dpar_vocab_init(&model->vocab, filled->vocab, 0, ranks, ranks, why));
    GPT_TRY(dpar_split_init(&model->hidden, DPAR_SPLIT_EVEN, filled->hidden, ranks, 1, why));
    GPT_TRY(dpar_split_init(&model->shared, DPAR_SPLIT_EVEN, filled->shared, ranks, 1, why));
    GPT_TRY(dpar_split_init(&model->expert_hidden, DPAR_SPLIT_EVEN, filled->expert_hidden, ranks, 1,
                            why));
    if ((ranks + filled->groups - 1) / filled->groups > filled->heads / filled->groups) {
        return gpt_refuse(why, "there are more tensor-parallel ranks than heads for them");
    }
    model->share = dpar_heads_local(&model->heads, tp->rank);
    model->whole = (int64_t)filled->samples * filled->length;
    model->head = filled->width / filled->heads;
    model->heads_width = model->share.queries * model->head;
    model->groups_width = model->share.groups * model->head;
    GPT_TRY(gpt_plan_attention(model, why));
    GPT_TRY(dpar_tensor_parallel_init(&model->tensor, tp, GPT_TYPE, model->tokens, NULL, why));
    model->tensor.matmul = gpt_matmul;
    model->tensor.user = model;
    model->first = filled->sp ? dpar_split_part_first(&model->tensor.tokens, tp->rank) : 0;
    model->own =
        filled->sp ? dpar_split_part_count(&model->tensor.tokens, tp->rank) : model->tokens;
    return gpt_plan_experts(model, why);
}

/* Divides the memory among the arrays, or counts how much they need. */
static inline void gpt_lay(gpt *model, gpt_room *pieces)
{
    gpt_room *const plans = &pieces[GPT_PLANS], *const arrays = &pieces[GPT_ARRAYS];
    gpt_room *const shared = GPT_APART ? &pieces[GPT_SHARED] : arrays;
    const int64_t n = model->tokens;
    const int64_t width = model->config.width;
    const int64_t own = model->own * width;
    const int64_t experts = model->config.experts;
    int64_t most = model->heads_width * n, pending = 0, i;
    const int64_t wide[3] = {n * gpt_mine(model, &model->hidden),
                             n * gpt_mine(model, &model->shared),
                             model->rows * gpt_mine(model, &model->expert_hidden)};
    for (i = 0; i < 3; i++) {
        most = wide[i] > most ? wide[i] : most;
    }
    for (i = 0; i <= model->config.blocks + 1; i++) {
        const int64_t bytes = gpt_pending_bytes(model, (int32_t)i);
        pending = bytes > pending ? bytes : pending;
    }
    for (i = 0; i < 2; i++) {
        model->plan_memory[i] = gpt_take(plans, model->plan_bytes[i], 1);
    }
    model->counts = (int64_t *)gpt_take(plans, model->comms.tp->size, sizeof *model->counts);
    model->rows_of = (int64_t *)gpt_take(plans, model->comms.tp->size, sizeof *model->rows_of);
    model->position = (int32_t *)gpt_take(arrays, n, sizeof *model->position);
    model->bias = (double *)gpt_take(plans, model->config.blocks * experts, sizeof *model->bias);
    model->load = (double *)gpt_take(plans, model->config.blocks * experts, sizeof *model->load);
    model->few = (double *)gpt_take(plans, 2 * experts, sizeof *model->few);
    model->own_a = gpt_take_real(arrays, own);
    model->own_b = gpt_take_real(arrays, own);
    model->own_c = gpt_take_real(arrays, own);
    model->all = gpt_take_real(arrays, n * width);
    model->part = gpt_take_real(arrays, experts > 0 ? n * width : 0);
    model->dweight = gpt_take_real(shared, n * model->config.choices);
    model->dlogits = gpt_take_real(shared, GPT_APART ? n * experts : 0);
    model->expert_rows = gpt_take_real(arrays, model->rows * width);
    model->q = gpt_take_real(arrays, n * model->heads_width);
    model->scores = gpt_take_real(arrays, 2 * GPT_ROWS * model->config.length);
    model->wide = gpt_take_real(arrays, most);
    if (model->config.ulysses) {
        model->k = gpt_take_real(arrays, n * model->groups_width);
        model->v = gpt_take_real(arrays, n * model->groups_width);
    }
    model->entropy = gpt_take_real(arrays, 3 * n * (model->comms.tp->size + 1));
    model->pending = gpt_take(arrays, pending, 1);
}

/* Sets bytes[GPT_PIECES], the sizes of the memory that gpt_init needs: GPT_PLANS on the host,
 * GPT_ARRAYS where the model computes, and GPT_SHARED (0 without a device) where both can read it.
 * DPAR_E_ARG and other errors leave a message in why. COLLECTIVE. */
static inline dpar_status gpt_bytes(const gpt_config *config, const gpt_comms *comms,
                                    int64_t *bytes, dpar_why *why)
{
    gpt model;
    gpt_room pieces[GPT_PIECES];
    int32_t i;
    memset(pieces, 0, sizeof pieces);
    GPT_TRY(gpt_plan(&model, config, comms, why));
    gpt_take(&pieces[GPT_PLANS], 1, sizeof model);
    gpt_lay(&model, pieces);
    for (i = 0; i < GPT_PIECES; i++) {
        bytes[i] = pieces[i].used;
    }
    return DPAR_OK;
}

/* The place in the micro-batch of this rank's token i, or -1 if the rank has fewer tokens. */
static inline int64_t gpt_place(const gpt *model, int64_t i)
{
    dpar_packed_cursor cursor = {0, 0};
    int64_t first, count;
    int32_t doc;
    if (model->config.ulysses) {
        return dpar_split_part_first(&model->cut, model->comms.cp->rank) + i;
    }
    while (dpar_packed_next(&model->attention.tokens, model->comms.cp->rank, &cursor, &doc, &first,
                            &count)) {
        if (i < count) {
            return first + i;
        }
        i -= count;
    }
    return -1;
}

/* Copies this rank's tokens of a micro-batch to mine[model->tokens]. Token t of sample s is
 * whole[s * stride + t]. Local. */
static inline void gpt_pick(const gpt *model, const int32_t *whole, int64_t stride, int32_t *mine)
{
    int64_t i;
    for (i = 0; i < model->tokens; i++) {
        const int64_t at = gpt_place(model, i);
        mine[i] = whole[at / model->config.length * stride + at % model->config.length];
    }
}

/* Fills model->position with the position of each token in its sample. */
static inline void gpt_put_positions(const gpt *model)
{
    int32_t some[256];
    int64_t i, n;
    for (i = 0; i < model->tokens; i += n) {
        for (n = 0; n < 256 && i + n < model->tokens; n++) {
            some[n] = (int32_t)(gpt_place(model, i + n) % model->config.length);
        }
        gpt_put(model, model->position + i, some, n * (int64_t)sizeof *some);
    }
}

/* Makes the model in the caller's pieces of memory, which are aligned to 64 bytes. Memory of
 * dpar_comm_alloc is fastest; the plans need memory of the host. COLLECTIVE over all four comms. */
static inline dpar_status gpt_init(void *const *memory, const int64_t *bytes,
                                   const gpt_config *config, const gpt_comms *comms, gpt **made,
                                   dpar_why *why)
{
    gpt_room pieces[GPT_PIECES];
    gpt *model = (gpt *)memory[GPT_PLANS];
    int64_t need[GPT_PIECES], i;
    GPT_TRY(gpt_bytes(config, comms, need, why));
    memset(pieces, 0, sizeof pieces);
    for (i = 0; i < GPT_PIECES; i++) {
        pieces[i].memory = (char *)memory[i];
        if (bytes[i] < need[i]) {
            return gpt_refuse(why, "gpt_init was given less memory than gpt_bytes returned");
        }
    }
    GPT_TRY(gpt_plan(model, config, comms, why));
    gpt_take(&pieces[GPT_PLANS], 1, sizeof *model);
    gpt_lay(model, pieces);
    model->tensor.counts = model->config.sp ? model->counts : NULL;
    for (i = 0; i < comms->tp->size; i++) {
        model->rows_of[i] =
            dpar_split_part_count(&model->tensor.tokens, (int32_t)i) * model->config.width;
    }
    gpt_put_positions(model);
    for (i = 0; i < (int64_t)model->config.blocks * model->config.experts; i++) {
        model->bias[i] = model->load[i] = 0.0;
    }
    model->attention.memory = model->plan_memory[0];
    model->attention.bytes = model->plan_bytes[0];
    GPT_TRY(dpar_attention_make(comms->cp, &model->attention, &model->attend, why));
    if (model->config.experts > 0) {
        model->layer.memory = model->plan_memory[1];
        model->layer.bytes = model->plan_bytes[1];
        GPT_TRY(dpar_experts_make(comms->ep, &model->layer, &model->experts, why));
    }
    if (model->config.groups < comms->tp->size) { /* several ranks have the same keys and values */
        GPT_TRY(
            dpar_comm_split(comms->tp, model->share.first_group, comms->tp->rank, &model->same));
    }
    gpt_open_products(model);
    *made = model;
    return DPAR_OK;
}

/* Frees the plans of the model, which may be NULL. COLLECTIVE. */
static inline dpar_status gpt_close(gpt *model)
{
    const dpar_status st = model != NULL ? dpar_attention_free(model->attend) : DPAR_OK;
    const dpar_status closed = model != NULL ? dpar_comm_free(model->same) : DPAR_OK;
    if (model != NULL) {
        dpar_experts_free(model->experts);
        gpt_close_products(model);
    }
    return st < 0 ? st : closed;
}

/* The number of layers of the whole model, with the embedding and the head. Local. */
static inline int32_t gpt_layers(const gpt *model)
{
    return model->config.blocks + 2;
}

#endif
