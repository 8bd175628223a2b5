/* SPDX-License-Identifier: MIT-0 */
/* Walks the boxes that one step of an exchange moves for one field.
 *
 * It starts from the transfer lists of ../index/halo.h. In an ordered exchange a step's boxes are
 * extended by the halos that steps before it have filled, which brings edges and corners along.
 * What a rank adds to itself in an adjoint is split, so that the part that no peer's values precede
 * need not wait. Called twice by halo_exchange.c: to count, and to fill in. */
#include "halo_walk.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../index/halo.h"
#include "../index/reach.h"
#include "../index/redistribute.h"
#include "halo_plan.h"

/* With a dim the halos of those after it travel along, as far as they have images: the last dim
 * goes first, so that rows are whole when they go along the others. */
static void dpari_hx_widen(dpari_hx_walk *w, const dpar_halo *h, const dpari_hx_step *step)
{
    const int32_t cut = step->along == DPARI_HX_WIDE ? -1 : h->grid.dims - 1 - step->cut;
    dpar_box own, all;
    int32_t d;
    if (!dpari_hx_boxes(h, w->rank, &own, &all)) {
        return;
    }
    for (d = 0; d < h->grid.dims; d++) {
        const int wraps = (int)(h->periodic >> d & 1u);
        const int rows = d > w->dim && step->along != DPARI_HX_CUT && h->shape != DPAR_STENCIL_STAR;
        w->low[d] = d == w->dim ? 0 : own.lo[d] - all.lo[d];
        w->own = d == w->cut ? own.hi[d] - own.lo[d] : w->own;
        if (d == w->dim) {
            continue;
        }
        if (d == cut ? d == w->cut : rows) {
            w->before[d] = wraps ? h->low[d] : dpari_least(h->low[d], own.lo[d]);
            w->after[d] =
                wraps ? h->high[d] : dpari_least(h->high[d], dpar_halo_points(h, d) - own.hi[d]);
        }
        w->h.low[d] = w->h.high[d] = 0;
    }
}

/* Returns what is exchanged: halos, or shared points only. */
DPARI_INTERNAL int32_t dpari_hx_moves(const dpar_halo_plan_desc *o)
{
    return o->shared ? DPAR_HALO_SYNC : DPAR_HALO_FORWARD;
}

/* True if boxes that a rank sends to itself may be split. Both sides must count alike (nothing is
 * turned), no own point may be the image of another one, and the CPU must compute the sums. */
static int dpari_hx_splits(const dpar_halo_field *f, const dpari_hx_step *step, int32_t moves)
{
    const dpar_halo *h = f->halo;
    return (step->modes >> DPAR_HALO_ADJOINT & 1) != 0 && moves == DPAR_HALO_FORWARD && !h->folds &&
           !h->poles && !h->cube && f->pair == 0 && !dpari_hx_mem(f);
}

/* The local box, from 0 on. */
static int dpari_hx_local(const dpar_halo *h, int32_t rank, dpar_box *local)
{
    dpar_box own;
    int32_t d;
    if (!dpari_hx_boxes(h, rank, &own, local)) {
        return 0;
    }
    for (d = 0; d < local->dims; d++) {
        local->hi[d] -= local->lo[d];
        local->lo[d] = 0;
    }
    return 1;
}

DPARI_INTERNAL dpar_status dpari_hx_begin_walk(dpari_hx_walk *w, const dpar_halo_field *f,
                                               int32_t rank, const dpari_hx_step *step,
                                               int32_t direction, int32_t moves, dpar_why *why)
{
    const int beside = step->along == DPARI_HX_HALO_PLANES;
    dpari_zero(w, sizeof *w);
    w->h = *f->halo;
    w->h.partner = f->pair ? dpari_hx_other(f)->halo : NULL;
    w->dim = step->number < 0 ? -1 : w->h.grid.dims - 1 - step->number;
    w->cut = beside ? w->h.grid.dims - 1 - step->cut : -1;
    w->rank = rank;
    w->direction = direction;
    w->moves = moves;
    w->splits = direction == DPAR_TRANSFER_SEND && dpari_hx_splits(f, step, moves) &&
                dpari_hx_local(f->halo, rank, &w->clear);
    if (step->number >= w->h.grid.dims ||
        (beside && (w->cut < 0 || w->h.shape == DPAR_STENCIL_STAR))) {
        return DPAR_DONE;
    }
    if (step->number >= 0) {
        dpari_hx_widen(w, f->halo, step);
    }
    return dpar_halo_first(&w->walk, &w->h, rank, direction, moves, why);
}

