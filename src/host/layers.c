/* SPDX-License-Identifier: MIT-0 */
/* The operations of layers.h in host memory. Tests compare the results of a device with those of
 * the host's table. Norms are in layers_norm.c, and formats for tensor cores in block_formats.c. */
#include "layers.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "block_formats.h"
#include "elements.h"
#include "kernel.h"
#include "layers_norm.h"
#include "layers_private.h"
#include "mem_private.h"
#include "moment_codes.h"
#include "random_private.h"
#include "vector_loops.h"

/* ---- norms of gradients ---------------------------------------------------------------------- */

/* Returns the sum of squares, part by part. */
static double dpari_mem_sum_squares(const void *in, int64_t count, int32_t type)
{
    const dpari_lanes l = dpari_lanes_for(count);
    DPARI_ROW double room[DPARI_ROW_PART];
    double sum = 0.0;
    int32_t as;
    int64_t i;
    for (i = 0; i < count; i += DPARI_ROW_PART) {
        const int64_t n = dpari_least(DPARI_ROW_PART, count - i);
        const void *x = dpari_row_at(&l, in, type, i, n, room, &as);
        sum += l.about(x, as, 0.0, n);
    }
    return sum;
}

DPARI_INTERNAL dpar_status dpari_mem_squares(void *ctx, const dpar_mem_squares *s)
{
    double sum;
    (void)ctx;
    if (s->count < 0 || !dpari_is_float(s->type) || s->sum == NULL ||
        (s->count > 0 && s->in == NULL) || (s->accumulate != 0 && s->accumulate != 1)) {
        return DPAR_E_ARG;
    }
    sum = dpari_mem_sum_squares(s->in, s->count, s->type);
    *s->sum = s->accumulate ? *s->sum + sum : sum;
    return DPAR_OK;
}

static dpar_status dpari_mem_clip(void *ctx, const dpar_mem_clip *c)
{
    (void)ctx;
    if (c->squares == NULL || c->factor == NULL) {
        return DPAR_E_ARG;
    }
    *c->factor = c->scale * dpar_optimizer_clip(dpari_elements_sqrt(*c->squares), c->limit);
    return DPAR_OK;
}

/* ---- optimizers ------------------------------------------------------------------------------ */

DPARI_INTERNAL dpar_status dpari_mem_round(void *ctx, const dpar_mem_round *r)
{
    double x[DPARI_ELEMENTS];
    float f[DPARI_ELEMENTS];
    int64_t i;
    (void)ctx;
    if (r->count < 0 || !dpari_is_float(r->from_type) ||
        (r->count > 0 && (r->to == NULL || r->from == NULL))) {
        return DPAR_E_ARG;
    }
    if (r->from_type == DPAR_F32) { /* without conversion, so that NaNs keep their bits */
        dpari_random_round(r->to, r->from, r->count, r->seed, r->stream, r->index, 16);
        return DPAR_OK;
    }
    for (i = 0; i < r->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, r->count - i);
        dpari_elements_load(x, r->from, i, n, r->from_type);
        dpari_elements_store(f, x, 0, n, DPAR_F32);
        dpari_random_round((unsigned char *)r->to + 2 * i, f, n, r->seed, r->stream,
                           r->index + (uint64_t)i, 16);
    }
    return DPAR_OK;
}

/* Computes F32 from BF16 and the 16-bit remainder. dpari_mem_halve does the opposite. It rounds the
 * high half to nearest, so that the remainder is signed. */
static void dpari_mem_join(float *to, const uint16_t *high, const int16_t *low, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const uint32_t bits = ((uint32_t)high[i] << 16) + (uint32_t)(int32_t)low[i];
        dpari_elements_bits(to + i, &bits, 4);
    }
}

static void dpari_mem_halve(uint16_t *high, int16_t *low, const float *from, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint32_t bits;
        dpari_elements_bits(&bits, from + i, 4);
        high[i] = (uint16_t)((bits + 0x8000u) >> 16);
        low[i] = (int16_t)((int32_t)(bits & 0x7fffu) - (int32_t)(bits & 0x8000u));
    }
}

