/* SPDX-License-Identifier: MIT-0 */
/* Tests 8-bit moments (moment_type DPAR_F8): each code, rounding against a table of all values in
 * f64, vectors against plain loops, and steps against steps with F32 moments. A small regression
 * with noisy gradients must reach the loss of F32 moments, within the spread over seeds. */
#include "dpar_train.h"

#include "check.h"
#include "optimizers.h"

enum { B = DPARI_MOMENT_BLOCK, BITS = DPARI_MOMENT_BITS };

static uint64_t state = 7;
static uint32_t word(void)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 32);
}
static double uniform(void)
{
    return ((double)word() + 0.5) / 4294967296.0;
}
static double normal(void)
{
    return sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* Returns the value of a code, as optimizer.h says. */
static double value_of(int code, int bits, double scale)
{
    const int size = code & ((1 << bits) - 1);
    const double x = size == 0 ? 0.0 : scale * ldexp(1.0 + (double)(size % 8) / 8.0, size / 8);
    return code != size ? -x : x;
}

static int byte_of(int i)
{
    return i / 32 * 32 + i % 8 * 4 + i / 8 % 4;
}

/* A block with one record for m and one for v. */
static dpari_moment_block block_of(unsigned char *m, unsigned char *v)
{
    dpari_moment_block block;
    memset(&block, 0, sizeof block);
    block.record[0] = m;
    block.record[1] = v;
    block.moments = 2;
    return block;
}

/* Decodes all codes under a scale, compares them with value_of, and encodes them again. */
static void test_codes(double scale, int wide)
{
    unsigned char record[2][DPARI_MOMENT_RECORD];
    dpari_moment_block block = block_of(record[0], record[1]);
    const float by = (float)scale;
    float before[2][B];
    int wrong = 0;
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < B; i++) {
            record[k][byte_of(i)] = (unsigned char)i;
        }
        memcpy(record[k] + B, &by, 4);
    }
    dpari_moment_load(&block, wide);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < B; i++) {
            wrong += (double)block.x[k][i] != value_of(i, BITS + k, scale);
            wrong +=
                i > 0 && i != 128 && fabs((double)block.x[k][i]) <= fabs((double)block.x[k][i - 1]);
        }
        memcpy(before[k], block.x[k], sizeof before[k]);
    }
    for (uint64_t t = 0; t < 20; t++) {
        dpari_moment_store(&block, 3, t, t, wide);
        dpari_moment_load(&block, wide);
        for (int k = 0; k < 2; k++) {
            for (int i = 0; i < B; i++) {
                wrong += before[k][i] != block.x[k][i];
            }
        }
    }
    CHECK_INT(wrong, 0);
}

/* Encodes random numbers of all sizes often. Each result must be one of the two neighbours in the
 * table of values, and the mean must be the number. The sum of `times` results has a standard
 * deviation of at most sqrt(times) / 2 steps between neighbours; 5 of them are allowed. */
static void test_rounding(int wide)
{
    enum { TIMES = 400 };
    unsigned char record[2][DPARI_MOMENT_RECORD];
    dpari_moment_block block = block_of(record[0], record[1]);
    float x[2][B];
    double sum[2][B], most[2] = {0.0, 0.0}, step[2][B];
    int wrong = 0, biased = 0;
    memset(sum, 0, sizeof sum);
    for (int i = 0; i < B; i++) {
        x[0][i] = (float)(normal() * pow(2.0, -18.0 * uniform()));
        x[1][i] = (float)(normal() * normal() * pow(2.0, -36.0 * uniform()));
        x[1][i] = x[1][i] < 0.0f ? -x[1][i] : x[1][i];
        for (int k = 0; k < 2; k++) {
            const double size = fabs((double)x[k][i]);
            most[k] = size > most[k] ? size : most[k];
        }
    }
    for (int t = 0; t < TIMES; t++) {
        memcpy(block.x[0], x[0], sizeof x[0]);
        memcpy(block.x[1], x[1], sizeof x[1]);
        dpari_moment_store(&block, 11, (uint64_t)t, 5, wide);
        dpari_moment_load(&block, wide);
        for (int k = 0; k < 2; k++) {
            float scale;
            memcpy(&scale, record[k] + B, 4);
            for (int i = 0; i < B; i++) {
                const double size = fabs((double)x[k][i]), got = fabs((double)block.x[k][i]);
                const int end = 1 << (BITS + k);
                int c = 1, above = end - 1;
                double low, high;
                while (c < above) { /* the first code that is not below */
                    const int middle = (c + above) / 2;
                    if (value_of(middle, BITS + k, (double)scale) < size) {
                        c = middle + 1;
                    } else {
                        above = middle;
                    }
                }
                low = size > 0.0 ? value_of(c - 1, BITS + k, (double)scale) : 0.0;
                high = size > 0.0 ? value_of(c, BITS + k, (double)scale) : 0.0;
                low = high == size ? high : low;
                step[k][i] = high - low;
                wrong += got != low && got != high;
                wrong += k == 1 && size > 0.0 && got == 0.0;
                wrong += x[k][i] < 0.0f && block.x[k][i] > 0.0f;
                /* the bounds of optimizer.h */
                wrong += fabs(got - size) > size / 8.0 &&
                         fabs(got - size) > most[k] * (k == 0 ? ldexp(1.0, -14) : ldexp(1.0, -30));
                sum[k][i] += got;
            }
        }
    }
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < B; i++) {
            const double error = fabs(sum[k][i] / TIMES - fabs((double)x[k][i]));
            const int small = k == 1 && (double)x[k][i] < step[k][i];
            biased += !small && error > step[k][i] * (2.5 / sqrt((double)TIMES) + 1.0 / 65536.0);
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(biased, 0);
}

