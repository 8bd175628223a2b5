/* SPDX-License-Identifier: MIT-0 */
/* Moments of planes: dpar_mem_layers.moments. */
#include "moments.h"

#include "block_sums.h"
#include "four.h"
#include "operations.h"
#include "planes.h"

struct dpari_cuda_moment {
    dpar_mem_moments m;
    dpari_cuda_plane<1> plane;
    int64_t sets, planes; /* number of sets, and of planes in each */
    int64_t slices;       /* number of slices of a set; if it is 1, the result is stored directly */
    int64_t each;         /* points of a slice */
    dpari_cuda_three_of *part;
    int32_t per_sample; /* number of groups of a sample; 0 if the sets are channels */
    int32_t fours;      /* 1: four points, from a multiple of four on, are a vector */
    int32_t few;        /* 1: a set has less than 2^31 points, so that a multiplication replaces
                           divisions */
    uint32_t magic;     /* for division by the points of a plane */
    uint8_t shift, room[7];
};

/* Returns the offset of point i of a set; points are counted through all planes of the set. */
__device__ static inline int64_t dpari_cuda_point(const dpari_cuda_moment &s, int64_t set,
                                                  int64_t i)
{
    const int64_t k =
        s.few ? (int64_t)dpari_cuda_over((uint32_t)i, s.magic, s.shift) : i / s.plane.points;
    const int64_t plane = s.per_sample > 0 ? set * s.planes + k /* channels of a group follow each
                                                                   other */
                                           : k * s.m.channels + set;
    int64_t at;
    dpari_cuda_plane_at(s.plane, i - k * s.plane.points, &at);
    return plane * s.m.step + at;
}

DPARI_CUDA_ONCE __device__ static double dpari_cuda_point_value(const dpari_cuda_moment &s,
                                                                int64_t set, int64_t i)
{
    return dpari_cuda_one(s.m.x, dpari_cuda_point(s, set, i), s.m.type);
}

/* Loads points i to i + 3; those from `hi` on are 0. */
__device__ static inline void dpari_cuda_points(const dpari_cuda_moment &s, int64_t set, int64_t i,
                                                int64_t hi, double *x)
{
    dpari_cuda_four four;
    if (s.fours && i + 4 <= hi) {
        const int32_t width = dpari_cuda_width(s.m.type);
        const unsigned char *at =
            (const unsigned char *)s.m.x + dpari_cuda_point(s, set, i) * width;
        dpari_cuda_load<0>(&four, at, 0, 4, width, 1);
        dpari_cuda_widen(&four, s.m.type, x);
        return;
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        x[e] = i + e < hi ? dpari_cuda_point_value(s, set, i + e) : 0.0;
    }
}

__device__ static inline dpari_cuda_three_of dpari_cuda_three_block(dpari_cuda_three_of a)
{
    __shared__ dpari_cuda_three_of part[DPARI_CUDA_THREADS];
    __syncthreads();
    part[threadIdx.x] = a;
    for (unsigned n = DPARI_CUDA_THREADS / 2; n > 0; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) {
            a = part[threadIdx.x];
            dpari_cuda_three_join(&a, part[threadIdx.x + n]);
            part[threadIdx.x] = a;
        }
    }
    __syncthreads();
    return part[0];
}

__device__ static inline void dpari_cuda_three_put(const dpari_cuda_moment &s, int64_t set,
                                                   const dpari_cuda_three_of &a)
{
    double *to = s.m.to + 3 * set;
    dpari_cuda_three_of sum = {0.0, 0.0, 0.0};
    if (s.m.accumulate) {
        sum = {to[0], to[1], to[2]};
    }
    dpari_cuda_three_join(&sum, a);
    to[0] = sum.count;
    to[1] = sum.mean;
    to[2] = sum.m2;
}

/* Computes the mean of the first n points of x, and the sum of their squares about the mean. */
template <int SOME, typename V>
__device__ static inline dpari_cuda_three_of dpari_cuda_moment_some(const V *x, int32_t n)
{
    dpari_cuda_three_of one;
    double sum = 0.0, m2 = 0.0;
    DPARI_CUDA_UNROLL
    for (int j = 0; j < SOME; j++) {
        sum = dpari_cuda_add(sum, (double)x[j]); /* points that do not exist are 0 */
    }
    one.count = (double)n;
    one.mean = n == 16 ? dpari_cuda_mul(sum, 0.0625) : sum / one.count; /* exact, because 16 is a
                                                                           power of 2 */
    DPARI_CUDA_UNROLL
    for (int j = 0; j < SOME; j++) {
        const double off = (double)x[j] - one.mean;
        m2 = j < n ? fma(off, off, m2) : m2;
    }
    one.m2 = m2;
    return one;
}

