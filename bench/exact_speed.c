/* SPDX-License-Identifier: MIT-0 */
/* exact_speed: exact sums and dot products beside plain ones, in turns, on one core: in the cache
 * (64 Ki elements) and in memory (64 MiB). "loop" is a loop as -O2 compiles it, "vector" the same
 * loop with reassociation and all vectors of this CPU (-O3 -march=native -ffast-math). Prints ns per
 * element, medians of the ratios, and the same for data whose exponents are far apart. Then prints
 * the time of one call on ranks: dpar_exact_sum beside dpar_all_reduce of one number.
 *   cc -O2 -DPLAIN=loop -c bench/exact_speed.c -o loop.o
 *   cc -O3 -march=native -ffast-math -DPLAIN=vector -c bench/exact_speed.c -o vector.o
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. bench/exact_speed.c loop.o vector.o -o exact_speed -lm
 *   ./exact_speed [rounds] */
#include <stdint.h>

#define NAME_2(a, b) a##_##b
#define NAME(a, b) NAME_2(a, b)
#define SUMS(name)                                                                                 \
    double NAME(name, sum_64)(const double *x, int64_t n);                                         \
    float NAME(name, sum_32)(const float *x, int64_t n);                                           \
    double NAME(name, dot_64)(const double *x, const double *y, int64_t n);                        \
    float NAME(name, dot_32)(const float *x, const float *y, int64_t n);

#ifdef PLAIN
SUMS(PLAIN)

