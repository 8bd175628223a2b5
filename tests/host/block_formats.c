/* SPDX-License-Identifier: MIT-0 */
/* Tests quantization to the block formats of tensor cores (layers.h) in host memory. Values of
 * codes follow the definitions in OCP's 8-bit floats and Microscaling Formats 1.0. Expected codes
 * come from a search for the nearest of all codes, in double; expected scales from log2 and that
 * search; stochastic rounding follows the rule in layers.h. Tested are ties and their neighbours,
 * blocks that are all zeros, contain a NaN, or are too large or too small for their scale, and odd
 * lengths. Bytes after an output must not change. */
#include "dpar_train.h"

#include "elements.h"

static dpar_mem_layers host;

/* ---- the formats by definition */

typedef struct format {
    /* numbers of bits; the bias; exponent of the largest value; block length */
    int32_t id, exponent, mantissa, bias, most, block;
    double largest;
} format;

static const format formats[4] = {{DPAR_MEM_MXFP8, 4, 3, 7, 8, 32, 448.0},
                                  {DPAR_MEM_MXFP8_E5M2, 5, 2, 15, 15, 32, 57344.0},
                                  {DPAR_MEM_MXFP4, 2, 1, 1, 2, 32, 6.0},
                                  {DPAR_MEM_NVFP4, 2, 1, 1, 2, 16, 6.0}};

static int bits_of(const format *f)
{
    return 1 + f->exponent + f->mantissa;
}

/* Returns the value of a code. e4m3 has no infinity and one NaN of each sign; e5m2 is as in IEEE
 * 754; e2m1 has only finite numbers. */
static double value_of(const format *f, int code)
{
    const int top = 1 << f->exponent, e = code >> f->mantissa & (top - 1);
    const int m = code & ((1 << f->mantissa) - 1);
    const double sign = code >> (f->exponent + f->mantissa) & 1 ? -1.0 : 1.0;
    const double part = ldexp((double)m, -f->mantissa);
    if (f->exponent == 4 && e == 15 && m == 7) {
        return (double)NAN;
    }
    if (f->exponent == 5 && e == 31) {
        return m == 0 ? sign * (double)INFINITY : (double)NAN;
    }
    return sign * (e == 0 ? ldexp(part, 1 - f->bias) : ldexp(1.0 + part, e - f->bias));
}

/* Returns the finite code nearest to a magnitude; of two equally near codes the even one. */
static int nearest(const format *f, double size)
{
    int code, best = 0;
    size = size > f->largest ? f->largest : size;
    for (code = 1; code < 1 << (bits_of(f) - 1); code++) {
        const double v = value_of(f, code), d = fabs(v - size);
        const double b = fabs(value_of(f, best) - size);
        if (v <= f->largest && (d < b || (d <= b && code % 2 == 0))) {
            best = code;
        }
    }
    return best;
}

/* Rounds stochastically: up if the first cut-off digits plus those of the random word reach 1. */
static int by_lot(const format *f, double size, uint32_t word)
{
    const int digits = 23 - f->mantissa;
    const double one = ldexp(1.0, digits);
    double low, part;
    int code = 0;
    while (value_of(f, code) < f->largest && value_of(f, code + 1) <= size) {
        code++;
    }
    low = value_of(f, code);
    if (low >= f->largest) {
        return code;
    }
    part = floor((size - low) / (value_of(f, code + 1) - low) * one);
    return code + (part + (double)(word >> (32 - digits)) >= one);
}

