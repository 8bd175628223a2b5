/* SPDX-License-Identifier: MIT-0 */
/* Walks the boxes that one step of an exchange moves for one field.
 *
 * It starts from the transfer lists of ../index/halo.h. In an ordered exchange, a step's boxes are
 * extended by the halos that earlier steps have filled, so that they include edges and corners. In
 * an adjoint, the boxes that a rank sends to itself are split, because a part into which no peer's
 * box is added earlier in the walk can be added without waiting for peers. halo_exchange.c and
 * halo_items.c walk each step several times: to count boxes, to find the peers and to fill in
 * items. */
#include "halo_walk.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../index/halo.h"
#include "../index/reach.h"
#include "../index/redistribute.h"
#include "halo_plan.h"

/* Sets by how many halo points the boxes of a step are extended in the other dims. The halos of
 * later dims are included if exchanges fill them. Because the last dim is exchanged first, rows are
 * then complete when they are sent along the other dims. step->along (DPARI_HX_WIDE, ...) decides
 * about the cut dim. */
static void dpari_hx_widen(dpari_hx_walk *walk, const dpari_hx_step *step)
{
    const dpar_halo *halo = &walk->halo; /* its widths are read before they are set to 0 */
    const int32_t cut = step->along == DPARI_HX_WIDE ? -1 : halo->grid.dims - 1 - step->cut;
    dpar_box own, all;
    int32_t d;
    if (!dpari_hx_boxes(halo, walk->of.rank, &own, &all)) {
        return;
    }
    for (d = 0; d < halo->grid.dims; d++) {
        const int wraps = (int)(halo->periodic >> d & 1u);
        int extends =
            d > walk->dim && step->along != DPARI_HX_CUT && halo->shape != DPAR_STENCIL_STAR;
        if (d == cut) {
            extends = d == walk->cut;
        }
        if (d == walk->cut) {
            walk->own = own.hi[d] - own.lo[d];
        }
        if (d == walk->dim || extends) {
            walk->reaches |= (uint32_t)1 << d;
        }
        if (d == walk->dim) {
            walk->low[d] = 0;
            continue;
        }
        walk->low[d] = own.lo[d] - all.lo[d];
        if (extends) {
            walk->before[d] = wraps ? halo->low[d] : dpari_least(halo->low[d], own.lo[d]);
            walk->after[d] =
                wraps ? halo->high[d]
                      : dpari_least(halo->high[d], dpar_halo_points(halo, d) - own.hi[d]);
        }
        walk->halo.low[d] = walk->halo.high[d] = 0;
    }
}

DPARI_INTERNAL int32_t dpari_hx_moves(const dpar_halo_plan_desc *desc)
{
    if (desc->shared == DPARI_HX_COMBINE) {
        return DPARI_HX_COMBINE;
    }
    return desc->shared ? DPAR_HALO_SYNC : DPAR_HALO_FORWARD;
}

/* True if boxes that a rank sends to itself may be split. Dims must have the same order and
 * direction on both sides, no own point may be the image of another one, and the CPU must compute
 * the sums. */
static int dpari_hx_splits(const dpar_halo_field *field, const dpari_hx_step *step, int32_t moves)
{
    const dpar_halo *halo = field->halo;
    return (step->modes >> DPAR_HALO_ADJOINT & 1) != 0 && moves == DPAR_HALO_FORWARD &&
           !halo->folds && !halo->poles && !halo->cube && field->pair == 0 && !dpari_hx_mem(field);
}

/* Computes the local box of a rank, shifted so that it begins at 0. */
static int dpari_hx_local(const dpar_halo *halo, int32_t rank, dpar_box *local)
{
    dpar_box own;
    int32_t d;
    if (!dpari_hx_boxes(halo, rank, &own, local)) {
        return 0;
    }
    for (d = 0; d < local->dims; d++) {
        local->hi[d] -= local->lo[d];
        local->lo[d] = 0;
    }
    return 1;
}

/* In a field with directions, a component has only the halo on the sides from which it moves into
 * the block. */
static void dpari_hx_narrow(dpari_hx_walk *walk)
{
    const int8_t *direction = walk->of.field->direction;
    int32_t d;
    for (d = 0; direction && d < walk->halo.grid.dims; d++) {
        const int8_t moves = direction[walk->of.component * DPAR_MAX_DIMS + d];
        walk->halo.low[d] = moves > 0 ? walk->halo.low[d] : 0;
        walk->halo.high[d] = moves < 0 ? walk->halo.high[d] : 0;
    }
}

