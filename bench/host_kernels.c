/* SPDX-License-Identifier: MIT-0 */
/* host_kernels - what the host computes for training and in reductions, each beside a plain loop of
 * the same work in the same precision (of sums in f64 over f32: in f64) that gcc vectorises for
 * this CPU. The loops may reorder sums, fuse, and take no heed of NaN; they divide and take roots
 * as they are written. Nanoseconds an element, the median of rounds in turns, and dpar's time over
 * the loop's. dpar is compiled as its users do.
 *
 *   cc -O3 -march=native -fno-math-errno -fno-trapping-math -fno-signed-zeros -fassociative-math \
 *       -ffinite-math-only -DPLAIN -c bench/host_kernels.c -o build/plain.o &&
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/host_kernels.c build/plain.o \
 *       -o build/host_kernels -lm &&
 *   build/host_kernels [ELEMENTS [WORDS]]     WORDS: only rows that have them
 *
 * Exit codes: 0 measured; 1 no memory, or a kernel of dpar failed; 2 wrong arguments. */
#include <math.h>
#include <stdint.h>

enum { WIDTH = 64, HEADS = 4, TOKENS = 256, VOCABULARY = 8192, ROW = 64, BLOCK = 128 };

/* What all work on: n elements (ROW of a plane's points with 2 behind them), few results. */
typedef struct arrays {
    float *w, *g, *m, *v; /* n each and a half more */
    double *d, *e;
    uint16_t *h;
    int8_t *c;
    float *scale;
    double *sums, *lse; /* of planes, of rows of VOCABULARY */
    int64_t n;
} arrays;

void plain_adamw_f32(arrays *a);
void plain_adamw_f64(arrays *a);
void plain_adamw_bf16(arrays *a);
void plain_sgd(arrays *a);
void plain_squares(arrays *a);
void plain_dot(arrays *a);
void plain_finite(arrays *a);
void plain_finite_16(arrays *a);
void plain_sum(arrays *a);
void plain_sum_f64(arrays *a);
void plain_sum_bf16(arrays *a);
void plain_sum_f16(arrays *a);
void plain_max(arrays *a);
void plain_max_i32(arrays *a);
void plain_to_bf16(arrays *a);
void plain_from_bf16(arrays *a);
void plain_to_f16(arrays *a);
void plain_from_f16(arrays *a);
void plain_to_f64(arrays *a);
void plain_from_f64(arrays *a);
void plain_scale(arrays *a);
void plain_add_bf16(arrays *a);
void plain_quantize(arrays *a);
void plain_quantize_8(arrays *a);
void plain_dequantize(arrays *a);
void plain_dequantize_8(arrays *a);
void plain_dequantize_add(arrays *a);
void plain_moments(arrays *a);
void plain_norm(arrays *a);
void plain_norm_sums(arrays *a);
void plain_norm_gradient(arrays *a);
void plain_entropy(arrays *a);
void plain_entropy_gradient(arrays *a);
void plain_attention(arrays *a);
void plain_attention_gradient(arrays *a);
void plain_merge(arrays *a);

static const double rate = 1e-3, beta1 = 0.9, decay = 0.01;
enum { STEP = 1000 };

#if defined(PLAIN)
static const double beta2 = 0.999, epsilon = 1e-8;

/* Of libm for several at once (libmvec), where it has them: glibc's for x86-64. */
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

/* Giesen's: https://gist.github.com/rygorous/2156668 */
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

#define ADAMW(name, real, root, gradient)                                                          \
    void name(arrays *a)                                                                           \
    {                                                                                              \
        float *restrict w = a->w, *restrict m = a->m, *restrict v = a->v;                          \
        const float *restrict g = a->g;                                                            \
        const uint16_t *restrict h = a->h;                                                         \
        const real b1 = (real)beta1, b2 = (real)beta2, shrink = (real)(1 - rate * decay);          \
        const real reach = (real)(rate / (1 - pow(beta1, STEP)));                                  \
        const real fix = (real)(1 / (1 - pow(beta2, STEP)));                                       \
        (void)g;                                                                                   \
        (void)h;                                                                                   \
        for (int64_t i = 0; i < a->n; i++) {                                                       \
            const real x = (real)(gradient);                                                       \
            const real f = b1 * (real)m[i] + (1 - b1) * x, s = b2 * (real)v[i] + (1 - b2) * x * x; \
            m[i] = (float)f;                                                                       \
            v[i] = (float)s;                                                                       \
            w[i] = (float)((real)w[i] * shrink - reach * f / (root(s * fix) + (real)epsilon));     \
        }                                                                                          \
    }
