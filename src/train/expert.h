/* SPDX-License-Identifier: MIT-0 */
/* expert - expert parallelism: mixtures of experts whose experts lie on different ranks. The router
 * chooses k experts for each token. Tokens travel to their experts' ranks, and results back,
 * forward and backward. Each step gives what one rank with all tokens and all experts would give.
 * The experts themselves are yours:
 *
 *     dpar_split_init(&layer.experts, DPAR_EVEN, 64, c->size, 1, &why);   layer: zeroed
 *     layer.choices = 2; layer.drop = DPAR_DROP_NONE;
 *     layer.tokens = 4096; layer.width = 1024; layer.type = DPAR_F32;
 *     dpar_experts_make(c, &layer, &plan, &why);                     one plan for all such layers
 *
 *     route.tokens = tokens; route.logits = logits; ...              dpar_router_arrays
 *     dpar_router_forward(&router, &route, &why);                    choices and weights
 *     choices.tokens = tokens; choices.chosen = chosen;
 *     dpar_experts_route(plan, NULL, 0, &choices, &routing, &why);
 *     a.x = x; a.rows = rows; a.weight = weight; ...                 dpar_experts_arrays
 *     dpar_experts_dispatch(plan, routing, &a);
 *     ... expert e of this rank on rows begin[e] .. begin[e] + count[e] of routing->rows ...
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
 * What a rank sends to others, with R ranks, E experts of which own[r] are on rank r, rows of
 * B = width bytes(type) bytes, S = choices for DPAR_DROP_LATE, else 1:
 *     route      4 (R - 1 + S (E - own)), and for DROP_LATE 4 (R - 1) (1 + S own) more; for
 *                DROP_NONE an all-reduce of 24 bytes besides
 *     dispatch, combine_backward    B for each kept choice of its tokens of another rank's expert
 *     combine, dispatch_backward    B for each row of its experts that is another rank's token
 * Nothing else travels: weights and their gradients stay with the tokens. plan->sent counts it.
 *
 * In shared memory a rank takes each row where it lies and puts it, or adds it up, where it
 * belongs: one pass, which moves less than two bare all-to-alls. For that what the others read is
 * memory of dpar_comm_alloc on all ranks: routings; x; dy and weights; rows that come back. Outputs
 * need not be. Else rows are packed before an all-to-all and sorted after it: three passes. Both
 * ways give the same bits and counts. Such inputs stay as they are until the call returns; none
 * returns before all ranks have read them.
 *
 * In a device's memory (comm->mem) lie x, rows, results, kept, y, weights and all their gradients.
 * Dispatch, combine and their backward order work on its stream: they wait for nothing and allocate
 * nothing. What decides is the host's: `chosen`, and the weights that route reads (DROP_LIGHT_OWN
 * alone), lie where the CPU reads them. You download them and wait for that. Plans are the host's,
 * too. Routings lie where host and device reach them (page-locked): the device is given 12 bytes
 * for each choice with the first operation of a routing after another's. route waits for the stream
 * before it writes: it needs counts in any case, and the device may be reading what this memory was
 * before. So these are no calls for a captured graph.
 *
 * The router's functions are the host's. Give them page-locked logits, weights and dweight, which
 * both sides reach, or have kernels of your own. Values are the host's bit by bit, but for -0 in
 * the results of combine_backward, which becomes 0, and sums of dweight, whose order is the
 * device's.
 *
 * Beside tensor and data parallelism the communicator is one of the experts' view of the mesh:
 *     dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_LAST_FASTEST, &why);
 *     dpar_comm_split_axes(world, &view, 1u << 1, &ep);     this file's
 *     dpar_comm_split_axes(world, &view, 1u << 2, &etp);    an expert's matrices, tensor.h: their
 *                                          ranks give the same tokens and get the same rows
 *     dpar_comm_split_axes(world, &view, 1u << 0, &edp);    gradients of experts, ddp.h
 * while the router and all that is no expert goes by `mesh` itself. An expert shared by all tokens
 * is an ordinary layer beside: its y is added to this one's. */
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

/* Zero it and fill it in. A token chooses the k experts of the highest score + bias, of equal ones
 * the lower index, NaN last; in that order they stand. The weight of a choice of score s is
 *     scale s            or, normalise:    scale s / (the sum of the token's k scores + 1e-20)
 * Where capacity drops a choice, the others' weights stay. */
typedef struct dpar_router {
    int32_t experts;    /* E, at least 1 */
    int32_t choices;    /* k, 1 .. E */
    int32_t score;      /* DPAR_ROUTER_SOFTMAX, ... */
    int32_t type;       /* DPAR_F64 or F32: of logits, weights and their gradients */
    int32_t normalise;  /* 1: see above */
    int32_t room;       /* 0 */
    double scale;       /* 0: 1 (DeepSeek-V3: 2.5) */
    double balance;     /* the coefficient a of the balancing loss; 0: none */
    const double *bias; /* [experts]; NULL: none. For choosing only: it has no gradient */
} dpar_router;

/* The memory of one layer and micro-batch: what a function does not name may be NULL. */
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

