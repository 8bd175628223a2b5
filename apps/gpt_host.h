/* SPDX-License-Identifier: MIT-0 */
/* gpt_host - the arithmetic of gpt.h in host memory. gpt_cuda.h has the same for a device. gpt.h
 * includes it after the types. */
#ifndef GPT_HOST_H
#define GPT_HOST_H

#include "gpt_loops.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

enum { GPT_APART = 0 }; /* 1 if the model's memory is not the host's */

/* Why this configuration is not supported here, or NULL if it is. */
static inline const char *gpt_cannot(const gpt_config *config, const gpt_comms *comms)
{
    (void)config;
    (void)comms;
    return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Zeroed memory that the host and a device both reach. NULL if there is none. */
static inline void *gpt_open_shared(int64_t bytes)
{
    return calloc((size_t)bytes + 1, 1);
}

static inline void gpt_close_shared(void *memory)
{
    free(memory);
}

/* Asks the system to use large pages for memory that has not been used yet. Products read and write
 * columns of matrices, so that with small pages they would often wait for addresses. */
static inline void gpt_large_pages(void *memory, int64_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t unit = (uintptr_t)1 << 21;
    const uintptr_t begin = ((uintptr_t)memory + unit - 1) / unit * unit;
    const uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) / unit * unit;
    if (begin < end) {
        (void)madvise((void *)begin, end - begin, MADV_HUGEPAGE);
    }
#else
    (void)memory;
    (void)bytes;
#endif
}

/* Waits until a device has finished all work; there is none here. */
static inline void gpt_wait(const gpt *model)
{
    (void)model;
}

/* Copies from host memory to the model's. gpt_get copies back. */
static inline void gpt_put(const gpt *model, void *to, const void *from, int64_t bytes)
{
    (void)model;
    memcpy(to, from, (size_t)bytes);
}

static inline void gpt_get(const gpt *model, void *to, const void *from, int64_t bytes)
{
    (void)model;
    memcpy(to, from, (size_t)bytes);
}

static inline void gpt_copy(const gpt *model, gpt_real *to, const gpt_real *from, int64_t n)
{
    (void)model;
    if (n > 0 && to != from) {
        memcpy(to, from, (size_t)n * sizeof *to);
    }
}

static inline void gpt_add(const gpt *model, gpt_real *to, const gpt_real *a, const gpt_real *b,
                           int64_t n)
{
    (void)model;
    gpt_loops_here()->add(n, a, b, to);
}

static inline void gpt_zero(const gpt *model, gpt_real *to, int64_t n)
{
    (void)model;
    if (n > 0) {
        memset(to, 0, (size_t)n * sizeof *to);
    }
}

/* to[i] += table[row[i]], rows of `width`. */
static inline void gpt_add_rows(const gpt *model, gpt_real *to, const gpt_real *table,
                                const int32_t *row, int64_t rows, int64_t width)
{
    int64_t i;
    for (i = 0; i < rows; i++) {
        gpt_add(model, to + i * width, to + i * width, table + row[i] * width, width);
    }
}

