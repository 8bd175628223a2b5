/* SPDX-License-Identifier: MIT-0 */
/* Normalization of planes: dpar_mem_layers.norm. */
#include "operations.h"

#include "four.h"
#include "moments.h"
#include "planes.h"

struct dpari_cuda_norm {
    dpar_mem_norm m;
    dpari_cuda_plane<3> plane; /* sides: x, dy and to */
    int64_t sets;
    int64_t slices, each; /* slices of a plane; points of a slice */
    double *part;         /* [planes][slices][2] */
    int32_t dense, room;  /* dense 1: a plane's points are contiguous on all sides */
};

DPARI_CUDA_FN int64_t dpari_cuda_norm_set(const dpar_mem_norm &m, int64_t plane)
{
    const int64_t channel = plane % m.channels;
    return m.groups == 0 ? channel
                         : plane / m.channels * m.groups + channel / (m.channels / m.groups);
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_merge_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    const dpar_mem_norm &m = s.m;
    for (int64_t set = dpari_cuda_thread(); set < s.sets; set += dpari_cuda_threads()) {
        dpari_cuda_three_of all = {0.0, 0.0, 0.0};
        for (int64_t r = 0; r < m.ranks; r++) {
            const double *part = m.all + 3 * (r * s.sets + set);
            dpari_cuda_three_join(&all, {part[0], part[1], part[2]});
        }
        m.saved[2 * set] = all.mean;
        m.saved[2 * set + 1] =
            1.0 / sqrt(dpari_cuda_add(all.m2 / (all.count > 1.0 ? all.count : 1.0), m.epsilon));
    }
}

/* The coefficients by which APPLY and GRADIENT map the points of a plane. */
struct dpari_cuda_norm_line {
    double middle, inverse, scale;
    double a, b;        /* APPLY */
    double mean, slope; /* GRADIENT */
};

__device__ static inline dpari_cuda_norm_line dpari_cuda_norm_line_of(const dpar_mem_norm &m,
                                                                      int64_t plane, int32_t back)
{
    const int64_t set = dpari_cuda_norm_set(m, plane), channel = plane % m.channels;
    dpari_cuda_norm_line l;
    l.middle = m.saved[2 * set];
    l.inverse = m.saved[2 * set + 1];
    l.scale = m.scale != NULL ? dpari_cuda_get_wide(m.scale, channel, m.type) : 1.0;
    l.a = dpari_cuda_mul(l.inverse, l.scale);
    l.b = l.mean = l.slope = 0.0;
    if (back) {
        const double n = m.total[3 * set + 2] > 1.0 ? m.total[3 * set + 2] : 1.0;
        l.mean = m.total[3 * set] / n;
        l.slope = dpari_cuda_mul(l.inverse, m.total[3 * set + 1] / n);
    } else {
        l.b = m.shift != NULL ? dpari_cuda_get_wide(m.shift, channel, m.type) : 0.0;
    }
    return l;
}

__device__ static inline double dpari_cuda_norm_point(const dpari_cuda_norm_line &l, int32_t back,
                                                      double x, double dy)
{
    const double v = dpari_cuda_add(x, -l.middle);
    return back
               ? dpari_cuda_mul(l.inverse,
                                dpari_cuda_add(dpari_cuda_add(dpari_cuda_mul(l.scale, dy), -l.mean),
                                               -dpari_cuda_mul(v, l.slope)))
               : dpari_cuda_add(dpari_cuda_mul(l.a, v), l.b);
}

