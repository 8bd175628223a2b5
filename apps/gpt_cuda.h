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
static inline const char *gpt_cannot(const gpt_config *config, const gpt_comms *comms)
{
    if (comms->tp->mem == NULL) {
        return "the communicators have no mem, which must be that of a device";
    }
    if (config->width / config->heads > GPT_MOST) {
        return "a head is wider than 512 bytes, the most for attention in device memory";
    }
    return NULL;
}

static inline cudaStream_t gpt_stream(const gpt *model)
{
    return ((const dpar_cuda *)model->comms.tp->mem->ctx)->stream;
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
static inline void gpt_wait(const gpt *model)
{
    right(cudaStreamSynchronize(gpt_stream(model)));
}

/* Copies from host memory to the model's. gpt_get copies back. */
static inline void gpt_put(const gpt *model, void *to, const void *from, int64_t bytes)
{
    right(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, gpt_stream(model)));
    right(cudaStreamSynchronize(gpt_stream(model)));
}

static inline void gpt_get(const gpt *model, void *to, const void *from, int64_t bytes)
{
    right(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost, gpt_stream(model)));
    right(cudaStreamSynchronize(gpt_stream(model)));
}

static inline void gpt_copy(const gpt *model, gpt_real *to, const gpt_real *from, int64_t n)
{
    if (n > 0 && to != from) {
        right(cudaMemcpyAsync(to, from, (size_t)n * sizeof *to, cudaMemcpyDefault,
                              gpt_stream(model)));
    }
}

static inline void gpt_zero(const gpt *model, gpt_real *to, int64_t n)
{
    if (n > 0) {
        right(cudaMemsetAsync(to, 0, (size_t)n * sizeof *to, gpt_stream(model)));
    }
}

struct gpt_addition {
    gpt_real *to;
    const gpt_real *a, *b;
    const int32_t *row; /* of b; NULL: element by element */
    int64_t count, width;
};

__global__ static void gpt_add_kernel(const gpt_addition addition)
{
    for (EACH(i, addition.count)) {
        const int64_t at =
            addition.row != NULL
                ? addition.row[i / addition.width] * addition.width + i % addition.width
                : i;
        addition.to[i] = addition.a[i] + addition.b[at];
    }
}

static inline void gpt_add(const gpt *model, gpt_real *to, const gpt_real *a, const gpt_real *b,
                           int64_t n)
{
    launch(gpt_stream(model), gpt_add_kernel, gpt_addition{to, a, b, NULL, n, 1}, n);
}

/* to[i] += table[row[i]], rows of `width`. */
static inline void gpt_add_rows(const gpt *model, gpt_real *to, const gpt_real *table,
                                const int32_t *row, int64_t rows, int64_t width)
{
    launch(gpt_stream(model), gpt_add_kernel, gpt_addition{to, to, table, row, rows * width, width},
           rows * width);
}

/* table[row[i]] += from[i], one after the other. */
static inline void gpt_sum_rows(const gpt *model, gpt_real *table, const gpt_real *from,
                                const int32_t *row, int64_t rows, int64_t width)
{
    const dpar_mem *mem = model->comms.tp->mem;
    const dpar_mem_layers *layers = (const dpar_mem_layers *)mem->layers;
    dpar_mem_scatter scatter;
    memset(&scatter, 0, sizeof scatter);
    scatter.to = table;
    scatter.from = from;
    scatter.rows = rows;
    scatter.width = width;
    scatter.type = GPT_TYPE;
    scatter.index.at = row;
    scatter.index.type = DPAR_I32;
    right(layers->scatter(mem->ctx, &scatter), "dpar_cuda's scatter failed to add rows");
}

/* ---- products -------------------------------------------------------------------------------- */

/* Each block computes a tile of c, and each thread 4 x 4 numbers of it, 16 apart. Sums are in the
 * order of k. */
