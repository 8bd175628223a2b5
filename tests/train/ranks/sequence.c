/* SPDX-License-Identifier: MIT-0 */
/* sequence: attention on real ranks against the textbook over whole arrays, written out in this
 * file with exp and log of libm: forward, its log-sum-exp, gradients of queries, keys and values to
 * 1e-12 in f64; gradients also against finite differences of what the ranks computed. Ring,
 * Ulysses and halo form. Ulysses: what arrives bit by bit, too. Bytes are counted under the
 * engine, pairs of query and key one by one.
 *
 *   sequence [processes|threads] [ranks]     without arguments: processes 1 to 8, threads 1 to 4
 *   sequence long [ranks]                    more layers by lot
 *   mpirun -np 4 sequence                    built with -DUSE_MPI */
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

/* A layer. Whole arrays are f64 and every rank has them; `loud`: how large scores get. */
typedef struct test_case {
    int docs, heads, groups, width, values, type, causal, window, rule, halo, ulysses, chunked;
    const dpar_split *cut; /* of Ulysses; NULL: by rule */
    double loud;
    int64_t ends[MOST_DOCS + 1];
    double *x[TENSORS], *dx[TENSORS]; /* q, k, v and their gradients */
    double *out, *dout, *lse;
} test_case;

/* What a rank has of a case, in the case's type. */
typedef struct part {
    int64_t tokens, *token; /* token[row] in the packed sequence */
    void *x[TENSORS], *dx[TENSORS], *out, *dout, *lse;
} part;

static double number(uint32_t a, int64_t i)
{
    const uint32_t h = scrambled(a, i);
    return (double)(h % 2001u) / 1000.0 - 1.0;
}

static int lot(uint32_t *state, int n) /* 0 .. n - 1 */
{
    *state = *state * 1664525u + 1013904223u;
    return (int)((*state >> 8) % (uint32_t)n);
}

/* The host's. */
static void *reached(int64_t n, int64_t unit)
{
    void *a = calloc((size_t)n + 1, (size_t)unit);
    if (a == NULL) {
        exit(1);
    }
    return a;
}

static void reached_free(void *a)
{
    (free)(a);
}

static void *fresh(int64_t n, int64_t unit)
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

static int elements(const test_case *t, int tensor) /* of a token */
{
    return tensor == 0 ? t->heads * t->width : t->groups * (tensor == 1 ? t->width : t->values);
}

/* ---- the textbook ---------------------------------------------------------------------------- */