static void tables(void)
{
    static const double e2m1[16] = {0.0, 0.5,  1.0,  1.5,  2.0,  3.0,  4.0,  6.0,
                                    0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0};
    int i;
    for (i = 0; i < 16; i++) {
        CHECK_NEAR(value_of(&formats[2], i), e2m1[i], 0.0);
    }
    /* the limits that the specifications name */
    CHECK_NEAR(value_of(&formats[0], 0x7e), 448.0, 0.0);
    CHECK_NEAR(value_of(&formats[0], 0x08), 0.015625, 0.0);
    CHECK_NEAR(value_of(&formats[0], 0x07), 0.875 * 0.015625, 0.0);
    CHECK_NEAR(value_of(&formats[0], 0x01), 0.001953125, 0.0);
    CHECK_NEAR(value_of(&formats[1], 0x7b), 57344.0, 0.0);
    CHECK_NEAR(value_of(&formats[1], 0x04), ldexp(1.0, -14), 0.0);
    CHECK_NEAR(value_of(&formats[1], 0x03), ldexp(0.75, -14), 0.0);
    CHECK_NEAR(value_of(&formats[1], 0x01), ldexp(1.0, -16), 0.0);
}

/* ---- one array */

typedef struct lot {
    dpar_mem_quantize q;
    unsigned char code[64 * 40], scale[64];
    float tensor;
} lot;

static void lot_init(lot *l, const format *f, int32_t type, int64_t count, void *x, int tensor)
{
    memset(l, 0, sizeof *l);
    memset(l->code, 0xee, sizeof l->code);
    memset(l->scale, 0xee, sizeof l->scale);
    l->tensor = 0.37f;
    l->q.x = x;
    l->q.count = count;
    l->q.type = type;
    l->q.format = f->id;
    l->q.code = l->code;
    l->q.scale = l->scale;
    l->q.code_step = f->block * bits_of(f) / 8 + (tensor ? 3 : 0);
    l->q.scale_step = 1;
    l->q.tensor = tensor ? &l->tensor : NULL;
}

static int code_at(const lot *l, const format *f, int64_t i)
{
    const unsigned char *at = l->code + i / f->block * l->q.code_step;
    const int64_t k = i % f->block;
    return bits_of(f) == 8 ? at[k] : k % 2 == 0 ? at[k / 2] & 15 : at[k / 2] >> 4;
}

/* Returns the number that the codes of element i's block are multiples of. */
static float unit_at(const lot *l, const format *f, int64_t i)
{
    const int scale = l->scale[i / f->block];
    if (f->block == 32) {
        return scale == 255 ? NAN : (float)ldexp(1.0, scale - 127);
    }
    return l->q.tensor != NULL ? (float)value_of(&formats[0], scale) * l->tensor
                               : (float)value_of(&formats[0], scale);
}

/* Returns the scale that block b should have. */
static int scale_for(const lot *l, const format *f, int64_t b)
{
    double most = 0.0;
    int64_t i;
    int e;
    for (i = b * f->block; i < (b + 1) * f->block && i < l->q.count; i++) {
        const double v = fabs((double)(float)read_at(l->q.x, i, l->q.type));
        if (v - v != 0.0) {
            return f->block == 32 ? 255 : 127;
        }
        most = v > most ? v : most;
    }
    if (f->block == 32) {
        e = most > 0.0 ? ilogb(most) - f->most : -127;
        return e < -127 ? 0 : e + 127;
    }
    return nearest(&formats[0], l->q.tensor != NULL ? (double)((float)most / 6.0f / l->tensor)
                                                    : (double)((float)most / 6.0f));
}

