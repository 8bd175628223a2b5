/* SPDX-License-Identifier: MIT-0 */
/* strided: tests boxes that are copied, converted, negated, combined and cleared between arrays
 * with any strides. Expected is one loop over the elements, each at the address that follows from
 * its index and the strides, in scalar arithmetic. 16-bit rounding is by a search for the nearest
 * value. Both arrays are compared completely, bit by bit, so that nothing outside of the box may
 * change. */
#include "dpar_halo.h"

#include "check.h"
#include "random_bits.h"

enum { ROOM = 1 << 16, TYPES = 10 };

static const int32_t types[TYPES] = {DPAR_F64, DPAR_F32, DPAR_BF16, DPAR_F16, DPAR_I8,
                                     DPAR_U8,  DPAR_I32, DPAR_U32,  DPAR_I64, DPAR_U64};

static int32_t wide_here;

static int64_t below(int64_t n)
{
    return (int64_t)((random_bits() >> 20) % (uint64_t)n);
}

/* ---- one element, by definition */

static double value_16(uint32_t h, int32_t type)
{
    const int bits = type == DPAR_F16 ? 10 : 7, bias = type == DPAR_F16 ? 15 : 127;
    const int top = 2 * bias + 1, e = (int)((h & 0x7fffu) >> bits);
    const int m = (int)(h & ((1u << bits) - 1));
    double size = e == 0 ? ldexp(m, 1 - bias - bits) : ldexp((1 << bits) + m, e - bias - bits);
    if (e == top) {
        size = m == 0 ? (double)INFINITY : (double)NAN;
    }
    return (h & 0x8000u) != 0 ? -size : size;
}

/* Rounds to nearest, ties to even. Infinity counts as the value after the largest finite one. */
static uint32_t bits_16(float x, int32_t type)
{
    const uint32_t top = type == DPAR_F16 ? 0x7c00u : 0x7f80u;
    const double beyond = type == DPAR_F16 ? 65536.0 : ldexp(1, 128);
    const double size = fabs((double)x);
    const uint32_t sign = signbit(x) ? 0x8000u : 0;
    uint32_t low = 0, high = top;
    double down, up;
    if (x != x) {
        return type == DPAR_F16 ? 0x7e00u : 0x7fc0u;
    }
    if (size >= beyond) {
        return sign | top;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (value_16(middle, type) <= size) {
            low = middle;
        } else {
            high = middle;
        }
    }
    down = size - value_16(low, type);
    up = (high == top ? beyond : value_16(high, type)) - size;
    return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

static uint64_t get(const unsigned char *at, int32_t type)
{
    uint64_t bits = 0;
    /* little endian, like all machines that run these tests */
    memcpy(&bits, at, (size_t)dpar_type_bytes(type));
    return bits;
}

static void put(unsigned char *at, uint64_t bits, int32_t type)
{
    memcpy(at, &bits, (size_t)dpar_type_bytes(type));
}

static float f32_of(uint64_t bits)
{
    uint32_t word = (uint32_t)bits;
    float f;
    memcpy(&f, &word, 4);
    return f;
}

static uint64_t bits_f32(float f)
{
    uint32_t word = 0x7fc00000u;
    if (f == f) {
        memcpy(&word, &f, 4);
    }
    return word;
}

static double f64_of(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, 8);
    return d;
}

static uint64_t bits_f64(double d)
{
    uint64_t bits = UINT64_C(0x7ff8) << 48;
    if (d == d) {
        memcpy(&bits, &d, 8);
    }
    return bits;
}

static int is_16(int32_t type)
{
    return type == DPAR_F16 || type == DPAR_BF16;
}

static float widened(uint64_t bits, int32_t type)
{
    return type == DPAR_F32 ? f32_of(bits) : (float)value_16((uint32_t)bits, type);
}

static uint64_t narrowed(float f, int32_t type)
{
    return type == DPAR_F32 ? bits_f32(f) : bits_16(f, type);
}

/* Widens a NaN, which keeps its payload. */
static uint64_t widened_nan(uint64_t bits, int32_t from)
{
    switch (from) {
    case DPAR_F16: return (bits & 0x8000u) << 16 | 0x7f800000u | (bits & 0x3ffu) << 13;
    case DPAR_BF16: return bits << 16;
    default: return (bits & 0x80000000u) << 32 | UINT64_C(0x7ff) << 52 | (bits & 0x7fffffu) << 29;
    }
}

static uint64_t convert(uint64_t bits, int32_t to, int32_t from)
{
    if (to == from) {
        return bits;
    }
    if (dpar_type_bytes(to) > dpar_type_bytes(from)) {
        const float x = widened(bits, from);
        if (x != x) {
            return widened_nan(bits, from);
        }
    }
    if (from == DPAR_F64) {
        return bits_f32((float)f64_of(bits));
    }
    return to == DPAR_F64 ? bits_f64((double)f32_of(bits)) : narrowed(widened(bits, from), to);
}

static uint64_t mask_of(int32_t type)
{
    return UINT64_MAX >> (64 - 8 * dpar_type_bytes(type));
}

static int is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || is_16(type);
}

static uint64_t negated(uint64_t bits, int32_t type)
{
    const uint64_t mask = mask_of(type);
    return is_float(type) ? bits ^ (mask ^ mask >> 1) : (0 - bits) & mask;
}

