/* SPDX-License-Identifier: MIT-0 */
/* Lists the items of a plan, the boxes that this rank sends and receives in each step, and assigns
 * them places in the staging memory.
 *
 * The walk of halo_walk.c finds the transfers of each field. Each becomes an item, which knows
 * where the box is in the arrays of both ranks. Items of one peer are adjacent in list R. Called by
 * halo_exchange.c. */
#include "halo_items.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "halo_prepare.h"
#include "halo_walk.h"

/* Computes the strides of an item in staging memory. The item is dense there, with its dims in the
 * order of the owner's strides, so that the owner walks its array in the order of addresses. */
static void dpari_hx_close_up(dpari_hx_item *item, const int64_t *owner)
{
    int32_t done = 0, d, k;
    int64_t step = 1;
    for (k = 0; k < item->dims; k++) {
        int32_t best = -1;
        int64_t least = 0;
        for (d = item->dims - 1; d >= 0; d--) {
            const int64_t a = dpari_size(owner[d]);
            if (!(done >> d & 1) && (best < 0 || a < least)) {
                best = d;
                least = a;
            }
        }
        done |= 1 << best;
        item->dense[best] = step;
        step *= item->extent[best];
    }
    item->elements = step;
}

/* True if the receiver reads a box in place. Sender and receiver get the same result, because both
 * use the sender's run, and all ranks of a world have counted the same cores. Ranks that share
 * cores pack small boxes, so that they wait only until peers are ready, and not also until peers
 * are done (8 ranks on 2 cores, 32^3: 80 us in place, 58 us packed; boxes of 128 KiB take longer
 * packed). */
static int dpari_hx_is_direct(const dpar_halo_plan *plan, const dpari_hx_array *giver,
                              const dpari_hx_array *taker, const dpari_hx_spot *spot,
                              const dpari_hx_item *item, int32_t world)
{
    const int64_t run = plan->options.run_bytes > 0 ? plan->options.run_bytes : 64;
    const int64_t bytes = item->elements * dpar_type_bytes(plan->field[item->field].type);
    const int packs = plan->options.method == DPAR_HALO_PACKED ||
                      (plan->options.method == DPAR_HALO_AUTO && world >= 0 &&
                       plan->x.world->crowded && bytes < DPARI_HX_CROWDED);
    return world >= 0 && !packs && giver->told.reach[spot->part] && !taker->told.elsewhere &&
           dpari_hx_in_a_row(item->extent, spot->stride, item->dims,
                             plan->field[item->field].type) >= run;
}

/* Returns the receiver's dim for the sender's dim d. */
static int32_t dpari_hx_swapped(const dpar_transfer *transfer, int32_t d)
{
    if (d == transfer->swap[0]) {
        return transfer->swap[1];
    }
    if (d == transfer->swap[1]) {
        return transfer->swap[0];
    }
    return d;
}

/* Changes the receiver's place of a box so that its dims match those of the sender: puts dims into
 * the sender's order, and begins at the other end of flipped dims, with a negative stride. */
static void dpari_hx_turn(const dpar_transfer *transfer, dpari_hx_spot *spot)
{
    int64_t stride[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        stride[d] = spot->stride[d];
        if (transfer->flip >> d & 1u) {
            spot->at += (transfer->extent[dpari_hx_swapped(transfer, d)] - 1) * stride[d];
            stride[d] = -stride[d];
        }
    }
    for (d = 0; d < transfer->dims; d++) {
        spot->stride[d] = stride[dpari_hx_swapped(transfer, d)];
    }
}

/* Finds the component of the sender that arrives as component k of a vector (u, v), and whether its
 * sign changes. Turned by 1 quarter turn the vector is (-v, u), by 3 it is (v, -u). */
static void dpari_hx_component(dpari_hx_item *item, const dpar_transfer *transfer, int32_t k,
                               dpari_hx_spot *sender, dpari_hx_spot *receiver)
{
    sender->at += (1 - k) * sender->stride[transfer->dims];
    receiver->at += k * receiver->stride[transfer->dims];
    item->extent[transfer->dims] = 1;
    item->negate = (transfer->turn == 1) == (k == 0);
}

