/* SPDX-License-Identifier: MIT-0 */
/* expert: tests the router, routing, dispatch, combine and their gradients on real ranks. Results
 * are compared with those of one rank that has all tokens and all experts, written out in this file
 * in double by the textbook (drops by counting the choices ahead in the queue), and with finite
 * differences of the ranks' own forward. f64 must agree to 1e-12 of the largest element and f32 to
 * 4e-6, because sums are in f64 and rounded once, through five arrays. Rows that experts receive
 * are compared bit by bit, in the order of one rank. The bytes passed to the all-to-alls are
 * counted and must equal the formulas of the header. Rows that are read directly from another
 * rank's memory must give the same bits and the same count. With DEVICE_MEMORY all of this runs in
 * memory that the CPU cannot access (device_memory.h) and must give the bits of the host.
 *
 *   expert [processes|threads] [ranks]      without arguments: both, 1 to 8 ranks
 *   mpirun -np 4 expert                     built with -DUSE_MPI */
#include "dpar_train.h"
#include "bf16.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#include "expert_calls.h"
#define free device_free
#define dpar_experts_make(c, l, p, w) (dpar_status) ON_DEVICE(dpar_experts_make(c, l, p, w))
#define experts_route(p, m, b, t, e, f, r, w)                                                      \
    (dpar_status) ON_DEVICE(experts_route(p, m, b, t, e, f, r, w))
#define experts_dispatch(p, r, x, o) (dpar_status) ON_DEVICE(experts_dispatch(p, r, x, o))
#define experts_combine(p, r, o, w, y, k) (dpar_status) ON_DEVICE(experts_combine(p, r, o, w, y, k))
#define experts_combine_backward(p, r, y, w, k, o, d)                                              \
    (dpar_status) ON_DEVICE(experts_combine_backward(p, r, y, w, k, o, d))
#define experts_dispatch_backward(p, r, o, x)                                                      \
    (dpar_status) ON_DEVICE(experts_dispatch_backward(p, r, o, x))
#define dpar_experts_free(p) (dpar_status) ON_DEVICE(dpar_experts_free(p))
#else
#include "rank_program.h"

#include "expert_calls.h"
#define ON_DEVICE(call) (call)
#endif
#include "plan_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

enum { MOST_RANKS = 64 };

/* ---- bytes sent ------------------------------------------------------------------------------ */

static __thread dpar_engine real_engine; /* ranks may be threads */
static __thread int64_t bytes_away, exchanges;

static void note(const dpar_comm *c, const dpar_call *call)
{
    int32_t r;
    exchanges += call->kind == DPAR_CALL_ALL_TO_ALL;
    for (r = 0; call->kind == DPAR_CALL_ALL_TO_ALL && r < c->size; r++) {
        bytes_away += r != c->rank ? call->in_count[r] * dpar_type_bytes(call->type) : 0;
    }
}

static dpar_status counted_run(dpar_comm *c, const dpar_call *call)
{
    note(c, call);
    return real_engine.run(c, call);
}

static dpar_status counted_post(dpar_comm *c, const dpar_call *call, dpar_work *work)
{
    note(c, call);
    return real_engine.post(c, call, work);
}

static void look_begins(dpar_comm *c)
{
    bytes_away = exchanges = 0;
    real_engine = c->engine;
    c->engine.run = counted_run;
    c->engine.post = counted_post;
}

