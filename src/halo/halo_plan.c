/* SPDX-License-Identifier: MIT-0 */
/* Computes where the boxes of a plan are: in arrays, in compact halos and in staging memory.
 *
 * These functions turn a point of the grid into an address for the strides and origin of a field.
 * Planning, mirrors and checks share them, so that all agree on addresses. */
#include "halo_plan.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/mem.h"
#include "../index/halo.h"

/* ---- fields -----------------------------------------------------------------------------------
 */

/* The table of a field; NULL: the host's memory. */
DPARI_API DPARI_NOINLINE const dpar_mem *dpari_hx_mem(const dpar_halo_field *f)
{
    return f->mem && f->mem->move ? f->mem : NULL;
}

DPARI_API int32_t dpari_hx_components(const dpar_halo_field *f)
{
    return f->components > 0 ? f->components : 1;
}

DPARI_API int32_t dpari_hx_wire(const dpar_halo_field *f)
{
    return f->wire_type != DPAR_TYPE_NONE ? f->wire_type : f->type;
}

DPARI_API const dpar_halo_field *dpari_hx_other(const dpar_halo_field *f)
{
    return f->pair == DPAR_HALO_PAIR_U ? f + 1 : f->pair == DPAR_HALO_PAIR_V ? f - 1 : NULL;
}

DPARI_API int dpari_hx_crosses(const dpar_halo_field *f, int32_t turn)
{
    return f->pair != 0 && (turn & 1) != 0;
}

/* Turned by 1 a pair is (-v, u), by 2 (-u, -v), by 3 (v, -u). */
DPARI_API int dpari_hx_negates(const dpar_halo_field *f, int32_t turn)
{
    const int turned = f->pair != 0 && turn == (f->pair == DPAR_HALO_PAIR_U ? 1 : 3);
    return f->vector && (turn == 2 || turned);
}

/* This rank's own and local boxes: where a rank has no own points its array begins with the box. */
DPARI_INTERNAL void dpari_hx_inside(const dpar_halo *h, dpar_box *box)
{
    int32_t d;
    for (d = 0; d < box->dims && !h->folds && !h->poles && !h->cube; d++) {
        if (!(h->periodic >> d & 1u)) {
            box->lo[d] = dpari_most(box->lo[d], 0);
            box->hi[d] = dpari_least(box->hi[d], dpar_halo_points(h, d));
        }
    }
}

DPARI_API DPARI_COLD int dpari_hx_boxes(const dpar_halo *h, int32_t rank, dpar_box *own,
                                        dpar_box *all)
{
    int32_t d;
    if (!dpar_halo_box(h, rank, all)) {
        return 0;
    }
    if (!dpar_halo_owned(h, rank, own)) {
        *own = *all;
        for (d = 0; d < all->dims; d++) {
            own->hi[d] = own->lo[d];
        }
    }
    return 1;
}

DPARI_INTERNAL const dpar_halo *dpari_hx_array_halo(const dpar_halo_field *f)
{
    return f->array_halo ? f->array_halo : f->halo;
}

/* The array as `rank` holds it, when origin and strides are the defaults. */
DPARI_INTERNAL void dpari_hx_dense(dpari_hx_array *a, const dpar_halo_field *f, int32_t rank)
{
    dpar_box own, all, first, whole; /* these two: of the array */
    int64_t step = dpari_hx_components(f);
    int32_t d;
    dpari_zero(a, sizeof *a);
    a->h = f->halo;
    a->rank = rank;
    a->component = 1;
    a->exists = dpari_hx_boxes(f->halo, rank, &own, &all) &&
                dpari_hx_boxes(dpari_hx_array_halo(f), rank, &first, &whole);
    for (d = f->halo->grid.dims - 1; d >= 0 && a->exists; d--) {
        a->low[d] = own.lo[d] - all.lo[d];
        a->own[d] = own.hi[d] - own.lo[d];
        a->inner[d] = own.lo[d] - first.lo[d];
        a->origin[d] = f->compact_halo ? 0 : own.lo[d] - whole.lo[d];
        a->stride[d] = step;
        step *= f->compact_halo ? dpari_most(a->own[d], 1) : whole.hi[d] - whole.lo[d];
    }
}

