/* SPDX-License-Identifier: MIT-0 */
/* Tests operations on arrays large enough that the library uses wider vectors of the CPU
 * (dpari_lanes_for). The results must have the same bits as those of the operation done row by row,
 * which tests/host/layers.c and tests/train/ranks/sequence.c compare with libm. Lengths are odd, so
 * that ends of rows are tested too. */
#include "dpar_train.h"

#include "check.h"
#include "random_bits.h"

#include <math.h>
#include <string.h>

enum { ROWS = 257, WIDTH = 203, ALL = ROWS * WIDTH };

static float x[ALL], y[ALL], one[2][ALL];
static double wide[2][ALL];
static unsigned char codes[2][ALL];
static dpar_mem_layers host;

static void fill(float *to, double size)
{
    for (int i = 0; i < ALL; i++) {
        to[i] = (float)(size * ((double)(random_bits() >> 11) / 4503599627370496.0 - 1.0));
    }
}

static void squares_and_dots(void)
{
    dpar_mem_squares s;
    dpar_mem_dot d;
    double sum[2] = {0.0, 0.0};
    memset(&s, 0, sizeof s);
    s.type = DPAR_F32;
    s.in = x;
    s.count = ALL;
    s.sum = &sum[0];
    CHECK_INT(host.squares(NULL, &s), DPAR_OK);
    s.accumulate = 1;
    s.sum = &sum[1];
    for (int64_t i = 0; i < ALL; i += 256) { /* sums are taken over parts of 256 elements */
        s.in = x + i;
        s.count = ALL - i < 256 ? ALL - i : 256;
        CHECK_INT(host.squares(NULL, &s), DPAR_OK);
    }
    CHECK(memcmp(&sum[0], &sum[1], sizeof(double)) == 0);
    memset(&d, 0, sizeof d);
    d.type = DPAR_F32;
    d.to_type = DPAR_F64;
    d.choices = 1;
    d.width = WIDTH;
    d.rows = ROWS;
    d.a = x;
    d.b = y;
    d.to = wide[0];
    CHECK_INT(host.dot(NULL, &d), DPAR_OK);
    d.rows = 1;
    for (int i = 0; i < ROWS; i++) {
        d.a = x + i * WIDTH;
        d.b = y + i * WIDTH;
        d.to = wide[1] + i;
        CHECK_INT(host.dot(NULL, &d), DPAR_OK);
    }
    CHECK(memcmp(wide[0], wide[1], ROWS * sizeof(double)) == 0);
}

/* Runs one phase of a norm on planes of 7 x 29; each plane is a channel. */
static void norm_phase(dpar_mem_norm m, int32_t phase, int planes, int first)
{
    m.phase = phase;
    m.planes = m.channels = planes;
    m.x.data = x + first * WIDTH;
    m.dy.data = y + first * WIDTH;
    m.to.data = one[planes == 1] + first * WIDTH;
    m.saved += 2 * first;
    m.sums += 2 * first;
    m.total += 3 * first;
    CHECK_INT(host.norm(NULL, &m), DPAR_OK);
}

static void norms(void)
{
    static double saved[2 * ROWS], sums[2][2 * ROWS], total[2][3 * ROWS], moments[2][3 * ROWS];
    dpar_mem_moments o;
    dpar_mem_norm m;
    memset(&o, 0, sizeof o);
    o.type = DPAR_F32;
    o.dims = 2;
    o.step = WIDTH;
    o.extent[0] = 7;
    o.extent[1] = o.stride[0] = 29;
    o.stride[1] = 1;
    memset(&m, 0, sizeof m);
    m.type = DPAR_F32;
    m.dims = 2;
    m.x.step = m.dy.step = m.to.step = WIDTH;
    m.extent[0] = 7;
    m.extent[1] = m.x.stride[0] = m.dy.stride[0] = m.to.stride[0] = 29;
    m.x.stride[1] = m.dy.stride[1] = m.to.stride[1] = 1;
    m.saved = saved;
    o.x = x;
    o.planes = o.channels = ROWS;
    o.to = moments[0];
    CHECK_INT(host.moments(NULL, &o), DPAR_OK);
    o.planes = o.channels = 1;
    for (int i = 0; i < ROWS; i++) {
        o.x = x + i * WIDTH;
        o.to = moments[1] + 3 * i;
        CHECK_INT(host.moments(NULL, &o), DPAR_OK);
        saved[2 * i] = o.to[1];
        saved[2 * i + 1] = 1.0 / sqrt(o.to[2] / WIDTH);
    }
    CHECK(memcmp(moments[0], moments[1], sizeof moments[0]) == 0);
    for (int32_t phase = DPAR_MEM_NORM_APPLY; phase <= DPAR_MEM_NORM_GRADIENT; phase++) {
        m.sums = sums[0];
        m.total = total[0];
        norm_phase(m, phase, ROWS, 0);
        m.sums = sums[1];
        m.total = total[1];
        for (int i = 0; i < ROWS; i++) {
            norm_phase(m, phase, 1, i);
        }
        CHECK(memcmp(one[0], one[1], sizeof one[0]) == 0);
    }
    CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
    CHECK(memcmp(total[0], total[1], sizeof total[0]) == 0);
}

