/* SPDX-License-Identifier: MIT-0 */
/* Makes a communicator from the process grid, and a grid on it. Dims, parts and periodicity are
 * copied from the process grid to the description, in reverse for DPAR_ORDER_FIRST_FASTEST. The
 * grid owns the communicator, so that dpar_grid_free frees both. */
#include "mpi_grid.h"

#include "../base/arith.h"
#include "../comm/agree.h"

#include <string.h>

/* Sets d's dims, parts and periodicity to those of cart's process grid. */
static dpar_status dpari_mpi_cart(MPI_Comm cart, dpar_grid_desc *d, dpar_why *why)
{
    int parts[DPAR_MAX_DIMS], periods[DPAR_MAX_DIMS], coords[DPAR_MAX_DIMS];
    int kind = MPI_UNDEFINED, n = 0, k;
    MPI_Topo_test(cart, &kind);
    if (kind != MPI_CART) {
        for (k = 0; k < DPAR_MAX_DIMS && k < d->dims; k++) {
            n += d->parts[k] > 0 || d->expected_count[k] > 0;
        }
        if (d->dims > 0 && n == d->dims) {
            return DPAR_OK;
        }
        return dpari_wrong(why,
                           "dpar_mpi_grid_make: the communicator has no process grid: pass one "
                           "that MPI_Cart_create made, or set desc.dims, and desc.parts or "
                           "desc.expected_count of each dim");
    }
    MPI_Cartdim_get(cart, &n);
    if (n > DPAR_MAX_DIMS || (d->dims != 0 && d->dims != n)) {
        return dpari_wrong(why,
                           "dpar_mpi_grid_make: the process grid has %d dims, but must have at "
                           "most %d, and desc.dims is %d, but must be 0 or the same",
                           n, (int32_t)DPAR_MAX_DIMS, d->dims);
    }
    MPI_Cart_get(cart, n, parts, periods, coords);
    d->dims = (int32_t)n;
    for (k = 0; k < n; k++) {
        const int at = d->order == DPAR_ORDER_FIRST_FASTEST ? n - 1 - k : k;
        if (d->parts[at] != 0 && d->parts[at] != parts[k]) {
            return dpari_wrong(
                why, "dpar_mpi_grid_make: desc.parts[%d] is %d, but the process grid has %d parts",
                at, d->parts[at], parts[k]);
        }
        d->parts[at] = (int32_t)parts[k];
        d->periodic[at] |= periods[k] != 0;
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mpi_grid_make(MPI_Comm cart, const dpar_mpi_desc *mpi,
                                        const dpar_grid_desc *desc, dpar_grid **grid, dpar_why *why)
{
    dpar_grid_desc d;
    dpar_comm *world;
    dpar_why said;
    dpar_status status = dpar_mpi_make(cart, mpi, &world, why);
    if (status < DPAR_OK) {
        return status;
    }
    memset(&said, 0, sizeof said);
    if (desc == NULL || grid == NULL) {
        status = dpari_wrong(&said, "dpar_mpi_grid_make: desc or grid is NULL");
    }
    if (status == DPAR_OK) {
        d = *desc;
        d.owns_comm = 1;
        status = dpari_mpi_cart(cart, &d, &said);
    }
    status = dpari_agree(world, status, &said); /* it may have failed only on some ranks */
    if (status >= DPAR_OK) {
        status = dpar_grid_make(world, &d, grid, &said);
    }
    if (status < DPAR_OK) { /* returns here, so that compilers know that *grid is set below */
        (void)dpar_comm_free(world);
        if (why) {
            *why = said;
        }
        return status;
    }
    return DPAR_OK;
}
