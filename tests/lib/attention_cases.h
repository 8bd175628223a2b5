/* SPDX-License-Identifier: MIT-0 */
/* attention_cases: compares attention layers on ranks with the textbook formulas over whole arrays,
 * written out here with exp and log of libm: forward, its log-sum-exp, and gradients of queries,
 * keys and values, to 1e-12 in f64. Gradients are also compared with finite differences of the
 * ranks' own results. Bytes are counted below the engine, pairs of query and key one by one. */
#ifndef DPAR_ATTENTION_CASES_H
#define DPAR_ATTENTION_CASES_H

#include "dpar_spatial.h"
#include "rank_program.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#define free device_free
#define dpar_attention_make(c, l, p, w) (dpar_status) ON_DEVICE(dpar_attention_make(c, l, p, w))
#define dpar_attention_forward(p, a) (dpar_status) ON_DEVICE(dpar_attention_forward(p, a))
#define dpar_attention_backward(p, a) (dpar_status) ON_DEVICE(dpar_attention_backward(p, a))
#define dpar_attention_exchange(p, array, back, in, out)                                           \
    (dpar_status) ON_DEVICE(dpar_attention_exchange(p, array, back, in, out))
#define dpar_attention_free(p) (dpar_status) ON_DEVICE(dpar_attention_free(p))
#endif
#include "plan_memory.h"

enum { MOST_DOCS = 6, MOST_RANKS = 64, TENSORS = 3 };

/* A layer. Whole arrays are f64, and each rank has them. `loud` sets how large scores get. */
typedef struct test_case {
    int docs, heads, groups, width, values, type, causal, window, rule, halo, ulysses, chunked;
    const dpar_split *cut; /* split for Ulysses; NULL to cut by rule */
    double loud;
    int64_t ends[MOST_DOCS + 1];
    double *x[TENSORS], *dx[TENSORS]; /* q, k, v, out and their gradients */
    double *out, *dout, *lse;
} test_case;

/* A rank's part of a case, in the case's type. */
typedef struct part {
    int64_t tokens, *token; /* token[row]: its index in the packed sequence */
    void *x[TENSORS], *dx[TENSORS], *out, *dout, *lse;
} part;

static inline double number(uint32_t a, int64_t i)
{
    const uint32_t h = scrambled(a, i);
    return (double)(h % 2001u) / 1000.0 - 1.0;
}

static inline int lot(uint32_t *state, int n) /* 0 .. n - 1 */
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (uint32_t)n);
}

/* Allocates host memory. */
static inline void *reached(int64_t n, int64_t unit)
{
    void *a = calloc((size_t)n + 1, (size_t)unit);
    if (a == NULL) {
        exit(1);
    }
    return a;
}

static inline void reached_free(void *a)
{
    (free)(a);
}

static inline void *fresh(int64_t n, int64_t unit)
{
#ifdef DEVICE_MEMORY
    if (the_device.first != NULL) {
        return device_zeroed((n + 1) * unit);
    }
#endif
    return reached(n, unit);
}

static int64_t total(const test_case *t)
{
    return t->ends[t->docs];
}

static inline int elements(const test_case *t, int tensor) /* per token */
{
    return tensor == 0 ? t->heads * t->width : t->groups * (tensor == 1 ? t->width : t->values);
}

/* ---- the textbook ---------------------------------------------------------------------------- */

static inline int sees(const test_case *t, int64_t i, int64_t j)
{
    int d = 0;
    while (t->ends[d + 1] <= i) {
        d++;
    }
    return j >= t->ends[d] && j < t->ends[d + 1] && (!t->causal || j <= i) &&
           (t->window == 0 || (j - i <= t->window && i - j <= t->window));
}

