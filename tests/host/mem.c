/* SPDX-License-Identifier: MIT-0 */
/* mem: tests the reference implementation, in host memory, of each operation in the memory table,
 * which devices are compared with. Expected values come from one loop over the elements in scalar
 * double or float, as documented in mem.h. Tested sizes are 0, odd ones, and those just below and
 * above a block. Bytes after an output must not change. */
#include "dpar_comm.h"

#include "elements.h"

static dpar_mem host;

/* ---- spans */

static void span_case(int32_t to, int32_t from, int64_t n, double scale, int add)
{
    double a[MOST], b[MOST], was[MOST];
    dpar_mem_span s;
    int64_t i;
    int wrong = 0;
    fill(a, n + GUARD, to);
    fill(b, n, from);
    memcpy(was, a, sizeof was);
    memset(&s, 0, sizeof s);
    s.to = a;
    s.from = b;
    s.count = n;
    s.to_type = to;
    s.from_type = from;
    s.scale = scale;
    s.accumulate = add;
    CHECK_INT(host.span(NULL, &s, 1), DPAR_OK);
    for (i = 0; i < n + GUARD; i++) {
        const double old = read_at(was, i, to), v = i < n ? scale * read_at(b, i, from) : 0.0;
        const double want = i >= n ? old : add ? rounded(old + v, to) : rounded(v, to);
        wrong += !same(read_at(a, i, to), want);
    }
    CHECK_INT(wrong, 0);
}

static void spans(void)
{
    static const double scales[] = {1.0, 0.5, -3.0, 0.1};
    double a[MOST], b[MOST];
    uint32_t bits[MOST], copy[MOST];
    dpar_mem_span s[3];
    int i, j, k, m;
    for (i = 0; i < 4 * 4 * COUNTS; i++) {
        for (m = 0; m < 8; m++) {
            span_case(floats[i % 4], floats[i / 4 % 4], counts[i / 16], scales[m / 2], m % 2);
        }
    }
    for (i = 0; i < MOST; i++) {
        bits[i] = (uint32_t)(random_bits() >> 32) | (i % 5 == 0 ? 0x7f800001u : 0u);
    }
    memset(s, 0, sizeof s); /* copied unchanged, filled, and cleared: three spans in one call */
    s[0].to = copy;
    s[0].from = bits;
    s[0].count = 333;
    s[0].to_type = s[0].from_type = DPAR_F32;
    s[0].scale = 1.0;
    s[1].to = a;
    s[1].count = 200;
    s[1].to_type = DPAR_F32;
    s[1].scale = 2.5;
    s[2].to = b;
    s[2].count = 77;
    s[2].to_type = DPAR_I64;
    memset(b, 1, sizeof b);
    CHECK_INT(host.span(NULL, s, 3), DPAR_OK);
    CHECK(memcmp(copy, bits, 333 * 4) == 0);
    for (k = 0, j = 0; k < 200; k++) {
        j += !same(read_at(a, k, DPAR_F32), 2.5);
    }
    for (k = 0; k < 78; k++) {
        j += (((const int64_t *)(const void *)b)[k] == 0) != (k < 77);
    }
    CHECK_INT(j, 0);
}

/* Tests spans long enough for wider vectors, where one value in 1000 is NaN or infinite: F32 scaled
 * by a number that is not exact in f32, with F32, BF16 and F16 added to it. */
static void spans_large(int32_t from, double scale, int add)
{
    enum { MANY = 140003 };
    static float to[MANY], was[MANY], x[MANY];
    const uint32_t quiet = 0x7fc00000u;
    dpar_mem_span s;
    int i, wrong = 0;
    for (i = 0; i < MANY; i++) {
        const double odd = i % 2000 == 7 ? (double)NAN : (double)-INFINITY;
        was[i] = to[i] = (float)number();
        write_at(x, i, from, i % 1000 == 7 ? odd : 3.0 * number());
    }
    memset(&s, 0, sizeof s);
    s.to = to;
    s.from = x;
    s.count = MANY;
    s.to_type = DPAR_F32;
    s.from_type = from;
    s.scale = scale;
    s.accumulate = add;
    CHECK_INT(host.span(NULL, &s, 1), DPAR_OK);
    for (i = 0; i < MANY; i++) {
        const double v = scale * read_at(x, i, from);
        float want = (float)(add ? (double)was[i] + v : v);
        if (want != want) {
            memcpy(&want, &quiet, 4);
        }
        wrong += memcmp(&to[i], &want, 4) != 0;
    }
    CHECK_INT(wrong, 0);
}

