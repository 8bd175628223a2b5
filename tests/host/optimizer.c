/* SPDX-License-Identifier: MIT-0 */
/* Compares AdamW and SGD with their formulas (the loops in torch.optim's documentation), computed
 * with libm. Moments in bf16 are compared by a rounding written out here, and stochastic rounding
 * by its mean. */
#include "dpar_train.h"

#include "check.h"
#include "bf16.h"
#include "optimizers.h"

enum { N = 301, STEPS = 30 };

static double wave(int i, int t)
{
    return (double)((i * 37 + t * 101) % 211 - 105) / 64.0;
}

/* ---- optimizer ---- */

static void one_reference(const dpar_optimizer *o, double *w, double *m, double *v, double g, int t,
                          double rate)
{
    if (o->kind == DPAR_OPTIMIZER_ADAMW) {
        *w -= rate * o->decay * *w;
        *m = o->beta1 * *m + (1.0 - o->beta1) * g;
        *v = o->beta2 * *v + (1.0 - o->beta2) * g * g;
        *w -= rate * (*m / (1.0 - pow(o->beta1, t))) /
              (sqrt(*v / (1.0 - pow(o->beta2, t))) + o->epsilon);
    } else {
        g += o->decay * *w;
        *m = o->momentum * *m + g;
        *w -= rate * (o->nesterov ? g + o->momentum * *m : *m);
    }
}

static void test_steps(dpar_optimizer o)
{
    static double w[N], m[N], v[N], w2[N], m2[N], v2[N], g[N];
    static float wf[N], mf[N], vf[N];
    dpar_optimizer_piece p, q;
    int i, t;
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    memset(m2, 0, sizeof m2);
    memset(v2, 0, sizeof v2);
    memset(mf, 0, sizeof mf);
    memset(vf, 0, sizeof vf);
    for (i = 0; i < N; i++) {
        w[i] = w2[i] = wave(i, 7);
        wf[i] = (float)w[i];
    }
    memset(&p, 0, sizeof p);
    p.weight = w;
    p.gradient = g;
    p.m = m;
    p.v = v;
    p.weight_type = p.gradient_type = DPAR_F64;
    p.count = N;
    q = p;
    q.weight = wf;
    q.weight_type = DPAR_F32;
    q.m = mf;
    q.v = vf;
    for (t = 1; t <= STEPS; t++) {
        for (i = 0; i < N; i++) {
            g[i] = wave(i, t);
            one_reference(&o, &w2[i], &m2[i], &v2[i], g[i] * 0.5, t, 0.01);
        }
        CHECK_INT(dpar_optimizer_step(&o, &p, t, 0.01, 0.5), DPAR_OK);
        CHECK_INT(dpar_optimizer_step(&o, &q, t, 0.01, 0.5), DPAR_OK);
    }
    for (i = 0; i < N; i++) {
        CHECK(fabs(w[i] - w2[i]) <= 1e-13 * (1.0 + fabs(w2[i])));
        CHECK(fabs((double)wf[i] - w2[i]) <= 1e-5 * (1.0 + fabs(w2[i])));
    }
}

static void test_optimizers(void)
{
    dpar_optimizer o = adamw();
    CHECK_INT(moments_of(&o), 2);
    test_steps(o);
    o.beta1 = 0.0;
    o.beta2 = 0.5;
    o.epsilon = 0.1;
    test_steps(o);
    o = sgd(0.0);
    CHECK_INT(moments_of(&o), 0);
    test_steps(o);
    o = sgd(0.9);
    CHECK_INT(moments_of(&o), 1);
    o.decay = 0.1;
    test_steps(o);
    o.nesterov = 1;
    test_steps(o);
}

/* Checks that the result for an element does not depend on how many are updated in the same call:
 * thousands at once, pieces of 1 to 9 elements, and one at a time with gradients of another
 * type. */
