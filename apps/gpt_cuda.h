/* SPDX-License-Identifier: MIT-0 */
/* gpt_cuda - the arithmetic of gpt.h in the memory of a device: the functions of gpt_host.h as
 * kernels on the stream of the communicators' mem (dpar_cuda). gpt.h includes it with GPT_CUDA,
 * after the types and gpu_start.h. Only gpt_put, gpt_get and gpt_wait wait for the device.
 *
 * It computes in gpt_real, and sums of norms in f64. The order of each sum depends only on the
 * sizes, without atomics, so that the bits are the same in every run. */
#ifndef GPT_CUDA_H
#define GPT_CUDA_H

#include <dlfcn.h>

enum {
    GPT_APART = 1, /* the model's memory is not the host's */
    GPT_ROWS = 0,  /* of scores that gpt.h gives memory to: none */
    GPT_TILE = 64,
    GPT_DEEP = 16,                          /* of products */
    GPT_BLOCK = 16,                         /* queries or keys of a block of attention */
    GPT_MOST = 512 / (int)sizeof(gpt_real), /* features of a head */
    GPT_SHARE = GPT_MOST / GPT_BLOCK,       /* of them one thread's */
    GPT_WARPS = 8                           /* of a block, where a warp does a row */
};

/* Why this configuration is not supported here, or NULL if it is. */
static inline const char *gpt_cannot(const gpt_config *c, const gpt_comms *comms)
{
    if (comms->tp->mem == NULL) {
        return "the communicators have no mem, which must be that of a device";
    }
    if (c->width / c->heads > GPT_MOST) {
        return "a head is wider than 512 bytes, the most for attention in device memory";
    }
    return NULL;
}

static inline cudaStream_t gpt_stream(const gpt *g)
{
    return ((const dpar_cuda *)g->comms.tp->mem->ctx)->stream;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Zeroed memory that the host and the device both reach. NULL if there is none. */
static inline void *gpt_open_shared(int64_t bytes)
{
    void *memory = NULL;
    if (cudaHostAlloc(&memory, (size_t)bytes + 1, cudaHostAllocPortable) != cudaSuccess) {
        return NULL;
    }
    return memset(memory, 0, (size_t)bytes + 1);
}

static inline void gpt_close_shared(void *memory)
{
    if (memory != NULL) {
        right(cudaFreeHost(memory));
    }
}

/* Waits until the device has finished all work. */
static inline void gpt_wait(const gpt *g)
{
    right(cudaStreamSynchronize(gpt_stream(g)));
}

/* Copies from host memory to the model's. gpt_get copies back. */
static inline void gpt_put(const gpt *g, void *to, const void *from, int64_t bytes)
{
    right(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, gpt_stream(g)));
    right(cudaStreamSynchronize(gpt_stream(g)));
}

static inline void gpt_get(const gpt *g, void *to, const void *from, int64_t bytes)
{
    right(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost, gpt_stream(g)));
    right(cudaStreamSynchronize(gpt_stream(g)));
}

static inline void gpt_copy(const gpt *g, gpt_real *to, const gpt_real *from, int64_t n)
{
    if (n > 0 && to != from) {
        right(cudaMemcpyAsync(to, from, (size_t)n * sizeof *to, cudaMemcpyDefault, gpt_stream(g)));
    }
}

static inline void gpt_zero(const gpt *g, gpt_real *to, int64_t n)
{
    if (n > 0) {
        right(cudaMemsetAsync(to, 0, (size_t)n * sizeof *to, gpt_stream(g)));
    }
}

struct gpt_addition {
    gpt_real *to;
    const gpt_real *a, *b;
    const int32_t *row; /* of b; NULL: element by element */
    int64_t count, width;
};

__global__ static void gpt_add_kernel(const gpt_addition a)
{
    for (EACH(i, a.count)) {
        const int64_t at = a.row != NULL ? a.row[i / a.width] * a.width + i % a.width : i;
        a.to[i] = a.a[i] + a.b[at];
    }
}

static inline void gpt_add(const gpt *g, gpt_real *to, const gpt_real *a, const gpt_real *b,
                           int64_t n)
{
    launch(gpt_stream(g), gpt_add_kernel, gpt_addition{to, a, b, NULL, n, 1}, n);
}

