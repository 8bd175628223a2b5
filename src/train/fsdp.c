/* SPDX-License-Identifier: MIT-0 */
/* ZeRO-1, 2 and 3. The gathered weights of a unit are in a slot, and its gradients are computed in
 * a bucket. With ZeRO-1 and 2 each unit keeps the same slot. With ZeRO-3 there is a pool of
 * prefetch + units_in_use slots: dpar_fsdp_unshard gathers the unit and the next ones in the same
 * direction, into free slots or into the slot whose unit is needed last. Buckets form such a pool
 * if gradients are shards; otherwise each unit keeps the same bucket.
 *
 * dpar_fsdp_ready posts the reduce-scatter of a bucket. The bucket is free again once its result
 * has been added to the rank's shard. Every collective has the unit as its tag, so that ranks that
 * visit units in different orders get DPAR_E_MISMATCH instead of mixed weights.
 *
 * Zeroing is lazy: dpar_fsdp_zero only marks the gradients of each unit as 0 (`fresh`). The next
 * function that needs them overwrites or zeroes their memory. */
#include "fsdp.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/memory_calls.h"
#include "../comm/object_memory.h"
#include "../host/elements.h"
#include "../host/optimizer_private.h"
#include "../index/flat.h"
#include "../index/index_private.h"
#include "../index/layout.h"
#include "../index/redistribute.h"
#include "layer_calls.h"
#include "update_private.h"

/* A unit: parameters that are gathered and reduced together. */
typedef struct dpari_fsdp_unit {
    dpari_flat flat;
    int64_t shard_at; /* first element of its shard in arrays that hold this rank's shards */
    /* the same in arrays that hold shards of units that are not frozen: gradients and moments */
    int64_t trained_at;
    /* index of its first element among the elements of all units without padding, so that random
     * numbers do not depend on the number of ranks */
    uint64_t key;
    int32_t first, last; /* its parameters are first <= i < last */
    int32_t slot;        /* slot that holds or receives its weights, or -1 */
    int32_t bucket;      /* bucket in which its gradients are computed or reduced, or -1 */
    int32_t used;        /* 1 between unshard and reshard */
    int32_t state;       /* of its gradients in this pass: DPARI_FSDP_NONE, ... */
    int32_t fresh;       /* 1 if its gradients count as 0, whatever the memory contains */
    int32_t adds;        /* 1 if backward of this pass adds to the contents of the bucket */
    int32_t frozen;      /* 1 if it has neither gradients nor moments (desc.frozen) */
    dpar_work across;    /* the reduction of its shard over replicas */
} dpari_fsdp_unit;

/* States of a unit's gradients in a pass: no backward yet, being computed, ready. */
enum { DPARI_FSDP_NONE, DPARI_FSDP_OPEN, DPARI_FSDP_DONE };

/* The largest number of elements, so that sizes of several arrays in bytes stay below 2^63. */
#define DPARI_FSDP_MOST (INT64_C(1) << 50)

/* Memory for the weights (a slot) or the gradients (a bucket) of a unit. */
typedef struct dpari_fsdp_slot {
    int32_t unit; /* the unit in it, or -1 if it is free */
    /* bucket: 0 if no reduction was posted; otherwise larger than in buckets posted earlier */
    int32_t sent;
    /* bucket: 1 if the reduction writes directly into the shard, so that nothing is added */
    int32_t straight;
    dpar_work work; /* the all-gather or reduce-scatter of the unit */
} dpari_fsdp_slot;

struct dpar_fsdp {
    dpar_comm *shard, *replicas;    /* replicas: NULL if there are none */
    dpar_fsdp_desc desc;            /* with the defaults filled in */
    dpari_fsdp_unit *unit;          /* [units] */
    dpari_fsdp_slot *slot, *bucket; /* [slots], [buckets] */
    int64_t *count;                 /* [params] elements of each parameter */
    int64_t *start;                 /* [params] first element of each parameter in its unit */
    int32_t *home;                  /* [params] the unit of each parameter */
    int32_t *group_of;              /* [params] the group of each parameter, or -1 */
    dpar_optimizer_group *group;    /* [desc.groups] copy of desc.group */
    unsigned char *memory;          /* the registered memory, which contains the arrays below */
    unsigned char *weights;         /* of compute_type: all whole units, or the pool of slots */
    unsigned char *sums;            /* shards of reduced gradients; unused if these stay whole */
    unsigned char *master;          /* of desc.type: shards of the master weights */
    unsigned char *moment[2];       /* shards of the optimizer's moments */
    unsigned char *grads;           /* of gradient_type: all whole gradients, or the buckets */
    int64_t largest;                /* elements of the largest unit, including padding */
    int64_t largest_trained;        /* of the largest unit that is not frozen */
    int64_t shard_sum;              /* elements of all shards of this rank */
    int64_t trained_sum;            /* elements of its shards of units that are not frozen */
    int32_t units, params;
    int32_t full;         /* number of units that have elements */
    int32_t full_trained; /* number of these that are not frozen */
    int32_t slots, buckets;
    int64_t steps;      /* steps of the optimizer so far */
    double squares;     /* sum of the squares of this rank's gradients */
    int32_t pinned;     /* 1 if a device can write `squares` */
    int32_t last;       /* 1 in the last micro-batch of a step */
    int32_t under_way;  /* 1 during a pass */
    dpar_status status; /* first error of this pass, or DPAR_OK */
};

/* ---- the descriptor -------------------------------------------------------------------------- */

/* True if weights stay whole, so that each unit always has the slot of the same number. */
static int dpari_fsdp_weights_whole(const dpar_fsdp_desc *desc)
{
    return desc->zero < 3;
}

/* True if gradients stay whole until the last micro-batch, so that each unit always has the bucket
 * of the same number. */
static int dpari_fsdp_gradients_whole(const dpar_fsdp_desc *desc)
{
    return desc->zero < 2 || desc->reduce_last;
}

/* True if the masters are a part of the whole weights and need no separate array. */
static int dpari_fsdp_inside(const dpar_fsdp_desc *desc)
{
    return dpari_fsdp_weights_whole(desc) && desc->type == desc->compute_type;
}

/* Returns the type of the optimizer's moments. */
static int32_t dpari_fsdp_moment_type(const dpar_fsdp_desc *desc)
{
    return dpari_optimizer_moment_type(&desc->optimizer, desc->type);
}

/* Fills in the defaults of a descriptor. */
static dpar_fsdp_desc dpari_fsdp_complete(const dpar_fsdp_desc *desc)
{
    dpar_fsdp_desc full = *desc;
    if (full.zero == 0) {
        full.zero = 3;
    }
    if (full.type == DPAR_TYPE_NONE) {
        full.type = DPAR_F32;
    }
    if (full.compute_type == DPAR_TYPE_NONE) {
        full.compute_type = full.type;
    }
    if (full.gradient_type == DPAR_TYPE_NONE) {
        full.gradient_type = full.compute_type;
    }
    return full;
}

/* Returns the number of parameters of unit u. */
static int32_t dpari_fsdp_params(const dpar_fsdp_desc *desc, int32_t u)
{
    return desc->params_per_unit != NULL ? desc->params_per_unit[u] : 1;
}

/* Returns 1 if unit u has neither gradients nor moments. */
static int32_t dpari_fsdp_is_frozen(const dpar_fsdp_desc *desc, int32_t u)
{
    return desc->frozen != NULL ? desc->frozen[u] : 0;
}

