/* SPDX-License-Identifier: MIT-0 */
/* Squares and clipping: dpar_mem_layers.squares and clip. Unit u of four elements, counted from
 * element 0, belongs to thread u % (DPARI_CUDA_PARTS x 256) in all launches, so that the sums have
 * the same bits. If the grid is smaller, a block does the work of several blocks. */
#include "operations.h"

#include "block_sums.h"
#include "four.h"

struct dpari_cuda_square {
    dpar_mem_squares q;
    int64_t units;
    double *part;
    int32_t even;
    int32_t parts; /* number of blocks that have units, which depends only on the count */
};

__device__ static inline double dpari_cuda_square_more(double sum, double x, int exact)
{
    return exact ? fma(x, x, sum) : dpari_cuda_add(sum, dpari_cuda_mul(x, x));
}

/* TYPE is set if the kernel knows it and all units are vectors. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_square_kernel(DPARI_CUDA_ARGS dpari_cuda_square s)
{
    enum { AHEAD = 4 };
    const int32_t type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)s.q.type;
    const int32_t width = dpari_cuda_width(type), even = TYPE != DPAR_TYPE_NONE || s.even;
    const int exact = type != DPAR_F64; /* squares of F32 are doubles */
    const int64_t step = (int64_t)DPARI_CUDA_PARTS * DPARI_CUDA_THREADS;
    for (int32_t block = (int32_t)blockIdx.x; block < s.parts; block += (int32_t)gridDim.x) {
        int64_t unit = (int64_t)block * DPARI_CUDA_THREADS + threadIdx.x;
        double sum = 0.0;
        for (; unit < s.units; unit += AHEAD * step) {
            dpari_cuda_four v[AHEAD];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                if (unit + j * step < s.units) {
                    dpari_cuda_load<0>(&v[j], s.q.in, 4 * (unit + j * step), s.q.count, width,
                                       even);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < AHEAD; j++) {
                double x[4];
                if (unit + j * step < s.units) {
                    dpari_cuda_widen(&v[j], type, x);
                    DPARI_CUDA_UNROLL
                    for (int e = 0; e < 4; e++) {
                        sum = dpari_cuda_square_more(sum, x[e], exact);
                    }
                }
            }
        }
        sum = dpari_cuda_block_sum(sum);
        if (threadIdx.x == 0) {
            s.part[block] = sum;
        }
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_square_end_kernel(DPARI_CUDA_ARGS dpari_cuda_square s)
{
    double sum = 0.0;
    for (int32_t k = (int32_t)threadIdx.x; k < s.parts; k += DPARI_CUDA_THREADS) {
        sum = dpari_cuda_add(sum, s.part[k]);
    }
    sum = dpari_cuda_block_sum(sum);
    if (threadIdx.x == 0) {
        *s.q.sum = s.q.accumulate ? dpari_cuda_add(*s.q.sum, sum) : sum;
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_squares(void *ctx, const dpar_mem_squares *squares)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_square s;
    dpar_status st;
    int64_t blocks;
    if (!dpari_cuda_is_float(squares->type) || squares->count < 0 || squares->sum == NULL ||
        (squares->count > 0 && squares->in == NULL)) {
        return dpari_cuda_wrong(gpu, "squares");
    }
    memset(&s, 0, sizeof s);
    s.q = *squares;
    s.units = (squares->count + 3) / 4;
    s.part = (double *)gpu->scratch;
    s.even = squares->count > 0 && dpari_cuda_even(squares->in, 0, dpari_cuda_width(squares->type));
    blocks = (s.units + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS;
    blocks = blocks < DPARI_CUDA_PARTS ? blocks : (int64_t)DPARI_CUDA_PARTS;
    s.parts = (int32_t)(blocks < 1 ? 1 : blocks);
    blocks = gpu->max_blocks > 0 && gpu->max_blocks < s.parts ? gpu->max_blocks : s.parts;
    st = dpari_cuda_launch(gpu, "squares",
                           s.even && squares->type == DPAR_BF16
                               ? dpari_cuda_square_kernel<DPAR_BF16>
                               : dpari_cuda_square_kernel<DPAR_TYPE_NONE>,
                           s, blocks);
    return st == DPAR_OK ? dpari_cuda_launch(gpu, "squares", dpari_cuda_square_end_kernel, s, 1)
                         : st;
}

__global__ static void dpari_cuda_clip_kernel(DPARI_CUDA_ARGS dpar_mem_clip c)
{
    if (threadIdx.x == 0) {
        const double norm = sqrt(*c.squares);
        double factor = 1.0;
        if (c.limit > 0.0) {
            factor = c.limit / dpari_cuda_add(norm, 1e-6);
            factor = factor < 1.0 ? factor : 1.0;
            factor = norm >= 0.0 && norm - norm == 0.0 ? factor : 0.0;
        }
        *c.factor = dpari_cuda_mul(c.scale, factor);
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_clip(void *ctx, const dpar_mem_clip *clip)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    if (clip->squares == NULL || clip->factor == NULL) {
        return dpari_cuda_wrong(gpu, "clip");
    }
    return dpari_cuda_launch(gpu, "clip", dpari_cuda_clip_kernel, *clip, 1);
}
