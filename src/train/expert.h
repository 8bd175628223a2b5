/* SPDX-License-Identifier: MIT-0 */
/* expert - runs mixtures of experts whose experts are on different ranks (expert parallelism). The
 * router chooses k experts for each token. dpar sends tokens to the ranks of their experts and the
 * results back, forward and backward. The results equal those of one rank with all tokens and all
 * experts. You compute the experts themselves:
 *
 *     dpar_experts_desc layer = {0};
 *     dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, 64, comm->size, 1, &why);
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
 * If the forward of other layers runs before the backward of a layer, each layer needs a separate
 * routing: pass memory of plan->routing_bytes bytes to dpar_experts_route for each.
 *
 * The rows of an expert are in the order of the ranks, then of the tokens of a rank. If each rank
 * holds consecutive tokens, this is the order that one rank would use, so that an expert's sums
 * have the same bits. A token's results are summed in the order of its choices, in f64, and rounded
 * once.
 *
 * Traffic. Let there be R ranks and E experts, of which `own` are on the rank, let rows have B =
 * width bytes(type) bytes, and let S be k with DPAR_EXPERTS_DROP_POSITION, otherwise 1. A rank
 * sends to other ranks
 *
 *     route      4 (R - 1 + S (E - own)) bytes; for DPAR_EXPERTS_DROP_POSITION another
 *                4 (R - 1) (1 + S own); for DPAR_EXPERTS_DROP_NONE also an all-reduce of 24 bytes
 *     dispatch, combine_backward    B for each kept choice of its tokens of another rank's expert
 *     combine, dispatch_backward    B for each row of its experts from another rank's token
 *
 * Nothing else is sent, because weights and their gradients stay with the tokens. plan->sent_bytes
 * counts the bytes.
 *
 * Shared memory. Ranks can read the rows directly from each other's arrays and store or add them at
 * their destination, in one pass. This moves less data than two plain all-to-alls. It requires that
 * the arrays that other ranks read come from dpar_comm_alloc on all ranks: routings, x, dy,
 * weights, and the rows that are sent back. Do not change these inputs until the call returns,
 * which it does once all ranks have read them. Otherwise rows are packed before an all-to-all and
 * sorted after it, which takes three passes. Both methods give the same bits and counts.
 *
 * Devices. If comm->mem is the memory of a device, x, rows, results, saved, y, weights and all
 * their gradients are in that memory. Dispatch, combine and their backward enqueue work on its
 * stream, without waiting or allocating. The host decides which choices are kept, and the plan is
 * in host memory. Therefore the CPU must be able to read the arguments of dpar_experts_route:
 * `chosen`, and with DPAR_EXPERTS_DROP_WEIGHT_LOCAL `weight`. Copy them to the host and wait before
 * you call it.
 *
 * Routings must then be in page-locked memory, which both host and device can access. The first
 * operation that uses another routing than the previous operation copies 12 bytes per choice to the
 * device. dpar_experts_route waits for the stream, because the device may still read the old
 * contents, and because it needs the counts. Therefore do not capture these calls in a graph.
 *
 * The router's functions run on the host. Pass them page-locked logits, weights and dweight, or use
 * your own kernels instead. The device's values equal the host's bit by bit, with two exceptions:
 * -0 in the results of combine_backward becomes 0, and sums of dweight use the device's order.
 *
 * Together with tensor and data parallelism, make the communicator from a view of the mesh for
 * experts:
 *
 *     dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_ORDER_LAST_FASTEST, &why);
 *     dpar_comm_split_axes(world, &view, 1u << 1, &ep);     for this file
 *     dpar_comm_split_axes(world, &view, 1u << 2, &etp);    an expert's matrices, tensor.h: these
 *                                          ranks pass the same tokens and get the same rows
 *     dpar_comm_split_axes(world, &view, 1u << 0, &edp);    gradients of experts, ddp.h
 *
 * The router and all other layers use the axes of `mesh`. An expert that all tokens use is an
 * ordinary layer: add its output to y. */
#ifndef DPARI_TRAIN_EXPERT_H
#define DPARI_TRAIN_EXPERT_H

#include "../index/split.h"
#include "../comm/comm.h"

