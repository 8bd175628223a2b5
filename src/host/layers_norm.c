/* SPDX-License-Identifier: MIT-0 */
/* Moments and norms in host memory. A plane is processed row by row and in parts of a fixed size.
 * The moments of a part take two passes, one for the mean and one for the squared deviations from
 * it, and the parts are merged in order. Therefore large numbers do not cancel, and the bits depend
 * only on the sizes. */
#include "layers_norm.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "elements.h"
#include "vector_loops.h"

/* ---- moments --------------------------------------------------------------------------------- */

/* Copies like memcpy, but faster for short rows. Reads four elements before it writes them, so that
 * compilers use vectors although `to` may be `from`. */
static void dpari_moments_copy(double *to, const double *from, int64_t count)
{
    int64_t i;
    for (i = 0; i + 4 <= count; i += 4) {
        const double a = from[i], b = from[i + 1], c = from[i + 2], d = from[i + 3];
        to[i] = a;
        to[i + 1] = b;
        to[i + 2] = c;
        to[i + 3] = d;
    }
    for (; i < count; i++) {
        to[i] = from[i];
    }
}

/* Reads `count` elements at, at + step, ... of x (F64, F32, BF16 or F16) as doubles. */
static void dpari_row_read(const dpari_lanes *lanes, const void *x, int32_t type, int64_t at,
                           int64_t step, int64_t count, double *to)
{
    int64_t i;
    if (type == DPAR_F64 && step == 1) {
        dpari_moments_copy(to, (const double *)x + at, count);
    } else if (type == DPAR_F64) {
        const double *from = (const double *)x + at;
        for (i = 0; i < count; i++) {
            to[i] = from[i * step];
        }
    } else if (type == DPAR_F32 && step == 1) {
        lanes->widen(to, (const float *)x + at, count);
    } else if (type == DPAR_F32) {
        const float *from = (const float *)x + at;
        for (i = 0; i < count; i++) {
            to[i] = (double)from[i * step];
        }
    } else {
        const int64_t most = step == 1 ? DPARI_ELEMENTS : 1;
        for (i = 0; i < count; i += most) {
            dpari_elements_load(to + i, x, at + i * step, dpari_least(most, count - i), type);
        }
    }
}

DPARI_INTERNAL DPARI_NOINLINE const void *dpari_row_at(const dpari_lanes *lanes, const void *x,
                                                       int32_t type, int64_t at, int64_t count,
                                                       double *room, int32_t *as)
{
    if (dpari_is_wide(type)) {
        *as = type;
        return (const unsigned char *)x + at * dpar_type_bytes(type);
    }
    *as = DPAR_F64;
    dpari_row_read(lanes, x, type, at, 1, count, room);
    return room;
}

DPARI_INTERNAL void dpari_row_add(const dpari_lanes *lanes, int32_t type, void *to, double keep,
                                  double scale, const void *from, int64_t n)
{
    int64_t i;
    if (type == DPAR_F64) {
        double *y = (double *)to;
        const double *x = (const double *)from;
        for (i = 0; i < n; i++) {
            y[i] = keep * y[i] + scale * x[i];
        }
    } else {
        lanes->add((float *)to, (float)keep, (float)scale, (const float *)from, n);
    }
}

/* Merges the moments of set b into those of set a (Chan, Golub, LeVeque). Counts may be 0. */
static void dpari_moments_merge(dpar_moments *a, const dpar_moments *b)
{
    const double n = a->count + b->count, delta = b->mean - a->mean;
    if (b->count <= 0.0) {
        return;
    }
    if (a->count <= 0.0) {
        *a = *b;
        return;
    }
    a->mean += delta * (b->count / n);
    a->m2 += b->m2 + delta * delta * (a->count * b->count / n);
    a->count = n;
}

/* Elements of a plane that were read but are not yet merged into `to`. */
typedef struct dpari_moments_held {
    DPARI_ROW double part[DPARI_ROW_PART];
    int64_t count;
    dpar_moments *to;
} dpari_moments_held;

