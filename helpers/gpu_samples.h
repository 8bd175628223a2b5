/* SPDX-License-Identifier: MIT-0 */
/* gpu_samples - checks operations on device arrays that are too large to repeat on the host, by
 * samples. Some stretches (the beginning, the end, and those around powers of two) are copied
 * before the operation runs. The host's table (dpar_mem_host) does the same to them, and afterwards
 * both are compared.
 *
 *   samples x;
 *   for (stretch p : stretches(n, 1)) {
 *       span.from = x.in(from, p, DPAR_F32);
 *       span.to = x.out(to, p, DPAR_F32, -1.0);
 *       span.count = p.count;
 *       host.span(host.ctx, &span, 1);
 *   }
 *   device.span(device.ctx, &the_whole_span, 1);
 *   CHECK(x.same());
 *
 * The work is on the default stream. C++; include dpar_train.h and dpar_cuda.h first. */
#ifndef DPAR_HELPERS_GPU_SAMPLES_H
#define DPAR_HELPERS_GPU_SAMPLES_H

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <vector>

enum { POISON = 0xa5 };

/* ---- numbers ---- */

static int is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

/* Converts to doubles as the host's table does. */
static void read_all(const void *at, int64_t count, int32_t type, double *wide)
{
    static const dpar_mem table = dpar_mem_host();
    dpar_mem_span all = {};
    all.to = wide;
    all.to_type = DPAR_F64;
    all.from = at;
    all.from_type = type;
    all.count = count;
    all.scale = 1.0;
    if (table.span(table.ctx, &all, 1) != DPAR_OK) {
        std::fill(wide, wide + count, (double)NAN);
    }
}

static double read_at(const void *at, int64_t i, int32_t type)
{
    double wide = 0.0;
    read_all((const unsigned char *)at + i * dpar_type_bytes(type), 1, type, &wide);
    return wide;
}

/* Returns the F32 whose halves are a BF16 and its rest, see optimize in layers.h. */
static float whole_of(const void *high, const void *low, int64_t i)
{
    const uint32_t bits = ((uint32_t)((const uint16_t *)high)[i] << 16) +
                          (uint32_t)(int32_t)((const int16_t *)low)[i];
    float whole;
    memcpy(&whole, &bits, sizeof whole);
    return whole;
}

/* Compares two numbers: both NaN, or |difference| <= relative * (both + within). `within` is for
 * results that cancel, whose errors depend on the operands. */
static double within = 1e-30;
static int near_enough(double a, double b, double relative)
{
    return a != a || b != b ? a != a && b != b
                            : a == b || fabs(a - b) <= relative * (fabs(a) + fabs(b) + within);
}

/* Returns 1 if n elements are the host's. relative < 0: bit by bit, except that any NaN of f64 from
 * arithmetic is the same. Prints the first one that differs. */
static int alike(const void *made, const void *expected, int64_t n, int32_t type, double relative)
{
    const int64_t width = dpar_type_bytes(type);
    if (n <= 0 || memcmp(made, expected, (size_t)(n * width)) == 0) {
        return 1;
    }
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *x = (const unsigned char *)made + i * width;
        const unsigned char *y = (const unsigned char *)expected + i * width;
        if (memcmp(x, y, (size_t)width) == 0) {
            continue;
        }
        if (!is_float(type)) {
            printf("element %lld of %lld: other bits on the device\n", (long long)i, (long long)n);
            return 0;
        }
        const double a = read_at(made, i, type), b = read_at(expected, i, type);
        if (relative >= 0.0 ? !near_enough(a, b, relative) : type != DPAR_F64 || a == a || b == b) {
            printf("element %lld of %lld: %.17g on the device, %.17g on the host\n", (long long)i,
                   (long long)n, a, b);
            return 0;
        }
    }
    return 1;
}

/* ---- stretches ---- */

struct stretch {
    int64_t first, count;
};

/* Returns stretches of [0, n): the beginning, the end, and those around powers of two. Each begins
 * at a multiple of `grain` and has `each` elements, or as many as there are. */
static std::vector<stretch> stretches(int64_t n, int64_t grain, int64_t each = 256)
{
    std::vector<int64_t> at = {0, n - each};
    std::vector<stretch> made;
    for (int64_t power = 2 * each; power < n; power *= 2) {
        at.push_back(power - each / 2);
    }
    for (int64_t first : at) {
        first = std::max<int64_t>(0, first) / grain * grain;
        if (first < n) {
            made.push_back({first, std::min(each, n - first)});
        }
    }
    if (!made.empty()) { /* up to the very end, whatever the grain has cut off */
        made[1].count = n - made[1].first;
    }
    return made;
}

