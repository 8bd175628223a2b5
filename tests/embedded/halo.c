/* SPDX-License-Identifier: MIT-0 */
/* A field on 2 x 2 ranks, periodic in x, a halo of 1: from whom does this rank receive, and how
 * many points? */
#define DPAR_IMPLEMENTATION
#include "dpar.h"

int32_t run(int32_t rank, int32_t *peer, int64_t *points, int32_t room);
int32_t run(int32_t rank, int32_t *peer, int64_t *points, int32_t room)
{
    static const int32_t parts[2] = {2, 2};
    static const int64_t cells[2] = {60, 100};
    dpar_placement cut[2];
    dpar_mesh mesh;
    dpar_halo halo = {0};
    dpar_halo_cursor walk;
    dpar_transfer t;
    int32_t n = 0;
    cut[0] = dpar_shard(0);
    cut[1] = dpar_shard(1);
    halo.low[0] = halo.high[0] = halo.low[1] = halo.high[1] = 1;
    halo.periodic = 2; /* bit 1: x */
    if (dpar_mesh_init(&mesh, "y x", parts, DPAR_ORDER_LAST_FASTEST, 0, NULL) != DPAR_OK ||
        dpar_layout_init(&halo.grid, &mesh, 2, cells, cut, NULL) != DPAR_OK ||
        dpar_halo_first(&walk, &halo, rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, NULL) !=
            DPAR_OK) {
        return -1;
    }
    while (n < room && dpar_halo_next(&walk, &t)) {
        peer[n] = t.peer;
        points[n] = dpar_transfer_volume(&t);
        n++;
    }
    return n;
}
