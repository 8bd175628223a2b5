/* SPDX-License-Identifier: MIT-0 */
/* Fills the halos at mirrors, after an exchange. Mirrors are lists of boxes, dim after dim, each of
 * which also reflects the halos that the dims before it have filled. */
#include "grid_mirrors.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../host/mem_private.h"
#include "grid_cut.h"
#include "grid_shape.h"
#include "grid_walls.h"
#include "halo_exchange_private.h"

/* Computes the box of points that the mirror at an end of dim d fills, counted from the first own
 * point. In dim d it spans the points beyond the end. In the other dims it spans all points that
 * have values: own points, points that exchanges fill, points beyond walls if these are exchanged,
 * and points that mirrors of dims before d have filled. Returns 0 if the box is empty. */
static DPARI_COLD int dpari_gx_beyond(const dpari_gx *grid, const dpari_gx_shape *shape,
                                      int32_t depth, int32_t d, int side, dpar_box *box)
{
    int32_t e;
    for (e = 0; e < grid->head.dims; e++) {
        const int64_t faces = shape->field.location[e] != 0, below = -grid->head.first[e];
        const int64_t above = grid->head.cells[e] + faces - grid->head.first[e];
        const int64_t own =
            grid->head.count[e] + faces; /* with the face that the rank above owns */
        const int wide = shape->halo.shape == DPAR_STENCIL_BOX || e == d;
        box->lo[e] = wide ? -dpari_gx_width(grid, depth, e, 0) : 0;
        box->hi[e] = own + (wide ? dpari_gx_width(grid, depth, e, 1) : 0);
        if (e == d) {
            if (side) {
                box->lo[e] = dpari_most(above, box->lo[e]);
            } else {
                box->hi[e] = dpari_least(below, box->hi[e]);
            }
        } else if (!grid->desc.periodic[e]) {
            if (dpari_gx_sends_beyond(grid, &shape->field, e, 0)) {
                box->lo[e] = below == 0 ? -grid->low[e] : box->lo[e];
            } else if (e > d || !shape->field.mirror_low[e]) {
                box->lo[e] = dpari_most(below, box->lo[e]);
            }
            if (dpari_gx_sends_beyond(grid, &shape->field, e, 1)) {
                box->hi[e] = above == own ? own + grid->high[e] : box->hi[e];
            } else if (e > d || !shape->field.mirror_high[e]) {
                box->hi[e] = dpari_least(above, box->hi[e]);
            }
        }
        if (box->hi[e] <= box->lo[e]) {
            return 0;
        }
    }
    box->dims = grid->head.dims;
    return 1;
}

/* Makes the copy that fills a box beyond a mirror, for component k or for all (-1).
 *
 * Point i, counted from the grid's first point, receives the value of point sum - i. If the mirror
 * is the outer face of the end cell and points are in the middle of cells, sum is -1 at the low end
 * and 2 * cells - 1 at the high end. If the mirror goes through the middle of the end cell, sum is
 * 1 more at the low end and 1 less at the high end. If points are on faces, sum is 1 more. */
static DPARI_COLD void dpari_gx_reflect(const dpari_gx *grid, const dpari_gx_shape *shape,
                                        const dpar_box *box, int32_t d, int side, int32_t k,
                                        dpari_gx_mirror *mirror)
{
    const int32_t dims = grid->head.dims, bytes = dpar_type_bytes(shape->type);
    const int32_t on =
        (side ? shape->field.mirror_high[d] : shape->field.mirror_low[d]) == DPAR_GRID_MIRROR_CELL;
    const int32_t faces = shape->field.location[d] != 0;
    const int64_t sum = (side ? 2 * grid->head.cells[d] - 1 - on : on - 1) + faces;
    dpar_mem_box *copy = &mirror->box;
    dpari_stride_piece piece;
    int64_t at = shape->origin / bytes;
    int32_t e;
    dpari_zero(copy, sizeof *copy);
    copy->to_type = copy->from_type = shape->type;
    copy->op = DPAR_COPY;
    copy->negate = k < 32 && (shape->field.odd[d] >> (k < 0 ? 0 : k) & 1u) != 0;
    copy->dims = dims + 1;
    for (e = 0; e < dims; e++) {
        copy->extent[e] = box->hi[e] - box->lo[e];
        copy->to_stride[e] = copy->from_stride[e] = shape->field.stride[e];
        at += box->lo[e] * shape->field.stride[e];
    }
    copy->extent[dims] = k < 0 ? shape->field.components : 1;
    copy->to_stride[dims] = copy->from_stride[dims] = shape->field.component_stride;
    copy->from_stride[d] = -copy->from_stride[d];
    at += k < 0 ? 0 : k * shape->field.component_stride;
    mirror->dim = d;
    mirror->to = at * bytes;
    mirror->from =
        (at + (sum - 2 * (grid->head.first[d] + box->lo[d])) * shape->field.stride[d]) * bytes;
    dpari_mem_piece(copy, &piece);
    dpari_stride_prepare(&mirror->stride, &piece);
}

