/* SPDX-License-Identifier: MIT-0 */
/* check - private: compares the calls of all ranks, with check = 1 and before a split. */
#ifndef DPARI_MPI_CHECK_H
#define DPARI_MPI_CHECK_H

#include "mpi_private.h"

/* Posts the comparison of the calls of all ranks. */
DPARI_INTERNAL int dpari_mpi_check(dpari_mpi_task *task);
/* True if they are the same. Once the comparison is done. */
DPARI_INTERNAL int32_t dpari_mpi_agrees(const dpari_mpi_task *task);
/* Sends this rank's call to all ranks, for the message. Called when all ranks know that their calls
 * differ. */
DPARI_INTERNAL int dpari_mpi_ask_all(dpari_mpi_task *task);
/* Breaks the communicator with a message that names rank 0's call and the first call that
 * differs. */
DPARI_INTERNAL void dpari_mpi_disagree(dpari_mpi_task *task);

#endif
