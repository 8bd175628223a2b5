/* SPDX-License-Identifier: MIT-0 */
/* exchange_v - private: the _v forms that move data, as a message for each pair of ranks. */
#ifndef DPARI_MPI_EXCHANGE_V_H
#define DPARI_MPI_EXCHANGE_V_H

#include "mpi_private.h"

/* Return the elements of rank r's piece in a reduce_scatter, of the largest piece of n ranks, and
 * of all their pieces together. */
DPARI_INTERNAL int64_t dpari_mpi_piece_of(const dpar_call *call, int32_t r);
DPARI_INTERNAL int64_t dpari_mpi_largest(const dpar_call *call, int32_t n);
DPARI_INTERNAL int64_t dpari_mpi_elements(const dpar_call *call, int32_t n);
/* Returns how many elements of a piece with `piece` elements are in the block [at, at + len). */
DPARI_INTERNAL int64_t dpari_mpi_clamp(int64_t piece, int64_t at, int64_t len);
/* Returns the bytes of all pieces that this rank sends in an all_to_all_v. */
DPARI_INTERNAL int64_t dpari_mpi_aside_bytes(const dpari_mpi_task *task);
/* Copies the pieces that an all_to_all_v in place sends to `copy`. Returns 0 if `copy` is NULL. */
DPARI_INTERNAL int32_t dpari_mpi_set_aside(dpari_mpi_task *task, void *copy);
/* Runs a gather, scatter, all_gather or all_to_all with pieces of different sizes. */
DPARI_INTERNAL int dpari_mpi_exchange(dpari_mpi_task *task);

#endif
