/* SPDX-License-Identifier: MIT-0 */
/* Stores lists of local indices as runs, and copies, clears and combines the values at these
 * indices.
 *
 * A list of consecutive indices stores only the first one. A list of long runs needs 8 bytes per
 * run, any other list 4 bytes per index. There is a loop for each form and element size. points.c
 * makes the lists, and points_run.c uses them. */
#include "points_list.h"

#include "../base/type.h"
#include "../host/elements.h"
#include "../host/kernel.h"

/* ---- lists ---- */

/* If runs have at least this average length, pairs are stored, which then take at most half as much
 * memory as indices. */
enum { DPARI_PT_LONG = 4 };

DPARI_INTERNAL int64_t dpari_pt_measure(dpari_pt_list *list, const int32_t *index, int64_t n)
{
    int64_t i;
    list->count = n;
    list->runs = n > 0;
    list->first = n > 0 ? index[0] : 0;
    list->at = NULL;
    list->step = n > 1 ? index[1] - index[0] : 0;
    for (i = 1; i < n; i++) {
        list->runs += index[i] != index[i - 1] + 1;
        list->step = (int64_t)index[i] - index[i - 1] == list->step ? list->step : 0;
    }
    if (list->runs <= 1) {
        list->kind = DPARI_PT_ONE;
        list->step = 0;
        return 0;
    }
    if (list->runs <= n / DPARI_PT_LONG) {
        list->kind = DPARI_PT_RUNS;
        list->step = 0;
        return 2 * list->runs;
    }
    list->kind = DPARI_PT_EACH;
    return n;
}

DPARI_INTERNAL void dpari_pt_fill(dpari_pt_list *list, const int32_t *index, int32_t *at)
{
    int64_t i, r = -1;
    if (list->kind == DPARI_PT_ONE) {
        return;
    }
    list->at = at;
    if (list->kind == DPARI_PT_EACH) {
        dpari_kern_copy(at, index, list->count * (int64_t)sizeof *at, 0);
        return;
    }
    for (i = 0; i < list->count; i++) {
        if (i == 0 || index[i] != index[i - 1] + 1) {
            r++;
            at[2 * r] = index[i];
            at[2 * r + 1] = 0;
        }
        at[2 * r + 1]++;
    }
}

DPARI_INTERNAL dpari_pt_list dpari_pt_dense(int64_t n)
{
    dpari_pt_list list;
    list.count = n;
    list.runs = 1;
    list.kind = DPARI_PT_ONE;
    list.first = 0;
    list.step = 0;
    list.at = NULL;
    return list;
}

/* Returns how many consecutive indices run number `cursor` has from its position `within` on.
 * *first receives the index at that position. */
static int64_t dpari_pt_next(const dpari_pt_list *list, int64_t cursor, int64_t within,
                             int32_t *first)
{
    if (list->kind == DPARI_PT_EACH) {
        *first = list->at[cursor];
        return 1;
    }
    if (list->kind == DPARI_PT_RUNS) {
        *first = list->at[2 * cursor] + (int32_t)within;
        return list->at[2 * cursor + 1] - within;
    }
    *first = list->first + (int32_t)within;
    return list->count - within;
}

/* ---- copies ---- */

/* The next three functions copy n values of `size` bytes: from listed indices to a constant stride,
 * from a constant stride to listed indices, and between two strides. They are inlined so that the
 * compiler knows common sizes. */
DPARI_ALWAYS_INLINE void dpari_pt_gather(unsigned char *to, int64_t step, const unsigned char *from,
                                         int64_t stride, const int32_t *at, int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + k * step, from + at[k] * stride, size);
    }
}

DPARI_ALWAYS_INLINE void dpari_pt_scatter(unsigned char *to, int64_t stride,
                                          const unsigned char *from, int64_t step,
                                          const int32_t *at, int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + at[k] * stride, from + k * step, size);
    }
}

DPARI_ALWAYS_INLINE void dpari_pt_row(unsigned char *to, int64_t step, const unsigned char *from,
                                      int64_t stride, int64_t n, size_t size)
{
    int64_t k;
    for (k = 0; k < n; k++) {
        dpari_elements_bits(to + k * step, from + k * stride, size);
    }
}

