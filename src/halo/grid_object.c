/* SPDX-License-Identifier: MIT-0 */
/* Implements the handle of a grid, and allocates the memory of its data. */
#include "grid_object.h"

#include "../base/arith.h"
#include "../comm/os.h"

DPARI_INTERNAL dpari_gx *dpari_gx_of(dpar_grid *grid)
{
    return grid && grid->comm ? (dpari_gx *)(void *)grid : NULL;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_say(dpari_gx *grid, dpar_status status,
                                                   const dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    if (status == DPAR_OK) {
        return status;
    }
    return comm->status < 0 ? comm->status : dpari_repeat(status, &comm->why, why->text);
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_release(dpari_gx *grid)
{
    dpari_os_unmap(grid->cuts, grid->cut_bytes);
    dpari_os_unmap(grid, grid->bytes);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_new(const dpar_grid_desc *desc, dpari_gx **grid,
                                                   dpar_why *why)
{
    int64_t bytes = (int64_t)sizeof(dpari_gx);
    int64_t *room;
    dpari_gx *made;
    int32_t d, i;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > 0) {
            bytes += 8 * ((int64_t)desc->parts[d] + 1);
        }
    }
    made = (dpari_gx *)dpari_os_pages(bytes);
    *grid = made;
    if (!made) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes cannot be allocated (is ulimit -v too small?)", bytes);
    }
    made->desc = *desc;
    made->bytes = bytes;
    room = (int64_t *)(void *)(made + 1);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > 0) {
            for (i = 0; i <= desc->parts[d]; i++) {
                room[i] = desc->cuts[d][i];
            }
            made->desc.cuts[d] = room;
            room += i;
        }
    }
    return DPAR_OK;
}
