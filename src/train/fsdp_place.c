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

DPARI_INTERNAL int32_t dpari_fsdp_params(const dpar_fsdp_desc *desc, int32_t u)
{
    return desc->params_per_unit != NULL ? desc->params_per_unit[u] : 1;
}

DPARI_INTERNAL int32_t dpari_fsdp_is_frozen(const dpar_fsdp_desc *desc, int32_t u)
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

DPARI_INTERNAL void dpari_fsdp_place(dpar_fsdp *fsdp, void *memory, int64_t *bytes)
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
        total = dpari_fsdp_shard(desc, total, shards);
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
    s->moments = dpari_moment_bytes(dpari_fsdp_moment_type(desc), fsdp->trained_sum) *
                 dpari_optimizer_moments(&desc->optimizer);
    s->registered = dpari_room_up(s->weights) + dpari_room_up(s->gathered) +
                    dpari_room_up(s->gradients) + dpari_room_up(s->buckets) +
                    dpari_room_up(s->master) + dpari_room_up(s->moments);
}

DPARI_INTERNAL dpar_status dpari_fsdp_plan(dpar_fsdp *fsdp, int32_t shards,
                                           const dpar_fsdp_desc *desc, dpar_fsdp_sizes *sizes,
                                           dpar_why *why)
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

/* ---- addresses ------------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_fsdp_is_unit(const dpar_fsdp *fsdp, int32_t u)
{
    return fsdp != NULL && u >= 0 && u < fsdp->units;
}

DPARI_INTERNAL unsigned char *dpari_fsdp_slot_at(const dpar_fsdp *fsdp, int32_t slot)
{
    const int64_t at = dpari_fsdp_weights_whole(&fsdp->desc)
                           ? fsdp->unit[slot].shard_at * fsdp->shard->size
                           : slot * fsdp->largest;
    return fsdp->weights + at * dpar_type_bytes(fsdp->desc.compute_type);
}

DPARI_INTERNAL unsigned char *dpari_fsdp_bucket_at(const dpar_fsdp *fsdp, int32_t bucket)
{
    const int64_t at = dpari_fsdp_gradients_whole(&fsdp->desc)
                           ? fsdp->unit[bucket].trained_at * fsdp->shard->size
                           : bucket * fsdp->largest_trained;
    return fsdp->grads + at * dpar_type_bytes(fsdp->desc.gradient_type);
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

DPARI_INTERNAL unsigned char *dpari_fsdp_settled(const dpar_fsdp *fsdp, int32_t u, int32_t *type)
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
