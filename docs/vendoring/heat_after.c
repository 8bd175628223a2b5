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
    dpar_comm *world;
    dpar_halo halo;
    dpar_halo_field field;
    dpar_halo_exchange *plan;
} plate;

static double *at(const plate *p, double *u, int y, int x) {
    return u + (size_t)y * (size_t)(p->nx + 2) + x;
}

static void share(int n, int parts, int part, int *first, int *size) {
    *size = n / parts + (part < n % parts);
    *first = part * (n / parts) + (part < n % parts ? part : n % parts);
}

static void exchange_init(plate *p) {
    const int64_t cells[] = {NY, NX};
    const dpar_placement cuts[] = {dpar_shard_by(0, DPAR_EVEN, 0), dpar_shard_by(1, DPAR_EVEN, 0)};
    dpar_mesh mesh;
    const dpar_halo_options options = {.field = &p->field, .fields = 1};
    dpar_why why = {"no memory"};
    void *memory;
    int64_t bytes;
    p->halo.shape = DPAR_STENCIL_BOX; /* corners too */
    p->halo.low[0] = p->halo.low[1] = p->halo.high[0] = p->halo.high[1] = 1;
    p->halo.periodic = 1u << 1;
    p->field = (dpar_halo_field){.halo = &p->halo, .type = DPAR_F64, .data = p->now};
    if (dpar_mpi_make(p->comm, NULL, &p->world, &why) < 0 ||
        dpar_mesh_init(&mesh, "y x", p->parts, DPAR_LAST_FASTEST, 0, &why) < 0 ||
        dpar_layout_init(&p->halo.grid, &mesh, 2, cells, cuts, &why) < 0 ||
        dpar_halo_exchange_bytes(p->world, &options, &bytes, &why) < 0 ||
        dpar_comm_alloc(p->world, bytes, &memory) < 0 ||
        dpar_halo_exchange_init(memory, bytes, p->world, &options, &p->plan, &why) < 0) {
        puts(why.text);
        MPI_Abort(p->comm, 1);
    }
}

static void step(plate *p) {
    double *swap;
    int y, x;
    dpar_halo_exchange_bind(p->plan, 0, p->now, NULL);
    if (dpar_halo_exchange_run(p->plan) < 0) {
        MPI_Abort(p->comm, 1);
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
    dpar_comm_close(p.world);
    MPI_Finalize();
    return 0;
}
