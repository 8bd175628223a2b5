/* SPDX-License-Identifier: MIT-0 */
/* cuda - uses a GPU: fills in the tables of functions for its memory, draws random numbers in
 * kernels, and measures its speed. */
#ifndef DPARI_CUDA_CUDA_H
#define DPARI_CUDA_CUDA_H

#include "../base/arith.h"
#include "../host/mem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A CUDA stream. This is cudaStream_t, declared without CUDA's headers. */
typedef struct CUstream_st *dpar_cuda_stream;

/* Describes how a device is used. 0 selects the default of each field. */
typedef struct dpar_cuda_desc {
    dpar_cuda_stream stream; /* all work is enqueued on it; NULL is the default stream */
    int32_t device;          /* 1 + number of the device; 0 selects the current device */
    int32_t fast_math;       /* 1 computes exponentials and optimizers in f32, see above; otherwise
                                0 */
    int32_t max_blocks; /* the most blocks of a launch; 0 selects as many as run at once. Results do
                           not depend on it */
    int32_t reserved;   /* 0 */
} dpar_cuda_desc;

enum { DPARI_CUDA_PINS = 128 };

/* A device and a stream. dpar_cuda_make fills it in. You may read its fields, but change only
 * `launches`. */
typedef struct dpar_cuda {
    dpar_cuda_stream stream;
    int32_t device;
    int32_t multiprocessors;
    int32_t threads;    /* the most threads that a multiprocessor runs at once */
    int32_t capability; /* compute capability times 10: 90 for 9.0 */
    int32_t fast_math, max_blocks;
    void *scratch; /* device memory for partial results, used by only one stream */
    int64_t scratch_bytes;
    int64_t launches;  /* number of kernel launches so far; you may set it to 0 */
    dpar_why why;      /* message of the last error */
    int32_t arguments; /* the most bytes of arguments that a launch may have */
    int32_t pins, held_n;
    struct {
        uintptr_t memory, lo, hi;
    } pin[DPARI_CUDA_PINS]; /* memory that is pinned */
    struct {
        uintptr_t lo, hi;
    } held[DPARI_CUDA_PINS]; /* pages that are registered for `pin` */
    void *known; /* private: the table of layers, and launches of earlier moves for reuse */
} dpar_cuda;

/* Makes a dpar_cuda in your struct: makes the device the current one of this thread, and allocates
 * half a MiB of its memory.
 *
 * desc: NULL selects the defaults. The stream stays yours, and has to exist until dpar_cuda_free.
 *
 * Local. Takes milliseconds; the first CUDA call of a process takes up to a second. Fails with
 * DPAR_E_ARG if gpu is NULL, device or max_blocks is negative, or fast_math is neither 0 nor 1.
 * Fails with DPAR_E_SYSTEM and CUDA's own message if there is no such device or no device memory,
 * with DPAR_E_UNKNOWN if the compute capability is below 7.0, and with DPAR_E_MEMORY if there is no
 * host memory. */
DPAR_API dpar_status dpar_cuda_make(dpar_cuda *gpu, const dpar_cuda_desc *desc, dpar_why *why);
/* Frees a dpar_cuda: waits for the stream, frees the memory, and unpins pages that are still
 * pinned. NULL, and one that is already freed, are allowed. Local. Fails with DPAR_E_SYSTEM if work
 * on the stream failed; the message is in gpu->why, and everything is freed all the same. */
DPAR_API dpar_status dpar_cuda_free(dpar_cuda *gpu);
/* Fills in a table of functions for the memory of a device. It includes the table of layers if the
 * implementation was compiled with dpar_train.h.
 *
 * gpu: becomes the table's ctx. It must not be moved while the table is used, and only one thread
 *      may use it at a time.
 *
 * Local. */
DPAR_API void dpar_cuda_mem(dpar_cuda *gpu, dpar_mem *mem);

