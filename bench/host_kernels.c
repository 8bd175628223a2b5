/* SPDX-License-Identifier: MIT-0 */
/* host_kernels - measures the kernels of the host, which training and reductions call, and compares
 * each with a plain loop that does the same work in the same precision (f64 where dpar adds f32 in
 * f64). gcc vectorises the loops for this CPU. They may reorder sums, fuse multiplications and
 * additions, and ignore NaN; divisions and roots stay as they are written. dpar is compiled as its
 * users compile it.
 *
 * Columns: nanoseconds for an element of dpar and of the loop, medians of rounds in turns, and the
 * ratio, dpar's time over the loop's: below 1 dpar is faster.
 *
 *   cc -O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math \
 *       -ffinite-math-only -DPLAIN -c bench/host_kernels.c -o build/plain.o &&
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/host_kernels.c build/plain.o \
 *       -o build/host_kernels -lm &&
 *   build/host_kernels [ELEMENTS [WORDS]]     only rows whose names have the WORDS
 *
 * Exit codes: 0 measured; 1 no memory, or a kernel of dpar failed; 2 wrong arguments. */
#include <math.h>
#include <stdint.h>

enum { WIDTH = 64, HEADS = 4, TOKENS = 256, VOCABULARY = 8192, ROW = 64, BLOCK = 128 };

/* The arrays of all kernels. Each has n elements and half as many again. Planes are ROW lines of
 * ROW points, with 2 points between lines. */
typedef struct arrays {
    float *weight, *gradient, *momentum, *variance;
    double *wide, *wide_too;
    uint16_t *half;
    int8_t *code;
    float *scale;
    double *sums, *lse; /* results for planes, and for rows of VOCABULARY */
    int64_t n;
} arrays;

void plain_adamw_f32(arrays *data);
void plain_adamw_f64(arrays *data);
void plain_adamw_bf16(arrays *data);
void plain_sgd(arrays *data);
void plain_squares(arrays *data);
void plain_dot(arrays *data);
void plain_finite(arrays *data);
void plain_finite_16(arrays *data);
void plain_sum(arrays *data);
void plain_sum_f64(arrays *data);
void plain_sum_bf16(arrays *data);
void plain_sum_f16(arrays *data);
void plain_max(arrays *data);
void plain_max_i32(arrays *data);
void plain_to_bf16(arrays *data);
void plain_from_bf16(arrays *data);
void plain_to_f16(arrays *data);
void plain_from_f16(arrays *data);
void plain_to_f64(arrays *data);
void plain_from_f64(arrays *data);
void plain_scale(arrays *data);
void plain_add_bf16(arrays *data);
void plain_quantize(arrays *data);
void plain_quantize_8(arrays *data);
void plain_dequantize(arrays *data);
void plain_dequantize_8(arrays *data);
void plain_dequantize_add(arrays *data);
void plain_moments(arrays *data);
void plain_norm(arrays *data);
void plain_norm_sums(arrays *data);
void plain_norm_gradient(arrays *data);
void plain_entropy(arrays *data);
void plain_entropy_gradient(arrays *data);
void plain_attention(arrays *data);
void plain_attention_gradient(arrays *data);
void plain_merge(arrays *data);

static const double rate = 1e-3, beta1 = 0.9, decay = 0.01;
enum { STEP = 1000 };

#if defined(PLAIN)
static const double beta2 = 0.999, epsilon = 1e-8;

/* glibc for x86-64 has exp and expf for several numbers at once (libmvec). */
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__clang__)
__attribute__((simd("notinbranch"))) double exp(double);
__attribute__((simd("notinbranch"))) float expf(float);
#endif

static float float_of(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

static uint16_t bf16_of(float x)
{
    const uint32_t bits = bits_of(x);
    const uint32_t up = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : up);
}

/* By Giesen: https://gist.github.com/rygorous/2156668 */
static uint16_t f16_of(float f)
{
    const uint32_t bits = bits_of(f), sign = bits & 0x80000000u, x = bits ^ sign;
    const uint32_t under = bits_of(float_of(x) + 0.5f) - 0x3f000000u;
    const uint32_t usual = (x - 0x38000000u + 0xfff + (x >> 13 & 1)) >> 13;
    const uint32_t top = x > 0x7f800000u ? 0x7e00 : 0x7c00;
    const uint32_t below = x < 0x38800000u ? under : usual;
    return (uint16_t)((x >= 0x47800000u ? top : below) | sign >> 16);
}

static float of_f16(uint16_t h)
{
    const uint32_t x = (uint32_t)(h & 0x7fff) << 13, exponent = x & 0x0f800000u;
    const uint32_t under = bits_of(float_of(x + 0x38800000u) - float_of(0x38800000u));
    const uint32_t usual = x + (exponent == 0x0f800000u ? 0x70000000u : 0x38000000u);
    return float_of((exponent == 0 ? under : usual) | (uint32_t)(h & 0x8000) << 16);
}

/* ---- optimizers */

