/* SPDX-License-Identifier: MIT-0 */
/* Cross-entropy: dpar_mem_layers.cross_entropy. */
#include "operations.h"

#include "block_sums.h"
#include "four.h"
#include "rows.h"

struct dpari_cuda_entropy {
    dpar_mem_cross_entropy x;
    double *part; /* partial sums of LOSS, three for each block */
    int32_t parts, room;
};

DPARI_CUDA_FN double dpari_cuda_lowest(void)
{
    return dpari_cuda_bits<double>(UINT64_C(0xfff0) << 48);
}

/* How exponentials are computed. EXACT, for F64 logits: to the last bits. SHORT, for F32 logits: in
 * f64, but only to 2^-39, because the results are rounded to F32. FAST, with fast_math: in F32. */
enum { DPARI_CUDA_EXACT, DPARI_CUDA_SHORT, DPARI_CUDA_FAST };

template <int HOW> __device__ static inline double dpari_cuda_exp(double x)
{
    return HOW == DPARI_CUDA_FAST ? (double)expf((float)x) : exp(x);
}

/* e^x = 2^k e^r for |x| < 700, where k is the integer next to x / ln 2 and |r| <= ln 2 / 2. e^r is
 * a polynomial of eight terms with the least largest relative error, 1.2e-12 (minimax, fitted with
 * 120 bits). */
DPARI_CUDA_FN double dpari_cuda_exp_short(double x)
{
    const double whole = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer */
    const double t = fma(x, 1.4426950408889634, whole);
    const double r = fma(dpari_cuda_add(t, -whole), -0.6931471805599453, x);
    const int64_t k = (int64_t)(dpari_cuda_bits<uint64_t>(t) << 52); /* the low bits of t, as an
                                                                        exponent */
    double p = fma(2.4876178959085513e-05, r, 1.9915881871396035e-04);
    p = fma(p, r, 1.388882165071769e-03);
    p = fma(p, r, 8.333266071022454e-03);
    p = fma(p, r, 4.16666668910917e-02);
    p = fma(p, r, 1.6666666891180545e-01);
    p = fma(p, r, 4.9999999999797773e-01);
    p = fma(p, r, 9.99999999979769e-01);
    p = fma(p, r, 1.0);
    return dpari_cuda_bits<double>(dpari_cuda_bits<uint64_t>(p) + (uint64_t)k);
}

/* Replaces all N numbers by their exponentials. If one of them is NaN or above 700, all are
 * computed exactly. */
template <int HOW, int N> __device__ static inline void dpari_cuda_exps(double *x)
{
    uint32_t most = 0;
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        const uint32_t high = (uint32_t)(dpari_cuda_bits<uint64_t>(x[e]) >> 32) & 0x7fffffffu;
        most = high > most ? high : most;
    }
    if (HOW == DPARI_CUDA_SHORT && most < 0x4085e000u) { /* 700.0 */
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            x[e] = dpari_cuda_exp_short(x[e]);
        }
        return;
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        x[e] = dpari_cuda_exp<HOW>(x[e]);
    }
}

__device__ static inline int dpari_cuda_counts(const dpar_mem_cross_entropy &x, int64_t token)
{
    const int64_t target = dpari_cuda_index_at(x.target, token);
    return target >= 0 && (x.ignore == 0 || target != x.ignore - 1);
}

/* A thread's largest logit so far, and its sum of exponentials relative to that logit. */
template <typename V> struct dpari_cuda_soft {
    V most;
    double below;
};

/* Adds N more logits. Their maximum is computed first, so that the sum changes its base only
 * once. */
