/* SPDX-License-Identifier: MIT-0 */
/* Searches for NaN and Inf: dpar_mem.finite. */
#include "operations.h"

#include "block_sums.h"
#include "four.h"

struct dpari_cuda_look {
    dpar_mem_finite f;
    int64_t head, units;
    int64_t *part; /* [parts] the lowest index that each block found */
    int32_t parts, room;
};

enum { DPARI_CUDA_LOOKS = 4 }; /* units that a thread has in flight together */

/* Returns the index of the first of four elements that is not finite, or 4 if all are finite. */
__device__ static inline int32_t dpari_cuda_wild(const dpari_cuda_four *v, int32_t type)
{
    int32_t at = 4;
    DPARI_CUDA_UNROLL
    for (int e = 3; e >= 0; e--) {
        int wild;
        if (type == DPAR_F64) {
            wild = (v->x[2 * e + 1] & 0x7ff00000u) == 0x7ff00000u;
        } else if (type == DPAR_F32) {
            wild = (v->x[e] & 0x7f800000u) == 0x7f800000u;
        } else {
            const uint32_t all = type == DPAR_BF16 ? 0x7f80u : 0x7c00u;
            wild = ((v->x[e / 2] >> (16 * (e % 2))) & all) == all;
        }
        at = wild ? e : at;
    }
    return at;
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_look_kernel(DPARI_CUDA_ARGS dpari_cuda_look s)
{
    const int32_t width = dpari_cuda_width(s.f.type);
    const int64_t step = dpari_cuda_threads();
    int64_t unit = dpari_cuda_thread(), least = INT64_MAX;
    for (; unit < s.units && least == INT64_MAX; unit += DPARI_CUDA_LOOKS * step) {
        dpari_cuda_four v[DPARI_CUDA_LOOKS];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < DPARI_CUDA_LOOKS; j++) {
            const int64_t i = dpari_cuda_first(unit + j * step, s.head);
            if (i < s.f.count) {
                dpari_cuda_load<0>(&v[j], s.f.in, i, s.f.count, width, 1);
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = DPARI_CUDA_LOOKS - 1; j >= 0; j--) {
            const int64_t i = dpari_cuda_first(unit + j * step, s.head);
            const int32_t e = i < s.f.count ? dpari_cuda_wild(&v[j], s.f.type) : 4;
            least = e < 4 ? i + e : least;
        }
    }
    least = dpari_cuda_block_least(least);
    if (threadIdx.x == 0) {
        s.part[blockIdx.x] = least;
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_look_end_kernel(DPARI_CUDA_ARGS dpari_cuda_look s)
{
    int64_t least = INT64_MAX;
    for (int32_t k = (int32_t)threadIdx.x; k < s.parts; k += DPARI_CUDA_THREADS) {
        least = s.part[k] < least ? s.part[k] : least;
    }
    least = dpari_cuda_block_least(least);
    if (threadIdx.x == 0 && !(s.f.keep_found && *s.f.found >= 0)) {
        *s.f.found = least < INT64_MAX ? s.f.first + least : -1;
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_finite(void *ctx, const dpar_mem_finite *finite)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpar_status st = DPAR_OK;
    dpari_cuda_look s;
    int64_t blocks;
    if (!dpari_cuda_is_float(finite->type) || finite->count < 0 || finite->found == NULL ||
        (finite->count > 0 && finite->in == NULL)) {
        return dpari_cuda_wrong(gpu, "finite");
    }
    memset(&s, 0, sizeof s);
    s.f = *finite;
    s.head = dpari_cuda_head(finite->in, dpari_cuda_width(finite->type));
    s.units = finite->count > 0 ? dpari_cuda_fours(finite->count, s.head) : 0;
    s.part = (int64_t *)gpu->scratch;
    blocks = (s.units + DPARI_CUDA_LOOKS * DPARI_CUDA_THREADS - 1) /
             (DPARI_CUDA_LOOKS * DPARI_CUDA_THREADS);
    blocks = dpari_cuda_each(gpu, blocks);
    s.parts = (int32_t)(blocks < DPARI_CUDA_PARTS * 8 ? blocks : DPARI_CUDA_PARTS * 8);
    if (s.units > 0) {
        st = dpari_cuda_launch(gpu, "finite", dpari_cuda_look_kernel, s, s.parts);
    } else {
        s.parts = 0;
    }
    return st == DPAR_OK ? dpari_cuda_launch(gpu, "finite", dpari_cuda_look_end_kernel, s, 1) : st;
}