/* Runs APPLY and GRADIENT. Each block has one slice of one plane. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_map_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    const dpar_mem_norm &m = s.m;
    const int32_t back = m.phase == DPAR_MEM_NORM_GRADIENT;
    for (int64_t c = blockIdx.x; c < m.planes * s.slices; c += gridDim.x) {
        const int64_t plane = c / s.slices, lo = (c - plane * s.slices) * s.each;
        const int64_t hi = lo + s.each < s.plane.points ? lo + s.each : s.plane.points;
        const dpari_cuda_norm_line line = dpari_cuda_norm_line_of(m, plane, back);
        for (int64_t i = lo + threadIdx.x; i < hi; i += DPARI_CUDA_THREADS) {
            int64_t at[3];
            double v, g = 0.0;
            dpari_cuda_plane_at(s.plane, i, at);
            if (back) {
                g = dpari_cuda_get_wide(m.dy.data, plane * m.dy.step + at[1], m.type);
            }
            v = dpari_cuda_get_wide(m.x.data, plane * m.x.step + at[0], m.type);
            v = dpari_cuda_norm_point(line, back, v, g);
            dpari_cuda_put_wide(m.to.data, plane * m.to.step + at[2], m.type, v);
        }
    }
}

/* The same for F32 in units of 16 bytes, of which two on each side are in flight together. */
template <int BACK>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_wide_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    enum { PER = 2, APART = 4 * DPARI_CUDA_THREADS };
    const dpar_mem_norm &m = s.m;
    for (int64_t c = blockIdx.x; c < m.planes * s.slices; c += gridDim.x) {
        const int64_t plane = c / s.slices, lo = (c - plane * s.slices) * s.each;
        const int64_t hi = lo + s.each < s.plane.points ? lo + s.each : s.plane.points;
        const dpari_cuda_norm_line line = dpari_cuda_norm_line_of(m, plane, BACK);
        const float *x = (const float *)m.x.data + plane * m.x.step;
        const float *dy = (const float *)m.dy.data + plane * m.dy.step;
        float *to = (float *)m.to.data + plane * m.to.step;
        for (int64_t i = lo + 4 * (int64_t)threadIdx.x; i < hi; i += PER * APART) {
            dpari_cuda_four p[PER], q[PER];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                if (i + j * APART < hi) {
                    dpari_cuda_load_all<0, 1>(&p[j], x, i + j * APART, 4);
                }
                if (BACK && i + j * APART < hi) {
                    dpari_cuda_load_all<0, 1>(&q[j], dy, i + j * APART, 4);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                double v[4], g[4] = {0.0, 0.0, 0.0, 0.0};
                if (i + j * APART >= hi) {
                    continue;
                }
                dpari_cuda_widen(&p[j], DPAR_F32, v);
                if (BACK) {
                    dpari_cuda_widen(&q[j], DPAR_F32, g);
                }
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    v[e] = dpari_cuda_norm_point(line, BACK, v[e], g[e]);
                }
                dpari_cuda_narrow(&p[j], DPAR_F32, v);
                dpari_cuda_store_all<0, 1>(&p[j], to, i + j * APART, 4);
            }
        }
    }
}

/* Adds a point to the sums of dy and of dy (x - mean). */
__device__ static inline void dpari_cuda_norm_add(double x, double dy, double middle, double *of_dy,
                                                  double *of_both)
{
    *of_dy = dpari_cuda_add(*of_dy, dy);
    *of_both = dpari_cuda_add(*of_both, dpari_cuda_mul(dy, dpari_cuda_add(x, -middle)));
}

/* Runs SUMS. Each block has one slice of one plane. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_sums_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    enum { PER = 8 };
    __shared__ double part[2][DPARI_CUDA_THREADS];
    const dpar_mem_norm &m = s.m;
    for (int64_t c = blockIdx.x; c < m.planes * s.slices; c += gridDim.x) {
        const int64_t plane = c / s.slices, lo = (c - plane * s.slices) * s.each;
        const int64_t hi = lo + s.each < s.plane.points ? lo + s.each : s.plane.points;
        const int64_t set = dpari_cuda_norm_set(m, plane);
        const double middle = m.saved[2 * set];
        double of_dy = 0.0, of_both = 0.0;
        int64_t i = lo + threadIdx.x;
        if (s.dense && m.type == DPAR_F32) { /* loads several points together, in the same order */
            const float *px = (const float *)m.x.data + plane * m.x.step;
            const float *pg = (const float *)m.dy.data + plane * m.dy.step;
            for (; i + (PER - 1) * DPARI_CUDA_THREADS < hi; i += PER * DPARI_CUDA_THREADS) {
                float x[PER], g[PER];
                DPARI_CUDA_UNROLL
                for (int j = 0; j < PER; j++) {
                    x[j] = px[i + j * DPARI_CUDA_THREADS];
                    g[j] = pg[i + j * DPARI_CUDA_THREADS];
                }
                DPARI_CUDA_UNROLL
                for (int j = 0; j < PER; j++) {
                    dpari_cuda_norm_add((double)x[j], (double)g[j], middle, &of_dy, &of_both);
                }
            }
        }
        for (; i < hi; i += DPARI_CUDA_THREADS) {
            int64_t at[3];
            dpari_cuda_plane_at(s.plane, i, at);
            dpari_cuda_norm_add(dpari_cuda_get_wide(m.x.data, plane * m.x.step + at[0], m.type),
                                dpari_cuda_get_wide(m.dy.data, plane * m.dy.step + at[1], m.type),
                                middle, &of_dy, &of_both);
        }
        __syncthreads();
        part[0][threadIdx.x] = of_dy;
        part[1][threadIdx.x] = of_both;
        for (unsigned n = DPARI_CUDA_THREADS / 2; n > 0; n /= 2) {
            __syncthreads();
            if (threadIdx.x < 2 * n) { /* half of the threads for each sum */
                const unsigned which = threadIdx.x / n, k = threadIdx.x % n;
                part[which][k] = dpari_cuda_add(part[which][k], part[which][k + n]);
            }
        }
        __syncthreads();
        if (threadIdx.x < 2) {
            s.part[2 * c + threadIdx.x] = part[threadIdx.x][0];
        }
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_planes_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    for (int64_t plane = dpari_cuda_thread(); plane < s.m.planes; plane += dpari_cuda_threads()) {
        double of_dy = 0.0, of_both = 0.0;
        for (int64_t k = plane * s.slices; k < (plane + 1) * s.slices; k++) {
            of_dy = dpari_cuda_add(of_dy, s.part[2 * k]);
            of_both = dpari_cuda_add(of_both, s.part[2 * k + 1]);
        }
        s.m.sums[2 * plane] = of_dy;
        s.m.sums[2 * plane + 1] =
            dpari_cuda_mul(of_both, s.m.saved[2 * dpari_cuda_norm_set(s.m, plane) + 1]);
    }
}

