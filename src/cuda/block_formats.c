/* SPDX-License-Identifier: MIT-0 */
/* Quantizes blocks to the formats of tensor cores, and back.
 *
 * A format is described by the digits of its fraction, its exponents and its largest code
 * (dpari_cuda_micro_of), and all of them are computed by the same integer arithmetic on the bits of
 * an f32. Neighbouring lanes of a warp share a block of numbers and find its largest number by
 * exchanging registers. Called by quantize.c. */
#include "block_formats.h"

#include "code_blocks.h"
#include "stochastic.h"

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