/* Finds the place of a box in an array. at: its first local point. In a field with directions, the
 * local points of a component are counted without the sides that its halo does not have. */
static void dpari_hx_find(const dpar_halo_field *field, const dpari_hx_array *array,
                          int32_t component, int64_t *at, dpari_hx_spot *spot)
{
    int32_t d;
    for (d = 0; field->direction && d < field->halo->grid.dims; d++) {
        if (field->direction[component * DPAR_MAX_DIMS + d] <= 0) {
            at[d] += array->low[d];
        }
    }
    dpari_hx_place(array, at, dpari_hx_components(field), spot);
    spot->at += component * array->told.component;
}

/* Sets item k of the items into which a transfer is divided, except for its place in staging
 * memory. walk: has found the transfer, whose points are then counted in the whole halo. sends: 1
 * for an item of S. */
static void dpari_hx_fill(dpar_halo_plan *plan, dpari_hx_item *item, int32_t index,
                          const dpari_hx_walk *walk, dpar_transfer *transfer, int sends, int32_t k)
{
    const dpar_halo_field *field = &plan->field[index];
    const int32_t peer = plan->peer_of[transfer->peer] - 1;
    /* the field whose array the sender reads, which is the other one if a pair is turned */
    const int32_t owner = dpari_hx_crosses(field, transfer->turn)
                              ? (int32_t)(dpari_hx_other(field) - plan->field)
                              : index;
    const int32_t here = sends ? owner : index;
    const int32_t there = sends ? index : owner;
    const dpari_hx_array *mine = &plan->array[here];
    const dpari_hx_array *theirs = peer < 0 ? &plan->array[there] : &plan->peer[peer].array[there];
    const int combines = dpari_hx_moves(&plan->options) == DPARI_HX_COMBINE;
    const int32_t bytes = dpar_type_bytes(field->type),
                  world = peer < 0 ? -1 : plan->x.peer[peer].world;
    dpari_hx_spot my_spot, their_spot;
    dpari_hx_spot *sender = sends ? &my_spot : &their_spot;
    dpari_hx_spot *receiver = sends ? &their_spot : &my_spot;
    int32_t d;
    dpari_zero(item, sizeof *item);
    item->field = index;
    item->peer = peer;
    item->dims = transfer->dims + 1;
    item->negate = dpari_hx_negates(field, transfer->turn);
    dpari_hx_find(field, mine, walk->of.component, transfer->mine, &my_spot);
    dpari_hx_find(field, theirs, walk->of.component, transfer->theirs, &their_spot);
    for (d = 0; d < transfer->dims; d++) {
        item->extent[d] = transfer->extent[d];
        item->local[d] = transfer->mine[d];
        item->here[d] = sends ? d : dpari_hx_swapped(transfer, d);
    }
    item->here[transfer->dims] = transfer->dims;
    item->flip = sends ? 0 : transfer->flip;
    item->extent[transfer->dims] =
        field->direction ? walk->of.together : dpari_hx_components(field);
    dpari_hx_turn(transfer, receiver);
    if (dpari_hx_parts(field, transfer) > 1) {
        dpari_hx_component(item, transfer, k, sender, receiver);
    }
    item->mine = 2 * here + my_spot.part;
    item->theirs = 2 * there + their_spot.part;
    item->mine_at = my_spot.at * bytes;
    item->theirs_at = their_spot.at * bytes;
    for (d = 0; d < item->dims; d++) {
        item->own_step[d] = my_spot.stride[d];
        item->other_step[d] = their_spot.stride[d];
    }
    dpari_hx_close_up(item, sender->stride);
    item->direct =
        !combines && (peer < 0 || dpari_hx_is_direct(plan, theirs, mine, &their_spot, item, world));
    item->packs =
        combines || (peer >= 0 && !dpari_hx_is_direct(plan, mine, theirs, &my_spot, item, world));
    item->replaces = combines && sends && transfer->op == DPAR_COPY;
    item->row = sends && peer >= 0 && !item->packs ? dpari_hx_row_of(item) : -1;
}

