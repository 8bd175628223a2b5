/* SPDX-License-Identifier: MIT-0 */
#include "layers_norm.h"

#include "../base/arith.h"
#include "../base/real.h"
#include "../comm/elements.h"

/* ---- moments --------------------------------------------------------------------------------- */

/* In four chains: an addition takes longer than it takes to begin one. */
static double dpari_moments_total(const double *x, int64_t count)
{
    double a = 0.0, b = 0.0, c = 0.0, d = 0.0;
    int64_t i;
    for (i = 0; i + 4 <= count; i += 4) {
        a += x[i];
        b += x[i + 1];
        c += x[i + 2];
        d += x[i + 3];
    }
    for (; i < count; i++) {
        a += x[i];
    }
    return (a + b) + (c + d);
}

/* As memcpy, for rows that are too short for a call of it. Four at a time are read before they are
 * written: so compilers take them together, whether or not `to` may be `from`. */
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

/* Floats as above. */
DPARI_API void dpari_row_read(const void *x, int32_t type, int64_t at, int64_t step, int64_t count,
                              double *to)
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
        const float *from = (const float *)x + at;
        for (i = 0; i + 4 <= count; i += 4) {
            const double p = (double)from[i], q = (double)from[i + 1];
            const double r = (double)from[i + 2], s = (double)from[i + 3];
            to[i] = p;
            to[i + 1] = q;
            to[i + 2] = r;
            to[i + 3] = s;
        }
        for (; i < count; i++) {
            to[i] = (double)from[i];
        }
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

/* *a becomes that of both sets (Chan, Golub, LeVeque). Also with counts of 0. */
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

/* A row: part by part, two passes each, merged: no number is far from the mean it is compared
 * with. */
static void dpari_moments_row(const dpar_mem_moments *m, int64_t at, int64_t step, int64_t count,
                              dpar_moments *to)
{
    double part[DPARI_ROW_PART];
    int64_t i, k;
    for (k = 0; k < count; k += DPARI_ROW_PART) {
        const int64_t some = dpari_least(DPARI_ROW_PART, count - k);
        dpar_moments one;
        dpari_row_read(m->x, m->type, at + k * step, step, some, part);
        one.count = (double)some;
        one.mean = dpari_moments_total(part, some) / one.count;
        for (i = 0; i < some; i++) {
            part[i] = (part[i] - one.mean) * (part[i] - one.mean);
        }
        one.m2 = dpari_moments_total(part, some);
        dpari_moments_merge(to, &one);
    }
}

/* A plane: rows along the last dim. */
static void dpari_moments_plane(const dpar_mem_moments *m, int64_t plane, dpar_moments *to)
{
    const int32_t last = m->dims - 1;
    int64_t at[DPAR_MAX_DIMS], first = plane * m->step;
    int32_t d;
    for (d = 0; d < m->dims; d++) {
        if (m->extent[d] == 0) {
            return;
        }
        at[d] = 0;
    }
    do {
        dpari_moments_row(m, first, last >= 0 ? m->stride[last] : 0,
                          last >= 0 ? m->extent[last] : 1, to);
        for (d = last - 1; d >= 0; d--) {
            first += m->stride[d];
            if (++at[d] < m->extent[d]) {
                break;
            }
            first -= m->stride[d] * m->extent[d];
            at[d] = 0;
        }
    } while (d >= 0);
}

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
           (m->add == 0 || m->add == 1) && !(m->planes > 0 && points > 0 && m->x == NULL) &&
           !(sets > 0 && m->to == NULL);
}

DPARI_API dpar_status dpari_mem_moments(void *ctx, const dpar_mem_moments *m)
{
    dpar_moments *to = (dpar_moments *)(void *)m->to;
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
    if (!m->add) {
        dpari_zero(to, (size_t)sets * sizeof *to);
    }
    for (p = 0; p < m->planes; p++) {
        const int64_t channel = p % m->channels;
        const int64_t set = m->groups == 0
                                ? channel
                                : p / m->channels * m->groups + channel / (m->channels / m->groups);
        dpari_moments_plane(m, p, &to[set]);
    }
    return DPAR_OK;
}