double NAME(PLAIN, sum_64)(const double *x, int64_t n)
{
    double sum = 0.0;
    int64_t i;
    for (i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

float NAME(PLAIN, sum_32)(const float *x, int64_t n)
{
    float sum = 0.0f;
    int64_t i;
    for (i = 0; i < n; i++) {
        sum += x[i];
    }
    return sum;
}

double NAME(PLAIN, dot_64)(const double *x, const double *y, int64_t n)
{
    double sum = 0.0;
    int64_t i;
    for (i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

float NAME(PLAIN, dot_32)(const float *x, const float *y, int64_t n)
{
    float sum = 0.0f;
    int64_t i;
    for (i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

#else

#include "dpar_exact.h"

#include "../helpers/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

SUMS(loop)
SUMS(vector)

static volatile double sink;

static double exact(const void *x, const void *y, int64_t n, int32_t type)
{
    dpar_exact sum = {{0}, 0};
    if (y) {
        (void)dpar_exact_add_dot(&sum, x, y, n, type);
    } else {
        (void)dpar_exact_add(&sum, x, n, type);
    }
    return dpar_exact_result(&sum, type);
}

static double one(int what, const void *x, const void *y, int64_t n, int32_t type)
{
    if (what == 2) {
        return exact(x, y, n, type);
    }
    if (type == DPAR_F64) {
        const double *a = (const double *)x, *b = (const double *)y;
        if (b) {
            return what ? vector_dot_64(a, b, n) : loop_dot_64(a, b, n);
        }
        return what ? vector_sum_64(a, n) : loop_sum_64(a, n);
    }
    {
        const float *a = (const float *)x, *b = (const float *)y;
        if (b) {
            return (double)(what ? vector_dot_32(a, b, n) : loop_dot_32(a, b, n));
        }
        return (double)(what ? vector_sum_32(a, n) : loop_sum_32(a, n));
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(const char *name, const void *x, const void *y, int64_t n, int32_t type,
                    int rounds)
{
    double least[3] = {1e9, 1e9, 1e9}, ratio[2][100];
    const int64_t times = 1 + (1 << 21) / n;
    int r, what;
    for (r = 0; r < rounds; r++) {
        double took[3];
        for (what = 0; what < 3; what++) {
            const double began = now();
            int64_t k;
            for (k = 0; k < times; k++) {
                sink = one(what, x, y, n, type);
            }
            took[what] = (now() - began) / (double)times / (double)n * 1e9;
            least[what] = took[what] < least[what] ? took[what] : least[what];
        }
        ratio[0][r] = took[2] / took[0];
        ratio[1][r] = took[2] / took[1];
    }
    qsort(ratio[0], (size_t)rounds, sizeof ratio[0][0], ascending);
    qsort(ratio[1], (size_t)rounds, sizeof ratio[1][0], ascending);
    printf("exact: %-28s loop %.3f, vector %.3f, exact %.3f ns, x loop %.2f, x vector %.2f\n", name,
           least[0], least[1], least[2], ratio[0][rounds / 2], ratio[1][rounds / 2]);
    fflush(stdout);
}

static double uniform(void)
{
    static uint64_t seed = 1;
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)(seed >> 11) * 0x1p-53 - 0.5;
}

static int on_ranks(dpar_comm *world, void *unused)
{
    enum { TIMES = 2000 };
    double x[100], y, sum = 0.0, best[3] = {1.0, 1.0, 1.0};
    int r, k, what;
    (void)unused;
    for (k = 0; k < 100; k++) {
        x[k] = uniform();
    }
    for (r = 0; r < 9; r++) {
        for (what = 0; what < 3; what++) {
            const double began = now();
            double took;
            for (k = 0; k < TIMES; k++) {
                if (what == 0) {
                    y = loop_sum_64(x, 100);
                    (void)dpar_all_reduce(world, &y, &sum, 1, DPAR_F64, DPAR_SUM, NULL);
                } else if (what == 1) {
                    (void)dpar_exact_sum(world, x, 100, DPAR_F64, &sum);
                } else {
                    (void)dpar_exact_norm(world, x, 100, DPAR_F64, &sum);
                }
            }
            took = (now() - began) / TIMES * 1e6;
            best[what] = r == 0 || took < best[what] ? took : best[what];
        }
    }
    if (world->rank == 0) {
        printf("exact: 100 elements, %d ranks: loop and all-reduce %.2f us, dpar_exact_sum %.2f us "
               "(%.2f), dpar_exact_norm %.2f us\n",
               (int)world->size, best[0], best[1], best[1] / best[0], best[2]);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 && atoi(argv[1]) > 0 && atoi(argv[1]) <= 100 ? atoi(argv[1]) : 15;
    const int64_t counts[2] = {INT64_C(1) << 16, INT64_C(1) << 23};
    double *x = (double *)malloc((size_t)counts[1] * 8), *y = (double *)malloc((size_t)counts[1] * 8);
    float *f = (float *)malloc((size_t)counts[1] * 8), *g = (float *)malloc((size_t)counts[1] * 8);
    dpar_why why;
    int64_t i;
    int k, n;
    if (x == NULL || y == NULL || f == NULL || g == NULL) {
        fprintf(stderr, "exact_speed: no memory for four arrays of 64 MiB\n");
        return 1;
    }
    for (i = 0; i < counts[1]; i++) {
        x[i] = uniform();
        y[i] = uniform();
        f[2 * i] = (float)x[i];
        f[2 * i + 1] = (float)y[i];
        g[2 * i] = (float)uniform();
        g[2 * i + 1] = (float)uniform();
    }
    for (k = 0; k < 2; k++) {
        const char *where = k ? "64 MiB" : "in cache";
        const int turns = k ? rounds / 2 + 1 : rounds;
        char name[60];
        (void)snprintf(name, sizeof name, "sum f64 %s", where);
        compare(name, x, NULL, counts[k], DPAR_F64, turns);
        (void)snprintf(name, sizeof name, "dot f64 %s", where);
        compare(name, x, y, counts[k], DPAR_F64, turns);
        (void)snprintf(name, sizeof name, "sum f32 %s", where);
        compare(name, f, NULL, counts[k] * (1 + k), DPAR_F32, turns);
        (void)snprintf(name, sizeof name, "dot f32 %s", where);
        compare(name, f, g, counts[k] * (1 + k), DPAR_F32, turns);
    }
    for (i = 0; i < counts[0]; i++) {
        x[i] = ldexp(x[i], (int)(60.0 * uniform()));
        y[i] = ldexp(y[i], (int)(10.0 * uniform()));
    }
    compare("sum f64, exponents over 60", x, NULL, counts[0], DPAR_F64, rounds);
    compare("dot f64, exponents over 60", x, y, counts[0], DPAR_F64, rounds);
    for (i = 0; i < counts[0]; i++) {
        x[i] = ldexp(x[i], (int)(600.0 * uniform()));
    }
    compare("sum f64, exponents over 600", x, NULL, counts[0], DPAR_F64, rounds);
    compare("dot f64, exponents over 600", x, y, counts[0], DPAR_F64, rounds);
    for (n = 1; n <= 2; n++) {
        if (dpar_launch(n, on_ranks, NULL, NULL, &why) < 0) {
            fprintf(stderr, "exact_speed: %s\n", why.text);
            return 1;
        }
    }
    return 0;
}
#endif