enum { MANY = 4099 }; /* enough for the widest vectors of the CPU, plus a remainder */
static void fill_strange(double *at, int from)
{
    static const double strange[] = {0.0,   -0.0,  1e-310, -3e-320, 1e308, -1e308,
                                     1e-45, 1e-39, 3.4e38, 7e-46,   1e300, -1e-300};
    for (int i = 0; i < MANY; i++) {
        const int k = (i + from) % 31;
        at[i] = k < 12    ? strange[k]
                : k == 12 ? HUGE_VAL
                : k == 13 ? -HUGE_VAL
                : k == 14 ? NAN
                          : wave(i, from);
    }
}

static double value_at(const void *array, int i, int32_t type)
{
    double wide;
    float thin;
    if (type == DPAR_F32) {
        memcpy(&thin, (const char *)array + 4 * i, 4);
        return (double)thin;
    }
    memcpy(&wide, (const char *)array + 8 * i, 8);
    return wide;
}

static void test_cuts(dpar_optimizer o, int32_t type)
{
    static double array[4][MANY], cut[3][MANY], one[3][MANY];
    const size_t size = (size_t)dpar_type_bytes(type);
    dpar_optimizer_piece p;
    int moments = moments_of(&o), wrong = 0;
    memset(&p, 0, sizeof p);
    p.weight_type = p.gradient_type = type;
    for (int k = 0; k < 4; k++) {
        fill_strange(array[k], 3 * k);
        for (int i = 0; i < MANY; i++) {
            array[k][i] = k == 2 ? fabs(array[k][i]) : array[k][i]; /* v is never negative */
            if (type == DPAR_F32) {
                const float thin = (float)array[k][i];
                memcpy((char *)array[k] + 4 * i, &thin, 4);
            }
        }
    }
    memcpy(cut, array, sizeof cut);
    memcpy(one, array, sizeof one);
#define AT(of, k, i) ((void *)((char *)(of)[k] + (size_t)(i)*size))
    for (int i = 0, n; i < MANY; i += n) {
        n = i % 9 + 1 < MANY - i ? i % 9 + 1 : MANY - i;
        p.weight = AT(cut, 0, i), p.m = moments > 0 ? AT(cut, 1, i) : NULL;
        p.v = moments > 1 ? AT(cut, 2, i) : NULL;
        p.gradient = AT(array, 3, i), p.count = n, p.index = (uint64_t)i;
        CHECK_INT(dpar_optimizer_step(&o, &p, 3, 0.01, 0.5), DPAR_OK);
    }
    for (int i = 0; i < MANY; i++) {
        double wide = value_at(array[3], i, type);
        float thin = (float)wide;
        p.weight = AT(one, 0, i), p.m = moments > 0 ? AT(one, 1, i) : NULL;
        p.v = moments > 1 ? AT(one, 2, i) : NULL;
        p.gradient = type == DPAR_F32 ? (void *)&wide : (void *)&thin;
        p.gradient_type = type == DPAR_F32 ? DPAR_F64 : DPAR_F32;
        if (type == DPAR_F64 && !((double)thin == wide || wide != wide)) {
            p.gradient = &wide, p.gradient_type = DPAR_F64;
        }
        p.count = 1, p.index = (uint64_t)i;
        CHECK_INT(dpar_optimizer_step(&o, &p, 3, 0.01, 0.5), DPAR_OK);
    }
    p.weight = array[0], p.m = moments > 0 ? array[1] : NULL, p.v = moments > 1 ? array[2] : NULL;
    p.gradient = array[3], p.gradient_type = type, p.count = MANY, p.index = 0;
    CHECK_INT(dpar_optimizer_step(&o, &p, 3, 0.01, 0.5), DPAR_OK);
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < MANY; i++) {
            const double x = value_at(array[k], i, type);
            /* If both operands of an F64 sum are NaN, the compiler decides which one is kept. */
            wrong +=
                memcmp(AT(array, k, i), AT(cut, k, i), size) != 0 && (type == DPAR_F32 || x == x);
            wrong +=
                memcmp(AT(array, k, i), AT(one, k, i), size) != 0 && (type == DPAR_F32 || x == x);
        }
    }
#undef AT
    CHECK_INT(wrong, 0);
}