/* chosen and weight from logits. E_ARG with a sentence. Local. O(tokens x experts), k times that
 * where scores ascend. */
DPAR_API dpar_status dpar_router_forward(const dpar_router *r, const dpar_router_arrays *a,
                                         dpar_why *why);

/* How evenly experts are chosen, by all ranks, whatever capacity drops. */
typedef struct dpar_router_load {
    int64_t tokens; /* of all ranks */
    int64_t idle;   /* experts that no token chose */
    double most;    /* the load of the busiest expert over the mean: 1 is even; 0: no choices */
    double loss;    /* see dpar_router_balance */
    double *chosen; /* [experts] how often each was chosen: whole numbers; in a->sums, as */
    double *score;  /* [experts] P: mean over tokens of the expert's share of the token's scores */
} dpar_router_load;
/* The balancing loss of Switch and DeepSeek over the tokens of all ranks of c (those that share the
 * router; tokens that several ranks hold count once for each):
 *     loss = a E sum over experts of f P,    f = chosen / (k tokens)
 * so that evenly spread tokens give a. chosen: of dpar_router_forward; a token whose first choice
 * is -1 is padding: it counts for nothing. COLLECTIVE over c, an all-reduce of 2 x experts + 1
 * doubles: the same bits on all of its ranks; c NULL: local, of these tokens (DeepSeek's is of each
 * sequence); with c->mem a wait for its stream. What is wrong on one rank (E_ARG) breaks the
 * communicator; the sentence is in c->why. E_MISMATCH where ranks give another router (bias aside),
 * on engines that compare calls (shared memory, MPI with check). O(tokens x experts). */
DPAR_API dpar_status dpar_router_balance(const dpar_router *r, dpar_comm *c,
                                         const dpar_router_arrays *a, dpar_router_load *load);
/* dlogits from dweight. load: that of dpar_router_balance, whose loss is part of what is derived (f
 * counts as a constant, as everywhere); NULL: it is not. It is the loss of all ranks' tokens, so
 * that its gradients are to be added up over the ranks: where ddp averages those of the router, let
 * `balance` be a times the ranks. Errors as forward; E_ARG: a choice that is no expert. Local.
 * O(tokens x experts). */
DPAR_API dpar_status dpar_router_backward(const dpar_router *r, const dpar_router_arrays *a,
                                          const dpar_router_load *load, dpar_why *why);
/* Balancing without a loss (DeepSeek-V3): once a step, with m the mean of load->chosen (or of its
 * sum over several micro-batches, which all ranks have alike), bias[e] += rate where chosen[e] < m,
 * -= rate where chosen[e] > m,    rate: 0.001 */

/* ---- experts --------------------------------------------------------------------------------- */

/* What happens to choices when an expert is full: it takes C = ceil(factor k T / E) rows. */
enum {
    DPAR_DROP_NONE,     /* experts take all */
    DPAR_DROP_LATE,     /* T: tokens of all ranks. First choices go before second ones, and so on;
                           among them tokens in the order of the ranks, then of the rank. As one
                           rank with all tokens would drop (GShard, Switch) */
    DPAR_DROP_LATE_OWN, /* the same of each rank's own tokens, T and C too (Megatron's position) */
    DPAR_DROP_LIGHT_OWN /* each rank keeps the C of the largest weight, of equal ones those of the
                           lower token (Megatron's probs); NaN goes first */
};

/* Zero it and fill it in. The same on all ranks, but for rows. */
typedef struct dpar_experts {
    dpar_split experts; /* which of them a rank has: CHUNK, EVEN, FLOOR, RAGGED over as many parts
                           as the communicator has ranks; uneven, and ranks without, are fine */
    int32_t choices;    /* k */
    int32_t drop;       /* DPAR_DROP_NONE, ... */
    double factor;      /* of the capacity, above 0, counted in millionths; DROP_NONE: not read */
    int64_t tokens;     /* the most that a rank ever has, at least 1 */
    int64_t rows;       /* DROP_NONE: the most that this rank's experts may be given at once; 0: as
                           many as could come, ranks x tokens x min(k, own experts) */
    int64_t width;      /* elements of a row */
    int32_t type;       /* DPAR_F64, F32, BF16, F16: of rows. Weights are F64 for F64, else F32 */
    int32_t room;       /* 0 */
} dpar_experts;

/* A plan, and what of it is to be read. */
typedef struct dpar_experts_plan {
    dpar_experts layer;
    int32_t first, own;           /* experts of this rank; first is E where it has none */
    int64_t most;                 /* rows that they can be given: the size of your arrays */
    int64_t sent;                 /* bytes that went to other ranks so far */
    int64_t kept, dropped, taken; /* choices kept, choices dropped, rows taken so far */
} dpar_experts_plan;

/* Where the tokens of one layer and micro-batch go, from forward to the end of backward; to be
 * read. */
