/* SPDX-License-Identifier: MIT-0 */
/* Maps the types and operations of dpar to those of MPI. Maxima, minima and sums of 8 bits are
 * operations that dpar registers with MPI (dpari_mpi_is_own says why); they call the same loops as
 * the shared-memory engine (../host/kernel.h). */
#include "mpi_types.h"

#include "../host/kernel.h"

DPARI_INTERNAL int32_t dpari_mpi_is_half(int32_t type)
{
    return type == DPAR_F16 || type == DPAR_BF16;
}

/* gcc vectorises such loops only from -O3 on, clang from -O2 on. */
#if defined(__GNUC__) && !defined(__clang__)
#define DPARI_MPI_LOOP __attribute__((optimize("O3")))
#else
#define DPARI_MPI_LOOP
#endif

#define DPARI_MPI_EACH(n, statement)                                                               \
    do {                                                                                           \
        int64_t i;                                                                                 \
        for (i = 0; i < (n); i++) {                                                                \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

#define DPARI_MPI_DIVIDE(T, ranks)                                                                 \
    do {                                                                                           \
        T *v = (T *)values;                                                                        \
        const T by = (T)(ranks);                                                                   \
        DPARI_MPI_EACH(n, v[i] = (T)(v[i] / by));                                                  \
    } while (0)

DPARI_INTERNAL DPARI_MPI_LOOP void dpari_mpi_divide(int32_t type, void *values, int64_t n,
                                                    int32_t ranks)
{
    int8_t *s = (int8_t *)values;
    uint8_t *u = (uint8_t *)values;
    switch (type) {
    case DPAR_F64: DPARI_MPI_DIVIDE(double, ranks); break;
    case DPAR_I8: DPARI_MPI_EACH(n, s[i] = (int8_t)(s[i] / ranks)); break;
    case DPAR_U8: DPARI_MPI_EACH(n, u[i] = (uint8_t)((int32_t)u[i] / ranks)); break;
    case DPAR_I32: DPARI_MPI_DIVIDE(int32_t, ranks); break;
    case DPAR_U32: DPARI_MPI_DIVIDE(uint32_t, ranks); break;
    case DPAR_I64: DPARI_MPI_DIVIDE(int64_t, ranks); break;
    case DPAR_U64: DPARI_MPI_DIVIDE(uint64_t, ranks); break;
    default: DPARI_MPI_DIVIDE(float, ranks); break;
    }
}

DPARI_INTERNAL int32_t dpari_mpi_wide(int32_t type)
{
    return dpari_mpi_is_half(type) ? (int32_t)DPAR_F32 : type;
}

DPARI_INTERNAL int64_t dpari_mpi_bytes(int32_t type, int64_t n)
{
    return n * dpar_type_bytes(type);
}

DPARI_INTERNAL void dpari_mpi_copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && to != from) {
        memmove(to, from, (size_t)bytes);
    }
}

DPARI_INTERNAL void dpari_mpi_convert(int32_t to_type, void *to, int32_t type, const void *from,
                                      int64_t n)
{
    if (to_type == type) {
        dpari_mpi_copy(to, from, dpari_mpi_bytes(type, n));
    } else {
        dpari_kern_convert(to, to_type, from, type, n);
    }
}

DPARI_INTERNAL const void *dpari_mpi_past(const void *p, int32_t type, int64_t elements)
{
    return elements == 0 ? p : (const char *)p + dpari_mpi_bytes(type, elements);
}

DPARI_INTERNAL void *dpari_mpi_at(void *p, int32_t type, int64_t elements)
{
    return elements == 0 ? p : (char *)p + dpari_mpi_bytes(type, elements);
}

DPARI_INTERNAL MPI_Datatype dpari_mpi_by_bytes(int32_t bytes)
{
    switch (bytes) {
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    case 8: return MPI_UINT64_T;
    default: return MPI_UINT8_T;
    }
}

