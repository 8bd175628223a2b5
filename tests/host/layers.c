/* SPDX-License-Identifier: MIT-0 */
/* layers: tests the reference implementation, in host memory, of each operation in the table of
 * layers, which devices are compared with. Expected values come from one loop over the elements in
 * scalar double or float, as documented in layers.h, with exponentials and roots of libm. Codes of
 * 8 bits are found by a search for the nearest one. Tested sizes are 0, odd ones, and those just
 * below and above a block. Bytes after an output must not change. */
#include "dpar_train.h"

#include "elements.h"
#include "optimizers.h"

static dpar_mem_layers host;

/* ---- norms of gradients */

static void norms(void)
{
    double a[MOST], sum;
    long double want;
    dpar_mem_squares s;
    dpar_mem_clip c;
    int64_t i, n;
    double factor;
    int k, t;
    for (k = 0; k < 4 * COUNTS; k++) {
        n = counts[k / 4];
        t = floats[k % 4];
        fill(a, n + 1, t);
        write_at(a, n, t, 1e300); /* the element after the array is infinite or large */
        memset(&s, 0, sizeof s);
        s.in = a;
        s.count = n;
        s.type = t;
        s.sum = &sum;
        sum = 1e9;
        CHECK_INT(host.squares(NULL, &s), DPAR_OK);
        for (i = 0, want = 0; i < n; i++) {
            want += (long double)read_at(a, i, t) * (long double)read_at(a, i, t);
        }
        CHECK_NEAR(sum, (double)want, 1e-14);
        s.accumulate = 1;
        CHECK_INT(host.squares(NULL, &s), DPAR_OK);
        CHECK_NEAR(sum, 2.0 * (double)want, 1e-14);
    }
    memset(&c, 0, sizeof c); /* a norm of 5, clipped to 2 */
    c.squares = &sum;
    c.factor = &factor;
    c.limit = 2.0;
    c.scale = 0.5;
    sum = 25.0;
    CHECK_INT(host.clip(NULL, &c), DPAR_OK);
    CHECK_NEAR(factor, 0.5 * 2.0 / (5.0 + 1e-6), 1e-15);
    sum = (double)NAN;
    CHECK_INT(host.clip(NULL, &c), DPAR_OK);
    CHECK(factor <= 0.0 && factor >= 0.0);
}

/* ---- stochastic rounding, also into two halves */

static void rounds(void)
{
    double a[MOST], b[MOST];
    uint16_t up[MOST], want[MOST];
    dpar_mem_round r;
    int64_t i;
    int k;
    for (k = 0; k < 4 * COUNTS; k++) {
        const int32_t t = floats[k % 4];
        const int64_t n = counts[k / 4];
        fill(a, n, t);
        memset(up, 0x5a, sizeof up);
        memset(want, 0x5a, sizeof want);
        memset(&r, 0, sizeof r);
        r.to = up;
        r.from = a;
        r.count = n;
        r.from_type = t;
        r.seed = 5;
        r.stream = 6;
        r.index = 7;
        CHECK_INT(host.round(NULL, &r), DPAR_OK);
        for (i = 0; i < n; i++) {
            ((float *)(void *)b)[i] = (float)read_at(a, i, t);
        }
        dpari_random_round(want, b, n, 5, 6, 7, 16);
        CHECK(memcmp(up, want, sizeof up) == 0);
    }
}

/* ---- optimizers: optimizer.c tests the formula of the step, this tests the operation around it */

