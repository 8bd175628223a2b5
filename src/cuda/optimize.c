/* SPDX-License-Identifier: MIT-0 */
/* Steps of optimizers: dpar_mem_layers.optimize. */
#include "operations.h"

#include "../host/optimizer.h"
#include "launch.h"
#include "stochastic.h"

struct dpari_cuda_step {
    dpar_optimizer o;
    void *weight, *m, *v, *copy, *rest;
    const void *gradient;
    const double *factor_at;
    int64_t count, head, units, t;
    uint64_t index;
    double rate, factor, shrink, reach, fix;
    int32_t weight_type, gradient_type, copy_type, moment_type, moments;
    uint8_t even_gradient, even_m, even_v, even_copy, even_rest;
    uint8_t copied, rested; /* 1: the weights have a copy; their low bits are stored separately */
    uint8_t room[5];
};

template <typename W> struct dpari_cuda_rates {
    W beta1, more1, beta2, more2, epsilon, shrink, reach, fix, factor, rate, momentum, decay;
};

template <typename W>
__device__ static inline dpari_cuda_rates<W> dpari_cuda_rates_of(const dpari_cuda_step &s)
{
    dpari_cuda_rates<W> r;
    r.beta1 = (W)s.o.beta1;
    r.more1 = (W)(1.0 - s.o.beta1);
    r.beta2 = (W)s.o.beta2;
    r.more2 = (W)(1.0 - s.o.beta2);
    r.epsilon = (W)s.o.epsilon;
    r.shrink = (W)s.shrink;
    r.reach = (W)s.reach;
    r.fix = (W)s.fix;
    r.factor = (W)(s.factor_at != NULL ? dpari_cuda_mul(s.factor, *s.factor_at) : s.factor);
    r.rate = (W)s.rate;
    r.momentum = (W)s.o.momentum;
    r.decay = (W)s.o.decay;
    return r;
}

template <typename W>
__device__ static inline void dpari_cuda_adamw(const dpari_cuda_rates<W> &r, W *w, W g, W *m, W *v)
{
    const W x = dpari_cuda_mul(g, r.factor);
    *m = dpari_cuda_add(dpari_cuda_mul(r.beta1, *m), dpari_cuda_mul(r.more1, x));
    *v = dpari_cuda_add(dpari_cuda_mul(r.beta2, *v), dpari_cuda_mul(dpari_cuda_mul(r.more2, x), x));
    *w = dpari_cuda_add(dpari_cuda_mul(*w, r.shrink),
                        -(dpari_cuda_mul(r.reach, *m) /
                          dpari_cuda_add(sqrt(dpari_cuda_mul(*v, r.fix)), r.epsilon)));
}

template <typename W>
__device__ static inline void dpari_cuda_sgd(const dpari_cuda_rates<W> &r, int nesterov, W *w, W g,
                                             W *m)
{
    const W x = dpari_cuda_add(dpari_cuda_mul(g, r.factor), dpari_cuda_mul(r.decay, *w));
    W step;
    *m = dpari_cuda_add(dpari_cuda_mul(r.momentum, *m), x);
    step = nesterov ? dpari_cuda_add(x, dpari_cuda_mul(r.momentum, *m)) : *m;
    *w = dpari_cuda_add(*w, -dpari_cuda_mul(r.rate, step));
}

/* Restores F32 weights from the nearest BF16 and the rest of their bits. The next function does the
 * reverse. */
__device__ static inline void dpari_cuda_join(dpari_cuda_four *made, const dpari_cuda_four *high,
                                              const dpari_cuda_four *rest)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        made->x[e] = ((uint32_t)dpari_cuda_part(high, e) << 16) +
                     (uint32_t)(int32_t)(int16_t)dpari_cuda_part(rest, e);
    }
}

__device__ static inline void dpari_cuda_halve(const dpari_cuda_four *made, dpari_cuda_four *high,
                                               dpari_cuda_four *rest)
{
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        const uint32_t h = (made->x[e] + 0x8000u) >> 16, l = made->x[e] & 0xffffu;
        high->x[e / 2] = e % 2 == 0 ? h : high->x[e / 2] | h << 16;
        rest->x[e / 2] = e % 2 == 0 ? l : rest->x[e / 2] | l << 16;
    }
}