static void look_ends(dpar_comm *c)
{
    c->engine = real_engine;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Returns a number in -1 .. 1 that is the same on all ranks and exact in f32. */
static double number(uint32_t a, int64_t i)
{
    const uint32_t h = scrambled(a, i);
    return (double)(float)((double)h / 2147483648.0 - 1.0);
}

/* Allocates n doubles in host memory. */
static void *reached(int64_t n)
{
    void *a = calloc((size_t)n + 1, sizeof(double));
    if (a == NULL) {
        exit(1);
    }
    return a;
}

static void *fresh(int64_t n)
{
#ifdef DEVICE_MEMORY
    if (the_device.first != NULL) {
        return device_zeroed((n + 1) * 8);
    }
#endif
    return reached(n);
}

/* Allocates memory of a plan, partly page-locked; with `also` that of a routing, which the device
 * reads too. */
static dpar_status plan_alloc(dpar_comm *c, int64_t bytes, int also, void **memory)
{
#ifdef DEVICE_MEMORY
    if (c->mem != NULL) {
#ifdef DEVICE_CUDA
        if (also || bytes / 64 % 2) {
            *memory = device_zeroed(bytes);
            return DPAR_OK;
        }
#endif
        return host_alloc(c, bytes, memory);
    }
#endif
    (void)also;
    return dpar_comm_alloc(c, bytes, memory);
}

static void plan_release(dpar_comm *c, dpar_experts_plan *plan, void *memory, void *mine)
{
    CHECK_INT(dpar_experts_free(plan), DPAR_OK);
#ifdef DEVICE_MEMORY
    if (c->mem != NULL) {
        free(memory);
        free(mine);
        return;
    }
#endif
    dpar_comm_release(c, memory);
    dpar_comm_release(c, mine);
}

static double *numbers(uint32_t a, int64_t n)
{
    double *x = (double *)reached(n);
    int64_t i;
    for (i = 0; i < n; i++) {
        x[i] = number(a, i);
    }
    return x;
}

/* Returns elements [from, from + n) of a whole array as a new array of the type. */
static void *piece(const double *whole, int64_t from, int64_t n, int32_t type)
{
    void *a = fresh(n);
    int64_t i;
    for (i = 0; i < n; i++) {
        float_put(a, i, type, whole[from + i]);
    }
    return a;
}

static int compare(const char *what, const void *got, int32_t type, const double *whole,
                   int64_t all, int64_t from, int64_t n)
{
    const double tolerance = type == DPAR_F64 ? 1e-12 : 4e-6;
    double most = 1.0, worst = 0.0;
    int64_t i;
    int bad = 0;
    for (i = 0; i < all; i++) {
        most = fabs(whole[i]) > most ? fabs(whole[i]) : most;
    }
    for (i = 0; i < n; i++) {
        const double d = fabs(float_get(got, i, type) - whole[from + i]);
        bad += !(d <= tolerance * most);
        worst = d > worst ? d : worst;
    }
    if (bad > 0) {
        printf("%s: %d of %lld wrong, the worst by %g of %g\n", what, bad, (long long)n, worst,
               most);
    }
    return bad;
}

/* ---- the reference on one rank --------------------------------------------------------------- */

/* One case. Expert e computes out = W x + x^2 / 2, where the square is element by element. */
typedef struct job {
    int32_t experts, choices, score, normalise, drop, type, biased;
    int64_t percent; /* the capacity factor in percent */
    int64_t width, tokens;
    double scale, balance;
    int64_t own[MOST_RANKS + 1];  /* rank r has tokens [own[r], own[r + 1]) */
    int64_t cuts[MOST_RANKS + 1]; /* rank r has experts [cuts[r], cuts[r + 1]) */
    double *x, *logits, *w, *g, *bias;
} job;

typedef struct whole {
    int32_t *chosen;
    int *kept;
    double *weight, *y, *dx, *dlogits, *dweight, *dw, *load, *share;
    double loss; /* the balancing loss */
} whole;

static double score_of(const job *s, const double *l, int32_t e)
{
    double sum = 0.0;
    int32_t i;
    if (s->score == DPAR_ROUTER_GIVEN) {
        return l[e];
    }
    if (s->score == DPAR_ROUTER_SIGMOID) {
        return 1.0 / (1.0 + exp(-l[e]));
    }
    for (i = 0; i < s->experts; i++) {
        sum += exp(l[i] - l[e]);
    }
    return 1.0 / sum;
}

/* Returns the weight of choice j of a token. */
static double weight_of(const job *s, const double *l, const int32_t *chosen, int32_t j)
{
    double sum = 0.0;
    int32_t i;
    for (i = 0; i < s->choices; i++) {
        sum += score_of(s, l, chosen[i]);
    }
    return s->scale * score_of(s, l, chosen[j]) / (s->normalise ? sum + 1e-20 : 1.0);
}

/* Returns how many experts rank before e: those with a higher score, or with an equal score and a
 * lower index. */
static int32_t place_of(const job *s, const double *l, int32_t e)
{
    const double mine = score_of(s, l, e) + s->bias[e];
    int32_t i, n = 0;
    for (i = 0; i < s->experts; i++) {
        const double v = score_of(s, l, i) + s->bias[i];
        n += v > mine || (v == mine && i < e);
    }
    return n;
}

static int32_t rank_of(const job *s, int64_t t)
{
    int32_t r = 0;
    while (t >= s->own[r + 1]) {
        r++;
    }
    return r;
}

/* Returns 1 if choice a (of token a / k) is kept, that is, if fewer choices than the capacity C are
 * ahead of it at its expert; otherwise 0. */
static int stays(const job *s, const whole *o, int64_t a)
{
    const int64_t k = s->choices;
    const int32_t r = rank_of(s, a / k);
    const int all = s->drop == DPAR_EXPERTS_DROP_POSITION;
    const int64_t t0 = all ? 0 : s->own[r], t1 = all ? s->tokens : s->own[r + 1];
    const int64_t above = s->percent * k * (t1 - t0), below = 100 * s->experts;
    int64_t b, n = 0;
    for (b = t0 * k; b < t1 * k; b++) {
        const int late = b % k < a % k || (b % k == a % k && b < a);
        const int heavy = o->weight[b] > o->weight[a] || (o->weight[b] == o->weight[a] && b < a);
        n += o->chosen[b] == o->chosen[a] &&
             (s->drop == DPAR_EXPERTS_DROP_WEIGHT_LOCAL ? heavy : late);
    }
    return s->drop == DPAR_EXPERTS_DROP_NONE || n * below < above; /* n < C */
}

/* Returns the derivative of score i by logit e. */
static double slope_of(const job *s, const double *l, int32_t i, int32_t e)
{
    const double v = score_of(s, l, i);
    if (s->score == DPAR_ROUTER_SOFTMAX) {
        return v * ((i == e) - score_of(s, l, e));
    }
    return i != e ? 0.0 : s->score == DPAR_ROUTER_SIGMOID ? v * (1.0 - v) : 1.0;
}

static void choose(const job *s, whole *o)
{
    int64_t t, a;
    int32_t e, j;
    for (t = 0; t < s->tokens; t++) {
        const double *l = s->logits + t * s->experts;
        for (e = 0; e < s->experts; e++) {
            j = place_of(s, l, e);
            if (j < s->choices) {
                o->chosen[t * s->choices + j] = e;
            }
        }
        for (j = 0; j < s->choices; j++) {
            const double v = weight_of(s, l, o->chosen + t * s->choices, j);
            o->weight[t * s->choices + j] = s->type == DPAR_F64 ? v : (double)(float)v;
        }
    }
    for (a = 0; a < s->tokens * s->choices; a++) {
        o->kept[a] = stays(s, o, a);
        o->load[o->chosen[a]] += 1.0;
    }
}

/* Computes the balancing loss. Its gradient by the normalised scores is f E a / T. */
static void balance(const job *s, whole *o)
{
    int64_t t;
    int32_t e;
    o->loss = 0.0;
    for (t = 0; t < s->tokens; t++) {
        const double *l = s->logits + t * s->experts;
        double sum = 0.0;
        for (e = 0; e < s->experts; e++) {
            sum += score_of(s, l, e);
        }
        for (e = 0; e < s->experts; e++) {
            o->share[e] += score_of(s, l, e) / sum / (double)s->tokens;
        }
    }
    for (e = 0; e < s->experts; e++) {
        o->loss += s->balance * s->experts * o->share[e] * o->load[e] /
                   ((double)s->choices * (double)s->tokens);
    }
}

/* Computes y, dx, dweight and dw of one choice. */
static void one_choice(const job *s, whole *o, int64_t a)
{
    const int64_t t = a / s->choices, n = s->width;
    const double *w = s->w + o->chosen[a] * n * n, *x = s->x + t * n, *g = s->g + t * n;
    double *dw = o->dw + o->chosen[a] * n * n;
    int64_t i, j;
    for (i = 0; i < n; i++) {
        double out = x[i] * x[i] / 2.0;
        for (j = 0; j < n; j++) {
            out += w[i * n + j] * x[j];
            o->dx[t * n + j] += o->weight[a] * g[i] * (w[i * n + j] + (i == j) * x[i]);
            dw[i * n + j] += o->weight[a] * g[i] * x[j];
        }
        o->y[t * n + i] += o->weight[a] * out;
        o->dweight[a] += g[i] * out;
    }
}

/* Computes dlogits of a token from its weights and the balancing loss, by the quotient rule. */
static void logits_back(const job *s, whole *o, int64_t t)
{
    const double *l = s->logits + t * s->experts;
    const int32_t *chosen = o->chosen + t * s->choices;
    double all = 0.0, few = 1e-20;
    int32_t i, e, j;
    for (i = 0; i < s->experts; i++) {
        all += score_of(s, l, i);
    }
    for (j = 0; j < s->choices; j++) {
        few += score_of(s, l, chosen[j]);
    }
    for (e = 0; e < s->experts; e++) {
        double d = 0.0, d_all = 0.0, d_few = 0.0;
        for (i = 0; i < s->experts; i++) {
            d_all += slope_of(s, l, i, e);
        }
        for (j = 0; j < s->choices; j++) {
            d_few += slope_of(s, l, chosen[j], e);
        }
        for (i = 0; i < s->experts; i++) {
            const double f = o->load[i] / ((double)s->choices * (double)s->tokens);
            const double v = score_of(s, l, i);
            d += s->balance * s->experts * f / (double)s->tokens *
                 (slope_of(s, l, i, e) / all - v * d_all / (all * all));
        }
        for (j = 0; j < s->choices; j++) {
            const double v = score_of(s, l, chosen[j]), by = slope_of(s, l, chosen[j], e);
            d += o->dweight[t * s->choices + j] * s->scale *
                 (s->normalise ? by / few - v * d_few / (few * few) : by);
        }
        o->dlogits[t * s->experts + e] = d;
    }
}

static whole one_rank(const job *s)
{
    whole o;
    int64_t a;
    memset(&o, 0, sizeof o);
    o.chosen = (int32_t *)reached(s->tokens * s->choices);
    o.kept = (int *)reached(s->tokens * s->choices);
    o.weight = (double *)reached(s->tokens * s->choices);
    o.dweight = (double *)reached(s->tokens * s->choices);
    o.y = (double *)reached(s->tokens * s->width);
    o.dx = (double *)reached(s->tokens * s->width);
    o.dlogits = (double *)reached(s->tokens * s->experts);
    o.dw = (double *)reached(s->experts * s->width * s->width);
    o.load = (double *)reached(s->experts);
    o.share = (double *)reached(s->experts);
    choose(s, &o);
    balance(s, &o);
    for (a = 0; a < s->tokens * s->choices; a++) {
        if (o.kept[a]) {
            one_choice(s, &o, a);
        }
    }
    for (a = 0; a < s->tokens; a++) {
        logits_back(s, &o, a);
    }
    return o;
}

static void one_rank_ends(whole *o)
{
    free(o->chosen);
    free(o->kept);
    free(o->weight);
    free(o->dweight);
    free(o->y);
    free(o->dx);
    free(o->dlogits);
    free(o->dw);
    free(o->load);
    free(o->share);
}

/* ---- the same on ranks ----------------------------------------------------------------------- */

typedef struct side {
    const job *s;
    dpar_comm *c;
    dpar_router gate;
    dpar_experts_desc layer;
    dpar_experts_plan *plan;
    dpar_experts_routing *route;
    dpar_router_load load;
    void *memory, *mine;
    int64_t bytes, each, tokens, before; /* tokens of this rank, and of the ranks before it */
    double *scratch, *sums;
    int32_t *chosen;
    void *decides; /* the weights as passed to the router */
    void *x, *logits, *g, *weight, *rows, *results, *kept, *y, *dresults, *drows, *dweight, *dx,
        *dlogits;
    double *dw;
} side;

static int side_begins(side *a, const job *s, dpar_comm *c)
{
    const int64_t me = c->rank, k = s->choices;
    dpar_why why;
    dpar_status st;
    memset(a, 0, sizeof *a);
    a->s = s;
    a->c = c;
    a->before = s->own[me];
    a->tokens = s->own[me + 1] - s->own[me];
    a->gate.experts = s->experts;
    a->gate.choices = s->choices;
    a->gate.score = s->score;
    a->gate.type = s->type;
    a->gate.normalise = s->normalise;
    a->gate.scale = s->scale;
    a->gate.balance = s->balance;
    a->gate.bias = s->biased ? s->bias : NULL;
    st = dpar_split_init_ragged(&a->layer.experts, c->size, s->cuts, &why);
    a->layer.choices = s->choices;
    a->layer.drop = s->drop;
    a->layer.capacity_factor = (double)s->percent / 100.0;
    a->layer.max_tokens = s->tokens;
    a->layer.width = s->width;
    a->layer.type = s->type;
    if (st == DPAR_OK) {
        st = experts_bytes(c, &a->layer, &a->bytes, &a->each, &why);
    }
    if (st != DPAR_OK || plan_alloc(c, a->bytes, 0, &a->memory) != DPAR_OK ||
        plan_alloc(c, a->each, 1, &a->mine) != DPAR_OK ||
        experts_in(a->memory, a->bytes, c, &a->layer, &a->plan, &why) != DPAR_OK) {
        printf("rank %d of %d: %s\n", (int)me, (int)c->size, why.text);
        return 1;
    }
    a->scratch = (double *)reached(2 * s->experts);
    a->sums = (double *)fresh(2 * s->experts + 1);
    a->chosen = (int32_t *)reached(a->tokens * k);
    a->decides = reached(a->tokens * k);
    a->x = piece(s->x, a->before * s->width, a->tokens * s->width, s->type);
    a->g = piece(s->g, a->before * s->width, a->tokens * s->width, s->type);
    a->logits = piece(s->logits, a->before * s->experts, a->tokens * s->experts, s->type);
    a->weight = fresh(a->tokens * k);
    a->dweight = fresh(a->tokens * k);
    a->kept = fresh(a->tokens * k * s->width);
    a->y = fresh(a->tokens * s->width);
    a->dx = fresh(a->tokens * s->width);
    a->dlogits = fresh(a->tokens * s->experts);
    a->rows = fresh(a->plan->max_rows * s->width);
    a->results = fresh(a->plan->max_rows * s->width);
    a->drows = fresh(a->plan->max_rows * s->width);
    a->dresults = fresh(a->plan->max_rows * s->width);
    a->dw = (double *)reached(s->experts * s->width * s->width);
    return 0;
}

static void side_ends(side *a)
{
    plan_release(a->c, a->plan, a->memory, a->mine);
    free(a->scratch);
    free(a->sums);
    free(a->chosen);
    free(a->decides);
    free(a->x);
    free(a->g);
    free(a->logits);
    free(a->weight);
    free(a->dweight);
    free(a->kept);
    free(a->y);
    free(a->dx);
    free(a->dlogits);
    free(a->rows);
    free(a->results);
    free(a->drows);
    free(a->dresults);
    free(a->dw);
}

/* Applies the experts of this rank to their rows. If `back` is set, computes gradients. */
static void experts(side *a, int back)
{
    const int64_t n = a->s->width;
    const int32_t type = a->s->type;
    int64_t e, row, i, j;
    for (e = 0; e < a->plan->count; e++) {
        const double *w = a->s->w + (a->plan->first + e) * n * n;
        double *dw = a->dw + (a->plan->first + e) * n * n;
        for (row = a->route->first[e]; row < a->route->first[e] + a->route->count[e]; row++) {
            for (i = 0; i < n; i++) {
                const double x = float_get(a->rows, row * n + i, type);
                double out = back ? x * float_get(a->dresults, row * n + i, type) : x * x / 2.0;
                for (j = 0; j < n; j++) {
                    out += back ? w[j * n + i] * float_get(a->dresults, row * n + j, type)
                                : w[i * n + j] * float_get(a->rows, row * n + j, type);
                    dw[i * n + j] += back ? float_get(a->dresults, row * n + i, type) *
                                                float_get(a->rows, row * n + j, type)
                                          : 0.0;
                }
                float_put(back ? a->drows : a->results, row * n + i, type, out);
            }
        }
    }
}

static dpar_status forward(side *a, dpar_why *why)
{
    dpar_status st =
        router_forward(&a->gate, a->tokens, a->logits, a->chosen, a->decides, a->scratch, why);
    if (st == DPAR_OK) {
        memcpy(a->weight, a->decides,
               (size_t)(a->tokens * a->s->choices * dpar_type_bytes(a->s->type)));
        st = router_balance(&a->gate, a->c, a->tokens, a->logits, a->chosen, a->sums, &a->load,
                            a->scratch);
    }
    if (st == DPAR_OK) {
        st = experts_route(a->plan, a->mine, a->each, a->tokens, a->chosen, a->decides, &a->route,
                           why);
    }
    if (st == DPAR_OK) {
        st = experts_dispatch(a->plan, a->route, a->x, a->rows);
    }
    if (st == DPAR_OK) {
        experts(a, 0);
        st = experts_combine(a->plan, a->route, a->results, a->weight, a->y, a->kept);
    }
    return st;
}

static dpar_status backward(side *a, dpar_why *why)
{
    dpar_status st = experts_combine_backward(a->plan, a->route, a->g, a->weight, a->kept,
                                              a->dresults, a->dweight);
    if (st == DPAR_OK) {
        experts(a, 1);
        st = experts_dispatch_backward(a->plan, a->route, a->drows, a->dx);
    }
    return st != DPAR_OK ? st
                         : router_backward(&a->gate, a->tokens, a->logits, a->chosen, a->dweight,
                                           &a->load, a->dlogits, a->scratch, why);
}

/* Checks which choices have rows, how many each expert receives, and that the rows have the bits of
 * x in the order of one rank. */
static int check_routes(const side *a, const whole *o)
{
    const job *s = a->s;
    const int64_t k = s->choices, n = s->width;
    const size_t row = (size_t)(n * dpar_type_bytes(s->type));
    int64_t i, kept = 0, at = 0;
    int32_t e;
    int bad = 0;
    void *x = piece(s->x, 0, s->tokens * n, s->type);
    for (i = 0; i < a->tokens * k; i++) {
        const int64_t b = a->before * k + i;
        bad += a->chosen[i] != o->chosen[b] || (a->route->position[i] >= 0) != o->kept[b];
        kept += o->kept[b];
    }
    bad += a->route->kept != kept || a->route->dropped != a->tokens * k - kept;
    for (e = a->plan->first; e < a->plan->first + a->plan->count; e++) {
        const int64_t begin = at;
        bad += a->route->first[e - a->plan->first] != begin;
        for (i = 0; i < s->tokens * k; i++) {
            if (o->kept[i] && o->chosen[i] == e) {
                bad += memcmp((const char *)a->rows + (size_t)at * row,
                              (const char *)x + (size_t)(i / k) * row, row) != 0;
                at++;
            }
        }
        bad += a->route->count[e - a->plan->first] != at - begin;
    }
    bad += a->route->rows != at || at > a->plan->max_rows;
    bad += a->plan->first != (a->plan->count > 0 ? s->cuts[a->c->rank] : s->experts);
    free(x);
    if (bad > 0) {
        printf("routes: %d wrong\n", bad);
    }
    return bad;
}

/* Checks the counted bytes against the formulas of the header, computed from the one-rank
 * result. */
static int check_sent(const side *a, const whole *o, int64_t steps)
{
    const job *s = a->s;
    const int64_t k = s->choices, r = a->c->size, own = a->plan->count;
    const int64_t slots = s->drop == DPAR_EXPERTS_DROP_POSITION ? k : 1;
    const int64_t b = s->width * dpar_type_bytes(s->type);
    int64_t i, go = 0, come = 0, expected;
    for (i = 0; i < s->tokens * k; i++) {
        const int mine = rank_of(s, i / k) == a->c->rank;
        const int here =
            o->chosen[i] >= s->cuts[a->c->rank] && o->chosen[i] < s->cuts[a->c->rank + 1];
        go += o->kept[i] && mine && !here;
        come += o->kept[i] && !mine && here;
    }
    expected = 4 * (r - 1 + slots * (s->experts - own)) + 2 * b * (go + come);
    if (s->drop == DPAR_EXPERTS_DROP_POSITION) {
        expected += 4 * (r - 1) * (1 + slots * own);
    }
    expected *= steps;
    if (bytes_away != expected || a->plan->sent_bytes != expected ||
        exchanges != steps * (s->drop == DPAR_EXPERTS_DROP_POSITION ? 6 : 5)) {
        printf("rank %d: %lld bytes, %lld counted, in %lld exchanges; expected %lld\n",
               (int)a->c->rank, (long long)a->plan->sent_bytes, (long long)bytes_away,
               (long long)exchanges, (long long)expected);
        return 1;
    }
    return 0;
}

static int check_load(const side *a, const whole *o)
{
    const job *s = a->s;
    double most = 0.0, idle = 0.0;
    int32_t e;
    int bad = compare("load", a->sums, DPAR_F64, o->load, s->experts, 0, s->experts);
    bad += compare("share", a->load.score, DPAR_F64, o->share, s->experts, 0, s->experts);
    bad += compare("loss", &a->load.loss, DPAR_F64, &o->loss, 1, 0, 1);
    for (e = 0; e < s->experts; e++) {
        most = o->load[e] > most ? o->load[e] : most;
        idle += o->load[e] < 0.5;
    }
    most *= (double)s->experts / (double)(s->tokens * s->choices);
    bad += !(fabs(a->load.imbalance - most) <= 1e-12 * most) || a->load.tokens != s->tokens;
    bad += a->load.idle != (int64_t)idle || a->load.chosen != a->sums;
    return bad;
}

/* Returns the loss of all ranks: y . g plus the balancing loss. */
static double loss(side *a, int *bad)
{
    dpar_why why;
    double sum = 0.0, all = 0.0;
    int64_t i;
    *bad += forward(a, &why) != DPAR_OK;
    for (i = 0; i < a->tokens * a->s->width; i++) {
        sum += float_get(a->y, i, a->s->type) * float_get(a->g, i, a->s->type);
    }
    *bad += dpar_all_reduce(a->c, &sum, &all, 1, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    return all + a->load.loss;
}

/* Compares the gradient of element i of an array with `each` elements per token with a central
 * difference, for f64 only. With h = 1e-6 the difference is right to about 1e-8: h^2 and 1e-16 / h.
 * A change of choices would show as a jump; these numbers have none within h. */
static int difference(side *a, double *values, const double *gradient, int64_t each, int64_t i)
{
    const int64_t at = i - a->before * each;
    const int mine = at >= 0 && at < a->tokens * each;
    const double h = 1e-6, was = mine ? values[at] : 0.0;
    double up, down, found;
    int bad = 0;
    if (mine) {
        values[at] = was + h;
    }
    up = loss(a, &bad);
    if (mine) {
        values[at] = was - h;
    }
    down = loss(a, &bad);
    if (mine) {
        values[at] = was;
    }
    found = (up - down) / (2.0 * h);
    if (mine && !(fabs(found - gradient[at]) <= 1e-6 * (1.0 + fabs(found)))) {
        printf("element %lld: gradient %g, by differences %g\n", (long long)i, gradient[at], found);
        bad++;
    }
    return bad;
}

static int one_case(dpar_comm *c, const job *s, int differences)
{
    const int64_t n = s->width, me = c->rank;
    whole o = one_rank(s);
    side a;
    dpar_why why;
    int64_t i;
    void *dw;
    int bad = side_begins(&a, s, c);
    why.text[0] = 0;
    if (bad) {
        return 1;
    }
    look_begins(c);
    if (forward(&a, &why) != DPAR_OK || backward(&a, &why) != DPAR_OK) {
        printf("rank %d of %d: %s; %s\n", (int)me, (int)c->size, why.text, c->why.text);
        return 1;
    }
    look_ends(c);
    bad += check_routes(&a, &o) + check_sent(&a, &o, 1) + check_load(&a, &o);
    bad += compare("weight", a.weight, s->type, o.weight, s->tokens * s->choices,
                   a.before * s->choices, a.tokens * s->choices);
    bad += compare("y", a.y, s->type, o.y, s->tokens * n, a.before * n, a.tokens * n);
    bad += compare("dx", a.dx, s->type, o.dx, s->tokens * n, a.before * n, a.tokens * n);
    bad += compare("dweight", a.dweight, s->type, o.dweight, s->tokens * s->choices,
                   a.before * s->choices, a.tokens * s->choices);
    bad += compare("dlogits", a.dlogits, s->type, o.dlogits, s->tokens * s->experts,
                   a.before * s->experts, a.tokens * s->experts);
    dw = piece(a.dw, s->cuts[me] * n * n, (s->cuts[me + 1] - s->cuts[me]) * n * n, s->type);
    bad += compare("dw", dw, s->type, o.dw, s->experts * n * n, s->cuts[me] * n * n,
                   (s->cuts[me + 1] - s->cuts[me]) * n * n);
    free(dw);
    for (i = 0; differences && i < 6; i++) {
        const int64_t t = (i * 7 + 3) % s->tokens;
        bad += difference(&a, (double *)a.logits, (const double *)a.dlogits, s->experts,
                          t * s->experts + (i * 5) % s->experts);
        bad += difference(&a, (double *)a.x, (const double *)a.dx, n, t * n + i % n);
    }
    if (bad > 0) {
        printf("rank %d of %d: %d experts, %d choices, score %d, drop %d, type %d, width %d\n",
               (int)me, (int)c->size, (int)s->experts, (int)s->choices, (int)s->score, (int)s->drop,
               (int)s->type, (int)n);
    }
    side_ends(&a);
    one_rank_ends(&o);
    return bad;
}

/* Runs case i. Together the cases cover each score with each drop rule, uneven experts and tokens,
 * and ranks that have none of them. */
static int cases(dpar_comm *c)
{
    static const int64_t widths[] = {1, 3, 64, 70, 5};
    int i, bad = 0;
    for (i = 0; i < 24; i++) {
        job s;
        int32_t r, e;
        memset(&s, 0, sizeof s);
        s.score = i % 3;
        s.drop = i / 3 % 4;
        s.normalise = i / 2 % 2;
        s.type = i % 5 == 4 ? DPAR_F32 : DPAR_F64;
        s.experts = 3 + i * 5 % 8;
        s.choices = 1 + i % (s.experts < 4 ? s.experts : 4);
        s.width = widths[i % 5];
        s.tokens = 23 + i;
        s.percent = 40 + 20 * (i % 5);
        s.scale = i % 4 == 3 ? 2.5 : 1.0;
        s.balance = i % 2 == 0 ? 0.25 : 0.0;
        s.biased = i / 4 % 2;
        /* rounded down: some ranks have none, also in the middle */
        for (r = 0; r <= c->size; r++) {
            s.cuts[r] = s.experts * (int64_t)r / c->size;
            s.own[r] = s.tokens * (int64_t)r / c->size;
        }
        /* leaves the second of each two ranks without tokens or experts */
        for (r = 1; r < c->size; r += 2) {
            s.own[r] = i % 2 ? s.own[r + 1] : s.own[r];
            s.cuts[r] = i % 3 == 1 ? s.cuts[r - 1] : s.cuts[r];
        }
        s.x = numbers(10u + (uint32_t)i, s.tokens * s.width);
        s.logits = numbers(40u + (uint32_t)i, s.tokens * s.experts);
        s.w = numbers(70u + (uint32_t)i, s.experts * s.width * s.width);
        s.g = numbers(100u + (uint32_t)i, s.tokens * s.width);
        s.bias = numbers(130u + (uint32_t)i, s.experts);
        for (e = 0; e < s.experts; e++) {
            s.bias[e] *= s.biased ? 0.3 : 0.0;
        }
        /* scores that are passed by the caller are above 0 */
        for (e = 0; e < s.tokens * s.experts; e++) {
            if (s.score == DPAR_ROUTER_GIVEN) {
                s.logits[e] = (double)(float)(fabs(s.logits[e]) + 0.0625);
            }
            if (e % s.experts == 1 && s.score != DPAR_ROUTER_GIVEN) { /* few tokens choose it */
                s.logits[e] = (double)(float)(s.logits[e] - 4.0);
            }
        }
        bad += one_case(c, &s, s.type == DPAR_F64 && s.width < 64);
        free(s.x);
        free(s.logits);
        free(s.w);
        free(s.g);
        free(s.bias);
    }
    return bad;
}

/* ---- tests of the router on one rank --------------------------------------------------------- */

/* Tests the router: equal scores, NaN, bias, all experts chosen, padding, f32, messages, and the
 * capacity in integers. */
static int gate_cases(void)
{
    static const double logits[] = {2, 5, 5, 1, 5, 0, /**/ 1, 1, 1, 1, 1, 1};
    double odd[6], weight[12], scratch[12], sums[13], bias[6] = {0, 0, 0, 4.5, 0, 0};
    float narrow[6] = {0, 1, 2, 3, 4, 5}, light[2];
    const float pair[12] = {0, 1, 2, 3, 4, 5, 5, 4, 3, 2, 1, 0};
    int32_t both[4] = {5, 4, -1, -1};
    float two[12];
    int32_t chosen[12], none[2] = {-1, -1}, six;
    int bad = 0;
    dpar_router g;
    dpar_router_load load;
    dpar_why why;
    memset(&g, 0, sizeof g);
    g.experts = 6;
    g.choices = 2;
    g.score = DPAR_ROUTER_GIVEN;
    g.type = DPAR_F64;
    g.balance = 0.5;
    bad += router_forward(&g, 2, logits, chosen, weight, scratch, &why) != DPAR_OK;
    /* of equal scores the lower index is first */
    bad += chosen[0] != 1 || chosen[1] != 2 || chosen[2] != 0 || chosen[3] != 1;
    bad += weight[0] != 5.0 || weight[1] != 5.0;
    g.bias = bias; /* 5.5 for expert 3, whose weight stays 1 */
    bad += router_forward(&g, 1, logits, chosen, weight, scratch, &why) != DPAR_OK;
    bad += chosen[0] != 3 || chosen[1] != 1 || weight[0] != 1.0;
    g.bias = NULL;
    memcpy(odd, logits, sizeof odd);
    odd[0] = odd[3] = (double)NAN;
    g.choices = 6;
    bad += router_forward(&g, 1, odd, chosen, weight, scratch, &why) != DPAR_OK;
    for (six = 0; six < 6; six++) { /* 5 5 5 0 NaN NaN */
        bad += chosen[six] != (six < 2 ? six + 1 : six == 2 ? 4 : six == 3 ? 5 : (six - 4) * 3);
    }
    g.choices = 2;
    g.type = DPAR_F32;
    g.score = DPAR_ROUTER_SOFTMAX;
    g.normalise = 1;
    bad += router_forward(&g, 1, narrow, chosen, light, scratch, &why) != DPAR_OK;
    bad += chosen[0] != 5 || chosen[1] != 4 ||
           !(fabs((double)light[0] - 1.0 / (1.0 + exp(-1.0))) < 1e-7);
    g.type = DPAR_F64; /* a single choice has weight 1, whatever its score */
    g.choices = 1;
    memcpy(odd, logits, sizeof odd);
    for (six = 0; six < 200; six++) {
        odd[1] = 5.0 + 0.01 * six;
        bad += router_forward(&g, 1, odd, chosen, weight, scratch, &why) != DPAR_OK;
        bad += weight[0] != 1.0;
    }
    g.type = DPAR_F32;
    g.choices = 2;
    /* Padding does not count; without tokens all results are 0. */
    bad += router_balance(&g, NULL, 1, narrow, none, sums, &load, scratch) != DPAR_OK;
    bad += load.tokens != 0 || load.loss != 0.0 || load.imbalance != 0.0 || load.idle != 6;
    bad += router_backward(&g, 1, narrow, none, light, &load, narrow, scratch, &why) != DPAR_OK;
    bad += narrow[0] != 0.0f || narrow[5] != 0.0f;
    /* The same with a token that counts after the padding. */
    bad += router_balance(&g, NULL, 2, pair, both, sums, &load, scratch) != DPAR_OK;
    bad += router_backward(&g, 2, pair, both, NULL, &load, two, scratch, &why) != DPAR_OK;
    bad += load.tokens != 1 || !(two[5] > 0.0f) || two[6] != 0.0f || two[11] != 0.0f;
    none[0] = 6;
    bad += router_balance(&g, NULL, 1, narrow, none, sums, &load, scratch) != DPAR_E_ARG;
    bad += router_backward(&g, 1, narrow, none, light, NULL, two, scratch, &why) != DPAR_E_ARG;
    bad += strcmp(why.text, "router: token 0 chose expert 6, but there are 6 experts") != 0;
    none[0] = -2;
    bad += router_backward(&g, 1, narrow, none, light, NULL, two, scratch, &why) != DPAR_E_ARG;
    bad += router_forward(&g, 1, NULL, chosen, light, scratch, &why) != DPAR_E_ARG;
    g.score = 3;
    bad += router_forward(&g, 1, narrow, chosen, light, scratch, &why) != DPAR_E_ARG;
    g.score = 0;
    g.type = DPAR_BF16;
    bad += router_forward(&g, 1, narrow, chosen, light, scratch, &why) != DPAR_E_ARG;
    g.type = DPAR_F32;
    g.choices = 7;
    bad += router_forward(&g, 1, narrow, chosen, light, scratch, &why) != DPAR_E_ARG;
    bad +=
        strcmp(why.text,
               "router: choices is 7 and experts is 6, but 1 <= choices <= experts is required") !=
        0;
    return bad;
}

/* ---- 16-bit rows ----------------------------------------------------------------------------- */

/* Tests bf16 rows. Experts return their rows unchanged, so y is x times the sum of weights, rounded
 * once. In backward, gradients are rounded when they are weighted, and once more in dx. F16 uses
 * the same code except for the table of the kernel that converts (tests/host/kernel.c). Choices of
 * -1 are padding. */
static int narrow_cases(dpar_comm *c)
{
    enum { TOKENS = 5, K = 2, WIDTH = 67 };
    uint16_t *x = (uint16_t *)fresh(TOKENS * WIDTH), *y = (uint16_t *)fresh(TOKENS * WIDTH);
    uint16_t *dx = (uint16_t *)fresh(TOKENS * WIDTH), *rows;
    uint16_t *kept = (uint16_t *)fresh(TOKENS * K * WIDTH);
    int32_t chosen[TOKENS * K];
    float *weight = (float *)fresh(TOKENS * K), *dweight = (float *)fresh(TOKENS * K);
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_why why;
    void *memory = NULL, *mine = NULL;
    int64_t bytes = 0, each = 0, i, j, t;
    int bad = 0;
    memset(&l, 0, sizeof l);
    bad += dpar_split_init(&l.experts, DPAR_SPLIT_CHUNK, 7, c->size, 1, &why) != DPAR_OK;
    l.choices = K;
    l.max_tokens = TOKENS;
    l.width = WIDTH;
    l.type = DPAR_BF16;
    bad += experts_bytes(c, &l, &bytes, &each, &why) != DPAR_OK;
    bad += plan_alloc(c, bytes, 0, &memory) != DPAR_OK || plan_alloc(c, each, 1, &mine) != 0;
    bad += experts_in(memory, bytes, c, &l, &plan, &why) != DPAR_OK;
    if (bad) {
        return bad;
    }
    rows = (uint16_t *)fresh(plan->max_rows * WIDTH);
    for (t = 0; t < TOKENS; t++) {
        for (i = 0; i < WIDTH; i++) {
            x[t * WIDTH + i] = bf16_of((float)number((uint32_t)c->rank + 5u, t * WIDTH + i));
        }
        for (j = 0; j < K; j++) {
            chosen[t * K + j] = (int32_t)((t * 3 + j * 2 + c->rank) % 7);
            weight[t * K + j] = (float)number((uint32_t)c->rank + 9u, t * K + j);
        }
        chosen[t * K + 1] = t == 2 ? -1 : chosen[t * K + 1];
    }
    bad += experts_route(plan, mine, each, TOKENS, chosen, NULL, &route, &why) != DPAR_OK;
    bad += bad || experts_dispatch(plan, route, x, rows) != DPAR_OK;
    bad += bad || experts_combine(plan, route, rows, weight, y, kept) != DPAR_OK;
    bad += bad || experts_combine_backward(plan, route, x, weight, kept, rows, dweight) != 0;
    bad += bad || experts_dispatch_backward(plan, route, rows, dx) != DPAR_OK;
    bad += route->kept != TOKENS * K - 1 || route->dropped != 0;
    for (t = 0; t < TOKENS; t++) {
        double dot = 0.0;
        for (i = 0; i < WIDTH; i++) {
            const double v = (double)bf16_value(x[t * WIDTH + i]);
            const double a = (double)weight[t * K], b = t == 2 ? 0.0 : (double)weight[t * K + 1];
            bad += y[t * WIDTH + i] != bf16_of((float)(a * v + b * v));
            bad += dx[t * WIDTH + i] != bf16_of(bf16_value(bf16_of((float)(a * v))) +
                                                bf16_value(bf16_of((float)(b * v))));
            dot += v * v;
        }
        bad += dweight[t * K] != (float)dot || dweight[t * K + 1] != (t == 2 ? 0.0f : (float)dot);
    }
    free(rows);
    free(x);
    free(y);
    free(dx);
    free(kept);
    free(weight);
    free(dweight);
    plan_release(c, plan, memory, mine);
    if (bad) {
        printf("16 bits: %d wrong\n", bad);
    }
    return bad;
}

/* ---- memory of rows -------------------------------------------------------------------------- */

/* How rows travel: by all-to-alls, or read directly if the rows and routings of all ranks are
 * registered. */
#ifdef DEVICE_MEMORY
enum { ALL_TO_ALLS, THERE, WAYS, REGISTERED, LAST_HAS_OWN_ROWS, LAST_HAS_OWN_ROUTING };
static const char *const way_names[WAYS] = {"all-to-alls", "a device's memory"};
#else
enum { ALL_TO_ALLS, REGISTERED, LAST_HAS_OWN_ROWS, LAST_HAS_OWN_ROUTING, WAYS, THERE };
static const char *const way_names[WAYS] = {"all-to-alls", "registered", "own rows", "own routing"};
#endif

/* One layer, forward and backward, on this rank. */
typedef struct travel {
    dpar_comm *c;
    dpar_experts_desc l;
    uint32_t seed;
    int64_t tokens;
    int32_t keeps; /* gradients of the weights are computed */
    int32_t *chosen;
    dpar_experts_plan *plan;
    dpar_experts_routing *route;
    void *block[16];
    int blocks, blocked[16]; /* 1 if the block is from dpar_comm_alloc */
    unsigned char *seen;     /* all results, one after the other */
    int64_t all, bits;       /* bytes of `seen`, and those before its last array, dweight */
} travel;

static void *lend(travel *t, int64_t bytes, int registered)
{
    void *at = NULL;
#ifdef DEVICE_MEMORY
    if (t->c->mem != NULL) {
        t->blocked[t->blocks] = 0;
        return t->block[t->blocks++] = device_zeroed(bytes);
    }
#endif
    if (registered && dpar_comm_alloc(t->c, bytes + 64, &at) != DPAR_OK) {
        exit(1);
    }
    t->blocked[t->blocks] = registered;
    at = registered ? at : aligned_alloc(64, (size_t)(bytes / 64 + 2) * 64);
    return t->block[t->blocks++] = at;
}

/* Allocates memory of a plan, or of a routing if `also` is set. */
static void *lend_plan(travel *t, int64_t bytes, int also, int registered)
{
    if (t->c->mem == NULL) {
        return lend(t, bytes, registered);
    }
    t->blocked[t->blocks] = 0;
    if (plan_alloc(t->c, bytes, also, &t->block[t->blocks]) != DPAR_OK) {
        exit(1);
    }
    return t->block[t->blocks++];
}

static void give_back(travel *t)
{
    CHECK_INT(dpar_experts_free(t->plan), DPAR_OK);
    while (t->blocks-- > 0) {
        if (t->blocked[t->blocks]) {
            dpar_comm_release(t->c, t->block[t->blocks]);
        } else {
            free(t->block[t->blocks]);
        }
    }
    t->blocks = 0;
}

/* Returns rows of numbers that are the same in each call. */
static void *some_rows(travel *t, uint32_t a, int64_t rows, int registered)
{
    const int64_t n = rows * t->l.width;
    void *at = lend(t, n * dpar_type_bytes(t->l.type), registered);
    int64_t i;
    for (i = 0; i < n; i++) {
        float_put(at, i, t->l.type, number(t->seed + a + 10u * (uint32_t)t->c->rank, i));
    }
    return at;
}

/* Returns results of the experts, which each compute something else. */
static void *worked(travel *t, const void *rows, int registered)
{
    const dpar_experts_routing *r = t->route;
    void *out = lend(t, r->rows * t->l.width * dpar_type_bytes(t->l.type), registered);
    int64_t i;
    int32_t e;
    for (e = 0; e < t->plan->count; e++) {
        const int64_t begin = r->first[e] * t->l.width;
        for (i = begin; i < begin + r->count[e] * t->l.width; i++) {
            float_put(out, i, t->l.type,
                      float_get(rows, i, t->l.type) * (1.0 + 0.25 * (t->plan->first + e)));
        }
    }
    return out;
}

static void came(travel *t, const void *at, int64_t bytes)
{
    t->seen = (unsigned char *)realloc(t->seen, (size_t)(t->all + bytes) + 1);
    if (bytes > 0) {
        memcpy(t->seen + t->all, at, (size_t)bytes);
    }
    t->all += bytes;
}

static int there_and_back(travel *t, int way)
{
    const int last = t->c->rank == t->c->size - 1;
    const int shares = way != LAST_HAS_OWN_ROWS || !last;
    const int64_t row = t->l.width * dpar_type_bytes(t->l.type);
    const int64_t unit = t->l.type == DPAR_F64 ? 8 : 4;
    dpar_experts_plan *p = t->plan;
    const dpar_experts_routing *r = t->route;
    const void *x = some_rows(t, 1, t->tokens, shares), *dy = some_rows(t, 2, t->tokens, shares);
    const void *weight = t->block[2];
    void *rows = lend(t, r->rows * row, 0), *y = lend(t, t->tokens * row, 0), *results;
    void *kept = t->keeps && r->kept > 0 ? lend(t, r->kept * row, 0) : NULL;
    void *dweight = t->keeps ? lend(t, t->tokens * t->l.choices * unit, 0) : NULL;
    int bad = 0;
    if (dweight != NULL) {
        memset(dweight, 0x5a, (size_t)(t->tokens * t->l.choices * unit));
    }
    bad += experts_dispatch(p, r, x, rows) != DPAR_OK;
    came(t, rows, r->rows * row);
    results = worked(t, rows, shares);
    bad += experts_combine(p, r, results, weight, y, kept) != DPAR_OK;
    came(t, y, t->tokens * row);
    bad += experts_combine_backward(p, r, dy, weight, kept, rows, dweight) != DPAR_OK;
    came(t, rows, r->rows * row);
    results = worked(t, rows, shares);
    bad += experts_dispatch_backward(p, r, results, y) != DPAR_OK;
    came(t, y, t->tokens * row);
    if (t->keeps) {
        came(t, kept, r->kept * row);
    }
    t->bits = t->all;
    if (t->keeps) {
        came(t, dweight, t->tokens * t->l.choices * unit);
    }
    return bad;
}

/* Rounds up to whole cache lines. */
static int64_t lines_of(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Runs the layer in one of the ways. The count of bytes must be the same in all. Packed rows are at
 * the end of a plan's memory, before the sorted ones. */
static int travels(travel *t, int way)
{
    dpar_comm *c = t->c;
    const int last = c->rank == c->size - 1;
    int64_t bytes = 0, each = 0, i, counted, sent, pieces, touched = 0;
    dpar_why why;
    unsigned char *packed = NULL;
    void *memory, *routing, *weight, *decides = reached(t->tokens * t->l.choices);
    int bad = experts_bytes(c, &t->l, &bytes, &each, &why) != DPAR_OK;
    memory = lend_plan(t, bytes, 0, way != LAST_HAS_OWN_ROUTING);
    routing = lend_plan(t, each, 1, way != LAST_HAS_OWN_ROUTING || !last);
    weight = lend(t, t->tokens * t->l.choices * 8, way != LAST_HAS_OWN_ROWS || !last);
    for (i = 0; i < t->tokens * t->l.choices; i++) {
        const double v = number(t->seed + 3u + 10u * (uint32_t)c->rank, i);
        float_put(weight, i, t->l.type == DPAR_F64 ? DPAR_F64 : DPAR_F32, v);
        float_put(decides, i, t->l.type == DPAR_F64 ? DPAR_F64 : DPAR_F32, v);
    }
    t->all = 0;
    bad += bad || experts_in(memory, bytes, c, &t->l, &t->plan, &why) != DPAR_OK;
    bad += bad || experts_route(t->plan, routing, each, t->tokens, t->chosen, decides, &t->route,
                                &why) != DPAR_OK;
    if (bad == 0) {
        const int64_t row = t->l.width * dpar_type_bytes(t->l.type);
        const int several = t->plan->count > 1 && c->size > 1;
        pieces = t->tokens * t->l.choices * row;
        packed = (unsigned char *)memory + bytes - lines_of(t->l.max_tokens * t->l.choices * row) -
                 (several ? lines_of(t->plan->max_rows * row) : 0);
        if (c->mem == NULL) {
            memset(packed, 0x5a, (size_t)pieces);
        }
        counted = c->sent[DPAR_CALL_ALL_TO_ALL];
        sent = t->plan->sent_bytes;
        if (way == ALL_TO_ALLS || way == THERE) {
            look_begins(c);
        }
        bad += there_and_back(t, way);
        if (way == ALL_TO_ALLS || way == THERE) {
            look_ends(c);
            bad += bytes_away != t->plan->sent_bytes - sent || exchanges != 4;
        }
        bad += c->sent[DPAR_CALL_ALL_TO_ALL] - counted != t->plan->sent_bytes - sent;
        for (i = 0; i < pieces && c->mem == NULL; i++) {
            touched += packed[i] != 0x5a;
        }
        bad += touched > 0 && way == REGISTERED && strcmp(c->engine.name, "shm") == 0;
    }
    give_back(t);
    free(decides);
    return bad;
}

/* Returns a communicator of the same ranks that uses host memory. */
static dpar_comm *on_host(dpar_comm *c)
{
#ifdef DEVICE_CUDA
    c = the_device.host;
#elif defined(DEVICE_MEMORY)
    c = device_return(c);
#endif
    return c;
}

static dpar_comm *on_device(dpar_comm *c, dpar_comm *host)
{
#if defined(DEVICE_MEMORY) && !defined(DEVICE_CUDA)
    c = device_take(host);
#endif
    (void)host;
    return c;
}

/* Compares gradients of weights, which are sums in f64 of up to 600 products. A device may add them
 * in another order. */
static int dots_differ(const travel *t, const unsigned char *first)
{
    const int32_t type = t->l.type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
    const int64_t n = (t->all - t->bits) / dpar_type_bytes(type);
    void *a = reached(n), *b = reached(n);
    int64_t i;
    int bad = 0;
    memcpy(a, t->seen + t->bits, (size_t)(t->all - t->bits));
    memcpy(b, first + t->bits, (size_t)(t->all - t->bits));
    for (i = 0; i < n; i++) {
        const double x = float_get(a, i, type), y = float_get(b, i, type);
        bad += !(fabs(x - y) <= (type == DPAR_F64 ? 1e-12 : 1e-6) * (1.0 + fabs(y)));
    }
    free(a);
    free(b);
#ifndef DEVICE_CUDA
    bad += memcmp(t->seen + t->bits, first + t->bits, (size_t)(t->all - t->bits)) != 0;
#endif
    return bad;
}

static int all_ways(dpar_comm *c, travel *t)
{
    unsigned char *first;
    int64_t i, j, all;
    int way, bad = 0;
    t->c = on_host(c);
    t->chosen = (int32_t *)reached(t->tokens * t->l.choices);
    /* some experts twice in a row, some tokens have no expert, one rank has none */
    for (i = 0; i < t->tokens; i++) {
        for (j = 0; j < t->l.choices; j++) {
            const uint32_t a = scrambled(t->seed, i / 2 + 100 * c->rank);
            t->chosen[i * t->l.choices + j] =
                scrambled(t->seed + 1, i * 8 + j) % 7 == 0 ||
                        (t->seed / 50 % 4 == 0 && c->rank == c->size - 1)
                    ? -1
                    : (int32_t)((a % 64 + (uint32_t)j) % (uint32_t)t->l.experts.count);
        }
    }
    bad += travels(t, ALL_TO_ALLS);
    first = t->seen;
    all = t->all;
    t->c = on_device(c, t->c);
    for (way = 1; way < WAYS; way++) {
        int wrong;
        t->seen = NULL;
        wrong = travels(t, way) + (t->all != all || memcmp(t->seen, first, (size_t)t->bits) != 0);
        wrong += t->all == all ? dots_differ(t, first) : 0;
        if (wrong > 0) {
            printf("rank %d of %d, type %d, drop %d, width %d, %s: %d wrong\n", (int)c->rank,
                   (int)c->size, (int)t->l.type, (int)t->l.drop, (int)t->l.width, way_names[way],
                   wrong);
        }
        bad += wrong;
        free(t->seen);
    }
    free(first);
    free(t->chosen);
    return bad;
}

static int where_cases(dpar_comm *c)
{
    static const int32_t types[] = {DPAR_F32, DPAR_F64, DPAR_BF16, DPAR_F16};
    static const int64_t widths[] = {1, 5, 16, 67, 130, 600};
    int32_t i;
    int bad = 0;
    for (i = 0; i < 17; i++) {
        const int large = i == 16; /* large enough to be written past the cache */
        travel t;
        memset(&t, 0, sizeof t);
        if (large && (c->size != 2 || c->mem != NULL)) {
            continue;
        }
        bad += dpar_split_init(&t.l.experts, i % 2 ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK, 3 + i % 6,
                               c->size, 1, NULL) != DPAR_OK;
        t.l.choices = large ? 2 : 1 + i % 3;
        t.l.drop = i / 4 % 4;
        t.l.capacity_factor = 0.75;
        t.l.type = types[i % 4];
        t.l.max_tokens = large ? 1070 : 9;
        t.l.width = large ? 1031 : widths[i % 6];
        t.tokens = large ? 1060 : (c->rank * 5 + i) % 10;
        t.keeps = i % 3 != 1;
        t.seed = 1000u + 50u * (uint32_t)i;
        bad += all_ways(c, &t);
    }
    return bad;
}

/* ---- several routings at a time -------------------------------------------------------------- */

enum { Q_TOKENS = 6, Q_K = 2, Q_WIDTH = 8, Q_EXPERTS = 5 };

/* Uses two routings of a plan alternately, then the memory of the first one for a new one. No rank
 * waits in between. */
typedef struct turns {
    dpar_experts_plan *plan;
    dpar_experts_routing *route[2];
    void *mine[2];
    int64_t each;
    int32_t chosen[3][Q_TOKENS * Q_K];
    double *x[3], *rows[3], *y[3], *dx[2], *weight;
    dpar_why why;
} turns;

/* Calls the functions without the macros that wait, so that a device gets all of it in one
 * ON_DEVICE. */
static dpar_status take_turns(turns *t)
{
    dpar_status st = DPAR_OK;
    int i;
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        st = (experts_route)(t->plan, t->mine[i], t->each, Q_TOKENS, t->chosen[i], NULL,
                             &t->route[i], &t->why);
    }
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        st = (experts_dispatch)(t->plan, t->route[i], t->x[i], t->rows[i]);
    }
    for (i = 0; i < 2 && st == DPAR_OK; i++) {
        st = (experts_combine)(t->plan, t->route[i], t->rows[i], t->weight, t->y[i], NULL);
    }
    for (i = 1; i >= 0 && st == DPAR_OK; i--) {
        st = (experts_combine_backward)(t->plan, t->route[i], t->x[i], t->weight, NULL, t->rows[i],
                                        NULL);
    }
    for (i = 1; i >= 0 && st == DPAR_OK; i--) {
        st = (experts_dispatch_backward)(t->plan, t->route[i], t->rows[i], t->dx[i]);
    }
    st = st == DPAR_OK ? (experts_route)(t->plan, t->mine[0], t->each, Q_TOKENS, t->chosen[2], NULL,
                                         &t->route[0], &t->why)
                       : st;
    st = st == DPAR_OK ? (experts_dispatch)(t->plan, t->route[0], t->x[2], t->rows[2]) : st;
    return st == DPAR_OK
               ? (experts_combine)(t->plan, t->route[0], t->rows[2], t->weight, t->y[2], NULL)
               : st;
}

/* Checks y and dx where experts return their rows unchanged: x times the sum of the weights. */
static int check_turns(const turns *t)
{
    int64_t i, j;
    int k, bad = 0;
    for (k = 0; k < 3; k++) {
        for (i = 0; i < Q_TOKENS * Q_WIDTH; i++) {
            double sum = 0.0;
            for (j = i / Q_WIDTH * Q_K; j < (i / Q_WIDTH + 1) * Q_K; j++) {
                sum += t->chosen[k][j] >= 0 ? t->weight[j] * t->x[k][i] : 0.0;
            }
            bad += t->y[k][i] != sum || (k < 2 && t->dx[k][i] != sum);
        }
    }
    return bad;
}

static int turn_case(dpar_comm *c)
{
    turns t;
    dpar_experts_desc l;
    void *memory = NULL;
    int64_t bytes = 0, i;
    int k, bad = 0;
    memset(&l, 0, sizeof l);
    memset(&t, 0, sizeof t);
    bad += dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, Q_EXPERTS, c->size, 1, &t.why) != DPAR_OK;
    l.choices = Q_K;
    l.max_tokens = Q_TOKENS;
    l.width = Q_WIDTH;
    l.type = DPAR_F64;
    bad += experts_bytes(c, &l, &bytes, &t.each, &t.why) != DPAR_OK;
    bad += plan_alloc(c, bytes, 0, &memory) || plan_alloc(c, t.each, 1, &t.mine[0]) ||
           plan_alloc(c, t.each, 1, &t.mine[1]);
    bad += bad || experts_in(memory, bytes, c, &l, &t.plan, &t.why) != DPAR_OK;
    if (bad) {
        printf("turns: %s\n", t.why.text);
        return bad;
    }
    t.weight = (double *)fresh(Q_TOKENS * Q_K);
    for (i = 0; i < Q_TOKENS * Q_K; i++) { /* sums of quarters are exact in f32 */
        t.weight[i] = (double)(1 + i % 5) / 4.0;
        for (k = 0; k < 3; k++) {
            t.chosen[k][i] = (int32_t)((i / Q_K * (k + 1) + i % Q_K * 2 + c->rank + k) % Q_EXPERTS);
        }
        t.chosen[2][i] = i % 3 == 0 ? -1 : t.chosen[2][i];
    }
    for (k = 0; k < 3; k++) {
        t.x[k] = (double *)fresh(Q_TOKENS * Q_WIDTH);
        t.y[k] = (double *)fresh(Q_TOKENS * Q_WIDTH);
        t.rows[k] = (double *)fresh(t.plan->max_rows * Q_WIDTH);
        if (k < 2) {
            t.dx[k] = (double *)fresh(Q_TOKENS * Q_WIDTH);
        }
        for (i = 0; i < Q_TOKENS * Q_WIDTH; i++) {
            t.x[k][i] = number(200u + (uint32_t)k, c->rank * 1000 + i);
        }
    }
    bad += ON_DEVICE(take_turns(&t)) != DPAR_OK;
    bad += check_turns(&t);
    if (bad) {
        printf("rank %d of %d: turns: %d wrong, %s\n", (int)c->rank, (int)c->size, bad,
               c->why.text);
    }
    for (k = 0; k < 3; k++) {
        free(t.x[k]);
        free(t.y[k]);
        free(t.rows[k]);
        if (k < 2) {
            free(t.dx[k]);
        }
    }
    free(t.weight);
    plan_release(c, t.plan, memory, t.mine[0]);
    plan_release(c, NULL, NULL, t.mine[1]);
    return bad;
}

