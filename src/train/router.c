/* SPDX-License-Identifier: MIT-0 */
/* The router of a mixture of experts: chooses experts by their scores, in plain loops in f64, and
 * computes its gradients. */
#include "router.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../host/elements.h"

/* Checks a router and the arguments of one of its functions. given: 1 if all arrays that the
 * function needs are not NULL. */
static dpar_status dpari_router_check(const dpar_router *router, int64_t tokens, int given,
                                      dpar_why *why)
{
    const int32_t choices = router != NULL ? router->choices : 0;
    const int32_t experts = router != NULL ? router->experts : 0;
    if (router == NULL || choices < 1 || choices > experts) {
        return dpari_wrong(
            why, "router: choices is %d and experts is %d, but 1 <= choices <= experts is required",
            choices, experts);
    }
    if (router->score < DPAR_ROUTER_SOFTMAX || router->score > DPAR_ROUTER_GIVEN) {
        return dpari_wrong(why,
                           "router: score is %d, but must be DPAR_ROUTER_SOFTMAX, SIGMOID or GIVEN",
                           router->score);
    }
    if (!dpari_is_wide(router->type)) {
        return dpari_wrong(why, "router: type is %s, but must be f64 or f32",
                           dpar_type_name(router->type));
    }
    if (tokens < 0 || tokens > INT64_MAX / 8 / router->experts) {
        return dpari_wrong(why,
                           "router: tokens is %ld, but must be 0 to 2^60 / experts (experts is %d)",
                           tokens, router->experts);
    }
    if (!given) {
        return dpari_wrong(why, "router: an array that this call needs for %ld tokens is NULL",
                           tokens);
    }
    return DPAR_OK;
}

/* Computes the scores s[experts] of one token from its logits, and returns their sum. Softmax
 * subtracts the largest logit, so that no exponential overflows. */
static double dpari_router_scores(const dpar_router *router, const void *logits, int64_t token,
                                  double *s)
{
    const int64_t at = token * router->experts;
    double most, sum = 0.0;
    int32_t e;
    for (e = 0; e < router->experts; e++) {
        s[e] = dpari_element_get(logits, router->type, at + e);
    }
    most = s[0];
    for (e = 1; e < router->experts; e++) {
        most = s[e] > most ? s[e] : most;
    }
    for (e = 0; e < router->experts; e++) {
        if (router->score == DPAR_ROUTER_SOFTMAX) {
            s[e] = dpari_exp(s[e] - most);
        } else if (router->score == DPAR_ROUTER_SIGMOID) {
            s[e] = 1.0 / (1.0 + dpari_exp(-s[e]));
        }
        sum += s[e];
    }
    if (router->score != DPAR_ROUTER_SOFTMAX) {
        return sum;
    }
    for (e = 0; e < router->experts; e++) {
        s[e] /= sum;
    }
    return 1.0;
}

/* Chooses the k experts with the largest by[expert], largest first. Each expert is inserted from
 * the end of the sorted list, so that equal ones stay in the order of their indices. */
static void dpari_router_choose(const dpar_router *router, const double *by, int32_t *chosen)
{
    int32_t e, n = 0, at;
    for (e = 0; e < router->experts; e++) {
        if (n == router->choices && !dpari_higher(by[e], by[chosen[n - 1]])) {
            continue;
        }
        at = n < router->choices ? n++ : n - 1;
        for (; at > 0 && dpari_higher(by[e], by[chosen[at - 1]]); at--) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = e;
    }
}

/* Returns the factor of the weights. A scale of 0 selects 1. */
static double dpari_router_scale(const dpar_router *router)
{
    return router->scale != 0.0 ? router->scale : 1.0;
}

/* Returns the divisor of the weights of a token: the sum of its chosen scores with `normalise`,
 * otherwise 1. The sum starts from 1e-20, so that it is never 0. */
static double dpari_router_norm(const dpar_router *router, const double *s, const int32_t *chosen)
{
    double sum = 1e-20;
    int32_t j;
    if (!router->normalise) {
        return 1.0;
    }
    for (j = 0; j < router->choices; j++) {
        sum += chosen[j] >= 0 ? s[chosen[j]] : 0.0;
    }
    return sum;
}

