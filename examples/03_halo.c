/* SPDX-License-Identifier: MIT-0 */
/* 03 - a ring of 12 cells on three ranks: each rank gets the cells beside its own.
 *
 *   cc -DDPAR_IMPLEMENTATION -I. examples/03_halo.c -o 03 && ./03
 *
 *   rank 0 has cells 0 to 3, beside them 11 and 4
 *   rank 1 has cells 4 to 7, beside them 3 and 8
 *   rank 2 has cells 8 to 11, beside them 7 and 0
 */
#include "dpar_halo.h"
#include <stdio.h>

static int each(dpar_comm *world, void *unused)
{
    const int64_t cells = 12;
    double u[6]; /* the halo, four own cells, the halo */
    dpar_placement cut = dpar_shard(0);
    dpar_mesh mesh;
    dpar_halo halo = {0};
    dpar_halo_field field = {0};
    dpar_halo_options options = {0};
    dpar_halo_exchange *x = NULL;
    dpar_why why = {"no memory"};
    void *memory;
    int64_t bytes, i;
    (void)unused;
    halo.low[0] = halo.high[0] = 1; /* one cell on both sides */
    halo.periodic = 1;              /* bit 0: the first dim is a ring */
    field.halo = &halo;
    field.type = DPAR_F64;
    field.data = u;
    options.field = &field;
    options.fields = 1;
    if (dpar_mesh_init(&mesh, "x", &world->size, DPAR_LAST_FASTEST, 0, &why) < 0 ||
        dpar_layout_init(&halo.grid, &mesh, 1, &cells, &cut, &why) < 0 ||
        dpar_halo_exchange_bytes(world, &options, &bytes, &why) < 0 ||
        dpar_comm_alloc(world, bytes, &memory) < 0 ||
        dpar_halo_exchange_init(memory, bytes, world, &options, &x, &why) < 0) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    for (i = 1; i <= 4; i++) {
        u[i] = (double)(world->rank * 4 + i - 1);
    }
    dpar_halo_exchange_run(x);
    printf("rank %d has cells %g to %g, beside them %g and %g\n", (int)world->rank, u[1], u[4],
           u[0], u[5]);
    return dpar_halo_exchange_close(x) < 0;
}

int main(void)
{
    return dpar_launch(3, each, NULL) < 0;
}