DPARI_INTERNAL MPI_Datatype dpari_mpi_summand(int32_t type, int32_t op)
{
    int32_t ordered = op == DPAR_MAX || op == DPAR_MIN;
    switch (type) {
    case DPAR_F64: return MPI_DOUBLE;
    case DPAR_F32: return MPI_FLOAT;
    case DPAR_I8: return ordered ? MPI_INT8_T : MPI_UINT8_T;
    case DPAR_I32: return ordered ? MPI_INT32_T : MPI_UINT32_T;
    case DPAR_I64: return ordered ? MPI_INT64_T : MPI_UINT64_T;
    default: return dpari_mpi_by_bytes(dpar_type_bytes(type));
    }
}

/* ---- reductions that are not left to MPI's own operations ---- */

static int32_t dpari_mpi_type_of(MPI_Datatype type)
{
    const MPI_Datatype known[7] = {MPI_DOUBLE,   MPI_FLOAT,   MPI_INT8_T,  MPI_INT32_T,
                                   MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T};
    static const uint8_t its[7] = {DPAR_F64, DPAR_F32, DPAR_I8, DPAR_I32,
                                   DPAR_U32, DPAR_I64, DPAR_U64};
    int32_t i;
    for (i = 0; i < 7; i++) {
        if (type == known[i]) {
            return its[i];
        }
    }
    return DPAR_U8;
}

static void dpari_mpi_user_op(int32_t op, void *in, void *inout, int n, MPI_Datatype type)
{
    const void *both[2];
    both[0] = in;
    both[1] = inout;
    dpari_kern_reduce(&inout, 1, both, 2, n, dpari_mpi_type_of(type), op, 0);
}

static void dpari_mpi_user_max(void *in, void *inout, int *n, MPI_Datatype *type)
{
    dpari_mpi_user_op(DPAR_MAX, in, inout, *n, *type);
}

static void dpari_mpi_user_min(void *in, void *inout, int *n, MPI_Datatype *type)
{
    dpari_mpi_user_op(DPAR_MIN, in, inout, *n, *type);
}

static void dpari_mpi_user_sum(void *in, void *inout, int *n, MPI_Datatype *type)
{
    dpari_mpi_user_op(DPAR_SUM, in, inout, *n, *type);
}

DPARI_INTERNAL int dpari_mpi_make_ops(dpari_mpi_world *world)
{
    int code = MPI_Op_create(dpari_mpi_user_max, 1, &world->max);
    if (code == MPI_SUCCESS) {
        code = MPI_Op_create(dpari_mpi_user_min, 1, &world->min);
    }
    return code == MPI_SUCCESS ? MPI_Op_create(dpari_mpi_user_sum, 1, &world->sum) : code;
}

/* True if dpar's own operation is used in place of MPI's. For MAX and MIN, MPI does not define the
 * result of a NaN, and MPICH 4.0 compares unsigned integers as signed ones. Sums of 8 bits saturate
 * in Open MPI 4.1 on processors with AVX. */
static int32_t dpari_mpi_is_own(int32_t wide, int32_t op)
{
    return op == DPAR_MAX || op == DPAR_MIN ||
           (op != DPAR_PRODUCT && (wide == DPAR_I8 || wide == DPAR_U8));
}

DPARI_INTERNAL MPI_Op dpari_mpi_op(const dpari_mpi_world *world, int32_t wide, int32_t op)
{
    switch (op) {
    case DPAR_PRODUCT: return MPI_PROD;
    case DPAR_MAX: return world->max;
    case DPAR_MIN: return world->min;
    default: return dpari_mpi_is_own(wide, op) ? world->sum : MPI_SUM;
    }
}

DPARI_INTERNAL int64_t dpari_mpi_most(int32_t wide, int32_t op)
{
    return dpari_mpi_is_own(wide, op) && DPARI_MPI_LIMIT > INT_MAX ? (int64_t)INT_MAX
                                                                   : DPARI_MPI_LIMIT;
}