/* to[i] += table[row[i]], rows of `width`. */
static inline void gpt_add_rows(const gpt *g, gpt_real *to, const gpt_real *table,
                                const int32_t *row, int64_t rows, int64_t width)
{
    launch(gpt_stream(g), gpt_add_kernel, gpt_addition{to, to, table, row, rows * width, width},
           rows * width);
}

/* table[row[i]] += from[i], one after the other. */
static inline void gpt_sum_rows(const gpt *g, gpt_real *table, const gpt_real *from,
                                const int32_t *row, int64_t rows, int64_t width)
{
    const dpar_mem *mem = g->comms.tp->mem;
    const dpar_mem_layers *layers = (const dpar_mem_layers *)mem->layers;
    dpar_mem_scatter s;
    memset(&s, 0, sizeof s);
    s.to = table;
    s.from = from;
    s.rows = rows;
    s.width = width;
    s.type = GPT_TYPE;
    s.index.at = row;
    s.index.type = DPAR_I32;
    right(layers->scatter(mem->ctx, &s), "dpar_cuda's scatter failed to add rows");
}

/* ---- products -------------------------------------------------------------------------------- */

/* Each block computes a tile of c, and each thread 4 x 4 numbers of it, 16 apart. Sums are in the
 * order of k. */
__global__ static void gpt_matmul_kernel(const dpar_matmul p)
{
    __shared__ gpt_real a[GPT_DEEP][GPT_TILE + 1], b[GPT_DEEP][GPT_TILE + 1];
    const int64_t m = (int64_t)blockIdx.x * GPT_TILE, n = (int64_t)blockIdx.y * GPT_TILE;
    const gpt_real *from_a = (const gpt_real *)p.a, *from_b = (const gpt_real *)p.b;
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    gpt_real sum[4][4] = {};
    for (int64_t k = 0; k < p.k; k += GPT_DEEP) {
        for (int e = (int)threadIdx.x; e < GPT_DEEP * GPT_TILE; e += 256) {
            /* Neighbouring threads read neighbouring numbers. */
            const int ai = p.transpose_a ? e % GPT_TILE : e / GPT_DEEP;
            const int ad = p.transpose_a ? e / GPT_TILE : e % GPT_DEEP;
            const int bj = p.transpose_b ? e / GPT_DEEP : e % GPT_TILE;
            const int bd = p.transpose_b ? e % GPT_DEEP : e / GPT_TILE;
            a[ad][ai] =
                m + ai < p.m && k + ad < p.k
                    ? from_a[p.transpose_a ? (k + ad) * p.lda + m + ai : (m + ai) * p.lda + k + ad]
                    : (gpt_real)0;
            b[bd][bj] =
                n + bj < p.n && k + bd < p.k
                    ? from_b[p.transpose_b ? (n + bj) * p.ldb + k + bd : (k + bd) * p.ldb + n + bj]
                    : (gpt_real)0;
        }
        __syncthreads();
        for (int d = 0; d < GPT_DEEP; d++) {
            for (int i = 0; i < 4; i++) {
                for (int j = 0; j < 4; j++) {
                    sum[i][j] += a[d][y + 16 * i] * b[d][x + 16 * j];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            const int64_t row = m + y + 16 * i, column = n + x + 16 * j;
            gpt_real *to = (gpt_real *)p.c + row * p.ldc + column;
            if (row < p.m && column < p.n) {
                const gpt_real sums = (gpt_real)p.alpha * sum[i][j];
                *to = p.beta != 0.0 ? sums + (gpt_real)p.beta * *to : sums;
            }
        }
    }
}

/* The same by cuBLAS, whose matrices are column by column: c^T = op(b)^T op(a)^T. */
static inline bool gpt_matmul_blas(const gpt *g, const dpar_matmul *p)
{
    const gpt_real alpha = (gpt_real)p->alpha, beta = (gpt_real)p->beta;
    const int64_t sizes[6] = {p->m, p->n, p->k, p->lda, p->ldb, p->ldc};
    for (int64_t size : sizes) {
        if (size < 1 || size > INT32_MAX) {
            return false;
        }
    }
    return g->products.handle != NULL &&
           g->products.multiply(g->products.handle, p->transpose_b, p->transpose_a, (int)p->n,
                                (int)p->m, (int)p->k, &alpha, (const gpt_real *)p->b, (int)p->ldb,
                                (const gpt_real *)p->a, (int)p->lda, &beta, (gpt_real *)p->c,
                                (int)p->ldc) == 0;
}

static inline dpar_status gpt_matmul(void *user, const dpar_matmul *p)
{
    const gpt *g = (const gpt *)user;
    if (p->m > 0 && p->n > 0 && !gpt_matmul_blas(g, p)) {
        launch_blocks(gpt_stream(g), gpt_matmul_kernel, *p,
                      dim3((unsigned)((p->m + GPT_TILE - 1) / GPT_TILE),
                           (unsigned)((p->n + GPT_TILE - 1) / GPT_TILE)),
                      dim3(256));
    }
    return DPAR_OK;
}

/* A function of cuBLAS, or NULL if there is none. */
template <class F> static F *gpt_find(const gpt *g, const char *name)
{
    return (F *)dlsym(g->products.library, name);
}

/* Loads cuBLAS if the loader finds it, or the file that GPT_CUBLAS names (none if that is empty).
 * TF32 is not enabled, so that products are computed in f32. */
static inline void gpt_open_products(gpt *g)
{
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12"};
    const char *file = getenv("GPT_CUBLAS");
    void *handle = NULL;
    for (int i = 0; i < 2 && g->products.library == NULL && (file == NULL || file[0] != 0); i++) {
        g->products.library = dlopen(file != NULL ? file : files[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (g->products.library == NULL) {
        return;
    }
    auto *create = gpt_find<int(void **)>(g, "cublasCreate_v2");
    auto *stream = gpt_find<int(void *, cudaStream_t)>(g, "cublasSetStream_v2");
    g->products.multiply =
        gpt_find<gpt_multiplies>(g, sizeof(gpt_real) == 8 ? "cublasDgemm_v2" : "cublasSgemm_v2");
    g->products.destroy = gpt_find<int(void *)>(g, "cublasDestroy_v2");
    if (create != NULL && stream != NULL && g->products.multiply != NULL &&
        g->products.destroy != NULL && create(&handle) == 0) {
        g->products.handle = handle;
        right(stream(handle, gpt_stream(g)) == 0 ? (dpar_status)DPAR_OK
                                                 : (dpar_status)DPAR_E_SYSTEM,
              "cublasSetStream failed");
    }
}

static inline void gpt_close_products(gpt *g)
{
    if (g->products.handle != NULL) {
        (void)g->products.destroy(g->products.handle);
    }
    if (g->products.library != NULL) {
        (void)dlclose(g->products.library);
    }
    memset(&g->products, 0, sizeof g->products);
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* The sum over a warp, in all its lanes. */
__device__ static double gpt_warp_sum(double x)
{
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, lanes);
    }
    return x;
}

struct gpt_norm_rows_of {
    const gpt_real *x, *scale, *bias;
    double *stat;
    gpt_real *to;
    const gpt_real *dh, *add; /* back: `to` is dx */
    double *sum;
    int64_t rows, width;
    int layer_norm;
};

/* Each warp has a row. */
__global__ static void gpt_norm_kernel(const gpt_norm_rows_of a)
{
    const int64_t row = (int64_t)blockIdx.x * GPT_WARPS + threadIdx.y, n = a.width;
    const gpt_real *x = a.x + row * n;
    double mean = 0.0, square = 0.0;
    if (row >= a.rows) {
        return;
    }
    for (int64_t j = threadIdx.x; j < n && a.layer_norm; j += 32) {
        mean += (double)x[j];
    }
    mean = gpt_warp_sum(mean) / (double)n;
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        square += ((double)x[j] - mean) * ((double)x[j] - mean);
    }
    const double inverse = 1.0 / sqrt(gpt_warp_sum(square) / (double)n + 1e-5);
    if (threadIdx.x == 0) {
        a.stat[2 * row] = mean;
        a.stat[2 * row + 1] = inverse;
    }
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        a.to[row * n + j] = (gpt_real)(((double)x[j] - mean) * inverse) * a.scale[j] +
                            (a.bias != NULL ? a.bias[j] : (gpt_real)0);
    }
}

__global__ static void gpt_norm_back_kernel(const gpt_norm_rows_of a)
{
    const int64_t row = (int64_t)blockIdx.x * GPT_WARPS + threadIdx.y, n = a.width;
    const gpt_real *x = a.x + row * n, *dh = a.dh + row * n;
    double along = 0.0, level = 0.0;
    if (row >= a.rows) {
        return;
    }
    const double mean = a.stat[2 * row], inverse = a.stat[2 * row + 1];
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        const double d = (double)dh[j] * (double)a.scale[j];
        along += d * ((double)x[j] - mean) * inverse;
        level += a.layer_norm ? d : 0.0;
    }
    along = gpt_warp_sum(along) / (double)n;
    level = gpt_warp_sum(level) / (double)n;
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        const double unit = ((double)x[j] - mean) * inverse;
        const double d = inverse * ((double)dh[j] * (double)a.scale[j] - level - unit * along);
        a.to[row * n + j] = (gpt_real)d + (a.add != NULL ? a.add[row * n + j] : (gpt_real)0);
    }
}