__global__ static void gpt_matmul_kernel(const dpar_matmul product)
{
    __shared__ gpt_real a[GPT_DEEP][GPT_TILE + 1], b[GPT_DEEP][GPT_TILE + 1];
    const int64_t m = (int64_t)blockIdx.x * GPT_TILE, n = (int64_t)blockIdx.y * GPT_TILE;
    const gpt_real *from_a = (const gpt_real *)product.a, *from_b = (const gpt_real *)product.b;
    const int x = (int)threadIdx.x % 16, y = (int)threadIdx.x / 16;
    gpt_real sum[4][4] = {};
    for (int64_t k = 0; k < product.k; k += GPT_DEEP) {
        for (int element = (int)threadIdx.x; element < GPT_DEEP * GPT_TILE; element += 256) {
            /* Neighbouring threads read neighbouring numbers. */
            const int ai = product.transpose_a ? element % GPT_TILE : element / GPT_DEEP;
            const int ad = product.transpose_a ? element / GPT_TILE : element % GPT_DEEP;
            const int bj = product.transpose_b ? element / GPT_DEEP : element % GPT_TILE;
            const int bd = product.transpose_b ? element % GPT_DEEP : element / GPT_TILE;
            const int64_t at_a = product.transpose_a ? (k + ad) * product.lda + m + ai
                                                     : (m + ai) * product.lda + k + ad;
            const int64_t at_b = product.transpose_b ? (n + bj) * product.ldb + k + bd
                                                     : (k + bd) * product.ldb + n + bj;
            const bool in_a = m + ai < product.m && k + ad < product.k;
            const bool in_b = n + bj < product.n && k + bd < product.k;
            a[ad][ai] = in_a ? from_a[at_a] : (gpt_real)0;
            b[bd][bj] = in_b ? from_b[at_b] : (gpt_real)0;
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
            gpt_real *to = (gpt_real *)product.c + row * product.ldc + column;
            if (row < product.m && column < product.n) {
                const gpt_real sums = (gpt_real)product.alpha * sum[i][j];
                *to = product.beta != 0.0 ? sums + (gpt_real)product.beta * *to : sums;
            }
        }
    }
}

/* The same by cuBLAS, whose matrices are column by column: c^T = op(b)^T op(a)^T. */
static inline bool gpt_matmul_blas(const gpt *model, const dpar_matmul *product)
{
    const gpt_real alpha = (gpt_real)product->alpha, beta = (gpt_real)product->beta;
    const int64_t sizes[6] = {product->m,   product->n,   product->k,
                              product->lda, product->ldb, product->ldc};
    for (int64_t size : sizes) {
        if (size < 1 || size > INT32_MAX) {
            return false;
        }
    }
    return model->products.handle != NULL &&
           model->products.multiply(
               model->products.handle, product->transpose_b, product->transpose_a, (int)product->n,
               (int)product->m, (int)product->k, &alpha, (const gpt_real *)product->b,
               (int)product->ldb, (const gpt_real *)product->a, (int)product->lda, &beta,
               (gpt_real *)product->c, (int)product->ldc) == 0;
}

static inline dpar_status gpt_matmul(void *user, const dpar_matmul *product)
{
    const gpt *model = (const gpt *)user;
    if (product->m > 0 && product->n > 0 && !gpt_matmul_blas(model, product)) {
        launch_blocks(gpt_stream(model), gpt_matmul_kernel, *product,
                      dim3((unsigned)((product->m + GPT_TILE - 1) / GPT_TILE),
                           (unsigned)((product->n + GPT_TILE - 1) / GPT_TILE)),
                      dim3(256));
    }
    return DPAR_OK;
}

/* A function of cuBLAS, or NULL if there is none. */
template <class F> static F *gpt_find(const gpt *model, const char *name)
{
    return (F *)dlsym(model->products.library, name);
}

/* Loads cuBLAS if the loader finds it, or the file that GPT_CUBLAS names (none if that is empty).
 * TF32 is not enabled, so that products are computed in f32. */
