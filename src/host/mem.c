/* SPDX-License-Identifier: MIT-0 */
/* Implements the operations of mem.h in the host's memory as plain loops, which define what the
 * functions of a device must compute, bit for bit. */
#include "mem.h"

#include "../base/base_private.h"
#include "elements.h"
#include "kernel.h"
#include "mem_private.h"

/* ---- boxes ----------------------------------------------------------------------------------- */

/* True if both types are the same, or are {F64, F32}, {F32, F16} or {F32, BF16}. */
static int dpari_mem_box_meet(int32_t a, int32_t b)
{
    return a == b || dpari_narrows(a, b) || dpari_narrows(b, a);
}

/* True if types, dims and operation of a box are allowed. */
static int dpari_mem_box_fits(const dpar_mem_box *b)
{
    return dpar_type_bytes(b->to_type) > 0 && dpar_type_bytes(b->from_type) > 0 && b->dims >= 0 &&
           b->dims <= DPAR_MEM_DIMS && dpari_mem_box_meet(b->to_type, b->from_type) &&
           (b->round_type == DPAR_TYPE_NONE || (dpari_mem_box_meet(b->from_type, b->round_type) &&
                                                dpari_mem_box_meet(b->round_type, b->to_type))) &&
           (b->op == DPAR_COPY || b->op == DPAR_SUM || b->op == DPAR_MAX || b->op == DPAR_MIN) &&
           ((b->op == DPAR_COPY && !b->negate) || dpari_type_can_reduce(b->to_type));
}

/* True if two boxes differ in their addresses only. */
static int dpari_mem_box_same(const dpar_mem_box *a, const dpar_mem_box *b)
{
    int32_t d;
    if (a->dims != b->dims || a->to_type != b->to_type || a->from_type != b->from_type ||
        a->round_type != b->round_type || a->op != b->op || a->negate != b->negate ||
        a->clear != b->clear) {
        return 0;
    }
    for (d = 0; d < a->dims; d++) {
        if (a->extent[d] != b->extent[d] || a->to_stride[d] != b->to_stride[d] ||
            a->from_stride[d] != b->from_stride[d]) {
            return 0;
        }
    }
    return 1;
}

/* Prepares the copy of a box that dpari_mem_box_fits has checked. */
static void dpari_mem_box_prepare(dpari_stride *stride, const dpar_mem_box *box)
{
    dpari_stride_piece piece;
    dpari_mem_piece(box, &piece);
    dpari_stride_prepare(stride, &piece);
}

/* Many lists have boxes of the same shape, which are checked and prepared once. */
DPARI_INTERNAL dpar_status dpari_mem_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    dpari_stride stride;
    int32_t i;
    (void)ctx;
    for (i = 0; i < n; i++) {
        if ((i == 0 || !dpari_mem_box_same(&boxes[i], &boxes[i - 1])) &&
            !dpari_mem_box_fits(&boxes[i])) {
            return DPAR_E_ARG;
        }
    }
    for (i = 0; i < n; i++) {
        if (i == 0 || !dpari_mem_box_same(&boxes[i], &boxes[i - 1])) {
            dpari_mem_box_prepare(&stride, &boxes[i]);
        }
        dpari_stride_run(&stride, boxes[i].to, boxes[i].from);
    }
    return DPAR_OK;
}

DPARI_API dpar_status dpari_mem_move_box(const dpar_mem_box *box)
{
    return dpari_mem_move(NULL, box, 1);
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* True if types and numbers of a span are allowed. */
static int dpari_mem_span_fits(const dpar_mem_span *s)
{
    const int floats = dpari_is_float(s->to_type) && dpari_is_float(s->from_type);
    const int one = s->scale >= 1.0 && s->scale <= 1.0;
    const int zero = s->scale >= 0.0 && s->scale <= 0.0;
    if (s->count < 0 || (s->accumulate != 0 && s->accumulate != 1) ||
        dpar_type_bytes(s->to_type) == 0 || (s->count > 0 && s->to == NULL)) {
        return 0;
    }
    if (s->from == NULL) {
        return dpari_is_float(s->to_type) || (zero && !s->accumulate);
    }
    return floats || (s->to_type == s->from_type && one && !s->accumulate);
}

/* Computes a span of any types in f64, DPARI_ELEMENTS elements at a time. */
static void dpari_mem_span_some(const dpar_mem_span *s)
{
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS] = {0.0};
    int64_t i, k;
    for (i = 0; i < s->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, s->count - i);
        for (k = 0; k < DPARI_ELEMENTS; k++) {
            x[k] = 1.0;
        }
        if (s->from != NULL) {
            dpari_elements_load(x, s->from, i, n, s->from_type);
        }
        for (k = 0; k < n; k++) {
            x[k] *= s->scale;
        }
        if (s->accumulate) {
            dpari_elements_load(y, s->to, i, n, s->to_type);
            for (k = 0; k < n; k++) {
                x[k] = y[k] + x[k];
            }
        }
        dpari_elements_store(s->to, x, i, n, s->to_type);
    }
}

