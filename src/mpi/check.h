/* SPDX-License-Identifier: MIT-0 */
/* check - private: compares the calls of all ranks, with check = 1 and before a split. */
#ifndef DPARI_MPI_CHECK_H
#define DPARI_MPI_CHECK_H

#include "mpi_private.h"

/* Posts the next step of the comparison, and returns 1, or returns 0 if there is nothing to compare
 * any more. If calls differ, breaks the communicator with a message that names rank 0's call and
 * the first call that differs. Sets *code to MPI's return code. */
DPARI_INTERNAL int32_t dpari_mpi_check_step(dpari_mpi_task *task, int *code);

#endif
