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
 * Include dpar.h before it. Needs -lm; best with -O3 -march=native. */
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
    double smoothing, z; /* of the cross-entropy */
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

static inline void *gpt_take(gpt_room *r, int64_t n, size_t each)
{
    void *at = r->memory == NULL ? NULL : r->memory + r->used;
    r->used += (n * (int64_t)each + 63) / 64 * 64;
    return at;
}

static inline gpt_real *gpt_take_real(gpt_room *r, int64_t n)
{
    return (gpt_real *)gpt_take(r, n, sizeof(gpt_real));
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
static inline int gpt_mixes(const gpt *g, int32_t layer)
{
    return g->config.experts > 0 && layer > 0 && layer <= g->config.blocks &&
           layer % g->config.every == 0;
}

/* Features of the mlp, or of the shared expert. */
static inline const dpar_split *gpt_hidden(const gpt *g, int32_t layer)
{
    return gpt_mixes(g, layer) ? &g->shared : &g->hidden;
}

static inline int64_t gpt_mine(const gpt *g, const dpar_split *s)
{
    return dpar_split_part_count(s, g->comms.tp->rank);
}

/* ---- arithmetic ------------------------------------------------------------------------------ */

/* The matrix product that layers use. */
static inline dpar_status gpt_matmul(void *user, const dpar_matmul *p);

/* Computes c = alpha op(a) op(b), or adds it to c, for matrices of this rank. */
static inline void gpt_multiply(gpt *g, int add, int64_t m, int64_t n, int64_t k, double alpha,
                                const gpt_real *a, int64_t lda, int transpose_a, const gpt_real *b,
                                int64_t ldb, int transpose_b, gpt_real *c, int64_t ldc)
{
    dpar_matmul p;
    memset(&p, 0, sizeof p);
    p.type = GPT_TYPE;
    p.transpose_a = transpose_a;
    p.transpose_b = transpose_b;
    p.m = m;
    p.n = n;
    p.k = k;
    p.alpha = alpha;
    p.beta = add ? 1.0 : 0.0;
    p.a = a;
    p.b = b;
    p.c = c;
    p.lda = lda;
    p.ldb = ldb;
    p.ldc = ldc;
    (void)gpt_matmul(g, &p);
}

/* y = x w^T; dx (+)= dy w; dw += dy^T x: of n rows. */
static inline void gpt_apply(gpt *g, int64_t n, int64_t in, int64_t out, const gpt_real *x,
                             const gpt_real *w, gpt_real *y, int add)
{
    gpt_multiply(g, add, n, out, in, 1.0, x, in, 0, w, in, 1, y, out);
}

static inline void gpt_apply_input(gpt *g, int64_t n, int64_t in, int64_t out, const gpt_real *dy,
                                   const gpt_real *w, gpt_real *dx, int add)
{
    gpt_multiply(g, add, n, in, out, 1.0, dy, out, 0, w, in, 0, dx, in);
}

static inline void gpt_apply_weight(gpt *g, int64_t n, int64_t in, int64_t out, const gpt_real *dy,
                                    const gpt_real *x, gpt_real *dw)
{
    gpt_multiply(g, 1, out, in, n, 1.0, dy, out, 1, x, in, 0, dw, in);
}

/* SwiGLU: gate sigmoid(gate) up. GELU: as GPT-2 has it, with a tanh, written as a sigmoid:
 * up sigmoid(2 c (up + d up^3)). On a device in gpt_real, on the host in f64. */
#ifdef GPT_CUDA
#define GPT_FUNCTION __host__ __device__ static inline
typedef gpt_real gpt_wide;
#else
#define GPT_FUNCTION static inline
typedef double gpt_wide;
#endif
#define GPT_GELU_C ((gpt_wide)0.7978845608028654) /* sqrt(2 / pi) */
#define GPT_GELU_D ((gpt_wide)0.044715)

GPT_FUNCTION gpt_wide gpt_sigmoid(gpt_wide x)
{
    return 1 / (1 + exp(-x));
}

GPT_FUNCTION gpt_real gpt_swiglu(gpt_real gate, gpt_real up)
{
    const gpt_wide u = (gpt_wide)up, x = (gpt_wide)gate;
    return (gpt_real)(gpt_sigmoid(x) * u * x);
}

GPT_FUNCTION void gpt_swiglu_back(gpt_real gate, gpt_real up, gpt_real dact, gpt_real *dgate,
                                  gpt_real *dup)
{
    const gpt_wide u = (gpt_wide)up, x = (gpt_wide)gate, d = (gpt_wide)dact, s = gpt_sigmoid(x);
    *dgate = (gpt_real)(d * u * s * (1 + x * (1 - s)));
    *dup = (gpt_real)(d * x * s);
}

GPT_FUNCTION gpt_real gpt_gelu(gpt_real up)
{
    const gpt_wide u = (gpt_wide)up, c = 2 * GPT_GELU_C;
    return (gpt_real)(gpt_sigmoid(c * (u + GPT_GELU_D * u * u * u)) * u);
}

GPT_FUNCTION gpt_real gpt_gelu_back(gpt_real up, gpt_real dact)
{
    const gpt_wide u = (gpt_wide)up, d = (gpt_wide)dact, c = 2 * GPT_GELU_C;
    const gpt_wide s = gpt_sigmoid(c * (u + GPT_GELU_D * u * u * u));
    return (gpt_real)(d * s * (1 + u * (1 - s) * c * (1 + 3 * GPT_GELU_D * u * u)));
}

#ifdef GPT_CUDA
#include "gpt_cuda.h"
#else
#include "gpt_host.h"
#endif

/* ---- layers that are divided over tp: tensor.h ----------------------------------------------- */

/* Gathers the rows of all ranks. */
static inline dpar_status gpt_gather(gpt *g, const gpt_real *own, gpt_real *all)
{
    if (g->config.sp) {
        return dpar_all_gather_v(g->comms.tp, own, all, g->rows_of, NULL, GPT_TYPE, NULL);
    }
    gpt_copy(g, all, own, g->tokens * g->config.width);
    return DPAR_OK;
}

/* Computes this rank's own rows of the sum of the ranks' parts. */
static inline dpar_status gpt_reduce(gpt *g, const gpt_real *part, gpt_real *own)
{
    if (g->config.sp) {
        return dpar_reduce_scatter_v(g->comms.tp, part, own, g->rows_of, GPT_TYPE, DPAR_SUM, NULL);
    }
    return dpar_all_reduce(g->comms.tp, part, own, g->tokens * g->config.width, GPT_TYPE, DPAR_SUM,
                           NULL);
}

/* A linear layer of which this rank has `in` x `out`. Column layers expect x to be gathered. */
static inline dpar_linear gpt_linear_of(gpt *g, int32_t kind, int64_t in, int64_t out,
                                        const gpt_real *w, gpt_real *x, dpar_linear_arrays *a)
{
    dpar_linear l;
    memset(&l, 0, sizeof l);
    memset(a, 0, sizeof *a);
    l.kind = kind;
    l.in = in;
    l.out = out;
    a->w = w;
    a->x = x;
    a->reuse_gathered = 1;
    a->accumulate = 1;
    a->gathered = kind == DPAR_LINEAR_COLUMN ? x : g->all;
    a->gathered_dx = g->all;
    return l;
}

/* Computes y from x, of all tokens; row layers compute y of own tokens only. */
static inline dpar_status gpt_linear(gpt *g, int32_t kind, int64_t in, int64_t out,
                                     const gpt_real *w, gpt_real *x, gpt_real *y)
{
    dpar_linear_arrays a;
    const dpar_linear l = gpt_linear_of(g, kind, in, out, w, x, &a);
    a.y = y;
    return dpar_linear_forward(&g->tensor, &l, &a);
}

/* Column layers that read the same x share one dx, which is reduced after the last of them. */
enum { GPT_ALONE = 0, GPT_BEGIN = 1, GPT_GO_ON = 3, GPT_END = 2 };

/* Computes dx (column layers: of own tokens) from dy of all tokens. If dw is not NULL it is added
 * to while dx is being reduced. */
static inline dpar_status gpt_linear_back(gpt *g, int32_t kind, int64_t in, int64_t out,
                                          const gpt_real *w, gpt_real *x, gpt_real *dy,
                                          gpt_real *dx, gpt_real *dw, int turn)
{
    dpar_linear_arrays a;
    const dpar_linear l = gpt_linear_of(g, kind, in, out, w, x, &a);
    a.dy = dy;
    a.dx = dx;
    a.dw = dw;
    a.gathered = kind == DPAR_LINEAR_COLUMN ? x : dy;
    a.defer_reduce = turn & 1;
    a.accumulate_dx = turn >> 1;
    return dpar_linear_backward(&g->tensor, &l, &a);
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Computes the norm of own rows (gpt_norm_rows), and gathers h of all tokens. */
static inline dpar_status gpt_norm(gpt *g, const gpt_real *x, const gpt_real *scale,
                                   const gpt_real *bias, double *stat, gpt_real *h)
{
    gpt_real *to = g->config.sp ? g->own_b : h;
    gpt_norm_rows(g, x, scale, bias, stat, to);
    return g->config.sp ? gpt_gather(g, to, h) : DPAR_OK;
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

/* Places the arrays that a layer keeps: in r, and those that the host and a device both reach in s,
 * which is r without a device. */
static inline void gpt_lay_kept(const gpt *g, int32_t layer, gpt_room *r, gpt_room *s, gpt_kept *k)
{
    const int64_t n = g->tokens, w = g->config.width, own = g->own * w;
    const int64_t hidden = n * gpt_mine(g, gpt_hidden(g, layer)), e = g->config.experts;
    const int64_t rows = g->rows * gpt_mine(g, &g->expert_hidden);
    memset(k, 0, sizeof *k);
    if (layer == 0) {
        return;
    }
    k->x = gpt_take_real(r, own);
    k->norm = (double *)gpt_take(r, 2 * g->own, sizeof(double));
    k->h = gpt_take_real(r, n * w);
    if (layer > g->config.blocks) {
        k->logits = gpt_take_real(r, n * dpar_vocab_row_count(&g->vocab));
        k->lse = (double *)gpt_take(r, n, sizeof(double));
        return;
    }
    k->q = g->q;
    k->k = g->k;
    k->v = g->v;
    if (g->config.ulysses) {
        k->heads = gpt_take(r, g->attend->saved_bytes, 1);
    } else {
        k->q = gpt_take_real(r, n * g->heads_width);
        k->k = gpt_take_real(r, n * g->groups_width);
        k->v = gpt_take_real(r, n * g->groups_width);
        k->sums = gpt_take_real(r, n * g->heads_width / g->head);
    }
    k->mixed = gpt_take_real(r, n * g->heads_width);
    k->x_2 = gpt_take_real(r, own);
    k->norm_2 = (double *)gpt_take(r, 2 * g->own, sizeof(double));
    k->h_2 = gpt_take_real(r, n * w);
    k->gate = g->config.gelu ? NULL : gpt_take_real(r, hidden);
    k->up = gpt_take_real(r, hidden);
    k->act = gpt_take_real(r, hidden);
    if (gpt_mixes(g, layer)) {
        k->logits = gpt_take_real(s, n * e);
        k->weight = gpt_take_real(s, n * g->config.choices);
        k->chosen = (int32_t *)gpt_take(s, n * g->config.choices, sizeof(int32_t));
        k->loads = (double *)gpt_take(s, 2 * e + 1, sizeof(double));
        k->load = (dpar_router_load *)gpt_take(s, 1, sizeof *k->load);
        k->route = (dpar_experts_routing **)gpt_take(s, 1, sizeof *k->route);
        k->routing = gpt_take(s, g->routing, 1);
        k->rows = gpt_take_real(r, g->rows * w);
        k->rows_gate = g->config.gelu ? NULL : gpt_take_real(r, rows);
        k->rows_up = gpt_take_real(r, rows);
        k->rows_act = gpt_take_real(r, rows);
        k->results = gpt_take_real(r, n * g->config.choices * w);
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

static inline int64_t gpt_lay_pending(const gpt *g, int32_t layer, void *memory, gpt_pending *p)
{
    const int64_t n = g->tokens, w = g->config.width;
    const int64_t hidden = n * gpt_mine(g, gpt_hidden(g, layer));
    const int64_t rows = g->rows * gpt_mine(g, &g->expert_hidden);
    gpt_room r = {NULL, 0};
    r.memory = (char *)memory;
    memset(p, 0, sizeof *p);
    if (layer == 0) {
        p->dy = gpt_take_real(&r, n * w);
        return r.used;
    }
    p->norm = (double *)gpt_take(&r, 2 * w, sizeof(double));
    if (layer > g->config.blocks) {
        return r.used;
    }
    p->norm_2 = (double *)gpt_take(&r, 2 * w, sizeof(double));
    p->dmixed = gpt_take_real(&r, n * w);
    p->dq = gpt_take_real(&r, n * g->heads_width);
    p->dk = gpt_take_real(&r, n * g->groups_width);
    p->dv = gpt_take_real(&r, n * g->groups_width);
    p->dy = gpt_take_real(&r, n * w);
    p->dgate = g->config.gelu ? NULL : gpt_take_real(&r, hidden);
    p->dup = gpt_take_real(&r, hidden);
    if (gpt_mixes(g, layer)) {
        p->dlogits = gpt_take_real(&r, n * g->config.experts);
        p->results = gpt_take_real(&r, g->rows * w);
        p->rows_gate = g->config.gelu ? NULL : gpt_take_real(&r, rows);
        p->rows_up = gpt_take_real(&r, rows);
    }
    return r.used;
}

/* Bytes that a layer keeps from F to B or W, those in batch.shared (gpt_shared_bytes), and those
 * from I to W (gpt_pending_bytes), as multiples of 64. Local. */
static inline int64_t gpt_kept_bytes(const gpt *g, int32_t layer)
{
    gpt_room r = {NULL, 0}, s = {NULL, 0};
    gpt_kept k;
    gpt_lay_kept(g, layer, &r, GPT_APART ? &s : &r, &k);
    return r.used;
}

static inline int64_t gpt_shared_bytes(const gpt *g, int32_t layer)
{
    gpt_room r = {NULL, 0}, s = {NULL, 0};
    gpt_kept k;
    gpt_lay_kept(g, layer, &r, GPT_APART ? &s : &r, &k);
    return s.used;
}

/* The places of the kept arrays. */
static inline gpt_kept gpt_kept_in(const gpt *g, int32_t layer, void *kept, const gpt_batch *b)
{
    gpt_room r = {NULL, 0}, s = {NULL, 0};
    gpt_kept k;
    r.memory = (char *)kept;
    s.memory = (char *)b->shared;
    gpt_lay_kept(g, layer, &r, GPT_APART ? &s : &r, &k);
    return k;
}

static inline int64_t gpt_pending_bytes(const gpt *g, int32_t layer)
{
    gpt_pending p;
    return gpt_lay_pending(g, layer, NULL, &p);
}

/* ---- embedding ------------------------------------------------------------------------------- */

static inline dpar_embedding gpt_embedding(const gpt *g)
{
    dpar_embedding e;
    memset(&e, 0, sizeof e);
    e.vocab = g->vocab;
    e.width = g->config.width;
    return e;
}

static inline dpar_status gpt_embed(gpt *g, const gpt_real *const *w, const gpt_batch *b,
                                    gpt_real *out)
{
    const int64_t n = g->config.width;
    const dpar_embedding e = gpt_embedding(g);
    dpar_embedding_arrays a;
    memset(&a, 0, sizeof a);
    a.ids = b->ids;
    a.table = w[GPT_TABLE];
    a.y = out;
    a.gathered = g->all;
    GPT_TRY(dpar_embedding_forward(&g->tensor, &e, &a));
    gpt_add_rows(g, out, w[GPT_POSITION], g->position + g->first, g->own, n);
    return DPAR_OK;
}

/* Adds to the gradients of the embedding. dy is of all tokens, so that every rank has the whole
 * gradients of positions. */
static inline dpar_status gpt_embed_weight(gpt *g, gpt_real *const *dw, const gpt_batch *b,
                                           const gpt_real *dy)
{
    const int64_t width = g->config.width;
    const dpar_embedding e = gpt_embedding(g);
    dpar_embedding_arrays a;
    dpar_tensor_parallel all = g->tensor;
    all.counts = NULL; /* dy is gathered already */
    memset(&a, 0, sizeof a);
    a.ids = b->ids;
    a.dy = dy;
    a.dtable = dw[GPT_TABLE];
    a.accumulate = 1;
    gpt_sum_rows(g, dw[GPT_POSITION], dy, g->position, g->tokens, width);
    return dpar_embedding_backward(&all, &e, &a);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Attention by the ring or by Ulysses, as it was planned. */
static inline dpar_attention_arrays gpt_attention_arrays(const gpt_kept *k)
{
    dpar_attention_arrays a;
    memset(&a, 0, sizeof a);
    a.q = k->q;
    a.k = k->k;
    a.v = k->v;
    a.out = k->mixed;
    a.lse = k->sums;
    a.saved = k->heads;
    return a;
}

static inline dpar_status gpt_attend(gpt *g, const gpt_kept *k)
{
    const dpar_attention_arrays a = gpt_attention_arrays(k);
    return dpar_attention_forward(g->attend, &a);
}

static inline dpar_status gpt_attend_back(gpt *g, const gpt_kept *k, const gpt_real *dmixed,
                                          const gpt_pending *p)
{
    dpar_attention_arrays a = gpt_attention_arrays(k);
    a.out_gradient = dmixed;
    a.q_gradient = p->dq;
    a.k_gradient = p->dk;
    a.v_gradient = p->dv;
    return dpar_attention_backward(g->attend, &a);
}

/* ---- the mlp --------------------------------------------------------------------------------- */

static inline dpar_status gpt_mlp(gpt *g, int32_t layer, const gpt_real *const *w,
                                  const gpt_kept *k, gpt_real *y)
{
    const int64_t n = g->config.width, hidden = gpt_mine(g, gpt_hidden(g, layer));
    GPT_TRY(gpt_linear(g, DPAR_LINEAR_COLUMN, n, hidden, w[GPT_UP], k->h_2, k->up));
    if (!g->config.gelu) {
        GPT_TRY(gpt_linear(g, DPAR_LINEAR_COLUMN, n, hidden, w[GPT_GATE], k->h_2, k->gate));
    }
    gpt_activate(g, g->tokens * hidden, k->gate, k->up, k->act);
    return gpt_linear(g, DPAR_LINEAR_ROW, hidden, n, w[GPT_DOWN], k->act, y);
}

/* Computes dh of own tokens from p->dy. */
static inline dpar_status gpt_mlp_input(gpt *g, int32_t layer, const gpt_real *const *w,
                                        gpt_real *const *dw, const gpt_kept *k,
                                        const gpt_pending *p, gpt_real *dh)
{
    const int64_t n = g->config.width, hidden = gpt_mine(g, gpt_hidden(g, layer));
    const int gate = !g->config.gelu;
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_ROW, hidden, n, w[GPT_DOWN], k->act, p->dy, g->wide,
                            dw[GPT_DOWN], GPT_ALONE));
    gpt_activate_back(g, g->tokens * hidden, k->gate, k->up, g->wide, p->dgate, p->dup);
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_COLUMN, n, hidden, w[GPT_UP], k->h_2, p->dup, dh,
                            dw[GPT_UP], gate ? GPT_BEGIN : GPT_ALONE));
    return gate ? gpt_linear_back(g, DPAR_LINEAR_COLUMN, n, hidden, w[GPT_GATE], k->h_2, p->dgate,
                                  dh, dw[GPT_GATE], GPT_END)
                : DPAR_OK;
}

/* ---- experts: expert.h; the hidden features of each are divided over tp ---------------------- */

static inline dpar_router gpt_router(const gpt *g, int32_t layer, const gpt_batch *b)
{
    dpar_router r;
    memset(&r, 0, sizeof r);
    r.experts = g->config.experts;
    r.choices = g->config.choices;
    r.score = DPAR_ROUTER_SOFTMAX;
    r.normalise = g->config.choices > 1;
    r.type = GPT_TYPE;
    r.balance = g->config.balance * b->balance;
    r.bias = g->config.steer ? g->bias + (layer - 1) * g->config.experts : NULL;
    return r;
}

static inline dpar_router_arrays gpt_router_arrays(const gpt *g, const gpt_kept *k)
{
    dpar_router_arrays a;
    memset(&a, 0, sizeof a);
    a.tokens = g->tokens;
    a.logits = k->logits;
    a.chosen = k->chosen;
    a.weight = k->weight;
    a.sums = k->loads;
    a.scratch = g->few;
    return a;
}

static inline dpar_experts_arrays gpt_experts_arrays(const gpt_kept *k)
{
    dpar_experts_arrays a;
    memset(&a, 0, sizeof a);
    a.x = k->h_2;
    a.rows = k->rows;
    a.weight = k->weight;
    a.saved = k->results;
    return a;
}

/* Decides which expert gets which token. The ranks of tp have the same h and so decide alike. */
static inline dpar_status gpt_choose(gpt *g, int32_t layer, const gpt_real *const *w, gpt_batch *b,
                                     const gpt_kept *k)
{
    const int32_t experts = g->config.experts;
    const dpar_router router = gpt_router(g, layer, b);
    const dpar_router_arrays a = gpt_router_arrays(g, k);
    dpar_experts_choices choices;
    dpar_why *why = &g->comms.ep->why;
    int32_t e;
    gpt_apply(g, g->tokens, g->config.width, experts, k->h_2, w[GPT_ROUTER], k->logits, 0);
    gpt_wait(g);
    GPT_TRY(dpar_router_forward(&router, &a, why));
    if (g->config.steer || g->config.balance > 0.0) {
        GPT_TRY(dpar_router_balance(&router, g->comms.data, &a, k->load));
        b->balancing += k->load->loss;
        for (e = 0; e < experts; e++) {
            g->load[(layer - 1) * experts + e] += k->load->chosen[e];
        }
    }
    choices.tokens = g->tokens;
    choices.chosen = k->chosen;
    choices.weight = k->weight;
    return dpar_experts_route(g->experts, k->routing, g->routing, &choices, k->route, why);
}

/* The part of the kept rows that belongs to expert e of this rank; its results go to r.results. */
static inline gpt_kept gpt_rows_of(const gpt *g, const gpt_kept *k, int64_t e)
{
    const int64_t at = (*k->route)->first[e], hidden = at * gpt_mine(g, &g->expert_hidden);
    gpt_kept r = *k;
    r.rows = k->rows + at * g->config.width;
    r.rows_gate = g->config.gelu ? NULL : k->rows_gate + hidden;
    r.rows_up = k->rows_up + hidden;
    r.rows_act = k->rows_act + hidden;
    r.results = g->expert_rows + at * g->config.width;
    return r;
}

/* The same for the gradients of those rows. */
static inline gpt_pending gpt_gradient_rows_of(const gpt *g, const gpt_kept *k,
                                               const gpt_pending *p, int64_t e)
{
    const int64_t at = (*k->route)->first[e], hidden = at * gpt_mine(g, &g->expert_hidden);
    gpt_pending r = *p;
    r.results = p->results + at * g->config.width;
    r.rows_gate = g->config.gelu ? NULL : p->rows_gate + hidden;
    r.rows_up = p->rows_up + hidden;
    return r;
}

static inline dpar_status gpt_mixture(gpt *g, int32_t layer, const gpt_real *const *w, gpt_batch *b,
                                      const gpt_kept *k, gpt_real *y)
{
    const int64_t n = g->config.width, hidden = gpt_mine(g, &g->expert_hidden);
    const int64_t shared = gpt_mine(g, &g->shared);
    dpar_experts_arrays a = gpt_experts_arrays(k);
    int64_t e;
    GPT_TRY(gpt_choose(g, layer, w, b, k));
    GPT_TRY(dpar_experts_dispatch(g->experts, *k->route, &a));
    for (e = 0; e < g->my_experts; e++) {
        const int64_t m = (*k->route)->count[e], one = e * hidden * n;
        const gpt_kept r = gpt_rows_of(g, k, e);
        gpt_apply(g, m, n, hidden, r.rows, w[GPT_EXPERT_UP] + one, r.rows_up, 0);
        if (r.rows_gate != NULL) {
            gpt_apply(g, m, n, hidden, r.rows, w[GPT_EXPERT_GATE] + one, r.rows_gate, 0);
        }
        gpt_activate(g, m * hidden, r.rows_gate, r.rows_up, r.rows_act);
        gpt_apply(g, m, hidden, n, r.rows_act, w[GPT_EXPERT_DOWN] + one, r.results, 0);
    }
    /* These results come from this rank's hidden features alone; tp sums them at the end. */
    a.results = g->expert_rows;
    a.y = g->part;
    GPT_TRY(dpar_experts_combine(g->experts, *k->route, &a));
    if (g->config.shared > 0) {
        gpt_apply(g, g->tokens, n, shared, k->h_2, w[GPT_UP], k->up, 0);
        if (k->gate != NULL) {
            gpt_apply(g, g->tokens, n, shared, k->h_2, w[GPT_GATE], k->gate, 0);
        }
        gpt_activate(g, g->tokens * shared, k->gate, k->up, k->act);
        gpt_apply(g, g->tokens, shared, n, k->act, w[GPT_DOWN], g->part, 1);
    }
    return gpt_reduce(g, g->part, y);
}

/* Fills g->part with this tp rank's part of dh. It comes from the shared expert and, on the first
 * rank only, from the router, because every rank has the same router. */
static inline dpar_status gpt_mixture_tokens(gpt *g, int32_t layer, const gpt_real *const *w,
                                             const gpt_batch *b, const gpt_kept *k,
                                             const gpt_pending *p)
{
    const int64_t n = g->config.width, shared = gpt_mine(g, &g->shared);
    const dpar_router router = gpt_router(g, layer, b);
    dpar_router_arrays a = gpt_router_arrays(g, k);
    gpt_real *dlogits = GPT_APART ? g->dlogits : p->dlogits;
    a.dweight = g->dweight;
    a.dlogits = dlogits;
    gpt_wait(g);
    GPT_TRY(dpar_router_backward(&router, &a, router.balance > 0.0 ? k->load : NULL,
                                 &g->comms.ep->why));
    gpt_copy(g, p->dlogits, dlogits, g->tokens * g->config.experts);
    if (g->comms.tp->rank == 0) {
        gpt_apply_input(g, g->tokens, n, g->config.experts, p->dlogits, w[GPT_ROUTER], g->part, 1);
    }
    if (g->config.shared > 0) {
        gpt_apply_input(g, g->tokens, shared, n, p->dy, w[GPT_DOWN], g->wide, 0);
        gpt_activate_back(g, g->tokens * shared, k->gate, k->up, g->wide, p->dgate, p->dup);
        gpt_apply_input(g, g->tokens, n, shared, p->dup, w[GPT_UP], g->part, 1);
        if (k->gate != NULL) {
            gpt_apply_input(g, g->tokens, n, shared, p->dgate, w[GPT_GATE], g->part, 1);
        }
    }
    return DPAR_OK;
}

static inline dpar_status gpt_mixture_input(gpt *g, int32_t layer, const gpt_real *const *w,
                                            const gpt_batch *b, const gpt_kept *k,
                                            const gpt_pending *p, gpt_real *dh)
{
    const int64_t n = g->config.width, hidden = gpt_mine(g, &g->expert_hidden);
    dpar_experts_arrays a = gpt_experts_arrays(k);
    int64_t e;
    a.dy = p->dy;
    a.dresults = p->results;
    a.dweight = g->dweight;
    GPT_TRY(dpar_experts_combine_backward(g->experts, *k->route, &a));
    GPT_TRY(dpar_all_reduce(g->comms.tp, g->dweight, g->dweight, g->tokens * g->config.choices,
                            GPT_TYPE, DPAR_SUM, NULL));
    for (e = 0; e < g->my_experts; e++) {
        const int64_t m = (*k->route)->count[e], one = e * hidden * n;
        const gpt_kept r = gpt_rows_of(g, k, e);
        const gpt_pending d = gpt_gradient_rows_of(g, k, p, e);
        gpt_apply_input(g, m, hidden, n, d.results, w[GPT_EXPERT_DOWN] + one, g->wide, 0);
        gpt_activate_back(g, m * hidden, r.rows_gate, r.rows_up, g->wide, d.rows_gate, d.rows_up);
        gpt_apply_input(g, m, n, hidden, d.rows_up, w[GPT_EXPERT_UP] + one, r.results, 0);
        if (r.rows_gate != NULL) {
            gpt_apply_input(g, m, n, hidden, d.rows_gate, w[GPT_EXPERT_GATE] + one, r.results, 1);
        }
    }
    a.drows = g->expert_rows;
    a.dx = g->part;
    GPT_TRY(dpar_experts_dispatch_backward(g->experts, *k->route, &a));
    GPT_TRY(gpt_mixture_tokens(g, layer, w, b, k, p));
    return gpt_reduce(g, g->part, dh);
}

static inline void gpt_mixture_weight(gpt *g, gpt_real *const *dw, const gpt_kept *k,
                                      const gpt_pending *p)
{
    const int64_t n = g->config.width, hidden = gpt_mine(g, &g->expert_hidden);
    int64_t e;
    gpt_apply_weight(g, g->tokens, n, g->config.experts, p->dlogits, k->h_2, dw[GPT_ROUTER]);
    for (e = 0; e < g->my_experts; e++) {
        const int64_t m = (*k->route)->count[e], one = e * hidden * n;
        const gpt_kept r = gpt_rows_of(g, k, e);
        const gpt_pending d = gpt_gradient_rows_of(g, k, p, e);
        gpt_apply_weight(g, m, hidden, n, d.results, r.rows_act, dw[GPT_EXPERT_DOWN] + one);
        gpt_apply_weight(g, m, n, hidden, d.rows_up, r.rows, dw[GPT_EXPERT_UP] + one);
        if (r.rows_gate != NULL) {
            gpt_apply_weight(g, m, n, hidden, d.rows_gate, r.rows, dw[GPT_EXPERT_GATE] + one);
        }
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static inline dpar_status gpt_block(gpt *g, int32_t layer, const gpt_real *const *w, gpt_batch *b,
                                    const gpt_real *in, gpt_real *out, const gpt_kept *k)
{
    const int64_t n = g->config.width, own = g->own * n, q = g->heads_width, kv = g->groups_width;
    gpt_copy(g, k->x, in, own);
    GPT_TRY(gpt_norm(g, k->x, w[GPT_NORM_1], w[GPT_NORM_1_BIAS], k->norm, k->h));
    GPT_TRY(gpt_linear(g, DPAR_LINEAR_COLUMN, n, q, w[GPT_QUERY], k->h, k->q));
    GPT_TRY(gpt_linear(g, DPAR_LINEAR_COLUMN, n, kv, w[GPT_KEY], k->h, k->k));
    GPT_TRY(gpt_linear(g, DPAR_LINEAR_COLUMN, n, kv, w[GPT_VALUE], k->h, k->v));
    GPT_TRY(gpt_attend(g, k));
    GPT_TRY(gpt_linear(g, DPAR_LINEAR_ROW, q, n, w[GPT_OUT], k->mixed, g->own_a));
    gpt_add(g, k->x_2, k->x, g->own_a, own);
    GPT_TRY(gpt_norm(g, k->x_2, w[GPT_NORM_2], w[GPT_NORM_2_BIAS], k->norm_2, k->h_2));
    GPT_TRY(gpt_mixes(g, layer) ? gpt_mixture(g, layer, w, b, k, g->own_a)
                                : gpt_mlp(g, layer, w, k, g->own_a));
    gpt_add(g, out, k->x_2, g->own_a, own);
    return DPAR_OK;
}

/* Computes din from dout. Where dw has room for a gradient, it is computed while messages travel.
 */
static inline dpar_status gpt_block_input(gpt *g, int32_t layer, const gpt_real *const *w,
                                          gpt_real *const *dw, const gpt_batch *b,
                                          const gpt_real *dout, gpt_real *din, const gpt_kept *k,
                                          const gpt_pending *p)
{
    const int64_t n = g->config.width, q = g->heads_width, kv = g->groups_width;
    GPT_TRY(gpt_gather(g, dout, p->dy));
    GPT_TRY(gpt_mixes(g, layer) ? gpt_mixture_input(g, layer, w, b, k, p, g->own_a)
                                : gpt_mlp_input(g, layer, w, dw, k, p, g->own_a));
    gpt_norm_back(g, k->x_2, w[GPT_NORM_2], k->norm_2, g->own_a, dout, g->own_c, p->norm_2);
    GPT_TRY(gpt_gather(g, g->own_c, p->dmixed));
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_ROW, q, n, w[GPT_OUT], k->mixed, p->dmixed, g->q,
                            dw[GPT_OUT], GPT_ALONE));
    GPT_TRY(gpt_attend_back(g, k, g->q, p));
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_COLUMN, n, q, w[GPT_QUERY], k->h, p->dq, g->own_a,
                            dw[GPT_QUERY], GPT_BEGIN));
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_COLUMN, n, kv, w[GPT_KEY], k->h, p->dk, g->own_a,
                            dw[GPT_KEY], GPT_GO_ON));
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_COLUMN, n, kv, w[GPT_VALUE], k->h, p->dv, g->own_a,
                            dw[GPT_VALUE], GPT_END));
    gpt_norm_back(g, k->x, w[GPT_NORM_1], k->norm, g->own_a, g->own_c, din, p->norm);
    return DPAR_OK;
}

