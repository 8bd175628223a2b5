/* SPDX-License-Identifier: MIT-0 */
/* ZeRO-1 on the arrays of dpar_ddp_over. A step ends the pass with a reduce-scatter, updates this
 * rank's share with the optimizer, group after group, and gathers the shares of all ranks.
 *
 * Ranks compare a hash of what they must give alike (optimizer, rate, clip, groups) in the
 * collectives that a step needs anyway. A rank that rejects its arguments still takes part in one
 * collective, so that the others learn of it and do not wait. */
#include "zero1.h"

#include "../base/arith.h"
#include "../base/inner.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/elements.h"
#include "../comm/mem_private.h"
#include "layers_private.h"
#include "made.h"
#include "optimizer.h"
#include "optimizer_private.h"
#include "over_private.h"

/* ---- state ------------------------------------------------------------------------------------
 */

typedef struct dpari_zero1_given {
    const dpar_optimizer *of;
    int32_t moments, moment_type;
    int64_t steps;
    double rate, clip;
    const dpar_zero1_group *group;
    int32_t groups;
} dpari_zero1_given;

static DPARI_COLD void dpari_zero1_state_of(dpari_facts *f, const void *given)
{
    const dpari_zero1_given *g = (const dpari_zero1_given *)given;
    dpari_fact(f, "optimizer.kind", 0, g->of->kind);
    dpari_fact(f, "the number of moments", 0, g->moments);
    dpari_fact_type(f, "optimizer.moment_type", 0, g->moment_type);
    dpari_fact(f, "optimizer.stochastic", 0, g->of->stochastic);
    dpari_fact_hash(f, "optimizer.seed", 0, g->of->seed);
    dpari_fact(f, "the number of steps", 0, g->steps);
    dpari_fact_real(f, "the rate", 0, g->rate);
    dpari_fact_real(f, "the clip", 0, g->clip);
    dpari_fact(f, "optimizer.nesterov", 0, g->of->nesterov);
    dpari_fact_real(f, "optimizer.beta1", 0, g->of->beta1);
    dpari_fact_real(f, "optimizer.beta2", 0, g->of->beta2);
    dpari_fact_real(f, "optimizer.epsilon", 0, g->of->epsilon);
    dpari_fact_real(f, "optimizer.momentum", 0, g->of->momentum);
    dpari_fact_real(f, "optimizer.decay", 0, g->of->decay);
}

static DPARI_COLD dpar_status dpari_zero1_take(dpari_over *o, const dpari_zero1_given *g,
                                               dpar_why *why)
{
    dpari_zero1 *z = &o->zero1;
    dpar_comm *c = o->d.c;
    const int64_t each = o->count[c->rank] * dpar_type_bytes(g->moment_type);
    void *memory = NULL;
    dpar_status st =
        g->moments > 0 ? dpar_comm_alloc(c, dpari_most(64, each * g->moments), &memory) : DPAR_OK;
    if (z->squares == NULL) {
        z->squares = (double *)dpari_made_room(c, (int64_t)sizeof *z->squares);
        st = z->squares != NULL ? st : DPAR_E_MEMORY;
    }
    if (st == DPAR_OK && c->mem != NULL && c->mem->pin != NULL && !z->pinned) {
        st = c->mem->pin(c->mem->ctx, z->squares, (int64_t)sizeof *z->squares);
        z->pinned = st == DPAR_OK;
    }
    if (st != DPAR_OK) {
        (void)dpari_say(st, why, "zero1: no memory for %d moments of %ld B", g->moments, each);
    }
    z->moment[0] = (unsigned char *)memory;
    z->moment[1] = g->moments > 1 && memory != NULL ? z->moment[0] + each : NULL;
    return st;
}

/* Checks that the optimizer has the kind and types of the present state. */
static dpar_status dpari_zero1_check(const dpari_over *o, const dpar_optimizer *of,
                                     dpari_zero1_given *g, dpar_why *why)
{
    const dpari_zero1 *z = &o->zero1;
    dpar_status st;
    if (o->arrays != 1) {
        return dpari_wrong(why, "zero1: gradients are %d arrays: it wants one (dpar_ddp_over)",
                           o->arrays);
    }
    st = dpar_optimizer_check(of, o->d.options.type, &g->moments, &g->moment_type, why);
    if (st == DPAR_OK && z->kind != 0 &&
        (z->kind != of->kind || z->moments != g->moments || z->moment_type != g->moment_type)) {
        st = dpari_wrong(
            why, "zero1: an optimizer of kind %d with %d moments, and state of kind %d with %d",
            of->kind, g->moments, z->kind, z->moments);
    }
    return st;
}

