/* SPDX-License-Identifier: MIT-0 */
/* Packs and takes the boxes of exchanges, and begins, tests and ends them for the caller.
 *
 * ../exchange runs an exchange and calls functions of this file: to pack the boxes of a step, to
 * take those that this rank sends to itself and those of a peer, and in an adjoint to add boxes in
 * the order of list S (halo_plan.h). */
#include "halo_run.h"

#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../comm/world.h"
#include "../host/strided.h"
#include "../host/strided_loops.h"
#include "halo_box_groups.h"
#include "halo_exchange.h"
#include "halo_mem.h"
#include "halo_plan.h"
#include "halo_prepare.h"

/* ---- copying items --------------------------------------------------------------------------- */

/* Returns the part of the staging memory that the exchange in progress uses. */
static unsigned char *dpari_hx_staging(const dpar_halo_plan *plan)
{
    return plan->staging + dpari_exchange_turn(&plan->x) * plan->turn;
}

/* Prefetches the cache lines where the rows of a box begin and end. */
static void dpari_hx_ask_rows(const dpar_halo_plan *plan, const dpari_hx_item *item)
{
    const int64_t size = dpar_type_bytes(plan->field[item->field].type);
    const int64_t step = size * item->own_step[item->row], row = item->extent[item->row] * step;
    const unsigned char *at = dpari_hx_mine(plan, item);
    int64_t index[DPARI_HX_DIMS] = {0};
    int32_t d;
    do {
        dpari_stride_ask_line(at - step);
        dpari_stride_ask_line(at + row);
        for (d = 0; d < item->dims; d++) {
            if (d == item->row || (d == item->dims - 1 && item->own_step[d] == 1)) {
                continue;
            }
            at += size * item->own_step[d];
            if (++index[d] < item->extent[d]) {
                break;
            }
            at -= size * item->own_step[d] * index[d];
            index[d] = 0;
        }
    } while (d < item->dims);
}

/* Prefetches the lines at the ends of rows. Peers that read boxes in place have also read these
 * lines, in which halos of other sides are written. Without the prefetch, stores would wait for one
 * line after the other. Blocks of 32^3 cut along planes take a quarter less time with it. If there
 * are too many lines, the first are evicted before they are used: eight fields of 64^3 take 2 %
 * less time without it. */
static void dpari_hx_ask(const dpar_halo_plan *plan)
{
    const dpari_hx_step *last = &plan->step[plan->forward - 1];
    const int64_t end = last->s + last->s_items;
    int64_t k;
    for (k = 0; k < end && plan->asks; k++) {
        const dpari_hx_item *item = &plan->item[k];
        if (item->row >= 0) {
            dpari_hx_ask_rows(plan, item);
        }
    }
}

/* Takes n items whose senders are ready into this rank's arrays. */
static void dpari_hx_take(dpar_halo_plan *plan, int64_t first, int64_t n)
{
    const double began = dpari_exchange_clock(&plan->x);
    int64_t k;
    for (k = first; k < first + n; k += plan->item[k].taken.step) {
        const dpari_hx_item *item = &plan->item[k], *other = item + item->take_mate;
        if (item->take_mate < 0) {
            continue;
        }
        if (item->taken.runs > 0) {
            dpari_stride_run_list(&item->take, plan->spot + item->taken.at, item->taken.runs,
                                  plan->part[item->mine], dpari_hx_base(plan, item));
        } else if (item->take_mate > 0) {
            dpari_stride_run_beside(&item->take, dpari_hx_mine(plan, item),
                                    dpari_hx_from(plan, item), &other->take,
                                    dpari_hx_mine(plan, other), dpari_hx_from(plan, other));
        } else {
            dpari_stride_run(&item->take, dpari_hx_mine(plan, item), dpari_hx_from(plan, item));
        }
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
}

/* ---- functions that an exchange calls -------------------------------------------------------- */

/* Packs the boxes of a step that other ranks get into the staging memory: those of S, or in an
 * adjoint those of R. */
static dpar_status dpari_hx_pack_step(void *of, int32_t s)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    const dpari_hx_step *step = &plan->step[s];
    const int sends = plan->x.mode == DPAR_HALO_FORWARD;
    const int64_t first = sends ? step->s : step->r;
    const int64_t end = first + (sends ? step->s_items : step->r_items);
    const double began = dpari_exchange_clock(&plan->x);
    unsigned char *to = dpari_hx_staging(plan);
    int64_t k;
    for (k = first; k < end; k += plan->item[k].given.step) {
        const dpari_hx_item *item = &plan->item[k], *other = item + item->give_mate;
        if (!item->packs || item->give_mate < 0) {
            continue;
        }
        if (item->given.runs > 0) {
            dpari_stride_run_list(&item->give, plan->spot + item->given.at, item->given.runs, to,
                                  plan->part[item->mine]);
        } else if (item->give_mate > 0) {
            dpari_stride_run_beside(&item->give, to + item->pack_at, dpari_hx_mine(plan, item),
                                    &other->give, to + other->pack_at, dpari_hx_mine(plan, other));
        } else {
            dpari_stride_run(&item->give, to + item->pack_at, dpari_hx_mine(plan, item));
        }
    }
    if (plan->elsewhere) {
        dpari_hx_move(plan, first, end - first, 0);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_PACKING, began);
    return plan->elsewhere ? dpari_hx_settle(plan) : DPAR_OK;
}