DPAR_API dpar_status dpar_router_forward(const dpar_router *router,
                                         const dpar_router_arrays *arrays, dpar_why *why)
{
    const int64_t tokens = arrays != NULL ? arrays->tokens : 0;
    const int given = arrays != NULL && arrays->scratch != NULL &&
                      (tokens == 0 || (arrays->logits != NULL && arrays->chosen != NULL &&
                                       arrays->weight != NULL));
    const dpar_status st = dpari_router_check(router, tokens, given, why);
    int64_t t;
    int32_t e, j;
    for (t = 0; st == DPAR_OK && t < tokens; t++) {
        int32_t *mine = arrays->chosen + t * router->choices;
        double norm, *scores = arrays->scratch, *biased = scores + router->experts;
        (void)dpari_router_scores(router, arrays->logits, t, scores);
        for (e = 0; e < router->experts; e++) {
            biased[e] = scores[e] + (router->bias != NULL ? router->bias[e] : 0.0);
        }
        dpari_router_choose(router, biased, mine);
        norm = dpari_router_norm(router, scores, mine);
        for (j = 0; j < router->choices; j++) {
            dpari_element_put(arrays->weight, router->type, t * router->choices + j,
                              dpari_router_scale(router) * scores[mine[j]] / norm);
        }
    }
    return st;
}

/* Checks that each choice is an expert or -1. */
static dpar_status dpari_router_chosen(const dpar_router *router, int64_t tokens,
                                       const int32_t *chosen, dpar_why *why)
{
    int64_t i;
    for (i = 0; i < tokens * router->choices; i++) {
        if (chosen[i] < -1 || chosen[i] >= router->experts) {
            return dpari_wrong(why, "router: token %ld chose expert %d, but there are %d experts",
                               i / router->choices, chosen[i], router->experts);
        }
    }
    return DPAR_OK;
}

/* Adds the tokens of this rank to sums[2 experts + 1]: for each expert how often it is chosen, then
 * for each expert the sum of its shares of the scores, then the number of tokens. Tokens without
 * choices (padding) do not count. */
static void dpari_router_add(const dpar_router *router, int64_t tokens, const void *logits,
                             const int32_t *chosen, double *sums, double *scratch)
{
    int64_t t;
    int32_t e, j;
    for (t = 0; t < tokens; t++) {
        const int32_t *mine = chosen + t * router->choices;
        double sum;
        for (j = 0; j < router->choices; j++) {
            if (mine[j] >= 0) {
                sums[mine[j]] += 1.0;
            }
        }
        if (mine[0] < 0) {
            continue;
        }
        sum = dpari_router_scores(router, logits, t, scratch);
        for (e = 0; e < router->experts; e++) {
            sums[router->experts + e] += sum > 0.0 ? scratch[e] / sum : 0.0;
        }
        sums[2 * (int64_t)router->experts] += 1.0;
    }
}

/* Computes the load and the balancing loss from the sums of all ranks. */
static void dpari_router_loads(const dpar_router *router, double *sums, dpar_router_load *load)
{
    const double tokens = sums[2 * (int64_t)router->experts];
    double all = 0.0, most = 0.0, dot = 0.0;
    int32_t e;
    load->chosen = sums;
    load->score = sums + router->experts;
    load->tokens = (int64_t)tokens;
    load->idle = 0;
    for (e = 0; e < router->experts; e++) {
        load->score[e] /= tokens > 0.0 ? tokens : 1.0;
        load->idle += !(sums[e] > 0.0);
        all += sums[e];
        most = dpari_mostf(most, sums[e]);
        dot += sums[e] * load->score[e];
    }
    load->imbalance = all > 0.0 ? most * router->experts / all : 0.0;
    load->loss =
        tokens > 0.0 ? router->balance * router->experts * dot / (router->choices * tokens) : 0.0;
}

/* Adds the sums over all ranks. The hash makes engines that compare calls fail if the routers
 * differ. */
static dpar_status dpari_router_sum(const dpar_router *router, dpar_comm *comm, double *sums,
                                    int64_t n)
{
    uint64_t hash =
        dpari_hash(dpari_hash(dpari_hash(4, router->experts), router->choices), router->score);
    dpar_call call;
    hash = dpari_hash(dpari_hash(hash, router->type), router->normalise != 0);
    hash = dpari_hash_real(dpari_hash_real(hash, router->scale), router->balance);
    dpari_zero(&call, sizeof call);
    call.kind = DPAR_CALL_ALL_REDUCE;
    call.type = DPAR_F64;
    call.op = DPAR_SUM;
    call.in = call.out = sums;
    call.count = n;
    return dpari_post_alike(comm, &call, hash,
                            "a router: experts, choices, score, type, normalise, scale or balance",
                            NULL);
}

