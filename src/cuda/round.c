/* SPDX-License-Identifier: MIT-0 */
/* Rounds to BF16 by random numbers: dpar_mem_layers.round. */
#include "operations.h"

#include "spans.h"

/* The elements at the end that do not fill a unit of 16 bytes. */
DPARI_CUDA_ONCE __device__ static void dpari_cuda_round_rest(const dpari_cuda_span &s, int64_t i)
{
    for (; i < s.count; i += 4) {
        dpari_cuda_span_numbers<double, 1, 0, 1>(s, i / 4);
    }
}

/* Rounds F32 to BF16 by random numbers, eight elements at a time. The first element has an index
 * that is a multiple of four. */
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 4)
    dpari_cuda_round_kernel(DPARI_CUDA_ARGS dpari_cuda_span s)
{
    enum { FOURS = 2, EACH = 4 * FOURS };
    const int64_t step = dpari_cuda_threads();
    int64_t u = dpari_cuda_thread();
    for (; EACH * (u + 1) <= s.count; u += step) {
        dpari_cuda_four four[FOURS];
        dpari_cuda_load_all<0, FOURS>(four, s.from, EACH * u, 4);
        DPARI_CUDA_UNROLL
        for (int k = 0; k < FOURS; k++) {
            uint32_t words[4];
            float f[4];
            dpari_cuda_widen(&four[k], DPAR_F32, f);
            dpari_cuda_random_four(s.seed, s.stream, s.index / 4 + (uint64_t)(FOURS * u + k),
                                   words);
            dpari_cuda_narrow_by<16>(&four[k], f, words);
        }
        dpari_cuda_store_all<0, FOURS>(four, s.to, EACH * u, 2);
    }
    if (EACH * u < s.count) {
        dpari_cuda_round_rest(s, EACH * u);
    }
}

DPARI_INTERNAL dpar_status dpari_cuda_round(void *ctx, const dpar_mem_round *r)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    dpari_cuda_spans_small b;
    dpar_mem_span s;
    int what;
    memset(&s, 0, sizeof s);
    s.to = r->to;
    s.from = r->from;
    s.count = r->count;
    s.to_type = DPAR_BF16;
    s.from_type = r->from_type;
    s.scale = 1.0;
    memset(&b, 0, sizeof b);
    what = dpari_cuda_span_piece(&s, 1, &b.piece[0]);
    if (what < 0 || (what > 0 && r->from == NULL) || !dpari_cuda_is_float(r->from_type)) {
        return dpari_cuda_wrong(gpu, "round");
    }
    if (what == 0) {
        return DPAR_OK;
    }
    b.n = 1;
    b.piece[0].seed = r->seed;
    b.piece[0].stream = r->stream;
    b.piece[0].index = r->index;
    if (r->from_type == DPAR_F32 && dpari_cuda_aligned(r->to) && dpari_cuda_aligned(r->from) &&
        r->index % 4 == 0) {
        return dpari_cuda_launch(gpu, "round", dpari_cuda_round_kernel, b.piece[0],
                                 dpari_cuda_wave(gpu, (r->count + 2047) / 2048));
    }
    return dpari_cuda_span_now<1>(gpu, &b);
}
