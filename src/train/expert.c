/* SPDX-License-Identifier: MIT-0 */
/* Router, routing and exchange of tokens for mixtures of experts.
 *
 * Routing: each rank counts its choices for each expert, applies the capacity, and exchanges the
 * counts. With DPAR_EXPERTS_DROP_POSITION capacity is global: each expert's rank divides its rows
 * among the ranks, slot by slot, and answers with what each rank may send. From the counts every
 * rank knows where its rows begin on the others, and nothing else needs to be agreed.
 *
 * Exchange: rows go to experts in the order of ranks and tokens, and results are summed in the
 * order of choices. There are three implementations with the same bits: direct reads from the
 * arrays of the other ranks (peers.h), packing around an all-to-all-v, and gathers and sums on a
 * device. */
#include "expert.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/elements.h"
#include "../comm/kernel.h"
#include "../comm/mem_private.h"
#include "../comm/object_memory.h"
#include "../comm/peers.h"
#include "../index/inner.h"
#include "layers_private.h"

/* ---- the router ------------------------------------------------------------------------------ */

/* Checks a router and the arguments of one of its functions. given: 1 if all arrays that the
 * function needs are there. */
static dpar_status dpari_router_check(const dpar_router *g, int64_t tokens, int given,
                                      dpar_why *why)
{
    if (g == NULL || g->experts < 1 || g->choices < 1 || g->choices > g->experts) {
        return dpari_wrong(
            why, "router: choices is %d and experts is %d, but 1 <= choices <= experts is required",
            g == NULL ? 0 : g->choices, g == NULL ? 0 : g->experts);
    }
    if (g->score < DPAR_ROUTER_SOFTMAX || g->score > DPAR_ROUTER_GIVEN) {
        return dpari_wrong(why, "router: score is %d, not DPAR_ROUTER_SOFTMAX, SIGMOID or GIVEN",
                           g->score);
    }
    if (!dpari_is_wide(g->type)) {
        return dpari_wrong(why, "router: type is %s, but must be f64 or f32",
                           dpar_type_name(g->type));
    }
    if (tokens < 0 || tokens > INT64_MAX / 8 / g->experts) {
        return dpari_wrong(why,
                           "router: tokens is %ld with %d experts, which is negative or too large",
                           tokens, g->experts);
    }
    if (!given) {
        return dpari_wrong(why, "router: an array that this call needs for %ld tokens is NULL",
                           tokens);
    }
    return DPAR_OK;
}

/* Computes the scores of one token from its logits into s[experts]. Returns their sum. Softmax
 * subtracts the largest logit, so that no exponential overflows. */
static double dpari_router_scores(const dpar_router *g, const void *logits, int64_t token,
                                  double *s)
{
    const int64_t at = token * g->experts;
    double most, sum = 0.0;
    int32_t e;
    for (e = 0; e < g->experts; e++) {
        s[e] = dpari_element_get(logits, g->type, at + e);
    }
    most = s[0];
    for (e = 1; e < g->experts; e++) {
        most = s[e] > most ? s[e] : most;
    }
    for (e = 0; e < g->experts; e++) {
        if (g->score == DPAR_ROUTER_SOFTMAX) {
            s[e] = dpari_exp(s[e] - most);
        } else if (g->score == DPAR_ROUTER_SIGMOID) {
            s[e] = 1.0 / (1.0 + dpari_exp(-s[e]));
        }
        sum += s[e];
    }
    if (g->score != DPAR_ROUTER_SOFTMAX) {
        return sum;
    }
    for (e = 0; e < g->experts; e++) {
        s[e] /= sum;
    }
    return 1.0;
}

/* True if score a belongs before score b in the order of choice, where b has the lower index. Equal
 * scores keep their order, and NaN ranks last. */
static int dpari_router_higher(double a, double b)
{
    return a > b || (a == a && b != b);
}

/* Chooses the k experts with the largest by[expert], largest first. Each expert is inserted from
 * the end of the list, so that equal ones stay in the order of their indices. */
static void dpari_router_choose(const dpar_router *g, const double *by, int32_t *chosen)
{
    int32_t e, n = 0, at;
    for (e = 0; e < g->experts; e++) {
        if (n == g->choices && !dpari_router_higher(by[e], by[chosen[n - 1]])) {
            continue;
        }
        at = n < g->choices ? n++ : n - 1;
        for (; at > 0 && dpari_router_higher(by[e], by[chosen[at - 1]]); at--) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = e;
    }
}

/* Returns the factor of the weights, of which 0 selects 1. */
static double dpari_router_scale(const dpar_router *g)
{
    return g->scale != 0.0 ? g->scale : 1.0;
}

/* Returns the divisor of the weights of a token: the sum of its chosen scores with `normalise`,
 * otherwise 1. The sum starts from 1e-20, so that it is never 0. */
static double dpari_router_norm(const dpar_router *g, const double *s, const int32_t *chosen)
{
    double sum = 1e-20;
    int32_t j;
    if (!g->normalise) {
        return 1.0;
    }
    for (j = 0; j < g->choices; j++) {
        sum += chosen[j] >= 0 ? s[chosen[j]] : 0.0;
    }
    return sum;
}

DPAR_API dpar_status dpar_router_forward(const dpar_router *g, const dpar_router_arrays *a,
                                         dpar_why *why)
{
    const int64_t tokens = a != NULL ? a->tokens : 0;
    const int given =
        a != NULL && a->scratch != NULL &&
        (tokens == 0 || (a->logits != NULL && a->chosen != NULL && a->weight != NULL));
    const dpar_status st = dpari_router_check(g, tokens, given, why);
    int64_t t;
    int32_t e, j;
    for (t = 0; st == DPAR_OK && t < tokens; t++) {
        int32_t *mine = a->chosen + t * g->choices;
        double norm, *scores = a->scratch, *biased = scores + g->experts;
        (void)dpari_router_scores(g, a->logits, t, scores);
        for (e = 0; e < g->experts; e++) {
            biased[e] = scores[e] + (g->bias != NULL ? g->bias[e] : 0.0);
        }
        dpari_router_choose(g, biased, mine);
        norm = dpari_router_norm(g, scores, mine);
        for (j = 0; j < g->choices; j++) {
            dpari_element_put(a->weight, g->type, t * g->choices + j,
                              dpari_router_scale(g) * scores[mine[j]] / norm);
        }
    }
    return st;
}

/* Checks that each choice is an expert or -1. */
static dpar_status dpari_router_chosen(const dpar_router *g, int64_t tokens, const int32_t *chosen,
                                       dpar_why *why)
{
    int64_t i;
    for (i = 0; i < tokens * g->choices; i++) {
        if (chosen[i] < -1 || chosen[i] >= g->experts) {
            return dpari_wrong(why, "router: token %ld chose expert %d, but there are %d experts",
                               i / g->choices, chosen[i], g->experts);
        }
    }
    return DPAR_OK;
}

/* Adds the tokens of this rank to sums[2 experts + 1]: how often each expert is chosen, then the
 * sum of its shares of the scores, then the number of tokens. Tokens that chose nothing (padding)
 * do not count. */
static void dpari_router_add(const dpar_router *g, int64_t tokens, const void *logits,
                             const int32_t *chosen, double *sums, double *scratch)
{
    int64_t t;
    int32_t e, j;
    for (t = 0; t < tokens; t++) {
        const int32_t *mine = chosen + t * g->choices;
        double sum;
        for (j = 0; j < g->choices; j++) {
            if (mine[j] >= 0) {
                sums[mine[j]] += 1.0;
            }
        }
        if (mine[0] < 0) {
            continue;
        }
        sum = dpari_router_scores(g, logits, t, scratch);
        for (e = 0; e < g->experts; e++) {
            sums[g->experts + e] += sum > 0.0 ? scratch[e] / sum : 0.0;
        }
        sums[2 * (int64_t)g->experts] += 1.0;
    }
}

/* Computes the load and the balancing loss from the sums of all ranks. */
static void dpari_router_loads(const dpar_router *g, double *sums, dpar_router_load *load)
{
    const double tokens = sums[2 * (int64_t)g->experts];
    double all = 0.0, most = 0.0, dot = 0.0;
    int32_t e;
    load->chosen = sums;
    load->score = sums + g->experts;
    load->tokens = (int64_t)tokens;
    load->idle = 0;
    for (e = 0; e < g->experts; e++) {
        load->score[e] /= tokens > 0.0 ? tokens : 1.0;
        load->idle += !(sums[e] > 0.0);
        all += sums[e];
        most = dpari_mostf(most, sums[e]);
        dot += sums[e] * load->score[e];
    }
    load->imbalance = all > 0.0 ? most * g->experts / all : 0.0;
    load->loss = tokens > 0.0 ? g->balance * g->experts * dot / (g->choices * tokens) : 0.0;
}

/* Breaks the communicator with a message, so that the other ranks notice. */
static DPARI_COLD dpar_status dpari_expert_wrong(dpar_comm *comm, const dpar_why *said,
                                                 dpar_why *why)
{
    dpar_why text;
    dpar_status st;
    (void)dpari_wrong(&text, "rank %d: %s", comm->rank, said->text);
    st = dpari_comm_wrong_all(comm, DPAR_E_ARG, &text);
    if (why != NULL) {
        *why = comm->why;
    }
    return st;
}

/* Adds the sums over all ranks. The hash makes engines that compare calls fail if the routers
 * differ. */