/* Does the same for sixteen points, of which only the first `left` exist. */
template <typename V>
DPARI_CUDA_ONCE __device__ static void dpari_cuda_moment_rest(dpari_cuda_three_of *a, const V *x,
                                                              int64_t left)
{
    for (int j = 0; j < 4 && left > 0; j++, left -= 4 * DPARI_CUDA_THREADS) {
        dpari_cuda_three_join(a,
                              dpari_cuda_moment_some<4>(x + 4 * j, left < 4 ? (int32_t)left : 4));
    }
}

/* Loads sixteen points of a set, from i on, as fours that are a block apart. Points from `hi` on
 * are 0. If TYPE is set, the points are contiguous and loaded as vectors. */
template <int TYPE, typename V>
__device__ static inline void dpari_cuda_points_of(const dpari_cuda_moment &s, int64_t set,
                                                   int64_t i, int64_t hi, V *x)
{
    const int32_t width = dpari_cuda_width(TYPE);
    const unsigned char *base = (const unsigned char *)s.m.x + set * (s.planes * s.m.step * width);
    DPARI_CUDA_UNROLL
    for (int j = 0; j < 4; j++, i += 4 * DPARI_CUDA_THREADS) {
        if constexpr (TYPE == DPAR_TYPE_NONE) {
            dpari_cuda_points(s, set, i, hi, x + 4 * j);
        } else if (i < hi) {
            dpari_cuda_four four;
            dpari_cuda_load<0>(&four, base, i, hi, width, 1);
            dpari_cuda_widen(&four, TYPE, x + 4 * j);
        } else {
            x[4 * j] = x[4 * j + 1] = x[4 * j + 2] = x[4 * j + 3] = 0;
        }
    }
}

/* Each block has one slice of one set. A thread computes the mean of sixteen points, and the sum of
 * their squares about it, and merges these with its earlier results, while the next sixteen points
 * are being loaded. Only the last slice may end within a four. */
template <typename V, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, TYPE != DPAR_TYPE_NONE ? 4 : 2)
    dpari_cuda_moment_kernel(DPARI_CUDA_ARGS dpari_cuda_moment s)
{
    enum { FOURS = 4, APART = 4 * DPARI_CUDA_THREADS, KNOWN = 64 };
    __shared__ double share[KNOWN], both[KNOWN]; /* factors for merging sixteen points with k times
                                                    as many */
    const int64_t all = s.planes * s.plane.points;
    if (threadIdx.x < KNOWN) {
        const double k = 16.0 * (double)threadIdx.x;
        share[threadIdx.x] = 16.0 / (k + 16.0);
        both[threadIdx.x] = k * 16.0 / (k + 16.0);
    }
    __syncthreads();
    for (int64_t c = blockIdx.x; c < s.sets * s.slices; c += gridDim.x) {
        const int64_t set = c / s.slices, lo = (c - set * s.slices) * s.each;
        const int64_t hi = lo + s.each < all ? lo + s.each : all;
        int32_t k = 0;
        dpari_cuda_three_of a = {0.0, 0.0, 0.0};
        V next[4 * FOURS];
        dpari_cuda_points_of<TYPE>(s, set, lo + 4 * (int64_t)threadIdx.x, hi, next);
        for (int64_t i = lo + 4 * (int64_t)threadIdx.x; i < hi; i += FOURS * APART, k++) {
            V x[4 * FOURS];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < 4 * FOURS; j++) {
                x[j] = next[j];
            }
            if (TYPE != DPAR_TYPE_NONE || i + FOURS * APART < hi) {
                dpari_cuda_points_of<TYPE>(s, set, i + FOURS * APART, hi, next);
            }
            if (i + 3 * APART + 4 <= hi) {
                const dpari_cuda_three_of one = dpari_cuda_moment_some<4 * FOURS>(x, 4 * FOURS);
                if (k < KNOWN) {
                    dpari_cuda_three_join_by(&a, one, share[k], both[k]);
                } else {
                    dpari_cuda_three_join(&a, one);
                }
                continue;
            }
            V rest[4 * FOURS]; /* a separate array, so that `x` stays in registers */
            DPARI_CUDA_UNROLL
            for (int j = 0; j < 4 * FOURS; j++) {
                rest[j] = x[j];
            }
            dpari_cuda_moment_rest(&a, rest, hi - i);
        }
        a = dpari_cuda_three_block(a);
        if (threadIdx.x == 0 && s.slices == 1) {
            dpari_cuda_three_put(s, set, a);
        } else if (threadIdx.x == 0) {
            s.part[c] = a;
        }
    }
}

