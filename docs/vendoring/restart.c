/* SPDX-License-Identifier: MIT-0 */
/* restart - a field that any number of ranks writes to one file by MPI-IO, and any other number
 * reads again: restart write FILE; restart read FILE. The number printed is the same. */
#include "dpar_halo.h"
#include "dpar_mpi.h"
#include <stdio.h>

enum { NY = 61, NX = 97 };

/* Makes MPI types for the rank's part of the file and its place in memory; C order, doubles. */
static void types(const dpar_grid_part *p, MPI_Datatype *file, MPI_Datatype *memory) {
    int whole[2], start[2], count[2], array[2], inside[2], d;
    for (d = 0; d < 2; d++) {
        whole[d] = (int)p->global_count[d];
        start[d] = (int)p->start[d];
        count[d] = (int)p->count[d];
        array[d] = (int)p->local_count[d];
        inside[d] = (int)p->local_start[d];
    }
    MPI_Type_create_subarray(2, whole, count, start, MPI_ORDER_C, MPI_DOUBLE, file);
    MPI_Type_create_subarray(2, array, count, inside, MPI_ORDER_C, MPI_DOUBLE, memory);
    MPI_Type_commit(file);
    MPI_Type_commit(memory);
}

int main(int argc, char **argv) {
    const int writes = argc == 3 && argv[1][0] == 'w';
    MPI_Datatype in_file, in_memory;
    MPI_File file;
    dpar_grid_desc d = {.dims = 2, .cells = {NY, NX}, .halo = 2};
    dpar_grid_part part;
    dpar_grid *g = NULL;
    dpar_comm *world = NULL;
    dpar_why why;
    double *u, sum = 0;
    int64_t y, x;
    MPI_Init(&argc, &argv);
    if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) < 0 ||
        dpar_grid_make(world, &d, &g, &why) < 0 || !(u = dpar_grid_array(g, DPAR_F64, NULL))) {
        MPI_Abort(MPI_COMM_WORLD, dpar_fail(world, g ? NULL : &why));
    }
    for (y = 0; writes && y < g->count[0]; y++) {
        for (x = 0; x < g->count[1]; x++) {
            u[y * g->stride[0] + x] = (double)((g->first[0] + y) * NX + g->first[1] + x);
        }
    }
    dpar_grid_block(g, NULL, &part);
    types(&part, &in_file, &in_memory);
    MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    MPI_File_set_view(file, 0, MPI_DOUBLE, in_file, "native", MPI_INFO_NULL);
    u -= part.local_start[0] * part.stride[0] + part.local_start[1]; /* where the halo begins */
    if (writes) {
        MPI_File_write_all(file, u, 1, in_memory, MPI_STATUS_IGNORE);
    } else {
        MPI_File_read_all(file, u, 1, in_memory, MPI_STATUS_IGNORE);
    }
    MPI_File_close(&file);
    u += part.local_start[0] * part.stride[0] + part.local_start[1];
    for (y = 0; y < g->count[0]; y++) { /* whole numbers: exact in any order */
        for (x = 0; x < g->count[1]; x++) {
            const int64_t weight = (g->first[0] + y) % 7 + (g->first[1] + x) % 11;
            sum += u[y * g->stride[0] + x] * (double)weight;
        }
    }
    sum = dpar_sum(world, sum);
    if (world->rank == 0) {
        printf("restart %.0f\n", sum);
    }
    dpar_grid_free(g);
    dpar_comm_free(world);
    MPI_Finalize();
    return 0;
}