/* ---- sums */

static double both(double a, double b, int32_t op, int32_t sums)
{
    const double v = op == DPAR_SUM || op == DPAR_AVG ? a + b
                     : op == DPAR_PRODUCT             ? a * b
                     : op == DPAR_MAX                 ? (a > b ? a : b)
                                                      : (a < b ? a : b);
    return sums == DPAR_F64 ? v : (double)(float)v;
}

static void reduce_case(int32_t to, int32_t from, int32_t sums, int32_t op, int64_t n, int parts,
                        int add)
{
    static double a[MOST], was[MOST], b[9 * MOST];
    const double scale = add ? 1.0 : 0.3;
    const int64_t stride = n + 5;
    dpar_mem_reduce r;
    int64_t i;
    int p, wrong = 0;
    fill(a, n + GUARD, to);
    fill(b, stride * parts, from);
    memcpy(was, a, sizeof was);
    memset(&r, 0, sizeof r);
    r.to = a;
    r.from = b;
    r.count = n;
    r.parts = parts;
    r.stride = stride;
    r.to_type = to;
    r.from_type = from;
    r.sum_type = sums;
    r.op = op;
    r.accumulate = add;
    r.scale = scale;
    CHECK_INT(host.reduce(NULL, &r), DPAR_OK);
    for (i = 0; i < n + GUARD; i++) {
        const double old = read_at(was, i, to);
        double v = read_at(b, i, from);
        for (p = 1; p < parts && i < n; p++) {
            v = both(v, read_at(b, p * stride + i, from), op, sums);
        }
        if (op == DPAR_AVG && parts > 1) {
            v = sums == DPAR_F64 ? v / parts : (double)((float)v / (float)parts);
        }
        if (!add) {
            v = sums == DPAR_F64 ? v * scale : (double)((float)v * (float)scale);
        } else {
            v = sums == DPAR_F64 ? old + v : (double)((float)old + (float)v);
        }
        wrong += !same(read_at(a, i, to), i < n ? rounded(v, to) : old);
    }
    CHECK_INT(wrong, 0);
}

/* Returns the integer in the bytes of a part, by definition, as an unsigned long long. */
static unsigned long long int_bits(const unsigned char *at, int bytes)
{
    uint8_t b;
    uint32_t w;
    uint64_t l;
    memcpy(&b, at, 1);
    memcpy(&w, at, bytes == 4 ? 4 : 0);
    memcpy(&l, at, bytes == 8 ? 8 : 0);
    return bytes == 1 ? b : bytes == 4 ? w : l;
}

/* Returns the value cut to a type. */
static long long int_of(unsigned long long x, int32_t type)
{
    switch (type) {
    case DPAR_I8: return (int8_t)x;
    case DPAR_U8: return (uint8_t)x;
    case DPAR_I32: return (int32_t)x;
    case DPAR_U32: return (uint32_t)x;
    default: return (long long)x;
    }
}

