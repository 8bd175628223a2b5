/* SPDX-License-Identifier: MIT-0 */
/* expert - expert parallelism: mixtures of experts whose experts lie on different ranks. The gate
 * chooses k experts for each token; tokens travel to their experts' ranks and results back, forward
 * and backward; each gives what one rank with all tokens and all experts would give. The experts
 * themselves are yours:
 *
 *     dpar_split_init(&layer.experts, DPAR_EVEN, 64, c->size, 1, &why);   layer: zeroed
 *     layer.choices = 2; layer.drop = DPAR_DROP_NONE;
 *     layer.tokens = 4096; layer.width = 1024; layer.type = DPAR_F32;
 *     dpar_experts_bytes(c, &layer, &bytes, &each, &why);
 *     dpar_experts_init(memory, bytes, c, &layer, &plan, &why);      one plan for all such layers
 *
 *     dpar_gate_forward(&gate, tokens, logits, chosen, weight, scratch, &why);
 *     dpar_experts_route(plan, mine, each, tokens, chosen, NULL, &route, &why);
 *     dpar_experts_dispatch(plan, route, x, rows);
 *     ... expert e of this rank on rows begin[e] .. begin[e] + count[e] of route->rows ...
 *     dpar_experts_combine(plan, route, results, weight, y, kept);
 *
 *     dpar_experts_combine_backward(plan, route, dy, weight, kept, dresults, dweight);
 *     ... the experts' gradients; drows ...
 *     dpar_experts_dispatch_backward(plan, route, drows, dx);
 *     dpar_gate_backward(&gate, tokens, logits, chosen, dweight, NULL, dlogits, scratch, &why);
 *
 *     dpar_experts_close(plan);             where it works in a device's memory
 *
 * Rows of an expert come in the order of the ranks, then of their tokens: where ranks hold tokens
 * one after the other that is the order of one rank, so that an expert's sums have the same bits.
 * A token's results are summed in the order of its choices, in f64, rounded to the type once.
 *
 * What a rank sends to others, with R ranks, E experts of which own[r] are on rank r, rows of
 * B = width bytes(type) bytes, S = choices for DPAR_DROP_LATE, else 1:
 *     route      4 (R - 1 + S (E - own)), and for DROP_LATE 4 (R - 1) (1 + S own) more; for
 *                DROP_NONE an all-reduce of 24 bytes besides
 *     dispatch, combine_backward    B for each kept choice of its tokens of another rank's expert
 *     combine, dispatch_backward    B for each row of its experts that is another rank's token
 * Nothing else travels: weights and their gradients stay with the tokens. plan->sent counts it.
 *
 * In shared memory, where what the others read is memory of dpar_comm_alloc on all ranks (routings;
 * x; dy and weights; rows that come back: inputs, outputs need not be), a rank takes each row where
 * it lies and puts it, or adds it up, where it belongs: one pass, and less than two bare
 * all-to-alls move. Else rows are packed before an all-to-all and sorted after it: three. The same
 * bits and counts both ways. Such inputs stay as they are until the call returns on all ranks: none
 * returns before.
 *
 * In a device's memory (comm->mem) x, rows, results, kept, y, weights and all their gradients lie
 * there, and dispatch, combine and their backward order work on its stream: they wait for nothing
 * and allocate nothing. What decides is the host's: `chosen`, and the weights that route reads
 * (DROP_LIGHT_OWN alone), lie where the CPU reads them, downloaded, and waited for, by you; so do
 * plans. Routings lie where host and device reach them (page-locked): the device is given 12 bytes
 * for each choice with the first operation of a routing after another's. route waits for the stream
 * before it writes: it needs counts in any case, and the device may be reading what this memory was
 * before. So these are no calls for a captured graph. The gate's functions are the host's: give
 * them page-locked logits, weights and dweight, which both sides reach, or have kernels of your
 * own. Values are the host's bit by bit, but for -0 in the results of combine_backward, which
 * becomes 0, and sums of dweight, whose order is the device's.
 *
 * Beside tensor and data parallelism the communicator is one of the experts' view of the mesh:
 *     dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_LAST_FASTEST, &why);
 *     dpar_comm_split_axes(world, &view, 1u << 1, &ep);     this file's
 *     dpar_comm_split_axes(world, &view, 1u << 2, &etp);    an expert's matrices, tensor.h: their
 *                                          ranks give the same tokens and get the same rows
 *     dpar_comm_split_axes(world, &view, 1u << 0, &edp);    gradients of experts, ddp.h
 * while the gate and all that is no expert goes by `mesh` itself. An expert shared by all tokens is
 * an ordinary layer beside: its y is added to this one's. */
#ifndef DPARI_TRAIN_EXPERT_H
#define DPARI_TRAIN_EXPERT_H

#include "../index/split.h"
#include "../comm/comm.h"

/* ---- the gate -------------------------------------------------------------------------------- */

