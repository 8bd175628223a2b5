/* SPDX-License-Identifier: MIT-0 */
/* router - chooses the experts of each token for a mixture of experts (expert.h), and computes the
 * weights of the choices, the load of the experts and a loss that balances it. expert.h has an
 * example. */
#ifndef DPARI_TRAIN_ROUTER_H
#define DPARI_TRAIN_ROUTER_H

#include "../comm/comm.h"

/* Functions that turn logits into scores. */
enum {
    DPAR_ROUTER_SOFTMAX, /* softmax over all experts (Switch, Mixtral with normalise, Qwen) */
    DPAR_ROUTER_SIGMOID, /* sigmoid of each expert's logit (DeepSeek-V3, Llama 4) */
    DPAR_ROUTER_GIVEN /* logits are the scores; if normalised or balanced they must be at least 0 */
};

/* Describes a router. Zero it and fill it in. A token chooses the k experts with the highest score
 * + bias, highest first. If two are equal, the one with the lower index comes first; NaN comes
 * last. The weight of a choice with score s is
 *
 *     scale s            or, with normalise:    scale s / (the sum of the token's k scores + 1e-20)
 *
 * If the capacity drops a choice, the weights of the token's other choices do not change. */
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

/* Arrays of the router for one layer and micro-batch. Arrays that a function does not use may be
 * NULL. */
typedef struct dpar_router_arrays {
    int64_t tokens;
    const void *logits;  /* [tokens][experts] */
    int32_t *chosen;     /* [tokens][k]; forward writes it, balance and backward read it */
    void *weight;        /* [tokens][k]; forward writes it */
    double *sums;        /* [2 experts + 1]; balance writes it */
    const void *dweight; /* [tokens][k]; backward reads it; NULL means zeros */
    void *dlogits;       /* [tokens][experts]; backward writes it */
    double *scratch;     /* [2 experts]; used by all functions */
} dpar_router_arrays;

/* Chooses the experts of each token: computes chosen and weight from logits. Local. O(tokens x
 * experts), or in the worst case, which is ascending scores, k times that. Fails with DPAR_E_ARG.
 */
DPAR_API dpar_status dpar_router_forward(const dpar_router *router,
                                         const dpar_router_arrays *arrays, dpar_why *why);

/* How evenly the tokens of all ranks choose the experts, before capacity drops any choice. */
typedef struct dpar_router_load {
    int64_t tokens;   /* number of tokens of all ranks */
    int64_t idle;     /* number of experts that no token chose */
    double imbalance; /* load of the busiest expert / mean load; 1 is even, 0 means no choices */
    double loss;      /* see dpar_router_balance */
    double *chosen;   /* [experts] how often each was chosen, as whole numbers; part of a->sums */
    double *score; /* [experts] P, the mean over tokens of the expert's share of the token's scores;
                      part of a->sums */
} dpar_router_load;
/* Computes the load of the experts and the balancing loss of Switch and DeepSeek over the tokens of
 * all ranks of comm:
 *
 *     loss = a E sum over experts of f P,    f = chosen / (k tokens)
 *
 * The loss is `a` if tokens are spread evenly. It uses arrays->chosen from dpar_router_forward.
 * A token whose first choice is -1 is padding and is not counted. A token that
 * several ranks hold is counted once per rank.
 *
 * comm: the ranks that share the router. NULL computes the loss of these tokens only, as DeepSeek
 *       does for each sequence.
 *
 * Collective over comm: an all-reduce of 2 x experts + 1 doubles, which gives the same bits on all
 * its ranks. With comm->mem it waits for the device's stream. Local if comm is NULL. O(tokens x
 * experts). Fails with DPAR_E_ARG, which breaks the communicator; the message is in comm->why.
 * Fails with DPAR_E_MISMATCH if ranks pass different routers (apart from bias), but only on engines
 * that compare calls: shared memory, and MPI with its option `check`. */
DPAR_API dpar_status dpar_router_balance(const dpar_router *router, dpar_comm *comm,
                                         const dpar_router_arrays *arrays, dpar_router_load *load);
/* Computes dlogits from dweight.
 *
 * load: from dpar_router_balance, to add the gradient of its loss, in which f is constant as usual.
 *       NULL omits the loss.
 *
 * The loss is that of all ranks' tokens, so its gradients must be summed over the ranks. If ddp
 * averages the gradients of the router, multiply `balance` by the number of ranks.
 *
 * Local. O(tokens x experts). Fails like dpar_router_forward, and with DPAR_E_ARG if a choice is
 * not an expert. */
DPAR_API dpar_status dpar_router_backward(const dpar_router *router,
                                          const dpar_router_arrays *arrays,
                                          const dpar_router_load *load, dpar_why *why);
/* You can also balance experts without a loss (DeepSeek-V3). Once per step, add 0.001 to bias[e] if
 * load->chosen[e] is below the mean of load->chosen, and subtract 0.001 if it is above. With
 * several micro-batches, use the sums of their load->chosen, which are the same on all ranks. */

#endif
