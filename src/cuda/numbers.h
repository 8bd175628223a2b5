/* SPDX-License-Identifier: MIT-0 */
/* numbers - private: arithmetic and conversions of single numbers. Each addition and each product
 * is rounded, because the compiler must not contract them; where a fused multiply-add is wanted,
 * the code calls fma. The bits therefore depend on neither the compiler nor the device. */
#ifndef DPARI_CUDA_NUMBERS_H
#define DPARI_CUDA_NUMBERS_H

#include "platform.h"

#include "../base/type.h"

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

#endif