#ifdef DEVICE_MEMORY
/* Gives the last rank a table without gather, or without layers. All ranks get the error, and no
 * device memory is left allocated. */
static int table_case(dpar_comm *c)
{
    const dpar_mem *was = c->mem;
    const int last = c->rank == c->size - 1;
    dpar_mem_layers layers = *(const dpar_mem_layers *)was->layers;
    dpar_mem less = *was;
    char expected[120];
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_why why;
    void *memory = NULL;
    int64_t bytes = 0, each = 0, pieces;
    int bad = 0;
    memset(&l, 0, sizeof l);
    bad += dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, 3, c->size, 1, &why) != DPAR_OK;
    l.choices = 1;
    l.max_tokens = l.width = 1;
    l.type = DPAR_F32;
    bad += experts_bytes(c, &l, &bytes, &each, &why) != DPAR_OK;
    bad += plan_alloc(c, bytes, 0, &memory) != DPAR_OK;
    pieces = the_device.pieces;
    layers.gather = NULL;
    less.layers = c->size % 2 == 0 ? &layers : NULL;
    c->mem = last ? &less : was;
    bad += experts_in(memory, bytes, c, &l, &plan, &why) != DPAR_E_UNKNOWN;
    c->mem = was;
    snprintf(expected, sizeof expected,
             "rank %d: experts: comm->mem->layers must have gather, combine and dot",
             (int)c->size - 1);
    bad += strstr(why.text, last ? strchr(expected, 'e') : expected) == NULL || plan != NULL;
    bad += the_device.pieces != pieces;
    if (bad) {
        printf("table: %d wrong, %s\n", bad, why.text);
    }
    plan_release(c, NULL, memory, NULL);
    return bad;
}
#endif

