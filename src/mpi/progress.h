/* SPDX-License-Identifier: MIT-0 */
/* progress - private: advances the tasks of a world, and waits for them. */
#ifndef DPARI_MPI_PROGRESS_H
#define DPARI_MPI_PROGRESS_H

#include "mpi_private.h"

/* Advances every message without a task, and every task once, in the order of posting. A collective
 * begins when those before it on its communicator have posted all their steps, so that MPI sees the
 * same order on all ranks. */
DPARI_INTERNAL void dpari_mpi_pump(dpari_mpi_world *world);
/* Called repeatedly in a long wait: reads notes, sends notes after a quarter of the deadline, and
 * checks the deadline. */
DPARI_INTERNAL void dpari_mpi_look_round(dpari_mpi_task *task);
/* Waits until *finished is DPARI_MPI_FINISHED. It is a field of the task, or of its work if it has
 * one, because a task with a work may be used again once it has ended. */
DPARI_INTERNAL void dpari_mpi_await(dpari_mpi_task *task, const int32_t *finished);
/* Called before a blocking MPI call: advances the operations that were posted before until all
 * their steps are posted. */
DPARI_INTERNAL void dpari_mpi_bring_along(dpari_mpi_ctx *context);
/* Makes a task and records it. The task begins now if no collective before it has steps left.
 * Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_begin(dpari_mpi_ctx *context, const dpar_call *call,
                                               dpar_work *work, int32_t block);

#endif