ADAMW(plain_adamw_f32, float, sqrtf, g[i])
ADAMW(plain_adamw_f64, double, sqrt, g[i])
ADAMW(plain_adamw_bf16, double, sqrt, float_of((uint32_t)h[i] << 16))

void plain_sgd(arrays *a)
{
    float *restrict w = a->w, *restrict m = a->m;
    const float *restrict g = a->g;
    for (int64_t i = 0; i < a->n; i++) {
        const double x = beta1 * (double)m[i] + ((double)g[i] + decay * (double)w[i]);
        m[i] = (float)x;
        w[i] = (float)((double)w[i] - rate * x);
    }
}

/* ---- reductions */

void plain_squares(arrays *a)
{
    double sum = 0;
    for (int64_t i = 0; i < a->n; i++) {
        sum += (double)a->g[i] * (double)a->g[i];
    }
    a->sums[0] = sum;
}

void plain_dot(arrays *a)
{
    for (int64_t i = 0; i < a->n / ROW; i++) {
        const float *restrict x = a->g + i * ROW, *restrict y = a->v + i * ROW;
        double sum = 0;
        for (int64_t k = 0; k < ROW; k++) {
            sum += (double)x[k] * (double)y[k];
        }
        a->m[i] = (float)sum;
    }
}

#define FINITE(name, type, from, exponent)                                                         \
    void name(arrays *a)                                                                           \
    {                                                                                              \
        const type *restrict x = (const type *)(const void *)from;                                 \
        int64_t i, k, found = -1;                                                                  \
        for (i = 0; i < a->n && found < 0; i += k) {                                               \
            uint32_t odd = 0;                                                                      \
            const int64_t some = a->n - i < 1024 ? a->n - i : 1024;                                \
            for (k = 0; k < some; k++) {                                                           \
                odd |= (x[i + k] & exponent) == exponent;                                          \
            }                                                                                      \
            for (int64_t j = 0; odd && j < some && found < 0; j++) {                               \
                found = (x[i + j] & exponent) == exponent ? i + j : -1;                            \
            }                                                                                      \
        }                                                                                          \
        a->sums[0] = (double)found;                                                                \
    }
FINITE(plain_finite, uint32_t, a->g, 0x7f800000u)
FINITE(plain_finite_16, uint16_t, a->h, 0x7f80)

#define MEET(name, type, to, x, y, result)                                                         \
    void name(arrays *a)                                                                           \
    {                                                                                              \
        type *restrict z = (type *)(void *)to;                                                     \
        const type *restrict s = (const type *)(const void *)x;                                    \
        const type *restrict t = (const type *)(const void *)y;                                    \
        for (int64_t i = 0; i < a->n; i++) {                                                       \
            z[i] = result;                                                                         \
        }                                                                                          \
    }
MEET(plain_sum, float, a->w, a->g, a->v, s[i] + t[i])
MEET(plain_sum_f64, double, a->d, a->d, a->e, s[i] + t[i])
MEET(plain_sum_bf16, uint16_t, a->m, a->h, a->w,
     bf16_of(float_of((uint32_t)s[i] << 16) + float_of((uint32_t)t[i] << 16)))
MEET(plain_sum_f16, uint16_t, a->m, a->h, a->w, f16_of(of_f16(s[i]) + of_f16(t[i])))
MEET(plain_max, float, a->w, a->g, a->v, s[i] > t[i] || s[i] != s[i] ? s[i] : t[i])
MEET(plain_max_i32, int32_t, a->w, a->g, a->v, s[i] > t[i] ? s[i] : t[i])

/* ---- casts */

#define CAST(name, to_type, to, from_type, from, result)                                           \
    void name(arrays *a)                                                                           \
    {                                                                                              \
        to_type *restrict z = to;                                                                  \
        const from_type *restrict x = from;                                                        \
        for (int64_t i = 0; i < a->n; i++) {                                                       \
            z[i] = result;                                                                         \
        }                                                                                          \
    }