/* Adds a span to one of the same type, or 16-bit elements to F32, in the wider of F32 and the type.
 * The result is that of sums in f64, because the sum of two F32 or 16-bit numbers in f64, rounded
 * to F32, equals their sum in F32 (Figueroa 1995). */
static void dpari_mem_span_add(const dpar_mem_span *s)
{
    const void *in[2];
    void *out[1];
    if (s->to_type != s->from_type) {
        dpari_kern_add_to((float *)s->to, s->from, s->from_type, s->count);
        return;
    }
    out[0] = s->to;
    in[0] = s->to;
    in[1] = s->from;
    dpari_kern_reduce(out, 1, in, 2, s->count, s->to_type, DPAR_SUM, 0);
}

/* Computes one span by the fastest kernel that it allows. */
static void dpari_mem_span_one(const dpar_mem_span *s)
{
    const int32_t a = s->to_type, b = s->from_type, bytes = dpar_type_bytes(a);
    const int one = s->scale >= 1.0 && s->scale <= 1.0 && s->from != NULL;
    const int differ = s->to != s->from;
    if (one && !s->accumulate && a == b) {
        dpari_kern_copy(s->to, s->from, s->count * bytes, 0);
    } else if (one && !s->accumulate && differ && (a == DPAR_F32) != (b == DPAR_F32)) {
        dpari_kern_convert(s->to, a, s->from, b, s->count);
    } else if (one && s->accumulate && (a == b || (a == DPAR_F32 && b != DPAR_F64))) {
        dpari_mem_span_add(s);
    } else if (s->from != NULL && !s->accumulate && a == DPAR_F32 && b == DPAR_F32) {
        dpari_kern_scaled((float *)s->to, (const float *)s->from, s->scale, s->count);
    } else if (s->from == NULL && !s->accumulate && s->scale >= 0.0 && s->scale <= 0.0) {
        dpari_zero(s->to, (size_t)(s->count * bytes));
    } else {
        dpari_mem_span_some(s);
    }
}

DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    int32_t i;
    (void)ctx;
    for (i = 0; i < n; i++) {
        if (!dpari_mem_span_fits(&spans[i])) {
            return DPAR_E_ARG;
        }
    }
    for (i = 0; i < n; i++) {
        dpari_mem_span_one(&spans[i]);
    }
    return DPAR_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Loads elements i .. i + n - 1 of a part and converts them to the type `sums`. */
static void dpari_mem_load(void *to, int32_t sums, const void *from, int32_t type, int64_t i,
                           int64_t n)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    if (sums == DPAR_F64) {
        dpari_elements_load((double *)to, from, i, n, type);
    } else if (type == sums) {
        dpari_kern_copy(to, at, n * dpar_type_bytes(type), 0);
    } else {
        dpari_kern_convert(to, DPAR_F32, at, type, n);
    }
}

/* Stores n results, which are in f64 or f32: divides them by the number of parts (AVG), multiplies
 * them by the scale, and adds the old values if required. */
static void dpari_mem_reduce_end(const dpar_mem_reduce *reduce, double *x, int64_t i, int64_t n)
{
    double y[DPARI_ELEMENTS] = {0.0};
    float *f = (float *)(void *)x, g;
    const int one = reduce->scale >= 1.0 && reduce->scale <= 1.0;
    const float scale = (float)reduce->scale, parts = (float)reduce->parts;
    int64_t k;
    if (reduce->accumulate) {
        dpari_elements_load(y, reduce->to, i, n, reduce->to_type);
    }
    for (k = 0; k < n && reduce->sum_type == DPAR_F64; k++) {
        x[k] = reduce->op == DPAR_AVG && reduce->parts > 1 ? x[k] / (double)reduce->parts : x[k];
        x[k] = one ? x[k] : x[k] * reduce->scale;
        x[k] = reduce->accumulate ? y[k] + x[k] : x[k];
    }
    for (k = 0; k < n && reduce->sum_type != DPAR_F64; k++) {
        g = reduce->op == DPAR_AVG && reduce->parts > 1 ? f[k] / parts : f[k];
        g = one ? g : g * scale;
        f[k] = reduce->accumulate ? (float)y[k] + g : g;
    }
    if (reduce->sum_type == DPAR_F64) {
        dpari_elements_store(reduce->to, x, i, n, reduce->to_type);
    } else if (reduce->to_type == DPAR_F32) {
        dpari_kern_copy((unsigned char *)reduce->to + 4 * i, f, n * 4, 0);
    } else {
        dpari_kern_convert((unsigned char *)reduce->to + 2 * i, reduce->to_type, f, DPAR_F32, n);
    }
}

/* Loads an integer, sign-extended to 64 bits. */
static uint64_t dpari_mem_int(const void *at, int64_t i, int32_t type)
{
    switch (type) {
    case DPAR_I8: return (uint64_t)((const int8_t *)at)[i];
    case DPAR_U8: return ((const uint8_t *)at)[i];
    case DPAR_I32: return (uint64_t)((const int32_t *)at)[i];
    case DPAR_U32: return ((const uint32_t *)at)[i];
    default: return ((const uint64_t *)at)[i];
    }
}

