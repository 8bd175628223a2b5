/* SPDX-License-Identifier: MIT-0 */
/* expert - expert parallelism: mixtures of experts whose experts lie on different ranks. The router
 * chooses k experts for each token. Tokens travel to their experts' ranks, and results back,
 * forward and backward. Each step gives what one rank with all tokens and all experts would give.
 * The experts themselves are yours:
 *
 *     dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, 64, c->size, 1, &why);   layer: zeroed
 *     layer.choices = 2; layer.drop = DPAR_EXPERTS_DROP_NONE;
 *     layer.tokens = 4096; layer.width = 1024; layer.type = DPAR_F32;
 *     dpar_experts_make(c, &layer, &plan, &why);                     one plan for all such layers
 *
 *     route.tokens = tokens; route.logits = logits; ...              dpar_router_arrays
 *     dpar_router_forward(&router, &route, &why);                    choices and weights
 *     choices.tokens = tokens; choices.chosen = chosen;
 *     dpar_experts_route(plan, NULL, 0, &choices, &routing, &why);
 *     a.x = x; a.rows = rows; a.weight = weight; ...                 dpar_experts_arrays
 *     dpar_experts_dispatch(plan, routing, &a);
 *     ... expert e of this rank on rows begin[e] .. begin[e] + count[e] - 1 ...
 *     dpar_experts_combine(plan, routing, &a);
 *
 *     dpar_experts_combine_backward(plan, routing, &a);
 *     ... the experts' gradients; drows ...
 *     dpar_experts_dispatch_backward(plan, routing, &a);
 *     dpar_router_backward(&router, &route, NULL, &why);
 *
 *     dpar_experts_free(plan);
 *
 * (dpar_experts_bytes, _init and _close: the same in memory of yours. Layers whose backward comes
 * later each need a routing of their own: give dpar_experts_route memory.)
 *
 * Rows of an expert come in the order of the ranks, then of their tokens. Where ranks hold tokens
 * one after the other that is the order of one rank, so an expert's sums have the same bits. A
 * token's results are summed in the order of its choices, in f64, and rounded to the type once.
 *
 * What a rank sends to others: R ranks, E experts of which own[r] are on rank r, rows of B = width
 * bytes(type) bytes, S = choices for DPAR_EXPERTS_DROP_POSITION, else 1.
 *
 *     route      4 (R - 1 + S (E - own)), and for DROP_LATE 4 (R - 1) (1 + S own) more; for
 *                DROP_NONE an all-reduce of 24 bytes besides
 *     dispatch, combine_backward    B for each kept choice of its tokens of another rank's expert
 *     combine, dispatch_backward    B for each row of its experts that is another rank's token
 *
 * Nothing else travels: weights and their gradients stay with the tokens. plan->sent counts it.
 *
 * In shared memory a rank takes each row where it lies and puts it, or adds it up, where it
 * belongs. That is one pass, which moves less than two bare all-to-alls. It needs memory of
 * dpar_comm_alloc on all ranks for what others read: routings; x; dy and weights; rows that come
 * back. Outputs need not be. Such inputs stay as they are until the call returns; none returns
 * before all ranks have read them. Else rows are packed before an all-to-all and sorted after it:
 * three passes. Both ways give the same bits and counts.
 *
 * With a device's memory (comm->mem) x, rows, results, kept, y, weights and all their gradients lie
 * there. Dispatch, combine and their backward order work on its stream: they wait for nothing and
 * allocate nothing. The host decides. So `chosen`, and the weights that route reads (DROP_LIGHT_OWN
 * alone), lie where the CPU reads them: you download them and wait for that. Plans are the host's,
 * too.
 *
 * Routings lie where host and device reach them (page-locked). The first operation of a routing
 * after another's gives the device 12 bytes for each choice. route waits for the stream before it
 * writes: it needs counts in any case, and the device may still read what was in this memory
 * before. So these are no calls for a captured graph.
 *
 * The router's functions are the host's. Give them page-locked logits, weights and dweight, which
 * both sides reach, or have kernels of your own. Values are the host's bit by bit, with two
 * exceptions: -0 in the results of combine_backward becomes 0, and sums of dweight go in the
 * device's order.
 *
 * Beside tensor and data parallelism the communicator is one of the experts' view of the mesh:
 *
 *     dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_ORDER_LAST_FASTEST, &why);
 *     dpar_comm_split_axes(world, &view, 1u << 1, &ep);     this file's
 *     dpar_comm_split_axes(world, &view, 1u << 2, &etp);    an expert's matrices, tensor.h: their
 *                                          ranks give the same tokens and get the same rows
 *     dpar_comm_split_axes(world, &view, 1u << 0, &edp);    gradients of experts, ddp.h
 *
 * The router, and all that is no expert, uses the axes of `mesh` itself. An expert that all tokens
 * share is an ordinary layer beside these: its y is added to theirs. */
