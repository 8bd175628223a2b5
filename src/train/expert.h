/* SPDX-License-Identifier: MIT-0 */
/* expert - runs mixtures of experts whose experts are on different ranks (expert parallelism). The
 * router chooses k experts for each token. Tokens are sent to the ranks of their experts, and the
 * results back, forward and backward. Each step gives what one rank with all tokens and all experts
 * would give. The experts themselves are yours:
 *
 *     dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, 64, comm->size, 1, &why);   layer: zeroed
 *     layer.choices = 2; layer.drop = DPAR_EXPERTS_DROP_NONE;
 *     layer.max_tokens = 4096; layer.width = 1024; layer.type = DPAR_F32;
 *     dpar_experts_make(comm, &layer, &plan, &why);                  one plan for all such layers
 *
 *     route.tokens = tokens; route.logits = logits; ...              dpar_router_arrays
 *     dpar_router_forward(&router, &route, &why);                    choices and weights
 *     choices.tokens = tokens; choices.chosen = chosen;
 *     dpar_experts_route(plan, NULL, 0, &choices, &routing, &why);
 *     a.x = x; a.rows = rows; a.weight = weight; ...                 dpar_experts_arrays
 *     dpar_experts_dispatch(plan, routing, &a);
 *     ... expert e of this rank on rows first[e] .. first[e] + count[e] - 1 ...
 *     dpar_experts_combine(plan, routing, &a);
 *
 *     dpar_experts_combine_backward(plan, routing, &a);
 *     ... the experts' gradients; drows ...
 *     dpar_experts_dispatch_backward(plan, routing, &a);
 *     dpar_router_backward(&router, &route, NULL, &why);
 *
 *     dpar_experts_free(plan);
 *
 * If the backward of a layer comes after the forward of other layers, each layer needs a routing of
 * its own: give dpar_experts_route plan->routing_bytes of memory for it.
 *
 * The rows of an expert are in the order of the ranks, then of their tokens. If ranks hold
 * consecutive tokens, this is the order that one rank would have, so that an expert's sums have the
 * same bits. A token's results are summed in the order of its choices, in f64, and rounded to the
 * type once.
 *
 * Traffic. With R ranks, E experts of which own[r] are on rank r, rows of B = width bytes(type)
 * bytes, and S = choices for DPAR_EXPERTS_DROP_POSITION, otherwise 1, a rank sends to other ranks
 *
 *     route      4 (R - 1 + S (E - own)) bytes; for DPAR_EXPERTS_DROP_POSITION another
 *                4 (R - 1) (1 + S own); for DPAR_EXPERTS_DROP_NONE also an all-reduce of 24 bytes
 *     dispatch, combine_backward    B for each kept choice of its tokens of another rank's expert
 *     combine, dispatch_backward    B for each row of its experts that is another rank's token
 *
 * Nothing else is sent, because weights and their gradients stay with the tokens. plan->sent_bytes
 * counts the bytes.
 *
 * Shared memory. If the arrays that other ranks read come from dpar_comm_alloc on all ranks, a rank
 * reads each row directly from them and stores it, or adds it, at its destination. This takes one
 * pass, which moves less than two bare all-to-alls. These arrays are routings, x, dy and weights,
 * and the rows that are sent back; outputs may be any memory. Do not change such inputs until the
 * call returns, which it does once all ranks have read them. Otherwise rows are packed before an
 * all-to-all and sorted after it, which is three passes. Both give the same bits and counts.
 *
 * Devices. If comm->mem is the memory of a device, x, rows, results, saved, y, weights and all
 * their gradients are in that memory. Dispatch, combine and their backward enqueue on its stream;
 * they wait for nothing and allocate nothing. The host makes the decisions. Therefore `chosen`, and
 * with DPAR_EXPERTS_DROP_WEIGHT_LOCAL the weights that dpar_experts_route reads, must be where the
 * CPU can read them: download them and wait for that. The plan is in the memory of the host, too.
 *
 * Routings are then in memory that both host and device reach (page-locked). When another routing
 * is used than before, the first operation copies 12 bytes for each choice to the device.
 * dpar_experts_route waits for the stream before it writes, because it needs counts in any case and
 * the device may still read the old contents. So do not capture these calls in a graph.
 *
 * The router's functions run on the host. Give them page-locked logits, weights and dweight, which
 * both sides reach, or use kernels of your own. The device's values equal the host's bit by bit,
 * with two exceptions: -0 in the results of combine_backward becomes 0, and sums of dweight use the
 * device's order.
 *
 * Together with tensor and data parallelism, the communicator is one of the experts' view of the
 * mesh:
 *
 *     dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_ORDER_LAST_FASTEST, &why);
 *     dpar_comm_split_axes(world, &view, 1u << 1, &ep);     for this file
 *     dpar_comm_split_axes(world, &view, 1u << 2, &etp);    an expert's matrices, tensor.h: these
 *                                          ranks give the same tokens and get the same rows
 *     dpar_comm_split_axes(world, &view, 1u << 0, &edp);    gradients of experts, ddp.h
 *
 * The router, and everything else that is not an expert, uses the axes of `mesh` itself. An expert
 * that all tokens share is an ordinary layer in parallel to these: add its y to theirs. */