/* ---- with tensor and data parallelism -------------------------------------------------------- */

enum { M_EXPERTS = 5, M_WIDTH = 6, M_INNER = 4, M_TOKENS = 13, M_K = 2 };

/* Computes y, dx and du on one rank, where expert e is v (u x). */
static void mesh_reference(const double *x, const double *g, const double *u, const double *v,
                           const double *weight, const int32_t *chosen, double *y, double *dx,
                           double *du)
{
    int64_t a, i, h;
    for (a = 0; a < M_TOKENS * M_K; a++) {
        const int64_t t = a / M_K * M_WIDTH, e = chosen[a] * M_INNER * M_WIDTH;
        for (h = 0; h < M_INNER; h++) {
            double inner = 0.0, back = 0.0;
            for (i = 0; i < M_WIDTH; i++) {
                inner += u[e + h * M_WIDTH + i] * x[t + i];
                back += v[e + h * M_WIDTH + i] * g[t + i] * weight[a];
            }
            for (i = 0; i < M_WIDTH; i++) {
                y[t + i] += weight[a] * inner * v[e + h * M_WIDTH + i];
                dx[t + i] += back * u[e + h * M_WIDTH + i];
                du[e + h * M_WIDTH + i] += back * x[t + i];
            }
        }
    }
}

