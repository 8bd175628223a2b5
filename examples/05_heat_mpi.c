/* SPDX-License-Identifier: MIT-0 */
/* 05 - the same in a code that has MPI, a process grid and arrays of its own.
 *
 *   mpicc -O2 -DDPAR_IMPLEMENTATION -I. examples/05_heat_mpi.c -o build/05 && mpiexec -n 4 build/05
 *
 *   4 ranks: 1079.3662 is the sum of all cells after 500 steps
 */
#include "dpar_halo.h"
#include "dpar_mpi.h"
#include <stdio.h>
#include <stdlib.h>
enum { NY = 120, NX = 100 };

int main(int argc, char **argv)
{
    int ranks, rank, parts[2] = {0, 0}, ring[2] = {0, 1}, at[2], ny, nx, y, x, step;
    double *u, *v, *swap, mine = 0, sum = 0;
    MPI_Comm cart;
    dpar_grid_desc d = {0};
    dpar_grid *g;
    dpar_why why;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, parts);
    MPI_Cart_create(MPI_COMM_WORLD, 2, parts, ring, 0, &cart);
    MPI_Comm_rank(cart, &rank), MPI_Cart_coords(cart, rank, 2, at);
    ny = NY / parts[0] + (at[0] < NY % parts[0]);
    nx = NX / parts[1] + (at[1] < NX % parts[1]);
#define AT(y, x) ((y) * (nx + 2) + (x)) /* (0, 0) is the first own cell, -1 its halo */
    u = (double *)calloc((size_t)((ny + 2) * (nx + 2)), sizeof *u) - AT(-1, -1);
    v = (double *)calloc((size_t)((ny + 2) * (nx + 2)), sizeof *v) - AT(-1, -1);
    for (x = -1; at[0] == 0 && x <= nx; x++) {
        u[AT(-1, x)] = v[AT(-1, x)] = 1; /* hot, beyond y's low end */
    }
    d.cells[0] = NY, d.cells[1] = NX, d.halo = 1, d.type = DPAR_F64; /* cut and ring: cart's */
    d.own[0] = ny, d.own[1] = nx; /* compared: so many cells has this rank */
    if (dpar_mpi_grid_make(cart, NULL, &d, &g, &why) < 0) {
        fprintf(stderr, "%s\n", why.text);
        return MPI_Abort(cart, 1);
    }
    for (step = 0; step < 500 && dpar_grid_exchange(g, u) == DPAR_OK; step++) {
        for (y = 0, mine = 0; y < ny; y++) {
            for (x = 0; x < nx; x++) {
                v[AT(y, x)] = u[AT(y, x)] + 0.2 * (u[AT(y, x - 1)] + u[AT(y, x + 1)] +
                              u[AT(y - 1, x)] + u[AT(y + 1, x)] - 4 * u[AT(y, x)]);
                mine += v[AT(y, x)];
            }
        }
        swap = u, u = v, v = swap;
    }
    MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, cart);
    if (rank == 0) {
        printf("%d ranks: %.4f is the sum of all cells after 500 steps\n", ranks, sum);
    }
    dpar_grid_free(g);
    return MPI_Finalize();
}
