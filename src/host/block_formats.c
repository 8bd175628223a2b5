/* SPDX-License-Identifier: MIT-0 */
/* Blocks of the formats for tensor cores (MXFP8, MXFP4, NVFP4) in host memory. Rounding uses
 * integer arithmetic on the bits of F32, which gives the same bits on every machine. layers.h
 * describes the formats. layers.c calls these functions to quantize and dequantize. */
#include "block_formats.h"

#include "../base/arith.h"
#include "elements.h"
#include "random_private.h"

/* Converts elements of another type than F32 into `room`. */
DPARI_STATIC_NOINLINE const float *dpari_quant_narrow(const dpar_mem_quantize *call, int64_t i,
                                                      int64_t n, float *room)
{
    double x[DPARI_ELEMENTS];
    dpari_elements_load(x, call->x, i, n, call->type);
    dpari_elements_store(room, x, 0, n, DPAR_F32);
    return room;
}

DPARI_INTERNAL const float *dpari_quant_read(const dpar_mem_quantize *call, int64_t i, int64_t n,
                                             float *room)
{
    return call->type == DPAR_F32 ? (const float *)call->x + i
                                  : dpari_quant_narrow(call, i, n, room);
}

DPARI_INTERNAL void dpari_quant_give(const dpar_mem_quantize *call, double *x, int64_t i, int64_t n)
{
    double y[DPARI_ELEMENTS];
    int64_t k;
    if (call->accumulate) {
        dpari_elements_load(y, call->x, i, n, call->type);
        for (k = 0; k < n; k++) {
            x[k] = y[k] + x[k];
        }
    }
    dpari_elements_store(call->x, x, i, n, call->type);
}

/* A format: the small floats that are its codes, and the size of its blocks. */
typedef struct dpari_micro {
    uint8_t digits; /* number of fraction bits */
    uint8_t least;  /* biased exponent of the smallest normal number in F32 */
    uint8_t most;   /* unbiased exponent of the largest number */
    uint8_t top;    /* code of the largest number */
    uint8_t bits;   /* number of bits of a code */
    uint8_t block;  /* number of elements of a block */
} dpari_micro;

enum { DPARI_MICRO_NV = 16 }; /* block size of NVFP4, by which this file recognizes the format */

/* Returns the properties of a format: MXFP8 (E4M3, E5M2), MXFP4 (E2M1) or NVFP4 (E2M1). */
static const dpari_micro *dpari_micro_of(int32_t format)
{
    static const dpari_micro all[4] = {{3, 121, 8, 0x7e, 8, 32},
                                       {2, 113, 15, 0x7b, 8, 32},
                                       {1, 127, 2, 7, 4, 32},
                                       {1, 127, 2, 7, 4, 16}};
    return &all[format - DPAR_MEM_MXFP8];
}

DPARI_INTERNAL int dpari_micro_fits(const dpar_mem_quantize *call)
{
    const dpari_micro *f;
    if (call->format < DPAR_MEM_MXFP8 || call->format > DPAR_MEM_NVFP4) {
        return 0;
    }
    f = dpari_micro_of(call->format);
    return call->code_step >= f->block * f->bits / 8 && call->scale_step >= 1 &&
           (call->stochastic == 0 || call->stochastic == 1);
}

DPARI_INTERNAL int64_t dpari_micro_elements(int32_t format)
{
    return dpari_micro_of(format)->block;
}

/* Returns the code of a positive F32 number with the bits `size`. word: a random word for
 * stochastic rounding, or NULL to round to nearest even. The significand is shifted right if the
 * number is below the smallest normal number of the format. Then `cut` bits are cut off. A number
 * that is added before rounds the rest; its carry increments the code and, if needed, the exponent
 * in it. */
static uint32_t dpari_micro_code(const dpari_micro *f, uint32_t size, const uint32_t *word)
{
    const int32_t own = (int32_t)(size >> 23), cut = 23 - f->digits, under = f->least - own;
    int32_t shift = 0;
    uint32_t x = (size & 0x7fffffu) | 0x800000u, code;
    if (under > 0) {
        shift = under < 25 ? under : 25; /* 25 is enough to remove all 24 bits of a significand */
    }
    /* if a 1 is shifted out, the number is not a tie: sets the last bit */
    x = x >> shift | (word == NULL && (x & (((uint32_t)1 << shift) - 1)) != 0);
    x += word != NULL ? *word >> (32 - cut) : ((uint32_t)1 << (cut - 1)) - 1 + (x >> cut & 1u);
    code = ((uint32_t)(under < 0 ? -under : 0) << f->digits) + (x >> cut);
    return code < f->top ? code : f->top;
}

/* Returns the value of a code without its sign. */
static float dpari_micro_value(const dpari_micro *f, uint32_t code)
{
    const uint32_t least = (uint32_t)f->least << 23, under = code >> f->digits == 0;
    uint32_t bits = (code << (23 - f->digits)) + least - (1 - under) * 0x800000u;
    float x, less;
    if (code > f->top) {
        bits = f->digits == 2 && code == 0x7cu ? 0x7f800000u : 0x7fc00000u;
    }
    dpari_elements_bits(&x, &bits, 4);
    dpari_elements_bits(&less, &least, 4);
    return under ? x - less : x;
}