static inline double dot(const double *a, const double *b, int n)
{
    double sum = 0.0;
    int d;
    for (d = 0; d < n; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

/* Computes one query of one head: out, lse, and its contributions to the gradients. */
static inline void textbook_row(test_case *t, int64_t i, int h, double *p)
{
    const int g = h / (t->heads / t->groups), w = t->width, n = t->values;
    const double scale = 1.0 / sqrt((double)w), *q = t->x[0] + (i * t->heads + h) * w;
    double *out = t->out + (i * t->heads + h) * n, *dout = t->dout + (i * t->heads + h) * n;
    double most = -1e300, sum = 0.0, delta;
    int64_t j;
    int d;
    for (j = 0; j < total(t); j++) {
        p[j] = sees(t, i, j) ? scale * dot(q, t->x[1] + (j * t->groups + g) * w, w) : -1e300;
        most = p[j] > most ? p[j] : most;
    }
    for (j = 0; j < total(t); j++) {
        p[j] = sees(t, i, j) ? exp(p[j] - most) : 0.0;
        sum += p[j];
    }
    t->lse[i * t->heads + h] = most + log(sum);
    for (j = 0; j < total(t); j++) {
        p[j] /= sum;
        for (d = 0; d < n; d++) {
            out[d] += p[j] * t->x[2][(j * t->groups + g) * n + d];
        }
    }
    delta = dot(out, dout, n);
    for (j = 0; j < total(t); j++) {
        const double *k = t->x[1] + (j * t->groups + g) * w, *v = t->x[2] + (j * t->groups + g) * n;
        const double ds = p[j] * (dot(dout, v, n) - delta) * scale;
        for (d = 0; d < w; d++) {
            t->dx[0][(i * t->heads + h) * w + d] += ds * k[d];
            t->dx[1][(j * t->groups + g) * w + d] += ds * q[d];
        }
        for (d = 0; d < n; d++) {
            t->dx[2][(j * t->groups + g) * n + d] += p[j] * dout[d];
        }
    }
}

/* Rounds to the type, so that ranks and textbook begin with the same numbers. */
static inline double rounded(int type, double v)
{
    uint64_t room = 0;
    float_put(&room, 0, type, v);
    return float_get(&room, 0, type);
}

static inline void textbook(test_case *t, uint32_t seed)
{
    double *p = (double *)fresh(total(t), 8);
    int64_t i;
    int k, h;
    for (k = 0; k < TENSORS; k++) {
        t->x[k] = (double *)fresh(total(t) * elements(t, k), 8);
        t->dx[k] = (double *)fresh(total(t) * elements(t, k), 8);
        for (i = 0; i < total(t) * elements(t, k); i++) {
            t->x[k][i] = rounded(t->type, number(seed + (uint32_t)k, i) * (k == 0 ? t->loud : 1.0));
        }
    }
    t->out = (double *)fresh(total(t) * t->heads * t->values, 8);
    t->dout = (double *)fresh(total(t) * t->heads * t->values, 8);
    t->lse = (double *)fresh(total(t) * t->heads, 8);
    for (i = 0; i < total(t) * t->heads * t->values; i++) {
        t->dout[i] = rounded(t->type, number(seed + 7, i));
    }
    for (i = 0; i < total(t); i++) {
        for (h = 0; h < t->heads; h++) {
            textbook_row(t, i, h, p);
        }
    }
    free(p);
}

static inline void textbook_free(test_case *t)
{
    int k;
    for (k = 0; k < TENSORS; k++) {
        free(t->x[k]);
        free(t->dx[k]);
    }
    free(t->out);
    free(t->dout);
    free(t->lse);
}

/* ---- the part of a rank ---------------------------------------------------------------------- */

static inline int type_bytes(int type)
{
    return type == DPAR_F64 ? 8 : type == DPAR_F32 ? 4 : 2;
}

static inline int sums(int type)
{
    return type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

static inline void scatter(const test_case *t, const part *p, int each, const double *from, void *to)
{
    int64_t i;
    int e;
    for (i = 0; i < p->tokens; i++) {
        for (e = 0; e < each; e++) {
            float_put(to, i * each + e, t->type, from[p->token[i] * each + e]);
        }
    }
}

static inline void part_arrays(const test_case *t, part *p)
{
    const int each = t->heads * t->values;
    int k;
    for (k = 0; k < TENSORS; k++) {
        p->x[k] = fresh(p->tokens * elements(t, k), type_bytes(t->type));
        p->dx[k] = fresh(p->tokens * elements(t, k), type_bytes(t->type));
        scatter(t, p, elements(t, k), t->x[k], p->x[k]);
    }
    p->out = fresh(p->tokens * each, type_bytes(t->type));
    p->dout = fresh(p->tokens * each, type_bytes(t->type));
    p->lse = fresh(p->tokens * t->heads, type_bytes(sums(t->type)));
    scatter(t, p, each, t->dout, p->dout);
}

/* Sets a rank's tokens of a packed layer, in the order of the documents. */
static inline void part_packed(const test_case *t, const dpar_packed *packed, int rank, part *p)
{
    dpar_packed_cursor cursor;
    int64_t first, count, i;
    int32_t doc;
    memset(&cursor, 0, sizeof cursor);
    memset(p, 0, sizeof *p);
    p->token = (int64_t *)fresh(total(t), 8);
    while (dpar_packed_next(packed, rank, &cursor, &doc, &first, &count)) {
        for (i = 0; i < count; i++) {
            p->token[p->tokens++] = first + i;
        }
    }
}

static inline void part_split(const test_case *t, const dpar_split *split, int rank, part *p)
{
    int64_t local = 0, i;
    memset(p, 0, sizeof *p);
    p->token = (int64_t *)fresh(total(t), 8);
    while ((i = dpar_split_global(split, rank, local++, NULL)) >= 0) {
        p->token[p->tokens++] = i;
    }
}

/* Sets a rank's tokens of a layer. */
static inline void part_of(const test_case *t, const dpar_attention_desc *layer, int rank, part *p)
{
    dpar_split s;
    if (!t->halo && !t->ulysses) {
        part_packed(t, &layer->tokens, rank, p);
    } else if (t->cut != NULL) {
        part_split(t, t->cut, rank, p);
    } else {
        (void)dpar_split_init(&s, t->rule, total(t), layer->tokens.ranks, 1, NULL);
        part_split(t, &s, rank, p);
    }
}

static inline void part_free(part *p)
{
    int k;
    for (k = 0; k < TENSORS; k++) {
        free(p->x[k]);
        free(p->dx[k]);
    }
    free(p->out);
    free(p->dout);
    free(p->lse);
    free(p->token);
}

/* Returns the largest difference from the textbook, relative for numbers above 1; 1e9 for NaN. */
static inline double difference(const test_case *t, const part *p, int each, const double *whole,
                         const void *got, int type)
{
    double most = 0.0;
    int64_t i;
    int e;
    for (i = 0; i < p->tokens; i++) {
        for (e = 0; e < each; e++) {
            const double want = whole[p->token[i] * each + e],
                         have = float_get(got, i * each + e, type);
            const double d = fabs(have - want) / (fabs(want) > 1.0 ? fabs(want) : 1.0);
            most = d > most ? d : d <= most ? most : 1e9;
        }
    }
    (void)t;
    return most;
}

/* ---- counts of the engine -------------------------------------------------------------------- */

/* Ranks may be threads, so each has its own slot. */
static dpar_status (*engine_batch[MOST_RANKS])(dpar_comm *c, const dpar_call *calls, int32_t n,
                                               dpar_work *works);
static int64_t engine_sent[MOST_RANKS];

static inline dpar_status counting_batch(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        engine_sent[c->rank] +=
            calls[i].kind == DPAR_CALL_SEND ? calls[i].count * dpar_type_bytes(calls[i].type) : 0;
    }
    return engine_batch[c->rank](c, calls, n, works);
}

static dpar_status (*engine_run[MOST_RANKS])(dpar_comm *c, const dpar_call *call);

static inline dpar_status counting_run(dpar_comm *c, const dpar_call *call)
{
    int32_t r;
    for (r = 0; r < c->size && call->kind == DPAR_CALL_ALL_TO_ALL; r++) {
        engine_sent[c->rank] += r != c->rank ? call->in_count[r] * dpar_type_bytes(call->type) : 0;
    }
    return engine_run[c->rank](c, call);
}

/* ---- ring attention -------------------------------------------------------------------------- */

/* A user's kernel for bf16: widens the block and calls the plain kernel. */
static inline void widen(const void *from, int64_t n, float *to)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        to[i] = (float)float_get(from, i, DPAR_BF16);
    }
}