/* Returns the elements of a stretch of rows. */
static stretch rows_of(stretch p, int64_t width)
{
    return {p.first * width, p.count * width};
}

/* ---- samples ---- */

struct samples {
    enum { IN, OUT, BOTH, REST };
    struct part {
        unsigned char *there;
        std::vector<unsigned char> here, was;
        int64_t count;
        int32_t type;
        int way;
        double relative, about;
    };
    std::vector<part> parts;
    int lost = 0; /* copies that failed */

    /* Takes elements that the operation only reads, which must not change. */
    void *in(const void *base, stretch p, int32_t type)
    {
        return take(base, p, type, IN, -1.0);
    }
    /* Takes elements that the operation writes, filled with poison before. Compared by `alike` with
     * the current `within`. */
    void *out(void *base, stretch p, int32_t type, double relative)
    {
        return take(base, p, type, OUT, relative);
    }
    /* Takes elements that the operation reads and writes. */
    void *both(void *base, stretch p, int32_t type, double relative)
    {
        return take(base, p, type, BOTH, relative);
    }
    /* Takes the 16-bit rests of the weights taken last. Both are compared together as one F32, in
     * the same way as the weights. */
    void *rest(void *base, stretch p)
    {
        return take(base, p, DPAR_BF16, REST, 0.0);
    }
    /* Compares all. Call it once, after the operation. */
    int same();

  private:
    void *take(const void *base, stretch p, int32_t type, int way, double relative);
    int same_part(size_t k);
    std::vector<unsigned char> now(const part &p);
};

void *samples::take(const void *base, stretch p, int32_t type, int way, double relative)
{
    const int64_t width = dpar_type_bytes(type);
    part s;
    s.there = (unsigned char *)const_cast<void *>(base) + p.first * width;
    s.here.assign((size_t)(p.count * width), (unsigned char)POISON);
    s.count = p.count;
    s.type = type;
    s.way = way;
    s.relative = relative;
    s.about = within;
    lost += cudaDeviceSynchronize() != cudaSuccess;
    lost += (way == OUT ? cudaMemset(s.there, POISON, s.here.size())
                        : cudaMemcpy(s.here.data(), s.there, s.here.size(),
                                     cudaMemcpyDeviceToHost)) != cudaSuccess;
    if (way != IN) {
        s.was = s.here;
    }
    parts.push_back(std::move(s));
    return parts.back().here.data();
}

std::vector<unsigned char> samples::now(const part &p)
{
    std::vector<unsigned char> made(p.here.size());
    lost += cudaMemcpy(made.data(), p.there, made.size(), cudaMemcpyDeviceToHost) != cudaSuccess;
    return made;
}

int samples::same_part(size_t k)
{
    const part &p = parts[k];
    const int zeros =
        std::all_of(p.here.begin(), p.here.end(), [](unsigned char c) { return c == 0; });
    if (p.way == REST) { /* compared together with the weights before it */
        return 1;
    }
    if (p.way != IN && p.count > 0 && (p.here == p.was || zeros)) {
        printf("the host made nothing of %lld elements (part %lld, type %d)\n", (long long)p.count,
               (long long)k, (int)p.type);
        return 0;
    }
    const std::vector<unsigned char> made = now(p);
    within = p.about;
    if (k + 1 == parts.size() || parts[k + 1].way != REST) {
        return alike(made.data(), p.here.data(), p.count, p.type, p.relative);
    }
    const part &low = parts[k + 1];
    const std::vector<unsigned char> rest = now(low);
    std::vector<float> a, b;
    for (int64_t i = 0; i < p.count; i++) {
        a.push_back(whole_of(made.data(), rest.data(), i));
        b.push_back(whole_of(p.here.data(), low.here.data(), i));
    }
    return alike(a.data(), b.data(), p.count, DPAR_F32, p.relative);
}

int samples::same()
{
    const double before = within;
    int all = !parts.empty();
    lost += cudaDeviceSynchronize() != cudaSuccess;
    for (size_t k = 0; k < parts.size(); k++) {
        all = same_part(k) && all;
    }
    within = before;
    return all && lost == 0;
}

/* ---- expected results of each operation on stretches of its arrays ---- */

/* `same` reports a refusal by the host's table. */
template <typename Operation>
static void host_does(samples &x, dpar_status (*operation)(void *, const Operation *),
                      const Operation &part)
{
    x.lost += operation(NULL, &part) != DPAR_OK;
}