/* Tests roots of numbers with all exponents, through v of one element after one step with beta1
 * 0. */
static void test_roots(void)
{
    dpar_optimizer o = adamw();
    dpar_optimizer_piece p;
    double w, g, m, v;
    int e;
    o.beta1 = o.beta2 = 0.0;
    o.decay = 0.0;
    o.epsilon = 1e-300;
    memset(&p, 0, sizeof p);
    p.weight = &w;
    p.gradient = &g;
    p.m = &m;
    p.v = &v;
    p.weight_type = p.gradient_type = DPAR_F64;
    p.count = 1;
    for (e = -400; e < 500; e++) { /* w = -g / sqrt(g g) = -1 */
        g = ldexp(1.0 + (double)(e * e % 97) / 97.0, e);
        w = m = v = 0.0;
        CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_OK);
        CHECK_NEAR(w, -1.0, 7e-16);
    }
    g = w = m = v = 0.0;
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_OK);
    CHECK(w == 0.0);
}

/* Checks a step whose norm is not a number: gradients are ignored, also NaN and Inf. w and v
 * decay. */
static void test_skipped(void)
{
    dpar_optimizer o = adamw();
    dpar_optimizer_piece p;
    double w[2] = {2.0, -4.0}, g[2] = {NAN, INFINITY}, m[2] = {0.0, 0.0}, v[2] = {1.0, 1.0};
    memset(&p, 0, sizeof p);
    p.weight = w;
    p.gradient = g;
    p.m = m;
    p.v = v;
    p.weight_type = p.gradient_type = DPAR_F64;
    p.count = 2;
    CHECK_INT(dpar_optimizer_step(&o, &p, 2, 0.5, dpar_optimizer_clip(NAN, 1.0)), DPAR_OK);
    CHECK(w[0] == 2.0 * (1.0 - 0.5 * 0.01) && w[1] == -4.0 * (1.0 - 0.5 * 0.01));
    CHECK(m[0] == 0.0 && m[1] == 0.0 && v[0] == 0.999 && v[1] == 0.999);
}

static void test_refusals(void)
{
    dpar_optimizer o = adamw();
    dpar_optimizer_piece p;
    dpar_why why;
    double x = 0.0;
    memset(&p, 0, sizeof p);
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F64, NULL, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_optimizer_check(NULL, DPAR_F64, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_optimizer_check(&o, DPAR_I32, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_E_ARG); /* the types are 0 */
    p.weight_type = DPAR_F64;
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_E_ARG);
    p.gradient_type = DPAR_F64;
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_OK); /* no elements */
    CHECK_INT(dpar_optimizer_step(&o, &p, 0, 1.0, 1.0), DPAR_E_ARG);
    CHECK_INT(dpar_optimizer_step(&o, NULL, 1, 1.0, 1.0), DPAR_E_ARG);
    p.count = 1;
    p.weight = p.m = &x;
    p.gradient = &x;
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_E_ARG); /* no v */
    p.v = &x;
    p.weight_type = DPAR_I32;
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_E_ARG);
    o.beta2 = 1.0;
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_E_ARG);
    o = sgd(1.0);
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_E_ARG);
    o = sgd(0.5);
    o.decay = NAN;
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_E_ARG);
    o.decay = 0.0;
    o.kind = 3;
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_E_ARG);
    o.kind = 0; /* the kind is 0 */
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               "optimizer: kind is 0, nesterov 0 and stochastic 0, but kind must be 1 (AdamW) or 2 "
               "(SGD), and the others 0 or 1");
}

/* Checks the mean of stochastic rounding. 1 + k / 1024 is between 1 and 1 + 1/128, so a share k / 8
 * is rounded up, however the array is cut. The standard deviation of the mean of 40000 is below
 * 0.0025. */