/* Computes the moments of the elements in h in two passes, so that the mean that is subtracted is
 * close to the elements, and merges them. */
static void dpari_moments_flush(const dpari_lanes *lanes, dpari_moments_held *h)
{
    dpar_moments one;
    if (h->count > 0) {
        one.count = (double)h->count;
        one.mean = lanes->total(h->part, DPAR_F64, h->count) / one.count;
        one.m2 = lanes->about(h->part, DPAR_F64, one.mean, h->count);
        dpari_moments_merge(h->to, &one);
    }
    h->count = 0;
}

/* Reads a row into h, and merges each full part. */
static void dpari_moments_row(const dpari_lanes *lanes, const dpar_mem_moments *m, int64_t at,
                              int64_t step, int64_t count, dpari_moments_held *h)
{
    int64_t k, some;
    for (k = 0; k < count; k += some) {
        some = dpari_least(DPARI_ROW_PART - h->count, count - k);
        dpari_row_read(lanes, m->x, m->type, at + k * step, step, some, h->part + h->count);
        h->count += some;
        if (h->count == DPARI_ROW_PART) {
            dpari_moments_flush(lanes, h);
        }
    }
}

/* Computes the moments of a plane, row by row along the last dim. */
static void dpari_moments_plane(const dpari_lanes *lanes, const dpar_mem_moments *m, int64_t plane,
                                dpar_moments *to)
{
    const int32_t last = m->dims - 1;
    const int64_t step = last >= 0 ? m->stride[last] : 0;
    const int64_t count = last >= 0 ? m->extent[last] : 1;
    int64_t at[DPAR_MAX_DIMS], first = plane * m->step;
    dpari_moments_held held;
    int32_t d;
    for (d = 0; d < m->dims; d++) {
        if (m->extent[d] == 0) {
            return;
        }
        at[d] = 0;
    }
    held.count = 0;
    held.to = to;
    do {
        dpari_moments_row(lanes, m, first, step, count, &held);
        for (d = last - 1; d >= 0; d--) {
            first += m->stride[d];
            if (++at[d] < m->extent[d]) {
                break;
            }
            first -= m->stride[d] * m->extent[d];
            at[d] = 0;
        }
    } while (d >= 0);
    dpari_moments_flush(lanes, &held);
}

/* Returns the set that a plane belongs to: its channel, or the group of its sample. */
static int64_t dpari_norm_set(int64_t channels, int64_t groups, int64_t plane)
{
    const int64_t channel = plane % channels;
    return groups == 0 ? channel : plane / channels * groups + channel / (channels / groups);
}

/* Returns the number of points of a plane. */
static int64_t dpari_layer_points(const int64_t *extent, int32_t dims)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < dims; d++) {
        n *= extent[d];
    }
    return n;
}

/* True if the fields of the call are valid. */
static int dpari_moments_fits(const dpar_mem_moments *m, int64_t sets)
{
    int64_t points = 1;
    int32_t d;
    for (d = 0; d < m->dims && m->dims <= DPAR_MAX_DIMS; d++) {
        if (m->extent[d] < 0) {
            return 0;
        }
        points = m->extent[d] == 0 ? 0 : points;
    }
    return dpari_is_float(m->type) && m->dims >= 0 && m->dims <= DPAR_MAX_DIMS &&
           (m->accumulate == 0 || m->accumulate == 1) &&
           !(m->planes > 0 && points > 0 && m->x == NULL) && !(sets > 0 && m->to == NULL);
}

