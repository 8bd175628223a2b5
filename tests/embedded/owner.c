/* SPDX-License-Identifier: MIT-0 */
/* Which box of a matrix on a 4 x 2 mesh does this rank own? */
#define DPAR_IMPLEMENTATION
#include "dpar.h"

int32_t run(int32_t rank, int64_t *shape, int64_t *offset);
int32_t run(int32_t rank, int64_t *shape, int64_t *offset)
{
    static const int32_t sizes[2] = {4, 2};
    static const int64_t extent[2] = {1000, 64};
    dpar_placement cut[2];
    dpar_mesh mesh;
    dpar_layout layout;
    cut[0] = dpar_shard(0);
    cut[1] = dpar_shard(1);
    if (dpar_mesh_init(&mesh, "dp tp", sizes, DPAR_ORDER_LAST_FASTEST, 0, NULL) != DPAR_OK ||
        dpar_layout_init(&layout, &mesh, 2, extent, cut, NULL) != DPAR_OK) {
        return -1;
    }
    dpar_layout_local(&layout, rank, shape, offset);
    return 0;
}