template <int HOW, int N, typename V>
__device__ static inline void dpari_cuda_soften(dpari_cuda_soft<V> *a, const V *x)
{
    const V lowest = (V)dpari_cuda_lowest();
    V top = a->most, base;
    double below[N];
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        top = x[e] > top ? x[e] : top;
    }
    if (top > a->most) { /* if this is the first logit, the sum is 0 or NaN */
        a->below *= a->most == lowest ? 1.0 : dpari_cuda_exp<HOW>((double)a->most - (double)top);
        a->most = top;
    }
    base = top == lowest ? (V)0 : top; /* so that e^(x - base) is 0 if all logits are -infinity */
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        below[e] = HOW == DPARI_CUDA_FAST ? (double)dpari_cuda_add(x[e], -base)
                                          : dpari_cuda_add((double)x[e], -(double)base);
    }
    dpari_cuda_exps<HOW, N>(below);
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        a->below = dpari_cuda_add(a->below, below[e]);
    }
}

/* Combines the sums of all threads relative to the largest logit of all, and returns the result to
 * all threads. */
template <int HOW, typename V>
__device__ static inline dpari_cuda_soft<V> dpari_cuda_soft_block(dpari_cuda_soft<V> a)
{
    const V lowest = (V)dpari_cuda_lowest();
    const V top = dpari_cuda_block_all<dpari_cuda_greatest>(
        dpari_cuda_warp_all<dpari_cuda_greatest>(a.most), lowest);
    if (a.most != lowest && a.most != top) {
        a.below *= dpari_cuda_exp<HOW>((double)a.most - (double)top);
    }
    a.below = dpari_cuda_block_sum(a.below);
    a.most = top;
    return a;
}

/* Adds PER fours of a run of logits, from u on and a block apart. Beyond the end of the run the
 * lowest number is used. Also adds up the logits themselves, if requested. */
template <int PER, int TYPE, typename V>
__device__ static inline void dpari_cuda_logits(const unsigned char *run, int64_t n, int even,
                                                int64_t u, V *v, int sums, double *sum)
{
    enum { APART = DPARI_CUDA_THREADS };
    const int32_t width = dpari_cuda_width(TYPE);
    dpari_cuda_four four[PER];
    if (even && 4 * (u + (PER - 1) * APART + 1) <= n) {
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER; j++) {
            dpari_cuda_load<0>(&four[j], run + 4 * (u + j * APART) * width, 0, 4, width, 1);
        }
        DPARI_CUDA_UNROLL
        for (int j = 0; j < PER; j++) {
            dpari_cuda_widen(&four[j], TYPE, v + 4 * j);
        }
    } else {
        DPARI_CUDA_UNROLL
        for (int j = 0; j < 4 * PER; j++) {
            const int64_t at = 4 * (u + j / 4 * APART) + j % 4;
            v[j] = at < n ? ((const V *)(const void *)run)[at] : (V)dpari_cuda_lowest();
        }
    }
    DPARI_CUDA_UNROLL
    for (int j = 0; j < 4 * PER; j++) {
        if (sums && 4 * (u + j / 4 * APART) + j % 4 < n) {
            *sum = dpari_cuda_add(*sum, (double)v[j]);
        }
    }
}