/* The arrays of an optimizer step as fours, with the bits that they have in memory. */
template <int FOURS> struct dpari_cuda_step_bits {
    dpari_cuda_four weight[FOURS], gradient[FOURS], m[FOURS], v[FOURS], rest[FOURS], copy[FOURS];
};

/* Converts the weights and their copy to bits. */
template <typename W, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_narrow(const dpari_cuda_step &s, const W *w, Bits *h,
                                                     int k, int64_t i)
{
    const int random = s.o.stochastic && !s.rested;
    const uint64_t at = s.index + (uint64_t)i;
    if (s.rested) {
        dpari_cuda_four both;
        dpari_cuda_narrow<WIDE>(&both, DPAR_F32, w);
        dpari_cuda_halve(&both, &h->weight[k], &h->rest[k]);
    } else if (random && s.weight_type == DPAR_BF16) {
        dpari_cuda_narrow_random(&h->weight[k], w, s.o.seed, (uint64_t)s.t, at);
    } else {
        dpari_cuda_narrow<WIDE>(&h->weight[k], s.weight_type, w);
    }
    if (s.copied) { /* stores a copy of the updated weights */
        W now[4];
        dpari_cuda_widen<0, WIDE>(&h->weight[k], s.weight_type, now);
        if (random && s.copy_type == DPAR_BF16) {
            dpari_cuda_narrow_random(&h->copy[k], now, s.o.seed, (uint64_t)s.t, at);
        } else {
            dpari_cuda_narrow<WIDE>(&h->copy[k], s.copy_type, now);
        }
    }
}

/* Converts the moments to bits, with stochastic rounding if they are BF16 and the optimizer uses
 * it. */
template <typename W, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_keep(const dpari_cuda_step &s, const W *m, const W *v,
                                                   Bits *h, int k, int64_t i)
{
    if (s.o.stochastic && s.moment_type == DPAR_BF16) {
        uint32_t words[4];
        dpari_cuda_randoms(s.o.seed, (uint64_t)s.t + (UINT64_C(1) << 63), s.index + (uint64_t)i,
                           words);
        dpari_cuda_narrow_by<16>(&h->m[k], m, words);
        dpari_cuda_narrow_by<0>(&h->v[k], v, words);
    } else {
        dpari_cuda_narrow<WIDE>(&h->m[k], s.moment_type, m);
        dpari_cuda_narrow<WIDE>(&h->v[k], s.moment_type, v);
    }
}

/* Loads what the step needs of elements i to i + 3, or of ALL fours. */
template <int ALL, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_load(const dpari_cuda_step &s, Bits *h, int64_t i)
{
    const int32_t state = dpari_cuda_width(s.moment_type);
    dpari_cuda_load_unit<1, ALL, WIDE>(h->weight, s.weight, 0, i, s.count,
                                       dpari_cuda_width(s.weight_type), 1);
    dpari_cuda_load_unit<0, ALL, WIDE>(h->gradient, s.gradient, 0, i, s.count,
                                       dpari_cuda_width(s.gradient_type), s.even_gradient);
    if (s.moments > 0) {
        dpari_cuda_load_unit<1, ALL, WIDE>(h->m, s.m, 0, i, s.count, state, s.even_m);
    }
    if (s.moments > 1) {
        dpari_cuda_load_unit<1, ALL, WIDE>(h->v, s.v, 0, i, s.count, state, s.even_v);
    }
    if (s.rested) {
        dpari_cuda_load_unit<1, ALL, WIDE>(h->rest, s.rest, 0, i, s.count, 2, s.even_rest);
    }
}

template <int ALL, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_store(const dpari_cuda_step &s, const Bits *h,
                                                    int64_t i)
{
    const int32_t state = dpari_cuda_width(s.moment_type);
    dpari_cuda_store_unit<1, ALL, WIDE>(h->weight, s.weight, 0, i, s.count,
                                        dpari_cuda_width(s.weight_type), 1);
    if (s.moments > 0) {
        dpari_cuda_store_unit<1, ALL, WIDE>(h->m, s.m, 0, i, s.count, state, s.even_m);
    }
    if (s.moments > 1) {
        dpari_cuda_store_unit<1, ALL, WIDE>(h->v, s.v, 0, i, s.count, state, s.even_v);
    }
    if (s.rested) {
        dpari_cuda_store_unit<1, ALL, WIDE>(h->rest, s.rest, 0, i, s.count, 2, s.even_rest);
    }
    if (s.copied) {
        dpari_cuda_store_unit<0, ALL, WIDE>(h->copy, s.copy, 0, i, s.count,
                                            dpari_cuda_width(s.copy_type), s.even_copy);
    }
}