/* Each thread has a set, or, beyond the sets, a channel. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_norm_totals_kernel(DPARI_CUDA_ARGS dpari_cuda_norm s)
{
    const dpar_mem_norm &m = s.m;
    const int64_t samples = m.planes / m.channels;
    const int64_t per = m.groups > 0 ? m.channels / m.groups : samples; /* planes of a set */
    for (int64_t i = dpari_cuda_thread(); i < s.sets + m.channels; i += dpari_cuda_threads()) {
        const int64_t channel = i - s.sets;
        double t[3] = {0.0, 0.0, 0.0};
        for (int64_t k = 0; i < s.sets && k < per; k++) {
            const int64_t plane = m.groups > 0 ? i * per + k : k * m.channels + i;
            const double scale =
                m.scale != NULL ? dpari_cuda_get_wide(m.scale, plane % m.channels, m.type) : 1.0;
            t[0] = dpari_cuda_add(t[0], dpari_cuda_mul(m.sums[2 * plane], scale));
            t[1] = dpari_cuda_add(t[1], dpari_cuda_mul(m.sums[2 * plane + 1], scale));
            t[2] = dpari_cuda_add(t[2], (double)s.plane.points);
        }
        for (int32_t k = 0; i < s.sets && k < 3; k++) {
            m.total[3 * i + k] = t[k];
        }
        for (int64_t k = 0; i >= s.sets && k < samples; k++) {
            const double *sums = m.sums + 2 * (k * m.channels + channel);
            if (m.shift_gradient != NULL) {
                m.shift_gradient[channel] = dpari_cuda_add(m.shift_gradient[channel], sums[0]);
            }
            if (m.scale_gradient != NULL) {
                m.scale_gradient[channel] = dpari_cuda_add(m.scale_gradient[channel], sums[1]);
            }
        }
    }
}

/* True if the call has everything that its phase needs. */
static int dpari_cuda_norm_fits(const dpar_mem_norm *call)
{
    const int walks = call->phase != DPAR_MEM_NORM_MERGE, sums = call->phase == DPAR_MEM_NORM_SUMS;
    const int writes = call->phase == DPAR_MEM_NORM_APPLY || call->phase == DPAR_MEM_NORM_GRADIENT;
    int64_t points = 1;
    if (call->phase < DPAR_MEM_NORM_MERGE || call->phase > DPAR_MEM_NORM_GRADIENT ||
        call->ranks < 0 || (call->type != DPAR_F64 && call->type != DPAR_F32) ||
        !dpari_cuda_planes_fine(call->planes, call->channels, call->groups, call->dims,
                                call->extent)) {
        return 0;
    }
    for (int32_t d = 0; d < call->dims; d++) {
        points = call->extent[d] == 0 ? 0 : points;
    }
    if (call->planes == 0) {
        return 1;
    }
    if (call->saved == NULL || (!walks && call->all == NULL && call->ranks > 0) ||
        (sums && call->sums == NULL) ||
        (call->phase >= DPAR_MEM_NORM_SUMS && call->total == NULL)) {
        return 0;
    }
    return points == 0 || !walks ||
           (call->x.data != NULL && (!writes || call->to.data != NULL) &&
            (call->phase < DPAR_MEM_NORM_SUMS || call->dy.data != NULL));
}