/* Updates weights that are stored in two halves. Joins at most DPARI_MOMENT_BLOCK weights at a time
 * to F32, and not weights of different blocks of 8-bit moments. */
static dpar_status dpari_mem_optimize_halves(const dpar_mem_optimize *o, double factor)
{
    const dpar_optimizer_piece *all = o->piece;
    const int64_t size = dpar_type_bytes(all->gradient_type);
    uint16_t *high = (uint16_t *)all->weight;
    float w[DPARI_MOMENT_BLOCK];
    int32_t type = 0;
    dpar_status st = dpar_optimizer_check(o->optimizer, DPAR_F32, NULL, &type, NULL);
    dpar_optimizer_piece p = *all;
    int64_t i;
    for (i = 0; i < all->count && st == DPAR_OK; i += p.count) {
        const int64_t moment = dpari_moment_at(type, all->index, i);
        p.index = all->index + (uint64_t)i;
        p.count = dpari_least(DPARI_MOMENT_BLOCK - (int64_t)(p.index % DPARI_MOMENT_BLOCK),
                              all->count - i);
        p.weight = w;
        p.weight_type = DPAR_F32;
        p.gradient = (const unsigned char *)all->gradient + i * size;
        p.m = all->m == NULL ? NULL : (unsigned char *)all->m + moment;
        p.v = all->v == NULL ? NULL : (unsigned char *)all->v + moment;
        dpari_mem_join(w, high + i, o->remainder + i, p.count);
        st = dpar_optimizer_step(o->optimizer, &p, o->step, o->rate, factor);
        dpari_mem_halve(high + i, o->remainder + i, w, p.count);
    }
    return st;
}

/* Stores a copy of the new weights in copy_type. */
static dpar_status dpari_optimize_copy(const dpar_mem_optimize *o)
{
    const dpar_optimizer_piece *p = o->piece;
    dpar_mem_round r;
    dpar_mem_span s;
    if (o->optimizer->stochastic && o->copy_type == DPAR_BF16) {
        dpari_zero(&r, sizeof r);
        r.to = o->copy;
        r.from = p->weight;
        r.count = p->count;
        r.from_type = p->weight_type;
        r.seed = o->optimizer->seed;
        r.stream = (uint64_t)o->step;
        r.index = p->index;
        return dpari_mem_round(NULL, &r);
    }
    dpari_zero(&s, sizeof s);
    s.to = o->copy;
    s.from = p->weight;
    s.count = p->count;
    s.to_type = o->copy_type;
    s.from_type = p->weight_type;
    s.scale = 1.0;
    return dpari_mem_span(NULL, &s, 1);
}