/* Computes the inner features h0 to h1 - 1 of this rank's experts: rows of out, or of dx and du. */
static void mesh_experts(const dpar_experts_plan *p, const dpar_experts_routing *r, int64_t h0,
                         int64_t h1, const double *u, const double *v, const double *rows,
                         const double *dout, double *out, double *du)
{
    int64_t k, row, h, i;
    for (k = 0; k < p->count; k++) {
        const int64_t e = (p->first + k) * M_INNER * M_WIDTH;
        for (row = r->first[k]; row < r->first[k] + r->count[k]; row++) {
            for (h = h0; h < h1; h++) {
                double s = 0.0;
                for (i = 0; i < M_WIDTH; i++) {
                    s += dout != NULL ? v[e + h * M_WIDTH + i] * dout[row * M_WIDTH + i]
                                      : u[e + h * M_WIDTH + i] * rows[row * M_WIDTH + i];
                }
                for (i = 0; i < M_WIDTH; i++) {
                    out[row * M_WIDTH + i] += s * (dout != NULL ? u : v)[e + h * M_WIDTH + i];
                    if (dout != NULL) {
                        du[e + h * M_WIDTH + i] += s * rows[row * M_WIDTH + i];
                    }
                }
            }
        }
    }
}

/* Adds to y and dx those of an expert v (u x) that all tokens share. */
static void shared_reference(const double *x, const double *g, const double *u, const double *v,
                             double *y, double *dx)
{
    int64_t t, i, h;
    for (t = 0; t < M_TOKENS * M_WIDTH; t += M_WIDTH) {
        for (h = 0; h < M_INNER; h++) {
            double inner = 0.0, back = 0.0;
            for (i = 0; i < M_WIDTH; i++) {
                inner += u[h * M_WIDTH + i] * x[t + i];
                back += v[i * M_INNER + h] * g[t + i];
            }
            for (i = 0; i < M_WIDTH; i++) {
                y[t + i] += v[i * M_INNER + h] * inner;
                dx[t + i] += u[h * M_WIDTH + i] * back;
            }
        }
    }
}