static int sees(const test_case *t, int64_t i, int64_t j)
{
    int d = 0;
    while (t->ends[d + 1] <= i) {
        d++;
    }
    return j >= t->ends[d] && j < t->ends[d + 1] && (!t->causal || j <= i) &&
           (t->window == 0 || (j - i <= t->window && i - j <= t->window));
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0.0;
    int d;
    for (d = 0; d < n; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

/* One query of one head: out, lse and what it gives to the gradients. */
static void textbook_row(test_case *t, int64_t i, int h, double *p)
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

/* Numbers are rounded to the type first, so that ranks and textbook begin with the same. */
static double rounded(int type, double v)
{
    uint64_t room = 0;
    float_put(&room, 0, type, v);
    return float_get(&room, 0, type);
}

static void textbook(test_case *t, uint32_t seed)
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

static void textbook_free(test_case *t)
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

/* ---- what a rank has ------------------------------------------------------------------------- */

static int type_bytes(int type)
{
    return type == DPAR_F64 ? 8 : type == DPAR_F32 ? 4 : 2;
}

static int sums(int type)
{
    return type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

static void scatter(const test_case *t, const part *p, int each, const double *from, void *to)
{
    int64_t i;
    int e;
    for (i = 0; i < p->tokens; i++) {
        for (e = 0; e < each; e++) {
            float_put(to, i * each + e, t->type, from[p->token[i] * each + e]);
        }
    }
}

static void part_arrays(const test_case *t, part *p)
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

/* A rank's tokens of a packed layer, in the order of the documents. */
static void part_packed(const test_case *t, const dpar_packed *packed, int rank, part *p)
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

static void part_split(const test_case *t, const dpar_split *split, int rank, part *p)
{
    int64_t local = 0, i;
    memset(p, 0, sizeof *p);
    p->token = (int64_t *)fresh(total(t), 8);
    while ((i = dpar_split_global(split, rank, local++, NULL)) >= 0) {
        p->token[p->tokens++] = i;
    }
}

/* A rank's tokens in a layer. */
static void part_of(const test_case *t, const dpar_attention_desc *layer, int rank, part *p)
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

static void part_free(part *p)
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

/* The largest difference from the textbook, relative to numbers of 1 and larger ones. NaN: 1e9. */
static double difference(const test_case *t, const part *p, int each, const double *whole,
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

/* ---- what goes through the engine ------------------------------------------------------------ */

/* Ranks may be threads: one slot each. */
static dpar_status (*engine_batch[MOST_RANKS])(dpar_comm *c, const dpar_call *calls, int32_t n,
                                               dpar_work *works);
static int64_t engine_sent[MOST_RANKS];

static dpar_status counting_batch(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        engine_sent[c->rank] +=
            calls[i].kind == DPAR_CALL_SEND ? calls[i].count * dpar_type_bytes(calls[i].type) : 0;
    }
    return engine_batch[c->rank](c, calls, n, works);
}

static dpar_status (*engine_run[MOST_RANKS])(dpar_comm *c, const dpar_call *call);

static dpar_status counting_run(dpar_comm *c, const dpar_call *call)
{
    int32_t r;
    for (r = 0; r < c->size && call->kind == DPAR_CALL_ALL_TO_ALL; r++) {
        engine_sent[c->rank] += r != c->rank ? call->in_count[r] * dpar_type_bytes(call->type) : 0;
    }
    return engine_run[c->rank](c, call);
}

/* ---- ring attention -------------------------------------------------------------------------- */

/* A user's kernel of bf16: widens the block and calls the plain one. */
static void widen(const void *from, int64_t n, float *to)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        to[i] = (float)float_get(from, i, DPAR_BF16);
    }
}

static void wide_kernel(const dpar_attention_call *call)
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

/* Counts pairs one by one, checks what a block says of itself. */
typedef struct witness {
    const test_case *t;
    int64_t pairs;
    int wrong;
} witness;

static void watching_kernel(const dpar_attention_call *call)
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
static void attend_later(void *at)
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

static void queueing_kernel(const dpar_attention_call *call)
{
    device_later(attend_later, call, sizeof *call);
}
#endif

static void describe(const test_case *t, int ranks, witness *w, dpar_attention_desc *layer)
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

static void arrays_of(const part *p, dpar_attention_arrays *a)
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

static double tolerance(const test_case *t)
{
    return t->type == DPAR_F64 ? 1e-12 : t->type == DPAR_F32 ? 2e-5 * t->loud : 2e-2 * t->loud;
}

/* Everything of a part against the textbook; how many of its arrays differ. */
static int judge(const test_case *t, const part *p, const char *what, int rank, int ranks)
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

/* The sum of out . dout over all ranks: what finite differences are taken of. */
static double loss(dpar_comm *c, dpar_attention_plan *plan, const dpar_attention_arrays *a,
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

/* Some elements of each input are moved on the rank that has them. f64 alone. */
static int differences(dpar_comm *c, dpar_attention_plan *plan, const dpar_attention_arrays *a,
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

/* Pairs between two ranks, one by one. */
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

/* Forward and backward of the halo form: keys that lie at most a window before the first token of
 * another rank (or behind its last one), one by one; backward the same again, and the gradients of
 * those that this rank has beside its own. */
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

/* As the headers say: of the ring and of Ulysses. */
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

/* Bytes and pairs as foretold? */
static int accounts(dpar_comm *c, const test_case *t, const dpar_attention_desc *layer,
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

/* Memory of a plan, every second time registered. */
static void *plan_memory(dpar_comm *c, int64_t bytes, int registered)
{
    void *memory = NULL;
#ifdef DEVICE_MEMORY
    registered = 0; /* what is registered is the device's */
#endif
    if (registered) {
        return dpar_comm_alloc(c, bytes, &memory) == DPAR_OK ? memory : NULL;
    }
    return aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
}

static void plan_release(dpar_comm *c, void *memory, int registered)
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

/* Where the arrays are. */
static void *kept_memory(dpar_comm *c, int64_t bytes, int registered)
{
#ifdef DEVICE_MEMORY
    (void)c;
    (void)registered;
    return fresh(bytes, 1);
#else
    return plan_memory(c, bytes + 64, registered);
#endif
}

static void kept_release(dpar_comm *c, void *memory, int registered)
{
#ifdef DEVICE_MEMORY
    (void)c;
    (void)registered;
    free(memory);
#else
    plan_release(c, memory, registered);
#endif
}

/* The lse of a part as the textbook has it. */
static void float_scatter(const test_case *t, const part *p)
{
    int64_t i;
    int h;
    for (i = 0; i < p->tokens; i++) {
        for (h = 0; h < t->heads; h++) {
            float_put(p->lse, i * t->heads + h, sums(t->type), t->lse[p->token[i] * t->heads + h]);
        }
    }
}

/* One layer: forward, backward, twice (a plan does all layers), then by differences. */
static int layer_case(dpar_comm *c, test_case *t, uint32_t seed, int differ)
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
    if (t->ulysses) { /* it stays with the heads */
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

static test_case plain(int tokens)
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

static test_case by_lot(uint32_t *state)
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

/* What each shape must get right, on any number of ranks. */
static int ring_cases(dpar_comm *c, int rounds)
{
    static const int lengths[] = {1, 3, 16, 37};
    uint32_t state = 2024;
    test_case t;
    int n, bad = 0;
    for (n = 0; n < 4; n++) {
        t = plain(lengths[n]);
        bad += layer_case(c, &t, 100 + (uint32_t)n, n > 1);
        t.causal = 0;
        t.groups = 1;
        bad += layer_case(c, &t, 200 + (uint32_t)n, n > 1);
        t.window = 2;
        t.docs = 3; /* the second one empty */
        t.ends[2] = t.ends[1];
        t.ends[3] = t.ends[1] + 5;
        bad += layer_case(c, &t, 300 + (uint32_t)n, n > 1);
    }
    t = plain(c->size > 2 ? 90 : 700); /* more keys than the plain kernel has at a time */
    t.heads = t.groups = 1;
    t.causal = 0;
    t.rule = DPAR_SPLIT_CHUNK;
    t.loud = 20.0;
    bad += layer_case(c, &t, 400, 0);
    for (n = 0; n < rounds; n++) {
        t = by_lot(&state);
        bad += layer_case(c, &t, 1000 + (uint32_t)n, n % 8 == 0);
    }
    return bad;
}

/* The same in the halo form: windows shorter and longer than a rank's slice, and than all. */
static int halo_cases(dpar_comm *c, int rounds)
{
    static const int windows[] = {1, 2, 5, 11, 100};
    uint32_t state = 99;
    test_case t;
    int n, bad = 0;
    for (n = 0; n < 5 + rounds; n++) {
        t = n < 5 ? plain(23) : by_lot(&state);
        t.halo = 1;
        t.rule = n % 2 ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK;
        t.window = n < 5 ? windows[n] : t.window > 0 ? t.window : 1 + n % 7;
        bad += layer_case(c, &t, 9000 + (uint32_t)n, n % 8 == 0);
    }
    for (n = 0; n < 2; n++) { /* a step without tokens, and with one */
        t = plain(n);
        bad += layer_case(c, &t, 9997, 0);
        t.halo = 1;
        t.rule = DPAR_SPLIT_EVEN;
        t.window = 3;
        bad += layer_case(c, &t, 9998 + (uint32_t)n, n);
    }
    return bad;
}

/* With zigzag and lengths that 2 P divides each rank has the same pairs at each step; cut in order
 * it has not. */
static int balance(dpar_comm *c)
{
    test_case t = plain(2 * c->size * 6);
    dpar_attention_desc layer;
    int64_t whole = 0, same = 0, in_order = 0, most = 0;
    int step, rank, bad = 0;
    t.docs = 2;
    t.ends[2] = t.ends[1] + 2 * c->size * 3;
    describe(&t, c->size, NULL, &layer);
    for (step = 0; step < c->size; step++) {
        const int64_t first = pairs_between(&t, &layer, 0, (c->size - step) % c->size);
        for (rank = 0; rank < c->size; rank++) {
            const int from = (rank - step + c->size) % c->size;
            bad += pairs_between(&t, &layer, rank, from) != first;
            whole += pairs_between(&t, &layer, rank, from);
        }
    }
    layer.tokens.rule = DPAR_SPLIT_CHUNK;
    for (step = 0; step < c->size; step++) {
        for (rank = 0, most = 0; rank < c->size; rank++) {
            const int64_t n = pairs_between(&t, &layer, rank, (rank - step + c->size) % c->size);
            most = n > most ? n : most;
            same += n;
        }
        in_order += most;
    }
    bad += whole != same; /* pairs in all, however tokens lie */
    /* the slowest rank of each step, P of them, against P even shares: (2 P - 1) / P */
    bad += c->size > 1 && 10 * in_order * c->size < (c->size > 2 ? 15 : 13) * whole;
    return bad;
}

static void merge(int32_t type, int64_t rows, int64_t values, void *out, void *lse,
                  const void *more, const void *more_lse)
{
    dpar_mem_attention_merge m;
    memset(&m, 0, sizeof m);
    m.type = type;
    m.rows = rows;
    m.values = values;
    m.out = out;
    m.lse = lse;
    m.more = more;
    m.more_lse = more_lse;
    CHECK_INT(dpar_mem_host_layers().attention_merge(NULL, &m), DPAR_OK);
}

/* Hand-made pieces: rows that see nothing, NaN, both types. */
static int merges(void)
{
    double out[6] = {1, 2, 3, 4, 5, 6}, more[6] = {3, 2, 1, 0, 7, 8}, lse[3], other[3];
    float small[2] = {1.0f, 3.0f}, small_more[2] = {2.0f, 2.0f}, a[1] = {0.0f}, b[1] = {0.0f};
    int bad = 0;
    lse[0] = log(1.0);
    other[0] = log(3.0);
    lse[1] = -1e30;
    other[1] = 5.0;
    lse[2] = 2.0;
    other[2] = -HUGE_VAL;
    merge(DPAR_F64, 3, 2, out, lse, more, other);
    bad += !(fabs(out[0] - 2.5) < 1e-15 && fabs(out[1] - 2.0) < 1e-15 &&
             fabs(lse[0] - log(4.0)) < 1e-15);
    bad += !(out[2] == more[2] && out[3] == more[3] && lse[1] == 5.0);
    bad += !(out[4] == 5.0 && out[5] == 6.0 && lse[2] == 2.0);
    other[0] = HUGE_VAL - HUGE_VAL;
    merge(DPAR_F64, 1, 2, out, lse, more, other);
    bad += out[0] == out[0]; /* a NaN stays one */
    merge(DPAR_F32, 1, 2, small, a, small_more, b);
    bad += !(small[0] == 1.5f && small[1] == 2.5f && fabs((double)a[0] - log(2.0)) < 1e-7);
    return bad;
}

/* ---- Ulysses --------------------------------------------------------------------------------- */

/* An exchange: a plan's of queries (which are then as wide as keys and values), or of keys. */
typedef struct ulysses {
    dpar_split tokens;
    dpar_heads heads;
    int32_t of_groups, type;
    int64_t width, ends[2];
} ulysses;

static void no_kernel(const dpar_attention_call *call)
{
    (void)call;
}

static dpar_attention_desc ulysses_layer(ulysses *u)
{
    dpar_attention_desc a;
    memset(&a, 0, sizeof a);
    u->ends[1] = u->tokens.count;
    a.method = dpar_attention_ulysses;
    a.tokens.docs = 1;
    a.tokens.ends = u->ends;
    a.tokens.ranks = u->heads.ranks;
    a.tokens.rule = DPAR_SPLIT_EVEN;
    a.token_split = &u->tokens;
    a.heads = u->heads.queries;
    a.groups = u->heads.groups;
    a.heads_chunked = u->heads.rule == DPAR_SPLIT_CHUNK;
    a.width = (int32_t)u->width;
    a.type = u->type;
    a.forward = a.backward = no_kernel;
    return a;
}

static dpar_status ulysses_bytes(dpar_comm *c, ulysses *u, int64_t *bytes, dpar_why *why)
{
    const dpar_attention_desc a = ulysses_layer(u);
    return attention_bytes(c, &a, bytes, why);
}

static dpar_status ulysses_init(void *memory, int64_t bytes, dpar_comm *c, ulysses *u,
                                dpar_attention_plan **plan, dpar_why *why)
{
    const dpar_attention_desc a = ulysses_layer(u);
    return attention_in(memory, bytes, c, &a, plan, why);
}

static int32_t array_of(const ulysses *u)
{
    return u->of_groups ? DPAR_ATTENTION_K : DPAR_ATTENTION_Q;
}

/* Heads of a rank; -1: of all, copies each. */
static int64_t heads_of(const ulysses *u, int32_t rank)
{
    int64_t held = 0;
    int32_t r;
    for (r = 0; r < u->heads.ranks; r++) {
        const dpar_heads_share s = dpar_heads_local(&u->heads, r);
        held += rank < 0 || r == rank ? (u->of_groups ? s.groups : s.queries) : 0;
    }
    return held;
}

static int64_t ulysses_sent(const ulysses *u, int32_t rank, int back)
{
    const int64_t n = dpar_split_part_count(&u->tokens, rank), mine = heads_of(u, rank);
    return u->width * type_bytes(u->type) *
           (back ? mine * (u->tokens.count - n) : n * (heads_of(u, -1) - mine));
}

/* What a rank has in the middle: all tokens, some heads. Heads `from` on of every token. */
typedef struct middle {
    int heads, first, groups, group;
    void *x[TENSORS], *dx[TENSORS], *out, *dout, *lse, *delta;
} middle;

static int middle_elements(const test_case *t, const middle *m, int tensor)
{
    return tensor == 0 ? m->heads * t->width : m->groups * (tensor == 1 ? t->width : t->values);
}

static void middle_make(const test_case *t, const dpar_heads *h, int rank, middle *m)
{
    const dpar_heads_share s = dpar_heads_local(h, rank);
    int k;
    m->heads = s.queries;
    m->first = s.first_query;
    m->groups = s.groups;
    m->group = s.first_group;
    for (k = 0; k < TENSORS; k++) {
        m->x[k] = fresh(total(t) * middle_elements(t, m, k), type_bytes(t->type));
        m->dx[k] = fresh(total(t) * middle_elements(t, m, k), type_bytes(t->type));
    }
    m->out = fresh(total(t) * m->heads * t->values, type_bytes(t->type));
    m->dout = fresh(total(t) * m->heads * t->values, type_bytes(t->type));
    m->lse = fresh(total(t) * m->heads, type_bytes(t->type));
    m->delta = fresh(total(t) * m->heads, type_bytes(t->type));
}

static void middle_free(middle *m)
{
    int k;
    for (k = 0; k < TENSORS; k++) {
        free(m->x[k]);
        free(m->dx[k]);
    }
    free(m->out);
    free(m->dout);
    free(m->lse);
    free(m->delta);
}

static void *behind(void *base, int64_t elements, int type)
{
    return (char *)base + elements * type_bytes(type);
}

/* Attention of the heads that are here, document by document. */
static void middle_attend(const test_case *t, const middle *m, int backward)
{
    const int v = m->heads * t->values;
    dpar_attention_desc local;
    dpar_attention_call call;
    int64_t i;
    int d;
    memset(&local, 0, sizeof local);
    local.heads = m->heads;
    local.groups = m->groups;
    local.width = t->width;
    local.value_width = t->values;
    local.type = t->type;
    for (i = 0; i < total(t) * m->heads && backward; i++) {
        double sum = 0.0;
        for (d = 0; d < t->values; d++) {
            sum += float_get(m->out, i * t->values + d, t->type) *
                   float_get(m->dout, i * t->values + d, t->type);
        }
        float_put(m->delta, i, t->type, sum);
    }
    for (d = 0; d < t->docs && m->heads > 0; d++) {
        const int64_t at = t->ends[d];
        memset(&call, 0, sizeof call);
        call.layer = &local;
        call.queries = call.keys = t->ends[d + 1] - at;
        call.low = t->window > 0 ? -t->window : -call.keys;
        call.high = t->causal ? 0 : t->window > 0 ? t->window : call.keys;
        call.q = behind(m->x[0], at * middle_elements(t, m, 0), t->type);
        call.k = behind(m->x[1], at * middle_elements(t, m, 1), t->type);
        call.v = behind(m->x[2], at * middle_elements(t, m, 2), t->type);
        call.out = behind(m->out, at * v, t->type);
        call.lse = behind(m->lse, at * m->heads, t->type);
        call.out_gradient = behind(m->dout, at * v, t->type);
        call.delta = behind(m->delta, at * m->heads, t->type);
        call.q_gradient = behind(m->dx[0], at * middle_elements(t, m, 0), t->type);
        call.k_gradient = behind(m->dx[1], at * middle_elements(t, m, 1), t->type);
        call.v_gradient = behind(m->dx[2], at * middle_elements(t, m, 2), t->type);
        if (!backward) {
            call.out_gradient = NULL;
        }
        dpar_attention_host(&call);
    }
}

/* Is the middle what the whole arrays have of these heads, bit by bit? */
static int middle_agrees(const test_case *t, const middle *m, int tensor)
{
    const int each = elements(t, tensor), mine = middle_elements(t, m, tensor);
    const int n = tensor == 2 ? t->values : t->width, first = tensor == 0 ? m->first : m->group;
    int64_t i;
    int e, bad = 0;
    for (i = 0; i < total(t); i++) {
        for (e = 0; e < mine; e++) {
            const double want = t->x[tensor][i * each + first * n + e];
            bad += float_get(m->x[tensor], i * mine + e, t->type) != want;
        }
    }
    return bad;
}

/* The same again, to the same bits, from memory of dpar_comm_alloc, on the last rank from its own
 * where `lacks` is 1. Registered everywhere the ranks of a node read it where it lies: then of the
 * plan's memory nothing is written but where the arrays of all ranks are. It counts as what the
 * all-to-all gave away. */
static int again(dpar_comm *c, const ulysses *u, dpar_attention_plan *plan, const void *memory,
                 int64_t bytes, const void *in, const void *out, int backward, int lacks)
{
#ifdef DEVICE_CUDA
    return 0; /* of the host's memory */
#endif
    const int64_t each = u->width * type_bytes(u->type);
    const int64_t wide = plan->tokens * (u->of_groups ? u->heads.groups : u->heads.queries) * each;
    const int64_t tall = u->tokens.count * heads_of(u, c->rank) * each;
    const int64_t reads = backward ? tall : wide, writes = backward ? wide : tall;
    const int own = lacks && c->rank == c->size - 1;
    char *got = (char *)fresh(writes + 1, 1), *from = (char *)plan_memory(c, reads + 1, !own);
    char *before = (char *)reached(bytes, 1);
    int64_t i, touched = 0, sent, bad = 0;
    for (i = 0; i < reads; i++) { /* other numbers than those that the plan has seen */
        from[i] = (char)~((const char *)in)[i];
    }
    memcpy(before, memory, (size_t)bytes);
    bad += dpar_attention_exchange(plan, array_of(u), backward, from, got) != DPAR_OK;
    for (i = 0; i < bytes; i++) {
        touched += before[i] != ((const char *)memory)[i];
    }
    bad += touched > 512 + 64 * c->size && !lacks && strcmp(c->engine.name, "shm") == 0;
    if (reads > 0) {
        memcpy(from, in, (size_t)reads);
    }
    sent = c->sent[DPAR_CALL_ALL_TO_ALL];
    bad += dpar_attention_exchange(plan, array_of(u), backward, from, got) != DPAR_OK;
    bad += writes > 0 && memcmp(got, out, (size_t)writes) != 0;
    bad += c->sent[DPAR_CALL_ALL_TO_ALL] - sent != ulysses_sent(u, c->rank, backward);
    if (bad > 0) {
        printf("rank %d of %d: ulysses %s, %s: differs, or %d bytes packed\n", (int)c->rank,
               (int)c->size, backward ? "back" : "there", lacks ? "one without" : "in place",
               (int)touched);
    }
    reached_free(before);
    free(got);
    plan_release(c, from, !own);
    return bad != 0;
}

/* One way and back through a plan of its own, bytes counted. */
static int exchange(dpar_comm *c, ulysses *u, const void *in, void *out, int backward)
{
    dpar_attention_plan *plan = NULL;
    dpar_why why;
    int64_t bytes = 0, sent;
    void *memory = NULL;
    int bad = 0;
    why.text[0] = 0;
    if (ulysses_bytes(c, u, &bytes, &why) != DPAR_OK ||
        (memory = plan_memory(c, bytes, backward)) == NULL ||
        ulysses_init(memory, bytes, c, u, &plan, &why) != DPAR_OK) {
        printf("rank %d: %s\n", (int)c->rank, why.text);
        return 1;
    }
    engine_run[c->rank] = c->engine.run;
    c->engine.run = counting_run;
    engine_sent[c->rank] = 0;
    bad += dpar_attention_exchange(plan, array_of(u), backward, in, out) != DPAR_OK;
    sent = engine_sent[c->rank];
    c->engine.run = engine_run[c->rank];
    if (sent != ulysses_sent(u, c->rank, backward) || plan->sent_bytes != sent) {
        printf("rank %d of %d: sent %d bytes, foretold %d\n", (int)c->rank, (int)c->size, (int)sent,
               (int)ulysses_sent(u, c->rank, backward));
        bad++;
    }
    bad += again(c, u, plan, memory, bytes, in, out, backward, 0) +
           again(c, u, plan, memory, bytes, in, out, backward, 1);
    bad += dpar_attention_free(plan) != DPAR_OK;
    plan_release(c, memory, backward);
    return bad;
}

/* A whole layer: q, k, v to the heads, attention there, out back; then gradients the same way. */
static int ulysses_case(dpar_comm *c, test_case *t, const dpar_split *split, uint32_t seed)
{
    ulysses u[4]; /* q, k, v, out */
    middle m;
    part p;
    int k, bad = 0;
    memset(u, 0, sizeof u);
    for (k = 0; k < 4; k++) {
        u[k].tokens = *split;
        if (dpar_heads_init(&u[k].heads, t->heads, t->groups, c->size,
                            (int)seed % 2 ? DPAR_SPLIT_EVEN : DPAR_SPLIT_CHUNK, NULL) != DPAR_OK) {
            return 1;
        }
        u[k].of_groups = k == 1 || k == 2;
        u[k].type = t->type;
        u[k].width = k >= 2 ? t->values : t->width;
    }
    textbook(t, seed);
    part_split(t, split, c->rank, &p);
    part_arrays(t, &p);
    middle_make(t, &u[0].heads, c->rank, &m);
    for (k = 0; k < TENSORS; k++) {
        bad += exchange(c, &u[k], p.x[k], m.x[k], 0);
        bad += middle_agrees(t, &m, k) != 0;
    }
    middle_attend(t, &m, 0);
    bad += exchange(c, &u[3], m.out, p.out, 1);
    bad += exchange(c, &u[3], p.dout, m.dout, 0);
    middle_attend(t, &m, 1);
    for (k = 0; k < TENSORS; k++) {
        bad += exchange(c, &u[k], m.dx[k], p.dx[k], 1);
    }
    scatter(t, &p, t->heads, t->lse, p.lse); /* stays in the middle: not compared */
    bad += judge(t, &p, "ulysses", c->rank, c->size);
    middle_free(&m);
    part_free(&p);
    textbook_free(t);
    return bad;
}

static int ulysses_cases(dpar_comm *c, int rounds)
{
    static const int rules[] = {DPAR_SPLIT_CHUNK,  DPAR_SPLIT_EVEN,   DPAR_SPLIT_FLOOR,
                                DPAR_SPLIT_ZIGZAG, DPAR_SPLIT_CYCLIC, DPAR_SPLIT_BLOCK_CYCLIC,
                                DPAR_SPLIT_RAGGED};
    uint32_t state = 77;
    int n, r, bad = 0;
    for (n = 0; n < rounds; n++) {
        int64_t cuts[MOST_RANKS + 1], weight[MOST_RANKS];
        test_case t = by_lot(&state);
        dpar_split split;
        const int rule = rules[lot(&state, 7)];
        t = n == 0 ? plain(0) : t;
        t.type = n % 3 > 0 && t.type == DPAR_BF16 ? DPAR_F64 : t.type;
        for (r = 0; r < c->size; r++) {
            weight[r] = 1 + lot(&state, 3) * lot(&state, 3);
        }
        if (rule == DPAR_SPLIT_RAGGED) {
            bad += dpar_split_weighted_cuts(cuts, total(&t), c->size, weight, 1, NULL) != DPAR_OK ||
                   dpar_split_init_ragged(&split, c->size, cuts, NULL) != DPAR_OK;
        } else {
            bad += dpar_split_init(&split, rule, total(&t), c->size, 3, NULL) != DPAR_OK;
        }
        bad += t.type != DPAR_BF16 ? ulysses_case(c, &t, &split, 5000 + (uint32_t)n) : 0;
        t.ulysses = 1;
        t.cut = rule == t.rule ? NULL : &split;
        t.chunked = n % 2;
        bad += layer_case(c, &t, 6000 + (uint32_t)n, n % 8 == 1);
    }
    return bad;
}

/* Copies of one group in bf16: 1 and as many times 2^-8 as there are others; added one by one in
 * bf16 the small ones would be lost. */
static int ulysses_copies(dpar_comm *c)
{
    const int64_t whole = 5;
    ulysses u;
    uint16_t *in = (uint16_t *)fresh(5, 2), *out = (uint16_t *)fresh(5, 2);
    double want = rounded(DPAR_BF16, 1.0 + (c->size - 1) / 256.0);
    int i, bad = 0;
    memset(&u, 0, sizeof u);
    bad += dpar_split_init(&u.tokens, DPAR_SPLIT_EVEN, whole, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&u.heads, c->size, 1, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    u.of_groups = 1;
    u.type = DPAR_BF16;
    u.width = 1;
    for (i = 0; i < whole; i++) {
        float_put(in, i, DPAR_BF16, c->rank == 0 ? 1.0 : 1.0 / 256.0);
    }
    bad += exchange(c, &u, in, out, 1);
    for (i = 0; i < dpar_split_part_count(&u.tokens, c->rank); i++) {
        bad += float_get(out, i, DPAR_BF16) != want;
    }
    free(in);
    free(out);
    return bad;
}

/* Large enough to be written past the cache; rows that begin anywhere. */
static int ulysses_large(dpar_comm *c)
{
    const int64_t tokens = 1070, row = 16 * 67;
    ulysses u;
    float *in = (float *)fresh(tokens * row, 4), *mid = (float *)fresh(tokens * row, 4);
    float *out = (float *)fresh(tokens * row, 4);
    int64_t i;
    int bad = 0;
    memset(&u, 0, sizeof u);
    bad += dpar_split_init(&u.tokens, DPAR_SPLIT_ZIGZAG, 2 * tokens, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&u.heads, 16, 16, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    u.type = DPAR_F32;
    u.width = 67;
    for (i = 0; i < tokens * row; i++) {
        in[i] = (float)number((uint32_t)c->rank, i);
    }
    bad += exchange(c, &u, in, mid, 0) + exchange(c, &u, mid, out, 1);
    bad += memcmp(in, out, (size_t)(tokens * row) * 4) != 0;
    free(in);
    free(mid);
    free(out);
    return bad;
}

/* Rank 0 exchanges groups, the others queries: as many elements, another exchange. */
static int ulysses_quarrel(dpar_comm *c)
{
    dpar_comm *other = NULL;
    ulysses u;
    dpar_attention_plan *plan[2] = {NULL, NULL};
    dpar_why why;
    void *memory[3] = {NULL, NULL, NULL};
    int64_t bytes = 0;
    int k, bad = dpar_comm_split(c, 0, 0, &other) != DPAR_OK;
    dpar_status st;
    memset(&u, 0, sizeof u);
    bad += dpar_split_init(&u.tokens, DPAR_SPLIT_EVEN, 2 * c->size, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&u.heads, c->size, c->size, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    u.type = DPAR_F32;
    u.width = 4;
    for (k = 0; k < 1 && bad == 0; k++) {
        bad += ulysses_bytes(other, &u, &bytes, &why) != DPAR_OK;
        bad += dpar_comm_alloc(other, bytes, &memory[k]) != DPAR_OK;
        bad += ulysses_init(memory[k], bytes, other, &u, &plan[k], &why) != DPAR_OK;
    }
    bad += dpar_comm_alloc(c, 4096, &memory[2]) != DPAR_OK;
    if (bad == 0) {
        bad +=
            dpar_attention_exchange(plan[0], 4, 0, memory[2], memory[2]) != DPAR_E_ARG ||
            strcmp(other->why.text, "dpar_attention_exchange: array is 4, but must be 0 to 3, with "
                                    "method dpar_attention_ulysses") != 0;
        bad += dpar_barrier(other, NULL) != DPAR_OK; /* before the next ones break it */
    }
    if (bad == 0 && c->size > 1 && strcmp(c->engine.name, "shm") == 0) {
        float got[64];
        st = dpar_attention_exchange(plan[0], c->rank == 0 ? DPAR_ATTENTION_K : DPAR_ATTENTION_Q, 0,
                                     memory[2], got);
        bad += st != DPAR_E_MISMATCH || other->status != DPAR_E_MISMATCH ||
               strstr(other->why.text, "tag") == NULL;
    }
    bad += dpar_barrier(c, NULL) != DPAR_OK; /* nobody reads any more */
    for (k = 0; k < 3; k++) {
        dpar_comm_release(c, memory[k]);
    }
    (void)dpar_comm_free(other);
    if (bad) {
        printf("rank %d: another exchange: %d wrong\n", (int)c->rank, bad);
    }
    return bad;
}

static int ulysses_refusals(dpar_comm *c)
{
    static const char *const what[4] = {"", "attention: width", "attention: heads_chunked",
                                        "attention: type"};
    static const char *const others[4] = {"", "4", "0", "f64"}, *const of_last[4] = {"", "5", "1",
                                                                                     "f32"};
    const int odd = c->rank == c->size - 1 && c->size > 1;
    ulysses good, u;
    dpar_attention_plan *plan = NULL;
    dpar_why why;
    int64_t bytes = 0;
    void *memory = aligned_alloc(64, 1 << 16);
    int way, bad = 0;
    memset(&good, 0, sizeof good);
    bad += dpar_split_init(&good.tokens, DPAR_SPLIT_EVEN, 20, c->size, 1, NULL) != DPAR_OK;
    bad += dpar_heads_init(&good.heads, 8, 2, c->size, DPAR_SPLIT_EVEN, NULL) != DPAR_OK;
    good.type = DPAR_F64;
    good.width = 4;
    for (way = 0; way < 6; way++) {
        u = good;
        why.text[0] = 0;
        u.tokens.count = way == 5 ? -1 : way == 1 ? INT64_C(1) << 55 : u.tokens.count;
        u.width = way == 0 ? -1 : u.width;
        u.type = way == 2 ? DPAR_I8 : u.type;
        u.tokens.parts += way == 3;
        u.heads.groups = way == 4 ? 3 : u.heads.groups;
        bad += ulysses_bytes(c, &u, &bytes, &why) == DPAR_OK || why.text[0] == 0;
    }
    for (way = 0; way < 4 && c->size > 1; way++) {
        u = good;
        why.text[0] = 0;
        u.width += way == 1 && odd;
        u.heads.rule = way == 2 && odd ? DPAR_SPLIT_CHUNK : DPAR_SPLIT_EVEN;
        u.type = way == 3 && odd ? DPAR_F32 : DPAR_F64;
        bad += ulysses_init(memory, way == 0 && odd ? 64 : 1 << 16, c, &u, &plan, &why) !=
                   (way == 0 ? DPAR_E_ROOM : DPAR_E_MISMATCH) ||
               why.text[0] == 0 ||
               (way > 0 &&
                !says_who_differs(why.text, (int)c->size, what[way], others[way], of_last[way]));
    }
    bad += dpar_attention_exchange(NULL, DPAR_ATTENTION_Q, 0, NULL, NULL) != DPAR_E_ARG ||
           ulysses_init(NULL, 0, c, &good, NULL, NULL) != DPAR_E_ARG;
    free(memory);
    return bad;
}

/* ---- what is refused ------------------------------------------------------------------------- */

static int refusals(dpar_comm *c)
{
    test_case t = plain(12);
    dpar_attention_desc good, a;
    dpar_attention_plan *plan = NULL;
    dpar_why why;
    int64_t ends[2] = {0, INT64_C(1) << 55};
    int way, bad = 0;
    describe(&t, c->size, NULL, &good);
    for (way = 0; way < 13; way++) {
        dpar_status st, wanted = way == 3 ? DPAR_E_DIVIDE : way == 9 ? DPAR_E_RANGE : DPAR_E_ARG;
        a = good;
        why.text[0] = 0;
        a.tokens.docs = way == 0 ? 0 : a.tokens.docs;
        a.tokens.ranks = way == 1 ? c->size + 1 : a.tokens.ranks;
        a.heads = way == 2 ? 0 : way == 3 ? 3 : a.heads;
        a.width = way == 4 ? -1 : a.width;
        a.type = way == 5 ? DPAR_I32 : way == 6 ? DPAR_F16 : a.type;
        a.window = way == 7 ? -1 : 0;
        a.tag = way == 8 ? -1 : 0;
        a.tokens.ends = way == 9 ? ends : a.tokens.ends;
        a.tokens.rule = way == 10 ? DPAR_SPLIT_FLOOR : a.tokens.rule;
        a.method = way >= 11 ? dpar_attention_halo : NULL;
        a.tokens.rule = way == 11 ? DPAR_SPLIT_EVEN : a.tokens.rule; /* 11: no window, 12: zigzag */
        a.window = way == 12 ? 3 : a.window;
        st = dpar_attention_make(c, &a, &plan, &why);
        if (st != wanted || why.text[0] == 0) {
            printf("refusal %d: %s: %s\n", way, dpar_status_text(st), why.text);
            bad++;
        }
    }
    bad += dpar_attention_make(NULL, &good, &plan, NULL) != DPAR_E_ARG ||
           dpar_attention_make(c, NULL, &plan, NULL) != DPAR_E_ARG ||
           dpar_attention_make(c, &good, NULL, NULL) != DPAR_E_ARG ||
           dpar_attention_forward(NULL, NULL) != DPAR_E_ARG ||
           dpar_attention_backward(NULL, NULL) != DPAR_E_ARG ||
           dpar_attention_free(NULL) != DPAR_OK;
    return bad;
}

/* What the last rank gives otherwise, all ranks are told. */
static int misuse(dpar_comm *c)
{
    static const char *const differs[9][3] = {{"", "", ""},
                                              {"", "", ""},
                                              {"attention: scale", "0.5", "0.25"},
                                              {"attention: window", "0", "4"},
                                              {"attention: causal", "1", "0"},
                                              {"attention: type", "f64", "f32"},
                                              {"attention: tokens.rule", "6", "1"},
                                              {"attention: tokens.ends[1]", "20", "21"},
                                              {"attention: method", "0", "1"}};
    const int odd = c->rank == c->size - 1 && c->size > 1;
    int way, bad = 0;
    for (way = 0; way < 9 && c->size > 1; way++) {
        test_case t = plain(20);
        dpar_attention_desc layer;
        dpar_attention_plan *plan = NULL;
        dpar_why why;
        dpar_status st, wanted = way == 0   ? DPAR_E_ROOM
                                 : way == 1 ? DPAR_E_DIVIDE
                                            : DPAR_E_MISMATCH;
        why.text[0] = 0;
        why.bytes = 0;
        describe(&t, c->size, NULL, &layer);
        if (odd) {
            layer.heads = way == 1 ? 3 : layer.heads;
            layer.scale = way == 2 ? 0.25 : layer.scale;
            layer.window = way == 3 ? 4 : layer.window;
            layer.causal = way == 4 ? 0 : layer.causal;
            layer.type = way == 5 ? DPAR_F32 : layer.type;
            layer.tokens.rule = way == 6 ? DPAR_SPLIT_EVEN : layer.tokens.rule;
            t.ends[1] += way == 7;
            layer.method = way == 8 ? dpar_attention_halo : layer.method;
            layer.window = way == 8 ? 4 : layer.window;
            layer.tokens.rule = way == 8 ? DPAR_SPLIT_EVEN : layer.tokens.rule;
        }
        layer.memory = aligned_alloc(64, 1 << 16);
        layer.bytes = odd && way == 0 ? 64 : 1 << 16;
        st = dpar_attention_make(c, &layer, &plan, &why);
        if (st != wanted || why.text[0] == 0 || (way == 0) != (why.bytes > 64) ||
            (way > 1 && !says_who_differs(why.text, (int)c->size, differs[way][0], differs[way][1],
                                          differs[way][2]))) {
            printf("rank %d of %d: misuse %d: %s, %s\n", (int)c->rank, (int)c->size, way,
                   dpar_status_text(st), why.text);
            bad++;
        }
        free(layer.memory);
    }
    return bad;
}

/* The last rank forgets its keys: all ranks hear of it at the next operation at the latest. Breaks
 * the communicator. */
static int forgets_keys(dpar_comm *c, void *arg)
{
    test_case t = plain(32);
    dpar_attention_desc layer;
    dpar_attention_plan *plan = NULL;
    dpar_attention_arrays a;
    dpar_why why;
    part p;
    int64_t bytes = 0;
    void *memory;
    int bad = 1;
    (void)arg;
    describe(&t, c->size, NULL, &layer);
    layer.forward = NULL;
    textbook(&t, 5);
    part_packed(&t, &layer.tokens, c->rank, &p);
    part_arrays(&t, &p);
    arrays_of(&p, &a);
    (void)attention_bytes(c, &layer, &bytes, &why);
    memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    if (attention_in(memory, bytes, c, &layer, &plan, NULL) == DPAR_OK) {
        a.k = c->rank == c->size - 1 ? NULL : a.k;
        (void)dpar_attention_forward(plan, &a);
        bad = dpar_barrier(c, NULL) == DPAR_OK;
    } else {
        bad = 0; /* the news of the last rank came before the end of this one's init */
    }
    bad |= strstr(c->why.text, "arrays that this call needs") == NULL;
    part_free(&p);
    textbook_free(&t);
    free(memory);
    return bad;
}

/* arg: rounds by lot. */
static int everything(dpar_comm *c, void *arg)
{
    const int rounds = *(const int *)arg;
    const double began = now();
    int64_t bad = 0;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 28);
    c = device_take(c);
    bad += ring_cases(c, rounds / 2) + halo_cases(c, rounds / 4) + ulysses_cases(c, rounds / 2);
    bad += ulysses_copies(c) + (the_device.calls == 0);
    c = device_return(c);
    device_end();
    return all_right(c, bad, began);
#endif
    bad += refusals(c) + misuse(c) + merges() + balance(c);
    bad += ring_cases(c, rounds);
    bad += halo_cases(c, rounds / 2);
    bad += c->size == 2 ? ulysses_large(c) : 0;
    bad += ulysses_refusals(c) + ulysses_quarrel(c) + ulysses_copies(c) + ulysses_cases(c, rounds);
    return all_right(c, bad, began);
}

static void also(int n, const dpar_world_desc *o)
{
    on_ranks(n, " without keys", forgets_keys, NULL, o);
}

int main(int argc, char **argv)
{
#ifdef USE_MPI
    int rounds = 30;
#else
    int rounds = argc > 1 && strcmp(argv[1], "long") == 0 ? 1500 : 60;
#endif
#ifdef DEVICE_MEMORY
    (void)also;
    return rank_program(argc, argv, everything, &rounds, 4, 2, NULL);
#else
    return rank_program(argc, argv, everything, &rounds, 8, 4, also);
#endif
}
