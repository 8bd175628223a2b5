/* SPDX-License-Identifier: MIT-0 */
/* rank_order - private: reductions by messages of this engine, most of them in rank order. */
#ifndef DPARI_MPI_RANK_ORDER_H
#define DPARI_MPI_RANK_ORDER_H

#include "mpi_private.h"

/* Functions whose names end in _land process the data that arrived after a step; the others post it
 * and return a code of MPI, as in mpi_collectives. */

/* Sets the n elements of `out` to row 0 op row 1 op ... The rows are in the task's memory, `stride`
 * elements apart. */
DPARI_INTERNAL void dpari_mpi_reduce_rows(dpari_mpi_task *task, void *out, int64_t stride,
                                          int64_t n);
/* Run a small reduction: all ranks, or only the root, receive the inputs of all ranks and add them
 * up. */
DPARI_INTERNAL int dpari_mpi_gathered(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_gathered_land(dpari_mpi_task *task);
/* Run a small all_reduce of many ranks, by recursive doubling. */
DPARI_INTERNAL int dpari_mpi_doubling(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_doubling_land(dpari_mpi_task *task);
/* Returns the element at which piece r begins if a block of `len` elements is cut into n pieces. */
DPARI_INTERNAL int64_t dpari_mpi_cut(int64_t len, int32_t r, int32_t n);
/* Run a large reduction, in which each rank adds one piece. */
DPARI_INTERNAL int dpari_mpi_ordered(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_ordered_land(dpari_mpi_task *task);
/* Run a reduce_scatter. */
DPARI_INTERNAL int dpari_mpi_ordered_scatter(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_ordered_scatter_land(dpari_mpi_task *task);

#endif