/* True if component k and the one after it have the same direction in all dims of walk->reaches. */
static int dpari_hx_joins(const dpari_hx_walk *walk, int32_t k)
{
    const int8_t *direction = walk->of.field->direction + k * DPAR_MAX_DIMS;
    int32_t d;
    for (d = 0; d < walk->halo.grid.dims; d++) {
        if ((walk->reaches >> d & 1u) && direction[d] != direction[d + DPAR_MAX_DIMS]) {
            return 0;
        }
    }
    return 1;
}

/* Begins a walk over the boxes of of->component and of the components after it that have the same
 * boxes. */
static dpar_status dpari_hx_begin_component(dpari_hx_walk *walk, const dpari_hx_subject *of,
                                            dpar_why *why)
{
    const dpar_halo_field *field = of->field;
    const dpari_hx_step *step = of->step;
    const int beside = step->along == DPARI_HX_HALO_PLANES;
    dpari_zero(walk, sizeof *walk);
    walk->of = *of;
    walk->of.together = 1;
    if (of->moves == DPARI_HX_COMBINE) {
        return dpari_hx_share_begin(&walk->share, field->halo, of->rank, of->direction);
    }
    walk->halo = *field->halo;
    dpari_hx_narrow(walk);
    walk->halo.partner = field->pair ? dpari_hx_other(field)->halo : NULL;
    walk->dim = step->number < 0 ? -1 : walk->halo.grid.dims - 1 - step->number;
    walk->cut = beside ? walk->halo.grid.dims - 1 - step->cut : -1;
    walk->splits = of->direction == DPAR_TRANSFER_SEND && dpari_hx_splits(field, step, of->moves) &&
                   dpari_hx_local(&walk->halo, of->rank, &walk->clear);
    if (step->number >= walk->halo.grid.dims ||
        (beside && (walk->cut < 0 || walk->halo.shape == DPAR_STENCIL_STAR))) {
        return DPAR_DONE;
    }
    walk->reaches = step->number < 0 ? ~(uint32_t)0 : 0;
    if (step->number >= 0) {
        dpari_hx_widen(walk, step);
    }
    while (field->direction && of->component + walk->of.together < dpari_hx_components(field) &&
           dpari_hx_joins(walk, of->component + walk->of.together - 1)) {
        walk->of.together++;
    }
    return dpar_halo_first(&walk->walk, &walk->halo, of->rank, of->direction, of->moves, why);
}

DPARI_INTERNAL dpar_status dpari_hx_begin_walk(dpari_hx_walk *walk, const dpar_halo_field *field,
                                               int32_t rank, const dpari_hx_step *step,
                                               int32_t direction, int32_t moves, dpar_why *why)
{
    const dpari_hx_subject of = {field, step, rank, direction, moves, 0, 1};
    return dpari_hx_begin_component(walk, &of, why);
}

/* Advances the walk of ../index/halo.h. A step next to the cut dim's halos (walk->cut >= 0) does
 * the whole walk twice: next to the halos below, and then next to those above. */
static int dpari_hx_advance(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    if (dpar_halo_next(&walk->walk, transfer)) {
        return 1;
    }
    if (walk->cut < 0 || walk->above) {
        return 0;
    }
    walk->above = 1;
    return dpar_halo_first(&walk->walk, &walk->halo, walk->of.rank, walk->of.direction,
                           walk->of.moves, NULL) == DPAR_OK &&
           dpar_halo_next(&walk->walk, transfer);
}

/* Advances to the next box, and extends it as dpari_hx_widen has set. */
static int dpari_hx_next_box(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    const int32_t c = walk->cut;
    int32_t d;
    do {
        if (!dpari_hx_advance(walk, transfer)) {
            return 0;
        }
    } while (c >= 0 && (walk->above ? walk->after[c] : walk->before[c]) == 0);
    for (d = 0; d < transfer->dims && walk->dim >= 0; d++) {
        transfer->mine[d] += walk->low[d] - walk->before[d];
        transfer->theirs[d] += walk->low[d] - walk->before[d];
        transfer->extent[d] += walk->before[d] + walk->after[d];
    }
    if (c >= 0) {
        transfer->mine[c] += walk->above ? walk->before[c] + walk->own : 0;
        transfer->theirs[c] = transfer->mine[c];
        transfer->extent[c] = walk->above ? walk->after[c] : walk->before[c];
    }
    return 1;
}

