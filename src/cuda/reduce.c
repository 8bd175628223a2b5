/* SPDX-License-Identifier: MIT-0 */
/* Sums and other reductions of parts: dpar_mem.reduce. */
#include "operations.h"

#include "elements.h"
#include "four.h"
#include "launch.h"

struct dpari_cuda_sum {
    dpar_mem_reduce r;
    int64_t head, units;
    int32_t even; /* 1: parts can be read as vectors */
    int32_t room;
};

/* Finishes the sum of all parts: scales it, and, if requested, combines it with y, the values in
 * the target. */
template <typename W>
__device__ static inline void dpari_cuda_sum_end(const dpar_mem_reduce &r, W *x, const W *y)
{
    const int counts = r.parts > 1 || r.scale != 1.0 || r.accumulate;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        x[e] = r.op == DPAR_AVG && r.parts > 1 ? dpari_cuda_divide(x[e], (W)r.parts) : x[e];
        x[e] = r.scale != 1.0 ? dpari_cuda_mul(x[e], (W)r.scale) : x[e];
        x[e] = r.accumulate ? dpari_cuda_add(y[e], x[e]) : x[e];
        x[e] = counts ? dpari_cuda_plain(x[e]) : x[e]; /* a NaN among the parts has kept its sign
                                                          and payload */
    }
}

/* Computes elements from i on: four, of which some may not exist, or, if TYPE is set, those of a
 * unit of 16 bytes of parts that all have this type and are summed. Both give the same bits. AHEAD
 * parts are loaded together. */
template <typename W, int TYPE>
__device__ static inline void dpari_cuda_sum_unit(const dpari_cuda_sum &s, int64_t i)
{
    enum { AHEAD = 4, ALL = dpari_cuda_fours_of(TYPE), FOURS = ALL > 0 ? ALL : 1 };
    const dpar_mem_reduce &r = s.r;
    const int32_t to_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)r.to_type;
    const int32_t from_type = TYPE != DPAR_TYPE_NONE ? TYPE : (int)r.from_type;
    const int32_t tw = dpari_cuda_width(to_type), fw = dpari_cuda_width(from_type);
    const int32_t op = TYPE != DPAR_TYPE_NONE || r.op == DPAR_AVG ? (int)DPAR_SUM : (int)r.op;
    dpari_cuda_four v[AHEAD][FOURS], made[FOURS];
    W x[FOURS][4], y[4];
    for (int64_t p = 0; p < r.parts; p += AHEAD) {
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD; j++) {
            if (p + j < r.parts) {
                dpari_cuda_load_unit<0, ALL>(v[j], r.from, (p + j) * r.stride, i, r.count, fw,
                                             s.even);
            }
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < AHEAD * FOURS; j++) {
            if (p + j / FOURS < r.parts) {
                W *to = x[j % FOURS];
                dpari_cuda_widen(&v[j / FOURS][j % FOURS], from_type, y);
                DPARI_CUDA_UNROLL
                for (int e = 0; e < 4; e++) {
                    to[e] = p + j / FOURS == 0 ? y[e] : dpari_cuda_meet(to[e], y[e], op);
                }
            }
        }
    }
    if (r.accumulate) {
        dpari_cuda_load_unit<0, ALL>(made, r.to, 0, i, r.count, tw, 1);
    }
    DPARI_CUDA_UNROLL
    for (int k = 0; k < FOURS; k++) {
        if (r.accumulate) {
            dpari_cuda_widen(&made[k], to_type, y);
        }
        dpari_cuda_sum_end(r, x[k], y);
        dpari_cuda_narrow(&made[k], to_type, x[k]);
    }
    dpari_cuda_store_unit<0, ALL>(made, r.to, 0, i, r.count, tw, 1);
}

template <typename W>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_sum_kernel(DPARI_CUDA_ARGS dpari_cuda_sum s)
{
    for (int64_t unit = dpari_cuda_thread(); unit < s.units; unit += dpari_cuda_threads()) {
        const int64_t i = dpari_cuda_first(unit, s.head);
        if (i < s.r.count) {
            dpari_cuda_sum_unit<W, DPAR_TYPE_NONE>(s, i);
        }
    }
}

/* The elements at the end that do not fill a unit of 16 bytes. */
template <typename W>
DPARI_CUDA_ONCE __device__ static void dpari_cuda_sum_rest(const dpari_cuda_sum &s, int64_t i)
{
    for (; i < s.r.count; i += 4) {
        dpari_cuda_sum_unit<W, DPAR_TYPE_NONE>(s, i);
    }
}

template <typename W, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_sum_form_kernel(DPARI_CUDA_ARGS dpari_cuda_sum s)
{
    enum { EACH = 4 * dpari_cuda_fours_of(TYPE) };
    const int64_t step = dpari_cuda_threads();
    int64_t i = EACH * dpari_cuda_thread();
    for (; i + EACH <= s.r.count; i += EACH * step) {
        dpari_cuda_sum_unit<W, TYPE>(s, i);
    }
    if (i < s.r.count) {
        dpari_cuda_sum_rest<W>(s, i);
    }
}

typedef void (*dpari_cuda_summer)(const dpari_cuda_sum);

template <typename W> static dpari_cuda_summer dpari_cuda_sum_kernel_of(const dpari_cuda_sum *s)
{
    const dpar_mem_reduce *reduce = &s->r;
    const int wide = (reduce->op == DPAR_SUM || reduce->op == DPAR_AVG) &&
                     dpari_cuda_aligned(reduce->to) && dpari_cuda_aligned(reduce->from) &&
                     reduce->stride * dpari_cuda_width(reduce->from_type) % 16 == 0 &&
                     reduce->from_type == reduce->to_type;
    if (wide && reduce->to_type == DPAR_F32) {
        return dpari_cuda_sum_form_kernel<W, DPAR_F32>;
    }
    if (wide && reduce->to_type == DPAR_BF16) {
        return dpari_cuda_sum_form_kernel<W, DPAR_BF16>;
    }
    return dpari_cuda_sum_kernel<W>;
}

