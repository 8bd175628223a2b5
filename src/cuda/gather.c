/* SPDX-License-Identifier: MIT-0 */
/* Copies rows that an index selects: dpar_mem_layers.gather. */
#include "operations.h"

#include "elements.h"
#include "rows.h"

struct dpari_cuda_fetch {
    dpar_mem_gather g;
    dpari_cuda_rows r;
};

template <typename V>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 4)
    dpari_cuda_fetch_kernel(DPARI_CUDA_ARGS dpari_cuda_fetch s)
{
    for (int64_t c = blockIdx.x; c < s.r.chunks; c += gridDim.x) {
        V v[4];
        unsigned char *to[4];
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            int64_t row, unit;
            to[j] = NULL;
            if (dpari_cuda_rows_at(s.r, s.g.rows, c, threadIdx.x + (uint32_t)j * DPARI_CUDA_THREADS,
                                   &row, &unit)) {
                const int64_t from = dpari_cuda_row(s.g.index, row);
                const int64_t at = unit * (int64_t)sizeof(V);
                to[j] = (unsigned char *)s.g.to + row * s.g.to_step + at;
                v[j] = dpari_cuda_nought<V>();
                if (from >= 0) {
                    v[j] = *(const V *)(const void *)((const unsigned char *)s.g.from +
                                                      from * s.g.from_step + at);
                }
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4; j++) {
            if (to[j] != NULL) {
                *(V *)(void *)to[j] = v[j];
            }
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_gather(void *ctx, const dpar_mem_gather *gather)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_gather *g = gather;
    dpari_cuda_fetch s;
    uintptr_t all, width; /* width: bytes of a unit */
    void (*kernel)(const dpari_cuda_fetch) = dpari_cuda_fetch_kernel<unsigned char>;
    if (g->rows < 0 || g->bytes < 0 || !dpari_cuda_index_fine(&g->index, g->rows) ||
        g->to_step < g->bytes || (g->from_step < g->bytes && g->from_step != 0) ||
        (g->rows > 0 && g->bytes > 0 && g->to == NULL)) {
        return dpari_cuda_wrong(gpu, "gather");
    }
    if (g->rows == 0 || g->bytes == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.g = *g;
    all = (uintptr_t)g->to | (uintptr_t)g->from | (uintptr_t)g->to_step | (uintptr_t)g->from_step |
          (uintptr_t)g->bytes | 16u;
    width = all & (~all + 1); /* the lowest set bit of `all` */
    switch (width) {
    case 16: kernel = dpari_cuda_fetch_kernel<uint4>; break;
    case 8: kernel = dpari_cuda_fetch_kernel<uint2>; break;
    case 4: kernel = dpari_cuda_fetch_kernel<uint32_t>; break;
    case 2: kernel = dpari_cuda_fetch_kernel<uint16_t>; break;
    default: break;
    }
    s.r = dpari_cuda_rows_of(g->rows, g->bytes / (int64_t)width);
    return dpari_cuda_launch(gpu, "gather", kernel, s, dpari_cuda_wave(gpu, s.r.chunks));
}