/* Returns where the message from peer i arrives, or where the one to it is packed. */
static unsigned char *dpari_hx_message(void *of, int32_t s, int32_t i, int sends)
{
    const dpar_halo_plan *plan = (const dpar_halo_plan *)of;
    const dpari_hx_flow *flow = &plan->peer[i].flow[s];
    return sends ? dpari_hx_staging(plan) + flow->out_at : plan->arrivals + flow->in_at;
}

/* Takes the boxes that this rank sends to itself and that wait for no peer. */
static void dpari_hx_take_own(void *of, int32_t s)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    const dpari_hx_step *step = &plan->step[s];
    if (plan->x.mode == DPAR_HALO_FORWARD) {
        dpari_hx_take(plan, step->r, step->self);
    } else {
        dpari_hx_take(plan, step->s, plan->x.step[s].alone ? step->s_items : step->own_first);
    }
}

/* Reads the addresses of a peer's arrays, which have changed. */
static DPARI_COLD dpar_status dpari_hx_read_addresses(dpar_halo_plan *plan, dpari_hx_peer *peer,
                                                      uint64_t version)
{
    int32_t f;
    for (f = 0; f < 2 * plan->fields; f++) {
        peer->at[f] = (const unsigned char *)dpari_at(plan->x.world, peer->refs[f]);
        if (peer->refs[f] != 0 && peer->at[f] == NULL) {
            return dpari_exchange_unmapped(&plan->x, peer->refs[f]);
        }
    }
    peer->version = version;
    return DPAR_OK;
}

/* Takes the boxes of a peer. An adjoint adds them later, in the order of S. */
static dpar_status dpari_hx_take_peer(void *of, int32_t s, int32_t i)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    dpari_hx_peer *peer = &plan->peer[i];
    const dpari_hx_flow *flow = &peer->flow[s];
    if (flow->reads[plan->x.mode]) {
        const uint64_t version = plan->x.peer[i].line[plan->x.step[s].line].place[DPARI_HX_VERSION];
        if (version != peer->version) {
            const dpar_status status = dpari_hx_read_addresses(plan, peer, version);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    if (plan->x.mode == DPAR_HALO_FORWARD) {
        dpari_hx_take(plan, flow->first, flow->boxes);
    }
    return DPAR_OK;
}

/* Adds the boxes of an adjoint, and takes those in memory that the CPU does not reach, after the
 * last of them has arrived. The latter are one batch, and therefore one launch on a device. */
static dpar_status dpari_hx_finish(void *of, int32_t s)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)of;
    const dpari_hx_step *step = &plan->step[s];
    double began;
    if (plan->x.mode == DPAR_HALO_ADJOINT) {
        dpari_hx_take(plan, step->s + step->own_first, step->s_items - step->own_first);
    }
    if (!plan->elsewhere) {
        return DPAR_OK;
    }
    began = dpari_exchange_clock(&plan->x);
    if (plan->x.mode == DPAR_HALO_ADJOINT) {
        dpari_hx_move(plan, step->s, step->s_items, 1);
    } else {
        dpari_hx_move(plan, step->r, step->r_items, 1);
    }
    dpari_exchange_time(&plan->x, DPARI_EXCHANGE_COPYING, began);
    return dpari_hx_settle(plan);
}