/* The walk itself; of halos beside halos once for those below and once for those above. */
static int dpari_hx_advance(dpari_hx_walk *w, dpar_transfer *t)
{
    if (dpar_halo_next(&w->walk, t)) {
        return 1;
    }
    if (w->cut < 0 || w->above) {
        return 0;
    }
    w->above = 1;
    return dpar_halo_first(&w->walk, &w->h, w->rank, w->direction, w->moves, NULL) == DPAR_OK &&
           dpar_halo_next(&w->walk, t);
}

static int dpari_hx_next_box(dpari_hx_walk *w, dpar_transfer *t)
{
    const int32_t c = w->cut;
    int32_t d;
    do {
        if (!dpari_hx_advance(w, t)) {
            return 0;
        }
    } while (c >= 0 && (w->above ? w->after[c] : w->before[c]) == 0);
    for (d = 0; d < t->dims && w->dim >= 0; d++) {
        t->mine[d] += w->low[d] - w->before[d];
        t->theirs[d] += w->low[d] - w->before[d];
        t->extent[d] += w->before[d] + w->after[d];
    }
    if (c >= 0) {
        t->mine[c] += w->above ? w->before[c] + w->own : 0;
        t->theirs[c] = t->mine[c];
        t->extent[c] = w->above ? w->after[c] : w->before[c];
    }
    return 1;
}

/* Removes a peer's box from the clear part, with as few other points as possible. */
static void dpari_hx_keep_off(dpari_hx_walk *w, const dpar_transfer *t)
{
    dpar_box *b = &w->clear;
    int32_t d, best = 0, above = 0;
    double least = 0.0; /* of what is clear */
    for (d = 0; d < t->dims; d++) {
        const double n = (double)(b->hi[d] - b->lo[d]);
        const double below = (double)(t->mine[d] + t->extent[d] - b->lo[d]) / n;
        const double beyond = (double)(b->hi[d] - t->mine[d]) / n;
        if (d == 0 || dpari_leastf(below, beyond) < least) {
            least = dpari_leastf(below, beyond);
            best = d;
            above = beyond < below;
        }
    }
    if (above) {
        b->hi[best] = dpari_most(t->mine[best], b->lo[best]);
    } else {
        b->lo[best] = dpari_least(t->mine[best] + t->extent[best], b->hi[best]);
    }
}

/* True if any point of a box is clear. */
static int dpari_hx_is_clear(const dpari_hx_walk *w, const dpar_transfer *t)
{
    int32_t d;
    for (d = 0; d < t->dims; d++) {
        if (dpari_most(t->mine[d], w->clear.lo[d]) >=
            dpari_least(t->mine[d] + t->extent[d], w->clear.hi[d])) {
            return 0;
        }
    }
    return 1;
}

/* Takes from the rest what is not clear on a side: dim side / 2, first below. 0: all is. */
static int dpari_hx_peel(dpari_hx_walk *w, dpar_transfer *t)
{
    const int32_t d = w->side / 2, above = w->side % 2;
    dpar_transfer *r = &w->rest;
    const int64_t end = r->mine[d] + r->extent[d];
    const int64_t n = above ? end - w->clear.hi[d] : w->clear.lo[d] - r->mine[d];
    dpar_transfer *upper = above ? t : r;
    w->side++;
    if (n <= 0) {
        return 0;
    }
    *t = *r;
    t->extent[d] = n;
    r->extent[d] -= n;
    upper->mine[d] += above ? r->extent[d] : n;
    upper->theirs[d] += above ? r->extent[d] : n;
    return 1;
}

/* Advances to the next box. Sums are in the order of this walk. What the rank adds of its own comes
 * first where no peer's box precedes it, because it then need not wait for peers. */
DPARI_INTERNAL int dpari_hx_next(dpari_hx_walk *w, dpar_transfer *t)
{
    w->own_first = 0;
    if (w->side == 0) {
        if (!dpari_hx_next_box(w, t)) {
            return 0;
        }
        if (!w->splits || !dpari_hx_is_clear(w, t)) {
            return 1;
        }
        if (t->peer != w->rank) {
            dpari_hx_keep_off(w, t);
            return 1;
        }
        w->rest = *t;
    }
    while (w->side < 2 * w->rest.dims) {
        if (dpari_hx_peel(w, t)) {
            return 1;
        }
    }
    *t = w->rest;
    w->side = 0;
    w->own_first = 1;
    return 1;
}

/* Pairs that turn by one or three quarters go component by component: two items. */
DPARI_INTERNAL int32_t dpari_hx_parts(const dpar_halo_field *f, const dpar_transfer *t)
{
    return f->vector == 2 && (t->turn & 1) != 0 ? 2 : 1;
}
