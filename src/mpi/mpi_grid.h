/* SPDX-License-Identifier: MIT-0 */
/* mpi_grid - makes a grid on a process grid of MPI. Available if dpar_halo.h was included before
 * dpar_mpi.h. */
#ifndef DPARI_MPI_MPI_GRID_H
#define DPARI_MPI_MPI_GRID_H

#include "../halo/grid.h"
#include "mpi_make.h"

/* Makes a grid on an MPI process grid: dpar_mpi_make and dpar_grid_make in one call.
 *
 * cart:    made by MPI_Cart_create. Its dims and parts are used, so that each rank's block is at
 *          its MPI_Cart_coords. A communicator without a process grid is allowed if desc sets
 *          dims, and for each of them parts or expected_count.
 * mpi:     NULL selects the defaults of dpar_mpi_make.
 * desc:    describes the grid. Its dims and parts must be 0 or the same as those of cart. A dim is
 *          periodic if it is periodic in cart or in desc. Dims are in cart's order; with desc.order
 *          DPAR_ORDER_FIRST_FASTEST they are reversed, as Fortran arrays are stored.
 * grid:    receives the grid. Its communicator is (*grid)->comm. dpar_grid_free frees both; call it
 *          before MPI_Finalize. If freeing fails, its message is written to desc.free_why if you
 *          set that.
 *
 * Collective over cart. Costs and fails as the two functions do, and also fails with DPAR_E_ARG if
 * dims or parts differ or there is no process grid. After an error nothing is left to free. */
DPAR_API dpar_status dpar_mpi_grid_make(MPI_Comm cart, const dpar_mpi_desc *mpi,
                                        const dpar_grid_desc *desc, dpar_grid **grid,
                                        dpar_why *why);

#endif
