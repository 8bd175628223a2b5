/* SPDX-License-Identifier: MIT-0 */
/* ZeRO-1 on the flat array of a ddp. A step ends the pass with a reduce-scatter, updates this
 * rank's share with the optimizer, group after group, and gathers the weights of all ranks.
 *
 * The buckets of a pass are sent in one of two ways (ddp->scatter): each part only to the rank that
 * owns it, or the averages to all ranks. The way must be known before the pass ends, because a rank
 * that reports gradients early sends them before it calls dpar_zero1_step or dpar_ddp_end. It must
 * also be the same on all ranks. Each pass therefore sends in the way in which the previous pass
 * ended. If a pass that was sent only to owners ends with dpar_ddp_end, the averages are gathered.
 * ddp.c implements both ways and this gather.
 *
 * The ranks must use the same optimizer, rate, clip and factor. They compare a hash of these values
 * in the all-reduce of the norm (update.c). */
#include "zero1.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../host/moment_codes.h"
#include "../host/optimizer.h"
#include "../host/optimizer_private.h"
#include "ddp_private.h"
#include "layer_calls.h"
#include "update_private.h"

/* ---- made and freed -------------------------------------------------------------------------- */

/* The values that must be equal on all ranks in dpar_zero1_make. */
typedef struct dpari_zero1_given {
    const dpar_zero1_desc *desc;
    int32_t moments, moment_type;
} dpari_zero1_given;

/* Lists the values that must be equal on all ranks. */
static DPARI_COLD void dpari_zero1_facts(dpari_facts *facts, const void *given)
{
    const dpari_zero1_given *g = (const dpari_zero1_given *)given;
    const dpar_zero1_desc *desc = g->desc;
    int32_t i;
    dpari_update_facts(facts, desc->optimizer, g->moment_type);
    dpari_fact(facts, "the number of moments", 0, g->moments);
    dpari_fact(facts, "steps", 0, desc->steps);
    dpari_fact(facts, "the number of groups", 0, desc->groups);
    for (i = 0; i < desc->groups; i++) {
        dpari_fact(facts, "group[#].first", i, desc->group[i].first);
        dpari_fact(facts, "group[#].count", i, desc->group[i].count);
        dpari_update_facts_group(facts, i, &desc->group[i].numbers);
    }
}

/* Checks that the groups of a descriptor ascend, do not overlap, and have valid numbers. */
static DPARI_COLD dpar_status dpari_zero1_check_groups(const dpar_ddp *ddp,
                                                       const dpar_zero1_desc *desc, dpar_why *why)
{
    dpar_status status;
    int64_t at = 0;
    int32_t i;
    if (desc->groups < 0 || (desc->groups > 0 && desc->group == NULL)) {
        return dpari_wrong(
            why,
            "dpar_zero1_make: groups is %d, but must be 0 or more; above 0, desc.group must not be "
            "NULL",
            desc->groups);
    }
    for (i = 0; i < desc->groups; i++) {
        const dpar_zero1_group *p = &desc->group[i];
        if (p->first < at || p->count < 0 || p->first > ddp->elements ||
            p->count > ddp->elements - p->first) {
            return dpari_wrong(
                why,
                "dpar_zero1_make: group %d begins at element %ld and has %ld elements, but groups "
                "must ascend without overlap within %ld elements",
                i, p->first, p->count, ddp->elements);
        }
        status = dpari_optimizer_check_group(&p->numbers, "dpar_zero1_make", i, why);
        if (status != DPAR_OK) {
            return status;
        }
        at = p->first + p->count;
    }
    return DPAR_OK;
}

