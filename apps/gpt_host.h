/* SPDX-License-Identifier: MIT-0 */
/* gpt_host - the arithmetic of gpt.h in host memory. gpt_cuda.h has the same for a device. gpt.h
 * includes it after the types. */
#ifndef GPT_HOST_H
#define GPT_HOST_H

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
    int64_t i;
    (void)model;
    for (i = 0; i < n; i++) {
        to[i] = a[i] + b[i];
    }
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

/* Plain C for any compiler, with vectors for gcc and clang. */
#ifdef __GNUC__
#if defined(__AVX512F__)
typedef gpt_real gpt_lanes __attribute__((vector_size(64)));
#elif defined(__AVX__)
typedef gpt_real gpt_lanes __attribute__((vector_size(32)));
#else
typedef gpt_real gpt_lanes __attribute__((vector_size(16)));
#endif
#else
typedef gpt_real gpt_lanes;
#endif
enum {
    GPT_LANES = 2 * (int)(sizeof(gpt_lanes) / sizeof(gpt_real)), /* columns of a tile */
    GPT_DEEP = 4096 / (int)sizeof(gpt_lanes)                     /* products summed at a time */
};

/* Packs to[d][j] = op(b)[k + d][j0 + j], with 0 for columns that do not exist. */
static inline void gpt_pack(const dpar_matmul *product, int64_t k, int64_t deep, int64_t j0,
                            gpt_real *to)
{
    const gpt_real *b = (const gpt_real *)product->b;
    const int64_t along = product->transpose_b ? product->ldb : 1;
    const int64_t down = product->transpose_b ? 1 : product->ldb;
    const int64_t n = product->n - j0 < GPT_LANES ? product->n - j0 : (int64_t)GPT_LANES;
    int64_t d, j;
    for (d = 0; d < deep; d++) {
        for (j = 0; j < GPT_LANES; j++) {
            to[d * GPT_LANES + j] = j < n ? b[(j0 + j) * along + (k + d) * down] : (gpt_real)0;
        }
    }
}

/* Computes sum[4][GPT_LANES] of four rows of a, whose numbers are `step` apart, with the packed b.
 */
static inline void gpt_tile(const gpt_real *const *row, int64_t step, const gpt_real *packed,
                            int64_t deep, gpt_real *sum)
{
    gpt_lanes sums[8], left, right;
    int64_t d, at = 0;
    memset(sums, 0, sizeof sums);
    for (d = 0; d < deep; d++) {
        memcpy(&left, packed, sizeof left);
        memcpy(&right, packed + GPT_LANES / 2, sizeof right);
        sums[0] += row[0][at] * left;
        sums[1] += row[0][at] * right;
        sums[2] += row[1][at] * left;
        sums[3] += row[1][at] * right;
        sums[4] += row[2][at] * left;
        sums[5] += row[2][at] * right;
        sums[6] += row[3][at] * left;
        sums[7] += row[3][at] * right;
        at += step;
        packed += GPT_LANES;
    }
    memcpy(sum, sums, sizeof sums);
}

/* The matrix product that layers use. dpar_matmul_host sums in f64, but this one in gpt_real. */
static inline dpar_status gpt_matmul(void *user, const dpar_matmul *product)
{
    const gpt_real *a = (const gpt_real *)product->a, *row[4];
    const int64_t along = product->transpose_a ? 1 : product->lda;
    const int64_t step = product->transpose_a ? product->lda : 1;
    gpt_real packed[GPT_DEEP * GPT_LANES], sum[4 * GPT_LANES], *c = (gpt_real *)product->c;
    int64_t k = 0, i, j, line, column;
    (void)user;
    do {
        const int64_t deep = product->k - k < GPT_DEEP ? product->k - k : (int64_t)GPT_DEEP;
        const gpt_real alpha = (gpt_real)product->alpha;
        const gpt_real beta = k > 0 ? (gpt_real)1 : (gpt_real)product->beta;
        const int fresh = k == 0 && !(product->beta < 0.0 || product->beta > 0.0);
        for (j = 0; j < product->n; j += GPT_LANES) {
            const int64_t columns =
                product->n - j < GPT_LANES ? product->n - j : (int64_t)GPT_LANES;
            gpt_pack(product, k, deep, j, packed);
            for (i = 0; i < product->m; i += 4) {
                const int64_t rows = product->m - i < 4 ? product->m - i : 4;
                for (line = 0; line < 4; line++) { /* the last row stands for missing ones */
                    row[line] = a + (i + (line < rows ? line : rows - 1)) * along + k * step;
                }
                gpt_tile(row, step, packed, deep, sum);
                for (line = 0; line < rows; line++) {
                    gpt_real *to = c + (i + line) * product->ldc + j;
                    for (column = 0; column < columns; column++) {
                        to[column] = alpha * sum[line * GPT_LANES + column] +
                                     (fresh ? (gpt_real)0 : beta * to[column]);
                    }
                }
            }
        }
        k += deep;
    } while (k < product->k);
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
    const int64_t n = model->config.width;
    int64_t i, j;
    for (i = 0; i < model->own; i++) {
        double mean = 0.0, square = 0.0, inverse;
        for (j = 0; j < n && model->config.layer_norm; j++) {
            mean += (double)x[j] / (double)n;
        }
        for (j = 0; j < n; j++) {
            square += ((double)x[j] - mean) * ((double)x[j] - mean);
        }
        inverse = 1.0 / sqrt(square / (double)n + 1e-5);
        stat[2 * i] = mean;
        stat[2 * i + 1] = inverse;
        for (j = 0; j < n; j++) {
            to[i * n + j] = (gpt_real)(((double)x[j] - mean) * inverse) * scale[j] +
                            (bias != NULL ? bias[j] : (gpt_real)0);
        }
        x += n;
    }
}