/* Each warp has a set. Its lanes prepare 32 slices at a time, which all have `each` points, except
 * the last one of the set. Then the slices are merged one after the other. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_moment_end_kernel(DPARI_CUDA_ARGS dpari_cuda_moment s)
{
    __shared__ dpari_cuda_three_of part[DPARI_CUDA_WARPS][32];
    __shared__ double share[DPARI_CUDA_WARPS][32], both[DPARI_CUDA_WARPS][32];
    const int32_t warp = (int32_t)threadIdx.x / 32, lane = (int32_t)threadIdx.x % 32;
    int64_t set = (int64_t)blockIdx.x * DPARI_CUDA_WARPS + warp;
    for (; set < s.sets; set += (int64_t)gridDim.x * DPARI_CUDA_WARPS) {
        dpari_cuda_three_of a = {0.0, 0.0, 0.0};
        for (int64_t k = 0; k < s.slices; k += 32) {
            const int32_t n = s.slices - k < 32 ? (int32_t)(s.slices - k) : 32;
            __syncwarp();
            if (lane < n) {
                const dpari_cuda_three_of one = s.part[set * s.slices + k + lane];
                const double before = (double)((k + lane) * s.each), all = before + one.count;
                part[warp][lane] = one;
                share[warp][lane] = one.count / all;
                both[warp][lane] = before * one.count / all;
            }
            __syncwarp();
            for (int32_t j = 0; j < n; j++) {
                if (part[warp][j].count > 0.0) {
                    dpari_cuda_three_join_by(&a, part[warp][j], share[warp][j], both[warp][j]);
                }
            }
        }
        if (lane == 0) {
            dpari_cuda_three_put(s, set, a);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_moments(void *ctx, const dpar_mem_moments *moments)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_moments *m = moments;
    void (*kernel)(const dpari_cuda_moment) = dpari_cuda_moment_kernel<double, DPAR_TYPE_NONE>;
    dpari_cuda_moment s;
    dpar_status st;
    const int64_t *const stride[1] = {m->stride};
    int64_t all, most;
    if (!dpari_cuda_is_float(m->type) ||
        !dpari_cuda_planes_fine(m->planes, m->channels, m->groups, m->dims, m->extent)) {
        return dpari_cuda_wrong(gpu, "moments");
    }
    memset(&s, 0, sizeof s);
    s.m = *m;
    dpari_cuda_plane_lay(m->dims, m->extent, stride, &s.plane);
    s.per_sample = m->groups;
    s.sets = m->groups > 0 ? m->planes / m->channels * m->groups : m->channels;
    s.planes = s.sets > 0 ? m->planes / s.sets : 0;
    all = s.planes * s.plane.points;
    if (s.sets > 0 && (m->to == NULL || (all > 0 && m->x == NULL))) {
        return dpari_cuda_wrong(gpu, "moments");
    }
    s.few = all < INT64_C(1) << 31;
    if (s.few && all > 0) {
        dpari_cuda_magic((uint32_t)s.plane.points, &s.magic, &s.shift);
    }
    s.fours = s.plane.points % 4 == 0 && m->step % 4 == 0 && s.plane.dims == 1 &&
              s.plane.stride[0][0] == 1 && dpari_cuda_even(m->x, 0, dpari_cuda_width(m->type));
    most = 2 * DPARI_CUDA_PARTS / (s.sets > 0 ? s.sets : 1); /* the most slices of a set */
    s.slices = (all + 4095) / 4096 < most ? (all + 4095) / 4096 : most;
    s.slices = s.slices < 1 ? 1 : s.slices;
    s.each = ((all + s.slices - 1) / s.slices + 3) / 4 * 4;
    s.part = (dpari_cuda_three_of *)gpu->scratch;
    if (s.sets == 0) {
        return DPAR_OK;
    }
    if (s.fours && m->groups > 0 && (m->step == s.plane.points || s.planes == 1)) {
        /* all points of a set are contiguous */
        if (m->type == DPAR_F32) {
            kernel = dpari_cuda_moment_kernel<float, DPAR_F32>;
        } else if (m->type == DPAR_BF16) {
            kernel = dpari_cuda_moment_kernel<float, DPAR_BF16>;
        }
    }
    st = dpari_cuda_launch(gpu, "moments", kernel, s, dpari_cuda_wave(gpu, s.sets * s.slices));
    return st != DPAR_OK || s.slices == 1
               ? st
               : dpari_cuda_launch(
                     gpu, "moments", dpari_cuda_moment_end_kernel, s,
                     dpari_cuda_wave(gpu, (s.sets + DPARI_CUDA_WARPS - 1) / DPARI_CUDA_WARPS));
}