DPAR_API DPARI_COLD dpar_status dpar_router_balance(const dpar_router *router, dpar_comm *comm,
                                         const dpar_router_arrays *arrays, dpar_router_load *load)
{
    const int64_t tokens = arrays != NULL ? arrays->tokens : 0;
    const int given = arrays != NULL && arrays->sums != NULL && load != NULL &&
                      arrays->scratch != NULL &&
                      (tokens == 0 || (arrays->logits != NULL && arrays->chosen != NULL));
    int64_t n = 0;
    dpar_why said;
    dpar_status st = dpari_router_check(router, tokens, given, &said);
    if (st == DPAR_OK) {
        st = dpari_router_chosen(router, tokens, arrays->chosen, &said);
    }
    if (st != DPAR_OK) {
        return comm == NULL ? st
                            : dpari_comm_wrong_all(comm, st, "rank %d: %s", comm->rank, said.text);
    }
    n = 2 * (int64_t)router->experts + 1;
    dpari_zero(arrays->sums, (size_t)n * sizeof *arrays->sums);
    dpari_router_add(router, tokens, arrays->logits, arrays->chosen, arrays->sums, arrays->scratch);
    if (comm != NULL) {
        st = dpari_router_sum(router, comm, arrays->sums, n);
        if (st == DPAR_OK) {
            st = dpari_do_wait(comm); /* a device may still be writing page-locked sums */
        }
    }
    if (st == DPAR_OK) {
        dpari_router_loads(router, arrays->sums, load);
    }
    return st;
}

/* Adds the gradient of one token's scores to d[experts]. The scores affect the weights of its
 * choices and, unless load is NULL, the balancing loss. s: the scores. sum: their sum. */
static void dpari_router_back(const dpar_router *router, int64_t token, const int32_t *chosen,
                              const void *dweight, const dpar_router_load *load, double sum,
                              const double *s, double *d)
{
    const double norm = dpari_router_norm(router, s, chosen),
                 by = dpari_router_scale(router) / norm;
    double mean = 0.0;
    int32_t e, j;
    for (j = 0; dweight != NULL && router->normalise && j < router->choices; j++) {
        if (chosen[j] >= 0) {
            mean += dpari_element_get(dweight, router->type, token * router->choices + j) *
                    s[chosen[j]] / norm;
        }
    }
    for (j = 0; dweight != NULL && j < router->choices; j++) {
        if (chosen[j] >= 0) {
            d[chosen[j]] +=
                by * (dpari_element_get(dweight, router->type, token * router->choices + j) - mean);
        }
    }
    if (load != NULL && load->tokens > 0 && chosen[0] >= 0 && sum > 0.0) {
        const double all = (double)load->tokens;
        const double a = router->balance * router->experts / (router->choices * all * all);
        mean = 0.0;
        for (e = 0; e < router->experts; e++) {
            mean += a * load->chosen[e] * (s[e] / sum);
        }
        for (e = 0; e < router->experts; e++) {
            d[e] += (a * load->chosen[e] - mean) / sum;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_router_backward(const dpar_router *router,
                                          const dpar_router_arrays *arrays,
                                          const dpar_router_load *load, dpar_why *why)
{
    const int64_t tokens = arrays != NULL ? arrays->tokens : 0;
    const int given = arrays != NULL && arrays->scratch != NULL &&
                      (tokens == 0 || (arrays->logits != NULL && arrays->chosen != NULL &&
                                       arrays->dlogits != NULL));
    dpar_status st = dpari_router_check(router, tokens, given, why);
    int64_t t;
    int32_t e;
    if (st == DPAR_OK) {
        st = dpari_router_chosen(router, tokens, arrays->chosen, why);
    }
    for (t = 0; st == DPAR_OK && t < tokens; t++) {
        double *scores = arrays->scratch, *d = scores + router->experts, mean = 0.0;
        const double sum = dpari_router_scores(router, arrays->logits, t, scores);
        dpari_zero(d, (size_t)router->experts * sizeof *d);
        dpari_router_back(router, t, arrays->chosen + t * router->choices, arrays->dweight, load,
                          sum, scores, d);
        for (e = 0; router->score == DPAR_ROUTER_SOFTMAX && e < router->experts; e++) {
            mean += d[e] * scores[e];
        }
        for (e = 0; e < router->experts; e++) {
            const double s = scores[e];
            double slope = 1.0;
            if (router->score == DPAR_ROUTER_SOFTMAX) {
                slope = s;
            } else if (router->score == DPAR_ROUTER_SIGMOID) {
                slope = s * (1.0 - s);
            }
            dpari_element_put(arrays->dlogits, router->type, t * router->experts + e,
                              slope * (d[e] - mean));
        }
    }
    return st;
}
