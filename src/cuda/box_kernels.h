/* SPDX-License-Identifier: MIT-0 */
/* box_kernels - private: boxes in the form that kernels need, and the kernels that move them. */
#ifndef DPARI_CUDA_BOX_KERNELS_H
#define DPARI_CUDA_BOX_KERNELS_H

#include "elements.h"
#include "four.h"
#include "launch.h"

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

#endif