/* Each block has a token, of which each thread has eight logits at a time. */
template <int HOW, int TYPE, typename V>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, TYPE == DPAR_F64 ? 2 : 4)
    dpari_cuda_entropy_part_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    enum { PER = 2 };
    const dpar_mem_cross_entropy &x = s.x;
    const int32_t width = dpari_cuda_width(TYPE);
    for (int64_t token = blockIdx.x; token < x.tokens; token += gridDim.x) {
        const unsigned char *base = (const unsigned char *)x.logits + token * x.rows * width;
        dpari_cuda_soft<V> a;
        double sum = 0.0;
        a.most = (V)dpari_cuda_lowest();
        a.below = 0.0;
        for (int w = 0; w < 2; w++) { /* units begin at the first column, even if its address is
                                         unaligned */
            const unsigned char *run = base + x.lo[w] * width;
            const int64_t n = x.hi[w] - x.lo[w];
            const int even = dpari_cuda_even(run, 0, width);
            for (int64_t u = threadIdx.x; 4 * u < n; u += PER * DPARI_CUDA_THREADS) {
                V v[4 * PER];
                dpari_cuda_logits<PER, TYPE>(run, n, even, u, v, x.smoothing > 0.0, &sum);
                dpari_cuda_soften<HOW, 4 * PER>(&a, v);
            }
        }
        a = dpari_cuda_soft_block<HOW>(a);
        if (x.smoothing > 0.0) {
            sum = dpari_cuda_block_sum(sum);
        }
        if (threadIdx.x == 0) {
            const int64_t h = dpari_cuda_row(x.target, token);
            const int none = x.hi[0] <= x.lo[0] && x.hi[1] <= x.lo[1];
            double own = 0.0;
            if (h >= 0) {
                own = dpari_cuda_mul(1.0 - x.smoothing,
                                     dpari_cuda_get_wide(x.logits, token * x.rows + h, x.type));
            }
            if (x.smoothing > 0.0) { /* avoids 0 times infinity */
                own = dpari_cuda_add(own, dpari_cuda_mul(x.smoothing / (double)x.vocabulary, sum));
            }
            a.most = none ? (V)0 : a.most;
            dpari_cuda_put_wide(x.partial, 3 * token, TYPE, (double)a.most);
            dpari_cuda_put_wide(x.partial, 3 * token + 1, TYPE, a.below);
            dpari_cuda_put_wide(x.partial, 3 * token + 2, TYPE, own);
        }
    }
}

__device__ static inline double dpari_cuda_three(const dpar_mem_cross_entropy &x, int64_t rank,
                                                 int64_t token, int which)
{
    return dpari_cuda_one(x.all, 3 * (rank * x.tokens + token) + which, x.type);
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_entropy_loss_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    const dpar_mem_cross_entropy &x = s.x;
    double loss = 0.0, z = 0.0, tokens = 0.0;
    for (int64_t i = dpari_cuda_thread(); i < x.tokens; i += dpari_cuda_threads()) {
        double most = 0.0, sum = 0.0, own = 0.0, lse;
        const int counts = dpari_cuda_counts(x, i);
        int first = 1;
        for (int32_t r = 0; r < x.ranks; r++) {
            const double m = dpari_cuda_three(x, r, i, 0);
            own = dpari_cuda_add(own, dpari_cuda_three(x, r, i, 2));
            if (!(dpari_cuda_three(x, r, i, 1) <= 0.0) && (first || m > most)) {
                most = m;
                first = 0;
            }
        }
        for (int32_t r = 0; r < x.ranks; r++) {
            const double below = dpari_cuda_three(x, r, i, 1);
            if (!(below <= 0.0)) {
                sum = dpari_cuda_add(
                    sum, dpari_cuda_mul(below, exp(dpari_cuda_three(x, r, i, 0) - most)));
            }
        }
        lse = sum > 0.0 ? dpari_cuda_add(most, log(sum)) : sum / sum;
        x.lse[i] = lse;
        const double more = dpari_cuda_mul(dpari_cuda_mul(x.z_loss, lse), lse);
        if (x.loss != NULL) {
            x.loss[i] = counts ? dpari_cuda_add(lse - own, more) : 0.0;
        }
        if (counts) {
            loss = dpari_cuda_add(loss, lse - own);
            z = dpari_cuda_add(z, more);
            tokens += 1.0;
        }
    }
    loss = dpari_cuda_block_sum(loss);
    z = dpari_cuda_block_sum(z);
    tokens = dpari_cuda_block_sum(tokens);
    if (threadIdx.x == 0) {
        s.part[3 * blockIdx.x] = loss;
        s.part[3 * blockIdx.x + 1] = z;
        s.part[3 * blockIdx.x + 2] = tokens;
    }
}

__global__ static void __launch_bounds__(DPARI_CUDA_THREADS)
    dpari_cuda_entropy_sum_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    double sum[3] = {0.0, 0.0, 0.0};
    for (int32_t k = (int32_t)threadIdx.x; k < s.parts; k += DPARI_CUDA_THREADS) {
        DPARI_CUDA_UNROLL
        for (int e = 0; e < 3; e++) {
            sum[e] = dpari_cuda_add(sum[e], s.part[3 * k + e]);
        }
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 3; e++) {
        sum[e] = dpari_cuda_block_sum(sum[e]);
    }
    if (threadIdx.x == 0) {
        s.x.sum->loss = sum[0];
        s.x.sum->z_loss = sum[1];
        s.x.sum->tokens = (int64_t)sum[2];
    }
}

