/* SPDX-License-Identifier: MIT-0 */
/* Moves the boxes of fields in memory that the CPU does not reach, such as a device's.
 *
 * Each phase of an exchange passes its boxes in batches to the `move` function of the field's
 * dpar_mem, and waits once at its end. Host memory that takes part is pinned when the plan is made.
 * Called by halo_exchange.c, halo_run.c, halo_view.c and the checks of dpar_debug.h. */
#include "halo_mem.h"

#include "../base/arith.h"
#include "../comm/comm.h"
#include "../host/mem.h"
#include "../host/mem_private.h"
#include "halo_plan.h"

DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *field, const dpar_mem_box *box)
{
    const dpar_mem *mem = dpari_hx_mem(field);
    dpar_status status;
    if (!mem) {
        return dpari_mem_move_box(box);
    }
    status = mem->move(mem->ctx, box, 1);
    if (status != DPAR_OK || !mem->wait) {
        return status;
    }
    return mem->wait(mem->ctx);
}

DPARI_API void dpari_hx_box_of(const dpar_halo_plan *plan, const dpari_hx_item *item,
                               unsigned char *dense, int back, dpar_mem_box *box)
{
    unsigned char *mine = plan->part[item->mine] + item->mine_at;
    int32_t d;
    dpari_zero(box, sizeof *box);
    box->to_type = box->from_type = box->round_type = plan->field[item->field].type;
    box->op = DPAR_COPY;
    box->dims = item->dims;
    box->to = back ? mine : dense;
    box->from = back ? dense : mine;
    for (d = 0; d < item->dims; d++) {
        box->extent[d] = item->extent[d];
        box->to_stride[d] = back ? item->own_step[d] : item->dense[d];
        box->from_stride[d] = back ? item->dense[d] : item->own_step[d];
    }
}

DPARI_INTERNAL void dpari_hx_describe(const dpar_halo_plan *plan, const dpari_hx_item *item,
                                      int takes, int32_t op, dpar_mem_box *box)
{
    const int32_t wire = dpari_hx_wire(&plan->field[item->field]);
    int32_t d;
    dpari_hx_box_of(plan, item, NULL, takes, box);
    box->round_type = wire;
    if (!takes) {
        box->to_type = wire;
        return;
    }
    box->op = op;
    box->negate = item->negate;
    box->clear = op != DPAR_COPY && item->direct; /* a halo that is read in place becomes 0 */
    if (!item->direct) {
        box->from_type = wire;
        return;
    }
    for (d = 0; d < item->dims; d++) {
        box->from_stride[d] = item->other_step[d];
    }
}

/* Describes how the exchange in progress moves an item when this rank gives it, or takes it. */
static void dpari_hx_moving(const dpar_halo_plan *plan, const dpari_hx_item *item, int takes,
                            dpar_mem_box *box)
{
    dpari_hx_describe(plan, item, takes, plan->x.op, box);
    if (takes) { /* not const, because an adjoint sets the halos to 0 that it reads in place */
        box->from = (void *)(uintptr_t)dpari_hx_from(plan, item);
    } else {
        box->to = plan->staging + dpari_exchange_turn(&plan->x) * plan->turn + item->pack_at;
        box->clear = plan->x.mode == DPAR_HALO_ADJOINT;
    }
}

/* Consecutive items of the same memory are one batch. A failure is returned by the next
 * dpari_hx_settle. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *plan, int64_t first, int64_t n, int takes)
{
    const dpar_mem *of = NULL;
    int32_t boxes = 0;
    int64_t k;
    for (k = first; k <= first + n; k++) {
        const dpari_hx_item *item = k < first + n ? &plan->item[k] : NULL;
        const dpar_mem *mem = item ? dpari_hx_mem(&plan->field[item->field]) : NULL;
        if (item && (!mem || (!takes && !item->packs))) {
            continue;
        }
        if (mem != of && boxes > 0) {
            const dpar_status status = of->move(of->ctx, plan->box, boxes);
            if (plan->moved == DPAR_OK) {
                plan->moved = status;
            }
            boxes = 0;
        }
        of = mem;
        if (item) {
            dpari_hx_moving(plan, item, takes, &plan->box[boxes++]);
        }
    }
}

/* True if an earlier field uses the same device memory. */
static int dpari_hx_seen_before(const dpar_halo_plan *plan, int32_t f)
{
    int32_t i;
    for (i = 0; i < f; i++) {
        if (dpari_hx_mem(&plan->field[i]) == dpari_hx_mem(&plan->field[f])) {
            return 1;
        }
    }
    return 0;
}

/* If plan->in_order is 1, does not wait, because later operations are ordered after the moves. A
 * failure breaks the communicator. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *plan)
{
    dpar_status status = plan->moved;
    dpar_why why;
    int32_t i;
    for (i = 0; i < plan->fields && plan->elsewhere && !plan->in_order; i++) {
        const dpar_mem *mem = dpari_hx_mem(&plan->field[i]);
        if (mem && mem->wait && !dpari_hx_seen_before(plan, i)) {
            const dpar_status waited = mem->wait(mem->ctx);
            if (status == DPAR_OK) {
                status = waited;
            }
        }
    }
    if (status != DPAR_OK) {
        (void)dpari_say(
            status, &why,
            "halo exchange %ld: rank %d could not move the boxes in its fields' memory: %s",
            plan->x.count, plan->comm->rank, dpar_status_text(status));
        dpar_comm_abort(plan->comm, status, why.text);
        if (plan->x.node != plan->comm) {
            dpar_comm_abort(plan->x.node, status, why.text);
        }
    }
    return status;
}

/* Pins host memory with the functions of one memory, or unpins it if `on` is 0. */
static DPARI_COLD dpar_status dpari_hx_pin_with(const dpar_mem *mem, void *memory, int64_t bytes,
                                                int on)
{
    if (on) {
        return mem->pin ? mem->pin(mem->ctx, memory, bytes) : DPAR_OK;
    }
    return mem->unpin ? mem->unpin(mem->ctx, memory) : DPAR_OK;
}

DPARI_API DPARI_COLD dpar_status dpari_hx_pin(const dpar_halo_plan *plan, void *memory,
                                              int64_t bytes, int on)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    if (!plan->elsewhere || plan->in_order || bytes <= 0) {
        return DPAR_OK;
    }
    for (i = 0; i < plan->fields; i++) {
        const dpar_mem *mem = dpari_hx_mem(&plan->field[i]);
        if (mem && !dpari_hx_seen_before(plan, i)) {
            const dpar_status pinned = dpari_hx_pin_with(mem, memory, bytes, on);
            if (status == DPAR_OK) {
                status = pinned;
            }
        }
    }
    return status;
}

/* Pins the plan's own memory and the staging memory of peers. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *plan, int on)
{
    dpar_status status = dpari_hx_pin(plan, plan->x.memory, plan->memory_bytes, on);
    int32_t i;
    for (i = 0; i < plan->x.peers && status == DPAR_OK; i++) {
        const dpari_hx_peer *peer = &plan->peer[i];
        if (plan->x.peer[i].world >= 0 && peer->staging) {
            status = dpari_hx_pin(plan, peer->staging, 2 * peer->turn, on);
        }
    }
    return status;
}