static void reduce_ints_case(int32_t type, int32_t op, int64_t n, int64_t parts)
{
    static uint64_t a[MOST], b[9 * MOST], was[9 * MOST];
    const int bytes = dpar_type_bytes(type);
    const int64_t stride = n + 3, inside = parts / 2 * stride * bytes;
    dpar_mem_reduce r;
    int64_t i, p;
    int way, wrong = 0;
    for (i = 0; i < 9 * MOST; i++) {
        b[i] = i % 11 == 0 ? UINT64_C(0x8080808080808080) << i % 8 * 8 : random_bits();
    }
    memcpy(was, b, sizeof was);
    memset(a, 0x5a, sizeof a);
    memset(&r, 0, sizeof r);
    r.count = n;
    r.parts = parts;
    r.stride = stride;
    r.from = b;
    r.to_type = r.from_type = r.sum_type = type;
    r.op = op;
    r.scale = 1.0;
    for (way = 0; way < 2; way++) { /* into a separate array, then into one of the parts */
        r.to = way == 0 ? (unsigned char *)a : (unsigned char *)b + inside;
        CHECK_INT(host.reduce(NULL, &r), DPAR_OK);
        for (i = 0; i < n; i++) {
            const unsigned char *at = (const unsigned char *)was + i * bytes;
            unsigned long long x = int_bits(at, bytes);
            for (p = 1; p < parts; p++) {
                const unsigned long long y = int_bits(at + p * stride * bytes, bytes);
                const int more = type == DPAR_U64 ? x > y : int_of(x, type) > int_of(y, type);
                x = op == DPAR_MAX       ? (more ? x : y)
                    : op == DPAR_MIN     ? (more ? y : x)
                    : op == DPAR_PRODUCT ? x * y
                                         : x + y;
            }
            if (op == DPAR_AVG) {
                x = type == DPAR_U64 ? x / (unsigned long long)parts
                                     : (unsigned long long)(int_of(x, type) / (long long)parts);
            }
            wrong +=
                int_of(int_bits((unsigned char *)r.to + i * bytes, bytes), type) != int_of(x, type);
        }
    }
    for (i = 0; i < 3 * bytes; i++) { /* bytes after both outputs */
        wrong += ((unsigned char *)a)[n * bytes + i] != 0x5a;
        wrong += ((unsigned char *)b)[inside + n * bytes + i] !=
                 ((unsigned char *)was)[inside + n * bytes + i];
    }
    CHECK_INT(wrong, 0);
}

static void reduces_ints(void)
{
    static const int32_t types[6] = {DPAR_I8, DPAR_U8, DPAR_I32, DPAR_U32, DPAR_I64, DPAR_U64};
    int i, k;
    for (i = 0; i < 6 * 5; i++) {
        for (k = 0; k < COUNTS; k++) {
            reduce_ints_case(types[i % 6], DPAR_SUM + i / 6, counts[k], 1);
            reduce_ints_case(types[i % 6], DPAR_SUM + i / 6, counts[k], 2 + k);
        }
    }
}

static void reduces(void)
{
    static const int parts[3] = {1, 2, 9};
    static const int32_t ops[5] = {DPAR_SUM, DPAR_AVG, DPAR_PRODUCT, DPAR_MAX, DPAR_MIN};
    int i, k;
    for (i = 0; i < 4 * 4 * 2 * 5; i++) {
        const int32_t to = floats[i % 4], from = floats[i / 4 % 4];
        const int32_t sums = i / 16 % 2 ? DPAR_F64 : DPAR_F32;
        for (k = 0; k < 12 && (sums == DPAR_F64 || (to != DPAR_F64 && from != DPAR_F64)); k++) {
            reduce_case(to, from, sums, ops[i / 32], counts[(i + k) % COUNTS], parts[k % 3], k % 2);
        }
    }
}

static void looks(void)
{
    double a[MOST];
    dpar_mem_finite f;
    int64_t found, n;
    int k, t;
    for (k = 0; k < 4 * COUNTS; k++) {
        n = counts[k / 4];
        t = floats[k % 4];
        fill(a, n + 1, t);
        memset(&f, 0, sizeof f);
        f.in = a;
        f.count = n;
        f.first = 1000;
        f.type = t;
        f.found = &found;
        write_at(a, n, t, 1e300); /* the element after the array is infinite or large */
        CHECK_INT(host.finite(NULL, &f), DPAR_OK);
        CHECK_INT(found, -1);
        if (n > 2) {
            const double nan = (double)NAN;
            memcpy((char *)a + 2 * dpar_type_bytes(t),
                   t == DPAR_F64   ? (const void *)&nan
                   : t == DPAR_F32 ? (const void *)"\0\0\x80\xff"
                   : t == DPAR_F16 ? (const void *)"\x01\x7c"
                                   : (const void *)"\x80\x7f",
                   (size_t)dpar_type_bytes(t));
            CHECK_INT(host.finite(NULL, &f), DPAR_OK);
            CHECK_INT(found, 1002);
            f.keep_found = 1;
            f.first = 5000;
            CHECK_INT(host.finite(NULL, &f), DPAR_OK);
            CHECK_INT(found, 1002);
            found = -1;
            CHECK_INT(host.finite(NULL, &f), DPAR_OK);
            CHECK_INT(found, 5002);
        }
    }
}