#define ADAMW(name, real, root, slope)                                                             \
    void name(arrays *data)                                                                        \
    {                                                                                              \
        float *restrict weight = data->weight, *restrict momentum = data->momentum,                \
                        *restrict variance = data->variance;                                       \
        const float *restrict g = data->gradient;                                                  \
        const uint16_t *restrict h = data->half;                                                   \
        const real b1 = (real)beta1, b2 = (real)beta2, shrink = (real)(1 - rate * decay);          \
        const real reach = (real)(rate / (1 - pow(beta1, STEP)));                                  \
        const real fix = (real)(1 / (1 - pow(beta2, STEP)));                                       \
        (void)g;                                                                                   \
        (void)h;                                                                                   \
        for (int64_t i = 0; i < data->n; i++) {                                                    \
            const real x = (real)(slope);                                                          \
            const real f = b1 * (real)momentum[i] + (1 - b1) * x,                                  \
                       s = b2 * (real)variance[i] + (1 - b2) * x * x;                              \
            momentum[i] = (float)f;                                                                \
            variance[i] = (float)s;                                                                \
            weight[i] =                                                                            \
                (float)((real)weight[i] * shrink - reach * f / (root(s * fix) + (real)epsilon));   \
        }                                                                                          \
    }
ADAMW(plain_adamw_f32, float, sqrtf, g[i])
ADAMW(plain_adamw_f64, double, sqrt, g[i])
ADAMW(plain_adamw_bf16, double, sqrt, float_of((uint32_t)h[i] << 16))

void plain_sgd(arrays *data)
{
    float *restrict weight = data->weight, *restrict momentum = data->momentum;
    const float *restrict gradient = data->gradient;
    for (int64_t i = 0; i < data->n; i++) {
        const double x =
            beta1 * (double)momentum[i] + ((double)gradient[i] + decay * (double)weight[i]);
        momentum[i] = (float)x;
        weight[i] = (float)((double)weight[i] - rate * x);
    }
}

/* ---- reductions */

void plain_squares(arrays *data)
{
    double sum = 0;
    for (int64_t i = 0; i < data->n; i++) {
        sum += (double)data->gradient[i] * (double)data->gradient[i];
    }
    data->sums[0] = sum;
}

void plain_dot(arrays *data)
{
    for (int64_t i = 0; i < data->n / ROW; i++) {
        const float *restrict x = data->gradient + i * ROW, *restrict y = data->variance + i * ROW;
        double sum = 0;
        for (int64_t k = 0; k < ROW; k++) {
            sum += (double)x[k] * (double)y[k];
        }
        data->momentum[i] = (float)sum;
    }
}

#define FINITE(name, type, from, exponent)                                                         \
    void name(arrays *data)                                                                        \
    {                                                                                              \
        const type *restrict x = (const type *)(const void *)from;                                 \
        int64_t i, k, found = -1;                                                                  \
        for (i = 0; i < data->n && found < 0; i += k) {                                            \
            uint32_t odd = 0;                                                                      \
            const int64_t some = data->n - i < 1024 ? data->n - i : 1024;                          \
            for (k = 0; k < some; k++) {                                                           \
                odd |= (x[i + k] & exponent) == exponent;                                          \
            }                                                                                      \
            for (int64_t j = 0; odd && j < some && found < 0; j++) {                               \
                found = (x[i + j] & exponent) == exponent ? i + j : -1;                            \
            }                                                                                      \
        }                                                                                          \
        data->sums[0] = (double)found;                                                             \
    }
FINITE(plain_finite, uint32_t, data->gradient, 0x7f800000u)
FINITE(plain_finite_16, uint16_t, data->half, 0x7f80)

/* NaN is larger than any number. */
static float larger_float(float a, float b)
{
    return a > b || a != a ? a : b;
}