static void optimize_case(const dpar_optimizer *o, int what)
{
    enum { N = 301 };
    float w[N], x[N], g[N];
    float m[2][N], v[2][N]; /* BF16 moments use half of these arrays */
    uint16_t high[N], copy[N], want[N];
    int16_t rest[N];
    double at = what % 3 == 0 ? 0.25 : what % 3 == 1 ? 0.0 : 1.0;
    dpar_optimizer_piece p, q;
    dpar_mem_optimize e;
    int i, t;
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (i = 0; i < N; i++) {
        uint32_t bits;
        w[i] = x[i] = (float)number();
        g[i] = what % 3 == 1 && i == 3 ? (float)NAN : (float)number();
        memcpy(&bits, &w[i], 4);
        high[i] = (uint16_t)((bits >> 16) + (bits >> 15 & 1));
        rest[i] = (int16_t)(uint16_t)bits;
    }
    memset(&p, 0, sizeof p);
    p.weight = w;
    p.gradient = g;
    p.m = m[0];
    p.v = v[0];
    p.weight_type = p.gradient_type = DPAR_F32;
    p.count = N;
    p.index = 17;
    q = p;
    q.weight = x;
    q.m = m[1];
    q.v = v[1];
    memset(&e, 0, sizeof e);
    e.optimizer = o;
    e.piece = &q;
    e.rate = 0.01;
    e.factor = 2.0;
    e.factor_at = &at;
    if (what < 3) {
        e.copy = copy;
        e.copy_type = DPAR_BF16;
    } else {
        q.weight = high;
        q.weight_type = DPAR_BF16;
        e.remainder = rest;
    }
    for (t = 1; t < 4; t++) {
        e.step = t;
        CHECK_INT(dpar_optimizer_step(o, &p, t, 0.01, 2.0 * at), DPAR_OK);
        CHECK_INT(host.optimize(NULL, &e), DPAR_OK);
        CHECK(memcmp(m[0], m[1], sizeof m[0]) == 0 && memcmp(v[0], v[1], sizeof v[0]) == 0);
        if (what < 3) {
            CHECK(memcmp(w, x, sizeof w) == 0);
            for (i = 0; i < N; i++) {
                write_at(want, i, DPAR_BF16, (double)w[i]);
            }
            if (o->stochastic) {
                dpari_random_round(want, w, N, o->seed, (uint64_t)t, 17, 16);
            }
            CHECK(memcmp(copy, want, sizeof copy) == 0);
        }
        /* the two halves make up the float; the first is its nearest bf16 */
        for (i = 0; i < N && what >= 3; i++) {
            uint32_t bits;
            double half = read_at(high, i, DPAR_BF16);
            memcpy(&bits, &w[i], 4);
            CHECK((uint32_t)(high[i] * 65536u + (uint32_t)(int32_t)rest[i]) == bits);
            CHECK(fabs(half - (double)w[i]) <= fabs((double)w[i]) / 256.0);
        }
    }
}

static void optimizes(void)
{
    dpar_optimizer o[5];
    dpar_mem_optimize e;
    int i, k;
    o[0] = adamw();
    o[1] = sgd(0.9);
    o[2] = adamw();
    o[2].stochastic = 1;
    o[2].seed = 99;
    o[3] = o[0];
    o[4] = o[2];
    o[3].moment_type = o[4].moment_type = DPAR_BF16;
    for (i = 0; i < 5; i++) {
        for (k = 0; k < (o[i].stochastic ? 3 : 6); k++) { /* two halves have no random rounding */
            optimize_case(&o[i], k);
        }
    }
    memset(&e, 0, sizeof e);
    CHECK_INT(host.optimize(NULL, &e), DPAR_E_ARG);
}

/* ---- rows */

