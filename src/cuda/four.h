/* SPDX-License-Identifier: MIT-0 */
/* four - private: four elements at a time. A four holds four elements of any type as bits. They are
 * converted to numbers later, so that the loads of several arrays are in flight together. */
#ifndef DPARI_CUDA_FOUR_H
#define DPARI_CUDA_FOUR_H

#include "numbers.h"

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

#endif
