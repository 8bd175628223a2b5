/* SPDX-License-Identifier: MIT-0 */
#include "optimizer.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/elements.h"
#include "optimizer_run.h"
#include "random_run.h"

DPAR_API DPARI_COLD void dpar_optimizer_init(dpar_optimizer *o, int32_t kind)
{
    dpari_zero(o, sizeof *o);
    o->kind = kind;
    if (kind == DPAR_ADAMW) {
        o->beta1 = 0.9;
        o->beta2 = 0.999;
        o->epsilon = 1e-8;
        o->decay = 0.01;
    }
}

/* Within 0 and below 1. */
static int dpari_optim_share(double x)
{
    return x >= 0.0 && x < 1.0;
}

DPARI_API int32_t dpari_optimizer_moments(const dpar_optimizer *o)
{
    return o->kind == DPAR_ADAMW ? 2 : o->momentum > 0.0 ? 1 : 0;
}

DPARI_API int32_t dpari_optimizer_moment_type(const dpar_optimizer *o, int32_t weight_type)
{
    return o->moment_type != DPAR_NO_TYPE ? o->moment_type
           : weight_type == DPAR_F64      ? DPAR_F64
                                          : DPAR_F32;
}

DPAR_API dpar_status dpar_optimizer_check(const dpar_optimizer *o, int32_t weight_type,
                                          int32_t *moments, int32_t *moment_type, dpar_why *why)
{
    if (o == NULL) {
        return dpari_say(DPAR_E_ARG, why, "optimizer: it is NULL", 0, 0, 0, 0);
    }
    if ((o->kind != DPAR_ADAMW && o->kind != DPAR_SGD) || (o->nesterov != 0 && o->nesterov != 1) ||
        (o->stochastic != 0 && o->stochastic != 1)) {
        return dpari_say(DPAR_E_ARG, why,
                         "optimizer: kind # (AdamW 1, SGD 2), nesterov # and stochastic # (0 or 1)",
                         o->kind, o->nesterov, o->stochastic, 0);
    }
    if (o->moment_type != DPAR_NO_TYPE && o->moment_type != DPAR_BF16) {
        return dpari_say_type(why, "optimizer: moments of type @: bf16, or left out",
                              o->moment_type, 0, 0, 0, 0);
    }
    if (!(o->decay >= 0.0) || !dpari_finite(o->decay)) {
        return dpari_say(DPAR_E_ARG, why, "optimizer: decay is below 0 or no number", 0, 0, 0, 0);
    }
    if (o->kind == DPAR_ADAMW && (!dpari_optim_share(o->beta1) || !dpari_optim_share(o->beta2) ||
                                  !(o->epsilon > 0.0) || !dpari_finite(o->epsilon))) {
        return dpari_say(DPAR_E_ARG, why,
                         "optimizer: AdamW's betas are within 0 and below 1, epsilon above 0", 0, 0,
                         0, 0);
    }
    if (o->kind == DPAR_SGD && !dpari_optim_share(o->momentum)) {
        return dpari_say(DPAR_E_ARG, why, "optimizer: SGD's momentum is within 0 and below 1", 0, 0,
                         0, 0);
    }
    if (!dpari_is_float(weight_type)) {
        return dpari_say_type(why, "optimizer: weights of type @: f64, f32, bf16 or f16",
                              weight_type, 0, 0, 0, 0);
    }
    if (o->moment_type != DPAR_NO_TYPE && weight_type == DPAR_F64) {
        return dpari_say(
            DPAR_E_ARG, why,
            "optimizer: moments in bf16 beside weights in f64: beside f32, bf16 or f16", 0, 0, 0,
            0);
    }
    if (moments != NULL) {
        *moments = dpari_optimizer_moments(o);
    }
    if (moment_type != NULL) {
        *moment_type = dpari_optimizer_moment_type(o, weight_type);
    }
    return DPAR_OK;
}

/* ---- numbers -----------------------------------------------------------------------------------
 */

/* b^t by squaring: 1 - b^t keeps its digits. */
static double dpari_optim_power(double b, int64_t t)
{
    double power = 1.0;
    for (; t > 0; t >>= 1) {
        power *= t % 2 != 0 ? b : 1.0;
        b *= b;
    }
    return power;
}

DPAR_API double dpar_optimizer_clip(double norm, double limit)
{
    if (!(limit > 0.0)) {
        return 1.0;
    }
    if (!(norm >= 0.0) || !dpari_finite(norm)) {
        return 0.0;
    }
    return dpari_leastf(1.0, limit / (norm + 1e-6));
}

/* ---- steps -------------------------------------------------------------------------------------
 */

