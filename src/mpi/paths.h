/* SPDX-License-Identifier: MIT-0 */
/* paths - private: chooses how a call is carried out, and makes its task. */
#ifndef DPARI_MPI_PATHS_H
#define DPARI_MPI_PATHS_H

#include "mpi_private.h"

/* True if the call needs only this node's memory. */
DPARI_INTERNAL int32_t dpari_mpi_is_within(const dpari_mpi_ctx *context, const dpar_call *call);
/* True if there is nothing to do. All ranks get the same result. */
DPARI_INTERNAL int32_t dpari_mpi_is_empty(const dpari_mpi_task *task);
/* Makes a task for `call` and appends it to the list. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_new(dpari_mpi_ctx *context, const dpar_call *call,
                                             dpar_work *work);

#endif