/* ---- norms ----------------------------------------------------------------------------------- */

static double dpari_norm_scale(const dpar_mem_norm *m, int64_t plane)
{
    return m->scale != NULL ? dpari_element_get(m->scale, m->type, plane % m->channels) : 1.0;
}

/* The set that a plane belongs to. */
static int64_t dpari_norm_set(const dpar_mem_norm *m, int64_t plane)
{
    const int64_t channel = plane % m->channels;
    return m->groups == 0 ? channel
                          : plane / m->channels * m->groups + channel / (m->channels / m->groups);
}

static int64_t dpari_norm_points(const dpar_mem_norm *m)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < m->dims; d++) {
        n *= m->extent[d];
    }
    return n;
}

/* One plane: rows along the last dim; 0 at the end. */
static int dpari_norm_row(const dpar_mem_norm *m, int64_t *at)
{
    int32_t d;
    for (d = m->dims - 2; d >= 0; d--) {
        if (++at[d] < m->extent[d]) {
            return 1;
        }
        at[d] = 0;
    }
    return 0;
}

/* Where a row begins. */
static int64_t dpari_norm_at(const dpar_mem_norm *m, const dpar_mem_planes *p, int64_t plane,
                             const int64_t *at)
{
    int64_t first = plane * p->step;
    int32_t d;
    for (d = 0; d + 1 < m->dims; d++) {
        first += at[d] * p->stride[d];
    }
    return first;
}

/* From point to point of a row. */
static int64_t dpari_norm_step(const dpar_mem_norm *m, const dpar_mem_planes *p)
{
    return m->dims > 0 ? p->stride[m->dims - 1] : 0;
}

/* Begins at the first row; its length. 0: there are no points. */
static int64_t dpari_norm_rows(const dpar_mem_norm *m, int64_t *at)
{
    dpari_zero(at, DPAR_MAX_DIMS * sizeof *at);
    return dpari_norm_points(m) == 0 ? 0 : m->dims > 0 ? m->extent[m->dims - 1] : 1;
}

static void dpari_norm_read(const dpar_mem_norm *m, const dpar_mem_planes *p, int64_t at,
                            int64_t count, double *to)
{
    dpari_row_read(p->data, m->type, at, dpari_norm_step(m, p), count, to);
}

static void dpari_norm_write(const dpar_mem_norm *m, int64_t at, int64_t count, const double *from)
{
    const int64_t step = dpari_norm_step(m, &m->to);
    int64_t i;
    if (m->type == DPAR_F64 && step == 1) {
        dpari_moments_copy((double *)m->to.data + at, from, count);
    } else if (m->type == DPAR_F64) {
        double *to = (double *)m->to.data + at;
        for (i = 0; i < count; i++) {
            to[i * step] = from[i];
        }
    } else if (step == 1) {
        float *to = (float *)m->to.data + at;
        for (i = 0; i < count; i++) {
            to[i] = (float)from[i];
        }
    } else {
        float *to = (float *)m->to.data + at;
        for (i = 0; i < count; i++) {
            to[i * step] = (float)from[i];
        }
    }
}

static void dpari_norm_merge(const dpar_mem_norm *m, int64_t sets)
{
    int64_t i;
    int32_t r;
    for (i = 0; i < sets; i++) {
        dpar_moments all;
        dpari_zero(&all, sizeof all);
        for (r = 0; r < m->ranks; r++) {
            const double *one = m->all + 3 * (r * sets + i);
            dpar_moments part;
            part.count = one[0];
            part.mean = one[1];
            part.m2 = one[2];
            dpari_moments_merge(&all, &part);
        }
        m->saved[2 * i] = all.mean;
        m->saved[2 * i + 1] = 1.0 / dpari_sqrt(all.m2 / dpari_mostf(all.count, 1.0) + m->epsilon);
    }
}

