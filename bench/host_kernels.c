/* SPDX-License-Identifier: MIT-0 */
/* host_kernels - what the host computes for training, beside plain loops that gcc -O3 -march=native
 * makes of the formula: in f32, and in f64 where dpar computes in f64. Nanoseconds an element, the
 * median of rounds in turns, and dpar's time over the loops'.
 *
 *   cc -O3 -march=native -DPLAIN -c bench/host_kernels.c -o build/plain.o &&
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/host_kernels.c build/plain.o -o build/host_kernels -lm
 * && build/host_kernels [ELEMENTS]
 */
#include <math.h>
#include <stdint.h>

void plain_adamw_f32(float *w, const float *g, float *m, float *v, int64_t n, const double *o);
void plain_adamw_f64(float *w, const float *g, float *m, float *v, int64_t n, const double *o);
void plain_sgd_f32(float *w, const float *g, float *m, int64_t n, const double *o);
void plain_sgd_f64(float *w, const float *g, float *m, int64_t n, const double *o);
enum { RATE, BETA1, BETA2, EPSILON, DECAY, FIX1, FIX2, OPTIONS };

#if defined(PLAIN)
#define ADAMW(name, real, root)                                                                    \
    void name(float *restrict w, const float *restrict g, float *restrict m, float *restrict v,    \
              int64_t n, const double *o)                                                          \
    {                                                                                              \
        const real rate = (real)o[RATE], b1 = (real)o[BETA1], b2 = (real)o[BETA2];                 \
        const real epsilon = (real)o[EPSILON], shrink = (real)(1 - o[RATE] * o[DECAY]);            \
        const real fix1 = (real)o[FIX1], fix2 = (real)o[FIX2];                                     \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const real x = (real)g[i];                                                             \
            const real a = b1 * (real)m[i] + (1 - b1) * x, b = b2 * (real)v[i] + (1 - b2) * x * x; \
            m[i] = (float)a;                                                                       \
            v[i] = (float)b;                                                                       \
            w[i] = (float)((real)w[i] * shrink - rate * (a * fix1) / (root(b * fix2) + epsilon));  \
        }                                                                                          \
    }
ADAMW(plain_adamw_f32, float, sqrtf)
ADAMW(plain_adamw_f64, double, sqrt)
#define SGD(name, real)                                                                            \
    void name(float *restrict w, const float *restrict g, float *restrict m, int64_t n,            \
              const double *o)                                                                     \
    {                                                                                              \
        const real rate = (real)o[RATE], b1 = (real)o[BETA1], decay = (real)o[DECAY];              \
        for (int64_t i = 0; i < n; i++) {                                                          \
            const real a = b1 * (real)m[i] + ((real)g[i] + decay * (real)w[i]);                    \
            m[i] = (float)a;                                                                       \
            w[i] = (float)((real)w[i] - rate * a);                                                 \
        }                                                                                          \
    }
SGD(plain_sgd_f32, float)
SGD(plain_sgd_f64, double)
#else

#include "dpar_train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 41, WAYS = 3 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct arrays {
    float *w, *g, *m, *v;
    int64_t n;
    double o[OPTIONS];
    dpar_optimizer optimizer;
} arrays;

static void step(arrays *a, int way)
{
    dpar_optimizer_piece p;
    const int adamw = a->optimizer.kind == DPAR_ADAMW;
    if (way == 1) {
        adamw ? plain_adamw_f32(a->w, a->g, a->m, a->v, a->n, a->o)
              : plain_sgd_f32(a->w, a->g, a->m, a->n, a->o);
        return;
    }
    if (way == 2) {
        adamw ? plain_adamw_f64(a->w, a->g, a->m, a->v, a->n, a->o)
              : plain_sgd_f64(a->w, a->g, a->m, a->n, a->o);
        return;
    }
    memset(&p, 0, sizeof p);
    p.weight = a->w;
    p.gradient = a->g;
    p.m = a->m;
    p.v = adamw ? a->v : NULL;
    p.weight_type = p.gradient_type = DPAR_F32;
    p.count = a->n;
    if (dpar_optimizer_step(&a->optimizer, &p, 1000, a->o[RATE], 1.0) != DPAR_OK) {
        exit(1);
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void row(const char *name, arrays *a)
{
    static double seconds[WAYS][ROUNDS];
    const double n = (double)a->n;
    for (int round = 0; round < ROUNDS; round++) {
        for (int way = 0; way < WAYS; way++) {
            const double began = now();
            step(a, way);
            seconds[way][round] = now() - began;
        }
    }
    for (int way = 0; way < WAYS; way++) {
        qsort(seconds[way], ROUNDS, sizeof(double), ascending);
    }
    printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f |\n", name, 1e9 * seconds[0][ROUNDS / 2] / n,
           1e9 * seconds[1][ROUNDS / 2] / n, 1e9 * seconds[2][ROUNDS / 2] / n,
           seconds[0][ROUNDS / 2] / seconds[1][ROUNDS / 2],
           seconds[0][ROUNDS / 2] / seconds[2][ROUNDS / 2]);
}

int main(int argc, char **argv)
{
    static const double o[OPTIONS] = {1e-3, 0.9, 0.999, 1e-8, 0.01};
    arrays a;
    a.n = argc > 1 ? atoll(argv[1]) : 932608;
    if (a.n < 1 || a.n > 1 << 28) {
        fprintf(stderr, "host_kernels: 1 to 2^28 elements, not %s\n", argv[1]);
        return 2;
    }
    a.w = (float *)malloc((size_t)a.n * 4 * sizeof(float));
    if (a.w == NULL) {
        return 1;
    }
    a.g = a.w + a.n;
    a.m = a.g + a.n;
    a.v = a.m + a.n;
    for (int64_t i = 0; i < 4 * a.n; i++) {
        a.w[i] = 0.01F * (float)(1 + i * 7919 % 1009);
    }
    memcpy(a.o, o, sizeof o);
    a.o[FIX1] = 1 / (1 - pow(0.9, 1000));
    a.o[FIX2] = 1 / (1 - pow(0.999, 1000));
    puts("| step | dpar ns an element | f32 loop | f64 loop | dpar / f32 loop | dpar / f64 loop |\n"
         "|---|---|---|---|---|---|");
    dpar_optimizer_init(&a.optimizer, DPAR_ADAMW);
    row("AdamW", &a);
    dpar_optimizer_init(&a.optimizer, DPAR_SGD);
    a.optimizer.momentum = 0.9;
    a.optimizer.decay = 0.01;
    row("SGD", &a);
    free(a.w);
    return 0;
}
#endif
