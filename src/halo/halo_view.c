/* SPDX-License-Identifier: MIT-0 */
/* Shows the boxes of a plan to the reports and checks of halo_check.c in dpar_debug.h. */
#include "halo_view.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/heap.h"
#include "../comm/world.h"
#include "../host/kernel.h"
#include "../index/halo.h"
#include "../index/redistribute.h"
#include "halo_mem.h"

DPARI_INTERNAL DPARI_COLD dpar_status dpari_hx_may_look(const dpar_halo_plan *plan, dpar_why *why)
{
    if (!plan) {
        return dpari_wrong(why, "dpar_halo_plan_check: the plan is NULL");
    }
    if (plan->x.active) {
        return dpari_wrong(why, "dpar_halo_plan_check: halo exchange %ld has not ended",
                           plan->x.count);
    }
    if (plan->in_order) {
        return dpari_wrong(why,
                           "dpar_halo_plan_check: %d fields are in the memory of a device and all "
                           "their halos are sent by messages; nothing waits for that memory",
                           plan->fields);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD const dpari_hx_item *dpari_hx_received(const dpar_halo_plan *plan,
                                                                 int64_t k)
{
    int32_t s;
    for (s = 0; s < plan->forward; s++) {
        const dpari_hx_step *step = &plan->step[s];
        if (k < step->s - step->r) {
            return &plan->item[step->r + k];
        }
        k -= step->s - step->r;
    }
    return NULL;
}

DPARI_INTERNAL DPARI_COLD const unsigned char *
dpari_hx_look_at(const dpar_halo_plan *plan, const dpari_hx_item *it, const int64_t **step)
{
    dpar_mem_box b;
    if (!dpari_hx_mem(&plan->field[it->field])) {
        *step = it->own_step;
        return plan->part[it->mine] + it->mine_at;
    }
    *step = it->dense;
    if (!plan->look) {
        return NULL;
    }
    dpari_hx_box_of(plan, it, plan->look, 0, &b);
    return dpari_hx_move_box(&plan->field[it->field], &b) == DPAR_OK ? plan->look : NULL;
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_fill_cells(const dpar_halo_plan *plan,
                                                   const dpari_hx_item *it, const uint64_t *element)
{
    const dpar_halo_field *field = &plan->field[it->field];
    uint64_t here[1];
    unsigned char *from = dpari_hx_mem(field) ? plan->look : (unsigned char *)here;
    dpar_mem_box b;
    dpari_hx_box_of(plan, it, from, 1, &b);
    dpari_zero(b.from_stride, sizeof b.from_stride);
    dpari_kern_copy(from, element, (int64_t)sizeof *element, 0);
    (void)dpari_hx_move_box(field, &b);
}

/* In an exchange dim by dim, the rank that sends a corner is not its owner, so the owner is found
 * in the transfer lists. */
DPARI_INTERNAL DPARI_COLD int32_t dpari_hx_owner(const dpar_halo_plan *plan,
                                                 const dpari_hx_item *it, const int64_t *here)
{
    dpar_halo_cursor w;
    dpar_transfer t;
    dpar_status st = plan->step[0].number < 0
                         ? DPAR_DONE
                         : dpar_halo_first(&w, plan->field[it->field].halo, plan->comm->rank,
                                           DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL);
    while (st == DPAR_OK && dpar_halo_next(&w, &t)) {
        int32_t d;
        for (d = 0; d < t.dims; d++) {
            const int64_t at = it->local[d] + here[d] - t.mine[d];
            if (at < 0 || at >= t.extent[d]) {
                break;
            }
        }
        if (d == t.dims) {
            return t.peer;
        }
    }
    return it->peer < 0 ? plan->comm->rank : plan->x.peer[it->peer].rank;
}

DPARI_INTERNAL DPARI_COLD const unsigned char *
dpari_hx_point(const dpar_halo_plan *plan, int32_t field, const int64_t *at, int64_t *stride)
{
    const dpar_halo_field *f = &plan->field[field];
    dpari_hx_spot spot;
    int32_t d;
    dpari_hx_place(&plan->array[field], at, dpari_hx_components(f), &spot);
    for (d = 0; d <= f->halo->grid.dims; d++) {
        stride[d] = spot.stride[d];
    }
    return plan->part[2 * field + spot.part] + spot.at * dpar_type_bytes(f->type);
}

DPARI_INTERNAL DPARI_COLD int dpari_hx_unreached(const dpar_halo_plan *plan, int32_t field,
                                                 int32_t part)
{
    const int32_t method = plan->options.method;
    const unsigned char *at = plan->part[2 * field + part];
    return plan->x.shared > 0 && at && !dpari_hx_mem(&plan->field[field]) &&
           (method == DPAR_HALO_AUTO || method == DPAR_HALO_DIRECT) &&
           dpari_ref(plan->x.world, at, 1) == 0;
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_put_exchanges(const dpar_halo_plan *plan, dpar_text *out)
{
    dpari_text_print(out, "  %ld exchanges", plan->x.count);
    if (plan->options.timers) {
        dpar_text_put(out, ", each: ");
        dpari_exchange_put_times(&plan->x, out);
    }
    dpari_text_char(out, '\n');
}