DPARI_INTERNAL dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m)
{
    dpar_moments *to = (dpar_moments *)(void *)m->to;
    dpari_lanes l;
    int64_t p, sets;
    (void)ctx;
    if (m->planes < 0 || m->channels < 1 || m->groups < 0 || m->planes % m->channels != 0 ||
        (m->groups > 0 && m->channels % m->groups != 0)) {
        return DPAR_E_ARG;
    }
    sets = m->groups == 0 ? m->channels : m->planes / m->channels * m->groups;
    if (!dpari_moments_fits(m, sets)) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(m->planes * dpari_layer_points(m->extent, m->dims));
    if (!m->accumulate) {
        dpari_zero(to, (size_t)sets * sizeof *to);
    }
    for (p = 0; p < m->planes; p++) {
        dpari_moments_plane(&l, m, p, &to[dpari_norm_set(m->channels, m->groups, p)]);
    }
    return DPAR_OK;
}

/* ---- norms ----------------------------------------------------------------------------------- */

/* Returns the scale of the channel of a plane. */
static double dpari_norm_scale(const dpar_mem_norm *call, int64_t plane)
{
    return call->scale != NULL ? dpari_element_get(call->scale, call->type, plane % call->channels)
                               : 1.0;
}

/* Advances `at` to the next row of a plane. Returns 0 at the end. */
static int dpari_norm_row(const dpar_mem_norm *call, int64_t *at)
{
    int32_t d;
    for (d = call->dims - 2; d >= 0; d--) {
        if (++at[d] < call->extent[d]) {
            return 1;
        }
        at[d] = 0;
    }
    return 0;
}

/* Returns the element at which a row begins. */
static int64_t dpari_norm_at(const dpar_mem_norm *call, const dpar_mem_planes *p, int64_t plane,
                             const int64_t *at)
{
    int64_t first = plane * p->step;
    int32_t d;
    for (d = 0; d + 1 < call->dims; d++) {
        first += at[d] * p->stride[d];
    }
    return first;
}

/* Returns the elements from one point of a row to the next. */
static int64_t dpari_norm_step(const dpar_mem_norm *call, const dpar_mem_planes *p)
{
    return call->dims > 0 ? p->stride[call->dims - 1] : 0;
}

/* Sets `at` to the first row. Returns the length of a row, or 0 if the plane has no points. */
static int64_t dpari_norm_rows(const dpar_mem_norm *call, int64_t *at)
{
    dpari_zero(at, DPAR_MAX_DIMS * sizeof *at);
    if (dpari_layer_points(call->extent, call->dims) == 0) {
        return 0;
    }
    return call->dims > 0 ? call->extent[call->dims - 1] : 1;
}

/* Returns `count` elements of a row from element `at` on. If direct is 1 the result is their
 * address, otherwise `room`, which receives them converted to F64. */
static const void *dpari_norm_read(const dpari_lanes *lanes, const dpar_mem_norm *call,
                                   const dpar_mem_planes *p, int64_t at, int64_t count, int direct,
                                   double *room)
{
    if (direct) {
        return (const unsigned char *)p->data + at * dpar_type_bytes(call->type);
    }
    dpari_row_read(lanes, p->data, call->type, at, dpari_norm_step(call, p), count, room);
    return room;
}

/* Stores `count` numbers in the elements of call->to from `at` on. */
static void dpari_norm_write(const dpar_mem_norm *call, int64_t at, int64_t count,
                             const double *from)
{
    const int64_t step = dpari_norm_step(call, &call->to);
    int64_t i;
    for (i = 0; i < count; i++) {
        dpari_element_put(call->to.data, call->type, at + i * step, from[i]);
    }
}

/* Merges the moments of all ranks, and saves the mean and 1 / (standard deviation) of each set. */
static void dpari_norm_merge(const dpar_mem_norm *call, int64_t sets)
{
    int64_t i;
    int32_t r;
    for (i = 0; i < sets; i++) {
        dpar_moments all;
        dpari_zero(&all, sizeof all);
        for (r = 0; r < call->ranks; r++) {
            const double *one = call->all + 3 * (r * sets + i);
            dpar_moments part;
            part.count = one[0];
            part.mean = one[1];
            part.m2 = one[2];
            dpari_moments_merge(&all, &part);
        }
        call->saved[2 * i] = all.mean;
        call->saved[2 * i + 1] =
            1.0 / dpari_sqrt(all.m2 / dpari_mostf(all.count, 1.0) + call->epsilon);
    }
}