/* The state of this optimizer is there, with `steps` behind it. st: how this rank has fared. */
static DPARI_COLD dpar_status dpari_zero1_begin(dpari_over *o, dpar_status st, dpari_zero1_given *g,
                                                dpar_why *why)
{
    dpari_zero1 *z = &o->zero1;
    st = dpari_agree_on(o->d.c, st, "zero1", dpari_zero1_state_of, g, why);
    if (st == DPAR_OK && z->kind == 0) {
        st = dpari_agree(o->d.c, dpari_zero1_take(o, g, why), why);
        if (st != DPAR_OK && z->moment[0] != NULL) {
            dpar_comm_release(o->d.c, z->moment[0]);
            z->moment[0] = NULL;
        }
    }
    if (st == DPAR_OK) {
        z->kind = g->of->kind;
        z->moments = g->moments;
        z->moment_type = g->moment_type;
        z->steps = g->steps;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_resume(dpar_ddp *d, const dpar_optimizer *optimizer,
                                                  int64_t steps, dpar_why *why)
{
    dpari_over *o = dpari_over_of(d);
    dpari_zero1_given g;
    dpar_status st;
    if (o == NULL) {
        return dpari_wrong(why, "zero1: it is not of dpar_ddp_over");
    }
    dpari_zero(&g, sizeof g);
    g.of = optimizer;
    g.steps = steps;
    st = dpari_zero1_check(o, optimizer, &g, why);
    if (st == DPAR_OK && (steps < 0 || steps > INT64_MAX / 2)) {
        st = dpari_wrong(why, "zero1: %ld steps", steps);
    }
    return dpari_zero1_begin(o, st, &g, why);
}

DPAR_API DPARI_COLD void *dpar_zero1_state(dpar_ddp *d, int32_t array, int64_t *first,
                                           int64_t *count, int32_t *type)
{
    const dpari_over *o = dpari_over_of(d);
    if (o == NULL || array < 0 || array >= o->zero1.moments) {
        return NULL;
    }
    if (first != NULL) {
        *first = dpari_over_first(o);
    }
    if (count != NULL) {
        *count = o->count[d->c->rank];
    }
    if (type != NULL) {
        *type = o->zero1.moment_type;
    }
    return o->zero1.moment[array];
}

/* ---- groups -----------------------------------------------------------------------------------
 */

static DPARI_COLD void dpari_zero1_state_groups(dpari_facts *f, const void *given)
{
    const dpari_zero1_given *g = (const dpari_zero1_given *)given;
    int32_t i;
    dpari_fact(f, "the number of groups", 0, g->groups);
    for (i = 0; i < g->groups; i++) {
        dpari_fact(f, "group[#].first", i, g->group[i].first);
        dpari_fact(f, "group[#].count", i, g->group[i].count);
        dpari_fact_real(f, "group[#].decay", i, g->group[i].decay);
        dpari_fact_real(f, "group[#].rate", i, g->group[i].rate);
    }
}

static DPARI_COLD dpar_status dpari_zero1_judge_groups(const dpari_over *o,
                                                       const dpari_zero1_given *g, dpar_why *why)
{
    int64_t at = 0;
    int32_t i;
    if (g->groups < 0 || (g->groups > 0 && g->group == NULL)) {
        return dpari_wrong(why, "zero1: %d groups; they are NULL: %d", g->groups, g->group == NULL);
    }
    for (i = 0; i < g->groups; i++) {
        const dpar_zero1_group *p = &g->group[i];
        if (p->first < at || p->count < 0 || p->first > o->elements ||
            p->count > o->elements - p->first) {
            return dpari_wrong(
                why,
                "zero1: group %d begins at %ld and has %ld elements: groups ascend, and "
                "there are %ld elements",
                i, p->first, p->count, o->elements);
        }
        if (!(p->decay >= 0.0) || !(p->rate >= 0.0) || !dpari_finite(p->decay) ||
            !dpari_finite(p->rate)) {
            return dpari_optimizer_say(
                why,
                "zero1: group %d has decay %.9g and rate %.9g: each is 0 or more, "
                "and finite",
                i, p->decay, p->rate);
        }
        at = p->first + p->count;
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_groups(dpar_ddp *d, const dpar_zero1_group *group,
                                                  int32_t groups, dpar_why *why)
{
    dpari_over *o = dpari_over_of(d);
    dpari_zero1_given g;
    void *memory = NULL;
    int32_t i;
    dpar_status st;
    if (o == NULL) {
        return dpari_wrong(why, "zero1: it is not of dpar_ddp_over");
    }
    dpari_zero(&g, sizeof g);
    g.group = group;
    g.groups = groups;
    st = dpari_zero1_judge_groups(o, &g, why);
    if (st == DPAR_OK) {
        memory = dpari_made_room(d->c, groups * (int64_t)sizeof *group);
        st = memory != NULL
                 ? st
                 : dpari_say(DPAR_E_MEMORY, why, "zero1: no memory for %d groups", groups);
    }
    st =
        dpari_made_or(dpari_agree_on(d->c, st, "zero1", dpari_zero1_state_groups, &g, why), memory);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_made_give(o->zero1.group);
    o->zero1.group = (dpar_zero1_group *)memory;
    o->zero1.groups = groups;
    for (i = 0; i < groups; i++) {
        o->zero1.group[i] = group[i];
    }
    return DPAR_OK;
}

/* ---- a step -----------------------------------------------------------------------------------
 */

/* What gradients are multiplied by. Waits for a device. */
static dpar_status dpari_zero1_factor(dpari_over *o, double clip, double *factor)
{
    dpar_comm *c = o->d.c;
    dpar_mem_squares s;
    double sum = 0.0;
    dpar_status st = DPAR_OK;
    *factor = 1.0;
    if (clip <= 0.0) {
        return DPAR_OK;
    }
    dpari_zero(&s, sizeof s);
    s.type = o->d.options.type;
    s.in = o->array->data + dpari_over_first(o) * dpar_type_bytes(s.type);
    s.count = o->count[c->rank];
    s.sum = o->zero1.squares;
    *s.sum = 0.0;
    st = s.count > 0 ? dpari_do_squares(c, &s) : st;
    st = st == DPAR_OK ? dpari_do_wait(c) : st;
    if (st == DPAR_OK) {
        const double mine = *s.sum; /* both ends in the host's memory */
        st = dpar_all_reduce(c, &mine, &sum, 1, DPAR_F64, DPAR_SUM, NULL);
    }
    *factor = dpar_optimizer_clip(dpari_finite(sum) ? dpari_elements_sqrt(sum) : sum, clip);
    return st;
}

/* Elements lo .. hi of this rank's share go by a group, or (NULL) by the optimizer alone. */
static dpar_status dpari_zero1_update(dpari_over *o, const dpar_zero1_group *group, int64_t lo,
                                      int64_t hi, unsigned char *params, dpar_mem_optimize *call)
{
    const int64_t first = dpari_over_first(o), in = lo - first;
    const int64_t each = dpar_type_bytes(o->d.options.type);
    const int64_t moment = in * dpar_type_bytes(o->zero1.moment_type);
    dpar_optimizer of = *call->optimizer;
    dpar_mem_optimize now = *call;
    dpar_optimizer_piece p;
    dpari_zero(&p, sizeof p);
    p.weight = params + lo * each;
    p.gradient = o->array->data + lo * each;
    p.m = o->zero1.moments > 0 ? o->zero1.moment[0] + moment : NULL;
    p.v = o->zero1.moments > 1 ? o->zero1.moment[1] + moment : NULL;
    p.weight_type = p.gradient_type = o->d.options.type;
    p.count = hi - lo;
    p.index = (uint64_t)lo;
    if (group != NULL) {
        of.decay = group->decay;
        now.rate *= group->rate > 0.0 ? group->rate : 1.0;
    }
    now.optimizer = &of;
    now.piece = &p;
    return dpari_do_optimize(o->d.c, &now);
}

/* This rank's share, group after group. */
static dpar_status dpari_zero1_update_all(dpari_over *o, unsigned char *params,
                                          dpar_mem_optimize *call)
{
    const int64_t end = dpari_over_first(o) + o->count[o->d.c->rank];
    int64_t lo = dpari_over_first(o), hi;
    int32_t k = 0;
    dpar_status st = DPAR_OK;
    for (; lo < end && st == DPAR_OK; lo = hi) {
        const dpar_zero1_group *g;
        while (k < o->zero1.groups && o->zero1.group[k].first + o->zero1.group[k].count <= lo) {
            k++;
        }
        g = k < o->zero1.groups ? &o->zero1.group[k] : NULL;
        hi = g == NULL ? end : dpari_least(end, g->first > lo ? g->first : g->first + g->count);
        st = dpari_zero1_update(o, g != NULL && g->first <= lo ? g : NULL, lo, hi, params, call);
    }
    return st;
}

/* Appends to the message in why. */
static DPARI_COLD void dpari_zero1_add(dpar_comm *c, const char *by, const char *more)
{
    const dpar_why said = c->why;
    dpar_text t;
    dpar_text_init(&t, c->why.text, sizeof c->why.text);
    dpari_text_print(&t, "%s%s%s", said.text, by, more);
}

/* What is wrong with what a step is given beside the optimizer. */
static dpar_status dpari_zero1_check_step(const dpari_over *o, const void *params, double rate,
                                          double clip, dpar_why *why)
{
    const int64_t apart = (int64_t)((uintptr_t)params - (uintptr_t)o->array->data);
    const int64_t bytes = o->elements * dpar_type_bytes(o->d.options.type);
    if (!dpari_finite(rate) || clip != clip) {
        return dpari_optimizer_say(
            why, "zero1: the rate is %.9g (finite), the clip %.9g (a number)", rate, clip);
    }
    if (bytes > 0 && params == NULL) {
        return dpari_wrong(why, "zero1: params are NULL");
    }
    return apart < bytes && -apart < bytes
               ? dpari_wrong(
                     why,
                     "zero1: params lie where the gradients are: %ld bytes behind their %ld "
                     "bytes' beginning",
                     apart, bytes)
               : DPAR_OK;
}

/* Ends a step that this rank rejects. It takes part in a collective, so that the ranks that call
 * something else notice. If all ranks reject the step, nothing has happened. */
static DPARI_COLD dpar_status dpari_zero1_refuse(dpar_comm *c, dpar_status st, const dpar_why *own)
{
    dpar_why why = *own;
    st = dpari_agree_on(c, st, "zero1 refused", NULL, NULL, &why);
    if (c->status == DPAR_OK) {
        c->why = *own;
    } else {
        (void)dpari_say(st, &why, "%s", c->why.text);
        c->why = *own;
        dpari_zero1_add(c, "; ", why.text);
    }
    return st;
}

/* What all ranks must give a step alike, beside the state's kind. */
static uint64_t dpari_zero1_alike(const dpar_optimizer *p, double rate, double clip)
{
    uint64_t h = dpari_hash_real(dpari_hash_real(0, rate), clip);
    h = dpari_hash(dpari_hash(dpari_hash(h, p->nesterov), p->stochastic), (int64_t)p->seed);
    h = dpari_hash_real(dpari_hash_real(dpari_hash_real(h, p->beta1), p->beta2), p->epsilon);
    return dpari_hash_real(dpari_hash_real(h, p->momentum), p->decay);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_step(dpar_ddp *d, void *params,
                                                const dpar_optimizer *optimizer, double rate,
                                                double clip)
{
    dpari_over *o = dpari_over_of(d);
    dpari_zero1_given g;
    dpar_mem_optimize call;
    dpar_why why;
    dpar_status st;
    if (o == NULL || d->c->status != DPAR_OK) {
        return o == NULL ? DPAR_E_ARG : d->c->status;
    }
    dpari_zero(&g, sizeof g);
    g.of = optimizer;
    g.rate = rate;
    g.clip = clip;
    st = dpari_zero1_check(o, optimizer, &g, &why);
    st = st == DPAR_OK ? dpari_zero1_check_step(o, params, rate, clip, &why) : st;
    if (o->zero1.kind == 0) { /* the first step: all ranks hear */
        st = dpari_zero1_begin(o, st, &g, &why);
        if (st != DPAR_OK) {
            d->c->why = why;
            return st;
        }
    }
    if (st != DPAR_OK) {
        return dpari_zero1_refuse(d->c, st, &why);
    }
    params = o->elements > 0 ? params : o; /* of nothing an address that 0 may be added to */
    st = o->ended ? DPAR_OK : dpari_over_finish(o, 1);
    o->ended = 0;
    dpari_zero(&call, sizeof call);
    call.optimizer = optimizer;
    call.rate = rate;
    st = st == DPAR_OK ? dpari_zero1_factor(o, clip, &call.factor) : st;
    if (st == DPAR_OK) {
        call.step = ++o->zero1.steps;
        st = dpari_zero1_update_all(o, (unsigned char *)params, &call);
    }
    st =
        st == DPAR_OK ? dpari_over_gather(o, params, dpari_zero1_alike(optimizer, rate, clip)) : st;
    if (st == DPAR_E_MISMATCH && d->c->status == st) {
        why = d->c->why;
        (void)dpari_optimizer_say(&d->c->why, "zero1: here the rate is %.9g, the clip %.9g. ", rate,
                                  clip);
        dpari_zero1_add(d->c, "", why.text);
    }
    return st;
}
