/* SPDX-License-Identifier: MIT-0 */
/* Adds arrays to exact sums, block by block, and combines the sums of all ranks. A block is added
 * with vectors (exact_loops.c) if the exponents of its elements allow that, otherwise element by
 * element (exact_bins.c). Both are exact, so that it does not matter where blocks begin. Boxes are
 * packed into blocks if their rows are short or not contiguous, and so are 16-bit floats, which
 * become f32. */
#include "exact.h"

#include "../comm/agree.h"
#include "../host/elements.h"
#include "exact_bins.h"
#include "exact_loops.h"

/* ---- arrays and boxes ------------------------------------------------------------------------ */

/* Where elements are added. */
typedef struct dpari_ex_adder {
    dpar_exact *sum;
    int32_t type, bytes;
    int vectors;    /* 1 if this CPU has them */
    int64_t packed; /* elements in `x` and `y` */
    int32_t both;   /* 1 for products */
    double x[DPARI_EX_BLOCK], y[DPARI_EX_BLOCK];
} dpari_ex_adder;

/* Adds up to DPARI_EX_BLOCK elements of F64 or F32. y: NULL for sums. */
static void dpari_ex_add_block(const dpari_ex_adder *adder, const void *x, const void *y, int64_t n,
                               int32_t type)
{
    const int64_t bytes = type == DPAR_F64 ? 8 : 4;
    int64_t whole = adder->vectors ? n - n % DPARI_EX_STEP : 0;
    if (whole > 0) {
        double part[DPARI_EX_PARTS];
        const int32_t parts = dpari_ex_block(part, x, y, whole, type);
        if (parts >= 0) {
            dpari_ex_add_each(adder->sum, part, parts, DPAR_F64);
        } else {
            whole = 0;
        }
    }
    x = (const unsigned char *)x + whole * bytes;
    if (y) {
        y = (const unsigned char *)y + whole * bytes;
        dpari_ex_add_products(adder->sum, x, y, n - whole, type);
    } else {
        dpari_ex_add_each(adder->sum, x, n - whole, type);
    }
}

/* Adds n contiguous elements. y: NULL for sums. */
static void dpari_ex_add_run(const dpari_ex_adder *adder, const void *x, const void *y, int64_t n)
{
    const unsigned char *a = (const unsigned char *)x, *b = (const unsigned char *)y;
    const int32_t bytes = adder->bytes;
    /* vectors that cross cache lines are slow, so that the first block ends where a line does */
    const int64_t before = n < 4 * DPARI_EX_BLOCK ? 0 : (int64_t)((uintptr_t)a % 64) / bytes;
    int64_t some = before > 0 ? 64 / bytes - before : DPARI_EX_BLOCK;
    for (; n > 0; some = DPARI_EX_BLOCK) {
        some = dpari_least(n, some);
        if (bytes > 2) {
            dpari_ex_add_block(adder, a, b, some, adder->type);
        } else {
            float wide_x[DPARI_EX_BLOCK], wide_y[DPARI_EX_BLOCK];
            dpari_kern_convert(wide_x, DPAR_F32, a, adder->type, some);
            if (b) {
                dpari_kern_convert(wide_y, DPAR_F32, b, adder->type, some);
            }
            dpari_ex_add_block(adder, wide_x, b ? wide_y : NULL, some, DPAR_F32);
        }
        a += some * bytes;
        b = b ? b + some * bytes : NULL;
        n -= some;
    }
}

/* Adds the elements that are packed. */
static void dpari_ex_flush(dpari_ex_adder *adder)
{
    dpari_ex_add_run(adder, adder->x, adder->both ? adder->y : NULL, adder->packed);
    adder->packed = 0;
}