static void test_stochastic(void)
{
    enum { MANY = 40000 };
    static float in[MANY];
    static uint16_t out[MANY], again[MANY];
    int k, i;
    for (k = 0; k < 8; k++) {
        int up = 0;
        for (i = 0; i < MANY; i++) {
            in[i] = 1.0f + (float)k / 1024.0f;
        }
        dpari_random_round(out, in, MANY, 5, 9, 1, 16);
        for (i = 0; i < MANY; i++) {
            CHECK(out[i] == 0x3f80 || out[i] == 0x3f81);
            up += out[i] == 0x3f81;
        }
        CHECK(fabs((double)up / MANY - k / 8.0) < 0.012);
        dpari_random_round(again, in, 777, 5, 9, 1, 16);
        dpari_random_round(again + 777, in + 777, MANY - 777, 5, 9, 778, 16);
        CHECK(memcmp(out, again, sizeof out) == 0);
    }
    in[0] = INFINITY;
    in[1] = -INFINITY;
    in[2] = NAN;
    in[3] = -0.0f;
    dpari_random_round(out, in, 4, 5, 9, 0, 16);
    CHECK(out[0] == 0x7f80 && out[1] == 0xff80 && (out[2] & 0x7fffu) > 0x7f80 && out[3] == 0x8000);
}

/* ---- moments in bf16 ---- */

/* Rounds x to `digits` binary digits, through f32: to the nearest, ties to even. For normal
 * numbers. */
static double rounded(double x, int digits)
{
    int e;
    const double share = frexp((double)(float)x, &e);
    return ldexp(rint(ldexp(share, digits)), e - digits);
}

/* Rounds x to 8 digits: away from zero if the cut-off part plus `half`, both in units of 2^-16 of
 * the last digit, reach 1. */
static double rounded_by(double x, uint32_t half)
{
    int e;
    const double scaled = ldexp(frexp((double)(float)x, &e), 8), whole = trunc(scaled);
    const double up = fabs(scaled - whole) * 65536.0 + (double)half >= 65536.0 ? 1.0 : 0.0;
    return ldexp(whole + (scaled < 0.0 ? -up : up), e - 8);
}

/* Returns a weight of type F32 or BF16 as a double. */
static double weight_at(const void *w, int32_t type, int i)
{
    return (double)(type == DPAR_F32 ? ((const float *)w)[i]
                                     : bf16_value(((const uint16_t *)w)[i]));
}

/* Computes one step of an element, where each number is rounded as documented in optimizer.h. */
static void one_narrow(const dpar_optimizer *o, int32_t type, uint64_t index, double *w, double *m,
                       double *v, double g, int t, double rate)
{
    const uint64_t other = (uint64_t)t + (UINT64_C(1) << 63);
    const uint32_t of_weight = dpari_random_word(o->seed, (uint64_t)t, index);
    const uint32_t of_moments = dpari_random_word(o->seed, other, index);
    one_reference(o, w, m, v, g, t, rate);
    if (type == DPAR_F32) {
        *w = (double)(float)*w;
    } else {
        *w = o->stochastic ? rounded_by(*w, of_weight >> 16) : rounded(*w, 8);
    }
    *m = o->stochastic ? rounded_by(*m, of_moments >> 16) : rounded(*m, 8);
    *v = o->stochastic ? rounded_by(*v, of_moments & 0xffff) : rounded(*v, 8);
}

/* Compares each step, which begins with the numbers that the previous one stored. An update in two
 * pieces must give the same bits as one over the whole array. */