/* Rules for dropping choices if an expert is full. Except with DPAR_EXPERTS_DROP_NONE, an expert
 * has a capacity of C = ceil(capacity_factor k T / E) rows. */
enum {
    DPAR_EXPERTS_DROP_NONE, /* keeps all choices */
    /* Keeps first choices before second ones, and so on. Choices of the same position are kept in
     * the order of the ranks, then of the rank's tokens. T is the number of tokens of all ranks.
     * One rank with all tokens would drop the same choices (GShard, Switch). */
    DPAR_EXPERTS_DROP_POSITION,
    /* Keeps choices in the same order, but for the tokens of each rank separately. T is the number
     * of the rank's tokens, and an expert keeps C rows from each rank (position in Megatron). */
    DPAR_EXPERTS_DROP_POSITION_LOCAL,
    /* Keeps, for each rank and expert, the C choices with the largest weights. If two are equal,
     * prefers the lower token. Drops NaN first. T is the number of the rank's tokens (probs in
     * Megatron). */
    DPAR_EXPERTS_DROP_WEIGHT_LOCAL
};

/* Describes a layer of experts. Zero it and fill it in. All ranks pass the same values, except for
 * max_rows, memory and bytes. */
typedef struct dpar_experts_desc {
    dpar_split experts; /* which experts each rank has: CHUNK, EVEN, FLOOR or RAGGED, with as many
                           parts as the communicator has ranks. Parts may differ in size and may be
                           empty */
    int32_t choices;    /* k */
    int32_t drop;       /* DPAR_EXPERTS_DROP_NONE, ... */
    double capacity_factor; /* 0.000001 to 1000000, rounded to millionths; not read with
                      DPAR_EXPERTS_DROP_NONE */
    int64_t max_tokens;     /* largest number of tokens that a rank will have, at least 1 */
    int64_t max_rows; /* DPAR_EXPERTS_DROP_NONE: largest number of rows for this rank's experts in
                     one step. 0 selects ranks x max_tokens x min(k, own experts), which is always
                     enough */
    int64_t width;    /* elements of a row */
    int32_t type; /* of rows: DPAR_F64, F32, BF16 or F16. Weights are F64 for F64, otherwise F32 */
    int32_t reserved; /* 0 */
    /* Your memory for the plan, on the host and aligned to 64 bytes, which you keep until the plan
     * is freed; memory of dpar_comm_alloc is the fastest. If it is NULL and bytes is 0, make
     * allocates it, and without comm->mem also memory for one routing. If bytes is too small, make
     * fails with DPAR_E_ROOM, and why->bytes is the size that is needed. To query that size, set
     * memory to NULL and bytes to 1. */
    void *memory;
    int64_t bytes;
} dpar_experts_desc;

/* A plan of a layer of experts, whose fields you may read. */
typedef struct dpar_experts_plan {
    dpar_experts_desc layer;
    int32_t first, count; /* first expert of this rank, or E if it has none, and their number */
    int64_t max_rows;     /* largest number of rows for this rank's experts: size of your arrays */
    /* Size of one routing in bytes, a little more than 12 max_tokens k + 16 ranks x own experts. */
    int64_t routing_bytes;
    int64_t sent_bytes;              /* bytes sent to other ranks so far */
    int64_t kept, dropped, received; /* choices kept, choices dropped, and rows received, so far */
} dpar_experts_plan;

/* Describes where the tokens of one layer and micro-batch are sent. You may read its fields. It is
 * used from forward to the end of backward. */
typedef struct dpar_experts_routing {
    int64_t tokens;
    int64_t kept;      /* choices of this rank's tokens that are kept: rows of arrays.saved */
    int64_t dropped;   /* choices of this rank's tokens that were dropped */
    int64_t rows;      /* rows for this rank's experts */
    int64_t *count;    /* [own] rows of each expert */
    int64_t *first;    /* [own] first row of each expert */
    int32_t *position; /* [tokens][k] position among the kept choices, which are sorted by expert;
                       -1 if dropped */
} dpar_experts_routing;