/* Copies n elements with a stride. */
static void dpari_ex_pack(void *to, const unsigned char *from, int64_t stride, int64_t n,
                          int32_t bytes)
{
    int64_t i;
    if (stride == bytes) {
        dpari_kern_copy(to, from, n * bytes, 0);
    } else if (bytes == 8) {
        for (i = 0; i < n; i++) {
            dpari_elements_bits((uint64_t *)to + i, from + i * stride, 8);
        }
    } else if (bytes == 4) {
        for (i = 0; i < n; i++) {
            dpari_elements_bits((uint32_t *)to + i, from + i * stride, 4);
        }
    } else {
        for (i = 0; i < n; i++) {
            dpari_elements_bits((uint16_t *)to + i, from + i * stride, 2);
        }
    }
}

/* Adds a row of n elements. Strides are in bytes. */
static void dpari_ex_add_row(dpari_ex_adder *adder, const unsigned char *x, int64_t x_stride,
                             const unsigned char *y, int64_t y_stride, int64_t n)
{
    const int32_t bytes = adder->bytes;
    if (n >= DPARI_EX_BLOCK / 2 && x_stride == bytes && (!y || y_stride == bytes)) {
        dpari_ex_add_run(adder, x, y, n);
        return;
    }
    while (n > 0) {
        const int64_t some = dpari_least(n, DPARI_EX_BLOCK - adder->packed);
        dpari_ex_pack((unsigned char *)adder->x + adder->packed * bytes, x, x_stride, some, bytes);
        x += some * x_stride;
        if (y) {
            dpari_ex_pack((unsigned char *)adder->y + adder->packed * bytes, y, y_stride, some,
                          bytes);
            y += some * y_stride;
        }
        adder->packed += some;
        n -= some;
        if (adder->packed == DPARI_EX_BLOCK) {
            dpari_ex_flush(adder);
        }
    }
}

/* The dims of a box, in the order in which they are walked. Strides are in bytes. */
typedef struct dpari_ex_box {
    int32_t dims;
    int64_t extent[DPAR_MEM_DIMS], x_stride[DPAR_MEM_DIMS], y_stride[DPAR_MEM_DIMS];
} dpari_ex_box;

/* Adds a dim to a box, before dims of smaller strides. */
static void dpari_ex_box_add(dpari_ex_box *box, int64_t extent, int64_t x_stride, int64_t y_stride)
{
    int32_t d = box->dims++;
    for (; d > 0 && dpari_size(box->x_stride[d - 1]) < dpari_size(x_stride); d--) {
        box->extent[d] = box->extent[d - 1];
        box->x_stride[d] = box->x_stride[d - 1];
        box->y_stride[d] = box->y_stride[d - 1];
    }
    box->extent[d] = extent;
    box->x_stride[d] = x_stride;
    box->y_stride[d] = y_stride;
}

/* Merges a dim into the next one where both arrays allow it, so that rows get longer. */
static void dpari_ex_box_merge(dpari_ex_box *box)
{
    int32_t d, n = 0;
    for (d = 1; d < box->dims; d++) {
        if (box->x_stride[n] == box->extent[d] * box->x_stride[d] &&
            box->y_stride[n] == box->extent[d] * box->y_stride[d]) {
            box->extent[n] *= box->extent[d];
        } else {
            n++;
            box->extent[n] = box->extent[d];
        }
        box->x_stride[n] = box->x_stride[d];
        box->y_stride[n] = box->y_stride[d];
    }
    box->dims = n + 1;
}

/* Adds a box, row by row along its last dim. y: NULL for sums. */
static void dpari_ex_add_box(dpari_ex_adder *adder, const dpari_ex_box *box, const unsigned char *x,
                             const unsigned char *y)
{
    const int32_t last = box->dims - 1;
    int64_t at[DPAR_MEM_DIMS] = {0};
    int32_t d;
    do {
        dpari_ex_add_row(adder, x, box->x_stride[last], y, box->y_stride[last], box->extent[last]);
        for (d = last - 1; d >= 0; d--) { /* the next row */
            int64_t steps = 1;
            at[d]++;
            if (at[d] == box->extent[d]) {
                steps = 1 - at[d];
                at[d] = 0;
            }
            x += steps * box->x_stride[d];
            if (y) {
                y += steps * box->y_stride[d];
            }
            if (at[d] > 0) {
                break;
            }
        }
    } while (d >= 0);
}

