/* SPDX-License-Identifier: MIT-0 */
/* gpt_loops: tests the loops of apps/gpt_loops.h in f32, for each width of vectors that this CPU
 * has, against the same formulas in f64 with libm. */
#include "dpar_train.h"

#include "check.h"
#include "random.h"

#include "../../apps/gpt.h"

enum { MOST = 700 * 80 };

static float number(void)
{
    return (float)(random_int(-1000, 1000) / 1000.0);
}

static void fill(float *x, int n)
{
    int i;
    for (i = 0; i < n; i++) {
        x[i] = number();
    }
}

/* True if `got` differs from `expected` by at most `most` times the larger of |expected| and 1. */
static int agrees(float got, double expected, double most)
{
    return fabs((double)got - expected) <= most * fmax(fabs(expected), 1.0);
}

/* Compares one product with sums in f64. A number of c may differ by the rounding of k products and
 * sums. Numbers between the rows of c must keep their values. */
static void test_product(const gpt_loops *loops, int m, int n, int k)
{
    static float a[MOST], b[MOST], c[80 * 80], before[80 * 80];
    const double betas[3] = {0.0, 1.0, -0.5};
    dpar_matmul p;
    int i, j, d, wrong = 0;
    memset(&p, 0, sizeof p);
    p.type = DPAR_F32;
    p.transpose_a = random_int(0, 1);
    p.transpose_b = random_int(0, 1);
    p.m = m;
    p.n = n;
    p.k = k;
    p.alpha = random_int(0, 1) ? 1.0 : 0.75;
    p.beta = betas[random_int(0, 2)];
    p.lda = (p.transpose_a ? m : k) + random_int(0, 5) + (k == 0);
    p.ldb = (p.transpose_b ? k : n) + random_int(0, 5) + (k == 0);
    p.ldc = n + random_int(0, 5) + (n == 0);
    fill(a, MOST);
    fill(b, MOST);
    fill(c, 80 * 80);
    memcpy(before, c, sizeof c);
    for (i = 0; i < m && p.beta == 0.0; i++) { /* c is not read then */
        for (j = 0; j < n; j++) {
            c[i * p.ldc + j] = NAN;
        }
    }
    p.a = a;
    p.b = b;
    p.c = c;
    loops->product(&p);
    for (i = 0; i < 80 * 80; i++) {
        const int64_t row = i / p.ldc, column = i % p.ldc;
        double sum = p.beta * (double)before[i], size = fabs(sum);
        if (row >= m || column >= n) {
            wrong += c[i] != before[i];
            continue;
        }
        for (d = 0; d < k; d++) {
            const double x = a[p.transpose_a ? d * p.lda + row : row * p.lda + d];
            const double y = b[p.transpose_b ? column * p.ldb + d : d * p.ldb + column];
            sum += p.alpha * x * y;
            size += fabs(p.alpha * x * y);
        }
        wrong += !(fabs((double)c[i] - sum) <= (k + 4) * 6e-8 * size);
    }
    if (wrong > 0) {
        printf("%d x %d x %d, transposed %d %d, alpha %g, beta %g\n", m, n, k, p.transpose_a,
               p.transpose_b, p.alpha, p.beta);
    }
    CHECK_INT(wrong, 0);
}

static void test_products(const gpt_loops *loops)
{
    int i;
    for (i = 0; i <= 70; i++) {
        test_product(loops, i, i, i);
        test_product(loops, i, 70 - i, 33);
    }
    for (i = 0; i < 200; i++) {
        test_product(loops, random_int(1, 70), random_int(1, 70), random_int(1, 70));
    }
    for (i = 0; i < 20; i++) { /* deeper than is summed at a time */
        test_product(loops, random_int(1, 70), random_int(1, 70), random_int(250, 700));
    }
}