/* Appends an item to the bytes that are packed in one direction. Returns its offset, a multiple of
 * 16. */
static int64_t dpari_hx_append(const dpar_halo_plan *plan, const dpari_hx_item *item,
                               int64_t *bytes)
{
    const int64_t at = (*bytes + 15) / 16 * 16;
    *bytes = at + item->elements * dpar_type_bytes(dpari_hx_wire(&plan->field[item->field]));
    return at;
}

/* Adds an item to what its peer exchanges with this rank in step s, and assigns its places in the
 * staging memory. */
static void dpari_hx_count_in(dpar_halo_plan *plan, dpari_hx_item *item, int32_t s, int sends)
{
    dpari_hx_flow *flow;
    const int give = sends ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT; /* when this rank gives */
    const int take = sends ? DPAR_HALO_ADJOINT : DPAR_HALO_FORWARD;
    dpari_exchange_flow *run;
    const int32_t modes = plan->step[s].modes;
    int32_t d;
    if (item->peer < 0) {
        if (!item->direct) {
            item->pack_at = dpari_hx_append(plan, item, &plan->self_bytes[sends]);
            item->take_at = item->pack_at;
        }
        return;
    }
    flow = &plan->peer[item->peer].flow[s];
    run = &plan->x.flow[item->peer * plan->x.steps + s];
    for (d = 0; d < item->dims; d++) {
        flow->hash[sends] = dpari_hash(flow->hash[sends], item->extent[d] + 1024 * item->field);
    }
    if (modes >> give & 1 && item->packs) {
        item->pack_at = dpari_hx_append(plan, item, &run->out_bytes[give]);
    }
    if (modes >> take & 1 && !item->direct) {
        item->take_at = dpari_hx_append(plan, item, &run->in_bytes[take]);
    }
    run->lends[give] |= modes >> give & 1 && !item->packs;
    run->takes[take] |= modes >> take & 1;
    flow->reads[take] |= modes >> take & 1 && item->direct;
}

/* Counts the items of list R of step s for each peer and for this rank itself. With `fill`, which
 * requires that the first item of each peer is known, also sets the items. */
static void dpari_hx_list_receives(dpar_halo_plan *plan, int32_t s, int fill)
{
    dpari_hx_step *step = &plan->step[s];
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, k;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, step, DPAR_TRANSFER_RECV,
                                dpari_hx_moves(&plan->options), NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(&plan->field[i], &transfer);
            int64_t *count = &step->self;
            int64_t first = step->r;
            if (transfer.peer != plan->comm->rank) {
                dpari_hx_flow *flow = &plan->peer[plan->peer_of[transfer.peer] - 1].flow[s];
                count = &flow->boxes;
                first = flow->first;
            }
            for (k = 0; k < parts; k++) {
                if (fill) {
                    dpari_hx_item *item = &plan->item[first + *count];
                    dpari_hx_fill(plan, item, i, &walk, &transfer, 0, k);
                    dpari_hx_count_in(plan, item, s, 0);
                }
                ++*count;
            }
        }
    }
}

/* Sets items of list S of step s from item `at` on: with own_first the items that this rank adds
 * without waiting for peers, otherwise all other items. Returns the index after the last one. */
static int64_t dpari_hx_list_sends(dpar_halo_plan *plan, int32_t s, int64_t at, int own_first)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, k;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, &plan->step[s],
                                DPAR_TRANSFER_SEND, dpari_hx_moves(&plan->options),
                                NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(&plan->field[i], &transfer);
            if (walk.own_first != own_first) {
                continue;
            }
            for (k = 0; k < parts; k++) {
                dpari_hx_fill(plan, &plan->item[at], i, &walk, &transfer, 1, k);
                dpari_hx_count_in(plan, &plan->item[at], s, 1);
                at++;
                if (transfer.peer != plan->comm->rank) {
                    plan->peer[plan->peer_of[transfer.peer] - 1].flow[s].sends++;
                }
            }
        }
    }
    return at;
}