static dpar_status dpari_router_sum(const dpar_router *g, dpar_comm *comm, double *sums, int64_t n)
{
    uint64_t hash = dpari_hash(dpari_hash(dpari_hash(4, g->experts), g->choices), g->score);
    dpar_call call;
    hash = dpari_hash(dpari_hash(hash, g->type), g->normalise != 0);
    hash = dpari_hash_real(dpari_hash_real(hash, g->scale), g->balance);
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

DPAR_API dpar_status dpar_router_balance(const dpar_router *g, dpar_comm *comm,
                                         const dpar_router_arrays *a, dpar_router_load *load)
{
    const int64_t tokens = a != NULL ? a->tokens : 0;
    const int given = a != NULL && a->sums != NULL && load != NULL && a->scratch != NULL &&
                      (tokens == 0 || (a->logits != NULL && a->chosen != NULL));
    int64_t n = 0;
    dpar_why said;
    dpar_status st = dpari_router_check(g, tokens, given, &said);
    if (st == DPAR_OK) {
        st = dpari_router_chosen(g, tokens, a->chosen, &said);
    }
    if (st != DPAR_OK) {
        return comm != NULL ? dpari_expert_wrong(comm, &said, NULL) : st;
    }
    n = 2 * (int64_t)g->experts + 1;
    dpari_zero(a->sums, (size_t)n * sizeof *a->sums);
    dpari_router_add(g, tokens, a->logits, a->chosen, a->sums, a->scratch);
    if (comm != NULL) {
        st = dpari_router_sum(g, comm, a->sums, n);
        if (st == DPAR_OK) {
            st = dpari_do_wait(comm); /* a device may still be writing page-locked sums */
        }
    }
    if (st == DPAR_OK) {
        dpari_router_loads(g, a->sums, load);
    }
    return st;
}

/* Adds the gradient of one token's scores to d[experts]: through the weights of its choices, and
 * through the balancing loss unless load is NULL. sum: of the token's scores s. */
static void dpari_router_back(const dpar_router *g, int64_t token, const int32_t *chosen,
                              const void *dweight, const dpar_router_load *load, double sum,
                              const double *s, double *d)
{
    const double norm = dpari_router_norm(g, s, chosen), by = dpari_router_scale(g) / norm;
    double mean = 0.0;
    int32_t e, j;
    for (j = 0; dweight != NULL && g->normalise && j < g->choices; j++) {
        if (chosen[j] >= 0) {
            mean +=
                dpari_element_get(dweight, g->type, token * g->choices + j) * s[chosen[j]] / norm;
        }
    }
    for (j = 0; dweight != NULL && j < g->choices; j++) {
        if (chosen[j] >= 0) {
            d[chosen[j]] +=
                by * (dpari_element_get(dweight, g->type, token * g->choices + j) - mean);
        }
    }
    if (load != NULL && load->tokens > 0 && chosen[0] >= 0 && sum > 0.0) {
        const double all = (double)load->tokens;
        const double a = g->balance * g->experts / (g->choices * all * all);
        mean = 0.0;
        for (e = 0; e < g->experts; e++) {
            mean += a * load->chosen[e] * (s[e] / sum);
        }
        for (e = 0; e < g->experts; e++) {
            d[e] += (a * load->chosen[e] - mean) / sum;
        }
    }
}

DPAR_API dpar_status dpar_router_backward(const dpar_router *g, const dpar_router_arrays *a,
                                          const dpar_router_load *load, dpar_why *why)
{
    const int64_t tokens = a != NULL ? a->tokens : 0;
    const int given =
        a != NULL && a->scratch != NULL &&
        (tokens == 0 || (a->logits != NULL && a->chosen != NULL && a->dlogits != NULL));
    dpar_status st = dpari_router_check(g, tokens, given, why);
    int64_t t;
    int32_t e;
    if (st == DPAR_OK) {
        st = dpari_router_chosen(g, tokens, a->chosen, why);
    }
    for (t = 0; st == DPAR_OK && t < tokens; t++) {
        double *scores = a->scratch, *d = scores + g->experts, mean = 0.0;
        const double sum = dpari_router_scores(g, a->logits, t, scores);
        dpari_zero(d, (size_t)g->experts * sizeof *d);
        dpari_router_back(g, t, a->chosen + t * g->choices, a->dweight, load, sum, scores, d);
        for (e = 0; g->score == DPAR_ROUTER_SOFTMAX && e < g->experts; e++) {
            mean += d[e] * scores[e];
        }
        for (e = 0; e < g->experts; e++) {
            const double s = scores[e];
            double slope = 1.0;
            if (g->score == DPAR_ROUTER_SOFTMAX) {
                slope = s;
            } else if (g->score == DPAR_ROUTER_SIGMOID) {
                slope = s * (1.0 - s);
            }
            dpari_element_put(a->dlogits, g->type, t * g->experts + e, slope * (d[e] - mean));
        }
    }
    return st;
}

/* ---- layers and their memory ----------------------------------------------------------------- */

/* A plan. The public part comes first, so that a pointer to it is a pointer to the plan. */
typedef struct dpari_experts {
    dpar_experts_plan head;
    dpar_comm *comm;
    /* Counts per expert: k with DPAR_EXPERTS_DROP_POSITION, one for each position of a choice,
     * otherwise 1. */
    int32_t slots;
    int32_t tag;    /* from a hash of the layer, the same on all ranks */
    int32_t routes; /* calls of dpar_experts_route so far, modulo DPARI_EXPERT_ROUTES */

    /* The exchange of counts: what is sent and received, [rank]{tokens, [slot][its experts]}, and
     * how many numbers that is for each rank. */
    int32_t *sent_counts, *received_counts;
    int64_t *sent_number, *received_number;

    int32_t *tally;          /* [slot][experts] counts, or free rows, of each expert */
    int32_t *order;          /* choices sorted by expert, for DPAR_EXPERTS_DROP_WEIGHT_LOCAL */
    int64_t *send, *receive; /* [ranks] elements of an all-to-all-v */
    int64_t *fill;           /* [experts] a position in the order of experts */

    /* [experts] the array that holds the rows of each expert. Behind it, for two tokens, [2][k]
     * the rows that are added, whose weights are by[2][k]. */
    const void **from;
    double *by;

    dpari_peer *peer;
    void *packed; /* kept rows in the order of experts, as they are sent */
    void *staged; /* rows in the order of ranks; NULL if that is the order of experts */

    /* Memory of the device, if comm->mem is one. It holds packed, staged, the weights of rows, and
     * copies of three arrays of the routing `indexed`, whose tag was indexed_tag. */
    void *device;
    int64_t device_bytes;
    int32_t *place, *token, *choice;
    void *weight; /* of each kept row */
    const struct dpari_routing *indexed;
    int32_t indexed_tag;

    void *routing_memory; /* for one routing, if dpar_experts_make allocated the plan */
    dpar_mem_span *span;  /* [ranks][own], and at least DPARI_EXPERT_INDICES */
} dpari_experts;

/* A routing. Other ranks read the first four arrays, which are at the same offsets in every rank's
 * routing. */
typedef struct dpari_routing {
    dpar_experts_routing head;
    int64_t *send;   /* [ranks] rows to each */
    int64_t *take;   /* [ranks] rows from each */
    int32_t *choice; /* [tokens][k] the choice of each kept row */
    int64_t *row;    /* [ranks][own] first row of the piece from a rank to an expert */
    int64_t *piece;  /* [ranks][own] rows of that piece */
    int64_t *start;  /* [experts] the first kept row of each */
    int32_t *expert; /* [tokens][k] the expert of each choice that has a row */
    /* [tokens][k] the token of each kept row; NULL if rows are in the host's memory */
    int32_t *token;
    int32_t tag; /* of the layer and this call of dpar_experts_route: the same on all ranks */
} dpari_routing;

enum { DPARI_EXPERT_INDICES = 3 }; /* arrays of a routing that a device reads */

/* Returns the capacity factor in millionths, or 0 if it is out of its domain. */
static int64_t dpari_expert_factor(const dpar_experts_desc *l)
{
    return l->capacity_factor > 0.0 && l->capacity_factor <= 1e6
               ? (int64_t)(l->capacity_factor * 1e6 + 0.5)
               : 0;
}

/* The capacity C for this number of tokens: those of all ranks with DPAR_EXPERTS_DROP_POSITION,
 * those of one rank with the other rules. 2^63 - 1 with DPAR_EXPERTS_DROP_NONE, or if C exceeds it.
 * Computed in integers, so that all ranks agree. */
static int64_t dpari_expert_capacity(const dpar_experts_desc *layer, int64_t tokens)
{
    int64_t n;
    if (layer->drop == DPAR_EXPERTS_DROP_NONE || layer->experts.count < 1 ||
        layer->experts.count > INT32_MAX || tokens < 0 || !dpari_mul(tokens, layer->choices, &n) ||
        !dpari_mul(n, dpari_expert_factor(layer), &n)) {
        return INT64_MAX;
    }
    return dpari_ceil_div(n, 1000000 * layer->experts.count);
}

static dpar_status dpari_expert_check(const dpar_experts_desc *l, dpar_why *why)
{
    const dpar_split *s = &l->experts;
    int64_t n, m;
    if (s->parts < 1 || s->count < 1 || s->count > INT32_MAX || !dpari_split_in_order(s) ||
        l->choices < 1 || l->choices > s->count) {
        return dpari_wrong(
            why,
            "experts: choices %d, count %ld, parts %d, rule %d; allowed are 1 <= choices <= count, "
            "parts from 1 on, and rule CHUNK, EVEN, FLOOR or RAGGED",
            l->choices, s->count, s->parts, s->rule);
    }
    if (l->drop < DPAR_EXPERTS_DROP_NONE || l->drop > DPAR_EXPERTS_DROP_WEIGHT_LOCAL) {
        return dpari_wrong(
            why,
            "experts: drop is %d in a layer of %ld experts, not one of DPAR_EXPERTS_DROP_NONE, "
            "POSITION, POSITION_LOCAL, WEIGHT_LOCAL",
            l->drop, s->count);
    }
    if (l->drop != DPAR_EXPERTS_DROP_NONE && dpari_expert_factor(l) < 1) {
        return dpari_wrong(
            why, "experts: capacity_factor of a layer of %ld experts must be 0.000001 to 1000000",
            s->count);
    }
    if (l->max_tokens < 1 || l->max_rows < 0 || l->width < 1 || !dpari_is_float(l->type)) {
        return dpari_wrong(
            why,
            "experts: max_tokens %ld, max_rows %ld, width %ld, type %s; max_tokens and width must "
            "be at least 1, max_rows at least 0, type f64, f32, bf16 or f16",
            l->max_tokens, l->max_rows, l->width, dpar_type_name(l->type));
    }
    if (!dpari_mul(l->max_tokens, l->choices, &n) || n > INT32_MAX || !dpari_mul(n, s->parts, &m) ||
        !dpari_mul(m, l->width, &m) || !dpari_mul(m, 64, &m) ||
        !dpari_mul(s->count, l->choices, &n) || !dpari_mul(n, s->parts, &n) ||
        !dpari_mul(n, 64, &n)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "experts: max_tokens %ld, choices %d, %ld experts and width %ld are too large together",
            l->max_tokens, l->choices, s->count, l->width);
    }
    return DPAR_OK;
}

