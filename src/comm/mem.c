/* SPDX-License-Identifier: MIT-0 */
#include "mem.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "elements.h"
#include "kernel.h"
#include "mem_run.h"
#include "../train/sequence.h"
#include "../spatial/spatial.h"
#include "strided.h"
#include "../train/tensor.h"

/* ---- boxes ----------------------------------------------------------------------------------- */

DPAR_API void dpar_mem_move_box(const dpar_mem_box *box)
{
    dpari_stride_piece p;
    dpari_stride s;
    int32_t d;
    dpari_zero(&p, sizeof p);
    p.dims = box->dims;
    p.to_type = box->to_type;
    p.from_type = box->from_type;
    p.through = box->through;
    p.op = box->op;
    p.negate = box->negate;
    p.clear = box->clear;
    for (d = 0; d < box->dims; d++) {
        p.extent[d] = box->extent[d];
        p.to[d] = box->to_stride[d];
        p.from[d] = box->from_stride[d];
    }
    dpari_stride_prepare(&s, &p);
    dpari_stride_run(&s, box->to, box->from);
}

static dpar_status dpari_mem_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    int32_t i;
    (void)ctx;
    for (i = 0; i < n; i++) {
        dpar_mem_move_box(&boxes[i]);
    }
    return DPAR_OK;
}

/* ---- spans ----------------------------------------------------------------------------------- */

static int dpari_mem_span_fits(const dpar_mem_span *s)
{
    const int floats = dpari_is_float(s->to_type) && dpari_is_float(s->from_type);
    const int one = s->scale >= 1.0 && s->scale <= 1.0, none = s->scale >= 0.0 && s->scale <= 0.0;
    if (s->count < 0 || (s->add != 0 && s->add != 1) || dpar_type_bytes(s->to_type) == 0 ||
        (s->stochastic != 0 && s->stochastic != 1) || (s->count > 0 && s->to == NULL)) {
        return 0;
    }
    if (s->stochastic) {
        return s->to_type == DPAR_BF16 && !s->add && (s->from == NULL || floats);
    }
    if (s->from == NULL) {
        return dpari_is_float(s->to_type) || (none && !s->add);
    }
    return floats || (s->to_type == s->from_type && one && !s->add);
}

/* As DPARI_ELEMENTS doubles each. */
static void dpari_mem_span_some(const dpar_mem_span *s)
{
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS] = {0.0};
    float f[DPARI_ELEMENTS];
    int64_t i, k;
    for (i = 0; i < s->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, s->count - i);
        for (k = 0; k < DPARI_ELEMENTS; k++) {
            x[k] = 1.0;
        }
        if (s->from != NULL) {
            dpari_elements_load(x, s->from, i, n, s->from_type);
        }
        for (k = 0; k < n; k++) {
            x[k] *= s->scale;
        }
        if (s->add) {
            dpari_elements_load(y, s->to, i, n, s->to_type);
            for (k = 0; k < n; k++) {
                x[k] = y[k] + x[k];
            }
        }
        if (s->stochastic) {
            dpari_elements_store(f, x, 0, n, DPAR_F32);
            dpar_round_bf16((unsigned char *)s->to + 2 * i, f, n, s->seed, s->stream,
                            s->index + (uint64_t)i);
        } else {
            dpari_elements_store(s->to, x, i, n, s->to_type);
        }
    }
}

static void dpari_mem_span_one(const dpar_mem_span *s)
{
    const int32_t a = s->to_type, b = s->from_type, bytes = dpar_type_bytes(a);
    const int plain = s->scale >= 1.0 && s->scale <= 1.0 && !s->add && s->from != NULL;
    const int apart = s->to != s->from;
    if (plain && s->stochastic && b == DPAR_F32) {
        dpar_round_bf16(s->to, s->from, s->count, s->seed, s->stream, s->index);
    } else if (plain && !s->stochastic && a == b) {
        dpari_kern_copy(s->to, s->from, s->count * bytes, 0);
    } else if (plain && !s->stochastic && apart && (a == DPAR_F32) != (b == DPAR_F32)) {
        dpari_kern_convert(s->to, a, s->from, b, s->count);
    } else if (s->from == NULL && !s->add && !s->stochastic && s->scale >= 0.0 && s->scale <= 0.0) {
        dpari_zero(s->to, (size_t)(s->count * bytes));
    } else {
        dpari_mem_span_some(s);
    }
}

DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    int32_t i;
    (void)ctx;
    for (i = 0; i < n; i++) {
        if (!dpari_mem_span_fits(&spans[i])) {
            return DPAR_E_ARG;
        }
    }
    for (i = 0; i < n; i++) {
        dpari_mem_span_one(&spans[i]);
    }
    return DPAR_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Elements i .. i + n - 1 of a part, as `sums`. */
static void dpari_mem_load(void *to, int32_t sums, const void *from, int32_t type, int64_t i,
                           int64_t n)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    if (sums == DPAR_F64) {
        dpari_elements_load((double *)to, from, i, n, type);
    } else if (type == DPAR_F32) {
        dpari_kern_copy(to, at, n * 4, 0);
    } else {
        dpari_kern_convert(to, DPAR_F32, at, type, n);
    }
}