static dpar_status dpari_fsdp_check_types(const dpar_fsdp_desc *desc, dpar_why *why)
{
    if (!dpari_is_float(desc->type)) {
        return dpari_wrong(why, "fsdp: type is %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(desc->type));
    }
    if (desc->compute_type != desc->type && !dpari_narrows(desc->type, desc->compute_type)) {
        return dpari_wrong(why,
                           "fsdp: compute_type is %s, but must be `type`, or f32 if that is f64, "
                           "or bf16 or f16 if that is f32",
                           dpar_type_name(desc->compute_type));
    }
    if (!dpari_is_float(desc->gradient_type) ||
        (desc->gradient_type != desc->compute_type &&
         dpar_type_bytes(desc->gradient_type) <= dpar_type_bytes(desc->compute_type))) {
        return dpari_wrong(why, "fsdp: gradient_type is %s, but must be compute_type or wider",
                           dpar_type_name(desc->gradient_type));
    }
    return DPAR_OK;
}

/* Checks a descriptor whose defaults are filled in, except for the lists. */
static dpar_status dpari_fsdp_check_desc(int32_t shards, const dpar_fsdp_desc *desc, dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (shards < 1) {
        return dpari_wrong(
            why, "fsdp: %d ranks share a copy of the model, but need to be 1 or more", shards);
    }
    if (desc->units < 0) {
        return dpari_wrong(why, "fsdp: units is %d, but must be 0 or more", desc->units);
    }
    if (desc->units > 0 && desc->count == NULL) {
        return dpari_wrong(why, "fsdp: count is NULL, but there are %d units", desc->units);
    }
    if (desc->zero < 1 || desc->zero > 3) {
        return dpari_wrong(why, "fsdp: zero is %d, but must be 1, 2 or 3, or 0 for 3", desc->zero);
    }
    if (!dpari_is_flag(desc->reduce_last) || !dpari_is_flag(desc->sum) ||
        !dpari_is_flag(desc->overwrite_gradients)) {
        return dpari_wrong(why,
                           "fsdp: reduce_last is %d, sum %d and overwrite_gradients %d, but each "
                           "must be 0 or 1",
                           desc->reduce_last, desc->sum, desc->overwrite_gradients);
    }
    if (desc->prefetch < 0 || desc->gradient_buffers < 0 || desc->align < 0 ||
        desc->units_in_use < 0) {
        return dpari_wrong(
            why,
            "fsdp: prefetch is %d, gradient_buffers %d, align %ld and units_in_use %d, but none "
            "may be negative",
            desc->prefetch, desc->gradient_buffers, desc->align, desc->units_in_use);
    }
    if (desc->gradient_buffers > 0 && desc->gradient_buffers < desc->units_in_use) {
        return dpari_say(DPAR_E_ROOM, why,
                         "fsdp: units_in_use is %d, but gradient_buffers holds the gradients of "
                         "only %d units",
                         desc->units_in_use, desc->gradient_buffers);
    }
    if (desc->groups < 0 || (desc->groups > 0 && (desc->group == NULL || desc->group_of == NULL))) {
        return dpari_wrong(why,
                           "fsdp: groups is %d, but must be 0 or more; above 0, desc.group and "
                           "desc.group_of must not be NULL",
                           desc->groups);
    }
    for (i = 0; i < desc->groups; i++) {
        st = dpari_optimizer_check_group(&desc->group[i], "fsdp", i, why);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_fsdp_check_types(desc, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_optimizer_check(&desc->optimizer, desc->type, NULL, NULL, why);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Places the arrays of an fsdp after its struct in memory, and sets *bytes to the total size. If
 * memory is NULL, only computes the size. */
static void dpari_fsdp_place(dpar_fsdp *fsdp, void *memory, int64_t *bytes)
{
    dpari_room r = dpari_room_of(memory);
    (void)dpari_room_take(&r, 1, sizeof *fsdp);
    fsdp->unit = (dpari_fsdp_unit *)dpari_room_take(&r, fsdp->units, sizeof *fsdp->unit);
    fsdp->slot = (dpari_fsdp_slot *)dpari_room_take(&r, fsdp->slots, sizeof *fsdp->slot);
    fsdp->bucket = (dpari_fsdp_slot *)dpari_room_take(&r, fsdp->buckets, sizeof *fsdp->bucket);
    fsdp->count = (int64_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->count);
    fsdp->start = (int64_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->start);
    fsdp->home = (int32_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->home);
    if (fsdp->desc.groups > 0) {
        fsdp->group_of = (int32_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->group_of);
        fsdp->group =
            (dpar_optimizer_group *)dpari_room_take(&r, fsdp->desc.groups, sizeof *fsdp->group);
    }
    *bytes = r.used;
}

/* Computes the elements of a unit, in which parameters follow each other at multiples of
 * `align`. */
static dpar_status dpari_fsdp_total(int32_t u, int32_t params, const int64_t *count, int64_t align,
                                    int64_t *total, dpar_why *why)
{
    int32_t i;
    *total = 0;
    for (i = 0; i < params; i++) {
        const int64_t at = *total + (align - *total % align) % align;
        if (count[i] < 0) {
            return dpari_wrong(
                why, "fsdp: parameter %d of unit %d has %ld elements, but must have 0 or more", i,
                u, count[i]);
        }
        if (count[i] > (INT64_C(1) << 48) || at > (INT64_C(1) << 48)) {
            return dpari_say(DPAR_E_RANGE, why, "fsdp: unit %d has more than 2^48 elements", u);
        }
        *total = at + count[i];
    }
    return DPAR_OK;
}

/* Computes the number of slots and of buckets. */
static void dpari_fsdp_count_slots(dpar_fsdp *fsdp)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t in_use = dpari_most(1, desc->units_in_use);
    fsdp->slots = fsdp->units;
    fsdp->buckets = fsdp->units;
    if (!dpari_fsdp_weights_whole(desc)) {
        fsdp->slots = (int32_t)dpari_least(fsdp->full, desc->prefetch + in_use);
    }
    if (!dpari_fsdp_gradients_whole(desc)) {
        fsdp->buckets =
            (int32_t)dpari_least(fsdp->full_trained, dpari_most(in_use, desc->gradient_buffers));
    }
}

/* Counts the parameters, elements and slots of a descriptor, and stores the numbers in `fsdp`. */
static dpar_status dpari_fsdp_count(dpar_fsdp *fsdp, int32_t shards, const dpar_fsdp_desc *desc,
                                    dpar_why *why)
{
    const int64_t align = dpari_most(1, desc->align);
    int64_t params = 0, total, pool = 1, whole = 0;
    int32_t u, i;
    dpari_zero(fsdp, sizeof *fsdp);
    fsdp->desc = *desc;
    fsdp->units = desc->units;
    for (u = 0; u < fsdp->units; u++) {
        const int32_t here = dpari_fsdp_params(desc, u), frozen = dpari_fsdp_is_frozen(desc, u);
        dpar_status st;
        if (!dpari_is_flag(frozen)) {
            return dpari_wrong(why, "fsdp: frozen[%d] is %d, but must be 0 or 1", u, frozen);
        }
        if (here < 0 || align > (INT64_C(1) << 40)) {
            return dpari_wrong(
                why,
                "fsdp: unit %d has %d parameters and align is %ld, but a unit must have 0 or more, "
                "and align must be at most 2^40",
                u, here, align);
        }
        st = dpari_fsdp_total(u, here, desc->count + params, align, &total, why);
        if (st != DPAR_OK) {
            return st;
        }
        params += here;
        total = dpari_ceil_div(total, shards);
        fsdp->shard_sum += total;
        whole += total * shards;
        fsdp->largest = dpari_most(fsdp->largest, total * shards);
        fsdp->full += total > 0;
        if (!frozen) {
            fsdp->trained_sum += total;
            fsdp->largest_trained = dpari_most(fsdp->largest_trained, total * shards);
            fsdp->full_trained += total > 0;
        }
        if (params > INT32_MAX || whole > DPARI_FSDP_MOST) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "fsdp: the units up to %d have %ld parameters and %ld elements, but may have at "
                "most 2^31 - 1 and 2^50",
                u, params, whole);
        }
    }
    for (i = 0; i < params && desc->groups > 0; i++) {
        if (desc->group_of[i] < -1 || desc->group_of[i] >= desc->groups) {
            return dpari_wrong(
                why, "fsdp: group_of[%d] is %d, but must be one of the %d groups, or -1 for none",
                i, desc->group_of[i], desc->groups);
        }
    }
    fsdp->params = (int32_t)params;
    dpari_fsdp_count_slots(fsdp);
    if (!dpari_fsdp_weights_whole(desc)) {
        pool = dpari_most(pool, fsdp->slots);
    }
    if (!dpari_fsdp_gradients_whole(desc)) {
        pool = dpari_most(pool, fsdp->buckets);
    }
    if (fsdp->largest > DPARI_FSDP_MOST / pool) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "fsdp: %ld units of up to %ld elements are in memory at once, but together they may "
            "have at most 2^50 elements",
            pool, fsdp->largest);
    }
    return DPAR_OK;
}

static void dpari_fsdp_sizes_of(dpar_fsdp *fsdp, int32_t shards, dpar_fsdp_sizes *s)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t compute = dpar_type_bytes(desc->compute_type);
    const int64_t gradient = dpar_type_bytes(desc->gradient_type);
    dpari_zero(s, sizeof *s);
    dpari_fsdp_place(fsdp, NULL, &s->plan);
    if (dpari_fsdp_weights_whole(desc)) {
        s->weights = fsdp->shard_sum * shards * compute;
    } else {
        s->gathered = fsdp->slots * fsdp->largest * compute;
    }
    if (dpari_fsdp_gradients_whole(desc)) {
        s->gradients = fsdp->trained_sum * shards * gradient;
    } else {
        s->gradients = fsdp->trained_sum * dpar_type_bytes(dpari_wide_type(desc->type));
        s->buckets = fsdp->buckets * fsdp->largest_trained * gradient;
    }
    if (!dpari_fsdp_inside(desc)) {
        s->master = fsdp->shard_sum * dpar_type_bytes(desc->type);
    }
    s->moments = fsdp->trained_sum * dpar_type_bytes(dpari_fsdp_moment_type(desc)) *
                 dpari_optimizer_moments(&desc->optimizer);
    s->registered = dpari_room_up(s->weights) + dpari_room_up(s->gathered) +
                    dpari_room_up(s->gradients) + dpari_room_up(s->buckets) +
                    dpari_room_up(s->master) + dpari_room_up(s->moments);
}