/* Vectors and plain loops must give the same bits, also for infinities, NaNs, zeros and numbers
 * below the normal ones. */
static void test_wide(void)
{
    unsigned char record[4][DPARI_MOMENT_RECORD];
    int wrong = 0;
    for (int trial = 0; trial < 300 && dpari_cpu_wide(); trial++) {
        dpari_moment_block one = block_of(record[0], record[1]);
        dpari_moment_block two = block_of(record[2], record[3]);
        for (int i = 0; i < B; i++) {
            const double size = pow(2.0, (trial % 4 == 0 ? -120.0 : -10.0) - 30.0 * uniform());
            one.x[0][i] = (float)(normal() * size);
            one.x[1][i] = (float)(uniform() * size);
            if (trial % 3 == 0 && i % 37 == 5) {
                one.x[0][i] = i % 2 ? 0.0f : -0.0f;
                one.x[1][i] = 0.0f;
            }
            if (trial % 5 == 0 && i == trial % B) {
                one.x[0][i] = i % 2 ? -INFINITY : NAN;
                one.x[1][i] = i % 2 ? INFINITY : NAN;
            }
        }
        dpari_elements_quiet(one.x[0], B);
        dpari_elements_quiet(one.x[1], B);
        memcpy(two.x, one.x, sizeof two.x);
        dpari_moment_store(&one, 1, (uint64_t)trial, 2, 0);
        dpari_moment_store(&two, 1, (uint64_t)trial, 2, 1);
        wrong += memcmp(record[0], record[2], 2 * sizeof record[0]) != 0;
        dpari_moment_load(&one, 0);
        dpari_moment_load(&two, 1);
        wrong += memcmp(one.x[0], two.x[0], 4 * B) != 0 || memcmp(one.x[1], two.x[1], 4 * B) != 0;
        if (trial % 5 == 0) {
            wrong += one.x[0][trial % B] - one.x[0][trial % B] == 0.0f;
            wrong += one.x[1][trial % B] - one.x[1][trial % B] == 0.0f;
        }
    }
    CHECK_INT(wrong, 0);
}

/* ---- steps ----------------------------------------------------------------------------------- */

enum { N = 1300, BLOCKS = (N + 2 * B) / B, STEPS = 12 };

typedef struct moments {
    unsigned char m[BLOCKS * DPARI_MOMENT_RECORD], v[BLOCKS * DPARI_MOMENT_RECORD];
} moments;

static void decode(float *m, float *v, moments *all, int count, int64_t skip)
{
    for (int b = 0; b < BLOCKS; b++) {
        dpari_moment_block block =
            block_of(all->m + b * DPARI_MOMENT_RECORD, all->v + b * DPARI_MOMENT_RECORD);
        block.moments = count;
        dpari_moment_load(&block, 0);
        for (int i = 0; i < B; i++) {
            const int64_t at = b * B + i - skip;
            if (at >= 0 && at < N) {
                m[at] = block.x[0][i];
                v[at] = block.x[1][i];
            }
        }
    }
}

