/* SPDX-License-Identifier: MIT-0 */
/* Computes where the boxes of a plan are: in arrays, in compact halos and in staging memory.
 *
 * These functions convert a point of the grid to an address, by the strides and origin of a field.
 * Planning, mirrors and checks use them, so that all compute the same addresses. */
#include "halo_plan.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../host/mem.h"
#include "../index/halo.h"
#include "../index/reach.h"

/* ---- fields ---------------------------------------------------------------------------------- */

/* A table without `move` means the host's memory. */
DPARI_API DPARI_NOINLINE const dpar_mem *dpari_hx_mem(const dpar_halo_field *field)
{
    return field->mem && field->mem->move ? field->mem : NULL;
}

DPARI_API int32_t dpari_hx_components(const dpar_halo_field *field)
{
    return field->components > 0 ? field->components : 1;
}

DPARI_API int32_t dpari_hx_wire(const dpar_halo_field *field)
{
    return field->wire_type != DPAR_TYPE_NONE ? field->wire_type : field->type;
}

DPARI_API const dpar_halo_field *dpari_hx_other(const dpar_halo_field *field)
{
    if (field->pair == DPAR_HALO_PAIR_U) {
        return field + 1;
    }
    return field->pair == DPAR_HALO_PAIR_V ? field - 1 : NULL;
}

DPARI_API int dpari_hx_crosses(const dpar_halo_field *field, int32_t turn)
{
    return field->pair != 0 && (turn & 1) != 0;
}

/* Turned by 1 the pair (u, v) is (-v, u), by 2 (-u, -v), by 3 (v, -u). */
DPARI_API int dpari_hx_negates(const dpar_halo_field *field, int32_t turn)
{
    const int turned = field->pair != 0 && turn == (field->pair == DPAR_HALO_PAIR_U ? 1 : 3);
    return field->vector && (turn == 2 || turned);
}

DPARI_INTERNAL void dpari_hx_inside(const dpar_halo *halo, dpar_box *box)
{
    int32_t d;
    if (halo->folds || halo->poles || halo->cube) {
        return;
    }
    for (d = 0; d < box->dims; d++) {
        if (!(halo->periodic >> d & 1u)) {
            box->lo[d] = dpari_most(box->lo[d], 0);
            box->hi[d] = dpari_least(box->hi[d], dpar_halo_points(halo, d));
        }
    }
}

/* On a rank without own points, the empty own box is at the first point of the local box, where the
 * array begins. Both boxes are computed at once, because planning calls this function often. */
DPARI_API DPARI_COLD int dpari_hx_boxes(const dpar_halo *halo, int32_t rank, dpar_box *own,
                                        dpar_box *all)
{
    int32_t coord[DPAR_MAX_AXES], d, none = 0;
    if (!dpari_halo_coords(halo, rank, coord)) {
        return 0;
    }
    own->dims = all->dims = halo->grid.dims;
    for (d = 0; d < all->dims; d++) {
        int64_t inner[2], outer[2];
        if (!dpari_halo_range(halo, coord, d, inner, outer) || outer[1] <= outer[0]) {
            return 0;
        }
        own->lo[d] = inner[0];
        own->hi[d] = inner[1];
        all->lo[d] = outer[0];
        all->hi[d] = outer[1];
        none |= inner[1] <= inner[0];
    }
    for (d = 0; d < all->dims && none; d++) {
        own->lo[d] = own->hi[d] = all->lo[d];
    }
    return 1;
}

DPARI_INTERNAL const dpar_halo *dpari_hx_array_halo(const dpar_halo_field *field)
{
    return field->array_halo ? field->array_halo : field->halo;
}

/* Describes the array as `rank` holds it if origin and strides are the defaults: dense in C order,
 * with its halo unless that is compact. */
DPARI_INTERNAL void dpari_hx_dense(dpari_hx_array *array, const dpar_halo_field *field,
                                   int32_t rank)
{
    dpar_box own, all;     /* of the halo to exchange */
    dpar_box first, whole; /* of the halo that the array has */
    int64_t step = dpari_hx_components(field);
    int32_t d, exists;
    dpari_zero(array, sizeof *array);
    array->halo = field->halo;
    array->rank = rank;
    array->told.component = 1;
    exists = dpari_hx_boxes(field->halo, rank, &own, &all);
    if (field->array_halo) {
        exists = exists && dpari_hx_boxes(field->array_halo, rank, &first, &whole);
    } else {
        first = own;
        whole = all;
    }
    for (d = field->halo->grid.dims - 1; d >= 0 && exists; d--) {
        array->low[d] = own.lo[d] - all.lo[d];
        array->own[d] = own.hi[d] - own.lo[d];
        array->inner[d] = own.lo[d] - first.lo[d];
        array->told.origin[d] = field->compact_halo ? 0 : own.lo[d] - whole.lo[d];
        array->told.stride[d] = step;
        step *= field->compact_halo ? dpari_most(array->own[d], 1) : whole.hi[d] - whole.lo[d];
    }
}

