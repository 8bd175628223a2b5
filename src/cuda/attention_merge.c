/* SPDX-License-Identifier: MIT-0 */
/* Merges two results of attention by online softmax: dpar_mem_layers.attention_merge. */
#include "operations.h"

#include "four.h"
#include "launch.h"

struct dpari_cuda_merge {
    dpar_mem_attention_merge m;
    int64_t chunks;
    int32_t rows; /* rows of a chunk, at most DPARI_CUDA_THREADS */
    int32_t even;
};

/* What happens to a row: it is kept, replaced, or mixed. */
enum { DPARI_CUDA_KEEP, DPARI_CUDA_TAKE, DPARI_CUDA_MIX };

template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_merge_kernel(DPARI_CUDA_ARGS dpari_cuda_merge s)
{
    __shared__ double keep[DPARI_CUDA_THREADS], more[DPARI_CUDA_THREADS];
    __shared__ int32_t how[DPARI_CUDA_THREADS];
    const dpar_mem_attention_merge &m = s.m;
    const int32_t width = (int32_t)sizeof(W), t = (int32_t)threadIdx.x;
    const int64_t fours = (m.values + 3) / 4;
    for (int64_t c = blockIdx.x; c < s.chunks; c += gridDim.x) {
        const int64_t first = c * s.rows;
        const int64_t n = m.rows - first < s.rows ? m.rows - first : s.rows;
        __syncthreads();
        if (t < n) {
            const double a = (double)((const W *)m.lse)[first + t];
            const double b = (double)((const W *)m.more_lse)[first + t];
            how[t] = DPARI_CUDA_KEEP;
            if (a <= -1e30 && !(b <= -1e30)) {
                how[t] = DPARI_CUDA_TAKE;
                ((W *)m.lse)[first + t] = ((const W *)m.more_lse)[first + t];
            } else if (!(b <= -1e30)) { /* also for NaN, which has to reach the result */
                const double most = a > b ? a : b, e = exp(a - most), f = exp(b - most);
                how[t] = DPARI_CUDA_MIX;
                keep[t] = e / (e + f);
                more[t] = f / (e + f);
                ((W *)m.lse)[first + t] = (W)(most + log(e + f));
            }
        }
        __syncthreads();
        for (int64_t u = t; u < n * fours; u += DPARI_CUDA_THREADS) {
            const int32_t row = s.rows > 1 ? (int32_t)((uint32_t)u / (uint32_t)fours) : 0;
            const int64_t at = 4 * (u - row * fours);
            W *to = (W *)m.out + (first + row) * m.values;
            const W *from = (const W *)m.more + (first + row) * m.values;
            dpari_cuda_four x, y;
            W v[4], w[4];
            if (how[row] == DPARI_CUDA_KEEP) {
                continue;
            }
            dpari_cuda_load<0>(&x, from, at, m.values, width, s.even);
            if (how[row] == DPARI_CUDA_MIX) {
                const W k = (W)keep[row], f = (W)more[row];
                const int32_t type = width == 8 ? DPAR_F64 : DPAR_F32;
                dpari_cuda_load<0>(&y, to, at, m.values, width, s.even);
                dpari_cuda_widen(&x, type, v);
                dpari_cuda_widen(&y, type, w);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    v[e] = dpari_cuda_add(dpari_cuda_mul(k, w[e]), dpari_cuda_mul(f, v[e]));
                }
                dpari_cuda_narrow(&x, type, v);
            }
            dpari_cuda_store<0>(&x, to, at, m.values, width, s.even);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_merge_op(void *ctx, const dpar_mem_attention_merge *merge)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int32_t width = dpari_cuda_width(merge->type);
    dpari_cuda_merge s;
    int64_t rows;
    if ((merge->type != DPAR_F64 && merge->type != DPAR_F32) || merge->rows < 0 ||
        merge->values < 0 ||
        (merge->rows > 0 && (merge->lse == NULL || merge->more_lse == NULL ||
                             (merge->values > 0 && (merge->out == NULL || merge->more == NULL))))) {
        return dpari_cuda_wrong(gpu, "attention_merge");
    }
    if (merge->rows == 0) {
        return DPAR_OK;
    }
    rows = merge->values > 0 ? 4096 / merge->values : (int64_t)DPARI_CUDA_THREADS;
    rows = rows > (int64_t)DPARI_CUDA_THREADS ? (int64_t)DPARI_CUDA_THREADS : rows;
    rows = rows < 1 ? 1 : rows;
    s.m = *merge;
    s.rows = (int32_t)rows;
    s.chunks = (merge->rows + rows - 1) / rows;
    s.even = merge->values % 4 == 0 && dpari_cuda_even(merge->out, 0, width) &&
             dpari_cuda_even(merge->more, 0, width);
    return dpari_cuda_launch(gpu, "attention_merge",
                             width == 8 ? dpari_cuda_merge_kernel<double>
                                        : dpari_cuda_merge_kernel<float>,
                             s, dpari_cuda_wave(gpu, s.chunks));
}