/* Computes dx of N logits from column i on, one of which may be the target. */
template <int HOW, int N>
__device__ static inline void dpari_cuda_entropy_back(const dpar_mem_cross_entropy &x, int64_t i,
                                                      int64_t own, double lse, double factor,
                                                      double *v)
{
    const double smooth = x.scale * x.smoothing / (double)(x.vocabulary > 1 ? x.vocabulary : 1);
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        v[e] = v[e] - lse;
    }
    dpari_cuda_exps<HOW, N>(v);
    DPARI_CUDA_UNROLL
    for (int e = 0; e < N; e++) {
        v[e] = dpari_cuda_mul(factor, v[e]) - smooth;
    }
    if ((uint64_t)(own - i) < N) {
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            v[e] = i + e == own ? v[e] - x.scale * (1.0 - x.smoothing) : v[e];
        }
    }
    if (x.lo[0] != 0 || x.hi[0] != x.rows) { /* some columns do not belong to the vocabulary */
        DPARI_CUDA_UNROLL
        for (int e = 0; e < N; e++) {
            const int64_t c = i + e;
            const int real = (c >= x.lo[0] && c < x.hi[0]) || (c >= x.lo[1] && c < x.hi[1]);
            v[e] = real ? v[e] : 0.0;
        }
    }
}

/* Each block has a token, of which each thread has two fours of logits in flight together. Each
 * remaining logit at both ends is processed by one thread. */
template <int HOW, int TYPE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, 3)
    dpari_cuda_entropy_gradient_kernel(DPARI_CUDA_ARGS dpari_cuda_entropy s)
{
    enum { PER = 2, APART = DPARI_CUDA_THREADS };
    const dpar_mem_cross_entropy &x = s.x;
    const int32_t width = dpari_cuda_width(TYPE);
    for (int64_t token = blockIdx.x; token < x.tokens; token += gridDim.x) {
        unsigned char *base = (unsigned char *)x.logits + token * x.rows * width;
        const int64_t aligned = dpari_cuda_head(base, width);
        const int64_t head = aligned < x.rows ? aligned : x.rows, fours = (x.rows - head) / 4;
        const int64_t own = dpari_cuda_row(x.target, token);
        const int counts = dpari_cuda_counts(x, token);
        const double lse = x.lse[token];
        const double factor =
            dpari_cuda_mul(x.scale, dpari_cuda_add(1.0, dpari_cuda_mul(2.0 * x.z_loss, lse)));
        for (int64_t u = threadIdx.x; u < fours; u += PER * APART) {
            unsigned char *at = base + (head + 4 * u) * width;
            dpari_cuda_four four[PER];
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                if (u + j * APART < fours) {
                    dpari_cuda_load<0>(&four[j], at + 4 * j * APART * width, 0, 4, width, 1);
                }
            }
            DPARI_CUDA_UNROLL
            for (int j = 0; j < PER; j++) {
                double v[4] = {0.0, 0.0, 0.0, 0.0};
                if (u + j * APART >= fours) {
                    continue;
                }
                if (counts) {
                    dpari_cuda_widen(&four[j], TYPE, v);
                    dpari_cuda_entropy_back<HOW, 4>(x, head + 4 * (u + j * APART), own, lse, factor,
                                                    v);
                }
                dpari_cuda_narrow(&four[j], TYPE, v);
                dpari_cuda_store<0>(&four[j], at + 4 * j * APART * width, 0, 4, width, 1);
            }
        }
        if (threadIdx.x < x.rows - 4 * fours) {
            const int64_t i = threadIdx.x < head ? threadIdx.x : threadIdx.x + 4 * fours;
            double v = 0.0;
            if (counts) {
                v = dpari_cuda_get_wide(base, i, TYPE);
                dpari_cuda_entropy_back<HOW, 1>(x, i, own, lse, factor, &v);
            }
            dpari_cuda_put_wide(base, i, TYPE, v);
        }
    }
}