/* Computes the factors of `line` (APPLY) or `slope` (SUMS, GRADIENT) for a plane. */
static void dpari_norm_factors(const dpar_mem_norm *call, int64_t plane, double *by)
{
    const int64_t set = dpari_norm_set(call->channels, call->groups, plane);
    const double mean = call->saved[2 * set], inverse = call->saved[2 * set + 1];
    const double scale = dpari_norm_scale(call, plane);
    by[0] = inverse;
    by[1] = scale;
    by[2] = 0.0;
    by[3] = mean;
    by[4] = 0.0;
    if (call->phase == DPAR_MEM_NORM_APPLY) {
        by[0] = inverse * scale;
        by[1] = mean;
        if (call->shift != NULL) {
            by[2] = dpari_element_get(call->shift, call->type, plane % call->channels);
        }
    } else if (call->phase == DPAR_MEM_NORM_GRADIENT) {
        const double *all = &call->total[3 * set];
        by[2] = all[0] / dpari_mostf(all[2], 1.0);
        by[4] = inverse * (all[1] / dpari_mostf(all[2], 1.0));
    }
}

static void *dpari_norm_there(const dpar_mem_norm *call, int64_t at)
{
    return (unsigned char *)call->to.data + at * dpar_type_bytes(call->type);
}

/* Runs a phase of the call on a plane, row by row and part by part:
 * APPLY:    y = a (x - mean) + b.
 * SUMS:     sum[0] = sum of dy, and sum[1] = sum of dy xhat, where xhat = (x - mean) / deviation.
 * GRADIENT: dx = (scale dy - mean of scale dy - xhat x mean of scale dy xhat) / deviation. */
static void dpari_norm_plane(const dpari_lanes *lanes, const dpar_mem_norm *call, int64_t plane,
                             double *sum)
{
    const int apply = call->phase == DPAR_MEM_NORM_APPLY, sums = call->phase == DPAR_MEM_NORM_SUMS;
    const int64_t step_in = dpari_norm_step(call, &call->x);
    const int64_t step_dy = apply ? 1 : dpari_norm_step(call, &call->dy);
    const int64_t step_out = sums ? 1 : dpari_norm_step(call, &call->to);
    const int direct = step_in == 1 && step_dy == 1 && step_out == 1;
    const int32_t type = direct ? call->type : DPAR_F64;
    DPARI_ROW double room[2][DPARI_ROW_PART];
    double by[5], total;
    int64_t at[DPAR_MAX_DIMS], count = dpari_norm_rows(call, at), k;
    if (count == 0) {
        return;
    }
    dpari_norm_factors(call, plane, by);
    do {
        const int64_t in = dpari_norm_at(call, &call->x, plane, at);
        const int64_t dy = apply ? 0 : dpari_norm_at(call, &call->dy, plane, at);
        const int64_t out = sums ? 0 : dpari_norm_at(call, &call->to, plane, at);
        for (k = 0; k < count; k += DPARI_ROW_PART) {
            const int64_t some = dpari_least(DPARI_ROW_PART, count - k);
            const void *x =
                dpari_norm_read(lanes, call, &call->x, in + k * step_in, some, direct, room[0]);
            const void *g = NULL;
            void *y = direct && !sums ? dpari_norm_there(call, out + k) : room[0];
            if (!apply) {
                g = dpari_norm_read(lanes, call, &call->dy, dy + k * step_dy, some, direct,
                                    room[1]);
            }
            if (sums) {
                sum[1] += lanes->product(g, x, type, by[3], some, &total) * by[0];
                sum[0] += total;
                continue;
            }
            if (apply) {
                lanes->line(y, x, type, by, some);
            } else {
                lanes->slope(y, x, g, type, by, some);
            }
            if (!direct) {
                dpari_norm_write(call, out + k * step_out, some, room[0]);
            }
        }
    } while (dpari_norm_row(call, at));
}