/* What is done with n results in f64 or f32: (x / parts) scale + what is there. */
static void dpari_mem_reduce_end(const dpar_mem_reduce *r, double *x, int64_t i, int64_t n)
{
    double y[DPARI_ELEMENTS] = {0.0};
    float *f = (float *)(void *)x, g;
    const int one = r->scale >= 1.0 && r->scale <= 1.0;
    const float scale = (float)r->scale, parts = (float)r->parts;
    int64_t k;
    if (r->add) {
        dpari_elements_load(y, r->to, i, n, r->to_type);
    }
    for (k = 0; k < n && r->sums == DPAR_F64; k++) {
        x[k] = r->op == DPAR_AVG && r->parts > 1 ? x[k] / (double)r->parts : x[k];
        x[k] = one ? x[k] : x[k] * r->scale;
        x[k] = r->add ? y[k] + x[k] : x[k];
    }
    for (k = 0; k < n && r->sums != DPAR_F64; k++) {
        g = r->op == DPAR_AVG && r->parts > 1 ? f[k] / parts : f[k];
        g = one ? g : g * scale;
        f[k] = r->add ? (float)y[k] + g : g;
    }
    if (r->sums == DPAR_F64) {
        dpari_elements_store(r->to, x, i, n, r->to_type);
    } else if (r->to_type == DPAR_F32) {
        dpari_kern_copy((unsigned char *)r->to + 4 * i, f, n * 4, 0);
    } else {
        dpari_kern_convert((unsigned char *)r->to + 2 * i, r->to_type, f, DPAR_F32, n);
    }
}

DPARI_API dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *r)
{
    const int32_t op = r->op == DPAR_AVG ? DPAR_SUM : r->op, bytes = dpar_type_bytes(r->from_type);
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS];
    void *const out[1] = {x};
    const void *in[2];
    int64_t i, p;
    (void)ctx;
    if (r->count < 0 || r->parts < 1 || (r->stride != 0 && r->stride < r->count) ||
        !dpari_is_float(r->to_type) || !dpari_is_float(r->from_type) || !dpari_is_wide(r->sums) ||
        (r->sums == DPAR_F32 && (r->to_type == DPAR_F64 || r->from_type == DPAR_F64)) ||
        r->op < DPAR_SUM || r->op > DPAR_MIN || (r->add != 0 && r->add != 1) ||
        (r->count > 0 && (r->to == NULL || r->from == NULL))) {
        return DPAR_E_ARG;
    }
    in[0] = x;
    in[1] = y;
    for (i = 0; i < r->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, r->count - i);
        dpari_mem_load(x, r->sums, r->from, r->from_type, i, n);
        for (p = 1; p < r->parts; p++) {
            const unsigned char *part = (const unsigned char *)r->from + p * r->stride * bytes;
            dpari_mem_load(y, r->sums, part, r->from_type, i, n);
            dpari_kern_reduce(out, 1, in, 2, n, r->sums, op, 0);
        }
        dpari_mem_reduce_end(r, x, i, n);
    }
    return DPAR_OK;
}

static dpar_status dpari_mem_finite(void *ctx, const dpar_mem_finite *f)
{
    int64_t at;
    (void)ctx;
    if (f->count < 0 || !dpari_is_float(f->type) || f->found == NULL ||
        (f->count > 0 && f->in == NULL) || (f->keep != 0 && f->keep != 1)) {
        return DPAR_E_ARG;
    }
    if (f->keep && *f->found >= 0) {
        return DPAR_OK;
    }
    at = dpari_kern_finite(f->in, f->count, f->type);
    *f->found = at < f->count ? f->first + at : -1;
    return DPAR_OK;
}