static inline void wide_kernel(const dpar_attention_call *call)
{
    const dpar_attention_desc *a = call->layer;
    const int64_t q = call->queries * a->heads, k = call->keys * a->groups;
    float *x = (float *)reached(q * a->width, 4), *y = (float *)reached(k * a->width, 4);
    float *z = (float *)reached(k * a->value_width, 4),
          *d = (float *)reached(q * a->value_width, 4);
    dpar_attention_desc wide = *a;
    dpar_attention_call inner = *call;
    wide.type = DPAR_F32;
    inner.layer = &wide;
    widen(call->q, q * a->width, x);
    widen(call->k, k * a->width, y);
    widen(call->v, k * a->value_width, z);
    inner.q = x;
    inner.k = y;
    inner.v = z;
    if (call->out_gradient != NULL) {
        widen(call->out_gradient, q * a->value_width, d);
        inner.out_gradient = d;
    }
    dpar_attention_host(&inner);
    free(x);
    free(y);
    free(z);
    free(d);
}

/* Counts pairs one by one and checks the sizes that a block reports. */
typedef struct witness {
    const test_case *t;
    int64_t pairs;
    int wrong;
} witness;

static inline void watching_kernel(const dpar_attention_call *call)
{
    witness *w = (witness *)call->user;
    int64_t i, j, lo, hi;
    for (i = 0; i < call->queries; i++) {
        lo = i + call->low < 0 ? 0 : i + call->low < call->keys ? i + call->low : call->keys;
        hi = i + call->high + 1 < call->keys ? i + call->high + 1 : call->keys;
        hi = hi > lo ? hi : lo;
        w->pairs += hi - lo;
        w->wrong += lo < 0 || hi > call->keys || lo > hi;
        for (j = 0; j < call->keys; j++) {
            w->wrong +=
                sees(w->t, call->first_query + i, call->first_key + j) != (j >= lo && j < hi);
        }
    }
    if (w->t->type == DPAR_BF16) {
        wide_kernel(call);
    } else {
        dpar_attention_host(call);
    }
}