DPARI_INTERNAL void dpari_hx_set_functions(dpar_halo_plan *plan)
{
    plan->x.plan = plan;
    plan->x.pack = dpari_hx_pack_step;
    plan->x.message = dpari_hx_message;
    plan->x.take_own = dpari_hx_take_own;
    plan->x.take = dpari_hx_take_peer;
    plan->x.finish = dpari_hx_finish;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Waits for the moves that a failed exchange has begun, and returns its status. */
static dpar_status dpari_hx_ended(dpar_halo_plan *plan, dpar_status status)
{
    if (status < DPAR_OK && plan->elsewhere) {
        (void)dpari_hx_settle(plan);
    }
    return status;
}

/* Begins an exchange. op: DPAR_COPY for a forward exchange. */
static dpar_status dpari_hx_begin(dpar_halo_plan *plan, int32_t op)
{
    const dpar_status status = dpari_exchange_may_begin(&plan->x);
    if (status != DPAR_OK) {
        return status;
    }
    if (op == DPAR_COPY) {
        dpari_hx_ask(plan);
    }
    plan->x.lends = plan->lends[op != DPAR_COPY];
    return dpari_hx_ended(plan, dpari_exchange_begin(&plan->x, op, 0));
}

DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_begin(plan, DPAR_COPY) : DPAR_E_ARG;
}

/* Prepares the items again if they are prepared for another op. */
DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *plan, int32_t op)
{
    int32_t s, i;
    int64_t k;
    if (!plan) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(
            plan->comm,
            "dpar_halo_plan_reduce_begin: op is %d; it must be DPAR_SUM, DPAR_MAX or "
            "DPAR_MIN",
            op);
    }
    for (i = 0; i < plan->fields; i++) {
        if (!dpari_type_can_reduce(plan->field[i].type)) {
            return dpari_comm_wrong(
                plan->comm,
                "dpar_halo_plan_reduce_begin: field %d has type %s, which cannot be combined", i,
                dpar_type_name(plan->field[i].type));
        }
    }
    for (s = 0; s < plan->x.steps && op != plan->prepared && !plan->x.active; s++) {
        if (plan->step[s].modes == 1 << DPAR_HALO_FORWARD) {
            continue;
        }
        for (k = 0; k < plan->step[s].s_items; k++) {
            dpari_hx_prepare(plan, &plan->item[plan->step[s].s + k], op);
        }
        for (k = 0; k < plan->step[s].r_items; k++) {
            dpari_hx_item *item = &plan->item[plan->step[s].r + k];
            if (item->wiper != 0) { /* this halo becomes 0 with a sum, or when it is given */
                item->give.clear = item[item->wiper].take.beside == 0;
            }
        }
        dpari_hx_gather_sends(plan, &plan->step[s], 1);
    }
    if (!plan->x.active) {
        plan->prepared = op;
    }
    return dpari_hx_begin(plan, op);
}

DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_ended(plan, dpari_exchange_advance(&plan->x, 0)) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_ended(plan, dpari_exchange_advance(&plan->x, 1)) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *plan)
{
    const dpar_status status = dpar_halo_plan_begin(plan);
    return status == DPAR_OK ? dpar_halo_plan_end(plan) : status;
}

DPAR_API dpar_status dpar_halo_plan_reduce(dpar_halo_plan *plan, int32_t op)
{
    const dpar_status status = dpar_halo_plan_reduce_begin(plan, op);
    return status == DPAR_OK ? dpar_halo_plan_end(plan) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_free(dpar_halo_plan *plan)
{
    dpar_status status;
    int32_t refused;
    if (!plan) {
        return DPAR_OK;
    }
    status = dpari_exchange_close(&plan->x, "dpar_halo_plan_free: ", &refused);
    if (refused) {
        return status;
    }
    if (plan->elsewhere) {
        (void)dpari_hx_settle(plan); /* waits for moves that a broken exchange has begun */
        (void)dpari_hx_pin_all(plan, 0);
    }
    dpar_comm_release(plan->x.world ? plan->x.node : plan->comm, plan->x.memory);
    return dpari_object_end(status, plan->owned);
}