static void test_narrow_steps(dpar_optimizer o, int32_t type)
{
    enum { CUT = 131 };
    static float w32[N];
    static uint16_t w16[N], m[N], v[N], g[N];
    static double w2[N], m2[N], v2[N];
    const int two = moments_of(&o) > 1;
    unsigned char *w = type == DPAR_F32 ? (unsigned char *)w32 : (unsigned char *)w16;
    dpar_optimizer_piece p, q;
    int i, t, differ = 0;
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (i = 0; i < N; i++) {
        w16[i] = bf16_of((float)wave(i, 7));
        w32[i] = (float)wave(i, 7);
    }
    memset(&p, 0, sizeof p);
    p.weight = w;
    p.gradient = g;
    p.m = m;
    p.v = two ? v : NULL;
    p.weight_type = type;
    p.gradient_type = DPAR_BF16;
    p.count = CUT;
    p.index = 1000;
    q = p;
    q.weight = w + CUT * dpar_type_bytes(type);
    q.gradient = g + CUT;
    q.m = m + CUT;
    q.v = two ? v + CUT : NULL;
    q.count = N - CUT;
    q.index += CUT;
    for (t = 1; t <= STEPS; t++) {
        for (i = 0; i < N; i++) {
            g[i] = bf16_of((float)wave(i, t));
            w2[i] = weight_at(w, type, i);
            m2[i] = (double)bf16_value(m[i]);
            v2[i] = (double)bf16_value(v[i]);
            one_narrow(&o, type, 1000 + (uint64_t)i, &w2[i], &m2[i], &v2[i],
                       0.5 * (double)bf16_value(g[i]), t, 0.01);
        }
        CHECK_INT(dpar_optimizer_step(&o, &p, t, 0.01, 0.5), DPAR_OK);
        CHECK_INT(dpar_optimizer_step(&o, &q, t, 0.01, 0.5), DPAR_OK);
        for (i = 0; i < N; i++) { /* the last bit of a root may differ in f32, not in 8 digits */
            const double near_by = type == DPAR_F32 ? 1.3e-7 * fabs(w2[i]) : 0.0;
            differ += fabs(weight_at(w, type, i) - w2[i]) > near_by;
            differ += (double)bf16_value(m[i]) != m2[i];
            differ += (double)bf16_value(v[i]) != (two ? v2[i] : 0.0);
        }
    }
    CHECK_INT(differ, 0);
}

static void test_narrow_moments(void)
{
    static const int32_t types[2] = {DPAR_F32, DPAR_BF16};
    int k, stochastic;
    for (k = 0; k < 2; k++) {
        for (stochastic = 0; stochastic < 2; stochastic++) {
            dpar_optimizer o = adamw();
            o.moment_type = DPAR_BF16;
            o.stochastic = stochastic;
            o.seed = 77;
            test_narrow_steps(o, types[k]);
            o.kind = DPAR_OPTIMIZER_SGD;
            o.momentum = 0.9;
            test_narrow_steps(o, types[k]);
            o.nesterov = 1;
            test_narrow_steps(o, types[k]);
        }
    }
}

enum { CROWD = 40000 };

/* Many elements with the same values: F32 weights, BF16 moments and gradients. */
typedef struct crowd {
    float w[CROWD], g[CROWD];
    uint16_t m[CROWD], v[CROWD];
    dpar_optimizer_piece piece;
} crowd;

static void crowd_of(crowd *c, double g, double m, double v)
{
    int i;
    for (i = 0; i < CROWD; i++) {
        c->w[i] = 0.0f;
        c->g[i] = (float)g;
        c->m[i] = bf16_of((float)m);
        c->v[i] = bf16_of((float)v);
    }
    memset(&c->piece, 0, sizeof c->piece);
    c->piece.weight = c->w;
    c->piece.gradient = c->g;
    c->piece.m = c->m;
    c->piece.v = c->v;
    c->piece.weight_type = c->piece.gradient_type = DPAR_F32;
    c->piece.count = CROWD;
}

static double mean_of(const uint16_t *x)
{
    double sum = 0.0;
    int i;
    for (i = 0; i < CROWD; i++) {
        sum += (double)bf16_value(x[i]);
    }
    return sum / CROWD;
}

/* Runs 200 steps with gradient g on moments that begin at 1. Rounded to nearest they do not move.
 * With stochastic rounding their mean is that of exact arithmetic, g + (1 - g) beta1^200 and g g +
 * (1 - g g) beta2^200. The deviation of one rounding is 2^-8 at most; that of v after 200 of them
 * is below 0.0039 sqrt(200) = 0.056, and of the mean of 40000 below 0.00028. */