/* Returns the value of a scale, the factor of all elements of a block. */
DPARI_STATIC_NOINLINE float dpari_micro_unit(const dpar_mem_quantize *call, const dpari_micro *f,
                                             uint32_t scale)
{
    uint32_t bits = scale << 23;
    float x;
    if (f->block == DPARI_MICRO_NV) {
        x = dpari_micro_value(dpari_micro_of(DPAR_MEM_MXFP8), scale & 0x7fu);
        return call->tensor != NULL ? x * *call->tensor : x;
    }
    if (scale == 0xffu) {
        bits = 0x7fc00000u; /* NaN */
    } else if (scale == 0) {
        bits = 0x400000u; /* 2^-127, which is subnormal in F32 */
    }
    dpari_elements_bits(&x, &bits, 4);
    return x;
}

/* Returns the scale of a block whose largest |x| has the bits `most`. If that is infinite or NaN,
 * the scale is NaN. */
static uint32_t dpari_micro_scale(const dpar_mem_quantize *call, const dpari_micro *f,
                                  uint32_t most)
{
    const int nv = f->block == DPARI_MICRO_NV;
    float x;
    if (most >= 0x7f800000u) {
        return nv ? 0x7f : 0xff;
    }
    if (!nv) {
        return (uint32_t)dpari_most((int64_t)(most >> 23) - f->most, 0);
    }
    dpari_elements_bits(&x, &most, 4);
    x /= 6.0f;
    if (call->tensor != NULL) {
        x /= *call->tensor;
    }
    dpari_elements_bits(&most, &x, 4);
    return dpari_micro_code(dpari_micro_of(DPAR_MEM_MXFP8), most & 0x7fffffffu, NULL);
}

DPARI_INTERNAL void dpari_micro_block(const dpar_mem_quantize *call, int64_t b)
{
    const dpari_micro *f = dpari_micro_of(call->format);
    const int64_t lo = b * f->block, n = dpari_least(f->block, call->count - lo);
    unsigned char *code = (unsigned char *)call->code + b * call->code_step;
    float room[DPARI_ELEMENTS], by;
    const float *x = dpari_quant_read(call, lo, n, room);
    uint32_t words[4], size, most = 0, scale, c;
    int64_t i;
    for (i = 0; i < n; i++) {
        dpari_elements_bits(&size, &x[i], 4);
        most = (size & 0x7fffffffu) > most ? size & 0x7fffffffu : most;
    }
    scale = dpari_micro_scale(call, f, most);
    ((unsigned char *)call->scale)[b * call->scale_step] = (unsigned char)scale;
    by = dpari_micro_unit(call, f, scale);
    for (i = 0; i < n; i++) {
        const uint64_t at = call->index + (uint64_t)(lo + i);
        const float v = by > 0.0f ? x[i] / by : 0.0f; /* 0 if the scale is 0 or NaN */
        dpari_elements_bits(&size, &v, 4);
        if (call->stochastic && (i == 0 || at % 4 == 0)) {
            dpari_random_block(call->seed, call->stream, at / 4, words);
        }
        c = dpari_micro_code(f, size & 0x7fffffffu, call->stochastic ? &words[at % 4] : NULL);
        c |= c != 0 ? size >> 31 << (f->bits - 1) : 0;
        if (f->bits == 8) {
            code[i] = (unsigned char)c;
        } else {
            code[i / 2] = (unsigned char)(i % 2 == 0 ? c : code[i / 2] | c << 4);
        }
    }
}

DPARI_INTERNAL void dpari_micro_unblock(const dpar_mem_quantize *call, int64_t b)
{
    const dpari_micro *f = dpari_micro_of(call->format);
    const uint32_t nan = 0x7fc00000u, sign = (uint32_t)1 << (f->bits - 1);
    const int64_t lo = b * f->block, n = dpari_least(f->block, call->count - lo);
    const unsigned char *code = (const unsigned char *)call->code + b * call->code_step;
    const float by =
        dpari_micro_unit(call, f, ((const unsigned char *)call->scale)[b * call->scale_step]);
    double x[DPARI_ELEMENTS];
    float v[DPARI_ELEMENTS];
    int64_t i;
    for (i = 0; i < n; i++) {
        const uint32_t c = f->bits == 8 ? code[i] : (uint32_t)code[i / 2] >> i % 2 * 4 & 15u;
        v[i] = dpari_micro_value(f, c & (sign - 1)) * by;
        if (v[i] != v[i]) {
            dpari_elements_bits(&v[i], &nan, 4);
        } else if ((c & sign) != 0) {
            v[i] = -v[i];
        }
    }
    dpari_elements_load(x, v, 0, n, DPAR_F32);
    dpari_quant_give(call, x, lo, n);
}
