/* SPDX-License-Identifier: MIT-0 */
/* Checks with Frama-C's Eva (tests/compile/proof.sh) meshes of up to AXES axes of 1 to MOST_SIZE
 * ranks, whose first is rank 0..FIRST: no query about any rank, group, number of steps or
 * coordinate computes anything undefined. */
#include "dpar.h"

#include <__fc_builtin.h>

static int32_t any(void)
{
    return Frama_C_interval(INT32_MIN, INT32_MAX);
}
static int32_t some_rank(void)
{
    return Frama_C_interval(0, FIRST + MOST_RANKS - 1);
}

static void ask(const dpar_mesh *m)
{
    dpar_mesh slice;
    int32_t coord[DPAR_MAX_AXES], i;
    dpar_mesh_group_size(m, (uint32_t)any());
    dpar_mesh_coords(m, any(), coord);
    for (i = 0; i < DPAR_MAX_AXES; i++) {
        coord[i] = any();
    }
    dpar_mesh_rank(m, coord);
    dpar_mesh_shift(m, some_rank(), any(), Frama_C_long_interval(INT64_MIN, INT64_MAX), any());
    dpar_mesh_group_member(m, (uint32_t)any(), some_rank(), any());
    dpar_mesh_group_index(m, (uint32_t)any(), some_rank());
    dpar_mesh_slice(&slice, m, (uint32_t)any(), some_rank(), NULL);
}

/* Checks a mesh in which the axes of `longer` have 2 ranks or more, the others 1. */
static void with(int32_t axes, uint32_t longer, int32_t order)
{
    static const char *const names[3] = {"a", "a b", "a b c"};
    int32_t i, sizes[3];
    dpar_mesh m;
    for (i = 0; i < axes; i++) {
        sizes[i] = longer >> i & 1u ? Frama_C_interval(2, MOST_SIZE) : 1;
    }
    if (dpar_mesh_init(&m, names[axes - 1], sizes, order, 0, NULL) == DPAR_OK) {
        m.first_rank = Frama_C_interval(0, FIRST);
        ask(&m);
    }
}

int main(void)
{
    int32_t axes, order;
    uint32_t longer;
    for (axes = 1; axes <= AXES; axes++) {
        for (longer = 0; longer < 1u << axes; longer++) {
            for (order = DPAR_ORDER_LAST_FASTEST; order <= DPAR_ORDER_FIRST_FASTEST; order++) {
                with(axes, longer, order);
            }
        }
    }
    return 0;
}

#define DPAR_IMPLEMENTATION
#include "dpar.h"
