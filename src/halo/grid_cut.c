/* SPDX-License-Identifier: MIT-0 */
/* Checks the description of a grid, and cuts its cells into one block per rank.
 *
 * Everything here is local. The ranks compare the description afterwards (dpari_gx_state), so that
 * a rank that finds a fault does not leave the others waiting. */
#include "grid_cut.h"

#include "../base/arith.h"
#include "../index/cart.h"
#include "../index/halo.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "../index/split.h"

/* Checks the fields of the description that concern one dim: cells, halo, ends and cuts. */
static DPARI_COLD dpar_status dpari_gx_check_dim(const dpari_gx *grid, int32_t d, dpar_why *why)
{
    const dpar_grid_desc *desc = &grid->desc;
    const int64_t most = INT64_C(1) << 60; /* the limit of dpar_halo_check */
    int32_t part;
    if (desc->cells[d] < 1) {
        return dpari_wrong(why, "grid: desc.cells[%d] is %ld; it must be at least 1", d,
                           desc->cells[d]);
    }
    if (grid->low[d] < 0 || grid->high[d] < 0 || grid->low[d] > most || grid->high[d] > most) {
        return dpari_wrong(
            why, "grid: dim %d: the halo is %ld wide below and %ld above; each must be 0 to 2^60",
            d, grid->low[d], grid->high[d]);
    }
    if (!dpari_is_flag(desc->periodic[d]) || desc->mirror_low[d] < 0 || desc->mirror_high[d] < 0 ||
        desc->mirror_low[d] > DPAR_GRID_MIRROR_CELL ||
        desc->mirror_high[d] > DPAR_GRID_MIRROR_CELL ||
        (desc->periodic[d] && (desc->mirror_low[d] | desc->mirror_high[d]) != 0)) {
        return dpari_wrong(
            why,
            "grid: dim %d: periodic is %d (0 or 1 allowed), mirror_low %d and mirror_high "
            "%d (0 to 2 allowed, only 0 if periodic)",
            d, desc->periodic[d], desc->mirror_low[d], desc->mirror_high[d]);
    }
    if (!desc->cuts[d]) {
        return DPAR_OK;
    }
    if (desc->parts[d] < 1) {
        return dpari_wrong(
            why,
            "grid: desc.cuts[%d] is set, but desc.parts[%d] is %d; it must be the number "
            "of parts",
            d, d, desc->parts[d]);
    }
    for (part = 0; part < desc->parts[d]; part++) {
        if (desc->cuts[d][part + 1] < desc->cuts[d][part]) {
            return dpari_wrong(
                why,
                "grid: desc.cuts[%d] must not descend, but part %d begins at %ld and ends at %ld",
                d, part, desc->cuts[d][part], desc->cuts[d][part + 1]);
        }
    }
    return DPAR_OK;
}