#ifdef DEVICE_MEMORY
static inline void attend_later(void *at)
{
    dpar_attention_call *call = (dpar_attention_call *)at;
    DEVICE_THERE(call->q, const void);
    DEVICE_THERE(call->k, const void);
    DEVICE_THERE(call->v, const void);
    DEVICE_THERE(call->out, void);
    DEVICE_THERE(call->lse, void);
    DEVICE_THERE(call->out_gradient, const void);
    DEVICE_THERE(call->delta, const void);
    DEVICE_THERE(call->q_gradient, void);
    DEVICE_THERE(call->k_gradient, void);
    DEVICE_THERE(call->v_gradient, void);
    if (call->out_gradient == NULL) {
        watching_kernel(call);
    } else if (call->layer->type == DPAR_BF16) {
        wide_kernel(call);
    } else {
        dpar_attention_host(call);
    }
}

static inline void queueing_kernel(const dpar_attention_call *call)
{
    device_later(attend_later, call, sizeof *call);
}
#endif

static inline void describe(const test_case *t, int ranks, witness *w, dpar_attention_desc *layer)
{
    memset(layer, 0, sizeof *layer);
    layer->method = t->halo ? dpar_attention_halo : t->ulysses ? dpar_attention_ulysses : NULL;
    layer->token_split = t->cut;
    layer->heads_chunked = t->chunked;
    layer->tokens.docs = t->docs;
    layer->tokens.ends = t->ends;
    layer->tokens.ranks = ranks;
    layer->tokens.rule = t->rule;
    layer->heads = t->heads;
    layer->groups = t->groups;
    layer->width = t->width;
    layer->value_width = t->values;
    layer->type = t->type;
    layer->causal = t->causal;
    layer->window = t->window;
    layer->forward = watching_kernel;
    layer->backward = t->type == DPAR_BF16 ? wide_kernel : NULL;
#ifdef DEVICE_MEMORY
    layer->forward = layer->backward = queueing_kernel;
#endif
    layer->user = w;
}