/* Returns the most rows that the experts of a rank can receive. dpari_expert_check has bounded the
 * products, so that they do not overflow. */
static int64_t dpari_expert_most(const dpar_experts_desc *l, int32_t own)
{
    const int64_t all = l->experts.parts * l->max_tokens;
    const int64_t come = all * dpari_least(l->choices, own);
    int64_t c, ranks;
    if (l->drop == DPAR_EXPERTS_DROP_NONE) {
        return l->max_rows > 0 ? dpari_least(l->max_rows, come) : come;
    }
    c = dpari_expert_capacity(l, l->drop == DPAR_EXPERTS_DROP_POSITION ? all : l->max_tokens);
    ranks = l->drop == DPAR_EXPERTS_DROP_POSITION ? 1 : l->experts.parts;
    return dpari_mul(c, ranks * own, &c) ? dpari_least(c, come) : come;
}

/* Returns the type of weights for rows of the type of the layer. */
static int32_t dpari_expert_weights(const dpar_experts_desc *l)
{
    return l->type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

/* Assigns memory from byte *used on to the buffers for rows and, on a device, to its copies of the
 * numbers of a routing. Advances *used. */
static void dpari_expert_buffers(dpari_experts *p, const dpar_comm *comm, unsigned char *memory,
                                 int64_t *used)
{
    const dpar_experts_desc *l = &p->head.layer;
    const int64_t most = l->max_tokens * l->choices;
    const size_t row = (size_t)l->width * (size_t)dpar_type_bytes(l->type);
    dpari_room room;
    room.at = memory;
    room.used = *used;
    p->packed = dpari_room_take(&room, most, row);
    p->staged =
        p->head.count > 1 && comm->size > 1 ? dpari_room_take(&room, p->head.max_rows, row) : NULL;
    if (comm->mem != NULL) {
        p->place = (int32_t *)dpari_room_take(&room, most, 4);
        p->token = (int32_t *)dpari_room_take(&room, most, 4);
        p->choice = (int32_t *)dpari_room_take(&room, most, 4);
        p->weight = dpari_room_take(&room, most, (size_t)dpar_type_bytes(dpari_expert_weights(l)));
    }
    *used = room.used;
}

/* Assigns memory to the arrays of the plan and returns the bytes used. With memory NULL it only
 * counts them. */
static int64_t dpari_expert_lay(dpari_experts *p, const dpar_comm *comm, unsigned char *memory)
{
    const dpar_experts_desc *l = &p->head.layer;
    const int64_t ranks = comm->size, experts = l->experts.count;
    dpari_room used;
    used.at = memory;
    used.used = 0;
    (void)dpari_room_take(&used, 1, sizeof *p);
    p->head.count = (int32_t)dpar_split_part_count(&l->experts, comm->rank);
    p->head.first = (int32_t)dpar_split_part_first(&l->experts, comm->rank);
    p->head.max_rows = dpari_expert_most(l, p->head.count);
    p->slots = l->drop == DPAR_EXPERTS_DROP_POSITION ? l->choices : 1;
    p->sent_counts = (int32_t *)dpari_room_take(&used, ranks + p->slots * experts, 4);
    p->received_counts =
        (int32_t *)dpari_room_take(&used, ranks * (1 + (int64_t)p->slots * p->head.count), 4);
    p->tally = (int32_t *)dpari_room_take(&used, p->slots * experts, 4);
    p->order = (int32_t *)dpari_room_take(
        &used, l->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL ? l->max_tokens * l->choices : 0, 4);
    p->sent_number = (int64_t *)dpari_room_take(&used, ranks, 8);
    p->received_number = (int64_t *)dpari_room_take(&used, ranks, 8);
    p->send = (int64_t *)dpari_room_take(&used, ranks, 8);
    p->receive = (int64_t *)dpari_room_take(&used, ranks, 8);
    p->fill = (int64_t *)dpari_room_take(&used, experts, 8);
    p->from = (const void **)dpari_room_take(&used, experts + 2 * l->choices, sizeof *p->from);
    p->by = (double *)dpari_room_take(&used, 2 * l->choices, 8);
    p->peer = (dpari_peer *)dpari_room_take(&used, ranks, sizeof *p->peer);
    if (comm->mem != NULL) { /* the buffers are in the memory of the device */
        p->span = (dpar_mem_span *)dpari_room_take(
            &used, dpari_most(ranks * p->head.count, DPARI_EXPERT_INDICES), sizeof *p->span);
        p->device_bytes = 0;
        dpari_expert_buffers(p, comm, (unsigned char *)p->device, &p->device_bytes);
    } else {
        dpari_expert_buffers(p, comm, memory, &used.used);
    }
    return used.used;
}

/* Does the same for a routing. Other ranks read the first four arrays at the same offsets: the
 * first three have the same length on all ranks. */
static int64_t dpari_expert_lay_routing(const dpari_experts *p, const dpar_comm *comm,
                                        dpari_routing *r, unsigned char *memory)
{
    const int64_t most = p->head.layer.max_tokens * p->head.layer.choices;
    dpari_room used;
    used.at = memory;
    used.used = 0;
    (void)dpari_room_take(&used, 1, sizeof *r);
    r->send = (int64_t *)dpari_room_take(&used, comm->size, 8);
    r->take = (int64_t *)dpari_room_take(&used, comm->size, 8);
    r->choice = (int32_t *)dpari_room_take(&used, most, 4);
    r->row = (int64_t *)dpari_room_take(&used, comm->size * (int64_t)p->head.count, 8);
    r->head.count = (int64_t *)dpari_room_take(&used, p->head.count, 8);
    r->head.first = (int64_t *)dpari_room_take(&used, p->head.count, 8);
    r->head.position = (int32_t *)dpari_room_take(&used, most, 4);
    r->piece = (int64_t *)dpari_room_take(&used, comm->size * (int64_t)p->head.count, 8);
    r->start = (int64_t *)dpari_room_take(&used, p->head.layer.experts.count, 8);
    r->expert = (int32_t *)dpari_room_take(&used, most, 4);
    r->token = comm->mem != NULL ? (int32_t *)dpari_room_take(&used, most, 4) : NULL;
    return used.used;
}

/* Checks a layer and counts the bytes of its plan (*bytes) and of a routing (*each). */
static DPARI_COLD dpar_status dpari_expert_needs(const dpar_comm *comm,
                                                 const dpar_experts_desc *layer, int64_t *bytes,
                                                 int64_t *each, dpar_why *why)
{
    dpari_experts p;
    dpari_routing r;
    dpar_status st;
    if (layer == NULL) {
        return dpari_wrong(why, "dpar_experts_make: the layer is NULL");
    }
    st = dpari_expert_check(layer, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (layer->experts.parts != comm->size) {
        return dpari_wrong(why,
                           "experts: the split has %d parts, but the communicator has %d ranks",
                           layer->experts.parts, comm->size);
    }
    dpari_zero(&p, sizeof p);
    p.head.layer = *layer;
    *bytes = dpari_expert_lay(&p, comm, NULL);
    *each = dpari_expert_lay_routing(&p, comm, &r, NULL);
    return DPAR_OK;
}

/* Lists what describes the layer, so that ranks can compare it. */
static void dpari_expert_state(dpari_facts *f, const void *given)
{
    const dpar_experts_desc *l = (const dpar_experts_desc *)given;
    int32_t i;
    dpari_fact(f, "experts.count", 0, l->experts.count);
    for (i = 0; i < l->experts.parts; i++) {
        dpari_fact(f, "the number of experts of rank #", i, dpar_split_part_count(&l->experts, i));
    }
    dpari_fact(f, "choices", 0, l->choices);
    dpari_fact(f, "drop", 0, l->drop);
    dpari_fact_type(f, "type", 0, l->type);
    dpari_fact(f, "capacity_factor in millionths", 0,
               l->drop == DPAR_EXPERTS_DROP_NONE ? 0 : dpari_expert_factor(l));
    dpari_fact(f, "max_tokens", 0, l->max_tokens);
    dpari_fact(f, "width", 0, l->width);
}

/* Allocates the buffers on the device of the communicator, if its table has the functions that are
 * needed, and lays the plan out again with them. */
static dpar_status dpari_expert_elsewhere(dpari_experts *p, dpar_why *why)
{
    dpar_comm *comm = p->comm;
    const dpar_mem *m = comm->mem;
    const dpar_mem_layers *l = (const dpar_mem_layers *)m->layers;
    dpar_status st;
    if (m->wait == NULL || m->span == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why, "experts: comm->mem must have wait and span");
    }
    if (l == NULL || l->gather == NULL || l->combine == NULL || l->dot == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "experts: comm->mem->layers must have gather, combine and dot");
    }
    st = dpar_comm_alloc(comm, p->device_bytes, &p->device);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "experts: no %ld bytes of the device's memory are free",
                         p->device_bytes);
    }
    (void)dpari_expert_lay(p, comm, (unsigned char *)(void *)p);
    return DPAR_OK;
}