/* Checks the description, without the other ranks, and sets the halo's width on each side. */
static DPARI_COLD dpar_status dpari_gx_check(dpari_gx *grid, dpar_why *why)
{
    const dpar_grid_desc *desc = &grid->desc;
    int32_t d;
    if (desc->dims < 1 || desc->dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "grid: desc.dims is %d; it must be 1 to %d", desc->dims,
                           (int32_t)DPAR_MAX_DIMS);
    }
    if (!dpari_is_flag(desc->star) || !dpari_is_flag(desc->order) || !dpari_is_flag(desc->check) ||
        !dpari_is_flag(desc->owns_comm)) {
        return dpari_wrong(
            why, "grid: desc.star is %d, order %d, check %d, owns_comm %d; each must be 0 or 1",
            desc->star, desc->order, desc->check, desc->owns_comm);
    }
    if (!dpari_is_flag(desc->exchange_walls) || !dpari_is_flag(desc->array_start)) {
        return dpari_wrong(
            why, "grid: desc.exchange_walls is %d and array_start %d; each must be 0 or 1",
            desc->exchange_walls, desc->array_start);
    }
    if (desc->steps < 0 || (desc->steps > 1 && desc->star)) {
        return dpari_wrong(
            why,
            "grid: desc.steps is %d, star %d; steps must be at least 0, and star 0 if "
            "it is above 1, because the second step reads edges and corners",
            desc->steps, desc->star);
    }
    grid->steps = (int32_t)dpari_most(desc->steps, 1);
    for (d = 0; d < desc->dims; d++) {
        dpar_status status;
        grid->low[d] = desc->halo_low[d] != 0 ? desc->halo_low[d] : desc->halo;
        grid->high[d] = desc->halo_high[d] != 0 ? desc->halo_high[d] : desc->halo;
        grid->widest = dpari_most(grid->widest, dpari_most(grid->low[d], grid->high[d]));
        status = dpari_gx_check_dim(grid, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Chooses the number of parts of each dim. Numbers of the caller may exceed the cells, so that some
 * parts have none. If two choices are nearly equal, it prefers to cut
 * earlier dims, whose halos have longer rows. Dims without a halo are not cut, unless the other
 * dims have too few cells for all ranks. */
static DPARI_COLD dpar_status dpari_gx_parts(dpari_gx *grid, int32_t ranks, dpar_why *why)
{
    dpar_cart_choose_desc cart;
    dpar_status status;
    int32_t d, whole = 0;
    dpari_zero(&cart, sizeof cart);
    cart.ranks = ranks;
    cart.dims = grid->desc.dims;
    for (d = 0; d < grid->desc.dims; d++) {
        const int64_t width = grid->low[d] + grid->high[d];
        cart.cells[d] = dpari_most(grid->desc.cells[d], grid->desc.parts[d]);
        cart.weight[d] = 64 * dpari_least(width, 1024) + d + 1;
        cart.periodic |= (uint32_t)grid->desc.periodic[d] << d;
        grid->head.parts[d] =
            grid->desc.parts[d] == 0 && width == 0 && grid->widest > 0 ? 1 : grid->desc.parts[d];
        whole |= grid->head.parts[d] != grid->desc.parts[d];
    }
    status = dpar_cart_choose_parts(&cart, grid->head.parts, NULL, why);
    if (status != DPAR_OK && whole) {
        for (d = 0; d < grid->desc.dims; d++) {
            grid->head.parts[d] = grid->desc.parts[d];
        }
        status = dpar_cart_choose_parts(&cart, grid->head.parts, NULL, why);
    }
    return status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_check_mirrors(const dpari_gx *grid,
                                                             const int32_t *low,
                                                             const int32_t *high, dpar_why *why)
{
    int32_t d;
    if (dpari_gx_is_empty(grid)) {
        return DPAR_OK;
    }
    for (d = 0; d < grid->head.dims; d++) {
        const int64_t n = grid->head.cells[d];
        const int64_t first = grid->head.first[d];
        const int64_t end = first + grid->head.count[d];
        const int64_t below = grid->low[d] - first; /* halo cells beyond the low end */
        const int64_t above = end + grid->high[d] - n;
        if ((low[d] && below > 0 && below + low[d] - 1 > dpari_least(n, end + grid->high[d])) ||
            (high[d] && above > 0 &&
             above + high[d] - 1 > n - dpari_most(0, first - grid->low[d]))) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "grid: dim %d: a mirror needs more cells than this rank has: it owns %ld, and "
                "its halo is %ld wide below and %ld above",
                d, grid->head.count[d], grid->low[d], grid->high[d]);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_gx_cells_of_part(const dpari_gx *grid, int32_t d,
                                                         int32_t part, int64_t *first)
{
    const int64_t *cuts = grid->desc.cuts[d];
    int64_t count = 0;
    if (cuts) {
        *first = cuts[part];
        return cuts[part + 1] - cuts[part];
    }
    (void)dpar_split_range(DPAR_SPLIT_EVEN, grid->desc.cells[d], grid->head.parts[d], part, first,
                           &count);
    return count;
}

DPARI_INTERNAL DPARI_COLD int dpari_gx_is_empty(const dpari_gx *grid)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        if (grid->head.count[d] == 0) {
            return 1;
        }
    }
    return 0;
}

/* Makes grid->halo, the halo of the grid's cells, which the mesh distributes. */
static DPARI_COLD dpar_status dpari_gx_cut_halo(dpari_gx *grid, const dpar_mesh *mesh,
                                                dpar_why *why)
{
    dpar_placement placement[DPAR_MAX_DIMS];
    dpar_halo *halo = &grid->halo;
    dpar_status status;
    int32_t d;
    dpari_zero(halo, sizeof *halo);
    for (d = 0; d < grid->desc.dims; d++) {
        placement[d] =
            dpar_shard_by(d, grid->desc.cuts[d] ? DPAR_SPLIT_RAGGED : DPAR_SPLIT_EVEN, 0);
        placement[d].cuts = grid->desc.cuts[d];
        halo->low[d] = grid->low[d];
        halo->high[d] = grid->high[d];
        halo->periodic |= (uint32_t)grid->desc.periodic[d] << d;
    }
    halo->shape = grid->desc.star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    status = dpar_layout_init(&halo->grid, mesh, grid->desc.dims, grid->desc.cells, placement, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_check(halo, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_cut(dpari_gx *grid, const dpar_comm *comm,
                                                   dpar_why *why)
{
    const char *axes = &"f e d c b a"[2 * (DPAR_MAX_DIMS - grid->desc.dims)];
    dpar_mesh mesh;
    int64_t step = 1;
    int32_t d;
    dpar_status status =
        dpar_mesh_init(&mesh, axes, grid->head.parts, grid->desc.order, comm->size, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_cut_halo(grid, &mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpar_mesh_coords(&mesh, comm->rank, grid->head.coord);
    grid->head.dims = grid->desc.dims;
    for (d = grid->desc.dims - 1; d >= 0; d--) {
        const int64_t most = INT64_C(1) << 56;
        const int64_t count =
            dpari_gx_cells_of_part(grid, d, grid->head.coord[d], &grid->head.first[d]);
        const int exchanges = grid->head.parts[d] > 1 || grid->desc.periodic[d];
        if (exchanges && (grid->low[d] % grid->steps != 0 || grid->high[d] % grid->steps != 0)) {
            return dpari_say(DPAR_E_DIVIDE, why,
                             "grid: dim %d: desc.steps is %d; it must divide the halo's widths, "
                             "%ld below and %ld above",
                             d, grid->steps, grid->low[d], grid->high[d]);
        }
        grid->head.cells[d] = grid->desc.cells[d];
        grid->head.count[d] = count;
        grid->head.stride[d] = step;
        if (!dpari_mul(step, grid->low[d] + count + grid->high[d], &step) || step > most) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "grid: the array of rank %d would have more than 2^56 points, with %ld own "
                "cells in dim %d",
                comm->rank, count, d);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_cut_cells(dpari_gx *grid, const dpar_comm *comm,
                                                         dpar_why *why)
{
    dpar_status status = dpari_gx_check(grid, why);
    if (status == DPAR_OK) {
        status = dpari_gx_parts(grid, comm->size, why);
    }
    if (status == DPAR_OK) {
        status = dpari_gx_cut(grid, comm, why);
    }
    return status;
}

DPARI_INTERNAL DPARI_COLD void dpari_gx_state(dpari_facts *facts, const void *given)
{
    const dpar_grid_desc *desc = (const dpar_grid_desc *)given;
    int32_t d, p;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "star", 0, desc->star);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "check", 0, desc->check);
    dpari_fact(facts, "halo", 0, desc->halo);
    dpari_fact(facts, "steps", 0, desc->steps);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact(facts, "owns_comm", 0, desc->owns_comm);
    dpari_fact(facts, "exchange_walls", 0, desc->exchange_walls);
    for (d = 0; d < desc->dims; d++) {
        uint64_t h = 1;
        dpari_fact(facts, "cells[#]", d, desc->cells[d]);
        dpari_fact(facts, "halo_low[#]", d, desc->halo_low[d]);
        dpari_fact(facts, "halo_high[#]", d, desc->halo_high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
        dpari_fact(facts, "mirror_low[#]", d, desc->mirror_low[d]);
        dpari_fact(facts, "mirror_high[#]", d, desc->mirror_high[d]);
        dpari_fact(facts, "parts[#]", d, desc->parts[d]);
        for (p = 0; desc->cuts[d] && p <= desc->parts[d]; p++) {
            h = dpari_hash(h, desc->cuts[d][p]);
        }
        dpari_fact_hash(facts, "the list of cuts[#]", d, h);
    }
}
