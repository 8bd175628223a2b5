/* SPDX-License-Identifier: MIT-0 */
/* Moves the boxes of fields in memory that the CPU does not reach, such as a device's.
 *
 * A phase of an exchange passes all its boxes to the `move` of the field's dpar_mem in batches, and
 * waits once at its end. Host memory that takes part is pinned when the plan is made. Called by
 * halo_run.c and by the checks of dpar_debug.h. */
#include "halo_mem.h"

#include "../base/arith.h"
#include "../comm/comm.h"
#include "../comm/mem.h"
#include "../comm/mem_private.h"
#include "halo_plan.h"

/* One box, here or there, done when this returns. */
DPARI_API dpar_status dpari_hx_move_box(const dpar_halo_field *f, const dpar_mem_box *box)
{
    const dpar_mem *m = dpari_hx_mem(f);
    dpar_status st;
    if (!m) {
        return dpari_mem_move_box(box);
    }
    st = m->move(m->ctx, box, 1);
    return st == DPAR_OK && m->wait ? m->wait(m->ctx) : st;
}

/* The box of an item in this rank's array and, densely and as it is, in other memory. */
DPARI_API void dpari_hx_box_of(const dpar_halo_plan *x, const dpari_hx_item *it,
                               unsigned char *dense, int back, dpar_mem_box *b)
{
    unsigned char *mine = x->part[it->mine] + it->mine_at;
    int32_t d;
    dpari_zero(b, sizeof *b);
    b->to_type = b->from_type = b->round_type = x->field[it->field].type;
    b->op = DPAR_COPY;
    b->dims = it->dims;
    b->to = back ? mine : dense;
    b->from = back ? dense : mine;
    for (d = 0; d < it->dims; d++) {
        b->extent[d] = it->extent[d];
        b->to_stride[d] = back ? it->own_step[d] : it->dense[d];
        b->from_stride[d] = back ? it->dense[d] : it->own_step[d];
    }
}

/* What the exchange under way makes of an item when this rank gives it, or takes it. */
static void dpari_hx_moving(dpar_halo_plan *x, const dpari_hx_item *it, int takes, dpar_mem_box *b)
{
    const dpar_halo_field *f = &x->field[it->field];
    const int adjoint = x->mode == DPAR_HALO_ADJOINT;
    const uintptr_t from = takes ? (uintptr_t)dpari_hx_from(x, it) : 0; /* own halos are written */
    unsigned char *staging = x->staging + dpari_hx_parity(x) * x->turn;
    int32_t d;
    dpari_hx_box_of(x, it, takes ? (unsigned char *)from : staging + it->pack_at, takes, b);
    b->round_type = dpari_hx_wire(f);
    if (!takes) {
        b->to_type = dpari_hx_wire(f);
        b->clear = adjoint;
        return;
    }
    b->from_type = it->direct ? f->type : dpari_hx_wire(f);
    b->op = adjoint ? x->op : DPAR_COPY;
    b->negate = it->negate;
    b->clear = adjoint && it->peer < 0;
    for (d = 0; d < it->dims && it->direct; d++) {
        b->from_stride[d] = it->other_step[d];
    }
}

static void dpari_hx_note(dpar_halo_plan *x, dpar_status st)
{
    x->moved = x->moved == DPAR_OK ? st : x->moved;
}

/* Of items [first, first + n) those in other memory: a batch for each that follow each other. What
 * goes wrong is heard at the next dpari_hx_settle. */
DPARI_INTERNAL void dpari_hx_move(dpar_halo_plan *x, int64_t first, int64_t n, int takes)
{
    const dpar_mem *of = NULL;
    int32_t boxes = 0;
    int64_t k;
    for (k = first; k <= first + n; k++) {
        const dpari_hx_item *it = k < first + n ? &x->item[k] : NULL;
        const dpar_mem *m = it ? dpari_hx_mem(&x->field[it->field]) : NULL;
        if (it && (!m || (!takes && !it->packs))) {
            continue;
        }
        if (m != of && boxes > 0) {
            dpari_hx_note(x, of->move(of->ctx, x->box, boxes));
            boxes = 0;
        }
        of = m;
        if (it) {
            dpari_hx_moving(x, it, takes, &x->box[boxes++]);
        }
    }
}

/* True if an earlier field uses the same device memory. */
static int dpari_hx_again(const dpar_halo_plan *x, int32_t f)
{
    int32_t i;
    for (i = 0; i < f && dpari_hx_mem(&x->field[i]) != dpari_hx_mem(&x->field[f]); i++) {
    }
    return i < f;
}

/* Waits until all moves are done, or ordered before what follows. An error breaks the
 * communicator. */
DPARI_INTERNAL dpar_status dpari_hx_settle(dpar_halo_plan *x)
{
    dpar_status st = x->moved;
    dpar_why why;
    int32_t i;
    for (i = 0; i < x->fields && x->elsewhere && !x->in_order; i++) {
        const dpar_mem *m = dpari_hx_mem(&x->field[i]);
        if (m && m->wait && !dpari_hx_again(x, i)) {
            const dpar_status s = m->wait(m->ctx);
            st = st == DPAR_OK ? s : st;
        }
    }
    if (st != DPAR_OK) {
        (void)dpari_say(st, &why, "halo exchange %ld: rank %d cannot move its fields' memory: %s",
                        x->count, x->rank, dpar_status_text(st));
        dpar_comm_abort(x->c, st, why.text);
        if (x->node != x->c) {
            dpar_comm_abort(x->node, st, why.text);
        }
    }
    return st;
}

/* Memory of the host that is to be moved from and to, known to every device (on), or no more. */
DPARI_API DPARI_COLD dpar_status dpari_hx_pin(const dpar_halo_plan *x, void *memory, int64_t bytes,
                                              int on)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->fields && x->elsewhere && !x->in_order && bytes > 0; i++) {
        const dpar_mem *m = dpari_hx_mem(&x->field[i]);
        if (m && !dpari_hx_again(x, i)) {
            const dpar_status s = on         ? m->pin ? m->pin(m->ctx, memory, bytes) : DPAR_OK
                                  : m->unpin ? m->unpin(m->ctx, memory)
                                             : DPAR_OK;
            st = st == DPAR_OK ? s : st;
        }
    }
    return st;
}

/* The same of all memory of a plan: its own, and what peers pack for it. */
DPARI_INTERNAL dpar_status dpari_hx_pin_all(const dpar_halo_plan *x, int on)
{
    dpar_status st = dpari_hx_pin(x, x->memory, x->memory_bytes, on);
    int32_t i;
    for (i = 0; i < x->peers && st == DPAR_OK; i++) {
        const dpari_hx_peer *p = &x->peer[i];
        if (p->world >= 0 && p->staging) {
            st = dpari_hx_pin(x, p->staging, 2 * p->turn, on);
        }
    }
    return st;
}
