/* SPDX-License-Identifier: MIT-0 */
/* ZeRO-1, 2 and 3. A unit's weights are in a slot while they are whole, and its gradients are in a
 * bucket while they are computed. With ZeRO-1 and 2 each unit has a slot of its own. With ZeRO-3
 * there is a pool of prefetch + units_in_use slots: dpar_fsdp_unshard gathers the unit and those
 * after it in the same direction, into free slots or into the slot whose unit is needed last. The
 * same holds for buckets if gradients are shards.
 *
 * dpar_fsdp_ready posts the reduce-scatter of a bucket. The bucket is free again once it has been
 * reduced, and the result has been added to the rank's shard. Every collective has the unit in its
 * tag, so that ranks that visit units in different orders get DPAR_E_MISMATCH in place of mixed
 * weights.
 *
 * Zeroing is lazy: dpar_fsdp_zero only marks gradients as 0, and each unit writes or zeroes its own
 * when it reaches them. */
#include "fsdp.h"

#include "../base/arith.h"
#include "../base/inner.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/elements.h"
#include "../comm/engine.h"
#include "../comm/kernel.h"
#include "../comm/mem_private.h"
#include "../comm/object_memory.h"
#include "../index/flat.h"
#include "../index/inner.h"
#include "../index/layout.h"
#include "../index/redistribute.h"
#include "layers_private.h"
#include "optimizer_private.h"

/* A unit: parameters that are gathered and reduced together. */
typedef struct dpari_fsdp_unit {
    dpari_flat flat;
    int64_t shard_at; /* where its shard begins in arrays of shards, in elements */
    int64_t whole_at; /* where it begins in arrays of whole units, in elements */
    /* number of its first element among all, without padding, so that random numbers do not depend
     * on the number of ranks */
    uint64_t key;
    int32_t first, last; /* parameters first <= i < last */
    int32_t slot;        /* slot that has its weights or receives them, or -1 */
    int32_t bucket;      /* bucket in which its gradients are computed, or -1 */
    int32_t used;        /* 1 between unshard and reshard */
    int32_t state;       /* of its gradients in this pass: DPARI_FSDP_NONE, ... */
    int32_t fresh;       /* 1 if its gradients count as 0, whatever the memory contains */
    int32_t adds;        /* 1 if backward of this pass adds to the contents of the bucket */
    dpar_work across;    /* the reduction over replicas */
} dpari_fsdp_unit;

/* States of gradients in a pass: not begun, being computed, ready. */
enum { DPARI_FSDP_NONE, DPARI_FSDP_OPEN, DPARI_FSDP_DONE };

/* the most elements, so that no number of bytes exceeds 2^63 */
#define DPARI_FSDP_MOST (INT64_C(1) << 50)

/* Memory for the weights (a slot) or the gradients (a bucket) of a unit, and the operation under
 * way in it. */
typedef struct dpari_fsdp_slot {
    int32_t unit; /* the unit in it, or -1 if it is free */
    int32_t sent; /* buckets: 0, or the order in which reductions were posted, from 1 on */
    /* buckets: 1 if the reduction writes the shard itself, so that nothing is added */
    int32_t straight;
    dpar_work work;
} dpari_fsdp_slot;

struct dpar_fsdp {
    dpar_comm *shard, *replicas; /* replicas: NULL if there are none */
    dpar_fsdp_desc desc;         /* with the defaults filled in */
    dpari_fsdp_unit *unit;
    dpari_fsdp_slot *slot, *bucket;
    int64_t *count, *start; /* elements of each parameter, and where it begins in its unit */
    int32_t *home;          /* the unit of each parameter */
    unsigned char *memory;  /* all registered memory; the arrays below are in it */
    unsigned char *weights, *sums, *master, *moment[2], *grads;
    int64_t largest;             /* elements of the largest unit, padding included */
    int64_t shard_sum;           /* elements of all shards of this rank */
    int64_t whole_sum;           /* elements of all units, padding included */
    int32_t units, params, full; /* full: the number of units with elements */
    int32_t slots, buckets;
    int64_t steps;  /* of the optimizer so far */
    double squares; /* sum for the norm of gradients; a device can write it if it is pinned */
    int32_t pinned;
    int32_t last;       /* 1 if this pass reduces gradients */
    int32_t under_way;  /* 1 within a pass */
    dpar_status status; /* of this pass; the first error stays */
};

/* ---- the descriptor -----------------------------------------------------------------------------
 */

/* True if weights stay whole, so that each unit has a slot of its own. */
static int dpari_fsdp_wide(const dpar_fsdp_desc *o)
{
    return o->zero < 3;
}

/* True if gradients stay whole until the last micro-batch, so that each unit has a bucket of its
 * own. */
static int dpari_fsdp_kept(const dpar_fsdp_desc *o)
{
    return o->zero < 2 || o->reduce_last;
}

/* True if the masters are parts of the whole weights, in place of arrays of their own. */
static int dpari_fsdp_inside(const dpar_fsdp_desc *o)
{
    return dpari_fsdp_wide(o) && o->type == o->compute_type;
}