/* Fills in a plan in its memory. each: bytes of a routing. */
static DPARI_COLD dpar_status dpari_expert_fill_plan(dpari_experts *p, dpar_comm *comm,
                                                     const dpar_experts_desc *layer, int64_t each,
                                                     dpar_why *why)
{
    int32_t i;
    dpari_zero(p, sizeof *p);
    p->head.layer = *layer;
    p->head.routing_bytes = each;
    p->comm = comm;
    p->tag = (int32_t)(dpari_facts_hash("experts", dpari_expert_state, &p->head.layer) >> 40);
    (void)dpari_expert_lay(p, comm, (unsigned char *)(void *)p);
    for (i = 0; i < comm->size; i++) {
        p->sent_number[i] = 1 + p->slots * dpar_split_part_count(&layer->experts, i);
        p->received_number[i] = 1 + (int64_t)p->slots * p->head.count;
    }
    return comm->mem != NULL ? dpari_expert_elsewhere(p, why) : DPAR_OK;
}

/* Frees the memory on the device, once its stream has finished with it. */
static DPARI_COLD dpar_status dpari_expert_give_back(dpari_experts *p)
{
    dpar_status st = DPAR_OK;
    if (p->device != NULL) {
        st = dpari_do_wait(p->comm); /* over NCCL this orders nothing, but release waits there */
        dpar_comm_release(p->comm, p->device);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_experts_make(dpar_comm *comm, const dpar_experts_desc *layer,
                                                  dpar_experts_plan **plan, dpar_why *why)
{
    void *memory = NULL;
    dpari_experts *p;
    int64_t need = 0, each = 0;
    int32_t own = 0;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_experts_make: the communicator is NULL");
    }
    st = plan == NULL ? dpari_wrong(why, "dpar_experts_make: the plan is NULL")
                      : dpari_expert_needs(comm, layer, &need, &each, why);
    if (st == DPAR_OK) { /* memory allocated here also holds one routing */
        own = layer->memory == NULL && layer->bytes == 0;
        need = dpari_room_up(need);
        st = dpari_object_memory(comm, layer->memory, layer->bytes, own ? need + each : need,
                                 "experts", &memory, why);
    }
    p = st == DPAR_OK ? (dpari_experts *)memory : NULL;
    if (p != NULL) {
        st = dpari_expert_fill_plan(p, comm, layer, each, why);
    }
    st = dpari_agree_on(comm, st, "experts", dpari_expert_state, layer, why);
    if (st != DPAR_OK) {
        if (p != NULL) {
            (void)dpari_expert_give_back(p);
        }
        return dpari_object_failed(st, layer != NULL ? layer->memory : NULL, memory, need, why);
    }
    if (own && comm->mem == NULL) {
        p->routing_memory = (unsigned char *)memory + need;
    }
    *plan = &p->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_experts_free(dpar_experts_plan *plan)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    dpar_status st;
    if (p == NULL) {
        return DPAR_OK;
    }
    st = dpari_expert_give_back(p);
    return dpari_object_end(st, p->head.layer.memory == NULL ? p : NULL);
}

/* ---- which choices are kept ------------------------------------------------------------------ */

/* Returns the number of choices of the tokens of a routing, dropped ones included. */
static int64_t dpari_expert_choices(const dpari_experts *p, const dpari_routing *r)
{
    return r->head.tokens * p->head.layer.choices;
}

/* Returns the first token that chose an expert that does not exist, or one expert twice, or -1 if
 * there is none. */
static int64_t dpari_expert_odd(const dpar_experts_desc *l, int64_t tokens, const int32_t *chosen)
{
    const int32_t k = l->choices;
    int64_t t;
    int32_t j, i;
    for (t = 0; t < tokens; t++) {
        for (j = 0; j < k; j++) {
            const int32_t e = chosen[t * k + j];
            if (e < -1 || e >= l->experts.count) {
                return t;
            }
            for (i = 0; i < j && e >= 0; i++) {
                if (chosen[t * k + i] == e) {
                    return t;
                }
            }
        }
    }
    return -1;
}

/* Checks the arguments of dpar_experts_route. */
static dpar_status dpari_expert_given(const dpari_experts *p, const void *memory, int64_t bytes,
                                      const dpar_experts_choices *choices, dpar_why *why)
{
    const dpar_experts_desc *l = &p->head.layer;
    const int64_t tokens = choices != NULL ? choices->tokens : 0;
    int64_t odd;
    if (memory == NULL || bytes < p->head.routing_bytes || (uintptr_t)memory % 64 != 0) {
        return dpari_wrong(
            why,
            "routing: memory has %ld bytes, but %ld are needed at a multiple of 64; it begins %ld "
            "bytes past one",
            memory == NULL ? 0 : bytes, p->head.routing_bytes, (int64_t)((uintptr_t)memory % 64));
    }
    if (tokens < 0 || tokens > l->max_tokens) {
        return dpari_wrong(why, "routing: tokens is %ld, but must be 0 to %ld (layer.max_tokens)",
                           tokens, l->max_tokens);
    }
    if (choices == NULL ||
        (tokens > 0 && (choices->chosen == NULL ||
                        (l->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL && choices->weight == NULL)))) {
        return dpari_wrong(why, "routing: choices, chosen or weight is NULL for %ld tokens",
                           tokens);
    }
    odd = dpari_expert_odd(l, tokens, choices->chosen);
    if (odd < 0) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "routing: token %ld chose an expert twice, or an expert outside 0 .. %ld",
                       odd, l->experts.count - 1);
}

/* Counts the kept choices in tally[slot][expert]. */
static void dpari_expert_count(dpari_experts *p, const dpari_routing *r, const int32_t *chosen)
{
    const int64_t experts = p->head.layer.experts.count, n = dpari_expert_choices(p, r);
    int64_t i;
    dpari_zero(p->tally, (size_t)(p->slots * experts) * sizeof *p->tally);
    for (i = 0; i < n; i++) {
        if (r->head.position[i] >= 0) {
            p->tally[i % p->head.layer.choices % p->slots * experts + chosen[i]]++;
        }
    }
}

/* True if choice a is kept in preference to b, by weight. */
static int dpari_expert_heavier(const void *weight, int32_t type, int32_t a, int32_t b)
{
    const double x = dpari_element_get(weight, type, a), y = dpari_element_get(weight, type, b);
    return dpari_router_higher(x, y) || (!dpari_router_higher(y, x) && a < b);
}

/* Moves a[at] down to its place in a heap of n choices. The first element of the heap is the one to
 * drop next. */
static void dpari_expert_sink(int32_t *a, int64_t at, int64_t n, const void *weight, int32_t type)
{
    int64_t below = 2 * at + 1;
    while (below < n) {
        const int32_t moved = a[at];
        if (below + 1 < n && dpari_expert_heavier(weight, type, a[below], a[below + 1])) {
            below++;
        }
        if (!dpari_expert_heavier(weight, type, moved, a[below])) {
            return;
        }
        a[at] = a[below];
        a[below] = moved;
        at = below;
        below = 2 * at + 1;
    }
}

/* DPAR_EXPERTS_DROP_WEIGHT_LOCAL: sorts choices by expert, and removes the lightest ones of each
 * expert with a heap. */
static DPARI_COLD void dpari_expert_drop_light(dpari_experts *p, const dpari_routing *r,
                                               const int32_t *chosen, const void *weight,
                                               int64_t capacity)
{
    const int64_t n = dpari_expert_choices(p, r), experts = p->head.layer.experts.count;
    const int32_t type = dpari_expert_weights(&p->head.layer);
    int64_t i, e, at = 0, left;
    for (e = 0; e < experts; e++) {
        p->fill[e] = at;
        at += p->tally[e];
    }
    for (i = 0; i < n; i++) {
        if (r->head.position[i] >= 0) {
            p->order[p->fill[chosen[i]]++] = (int32_t)i;
        }
    }
    for (e = 0; e < experts; e++) {
        int32_t *a = p->order + (p->fill[e] - p->tally[e]);
        left = p->tally[e];
        for (i = left > capacity ? left / 2 : 0; i > 0; i--) {
            dpari_expert_sink(a, i - 1, left, weight, type);
        }
        for (; left > capacity; left--) {
            r->head.position[a[0]] = -1;
            a[0] = a[left - 1];
            dpari_expert_sink(a, 0, left - 1, weight, type);
        }
    }
}

