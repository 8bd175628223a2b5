/* SPDX-License-Identifier: MIT-0 */
/* Lets an exchange include the halo cells beyond walls.
 *
 * Codes that exchange one dim after the other fill the cells beyond a wall first. Their messages
 * along the wall then bring the neighbour's cells beyond the wall, too. The same result follows
 * from one exchange of a larger grid, in which the blocks next to a wall have the cells beyond it.
 */
#include "grid_walls.h"

#include "../base/arith.h"
#include "../comm/os.h"
#include "../index/layout.h"
#include "grid_cut.h"

DPARI_INTERNAL int dpari_gx_sends_beyond(const dpari_gx *grid, const dpar_grid_field *field,
                                         int32_t d, int side)
{
    if (!grid->desc.exchange_walls || grid->desc.periodic[d]) {
        return 0;
    }
    return (side ? field->mirror_high[d] : field->mirror_low[d]) == DPAR_GRID_MIRROR_NONE;
}

/* Sets the cuts of dim d in the larger grid, which has `below` and `above` cells more. They belong
 * to the first and the last part that has cells. Returns the number of cells. */
static DPARI_COLD int64_t dpari_gx_wider_cuts(const dpari_gx *grid, int32_t d, int64_t below,
                                              int64_t above, int64_t *cuts)
{
    const int64_t cells = grid->head.cells[d];
    int32_t p;
    for (p = 0; p < grid->head.parts[d]; p++) {
        const int64_t count = dpari_gx_cells_of_part(grid, d, p, &cuts[p]);
        const int64_t end = cuts[p] + count;
        cuts[p + 1] = end > 0 ? below + end : 0;
        if (end == cells) {
            cuts[p + 1] += above;
        }
        if (cuts[p] > 0) {
            cuts[p] += cuts[p] == cells ? below + above : below;
        }
    }
    return below + cells + above;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_make_walls(const dpari_gx *grid,
                                                          dpari_gx_shape *shape, dpar_why *why)
{
    const dpar_grid_field *field = &shape->field;
    dpar_placement placement[DPAR_MAX_DIMS];
    int64_t cells[DPAR_MAX_DIMS];
    int64_t bytes = (int64_t)sizeof *shape->walls;
    dpari_gx_walls *walls;
    int64_t *cuts;
    int32_t d;
    if (!grid->desc.exchange_walls) {
        return DPAR_OK;
    }
    for (d = 0; d < grid->head.dims; d++) {
        bytes += 8 * ((int64_t)grid->head.parts[d] + 1);
    }
    walls = (dpari_gx_walls *)dpari_os_pages(bytes);
    if (!walls) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated", bytes);
    }
    walls->bytes = bytes;
    walls->halo = shape->halo;
    cuts = (int64_t *)(void *)(walls + 1);
    for (d = 0; d < grid->head.dims; d++) {
        const int64_t below = dpari_gx_sends_beyond(grid, field, d, 0) ? grid->low[d] : 0;
        const int64_t above = dpari_gx_sends_beyond(grid, field, d, 1) ? grid->high[d] : 0;
        cells[d] = dpari_gx_wider_cuts(grid, d, below, above, cuts);
        placement[d] = dpar_shard_by(d, DPAR_SPLIT_RAGGED, 0);
        placement[d].cuts = cuts;
        walls->first[d] = grid->head.first[d] == 0 ? -below : 0;
        cuts += grid->head.parts[d] + 1;
    }
    shape->walls = walls;
    return dpar_layout_init(&walls->halo.grid, &grid->halo.grid.mesh, grid->head.dims, cells,
                            placement, why);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_free_walls(dpari_gx_shape *shape)
{
    if (shape->walls) {
        dpari_os_unmap(shape->walls, shape->walls->bytes);
    }
}

DPARI_INTERNAL const dpar_halo *dpari_gx_sent(const dpari_gx_shape *shape)
{
    return shape->walls ? &shape->walls->halo : &shape->halo;
}

DPARI_INTERNAL DPARI_NOINLINE DPARI_COLD void
dpari_gx_field(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, dpar_halo_field *field)
{
    int32_t d;
    field->halo = dpari_gx_sent(shape);
    field->type = shape->type;
    field->components = shape->field.components;
    field->component_stride = shape->field.component_stride;
    field->data = at;
    field->mem = grid->mem;
    for (d = 0; d < grid->head.dims; d++) {
        field->stride[d] = shape->field.stride[d];
        field->first[d] = grid->desc.array_start ? grid->low[d] : 0;
        field->first[d] += shape->walls ? shape->walls->first[d] : 0;
    }
}