/* Checks e^x from -87 to 88 and beyond. */
static void test_exp(const gpt_loops *loops)
{
    enum { N = 100000 };
    static float x[N];
    float some[6] = {-1e30f, -INFINITY, -87.5f, 89.0f, NAN, 0.0f};
    double worst = 0.0;
    int i;
    for (i = 0; i < N; i++) {
        x[i] = -87.0f + 175.0f * (float)i / (float)N;
    }
    loops->exps(N, 0.0f, x);
    for (i = 0; i < N; i++) {
        const double exact = exp((double)(-87.0f + 175.0f * (float)i / (float)N));
        worst = fmax(worst, fabs(x[i] / exact - 1.0));
    }
    if (!(worst < 1.2e-7)) {
        printf("the worst error of exp is %g\n", worst);
    }
    CHECK(worst < 1.2e-7);
    loops->exps(6, 0.0f, some);
    CHECK(some[0] == 0.0f && some[1] == 0.0f && some[2] < 2e-38f);
    CHECK(some[3] > 1.6e38f && isnan(some[4]) && some[5] == 1.0f);
}

/* Checks activations and their gradients, and that a number's result does not depend on how many
 * others follow. */
static void test_activations(const gpt_loops *loops)
{
    float gate[71], up[71], dact[71], act[71], dgate[71], dup[71], again[71];
    int n, i, wrong = 0;
    fill(dact, 71);
    for (i = 0; i < 71; i++) {
        gate[i] = 9.0f * number();
        up[i] = 6.0f * number();
    }
    for (n = 0; n <= 70; n++) {
        memset(act, 0, sizeof act);
        loops->activate(n, gate, up, act);
        loops->activate_back(n, gate, up, dact, dgate, dup);
        for (i = 0; i < n; i++) {
            const double x = gate[i], u = up[i], s = 1.0 / (1.0 + exp(-x)), d = dact[i];
            wrong += !agrees(act[i], x * s * u, 1e-6) || !agrees(dup[i], d * x * s, 1e-6);
            wrong += !agrees(dgate[i], d * u * s * (1.0 + x * (1.0 - s)), 1e-6);
        }
        wrong += act[n] != 0.0f;
        loops->activate(70, gate, up, again);
        wrong += memcmp(act, again, (size_t)n * sizeof *act) != 0;
        loops->activate(n, NULL, up, act);
        loops->activate_back(n, NULL, up, dact, NULL, dup);
        for (i = 0; i < n; i++) {
            const double u = up[i], h = 1e-5;
            const double below = tanh(0.7978845608028654 * (u - h + 0.044715 * pow(u - h, 3)));
            const double at = tanh(0.7978845608028654 * (u + 0.044715 * pow(u, 3)));
            const double above = tanh(0.7978845608028654 * (u + h + 0.044715 * pow(u + h, 3)));
            const double slope =
                (0.5 * (u + h) * (1.0 + above) - 0.5 * (u - h) * (1.0 + below)) / (2.0 * h);
            wrong += !agrees(act[i], 0.5 * u * (1.0 + at), 1e-6);
            wrong += !agrees(dup[i], dact[i] * slope, 1e-6);
        }
    }
    CHECK_INT(wrong, 0);
}

static void test_softmax(const gpt_loops *loops)
{
    static float x[3000], had[3000], p[3000];
    int n, i, round, wrong = 0;
    CHECK(loops->softmax(0, x) <= -1e29);
    for (round = 0; round < 76; round++) {
        double sum = 0.0, lse;
        n = round < 70 ? round + 1 : 500 * (round - 69);
        for (i = 0; i < n; i++) {
            x[i] = had[i] = 20.0f * number() + 100.0f;
            sum += exp((double)x[i] - 100.0);
        }
        lse = loops->softmax(n, x);
        wrong += !(fabs(lse - 100.0 - log(sum)) <= 1e-6);
        for (i = 0; i < n; i++) {
            wrong += !(fabs(x[i] - exp((double)had[i] - 100.0) / sum) <= 1e-6 * x[i]);
            p[i] = number();
        }
        memcpy(had, x, sizeof had);
        loops->slope(n, 0.5f, p, x);
        loops->add(n, p, had, had);
        for (i = 0; i < n; i++) {
            const double was = (double)had[i] - (double)p[i];
            wrong += !agrees(x[i], p[i] * (was - 0.5), 1e-6);
        }
    }
    CHECK_INT(wrong, 0);
}

