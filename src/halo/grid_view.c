/* SPDX-License-Identifier: MIT-0 */
/* Describes a rank's part of a grid, without messages: the interior and the boundary, the cells of
 * each sub-step, the block of an array for files, and the halo. Implements dpar_grid_interior,
 * dpar_grid_boundary, dpar_grid_valid, dpar_grid_block and dpar_grid_halo. */
#include "grid.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../index/halo.h"
#include "../index/mesh.h"
#include "grid_access.h"
#include "grid_arrays.h"
#include "grid_cut.h"
#include "grid_object.h"
#include "grid_shape.h"

/* Returns the grid behind a handle, even if its world was closed. */
static const dpari_gx *dpari_gx_in(const dpar_grid *grid)
{
    return (const dpari_gx *)(const void *)grid;
}

/* ---- interior and boundary ------------------------------------------------------------------- */

/* True if the grid, or one of its known arrays, has a mirror at an end of dim d. */
static int dpari_gx_mirrored(const dpari_gx *grid, int32_t d, int side)
{
    const dpari_gx_shape *shape = grid->shapes;
    int found = (side ? grid->desc.mirror_high[d] : grid->desc.mirror_low[d]) != 0;
    for (; shape && !found; shape = shape->next) {
        found = (side ? shape->field.mirror_high[d] : shape->field.mirror_low[d]) != 0;
    }
    return found;
}

/* Computes the own cells of a dim, lo to hi - 1, that can be computed during an exchange, because
 * no halo cell that an exchange or a mirror fills is within the stencil's radius of them. */
static void dpari_gx_inner(const dpari_gx *grid, int32_t d, int64_t *lo, int64_t *hi)
{
    const int64_t first = grid->head.first[d], own = grid->head.count[d];
    const int below = first > 0 || grid->desc.periodic[d] || dpari_gx_mirrored(grid, d, 0);
    const int above = first + own < grid->head.cells[d] || grid->desc.periodic[d] ||
                      dpari_gx_mirrored(grid, d, 1);
    const int exchanges = grid->head.parts[d] > 1 || grid->desc.periodic[d];
    const int32_t steps = exchanges ? grid->steps : 1;
    *lo = dpari_least(below ? grid->low[d] / steps : 0, own);
    *hi = dpari_most(above ? own - grid->high[d] / steps : own, *lo);
}

DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box)
{
    dpar_box inner;
    int32_t d, some = 1;
    dpari_zero(&inner, sizeof inner);
    inner.dims = grid ? grid->dims : 0;
    for (d = 0; d < inner.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &inner.lo[d], &inner.hi[d]);
        some = some && inner.lo[d] < inner.hi[d];
    }
    if (grid && box && some) {
        *box = inner;
        return 1;
    }
    return 0;
}

DPAR_API int dpar_grid_valid(const dpar_grid *handle, int32_t j, dpar_box *box)
{
    const dpari_gx *grid = dpari_gx_in(handle);
    int32_t d, left;
    if (!grid || !box || j < 0 || j >= grid->steps) {
        return 0;
    }
    dpari_zero(box, sizeof *box);
    box->dims = handle->dims;
    left = grid->steps - 1 - j; /* the sub-steps that follow */
    for (d = 0; d < box->dims && !dpari_gx_is_empty(grid); d++) {
        const int64_t after = handle->cells[d] - handle->first[d] - handle->count[d];
        const int periodic = grid->desc.periodic[d];
        const int64_t below = grid->low[d] / grid->steps * left;
        const int64_t above = grid->high[d] / grid->steps * left;
        box->lo[d] = -(periodic ? below : dpari_least(below, handle->first[d]));
        box->hi[d] = handle->count[d] + (periodic ? above : dpari_least(above, after));
    }
    return 1;
}

/* The boxes below and above the interior in dim 0 span all other dims. The boxes of dim 1 are
 * between these two, and so on. */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box)
{
    dpar_box next;
    int64_t lo, hi;
    int32_t d, side;
    if (!box || !dpar_grid_valid(grid, 0, &next) || dpari_gx_is_empty(dpari_gx_in(grid))) {
        return 0;
    }
    for (d = 0; d < next.dims; d++) {
        const int64_t from = next.lo[d], to = next.hi[d];
        dpari_gx_inner(dpari_gx_in(grid), d, &lo, &hi);
        for (side = 0; side < 2; side++) {
            next.lo[d] = side ? hi : from;
            next.hi[d] = side ? to : lo;
            if (next.lo[d] < next.hi[d] && n-- == 0) {
                *box = next;
                return 1;
            }
        }
        next.lo[d] = lo;
        next.hi[d] = hi;
        if (lo == hi) {
            return 0; /* there are no cells between the two boxes */
        }
    }
    return 0;
}

/* ---- one array ------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD int dpari_gx_access_to(dpar_grid *handle, void *array, dpari_gx_access *access)
{
    const dpari_gx *grid = dpari_gx_of(handle);
    const dpari_gx_shape *shape = grid && array ? dpari_gx_shape_at(grid, array) : NULL;
    if (!shape) {
        return 0;
    }
    access->desc = &grid->desc;
    access->field = &shape->field;
    access->first = (unsigned char *)array + shape->origin;
    access->low = grid->low;
    access->high = grid->high;
    access->widest = grid->widest;
    access->steps = grid->steps;
    access->type = shape->type;
    access->device = grid->mem != NULL;
    return 1;
}

/* ---- one block ------------------------------------------------------------------------------- */

DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid)
{
    return grid ? &dpari_gx_in(grid)->halo : NULL;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_block(const dpar_grid *grid, const dpar_grid_field *field,
                                                dpar_grid_part *part)
{
    const dpari_gx *g = dpari_gx_in(grid);
    dpari_gx_shape shape;
    dpar_status status;
    dpar_box own;
    int32_t d;
    if (!g || !g->head.comm || !part) {
        return DPAR_E_ARG;
    }
    status = dpari_gx_make_shape(g, DPAR_F64, field, g->head.comm->rank, &shape, NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (d = 0; d < g->head.dims; d++) { /* for a rank without points */
        own.lo[d] = g->head.first[d];
        own.hi[d] = g->head.first[d] + g->head.count[d];
    }
    (void)dpari_gx_owned(&shape, g->head.comm->rank, &own);
    dpari_zero(part, sizeof *part);
    for (d = 0; d < g->head.dims; d++) {
        part->global_count[d] = dpar_halo_points(&shape.halo, d);
        part->start[d] = own.lo[d];
        part->count[d] = own.hi[d] - own.lo[d];
        part->local_count[d] = dpari_gx_points(g, &shape.field, d);
        part->local_start[d] = g->low[d];
        part->stride[d] = shape.field.stride[d];
    }
    part->component_stride = shape.field.component_stride;
    return DPAR_OK;
}