static void cross_entropy(int32_t type)
{
    static double lse[ROWS], own[2][3 * ROWS];
    static int32_t target[ROWS];
    const int64_t bytes = dpar_type_bytes(type);
    unsigned char *logits[2] = {(unsigned char *)wide[0], (unsigned char *)wide[1]};
    dpar_mem_cross_entropy e;
    for (int i = 0; i < ALL; i++) {
        for (int k = 0; k < 2; k++) {
            type == DPAR_F64 ? (wide[k][i] = (double)x[i])
                             : (double)(((float *)(void *)wide[k])[i] = x[i]);
        }
    }
    for (int i = 0; i < ROWS; i++) {
        lse[i] = 3.0 + i % 5;
        target[i] = i % WIDTH;
    }
    memset(&e, 0, sizeof e);
    e.type = type;
    e.rows = e.vocabulary = WIDTH;
    e.hi[0] = e.lo[1] = e.hi[1] = WIDTH;
    e.target.type = DPAR_I32;
    e.smoothing = 0.1;
    e.scale = 0.7;
    for (e.phase = DPAR_MEM_CROSS_ENTROPY_PART; e.phase <= DPAR_MEM_CROSS_ENTROPY_GRADIENT;
         e.phase += DPAR_MEM_CROSS_ENTROPY_GRADIENT - DPAR_MEM_CROSS_ENTROPY_PART) {
        e.tokens = ROWS;
        e.logits = logits[0];
        e.partial = own[0];
        e.lse = lse;
        e.target.at = target;
        CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
        e.tokens = 1;
        for (int i = 0; i < ROWS; i++) {
            e.logits = logits[1] + i * WIDTH * bytes;
            e.partial = (unsigned char *)own[1] + 3 * i * bytes;
            e.lse = lse + i;
            e.target.at = target + i;
            CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
        }
    }
    CHECK(memcmp(own[0], own[1], (size_t)(3 * ROWS * bytes)) == 0);
    CHECK(memcmp(wide[0], wide[1], (size_t)(ALL * bytes)) == 0);
}

static void merges(void)
{
    static float lse[2][ROWS], more[ROWS];
    dpar_mem_attention_merge m;
    for (int i = 0; i < ROWS; i++) {
        lse[0][i] = lse[1][i] = i % 50 == 3 ? -2e30f : x[i];
        more[i] = i % 31 == 3 ? -2e30f : i % 71 == 5 ? (float)NAN : 3.0f * y[i];
    }
    memcpy(one[0], x, sizeof x);
    memcpy(one[1], x, sizeof x);
    memset(&m, 0, sizeof m);
    m.type = DPAR_F32;
    m.values = WIDTH;
    m.rows = ROWS;
    m.out = one[0];
    m.lse = lse[0];
    m.more = y;
    m.more_lse = more;
    CHECK_INT(host.attention_merge(NULL, &m), DPAR_OK);
    m.rows = 1;
    for (int i = 0; i < ROWS; i++) {
        m.out = one[1] + i * WIDTH;
        m.lse = lse[1] + i;
        m.more = y + i * WIDTH;
        m.more_lse = more + i;
        CHECK_INT(host.attention_merge(NULL, &m), DPAR_OK);
    }
    CHECK(memcmp(one[0], one[1], sizeof one[0]) == 0);
    CHECK(memcmp(lse[0], lse[1], sizeof lse[0]) == 0);
}