static int32_t larger_int(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

#define MEET(name, type, to, x, y, result)                                                         \
    void name(arrays *data)                                                                        \
    {                                                                                              \
        type *restrict z = (type *)(void *)to;                                                     \
        const type *restrict s = (const type *)(const void *)x;                                    \
        const type *restrict t = (const type *)(const void *)y;                                    \
        for (int64_t i = 0; i < data->n; i++) {                                                    \
            z[i] = result;                                                                         \
        }                                                                                          \
    }
MEET(plain_sum, float, data->weight, data->gradient, data->variance, s[i] + t[i])
MEET(plain_sum_f64, double, data->wide, data->wide, data->wide_too, s[i] + t[i])
MEET(plain_sum_bf16, uint16_t, data->momentum, data->half, data->weight,
     bf16_of(float_of((uint32_t)s[i] << 16) + float_of((uint32_t)t[i] << 16)))
MEET(plain_sum_f16, uint16_t, data->momentum, data->half, data->weight,
     f16_of(of_f16(s[i]) + of_f16(t[i])))
MEET(plain_max, float, data->weight, data->gradient, data->variance, larger_float(s[i], t[i]))
MEET(plain_max_i32, int32_t, data->weight, data->gradient, data->variance, larger_int(s[i], t[i]))

/* ---- casts */

#define CAST(name, to_type, to, from_type, from, result)                                           \
    void name(arrays *data)                                                                        \
    {                                                                                              \
        to_type *restrict z = to;                                                                  \
        const from_type *restrict x = from;                                                        \
        for (int64_t i = 0; i < data->n; i++) {                                                    \
            z[i] = result;                                                                         \
        }                                                                                          \
    }
CAST(plain_to_bf16, uint16_t, data->half, float, data->gradient, bf16_of(x[i]))
CAST(plain_from_bf16, float, data->weight, uint16_t, data->half, float_of((uint32_t)x[i] << 16))
CAST(plain_to_f16, uint16_t, data->half, float, data->gradient, f16_of(x[i]))
CAST(plain_from_f16, float, data->weight, uint16_t, data->half, of_f16(x[i]))
CAST(plain_to_f64, double, data->wide, float, data->gradient, (double)x[i])
CAST(plain_from_f64, float, data->weight, double, data->wide, (float)x[i])
CAST(plain_scale, float, data->weight, float, data->gradient, (float)(1.0 / 3.0 * (double)x[i]))
CAST(plain_add_bf16, float, data->weight, uint16_t, data->half,
     (float)((double)z[i] + (double)float_of((uint32_t)x[i] << 16)))

/* ---- 8 bits */

static float largest(const float *x)
{
    float most = 0;
    for (int i = 0; i < BLOCK; i++) {
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    }
    return most;
}

void plain_quantize(arrays *data)
{
    for (int64_t b = 0; b < data->n / BLOCK; b++) {
        const float *restrict x = data->gradient + b * BLOCK;
        int8_t *restrict code = data->code + b * BLOCK;
        const float scale = largest(x) / 127.0f;
        data->scale[b] = scale;
        for (int i = 0; i < BLOCK && scale > 0; i++) {
            code[i] = (int8_t)(int32_t)rintf(x[i] / scale);
        }
    }
}

void plain_quantize_8(arrays *data)
{
    for (int64_t b = 0; b < data->n / BLOCK; b++) {
        const float *restrict x = data->gradient + b * BLOCK;
        int8_t *restrict out = data->code + b * BLOCK;
        const float scale = largest(x) / 448.0f;
        data->scale[b] = scale;
        for (int i = 0; i < BLOCK && scale > 0; i++) {
            const uint32_t bits = bits_of(x[i] / scale), size = bits & 0x7fffffff;
            const uint32_t usual = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
            const uint32_t under = bits_of(float_of(size) + 16384.0f) & 0xff;
            const uint32_t most = usual < 0x7e ? usual : 0x7e;
            const uint32_t code = size < 0x3c800000 ? under : most;
            out[i] = (int8_t)(code | (code != 0 ? bits >> 24 & 0x80 : 0));
        }
    }
}

void plain_dequantize(arrays *data)
{
    for (int64_t b = 0; b < data->n / BLOCK; b++) {
        float *restrict x = data->weight + b * BLOCK;
        const int8_t *restrict code = data->code + b * BLOCK;
        const float scale = data->scale[b];
        for (int i = 0; i < BLOCK; i++) {
            x[i] = (float)code[i] * scale;
        }
    }
}

void plain_dequantize_8(arrays *data)
{
    for (int64_t b = 0; b < data->n / BLOCK; b++) {
        float *restrict x = data->weight + b * BLOCK;
        const int8_t *restrict code = data->code + b * BLOCK;
        const float scale = data->scale[b];
        for (int i = 0; i < BLOCK; i++) {
            const uint32_t size = (uint32_t)code[i] & 0x7f, sign = ((uint32_t)code[i] & 0x80) << 24;
            const uint32_t usual = size == 0x7f ? 0x7fc00000 : (size + (120 << 3)) << 20;
            const uint32_t under = bits_of((float)(int32_t)size * (1.0f / 512));
            x[i] = float_of((size < 8 ? under : usual) | sign) * scale;
        }
    }
}

void plain_dequantize_add(arrays *data)
{
    for (int64_t b = 0; b < data->n / BLOCK; b++) {
        float *restrict x = data->weight + b * BLOCK;
        const int8_t *restrict code = data->code + b * BLOCK;
        const float scale = data->scale[b];
        for (int i = 0; i < BLOCK; i++) {
            x[i] = (float)((double)x[i] + (double)((float)code[i] * scale));
        }
    }
}

/* ---- norms: planes of ROW x ROW in f32, all else in f64 */

void plain_moments(arrays *data)
{
    for (int64_t p = 0; p < data->n / (ROW * ROW); p++) {
        const float *restrict x = data->gradient + p * ROW * (ROW + 2);
        double sum = 0, m2 = 0;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                sum += (double)x[i * (ROW + 2) + k];
            }
        }
        sum /= ROW * ROW;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                const double distance = (double)x[i * (ROW + 2) + k] - sum;
                m2 += distance * distance;
            }
        }
        data->sums[3 * p] = ROW * ROW;
        data->sums[3 * p + 1] = sum;
        data->sums[3 * p + 2] = m2;
    }
}

void plain_norm(arrays *data)
{
    for (int64_t p = 0; p < data->n / (ROW * ROW); p++) {
        const float *restrict x = data->gradient + p * ROW * (ROW + 2);
        float *restrict y = data->weight + p * ROW * (ROW + 2);
        const double mean = data->sums[2 * p], scale = data->sums[2 * p + 1] * 0.5, shift = 0.25;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                y[i * (ROW + 2) + k] =
                    (float)(scale * ((double)x[i * (ROW + 2) + k] - mean) + shift);
            }
        }
    }
}