/* Checks a descriptor, and computes the numbers in `fsdp` and the sizes. */
static dpar_status dpari_fsdp_plan(dpar_fsdp *fsdp, int32_t shards, const dpar_fsdp_desc *desc,
                                   dpar_fsdp_sizes *sizes, dpar_why *why)
{
    dpar_fsdp_desc full;
    dpar_status st;
    if (desc == NULL) {
        return dpari_wrong(why, "fsdp: the descriptor is NULL");
    }
    full = dpari_fsdp_complete(desc);
    st = dpari_fsdp_check_desc(shards, &full, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_fsdp_count(fsdp, shards, &full, why);
    if (st == DPAR_OK) {
        dpari_fsdp_sizes_of(fsdp, shards, sizes);
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_sizes_init(dpar_fsdp_sizes *sizes, int32_t shards,
                                                     const dpar_fsdp_desc *desc, dpar_why *why)
{
    dpar_fsdp d;
    if (sizes == NULL) {
        return dpari_wrong(why, "dpar_fsdp_sizes_init: sizes is NULL");
    }
    return dpari_fsdp_plan(&d, shards, desc, sizes, why);
}

/* ---- make and free --------------------------------------------------------------------------- */

/* The values that must be equal on all ranks in dpar_fsdp_make or dpar_fsdp_load. */
typedef struct dpari_fsdp_given {
    /* the communicator of the shards while values are compared across replicas, otherwise NULL */
    const dpar_comm *shard;
    const dpar_fsdp *fsdp;
    int32_t replicas; /* 1 if there are replicas */
    int32_t ranks;    /* argument of dpar_fsdp_load */
    int64_t steps;    /* argument of dpar_fsdp_load */
} dpari_fsdp_given;

/* Lists the position of the rank. Across replicas, ranks must have the same shard of the same
 * number of shards; within a copy of the model, all or none must have replicas. */
static DPARI_COLD void dpari_fsdp_facts_place(dpari_facts *facts, const dpari_fsdp_given *g)
{
    if (g->shard != NULL) {
        facts->of = "across replicas: ";
        dpari_fact(facts, "the number of shards", 0, g->shard->size);
        dpari_fact(facts, "the rank in the shards' communicator", 0, g->shard->rank);
    } else {
        dpari_fact(facts, "replicas != NULL", 0, g->replicas);
    }
}

/* Lists the values that must be equal on all ranks in dpar_fsdp_make. */
static DPARI_COLD void dpari_fsdp_facts(dpari_facts *facts, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    const dpar_fsdp_desc *desc = &g->fsdp->desc;
    const dpar_optimizer *m = &desc->optimizer;
    int32_t i;
    dpari_fsdp_facts_place(facts, g);
    dpari_fact(facts, "the number of units", 0, g->fsdp->units);
    dpari_fact(facts, "zero", 0, desc->zero);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact_type(facts, "compute_type", 0, desc->compute_type);
    dpari_fact_type(facts, "gradient_type", 0, desc->gradient_type);
    dpari_fact(facts, "prefetch", 0, desc->prefetch);
    dpari_fact(facts, "gradient_buffers", 0, dpari_most(1, desc->gradient_buffers));
    dpari_fact(facts, "units_in_use", 0, dpari_most(1, desc->units_in_use));
    dpari_fact(facts, "reduce_last", 0, desc->reduce_last);
    dpari_fact(facts, "sum", 0, desc->sum);
    dpari_fact(facts, "overwrite_gradients", 0, desc->overwrite_gradients);
    dpari_fact(facts, "align", 0, dpari_most(1, desc->align));
    dpari_fact(facts, "optimizer.kind", 0, m->kind);
    dpari_fact(facts, "optimizer.nesterov", 0, m->nesterov);
    dpari_fact(facts, "optimizer.stochastic", 0, m->stochastic);
    dpari_fact_type(facts, "optimizer.moment_type", 0, dpari_fsdp_moment_type(desc));
    dpari_fact_hash(facts, "optimizer.seed", 0, m->seed);
    dpari_fact_real(facts, "optimizer.beta1", 0, m->beta1);
    dpari_fact_real(facts, "optimizer.beta2", 0, m->beta2);
    dpari_fact_real(facts, "optimizer.epsilon", 0, m->epsilon);
    dpari_fact_real(facts, "optimizer.momentum", 0, m->momentum);
    dpari_fact_real(facts, "optimizer.decay", 0, m->decay);
    for (i = 0; i < g->fsdp->units; i++) {
        dpari_fact(facts, "params_per_unit[#]", i, dpari_fsdp_params(desc, i));
        dpari_fact(facts, "frozen[#]", i, dpari_fsdp_is_frozen(desc, i));
    }
    dpari_fact(facts, "the number of groups", 0, desc->groups);
    for (i = 0; i < desc->groups; i++) {
        dpari_fact_real(facts, "group[#].decay", i, desc->group[i].decay);
        dpari_fact_real(facts, "group[#].rate", i, desc->group[i].rate);
        dpari_fact_real(facts, "group[#].beta1", i, desc->group[i].beta1);
        dpari_fact_real(facts, "group[#].beta2", i, desc->group[i].beta2);
    }
    for (i = 0; i < g->fsdp->params; i++) {
        dpari_fact(facts, "count[#]", i, desc->count[i]);
        if (desc->groups > 0) {
            dpari_fact(facts, "group_of[#]", i, desc->group_of[i]);
        }
    }
}

/* Lists the values that must be equal on all ranks in dpar_fsdp_load. */
static DPARI_COLD void dpari_fsdp_facts_load(dpari_facts *facts, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    dpari_fsdp_facts_place(facts, g);
    dpari_fact(facts, "the number of ranks that saved", 0, g->ranks);
    dpari_fact(facts, "the number of steps", 0, g->steps);
}

/* Computes where each unit and parameter is, and empties slots and buckets. */
static dpar_status dpari_fsdp_fill_in(dpar_fsdp *fsdp, dpar_why *why)
{
    const int64_t *count = fsdp->desc.count;
    int64_t shard_at = 0, trained_at = 0;
    uint64_t key = 0;
    int32_t u, i, first = 0;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        dpar_status st;
        dpari_zero(unit, sizeof *unit);
        unit->first = first;
        unit->last = first + dpari_fsdp_params(&fsdp->desc, u);
        st = dpari_flat_init(&unit->flat, unit->last - first, count + first,
                             dpari_most(1, fsdp->desc.align), fsdp->shard->size,
                             fsdp->start + first, why);
        if (st != DPAR_OK) {
            return st;
        }
        for (i = first; i < unit->last; i++) {
            fsdp->count[i] = count[i];
            fsdp->home[i] = u;
            if (fsdp->desc.groups > 0) {
                fsdp->group_of[i] = fsdp->desc.group_of[i];
            }
        }
        unit->frozen = dpari_fsdp_is_frozen(&fsdp->desc, u);
        unit->shard_at = shard_at;
        unit->trained_at = trained_at;
        unit->key = key;
        unit->slot = unit->bucket = -1;
        unit->fresh = unit->adds = 1;
        shard_at += unit->flat.shard;
        trained_at += unit->frozen ? 0 : unit->flat.shard;
        key += (uint64_t)unit->flat.total;
        first = unit->last;
    }
    for (i = 0; i < fsdp->desc.groups; i++) {
        fsdp->group[i] = fsdp->desc.group[i];
    }
    for (i = 0; i < fsdp->slots; i++) {
        dpari_zero(&fsdp->slot[i], sizeof fsdp->slot[i]);
        fsdp->slot[i].unit = -1;
    }
    for (i = 0; i < fsdp->buckets; i++) {
        dpari_zero(&fsdp->bucket[i], sizeof fsdp->bucket[i]);
        fsdp->bucket[i].unit = -1;
    }
    return DPAR_OK;
}

/* Allocates the registered memory and divides it into its parts. */
static dpar_status dpari_fsdp_allocate(dpar_fsdp *fsdp, const dpar_fsdp_sizes *s, dpar_why *why)
{
    const int64_t moment = fsdp->trained_sum * dpar_type_bytes(dpari_fsdp_moment_type(&fsdp->desc));
    void *memory = NULL;
    unsigned char *at;
    dpar_status st = dpar_comm_alloc(fsdp->shard, dpari_most(64, s->registered), &memory);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "%s: no memory for %ld bytes", "fsdp", s->registered);
    }
    at = fsdp->memory = (unsigned char *)memory;
    fsdp->weights = at; /* s->weights or s->gathered is 0 */
    at += dpari_room_up(s->weights) + dpari_room_up(s->gathered);
    fsdp->grads = at; /* whole gradients, or the buckets, which the sums follow */
    if (!dpari_fsdp_gradients_whole(&fsdp->desc)) {
        at += dpari_room_up(s->buckets);
    }
    fsdp->sums = at;
    at += dpari_room_up(s->gradients);
    fsdp->master = at;
    at += dpari_room_up(s->master);
    fsdp->moment[0] = at;
    fsdp->moment[1] = at + moment;
    if (fsdp->shard->mem != NULL && fsdp->shard->mem->pin != NULL) {
        st = fsdp->shard->mem->pin(fsdp->shard->mem->ctx, &fsdp->squares,
                                   (int64_t)sizeof fsdp->squares);
        if (st != DPAR_OK) {
            return dpari_say(st, why, "fsdp: %ld bytes cannot be pinned",
                             (int64_t)sizeof fsdp->squares);
        }
        fsdp->pinned = 1;
    }
    return DPAR_OK;
}