/* Quantizes and compares all codes and scales. */
static void check_codes(lot *l, const format *f)
{
    const dpar_mem_quantize *q = &l->q;
    const int64_t blocks = (q->count + f->block - 1) / f->block, bytes = bits_of(f) * f->block / 8;
    int64_t i, wrong = 0;
    CHECK_INT(host.quantize(NULL, q), DPAR_OK);
    for (i = 0; i < q->count; i++) {
        const int want = scale_for(l, f, i / f->block);
        const float unit = unit_at(l, f, i), x = (float)read_at(q->x, i, q->type);
        const double size = fabs((double)(x / unit));
        const uint32_t word =
            (uint32_t)(dpar_random_uniform(q->seed, q->stream, q->index + (uint64_t)i) *
                       4294967296.0);
        int code = !(unit > 0.0f) ? 0 : q->stochastic ? by_lot(f, size, word) : nearest(f, size);
        code |= code != 0 && x < 0.0f ? 1 << (bits_of(f) - 1) : 0;
        wrong += l->scale[i / f->block] != want || code_at(l, f, i) != code;
    }
    for (i = 0; i < (int64_t)sizeof l->code; i++) { /* bytes between the blocks and after them */
        const int64_t b = i / q->code_step, k = i % q->code_step * 8 / bits_of(f);
        if (i % q->code_step >= bytes || b * f->block + k >= q->count) {
            wrong += l->code[i] != 0xee;
        }
    }
    /* the unused half byte after an odd number of codes */
    if (q->count % 2 != 0 && bits_of(f) == 4) {
        wrong += code_at(l, f, q->count) != 0;
    }
    for (i = blocks; i < 64; i++) {
        wrong += l->scale[i] != 0xee;
    }
    CHECK_INT(wrong, 0);
}

/* Converts the codes back and compares the values. */
static void check_values(const lot *l, const format *f, int add)
{
    double y[MOST], was[MOST];
    dpar_mem_quantize q = l->q;
    int64_t i;
    int wrong = 0;
    fill(y, q.count + GUARD, q.type);
    memcpy(was, y, sizeof was);
    q.x = y;
    q.accumulate = add;
    CHECK_INT(host.dequantize(NULL, &q), DPAR_OK);
    for (i = 0; i < q.count + GUARD; i++) {
        const double old = read_at(was, i, q.type);
        const double v =
            i < q.count ? (double)((float)value_of(f, code_at(l, f, i)) * unit_at(l, f, i)) : 0.0;
        wrong +=
            !same(read_at(y, i, q.type), i < q.count ? rounded(add ? old + v : v, q.type) : old);
    }
    CHECK_INT(wrong, 0);
}

static void random_case(const format *f, int32_t type, int64_t count, int stochastic, int tensor)
{
    static double x[MOST];
    lot l;
    int64_t i;
    fill(x, count, type);
    lot_init(&l, f, type, count, x, tensor);
    l.q.stochastic = stochastic;
    l.q.seed = random_bits();
    l.q.stream = random_bits();
    l.q.index = count % 2 != 0 ? random_bits() : UINT64_C(0x3fffffff0);
    for (i = 0; i < count; i++) { /* some blocks are zeros, some small or large, one has a NaN */
        const double v = read_at(x, i, type), part = i % 7 == 0 ? 1e-3 : i % 5 == 0 ? 0.05 : 1.0;
        const double by[6] = {1.0,
                              0.0,
                              type == DPAR_F64 || type == DPAR_F32 ? 1e-37 : 1e-4,
                              type == DPAR_F16 ? 1e4 : 1e30,
                              1e-6,
                              100.0};
        write_at(x, i, type, v * part * by[i / f->block % 6]);
    }
    if (count > 100) {
        write_at(x, 100, type, (double)(count % 2 != 0 ? INFINITY : NAN));
    }
    check_codes(&l, f);
    check_values(&l, f, 0);
    check_values(&l, f, 1);
}

/* Tests the midpoints between two codes and the floats next to them, in blocks whose scale is 1. */
static void ties(const format *f, int stochastic)
{
    static float x[MOST];
    const int codes = 1 << (bits_of(f) - 1);
    int64_t count = 0;
    lot l;
    int code, way;
    for (code = 0; code + 1 < codes; code++) {
        for (way = -1; way <= 1 && value_of(f, code + 1) <= f->largest; way++) {
            const float half = (float)(0.5 * (value_of(f, code) + value_of(f, code + 1)));
            if (count % f->block == 0) {
                x[count++] = (float)f->largest;
            }
            x[count] = way == 0 ? half : nextafterf(half, way < 0 ? 0.0f : 1e9f);
            x[count] = count % 2 != 0 ? -x[count] : x[count];
            count++;
        }
    }
    lot_init(&l, f, DPAR_F32, count, x, 0);
    l.q.stochastic = stochastic;
    l.q.seed = 11;
    check_codes(&l, f);
    CHECK_INT(l.scale[0], f->block == 32 ? 127 : 0x38); /* the code of scale 1 */
}