CAST(plain_to_bf16, uint16_t, a->h, float, a->g, bf16_of(x[i]))
CAST(plain_from_bf16, float, a->w, uint16_t, a->h, float_of((uint32_t)x[i] << 16))
CAST(plain_to_f16, uint16_t, a->h, float, a->g, f16_of(x[i]))
CAST(plain_from_f16, float, a->w, uint16_t, a->h, of_f16(x[i]))
CAST(plain_to_f64, double, a->d, float, a->g, (double)x[i])
CAST(plain_from_f64, float, a->w, double, a->d, (float)x[i])
CAST(plain_scale, float, a->w, float, a->g, (float)(1.0 / 3.0 * (double)x[i]))
CAST(plain_add_bf16, float, a->w, uint16_t, a->h,
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

void plain_quantize(arrays *a)
{
    for (int64_t b = 0; b < a->n / BLOCK; b++) {
        const float *restrict x = a->g + b * BLOCK;
        int8_t *restrict c = a->c + b * BLOCK;
        const float scale = largest(x) / 127.0f;
        a->scale[b] = scale;
        for (int i = 0; i < BLOCK && scale > 0; i++) {
            c[i] = (int8_t)(int32_t)rintf(x[i] / scale);
        }
    }
}

void plain_quantize_8(arrays *a)
{
    for (int64_t b = 0; b < a->n / BLOCK; b++) {
        const float *restrict x = a->g + b * BLOCK;
        int8_t *restrict c = a->c + b * BLOCK;
        const float scale = largest(x) / 448.0f;
        a->scale[b] = scale;
        for (int i = 0; i < BLOCK && scale > 0; i++) {
            const uint32_t bits = bits_of(x[i] / scale), size = bits & 0x7fffffff;
            const uint32_t usual = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
            const uint32_t under = bits_of(float_of(size) + 16384.0f) & 0xff;
            const uint32_t most = usual < 0x7e ? usual : 0x7e;
            const uint32_t code = size < 0x3c800000 ? under : most;
            c[i] = (int8_t)(code | (code != 0 ? bits >> 24 & 0x80 : 0));
        }
    }
}

void plain_dequantize(arrays *a)
{
    for (int64_t b = 0; b < a->n / BLOCK; b++) {
        float *restrict x = a->w + b * BLOCK;
        const int8_t *restrict c = a->c + b * BLOCK;
        const float scale = a->scale[b];
        for (int i = 0; i < BLOCK; i++) {
            x[i] = (float)c[i] * scale;
        }
    }
}

void plain_dequantize_8(arrays *a)
{
    for (int64_t b = 0; b < a->n / BLOCK; b++) {
        float *restrict x = a->w + b * BLOCK;
        const int8_t *restrict c = a->c + b * BLOCK;
        const float scale = a->scale[b];
        for (int i = 0; i < BLOCK; i++) {
            const uint32_t size = (uint32_t)c[i] & 0x7f, sign = ((uint32_t)c[i] & 0x80) << 24;
            const uint32_t usual = size == 0x7f ? 0x7fc00000 : (size + (120 << 3)) << 20;
            const uint32_t under = bits_of((float)(int32_t)size * (1.0f / 512));
            x[i] = float_of((size < 8 ? under : usual) | sign) * scale;
        }
    }
}

void plain_dequantize_add(arrays *a)
{
    for (int64_t b = 0; b < a->n / BLOCK; b++) {
        float *restrict x = a->w + b * BLOCK;
        const int8_t *restrict c = a->c + b * BLOCK;
        const float scale = a->scale[b];
        for (int i = 0; i < BLOCK; i++) {
            x[i] = (float)((double)x[i] + (double)((float)c[i] * scale));
        }
    }
}

/* ---- norms: planes of ROW x ROW in f32, all else in f64 */

void plain_moments(arrays *a)
{
    for (int64_t p = 0; p < a->n / (ROW * ROW); p++) {
        const float *restrict x = a->g + p * ROW * (ROW + 2);
        double sum = 0, m2 = 0;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                sum += (double)x[i * (ROW + 2) + k];
            }
        }
        sum /= ROW * ROW;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                const double d = (double)x[i * (ROW + 2) + k] - sum;
                m2 += d * d;
            }
        }
        a->sums[3 * p] = ROW * ROW;
        a->sums[3 * p + 1] = sum;
        a->sums[3 * p + 2] = m2;
    }
}

