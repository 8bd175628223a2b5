/* SPDX-License-Identifier: MIT-0 */
/* Describes a rank's part of a grid, without messages: the interior and the boundary, the block of
 * an array for files, the halo, and a picture of the owners. Implements dpar_grid_interior,
 * dpar_grid_boundary, dpar_grid_block, dpar_grid_halo and dpar_grid_draw. */
#include "grid.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../index/halo.h"
#include "../index/mesh.h"
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
 * no halo cell that an exchange or a mirror fills is within the halo's width of them. */
static void dpari_gx_inner(const dpari_gx *grid, int32_t d, int64_t *lo, int64_t *hi)
{
    const int64_t first = grid->head.first[d], own = grid->head.count[d];
    const int below = first > 0 || grid->desc.periodic[d] || dpari_gx_mirrored(grid, d, 0);
    const int above = first + own < grid->head.cells[d] || grid->desc.periodic[d] ||
                      dpari_gx_mirrored(grid, d, 1);
    *lo = dpari_least(below ? grid->low[d] : 0, own);
    *hi = dpari_most(above ? own - grid->high[d] : own, *lo);
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

/* The boxes below and above the interior in dim 0 span all other dims. The boxes of dim 1 are
 * between these two, and so on. */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box)
{
    dpar_box next;
    int64_t lo, hi;
    int32_t d, side;
    dpari_zero(&next, sizeof next);
    next.dims = grid && box && !dpari_gx_is_empty(dpari_gx_in(grid)) ? grid->dims : 0;
    for (d = 0; d < next.dims; d++) {
        next.hi[d] = grid->count[d];
    }
    for (d = 0; d < next.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &lo, &hi);
        for (side = 0; side < 2; side++) {
            next.lo[d] = side ? hi : 0;
            next.hi[d] = side ? grid->count[d] : lo;
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

/* ---- ownership as text ----------------------------------------------------------------------- */

/* Writes n numbers with a separator between them. */
static DPARI_COLD void dpari_gx_put_list(dpar_text *text, const int64_t *v, int32_t n,
                                         const char *by)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_text_print(text, "%s%ld", i > 0 ? by : "", v[i]);
    }
}

/* Writes the cells of part p of a dim, such as "40..79" or "none". */
static DPARI_COLD void dpari_gx_put_cells(dpar_text *text, const dpari_gx *grid, int32_t d,
                                          int32_t p)
{
    int64_t first = 0;
    const int64_t count = dpari_gx_cells_of_part(grid, d, p, &first);
    if (count == 0) {
        dpar_text_put(text, "none");
        return;
    }
    dpari_text_print(text, "%ld..%ld", first, first + count - 1);
}

/* Writes the ranks of the last two dims as a table, for one part of each of the other dims (coord).
 * The last dim runs to the right. */
static DPARI_COLD void dpari_gx_put_table(dpar_text *text, const dpari_gx *grid, int32_t *coord)
{
    const int32_t x = grid->head.dims - 1, y = x - 1;
    int32_t i, j;
    for (i = -1; i < (y < 0 ? 1 : grid->head.parts[y]); i++) {
        for (j = 0; j < grid->head.parts[x]; j++) {
            dpari_text_column(text, (size_t)(14 + 14 * j));
            if (i < 0) {
                dpari_gx_put_cells(text, grid, x, j);
                continue;
            }
            coord[x] = j;
            if (y >= 0) {
                coord[y] = i;
            }
            dpari_text_print(text, "rank %d", dpar_mesh_rank(&grid->halo.grid.mesh, coord));
        }
        dpar_text_put(text, "\n");
        if (y >= 0 && i + 1 < grid->head.parts[y]) {
            dpar_text_put(text, "  ");
            dpari_gx_put_cells(text, grid, y, i + 1);
        }
    }
}

DPAR_API DPARI_COLD void dpar_grid_draw(const dpar_grid *grid, dpar_text *out)
{
    const dpari_gx *g = dpari_gx_in(grid);
    int32_t coord[DPAR_MAX_DIMS] = {0};
    int64_t parts[DPAR_MAX_DIMS];
    int32_t d, k;
    if (!g || !out) {
        return;
    }
    for (d = 0; d < g->head.dims; d++) {
        parts[d] = g->head.parts[d];
    }
    dpari_gx_put_list(out, g->head.cells, g->head.dims, " x ");
    dpar_text_put(out, " cells on ");
    dpari_gx_put_list(out, parts, g->head.dims, " x ");
    dpar_text_put(out, " ranks, halo ");
    dpari_gx_put_list(out, g->low, g->head.dims, " ");
    for (d = 0; d < g->head.dims; d++) {
        if (g->low[d] != g->high[d]) {
            dpar_text_put(out, " below, ");
            dpari_gx_put_list(out, g->high, g->head.dims, " ");
            dpar_text_put(out, " above");
            break;
        }
    }
    dpar_text_put(out, "\n");
    do { /* for each part of the dims before the last two */
        for (d = 0; d < g->head.dims - 2; d++) {
            dpari_text_print(out, "%s%d: ", d > 0 ? ", dim " : "dim ", d);
            dpari_gx_put_cells(out, g, d, coord[d]);
        }
        dpar_text_put(out, g->head.dims > 2 ? "\n" : "");
        dpari_gx_put_table(out, g, coord);
        for (k = g->head.dims - 3; k >= 0; k--) { /* next part; the last of these dims is fastest */
            coord[k]++;
            if (coord[k] < g->head.parts[k]) {
                break;
            }
            coord[k] = 0;
        }
    } while (k >= 0);
}
