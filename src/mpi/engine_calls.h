/* SPDX-License-Identifier: MIT-0 */
/* engine_calls - private: the functions of the engine that run calls, allocate memory and report.
 */
#ifndef DPARI_MPI_ENGINE_CALLS_H
#define DPARI_MPI_ENGINE_CALLS_H

#include "mpi_private.h"

/* The functions of dpar_engine that comm.h describes. */
DPARI_INTERNAL dpar_status dpari_mpi_post(dpar_comm *comm, const dpar_call *call, dpar_work *work);
DPARI_INTERNAL dpar_status dpari_mpi_test(dpar_work *work);
DPARI_INTERNAL dpar_status dpari_mpi_wait(dpar_work *work);
DPARI_INTERNAL dpar_status dpari_mpi_run(dpar_comm *comm, const dpar_call *call);
DPARI_INTERNAL dpar_status dpari_mpi_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                           dpar_work *works);
/* Allocates with calloc unless the node has shared memory. MPI_Alloc_mem would end the job when
 * there is no memory, unless MPI_COMM_WORLD has another error handler, and has no advantage in MPIs
 * that cache registered memory. */
DPARI_INTERNAL dpar_status dpari_mpi_alloc(dpar_comm *comm, int64_t bytes, void **memory);
DPARI_INTERNAL void dpari_mpi_release(dpar_comm *comm, void *memory);
DPARI_INTERNAL dpar_status dpari_mpi_progress(dpar_comm *comm, int32_t on);
DPARI_INTERNAL void dpari_mpi_abort(dpar_comm *comm, dpar_status status, const char *text);
/* Writes a report: this rank's last operations, and the calls in which other ranks have reported
 * that they wait. */
DPARI_INTERNAL void dpari_mpi_report(dpar_comm *comm, dpar_text *out);
DPARI_INTERNAL void dpari_mpi_describe(dpar_comm *comm, dpar_text *out);

#endif