/* Walks over the choices, first choices of all tokens first, and drops those for which
 * room[slot][expert] has no row left. Counts room down. */
static void dpari_expert_drop_last(const dpari_experts *p, const dpari_routing *r,
                                   const int32_t *chosen, int32_t *room)
{
    const int64_t experts = p->head.layer.experts.count;
    const int32_t k = p->head.layer.choices;
    int64_t t;
    int32_t j;
    for (j = 0; j < k; j++) {
        for (t = 0; t < r->head.tokens; t++) {
            if (r->head.position[t * k + j] >= 0) {
                int32_t *left = &room[j % p->slots * experts + chosen[t * k + j]];
                if (*left > 0) {
                    --*left;
                } else {
                    r->head.position[t * k + j] = -1;
                }
            }
        }
    }
}

/* Drops choices by the rules that look only at the tokens of this rank. */
static void dpari_expert_drop_own(dpari_experts *p, const dpari_routing *r, const int32_t *chosen,
                                  const void *weight)
{
    const int64_t capacity = dpari_expert_capacity(&p->head.layer, r->head.tokens);
    int64_t e;
    if (p->head.layer.drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL) {
        dpari_expert_count(p, r, chosen);
        dpari_expert_drop_light(p, r, chosen, weight, capacity);
    } else if (p->head.layer.drop == DPAR_EXPERTS_DROP_POSITION_LOCAL) {
        for (e = 0; e < p->head.layer.experts.count; e++) {
            p->tally[e] = (int32_t)dpari_least(capacity, INT32_MAX);
        }
        dpari_expert_drop_last(p, r, chosen, p->tally);
    }
}

/* ---- the exchange of counts ------------------------------------------------------------------ */

/* Copies tally[slot][expert] into the counts for each rank, [rank]{tokens, [slot][its experts]}, or
 * with `back` the answers from there into tally. */
static void dpari_expert_sort(dpari_experts *p, int64_t tokens, int back)
{
    const int64_t experts = p->head.layer.experts.count;
    int32_t *at = p->sent_counts, rank, j;
    int64_t first = 0, e;
    for (rank = 0; rank < p->comm->size; rank++) {
        const int64_t own = dpar_split_part_count(&p->head.layer.experts, rank);
        *at++ = (int32_t)tokens;
        for (j = 0; j < p->slots; j++) {
            int32_t *mine = p->tally + j * experts + first;
            for (e = 0; e < own; e++) {
                if (back) {
                    mine[e] = *at++;
                } else {
                    *at++ = mine[e];
                }
            }
        }
        first += own;
    }
}

/* Returns the sum of counts over the other ranks. */
static int64_t dpari_expert_away(const dpar_comm *comm, const int64_t *counts)
{
    int64_t n = 0;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        n += rank != comm->rank ? counts[rank] : 0;
    }
    return n;
}

/* Exchanges values between ranks, and counts the bytes sent. All traffic of this module that is not
 * read directly takes this function. */
static dpar_status dpari_expert_send(dpari_experts *p, const void *in, const int64_t *in_count,
                                     void *out, const int64_t *out_count, int32_t type)
{
    const dpar_status st =
        dpar_all_to_all_v(p->comm, in, in_count, NULL, out, out_count, NULL, type, NULL);
    if (st == DPAR_OK) {
        p->head.sent_bytes += dpari_expert_away(p->comm, in_count) * dpar_type_bytes(type);
    }
    return st;
}

/* For DPAR_EXPERTS_DROP_POSITION: reduces the counts that this rank has received to the rows that
 * its experts have left, slot after slot and within a slot rank after rank. They are then the
 * answers to the ranks. */
static void dpari_expert_grant(dpari_experts *p)
{
    const int64_t step = 1 + (int64_t)p->slots * p->head.count;
    int64_t tokens = 0, capacity, left;
    int32_t rank, e, j;
    for (rank = 0; rank < p->comm->size; rank++) {
        tokens += p->received_counts[rank * step];
    }
    capacity = dpari_expert_capacity(&p->head.layer, tokens);
    for (e = 0; e < p->head.count; e++) {
        left = capacity;
        for (j = 0; j < p->slots; j++) {
            for (rank = 0; rank < p->comm->size; rank++) {
                int32_t *wanted =
                    &p->received_counts[rank * step + 1 + (int64_t)j * p->head.count + e];
                *wanted = (int32_t)dpari_least(*wanted, left);
                left -= *wanted;
            }
        }
    }
}

/* Exchanges counts and waits until they have arrived, because the memory may be page-locked, on
 * which a device works asynchronously. */
static dpar_status dpari_expert_send_counts(dpari_experts *p, const int32_t *in,
                                            const int64_t *in_count, int32_t *out,
                                            const int64_t *out_count)
{
    const dpar_status st = dpari_expert_send(p, in, in_count, out, out_count, DPAR_I32);
    return st == DPAR_OK ? dpari_do_wait(p->comm) : st;
}

/* Exchanges the counts. With DPAR_EXPERTS_DROP_POSITION also exchanges the answers, and drops the
 * choices that the experts do not take. */
static dpar_status dpari_expert_exchange(dpari_experts *p, const dpari_routing *r,
                                         const int32_t *chosen)
{
    dpar_status st;
    dpari_expert_count(p, r, chosen);
    dpari_expert_sort(p, r->head.tokens, 0);
    st = dpari_expert_send_counts(p, p->sent_counts, p->sent_number, p->received_counts,
                                  p->received_number);
    if (st != DPAR_OK || p->head.layer.drop != DPAR_EXPERTS_DROP_POSITION) {
        return st;
    }
    dpari_expert_grant(p);
    st = dpari_expert_send_counts(p, p->received_counts, p->received_number, p->sent_counts,
                                  p->sent_number);
    if (st == DPAR_OK) {
        dpari_expert_sort(p, r->head.tokens, 1);
        dpari_expert_drop_last(p, r, chosen, p->tally);
    }
    return st;
}

/* Calls of dpar_experts_route that have different tags: 8 (2^24 - 1) + 3 is below 2^31. */
enum { DPARI_EXPERT_ROUTES = 1 << 24 };

/* Computes from the received counts which rows this rank receives, and where: grouped by expert,
 * and within an expert in the order of the ranks. */
static void dpari_expert_expect(const dpari_experts *p, dpari_routing *r)
{
    const int64_t step = 1 + (int64_t)p->slots * p->head.count;
    int32_t rank, e, j;
    r->head.rows = 0;
    dpari_zero(r->take, (size_t)p->comm->size * sizeof *r->take);
    for (e = 0; e < p->head.count; e++) {
        r->head.first[e] = r->head.rows;
        for (rank = 0; rank < p->comm->size; rank++) {
            const int64_t at = rank * (int64_t)p->head.count + e;
            int64_t rows = 0;
            for (j = 0; j < p->slots; j++) {
                rows += p->received_counts[rank * step + 1 + (int64_t)j * p->head.count + e];
            }
            r->piece[at] = rows;
            r->row[at] = r->head.rows;
            r->take[rank] += rows;
            r->head.rows += rows;
        }
        r->head.count[e] = r->head.rows - r->head.first[e];
    }
}

/* Computes the order in which this rank sends its rows, by expert and then by token, and where each
 * kept choice is in it. */
static void dpari_expert_place(dpari_experts *p, dpari_routing *r, const int32_t *chosen)
{
    const int64_t n = dpari_expert_choices(p, r);
    int64_t i, e = 0, at = 0;
    int32_t rank, j;
    dpari_expert_count(p, r, chosen);
    for (rank = 0; rank < p->comm->size; rank++) {
        const int64_t end = e + dpar_split_part_count(&p->head.layer.experts, rank), before = at;
        for (; e < end; e++) {
            p->fill[e] = r->start[e] = at;
            for (j = 0; j < p->slots; j++) {
                at += p->tally[j * p->head.layer.experts.count + e];
            }
        }
        r->send[rank] = at - before;
    }
    r->head.kept = at;
    r->head.dropped = -at;
    for (i = 0; i < n; i++) {
        r->head.dropped += chosen[i] >= 0;
        if (r->head.position[i] >= 0) {
            r->expert[i] = chosen[i];
            r->head.position[i] = (int32_t)p->fill[chosen[i]]++;
            r->choice[r->head.position[i]] = (int32_t)i;
        }
    }
    for (i = 0; r->token != NULL && i < r->head.kept; i++) {
        r->token[i] = r->choice[i] / p->head.layer.choices;
    }
}

/* Returns st, with the communicator's message in why. */
static dpar_status dpari_expert_ended(const dpar_comm *comm, dpar_status st, dpar_why *why)
{
    return dpari_repeat(st, why, comm->why.text);
}