#ifndef DPARI_TRAIN_EXPERT_H
#define DPARI_TRAIN_EXPERT_H

#include "../index/split.h"
#include "../comm/comm.h"

/* ---- the router ------------------------------------------------------------------------------ */

/* How scores come from logits. */
enum {
    DPAR_ROUTER_SOFTMAX, /* over all experts (Switch, Mixtral with normalise, Qwen) */
    DPAR_ROUTER_SIGMOID, /* each for itself (DeepSeek-V3, Llama 4) */
    DPAR_ROUTER_GIVEN /* logits are the scores; at least 0 where they are normalised or balanced */
};

/* A router. Zero it and fill it in. A token chooses the k experts of the highest score + bias, in
 * that order; of equal ones the lower index first, NaN last. The weight of a choice of score s is
 *
 *     scale s            or, normalise:    scale s / (the sum of the token's k scores + 1e-20)
 *
 * Where capacity drops a choice, the others' weights stay. */
typedef struct dpar_router {
    int32_t experts;    /* E, at least 1 */
    int32_t choices;    /* k, 1 .. E */
    int32_t score;      /* DPAR_ROUTER_SOFTMAX, ... */
    int32_t type;       /* DPAR_F64 or F32: of logits, weights and their gradients */
    int32_t normalise;  /* 1: weights are normalised */
    int32_t room;       /* 0 */
    double scale;       /* 0: 1 (DeepSeek-V3: 2.5) */
    double balance;     /* the coefficient a of the balancing loss; 0: none */
    const double *bias; /* [experts]; NULL: none. Only for choosing: it has no gradient */
} dpar_router;

/* The memory of one layer and micro-batch. What a function does not name may be NULL. */
typedef struct dpar_router_arrays {
    int64_t tokens;
    const void *logits;  /* [tokens][experts] */
    int32_t *chosen;     /* [tokens][k]. Forward writes, the others read */
    void *weight;        /* [tokens][k]. Forward writes */
    double *sums;        /* [2 experts + 1]. Balance writes */
    const void *dweight; /* [tokens][k]. Backward reads; NULL: zeros */
    void *dlogits;       /* [tokens][experts]. Backward writes */
    double *scratch;     /* [2 experts], of all */
} dpar_router_arrays;

/* Routes: chosen and weight from logits. E_ARG with a sentence. Local. O(tokens x experts), k times
 * that where scores ascend. */
DPAR_API dpar_status dpar_router_forward(const dpar_router *r, const dpar_router_arrays *a,
                                         dpar_why *why);

/* How evenly experts are chosen, by all ranks, whatever capacity drops. */
typedef struct dpar_router_load {
    int64_t tokens; /* of all ranks */
    int64_t idle;   /* experts that no token chose */
    double most;    /* the load of the busiest expert over the mean: 1 is even; 0: no choices */
    double loss;    /* as dpar_router_balance says */
    double *chosen; /* [experts] how often each was chosen, whole numbers. In a->sums, as score */
    double *score;  /* [experts] P: mean over tokens of the expert's share of the token's scores */
} dpar_router_load;
/* The balancing loss of Switch and DeepSeek over the tokens of all ranks of c:
 *
 *     loss = a E sum over experts of f P,    f = chosen / (k tokens)
 *
 * Evenly spread tokens give a. chosen: of dpar_router_forward. A token whose first choice is -1 is
 * padding and does not count. The ranks of c are those that share the router. Tokens that several
 * ranks hold count once for each. O(tokens x experts).
 *
 * COLLECTIVE over c, an all-reduce of 2 x experts + 1 doubles: the same bits on all of its ranks.
 * With c->mem it waits for its stream. c NULL: local, of these tokens (DeepSeek's is of each
 * sequence). What is wrong on one rank (E_ARG) breaks the communicator; the sentence is in c->why.
 * E_MISMATCH where ranks give another router (bias aside), on engines that compare calls (shared
 * memory, MPI with check). */
DPAR_API dpar_status dpar_router_balance(const dpar_router *r, dpar_comm *c,
                                         const dpar_router_arrays *a, dpar_router_load *load);
