/* SPDX-License-Identifier: MIT-0 */
/* AdamW and SGD. Elements are converted in small parts to f64, updated, and rounded once when they
 * are stored. For F64 and F32, loops work on the arrays directly. On x86-64 these loops are also
 * compiled for AVX2. Both versions give the same bits, because products are not fused with sums. */
#include "optimizer.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "cpu.h"
#include "elements.h"
#include "moment_codes.h"
#include "optimizer_private.h"
#include "random_private.h"
#include "vectors.h"

DPAR_API DPARI_COLD void dpar_optimizer_init(dpar_optimizer *optimizer, int32_t kind)
{
    dpari_zero(optimizer, sizeof *optimizer);
    optimizer->kind = kind;
    if (kind == DPAR_OPTIMIZER_ADAMW) {
        optimizer->beta1 = 0.9;
        optimizer->beta2 = 0.999;
        optimizer->epsilon = 1e-8;
        optimizer->decay = 0.01;
    }
}

/* True if x is at least 0 and below 1. */
static int dpari_optim_share(double x)
{
    return x >= 0.0 && x < 1.0;
}

DPARI_INTERNAL int32_t dpari_optimizer_moments(const dpar_optimizer *optimizer)
{
    if (optimizer->kind == DPAR_OPTIMIZER_ADAMW) {
        return 2;
    }
    return optimizer->momentum > 0.0 ? 1 : 0;
}