/* Checks the ddp and the descriptor. Sets the number and type of the moments in g. */
static DPARI_COLD dpar_status dpari_zero1_check_desc(const dpar_ddp *ddp, dpari_zero1_given *g,
                                                     dpar_why *why)
{
    const dpar_zero1_desc *desc = g->desc;
    const int64_t bytes = ddp->elements * dpar_type_bytes(ddp->desc.type);
    int64_t apart;
    dpar_status status;
    if (ddp->desc.gradients == NULL || ddp->desc.hook != NULL || ddp->desc.sum || ddp->through ||
        ddp->copy != NULL) {
        return dpari_wrong(why, "dpar_zero1_make: the ddp must average one array (desc.gradients), "
                                "without hook, wire_type and sum");
    }
    if (ddp->zero1 != NULL || ddp->under_way) {
        return dpari_wrong(
            why, "dpar_zero1_make: the ddp already has a zero1, or a pass of it is in progress");
    }
    if (desc == NULL || (desc->weights == NULL && bytes > 0)) {
        return dpari_wrong(why, "dpar_zero1_make: the descriptor or its weights are NULL");
    }
    apart = (int64_t)((uintptr_t)desc->weights - (uintptr_t)ddp->buffer);
    if (apart < bytes && -apart < bytes) {
        return dpari_wrong(
            why,
            "dpar_zero1_make: the weights overlap the gradients: they begin %ld bytes "
            "after the beginning of the gradients, which take %ld bytes",
            apart, bytes);
    }
    if (desc->steps < 0 || desc->steps > INT64_MAX / 2) {
        return dpari_wrong(why, "dpar_zero1_make: steps is %ld, but must be 0 to 2^62 - 1",
                           desc->steps);
    }
    status =
        dpar_optimizer_check(desc->optimizer, ddp->desc.type, &g->moments, &g->moment_type, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (ddp->comm->mem != NULL && g->moment_type == DPAR_F8) {
        return dpari_wrong(
            why, "dpar_zero1_make: moment_type is f8, which needs the memory of the host");
    }
    return dpari_zero1_check_groups(ddp, desc, why);
}

/* Frees the memory of a zero1. */
static DPARI_COLD void dpari_zero1_release(dpar_zero1 *zero1)
{
    dpar_comm *comm = zero1->ddp->comm;
    if (zero1->moment[0] != NULL) {
        dpar_comm_release(comm, zero1->moment[0]);
    }
    dpari_object_release(zero1);
}

/* Allocates a zero1 and copies the values of the descriptor into it. Returns NULL if there is no
 * memory. */
static DPARI_COLD dpar_zero1 *dpari_zero1_create(dpar_ddp *ddp, const dpari_zero1_given *g)
{
    const dpar_zero1_desc *desc = g->desc;
    const int64_t groups = desc->groups * (int64_t)sizeof *desc->group;
    const int32_t ranks = ddp->comm->size;
    unsigned char *at;
    dpar_zero1 *zero1;
    int32_t i;
    at = (unsigned char *)dpari_object_alloc(ddp->comm, (int64_t)sizeof *zero1 + groups +
                                                            ranks * (int64_t)sizeof *zero1->count);
    if (at == NULL) {
        return NULL;
    }
    zero1 = (dpar_zero1 *)(void *)at;
    at += sizeof *zero1;
    zero1->group = (dpar_zero1_group *)(void *)at;
    zero1->count = (int64_t *)(void *)(at + groups);
    zero1->ddp = ddp;
    zero1->weights = (unsigned char *)desc->weights;
    if (zero1->weights == NULL) {
        /* There are no elements. Any address does to which C allows 0 to be added. */
        zero1->weights = at;
    }
    zero1->optimizer = desc->optimizer;
    zero1->kind = desc->optimizer->kind;
    zero1->moments = g->moments;
    zero1->moment_type = g->moment_type;
    zero1->steps = desc->steps;
    zero1->groups = desc->groups;
    for (i = 0; i < desc->groups; i++) {
        zero1->group[i] = desc->group[i];
    }
    zero1->share = dpari_moment_whole(zero1->moments > 0 ? zero1->moment_type : DPAR_TYPE_NONE,
                                      dpari_ceil_div(ddp->elements, ranks));
    for (i = 0; i < ranks; i++) {
        zero1->count[i] =
            dpari_least(zero1->share, ddp->elements - dpari_least(ddp->elements, zero1->share * i));
    }
    return zero1;
}

/* Allocates the moments, which dpar_comm_alloc sets to 0. */
static DPARI_COLD dpar_status dpari_zero1_allocate(dpar_zero1 *zero1)
{
    dpar_comm *comm = zero1->ddp->comm;
    const int64_t each = dpari_moment_bytes(zero1->moment_type, zero1->count[comm->rank]);
    void *memory = NULL;
    dpar_status status = dpari_ddp_pin(zero1->ddp);
    if (status != DPAR_OK || zero1->moments == 0) {
        return status;
    }
    status = dpar_comm_alloc(comm, dpari_most(64, each * zero1->moments), &memory);
    zero1->moment[0] = (unsigned char *)memory;
    if (status == DPAR_OK && zero1->moments > 1) {
        zero1->moment[1] = zero1->moment[0] + each;
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_make(dpar_ddp *ddp, const dpar_zero1_desc *desc,
                                                dpar_zero1 **zero1, dpar_why *why)
{
    dpari_zero1_given g;
    dpar_zero1 *z = NULL;
    dpar_status status;
    if (ddp == NULL) {
        return dpari_wrong(why, "dpar_zero1_make: the ddp is NULL");
    }
    why = dpari_why_of(ddp->comm, why);
    dpari_zero(&g, sizeof g);
    g.desc = desc;
    status = zero1 == NULL ? dpari_wrong(why, "dpar_zero1_make: the result is NULL")
                           : dpari_zero1_check_desc(ddp, &g, why);
    if (status == DPAR_OK) {
        z = dpari_zero1_create(ddp, &g);
        status = z != NULL ? dpari_zero1_allocate(z) : DPAR_E_MEMORY;
        if (status != DPAR_OK) {
            (void)dpari_say(status, why,
                            "dpar_zero1_make: no memory for %d moments of %ld elements per rank",
                            g.moments, dpari_ceil_div(ddp->elements, ddp->comm->size));
        }
    }
    status = dpari_agree_on(ddp->comm, status, "zero1", dpari_zero1_facts, &g, why);
    if (status != DPAR_OK) {
        if (z != NULL) {
            dpari_zero1_release(z);
        }
        return status;
    }
    ddp->zero1 = z;
    ddp->scatter = 1;
    ddp->ended = 0;
    *zero1 = z;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_free(dpar_zero1 *zero1)
{
    dpar_ddp *ddp;
    if (zero1 == NULL) {
        return DPAR_OK;
    }
    ddp = zero1->ddp;
    if (ddp->under_way && ddp->comm->status == DPAR_OK) {
        return dpari_comm_wrong(ddp->comm, "dpar_zero1_free: a pass is in progress (dpar_ddp_end)");
    }
    if (ddp->under_way) { /* the communicator broke: its operations still read zero1->count */
        (void)dpari_ddp_finish(ddp, 0);
    }
    ddp->zero1 = NULL;
    ddp->scatter = 0;
    dpari_zero1_release(zero1);
    return DPAR_OK;
}

DPAR_API DPARI_COLD void *dpar_zero1_state(dpar_zero1 *zero1, int32_t array, int64_t *first,
                                           int64_t *count, int32_t *type)
{
    if (zero1 == NULL) {
        return NULL;
    }
    if (first != NULL) {
        *first = dpari_ddp_first(zero1);
    }
    if (count != NULL) {
        *count = zero1->count[zero1->ddp->comm->rank];
    }
    if (array < 0 || array >= zero1->moments) {
        return NULL;
    }
    if (type != NULL) {
        *type = zero1->moment_type;
    }
    if (zero1->moment_type == DPAR_F8) { /* bytes of the records */
        if (first != NULL) {
            *first = dpari_moment_bytes(DPAR_F8, *first);
        }
        if (count != NULL) {
            *count = dpari_moment_bytes(DPAR_F8, *count);
        }
    }
    return zero1->moment[array];
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* Updates elements lo .. hi - 1 of the flat array, which are in this rank's share, with the numbers
 * of a group. If group is NULL, uses those of the optimizer and the step. */
static dpar_status dpari_zero1_update_range(dpar_zero1 *zero1, const dpar_zero1_group *group,
                                            int64_t lo, int64_t hi, const dpar_mem_optimize *call)
{
    const int64_t first = dpari_ddp_first(zero1), in_share = lo - first;
    const int64_t each = dpar_type_bytes(zero1->ddp->desc.type);
    const int64_t moment = dpari_moment_at(zero1->moment_type, 0, in_share);
    dpar_optimizer optimizer = *call->optimizer;
    dpar_mem_optimize update = *call;
    dpar_optimizer_piece p;
    dpari_zero(&p, sizeof p);
    p.weight = zero1->weights + lo * each;
    p.gradient = zero1->ddp->buffer + lo * each;
    p.m = zero1->moments > 0 ? zero1->moment[0] + moment : NULL;
    p.v = zero1->moments > 1 ? zero1->moment[1] + moment : NULL;
    p.weight_type = p.gradient_type = zero1->ddp->desc.type;
    p.count = hi - lo;
    p.index = (uint64_t)lo;
    if (group != NULL) {
        dpari_optimizer_use_group(&group->numbers, &optimizer, &update.rate);
    }
    update.optimizer = &optimizer;
    update.piece = &p;
    return dpari_do_optimize(zero1->ddp->comm, &update);
}

/* Updates this rank's share, one piece per group and one per gap between groups. */
static dpar_status dpari_zero1_update_all(dpar_zero1 *zero1, const dpar_mem_optimize *call)
{
    const int64_t end = dpari_ddp_first(zero1) + zero1->count[zero1->ddp->comm->rank];
    int64_t lo = dpari_ddp_first(zero1), hi;
    int32_t k = 0;
    dpar_status st = DPAR_OK;
    for (; lo < end && st == DPAR_OK; lo = hi) {
        const dpar_zero1_group *g;
        while (k < zero1->groups && zero1->group[k].first + zero1->group[k].count <= lo) {
            k++;
        }
        g = k < zero1->groups ? &zero1->group[k] : NULL;
        hi = end;
        if (g != NULL && g->first > lo) { /* elements before the next group */
            hi = dpari_least(end, g->first);
            g = NULL;
        } else if (g != NULL) {
            hi = dpari_least(end, g->first + g->count);
        }
        st = dpari_zero1_update_range(zero1, g, lo, hi, call);
    }
    return st;
}

/* Checks the arguments of a step, and that the optimizer still has the kind and the moments for
 * which the state was allocated. */
static dpar_status dpari_zero1_check(const dpar_zero1 *zero1, const dpar_update *update,
                                     const char *name, dpar_why *why)
{
    const dpar_optimizer *optimizer = zero1->optimizer;
    int32_t moments = 0, moment_type = 0;
    dpar_status status =
        dpar_optimizer_check(optimizer, zero1->ddp->desc.type, &moments, &moment_type, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (zero1->kind != optimizer->kind || zero1->moments != moments ||
        zero1->moment_type != moment_type) {
        return dpari_wrong(
            why,
            "%s: the optimizer has kind %d with %d moments, the state is for kind %d with %d, or "
            "of another type",
            name, optimizer->kind, moments, zero1->kind, zero1->moments);
    }
    if (zero1->ddp->under_way && !zero1->ddp->last) {
        return dpari_wrong(why, "%s: the pass in progress was begun with last = 0", name);
    }
    return dpari_update_check(update, name, why);
}

/* Returns a hash of the optimizer's numbers, which must be equal on all ranks in a step. The kind
 * and the moment type need no comparison: all ranks had the same ones in dpar_zero1_make, and
 * dpari_zero1_check rejects a change. */
static uint64_t dpari_zero1_hash(const dpar_optimizer *p)
{
    uint64_t h = dpari_hash(dpari_hash(0, p->nesterov), p->stochastic);
    h = dpari_hash_real(dpari_hash(h, (int64_t)p->seed), p->beta1);
    h = dpari_hash_real(dpari_hash_real(h, p->beta2), p->epsilon);
    return dpari_hash_real(dpari_hash_real(h, p->momentum), p->decay);
}

/* Ends the pass, unless its averages are known, and computes the norm. */
static DPARI_COLD dpar_status dpari_zero1_end(dpar_zero1 *zero1, dpar_update *update,
                                              const char *name)
{
    dpar_ddp *ddp;
    dpar_why why;
    double squares = 0.0;
    dpar_status status;
    if (zero1 == NULL) {
        return DPAR_E_ARG;
    }
    ddp = zero1->ddp;
    if (ddp->comm->status != DPAR_OK) {
        return ddp->comm->status;
    }
    status = dpari_zero1_check(zero1, update, name, &why);
    if (status != DPAR_OK) {
        return dpari_update_refuse(ddp->comm, NULL, update, status, &why);
    }
    if (!ddp->ended) {
        status = dpari_ddp_finish(ddp, 1);
        if (status != DPAR_OK) {
            return status;
        }
    }
    ddp->ended = 0;
    status = dpari_ddp_squares(ddp, update->duplicate, &squares);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_update_norm(ddp->comm, NULL, update, squares, dpari_zero1_hash(zero1->optimizer),
                             DPARI_ZERO1_ALIKE);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_norm(dpar_zero1 *zero1, dpar_update *update)
{
    const dpar_status status = dpari_zero1_end(zero1, update, "dpar_zero1_norm");
    if (status == DPAR_OK) {
        zero1->ddp->ended = 1;
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_gather(dpar_zero1 *zero1)
{
    if (zero1 == NULL) {
        return DPAR_E_ARG;
    }
    if (zero1->ddp->under_way) {
        return dpari_comm_wrong(zero1->ddp->comm,
                                "dpar_zero1_gather: a pass is in progress (dpar_zero1_norm)");
    }
    zero1->ddp->ended = 0;
    zero1->steps++;
    return dpari_ddp_gather(zero1, zero1->weights, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_update(dpar_zero1 *zero1, dpar_update *update)
{
    dpar_mem_optimize call;
    dpar_status status = dpari_zero1_end(zero1, update, "dpar_zero1_update");
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&call, sizeof call);
    call.optimizer = zero1->optimizer;
    call.step = zero1->steps + 1;
    call.rate = update->rate;
    call.factor = update->scale;
    status = dpari_zero1_update_all(zero1, &call);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_zero1_gather(zero1);
}

DPAR_API DPARI_COLD dpar_status dpar_zero1_step(dpar_zero1 *zero1, double rate, double clip)
{
    dpar_update update;
    dpari_zero(&update, sizeof update);
    update.rate = rate;
    update.clip = clip;
    return dpar_zero1_update(zero1, &update);
}
