/* SPDX-License-Identifier: MIT-0 */
/* 05 - computes the plate of 04 in a code that has MPI, a process grid and arrays of its own.
 *   mpicc -O2 -DDPAR_IMPLEMENTATION -I. examples/05_heat_mpi.c -o build/05 && mpiexec -n 4 build/05
 *   4 ranks: 1079.3662 is the sum of all cells after 500 steps
 */
#include "dpar_halo.h"
#include "dpar_mpi.h"
#include <stdio.h>
#include <stdlib.h>
enum { NY = 120, NX = 100, STEPS = 500 };

int main(int argc, char **argv)
{
    int ranks, rank, parts[2] = {0, 0}, ring[2] = {0, 1}, coord[2]; /* x is a ring */
    MPI_Comm cart;
    dpar_grid *grid = NULL;
    dpar_why why;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, parts);
    MPI_Cart_create(MPI_COMM_WORLD, 2, parts, ring, 0, &cart);
    MPI_Comm_rank(cart, &rank);
    MPI_Cart_coords(cart, rank, 2, coord);
    const int ny = NY / parts[0] + (coord[0] < NY % parts[0]);
    const int nx = NX / parts[1] + (coord[1] < NX % parts[1]);
    const int row = nx + 2; /* own cells and halo */
    double *first = (double *)calloc((size_t)row * (size_t)(ny + 2), sizeof *first);
    double *second = (double *)calloc((size_t)row * (size_t)(ny + 2), sizeof *second);
    if (first == NULL || second == NULL) {
        fprintf(stderr, "rank %d has no memory for its cells\n", rank);
        MPI_Abort(cart, 1);
    }
    for (int x = 0; x < row; x++) {
        first[x] = 1; /* hot below y's low end; elsewhere the exchange overwrites this halo */
        second[x] = 1;
    }
    /* Process grid and ring are those of cart. dpar cuts as expected_count says. */
    const dpar_grid_desc desc = {.cells = {NY, NX},
                                 .halo = 1,
                                 .type = DPAR_F64,
                                 .expected_count = {ny, nx},
                                 .free_why = &why};
    if (dpar_mpi_grid_make(cart, NULL, &desc, &grid, &why) < 0) {
        MPI_Abort(cart, dpar_fail(NULL, &why));
    }
    double mine = 0, sum = 0, *now = first + row + 1, *next = second + row + 1; /* own cells */
    for (int step = 0; step < STEPS; step++) {
        if (dpar_grid_exchange(grid, now) < 0) {
            MPI_Abort(cart, dpar_fail(grid->comm, NULL));
        }
        mine = 0;
        for (int y = 0; y < ny; y++) {
            for (int i = y * row; i < y * row + nx; i++) {
                const double around = now[i - 1] + now[i + 1] + now[i - row] + now[i + row];
                next[i] = now[i] + 0.2 * (around - 4 * now[i]);
                mine += next[i];
            }
        }
        double *swap = now;
        now = next;
        next = swap;
    }
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, cart);
    if (rank == 0) {
        printf("%d ranks: %.4f is the sum of all cells after %d steps\n", ranks, sum, STEPS);
    }
    if (dpar_grid_free(grid) < 0) {
        MPI_Abort(cart, dpar_fail(NULL, &why));
    }
    free(first);
    free(second);
    MPI_Finalize();
    return 0;
}