void plain_norm_sums(arrays *data)
{
    for (int64_t p = 0; p < data->n / (ROW * ROW); p++) {
        const float *restrict x = data->gradient + p * ROW * (ROW + 2);
        const float *restrict dy = data->variance + p * ROW * (ROW + 2);
        const double mean = data->sums[2 * p];
        double first = 0, second = 0;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                const double gradient = (double)dy[i * (ROW + 2) + k];
                first += gradient;
                second += gradient * ((double)x[i * (ROW + 2) + k] - mean);
            }
        }
        data->lse[2 * p] = first;
        data->lse[2 * p + 1] = second * data->sums[2 * p + 1];
    }
}

void plain_norm_gradient(arrays *data)
{
    for (int64_t p = 0; p < data->n / (ROW * ROW); p++) {
        const float *restrict x = data->gradient + p * ROW * (ROW + 2);
        const float *restrict dy = data->variance + p * ROW * (ROW + 2);
        float *restrict dx = data->weight + p * ROW * (ROW + 2);
        const double mean = data->sums[2 * p], inverse = data->sums[2 * p + 1], of = ROW * ROW;
        const double first = data->lse[2 * p] * 0.5 / of;
        const double slope = inverse * (data->lse[2 * p + 1] * 0.5 / of);
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                const int at = i * (ROW + 2) + k;
                dx[at] = (float)(inverse *
                                 (0.5 * (double)dy[at] - first - ((double)x[at] - mean) * slope));
            }
        }
    }
}

/* ---- cross-entropy */

void plain_entropy(arrays *data)
{
    for (int64_t t = 0; t < data->n / VOCABULARY; t++) {
        const float *restrict x = data->gradient + t * VOCABULARY;
        double sum = 0, below = 0;
        float most = x[0];
        for (int i = 0; i < VOCABULARY; i++) {
            most = x[i] > most ? x[i] : most;
            sum += (double)x[i];
        }
        for (int i = 0; i < VOCABULARY; i++) {
            below += exp((double)x[i] - (double)most);
        }
        data->sums[3 * t] = (double)most;
        data->sums[3 * t + 1] = below;
        data->sums[3 * t + 2] = 0.9 * (double)x[5] + 0.1 / VOCABULARY * sum;
    }
}

void plain_entropy_gradient(arrays *data)
{
    for (int64_t t = 0; t < data->n / VOCABULARY; t++) {
        float *restrict x = data->weight + t * VOCABULARY;
        const double lse = data->lse[t], smooth = 0.1 / VOCABULARY;
        const double own = exp((double)x[5] - lse) - smooth - 0.9;
        for (int i = 0; i < VOCABULARY; i++) {
            x[i] = (float)(exp((double)x[i] - lse) - smooth);
        }
        x[5] = (float)own;
    }
}

/* ---- attention: causal, in f32 */

static float dot(const float *restrict x, const float *restrict y)
{
    float sum = 0;
    for (int i = 0; i < WIDTH; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

void plain_attention(arrays *data)
{
    const float *query = data->gradient, *key = query + TOKENS * HEADS * WIDTH,
                *value = key + TOKENS * HEADS * WIDTH;
    for (int64_t r = 0; r < TOKENS * HEADS; r++) {
        const int64_t i = r / HEADS, h = r % HEADS;
        float *restrict y = data->weight + r * WIDTH, score[TOKENS], most = -INFINITY, sum = 0;
        for (int64_t j = 0; j <= i; j++) {
            score[j] = 0.125f * dot(query + r * WIDTH, key + (j * HEADS + h) * WIDTH);
            most = score[j] > most ? score[j] : most;
        }
        for (int64_t j = 0; j <= i; j++) {
            score[j] = expf(score[j] - most);
            sum += score[j];
        }
        for (int64_t c = 0; c < WIDTH; c++) {
            y[c] = 0;
        }
        for (int64_t j = 0; j <= i; j++) {
            const float *restrict x = value + (j * HEADS + h) * WIDTH, p = score[j] / sum;
            for (int c = 0; c < WIDTH; c++) {
                y[c] += p * x[c];
            }
        }
        data->scale[r] = most + logf(sum);
    }
}

void plain_attention_gradient(arrays *data)
{
    const int64_t all = TOKENS * HEADS * WIDTH;
    const float *query = data->gradient, *key = query + all, *value = key + all,
                *out_gradient = data->variance;
    for (int64_t r = 0; r < TOKENS * HEADS; r++) {
        const int64_t i = r / HEADS, h = r % HEADS;
        const float *restrict x = query + r * WIDTH, *restrict dy = out_gradient + r * WIDTH;
        float *restrict dx = data->momentum + r * WIDTH, score[TOKENS];
        const float lse = data->scale[r];
        for (int64_t j = 0; j <= i; j++) {
            score[j] = expf(0.125f * dot(x, key + (j * HEADS + h) * WIDTH) - lse);
        }
        for (int64_t j = 0; j <= i; j++) {
            const float *restrict key_row = key + (j * HEADS + h) * WIDTH;
            float *restrict dk = data->momentum + all + (j * HEADS + h) * WIDTH;
            float *restrict dv = data->momentum + 2 * all + (j * HEADS + h) * WIDTH;
            const float p = score[j];
            const float s = p * 0.125f * (dot(dy, value + (j * HEADS + h) * WIDTH) - 0.01f);
            for (int c = 0; c < WIDTH; c++) {
                dx[c] += s * key_row[c];
                dk[c] += s * x[c];
                dv[c] += p * dy[c];
            }
        }
    }
}

void plain_merge(arrays *data)
{
    for (int64_t i = 0; i < data->n / WIDTH; i++) {
        float *restrict y = data->weight + i * WIDTH;
        const float *restrict x = data->gradient + i * WIDTH;
        const double old_lse = (double)data->scale[i], new_lse = (double)data->momentum[i];
        const double most = old_lse > new_lse ? old_lse : new_lse;
        const double old_sum = exp(old_lse - most), new_sum = exp(new_lse - most);
        const float keep = (float)(old_sum / (old_sum + new_sum));
        const float more = (float)(new_sum / (old_sum + new_sum));
        for (int64_t c = 0; c < WIDTH; c++) {
            y[c] = keep * y[c] + more * x[c];
        }
        data->scale[i] = (float)(most + log(old_sum + new_sum));
    }
}
#else

#include "dpar_train.h"

#include "../helpers/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 41 };

static dpar_mem_layers host;
static dpar_mem mem;

static const char *running; /* the row of the table that is being measured */

/* Ends the program if a kernel of dpar failed. */
static void must(dpar_status st)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "host_kernels: row '%s': dpar's kernel failed: %s (status %d)\n", running,
                dpar_status_text(st), (int)st);
        exit(1);
    }
}