static inline void gpt_open_products(gpt *model)
{
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12"};
    const char *file = getenv("GPT_CUBLAS");
    void *handle = NULL;
    for (int i = 0; i < 2 && model->products.library == NULL && (file == NULL || file[0] != 0);
         i++) {
        model->products.library = dlopen(file != NULL ? file : files[i], RTLD_NOW | RTLD_LOCAL);
    }
    if (model->products.library == NULL) {
        return;
    }
    auto *create = gpt_find<int(void **)>(model, "cublasCreate_v2");
    auto *stream = gpt_find<int(void *, cudaStream_t)>(model, "cublasSetStream_v2");
    model->products.multiply = gpt_find<gpt_multiplies>(
        model, sizeof(gpt_real) == 8 ? "cublasDgemm_v2" : "cublasSgemm_v2");
    model->products.destroy = gpt_find<int(void *)>(model, "cublasDestroy_v2");
    if (create != NULL && stream != NULL && model->products.multiply != NULL &&
        model->products.destroy != NULL && create(&handle) == 0) {
        model->products.handle = handle;
        right(stream(handle, gpt_stream(model)) == 0 ? (dpar_status)DPAR_OK
                                                     : (dpar_status)DPAR_E_SYSTEM,
              "cublasSetStream failed");
    }
}

static inline void gpt_close_products(gpt *model)
{
    if (model->products.handle != NULL) {
        (void)model->products.destroy(model->products.handle);
    }
    if (model->products.library != NULL) {
        (void)dlclose(model->products.library);
    }
    memset(&model->products, 0, sizeof model->products);
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
__global__ static void gpt_norm_kernel(const gpt_norm_rows_of norm)
{
    const int64_t row = (int64_t)blockIdx.x * GPT_WARPS + threadIdx.y, n = norm.width;
    const gpt_real *x = norm.x + row * n;
    double mean = 0.0, square = 0.0;
    if (row >= norm.rows) {
        return;
    }
    for (int64_t j = threadIdx.x; j < n && norm.layer_norm; j += 32) {
        mean += (double)x[j];
    }
    mean = gpt_warp_sum(mean) / (double)n;
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        square += ((double)x[j] - mean) * ((double)x[j] - mean);
    }
    const double inverse = 1.0 / sqrt(gpt_warp_sum(square) / (double)n + 1e-5);
    if (threadIdx.x == 0) {
        norm.stat[2 * row] = mean;
        norm.stat[2 * row + 1] = inverse;
    }
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        norm.to[row * n + j] = (gpt_real)(((double)x[j] - mean) * inverse) * norm.scale[j] +
                               (norm.bias != NULL ? norm.bias[j] : (gpt_real)0);
    }
}

__global__ static void gpt_norm_back_kernel(const gpt_norm_rows_of norm)
{
    const int64_t row = (int64_t)blockIdx.x * GPT_WARPS + threadIdx.y, n = norm.width;
    const gpt_real *x = norm.x + row * n, *dh = norm.dh + row * n;
    double along = 0.0, level = 0.0;
    if (row >= norm.rows) {
        return;
    }
    const double mean = norm.stat[2 * row], inverse = norm.stat[2 * row + 1];
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        const double d = (double)dh[j] * (double)norm.scale[j];
        along += d * ((double)x[j] - mean) * inverse;
        level += norm.layer_norm ? d : 0.0;
    }
    along = gpt_warp_sum(along) / (double)n;
    level = gpt_warp_sum(level) / (double)n;
    for (int64_t j = threadIdx.x; j < n; j += 32) {
        const double unit = ((double)x[j] - mean) * inverse;
        const double d = inverse * ((double)dh[j] * (double)norm.scale[j] - level - unit * along);
        norm.to[row * n + j] =
            (gpt_real)d + (norm.add != NULL ? norm.add[row * n + j] : (gpt_real)0);
    }
}

/* Gradients of scale and bias. Each block has 32 columns, and each warp every eighth row of them.
 */
__global__ static void gpt_norm_sum_kernel(const gpt_norm_rows_of norm)
{
    __shared__ double part[2][GPT_WARPS][32];
    const int64_t j = (int64_t)blockIdx.x * 32 + threadIdx.x, n = norm.width;
    double scale = 0.0, bias = 0.0;
    for (int64_t row = threadIdx.y; row < norm.rows && j < n; row += GPT_WARPS) {
        const double d = (double)norm.dh[row * n + j];
        scale += d * ((double)norm.x[row * n + j] - norm.stat[2 * row]) * norm.stat[2 * row + 1];
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
        norm.sum[threadIdx.y * n + j] = sum;
    }
}