DPAR_API dpar_status dpar_experts_route(dpar_experts_plan *plan, void *memory, int64_t bytes,
                                        const dpar_experts_choices *choices,
                                        dpar_experts_routing **routing, dpar_why *why)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    dpari_routing *r;
    const int32_t *chosen;
    dpar_why said;
    int64_t i;
    dpar_status st;
    if (plan == NULL || routing == NULL) {
        return dpari_wrong(why, "dpar_experts_route: plan or routing is NULL");
    }
    if (memory == NULL && p->routing_memory != NULL) {
        memory = p->routing_memory;
        bytes = p->head.routing_bytes;
    }
    r = (dpari_routing *)memory;
    if (dpari_expert_given(p, memory, bytes, choices, &said) != DPAR_OK) {
        return dpari_expert_wrong(p->comm, &said, why);
    }
    st = dpari_do_wait(p->comm); /* the device may still read the old contents */
    if (st != DPAR_OK) {
        return dpari_expert_ended(p->comm, st, why);
    }
    chosen = choices->chosen;
    dpari_zero(r, sizeof *r);
    r->head.tokens = choices->tokens;
    (void)dpari_expert_lay_routing(p, p->comm, r, (unsigned char *)memory);
    for (i = 0; i < dpari_expert_choices(p, r); i++) {
        r->head.position[i] = chosen[i] >= 0 ? 0 : -1;
    }
    dpari_expert_drop_own(p, r, chosen, choices->weight);
    st = dpari_expert_exchange(p, r, chosen);
    if (st != DPAR_OK) {
        return dpari_expert_ended(p->comm, st, why);
    }
    p->routes = (p->routes + 1) % DPARI_EXPERT_ROUTES;
    r->tag = (p->tag + p->routes) % DPARI_EXPERT_ROUTES * 8;
    dpari_expert_expect(p, r);
    if (p->head.layer.drop == DPAR_EXPERTS_DROP_NONE) {
        if (r->head.rows > p->head.max_rows) {
            dpari_needs_bytes(why, 0);
            st = dpari_say(
                DPAR_E_ROOM, why,
                "experts %d .. %d receive %ld rows, but their bound is %ld (layer.max_rows)",
                p->head.first, p->head.first + p->head.count - 1, r->head.rows, p->head.max_rows);
        }
        st = dpari_agree(p->comm, st, why);
    }
    if (st == DPAR_OK) {
        dpari_expert_place(p, r, chosen);
        p->head.kept += r->head.kept;
        p->head.dropped += r->head.dropped;
        p->head.received += r->head.rows;
        *routing = &r->head;
    }
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* The address of a row. */
static void *dpari_expert_at(void *rows, const dpar_experts_desc *l, int64_t row)
{
    return (unsigned char *)rows + row * l->width * dpar_type_bytes(l->type);
}

static const void *dpari_expert_in(const void *rows, const dpar_experts_desc *l, int64_t row)
{
    return (const unsigned char *)rows + row * l->width * dpar_type_bytes(l->type);
}

/* Bytes of a row. */
static int64_t dpari_expert_row(const dpar_experts_desc *l)
{
    return l->width * dpar_type_bytes(l->type);
}

/* to = by x from, for one row. 16-bit floats are scaled as f32. */
static void dpari_expert_scale(void *to, const void *from, const dpar_experts_desc *l, double by)
{
    float x[DPARI_ELEMENTS];
    int64_t at, n, i;
    for (at = 0; at < l->width; at += n) {
        unsigned char *t = (unsigned char *)to + at * dpar_type_bytes(l->type);
        const unsigned char *f = (const unsigned char *)from + at * dpar_type_bytes(l->type);
        n = dpari_least(l->width - at, DPARI_ELEMENTS);
        if (l->type == DPAR_F64) {
            for (i = 0; i < n; i++) {
                ((double *)to)[at + i] = ((const double *)from)[at + i] * by;
            }
        } else if (l->type == DPAR_F32) {
            dpari_kern_scale(t, f, by, n);
        } else {
            dpari_kern_convert(x, DPAR_F32, f, l->type, n);
            dpari_kern_scale(x, x, by, n);
            dpari_kern_convert(t, l->type, x, DPAR_F32, n);
        }
    }
}

/* The rows that are added for one token, and their weights. */
typedef struct dpari_expert_terms {
    const void **row;
    double *by;
    int32_t count;
} dpari_expert_terms;

/* Computes out = sum of by[j] x row[j], in f64 in this order, rounded once. Prefetches the rows of
 * `next`, the token after this one. */
static void dpari_expert_add(const dpar_experts_desc *l, const dpari_expert_terms *z,
                             const dpari_expert_terms *next, void *out, int32_t stream)
{
    double sum[DPARI_ELEMENTS], x[DPARI_ELEMENTS] = {0.0};
    int64_t at, n, i;
    int32_t j;
    if (l->type == DPAR_F32 || l->type == DPAR_F64) {
        dpari_kern_mix(out, z->row, z->by, z->count, next->row, next->count, l->width, l->type,
                       stream);
        return;
    }
    for (at = 0; at < l->width; at += n) {
        n = dpari_least(l->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = 0; j < z->count; j++) {
            dpari_elements_load(x, z->row[j], at, n, l->type);
            for (i = 0; i < DPARI_ELEMENTS; i++) {
                sum[i] += z->by[j] * x[i];
            }
        }
        dpari_elements_store(out, sum, at, n, l->type);
    }
}

/* Fills in z with the rows of the kept choices of a token, which p->from and p->fill locate, and
 * with their weights, which are 1 if weight is NULL. Two tokens use different halves of the memory
 * of z, because dpari_expert_sums looks one token ahead. */
static void dpari_expert_find(const dpari_experts *p, const dpari_routing *r, int64_t token,
                              const void *weight, dpari_expert_terms *z)
{
    const int32_t k = p->head.layer.choices;
    int64_t i;
    z->row = p->from + p->head.layer.experts.count + token % 2 * k;
    z->by = p->by + token % 2 * k;
    z->count = 0;
    for (i = token * k; i < (token + 1) * k && token < r->head.tokens; i++) {
        if (r->head.position[i] >= 0) {
            const int32_t e = r->expert[i];
            z->row[z->count] =
                dpari_expert_in(p->from[e], &p->head.layer, r->head.position[i] + p->fill[e]);
            z->by[z->count++] =
                weight != NULL ? dpari_element_get(weight, dpari_expert_weights(&p->head.layer), i)
                               : 1.0;
        }
    }
}

/* Copies the rows of z into `kept`, where backward reads them, and lets z point to the copies. */
static void dpari_expert_keep(const dpari_experts *p, const dpari_routing *r, int64_t token,
                              void *kept, dpari_expert_terms *z)
{
    const int32_t k = p->head.layer.choices;
    int32_t j, n = 0;
    for (j = 0; j < k; j++) {
        const int64_t place = r->head.position[token * k + j];
        if (place >= 0) {
            void *to = dpari_expert_at(kept, &p->head.layer, place);
            dpari_kern_row(to, z->row[n], z->row[n], dpari_expert_row(&p->head.layer), 0);
            z->row[n++] = to;
        }
    }
}

/* Computes out[token], the sum of its rows, for all tokens. kept: where the rows are also saved;
 * NULL if they are not wanted or already there. */
static void dpari_expert_sums(const dpari_experts *p, const dpari_routing *r, const void *weight,
                              void *kept, void *out, int32_t stream)
{
    dpari_expert_terms z, next;
    int64_t t;
    dpari_expert_find(p, r, 0, weight, &next);
    for (t = 0; t < r->head.tokens; t++) {
        z = next;
        dpari_expert_find(p, r, t + 1, weight, &next);
        if (kept != NULL) {
            dpari_expert_keep(p, r, t, kept, &z);
        }
        dpari_expert_add(&p->head.layer, &z, &next, dpari_expert_at(out, &p->head.layer, t),
                         stream);
    }
    dpari_kern_rows_end(stream);
}

/* Fills in a copy of bytes for the device. Returns 1, or 0 if there are no bytes, so that the entry
 * is used again. */
static int32_t dpari_expert_span(dpar_mem_span *s, void *to, const void *from, int64_t bytes)
{
    dpari_zero(s, sizeof *s);
    s->to = to;
    s->from = from;
    s->count = bytes;
    s->to_type = s->from_type = DPAR_U8;
    s->scale = 1.0;
    return bytes > 0;
}

/* Copies rows from the order of ranks (each with its rows by expert) to the order of experts, or
 * with `back` the other way. */
static dpar_status dpari_expert_group(const dpari_experts *p, const dpari_routing *r, void *to,
                                      const void *from, int back)
{
    const dpar_experts_desc *l = &p->head.layer;
    int64_t at = 0;
    int32_t rank, e, n = 0;
    for (rank = 0; rank < p->comm->size; rank++) {
        for (e = 0; e < p->head.count; e++) {
            const int64_t piece = rank * (int64_t)p->head.count + e, row = r->row[piece];
            void *t = dpari_expert_at(to, l, back ? at : row);
            const void *f = dpari_expert_in(from, l, back ? row : at);
            const int64_t bytes = r->piece[piece] * dpari_expert_row(l);
            if (p->comm->mem == NULL) {
                dpari_kern_copy(t, f, bytes, 0);
            } else {
                n += dpari_expert_span(&p->span[n], t, f, bytes);
            }
            at += r->piece[piece];
        }
    }
    return n > 0 ? dpari_do_span(p->comm, p->span, n) : DPAR_OK;
}