/* Quantizes blocks of WIDTH: one holds a NaN, one is all zeros, one has tiny values. */
static void quantizes(int32_t code_type)
{
    static float scale[2][ROWS];
    dpar_mem_quantize q;
    x[5 * WIDTH + 9] = (float)NAN;
    memset(x + 7 * WIDTH, 0, WIDTH * sizeof(float));
    for (int i = 9 * WIDTH; i < 10 * WIDTH; i++) {
        x[i] *= 1e-36f;
    }
    memset(&q, 0, sizeof q);
    q.type = DPAR_F32;
    q.code_type = code_type;
    q.block = q.code_step = WIDTH;
    q.scale_step = 4;
    for (int what = 0; what < 4; what++) { /* codes, values, values added, any codes */
        for (int i = 0; i < ALL && what == 3; i++) {
            codes[0][i] = codes[1][i] = (unsigned char)random_bits();
            scale[0][i % ROWS] = scale[1][i % ROWS] = i % 7 == 3 ? (float)INFINITY : 0.37f;
        }
        q.count = ALL;
        q.x = what == 0 ? x : one[0];
        q.code = codes[0];
        q.scale = scale[0];
        q.accumulate = what == 2;
        CHECK_INT((what == 0 ? host.quantize : host.dequantize)(NULL, &q), DPAR_OK);
        q.count = WIDTH;
        for (int i = 0; i < ROWS; i++) {
            q.x = (what == 0 ? x : one[1]) + i * WIDTH;
            q.code = codes[1] + i * WIDTH;
            q.scale = scale[1] + i;
            CHECK_INT((what == 0 ? host.quantize : host.dequantize)(NULL, &q), DPAR_OK);
        }
        CHECK(memcmp(codes[0], codes[1], sizeof codes[0]) == 0);
        CHECK(memcmp(scale[0], scale[1], sizeof scale[0]) == 0);
        CHECK(what == 0 || memcmp(one[0], one[1], sizeof one[0]) == 0);
    }
    fill(x, 1.0);
}

/* Compares attention of queries with two heads per group, in a band, done at once and row by
 * row. */
static void attention(int32_t type, int64_t low)
{
    enum { TOKENS = 150, HEADS = 4, W = 67, V = 41 };
    static double q[TOKENS * HEADS * W], out[2][TOKENS * HEADS * V], lse[2][TOKENS * HEADS];
    static double g[2][TOKENS * (HEADS * W + 2 * W + 2 * V)];
    const int64_t bytes = dpar_type_bytes(type);
    dpar_attention_desc layer;
    memset(&layer, 0, sizeof layer);
    layer.heads = HEADS;
    layer.groups = 2;
    layer.width = W;
    layer.value_width = V;
    layer.type = type;
    for (int i = 0; i < TOKENS * HEADS * W; i++) {
        type == DPAR_F64 ? (q[i] = (double)x[i]) : (double)(((float *)(void *)q)[i] = x[i]);
    }
    memset(g, 0, sizeof g);
    for (int k = 0; k < 2; k++) {
        const int64_t each = k == 0 ? TOKENS : 1;
        for (int back = 0; back < 2; back++) {
            for (int64_t i = 0; i < TOKENS; i += each) {
                dpar_attention_call c;
                memset(&c, 0, sizeof c);
                c.layer = &layer;
                c.queries = each;
                c.keys = TOKENS;
                c.low = low + i;
                c.high = i;
                c.q = (char *)q + i * HEADS * W * bytes;
                c.k = q;
                c.v = (char *)q + TOKENS * 2 * W * bytes;
                c.out = (char *)out[k] + i * HEADS * V * bytes;
                c.lse = (char *)lse[k] + i * HEADS * bytes;
                if (back) {
                    c.out_gradient = (char *)q + i * HEADS * V * bytes;
                    c.delta = (char *)q + i * HEADS * bytes;
                    c.q_gradient = (char *)g[k] + i * HEADS * W * bytes;
                    c.k_gradient = (char *)g[k] + TOKENS * HEADS * W * bytes;
                    c.v_gradient = (char *)c.k_gradient + TOKENS * 2 * W * bytes;
                }
                dpar_attention_host(&c);
            }
        }
    }
    CHECK(memcmp(out[0], out[1], (size_t)(TOKENS * HEADS * V * bytes)) == 0);
    CHECK(memcmp(lse[0], lse[1], (size_t)(TOKENS * HEADS * bytes)) == 0);
    CHECK(memcmp(g[0], g[1], (size_t)(TOKENS * (HEADS * W + 2 * W + 2 * V) * bytes)) == 0);
}