DPARI_INTERNAL int dpari_hx_strided(const dpar_halo_field *field)
{
    int32_t d;
    for (d = 0; d < field->halo->grid.dims; d++) {
        if (field->stride[d] != 0) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL void dpari_hx_array_of(dpari_hx_array *array, const dpar_halo_field *field,
                                      int32_t rank)
{
    int32_t d;
    dpari_hx_dense(array, field, rank);
    array->compact = array->told.compact = field->compact_halo != NULL;
    array->told.elsewhere = dpari_hx_mem(field) != NULL;
    array->told.component = field->component_stride != 0 ? field->component_stride : 1;
    if (dpari_hx_strided(field)) {
        for (d = 0; d < field->halo->grid.dims; d++) {
            array->told.origin[d] = field->first[d] + array->inner[d];
            array->told.stride[d] = field->stride[d];
        }
    }
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_hx_overlapping_dim(const int64_t *stride,
                                                           const int64_t *points, int32_t dims)
{
    int64_t reach = 0;
    uint32_t left = ((uint32_t)1 << dims) - 1; /* bits of dims still to check */
    while (left != 0) {
        int64_t least = INT64_MAX;
        int32_t d, next = 0;
        for (d = 0; d < dims; d++) {
            if ((left >> d & 1u) && dpari_size(stride[d]) < least) {
                least = dpari_size(stride[d]);
                next = d;
            }
        }
        left &= ~((uint32_t)1 << next);
        if (points[next] > 1) {
            if (least <= reach) {
                return next;
            }
            reach += (points[next] - 1) * least;
        }
    }
    return -1;
}

/* A field can be exchanged dim by dim if a block and its neighbours along each dim have the same
 * points in all other dims. */
DPARI_INTERNAL DPARI_COLD int dpari_hx_can_order(const dpar_halo_field *field)
{
    const dpar_halo *halo = field->halo;
    int32_t d;
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->window[d].kernel != 0) {
            return 0;
        }
    }
    return !halo->folds && !halo->poles && !halo->cube && !halo->owner && !field->compact_halo &&
           (halo->shape != DPAR_STENCIL_EDGES || halo->grid.dims <= 2);
}

/* ---- places of boxes ------------------------------------------------------------------------- */

/* Finds the slab of a compact halo in which a box begins, in local points, and the number of
 * elements before that slab. Returns 0 if there is none. */
static DPARI_COLD int dpari_hx_slab(const dpari_hx_array *array, const int64_t *at,
                                    int32_t components, dpar_box *slab, int64_t *before)
{
    dpar_box own, all;
    int32_t n, d;
    *before = 0;
    if (!dpari_hx_boxes(array->halo, array->rank, &own, &all)) {
        return 0;
    }
    for (n = 0; dpar_halo_slab(array->halo, array->rank, n, slab); n++) {
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
DPARI_API DPARI_COLD void dpari_hx_place(const dpari_hx_array *array, const int64_t *at,
                                         int32_t components, dpari_hx_spot *spot)
{
    const int32_t dims = array->halo->grid.dims;
    int32_t d, own = 1;
    dpar_box slab;
    int64_t step = components;
    for (d = 0; d < dims; d++) {
        own = own && at[d] >= array->low[d] && at[d] < array->low[d] + array->own[d];
    }
    spot->part = DPARI_HX_OWN;
    spot->at = 0;
    spot->stride[dims] = array->told.component;
    if (array->compact && !own) {
        if (!dpari_hx_slab(array, at, components, &slab, &spot->at)) {
            spot->part = -1; /* a corner, which a star does not have */
            return;
        }
        spot->part = DPARI_HX_HALOS;
        spot->stride[dims] = 1;
        for (d = dims - 1; d >= 0; d--) {
            spot->stride[d] = step;
            spot->at += (at[d] - slab.lo[d]) * step;
            step *= slab.hi[d] - slab.lo[d];
        }
        return;
    }
    for (d = 0; d < dims; d++) {
        spot->stride[d] = array->told.stride[d];
        spot->at += (array->told.origin[d] + at[d] - array->low[d]) * array->told.stride[d];
    }
}

/* Extends the run by any dim whose stride equals its length, until there is no such dim. */
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

DPARI_INTERNAL unsigned char *dpari_hx_mine(const dpar_halo_plan *plan, const dpari_hx_item *item)
{
    return plan->part[item->mine] + item->mine_at;
}

/* Returns the beginning of the memory from which an item is taken. */
DPARI_INTERNAL const unsigned char *dpari_hx_base(const dpar_halo_plan *plan,
                                                  const dpari_hx_item *item)
{
    if (item->direct) {
        return item->peer < 0 ? plan->part[item->theirs] : plan->peer[item->peer].at[item->theirs];
    }
    if (item->peer < 0) {
        return plan->staging + dpari_exchange_turn(&plan->x) * plan->turn;
    }
    if (dpari_exchange_sends(&plan->x, item->peer)) {
        return plan->arrivals;
    }
    return plan->peer[item->peer].staging +
           dpari_exchange_turn(&plan->x) * plan->peer[item->peer].turn;
}

DPARI_INTERNAL const unsigned char *dpari_hx_from(const dpar_halo_plan *plan,
                                                  const dpari_hx_item *item)
{
    return dpari_hx_base(plan, item) + (item->direct ? item->theirs_at : item->take_at);
}
