/* SPDX-License-Identifier: MIT-0 */
#include "fsdp_place.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/memory_calls.h"
#include "../host/elements.h"
#include "../host/moment_codes.h"
#include "../host/optimizer_private.h"
#include "../index/flat.h"
#include "../index/index_private.h"

/* ---- the descriptor -------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_fsdp_weights_whole(const dpar_fsdp_desc *desc)
{
    return desc->zero < 3;
}

DPARI_INTERNAL int dpari_fsdp_gradients_whole(const dpar_fsdp_desc *desc)
{
    return desc->zero < 2 || desc->reduce_last;
}

/* True if the masters are a part of the whole weights and need no separate array. */
static int dpari_fsdp_inside(const dpar_fsdp_desc *desc)
{
    return dpari_fsdp_weights_whole(desc) && desc->type == desc->compute_type;
}

DPARI_INTERNAL int32_t dpari_fsdp_moment_type(const dpar_fsdp_desc *desc)
{
    return dpari_optimizer_moment_type(&desc->optimizer, desc->type);
}

DPARI_INTERNAL int64_t dpari_fsdp_shard(const dpar_fsdp_desc *desc, int64_t total, int32_t shards)
{
    return dpari_moment_whole(dpari_fsdp_moment_type(desc), dpari_ceil_div(total, shards));
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

DPARI_INTERNAL int32_t dpari_fsdp_slices(const dpar_fsdp_array *array)
{
    return (int32_t)dpari_most(1, array->slices);
}

DPARI_INTERNAL int32_t dpari_fsdp_params(const dpar_fsdp_desc *desc, int32_t u)
{
    return desc->params_per_unit != NULL ? desc->params_per_unit[u] : 1;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_fsdp_listed(const dpar_fsdp_desc *desc, int64_t params)
{
    return desc->arrays > 0 ? desc->arrays : (int32_t)params;
}

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_range(const dpar_fsdp_desc *desc, int32_t u,
                                                int64_t first, int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = desc->arrays;
    if (desc->arrays == 0) {
        *begin = first;
        *end = first + dpari_fsdp_params(desc, u);
    }
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_fsdp_elements(const dpar_fsdp_desc *desc, int32_t u,
                                                      int64_t place)
{
    const dpar_fsdp_array *a;
    if (desc->arrays == 0) {
        return desc->count[place];
    }
    a = &desc->array[place];
    return u >= a->unit && u - a->unit < dpari_fsdp_slices(a) ? a->count : -1;
}

DPARI_INTERNAL int32_t dpari_fsdp_flag(const int32_t *flags, int32_t u)
{
    return flags != NULL ? flags[u] : 0;
}

static DPARI_COLD dpar_status dpari_fsdp_check_types(const dpar_fsdp_desc *desc, dpar_why *why)
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

/* Checks the sizes and units of the arrays. */
static DPARI_COLD dpar_status dpari_fsdp_check_slices(const dpar_fsdp_desc *desc, dpar_why *why)
{
    int32_t i, u;
    if (desc->arrays < 0 || desc->array == NULL || desc->count != NULL ||
        desc->params_per_unit != NULL) {
        return dpari_wrong(
            why,
            "fsdp: arrays is %d, but must be 0 or more; above 0, desc.array must not "
            "be NULL, but desc.count and desc.params_per_unit must",
            desc->arrays);
    }
    for (i = 0; i < desc->arrays; i++) {
        const dpar_fsdp_array *a = &desc->array[i];
        const int32_t slices = dpari_fsdp_slices(a);
        int wrong = a->count < 0 || a->slices < 0 || a->unit < 0 || slices > desc->units - a->unit;
        /* a pointer cannot point to the slices of several units during a whole pass */
        for (u = a->unit; slices > 1 && u < a->unit + slices && !wrong; u++) {
            wrong = dpari_fsdp_flag(desc->resident, u);
        }
        if (wrong) {
            return dpari_wrong(
                why,
                "fsdp: array %d has %d slices of %ld elements from unit %d on, but "
                "sizes must be 0 or more, the units among the %d that exist, and not "
                "resident if there are several slices",
                i, a->slices, a->count, a->unit, desc->units);
        }
    }
    return DPAR_OK;
}

/* Checks a descriptor whose defaults are filled in, except for the lists. */
static DPARI_COLD dpar_status dpari_fsdp_check_desc(int32_t shards, const dpar_fsdp_desc *desc,
                                                    dpar_why *why)
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
    if (desc->units > 0 && desc->count == NULL && desc->arrays == 0) {
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
    if (st == DPAR_OK && desc->arrays != 0) {
        st = dpari_fsdp_check_slices(desc, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    return dpar_optimizer_check(&desc->optimizer, desc->type, NULL, NULL, why);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_fsdp_place(dpar_fsdp *fsdp, void *memory, int64_t *bytes)
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
    if (fsdp->desc.arrays > 0) {
        fsdp->array_of = (int32_t *)dpari_room_take(&r, fsdp->params, sizeof *fsdp->array_of);
        fsdp->array =
            (dpar_fsdp_array *)dpari_room_take(&r, fsdp->desc.arrays, sizeof *fsdp->array);
    }
    *bytes = r.used;
}

/* Counts the parameters of unit u, whose first has number `first`, and its elements. Parameters
 * follow each other at multiples of `align`. */
static DPARI_COLD dpar_status dpari_fsdp_total(const dpar_fsdp_desc *desc, int32_t u, int64_t first,
                                               int64_t align, int64_t *params, int64_t *total,
                                               dpar_why *why)
{
    int64_t i, begin, end;
    dpari_fsdp_range(desc, u, first, &begin, &end);
    *params = 0;
    *total = 0;
    for (i = begin; i < end; i++) {
        const int64_t at = *total + (align - *total % align) % align;
        const int64_t count = dpari_fsdp_elements(desc, u, i);
        if (count < 0 && desc->arrays > 0) {
            continue;
        }
        if (count < 0) {
            return dpari_wrong(
                why, "fsdp: parameter %d of unit %d has %ld elements, but must have 0 or more",
                (int32_t)(i - begin), u, count);
        }
        if (count > (INT64_C(1) << 48) || at > (INT64_C(1) << 48)) {
            return dpari_say(DPAR_E_RANGE, why, "fsdp: unit %d has more than 2^48 elements", u);
        }
        *total = at + count;
        *params += 1;
    }
    return DPAR_OK;
}

/* Computes the number of slots and of buckets. */
static DPARI_COLD void dpari_fsdp_count_slots(dpar_fsdp *fsdp)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t in_use = dpari_most(1, desc->units_in_use);
    fsdp->slots = fsdp->units;
    fsdp->buckets = fsdp->units;
    if (!dpari_fsdp_weights_whole(desc)) {
        fsdp->pool_slots = (int32_t)dpari_least(fsdp->full, desc->prefetch + in_use);
        fsdp->slots = fsdp->pool_slots + fsdp->residents;
    }
    if (!dpari_fsdp_gradients_whole(desc)) {
        fsdp->pool_buckets =
            (int32_t)dpari_least(fsdp->full_trained, dpari_most(in_use, desc->gradient_buffers));
        fsdp->buckets = fsdp->pool_buckets + fsdp->residents;
    }
}

/* Counts the parameters, elements and slots of a descriptor, and stores the numbers in `fsdp`. */
static DPARI_COLD dpar_status dpari_fsdp_count(dpar_fsdp *fsdp, int32_t shards,
                                               const dpar_fsdp_desc *desc, dpar_why *why)
{
    const int64_t align = dpari_most(1, desc->align);
    int64_t params = 0, here, total, pool, whole = 0;
    int32_t u, i;
    dpari_zero(fsdp, sizeof *fsdp);
    fsdp->desc = *desc;
    fsdp->units = desc->units;
    for (u = 0; u < fsdp->units; u++) {
        const int32_t frozen = dpari_fsdp_flag(desc->frozen, u);
        const int32_t resident = dpari_fsdp_flag(desc->resident, u);
        dpar_status st;
        if (!dpari_is_flag(frozen) || !dpari_is_flag(resident)) {
            const int good = dpari_is_flag(frozen);
            return dpari_wrong(why, "fsdp: %s[%d] is %d, but must be 0 or 1",
                               good ? "resident" : "frozen", u, good ? resident : frozen);
        }
        if (dpari_fsdp_params(desc, u) < 0 || align > (INT64_C(1) << 40)) {
            return dpari_wrong(
                why,
                "fsdp: unit %d has %d parameters and align is %ld, but a unit must have 0 or more, "
                "and align must be at most 2^40",
                u, dpari_fsdp_params(desc, u), align);
        }
        st = dpari_fsdp_total(desc, u, params, align, &here, &total, why);
        if (st != DPAR_OK) {
            return st;
        }
        params += here;
        total = dpari_fsdp_shard(desc, total, shards);
        fsdp->shard_sum += total;
        whole += total * shards;
        fsdp->residents += resident;
        if (resident) {
            fsdp->resident_sum += total * shards;
        } else {
            fsdp->largest = dpari_most(fsdp->largest, total * shards);
            fsdp->full += total > 0;
        }
        if (!frozen) {
            fsdp->trained_sum += total;
        }
        if (!frozen && resident) {
            fsdp->resident_trained_sum += total * shards;
        } else if (!frozen) {
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
    for (i = 0; i < dpari_fsdp_listed(desc, params) && desc->groups > 0; i++) {
        if (desc->group_of[i] < -1 || desc->group_of[i] >= desc->groups) {
            return dpari_wrong(
                why, "fsdp: group_of[%d] is %d, but must be one of the %d groups, or -1 for none",
                i, desc->group_of[i], desc->groups);
        }
    }
    fsdp->params = (int32_t)params;
    dpari_fsdp_count_slots(fsdp);
    pool = dpari_most(1, dpari_most(fsdp->pool_slots, fsdp->pool_buckets));
    if (fsdp->largest > DPARI_FSDP_MOST / pool) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "fsdp: %ld units of up to %ld elements are in memory at once, but together they may "
            "have at most 2^50 elements",
            pool, fsdp->largest);
    }
    return DPAR_OK;
}

static DPARI_COLD void dpari_fsdp_sizes_of(dpar_fsdp *fsdp, int32_t shards, dpar_fsdp_sizes *s)
{
    const dpar_fsdp_desc *desc = &fsdp->desc;
    const int64_t compute = dpar_type_bytes(desc->compute_type);
    const int64_t gradient = dpar_type_bytes(desc->gradient_type);
    dpari_zero(s, sizeof *s);
    dpari_fsdp_place(fsdp, NULL, &s->plan);
    if (dpari_fsdp_weights_whole(desc)) {
        s->weights = fsdp->shard_sum * shards * compute;
    } else {
        s->gathered = (fsdp->pool_slots * fsdp->largest + fsdp->resident_sum) * compute;
    }
    if (dpari_fsdp_gradients_whole(desc)) {
        s->gradients = fsdp->trained_sum * shards * gradient;
    } else {
        s->gradients = fsdp->trained_sum * dpar_type_bytes(dpari_wide_type(desc->type));
        s->buckets =
            (fsdp->pool_buckets * fsdp->largest_trained + fsdp->resident_trained_sum) * gradient;
    }
    if (!dpari_fsdp_inside(desc)) {
        s->master = fsdp->shard_sum * dpar_type_bytes(desc->type);
    }
    s->moments = dpari_moment_bytes(dpari_fsdp_moment_type(desc), fsdp->trained_sum) *
                 dpari_optimizer_moments(&desc->optimizer);
    s->registered = dpari_room_up(s->weights) + dpari_room_up(s->gathered) +
                    dpari_room_up(s->gradients) + dpari_room_up(s->buckets) +
                    dpari_room_up(s->master) + dpari_room_up(s->moments);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_plan(dpar_fsdp *fsdp, int32_t shards,
                                                      const dpar_fsdp_desc *desc,
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

/* Empties the first `pool` of `count` slots or buckets, each of `largest` elements. Returns the
 * number of their elements. */
static DPARI_COLD int64_t dpari_fsdp_place_pool(dpari_fsdp_slot *slot, int32_t count, int32_t pool,
                                                int64_t largest)
{
    int32_t i;
    for (i = 0; i < count; i++) {
        dpari_zero(&slot[i], sizeof slot[i]);
        slot[i].unit = -1;
        slot[i].at = i < pool ? i * largest : 0;
    }
    return pool * largest;
}

/* Places the slots and buckets: first those of the pool, then one for each unit that has its own.
 * These are all units if the weights or gradients stay whole, otherwise the resident ones. */
static DPARI_COLD void dpari_fsdp_place_slots(dpar_fsdp *fsdp)
{
    const int weights_whole = dpari_fsdp_weights_whole(&fsdp->desc);
    const int gradients_whole = dpari_fsdp_gradients_whole(&fsdp->desc);
    int64_t at = dpari_fsdp_place_pool(fsdp->slot, fsdp->slots, fsdp->pool_slots, fsdp->largest);
    int64_t gradient_at = dpari_fsdp_place_pool(fsdp->bucket, fsdp->buckets, fsdp->pool_buckets,
                                                fsdp->largest_trained);
    int32_t u, slot = fsdp->pool_slots, bucket = fsdp->pool_buckets;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        const int64_t elements = unit->flat.shard * fsdp->shard->size;
        unit->own_slot = unit->own_bucket = -1;
        if (weights_whole || unit->resident) {
            unit->own_slot = slot;
            fsdp->slot[slot++].at = at;
            at += elements;
        }
        if (gradients_whole || unit->resident) {
            unit->own_bucket = bucket;
            fsdp->bucket[bucket++].at = gradient_at;
            gradient_at += unit->frozen ? 0 : elements;
        }
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fsdp_fill_in(dpar_fsdp *fsdp, dpar_why *why)
{
    int64_t shard_at = 0, trained_at = 0;
    uint64_t key = 0;
    int64_t at, begin, end;
    int32_t u, i, params = 0;
    for (u = 0; u < fsdp->units; u++) {
        dpari_fsdp_unit *unit = &fsdp->unit[u];
        dpar_status st;
        dpari_zero(unit, sizeof *unit);
        unit->first = params;
        dpari_fsdp_range(&fsdp->desc, u, params, &begin, &end);
        for (at = begin; at < end; at++) {
            const int64_t count = dpari_fsdp_elements(&fsdp->desc, u, at);
            if (count < 0) {
                continue;
            }
            fsdp->count[params] = count;
            fsdp->home[params] = u;
            if (fsdp->desc.groups > 0) {
                fsdp->group_of[params] = fsdp->desc.group_of[at];
            }
            if (fsdp->desc.arrays > 0) {
                fsdp->array_of[params] = (int32_t)at;
            }
            params++;
        }
        unit->last = params;
        st = dpari_flat_init(&unit->flat, params - unit->first, fsdp->count + unit->first,
                             dpari_most(1, fsdp->desc.align), fsdp->shard->size,
                             fsdp->start + unit->first, why);
        if (st != DPAR_OK) {
            return st;
        }
        unit->flat.shard = dpari_fsdp_shard(&fsdp->desc, unit->flat.total, fsdp->shard->size);
        unit->frozen = dpari_fsdp_flag(fsdp->desc.frozen, u);
        unit->resident = dpari_fsdp_flag(fsdp->desc.resident, u);
        unit->shard_at = shard_at;
        unit->trained_at = trained_at;
        unit->key = key;
        unit->slot = unit->bucket = -1;
        unit->fresh = unit->adds = 1;
        shard_at += unit->flat.shard;
        trained_at += unit->frozen ? 0 : unit->flat.shard;
        key += (uint64_t)dpari_moment_whole(dpari_fsdp_moment_type(&fsdp->desc), unit->flat.total);
    }
    for (i = 0; i < fsdp->desc.groups; i++) {
        fsdp->group[i] = fsdp->desc.group[i];
    }
    for (i = 0; i < fsdp->desc.arrays; i++) {
        fsdp->array[i] = fsdp->desc.array[i];
    }
    dpari_fsdp_place_slots(fsdp);
    return DPAR_OK;
}

/* ---- addresses ------------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_fsdp_is_unit(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp != NULL && u >= 0 && u < fsdp->units;
}

DPARI_INTERNAL unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *fsdp, int32_t slot)
{
    return fsdp->weights + fsdp->slot[slot].at * dpar_type_bytes(fsdp->desc.compute_type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *fsdp, int32_t bucket)
{
    return fsdp->grads + fsdp->bucket[bucket].at * dpar_type_bytes(fsdp->desc.gradient_type);
}

DPARI_INTERNAL int64_t dpari_fsdp_own(const dpar_fsdp *fsdp, int32_t u, int32_t type)
{
    return fsdp->unit[u].flat.shard * fsdp->shard->rank * dpar_type_bytes(type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_master_at(const dpar_fsdp *fsdp, int32_t u)
{
    if (dpari_fsdp_inside(&fsdp->desc)) {
        return dpari_fsdp_slot_at(fsdp, u) + dpari_fsdp_own(fsdp, u, fsdp->desc.compute_type);
    }
    return fsdp->master + fsdp->unit[u].shard_at * dpar_type_bytes(fsdp->desc.type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_reduced_at(const dpar_fsdp *fsdp, int32_t u, int32_t *type)
{
    if (dpari_fsdp_gradients_whole(&fsdp->desc)) {
        *type = fsdp->desc.gradient_type;
        return dpari_fsdp_bucket_at(fsdp, u) + dpari_fsdp_own(fsdp, u, *type);
    }
    *type = dpari_wide_type(fsdp->desc.type);
    return fsdp->sums + fsdp->unit[u].trained_at * dpar_type_bytes(*type);
}

DPARI_INTERNAL DPARI_COLD unsigned char *dpari_fsdp_settled(const dpar_fsdp *fsdp, int32_t u,
                                                            int32_t *type)
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

DPARI_INTERNAL unsigned char *dpari_fsdp_moment_at(const dpar_fsdp *fsdp, int32_t k, int32_t u)
{
    return fsdp->moment[k] +
           dpari_moment_bytes(dpari_fsdp_moment_type(&fsdp->desc), fsdp->unit[u].trained_at);
}

DPARI_INTERNAL uint64_t dpari_fsdp_key(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp->unit[u].key + (uint64_t)(fsdp->unit[u].flat.shard * fsdp->shard->rank);
}
