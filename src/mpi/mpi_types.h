/* SPDX-License-Identifier: MIT-0 */
/* mpi_types - private: MPI's types and operations for those of dpar, and loops over elements. */
#ifndef DPARI_MPI_MPI_TYPES_H
#define DPARI_MPI_MPI_TYPES_H

#include "mpi_private.h"

/* True for F16 and BF16. */
DPARI_INTERNAL int32_t dpari_mpi_is_half(int32_t type);
/* Divides sums by the number of ranks, integers towards zero. 8-bit types are divided as int32_t,
 * because they cannot hold a number of ranks above 127 or 255. */
DPARI_INTERNAL void dpari_mpi_divide(int32_t type, void *values, int64_t n, int32_t ranks);
/* Returns the type in which sums of `type` are computed and sent. */
DPARI_INTERNAL int32_t dpari_mpi_wide(int32_t type);
/* Returns the bytes of n elements. */
DPARI_INTERNAL int64_t dpari_mpi_bytes(int32_t type, int64_t n);
/* Copies memory that may overlap; does nothing for 0 bytes or if `to` is `from`. */
DPARI_INTERNAL void dpari_mpi_copy(void *to, const void *from, int64_t bytes);
/* Return the address of an element. It is p for element 0, also if p is NULL. */
DPARI_INTERNAL const void *dpari_mpi_past(const void *p, int32_t type, int64_t elements);
DPARI_INTERNAL void *dpari_mpi_at(void *p, int32_t type, int64_t elements);
/* Returns the MPI type for elements of this size that are moved and not computed with. */
DPARI_INTERNAL MPI_Datatype dpari_mpi_by_bytes(int32_t bytes);
/* Returns the MPI type for a reduction. Sums and products of integers use unsigned types, which
 * wrap in C. */
DPARI_INTERNAL MPI_Datatype dpari_mpi_summand(int32_t type, int32_t op);
/* Makes dpar's own operations. Returns a code of MPI. */
DPARI_INTERNAL int dpari_mpi_make_ops(dpari_mpi_world *world);
/* Returns MPI's operation, or dpar's own one, for a reduction of the wide type. */
DPARI_INTERNAL MPI_Op dpari_mpi_op(const dpari_mpi_world *world, int32_t wide, int32_t op);
/* Returns the most elements that one reduction may have. MPI passes the count to dpar's own
 * operations as an int. */
DPARI_INTERNAL int64_t dpari_mpi_most(int32_t wide, int32_t op);
/* Copies n elements: 16-bit floats to F32, F32 to them, or any type as it is. */
DPARI_INTERNAL void dpari_mpi_convert(int32_t to_type, void *to, int32_t type, const void *from,
                                      int64_t n);

#endif
