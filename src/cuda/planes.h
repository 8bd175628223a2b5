/* SPDX-License-Identifier: MIT-0 */
/* planes - private: the points of a plane in arrays of any strides. */
#ifndef DPARI_CUDA_PLANES_H
#define DPARI_CUDA_PLANES_H

#include "launch.h"

/* The points of a plane in several arrays, which are called sides (x, dy, ...), in as few dims as
 * all sides allow, with the last dim first. */
template <int SIDES> struct dpari_cuda_plane {
    int64_t points;
    int64_t extent[DPAR_MAX_DIMS], stride[SIDES][DPAR_MAX_DIMS];
    uint32_t magic[DPAR_MAX_DIMS];
    uint8_t shift[DPAR_MAX_DIMS];
    int32_t dims, small; /* small 1: indices fit in 31 bits, so that a multiplication replaces
                            divisions */
};

/* Computes the offset of point i from the plane's first point on each side. */
template <int SIDES>
__device__ static inline void dpari_cuda_plane_at(const dpari_cuda_plane<SIDES> &p, int64_t i,
                                                  int64_t *at)
{
    DPARI_CUDA_UNROLL
    for (int j = 0; j < SIDES; j++) {
        at[j] = 0;
    }
    for (int32_t d = 0; d < p.dims; d++) {
        int64_t q = 0;
        if (d + 1 < p.dims) {
            q = p.small ? (int64_t)dpari_cuda_over((uint32_t)i, p.magic[d], p.shift[d])
                        : i / p.extent[d];
        }
        const int64_t r = i - q * p.extent[d];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < SIDES; j++) {
            at[j] += r * p.stride[j][d];
        }
        i = q;
    }
}

template <int SIDES>
static void dpari_cuda_plane_lay(int32_t dims, const int64_t *extent, const int64_t *const *stride,
                                 dpari_cuda_plane<SIDES> *p)
{
    memset(p, 0, sizeof *p);
    p->points = 1;
    for (int32_t d = dims - 1; d >= 0; d--) {
        const int32_t k = p->dims - 1;
        int32_t joins = k >= 0;
        p->points *= extent[d];
        if (extent[d] == 1) {
            continue;
        }
        for (int32_t j = 0; j < SIDES; j++) {
            joins = joins && stride[j][d] == p->stride[j][k] * p->extent[k];
        }
        if (joins) {
            p->extent[k] *= extent[d];
            continue;
        }
        p->extent[p->dims] = extent[d];
        for (int32_t j = 0; j < SIDES; j++) {
            p->stride[j][p->dims] = stride[j][d];
        }
        p->dims++;
    }
    p->small = p->points < INT64_C(0x7fffffff);
    for (int32_t d = 0; d < p->dims && p->small && p->points > 0; d++) {
        dpari_cuda_magic((uint32_t)p->extent[d], &p->magic[d], &p->shift[d]);
    }
}

/* True if the counts are consistent: planes are samples times channels, and channels may form
 * groups. */
static int dpari_cuda_planes_fine(int64_t planes, int32_t channels, int32_t groups, int32_t dims,
                                  const int64_t *extent)
{
    if (dims < 0 || dims > DPAR_MAX_DIMS || planes < 0 || channels < 1 || planes % channels != 0 ||
        groups < 0 || (groups > 0 && channels % groups != 0)) {
        return 0;
    }
    for (int32_t d = 0; d < dims; d++) {
        if (extent[d] < 0) {
            return 0;
        }
    }
    return 1;
}

#endif