/* Removes a peer's box from the clear part, together with as few other points as possible, by
 * moving one end of one dim past the box. */
static void dpari_hx_avoid(dpari_hx_walk *walk, const dpar_transfer *transfer)
{
    dpar_box *box = &walk->clear;
    int32_t d, best = 0, above = 0;
    double least = 0.0; /* the fraction of the clear part that is removed */
    for (d = 0; d < transfer->dims; d++) {
        const double n = (double)(box->hi[d] - box->lo[d]);
        const double below = (double)(transfer->mine[d] + transfer->extent[d] - box->lo[d]) / n;
        const double beyond = (double)(box->hi[d] - transfer->mine[d]) / n;
        if (d == 0 || dpari_leastf(below, beyond) < least) {
            least = dpari_leastf(below, beyond);
            best = d;
            above = beyond < below;
        }
    }
    if (above) {
        box->hi[best] = dpari_most(transfer->mine[best], box->lo[best]);
    } else {
        box->lo[best] = dpari_least(transfer->mine[best] + transfer->extent[best], box->hi[best]);
    }
}

/* True if any point of a box is clear. */
static int dpari_hx_is_clear(const dpari_hx_walk *walk, const dpar_transfer *transfer)
{
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        if (dpari_most(transfer->mine[d], walk->clear.lo[d]) >=
            dpari_least(transfer->mine[d] + transfer->extent[d], walk->clear.hi[d])) {
            return 0;
        }
    }
    return 1;
}

/* Splits off from walk->rest the points that are not clear on side walk->side, which is the lower
 * side of dim side / 2 if side is even, otherwise the upper side. Returns 1 with these points in
 * *transfer, or 0 if there are none. */
static int dpari_hx_peel(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    const int32_t d = walk->side / 2, above = walk->side % 2;
    dpar_transfer *r = &walk->rest;
    const int64_t end = r->mine[d] + r->extent[d];
    const int64_t n = above ? end - walk->clear.hi[d] : walk->clear.lo[d] - r->mine[d];
    dpar_transfer *upper = above ? transfer : r;
    walk->side++;
    if (n <= 0) {
        return 0;
    }
    *transfer = *r;
    transfer->extent[d] = n;
    r->extent[d] -= n;
    upper->mine[d] += above ? r->extent[d] : n;
    upper->theirs[d] += above ? r->extent[d] : n;
    return 1;
}

/* Advances to the next box of a component.
 *
 * Sums are made in the order of this walk. walk->own_first is 1 for the clear part of a box that
 * this rank sends to itself. No peer's box precedes that part at any of its points, so that it can
 * be added before all other boxes without changing the order of any sum. */
static int dpari_hx_next_here(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    walk->own_first = 0;
    if (walk->of.moves == DPARI_HX_COMBINE) {
        return dpari_hx_share_next(&walk->share, transfer);
    }
    if (walk->side == 0) {
        if (!dpari_hx_next_box(walk, transfer)) {
            return 0;
        }
        if (!walk->splits || !dpari_hx_is_clear(walk, transfer)) {
            return 1;
        }
        if (transfer->peer != walk->of.rank) {
            dpari_hx_avoid(walk, transfer);
            return 1;
        }
        walk->rest = *transfer;
    }
    while (walk->side < 2 * walk->rest.dims) {
        if (dpari_hx_peel(walk, transfer)) {
            return 1;
        }
    }
    *transfer = walk->rest;
    walk->side = 0;
    walk->own_first = 1;
    return 1;
}

DPARI_INTERNAL int dpari_hx_next(dpari_hx_walk *walk, dpar_transfer *transfer)
{
    while (!dpari_hx_next_here(walk, transfer)) {
        dpari_hx_subject next = walk->of;
        next.component += next.together;
        if (!next.field->direction || next.component >= dpari_hx_components(next.field) ||
            dpari_hx_begin_component(walk, &next, NULL) != DPAR_OK) {
            return 0;
        }
    }
    return 1;
}

/* Components (u, v) that are turned by one or three quarter turns replace each other, so that each
 * of them is a separate item. */
DPARI_INTERNAL int32_t dpari_hx_parts(const dpar_halo_field *field, const dpar_transfer *transfer)
{
    return field->vector == 2 && (transfer->turn & 1) != 0 ? 2 : 1;
}
