/* SPDX-License-Identifier: MIT-0 */
/* Weighted sums of rows: dpar_mem_layers.combine. */
#include "operations.h"

#include "four.h"
#include "rows.h"

struct dpari_cuda_mix {
    dpar_mem_combine m;
    dpari_cuda_rows r;
    int32_t even_to, even_from;
};

/* If TYPE is set, all rows have this type and are processed in units of 16 bytes. The bits are the
 * same. AHEAD rows are loaded together. */
template <int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, TYPE != DPAR_TYPE_NONE ? 4 : 3)
    dpari_cuda_mix_kernel(DPARI_CUDA_ARGS dpari_cuda_mix s)
{
    enum { AHEAD = 2, ALL = dpari_cuda_fours_of(TYPE), FOURS = ALL > 0 ? ALL : 1 };
    const dpar_mem_combine &m = s.m;
    const int32_t to_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)m.to_type;
    const int32_t from_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)m.from_type;
    const int32_t tw = dpari_cuda_width(to_type), fw = dpari_cuda_width(from_type);
    for (int64_t c = blockIdx.x; c < s.r.chunks; c += gridDim.x) {
        for (uint32_t local = threadIdx.x; local < 4 * DPARI_CUDA_THREADS;
             local += DPARI_CUDA_THREADS) {
            int64_t t, unit;
            double sum[FOURS][4] = {{0.0}};
            dpari_cuda_four made[FOURS];
            if (!dpari_cuda_rows_at(s.r, m.rows, c, local, &t, &unit)) {
                continue;
            }
            for (int64_t j = 0; j < m.choices; j += AHEAD) {
                dpari_cuda_four v[AHEAD][FOURS];
                double x[4], w[AHEAD];
                int64_t row[AHEAD];
                DPARI_CUDA_UNROLL
                for (int a = 0; a < AHEAD; a++) {
                    const int64_t choice = t * m.choices + j + a;
                    row[a] = j + a < m.choices ? dpari_cuda_row(m.index, choice) : -1;
                    w[a] = 1.0;
                    if (row[a] >= 0) {
                        dpari_cuda_load_unit<0, ALL>(v[a], m.from, row[a] * m.width,
                                                     4 * FOURS * unit, m.width, fw, s.even_from);
                    }
                    if (row[a] >= 0 && m.weight != NULL) {
                        w[a] = dpari_cuda_get_wide(m.weight, choice, m.weight_type);
                    }
                }
                DPARI_CUDA_UNROLL
                for (int a = 0; a < AHEAD * FOURS; a++) {
                    double *to = sum[a % FOURS];
                    if (row[a / FOURS] < 0) {
                        continue;
                    }
                    dpari_cuda_widen(&v[a / FOURS][a % FOURS], from_type, x);
                    DPARI_CUDA_UNROLL
                    for (int e = 0; e < 4; e++) {
                        x[e] = m.weight != NULL ? dpari_cuda_mul(w[a / FOURS], x[e]) : x[e];
                        to[e] = dpari_cuda_add(to[e], x[e]);
                    }
                }
            }
            DPARI_CUDA_UNROLL
            for (int k = 0; k < FOURS; k++) {
                dpari_cuda_narrow(&made[k], to_type, sum[k]);
            }
            dpari_cuda_store_unit<0, ALL>(made, m.to, t * m.width, 4 * FOURS * unit, m.width, tw,
                                          s.even_to);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_combine(void *ctx, const dpar_mem_combine *combine)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_combine *m = combine;
    void (*kernel)(const dpari_cuda_mix) = dpari_cuda_mix_kernel<DPAR_TYPE_NONE>;
    dpari_cuda_mix s;
    if (m->rows < 0 || m->choices < 0 || m->width < 0 || !dpari_cuda_is_float(m->to_type) ||
        !dpari_cuda_is_float(m->from_type) ||
        (m->weight != NULL && m->weight_type != DPAR_F64 && m->weight_type != DPAR_F32) ||
        !dpari_cuda_index_fine(&m->index, m->rows > 0 ? m->choices : 0) ||
        (m->rows > 0 && m->width > 0 && m->to == NULL)) {
        return dpari_cuda_wrong(gpu, "combine");
    }
    if (m->rows == 0 || m->width == 0) {
        return DPAR_OK;
    }
    memset(&s, 0, sizeof s);
    s.m = *m;
    s.even_to = m->width % 4 == 0 && dpari_cuda_even(m->to, 0, dpari_cuda_width(m->to_type));
    s.even_from = m->width % 4 == 0 && dpari_cuda_even(m->from, 0, dpari_cuda_width(m->from_type));
    s.r = dpari_cuda_rows_of(m->rows, (m->width + 3) / 4);
    if (m->to_type == m->from_type && (m->to_type == DPAR_BF16 || m->to_type == DPAR_F32) &&
        dpari_cuda_aligned(m->to) && dpari_cuda_aligned(m->from) &&
        m->width * dpari_cuda_width(m->to_type) % 16 == 0) {
        kernel = m->to_type == DPAR_BF16 ? dpari_cuda_mix_kernel<DPAR_BF16>
                                         : dpari_cuda_mix_kernel<DPAR_F32>;
        s.r = dpari_cuda_rows_of(m->rows, m->width * dpari_cuda_width(m->to_type) / 16);
    }
    return dpari_cuda_launch(gpu, "combine", kernel, s, dpari_cuda_wave(gpu, s.r.chunks));
}