DPARI_INTERNAL dpar_status dpari_mem_optimize(void *ctx, const dpar_mem_optimize *o)
{
    const dpar_optimizer_piece *p = o->piece;
    const double factor = o->factor_at != NULL ? o->factor * *o->factor_at : o->factor;
    dpar_optimizer_piece none;
    dpar_status st;
    (void)ctx;
    if (p == NULL || o->optimizer == NULL ||
        (o->remainder != NULL &&
         (p->weight_type != DPAR_BF16 || o->optimizer->stochastic || o->copy != NULL))) {
        return DPAR_E_ARG;
    }
    if (o->copy != NULL && o->copy_type != DPAR_BF16 && o->copy_type != DPAR_F16 &&
        o->copy_type != DPAR_F32) {
        return DPAR_E_ARG;
    }
    none = *p;
    /* with a remainder, this step has 0 elements and only checks the arguments */
    none.count = o->remainder != NULL && p->count >= 0 ? 0 : p->count;
    st = dpar_optimizer_step(o->optimizer, &none, o->step, o->rate, factor);
    if (st == DPAR_OK && o->remainder != NULL) {
        st = dpari_mem_optimize_halves(o, factor);
    }
    if (st == DPAR_OK && o->copy != NULL) {
        st = dpari_optimize_copy(o);
    }
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* True if the fields of an index of `rows` rows are valid. */
static int dpari_mem_index_fits(const dpar_mem_index *x, int64_t rows)
{
    return (x->type == DPAR_I32 || x->type == DPAR_I64) && x->windows >= 0 && x->windows <= 2 &&
           (x->at != NULL || rows == 0);
}

/* Returns at[i] of an index. */
static int64_t dpari_mem_at(const dpar_mem_index *x, int64_t i)
{
    return x->type == DPAR_I32 ? ((const int32_t *)x->at)[i] : ((const int64_t *)x->at)[i];
}

/* Returns the row for a number at[i] of an index; a result below 0 means that there is none. */
DPARI_STATIC_NOINLINE int64_t dpari_mem_row(const dpar_mem_index *x, int64_t number)
{
    int32_t w;
    for (w = 0; w < x->windows; w++) {
        if (number >= x->lo[w] && number < x->hi[w]) {
            return x->row[w] + (number - x->lo[w]);
        }
    }
    return x->windows == 0 ? number : -1;
}

DPARI_INTERNAL dpar_status dpari_mem_gather(void *ctx, const dpar_mem_gather *g)
{
    unsigned char *to = (unsigned char *)g->to;
    int64_t i;
    (void)ctx;
    if (g->rows < 0 || g->bytes < 0 || g->to_step < g->bytes ||
        (g->from_step != 0 && g->from_step < g->bytes) ||
        !dpari_mem_index_fits(&g->index, g->rows) ||
        (g->rows > 0 && g->bytes > 0 && (g->to == NULL || g->from == NULL))) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < g->rows; i++) {
        const int64_t row = dpari_mem_row(&g->index, dpari_mem_at(&g->index, i));
        if (row >= 0) {
            const unsigned char *from = (const unsigned char *)g->from + row * g->from_step;
            dpari_kern_copy(to + i * g->to_step, from, g->bytes, 0);
        } else {
            dpari_zero(to + i * g->to_step, (size_t)g->bytes);
        }
    }
    return DPAR_OK;
}

/* Adds n elements of `from` to `to`, which are F64 or F32. */
static void dpari_mem_add(int32_t type, void *to, int64_t at, const void *from, int64_t from_at,
                          int64_t n)
{
    int64_t i;
    if (type == DPAR_F64) {
        for (i = 0; i < n; i++) {
            ((double *)to)[at + i] += ((const double *)from)[from_at + i];
        }
    } else {
        for (i = 0; i < n; i++) {
            ((float *)to)[at + i] += ((const float *)from)[from_at + i];
        }
    }
}

DPARI_INTERNAL dpar_status dpari_mem_scatter(void *ctx, const dpar_mem_scatter *s)
{
    int64_t i;
    (void)ctx;
    if (s->rows < 0 || s->width < 0 || !dpari_is_wide(s->type) ||
        !dpari_mem_index_fits(&s->index, s->rows) ||
        (s->rows > 0 && s->width > 0 && (s->to == NULL || s->from == NULL))) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < s->rows; i++) {
        const int64_t row = dpari_mem_row(&s->index, dpari_mem_at(&s->index, i));
        if (row >= 0) {
            dpari_mem_add(s->type, s->to, row * s->width, s->from, i * s->width, s->width);
        }
    }
    return DPAR_OK;
}

/* Computes row t of `to`. */
static void dpari_mem_combine_row(const dpar_mem_combine *c, int64_t t)
{
    double x[DPARI_ELEMENTS], sum[DPARI_ELEMENTS];
    int64_t at, n, i, j;
    for (at = 0; at < c->width; at += n) {
        n = dpari_least(c->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = t * c->choices; j < t * c->choices + c->choices; j++) {
            const int64_t row = dpari_mem_row(&c->index, dpari_mem_at(&c->index, j));
            const double by =
                c->weight == NULL ? 1.0 : dpari_element_get(c->weight, c->weight_type, j);
            if (row >= 0) {
                dpari_elements_load(x, c->from, row * c->width + at, n, c->from_type);
                for (i = 0; i < n; i++) {
                    sum[i] += by * x[i];
                }
            }
        }
        dpari_elements_store(c->to, sum, t * c->width + at, n, c->to_type);
    }
}

