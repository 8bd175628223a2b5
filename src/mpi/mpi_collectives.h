/* SPDX-License-Identifier: MIT-0 */
/* mpi_collectives - private: operations that MPI's own collectives and messages carry. */
#ifndef DPARI_MPI_MPI_COLLECTIVES_H
#define DPARI_MPI_MPI_COLLECTIVES_H

#include "mpi_private.h"

/* A function posts the next step of a task and returns a code of MPI. If there is a second one, its
 * name ends in _land, and it processes the data that arrived. */

/* Runs a barrier, or a collective that moves pieces of one size, as one call of MPI. */
DPARI_INTERNAL int dpari_mpi_move(dpari_mpi_task *task);
/* Runs a send or recv. */
DPARI_INTERNAL int dpari_mpi_message(dpari_mpi_task *task);
/* Run a reduce or all_reduce in blocks that MPI can count. */
DPARI_INTERNAL int dpari_mpi_pieces(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_pieces_land(dpari_mpi_task *task);
/* Run the same for 16-bit floats, which are added in f32. */
DPARI_INTERNAL int dpari_mpi_staged(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_staged_land(dpari_mpi_task *task);
/* Run a reduce_scatter. */
DPARI_INTERNAL int dpari_mpi_scatter(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_scatter_land(dpari_mpi_task *task);
/* Run a reduce_scatter of 16-bit floats, or with more elements than MPI can count. */
DPARI_INTERNAL int dpari_mpi_scatter_staged(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_scatter_staged_land(dpari_mpi_task *task);

#endif