/* Updates elements i to i + 3, from old bits to new bits. */
template <typename W, int WIDE, typename Bits>
__device__ static inline void dpari_cuda_step_unit(const dpari_cuda_step &s,
                                                   const dpari_cuda_rates<W> &r, Bits *h, int k,
                                                   int64_t i)
{
    W w[4], g[4] = {0, 0, 0, 0}, m[4] = {0, 0, 0, 0}, v[4] = {0, 0, 0, 0};
    if (s.rested) {
        dpari_cuda_four both;
        dpari_cuda_join(&both, &h->weight[k], &h->rest[k]);
        dpari_cuda_widen<0, WIDE>(&both, DPAR_F32, w);
    } else {
        dpari_cuda_widen<0, WIDE>(&h->weight[k], s.weight_type, w);
    }
    if (r.factor != (W)0) { /* with factor 0 gradients are zeros, because NaN and Inf times 0 would
                               be NaN */
        dpari_cuda_widen<0, WIDE>(&h->gradient[k], s.gradient_type, g);
    }
    if (s.moments > 0) {
        dpari_cuda_widen<0, WIDE>(&h->m[k], s.moment_type, m);
    }
    if (s.moments > 1) {
        dpari_cuda_widen<0, WIDE>(&h->v[k], s.moment_type, v);
    }
    DPARI_CUDA_UNROLL
    for (int e = 0; e < 4; e++) {
        if (s.o.kind == DPAR_OPTIMIZER_ADAMW) {
            dpari_cuda_adamw(r, &w[e], g[e], &m[e], &v[e]);
        } else {
            dpari_cuda_sgd(r, s.o.nesterov, &w[e], g[e], &m[e]);
        }
    }
    if (s.moments > 0) {
        dpari_cuda_step_keep<W, WIDE>(s, m, v, h, k, i);
    }
    dpari_cuda_step_narrow<W, WIDE>(s, w, h, k, i);
}

/* WIDE 0: neither weights nor gradients are F64. */
template <typename W, int WIDE>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_step_kernel(DPARI_CUDA_ARGS dpari_cuda_step s)
{
    const dpari_cuda_rates<W> r = dpari_cuda_rates_of<W>(s);
    for (int64_t unit = dpari_cuda_thread(); unit < s.units; unit += dpari_cuda_threads()) {
        const int64_t i = dpari_cuda_first(unit, s.head);
        dpari_cuda_step_bits<1> h;
        if (i < s.count) {
            dpari_cuda_step_load<0, WIDE>(s, &h, i);
            dpari_cuda_step_unit<W, WIDE>(s, r, &h, 0, i);
            dpari_cuda_step_store<0, WIDE>(s, &h, i);
        }
    }
}

/* The forms in which models are usually trained. All arrays are accessed in units of 16 bytes, and
 * types are constants of the kernel. With 16-bit types a thread has eight elements, otherwise four.
 * All forms are AdamW except MOMENTUM, which is SGD. */
enum {
    DPARI_CUDA_PLAIN,
    DPARI_CUDA_STOCHASTIC,
    DPARI_CUDA_COPIED,
    DPARI_CUDA_RESTED,
    DPARI_CUDA_MOMENTUM
};

template <int WEIGHT, int GRADIENT, int MOMENT, int HOW> struct dpari_cuda_step_form {
    enum { FOURS = dpari_cuda_fours_of(GRADIENT) };
    DPARI_CUDA_FN void fix(dpari_cuda_step *s)
    {
        s->o.kind = HOW == DPARI_CUDA_MOMENTUM ? DPAR_OPTIMIZER_SGD : DPAR_OPTIMIZER_ADAMW;
        s->o.stochastic = HOW == DPARI_CUDA_STOCHASTIC;
        s->moments = HOW == DPARI_CUDA_MOMENTUM ? 1 : 2;
        s->weight_type = WEIGHT;
        s->gradient_type = GRADIENT;
        s->moment_type = MOMENT;
        s->copy_type = HOW == DPARI_CUDA_COPIED ? DPAR_BF16 : DPAR_TYPE_NONE;
        s->copied = HOW == DPARI_CUDA_COPIED;
        s->rested = HOW == DPARI_CUDA_RESTED;
        if (HOW == DPARI_CUDA_STOCHASTIC) {
            s->index &= ~UINT64_C(3); /* rounds down to a multiple of four, because a random block
                                         has four words (random.h) */
        }
    }
};