static void step(arrays *data, int32_t kind, int32_t gradient_type)
{
    dpar_optimizer optimizer;
    dpar_optimizer_piece piece;
    dpar_optimizer_init(&optimizer, kind);
    if (kind == DPAR_OPTIMIZER_SGD) {
        optimizer.momentum = beta1;
        optimizer.decay = decay;
    }
    memset(&piece, 0, sizeof piece);
    piece.weight = data->weight;
    piece.gradient = gradient_type == DPAR_F32 ? (void *)data->gradient : (void *)data->half;
    piece.m = data->momentum;
    piece.v = kind == DPAR_OPTIMIZER_ADAMW ? data->variance : NULL;
    piece.weight_type = DPAR_F32;
    piece.gradient_type = gradient_type;
    piece.count = data->n;
    must(dpar_optimizer_step(&optimizer, &piece, STEP, rate, 1.0));
}

static void adamw(arrays *data)
{
    step(data, DPAR_OPTIMIZER_ADAMW, DPAR_F32);
}

/* AdamW with 8-bit moments: records of 256 codes and a scale, 260 bytes each. */
static void adamw_coded(arrays *data)
{
    static unsigned char *records;
    static int64_t blocks;
    dpar_optimizer optimizer;
    dpar_optimizer_piece piece;
    if (blocks < (data->n + 255) / 256) {
        free(records);
        blocks = (data->n + 255) / 256;
        records = (unsigned char *)calloc((size_t)blocks, 2 * 260);
        must(records != NULL ? DPAR_OK : DPAR_E_MEMORY);
    }
    dpar_optimizer_init(&optimizer, DPAR_OPTIMIZER_ADAMW);
    optimizer.moment_type = DPAR_F8;
    memset(&piece, 0, sizeof piece);
    piece.weight = data->weight;
    piece.gradient = data->gradient;
    piece.m = records;
    piece.v = records + blocks * 260;
    piece.weight_type = DPAR_F32;
    piece.gradient_type = DPAR_F32;
    piece.count = data->n;
    must(dpar_optimizer_step(&optimizer, &piece, STEP, rate, 1.0));
}

static void adamw_bf16(arrays *data)
{
    step(data, DPAR_OPTIMIZER_ADAMW, DPAR_BF16);
}

static void sgd(arrays *data)
{
    step(data, DPAR_OPTIMIZER_SGD, DPAR_F32);
}

static void squares(arrays *data)
{
    dpar_mem_squares work;
    memset(&work, 0, sizeof work);
    work.in = data->gradient;
    work.count = data->n;
    work.type = DPAR_F32;
    work.sum = data->sums;
    must(host.squares(NULL, &work));
}

static void dot(arrays *data)
{
    dpar_mem_dot work;
    memset(&work, 0, sizeof work);
    work.to = data->momentum;
    work.a = data->gradient;
    work.b = data->variance;
    work.rows = data->n / ROW;
    work.choices = 1;
    work.width = ROW;
    work.to_type = work.type = DPAR_F32;
    must(host.dot(NULL, &work));
}

static void look(arrays *data, const void *in, int32_t type)
{
    dpar_mem_finite work;
    int64_t found;
    memset(&work, 0, sizeof work);
    work.in = in;
    work.count = data->n;
    work.type = type;
    work.found = &found;
    must(mem.finite(NULL, &work));
}

static void finite_32(arrays *data)
{
    look(data, data->gradient, DPAR_F32);
}

static void finite_16(arrays *data)
{
    look(data, data->half, DPAR_BF16);
}

static void meet(arrays *data, void *to, const void *x, const void *y, int32_t type, int32_t op)
{
    void *out[1];
    const void *in[2];
    out[0] = to;
    in[0] = x;
    in[1] = y;
    dpari_kern_reduce(out, 1, in, 2, data->n, type, op, 0);
}

static void sum(arrays *data)
{
    meet(data, data->weight, data->gradient, data->variance, DPAR_F32, DPAR_SUM);
}

static void sum_f64(arrays *data)
{
    meet(data, data->wide, data->wide, data->wide_too, DPAR_F64, DPAR_SUM);
}