/* What is the same for all elements of a step. */
typedef struct dpari_optim_now {
    double rate, factor;
    double shrink;     /* AdamW: 1 - rate decay */
    double reach, fix; /* rate / (1 - beta1^t), 1 / (1 - beta2^t) */
    int64_t t;
    uint64_t index; /* of element 0, for random numbers */
} dpari_optim_now;

static void dpari_optim_adamw(const dpar_optimizer *o, const dpari_optim_now *now, double *w,
                              const double *g, double *m, double *v, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const double x = g[i] * now->factor;
        m[i] = o->beta1 * m[i] + (1.0 - o->beta1) * x;
        v[i] = o->beta2 * v[i] + (1.0 - o->beta2) * x * x;
    }
    for (i = 0; i < n; i++) { /* apart: compilers take two elements at once above */
        w[i] = w[i] * now->shrink -
               now->reach * m[i] / (dpari_elements_sqrt(v[i] * now->fix) + o->epsilon);
    }
}

static void dpari_optim_sgd(const dpar_optimizer *o, const dpari_optim_now *now, double *w,
                            const double *g, double *m, int64_t n)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        const double x = g[i] * now->factor + o->decay * w[i];
        m[i] = o->momentum * m[i] + x;
        w[i] -= now->rate * (o->nesterov ? x + o->momentum * m[i] : m[i]);
    }
}

enum { DPARI_OPTIM_WEIGHT, DPARI_OPTIM_M, DPARI_OPTIM_V };

/* What is updated goes back in its type. */
static void dpari_optim_store(const dpar_optimizer *o, const dpari_optim_now *now, int32_t what,
                              void *to, int32_t type, const double *from, int64_t i, int64_t n)
{
    const uint64_t other = UINT64_C(1) << 63; /* a stream that weights never reach */
    const uint64_t stream = (uint64_t)now->t + (what == DPARI_OPTIM_WEIGHT ? 0 : other);
    float f[DPARI_ELEMENTS];
    if (type != DPAR_BF16 || !o->stochastic) {
        dpari_elements_store(to, from, i, n, type);
        return;
    }
    dpari_elements_store(f, from, 0, n, DPAR_F32);
    dpari_random_round((unsigned char *)to + 2 * i, f, n, o->seed, stream, now->index + (uint64_t)i,
                       what == DPARI_OPTIM_V ? 0 : 16);
}

DPAR_API dpar_status dpar_optimizer_step(const dpar_optimizer *o, const dpar_optimizer_piece *p,
                                         int64_t t, double rate, double factor)
{
    double w[DPARI_ELEMENTS] = {0.0}, g[DPARI_ELEMENTS] = {0.0};
    double m[DPARI_ELEMENTS] = {0.0}, v[DPARI_ELEMENTS] = {0.0};
    int32_t moments = 0, type = 0;
    dpari_optim_now now;
    int64_t i;
    if (p == NULL || dpar_optimizer_check(o, p->weight_type, &moments, &type, NULL) != DPAR_OK ||
        t < 1 || p->count < 0 || !dpari_is_float(p->gradient_type) ||
        (p->count > 0 && (p->weight == NULL || p->gradient == NULL ||
                          (moments > 0 && p->m == NULL) || (moments > 1 && p->v == NULL)))) {
        return DPAR_E_ARG;
    }
    now.rate = rate;
    now.factor = factor;
    now.shrink = 1.0 - rate * o->decay;
    now.reach = rate / (1.0 - dpari_optim_power(o->beta1, t));
    now.fix = 1.0 / (1.0 - dpari_optim_power(o->beta2, t));
    now.t = t;
    now.index = p->index;
    for (i = 0; i < p->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, p->count - i);
        dpari_elements_load(w, p->weight, i, n, p->weight_type);
        if (factor != 0.0) { /* else zeros: NaN and Inf times 0 are NaN */
            dpari_elements_load(g, p->gradient, i, n, p->gradient_type);
        }
        dpari_zero(m, sizeof m);
        if (moments > 0) {
            dpari_elements_load(m, p->m, i, n, type);
        }
        if (moments > 1) {
            dpari_elements_load(v, p->v, i, n, type);
            dpari_optim_adamw(o, &now, w, g, m, v, n);
            dpari_optim_store(o, &now, DPARI_OPTIM_V, p->v, type, v, i, n);
        } else {
            dpari_optim_sgd(o, &now, w, g, m, n);
        }
        if (moments > 0) {
            dpari_optim_store(o, &now, DPARI_OPTIM_M, p->m, type, m, i, n);
        }
        dpari_optim_store(o, &now, DPARI_OPTIM_WEIGHT, p->weight, p->weight_type, w, i, n);
    }
    return DPAR_OK;
}