/* Frees the registered memory. */
static void dpari_fsdp_release(dpar_fsdp *fsdp)
{
    if (fsdp->pinned && fsdp->shard->mem->unpin != NULL) {
        (void)fsdp->shard->mem->unpin(fsdp->shard->mem->ctx, &fsdp->squares);
    }
    if (fsdp->memory != NULL) {
        dpar_comm_release(fsdp->shard, fsdp->memory);
    }
}

/* Agrees on a status over both communicators. If state is NULL, no values are compared. */
static dpar_status dpari_fsdp_agree(dpar_comm *shard, dpar_comm *replicas, dpar_status st,
                                    const char *plan, dpari_state *state, dpari_fsdp_given *given,
                                    dpar_why *why)
{
    dpar_status within;
    given->shard = NULL;
    given->replicas = replicas != NULL;
    st = dpari_agree_on(shard, st, plan, state, given, why);
    if (replicas == NULL) {
        return st;
    }
    within = st;
    given->shard = shard;
    st = dpari_agree_on(replicas, st, plan, state, given, why);
    /* so that an error found only across replicas reaches all ranks */
    return within == DPAR_OK ? dpari_agree(shard, st, why) : st;
}

/* Fills in an fsdp for which the numbers were computed and memory was provided, and allocates the
 * registered memory. */
static dpar_status dpari_fsdp_build(dpar_fsdp *fsdp, dpar_comm *comm, const dpar_fsdp_sizes *sizes,
                                    dpar_why *why)
{
    int64_t plan;
    dpar_status st;
    dpari_fsdp_place(fsdp, fsdp, &plan);
    fsdp->shard = comm;
    fsdp->replicas = fsdp->desc.replicas;
    st = dpari_fsdp_fill_in(fsdp, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_fsdp_allocate(fsdp, sizes, why);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_make(dpar_comm *comm, const dpar_fsdp_desc *desc,
                                               dpar_fsdp **fsdp, dpar_why *why)
{
    dpar_fsdp counted, *d;
    dpar_fsdp_sizes sizes;
    dpari_fsdp_given given;
    dpar_comm *replicas;
    void *memory = NULL;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_fsdp_make: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    replicas = desc != NULL ? desc->replicas : NULL;
    sizes.plan = 0;
    st = fsdp == NULL ? dpari_wrong(why, "dpar_fsdp_make: the result is NULL")
                      : dpari_fsdp_plan(&counted, comm->size, desc, &sizes, why);
    if (st == DPAR_OK) {
        st = dpari_object_memory(comm, desc->memory, desc->bytes, sizes.plan, "fsdp", &memory, why);
    }
    dpari_zero(&given, sizeof given);
    given.fsdp = &counted;
    st = dpari_fsdp_agree(comm, replicas, st, "fsdp", dpari_fsdp_facts, &given, why);
    if (st == DPAR_OK) {
        d = (dpar_fsdp *)memory;
        *d = counted;
        st = dpari_fsdp_agree(comm, replicas, dpari_fsdp_build(d, comm, &sizes, why), "fsdp", NULL,
                              &given, why);
        if (st == DPAR_OK) {
            *fsdp = d;
            return DPAR_OK;
        }
        dpari_fsdp_release(d);
    }
    return dpari_object_failed(st, desc != NULL ? desc->memory : NULL, memory, sizes.plan, why);
}

/* True if one of the communicators is broken. */
static int dpari_fsdp_broken(const dpar_fsdp *fsdp)
{
    return fsdp->shard->status != DPAR_OK ||
           (fsdp->replicas != NULL && fsdp->replicas->status != DPAR_OK);
}

/* Returns the status of the communicator that is broken. */
static dpar_status dpari_fsdp_why_broken(const dpar_fsdp *fsdp)
{
    return fsdp->shard->status != DPAR_OK ? fsdp->shard->status : fsdp->replicas->status;
}

/* Waits for all weights that are being gathered, and marks all slots as free. The caller then
 * changes the masters, from which the weights must be gathered again. If trained is 1, leaves out
 * frozen units. */
static DPARI_COLD dpar_status dpari_fsdp_forget(dpar_fsdp *fsdp, int32_t trained)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < fsdp->slots; i++) {
        dpari_fsdp_slot *s = &fsdp->slot[i];
        if (s->unit >= 0 && !(trained && fsdp->unit[s->unit].frozen)) {
            st = dpari_first_error(st, dpar_wait(&s->work));
            fsdp->unit[s->unit].slot = -1;
            s->unit = -1;
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_free(dpar_fsdp *fsdp)
{
    int32_t i;
    if (fsdp == NULL) {
        return DPAR_OK;
    }
    if (fsdp->under_way && !dpari_fsdp_broken(fsdp)) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_free: the pass has not ended");
    }
    /* If a communicator broke during a pass, operations may still use the memory. */
    (void)dpari_fsdp_forget(fsdp, 0);
    for (i = 0; i < fsdp->buckets; i++) {
        (void)dpar_wait(&fsdp->bucket[i].work);
    }
    for (i = 0; i < fsdp->units; i++) {
        (void)dpar_wait(&fsdp->unit[i].across);
    }
    dpari_fsdp_release(fsdp);
    return dpari_object_end(DPAR_OK, fsdp->desc.memory == NULL ? fsdp : NULL);
}

/* Posts a collective on unit u. The tag is the unit, so that ranks that visit units of equal size
 * in different orders get an error. */
static dpar_status dpari_fsdp_post(dpar_fsdp *fsdp, int32_t kind, int32_t u, const void *in,
                                   void *out, int32_t type, dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = type;
    call.tag = u + 1;
    call.in = in;
    call.out = out;
    call.count = fsdp->unit[u].flat.shard;
    if (kind == DPAR_CALL_REDUCE_SCATTER) {
        call.op = fsdp->desc.sum ? DPAR_SUM : DPAR_AVG;
    }
    return dpari_post(fsdp->shard, &call, work);
}

/* ---- addresses ------------------------------------------------------------------------------- */

static int dpari_fsdp_is_unit(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp != NULL && u >= 0 && u < fsdp->units;
}

static unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *fsdp, int32_t slot)
{
    const int64_t at = dpari_fsdp_weights_whole(&fsdp->desc)
                           ? fsdp->unit[slot].shard_at * fsdp->shard->size
                           : slot * fsdp->largest;
    return fsdp->weights + at * dpar_type_bytes(fsdp->desc.compute_type);
}

static unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *fsdp, int32_t bucket)
{
    const int64_t at = dpari_fsdp_gradients_whole(&fsdp->desc)
                           ? fsdp->unit[bucket].trained_at * fsdp->shard->size
                           : bucket * fsdp->largest_trained;
    return fsdp->grads + at * dpar_type_bytes(fsdp->desc.gradient_type);
}

/* Returns the bytes from the beginning of a whole unit to this rank's shard. */
static int64_t dpari_fsdp_own(const dpar_fsdp *fsdp, int32_t u, int32_t type)
{
    return fsdp->unit[u].flat.shard * fsdp->shard->rank * dpar_type_bytes(type);
}

static unsigned char *dpari_fsdp_master_at(const dpar_fsdp *fsdp, int32_t u)
{
    if (dpari_fsdp_inside(&fsdp->desc)) {
        return dpari_fsdp_slot_at(fsdp, u) + dpari_fsdp_own(fsdp, u, fsdp->desc.compute_type);
    }
    return fsdp->master + fsdp->unit[u].shard_at * dpar_type_bytes(fsdp->desc.type);
}

/* Returns the address of this rank's shard of unit u's reduced gradients. Sets *type to its type.
 */