/* y = a (x - mean) + b in a plane. */
static void dpari_norm_apply(const dpar_mem_norm *m, int64_t plane)
{
    const double *saved = &m->saved[2 * dpari_norm_set(m, plane)];
    const double mean = saved[0], a = saved[1] * dpari_norm_scale(m, plane);
    const double b =
        m->shift != NULL ? dpari_element_get(m->shift, m->type, plane % m->channels) : 0.0;
    double part[DPARI_ROW_PART];
    int64_t at[DPAR_MAX_DIMS], count = dpari_norm_rows(m, at), i, k;
    if (count == 0) {
        return;
    }
    do {
        const int64_t in = dpari_norm_at(m, &m->x, plane, at);
        const int64_t out = dpari_norm_at(m, &m->to, plane, at);
        const int64_t step_in = dpari_norm_step(m, &m->x), step_out = dpari_norm_step(m, &m->to);
        for (k = 0; k < count; k += DPARI_ROW_PART) {
            const int64_t some = dpari_least(DPARI_ROW_PART, count - k);
            dpari_norm_read(m, &m->x, in + k * step_in, some, part);
            for (i = 0; i < some; i++) {
                part[i] = a * (part[i] - mean) + b;
            }
            dpari_norm_write(m, out + k * step_out, some, part);
        }
    } while (dpari_norm_row(m, at));
}

/* Of one plane: sum[0] of dy, sum[1] of dy (x - mean) / deviation. */
static void dpari_norm_sums(const dpar_mem_norm *m, int64_t plane, double *sum)
{
    const double *saved = &m->saved[2 * dpari_norm_set(m, plane)];
    const double mean = saved[0], inverse = saved[1];
    double part[DPARI_ROW_PART], g[DPARI_ROW_PART];
    int64_t at[DPAR_MAX_DIMS], count = dpari_norm_rows(m, at), i, k;
    sum[0] = 0.0;
    sum[1] = 0.0;
    if (count == 0) {
        return;
    }
    do {
        const int64_t in = dpari_norm_at(m, &m->x, plane, at);
        const int64_t out = dpari_norm_at(m, &m->dy, plane, at);
        const int64_t step_in = dpari_norm_step(m, &m->x), step_out = dpari_norm_step(m, &m->dy);
        for (k = 0; k < count; k += DPARI_ROW_PART) {
            const int64_t some = dpari_least(DPARI_ROW_PART, count - k);
            dpari_norm_read(m, &m->x, in + k * step_in, some, part);
            dpari_norm_read(m, &m->dy, out + k * step_out, some, g);
            for (i = 0; i < some; i++) {
                part[i] = g[i] * (part[i] - mean);
            }
            sum[0] += dpari_moments_total(g, some);
            sum[1] += dpari_moments_total(part, some) * inverse;
        }
    } while (dpari_norm_row(m, at));
}

static void dpari_norm_totals(const dpar_mem_norm *m, int64_t sets)
{
    const double points = (double)dpari_norm_points(m);
    int64_t p;
    dpari_zero(m->total, (size_t)(3 * sets) * sizeof *m->total);
    for (p = 0; p < m->planes; p++) {
        double *t = &m->total[3 * dpari_norm_set(m, p)], *sum = &m->sums[2 * p];
        dpari_norm_sums(m, p, sum);
        t[0] += sum[0] * dpari_norm_scale(m, p);
        t[1] += sum[1] * dpari_norm_scale(m, p);
        t[2] += points;
        if (m->shift_gradient != NULL) {
            m->shift_gradient[p % m->channels] += sum[0];
        }
        if (m->scale_gradient != NULL) {
            m->scale_gradient[p % m->channels] += sum[1];
        }
    }
}