/* Computes the shared expert as an ordinary pair of tensor parallel layers on the two ranks that
 * hold the same n tokens. */
static int shared_pair(dpar_comm *etp, int64_t n, const double *x, const double *g, const double *u,
                       const double *v, double *y, double *dx)
{
    enum { HALF = M_INNER / 2 };
    double inner[M_TOKENS * HALF], back[M_TOKENS * HALF], piece[M_WIDTH * HALF];
    double more[M_TOKENS * M_WIDTH], more_dx[M_TOKENS * M_WIDTH];
    dpar_linear up, down;
    dpar_linear_arrays a, b;
    dpar_tensor_parallel t;
    dpar_why why;
    int64_t i;
    int bad = dpar_tensor_parallel_init(&t, etp, DPAR_F64, n, NULL, &why) != DPAR_OK;
    memset(&up, 0, sizeof up);
    memset(&a, 0, sizeof a);
    for (i = 0; i < M_WIDTH * HALF; i++) {
        piece[i] = v[i / HALF * M_INNER + etp->rank * HALF + i % HALF];
    }
    down = up;
    b = a;
    up.kind = DPAR_LINEAR_COLUMN;
    down.kind = DPAR_LINEAR_ROW;
    up.in = down.out = M_WIDTH;
    up.out = down.in = HALF;
    a.w = u + etp->rank * HALF * M_WIDTH;
    a.x = x;
    a.y = inner;
    a.dy = back;
    a.dx = more_dx;
    b.w = piece;
    b.x = inner;
    b.y = more;
    b.dy = g;
    b.dx = back;
    bad += bad || dpar_linear_forward(&t, &up, &a) != DPAR_OK ||
           dpar_linear_forward(&t, &down, &b) != DPAR_OK ||
           dpar_linear_backward(&t, &down, &b) != DPAR_OK ||
           dpar_linear_backward(&t, &up, &a) != DPAR_OK;
    for (i = 0; i < n * M_WIDTH && !bad; i++) {
        y[i] += more[i];
        dx[i] += more_dx[i];
    }
    return bad;
}

/* Uses a mesh of dp x tp ranks, with experts over edp x ep x etp, where etp = tp = 2 and ep = 2.
 * Two ranks hold half of an expert's inner features each, and n / 4 such pairs hold the same
 * expert. Tokens are cut over dp. */