static void rows_case(int wide, int windows)
{
    enum { N = 50, ROWS = 20, WIDTH = 7 };
    int32_t narrow[N];
    int64_t index[N], row[N];
    float from[ROWS * WIDTH], to[N * WIDTH], back[ROWS * WIDTH], want[ROWS * WIDTH];
    float weight[N];
    dpar_mem_index x;
    dpar_mem_gather g;
    dpar_mem_scatter s;
    dpar_mem_combine c;
    dpar_mem_dot d;
    int64_t i, j;
    int wrong = 0;
    memset(&x, 0, sizeof x);
    x.at = wide ? (const void *)index : (const void *)narrow;
    x.type = wide ? DPAR_I64 : DPAR_I32;
    x.windows = windows;
    x.lo[0] = 10; /* tokens 10 to 14 are rows 3 and on; tokens 30 and 31 are rows 12 and on */
    x.hi[0] = 15;
    x.row[0] = 3;
    x.lo[1] = 30;
    x.hi[1] = 32;
    x.row[1] = 12;
    for (i = 0; i < N; i++) {
        const int64_t k = (int64_t)(random_bits() % 34);
        index[i] = windows ? k : k % ROWS - (k > 30);
        narrow[i] = (int32_t)index[i];
        weight[i] = (float)number();
        row[i] = !windows                           ? index[i]
                 : k >= 10 && k < 15                ? k - 7
                 : windows > 1 && k >= 30 && k < 32 ? k - 18
                                                    : -1;
    }
    fill(from, ROWS * WIDTH, DPAR_F32);
    memset(&g, 0, sizeof g);
    g.to = to;
    g.from = from;
    g.rows = N;
    g.bytes = WIDTH * 4;
    g.to_step = g.from_step = WIDTH * 4;
    g.index = x;
    CHECK_INT(host.gather(NULL, &g), DPAR_OK);
    for (i = 0; i < N * WIDTH; i++) {
        const int64_t r = row[i / WIDTH];
        wrong += !same((double)to[i], r < 0 ? 0.0 : (double)from[r * WIDTH + i % WIDTH]);
    }
    fill(back, ROWS * WIDTH, DPAR_F32);
    memcpy(want, back, sizeof want);
    memset(&s, 0, sizeof s);
    s.to = back;
    s.from = to;
    s.rows = N;
    s.width = WIDTH;
    s.type = DPAR_F32;
    s.index = x;
    CHECK_INT(host.scatter(NULL, &s), DPAR_OK);
    for (i = 0; i < N; i++) {
        for (j = 0; j < WIDTH && row[i] >= 0; j++) {
            want[row[i] * WIDTH + j] += to[i * WIDTH + j];
        }
    }
    wrong += memcmp(want, back, sizeof want) != 0;
    memset(&c, 0, sizeof c);
    c.to = to;
    c.from = from;
    c.weight = windows == 1 ? NULL : weight;
    c.rows = N / 5;
    c.choices = 5;
    c.width = WIDTH;
    c.to_type = c.from_type = c.weight_type = DPAR_F32;
    c.index = x;
    CHECK_INT(host.combine(NULL, &c), DPAR_OK);
    for (i = 0; i < N / 5 * WIDTH; i++) {
        double sum = 0.0;
        for (j = i / WIDTH * 5; j < i / WIDTH * 5 + 5; j++) {
            const double by = windows == 1 ? 1.0 : (double)weight[j];
            sum += row[j] < 0 ? 0.0 : by * (double)from[row[j] * WIDTH + i % WIDTH];
        }
        wrong += !same((double)to[i], (double)(float)sum);
    }
    memset(&d, 0, sizeof d);
    d.to = weight;
    d.a = to;
    d.b = from;
    d.rows = windows == 2 ? ROWS : N;
    d.choices = 5;
    d.width = WIDTH;
    d.to_type = d.type = DPAR_F32;
    d.index = x;
    d.index.at = windows == 2 ? NULL : x.at; /* NULL selects the array itself */
    CHECK_INT(host.dot(NULL, &d), DPAR_OK);
    for (i = 0; i < d.rows; i++) {
        const int64_t r = windows == 2 ? i : row[i];
        double sum = 0.0;
        for (j = 0; j < WIDTH && r >= 0; j++) {
            sum += (double)to[i / 5 * WIDTH + j] * (double)from[r * WIDTH + j];
        }
        wrong += !same((double)weight[i], (double)(float)sum);
    }
    CHECK_INT(wrong, 0);
}

/* ---- cross-entropy: two ranks of 2 x (5 + 1 padding) + added columns, computed in turn */