DPARI_INTERNAL dpar_status dpari_mem_combine(void *ctx, const dpar_mem_combine *c)
{
    int64_t t;
    (void)ctx;
    if (c->rows < 0 || c->choices < 0 || c->width < 0 || !dpari_is_float(c->to_type) ||
        !dpari_is_float(c->from_type) || (c->weight != NULL && !dpari_is_wide(c->weight_type)) ||
        !dpari_mem_index_fits(&c->index, c->choices == 0 ? 0 : c->rows) ||
        (c->rows > 0 && c->width > 0 && (c->to == NULL || (c->from == NULL && c->choices > 0)))) {
        return DPAR_E_ARG;
    }
    for (t = 0; t < c->rows; t++) {
        dpari_mem_combine_row(c, t);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_mem_dot(void *ctx, const dpar_mem_dot *d)
{
    DPARI_ROW double a[DPARI_ROW_PART], b[DPARI_ROW_PART];
    const void *x, *y;
    dpari_lanes l;
    int32_t as;
    int64_t i, n, at;
    (void)ctx;
    if (d->rows < 0 || d->choices < 1 || d->width < 0 || !dpari_is_wide(d->to_type) ||
        !dpari_is_float(d->type) ||
        (d->index.at != NULL && !dpari_mem_index_fits(&d->index, d->rows)) ||
        (d->rows > 0 && (d->to == NULL || (d->width > 0 && (d->a == NULL || d->b == NULL))))) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(d->rows * d->width);
    for (i = 0; i < d->rows; i++) {
        const int64_t row =
            d->index.at == NULL ? i : dpari_mem_row(&d->index, dpari_mem_at(&d->index, i));
        double sum = 0.0;
        for (at = 0; at < d->width && row >= 0; at += n) {
            n = dpari_least(DPARI_ROW_PART, d->width - at);
            x = dpari_row_at(&l, d->a, d->type, i / d->choices * d->width + at, n, a, &as);
            y = dpari_row_at(&l, d->b, d->type, row * d->width + at, n, b, &as);
            sum += l.product(x, y, as, 0.0, n, NULL);
        }
        dpari_element_put(d->to, d->to_type, i, sum);
    }
    return DPAR_OK;
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

/* True if a token with this target is counted in the loss. */
static int dpari_entropy_counts(const dpar_mem_cross_entropy *loss, int64_t target)
{
    return target >= 0 && (loss->ignore == 0 || target != loss->ignore - 1);
}

/* Returns the address of a logit. */
static void *dpari_entropy_at(const dpar_mem_cross_entropy *loss, int64_t at)
{
    return (unsigned char *)loss->logits + at * dpar_type_bytes(loss->type);
}

/* Updates *most with the largest of logits lo .. hi - 1, and adds these logits to *sum. *first: 1
 * if *most has no value yet; set to 0. */
static void dpari_entropy_largest(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                                  int64_t lo, int64_t hi, int *first, double *most, double *sum)
{
    for (; lo < hi; lo += DPARI_ROW_PART) {
        const int64_t some = dpari_least(DPARI_ROW_PART, hi - lo);
        const void *x = dpari_entropy_at(loss, lo);
        *most = lanes->largest(x, loss->type, *first ? dpari_element_get(x, loss->type, 0) : *most,
                               some);
        *first = 0;
        *sum += lanes->total(x, loss->type, some);
    }
}

/* Returns the sum of e^(logit - most) over logits lo .. hi - 1. */
static double dpari_entropy_below(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                                  int64_t lo, int64_t hi, double most)
{
    const double by[3] = {most, 1.0, 0.0};
    double sum = 0.0;
    for (; lo < hi; lo += DPARI_ROW_PART) {
        sum += lanes->exps(NULL, dpari_entropy_at(loss, lo), loss->type, by,
                           dpari_least(DPARI_ROW_PART, hi - lo));
    }
    return sum;
}

/* Computes the three numbers of a token on this rank: the largest logit, the sum of exponentials
 * relative to it, and this rank's part of the number that the loss subtracts from lse. Smoothing is
 * linear in the logits, so it is included in the third number. */
static void dpari_entropy_part(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                               int64_t token)
{
    const int64_t at = token * loss->rows;
    const int64_t row = dpari_mem_row(&loss->target, dpari_mem_at(&loss->target, token));
    double most = 0.0, sum = 0.0, below = 0.0, own = 0.0;
    int first = 1;
    int32_t w;
    for (w = 0; w < 2; w++) {
        dpari_entropy_largest(lanes, loss, at + loss->lo[w], at + loss->hi[w], &first, &most, &sum);
    }
    for (w = 0; w < 2; w++) { /* relative to 0 if all logits are -infinity, so that sums are 0 */
        below += dpari_entropy_below(lanes, loss, at + loss->lo[w], at + loss->hi[w],
                                     most < -1.7e308 ? 0.0 : most);
    }
    if (row >= 0) {
        own = (1.0 - loss->smoothing) * dpari_element_get(loss->logits, loss->type, at + row);
    }
    if (loss->smoothing > 0.0) { /* without smoothing this could be 0 x infinity */
        own += loss->smoothing / (double)loss->vocabulary * sum;
    }
    dpari_element_put(loss->partial, loss->type, 3 * token, most);
    dpari_element_put(loss->partial, loss->type, 3 * token + 1, below);
    dpari_element_put(loss->partial, loss->type, 3 * token + 2, own);
}

/* Returns lse of a token, computed from the numbers of all ranks, or NaN if no rank has an
 * exponential above 0. Sets *subtracted to the number that the loss subtracts from lse. */
static double dpari_entropy_unite(const dpar_mem_cross_entropy *loss, int64_t token,
                                  double *subtracted)
{
    double most = 0.0, sum = 0.0, own = 0.0;
    int first = 1;
    int32_t r;
    for (r = 0; r < loss->ranks; r++) {
        const int64_t at = 3 * (r * loss->tokens + token);
        const double m = dpari_element_get(loss->all, loss->type, at);
        own += dpari_element_get(loss->all, loss->type, at + 2);
        if (!(dpari_element_get(loss->all, loss->type, at + 1) <= 0.0) && (first || m > most)) {
            most = m;
            first = 0;
        }
    }
    for (r = 0; r < loss->ranks; r++) {
        const int64_t at = 3 * (r * loss->tokens + token);
        const double s = dpari_element_get(loss->all, loss->type, at + 1);
        if (!(s <= 0.0)) {
            sum += s * dpari_exp(dpari_element_get(loss->all, loss->type, at) - most);
        }
    }
    *subtracted = own;
    return sum > 0.0 ? most + dpari_log(sum) : sum / sum;
}

static void dpari_entropy_loss(const dpar_mem_cross_entropy *loss)
{
    dpar_cross_entropy_sum made;
    double subtracted;
    int64_t i;
    dpari_zero(&made, sizeof made);
    for (i = 0; i < loss->tokens; i++) {
        const int counts = dpari_entropy_counts(loss, dpari_mem_at(&loss->target, i));
        const double lse = dpari_entropy_unite(loss, i, &subtracted);
        loss->lse[i] = lse;
        if (loss->loss != NULL) {
            loss->loss[i] = counts ? lse - subtracted + loss->z_loss * lse * lse : 0.0;
        }
        made.loss += counts ? lse - subtracted : 0.0;
        made.z_loss += counts ? loss->z_loss * lse * lse : 0.0;
        made.tokens += counts;
    }
    if (loss->sum != NULL) {
        *loss->sum = made;
    }
}

/* Replaces logits lo .. hi - 1 of a token by scale ((1 + 2 z_loss lse) exp(logit - lse) - smoothing
 * / V). by: lse, scale (1 + 2 z_loss lse), -scale smoothing / V. */
static void dpari_entropy_run(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                              int64_t lo, int64_t hi, const double *by)
{
    if (lo < hi) {
        (void)lanes->exps(dpari_entropy_at(loss, lo), dpari_entropy_at(loss, lo), loss->type, by,
                          hi - lo);
    }
}

/* Replaces the logits of a token by their gradient. Columns that are padding become 0. */
static void dpari_entropy_gradient(const dpari_lanes *lanes, const dpar_mem_cross_entropy *loss,
                                   int64_t token)
{
    const int64_t bytes = dpar_type_bytes(loss->type), at = token * loss->rows;
    const int64_t target = dpari_mem_at(&loss->target, token),
                  row = dpari_mem_row(&loss->target, target);
    const int counts = dpari_entropy_counts(loss, target);
    const double smooth = loss->scale * loss->smoothing / (double)dpari_most(1, loss->vocabulary);
    const double lse = loss->lse[token], factor = loss->scale * (1.0 + 2.0 * loss->z_loss * lse);
    double hot = row >= 0 ? dpari_element_get(loss->logits, loss->type, at + row) : 0.0;
    unsigned char *line = (unsigned char *)loss->logits + at * bytes;
    const double by[3] = {lse, factor, -smooth};
    int64_t done = 0; /* number of columns that were written */
    int32_t w;
    for (w = 0; w < 2; w++) {
        const int64_t lo = loss->lo[w], hi = counts ? loss->hi[w] : lo;
        dpari_zero(line + done * bytes, (size_t)((lo - done) * bytes));
        dpari_entropy_run(lanes, loss, at + lo, at + hi, by);
        done = hi;
    }
    dpari_zero(line + done * bytes, (size_t)((loss->rows - done) * bytes));
    if (row >= 0 && counts) { /* computed from the logit in f64, because the terms nearly cancel */
        hot = factor * dpari_exp(hot - lse) - smooth - loss->scale * (1.0 - loss->smoothing);
        dpari_element_put(loss->logits, loss->type, at + row, hot);
    }
}

static int dpari_entropy_fits(const dpar_mem_cross_entropy *loss)
{
    const int some = loss->tokens > 0, wide = some && loss->rows > 0;
    if (loss->tokens < 0 || loss->rows < 0 || !dpari_is_wide(loss->type) || loss->lo[0] < 0 ||
        loss->hi[0] < loss->lo[0] || loss->lo[1] < loss->hi[0] || loss->hi[1] < loss->lo[1] ||
        loss->hi[1] > loss->rows || !dpari_mem_index_fits(&loss->target, loss->tokens) ||
        !(loss->smoothing >= 0.0) || loss->smoothing > 1.0) {
        return 0;
    }
    switch (loss->phase) {
    case DPAR_MEM_CROSS_ENTROPY_PART:
        return !(wide && loss->logits == NULL) && !(some && loss->partial == NULL);
    case DPAR_MEM_CROSS_ENTROPY_LOSS:
        return loss->ranks > 0 && !(some && (loss->all == NULL || loss->lse == NULL));
    case DPAR_MEM_CROSS_ENTROPY_GRADIENT:
        return !(wide && loss->logits == NULL) && !(some && loss->lse == NULL);
    default: return 0;
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_mem_cross_entropy(void *ctx,
                                                              const dpar_mem_cross_entropy *loss)
{
    dpari_lanes l;
    int64_t i;
    (void)ctx;
    if (!dpari_entropy_fits(loss)) {
        return DPAR_E_ARG;
    }
    if (loss->phase == DPAR_MEM_CROSS_ENTROPY_LOSS) {
        dpari_entropy_loss(loss);
        return DPAR_OK;
    }
    l = dpari_lanes_for(loss->tokens * loss->rows);
    for (i = 0; i < loss->tokens; i++) {
        if (loss->phase == DPAR_MEM_CROSS_ENTROPY_PART) {
            dpari_entropy_part(&l, loss, i);
        } else {
            dpari_entropy_gradient(&l, loss, i);
        }
    }
    return DPAR_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

/* Merges rows i .. i + rows - 1 into out and lse. less[k] is e^(smaller lse - larger lse), and
 * more[k] is log(1 + less[k]). */
static void dpari_merge_rows(const dpari_lanes *lanes, const dpar_mem_attention_merge *m, int64_t i,
                             int64_t rows)
{
    const double nothing = -1e30; /* the lse of a query that sees no key is at most this */
    const double by[3] = {0.0, 1.0, 0.0};
    const int64_t bytes = m->values * dpar_type_bytes(m->type);
    DPARI_ROW double less[DPARI_ROW_PART], more[DPARI_ROW_PART];
    int64_t k;
    less[0] = 0.0; /* gcc -O1 does not see that rows is above 0, and warns */
    for (k = 0; k < rows; k++) {
        const double a = dpari_element_get(m->lse, m->type, i + k);
        const double b = dpari_element_get(m->more_lse, m->type, i + k);
        less[k] = a > b ? b - a : a - b;
    }
    (void)lanes->exps(less, less, DPAR_F64, by, rows);
    dpari_kern_copy(more, less, rows * 8, 0);
    lanes->logs(more, rows);
    for (k = 0; k < rows; k++) {
        const double a = dpari_element_get(m->lse, m->type, i + k);
        const double b = dpari_element_get(m->more_lse, m->type, i + k);
        const double larger = 1.0 / (1.0 + less[k]), lesser = less[k] / (1.0 + less[k]);
        unsigned char *y = (unsigned char *)m->out + (i + k) * bytes;
        const unsigned char *x = (const unsigned char *)m->more + (i + k) * bytes;
        if (a <= nothing && !(b <= nothing)) {
            dpari_kern_copy(y, x, bytes, 0);
            dpari_element_put(m->lse, m->type, i + k, b);
        } else if (!(b <= nothing)) { /* also if b is NaN, which must not be lost */
            const double own = a > b ? larger : lesser;
            const double added = a > b ? lesser : larger;
            dpari_row_add(lanes, m->type, y, own, added, x, m->values);
            dpari_element_put(m->lse, m->type, i + k, (a > b ? a : b) + more[k]);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_mem_attention_merge(void *ctx, const dpar_mem_attention_merge *m)
{
    dpari_lanes l;
    int64_t i;
    (void)ctx;
    if (!dpari_is_wide(m->type) || m->rows < 0 || m->values < 0 ||
        (m->rows > 0 && (m->lse == NULL || m->more_lse == NULL)) ||
        (m->rows > 0 && m->values > 0 && (m->out == NULL || m->more == NULL))) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(m->rows * m->values);
    for (i = 0; i < m->rows; i += DPARI_ROW_PART) {
        dpari_merge_rows(&l, m, i, dpari_least(DPARI_ROW_PART, m->rows - i));
    }
    return DPAR_OK;
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* Returns the scale for elements lo .. hi - 1. */
static float dpari_quant_scale(const dpari_lanes *lanes, const dpar_mem_quantize *call, int64_t lo,
                               int64_t hi)
{
    const uint32_t nan = 0x7fc00000u;
    float room[DPARI_ELEMENTS], scale;
    uint32_t most = 0;
    int64_t i;
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        const uint32_t size = lanes->size(dpari_quant_read(call, i, n, room), n);
        most = size > most ? size : most;
    }
    dpari_elements_bits(&scale, most < 0x7f800000u ? &most : &nan, 4);
    scale /= call->code_type == DPAR_I8 ? 127.0f : 448.0f;
    return scale < 1.1754944e-38f ? 0.0f : scale;
}

/* Quantizes block b. */
static void dpari_quant_block(const dpari_lanes *lanes, const dpar_mem_quantize *call, int64_t b)
{
    const int64_t lo = b * call->block, hi = dpari_least(lo + call->block, call->count);
    const float scale = dpari_quant_scale(lanes, call, lo, hi);
    unsigned char *code = (unsigned char *)call->code + b * call->code_step;
    float room[DPARI_ELEMENTS];
    int64_t i;
    dpari_elements_bits((unsigned char *)call->scale + b * call->scale_step, &scale, 4);
    if (!(scale > 0.0f)) {
        dpari_zero(code, (size_t)(hi - lo));
        return;
    }
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        lanes->codes(code + (i - lo), dpari_quant_read(call, i, n, room), scale, n,
                     call->code_type);
    }
}

/* Returns the codes and scales of a call in the form of vector_loops.h. */
static dpari_lanes_blocks dpari_quant_blocks(const dpar_mem_quantize *call)
{
    dpari_lanes_blocks b;
    b.code = (const unsigned char *)call->code;
    b.scale = (const unsigned char *)call->scale;
    b.code_step = call->code_step;
    b.scale_step = call->scale_step;
    b.block = call->block;
    b.count = call->count;
    b.type = call->code_type;
    b.add = call->accumulate;
    return b;
}

/* Dequantizes block b into a type other than F32. */
DPARI_STATIC_NOINLINE void dpari_quant_values(const dpari_lanes *lanes,
                                              const dpar_mem_quantize *call, int64_t b)
{
    const int64_t lo = b * call->block, hi = dpari_least(lo + call->block, call->count);
    dpari_lanes_blocks part = dpari_quant_blocks(call);
    double x[DPARI_ELEMENTS];
    float v[DPARI_ELEMENTS];
    int64_t i;
    part.code += b * call->code_step;
    part.scale += b * call->scale_step;
    part.add = 0;
    for (i = lo; i < hi; i += DPARI_ELEMENTS, part.code += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        part.block = part.count = n;
        lanes->values(v, &part);
        lanes->widen(x, v, n);
        dpari_quant_give(call, x, i, n);
    }
}

static int dpari_quant_fits(const dpar_mem_quantize *call)
{
    if (call->count < 0 || !dpari_is_float(call->type) ||
        (call->accumulate != 0 && call->accumulate != 1) ||
        (call->count > 0 && (call->x == NULL || call->code == NULL || call->scale == NULL))) {
        return 0;
    }
    if (call->format != 0) {
        return dpari_micro_fits(call);
    }
    return call->block >= 1 && (call->code_type == DPAR_I8 || call->code_type == DPAR_F8) &&
           call->code_step >= call->block && call->scale_step >= 4 && call->scale_step % 4 == 0;
}

/* Returns the number of blocks. */
static int64_t dpari_quant_count(const dpar_mem_quantize *call)
{
    return dpari_ceil_div(call->count,
                          call->format != 0 ? dpari_micro_elements(call->format) : call->block);
}

DPARI_INTERNAL dpar_status dpari_mem_quantize(void *ctx, const dpar_mem_quantize *call)
{
    dpari_lanes l;
    int64_t b, blocks;
    (void)ctx;
    if (!dpari_quant_fits(call) || call->accumulate) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(call->count);
    blocks = dpari_quant_count(call);
    for (b = 0; b < blocks; b++) {
        if (call->format != 0) {
            dpari_micro_block(call, b);
        } else {
            dpari_quant_block(&l, call, b);
        }
    }
    return DPAR_OK;
}

/* Dequantizes. F32 is accumulated in f32, which gives the same bits as in f64: if the sum of two
 * F32 numbers is computed in f64 and then rounded, it equals their sum in f32 (Figueroa 1995). */
DPARI_INTERNAL dpar_status dpari_mem_dequantize(void *ctx, const dpar_mem_quantize *call)
{
    dpari_lanes l;
    dpari_lanes_blocks all;
    int64_t b, blocks;
    (void)ctx;
    if (!dpari_quant_fits(call)) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(call->count);
    blocks = dpari_quant_count(call);
    if (call->type == DPAR_F32 && call->format == 0) {
        all = dpari_quant_blocks(call);
        l.values((float *)call->x, &all);
        return DPAR_OK;
    }
    for (b = 0; b < blocks; b++) {
        if (call->format != 0) {
            dpari_micro_unblock(call, b);
        } else {
            dpari_quant_values(&l, call, b);
        }
    }
    return DPAR_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_mem_layers dpar_mem_host_layers(void)
{
    dpar_mem_layers l;
    l.squares = dpari_mem_squares;
    l.clip = dpari_mem_clip;
    l.optimize = dpari_mem_optimize;
    l.round = dpari_mem_round;
    l.gather = dpari_mem_gather;
    l.scatter = dpari_mem_scatter;
    l.combine = dpari_mem_combine;
    l.dot = dpari_mem_dot;
    l.cross_entropy = dpari_mem_cross_entropy;
    l.attention_merge = dpari_mem_attention_merge;
    l.moments = dpari_mem_moments;
    l.norm = dpari_mem_norm;
    l.quantize = dpari_mem_quantize;
    l.dequantize = dpari_mem_dequantize;
    return l;
}