void plain_norm(arrays *a)
{
    for (int64_t p = 0; p < a->n / (ROW * ROW); p++) {
        const float *restrict x = a->g + p * ROW * (ROW + 2);
        float *restrict y = a->w + p * ROW * (ROW + 2);
        const double mean = a->sums[2 * p], s = a->sums[2 * p + 1] * 0.5, b = 0.25;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                y[i * (ROW + 2) + k] = (float)(s * ((double)x[i * (ROW + 2) + k] - mean) + b);
            }
        }
    }
}

void plain_norm_sums(arrays *a)
{
    for (int64_t p = 0; p < a->n / (ROW * ROW); p++) {
        const float *restrict x = a->g + p * ROW * (ROW + 2);
        const float *restrict dy = a->v + p * ROW * (ROW + 2);
        const double mean = a->sums[2 * p];
        double first = 0, second = 0;
        for (int i = 0; i < ROW; i++) {
            for (int k = 0; k < ROW; k++) {
                const double g = (double)dy[i * (ROW + 2) + k];
                first += g;
                second += g * ((double)x[i * (ROW + 2) + k] - mean);
            }
        }
        a->lse[2 * p] = first;
        a->lse[2 * p + 1] = second * a->sums[2 * p + 1];
    }
}

void plain_norm_gradient(arrays *a)
{
    for (int64_t p = 0; p < a->n / (ROW * ROW); p++) {
        const float *restrict x = a->g + p * ROW * (ROW + 2);
        const float *restrict dy = a->v + p * ROW * (ROW + 2);
        float *restrict dx = a->w + p * ROW * (ROW + 2);
        const double mean = a->sums[2 * p], inverse = a->sums[2 * p + 1], of = ROW * ROW;
        const double first = a->lse[2 * p] * 0.5 / of;
        const double slope = inverse * (a->lse[2 * p + 1] * 0.5 / of);
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

void plain_entropy(arrays *a)
{
    for (int64_t t = 0; t < a->n / VOCABULARY; t++) {
        const float *restrict x = a->g + t * VOCABULARY;
        double sum = 0, below = 0;
        float most = x[0];
        for (int i = 0; i < VOCABULARY; i++) {
            most = x[i] > most ? x[i] : most;
            sum += (double)x[i];
        }
        for (int i = 0; i < VOCABULARY; i++) {
            below += exp((double)x[i] - (double)most);
        }
        a->sums[3 * t] = (double)most;
        a->sums[3 * t + 1] = below;
        a->sums[3 * t + 2] = 0.9 * (double)x[5] + 0.1 / VOCABULARY * sum;
    }
}

void plain_entropy_gradient(arrays *a)
{
    for (int64_t t = 0; t < a->n / VOCABULARY; t++) {
        float *restrict x = a->w + t * VOCABULARY;
        const double lse = a->lse[t], smooth = 0.1 / VOCABULARY;
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

void plain_attention(arrays *a)
{
    const float *q = a->g, *k = q + TOKENS * HEADS * WIDTH, *v = k + TOKENS * HEADS * WIDTH;
    for (int64_t r = 0; r < TOKENS * HEADS; r++) {
        const int64_t i = r / HEADS, h = r % HEADS;
        float *restrict y = a->w + r * WIDTH, score[TOKENS], most = -INFINITY, sum = 0;
        for (int64_t j = 0; j <= i; j++) {
            score[j] = 0.125f * dot(q + r * WIDTH, k + (j * HEADS + h) * WIDTH);
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
            const float *restrict x = v + (j * HEADS + h) * WIDTH, p = score[j] / sum;
            for (int c = 0; c < WIDTH; c++) {
                y[c] += p * x[c];
            }
        }
        a->scale[r] = most + logf(sum);
    }
}

void plain_attention_gradient(arrays *a)
{
    const int64_t all = TOKENS * HEADS * WIDTH;
    const float *q = a->g, *k = q + all, *v = k + all, *out_gradient = a->v;
    for (int64_t r = 0; r < TOKENS * HEADS; r++) {
        const int64_t i = r / HEADS, h = r % HEADS;
        const float *restrict x = q + r * WIDTH, *restrict dy = out_gradient + r * WIDTH;
        float *restrict dx = a->m + r * WIDTH, score[TOKENS];
        const float lse = a->scale[r];
        for (int64_t j = 0; j <= i; j++) {
            score[j] = expf(0.125f * dot(x, k + (j * HEADS + h) * WIDTH) - lse);
        }
        for (int64_t j = 0; j <= i; j++) {
            const float *restrict key = k + (j * HEADS + h) * WIDTH;
            float *restrict dk = a->m + all + (j * HEADS + h) * WIDTH;
            float *restrict dv = a->m + 2 * all + (j * HEADS + h) * WIDTH;
            const float p = score[j];
            const float s = p * 0.125f * (dot(dy, v + (j * HEADS + h) * WIDTH) - 0.01f);
            for (int c = 0; c < WIDTH; c++) {
                dx[c] += s * key[c];
                dk[c] += s * x[c];
                dv[c] += p * dy[c];
            }
        }
    }
}

void plain_merge(arrays *a)
{
    for (int64_t i = 0; i < a->n / WIDTH; i++) {
        float *restrict y = a->w + i * WIDTH;
        const float *restrict x = a->g + i * WIDTH;
        const double s = (double)a->scale[i], t = (double)a->m[i], most = s > t ? s : t;
        const double e = exp(s - most), f = exp(t - most);
        const float keep = (float)(e / (e + f)), more = (float)(f / (e + f));
        for (int64_t c = 0; c < WIDTH; c++) {
            y[c] = keep * y[c] + more * x[c];
        }
        a->scale[i] = (float)(most + log(e + f));
    }
}
#else

#include "dpar_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 41 };

static dpar_mem_layers host;
static dpar_mem mem;

static const char *running; /* the row of the table that is being measured */

static void must(dpar_status st)
{
    if (st != DPAR_OK) {
        fprintf(stderr, "host_kernels: row '%s': dpar says: %s (status %d)\n", running,
                dpar_status_text(st), (int)st);
        exit(1);
    }
}

static void step(arrays *a, int32_t kind, int32_t gradient_type)
{
    dpar_optimizer o;
    dpar_optimizer_piece p;
    dpar_optimizer_init(&o, kind);
    if (kind == DPAR_OPTIMIZER_SGD) {
        o.momentum = beta1;
        o.decay = decay;
    }
    memset(&p, 0, sizeof p);
    p.weight = a->w;
    p.gradient = gradient_type == DPAR_F32 ? (void *)a->g : (void *)a->h;
    p.m = a->m;
    p.v = kind == DPAR_OPTIMIZER_ADAMW ? a->v : NULL;
    p.weight_type = DPAR_F32;
    p.gradient_type = gradient_type;
    p.count = a->n;
    must(dpar_optimizer_step(&o, &p, STEP, rate, 1.0));
}

static void adamw(arrays *a)
{
    step(a, DPAR_OPTIMIZER_ADAMW, DPAR_F32);
}

static void adamw_bf16(arrays *a)
{
    step(a, DPAR_OPTIMIZER_ADAMW, DPAR_BF16);
}

static void sgd(arrays *a)
{
    step(a, DPAR_OPTIMIZER_SGD, DPAR_F32);
}

static void squares(arrays *a)
{
    dpar_mem_squares s;
    memset(&s, 0, sizeof s);
    s.in = a->g;
    s.count = a->n;
    s.type = DPAR_F32;
    s.sum = a->sums;
    must(host.squares(NULL, &s));
}

static void dot(arrays *a)
{
    dpar_mem_dot d;
    memset(&d, 0, sizeof d);
    d.to = a->m;
    d.a = a->g;
    d.b = a->v;
    d.rows = a->n / ROW;
    d.choices = 1;
    d.width = ROW;
    d.to_type = d.type = DPAR_F32;
    must(host.dot(NULL, &d));
}

static void look(arrays *a, const void *in, int32_t type)
{
    dpar_mem_finite f;
    int64_t found;
    memset(&f, 0, sizeof f);
    f.in = in;
    f.count = a->n;
    f.type = type;
    f.found = &found;
    must(mem.finite(NULL, &f));
}

static void finite_32(arrays *a)
{
    look(a, a->g, DPAR_F32);
}

static void finite_16(arrays *a)
{
    look(a, a->h, DPAR_BF16);
}

static void meet(arrays *a, void *to, const void *x, const void *y, int32_t type, int32_t op)
{
    void *out[1];
    const void *in[2];
    out[0] = to;
    in[0] = x;
    in[1] = y;
    dpari_kern_reduce(out, 1, in, 2, a->n, type, op, 0);
}

static void sum(arrays *a)
{
    meet(a, a->w, a->g, a->v, DPAR_F32, DPAR_SUM);
}

static void sum_f64(arrays *a)
{
    meet(a, a->d, a->d, a->e, DPAR_F64, DPAR_SUM);
}

static void sum_bf16(arrays *a)
{
    meet(a, a->m, a->h, a->w, DPAR_BF16, DPAR_SUM);
}

static void sum_f16(arrays *a)
{
    meet(a, a->m, a->h, a->w, DPAR_F16, DPAR_SUM);
}

static void max_f32(arrays *a)
{
    meet(a, a->w, a->g, a->v, DPAR_F32, DPAR_MAX);
}

static void max_i32(arrays *a)
{
    meet(a, a->w, a->g, a->v, DPAR_I32, DPAR_MAX);
}

static void cast(arrays *a, void *to, int32_t to_type, const void *from, int32_t from_type,
                 double scale, int add)
{
    dpar_mem_span s;
    memset(&s, 0, sizeof s);
    s.to = to;
    s.from = from;
    s.count = a->n;
    s.to_type = to_type;
    s.from_type = from_type;
    s.scale = scale;
    s.accumulate = add;
    must(mem.span(NULL, &s, 1));
}

static void to_bf16(arrays *a)
{
    cast(a, a->h, DPAR_BF16, a->g, DPAR_F32, 1.0, 0);
}

static void from_bf16(arrays *a)
{
    cast(a, a->w, DPAR_F32, a->h, DPAR_BF16, 1.0, 0);
}

static void to_f16(arrays *a)
{
    cast(a, a->h, DPAR_F16, a->g, DPAR_F32, 1.0, 0);
}

static void from_f16(arrays *a)
{
    cast(a, a->w, DPAR_F32, a->h, DPAR_F16, 1.0, 0);
}

static void to_f64(arrays *a)
{
    cast(a, a->d, DPAR_F64, a->g, DPAR_F32, 1.0, 0);
}

static void from_f64(arrays *a)
{
    cast(a, a->w, DPAR_F32, a->d, DPAR_F64, 1.0, 0);
}

static void scale(arrays *a)
{
    cast(a, a->w, DPAR_F32, a->g, DPAR_F32, 1.0 / 3.0, 0);
}

static void add_bf16(arrays *a)
{
    cast(a, a->w, DPAR_F32, a->h, DPAR_BF16, 1.0, 1);
}

static dpar_mem_quantize blocks(arrays *a, float *x, int32_t code_type)
{
    dpar_mem_quantize q;
    memset(&q, 0, sizeof q);
    q.x = x;
    q.count = a->n / BLOCK * BLOCK;
    q.block = q.code_step = BLOCK;
    q.type = DPAR_F32;
    q.code_type = code_type;
    q.code = a->c;
    q.scale = a->scale;
    q.scale_step = 4;
    return q;
}

static void quantize(arrays *a)
{
    const dpar_mem_quantize q = blocks(a, a->g, DPAR_I8);
    must(host.quantize(NULL, &q));
}

static void quantize_8(arrays *a)
{
    const dpar_mem_quantize q = blocks(a, a->g, DPAR_F8);
    must(host.quantize(NULL, &q));
}

static void dequantize(arrays *a)
{
    const dpar_mem_quantize q = blocks(a, a->w, DPAR_I8);
    must(host.dequantize(NULL, &q));
}

static void dequantize_8(arrays *a)
{
    const dpar_mem_quantize q = blocks(a, a->w, DPAR_F8);
    must(host.dequantize(NULL, &q));
}

static void dequantize_add(arrays *a)
{
    dpar_mem_quantize q = blocks(a, a->w, DPAR_I8);
    q.accumulate = 1;
    must(host.dequantize(NULL, &q));
}

static void moments(arrays *a)
{
    dpar_mem_moments m;
    memset(&m, 0, sizeof m);
    m.x = a->g;
    m.type = DPAR_F32;
    m.dims = 2;
    m.planes = m.channels = (int32_t)(a->n / (ROW * ROW));
    m.step = ROW * (ROW + 2);
    m.extent[0] = m.extent[1] = ROW;
    m.stride[0] = ROW + 2;
    m.stride[1] = 1;
    m.to = a->sums;
    must(host.moments(NULL, &m));
}

static void norm_of(arrays *a, int32_t phase)
{
    static float half[1 << 17], quarter[1 << 17];
    static double total[3 << 17];
    dpar_mem_norm m;
    memset(&m, 0, sizeof m);
    m.phase = phase;
    m.type = DPAR_F32;
    m.planes = m.channels = (int32_t)(a->n / (ROW * ROW));
    for (int64_t i = 0; i < m.planes && half[i] <= 0; i++) {
        half[i] = 0.5f;
        quarter[i] = 0.25f;
    }
    m.dims = 2;
    m.extent[0] = m.extent[1] = ROW;
    m.x.data = a->g;
    m.dy.data = a->v;
    m.to.data = a->w;
    m.x.step = m.dy.step = m.to.step = ROW * (ROW + 2);
    m.x.stride[0] = m.dy.stride[0] = m.to.stride[0] = ROW + 2;
    m.x.stride[1] = m.dy.stride[1] = m.to.stride[1] = 1;
    m.scale = half;
    m.shift = quarter;
    m.saved = a->sums;
    m.sums = a->lse;
    m.total = total;
    must(host.norm(NULL, &m));
}

static void norm(arrays *a)
{
    norm_of(a, DPAR_MEM_NORM_APPLY);
}

static void norm_sums(arrays *a)
{
    norm_of(a, DPAR_MEM_NORM_SUMS);
}

static void norm_gradient(arrays *a)
{
    norm_of(a, DPAR_MEM_NORM_GRADIENT);
}

static void entropy_of(arrays *a, int32_t phase, float *logits)
{
    static int32_t target[1 << 16];
    static float own[3 << 16];
    dpar_mem_cross_entropy e;
    memset(&e, 0, sizeof e);
    e.phase = phase;
    e.type = DPAR_F32;
    e.tokens = a->n / VOCABULARY;
    for (int64_t i = 0; i < e.tokens; i++) {
        target[i] = 5;
    }
    e.rows = e.vocabulary = VOCABULARY;
    e.hi[0] = e.lo[1] = e.hi[1] = VOCABULARY;
    e.target.at = target;
    e.target.type = DPAR_I32;
    e.smoothing = 0.1;
    e.logits = logits;
    e.partial = own;
    e.lse = a->lse;
    e.scale = 1.0;
    must(host.cross_entropy(NULL, &e));
}

static void entropy(arrays *a)
{
    entropy_of(a, DPAR_MEM_CROSS_ENTROPY_PART, a->g);
}

static void entropy_gradient(arrays *a)
{
    entropy_of(a, DPAR_MEM_CROSS_ENTROPY_GRADIENT, a->w);
}

static void attend(arrays *a, int backward)
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
    call.q = a->g;
    call.k = a->g + all;
    call.v = a->g + 2 * all;
    call.out = a->w;
    call.lse = a->scale;
    if (backward) {
        for (int i = 0; i < TOKENS * HEADS; i++) {
            delta[i] = 0.01f;
        }
        call.out_gradient = a->v;
        call.delta = delta;
        call.q_gradient = a->m;
        call.k_gradient = a->m + all;
        call.v_gradient = a->m + 2 * all;
    }
    dpar_attention_host(&call);
}

static void attention(arrays *a)
{
    attend(a, 0);
}

static void attention_gradient(arrays *a)
{
    attend(a, 1);
}

static void merge(arrays *a)
{
    dpar_mem_attention_merge m;
    memset(&m, 0, sizeof m);
    m.type = DPAR_F32;
    m.rows = a->n / WIDTH;
    m.values = WIDTH;
    m.out = a->w;
    m.lse = a->scale;
    m.more = a->g;
    m.more_lse = a->m;
    must(host.attention_merge(NULL, &m));
}

/* ---- the table */

typedef struct kernel {
    const char *name;
    void (*dpar)(arrays *a);
    void (*plain)(arrays *a);
    int64_t elements; /* 0: n */
} kernel;

static const kernel kernels[] = {
    {"AdamW, f32 in f64; loop in f64", adamw, plain_adamw_f64, 0},
    {"the same; loop in f32, of less precision", adamw, plain_adamw_f32, 0},
    {"AdamW, gradient bf16; loop in f64", adamw_bf16, plain_adamw_bf16, 0},
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

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Usual numbers, so that no row meets what the one before left. */
static void fill(arrays *a)
{
    const int64_t n = a->n + a->n / 2;
    for (int64_t i = 0; i < n; i++) {
        a->w[i] = 0.01F * (float)(1 + i * 7919 % 1009);
        a->g[i] = 0.002F * (float)(i * 7907 % 1013 - 506);
        a->m[i] = 0.001F * (float)(1 + i * 6007 % 1009);
        a->v[i] = 0.0001F * (float)(1 + i * 5003 % 1009);
        a->d[i] = (double)a->w[i];
        a->e[i] = (double)a->g[i];
        a->h[i] = (uint16_t)(0x3c00 + i * 7907 % 1013);
        a->c[i] = (int8_t)(i * 7907 % 251 - 125);
        a->scale[i] = 1.0F;
        a->sums[i] = i % 2 == 0 ? 0.1 : 1.5;
        a->lse[i] = 9.0;
    }
}

static void row(const kernel *k, arrays *a)
{
    static double seconds[2][ROUNDS];
    const double n = (double)(k->elements > 0 ? k->elements : a->n);
    running = k->name;
    fill(a);
    for (int round = -1; round < ROUNDS; round++) { /* one to warm up */
        for (int way = 0; way < 2; way++) {
            const double began = now();
            (way == 0 ? k->dpar : k->plain)(a);
            if (round >= 0) {
                seconds[way][round] = now() - began;
            }
        }
    }
    for (int way = 0; way < 2; way++) {
        qsort(seconds[way], ROUNDS, sizeof(double), ascending);
    }
    printf("| %s | %.3f | %.3f | %.2f |\n", k->name, 1e9 * seconds[0][ROUNDS / 2] / n,
           1e9 * seconds[1][ROUNDS / 2] / n, seconds[0][ROUNDS / 2] / seconds[1][ROUNDS / 2]);
}

int main(int argc, char **argv)
{
    enum { EACH = 4 * 4 + 2 * 8 + 2 + 1 + 4 + 2 * 8 }; /* bytes of all arrays */
    arrays a;
    unsigned char *at;
    int64_t n;
    if (argc > 3) {
        fprintf(stderr, "host_kernels: %d arguments; usage: host_kernels [ELEMENTS [WORDS]]\n",
                argc - 1);
        return 2;
    }
    a.n = argc > 1 ? atoll(argv[1]) : 932608;
    if (a.n < 3 * HEADS * TOKENS * WIDTH || a.n > 1 << 28) {
        fprintf(stderr, "host_kernels: ELEMENTS is %s; it has to be %d to %d\n", argv[1],
                3 * HEADS * TOKENS * WIDTH, 1 << 28);
        return 2;
    }
    n = (a.n + a.n / 2 + 63) / 64 * 64;
    at = (unsigned char *)aligned_alloc(64, (size_t)(n * EACH + 63) / 64 * 64);
    if (at == NULL) {
        fprintf(stderr, "host_kernels: no memory for %lld elements (%lld bytes)\n", (long long)a.n,
                (long long)(n * EACH));
        return 1;
    }
    a.d = (double *)(void *)at;
    a.e = a.d + n;
    a.sums = a.e + n;
    a.lse = a.sums + n;
    a.w = (float *)(void *)(a.lse + n);
    a.g = a.w + n;
    a.m = a.g + n;
    a.v = a.m + n;
    a.scale = a.v + n;
    a.h = (uint16_t *)(void *)(a.scale + n);
    a.c = (int8_t *)(void *)(a.h + n);
    host = dpar_mem_host_layers();
    mem = dpar_mem_host();
    puts("| kernel | dpar ns an element | plain loop | ratio |\n|---|---|---|---|");
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (argc < 3 || strstr(kernels[i].name, argv[2]) != NULL) {
            row(&kernels[i], &a);
        }
    }
    free(at);
    return 0;
}
#endif