DPARI_INTERNAL int dpari_hx_strided(const dpar_halo_field *f)
{
    int32_t d;
    for (d = 0; d < f->halo->grid.dims; d++) {
        if (f->stride[d] != 0) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL void dpari_hx_array_of(dpari_hx_array *a, const dpar_halo_field *f, int32_t rank)
{
    int32_t d;
    dpari_hx_dense(a, f, rank);
    a->compact = f->compact_halo != NULL;
    a->elsewhere = dpari_hx_mem(f) != NULL;
    a->component = f->component_stride != 0 ? f->component_stride : 1;
    if (dpari_hx_strided(f)) {
        for (d = 0; d < f->halo->grid.dims; d++) {
            a->origin[d] = f->first[d] + a->inner[d];
            a->stride[d] = f->stride[d];
        }
    }
}

/* Dim by dim: where a block and its neighbours in one dim are alike in all others. */
DPARI_INTERNAL DPARI_COLD int dpari_hx_can_order(const dpar_halo_field *f)
{
    const dpar_halo *h = f->halo;
    int32_t d;
    for (d = 0; d < h->grid.dims; d++) {
        if (h->window[d].kernel != 0) {
            return 0;
        }
    }
    return !h->folds && !h->poles && !h->cube && !h->owner && !f->compact_halo &&
           (h->shape != DPAR_STENCIL_EDGES || h->grid.dims <= 2);
}

/* ---- where boxes lie --------------------------------------------------------------------------
 */

/* The slab of the compact form that a box begins in; elements before it. */
static DPARI_COLD int dpari_hx_slab(const dpari_hx_array *a, const int64_t *at, int32_t components,
                                    dpar_box *slab, int64_t *before)
{
    dpar_box own, all;
    int32_t n, d;
    *before = 0;
    if (!dpari_hx_boxes(a->h, a->rank, &own, &all)) {
        return 0;
    }
    for (n = 0; dpar_halo_slab(a->h, a->rank, n, slab); n++) {
        int64_t points = 1;
        int inside = 1;
        for (d = 0; d < slab->dims; d++) {
            slab->lo[d] -= all.lo[d];
            slab->hi[d] -= all.lo[d];
            inside = inside && at[d] >= slab->lo[d] && at[d] < slab->hi[d];
            points *= slab->hi[d] - slab->lo[d];
        }
        if (inside) {
            return 1;
        }
        *before += points * components;
    }
    return 0;
}

/* Finds the place in an array of the box that begins at local point at[]. */
DPARI_API DPARI_COLD void dpari_hx_place(const dpari_hx_array *a, const int64_t *at,
                                         int32_t components, dpari_hx_spot *p)
{
    const int32_t dims = a->h->grid.dims;
    int32_t d, own = 1;
    dpar_box slab;
    int64_t step = components;
    for (d = 0; d < dims; d++) {
        own = own && at[d] >= a->low[d] && at[d] < a->low[d] + a->own[d];
    }
    p->part = DPARI_HX_OWN;
    p->at = 0;
    p->stride[dims] = a->component;
    if (a->compact && !own) {
        if (!dpari_hx_slab(a, at, components, &slab, &p->at)) {
            p->part = -1; /* where a star has nothing */
            return;
        }
        p->part = DPARI_HX_HALOS;
        p->stride[dims] = 1;
        for (d = dims - 1; d >= 0; d--) {
            p->stride[d] = step;
            p->at += (at[d] - slab.lo[d]) * step;
            step *= slab.hi[d] - slab.lo[d];
        }
        return;
    }
    for (d = 0; d < dims; d++) {
        p->stride[d] = a->stride[d];
        p->at += (a->origin[d] + at[d] - a->low[d]) * a->stride[d];
    }
}

/* Returns the bytes of a box that are contiguous. */
DPARI_INTERNAL int64_t dpari_hx_in_a_row(const int64_t *extent, const int64_t *stride, int32_t dims,
                                         int32_t type)
{
    int64_t run = 1;
    int32_t d = 0;
    while (d < dims) {
        for (d = 0; d < dims; d++) {
            if (extent[d] > 1 && (stride[d] == run || stride[d] == -run)) {
                run *= extent[d];
                break;
            }
        }
    }
    return run * dpar_type_bytes(type);
}

DPARI_INTERNAL int64_t dpari_hx_parity(const dpar_halo_plan *x)
{
    return x->reached > 0 ? x->part_now : x->count & 1;
}

DPARI_INTERNAL unsigned char *dpari_hx_mine(const dpar_halo_plan *x, const dpari_hx_item *it)
{
    return x->part[it->mine] + it->mine_at;
}

/* Returns the beginning of the memory from which an item is taken. */
DPARI_INTERNAL const unsigned char *dpari_hx_base(const dpar_halo_plan *x, const dpari_hx_item *it)
{
    const dpari_hx_peer *p = &x->peer[it->peer < 0 ? 0 : it->peer];
    if (it->peer < 0) {
        return x->part[it->theirs];
    }
    if (it->direct) {
        return p->at[it->theirs];
    }
    return p->world >= 0 || p->reached ? p->staging + dpari_hx_parity(x) * p->turn : x->arrivals;
}

DPARI_INTERNAL const unsigned char *dpari_hx_from(const dpar_halo_plan *x, const dpari_hx_item *it)
{
    return dpari_hx_base(x, it) + (it->direct ? it->theirs_at : it->take_at);
}