/* Tests all codes with all scales. */
static void all_values(const format *f, int tensor)
{
    static double x[MOST];
    const int64_t bytes = f->block * bits_of(f) / 8;
    lot l;
    int scale, first, i;
    for (scale = 0; scale < 256; scale++) {
        if (f->block == 16 && scale > 127) {
            break; /* the sign of an e4m3 scale is ignored */
        }
        for (first = 0; first < 256; first += (int)bytes) {
            lot_init(&l, f, scale % 2 ? DPAR_F64 : DPAR_F32, f->block, x, tensor);
            for (i = 0; i < bytes; i++) {
                l.code[i] = (unsigned char)(first + i);
            }
            l.scale[0] = (unsigned char)scale;
            check_values(&l, f, 0);
        }
    }
}

/* Checks that the mean of stochastic roundings is the number itself. */
static void means(const format *f)
{
    enum { TURNS = 4000 };
    float x[32], y[32];
    double sum = 0.0;
    lot l;
    int i;
    for (i = 0; i < 32; i++) {
        x[i] = i % 16 == 0 ? (float)f->largest : 0.3f;
    }
    for (i = 0; i < TURNS; i++) {
        lot_init(&l, f, DPAR_F32, f->block, x, 0);
        l.q.stochastic = 1;
        l.q.stream = (uint64_t)i;
        CHECK_INT(host.quantize(NULL, &l.q), DPAR_OK);
        l.q.x = y;
        CHECK_INT(host.dequantize(NULL, &l.q), DPAR_OK);
        sum += (double)y[1] + (double)y[15];
    }
    CHECK_NEAR(sum / (2.0 * TURNS), 0.3, 0.02);
}

static void refused(const format *f)
{
    float x[32] = {0.0f};
    dpar_mem_quantize q;
    lot l;
    lot_init(&l, f, DPAR_F32, 32, x, 0);
    q = l.q;
    CHECK_INT(host.quantize(NULL, &q), DPAR_OK);
    CHECK_INT(l.scale[0], 0);
    q.code_step--;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
    CHECK_INT(host.dequantize(NULL, &q), DPAR_E_ARG);
    q = l.q;
    q.scale_step = 0;
    CHECK_INT(host.dequantize(NULL, &q), DPAR_E_ARG);
    q = l.q;
    q.format = f->id < DPAR_MEM_NVFP4 ? -f->id : DPAR_MEM_NVFP4 + 1;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
    q = l.q;
    q.stochastic = 2;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
    q = l.q;
    q.accumulate = 1;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
    q = l.q;
    q.scale = NULL;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
    q.count = 0;
    CHECK_INT(host.quantize(NULL, &q), DPAR_OK);
    q.type = DPAR_I8;
    CHECK_INT(host.quantize(NULL, &q), DPAR_E_ARG);
}

int main(void)
{
    int i, k;
    host = dpar_mem_host_layers();
    tables();
    for (k = 0; k < 4; k++) {
        const format *f = &formats[k];
        for (i = 0; i < 4 * COUNTS * 2; i++) {
            random_case(f, floats[i % 4], counts[i / 4 % COUNTS], i / 4 / COUNTS, 0);
            if (f->block == 16) {
                random_case(f, floats[i % 4], counts[i / 4 % COUNTS], i / 4 / COUNTS, 1);
            }
        }
        ties(f, 0);
        ties(f, 1);
        all_values(f, 0);
        means(f);
        refused(f);
    }
    all_values(&formats[3], 1);
    return CHECK_DONE();
}
