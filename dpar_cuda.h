/* SPDX-License-Identifier: MIT-0 */
/* dpar_cuda.h - runs the memory operations of halo exchanges and training strategies on an NVIDIA
 * GPU: packing, casting, reducing, optimizer steps and others, as kernels on one stream. It fills
 * in dpar_mem, the table of functions that dpar_comm.h declares, and, if dpar_train.h was included
 * before it, also dpar_mem_layers, the table of functions for layers.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 *     #include "dpar_cuda.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         dpar_cuda gpu;
 *         dpar_mem mem;
 *         dpar_why why;
 *         if (dpar_cuda_make(&gpu, NULL, &why) < 0) {
 *             puts(why.text);
 *             return 1;
 *         }
 *         dpar_cuda_mem(&gpu, &mem);
 *         printf("GPU %d has %d multiprocessors\n", (int)gpu.device, (int)gpu.multiprocessors);
 *         return dpar_cuda_free(&gpu) < 0;
 *     }
 *
 * Between these calls, a program assigns the table to the objects that use the GPU's memory:
 * field.mem = &mem for a field of a halo exchange, and comm->mem = &mem for strategies.
 * apps/stencil.cu and apps/ddp_llm.cu are whole programs.
 *
 *     nvcc -x cu -std=c++17 -arch=sm_90 -DDPAR_CUDA_IMPLEMENTATION -I. -c dpar_cuda.h -o cuda.o
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. -c yours.c
 *     nvcc yours.o cuda.o -o yours -ldl
 *
 * The first command compiles the kernels, and the second compiles the rest of dpar with any
 * compiler. For training, add `-include dpar_train.h` to the first command. It then also compiles
 * the kernels for layers, which takes twice as long. Without them mem.layers is NULL, and functions
 * that need it report that. dpar_comm.h and dpar.h have to be in the same folder as this header,
 * and for training also dpar_train.h and dpar_schedule.h.
 *
 * The declarations are C99 and need neither CUDA's headers nor nvcc. The implementation is C++17.
 * It requires CUDA runtime 12.1 or later and a GPU of compute capability 7.0 or later; nvcc 13
 * itself requires 7.5. With a 12.0 driver it needs more launches.
 *
 * Only `wait`, dpar_cuda_make, _free and _measure wait for the device, and only the last three
 * allocate and free memory. The stream orders the work: enqueue the kernels that compute the inputs
 * on the same stream, or let the stream wait for your event. All functions of the table
 * except wait, pin and unpin may be captured in a graph. Launch the graph on the same stream, or in
 * order with it, because both use the same scratch memory. Pointers and counts are 64-bit. When a
 * call returns, it has read the structs that were passed to it. An error of CUDA is DPAR_E_SYSTEM,
 * with the message in dpar_cuda.why. As always with CUDA, an error in a kernel is reported by a
 * later call.
 *
 * Results follow the description of dpar_mem in dpar_comm.h. They have the same bits as those of
 * the host's tables, except for squares, clip, optimize, dot, cross_entropy, attention_merge,
 * moments and norm. Exponentials of F32 logits have relative errors below 2^-39. There are no
 * atomics, so that the same input gives the same bits in every run and on every device, whatever
 * the launch. Do not use nvcc's -use_fast_math, which turns subnormal f32 into zeros.
 * desc.fast_math computes exponentials, and optimizers of f32 and 16-bit weights, in f32, with
 * errors of about 2^-22 of the update instead of 2^-24. Calls use up to 300 KiB of the host's
 * stack.
 *
 * Speed: kernels access 16 bytes at a time if source and target allow it. The operations that
 * training uses most have kernels in which the types are constants. A copy uses one block for each
 * piece, and other operations use as many blocks as run at once. No data is read from memory twice
 * unless a cache holds it. docs/records/gpu.md lists the bytes of each kernel. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_cuda.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_cuda.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_CUDA_H
#define DPAR_CUDA_H

/* ==== cuda/cuda.h ==== */

/* cuda - uses a GPU: fills in the tables of functions for its memory. */

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

/* ==== cuda/kernel_random.h ==== */

/* kernel_random - draws random numbers in kernels, for dropout.
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

/* ==== cuda/measure.h ==== */

/* measure - measures the speed of a GPU, for the cost model of dpar_cost.h. */

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

#endif /* DPAR_CUDA_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if defined(DPAR_CUDA_IMPLEMENTATION) && \
    !defined(DPAR_CUDA_IMPLEMENTATION_DONE)
#define DPAR_CUDA_IMPLEMENTATION_DONE

/* ==== cuda/platform.h ==== */

/* platform - private: the headers of the system, and words that mark functions for nvcc. How the
 * implementation works:
 *
 * A function of the table dpar_mem checks its arguments on the host, describes the work in a struct
 * that is passed to a kernel by value, and launches the kernel on gpu->stream. Work that consists
 * of many pieces (boxes, spans, blocks) is put into as few launches as the size of the arguments
 * allows (dpari_cuda_batch). Most kernels handle four elements at a time (dpari_cuda_four), as a
 * vector of 16 bytes where addresses allow it. The combinations of types that training uses have
 * separate kernels, in which the types are constants (dpari_cuda_is). */

#ifndef __cplusplus
#error "dpar_cuda.h: the implementation is C++ for nvcc (-x cu)"
#endif

#include <cuda_runtime.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define DPARI_CUDA_FN __host__ __device__ static inline

#if defined(__CUDACC__)
#define DPARI_CUDA_UNROLL _Pragma("unroll")
#define DPARI_CUDA_ARGS const __grid_constant__
/* Marks long functions that are rarely called, so that they are not inlined. */
#define DPARI_CUDA_ONCE __noinline__
#else
#define DPARI_CUDA_ONCE
#define DPARI_CUDA_UNROLL
#define DPARI_CUDA_ARGS const
#endif

/* ==== cuda/numbers.h ==== */

/* numbers - private: arithmetic and conversions of single numbers. Each addition and each product
 * is rounded, because the compiler must not contract them; where a fused multiply-add is wanted,
 * the code calls fma. The bits therefore depend on neither the compiler nor the device. */

#if defined(__CUDA_ARCH__)
#define DPARI_CUDA_ROUND(intrinsic, sign, a, b) intrinsic(a, b)
#else
#define DPARI_CUDA_ROUND(intrinsic, sign, a, b) ((a)sign(b))
#endif
#define DPARI_CUDA_ROUNDED(name, type, intrinsic, sign)                                            \
    DPARI_CUDA_FN type name(type a, type b)                                                        \
    {                                                                                              \
        return DPARI_CUDA_ROUND(intrinsic, sign, a, b);                                            \
    }
DPARI_CUDA_ROUNDED(dpari_cuda_add, float, __fadd_rn, +)
DPARI_CUDA_ROUNDED(dpari_cuda_add, double, __dadd_rn, +)
DPARI_CUDA_ROUNDED(dpari_cuda_mul, float, __fmul_rn, *)
DPARI_CUDA_ROUNDED(dpari_cuda_mul, double, __dmul_rn, *)
DPARI_CUDA_ROUNDED(dpari_cuda_divide, float, __fdiv_rn, /)
DPARI_CUDA_ROUNDED(dpari_cuda_divide, double, __ddiv_rn, /)

template <typename To, typename From> DPARI_CUDA_FN To dpari_cuda_bits(From x)
{
    To y;
    static_assert(sizeof(To) == sizeof(From), "bits");
    memcpy(&y, &x, sizeof y);
    return y;
}

/* Returns x >> bits, rounded to nearest, ties to even. */
DPARI_CUDA_FN uint32_t dpari_cuda_shift(uint32_t x, uint32_t bits)
{
    const uint32_t half = (uint32_t)1 << (bits - 1);
    return (x + half - 1 + ((x >> bits) & 1u)) >> bits;
}

DPARI_CUDA_FN uint16_t dpari_cuda_to_bf16(float f)
{
    const uint32_t x = dpari_cuda_bits<uint32_t>(f);
    return (uint16_t)((x & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : dpari_cuda_shift(x, 16));
}

/* Returns a and b as BF16 in one word, a in the low half. */
DPARI_CUDA_FN uint32_t dpari_cuda_to_bf16s(float a, float b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t y; /* the NaN of this instruction is 0x7fff, that of dpar is 0x7fc0 */
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(b), "f"(a));
    y = a != a ? (y & 0xffff0000u) | 0x7fc0u : y;
    return b != b ? (y & 0xffffu) | 0x7fc00000u : y;
#else
    return dpari_cuda_to_bf16(a) | (uint32_t)dpari_cuda_to_bf16(b) << 16;
#endif
}

DPARI_CUDA_FN float dpari_cuda_from_bf16(uint16_t x)
{
    return dpari_cuda_bits<float>((uint32_t)x << 16);
}

DPARI_CUDA_FN uint16_t dpari_cuda_to_f16(float f)
{
    const uint32_t x = dpari_cuda_bits<uint32_t>(f), size = x & 0x7fffffffu;
#if defined(__CUDA_ARCH__)
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(f));
    return size > 0x7f800000u ? (uint16_t)0x7e00u : y;
#else
    const uint32_t sign = (x >> 16) & 0x8000u, exponent = size >> 23;
    if (size >= 0x47800000u) { /* 65536 and above; NaN */
        return (uint16_t)(size > 0x7f800000u ? 0x7e00u : sign | 0x7c00u);
    }
    if (exponent >= 113) {
        return (uint16_t)(sign | dpari_cuda_shift(size - 0x38000000u, 13));
    }
    if (exponent < 102) { /* below half the smallest subnormal */
        return (uint16_t)sign;
    }
    return (uint16_t)(sign | dpari_cuda_shift((size & 0x7fffffu) | 0x800000u, 126 - exponent));
#endif
}

DPARI_CUDA_FN float dpari_cuda_from_f16(uint16_t h)
{
    const uint32_t sign = ((uint32_t)h & 0x8000u) << 16;
    uint32_t size = h & 0x7fffu;
    if (size >= 0x7c00u) { /* a NaN keeps sign and payload, and becomes quiet */
        return dpari_cuda_bits<float>(sign | (size << 13) |
                                      (size > 0x7c00u ? 0x7fc00000u : 0x7f800000u));
    }
#if defined(__CUDA_ARCH__)
    {
        float f;
        asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
        return f;
    }
#else
    {
        uint32_t exponent = 0x38800000u;
        if (size >= 0x400u) {
            return dpari_cuda_bits<float>(sign | ((size << 13) + 0x38000000u));
        }
        if (size == 0) {
            return dpari_cuda_bits<float>(sign);
        }
        while (size < 0x400u) { /* a subnormal: at most 10 times */
            size <<= 1;
            exponent -= 0x800000u;
        }
        return dpari_cuda_bits<float>(sign | (exponent + ((size & 0x3ffu) << 13)));
    }
#endif
}

DPARI_CUDA_FN double dpari_cuda_from_f32(float f)
{
    const uint32_t x = dpari_cuda_bits<uint32_t>(f);
    if (f != f) { /* a NaN keeps sign and payload, and becomes quiet */
        return dpari_cuda_bits<double>((uint64_t)(x & 0x80000000u) << 32 | UINT64_C(0x7ff8) << 48 |
                                       (uint64_t)(x & 0x7fffffu) << 29);
    }
    return (double)f;
}

/* Replaces every NaN by the quiet NaN without sign or payload, the result of arithmetic. */
DPARI_CUDA_FN float dpari_cuda_plain(float f)
{
    return f != f ? dpari_cuda_bits<float>((uint32_t)0x7fc00000u) : f;
}

DPARI_CUDA_FN double dpari_cuda_plain(double d)
{
    return d != d ? dpari_cuda_bits<double>(UINT64_C(0x7ff8) << 48) : d;
}

DPARI_CUDA_FN float dpari_cuda_to_f32(double d)
{
    return dpari_cuda_plain((float)d);
}

DPARI_CUDA_FN int32_t dpari_cuda_width(int32_t type)
{
    switch (type) {
    case DPAR_F64:
    case DPAR_I64:
    case DPAR_U64: return 8;
    case DPAR_F32:
    case DPAR_TF32:
    case DPAR_I32:
    case DPAR_U32: return 4;
    case DPAR_F16:
    case DPAR_BF16: return 2;
    default: return 1;
    }
}

static int dpari_cuda_is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

/* True if reductions support the type: all but TF32, F8 and F4. */
static int dpari_cuda_can_reduce(int32_t type)
{
    return dpar_type_bytes(type) > 0 && type != DPAR_TF32 && type != DPAR_F8;
}

/* ==== cuda/four.h ==== */

/* four - private: four elements at a time. A four holds four elements of any type as bits. They are
 * converted to numbers later, so that the loads of several arrays are in flight together. */

struct dpari_cuda_four {
    uint32_t x[8];
};

/* True if four elements from index `first` on can be accessed as a vector. */
DPARI_CUDA_FN int dpari_cuda_even(const void *base, int64_t first, int32_t width)
{
    const uintptr_t at = (uintptr_t)base + (uintptr_t)(first * width);
    return at % (width >= 4 ? 16u : 8u) == 0;
}

/* Loads a value. With S the load bypasses the caches, for data that is not read again soon. */
template <int S, typename V> __device__ static inline V dpari_cuda_get(const V *at)
{
    if (S) {
        return __ldcs(at);
    }
    return *at;
}

template <int S, typename V> __device__ static inline void dpari_cuda_put(V *at, V v)
{
    if (S) {
        __stcs(at, v);
    } else {
        *at = v;
    }
}

/* Stores the four words of a vector of 16 bytes. */
__device__ static inline void dpari_cuda_unpack(uint32_t *x, const uint4 &v)
{
    x[0] = v.x;
    x[1] = v.y;
    x[2] = v.z;
    x[3] = v.w;
}

/* Loads elements i to i + 3. Elements outside of [0, count) become 0. WIDE 0: elements have at most
 * 4 bytes. dpari_cuda_store stores the elements within [0, count). */
template <int S, int WIDE = 1>
__device__ static inline void dpari_cuda_load(dpari_cuda_four *four, const void *base, int64_t i,
                                              int64_t count, int32_t width, int even)
{
    const unsigned char *at = (const unsigned char *)base + i * width;
    if (even && i >= 0 && i + 4 <= count) {
        if (width == 2) {
            const uint2 v = dpari_cuda_get<S>((const uint2 *)(const void *)at);
            four->x[0] = v.x;
            four->x[1] = v.y;
        } else {
            const uint4 *vector = (const uint4 *)(const void *)at;
            dpari_cuda_unpack(four->x, dpari_cuda_get<S>(vector));
            if (WIDE && width == 8) {
                dpari_cuda_unpack(four->x + 4, dpari_cuda_get<S>(vector + 1));
            }
        }
        return;
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const int in = i + e >= 0 && i + e < count;
        if (width == 2) {
            const uint32_t v = in ? *((const uint16_t *)(const void *)at + e) : (uint32_t)0;
            four->x[e / 2] = e % 2 == 0 ? v : four->x[e / 2] | v << 16;
        } else if (!WIDE || width == 4) {
            four->x[e] = in ? *((const uint32_t *)(const void *)at + e) : (uint32_t)0;
        } else {
            const uint64_t v = in ? *((const uint64_t *)(const void *)at + e) : (uint64_t)0;
            four->x[2 * e] = (uint32_t)v;
            four->x[2 * e + 1] = (uint32_t)(v >> 32);
        }
    }
}

template <int S, int WIDE = 1>
__device__ static inline void dpari_cuda_store(const dpari_cuda_four *four, void *base, int64_t i,
                                               int64_t count, int32_t width, int even)
{
    unsigned char *at = (unsigned char *)base + i * width;
    if (even && i >= 0 && i + 4 <= count) {
        if (width == 2) {
            dpari_cuda_put<S>((uint2 *)(void *)at, make_uint2(four->x[0], four->x[1]));
        } else {
            const uint32_t *x = four->x;
            uint4 *vector = (uint4 *)(void *)at;
            dpari_cuda_put<S>(vector, make_uint4(x[0], x[1], x[2], x[3]));
            if (WIDE && width == 8) {
                dpari_cuda_put<S>(vector + 1, make_uint4(x[4], x[5], x[6], x[7]));
            }
        }
        return;
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        if (i + e < 0 || i + e >= count) {
            continue;
        }
        if (width == 2) {
            *((uint16_t *)(void *)at + e) = (uint16_t)(four->x[e / 2] >> (16 * (e % 2)));
        } else if (!WIDE || width == 4) {
            *((uint32_t *)(void *)at + e) = four->x[e];
        } else {
            *((uint64_t *)(void *)at + e) = (uint64_t)four->x[2 * e] | (uint64_t)four->x[2 * e + 1]
                                                                           << 32;
        }
    }
}

/* Loads FOURS fours from element i on, as vectors of 16 bytes, each of which holds two fours of
 * 16-bit elements. All elements must exist. */
template <int S, int FOURS>
__device__ static inline void dpari_cuda_load_all(dpari_cuda_four *four, const void *base,
                                                  int64_t i, int32_t width)
{
    const uint4 *at =
        (const uint4 *)(const void *)((const unsigned char *)base + i * (int64_t)width);
    DPARI_CUDA_UNROLL
    for (int k = 0; k < FOURS; k++) {
        if (width == 4) {
            dpari_cuda_unpack(four[k].x, dpari_cuda_get<S>(at + k));
        } else if (k % 2 == 0) {
            const uint4 v = dpari_cuda_get<S>(at + k / 2);
            four[k].x[0] = v.x;
            four[k].x[1] = v.y;
            four[(k + 1) % FOURS].x[0] = v.z;
            four[(k + 1) % FOURS].x[1] = v.w;
        }
    }
}

template <int S, int FOURS>
__device__ static inline void dpari_cuda_store_all(const dpari_cuda_four *four, void *base,
                                                   int64_t i, int32_t width)
{
    uint4 *at = (uint4 *)(void *)((unsigned char *)base + i * (int64_t)width);
    DPARI_CUDA_UNROLL
    for (int k = 0; k < FOURS; k++) {
        const uint32_t *x = four[k].x, *next = four[(k + 1) % FOURS].x;
        if (width == 4) {
            dpari_cuda_put<S>(at + k, make_uint4(x[0], x[1], x[2], x[3]));
        } else if (k % 2 == 0) {
            dpari_cuda_put<S>(at + k / 2, make_uint4(x[0], x[1], next[0], next[1]));
        }
    }
}

/* Returns how many fours of a type a vector of 16 bytes holds; 0 for DPAR_TYPE_NONE. */
DPARI_CUDA_FN constexpr int dpari_cuda_fours_of(int32_t type)
{
    return type == DPAR_TYPE_NONE ? 0 : 1 + (type == DPAR_BF16 || type == DPAR_F16);
}

/* Loads elements i to i + 3 of the array that begins `skip` elements after `base`, as
 * dpari_cuda_load does, or, if ALL is not 0, ALL fours, as dpari_cuda_load_all does. */
template <int S, int ALL, int WIDE = 1>
__device__ static inline void dpari_cuda_load_unit(dpari_cuda_four *four, const void *base,
                                                   int64_t skip, int64_t i, int64_t count,
                                                   int32_t width, int even)
{
    if constexpr (ALL > 0) {
        dpari_cuda_load_all<S, ALL>(four, base, skip + i, width);
    } else {
        dpari_cuda_load<S, WIDE>(four, (const unsigned char *)base + skip * width, i, count, width,
                                 even);
    }
}

template <int S, int ALL, int WIDE = 1>
__device__ static inline void dpari_cuda_store_unit(const dpari_cuda_four *four, void *base,
                                                    int64_t skip, int64_t i, int64_t count,
                                                    int32_t width, int even)
{
    if constexpr (ALL > 0) {
        dpari_cuda_store_all<S, ALL>(four, base, skip + i, width);
    } else {
        dpari_cuda_store<S, WIDE>(four, (unsigned char *)base + skip * width, i, count, width,
                                  even);
    }
}

DPARI_CUDA_FN int dpari_cuda_aligned(const void *at)
{
    return (uintptr_t)at % 16 == 0;
}

template <typename From, typename To> DPARI_CUDA_FN void dpari_cuda_as(From from, To *to)
{
    if constexpr (sizeof(To) < sizeof(From)) {
        *to = dpari_cuda_to_f32(from);
    } else {
        *to = (To)from;
    }
}

DPARI_CUDA_FN uint16_t dpari_cuda_part(const dpari_cuda_four *four, int e)
{
    return (uint16_t)(four->x[e / 2] >> (16 * (e % 2)));
}

/* Converts a four to W, which is f64 or f32. With KEPT a NaN keeps its sign and payload. WIDE 0:
 * the type is not F64. */
template <int KEPT = 0, int WIDE = 1, typename W>
__device__ static inline void dpari_cuda_widen(const dpari_cuda_four *four, int32_t type, W *to)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        float f;
        if (WIDE && type == DPAR_F64) {
            const uint64_t bits = (uint64_t)four->x[2 * e] | (uint64_t)four->x[2 * e + 1] << 32;
            dpari_cuda_as(dpari_cuda_bits<double>(bits), &to[e]);
            continue;
        }
        if (type == DPAR_F32) {
            f = dpari_cuda_bits<float>(four->x[e]);
        } else if (type == DPAR_BF16) {
            f = dpari_cuda_from_bf16(dpari_cuda_part(four, e));
        } else {
            f = dpari_cuda_from_f16(dpari_cuda_part(four, e));
        }
        if (KEPT && sizeof(W) == 8) {
            dpari_cuda_as(dpari_cuda_from_f32(f), &to[e]);
        } else {
            dpari_cuda_as(f, &to[e]);
        }
    }
}

/* Converts a four back to its type, with one rounding. 16-bit types are rounded from f32. */
template <int WIDE = 1, typename W>
__device__ static inline void dpari_cuda_narrow(dpari_cuda_four *four, int32_t type, const W *from)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e += 2) {
        float f[2];
        if (WIDE && type == DPAR_F64) {
            DPARI_CUDA_UNROLL
            for (int j = e; j < e + 2; j++) {
                double d;
                dpari_cuda_as(from[j], &d);
                const uint64_t bits = dpari_cuda_bits<uint64_t>(d);
                four->x[2 * j] = (uint32_t)bits;
                four->x[2 * j + 1] = (uint32_t)(bits >> 32);
            }
            continue;
        }
        dpari_cuda_as(from[e], &f[0]);
        dpari_cuda_as(from[e + 1], &f[1]);
        if (type == DPAR_F32) {
            four->x[e] = dpari_cuda_bits<uint32_t>(f[0]);
            four->x[e + 1] = dpari_cuda_bits<uint32_t>(f[1]);
        } else if (type == DPAR_BF16) {
            four->x[e / 2] = dpari_cuda_to_bf16s(f[0], f[1]);
        } else {
            four->x[e / 2] = dpari_cuda_to_f16(f[0]) | (uint32_t)dpari_cuda_to_f16(f[1]) << 16;
        }
    }
}

/* Returns element i as a number. */
__device__ static inline double dpari_cuda_one(const void *base, int64_t i, int32_t type)
{
    switch (type) {
    case DPAR_F64: return ((const double *)base)[i];
    case DPAR_F32: return (double)((const float *)base)[i];
    case DPAR_BF16: return (double)dpari_cuda_from_bf16(((const uint16_t *)base)[i]);
    default: return (double)dpari_cuda_from_f16(((const uint16_t *)base)[i]);
    }
}

/* Loads and stores element i of an array of F64 or F32. */
__device__ static inline double dpari_cuda_get_wide(const void *base, int64_t i, int32_t type)
{
    return type == DPAR_F64 ? ((const double *)base)[i] : (double)((const float *)base)[i];
}

__device__ static inline void dpari_cuda_put_wide(void *base, int64_t i, int32_t type, double x)
{
    if (type == DPAR_F64) {
        ((double *)base)[i] = x;
    } else {
        ((float *)base)[i] = dpari_cuda_to_f32(x);
    }
}

/* An array is processed in aligned units of four elements. If it begins unaligned, its first unit
 * begins before the array. These three functions return the number of elements in the first unit (0
 * if it is complete), the number of units, and the first element of a unit. */
DPARI_CUDA_FN int64_t dpari_cuda_head(const void *base, int32_t width)
{
    const uintptr_t step = width >= 4 ? 16u : 4u * (uintptr_t)width;
    const int64_t head = (int64_t)((step - (uintptr_t)base % step) % step) / width;
    return head % 4;
}

DPARI_CUDA_FN int64_t dpari_cuda_fours(int64_t count, int64_t head)
{
    const int64_t h = head < count ? head : count;
    return (h > 0) + (count - h + 3) / 4;
}

/* Negative for a unit that begins before the array. */
DPARI_CUDA_FN int64_t dpari_cuda_first(int64_t unit, int64_t head)
{
    return head > 0 ? head + 4 * (unit - 1) : 4 * unit;
}

/* ==== cuda/launch.h ==== */

/* launch - private: launches of kernels, their errors, and batches of pieces of work as arguments.
 */

enum {
    DPARI_CUDA_THREADS = 256,
    DPARI_CUDA_TINY = 960,          /* the most bytes of pieces in the arguments of a launch: for
                                       the faces of a block, */
    DPARI_CUDA_SMALL = 3968,        /* with any driver, */
    DPARI_CUDA_LARGE = 31 * 1024,   /* and with drivers from 12.1 on */
    DPARI_CUDA_ARGUMENTS = 32764,   /* the most bytes of arguments with drivers from 12.1 on; 4096
                                       with others */
    DPARI_CUDA_PARTS = 1024,        /* the most partial results that a reduction has */
    DPARI_CUDA_SCRATCH = 512 * 1024 /* bytes of gpu->scratch */
};

/* These put a message into *why, or into gpu->why, and return the status. */
DPARI_INTERNAL dpar_status dpari_cuda_say(dpar_status st, dpar_why *why, const char *what,
                                          const char *by);
DPARI_INTERNAL dpar_status dpari_cuda_told(const dpar_cuda *gpu, dpar_status st, dpar_why *why);
DPARI_INTERNAL dpar_status dpari_cuda_heard(dpar_cuda *gpu, cudaError_t error, const char *what);
DPARI_INTERNAL dpar_status dpari_cuda_wrong(dpar_cuda *gpu, const char *what);

/* Makes gpu's device the current one of this thread. *before becomes the one that was current,
 * which dpari_cuda_leave restores. */
DPARI_INTERNAL dpar_status dpari_cuda_enter(dpar_cuda *gpu, int *before);
DPARI_INTERNAL dpar_status dpari_cuda_leave(dpar_cuda *gpu, int before, dpar_status st);

/* Returns the number of blocks for `work` pieces of work: at most as many as run at once. */
DPARI_INTERNAL int64_t dpari_cuda_wave(const dpar_cuda *gpu, int64_t work);
/* Returns the number of blocks if each of `work` pieces gets its own block, as far as a grid
 * allows. In this way copies, and other work that computes little, come closest to the memory's
 * bandwidth. */
DPARI_INTERNAL int64_t dpari_cuda_each(const dpar_cuda *gpu, int64_t work);
/* Returns the number of blocks for `units` units, if a thread has one at a time. */
DPARI_INTERNAL int64_t dpari_cuda_units_blocks(const dpar_cuda *gpu, int64_t units);

/* Return the number of this thread in the grid, and the number of threads of the grid. */
__device__ static inline int64_t dpari_cuda_thread(void)
{
    return (int64_t)blockIdx.x * DPARI_CUDA_THREADS + threadIdx.x;
}

__device__ static inline int64_t dpari_cuda_threads(void)
{
    return (int64_t)gridDim.x * DPARI_CUDA_THREADS;
}

/* Launches a kernel, with DPARI_CUDA_THREADS threads in each block. */
template <typename Args>
static dpar_status dpari_cuda_launch(dpar_cuda *gpu, const char *name, void (*kernel)(const Args),
                                     const Args &args, int64_t blocks)
{
    void *list[1];
    int before = 0;
    dpar_status st = dpari_cuda_enter(gpu, &before);
    cudaError_t error;
    if (st != DPAR_OK) {
        return st;
    }
    list[0] = const_cast<Args *>(&args);
    error = cudaLaunchKernel(kernel, dim3((unsigned)blocks), dim3(DPARI_CUDA_THREADS), list, 0,
                             gpu->stream);
    gpu->launches++;
    return dpari_cuda_leave(gpu, before, dpari_cuda_heard(gpu, error, name));
}

/* True if *s has the values that Form sets. A kernel that is compiled for a Form sets these fields
 * as well, so that they are constants and the branches on them disappear. All bytes of *s are
 * compared, so it must be cleared before its fields are set. */
template <typename Form, typename Args> static int dpari_cuda_is(const Args *s)
{
    Args t;
    memcpy(&t, s, sizeof t);
    Form::fix(&t);
    return memcmp(&t, s, sizeof t) == 0;
}

/* The arguments of a launch for pieces of work of different sizes, which are processed in chunks.
 * Piece k has the chunks first[k] to first[k + 1] - 1. */
template <typename Piece, int BYTES> struct dpari_cuda_batch {
    enum { ROOM = BYTES / (int)(sizeof(Piece) + 8) };
    int32_t n;
    int32_t room;
    int64_t first[ROOM + 1];
    Piece piece[ROOM];
};

/* Returns the most pieces of a launch. */
template <typename Small, typename Large> static int32_t dpari_cuda_most(const dpar_cuda *gpu)
{
    static_assert(sizeof(Small) <= 4096 && sizeof(Large) <= DPARI_CUDA_ARGUMENTS, "a launch");
    return gpu->arguments < DPARI_CUDA_ARGUMENTS ? (int32_t)Small::ROOM : (int32_t)Large::ROOM;
}

/* Returns the number of chunks of `each` units in n pieces. */
template <typename Piece>
static int64_t dpari_cuda_chunks(const Piece *piece, int32_t n, int64_t each, int64_t *first)
{
    int64_t chunks = 0;
    int32_t k;
    for (k = 0; k < n; k++) {
        if (first != NULL) {
            first[k] = chunks;
        }
        chunks += ((int64_t)piece[k].units + each - 1) / each;
    }
    return chunks;
}

/* Copies the pieces to a batch with less room, because each KB of arguments costs time on the host
 * and in the first warps. */
template <typename Small, typename Large>
static void dpari_cuda_shrink(Small *small, const Large *large)
{
    memset(small, 0, sizeof *small);
    small->n = large->n;
    memcpy(small->piece, large->piece, (size_t)large->n * sizeof large->piece[0]);
}

/* Returns the piece to which a chunk belongs. */
template <typename Batch>
__device__ static inline int32_t dpari_cuda_find(const Batch &b, int64_t c)
{
    int32_t lo = 0, hi = b.n;
    if constexpr ((int)Batch::ROOM <= 8) { /* loads all of `first` together instead of searching
                                              it */
        DPARI_CUDA_UNROLL
        for (int k = 1; k < (int)Batch::ROOM; k++) {
            lo += k < hi && b.first[k] <= c;
        }
    } else {
        while (hi - lo > 1) {
            const int32_t mid = (lo + hi) / 2;
            if (b.first[mid] <= c) {
                lo = mid;
            } else {
                hi = mid;
            }
        }
    }
    return lo;
}

/* Divides n < 2^31 by d >= 1 without a division: with s = ceil(log2 d) and the 32-bit number magic
 * = ceil(2^(31 + s) / d), the quotient is floor(n magic / 2^(31 + s)) (Granlund and Montgomery
 * 1994). */
DPARI_CUDA_FN uint32_t dpari_cuda_over(uint32_t n, uint32_t magic, uint32_t shift)
{
    return (uint32_t)((uint64_t)n * magic >> shift);
}

/* True if there is so little work that it is faster with fewer units per thread. */
template <typename Batch> static int dpari_cuda_little(const dpar_cuda *gpu, const Batch *b)
{
    return dpari_cuda_chunks(b->piece, b->n, 4 * DPARI_CUDA_THREADS, NULL) <
           (int64_t)gpu->multiprocessors * 2;
}

DPARI_INTERNAL void dpari_cuda_magic(uint32_t d, uint32_t *magic, uint8_t *shift);

/* ==== cuda/operations.h ==== */

/* operations - private: the functions of the tables dpar_mem and dpar_mem_layers. Each is in the .c
 * file that has its name in the table. */

DPARI_INTERNAL dpar_status dpari_cuda_move(void *ctx, const dpar_mem_box *boxes, int32_t n);
DPARI_INTERNAL dpar_status dpari_cuda_pin(void *ctx, void *memory, int64_t bytes);
DPARI_INTERNAL dpar_status dpari_cuda_unpin(void *ctx, void *memory);
DPARI_INTERNAL dpar_status dpari_cuda_spans(void *ctx, const dpar_mem_span *spans, int32_t n);
DPARI_INTERNAL dpar_status dpari_cuda_reduce(void *ctx, const dpar_mem_reduce *reduce);
DPARI_INTERNAL dpar_status dpari_cuda_finite(void *ctx, const dpar_mem_finite *finite);

#ifdef DPAR_TRAIN_H

DPARI_INTERNAL dpar_status dpari_cuda_squares(void *ctx, const dpar_mem_squares *squares);
DPARI_INTERNAL dpar_status dpari_cuda_clip(void *ctx, const dpar_mem_clip *clip);
DPARI_INTERNAL dpar_status dpari_cuda_optimize(void *ctx, const dpar_mem_optimize *x);
DPARI_INTERNAL dpar_status dpari_cuda_round(void *ctx, const dpar_mem_round *r);
DPARI_INTERNAL dpar_status dpari_cuda_gather(void *ctx, const dpar_mem_gather *gather);
DPARI_INTERNAL dpar_status dpari_cuda_scatter_add(void *ctx, const dpar_mem_scatter *scatter);
DPARI_INTERNAL dpar_status dpari_cuda_combine(void *ctx, const dpar_mem_combine *combine);
DPARI_INTERNAL dpar_status dpari_cuda_dot(void *ctx, const dpar_mem_dot *dot);
DPARI_INTERNAL dpar_status dpari_cuda_entropy_op(void *ctx, const dpar_mem_cross_entropy *entropy);
DPARI_INTERNAL dpar_status dpari_cuda_merge_op(void *ctx, const dpar_mem_attention_merge *merge);
DPARI_INTERNAL dpar_status dpari_cuda_moments(void *ctx, const dpar_mem_moments *moments);
DPARI_INTERNAL dpar_status dpari_cuda_norm_of(void *ctx, const dpar_mem_norm *call);
DPARI_INTERNAL dpar_status dpari_cuda_quantize(void *ctx, const dpar_mem_quantize *quantize);
DPARI_INTERNAL dpar_status dpari_cuda_dequantize(void *ctx, const dpar_mem_quantize *quantize);
#endif

/* ==== cuda/elements.h ==== */

/* elements - private: single elements of any type as bits: conversion, combination, access. */

/* Converts the bits of an element to another type. */
__device__ static inline uint64_t dpari_cuda_convert(uint64_t x, int32_t from, int32_t to)
{
    float f;
    if (from == to) {
        return x;
    }
    switch (from) {
    case DPAR_F64: f = dpari_cuda_to_f32(dpari_cuda_bits<double>(x)); break;
    case DPAR_F32: f = dpari_cuda_bits<float>((uint32_t)x); break;
    case DPAR_BF16: f = dpari_cuda_from_bf16((uint16_t)x); break;
    default: f = dpari_cuda_from_f16((uint16_t)x); break;
    }
    switch (to) {
    case DPAR_F64: return dpari_cuda_bits<uint64_t>(dpari_cuda_from_f32(f));
    case DPAR_F32: return dpari_cuda_bits<uint32_t>(f);
    case DPAR_BF16: return dpari_cuda_to_bf16(f);
    default: return dpari_cuda_to_f16(f);
    }
}

/* Returns x op y. MAX and MIN return x if it is NaN, or if both are equal. */
template <typename T> DPARI_CUDA_FN T dpari_cuda_meet(T x, T y, int32_t op)
{
    switch (op) {
    case DPAR_MAX: return x > y || x != x ? x : y;
    case DPAR_MIN: return x < y || x != x ? x : y;
    case DPAR_PRODUCT: return dpari_cuda_mul(x, y);
    default: return dpari_cuda_add(x, y);
    }
}

template <typename T> DPARI_CUDA_FN T dpari_cuda_meet_int(T x, T y, int32_t op)
{
    switch (op) {
    case DPAR_MAX: return x > y ? x : y;
    case DPAR_MIN: return x > y ? y : x;
    case DPAR_PRODUCT: return (T)((uint64_t)x * (uint64_t)y);
    default: return (T)((uint64_t)x + (uint64_t)y);
    }
}

__device__ static inline uint64_t dpari_cuda_meet_bits(uint64_t x, uint64_t y, int32_t type,
                                                       int32_t op)
{
    float f;
    switch (type) {
    case DPAR_F64:
        return dpari_cuda_bits<uint64_t>(dpari_cuda_plain(
            dpari_cuda_meet(dpari_cuda_bits<double>(x), dpari_cuda_bits<double>(y), op)));
    case DPAR_F32:
        f = dpari_cuda_meet(dpari_cuda_bits<float>((uint32_t)x),
                            dpari_cuda_bits<float>((uint32_t)y), op);
        return dpari_cuda_bits<uint32_t>(dpari_cuda_plain(f));
    case DPAR_BF16:
        return dpari_cuda_to_bf16(dpari_cuda_meet(dpari_cuda_from_bf16((uint16_t)x),
                                                  dpari_cuda_from_bf16((uint16_t)y), op));
    case DPAR_F16:
        return dpari_cuda_to_f16(dpari_cuda_meet(dpari_cuda_from_f16((uint16_t)x),
                                                 dpari_cuda_from_f16((uint16_t)y), op));
    case DPAR_I8: return (uint64_t)dpari_cuda_meet_int((int8_t)x, (int8_t)y, op);
    case DPAR_U8: return dpari_cuda_meet_int((uint8_t)x, (uint8_t)y, op);
    case DPAR_I32: return (uint64_t)dpari_cuda_meet_int((int32_t)x, (int32_t)y, op);
    case DPAR_U32: return dpari_cuda_meet_int((uint32_t)x, (uint32_t)y, op);
    case DPAR_I64: return (uint64_t)dpari_cuda_meet_int((int64_t)x, (int64_t)y, op);
    default: return dpari_cuda_meet_int(x, y, op);
    }
}

__device__ static inline uint64_t dpari_cuda_negate(uint64_t x, int32_t type)
{
    switch (type) {
    case DPAR_F64: return x ^ (uint64_t)1 << 63;
    case DPAR_F32: return x ^ 0x80000000u;
    case DPAR_BF16:
    case DPAR_F16: return x ^ 0x8000u;
    default: return 0 - x;
    }
}

__device__ static inline uint64_t dpari_cuda_read(const unsigned char *at, int32_t width)
{
    switch (width) {
    case 8: return *(const uint64_t *)(const void *)at;
    case 4: return *(const uint32_t *)(const void *)at;
    case 2: return *(const uint16_t *)(const void *)at;
    default: return *at;
    }
}

__device__ static inline void dpari_cuda_write(unsigned char *at, int32_t width, uint64_t x)
{
    switch (width) {
    case 8: *(uint64_t *)(void *)at = x; break;
    case 4: *(uint32_t *)(void *)at = (uint32_t)x; break;
    case 2: *(uint16_t *)(void *)at = (uint16_t)x; break;
    default: *at = (unsigned char)x; break;
    }
}

template <typename V> DPARI_CUDA_FN V dpari_cuda_nought(void)
{
    V v;
    memset(&v, 0, sizeof v);
    return v;
}

/* ==== cuda/block_sums.h ==== */

/* block_sums - private: sums and extremes over the threads of a warp or of a block, which are
 * combined in a fixed order: within a warp by halves, then over the warps. All threads have to
 * call, and all get the result. */

#define DPARI_CUDA_WARPS (DPARI_CUDA_THREADS / 32)

struct dpari_cuda_plus {
    template <typename T> __device__ static inline T of(T x, T y)
    {
        return dpari_cuda_add(x, y);
    }
};

struct dpari_cuda_least {
    template <typename T> __device__ static inline T of(T x, T y)
    {
        return y < x ? y : x;
    }
};

struct dpari_cuda_greatest {
    template <typename T> __device__ static inline T of(T x, T y)
    {
        return y > x ? y : x;
    }
};

/* Combines the x of LANES neighbouring threads of a warp. */
template <typename Op, int LANES = 32, typename T>
__device__ static inline T dpari_cuda_warp_all(T x)
{
    for (int bits = LANES / 2; bits > 0; bits /= 2) {
        x = Op::of(x, __shfl_xor_sync(0xffffffffu, x, bits));
    }
    return x;
}

/* Combines the x of all warps of a block, after `start`. */
template <typename Op, typename T> __device__ static inline T dpari_cuda_block_all(T x, T start)
{
    __shared__ T part[DPARI_CUDA_WARPS];
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = x;
    }
    __syncthreads();
    for (int w = 0; w < DPARI_CUDA_WARPS; w++) {
        start = Op::of(start, part[w]);
    }
    return start;
}

__device__ static inline double dpari_cuda_warp_sum(double x)
{
    return dpari_cuda_warp_all<dpari_cuda_plus>(x);
}

__device__ static inline double dpari_cuda_block_sum(double x)
{
    return dpari_cuda_block_all<dpari_cuda_plus>(dpari_cuda_warp_sum(x), 0.0);
}

__device__ static inline int64_t dpari_cuda_block_least(int64_t x)
{
    return dpari_cuda_block_all<dpari_cuda_least>(dpari_cuda_warp_all<dpari_cuda_least>(x),
                                                  INT64_MAX);
}

/* ==== cuda/box_kernels.h ==== */

/* box_kernels - private: boxes in the form that kernels need, and the kernels that move them. */

/* How a box is processed. */
enum {
    DPARI_CUDA_RAW,  /* copies units of `width` bytes */
    DPARI_CUDA_CAST, /* converts units of four elements to another type */
    DPARI_CUDA_MEET, /* combines units of 16 bytes of F32 or F64 with the values in the target */
    DPARI_CUDA_ANY   /* element by element, for every box that can be described */
};

enum { DPARI_CUDA_UNITS = 1 << 30 }; /* the most units of a piece, so that indices fit in 31 bits */

enum {
    DPARI_CUDA_SLIM = 4 /* nearly all boxes have at most 4 dims, and a shorter description */
};

template <int DIMS> struct dpari_cuda_box_of {
    unsigned char *to, *from;
    int64_t to_step[DIMS], from_step[DIMS]; /* steps in bytes; in dim 0 from unit to unit */
    uint32_t extent[DIMS], magic[DIMS];     /* extent[0] in units */
    uint32_t units;
    uint8_t shift[DIMS];
    uint8_t dims, kind, width, to_type, from_type, through, op;
    uint8_t negate : 1, clear : 1;
};
typedef dpari_cuda_box_of<DPAR_MEM_DIMS> dpari_cuda_box;

/* Computes the offsets, in bytes, of unit i in the target and in the source. */
template <typename Box>
DPARI_CUDA_FN void dpari_cuda_where(const Box *b, uint32_t i, int64_t *to, int64_t *from)
{
    int64_t t = 0, f = 0;
    for (int32_t d = 0; d + 1 < b->dims; d++) {
        const uint32_t q = dpari_cuda_over(i, b->magic[d], b->shift[d]);
        const int64_t r = (int64_t)(i - q * b->extent[d]);
        t += r * b->to_step[d];
        f += r * b->from_step[d];
        i = q;
    }
    if (b->dims > 0) {
        t += (int64_t)i * b->to_step[b->dims - 1];
        f += (int64_t)i * b->from_step[b->dims - 1];
    }
    *to = t;
    *from = f;
}

/* The same for kernels in which a thread may have a single unit. Then only latency counts, so all
 * dims are computed without a loop in which loads depend on each other. The last dim has the magic
 * number 0, so that it gets the rest of the index, and dims behind it get index 0. */
template <int PER>
DPARI_CUDA_FN void dpari_cuda_where_to(const dpari_cuda_box_of<DPARI_CUDA_SLIM> *b, uint32_t i,
                                       int64_t *to, int64_t *from)
{
    if constexpr (PER > 1) {
        dpari_cuda_where(b, i, to, from);
    } else {
        int64_t t = 0, f = 0;
        DPARI_CUDA_UNROLL
        for (int32_t d = 0; d < DPARI_CUDA_SLIM; d++) {
            const uint32_t q = dpari_cuda_over(i, b->magic[d], b->shift[d]);
            const int64_t r = (int64_t)(i - q * b->extent[d]);
            t += r * b->to_step[d];
            f += r * b->from_step[d];
            i = q;
        }
        *to = t;
        *from = f;
    }
}

template <int PER>
DPARI_CUDA_FN void dpari_cuda_where_to(const dpari_cuda_box *b, uint32_t i, int64_t *to,
                                       int64_t *from)
{
    dpari_cuda_where(b, i, to, from);
}

/* Copies PER units, DPARI_CUDA_THREADS apart. All are read before the first is written, so that the
 * loads are in flight together. */
template <typename V, int PER, typename Box>
__device__ static inline void dpari_cuda_move_raw(const Box *b, uint32_t i)
{
    V v[PER];
    int64_t to[PER], from[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const uint32_t at = i + (uint32_t)j * DPARI_CUDA_THREADS;
        if (at < b->units) {
            dpari_cuda_where_to<PER>(b, at, &to[j], &from[j]);
            v[j] = *(const V *)(const void *)(b->from + from[j]);
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        if (i + (uint32_t)j * DPARI_CUDA_THREADS < b->units) {
            *(V *)(void *)(b->to + to[j]) = v[j];
            if (b->clear) {
                *(V *)(void *)(b->from + from[j]) = dpari_cuda_nought<V>();
            }
        }
    }
}

/* Converts PER units. TO and FROM are the types if the kernel knows them. */
template <int PER, int TO, int FROM, typename Box>
__device__ static inline void dpari_cuda_move_cast(const Box *b, uint32_t i)
{
    const int32_t to_type = TO != DPAR_TYPE_NONE ? TO : (int)b->to_type;
    const int32_t from_type = FROM != DPAR_TYPE_NONE ? FROM : (int)b->from_type;
    const int32_t narrow = dpari_cuda_width(to_type), wide = dpari_cuda_width(from_type);
    dpari_cuda_four v[PER];
    int64_t to[PER], from[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const uint32_t at = i + (uint32_t)j * DPARI_CUDA_THREADS;
        if (at < b->units) {
            dpari_cuda_where_to<PER>(b, at, &to[j], &from[j]);
            dpari_cuda_load<0>(&v[j], b->from + from[j], 0, 4, wide, 1);
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        dpari_cuda_four w;
        if (i + (uint32_t)j * DPARI_CUDA_THREADS >= b->units) {
            continue;
        }
        if (to_type == DPAR_F64 || from_type == DPAR_F64) {
            double d[4];
            dpari_cuda_widen<1>(&v[j], from_type, d);
            dpari_cuda_narrow(&w, to_type, d);
        } else {
            float f[4];
            dpari_cuda_widen(&v[j], from_type, f);
            dpari_cuda_narrow(&w, to_type, f);
        }
        dpari_cuda_store<0>(&w, b->to + to[j], 0, 4, narrow, 1);
        if (b->clear) {
            memset(&w, 0, sizeof w);
            dpari_cuda_store<0>(&w, b->from + from[j], 0, 4, wide, 1);
        }
    }
}

/* Combines two units of 16 bytes of F32 or F64. */
__device__ static inline uint4 dpari_cuda_meet_unit(const uint4 &u, const uint4 &v, int32_t type,
                                                    int32_t op, int32_t negate)
{
    uint32_t x[4] = {u.x, u.y, u.z, u.w};
    const uint32_t y[4] = {v.x, v.y, v.z, v.w};
    if (type == DPAR_F32) {
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 4; e++) {
            const uint32_t value = negate ? y[e] ^ 0x80000000u : y[e];
            x[e] = (uint32_t)dpari_cuda_meet_bits(x[e], value, DPAR_F32, op);
        }
    } else {
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 4; e += 2) {
            const uint64_t p = (uint64_t)x[e] | (uint64_t)x[e + 1] << 32;
            const uint64_t q = (uint64_t)y[e] | (uint64_t)y[e + 1] << 32;
            const uint64_t value = negate ? q ^ (uint64_t)1 << 63 : q;
            const uint64_t made = dpari_cuda_meet_bits(p, value, DPAR_F64, op);
            x[e] = (uint32_t)made;
            x[e + 1] = (uint32_t)(made >> 32);
        }
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* Combines PER units of 16 bytes with the values in the target. TYPE and OP are set if the kernel
 * knows them. */
template <int PER, int TYPE, int OP, typename Box>
__device__ static inline void dpari_cuda_move_meet(const Box *b, uint32_t i)
{
    const int32_t type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)b->to_type;
    const int32_t op = OP != DPAR_COPY ? OP : (int)b->op;
    uint4 u[PER], v[PER];
    int64_t to[PER], from[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const uint32_t at = i + (uint32_t)j * DPARI_CUDA_THREADS;
        if (at < b->units) {
            dpari_cuda_where_to<PER>(b, at, &to[j], &from[j]);
            u[j] = *(const uint4 *)(const void *)(b->to + to[j]);
            v[j] = *(const uint4 *)(const void *)(b->from + from[j]);
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        if (i + (uint32_t)j * DPARI_CUDA_THREADS < b->units) {
            *(uint4 *)(void *)(b->to + to[j]) =
                dpari_cuda_meet_unit(u[j], v[j], type, op, b->negate);
            if (b->clear) {
                *(uint4 *)(void *)(b->from + from[j]) = dpari_cuda_nought<uint4>();
            }
        }
    }
}

template <typename Box> __device__ static inline void dpari_cuda_move_any(const Box *b, uint32_t i)
{
    const int32_t wide = dpari_cuda_width(b->from_type), narrow = dpari_cuda_width(b->to_type);
    int64_t to, from;
    uint64_t x;
    if (i >= b->units) {
        return;
    }
    dpari_cuda_where_to<1>(b, i, &to, &from);
    x = dpari_cuda_read(b->from + from, wide);
    x = dpari_cuda_convert(x, b->from_type, b->through);
    x = dpari_cuda_convert(x, b->through, b->to_type);
    x = b->negate ? dpari_cuda_negate(x, b->to_type) : x;
    if (b->op != DPAR_COPY) {
        x = dpari_cuda_meet_bits(dpari_cuda_read(b->to + to, narrow), x, b->to_type, b->op);
    }
    dpari_cuda_write(b->to + to, narrow, x);
    if (b->clear) {
        dpari_cuda_write(b->from + from, wide, 0);
    }
}

/* Processes PER units according to the box's kind. With ALL 0 there are only copies, so that the
 * kernel needs fewer registers. */
template <int PER, int ALL, typename Box>
__device__ static inline void dpari_cuda_move_some(const Box *b, uint32_t i)
{
    if (!ALL || b->kind == DPARI_CUDA_RAW) {
        switch (b->width) {
        case 16: dpari_cuda_move_raw<uint4, PER>(b, i); break;
        case 8: dpari_cuda_move_raw<uint2, PER>(b, i); break;
        case 4: dpari_cuda_move_raw<uint32_t, PER>(b, i); break;
        case 2: dpari_cuda_move_raw<uint16_t, PER>(b, i); break;
        default: dpari_cuda_move_raw<unsigned char, PER>(b, i); break;
        }
        return;
    }
    if constexpr (ALL != 0) {
        for (uint32_t at = i; at < i + PER * DPARI_CUDA_THREADS; at += DPARI_CUDA_THREADS) {
            switch (b->kind) {
            case DPARI_CUDA_CAST:
                dpari_cuda_move_cast<1, DPAR_TYPE_NONE, DPAR_TYPE_NONE>(b, at);
                break;
            case DPARI_CUDA_MEET: dpari_cuda_move_meet<1, DPAR_TYPE_NONE, DPAR_COPY>(b, at); break;
            default: dpari_cuda_move_any(b, at); break;
            }
        }
    }
}

template <typename Batch, int PER, int ALL>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, ALL ? 2 : 3)
    dpari_cuda_move_kernel(DPARI_CUDA_ARGS Batch b)
{
    int64_t c = blockIdx.x; /* there are no more blocks than chunks */
    do {
        const int32_t k = dpari_cuda_find(b, c);
        const uint32_t chunk = (uint32_t)(c - b.first[k]) * (PER * DPARI_CUDA_THREADS);
        dpari_cuda_move_some<PER, ALL>(&b.piece[k], chunk + threadIdx.x);
        c += gridDim.x;
    } while (c < b.first[b.n]);
}

/* A kernel for boxes that all have the same kind and types, which are constants: casts (OP is
 * DPAR_COPY) or sums. Each thread has four units in flight. */
template <typename Batch, int TO, int FROM, int OP>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 3)
    dpari_cuda_move_form_kernel(DPARI_CUDA_ARGS Batch b)
{
    enum { PER = 4 };
    for (int64_t c = blockIdx.x; c < b.first[b.n]; c += gridDim.x) {
        const int32_t k = dpari_cuda_find(b, c);
        const uint32_t i = (uint32_t)(c - b.first[k]) * (PER * DPARI_CUDA_THREADS) + threadIdx.x;
        if constexpr (OP == DPAR_COPY) {
            dpari_cuda_move_cast<PER, TO, FROM>(&b.piece[k], i);
        } else {
            dpari_cuda_move_meet<PER, TO, OP>(&b.piece[k], i);
        }
    }
}

typedef dpari_cuda_box_of<DPARI_CUDA_SLIM> dpari_cuda_box_slim;
typedef dpari_cuda_batch<dpari_cuda_box_slim, DPARI_CUDA_TINY> dpari_cuda_boxes_tiny;
typedef dpari_cuda_batch<dpari_cuda_box_slim, DPARI_CUDA_SMALL> dpari_cuda_boxes_small;
typedef dpari_cuda_batch<dpari_cuda_box_slim, DPARI_CUDA_LARGE> dpari_cuda_boxes_large;
typedef dpari_cuda_batch<dpari_cuda_box, DPARI_CUDA_SMALL> dpari_cuda_boxes_wide;

/* ==== cuda/box_prepare.h ==== */

/* box_prepare - private: finds the form of a box in which a kernel moves it. */

/* A box that is cut along its last dim into pieces of at most DPARI_CUDA_UNITS units. */
struct dpari_cuda_cut {
    dpari_cuda_box piece; /* the fields that all pieces have in common */
    int64_t extent;       /* length of the box's last dim, */
    int64_t each;         /* and of a piece */
    int64_t pieces;
};

DPARI_INTERNAL int dpari_cuda_box_fine(const dpar_mem_box *b);
DPARI_INTERNAL int32_t dpari_cuda_through(const dpar_mem_box *box);
DPARI_INTERNAL int dpari_cuda_prepare(const dpar_mem_box *box, dpari_cuda_cut *cut);
DPARI_INTERNAL void dpari_cuda_piece(const dpari_cuda_cut *cut, int64_t i, dpari_cuda_box *p);

/* ==== cuda/box_overlap.h ==== */

/* box_overlap - private: the sides of boxes in memory, and which boxes have to wait for others. */

/* A side of a box, which is within the bytes [base, end). Dims without length or step are left out.
 * Steps are positive, with the shortest first. Later box_frames also keeps the side as a box of
 * indices here. */
struct dpari_cuda_side {
    uintptr_t base, end;
    union {
        int64_t step[DPAR_MEM_DIMS];
        int64_t lo[DPAR_MEM_DIMS];
    };
    union {
        int64_t extent[DPAR_MEM_DIMS];
        int64_t hi[DPAR_MEM_DIMS];
    };
    int32_t dims, width;
};

DPARI_INTERNAL int dpari_cuda_box_empty(const dpar_mem_box *b);
/* Sets *s to a side of a box that is not empty. Returns 0 if two dims have the same step. */
DPARI_INTERNAL int dpari_cuda_side_of(const dpar_mem_box *b, int of_to, dpari_cuda_side *s);
/* True if b, which is later in the list, has to wait for a. */
DPARI_INTERNAL int dpari_cuda_follows(const dpar_mem_box *a, const dpar_mem_box *b);

/* ==== cuda/kept_moves.h ==== */

/* kept_moves - private: keeps launches of moves. A halo exchange moves the same boxes each time.
 * The arguments of the launch, which the host computed from the boxes, are therefore kept for the
 * last few moves. */

enum {
    DPARI_CUDA_WINDOW = 256, /* the most boxes that are analysed together */
    DPARI_CUDA_KNOWN = 8     /* number of moves that are kept */
};

struct dpari_cuda_known {
    int32_t n, launches;                  /* number of boxes, 0 if no move is kept; number of
                                             launches that they took */
    int32_t units, threads, blocks, most; /* limits of the dpar_cuda when the move was kept */
    dpar_status (*again)(dpar_cuda *, const dpari_cuda_known *);
    void (*kernel)(void);
    int64_t grid;
    dpar_mem_box box[DPARI_CUDA_WINDOW];
    alignas(16) unsigned char args[DPARI_CUDA_ARGUMENTS];
};

/* What dpar_cuda.known points to. */
struct dpari_cuda_memory {
#ifdef DPAR_TRAIN_H
    dpar_mem_layers layers; /* the table to which dpar_mem points */
#endif
    dpari_cuda_known *now; /* the move in progress if it is to be kept, otherwise NULL */
    int32_t next, room;
    dpari_cuda_known known[DPARI_CUDA_KNOWN];
};

template <typename Args>
static dpar_status dpari_cuda_again(dpar_cuda *gpu, const dpari_cuda_known *k)
{
    return dpari_cuda_launch(gpu, "move", (void (*)(const Args))k->kernel,
                             *(const Args *)(const void *)k->args, k->grid);
}

/* Launches a kernel of `move`, and keeps the launch if it is the move's only one. */
template <typename Args>
static dpar_status dpari_cuda_move_launch(dpar_cuda *gpu, void (*kernel)(const Args),
                                          const Args &args, int64_t blocks)
{
    const dpari_cuda_memory *memory = (const dpari_cuda_memory *)gpu->known;
    dpari_cuda_known *k = memory->now;
    if (k != NULL && k->launches++ == 0) {
        k->again = dpari_cuda_again<Args>;
        k->kernel = (void (*)(void))kernel;
        k->grid = blocks;
        memcpy(k->args, &args, sizeof args);
    }
    return dpari_cuda_launch(gpu, "move", kernel, args, blocks);
}

/* Returns the kept move of these boxes, or NULL if there is none. */
DPARI_INTERNAL const dpari_cuda_known *dpari_cuda_known_of(const dpar_cuda *gpu,
                                                           const dpar_mem_box *box, int32_t n);
/* Begins to record a move of n boxes. */
DPARI_INTERNAL void dpari_cuda_keep(dpar_cuda *gpu, int32_t n);
/* Ends recording a move, and keeps it if it succeeded with a single launch. */
DPARI_INTERNAL void dpari_cuda_kept(dpar_cuda *gpu, const dpar_mem_box *box, int32_t n,
                                    dpar_status st);

/* ==== cuda/move_boxes.h ==== */

/* move_boxes - private: moves boxes of which none waits for another. */

/* Collects pieces until a launch is full or there are no more pieces. */
struct dpari_cuda_moves {
    dpari_cuda_boxes_large slim;
    dpari_cuda_boxes_wide wide; /* pieces with more dims */
};

/* Adds a box, launching what was collected before if there is no room. */
DPARI_INTERNAL dpar_status dpari_cuda_move_one(dpar_cuda *gpu, const dpar_mem_box *box,
                                               dpari_cuda_moves *b);
/* Launches with the smallest arguments that hold the pieces. */
DPARI_INTERNAL dpar_status dpari_cuda_move_flush(dpar_cuda *gpu, dpari_cuda_moves *b);

/* ==== cuda/box_frames.h ==== */

/* box_frames - private: boxes that meet. If several boxes add to the same element, their order is
 * fixed, so that the result always has the same bits. The targets of all boxes of an array are
 * expressed as boxes of its indices, and cut into pieces whose elements are all in the same boxes.
 */

enum {
    DPARI_CUDA_CUTS = 64,       /* the most cuts of a dim */
    DPARI_CUDA_CELLS = 1 << 14, /* the most cells of an array */
    DPARI_CUDA_WORDS = DPARI_CUDA_WINDOW / 64,
    DPARI_CUDA_NEAR = 2 /* number of boxes that a piece stores itself */
};

/* An array, as it can be inferred from the boxes: the steps of its dims, the shortest first, and
 * the address of index 0. */
struct dpari_cuda_frame {
    uintptr_t base;
    int64_t step[DPAR_MEM_DIMS];
    int32_t dims;
    int32_t first, n; /* its sides are order[first] to order[first + n - 1] */
};

struct dpari_cuda_scene {
    const dpar_mem_box *box;
    int32_t n, frames;
    int32_t dims; /* the most dims that a frame has */
    int meets;
    dpari_cuda_side side[2 * DPARI_CUDA_WINDOW]; /* `to` of box k is at 2 k, and `from` at 2 k +
                                                    1 */
    int16_t order[2 * DPARI_CUDA_WINDOW];
    dpari_cuda_frame frame[DPARI_CUDA_WINDOW]; /* frames in which some side is a `to` */
};

/* The cuts of a frame. Between two cuts of a dim all elements are in the same boxes, which are
 * stored as a set of bits. */
struct dpari_cuda_cells {
    int16_t to[DPARI_CUDA_WINDOW]; /* boxes with a target in the frame, in order */
    int32_t n;
    int32_t cuts[DPAR_MEM_DIMS];
    int64_t cut[DPAR_MEM_DIMS][DPARI_CUDA_CUTS];
    uint64_t in[DPAR_MEM_DIMS][DPARI_CUDA_CUTS][DPARI_CUDA_WORDS];
};

/* Sorts the sides of all boxes by address, and groups those that overlap into frames. Returns 0 if
 * they cannot be analysed. */
DPARI_INTERNAL int dpari_cuda_scene_of(const dpar_mem_box *box, int32_t n, dpari_cuda_scene *z);
/* Computes the cuts of a frame. Returns 0 if there are too many. */
DPARI_INTERNAL int dpari_cuda_cells_of(const dpari_cuda_scene *z, const dpari_cuda_frame *f,
                                       dpari_cuda_cells *c);

/* ==== cuda/joint_moves.h ==== */

/* joint_moves - private: moves boxes that meet in a single launch. A thread has one element of a
 * piece (box_frames) and processes its boxes in order. Boxes that do not fit an array of few dims,
 * or of which one reads data that another writes, need several launches instead. */

/* True if the arguments of a launch have room for all boxes that an element may be in. */
DPARI_INTERNAL int dpari_cuda_joint_fits(const dpar_cuda *gpu, const dpari_cuda_scene *z);
DPARI_INTERNAL dpar_status dpari_cuda_move_joint(dpar_cuda *gpu, const dpari_cuda_scene *z);

/* ==== cuda/stochastic.h ==== */

/* stochastic - private: rounding to BF16 by random numbers. */

/* Computes the random words of elements `at` to at + 3. */
__device__ static inline void dpari_cuda_randoms(uint64_t seed, uint64_t stream, uint64_t at,
                                                 uint32_t *four)
{
    uint32_t low[4], high[4];
    const uint32_t skip = (uint32_t)(at % 4);
    dpari_cuda_random_four(seed, stream, at / 4, low);
    if (skip != 0) {
        dpari_cuda_random_four(seed, stream, (at + 3) / 4, high);
    } else {
        memcpy(high, low, sizeof high);
    }
    DPARI_CUDA_UNROLL
    for (uint32_t e = 0; e < 4; e++) { /* selects instead of indexing, so that the words stay in
                                          registers */
        const uint32_t a = e + skip;
        uint32_t word = high[2];
        word = a == 5 ? high[1] : word;
        word = a == 4 ? high[0] : word;
        word = a == 3 ? low[3] : word;
        word = a == 2 ? low[2] : word;
        word = a == 1 ? low[1] : word;
        four[e] = a == 0 ? low[0] : word;
    }
}

/* Rounds F32 to BF16, up or down depending on 16 random bits (dpar_mem_round). */
DPARI_CUDA_FN uint16_t dpari_cuda_stochastic(float f, uint32_t bits)
{
    uint32_t x = dpari_cuda_bits<uint32_t>(f);
    if ((x & 0x7f800000u) != 0x7f800000u) {
        x += bits;
    } else {
        x |= (x & 0x7fffffu) != 0 ? 0x400000u : 0u; /* a NaN stays a NaN */
    }
    return (uint16_t)(x >> 16);
}

/* Rounds a four to BF16 by the high halves of the random words (SHIFT 16) or the low ones (0). */
template <int SHIFT, typename W>
__device__ static inline void dpari_cuda_narrow_by(dpari_cuda_four *four, const W *from,
                                                   const uint32_t *words)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        float f;
        dpari_cuda_as(from[e], &f);
        const uint32_t half = dpari_cuda_stochastic(f, words[e] >> SHIFT & 0xffffu);
        four->x[e / 2] = e % 2 == 0 ? half : four->x[e / 2] | half << 16;
    }
}

/* Rounds weights, or a copy of them, to BF16: elements `at` to at + 3 of the whole array. */
template <typename W>
__device__ static inline void dpari_cuda_narrow_random(dpari_cuda_four *four, const W *from,
                                                       uint64_t seed, uint64_t stream, uint64_t at)
{
    uint32_t words[4];
    dpari_cuda_randoms(seed, stream, at, words);
    dpari_cuda_narrow_by<16>(four, from, words);
}

/* ==== cuda/spans.h ==== */

/* spans - private: copies, casts, scales and adds contiguous elements. */

struct dpari_cuda_span {
    unsigned char *to;
    const unsigned char *from;
    int64_t count, head, units;
    double scale;
    uint64_t seed, stream, index;
    int32_t to_type, from_type;
    uint8_t add, stochastic, even, raw; /* raw 1: copies bytes; 2: only casts; 3: no type is F64 */
};

/* Copies PER units of 16 bytes, and byte by byte the ends that do not fill a unit. */
template <int PER>
__device__ static inline void dpari_cuda_span_raw(const dpari_cuda_span &s, int64_t unit)
{
    uint4 v[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const int64_t at = s.head + 16 * (unit + j * DPARI_CUDA_THREADS - 1);
        v[j] = dpari_cuda_nought<uint4>();
        if (s.even && s.from != NULL && at >= s.head && at + 16 <= s.count) {
            v[j] = *(const uint4 *)(const void *)(s.from + at);
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const int64_t at = s.head + 16 * (unit + j * DPARI_CUDA_THREADS - 1);
        if (s.even && at >= s.head && at + 16 <= s.count) {
            *(uint4 *)(void *)(s.to + at) = v[j];
        } else {
            for (int64_t e = at < 0 ? 0 : at; e < at + 16 && e < s.count; e++) {
                s.to[e] = s.from != NULL ? s.from[e] : (unsigned char)0;
            }
        }
    }
}

/* Casts, scales or adds PER units. WHOLE: all units are vectors on both sides. RANDOM: the rounding
 * may be stochastic. WIDE 0: no type is F64. TYPE is the type of both sides if the kernel knows
 * it. Numbers are of type W; with float they are only converted, between types of at most 32
 * bits. */
template <typename W, int PER, int WHOLE, int RANDOM, int WIDE = 1, int TYPE = DPAR_TYPE_NONE>
__device__ static inline void dpari_cuda_span_numbers(const dpari_cuda_span &s, int64_t unit)
{
    const int only_cast = sizeof(W) == 4, reads = only_cast || s.from != NULL;
    const int adds = !only_cast && s.add;
    const int32_t to_type = TYPE != DPAR_TYPE_NONE ? TYPE : s.to_type;
    const int32_t from_type = TYPE != DPAR_TYPE_NONE ? TYPE : s.from_type;
    const int32_t tw = dpari_cuda_width(to_type), fw = dpari_cuda_width(from_type);
    dpari_cuda_four v[PER], old[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const int64_t i = dpari_cuda_first(unit + j * DPARI_CUDA_THREADS, s.head);
        const int64_t lo = WHOLE ? 0 : i;
        const int64_t n = WHOLE ? 4 : s.count;
        const int64_t skip = WHOLE ? i : 0;
        if (lo < n && reads) {
            dpari_cuda_load<0, WIDE>(&v[j], s.from + skip * fw, lo, n, fw, WHOLE || s.even);
        }
        if (lo < n && adds) {
            dpari_cuda_load<0, WIDE>(&old[j], s.to + skip * tw, lo, n, tw, 1);
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const int64_t i = dpari_cuda_first(unit + j * DPARI_CUDA_THREADS, s.head);
        const int64_t lo = WHOLE ? 0 : i;
        const int64_t n = WHOLE ? 4 : s.count;
        const int64_t skip = WHOLE ? i : 0;
        dpari_cuda_four made;
        W x[4], y[4];
        if (lo >= n) {
            continue;
        }
        if (reads) {
            dpari_cuda_widen<1, WIDE>(&v[j], from_type, x);
        }
        if (adds) {
            dpari_cuda_widen<0, WIDE>(&old[j], to_type, y);
        }
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 4 && !only_cast; e++) {
            if (s.from == NULL) {
                x[e] = (W)s.scale;
            } else if (s.scale != 1.0) {
                x[e] = dpari_cuda_mul((W)s.scale, x[e]);
            }
            x[e] = s.add ? dpari_cuda_add(y[e], x[e]) : x[e];
        }
        if (RANDOM && s.stochastic && s.from != NULL && s.scale == 1.0 && from_type == DPAR_F32) {
            float f[4]; /* no value changes, not even a NaN */
            dpari_cuda_widen(&v[j], DPAR_F32, f);
            dpari_cuda_narrow_random(&made, f, s.seed, s.stream, s.index + (uint64_t)i);
        } else if (RANDOM && s.stochastic) {
            dpari_cuda_narrow_random(&made, x, s.seed, s.stream, s.index + (uint64_t)i);
        } else {
            dpari_cuda_narrow<WIDE>(&made, to_type, x);
        }
        dpari_cuda_store<0, WIDE>(&made, s.to + skip * tw, lo, n, tw, 1);
    }
}

enum { DPARI_CUDA_SPAN_PER = 4 }; /* units per thread */

/* NUMBERS 0: only copies and casts; 1: no random numbers. Such kernels need fewer registers. */
template <typename Batch, int NUMBERS>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, NUMBERS ? 2 : 3)
    dpari_cuda_span_kernel(DPARI_CUDA_ARGS Batch b)
{
    for (int64_t c = blockIdx.x; c < b.first[b.n]; c += gridDim.x) {
        const int32_t k = dpari_cuda_find(b, c);
        const dpari_cuda_span &s = b.piece[k];
        const int64_t unit =
            (c - b.first[k]) * (DPARI_CUDA_SPAN_PER * DPARI_CUDA_THREADS) + threadIdx.x;
        const int64_t last = unit - threadIdx.x + DPARI_CUDA_SPAN_PER * DPARI_CUDA_THREADS - 1;
        const int whole = s.even && unit > threadIdx.x &&
                          dpari_cuda_first(last, s.head) + 4 <= s.count; /* equal for all threads of
                                                                            the block */
        if (s.raw == 1) {
            dpari_cuda_span_raw<DPARI_CUDA_SPAN_PER>(s, unit);
        } else if (s.raw == 2 && whole) {
            dpari_cuda_span_numbers<float, DPARI_CUDA_SPAN_PER, 1, 0, 0>(s, unit);
        } else if (s.raw == 2) {
            for (int32_t j = 0; j < DPARI_CUDA_SPAN_PER; j++) {
                dpari_cuda_span_numbers<float, 1, 0, 0, 0>(s, unit + j * DPARI_CUDA_THREADS);
            }
        } else if (NUMBERS == 1 && whole && s.to_type == DPAR_F32 && s.from_type == DPAR_F32) {
            for (int32_t j = 0; j < DPARI_CUDA_SPAN_PER; j += 2) {
                dpari_cuda_span_numbers<double, 2, 1, 0, 0, DPAR_F32>(
                    s, unit + j * DPARI_CUDA_THREADS);
            }
        } else if (NUMBERS == 1 && whole && s.raw == 3) {
            for (int32_t j = 0; j < DPARI_CUDA_SPAN_PER; j += 2) {
                dpari_cuda_span_numbers<double, 2, 1, 0, 0>(s, unit + j * DPARI_CUDA_THREADS);
            }
        } else if (NUMBERS == 1 && whole) {
            for (int32_t j = 0; j < DPARI_CUDA_SPAN_PER; j++) {
                dpari_cuda_span_numbers<double, 1, 1, 0>(s, unit + j * DPARI_CUDA_THREADS);
            }
        } else if (NUMBERS > 0) {
            for (int32_t j = 0; j < DPARI_CUDA_SPAN_PER; j++) {
                dpari_cuda_span_numbers<double, 1, 0, (NUMBERS > 1)>(s,
                                                                     unit + j * DPARI_CUDA_THREADS);
            }
        }
    }
}

typedef dpari_cuda_batch<dpari_cuda_span, DPARI_CUDA_SMALL> dpari_cuda_spans_small;
typedef dpari_cuda_batch<dpari_cuda_span, DPARI_CUDA_LARGE> dpari_cuda_spans_large;

/* Launches the spans of a batch. RANDOM: some spans are rounded by random numbers. */
template <int RANDOM, typename Batch>
static dpar_status dpari_cuda_span_now(dpar_cuda *gpu, Batch *b)
{
    const int64_t each = DPARI_CUDA_SPAN_PER * DPARI_CUDA_THREADS;
    void (*kernel)(const Batch) = dpari_cuda_span_kernel<Batch, 0>;
    for (int32_t k = 0; k < b->n; k++) {
        if (b->piece[k].raw == 0 || b->piece[k].raw == 3) {
            kernel = dpari_cuda_span_kernel<Batch, 1 + RANDOM>;
        }
    }
    b->first[b->n] = dpari_cuda_chunks(b->piece, b->n, each, b->first);
    return dpari_cuda_launch(gpu, "span", kernel, *b, dpari_cuda_each(gpu, b->first[b->n]));
}

/* Describes a span for the kernel. Returns 1, or 0 if the span is empty, or -1 if it is not
 * allowed. */
DPARI_INTERNAL int dpari_cuda_span_piece(const dpar_mem_span *s, int stochastic,
                                         dpari_cuda_span *p);

/* ==== cuda/pin.h ==== */

/* pin - private: pins memory of the host, in whole pages. */

/* Unregisters the pages that no pin needs any more. */
DPARI_INTERNAL dpar_status dpari_cuda_release(dpar_cuda *gpu);

#ifdef DPAR_TRAIN_H

/* ==== cuda/rows.h ==== */

/* rows - private: rows that an index selects, and their division among the threads of a grid. */

/* Returns number i of an index. */
__device__ static inline int64_t dpari_cuda_index_at(const dpar_mem_index &x, int64_t i)
{
    return x.type == DPAR_I32 ? (int64_t)((const int32_t *)x.at)[i] : ((const int64_t *)x.at)[i];
}

/* Returns row i of an index, negative if there is none. */
__device__ static inline int64_t dpari_cuda_row(const dpar_mem_index &x, int64_t i)
{
    const int64_t at = dpari_cuda_index_at(x, i);
    if (x.windows == 0) {
        return at;
    }
    for (int32_t w = 0; w < x.windows; w++) {
        if (at >= x.lo[w] && at < x.hi[w]) {
            return x.row[w] + at - x.lo[w];
        }
    }
    return -1;
}

static int dpari_cuda_index_fine(const dpar_mem_index *x, int64_t n)
{
    return (x->type == DPAR_I32 || x->type == DPAR_I64) && x->windows >= 0 && x->windows <= 2 &&
           (n == 0 || x->at != NULL);
}

/* Rows are processed in chunks of several rows, or of a part of one. */
struct dpari_cuda_rows {
    int64_t chunks;
    int64_t slices; /* number of chunks of a row; if it is 1, a chunk has `rows` rows */
    int64_t units;  /* units of a row */
    int32_t rows;
    int32_t each; /* units of a slice */
};

static dpari_cuda_rows dpari_cuda_rows_of(int64_t rows, int64_t units)
{
    dpari_cuda_rows r;
    const int64_t most = 4 * DPARI_CUDA_THREADS;
    r.units = units;
    r.each = (int32_t)(units < most ? units : most);
    r.slices = units > most ? (units + most - 1) / most : 1;
    r.rows = (int32_t)(units >= most || units == 0 ? 1 : most / units);
    r.chunks = r.slices > 1 ? rows * r.slices : (rows + r.rows - 1) / r.rows;
    return r;
}

/* Computes the row of unit `local` of chunk c, and the unit's place in that row. Returns 0 beyond
 * the end of the chunk. */
DPARI_CUDA_FN int dpari_cuda_rows_at(const dpari_cuda_rows &r, int64_t rows, int64_t c,
                                     uint32_t local, int64_t *row, int64_t *unit)
{
    if (r.slices > 1) {
        *row = c / r.slices;
        *unit = c % r.slices * r.each + local;
        return local < (uint32_t)r.each && *unit < r.units;
    }
    const uint32_t q = local / (uint32_t)r.each;
    *row = c * r.rows + q;
    *unit = local - q * (uint32_t)r.each;
    return q < (uint32_t)r.rows && *row < rows;
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/planes.h ==== */

/* planes - private: the points of a plane in arrays of any strides. */

/* The points of a plane in several arrays, which are called sides (x, dy, ...), in as few dims as
 * all sides allow, with the last dim first. */
template <int SIDES> struct dpari_cuda_plane {
    int64_t points;
    int64_t extent[DPAR_MAX_DIMS], stride[SIDES][DPAR_MAX_DIMS];
    uint32_t magic[DPAR_MAX_DIMS];
    uint8_t shift[DPAR_MAX_DIMS];
    int32_t dims, small; /* small 1: indices fit in 31 bits, so that a multiplication replaces
                            divisions */
};

/* Computes the offset of point i from the plane's first point on each side. */
template <int SIDES>
__device__ static inline void dpari_cuda_plane_at(const dpari_cuda_plane<SIDES> &p, int64_t i,
                                                  int64_t *at)
{
    DPARI_CUDA_UNROLL
    for (int j = 0; j < SIDES; j++) {
        at[j] = 0;
    }
    for (int32_t d = 0; d < p.dims; d++) {
        int64_t q = 0;
        if (d + 1 < p.dims) {
            q = p.small ? (int64_t)dpari_cuda_over((uint32_t)i, p.magic[d], p.shift[d])
                        : i / p.extent[d];
        }
        const int64_t r = i - q * p.extent[d];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < SIDES; j++) {
            at[j] += r * p.stride[j][d];
        }
        i = q;
    }
}

template <int SIDES>
static void dpari_cuda_plane_lay(int32_t dims, const int64_t *extent, const int64_t *const *stride,
                                 dpari_cuda_plane<SIDES> *p)
{
    memset(p, 0, sizeof *p);
    p->points = 1;
    for (int32_t d = dims - 1; d >= 0; d--) {
        const int32_t k = p->dims - 1;
        int32_t joins = k >= 0;
        p->points *= extent[d];
        if (extent[d] == 1) {
            continue;
        }
        for (int32_t j = 0; j < SIDES; j++) {
            joins = joins && stride[j][d] == p->stride[j][k] * p->extent[k];
        }
        if (joins) {
            p->extent[k] *= extent[d];
            continue;
        }
        p->extent[p->dims] = extent[d];
        for (int32_t j = 0; j < SIDES; j++) {
            p->stride[j][p->dims] = stride[j][d];
        }
        p->dims++;
    }
    p->small = p->points < INT64_C(0x7fffffff);
    for (int32_t d = 0; d < p->dims && p->small && p->points > 0; d++) {
        dpari_cuda_magic((uint32_t)p->extent[d], &p->magic[d], &p->shift[d]);
    }
}

/* True if the counts are consistent: planes are samples times channels, and channels may form
 * groups. */
static int dpari_cuda_planes_fine(int64_t planes, int32_t channels, int32_t groups, int32_t dims,
                                  const int64_t *extent)
{
    if (dims < 0 || dims > DPAR_MAX_DIMS || planes < 0 || channels < 1 || planes % channels != 0 ||
        groups < 0 || (groups > 0 && channels % groups != 0)) {
        return 0;
    }
    for (int32_t d = 0; d < dims; d++) {
        if (extent[d] < 0) {
            return 0;
        }
    }
    return 1;
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/moments.h ==== */

/* moments - private: count, mean and sum of squares about the mean, and how to merge two of them.
 */

struct dpari_cuda_three_of {
    double count, mean, m2;
};

/* Merges b into a. share: b's part of both counts. both: the product of the counts over their
 * sum. */
__device__ static inline void dpari_cuda_three_join_by(dpari_cuda_three_of *a,
                                                       const dpari_cuda_three_of &b, double share,
                                                       double both)
{
    const double delta = b.mean - a->mean;
    if (a->count <= 0.0) {
        *a = b;
        return;
    }
    a->mean = dpari_cuda_add(a->mean, dpari_cuda_mul(delta, share));
    a->m2 = dpari_cuda_add(
        a->m2, dpari_cuda_add(b.m2, dpari_cuda_mul(dpari_cuda_mul(delta, delta), both)));
    a->count += b.count;
}

__device__ static inline void dpari_cuda_three_join(dpari_cuda_three_of *a,
                                                    const dpari_cuda_three_of &b)
{
    const double n = a->count + b.count;
    if (a->count == b.count && n > 0.0 && n < 67108864.0) { /* 2^26: both are exact */
        dpari_cuda_three_join_by(a, b, 0.5, 0.5 * b.count);
    } else if (b.count > 0.0) {
        dpari_cuda_three_join_by(a, b, b.count / n, a->count * b.count / n);
    }
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/code_blocks.h ==== */

/* code_blocks - private: blocks of numbers that are stored as codes with a scale. */

struct dpari_cuda_quant {
    dpar_mem_quantize q;
    int64_t blocks;
    int32_t even, even_code; /* 1: the numbers, and the codes, of all blocks can be accessed as
                                vectors */
    int32_t warps;           /* 1: a warp has a block of numbers; 0: all threads of a block together
                                have one */
    int32_t room;
};

/* Returns the bits of the largest |x| of a warp. They are compared as integers, so that NaN and
 * infinity are the largest. */
__device__ static inline uint32_t dpari_cuda_largest(uint32_t mine)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, mine);
#else
    return dpari_cuda_warp_all<dpari_cuda_greatest>(mine);
#endif
}

/* Loads four of a block's numbers as F32; those beyond its end are 0. */
__device__ static inline void dpari_cuda_quant_load(const dpari_cuda_quant &s, int32_t type,
                                                    int64_t first, int64_t n, int64_t i, float *x)
{
    const int32_t width = dpari_cuda_width(type);
    dpari_cuda_four four;
    if (i < n) {
        dpari_cuda_load<0>(&four, (const unsigned char *)s.q.x + first * width, i, n, width,
                           s.even);
        dpari_cuda_widen(&four, type, x);
    } else {
        x[0] = x[1] = x[2] = x[3] = 0.0f;
    }
}

__device__ static inline int64_t dpari_cuda_quant_count(const dpari_cuda_quant &s, int64_t b)
{
    const int64_t left = s.q.count - b * s.q.block;
    if (b >= s.blocks) {
        return 0;
    }
    return left < s.q.block ? left : s.q.block;
}

__device__ static inline uint32_t dpari_cuda_larger(const float *x, uint32_t largest)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const uint32_t size = dpari_cuda_bits<uint32_t>(x[e]) & 0x7fffffffu;
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Stores codes i to i + 3 of a block of n codes, each of which has BITS bits. The next function
 * loads them from block b. */
template <int BITS>
__device__ static inline void dpari_cuda_put_codes(const dpari_cuda_quant &s, unsigned char *code,
                                                   int64_t n, int64_t i, uint32_t four)
{
    code += i * BITS / 8;
    if (s.even_code && i + 4 <= n) {
        if (BITS == 8) {
            *(uint32_t *)(void *)code = four;
        } else {
            *(uint16_t *)(void *)code = (uint16_t)four;
        }
        return;
    }
    for (int e = 0; e < 4 && i + e < n; e += 8 / BITS) {
        code[e * BITS / 8] = (unsigned char)(four >> (BITS * e));
    }
}

template <int BITS>
__device__ static inline uint32_t dpari_cuda_get_codes(const dpari_cuda_quant &s, int64_t b,
                                                       int64_t n, int64_t i)
{
    const unsigned char *code = (const unsigned char *)s.q.code + b * s.q.code_step + i * BITS / 8;
    uint32_t four = 0;
    if (s.even_code && i + 4 <= n) {
        return BITS == 8 ? *(const uint32_t *)(const void *)code
                         : (uint32_t) * (const uint16_t *)(const void *)code;
    }
    for (int e = 0; e < 4 && i + e < n; e += 8 / BITS) {
        four |= (uint32_t)code[e * BITS / 8] << (BITS * e);
    }
    return four;
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/block_formats.h ==== */

/* block_formats - private: blocks in the formats of tensor cores, MXFP8, MXFP4 and NVFP4. */

/* Computes the codes of numbers, or with back 1 the numbers of codes. name: of the operation. */
DPARI_INTERNAL dpar_status dpari_cuda_micro_op(dpar_cuda *gpu, const char *name,
                                               const dpar_mem_quantize *call, int back);

#endif /* DPAR_TRAIN_H */

/* ==== cuda/launch.c ==== */

/* Writes the messages of errors, selects the device around each call and restores the caller's, and
 * computes how many blocks a launch has. */

DPARI_INTERNAL dpar_status dpari_cuda_say(dpar_status st, dpar_why *why, const char *what,
                                          const char *by)
{
    if (why != NULL) {
        (void)snprintf(why->text, sizeof why->text, "%s: %s", what, by);
    }
    return st;
}

DPARI_INTERNAL dpar_status dpari_cuda_heard(dpar_cuda *gpu, cudaError_t error, const char *what)
{
    char text[sizeof gpu->why.text];
    if (error == cudaSuccess) {
        return DPAR_OK;
    }
    (void)cudaGetLastError();
    (void)snprintf(text, sizeof text, "device %d: %s failed: CUDA says: %s", (int)gpu->device, what,
                   cudaGetErrorString(error));
    memcpy(gpu->why.text, text, sizeof text);
    return DPAR_E_SYSTEM;
}

DPARI_INTERNAL dpar_status dpari_cuda_wrong(dpar_cuda *gpu, const char *what)
{
    return dpari_cuda_say(DPAR_E_ARG, &gpu->why, what,
                          "dpar_mem does not allow one of the types, counts or pointers passed");
}

DPARI_INTERNAL dpar_status dpari_cuda_enter(dpar_cuda *gpu, int *before)
{
    cudaError_t error = cudaGetDevice(before);
    if (error == cudaSuccess && *before != gpu->device) {
        error = cudaSetDevice(gpu->device);
    }
    return dpari_cuda_heard(gpu, error, "cudaSetDevice");
}

DPARI_INTERNAL dpar_status dpari_cuda_leave(dpar_cuda *gpu, int before, dpar_status st)
{
    if (before != gpu->device) {
        (void)cudaSetDevice(before);
    }
    return st;
}

DPARI_INTERNAL int64_t dpari_cuda_wave(const dpar_cuda *gpu, int64_t work)
{
    int64_t most = (int64_t)gpu->multiprocessors * (gpu->threads / DPARI_CUDA_THREADS);
    most = gpu->max_blocks > 0 ? gpu->max_blocks : most;
    most = work < most ? work : most;
    return most < 1 ? 1 : most;
}

DPARI_INTERNAL int64_t dpari_cuda_each(const dpar_cuda *gpu, int64_t work)
{
    const int64_t most = gpu->max_blocks > 0 ? (int64_t)gpu->max_blocks : INT64_C(0x7fffffff);
    const int64_t blocks = work < most ? work : most;
    return blocks < 1 ? 1 : blocks;
}

DPARI_INTERNAL void dpari_cuda_magic(uint32_t d, uint32_t *magic, uint8_t *shift)
{
    uint32_t s = d > 1 ? 32 - (uint32_t)__builtin_clz(d - 1) : 0;
    s = s < 31 ? s : 31;
    *shift = (uint8_t)(31 + s);
    *magic = (uint32_t)((((uint64_t)1 << (31 + s)) + d - 1) / d);
}

DPARI_INTERNAL int64_t dpari_cuda_units_blocks(const dpar_cuda *gpu, int64_t units)
{
    return dpari_cuda_wave(gpu, (units + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS);
}

DPARI_INTERNAL dpar_status dpari_cuda_told(const dpar_cuda *gpu, dpar_status st, dpar_why *why)
{
    if (st != DPAR_OK && why != NULL) {
        *why = gpu->why;
    }
    return st;
}

/* ==== cuda/box_prepare.c ==== */

/* Brings boxes into the form that kernels need: dims are sorted by their steps in the target and
 * joined if they are contiguous, and the widest unit that both addresses and all steps allow is
 * chosen. A box with more than 2^30 units is cut along its last dim, so that indices fit in 31
 * bits. dpari_cuda_magic replaces the divisions by extents. */

/* One dim of a box while it is prepared, with steps in bytes. */
struct dpari_cuda_dim {
    int64_t extent, to, from;
};

/* Simplifies a box: drops dims of length 1, reverses dims in which `to` has a negative step, sorts
 * the dims by their steps in `to`, and joins dims that are contiguous on both sides. Returns the
 * number of dims, or -1 for an empty box. */
static int32_t dpari_cuda_tidy(const dpar_mem_box *box, dpari_cuda_dim *dim, unsigned char **to,
                               unsigned char **from)
{
    const int64_t to_width = dpari_cuda_width(box->to_type);
    const int64_t from_width = dpari_cuda_width(box->from_type);
    int32_t n = 0, d, k, made = 0;
    *to = (unsigned char *)box->to;
    *from = (unsigned char *)box->from;
    for (d = 0; d < box->dims; d++) {
        dpari_cuda_dim one = {box->extent[d], box->to_stride[d] * to_width,
                              box->from_stride[d] * from_width};
        if (one.extent <= 0) {
            return -1;
        }
        if (one.extent == 1) {
            continue;
        }
        if (one.to < 0) {
            *to += (one.extent - 1) * one.to;
            *from += (one.extent - 1) * one.from;
            one.to = -one.to;
            one.from = -one.from;
        }
        for (k = n++; k > 0 && dim[k - 1].to > one.to; k--) {
            dim[k] = dim[k - 1];
        }
        dim[k] = one;
    }
    for (d = 1; d < n; d++) {
        if (dim[d].to == dim[made].extent * dim[made].to &&
            dim[d].from == dim[made].extent * dim[made].from) {
            dim[made].extent *= dim[d].extent;
        } else {
            dim[++made] = dim[d];
        }
    }
    return n > 0 ? made + 1 : 0;
}

/* Returns the widest unit, a power of two up to 16 bytes, that divides the address and all steps
 * but the first. */
static int32_t dpari_cuda_grain(uintptr_t a, const dpari_cuda_dim *dim, int32_t n, int of_to)
{
    int32_t d, width = 16;
    for (d = 1; d < n; d++) {
        a |= (uintptr_t)(of_to ? dim[d].to : dim[d].from);
    }
    while (width > 1 && a % (uintptr_t)width != 0) {
        width /= 2;
    }
    return width;
}

/* Returns the type to which values are rounded before they are converted; by default from_type,
 * which does not change them. */
DPARI_INTERNAL int32_t dpari_cuda_through(const dpar_mem_box *box)
{
    return box->round_type != DPAR_TYPE_NONE ? box->round_type : box->from_type;
}

/* Chooses the kind and width of a box. Returns the number of elements in a unit. */
static int32_t dpari_cuda_choose(const dpar_mem_box *box, const dpari_cuda_dim *dim, int32_t n,
                                 const unsigned char *to, const unsigned char *from,
                                 dpari_cuda_box *p)
{
    const int32_t tw = dpari_cuda_width(box->to_type), fw = dpari_cuda_width(box->from_type);
    const int32_t narrow = tw < fw ? box->to_type : box->from_type;
    const int32_t through = dpari_cuda_through(box);
    const int plain = box->to_type == box->from_type && through == box->to_type;
    const int dense = n > 0 && dim[0].to == tw && dim[0].from == fw;
    const int32_t tg = dense ? dpari_cuda_grain((uintptr_t)to, dim, n, 1) : tw;
    const int32_t fg = dense ? dpari_cuda_grain((uintptr_t)from, dim, n, 0) : fw;
    const int32_t to_four = tw < 4 ? 8 : 16; /* the alignment that four elements need */
    const int32_t from_four = fw < 4 ? 8 : 16;
    p->kind = DPARI_CUDA_ANY;
    p->width = (uint8_t)tw;
    if (plain && box->op == DPAR_COPY && !box->negate) {
        int32_t width = tg < fg ? tg : fg;
        while (width > tw && dim[0].extent * tw % width != 0) {
            width /= 2;
        }
        p->kind = DPARI_CUDA_RAW;
        p->width = (uint8_t)(width < tw ? tw : width);
    } else if (plain && (tw == 8 || tw == 4) && tg == 16 && fg == 16 && dense &&
               (box->to_type == DPAR_F32 || box->to_type == DPAR_F64) && box->op != DPAR_COPY &&
               dim[0].extent * tw % 16 == 0) {
        p->kind = DPARI_CUDA_MEET;
        p->width = 16;
    } else if (tw != fw && box->op == DPAR_COPY && !box->negate && dense &&
               (through == narrow || through == box->from_type) && dim[0].extent % 4 == 0 &&
               tg >= to_four && fg >= from_four) {
        p->kind = DPARI_CUDA_CAST;
        return 4;
    }
    return p->width / tw;
}

/* Prepares a box for the kernels. Returns 1, or 0 if it is empty, or -1 if it has too many units
 * before its last dim. */
DPARI_INTERNAL int dpari_cuda_prepare(const dpar_mem_box *box, dpari_cuda_cut *cut)
{
    dpari_cuda_dim dim[DPAR_MEM_DIMS];
    dpari_cuda_box *p = &cut->piece;
    unsigned char *to, *from;
    int32_t n = dpari_cuda_tidy(box, dim, &to, &from), each, d;
    int64_t inner = 1;
    if (n < 0) {
        return 0;
    }
    memset(p, 0, sizeof *p);
    each = dpari_cuda_choose(box, dim, n, to, from, p);
    if (n == 0) {
        dim[0].extent = 1;
        dim[0].to = dim[0].from = 0;
        n = 1;
    } else {
        dim[0].extent /= each;
        dim[0].to *= each;
        dim[0].from *= each;
    }
    p->to = to;
    p->from = from;
    p->dims = (uint8_t)n;
    p->to_type = (uint8_t)box->to_type;
    p->from_type = (uint8_t)box->from_type;
    p->through = (uint8_t)dpari_cuda_through(box);
    p->op = (uint8_t)box->op;
    p->negate = box->negate != 0;
    p->clear = box->clear != 0;
    for (d = 0; d < n; d++) {
        p->to_step[d] = dim[d].to;
        p->from_step[d] = dim[d].from;
        p->extent[d] = (uint32_t)dim[d].extent;
        if (d + 1 < n) {
            if (dim[d].extent >= DPARI_CUDA_UNITS || inner * dim[d].extent > DPARI_CUDA_UNITS) {
                return -1; /* only the last dim can be cut here, so the caller has to cut this
                              box */
            }
            inner *= dim[d].extent;
            dpari_cuda_magic((uint32_t)dim[d].extent, &p->magic[d], &p->shift[d]);
        }
    }
    cut->extent = dim[n - 1].extent;
    cut->each = DPARI_CUDA_UNITS / inner;
    cut->pieces = (cut->extent + cut->each - 1) / cut->each;
    return 1;
}

/* Sets *p to piece i of the box. */
DPARI_INTERNAL void dpari_cuda_piece(const dpari_cuda_cut *cut, int64_t i, dpari_cuda_box *p)
{
    const int32_t last = cut->piece.dims - 1;
    const int64_t lo = i * cut->each;
    const int64_t n = cut->extent - lo < cut->each ? cut->extent - lo : cut->each;
    int64_t units = n;
    int32_t d;
    *p = cut->piece;
    for (d = 0; d < last; d++) {
        units *= (int64_t)p->extent[d];
    }
    p->to += lo * p->to_step[last];
    p->from += lo * p->from_step[last];
    p->extent[last] = (uint32_t)n;
    p->units = (uint32_t)units;
}

static int dpari_cuda_sixteen(int32_t type)
{
    return type == DPAR_BF16 || type == DPAR_F16;
}

/* True if a box may convert between the two types. */
static int dpari_cuda_meets(int32_t a, int32_t b)
{
    return a == b || (a == DPAR_F32 && (b == DPAR_F64 || dpari_cuda_sixteen(b))) ||
           (b == DPAR_F32 && (a == DPAR_F64 || dpari_cuda_sixteen(a)));
}

/* True if dpar_mem allows the box. */
DPARI_INTERNAL int dpari_cuda_box_fine(const dpar_mem_box *b)
{
    const int32_t through = dpari_cuda_through(b);
    if (dpar_type_bytes(b->to_type) == 0 || dpar_type_bytes(b->from_type) == 0 || b->dims < 0 ||
        b->dims > DPAR_MEM_DIMS || !dpari_cuda_meets(b->to_type, b->from_type) ||
        !dpari_cuda_meets(b->from_type, through) || !dpari_cuda_meets(through, b->to_type) ||
        (b->op != DPAR_COPY && b->op != DPAR_SUM && b->op != DPAR_MAX && b->op != DPAR_MIN) ||
        ((b->op != DPAR_COPY || b->negate) && !dpari_cuda_can_reduce(b->to_type))) {
        return 0;
    }
    return dpari_cuda_box_empty(b) || (b->to != NULL && b->from != NULL);
}

/* ==== cuda/box_overlap.c ==== */

/* Finds out whether two sides of boxes have a byte in common. The difference of their addresses
 * must then be a sum of multiples of their steps. A bounded search over these sums is exact for
 * boxes of one array, and assumes an overlap where it would take too long. ../halo/halo_overlap.c
 * does the same for the arrays of a plan. */

DPARI_INTERNAL int dpari_cuda_box_empty(const dpar_mem_box *b)
{
    int32_t d;
    int empty = 0;
    for (d = 0; d < b->dims; d++) {
        empty |= b->extent[d] <= 0;
    }
    return empty;
}

DPARI_INTERNAL int dpari_cuda_side_of(const dpar_mem_box *b, int of_to, dpari_cuda_side *s)
{
    const int64_t width = dpari_cuda_width(of_to ? b->to_type : b->from_type);
    int32_t d, k, differ = 1;
    memset(s, 0, sizeof *s);
    s->base = s->end = of_to ? (uintptr_t)b->to : (uintptr_t)b->from;
    s->width = (int32_t)width;
    for (d = 0; d < b->dims; d++) {
        int64_t step = (of_to ? b->to_stride[d] : b->from_stride[d]) * width;
        const int64_t more = (b->extent[d] - 1) * step;
        if (more == 0) {
            continue;
        }
        if (more < 0) {
            s->base -= (uintptr_t)-more;
            step = -step;
        } else {
            s->end += (uintptr_t)more;
        }
        for (k = s->dims++; k > 0 && s->step[k - 1] > step; k--) {
            s->step[k] = s->step[k - 1];
            s->extent[k] = s->extent[k - 1];
        }
        s->step[k] = step;
        s->extent[k] = b->extent[d];
        differ = differ && (k == 0 || s->step[k - 1] != step);
    }
    s->end += (uintptr_t)width;
    return differ;
}

/* A search for integers x_d with low_d <= x_d <= high_d and difference = sum over d of x_d step_d.
 * Steps are descending. `tries` bounds the search; when no tries are left, a solution is assumed to
 * exist. */
struct dpari_cuda_lattice {
    int64_t step[DPAR_MEM_DIMS], low[DPAR_MEM_DIMS], high[DPAR_MEM_DIMS];
    int32_t dims, tries;
};

static int dpari_cuda_solves(dpari_cuda_lattice *l, int32_t d, int64_t difference)
{
    int64_t below = 0, above = 0, x, first, last;
    int32_t k;
    if (d == l->dims) {
        return difference == 0;
    }
    for (k = d + 1; k < l->dims; k++) { /* the range that the shorter steps can contribute */
        below += l->low[k] * l->step[k];
        above += l->high[k] * l->step[k];
    }
    first = difference - above;
    last = difference - below;
    first = first >= 0 ? (first + l->step[d] - 1) / l->step[d] : -(-first / l->step[d]);
    last = last >= 0 ? last / l->step[d] : -((-last + l->step[d] - 1) / l->step[d]);
    first = first < l->low[d] ? l->low[d] : first;
    last = last > l->high[d] ? l->high[d] : last;
    for (x = first; x <= last; x++) {
        if (l->tries-- <= 0 || dpari_cuda_solves(l, d + 1, difference - x * l->step[d])) {
            return 1;
        }
    }
    return 0;
}

/* Adds the steps and lengths of both sides to the lattice. Returns 0 if there are too many
 * different steps. */
static int dpari_cuda_lay(const dpari_cuda_side *a, const dpari_cuda_side *b, dpari_cuda_lattice *l)
{
    int32_t i = a->dims - 1, k = b->dims - 1;
    while (i >= 0 || k >= 0) {
        const int from_a = k < 0 || (i >= 0 && a->step[i] > b->step[k]);
        const int64_t step = from_a ? a->step[i] : b->step[k];
        const int64_t far_end = from_a ? a->extent[i--] - 1 : b->extent[k--] - 1;
        if (l->dims == 0 || l->step[l->dims - 1] != step) {
            if (l->dims == DPAR_MEM_DIMS) {
                return 0;
            }
            l->step[l->dims++] = step;
        }
        l->high[l->dims - 1] += from_a ? far_end : 0;
        l->low[l->dims - 1] -= from_a ? 0 : far_end;
    }
    return 1;
}

/* True if a side of a and a side of b have a byte in common. The result is exact for boxes of one
 * array, and true in cases that are too complicated. */
static int dpari_cuda_touch(const dpar_mem_box *a, int a_to, const dpar_mem_box *b, int b_to)
{
    dpari_cuda_side first, second;
    dpari_cuda_lattice l;
    (void)dpari_cuda_side_of(a, a_to, &first);
    (void)dpari_cuda_side_of(b, b_to, &second);
    if (first.base >= second.end || second.base >= first.end) {
        return 0;
    }
    memset(&l, 0, sizeof l);
    l.tries = 64;
    if (first.width != second.width || !dpari_cuda_lay(&first, &second, &l) ||
        (int64_t)(second.base - first.base) % first.width != 0) {
        return 1;
    }
    return dpari_cuda_solves(&l, 0, (int64_t)(second.base - first.base));
}

DPARI_INTERNAL int dpari_cuda_follows(const dpar_mem_box *a, const dpar_mem_box *b)
{
    if (dpari_cuda_box_empty(a) || dpari_cuda_box_empty(b)) {
        return 0;
    }
    if (a->op == DPAR_COPY && b->op == DPAR_COPY) {
        return 0; /* dpar_mem.move requires that no copy writes what another box reads or writes */
    }
    return dpari_cuda_touch(a, 1, b, 1) || dpari_cuda_touch(a, 1, b, 0) ||
           dpari_cuda_touch(a, 0, b, 1) || ((a->clear || b->clear) && dpari_cuda_touch(a, 0, b, 0));
}

/* ==== cuda/kept_moves.c ==== */

/* Finds and keeps launches of moves. A kept move is found by comparing all boxes and the limits of
 * the device that the launch depends on. The last DPARI_CUDA_KNOWN moves of two or more boxes that
 * took a single launch are kept, and the oldest is overwritten. */

static int dpari_cuda_box_same(const dpar_mem_box *a, const dpar_mem_box *b)
{
    const size_t bytes = (size_t)a->dims * sizeof a->extent[0];
    return a->to == b->to && a->from == b->from && a->to_type == b->to_type &&
           a->from_type == b->from_type && a->round_type == b->round_type && a->op == b->op &&
           a->negate == b->negate && a->clear == b->clear && a->dims == b->dims &&
           memcmp(a->extent, b->extent, bytes) == 0 &&
           memcmp(a->to_stride, b->to_stride, bytes) == 0 &&
           memcmp(a->from_stride, b->from_stride, bytes) == 0;
}

DPARI_INTERNAL const dpari_cuda_known *dpari_cuda_known_of(const dpar_cuda *gpu,
                                                           const dpar_mem_box *box, int32_t n)
{
    const dpari_cuda_memory *memory = (const dpari_cuda_memory *)gpu->known;
    int32_t i, k;
    for (k = 0; n > 1 && k < DPARI_CUDA_KNOWN; k++) {
        const dpari_cuda_known *one = &memory->known[k];
        if (one->n != n || one->units != gpu->multiprocessors || one->threads != gpu->threads ||
            one->blocks != gpu->max_blocks || one->most != gpu->arguments) {
            continue;
        }
        for (i = 0; i < n && dpari_cuda_box_same(&one->box[i], &box[i]); i++) {
        }
        if (i == n) {
            return one;
        }
    }
    return NULL;
}

DPARI_INTERNAL void dpari_cuda_keep(dpar_cuda *gpu, int32_t n)
{
    dpari_cuda_memory *memory = (dpari_cuda_memory *)gpu->known;
    if (n > 1 && n <= DPARI_CUDA_WINDOW) {
        memory->now = &memory->known[memory->next];
        memory->next = (memory->next + 1) % DPARI_CUDA_KNOWN;
        memory->now->n = memory->now->launches = 0;
    }
}

DPARI_INTERNAL void dpari_cuda_kept(dpar_cuda *gpu, const dpar_mem_box *box, int32_t n,
                                    dpar_status st)
{
    dpari_cuda_memory *memory = (dpari_cuda_memory *)gpu->known;
    dpari_cuda_known *k = memory->now;
    if (k != NULL && k->launches == 1 && st == DPAR_OK) {
        k->n = n;
        k->units = gpu->multiprocessors;
        k->threads = gpu->threads;
        k->blocks = gpu->max_blocks;
        k->most = gpu->arguments;
        memcpy(k->box, box, (size_t)n * sizeof box[0]);
    }
    memory->now = NULL;
}

/* ==== cuda/move_boxes.c ==== */

/* Moves boxes of which none waits for another. Boxes are prepared (box_prepare.c) and collected
 * until the arguments of a launch are full. A launch uses the smallest type of arguments that holds
 * its pieces, fewer elements per thread if there is little work, and a kernel that was compiled for
 * the types if all boxes have the same. */

/* Returns the kernel that is compiled for these types and this operation if all boxes have them,
 * otherwise `other`. */
template <int TO, int FROM, int OP>
static void (*dpari_cuda_move_formed(const dpari_cuda_boxes_small *b,
                                     void (*other)(const dpari_cuda_boxes_small)))(
    const dpari_cuda_boxes_small)
{
    const uint8_t kind = OP == DPAR_COPY ? DPARI_CUDA_CAST : DPARI_CUDA_MEET;
    for (int32_t k = 0; k < b->n; k++) {
        const dpari_cuda_box_slim *p = &b->piece[k];
        if (p->kind != kind || p->to_type != TO || p->from_type != FROM || p->op != OP) {
            return other;
        }
    }
    return dpari_cuda_move_form_kernel<dpari_cuda_boxes_small, TO, FROM, OP>;
}

template <typename Batch, int PER> static dpar_status dpari_cuda_move_now(dpar_cuda *gpu, Batch *b)
{
    int32_t k, all = 0;
    void (*kernel)(const Batch) = dpari_cuda_move_kernel<Batch, PER, 0>;
    for (k = 0; k < b->n; k++) {
        all |= b->piece[k].kind != DPARI_CUDA_RAW;
    }
    b->first[b->n] = dpari_cuda_chunks(b->piece, b->n, PER * DPARI_CUDA_THREADS, b->first);
    if (all) {
        kernel = dpari_cuda_move_kernel<Batch, PER, 1>;
    }
    if constexpr (PER > 1 && (int)Batch::ROOM == (int)dpari_cuda_boxes_small::ROOM) {
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F64, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F64, DPAR_F32, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_BF16, DPAR_F32, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_BF16, DPAR_COPY>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F32, DPAR_SUM>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F64, DPAR_F64, DPAR_SUM>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F32, DPAR_MAX>(b, kernel);
        kernel = dpari_cuda_move_formed<DPAR_F32, DPAR_F32, DPAR_MIN>(b, kernel);
    }
    return dpari_cuda_move_launch(gpu, kernel, *b, dpari_cuda_each(gpu, b->first[b->n]));
}

template <typename Batch, int PER>
static dpar_status dpari_cuda_move_less(dpar_cuda *gpu, const dpari_cuda_boxes_large *b)
{
    Batch s;
    dpari_cuda_shrink(&s, b);
    return dpari_cuda_move_now<Batch, PER>(gpu, &s);
}

DPARI_INTERNAL dpar_status dpari_cuda_move_flush(dpar_cuda *gpu, dpari_cuda_moves *b)
{
    const int little = dpari_cuda_little(gpu, &b->slim);
    dpar_status st = DPAR_OK;
    if (b->slim.n > (int32_t)dpari_cuda_boxes_small::ROOM) {
        st = dpari_cuda_move_now<dpari_cuda_boxes_large, 4>(gpu, &b->slim);
    } else if (b->slim.n > 0 && !little) {
        st = dpari_cuda_move_less<dpari_cuda_boxes_small, 4>(gpu, &b->slim);
    } else if (b->slim.n > (int32_t)dpari_cuda_boxes_tiny::ROOM) {
        st = dpari_cuda_move_less<dpari_cuda_boxes_small, 1>(gpu, &b->slim);
    } else if (b->slim.n > 0) {
        st = dpari_cuda_move_less<dpari_cuda_boxes_tiny, 1>(gpu, &b->slim);
    }
    if (b->wide.n > 0 && st == DPAR_OK) {
        st = dpari_cuda_move_now<dpari_cuda_boxes_wide, 4>(gpu, &b->wide);
    }
    b->slim.n = b->wide.n = 0;
    return st;
}

static void dpari_cuda_slim(const dpari_cuda_box *p, dpari_cuda_box_slim *s)
{
    int32_t d;
    memset(s, 0, sizeof *s);
    s->to = p->to;
    s->from = p->from;
    for (d = 0; d < p->dims; d++) {
        s->to_step[d] = p->to_step[d];
        s->from_step[d] = p->from_step[d];
        s->extent[d] = p->extent[d];
        s->magic[d] = p->magic[d];
        s->shift[d] = p->shift[d];
    }
    s->units = p->units;
    s->dims = p->dims;
    s->kind = p->kind;
    s->width = p->width;
    s->to_type = p->to_type;
    s->from_type = p->from_type;
    s->through = p->through;
    s->op = p->op;
    s->negate = p->negate;
    s->clear = p->clear;
}

DPARI_INTERNAL dpar_status dpari_cuda_move_one(dpar_cuda *gpu, const dpar_mem_box *box,
                                               dpari_cuda_moves *b)
{
    dpari_cuda_cut cut;
    dpari_cuda_box piece;
    const int made = dpari_cuda_prepare(box, &cut);
    dpar_status st = DPAR_OK;
    int64_t i;
    if (made < 0) { /* over 2^30 units before the last dim: one launch for each index of the longest
                       dim */
        dpar_mem_box part = *box;
        const int64_t tw = dpari_cuda_width(box->to_type), fw = dpari_cuda_width(box->from_type);
        int32_t d = 0, k;
        for (k = 1; k < box->dims; k++) {
            d = box->extent[k] > box->extent[d] ? k : d;
        }
        part.extent[d] = box->extent[d] / 2;
        st = dpari_cuda_move_one(gpu, &part, b);
        part.to = (unsigned char *)box->to + part.extent[d] * box->to_stride[d] * tw;
        part.from = (unsigned char *)box->from + part.extent[d] * box->from_stride[d] * fw;
        part.extent[d] = box->extent[d] - part.extent[d];
        return st == DPAR_OK ? dpari_cuda_move_one(gpu, &part, b) : st;
    }
    for (i = 0; made > 0 && i < cut.pieces && st == DPAR_OK; i++) {
        if (b->slim.n == dpari_cuda_most<dpari_cuda_boxes_small, dpari_cuda_boxes_large>(gpu) ||
            b->wide.n == dpari_cuda_boxes_wide::ROOM) {
            st = dpari_cuda_move_flush(gpu, b);
        }
        dpari_cuda_piece(&cut, i, &piece);
        if (piece.dims > DPARI_CUDA_SLIM) {
            b->wide.piece[b->wide.n++] = piece;
        } else {
            dpari_cuda_slim(&piece, &b->slim.piece[b->slim.n++]);
        }
    }
    return st;
}

/* ==== cuda/box_frames.c ==== */

/* Finds out how boxes that add to the same elements meet.
 *
 * The sides of all boxes are sorted by address, and those whose bytes overlap form a frame. From
 * the different steps of its sides, the dims of an array are inferred, and each side is expressed
 * as a box of indices in it. Whether two boxes meet then follows from comparing indices. A frame is
 * cut at the bounds of all its targets, and for each interval of a dim a set of bits tells which
 * boxes contain it; the boxes of a cell are the intersection of the sets of its intervals. Called
 * by move.c and joint_moves.c. */

/* Collects the different steps of all sides of a frame, the shortest first. Returns 0 if there are
 * too many. */
static int dpari_cuda_frame_steps(const dpari_cuda_scene *z, dpari_cuda_frame *f)
{
    int32_t i, d, k, m, type = -1;
    f->dims = 0;
    for (i = 0; i < f->n; i++) {
        const int16_t at = z->order[f->first + i];
        const dpari_cuda_side *s = &z->side[at];
        if (s->width != z->side[z->order[f->first]].width ||
            (at % 2 == 0 && type >= 0 && type != z->box[at / 2].to_type)) {
            return 0;
        }
        type = at % 2 == 0 ? z->box[at / 2].to_type : type;
        for (d = 0; d < s->dims; d++) {
            for (k = 0; k < f->dims && f->step[k] < s->step[d]; k++) {
            }
            if (k < f->dims && f->step[k] == s->step[d]) {
                continue;
            }
            if (f->dims == DPAR_MEM_DIMS) {
                return 0;
            }
            for (m = f->dims++; m > k; m--) {
                f->step[m] = f->step[m - 1];
            }
            f->step[k] = s->step[d];
        }
    }
    return 1;
}

/* Returns the bytes that a side spans within a step of `step` bytes. */
static int64_t dpari_cuda_side_within(const dpari_cuda_side *s, int64_t step)
{
    int64_t bytes = s->width;
    int32_t d;
    for (d = 0; d < s->dims && s->step[d] < step; d++) {
        bytes += (s->extent[d] - 1) * s->step[d];
    }
    return bytes;
}

/* Returns where rows of `step` bytes have to begin so that no side extends beyond the end of a row,
 * which is where some side begins. -1 if there is no such place. */
static int64_t dpari_cuda_frame_start(const dpari_cuda_scene *z, const dpari_cuda_frame *f,
                                      const int64_t *rest, int64_t step)
{
    int32_t i, k;
    for (i = 0; i < f->n; i++) {
        const int64_t start = rest[i] % step;
        for (k = 0; k < f->n; k++) {
            const dpari_cuda_side *s = &z->side[z->order[f->first + k]];
            if ((rest[k] - start + step) % step + dpari_cuda_side_within(s, step) > step) {
                break;
            }
        }
        if (k == f->n) {
            return start;
        }
    }
    return -1;
}

/* Expresses the sides of a frame as boxes of indices. Returns 0 if they are not boxes of one array,
 * or are too large. */
static int dpari_cuda_frame_of(dpari_cuda_scene *z, dpari_cuda_frame *f)
{
    int64_t rest[2 * DPARI_CUDA_WINDOW], most = 0;
    int64_t at[DPAR_MEM_DIMS];
    int32_t i, d, k, left = 0;
    if (!dpari_cuda_frame_steps(z, f)) {
        return 0;
    }
    f->base = z->side[z->order[f->first]].base;
    for (i = 0; i < f->n; i++) {
        rest[i] = (int64_t)(z->side[z->order[f->first + i]].base - f->base);
    }
    for (d = f->dims - 1; d >= 0; d--) { /* moves index 0 down until no side crosses the end of a
                                            row */
        const int64_t start = dpari_cuda_frame_start(z, f, rest, f->step[d]);
        const int64_t shift = start > 0 ? f->step[d] - start : 0;
        if (start < 0) {
            return 0;
        }
        f->base -= (uintptr_t)shift;
        for (i = 0; i < f->n; i++) {
            rest[i] = (rest[i] + shift) % f->step[d];
        }
    }
    for (i = 0; i < f->n; i++) {
        left |= rest[i] != 0;
    }
    if (left && (f->dims == DPAR_MEM_DIMS || f->step[0] % z->side[z->order[f->first]].width != 0)) {
        return 0;
    }
    if (left || f->dims == 0) { /* the sides are interleaved columns, or single elements */
        memmove(f->step + 1, f->step, (size_t)f->dims * sizeof f->step[0]);
        f->step[0] = z->side[z->order[f->first]].width;
        f->dims++;
    }
    for (i = 0; i < f->n; i++) {
        dpari_cuda_side *s = &z->side[z->order[f->first + i]];
        int64_t place = (int64_t)(s->base - f->base), hi[DPAR_MEM_DIMS], units = 1;
        for (d = f->dims - 1; d >= 0; d--) {
            at[d] = place / f->step[d];
            place %= f->step[d];
            hi[d] = at[d] + 1;
            for (k = 0; k < s->dims; k++) {
                hi[d] += s->step[k] == f->step[d] ? s->extent[k] - 1 : 0;
            }
            units *= hi[d] - at[d];
            most = hi[d] > most ? hi[d] : most;
            most = units > most ? units : most; /* both stay below 2^30 */
            units = most < DPARI_CUDA_UNITS ? units : 1;
            if (place + dpari_cuda_side_within(s, f->step[d]) > f->step[d]) {
                return 0; /* an index would overflow into the next dim */
            }
        }
        if (place != 0 || most >= DPARI_CUDA_UNITS) {
            return 0;
        }
        memcpy(s->lo, at, sizeof s->lo);
        memcpy(s->hi, hi, sizeof s->hi);
    }
    return 1;
}

static int dpari_cuda_sides_meet(const dpari_cuda_side *a, const dpari_cuda_side *b, int32_t dims)
{
    int32_t d;
    for (d = 0; d < dims && a->lo[d] < b->hi[d] && b->lo[d] < a->hi[d]; d++) {
    }
    return d == dims;
}

/* True if no side of the frame reads data that another box writes. Sets z->meets if several boxes
 * have the same target elements. */
static int dpari_cuda_frame_apart(dpari_cuda_scene *z, const dpari_cuda_frame *f)
{
    int32_t i, k;
    for (i = 0; i < f->n; i++) {
        for (k = 0; k < i; k++) {
            const int16_t a = z->order[f->first + i], b = z->order[f->first + k];
            const int reads = a % 2 && b % 2 && !z->box[a / 2].clear && !z->box[b / 2].clear;
            if (reads || (a % 2 == 0 && b % 2 == 0 && z->meets)) {
                continue;
            }
            if (dpari_cuda_sides_meet(&z->side[a], &z->side[b], f->dims)) {
                if (a % 2 || b % 2) {
                    return 0;
                }
                z->meets = 1;
            }
        }
    }
    return 1;
}

DPARI_INTERNAL int dpari_cuda_scene_of(const dpar_mem_box *box, int32_t n, dpari_cuda_scene *z)
{
    int32_t i, k, gap, sides = 0;
    z->box = box;
    z->n = n;
    z->frames = z->dims = z->meets = 0;
    for (i = 0; i < 2 * n; i++) {
        const dpar_mem_box *b = &box[i / 2];
        if (dpari_cuda_box_empty(b)) {
            continue;
        }
        if (!dpari_cuda_side_of(b, i % 2 == 0, &z->side[i])) {
            return 0;
        }
        z->order[sides++] = (int16_t)i;
    }
    for (gap = sides / 2; gap > 0; gap /= 2) { /* Shell sort */
        for (i = gap; i < sides; i++) {
            const int16_t one = z->order[i];
            for (k = i; k >= gap && z->side[z->order[k - gap]].base > z->side[one].base; k -= gap) {
                z->order[k] = z->order[k - gap];
            }
            z->order[k] = one;
        }
    }
    for (i = 0; i < sides; i = k) {
        uintptr_t end = z->side[z->order[i]].end;
        int32_t writes = 0, to = 0;
        dpari_cuda_frame f;
        for (k = i; k < sides && (k == i || z->side[z->order[k]].base < end); k++) {
            const dpari_cuda_side *s = &z->side[z->order[k]];
            end = s->end > end ? s->end : end;
            to |= z->order[k] % 2 == 0;
            writes |= z->box[z->order[k] / 2].clear != 0;
        }
        if (!to && (!writes || k == i + 1)) {
            continue;
        }
        f.first = i;
        f.n = k - i;
        if (!dpari_cuda_frame_of(z, &f) || !dpari_cuda_frame_apart(z, &f)) {
            return 0;
        }
        if (to) {
            z->frame[z->frames++] = f;
            z->dims = f.dims > z->dims ? f.dims : z->dims;
        }
    }
    return 1;
}

static int dpari_cuda_cells_cut(dpari_cuda_cells *c, int32_t d, int64_t at)
{
    int32_t k = c->cuts[d];
    while (k > 0 && c->cut[d][k - 1] > at) {
        k--;
    }
    if (k > 0 && c->cut[d][k - 1] == at) {
        return 1;
    }
    if (c->cuts[d] == DPARI_CUDA_CUTS) {
        return 0;
    }
    memmove(&c->cut[d][k + 1], &c->cut[d][k], (size_t)(c->cuts[d]++ - k) * sizeof c->cut[d][0]);
    c->cut[d][k] = at;
    return 1;
}

DPARI_INTERNAL int dpari_cuda_cells_of(const dpari_cuda_scene *z, const dpari_cuda_frame *f,
                                       dpari_cuda_cells *c)
{
    int64_t cells = 1;
    int32_t i, k, d;
    c->n = 0;
    memset(c->cuts, 0, sizeof c->cuts);
    for (i = 0; i < f->n; i++) {
        const int16_t side = z->order[f->first + i];
        for (k = side % 2 == 0 ? c->n++ : -1; k > 0 && c->to[k - 1] > side / 2; k--) {
            c->to[k] = c->to[k - 1];
        }
        if (k >= 0) {
            c->to[k] = (int16_t)(side / 2);
        }
    }
    for (d = 0; d < f->dims; d++) {
        for (i = 0; i < c->n; i++) {
            const dpari_cuda_side *s = &z->side[2 * c->to[i]];
            if (!dpari_cuda_cells_cut(c, d, s->lo[d]) || !dpari_cuda_cells_cut(c, d, s->hi[d])) {
                return 0;
            }
        }
        cells *= c->cuts[d] - 1;
        if (cells > DPARI_CUDA_CELLS) {
            return 0;
        }
        memset(c->in[d], 0, (size_t)c->cuts[d] * sizeof c->in[d][0]);
        for (i = 0; i < c->n; i++) {
            const dpari_cuda_side *s = &z->side[2 * c->to[i]];
            for (k = 0; k + 1 < c->cuts[d]; k++) {
                const int in = s->lo[d] <= c->cut[d][k] && c->cut[d][k] < s->hi[d];
                c->in[d][k][i / 64] |= (uint64_t)in << (i % 64);
            }
        }
    }
    return 1;
}

/* ==== cuda/joint_moves.c ==== */

/* Moves boxes that meet in one launch.
 *
 * Each cell of a frame (box_frames.c), joined with its neighbours as long as they are in the same
 * boxes, is a piece. The arguments of a launch list the pieces and the boxes from which each gets
 * values, in the order of the boxes. A thread reads its elements, adds the values of these boxes in
 * that order, and writes them once, so that the result has the same bits as moving the boxes one
 * after the other. */

/* A box from which threads add values to a piece. */
template <int DIMS> struct dpari_cuda_giver {
    unsigned char *from; /* the address that corresponds to index 0 of the frame */
    int64_t step[DIMS];
    uint8_t from_type, through, op, negate, clear, room[3];
};

template <int DIMS> struct dpari_cuda_taker {
    unsigned char *to;
    uint32_t lo[DIMS], extent[DIMS], magic[DIMS];
    uint32_t units;
    uint16_t list, boxes; /* where its boxes begin in the list, and how many there are */
    uint8_t shift[DIMS];
    uint8_t frame, to_type;
    uint8_t near[DPARI_CUDA_NEAR]; /* a copy of the first boxes */
};

/* The arguments of a launch of joint boxes. BOXES is the most boxes of a piece, which may be in all
 * that are analysed together. */
template <int DIMS_, int PIECES, int BOXES, int LIST, int FRAMES> struct dpari_cuda_joint {
    enum { DIMS = DIMS_, ROOM = PIECES, GIVERS = BOXES, LISTS = LIST, ARRAYS = FRAMES };
    int32_t n, givers, list, frames;
    int64_t first[PIECES + 1]; /* chunks */
    int64_t step[FRAMES][DIMS_];
    dpari_cuda_taker<DIMS_> piece[PIECES];
    dpari_cuda_giver<DIMS_> giver[BOXES];
    uint16_t of[LIST];
};
typedef dpari_cuda_joint<DPARI_CUDA_SLIM, 26, 26, 104, 2> dpari_cuda_joint_small;
typedef dpari_cuda_joint<DPARI_CUDA_SLIM, 216, DPARI_CUDA_WINDOW, 1000, 16> dpari_cuda_joint_large;
typedef dpari_cuda_joint<DPAR_MEM_DIMS, 96, DPARI_CUDA_WINDOW, 700, 16> dpari_cuda_joint_wide;
static_assert(sizeof(dpari_cuda_joint_small) <= 4096 &&
                  sizeof(dpari_cuda_joint_large) <= DPARI_CUDA_ARGUMENTS &&
                  sizeof(dpari_cuda_joint_wide) <= DPARI_CUDA_ARGUMENTS,
              "a launch");

/* Reads the values that giver g adds to PER elements, which have index `at` in the frame. */
template <int PER, int DIMS>
__device__ static inline void dpari_cuda_joint_read(const dpari_cuda_giver<DIMS> &g,
                                                    const uint32_t (*at)[DIMS], const int *in,
                                                    unsigned char **from, uint64_t *y)
{
    const int32_t wide = dpari_cuda_width(g.from_type);
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        from[j] = g.from;
        DPARI_CUDA_UNROLL
        for (int d = 0; d < DIMS; d++) {
            from[j] += (int64_t)at[j][d] * g.step[d];
        }
        y[j] = in[j] ? dpari_cuda_read(from[j], wide) : 0;
    }
}

/* Adds these values to x. */
template <int PER, int DIMS>
__device__ static inline void
dpari_cuda_joint_meet(const dpari_cuda_giver<DIMS> &g, int32_t to_type, const int *in,
                      unsigned char *const *from, const uint64_t *y, uint64_t *x)
{
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        uint64_t v = dpari_cuda_convert(y[j], g.from_type, g.through);
        v = dpari_cuda_convert(v, g.through, to_type);
        v = g.negate ? dpari_cuda_negate(v, to_type) : v;
        x[j] = g.op == DPAR_COPY ? v : dpari_cuda_meet_bits(x[j], v, to_type, g.op);
        if (in[j] && g.clear) {
            dpari_cuda_write(from[j], dpari_cuda_width(g.from_type), 0);
        }
    }
}

/* Processes PER elements of piece k. With one element the values of the first boxes are loaded
 * together. With more elements, boxes are loaded one after the other, since each has several
 * loads. */
template <int PER, typename Joint>
__device__ static inline void dpari_cuda_joint_some(const Joint &b, int32_t k, uint32_t i)
{
    enum { DIMS = Joint::DIMS, NEAR = PER == 1 ? (int)DPARI_CUDA_NEAR : 1 };
    const auto &p = b.piece[k];
    const int32_t width = dpari_cuda_width(p.to_type);
    uint32_t at[PER][DIMS];
    unsigned char *to[PER], *from[NEAR][PER];
    uint64_t x[PER], y[NEAR][PER];
    int in[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        uint32_t u = i + (uint32_t)j * DPARI_CUDA_THREADS;
        in[j] = u < p.units;
        to[j] = p.to;
        x[j] = 0;
        DPARI_CUDA_UNROLL
        for (int d = 0; d < DIMS; d++) {
            const uint32_t q = dpari_cuda_over(u, p.magic[d], p.shift[d]);
            const uint32_t r = u - q * p.extent[d];
            to[j] += (int64_t)r * b.step[p.frame][d];
            at[j][d] = p.lo[d] + r;
            u = q;
        }
        if (in[j]) {
            x[j] = dpari_cuda_read(to[j], width);
        }
    }
    DPARI_CUDA_UNROLL
    for (int m = 0; m < NEAR; m++) {
        if (m < p.boxes) {
            dpari_cuda_joint_read<PER>(b.giver[p.near[m]], at, in, from[m], y[m]);
        }
    }
    DPARI_CUDA_UNROLL
    for (int m = 0; m < NEAR; m++) {
        if (m < p.boxes) {
            dpari_cuda_joint_meet<PER>(b.giver[p.near[m]], p.to_type, in, from[m], y[m], x);
        }
    }
    for (int32_t m = NEAR; m < p.boxes; m++) {
        const auto &g = b.giver[b.of[p.list + m]];
        dpari_cuda_joint_read<PER>(g, at, in, from[0], y[0]);
        dpari_cuda_joint_meet<PER>(g, p.to_type, in, from[0], y[0], x);
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        if (in[j]) {
            dpari_cuda_write(to[j], width, x[j]);
        }
    }
}

template <typename Joint, int PER>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 3)
    dpari_cuda_joint_kernel(DPARI_CUDA_ARGS Joint b)
{
    int64_t c = blockIdx.x; /* there are no more blocks than chunks */
    do {
        const int32_t k = dpari_cuda_find(b, c);
        const uint32_t chunk = (uint32_t)(c - b.first[k]) * (PER * DPARI_CUDA_THREADS);
        dpari_cuda_joint_some<PER>(b, k, chunk + threadIdx.x);
        c += gridDim.x;
    } while (c < b.first[b.n]);
}

/* Collects pieces for launches. */
template <typename Joint> struct dpari_cuda_joining {
    dpar_cuda *gpu;
    const dpari_cuda_scene *scene;
    const dpari_cuda_frame *frame;
    dpari_cuda_cells cells;
    Joint b;
    int32_t room, givers, lists, arrays; /* the most of each that a launch may have */
    int16_t giver[DPARI_CUDA_WINDOW];    /* the number of each box among the givers of `b`, or -1 */
    int32_t frame_at;                    /* the same for the frame */
    int64_t lo[DPAR_MEM_DIMS], hi[DPAR_MEM_DIMS];
};

template <int PER, typename Joint> static dpar_status dpari_cuda_joint_by(dpar_cuda *gpu, Joint *b)
{
    b->first[b->n] = dpari_cuda_chunks(b->piece, b->n, PER * DPARI_CUDA_THREADS, b->first);
    return dpari_cuda_move_launch(gpu, dpari_cuda_joint_kernel<Joint, PER>, *b,
                                  dpari_cuda_each(gpu, b->first[b->n]));
}

/* Launches the collected pieces. For a few boxes, it chooses how many elements a thread has by the
 * amount of work. Many boxes are always much work, and boxes of many dims are rare. */
template <typename Joint> static dpar_status dpari_cuda_joint_now(dpar_cuda *gpu, Joint *b)
{
    if constexpr ((int)Joint::ROOM > (int)dpari_cuda_joint_small::ROOM) {
        return dpari_cuda_joint_by < (int)Joint::DIMS == (int)DPARI_CUDA_SLIM ? 2 : 1 > (gpu, b);
    } else {
        return dpari_cuda_little(gpu, b) ? dpari_cuda_joint_by<1>(gpu, b)
                                         : dpari_cuda_joint_by<2>(gpu, b);
    }
}

template <typename To, typename Joint> static void dpari_cuda_joint_shrink(To *to, const Joint *b)
{
    dpari_cuda_shrink(to, b);
    memcpy(to->step, b->step, (size_t)b->frames * sizeof b->step[0]);
    memcpy(to->giver, b->giver, (size_t)b->givers * sizeof b->giver[0]);
    memcpy(to->of, b->of, (size_t)b->list * sizeof b->of[0]);
}

template <typename Joint> static dpar_status dpari_cuda_joint_flush(dpari_cuda_joining<Joint> *j)
{
    typedef dpari_cuda_joint_small Small;
    Joint *b = &j->b;
    dpar_status st = DPAR_OK;
    if constexpr ((int)Joint::DIMS == (int)Small::DIMS) {
        if (b->n > 0 && b->n <= (int32_t)Small::ROOM && b->givers <= (int32_t)Small::GIVERS &&
            b->list <= (int32_t)Small::LISTS && b->frames <= (int32_t)Small::ARRAYS) {
            Small s;
            dpari_cuda_joint_shrink(&s, b);
            st = dpari_cuda_joint_now(j->gpu, &s);
            b->n = 0;
        }
    }
    st = b->n > 0 ? dpari_cuda_joint_now(j->gpu, b) : st;
    b->n = b->givers = b->list = b->frames = 0;
    memset(j->giver, -1, sizeof j->giver);
    j->frame_at = -1;
    return st;
}

/* Adds box k as a giver, with the address in its `from` that corresponds to index 0 of the
 * frame. */
template <typename Joint>
static int16_t dpari_cuda_joint_giver(dpari_cuda_joining<Joint> *j, int32_t k)
{
    const dpar_mem_box *box = &j->scene->box[k];
    const dpari_cuda_side *side = &j->scene->side[2 * k];
    const int64_t width = dpari_cuda_width(box->to_type), wide = dpari_cuda_width(box->from_type);
    unsigned char *from = (unsigned char *)box->from;
    int32_t d, e;
    if (j->giver[k] >= 0) {
        return j->giver[k];
    }
    auto &g = j->b.giver[j->b.givers];
    memset(&g, 0, sizeof g);
    for (d = 0; d < box->dims; d++) {
        const int64_t to_step = box->to_stride[d] * width, step = box->from_stride[d] * wide;
        for (e = 0; e < j->frame->dims && box->extent[d] > 1; e++) {
            if (j->frame->step[e] == to_step || j->frame->step[e] == -to_step) {
                g.step[e] = to_step > 0 ? step : -step;
                from += to_step > 0 ? 0 : (box->extent[d] - 1) * step;
            }
        }
    }
    for (e = 0; e < j->frame->dims; e++) {
        from = (unsigned char *)((uintptr_t)from - (uintptr_t)(side->lo[e] * g.step[e]));
    }
    g.from = from;
    g.from_type = (uint8_t)box->from_type;
    g.through = (uint8_t)dpari_cuda_through(box);
    g.op = (uint8_t)box->op;
    g.negate = box->negate != 0;
    g.clear = box->clear != 0;
    j->giver[k] = (int16_t)j->b.givers++;
    return j->giver[k];
}

/* Adds the piece from j->lo to j->hi, whose elements are in the boxes `in`. */
template <typename Joint>
static dpar_status dpari_cuda_joint_add(dpari_cuda_joining<Joint> *j, const uint64_t *in)
{
    const dpari_cuda_frame *f = j->frame;
    int64_t units = 1;
    int32_t i, d, boxes = 0;
    dpar_status st = DPAR_OK;
    for (i = 0; i < j->cells.n; i++) {
        boxes += (int32_t)(in[i / 64] >> (i % 64) & 1);
    }
    if (j->b.n == j->room || j->b.givers + boxes > j->givers || j->b.list + boxes > j->lists ||
        (j->frame_at < 0 && j->b.frames == j->arrays)) {
        st = dpari_cuda_joint_flush(j);
    }
    if (j->frame_at < 0) {
        j->frame_at = j->b.frames++;
        memset(j->b.step[j->frame_at], 0, sizeof j->b.step[0]);
        memcpy(j->b.step[j->frame_at], f->step, (size_t)f->dims * sizeof f->step[0]);
    }
    auto &p = j->b.piece[j->b.n++];
    memset(&p, 0, sizeof p);
    p.to = (unsigned char *)f->base;
    for (d = 0; d < (int32_t)Joint::DIMS; d++) {
        const int64_t n = d < f->dims ? j->hi[d] - j->lo[d] : 1;
        p.lo[d] = (uint32_t)(d < f->dims ? j->lo[d] : 0);
        p.extent[d] = (uint32_t)n;
        p.to += d < f->dims ? j->lo[d] * f->step[d] : 0;
        dpari_cuda_magic((uint32_t)n, &p.magic[d], &p.shift[d]);
        units *= n;
    }
    p.units = (uint32_t)units;
    p.frame = (uint8_t)j->frame_at;
    p.list = (uint16_t)j->b.list;
    p.boxes = (uint16_t)boxes;
    for (i = 0; i < j->cells.n; i++) {
        if (in[i / 64] >> (i % 64) & 1) {
            const uint16_t giver = (uint16_t)dpari_cuda_joint_giver(j, j->cells.to[i]);
            const int32_t m = j->b.list - (int32_t)p.list;
            p.to_type = (uint8_t)j->scene->box[j->cells.to[i]].to_type;
            if (m < (int32_t)DPARI_CUDA_NEAR) {
                p.near[m] = (uint8_t)giver;
            }
            j->b.of[j->b.list++] = giver;
        }
    }
    return st;
}

/* Visits all cells within the boxes `in`, from dim d down to 0. */
template <typename Joint>
static dpar_status dpari_cuda_joint_cells(dpari_cuda_joining<Joint> *j, int32_t d,
                                          const uint64_t *in)
{
    const dpari_cuda_cells *c = &j->cells;
    dpar_status st = DPAR_OK;
    int32_t i = 0, k, w;
    while (i + 1 < c->cuts[d] && st == DPAR_OK) {
        uint64_t both[DPARI_CUDA_WORDS], any = 0, differ = 0;
        for (w = 0; w < DPARI_CUDA_WORDS; w++) {
            both[w] = in[w] & c->in[d][i][w];
            any |= both[w];
        }
        for (k = i + 1; k + 1 < c->cuts[d] && differ == 0; k += differ == 0) {
            for (w = 0; w < DPARI_CUDA_WORDS; w++) {
                differ |= both[w] ^ (in[w] & c->in[d][k][w]);
            }
        }
        j->lo[d] = c->cut[d][i];
        j->hi[d] = c->cut[d][k];
        i = k;
        if (any != 0) {
            st = d > 0 ? dpari_cuda_joint_cells(j, d - 1, both) : dpari_cuda_joint_add(j, both);
        }
    }
    return st;
}

template <typename Joint>
static dpar_status dpari_cuda_joint_by_form(dpar_cuda *gpu, const dpari_cuda_scene *z)
{
    dpari_cuda_joining<Joint> j;
    uint64_t all[DPARI_CUDA_WORDS];
    dpar_status st = DPAR_OK;
    int32_t f;
    typedef dpari_cuda_joint_small Small;
    const int small = gpu->arguments < DPARI_CUDA_ARGUMENTS;
    j.gpu = gpu;
    j.scene = z;
    j.room = small ? (int32_t)Small::ROOM : (int32_t)Joint::ROOM;
    j.givers = small ? (int32_t)Small::GIVERS : (int32_t)Joint::GIVERS;
    j.lists = small ? (int32_t)Small::LISTS : (int32_t)Joint::LISTS;
    j.arrays = small ? (int32_t)Small::ARRAYS : (int32_t)Joint::ARRAYS;
    j.b.n = 0;
    memset(all, -1, sizeof all);
    (void)dpari_cuda_joint_flush(&j);
    for (f = 0; f < z->frames && st == DPAR_OK; f++) {
        j.frame = &z->frame[f];
        j.frame_at = -1;
        (void)dpari_cuda_cells_of(z, j.frame, &j.cells);
        st = dpari_cuda_joint_cells(&j, j.frame->dims - 1, all);
    }
    return st == DPAR_OK ? dpari_cuda_joint_flush(&j) : st;
}

DPARI_INTERNAL int dpari_cuda_joint_fits(const dpar_cuda *gpu, const dpari_cuda_scene *z)
{
    return gpu->arguments >= DPARI_CUDA_ARGUMENTS ||
           (z->n <= dpari_cuda_joint_small::GIVERS && z->dims <= DPARI_CUDA_SLIM);
}

DPARI_INTERNAL dpar_status dpari_cuda_move_joint(dpar_cuda *gpu, const dpari_cuda_scene *z)
{
    return z->dims <= (int32_t)DPARI_CUDA_SLIM
               ? dpari_cuda_joint_by_form<dpari_cuda_joint_large>(gpu, z)
               : dpari_cuda_joint_by_form<dpari_cuda_joint_wide>(gpu, z);
}

/* ==== cuda/move.c ==== */

/* Moves boxes: dpar_mem.move. */

/* Moves n <= DPARI_CUDA_WINDOW boxes, some of which may have to wait for earlier ones. The number
 * of launches is that of the boxes in the longest chain of such waits. */
static dpar_status dpari_cuda_move_chain(dpar_cuda *gpu, const dpar_mem_box *boxes, int32_t n,
                                         dpari_cuda_moves *b)
{
    int16_t level[DPARI_CUDA_WINDOW];
    int32_t i, k, now, most = 0;
    dpar_status st = DPAR_OK;
    for (i = 0; i < n; i++) {
        level[i] = 0;
        for (k = 0; k < i; k++) {
            if (level[k] >= level[i] && dpari_cuda_follows(&boxes[k], &boxes[i])) {
                level[i] = (int16_t)(level[k] + 1);
            }
        }
        most = level[i] > most ? level[i] : most;
    }
    for (now = 0; now <= most && st == DPAR_OK; now++) {
        for (i = 0; i < n && st == DPAR_OK; i++) {
            st = level[i] == now ? dpari_cuda_move_one(gpu, &boxes[i], b) : DPAR_OK;
        }
        if (st == DPAR_OK) {
            st = dpari_cuda_move_flush(gpu, b);
        }
    }
    return st;
}

/* Moves n <= DPARI_CUDA_WINDOW boxes, of which some combine values. */
static dpar_status dpari_cuda_move_sums(dpar_cuda *gpu, const dpar_mem_box *boxes, int32_t n,
                                        dpari_cuda_moves *b)
{
    dpari_cuda_scene z;
    dpari_cuda_cells cells;
    dpar_status st = DPAR_OK;
    int32_t i, fine = dpari_cuda_scene_of(boxes, n, &z);
    for (i = 0; fine && z.meets && i < z.frames; i++) {
        fine = dpari_cuda_cells_of(&z, &z.frame[i], &cells);
    }
    fine = fine && (!z.meets || dpari_cuda_joint_fits(gpu, &z));
    if (!fine) {
        return dpari_cuda_move_chain(gpu, boxes, n, b);
    }
    if (z.meets) {
        return dpari_cuda_move_joint(gpu, &z);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_cuda_move_one(gpu, &boxes[i], b);
    }
    return st == DPAR_OK ? dpari_cuda_move_flush(gpu, b) : st;
}

DPARI_INTERNAL dpar_status dpari_cuda_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_moves b;
    dpar_status st = DPAR_OK;
    int32_t i, copies = 1;
    const dpari_cuda_known *known = dpari_cuda_known_of(gpu, boxes, n);
    if (known != NULL) {
        return known->again(gpu, known);
    }
    b.slim.n = b.slim.room = b.wide.n = b.wide.room = 0;
    for (i = 0; i < n; i++) {
        if (!dpari_cuda_box_fine(&boxes[i])) {
            return dpari_cuda_wrong(gpu, "move");
        }
        copies = copies && boxes[i].op == DPAR_COPY;
    }
    dpari_cuda_keep(gpu, n);
    if (copies || n == 1) {
        for (i = 0; i < n && st == DPAR_OK; i++) {
            st = dpari_cuda_move_one(gpu, &boxes[i], &b);
        }
    } else {
        for (i = 0; i < n && st == DPAR_OK; i += DPARI_CUDA_WINDOW) {
            const int32_t some = n - i < DPARI_CUDA_WINDOW ? n - i : DPARI_CUDA_WINDOW;
            st = dpari_cuda_move_sums(gpu, boxes + i, some, &b);
        }
    }
    if (st == DPAR_OK) {
        st = dpari_cuda_move_flush(gpu, &b);
    }
    dpari_cuda_kept(gpu, boxes, n, st);
    return st;
}

/* ==== cuda/spans.c ==== */

/* Collects spans for launches: dpar_mem.span. */

DPARI_INTERNAL int dpari_cuda_span_piece(const dpar_mem_span *s, int stochastic, dpari_cuda_span *p)
{
    const int floats =
        dpari_cuda_is_float(s->to_type) && (s->from == NULL || dpari_cuda_is_float(s->from_type));
    const int same = s->to_type == s->from_type && s->from != NULL && s->scale == 1.0 &&
                     !s->accumulate && !stochastic;
    const int zero = s->from == NULL && s->scale == 0.0 && !s->accumulate;
    int64_t count = s->count;
    int32_t width;
    if (count < 0 || dpar_type_bytes(s->to_type) == 0 || !(floats || same || zero) ||
        (count > 0 && s->to == NULL)) {
        return -1;
    }
    if (count == 0) {
        return 0;
    }
    memset(p, 0, sizeof *p);
    width = dpari_cuda_width(s->to_type);
    p->to = (unsigned char *)s->to;
    p->from = (const unsigned char *)s->from;
    p->to_type = s->to_type;
    p->from_type = s->from == NULL ? s->to_type : s->from_type;
    p->scale = s->scale;
    p->add = s->accumulate != 0;
    p->stochastic = stochastic != 0;
    p->count = count;
    if (same || zero) {
        p->count = count * width;
        p->head = (int64_t)((16 - (uintptr_t)p->to % 16) % 16);
        p->even = s->from == NULL || ((uintptr_t)p->from + (uintptr_t)p->head) % 16 == 0;
        p->units = (p->count + 15) / 16 + 2;
        p->raw = 1;
        return 1;
    }
    p->head = dpari_cuda_head(s->to, width);
    p->units = dpari_cuda_fours(count, p->head);
    p->even = (uint8_t)(s->from == NULL ||
                        dpari_cuda_even(s->from, p->head, dpari_cuda_width(s->from_type)));
    if (width <= 4 && dpari_cuda_width(p->from_type) <= 4) {
        p->raw = s->from != NULL && s->scale == 1.0 && !s->accumulate && !stochastic ? 2 : 3;
    }
    return 1;
}

static dpar_status dpari_cuda_span_flush(dpar_cuda *gpu, dpari_cuda_spans_large *b)
{
    dpar_status st = DPAR_OK;
    if (b->n > dpari_cuda_spans_small::ROOM) {
        st = dpari_cuda_span_now<0>(gpu, b);
    } else if (b->n > 0) {
        dpari_cuda_spans_small s;
        dpari_cuda_shrink(&s, b);
        st = dpari_cuda_span_now<0>(gpu, &s);
    }
    b->n = 0;
    return st;
}

DPARI_INTERNAL dpar_status dpari_cuda_spans(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_spans_large b;
    dpari_cuda_span piece;
    dpar_status st = DPAR_OK;
    int32_t i;
    b.n = 0;
    b.room = 0;
    for (i = 0; i < n; i++) {
        if (dpari_cuda_span_piece(&spans[i], 0, &piece) < 0) {
            return dpari_cuda_wrong(gpu, "span");
        }
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        if (dpari_cuda_span_piece(&spans[i], 0, &piece) > 0) {
            st = b.n == dpari_cuda_most<dpari_cuda_spans_small, dpari_cuda_spans_large>(gpu)
                     ? dpari_cuda_span_flush(gpu, &b)
                     : DPAR_OK;
            b.piece[b.n++] = piece;
        }
    }
    return st == DPAR_OK ? dpari_cuda_span_flush(gpu, &b) : st;
}

/* ==== cuda/reduce.c ==== */

/* Sums and other reductions of parts: dpar_mem.reduce. */

struct dpari_cuda_sum {
    dpar_mem_reduce r;
    int64_t head, units;
    int32_t even; /* 1: parts can be read as vectors */
    int32_t room;
};

/* Finishes the sum of all parts: scales it, and, if requested, combines it with y, the values in
 * the target. */
template <typename W>
__device__ static inline void dpari_cuda_sum_end(const dpar_mem_reduce &r, W *x, const W *y)
{
    const int counts = r.parts > 1 || r.scale != 1.0 || r.accumulate;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        x[e] = r.op == DPAR_AVG && r.parts > 1 ? dpari_cuda_divide(x[e], (W)r.parts) : x[e];
        x[e] = r.scale != 1.0 ? dpari_cuda_mul(x[e], (W)r.scale) : x[e];
        x[e] = r.accumulate ? dpari_cuda_add(y[e], x[e]) : x[e];
        x[e] = counts ? dpari_cuda_plain(x[e]) : x[e]; /* a NaN among the parts has kept its sign
                                                          and payload */
    }
}

/* Computes elements from i on: four, of which some may not exist, or, if TYPE is set, those of a
 * unit of 16 bytes of parts that all have this type and are summed. Both give the same bits. AHEAD
 * parts are loaded together. */
template <typename W, int TYPE>
__device__ static inline void dpari_cuda_sum_unit(const dpari_cuda_sum &s, int64_t i)
{
    enum { AHEAD = 4, ALL = dpari_cuda_fours_of(TYPE), FOURS = ALL > 0 ? ALL : 1 };
    const dpar_mem_reduce &r = s.r;
    const int32_t to_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)r.to_type;
    const int32_t from_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)r.from_type;
    const int32_t tw = dpari_cuda_width(to_type), fw = dpari_cuda_width(from_type);
    const int32_t op = TYPE != DPAR_TYPE_NONE || r.op == DPAR_AVG ? (int)DPAR_SUM : (int)r.op;
    dpari_cuda_four v[AHEAD][FOURS], made[FOURS];
    W x[FOURS][4], y[4];
    for (int64_t p = 0; p < r.parts; p += AHEAD) {
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            if (p + j < r.parts) {
                dpari_cuda_load_unit<0, ALL>(v[j], r.from, (p + j) * r.stride, i, r.count, fw,
                                             s.even);
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD * FOURS; j++) {
            if (p + j / FOURS < r.parts) {
                W *to = x[j % FOURS];
                dpari_cuda_widen(&v[j / FOURS][j % FOURS], from_type, y);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    to[e] = p + j / FOURS == 0 ? y[e] : dpari_cuda_meet(to[e], y[e], op);
                }
            }
        }
    }
    if (r.accumulate) {
        dpari_cuda_load_unit<0, ALL>(made, r.to, 0, i, r.count, tw, 1);
    }
    DPARI_CUDA_UNROLL
    for (int k = 0; k < FOURS; k++) {
        if (r.accumulate) {
            dpari_cuda_widen(&made[k], to_type, y);
        }
        dpari_cuda_sum_end(r, x[k], y);
        dpari_cuda_narrow(&made[k], to_type, x[k]);
    }
    dpari_cuda_store_unit<0, ALL>(made, r.to, 0, i, r.count, tw, 1);
}

template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_sum_kernel(DPARI_CUDA_ARGS dpari_cuda_sum s)
{
    for (int64_t unit = dpari_cuda_thread(); unit < s.units; unit += dpari_cuda_threads()) {
        const int64_t i = dpari_cuda_first(unit, s.head);
        if (i < s.r.count) {
            dpari_cuda_sum_unit<W, DPAR_TYPE_NONE>(s, i);
        }
    }
}

/* The elements at the end that do not fill a unit of 16 bytes. */
template <typename W>
DPARI_CUDA_ONCE __device__ static void dpari_cuda_sum_rest(const dpari_cuda_sum &s, int64_t i)
{
    for (; i < s.r.count; i += 4) {
        dpari_cuda_sum_unit<W, DPAR_TYPE_NONE>(s, i);
    }
}

template <typename W, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_sum_form_kernel(DPARI_CUDA_ARGS dpari_cuda_sum s)
{
    enum { EACH = 4 * dpari_cuda_fours_of(TYPE) };
    const int64_t step = dpari_cuda_threads();
    int64_t i = EACH * dpari_cuda_thread();
    for (; i + EACH <= s.r.count; i += EACH * step) {
        dpari_cuda_sum_unit<W, TYPE>(s, i);
    }
    if (i < s.r.count) {
        dpari_cuda_sum_rest<W>(s, i);
    }
}

typedef void (*dpari_cuda_summer)(const dpari_cuda_sum);

template <typename W> static dpari_cuda_summer dpari_cuda_sum_kernel_of(const dpari_cuda_sum *s)
{
    const dpar_mem_reduce *reduce = &s->r;
    const int wide = (reduce->op == DPAR_SUM || reduce->op == DPAR_AVG) &&
                     dpari_cuda_aligned(reduce->to) && dpari_cuda_aligned(reduce->from) &&
                     reduce->stride * dpari_cuda_width(reduce->from_type) % 16 == 0 &&
                     reduce->from_type == reduce->to_type;
    if (wide && reduce->to_type == DPAR_F32) {
        return dpari_cuda_sum_form_kernel<W, DPAR_F32>;
    }
    if (wide && reduce->to_type == DPAR_BF16) {
        return dpari_cuda_sum_form_kernel<W, DPAR_BF16>;
    }
    return dpari_cuda_sum_kernel<W>;
}

template <typename T, int N> struct alignas(N * sizeof(T)) dpari_cuda_ints {
    T x[N];
};

/* Computes elements i to i + N - 1. */
template <typename T, int N>
__device__ static inline void dpari_cuda_ints_unit(const dpar_mem_reduce &r, int64_t i)
{
    typedef dpari_cuda_ints<T, N> line;
    const T *from = (const T *)r.from + i;
    line v = *(const line *)(const void *)from;
    for (int64_t p = 1; p < r.parts; p++) {
        const line y = *(const line *)(const void *)(from + p * r.stride);
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            v.x[e] = dpari_cuda_meet_int(v.x[e], y.x[e], r.op);
        }
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N && r.op == DPAR_AVG; e++) {
        v.x[e] = (T)-1 < (T)1 ? (T)((int64_t)v.x[e] / r.parts)
                              : (T)((uint64_t)v.x[e] / (uint64_t)r.parts);
    }
    *(line *)(void *)((T *)r.to + i) = v;
}

/* Processes units of 16 bytes if all parts allow it, and then single elements. */
template <typename T>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_ints_kernel(DPARI_CUDA_ARGS dpari_cuda_sum s)
{
    enum { EACH = 16 / sizeof(T) };
    const int64_t step = dpari_cuda_threads();
    const int64_t whole = s.even ? s.r.count / EACH : 0;
    const int64_t first = dpari_cuda_thread();
    for (int64_t i = first; i < whole; i += step) {
        dpari_cuda_ints_unit<T, EACH>(s.r, i * EACH);
    }
    for (int64_t i = whole * EACH + first; i < s.r.count; i += step) {
        dpari_cuda_ints_unit<T, 1>(s.r, i);
    }
}

static dpari_cuda_summer dpari_cuda_ints_kernel_of(int32_t type)
{
    switch (type) {
    case DPAR_I8: return dpari_cuda_ints_kernel<int8_t>;
    case DPAR_U8: return dpari_cuda_ints_kernel<uint8_t>;
    case DPAR_I32: return dpari_cuda_ints_kernel<int32_t>;
    case DPAR_U32: return dpari_cuda_ints_kernel<uint32_t>;
    case DPAR_I64: return dpari_cuda_ints_kernel<int64_t>;
    default: return dpari_cuda_ints_kernel<uint64_t>;
    }
}

static dpar_status dpari_cuda_reduce_ints(dpar_cuda *gpu, const dpar_mem_reduce *reduce)
{
    const int32_t width = dpar_type_bytes(reduce->to_type);
    dpari_cuda_sum s;
    memset(&s, 0, sizeof s);
    s.r = *reduce;
    s.even = dpari_cuda_aligned(reduce->to) && dpari_cuda_aligned(reduce->from) &&
             reduce->stride * width % 16 == 0;
    s.units = s.even ? reduce->count * width / 16 + 1 : reduce->count;
    return dpari_cuda_launch(gpu, "reduce", dpari_cuda_ints_kernel_of(reduce->to_type), s,
                             dpari_cuda_units_blocks(gpu, s.units));
}

static int dpari_cuda_reduce_fine(const dpar_mem_reduce *reduce, int ints)
{
    const int wide = reduce->to_type == DPAR_F64 || reduce->from_type == DPAR_F64;
    if (ints) {
        return reduce->from_type == reduce->to_type && reduce->sum_type == reduce->to_type &&
               !reduce->accumulate && reduce->scale == 1.0;
    }
    return dpari_cuda_is_float(reduce->to_type) && dpari_cuda_is_float(reduce->from_type) &&
           (reduce->sum_type == DPAR_F64 || (reduce->sum_type == DPAR_F32 && !wide));
}

DPARI_INTERNAL dpar_status dpari_cuda_reduce(void *ctx, const dpar_mem_reduce *reduce)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_reduce *r = reduce;
    const int32_t fw = dpari_cuda_width(r->from_type);
    const int ints = !dpari_cuda_is_float(r->to_type) && dpari_cuda_can_reduce(r->to_type);
    dpari_cuda_sum s;
    if (!dpari_cuda_reduce_fine(r, ints) || r->count < 0 || r->parts < 1 ||
        (r->stride != 0 && r->stride < r->count) || r->op < DPAR_SUM || r->op > DPAR_MIN ||
        (r->count > 0 && (r->to == NULL || r->from == NULL))) {
        return dpari_cuda_wrong(gpu, "reduce");
    }
    if (r->count == 0) {
        return DPAR_OK;
    }
    if (ints) {
        return dpari_cuda_reduce_ints(gpu, r);
    }
    memset(&s, 0, sizeof s);
    s.r = *r;
    s.head = dpari_cuda_head(r->to, dpari_cuda_width(r->to_type));
    s.units = dpari_cuda_fours(r->count, s.head);
    s.even = dpari_cuda_even(r->from, s.head, fw) && r->stride * fw % (fw >= 4 ? 16 : 8) == 0;
    return dpari_cuda_launch(gpu, "reduce",
                             r->sum_type == DPAR_F64 ? dpari_cuda_sum_kernel_of<double>(&s)
                                                     : dpari_cuda_sum_kernel_of<float>(&s),
                             s, dpari_cuda_units_blocks(gpu, s.units));
}

/* ==== cuda/finite.c ==== */

/* Searches for NaN and Inf: dpar_mem.finite. */

struct dpari_cuda_look {
    dpar_mem_finite f;
    int64_t head, units;
    int64_t *part; /* [parts] the lowest index that each block found */
    int32_t parts, room;
};

enum { DPARI_CUDA_LOOKS = 4 }; /* units that a thread has in flight together */

/* Returns the index of the first of four elements that is not finite, or 4 if all are finite. */
__device__ static inline int32_t dpari_cuda_wild(const dpari_cuda_four *v, int32_t type)
{
    int32_t at = 4;
    DPARI_CUDA_UNROLL
    for (int e = 3; e >= 0; e--) {
        int wild;
        if (type == DPAR_F64) {
            wild = (v->x[2 * e + 1] & 0x7ff00000u) == 0x7ff00000u;
        } else if (type == DPAR_F32) {
            wild = (v->x[e] & 0x7f800000u) == 0x7f800000u;
        } else {
            const uint32_t all = type == DPAR_BF16 ? 0x7f80u : 0x7c00u;
            wild = ((v->x[e / 2] >> (16 * (e % 2))) & all) == all;
        }
        at = wild ? e : at;
    }
    return at;
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_look_kernel(DPARI_CUDA_ARGS dpari_cuda_look s)
{
    const int32_t width = dpari_cuda_width(s.f.type);
    const int64_t step = dpari_cuda_threads();
    int64_t unit = dpari_cuda_thread(), least = INT64_MAX;
    for (; unit < s.units && least == INT64_MAX; unit += DPARI_CUDA_LOOKS * step) {
        dpari_cuda_four v[DPARI_CUDA_LOOKS];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < DPARI_CUDA_LOOKS; j++) {
            const int64_t i = dpari_cuda_first(unit + j * step, s.head);
            if (i < s.f.count) {
                dpari_cuda_load<0>(&v[j], s.f.in, i, s.f.count, width, 1);
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = DPARI_CUDA_LOOKS - 1; j >= 0; j--) {
            const int64_t i = dpari_cuda_first(unit + j * step, s.head);
            const int32_t e = i < s.f.count ? dpari_cuda_wild(&v[j], s.f.type) : 4;
            least = e < 4 ? i + e : least;
        }
    }
    least = dpari_cuda_block_least(least);
    if (threadIdx.x == 0) {
        s.part[blockIdx.x] = least;
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_look_end_kernel(DPARI_CUDA_ARGS dpari_cuda_look s)
{
    int64_t least = INT64_MAX;
    for (int32_t k = (int32_t)threadIdx.x; k < s.parts; k += DPARI_CUDA_THREADS) {
        least = s.part[k] < least ? s.part[k] : least;
    }
    least = dpari_cuda_block_least(least);
    if (threadIdx.x == 0 && !(s.f.keep_found && *s.f.found >= 0)) {
        *s.f.found = least < INT64_MAX ? s.f.first + least : -1;
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_finite(void *ctx, const dpar_mem_finite *finite)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpar_status st = DPAR_OK;
    dpari_cuda_look s;
    int64_t blocks;
    if (!dpari_cuda_is_float(finite->type) || finite->count < 0 || finite->found == NULL ||
        (finite->count > 0 && finite->in == NULL)) {
        return dpari_cuda_wrong(gpu, "finite");
    }
    memset(&s, 0, sizeof s);
    s.f = *finite;
    s.head = dpari_cuda_head(finite->in, dpari_cuda_width(finite->type));
    s.units = finite->count > 0 ? dpari_cuda_fours(finite->count, s.head) : 0;
    s.part = (int64_t *)gpu->scratch;
    blocks = (s.units + DPARI_CUDA_LOOKS * DPARI_CUDA_THREADS - 1) /
             (DPARI_CUDA_LOOKS * DPARI_CUDA_THREADS);
    blocks = dpari_cuda_each(gpu, blocks);
    s.parts = (int32_t)(blocks < DPARI_CUDA_PARTS * 8 ? blocks : DPARI_CUDA_PARTS * 8);
    if (s.units > 0) {
        st = dpari_cuda_launch(gpu, "finite", dpari_cuda_look_kernel, s, s.parts);
    } else {
        s.parts = 0;
    }
    return st == DPAR_OK ? dpari_cuda_launch(gpu, "finite", dpari_cuda_look_end_kernel, s, 1) : st;
}

/* ==== cuda/pin.c ==== */

/* Pins and unpins memory of the host: dpar_mem.pin and unpin. */

/* True if CUDA knows the memory already, because it is a device's, managed or registered. */
static int dpari_cuda_reached(const void *at)
{
    struct cudaPointerAttributes about;
    const cudaError_t error = cudaPointerGetAttributes(&about, at);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return about.type != cudaMemoryTypeUnregistered;
}

/* Returns the range of held pages that contains byte `at`, or the next range after it, or -1 if
 * there is none. */
static int32_t dpari_cuda_held(const dpar_cuda *gpu, uintptr_t at)
{
    int32_t i, next = -1;
    for (i = 0; i < gpu->held_n; i++) {
        if (gpu->held[i].hi > at && (next < 0 || gpu->held[i].lo < gpu->held[next].lo)) {
            next = i;
        }
    }
    return next;
}

/* Registers the pages [lo, hi), none of which this gpu holds. Leaves pages alone that others have
 * registered. */
static dpar_status dpari_cuda_hold(dpar_cuda *gpu, uintptr_t lo, uintptr_t hi)
{
    void *seen = NULL;
    cudaError_t error = cudaHostRegister((void *)lo, (size_t)(hi - lo),
                                         cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaErrorHostMemoryAlreadyRegistered && dpari_cuda_reached((void *)lo) &&
        dpari_cuda_reached((void *)(hi - 1))) {
        (void)cudaGetLastError();
        return DPAR_OK;
    }
    if (error == cudaSuccess) {
        gpu->held[gpu->held_n].lo = lo;
        gpu->held[gpu->held_n++].hi = hi;
        error = cudaHostGetDevicePointer(&seen, (void *)lo, 0);
        if (error == cudaSuccess && (uintptr_t)seen != lo) {
            return dpari_cuda_say(DPAR_E_SYSTEM, &gpu->why, "pin",
                                  "the device has other addresses for host memory than the host");
        }
    }
    return dpari_cuda_heard(gpu, error, "cudaHostRegister");
}

DPARI_INTERNAL dpar_status dpari_cuda_release(dpar_cuda *gpu)
{
    dpar_status st = DPAR_OK;
    int32_t i, k;
    for (i = gpu->held_n - 1; i >= 0; i--) {
        for (k = 0; k < gpu->pins; k++) {
            if (gpu->pin[k].lo < gpu->held[i].hi && gpu->held[i].lo < gpu->pin[k].hi) {
                break;
            }
        }
        if (k == gpu->pins) {
            const cudaError_t error = cudaHostUnregister((void *)gpu->held[i].lo);
            const dpar_status s = dpari_cuda_heard(gpu, error, "cudaHostUnregister");
            if (st == DPAR_OK) {
                st = s;
            }
            gpu->held[i] = gpu->held[--gpu->held_n];
        }
    }
    return st;
}

/* Pins whole pages. If a page holds memory of several owners, it is unregistered when the last of
 * them unpins it. */
DPARI_INTERNAL dpar_status dpari_cuda_pin(void *ctx, void *memory, int64_t bytes)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)memory;
    uintptr_t at = first / page * page, lo = at, hi;
    int32_t k;
    int before = 0;
    dpar_status st;
    if (memory == NULL || bytes <= 0) {
        return bytes == 0 ? DPAR_OK : dpari_cuda_wrong(gpu, "pin");
    }
    hi = (first + (uintptr_t)bytes + page - 1) / page * page;
    st = dpari_cuda_enter(gpu, &before);
    if (st != DPAR_OK) {
        return st;
    }
    k = dpari_cuda_held(gpu, at);
    if ((k < 0 || gpu->held[k].lo >= hi) && dpari_cuda_reached(memory) &&
        dpari_cuda_reached((unsigned char *)memory + bytes - 1)) {
        return dpari_cuda_leave(gpu, before, DPAR_OK); /* the memory is the device's, managed, or
                                                          pinned by others */
    }
    for (; at < hi && st == DPAR_OK; k = dpari_cuda_held(gpu, at)) {
        const uintptr_t next = k < 0 || gpu->held[k].lo >= hi ? hi : gpu->held[k].lo;
        if (gpu->pins == DPARI_CUDA_PINS || gpu->held_n == DPARI_CUDA_PINS) {
            st = dpari_cuda_say(DPAR_E_MEMORY, &gpu->why, "pin",
                                "all 128 pins are in use: unpin some memory first");
        } else if (next > at) {
            st = dpari_cuda_hold(gpu, at, next);
            at = next;
        } else {
            at = gpu->held[k].hi;
        }
    }
    if (st == DPAR_OK) {
        gpu->pin[gpu->pins].memory = first;
        gpu->pin[gpu->pins].lo = lo;
        gpu->pin[gpu->pins++].hi = hi;
    } else {
        const dpar_why why = gpu->why;
        (void)dpari_cuda_release(gpu);
        gpu->why = why;
    }
    return dpari_cuda_leave(gpu, before, st);
}

DPARI_INTERNAL dpar_status dpari_cuda_unpin(void *ctx, void *memory)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    int32_t k = gpu->pins - 1;
    int before = 0;
    dpar_status st;
    while (k >= 0 && gpu->pin[k].memory != (uintptr_t)memory) {
        k--;
    }
    if (k < 0) { /* memory that needed no pin, see dpari_cuda_pin */
        return DPAR_OK;
    }
    gpu->pin[k] = gpu->pin[--gpu->pins];
    st = dpari_cuda_enter(gpu, &before);
    if (st == DPAR_OK) {
        st = dpari_cuda_release(gpu);
    }
    return dpari_cuda_leave(gpu, before, st);
}

#ifdef DPAR_TRAIN_H

/* ==== cuda/round.c ==== */

/* Rounds to BF16 by random numbers: dpar_mem_layers.round. */

/* The elements at the end that do not fill a unit of 16 bytes. */
DPARI_CUDA_ONCE __device__ static void dpari_cuda_round_rest(const dpari_cuda_span &s, int64_t i)
{
    for (; i < s.count; i += 4) {
        dpari_cuda_span_numbers<double, 1, 0, 1>(s, i / 4);
    }
}

/* Rounds F32 to BF16 by random numbers, eight elements at a time. The first element has an index
 * that is a multiple of four. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 4)
    dpari_cuda_round_kernel(DPARI_CUDA_ARGS dpari_cuda_span s)
{
    enum { FOURS = 2, EACH = 4 * FOURS };
    const int64_t step = dpari_cuda_threads();
    int64_t u = dpari_cuda_thread();
    for (; EACH * (u + 1) <= s.count; u += step) {
        dpari_cuda_four four[FOURS];
        dpari_cuda_load_all<0, FOURS>(four, s.from, EACH * u, 4);
        DPARI_CUDA_UNROLL
        for (int k = 0; k < FOURS; k++) {
            uint32_t words[4];
            float f[4];
            dpari_cuda_widen(&four[k], DPAR_F32, f);
            dpari_cuda_random_four(s.seed, s.stream, s.index / 4 + (uint64_t)(FOURS * u + k),
                                   words);
            dpari_cuda_narrow_by<16>(&four[k], f, words);
        }
        dpari_cuda_store_all<0, FOURS>(four, s.to, EACH * u, 2);
    }
    if (EACH * u < s.count) {
        dpari_cuda_round_rest(s, EACH * u);
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_round(void *ctx, const dpar_mem_round *r)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_spans_small b;
    dpar_mem_span s;
    int what;
    memset(&s, 0, sizeof s);
    s.to = r->to;
    s.from = r->from;
    s.count = r->count;
    s.to_type = DPAR_BF16;
    s.from_type = r->from_type;
    s.scale = 1.0;
    memset(&b, 0, sizeof b);
    what = dpari_cuda_span_piece(&s, 1, &b.piece[0]);
    if (what < 0 || (what > 0 && r->from == NULL) || !dpari_cuda_is_float(r->from_type)) {
        return dpari_cuda_wrong(gpu, "round");
    }
    if (what == 0) {
        return DPAR_OK;
    }
    b.n = 1;
    b.piece[0].seed = r->seed;
    b.piece[0].stream = r->stream;
    b.piece[0].index = r->index;
    if (r->from_type == DPAR_F32 && dpari_cuda_aligned(r->to) && dpari_cuda_aligned(r->from) &&
        r->index % 4 == 0) {
        return dpari_cuda_launch(gpu, "round", dpari_cuda_round_kernel, b.piece[0],
                                 dpari_cuda_wave(gpu, (r->count + 2047) / 2048));
    }
    return dpari_cuda_span_now<1>(gpu, &b);
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/squares.c ==== */

/* Squares and clipping: dpar_mem_layers.squares and clip. Unit u of four elements, counted from
 * element 0, belongs to thread u % (DPARI_CUDA_PARTS x 256) in all launches, so that the sums have
 * the same bits. If the grid is smaller, a block does the work of several blocks. */

struct dpari_cuda_square {
    dpar_mem_squares q;
    int64_t units;
    double *part;
    int32_t even;
    int32_t parts; /* number of blocks that have units, which depends only on the count */
};

__device__ static inline double dpari_cuda_square_more(double sum, double x, int exact)
{
    return exact ? fma(x, x, sum) : dpari_cuda_add(sum, dpari_cuda_mul(x, x));
}

/* TYPE is set if the kernel knows it and all units are vectors. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_square_kernel(DPARI_CUDA_ARGS dpari_cuda_square s)
{
    enum { AHEAD = 4 };
    const int32_t type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)s.q.type;
    const int32_t width = dpari_cuda_width(type), even = TYPE != DPAR_TYPE_NONE || s.even;
    const int exact = type != DPAR_F64; /* squares of F32 are doubles */
    const int64_t step = (int64_t)DPARI_CUDA_PARTS * DPARI_CUDA_THREADS;
    for (int32_t block = (int32_t)blockIdx.x; block < s.parts; block += (int32_t)gridDim.x) {
        int64_t unit = (int64_t)block * DPARI_CUDA_THREADS + threadIdx.x;
        double sum = 0.0;
        for (; unit < s.units; unit += AHEAD * step) {
            dpari_cuda_four v[AHEAD];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                if (unit + j * step < s.units) {
                    dpari_cuda_load<0>(&v[j], s.q.in, 4 * (unit + j * step), s.q.count, width,
                                       even);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                double x[4];
                if (unit + j * step < s.units) {
                    dpari_cuda_widen(&v[j], type, x);
                    DPARI_CUDA_UNROLL
                    for (int e = 0; e < 4; e++) {
                        sum = dpari_cuda_square_more(sum, x[e], exact);
                    }
                }
            }
        }
        sum = dpari_cuda_block_sum(sum);
        if (threadIdx.x == 0) {
            s.part[block] = sum;
        }
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_square_end_kernel(DPARI_CUDA_ARGS dpari_cuda_square s)
{
    double sum = 0.0;
    for (int32_t k = (int32_t)threadIdx.x; k < s.parts; k += DPARI_CUDA_THREADS) {
        sum = dpari_cuda_add(sum, s.part[k]);
    }
    sum = dpari_cuda_block_sum(sum);
    if (threadIdx.x == 0) {
        *s.q.sum = s.q.accumulate ? dpari_cuda_add(*s.q.sum, sum) : sum;
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_squares(void *ctx, const dpar_mem_squares *squares)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_square s;
    dpar_status st;
    int64_t blocks;
    if (!dpari_cuda_is_float(squares->type) || squares->count < 0 || squares->sum == NULL ||
        (squares->count > 0 && squares->in == NULL)) {
        return dpari_cuda_wrong(gpu, "squares");
    }
    memset(&s, 0, sizeof s);
    s.q = *squares;
    s.units = (squares->count + 3) / 4;
    s.part = (double *)gpu->scratch;
    s.even = squares->count > 0 && dpari_cuda_even(squares->in, 0, dpari_cuda_width(squares->type));
    blocks = (s.units + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS;
    blocks = blocks < DPARI_CUDA_PARTS ? blocks : (int64_t)DPARI_CUDA_PARTS;
    s.parts = (int32_t)(blocks < 1 ? 1 : blocks);
    blocks = gpu->max_blocks > 0 && gpu->max_blocks < s.parts ? gpu->max_blocks : s.parts;
    st = dpari_cuda_launch(gpu, "squares",
                           s.even && squares->type == DPAR_BF16
                               ? dpari_cuda_square_kernel<DPAR_BF16>
                               : dpari_cuda_square_kernel<DPAR_TYPE_NONE>,
                           s, blocks);
    return st == DPAR_OK ? dpari_cuda_launch(gpu, "squares", dpari_cuda_square_end_kernel, s, 1)
                         : st;
}

__global__ static void dpari_cuda_clip_kernel(DPARI_CUDA_ARGS dpar_mem_clip c)
{
    if (threadIdx.x == 0) {
        const double norm = sqrt(*c.squares);
        double factor = 1.0;
        if (c.limit > 0.0) {
            factor = c.limit / dpari_cuda_add(norm, 1e-6);
            factor = factor < 1.0 ? factor : 1.0;
            factor = norm >= 0.0 && norm - norm == 0.0 ? factor : 0.0;
        }
        *c.factor = dpari_cuda_mul(c.scale, factor);
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_clip(void *ctx, const dpar_mem_clip *clip)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    if (clip->squares == NULL || clip->factor == NULL) {
        return dpari_cuda_wrong(gpu, "clip");
    }
    return dpari_cuda_launch(gpu, "clip", dpari_cuda_clip_kernel, *clip, 1);
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/optimize.c ==== */

/* Steps of optimizers: dpar_mem_layers.optimize. */

struct dpari_cuda_step {
    dpar_optimizer o;
    void *weight, *m, *v, *copy, *rest;
    const void *gradient;
    const double *factor_at;
    int64_t count, head, units, t;
    uint64_t index;
    double rate, factor, shrink, reach, fix;
    int32_t weight_type, gradient_type, copy_type, moment_type, moments;
    uint8_t even_gradient, even_m, even_v, even_copy, even_rest;
    uint8_t copied, rested; /* 1: the weights have a copy; their low bits are stored separately */
    uint8_t room[5];
};

template <typename W> struct dpari_cuda_rates {
    W beta1, more1, beta2, more2, epsilon, shrink, reach, fix, factor, rate, momentum, decay;
};

template <typename W>
__device__ static inline dpari_cuda_rates<W> dpari_cuda_rates_of(const dpari_cuda_step &s)
{
    dpari_cuda_rates<W> r;
    r.beta1 = (W)s.o.beta1;
    r.more1 = (W)(1.0 - s.o.beta1);
    r.beta2 = (W)s.o.beta2;
    r.more2 = (W)(1.0 - s.o.beta2);
    r.epsilon = (W)s.o.epsilon;
    r.shrink = (W)s.shrink;
    r.reach = (W)s.reach;
    r.fix = (W)s.fix;
    r.factor = (W)(s.factor_at != NULL ? dpari_cuda_mul(s.factor, *s.factor_at) : s.factor);
    r.rate = (W)s.rate;
    r.momentum = (W)s.o.momentum;
    r.decay = (W)s.o.decay;
    return r;
}

template <typename W>
__device__ static inline void dpari_cuda_adamw(const dpari_cuda_rates<W> &r, W *w, W g, W *m, W *v)
{
    const W x = dpari_cuda_mul(g, r.factor);
    *m = dpari_cuda_add(dpari_cuda_mul(r.beta1, *m), dpari_cuda_mul(r.more1, x));
    *v = dpari_cuda_add(dpari_cuda_mul(r.beta2, *v), dpari_cuda_mul(dpari_cuda_mul(r.more2, x), x));
    *w = dpari_cuda_add(dpari_cuda_mul(*w, r.shrink),
                        -(dpari_cuda_mul(r.reach, *m) /
                          dpari_cuda_add(sqrt(dpari_cuda_mul(*v, r.fix)), r.epsilon)));
}

template <typename W>
__device__ static inline void dpari_cuda_sgd(const dpari_cuda_rates<W> &r, int nesterov, W *w, W g,
                                             W *m)
{
    const W x = dpari_cuda_add(dpari_cuda_mul(g, r.factor), dpari_cuda_mul(r.decay, *w));
    W step;
    *m = dpari_cuda_add(dpari_cuda_mul(r.momentum, *m), x);
    step = nesterov ? dpari_cuda_add(x, dpari_cuda_mul(r.momentum, *m)) : *m;
    *w = dpari_cuda_add(*w, -dpari_cuda_mul(r.rate, step));
}

/* Restores F32 weights from the nearest BF16 and the rest of their bits. The next function does the
 * reverse. */
__device__ static inline void dpari_cuda_join(dpari_cuda_four *made, const dpari_cuda_four *high,
                                              const dpari_cuda_four *rest)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        made->x[e] = ((uint32_t)dpari_cuda_part(high, e) << 16) +
                     (uint32_t)(int32_t)(int16_t)dpari_cuda_part(rest, e);
    }
}

__device__ static inline void dpari_cuda_halve(const dpari_cuda_four *made, dpari_cuda_four *high,
                                               dpari_cuda_four *rest)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const uint32_t h = (made->x[e] + 0x8000u) >> 16, l = made->x[e] & 0xffffu;
        high->x[e / 2] = e % 2 == 0 ? h : high->x[e / 2] | h << 16;
        rest->x[e / 2] = e % 2 == 0 ? l : rest->x[e / 2] | l << 16;
    }
}

/* The arrays of an optimizer step as fours, with the bits that they have in memory. */
template <int FOURS> struct dpari_cuda_step_bits {
    dpari_cuda_four weight[FOURS], gradient[FOURS], m[FOURS], v[FOURS], rest[FOURS], copy[FOURS];
};

/* Converts the weights and their copy to bits. */
template <typename W, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_narrow(const dpari_cuda_step &s, const W *w, Bits *h,
                                                     int k, int64_t i)
{
    const int random = s.o.stochastic && !s.rested;
    const uint64_t at = s.index + (uint64_t)i;
    if (s.rested) {
        dpari_cuda_four both;
        dpari_cuda_narrow<WIDE>(&both, DPAR_F32, w);
        dpari_cuda_halve(&both, &h->weight[k], &h->rest[k]);
    } else if (random && s.weight_type == DPAR_BF16) {
        dpari_cuda_narrow_random(&h->weight[k], w, s.o.seed, (uint64_t)s.t, at);
    } else {
        dpari_cuda_narrow<WIDE>(&h->weight[k], s.weight_type, w);
    }
    if (s.copied) { /* stores a copy of the updated weights */
        W now[4];
        dpari_cuda_widen<0, WIDE>(&h->weight[k], s.weight_type, now);
        if (random && s.copy_type == DPAR_BF16) {
            dpari_cuda_narrow_random(&h->copy[k], now, s.o.seed, (uint64_t)s.t, at);
        } else {
            dpari_cuda_narrow<WIDE>(&h->copy[k], s.copy_type, now);
        }
    }
}

/* Converts the moments to bits, with stochastic rounding if they are BF16 and the optimizer uses
 * it. */
template <typename W, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_keep(const dpari_cuda_step &s, const W *m, const W *v,
                                                   Bits *h, int k, int64_t i)
{
    if (s.o.stochastic && s.moment_type == DPAR_BF16) {
        uint32_t words[4];
        dpari_cuda_randoms(s.o.seed, (uint64_t)s.t + (UINT64_C(1) << 63), s.index + (uint64_t)i,
                           words);
        dpari_cuda_narrow_by<16>(&h->m[k], m, words);
        dpari_cuda_narrow_by<0>(&h->v[k], v, words);
    } else {
        dpari_cuda_narrow<WIDE>(&h->m[k], s.moment_type, m);
        dpari_cuda_narrow<WIDE>(&h->v[k], s.moment_type, v);
    }
}

/* Loads what the step needs of elements i to i + 3, or of ALL fours. */
template <int ALL, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_load(const dpari_cuda_step &s, Bits *h, int64_t i)
{
    const int32_t state = dpari_cuda_width(s.moment_type);
    dpari_cuda_load_unit<1, ALL, WIDE>(h->weight, s.weight, 0, i, s.count,
                                       dpari_cuda_width(s.weight_type), 1);
    dpari_cuda_load_unit<0, ALL, WIDE>(h->gradient, s.gradient, 0, i, s.count,
                                       dpari_cuda_width(s.gradient_type), s.even_gradient);
    if (s.moments > 0) {
        dpari_cuda_load_unit<1, ALL, WIDE>(h->m, s.m, 0, i, s.count, state, s.even_m);
    }
    if (s.moments > 1) {
        dpari_cuda_load_unit<1, ALL, WIDE>(h->v, s.v, 0, i, s.count, state, s.even_v);
    }
    if (s.rested) {
        dpari_cuda_load_unit<1, ALL, WIDE>(h->rest, s.rest, 0, i, s.count, 2, s.even_rest);
    }
}

template <int ALL, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_store(const dpari_cuda_step &s, const Bits *h,
                                                    int64_t i)
{
    const int32_t state = dpari_cuda_width(s.moment_type);
    dpari_cuda_store_unit<1, ALL, WIDE>(h->weight, s.weight, 0, i, s.count,
                                        dpari_cuda_width(s.weight_type), 1);
    if (s.moments > 0) {
        dpari_cuda_store_unit<1, ALL, WIDE>(h->m, s.m, 0, i, s.count, state, s.even_m);
    }
    if (s.moments > 1) {
        dpari_cuda_store_unit<1, ALL, WIDE>(h->v, s.v, 0, i, s.count, state, s.even_v);
    }
    if (s.rested) {
        dpari_cuda_store_unit<1, ALL, WIDE>(h->rest, s.rest, 0, i, s.count, 2, s.even_rest);
    }
    if (s.copied) {
        dpari_cuda_store_unit<0, ALL, WIDE>(h->copy, s.copy, 0, i, s.count,
                                            dpari_cuda_width(s.copy_type), s.even_copy);
    }
}

/* Updates elements i to i + 3, from old bits to new bits. */
template <typename W, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_unit(const dpari_cuda_step &s,
                                                   const dpari_cuda_rates<W> &r, Bits *h, int k,
                                                   int64_t i)
{
    W w[4], g[4] = {0, 0, 0, 0}, m[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
    if (s.rested) {
        dpari_cuda_four both;
        dpari_cuda_join(&both, &h->weight[k], &h->rest[k]);
        dpari_cuda_widen<0, WIDE>(&both, DPAR_F32, w);
    } else {
        dpari_cuda_widen<0, WIDE>(&h->weight[k], s.weight_type, w);
    }
    if (r.factor != (W)0) { /* with factor 0 gradients are zeros, because NaN and Inf times 0 would
                               be NaN */
        dpari_cuda_widen<0, WIDE>(&h->gradient[k], s.gradient_type, g);
    }
    if (s.moments > 0) {
        dpari_cuda_widen<0, WIDE>(&h->m[k], s.moment_type, m);
    }
    if (s.moments > 1) {
        dpari_cuda_widen<0, WIDE>(&h->v[k], s.moment_type, v);
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        if (s.o.kind == DPAR_OPTIMIZER_ADAMW) {
            dpari_cuda_adamw(r, &w[e], g[e], &m[e], &v[e]);
        } else {
            dpari_cuda_sgd(r, s.o.nesterov, &w[e], g[e], &m[e]);
        }
    }
    if (s.moments > 0) {
        dpari_cuda_step_keep<W, WIDE>(s, m, v, h, k, i);
    }
    dpari_cuda_step_narrow<W, WIDE>(s, w, h, k, i);
}

/* WIDE 0: neither weights nor gradients are F64. */
template <typename W, int WIDE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_step_kernel(DPARI_CUDA_ARGS dpari_cuda_step s)
{
    const dpari_cuda_rates<W> r = dpari_cuda_rates_of<W>(s);
    for (int64_t unit = dpari_cuda_thread(); unit < s.units; unit += dpari_cuda_threads()) {
        const int64_t i = dpari_cuda_first(unit, s.head);
        dpari_cuda_step_bits<1> h;
        if (i < s.count) {
            dpari_cuda_step_load<0, WIDE>(s, &h, i);
            dpari_cuda_step_unit<W, WIDE>(s, r, &h, 0, i);
            dpari_cuda_step_store<0, WIDE>(s, &h, i);
        }
    }
}

/* The forms in which models are usually trained. All arrays are accessed in units of 16 bytes, and
 * types are constants of the kernel. With 16-bit types a thread has eight elements, otherwise four.
 * All forms are AdamW except MOMENTUM, which is SGD. */
enum {
    DPARI_CUDA_PLAIN,
    DPARI_CUDA_STOCHASTIC,
    DPARI_CUDA_COPIED,
    DPARI_CUDA_RESTED,
    DPARI_CUDA_MOMENTUM
};

template <int WEIGHT, int GRADIENT, int MOMENT, int HOW> struct dpari_cuda_step_form {
    enum { FOURS = dpari_cuda_fours_of(GRADIENT) };
    DPARI_CUDA_FN void fix(dpari_cuda_step *s)
    {
        s->o.kind = HOW == DPARI_CUDA_MOMENTUM ? DPAR_OPTIMIZER_SGD : DPAR_OPTIMIZER_ADAMW;
        s->o.stochastic = HOW == DPARI_CUDA_STOCHASTIC;
        s->moments = HOW == DPARI_CUDA_MOMENTUM ? 1 : 2;
        s->weight_type = WEIGHT;
        s->gradient_type = GRADIENT;
        s->moment_type = MOMENT;
        s->copy_type = HOW == DPARI_CUDA_COPIED ? DPAR_BF16 : DPAR_TYPE_NONE;
        s->copied = HOW == DPARI_CUDA_COPIED;
        s->rested = HOW == DPARI_CUDA_RESTED;
        if (HOW == DPARI_CUDA_STOCHASTIC) {
            s->index &= ~UINT64_C(3); /* rounds down to a multiple of four, because a random block
                                         has four words (random.h) */
        }
    }
};

/* The elements at the end that do not fill a unit of 16 bytes. */
template <typename W>
DPARI_CUDA_ONCE __device__ static void dpari_cuda_step_rest(const dpari_cuda_step &s, int64_t i)
{
    const dpari_cuda_rates<W> r = dpari_cuda_rates_of<W>(s);
    for (; i < s.count; i += 4) {
        dpari_cuda_step_bits<1> h;
        dpari_cuda_step_load<0, 0>(s, &h, i);
        dpari_cuda_step_unit<W, 0>(s, r, &h, 0, i);
        dpari_cuda_step_store<0, 0>(s, &h, i);
    }
}

template <typename W, typename Form>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_step_form_kernel(DPARI_CUDA_ARGS dpari_cuda_step asked)
{
    enum { FOURS = Form::FOURS, EACH = 4 * FOURS };
    dpari_cuda_step s = asked;
    Form::fix(&s);
    const dpari_cuda_rates<W> r = dpari_cuda_rates_of<W>(s);
    const int64_t step = dpari_cuda_threads();
    int64_t u = dpari_cuda_thread();
    for (; EACH * (u + 1) <= s.count; u += step) {
        const int64_t i = EACH * u;
        dpari_cuda_step_bits<FOURS> h;
        dpari_cuda_step_load<FOURS, 0>(s, &h, i);
        DPARI_CUDA_UNROLL
        for (int k = 0; k < FOURS; k++) {
            dpari_cuda_step_unit<W, 0>(s, r, &h, k, i + 4 * k);
        }
        dpari_cuda_step_store<FOURS, 0>(s, &h, i);
    }
    if (EACH * u < s.count) {
        dpari_cuda_step_rest<W>(asked, EACH * u);
    }
}

/* Returns b^t by repeated squaring, as dpar_optimizer_step computes it. */
static double dpari_cuda_power(double b, int64_t t)
{
    double power = 1.0;
    for (; t > 0; t >>= 1) {
        power *= t % 2 != 0 ? b : 1.0;
        b *= b;
    }
    return power;
}

/* True if dpar_mem allows the step. Sets s->moments and s->moment_type. */
static int dpari_cuda_step_fine(const dpar_mem_optimize *x, dpari_cuda_step *s)
{
    const dpar_optimizer_piece *p = x->piece;
    if (p == NULL || dpar_optimizer_check(x->optimizer, p->weight_type, &s->moments,
                                          &s->moment_type, NULL) != DPAR_OK ||
        s->moment_type == DPAR_F8) {
        return 0;
    }
    if (x->step < 1 || p->count < 0 || !dpari_cuda_is_float(p->gradient_type) ||
        (x->remainder != NULL &&
         (p->weight_type != DPAR_BF16 || x->optimizer->stochastic || x->copy != NULL)) ||
        (x->copy != NULL && x->copy_type != DPAR_BF16 && x->copy_type != DPAR_F16 &&
         x->copy_type != DPAR_F32)) {
        return 0;
    }
    return p->count == 0 || (p->weight != NULL && p->gradient != NULL &&
                             (s->moments < 1 || p->m != NULL) && (s->moments < 2 || p->v != NULL));
}

typedef void (*dpari_cuda_stepper)(const dpari_cuda_step);

/* Returns the kernel of a form if the step has that form, otherwise `other`. */
template <typename Form>
static dpari_cuda_stepper dpari_cuda_step_formed(const dpari_cuda_step *s, int fast,
                                                 dpari_cuda_stepper other)
{
    if (!dpari_cuda_is<Form>(s)) {
        return other;
    }
    return fast ? dpari_cuda_step_form_kernel<float, Form>
                : dpari_cuda_step_form_kernel<double, Form>;
}

static dpari_cuda_stepper dpari_cuda_step_kernel_of(const dpari_cuda_step *s, int fast)
{
    const int wide = s->weight_type == DPAR_F64 || s->gradient_type == DPAR_F64;
    dpari_cuda_stepper k = dpari_cuda_step_kernel<double, 0>;
    if (wide) {
        k = dpari_cuda_step_kernel<double, 1>;
    } else if (fast) {
        k = dpari_cuda_step_kernel<float, 0>;
    }
    if (!dpari_cuda_aligned(s->weight) || !dpari_cuda_aligned(s->gradient) ||
        !dpari_cuda_aligned(s->m) || !dpari_cuda_aligned(s->v) || !dpari_cuda_aligned(s->copy) ||
        !dpari_cuda_aligned(s->rest)) {
        return k;
    }
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_F32, DPAR_F32, DPAR_F32, DPARI_CUDA_PLAIN>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_F32, DPAR_F32, DPAR_F32, DPARI_CUDA_MOMENTUM>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_F32, DPAR_BF16, DPAR_F32, DPARI_CUDA_COPIED>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_BF16, DPAR_BF16, DPAR_F32, DPARI_CUDA_RESTED>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_BF16, DPAR_BF16, DPAR_F32, DPARI_CUDA_STOCHASTIC>>(s, fast, k);
    return dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_BF16, DPAR_BF16, DPAR_BF16, DPARI_CUDA_STOCHASTIC>>(s, fast, k);
}

DPARI_INTERNAL dpar_status dpari_cuda_optimize(void *ctx, const dpar_mem_optimize *x)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_optimizer_piece *p = x->piece;
    dpari_cuda_step s;
    int64_t blocks;
    int32_t state;
    memset(&s, 0, sizeof s);
    if (!dpari_cuda_step_fine(x, &s)) {
        return dpari_cuda_wrong(gpu, "optimize");
    }
    if (p->count == 0) {
        return DPAR_OK;
    }
    s.o = *x->optimizer;
    s.weight = p->weight;
    s.gradient = p->gradient;
    s.m = p->m;
    s.v = p->v;
    s.copy = x->copy;
    s.rest = x->remainder;
    s.factor_at = x->factor_at;
    s.count = p->count;
    s.t = x->step;
    s.index = p->index;
    s.rate = x->rate;
    s.factor = x->factor;
    s.shrink = 1.0 - x->rate * s.o.decay;
    s.reach = x->rate / (1.0 - dpari_cuda_power(s.o.beta1, x->step));
    s.fix = 1.0 / (1.0 - dpari_cuda_power(s.o.beta2, x->step));
    s.weight_type = p->weight_type;
    s.gradient_type = p->gradient_type;
    s.copied = x->copy != NULL;
    s.rested = x->remainder != NULL;
    s.copy_type = s.copied ? x->copy_type : (int32_t)DPAR_TYPE_NONE;
    state = dpari_cuda_width(s.moment_type);
    s.head = dpari_cuda_head(p->weight, dpari_cuda_width(p->weight_type));
    s.units = dpari_cuda_fours(p->count, s.head);
    s.even_gradient =
        (uint8_t)dpari_cuda_even(p->gradient, s.head, dpari_cuda_width(p->gradient_type));
    s.even_m = (uint8_t)dpari_cuda_even(p->m, s.head, state);
    s.even_v = (uint8_t)dpari_cuda_even(p->v, s.head, state);
    s.even_rest = (uint8_t)dpari_cuda_even(x->remainder, s.head, 2);
    s.even_copy = (uint8_t)(x->copy != NULL &&
                            dpari_cuda_even(x->copy, s.head, dpari_cuda_width(x->copy_type)));
    blocks = (s.units + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS;
    blocks =
        gpu->fast_math && state == 4 ? dpari_cuda_each(gpu, blocks) : dpari_cuda_wave(gpu, blocks);
    return dpari_cuda_launch(gpu, "optimize", dpari_cuda_step_kernel_of(&s, gpu->fast_math), s,
                             blocks);
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/gather.c ==== */

/* Copies rows that an index selects: dpar_mem_layers.gather. */

struct dpari_cuda_fetch {
    dpar_mem_gather g;
    dpari_cuda_rows r;
};

template <typename V>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 4)
    dpari_cuda_fetch_kernel(DPARI_CUDA_ARGS dpari_cuda_fetch s)
{
    for (int64_t c = blockIdx.x; c < s.r.chunks; c += gridDim.x) {
        V v[4];
        unsigned char *to[4];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            int64_t row, unit;
            to[j] = NULL;
            if (dpari_cuda_rows_at(s.r, s.g.rows, c, threadIdx.x + (uint32_t)j * DPARI_CUDA_THREADS,
                                   &row, &unit)) {
                const int64_t from = dpari_cuda_row(s.g.index, row);
                const int64_t at = unit * (int64_t)sizeof(V);
                to[j] = (unsigned char *)s.g.to + row * s.g.to_step + at;
                v[j] = dpari_cuda_nought<V>();
                if (from >= 0) {
                    v[j] = *(const V *)(const void *)((const unsigned char *)s.g.from +
                                                      from * s.g.from_step + at);
                }
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            if (to[j] != NULL) {
                *(V *)(void *)to[j] = v[j];
            }
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_gather(void *ctx, const dpar_mem_gather *gather)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_gather *g = gather;
    dpari_cuda_fetch s;
    uintptr_t all, width; /* width: bytes of a unit */
    void (*kernel)(const dpari_cuda_fetch) = dpari_cuda_fetch_kernel<unsigned char>;
    if (g->rows < 0 || g->bytes < 0 || !dpari_cuda_index_fine(&g->index, g->rows) ||
        g->to_step < g->bytes || (g->from_step < g->bytes && g->from_step != 0) ||
        (g->rows > 0 && g->bytes > 0 && g->to == NULL)) {
        return dpari_cuda_wrong(gpu, "gather");
    }
    if (g->rows == 0 || g->bytes == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.g = *g;
    all = (uintptr_t)g->to | (uintptr_t)g->from | (uintptr_t)g->to_step | (uintptr_t)g->from_step |
          (uintptr_t)g->bytes | 16u;
    width = all & (~all + 1); /* the lowest set bit of `all` */
    switch (width) {
    case 16: kernel = dpari_cuda_fetch_kernel<uint4>; break;
    case 8: kernel = dpari_cuda_fetch_kernel<uint2>; break;
    case 4: kernel = dpari_cuda_fetch_kernel<uint32_t>; break;
    case 2: kernel = dpari_cuda_fetch_kernel<uint16_t>; break;
    default: break;
    }
    s.r = dpari_cuda_rows_of(g->rows, g->bytes / (int64_t)width);
    return dpari_cuda_launch(gpu, "gather", kernel, s, dpari_cuda_wave(gpu, s.r.chunks));
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/scatter.c ==== */

/* Adds rows to rows that an index selects: dpar_mem_layers.scatter.
 *
 * Rows are added in windows, one after the other. Each row of a window has a key, which consists of
 * its target and its number in the window. Each block sorts a run of keys in shared memory, and the
 * place of a key among all keys is the sum of its places in all runs, which binary searches find.
 * Then the thread of a target's first key adds all rows of the target in order, which gives the
 * same bits whatever the launch. Targets of many rows, which are called hot, are processed
 * separately: several blocks fetch their rows, each for some of the columns, and add them in
 * order. */

enum {
    DPARI_CUDA_SORT = 1024,   /* keys that a block sorts */
    DPARI_CUDA_ROW_BITS = 15, /* bits of a key for the row's number; the other 49 bits hold any
                                 target */
    DPARI_CUDA_HOT = 32,      /* length of a group of keys; a target that fills a group is hot */
    DPARI_CUDA_STAGE = 128,   /* rows of a hot target that are fetched at a time */
    DPARI_CUDA_TILE = 8       /* fours of columns that a block of threads has: one column for each
                                 lane of a warp */
};

struct dpari_cuda_scatter {
    dpar_mem_scatter s;
    uint64_t *key, *merged;
    int64_t first, n; /* first row, and number of rows, of the window */
    dpari_cuda_rows r;
    int32_t span; /* keys that a block sorts, a power of two */
    int32_t even; /* 1: rows can be accessed as vectors */
};

/* The key of a row without a target is greater than all others. */
DPARI_CUDA_FN uint64_t dpari_cuda_key(int64_t target, int64_t i)
{
    return (uint64_t)(target < 0 ? -1 : target) << DPARI_CUDA_ROW_BITS | (uint64_t)i;
}

DPARI_CUDA_FN int dpari_cuda_bound(uint64_t key)
{
    return key < UINT64_C(1) << 63; /* a negative target makes the key negative */
}

/* Bitonic sort: compares pairs of keys `step` apart, and sorts stretches of `size` keys in
 * alternating directions. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_sort_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    __shared__ uint64_t key[DPARI_CUDA_SORT];
    for (int64_t c = (int64_t)blockIdx.x * s.span; c < s.n; c += (int64_t)gridDim.x * s.span) {
        __syncthreads();
        for (int32_t k = (int32_t)threadIdx.x; k < s.span; k += DPARI_CUDA_THREADS) {
            key[k] = UINT64_MAX;
            if (c + k < s.n) {
                key[k] = dpari_cuda_key(dpari_cuda_row(s.s.index, s.first + c + k), c + k);
            }
        }
        for (int32_t size = 2; size <= s.span; size *= 2) {
            for (int32_t step = size / 2; step > 0; step /= 2) {
                __syncthreads();
                for (int32_t k = (int32_t)threadIdx.x; k < s.span / 2; k += DPARI_CUDA_THREADS) {
                    const int32_t i = 2 * k - (k & (step - 1));
                    const uint64_t a = key[i], b = key[i + step];
                    if ((a > b) == ((i & size) == 0)) {
                        key[i] = b;
                        key[i + step] = a;
                    }
                }
            }
        }
        __syncthreads();
        for (int32_t k = (int32_t)threadIdx.x; k < s.span && c + k < s.n; k += DPARI_CUDA_THREADS) {
            s.key[c + k] = key[k];
        }
    }
}

/* Computes the places of the keys. Each thread has a key. The runs are loaded into shared memory
 * one after the other, the next run while the current one is searched. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_sort_rank_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    enum { PER = DPARI_CUDA_SORT / DPARI_CUDA_THREADS };
    __shared__ uint64_t run[DPARI_CUDA_SORT];
    const int64_t step = (int64_t)gridDim.x * DPARI_CUDA_THREADS;
    for (int64_t c = (int64_t)blockIdx.x * DPARI_CUDA_THREADS; c < s.n; c += step) {
        const uint64_t key = c + threadIdx.x < s.n ? s.key[c + threadIdx.x] : 0;
        uint64_t next[PER];
        int64_t below = 0;
        for (int64_t r = -DPARI_CUDA_SORT; r < s.n; r += DPARI_CUDA_SORT) {
            __syncthreads();
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                const int32_t k = j * DPARI_CUDA_THREADS + (int32_t)threadIdx.x;
                const int64_t at = r + DPARI_CUDA_SORT + k;
                if (r >= 0) {
                    run[k] = next[j];
                }
                next[j] = at < s.n ? s.key[at] : UINT64_MAX;
            }
            __syncthreads();
            int32_t lo = 0;
            for (int32_t half = DPARI_CUDA_SORT / 2; half > 0 && r >= 0; half /= 2) {
                lo += run[lo + half - 1] < key ? half : 0;
            }
            below += r >= 0 ? lo + (run[lo] < key) : 0;
        }
        if (c + threadIdx.x < s.n) {
            s.merged[below] = key;
        }
    }
}

/* True if the target of key p fills the first complete group of DPARI_CUDA_HOT keys from p on. */
__device__ static inline int dpari_cuda_hot(const dpari_cuda_scatter &s, int64_t p)
{
    const int64_t last =
        (p + DPARI_CUDA_HOT - 1) / DPARI_CUDA_HOT * DPARI_CUDA_HOT + DPARI_CUDA_HOT - 1;
    return last < s.n && s.key[last] >> DPARI_CUDA_ROW_BITS == s.key[p] >> DPARI_CUDA_ROW_BITS;
}

/* Normalises the NaNs in results of sums, which have kept their sign and payload. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_store(const dpari_cuda_scatter &s, W *to,
                                                       int64_t at, W *sum)
{
    const int32_t width = (int32_t)sizeof(W);
    dpari_cuda_four made;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        sum[e] = dpari_cuda_plain(sum[e]);
    }
    dpari_cuda_narrow(&made, width == 8 ? DPAR_F64 : DPAR_F32, sum);
    dpari_cuda_store<0>(&made, to, at, s.s.width, width, s.even);
}

/* Loads four elements of a key's row. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_load(const dpari_cuda_scatter &s, uint64_t key,
                                                      int64_t at, dpari_cuda_four *v)
{
    const int64_t i = s.first + (int64_t)(key & ((1u << DPARI_CUDA_ROW_BITS) - 1));
    dpari_cuda_load<0, sizeof(W) == 8>(v, (const W *)s.s.from + i * s.s.width, at, s.s.width,
                                       (int32_t)sizeof(W), s.even);
}

/* Adds four elements of the rows of `key`, which is key number p, and of the following keys with
 * the same target, to the target. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_unit(const dpari_cuda_scatter &s, int64_t p,
                                                      uint64_t key, int64_t at)
{
    enum { AHEAD = 4 };
    const int32_t width = (int32_t)sizeof(W), type = width == 8 ? DPAR_F64 : DPAR_F32;
    const uint64_t target = key >> DPARI_CUDA_ROW_BITS;
    W *to = (W *)s.s.to + (int64_t)target * s.s.width;
    dpari_cuda_four v[AHEAD], made;
    W sum[4], x[4];
    int32_t some = AHEAD;
    dpari_cuda_load<0, sizeof(W) == 8>(&made, to, at, s.s.width, width, s.even);
    dpari_cuda_widen(&made, type, sum);
    for (; some == AHEAD && p < s.n; p += AHEAD) {
        some = 0;
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            const uint64_t next = p + j < s.n ? s.key[p + j] : UINT64_MAX;
            if (next >> DPARI_CUDA_ROW_BITS == target) {
                dpari_cuda_scatter_load<W>(s, next, at, &v[j]);
                some++;
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            if (j < some) {
                dpari_cuda_widen(&v[j], type, x);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    sum[e] = dpari_cuda_add(sum[e], x[e]);
                }
            }
        }
    }
    dpari_cuda_scatter_store(s, to, at, sum);
}

/* Processes the targets that are not hot, each in the thread of its first key. */
template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_scatter_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    for (int64_t c = blockIdx.x; c < s.r.chunks; c += gridDim.x) {
        for (uint32_t local = threadIdx.x; local < 4 * DPARI_CUDA_THREADS;
             local += DPARI_CUDA_THREADS) {
            int64_t p, unit;
            if (!dpari_cuda_rows_at(s.r, s.n, c, local, &p, &unit)) {
                continue;
            }
            const uint64_t key = s.key[p], before = p > 0 ? s.key[p - 1] : UINT64_MAX;
            if (dpari_cuda_bound(key) &&
                key >> DPARI_CUDA_ROW_BITS != before >> DPARI_CUDA_ROW_BITS &&
                !dpari_cuda_hot(s, p)) {
                dpari_cuda_scatter_unit<W>(s, p, key, 4 * unit);
            }
        }
    }
}

template <typename W> struct alignas(16) dpari_cuda_units_of {
    W x[4];
};

/* Adds the rows of keys [begin, end) to one target, in TILE fours of columns from `first` on. A
 * thread fetches the same four of every 32nd row. While the first warp adds the rows of one stage
 * in order, a column in each lane, the rows of the next stage and the keys of the stage after it
 * are being loaded. Rows beyond the end are -0, which changes no sum. */
template <typename W>
__device__ static inline void dpari_cuda_scatter_run(const dpari_cuda_scatter &s, int64_t begin,
                                                     int64_t end, int64_t first)
{
    enum {
        STAGE = DPARI_CUDA_STAGE,
        TILE = DPARI_CUDA_TILE,
        APART = DPARI_CUDA_THREADS / TILE,
        PER = STAGE / APART,
        AHEAD = 16
    };
    __shared__ dpari_cuda_units_of<W> stage[STAGE][TILE];
    const int32_t width = (int32_t)sizeof(W), type = width == 8 ? DPAR_F64 : DPAR_F32;
    const int32_t lane = (int32_t)threadIdx.x % TILE, row = (int32_t)threadIdx.x / TILE;
    const int64_t column = first + 4 * lane, own = first + (int64_t)threadIdx.x;
    const int adds = threadIdx.x < 4 * TILE && own < s.s.width;
    W *to = (W *)s.s.to + (int64_t)(s.key[begin] >> DPARI_CUDA_ROW_BITS) * s.s.width;
    W sum = adds ? to[own] : (W)0;
    uint64_t key[PER];
    dpari_cuda_four v[PER];
    DPARI_CUDA_UNROLL
    for (int j = 0; j < PER; j++) {
        const int64_t at = begin + row + j * APART;
        key[j] = at < end ? s.key[at] : UINT64_MAX;
    }
    for (int64_t p = begin - STAGE; p < end; p += STAGE) {
        const int64_t left = end - p < STAGE ? end - p : (int64_t)STAGE;
        const int64_t now = p < begin ? 0 : left;
        __syncthreads();
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER && p >= begin; j++) {
            W *x = stage[row + j * APART][lane].x;
            if (row + j * APART < now && column < s.s.width) {
                dpari_cuda_widen(&v[j], type, x);
            } else {
                x[0] = x[1] = x[2] = x[3] = (W)-0.0;
            }
        }
        __syncthreads();
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER; j++) {
            const int64_t at = p + 2 * STAGE + row + j * APART;
            if (key[j] != UINT64_MAX && column < s.s.width) {
                dpari_cuda_scatter_load<W>(s, key[j], column, &v[j]);
            }
            key[j] = at < end ? s.key[at] : UINT64_MAX;
        }
        for (int64_t k = 0; k < now && adds; k += AHEAD) {
            W x[AHEAD];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                x[j] = stage[k + j][threadIdx.x / 4].x[threadIdx.x % 4];
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                sum = dpari_cuda_add(sum, x[j]);
            }
        }
    }
    if (adds) {
        to[own] = dpari_cuda_plain(sum);
    }
}

/* Finds the keys of the hot target whose first complete group of DPARI_CUDA_HOT keys begins at p.
 * Each thread compares some keys, because a binary search would wait for one load after the
 * other. */
__device__ static inline void dpari_cuda_scatter_keys(const dpari_cuda_scatter &s, int64_t p,
                                                      int64_t *begin, int64_t *end)
{
    enum { BLOCKS = (1 << DPARI_CUDA_ROW_BITS) / DPARI_CUDA_HOT };
    const uint64_t target = s.key[p] >> DPARI_CUDA_ROW_BITS;
    const int32_t t = (int32_t)threadIdx.x;
    int64_t before = 0, blocks = 0, behind = 0, last;
    double both;
    if (t > 0 && t < DPARI_CUDA_HOT && t <= p) {
        before = s.key[p - t] >> DPARI_CUDA_ROW_BITS == target;
    }
    DPARI_CUDA_UNROLL
    for (int32_t k = t; k < BLOCKS; k += DPARI_CUDA_THREADS) {
        const int64_t at = p + (int64_t)k * DPARI_CUDA_HOT;
        blocks += at < s.n && s.key[at] >> DPARI_CUDA_ROW_BITS == target;
    }
    both = dpari_cuda_block_sum((double)(before * 2 * BLOCKS + blocks));
    before = (int64_t)both / (2 * BLOCKS);
    blocks = (int64_t)both % (2 * BLOCKS);
    last = p + (blocks - 1) * DPARI_CUDA_HOT;
    if (t > 0 && t < DPARI_CUDA_HOT && last + t < s.n) {
        behind = s.key[last + t] >> DPARI_CUDA_ROW_BITS == target;
    }
    *begin = p - before;
    *end = last + 1 + (int64_t)dpari_cuda_block_sum((double)behind);
}

/* Processes all hot targets. Each block finds them itself, which takes only a few loads, and
 * processes its share of their tiles of columns. */
template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_scatter_hot_kernel(DPARI_CUDA_ARGS dpari_cuda_scatter s)
{
    enum { WORDS = (1 << DPARI_CUDA_ROW_BITS) / DPARI_CUDA_HOT / 32 };
    __shared__ uint32_t hot[WORDS]; /* a bit for each group of keys: 1 for the first group of a hot
                                       target */
    const int64_t tiles = (s.s.width + 4 * DPARI_CUDA_TILE - 1) / (4 * DPARI_CUDA_TILE);
    int64_t item = blockIdx.x; /* tiles are counted through all hot targets */
    for (int32_t k = (int32_t)threadIdx.x; k < 32 * WORDS; k += DPARI_CUDA_THREADS) {
        const int64_t p = (int64_t)k * DPARI_CUDA_HOT;
        const int is = p < s.n && dpari_cuda_bound(s.key[p]) && dpari_cuda_hot(s, p) &&
                       (k == 0 || s.key[p - DPARI_CUDA_HOT] >> DPARI_CUDA_ROW_BITS !=
                                      s.key[p] >> DPARI_CUDA_ROW_BITS);
        const uint32_t bits = __ballot_sync(0xffffffffu, is);
        if (k % 32 == 0) {
            hot[k / 32] = bits;
        }
    }
    __syncthreads();
    for (int32_t k = 0; k < 32 * WORDS; k++) {
        const int64_t p = (int64_t)k * DPARI_CUDA_HOT;
        if (hot[k / 32] >> (k % 32) == 0) { /* no more bits in this word */
            k |= 31;
        } else if (hot[k / 32] >> (k % 32) & 1u) {
            if (item < tiles) {
                int64_t begin, end;
                dpari_cuda_scatter_keys(s, p, &begin, &end);
                for (; item < tiles; item += gridDim.x) {
                    dpari_cuda_scatter_run<W>(s, begin, end, item * 4 * DPARI_CUDA_TILE);
                }
            }
            item -= tiles;
        }
    }
}

/* Adds the rows of one window. */
static dpar_status dpari_cuda_scatter_now(dpar_cuda *gpu, dpari_cuda_scatter *s)
{
    const int64_t most = (s->n + DPARI_CUDA_SORT - 1) / DPARI_CUDA_SORT;
    dpar_status st;
    s->span = 2;
    while (s->span < s->n && s->span < DPARI_CUDA_SORT) {
        s->span *= 2;
    }
    st = dpari_cuda_launch(gpu, "scatter", dpari_cuda_sort_kernel, *s, dpari_cuda_wave(gpu, most));
    if (st == DPAR_OK && s->n > s->span) {
        uint64_t *key = s->merged;
        st = dpari_cuda_launch(gpu, "scatter", dpari_cuda_sort_rank_kernel, *s,
                               dpari_cuda_units_blocks(gpu, s->n));
        s->merged = s->key;
        s->key = key;
    }
    if (st == DPAR_OK && s->n >= DPARI_CUDA_HOT) {
        st = dpari_cuda_launch(gpu, "scatter",
                               s->s.type == DPAR_F64 ? dpari_cuda_scatter_hot_kernel<double>
                                                     : dpari_cuda_scatter_hot_kernel<float>,
                               *s, dpari_cuda_wave(gpu, 4 * (int64_t)gpu->multiprocessors));
    }
    s->r = dpari_cuda_rows_of(s->n, (s->s.width + 3) / 4);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_cuda_launch(gpu, "scatter",
                             s->s.type == DPAR_F64 ? dpari_cuda_scatter_kernel<double>
                                                   : dpari_cuda_scatter_kernel<float>,
                             *s, dpari_cuda_each(gpu, s->r.chunks));
}

DPARI_INTERNAL dpar_status dpari_cuda_scatter_add(void *ctx, const dpar_mem_scatter *scatter)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_scatter s;
    int64_t window = gpu->scratch_bytes / 16;
    dpar_status st = DPAR_OK;
    if (scatter->rows < 0 || scatter->width < 0 ||
        (scatter->type != DPAR_F64 && scatter->type != DPAR_F32) ||
        !dpari_cuda_index_fine(&scatter->index, scatter->rows) ||
        (scatter->rows > 0 && scatter->width > 0 &&
         (scatter->to == NULL || scatter->from == NULL))) {
        return dpari_cuda_wrong(gpu, "scatter");
    }
    if (scatter->width == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.s = *scatter;
    s.key = (uint64_t *)gpu->scratch;
    window = window < (1 << DPARI_CUDA_ROW_BITS) ? window : (int64_t)1 << DPARI_CUDA_ROW_BITS;
    s.merged = s.key + window;
    s.even = scatter->width % 4 == 0 &&
             dpari_cuda_even(scatter->to, 0, dpari_cuda_width(scatter->type)) &&
             dpari_cuda_even(scatter->from, 0, dpari_cuda_width(scatter->type));
    for (; s.first < scatter->rows && st == DPAR_OK; s.first += window) {
        s.n = scatter->rows - s.first < window ? scatter->rows - s.first : window;
        st = dpari_cuda_scatter_now(gpu, &s);
    }
    return st;
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/combine.c ==== */

/* Weighted sums of rows: dpar_mem_layers.combine. */

struct dpari_cuda_mix {
    dpar_mem_combine m;
    dpari_cuda_rows r;
    int32_t even_to, even_from;
};

/* If TYPE is set, all rows have this type and are processed in units of 16 bytes. The bits are the
 * same. AHEAD rows are loaded together. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, TYPE != DPAR_TYPE_NONE ? 4 : 3)
    dpari_cuda_mix_kernel(DPARI_CUDA_ARGS dpari_cuda_mix s)
{
    enum { AHEAD = 2, ALL = dpari_cuda_fours_of(TYPE), FOURS = ALL > 0 ? ALL : 1 };
    const dpar_mem_combine &m = s.m;
    const int32_t to_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)m.to_type;
    const int32_t from_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)m.from_type;
    const int32_t tw = dpari_cuda_width(to_type), fw = dpari_cuda_width(from_type);
    for (int64_t c = blockIdx.x; c < s.r.chunks; c += gridDim.x) {
        for (uint32_t local = threadIdx.x; local < 4 * DPARI_CUDA_THREADS;
             local += DPARI_CUDA_THREADS) {
            int64_t t, unit;
            double sum[FOURS][4] = {{0.0}};
            dpari_cuda_four made[FOURS];
            if (!dpari_cuda_rows_at(s.r, m.rows, c, local, &t, &unit)) {
                continue;
            }
            for (int64_t j = 0; j < m.choices; j += AHEAD) {
                dpari_cuda_four v[AHEAD][FOURS];
                double x[4], w[AHEAD];
                int64_t row[AHEAD];
                DPARI_CUDA_UNROLL
                for (int a = 0; a < AHEAD; a++) {
                    const int64_t choice = t * m.choices + j + a;
                    row[a] = j + a < m.choices ? dpari_cuda_row(m.index, choice) : -1;
                    w[a] = 1.0;
                    if (row[a] >= 0) {
                        dpari_cuda_load_unit<0, ALL>(v[a], m.from, row[a] * m.width,
                                                     4 * FOURS * unit, m.width, fw, s.even_from);
                    }
                    if (row[a] >= 0 && m.weight != NULL) {
                        w[a] = dpari_cuda_get_wide(m.weight, choice, m.weight_type);
                    }
                }
                DPARI_CUDA_UNROLL
                for (int a = 0; a < AHEAD * FOURS; a++) {
                    double *to = sum[a % FOURS];
                    if (row[a / FOURS] < 0) {
                        continue;
                    }
                    dpari_cuda_widen(&v[a / FOURS][a % FOURS], from_type, x);
                    DPARI_CUDA_UNROLL
                    for (int e = 0; e < 4; e++) {
                        x[e] = m.weight != NULL ? dpari_cuda_mul(w[a / FOURS], x[e]) : x[e];
                        to[e] = dpari_cuda_add(to[e], x[e]);
                    }
                }
            }
            DPARI_CUDA_UNROLL
            for (int k = 0; k < FOURS; k++) {
                dpari_cuda_narrow(&made[k], to_type, sum[k]);
            }
            dpari_cuda_store_unit<0, ALL>(made, m.to, t * m.width, 4 * FOURS * unit, m.width, tw,
                                          s.even_to);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_combine(void *ctx, const dpar_mem_combine *combine)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_combine *m = combine;
    void (*kernel)(const dpari_cuda_mix) = dpari_cuda_mix_kernel<DPAR_TYPE_NONE>;
    dpari_cuda_mix s;
    if (m->rows < 0 || m->choices < 0 || m->width < 0 || !dpari_cuda_is_float(m->to_type) ||
        !dpari_cuda_is_float(m->from_type) ||
        (m->weight != NULL && m->weight_type != DPAR_F64 && m->weight_type != DPAR_F32) ||
        !dpari_cuda_index_fine(&m->index, m->rows > 0 ? m->choices : 0) ||
        (m->rows > 0 && m->width > 0 && m->to == NULL)) {
        return dpari_cuda_wrong(gpu, "combine");
    }
    if (m->rows == 0 || m->width == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.m = *m;
    s.even_to = m->width % 4 == 0 && dpari_cuda_even(m->to, 0, dpari_cuda_width(m->to_type));
    s.even_from = m->width % 4 == 0 && dpari_cuda_even(m->from, 0, dpari_cuda_width(m->from_type));
    s.r = dpari_cuda_rows_of(m->rows, (m->width + 3) / 4);
    if (m->to_type == m->from_type && (m->to_type == DPAR_BF16 || m->to_type == DPAR_F32) &&
        dpari_cuda_aligned(m->to) && dpari_cuda_aligned(m->from) &&
        m->width * dpari_cuda_width(m->to_type) % 16 == 0) {
        kernel = m->to_type == DPAR_BF16 ? dpari_cuda_mix_kernel<DPAR_BF16>
                                         : dpari_cuda_mix_kernel<DPAR_F32>;
        s.r = dpari_cuda_rows_of(m->rows, m->width * dpari_cuda_width(m->to_type) / 16);
    }
    return dpari_cuda_launch(gpu, "combine", kernel, s, dpari_cuda_wave(gpu, s.r.chunks));
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/dot.c ==== */

/* Products of rows: dpar_mem_layers.dot. */

struct dpari_cuda_dots {
    dpar_mem_dot d;
    int32_t even; /* 1: rows can be read as vectors */
    int32_t room;
};

/* Each warp has a row, whose elements are assigned to lanes in a fixed order. TYPE is set if the
 * kernel knows it and all units are vectors; then four vectors of each row are in flight
 * together. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_dot_kernel(DPARI_CUDA_ARGS dpari_cuda_dots s)
{
    enum { WHOLE = TYPE != DPAR_TYPE_NONE, PER = WHOLE ? 4 : 1, APART = 4 * 32 };
    const dpar_mem_dot &d = s.d;
    const int32_t type = WHOLE ? TYPE : (int)d.type, width = dpari_cuda_width(type);
    const int64_t lane = threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * DPARI_CUDA_WARPS + threadIdx.x / 32;
    for (; i < d.rows; i += (int64_t)gridDim.x * DPARI_CUDA_WARPS) {
        const int64_t row = d.index.at == NULL ? i : dpari_cuda_row(d.index, i);
        const unsigned char *a = (const unsigned char *)d.a + i / d.choices * d.width * width;
        const unsigned char *b = (const unsigned char *)d.b + (row < 0 ? 0 : row) * d.width * width;
        double sum = 0.0;
        for (int64_t at = 4 * lane; at < d.width && row >= 0; at += PER * APART) {
            dpari_cuda_four x[PER], y[PER];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                if (at + j * APART < d.width) {
                    dpari_cuda_load<0>(&x[j], a, at + j * APART, d.width, width, WHOLE || s.even);
                    dpari_cuda_load<0>(&y[j], b, at + j * APART, d.width, width, WHOLE || s.even);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                const int64_t left = d.width - (at + j * APART);
                double u[4], v[4];
                if (left <= 0) {
                    continue;
                }
                dpari_cuda_widen(&x[j], type, u);
                dpari_cuda_widen(&y[j], type, v);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    if (WHOLE || e < left) {
                        sum = dpari_cuda_add(sum, dpari_cuda_mul(u[e], v[e]));
                    }
                }
            }
        }
        sum = dpari_cuda_warp_sum(sum);
        if (lane == 0) {
            dpari_cuda_put_wide(d.to, i, d.to_type, sum);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_dot(void *ctx, const dpar_mem_dot *dot)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int32_t width = dpari_cuda_width(dot->type);
    void (*kernel)(const dpari_cuda_dots) = dpari_cuda_dot_kernel<DPAR_TYPE_NONE>;
    dpari_cuda_dots s;
    if (dot->rows < 0 || dot->choices < 1 || dot->width < 0 || !dpari_cuda_is_float(dot->type) ||
        (dot->to_type != DPAR_F64 && dot->to_type != DPAR_F32) ||
        (dot->index.at != NULL && !dpari_cuda_index_fine(&dot->index, dot->rows)) ||
        (dot->rows > 0 &&
         (dot->to == NULL || (dot->width > 0 && (dot->a == NULL || dot->b == NULL))))) {
        return dpari_cuda_wrong(gpu, "dot");
    }
    if (dot->rows == 0) {
        return DPAR_OK;
    }
    s.d = *dot;
    s.room = 0;
    s.even = dot->width % 4 == 0 && dpari_cuda_even(dot->a, 0, width) &&
             dpari_cuda_even(dot->b, 0, width);
    if (s.even && dot->type == DPAR_BF16) {
        kernel = dpari_cuda_dot_kernel<DPAR_BF16>;
    } else if (s.even && dot->type == DPAR_F32) {
        kernel = dpari_cuda_dot_kernel<DPAR_F32>;
    }
    return dpari_cuda_launch(
        gpu, "dot", kernel, s,
        dpari_cuda_wave(gpu, (dot->rows + DPARI_CUDA_WARPS - 1) / DPARI_CUDA_WARPS));
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/cross_entropy.c ==== */

/* Cross-entropy: dpar_mem_layers.cross_entropy. */

struct dpari_cuda_entropy {
    dpar_mem_cross_entropy x;
    double *part; /* partial sums of LOSS, three for each block */
    int32_t parts, room;
};

DPARI_CUDA_FN double dpari_cuda_lowest(void)
{
    return dpari_cuda_bits<double>(UINT64_C(0xfff0) << 48);
}

/* How exponentials are computed. EXACT, for F64 logits: to the last bits. SHORT, for F32 logits: in
 * f64, but only to 2^-39, because the results are rounded to F32. FAST, with fast_math: in F32. */
enum { DPARI_CUDA_EXACT, DPARI_CUDA_SHORT, DPARI_CUDA_FAST };

template <int HOW> __device__ static inline double dpari_cuda_exp(double x)
{
    return HOW == DPARI_CUDA_FAST ? (double)expf((float)x) : exp(x);
}

/* e^x = 2^k e^r for |x| < 700, where k is the integer next to x / ln 2 and |r| <= ln 2 / 2. e^r is
 * a polynomial of eight terms with the least largest relative error, 1.2e-12 (minimax, fitted with
 * 120 bits). */
DPARI_CUDA_FN double dpari_cuda_exp_short(double x)
{
    const double whole = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    const double t = fma(x, 1.4426950408889634, whole);
    const double r = fma(dpari_cuda_add(t, -whole), -0.6931471805599453, x);
    const int64_t k = (int64_t)(dpari_cuda_bits<uint64_t>(t) << 52); /* the low bits of t, as an
                                                                        exponent */
    double p = fma(2.4876178959085513e-05, r, 1.9915881871396035e-04);
    p = fma(p, r, 1.388882165071769e-03);
    p = fma(p, r, 8.333266071022454e-03);
    p = fma(p, r, 4.16666668910917e-02);
    p = fma(p, r, 1.6666666891180545e-01);
    p = fma(p, r, 4.9999999999797773e-01);
    p = fma(p, r, 9.99999999979769e-01);
    p = fma(p, r, 1.0);
    return dpari_cuda_bits<double>(dpari_cuda_bits<uint64_t>(p) + (uint64_t)k);
}

/* Replaces all N numbers by their exponentials. If one of them is NaN or above 700, all are
 * computed exactly. */
template <int HOW, int N> __device__ static inline void dpari_cuda_exps(double *x)
{
    uint32_t most = 0;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        const uint32_t high = (uint32_t)(dpari_cuda_bits<uint64_t>(x[e]) >> 32) & 0x7fffffffu;
        most = high > most ? high : most;
    }
    if (HOW == DPARI_CUDA_SHORT && most < 0x4085e000u) { /* 700.0 */
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            x[e] = dpari_cuda_exp_short(x[e]);
        }
        return;
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        x[e] = dpari_cuda_exp<HOW>(x[e]);
    }
}

__device__ static inline int dpari_cuda_counts(const dpar_mem_cross_entropy &x, int64_t token)
{
    const int64_t target = dpari_cuda_index_at(x.target, token);
    return target >= 0 && (x.ignore == 0 || target != x.ignore - 1);
}

/* A thread's largest logit so far, and its sum of exponentials relative to that logit. */
template <typename V> struct dpari_cuda_soft {
    V most;
    double below;
};

/* Adds N more logits. Their maximum is computed first, so that the sum changes its base only
 * once. */
template <int HOW, int N, typename V>
__device__ static inline void dpari_cuda_soften(dpari_cuda_soft<V> *a, const V *x)
{
    const V lowest = (V)dpari_cuda_lowest();
    V top = a->most, base;
    double below[N];
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        top = x[e] > top ? x[e] : top;
    }
    if (top > a->most) { /* if this is the first logit, the sum is 0 or NaN */
        a->below *= a->most == lowest ? 1.0 : dpari_cuda_exp<HOW>((double)a->most - (double)top);
        a->most = top;
    }
    base = top == lowest ? (V)0 : top; /* so that e^(x - base) is 0 if all logits are -infinity */
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        below[e] = HOW == DPARI_CUDA_FAST ? (double)dpari_cuda_add(x[e], -base)
                                          : dpari_cuda_add((double)x[e], -(double)base);
    }
    dpari_cuda_exps<HOW, N>(below);
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        a->below = dpari_cuda_add(a->below, below[e]);
    }
}

/* Combines the sums of all threads relative to the largest logit of all, and returns the result to
 * all threads. */
template <int HOW, typename V>
__device__ static inline dpari_cuda_soft<V> dpari_cuda_soft_block(dpari_cuda_soft<V> a)
{
    const V lowest = (V)dpari_cuda_lowest();
    const V top = dpari_cuda_block_all<dpari_cuda_greatest>(
        dpari_cuda_warp_all<dpari_cuda_greatest>(a.most), lowest);
    if (a.most != lowest && a.most != top) {
        a.below *= dpari_cuda_exp<HOW>((double)a.most - (double)top);
    }
    a.below = dpari_cuda_block_sum(a.below);
    a.most = top;
    return a;
}

/* Adds PER fours of a run of logits, from u on and a block apart. Beyond the end of the run the
 * lowest number is used. Also adds up the logits themselves, if requested. */
template <int PER, int TYPE, typename V>
__device__ static inline void dpari_cuda_logits(const unsigned char *run, int64_t n, int even,
                                                int64_t u, V *v, int sums, double *sum)
{
    enum { APART = DPARI_CUDA_THREADS };
    const int32_t width = dpari_cuda_width(TYPE);
    dpari_cuda_four four[PER];
    if (even && 4 * (u + (PER - 1) * APART + 1) <= n) {
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER; j++) {
            dpari_cuda_load<0>(&four[j], run + 4 * (u + j * APART) * width, 0, 4, width, 1);
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER; j++) {
            dpari_cuda_widen(&four[j], TYPE, v + 4 * j);
        }
    } else {
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4 * PER; j++) {
            const int64_t at = 4 * (u + j / 4 * APART) + j % 4;
            v[j] = at < n ? ((const V *)(const void *)run)[at] : (V)dpari_cuda_lowest();
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < 4 * PER; j++) {
        if (sums && 4 * (u + j / 4 * APART) + j % 4 < n) {
            *sum = dpari_cuda_add(*sum, (double)v[j]);
        }
    }
}

/* Each block has a token, of which each thread has eight logits at a time. */
template <int HOW, int TYPE, typename V>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, TYPE == DPAR_F64 ? 2 : 4)
    dpari_cuda_entropy_part_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    enum { PER = 2 };
    const dpar_mem_cross_entropy &x = s.x;
    const int32_t width = dpari_cuda_width(TYPE);
    for (int64_t token = blockIdx.x; token < x.tokens; token += gridDim.x) {
        const unsigned char *base = (const unsigned char *)x.logits + token * x.rows * width;
        dpari_cuda_soft<V> a;
        double sum = 0.0;
        a.most = (V)dpari_cuda_lowest();
        a.below = 0.0;
        for (int w = 0; w < 2; w++) { /* units begin at the first column, even if its address is
                                         unaligned */
            const unsigned char *run = base + x.lo[w] * width;
            const int64_t n = x.hi[w] - x.lo[w];
            const int even = dpari_cuda_even(run, 0, width);
            for (int64_t u = threadIdx.x; 4 * u < n; u += PER * DPARI_CUDA_THREADS) {
                V v[4 * PER];
                dpari_cuda_logits<PER, TYPE>(run, n, even, u, v, x.smoothing > 0.0, &sum);
                dpari_cuda_soften<HOW, 4 * PER>(&a, v);
            }
        }
        a = dpari_cuda_soft_block<HOW>(a);
        if (x.smoothing > 0.0) {
            sum = dpari_cuda_block_sum(sum);
        }
        if (threadIdx.x == 0) {
            const int64_t h = dpari_cuda_row(x.target, token);
            const int none = x.hi[0] <= x.lo[0] && x.hi[1] <= x.lo[1];
            double own = 0.0;
            if (h >= 0) {
                own = dpari_cuda_mul(1.0 - x.smoothing,
                                     dpari_cuda_get_wide(x.logits, token * x.rows + h, x.type));
            }
            if (x.smoothing > 0.0) { /* avoids 0 times infinity */
                own = dpari_cuda_add(own, dpari_cuda_mul(x.smoothing / (double)x.vocabulary, sum));
            }
            a.most = none ? (V)0 : a.most;
            dpari_cuda_put_wide(x.partial, 3 * token, TYPE, (double)a.most);
            dpari_cuda_put_wide(x.partial, 3 * token + 1, TYPE, a.below);
            dpari_cuda_put_wide(x.partial, 3 * token + 2, TYPE, own);
        }
    }
}

__device__ static inline double dpari_cuda_three(const dpar_mem_cross_entropy &x, int64_t rank,
                                                 int64_t token, int which)
{
    return dpari_cuda_one(x.all, 3 * (rank * x.tokens + token) + which, x.type);
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_entropy_loss_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    const dpar_mem_cross_entropy &x = s.x;
    double loss = 0.0, z = 0.0, tokens = 0.0;
    for (int64_t i = dpari_cuda_thread(); i < x.tokens; i += dpari_cuda_threads()) {
        double most = 0.0, sum = 0.0, own = 0.0, lse;
        const int counts = dpari_cuda_counts(x, i);
        int first = 1;
        for (int32_t r = 0; r < x.ranks; r++) {
            const double m = dpari_cuda_three(x, r, i, 0);
            own = dpari_cuda_add(own, dpari_cuda_three(x, r, i, 2));
            if (!(dpari_cuda_three(x, r, i, 1) <= 0.0) && (first || m > most)) {
                most = m;
                first = 0;
            }
        }
        for (int32_t r = 0; r < x.ranks; r++) {
            const double below = dpari_cuda_three(x, r, i, 1);
            if (!(below <= 0.0)) {
                sum = dpari_cuda_add(
                    sum, dpari_cuda_mul(below, exp(dpari_cuda_three(x, r, i, 0) - most)));
            }
        }
        lse = sum > 0.0 ? dpari_cuda_add(most, log(sum)) : sum / sum;
        x.lse[i] = lse;
        const double more = dpari_cuda_mul(dpari_cuda_mul(x.z_loss, lse), lse);
        if (x.loss != NULL) {
            x.loss[i] = counts ? dpari_cuda_add(lse - own, more) : 0.0;
        }
        if (counts) {
            loss = dpari_cuda_add(loss, lse - own);
            z = dpari_cuda_add(z, more);
            tokens += 1.0;
        }
    }
    loss = dpari_cuda_block_sum(loss);
    z = dpari_cuda_block_sum(z);
    tokens = dpari_cuda_block_sum(tokens);
    if (threadIdx.x == 0) {
        s.part[3 * blockIdx.x] = loss;
        s.part[3 * blockIdx.x + 1] = z;
        s.part[3 * blockIdx.x + 2] = tokens;
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_entropy_sum_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    double sum[3] = {0.0, 0.0, 0.0};
    for (int32_t k = (int32_t)threadIdx.x; k < s.parts; k += DPARI_CUDA_THREADS) {
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 3; e++) {
            sum[e] = dpari_cuda_add(sum[e], s.part[3 * k + e]);
        }
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 3; e++) {
        sum[e] = dpari_cuda_block_sum(sum[e]);
    }
    if (threadIdx.x == 0) {
        s.x.sum->loss = sum[0];
        s.x.sum->z_loss = sum[1];
        s.x.sum->tokens = (int64_t)sum[2];
    }
}

/* Computes dx of N logits from column i on, one of which may be the target. */
template <int HOW, int N>
__device__ static inline void dpari_cuda_entropy_back(const dpar_mem_cross_entropy &x, int64_t i,
                                                      int64_t own, double lse, double factor,
                                                      double *v)
{
    const double smooth = x.scale * x.smoothing / (double)(x.vocabulary > 1 ? x.vocabulary : 1);
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        v[e] = v[e] - lse;
    }
    dpari_cuda_exps<HOW, N>(v);
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        v[e] = dpari_cuda_mul(factor, v[e]) - smooth;
    }
    if ((uint64_t)(own - i) < N) {
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            v[e] = i + e == own ? v[e] - x.scale * (1.0 - x.smoothing) : v[e];
        }
    }
    if (x.lo[0] != 0 || x.hi[0] != x.rows) { /* some columns do not belong to the vocabulary */
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            const int64_t c = i + e;
            const int real = (c >= x.lo[0] && c < x.hi[0]) || (c >= x.lo[1] && c < x.hi[1]);
            v[e] = real ? v[e] : 0.0;
        }
    }
}

/* Each block has a token, of which each thread has two fours of logits in flight together. Each
 * remaining logit at both ends is processed by one thread. */
template <int HOW, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 3)
    dpari_cuda_entropy_gradient_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    enum { PER = 2, APART = DPARI_CUDA_THREADS };
    const dpar_mem_cross_entropy &x = s.x;
    const int32_t width = dpari_cuda_width(TYPE);
    for (int64_t token = blockIdx.x; token < x.tokens; token += gridDim.x) {
        unsigned char *base = (unsigned char *)x.logits + token * x.rows * width;
        const int64_t aligned = dpari_cuda_head(base, width);
        const int64_t head = aligned < x.rows ? aligned : x.rows, fours = (x.rows - head) / 4;
        const int64_t own = dpari_cuda_row(x.target, token);
        const int counts = dpari_cuda_counts(x, token);
        const double lse = x.lse[token];
        const double factor =
            dpari_cuda_mul(x.scale, dpari_cuda_add(1.0, dpari_cuda_mul(2.0 * x.z_loss, lse)));
        for (int64_t u = threadIdx.x; u < fours; u += PER * APART) {
            unsigned char *at = base + (head + 4 * u) * width;
            dpari_cuda_four four[PER];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                if (u + j * APART < fours) {
                    dpari_cuda_load<0>(&four[j], at + 4 * j * APART * width, 0, 4, width, 1);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                double v[4] = {0.0, 0.0, 0.0, 0.0};
                if (u + j * APART >= fours) {
                    continue;
                }
                if (counts) {
                    dpari_cuda_widen(&four[j], TYPE, v);
                    dpari_cuda_entropy_back<HOW, 4>(x, head + 4 * (u + j * APART), own, lse, factor,
                                                    v);
                }
                dpari_cuda_narrow(&four[j], TYPE, v);
                dpari_cuda_store<0>(&four[j], at + 4 * j * APART * width, 0, 4, width, 1);
            }
        }
        if (threadIdx.x < x.rows - 4 * fours) {
            const int64_t i = threadIdx.x < head ? threadIdx.x : threadIdx.x + 4 * fours;
            double v = 0.0;
            if (counts) {
                v = dpari_cuda_get_wide(base, i, TYPE);
                dpari_cuda_entropy_back<HOW, 1>(x, i, own, lse, factor, &v);
            }
            dpari_cuda_put_wide(base, i, TYPE, v);
        }
    }
}

static int dpari_cuda_entropy_fine(const dpar_mem_cross_entropy *x)
{
    const int some = x->tokens > 0;
    if ((x->type != DPAR_F64 && x->type != DPAR_F32) || x->tokens < 0 || x->rows < 0 ||
        x->phase < DPAR_MEM_CROSS_ENTROPY_PART || x->phase > DPAR_MEM_CROSS_ENTROPY_GRADIENT ||
        !dpari_cuda_index_fine(&x->target, x->tokens)) {
        return 0;
    }
    if (x->phase == DPAR_MEM_CROSS_ENTROPY_LOSS) {
        return x->ranks >= 1 && (!some || (x->all != NULL && x->lse != NULL));
    }
    if (x->lo[0] > x->hi[0] || x->lo[1] > x->hi[1] || x->lo[0] < 0 || x->lo[1] < 0 ||
        x->hi[0] > x->rows || x->hi[1] > x->rows || (some && x->rows > 0 && x->logits == NULL)) {
        return 0;
    }
    return !some || (x->phase == DPAR_MEM_CROSS_ENTROPY_PART ? x->partial != NULL : x->lse != NULL);
}

typedef void (*dpari_cuda_entropist)(const dpari_cuda_entropy);

template <int HOW, int TYPE, typename V>
static dpari_cuda_entropist dpari_cuda_entropy_kernel_of(int32_t phase)
{
    return phase == DPAR_MEM_CROSS_ENTROPY_PART ? dpari_cuda_entropy_part_kernel<HOW, TYPE, V>
                                                : dpari_cuda_entropy_gradient_kernel<HOW, TYPE>;
}

DPARI_INTERNAL dpar_status dpari_cuda_entropy_op(void *ctx, const dpar_mem_cross_entropy *entropy)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int fast = gpu->fast_math && entropy->type == DPAR_F32;
    const int64_t blocks = dpari_cuda_wave(gpu, entropy->tokens);
    dpari_cuda_entropist kernel;
    dpari_cuda_entropy s;
    dpar_status st;
    if (!dpari_cuda_entropy_fine(entropy)) {
        return dpari_cuda_wrong(gpu, "cross_entropy");
    }
    s.x = *entropy;
    s.part = (double *)gpu->scratch;
    s.room = 0;
    s.parts = DPARI_CUDA_PARTS;
    if (entropy->tokens < (int64_t)DPARI_CUDA_PARTS * DPARI_CUDA_THREADS) {
        s.parts = (int32_t)((entropy->tokens + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS);
    }
    if (entropy->phase == DPAR_MEM_CROSS_ENTROPY_LOSS) { /* the number of blocks depends only on the
                                                            tokens, so that sums do, too */
        st = entropy->tokens == 0 ? DPAR_OK
                                  : dpari_cuda_launch(gpu, "cross_entropy",
                                                      dpari_cuda_entropy_loss_kernel, s, s.parts);
        return st != DPAR_OK || entropy->sum == NULL
                   ? st
                   : dpari_cuda_launch(gpu, "cross_entropy", dpari_cuda_entropy_sum_kernel, s, 1);
    }
    if (entropy->tokens == 0) {
        return DPAR_OK;
    }
    kernel = dpari_cuda_entropy_kernel_of<DPARI_CUDA_EXACT, DPAR_F64, double>(entropy->phase);
    if (fast) {
        kernel = dpari_cuda_entropy_kernel_of<DPARI_CUDA_FAST, DPAR_F32, float>(entropy->phase);
    } else if (entropy->type == DPAR_F32) {
        kernel = dpari_cuda_entropy_kernel_of<DPARI_CUDA_SHORT, DPAR_F32, float>(entropy->phase);
    }
    return dpari_cuda_launch(gpu, "cross_entropy", kernel, s, blocks);
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/attention_merge.c ==== */

/* Merges two results of attention by online softmax: dpar_mem_layers.attention_merge. */

struct dpari_cuda_merge {
    dpar_mem_attention_merge m;
    int64_t chunks;
    int32_t rows; /* rows of a chunk, at most DPARI_CUDA_THREADS */
    int32_t even;
};

/* What happens to a row: it is kept, replaced, or mixed. */
enum { DPARI_CUDA_KEEP, DPARI_CUDA_TAKE, DPARI_CUDA_MIX };

template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_merge_kernel(DPARI_CUDA_ARGS dpari_cuda_merge s)
{
    __shared__ double keep[DPARI_CUDA_THREADS], more[DPARI_CUDA_THREADS];
    __shared__ int32_t how[DPARI_CUDA_THREADS];
    const dpar_mem_attention_merge &m = s.m;
    const int32_t width = (int32_t)sizeof(W), t = (int32_t)threadIdx.x;
    const int64_t fours = (m.values + 3) / 4;
    for (int64_t c = blockIdx.x; c < s.chunks; c += gridDim.x) {
        const int64_t first = c * s.rows;
        const int64_t n = m.rows - first < s.rows ? m.rows - first : s.rows;
        __syncthreads();
        if (t < n) {
            const double a = (double)((const W *)m.lse)[first + t];
            const double b = (double)((const W *)m.more_lse)[first + t];
            how[t] = DPARI_CUDA_KEEP;
            if (a <= -1e30 && !(b <= -1e30)) {
                how[t] = DPARI_CUDA_TAKE;
                ((W *)m.lse)[first + t] = ((const W *)m.more_lse)[first + t];
            } else if (!(b <= -1e30)) { /* also for NaN, which has to reach the result */
                const double most = a > b ? a : b, e = exp(a - most), f = exp(b - most);
                how[t] = DPARI_CUDA_MIX;
                keep[t] = e / (e + f);
                more[t] = f / (e + f);
                ((W *)m.lse)[first + t] = (W)(most + log(e + f));
            }
        }
        __syncthreads();
        for (int64_t u = t; u < n * fours; u += DPARI_CUDA_THREADS) {
            const int32_t row = s.rows > 1 ? (int32_t)((uint32_t)u / (uint32_t)fours) : 0;
            const int64_t at = 4 * (u - row * fours);
            W *to = (W *)m.out + (first + row) * m.values;
            const W *from = (const W *)m.more + (first + row) * m.values;
            dpari_cuda_four x, y;
            W v[4], w[4];
            if (how[row] == DPARI_CUDA_KEEP) {
                continue;
            }
            dpari_cuda_load<0>(&x, from, at, m.values, width, s.even);
            if (how[row] == DPARI_CUDA_MIX) {
                const W k = (W)keep[row], f = (W)more[row];
                const int32_t type = width == 8 ? DPAR_F64 : DPAR_F32;
                dpari_cuda_load<0>(&y, to, at, m.values, width, s.even);
                dpari_cuda_widen(&x, type, v);
                dpari_cuda_widen(&y, type, w);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    v[e] = dpari_cuda_add(dpari_cuda_mul(k, w[e]), dpari_cuda_mul(f, v[e]));
                }
                dpari_cuda_narrow(&x, type, v);
            }
            dpari_cuda_store<0>(&x, to, at, m.values, width, s.even);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_merge_op(void *ctx, const dpar_mem_attention_merge *merge)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int32_t width = dpari_cuda_width(merge->type);
    dpari_cuda_merge s;
    int64_t rows;
    if ((merge->type != DPAR_F64 && merge->type != DPAR_F32) || merge->rows < 0 ||
        merge->values < 0 ||
        (merge->rows > 0 && (merge->lse == NULL || merge->more_lse == NULL ||
                             (merge->values > 0 && (merge->out == NULL || merge->more == NULL))))) {
        return dpari_cuda_wrong(gpu, "attention_merge");
    }
    if (merge->rows == 0) {
        return DPAR_OK;
    }
    rows = merge->values > 0 ? 4096 / merge->values : (int64_t)DPARI_CUDA_THREADS;
    rows = rows > (int64_t)DPARI_CUDA_THREADS ? (int64_t)DPARI_CUDA_THREADS : rows;
    rows = rows < 1 ? 1 : rows;
    s.m = *merge;
    s.rows = (int32_t)rows;
    s.chunks = (merge->rows + rows - 1) / rows;
    s.even = merge->values % 4 == 0 && dpari_cuda_even(merge->out, 0, width) &&
             dpari_cuda_even(merge->more, 0, width);
    return dpari_cuda_launch(gpu, "attention_merge",
                             width == 8 ? dpari_cuda_merge_kernel<double>
                                        : dpari_cuda_merge_kernel<float>,
                             s, dpari_cuda_wave(gpu, s.chunks));
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/moments.c ==== */

/* Moments of planes: dpar_mem_layers.moments. */

struct dpari_cuda_moment {
    dpar_mem_moments m;
    dpari_cuda_plane<1> plane;
    int64_t sets, planes; /* number of sets, and of planes in each */
    int64_t slices;       /* number of slices of a set; if it is 1, the result is stored directly */
    int64_t each;         /* points of a slice */
    dpari_cuda_three_of *part;
    int32_t per_sample; /* number of groups of a sample; 0 if the sets are channels */
    int32_t fours;      /* 1: four points, from a multiple of four on, are a vector */
    int32_t few;        /* 1: a set has less than 2^31 points, so that a multiplication replaces
                           divisions */
    uint32_t magic;     /* for division by the points of a plane */
    uint8_t shift, room[7];
};

/* Returns the offset of point i of a set; points are counted through all planes of the set. */
__device__ static inline int64_t dpari_cuda_point(const dpari_cuda_moment &s, int64_t set,
                                                  int64_t i)
{
    const int64_t k =
        s.few ? (int64_t)dpari_cuda_over((uint32_t)i, s.magic, s.shift) : i / s.plane.points;
    const int64_t plane = s.per_sample > 0 ? set * s.planes + k /* channels of a group follow each
                                                                   other */
                                           : k * s.m.channels + set;
    int64_t at;
    dpari_cuda_plane_at(s.plane, i - k * s.plane.points, &at);
    return plane * s.m.step + at;
}

DPARI_CUDA_ONCE __device__ static double dpari_cuda_point_value(const dpari_cuda_moment &s,
                                                                int64_t set, int64_t i)
{
    return dpari_cuda_one(s.m.x, dpari_cuda_point(s, set, i), s.m.type);
}

/* Loads points i to i + 3; those from `hi` on are 0. */
__device__ static inline void dpari_cuda_points(const dpari_cuda_moment &s, int64_t set, int64_t i,
                                                int64_t hi, double *x)
{
    dpari_cuda_four four;
    if (s.fours && i + 4 <= hi) {
        const int32_t width = dpari_cuda_width(s.m.type);
        const unsigned char *at =
            (const unsigned char *)s.m.x + dpari_cuda_point(s, set, i) * width;
        dpari_cuda_load<0>(&four, at, 0, 4, width, 1);
        dpari_cuda_widen(&four, s.m.type, x);
        return;
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        x[e] = i + e < hi ? dpari_cuda_point_value(s, set, i + e) : 0.0;
    }
}

__device__ static inline dpari_cuda_three_of dpari_cuda_three_block(dpari_cuda_three_of a)
{
    __shared__ dpari_cuda_three_of part[DPARI_CUDA_THREADS];
    __syncthreads();
    part[threadIdx.x] = a;
    for (unsigned n = DPARI_CUDA_THREADS / 2; n > 0; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) {
            a = part[threadIdx.x];
            dpari_cuda_three_join(&a, part[threadIdx.x + n]);
            part[threadIdx.x] = a;
        }
    }
    __syncthreads();
    return part[0];
}

__device__ static inline void dpari_cuda_three_put(const dpari_cuda_moment &s, int64_t set,
                                                   const dpari_cuda_three_of &a)
{
    double *to = s.m.to + 3 * set;
    dpari_cuda_three_of sum = {0.0, 0.0, 0.0};
    if (s.m.accumulate) {
        sum = {to[0], to[1], to[2]};
    }
    dpari_cuda_three_join(&sum, a);
    to[0] = sum.count;
    to[1] = sum.mean;
    to[2] = sum.m2;
}

/* Computes the mean of the first n points of x, and the sum of their squares about the mean. */
template <int SOME, typename V>
__device__ static inline dpari_cuda_three_of dpari_cuda_moment_some(const V *x, int32_t n)
{
    dpari_cuda_three_of one;
    double sum = 0.0, m2 = 0.0;
    DPARI_CUDA_UNROLL
    for (int j = 0; j < SOME; j++) {
        sum = dpari_cuda_add(sum, (double)x[j]); /* points that do not exist are 0 */
    }
    one.count = (double)n;
    one.mean = n == 16 ? dpari_cuda_mul(sum, 0.0625) : sum / one.count; /* exact, because 16 is a
                                                                           power of 2 */
    DPARI_CUDA_UNROLL
    for (int j = 0; j < SOME; j++) {
        const double off = (double)x[j] - one.mean;
        m2 = j < n ? fma(off, off, m2) : m2;
    }
    one.m2 = m2;
    return one;
}

/* Does the same for sixteen points, of which only the first `left` exist. */
template <typename V>
DPARI_CUDA_ONCE __device__ static void dpari_cuda_moment_rest(dpari_cuda_three_of *a, const V *x,
                                                              int64_t left)
{
    for (int j = 0; j < 4 && left > 0; j++, left -= 4 * DPARI_CUDA_THREADS) {
        dpari_cuda_three_join(a,
                              dpari_cuda_moment_some<4>(x + 4 * j, left < 4 ? (int32_t)left : 4));
    }
}

/* Loads sixteen points of a set, from i on, as fours that are a block apart. Points from `hi` on
 * are 0. If TYPE is set, the points are contiguous and loaded as vectors. */
template <int TYPE, typename V>
__device__ static inline void dpari_cuda_points_of(const dpari_cuda_moment &s, int64_t set,
                                                   int64_t i, int64_t hi, V *x)
{
    const int32_t width = dpari_cuda_width(TYPE);
    const unsigned char *base = (const unsigned char *)s.m.x + set * (s.planes * s.m.step * width);
    DPARI_CUDA_UNROLL
    for (int j = 0; j < 4; j++, i += 4 * DPARI_CUDA_THREADS) {
        if constexpr (TYPE == DPAR_TYPE_NONE) {
            dpari_cuda_points(s, set, i, hi, x + 4 * j);
        } else if (i < hi) {
            dpari_cuda_four four;
            dpari_cuda_load<0>(&four, base, i, hi, width, 1);
            dpari_cuda_widen(&four, TYPE, x + 4 * j);
        } else {
            x[4 * j] = x[4 * j + 1] = x[4 * j + 2] = x[4 * j + 3] = 0;
        }
    }
}

/* Each block has one slice of one set. A thread computes the mean of sixteen points, and the sum of
 * their squares about it, and merges these with its earlier results, while the next sixteen points
 * are being loaded. Only the last slice may end within a four. */
template <typename V, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, TYPE != DPAR_TYPE_NONE ? 4 : 2)
    dpari_cuda_moment_kernel(DPARI_CUDA_ARGS dpari_cuda_moment s)
{
    enum { FOURS = 4, APART = 4 * DPARI_CUDA_THREADS, KNOWN = 64 };
    __shared__ double share[KNOWN], both[KNOWN]; /* factors for merging sixteen points with k times
                                                    as many */
    const int64_t all = s.planes * s.plane.points;
    if (threadIdx.x < KNOWN) {
        const double k = 16.0 * (double)threadIdx.x;
        share[threadIdx.x] = 16.0 / (k + 16.0);
        both[threadIdx.x] = k * 16.0 / (k + 16.0);
    }
    __syncthreads();
    for (int64_t c = blockIdx.x; c < s.sets * s.slices; c += gridDim.x) {
        const int64_t set = c / s.slices, lo = (c - set * s.slices) * s.each;
        const int64_t hi = lo + s.each < all ? lo + s.each : all;
        int32_t k = 0;
        dpari_cuda_three_of a = {0.0, 0.0, 0.0};
        V next[4 * FOURS];
        dpari_cuda_points_of<TYPE>(s, set, lo + 4 * (int64_t)threadIdx.x, hi, next);
        for (int64_t i = lo + 4 * (int64_t)threadIdx.x; i < hi; i += FOURS * APART, k++) {
            V x[4 * FOURS];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < 4 * FOURS; j++) {
                x[j] = next[j];
            }
            if (TYPE != DPAR_TYPE_NONE || i + FOURS * APART < hi) {
                dpari_cuda_points_of<TYPE>(s, set, i + FOURS * APART, hi, next);
            }
            if (i + 3 * APART + 4 <= hi) {
                const dpari_cuda_three_of one = dpari_cuda_moment_some<4 * FOURS>(x, 4 * FOURS);
                if (k < KNOWN) {
                    dpari_cuda_three_join_by(&a, one, share[k], both[k]);
                } else {
                    dpari_cuda_three_join(&a, one);
                }
                continue;
            }
            V rest[4 * FOURS]; /* a separate array, so that `x` stays in registers */
            DPARI_CUDA_UNROLL
            for (int j = 0; j < 4 * FOURS; j++) {
                rest[j] = x[j];
            }
            dpari_cuda_moment_rest(&a, rest, hi - i);
        }
        a = dpari_cuda_three_block(a);
        if (threadIdx.x == 0 && s.slices == 1) {
            dpari_cuda_three_put(s, set, a);
        } else if (threadIdx.x == 0) {
            s.part[c] = a;
        }
    }
}

/* Each warp has a set. Its lanes prepare 32 slices at a time, which all have `each` points, except
 * the last one of the set. Then the slices are merged one after the other. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_moment_end_kernel(DPARI_CUDA_ARGS dpari_cuda_moment s)
{
    __shared__ dpari_cuda_three_of part[DPARI_CUDA_WARPS][32];
    __shared__ double share[DPARI_CUDA_WARPS][32], both[DPARI_CUDA_WARPS][32];
    const int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;
    int64_t set = (int64_t)blockIdx.x * DPARI_CUDA_WARPS + warp;
    for (; set < s.sets; set += (int64_t)gridDim.x * DPARI_CUDA_WARPS) {
        dpari_cuda_three_of a = {0.0, 0.0, 0.0};
        for (int64_t k = 0; k < s.slices; k += 32) {
            const int32_t n = s.slices - k < 32 ? (int32_t)(s.slices - k) : 32;
            __syncwarp();
            if (lane < n) {
                const dpari_cuda_three_of one = s.part[set * s.slices + k + lane];
                const double before = (double)((k + lane) * s.each), all = before + one.count;
                part[warp][lane] = one;
                share[warp][lane] = one.count / all;
                both[warp][lane] = before * one.count / all;
            }
            __syncwarp();
            for (int32_t j = 0; j < n; j++) {
                if (part[warp][j].count > 0.0) {
                    dpari_cuda_three_join_by(&a, part[warp][j], share[warp][j], both[warp][j]);
                }
            }
        }
        if (lane == 0) {
            dpari_cuda_three_put(s, set, a);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_moments(void *ctx, const dpar_mem_moments *moments)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_moments *m = moments;
    void (*kernel)(const dpari_cuda_moment) = dpari_cuda_moment_kernel<double, DPAR_TYPE_NONE>;
    dpari_cuda_moment s;
    dpar_status st;
    const int64_t *const stride[1] = {m->stride};
    int64_t all, most;
    if (!dpari_cuda_is_float(m->type) ||
        !dpari_cuda_planes_fine(m->planes, m->channels, m->groups, m->dims, m->extent)) {
        return dpari_cuda_wrong(gpu, "moments");
    }
    memset(&s, 0, sizeof s);
    s.m = *m;
    dpari_cuda_plane_lay(m->dims, m->extent, stride, &s.plane);
    s.per_sample = m->groups;
    s.sets = m->groups > 0 ? m->planes / m->channels * m->groups : m->channels;
    s.planes = s.sets > 0 ? m->planes / s.sets : 0;
    all = s.planes * s.plane.points;
    if (s.sets > 0 && (m->to == NULL || (all > 0 && m->x == NULL))) {
        return dpari_cuda_wrong(gpu, "moments");
    }
    s.few = all < INT64_C(1) << 31;
    if (s.few && all > 0) {
        dpari_cuda_magic((uint32_t)s.plane.points, &s.magic, &s.shift);
    }
    s.fours = s.plane.points % 4 == 0 && m->step % 4 == 0 && s.plane.dims == 1 &&
              s.plane.stride[0][0] == 1 && dpari_cuda_even(m->x, 0, dpari_cuda_width(m->type));
    most = 2 * DPARI_CUDA_PARTS / (s.sets > 0 ? s.sets : 1); /* the most slices of a set */
    s.slices = (all + 4095) / 4096 < most ? (all + 4095) / 4096 : most;
    s.slices = s.slices < 1 ? 1 : s.slices;
    s.each = ((all + s.slices - 1) / s.slices + 3) / 4 * 4;
    s.part = (dpari_cuda_three_of *)gpu->scratch;
    if (s.sets == 0) {
        return DPAR_OK;
    }
    if (s.fours && m->groups > 0 && (m->step == s.plane.points || s.planes == 1)) {
        /* all points of a set are contiguous */
        if (m->type == DPAR_F32) {
            kernel = dpari_cuda_moment_kernel<float, DPAR_F32>;
        } else if (m->type == DPAR_BF16) {
            kernel = dpari_cuda_moment_kernel<float, DPAR_BF16>;
        }
    }
    st = dpari_cuda_launch(gpu, "moments", kernel, s, dpari_cuda_wave(gpu, s.sets * s.slices));
    return st != DPAR_OK || s.slices == 1
               ? st
               : dpari_cuda_launch(
                     gpu, "moments", dpari_cuda_moment_end_kernel, s,
                     dpari_cuda_wave(gpu, (s.sets + DPARI_CUDA_WARPS - 1) / DPARI_CUDA_WARPS));
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/norm.c ==== */

/* Normalization of planes: dpar_mem_layers.norm. */

struct dpari_cuda_norm {
    dpar_mem_norm m;
    dpari_cuda_plane<3> plane; /* sides: x, dy and to */
    int64_t sets;
    int64_t slices, each; /* slices of a plane; points of a slice */
    double *part;         /* [planes][slices][2] */
    int32_t dense, room;  /* dense 1: a plane's points are contiguous on all sides */
};

DPARI_CUDA_FN int64_t dpari_cuda_norm_set(const dpar_mem_norm &m, int64_t plane)
{
    const int64_t channel = plane % m.channels;
    return m.groups == 0 ? channel
                         : plane / m.channels * m.groups + channel / (m.channels / m.groups);
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_merge_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    const dpar_mem_norm &m = s.m;
    for (int64_t set = dpari_cuda_thread(); set < s.sets; set += dpari_cuda_threads()) {
        dpari_cuda_three_of all = {0.0, 0.0, 0.0};
        for (int64_t r = 0; r < m.ranks; r++) {
            const double *part = m.all + 3 * (r * s.sets + set);
            dpari_cuda_three_join(&all, {part[0], part[1], part[2]});
        }
        m.saved[2 * set] = all.mean;
        m.saved[2 * set + 1] =
            1.0 / sqrt(dpari_cuda_add(all.m2 / (all.count > 1.0 ? all.count : 1.0), m.epsilon));
    }
}

/* The coefficients by which APPLY and GRADIENT map the points of a plane. */
struct dpari_cuda_norm_line {
    double middle, inverse, scale;
    double a, b;        /* APPLY */
    double mean, slope; /* GRADIENT */
};

__device__ static inline dpari_cuda_norm_line dpari_cuda_norm_line_of(const dpar_mem_norm &m,
                                                                      int64_t plane, int32_t back)
{
    const int64_t set = dpari_cuda_norm_set(m, plane), channel = plane % m.channels;
    dpari_cuda_norm_line l;
    l.middle = m.saved[2 * set];
    l.inverse = m.saved[2 * set + 1];
    l.scale = m.scale != NULL ? dpari_cuda_get_wide(m.scale, channel, m.type) : 1.0;
    l.a = dpari_cuda_mul(l.inverse, l.scale);
    l.b = l.mean = l.slope = 0.0;
    if (back) {
        const double n = m.total[3 * set + 2] > 1.0 ? m.total[3 * set + 2] : 1.0;
        l.mean = m.total[3 * set] / n;
        l.slope = dpari_cuda_mul(l.inverse, m.total[3 * set + 1] / n);
    } else {
        l.b = m.shift != NULL ? dpari_cuda_get_wide(m.shift, channel, m.type) : 0.0;
    }
    return l;
}

__device__ static inline double dpari_cuda_norm_point(const dpari_cuda_norm_line &l, int32_t back,
                                                      double x, double dy)
{
    const double v = dpari_cuda_add(x, -l.middle);
    return back
               ? dpari_cuda_mul(l.inverse,
                                dpari_cuda_add(dpari_cuda_add(dpari_cuda_mul(l.scale, dy), -l.mean),
                                               -dpari_cuda_mul(v, l.slope)))
               : dpari_cuda_add(dpari_cuda_mul(l.a, v), l.b);
}

/* Runs APPLY and GRADIENT. Each block has one slice of one plane. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_map_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    const dpar_mem_norm &m = s.m;
    const int32_t back = m.phase == DPAR_MEM_NORM_GRADIENT;
    for (int64_t c = blockIdx.x; c < m.planes * s.slices; c += gridDim.x) {
        const int64_t plane = c / s.slices, lo = (c - plane * s.slices) * s.each;
        const int64_t hi = lo + s.each < s.plane.points ? lo + s.each : s.plane.points;
        const dpari_cuda_norm_line line = dpari_cuda_norm_line_of(m, plane, back);
        for (int64_t i = lo + threadIdx.x; i < hi; i += DPARI_CUDA_THREADS) {
            int64_t at[3];
            double v, g = 0.0;
            dpari_cuda_plane_at(s.plane, i, at);
            if (back) {
                g = dpari_cuda_get_wide(m.dy.data, plane * m.dy.step + at[1], m.type);
            }
            v = dpari_cuda_get_wide(m.x.data, plane * m.x.step + at[0], m.type);
            v = dpari_cuda_norm_point(line, back, v, g);
            dpari_cuda_put_wide(m.to.data, plane * m.to.step + at[2], m.type, v);
        }
    }
}

/* The same for F32 in units of 16 bytes, of which two on each side are in flight together. */
template <int BACK>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_wide_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    enum { PER = 2, APART = 4 * DPARI_CUDA_THREADS };
    const dpar_mem_norm &m = s.m;
    for (int64_t c = blockIdx.x; c < m.planes * s.slices; c += gridDim.x) {
        const int64_t plane = c / s.slices, lo = (c - plane * s.slices) * s.each;
        const int64_t hi = lo + s.each < s.plane.points ? lo + s.each : s.plane.points;
        const dpari_cuda_norm_line line = dpari_cuda_norm_line_of(m, plane, BACK);
        const float *x = (const float *)m.x.data + plane * m.x.step;
        const float *dy = (const float *)m.dy.data + plane * m.dy.step;
        float *to = (float *)m.to.data + plane * m.to.step;
        for (int64_t i = lo + 4 * (int64_t)threadIdx.x; i < hi; i += PER * APART) {
            dpari_cuda_four p[PER], q[PER];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                if (i + j * APART < hi) {
                    dpari_cuda_load_all<0, 1>(&p[j], x, i + j * APART, 4);
                }
                if (BACK && i + j * APART < hi) {
                    dpari_cuda_load_all<0, 1>(&q[j], dy, i + j * APART, 4);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                double v[4], g[4] = {0.0, 0.0, 0.0, 0.0};
                if (i + j * APART >= hi) {
                    continue;
                }
                dpari_cuda_widen(&p[j], DPAR_F32, v);
                if (BACK) {
                    dpari_cuda_widen(&q[j], DPAR_F32, g);
                }
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    v[e] = dpari_cuda_norm_point(line, BACK, v[e], g[e]);
                }
                dpari_cuda_narrow(&p[j], DPAR_F32, v);
                dpari_cuda_store_all<0, 1>(&p[j], to, i + j * APART, 4);
            }
        }
    }
}

/* Adds a point to the sums of dy and of dy (x - mean). */
__device__ static inline void dpari_cuda_norm_add(double x, double dy, double middle, double *of_dy,
                                                  double *of_both)
{
    *of_dy = dpari_cuda_add(*of_dy, dy);
    *of_both = dpari_cuda_add(*of_both, dpari_cuda_mul(dy, dpari_cuda_add(x, -middle)));
}

/* Runs SUMS. Each block has one slice of one plane. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_sums_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    enum { PER = 8 };
    __shared__ double part[2][DPARI_CUDA_THREADS];
    const dpar_mem_norm &m = s.m;
    for (int64_t c = blockIdx.x; c < m.planes * s.slices; c += gridDim.x) {
        const int64_t plane = c / s.slices, lo = (c - plane * s.slices) * s.each;
        const int64_t hi = lo + s.each < s.plane.points ? lo + s.each : s.plane.points;
        const int64_t set = dpari_cuda_norm_set(m, plane);
        const double middle = m.saved[2 * set];
        double of_dy = 0.0, of_both = 0.0;
        int64_t i = lo + threadIdx.x;
        if (s.dense && m.type == DPAR_F32) { /* loads several points together, in the same order */
            const float *px = (const float *)m.x.data + plane * m.x.step;
            const float *pg = (const float *)m.dy.data + plane * m.dy.step;
            for (; i + (PER - 1) * DPARI_CUDA_THREADS < hi; i += PER * DPARI_CUDA_THREADS) {
                float x[PER], g[PER];
                DPARI_CUDA_UNROLL
                for (int j = 0; j < PER; j++) {
                    x[j] = px[i + j * DPARI_CUDA_THREADS];
                    g[j] = pg[i + j * DPARI_CUDA_THREADS];
                }
                DPARI_CUDA_UNROLL
                for (int j = 0; j < PER; j++) {
                    dpari_cuda_norm_add((double)x[j], (double)g[j], middle, &of_dy, &of_both);
                }
            }
        }
        for (; i < hi; i += DPARI_CUDA_THREADS) {
            int64_t at[3];
            dpari_cuda_plane_at(s.plane, i, at);
            dpari_cuda_norm_add(dpari_cuda_get_wide(m.x.data, plane * m.x.step + at[0], m.type),
                                dpari_cuda_get_wide(m.dy.data, plane * m.dy.step + at[1], m.type),
                                middle, &of_dy, &of_both);
        }
        __syncthreads();
        part[0][threadIdx.x] = of_dy;
        part[1][threadIdx.x] = of_both;
        for (unsigned n = DPARI_CUDA_THREADS / 2; n > 0; n /= 2) {
            __syncthreads();
            if (threadIdx.x < 2 * n) { /* half of the threads for each sum */
                const unsigned which = threadIdx.x / n, k = threadIdx.x % n;
                part[which][k] = dpari_cuda_add(part[which][k], part[which][k + n]);
            }
        }
        __syncthreads();
        if (threadIdx.x < 2) {
            s.part[2 * c + threadIdx.x] = part[threadIdx.x][0];
        }
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_planes_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    for (int64_t plane = dpari_cuda_thread(); plane < s.m.planes; plane += dpari_cuda_threads()) {
        double of_dy = 0.0, of_both = 0.0;
        for (int64_t k = plane * s.slices; k < (plane + 1) * s.slices; k++) {
            of_dy = dpari_cuda_add(of_dy, s.part[2 * k]);
            of_both = dpari_cuda_add(of_both, s.part[2 * k + 1]);
        }
        s.m.sums[2 * plane] = of_dy;
        s.m.sums[2 * plane + 1] =
            dpari_cuda_mul(of_both, s.m.saved[2 * dpari_cuda_norm_set(s.m, plane) + 1]);
    }
}

/* Each thread has a set, or, beyond the sets, a channel. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_totals_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    const dpar_mem_norm &m = s.m;
    const int64_t samples = m.planes / m.channels;
    const int64_t per = m.groups > 0 ? m.channels / m.groups : samples; /* planes of a set */
    for (int64_t i = dpari_cuda_thread(); i < s.sets + m.channels; i += dpari_cuda_threads()) {
        const int64_t channel = i - s.sets;
        double t[3] = {0.0, 0.0, 0.0};
        for (int64_t k = 0; i < s.sets && k < per; k++) {
            const int64_t plane = m.groups > 0 ? i * per + k : k * m.channels + i;
            const double scale =
                m.scale != NULL ? dpari_cuda_get_wide(m.scale, plane % m.channels, m.type) : 1.0;
            t[0] = dpari_cuda_add(t[0], dpari_cuda_mul(m.sums[2 * plane], scale));
            t[1] = dpari_cuda_add(t[1], dpari_cuda_mul(m.sums[2 * plane + 1], scale));
            t[2] = dpari_cuda_add(t[2], (double)s.plane.points);
        }
        for (int32_t k = 0; i < s.sets && k < 3; k++) {
            m.total[3 * i + k] = t[k];
        }
        for (int64_t k = 0; i >= s.sets && k < samples; k++) {
            const double *sums = m.sums + 2 * (k * m.channels + channel);
            if (m.shift_gradient != NULL) {
                m.shift_gradient[channel] = dpari_cuda_add(m.shift_gradient[channel], sums[0]);
            }
            if (m.scale_gradient != NULL) {
                m.scale_gradient[channel] = dpari_cuda_add(m.scale_gradient[channel], sums[1]);
            }
        }
    }
}

/* True if the call has everything that its phase needs. */
static int dpari_cuda_norm_fits(const dpar_mem_norm *call)
{
    const int walks = call->phase != DPAR_MEM_NORM_MERGE, sums = call->phase == DPAR_MEM_NORM_SUMS;
    const int writes = call->phase == DPAR_MEM_NORM_APPLY || call->phase == DPAR_MEM_NORM_GRADIENT;
    int64_t points = 1;
    if (call->phase < DPAR_MEM_NORM_MERGE || call->phase > DPAR_MEM_NORM_GRADIENT ||
        call->ranks < 0 || (call->type != DPAR_F64 && call->type != DPAR_F32) ||
        !dpari_cuda_planes_fine(call->planes, call->channels, call->groups, call->dims,
                                call->extent)) {
        return 0;
    }
    for (int32_t d = 0; d < call->dims; d++) {
        points = call->extent[d] == 0 ? 0 : points;
    }
    if (call->planes == 0) {
        return 1;
    }
    if (call->saved == NULL || (!walks && call->all == NULL && call->ranks > 0) ||
        (sums && call->sums == NULL) ||
        (call->phase >= DPAR_MEM_NORM_SUMS && call->total == NULL)) {
        return 0;
    }
    return points == 0 || !walks ||
           (call->x.data != NULL && (!writes || call->to.data != NULL) &&
            (call->phase < DPAR_MEM_NORM_SUMS || call->dy.data != NULL));
}

static dpar_status dpari_cuda_norm_sum(dpar_cuda *gpu, const dpari_cuda_norm *s)
{
    dpar_status st = dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_sums_kernel, *s,
                                       dpari_cuda_wave(gpu, s->m.planes * s->slices));
    if (st == DPAR_OK) {
        st = dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_planes_kernel, *s,
                               dpari_cuda_units_blocks(gpu, s->m.planes));
    }
    return st == DPAR_OK ? dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_totals_kernel, *s,
                                             dpari_cuda_units_blocks(gpu, s->sets + s->m.channels))
                         : st;
}

/* Returns the points of a slice: as many as possible with enough slices for all multiprocessors. */
static int64_t dpari_cuda_norm_each(const dpar_cuda *gpu, int64_t planes, int64_t points)
{
    int64_t each = 16384;
    while (each > 4096 &&
           planes * ((points + each - 1) / each) < 16 * (int64_t)gpu->multiprocessors) {
        each /= 2;
    }
    return each;
}

/* Launches APPLY or GRADIENT. */
static dpar_status dpari_cuda_norm_map(dpar_cuda *gpu, dpari_cuda_norm *s)
{
    const dpar_mem_norm *call = &s->m;
    const int back = call->phase == DPAR_MEM_NORM_GRADIENT;
    const int wide = s->dense && call->type == DPAR_F32 && s->plane.points % 4 == 0 &&
                     (call->x.step | call->to.step | (back ? call->dy.step : 0)) % 4 == 0 &&
                     dpari_cuda_aligned(call->x.data) && dpari_cuda_aligned(call->to.data) &&
                     (!back || dpari_cuda_aligned(call->dy.data));
    void (*kernel)(const dpari_cuda_norm) = dpari_cuda_norm_map_kernel;
    if (s->plane.points == 0) {
        return DPAR_OK;
    }
    if (wide) {
        kernel = back ? dpari_cuda_norm_wide_kernel<1> : dpari_cuda_norm_wide_kernel<0>;
        s->each = dpari_cuda_norm_each(gpu, call->planes, s->plane.points);
        s->slices = (s->plane.points + s->each - 1) / s->each;
    }
    return dpari_cuda_launch(gpu, "norm", kernel, *s,
                             dpari_cuda_wave(gpu, call->planes * s->slices));
}

DPARI_INTERNAL dpar_status dpari_cuda_norm_of(void *ctx, const dpar_mem_norm *call)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int sums = call->phase == DPAR_MEM_NORM_SUMS;
    /* arrays that the phase does not use get the strides of x */
    const int64_t *const x = call->x.stride;
    const int64_t *const dy = call->phase == DPAR_MEM_NORM_APPLY ? x : call->dy.stride;
    const int64_t *const to = sums ? x : call->to.stride;
    const int64_t *const stride[3] = {x, dy, to};
    dpari_cuda_norm s;
    int64_t most;
    if (!dpari_cuda_norm_fits(call)) {
        return dpari_cuda_wrong(gpu, "norm");
    }
    if (call->planes == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.m = *call;
    s.sets = call->groups > 0 ? call->planes / call->channels * call->groups : call->channels;
    s.part = call->sums; /* if a plane has one slice, its sums are already in place */
    if (call->phase == DPAR_MEM_NORM_MERGE) {
        return dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_merge_kernel, s,
                                 dpari_cuda_units_blocks(gpu, s.sets));
    }
    dpari_cuda_plane_lay(call->dims, call->extent, stride, &s.plane);
    s.dense = s.plane.dims == 1 && s.plane.stride[0][0] == 1 && s.plane.stride[1][0] == 1 &&
              s.plane.stride[2][0] == 1;
    most = sums ? 2 * DPARI_CUDA_PARTS / call->planes : s.plane.points;
    s.slices = (s.plane.points + 4095) / 4096 < most ? (s.plane.points + 4095) / 4096 : most;
    s.slices = s.slices < 1 ? 1 : s.slices;
    s.each = (s.plane.points + s.slices - 1) / s.slices;
    if (s.slices > 1) {
        s.part = (double *)gpu->scratch;
    }
    return sums ? dpari_cuda_norm_sum(gpu, &s) : dpari_cuda_norm_map(gpu, &s);
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/block_formats.c ==== */

/* Quantizes blocks to the formats of tensor cores, and back.
 *
 * A format is described by the digits of its fraction, its exponents and its largest code
 * (dpari_cuda_micro_of), and all of them are computed by the same integer arithmetic on the bits of
 * an f32. Neighbouring lanes of a warp share a block of numbers and find its largest number by
 * exchanging registers. Called by quantize.c. */

struct dpari_cuda_micro {
    int32_t digits, least, most; /* digits of the fraction; exponents of the smallest normal number,
                                    biased as in F32, and of the largest number, without bias */
    uint32_t top;                /* code of the largest number */
    int32_t bits, block;
};

DPARI_CUDA_FN constexpr dpari_cuda_micro dpari_cuda_micro_of(int format)
{
    switch (format) {
    case DPAR_MEM_MXFP8: return dpari_cuda_micro{3, 121, 8, 0x7e, 8, 32};
    case DPAR_MEM_MXFP8_E5M2: return dpari_cuda_micro{2, 113, 15, 0x7b, 8, 32};
    case DPAR_MEM_MXFP4: return dpari_cuda_micro{1, 127, 2, 7, 4, 32};
    default: return dpari_cuda_micro{1, 127, 2, 7, 4, 16};
    }
}

/* Returns the code of a number, given its bits without the sign, rounded to nearest even or by a
 * random word. The significand is aligned to its own exponent, or to that of the smallest normal
 * number, with 23 digits after the point. Then a number is added for rounding, which may carry into
 * the exponent of the code, and the last digits are cut off. */
DPARI_CUDA_FN uint32_t dpari_cuda_micro_code(dpari_cuda_micro f, uint32_t size, int stochastic,
                                             uint32_t word)
{
    const int32_t cut = 23 - f.digits, under = f.least - (int32_t)(size >> 23);
    const int32_t most = under < 25 ? under : 25;
    const int32_t shift = under < 0 ? 0 : most;
    uint32_t x = (size & 0x7fffffu) | 0x800000u, code;
    const uint32_t lost = x & (((uint32_t)1 << shift) - 1);
    x >>= shift;
    if (stochastic) {
        x += word >> (32 - cut);
    } else {
        x |= lost != 0 ? 1u : 0u; /* with lost digits it is not a tie */
        x += ((uint32_t)1 << (cut - 1)) - 1 + (x >> cut & 1u);
    }
    code = ((uint32_t)(under < 0 ? -under : 0) << f.digits) + (x >> cut);
    return code < f.top ? code : f.top;
}

/* Returns the value of a code without its sign. */
DPARI_CUDA_FN float dpari_cuda_micro_value(dpari_cuda_micro f, uint32_t code)
{
    const uint32_t least = (uint32_t)f.least << 23, under = code >> f.digits == 0 ? 1 : 0;
    const uint32_t bits = (code << (23 - f.digits)) + least - (1 - under) * 0x800000u;
    const float x = dpari_cuda_bits<float>(bits);
    if (code > f.top) {
        return dpari_cuda_bits<float>(f.digits == 2 && code == 0x7cu ? (uint32_t)0x7f800000u
                                                                     : (uint32_t)0x7fc00000u);
    }
    return under ? x - dpari_cuda_bits<float>(least) : x;
}

/* Returns the number by which the codes of a block with this scale are multiplied. */
template <int FORMAT>
__device__ static inline float dpari_cuda_micro_unit(const dpar_mem_quantize &q, uint32_t scale)
{
    if (FORMAT == DPAR_MEM_NVFP4) {
        const float x = dpari_cuda_micro_value(dpari_cuda_micro_of(DPAR_MEM_MXFP8), scale & 0x7fu);
        return q.tensor != NULL ? dpari_cuda_mul(x, *q.tensor) : x;
    }
    if (scale == 0xffu) {
        return dpari_cuda_bits<float>((uint32_t)0x7fc00000u); /* NaN */
    }
    return dpari_cuda_bits<float>(scale == 0 ? (uint32_t)0x400000u : scale << 23);
}

/* Returns the scale of a block whose largest |x| has these bits. */
template <int FORMAT>
__device__ static inline uint32_t dpari_cuda_micro_scale(const dpar_mem_quantize &q, uint32_t most)
{
    const int32_t own = (int32_t)(most >> 23) - dpari_cuda_micro_of(FORMAT).most;
    float x = dpari_cuda_bits<float>(most);
    if (most >= 0x7f800000u) {
        return FORMAT == DPAR_MEM_NVFP4 ? 0x7fu : 0xffu;
    }
    if (FORMAT != DPAR_MEM_NVFP4) {
        return own > 0 ? (uint32_t)own : 0u;
    }
    x = dpari_cuda_divide(x, 6.0f);
    x = q.tensor != NULL ? dpari_cuda_divide(x, *q.tensor) : x;
    return dpari_cuda_micro_code(dpari_cuda_micro_of(DPAR_MEM_MXFP8),
                                 dpari_cuda_bits<uint32_t>(x) & 0x7fffffffu, 0, 0);
}

/* Computes four of the n codes of block b, from its element i on. x is 0 beyond its end. */
template <int FORMAT>
__device__ static inline void dpari_cuda_micro_store(const dpari_cuda_quant &s, int64_t b,
                                                     int64_t n, int64_t i, const float *x, float by)
{
    constexpr dpari_cuda_micro f = dpari_cuda_micro_of(FORMAT);
    unsigned char *code = (unsigned char *)s.q.code + b * s.q.code_step;
    uint32_t words[4] = {0, 0, 0, 0}, all = 0;
    if (s.q.stochastic) {
        dpari_cuda_randoms(s.q.seed, s.q.stream, s.q.index + (uint64_t)(b * f.block + i), words);
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const float v = by > 0.0f ? dpari_cuda_divide(x[e], by) : 0.0f; /* NaN: 0 */
        const uint32_t bits = dpari_cuda_bits<uint32_t>(v);
        uint32_t c = dpari_cuda_micro_code(f, bits & 0x7fffffffu, s.q.stochastic, words[e]);
        c |= c != 0 ? bits >> 31 << (f.bits - 1) : 0u;
        all |= c << (f.bits * e);
    }
    dpari_cuda_put_codes<f.bits>(s, code, n, i, all);
}

/* Each thread has four elements, TEAM times. LANES neighbouring lanes of a warp share a block of
 * numbers. */
template <int FORMAT>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_micro_kernel(DPARI_CUDA_ARGS dpari_cuda_quant s)
{
    constexpr dpari_cuda_micro f = dpari_cuda_micro_of(FORMAT);
    enum { TEAM = 4, LANES = f.block / 4, ALL = TEAM * DPARI_CUDA_THREADS };
    const int64_t units = s.blocks * LANES;
    for (int64_t first = (int64_t)blockIdx.x * ALL; first < units;
         first += (int64_t)gridDim.x * ALL) {
        const int64_t i = threadIdx.x % LANES * 4;
        float x[TEAM][4];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < TEAM; j++) {
            const int64_t b = (first + j * DPARI_CUDA_THREADS + threadIdx.x) / LANES;
            dpari_cuda_quant_load(s, s.q.type, b * f.block, dpari_cuda_quant_count(s, b), i, x[j]);
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < TEAM; j++) {
            const int64_t b = (first + j * DPARI_CUDA_THREADS + threadIdx.x) / LANES;
            const int64_t n = dpari_cuda_quant_count(s, b);
            uint32_t most = dpari_cuda_larger(x[j], 0), scale;
            most = dpari_cuda_warp_all<dpari_cuda_greatest, LANES>(most);
            scale = dpari_cuda_micro_scale<FORMAT>(s.q, most);
            if (i == 0 && n > 0) {
                ((unsigned char *)s.q.scale)[b * s.q.scale_step] = (unsigned char)scale;
            }
            if (i < n) {
                dpari_cuda_micro_store<FORMAT>(s, b, n, i, x[j],
                                               dpari_cuda_micro_unit<FORMAT>(s.q, scale));
            }
        }
    }
}

template <int FORMAT>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_unmicro_kernel(DPARI_CUDA_ARGS dpari_cuda_quant s)
{
    constexpr dpari_cuda_micro f = dpari_cuda_micro_of(FORMAT);
    enum { LANES = f.block / 4 };
    const uint32_t sign = (uint32_t)1 << (f.bits - 1);
    const int32_t width = dpari_cuda_width(s.q.type);
    for (int64_t unit = dpari_cuda_thread(); unit < s.blocks * LANES;
         unit += dpari_cuda_threads()) {
        const int64_t b = unit / LANES, i = unit % LANES * 4, n = dpari_cuda_quant_count(s, b);
        unsigned char *base = (unsigned char *)s.q.x + b * f.block * width;
        dpari_cuda_four made;
        float v[4], by;
        uint32_t codes;
        if (i >= n) {
            continue;
        }
        by = dpari_cuda_micro_unit<FORMAT>(s.q,
                                           ((const unsigned char *)s.q.scale)[b * s.q.scale_step]);
        codes = dpari_cuda_get_codes<f.bits>(s, b, n, i);
        if (f.bits == 4) { /* one in each byte */
            codes = (codes & 15u) | (codes & 0xf0u) << 4 | (codes & 0xf00u) << 8 |
                    (codes & 0xf000u) << 12;
        }
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 4; e++) {
            const uint32_t c = codes >> (8 * e) & 0xffu;
            v[e] = dpari_cuda_mul(dpari_cuda_micro_value(f, c & (sign - 1)), by);
            v[e] = dpari_cuda_plain((c & sign) != 0 ? -v[e] : v[e]);
        }
        if (s.q.accumulate || s.q.type == DPAR_F64) {
            double x[4], y[4];
            if (s.q.accumulate) {
                dpari_cuda_load<0>(&made, base, i, n, width, s.even);
                dpari_cuda_widen(&made, s.q.type, y);
            }
            DPARI_CUDA_UNROLL
            for (int e = 0; e < 4; e++) {
                x[e] = dpari_cuda_from_f32(v[e]);
                x[e] = s.q.accumulate ? dpari_cuda_add(y[e], x[e]) : x[e];
            }
            dpari_cuda_narrow(&made, s.q.type, x);
        } else {
            dpari_cuda_narrow(&made, s.q.type, v);
        }
        dpari_cuda_store<0>(&made, base, i, n, width, s.even);
    }
}

typedef void (*dpari_cuda_quanter)(const dpari_cuda_quant);

template <int FORMAT> static dpari_cuda_quanter dpari_cuda_micro_kernel_of(int back)
{
    return back ? dpari_cuda_unmicro_kernel<FORMAT> : dpari_cuda_micro_kernel<FORMAT>;
}

static dpari_cuda_quanter dpari_cuda_quanter_of(int32_t format, int back)
{
    switch (format) {
    case DPAR_MEM_MXFP8: return dpari_cuda_micro_kernel_of<DPAR_MEM_MXFP8>(back);
    case DPAR_MEM_MXFP8_E5M2: return dpari_cuda_micro_kernel_of<DPAR_MEM_MXFP8_E5M2>(back);
    case DPAR_MEM_MXFP4: return dpari_cuda_micro_kernel_of<DPAR_MEM_MXFP4>(back);
    default: return dpari_cuda_micro_kernel_of<DPAR_MEM_NVFP4>(back);
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_micro_op(dpar_cuda *gpu, const char *name,
                                               const dpar_mem_quantize *call, int back)
{
    const int fine = call->format >= DPAR_MEM_MXFP8 && call->format <= DPAR_MEM_NVFP4;
    const dpari_cuda_micro f = dpari_cuda_micro_of(call->format);
    dpari_cuda_quant s;
    if (!fine || !dpari_cuda_is_float(call->type) || call->count < 0 ||
        call->code_step < f.block * f.bits / 8 || call->scale_step < 1 ||
        (call->accumulate && !back) ||
        (call->count > 0 && (call->x == NULL || call->code == NULL || call->scale == NULL))) {
        return dpari_cuda_wrong(gpu, name);
    }
    if (call->count == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.q = *call;
    s.q.block = f.block;
    s.blocks = (call->count - 1) / f.block + 1;
    s.even = dpari_cuda_even(call->x, 0, dpari_cuda_width(call->type));
    s.even_code = ((uintptr_t)call->code | (uintptr_t)call->code_step) % (f.bits / 2) == 0;
    return dpari_cuda_launch(
        gpu, name, dpari_cuda_quanter_of(call->format, back), s,
        dpari_cuda_units_blocks(gpu, (s.blocks * f.block / 4 + 3) / (back ? 1 : 4)));
}

#endif /* DPAR_TRAIN_H */

#ifdef DPAR_TRAIN_H

/* ==== cuda/quantize.c ==== */

/* Blocks of 8-bit codes: dpar_mem_layers.quantize and dequantize. */

/* Rounds to e4m3: to nearest, ties to even, at most 448. Normal numbers keep 3 bits of the
 * fraction; below 2^-6 codes are multiples of 2^-9. */
DPARI_CUDA_FN uint32_t dpari_cuda_to_f8(float f)
{
    const uint32_t x = dpari_cuda_bits<uint32_t>(f), size = x & 0x7fffffffu;
    uint32_t code;
    if (size >= 0x43e00000u) {
        code = 0x7eu;                 /* 448 */
    } else if (size >= 0x3c800000u) { /* 2^-6 */
        code = dpari_cuda_shift(size, 20) - (120u << 3);
        code = code > 0x7eu ? 0x7eu : code;
    } else {
        code = (uint32_t)rintf(dpari_cuda_bits<float>(size) * 512.0f);
    }
    return code == 0 ? 0 : code | (x >> 24 & 0x80u);
}

DPARI_CUDA_FN float dpari_cuda_from_f8(uint32_t code)
{
    const uint32_t sign = (code & 0x80u) << 24, size = code & 0x7fu;
    if (size == 0x7fu) {
        return dpari_cuda_bits<float>(sign | 0x7fc00000u);
    }
    if (size >= 8) {
        return dpari_cuda_bits<float>(sign | ((size << 20) + (120u << 23)));
    }
    return sign != 0 ? -((float)size * (1.0f / 512.0f)) : (float)size * (1.0f / 512.0f);
}

/* Rounds four numbers, none of which is NaN. */
__device__ static inline uint32_t dpari_cuda_to_f8s(const float *x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    const uint32_t y = low | (uint32_t)high << 16, size = y & 0x7f7f7f7fu;
    return size | (y & (size + 0x7f7f7f7fu) & 0x80808080u); /* 0 has no sign */
#else
    uint32_t four = 0;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        four |= dpari_cuda_to_f8(x[e]) << (8 * e);
    }
    return four;
#endif
}

__device__ static inline uint32_t dpari_cuda_to_i8s(const float *x)
{
    uint32_t four = 0;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        int32_t y = __float2int_rn(x[e]);
        y = y < -127 ? -127 : y;
        y = y > 127 ? 127 : y;
        four |= ((uint32_t)y & 0xffu) << (8 * e);
    }
    return four;
}

__device__ static inline void dpari_cuda_from_codes(uint32_t four, int32_t type, float *x)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    if (type == DPAR_F8) { /* through f16, which has all these values */
        uint32_t low, high;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((uint16_t)four));
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((uint16_t)(four >> 16)));
        asm("cvt.f32.f16 %0, %1;" : "=f"(x[0]) : "h"((uint16_t)low));
        asm("cvt.f32.f16 %0, %1;" : "=f"(x[1]) : "h"((uint16_t)(low >> 16)));
        asm("cvt.f32.f16 %0, %1;" : "=f"(x[2]) : "h"((uint16_t)high));
        asm("cvt.f32.f16 %0, %1;" : "=f"(x[3]) : "h"((uint16_t)(high >> 16)));
        return;
    }
#endif
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const uint32_t c = four >> (8 * e) & 0xffu;
        x[e] = type == DPAR_F8 ? dpari_cuda_from_f8(c) : (float)(int32_t)(int8_t)c;
    }
}

/* The divisor of a block's numbers. `over` is its reciprocal if a multiplication by it, with a
 * correction by the remainder, gives the correctly rounded quotient (Markstein 1990). This requires
 * that no remainder is so small or so large that a bit is lost. Otherwise `over` is 0. */
struct dpari_cuda_scaling {
    float scale, inverse;
};

DPARI_CUDA_FN float dpari_cuda_scaled(float x, dpari_cuda_scaling by)
{
    float q = dpari_cuda_mul(x, by.inverse);
    if (by.inverse == 0.0f) {
        return dpari_cuda_divide(x, by.scale);
    }
    q = fmaf(fmaf(-q, by.scale, x), by.inverse, q);
    return fmaf(fmaf(-q, by.scale, x), by.inverse, q);
}

__device__ static inline dpari_cuda_scaling dpari_cuda_scale_of(uint32_t largest, int32_t type)
{
    const float most = dpari_cuda_bits<float>(largest);
    dpari_cuda_scaling by = {dpari_cuda_bits<float>((uint32_t)0x7fc00000u), 0.0f};
    if (largest < 0x7f800000u) {
        by.scale = dpari_cuda_divide(most, type == DPAR_F8 ? 448.0f : 127.0f);
        by.scale = dpari_cuda_bits<uint32_t>(by.scale) < 0x00800000u ? 0.0f : by.scale;
    }
    if (by.scale >= 0x1p-64f && by.scale <= 0x1p100f) {
        by.inverse = dpari_cuda_divide(1.0f, by.scale);
    }
    return by;
}

__device__ static inline void dpari_cuda_quant_scale(const dpari_cuda_quant &s, int64_t b,
                                                     float scale)
{
    *(float *)(void *)((unsigned char *)s.q.scale + b * s.q.scale_step) = scale;
}

/* Stores codes i to i + 3 of the n codes of block b. */
__device__ static inline void dpari_cuda_quant_store(const dpari_cuda_quant &s, int64_t b,
                                                     int64_t n, int64_t i, const float *x,
                                                     dpari_cuda_scaling by)
{
    unsigned char *code = (unsigned char *)s.q.code + b * s.q.code_step;
    uint32_t four = 0;
    if (by.scale > 0.0f) { /* otherwise the block contains NaN or infinity, or all its numbers are
                              almost 0 */
        float y[4];
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 4; e++) {
            y[e] = dpari_cuda_scaled(x[e], by);
        }
        four = s.q.code_type == DPAR_F8 ? dpari_cuda_to_f8s(y) : dpari_cuda_to_i8s(y);
    }
    dpari_cuda_put_codes<8>(s, code, n, i, four);
}

/* Each warp has four blocks of at most 128 numbers (MANY), or one of at most 512, all in registers.
 * One lane computes the scale of a block for all lanes. TYPE is set if the kernel knows it. */
template <int MANY, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 3)
    dpari_cuda_quant_kernel(DPARI_CUDA_ARGS dpari_cuda_quant s)
{
    const int32_t type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)s.q.type;
    const int64_t warp = (int64_t)blockIdx.x * DPARI_CUDA_WARPS + threadIdx.x / 32;
    const int64_t lane = threadIdx.x % 32, team = MANY ? 4 : 1;
    for (int64_t b = warp * team; b < s.blocks; b += gridDim.x * DPARI_CUDA_WARPS * team) {
        uint32_t largest[4] = {0, 0, 0, 0}, mine;
        int64_t n[4];
        float x[4][4];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            const int64_t at = MANY ? b + j : b;
            const int64_t i = 4 * lane + (MANY ? 0 : 128 * j);
            n[j] = dpari_cuda_quant_count(s, at);
            dpari_cuda_quant_load(s, type, at * s.q.block, n[j], i, x[j]);
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            const int k = MANY ? j : 0;
            largest[k] = dpari_cuda_larger(x[j], largest[k]);
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < (MANY ? 4 : 1); j++) {
            largest[j] = dpari_cuda_largest(largest[j]);
        }
        mine = largest[0];
        if (MANY) {
            const uint32_t second = lane % 2 == 0 ? largest[2] : largest[3];
            mine = lane % 2 == 0 ? mine : largest[1];
            mine = lane % 4 < 2 ? mine : second;
        }
        const dpari_cuda_scaling by = dpari_cuda_scale_of(mine, s.q.code_type);
        if (lane < team && b + lane < s.blocks) {
            dpari_cuda_quant_scale(s, b + lane, by.scale);
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            const int64_t at = MANY ? b + j : b;
            const int64_t i = 4 * lane + (MANY ? 0 : 128 * j);
            dpari_cuda_scaling its;
            its.scale = __shfl_sync(0xffffffffu, by.scale, MANY ? j : 0);
            its.inverse = __shfl_sync(0xffffffffu, by.inverse, MANY ? j : 0);
            if (i < n[j]) {
                dpari_cuda_quant_store(s, at, n[j], i, x[j], its);
            }
        }
    }
}

/* Each block of threads has one block of numbers, which it reads twice. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_quant_long_kernel(DPARI_CUDA_ARGS dpari_cuda_quant s)
{
    for (int64_t b = blockIdx.x; b < s.blocks; b += gridDim.x) {
        const int64_t first = b * s.q.block, n = dpari_cuda_quant_count(s, b);
        uint32_t largest = 0;
        dpari_cuda_scaling by;
        float x[4];
        for (int64_t i = 4 * (int64_t)threadIdx.x; i < n; i += 4 * DPARI_CUDA_THREADS) {
            dpari_cuda_quant_load(s, s.q.type, first, n, i, x);
            largest = dpari_cuda_larger(x, largest);
        }
        largest = dpari_cuda_block_all<dpari_cuda_greatest>(dpari_cuda_largest(largest), 0u);
        by = dpari_cuda_scale_of(largest, s.q.code_type);
        if (threadIdx.x == 0) {
            dpari_cuda_quant_scale(s, b, by.scale);
        }
        for (int64_t i = 4 * (int64_t)threadIdx.x; i < n; i += 4 * DPARI_CUDA_THREADS) {
            dpari_cuda_quant_load(s, s.q.type, first, n, i, x);
            dpari_cuda_quant_store(s, b, n, i, x, by);
        }
    }
}

/* Each warp has four blocks of at most 128 numbers, whose type has at most 32 bits and which are
 * stored without being added to anything. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_unquant_many_kernel(DPARI_CUDA_ARGS dpari_cuda_quant s)
{
    enum { TEAM = 4 };
    const int32_t width = dpari_cuda_width(TYPE);
    const int64_t warp = (int64_t)blockIdx.x * DPARI_CUDA_WARPS + threadIdx.x / 32;
    const int32_t i = 4 * (int32_t)(threadIdx.x % 32);
    for (int64_t b = warp * TEAM; b < s.blocks; b += gridDim.x * DPARI_CUDA_WARPS * TEAM) {
        const unsigned char *scale = (const unsigned char *)s.q.scale + b * s.q.scale_step;
        unsigned char *to = (unsigned char *)s.q.x + b * s.q.block * width;
        const int64_t left = s.q.count - b * s.q.block; /* number of elements in all blocks from b
                                                           on */
        uint32_t four[TEAM];
        float by[TEAM];
        int32_t n[TEAM];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < TEAM; j++) {
            const int64_t more = left - j * s.q.block;
            n[j] = (int32_t)(more < s.q.block ? more : s.q.block);
            if (i < n[j]) {
                four[j] = dpari_cuda_get_codes<8>(s, b + j, n[j], i);
                by[j] = *(const float *)(const void *)(scale + j * s.q.scale_step);
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < TEAM; j++) {
            dpari_cuda_four made;
            float x[4];
            if (i < n[j]) {
                dpari_cuda_from_codes(four[j], s.q.code_type, x);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    x[e] = dpari_cuda_plain(dpari_cuda_mul(x[e], by[j]));
                }
                dpari_cuda_narrow(&made, TYPE, x);
                dpari_cuda_store<0>(&made, to + j * s.q.block * width, i, n[j], width, s.even);
            }
        }
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_unquant_kernel(DPARI_CUDA_ARGS dpari_cuda_quant s)
{
    const int32_t width = dpari_cuda_width(s.q.type);
    const int64_t team = s.warps ? DPARI_CUDA_WARPS : 1;
    const int64_t lanes = s.warps ? 32 : DPARI_CUDA_THREADS, lane = threadIdx.x % lanes;
    int64_t b = blockIdx.x * team + threadIdx.x / lanes;
    for (; b < s.blocks; b += gridDim.x * team) {
        const int64_t first = b * s.q.block;
        const int64_t n = s.q.count - first < s.q.block ? s.q.count - first : s.q.block;
        unsigned char *base = (unsigned char *)s.q.x + first * width;
        const float scale =
            *(const float *)(const void *)((const unsigned char *)s.q.scale + b * s.q.scale_step);
        for (int64_t i = 4 * lane; i < n; i += 4 * lanes) {
            dpari_cuda_four old;
            double x[4], y[4];
            float v[4];
            dpari_cuda_from_codes(dpari_cuda_get_codes<8>(s, b, n, i), s.q.code_type, v);
            if (s.q.accumulate) {
                dpari_cuda_load<0>(&old, base, i, n, width, s.even);
                dpari_cuda_widen(&old, s.q.type, y);
            }
            DPARI_CUDA_UNROLL
            for (int e = 0; e < 4; e++) {
                x[e] = dpari_cuda_from_f32(dpari_cuda_mul(v[e], scale));
                x[e] = s.q.accumulate ? dpari_cuda_add(y[e], x[e]) : x[e];
            }
            dpari_cuda_narrow(&old, s.q.type, x);
            dpari_cuda_store<0>(&old, base, i, n, width, s.even);
        }
    }
}

/* Launches a quantization kernel. team: number of blocks of numbers that a block of threads
 * processes at a time. */
static dpar_status dpari_cuda_quantum(dpar_cuda *gpu, const char *name,
                                      const dpar_mem_quantize *call, int64_t team,
                                      void (*kernel)(const dpari_cuda_quant))
{
    const int32_t width = dpari_cuda_width(call->type);
    dpari_cuda_quant s;
    if (!dpari_cuda_is_float(call->type) ||
        (call->code_type != DPAR_I8 && call->code_type != DPAR_F8) || call->count < 0 ||
        call->block < 1 || call->code_step < call->block || call->scale_step == 0 ||
        call->scale_step % 4 != 0 ||
        (call->count > 0 && (call->x == NULL || call->code == NULL || call->scale == NULL))) {
        return dpari_cuda_wrong(gpu, name);
    }
    if (call->count == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.q = *call;
    s.blocks = (call->count - 1) / call->block + 1;
    s.even = call->block % 4 == 0 && dpari_cuda_even(call->x, 0, width);
    s.even_code = ((uintptr_t)call->code | (uintptr_t)call->code_step) % 4 == 0;
    s.warps = team > 1;
    return dpari_cuda_launch(gpu, name, kernel, s,
                             dpari_cuda_wave(gpu, (s.blocks + team - 1) / team));
}

DPARI_INTERNAL dpar_status dpari_cuda_quantize(void *ctx, const dpar_mem_quantize *quantize)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int64_t block = quantize->block;
    void (*kernel)(const dpari_cuda_quant) = dpari_cuda_quant_long_kernel;
    int64_t team = 1;
    if (quantize->format != 0) {
        return dpari_cuda_micro_op(gpu, "quantize", quantize, 0);
    }
    if (block <= 128) {
        team = 4 * DPARI_CUDA_WARPS;
        if (quantize->type == DPAR_F32) {
            kernel = dpari_cuda_quant_kernel<1, DPAR_F32>;
        } else if (quantize->type == DPAR_BF16) {
            kernel = dpari_cuda_quant_kernel<1, DPAR_BF16>;
        } else {
            kernel = dpari_cuda_quant_kernel<1, DPAR_TYPE_NONE>;
        }
    } else if (block <= 512) {
        team = DPARI_CUDA_WARPS;
        kernel = dpari_cuda_quant_kernel<0, DPAR_TYPE_NONE>;
    }
    return dpari_cuda_quantum(gpu, "quantize", quantize, team, kernel);
}

DPARI_INTERNAL dpar_status dpari_cuda_dequantize(void *ctx, const dpar_mem_quantize *quantize)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_quantize *call = quantize;
    if (call->format != 0) {
        return dpari_cuda_micro_op(gpu, "dequantize", call, 1);
    }
    if (call->block <= 128 && !call->accumulate &&
        (call->type == DPAR_F32 || call->type == DPAR_BF16)) {
        return dpari_cuda_quantum(gpu, "dequantize", call, 4 * DPARI_CUDA_WARPS,
                                  call->type == DPAR_F32
                                      ? dpari_cuda_unquant_many_kernel<DPAR_F32>
                                      : dpari_cuda_unquant_many_kernel<DPAR_BF16>);
    }
    return dpari_cuda_quantum(gpu, "dequantize", call, call->block <= 2048 ? DPARI_CUDA_WARPS : 1,
                              dpari_cuda_unquant_kernel);
}

#endif /* DPAR_TRAIN_H */

/* ==== cuda/cuda.c ==== */

/* Opens and closes a dpar_cuda, and fills in the tables of functions, whose code is in the other
 * files of this folder. Opening queries the device, allocates scratch memory for reductions, and
 * host memory in which launches of moves are kept (kept_moves.c). */

static dpar_status dpari_cuda_wait(void *ctx)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    int before = 0;
    dpar_status st = dpari_cuda_enter(gpu, &before); /* stream NULL is that of the current device */
    if (st == DPAR_OK) {
        st = dpari_cuda_heard(gpu, cudaStreamSynchronize(gpu->stream), "cudaStreamSynchronize");
    }
    return dpari_cuda_leave(gpu, before, st);
}

DPAR_API void dpar_cuda_mem(dpar_cuda *gpu, dpar_mem *mem)
{
    memset(mem, 0, sizeof *mem);
    mem->ctx = gpu;
    mem->move = dpari_cuda_move;
    mem->wait = dpari_cuda_wait;
    mem->pin = dpari_cuda_pin;
    mem->unpin = dpari_cuda_unpin;
    mem->span = dpari_cuda_spans;
    mem->reduce = dpari_cuda_reduce;
    mem->finite = dpari_cuda_finite;
#ifdef DPAR_TRAIN_H
    if (gpu->known != NULL) { /* the device is open */
        dpar_mem_layers *layers = &((dpari_cuda_memory *)gpu->known)->layers;
        layers->squares = dpari_cuda_squares;
        layers->clip = dpari_cuda_clip;
        layers->optimize = dpari_cuda_optimize;
        layers->round = dpari_cuda_round;
        layers->gather = dpari_cuda_gather;
        layers->scatter = dpari_cuda_scatter_add;
        layers->combine = dpari_cuda_combine;
        layers->dot = dpari_cuda_dot;
        layers->cross_entropy = dpari_cuda_entropy_op;
        layers->attention_merge = dpari_cuda_merge_op;
        layers->moments = dpari_cuda_moments;
        layers->norm = dpari_cuda_norm_of;
        layers->quantize = dpari_cuda_quantize;
        layers->dequantize = dpari_cuda_dequantize;
        mem->layers = layers;
    }
#endif
}

static cudaError_t dpari_cuda_ask(dpar_cuda *gpu)
{
    static const enum cudaDeviceAttr which[] = {
        cudaDevAttrMultiProcessorCount, cudaDevAttrMaxThreadsPerMultiProcessor,
        cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor};
    int value[4] = {0, 0, 0, 0}, driver = 0;
    cudaError_t error = cudaDriverGetVersion(&driver);
    for (int i = 0; i < 4 && error == cudaSuccess; i++) {
        error = cudaDeviceGetAttribute(&value[i], which[i], gpu->device);
    }
    gpu->arguments = driver >= 12010 ? (int32_t)DPARI_CUDA_ARGUMENTS : 4096;
    gpu->multiprocessors = value[0];
    gpu->threads = value[1];
    gpu->capability = 10 * value[2] + value[3];
    return error;
}

DPAR_API dpar_status dpar_cuda_make(dpar_cuda *gpu, const dpar_cuda_desc *desc, dpar_why *why)
{
    dpar_cuda made;
    int device = 0;
    cudaError_t error = cudaSuccess;
    if (gpu == NULL || (desc != NULL && (desc->device < 0 || desc->max_blocks < 0 ||
                                         (desc->fast_math != 0 && desc->fast_math != 1)))) {
        return dpari_cuda_say(DPAR_E_ARG, why, "dpar_cuda_make",
                              "gpu is NULL, device or max_blocks is negative, or fast_math is "
                              "neither 0 nor 1");
    }
    memset(&made, 0, sizeof made);
    if (desc != NULL && desc->device > 0) {
        made.device = device = desc->device - 1;
    } else {
        error = cudaGetDevice(&device);
        made.device = device;
    }
    if (error == cudaSuccess) {
        error = cudaSetDevice(device);
    }
    if (error == cudaSuccess) {
        error = dpari_cuda_ask(&made);
    }
    if (error != cudaSuccess) {
        (void)dpari_cuda_heard(&made, error, "dpar_cuda_make");
        return dpari_cuda_told(&made, DPAR_E_SYSTEM, why);
    }
    if (made.capability < 70) {
        char text[80];
        (void)snprintf(text, sizeof text, "the device has compute capability %d.%d, below 7.0",
                       (int)made.capability / 10, (int)made.capability % 10);
        return dpari_cuda_say(DPAR_E_UNKNOWN, why, "dpar_cuda_make", text);
    }
    if (desc != NULL) {
        made.stream = desc->stream;
        made.fast_math = desc->fast_math;
        made.max_blocks = desc->max_blocks;
    }
    made.scratch_bytes = DPARI_CUDA_SCRATCH;
    error = cudaMalloc(&made.scratch, DPARI_CUDA_SCRATCH);
    if (error != cudaSuccess) {
        (void)dpari_cuda_heard(&made, error, "cudaMalloc of scratch memory");
        return dpari_cuda_told(&made, DPAR_E_SYSTEM, why);
    }
    made.known = calloc(1, sizeof(dpari_cuda_memory));
    if (made.known == NULL) {
        char text[80];
        (void)snprintf(text, sizeof text, "no host memory to keep launches of moves (%lld bytes)",
                       (long long)sizeof(dpari_cuda_memory));
        (void)cudaFree(made.scratch);
        return dpari_cuda_say(DPAR_E_MEMORY, why, "dpar_cuda_make", text);
    }
    *gpu = made;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_cuda_free(dpar_cuda *gpu)
{
    dpar_status st = DPAR_OK;
    if (gpu != NULL && gpu->scratch != NULL) {
        st = dpari_cuda_wait(gpu);
        gpu->pins = 0;
        (void)dpari_cuda_release(gpu);
        (void)cudaFree(gpu->scratch);
        free(gpu->known);
        gpu->known = NULL;
        gpu->scratch = NULL;
        gpu->scratch_bytes = 0;
    }
    return st;
}

/* ==== cuda/measure.c ==== */

/* Measures a device by timing work between two events: copies within the device, to another one and
 * from the host, a product of matrices by cuBLAS or the caller's function, and empty launches by
 * the host's clock. The median of several runs counts, and for launches the least. cuBLAS is loaded
 * only if it is found, and called through declarations of this file, so that its header is not
 * needed. */

enum { DPARI_CUDA_TIMES = 7 };

/* A measurement: buffers, and the work that is enqueued on gpu's stream and timed. */
struct dpari_cuda_timed {
    dpar_cuda *gpu;
    cudaEvent_t before, behind;
    unsigned char *a, *b, *c, *far_side;
    void *host;
    int64_t bytes;
    const dpar_cuda_measure_desc *probe;
    void *blas; /* cuBLAS: a handle, and the function cublasGemmEx */
    int (*product)(void *, int, int, int, int, int, const void *, const void *, int, int,
                   const void *, int, int, const void *, void *, int, int, int, int);
    int32_t n, what;
};

enum { DPARI_CUDA_COPY, DPARI_CUDA_LINK, DPARI_CUDA_PCIE, DPARI_CUDA_GEMM };

/* Enqueues c = a b^T by cuBLAS. The matrices are stored by rows, but cuBLAS expects columns, hence
 * op(T) and op(N). 14 is CUDA_R_16BF, 68 CUBLAS_COMPUTE_32F, and -1 CUBLAS_GEMM_DEFAULT. */
static dpar_status dpari_cuda_blas_gemm(dpari_cuda_timed *t)
{
    const float one = 1.0f, zero = 0.0f;
    const int n = (int)t->n;
    return t->product(t->blas, 1, 0, n, n, n, &one, t->b, 14, n, t->a, 14, n, &zero, t->c, 14, n,
                      68, -1) == 0
               ? DPAR_OK
               : DPAR_E_SYSTEM;
}

static dpar_status dpari_cuda_timed_once(dpari_cuda_timed *t)
{
    dpar_mem_box box;
    dpar_cuda *gpu = t->gpu;
    switch (t->what) {
    case DPARI_CUDA_COPY:
        memset(&box, 0, sizeof box);
        box.to = t->b;
        box.from = t->a;
        box.to_type = box.from_type = box.round_type = DPAR_U8;
        box.dims = 1;
        box.extent[0] = t->bytes;
        box.to_stride[0] = box.from_stride[0] = 1;
        return dpari_cuda_move(gpu, &box, 1);
    case DPARI_CUDA_LINK:
        return dpari_cuda_heard(
            gpu,
            cudaMemcpyAsync(t->far_side, t->a, (size_t)t->bytes, cudaMemcpyDefault, gpu->stream),
            "a copy to the other device");
    case DPARI_CUDA_PCIE:
        return dpari_cuda_heard(
            gpu,
            cudaMemcpyAsync(t->a, t->host, (size_t)t->bytes, cudaMemcpyHostToDevice, gpu->stream),
            "a copy from the host");
    default:
        return t->probe->gemm != NULL
                   ? t->probe->gemm(t->probe->user, gpu->stream, t->a, t->b, t->c, t->n)
                   : dpari_cuda_blas_gemm(t);
    }
}

/* Returns the median time of several runs in seconds, after one run that does not count. 0 if a run
 * fails. */
static double dpari_cuda_time(dpari_cuda_timed *t)
{
    double made[DPARI_CUDA_TIMES];
    int32_t i, k;
    for (i = -1; i < DPARI_CUDA_TIMES; i++) {
        float ms = 0.0f;
        if (cudaEventRecord(t->before, t->gpu->stream) != cudaSuccess ||
            dpari_cuda_timed_once(t) != DPAR_OK ||
            cudaEventRecord(t->behind, t->gpu->stream) != cudaSuccess ||
            cudaEventSynchronize(t->behind) != cudaSuccess ||
            cudaEventElapsedTime(&ms, t->before, t->behind) != cudaSuccess) {
            (void)cudaGetLastError();
            return 0.0;
        }
        for (k = i; k > 0 && made[k - 1] > (double)ms; k--) {
            made[k] = made[k - 1];
        }
        if (i >= 0) {
            made[k] = (double)ms;
        }
    }
    return made[DPARI_CUDA_TIMES / 2] * 1e-3;
}

/* Times one kind of work. Returns how much of `amount` it does in a second; 0 if it fails. */
static double dpari_cuda_rate(dpari_cuda_timed *t, int32_t what, double amount)
{
    double seconds;
    t->what = what;
    seconds = dpari_cuda_time(t);
    return seconds > 0.0 ? amount / seconds : 0.0;
}

struct dpari_cuda_noise {
    uint16_t *to;
    int64_t count;
};

/* Fills a matrix with random BF16 numbers between -1 and 1, because a product of zeros takes less
 * power and time. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_noise_kernel(DPARI_CUDA_ARGS dpari_cuda_noise s)
{
    for (int64_t i = dpari_cuda_thread(); i < s.count; i += dpari_cuda_threads()) {
        uint32_t words[4];
        dpari_cuda_random_four(1, 2, (uint64_t)i, words);
        s.to[i] = dpari_cuda_to_bf16((float)(int32_t)words[0] * (1.0f / 2147483648.0f));
    }
}

struct dpari_cuda_idle {
    int64_t nothing;
};

__global__ static void dpari_cuda_idle_kernel(DPARI_CUDA_ARGS dpari_cuda_idle s)
{
    (void)s;
}

static double dpari_cuda_clock(void)
{
    struct timespec now;
    (void)timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Returns the host's seconds per launch: the least of three turns, each of which begins with an
 * empty queue. */
static double dpari_cuda_launch_time(dpar_cuda *gpu)
{
    enum { MANY = 1000 };
    dpari_cuda_idle nothing = {0};
    double start;
    int32_t i, turn;
    double least = 0.0;
    for (turn = 0; turn < 3; turn++) {
        (void)cudaStreamSynchronize(gpu->stream); /* orders nothing: a full queue would cost time */
        start = dpari_cuda_clock();
        for (i = 0; i < MANY; i++) {
            if (dpari_cuda_launch(gpu, "idle", dpari_cuda_idle_kernel, nothing, 1) != DPAR_OK) {
                return 0.0;
            }
        }
        start = (dpari_cuda_clock() - start) / MANY;
        least = turn == 0 || start < least ? start : least;
    }
    (void)cudaStreamSynchronize(gpu->stream); /* orders nothing: the next measurement begins with an
                                                 empty queue */
    return least;
}

/* Loads a function of a library. Its address is copied as bytes, because C++ does not convert
 * pointers to data into pointers to functions. */
static void dpari_cuda_symbol(void *library, const char *name, void *function, size_t bytes)
{
    void *at = dlsym(library, name);
    memcpy(function, &at, bytes);
}

/* Loads cuBLAS if it is found. Returns a handle, or NULL, and sets t->product. */
static void *dpari_cuda_blas_open(dpari_cuda_timed *t, char *name, size_t room, void **library)
{
    static const char *const files[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};
    int (*create)(void **) = NULL;
    int (*stream)(void *, void *) = NULL;
    const char *file = t->probe->cublas;
    void *handle = NULL;
    size_t i;
    *library = NULL;
    for (i = 0; i < sizeof files / sizeof files[0] && *library == NULL; i++) {
        file = t->probe->cublas != NULL ? t->probe->cublas : files[i];
        *library = file[0] != 0 ? dlopen(file, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    if (*library == NULL) {
        return NULL;
    }
    dpari_cuda_symbol(*library, "cublasCreate_v2", &create, sizeof create);
    dpari_cuda_symbol(*library, "cublasSetStream_v2", &stream, sizeof stream);
    dpari_cuda_symbol(*library, "cublasGemmEx", &t->product, sizeof t->product);
    if (create == NULL || stream == NULL || t->product == NULL || create(&handle) != 0) {
        return NULL;
    }
    (void)snprintf(name, room, "cuBLAS (%s)", file);
    return stream(handle, t->gpu->stream) == 0 ? handle : NULL;
}

static void dpari_cuda_probe_gemm(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    const int64_t count = (int64_t)t->n * t->n;
    void *library = NULL;
    int (*destroy)(void *) = NULL;
    dpari_cuda_noise noise = {(uint16_t *)(void *)t->a, count};
    if (t->probe->gemm == NULL) {
        t->blas = dpari_cuda_blas_open(t, made->gemm_library, sizeof made->gemm_library, &library);
    } else {
        (void)snprintf(made->gemm_library, sizeof made->gemm_library, "the caller's function");
    }
    if (t->probe->gemm != NULL || t->blas != NULL) {
        (void)dpari_cuda_launch(t->gpu, "noise", dpari_cuda_noise_kernel, noise,
                                dpari_cuda_units_blocks(t->gpu, count));
        noise.to = (uint16_t *)(void *)t->b;
        (void)dpari_cuda_launch(t->gpu, "noise", dpari_cuda_noise_kernel, noise,
                                dpari_cuda_units_blocks(t->gpu, count));
        made->gemm_flops = dpari_cuda_rate(t, DPARI_CUDA_GEMM, 2.0 * (double)count * (double)t->n);
    }
    if (t->blas != NULL) {
        dpari_cuda_symbol(library, "cublasDestroy_v2", &destroy, sizeof destroy);
        (void)(destroy != NULL ? destroy(t->blas) : 0);
    }
    if (library != NULL) {
        (void)dlclose(library);
    }
}

/* Measures the link to another device, if this device can access one. */
static void dpari_cuda_probe_link(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    const int own = t->gpu->device;
    int devices = 0, other, can = 0;
    void *memory = NULL;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 2) {
        return;
    }
    other = t->probe->peer > 0 ? t->probe->peer - 1 : (own + 1) % devices;
    if (other >= devices || other == own ||
        cudaDeviceCanAccessPeer(&can, own, other) != cudaSuccess || !can ||
        cudaSetDevice(other) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    if (cudaMalloc(&memory, (size_t)t->bytes) == cudaSuccess) {
        (void)cudaSetDevice(own);
        (void)cudaDeviceEnablePeerAccess(other, 0);
        (void)cudaGetLastError();
        t->far_side = (unsigned char *)memory;
        made->link_Bps = dpari_cuda_rate(t, DPARI_CUDA_LINK, (double)t->bytes);
        (void)cudaSetDevice(other);
        (void)cudaFree(memory);
    }
    (void)cudaSetDevice(own);
    (void)cudaGetLastError();
}

static void dpari_cuda_probe_host(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    const int64_t all = t->bytes;
    t->bytes = all < ((int64_t)256 << 20) ? all : (int64_t)256 << 20;
    if (cudaMallocHost(&t->host, (size_t)t->bytes) == cudaSuccess) {
        memset(t->host, 1, (size_t)t->bytes);
        made->pcie_Bps = dpari_cuda_rate(t, DPARI_CUDA_PCIE, (double)t->bytes);
        (void)cudaFreeHost(t->host);
    }
    (void)cudaGetLastError();
    t->bytes = all;
}

/* Measures everything. The same memory serves as three matrices and as two buffers. */
static void dpari_cuda_probe_all(dpari_cuda_timed *t, dpar_cuda_measurement *made)
{
    made->copy_Bps = dpari_cuda_rate(t, DPARI_CUDA_COPY, 2.0 * (double)t->bytes);
    dpari_cuda_probe_gemm(t, made);
    made->launch_s = dpari_cuda_launch_time(t->gpu);
    dpari_cuda_probe_link(t, made);
    dpari_cuda_probe_host(t, made);
}

DPAR_API dpar_status dpar_cuda_measure(dpar_cuda *gpu, const dpar_cuda_measure_desc *probe,
                                       dpar_cuda_measurement *made, dpar_why *why)
{
    dpar_cuda_measure_desc none;
    dpari_cuda_timed t;
    struct cudaDeviceProp about;
    dpar_cuda_measurement m;
    size_t left = 0, total = 0;
    int64_t matrix, room;
    void *memory = NULL;
    int before = 0;
    dpar_status st = dpari_cuda_enter(gpu, &before);
    if (st != DPAR_OK) {
        return dpari_cuda_told(gpu, st, why);
    }
    memset(&none, 0, sizeof none);
    memset(&t, 0, sizeof t);
    memset(&m, 0, sizeof m);
    t.gpu = gpu;
    t.probe = probe != NULL ? probe : &none;
    t.n = t.probe->matrix_size > 0 ? t.probe->matrix_size : 8192;
    if (t.probe->bytes < 0 || t.probe->matrix_size < 0 || t.probe->matrix_size > 65536 ||
        cudaGetDeviceProperties(&about, gpu->device) != cudaSuccess ||
        cudaMemGetInfo(&left, &total) != cudaSuccess) {
        char text[160];
        (void)cudaGetLastError();
        (void)snprintf(text, sizeof text,
                       "bytes is %lld, but must not be negative; or matrix_size is %d, but must be "
                       "0 to 65536; or device %d does not respond",
                       (long long)t.probe->bytes, (int)t.probe->matrix_size, (int)gpu->device);
        return dpari_cuda_leave(gpu, before,
                                dpari_cuda_say(DPAR_E_ARG, why, "dpar_cuda_measure", text));
    }
    t.bytes = (int64_t)1 << 30 < (int64_t)(left / 8) ? (int64_t)1 << 30 : (int64_t)(left / 8);
    t.bytes = (t.probe->bytes > 0 ? t.probe->bytes : t.bytes) / 256 * 256;
    matrix = (int64_t)t.n * t.n * 2;
    room = t.bytes > matrix ? t.bytes : matrix;
    st = DPAR_E_MEMORY;
    if (t.bytes > 0 && cudaMalloc(&memory, (size_t)(2 * room + matrix)) == cudaSuccess &&
        cudaEventCreate(&t.before) == cudaSuccess && cudaEventCreate(&t.behind) == cudaSuccess) {
        t.a = (unsigned char *)memory;
        t.b = t.a + room;
        t.c = t.b + room;
        (void)snprintf(m.name, sizeof m.name, "%.63s", about.name);
        m.memory_bytes = (double)total;
        m.multiprocessors = gpu->multiprocessors;
        m.capability = gpu->capability;
        (void)cudaMemsetAsync(t.a, 85, (size_t)(2 * room + matrix), gpu->stream);
        dpari_cuda_probe_all(&t, &m);
        *made = m;
        st = DPAR_OK;
    } else {
        char text[120];
        (void)snprintf(text, sizeof text,
                       "device %d has no memory for buffers of %lld bytes, or no events",
                       (int)gpu->device, (long long)(2 * room + matrix));
        (void)dpari_cuda_say(st, why, "dpar_cuda_measure", text);
    }
    (void)cudaStreamSynchronize(gpu->stream); /* orders nothing: cudaFree waits as well */
    (void)(t.before != NULL ? cudaEventDestroy(t.before) : cudaSuccess);
    (void)(t.behind != NULL ? cudaEventDestroy(t.behind) : cudaSuccess);
    (void)(memory != NULL ? cudaFree(memory) : cudaSuccess);
    (void)cudaGetLastError();
    return dpari_cuda_leave(gpu, before, st);
}

/* Appends a line to a text of length `at`, as far as there is room. Returns the new length. */
static int64_t dpari_cuda_append(char *text, int64_t bytes, int64_t at, const char *line)
{
    for (; *line != 0; line++, at++) {
        if (at < bytes - 1) {
            text[at] = *line;
            text[at + 1] = 0;
        }
    }
    return at;
}

/* Appends a setting, or a comment that the number was not measured. */
static int64_t dpari_cuda_line(char *text, int64_t bytes, int64_t at, const char *key, double value,
                               const char *unit)
{
    char line[128];
    if (value > 0.0) {
        (void)snprintf(line, sizeof line, "%s=%.4g  # %s\n", key, value, unit);
    } else {
        (void)snprintf(line, sizeof line, "# %s: not measured\n", key);
    }
    return dpari_cuda_append(text, bytes, at, line);
}

DPAR_API int64_t dpar_cuda_measurement_write(const dpar_cuda_measurement *made,
                                             double peak_memory_Bps, double peak_flops,
                                             double peak_link_Bps, char *text, int64_t bytes)
{
    char head[128];
    int64_t at;
    (void)snprintf(head, sizeof head, "# measured on %s, %d units\n", made->name,
                   (int)made->multiprocessors);
    at = dpari_cuda_append(text, bytes, 0, head);
    at = dpari_cuda_line(text, bytes, at, "hbm",
                         peak_memory_Bps > 0.0 ? made->copy_Bps / peak_memory_Bps : 0.0,
                         "share of the memory's peak, copying");
    at =
        dpari_cuda_line(text, bytes, at, "gemm",
                        peak_flops > 0.0 ? made->gemm_flops / peak_flops : 0.0, made->gemm_library);
    at = dpari_cuda_line(text, bytes, at, "launch_us", made->launch_s * 1e6, "host, a kernel");
    at = dpari_cuda_line(text, bytes, at, "link_share",
                         peak_link_Bps > 0.0 ? made->link_Bps / peak_link_Bps : 0.0,
                         "share of the link's peak, copying");
    return dpari_cuda_line(text, bytes, at, "pcie", made->pcie_Bps * 1e-9, "GB/s from the host");
}

#endif /* DPAR_CUDA_IMPLEMENTATION */