/* dlogits from dweight. load: that of dpar_router_balance, whose loss is then part of what is
 * derived (f counts as a constant, as everywhere). NULL: it is not. Errors as forward; E_ARG: a
 * choice that is no expert. Local. O(tokens x experts).
 *
 * The loss is that of all ranks' tokens, so its gradients are to be added up over the ranks. Where
 * ddp averages those of the router, let `balance` be a times the ranks. */
DPAR_API dpar_status dpar_router_backward(const dpar_router *r, const dpar_router_arrays *a,
                                          const dpar_router_load *load, dpar_why *why);
/* Balancing without a loss (DeepSeek-V3), once a step: bias[e] += rate where load->chosen[e] < m,
 * -= rate where chosen[e] > m. m is the mean of chosen, rate is 0.001. Over several micro-batches
 * take the sum of their chosen, which all ranks have alike. */

/* ---- experts --------------------------------------------------------------------------------- */

/* What happens to choices when an expert is full: it takes C = ceil(factor k T / E) rows. */
enum {
    DPAR_EXPERTS_DROP_NONE,     /* experts take all rows */
    DPAR_EXPERTS_DROP_POSITION, /* T: tokens of all ranks. First choices go before second ones, and
                       so on; among them tokens in the order of the ranks, then of the rank. So one
                       rank with all tokens would drop (GShard, Switch) */
    DPAR_EXPERTS_DROP_POSITION_LOCAL, /* the same for each rank's own tokens, which T and C count
                           too (Megatron's position) */
    DPAR_EXPERTS_DROP_WEIGHT_LOCAL    /* each rank keeps the C of the largest weight, of equal
                           ones those of the lower token (Megatron's probs); NaN is dropped first */
};

/* A layer of experts. Zero it and fill it in. The same on all ranks, but for rows. */
typedef struct dpar_experts_desc {
    dpar_split experts; /* which of them a rank has: CHUNK, EVEN, FLOOR or RAGGED over as many parts
                           as the communicator has ranks. Shares may be uneven, and empty */
    int32_t choices;    /* k */
    int32_t drop;       /* DPAR_EXPERTS_DROP_NONE, ... */
    double factor; /* of the capacity, above 0, counted in millionths; DROP_NONE does not read it */
    int64_t tokens; /* the most that a rank ever has, at least 1 */
    int64_t rows;   /* DROP_NONE: the most rows that this rank's experts may be given at once; 0: as
                       many as could come, ranks x tokens x min(k, own experts) */
    int64_t width;  /* elements of a row */
    int32_t type;   /* DPAR_F64, F32, BF16, F16: of rows. Weights are F64 for F64, else F32 */
    int32_t room;   /* 0 */
} dpar_experts_desc;

/* A plan of experts; these fields are to be read. */
typedef struct dpar_experts_plan {
    dpar_experts_desc layer;
    int32_t first, own;           /* experts of this rank; first is E where it has none */
    int64_t most;                 /* rows that they can be given at most: the size of your arrays */
    int64_t sent;                 /* bytes that went to other ranks so far */
    int64_t kept, dropped, taken; /* choices kept, dropped, and rows taken so far */
} dpar_experts_plan;

/* Where the tokens of one layer and micro-batch go, from forward to the end of backward, to
 * read. */
typedef struct dpar_experts_routing {
    int64_t tokens;
    int64_t kept;    /* choices of this rank's tokens that have a row; the size of `kept` */
    int64_t dropped; /* choices that have none */
    int64_t rows;    /* rows that this rank's experts are given */
    int64_t *count;  /* [own]: rows of each */
    int64_t *begin;  /* [own]: the first row of each */
    int32_t *place;  /* [tokens][k]: the row among the kept ones, by expert; -1: dropped */
} dpar_experts_routing;

/* What the tokens of a rank have chosen. */
typedef struct dpar_experts_choices {
    int64_t tokens;        /* 0 .. layer.tokens; it may differ between ranks and calls */
    const int32_t *chosen; /* [tokens][k] experts, each at most once for a token, -1 for no choice
                              (padding); as dpar_router_forward gives them */
    const void *weight;    /* [tokens][k]; read by DROP_LIGHT_OWN alone, else NULL is fine */
} dpar_experts_choices;

/* The memory of one layer; what a function does not name may be NULL. Arrays do not overlap. */
typedef struct dpar_experts_arrays {
    const void *x;       /* [tokens][width]. Dispatch reads it */
    void *rows;          /* [routing->rows][width]. Dispatch writes it, grouped by expert */
    const void *results; /* [routing->rows][width]. Combine reads it */
    const void *weight;  /* [tokens][k]. Combine and combine_backward read it */
    void *y;             /* [tokens][width]. Combine writes it */
    void *kept; /* [routing->kept][width]. Combine writes the results as they came, combine_backward
                   reads them; NULL where there is no backward */
    const void *dy; /* [tokens][width]. Combine_backward reads it */
    void *dresults; /* [routing->rows][width]. Combine_backward writes it */
    void *dweight;  /* [tokens][k]. Combine_backward writes it; NULL: not wanted, then it does not
                       read kept */
    const void *drows; /* [routing->rows][width]. Dispatch_backward reads it */
    void *dx;          /* [tokens][width]. Dispatch_backward writes it */
} dpar_experts_arrays;