static int dpari_cuda_entropy_fine(const dpar_mem_cross_entropy *x)
{
    const int some = x->tokens > 0;
    if ((x->type != DPAR_F64 && x->type != DPAR_F32) || x->tokens < 0 || x->rows < 0 ||
        x->phase < DPAR_MEM_CROSS_ENTROPY_PART || x->phase > DPAR_MEM_CROSS_ENTROPY_GRADIENT ||
        !dpari_cuda_index_fine(&x->target, x->tokens)) {
        return 0;
    }
    if (x->phase == DPAR_MEM_CROSS_ENTROPY_LOSS) {
        return x->ranks >= 1 && (!some || (x->all != NULL && x->lse != NULL));
    }
    if (x->lo[0] > x->hi[0] || x->lo[1] > x->hi[1] || x->lo[0] < 0 || x->lo[1] < 0 ||
        x->hi[0] > x->rows || x->hi[1] > x->rows || (some && x->rows > 0 && x->logits == NULL)) {
        return 0;
    }
    return !some || (x->phase == DPAR_MEM_CROSS_ENTROPY_PART ? x->partial != NULL : x->lse != NULL);
}

typedef void (*dpari_cuda_entropist)(const dpari_cuda_entropy);

template <int HOW, int TYPE, typename V>
static dpari_cuda_entropist dpari_cuda_entropy_kernel_of(int32_t phase)
{
    return phase == DPAR_MEM_CROSS_ENTROPY_PART ? dpari_cuda_entropy_part_kernel<HOW, TYPE, V>
                                                : dpari_cuda_entropy_gradient_kernel<HOW, TYPE>;
}

DPARI_INTERNAL dpar_status dpari_cuda_entropy_op(void *ctx, const dpar_mem_cross_entropy *entropy)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const int fast = gpu->fast_math && entropy->type == DPAR_F32;
    const int64_t blocks = dpari_cuda_wave(gpu, entropy->tokens);
    dpari_cuda_entropist kernel;
    dpari_cuda_entropy s;
    dpar_status st;
    if (!dpari_cuda_entropy_fine(entropy)) {
        return dpari_cuda_wrong(gpu, "cross_entropy");
    }
    s.x = *entropy;
    s.part = (double *)gpu->scratch;
    s.room = 0;
    s.parts = DPARI_CUDA_PARTS;
    if (entropy->tokens < (int64_t)DPARI_CUDA_PARTS * DPARI_CUDA_THREADS) {
        s.parts = (int32_t)((entropy->tokens + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS);
    }
    if (entropy->phase == DPAR_MEM_CROSS_ENTROPY_LOSS) { /* the number of blocks depends only on the
                                                            tokens, so that sums do, too */
        st = entropy->tokens == 0 ? DPAR_OK
                                  : dpari_cuda_launch(gpu, "cross_entropy",
                                                      dpari_cuda_entropy_loss_kernel, s, s.parts);
        return st != DPAR_OK || entropy->sum == NULL
                   ? st
                   : dpari_cuda_launch(gpu, "cross_entropy", dpari_cuda_entropy_sum_kernel, s, 1);
    }
    if (entropy->tokens == 0) {
        return DPAR_OK;
    }
    kernel = dpari_cuda_entropy_kernel_of<DPARI_CUDA_EXACT, DPAR_F64, double>(entropy->phase);
    if (fast) {
        kernel = dpari_cuda_entropy_kernel_of<DPARI_CUDA_FAST, DPAR_F32, float>(entropy->phase);
    } else if (entropy->type == DPAR_F32) {
        kernel = dpari_cuda_entropy_kernel_of<DPARI_CUDA_SHORT, DPAR_F32, float>(entropy->phase);
    }
    return dpari_cuda_launch(gpu, "cross_entropy", kernel, s, blocks);
}