/* Sets the lists R (first the items that this rank sends to itself, then by peer) and S of step s,
 * from item `at` on. Returns the index after the last item. */
static int64_t dpari_hx_list(dpar_halo_plan *plan, int32_t s, int64_t at)
{
    dpari_hx_step *step = &plan->step[s];
    int32_t i;
    step->r = at;
    dpari_hx_list_receives(plan, s, 0);
    at += step->self;
    step->self = 0;
    for (i = 0; i < plan->x.peers; i++) {
        plan->peer[i].flow[s].first = at;
        at += plan->peer[i].flow[s].boxes;
        plan->peer[i].flow[s].boxes = 0;
    }
    dpari_hx_list_receives(plan, s, 1);
    step->r_items = at - step->r;
    step->s = at;
    at = dpari_hx_list_sends(plan, s, at, 1);
    step->own_first = at - step->s;
    at = dpari_hx_list_sends(plan, s, at, 0);
    step->s_items = at - step->s;
    return at;
}

/* Sets `packed` of the flows. Steps that share a line pack into the same memory, in either mode. A
 * rank may therefore write it only when all peers that read it in any of these steps are done. */
static void dpari_hx_mark_packed(dpar_halo_plan *plan)
{
    int32_t s, t, i;
    for (s = 0; s < plan->x.steps; s++) {
        for (t = 0; t < plan->x.steps; t++) {
            if (plan->x.step[s].line != plan->x.step[t].line) {
                continue;
            }
            for (i = 0; i < plan->x.peers; i++) {
                dpari_exchange_flow *flow = &plan->x.flow[i * plan->x.steps];
                flow[s].packed |= flow[t].out_bytes[0] > 0 || flow[t].out_bytes[1] > 0;
            }
        }
    }
}

/* Assigns positions in the staging memory to the boxes that this rank packs, and positions in the
 * memory for arrivals to the messages that it receives. They are in the order of steps and peers,
 * and the same for both modes. items: number of items. */
static void dpari_hx_flows(dpar_halo_plan *plan, int64_t items)
{
    dpari_exchange_step *step;
    int32_t s, i;
    int64_t k, gives = 0, comes = 0;
    for (s = 0; s < plan->x.steps; s++) {
        if (s == plan->forward) { /* the steps of the adjoint use the same memory */
            gives = 0;
            comes = 0;
        }
        step = &plan->x.step[s];
        step->alone = !plan->elsewhere && plan->self_bytes[0] == 0;
        for (i = 0; i < plan->x.peers; i++) {
            dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            const int64_t out = dpari_most(run->out_bytes[0], run->out_bytes[1]);
            const int64_t in = dpari_most(run->in_bytes[0], run->in_bytes[1]);
            const int shares = plan->x.peer[i].world >= 0;
            flow->out_at = gives;
            flow->in_at = comes;
            plan->lends[0] |= run->lends[0];
            plan->lends[1] |= run->lends[1];
            step->meets |= shares && flow->boxes + flow->sends > 0;
            step->alone &= flow->boxes + flow->sends == 0;
            plan->x.oneway |= shares && (flow->boxes == 0) != (flow->sends == 0);
            gives += dpari_exchange_lines(out);
            if (plan->x.peer[i].world < 0) {
                comes += dpari_exchange_lines(in);
            }
        }
        plan->self_at = gives;
        plan->turn = dpari_most(plan->turn, gives + dpari_exchange_lines(plan->self_bytes[0]));
        plan->arrive_bytes = dpari_most(plan->arrive_bytes, comes);
    }
    for (k = 0; k < items; k++) {
        const dpar_halo_field *field = &plan->field[plan->item[k].field];
        if (dpari_hx_mem(field)) {
            plan->look_bytes =
                dpari_most(plan->look_bytes, plan->item[k].elements * dpar_type_bytes(field->type));
        }
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_list_items(dpar_halo_plan *plan)
{
    int64_t at = 0;
    int32_t s;
    for (s = 0; s < plan->x.steps; s++) {
        at = dpari_hx_list(plan, s, at);
    }
    dpari_hx_flows(plan, at);
    dpari_hx_mark_packed(plan);
}