static dpar_status dpari_mem_squares(void *ctx, const dpar_mem_squares *s)
{
    double sum;
    (void)ctx;
    if (s->count < 0 || !dpari_is_float(s->type) || s->sum == NULL ||
        (s->count > 0 && s->in == NULL) || (s->add != 0 && s->add != 1)) {
        return DPAR_E_ARG;
    }
    sum = dpar_sum_squares(s->in, s->count, s->type);
    *s->sum = s->add ? *s->sum + sum : sum;
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

/* F32 from its halves, and back. */
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

/* Weights in two halves: some at a time become F32. */
static dpar_status dpari_mem_optimize_halves(const dpar_mem_optimize *o, double factor)
{
    const dpar_optimizer_piece *all = o->piece;
    const int64_t size = dpar_type_bytes(all->gradient_type);
    uint16_t *high = (uint16_t *)all->weight;
    float w[DPARI_ELEMENTS];
    int32_t type = 0;
    dpar_status st = dpar_optimizer_check(o->optimizer, DPAR_F32, NULL, &type, NULL);
    const int64_t moment = dpar_type_bytes(type);
    int64_t i;
    for (i = 0; i < all->count && st == DPAR_OK; i += DPARI_ELEMENTS) {
        dpar_optimizer_piece p = *all;
        p.count = dpari_least(DPARI_ELEMENTS, all->count - i);
        p.weight = w;
        p.weight_type = DPAR_F32;
        p.gradient = (const unsigned char *)all->gradient + i * size;
        p.m = all->m == NULL ? NULL : (unsigned char *)all->m + i * moment;
        p.v = all->v == NULL ? NULL : (unsigned char *)all->v + i * moment;
        dpari_mem_join(w, high + i, o->rest + i, p.count);
        st = dpar_optimizer_step(o->optimizer, &p, o->t, o->rate, factor);
        dpari_mem_halve(high + i, o->rest + i, w, p.count);
    }
    return st;
}

static dpar_status dpari_mem_optimize(void *ctx, const dpar_mem_optimize *o)
{
    const dpar_optimizer_piece *p = o->piece;
    const double factor = o->factor_at != NULL ? o->factor * *o->factor_at : o->factor;
    dpar_optimizer_piece none;
    dpar_status st;
    if (p == NULL || o->optimizer == NULL ||
        (o->rest != NULL &&
         (p->weight_type != DPAR_BF16 || o->optimizer->stochastic || o->copy != NULL))) {
        return DPAR_E_ARG;
    }
    if (o->copy != NULL && o->copy_type != DPAR_BF16 && o->copy_type != DPAR_F16 &&
        o->copy_type != DPAR_F32) {
        return DPAR_E_ARG;
    }
    none = *p;
    none.count = o->rest != NULL && p->count >= 0 ? 0 : p->count; /* is it in the domain? */
    st = dpar_optimizer_step(o->optimizer, &none, o->t, o->rate, factor);
    if (st == DPAR_OK && o->rest != NULL) {
        st = dpari_mem_optimize_halves(o, factor);
    }
    if (st == DPAR_OK && o->copy != NULL) {
        dpar_mem_span s;
        dpari_zero(&s, sizeof s);
        s.to = o->copy;
        s.from = p->weight;
        s.count = p->count;
        s.to_type = o->copy_type;
        s.from_type = p->weight_type;
        s.scale = 1.0;
        s.stochastic = o->optimizer->stochastic && o->copy_type == DPAR_BF16;
        s.seed = o->optimizer->seed;
        s.stream = (uint64_t)o->t;
        s.index = p->index;
        st = dpari_mem_span(ctx, &s, 1);
    }
    return st;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static int dpari_mem_index_fits(const dpar_mem_index *x, int64_t rows)
{
    return (x->type == DPAR_I32 || x->type == DPAR_I64) && x->windows >= 0 && x->windows <= 2 &&
           (x->at != NULL || rows == 0);
}

static int64_t dpari_mem_at(const dpar_mem_index *x, int64_t i)
{
    return x->type == DPAR_I32 ? ((const int32_t *)x->at)[i] : ((const int64_t *)x->at)[i];
}

/* The row of a number, below 0: none. */
static int64_t dpari_mem_row(const dpar_mem_index *x, int64_t number)
{
    int32_t w;
    for (w = 0; w < x->windows; w++) {
        if (number >= x->lo[w] && number < x->hi[w]) {
            return x->row[w] + (number - x->lo[w]);
        }
    }
    return x->windows == 0 ? number : -1;
}

DPARI_API dpar_status dpari_mem_gather(void *ctx, const dpar_mem_gather *g)
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

DPARI_API dpar_status dpari_mem_scatter(void *ctx, const dpar_mem_scatter *s)
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

/* One row of `to`. */
static void dpari_mem_combine_row(const dpar_mem_combine *c, int64_t t)
{
    double x[DPARI_ELEMENTS], sum[DPARI_ELEMENTS];
    int64_t at, n, i, j;
    for (at = 0; at < c->width; at += n) {
        n = dpari_least(c->width - at, DPARI_ELEMENTS);
        dpari_zero(sum, sizeof sum);
        for (j = t * c->k; j < t * c->k + c->k; j++) {
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

static dpar_status dpari_mem_combine(void *ctx, const dpar_mem_combine *c)
{
    int64_t t;
    (void)ctx;
    if (c->rows < 0 || c->k < 0 || c->width < 0 || !dpari_is_float(c->to_type) ||
        !dpari_is_float(c->from_type) || (c->weight != NULL && !dpari_is_wide(c->weight_type)) ||
        !dpari_mem_index_fits(&c->index, c->k == 0 ? 0 : c->rows) ||
        (c->rows > 0 && c->width > 0 && (c->to == NULL || (c->from == NULL && c->k > 0)))) {
        return DPAR_E_ARG;
    }
    for (t = 0; t < c->rows; t++) {
        dpari_mem_combine_row(c, t);
    }
    return DPAR_OK;
}

static dpar_status dpari_mem_dot(void *ctx, const dpar_mem_dot *d)
{
    double a[DPARI_ELEMENTS] = {0.0}, b[DPARI_ELEMENTS] = {0.0};
    int64_t i, j, n, at;
    (void)ctx;
    if (d->rows < 0 || d->k < 1 || d->width < 0 || !dpari_is_wide(d->to_type) ||
        !dpari_is_float(d->type) ||
        (d->index.at != NULL && !dpari_mem_index_fits(&d->index, d->rows)) ||
        (d->rows > 0 && (d->to == NULL || (d->width > 0 && (d->a == NULL || d->b == NULL))))) {
        return DPAR_E_ARG;
    }
    for (i = 0; i < d->rows; i++) {
        const int64_t row =
            d->index.at == NULL ? i : dpari_mem_row(&d->index, dpari_mem_at(&d->index, i));
        double sum = 0.0;
        for (at = 0; at < d->width && row >= 0; at += n) {
            n = dpari_least(DPARI_ELEMENTS, d->width - at);
            dpari_elements_load(a, d->a, i / d->k * d->width + at, n, d->type);
            dpari_elements_load(b, d->b, row * d->width + at, n, d->type);
            for (j = 0; j < n; j++) {
                sum += a[j] * b[j];
            }
        }
        dpari_element_put(d->to, d->to_type, i, sum);
    }
    return DPAR_OK;
}

/* ---- cross-entropy --------------------------------------------------------------------------- */

static int dpari_xent_counts(const dpar_mem_xent *e, int64_t target)
{
    return target >= 0 && (e->ignore == 0 || target != e->ignore - 1);
}

/* Some elements of a row as doubles, so that the loops over them know no type. */
enum { DPARI_XENT_SOME = 256 };
static int32_t dpari_xent_read(const dpar_mem_xent *e, int64_t at, int64_t hi, double *to)
{
    const int32_t some = (int32_t)dpari_least(DPARI_XENT_SOME, hi - at);
    int32_t i;
    if (e->type == DPAR_F64) {
        for (i = 0; i < some; i++) {
            to[i] = ((const double *)e->logits)[at + i];
        }
    } else {
        for (i = 0; i < some; i++) {
            to[i] = (double)((const float *)e->logits)[at + i];
        }
    }
    return some;
}

/* The largest of a run, of all that came before (first: none did) too; their sum is added. */
static void dpari_xent_largest(const dpar_mem_xent *e, int64_t lo, int64_t hi, int *first,
                               double *most, double *sum)
{
    double part[DPARI_XENT_SOME];
    int32_t i, some;
    for (; lo < hi; lo += some) {
        some = dpari_xent_read(e, lo, hi, part);
        if (*first) {
            *most = part[0];
            *first = 0;
        }
        for (i = 0; i < some; i++) {
            *most = part[i] > *most ? part[i] : *most;
            *sum += part[i];
        }
    }
}

static double dpari_xent_below(const dpar_mem_xent *e, int64_t lo, int64_t hi, double most)
{
    double part[DPARI_XENT_SOME], sum = 0.0;
    int32_t i, some;
    for (; lo < hi; lo += some) {
        some = dpari_xent_read(e, lo, hi, part);
        for (i = 0; i < some; i++) {
            sum += dpari_exp(part[i] - most);
        }
    }
    return sum;
}

/* Smoothing is linear in the logits: it needs no number of its own. */
static void dpari_xent_part(const dpar_mem_xent *e, int64_t token)
{
    const int64_t at = token * e->rows;
    const int64_t row = dpari_mem_row(&e->target, dpari_mem_at(&e->target, token));
    double most = 0.0, sum = 0.0, below = 0.0, own = 0.0;
    int first = 1;
    int32_t w;
    for (w = 0; w < 2; w++) {
        dpari_xent_largest(e, at + e->lo[w], at + e->hi[w], &first, &most, &sum);
    }
    for (w = 0; w < 2; w++) { /* all of them -infinity: sums of 0 */
        below += dpari_xent_below(e, at + e->lo[w], at + e->hi[w], most < -1.7e308 ? 0.0 : most);
    }
    if (row >= 0) {
        own = (1.0 - e->smoothing) * dpari_element_get(e->logits, e->type, at + row);
    }
    if (e->smoothing > 0.0) { /* else 0 x infinity */
        own += e->smoothing / (double)e->vocabulary * sum;
    }
    dpari_element_put(e->own, e->type, 3 * token, most);
    dpari_element_put(e->own, e->type, 3 * token + 1, below);
    dpari_element_put(e->own, e->type, 3 * token + 2, own);
}

/* From all ranks' numbers of a token: lse, and what is subtracted. 0 exponentials: NaN. */
static double dpari_xent_unite(const dpar_mem_xent *e, int64_t token, double *subtracted)
{
    double most = 0.0, sum = 0.0, own = 0.0;
    int first = 1;
    int32_t r;
    for (r = 0; r < e->ranks; r++) {
        const int64_t at = 3 * (r * e->tokens + token);
        const double m = dpari_element_get(e->all, e->type, at);
        own += dpari_element_get(e->all, e->type, at + 2);
        if (!(dpari_element_get(e->all, e->type, at + 1) <= 0.0) && (first || m > most)) {
            most = m;
            first = 0;
        }
    }
    for (r = 0; r < e->ranks; r++) {
        const int64_t at = 3 * (r * e->tokens + token);
        const double s = dpari_element_get(e->all, e->type, at + 1);
        if (!(s <= 0.0)) {
            sum += s * dpari_exp(dpari_element_get(e->all, e->type, at) - most);
        }
    }
    *subtracted = own;
    return sum > 0.0 ? most + dpari_log(sum) : sum / sum;
}

static void dpari_xent_loss(const dpar_mem_xent *e)
{
    dpar_cross_entropy_sum made;
    double subtracted;
    int64_t i;
    dpari_zero(&made, sizeof made);
    for (i = 0; i < e->tokens; i++) {
        const int counts = dpari_xent_counts(e, dpari_mem_at(&e->target, i));
        const double lse = dpari_xent_unite(e, i, &subtracted);
        e->lse[i] = lse;
        if (e->loss != NULL) {
            e->loss[i] = counts ? lse - subtracted + e->z * lse * lse : 0.0;
        }
        made.loss += counts ? lse - subtracted : 0.0;
        made.z += counts ? e->z * lse * lse : 0.0;
        made.tokens += counts;
    }
    if (e->sum != NULL) {
        *e->sum = made;
    }
}

/* One run of a token's row becomes scale ((1 + 2 z lse) exp(logit - lse) - smoothing / V). */
static void dpari_xent_run(const dpar_mem_xent *e, int64_t lo, int64_t hi, double lse,
                           double factor, double smooth)
{
    double part[DPARI_XENT_SOME];
    int32_t i, some;
    for (; lo < hi; lo += some) {
        some = dpari_xent_read(e, lo, hi, part);
        for (i = 0; i < some; i++) {
            dpari_element_put(e->logits, e->type, lo + i,
                              factor * dpari_exp(part[i] - lse) - smooth);
        }
    }
}

static void dpari_xent_gradient(const dpar_mem_xent *e, int64_t token)
{
    const int64_t bytes = dpar_type_bytes(e->type), at = token * e->rows;
    const int64_t target = dpari_mem_at(&e->target, token), row = dpari_mem_row(&e->target, target);
    const int counts = dpari_xent_counts(e, target);
    const double smooth = e->scale * e->smoothing / (double)dpari_most(1, e->vocabulary);
    const double lse = e->lse[token], factor = e->scale * (1.0 + 2.0 * e->z * lse);
    double hot = row >= 0 ? dpari_element_get(e->logits, e->type, at + row) : 0.0;
    unsigned char *line = (unsigned char *)e->logits + at * bytes;
    int64_t done = 0; /* columns that stand for tokens and come before */
    int32_t w;
    for (w = 0; w < 2; w++) {
        const int64_t lo = e->lo[w], hi = counts ? e->hi[w] : lo;
        dpari_zero(line + done * bytes, (size_t)((lo - done) * bytes));
        dpari_xent_run(e, at + lo, at + hi, lse, factor, smooth);
        done = hi;
    }
    dpari_zero(line + done * bytes, (size_t)((e->rows - done) * bytes));
    if (row >= 0 && counts) { /* in f64: they nearly cancel */
        hot = factor * dpari_exp(hot - lse) - smooth - e->scale * (1.0 - e->smoothing);
        dpari_element_put(e->logits, e->type, at + row, hot);
    }
}

static int dpari_xent_fits(const dpar_mem_xent *e)
{
    const int some = e->tokens > 0, wide = some && e->rows > 0;
    if (e->tokens < 0 || e->rows < 0 || !dpari_is_wide(e->type) || e->lo[0] < 0 ||
        e->hi[0] < e->lo[0] || e->lo[1] < e->hi[0] || e->hi[1] < e->lo[1] || e->hi[1] > e->rows ||
        !dpari_mem_index_fits(&e->target, e->tokens) || !(e->smoothing >= 0.0) ||
        e->smoothing > 1.0) {
        return 0;
    }
    switch (e->phase) {
    case DPAR_MEM_XENT_PART: return !(wide && e->logits == NULL) && !(some && e->own == NULL);
    case DPAR_MEM_XENT_LOSS: return e->ranks > 0 && !(some && (e->all == NULL || e->lse == NULL));
    case DPAR_MEM_XENT_GRADIENT: return !(wide && e->logits == NULL) && !(some && e->lse == NULL);
    default: return 0;
    }
}

DPARI_API dpar_status dpari_mem_xent(void *ctx, const dpar_mem_xent *e)
{
    int64_t i;
    (void)ctx;
    if (!dpari_xent_fits(e)) {
        return DPAR_E_ARG;
    }
    if (e->phase == DPAR_MEM_XENT_LOSS) {
        dpari_xent_loss(e);
        return DPAR_OK;
    }
    for (i = 0; i < e->tokens; i++) {
        if (e->phase == DPAR_MEM_XENT_PART) {
            dpari_xent_part(e, i);
        } else {
            dpari_xent_gradient(e, i);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_mem_merge(void *ctx, const dpar_mem_merge *m)
{
    (void)ctx;
    if (!dpari_is_wide(m->type) || m->rows < 0 || m->values < 0 ||
        (m->rows > 0 && (m->lse == NULL || m->more_lse == NULL)) ||
        (m->rows > 0 && m->values > 0 && (m->out == NULL || m->more == NULL))) {
        return DPAR_E_ARG;
    }
    dpar_attention_merge(m->type, m->rows, m->values, m->out, m->lse, m->more, m->more_lse);
    return DPAR_OK;
}

/* ---- moments --------------------------------------------------------------------------------- */

enum { DPARI_MOMENTS_PART = 256 };

/* In four chains: an addition takes longer than it takes to begin one. */
DPARI_API double dpari_moments_total(const double *x, int64_t count)
{
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
    int64_t i;
    for (i = 0; i + 4 <= count; i += 4) {
        a += x[i];
        b += x[i + 1];
        c += x[i + 2];
        d += x[i + 3];
    }
    for (; i < count; i++) {
        a += x[i];
    }
    return (a + b) + (c + d);
}

/* As memcpy, for rows that are too short for a call of it. Four at a time are read before they are
 * written: so compilers take them together, whether or not `to` may be `from`. */
DPARI_API void dpari_moments_copy(double *to, const double *from, int64_t count)
{
    int64_t i;
    for (i = 0; i + 4 <= count; i += 4) {
        const double a = from[i], b = from[i + 1], c = from[i + 2], d = from[i + 3];
        to[i] = a;
        to[i + 1] = b;
        to[i + 2] = c;
        to[i + 3] = d;
    }
    for (; i < count; i++) {
        to[i] = from[i];
    }
}

/* Some elements of a row as doubles; floats as above. */
DPARI_API void dpari_moments_read(const void *x, int32_t type, int64_t at, int64_t step,
                                  int64_t count, double *to)
{
    int64_t i;
    if (type == DPAR_F64 && step == 1) {
        dpari_moments_copy(to, (const double *)x + at, count);
    } else if (type == DPAR_F64) {
        const double *from = (const double *)x + at;
        for (i = 0; i < count; i++) {
            to[i] = from[i * step];
        }
    } else if (type == DPAR_F32 && step == 1) {
        const float *from = (const float *)x + at;
        for (i = 0; i + 4 <= count; i += 4) {
            const double p = (double)from[i], q = (double)from[i + 1];
            const double r = (double)from[i + 2], s = (double)from[i + 3];
            to[i] = p;
            to[i + 1] = q;
            to[i + 2] = r;
            to[i + 3] = s;
        }
        for (; i < count; i++) {
            to[i] = (double)from[i];
        }
    } else if (type == DPAR_F32) {
        const float *from = (const float *)x + at;
        for (i = 0; i < count; i++) {
            to[i] = (double)from[i * step];
        }
    } else {
        for (i = 0; i < count; i++) {
            dpari_elements_load(to + i, x, at + i * step, 1, type);
        }
    }
}

/* A row: part by part, two passes each, merged: no number is far from the mean it is compared
 * with. */
static void dpari_moments_row(const dpar_mem_moments *m, int64_t at, int64_t step, int64_t count,
                              dpar_moments *to)
{
    double part[DPARI_MOMENTS_PART];
    int64_t i, k;
    for (k = 0; k < count; k += DPARI_MOMENTS_PART) {
        const int64_t some = dpari_least(DPARI_MOMENTS_PART, count - k);
        dpar_moments one;
        dpari_moments_read(m->x, m->type, at + k * step, step, some, part);
        one.count = (double)some;
        one.mean = dpari_moments_total(part, some) / one.count;
        for (i = 0; i < some; i++) {
            part[i] = (part[i] - one.mean) * (part[i] - one.mean);
        }
        one.m2 = dpari_moments_total(part, some);
        dpar_moments_merge(to, &one);
    }
}

/* A plane: rows along the last dim. */
static void dpari_moments_plane(const dpar_mem_moments *m, int64_t plane, dpar_moments *to)
{
    const int32_t last = m->dims - 1;
    int64_t at[DPAR_MAX_DIMS], first = plane * m->step;
    int32_t d;
    for (d = 0; d < m->dims; d++) {
        if (m->extent[d] == 0) {
            return;
        }
        at[d] = 0;
    }
    do {
        dpari_moments_row(m, first, last >= 0 ? m->stride[last] : 0,
                          last >= 0 ? m->extent[last] : 1, to);
        for (d = last - 1; d >= 0; d--) {
            first += m->stride[d];
            if (++at[d] < m->extent[d]) {
                break;
            }
            first -= m->stride[d] * m->extent[d];
            at[d] = 0;
        }
    } while (d >= 0);
}

static int dpari_moments_fits(const dpar_mem_moments *m, int64_t sets)
{
    int64_t points = 1;
    int32_t d;
    for (d = 0; d < m->dims && m->dims <= DPAR_MAX_DIMS; d++) {
        if (m->extent[d] < 0) {
            return 0;
        }
        points = m->extent[d] == 0 ? 0 : points;
    }
    return dpari_is_float(m->type) && m->dims >= 0 && m->dims <= DPAR_MAX_DIMS &&
           (m->add == 0 || m->add == 1) && !(m->planes > 0 && points > 0 && m->x == NULL) &&
           !(sets > 0 && m->to == NULL);
}

DPARI_API dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m)
{
    dpar_moments *to = (dpar_moments *)(void *)m->to;
    int64_t p, sets;
    (void)ctx;
    if (m->planes < 0 || m->channels < 1 || m->groups < 0 || m->planes % m->channels != 0 ||
        (m->groups > 0 && m->channels % m->groups != 0)) {
        return DPAR_E_ARG;
    }
    sets = m->groups == 0 ? m->channels : m->planes / m->channels * m->groups;
    if (!dpari_moments_fits(m, sets)) {
        return DPAR_E_ARG;
    }
    if (!m->add) {
        dpari_zero(to, (size_t)sets * sizeof *to);
    }
    for (p = 0; p < m->planes; p++) {
        const int64_t channel = p % m->channels;
        const int64_t set = m->groups == 0
                                ? channel
                                : p / m->channels * m->groups + channel / (m->channels / m->groups);
        dpari_moments_plane(m, p, &to[set]);
    }
    return DPAR_OK;
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* To the nearest integer, of two the even one: 0 <= x < 2^31. */
static uint32_t dpari_quant_even(float x)
{
    const uint32_t n = (uint32_t)x;
    const float rest = x - (float)n;
    return n + (rest > 0.5f || (!(rest < 0.5f) && n % 2 != 0));
}

/* A number's code without its sign. */
static uint32_t dpari_quant_code(float x, int32_t type)
{
    uint32_t bits;
    if (type == DPAR_I8) {
        return x >= 127.0f ? 127 : dpari_quant_even(x);
    }
    if (x >= 448.0f) {
        return 0x7e;
    }
    if (x < 0.015625f) { /* 2^-6: steps of 2^-9 */
        return dpari_quant_even(x * 512.0f);
    }
    dpari_elements_bits(&bits, &x, 4);
    return ((bits + 0x7ffffu + (bits >> 20 & 1)) >> 20) - (120u << 3);
}

static float dpari_quant_value(unsigned char code, int32_t type)
{
    uint32_t bits;
    float x;
    if (type == DPAR_I8) {
        return (float)(code < 128 ? (int32_t)code : (int32_t)code - 256);
    }
    bits = code & 0x7fu;
    if (bits < 8) {
        x = (float)bits / 512.0f;
    } else {
        bits = bits == 0x7f ? 0x7fc00000u : (bits + (120u << 3)) << 20;
        dpari_elements_bits(&x, &bits, 4);
    }
    return code < 128 ? x : -x;
}

/* Elements i .. i + n - 1, n <= DPARI_ELEMENTS, as floats. */
static void dpari_quant_read(const dpar_mem_quantize *q, int64_t i, int64_t n, float *to)
{
    double x[DPARI_ELEMENTS];
    dpari_elements_load(x, q->x, i, n, q->type);
    dpari_elements_store(to, x, 0, n, DPAR_F32);
}

/* The scale of elements lo .. hi - 1. */
static float dpari_quant_scale(const dpar_mem_quantize *q, int64_t lo, int64_t hi)
{
    const uint32_t nan = 0x7fc00000u;
    float x[DPARI_ELEMENTS], most = 0.0f;
    int64_t i, k;
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        dpari_quant_read(q, i, n, x);
        for (k = 0; k < n; k++) {
            const float size = x[k] < 0.0f ? -x[k] : x[k];
            if (!(size <= 3.4028234e38f)) {
                dpari_elements_bits(&most, &nan, 4);
                return most;
            }
            most = size > most ? size : most;
        }
    }
    most /= q->code_type == DPAR_I8 ? 127.0f : 448.0f;
    return most < 1.1754944e-38f ? 0.0f : most;
}

static void dpari_quant_block(const dpar_mem_quantize *q, int64_t b)
{
    const int64_t lo = b * q->block, hi = dpari_least(lo + q->block, q->count);
    const float scale = dpari_quant_scale(q, lo, hi);
    unsigned char *code = (unsigned char *)q->code + b * q->code_step;
    float x[DPARI_ELEMENTS];
    int64_t i, k;
    dpari_elements_bits((unsigned char *)q->scale + b * q->scale_step, &scale, 4);
    if (!(scale > 0.0f)) {
        dpari_zero(code, (size_t)(hi - lo));
        return;
    }
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        dpari_quant_read(q, i, n, x);
        for (k = 0; k < n; k++) {
            const float y = x[k] / scale;
            const uint32_t c = dpari_quant_code(y < 0.0f ? -y : y, q->code_type);
            const uint32_t less = q->code_type == DPAR_I8 ? 256 - c : c + 128;
            code[i - lo + k] = (unsigned char)(y < 0.0f && c != 0 ? less : c);
        }
    }
}

static void dpari_quant_unblock(const dpar_mem_quantize *q, int64_t b)
{
    const int64_t lo = b * q->block, hi = dpari_least(lo + q->block, q->count);
    const unsigned char *code = (const unsigned char *)q->code + b * q->code_step;
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS] = {0.0};
    float scale;
    int64_t i, k;
    dpari_elements_bits(&scale, (const unsigned char *)q->scale + b * q->scale_step, 4);
    for (i = lo; i < hi; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, hi - i);
        if (q->add) {
            dpari_elements_load(y, q->x, i, n, q->type);
        }
        for (k = 0; k < n; k++) {
            const float v = dpari_quant_value(code[i - lo + k], q->code_type) * scale;
            x[k] = q->add ? y[k] + (double)v : (double)v;
        }
        dpari_elements_store(q->x, x, i, n, q->type);
    }
}

static int dpari_quant_fits(const dpar_mem_quantize *q)
{
    return q->count >= 0 && q->block >= 1 && dpari_is_float(q->type) &&
           (q->code_type == DPAR_I8 || q->code_type == DPAR_F8) && q->code_step >= q->block &&
           q->scale_step >= 4 && q->scale_step % 4 == 0 && (q->add == 0 || q->add == 1) &&
           (q->count == 0 || (q->x != NULL && q->code != NULL && q->scale != NULL));
}

static dpar_status dpari_mem_quantize(void *ctx, const dpar_mem_quantize *q)
{
    int64_t b;
    (void)ctx;
    if (!dpari_quant_fits(q) || q->add) {
        return DPAR_E_ARG;
    }
    for (b = 0; b < dpari_ceil_div(q->count, q->block); b++) {
        dpari_quant_block(q, b);
    }
    return DPAR_OK;
}

static dpar_status dpari_mem_dequantize(void *ctx, const dpar_mem_quantize *q)
{
    int64_t b;
    (void)ctx;
    if (!dpari_quant_fits(q)) {
        return DPAR_E_ARG;
    }
    for (b = 0; b < dpari_ceil_div(q->count, q->block); b++) {
        dpari_quant_unblock(q, b);
    }
    return DPAR_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static dpar_status dpari_mem_wait(void *ctx)
{
    (void)ctx;
    return DPAR_OK;
}

static dpar_status dpari_mem_pin(void *ctx, void *memory, int64_t bytes)
{
    (void)ctx;
    (void)memory;
    (void)bytes;
    return DPAR_OK;
}

static dpar_status dpari_mem_unpin(void *ctx, void *memory)
{
    (void)ctx;
    (void)memory;
    return DPAR_OK;
}

DPAR_API dpar_mem dpar_mem_host(void)
{
    dpar_mem m;
    dpari_zero(&m, sizeof m);
    m.move = dpari_mem_move;
    m.wait = dpari_mem_wait;
    m.pin = dpari_mem_pin;
    m.unpin = dpari_mem_unpin;
    m.span = dpari_mem_span;
    m.reduce = dpari_mem_reduce;
    m.finite = dpari_mem_finite;
    m.squares = dpari_mem_squares;
    m.clip = dpari_mem_clip;
    m.optimize = dpari_mem_optimize;
    m.gather = dpari_mem_gather;
    m.scatter = dpari_mem_scatter;
    m.combine = dpari_mem_combine;
    m.dot = dpari_mem_dot;
    m.xent = dpari_mem_xent;
    m.merge = dpari_mem_merge;
    m.moments = dpari_mem_moments;
    m.norm = dpari_mem_norm;
    m.quantize = dpari_mem_quantize;
    m.dequantize = dpari_mem_dequantize;
    return m;
}

/* ---- in the memory of a communicator --------------------------------------------------------- */

/* How an operation of c's table ended. */
static dpar_status dpari_do_ended(dpar_comm *c, dpar_status st, const char *what)
{
    dpar_why why;
    if (st < 0 && c->status >= 0) {
        (void)dpari_say_word(st, &why, "rank #: its memory's @ failed", what, 16, c->rank, 0, 0, 0);
        dpar_comm_abort(c, st, why.text);
    }
    return st < 0 ? st : DPAR_OK;
}

DPARI_API dpar_status dpari_do_move(dpar_comm *c, const dpar_mem_box *boxes, int32_t n)
{
    const dpar_mem *m = c->mem;
    if (m == NULL) {
        return dpari_mem_move(NULL, boxes, n);
    }
    return dpari_do_ended(c, m->move == NULL ? DPAR_E_UNKNOWN : m->move(m->ctx, boxes, n), "move");
}

DPARI_API dpar_status dpari_do_wait(dpar_comm *c)
{
    const dpar_mem *m = c->mem;
    return m == NULL || m->wait == NULL ? DPAR_OK : dpari_do_ended(c, m->wait(m->ctx), "wait");
}

DPARI_API dpar_status dpari_do_span(dpar_comm *c, const dpar_mem_span *call, int32_t n)
{
    const dpar_mem *m = c->mem;
    if (m == NULL) {
        return dpari_mem_span(NULL, call, n);
    }
    return dpari_do_ended(c, m->span == NULL ? DPAR_E_UNKNOWN : m->span(m->ctx, call, n), "span");
}

/* By c's table, or the host's. */
#define DPARI_DO(name)                                                                             \
    DPARI_API dpar_status dpari_do_##name(dpar_comm *c, const dpar_mem_##name *call)               \
    {                                                                                              \
        const dpar_mem *m = c->mem;                                                                \
        if (m == NULL) {                                                                           \
            return dpari_mem_##name(NULL, call);                                                   \
        }                                                                                          \
        return dpari_do_ended(c, m->name == NULL ? DPAR_E_UNKNOWN : m->name(m->ctx, call), #name); \
    }
DPARI_DO(reduce)
DPARI_DO(finite)
DPARI_DO(squares)
DPARI_DO(optimize)
DPARI_DO(gather)
DPARI_DO(scatter)
DPARI_DO(combine)
DPARI_DO(dot)
DPARI_DO(xent)
DPARI_DO(merge)
DPARI_DO(moments)
DPARI_DO(norm)

DPARI_API dpar_status dpari_do_convert(dpar_comm *c, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add)
{
    dpar_mem_span s;
    dpari_zero(&s, sizeof s);
    s.to = to;
    s.from = from;
    s.count = count;
    s.to_type = to_type;
    s.from_type = from_type;
    s.add = add != 0;
    s.scale = from != NULL ? 1.0 : 0.0;
    return count > 0 ? dpari_do_span(c, &s, 1) : DPAR_OK;
}

DPARI_API dpar_status dpari_do_copy(dpar_comm *c, void *to, const void *from, int64_t bytes)
{
    return to == from ? DPAR_OK : dpari_do_convert(c, to, DPAR_U8, from, DPAR_U8, bytes, 0);
}

DPARI_API dpar_status dpari_do_rows(dpar_comm *c, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op)
{
    dpar_mem_box b;
    if (count <= 0 || rows <= 0) {
        return DPAR_OK;
    }
    dpari_zero(&b, sizeof b);
    b.to = to;
    b.from = (void *)(uintptr_t)from; /* read only */
    b.to_type = b.from_type = b.through = type;
    b.op = op;
    b.dims = 2;
    b.extent[0] = rows;
    b.extent[1] = count;
    b.to_stride[0] = to_step;
    b.from_stride[0] = from_step;
    b.to_stride[1] = b.from_stride[1] = 1;
    return dpari_do_move(c, &b, 1);
}