static void expect_span(samples &x, const dpar_mem_span &s)
{
    for (stretch p : stretches(s.count, 1)) {
        dpar_mem_span part = s;
        part.from = x.in(s.from, p, s.from_type);
        part.to = s.accumulate ? x.both(s.to, p, s.to_type, -1.0) : x.out(s.to, p, s.to_type, -1.0);
        part.count = p.count;
        x.lost += dpar_mem_host().span(NULL, &part, 1) != DPAR_OK;
    }
}

static void expect_round(samples &x, const dpar_mem_round &r)
{
    for (stretch p : stretches(r.count, 1)) {
        dpar_mem_round part = r;
        part.from = x.in(r.from, p, r.from_type);
        part.to = x.out(r.to, p, DPAR_BF16, -1.0);
        part.count = p.count;
        part.index = r.index + (uint64_t)p.first;
        host_does(x, dpar_mem_host_layers().round, part);
    }
}

static void expect_reduce(samples &x, const dpar_mem_reduce &r)
{
    const int64_t width = dpar_type_bytes(r.from_type);
    for (stretch p : stretches(r.count, 1)) {
        std::vector<unsigned char> from;
        dpar_mem_reduce part = r;
        for (int64_t k = 0; k < r.parts; k++) {
            const unsigned char *one = (const unsigned char *)x.in(
                (const unsigned char *)r.from + k * r.stride * width, p, r.from_type);
            from.insert(from.end(), one, one + p.count * width);
        }
        part.from = from.data();
        part.to = x.out(r.to, p, r.to_type, -1.0);
        part.count = part.stride = p.count;
        host_does(x, dpar_mem_host().reduce, part);
    }
}

/* Sets the expected results of an optimizer step, and how close the results must be. The limits are
 * those of tests/gpu/kernels.cc, except that results of 16 bits which random numbers round must be
 * equal if everything is computed in f64 (fast is 0). */
static void expect_step(samples &x, const dpar_mem_optimize &s, int fast)
{
    const dpar_optimizer_piece &w = *s.piece;
    int32_t moments = -1, type = DPAR_TYPE_NONE;
    (void)dpar_optimizer_check(s.optimizer, DPAR_F32, &moments, NULL, NULL);
    (void)dpar_optimizer_check(s.optimizer, w.weight_type, NULL, &type, NULL);
    const double one = fast ? 1e-6 : 1.3e-7, half = s.optimizer->stochastic && !fast ? 0.0 : 8e-3;
    const double before = within;
    within = fast ? 1.0 : 1e-2; /* weights cancel */
    for (stretch p : stretches(w.count, 1)) {
        dpar_optimizer_piece piece = w;
        dpar_mem_optimize part = s;
        piece.weight = x.both(w.weight, p, w.weight_type,
                              w.weight_type == DPAR_F32 || s.remainder != NULL ? one : half);
        part.remainder = s.remainder == NULL ? NULL : (int16_t *)x.rest(s.remainder, p);
        piece.gradient = x.in(w.gradient, p, w.gradient_type);
        piece.m = moments < 1 ? NULL
                              : x.both(w.m, p, type,
                                       type == DPAR_BF16 ? half
                                       : fast            ? 1e-5
                                                         : 1.3e-7);
        piece.v = moments < 2 ? NULL : x.both(w.v, p, type, type == DPAR_BF16 ? half : one);
        part.copy = s.copy == NULL ? NULL : x.out(s.copy, p, s.copy_type, half);
        piece.count = p.count;
        piece.index = w.index + (uint64_t)p.first;
        part.piece = &piece;
        host_does(x, dpar_mem_host_layers().optimize, part);
    }
    within = before;
}

/* Returns row i of an index, as the host knows it. */
typedef std::function<int64_t(int64_t)> row_of;

static std::vector<unsigned char> rows_in(samples &x, const void *base, int64_t width, int32_t type,
                                          stretch p, const row_of &row)
{
    std::vector<unsigned char> all;
    for (int64_t i = p.first; i < p.first + p.count; i++) {
        const unsigned char *one =
            (const unsigned char *)x.in(base, rows_of({row(i), 1}, width), type);
        all.insert(all.end(), one, one + width * dpar_type_bytes(type));
    }
    return all;
}