/* The weights of each step must have the bits of a step with F32 moments that begins with the
 * decoded ones. Pieces that end inside of a block must give the same weights. */
static void test_steps(dpar_optimizer o, int32_t weight_type, int32_t gradient_type, uint64_t index)
{
    static float w[N], g[N], w2[N], w3[N], m[N], v[N];
    static uint16_t h[N], half[N];
    static moments one, cut;
    const int count = moments_of(&o);
    const int32_t each = (int32_t)dpar_type_bytes(weight_type);
    dpar_optimizer wide = o;
    dpar_optimizer_piece p, q;
    int wrong = 0;
    memset(&one, 0, sizeof one);
    memset(&cut, 0, sizeof cut);
    memset(&p, 0, sizeof p);
    o.moment_type = DPAR_F8;
    for (int i = 0; i < N; i++) {
        w[i] = (float)normal();
    }
    dpari_kern_convert(h, DPAR_BF16, w, DPAR_F32, N);
    p.weight = weight_type == DPAR_F32 ? (void *)w : (void *)h;
    p.gradient = gradient_type == DPAR_F32 ? (void *)g : (void *)half;
    p.weight_type = weight_type;
    p.gradient_type = gradient_type;
    p.count = N;
    p.index = index;
    memcpy(w3, p.weight, (size_t)(N * each));
    for (int t = 1; t <= STEPS; t++) {
        const double factor = t == 5 ? 0.0 : 0.5;
        for (int i = 0; i < N; i++) {
            g[i] = (float)(normal() * pow(2.0, -4.0 * (i % 3)));
        }
        dpari_kern_convert(half, DPAR_BF16, g, DPAR_F32, N);
        decode(m, v, &one, count, (int64_t)(index % B));
        memcpy(w2, p.weight, (size_t)(N * each));
        q = p;
        q.weight = w2;
        q.m = m;
        q.v = v;
        CHECK_INT(dpar_optimizer_step(&wide, &q, t, 0.01, factor), DPAR_OK);
        p.m = one.m;
        p.v = one.v;
        CHECK_INT(dpar_optimizer_step(&o, &p, t, 0.01, factor), DPAR_OK);
        wrong += memcmp(p.weight, w2, (size_t)(N * each)) != 0;
        for (int64_t i = 0, n; i < N; i += n) { /* pieces */
            n = dpari_least(1 + (i * 7 + t) % 300, N - i);
            q = p;
            q.weight = (char *)w3 + i * each;
            q.gradient = (const char *)p.gradient + i * dpar_type_bytes(gradient_type);
            q.count = n;
            q.index = index + (uint64_t)i;
            q.m = cut.m + dpari_moment_at(DPAR_F8, index, i);
            q.v = cut.v + dpari_moment_at(DPAR_F8, index, i);
            CHECK_INT(dpar_optimizer_step(&o, &q, t, 0.01, factor), DPAR_OK);
        }
        wrong += t == 1 && memcmp(w3, p.weight, (size_t)(N * each)) != 0;
    }
    CHECK_INT(wrong, 0);
    for (int i = 0; i < N && weight_type == DPAR_F32; i++) { /* other roundings, the same order */
        wrong += fabs((double)w[i] - (double)w3[i]) > 0.01 * STEPS * (count == 2 ? 1.0 : 10.0);
    }
    CHECK_INT(wrong, 0);
}

/* ---- training -------------------------------------------------------------------------------- */