/* ---- random numbers in your kernels ----
 *
 * Your kernels can call these functions. They compute the random numbers of dpar_random_uniform
 * (random.h), and apply dropout with them. They also work on the host, in every file that includes
 * this header. The same elements are dropped whatever the launch, and on every rank. Four
 * consecutive floats, of which the first has an index in the whole array that is a multiple of
 * four, are drawn at once:
 *
 *     __global__ void drop(dpar_cuda_dropout d, float4 *x, int64_t fours)
 *     {
 *         const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
 *         if (i < fours) {
 *             dpar_cuda_dropout_four(&d, (uint64_t)i, &x[i].x, &x[i].x);
 *         }
 *     }
 *
 * In the backward pass the same call, with dy in place of x, gives dx. This has not been run on a
 * device yet. */

#if defined(__CUDACC__)
#define DPAR_CUDA_FN __host__ __device__ static inline
#else
#define DPAR_CUDA_FN DPARI_FN
#endif

/* Computes the four words of a block of a stream, words 4 block to 4 block + 3. Each is the number
 * of dpar_random_uniform times 2^32, rounded down. */
DPAR_CUDA_FN void dpari_cuda_random_four(uint64_t seed, uint64_t stream, uint64_t block,
                                         uint32_t *words)
{
    uint32_t a = (uint32_t)block, b = (uint32_t)(block >> 32), c = (uint32_t)stream;
    uint32_t d = (uint32_t)(stream >> 32), low = (uint32_t)seed, high = (uint32_t)(seed >> 32);
    int round;
#if defined(__CUDACC__)
#pragma unroll
#endif
    for (round = 0; round < 10; round++) {
        const uint64_t x = (uint64_t)a * UINT64_C(0xD2511F53);
        const uint64_t y = (uint64_t)c * UINT64_C(0xCD9E8D57);
        a = (uint32_t)(y >> 32) ^ b ^ low;
        b = (uint32_t)y;
        c = (uint32_t)(x >> 32) ^ d ^ high;
        d = (uint32_t)x;
        low += UINT32_C(0x9E3779B9);
        high += UINT32_C(0xBB67AE85);
    }
    words[0] = a;
    words[1] = b;
    words[2] = c;
    words[3] = d;
}

/* Returns word `index` of a stream. */
DPAR_CUDA_FN uint32_t dpari_cuda_random_word(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint32_t words[4];
    dpari_cuda_random_four(seed, stream, index / 4, words);
    words[0] = index % 4 < 2 ? words[0] : words[2]; /* selects instead of indexing, so that the
                                                       words stay in registers */
    words[1] = index % 4 < 2 ? words[1] : words[3];
    return index % 2 == 0 ? words[0] : words[1];
}

/* Describes dropout. It can be passed to a kernel by value. */
typedef struct dpar_cuda_dropout {
    uint64_t seed, stream;
    uint64_t dropped; /* an element is dropped if its word is below this */
    float kept;       /* 1 - p, rounded to f32 */
    float reserved;   /* 0 */
} dpar_cuda_dropout;

/* Fills in dropout of probability p, 0 to 1: an element is dropped if its random number of (seed,
 * stream) is below p. */
DPAR_CUDA_FN void dpar_cuda_dropout_init(dpar_cuda_dropout *d, uint64_t seed, uint64_t stream,
                                         double p)
{
    const double most = p * 4294967296.0; /* exact; a word is dropped if word + 1/2 is below it */
    d->seed = seed;
    d->stream = stream;
    d->dropped = 0;
    if (p >= 1.0) {
        d->dropped = UINT64_C(4294967296);
    } else if (p > 0.0) {
        const uint64_t whole = (uint64_t)most;
        d->dropped = whole + (most - (double)whole > 0.5 ? 1 : 0);
    }
    d->kept = (float)(1.0 - p);
    d->reserved = 0.0f;
}

/* Returns the result of dropout for an element whose random word is `word`: 0, or x / (1 - p) in
 * f32. */
DPAR_CUDA_FN float dpari_cuda_dropout_word(const dpar_cuda_dropout *d, uint32_t word, float x)
{
#if defined(__CUDA_ARCH__)
    return word < d->dropped ? 0.0f : __fdiv_rn(x, d->kept);
#else
    return word < d->dropped ? 0.0f : x / d->kept;
#endif
}

/* Returns the result of dropout for element `index` of the whole array. dpar_cuda_dropout_four
 * costs a quarter of this for each element. */