static int mesh_case(dpar_comm *c)
{
    const int64_t all = M_TOKENS * M_WIDTH, weights = M_EXPERTS * M_INNER * M_WIDTH;
    int32_t sizes[3], chosen[M_TOKENS * M_K];
    dpar_mesh mesh, view;
    dpar_comm *ep = NULL, *etp = NULL, *edp = NULL;
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_split tokens;
    dpar_why why;
    void *memory = NULL, *mine = NULL;
    double *x = numbers(1, all), *g = numbers(2, all), *u = numbers(3, weights);
    double *v = numbers(4, weights), *weight = numbers(5, M_TOKENS * M_K);
    double *us = numbers(6, M_INNER * M_WIDTH), *vs = numbers(7, M_INNER * M_WIDTH);
    double *y = (double *)fresh(all), *dx = (double *)fresh(all), *du = (double *)fresh(weights);
    double *y2 = (double *)fresh(all), *dx2 = (double *)fresh(all);
    double *du2 = (double *)fresh(weights), *rows, *out, *dout, *back, *kept;
    int64_t bytes = 0, each = 0, t0, n, a, h;
    int bad = 0;
    for (a = 0; a < M_TOKENS * M_K; a++) {
        chosen[a] = (int32_t)((a * 2 + a % M_K + a / 5) % M_EXPERTS);
        if (a % M_K == 1 && chosen[a] == chosen[a - 1]) {
            chosen[a] = (chosen[a] + 1) % M_EXPERTS;
        }
    }
    mesh_reference(x, g, u, v, weight, chosen, y, dx, du);
    shared_reference(x, g, us, vs, y, dx);
    sizes[0] = c->size / 2;
    sizes[1] = 2;
    bad += dpar_mesh_init(&mesh, "dp tp", sizes, DPAR_ORDER_LAST_FASTEST, c->size, &why) != DPAR_OK;
    sizes[0] = c->size / 4;
    sizes[1] = sizes[2] = 2;
    bad +=
        dpar_mesh_view(&view, &mesh, "edp ep etp", sizes, DPAR_ORDER_LAST_FASTEST, &why) != DPAR_OK;
    bad += bad || dpar_comm_split_axes(c, &view, 1u << 0, &edp) != DPAR_OK;
    bad += bad || dpar_comm_split_axes(c, &view, 1u << 1, &ep) != DPAR_OK;
    bad += bad || dpar_comm_split_axes(c, &view, 1u << 2, &etp) != DPAR_OK;
    bad += dpar_split_init(&tokens, DPAR_SPLIT_EVEN, M_TOKENS, c->size / 2, 1, &why) != DPAR_OK;
    memset(&l, 0, sizeof l);
    bad += dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, M_EXPERTS, 2, 1, &why) != DPAR_OK;
    l.choices = M_K;
    l.max_tokens = dpar_split_part_count(&tokens, 0);
    l.width = M_WIDTH;
    l.type = DPAR_F64;
    bad += bad || experts_bytes(ep, &l, &bytes, &each, &why) != DPAR_OK;
    bad += bad || dpar_comm_alloc(ep, bytes, &memory) != DPAR_OK;
    bad += bad || dpar_comm_alloc(ep, each, &mine) != DPAR_OK;
    bad += bad || experts_in(memory, bytes, ep, &l, &plan, &why) != DPAR_OK;
    if (bad) {
        printf("mesh: %s\n", why.text);
        return bad;
    }
    t0 = dpar_split_part_first(&tokens, c->rank / 2);
    n = dpar_split_part_count(&tokens, c->rank / 2);
    h = etp->rank * (M_INNER / 2);
    rows = (double *)fresh(plan->max_rows * M_WIDTH);
    out = (double *)fresh(plan->max_rows * M_WIDTH);
    dout = (double *)fresh(plan->max_rows * M_WIDTH);
    back = (double *)fresh(plan->max_rows * M_WIDTH);
    kept = (double *)fresh(n * M_K * M_WIDTH);
    bad += experts_route(plan, mine, each, n, chosen + t0 * M_K, NULL, &route, &why) != 0;
    bad += bad || experts_dispatch(plan, route, x + t0 * M_WIDTH, rows) != DPAR_OK;
    if (bad) {
        return bad;
    }
    a = route->rows * M_WIDTH;
    mesh_experts(plan, route, h, h + M_INNER / 2, u, v, rows, NULL, out, NULL);
    bad += dpar_all_reduce(etp, out, out, a, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    bad += experts_combine(plan, route, out, weight + t0 * M_K, y2, kept) != DPAR_OK;
    bad += experts_combine_backward(plan, route, g + t0 * M_WIDTH, weight + t0 * M_K, NULL, dout,
                                    NULL) != DPAR_OK;
    mesh_experts(plan, route, h, h + M_INNER / 2, u, v, rows, dout, back, du2);
    bad += dpar_all_reduce(etp, back, back, a, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    bad += experts_dispatch_backward(plan, route, back, dx2) != DPAR_OK;
    bad += shared_pair(etp, n, x + t0 * M_WIDTH, g + t0 * M_WIDTH, us, vs, y2, dx2);
    bad += dpar_all_reduce(edp, du2, du2, weights, DPAR_F64, DPAR_SUM, NULL) != DPAR_OK;
    bad += compare("mesh: y", y2, DPAR_F64, y, all, t0 * M_WIDTH, n * M_WIDTH);
    bad += compare("mesh: dx", dx2, DPAR_F64, dx, all, t0 * M_WIDTH, n * M_WIDTH);
    for (a = plan->first; a < plan->first + plan->count; a++) {
        const int64_t at = (a * M_INNER + h) * M_WIDTH;
        bad += compare("mesh: du", du2 + at, DPAR_F64, du, weights, at, M_INNER / 2 * M_WIDTH);
    }
    dpar_comm_release(ep, memory);
    dpar_comm_release(ep, mine);
    (void)dpar_comm_free(etp);
    (void)dpar_comm_free(ep);
    (void)dpar_comm_free(edp);
    free(us);
    free(vs);
    free(x);
    free(g);
    free(u);
    free(v);
    free(weight);
    free(y);
    free(dx);
    free(du);
    free(y2);
    free(dx2);
    free(du2);
    free(rows);
    free(out);
    free(dout);
    free(back);
    free(kept);
    return bad;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* All tokens choose the last rank's expert, whose limit is 3 rows. All ranks get the error, and the
 * plan still works. */
static int room_case(dpar_comm *c)
{
    enum { TOKENS = 4 };
    int32_t chosen[TOKENS];
    double *x = (double *)fresh(TOKENS), *y = (double *)fresh(TOKENS), *rows = (double *)fresh(3);
    double *weight = (double *)fresh(TOKENS);
    const int last = c->rank == c->size - 1;
    char expected[120];
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_why why;
    void *memory = NULL, *mine = NULL;
    int64_t bytes = 0, each = 0, i;
    int bad = 0;
    memset(&l, 0, sizeof l);
    for (i = 0; i < TOKENS; i++) {
        chosen[i] = c->size - 1;
        weight[i] = 1.0;
        x[i] = (double)(c->rank * TOKENS + i);
        y[i] = -1.0;
    }
    bad += dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, c->size, c->size, 1, &why) != DPAR_OK;
    l.choices = 1;
    l.width = 1;
    l.max_tokens = TOKENS;
    l.max_rows = 3;
    l.type = DPAR_F64;
    bad += experts_bytes(c, &l, &bytes, &each, &why) != DPAR_OK;
    bad += plan_alloc(c, 2 * bytes, 0, &memory) != 0 || plan_alloc(c, each, 1, &mine) != 0;
    why.bytes = 0;
    bad +=
        experts_in(memory, bytes - last, c, &l, &plan, &why) != DPAR_E_ROOM || why.bytes != bytes;
    l.width = last ? 2 : 1;
    if (c->size > 1) {
        bad += experts_in(memory, 2 * bytes, c, &l, &plan, &why) != DPAR_E_MISMATCH ||
               !says_who_differs(why.text, (int)c->size, "experts: width", "1", "2");
    }
    l.width = 1;
    bad += experts_in(memory, bytes, c, &l, &plan, &why) != DPAR_OK;
    if (bad) {
        printf("room: %s\n", why.text);
        return bad;
    }
    bad += experts_route(plan, mine, each, TOKENS, chosen, NULL, &route, &why) != DPAR_E_ROOM;
    snprintf(expected, sizeof expected,
             "experts %d .. %d receive %d rows, but their limit is 3 (layer.max_rows)",
             (int)c->size - 1, (int)c->size - 1, TOKENS * (int)c->size);
    bad += strstr(why.text, expected) == NULL || route != NULL;
    /* Three tokens of the last rank only. */
    bad += experts_route(plan, mine, each, last ? 3 : 0, chosen, NULL, &route, &why) != 0;
    bad += bad || experts_dispatch(plan, route, last ? x : NULL, last ? rows : NULL) != 0;
    bad += bad || experts_combine(plan, route, last ? rows : NULL, last ? weight : NULL,
                                  last ? y : NULL, NULL) != DPAR_OK;
    for (i = 0; i < TOKENS; i++) {
        bad += y[i] != (last && i < 3 ? x[i] : -1.0);
    }
    bad += plan->received != (last ? 3 : 0) || plan->kept != plan->received || plan->dropped != 0;
    plan_release(c, plan, memory, mine);
    free(x);
    free(y);
    free(rows);
    free(weight);
    if (bad) {
        printf("room: %d wrong, %s\n", bad, why.text);
    }
    return bad;
}

#ifdef DEVICE_MEMORY
static dpar_status no_gather(void *ctx, const dpar_mem_gather *call)
{
    (void)ctx;
    (void)call;
    return DPAR_E_MEMORY;
}
#endif

/* Passes something wrong on the last rank. The other ranks get the error. */
static int refused(dpar_comm *c, int what)
{
    double x[2] = {1, 2}, rows[32], sums[9], scratch[8], logits[8] = {0};
    int32_t chosen[4] = {0, 1, 2, 3};
    const int culprit = c->rank == c->size - 1;
    dpar_comm *other = NULL;
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_router g;
    dpar_router_load load;
    dpar_why why;
    void *memory = NULL, *mine = NULL;
    int64_t bytes = 0, each = 0;
    dpar_status st = DPAR_OK;
    int bad = dpar_comm_split(c, 0, 0, &other) != DPAR_OK;
    memset(&l, 0, sizeof l);
    memset(&g, 0, sizeof g);
    why.text[0] = 0;
    if (bad) {
        return 1;
    }
    bad += dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, 4, c->size, 1, &why) != DPAR_OK;
    l.choices = 2;
    l.max_tokens = 2;
    l.width = 1;
    l.type = DPAR_F64;
    l.drop = 9;
    bad += experts_bytes(other, &l, &bytes, &each, &why) != DPAR_E_ARG;
    l.drop = DPAR_EXPERTS_DROP_POSITION;
    bad += experts_bytes(other, &l, &bytes, &each, &why) != DPAR_E_ARG; /* factor 0 */
    l.capacity_factor = 1.0;
    l.max_tokens = INT64_MAX;
    bad += experts_bytes(other, &l, &bytes, &each, &why) != DPAR_E_RANGE;
    l.max_tokens = 2;
    l.drop = what == 3 ? DPAR_EXPERTS_DROP_WEIGHT_LOCAL : DPAR_EXPERTS_DROP_POSITION;
    bad += experts_bytes(other, &l, &bytes, &each, &why) != DPAR_OK;
    bad += plan_alloc(other, bytes, 0, &memory) || plan_alloc(other, each, 1, &mine);
    bad += bad || experts_in(memory, bytes, other, &l, &plan, &why) != DPAR_OK;
    if (bad) {
        return 1;
    }
    chosen[2] = culprit && what == 0 ? 4 : culprit && what == 1 ? 3 : 2;
    if (what == 5) {
        g.experts = 4;
        g.choices = culprit ? 5 : 1;
        st = router_balance(&g, other, 2, logits, chosen, sums, &load, scratch);
    } else {
        st = experts_route(plan, mine, each, culprit && what == 2 ? 3 : 2, chosen,
                           culprit ? NULL : logits, &route, &why);
    }
    if (what == 4) {
        bad += st != DPAR_OK;
        st = experts_dispatch(plan, route, culprit ? NULL : x, rows);
    }
#ifdef DEVICE_MEMORY
    if (what >= 6) { /* its memory fails, or its table has no layers */
        dpar_mem_layers layers = *(const dpar_mem_layers *)other->mem->layers;
        dpar_mem less = *other->mem;
        layers.gather = no_gather;
        less.layers = what == 6 ? &layers : NULL;
        other->mem = culprit ? &less : other->mem;
        bad += st != DPAR_OK;
        st = experts_dispatch(plan, route, x, rows);
        other->mem = c->mem;
        bad += strstr(other->why.text, what == 6 ? "gather of its dpar_mem failed"
                                                 : "comm->mem->layers is NULL, but the operation "
                                                   "gather is needed") == NULL;
    }
#endif
    bad += st >= 0 || other->why.text[0] == 0;
    bad += culprit && st != (what == 6 ? DPAR_E_MEMORY : what == 7 ? DPAR_E_UNKNOWN : DPAR_E_ARG);
    if (bad) {
        printf("refused %d: status %d, %s\n", what, (int)st, other->why.text);
    }
    plan_release(other, plan, memory, mine);
    (void)dpar_comm_free(other);
    return bad;
}