#ifndef DPARI_TRAIN_EXPERT_H
#define DPARI_TRAIN_EXPERT_H

#include "../index/split.h"
#include "../comm/comm.h"

/* ---- the router ------------------------------------------------------------------------------ */

/* Functions that turn logits into scores. */
enum {
    DPAR_ROUTER_SOFTMAX, /* over all experts (Switch, Mixtral with normalise, Qwen) */
    DPAR_ROUTER_SIGMOID, /* of each expert separately (DeepSeek-V3, Llama 4) */
    DPAR_ROUTER_GIVEN /* logits are the scores; if normalised or balanced they must be at least 0 */
};

/* Describes a router. Zero it and fill it in. A token chooses the k experts of the highest score +
 * bias, in that order; of equal ones the lower index comes first, and NaN comes last. The weight of
 * a choice with score s is
 *
 *     scale s            or, with normalise:    scale s / (the sum of the token's k scores + 1e-20)
 *
 * If the capacity drops a choice, the weights of the others do not change. */
typedef struct dpar_router {
    int32_t experts;    /* E, at least 1 */
    int32_t choices;    /* k, 1 .. E */
    int32_t score;      /* DPAR_ROUTER_SOFTMAX, ... */
    int32_t type;       /* of logits, weights and their gradients: DPAR_F64 or F32 */
    int32_t normalise;  /* 1 normalises the weights of a token */
    int32_t reserved;   /* 0 */
    double scale;       /* 0 selects 1; DeepSeek-V3 has 2.5 */
    double balance;     /* coefficient a of the balancing loss; 0 for no loss */
    const double *bias; /* [experts], or NULL if there is none. It affects only the choice and has
                           no gradient */
} dpar_router;

/* Arrays of the router for one layer and micro-batch. What a function does not use may be NULL. */
typedef struct dpar_router_arrays {
    int64_t tokens;
    const void *logits;  /* [tokens][experts] */
    int32_t *chosen;     /* [tokens][k]; forward writes it, the others read it */
    void *weight;        /* [tokens][k]; forward writes it */
    double *sums;        /* [2 experts + 1]; balance writes it */
    const void *dweight; /* [tokens][k]; backward reads it; NULL means zeros */
    void *dlogits;       /* [tokens][experts]; backward writes it */
    double *scratch;     /* [2 experts]; used by all functions */
} dpar_router_arrays;

/* Chooses the experts of each token: computes chosen and weight from logits. Local. O(tokens x
 * experts), and k times that in the worst case, ascending scores. Fails with DPAR_E_ARG. */