/* Computes the elements that are sent to and received from each rank. */
static void dpari_expert_sizes(dpari_experts *p, const dpari_routing *r)
{
    int32_t rank;
    for (rank = 0; rank < p->comm->size; rank++) {
        p->send[rank] = r->send[rank] * p->head.layer.width;
        p->receive[rank] = r->take[rank] * p->head.layer.width;
    }
}

/* ---- direct reads of other ranks' arrays ----------------------------------------------------- */

/* The four exchanges, which distinguish the tags, and the arrays that ranks read from each
 * other. */
enum {
    DPARI_EXPERT_DISPATCH,
    DPARI_EXPERT_COMBINE,
    DPARI_EXPERT_COMBINE_BACK,
    DPARI_EXPERT_DISPATCH_BACK
};
enum { DPARI_EXPERT_ROUTING, DPARI_EXPERT_ROWS, DPARI_EXPERT_WEIGHTS };

/* Publishes the arrays of this rank, and finds out whether all ranks can read the arrays of the
 * others directly (peers->direct). rows: count rows that others read. weight: only combine_backward
 * lets others read weights. */
static DPARI_COLD dpar_status dpari_expert_open(dpari_experts *p, const dpari_routing *r,
                                                int32_t what, const void *rows, int64_t count,
                                                const void *weight, dpari_peers *peers)
{
    const int64_t weights = dpari_expert_choices(p, r);
    dpari_peers_array a[3];
    a[DPARI_EXPERT_ROUTING].at = r;
    a[DPARI_EXPERT_ROUTING].bytes = p->head.routing_bytes;
    a[DPARI_EXPERT_ROWS].at = rows;
    a[DPARI_EXPERT_ROWS].bytes = count * dpari_expert_row(&p->head.layer);
    a[DPARI_EXPERT_WEIGHTS].at = weight;
    a[DPARI_EXPERT_WEIGHTS].bytes = what == DPARI_EXPERT_COMBINE_BACK ? weights * 8 : 0;
    if (p->head.layer.type != DPAR_F64) {
        a[DPARI_EXPERT_WEIGHTS].bytes /= 2;
    }
    return dpari_peers_open(peers, p->comm, r->tag + what, a, 3, p->peer);
}

/* Returns the array of another rank's routing that corresponds to `mine` in this rank's. Only for
 * the arrays at the same offsets on all ranks. */
static const void *dpari_expert_theirs(const dpari_peers *peers, int32_t rank,
                                       const dpari_routing *r, const void *mine)
{
    return (const unsigned char *)dpari_peers_at(peers, rank, DPARI_EXPERT_ROUTING) +
           ((const unsigned char *)mine - (const unsigned char *)(const void *)r);
}

/* Checks that each rank has as many rows for this rank as this rank expects. They differ if the
 * ranks use routings of different calls. back: rows from experts to tokens. */
static dpar_status dpari_expert_fits(const dpari_experts *p, const dpari_routing *r,
                                     const dpari_peers *peers, int back)
{
    dpar_comm *comm = p->comm;
    const int64_t *take = back ? r->send : r->take, *give = back ? r->take : r->send;
    dpar_why why;
    int32_t rank;
    for (rank = 0; rank < comm->size; rank++) {
        const int64_t *theirs = (const int64_t *)dpari_expert_theirs(peers, rank, r, give);
        if (theirs[comm->rank] != take[rank]) {
            (void)dpari_say(DPAR_E_MISMATCH, &why,
                            "rank %d sends %ld rows to rank %d, which expects %ld; their routings "
                            "must come from "
                            "the same call of dpar_experts_route",
                            rank, theirs[comm->rank], comm->rank, take[rank]);
            return dpari_comm_wrong_all(comm, DPAR_E_MISMATCH, &why);
        }
    }
    return DPAR_OK;
}

/* Ends the direct reads: waits until all ranks have read, and counts the bytes that others read
 * here. rows: of this rank for each rank. */
static dpar_status dpari_expert_close(dpari_experts *p, const dpari_peers *peers,
                                      const int64_t *rows)
{
    const int64_t sent = dpari_expert_away(p->comm, rows) * dpari_expert_row(&p->head.layer);
    const dpar_status st = dpari_peers_close(peers, sent);
    p->head.sent_bytes += st == DPAR_OK ? sent : 0;
    return st;
}

/* Limits a number that another rank sent to 0 .. n - 1. If this rank is late, the memory may
 * already hold data of a time after the others timed out (comm.h). The result is then lost in any
 * case, but this rank must get as far as the error, and not read outside of the arrays. */
static int64_t dpari_expert_limit(int64_t i, int64_t n)
{
    return i >= 0 && i < n ? i : 0;
}

/* Copies the rows of the tokens of n choices, times their weights unless weight is NULL. Prefetches
 * the next row. */
static void dpari_expert_copy(const dpar_experts_desc *l, void *to, const void *from,
                              const int32_t *choice, int64_t n, const void *weight, int32_t stream)
{
    const int64_t most = l->max_tokens * l->choices;
    int64_t i, mine = n > 0 ? dpari_expert_limit(choice[0], most) : 0, then;
    for (i = 0; i < n; i++) {
        const void *row = dpari_expert_in(from, l, mine / l->choices), *next;
        void *at = dpari_expert_at(to, l, i);
        then = i + 1 < n ? dpari_expert_limit(choice[i + 1], most) : mine;
        next = dpari_expert_in(from, l, then / l->choices);
        if (weight != NULL) {
            dpari_kern_ask(next, dpari_expert_row(l));
            dpari_expert_scale(at, row, l,
                               dpari_element_get(weight, dpari_expert_weights(l), mine));
        } else {
            dpari_kern_row(at, row, next, dpari_expert_row(l), stream);
        }
        mine = then;
    }
}

/* Reads the rows for this rank's experts from the ranks that have the tokens. */
static void dpari_expert_take(dpari_experts *p, const dpari_routing *r, const dpari_peers *peers,
                              void *rows)
{
    const int32_t stream =
        dpari_peers_stream(peers, r->head.rows * dpari_expert_row(&p->head.layer));
    const int64_t most = p->head.layer.max_tokens * p->head.layer.choices + 1;
    int64_t *at = p->receive; /* how far each rank's rows have been taken */
    int32_t rank, e;
    for (rank = 0; rank < p->comm->size; rank++) {
        const int64_t *send = (const int64_t *)dpari_expert_theirs(peers, rank, r, r->send);
        at[rank] = 0;
        for (e = 0; e < p->comm->rank; e++) {
            at[rank] = dpari_expert_limit(at[rank] + dpari_expert_limit(send[e], most), most);
        }
    }
    for (e = 0; e < p->head.count; e++) {
        for (rank = 0; rank < p->comm->size; rank++) {
            const int64_t piece = rank * (int64_t)p->head.count + e;
            dpari_expert_copy(
                &p->head.layer, dpari_expert_at(rows, &p->head.layer, r->row[piece]),
                dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS),
                (const int32_t *)dpari_expert_theirs(peers, rank, r, r->choice) + at[rank],
                r->piece[piece], dpari_peers_at(peers, rank, DPARI_EXPERT_WEIGHTS), stream);
            at[rank] += r->piece[piece];
        }
    }
    dpari_kern_rows_end(stream);
}

/* Locates the results in the arrays of the ranks of the experts. The kept row i of this rank, of
 * expert e, is the row i + p->fill[e] of the array p->from[e]. */
static void dpari_expert_locate(dpari_experts *p, const dpari_routing *r, const dpari_peers *peers)
{
    const int64_t most = p->comm->size * p->head.layer.max_tokens * p->head.layer.choices + 1;
    int32_t rank, e = 0, i;
    for (rank = 0; rank < p->comm->size; rank++) {
        const int32_t own = (int32_t)dpar_split_part_count(&p->head.layer.experts, rank);
        const int64_t *row = (const int64_t *)dpari_expert_theirs(peers, rank, r, r->row);
        for (i = 0; i < own; i++) {
            p->from[e] = dpari_peers_at(peers, rank, DPARI_EXPERT_ROWS);
            p->fill[e] =
                dpari_expert_limit(row[p->comm->rank * (int64_t)own + i], most) - r->start[e];
            e++;
        }
    }
}

/* ---- in a device's memory -------------------------------------------------------------------- */

/* Copies the numbers of the routing to the device, unless the last operation used the same
 * routing. */
static dpar_status dpari_expert_index(dpari_experts *p, const dpari_routing *r)
{
    int32_t n = 0;
    dpar_status st = DPAR_OK;
    if (p->indexed == r && p->indexed_tag == r->tag) {
        return DPAR_OK;
    }
    n += dpari_expert_span(&p->span[n], p->place, r->head.position, 4 * dpari_expert_choices(p, r));
    n += dpari_expert_span(&p->span[n], p->token, r->token, 4 * r->head.kept);
    n += dpari_expert_span(&p->span[n], p->choice, r->choice, 4 * r->head.kept);
    st = n > 0 ? dpari_do_span(p->comm, p->span, n) : DPAR_OK;
    p->indexed = r;
    p->indexed_tag = r->tag;
    return st;
}

/* to[i] = from[index[i]], of `bytes` bytes each. */
static dpar_status dpari_expert_gather(dpari_experts *p, void *to, const void *from,
                                       const int32_t *index, int64_t rows, int64_t bytes)
{
    dpar_mem_gather g;
    dpari_zero(&g, sizeof g);
    g.to = to;
    g.from = from;
    g.rows = rows;
    g.bytes = g.to_step = g.from_step = bytes;
    g.index.at = index;
    g.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_gather(p->comm, &g) : DPAR_OK;
}