static void dpari_mem_put_int(void *at, int64_t i, int32_t type, uint64_t x)
{
    switch (dpar_type_bytes(type)) {
    case 1: ((uint8_t *)at)[i] = (uint8_t)x; break;
    case 4: ((uint32_t *)at)[i] = (uint32_t)x; break;
    default: ((uint64_t *)at)[i] = x; break;
    }
}

/* Divides n sums of integers, which have wrapped to their type, by the number of parts. */
static void dpari_mem_divide(void *sums, int64_t n, int32_t type, int64_t parts)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint64_t x = dpari_mem_int(sums, i, type);
        x = type != DPAR_U64 ? (uint64_t)((int64_t)x / parts) : x / (uint64_t)parts;
        dpari_mem_put_int(sums, i, type, x);
    }
}

/* True if types and numbers of a reduction are allowed. */
static int dpari_mem_reduce_fits(const dpar_mem_reduce *reduce)
{
    const int ints = dpari_type_can_reduce(reduce->to_type) && !dpari_is_float(reduce->to_type);
    if (reduce->count < 0 || reduce->parts < 1 ||
        (reduce->stride != 0 && reduce->stride < reduce->count) || reduce->op < DPAR_SUM ||
        reduce->op > DPAR_MIN ||
        (reduce->count > 0 && (reduce->to == NULL || reduce->from == NULL))) {
        return 0;
    }
    if (ints) {
        return reduce->from_type == reduce->to_type && reduce->sum_type == reduce->to_type &&
               reduce->accumulate == 0 && reduce->scale >= 1.0 && reduce->scale <= 1.0;
    }
    return dpari_is_float(reduce->to_type) && dpari_is_float(reduce->from_type) &&
           dpari_is_wide(reduce->sum_type) &&
           (reduce->sum_type == DPAR_F64 ||
            (reduce->to_type != DPAR_F64 && reduce->from_type != DPAR_F64)) &&
           (reduce->accumulate == 0 || reduce->accumulate == 1);
}

DPARI_INTERNAL dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *reduce)
{
    const int32_t op = reduce->op == DPAR_AVG ? DPAR_SUM : reduce->op,
                  bytes = dpar_type_bytes(reduce->from_type);
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS];
    void *const out[1] = {x};
    const void *in[2];
    int64_t i, p;
    (void)ctx;
    if (!dpari_mem_reduce_fits(reduce)) {
        return DPAR_E_ARG;
    }
    in[0] = x;
    in[1] = y;
    for (i = 0; i < reduce->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, reduce->count - i);
        dpari_mem_load(x, reduce->sum_type, reduce->from, reduce->from_type, i, n);
        for (p = 1; p < reduce->parts; p++) {
            const unsigned char *part =
                (const unsigned char *)reduce->from + p * reduce->stride * bytes;
            dpari_mem_load(y, reduce->sum_type, part, reduce->from_type, i, n);
            dpari_kern_reduce(out, 1, in, 2, n, reduce->sum_type, op, 0);
        }
        if (dpari_is_float(reduce->to_type)) {
            dpari_mem_reduce_end(reduce, x, i, n);
            continue;
        }
        if (reduce->op == DPAR_AVG) {
            dpari_mem_divide(x, n, reduce->to_type, reduce->parts);
        }
        dpari_kern_copy((unsigned char *)reduce->to + i * bytes, x, n * bytes, 0);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_mem_finite(void *ctx, const dpar_mem_finite *f)
{
    int64_t at;
    (void)ctx;
    if (f->count < 0 || !dpari_is_float(f->type) || f->found == NULL ||
        (f->count > 0 && f->in == NULL) || (f->keep_found != 0 && f->keep_found != 1)) {
        return DPAR_E_ARG;
    }
    if (f->keep_found && *f->found >= 0) {
        return DPAR_OK;
    }
    at = dpari_kern_finite(f->in, f->count, f->type);
    *f->found = at < f->count ? f->first + at : -1;
    return DPAR_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static dpar_status dpari_mem_wait(void *ctx)
{
    (void)ctx;
    return DPAR_OK;
}

static dpar_status dpari_mem_pin(void *ctx, void *memory, int64_t bytes)
{
    (void)ctx;
    (void)memory;
    (void)bytes;
    return DPAR_OK;
}

static dpar_status dpari_mem_unpin(void *ctx, void *memory)
{
    (void)ctx;
    (void)memory;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_mem dpar_mem_host(void)
{
    dpar_mem m;
    dpari_zero(&m, sizeof m);
    m.move = dpari_mem_move;
    m.wait = dpari_mem_wait;
    m.pin = dpari_mem_pin;
    m.unpin = dpari_mem_unpin;
    m.span = dpari_mem_span;
    m.reduce = dpari_mem_reduce;
    m.finite = dpari_mem_finite;
    return m;
}