DPAR_API dpar_status dpar_router_forward(const dpar_router *r, const dpar_router_arrays *a,
                                         dpar_why *why);

/* How evenly the tokens of all ranks choose the experts, before capacity drops any choice. */
typedef struct dpar_router_load {
    int64_t tokens;   /* of all ranks */
    int64_t idle;     /* experts that no token chose */
    double imbalance; /* load of the busiest expert over the mean; 1 is even, 0 means no choices */
    double loss;      /* that of dpar_router_balance */
    double *chosen;   /* [experts] how often each was chosen, as whole numbers; part of a->sums */
    double *score; /* [experts] P, the mean over tokens of the expert's share of the token's scores;
                      part of a->sums */
} dpar_router_load;
/* Computes the load of the experts and the balancing loss of Switch and DeepSeek over the tokens of
 * all ranks of comm:
 *
 *     loss = a E sum over experts of f P,    f = chosen / (k tokens)
 *
 * The loss is a if tokens are spread evenly. It uses a->chosen from dpar_router_forward. A token
 * whose first choice is -1 is padding and is not counted. A token that several ranks hold is
 * counted once for each.
 *
 * comm: the ranks that share the router; NULL for the loss of these tokens only, as of each
 *       sequence in DeepSeek.
 *
 * Collective over comm: an all-reduce of 2 x experts + 1 doubles, which gives the same bits on all
 * its ranks. With comm->mem it waits for the device's stream. Local if comm is NULL. O(tokens x
 * experts). Fails with DPAR_E_ARG, which breaks the communicator; the message is in comm->why.
 * Fails with DPAR_E_MISMATCH if ranks give different routers (apart from bias), on engines that
 * compare calls: shared memory, and MPI with check. */
DPAR_API dpar_status dpar_router_balance(const dpar_router *r, dpar_comm *comm,
                                         const dpar_router_arrays *a, dpar_router_load *load);
/* Computes dlogits from dweight.
 *
 * load: from dpar_router_balance, to add the gradient of its loss, in which f counts as a constant
 *       as usual. NULL leaves the loss out.
 *
 * The loss is that of all ranks' tokens, so its gradients have to be summed over the ranks. If ddp
 * averages the gradients of the router, multiply `balance` by the number of ranks.
 *
 * Local. O(tokens x experts). Fails as dpar_router_forward does, and with DPAR_E_ARG if a choice is
 * not an expert. */
DPAR_API dpar_status dpar_router_backward(const dpar_router *r, const dpar_router_arrays *a,
                                          const dpar_router_load *load, dpar_why *why);
/* Balancing without a loss (DeepSeek-V3): once a step, bias[e] += rate if load->chosen[e] < m, and
 * bias[e] -= rate if load->chosen[e] > m, where m is the mean of chosen and rate is 0.001. With
 * several micro-batches, use the sum of their chosen, which is the same on all ranks. */

/* ---- experts --------------------------------------------------------------------------------- */

/* Rules for dropping choices when an expert is full. An expert takes C = ceil(capacity_factor k T /
 * E) rows. */
enum {
    DPAR_EXPERTS_DROP_NONE, /* nothing is dropped; experts take all rows */
    /* Keeps first choices before second ones, and so on, and among these tokens in the order of the
     * ranks, then of the rank's tokens. T is the number of tokens of all ranks. One rank with all
     * tokens would drop the same choices (GShard, Switch). */
    DPAR_EXPERTS_DROP_POSITION,
    /* Keeps choices in the same order, but for the tokens of each rank separately: T is their
     * number, and C applies to each rank (position in Megatron). */
    DPAR_EXPERTS_DROP_POSITION_LOCAL,
    /* Keeps, on each rank, the C choices of the largest weight, of equal ones the lower token's.
     * NaN is dropped first (probs in Megatron). */
    DPAR_EXPERTS_DROP_WEIGHT_LOCAL
};

/* Describes a layer of experts. Zero it and fill it in. All ranks give the same values, except
 * max_rows, memory and bytes. */