static unsigned char *dpari_fsdp_reduced_at(const dpar_fsdp *fsdp, int32_t u, int32_t *type)
{
    if (dpari_fsdp_gradients_whole(&fsdp->desc)) {
        *type = fsdp->desc.gradient_type;
        return dpari_fsdp_bucket_at(fsdp, u) + dpari_fsdp_own(fsdp, u, *type);
    }
    *type = dpari_wide_type(fsdp->desc.type);
    return fsdp->sums + fsdp->unit[u].trained_at * dpar_type_bytes(*type);
}

/* Returns the same address as dpari_fsdp_reduced_at. If the gradients only count as 0, sets their
 * memory to 0. */
static unsigned char *dpari_fsdp_settled(const dpar_fsdp *fsdp, int32_t u, int32_t *type)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    unsigned char *at = dpari_fsdp_reduced_at(fsdp, u, type);
    const int64_t bytes = unit->flat.shard * dpar_type_bytes(*type);
    /* zeroes the whole unit, because later passes add to all of it */
    if (unit->fresh && dpari_fsdp_gradients_whole(&fsdp->desc)) {
        (void)dpari_do_copy(fsdp->shard, dpari_fsdp_bucket_at(fsdp, u), NULL,
                            bytes * fsdp->shard->size);
    } else if (unit->fresh) {
        (void)dpari_do_copy(fsdp->shard, at, NULL, bytes);
    }
    unit->fresh = 0;
    return at;
}

static unsigned char *dpari_fsdp_moment_at(const dpar_fsdp *fsdp, int32_t k, int32_t u)
{
    return fsdp->moment[k] +
           fsdp->unit[u].trained_at * dpar_type_bytes(dpari_fsdp_moment_type(&fsdp->desc));
}

/* Returns the index of the first element of this rank's shard among the elements of all units. */
static uint64_t dpari_fsdp_key(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp->unit[u].key + (uint64_t)(fsdp->unit[u].flat.shard * fsdp->shard->rank);
}

DPAR_API DPARI_COLD const void *dpar_fsdp_weight(const dpar_fsdp *fsdp, int32_t i)
{
    const dpari_fsdp_unit *unit;
    if (fsdp == NULL || i < 0 || i >= fsdp->params) {
        return NULL;
    }
    unit = &fsdp->unit[fsdp->home[i]];
    if (!unit->used || (unit->slot < 0 && unit->flat.shard > 0)) {
        return NULL;
    }
    if (unit->slot < 0) {
        return fsdp->weights; /* a unit without elements: any address that is not NULL */
    }
    return dpari_fsdp_slot_at(fsdp, unit->slot) +
           fsdp->start[i] * dpar_type_bytes(fsdp->desc.compute_type);
}

DPAR_API DPARI_COLD void *dpar_fsdp_gradient(const dpar_fsdp *fsdp, int32_t i, int *adds)
{
    const dpari_fsdp_unit *unit;
    if (adds != NULL) {
        *adds = 1;
    }
    if (fsdp == NULL || i < 0 || i >= fsdp->params) {
        return NULL;
    }
    unit = &fsdp->unit[fsdp->home[i]];
    if (adds != NULL) {
        *adds = unit->adds;
    }
    if (unit->state != DPARI_FSDP_OPEN || unit->frozen) {
        return NULL;
    }
    if (unit->bucket < 0) {
        return fsdp->grads; /* a unit without elements */
    }
    return dpari_fsdp_bucket_at(fsdp, unit->bucket) +
           fsdp->start[i] * dpar_type_bytes(fsdp->desc.gradient_type);
}

DPAR_API int dpar_fsdp_piece(const dpar_fsdp *fsdp, int32_t i, dpar_piece *piece)
{
    dpar_piece unwanted;
    return fsdp != NULL && i >= 0 && i < fsdp->params &&
           dpari_flat_piece(&fsdp->unit[fsdp->home[i]].flat, fsdp->start[i], fsdp->count[i],
                            fsdp->shard->rank, piece != NULL ? piece : &unwanted);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_set(dpar_fsdp *fsdp, int32_t i, const void *values)
{
    const unsigned char *from = (const unsigned char *)values;
    dpar_piece piece;
    int64_t each;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_set: the pass has not ended");
    }
    if (i < 0 || i >= fsdp->params) {
        return dpari_comm_wrong(
            fsdp->shard, "dpar_fsdp_set: parameter %d does not exist (the model has %d parameters)",
            i, fsdp->params);
    }
    if (values == NULL && fsdp->count[i] > 0) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_set: the %ld values of parameter %d are NULL",
                                fsdp->count[i], i);
    }
    each = dpar_type_bytes(fsdp->desc.type);
    st = dpari_fsdp_forget(fsdp, 0);
    if (st == DPAR_OK && dpar_fsdp_piece(fsdp, i, &piece)) {
        st = dpari_do_copy(fsdp->shard,
                           dpari_fsdp_master_at(fsdp, fsdp->home[i]) + piece.in_shard * each,
                           from + piece.in_param * each, piece.count * each);
    }
    return st;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Writes "unit 'wte'" or "unit 3". */
static DPARI_COLD void dpari_fsdp_put_unit(const dpar_fsdp *fsdp, dpar_text *text, int32_t u)
{
    const char *name = fsdp->desc.names != NULL ? fsdp->desc.names[u] : NULL;
    if (name != NULL) {
        dpari_text_print(text, "unit '%s'", name);
    } else {
        dpari_text_print(text, "unit %d", u);
    }
}

/* Reports that no slot or bucket is left for unit u, and which units hold them. */
static DPARI_COLD dpar_status dpari_fsdp_no_room(dpar_fsdp *fsdp, int32_t u, int32_t gradients)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t v, n = 0;
    dpari_text_why(&t, &why);
    dpar_text_put(&t, gradients ? "fsdp: no memory is left for the gradients of "
                                : "fsdp: no memory is left for the weights of ");
    dpari_fsdp_put_unit(fsdp, &t, u);
    dpar_text_put(&t, " in addition to those of ");
    for (v = 0; v < fsdp->units; v++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[v];
        const int holds = gradients ? unit->state == DPARI_FSDP_OPEN && !unit->frozen : unit->used;
        if (!holds) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_fsdp_put_unit(fsdp, &t, v);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_say(&t, " and %d more", n - (int32_t)NAMED);
    }
    dpar_text_put(&t, gradients ? ", which are not ready (desc.units_in_use is the limit)"
                                : ", which are in use (desc.units_in_use is the limit)");
    return dpari_comm_say(fsdp->shard, DPAR_E_ROOM, "%s", why.text);
}

/* Returns a slot for unit u: a free one, otherwise the slot of the unit that is needed last, which
 * is the smallest unit in forward and the largest in backward. Units in use keep their slots, and
 * so do units lo .. hi, which are needed next. Returns -1 if that leaves no slot. */
static int32_t dpari_fsdp_pick(const dpar_fsdp *fsdp, int32_t u, int32_t lo, int32_t hi,
                               int32_t back)
{
    int32_t i, best = -1;
    if (dpari_fsdp_weights_whole(&fsdp->desc)) {
        return u;
    }
    for (i = 0; i < fsdp->slots; i++) {
        const int32_t v = fsdp->slot[i].unit;
        if (v < 0) {
            return i;
        }
        if (fsdp->unit[v].used || (v >= lo && v <= hi)) {
            continue;
        }
        if (best < 0 || (back ? v > fsdp->slot[best].unit : v < fsdp->slot[best].unit)) {
            best = i;
        }
    }
    return best;
}

/* Converts this rank's masters of unit u from desc.type to compute_type. Those of a frozen unit are
 * always rounded to nearest, so that they have the same bits in each step. */
static dpar_status dpari_fsdp_cast(const dpar_fsdp *fsdp, int32_t u, unsigned char *to)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t count = fsdp->unit[u].flat.shard;
    dpar_mem_round r;
    if (desc->compute_type != DPAR_BF16 || !desc->optimizer.stochastic || fsdp->unit[u].frozen) {
        return dpari_do_convert(fsdp->shard, to, desc->compute_type, dpari_fsdp_master_at(fsdp, u),
                                desc->type, count, 0);
    }
    dpari_zero(&r, sizeof r);
    r.to = to;
    r.from = dpari_fsdp_master_at(fsdp, u);
    r.count = count;
    r.from_type = desc->type;
    r.seed = desc->optimizer.seed;
    r.stream = (uint64_t)fsdp->steps;
    r.index = dpari_fsdp_key(fsdp, u);
    return dpari_do_round(fsdp->shard, &r);
}

/* Posts the all-gather of unit u's weights if they are in no slot. Returns DPAR_MORE if no slot is
 * free for them. back is 1 in backward; dpari_fsdp_pick explains lo and hi. */