/* Computes the box of points that the mirror at an end of dim d fills (dpari_gx_beyond), and
 * returns the number of copies that fill it: one for each component, or one for all if all of them
 * change their sign or none does. Returns 0 if there is no mirror or the box is empty. */
static DPARI_COLD int32_t dpari_gx_copies(const dpari_gx *grid, const dpari_gx_shape *shape,
                                          int32_t depth, int32_t d, int side, dpar_box *box)
{
    const int32_t comps = shape->field.components;
    const uint32_t all = comps > 31 ? ~(uint32_t)0 : ((uint32_t)1 << comps) - 1;
    const uint32_t odd = shape->field.odd[d] & all;
    if (dpari_gx_is_empty(grid) ||
        !(side ? shape->field.mirror_high[d] : shape->field.mirror_low[d]) ||
        !dpari_gx_beyond(grid, shape, depth, d, side, box)) {
        return 0;
    }
    return odd != 0 && (odd != all || comps > 32) ? comps : 1;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_gx_count_mirrors(const dpari_gx *grid,
                                                         const dpari_gx_shape *shape, int32_t depth)
{
    int32_t side, count = 0;
    dpar_box box;
    for (side = 0; side < 2 * grid->head.dims; side++) {
        count += dpari_gx_copies(grid, shape, depth, side / 2, side % 2, &box);
    }
    return count;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_list_mirrors(const dpari_gx *grid,
                                                     const dpari_gx_shape *const *shape, int32_t n,
                                                     int32_t depth, dpari_gx_mirror *mirror)
{
    int32_t d, i, k;
    dpar_box box;
    for (d = 0; d < grid->head.dims; d++) {
        for (i = 0; i < 2 * n; i++) {
            const int side = i % 2;
            const int32_t copies = dpari_gx_copies(grid, shape[i / 2], depth, d, side, &box);
            for (k = 0; k < copies; k++) {
                dpari_gx_reflect(grid, shape[i / 2], &box, d, side, copies > 1 ? k : -1, mirror);
                mirror->item = i / 2;
                mirror++;
            }
        }
    }
}

/* Moves the boxes at mirrors in a device's memory, with one call per dim, because the boxes of a
 * dim read values that the boxes of earlier dims have written. In the communicator's memory, later
 * operations are ordered after these moves, so that nothing waits for them here. */
static DPARI_COLD dpar_status dpari_gx_move_mirrors(const dpari_gx *grid,
                                                    const dpari_gx_mirrors *mirrors,
                                                    const dpar_halo_plan *exchange)
{
    int32_t i, count = 0;
    for (i = 0; i < mirrors->count; i++) {
        const dpari_gx_mirror *mirror = &mirrors->mirror[i];
        char *at = (char *)dpari_hx_bound(exchange, mirror->item);
        dpar_mem_box *box = &mirrors->box[count];
        *box = mirror->box;
        box->to = at + mirror->to;
        box->from = at + mirror->from;
        count++;
        if (i + 1 == mirrors->count || mirror[1].dim != mirror->dim) {
            const dpar_status status = grid->mem->move(grid->mem->ctx, mirrors->box, count);
            if (status != DPAR_OK) {
                return status;
            }
            count = 0;
        }
    }
    if (grid->mem == grid->head.comm->mem) {
        return DPAR_OK;
    }
    return grid->mem->wait(grid->mem->ctx);
}

DPARI_INTERNAL dpar_status dpari_gx_fill(const dpari_gx *grid, const dpari_gx_mirrors *mirrors,
                                         const dpar_halo_plan *exchange)
{
    int32_t i;
    if (mirrors->box) {
        const dpar_status status = dpari_gx_move_mirrors(grid, mirrors, exchange);
        if (status != DPAR_OK) {
            dpar_comm_abort(
                grid->head.comm, status,
                "grid: the halos at mirrors could not be filled in the device's memory");
        }
        return status;
    }
    for (i = 0; i < mirrors->count; i++) {
        const dpari_gx_mirror *mirror = &mirrors->mirror[i];
        char *at = (char *)dpari_hx_bound(exchange, mirror->item);
        dpari_stride_run(&mirror->stride, at + mirror->to, at + mirror->from);
    }
    return DPAR_OK;
}