/* Compares norms of rows and their gradients with the textbook. */
static void test_norm(const gpt_loops *loops, int rows, int n, int centred)
{
    static float x[40 * 300], dh[40 * 300], add[40 * 300], y[40 * 300], dx[40 * 300];
    static double stat[80], sum[600], expected[600];
    float scale[300], bias[300];
    int i, j, wrong = 0;
    fill(x, rows * n);
    fill(dh, rows * n);
    fill(add, rows * n);
    fill(scale, n);
    fill(bias, n);
    memset(sum, 0, sizeof sum);
    memset(expected, 0, sizeof expected);
    for (i = 0; i < rows; i++) {
        loops->norm(n, centred, x + i * n, scale, centred ? bias : NULL, stat + 2 * i, y + i * n);
    }
    loops->norm_back(rows, n, centred, x, scale, stat, dh, centred ? add : NULL, dx, sum);
    for (i = 0; i < rows; i++) {
        const float *at = x + i * n, *d = dh + i * n;
        double mean = 0.0, square = 0.0, inverse, along = 0.0, level = 0.0;
        for (j = 0; j < n && centred; j++) {
            mean += (double)at[j] / n;
        }
        for (j = 0; j < n; j++) {
            square += (at[j] - mean) * (at[j] - mean) / n;
        }
        inverse = 1.0 / sqrt(square + 1e-5);
        for (j = 0; j < n; j++) {
            const double unit = (at[j] - mean) * inverse;
            wrong += !agrees(y[i * n + j], unit * scale[j] + (centred ? bias[j] : 0.0), 2e-6);
            along += (double)d[j] * (double)scale[j] * unit / n;
            level += centred ? (double)d[j] * (double)scale[j] / n : 0.0;
            expected[j] += d[j] * unit;
            expected[n + j] += (double)d[j];
        }
        for (j = 0; j < n; j++) {
            const double unit = (at[j] - mean) * inverse;
            const double slope = inverse * ((double)d[j] * (double)scale[j] - level - unit * along);
            /* a row of one number is all cancellation, multiplied by up to 1 / sqrt(1e-5) */
            wrong += !(fabs(dx[i * n + j] - slope - (centred ? (double)add[i * n + j] : 0.0)) <=
                       2e-6 * fmax(1.0, inverse));
        }
    }
    for (j = 0; j < 2 * n; j++) {
        wrong += !(fabs(sum[j] - expected[j]) <= 1e-5 * rows);
    }
    if (wrong > 0) {
        printf("norm of %d rows of %d, centred %d\n", rows, n, centred);
    }
    CHECK_INT(wrong, 0);
}

static void test_loops(const gpt_loops *loops)
{
    int n;
    random_seed = 5;
    test_products(loops);
    test_exp(loops);
    test_activations(loops);
    test_softmax(loops);
    for (n = 1; n <= 70; n++) {
        test_norm(loops, random_int(1, 40), n, 0);
        test_norm(loops, random_int(1, 40), n, 1);
    }
    test_norm(loops, 33, 300, 0);
    test_norm(loops, 33, 300, 1);
}

int main(void)
{
    static const int widths[4] = {64, 32, 16, 0};
    int i, tested = 0;
    for (i = 0; i < 4; i++) {
        const gpt_loops *loops = gpt_loops_of(widths[i]);
        if (loops != NULL) {
            printf("vectors of %d bytes\n", widths[i]);
            test_loops(loops);
            tested++;
        }
    }
    CHECK(tested > 0 && gpt_loops_here() != NULL);
    return CHECK_DONE();
}