/* Computes the sums of each plane, and adds them, multiplied by the scale, to the totals of its set
 * and to the gradients of scale and shift. */
static void dpari_norm_totals(const dpari_lanes *lanes, const dpar_mem_norm *call, int64_t sets)
{
    const double points = (double)dpari_layer_points(call->extent, call->dims);
    int64_t p;
    dpari_zero(call->total, (size_t)(3 * sets) * sizeof *call->total);
    for (p = 0; p < call->planes; p++) {
        double *t = &call->total[3 * dpari_norm_set(call->channels, call->groups, p)];
        double *sum = &call->sums[2 * p];
        sum[0] = 0.0;
        sum[1] = 0.0;
        dpari_norm_plane(lanes, call, p, sum);
        t[0] += sum[0] * dpari_norm_scale(call, p);
        t[1] += sum[1] * dpari_norm_scale(call, p);
        t[2] += points;
        if (call->shift_gradient != NULL) {
            call->shift_gradient[p % call->channels] += sum[0];
        }
        if (call->scale_gradient != NULL) {
            call->scale_gradient[p % call->channels] += sum[1];
        }
    }
}

/* True if the fields of the call are valid and no array that the phase needs is NULL. */
static int dpari_norm_fits(const dpar_mem_norm *call)
{
    const int walks = call->phase != DPAR_MEM_NORM_MERGE, sums = call->phase == DPAR_MEM_NORM_SUMS;
    const int writes = call->phase == DPAR_MEM_NORM_APPLY || call->phase == DPAR_MEM_NORM_GRADIENT;
    int32_t d, negative = call->dims < 0 || call->dims > DPAR_MAX_DIMS;
    for (d = 0; d < call->dims && !negative; d++) {
        negative = call->extent[d] < 0;
    }
    if (negative || call->phase < DPAR_MEM_NORM_MERGE || call->phase > DPAR_MEM_NORM_GRADIENT ||
        !dpari_is_wide(call->type) || call->planes < 0 || call->channels < 1 ||
        call->planes % call->channels != 0 || call->groups < 0 ||
        (call->groups > 0 && call->channels % call->groups != 0) || call->ranks < 0) {
        return 0;
    }
    if (call->planes == 0) {
        return 1;
    }
    if (call->saved == NULL || (!walks && call->all == NULL && call->ranks > 0) ||
        (sums && call->sums == NULL) ||
        (call->phase >= DPAR_MEM_NORM_SUMS && call->total == NULL)) {
        return 0;
    }
    return dpari_layer_points(call->extent, call->dims) == 0 || !walks ||
           (call->x.data != NULL && (!writes || call->to.data != NULL) &&
            (call->phase < DPAR_MEM_NORM_SUMS || call->dy.data != NULL));
}

DPARI_INTERNAL dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *call)
{
    const int writes = call->phase == DPAR_MEM_NORM_APPLY || call->phase == DPAR_MEM_NORM_GRADIENT;
    dpari_lanes l;
    int64_t p, sets;
    (void)ctx;
    if (!dpari_norm_fits(call)) {
        return DPAR_E_ARG;
    }
    l = dpari_lanes_for(call->planes * dpari_layer_points(call->extent, call->dims));
    sets = call->groups == 0 ? call->channels : call->planes / call->channels * call->groups;
    if (call->phase == DPAR_MEM_NORM_MERGE) {
        dpari_norm_merge(call, call->planes > 0 ? sets : 0);
    } else if (call->phase == DPAR_MEM_NORM_SUMS) {
        dpari_norm_totals(&l, call, call->planes > 0 ? sets : 0);
    }
    for (p = 0; p < call->planes && writes; p++) {
        dpari_norm_plane(&l, call, p, NULL);
    }
    return DPAR_OK;
}