/* Returns the type in which shards of gradients are summed over micro-batches. */
static int32_t dpari_fsdp_sums(const dpar_fsdp_desc *o)
{
    return o->type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

/* Returns the type of the optimizer's moments. */
static int32_t dpari_fsdp_moment_type(const dpar_fsdp_desc *o)
{
    return dpari_optimizer_moment_type(&o->optimizer, o->type);
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
static int32_t dpari_fsdp_params(const dpar_fsdp_desc *o, int32_t u)
{
    return o->params_per_unit != NULL ? o->params_per_unit[u] : 1;
}

static dpar_status dpari_fsdp_judge_types(const dpar_fsdp_desc *o, dpar_why *why)
{
    if (!dpari_is_float(o->type)) {
        return dpari_wrong(why, "fsdp: type is %s, but must be f64, f32, bf16 or f16",
                           dpar_type_name(o->type));
    }
    if (o->compute_type != o->type && !dpari_narrows(o->type, o->compute_type)) {
        return dpari_wrong(why,
                           "fsdp: compute_type is %s, but must be `type`, or f32 if that is f64, "
                           "or bf16 or f16 if that is f32",
                           dpar_type_name(o->compute_type));
    }
    if (!dpari_is_float(o->gradient_type) ||
        (o->gradient_type != o->compute_type &&
         dpar_type_bytes(o->gradient_type) <= dpar_type_bytes(o->compute_type))) {
        return dpari_wrong(why, "fsdp: gradient_type is %s, but must be compute_type or wider",
                           dpar_type_name(o->gradient_type));
    }
    return DPAR_OK;
}

static int dpari_fsdp_is_flag(int32_t value)
{
    return value == 0 || value == 1;
}

/* Checks a descriptor whose defaults are filled in, except for the lists. */
static dpar_status dpari_fsdp_judge(int32_t shards, const dpar_fsdp_desc *o, dpar_why *why)
{
    dpar_status st;
    if (shards < 1) {
        return dpari_wrong(why, "fsdp: %d ranks share a copy of the model (1 or more)", shards);
    }
    if (o->units < 0) {
        return dpari_wrong(why, "fsdp: the number of units is %d (0 or more)", o->units);
    }
    if (o->units > 0 && o->count == NULL) {
        return dpari_wrong(why, "fsdp: count is NULL, but there are %d units", o->units);
    }
    if (o->zero < 1 || o->zero > 3) {
        return dpari_wrong(why, "fsdp: zero is %d (1, 2 or 3)", o->zero);
    }
    if (!dpari_fsdp_is_flag(o->reduce_last) || !dpari_fsdp_is_flag(o->sum) ||
        !dpari_fsdp_is_flag(o->overwrite_gradients)) {
        return dpari_wrong(why,
                           "fsdp: reduce_last is %d, sum %d, overwrite_gradients %d (each 0 or 1)",
                           o->reduce_last, o->sum, o->overwrite_gradients);
    }
    if (o->prefetch < 0 || o->gradient_buffers < 0 || o->align < 0 || o->units_in_use < 0) {
        return dpari_wrong(
            why,
            "fsdp: prefetch is %d, gradient_buffers %d, align %ld, units_in_use %d: none "
            "may be negative",
            o->prefetch, o->gradient_buffers, o->align, o->units_in_use);
    }
    if (o->gradient_buffers > 0 && o->gradient_buffers < o->units_in_use) {
        return dpari_say(DPAR_E_ROOM, why,
                         "fsdp: units_in_use is %d, but gradient_buffers holds the gradients of "
                         "only %d units",
                         o->units_in_use, o->gradient_buffers);
    }
    st = dpari_fsdp_judge_types(o, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_optimizer_check(&o->optimizer, o->type, NULL, NULL, why);
}

/* ---- sizes ------------------------------------------------------------------------------------
 */

/* Places the parts of an fsdp in memory and returns their total size; with memory NULL only
 * counts. */
static void dpari_fsdp_place(dpar_fsdp *d, void *memory, int64_t *bytes)
{
    dpari_room r;
    r.at = (unsigned char *)memory;
    r.used = 0;
    (void)dpari_room_take(&r, 1, sizeof *d);
    d->unit = (dpari_fsdp_unit *)dpari_room_take(&r, d->units, sizeof *d->unit);
    d->slot = (dpari_fsdp_slot *)dpari_room_take(&r, d->slots, sizeof *d->slot);
    d->bucket = (dpari_fsdp_slot *)dpari_room_take(&r, d->buckets, sizeof *d->bucket);
    d->count = (int64_t *)dpari_room_take(&r, d->params, sizeof *d->count);
    d->start = (int64_t *)dpari_room_take(&r, d->params, sizeof *d->start);
    d->home = (int32_t *)dpari_room_take(&r, d->params, sizeof *d->home);
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
            return dpari_wrong(why, "fsdp: parameter %d of unit %d has %ld elements (0 or more)", i,
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
static void dpari_fsdp_count_slots(dpar_fsdp *d)
{
    const dpar_fsdp_desc *o = &d->desc;
    const int64_t in_use = dpari_most(1, o->units_in_use);
    d->slots = d->units;
    d->buckets = d->units;
    if (!dpari_fsdp_wide(o)) {
        d->slots = (int32_t)dpari_least(d->full, o->prefetch + in_use);
    }
    if (!dpari_fsdp_kept(o)) {
        d->buckets = (int32_t)dpari_least(d->full, dpari_most(in_use, o->gradient_buffers));
    }
}

/* Counts the units of a descriptor into d: parameters, elements and slots. */
static dpar_status dpari_fsdp_count(dpar_fsdp *d, int32_t shards, const dpar_fsdp_desc *o,
                                    dpar_why *why)
{
    const int64_t align = dpari_most(1, o->align);
    int64_t params = 0, total, pool = 1;
    int32_t u;
    dpari_zero(d, sizeof *d);
    d->desc = *o;
    d->units = o->units;
    for (u = 0; u < d->units; u++) {
        const int32_t here = dpari_fsdp_params(o, u);
        dpar_status st;
        if (here < 0 || align > (INT64_C(1) << 40)) {
            return dpari_wrong(
                why, "fsdp: unit %d has %d parameters (0 or more), align is %ld (at most 2^40)", u,
                here, align);
        }
        st = dpari_fsdp_total(u, here, o->count + params, align, &total, why);
        if (st != DPAR_OK) {
            return st;
        }
        params += here;
        total = dpari_ceil_div(total, shards);
        d->shard_sum += total;
        d->whole_sum += total * shards;
        d->largest = dpari_most(d->largest, total * shards);
        d->full += total > 0;
        if (params > INT32_MAX || d->whole_sum > DPARI_FSDP_MOST) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "fsdp: the units up to %d have %ld parameters and %ld elements, but may have "
                "2^31 - 1 and 2^50",
                u, params, d->whole_sum);
        }
    }
    d->params = (int32_t)params;
    dpari_fsdp_count_slots(d);
    if (!dpari_fsdp_wide(o)) {
        pool = dpari_most(pool, d->slots);
    }
    if (!dpari_fsdp_kept(o)) {
        pool = dpari_most(pool, d->buckets);
    }
    if (d->largest > DPARI_FSDP_MOST / pool) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "fsdp: %ld units of up to %ld elements are kept at once, but may have 2^50 "
            "elements together",
            pool, d->largest);
    }
    return DPAR_OK;
}

static void dpari_fsdp_sizes_of(dpar_fsdp *d, dpar_fsdp_sizes *s)
{
    const dpar_fsdp_desc *o = &d->desc;
    const int64_t compute = dpar_type_bytes(o->compute_type);
    const int64_t gradient = dpar_type_bytes(o->gradient_type);
    dpari_zero(s, sizeof *s);
    dpari_fsdp_place(d, NULL, &s->plan);
    if (dpari_fsdp_wide(o)) {
        s->weights = d->whole_sum * compute;
    } else {
        s->gathered = d->slots * d->largest * compute;
    }
    if (dpari_fsdp_kept(o)) {
        s->gradients = d->whole_sum * gradient;
    } else {
        s->gradients = d->shard_sum * dpar_type_bytes(dpari_fsdp_sums(o));
        s->buckets = d->buckets * d->largest * gradient;
    }
    if (!dpari_fsdp_inside(o)) {
        s->master = d->shard_sum * dpar_type_bytes(o->type);
    }
    s->moments = d->shard_sum * dpar_type_bytes(dpari_fsdp_moment_type(o)) *
                 dpari_optimizer_moments(&o->optimizer);
    s->registered = dpari_room_up(s->weights) + dpari_room_up(s->gathered) +
                    dpari_room_up(s->gradients) + dpari_room_up(s->buckets) +
                    dpari_room_up(s->master) + dpari_room_up(s->moments);
}

/* Checks a descriptor and counts what it describes. */
static dpar_status dpari_fsdp_plan(dpar_fsdp *d, int32_t shards, const dpar_fsdp_desc *desc,
                                   dpar_fsdp_sizes *sizes, dpar_why *why)
{
    dpar_fsdp_desc full;
    dpar_status st;
    if (desc == NULL) {
        return dpari_wrong(why, "fsdp: the descriptor is NULL");
    }
    full = dpari_fsdp_complete(desc);
    st = dpari_fsdp_judge(shards, &full, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_fsdp_count(d, shards, &full, why);
    if (st == DPAR_OK) {
        dpari_fsdp_sizes_of(d, sizes);
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

/* ---- make and free ----------------------------------------------------------------------------
 */

/* The values that all ranks must give alike in dpar_fsdp_make or dpar_fsdp_load. */
typedef struct dpari_fsdp_given {
    const dpar_comm *shard; /* set when ranks compare across replicas, NULL within one */
    const dpar_fsdp *fsdp;
    int32_t replicas; /* 1 if there are replicas */
    int32_t ranks;    /* of dpar_fsdp_load */
    int64_t steps;    /* of dpar_fsdp_load */
} dpari_fsdp_given;

/* Lists what tells ranks apart: across replicas they must have the same shard of as many. */
static DPARI_COLD void dpari_fsdp_state_place(dpari_facts *f, const dpari_fsdp_given *g)
{
    if (g->shard != NULL) {
        f->of = "across replicas: ";
        dpari_fact(f, "the number of shards", 0, g->shard->size);
        dpari_fact(f, "the rank in the shards' communicator", 0, g->shard->rank);
    } else {
        dpari_fact(f, "replicas != NULL", 0, g->replicas);
    }
}

/* Lists what all ranks must give alike in dpar_fsdp_make. */
static DPARI_COLD void dpari_fsdp_state(dpari_facts *f, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    const dpar_fsdp_desc *o = &g->fsdp->desc;
    const dpar_optimizer *m = &o->optimizer;
    int32_t i;
    dpari_fsdp_state_place(f, g);
    dpari_fact(f, "the number of units", 0, g->fsdp->units);
    dpari_fact(f, "zero", 0, o->zero);
    dpari_fact_type(f, "type", 0, o->type);
    dpari_fact_type(f, "compute_type", 0, o->compute_type);
    dpari_fact_type(f, "gradient_type", 0, o->gradient_type);
    dpari_fact(f, "prefetch", 0, o->prefetch);
    dpari_fact(f, "gradient_buffers", 0, dpari_most(1, o->gradient_buffers));
    dpari_fact(f, "units_in_use", 0, dpari_most(1, o->units_in_use));
    dpari_fact(f, "reduce_last", 0, o->reduce_last);
    dpari_fact(f, "sum", 0, o->sum);
    dpari_fact(f, "overwrite_gradients", 0, o->overwrite_gradients);
    dpari_fact(f, "align", 0, dpari_most(1, o->align));
    dpari_fact(f, "optimizer.kind", 0, m->kind);
    dpari_fact(f, "optimizer.nesterov", 0, m->nesterov);
    dpari_fact(f, "optimizer.stochastic", 0, m->stochastic);
    dpari_fact_type(f, "optimizer.moment_type", 0, dpari_fsdp_moment_type(o));
    dpari_fact_hash(f, "optimizer.seed", 0, m->seed);
    dpari_fact_real(f, "optimizer.beta1", 0, m->beta1);
    dpari_fact_real(f, "optimizer.beta2", 0, m->beta2);
    dpari_fact_real(f, "optimizer.epsilon", 0, m->epsilon);
    dpari_fact_real(f, "optimizer.momentum", 0, m->momentum);
    dpari_fact_real(f, "optimizer.decay", 0, m->decay);
    for (i = 0; i < g->fsdp->units; i++) {
        dpari_fact(f, "params_per_unit[#]", i, dpari_fsdp_params(o, i));
    }
    for (i = 0; i < g->fsdp->params; i++) {
        dpari_fact(f, "count[#]", i, o->count[i]);
    }
}

/* Lists what all ranks must give alike in dpar_fsdp_load. */
static DPARI_COLD void dpari_fsdp_state_load(dpari_facts *f, const void *given)
{
    const dpari_fsdp_given *g = (const dpari_fsdp_given *)given;
    dpari_fsdp_state_place(f, g);
    dpari_fact(f, "the number of ranks that saved", 0, g->ranks);
    dpari_fact(f, "the number of steps", 0, g->steps);
}

/* Computes where each unit and parameter is, and empties slots and buckets. */
static dpar_status dpari_fsdp_lay(dpar_fsdp *d, dpar_why *why)
{
    const int64_t *count = d->desc.count;
    int64_t shard_at = 0, whole_at = 0;
    uint64_t key = 0;
    int32_t u, i, first = 0;
    for (u = 0; u < d->units; u++) {
        dpari_fsdp_unit *n = &d->unit[u];
        dpar_status st;
        dpari_zero(n, sizeof *n);
        n->first = first;
        n->last = first + dpari_fsdp_params(&d->desc, u);
        st = dpari_flat_init(&n->flat, n->last - first, count + first, dpari_most(1, d->desc.align),
                             d->shard->size, d->start + first, why);
        if (st != DPAR_OK) {
            return st;
        }
        for (i = first; i < n->last; i++) {
            d->count[i] = count[i];
            d->home[i] = u;
        }
        n->shard_at = shard_at;
        n->whole_at = whole_at;
        n->key = key;
        n->slot = n->bucket = -1;
        n->fresh = n->adds = 1;
        shard_at += n->flat.shard;
        whole_at += n->flat.shard * d->shard->size;
        key += (uint64_t)n->flat.total;
        first = n->last;
    }
    for (i = 0; i < d->slots; i++) {
        dpari_zero(&d->slot[i], sizeof d->slot[i]);
        d->slot[i].unit = -1;
    }
    for (i = 0; i < d->buckets; i++) {
        dpari_zero(&d->bucket[i], sizeof d->bucket[i]);
        d->bucket[i].unit = -1;
    }
    return DPAR_OK;
}

/* Allocates the registered memory and divides it into its parts. */
static dpar_status dpari_fsdp_take(dpar_fsdp *d, const dpar_fsdp_sizes *s, dpar_why *why)
{
    const int64_t moment = d->shard_sum * dpar_type_bytes(dpari_fsdp_moment_type(&d->desc));
    void *memory = NULL;
    unsigned char *at;
    dpar_status st = dpar_comm_alloc(d->shard, dpari_most(64, s->registered), &memory);
    if (st != DPAR_OK) {
        return dpari_say(st, why, "%s: no memory for %ld bytes", "fsdp", s->registered);
    }
    at = d->memory = (unsigned char *)memory;
    d->weights = at; /* whole weights or a pool; the size of the other one is 0 */
    at += dpari_room_up(s->weights) + dpari_room_up(s->gathered);
    d->grads = at; /* whole gradients, or buckets and then sums */
    if (!dpari_fsdp_kept(&d->desc)) {
        at += dpari_room_up(s->buckets);
    }
    d->sums = at;
    at += dpari_room_up(s->gradients);
    d->master = at;
    at += dpari_room_up(s->master);
    d->moment[0] = at;
    d->moment[1] = at + moment;
    if (d->shard->mem != NULL && d->shard->mem->pin != NULL) {
        st = d->shard->mem->pin(d->shard->mem->ctx, &d->squares, (int64_t)sizeof d->squares);
        d->pinned = st == DPAR_OK;
    }
    return st;
}

/* Frees the registered memory. */
static void dpari_fsdp_give_back(dpar_fsdp *d)
{
    if (d->pinned && d->shard->mem->unpin != NULL) {
        (void)d->shard->mem->unpin(d->shard->mem->ctx, &d->squares);
    }
    if (d->memory != NULL) {
        dpar_comm_release(d->shard, d->memory);
    }
}

/* Agrees on a status over both communicators. If state is NULL, nothing is compared. */
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

/* Lays out what was counted, in memory that has been provided. */
static dpar_status dpari_fsdp_build(dpar_fsdp *d, dpar_comm *comm, const dpar_fsdp_sizes *sizes,
                                    dpar_why *why)
{
    int64_t plan;
    dpar_status st;
    dpari_fsdp_place(d, d, &plan);
    d->shard = comm;
    d->replicas = d->desc.replicas;
    st = dpari_fsdp_lay(d, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_fsdp_take(d, sizes, why);
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
    replicas = desc != NULL ? desc->replicas : NULL;
    sizes.plan = 0;
    st = fsdp == NULL ? dpari_wrong(why, "dpar_fsdp_make: the result is NULL")
                      : dpari_fsdp_plan(&counted, comm->size, desc, &sizes, why);
    if (st == DPAR_OK) {
        st = dpari_object_memory(comm, desc->memory, desc->bytes, sizes.plan, "fsdp", &memory, why);
    }
    dpari_zero(&given, sizeof given);
    given.fsdp = &counted;
    st = dpari_fsdp_agree(comm, replicas, st, "fsdp", dpari_fsdp_state, &given, why);
    if (st == DPAR_OK) {
        d = (dpar_fsdp *)memory;
        *d = counted;
        st = dpari_fsdp_agree(comm, replicas, dpari_fsdp_build(d, comm, &sizes, why), "fsdp", NULL,
                              &given, why);
        if (st == DPAR_OK) {
            *fsdp = d;
            return DPAR_OK;
        }
        dpari_fsdp_give_back(d);
    }
    return dpari_object_failed(st, desc != NULL ? desc->memory : NULL, memory, sizes.plan, why);
}

/* True if one of the communicators is broken. */
static int dpari_fsdp_broken(const dpar_fsdp *d)
{
    return d->shard->status != DPAR_OK || (d->replicas != NULL && d->replicas->status != DPAR_OK);
}

/* Waits for all weights that are being gathered, and marks all slots as free, because the masters
 * change. */
static DPARI_COLD dpar_status dpari_fsdp_forget(dpar_fsdp *d)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < d->slots; i++) {
        dpari_fsdp_slot *s = &d->slot[i];
        if (s->unit >= 0) {
            const dpar_status w = dpar_wait(&s->work);
            if (st == DPAR_OK) {
                st = w;
            }
            d->unit[s->unit].slot = -1;
            s->unit = -1;
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_free(dpar_fsdp *d)
{
    int32_t i;
    if (d == NULL) {
        return DPAR_OK;
    }
    if (d->under_way && !dpari_fsdp_broken(d)) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_free: the pass has not ended");
    }
    /* A communicator that broke within a pass still has operations, which end here. */
    (void)dpari_fsdp_forget(d);
    for (i = 0; i < d->buckets; i++) {
        (void)dpar_wait(&d->bucket[i].work);
    }
    for (i = 0; i < d->units; i++) {
        (void)dpar_wait(&d->unit[i].across);
    }
    dpari_fsdp_give_back(d);
    return dpari_object_end(DPAR_OK, d->desc.memory == NULL ? d : NULL);
}

/* Posts a collective on the shards of unit u. The unit is its tag, so that ranks which visit units
 * of equal size in different orders get an error. */
static dpar_status dpari_fsdp_post(dpar_fsdp *d, int32_t kind, int32_t u, const void *in, void *out,
                                   int32_t type, dpar_work *work)
{
    dpar_call call;
    dpari_zero(&call, sizeof call);
    call.kind = kind;
    call.type = type;
    call.tag = u + 1;
    call.in = in;
    call.out = out;
    call.count = d->unit[u].flat.shard;
    if (kind == DPAR_CALL_REDUCE_SCATTER) {
        call.op = d->desc.sum ? DPAR_SUM : DPAR_AVG;
    }
    return dpari_post(d->shard, &call, work);
}

/* ---- addresses --------------------------------------------------------------------------------
 */

static int dpari_fsdp_is_unit(const dpar_fsdp *d, int32_t u)
{
    return d != NULL && u >= 0 && u < d->units;
}

static unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *d, int32_t slot)
{
    const int64_t at = dpari_fsdp_wide(&d->desc) ? d->unit[slot].whole_at : slot * d->largest;
    return d->weights + at * dpar_type_bytes(d->desc.compute_type);
}

static unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *d, int32_t bucket)
{
    const int64_t at = dpari_fsdp_kept(&d->desc) ? d->unit[bucket].whole_at : bucket * d->largest;
    return d->grads + at * dpar_type_bytes(d->desc.gradient_type);
}

/* Returns the bytes from the beginning of a whole unit to this rank's shard. */
static int64_t dpari_fsdp_own(const dpar_fsdp *d, int32_t u, int32_t type)
{
    return d->unit[u].flat.shard * d->shard->rank * dpar_type_bytes(type);
}

static unsigned char *dpari_fsdp_master_at(const dpar_fsdp *d, int32_t u)
{
    if (dpari_fsdp_inside(&d->desc)) {
        return dpari_fsdp_slot_at(d, u) + dpari_fsdp_own(d, u, d->desc.compute_type);
    }
    return d->master + d->unit[u].shard_at * dpar_type_bytes(d->desc.type);
}

/* Returns the address of this rank's shard of reduced gradients, and its type. */
static unsigned char *dpari_fsdp_reduced_at(const dpar_fsdp *d, int32_t u, int32_t *type)
{
    if (dpari_fsdp_kept(&d->desc)) {
        *type = d->desc.gradient_type;
        return dpari_fsdp_bucket_at(d, u) + dpari_fsdp_own(d, u, *type);
    }
    *type = dpari_fsdp_sums(&d->desc);
    return d->sums + d->unit[u].shard_at * dpar_type_bytes(*type);
}

/* Returns the same address after gradients that only count as 0 have been set to 0. */
static unsigned char *dpari_fsdp_settled(const dpar_fsdp *d, int32_t u, int32_t *type)
{
    dpari_fsdp_unit *n = &d->unit[u];
    unsigned char *at = dpari_fsdp_reduced_at(d, u, type);
    const int64_t bytes = n->flat.shard * dpar_type_bytes(*type);
    /* the whole unit, because later passes add to it */
    if (n->fresh && dpari_fsdp_kept(&d->desc)) {
        (void)dpari_do_copy(d->shard, dpari_fsdp_bucket_at(d, u), NULL, bytes * d->shard->size);
    } else if (n->fresh) {
        (void)dpari_do_copy(d->shard, at, NULL, bytes);
    }
    n->fresh = 0;
    return at;
}

static unsigned char *dpari_fsdp_moment_at(const dpar_fsdp *d, int32_t k, int32_t u)
{
    return d->moment[k] + d->unit[u].shard_at * dpar_type_bytes(dpari_fsdp_moment_type(&d->desc));
}

/* Returns the number of the first element of this rank's shard among all elements. */
static uint64_t dpari_fsdp_key(const dpar_fsdp *d, int32_t u)
{
    return d->unit[u].key + (uint64_t)(d->unit[u].flat.shard * d->shard->rank);
}

DPAR_API DPARI_COLD const void *dpar_fsdp_weight(const dpar_fsdp *d, int32_t i)
{
    const dpari_fsdp_unit *n;
    if (d == NULL || i < 0 || i >= d->params) {
        return NULL;
    }
    n = &d->unit[d->home[i]];
    if (!n->used || (n->slot < 0 && n->flat.shard > 0)) {
        return NULL;
    }
    if (n->slot < 0) {
        return d->weights; /* a unit without elements: any address that is not NULL */
    }
    return dpari_fsdp_slot_at(d, n->slot) + d->start[i] * dpar_type_bytes(d->desc.compute_type);
}

DPAR_API DPARI_COLD void *dpar_fsdp_gradient(const dpar_fsdp *d, int32_t i, int *adds)
{
    const dpari_fsdp_unit *n;
    if (adds != NULL) {
        *adds = 1;
    }
    if (d == NULL || i < 0 || i >= d->params) {
        return NULL;
    }
    n = &d->unit[d->home[i]];
    if (adds != NULL) {
        *adds = n->adds;
    }
    if (n->state != DPARI_FSDP_OPEN) {
        return NULL;
    }
    if (n->bucket < 0) {
        return d->grads; /* a unit without elements */
    }
    return dpari_fsdp_bucket_at(d, n->bucket) +
           d->start[i] * dpar_type_bytes(d->desc.gradient_type);
}

DPAR_API int dpar_fsdp_piece(const dpar_fsdp *d, int32_t i, dpar_piece *piece)
{
    dpar_piece unwanted;
    return d != NULL && i >= 0 && i < d->params &&
           dpari_flat_piece(&d->unit[d->home[i]].flat, d->start[i], d->count[i], d->shard->rank,
                            piece != NULL ? piece : &unwanted);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_set(dpar_fsdp *d, int32_t i, const void *values)
{
    const unsigned char *from = (const unsigned char *)values;
    dpar_piece piece;
    int64_t each;
    dpar_status st;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_set: the pass has not ended");
    }
    if (i < 0 || i >= d->params) {
        return dpari_comm_wrong(
            d->shard, "dpar_fsdp_set: parameter %d does not exist (the model has %d parameters)", i,
            d->params);
    }
    if (values == NULL && d->count[i] > 0) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_set: the %ld values of parameter %d are NULL",
                                d->count[i], i);
    }
    each = dpar_type_bytes(d->desc.type);
    st = dpari_fsdp_forget(d);
    if (st == DPAR_OK && dpar_fsdp_piece(d, i, &piece)) {
        st = dpari_do_copy(d->shard, dpari_fsdp_master_at(d, d->home[i]) + piece.in_shard * each,
                           from + piece.in_param * each, piece.count * each);
    }
    return st;
}

/* ---- weights ----------------------------------------------------------------------------------
 */

/* Writes "unit 'wte'" or "unit 3". */
static DPARI_COLD void dpari_fsdp_put_unit(const dpar_fsdp *d, dpar_text *t, int32_t u)
{
    const char *name = d->desc.names != NULL ? d->desc.names[u] : NULL;
    dpar_text_put(t, name != NULL ? "unit '" : "unit ");
    if (name != NULL) {
        dpari_text_print(t, "%s'", name);
    } else {
        dpari_text_int(t, u);
    }
}

/* Reports that no slot or bucket is left for unit u, and which units hold them. */
static DPARI_COLD dpar_status dpari_fsdp_no_room(dpar_fsdp *d, int32_t u, int32_t gradients)
{
    enum { NAMED = 3 };
    dpar_why why;
    dpar_text t;
    int32_t v, n = 0;
    dpar_text_init(&t, why.text, sizeof why.text);
    dpar_text_put(&t, gradients ? "fsdp: no memory is left for the gradients of "
                                : "fsdp: no memory is left for the weights of ");
    dpari_fsdp_put_unit(d, &t, u);
    dpar_text_put(&t, " in addition to those of ");
    for (v = 0; v < d->units; v++) {
        const int holds = gradients ? d->unit[v].state == DPARI_FSDP_OPEN : d->unit[v].used;
        if (!holds) {
            continue;
        }
        if (n < NAMED) {
            dpar_text_put(&t, n > 0 ? ", " : "");
            dpari_fsdp_put_unit(d, &t, v);
        }
        n++;
    }
    if (n > NAMED) {
        dpari_text_say(&t, " and %d more", n - (int32_t)NAMED);
    }
    dpar_text_put(&t, gradients ? ", which are not ready; desc.units_in_use sets how many"
                                : ", which are in use; desc.units_in_use sets how many");
    return dpari_comm_say(d->shard, DPAR_E_ROOM, "%s", why.text);
}

/* Returns a slot for unit u, or -1 if there is none: a free one, otherwise the slot of the unit
 * that is needed last. Forward that is the first unit, backward the last. Units in use, and units
 * lo .. hi, which are wanted next, keep their slots. */
static int32_t dpari_fsdp_pick(const dpar_fsdp *d, int32_t u, int32_t lo, int32_t hi, int32_t back)
{
    int32_t i, best = -1;
    if (dpari_fsdp_wide(&d->desc)) {
        return u;
    }
    for (i = 0; i < d->slots; i++) {
        const int32_t v = d->slot[i].unit;
        if (v < 0) {
            return i;
        }
        if (d->unit[v].used || (v >= lo && v <= hi)) {
            continue;
        }
        if (best < 0 || (back ? v > d->slot[best].unit : v < d->slot[best].unit)) {
            best = i;
        }
    }
    return best;
}

/* Converts this rank's masters to its part of the weights in `to`, which have another type. */
static dpar_status dpari_fsdp_cast(const dpar_fsdp *d, int32_t u, unsigned char *to)
{
    const dpar_fsdp_desc *o = &d->desc;
    const int64_t count = d->unit[u].flat.shard;
    dpar_mem_round r;
    if (o->compute_type != DPAR_BF16 || !o->optimizer.stochastic) {
        return dpari_do_convert(d->shard, to, o->compute_type, dpari_fsdp_master_at(d, u), o->type,
                                count, 0);
    }
    dpari_zero(&r, sizeof r);
    r.to = to;
    r.from = dpari_fsdp_master_at(d, u);
    r.count = count;
    r.from_type = o->type;
    r.seed = o->optimizer.seed;
    r.stream = (uint64_t)d->steps;
    r.index = dpari_fsdp_key(d, u);
    return dpari_do_round(d->shard, &r);
}

/* Requests unit u's weights. Returns DPAR_MORE if there is no slot for them. */
static DPARI_COLD dpar_status dpari_fsdp_ask(dpar_fsdp *d, int32_t u, int32_t lo, int32_t hi,
                                             int32_t back)
{
    dpari_fsdp_unit *n = &d->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *mine;
    dpar_status st;
    int32_t slot;
    if (n->slot >= 0 || n->flat.shard == 0) {
        return DPAR_OK;
    }
    slot = dpari_fsdp_pick(d, u, lo, hi, back);
    if (slot < 0) {
        return DPAR_MORE;
    }
    s = &d->slot[slot];
    if (s->unit >= 0) {
        st = dpar_wait(&s->work);
        d->unit[s->unit].slot = -1;
        s->unit = -1;
        if (st != DPAR_OK) {
            return st;
        }
    }
    whole = dpari_fsdp_slot_at(d, slot);
    mine = dpari_fsdp_master_at(d, u);
    if (d->desc.type != d->desc.compute_type) {
        mine = whole + dpari_fsdp_own(d, u, d->desc.compute_type);
        st = dpari_fsdp_cast(d, u, mine);
        if (st != DPAR_OK) {
            return st;
        }
    }
    st = dpari_fsdp_post(d, DPAR_CALL_ALL_GATHER, u, mine, whole, d->desc.compute_type, &s->work);
    if (st == DPAR_OK) {
        s->unit = u;
        n->slot = slot;
    }
    return st;
}

/* Gathers unit u and requests the units after it in this direction. Waits for u. */
static dpar_status dpari_fsdp_gather(dpar_fsdp *d, int32_t u, int32_t back)
{
    const int64_t ahead = d->desc.prefetch;
    const int32_t lo = back ? (int32_t)dpari_most(0, u - ahead) : u;
    const int32_t hi = back ? u : (int32_t)dpari_least(d->units - 1, u + ahead);
    int32_t k;
    dpar_status st = dpari_fsdp_ask(d, u, lo, hi, back);
    /* all slots are in use or have wanted units; those can be gathered again */
    if (st == DPAR_MORE) {
        st = dpari_fsdp_ask(d, u, u, u, back);
    }
    for (k = 1; k <= hi - lo && st == DPAR_OK; k++) {
        st = dpari_fsdp_ask(d, back ? u - k : u + k, lo, hi, back);
    }
    if (st == DPAR_MORE && d->unit[u].slot < 0 && d->unit[u].flat.shard > 0) {
        return dpari_fsdp_no_room(d, u, 0);
    }
    if (st < DPAR_OK || d->unit[u].slot < 0) {
        return st < DPAR_OK ? st : DPAR_OK;
    }
    return dpar_wait(&d->slot[d->unit[u].slot].work);
}

/* ---- gradients --------------------------------------------------------------------------------
 */

/* a += b, element by element, in the type of a: F64 or F32. */
static void dpari_fsdp_add_here(void *to, int32_t to_type, const void *from, int32_t from_type,
                                int64_t count)
{
    const int32_t to_size = dpar_type_bytes(to_type), from_size = dpar_type_bytes(from_type);
    float f32[DPARI_ELEMENTS];
    double wide[DPARI_ELEMENTS];
    int64_t i, n;
    for (i = 0; i < count; i += n) {
        void *out[1];
        const void *in[2];
        n = from_type == to_type ? count : dpari_least(DPARI_ELEMENTS, count - i);
        out[0] = (unsigned char *)to + i * to_size;
        in[0] = out[0];
        in[1] = (const unsigned char *)from + i * from_size;
        if (from_type != to_type && from_type != DPAR_F32) { /* 16 bits or F64; to F32 first */
            dpari_kern_convert(f32, DPAR_F32, in[1], from_type, n);
            in[1] = f32;
        }
        if (from_type != to_type && to_type == DPAR_F64) {
            dpari_kern_convert(wide, DPAR_F64, in[1], DPAR_F32, n);
            in[1] = wide;
        }
        dpari_kern_reduce(out, 1, in, 2, n, to_type, DPAR_SUM, 0);
    }
}

static dpar_status dpari_fsdp_add(const dpar_fsdp *d, void *to, int32_t to_type, const void *from,
                                  int32_t from_type, int64_t count)
{
    if (d->shard->mem != NULL) {
        return dpari_do_convert(d->shard, to, to_type, from, from_type, count, 1);
    }
    dpari_fsdp_add_here(to, to_type, from, from_type, count);
    return DPAR_OK;
}

/* Completes the reduction of bucket b. */
static DPARI_COLD dpar_status dpari_fsdp_collect(dpar_fsdp *d, int32_t b)
{
    const dpar_fsdp_desc *o = &d->desc;
    dpari_fsdp_slot *s = &d->bucket[b];
    const int32_t u = s->unit;
    dpari_fsdp_unit *n = &d->unit[u];
    int32_t type;
    void *reduced = dpari_fsdp_reduced_at(d, u, &type);
    dpar_status st = dpar_wait(&s->work);
    s->unit = -1;
    s->sent = 0;
    n->bucket = -1;
    if (st != DPAR_OK) {
        return st;
    }
    if (!dpari_fsdp_kept(o) && !s->straight) {
        const unsigned char *came =
            dpari_fsdp_bucket_at(d, b) + dpari_fsdp_own(d, u, o->gradient_type);
        if (n->fresh && o->gradient_type != type) {
            st =
                dpari_do_convert(d->shard, reduced, type, came, o->gradient_type, n->flat.shard, 0);
        } else {
            reduced = dpari_fsdp_settled(d, u, &type);
            st = dpari_fsdp_add(d, reduced, type, came, o->gradient_type, n->flat.shard);
        }
    }
    n->fresh = 0;
    if (st == DPAR_OK && d->last && d->replicas != NULL) {
        st = dpar_all_reduce(d->replicas, reduced, reduced, n->flat.shard, type,
                             o->sum ? DPAR_SUM : DPAR_AVG, &n->across);
    }
    return st;
}

/* Prepares the bucket of unit u. If gradients of earlier passes are kept, they stay. Otherwise all
 * is set to 0; with overwrite_gradients only the gaps between parameters and the end are, because
 * backward assigns the rest. */
static dpar_status dpari_fsdp_clear(dpar_fsdp *d, int32_t u, unsigned char *whole)
{
    dpari_fsdp_unit *n = &d->unit[u];
    const int64_t each = dpar_type_bytes(d->desc.gradient_type),
                  all = n->flat.shard * d->shard->size;
    const int earlier = dpari_fsdp_kept(&d->desc) && !n->fresh;
    dpar_status st = DPAR_OK;
    int64_t at = 0;
    int32_t i;
    n->adds = earlier || !d->desc.overwrite_gradients;
    n->fresh = n->fresh && !dpari_fsdp_kept(&d->desc);
    if (earlier) {
        return DPAR_OK;
    }
    for (i = n->first; i < n->last && d->desc.overwrite_gradients && st == DPAR_OK; i++) {
        st = dpari_do_copy(d->shard, whole + at * each, NULL, (d->start[i] - at) * each);
        at = d->start[i] + d->count[i];
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_copy(d->shard, whole + at * each, NULL, (all - at) * each);
}

/* The bucket that a unit's gradients may use: a free one, otherwise that which was sent first; -1
 * if all hold gradients that are not ready. */
static int32_t dpari_fsdp_pick_bucket(const dpar_fsdp *d)
{
    int32_t i, best = -1;
    for (i = 0; i < d->buckets; i++) {
        const dpari_fsdp_slot *s = &d->bucket[i];
        if (s->unit < 0) {
            return i;
        }
        if (s->sent && (best < 0 || s->sent < d->bucket[best].sent)) {
            best = i;
        }
    }
    return best;
}

/* Gives the gradients of unit u a bucket in which backward computes them. */
static dpar_status dpari_fsdp_open(dpar_fsdp *d, int32_t u)
{
    dpari_fsdp_unit *n = &d->unit[u];
    int32_t b = u;
    if (n->flat.shard > 0 && !dpari_fsdp_kept(&d->desc)) {
        b = dpari_fsdp_pick_bucket(d);
        if (b < 0) {
            return dpari_fsdp_no_room(d, u, 1);
        }
        if (d->bucket[b].unit >= 0) {
            const dpar_status st = dpari_fsdp_collect(d, b);
            if (st != DPAR_OK) {
                return st;
            }
        }
    }
    n->state = DPARI_FSDP_OPEN;
    if (n->flat.shard == 0) {
        return DPAR_OK;
    }
    n->bucket = b;
    d->bucket[b].unit = u;
    d->bucket[b].sent = 0;
    return dpari_fsdp_clear(d, u, dpari_fsdp_bucket_at(d, b));
}

/* Posts the reduction of unit u's gradients. */
static dpar_status dpari_fsdp_send(dpar_fsdp *d, int32_t u)
{
    const dpar_fsdp_desc *o = &d->desc;
    dpari_fsdp_unit *n = &d->unit[u];
    dpari_fsdp_slot *s;
    unsigned char *whole, *to;
    int32_t b, type, most = 0;
    if (n->bucket < 0) {
        return DPAR_OK;
    }
    s = &d->bucket[n->bucket];
    if (dpari_fsdp_kept(o) && !d->last) {
        s->unit = -1;
        n->bucket = -1;
        return DPAR_OK;
    }
    whole = dpari_fsdp_bucket_at(d, n->bucket);
    for (b = 0; b < d->buckets && !dpari_fsdp_kept(o); b++) {
        most = (int32_t)dpari_most(most, d->bucket[b].sent);
    }
    s->sent = most + 1;
    to = dpari_fsdp_reduced_at(d, u, &type);
    s->straight = n->fresh && !dpari_fsdp_kept(o) && type == o->gradient_type;
    return dpari_fsdp_post(d, DPAR_CALL_REDUCE_SCATTER, u, whole,
                           s->straight ? to : whole + dpari_fsdp_own(d, u, o->gradient_type),
                           o->gradient_type, &s->work);
}

/* ---- a pass ------------------------------------------------------------------------------------
 */

DPAR_API void dpar_fsdp_zero(dpar_fsdp *d)
{
    int32_t u;
    for (u = 0; d != NULL && u < d->units; u++) {
        d->unit[u].fresh = 1;
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_begin(dpar_fsdp *d, int32_t last)
{
    int32_t u;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (dpari_fsdp_broken(d)) {
        return d->shard->status != DPAR_OK ? d->shard->status : d->replicas->status;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->shard,
                                "dpar_fsdp_begin: the previous pass has not ended (dpar_fsdp_end)");
    }
    for (u = 0; u < d->units; u++) {
        d->unit[u].state = DPARI_FSDP_NONE;
    }
    d->under_way = 1;
    d->last = last != 0;
    d->status = DPAR_OK;
    return DPAR_OK;
}

/* Checks the number of a unit and a direction. */
static dpar_status dpari_fsdp_check_unit(dpar_fsdp *d, int32_t u, int32_t direction)
{
    if (!dpari_fsdp_is_unit(d, u)) {
        return dpari_comm_wrong(d->shard, "fsdp: unit %d does not exist (there are %d units)", u,
                                d->units);
    }
    if (direction != DPAR_ACTION_FORWARD && direction != DPAR_ACTION_BACKWARD) {
        return dpari_comm_wrong(d->shard,
                                "fsdp: direction %d of unit %d is neither DPAR_ACTION_FORWARD nor "
                                "DPAR_ACTION_BACKWARD",
                                direction, u);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_unshard(dpar_fsdp *d, int32_t u, int32_t direction)
{
    const int32_t back = direction == DPAR_ACTION_BACKWARD;
    dpar_status st;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(d, u, direction);
    if (st != DPAR_OK) {
        return st;
    }
    if (d->unit[u].used) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_unshard: unit %d is already in use", u);
    }
    if (back && !d->under_way) {
        return dpari_comm_wrong(d->shard,
                                "dpar_fsdp_unshard: unit %d for backward outside of a pass", u);
    }
    if (back && d->unit[u].state != DPARI_FSDP_NONE) {
        return dpari_comm_wrong(d->shard,
                                "dpar_fsdp_unshard: unit %d for backward twice in one pass", u);
    }
    if (d->under_way && d->status != DPAR_OK) {
        return d->status;
    }
    st = dpari_fsdp_gather(d, u, back);
    if (st == DPAR_OK && back) {
        st = dpari_fsdp_open(d, u);
    }
    if (st == DPAR_OK) {
        d->unit[u].used = 1;
    } else if (d->under_way && dpari_fsdp_broken(d)) {
        d->status = st;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_reshard(dpar_fsdp *d, int32_t u, int32_t direction)
{
    dpar_status st;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_unit(d, u, direction);
    if (st != DPAR_OK) {
        return st;
    }
    if (!d->unit[u].used) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_reshard: unit %d is not in use", u);
    }
    d->unit[u].used = 0;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_ready(dpar_fsdp *d, int32_t u)
{
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (!dpari_fsdp_is_unit(d, u) || !d->under_way || d->unit[u].state != DPARI_FSDP_OPEN) {
        return dpari_comm_wrong(d->shard,
                                "dpar_fsdp_ready: unit %d of %d was not unsharded for backward in "
                                "this pass, or is already ready",
                                u, d->units);
    }
    d->unit[u].state = DPARI_FSDP_DONE;
    if (d->status == DPAR_OK) {
        d->status = dpari_fsdp_send(d, u);
    }
    return d->status;
}

/* Checks at the end of a pass that no unit is in use and all gradients are ready. If not, the pass
 * fails on all ranks. */
static void dpari_fsdp_look(dpar_fsdp *d)
{
    int32_t u;
    for (u = 0; u < d->units && d->status == DPAR_OK; u++) {
        const dpari_fsdp_unit *n = &d->unit[u];
        if (n->used || n->state == DPARI_FSDP_OPEN ||
            (d->last && n->state == DPARI_FSDP_NONE && n->flat.shard > 0)) {
            dpar_why why;
            (void)dpari_wrong(&why,
                              n->used ? "dpar_fsdp_end: unit %d is still in use on rank %d"
                                      : "dpar_fsdp_end: unit %d is not ready on rank %d",
                              u, d->shard->rank);
            dpar_comm_abort(d->shard, DPAR_E_ARG, why.text);
            d->status = d->shard->status != DPAR_OK ? d->shard->status : DPAR_E_ARG;
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_end(dpar_fsdp *d)
{
    int32_t b, u;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (!d->under_way) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_end: no pass is under way");
    }
    dpari_fsdp_look(d);
    /* if buckets are units, this is the order of backward */
    for (b = d->buckets - 1; b >= 0; b--) {
        if (d->bucket[b].unit >= 0 && d->bucket[b].sent) {
            const dpar_status st = dpari_fsdp_collect(d, b);
            if (d->status == DPAR_OK) {
                d->status = st;
            }
        } else if (d->bucket[b].unit >= 0) {
            d->unit[d->bucket[b].unit].bucket = -1;
            d->bucket[b].unit = -1;
        }
    }
    for (u = 0; u < d->units && d->last && d->replicas != NULL; u++) {
        const dpar_status st = dpar_wait(&d->unit[u].across);
        if (d->status == DPAR_OK) {
            d->status = st;
        }
    }
    for (u = 0; u < d->units; u++) {
        d->unit[u].used = 0;
        d->unit[u].state = DPARI_FSDP_NONE;
    }
    d->under_way = 0;
    return d->status;
}

/* Computes the sum of squares of this rank's shard, and waits for it. */
static dpar_status dpari_fsdp_squares(dpar_fsdp *d)
{
    dpar_status st = DPAR_OK;
    dpar_mem_squares s;
    int32_t u;
    d->squares = 0.0;
    for (u = 0; u < d->units && st == DPAR_OK; u++) {
        dpari_zero(&s, sizeof s);
        s.in = dpari_fsdp_settled(d, u, &s.type);
        s.count = d->unit[u].flat.shard;
        s.accumulate = 1;
        s.sum = &d->squares;
        st = s.count > 0 ? dpari_do_squares(d->shard, &s) : DPAR_OK;
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_do_wait(d->shard);
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_norm(dpar_fsdp *d, double *norm)
{
    double sum;
    dpar_status st;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_norm: the pass has not ended");
    }
    if (norm == NULL) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_norm: norm is NULL");
    }
    st = dpari_fsdp_squares(d);
    if (st != DPAR_OK) {
        return st;
    }
    sum = d->squares;
    st = dpar_all_reduce(d->shard, &sum, &sum, 1, DPAR_F64, DPAR_SUM, NULL);
    if (st == DPAR_OK) {
        *norm = dpari_finite(sum) ? dpari_elements_sqrt(sum) : sum;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_step(dpar_fsdp *d, double rate, double factor)
{
    int32_t u, k;
    dpar_status st;
    if (d == NULL) {
        return DPAR_E_ARG;
    }
    if (d->under_way) {
        return dpari_comm_wrong(d->shard, "dpar_fsdp_step: the pass has not ended");
    }
    st = dpari_fsdp_forget(d);
    if (st != DPAR_OK) {
        return st;
    }
    d->steps++;
    for (u = 0; u < d->units && st == DPAR_OK; u++) {
        dpar_optimizer_piece p;
        dpar_mem_optimize o;
        void *moment[2] = {NULL, NULL};
        for (k = 0; k < dpari_optimizer_moments(&d->desc.optimizer); k++) {
            moment[k] = dpari_fsdp_moment_at(d, k, u);
        }
        dpari_zero(&p, sizeof p);
        p.weight = dpari_fsdp_master_at(d, u);
        p.weight_type = d->desc.type;
        p.gradient = dpari_fsdp_settled(d, u, &p.gradient_type);
        p.m = moment[0];
        p.v = moment[1];
        p.count = d->unit[u].flat.shard;
        p.index = dpari_fsdp_key(d, u);
        dpari_zero(&o, sizeof o);
        o.optimizer = &d->desc.optimizer;
        o.piece = &p;
        o.step = d->steps;
        o.rate = rate;
        o.factor = factor;
        st = dpari_do_optimize(d->shard, &o);
    }
    return st;
}

/* ---- state ------------------------------------------------------------------------------------
 */

/* True if unit u has such an array now. Gradients are available only between passes. */
static int dpari_fsdp_has(const dpar_fsdp *d, int32_t array, int32_t u)
{
    if (!dpari_fsdp_is_unit(d, u) || array < 0) {
        return 0;
    }
    if (array == DPAR_FSDP_GRADIENT) {
        return !d->under_way;
    }
    return array <= dpari_optimizer_moments(&d->desc.optimizer); /* the masters are array 0 */
}

DPAR_API DPARI_COLD void *dpar_fsdp_state(const dpar_fsdp *d, int32_t array, int32_t u,
                                          int64_t *elements, int32_t *type)
{
    const int there = dpari_fsdp_has(d, array, u);
    int32_t of_type = DPAR_TYPE_NONE;
    void *at = NULL;
    if (there && array == DPAR_FSDP_GRADIENT) {
        at = dpari_fsdp_settled(d, u, &of_type);
    } else if (there && array == DPAR_FSDP_MASTER) {
        of_type = d->desc.type;
        at = dpari_fsdp_master_at(d, u);
    } else if (there) {
        of_type = dpari_fsdp_moment_type(&d->desc);
        at = dpari_fsdp_moment_at(d, array - DPAR_FSDP_MOMENT_1, u);
    }
    if (elements != NULL) {
        *elements = there ? d->unit[u].flat.shard : 0;
    }
    if (type != NULL) {
        *type = of_type;
    }
    return at;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_layout(const dpar_fsdp *d, int32_t u, int32_t first,
                                                 int32_t ranks, dpar_layout *layout, dpar_why *why)
{
    dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_status st;
    if (!dpari_fsdp_is_unit(d, u) || layout == NULL || first < 0 || ranks < 1 ||
        ranks - 1 > INT32_MAX - first) {
        return dpari_wrong(
            why,
            "dpar_fsdp_layout: unit %d does not exist, or ranks %d or first %d is not allowed, or "
            "layout is NULL",
            u, ranks, first);
    }
    st = dpar_mesh_init(&mesh, "shard", &ranks, DPAR_ORDER_LAST_FASTEST, 0, why);
    if (st != DPAR_OK) {
        return st;
    }
    mesh.first_rank = first;
    return dpar_layout_init(layout, &mesh, 1, &d->unit[u].flat.total, &cut, why);
}

/* Begins a walk over the parts of this rank's shard in the shards that `ranks` ranks saved. */
static DPARI_COLD dpar_status dpari_fsdp_walk_saved(const dpar_fsdp *d, int32_t u, int32_t ranks,
                                                    dpar_redistribute_cursor *walk, dpar_why *why)
{
    dpar_layout from, to;
    dpar_status st = dpar_fsdp_layout(d, u, 0, ranks, &from, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_fsdp_layout(d, u, 0, d->shard->size, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpar_redistribute_check(&from, &to, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_redistribute_first(walk, &from, &to, d->shard->rank, DPAR_TRANSFER_RECV,
                                   DPAR_REDISTRIBUTE_PRIMARY);
}

/* Reads this rank's shard of one array of one unit, from the shards of `ranks` ranks. */
static DPARI_COLD dpar_status dpari_fsdp_read_one(dpar_fsdp *d, int32_t array, int32_t u,
                                                  int32_t ranks, dpar_fsdp_read_callback read,
                                                  void *ctx, dpar_why *why)
{
    dpar_redistribute_cursor walk;
    dpar_transfer t;
    int64_t count;
    int32_t type;
    unsigned char *at = (unsigned char *)dpar_fsdp_state(d, array, u, &count, &type);
    const int64_t each = dpar_type_bytes(type);
    dpar_status st;
    if (at == NULL || count == 0) {
        return DPAR_OK;
    }
    st = dpari_fsdp_walk_saved(d, u, ranks, &walk, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_copy(d->shard, at, NULL, count * each);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_do_wait(d->shard); /* the callback writes next */
    while (st == DPAR_OK && dpar_redistribute_next(&walk, &t)) {
        const dpar_status got =
            read(ctx, array, u, t.peer, t.theirs[0], t.extent[0], at + t.mine[0] * each);
        if (got < DPAR_OK) { /* a positive status is a condition, not a failure */
            st = dpari_say(
                got, why,
                "dpar_fsdp_load: reading %ld elements of array %d of unit %d that rank %d "
                "saved failed",
                t.extent[0], array, u, t.peer);
        }
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_fsdp_load(dpar_fsdp *d, int32_t ranks, int64_t steps,
                                               dpar_fsdp_read_callback read, void *ctx,
                                               dpar_why *why)
{
    dpari_fsdp_given given;
    int32_t array, u;
    dpar_status st = DPAR_OK;
    if (d == NULL) {
        return dpari_wrong(why, "dpar_fsdp_load: the fsdp is NULL");
    }
    if (read == NULL || ranks < 1 || steps < 0 || d->under_way) {
        st = dpari_wrong(
            why,
            "dpar_fsdp_load: %d ranks (1 or more), %ld steps (0 or more), pass under way: %d "
            "(0), or read is NULL",
            ranks, steps, d->under_way);
    } else {
        st = dpari_fsdp_forget(d);
    }
    for (array = 0; array < DPAR_FSDP_ARRAY_COUNT; array++) {
        for (u = 0; u < d->units && st == DPAR_OK; u++) {
            st = dpari_fsdp_read_one(d, array, u, ranks, read, ctx, why);
        }
    }
    dpari_zero(&given, sizeof given);
    given.ranks = ranks;
    given.steps = steps;
    st = dpari_fsdp_agree(d->shard, d->replicas, st, "fsdp load", dpari_fsdp_state_load, &given,
                          why);
    if (st == DPAR_OK) {
        d->steps = steps;
    }
    return st;
}