/* ---- what is refused */

static void refused(void)
{
    double a[8] = {0};
    int64_t found;
    dpar_mem_span s;
    dpar_mem_reduce r;
    dpar_mem_finite f;
#define REFUSED(call, change)                                                                      \
    do {                                                                                           \
        change;                                                                                    \
        CHECK_INT(call, DPAR_E_ARG);                                                               \
    } while (0)
    memset(&s, 0, sizeof s);
    s.to = a;
    s.from = a;
    s.count = 1;
    s.scale = 1.0;
    REFUSED(host.span(NULL, &s, 1), (void)0); /* the types are 0 */
    REFUSED(host.span(NULL, &s, 1), s.to_type = DPAR_F64);
    REFUSED(host.span(NULL, &s, 1), (s.to_type = DPAR_TYPE_NONE, s.from_type = DPAR_F64));
    s.to_type = DPAR_F64;
    CHECK_INT(host.span(NULL, &s, 1), DPAR_OK);
    REFUSED(host.span(NULL, &s, 1), s.count = -1);
    REFUSED(host.span(NULL, &s, 1), (s.count = 1, s.to = NULL));
    REFUSED(host.span(NULL, &s, 1), (s.to = a, s.to_type = DPAR_I32));
    REFUSED(host.span(NULL, &s, 1), (s.from_type = DPAR_I32, s.accumulate = 1));
    REFUSED(host.span(NULL, &s, 1), (s.accumulate = 0, s.scale = 2.0));
    REFUSED(host.span(NULL, &s, 1), (s.scale = 1.0, s.from_type = s.to_type = DPAR_F4));
    memset(&r, 0, sizeof r);
    r.to = a;
    r.from = a;
    r.count = r.parts = r.stride = 1;
    r.op = DPAR_SUM;
    r.scale = 1.0;
    REFUSED(host.reduce(NULL, &r), r.to_type = r.from_type = DPAR_F64);
    REFUSED(host.reduce(NULL, &r), (r.to_type = DPAR_TYPE_NONE, r.sum_type = DPAR_F64));
    REFUSED(host.reduce(NULL, &r), (r.to_type = DPAR_F64, r.from_type = DPAR_TYPE_NONE));
    r.from_type = DPAR_F64;
    CHECK_INT(host.reduce(NULL, &r), DPAR_OK);
    REFUSED(host.reduce(NULL, &r), r.parts = 0);
    REFUSED(host.reduce(NULL, &r), (r.parts = 1, r.op = DPAR_COPY));
    REFUSED(host.reduce(NULL, &r), (r.op = DPAR_SUM, r.sum_type = DPAR_F32));
    REFUSED(host.reduce(NULL, &r), (r.sum_type = DPAR_F64, r.from_type = DPAR_I32));
    REFUSED(host.reduce(NULL, &r), (r.from_type = DPAR_F64, r.count = 2));
    r.count = 1;
    r.to_type = r.from_type = r.sum_type = DPAR_I32;
    CHECK_INT(host.reduce(NULL, &r), DPAR_OK);
    REFUSED(host.reduce(NULL, &r), r.accumulate = 1);
    REFUSED(host.reduce(NULL, &r), (r.accumulate = 0, r.scale = 0.5));
    REFUSED(host.reduce(NULL, &r), (r.scale = 1.0, r.sum_type = DPAR_F64));
    REFUSED(host.reduce(NULL, &r), (r.sum_type = DPAR_I32, r.from_type = DPAR_U32));
    REFUSED(host.reduce(NULL, &r), r.to_type = r.from_type = r.sum_type = DPAR_F8);
    memset(&f, 0, sizeof f);
    f.found = &found;
    REFUSED(host.finite(NULL, &f), (void)0);
    f.type = DPAR_F64;
    CHECK_INT(host.finite(NULL, &f), DPAR_OK);
    CHECK_INT(found, -1);
    REFUSED(host.finite(NULL, &f), f.type = DPAR_I8);
    REFUSED(host.finite(NULL, &f), (f.type = DPAR_F32, f.found = NULL));
}