static dpar_status dpari_cuda_norm_sum(dpar_cuda *gpu, const dpari_cuda_norm *s)
{
    dpar_status st = dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_sums_kernel, *s,
                                       dpari_cuda_wave(gpu, s->m.planes * s->slices));
    if (st == DPAR_OK) {
        st = dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_planes_kernel, *s,
                               dpari_cuda_units_blocks(gpu, s->m.planes));
    }
    return st == DPAR_OK ? dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_totals_kernel, *s,
                                             dpari_cuda_units_blocks(gpu, s->sets + s->m.channels))
                         : st;
}

/* Returns the points of a slice: as many as possible with enough slices for all multiprocessors. */
static int64_t dpari_cuda_norm_each(const dpar_cuda *gpu, int64_t planes, int64_t points)
{
    int64_t each = 16384;
    while (each > 4096 &&
           planes * ((points + each - 1) / each) < 16 * (int64_t)gpu->multiprocessors) {
        each /= 2;
    }
    return each;
}

/* Launches APPLY or GRADIENT. */
static dpar_status dpari_cuda_norm_map(dpar_cuda *gpu, dpari_cuda_norm *s)
{
    const dpar_mem_norm *call = &s->m;
    const int back = call->phase == DPAR_MEM_NORM_GRADIENT;
    const int wide = s->dense && call->type == DPAR_F32 && s->plane.points % 4 == 0 &&
                     (call->x.step | call->to.step | (back ? call->dy.step : 0)) % 4 == 0 &&
                     dpari_cuda_aligned(call->x.data) && dpari_cuda_aligned(call->to.data) &&
                     (!back || dpari_cuda_aligned(call->dy.data));
    void (*kernel)(const dpari_cuda_norm) = dpari_cuda_norm_map_kernel;
    if (s->plane.points == 0) {
        return DPAR_OK;
    }
    if (wide) {
        kernel = back ? dpari_cuda_norm_wide_kernel<1> : dpari_cuda_norm_wide_kernel<0>;
        s->each = dpari_cuda_norm_each(gpu, call->planes, s->plane.points);
        s->slices = (s->plane.points + s->each - 1) / s->each;
    }
    return dpari_cuda_launch(gpu, "norm", kernel, *s,
                             dpari_cuda_wave(gpu, call->planes * s->slices));
}

DPARI_INTERNAL dpar_status dpari_cuda_norm_of(void *ctx, const dpar_mem_norm *call)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int sums = call->phase == DPAR_MEM_NORM_SUMS;
    /* arrays that the phase does not use get the strides of x */
    const int64_t *const x = call->x.stride;
    const int64_t *const dy = call->phase == DPAR_MEM_NORM_APPLY ? x : call->dy.stride;
    const int64_t *const to = sums ? x : call->to.stride;
    const int64_t *const stride[3] = {x, dy, to};
    dpari_cuda_norm s;
    int64_t most;
    if (!dpari_cuda_norm_fits(call)) {
        return dpari_cuda_wrong(gpu, "norm");
    }
    if (call->planes == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.m = *call;
    s.sets = call->groups > 0 ? call->planes / call->channels * call->groups : call->channels;
    s.part = call->sums; /* if a plane has one slice, its sums are already in place */
    if (call->phase == DPAR_MEM_NORM_MERGE) {
        return dpari_cuda_launch(gpu, "norm", dpari_cuda_norm_merge_kernel, s,
                                 dpari_cuda_units_blocks(gpu, s.sets));
    }
    dpari_cuda_plane_lay(call->dims, call->extent, stride, &s.plane);
    s.dense = s.plane.dims == 1 && s.plane.stride[0][0] == 1 && s.plane.stride[1][0] == 1 &&
              s.plane.stride[2][0] == 1;
    most = sums ? 2 * DPARI_CUDA_PARTS / call->planes : s.plane.points;
    s.slices = (s.plane.points + 4095) / 4096 < most ? (s.plane.points + 4095) / 4096 : most;
    s.slices = s.slices < 1 ? 1 : s.slices;
    s.each = (s.plane.points + s.slices - 1) / s.slices;
    if (s.slices > 1) {
        s.part = (double *)gpu->scratch;
    }
    return sums ? dpari_cuda_norm_sum(gpu, &s) : dpari_cuda_norm_map(gpu, &s);
}