static void sum_bf16(arrays *data)
{
    meet(data, data->momentum, data->half, data->weight, DPAR_BF16, DPAR_SUM);
}

static void sum_f16(arrays *data)
{
    meet(data, data->momentum, data->half, data->weight, DPAR_F16, DPAR_SUM);
}

static void max_f32(arrays *data)
{
    meet(data, data->weight, data->gradient, data->variance, DPAR_F32, DPAR_MAX);
}

static void max_i32(arrays *data)
{
    meet(data, data->weight, data->gradient, data->variance, DPAR_I32, DPAR_MAX);
}

static void cast(arrays *data, void *to, int32_t to_type, const void *from, int32_t from_type,
                 double scale, int add)
{
    dpar_mem_span work;
    memset(&work, 0, sizeof work);
    work.to = to;
    work.from = from;
    work.count = data->n;
    work.to_type = to_type;
    work.from_type = from_type;
    work.scale = scale;
    work.accumulate = add;
    must(mem.span(NULL, &work, 1));
}

static void to_bf16(arrays *data)
{
    cast(data, data->half, DPAR_BF16, data->gradient, DPAR_F32, 1.0, 0);
}

static void from_bf16(arrays *data)
{
    cast(data, data->weight, DPAR_F32, data->half, DPAR_BF16, 1.0, 0);
}

static void to_f16(arrays *data)
{
    cast(data, data->half, DPAR_F16, data->gradient, DPAR_F32, 1.0, 0);
}

static void from_f16(arrays *data)
{
    cast(data, data->weight, DPAR_F32, data->half, DPAR_F16, 1.0, 0);
}

static void to_f64(arrays *data)
{
    cast(data, data->wide, DPAR_F64, data->gradient, DPAR_F32, 1.0, 0);
}

static void from_f64(arrays *data)
{
    cast(data, data->weight, DPAR_F32, data->wide, DPAR_F64, 1.0, 0);
}

static void scale(arrays *data)
{
    cast(data, data->weight, DPAR_F32, data->gradient, DPAR_F32, 1.0 / 3.0, 0);
}

static void add_bf16(arrays *data)
{
    cast(data, data->weight, DPAR_F32, data->half, DPAR_BF16, 1.0, 1);
}

static dpar_mem_quantize blocks(arrays *data, float *x, int32_t code_type)
{
    dpar_mem_quantize work;
    memset(&work, 0, sizeof work);
    work.x = x;
    work.count = data->n / BLOCK * BLOCK;
    work.block = work.code_step = BLOCK;
    work.type = DPAR_F32;
    work.code_type = code_type;
    work.code = data->code;
    work.scale = data->scale;
    work.scale_step = 4;
    return work;
}

static void quantize(arrays *data)
{
    const dpar_mem_quantize work = blocks(data, data->gradient, DPAR_I8);
    must(host.quantize(NULL, &work));
}

static void quantize_8(arrays *data)
{
    const dpar_mem_quantize work = blocks(data, data->gradient, DPAR_F8);
    must(host.quantize(NULL, &work));
}

static void dequantize(arrays *data)
{
    const dpar_mem_quantize work = blocks(data, data->weight, DPAR_I8);
    must(host.dequantize(NULL, &work));
}

static void dequantize_8(arrays *data)
{
    const dpar_mem_quantize work = blocks(data, data->weight, DPAR_F8);
    must(host.dequantize(NULL, &work));
}

static void dequantize_add(arrays *data)
{
    dpar_mem_quantize work = blocks(data, data->weight, DPAR_I8);
    work.accumulate = 1;
    must(host.dequantize(NULL, &work));
}

static void moments(arrays *data)
{
    dpar_mem_moments work;
    memset(&work, 0, sizeof work);
    work.x = data->gradient;
    work.type = DPAR_F32;
    work.dims = 2;
    work.planes = work.channels = (int32_t)(data->n / (ROW * ROW));
    work.step = ROW * (ROW + 2);
    work.extent[0] = work.extent[1] = ROW;
    work.stride[0] = ROW + 2;
    work.stride[1] = 1;
    work.to = data->sums;
    must(host.moments(NULL, &work));
}

static void norm_of(arrays *data, int32_t phase)
{
    static float half[1 << 17], quarter[1 << 17];
    static double total[3 << 17];
    dpar_mem_norm work;
    memset(&work, 0, sizeof work);
    work.phase = phase;
    work.type = DPAR_F32;
    work.planes = work.channels = (int32_t)(data->n / (ROW * ROW));
    for (int64_t i = 0; i < work.planes && half[i] <= 0; i++) {
        half[i] = 0.5f;
        quarter[i] = 0.25f;
    }
    work.dims = 2;
    work.extent[0] = work.extent[1] = ROW;
    work.x.data = data->gradient;
    work.dy.data = data->variance;
    work.to.data = data->weight;
    work.x.step = work.dy.step = work.to.step = ROW * (ROW + 2);
    work.x.stride[0] = work.dy.stride[0] = work.to.stride[0] = ROW + 2;
    work.x.stride[1] = work.dy.stride[1] = work.to.stride[1] = 1;
    work.scale = half;
    work.shift = quarter;
    work.saved = data->sums;
    work.sums = data->lse;
    work.total = total;
    must(host.norm(NULL, &work));
}