static DPARI_COLD dpar_status dpari_fsdp_request(dpar_fsdp *fsdp, int32_t u, int32_t lo, int32_t hi,
                                                 int32_t back)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *mine;
    dpar_status st;
    int32_t slot;
    if (unit->slot >= 0 || unit->flat.shard == 0) {
        return DPAR_OK;
    }
    slot = dpari_fsdp_pick(fsdp, u, lo, hi, back);
    if (slot < 0) {
        return DPAR_MORE;
    }
    s = &fsdp->slot[slot];
    if (s->unit >= 0) {
        st = dpar_wait(&s->work);
        fsdp->unit[s->unit].slot = -1;
        s->unit = -1;
        if (st != DPAR_OK) {
            return st;
        }
    }
    whole = dpari_fsdp_slot_at(fsdp, slot);
    mine = dpari_fsdp_master_at(fsdp, u);
    if (fsdp->desc.type != fsdp->desc.compute_type) {
        mine = whole + dpari_fsdp_own(fsdp, u, fsdp->desc.compute_type);
        st = dpari_fsdp_cast(fsdp, u, mine);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_fsdp_post(fsdp, DPAR_CALL_ALL_GATHER, u, mine, whole, fsdp->desc.compute_type,
                         &s->work);
    if (st == DPAR_OK) {
        s->unit = u;
        unit->slot = slot;
    }
    return st;
}

/* Requests unit u and the next units in this direction, and waits for unit u. */
static dpar_status dpari_fsdp_gather(dpar_fsdp *fsdp, int32_t u, int32_t back)
{
    const int64_t ahead = fsdp->desc.prefetch;
    const int32_t lo = back ? (int32_t)dpari_most(0, u - ahead) : u;
    const int32_t hi = back ? u : (int32_t)dpari_least(fsdp->units - 1, u + ahead);
    int32_t k;
    dpar_status st = dpari_fsdp_request(fsdp, u, lo, hi, back);
    /* All slots hold units that are in use or needed next. Gives up one of the latter, which can be
     * gathered again. */
    if (st == DPAR_MORE) {
        st = dpari_fsdp_request(fsdp, u, u, u, back);
    }
    for (k = 1; k <= hi - lo && st == DPAR_OK; k++) {
        st = dpari_fsdp_request(fsdp, back ? u - k : u + k, lo, hi, back);
    }
    if (st == DPAR_MORE && fsdp->unit[u].slot < 0 && fsdp->unit[u].flat.shard > 0) {
        return dpari_fsdp_no_room(fsdp, u, 0);
    }
    if (st < DPAR_OK || fsdp->unit[u].slot < 0) {
        return st < DPAR_OK ? st : DPAR_OK;
    }
    return dpar_wait(&fsdp->slot[fsdp->unit[u].slot].work);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Waits for the reduction of bucket b, adds the result to the shard and frees the bucket. With
 * replicas, posts the all-reduce of the shard in the last micro-batch. */
static DPARI_COLD dpar_status dpari_fsdp_collect(dpar_fsdp *fsdp, int32_t b)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    dpari_fsdp_slot *s = &fsdp->bucket[b];
    const int32_t u = s->unit;
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t type;
    void *reduced = dpari_fsdp_reduced_at(fsdp, u, &type);
    dpar_status st = dpar_wait(&s->work);
    s->unit = -1;
    s->sent = 0;
    unit->bucket = -1;
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_fsdp_gradients_whole(desc) && !s->straight) {
        const unsigned char *came =
            dpari_fsdp_bucket_at(fsdp, b) + dpari_fsdp_own(fsdp, u, desc->gradient_type);
        const int adds = !unit->fresh || desc->gradient_type == type;
        if (adds) {
            reduced = dpari_fsdp_settled(fsdp, u, &type);
        }
        st = dpari_do_convert(fsdp->shard, reduced, type, came, desc->gradient_type,
                              unit->flat.shard, adds);
    }
    unit->fresh = 0;
    if (st == DPAR_OK && fsdp->last && fsdp->replicas != NULL) {
        st = dpar_all_reduce(fsdp->replicas, reduced, reduced, unit->flat.shard, type,
                             desc->sum ? DPAR_SUM : DPAR_AVG, &unit->across);
    }
    return st;
}

/* Prepares the bucket of unit u at address `whole`. Leaves it unchanged if it contains gradients of
 * earlier passes. Otherwise sets all of it to 0, or with overwrite_gradients only the gaps between
 * parameters and the padding at the end, because backward writes the rest. */
static dpar_status dpari_fsdp_clear(dpar_fsdp *fsdp, int32_t u, unsigned char *whole)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    const int64_t each = dpar_type_bytes(fsdp->desc.gradient_type),
                  all = unit->flat.shard * fsdp->shard->size;
    const int earlier = dpari_fsdp_gradients_whole(&fsdp->desc) && !unit->fresh;
    dpar_status st = DPAR_OK;
    int64_t at = 0;
    int32_t i;
    unit->adds = earlier || !fsdp->desc.overwrite_gradients;
    unit->fresh = unit->fresh && !dpari_fsdp_gradients_whole(&fsdp->desc);
    if (earlier) {
        return DPAR_OK;
    }
    for (i = unit->first; i < unit->last && fsdp->desc.overwrite_gradients && st == DPAR_OK; i++) {
        st = dpari_do_copy(fsdp->shard, whole + at * each, NULL, (fsdp->start[i] - at) * each);
        at = fsdp->start[i] + fsdp->count[i];
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_copy(fsdp->shard, whole + at * each, NULL, (all - at) * each);
}

/* Returns a bucket for a unit's gradients: a free one, otherwise the one whose reduction was posted
 * first. Returns -1 if all buckets hold gradients that are not ready. */
static int32_t dpari_fsdp_pick_bucket(const dpar_fsdp *fsdp)
{
    int32_t i, best = -1;
    for (i = 0; i < fsdp->buckets; i++) {
        const dpari_fsdp_slot *s = &fsdp->bucket[i];
        if (s->unit < 0) {
            return i;
        }
        if (s->sent && (best < 0 || s->sent < fsdp->bucket[best].sent)) {
            best = i;
        }
    }
    return best;
}

/* Assigns a bucket to unit u, in which backward computes its gradients. */
static dpar_status dpari_fsdp_open(dpar_fsdp *fsdp, int32_t u)
{
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t b = u;
    const int none = unit->flat.shard == 0 || unit->frozen;
    if (!none && !dpari_fsdp_gradients_whole(&fsdp->desc)) {
        b = dpari_fsdp_pick_bucket(fsdp);
        if (b < 0) {
            return dpari_fsdp_no_room(fsdp, u, 1);
        }
        if (fsdp->bucket[b].unit >= 0) {
            const dpar_status st = dpari_fsdp_collect(fsdp, b);
            if (st != DPAR_OK) {
                return st;
            }
        }
    }
    unit->state = DPARI_FSDP_OPEN;
    if (none) {
        return DPAR_OK;
    }
    unit->bucket = b;
    fsdp->bucket[b].unit = u;
    fsdp->bucket[b].sent = 0;
    return dpari_fsdp_clear(fsdp, u, dpari_fsdp_bucket_at(fsdp, b));
}

/* Posts the reduction of unit u's gradients. */
static dpar_status dpari_fsdp_send(dpar_fsdp *fsdp, int32_t u)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    dpari_fsdp_unit *unit = &fsdp->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *to;
    int32_t b, type, most = 0;
    if (unit->bucket < 0) {
        return DPAR_OK;
    }
    s = &fsdp->bucket[unit->bucket];
    if (dpari_fsdp_gradients_whole(desc) && !fsdp->last) {
        s->unit = -1;
        unit->bucket = -1;
        return DPAR_OK;
    }
    whole = dpari_fsdp_bucket_at(fsdp, unit->bucket);
    for (b = 0; b < fsdp->buckets && !dpari_fsdp_gradients_whole(desc); b++) {
        most = (int32_t)dpari_most(most, fsdp->bucket[b].sent);
    }
    s->sent = most + 1;
    to = dpari_fsdp_reduced_at(fsdp, u, &type);
    s->straight = unit->fresh && !dpari_fsdp_gradients_whole(desc) && type == desc->gradient_type;
    return dpari_fsdp_post(fsdp, DPAR_CALL_REDUCE_SCATTER, u, whole,
                           s->straight ? to : whole + dpari_fsdp_own(fsdp, u, desc->gradient_type),
                           desc->gradient_type, &s->work);
}

/* ---- a pass ---------------------------------------------------------------------------------- */

