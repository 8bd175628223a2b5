/* SPDX-License-Identifier: MIT-0 */
/* Shrinks a communicator by ULFM, the fault tolerance of Open MPI 5: breaks it, so that no rank
 * waits in it any more, agrees with the ranks that are left, with a deadline, and lets MPI make a
 * communicator of them. Without ULFM it only reports that. */
#include "shrink.h"

#include "../comm/os.h"
#include "error_text.h"

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
/* Waits, with the deadline, until all remaining ranks have called shrink. MPIX_Comm_shrink has no
 * deadline. */
static dpar_status dpari_mpi_shrink_meet(dpari_mpi_ctx *context, dpar_why *why)
{
    dpari_stopwatch watch = {0, 0};
    MPI_Request request;
    int flag = 1, done = 0, code = MPIX_Comm_iagree(context->main, &flag, &request);
    while (code == MPI_SUCCESS && !done) { /* if a rank has died the test fails when it is done */
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            break;
        }
        if (context->comm.timeout_s > 0 && dpari_os_waited(&watch) > context->comm.timeout_s) {
            return dpari_say(DPAR_E_TIMEOUT, why,
                             "shrink on rank %d: not all remaining ranks called it within %ld ms",
                             context->comm.rank, (int64_t)(context->comm.timeout_s * 1e3));
        }
        DPARI_MPI_YIELD();
    }
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "MPIX_Comm_iagree", code);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_mpi_shrink_part(dpari_mpi_ctx *context, MPI_Comm *part,
                                                 dpar_why *why)
{
    dpar_comm *comm = &context->comm;
    dpar_status status;
    dpar_why said;
    int code;
    /* If the communicator is broken already, its first error is kept. */
    (void)dpari_say(DPAR_E_PEER, &said, "rank %d called dpar_comm_shrink", comm->rank);
    dpar_comm_abort(comm, DPAR_E_PEER, said.text);
    status = dpari_mpi_shrink_meet(context, why);
    if (status < 0) {
        return status;
    }
    code = MPIX_Comm_shrink(context->main, part);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "MPIX_Comm_shrink", code);
    }
    return DPAR_OK;
}
#else
DPARI_INTERNAL dpar_status dpari_mpi_shrink_part(dpari_mpi_ctx *context, MPI_Comm *part,
                                                 dpar_why *why)
{
    (void)context;
    (void)part;
    return dpari_say(DPAR_E_SYSTEM, why,
                     "shrink: this MPI has no ULFM (MPIX_Comm_shrink): a job on several nodes "
                     "cannot continue after a rank has died");
}
#endif

DPARI_INTERNAL void dpari_mpi_shrink_map(const dpari_mpi_ctx *context, MPI_Comm part, int32_t *was)
{
    MPI_Group of, in;
    int n = 0, r, old;
    MPI_Comm_size(part, &n);
    MPI_Comm_group(part, &of);
    MPI_Comm_group(context->main, &in);
    for (r = 0; r < n && was != NULL; r++) {
        MPI_Group_translate_ranks(of, 1, &r, in, &old);
        was[r] = (int32_t)old;
    }
    MPI_Group_free(&of);
    MPI_Group_free(&in);
}