static void cross_entropy_case(int32_t type, double smoothing, double z, int64_t ignore)
{
    enum {
        N = 5,
        EACH = 8,
        V = 14
    }; /* rank r has tokens 6 r to 6 r + 5, then 12 + r; one of them is padding */
    double x[N][V], logits[2][N * EACH], all[2 * N * 3], lse[N], loss[N], total = 0.0;
    const double tolerance = type == DPAR_F64 ? 1e-12 : 2e-5;
    int32_t targets[N] = {3, 13, -100, 6, 11};
    dpar_cross_entropy_sum sum;
    dpar_mem_cross_entropy e;
    int r, i, j, counted = 0, wrong = 0;
    for (i = 0; i < N * V; i++) {
        x[i / V][i % V] = rounded(8.0 * number(), DPAR_F32);
    }
    memset(&e, 0, sizeof e);
    e.type = type;
    e.tokens = N;
    e.rows = EACH;
    e.hi[0] = 6;
    e.lo[1] = 6;
    e.hi[1] = 7;
    e.vocabulary = V;
    e.target.at = targets;
    e.target.type = DPAR_I32;
    e.target.windows = 2;
    e.ignore = ignore;
    e.smoothing = smoothing;
    e.z_loss = z;
    e.ranks = 2;
    for (r = 0; r < 2; r++) {
        for (i = 0; i < N * EACH; i++) {
            const int c = i % EACH, id = c < 6 ? 6 * r + c : 12 + r;
            if (c < 7) {
                write_at(logits[r], i, type, x[i / EACH][id]);
            } else if (type == DPAR_F64) {
                logits[r][i] = (double)NAN;
            } else {
                ((float *)(void *)logits[r])[i] = (float)NAN;
            }
        }
        e.phase = DPAR_MEM_CROSS_ENTROPY_PART;
        e.logits = logits[r];
        e.partial = (char *)all + r * N * 3 * dpar_type_bytes(type);
        e.target.lo[0] = 6 * r;
        e.target.hi[0] = 6 * r + 6;
        e.target.lo[1] = 12 + r;
        e.target.hi[1] = 13 + r;
        e.target.row[1] = 6;
        CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
    }
    e.phase = DPAR_MEM_CROSS_ENTROPY_LOSS;
    e.all = all;
    e.lse = lse;
    e.loss = loss;
    e.sum = &sum;
    CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
    for (r = 0; r < 2; r++) {
        e.phase = DPAR_MEM_CROSS_ENTROPY_GRADIENT;
        e.logits = logits[r];
        e.scale = 0.5;
        e.target.lo[0] = 6 * r;
        e.target.hi[0] = 6 * r + 6;
        e.target.lo[1] = 12 + r;
        e.target.hi[1] = 13 + r;
        CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
    }
    for (i = 0; i < N; i++) {
        const int t = targets[i], in = t >= 0 && t != ignore - 1;
        double s = 0.0, mean = 0.0, l, want;
        for (j = 0; j < V; j++) {
            s += exp(x[i][j]);
            mean += x[i][j] / V;
        }
        l = log(s);
        want = in ? l - (1.0 - smoothing) * x[i][t] - smoothing * mean + z * l * l : 0.0;
        total += want;
        counted += in;
        wrong += !(fabs(lse[i] - l) < tolerance) || !(fabs(loss[i] - want) < tolerance);
        for (j = 0; j < 2 * EACH; j++) {
            const int c = j % EACH, id = c < 6 ? 6 * (j / EACH) + c : 12 + j / EACH;
            const double g = 0.5 * ((1.0 + 2.0 * z * l) * exp(x[i][id % V] - l) - smoothing / V -
                                    (id == t ? 1.0 - smoothing : 0.0));
            const double got = read_at(logits[j / EACH], i * EACH + c, type);
            wrong += !(fabs(got - (in && c < 7 ? g : 0.0)) < tolerance);
        }
    }
    CHECK_INT(wrong, 0);
    CHECK_INT(sum.tokens, counted);
    CHECK(fabs(sum.loss + sum.z_loss - total) < 10 * tolerance);
}

/* ---- merge and moments */

static void merges(void)
{
    enum { ROWS = 9, VALUES = 5 };
    double out[ROWS * VALUES], more[ROWS * VALUES], lse[ROWS], other[ROWS], was[ROWS * VALUES];
    dpar_mem_attention_merge m;
    int i, wrong = 0;
    fill(out, ROWS * VALUES, DPAR_F64);
    fill(more, ROWS * VALUES, DPAR_F64);
    memcpy(was, out, sizeof was);
    for (i = 0; i < ROWS; i++) {
        lse[i] = i == 4 ? -1e30 : 5.0 * number();
        other[i] = i == 7 ? -1e30 : 5.0 * number();
    }
    memset(&m, 0, sizeof m);
    m.type = DPAR_F64;
    m.rows = ROWS;
    m.values = VALUES;
    m.out = out;
    m.lse = lse;
    m.more = more;
    m.more_lse = other;
    {
        double before[ROWS];
        memcpy(before, lse, sizeof before);
        CHECK_INT(host.attention_merge(NULL, &m), DPAR_OK);
        for (i = 0; i < ROWS * VALUES; i++) {
            const double a = i / VALUES == 4 ? 0.0 : exp(before[i / VALUES]);
            const double b = i / VALUES == 7 ? 0.0 : exp(other[i / VALUES]);
            wrong += !(fabs(out[i] - (a * was[i] + b * more[i]) / (a + b)) < 1e-13);
            wrong += !(fabs(lse[i / VALUES] - log(a + b)) < 1e-13);
        }
    }
    CHECK_INT(wrong, 0);
}

/* ---- 8 bits */

static double code_value(int code, int32_t type)
{
    const int e = code >> 3 & 15, m = code & 7;
    const double sign = code & 128 ? -1.0 : 1.0;
    if (type == DPAR_I8) {
        return code < 128 ? code : code - 256;
    }
    return sign * (e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10));
}