static inline void arrays_of(const part *p, dpar_attention_arrays *a)
{
    memset(a, 0, sizeof *a);
    a->q = p->x[0];
    a->k = p->x[1];
    a->v = p->x[2];
    a->out = p->out;
    a->lse = p->lse;
    a->out_gradient = p->dout;
    a->q_gradient = p->dx[0];
    a->k_gradient = p->dx[1];
    a->v_gradient = p->dx[2];
}

static inline double tolerance(const test_case *t)
{
    return t->type == DPAR_F64 ? 1e-12 : t->type == DPAR_F32 ? 2e-5 * t->loud : 2e-2 * t->loud;
}

/* Compares all arrays of a part with the textbook. Returns how many differ. */
static inline int judge(const test_case *t, const part *p, const char *what, int rank, int ranks)
{
    double d[5];
    int k, bad = 0;
    d[0] = difference(t, p, t->heads * t->values, t->out, p->out, t->type);
    d[1] = difference(t, p, t->heads, t->lse, p->lse, sums(t->type));
    for (k = 0; k < TENSORS; k++) {
        d[2 + k] = difference(t, p, elements(t, k), t->dx[k], p->dx[k], t->type);
    }
    for (k = 0; k < 5; k++) {
        bad += !(d[k] <= tolerance(t));
    }
    if (bad > 0) {
        printf(
            "%s, rank %d of %d: %d documents, %d tokens, rule %d, %d/%d heads of %d and %d, type "
            "%d, causal %d, window %d: off by %.2g out, %.2g lse, %.2g dq, %.2g dk, %.2g dv\n",
            what, rank, ranks, t->docs, (int)total(t), t->rule, t->heads, t->groups, t->width,
            t->values, t->type, t->causal, t->window, d[0], d[1], d[2], d[3], d[4]);
    }
    return bad;
}

/* Returns the sum of out . dout over all ranks, which finite differences are computed of. */
static inline double loss(dpar_comm *c, dpar_attention_plan *plan, const dpar_attention_arrays *a,
                   const test_case *t, const part *p)
{
    double sum = 0.0, all = 0.0;
    int64_t i;
    if (dpar_attention_forward(plan, a) != DPAR_OK) {
        return 1e300;
    }
    for (i = 0; i < p->tokens * t->heads * t->values; i++) {
        sum += float_get(p->out, i, t->type) * float_get(p->dout, i, t->type);
    }
    (void)dpar_all_reduce(c, &sum, &all, 1, DPAR_F64, DPAR_SUM, NULL);
    return all;
}

/* Changes some elements of each input on the rank that has them. Only for f64. */
static inline int differences(dpar_comm *c, dpar_attention_plan *plan, const dpar_attention_arrays *a,
                       const test_case *t, const part *p)
{
    const double step = 1e-4;
    int k, n, bad = 0;
    for (k = 0; k < TENSORS; k++) {
        for (n = 0; n < 2; n++) {
            const int each = elements(t, k);
            const int64_t at = (total(t) * each - 1) * (2 * n + 1) / 3;
            const double g = t->dx[k][at];
            double *mine = NULL, up, down, was = 0.0;
            int64_t i;
            for (i = 0; i < p->tokens; i++) {
                mine = p->token[i] == at / each ? (double *)p->x[k] + i * each + at % each : mine;
            }
            was = mine != NULL ? *mine : 0.0;
            if (mine != NULL) {
                *mine = was + step;
            }
            up = loss(c, plan, a, t, p);
            if (mine != NULL) {
                *mine = was - step;
            }
            down = loss(c, plan, a, t, p);
            if (mine != NULL) {
                *mine = was;
            }
            if (!(fabs((up - down) / (2.0 * step) - g) <= 1e-6 * t->loud * t->loud * t->loud)) {
                printf("rank %d of %d: tensor %d, element %d: gradient %.9g, by differences %.9g\n",
                       (int)c->rank, (int)c->size, k, (int)at, g, (up - down) / (2.0 * step));
                bad++;
            }
        }
    }
    return bad;
}