/* Computes the gradients of weights; with `both`, only those that gpt_block_input left out. */
static inline void gpt_block_weight(gpt *g, int32_t layer, gpt_real *const *dw, int both,
                                    const gpt_kept *k, const gpt_pending *p)
{
    const int64_t n = g->config.width, q = g->heads_width, kv = g->groups_width;
    const int64_t hidden = gpt_mine(g, gpt_hidden(g, layer));
    gpt_norm_weight(g, p->norm, dw[GPT_NORM_1], dw[GPT_NORM_1_BIAS]);
    gpt_norm_weight(g, p->norm_2, dw[GPT_NORM_2], dw[GPT_NORM_2_BIAS]);
    if (!both) {
        gpt_apply_weight(g, g->tokens, q, n, p->dmixed, k->mixed, dw[GPT_OUT]);
        gpt_apply_weight(g, g->tokens, n, q, p->dq, k->h, dw[GPT_QUERY]);
        gpt_apply_weight(g, g->tokens, n, kv, p->dk, k->h, dw[GPT_KEY]);
        gpt_apply_weight(g, g->tokens, n, kv, p->dv, k->h, dw[GPT_VALUE]);
    }
    if (gpt_mixes(g, layer)) {
        gpt_mixture_weight(g, dw, k, p);
    }
    if (gpt_mixes(g, layer) ? g->config.shared > 0 : !both) { /* the mlp, or the shared expert */
        gpt_apply_weight(g, g->tokens, hidden, n, p->dy, k->act, dw[GPT_DOWN]);
        gpt_apply_weight(g, g->tokens, n, hidden, p->dup, k->h_2, dw[GPT_UP]);
        if (k->gate != NULL) {
            gpt_apply_weight(g, g->tokens, n, hidden, p->dgate, k->h_2, dw[GPT_GATE]);
        }
    }
}