DPAR_API void dpar_fsdp_zero(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; fsdp != NULL && u < fsdp->units; u++) {
        fsdp->unit[u].fresh = 1;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_begin(dpar_fsdp *fsdp, int32_t last)
{
    int32_t u;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (dpari_fsdp_broken(fsdp)) {
        return dpari_fsdp_why_broken(fsdp);
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_begin: the previous pass has not ended (dpar_fsdp_end)");
    }
    for (u = 0; u < fsdp->units; u++) {
        fsdp->unit[u].state = DPARI_FSDP_NONE;
    }
    fsdp->under_way = 1;
    fsdp->last = last != 0;
    fsdp->status = DPAR_OK;
    return DPAR_OK;
}

/* Checks that unit u exists and that the direction is valid. */
static dpar_status dpari_fsdp_check_unit(dpar_fsdp *fsdp, int32_t u, int32_t direction)
{
    if (!dpari_fsdp_is_unit(fsdp, u)) {
        return dpari_comm_wrong(fsdp->shard, "fsdp: unit %d does not exist (there are %d units)", u,
                                fsdp->units);
    }
    if (direction != DPAR_ACTION_FORWARD && direction != DPAR_ACTION_BACKWARD) {
        return dpari_comm_wrong(fsdp->shard,
                                "fsdp: direction %d of unit %d is neither DPAR_ACTION_FORWARD nor "
                                "DPAR_ACTION_BACKWARD",
                                direction, u);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_unshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction)
{
    const int32_t back = direction == DPAR_ACTION_BACKWARD;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(fsdp, unit, direction);
    if (st != DPAR_OK) {
        return st;
    }
    if (fsdp->unit[unit].used) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_unshard: unit %d is already in use", unit);
    }
    if (back && !fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_unshard: unit %d for backward, but no pass is in "
                                "progress (dpar_fsdp_begin)",
                                unit);
    }
    if (back && fsdp->unit[unit].state != DPARI_FSDP_NONE) {
        return dpari_comm_wrong(
            fsdp->shard, "dpar_fsdp_unshard: unit %d already had backward in this pass", unit);
    }
    if (fsdp->under_way && fsdp->status != DPAR_OK) {
        return fsdp->status;
    }
    st = dpari_fsdp_gather(fsdp, unit, back);
    if (st == DPAR_OK && back) {
        st = dpari_fsdp_open(fsdp, unit);
    }
    if (st == DPAR_OK) {
        fsdp->unit[unit].used = 1;
    } else if (fsdp->under_way && dpari_fsdp_broken(fsdp)) {
        fsdp->status = st;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_reshard(dpar_fsdp *fsdp, int32_t unit, int32_t direction)
{
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(fsdp, unit, direction);
    if (st != DPAR_OK) {
        return st;
    }
    if (!fsdp->unit[unit].used) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_reshard: unit %d is not in use", unit);
    }
    fsdp->unit[unit].used = 0;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_ready(dpar_fsdp *fsdp, int32_t unit)
{
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (!dpari_fsdp_is_unit(fsdp, unit) || !fsdp->under_way ||
        fsdp->unit[unit].state != DPARI_FSDP_OPEN) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_ready: unit %d of %d was not unsharded for backward in "
                                "this pass, or is already ready",
                                unit, fsdp->units);
    }
    fsdp->unit[unit].state = DPARI_FSDP_DONE;
    if (fsdp->status == DPAR_OK) {
        fsdp->status = dpari_fsdp_send(fsdp, unit);
    }
    return fsdp->status;
}

/* Checks at the end of a pass that no unit is in use and all gradients are ready. If not, the pass
 * fails on all ranks. */