static void test_follows(double g, int m_stays)
{
    static crowd c;
    const double m_to = g + (1.0 - g) * pow(0.9, 200),
                 v_to = g * g + (1.0 - g * g) * pow(0.999, 200);
    dpar_optimizer o = adamw();
    int t;
    o.moment_type = DPAR_BF16;
    crowd_of(&c, g, 1.0, 1.0);
    for (t = 1; t <= 200; t++) {
        CHECK_INT(dpar_optimizer_step(&o, &c.piece, t, 0.01, 1.0), DPAR_OK);
    }
    CHECK(mean_of(c.v) == 1.0 && c.v[0] == 0x3f80 && c.v[CROWD - 1] == 0x3f80);
    CHECK(!m_stays || mean_of(c.m) == 1.0);
    o.stochastic = 1;
    o.seed = 3;
    crowd_of(&c, g, 1.0, 1.0);
    for (t = 1; t <= 200; t++) {
        CHECK_INT(dpar_optimizer_step(&o, &c.piece, t, 0.01, 1.0), DPAR_OK);
    }
    CHECK(fabs(v_to - 1.0) > 0.005 && fabs(mean_of(c.v) - v_to) < 0.0015);
    CHECK(fabs(m_to - 1.0) > 0.005 && fabs(mean_of(c.m) - m_to) < 0.0015);
}

/* Rounds weight, m and v that are half-way between two numbers. The three round independently: each
 * of the eight combinations must be an eighth of all. The deviation of a share is 0.0017. */
static void test_streams_apart(void)
{
    static crowd c;
    static uint16_t w[CROWD];
    dpar_optimizer o = adamw();
    int ways[8] = {0}, i;
    o.moment_type = DPAR_BF16;
    o.stochastic = 1;
    o.beta1 = o.beta2 = 0.5;
    o.decay = 0.0;
    crowd_of(&c, 1.0 + 1.0 / 128.0, 1.0, 1.0 - 1.0 / 128.0); /* m and v become 1 + 2^-8 and 2^-15 */
    for (i = 0; i < CROWD; i++) {
        w[i] = 0x3f80;
    }
    c.piece.weight = w;
    c.piece.weight_type = DPAR_BF16;
    /* The new weight is 1 - rate 2 m / sqrt(2 v) = 1 + 2^-8. */
    CHECK_INT(dpar_optimizer_step(&o, &c.piece, 1, -sqrt(0.5) / 256.0, 1.0), DPAR_OK);
    for (i = 0; i < CROWD; i++) {
        CHECK((w[i] | 1) == 0x3f81 && (c.m[i] | 1) == 0x3f81 && (c.v[i] | 1) == 0x3f81);
        ways[(w[i] & 1) + 2 * (c.m[i] & 1) + 4 * (c.v[i] & 1)]++;
    }
    for (i = 0; i < 8; i++) {
        CHECK(fabs((double)ways[i] / CROWD - 0.125) < 0.009);
    }
}

/* Trains in bf16 only: gradients w - 1.5 move weights from 1 to 1.5 in 1000 AdamW steps of at most
 * 0.001. Rounded to nearest no weight ever moves, because half a unit is 0.0039. With stochastic
 * rounding their mean follows a weight in f64, computed by one_reference, to 1.5 within a unit. */
static void test_trains(int stochastic)
{
    static crowd c;
    static uint16_t w[CROWD], g[CROWD];
    enum { FEW = 2000, LONG = 1000 };
    dpar_optimizer o = adamw();
    double x = 1.0, m = 0.0, v = 0.0, sum = 0.0;
    int i, t, moved = 0;
    o.decay = 0.0;
    o.moment_type = DPAR_BF16;
    o.stochastic = stochastic;
    o.seed = 11;
    crowd_of(&c, 0.0, 0.0, 0.0);
    c.piece.weight = w;
    c.piece.gradient = g;
    c.piece.weight_type = c.piece.gradient_type = DPAR_BF16;
    c.piece.count = FEW;
    for (i = 0; i < FEW; i++) {
        w[i] = bf16_of(1.0f);
    }
    for (t = 1; t <= LONG; t++) {
        for (i = 0; i < FEW; i++) {
            g[i] = bf16_of(bf16_value(w[i]) - 1.5f);
        }
        CHECK_INT(dpar_optimizer_step(&o, &c.piece, t, 0.001, 1.0), DPAR_OK);
        one_reference(&o, &x, &m, &v, x - 1.5, t, 0.001);
    }
    for (i = 0; i < FEW; i++) {
        sum += (double)bf16_value(w[i]);
        moved += w[i] != 0x3f80;
    }
    CHECK(x > 1.45 && x < 1.55);
    if (stochastic) {
        CHECK(fabs(sum / FEW - x) < 0.0078);
        CHECK(moved > FEW * 99 / 100);
    } else {
        CHECK_INT(moved, 0);
    }
}