/* Bytes of memory on this rank for a plan and for one routing. *bytes: room for tokens x k rows,
 * and where a rank has several experts for `most` rows more. With comm->mem that room is the
 * device's, and no part of *bytes. *each: 12 tokens k, 16 ranks x own experts, and little more.
 * E_ARG, E_RANGE with a sentence. Local. O(ranks). */
DPAR_API dpar_status dpar_experts_bytes(const dpar_comm *c, const dpar_experts_desc *layer,
                                        int64_t *bytes, int64_t *each, dpar_why *why);
/* Plans experts in your memory (aligned to 64, best of dpar_comm_alloc); cuts of RAGGED stay yours,
 * and live as long. One plan does all layers of this shape, one function at a time. COLLECTIVE: one
 * all-reduce. O(ranks).
 *
 * With comm->mem the memory is the host's. Rows' room, and 12 + bytes(weight) for each of tokens k,
 * are then of dpar_comm_alloc until close.
 *
 * E_MISMATCH: ranks gave different layers. E_UNKNOWN: comm->mem has no wait or span, or its layers
 * have no gather, combine or dot. E_MEMORY: it has no room. E_ROOM; else errors as
 * dpar_experts_bytes. What fails on one rank fails on all. */
DPAR_API dpar_status dpar_experts_init(void *memory, int64_t bytes, dpar_comm *c,
                                       const dpar_experts_desc *layer, dpar_experts_plan **plan,
                                       dpar_why *why);
/* Closes a plan: gives back what init took of a device's memory, when its stream is done with it.
 * Without a device there is nothing to do. Local. NULL is fine. Errors of its wait for the stream;
 * the sentence is in the communicator's why. */
DPAR_API dpar_status dpar_experts_close(dpar_experts_plan *plan);
/* Decides which choices are kept, and tells the experts' ranks. COLLECTIVE: all-to-alls of the
 * counts, see above. O(tokens k + ranks own k + experts), LIGHT_OWN log more.
 *
 * memory: `each` bytes, aligned to 64, best of dpar_comm_alloc, with comm->mem page-locked. It is
 * the routing's while that is used. NULL: the plan's own, where dpar_experts_make made it without
 * comm->mem; the routing before is then gone.
 *
 * E_ROOM on all ranks, with the numbers, when DROP_NONE's rows are too few on one of them: nothing
 * has happened then, the plan is as good as before. What else is wrong on one rank (E_ARG) breaks
 * the communicator. */
DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        const dpar_experts_choices *choices,
                                        dpar_experts_routing **routing, dpar_why *why);

/* rows from x: copies, bit by bit. COLLECTIVE, as the three below: one all-to-all-v or one pass.
 * The top of this file says what travels; O(tokens k width) and O(rows width) are copied besides.
 *
 * E_ARG: an array is missing, which breaks the communicator. E_MISMATCH: ranks' routings are not of
 * one dpar_experts_route. With MPI, a device's memory or DPAR_WORLD_NO_DIRECT that is not found
 * where as many rows travel. E_PEER, E_TIMEOUT as comm.h. The sentence is in comm->why. */
DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *a);
/* y[token] = the sum over its kept choices of weight x result; 0 where all are dropped. Errors and
 * cost as dispatch. */
DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *a);
/* dresults = weight x dy; dweight = dy . result, 0 for choices that were dropped (sums in f64).
 * Errors and cost as dispatch. */
DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *a);
/* dx[token] = the sum over its kept choices of drows. Errors and cost as dispatch. */
DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *a);

/* A plan in memory of its own, with room for one routing: dpar_experts_bytes, the memory and
 * dpar_experts_init in one, with their errors and cost; E_ROOM, too, where there is no memory.
 * COLLECTIVE. */
DPAR_API dpar_status dpar_experts_make(dpar_comm *c, const dpar_experts_desc *layer,
                                       dpar_experts_plan **plan, dpar_why *why);
/* Ends what dpar_experts_make made, as dpar_experts_close. NULL is fine. */
DPAR_API dpar_status dpar_experts_free(dpar_experts_plan *plan);

#endif