/* ---- the head -------------------------------------------------------------------------------- */

static inline dpar_cross_entropy gpt_entropy(const gpt *g)
{
    dpar_cross_entropy e;
    memset(&e, 0, sizeof e);
    e.vocab = g->vocab;
    e.smoothing = g->config.smoothing;
    e.z_loss = g->config.z;
    return e;
}

static inline dpar_cross_entropy_arrays gpt_entropy_arrays(const gpt *g, const gpt_batch *b,
                                                           const gpt_kept *k)
{
    dpar_cross_entropy_arrays a;
    memset(&a, 0, sizeof a);
    a.logits = k->logits;
    a.targets = b->targets;
    a.lse = k->lse;
    a.scratch = g->entropy;
    return a;
}

static inline dpar_status gpt_head(gpt *g, const gpt_real *const *w, gpt_batch *b,
                                   const gpt_real *in, const gpt_kept *k)
{
    const int64_t n = g->config.width, rows = dpar_vocab_row_count(&g->vocab);
    const dpar_cross_entropy e = gpt_entropy(g);
    dpar_cross_entropy_sum sum = {0.0, 0.0, 0};
    dpar_cross_entropy_arrays a = gpt_entropy_arrays(g, b, k);
    a.sum = b->sum != NULL ? b->sum : &sum;
    gpt_copy(g, k->x, in, g->own * n);
    GPT_TRY(gpt_norm(g, k->x, w[GPT_NORM_1], w[GPT_NORM_1_BIAS], k->norm, k->h));
    GPT_TRY(gpt_linear(g, DPAR_LINEAR_COLUMN, n, rows, w[GPT_TABLE], k->h, k->logits));
    GPT_TRY(dpar_cross_entropy_forward(&g->tensor, &e, &a));
    b->loss += sum.loss + sum.z_loss;
    b->counted += (double)sum.tokens;
    return DPAR_OK;
}