typedef struct dpar_experts_desc {
    dpar_split experts; /* which experts each rank has: CHUNK, EVEN, FLOOR or RAGGED, with as many
                           parts as the communicator has ranks. Shares may be uneven, and empty */
    int32_t choices;    /* k */
    int32_t drop;       /* DPAR_EXPERTS_DROP_NONE, ... */
    double capacity_factor; /* of the capacity, 0.000001 to 1000000, rounded to millionths; not read
                      with DPAR_EXPERTS_DROP_NONE */
    int64_t max_tokens;     /* the most tokens that a rank ever has, at least 1 */
    int64_t max_rows; /* DPAR_EXPERTS_DROP_NONE: the most rows for this rank's experts in one step.
                     0 selects all that could arrive, ranks x tokens x min(k, own experts) */
    int64_t width;    /* elements of a row */
    int32_t type; /* of rows: DPAR_F64, F32, BF16 or F16. Weights are F64 for F64, otherwise F32 */
    int32_t reserved; /* 0 */
    /* Memory of yours for the plan, aligned to 64, as long as the plan exists. It is memory of the
     * host; that of dpar_comm_alloc is the fastest. NULL with bytes 0: dpar_experts_make allocates
     * it, together with memory for one routing unless comm->mem is given. Too few bytes are
     * DPAR_E_ROOM, and why->bytes tells how many are needed; to ask, set memory NULL and bytes 1.
     */
    void *memory;
    int64_t bytes;
} dpar_experts_desc;

/* A plan of a layer of experts, whose fields you may read. */
typedef struct dpar_experts_plan {
    dpar_experts_desc layer;
    int32_t first, count; /* first expert of this rank, or E if it has none, and how many */
    int64_t max_rows;     /* the most rows for this rank's experts: the size of your arrays */
    /* Bytes of one routing, a little more than 12 tokens k + 16 ranks x own experts. */
    int64_t routing_bytes;
    int64_t sent_bytes;              /* bytes sent to other ranks so far */
    int64_t kept, dropped, received; /* choices kept, choices dropped, and rows received, so far */
} dpar_experts_plan;

/* Where the tokens of one layer and micro-batch are sent, whose fields you may read. It is used
 * from forward to the end of backward. */
typedef struct dpar_experts_routing {
    int64_t tokens;
    int64_t kept;      /* choices of this rank's tokens that have a row: rows of arrays.saved */
    int64_t dropped;   /* choices that have none */
    int64_t rows;      /* rows for this rank's experts */
    int64_t *count;    /* [own] rows of each expert */
    int64_t *first;    /* [own] first row of each expert */
    int32_t *position; /* [tokens][k] row among the kept ones, which are sorted by expert; -1 if
                       dropped */
} dpar_experts_routing;

/* Choices of the tokens of a rank. */
typedef struct dpar_experts_choices {
    int64_t tokens;        /* 0 .. layer.max_tokens; it may differ between ranks and calls */
    const int32_t *chosen; /* [tokens][k] experts as dpar_router_forward gives them, each at most
                              once for a token; -1 for no choice (padding) */
    const void *weight; /* [tokens][k]; only DPAR_EXPERTS_DROP_WEIGHT_LOCAL reads it, otherwise it
                           may be NULL */
} dpar_experts_choices;

/* Arrays of one layer, which must not overlap. What a function does not use may be NULL. */
typedef struct dpar_experts_arrays {
    const void *x;       /* [tokens][width]; dispatch reads it */
    void *rows;          /* [routing->rows][width]; dispatch writes it, grouped by expert */
    const void *results; /* [routing->rows][width]; combine reads it */
    const void *weight;  /* [tokens][k]; combine and combine_backward read it */
    void *y;             /* [tokens][width]; combine writes it */
    void *saved;         /* [routing->kept][width]; combine stores the received results in it, and
                           combine_backward reads them. NULL if there is no backward */
    const void *dy;      /* [tokens][width]; combine_backward reads it */
    void *dresults;      /* [routing->rows][width]; combine_backward writes it */
    void *dweight; /* [tokens][k]; combine_backward writes it. NULL if not wanted; saved is then not
                      read */
    const void *drows; /* [routing->rows][width]; dispatch_backward reads it */
    void *dx;          /* [tokens][width]; dispatch_backward writes it */
} dpar_experts_arrays;