DPAR_CUDA_FN float dpar_cuda_dropout_one(const dpar_cuda_dropout *d, uint64_t index, float x)
{
    return dpari_cuda_dropout_word(d, dpari_cuda_random_word(d->seed, d->stream, index), x);
}

/* Applies dropout to four elements of the whole array, 4 block to 4 block + 3. y may be x. */
DPAR_CUDA_FN void dpar_cuda_dropout_four(const dpar_cuda_dropout *d, uint64_t block, const float *x,
                                         float *y)
{
    uint32_t words[4];
    dpari_cuda_random_four(d->seed, d->stream, block, words);
    y[0] = dpari_cuda_dropout_word(d, words[0], x[0]);
    y[1] = dpari_cuda_dropout_word(d, words[1], x[1]);
    y[2] = dpari_cuda_dropout_word(d, words[2], x[2]);
    y[3] = dpari_cuda_dropout_word(d, words[3], x[3]);
}

/* ---- measuring ---- */

/* Describes a measurement. 0 selects the default of each field. */
typedef struct dpar_cuda_measure_desc {
    int64_t bytes; /* size of a buffer that is copied; 0 selects 1 GiB, or an eighth of the free
                      memory if that is less */
    int32_t matrix_size; /* size of the matrices of the product; 0 selects 8192 */
    int32_t peer; /* 1 + the device at the other end of the link; 0 selects the next one, if any */
    /* A callback that enqueues c = a b^T on the stream, with the library that you compute with. All
     * three matrices are bf16, [matrix_size][matrix_size]; sums are f32. NULL selects cuBLAS, if
     * the dynamic loader finds the file `cublas` or, if that is NULL, libcublas.so.13,
     * libcublas.so.12 or libcublas.so. */
    dpar_status (*gemm)(void *user, dpar_cuda_stream stream, const void *a, const void *b, void *c,
                        int32_t matrix_size);
    void *user;         /* passed to gemm */
    const char *cublas; /* file name of cuBLAS; NULL selects the names above, "" uses none */
} dpar_cuda_measure_desc;

/* The results of a measurement. A number that could not be measured is 0. */
typedef struct dpar_cuda_measurement {
    char name[64];         /* of the device */
    char gemm_library[64]; /* the library that computed the product */
    double copy_Bps;       /* bytes per second that `move` reads and writes together, within the
                              device */
    double gemm_flops;     /* FLOP/s of the product of two bf16 matrices of random numbers */
    double launch_s;       /* host seconds per launch, from a thousand kernels that do nothing */
    double link_Bps;       /* bytes per second to the other device, in one direction */
    double pcie_Bps;       /* bytes per second from pinned host memory, in one direction */
    double memory_bytes;   /* of the device */
    int32_t multiprocessors;
    int32_t capability; /* compute capability times 10 */
} dpar_cuda_measurement;

/* Measures the speed of a device. Most numbers are the median of several measurements. Waits for
 * the device, and allocates memory and frees it. A number that cannot be measured is 0, which is
 * not an error.
 *
 * probe: NULL selects the defaults.
 *
 * Local. Takes about a second. Fails with DPAR_E_ARG if bytes is negative, matrix_size is not 0 to
 * 65536, or the device does not respond, and with DPAR_E_MEMORY if there is no device memory for
 * the buffers. */
DPAR_API dpar_status dpar_cuda_measure(dpar_cuda *gpu, const dpar_cuda_measure_desc *probe,
                                       dpar_cuda_measurement *made, dpar_why *why);
/* Writes a measurement as settings for dpar_cluster_read, one on each line, to follow the line of
 * the machine ("1x8:h200"). Returns the length without the NUL, even if that exceeds `bytes` and
 * only a part was written.
 *
 * peak_memory_Bps, peak_flops, peak_link_Bps: the peak rates of the gpu and the link in a preset.
 *              hbm=, gemm= and link_share= are shares of these; launch_us= and pcie= are absolute.
 *              Numbers that were not measured are listed in comments.
 *
 * Local. */
DPAR_API int64_t dpar_cuda_measurement_write(const dpar_cuda_measurement *made,
                                             double peak_memory_Bps, double peak_flops,
                                             double peak_link_Bps, char *text, int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