DPARI_INTERNAL int32_t dpari_optimizer_moment_type(const dpar_optimizer *optimizer,
                                                   int32_t weight_type)
{
    if (optimizer->moment_type != DPAR_TYPE_NONE) {
        return optimizer->moment_type;
    }
    return dpari_wide_type(weight_type);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_optimizer_say(dpar_why *why, const char *form, ...)
{
    dpar_text t;
    va_list list;
    if (why != NULL) {
        dpari_text_why(&t, why);
        va_start(list, form);
        dpari_text_print_list(&t, form, &list);
        va_end(list);
    }
    return DPAR_E_ARG;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_optimizer_check_group(const dpar_optimizer_group *group,
                                                                  const char *name, int32_t index,
                                                                  dpar_why *why)
{
    if (!(group->decay >= 0.0) || !(group->rate >= 0.0) || !dpari_finite(group->decay) ||
        !dpari_finite(group->rate)) {
        return dpari_optimizer_say(
            why,
            "%s: group %d has decay %.9g and rate %.9g, but each must be 0 or more, and finite",
            name, index, group->decay, group->rate);
    }
    if (!dpari_optim_share(group->beta1) || !dpari_optim_share(group->beta2)) {
        return dpari_optimizer_say(
            why,
            "%s: group %d has beta1 %.9g and beta2 %.9g, but each must be 0 or more and below 1",
            name, index, group->beta1, group->beta2);
    }
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_optimizer_use_group(const dpar_optimizer_group *group,
                                              dpar_optimizer *optimizer, double *rate)
{
    optimizer->decay = group->decay;
    if (group->rate > 0.0) {
        *rate *= group->rate;
    }
    if (group->beta1 > 0.0) {
        optimizer->beta1 = group->beta1;
    }
    if (group->beta2 > 0.0) {
        optimizer->beta2 = group->beta2;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_optimizer_check(const dpar_optimizer *optimizer,
                                                     int32_t weight_type, int32_t *moments,
                                                     int32_t *moment_type, dpar_why *why)
{
    if (optimizer == NULL) {
        return dpari_wrong(why, "optimizer: the optimizer is NULL");
    }
    if ((optimizer->kind != DPAR_OPTIMIZER_ADAMW && optimizer->kind != DPAR_OPTIMIZER_SGD) ||
        (optimizer->nesterov != 0 && optimizer->nesterov != 1) ||
        (optimizer->stochastic != 0 && optimizer->stochastic != 1)) {
        return dpari_wrong(
            why,
            "optimizer: kind is %d, nesterov %d and stochastic %d, but kind must be 1 (AdamW) or 2 "
            "(SGD), and the others 0 or 1",
            optimizer->kind, optimizer->nesterov, optimizer->stochastic);
    }
    if (optimizer->moment_type != DPAR_TYPE_NONE && optimizer->moment_type != DPAR_BF16 &&
        optimizer->moment_type != DPAR_F8) {
        return dpari_wrong(why, "optimizer: moment_type is %s, but must be bf16, f8 or 0",
                           dpar_type_name(optimizer->moment_type));
    }
    if (!(optimizer->decay >= 0.0) || !dpari_finite(optimizer->decay)) {
        return dpari_optimizer_say(
            why, "optimizer: decay is %.9g, but must be 0 or more, and finite", optimizer->decay);
    }
    if (optimizer->kind == DPAR_OPTIMIZER_ADAMW &&
        (!dpari_optim_share(optimizer->beta1) || !dpari_optim_share(optimizer->beta2) ||
         !(optimizer->epsilon > 0.0) || !dpari_finite(optimizer->epsilon))) {
        return dpari_optimizer_say(why,
                                   "optimizer: AdamW's beta1 is %.9g, beta2 %.9g and epsilon %.9g, "
                                   "but both betas must be 0 "
                                   "or more and below 1, and epsilon above 0 and finite",
                                   optimizer->beta1, optimizer->beta2, optimizer->epsilon);
    }
    if (optimizer->kind == DPAR_OPTIMIZER_SGD && !dpari_optim_share(optimizer->momentum)) {
        return dpari_optimizer_say(
            why, "optimizer: SGD's momentum is %.9g, but must be 0 or more and below 1",
            optimizer->momentum);
    }
    if (!dpari_is_float(weight_type)) {
        return dpari_wrong(why, "optimizer: weights are %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(weight_type));
    }
    if (optimizer->moment_type != DPAR_TYPE_NONE && weight_type == DPAR_F64) {
        return dpari_wrong(
            why, "optimizer: moment_type is %s, but weights are f64, which need f64 moments",
            dpar_type_name(optimizer->moment_type));
    }
    if (moments != NULL) {
        *moments = dpari_optimizer_moments(optimizer);
    }
    if (moment_type != NULL) {
        *moment_type = dpari_optimizer_moment_type(optimizer, weight_type);
    }
    return DPAR_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

/* Returns b^t by repeated squaring, which is accurate enough for 1 - b^t. */
static double dpari_optim_power(double b, int64_t t)
{
    double power = 1.0;
    for (; t > 0; t >>= 1) {
        power *= t % 2 != 0 ? b : 1.0;
        b *= b;
    }
    return power;
}

DPAR_API DPARI_COLD double dpar_optimizer_clip(double norm, double limit)
{
    if (!(limit > 0.0)) {
        return 1.0;
    }
    if (!(norm >= 0.0) || !dpari_finite(norm)) {
        return 0.0;
    }
    return dpari_leastf(1.0, limit / (norm + 1e-6));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The values of a step that are the same for all elements. */
typedef struct dpari_optim_now {
    double rate, factor;
    double shrink;     /* AdamW: 1 - rate decay */
    double reach, fix; /* AdamW: rate / (1 - beta1^t), 1 / (1 - beta2^t) */
    int64_t t;
    uint64_t index; /* index of the piece's first element, for random numbers */
    int32_t wide;   /* dpari_cpu_wide */
} dpari_optim_now;
enum { DPARI_OPTIM_ASKS = 4096 }; /* with fewer elements, querying the CPU takes too long */

/* The functions below process several elements at a time, in f64, of arrays that are all F64 or all
 * F32. Each operation is correctly rounded, so the bits do not depend on how many elements are
 * processed at once. */
#if DPARI_LANES_VECTOR
#define DPARI_OPTIM_INLINE DPARI_LANES_INLINE
enum { DPARI_OPTIM_STEP = 4 };
typedef dpari_lanes_d4 dpari_optim_some;
#define DPARI_OPTIM_ZERO                                                                           \
    {                                                                                              \
        0.0, 0.0, 0.0, 0.0                                                                         \
    }

DPARI_OPTIM_INLINE void dpari_optim_get(dpari_optim_some *x, const void *from, int64_t i,
                                        int32_t type, int wide)
{
    dpari_lanes_f4 f;
    if (type == DPAR_F64) {
        dpari_lanes_get(x, (const double *)from + i);
    } else {
        dpari_lanes_get(&f, (const float *)from + i);
        DPARI_LANES_CONVERT(wide, "vcvtps2pd", *x, f, dpari_lanes_d4);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_put(void *to, int64_t i, int32_t type,
                                        const dpari_optim_some *x, int wide)
{
    dpari_lanes_f4 f;
    if (type == DPAR_F64) {
        dpari_lanes_put((double *)to + i, x);
    } else {
        DPARI_LANES_CONVERT(wide, "vcvtpd2psy", f, *x, dpari_lanes_f4);
        dpari_lanes_put((float *)to + i, &f);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_root(dpari_optim_some *x, int wide)
{
    double each[4];
#if DPARI_LANES_ASM
    const dpari_optim_some zero = DPARI_OPTIM_ZERO;
    if (wide) {
        __asm__("vmaxpd %1, %2, %0" : "=x"(*x) : "x"(*x), "x"(zero)); /* a NaN in x stays */
        __asm__("vsqrtpd %1, %0" : "=x"(*x) : "x"(*x));
        return;
    }
#endif
    (void)wide;
    __builtin_memcpy(each, x, sizeof each); /* nvcc knows no subscripts of vectors */
    DPARI_FOUR(each[q] = dpari_elements_sqrt(each[q]));
    __builtin_memcpy(x, each, sizeof each);
}

DPARI_OPTIM_INLINE double dpari_optim_total(const dpari_optim_some *x)
{
    double each[4];
    __builtin_memcpy(each, x, sizeof each);
    return (each[0] + each[2]) + (each[1] + each[3]);
}
#else
#define DPARI_OPTIM_INLINE static
enum { DPARI_OPTIM_STEP = 1 };
typedef double dpari_optim_some;
#define DPARI_OPTIM_ZERO 0.0

static void dpari_optim_get(double *x, const void *from, int64_t i, int32_t type, int wide)
{
    (void)wide;
    *x = dpari_element_get(from, type, i);
}

static void dpari_optim_put(void *to, int64_t i, int32_t type, const double *x, int wide)
{
    (void)wide;
    dpari_element_put(to, type, i, *x);
}

static void dpari_optim_root(double *x, int wide)
{
    (void)wide;
    *x = dpari_elements_sqrt(*x);
}

static double dpari_optim_total(const double *x)
{
    return *x;
}
#endif

/* With -mfma, keeps the compiler from fusing a product with a sum, which would change the bits. */
#if defined(__FMA__)
#define DPARI_OPTIM_ROUNDED(x) __asm__("" : "+x"(x))
#else
#define DPARI_OPTIM_ROUNDED(x) ((void)0)
#endif

DPARI_OPTIM_INLINE void dpari_optim_times(dpari_optim_some *to, double by,
                                          const dpari_optim_some *x)
{
    dpari_optim_some y = by * *x;
    DPARI_OPTIM_ROUNDED(y);
    *to = y;
}

DPARI_OPTIM_INLINE void dpari_optim_times_each(dpari_optim_some *to, const dpari_optim_some *x,
                                               const dpari_optim_some *y)
{
    dpari_optim_some z = *x * *y;
    DPARI_OPTIM_ROUNDED(z);
    *to = z;
}

typedef struct dpari_optim_arrays {
    void *w, *m, *v; /* weights and moments; SGD has no v, and without momentum m is NULL */
    const void *g;   /* gradients */
} dpari_optim_arrays;

/* Gives NaNs of F32 the same bits, as in dpari_elements_store. It is called if a sum of all new
 * weights is NaN, because a weight is NaN if one of its moments is. */
DPARI_STATIC_NOINLINE void dpari_optim_quiet(const dpari_optim_arrays *p, int64_t n, int moments)
{
    dpari_elements_quiet((float *)p->w, n);
    if (moments > 0) {
        dpari_elements_quiet((float *)p->m, n);
    }
    if (moments > 1) {
        dpari_elements_quiet((float *)p->v, n);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_adamw(const dpar_optimizer *o, const dpari_optim_now *now,
                                          const dpari_optim_arrays *p, int64_t n, int32_t type,
                                          int wide)
{
    const double beta1 = o->beta1, beta2 = o->beta2, epsilon = o->epsilon;
    const dpari_optim_now at = *now;
    const dpari_optim_arrays to = *p;
    dpari_optim_some all = DPARI_OPTIM_ZERO;
    double sum;
    int64_t i;
    for (i = 0; i < n; i += DPARI_OPTIM_STEP) {
        dpari_optim_some x, m, v, w, r;
        dpari_optim_get(&x, to.g, i, type, wide);
        dpari_optim_get(&m, to.m, i, type, wide);
        dpari_optim_get(&v, to.v, i, type, wide);
        dpari_optim_get(&w, to.w, i, type, wide);
        dpari_optim_times(&x, at.factor, &x);
        dpari_optim_times(&m, beta1, &m);
        dpari_optim_times(&r, 1.0 - beta1, &x);
        m += r;
        dpari_optim_times(&v, beta2, &v);
        dpari_optim_times(&r, 1.0 - beta2, &x);
        dpari_optim_times_each(&r, &r, &x);
        v += r;
        dpari_optim_times(&r, at.fix, &v);
        dpari_optim_root(&r, wide);
        dpari_optim_times(&w, at.shrink, &w);
        dpari_optim_times(&x, at.reach, &m);
        w -= x / (r + epsilon);
        dpari_optim_put(to.m, i, type, &m, wide);
        dpari_optim_put(to.v, i, type, &v, wide);
        dpari_optim_put(to.w, i, type, &w, wide);
        all += w;
    }
    sum = dpari_optim_total(&all);
    if (type == DPAR_F32 && sum != sum) {
        dpari_optim_quiet(p, n, 2);
    }
}

DPARI_OPTIM_INLINE void dpari_optim_sgd(const dpar_optimizer *o, const dpari_optim_now *now,
                                        const dpari_optim_arrays *p, int64_t n, int32_t type,
                                        int wide)
{
    const double momentum = o->momentum, decay = o->decay;
    const dpari_optim_now at = *now;
    const dpari_optim_arrays to = *p;
    const int nesterov = o->nesterov;
    dpari_optim_some all = DPARI_OPTIM_ZERO;
    double sum;
    int64_t i;
    for (i = 0; i < n; i += DPARI_OPTIM_STEP) {
        dpari_optim_some x, m, w, r;
        dpari_optim_get(&x, to.g, i, type, wide);
        dpari_optim_get(&w, to.w, i, type, wide);
        dpari_optim_times(&x, at.factor, &x);
        dpari_optim_times(&r, decay, &w);
        x += r;
        if (to.m != NULL) {
            dpari_optim_get(&m, to.m, i, type, wide);
            dpari_optim_times(&m, momentum, &m);
            m += x;
            dpari_optim_put(to.m, i, type, &m, wide);
            dpari_optim_times(&r, momentum, &m);
            x = nesterov ? x + r : m;
        }
        dpari_optim_times(&r, at.rate, &x);
        w -= r;
        dpari_optim_put(to.w, i, type, &w, wide);
        all += w;
    }
    sum = dpari_optim_total(&all);
    if (type == DPAR_F32 && sum != sum) {
        dpari_optim_quiet(p, n, to.m != NULL);
    }
}

/* Defines a function that updates n elements, a multiple of DPARI_OPTIM_STEP. */
#define DPARI_OPTIM_UPDATE(name, wide)                                                             \
    static void name(const dpar_optimizer *o, const dpari_optim_now *now,                          \
                     const dpari_optim_arrays *p, int32_t type, int64_t n)                         \
    {                                                                                              \
        if (o->kind != DPAR_OPTIMIZER_ADAMW) {                                                     \
            if (type == DPAR_F64) {                                                                \
                dpari_optim_sgd(o, now, p, n, DPAR_F64, wide);                                     \
            } else {                                                                               \
                dpari_optim_sgd(o, now, p, n, DPAR_F32, wide);                                     \
            }                                                                                      \
        } else if (type == DPAR_F64) {                                                             \
            dpari_optim_adamw(o, now, p, n, DPAR_F64, wide);                                       \
        } else {                                                                                   \
            dpari_optim_adamw(o, now, p, n, DPAR_F32, wide);                                       \
        }                                                                                          \
    }
DPARI_OPTIM_UPDATE(dpari_optim_usual, 0)
#if DPARI_LANES_ASKED
__attribute__((target("avx2"))) DPARI_OPTIM_UPDATE(dpari_optim_wide, 1)
#endif

    static void dpari_optim_update(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                                   const dpari_optim_arrays *p, int32_t type, int64_t n)
{
#if DPARI_LANES_ASKED
    if (now->wide) {
        dpari_optim_wide(optimizer, now, p, type, n);
        return;
    }
#endif
    dpari_optim_usual(optimizer, now, p, type, n);
}

/* Added to the streams of random numbers for moments. Those for weights never reach it. */
#define DPARI_OPTIM_MOMENTS (UINT64_C(1) << 63)

/* The arrays that are stored, for dpari_optim_store. */
enum { DPARI_OPTIM_WEIGHT, DPARI_OPTIM_M, DPARI_OPTIM_V };

/* Stores updated elements in their type. BF16 is rounded stochastically if the optimizer has this
 * option. Weights and moments use different random numbers. */
static void dpari_optim_store(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                              int32_t what, void *to, int32_t type, const double *from, int64_t i,
                              int64_t n)
{
    const uint64_t stream =
        (uint64_t)now->t + (what == DPARI_OPTIM_WEIGHT ? 0 : DPARI_OPTIM_MOMENTS);
    float f[DPARI_ELEMENTS];
    if (type != DPAR_BF16 || !optimizer->stochastic) {
        dpari_elements_store(to, from, i, n, type);
        return;
    }
    dpari_elements_store(f, from, 0, n, DPAR_F32);
    dpari_random_round((unsigned char *)to + 2 * i, f, n, optimizer->seed, stream,
                       now->index + (uint64_t)i, what == DPARI_OPTIM_V ? 0 : 16);
}

/* Updates elements in place if weights and moments are all F64 or all F32, and gradients have that
 * type or convert to it exactly. Does not update the remainder that is no multiple of the vector
 * size. Returns the number of elements that were updated, which may be 0. */
static int64_t dpari_optim_direct(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                                  const dpar_optimizer_piece *p, int32_t moment_type)
{
    const int64_t n = p->count / DPARI_OPTIM_STEP * DPARI_OPTIM_STEP;
    const int32_t type = p->weight_type, moments = dpari_optimizer_moments(optimizer);
    const int64_t bytes = dpar_type_bytes(type), each = dpar_type_bytes(p->gradient_type);
    float g[DPARI_ELEMENTS];
    dpari_optim_arrays all;
    int64_t i, some;
    if (!dpari_is_wide(type) || now->factor == 0.0 || (moments > 0 && moment_type != type) ||
        (p->gradient_type != type && (type == DPAR_F64 || p->gradient_type == DPAR_F64))) {
        return 0;
    }
    for (i = 0; i < n; i += some) {
        const unsigned char *from = (const unsigned char *)p->gradient + i * each;
        some = p->gradient_type == type ? n : dpari_least(DPARI_ELEMENTS, n - i);
        all.w = (unsigned char *)p->weight + i * bytes;
        all.g = from;
        all.m = moments > 0 ? (unsigned char *)p->m + i * bytes : NULL;
        all.v = moments > 1 ? (unsigned char *)p->v + i * bytes : NULL;
        if (p->gradient_type != type) {
            dpari_kern_convert(g, DPAR_F32, from, p->gradient_type, some);
            all.g = g;
        }
        dpari_optim_update(optimizer, now, &all, type, some);
    }
    return n;
}

/* Loads n elements from element i on as F32. */
static void dpari_optim_load(float *to, const void *from, int64_t i, int64_t n, int32_t type)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    if (type == DPAR_F32) {
        dpari_kern_copy(to, at, 4 * n, 0);
    } else {
        dpari_kern_convert(to, DPAR_F32, at, type, n);
    }
}

/* Updates weights whose moments are 8-bit codes, one block after another. Weights and gradients of
 * other types than F32 are converted to it. In a block of which the piece has only a part, the
 * other moments keep their values. */
static void dpari_optim_coded(const dpar_optimizer *optimizer, const dpari_optim_now *now,
                              const dpar_optimizer_piece *p, int32_t moments)
{
    enum { BLOCK = DPARI_MOMENT_BLOCK };
    const int64_t each = dpar_type_bytes(p->weight_type);
    const int64_t skip = (int64_t)(p->index % BLOCK);
    float w[BLOCK] = {0.0f}, g[BLOCK] = {0.0f}, after[2][4];
    dpari_moment_block block;
    dpari_optim_arrays all;
    int64_t i, n;
    int32_t k;
    dpari_zero(&block, sizeof block);
    block.moments = moments;
    for (i = 0; i < p->count; i += n) {
        const int64_t lo = i == 0 ? skip : 0;
        const int64_t record = dpari_moment_at(DPAR_F8, p->index, i);
        unsigned char *const weight = (unsigned char *)p->weight + i * each;
        n = dpari_least(BLOCK - lo, p->count - i);
        block.record[0] = (unsigned char *)p->m + record;
        block.record[1] = moments > 1 ? (unsigned char *)p->v + record : NULL;
        dpari_moment_load(&block, now->wide);
        all.w = w;
        all.g = g;
        all.m = block.x[0] + lo;
        all.v = block.x[1] + lo;
        if (n == BLOCK && p->weight_type == DPAR_F32) {
            all.w = weight;
        } else {
            dpari_optim_load(w, p->weight, i, n, p->weight_type);
        }
        if (n == BLOCK && p->gradient_type == DPAR_F32 && now->factor != 0.0) {
            all.g = (const float *)p->gradient + i;
        } else if (now->factor != 0.0) {
            dpari_optim_load(g, p->gradient, i, n, p->gradient_type);
        }
        for (k = 0; k < 2; k++) {
            dpari_kern_copy(after[k], block.x[k] + lo + n, sizeof after[k], 0);
        }
        /* also updates up to 3 elements after n */
        dpari_optim_update(optimizer, now, &all, DPAR_F32, (n + 3) / 4 * 4);
        for (k = 0; k < 2; k++) {
            dpari_kern_copy(block.x[k] + lo + n, after[k], sizeof after[k], 0);
        }
        dpari_moment_store(&block, optimizer->seed, (uint64_t)now->t + DPARI_OPTIM_MOMENTS,
                           (p->index + (uint64_t)i) / BLOCK, now->wide);
        if (all.w == w && p->weight_type == DPAR_BF16 && optimizer->stochastic) {
            dpari_random_round(weight, w, n, optimizer->seed, (uint64_t)now->t,
                               p->index + (uint64_t)i, 16);
        } else if (all.w == w && p->weight_type != DPAR_F32) {
            dpari_kern_convert(weight, p->weight_type, w, DPAR_F32, n);
        } else if (all.w == w) {
            dpari_kern_copy(weight, w, 4 * n, 0);
        }
    }
}

DPAR_API dpar_status dpar_optimizer_step(const dpar_optimizer *optimizer,
                                         const dpar_optimizer_piece *p, int64_t t, double rate,
                                         double factor)
{
    double w[DPARI_ELEMENTS] = {0.0}, g[DPARI_ELEMENTS] = {0.0};
    double m[DPARI_ELEMENTS] = {0.0}, v[DPARI_ELEMENTS] = {0.0};
    int32_t moments = 0, type = 0;
    dpari_optim_arrays blocks;
    dpari_optim_now now;
    int64_t i;
    if (p == NULL ||
        dpar_optimizer_check(optimizer, p->weight_type, &moments, &type, NULL) != DPAR_OK ||
        t < 1 || p->count < 0 || !dpari_is_float(p->gradient_type) ||
        (p->count > 0 && (p->weight == NULL || p->gradient == NULL ||
                          (moments > 0 && p->m == NULL) || (moments > 1 && p->v == NULL)))) {
        return DPAR_E_ARG;
    }
    now.rate = rate;
    now.factor = factor;
    now.shrink = 1.0 - rate * optimizer->decay;
    now.reach = rate / (1.0 - dpari_optim_power(optimizer->beta1, t));
    now.fix = 1.0 / (1.0 - dpari_optim_power(optimizer->beta2, t));
    now.t = t;
    now.index = p->index;
    now.wide = DPARI_LANES_ASKED && p->count >= DPARI_OPTIM_ASKS ? dpari_cpu_wide() : 0;
    if (type == DPAR_F8 && moments > 0) {
        dpari_optim_coded(optimizer, &now, p, moments);
        return DPAR_OK;
    }
    blocks.w = w;
    blocks.g = g; /* stays zero if factor is 0, because NaN and infinity times 0 would be NaN */
    blocks.m = moments > 0 ? m : NULL;
    blocks.v = v;
    for (i = dpari_optim_direct(optimizer, &now, p, type); i < p->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, p->count - i);
        dpari_elements_load(w, p->weight, i, n, p->weight_type);
        if (factor != 0.0) {
            dpari_elements_load(g, p->gradient, i, n, p->gradient_type);
        }
        if (moments > 0) {
            dpari_elements_load(m, p->m, i, n, type);
        }
        if (moments > 1) {
            dpari_elements_load(v, p->v, i, n, type);
        }
        /* also updates the elements after n, which are not stored */
        dpari_optim_update(optimizer, &now, &blocks, DPAR_F64, DPARI_ELEMENTS);
        if (moments > 1) {
            dpari_optim_store(optimizer, &now, DPARI_OPTIM_V, p->v, type, v, i, n);
        }
        if (moments > 0) {
            dpari_optim_store(optimizer, &now, DPARI_OPTIM_M, p->m, type, m, i, n);
        }
        dpari_optim_store(optimizer, &now, DPARI_OPTIM_WEIGHT, p->weight, p->weight_type, w, i, n);
    }
    return DPAR_OK;
}