/* Returns the code nearest to x; of two equally near codes the even one. 0 has no sign. */
static int nearest_code(double x, int32_t type)
{
    int code, best = 0;
    for (code = 0; code < 256; code++) {
        const double d = fabs(code_value(code, type) - x), b = fabs(code_value(best, type) - x);
        if ((type == DPAR_I8 && code == 128) || (type == DPAR_F8 && (code & 127) == 127) ||
            code_value(code, type) * x < 0 || (code == 128 && type == DPAR_F8)) {
            continue;
        }
        if (d < b || (d <= b && code % 2 == 0 && best % 2 != 0)) {
            best = code;
        }
    }
    return best;
}

static void quantize_case(int32_t type, int32_t code_type, int64_t n, int64_t block, int beside)
{
    static double x[MOST], y[MOST], was[MOST];
    unsigned char room[8 * MOST];
    const int64_t each = beside ? (block + 7) / 4 * 4 : block, blocks = (n + block - 1) / block;
    dpar_mem_quantize q;
    int64_t i;
    int wrong = 0;
    fill(x, n, type);
    /* values of all magnitudes; one block is all zeros, one has an infinity */
    for (i = 0; i < n; i++) {
        const double v = i / block == 2 ? 0.0 : read_at(x, i, type) * (i % 7 == 0 ? 1e-3 : 1.0);
        write_at(x, i, type, v);
    }
    if (n > block && type != DPAR_F16 && type != DPAR_BF16) {
        if (type == DPAR_F64) {
            x[block] = (double)INFINITY;
        } else {
            ((float *)(void *)x)[block] = (float)NAN;
        }
    }
    memset(&q, 0, sizeof q);
    memset(room, 0xee, sizeof room);
    q.x = x;
    q.count = n;
    q.block = block;
    q.type = type;
    q.code_type = code_type;
    q.scale = beside ? room : room + (blocks * block + 3) / 4 * 4;
    q.code = beside ? room + 4 : room;
    q.code_step = each;
    q.scale_step = beside ? each : 4;
    CHECK_INT(host.quantize(NULL, &q), DPAR_OK);
    fill(y, n + GUARD, type);
    memcpy(was, y, sizeof was);
    q.x = y;
    CHECK_INT(host.dequantize(NULL, &q), DPAR_OK);
    q.x = x;
    q.accumulate = 1;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
    for (i = 0; i < n; i++) {
        const int64_t b = i / block, hi = (b + 1) * block < n ? (b + 1) * block : n;
        const unsigned char *code = (const unsigned char *)q.code + b * q.code_step + i % block;
        double most = 0.0, v;
        float scale, got;
        int64_t k, bad = 0;
        for (k = b * block; k < hi; k++) {
            v = (double)(float)read_at(x, k, type);
            bad += v - v != 0.0;
            most = fabs(v) > most ? fabs(v) : most;
        }
        memcpy(&got, (const unsigned char *)q.scale + b * q.scale_step, 4);
        scale = (float)most / (code_type == DPAR_I8 ? 127.0f : 448.0f);
        if (bad > 0) {
            wrong += got == got || *code != 0 || !(read_at(y, i, type) != read_at(y, i, type));
            continue;
        }
        wrong += !same((double)got, (double)scale);
        v = scale > 0.0f ? (double)((float)read_at(x, i, type) / scale) : 0.0;
        wrong += *code != (scale > 0.0f ? nearest_code(v, code_type) : 0);
        v = (double)((float)code_value(*code, code_type) * scale);
        wrong += !same(read_at(y, i, type), rounded(v, type));
    }
    for (i = 0; i < GUARD; i++) {
        wrong += !same(read_at(y, n + i, type), read_at(was, n + i, type));
    }
    CHECK_INT(wrong, 0);
}

/* Checks dequantization that adds to the output. */
static void dequantize_adds(void)
{
    float x[4] = {1.0f, 2.0f, -3.0f, 4.0f}, scale = 0.5f;
    signed char code[4] = {1, -2, 3, 127};
    dpar_mem_quantize q;
    memset(&q, 0, sizeof q);
    q.x = x;
    q.count = q.block = q.code_step = 4;
    q.type = DPAR_F32;
    q.code_type = DPAR_I8;
    q.code = code;
    q.scale = &scale;
    q.scale_step = 4;
    q.accumulate = 1;
    CHECK_INT(host.dequantize(NULL, &q), DPAR_OK);
    CHECK_NEAR((double)x[0], 1.5, 0.0);
    CHECK_NEAR((double)x[1], 1.0, 0.0);
    CHECK_NEAR((double)x[2], -1.5, 0.0);
    CHECK_NEAR((double)x[3], 67.5, 0.0);
}

