/* SPDX-License-Identifier: MIT-0 */
/* Products of rows: dpar_mem_layers.dot. */
#include "operations.h"

#include "block_sums.h"
#include "four.h"
#include "rows.h"

struct dpari_cuda_dots {
    dpar_mem_dot d;
    int32_t even; /* 1: rows can be read as vectors */
    int32_t room;
};

/* Each warp has a row, whose elements are assigned to lanes in a fixed order. TYPE is set if the
 * kernel knows it and all units are vectors; then four vectors of each row are in flight
 * together. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_dot_kernel(DPARI_CUDA_ARGS dpari_cuda_dots s)
{
    enum { WHOLE = TYPE != DPAR_TYPE_NONE, PER = WHOLE ? 4 : 1, APART = 4 * 32 };
    const dpar_mem_dot &d = s.d;
    const int32_t type = WHOLE ? TYPE : (int)d.type, width = dpari_cuda_width(type);
    const int64_t lane = threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * DPARI_CUDA_WARPS + threadIdx.x / 32;
    for (; i < d.rows; i += (int64_t)gridDim.x * DPARI_CUDA_WARPS) {
        const int64_t row = d.index.at == NULL ? i : dpari_cuda_row(d.index, i);
        const unsigned char *a = (const unsigned char *)d.a + i / d.choices * d.width * width;
        const unsigned char *b = (const unsigned char *)d.b + (row < 0 ? 0 : row) * d.width * width;
        double sum = 0.0;
        for (int64_t at = 4 * lane; at < d.width && row >= 0; at += PER * APART) {
            dpari_cuda_four x[PER], y[PER];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                if (at + j * APART < d.width) {
                    dpari_cuda_load<0>(&x[j], a, at + j * APART, d.width, width, WHOLE || s.even);
                    dpari_cuda_load<0>(&y[j], b, at + j * APART, d.width, width, WHOLE || s.even);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                const int64_t left = d.width - (at + j * APART);
                double u[4], v[4];
                if (left <= 0) {
                    continue;
                }
                dpari_cuda_widen(&x[j], type, u);
                dpari_cuda_widen(&y[j], type, v);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    if (WHOLE || e < left) {
                        sum = dpari_cuda_add(sum, dpari_cuda_mul(u[e], v[e]));
                    }
                }
            }
        }
        sum = dpari_cuda_warp_sum(sum);
        if (lane == 0) {
            dpari_cuda_put_wide(d.to, i, d.to_type, sum);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_dot(void *ctx, const dpar_mem_dot *dot)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int32_t width = dpari_cuda_width(dot->type);
    void (*kernel)(const dpari_cuda_dots) = dpari_cuda_dot_kernel<DPAR_TYPE_NONE>;
    dpari_cuda_dots s;
    if (dot->rows < 0 || dot->choices < 1 || dot->width < 0 || !dpari_cuda_is_float(dot->type) ||
        (dot->to_type != DPAR_F64 && dot->to_type != DPAR_F32) ||
        (dot->index.at != NULL && !dpari_cuda_index_fine(&dot->index, dot->rows)) ||
        (dot->rows > 0 &&
         (dot->to == NULL || (dot->width > 0 && (dot->a == NULL || dot->b == NULL))))) {
        return dpari_cuda_wrong(gpu, "dot");
    }
    if (dot->rows == 0) {
        return DPAR_OK;
    }
    s.d = *dot;
    s.room = 0;
    s.even = dot->width % 4 == 0 && dpari_cuda_even(dot->a, 0, width) &&
             dpari_cuda_even(dot->b, 0, width);
    if (s.even && dot->type == DPAR_BF16) {
        kernel = dpari_cuda_dot_kernel<DPAR_BF16>;
    } else if (s.even && dot->type == DPAR_F32) {
        kernel = dpari_cuda_dot_kernel<DPAR_F32>;
    }
    return dpari_cuda_launch(
        gpu, "dot", kernel, s,
        dpari_cuda_wave(gpu, (dot->rows + DPARI_CUDA_WARPS - 1) / DPARI_CUDA_WARPS));
}