/* Returns the number of pairs between two ranks, counted one by one. */
static int64_t pairs_between(const test_case *t, const dpar_attention_desc *layer, int rank,
                             int from)
{
    part q, k;
    int64_t i, j, pairs = 0;
    part_of(t, layer, rank, &q);
    part_of(t, layer, from, &k);
    for (i = 0; i < q.tokens; i++) {
        for (j = 0; j < k.tokens; j++) {
            pairs += sees(t, q.token[i], k.token[j]);
        }
    }
    free(q.token);
    free(k.token);
    return pairs;
}

/* Returns the bytes of the halo method. Forward sends keys at most a window before the first token
 * of another rank (or after its last one), counted one by one. Backward sends them again, and the
 * gradients of those that this rank received. */
static int64_t halo_bytes(const dpar_comm *c, const test_case *t, const dpar_attention_desc *layer)
{
    const int64_t each = t->groups * (t->width + t->values);
    int64_t bytes = 0, i;
    part mine, p;
    int rank;
    part_of(t, layer, c->rank, &mine);
    for (rank = 0; rank < c->size; rank++) {
        const part *owner = rank == c->rank ? NULL : &mine;
        part_of(t, layer, rank, &p);
        for (i = 0; i < total(t) && p.tokens > 0; i++) {
            const int64_t first = p.token[0], last = p.token[p.tokens - 1];
            const int beside = (i < first && first - i <= t->window) ||
                               (!t->causal && i > last && i - last <= t->window);
            if (owner == NULL) {
                bytes += beside ? each * type_bytes(sums(t->type)) : 0;
            } else if (owner->tokens > 0 && i >= owner->token[0] &&
                       i <= owner->token[owner->tokens - 1]) {
                bytes += beside ? 2 * each * type_bytes(t->type) : 0;
            }
        }
        free(p.token);
    }
    free(mine.token);
    return bytes;
}

/* Returns the bytes that the headers document for the ring and for Ulysses. */
static int64_t foretold(const dpar_comm *c, const test_case *t, const dpar_attention_desc *layer,
                        int back)
{
    const int64_t type = type_bytes(t->type), each = t->groups * (t->width + t->values);
    int64_t held[2] = {0, 0}, mine, next, all = total(t), there, here;
    dpar_heads_share s;
    dpar_heads h;
    part p;
    int32_t r;
    part_of(t, layer, c->rank, &p);
    mine = p.tokens;
    free(p.token);
    part_of(t, layer, (c->rank + 1) % c->size, &p);
    next = p.tokens;
    free(p.token);
    if (!t->ulysses) {
        return c->size == 1 ? 0
                            : each * ((all - next) * type +
                                      (back ? (all - mine) * type_bytes(sums(t->type)) : 0));
    }
    (void)dpar_heads_init(&h, t->heads, t->groups, c->size,
                          t->chunked ? DPAR_SPLIT_CHUNK : DPAR_SPLIT_EVEN, NULL);
    for (r = 0; r < c->size; r++) {
        held[0] += dpar_heads_local(&h, r).queries;
        held[1] += dpar_heads_local(&h, r).groups;
    }
    s = dpar_heads_local(&h, c->rank);
    there = (held[0] - s.queries) * mine * t->width +
            (held[1] - s.groups) * mine * (t->width + t->values);
    here = s.queries * (all - mine) * t->width + s.groups * (all - mine) * (t->width + t->values);
    return type * (back ? here + (held[0] - s.queries) * mine * t->values
                        : there + s.queries * (all - mine) * t->values);
}