/* to[i] = the sum of k rows, each times its weight; index gives the k rows. */
static dpar_status dpari_expert_combine(dpari_experts *p, void *to, const void *from,
                                        const void *weight, const int32_t *index, int64_t rows,
                                        int64_t k)
{
    dpar_mem_combine m;
    dpari_zero(&m, sizeof m);
    m.to = to;
    m.from = from;
    m.weight = weight;
    m.rows = rows;
    m.choices = k;
    m.width = p->head.layer.width;
    m.to_type = m.from_type = p->head.layer.type;
    m.weight_type = dpari_expert_weights(&p->head.layer);
    m.index.at = index;
    m.index.type = DPAR_I32;
    return rows > 0 ? dpari_do_combine(p->comm, &m) : DPAR_OK;
}

/* Does what dpari_expert_pack does, on a device. */
static dpar_status dpari_expert_pack_there(dpari_experts *p, const dpari_routing *r,
                                           const void *from, const void *weight)
{
    dpar_status st = dpari_expert_index(p, r);
    if (st == DPAR_OK && weight == NULL) {
        return dpari_expert_gather(p, p->packed, from, p->token, r->head.kept,
                                   dpari_expert_row(&p->head.layer));
    }
    if (st == DPAR_OK) {
        st = dpari_expert_gather(p, p->weight, weight, p->choice, r->head.kept,
                                 dpar_type_bytes(dpari_expert_weights(&p->head.layer)));
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_combine(p, p->packed, from, p->weight, p->token, r->head.kept, 1);
}

/* dweight[tokens][k] = dy . result, or 0 for choices that were dropped. */
static dpar_status dpari_expert_dots(dpari_experts *p, const dpari_routing *r, const void *dy,
                                     const void *kept, void *dweight)
{
    const int32_t type = dpari_expert_weights(&p->head.layer), there = p->comm->mem != NULL;
    const dpar_status st = there ? dpari_expert_index(p, r) : DPAR_OK;
    dpar_mem_dot d;
    if (st != DPAR_OK) {
        return st;
    }
    if (r->head.kept == 0) {
        return dpari_do_copy(p->comm, dweight, NULL,
                             dpari_expert_choices(p, r) * dpar_type_bytes(type));
    }
    dpari_zero(&d, sizeof d);
    d.to = dweight;
    d.a = dy;
    d.b = kept;
    d.rows = dpari_expert_choices(p, r);
    d.choices = p->head.layer.choices;
    d.width = p->head.layer.width;
    d.to_type = type;
    d.type = p->head.layer.type;
    d.index.at = there ? p->place : r->head.position;
    d.index.type = DPAR_I32;
    return dpari_do_dot(p->comm, &d);
}

/* ---- dispatch and combine -------------------------------------------------------------------- */

/* Packs the rows of the kept choices in the order in which they are sent, times weights unless
 * weight is NULL. */
static dpar_status dpari_expert_pack(dpari_experts *p, const dpari_routing *r, const void *from,
                                     const void *weight)
{
    int64_t i;
    if (p->comm->mem != NULL) {
        return dpari_expert_pack_there(p, r, from, weight);
    }
    for (i = 0; i < r->head.kept; i++) {
        dpari_expert_copy(&p->head.layer, dpari_expert_at(p->packed, &p->head.layer, i), from,
                          r->choice + i, 1, weight, 0);
    }
    return DPAR_OK;
}

/* Adds the received rows of each token. */
static dpar_status dpari_expert_unite(dpari_experts *p, const dpari_routing *r, const void *came,
                                      const void *weight, void *out)
{
    int64_t e;
    if (p->comm->mem != NULL) {
        const dpar_status st = dpari_expert_index(p, r);
        if (st != DPAR_OK) {
            return st;
        }
        return dpari_expert_combine(p, out, came, weight, p->place, r->head.tokens,
                                    p->head.layer.choices);
    }
    for (e = 0; e < p->head.layer.experts.count; e++) {
        p->from[e] = came;
        p->fill[e] = 0;
    }
    dpari_expert_sums(p, r, weight, NULL, out, 0);
    return DPAR_OK;
}

/* Sends the rows of tokens to their experts, times weights unless weight is NULL. */
static dpar_status dpari_expert_out(dpari_experts *p, const dpari_routing *r, int32_t what,
                                    const void *from, const void *weight, void *rows)
{
    void *to = p->staged != NULL ? p->staged : rows;
    dpari_peers peers;
    dpar_status st = dpari_expert_open(p, r, what, from, r->head.tokens, weight, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(p, r, &peers, 0);
        if (st == DPAR_OK) {
            dpari_expert_take(p, r, &peers, rows);
            st = dpari_expert_close(p, &peers, r->send);
        }
        return st;
    }
    if (st == DPAR_OK) {
        st = dpari_expert_pack(p, r, from, weight);
    }
    dpari_expert_sizes(p, r);
    if (st == DPAR_OK) {
        st = dpari_expert_send(p, p->packed, p->send, to, p->receive, p->head.layer.type);
    }
    if (st == DPAR_OK && to != rows) {
        st = dpari_expert_group(p, r, rows, to, 0);
    }
    return st;
}

/* Sends the rows of experts back to their tokens and adds them. kept: receives the rows that were
 * added, which dpar_experts_combine saves; NULL if they are not wanted. */
static dpar_status dpari_expert_back(dpari_experts *p, const dpari_routing *r, int32_t what,
                                     const void *rows, const void *weight, void *kept, void *out)
{
    void *came = kept != NULL ? kept : p->packed;
    dpari_peers peers;
    dpar_status st = dpari_expert_open(p, r, what, rows, r->head.rows, NULL, &peers);
    if (st == DPAR_OK && peers.direct) {
        st = dpari_expert_fits(p, r, &peers, 1);
        if (st == DPAR_OK) {
            dpari_expert_locate(p, r, &peers);
            dpari_expert_sums(
                p, r, weight, kept, out,
                dpari_peers_stream(&peers, r->head.tokens * dpari_expert_row(&p->head.layer)));
            st = dpari_expert_close(p, &peers, r->take);
        }
        return st;
    }
    if (st == DPAR_OK && p->staged != NULL) {
        st = dpari_expert_group(p, r, p->staged, rows, 1);
        rows = p->staged;
    }
    dpari_expert_sizes(p, r);
    if (st == DPAR_OK) {
        st = dpari_expert_send(p, rows, p->receive, came, p->send, p->head.layer.type);
    }
    if (st == DPAR_OK) {
        st = dpari_expert_unite(p, r, came, weight, out);
    }
    return st;
}

/* Checks that no array that has elements is NULL. */
static dpar_status dpari_expert_arrays(const dpari_experts *p, const dpari_routing *r,
                                       const dpar_experts_arrays *a, int tokens, int rows)
{
    dpar_why said;
    if (p == NULL) {
        return DPAR_E_ARG;
    }
    if (r != NULL && a != NULL && (tokens || r->head.tokens == 0) && (rows || r->head.rows == 0)) {
        return DPAR_OK;
    }
    (void)dpari_wrong(&said,
                      "experts: an array that this call needs for %ld tokens or %ld rows is NULL",
                      r != NULL ? r->head.tokens : 0, r != NULL ? r->head.rows : 0);
    return dpari_expert_wrong(p->comm, &said, NULL);
}

DPAR_API dpar_status dpar_experts_dispatch(dpar_experts_plan *plan,
                                           const dpar_experts_routing *routing,
                                           const dpar_experts_arrays *a)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, a, a != NULL && a->x != NULL, a != NULL && a->rows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_DISPATCH, a->x, NULL, a->rows);
}

DPAR_API dpar_status dpar_experts_combine(dpar_experts_plan *plan,
                                          const dpar_experts_routing *routing,
                                          const dpar_experts_arrays *a)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, a, a != NULL && a->weight != NULL && a->y != NULL,
                             a != NULL && a->results != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_COMBINE, a->results, a->weight, a->saved, a->y);
}

DPAR_API dpar_status dpar_experts_combine_backward(dpar_experts_plan *plan,
                                                   const dpar_experts_routing *routing,
                                                   const dpar_experts_arrays *a)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    int there;
    dpar_status st;
    there = a != NULL && a->dy != NULL && a->weight != NULL &&
            (a->dweight == NULL || a->saved != NULL || (r != NULL && r->head.kept == 0));
    st = dpari_expert_arrays(p, r, a, there, a != NULL && a->dresults != NULL);
    if (st == DPAR_OK && a->dweight != NULL) {
        st = dpari_expert_dots(p, r, a->dy, a->saved, a->dweight);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_out(p, r, DPARI_EXPERT_COMBINE_BACK, a->dy, a->weight, a->dresults);
}

DPAR_API dpar_status dpar_experts_dispatch_backward(dpar_experts_plan *plan,
                                                    const dpar_experts_routing *routing,
                                                    const dpar_experts_arrays *a)
{
    dpari_experts *p = (dpari_experts *)(void *)plan;
    const dpari_routing *r = (const dpari_routing *)(const void *)routing;
    dpar_status st;
    st = dpari_expert_arrays(p, r, a, a != NULL && a->dx != NULL, a != NULL && a->drows != NULL);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_expert_back(p, r, DPARI_EXPERT_DISPATCH_BACK, a->drows, NULL, NULL, a->dx);
}