/* dx = add + its gradient (add NULL: alone); sum[2][width]: gradients of scale and bias. */
static inline void gpt_norm_back(const gpt *model, const gpt_real *x, const gpt_real *scale,
                                 const double *stat, const gpt_real *dh, const gpt_real *add,
                                 gpt_real *dx, double *sum)
{
    const int64_t n = model->config.width;
    int64_t i, j;
    memset(sum, 0, (size_t)(2 * n) * sizeof *sum);
    for (i = 0; i < model->own; i++) {
        const double mean = stat[2 * i], inverse = stat[2 * i + 1];
        double along = 0.0, level = 0.0;
        for (j = 0; j < n; j++) {
            const double unit = ((double)x[j] - mean) * inverse, d = (double)dh[j];
            sum[j] += d * unit;
            sum[n + j] += d;
            along += d * (double)scale[j] * unit / (double)n;
            level += model->config.layer_norm ? d * (double)scale[j] / (double)n : 0.0;
        }
        for (j = 0; j < n; j++) {
            const double unit = ((double)x[j] - mean) * inverse;
            const double d = inverse * ((double)dh[j] * (double)scale[j] - level - unit * along);
            dx[j] = (gpt_real)d + (add != NULL ? add[j] : (gpt_real)0);
        }
        x += n;
        dh += n;
        dx += n;
        add += add != NULL ? n : 0;
    }
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
    int64_t i;
    (void)model;
    for (i = 0; i < n; i++) {
        act[i] = gate != NULL ? gpt_swiglu(gate[i], up[i]) : gpt_gelu(up[i]);
    }
}

static inline void gpt_activate_back(const gpt *model, int64_t n, const gpt_real *gate,
                                     const gpt_real *up, const gpt_real *dact, gpt_real *dgate,
                                     gpt_real *dup)
{
    int64_t i;
    (void)model;
    for (i = 0; i < n; i++) {
        if (gate != NULL) {
            gpt_swiglu_back(gate[i], up[i], dact[i], &dgate[i], &dup[i]);
        } else {
            dup[i] = gpt_gelu_back(up[i], dact[i]);
        }
    }
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
    int64_t i, j, lo, hi, n;
    gpt_attend_keys(call, first + rows - 1, &lo, &n); /* causal: the last row sees farthest */
    gpt_multiply((gpt *)call->user, 0, rows, n, width, 1.0 / sqrt((double)width),
                 (const gpt_real *)call->q + first * q + head * width, q, 0,
                 (const gpt_real *)call->k + group, kv, 1, scores, n);
    for (i = 0; i < rows; i++) {
        gpt_real *lse = (gpt_real *)call->lse + (first + i) * layer->heads + head;
        gpt_real most = (gpt_real)-1e30;
        double sum = 0.0;
        gpt_attend_keys(call, first + i, &lo, &hi);
        for (j = lo; j < hi && fresh; j++) {
            most = scores[j] > most ? scores[j] : most;
        }
        most = fresh ? most : *lse;
        for (j = 0; j < n; j++) {
            scores[j] = j >= lo && j < hi ? (gpt_real)exp((double)(scores[j] - most)) : (gpt_real)0;
            sum += (double)scores[j];
        }
        for (j = lo; j < hi && fresh; j++) {
            scores[j] /= (gpt_real)sum;
        }
        *lse = fresh && hi > lo ? (gpt_real)((double)most + log(sum)) : most;
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
            for (j = 0; j < rows * n; j++) {
                ds[j] =
                    scores[j] *
                    (ds[j] - ((const gpt_real *)call->delta)[(i + j / n) * layer->heads + head]);
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