static void test_moment_types(void)
{
    static const int32_t floats[4] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16};
    static const int32_t wide[4] = {DPAR_F64, DPAR_F32, DPAR_F32, DPAR_F32};
    dpar_optimizer o = adamw();
    dpar_optimizer_piece p;
    dpar_why why;
    double x = 0.0, g = 1.0, m = 0.0, v = 0.0;
    int i;
    for (i = 0; i < 4; i++) {
        o.moment_type = 0;
        CHECK_INT(moment_type_of(&o, floats[i]), wide[i]);
        o.moment_type = DPAR_BF16;
        CHECK_INT(moment_type_of(&o, floats[i]), i == 0 ? DPAR_TYPE_NONE : DPAR_BF16);
    }
    CHECK_INT(moment_type_of(&o, DPAR_I32), DPAR_TYPE_NONE);
    CHECK_INT(moment_type_of(NULL, DPAR_F32), DPAR_TYPE_NONE);
    CHECK_INT(moment_type_of(&o, DPAR_TYPE_NONE), DPAR_TYPE_NONE);
    memset(&p, 0, sizeof p);
    p.weight = &x;
    p.gradient = &g;
    p.m = &m;
    p.v = &v;
    p.count = 1;
    p.weight_type = p.gradient_type = DPAR_F64;
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_OK);
    CHECK_INT(dpar_optimizer_step(&o, &p, 1, 1.0, 1.0), DPAR_E_ARG); /* F64 */
    CHECK(x == 0.0 && m == 0.0 && v == 0.0);
    o.moment_type = DPAR_F16;
    CHECK_INT(dpar_optimizer_check(&o, DPAR_F32, NULL, NULL, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "optimizer: moment_type is f16, but must be bf16, f8 or 0");
}

static void test_norms(void)
{
    static double x[N];
    double sum = 0.0;
    int i;
    for (i = 0; i < N; i++) {
        x[i] = wave(i, 1);
        sum += x[i] * x[i];
    }
    CHECK(dpari_mem_sum_squares(x, N, DPAR_F64) == sum);
    CHECK(dpari_mem_sum_squares(x, 0, DPAR_F64) == 0.0);
    CHECK(dpar_optimizer_clip(3.0, 0.0) == 1.0 && dpar_optimizer_clip(0.5, 1.0) == 1.0);
    CHECK_NEAR(dpar_optimizer_clip(4.0, 1.0), 1.0 / 4.000001, 1e-15);
    CHECK(dpar_optimizer_clip(NAN, 1.0) == 0.0 && dpar_optimizer_clip(INFINITY, 1.0) == 0.0);
}

int main(void)
{
    test_skipped();
    test_optimizers();
    test_roots();
    for (int32_t type = DPAR_F64; type == DPAR_F64 || type == DPAR_F32;
         type += DPAR_F32 - DPAR_F64) {
        dpar_optimizer o = sgd(0.9);
        test_cuts(adamw(), type);
        test_cuts(sgd(0.0), type);
        test_cuts(o, type);
        o.nesterov = 1;
        test_cuts(o, type);
    }
    test_refusals();
    test_stochastic();
    test_narrow_moments();
    test_follows(0.0, 0);
    test_follows(1.5, 0);
    test_follows(1.02, 1);
    test_streams_apart();
    test_trains(0);
    test_trains(1);
    test_moment_types();
    test_norms();
    return CHECK_DONE();
}