/* Turns the logits in `kept` into their gradients, in place. */
static inline dpar_status gpt_head_input(gpt *g, const gpt_real *const *w, gpt_real *const *dw,
                                         const gpt_batch *b, gpt_real *din, const gpt_kept *k,
                                         const gpt_pending *p)
{
    const int64_t n = g->config.width, rows = dpar_vocab_row_count(&g->vocab);
    const dpar_cross_entropy e = gpt_entropy(g);
    const dpar_cross_entropy_arrays a = gpt_entropy_arrays(g, b, k);
    GPT_TRY(dpar_cross_entropy_backward(&g->tensor, &e, &a, b->scale));
    GPT_TRY(gpt_linear_back(g, DPAR_LINEAR_COLUMN, n, rows, w[GPT_TABLE], k->h, k->logits, g->own_a,
                            dw[GPT_TABLE], GPT_ALONE));
    gpt_norm_back(g, k->x, w[GPT_NORM_1], k->norm, g->own_a, NULL, din, p->norm);
    return DPAR_OK;
}

/* ---- layers ---------------------------------------------------------------------------------- */

/* Computes out from in, both this rank's rows. The embedding has no in and the head no out. The
 * caller may reuse in afterwards. COLLECTIVE over tp and cp, with experts also over ep and data.
 * Errors are those of the layers; the communicator's why has the message. */