/* Returns 1 unless bytes and pairs are as documented. */
static inline int accounts(dpar_comm *c, const test_case *t, const dpar_attention_desc *layer,
                    const dpar_attention_plan *plan, const witness *w, const int64_t *sent)
{
    int64_t pairs = 0;
    int from, rank, bad = w->wrong != 0;
    for (rank = 0; rank < c->size; rank++) {
        for (from = 0; from < c->size && (rank == c->rank || t->ulysses); from++) {
            pairs += pairs_between(t, layer, rank, from);
        }
    }
    pairs = t->ulysses && w->pairs == 0 ? 0 : pairs; /* a rank without heads */
    bad += w->pairs != pairs || plan->pairs != pairs;
    bad += !t->ulysses && t->causal && t->window == 0 &&
           pairs != dpar_packed_pairs(&layer->tokens, c->rank);
    bad += t->halo ? halo_bytes(c, t, layer) != sent[0] + sent[1]
                   : sent[0] != foretold(c, t, layer, 0) || sent[1] != foretold(c, t, layer, 1);
    bad += plan->sent_bytes != sent[0] + sent[1];
    if (bad > 0) {
        printf("rank %d of %d: %d things are not as foretold: pairs %d %d %d, bytes %d %d, %d %d\n",
               (int)c->rank, (int)c->size, bad, (int)pairs, (int)w->pairs, (int)plan->pairs,
               (int)sent[0], (int)foretold(c, t, layer, 0), (int)sent[1],
               (int)foretold(c, t, layer, 1));
    }
    return bad;
}

/* Allocates memory of a plan, each second time registered. */
static inline void *plan_memory(dpar_comm *c, int64_t bytes, int registered)
{
    void *memory = NULL;
#ifdef DEVICE_MEMORY
    registered = 0; /* registered memory is device memory */
#endif
    if (registered) {
        return dpar_comm_alloc(c, bytes, &memory) == DPAR_OK ? memory : NULL;
    }
    return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
}

static inline void plan_release(dpar_comm *c, void *memory, int registered)
{
#ifdef DEVICE_MEMORY
    registered = 0;
#endif
    if (registered) {
        dpar_comm_release(c, memory);
    } else {
        free(memory);
    }
}

/* Allocates memory of the kind that the arrays are in. */
static inline void *kept_memory(dpar_comm *c, int64_t bytes, int registered)
{
#ifdef DEVICE_MEMORY
    (void)c;
    (void)registered;
    return fresh(bytes, 1);
#else
    return plan_memory(c, bytes + 64, registered);
#endif
}

static inline void kept_release(dpar_comm *c, void *memory, int registered)
{
#ifdef DEVICE_MEMORY
    (void)c;
    (void)registered;
    free(memory);
#else
    plan_release(c, memory, registered);
#endif
}

/* Sets the lse of a part to that of the textbook. */
static inline void float_scatter(const test_case *t, const part *p)
{
    int64_t i;
    int h;
    for (i = 0; i < p->tokens; i++) {
        for (h = 0; h < t->heads; h++) {
            float_put(p->lse, i * t->heads + h, sums(t->type), t->lse[p->token[i] * t->heads + h]);
        }
    }
}

