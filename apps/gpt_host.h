/* SPDX-License-Identifier: MIT-0 */
/* gpt_host - the arithmetic of gpt.h in host memory. gpt_cuda.h has the same for a device. gpt.h
 * includes it after the types. */
#ifndef GPT_HOST_H
#define GPT_HOST_H

enum { GPT_APART = 0 }; /* 1 if the model's memory is not the host's */

/* Why this configuration is not supported here, or NULL if it is. */
static inline const char *gpt_cannot(const gpt_config *c, const gpt_comms *comms)
{
    (void)c;
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
static inline void gpt_wait(const gpt *g)
{
    (void)g;
}

/* Copies from host memory to the model's. gpt_get copies back. */
static inline void gpt_put(const gpt *g, void *to, const void *from, int64_t bytes)
{
    (void)g;
    memcpy(to, from, (size_t)bytes);
}

static inline void gpt_get(const gpt *g, void *to, const void *from, int64_t bytes)
{
    (void)g;
    memcpy(to, from, (size_t)bytes);
}

static inline void gpt_copy(const gpt *g, gpt_real *to, const gpt_real *from, int64_t n)
{
    (void)g;
    if (n > 0 && to != from) {
        memcpy(to, from, (size_t)n * sizeof *to);
    }
}

static inline void gpt_add(const gpt *g, gpt_real *to, const gpt_real *a, const gpt_real *b,
                           int64_t n)
{
    int64_t i;
    (void)g;
    for (i = 0; i < n; i++) {
        to[i] = a[i] + b[i];
    }
}

static inline void gpt_zero(const gpt *g, gpt_real *to, int64_t n)
{
    (void)g;
    if (n > 0) {
        memset(to, 0, (size_t)n * sizeof *to);
    }
}

/* to[i] += table[row[i]], rows of `width`. */
static inline void gpt_add_rows(const gpt *g, gpt_real *to, const gpt_real *table,
                                const int32_t *row, int64_t rows, int64_t width)
{
    int64_t i;
    for (i = 0; i < rows; i++) {
        gpt_add(g, to + i * width, to + i * width, table + row[i] * width, width);
    }
}

/* table[row[i]] += from[i], one after the other. */
static inline void gpt_sum_rows(const gpt *g, gpt_real *table, const gpt_real *from,
                                const int32_t *row, int64_t rows, int64_t width)
{
    int64_t i;
    for (i = 0; i < rows; i++) {
        gpt_real *at = table + row[i] * width;
        gpt_add(g, at, at, from + i * width, width);
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
static inline void gpt_pack(const dpar_matmul *p, int64_t k, int64_t deep, int64_t j0, gpt_real *to)
{
    const gpt_real *b = (const gpt_real *)p->b;
    const int64_t along = p->transpose_b ? p->ldb : 1, down = p->transpose_b ? 1 : p->ldb;
    const int64_t n = p->n - j0 < GPT_LANES ? p->n - j0 : (int64_t)GPT_LANES;
    int64_t d, j;
    for (d = 0; d < deep; d++) {
        for (j = 0; j < GPT_LANES; j++) {
            to[d * GPT_LANES + j] = j < n ? b[(j0 + j) * along + (k + d) * down] : (gpt_real)0;
        }
    }
}

/* Computes sum[4][GPT_LANES] of four rows of a, whose numbers are `step` apart, with the packed b.
 */
static inline void gpt_tile(const gpt_real *const *row, int64_t step, const gpt_real *b,
                            int64_t deep, gpt_real *sum)
{
    gpt_lanes s[8], x, y;
    int64_t d, at = 0;
    memset(s, 0, sizeof s);
    for (d = 0; d < deep; d++, at += step, b += GPT_LANES) {
        memcpy(&x, b, sizeof x);
        memcpy(&y, b + GPT_LANES / 2, sizeof y);
        s[0] += row[0][at] * x;
        s[1] += row[0][at] * y;
        s[2] += row[1][at] * x;
        s[3] += row[1][at] * y;
        s[4] += row[2][at] * x;
        s[5] += row[2][at] * y;
        s[6] += row[3][at] * x;
        s[7] += row[3][at] * y;
    }
    memcpy(sum, s, sizeof s);
}

/* The matrix product that layers use. dpar_matmul_host sums in f64, but this one in gpt_real. */
static inline dpar_status gpt_matmul(void *user, const dpar_matmul *p)
{
    const gpt_real *a = (const gpt_real *)p->a, *row[4];
    const int64_t along = p->transpose_a ? 1 : p->lda, step = p->transpose_a ? p->lda : 1;
    gpt_real b[GPT_DEEP * GPT_LANES], sum[4 * GPT_LANES], *c = (gpt_real *)p->c;
    int64_t k = 0, i, j, r, s;
    (void)user;
    do {
        const int64_t deep = p->k - k < GPT_DEEP ? p->k - k : (int64_t)GPT_DEEP;
        const gpt_real alpha = (gpt_real)p->alpha, beta = k > 0 ? (gpt_real)1 : (gpt_real)p->beta;
        const int fresh = k == 0 && !(p->beta < 0.0 || p->beta > 0.0);
        for (j = 0; j < p->n; j += GPT_LANES) {
            const int64_t columns = p->n - j < GPT_LANES ? p->n - j : (int64_t)GPT_LANES;
            gpt_pack(p, k, deep, j, b);
            for (i = 0; i < p->m; i += 4) {
                const int64_t rows = p->m - i < 4 ? p->m - i : 4;
                for (r = 0; r < 4; r++) { /* the last row stands for missing ones */
                    row[r] = a + (i + (r < rows ? r : rows - 1)) * along + k * step;
                }
                gpt_tile(row, step, b, deep, sum);
                for (r = 0; r < rows; r++) {
                    gpt_real *to = c + (i + r) * p->ldc + j;
                    for (s = 0; s < columns; s++) {
                        to[s] =
                            alpha * sum[r * GPT_LANES + s] + (fresh ? (gpt_real)0 : beta * to[s]);
                    }
                }
            }
        }
        k += deep;
    } while (k < p->k);
    return DPAR_OK;
}

/* Products need no preparation here. */
static inline void gpt_open_products(gpt *g)
{
    (void)g;
}

static inline void gpt_close_products(gpt *g)
{
    (void)g;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* to = (x - mean) / deviation * scale + bias, RMS without mean and bias, of own rows; stat[own][2]:
 * mean, 1 / deviation. */
static inline void gpt_norm_rows(const gpt *g, const gpt_real *x, const gpt_real *scale,
                                 const gpt_real *bias, double *stat, gpt_real *to)
{
    const int64_t n = g->config.width;
    int64_t i, j;
    for (i = 0; i < g->own; i++, x += n) {
        double mean = 0.0, square = 0.0, inverse;
        for (j = 0; j < n && g->config.layer_norm; j++) {
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
    }
}

/* dx = add + its gradient (add NULL: alone); sum[2][width]: gradients of scale and bias. */
static inline void gpt_norm_back(const gpt *g, const gpt_real *x, const gpt_real *scale,
                                 const double *stat, const gpt_real *dh, const gpt_real *add,
                                 gpt_real *dx, double *sum)
{
    const int64_t n = g->config.width;
    int64_t i, j;
    memset(sum, 0, (size_t)(2 * n) * sizeof *sum);
    for (i = 0; i < g->own; i++, x += n, dh += n, dx += n, add += add != NULL ? n : 0) {
        const double mean = stat[2 * i], inverse = stat[2 * i + 1];
        double along = 0.0, level = 0.0;
        for (j = 0; j < n; j++) {
            const double unit = ((double)x[j] - mean) * inverse, d = (double)dh[j];
            sum[j] += d * unit;
            sum[n + j] += d;
            along += d * (double)scale[j] * unit / (double)n;
            level += g->config.layer_norm ? d * (double)scale[j] / (double)n : 0.0;
        }
        for (j = 0; j < n; j++) {
            const double unit = ((double)x[j] - mean) * inverse;
            const double d = inverse * ((double)dh[j] * (double)scale[j] - level - unit * along);
            dx[j] = (gpt_real)d + (add != NULL ? add[j] : (gpt_real)0);
        }
    }
}

static inline void gpt_norm_weight(const gpt *g, const double *sum, gpt_real *dscale,
                                   gpt_real *dbias)
{
    int32_t j;
    for (j = 0; j < g->config.width; j++) {
        dscale[j] += (gpt_real)sum[j];
        if (dbias != NULL) {
            dbias[j] += (gpt_real)sum[g->config.width + j];
        }
    }
}

/* ---- activations ----------------------------------------------------------------------------- */

static inline void gpt_activate(const gpt *g, int64_t n, const gpt_real *gate, const gpt_real *up,
                                gpt_real *act)
{
    int64_t i;
    (void)g;
    for (i = 0; i < n; i++) {
        act[i] = gate != NULL ? gpt_swiglu(gate[i], up[i]) : gpt_gelu(up[i]);
    }
}

static inline void gpt_activate_back(const gpt *g, int64_t n, const gpt_real *gate,
                                     const gpt_real *up, const gpt_real *dact, gpt_real *dgate,
                                     gpt_real *dup)
{
    int64_t i;
    (void)g;
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
static inline void gpt_attend_keys(const dpar_attention_call *c, int64_t i, int64_t *lo,
                                   int64_t *hi)
{
    *lo = i + c->low < c->keys ? i + c->low : c->keys;
    if (i + c->low < 0) {
        *lo = 0;
    }
    *hi = i + c->high < c->keys ? i + c->high + 1 : c->keys;
    if (i + c->high < *lo) {
        *hi = *lo;
    }
}

/* p = exp(scale q k^T - lse) of rows first .. first + m - 1 up to the last key that one of them
 * sees, whose number is returned. fresh: lse is not known yet: it is computed. */
static inline int64_t gpt_attend_rows(const dpar_attention_call *c, int64_t h, int64_t first,
                                      int64_t m, int fresh, gpt_real *p)
{
    const dpar_attention_desc *l = c->layer;
    const int64_t w = l->width, q = l->heads * w, kv = l->groups * w;
    const int64_t group = h / (l->heads / l->groups) * w;
    int64_t i, j, lo, hi, n;
    gpt_attend_keys(c, first + m - 1, &lo, &n); /* causal: the last row sees farthest */
    gpt_multiply((gpt *)c->user, 0, m, n, w, 1.0 / sqrt((double)w),
                 (const gpt_real *)c->q + first * q + h * w, q, 0, (const gpt_real *)c->k + group,
                 kv, 1, p, n);
    for (i = 0; i < m; i++, p += n) {
        gpt_real *lse = (gpt_real *)c->lse + (first + i) * l->heads + h, most = (gpt_real)-1e30;
        double sum = 0.0;
        gpt_attend_keys(c, first + i, &lo, &hi);
        for (j = lo; j < hi && fresh; j++) {
            most = p[j] > most ? p[j] : most;
        }
        most = fresh ? most : *lse;
        for (j = 0; j < n; j++) {
            p[j] = j >= lo && j < hi ? (gpt_real)exp((double)(p[j] - most)) : (gpt_real)0;
            sum += (double)p[j];
        }
        for (j = lo; j < hi && fresh; j++) {
            p[j] /= (gpt_real)sum;
        }
        *lse = fresh && hi > lo ? (gpt_real)((double)most + log(sum)) : most;
    }
    return n;
}

static inline void gpt_attend_block(const dpar_attention_call *c)
{
    const dpar_attention_desc *l = c->layer;
    const int64_t w = l->width, q = l->heads * w, kv = l->groups * w;
    gpt_real *p = ((gpt *)c->user)->scores;
    int64_t h, i, m, n;
    for (h = 0; h < l->heads; h++) {
        const gpt_real *v = (const gpt_real *)c->v + h / (l->heads / l->groups) * w;
        for (i = 0; i < c->queries; i += m) {
            m = c->queries - i < GPT_ROWS ? c->queries - i : (int64_t)GPT_ROWS;
            n = gpt_attend_rows(c, h, i, m, 1, p);
            gpt_multiply((gpt *)c->user, 0, m, w, n, 1.0, p, n, 0, v, kv, 0,
                         (gpt_real *)c->out + i * q + h * w, q);
        }
    }
}

static inline void gpt_attend_block_back(const dpar_attention_call *c)
{
    const dpar_attention_desc *l = c->layer;
    const int64_t w = l->width, q = l->heads * w, kv = l->groups * w;
    gpt_real *p = ((gpt *)c->user)->scores, *ds = p + GPT_ROWS * ((gpt *)c->user)->config.length;
    const double scale = 1.0 / sqrt((double)w);
    int64_t h, i, j, m, n;
    for (h = 0; h < l->heads; h++) {
        const int64_t group = h / (l->heads / l->groups) * w;
        for (i = 0; i < c->queries; i += m) {
            const int64_t at = i * q + h * w;
            const gpt_real *dout = (const gpt_real *)c->out_gradient + at;
            m = c->queries - i < GPT_ROWS ? c->queries - i : (int64_t)GPT_ROWS;
            n = gpt_attend_rows(c, h, i, m, 0, p);
            gpt_multiply((gpt *)c->user, 0, m, n, w, 1.0, dout, q, 0,
                         (const gpt_real *)c->v + group, kv, 1, ds, n);
            for (j = 0; j < m * n; j++) {
                ds[j] = p[j] * (ds[j] - ((const gpt_real *)c->delta)[(i + j / n) * l->heads + h]);
            }
            gpt_multiply((gpt *)c->user, 1, m, w, n, scale, ds, n, 0,
                         (const gpt_real *)c->k + group, kv, 0, (gpt_real *)c->q_gradient + at, q);
            gpt_multiply((gpt *)c->user, 1, n, w, m, scale, ds, n, 1, (const gpt_real *)c->q + at,
                         q, 0, (gpt_real *)c->k_gradient + group, kv);
            gpt_multiply((gpt *)c->user, 1, n, w, m, 1.0, p, n, 1, dout, q, 0,
                         (gpt_real *)c->v_gradient + group, kv);
        }
    }
}

#endif