/* table[row[i]] += from[i], one after the other. */
static inline void gpt_sum_rows(const gpt *model, gpt_real *table, const gpt_real *from,
                                const int32_t *row, int64_t rows, int64_t width)
{
    int64_t i;
    for (i = 0; i < rows; i++) {
        gpt_real *at = table + row[i] * width;
        gpt_add(model, at, at, from + i * width, width);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* The matrix product that layers use. dpar_matmul_host sums in f64, but this one in gpt_real. */
static inline dpar_status gpt_matmul(void *user, const dpar_matmul *product)
{
    (void)user;
    gpt_loops_here()->product(product);
    return DPAR_OK;
}

/* Products need no preparation here. */
static inline void gpt_open_products(gpt *model)
{
    (void)model;
}

static inline void gpt_close_products(gpt *model)
{
    (void)model;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* to = (x - mean) / deviation * scale + bias, RMS without mean and bias, of own rows; stat[own][2]:
 * mean, 1 / deviation. */
static inline void gpt_norm_rows(const gpt *model, const gpt_real *x, const gpt_real *scale,
                                 const gpt_real *bias, double *stat, gpt_real *to)
{
    const gpt_loops *loops = gpt_loops_here();
    const int64_t n = model->config.width;
    int64_t i;
    for (i = 0; i < model->own; i++) {
        loops->norm(n, model->config.layer_norm, x + i * n, scale, bias, stat + 2 * i, to + i * n);
    }
}

/* dx = add + its gradient (add NULL: alone); sum[2][width]: gradients of scale and bias. */
static inline void gpt_norm_back(const gpt *model, const gpt_real *x, const gpt_real *scale,
                                 const double *stat, const gpt_real *dh, const gpt_real *add,
                                 gpt_real *dx, double *sum)
{
    const int64_t n = model->config.width;
    memset(sum, 0, (size_t)(2 * n) * sizeof *sum);
    gpt_loops_here()->norm_back(model->own, n, model->config.layer_norm, x, scale, stat, dh, add,
                                dx, sum);
}

static inline void gpt_norm_weight(const gpt *model, const double *sum, gpt_real *dscale,
                                   gpt_real *dbias)
{
    int32_t j;
    for (j = 0; j < model->config.width; j++) {
        dscale[j] += (gpt_real)sum[j];
        if (dbias != NULL) {
            dbias[j] += (gpt_real)sum[model->config.width + j];
        }
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

static inline void gpt_activate(const gpt *model, int64_t n, const gpt_real *gate,
                                const gpt_real *up, gpt_real *act)
{
    (void)model;
    gpt_loops_here()->activate(n, gate, up, act);
}

static inline void gpt_activate_back(const gpt *model, int64_t n, const gpt_real *gate,
                                     const gpt_real *up, const gpt_real *dact, gpt_real *dgate,
                                     gpt_real *dup)
{
    (void)model;
    gpt_loops_here()->activate_back(n, gate, up, dact, dgate, dup);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* The kernel of a block of queries and keys (sequence.h), which processes several rows of a head at
 * a time. It is several times as fast as dpar's own, which sums in f64 and needs no memory. */
enum { GPT_ROWS = 32 };

/* The keys lo <= j < hi of a block that its query i sees. */
static inline void gpt_attend_keys(const dpar_attention_call *call, int64_t i, int64_t *lo,
                                   int64_t *hi)
{
    *lo = i + call->low < call->keys ? i + call->low : call->keys;
    if (i + call->low < 0) {
        *lo = 0;
    }
    *hi = i + call->high < call->keys ? i + call->high + 1 : call->keys;
    if (i + call->high < *lo) {
        *hi = *lo;
    }
}

/* scores = exp(scale q k^T - lse) of rows first .. first + rows - 1 up to the last key that one of
 * them sees, whose number is returned. fresh: lse is not known yet: it is computed. */
static inline int64_t gpt_attend_rows(const dpar_attention_call *call, int64_t head, int64_t first,
                                      int64_t rows, int fresh, gpt_real *scores)
{
    const dpar_attention_desc *layer = call->layer;
    const int64_t width = layer->width, q = layer->heads * width, kv = layer->groups * width;
    const int64_t group = head / (layer->heads / layer->groups) * width;
    const gpt_loops *loops = gpt_loops_here();
    const gpt_real lowest = (gpt_real)-1e30; /* its power is 0 */
    int64_t i, j, lo, hi, n;
    gpt_attend_keys(call, first + rows - 1, &lo, &n); /* causal: the last row sees farthest */
    gpt_multiply((gpt *)call->user, 0, rows, n, width, 1.0 / sqrt((double)width),
                 (const gpt_real *)call->q + first * q + head * width, q, 0,
                 (const gpt_real *)call->k + group, kv, 1, scores, n);
    for (i = 0; i < rows; i++) {
        gpt_real *lse = (gpt_real *)call->lse + (first + i) * layer->heads + head;
        gpt_attend_keys(call, first + i, &lo, &hi);
        for (j = 0; j < lo; j++) {
            scores[j] = lowest;
        }
        for (j = hi; j < n; j++) {
            scores[j] = lowest;
        }
        if (hi == lo) {
            *lse = fresh ? lowest : *lse;
            memset(scores, 0, (size_t)n * sizeof *scores);
        } else if (fresh) {
            *lse = (gpt_real)loops->softmax(n, scores);
        } else {
            loops->exps(n, *lse, scores);
        }
        scores += n;
    }
    return n;
}

static inline void gpt_attend_block(const dpar_attention_call *call)
{
    const dpar_attention_desc *layer = call->layer;
    const int64_t width = layer->width, q = layer->heads * width, kv = layer->groups * width;
    gpt_real *scores = ((gpt *)call->user)->scores;
    int64_t head, i, rows, n;
    for (head = 0; head < layer->heads; head++) {
        const gpt_real *values =
            (const gpt_real *)call->v + head / (layer->heads / layer->groups) * width;
        for (i = 0; i < call->queries; i += rows) {
            rows = call->queries - i < GPT_ROWS ? call->queries - i : (int64_t)GPT_ROWS;
            n = gpt_attend_rows(call, head, i, rows, 1, scores);
            gpt_multiply((gpt *)call->user, 0, rows, width, n, 1.0, scores, n, 0, values, kv, 0,
                         (gpt_real *)call->out + i * q + head * width, q);
        }
    }
}

static inline void gpt_attend_block_back(const dpar_attention_call *call)
{
    const dpar_attention_desc *layer = call->layer;
    const int64_t width = layer->width, q = layer->heads * width, kv = layer->groups * width;
    gpt_real *scores = ((gpt *)call->user)->scores;
    gpt_real *ds = scores + GPT_ROWS * ((gpt *)call->user)->config.length;
    const gpt_loops *loops = gpt_loops_here();
    const double scale = 1.0 / sqrt((double)width);
    int64_t head, i, j, rows, n;
    for (head = 0; head < layer->heads; head++) {
        const int64_t group = head / (layer->heads / layer->groups) * width;
        for (i = 0; i < call->queries; i += rows) {
            const int64_t at = i * q + head * width;
            const gpt_real *dout = (const gpt_real *)call->out_gradient + at;
            rows = call->queries - i < GPT_ROWS ? call->queries - i : (int64_t)GPT_ROWS;
            n = gpt_attend_rows(call, head, i, rows, 0, scores);
            gpt_multiply((gpt *)call->user, 0, rows, n, width, 1.0, dout, q, 0,
                         (const gpt_real *)call->v + group, kv, 1, ds, n);
            for (j = 0; j < rows; j++) {
                loops->slope(n, ((const gpt_real *)call->delta)[(i + j) * layer->heads + head],
                             scores + j * n, ds + j * n);
            }
            gpt_multiply((gpt *)call->user, 1, rows, width, n, scale, ds, n, 0,
                         (const gpt_real *)call->k + group, kv, 0,
                         (gpt_real *)call->q_gradient + at, q);
            gpt_multiply((gpt *)call->user, 1, n, width, rows, scale, ds, n, 1,
                         (const gpt_real *)call->q + at, q, 0, (gpt_real *)call->k_gradient + group,
                         kv);
            gpt_multiply((gpt *)call->user, 1, n, width, rows, 1.0, scores, n, 1, dout, q, 0,
                         (gpt_real *)call->v_gradient + group, kv);
        }
    }
}

#endif