/* Sets the expected results of a gather of consecutive rows. */
static void expect_gather(samples &x, const dpar_mem_gather &g, const row_of &row)
{
    for (stretch p : stretches(g.rows, 1, g.bytes < 64 ? 32 : 2)) {
        const std::vector<unsigned char> rows = rows_in(x, g.from, g.bytes, DPAR_U8, p, row);
        memcpy(x.out(g.to, rows_of(p, g.bytes), DPAR_U8, -1.0), rows.data(), rows.size());
    }
}

static void expect_combine(samples &x, const dpar_mem_combine &m, const row_of &row)
{
    for (stretch p : stretches(m.rows, 1, 1)) {
        const stretch some = rows_of(p, m.choices);
        const std::vector<unsigned char> from = rows_in(x, m.from, m.width, m.from_type, some, row);
        std::vector<int64_t> order;
        dpar_mem_combine part = m;
        for (int64_t k = 0; k < some.count; k++) {
            order.push_back(k);
        }
        part.from = from.data();
        part.weight = m.weight == NULL ? NULL : x.in(m.weight, some, m.weight_type);
        part.to = x.out(m.to, rows_of(p, m.width), m.to_type, -1.0);
        part.index.at = order.data();
        part.rows = p.count;
        host_does(x, dpar_mem_host_layers().combine, part);
    }
}

/* Sets the expected products if each row of `a` meets one row of `b`. */
static void expect_dot(samples &x, const dpar_mem_dot &d, const row_of &row, double relative)
{
    for (stretch p : stretches(d.rows, 1, 1)) {
        const std::vector<unsigned char> b = rows_in(x, d.b, d.width, d.type, p, row);
        dpar_mem_dot part = d;
        part.a = x.in(d.a, rows_of(p, d.width), d.type);
        part.b = b.data();
        part.to = x.out(d.to, p, d.to_type, relative);
        part.index.at = NULL;
        part.rows = p.count;
        host_does(x, dpar_mem_host_layers().dot, part);
    }
}

/* Sets the expected parts and gradients of F32 logits; targets are I64. */
static void expect_cross_entropy(samples &x, const dpar_mem_cross_entropy &s, const row_of &target,
                                 int fast)
{
    const int gradient = s.phase == DPAR_MEM_CROSS_ENTROPY_GRADIENT;
    const double one = fast ? 1e-5 : 3e-7, before = within;
    within = gradient ? s.scale : 1.0;
    for (stretch p : stretches(s.tokens, 1, 1)) {
        const stretch row = rows_of(p, s.rows);
        const int64_t at = target(p.first);
        dpar_mem_cross_entropy part = s;
        part.logits =
            gradient ? x.both(s.logits, row, DPAR_F32, one) : x.in(s.logits, row, DPAR_F32);
        part.partial = gradient ? NULL : x.out(s.partial, rows_of(p, 3), DPAR_F32, one);
        part.lse = (double *)x.in(s.lse, p, DPAR_F64);
        part.target.at = &at;
        part.tokens = 1;
        host_does(x, dpar_mem_host_layers().cross_entropy, part);
    }
    within = before;
}

static void expect_merge(samples &x, const dpar_mem_attention_merge &m)
{
    const double before = within;
    within = 1.0;
    for (stretch p : stretches(m.rows, 1, 2)) {
        const stretch values = rows_of(p, m.values);
        dpar_mem_attention_merge part = m;
        part.rows = p.count;
        part.out = x.both(m.out, values, m.type, 2e-7);
        part.lse = x.both(m.lse, p, m.type, 2e-7);
        part.more = x.in(m.more, values, m.type);
        part.more_lse = x.in(m.more_lse, p, m.type);
        host_does(x, dpar_mem_host_layers().attention_merge, part);
    }
    within = before;
}

/* Sets the expected results of quantizing, or with `back` of dequantizing. Codes and scales are in
 * separate arrays. */
static void expect_quantize(samples &x, const dpar_mem_quantize &q, int back)
{
    for (stretch p : stretches((q.count + q.block - 1) / q.block, 1, 2)) {
        dpar_mem_quantize part = q;
        stretch e = rows_of(p, q.block);
        e.count = std::min(e.count, q.count - e.first);
        part.x = back ? x.out(q.x, e, q.type, -1.0) : x.in(q.x, e, q.type);
        part.code = back ? x.in(q.code, e, DPAR_U8) : x.out(q.code, e, DPAR_U8, -1.0);
        part.scale = back ? x.in(q.scale, p, DPAR_F32) : x.out(q.scale, p, DPAR_F32, -1.0);
        part.count = e.count;
        host_does(x, back ? dpar_mem_host_layers().dequantize : dpar_mem_host_layers().quantize,
                  part);
    }
}

#endif