/* Makes two plans of a layer of 4 experts and three routings: the first plan's for tokens that
 * choose experts 0 and 3 and for experts 3 and 0, the second plan's first for expert 0. Then the
 * last rank uses another routing or call than the others. */
static dpar_status quarrels(dpar_comm *other, void **block, int what)
{
    const int culprit = other->rank == other->size - 1;
    const int32_t chosen[3] = {0, 3, 0};
    double *x = (double *)block[2], *rows = (double *)block[3];
    dpar_experts_desc l;
    dpar_experts_plan *plan[2] = {NULL, NULL};
    dpar_experts_routing *route[3] = {NULL, NULL, NULL};
    dpar_why why;
    int64_t bytes = 0, each = 0;
    int32_t k;
    dpar_status st;
    memset(&l, 0, sizeof l);
    st = dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, 4, other->size, 1, &why);
    l.choices = 1;
    l.max_tokens = 2;
    l.width = 1;
    l.type = DPAR_F64;
    st = st == DPAR_OK ? experts_bytes(other, &l, &bytes, &each, &why) : st;
    st = st == DPAR_OK && bytes > 8192 ? DPAR_E_ROOM : st;
    for (k = 0; k < 2 && st == DPAR_OK; k++) {
        st = experts_in((char *)block[0] + 8192 * k, bytes, other, &l, &plan[k], &why);
    }
    for (k = 0; k < 3 && st == DPAR_OK; k++) {
        st = experts_route(plan[k / 2], (char *)block[1] + 4096 * k, each, k < 2 ? 2 : 1,
                           chosen + k % 2, NULL, &route[k], &why);
    }
    if (st != DPAR_OK || each > 4096) {
        return DPAR_OK; /* the test fails: the caller expects an error */
    }
    /* a routing of the other plan, or the other routing of the same one */
    k = !culprit ? 0 : what < 2 ? 2 : 1;
    switch (what) {
    case 0:
    case 2: return experts_dispatch(plan[k / 2], route[k], x, rows);
    case 1:
    case 3: return experts_combine(plan[k / 2], route[k], rows, x, x + 8, NULL);
    default:
        return culprit ? experts_dispatch(plan[0], route[0], x, rows)
                       : experts_dispatch_backward(plan[0], route[0], x, rows);
    }
}

/* Uses different routings or different calls on the ranks: all ranks get the error. */
static int quarrel_cases(dpar_comm *c)
{
    int what, i, bad = 0;
    for (what = 0; what < 5 && c->size > 1 && strcmp(c->engine.name, "shm") == 0; what++) {
        void *block[4] = {NULL, NULL, NULL, NULL};
        dpar_comm *other = NULL;
        dpar_status st;
        bad += dpar_comm_split(c, 0, 0, &other) != DPAR_OK;
        for (i = 0; i < 4; i++) {
            bad += dpar_comm_alloc(c, 16384, &block[i]) != DPAR_OK;
        }
        if (bad) {
            return bad;
        }
        st = quarrels(other, block, what);
        bad += st != DPAR_E_MISMATCH || other->status != DPAR_E_MISMATCH ||
               strstr(other->why.text, what < 2 ? "rows" : "tag") == NULL;
        if (bad) {
            printf("quarrel %d: status %d, %s\n", what, (int)st, other->why.text);
        }
        bad += dpar_barrier(c, NULL) != DPAR_OK; /* no rank reads this memory any more */
        (void)dpar_comm_free(other);
        for (i = 0; i < 4; i++) {
            dpar_comm_release(c, block[i]);
        }
    }
    return bad;
}

/* Kills the last rank while rows are sent: all other ranks get the error. */
static int killed(dpar_comm *c, void *arg)
{
    struct itimerval soon;
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_why why;
    void *block[5];
    int32_t chosen[256], i;
    int64_t bytes = 0, each = 0;
    dpar_status st;
    memset(&l, 0, sizeof l);
    memset(&soon, 0, sizeof soon);
    CHECK_INT(dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, 8, c->size, 1, &why), DPAR_OK);
    l.choices = 2;
    l.max_tokens = 128;
    l.width = 256;
    l.type = DPAR_F32;
    CHECK_INT(experts_bytes(c, &l, &bytes, &each, &why), DPAR_OK);
    for (i = 0; i < 5; i++) {
        CHECK_INT(dpar_comm_alloc(c, i == 0 ? bytes : i == 1 ? each : 1 << 20, &block[i]), DPAR_OK);
    }
    for (i = 0; i < 256; i++) {
        chosen[i] = (i * 5 + c->rank) % 8;
    }
    CHECK_INT(experts_in(block[0], bytes, c, &l, &plan, &why), DPAR_OK);
    st = experts_route(plan, block[1], each, 128, chosen, NULL, &route, &why);
    if (c->rank == c->size - 1) {
        soon.it_value.tv_usec = 300 + *(const int *)arg * 70;
        (void)setitimer(ITIMER_REAL, &soon, NULL); /* SIGALRM kills it wherever it is */
    }
    while (st == DPAR_OK) {
        st = experts_dispatch(plan, route, block[2], block[3]);
        st = st == DPAR_OK ? experts_combine(plan, route, block[3], block[4], block[2], NULL) : st;
    }
    return st == DPAR_E_PEER && c->why.text[0] != 0 ? 0 : 7;
}

static void kills(int n, const dpar_world_desc *o)
{
    int round;
    for (round = 0; round < 4 && n > 1 && n < 5 && !o->threads; round++) {
        dpar_why why;
        const dpar_status st = dpar_launch(n, killed, &round, o, &why);
        CHECK(st != DPAR_OK && strstr(why.text, "signal 14") != NULL);
        if (st == DPAR_OK || strstr(why.text, "signal 14") == NULL) {
            printf("%d ranks, killed: %s\n", n, why.text);
        }
    }
}

static volatile int32_t *gave_up; /* shared by the ranks */
static unsigned char *shut;       /* the second and later rows of the late rank's experts */
static size_t shut_bytes;

static void opens(int number, siginfo_t *at, void *context)
{
    int i;
    (void)number;
    (void)context;
    if ((unsigned char *)at->si_addr < shut || (unsigned char *)at->si_addr >= shut + shut_bytes) {
        _exit(9); /* any other address is an unexpected fault */
    }
    for (i = 0; i < 10000 && !*gave_up; i++) {
        usleep(1000);
    }
    if (mprotect(shut, shut_bytes, PROT_READ | PROT_WRITE) != 0) {
        _exit(8);
    }
}

/* Stops rank 0 at its second row until the other rank has timed out and has reused its routing's
 * memory. Rank 0 must get the timeout, too. */
static int late(dpar_comm *c, void *arg)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int32_t chosen[8] = {0};
    struct sigaction act;
    dpar_experts_desc l;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_why why;
    void *block[3], *rows;
    int64_t bytes = 0, each = 0;
    int32_t i;
    dpar_status st;
    (void)arg;
    memset(&l, 0, sizeof l);
    memset(&act, 0, sizeof act);
    CHECK_INT(dpar_split_init(&l.experts, DPAR_SPLIT_EVEN, 2, c->size, 1, &why), DPAR_OK);
    l.choices = 1;
    l.max_tokens = 8;
    l.width = (int64_t)page / 4;
    l.type = DPAR_F32;
    CHECK_INT(experts_bytes(c, &l, &bytes, &each, &why), DPAR_OK);
    for (i = 0; i < 3; i++) {
        const int64_t size = i == 0 ? bytes : i == 1 ? each : 8 * (int64_t)page;
        CHECK_INT(dpar_comm_alloc(c, size, &block[i]), DPAR_OK);
    }
    rows = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (experts_in(block[0], bytes, c, &l, &plan, &why) != DPAR_OK || rows == MAP_FAILED ||
        experts_route(plan, block[1], each, c->rank * 8, chosen, NULL, &route, &why) != DPAR_OK) {
        return 6;
    }
    if (c->rank == 0) {
        shut = (unsigned char *)rows + page;
        shut_bytes = 7 * page;
        act.sa_sigaction = opens;
        act.sa_flags = SA_SIGINFO;
        if (sigaction(SIGSEGV, &act, NULL) != 0 || sigaction(SIGBUS, &act, NULL) != 0 ||
            mprotect(shut, shut_bytes, PROT_NONE) != 0) {
            return 5;
        }
    }
    st = experts_dispatch(plan, route, block[2], rows);
    if (c->rank == 1) {
        memset(block[1], 0x7f, (size_t)each);
        *gave_up = 1;
    }
    return st == DPAR_E_TIMEOUT && c->why.text[0] != 0 ? 0 : 7;
}

static void gives_up(int n, const dpar_world_desc *o)
{
    dpar_world_desc soon = *o;
    dpar_why why;
    void *at;
    dpar_status st;
    if (n != 2 || o->threads) {
        return;
    }
    at = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    gave_up = (volatile int32_t *)at;
    soon.timeout_s = 1.0;
    why.text[0] = 0;
    st = dpar_launch(n, late, NULL, &soon, &why);
    CHECK_INT(st, DPAR_OK);
    if (st != DPAR_OK) {
        printf("late: %s\n", why.text);
    }
    (void)munmap(at, 64);
}

static int everything(dpar_comm *c, void *arg)
{
    const double began = now();
    int64_t bad;
    int what = 0;
    (void)arg;
    (void)what;
    bad = c->rank == 0 ? gate_cases() : 0;
    if (bad) {
        printf("gates: %d wrong\n", (int)bad);
    }
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 26);
    c = device_take(c);
    bad += table_case(c);
#else
    bad += c->size % 4 == 0 ? mesh_case(c) : 0;
#endif
    bad += cases(c) + narrow_cases(c) + where_cases(c) + turn_case(c) + room_case(c);
    bad += quarrel_cases(c);
#if defined(DEVICE_MEMORY) && !defined(DEVICE_CUDA) /* a rank fails while others continue */
    for (what = 0; what < 8; what++) {
        bad += refused(c, what);
    }
#endif
#ifdef DEVICE_MEMORY
    bad += (the_device.calls == 0) + (the_device.pieces != 0);
    c = device_return(c);
    device_end();
#endif
    return all_right(c, bad, began);
}

static int refusals(dpar_comm *c, void *arg)
{
    const int *what = (const int *)arg;
    return refused(c, *what);
}

static void also(int n, const dpar_world_desc *o)
{
    int what;
    for (what = 0; what < 6; what++) {
        on_ranks(n, " that refuse", refusals, &what, o);
    }
    kills(n, o);
    gives_up(n, o);
}

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    (void)also;
    (void)mesh_case;
    return rank_program(argc, argv, everything, NULL, 5, 2, NULL);
#else
    return rank_program(argc, argv, everything, NULL, 8, 4, also);
#endif
}