static void dpari_fsdp_check_ended(dpar_fsdp *fsdp)
{
    int32_t u;
    for (u = 0; u < fsdp->units && fsdp->status == DPAR_OK; u++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[u];
        const int missing = unit->state == DPARI_FSDP_OPEN ||
                            (fsdp->last && unit->state == DPARI_FSDP_NONE && unit->flat.shard > 0);
        if (unit->used || (missing && !unit->frozen)) {
            dpar_why why;
            (void)dpari_wrong(&why,
                              unit->used ? "dpar_fsdp_end: unit %d is still in use on rank %d"
                                         : "dpar_fsdp_end: unit %d is not ready on rank %d",
                              u, fsdp->shard->rank);
            dpar_comm_abort(fsdp->shard, DPAR_E_ARG, why.text);
            fsdp->status = fsdp->shard->status != DPAR_OK ? fsdp->shard->status : DPAR_E_ARG;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_end(dpar_fsdp *fsdp)
{
    int32_t b, u;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (!fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard,
                                "dpar_fsdp_end: no pass is in progress (dpar_fsdp_begin)");
    }
    dpari_fsdp_check_ended(fsdp);
    /* The order matters if each unit has its own bucket: it is then that of backward. */
    for (b = fsdp->buckets - 1; b >= 0; b--) {
        if (fsdp->bucket[b].unit >= 0 && fsdp->bucket[b].sent) {
            fsdp->status = dpari_first_error(fsdp->status, dpari_fsdp_collect(fsdp, b));
        } else if (fsdp->bucket[b].unit >= 0) {
            fsdp->unit[fsdp->bucket[b].unit].bucket = -1;
            fsdp->bucket[b].unit = -1;
        }
    }
    for (u = 0; u < fsdp->units && fsdp->last && fsdp->replicas != NULL; u++) {
        fsdp->status = dpari_first_error(fsdp->status, dpar_wait(&fsdp->unit[u].across));
    }
    for (u = 0; u < fsdp->units; u++) {
        fsdp->unit[u].used = 0;
        fsdp->unit[u].state = DPARI_FSDP_NONE;
    }
    fsdp->under_way = 0;
    return fsdp->status;
}

/* Computes the sum of squares of this rank's gradients in fsdp->squares, and waits for it. Leaves
 * out parameters i with duplicate[i], unless duplicate is NULL. */
static dpar_status dpari_fsdp_squares(dpar_fsdp *fsdp, const uint8_t *duplicate)
{
    dpar_status st = DPAR_OK;
    dpar_mem_squares s;
    dpar_piece piece;
    int32_t u, i;
    fsdp->squares = 0.0;
    dpari_zero(&s, sizeof s);
    s.accumulate = 1;
    s.sum = &fsdp->squares;
    for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
        const dpari_fsdp_unit *unit = &fsdp->unit[u];
        const unsigned char *from;
        if (unit->frozen || unit->flat.shard == 0) {
            continue;
        }
        from = dpari_fsdp_settled(fsdp, u, &s.type);
        s.in = from;
        s.count = unit->flat.shard;
        if (duplicate == NULL) {
            st = dpari_do_squares(fsdp->shard, &s);
            continue;
        }
        for (i = unit->first; i < unit->last && st == DPAR_OK; i++) {
            if (!duplicate[i] && dpar_fsdp_piece(fsdp, i, &piece)) {
                s.in = from + piece.in_shard * dpar_type_bytes(s.type);
                s.count = piece.count;
                st = dpari_do_squares(fsdp->shard, &s);
            }
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_wait(fsdp->shard);
}

/* Computes the norm of all gradients for the function `name`. */
static DPARI_COLD dpar_status dpari_fsdp_find_norm(dpar_fsdp *fsdp, dpar_update *update,
                                                   const char *name)
{
    dpar_why why;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (dpari_fsdp_broken(fsdp)) {
        return dpari_fsdp_why_broken(fsdp);
    }
    st = dpari_update_check(update, name, &why);
    if (st == DPAR_OK && fsdp->under_way) {
        st = dpari_wrong(&why, "%s: the pass has not ended", name);
    }
    if (st != DPAR_OK) {
        return dpari_update_refuse(fsdp->shard, st, &why);
    }
    st = dpari_fsdp_squares(fsdp, update->duplicate);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_update_norm(fsdp->shard, update, fsdp->squares, 0, "fsdp: rate, clip or factor");
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_norm(dpar_fsdp *fsdp, dpar_update *update)
{
    return dpari_fsdp_find_norm(fsdp, update, "dpar_fsdp_norm");
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_update(dpar_fsdp *fsdp, dpar_update *update)
{
    const dpar_status st = dpari_fsdp_find_norm(fsdp, update, "dpar_fsdp_update");
    return st == DPAR_OK ? dpar_fsdp_step(fsdp, update->rate, update->scale) : st;
}

/* Updates elements lo .. hi - 1 of this rank's shard of unit u, which are in one group. */
static dpar_status dpari_fsdp_step_range(dpar_fsdp *fsdp, int32_t u, int32_t group, int64_t lo,
                                         int64_t hi, const dpar_mem_optimize *step)
{
    const int64_t in_moment = lo * dpar_type_bytes(dpari_fsdp_moment_type(&fsdp->desc));
    const int32_t moments = dpari_optimizer_moments(&fsdp->desc.optimizer);
    dpar_optimizer optimizer = fsdp->desc.optimizer;
    dpar_mem_optimize call = *step;
    dpar_optimizer_piece p;
    const unsigned char *gradient;
    if (hi == lo) {
        return DPAR_OK;
    }
    dpari_zero(&p, sizeof p);
    p.weight_type = fsdp->desc.type;
    p.weight = dpari_fsdp_master_at(fsdp, u) + lo * dpar_type_bytes(p.weight_type);
    gradient = dpari_fsdp_settled(fsdp, u, &p.gradient_type);
    p.gradient = gradient + lo * dpar_type_bytes(p.gradient_type);
    p.m = moments > 0 ? dpari_fsdp_moment_at(fsdp, 0, u) + in_moment : NULL;
    p.v = moments > 1 ? dpari_fsdp_moment_at(fsdp, 1, u) + in_moment : NULL;
    p.count = hi - lo;
    p.index = dpari_fsdp_key(fsdp, u) + (uint64_t)lo;
    if (group >= 0) {
        dpari_optimizer_use_group(&fsdp->group[group], &optimizer, &call.rate);
    }
    call.optimizer = &optimizer;
    call.piece = &p;
    return dpari_do_optimize(fsdp->shard, &call);
}

/* Updates this rank's shard of unit u, with one call for each run of parameters in one group. The
 * padding after a parameter is 0 and stays so, and counts as part of the run. */
static dpar_status dpari_fsdp_step_unit(dpar_fsdp *fsdp, int32_t u, const dpar_mem_optimize *step)
{
    const dpari_fsdp_unit *unit = &fsdp->unit[u];
    int32_t i, group = -1;
    int64_t lo = 0;
    dpar_piece piece;
    for (i = unit->first; i < unit->last && fsdp->desc.groups > 0; i++) {
        dpar_status st;
        if (fsdp->group_of[i] == group || !dpar_fsdp_piece(fsdp, i, &piece)) {
            continue;
        }
        st = dpari_fsdp_step_range(fsdp, u, group, lo, piece.in_shard, step);
        if (st != DPAR_OK) {
            return st;
        }
        lo = piece.in_shard;
        group = fsdp->group_of[i];
    }
    return dpari_fsdp_step_range(fsdp, u, group, lo, unit->flat.shard, step);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_step(dpar_fsdp *fsdp, double rate, double factor)
{
    dpar_mem_optimize step;
    int32_t u;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_step: the pass has not ended");
    }
    st = dpari_fsdp_forget(fsdp, 1);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&step, sizeof step);
    step.step = ++fsdp->steps;
    step.rate = rate;
    step.factor = factor;
    for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
        if (!fsdp->unit[u].frozen) {
            st = dpari_fsdp_step_unit(fsdp, u, &step);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_changed(dpar_fsdp *fsdp)
{
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    if (fsdp->under_way) {
        return dpari_comm_wrong(fsdp->shard, "dpar_fsdp_changed: the pass has not ended");
    }
    fsdp->steps++;
    return dpari_fsdp_forget(fsdp, 0);
}

/* ---- state ----------------------------------------------------------------------------------- */

/* True if there is such an array of unit u now. Gradients are available only between passes. */
static int dpari_fsdp_has(const dpar_fsdp *fsdp, int32_t array, int32_t u)
{
    if (!dpari_fsdp_is_unit(fsdp, u) || array < 0) {
        return 0;
    }
    if (array != DPAR_FSDP_MASTER && fsdp->unit[u].frozen) {
        return 0;
    }
    if (array == DPAR_FSDP_GRADIENT) {
        return !fsdp->under_way;
    }
    return array <= dpari_optimizer_moments(&fsdp->desc.optimizer); /* the masters are array 0 */
}

DPAR_API DPARI_COLD void *dpar_fsdp_state(const dpar_fsdp *fsdp, int32_t array, int32_t unit,
                                          int64_t *elements, int32_t *type)
{
    const int there = dpari_fsdp_has(fsdp, array, unit);
    int32_t of_type = DPAR_TYPE_NONE;
    void *at = NULL;
    if (there && array == DPAR_FSDP_GRADIENT) {
        at = dpari_fsdp_settled(fsdp, unit, &of_type);
    } else if (there && array == DPAR_FSDP_MASTER) {
        of_type = fsdp->desc.type;
        at = dpari_fsdp_master_at(fsdp, unit);
    } else if (there) {
        of_type = dpari_fsdp_moment_type(&fsdp->desc);
        at = dpari_fsdp_moment_at(fsdp, array - DPAR_FSDP_MOMENT_1, unit);
    }
    if (elements != NULL) {
        *elements = there ? fsdp->unit[unit].flat.shard : 0;
    }
    if (type != NULL) {
        *type = of_type;
    }
    return at;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_layout(const dpar_fsdp *fsdp, int32_t unit, int32_t first,
                                                 int32_t ranks, dpar_layout *layout, dpar_why *why)
{
    dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_status st;
    if (!dpari_fsdp_is_unit(fsdp, unit) || layout == NULL || first < 0 || ranks < 1 ||
        ranks - 1 > INT32_MAX - first) {
        return dpari_wrong(why,
                           "dpar_fsdp_layout: unit is %d, ranks %d and first %d, but the unit must "
                           "exist, ranks must be 1 or more, first 0 or more, and layout not NULL",
                           unit, ranks, first);
    }
    st = dpar_mesh_init(&mesh, "shard", &ranks, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    mesh.first_rank = first;
    return dpar_layout_init(layout, &mesh, 1, &fsdp->unit[unit].flat.total, &cut, why);
}

/* Begins a walk over the parts of this rank's shard of unit u in the shards that `ranks` ranks
 * saved. */
static DPARI_COLD dpar_status dpari_fsdp_walk_saved(const dpar_fsdp *fsdp, int32_t u, int32_t ranks,
                                                    dpar_redistribute_cursor *walk, dpar_why *why)
{
    dpar_layout from, to;
    dpar_status st = dpar_fsdp_layout(fsdp, u, 0, ranks, &from, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_fsdp_layout(fsdp, u, 0, fsdp->shard->size, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_redistribute_check(&from, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_redistribute_first(walk, &from, &to, fsdp->shard->rank, DPAR_TRANSFER_RECV,
                                   DPAR_REDISTRIBUTE_PRIMARY);
}

/* Reads this rank's shard of one array of one unit, from the shards of `ranks` ranks. */
static DPARI_COLD dpar_status dpari_fsdp_read_one(dpar_fsdp *fsdp, int32_t array, int32_t u,
                                                  int32_t ranks, dpar_fsdp_read_callback read,
                                                  void *ctx, dpar_why *why)
{
    dpar_redistribute_cursor walk;
    dpar_transfer t;
    int64_t count;
    int32_t type;
    unsigned char *at = (unsigned char *)dpar_fsdp_state(fsdp, array, u, &count, &type);
    const int64_t each = dpar_type_bytes(type);
    dpar_status st;
    if (at == NULL || count == 0) {
        return DPAR_OK;
    }
    st = dpari_fsdp_walk_saved(fsdp, u, ranks, &walk, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_copy(fsdp->shard, at, NULL, count * each);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_wait(fsdp->shard); /* the zeros must be written before the callback writes */
    while (st == DPAR_OK && dpar_redistribute_next(&walk, &t)) {
        const dpar_status got =
            read(ctx, array, u, t.peer, t.theirs[0], t.extent[0], at + t.mine[0] * each);
        if (got < DPAR_OK) { /* a positive status is a condition, not a failure */
            st = dpari_say(
                got, why,
                "dpar_fsdp_load: the callback failed to read %ld elements of array %d of unit %d "
                "that rank %d saved",
                t.extent[0], array, u, t.peer);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_load(dpar_fsdp *fsdp, int32_t ranks, int64_t steps,
                                               dpar_fsdp_read_callback read, void *ctx,
                                               dpar_why *why)
{
    dpari_fsdp_given given;
    int32_t array, u;
    dpar_status st = DPAR_OK;
    if (fsdp == NULL) {
        return dpari_wrong(why, "dpar_fsdp_load: the fsdp is NULL");
    }
    if (read == NULL || ranks < 1 || steps < 0 || fsdp->under_way) {
        st = dpari_wrong(
            why,
            "dpar_fsdp_load: ranks is %d and steps %ld, but ranks must be 1 or more, steps 0 or "
            "more, read not NULL, and no pass may be in progress",
            ranks, steps);
    } else {
        st = dpari_fsdp_forget(fsdp, 0);
    }
    for (array = 0; array < DPAR_FSDP_ARRAY_COUNT; array++) {
        for (u = 0; u < fsdp->units && st == DPAR_OK; u++) {
            st = dpari_fsdp_read_one(fsdp, array, u, ranks, read, ctx, why);
        }
    }
    dpari_zero(&given, sizeof given);
    given.ranks = ranks;
    given.steps = steps;
    st = dpari_fsdp_agree(fsdp->shard, fsdp->replicas, st, "fsdp load", dpari_fsdp_facts_load,
                          &given, why);
    if (st == DPAR_OK) {
        fsdp->steps = steps;
    }
    return st;
}