/* Compares e^x as computed with the CPU's wide vectors and with its usual ones to libm. The value
 * is read from the lse of one logit, in f64. */
static void powers(void)
{
    static const double at[] = {0.0, -1e-12, -0.3, -0.6931, -1.0, -20.5, -300.0, -707.9, -745.2};
    for (int wide_one = 0; wide_one < 2; wide_one++) {
        static double logits[400], lse[200];
        static int64_t target[200];
        static double many[200 * 200];
        dpar_mem_cross_entropy e;
        for (int i = 0; i < 9; i++) {
            double *to = wide_one ? many : logits;
            memset(&e, 0, sizeof e);
            memset(many, 0, sizeof many);
            /* all -1, which is no target; then one valid target */
            memset(target, 0xff, sizeof target);
            target[0] = 0;
            e.phase = DPAR_MEM_CROSS_ENTROPY_GRADIENT;
            e.type = DPAR_F64;
            e.tokens = wide_one ? 200 : 1;
            e.rows = e.vocabulary = 200;
            e.hi[0] = e.lo[1] = e.hi[1] = 200;
            e.target.at = target;
            e.target.type = DPAR_I64;
            e.scale = 1.0;
            e.logits = to;
            e.lse = lse;
            for (int k = 0; k < 200; k++) {
                to[k] = at[i];
            }
            CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
            for (int k = 1; k < 200; k++) {
                const double want = at[i] < -708.0 ? 0.0 : exp(at[i]);
                CHECK(fabs(to[k] - want) <= 1e-15 * want);
            }
        }
    }
}

/* Compares a step on all elements with steps on parts too small for wider vectors. */
static void optimizes(int32_t kind, int32_t nesterov)
{
    static float m[2][ALL], v[2][ALL];
    dpar_optimizer o;
    dpar_optimizer_piece p;
    memset(&p, 0, sizeof p);
    dpar_optimizer_init(&o, kind);
    o.decay = 0.01;
    o.momentum = kind == DPAR_OPTIMIZER_SGD ? 0.9 : o.momentum;
    o.nesterov = nesterov;
    for (int way = 0; way < 2; way++) {
        const int64_t part = way == 0 ? ALL : 1000;
        memcpy(one[way], x, sizeof x);
        memset(m[way], 0, sizeof m[way]);
        memset(v[way], 0, sizeof v[way]);
        p.weight_type = p.gradient_type = DPAR_F32;
        for (int t = 1; t <= 3; t++) {
            for (int64_t at = 0; at < ALL; at += part) {
                p.count = ALL - at < part ? ALL - at : part;
                p.weight = one[way] + at;
                p.gradient = y + at;
                p.m = m[way] + at;
                p.v = v[way] + at;
                CHECK_INT(dpar_optimizer_step(&o, &p, t, 0.01, 0.3), DPAR_OK);
            }
        }
    }
    CHECK(memcmp(one[0], one[1], sizeof one[0]) == 0);
    CHECK(memcmp(m[0], m[1], sizeof m[0]) == 0);
    CHECK(memcmp(v[0], v[1], sizeof v[0]) == 0);
}

int main(void)
{
    host = dpar_mem_host_layers();
    fill(x, 1.0);
    fill(y, 4.0);
    squares_and_dots();
    norms();
    cross_entropy(DPAR_F32);
    cross_entropy(DPAR_F64);
    merges();
    quantizes(DPAR_I8);
    quantizes(DPAR_F8);
    attention(DPAR_F32, -150);
    attention(DPAR_F32, -20);
    attention(DPAR_F64, -150);
    powers();
    optimizes(DPAR_OPTIMIZER_ADAMW, 0);
    optimizes(DPAR_OPTIMIZER_SGD, 0);
    optimizes(DPAR_OPTIMIZER_SGD, 1);
    return CHECK_DONE();
}