/* ---- what is refused */

static void refused(void)
{
    double a[8] = {0};
    dpar_mem_round r;
    dpar_mem_gather g;
    dpar_mem_cross_entropy e;
    dpar_mem_moments m;
    dpar_mem_quantize q;
#define REFUSED(call, change)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        CHECK_INT(call, DPAR_E_ARG);                                                               \
    } while (0)
    memset(&r, 0, sizeof r);
    r.to = a;
    r.from = a;
    r.count = 1;
    REFUSED(host.round(NULL, &r), (void)0); /* the type is 0 */
    r.from_type = DPAR_F64;
    CHECK_INT(host.round(NULL, &r), DPAR_OK);
    REFUSED(host.round(NULL, &r), r.from_type = DPAR_I32);
    REFUSED(host.round(NULL, &r), (r.from_type = DPAR_F32, r.count = -1));
    REFUSED(host.round(NULL, &r), (r.count = 1, r.from = NULL));
    memset(&g, 0, sizeof g);
    REFUSED(host.gather(NULL, &g), (void)0);
    g.index.type = DPAR_I64;
    CHECK_INT(host.gather(NULL, &g), DPAR_OK);
    REFUSED(host.gather(NULL, &g), g.rows = 1);
    REFUSED(host.gather(NULL, &g), (g.rows = 0, g.index.type = DPAR_U8));
    REFUSED(host.gather(NULL, &g), (g.index.type = DPAR_I32, g.bytes = 8));
    memset(&e, 0, sizeof e);
    e.target.type = DPAR_I32;
    REFUSED(host.cross_entropy(NULL, &e), (void)0);
    e.type = DPAR_F64;
    CHECK_INT(host.cross_entropy(NULL, &e), DPAR_OK);
    REFUSED(host.cross_entropy(NULL, &e), e.phase = 3);
    REFUSED(host.cross_entropy(NULL, &e), (e.phase = 0, e.hi[1] = 1));
    REFUSED(host.cross_entropy(NULL, &e), (e.hi[1] = 0, e.type = DPAR_BF16));
    memset(&m, 0, sizeof m);
    m.channels = 1;
    m.to = a;
    REFUSED(host.moments(NULL, &m), (void)0);
    m.type = DPAR_F64;
    CHECK_INT(host.moments(NULL, &m), DPAR_OK);
    REFUSED(host.moments(NULL, &m), m.groups = 2);
    REFUSED(host.moments(NULL, &m), (m.groups = 0, m.dims = 9));
    memset(&q, 0, sizeof q);
    q.code_type = DPAR_F8;
    q.block = q.code_step = 1;
    q.scale_step = 4;
    REFUSED(host.quantize(NULL, &q), (void)0);
    REFUSED(host.dequantize(NULL, &q), (void)0);
    REFUSED(host.quantize(NULL, &q), (q.type = DPAR_F64, q.code_type = DPAR_TYPE_NONE));
    q.code_type = DPAR_F8;
    CHECK_INT(host.quantize(NULL, &q), DPAR_OK);
    REFUSED(host.quantize(NULL, &q), q.block = 2);
    REFUSED(host.dequantize(NULL, &q), (q.block = 1, q.scale_step = 2));
    REFUSED(host.dequantize(NULL, &q), (q.scale_step = 4, q.code_type = DPAR_U8));
}

int main(void)
{
    int i;
    host = dpar_mem_host_layers();
    norms();
    rounds();
    optimizes();
    for (i = 0; i < 6; i++) {
        rows_case(i % 2, i / 2);
    }
    for (i = 0; i < 16; i++) {
        cross_entropy_case(i % 2 ? DPAR_F32 : DPAR_F64, i / 2 % 2 ? 0.1 : 0.0,
                           i / 4 % 2 ? 0.01 : 0.0, i / 8 ? 4 : 0);
    }
    merges();
    for (i = 0; i < 4 * 2 * 2 * COUNTS; i++) {
        quantize_case(floats[i % 4], i / 4 % 2 ? DPAR_I8 : DPAR_F8, counts[i / 16],
                      i % 3 == 0   ? 32
                      : i % 3 == 1 ? 129
                                   : 1,
                      i / 8 % 2);
    }
    dequantize_adds();
    refused();
    return CHECK_DONE();
}
