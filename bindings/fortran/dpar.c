/* SPDX-License-Identifier: MIT-0 */
/* dpar.c - the C side of dpar.f90: the library itself, once a program.
 *
 *   cc -O2 -I. -c bindings/fortran/dpar.c          and over MPI:   mpicc -O2 -DUSE_MPI ... */
#ifndef DPAR_IMPLEMENTATION
#define DPAR_IMPLEMENTATION
#endif
#include "dpar_blocks.h"
#include "dpar_cost.h"
#include "dpar_debug.h"
#include "dpar_particles.h"
#include "dpar_pencil.h"
#include "dpar_points.h"
#include "dpar_proof.h"

#include "dpar_exact.h"

/* The arguments come from the module. */
DPAR_API dpar_status dpar_launch_main_f(int argc, char **argv, dpar_main fn, void *arg);
DPAR_API dpar_status dpar_launch_main_f(int argc, char **argv, dpar_main fn, void *arg) {
    return dpar_launch_main(argc, argv, fn, arg);
}

#ifdef USE_MPI
#include "dpar_mpi.h"

/* Fortran's communicators are numbers. */
DPAR_API dpar_status dpar_mpi_make_f(MPI_Fint user, const dpar_mpi_desc *options, dpar_comm **out,
                                     dpar_why *why);
DPAR_API dpar_status dpar_mpi_make_f(MPI_Fint user, const dpar_mpi_desc *options, dpar_comm **out,
                                     dpar_why *why)
{
    return dpar_mpi_make(MPI_Comm_f2c(user), options, out, why);
}

DPAR_API dpar_status dpar_mpi_grid_make_f(MPI_Fint cart, const dpar_mpi_desc *options,
                                     const dpar_grid_desc *desc, dpar_grid **grid, dpar_why *why);
DPAR_API dpar_status dpar_mpi_grid_make_f(MPI_Fint cart, const dpar_mpi_desc *options,
                                     const dpar_grid_desc *desc, dpar_grid **grid, dpar_why *why)
{
    return dpar_mpi_grid_make(MPI_Comm_f2c(cart), options, desc, grid, why);
}
#endif