/* dx = scale / deviation * (dy - mean of dy - xhat * mean of dy xhat), the means with the scale. */
static void dpari_norm_gradient(const dpar_mem_norm *m, int64_t plane)
{
    const int64_t set = dpari_norm_set(m, plane);
    const double *total = &m->total[3 * set], scale = dpari_norm_scale(m, plane);
    const double n = dpari_mostf(total[2], 1.0), middle = m->saved[2 * set];
    const double inverse = m->saved[2 * set + 1];
    const double mean = total[0] / n, slope = inverse * (total[1] / n);
    double part[DPARI_ROW_PART], g[DPARI_ROW_PART];
    int64_t at[DPAR_MAX_DIMS], count = dpari_norm_rows(m, at), i, k;
    if (count == 0) {
        return;
    }
    do {
        const int64_t in = dpari_norm_at(m, &m->x, plane, at);
        const int64_t out = dpari_norm_at(m, &m->dy, plane, at);
        const int64_t to = dpari_norm_at(m, &m->to, plane, at);
        for (k = 0; k < count; k += DPARI_ROW_PART) {
            const int64_t some = dpari_least(DPARI_ROW_PART, count - k);
            dpari_norm_read(m, &m->x, in + k * dpari_norm_step(m, &m->x), some, part);
            dpari_norm_read(m, &m->dy, out + k * dpari_norm_step(m, &m->dy), some, g);
            for (i = 0; i < some; i++) {
                part[i] = inverse * (scale * g[i] - mean - (part[i] - middle) * slope);
            }
            dpari_norm_write(m, to + k * dpari_norm_step(m, &m->to), some, part);
        }
    } while (dpari_norm_row(m, at));
}

/* Is all there that the phase needs? */
static int dpari_norm_fits(const dpar_mem_norm *m)
{
    const int walks = m->phase != DPAR_MEM_NORM_MERGE, sums = m->phase == DPAR_MEM_NORM_SUMS;
    const int writes = m->phase == DPAR_MEM_NORM_APPLY || m->phase == DPAR_MEM_NORM_GRADIENT;
    int32_t d, negative = m->dims < 0 || m->dims > DPAR_MAX_DIMS;
    for (d = 0; d < m->dims && !negative; d++) {
        negative = m->extent[d] < 0;
    }
    if (negative || m->phase < DPAR_MEM_NORM_MERGE || m->phase > DPAR_MEM_NORM_GRADIENT ||
        !dpari_is_wide(m->type) || m->planes < 0 || m->channels < 1 ||
        m->planes % m->channels != 0 || m->groups < 0 ||
        (m->groups > 0 && m->channels % m->groups != 0) || m->ranks < 0) {
        return 0;
    }
    if (m->planes == 0) {
        return 1;
    }
    if (m->saved == NULL || (!walks && m->all == NULL && m->ranks > 0) ||
        (sums && m->sums == NULL) || (m->phase >= DPAR_MEM_NORM_SUMS && m->total == NULL)) {
        return 0;
    }
    return dpari_norm_points(m) == 0 || !walks ||
           (m->x.data != NULL && (!writes || m->to.data != NULL) &&
            (m->phase < DPAR_MEM_NORM_SUMS || m->dy.data != NULL));
}

DPARI_API dpar_status dpari_mem_norm(void *ctx, const dpar_mem_norm *m)
{
    int64_t p, sets;
    (void)ctx;
    if (!dpari_norm_fits(m)) {
        return DPAR_E_ARG;
    }
    sets = m->groups == 0 ? m->channels : m->planes / m->channels * m->groups;
    if (m->phase == DPAR_MEM_NORM_MERGE) {
        dpari_norm_merge(m, m->planes > 0 ? sets : 0);
    } else if (m->phase == DPAR_MEM_NORM_SUMS) {
        dpari_norm_totals(m, m->planes > 0 ? sets : 0);
    }
    for (p = 0; p < m->planes && m->phase == DPAR_MEM_NORM_APPLY; p++) {
        dpari_norm_apply(m, p);
    }
    for (p = 0; p < m->planes && m->phase == DPAR_MEM_NORM_GRADIENT; p++) {
        dpari_norm_gradient(m, p);
    }
    return DPAR_OK;
}