/* Adds the points of dim 0 that `skip` has no bit for, each with the elements of dim 1. */
static void dpari_ex_add_points(dpari_ex_adder *adder, const dpar_exact_term *term,
                                const unsigned char *x, const unsigned char *y,
                                const int64_t *y_stride)
{
    const int32_t bytes = adder->bytes;
    int64_t i;
    for (i = 0; i < term->extent[0]; i++) {
        if ((term->skip[i / 64] >> i % 64 & 1) == 0) {
            dpari_ex_add_row(adder, x + i * term->x_stride[0] * bytes, term->x_stride[1] * bytes,
                             y ? y + i * y_stride[0] * bytes : NULL, y_stride[1] * bytes,
                             term->extent[1]);
        }
    }
}

/* Adds the elements of a checked term. */
static void dpari_ex_add_checked(dpar_exact *sum, const dpar_exact_term *term)
{
    const int squares = term->kind == DPAR_EXACT_NORM;
    const unsigned char *x = (const unsigned char *)term->x;
    const unsigned char *y = (const unsigned char *)(squares ? term->x : term->y);
    const int64_t *y_stride = squares ? term->x_stride : term->y_stride;
    dpari_ex_adder adder;
    dpari_ex_box box;
    int32_t d;
    adder.sum = sum;
    adder.type = term->type;
    adder.bytes = dpar_type_bytes(term->type);
    adder.vectors = dpari_ex_has_vectors();
    adder.packed = 0;
    adder.both = term->kind != DPAR_EXACT_SUM;
    if (!adder.both) {
        y = NULL;
    }
    if (term->dims == 0) {
        dpari_ex_add_run(&adder, x, y, term->count);
        return;
    }
    box.dims = 0;
    for (d = 0; d < term->dims; d++) {
        if (term->extent[d] == 0) {
            return;
        }
        if (term->extent[d] > 1 || box.dims + term->dims == d + 1) { /* a box has a dim */
            dpari_ex_box_add(&box, term->extent[d], term->x_stride[d] * adder.bytes,
                             (y ? y_stride[d] : term->x_stride[d]) * adder.bytes);
        }
    }
    if (term->skip) {
        dpari_ex_add_points(&adder, term, x, y, y ? y_stride : term->x_stride);
    } else {
        dpari_ex_box_merge(&box);
        dpari_ex_add_box(&adder, &box, x, y);
    }
    dpari_ex_flush(&adder);
}

DPAR_API DPARI_COLD DPARI_NOINLINE dpar_exact_term dpar_exact_sum_of(const void *x, int64_t count,
                                                                     int32_t type)
{
    dpar_exact_term term;
    dpari_zero(&term, sizeof term);
    term.type = type;
    term.x = x;
    term.count = count;
    return term;
}

DPAR_API DPARI_COLD DPARI_NOINLINE dpar_exact_term dpar_exact_dot_of(const void *x, const void *y,
                                                                     int64_t count, int32_t type)
{
    dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    term.kind = DPAR_EXACT_DOT;
    term.y = y;
    return term;
}

DPAR_API DPARI_COLD DPARI_NOINLINE dpar_exact_term dpar_exact_norm_of(const void *x, int64_t count,
                                                                      int32_t type)
{
    dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    term.kind = DPAR_EXACT_NORM;
    return term;
}

DPAR_API dpar_status dpar_exact_add_term(dpar_exact *sum, const dpar_exact_term *term)
{
    if (!sum || !term || dpari_ex_check(term, NULL) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_ex_add_checked(sum, term);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_exact_add(dpar_exact *sum, const void *x, int64_t count, int32_t type)
{
    const dpar_exact_term term = dpar_exact_sum_of(x, count, type);
    return dpar_exact_add_term(sum, &term);
}

DPAR_API dpar_status dpar_exact_add_dot(dpar_exact *sum, const void *x, const void *y,
                                        int64_t count, int32_t type)
{
    const dpar_exact_term term = dpar_exact_dot_of(x, y, count, type);
    return dpar_exact_add_term(sum, &term);
}