static inline void gpt_norm_launch(const gpt *model, void (*kernel)(gpt_norm_rows_of),
                                   const gpt_norm_rows_of *norm, int64_t blocks)
{
    if (blocks > 0) {
        launch_blocks(gpt_stream(model), kernel, *norm, dim3((unsigned)blocks),
                      dim3(32, GPT_WARPS));
    }
}

/* As in gpt_host.h. */
static inline void gpt_norm_rows(const gpt *model, const gpt_real *x, const gpt_real *scale,
                                 const gpt_real *bias, double *stat, gpt_real *to)
{
    const gpt_norm_rows_of norm = {x,
                                   scale,
                                   bias,
                                   stat,
                                   to,
                                   NULL,
                                   NULL,
                                   NULL,
                                   model->own,
                                   model->config.width,
                                   model->config.layer_norm};
    gpt_norm_launch(model, gpt_norm_kernel, &norm, (model->own + GPT_WARPS - 1) / GPT_WARPS);
}

static inline void gpt_norm_back(const gpt *model, const gpt_real *x, const gpt_real *scale,
                                 double *stat, const gpt_real *dh, const gpt_real *add,
                                 gpt_real *dx, double *sum)
{
    const gpt_norm_rows_of norm = {x,
                                   scale,
                                   NULL,
                                   stat,
                                   dx,
                                   dh,
                                   add,
                                   sum,
                                   model->own,
                                   model->config.width,
                                   model->config.layer_norm};
    gpt_norm_launch(model, gpt_norm_sum_kernel, &norm, (model->config.width + 31) / 32);
    gpt_norm_launch(model, gpt_norm_back_kernel, &norm, (model->own + GPT_WARPS - 1) / GPT_WARPS);
}

struct gpt_norm_gradient {
    const double *sum;
    gpt_real *scale, *bias;
    int64_t width;
};

__global__ static void gpt_norm_weight_kernel(const gpt_norm_gradient gradient)
{
    for (EACH(j, gradient.width)) {
        gradient.scale[j] += (gpt_real)gradient.sum[j];
        if (gradient.bias != NULL) {
            gradient.bias[j] += (gpt_real)gradient.sum[gradient.width + j];
        }
    }
}

static inline void gpt_norm_weight(const gpt *model, const double *sum, gpt_real *dscale,
                                   gpt_real *dbias)
{
    launch(gpt_stream(model), gpt_norm_weight_kernel,
           gpt_norm_gradient{sum, dscale, dbias, model->config.width}, model->config.width);
}

/* ---- activations ----------------------------------------------------------------------------- */

__host__ __device__ static inline gpt_real gpt_sigmoid(gpt_real x)
{
    return 1 / (1 + exp(-x));
}

__host__ __device__ static inline gpt_real gpt_swiglu(gpt_real gate, gpt_real up)
{
    return gpt_sigmoid(gate) * up * gate;
}

__host__ __device__ static inline void gpt_swiglu_back(gpt_real gate, gpt_real up, gpt_real dact,
                                                       gpt_real *dgate, gpt_real *dup)
{
    const gpt_real s = gpt_sigmoid(gate);
    *dgate = dact * up * s * (1 + gate * (1 - s));
    *dup = dact * gate * s;
}

__host__ __device__ static inline gpt_real gpt_gelu(gpt_real up)
{
    const gpt_real c = (gpt_real)(2 * GPT_GELU_C), d = (gpt_real)GPT_GELU_D;
    return gpt_sigmoid(c * (up + d * up * up * up)) * up;
}

__host__ __device__ static inline gpt_real gpt_gelu_back(gpt_real up, gpt_real dact)
{
    const gpt_real c = (gpt_real)(2 * GPT_GELU_C), d = (gpt_real)GPT_GELU_D;
    const gpt_real s = gpt_sigmoid(c * (up + d * up * up * up));
    return dact * s * (1 + up * (1 - s) * c * (1 + 3 * d * up * up));
}

struct gpt_activation {
    const gpt_real *gate, *up, *dact; /* gate NULL: GELU */
    gpt_real *act, *dgate, *dup;
    int64_t count;
};

__global__ static void gpt_activate_kernel(const gpt_activation activation)
{
    for (EACH(i, activation.count)) {
        activation.act[i] = activation.gate != NULL
                                ? gpt_swiglu(activation.gate[i], activation.up[i])
                                : gpt_gelu(activation.up[i]);
    }
}

