/* SPDX-License-Identifier: MIT-0 */
/* Allocates vectors, and exchanges one vector of doubles. points_run.c does the work. */
#include "points_simple.h"

#include "../base/arith.h"
#include "../comm/agree.h"
#include "../comm/simple.h"
#include "points.h"

DPAR_API DPARI_COLD void *dpar_points_array(dpar_points *points, int32_t type, int32_t components)
{
    void *memory = NULL;
    int64_t bytes;
    if (!points) {
        return NULL;
    }
    if (components < 0 || dpar_type_bytes(type) == 0 ||
        !dpari_mul(points->own_count + points->ghost_count,
                   dpar_type_bytes(type) * (int64_t)(components > 0 ? components : 1), &bytes)) {
        (void)dpari_comm_wrong(points->comm,
                               "dpar_points_array: %d components of type %s are not allowed",
                               components, dpar_type_name(type));
        return NULL;
    }
    (void)dpar_comm_alloc(points->comm, bytes, &memory); /* NULL if it fails */
    return memory;
}

/* Exchanges x as the only vector, or combines its ghosts or the values of shared ids. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_doubles(dpar_points *points, double *x, int32_t op,
                                                   int shared)
{
    dpar_points_field field;
    dpari_zero(&field, sizeof field);
    field.type = DPAR_F64;
    field.data = x;
    if (shared) {
        return dpar_points_combine_many(points, &field, 1, op);
    }
    return op == DPAR_COPY ? dpar_points_exchange_many(points, &field, 1)
                           : dpar_points_reduce_many(points, &field, 1, op);
}

DPAR_API dpar_status dpar_points_exchange(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_COPY, 0);
}

DPAR_API dpar_status dpar_points_reduce(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_SUM, 0);
}

DPAR_API dpar_status dpar_points_combine(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_SUM, 1);
}