static inline dpar_status gpt_forward(gpt *g, int32_t layer, const gpt_real *const *weights,
                                      gpt_batch *batch, const gpt_real *in, gpt_real *out,
                                      void *kept)
{
    const gpt_kept k = gpt_kept_in(g, layer, kept, batch);
    if (layer == 0) {
        return gpt_embed(g, weights, batch, out);
    }
    if (layer > g->config.blocks) {
        return gpt_head(g, weights, batch, in, &k);
    }
    return gpt_block(g, layer, weights, batch, in, out, &k);
}

/* parts: GPT_INPUT, ... dout and din have the shapes of out and in and may not share memory. Adds
 * to the gradients. COLLECTIVE like gpt_forward, except where parts ask for weights alone. */
static inline dpar_status gpt_backward(gpt *g, int32_t layer, int32_t parts,
                                       const gpt_real *const *weights, gpt_real *const *gradients,
                                       const gpt_batch *batch, const gpt_real *dout, gpt_real *din,
                                       void *kept, void *pending)
{
    const int both = parts == GPT_BOTH, head = layer > g->config.blocks;
    gpt_real *const none[GPT_SLOTS] = {NULL}, *const *dw = both ? gradients : none;
    const gpt_kept k = gpt_kept_in(g, layer, kept, batch);
    gpt_pending p;
    gpt_lay_pending(g, layer, pending != NULL ? pending : g->pending, &p);
    if (parts & GPT_INPUT) {
        if (layer == 0) {
            GPT_TRY(gpt_gather(g, dout, p.dy));
        } else if (head) {
            GPT_TRY(gpt_head_input(g, weights, dw, batch, din, &k, &p));
        } else {
            GPT_TRY(gpt_block_input(g, layer, weights, dw, batch, dout, din, &k, &p));
        }
    }
    if (!(parts & GPT_WEIGHT)) {
        return DPAR_OK;
    }
    if (layer == 0) {
        return gpt_embed_weight(g, gradients, batch, p.dy);
    }
    if (!head) {
        gpt_block_weight(g, layer, gradients, both, &k, &p);
        return DPAR_OK;
    }
    if (!both) {
        gpt_apply_weight(g, g->tokens, g->config.width, dpar_vocab_row_count(&g->vocab), k.logits,
                         k.h, gradients[GPT_TABLE]);
    }
    gpt_norm_weight(g, p.norm, gradients[GPT_NORM_1], gradients[GPT_NORM_1_BIAS]);
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

static inline int gpt_has(const gpt *g, int32_t layer, int32_t slot)
{
    const int block = layer > 0 && layer <= g->config.blocks, mixes = gpt_mixes(g, layer);
    switch (slot) {
    case GPT_TABLE: return !block;
    case GPT_POSITION: return layer == 0;
    case GPT_NORM_1: return layer > 0;
    case GPT_NORM_1_BIAS: return layer > 0 && g->config.layer_norm;
    case GPT_NORM_2_BIAS: return block && g->config.layer_norm;
    case GPT_GATE: return block && !g->config.gelu && (!mixes || g->config.shared > 0);
    case GPT_UP:
    case GPT_DOWN: return block && (!mixes || g->config.shared > 0);
    case GPT_ROUTER:
    case GPT_EXPERT_UP:
    case GPT_EXPERT_DOWN: return mixes;
    case GPT_EXPERT_GATE: return mixes && !g->config.gelu;
    default: return block;
    }
}

/* Sets the length of dim d and this rank's piece of it. */
static inline void gpt_dim(const gpt *g, int32_t layer, int32_t kind, int32_t d, gpt_parameter *p)
{
    const gpt_config *c = &g->config;
    const int32_t rank = g->comms.tp->rank;
    const dpar_split *hidden = kind == GPT_HIDDEN ? gpt_hidden(g, layer) : &g->expert_hidden;
    int64_t whole = 1, at = 0, local = -1;
    switch (kind) {
    case GPT_WIDTH: whole = c->width; break;
    case GPT_PLACES: whole = c->length; break;
    case GPT_CHOICES: whole = c->experts; break;
    case GPT_IDS:
        whole = c->vocab;
        local = dpar_vocab_row_count(&g->vocab);
        at = rank * local;
        break;
    case GPT_HEADS:
        whole = c->width;
        local = g->heads_width;
        at = g->share.first_query * g->head;
        break;
    case GPT_GROUPS:
        whole = c->groups * g->head;
        local = g->groups_width;
        at = g->share.first_group * g->head;
        break;
    case GPT_HIDDEN:
    case GPT_EXPERT_HIDDEN:
        whole = hidden->count;
        local = gpt_mine(g, hidden);
        at = dpar_split_part_first(hidden, rank);
        break;
    case GPT_EXPERTS:
        whole = c->experts;
        local = g->my_experts;
        at = g->first_expert;
        break;
    default: break;
    }
    p->whole[d] = whole;
    p->local[d] = local < 0 ? whole : local;
    p->at[d] = at;
}

/* Returns 1 and fills *p, or returns 0 if the layer has no such parameter. Local. */
static inline int gpt_parameter_of(const gpt *g, int32_t layer, int32_t slot, gpt_parameter *p)
{
    const int32_t from = slot == GPT_TABLE && g->config.tied ? 0 : layer;
    const int down = slot == GPT_OUT || slot == GPT_DOWN || slot == GPT_EXPERT_DOWN;
    const int word = slot == GPT_TABLE || slot == GPT_POSITION;
    char where[16] = "embedding";
    int32_t d;
    if (layer < 0 || layer > g->config.blocks + 1 || !gpt_has(g, layer, slot)) {
        return 0;
    }
    memset(p, 0, sizeof *p);
    for (d = 0; d < 3; d++) {
        p->dims += gpt_slots[slot].dim[d] != GPT_NOTHING;
        gpt_dim(g, layer, gpt_slots[slot].dim[d], d, p);
    }
    p->numel = p->local[0] * p->local[1] * p->local[2];
    if (from > 0) {
        snprintf(where, sizeof where, from > g->config.blocks ? "head" : "block%d", (int)from);
    }
    snprintf(p->name, sizeof p->name, "%s.%s", where, gpt_slots[slot].name);
    p->expert = slot >= GPT_EXPERT_GATE;
    p->tied = from != layer;
    p->decay = p->dims > 1;
    p->copies = 1;
    if (slot == GPT_KEY || slot == GPT_VALUE) {
        p->copy = g->share.copy;
        p->copies = g->share.copies;
        p->sum = g->same != NULL ? GPT_SUM_SAME : GPT_SUM_NONE;
    } else if (p->dims == 1 || slot == GPT_POSITION || slot == GPT_ROUTER) {
        p->copy = g->comms.tp->rank;
        p->copies = g->comms.tp->size;
        p->sum = g->config.sp && p->dims == 1 ? GPT_SUM_TP : GPT_SUM_NONE;
    }
    p->mean = slot == GPT_NORM_1 || slot == GPT_NORM_2 ? 1.0 : 0.0;
    if (p->dims == 1) {
        p->deviation = 0.0;
    } else {
        p->deviation = word ? 0.02 : 1.0 / sqrt((double)p->whole[p->dims - 1]);
    }
    if (down) { /* like GPT-2, so that the sum over all blocks does not grow with their number */
        p->deviation /= sqrt(2.0 * g->config.blocks);
    }
    p->stream = (uint64_t)from * GPT_SLOTS + (uint64_t)slot;
    return 1;
}

/* Writes the initial values of this rank's piece of a parameter. Local. */
static inline void gpt_fill(const gpt *g, const gpt_parameter *p, gpt_real *values)
{
    int64_t i;
    for (i = 0; i < p->numel; i++) {
        const int64_t x = p->at[2] + i % p->local[2], rest = i / p->local[2];
        const int64_t y = p->at[1] + rest % p->local[1], z = p->at[0] + rest / p->local[1];
        const int64_t at = (z * p->whole[1] + y) * p->whole[2] + x;
        double value = p->mean;
        if (p->deviation > 0.0) {
            value += p->deviation * dpar_random_normal(g->config.seed, p->stream, (uint64_t)at);
        }
        values[i] = z < p->whole[0] ? (gpt_real)value : (gpt_real)0; /* padding of the table */
    }
}

/* Sums over tp the gradients of which each rank has a part: those of norms, which with sp come from
 * a rank's own tokens, and those of key-value heads that several ranks have. Call it once when the
 * gradients are complete, before data-parallel ranks sum them. A program that reduces after every
 * micro-batch, from gradients of 0, calls it before each reduction. COLLECTIVE over tp. */
static inline dpar_status gpt_sum(gpt *g, int32_t layer, gpt_real *const *gradients)
{
    dpar_status st = DPAR_OK;
    gpt_parameter p;
    int32_t slot;
    for (slot = 0; slot < GPT_SLOTS && st == DPAR_OK; slot++) {
        if (gpt_parameter_of(g, layer, slot, &p) && p.sum != GPT_SUM_NONE) {
            st = dpar_all_reduce(p.sum == GPT_SUM_TP ? g->comms.tp : g->same, gradients[slot],
                                 gradients[slot], p.numel, GPT_TYPE, DPAR_SUM, NULL);
        }
    }
    return st;
}

/* ---- experts balanced by a bias -------------------------------------------------------------- */

/* Call it after a step: moves each bias by `rate` against the expert's load since the last call.
 * The loads count the tokens of all ranks of data, so the biases stay equal on all of them.
 * DeepSeek-V3 uses 0.001. Local. */
static inline void gpt_steer(gpt *g, double rate)
{
    const int32_t e = g->config.experts;
    int32_t layer, i;
    double all;
    for (layer = 1; layer <= g->config.blocks; layer++) {
        double *const bias = g->bias + (layer - 1) * e, *const chosen = g->load + (layer - 1) * e;
        if (gpt_mixes(g, layer)) {
            for (i = 0, all = 0.0; i < e; i++) {
                all += chosen[i];
            }
            for (i = 0; i < e; i++) { /* the loads are whole numbers, so this comparison is exact */
                if (chosen[i] * e < all) {
                    bias[i] += rate;
                } else if (chosen[i] * e > all) {
                    bias[i] -= rate;
                }
            }
            memset(chosen, 0, (size_t)e * sizeof *chosen);
        }
    }
}

/* The biases [experts] of a layer, which checkpoints keep, or NULL if it has none. Local. */
static inline double *gpt_bias(gpt *g, int32_t layer)
{
    return gpt_mixes(g, layer) ? g->bias + (layer - 1) * g->config.experts : NULL;
}

/* ---- planning -------------------------------------------------------------------------------- */

static inline dpar_status gpt_check(const gpt_config *c, const gpt_comms *comms, dpar_why *why)
{
    if (c->vocab < 2 || c->width < 1 || c->blocks < 0 || c->heads < 1 || c->hidden < 1 ||
        c->length < 1 || c->samples < 1 || c->samples > GPT_SAMPLES) {
        return gpt_refuse(why,
                          "vocab must be 2 or more, width, heads, hidden and length 1 or more, "
                          "samples 1 to 256");
    }
    if (c->groups < 1 || c->heads % c->groups != 0 || c->width % c->heads != 0) {
        return gpt_refuse(why, "groups must divide heads, and heads must divide width");
    }
    if (c->experts < 0 || c->shared < 0 || (c->experts > 0 && c->choices < 1) || c->every < 1) {
        return gpt_refuse(why,
                          "with experts, choices and every must be 1 or more, and no number of "
                          "experts may be negative");
    }
    if (comms->tp == NULL || comms->cp == NULL || comms->ep == NULL || comms->data == NULL) {
        return gpt_refuse(why, "tp, cp, ep and data must all be set, if only to one rank");
    }
    return gpt_cannot(c, comms) != NULL ? gpt_refuse(why, gpt_cannot(c, comms)) : DPAR_OK;
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

static inline dpar_status gpt_plan_attention(gpt *g, dpar_why *why)
{
    const gpt_config *c = &g->config;
    dpar_comm *cp = g->comms.cp;
    int32_t i;
    dpar_attention_desc *a = &g->attention;
    for (i = 0; i <= c->samples; i++) {
        g->ends[i] = (int64_t)i * c->length;
    }
    GPT_TRY(dpar_packed_init(&a->tokens, c->samples, g->ends, cp->size, DPAR_SPLIT_ZIGZAG, why));
    a->heads = g->share.queries;
    a->groups = g->share.groups;
    a->width = (int32_t)g->head;
    a->type = GPT_TYPE;
    a->causal = 1;
    a->forward = gpt_attend_block;
    a->backward = gpt_attend_block_back;
    a->user = g;
    g->tokens = dpar_packed_rank_count(&a->tokens, cp->rank, NULL);
    if (c->ulysses) {
        GPT_TRY(dpar_split_init(&g->cut, DPAR_SPLIT_EVEN, g->whole, cp->size, 1, why));
        a->method = dpar_attention_ulysses;
        a->tokens.rule = DPAR_SPLIT_EVEN;
        g->tokens = dpar_split_part_count(&g->cut, cp->rank);
    }
    a->bytes = 1; /* too few, so that the call says how many it needs */
    return gpt_asked(dpar_attention_make(cp, a, &g->attend, why), why, &g->plan_bytes[0]);
}

static inline dpar_status gpt_plan_experts(gpt *g, dpar_why *why)
{
    const gpt_config *c = &g->config;
    dpar_comm *ep = g->comms.ep;
    dpar_experts_desc *l = &g->layer;
    int32_t r;
    if (c->experts == 0) {
        return DPAR_OK;
    }
    GPT_TRY(dpar_split_init(&l->experts, DPAR_SPLIT_EVEN, c->experts, ep->size, 1, why));
    g->first_expert = dpar_split_part_first(&l->experts, ep->rank);
    g->my_experts = dpar_split_part_count(&l->experts, ep->rank);
    l->choices = c->choices;
    l->drop = c->drop;
    l->capacity_factor = c->factor;
    l->width = c->width;
    l->type = GPT_TYPE;
    for (r = 0; r < g->comms.cp->size; r++) { /* max_tokens is that of the rank with most tokens */
        const int64_t n = c->ulysses ? dpar_split_part_count(&g->cut, r)
                                     : dpar_packed_rank_count(&g->attention.tokens, r, NULL);
        l->max_tokens = n > l->max_tokens ? n : l->max_tokens;
    }
    /* Room for all rows that could come or, if the config says so, for c->rows even shares. */
    g->rows = ep->size * l->max_tokens * (c->choices < g->my_experts ? c->choices : g->my_experts);
    if (c->drop == DPAR_EXPERTS_DROP_NONE && c->rows > 0.0) {
        const double even = (double)(ep->size * l->max_tokens * c->choices * g->my_experts);
        const int64_t some = (int64_t)ceil(even / c->experts * c->rows);
        l->max_rows = some < g->rows ? some : g->rows;
        g->rows = l->max_rows;
    }
    GPT_TRY(dpar_experts_make(ep, l, &g->experts, why)); /* for the size of a routing alone */
    g->routing = g->experts->routing_bytes;
    GPT_TRY(dpar_experts_free(g->experts));
    g->experts = NULL;
    l->bytes = 1; /* too few, so that the call says how many it needs */
    return gpt_asked(dpar_experts_make(ep, l, &g->experts, why), why, &g->plan_bytes[1]);
}

/* Sets everything except the plans, which only say how many bytes they need. COLLECTIVE. */
static inline dpar_status gpt_plan(gpt *g, const gpt_config *config, const gpt_comms *comms,
                                   dpar_why *why)
{
    gpt_config *c = &g->config;
    dpar_comm *tp = comms->tp;
    int32_t p;
    memset(g, 0, sizeof *g);
    *c = *config;
    c->groups = c->groups > 0 ? c->groups : c->heads;
    c->every = c->every > 0 ? c->every : 1;
    c->expert_hidden = c->expert_hidden > 0 ? c->expert_hidden : c->hidden;
    g->comms = *comms;
    GPT_TRY(gpt_check(c, comms, why));
    p = tp->size;
    GPT_TRY(dpar_heads_init(&g->heads, c->heads, c->groups, p, DPAR_SPLIT_EVEN, why));
    GPT_TRY(dpar_vocab_init(&g->vocab, c->vocab, 0, p, p, why));
    GPT_TRY(dpar_split_init(&g->hidden, DPAR_SPLIT_EVEN, c->hidden, p, 1, why));
    GPT_TRY(dpar_split_init(&g->shared, DPAR_SPLIT_EVEN, c->shared, p, 1, why));
    GPT_TRY(dpar_split_init(&g->expert_hidden, DPAR_SPLIT_EVEN, c->expert_hidden, p, 1, why));
    if ((p + c->groups - 1) / c->groups > c->heads / c->groups) {
        return gpt_refuse(why, "there are more tensor-parallel ranks than heads for them");
    }
    g->share = dpar_heads_local(&g->heads, tp->rank);
    g->whole = (int64_t)c->samples * c->length;
    g->head = c->width / c->heads;
    g->heads_width = g->share.queries * g->head;
    g->groups_width = g->share.groups * g->head;
    GPT_TRY(gpt_plan_attention(g, why));
    GPT_TRY(dpar_tensor_parallel_init(&g->tensor, tp, GPT_TYPE, g->tokens, NULL, why));
    g->tensor.matmul = gpt_matmul;
    g->tensor.user = g;
    g->first = c->sp ? dpar_split_part_first(&g->tensor.tokens, tp->rank) : 0;
    g->own = c->sp ? dpar_split_part_count(&g->tensor.tokens, tp->rank) : g->tokens;
    return gpt_plan_experts(g, why);
}

/* Divides the memory among the arrays, or counts how much they need. */
static inline void gpt_lay(gpt *g, gpt_room *pieces)
{
    gpt_room *const plans = &pieces[GPT_PLANS], *const r = &pieces[GPT_ARRAYS];
    gpt_room *const shared = GPT_APART ? &pieces[GPT_SHARED] : r;
    const int64_t n = g->tokens, w = g->config.width, own = g->own * w, e = g->config.experts;
    int64_t most = g->heads_width * n, pending = 0, i;
    const int64_t wide[3] = {n * gpt_mine(g, &g->hidden), n * gpt_mine(g, &g->shared),
                             g->rows * gpt_mine(g, &g->expert_hidden)};
    for (i = 0; i < 3; i++) {
        most = wide[i] > most ? wide[i] : most;
    }
    for (i = 0; i <= g->config.blocks + 1; i++) {
        const int64_t bytes = gpt_pending_bytes(g, (int32_t)i);
        pending = bytes > pending ? bytes : pending;
    }
    for (i = 0; i < 2; i++) {
        g->plan_memory[i] = gpt_take(plans, g->plan_bytes[i], 1);
    }
    g->counts = (int64_t *)gpt_take(plans, g->comms.tp->size, sizeof *g->counts);
    g->rows_of = (int64_t *)gpt_take(plans, g->comms.tp->size, sizeof *g->rows_of);
    g->position = (int32_t *)gpt_take(r, n, sizeof *g->position);
    g->bias = (double *)gpt_take(plans, g->config.blocks * e, sizeof *g->bias);
    g->load = (double *)gpt_take(plans, g->config.blocks * e, sizeof *g->load);
    g->few = (double *)gpt_take(plans, 2 * e, sizeof *g->few);
    g->own_a = gpt_take_real(r, own);
    g->own_b = gpt_take_real(r, own);
    g->own_c = gpt_take_real(r, own);
    g->all = gpt_take_real(r, n * w);
    g->part = gpt_take_real(r, e > 0 ? n * w : 0);
    g->dweight = gpt_take_real(shared, n * g->config.choices);
    g->dlogits = gpt_take_real(shared, GPT_APART ? n * e : 0);
    g->expert_rows = gpt_take_real(r, g->rows * w);
    g->q = gpt_take_real(r, n * g->heads_width);
    g->scores = gpt_take_real(r, 2 * GPT_ROWS * g->config.length);
    g->wide = gpt_take_real(r, most);
    if (g->config.ulysses) {
        g->k = gpt_take_real(r, n * g->groups_width);
        g->v = gpt_take_real(r, n * g->groups_width);
    }
    g->entropy = gpt_take_real(r, 3 * n * (g->comms.tp->size + 1));
    g->pending = gpt_take(r, pending, 1);
}

/* Sets bytes[GPT_PIECES], the sizes of the memory that gpt_init needs: GPT_PLANS on the host,
 * GPT_ARRAYS where the model computes, and GPT_SHARED (0 without a device) where both can read it.
 * DPAR_E_ARG and other errors leave a message in why. COLLECTIVE. */
static inline dpar_status gpt_bytes(const gpt_config *config, const gpt_comms *comms,
                                    int64_t *bytes, dpar_why *why)
{
    gpt g;
    gpt_room pieces[GPT_PIECES];
    int32_t i;
    memset(pieces, 0, sizeof pieces);
    GPT_TRY(gpt_plan(&g, config, comms, why));
    gpt_take(&pieces[GPT_PLANS], 1, sizeof g);
    gpt_lay(&g, pieces);
    for (i = 0; i < GPT_PIECES; i++) {
        bytes[i] = pieces[i].used;
    }
    return DPAR_OK;
}

/* The place in the micro-batch of this rank's token i, or -1 if the rank has fewer tokens. */
static inline int64_t gpt_place(const gpt *g, int64_t i)
{
    dpar_packed_cursor cursor = {0, 0};
    int64_t first, count;
    int32_t doc;
    if (g->config.ulysses) {
        return dpar_split_part_first(&g->cut, g->comms.cp->rank) + i;
    }
    while (
        dpar_packed_next(&g->attention.tokens, g->comms.cp->rank, &cursor, &doc, &first, &count)) {
        if (i < count) {
            return first + i;
        }
        i -= count;
    }
    return -1;
}

/* Copies this rank's tokens of a micro-batch to mine[g->tokens]. Token t of sample s is
 * whole[s * stride + t]. Local. */
static inline void gpt_pick(const gpt *g, const int32_t *whole, int64_t stride, int32_t *mine)
{
    int64_t i;
    for (i = 0; i < g->tokens; i++) {
        const int64_t at = gpt_place(g, i);
        mine[i] = whole[at / g->config.length * stride + at % g->config.length];
    }
}

/* Fills g->position with the position of each token in its sample. */
static inline void gpt_put_positions(const gpt *g)
{
    int32_t some[256];
    int64_t i, n;
    for (i = 0; i < g->tokens; i += n) {
        for (n = 0; n < 256 && i + n < g->tokens; n++) {
            some[n] = (int32_t)(gpt_place(g, i + n) % g->config.length);
        }
        gpt_put(g, g->position + i, some, n * (int64_t)sizeof *some);
    }
}

/* Makes the model in the caller's pieces of memory, which are aligned to 64 bytes. Memory of
 * dpar_comm_alloc is fastest; the plans need memory of the host. COLLECTIVE over all four comms. */
static inline dpar_status gpt_init(void *const *memory, const int64_t *bytes,
                                   const gpt_config *config, const gpt_comms *comms, gpt **made,
                                   dpar_why *why)
{
    gpt_room pieces[GPT_PIECES];
    gpt *g = (gpt *)memory[GPT_PLANS];
    int64_t need[GPT_PIECES], i;
    GPT_TRY(gpt_bytes(config, comms, need, why));
    memset(pieces, 0, sizeof pieces);
    for (i = 0; i < GPT_PIECES; i++) {
        pieces[i].memory = (char *)memory[i];
        if (bytes[i] < need[i]) {
            return gpt_refuse(why, "gpt_init was given less memory than gpt_bytes returned");
        }
    }
    GPT_TRY(gpt_plan(g, config, comms, why));
    gpt_take(&pieces[GPT_PLANS], 1, sizeof *g);
    gpt_lay(g, pieces);
    g->tensor.counts = g->config.sp ? g->counts : NULL;
    for (i = 0; i < comms->tp->size; i++) {
        g->rows_of[i] = dpar_split_part_count(&g->tensor.tokens, (int32_t)i) * g->config.width;
    }
    gpt_put_positions(g);
    for (i = 0; i < (int64_t)g->config.blocks * g->config.experts; i++) {
        g->bias[i] = g->load[i] = 0.0;
    }
    g->attention.memory = g->plan_memory[0];
    g->attention.bytes = g->plan_bytes[0];
    GPT_TRY(dpar_attention_make(comms->cp, &g->attention, &g->attend, why));
    if (g->config.experts > 0) {
        g->layer.memory = g->plan_memory[1];
        g->layer.bytes = g->plan_bytes[1];
        GPT_TRY(dpar_experts_make(comms->ep, &g->layer, &g->experts, why));
    }
    if (g->config.groups < comms->tp->size) { /* several ranks have the same keys and values */
        GPT_TRY(dpar_comm_split(comms->tp, g->share.first_group, comms->tp->rank, &g->same));
    }
    gpt_open_products(g);
    *made = g;
    return DPAR_OK;
}

/* Frees the plans of the model. g may be NULL. COLLECTIVE. */
static inline dpar_status gpt_close(gpt *g)
{
    const dpar_status st = g != NULL ? dpar_attention_free(g->attend) : DPAR_OK;
    const dpar_status closed = g != NULL ? dpar_comm_free(g->same) : DPAR_OK;
    if (g != NULL) {
        dpar_experts_free(g->experts);
        gpt_close_products(g);
    }
    return st < 0 ? st : closed;
}

/* The number of layers of the whole model, with the embedding and the head. Local. */
static inline int32_t gpt_layers(const gpt *g)
{
    return g->config.blocks + 2;
}

#endif