/* How scores come from logits. */
enum {
    DPAR_GATE_SOFTMAX, /* over all experts (Switch, Mixtral with normalise, Qwen) */
    DPAR_GATE_SIGMOID, /* each for itself (DeepSeek-V3, Llama 4) */
    DPAR_GATE_GIVEN    /* logits are the scores; at least 0 where they are normalised or balanced */
};

/* Zero it and fill it in. A token chooses the k experts of the highest score + bias, of equal ones
 * the lower index, NaN last; in that order they stand. The weight of a choice of score s is
 *     scale s            or, normalise:    scale s / (the sum of the token's k scores + 1e-20)
 * Where capacity drops a choice, the others' weights stay. */
typedef struct dpar_gate {
    int32_t experts;    /* E, at least 1 */
    int32_t choices;    /* k, 1 .. E */
    int32_t score;      /* DPAR_GATE_SOFTMAX, ... */
    int32_t type;       /* DPAR_F64 or F32: of logits, weights and their gradients */
    int32_t normalise;  /* 1: see above */
    int32_t room;       /* 0 */
    double scale;       /* 0: 1 (DeepSeek-V3: 2.5) */
    double balance;     /* the coefficient a of the balancing loss; 0: none */
    const double *bias; /* [experts]; NULL: none. For choosing only: it has no gradient */
} dpar_gate;

/* chosen[tokens][k] and weight[tokens][k] from logits[tokens][experts]. scratch: 2 x experts
 * doubles. E_ARG with a sentence. Local. O(tokens x experts), k times that where scores ascend. */
DPAR_API dpar_status dpar_gate_forward(const dpar_gate *g, int64_t tokens, const void *logits,
                                       int32_t *chosen, void *weight, double *scratch,
                                       dpar_why *why);

/* How evenly experts are chosen, by all ranks, whatever capacity drops. */
typedef struct dpar_gate_load {
    int64_t tokens; /* of all ranks */
    int64_t idle;   /* experts that no token chose */
    double most;    /* the load of the busiest expert over the mean: 1 is even; 0: no choices */
    double loss;    /* see dpar_gate_balance */
    double *chosen; /* [experts] how often each was chosen: whole numbers */
    double *score;  /* [experts] P: mean over tokens of the expert's share of the token's scores */
} dpar_gate_load;
/* The balancing loss of Switch and DeepSeek over the tokens of all ranks of c (those that share the
 * gate; tokens that several ranks hold count once for each):
 *     loss = a E sum over experts of f P,    f = chosen / (k tokens)
 * so that evenly spread tokens give a. chosen: of dpar_gate_forward; a token whose first choice is
 * -1 is padding: it counts for nothing. sums: 2 x experts + 1 doubles, where load->chosen and
 * ->score lie afterwards. scratch as above. COLLECTIVE over c, an all-reduce of 2 x experts + 1
 * doubles: the same bits on all of its ranks; c NULL: local, of these tokens (DeepSeek's is of each
 * sequence); with c->mem a wait for its stream. What is wrong on one rank (E_ARG) breaks the
 * communicator. */
DPAR_API dpar_status dpar_gate_balance(const dpar_gate *g, dpar_comm *c, int64_t tokens,
                                       const void *logits, const int32_t *chosen, double *sums,
                                       dpar_gate_load *load, double *scratch);
/* dlogits[tokens][experts] from dweight[tokens][k]. load: that of dpar_gate_balance, whose loss is
 * part of what is derived (f counts as a constant, as everywhere); NULL: it is not. It is the loss
 * of all ranks' tokens, so that its gradients are to be added up over the ranks: where ddp averages
 * those of the gate, let `balance` be a times the ranks. dweight NULL: zeros. scratch as above.
 * Errors as forward; E_ARG: a choice that is no expert. Local. O(tokens x experts). */
DPAR_API dpar_status dpar_gate_backward(const dpar_gate *g, int64_t tokens, const void *logits,
                                        const int32_t *chosen, const void *dweight,
                                        const dpar_gate_load *load, void *dlogits, double *scratch,
                                        dpar_why *why);
/* Balancing without a loss (DeepSeek-V3): once a step the bias of each expert chosen less often
 * than the mean rises by rate, of one chosen more often falls. chosen: load->chosen, so that all
 * ranks' biases stay equal, or its sum over several micro-batches. rate: 0.001. Local. */
DPAR_API void dpar_gate_steer(int32_t experts, const double *chosen, double rate, double *bias);

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

/* C, for so many tokens: of all ranks with DROP_LATE, of one with the others; with DROP_NONE, and
 * where it passes that, 2^63 - 1. Exact: in integers. Local. */
DPAR_API int64_t dpar_experts_capacity(const dpar_experts *layer, int64_t tokens);