/* The elements at the end that do not fill a unit of 16 bytes. */
template <typename W>
DPARI_CUDA_ONCE __device__ static void dpari_cuda_step_rest(const dpari_cuda_step &s, int64_t i)
{
    const dpari_cuda_rates<W> r = dpari_cuda_rates_of<W>(s);
    for (; i < s.count; i += 4) {
        dpari_cuda_step_bits<1> h;
        dpari_cuda_step_load<0, 0>(s, &h, i);
        dpari_cuda_step_unit<W, 0>(s, r, &h, 0, i);
        dpari_cuda_step_store<0, 0>(s, &h, i);
    }
}

template <typename W, typename Form>
__global__ static void __launch_bounds__(DPARI_CUDA_THREADS, sizeof(W) == 8 ? 2 : 3)
    dpari_cuda_step_form_kernel(DPARI_CUDA_ARGS dpari_cuda_step asked)
{
    enum { FOURS = Form::FOURS, EACH = 4 * FOURS };
    dpari_cuda_step s = asked;
    Form::fix(&s);
    const dpari_cuda_rates<W> r = dpari_cuda_rates_of<W>(s);
    const int64_t step = dpari_cuda_threads();
    int64_t u = dpari_cuda_thread();
    for (; EACH * (u + 1) <= s.count; u += step) {
        const int64_t i = EACH * u;
        dpari_cuda_step_bits<FOURS> h;
        dpari_cuda_step_load<FOURS, 0>(s, &h, i);
        DPARI_CUDA_UNROLL
        for (int k = 0; k < FOURS; k++) {
            dpari_cuda_step_unit<W, 0>(s, r, &h, k, i + 4 * k);
        }
        dpari_cuda_step_store<FOURS, 0>(s, &h, i);
    }
    if (EACH * u < s.count) {
        dpari_cuda_step_rest<W>(asked, EACH * u);
    }
}

/* Returns b^t by repeated squaring, as dpar_optimizer_step computes it. */
static double dpari_cuda_power(double b, int64_t t)
{
    double power = 1.0;
    for (; t > 0; t >>= 1) {
        power *= t % 2 != 0 ? b : 1.0;
        b *= b;
    }
    return power;
}

/* True if dpar_mem allows the step. Sets s->moments and s->moment_type. */
static int dpari_cuda_step_fine(const dpar_mem_optimize *x, dpari_cuda_step *s)
{
    const dpar_optimizer_piece *p = x->piece;
    if (p == NULL || dpar_optimizer_check(x->optimizer, p->weight_type, &s->moments,
                                          &s->moment_type, NULL) != DPAR_OK ||
        s->moment_type == DPAR_F8) {
        return 0;
    }
    if (x->step < 1 || p->count < 0 || !dpari_cuda_is_float(p->gradient_type) ||
        (x->remainder != NULL &&
         (p->weight_type != DPAR_BF16 || x->optimizer->stochastic || x->copy != NULL)) ||
        (x->copy != NULL && x->copy_type != DPAR_BF16 && x->copy_type != DPAR_F16 &&
         x->copy_type != DPAR_F32)) {
        return 0;
    }
    return p->count == 0 || (p->weight != NULL && p->gradient != NULL &&
                             (s->moments < 1 || p->m != NULL) && (s->moments < 2 || p->v != NULL));
}

typedef void (*dpari_cuda_stepper)(const dpari_cuda_step);

/* Returns the kernel of a form if the step has that form, otherwise `other`. */
template <typename Form>
static dpari_cuda_stepper dpari_cuda_step_formed(const dpari_cuda_step *s, int fast,
                                                 dpari_cuda_stepper other)
{
    if (!dpari_cuda_is<Form>(s)) {
        return other;
    }
    return fast ? dpari_cuda_step_form_kernel<float, Form>
                : dpari_cuda_step_form_kernel<double, Form>;
}