static int64_t signed_of(uint64_t bits, int32_t type)
{
    switch (type) {
    case DPAR_I8: return (int8_t)bits;
    case DPAR_I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

static uint64_t met_int(uint64_t a, uint64_t b, int32_t type, int32_t op)
{
    const int is_signed = type == DPAR_I8 || type == DPAR_I32 || type == DPAR_I64;
    const int more = is_signed ? signed_of(a, type) > signed_of(b, type) : a > b;
    switch (op) {
    case DPAR_SUM: return (a + b) & mask_of(type);
    case DPAR_MAX: return more ? a : b;
    default: return more ? b : a;
    }
}

static double met_real(double a, double b, int32_t op)
{
    if (a != a || b != b) {
        return (double)NAN;
    }
    return op == DPAR_MAX ? (a > b ? a : b) : (a < b ? a : b);
}

static uint64_t met(uint64_t a, uint64_t b, int32_t type, int32_t op)
{
    if (op == DPAR_COPY) {
        return b;
    }
    if (type == DPAR_F64) {
        return bits_f64(op == DPAR_SUM ? f64_of(a) + f64_of(b)
                                       : met_real(f64_of(a), f64_of(b), op));
    }
    if (is_float(type)) {
        const float x = widened(a, type), y = widened(b, type);
        return narrowed(op == DPAR_SUM ? x + y : (float)met_real(x, y, op), type);
    }
    return met_int(a, b, type, op);
}

/* Returns 1 if the wire type is narrower than both others, otherwise 0. */
static int narrows(const dpari_stride_piece *p)
{
    const int32_t w = dpar_type_bytes(p->through);
    return w < dpar_type_bytes(p->to_type) && w < dpar_type_bytes(p->from_type);
}

static void naive(const dpari_stride_piece *p, unsigned char *to, unsigned char *from)
{
    int64_t index[DPARI_STRIDE_DIMS] = {0};
    int32_t d;
    for (d = 0; d < p->dims; d++) {
        if (p->extent[d] == 0) {
            return;
        }
    }
    do {
        int64_t t = 0, f = 0;
        uint64_t x;
        for (d = 0; d < p->dims; d++) {
            t += index[d] * p->to[d];
            f += index[d] * p->from[d];
        }
        t *= dpar_type_bytes(p->to_type);
        f *= dpar_type_bytes(p->from_type);
        x = get(from + f, p->from_type);
        if (narrows(p)) {
            x = convert(convert(x, p->through, p->from_type), p->to_type, p->through);
        } else {
            x = convert(x, p->to_type, p->from_type);
        }
        if (p->negate) {
            x = negated(x, p->to_type);
        }
        put(to + t, met(get(to + t, p->to_type), x, p->to_type, p->op), p->to_type);
        if (p->clear) {
            put(from + f, 0, p->from_type);
        }
        for (d = p->dims - 1; d >= 0 && ++index[d] == p->extent[d]; d--) {
            index[d] = 0;
        }
    } while (d >= 0);
}

/* ---- random pieces */

/* Stores floats of all magnitudes and some NaN (quiet, of either sign, with payloads), infinities
 * and subnormals. There are no zeros, because MAX and MIN may choose either +0 or -0. */
static void scatter_values(unsigned char *array, int32_t type)
{
    const int32_t size = dpar_type_bytes(type);
    for (int64_t at = 0; at + size <= ROOM; at += size) {
        uint64_t x = random_bits() & mask_of(type);
        if (type == DPAR_F64) {
            const uint64_t f = random_bits();
            x = f % 8 != 0 ? bits_f64((double)f32_of(f >> 32) * (1 + 1e-9)) : x;
            x |= (x & UINT64_C(0x7ff) << 52) == UINT64_C(0x7ff) << 52 ? UINT64_C(1) << 51 : 1;
        } else if (type == DPAR_F32) {
            x = x % 4 == 0 ? (x & 0x80ffffffu) | 0x3f000000u : x;
            x |= (x & 0x7f800000u) == 0x7f800000u ? 0x400000u : 1;
        } else if (type == DPAR_F16) {
            x |= (x & 0x7c00u) == 0x7c00u ? 0x200u : 1;
        } else if (type == DPAR_BF16) {
            x |= (x & 0x7f80u) == 0x7f80u ? 0x40u : 1;
        }
        put(array + at, x, type);
    }
}

/* Draws the strides of an array that contains the box: dims in random order with gaps. Returns the
 * offset of index 0 in elements, or -1 if the array is too large. */
static int64_t lay_out(const dpari_stride_piece *p, int64_t *stride, int64_t room)
{
    int32_t order[DPARI_STRIDE_DIMS], d;
    int64_t step = below(4) == 0 ? 1 + below(3) : 1, start = below(8);
    for (d = 0; d < p->dims; d++) {
        order[d] = d;
    }
    for (d = p->dims - 1; d > 0 && below(3) != 0; d--) {
        const int64_t k = below(d + 1);
        const int32_t swap = order[d];
        order[d] = order[k];
        order[k] = swap;
    }
    for (d = p->dims - 1; d >= 0; d--) {
        const int64_t n = p->extent[order[d]];
        const int back = below(4) == 0;
        stride[order[d]] = back ? -step : step;
        start += back && n > 0 ? (n - 1) * step : 0;
        step *= (n > 0 ? n : 1) + (below(3) == 0 ? below(5) : 0);
    }
    return step + start < room ? start : -1;
}

static void random_extents(dpari_stride_piece *p)
{
    int64_t most = 2048;
    p->dims = (int32_t)below(DPARI_STRIDE_DIMS + 1);
    for (int32_t d = 0; d < p->dims; d++) {
        int64_t n = 1 + below(below(3) == 0 ? 200 : 6);
        n = n > most ? most : n;
        most /= n;
        p->extent[d] = below(60) == 0 ? 0 : n;
    }
}

static void random_work(dpari_stride_piece *p)
{
    static const int32_t ops[] = {DPAR_COPY, DPAR_SUM, DPAR_MAX, DPAR_MIN};
    static const int32_t pairs[][2] = {{DPAR_F64, DPAR_F32}, {DPAR_F32, DPAR_F64},
                                       {DPAR_F32, DPAR_F16}, {DPAR_F32, DPAR_BF16},
                                       {DPAR_F16, DPAR_F32}, {DPAR_BF16, DPAR_F32}};
    p->op = below(2) == 0 ? DPAR_COPY : ops[below(4)];
    p->through = DPAR_F64;
    p->wide = wide_here & (int32_t)below(2);
    p->negate = below(3) == 0;
    p->clear = below(3) == 0;
    p->back = below(3) == 0;
    p->ahead = (int32_t)below(3);
    if (below(3) == 0) {
        const int64_t k = below(6);
        p->to_type = pairs[k][0];
        p->from_type = pairs[k][1];
    } else {
        p->to_type = p->from_type = types[below(TYPES)];
        if (p->to_type == DPAR_F64 && below(2) == 0) {
            p->through = DPAR_F32;
        } else if (p->to_type == DPAR_F32 && below(2) == 0) {
            p->through = below(2) == 0 ? DPAR_F16 : DPAR_BF16;
        }
    }
}

static unsigned char to_got[2][ROOM], to_want[2][ROOM], from_got[2][ROOM], from_want[2][ROOM];

static int random_piece(dpari_stride_piece *p, int64_t *to, int64_t *from)
{
    *to = lay_out(p, p->to, ROOM / dpar_type_bytes(p->to_type)) * dpar_type_bytes(p->to_type);
    *from =
        lay_out(p, p->from, ROOM / dpar_type_bytes(p->from_type)) * dpar_type_bytes(p->from_type);
    if (!p->clear && below(12) == 0) { /* fill */
        for (int32_t d = 0; d < p->dims; d++) {
            p->from[d] = 0;
        }
    }
    return *to >= 0 && *from >= 0;
}

static void values(int k, const dpari_stride_piece *p)
{
    scatter_values(to_got[k], p->to_type);
    scatter_values(from_got[k], p->from_type);
    memcpy(to_want[k], to_got[k], ROOM);
    memcpy(from_want[k], from_got[k], ROOM);
}

static void compare(int k, const dpari_stride_piece *p)
{
    const int same =
        memcmp(to_got[k], to_want[k], ROOM) == 0 && memcmp(from_got[k], from_want[k], ROOM) == 0;
    CHECK(same);
    if (!same) {
        printf("  dims %d, types %d <- %d through %d, op %d, negate %d, clear %d\n", p->dims,
               p->to_type, p->from_type, p->through, p->op, p->negate, p->clear);
        for (int32_t d = 0; d < p->dims; d++) {
            printf("  %lld: to %lld from %lld\n", (long long)p->extent[d], (long long)p->to[d],
                   (long long)p->from[d]);
        }
    }
}

/* Turns clearing off, as a halo exchange does after preparing if another piece clears the box. */
static void leave_alone(dpari_stride_piece *p, dpari_stride *s)
{
    p->clear = s->clear = 0;
}

static void one_piece(void)
{
    dpari_stride_piece p;
    dpari_stride s;
    int64_t to, from, elements = 1;
    memset(&p, 0, sizeof p);
    random_extents(&p);
    random_work(&p);
    if (!random_piece(&p, &to, &from)) {
        return;
    }
    values(0, &p);
    dpari_stride_prepare(&s, &p);
    if (below(4) == 0) {
        leave_alone(&p, &s);
    }
    for (int32_t d = 0; d < p.dims; d++) {
        elements *= p.extent[d];
    }
    CHECK_INT(s.elements, elements);
    for (int again = 0; again < 2; again++) {
        naive(&p, to_want[0] + to, from_want[0] + from);
        dpari_stride_run(&s, to_got[0] + to, from_got[0] + from);
    }
    compare(0, &p);
}

static void two_pieces(void)
{
    dpari_stride_piece p[2];
    dpari_stride s[2];
    int64_t to[2], from[2];
    const int alone = below(4) == 0;
    memset(p, 0, sizeof p);
    random_extents(&p[0]);
    random_work(&p[0]);
    p[1] = p[0];
    if (below(4) == 0) {
        random_extents(&p[1]);
        random_work(&p[1]);
    }
    for (int k = 0; k < 2; k++) {
        if (k == 1 && below(2) == 0 && memcmp(p[1].extent, p[0].extent, sizeof p[0].extent) == 0) {
            p[1] = p[0]; /* the same strides */
            to[1] = to[0];
            from[1] = from[0];
        } else if (!random_piece(&p[k], &to[k], &from[k])) {
            return;
        }
        values(k, &p[k]);
        dpari_stride_prepare(&s[k], &p[k]);
        if (alone) {
            leave_alone(&p[k], &s[k]);
        }
        naive(&p[k], to_want[k] + to[k], from_want[k] + from[k]);
    }
    dpari_stride_run_beside(&s[0], to_got[0] + to[0], from_got[0] + from[0], &s[1],
                            to_got[1] + to[1], from_got[1] + from[1]);
    compare(0, &p[0]);
    compare(1, &p[1]);
}

/* Stores a NaN with a payload, infinities, zeros and the largest value at some positions. */
static void special(unsigned char *array, int32_t type, int64_t first, int64_t places)
{
    static const uint64_t f64[] = {UINT64_C(0xfff8000000000123),
                                   UINT64_C(0x7ff) << 52,
                                   UINT64_C(0xfff) << 52,
                                   0,
                                   UINT64_C(1) << 63,
                                   UINT64_C(0x7fefffffffffffff)};
    static const uint64_t f32[] = {0xffc00123u, 0x7f800000u, 0xff800000u,
                                   0,           0x80000000u, 0x7f7fffffu};
    for (int64_t n = below(12); n > 0; n--) {
        const int64_t k = below(6);
        put(array + (first + below(places)) * dpar_type_bytes(type),
            type == DPAR_F64 ? f64[k] : f32[k], type);
    }
}

/* Computes the same sums, and clears the element p->beside after each one. */
static void naive_beside(const dpari_stride_piece *p, unsigned char *to, unsigned char *from)
{
    const int32_t size = dpar_type_bytes(p->to_type);
    naive(p, to, from);
    for (int64_t z = 0; z < p->extent[0]; z++) {
        for (int64_t y = 0; y < p->extent[1]; y++) {
            for (int64_t x = 0; x < p->extent[2]; x++) {
                const int64_t at = z * p->to[0] + y * p->to[1] + x * p->to[2];
                put(to + size * (at + p->beside), 0, p->to_type);
            }
        }
    }
}

/* Tests both ends of rows of a block whose halos are next to them, added from dense memory as an
 * adjoint does: each end separately and both in one call. Maxima do not clear the halo. */
static void beside(void)
{
    static const int32_t sums[] = {DPAR_F64, DPAR_F64, DPAR_F32, DPAR_I32};
    const int64_t w = 1 + below(7), own = 2 * w + below(9), row = own + 2 * w + below(40);
    dpari_stride_piece p[2];
    dpari_stride s[2];
    int64_t at[2], together = below(2), back = below(2);
    memset(p, 0, sizeof p);
    for (int k = 0; k < 2; k++) {
        p[k].dims = 3;
        p[k].to_type = p[k].from_type = p[k].through = sums[k == 0 ? below(4) : 0];
        p[k].op = below(4) == 0 ? DPAR_MAX : DPAR_SUM;
        p[k].back = (int32_t)back;
        p[k].ahead = (int32_t)below(3);
        p[k].extent[0] = 1 + below(3);
        p[k].extent[1] = 1 + below(40);
        p[k].extent[2] = w;
        if (k == 1) {
            p[1] = p[0];
        }
        p[k].beside = k == 0 ? -w : w;
        p[k].to[0] = row * (p[k].extent[1] + 2);
        p[k].to[1] = row;
        p[k].from[0] = w * p[k].extent[1];
        p[k].from[1] = w;
        p[k].to[2] = p[k].from[2] = 1;
        at[k] = (k == 0 ? w : own) * dpar_type_bytes(p[k].to_type);
        if (row * (p[k].extent[1] + 2) * p[k].extent[0] * 8 > ROOM) {
            return;
        }
        values(k, &p[k]);
        if (p[k].to_type != DPAR_I32) {
            special(to_got[k], p[k].to_type, 0, row * p[k].extent[1]);
            memcpy(to_want[k], to_got[k], ROOM);
        }
        dpari_stride_prepare(&s[k], &p[k]);
        if (s[k].beside != 0) {
            naive_beside(&p[k], to_want[k] + at[k], from_want[k]);
        } else {
            naive(&p[k], to_want[k] + at[k], from_want[k]);
        }
        CHECK(s[k].beside == 0 || p[k].op == DPAR_SUM);
        CHECK(!DPARI_STRIDE_ADDS || s[k].beside != 0 || p[k].op != DPAR_SUM ||
              p[k].to_type == DPAR_I32);
        if (!together) {
            dpari_stride_run(&s[k], to_got[k] + at[k], from_got[k]);
        }
    }
    if (together) {
        dpari_stride_run_beside(&s[0], to_got[0] + at[0], from_got[0], &s[1], to_got[1] + at[1],
                                from_got[1]);
    }
    compare(0, &p[0]);
    compare(1, &p[1]);
}

/* Tests sums along contiguous rows, at each position in a cache line, with vectors of both
 * sizes. */
static void rows_of_sums(void)
{
    dpari_stride_piece p;
    dpari_stride s;
    const int64_t to = below(40), from = below(40);
    int32_t size;
    memset(&p, 0, sizeof p);
    p.dims = 2;
    p.to_type = p.from_type = p.through = below(2) ? DPAR_F64 : DPAR_F32;
    p.op = DPAR_SUM;
    p.clear = (int32_t)below(2);
    p.wide = wide_here & (int32_t)below(2);
    p.extent[0] = 1 + below(9);
    p.extent[1] = 16 + below(150);
    p.to[0] = p.extent[1] + below(20);
    p.from[0] = p.extent[1] + below(20);
    p.to[1] = p.from[1] = 1;
    size = dpar_type_bytes(p.to_type);
    values(0, &p);
    special(to_got[0], p.to_type, to, p.to[0] * p.extent[0]);
    special(from_got[0], p.to_type, from, p.from[0] * p.extent[0]);
    memcpy(to_want[0], to_got[0], ROOM);
    memcpy(from_want[0], from_got[0], ROOM);
    dpari_stride_prepare(&s, &p);
    naive(&p, to_want[0] + to * size, from_want[0] + from * size);
    dpari_stride_run(&s, to_got[0] + to * size, from_got[0] + from * size);
    compare(0, &p);
}

/* Tests sums of such rows where the address that is read and the one that is written differ by
 * about a multiple of 4 KiB. Before the middle of `to` the addresses differ in bits 19 and 24 as
 * well, after it in bits 20 and 24; for the first-level cache they are the same. Returns 1 if there
 * were such rows, otherwise 0. */
static int rows_of_twins(unsigned char *space)
{
    dpari_stride_piece p;
    dpari_stride s;
    unsigned char *to = space + ((1 << 19) - ROOM / 2), *from;
    const int64_t start = below(40);
    int32_t size;
    int met = 0;
    memset(&p, 0, sizeof p);
    p.dims = 2;
    p.to_type = p.from_type = p.through = below(2) ? DPAR_F64 : DPAR_F32;
    size = dpar_type_bytes(p.to_type);
    from = to + ((1 << 24) + (1 << 19)) + (below(160) - 80) * size;
    p.op = DPAR_SUM;
    p.clear = below(4) != 0;
    p.back = (int32_t)below(2);
    p.wide = wide_here & (int32_t)below(2);
    p.extent[0] = 1 + below(40);
    p.extent[1] = below(3) ? 8 + below(150) : 8 + below(1500);
    p.to[0] = p.extent[1] + below(20);
    p.from[0] = below(8) ? p.to[0] : p.extent[1] + below(20);
    p.to[1] = p.from[1] = 1;
    if ((start + p.extent[0] * (p.extent[1] + 20)) * size > ROOM) {
        return 0;
    }
    values(0, &p);
    special(from_got[0], p.to_type, start, p.from[0] * p.extent[0]);
    memcpy(from_want[0], from_got[0], ROOM);
    memcpy(to, to_got[0], ROOM);
    memcpy(from, from_got[0], ROOM);
    dpari_stride_prepare(&s, &p);
    naive(&p, to_want[0] + start * size, from_want[0] + start * size);
    dpari_stride_run(&s, to + start * size, from + start * size);
    memcpy(to_got[0], to, ROOM);
    memcpy(from_got[0], from, ROOM);
    compare(0, &p);
#if DPARI_STRIDE_VECTOR
    met = dpari_stride_twins(to + 2048, from + 2048) &&
          !dpari_stride_twins(to + ROOM - 2048, from + ROOM - 2048);
#endif
    return met;
}

/* Tests copies of rows of 65 bytes and more, of each length and from any address, also as a list.
 * Returns 1 if vectors of 32 bytes copied them, otherwise 0. */
static int rows_of_copies(void)
{
    dpari_stride_piece p;
    dpari_stride s;
    dpari_stride_spot list[DPARI_STRIDE_FEW];
    const int64_t to = below(70), from = below(70);
    int32_t n;
    memset(&p, 0, sizeof p);
    p.dims = 2;
    p.to_type = p.from_type = p.through = DPAR_U8;
    p.clear = below(4) == 0;
    p.back = (int32_t)below(2);
    p.wide = wide_here & (below(4) > 0);
    p.extent[0] = 1 + below(5);
    p.extent[1] = below(2) ? 65 + below(300) : 65 + below(1100);
    p.to[0] = p.extent[1] + 1 + below(70);
    p.from[0] = p.extent[1] + 1 + below(70);
    p.to[1] = p.from[1] = 1;
    values(0, &p);
    dpari_stride_prepare(&s, &p);
    naive(&p, to_want[0] + to, from_want[0] + from);
    n = dpari_stride_list(&s, to, from, list);
    CHECK(n == 0 || (n == p.extent[0] && !p.clear));
    if (n > 0) {
        dpari_stride_run_list(&s, list, n, to_got[0], from_got[0]);
    } else {
        dpari_stride_run(&s, to_got[0] + to, from_got[0] + from);
    }
    compare(0, &p);
    return s.loop == DPARI_STRIDE_MIDDLE;
}

/* Adds the halos of a block that is its own neighbour to its ends: |h x ... y g| in one array.
 * Returns 1 if one vector covers each end, otherwise 0. */
static int around(void)
{
    dpari_stride_piece p[2];
    dpari_stride s[2];
    unsigned char *to[2], *from[2];
    const int64_t w = 1 + below(5) % 3, n = w + below(5) * below(9), pitch = n + 2 * w + below(5);
    const int64_t start = below(8), swapped = below(2), dim = 1 + below(2);
    const int64_t step = dim == 2 ? 1 : n + 2 + below(3);
    dpari_stride_pair k;
    memset(p, 0, sizeof p);
    p[0].dims = 3;
    p[0].to_type = p[0].from_type = p[0].through = below(4) ? DPAR_F64 : DPAR_F32;
    p[0].op = DPAR_SUM;
    p[0].clear = 1;
    p[0].wide = wide_here & (int32_t)below(2);
    p[0].extent[0] = 1 + below(3);
    p[0].extent[1] = dim == 1 ? w : 1 + below(50);
    p[0].extent[2] = dim == 2 ? w : 1 + below(n);
    p[0].to[1] = dim == 1 ? step : pitch;
    p[0].to[0] = (dim == 1 ? (n + 2 * w) * step : p[0].extent[1] * pitch) + below(3);
    p[0].to[2] = 1;
    memcpy(p[0].from, p[0].to, sizeof p[0].to);
    p[1] = p[0];
    values(0, &p[0]);
    special(to_got[0], p[0].to_type, start, 200);
    memcpy(to_want[0], to_got[0], ROOM);
    for (int i = 0; i < 2; i++) {
        const int low = (i == 0) != (swapped != 0); /* adds the low halo to the high end */
        const int64_t size = dpar_type_bytes(p[i].to_type);
        to[i] = to_got[0] + (start + (low ? n : w) * step) * size;
        from[i] = to_got[0] + (start + (low ? 0 : n + w) * step) * size;
        dpari_stride_prepare(&s[i], &p[i]);
        naive(&p[i], to_want[0] + (to[i] - to_got[0]), to_want[0] + (from[i] - to_got[0]));
    }
    if (n >= 2 * w) { /* x and y do not overlap */
        dpari_stride_run_beside(&s[0], to[0], from[0], &s[1], to[1], from[1]);
        CHECK(memcmp(to_got[0], to_want[0], ROOM) == 0);
    }
    if (!dpari_stride_pairs(&s[0], &s[1])) {
        return 0;
    }
    dpari_stride_pair_of(&k, &s[0], to, (const unsigned char *const *)from, &s[1]);
    CHECK_INT(k.round != NULL, DPARI_STRIDE_VECTOR && dim == 2 && n >= 2 * w &&
                                   (w == 1 || s[0].loop == DPARI_STRIDE_SUM_F32_2 ||
                                    (s[0].loop == DPARI_STRIDE_SUM_F64_2 && s[0].wide)));
    for (int by = 0; by < 2 && k.round; by++) { /* rows or planes have another length on one side */
        dpari_stride_pair other = k;
        other.a.from_step += 8 * by;
        other.a.from_row += 8 * !by;
        CHECK(!dpari_stride_goes_round(&other, (uintptr_t)s[0].run));
    }
    return k.round && w == 1;
}

/* Copies the halos at both ends of rows, from the block's other end or from dense memory. Returns
 * the loop that handled both sides alternately; 0 if none did. */
static int32_t both_ends(void)
{
    static const int32_t kinds[] = {DPAR_U8, DPAR_BF16, DPAR_F32, DPAR_F64};
    dpari_stride_piece p[2];
    dpari_stride s[2];
    const int32_t type = kinds[below(4)];
    const int64_t size = dpar_type_bytes(type), most = below(2) ? 8 : 64 / size;
    const int64_t w = 1 + below(dpari_least(most, 64 / size)), n = w + below(9);
    const int64_t pitch = n + 2 * w + below(5), rows = 33 + below(40), dense = below(2);
    unsigned char *to[2];
    const unsigned char *from[2];
    memset(p, 0, sizeof p);
    p[0].dims = 3;
    p[0].to_type = p[0].from_type = p[0].through = type;
    p[0].wide = wide_here;
    p[0].back = (int32_t)below(2);
    p[0].ahead = dense ? DPARI_STRIDE_FROM : 0;
    p[0].clear = dense && below(2);
    p[0].extent[0] = 1 + below(3);
    p[0].extent[1] = rows;
    p[0].extent[2] = w;
    p[0].to[1] = pitch;
    p[0].to[0] = pitch * rows + below(3);
    p[0].to[2] = p[0].from[2] = 1;
    p[0].from[1] = dense ? w : pitch;
    p[0].from[0] = dense ? w * rows : p[0].to[0];
    p[1] = p[0];
    if (p[0].to[0] * p[0].extent[0] * size > ROOM) {
        return 0;
    }
    values(0, &p[0]);
    for (int i = 0; i < 2; i++) {
        const int64_t here = (i == 0 ? 0 : n + w) * size, there = (i == 0 ? n : w) * size;
        const int64_t packed = i * w * rows * p[0].extent[0] * size;
        to[i] = to_got[0] + here;
        from[i] = dense ? from_got[0] + packed : to_got[0] + there;
        dpari_stride_prepare(&s[i], &p[i]);
        naive(&p[i], to_want[0] + here, dense ? from_want[0] + packed : to_want[0] + there);
    }
    dpari_stride_run_beside(&s[0], to[0], from[0], &s[1], to[1], from[1]);
    compare(0, &p[0]);
    return dpari_stride_pairs(&s[0], &s[1]) ? s[0].loop : 0;
}

/* Tests runs of a box that another core will read densely, by itself or with the opposite side. */
static int64_t packed(void)
{
    static const int32_t kinds[] = {DPAR_F64, DPAR_F32, DPAR_U8};
    const int64_t w = 1 + below(4), pitch = w + below(40), rows = 1 + below(150);
    dpari_stride_piece p[2];
    dpari_stride s[2];
    const int64_t together = below(2);
    memset(p, 0, sizeof p);
    for (int k = 0; k < 2; k++) {
        p[k].dims = 3;
        p[k].to_type = p[k].from_type = p[k].through = kinds[below(3)];
        p[k].clear = below(3) == 0;
        p[k].ahead = DPARI_STRIDE_TO;
        p[k].extent[0] = 1 + below(20);
        p[k].extent[1] = rows;
        p[k].extent[2] = w;
        p[k].to[0] = w * rows;
        p[k].to[1] = w;
        p[k].from[0] = pitch * rows + below(9);
        p[k].from[1] = pitch;
        p[k].to[2] = p[k].from[2] = 1;
        if (k == 1) {
            p[1] = p[0];
        }
        if (p[k].from[0] * p[k].extent[0] * 8 > ROOM) {
            return 0;
        }
        values(k, &p[k]);
        dpari_stride_prepare(&s[k], &p[k]);
        naive(&p[k], to_want[k], from_want[k]);
        if (!together) {
            dpari_stride_run(&s[k], to_got[k], from_got[k]);
        }
    }
    if (together) {
        dpari_stride_run_beside(&s[0], to_got[0], from_got[0], &s[1], to_got[1], from_got[1]);
    }
    compare(0, &p[0]);
    compare(1, &p[1]);
    return s[0].packs != 0;
}

/* Copies and clears runs of 1 to 300 bytes at each alignment. */
static void runs(void)
{
    for (int64_t n = 1; n <= 300; n++) {
        for (int32_t clear = 0; clear < 2; clear++) {
            dpari_stride_piece p;
            dpari_stride s;
            const int64_t to = below(64), from = below(64);
            memset(&p, 0, sizeof p);
            p.dims = 2;
            p.to_type = p.from_type = DPAR_U8;
            p.clear = clear;
            p.extent[0] = 7;
            p.extent[1] = n;
            p.to[1] = p.from[1] = 1;
            p.to[0] = n + 1 + below(9);
            p.from[0] = n + 1 + below(9);
            values(0, &p);
            dpari_stride_prepare(&s, &p);
            CHECK_INT(s.run, n);
            naive(&p, to_want[0] + to, from_want[0] + from);
            dpari_stride_run(&s, to_got[0] + to, from_got[0] + from);
            compare(0, &p);
        }
    }
}

/* Tests a 4-d box with its components in contiguous rows: it must become one run. */
static void merged(void)
{
    dpari_stride_piece p;
    dpari_stride s;
    memset(&p, 0, sizeof p);
    p.dims = 4;
    p.to_type = p.from_type = DPAR_F64;
    p.extent[0] = 3, p.extent[1] = 4, p.extent[2] = 5, p.extent[3] = 2;
    p.to[0] = p.from[0] = 40;
    p.to[1] = p.from[1] = 10;
    p.to[2] = p.from[2] = 2;
    p.to[3] = p.from[3] = 1;
    dpari_stride_prepare(&s, &p);
    CHECK_INT(s.run, 3 * 4 * 5 * 2 * 8);
    p.from[0] = 41; /* three runs */
    dpari_stride_prepare(&s, &p);
    CHECK_INT(s.run, 4 * 5 * 2 * 8);
    for (int32_t d = 0; d < 4; d++) { /* backwards in both arrays, which is the same as forwards */
        p.from[d] = -p.to[d];
        p.to[d] = -p.to[d];
    }
    dpari_stride_prepare(&s, &p);
    CHECK_INT(s.run, 3 * 4 * 5 * 2 * 8);
    p.from[3] = 1; /* a fold */
    dpari_stride_prepare(&s, &p);
    CHECK_INT(s.run, 8);
}

/* Returns how many entries a small box has: for a plain copy one per run, for a sum of floats one
 * per element or per few elements (then -1), and none for pieces that use a buffer. */
static int64_t entries(const dpari_stride_piece *p, const dpari_stride *s)
{
    const int64_t runs = s->run > 0 ? s->elements * dpar_type_bytes(p->to_type) / s->run : 0;
    if (p->to_type != p->from_type || narrows(p) || p->negate) {
        return 0;
    }
    if (p->op == DPAR_COPY) {
        return runs <= DPARI_STRIDE_FEW && s->run <= (p->wide ? 1024 : 64) &&
                       (!p->clear || s->run <= 64)
                   ? runs
                   : 0;
    }
#if defined(__i386__) && !defined(__SSE2_MATH__) /* rounds when it stores */
    return 0;
#else
    return p->op == DPAR_SUM && (p->to_type == DPAR_F64 || p->to_type == DPAR_F32) ? -1 : 0;
#endif
}

/* Puts a small box, and the same at other positions, into one list, with any addresses. */
static void in_a_list(void)
{
    enum { HALF = ROOM / 2 };
    dpari_stride_piece p;
    dpari_stride s;
    dpari_stride_spot list[2 * DPARI_STRIDE_FEW];
    int64_t to, from, want, n = 0;
    const int64_t to_base = below(HALF), from_base = below(HALF);
    memset(&p, 0, sizeof p);
    p.dims = (int32_t)below(5);
    for (int32_t d = 0; d < p.dims; d++) {
        p.extent[d] = below(20) == 0 ? 0 : 1 + below(3);
    }
    random_work(&p);
    to = lay_out(&p, p.to, HALF / dpar_type_bytes(p.to_type)) * dpar_type_bytes(p.to_type);
    from = lay_out(&p, p.from, HALF / dpar_type_bytes(p.from_type)) * dpar_type_bytes(p.from_type);
    if (to < 0 || from < 0) {
        return;
    }
    values(0, &p);
    dpari_stride_prepare(&s, &p);
    want = entries(&p, &s);
    for (int k = 0; k < 2; k++) {
        const int32_t m =
            dpari_stride_list(&s, to + k * HALF - to_base, from + k * HALF - from_base, list + n);
        if (want >= 0) {
            CHECK_INT(m, want);
        } else {
            CHECK(m <= s.elements && (m > 0 || s.elements == 0 || s.elements > DPARI_STRIDE_FEW));
        }
        n += m;
        if (m > 0) {
            naive(&p, to_want[0] + to + k * HALF, from_want[0] + from + k * HALF);
        }
    }
    dpari_stride_run_list(&s, list, n, to_got[0] + to_base, from_got[0] + from_base);
    compare(0, &p);
}

/* Checks what cannot share a list: offsets that need more than 31 bits and a sign, and boxes with
 * other runs or other work. */
static void no_list(void)
{
    const int64_t most = INT32_MAX;
    dpari_stride_piece p;
    dpari_stride s, other;
    dpari_stride_spot list[DPARI_STRIDE_FEW];
    memset(&p, 0, sizeof p);
    p.dims = 1;
    p.to_type = p.from_type = DPAR_F64;
    p.extent[0] = 2;
    p.to[0] = p.from[0] = 3;
    dpari_stride_prepare(&s, &p);
    CHECK_INT(dpari_stride_list(&s, most - 24, -most - 1, list), 2);
    CHECK_INT(list[1].to, most);
    CHECK_INT(list[0].from, -most - 1);
    CHECK_INT(dpari_stride_list(&s, most - 23, 0, list), 0);
    CHECK_INT(dpari_stride_list(&s, 0, most - 23, list), 0);
    CHECK_INT(dpari_stride_list(&s, -most - 2, 0, list), 0);
    CHECK_INT(dpari_stride_list(&s, 0, -most - 2, list), 0);
    CHECK(dpari_stride_lists_alike(&s, &s));
    p.clear = 1;
    dpari_stride_prepare(&other, &p);
    CHECK(!dpari_stride_lists_alike(&s, &other));
    p.clear = 0;
    p.op = DPAR_SUM;
    dpari_stride_prepare(&other, &p);
    CHECK(!dpari_stride_lists_alike(&s, &other));
    p.op = DPAR_COPY;
    p.to_type = p.from_type = p.through = DPAR_U8;
    for (int64_t run = 33; run < 36; run++) { /* the same loop for all of them */
        p.dims = 2;
        p.extent[1] = run;
        p.to[1] = p.from[1] = 1;
        p.to[0] = p.from[0] = 100;
        other = s;
        dpari_stride_prepare(&s, &p);
        CHECK(!dpari_stride_lists_alike(&s, &other));
        CHECK(!dpari_stride_pairs(&s, &other));
    }
}

int main(void)
{
    int64_t packs = 0, rounds = 0, middles = 0, twins = 0, ends[DPARI_STRIDE_LONG] = {0};
    unsigned char *all = malloc(1 << 26), *space = all + (1 << 25) - (uintptr_t)all % (1 << 25);
    CHECK(all != NULL);
    wide_here = dpari_cpu_wide() != 0;
    for (int k = 0; k < 12000; k++) {
        one_piece();
    }
    for (int k = 0; k < 3000; k++) {
        two_pieces();
        beside();
    }
    for (int k = 0; k < 2000; k++) {
        in_a_list();
    }
    for (int k = 0; k < 3000; k++) {
        packs += packed();
    }
    CHECK(packs > 200);
    for (int k = 0; k < 2000; k++) {
        rows_of_sums();
        middles += rows_of_copies();
        rounds += around();
        twins += rows_of_twins(space);
        ends[both_ends()]++;
    }
    for (int32_t loop = DPARI_STRIDE_1; loop < DPARI_STRIDE_LONG; loop++) {
        CHECK(dpari_stride_has_pair(loop) ? ends[loop] > 5 : ends[loop] == 0);
    }
    free(all);
    CHECK(!DPARI_STRIDE_VECTOR || twins > 1000);
    CHECK(!DPARI_STRIDE_VECTOR || rounds > 100);
    CHECK(!wide_here || middles > 1000);
    no_list();
    runs();
    merged();
    return CHECK_DONE();
}