/* Gradients of scale and bias. Each block has 32 columns, and each warp every eighth row of them.
 */
__global__ static void gpt_norm_sum_kernel(const gpt_norm_rows_of a)
{
    __shared__ double part[2][GPT_WARPS][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x, n = a.width;
    double scale = 0.0, bias = 0.0;
    for (int64_t row = threadIdx.y; row < a.rows && j < n; row += GPT_WARPS) {
        const double d = (double)a.dh[row * n + j];
        scale += d * ((double)a.x[row * n + j] - a.stat[2 * row]) * a.stat[2 * row + 1];
        bias += d;
    }
    part[0][threadIdx.y][threadIdx.x] = scale;
    part[1][threadIdx.y][threadIdx.x] = bias;
    __syncthreads();
    if (threadIdx.y < 2 && j < n) {
        double sum = 0.0;
        for (int warp = 0; warp < GPT_WARPS; warp++) {
            sum += part[threadIdx.y][warp][threadIdx.x];
        }
        a.sum[threadIdx.y * n + j] = sum;
    }
}

static inline void gpt_norm_launch(const gpt *g, void (*kernel)(gpt_norm_rows_of),
                                   const gpt_norm_rows_of *a, int64_t blocks)
{
    if (blocks > 0) {
        launch_blocks(gpt_stream(g), kernel, *a, dim3((unsigned)blocks), dim3(32, GPT_WARPS));
    }
}

/* As in gpt_host.h. */
static inline void gpt_norm_rows(const gpt *g, const gpt_real *x, const gpt_real *scale,
                                 const gpt_real *bias, double *stat, gpt_real *to)
{
    const gpt_norm_rows_of a = {
        x, scale, bias, stat, to, NULL, NULL, NULL, g->own, g->config.width, g->config.layer_norm};
    gpt_norm_launch(g, gpt_norm_kernel, &a, (g->own + GPT_WARPS - 1) / GPT_WARPS);
}

static inline void gpt_norm_back(const gpt *g, const gpt_real *x, const gpt_real *scale,
                                 double *stat, const gpt_real *dh, const gpt_real *add,
                                 gpt_real *dx, double *sum)
{
    const gpt_norm_rows_of a = {
        x, scale, NULL, stat, dx, dh, add, sum, g->own, g->config.width, g->config.layer_norm};
    gpt_norm_launch(g, gpt_norm_sum_kernel, &a, (g->config.width + 31) / 32);
    gpt_norm_launch(g, gpt_norm_back_kernel, &a, (g->own + GPT_WARPS - 1) / GPT_WARPS);
}

struct gpt_norm_gradient {
    const double *sum;
    gpt_real *scale, *bias;
    int64_t width;
};

__global__ static void gpt_norm_weight_kernel(const gpt_norm_gradient a)
{
    for (EACH(j, a.width)) {
        a.scale[j] += (gpt_real)a.sum[j];
        if (a.bias != NULL) {
            a.bias[j] += (gpt_real)a.sum[a.width + j];
        }
    }
}

static inline void gpt_norm_weight(const gpt *g, const double *sum, gpt_real *dscale,
                                   gpt_real *dbias)
{
    launch(gpt_stream(g), gpt_norm_weight_kernel,
           gpt_norm_gradient{sum, dscale, dbias, g->config.width}, g->config.width);
}

/* ---- activations ----------------------------------------------------------------------------- */

struct gpt_activation {
    const gpt_real *gate, *up, *dact; /* gate NULL: GELU */
    gpt_real *act, *dgate, *dup;
    int64_t count;
};

__global__ static void gpt_activate_kernel(const gpt_activation a)
{
    for (EACH(i, a.count)) {
        a.act[i] = a.gate != NULL ? gpt_swiglu(a.gate[i], a.up[i]) : gpt_gelu(a.up[i]);
    }
}

__global__ static void gpt_activate_back_kernel(const gpt_activation a)
{
    for (EACH(i, a.count)) {
        if (a.gate != NULL) {
            gpt_swiglu_back(a.gate[i], a.up[i], a.dact[i], &a.dgate[i], &a.dup[i]);
        } else {
            a.dup[i] = gpt_gelu_back(a.up[i], a.dact[i]);
        }
    }
}

static inline void gpt_activate(const gpt *g, int64_t n, const gpt_real *gate, const gpt_real *up,
                                gpt_real *act)
{
    launch(gpt_stream(g), gpt_activate_kernel, gpt_activation{gate, up, NULL, act, NULL, NULL, n},
           n);
}

static inline void gpt_activate_back(const gpt *g, int64_t n, const gpt_real *gate,
                                     const gpt_real *up, const gpt_real *dact, gpt_real *dgate,
                                     gpt_real *dup)
{
    launch(gpt_stream(g), gpt_activate_back_kernel,
           gpt_activation{gate, up, dact, NULL, dgate, dup, n}, n);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* A block of queries and keys (sequence.h), as kernels take it. */
struct gpt_attention {
    const gpt_real *q, *k, *v, *dout, *delta;
    gpt_real *out, *lse, *dq, *dk, *dv, scale;
    int64_t queries, keys, low, high, heads, groups, width;
};

/* Several rows of a head; rows that do not exist are 0. */
typedef gpt_real gpt_some[GPT_BLOCK][GPT_MOST + 1];

__device__ static void gpt_load(gpt_some &to, const gpt_real *from, int64_t first, int64_t rows,
                                int64_t step, int64_t width)
{
    const int64_t row = first + threadIdx.y;
    for (int64_t d = threadIdx.x; d < width; d += GPT_BLOCK) {
        to[threadIdx.y][d] = row < rows ? from[row * step + d] : (gpt_real)0;
    }
}

__device__ static gpt_real gpt_dot(const gpt_some &a, int i, const gpt_some &b, int j,
                                   int64_t width)
{
    gpt_real sum = 0;
    for (int64_t d = 0; d < width; d++) {
        sum += a[i][d] * b[j][d];
    }
    return sum;
}

/* True if query i sees key j. */
__device__ static bool gpt_sees(const gpt_attention &a, int64_t i, int64_t j)
{
    return i < a.queries && j < a.keys && j >= i + a.low && j <= i + a.high;
}

/* Where the keys that any of queries i to i + GPT_BLOCK - 1 sees begin. The next function: where
 * they end. */
__device__ static int64_t gpt_first_key(const gpt_attention &a, int64_t i)
{
    return i + a.low > 0 ? i + a.low : 0;
}

__device__ static int64_t gpt_last_key(const gpt_attention &a, int64_t i)
{
    const int64_t last = i + GPT_BLOCK < a.queries ? i + GPT_BLOCK : a.queries; /* behind */
    return last + a.high < a.keys ? last + a.high : a.keys;
}

/* The same of queries that see any of keys j .. j + GPT_BLOCK - 1. */
__device__ static int64_t gpt_first_query(const gpt_attention &a, int64_t j)
{
    return j - a.high > 0 ? j - a.high : 0;
}

__device__ static int64_t gpt_last_query(const gpt_attention &a, int64_t j)
{
    const int64_t last = j + GPT_BLOCK < a.keys ? j + GPT_BLOCK : a.keys;
    return last - a.low < a.queries ? last - a.low : a.queries;
}

/* Each block of threads has GPT_BLOCK queries of a head, and loads as many keys at a time. Thread
 * (x, y) computes the score of query y and key x, and features x, x + GPT_BLOCK, ... of the result
 * of query y. The largest score so far is subtracted, and sums are rescaled when it grows. */
__global__ static void gpt_attend_kernel(const gpt_attention a)
{
    __shared__ gpt_some q, kv;
    __shared__ gpt_real score[GPT_BLOCK][GPT_BLOCK + 1], weight[GPT_BLOCK][GPT_BLOCK + 1];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t h = blockIdx.y, group = h / (a.heads / a.groups), w = a.width;
    const int64_t first = (int64_t)blockIdx.x * GPT_BLOCK, step = a.heads * w;
    const int64_t end = gpt_last_key(a, first);
    gpt_real sum[GPT_SHARE] = {}, total = 0, most = (gpt_real)-1e30;
    gpt_load(q, a.q + h * w, first, a.queries, step, w);
    for (int64_t k = gpt_first_key(a, first); k < end; k += GPT_BLOCK) {
        const bool sees = gpt_sees(a, first + y, k + x);
        gpt_real larger = most, shrink;
        gpt_load(kv, a.k + group * w, k, a.keys, a.groups * w, w);
        __syncthreads();
        score[y][x] = sees ? a.scale * gpt_dot(q, y, kv, x, w) : (gpt_real)-1e30;
        __syncthreads();
        for (int j = 0; j < GPT_BLOCK; j++) {
            larger = score[y][j] > larger ? score[y][j] : larger;
        }
        weight[y][x] = sees ? exp(score[y][x] - larger) : (gpt_real)0;
        gpt_load(kv, a.v + group * w, k, a.keys, a.groups * w, w);
        __syncthreads();
        shrink = exp(most - larger);
        most = larger;
        total *= shrink;
        for (int s = 0; s < GPT_SHARE; s++) {
            sum[s] *= shrink;
        }
        for (int j = 0; j < GPT_BLOCK; j++) {
            total += weight[y][j];
            for (int s = 0; s < GPT_SHARE; s++) {
                if (x + s * GPT_BLOCK < w) {
                    sum[s] += weight[y][j] * kv[j][x + s * GPT_BLOCK];
                }
            }
        }
        __syncthreads();
    }
    if (first + y >= a.queries) {
        return;
    }
    for (int s = 0; s < GPT_SHARE; s++) {
        if (x + s * GPT_BLOCK < w) {
            a.out[(first + y) * step + h * w + x + s * GPT_BLOCK] =
                total > 0 ? sum[s] / total : (gpt_real)0;
        }
    }
    if (x == 0) {
        a.lse[(first + y) * a.heads + h] = total > 0 ? most + log(total) : (gpt_real)-1e30;
    }
}

/* The weight of one query and one key, and the gradient of their score. */
__device__ static gpt_real gpt_pair(const gpt_attention &a, int64_t i, int64_t h, gpt_real score,
                                    gpt_real dweight, gpt_real *dscore)
{
    const int64_t at = i * a.heads + h;
    const gpt_real weight = exp(a.scale * score - a.lse[at]);
    *dscore = a.scale * weight * (dweight - a.delta[at]);
    return weight;
}

/* Gradients of queries, as above, in the same order of keys. */
__global__ static void gpt_attend_queries_kernel(const gpt_attention a)
{
    __shared__ gpt_some q, dout, k, v;
    __shared__ gpt_real dscore[GPT_BLOCK][GPT_BLOCK + 1];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t h = blockIdx.y, group = h / (a.heads / a.groups), w = a.width;
    const int64_t first = (int64_t)blockIdx.x * GPT_BLOCK, step = a.heads * w;
    const int64_t end = gpt_last_key(a, first);
    gpt_real sum[GPT_SHARE] = {};
    gpt_load(q, a.q + h * w, first, a.queries, step, w);
    gpt_load(dout, a.dout + h * w, first, a.queries, step, w);
    for (int64_t at = gpt_first_key(a, first); at < end; at += GPT_BLOCK) {
        gpt_real d = 0;
        gpt_load(k, a.k + group * w, at, a.keys, a.groups * w, w);
        gpt_load(v, a.v + group * w, at, a.keys, a.groups * w, w);
        __syncthreads();
        if (gpt_sees(a, first + y, at + x)) {
            (void)gpt_pair(a, first + y, h, gpt_dot(q, y, k, x, w), gpt_dot(dout, y, v, x, w), &d);
        }
        dscore[y][x] = d;
        __syncthreads();
        for (int j = 0; j < GPT_BLOCK; j++) {
            for (int s = 0; s < GPT_SHARE; s++) {
                if (x + s * GPT_BLOCK < w) {
                    sum[s] += dscore[y][j] * k[j][x + s * GPT_BLOCK];
                }
            }
        }
        __syncthreads();
    }
    for (int s = 0; s < GPT_SHARE && first + y < a.queries; s++) {
        if (x + s * GPT_BLOCK < w) {
            a.dq[(first + y) * step + h * w + x + s * GPT_BLOCK] += sum[s];
        }
    }
}

/* Gradients of keys and values. Each block has GPT_BLOCK of a group, and loads the queries of all
 * its heads, one head after the other. */
__global__ static void gpt_attend_keys_kernel(const gpt_attention a)
{
    __shared__ gpt_some q, dout, k, v;
    __shared__ gpt_real dscore[GPT_BLOCK][GPT_BLOCK + 1], weight[GPT_BLOCK][GPT_BLOCK + 1];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t group = blockIdx.y, w = a.width, each = a.heads / a.groups;
    const int64_t first = (int64_t)blockIdx.x * GPT_BLOCK, step = a.heads * w;
    const int64_t end = gpt_last_query(a, first);
    gpt_real dk[GPT_SHARE] = {}, dv[GPT_SHARE] = {};
    gpt_load(k, a.k + group * w, first, a.keys, a.groups * w, w);
    gpt_load(v, a.v + group * w, first, a.keys, a.groups * w, w);
    for (int64_t h = group * each; h < (group + 1) * each; h++) {
        for (int64_t at = gpt_first_query(a, first); at < end; at += GPT_BLOCK) {
            gpt_real d = 0, p = 0;
            gpt_load(q, a.q + h * w, at, a.queries, step, w);
            gpt_load(dout, a.dout + h * w, at, a.queries, step, w);
            __syncthreads();
            if (gpt_sees(a, at + x, first + y)) {
                p = gpt_pair(a, at + x, h, gpt_dot(q, x, k, y, w), gpt_dot(dout, x, v, y, w), &d);
            }
            dscore[y][x] = d;
            weight[y][x] = p;
            __syncthreads();
            for (int j = 0; j < GPT_BLOCK; j++) {
                for (int s = 0; s < GPT_SHARE; s++) {
                    if (x + s * GPT_BLOCK < w) {
                        dk[s] += dscore[y][j] * q[j][x + s * GPT_BLOCK];
                        dv[s] += weight[y][j] * dout[j][x + s * GPT_BLOCK];
                    }
                }
            }
            __syncthreads();
        }
    }
    for (int s = 0; s < GPT_SHARE && first + y < a.keys; s++) {
        const int64_t to = ((first + y) * a.groups + group) * w + x + s * GPT_BLOCK;
        if (x + s * GPT_BLOCK < w) {
            a.dk[to] += dk[s];
            a.dv[to] += dv[s];
        }
    }
}

static inline gpt_attention gpt_attention_of(const dpar_attention_call *c)
{
    const dpar_attention_desc *l = c->layer;
    gpt_attention a;
    a.q = (const gpt_real *)c->q;
    a.k = (const gpt_real *)c->k;
    a.v = (const gpt_real *)c->v;
    a.dout = (const gpt_real *)c->out_gradient;
    a.delta = (const gpt_real *)c->delta;
    a.out = (gpt_real *)c->out;
    a.lse = (gpt_real *)c->lse;
    a.dq = (gpt_real *)c->q_gradient;
    a.dk = (gpt_real *)c->k_gradient;
    a.dv = (gpt_real *)c->v_gradient;
    a.scale = (gpt_real)(1.0 / sqrt((double)l->width));
    a.queries = c->queries;
    a.keys = c->keys;
    a.low = c->low;
    a.high = c->high;
    a.heads = l->heads;
    a.groups = l->groups;
    a.width = l->width;
    return a;
}

static inline void gpt_attend_launch(const dpar_attention_call *c, void (*kernel)(gpt_attention),
                                     int64_t rows, int64_t heads)
{
    if (rows > 0 && heads > 0) {
        launch_blocks(gpt_stream((const gpt *)c->user), kernel, gpt_attention_of(c),
                      dim3((unsigned)((rows + GPT_BLOCK - 1) / GPT_BLOCK), (unsigned)heads),
                      dim3(GPT_BLOCK, GPT_BLOCK));
    }
}

static inline void gpt_attend_block(const dpar_attention_call *c)
{
    gpt_attend_launch(c, gpt_attend_kernel, c->queries, c->layer->heads);
}

static inline void gpt_attend_block_back(const dpar_attention_call *c)
{
    gpt_attend_launch(c, gpt_attend_queries_kernel, c->queries, c->layer->heads);
    gpt_attend_launch(c, gpt_attend_keys_kernel, c->keys, c->layer->groups);
}

#endif