/* Read it, leave it as it is. */
typedef struct dpar_experts_plan {
    dpar_experts layer;
    int32_t first, own;           /* experts of this rank; first is E where it has none */
    int64_t most;                 /* rows that they can be given: the size of your arrays */
    int64_t sent;                 /* bytes that went to other ranks so far */
    int64_t kept, dropped, taken; /* choices kept, choices dropped, rows taken so far */
    dpar_comm *comm;
    int64_t each;  /* private, as all that follows */
    int32_t slots; /* numbers that tell of one expert */
    int32_t tag;   /* of the layer */
    int32_t routes, there_tag;
    int32_t *tell, *hear, *tally, *order;
    int64_t *told, *heard, *send, *receive, *fill;
    const void **from; /* [experts] where an expert's rows lie; then of two tokens, [2][k], */
    double *by;        /* [2][k]: the rows that are added up, and their weights */
    struct dpari_peer *peer;
    void *packed, *staged;
    void *device; /* memory of a device that holds packed, staged and this routing's numbers: */
    int64_t device_bytes;
    int32_t *place, *token, *choice;
    void *weight; /* of each kept row */
    const struct dpar_experts_routing *there;
    dpar_mem_span *span; /* [ranks][own] */
} dpar_experts_plan;

/* Where the tokens of one layer and micro-batch go, from forward to the end of backward. Read it.
 */
typedef struct dpar_experts_routing {
    int64_t tokens;
    int64_t kept;    /* choices of this rank's tokens that have a row; the size of `kept` */
    int64_t dropped; /* choices that have none */
    int64_t rows;    /* that this rank's experts are given */
    int64_t *count;  /* [own]: of each */
    int64_t *begin;  /* [own]: the first of each; in all: rows */
    int32_t *place;  /* [tokens][k]: the row among the kept ones, by expert; -1: none */
    int64_t *send;   /* [ranks] rows to each; private, as all that follows. Others read the first */
    int64_t *take;   /* [ranks] rows from each                              four at the same      */
    int32_t *choice; /* [tokens][k] the choice of each kept row             places                */
    int64_t *row;    /* [ranks][own] the first row of a piece               of their routings     */
    int64_t *piece;  /* [ranks][own] */
    int64_t *start;  /* [experts] the first kept row of each */
    int32_t *expert; /* [tokens][k] of each choice that has a row */
    int32_t *token;  /* [tokens][k] the token of each kept row; NULL: the host's memory */
    int32_t tag;     /* of the layer and this call of dpar_experts_route: the same on all ranks */
    int32_t room;
} dpar_experts_routing;

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
 * gather, combine or dot; E_MEMORY where it has no room. What fails on one rank fails on all. */
DPAR_API dpar_status dpar_experts_init(void *memory, int64_t bytes, dpar_comm *c,
                                       const dpar_experts *layer, dpar_experts_plan **plan,
                                       dpar_why *why);
/* Gives back what init took of a device's memory, when its stream is done with it; without one
 * there is nothing to do. Local. NULL is fine. */
DPAR_API dpar_status dpar_experts_close(dpar_experts_plan *plan);
/* Decides which choices are kept, and tells the experts' ranks. memory: `each` bytes, aligned to
 * 64, best of dpar_comm_alloc, with comm->mem page-locked: of the routing while it is used.
 * chosen[tokens][k]: experts, each at most once for a token, and -1 for no choice (padding); as
 * dpar_gate_forward gives them. weight: read by DROP_LIGHT_OWN only, else NULL is fine. tokens: 0
 * .. layer.tokens, different from rank to rank and from call to call. COLLECTIVE: all-to-alls of
 * the counts, see above. E_ROOM on all ranks when DROP_NONE's rows are too few on one of them, with
 * the numbers: nothing has happened then, the plan is as good as before. What else is wrong on one
 * rank (E_ARG) breaks the communicator. O(tokens k + ranks own k + experts), LIGHT_OWN log more. */
DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        int64_t tokens, const int32_t *chosen, const void *weight,
                                        dpar_experts_routing **routing, dpar_why *why);

/* rows[route->rows][width], grouped by expert, from x[tokens][width]: bit by bit. COLLECTIVE, one
 * all-to-all-v or one pass (see above), as the three below. E_ARG when an array is missing breaks
 * the communicator, E_MISMATCH when ranks' routings are not of one dpar_experts_route (but with
 * MPI, a device's memory or DPAR_WITHOUT_DIRECT where as many rows travel); E_PEER, E_TIMEOUT as
 * comm.h. */
DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *route, const void *x,
                                           void *rows);
/* y[token] = the sum over its kept choices of weight x result; 0 where all are dropped. kept:
 * [route->kept][width], the results as they came, for combine_backward; NULL where there is none.
 * Arrays do not overlap. */
DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *route, const void *rows,
                                          const void *weight, void *y, void *kept);
/* drows = weight x dy, of the experts' results; dweight[tokens][k] = dy . result, 0 for choices
 * that were dropped (sums in f64); NULL: not wanted, then kept is not read. */
DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *route,
                                                   const void *dy, const void *weight,
                                                   const void *kept, void *drows, void *dweight);
/* dx[token] = the sum over its kept choices of drows. */
DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *route,
                                                    const void *drows, void *dx);

#endif