typedef struct dpar_experts_routing {
    int64_t tokens;
    int64_t kept;    /* choices of this rank's tokens that have a row; the size of `kept` */
    int64_t dropped; /* choices that have none */
    int64_t rows;    /* that this rank's experts are given */
    int64_t *count;  /* [own]: of each */
    int64_t *begin;  /* [own]: the first of each; in all: rows */
    int32_t *place;  /* [tokens][k]: the row among the kept ones, by expert; -1: none */
} dpar_experts_routing;

/* What the tokens of a rank have chosen. */
typedef struct dpar_experts_choices {
    int64_t tokens; /* 0 .. layer.tokens, different from rank to rank and from call to call */
    const int32_t *chosen; /* [tokens][k] experts, each at most once for a token, and -1 for no
                              choice (padding); as dpar_router_forward gives them */
    const void *weight;    /* [tokens][k]; read by DROP_LIGHT_OWN alone, else NULL is fine */
} dpar_experts_choices;

/* The memory of one layer; what a function does not name may be NULL. Arrays do not overlap. */
typedef struct dpar_experts_arrays {
    const void *x;       /* [tokens][width]. Dispatch reads, */
    void *rows;          /* [routing->rows][width]: writes, grouped by expert */
    const void *results; /* [routing->rows][width]. Combine reads, */
    const void *weight;  /* [tokens][k]: reads, as combine_backward; */
    void *y;             /* [tokens][width]: writes; */
    void *kept;          /* [routing->kept][width]: writes the results as they came, which
                            combine_backward reads; NULL where there is no backward */
    const void *dy;      /* [tokens][width]. Combine_backward reads, */
    void *dresults;      /* [routing->rows][width]: writes; */
    void *dweight;       /* [tokens][k]: writes; NULL: not wanted, then kept is not read */
    const void *drows;   /* [routing->rows][width]. Dispatch_backward reads, */
    void *dx;            /* [tokens][width]: writes */
} dpar_experts_arrays;

/* Bytes of memory for a plan (*bytes: room for tokens x k rows, and where a rank has several
 * experts for `most` rows more) and for one routing (*each: 12 tokens k, 16 ranks x own experts,
 * and little more) on this rank. With comm->mem that room is the device's, and no part of *bytes.
 * E_ARG, E_RANGE with a sentence. Local. O(ranks). */
DPAR_API dpar_status dpar_experts_bytes(const dpar_comm *c, const dpar_experts *layer,
                                        int64_t *bytes, int64_t *each, dpar_why *why);
/* Plans it in the caller's memory (aligned to 64; best of dpar_comm_alloc, with comm->mem the
 * host's: then rows' room, 12 + bytes(weight) for each of tokens k besides, is of dpar_comm_alloc
 * until close); cuts of RAGGED stay the caller's, as long. One plan does all layers of this shape,
 * one function at a time. COLLECTIVE: one all-reduce. Errors as above, E_ROOM; E_MISMATCH when
 * ranks gave different layers; E_UNKNOWN where comm->mem has no wait or span, or its layers have no
 * gather, combine or dot; E_MEMORY where it has no room. What fails on one rank fails on all.
 * O(ranks). */
DPAR_API dpar_status dpar_experts_init(void *memory, int64_t bytes, dpar_comm *c,
                                       const dpar_experts *layer, dpar_experts_plan **plan,
                                       dpar_why *why);
/* Gives back what init took of a device's memory, when its stream is done with it; without one
 * there is nothing to do. Local. NULL is fine. Errors of its wait for the stream; the sentence is
 * in the communicator's why. */
DPAR_API dpar_status dpar_experts_close(dpar_experts_plan *plan);
/* Decides which choices are kept, and tells the experts' ranks. memory: `each` bytes, aligned to
 * 64, best of dpar_comm_alloc, with comm->mem page-locked: of the routing while it is used. NULL:
 * the plan's own, where dpar_experts_make made it (without comm->mem): the routing before is gone.
 * COLLECTIVE: all-to-alls of the counts, see above. E_ROOM on all ranks when DROP_NONE's rows are
 * too few on one of them, with the numbers: nothing has happened then, the plan is as good as
 * before. What else is wrong on one rank (E_ARG) breaks the communicator. O(tokens k + ranks own k
 * + experts), LIGHT_OWN log more. */
DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        const dpar_experts_choices *choices,
                                        dpar_experts_routing **routing, dpar_why *why);

/* rows from x: bit by bit. COLLECTIVE, one all-to-all-v or one pass (see above), as the three
 * below. E_ARG when an array is missing breaks the communicator, E_MISMATCH when ranks' routings
 * are not of one dpar_experts_route (but with MPI, a device's memory or DPAR_WITHOUT_DIRECT where
 * as many rows travel); E_PEER, E_TIMEOUT as comm.h. The sentence is in comm->why. What
 * travels: see the top of this file; beside it O(tokens k width) and O(rows width) are copied. */
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
DPAR_API dpar_status dpar_experts_make(dpar_comm *c, const dpar_experts *layer,
                                       dpar_experts_plan **plan, dpar_why *why);
/* Ends what dpar_experts_make made, as dpar_experts_close. NULL is fine. */
DPAR_API dpar_status dpar_experts_free(dpar_experts_plan *plan);

#endif
