/* SPDX-License-Identifier: MIT-0 */
#include "fsdp_step.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/memory_calls.h"
#include "../host/layers.h"
#include "../host/moment_codes.h"
#include "../host/optimizer_private.h"
#include "fsdp_place.h"
#include "fsdp_private.h"
#include "layer_calls.h"
#include "update_private.h"

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

/* Checks that the gradients are reduced, for the function `name`. */
static DPARI_COLD dpar_status dpari_fsdp_check_reduced(const dpar_fsdp *fsdp, const char *name,
                                                       dpar_why *why)
{
    if (fsdp->under_way) {
        return dpari_wrong(why, "%s: the pass has not ended", name);
    }
    if (!fsdp->last) {
        return dpari_wrong(why, "%s: the latest pass was begun with last = 0", name);
    }
    return DPAR_OK;
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
    if (st == DPAR_OK) {
        st = dpari_fsdp_check_reduced(fsdp, name, &why);
    }
    if (st != DPAR_OK) {
        return dpari_update_refuse(fsdp->shard, fsdp->replicas, update, st, &why);
    }
    st = dpari_fsdp_squares(fsdp, update->duplicate);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_update_norm(fsdp->shard, fsdp->replicas, update, fsdp->squares, 0,
                             "fsdp: rate, clip or factor");
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
    const int64_t in_moment = dpari_moment_at(dpari_fsdp_moment_type(&fsdp->desc), 0, lo);
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
    dpar_why why;
    int32_t u;
    dpar_status st;
    if (fsdp == NULL) {
        return DPAR_E_ARG;
    }
    st = dpari_fsdp_check_reduced(fsdp, "dpar_fsdp_step", &why);
    if (st == DPAR_OK && !(dpari_finite(rate) && dpari_finite(factor))) {
        st = dpari_optimizer_say(
            &why, "dpar_fsdp_step: rate is %.9g and factor %.9g, but both must be finite", rate,
            factor);
    }
    if (st != DPAR_OK) {
        return dpari_comm_say(fsdp->shard, st, "%s", why.text);
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
