/* SPDX-License-Identifier: MIT-0 */
/* elements - private: single elements of any type as bits: conversion, combination, access. */
#ifndef DPARI_CUDA_ELEMENTS_H
#define DPARI_CUDA_ELEMENTS_H

#include "numbers.h"

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

#endif
