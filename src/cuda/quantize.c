/* SPDX-License-Identifier: MIT-0 */
/* Blocks of 8-bit codes: dpar_mem_layers.quantize and dequantize. */
#include "operations.h"

#include "block_formats.h"
#include "code_blocks.h"

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