static dpari_cuda_stepper dpari_cuda_step_kernel_of(const dpari_cuda_step *s, int fast)
{
    const int wide = s->weight_type == DPAR_F64 || s->gradient_type == DPAR_F64;
    dpari_cuda_stepper k = dpari_cuda_step_kernel<double, 0>;
    if (wide) {
        k = dpari_cuda_step_kernel<double, 1>;
    } else if (fast) {
        k = dpari_cuda_step_kernel<float, 0>;
    }
    if (!dpari_cuda_aligned(s->weight) || !dpari_cuda_aligned(s->gradient) ||
        !dpari_cuda_aligned(s->m) || !dpari_cuda_aligned(s->v) || !dpari_cuda_aligned(s->copy) ||
        !dpari_cuda_aligned(s->rest)) {
        return k;
    }
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_F32, DPAR_F32, DPAR_F32, DPARI_CUDA_PLAIN>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_F32, DPAR_F32, DPAR_F32, DPARI_CUDA_MOMENTUM>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_F32, DPAR_BF16, DPAR_F32, DPARI_CUDA_COPIED>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_BF16, DPAR_BF16, DPAR_F32, DPARI_CUDA_RESTED>>(s, fast, k);
    k = dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_BF16, DPAR_BF16, DPAR_F32, DPARI_CUDA_STOCHASTIC>>(s, fast, k);
    return dpari_cuda_step_formed<
        dpari_cuda_step_form<DPAR_BF16, DPAR_BF16, DPAR_BF16, DPARI_CUDA_STOCHASTIC>>(s, fast, k);
}

DPARI_INTERNAL dpar_status dpari_cuda_optimize(void *ctx, const dpar_mem_optimize *x)
{
    dpar_cuda *gpu = (dpar_cuda *)ctx;
    const dpar_optimizer_piece *p = x->piece;
    dpari_cuda_step s;
    int64_t blocks;
    int32_t state;
    memset(&s, 0, sizeof s);
    if (!dpari_cuda_step_fine(x, &s)) {
        return dpari_cuda_wrong(gpu, "optimize");
    }
    if (p->count == 0) {
        return DPAR_OK;
    }
    s.o = *x->optimizer;
    s.weight = p->weight;
    s.gradient = p->gradient;
    s.m = p->m;
    s.v = p->v;
    s.copy = x->copy;
    s.rest = x->remainder;
    s.factor_at = x->factor_at;
    s.count = p->count;
    s.t = x->step;
    s.index = p->index;
    s.rate = x->rate;
    s.factor = x->factor;
    s.shrink = 1.0 - x->rate * s.o.decay;
    s.reach = x->rate / (1.0 - dpari_cuda_power(s.o.beta1, x->step));
    s.fix = 1.0 / (1.0 - dpari_cuda_power(s.o.beta2, x->step));
    s.weight_type = p->weight_type;
    s.gradient_type = p->gradient_type;
    s.copied = x->copy != NULL;
    s.rested = x->remainder != NULL;
    s.copy_type = s.copied ? x->copy_type : (int32_t)DPAR_TYPE_NONE;
    state = dpari_cuda_width(s.moment_type);
    s.head = dpari_cuda_head(p->weight, dpari_cuda_width(p->weight_type));
    s.units = dpari_cuda_fours(p->count, s.head);
    s.even_gradient =
        (uint8_t)dpari_cuda_even(p->gradient, s.head, dpari_cuda_width(p->gradient_type));
    s.even_m = (uint8_t)dpari_cuda_even(p->m, s.head, state);
    s.even_v = (uint8_t)dpari_cuda_even(p->v, s.head, state);
    s.even_rest = (uint8_t)dpari_cuda_even(x->remainder, s.head, 2);
    s.even_copy = (uint8_t)(x->copy != NULL &&
                            dpari_cuda_even(x->copy, s.head, dpari_cuda_width(x->copy_type)));
    blocks = (s.units + DPARI_CUDA_THREADS - 1) / DPARI_CUDA_THREADS;
    blocks =
        gpu->fast_math && state == 4 ? dpari_cuda_each(gpu, blocks) : dpari_cuda_wave(gpu, blocks);
    return dpari_cuda_launch(gpu, "optimize", dpari_cuda_step_kernel_of(&s, gpu->fast_math), s,
                             blocks);
}
