/* SPDX-License-Identifier: MIT-0 */
/* Cuts a grid where the caller's code cuts it.
 *
 * Only rank r knows how many cells rank r expects. All ranks therefore gather these numbers and
 * compute the same cuts from them: a part of a dim has the number that its ranks expect. The number
 * of parts of a dim, if the caller has not set it, follows from the sum of these numbers. All of
 * this is only done if some rank has another number than it expects, because codes that cut as dpar
 * does are the usual case. */
#include "grid_expected.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/os.h"
#include "../index/mesh.h"
#include "grid_cut.h"

/* True if this rank expects another number of cells than it has. */
static DPARI_COLD int32_t dpari_gx_is_unexpected(const dpari_gx *grid)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        if (grid->desc.expected_count[d] != 0 &&
            grid->desc.expected_count[d] != grid->head.count[d]) {
            return 1;
        }
    }
    return 0;
}

/* Returns the first rank that expects another number of cells in dim d than it has, and sets *count
 * to what it has. Returns -1 if there is none. expected: [ranks][DPAR_MAX_DIMS]; 0 is unknown. */
static DPARI_COLD int32_t dpari_gx_first_unexpected(const dpari_gx *grid, int32_t d,
                                                    const int64_t *expected, int64_t *count)
{
    const dpar_mesh *mesh = &grid->halo.grid.mesh;
    int32_t coord[DPAR_MAX_DIMS] = {0};
    int64_t first;
    int32_t r;
    for (r = 0; r < mesh->size; r++) {
        const int64_t wanted = expected[r * DPAR_MAX_DIMS + d];
        (void)dpar_mesh_coords(mesh, r, coord);
        *count = dpari_gx_cells_of_part(grid, d, coord[d], &first);
        if (wanted != 0 && wanted != *count) {
            return r;
        }
    }
    return -1;
}

/* Reports that no cut fits the expected numbers of dim d; `reason` says why. */
static DPARI_COLD dpar_status dpari_gx_refuse_expected(const dpari_gx *grid, int32_t d,
                                                       const int64_t *expected, const char *reason,
                                                       dpar_why *why)
{
    int64_t count = 0;
    const int32_t rank = dpari_gx_first_unexpected(grid, d, expected, &count);
    return dpari_wrong(why,
                       "grid: rank %d has %ld cells in dim %d, but expected_count is %ld, and no "
                       "cut fits: %s",
                       rank, count, d, expected[rank * DPAR_MAX_DIMS + d], reason);
}

/* Sets cuts[] of dim d, which are zeros, to those that the ranks expect. */
static DPARI_COLD dpar_status dpari_gx_expected_cuts(const dpari_gx *grid, int32_t d,
                                                     const int64_t *expected, int64_t *cuts,
                                                     dpar_why *why)
{
    const dpar_mesh *mesh = &grid->halo.grid.mesh;
    const int64_t cells = grid->desc.cells[d];
    int32_t coord[DPAR_MAX_DIMS] = {0};
    int32_t p, r;
    if (grid->desc.cuts[d]) {
        return dpari_gx_refuse_expected(grid, d, expected, "desc.cuts is set", why);
    }
    for (r = 0; r < mesh->size; r++) {
        const int64_t count = expected[r * DPAR_MAX_DIMS + d];
        int64_t *part;
        (void)dpar_mesh_coords(mesh, r, coord);
        part = &cuts[coord[d] + 1];
        if (count < 0 || count > cells) {
            return dpari_gx_refuse_expected(grid, d, expected, "a number is not 0 to cells", why);
        }
        if (count != 0 && *part != 0 && *part != count) {
            return dpari_gx_refuse_expected(
                grid, d, expected,
                "ranks of one part have different numbers (are dims or ranks in another order?)",
                why);
        }
        *part = dpari_most(*part, count);
    }
    for (p = 0; p < grid->head.parts[d]; p++) {
        cuts[p + 1] += cuts[p];
        if (cuts[p + 1] > cells) {
            return dpari_gx_refuse_expected(grid, d, expected,
                                            "the numbers of all parts exceed the cells", why);
        }
    }
    if (cuts[p] != cells) {
        return dpari_gx_refuse_expected(grid, d, expected,
                                        "the numbers of all parts are fewer than the cells", why);
    }
    return DPAR_OK;
}

/* Sets the parts of each dim where desc.parts is 0, and cuts the grid again. The numbers of all
 * ranks add up to the cells of the dim once for each of the rows of ranks along it. */
static DPARI_COLD dpar_status dpari_gx_expected_parts(dpari_gx *grid, const dpar_comm *comm,
                                                      const int64_t *expected, dpar_why *why)
{
    int32_t d, r;
    for (d = 0; d < grid->head.dims; d++) {
        const int64_t cells = grid->desc.cells[d];
        int64_t sum = 0, all;
        if (grid->desc.parts[d] != 0 || !dpari_mul(cells, comm->size, &all)) {
            continue;
        }
        for (r = 0; r < comm->size; r++) {
            sum += dpari_most(0, dpari_least(expected[r * DPAR_MAX_DIMS + d], cells));
        }
        if (sum >= cells && all % sum == 0) {
            grid->desc.parts[d] = (int32_t)(all / sum);
        }
    }
    return dpari_gx_cut_cells(grid, comm, why);
}

/* Computes the cuts of all dims from the expected counts of all ranks, and cuts the grid again. */
static DPARI_COLD dpar_status dpari_gx_use_expected(dpari_gx *grid, const dpar_comm *comm,
                                                    const int64_t *expected, dpar_why *why)
{
    int64_t count, *cuts;
    int32_t d;
    dpar_status status = dpari_gx_expected_parts(grid, comm, expected, why);
    if (status != DPAR_OK) {
        return status;
    }
    for (d = 0; d < grid->head.dims; d++) {
        grid->cut_bytes += 8 * ((int64_t)grid->head.parts[d] + 1);
    }
    cuts = (int64_t *)dpari_os_pages(grid->cut_bytes);
    grid->cuts = cuts;
    if (!cuts) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                         grid->cut_bytes);
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (dpari_gx_first_unexpected(grid, d, expected, &count) >= 0) {
            status = dpari_gx_expected_cuts(grid, d, expected, cuts, why);
            if (status != DPAR_OK) {
                return status;
            }
            grid->desc.cuts[d] = cuts;
        }
        cuts += grid->head.parts[d] + 1;
    }
    return dpari_gx_cut(grid, comm, why);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_gx_cut_as_expected(dpari_gx *grid, dpar_comm *comm,
                                                               dpar_why *why)
{
    const int64_t bytes = comm->size * (int64_t)sizeof grid->desc.expected_count;
    int64_t *expected = NULL;
    dpar_status status;
    int32_t other = dpari_gx_is_unexpected(grid), others = 0;
    status = dpar_all_reduce(comm, &other, &others, 1, DPAR_I32, DPAR_MAX, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (others == 0) {
        return DPAR_OK;
    }
    expected = (int64_t *)dpari_os_pages(bytes);
    if (!expected) {
        status = dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated", bytes);
    }
    status = dpari_agree(comm, status, why);
    if (status == DPAR_OK) {
        status = dpar_all_gather(comm, grid->desc.expected_count, expected, DPAR_MAX_DIMS, DPAR_I64,
                                 NULL);
        if (status == DPAR_OK) {
            status = dpari_gx_use_expected(grid, comm, expected, why);
        } else {
            status = dpari_repeat(status, why, comm->why.text);
        }
        status = dpari_agree(comm, status, why); /* the array of one rank may be too large */
    }
    dpari_os_unmap(expected, bytes);
    return status;
}