__global__ static void gpt_activate_back_kernel(const gpt_activation activation)
{
    for (EACH(i, activation.count)) {
        if (activation.gate != NULL) {
            gpt_swiglu_back(activation.gate[i], activation.up[i], activation.dact[i],
                            &activation.dgate[i], &activation.dup[i]);
        } else {
            activation.dup[i] = gpt_gelu_back(activation.up[i], activation.dact[i]);
        }
    }
}

static inline void gpt_activate(const gpt *model, int64_t n, const gpt_real *gate,
                                const gpt_real *up, gpt_real *act)
{
    launch(gpt_stream(model), gpt_activate_kernel,
           gpt_activation{gate, up, NULL, act, NULL, NULL, n}, n);
}

static inline void gpt_activate_back(const gpt *model, int64_t n, const gpt_real *gate,
                                     const gpt_real *up, const gpt_real *dact, gpt_real *dgate,
                                     gpt_real *dup)
{
    launch(gpt_stream(model), gpt_activate_back_kernel,
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
__device__ static bool gpt_sees(const gpt_attention &attention, int64_t i, int64_t j)
{
    return i < attention.queries && j < attention.keys && j >= i + attention.low &&
           j <= i + attention.high;
}

/* Where the keys that any of queries i to i + GPT_BLOCK - 1 sees begin. The next function: where
 * they end. */
__device__ static int64_t gpt_first_key(const gpt_attention &attention, int64_t i)
{
    return i + attention.low > 0 ? i + attention.low : 0;
}

__device__ static int64_t gpt_last_key(const gpt_attention &attention, int64_t i)
{
    const int64_t last =
        i + GPT_BLOCK < attention.queries ? i + GPT_BLOCK : attention.queries; /* behind */
    return last + attention.high < attention.keys ? last + attention.high : attention.keys;
}

/* The same of queries that see any of keys j .. j + GPT_BLOCK - 1. */
__device__ static int64_t gpt_first_query(const gpt_attention &attention, int64_t j)
{
    return j - attention.high > 0 ? j - attention.high : 0;
}

__device__ static int64_t gpt_last_query(const gpt_attention &attention, int64_t j)
{
    const int64_t last = j + GPT_BLOCK < attention.keys ? j + GPT_BLOCK : attention.keys;
    return last - attention.low < attention.queries ? last - attention.low : attention.queries;
}

/* Each block of threads has GPT_BLOCK queries of a head, and loads as many keys at a time. Thread
 * (x, y) computes the score of query y and key x, and features x, x + GPT_BLOCK, ... of the result
 * of query y. The largest score so far is subtracted, and sums are rescaled when it grows. */
__global__ static void gpt_attend_kernel(const gpt_attention attention)
{
    __shared__ gpt_some q, kv;
    __shared__ gpt_real score[GPT_BLOCK][GPT_BLOCK + 1], weight[GPT_BLOCK][GPT_BLOCK + 1];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t head = blockIdx.y;
    const int64_t group = head / (attention.heads / attention.groups);
    const int64_t width = attention.width;
    const int64_t first = (int64_t)blockIdx.x * GPT_BLOCK, step = attention.heads * width;
    const int64_t end = gpt_last_key(attention, first);
    gpt_real sum[GPT_SHARE] = {}, total = 0, most = (gpt_real)-1e30;
    gpt_load(q, attention.q + head * width, first, attention.queries, step, width);
    for (int64_t k = gpt_first_key(attention, first); k < end; k += GPT_BLOCK) {
        const bool sees = gpt_sees(attention, first + y, k + x);
        gpt_real larger = most, shrink;
        gpt_load(kv, attention.k + group * width, k, attention.keys, attention.groups * width,
                 width);
        __syncthreads();
        score[y][x] = sees ? attention.scale * gpt_dot(q, y, kv, x, width) : (gpt_real)-1e30;
        __syncthreads();
        for (int j = 0; j < GPT_BLOCK; j++) {
            larger = score[y][j] > larger ? score[y][j] : larger;
        }
        weight[y][x] = sees ? exp(score[y][x] - larger) : (gpt_real)0;
        gpt_load(kv, attention.v + group * width, k, attention.keys, attention.groups * width,
                 width);
        __syncthreads();
        shrink = exp(most - larger);
        most = larger;
        total *= shrink;
        for (int slot = 0; slot < GPT_SHARE; slot++) {
            sum[slot] *= shrink;
        }
        for (int j = 0; j < GPT_BLOCK; j++) {
            total += weight[y][j];
            for (int slot = 0; slot < GPT_SHARE; slot++) {
                if (x + slot * GPT_BLOCK < width) {
                    sum[slot] += weight[y][j] * kv[j][x + slot * GPT_BLOCK];
                }
            }
        }
        __syncthreads();
    }
    if (first + y >= attention.queries) {
        return;
    }
    for (int slot = 0; slot < GPT_SHARE; slot++) {
        if (x + slot * GPT_BLOCK < width) {
            attention.out[(first + y) * step + head * width + x + slot * GPT_BLOCK] =
                total > 0 ? sum[slot] / total : (gpt_real)0;
        }
    }
    if (x == 0) {
        attention.lse[(first + y) * attention.heads + head] =
            total > 0 ? most + log(total) : (gpt_real)-1e30;
    }
}

/* The weight of one query and one key, and the gradient of their score. */
__device__ static gpt_real gpt_pair(const gpt_attention &attention, int64_t i, int64_t head,
                                    gpt_real score, gpt_real dweight, gpt_real *dscore)
{
    const int64_t at = i * attention.heads + head;
    const gpt_real weight = exp(attention.scale * score - attention.lse[at]);
    *dscore = attention.scale * weight * (dweight - attention.delta[at]);
    return weight;
}

/* Gradients of queries, as above, in the same order of keys. */
__global__ static void gpt_attend_queries_kernel(const gpt_attention attention)
{
    __shared__ gpt_some q, dout, k, v;
    __shared__ gpt_real dscore[GPT_BLOCK][GPT_BLOCK + 1];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t head = blockIdx.y;
    const int64_t group = head / (attention.heads / attention.groups);
    const int64_t width = attention.width;
    const int64_t first = (int64_t)blockIdx.x * GPT_BLOCK, step = attention.heads * width;
    const int64_t end = gpt_last_key(attention, first);
    gpt_real sum[GPT_SHARE] = {};
    gpt_load(q, attention.q + head * width, first, attention.queries, step, width);
    gpt_load(dout, attention.dout + head * width, first, attention.queries, step, width);
    for (int64_t at = gpt_first_key(attention, first); at < end; at += GPT_BLOCK) {
        gpt_real gradient = 0;
        gpt_load(k, attention.k + group * width, at, attention.keys, attention.groups * width,
                 width);
        gpt_load(v, attention.v + group * width, at, attention.keys, attention.groups * width,
                 width);
        __syncthreads();
        if (gpt_sees(attention, first + y, at + x)) {
            (void)gpt_pair(attention, first + y, head, gpt_dot(q, y, k, x, width),
                           gpt_dot(dout, y, v, x, width), &gradient);
        }
        dscore[y][x] = gradient;
        __syncthreads();
        for (int j = 0; j < GPT_BLOCK; j++) {
            for (int slot = 0; slot < GPT_SHARE; slot++) {
                if (x + slot * GPT_BLOCK < width) {
                    sum[slot] += dscore[y][j] * k[j][x + slot * GPT_BLOCK];
                }
            }
        }
        __syncthreads();
    }
    for (int slot = 0; slot < GPT_SHARE && first + y < attention.queries; slot++) {
        if (x + slot * GPT_BLOCK < width) {
            attention.dq[(first + y) * step + head * width + x + slot * GPT_BLOCK] += sum[slot];
        }
    }
}

/* Gradients of keys and values. Each block has GPT_BLOCK of a group, and loads the queries of all
 * its heads, one head after the other. */
__global__ static void gpt_attend_keys_kernel(const gpt_attention attention)
{
    __shared__ gpt_some q, dout, k, v;
    __shared__ gpt_real dscore[GPT_BLOCK][GPT_BLOCK + 1], weight[GPT_BLOCK][GPT_BLOCK + 1];
    const int x = (int)threadIdx.x, y = (int)threadIdx.y;
    const int64_t group = blockIdx.y;
    const int64_t width = attention.width;
    const int64_t each = attention.heads / attention.groups;
    const int64_t first = (int64_t)blockIdx.x * GPT_BLOCK, step = attention.heads * width;
    const int64_t end = gpt_last_query(attention, first);
    gpt_real dk[GPT_SHARE] = {}, dv[GPT_SHARE] = {};
    gpt_load(k, attention.k + group * width, first, attention.keys, attention.groups * width,
             width);
    gpt_load(v, attention.v + group * width, first, attention.keys, attention.groups * width,
             width);
    for (int64_t head = group * each; head < (group + 1) * each; head++) {
        for (int64_t at = gpt_first_query(attention, first); at < end; at += GPT_BLOCK) {
            gpt_real gradient = 0, share = 0;
            gpt_load(q, attention.q + head * width, at, attention.queries, step, width);
            gpt_load(dout, attention.dout + head * width, at, attention.queries, step, width);
            __syncthreads();
            if (gpt_sees(attention, at + x, first + y)) {
                share = gpt_pair(attention, at + x, head, gpt_dot(q, x, k, y, width),
                                 gpt_dot(dout, x, v, y, width), &gradient);
            }
            dscore[y][x] = gradient;
            weight[y][x] = share;
            __syncthreads();
            for (int j = 0; j < GPT_BLOCK; j++) {
                for (int slot = 0; slot < GPT_SHARE; slot++) {
                    if (x + slot * GPT_BLOCK < width) {
                        dk[slot] += dscore[y][j] * q[j][x + slot * GPT_BLOCK];
                        dv[slot] += weight[y][j] * dout[j][x + slot * GPT_BLOCK];
                    }
                }
            }
            __syncthreads();
        }
    }
    for (int slot = 0; slot < GPT_SHARE && first + y < attention.keys; slot++) {
        const int64_t to = ((first + y) * attention.groups + group) * width + x + slot * GPT_BLOCK;
        if (x + slot * GPT_BLOCK < width) {
            attention.dk[to] += dk[slot];
            attention.dv[to] += dv[slot];
        }
    }
}

static inline gpt_attention gpt_attention_of(const dpar_attention_call *c)
{
    const dpar_attention_desc *layer = c->layer;
    gpt_attention attention;
    attention.q = (const gpt_real *)c->q;
    attention.k = (const gpt_real *)c->k;
    attention.v = (const gpt_real *)c->v;
    attention.dout = (const gpt_real *)c->out_gradient;
    attention.delta = (const gpt_real *)c->delta;
    attention.out = (gpt_real *)c->out;
    attention.lse = (gpt_real *)c->lse;
    attention.dq = (gpt_real *)c->q_gradient;
    attention.dk = (gpt_real *)c->k_gradient;
    attention.dv = (gpt_real *)c->v_gradient;
    attention.scale = (gpt_real)(1.0 / sqrt((double)layer->width));
    attention.queries = c->queries;
    attention.keys = c->keys;
    attention.low = c->low;
    attention.high = c->high;
    attention.heads = layer->heads;
    attention.groups = layer->groups;
    attention.width = layer->width;
    return attention;
}

static inline void gpt_attend_launch(const dpar_attention_call *call, void (*kernel)(gpt_attention),
                                     int64_t rows, int64_t heads)
{
    if (rows > 0 && heads > 0) {
        launch_blocks(gpt_stream((const gpt *)call->user), kernel, gpt_attention_of(call),
                      dim3((unsigned)((rows + GPT_BLOCK - 1) / GPT_BLOCK), (unsigned)heads),
                      dim3(GPT_BLOCK, GPT_BLOCK));
    }
}

static inline void gpt_attend_block(const dpar_attention_call *call)
{
    gpt_attend_launch(call, gpt_attend_kernel, call->queries, call->layer->heads);
}

static inline void gpt_attend_block_back(const dpar_attention_call *call)
{
    gpt_attend_launch(call, gpt_attend_queries_kernel, call->queries, call->layer->heads);
    gpt_attend_launch(call, gpt_attend_keys_kernel, call->keys, call->layer->groups);
}

#endif