/* Gathers doubles to adjacent places, four at a time, which takes three instructions per value
 * instead of seven. */
static void dpari_pt_gather_doubles(unsigned char *to, const unsigned char *from, const int32_t *at,
                                    int64_t n)
{
    int64_t k;
    for (k = 0; k + 4 <= n; k += 4) {
        dpari_elements_bits(to + 8 * k, from + INT64_C(8) * at[k], 8);
        dpari_elements_bits(to + 8 * k + 8, from + INT64_C(8) * at[k + 1], 8);
        dpari_elements_bits(to + 8 * k + 16, from + INT64_C(8) * at[k + 2], 8);
        dpari_elements_bits(to + 8 * k + 24, from + INT64_C(8) * at[k + 3], 8);
    }
    dpari_pt_gather(to + 8 * k, 8, from, 8, at + k, n - k, 8);
}

/* Gathers doubles from addresses at a constant distance to adjacent places. */
static void dpari_pt_gather_strided(unsigned char *to, const unsigned char *from, int64_t stride,
                                    int64_t n)
{
    int64_t k;
    for (k = 0; k + 4 <= n; k += 4) {
        dpari_elements_bits(to, from, 8);
        dpari_elements_bits(to + 8, from + stride, 8);
        dpari_elements_bits(to + 16, from + 2 * stride, 8);
        dpari_elements_bits(to + 24, from + 3 * stride, 8);
        to += 32;
        from += 4 * stride;
    }
    dpari_pt_row(to, 8, from, stride, n - k, 8);
}

/* The next three functions choose the loop for a size: 8 and 4 bytes are one number, 24 are three
 * doubles at a point. */
static void dpari_pt_gather_any(unsigned char *to, int64_t step, const unsigned char *from,
                                int64_t stride, const int32_t *at, int64_t n, int64_t size)
{
    if (size == 8 && step == 8 && stride == 8) {
        dpari_pt_gather_doubles(to, from, at, n);
    } else if (size == 8) {
        dpari_pt_gather(to, step, from, stride, at, n, 8);
    } else if (size == 4) {
        dpari_pt_gather(to, step, from, stride, at, n, 4);
    } else if (size == 24) {
        dpari_pt_gather(to, step, from, stride, at, n, 24);
    } else {
        dpari_pt_gather(to, step, from, stride, at, n, (size_t)size);
    }
}

static void dpari_pt_scatter_any(unsigned char *to, int64_t stride, const unsigned char *from,
                                 int64_t step, const int32_t *at, int64_t n, int64_t size)
{
    if (size == 8) {
        dpari_pt_scatter(to, stride, from, step, at, n, 8);
    } else if (size == 4) {
        dpari_pt_scatter(to, stride, from, step, at, n, 4);
    } else if (size == 24) {
        dpari_pt_scatter(to, stride, from, step, at, n, 24);
    } else {
        dpari_pt_scatter(to, stride, from, step, at, n, (size_t)size);
    }
}

static void dpari_pt_row_any(unsigned char *to, int64_t step, const unsigned char *from,
                             int64_t stride, int64_t n, int64_t size)
{
    if (step == size && stride == size) {
        dpari_elements_bits(to, from, (size_t)(n * size));
    } else if (size == 8) {
        dpari_pt_row(to, step, from, stride, n, 8);
    } else if (size == 4) {
        dpari_pt_row(to, step, from, stride, n, 4);
    } else {
        dpari_pt_row(to, step, from, stride, n, (size_t)size);
    }
}

/* Copies between two lists of runs. Each step copies up to the end of the current run of either
 * list, whichever is nearer. */