/* Choices of the tokens of a rank. */
typedef struct dpar_experts_choices {
    int64_t tokens;        /* 0 .. layer.max_tokens; it may differ between ranks and calls */
    const int32_t *chosen; /* [tokens][k] experts from dpar_router_forward, each at most once per
                              token; -1 for no choice (padding) */
    const void *weight; /* [tokens][k]; only DPAR_EXPERTS_DROP_WEIGHT_LOCAL reads it, otherwise it
                           may be NULL */
} dpar_experts_choices;

/* Arrays of one layer, which must not overlap. Arrays that a function does not use may be NULL. */
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

/* Makes a plan for layers of experts. All layers of this shape can use the same plan, but not at
 * the same time.
 *
 * layer: if its split is RAGGED, you keep the array of cuts until the plan is freed.
 *
 * The plan contains a buffer for max_tokens x k rows and, if the rank has several experts, another
 * for max_rows rows. With comm->mem, dpar_comm_alloc allocates these buffers on the device, and 12
 * + bytes(weight) bytes for each of max_tokens k choices.
 *
 * Collective over comm: one all-reduce. O(ranks). Fails on all ranks, with DPAR_E_MISMATCH if
 * layers differ, DPAR_E_ROOM, DPAR_E_MEMORY, DPAR_E_ARG or DPAR_E_RANGE. With comm->mem it also
 * fails with DPAR_E_UNKNOWN if that has no wait or span, or its layers have no gather, combine or
 * dot. */
DPAR_API dpar_status dpar_experts_make(dpar_comm *comm, const dpar_experts_desc *layer,
                                       dpar_experts_plan **plan, dpar_why *why);
/* Frees a plan of experts. If it has memory on a device, waits for the device's stream first. NULL
 * is allowed. Local. Fails if this wait fails; the message is in the communicator's why. */
DPAR_API dpar_status dpar_experts_free(dpar_experts_plan *plan);
/* Decides which choices are kept, and sends the counts to the ranks of the experts.
 *
 * memory, bytes: plan->routing_bytes bytes, aligned to 64, which hold the routing as long
 *                as you use it. Memory of dpar_comm_alloc is the fastest; with comm->mem it must be
 *                page-locked. NULL selects memory in the plan, whose previous routing is then lost.
 *                The plan has such memory if dpar_experts_make allocated it, without comm->mem.
 *
 * Collective. Costs the all-to-alls of counts that the top of this file lists, and O(tokens k +
 * ranks own k + experts), with DPAR_EXPERTS_DROP_WEIGHT_LOCAL times a logarithm. With
 * DPAR_EXPERTS_DROP_NONE, fails on all ranks with DPAR_E_ROOM, naming the numbers, if
 * layer.max_rows is too small on one rank. The plan can still be used then. DPAR_E_ARG on one rank
 * breaks the communicator. */
DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        const dpar_experts_choices *choices,
                                        dpar_experts_routing **routing, dpar_why *why);

/* Sends the tokens x to their experts, which get exact copies of them in `rows`.
 *
 * Collective, like the three functions below. Costs one all-to-all-v or one pass of direct reads,
 * whose traffic the top of this file lists, and copies of O(tokens k width + rows width) elements.
 * Fails with DPAR_E_ARG, which breaks the communicator, if an array is NULL. Fails with
 * DPAR_E_MISMATCH if the routings of the ranks are not from the same call of dpar_experts_route.
 * With MPI, the memory of a device or DPAR_WORLD_NO_DIRECT this is noticed only if the numbers of
 * rows differ. Fails with DPAR_E_PEER and DPAR_E_TIMEOUT as described in comm.h. The message is in
 * comm->why. */
DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *arrays);
/* Sends the results back and combines them: y[token] is the sum over its kept choices of weight x
 * result, or 0 if all were dropped. Collective. Has the costs and errors of
 * dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *arrays);
/* Computes the gradients of dpar_experts_combine: dresults = weight x dy, and dweight = dy . result
 * with sums in f64, or 0 for choices that were dropped. Collective. Has the costs and errors of
 * dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *arrays);
/* Computes the gradient of dpar_experts_dispatch: dx[token] is the sum over its kept choices of
 * drows. Collective. Has the costs and errors of dpar_experts_dispatch. */
DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *arrays);

#endif
