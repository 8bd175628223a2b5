/* SPDX-License-Identifier: MIT-0 */
/* halo_grid: grids over the ranks of a test, and plans of fields on them. */
#ifndef HALO_GRID_H
#define HALO_GRID_H

#include "check.h"
#include "halo_plans.h"

#include <stdlib.h>

enum { COLUMNS = 7 };

/* Returns a grid whose rows are cut by the first axis and whose columns by the second. */
static inline dpar_layout grid_of(int32_t dims, const int64_t *extent, int32_t down, int32_t across)
{
    int32_t size[2], kind = DPAR_ORDER_LAST_FASTEST;
    dpar_placement p[2];
    dpar_layout l;
    dpar_mesh m;
    size[0] = down;
    size[1] = across;
    p[0] = dpar_shard(0);
    p[1] = dims > 1 ? dpar_shard(1) : dpar_replicate();
    CHECK_INT(dpar_mesh_init(&m, "down across", size, kind, 0, NULL), DPAR_OK);
    CHECK_INT(dpar_layout_init(&l, &m, dims, extent, p, NULL), DPAR_OK);
    return l;
}

static inline dpar_halo_plan *plan_of(dpar_comm *c, const dpar_halo_field *f, int32_t n,
                                      const dpar_halo_plan_desc *o, void **memory)
{
    dpar_halo_plan *x = NULL;
    dpar_why why;
    int64_t bytes = 0;
    CHECK_INT(plan_bytes(c, f, n, o, &bytes, &why), DPAR_OK);
    *memory = aligned_alloc(64, (size_t)(bytes + 63) / 64 * 64);
    CHECK_INT(plan_init(*memory, bytes, c, f, n, o, &x, &why), DPAR_OK);
    if (!x) {
        printf("%s\n", why.text);
        exit(1);
    }
    return x;
}

/* Returns a periodic row of equal blocks, one per rank: 2 rows, COLUMNS wide. */
static inline dpar_halo two_rows(dpar_comm *c)
{
    const int64_t extent[2] = {2 * (int64_t)c->size, COLUMNS};
    dpar_halo h;
    memset(&h, 0, sizeof h);
    h.grid = grid_of(2, extent, c->size, 1);
    h.low[0] = h.high[0] = 1;
    h.periodic = 1;
    return h;
}

#endif