static void boxes(void)
{
    double a[6] = {1, 2, 3, 4, 5, 6}, b[6];
    dpar_mem_box x;
    memset(&x, 0, sizeof x);
    x.to = b;
    x.from = a;
    x.dims = 2; /* transposed */
    x.extent[0] = x.from_stride[0] = 3;
    x.extent[1] = 2;
    x.extent[0] = 2;
    x.extent[1] = 3;
    x.from_stride[1] = 1;
    x.to_stride[0] = 1;
    x.to_stride[1] = 2;
    b[1] = 9.0;
    CHECK_INT(host.move(NULL, &x, 1), DPAR_E_ARG); /* the types are 0 */
    x.to_type = DPAR_F64;
    CHECK_INT(dpari_mem_move_box(&x), DPAR_E_ARG);
    x.from_type = DPAR_F64;
    x.op = DPAR_AVG;
    CHECK_INT(host.move(NULL, &x, 1), DPAR_E_ARG);
    x.op = DPAR_COPY;
    x.round_type = DPAR_F16;
    CHECK_INT(host.move(NULL, &x, 1), DPAR_E_ARG);
    CHECK_NEAR(b[1], 9.0, 0.0);
    x.round_type = DPAR_TYPE_NONE;
    CHECK_INT(host.move(NULL, &x, 1), DPAR_OK);
    CHECK_NEAR(b[1], 4.0, 0.0);
    CHECK_NEAR(b[2], 2.0, 0.0);
    CHECK_INT(host.pin(NULL, a, 8), DPAR_OK);
    CHECK_INT(host.unpin(NULL, a), DPAR_OK);
    CHECK_INT(host.wait(NULL), DPAR_OK);
}

/* A list of boxes, of which neighbours differ in their addresses only or in one other field. */
static void box_lists(void)
{
    enum { LIST = 9 };
    double a[LIST * 4], b[LIST * 4] = {0.0};
    dpar_mem_box x[LIST];
    memset(x, 0, sizeof x);
    for (int i = 0; i < LIST * 4; i++) {
        a[i] = i + 1;
    }
    for (int i = 0; i < LIST; i++) {
        x[i].to = b + 4 * i;
        x[i].from = a + 4 * i;
        x[i].to_type = x[i].from_type = DPAR_F64;
        x[i].dims = 1;
        x[i].extent[0] = 2;
        x[i].to_stride[0] = x[i].from_stride[0] = 1;
    }
    x[2].extent[0] = 3;
    x[3].to_stride[0] = 2;
    x[4].from_stride[0] = 2;
    x[5].negate = 1;
    x[6].op = DPAR_SUM;
    x[7].dims = 0;
    x[8].clear = 1;
    CHECK_INT(host.move(NULL, x, LIST), DPAR_OK);
    for (int i = 0; i < LIST; i++) {
        const double sign = i == 5 ? -1.0 : 1.0, *to = b + 4 * i;
        CHECK_NEAR(to[0], sign * (4.0 * i + 1.0), 0.0);
        CHECK_NEAR(to[1], i == 3 || i == 7 ? 0.0 : sign * (4.0 * i + (i == 4 ? 3.0 : 2.0)), 0.0);
        CHECK_NEAR(to[2], i == 2 ? 11.0 : i == 3 ? 14.0 : 0.0, 0.0);
    }
    CHECK_NEAR(a[LIST * 4 - 4], 0.0, 0.0);
    CHECK_NEAR(a[LIST * 4 - 8], LIST * 4 - 7, 0.0);
    x[LIST - 1].round_type = DPAR_F16; /* nothing moves if one box is wrong */
    b[0] = 0.0;
    CHECK_INT(host.move(NULL, x, LIST), DPAR_E_ARG);
    CHECK_NEAR(b[0], 0.0, 0.0);
}

int main(void)
{
    host = dpar_mem_host();
    CHECK(host.layers == NULL);
    spans();
    spans_large(DPAR_F32, 0.1, 0);
    spans_large(DPAR_F32, 1.0, 1);
    spans_large(DPAR_BF16, 1.0, 1);
    spans_large(DPAR_F16, 1.0, 1);
    reduces();
    reduces_ints();
    looks();
    refused();
    boxes();
    box_lists();
    return CHECK_DONE();
}