static void dpari_pt_move_runs(const dpari_pt_list *into, dpari_pt_side to,
                               const dpari_pt_list *from, dpari_pt_side of, int64_t size)
{
    int64_t k, n, a = 0, in_a = 0, b = 0, in_b = 0;
    for (k = 0; k < into->count; k += n) {
        int32_t at, source;
        const int64_t left = dpari_pt_next(into, a, in_a, &at);
        const int64_t more = dpari_pt_next(from, b, in_b, &source);
        n = dpari_least(left, more);
        dpari_pt_row_any(to.at + at * to.stride, to.stride, of.at + source * of.stride, of.stride,
                         n, size);
        a += left == n;
        in_a = left == n ? 0 : in_a + n;
        b += more == n;
        in_b = more == n ? 0 : in_b + n;
    }
}

DPARI_INTERNAL void dpari_pt_move(const dpari_pt_list *into, dpari_pt_side to,
                                  const dpari_pt_list *from, dpari_pt_side of, int64_t size)
{
    if (into->kind == DPARI_PT_ONE && from->step != 0 && size == 8 && to.stride == 8) {
        dpari_pt_gather_strided(to.at + into->first * to.stride, of.at + from->first * of.stride,
                                from->step * of.stride, from->count);
    } else if (into->kind == DPARI_PT_ONE && from->kind == DPARI_PT_EACH) {
        dpari_pt_gather_any(to.at + into->first * to.stride, to.stride, of.at, of.stride, from->at,
                            from->count, size);
    } else if (into->kind == DPARI_PT_EACH && from->kind == DPARI_PT_ONE) {
        dpari_pt_scatter_any(to.at, to.stride, of.at + from->first * of.stride, of.stride, into->at,
                             from->count, size);
    } else {
        dpari_pt_move_runs(into, to, from, of, size);
    }
}

DPARI_INTERNAL void dpari_pt_clear(const dpari_pt_list *list, dpari_pt_side to, int64_t size)
{
    int64_t k, n, i, cursor = 0;
    for (k = 0; k < list->count; k += n, cursor++) {
        int32_t at;
        n = dpari_pt_next(list, cursor, 0, &at);
        for (i = 0; i < n; i++) {
            dpari_zero(to.at + (at + i) * to.stride, (size_t)size);
        }
    }
}

/* ---- sums ---- */

/* Combines n numbers that are adjacent on both sides. */
static void dpari_pt_combine_row(unsigned char *to, const unsigned char *of, int64_t n,
                                 int32_t type, int32_t op)
{
    void *out[1];
    const void *in[2];
    out[0] = to;
    in[0] = to;
    in[1] = of;
    dpari_kern_reduce(out, 1, in, 2, n, type, op, 0);
}

DPARI_ALWAYS_INLINE void dpari_pt_add_f64(unsigned char *to, const unsigned char *of)
{
    double a, b;
    dpari_elements_bits(&a, to, 8);
    dpari_elements_bits(&b, of, 8);
    a += b;
    dpari_elements_bits(to, &a, 8);
}

/* Adds doubles at single indices, the most frequent case of an adjoint. */
static void dpari_pt_sum_f64(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                             int32_t n)
{
    int64_t k;
    int32_t i;
    for (k = 0; k < list->count; k++) {
        for (i = 0; i < n; i++) {
            dpari_pt_add_f64(to.at + list->at[k] * to.stride + 8 * i,
                             of.at + k * of.stride + 8 * i);
        }
    }
}

DPARI_INTERNAL void dpari_pt_combine(const dpari_pt_list *list, dpari_pt_side to, dpari_pt_side of,
                                     int32_t n, int32_t type, int32_t op)
{
    const int64_t size = n * (int64_t)dpar_type_bytes(type);
    int64_t k, run, i, cursor = 0;
    if (type == DPAR_F64 && op == DPAR_SUM && list->kind == DPARI_PT_EACH) {
        dpari_pt_sum_f64(list, to, of, n);
        return;
    }
    for (k = 0; k < list->count; k += run, cursor++) {
        int32_t first;
        unsigned char *at;
        run = dpari_pt_next(list, cursor, 0, &first);
        at = to.at + first * to.stride;
        if (to.stride == size && of.stride == size) {
            dpari_pt_combine_row(at, of.at + k * size, run * n, type, op);
            continue;
        }
        for (i = 0; i < run; i++) {
            dpari_pt_combine_row(at + i * to.stride, of.at + (k + i) * of.stride, n, type, op);
        }
    }
}
