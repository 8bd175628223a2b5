/* SPDX-License-Identifier: MIT-0 */
/* heat - diffusion on a plate that is a ring in x, 9-point stencil, over MPI. After: dpar
 * exchanges. */
#include "dpar_halo.h"
#include "dpar_mpi.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NX = 97, NY = 61, STEPS = 60 };

typedef struct plate {
    MPI_Comm comm;
    int parts[2], coord[2];     /* ranks along y and x, and this one's place */
    int ny, nx, y0, x0;         /* own cells; their first */
    double *now, *next;         /* ny + 2 rows of nx + 2 */
    dpar_grid *grid;
} plate;

static double *at(const plate *p, double *u, int y, int x) {
    return u + (size_t)y * (size_t)(p->nx + 2) + x;
}

static void share(int n, int parts, int part, int *first, int *size) {
    *size = n / parts + (part < n % parts);
    *first = part * (n / parts) + (part < n % parts ? part : n % parts);
}

static void exchange_init(plate *p) {
    dpar_grid_desc d = {.cells = {NY, NX}, .expected_count = {p->ny, p->nx}, .halo = 1};
    dpar_why why;
    d.type = DPAR_F64;
    if (dpar_mpi_grid_make(p->comm, NULL, &d, &p->grid, &why) < 0) {
        MPI_Abort(p->comm, dpar_fail(NULL, &why));
    }
}

static void step(plate *p) {
    double *swap;
    int y, x;
    if (dpar_grid_exchange(p->grid, at(p, p->now, 1, 1)) < 0) {
        MPI_Abort(p->comm, dpar_fail(p->grid->comm, NULL));
    }
    for (y = 1; y <= p->ny; y++) {
        for (x = 1; x <= p->nx; x++) {
            double sides = *at(p, p->now, y - 1, x) + *at(p, p->now, y + 1, x) +
                           *at(p, p->now, y, x - 1) + *at(p, p->now, y, x + 1);
            double corners = *at(p, p->now, y - 1, x - 1) + *at(p, p->now, y - 1, x + 1) +
                             *at(p, p->now, y + 1, x - 1) + *at(p, p->now, y + 1, x + 1);
            double here = *at(p, p->now, y, x);
            *at(p, p->next, y, x) = here + 0.03 * (4 * sides + corners - 20 * here);
        }
    }
    swap = p->now;
    p->now = p->next;
    p->next = swap;
}

/* A sum that does not depend on how the plate is cut: of 32 bits of each cell and its place. */
static void fingerprint(const plate *p) {
    unsigned long long mine = 0, all = 0;
    int rank, y, x;
    for (y = 1; y <= p->ny; y++) {
        for (x = 1; x <= p->nx; x++) {
            uint64_t bits;
            memcpy(&bits, at(p, p->now, y, x), sizeof(bits));
            bits ^= (uint64_t)(p->y0 + y) << 40 ^ (uint64_t)(p->x0 + x) << 20;
            mine += (bits ^ bits >> 32) & 0xffffffffu;
        }
    }
    MPI_Reduce(&mine, &all, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, p->comm);
    MPI_Comm_rank(p->comm, &rank);
    if (rank == 0) {
        printf("heat %016llx\n", all);
    }
}

int main(int argc, char **argv) {
    int ranks, rank, t, y, x, ring[2] = {0, 1};
    plate p;
    memset(&p, 0, sizeof(p));
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Dims_create(ranks, 2, p.parts);
    MPI_Cart_create(MPI_COMM_WORLD, 2, p.parts, ring, 0, &p.comm);
    MPI_Comm_rank(p.comm, &rank);
    MPI_Cart_coords(p.comm, rank, 2, p.coord);
    share(NY, p.parts[0], p.coord[0], &p.y0, &p.ny);
    share(NX, p.parts[1], p.coord[1], &p.x0, &p.nx);
    p.now = (double *)calloc((size_t)(p.ny + 2) * (size_t)(p.nx + 2), sizeof(double));
    p.next = (double *)calloc((size_t)(p.ny + 2) * (size_t)(p.nx + 2), sizeof(double));
    for (y = 1; y <= p.ny; y++) {
        for (x = 1; x <= p.nx; x++) {
            *at(&p, p.now, y, x) = (double)((p.y0 + y) * 7 % 13 + (p.x0 + x) * 5 % 11);
        }
    }
    exchange_init(&p);
    for (t = 0; t < STEPS; t++) {
        step(&p);
    }
    fingerprint(&p);
    dpar_grid_free(p.grid);
    MPI_Finalize();
    return 0;
}