static void norm(arrays *data)
{
    norm_of(data, DPAR_MEM_NORM_APPLY);
}

static void norm_sums(arrays *data)
{
    norm_of(data, DPAR_MEM_NORM_SUMS);
}

static void norm_gradient(arrays *data)
{
    norm_of(data, DPAR_MEM_NORM_GRADIENT);
}

static void entropy_of(arrays *data, int32_t phase, float *logits)
{
    static int32_t target[1 << 16];
    static float own[3 << 16];
    dpar_mem_cross_entropy work;
    memset(&work, 0, sizeof work);
    work.phase = phase;
    work.type = DPAR_F32;
    work.tokens = data->n / VOCABULARY;
    for (int64_t i = 0; i < work.tokens; i++) {
        target[i] = 5;
    }
    work.rows = work.vocabulary = VOCABULARY;
    work.hi[0] = work.lo[1] = work.hi[1] = VOCABULARY;
    work.target.at = target;
    work.target.type = DPAR_I32;
    work.smoothing = 0.1;
    work.logits = logits;
    work.partial = own;
    work.lse = data->lse;
    work.scale = 1.0;
    must(host.cross_entropy(NULL, &work));
}

static void entropy(arrays *data)
{
    entropy_of(data, DPAR_MEM_CROSS_ENTROPY_PART, data->gradient);
}

static void entropy_gradient(arrays *data)
{
    entropy_of(data, DPAR_MEM_CROSS_ENTROPY_GRADIENT, data->weight);
}

static void attend(arrays *data, int backward)
{
    const int64_t all = TOKENS * HEADS * WIDTH;
    static float delta[TOKENS * HEADS];
    dpar_attention_desc layer;
    dpar_attention_call call;
    memset(&layer, 0, sizeof layer);
    memset(&call, 0, sizeof call);
    layer.heads = HEADS;
    layer.width = WIDTH;
    layer.type = DPAR_F32;
    layer.causal = 1;
    call.layer = &layer;
    call.queries = call.keys = TOKENS;
    call.low = -TOKENS;
    call.q = data->gradient;
    call.k = data->gradient + all;
    call.v = data->gradient + 2 * all;
    call.out = data->weight;
    call.lse = data->scale;
    if (backward) {
        for (int i = 0; i < TOKENS * HEADS; i++) {
            delta[i] = 0.01f;
        }
        call.out_gradient = data->variance;
        call.delta = delta;
        call.q_gradient = data->momentum;
        call.k_gradient = data->momentum + all;
        call.v_gradient = data->momentum + 2 * all;
    }
    dpar_attention_host(&call);
}

static void attention(arrays *data)
{
    attend(data, 0);
}

static void attention_gradient(arrays *data)
{
    attend(data, 1);
}

static void merge(arrays *data)
{
    dpar_mem_attention_merge work;
    memset(&work, 0, sizeof work);
    work.type = DPAR_F32;
    work.rows = data->n / WIDTH;
    work.values = WIDTH;
    work.out = data->weight;
    work.lse = data->scale;
    work.more = data->gradient;
    work.more_lse = data->momentum;
    must(host.attention_merge(NULL, &work));
}

/* ---- the table */

typedef struct kernel {
    const char *name;
    void (*dpar)(arrays *data);
    void (*plain)(arrays *data);
    int64_t elements; /* by which the time is divided; 0 selects n */
} kernel;

static const kernel kernels[] = {
    {"AdamW, f32 in f64; loop in f64", adamw, plain_adamw_f64, 0},
    {"the same; loop in f32, of less precision", adamw, plain_adamw_f32, 0},
    {"AdamW, gradient bf16; loop in f64", adamw_bf16, plain_adamw_bf16, 0},
    {"AdamW, 8-bit moments; dpar's with f32 moments", adamw_coded, adamw, 0},
    {"SGD with momentum, f32 in f64; loop in f64", sgd, plain_sgd, 0},
    {"norm: moments of planes, f32 in f64", moments, plain_moments, 0},
    {"norm, forward", norm, plain_norm, 0},
    {"norm, sums of backward", norm_sums, plain_norm_sums, 0},
    {"norm, backward", norm_gradient, plain_norm_gradient, 0},
    {"cross-entropy, forward, f32 in f64", entropy, plain_entropy, 0},
    {"cross-entropy, backward", entropy_gradient, plain_entropy_gradient, 0},
    {"attention, forward, f32 (a pair)", attention, plain_attention,
     HEADS *TOKENS *(TOKENS + 1) / 2},
    {"attention, backward (a pair)", attention_gradient, plain_attention_gradient,
     HEADS *TOKENS *(TOKENS + 1) / 2},
    {"attention, two parts merged", merge, plain_merge, 0},
    {"cast f32 to bf16", to_bf16, plain_to_bf16, 0},
    {"cast bf16 to f32", from_bf16, plain_from_bf16, 0},
    {"cast f32 to f16", to_f16, plain_to_f16, 0},
    {"cast f16 to f32", from_f16, plain_from_f16, 0},
    {"cast f32 to f64", to_f64, plain_to_f64, 0},
    {"cast f64 to f32", from_f64, plain_from_f64, 0},
    {"f32 scaled by a third, in f64", scale, plain_scale, 0},
    {"bf16 added to f32", add_bf16, plain_add_bf16, 0},
    {"quantize f32 to i8", quantize, plain_quantize, 0},
    {"quantize f32 to f8", quantize_8, plain_quantize_8, 0},
    {"dequantize i8", dequantize, plain_dequantize, 0},
    {"dequantize f8", dequantize_8, plain_dequantize_8, 0},
    {"dequantize i8, added", dequantize_add, plain_dequantize_add, 0},
    {"sum of two, f32", sum, plain_sum, 0},
    {"sum of two, f64", sum_f64, plain_sum_f64, 0},
    {"sum of two, bf16 in f32", sum_bf16, plain_sum_bf16, 0},
    {"sum of two, f16 in f32", sum_f16, plain_sum_f16, 0},
    {"max of two, f32", max_f32, plain_max, 0},
    {"max of two, i32", max_i32, plain_max_i32, 0},
    {"squares added up, f32 in f64", squares, plain_squares, 0},
    {"dot products of rows of 64, f32 in f64", dot, plain_dot, 0},
    {"NaN or infinite? f32", finite_32, plain_finite, 0},
    {"NaN or infinite? bf16", finite_16, plain_finite_16, 0},
};

