/* SPDX-License-Identifier: MIT-0 */
/* spans - private: copies, casts, scales and adds contiguous elements. */
#ifndef DPARI_CUDA_SPANS_H
#define DPARI_CUDA_SPANS_H

#include "elements.h"
#include "launch.h"
#include "stochastic.h"

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

#endif