/* Runs one layer forward and backward, twice (a plan can run many layers), then by differences. */
static inline int layer_case(dpar_comm *c, test_case *t, uint32_t seed, int differ)
{
    dpar_attention_desc layer;
    dpar_attention_plan *plan = NULL;
    dpar_attention_arrays a;
    dpar_why why;
    witness w;
    part p;
    int64_t bytes = 0, sent[2], counted;
    void *memory = NULL;
    int bad = 0;
    memset(&w, 0, sizeof w);
    w.t = t;
    why.text[0] = 0;
    describe(t, c->size, &w, &layer);
    if (attention_bytes(c, &layer, &bytes, &why) != DPAR_OK ||
        (memory = plan_memory(c, bytes, seed % 2 == 0)) == NULL ||
        attention_in(memory, bytes, c, &layer, &plan, &why) != DPAR_OK) {
        printf("rank %d: %s\n", (int)c->rank, why.text);
        return 1;
    }
    textbook(t, seed);
    part_of(t, &layer, c->rank, &p);
    part_arrays(t, &p);
    arrays_of(&p, &a);
    bad += plan->tokens != p.tokens || (plan->saved_bytes > 0 && !t->ulysses);
    if (t->ulysses) { /* lse stays with the heads */
        float_scatter(t, &p);
        a.lse = NULL;
        a.saved = kept_memory(c, plan->saved_bytes, seed % 2 == 0);
    }
    engine_batch[c->rank] = c->engine.batch;
    c->engine.batch = counting_batch;
    engine_sent[c->rank] = 0;
    counted = c->sent[DPAR_CALL_ALL_TO_ALL];
    bad += dpar_attention_forward(plan, &a) != DPAR_OK;
    sent[0] = t->halo || t->ulysses ? plan->sent_bytes : engine_sent[c->rank];
    bad += dpar_attention_backward(plan, &a) != DPAR_OK;
    sent[1] = (t->halo || t->ulysses ? plan->sent_bytes : engine_sent[c->rank]) - sent[0];
    c->engine.batch = engine_batch[c->rank];
    bad += t->ulysses && c->sent[DPAR_CALL_ALL_TO_ALL] - counted != plan->sent_bytes;
    bad += judge(t, &p, t->halo ? "halo" : t->ulysses ? "ulysses" : "ring", c->rank, c->size);
    bad += accounts(c, t, &layer, plan, &w, sent);
    if (differ && t->type == DPAR_F64 && total(t) > 0) {
        bad += differences(c, plan, &a, t, &p);
        bad += dpar_attention_forward(plan, &a) != DPAR_OK;
        bad += dpar_attention_backward(plan, &a) != DPAR_OK;
        bad += judge(t, &p, "again", c->rank, c->size);
    }
    bad += dpar_attention_free(plan) != DPAR_OK;
    if (t->ulysses) {
        kept_release(c, a.saved, seed % 2 == 0);
    }
    part_free(&p);
    textbook_free(t);
    plan_release(c, memory, seed % 2 == 0);
    return bad;
}

static inline test_case plain(int tokens)
{
    test_case t;
    memset(&t, 0, sizeof t);
    t.docs = 1;
    t.ends[1] = tokens;
    t.heads = t.groups = 2;
    t.width = 4;
    t.values = 4;
    t.causal = 1;
    t.rule = DPAR_SPLIT_ZIGZAG;
    t.loud = 2.0;
    t.type = DPAR_F64;
    return t;
}

static inline test_case by_lot(uint32_t *state)
{
    static const int rules[] = {DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_CHUNK,
                                DPAR_SPLIT_EVEN, DPAR_SPLIT_CYCLIC};
    test_case t;
    int d;
    memset(&t, 0, sizeof t);
    t.docs = 1 + lot(state, 3) * lot(state, 3);
    for (d = 0; d < t.docs; d++) {
        t.ends[d + 1] = t.ends[d] + lot(state, t.docs == 1 ? 40 : 17);
    }
    t.ends[t.docs] += total(&t) == 0;
    t.groups = 1 + lot(state, 3);
    t.heads = t.groups * (1 + lot(state, 3));
    t.width = 1 + lot(state, 5);
    t.values = lot(state, 2) ? t.width : 1 + lot(state, 5);
    t.causal = lot(state, 3) > 0;
    t.window = lot(state, 3) == 0 ? 1 + lot(state, 12) : 0;
    t.rule = rules[lot(state, 5)];
    t.type = lot(state, 6) > 1 ? DPAR_F64 : lot(state, 2) ? DPAR_F32 : DPAR_BF16;
    t.loud = lot(state, 4) == 0 && t.type == DPAR_F64 ? 300.0 : 2.0;
    return t;
}

#endif