static int ascending(const void *first, const void *second)
{
    const double x = *(const double *)first, y = *(const double *)second;
    return (x > y) - (x < y);
}

/* Fills the arrays with ordinary numbers, so that no row works on what another row has left. */
static void fill(arrays *data)
{
    const int64_t n = data->n + data->n / 2;
    for (int64_t i = 0; i < n; i++) {
        data->weight[i] = 0.01F * (float)(1 + i * 7919 % 1009);
        data->gradient[i] = 0.002F * (float)(i * 7907 % 1013 - 506);
        data->momentum[i] = 0.001F * (float)(1 + i * 6007 % 1009);
        data->variance[i] = 0.0001F * (float)(1 + i * 5003 % 1009);
        data->wide[i] = (double)data->weight[i];
        data->wide_too[i] = (double)data->gradient[i];
        data->half[i] = (uint16_t)(0x3c00 + i * 7907 % 1013);
        data->code[i] = (int8_t)(i * 7907 % 251 - 125);
        data->scale[i] = 1.0F;
        data->sums[i] = i % 2 == 0 ? 0.1 : 1.5;
        data->lse[i] = 9.0;
    }
}

/* Measures and prints a row. */
static void row(const kernel *entry, arrays *data)
{
    static double seconds[2][ROUNDS];
    const double n = (double)(entry->elements > 0 ? entry->elements : data->n);
    running = entry->name;
    fill(data);
    for (int round = -1; round < ROUNDS; round++) { /* one to warm up */
        for (int way = 0; way < 2; way++) {
            const double began = now();
            (way == 0 ? entry->dpar : entry->plain)(data);
            if (round >= 0) {
                seconds[way][round] = now() - began;
            }
        }
    }
    for (int way = 0; way < 2; way++) {
        qsort(seconds[way], ROUNDS, sizeof(double), ascending);
    }
    printf("| %s | %.3f | %.3f | %.2f |\n", entry->name, 1e9 * seconds[0][ROUNDS / 2] / n,
           1e9 * seconds[1][ROUNDS / 2] / n, seconds[0][ROUNDS / 2] / seconds[1][ROUNDS / 2]);
}

int main(int argc, char **argv)
{
    enum { EACH = 4 * 4 + 2 * 8 + 2 + 1 + 4 + 2 * 8 }; /* bytes of all arrays */
    arrays data;
    unsigned char *at;
    int64_t n;
    if (argc > 3) {
        fprintf(stderr, "host_kernels: %d arguments; usage: host_kernels [ELEMENTS [WORDS]]\n",
                argc - 1);
        return 2;
    }
    data.n = argc > 1 ? atoll(argv[1]) : 932608;
    if (data.n < 3 * HEADS * TOKENS * WIDTH || data.n > 1 << 28) {
        fprintf(stderr, "host_kernels: ELEMENTS is %s; it has to be %d to %d\n", argv[1],
                3 * HEADS * TOKENS * WIDTH, 1 << 28);
        return 2;
    }
    n = (data.n + data.n / 2 + 63) / 64 * 64;
    at = (unsigned char *)aligned_alloc(64, (size_t)(n * EACH + 63) / 64 * 64);
    if (at == NULL) {
        fprintf(stderr, "host_kernels: no memory for %lld elements (%lld bytes)\n",
                (long long)data.n, (long long)(n * EACH));
        return 1;
    }
    data.wide = (double *)(void *)at;
    data.wide_too = data.wide + n;
    data.sums = data.wide_too + n;
    data.lse = data.sums + n;
    data.weight = (float *)(void *)(data.lse + n);
    data.gradient = data.weight + n;
    data.momentum = data.gradient + n;
    data.variance = data.momentum + n;
    data.scale = data.variance + n;
    data.half = (uint16_t *)(void *)(data.scale + n);
    data.code = (int8_t *)(void *)(data.half + n);
    host = dpar_mem_host_layers();
    mem = dpar_mem_host();
    puts("| kernel | dpar ns an element | plain loop | ratio |\n|---|---|---|---|");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (argc < 3 || strstr(kernels[i].name, argv[2]) != NULL) {
            row(&kernels[i], &data);
        }
    }
    free(at);
    return 0;
}
#endif