template <typename T, int N> struct alignas(N * sizeof(T)) dpari_cuda_ints {
    T x[N];
};

/* Computes elements i to i + N - 1. */
template <typename T, int N>
__device__ static inline void dpari_cuda_ints_unit(const dpar_mem_reduce &r, int64_t i)
{
    typedef dpari_cuda_ints<T, N> line;
    const T *from = (const T *)r.from + i;
    line v = *(const line *)(const void *)from;
    for (int64_t p = 1; p < r.parts; p++) {
        const line y = *(const line *)(const void *)(from + p * r.stride);
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            v.x[e] = dpari_cuda_meet_int(v.x[e], y.x[e], r.op);
        }
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N && r.op == DPAR_AVG; e++) {
        v.x[e] = (T)-1 < (T)1 ? (T)((int64_t)v.x[e] / r.parts)
                              : (T)((uint64_t)v.x[e] / (uint64_t)r.parts);
    }
    *(line *)(void *)((T *)r.to + i) = v;
}

/* Processes units of 16 bytes if all parts allow it, and then single elements. */
template <typename T>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_ints_kernel(DPARI_CUDA_ARGS dpari_cuda_sum s)
{
    enum { EACH = 16 / sizeof(T) };
    const int64_t step = dpari_cuda_threads();
    const int64_t whole = s.even ? s.r.count / EACH : 0;
    const int64_t first = dpari_cuda_thread();
    for (int64_t i = first; i < whole; i += step) {
        dpari_cuda_ints_unit<T, EACH>(s.r, i * EACH);
    }
    for (int64_t i = whole * EACH + first; i < s.r.count; i += step) {
        dpari_cuda_ints_unit<T, 1>(s.r, i);
    }
}

static dpari_cuda_summer dpari_cuda_ints_kernel_of(int32_t type)
{
    switch (type) {
    case DPAR_I8: return dpari_cuda_ints_kernel<int8_t>;
    case DPAR_U8: return dpari_cuda_ints_kernel<uint8_t>;
    case DPAR_I32: return dpari_cuda_ints_kernel<int32_t>;
    case DPAR_U32: return dpari_cuda_ints_kernel<uint32_t>;
    case DPAR_I64: return dpari_cuda_ints_kernel<int64_t>;
    default: return dpari_cuda_ints_kernel<uint64_t>;
    }
}

static dpar_status dpari_cuda_reduce_ints(dpar_cuda *gpu, const dpar_mem_reduce *reduce)
{
    const int32_t width = dpar_type_bytes(reduce->to_type);
    dpari_cuda_sum s;
    memset(&s, 0, sizeof s);
    s.r = *reduce;
    s.even = dpari_cuda_aligned(reduce->to) && dpari_cuda_aligned(reduce->from) &&
             reduce->stride * width % 16 == 0;
    s.units = s.even ? reduce->count * width / 16 + 1 : reduce->count;
    return dpari_cuda_launch(gpu, "reduce", dpari_cuda_ints_kernel_of(reduce->to_type), s,
                             dpari_cuda_units_blocks(gpu, s.units));
}

static int dpari_cuda_reduce_fine(const dpar_mem_reduce *reduce, int ints)
{
    const int wide = reduce->to_type == DPAR_F64 || reduce->from_type == DPAR_F64;
    if (ints) {
        return reduce->from_type == reduce->to_type && reduce->sum_type == reduce->to_type &&
               !reduce->accumulate && reduce->scale == 1.0;
    }
    return dpari_cuda_is_float(reduce->to_type) && dpari_cuda_is_float(reduce->from_type) &&
           (reduce->sum_type == DPAR_F64 || (reduce->sum_type == DPAR_F32 && !wide));
}

DPARI_INTERNAL dpar_status dpari_cuda_reduce(void *ctx, const dpar_mem_reduce *reduce)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_mem_reduce *r = reduce;
    const int32_t fw = dpari_cuda_width(r->from_type);
    const int ints = !dpari_cuda_is_float(r->to_type) && dpari_cuda_can_reduce(r->to_type);
    dpari_cuda_sum s;
    if (!dpari_cuda_reduce_fine(r, ints) || r->count < 0 || r->parts < 1 ||
        (r->stride != 0 && r->stride < r->count) || r->op < DPAR_SUM || r->op > DPAR_MIN ||
        (r->count > 0 && (r->to == NULL || r->from == NULL))) {
        return dpari_cuda_wrong(gpu, "reduce");
    }
    if (r->count == 0) {
        return DPAR_OK;
    }
    if (ints) {
        return dpari_cuda_reduce_ints(gpu, r);
    }
    memset(&s, 0, sizeof s);
    s.r = *r;
    s.head = dpari_cuda_head(r->to, dpari_cuda_width(r->to_type));
    s.units = dpari_cuda_fours(r->count, s.head);
    s.even = dpari_cuda_even(r->from, s.head, fw) && r->stride * fw % (fw >= 4 ? 16 : 8) == 0;
    return dpari_cuda_launch(gpu, "reduce",
                             r->sum_type == DPAR_F64 ? dpari_cuda_sum_kernel_of<double>(&s)
                                                     : dpari_cuda_sum_kernel_of<float>(&s),
                             s, dpari_cuda_units_blocks(gpu, s.units));
}
