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

/* The operation that begins an exchange of shared ids in dpari_pt_doubles: a sum. */
enum { DPARI_PT_COMBINE = -1 };

/* Begins an exchange of x as the only vector. op: DPAR_COPY for a forward exchange, DPAR_SUM for an
 * adjoint. */
DPARI_STATIC_NOINLINE dpar_status dpari_pt_doubles(dpar_points *points, double *x, int32_t op)
{
    dpar_points_field field;
    dpari_zero(&field, sizeof field);
    field.type = DPAR_F64;
    field.data = x;
    if (op == DPARI_PT_COMBINE) {
        return dpar_points_combine_begin_many(points, &field, 1, DPAR_SUM);
    }
    return op == DPAR_COPY ? dpar_points_begin_many(points, &field, 1)
                           : dpar_points_reduce_begin_many(points, &field, 1, op);
}

/* Ends an exchange whose beginning returned `status`. */
static dpar_status dpari_pt_finish_doubles(dpar_points *points, dpar_status status)
{
    return status == DPAR_OK ? dpar_points_end(points) : status;
}

DPAR_API dpar_status dpar_points_begin(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_COPY);
}

DPAR_API dpar_status dpar_points_reduce_begin(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPAR_SUM);
}

DPAR_API dpar_status dpar_points_combine_begin(dpar_points *points, double *x)
{
    return dpari_pt_doubles(points, x, DPARI_PT_COMBINE);
}

DPAR_API dpar_status dpar_points_exchange(dpar_points *points, double *x)
{
    return dpari_pt_finish_doubles(points, dpar_points_begin(points, x));
}

DPAR_API dpar_status dpar_points_reduce(dpar_points *points, double *x)
{
    return dpari_pt_finish_doubles(points, dpar_points_reduce_begin(points, x));
}

DPAR_API dpar_status dpar_points_combine(dpar_points *points, double *x)
{
    return dpari_pt_finish_doubles(points, dpar_points_combine_begin(points, x));
}