/* Plans a layer of experts. One plan serves all layers of this shape, one function at a time.
 *
 * layer: cuts of a RAGGED split stay yours, and have to exist as long as the plan.
 *
 * The plan contains a buffer for tokens x k rows and, if the rank has several experts, another for
 * max_rows rows. With comm->mem these buffers, and 12 + bytes(weight) bytes for each of tokens k
 * choices, are allocated on the device with dpar_comm_alloc until free.
 *
 * Collective over comm: one all-reduce. O(ranks). Fails on all ranks, with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, DPAR_E_ARG or DPAR_E_RANGE. With comm->mem it also
 * fails with DPAR_E_UNKNOWN if that has no wait or span, or its layers have no gather, combine or
 * dot. */
DPAR_API dpar_status dpar_experts_make(dpar_comm *comm, const dpar_experts_desc *layer,
                                       dpar_experts_plan **plan, dpar_why *why);
/* Frees a plan of experts, and what it has on a device once its stream has finished with it. NULL
 * is allowed. Local. Fails with the errors of waiting for the stream; the message is in the
 * communicator's why. */
DPAR_API dpar_status dpar_experts_free(dpar_experts_plan *plan);
/* Decides which choices are kept, and sends the counts to the ranks of the experts.
 *
 * memory, bytes: plan->routing_bytes bytes, aligned to 64, which hold the routing as long
 *                as you use it. Memory of dpar_comm_alloc is the fastest; with comm->mem it must be
 *                page-locked. NULL selects the plan's own memory, if dpar_experts_make allocated
 *                it and without comm->mem; the previous routing there is then lost.
 *
 * Collective. The top of this file gives the traffic, all-to-alls of counts. O(tokens k + ranks own
 * k + experts), with DPAR_EXPERTS_DROP_WEIGHT_LOCAL times a logarithm. Fails on all ranks with
 * DPAR_E_ROOM and the numbers if layer.max_rows is too small on one of them
 * (DPAR_EXPERTS_DROP_NONE). Nothing has happened then, and the plan can still be used. DPAR_E_ARG
 * on one rank breaks the communicator. */
DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        const dpar_experts_choices *choices,
                                        dpar_experts_routing **routing, dpar_why *why);

/* Sends the tokens x to their experts: copies them to rows, bit by bit.
 *
 * Collective, as the three functions below: one all-to-all-v or one pass. The top of this file
 * gives the traffic; O(tokens k width) and O(rows width) elements are copied as well. Fails with
 * DPAR_E_ARG if an array is missing, which breaks the communicator. Fails with DPAR_E_MISMATCH if
 * the routings of the ranks are not from the same dpar_experts_route. With MPI, the memory of a
 * device or DPAR_WORLD_NO_DIRECT this is not noticed if the numbers of rows are equal. Fails with
 * DPAR_E_PEER and DPAR_E_TIMEOUT as described in comm.h. The message is in comm->why. */
DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *arrays);
/* Sends the results back and combines them: y[token] is the sum over its kept choices of weight x
 * result, or 0 if all were dropped. Collective. Costs and fails as dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *arrays);
/* Computes the gradients of dpar_experts_combine: dresults = weight x dy, and dweight = dy . result
 * with sums in f64, or 0 for choices that were dropped. Collective. Costs and fails as
 * dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *arrays);
/* Computes the gradient of dpar_experts_dispatch: dx[token] is the sum over its kept choices of
 * drows. Collective. Costs and fails as dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *arrays);

#endif