/* Returns the loss after training a regression with 3 hidden units of tanh on noisy samples. */
static double trained(int32_t moment_type, uint64_t seed, double *half_way)
{
    enum { IN = 40, HIDDEN = 12, W = IN * HIDDEN + HIDDEN, ITERATIONS = 900 };
    static float w[W], g[W], m[2][W];
    static unsigned char code[2][(W / B + 1) * DPARI_MOMENT_RECORD];
    double loss = 0.0;
    dpar_optimizer o = adamw();
    dpar_optimizer_piece p;
    memset(m, 0, sizeof m);
    memset(code, 0, sizeof code);
    memset(&p, 0, sizeof p);
    o.moment_type = moment_type;
    o.seed = seed;
    p.weight = w;
    p.gradient = g;
    p.m = moment_type == DPAR_F8 ? (void *)code[0] : (void *)m[0];
    p.v = moment_type == DPAR_F8 ? (void *)code[1] : (void *)m[1];
    p.weight_type = p.gradient_type = DPAR_F32;
    p.count = W;
    state = seed * 1000 + 17;
    for (int i = 0; i < W; i++) {
        w[i] = (float)(0.2 * normal());
    }
    for (int t = 1; t <= ITERATIONS; t++) {
        double x[IN], a[HIDDEN], y = 0.0, target = 0.0;
        memset(g, 0, sizeof g);
        for (int sample = 0; sample < 8; sample++) {
            y = target = 0.0;
            for (int i = 0; i < IN; i++) { /* inputs of very different sizes */
                x[i] = normal() * pow(2.0, -8.0 * i / IN);
                target += (i % 2 ? 1.0 : -1.0) * x[i];
            }
            target = sin(target);
            for (int k = 0; k < HIDDEN; k++) {
                a[k] = 0.0;
                for (int i = 0; i < IN; i++) {
                    a[k] += (double)w[k * IN + i] * x[i];
                }
                a[k] = tanh(a[k]);
                y += (double)w[IN * HIDDEN + k] * a[k];
            }
            for (int k = 0; k < HIDDEN; k++) {
                const double back =
                    (y - target) * (double)w[IN * HIDDEN + k] * (1.0 - a[k] * a[k]) / 8.0;
                g[IN * HIDDEN + k] += (float)((y - target) * a[k] / 8.0);
                for (int i = 0; i < IN; i++) {
                    g[k * IN + i] += (float)(back * x[i]);
                }
            }
            if (t > ITERATIONS - 300) {
                loss += 0.5 * (y - target) * (y - target) / (8.0 * 300.0);
            } else if (t > ITERATIONS / 5 && t <= ITERATIONS / 5 + 300) {
                *half_way += 0.5 * (y - target) * (y - target) / (8.0 * 300.0);
            }
        }
        CHECK_INT(dpar_optimizer_step(&o, &p, t, 3e-3, 1.0), DPAR_OK);
    }
    return loss;
}

/* Over seeds, the mean loss with 8-bit moments must be within 3 standard errors of the mean with
 * F32 moments, early and at the end. Each pair has the same weights and samples at first. */
static void test_trains(void)
{
    enum { SEEDS = 8 };
    double mean[2] = {0.0, 0.0}, square[2] = {0.0, 0.0};
    for (int s = 0; s < SEEDS; s++) {
        double early[2] = {0.0, 0.0}, late[2];
        late[0] = trained(DPAR_TYPE_NONE, (uint64_t)s, &early[0]);
        late[1] = trained(DPAR_F8, (uint64_t)s, &early[1]);
        for (int k = 0; k < 2; k++) {
            const double more = k == 0 ? early[1] / early[0] - 1.0 : late[1] / late[0] - 1.0;
            mean[k] += more / SEEDS;
            square[k] += more * more / SEEDS;
        }
    }
    for (int k = 0; k < 2; k++) {
        const double error = sqrt((square[k] - mean[k] * mean[k]) / (SEEDS - 1));
        printf("%s loss with 8-bit moments: %+.2f %%, standard error %.2f %%\n",
               k == 0 ? "early" : "final", 100.0 * mean[k], 100.0 * error);
        CHECK(mean[k] <= 3.0 * error);
        CHECK(error < 0.05);
    }
}

static void test_refusals(void)
{
    dpar_optimizer o = adamw();
    dpar_why why;
    int32_t type = 0;
    o.moment_type = DPAR_F8;
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, &type, &why), DPAR_OK);
    CHECK_INT(type, DPAR_F8);
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F64, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "optimizer: moment_type is f8, but weights are f64, which need f64 moments");
}

int main(void)
{
    dpar_optimizer momentum = sgd(0.9);
    for (int wide = 0; wide <= dpari_cpu_wide(); wide++) {
        test_codes(1.0, wide);
        test_codes(ldexp(1.0, -90), wide);
        test_codes(ldexp(1.0, 60), wide);
        test_rounding(wide);
    }
    test_wide();
    test_steps(adamw(), DPAR_F32, DPAR_F32, 0);
    test_steps(adamw(), DPAR_F32, DPAR_BF16, 512 + 77);
    test_steps(adamw(), DPAR_BF16, DPAR_F32, 300);
    test_steps(momentum, DPAR_F32, DPAR_F32, 255);
    test_refusals();
    test_trains();
    return CHECK_DONE();
}
