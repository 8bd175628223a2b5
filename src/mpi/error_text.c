/* SPDX-License-Identifier: MIT-0 */
/* Writes the parts of which the engine's messages consist. The name of a rank's node is found by
 * translating the rank to its number in the world's first communicator, for which the names were
 * gathered when that was made (nodes.c). */
#include "error_text.h"

/* Returns the type that the user passed. Data between nodes may be sent as another type. */
static int32_t dpari_mpi_said_type(const dpari_mpi_task *task)
{
    if (task->call.kind == DPAR_CALL_BARRIER) {
        return DPAR_TYPE_NONE;
    }
    return task->half ? task->half : task->call.type;
}

DPARI_INTERNAL void dpari_mpi_describe_task(dpar_text *text, const dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_operation_text(text, call->kind, task->sequence, dpari_mpi_said_type(task), call->count,
                         call->root, call->tag);
}

DPARI_INTERNAL void dpari_mpi_describe_note(dpar_text *text, const dpari_record *r)
{
    dpari_operation_text(text, r->kind, r->sequence - 1, r->type, r->count, r->root, r->tag);
}

DPARI_INTERNAL dpar_status dpari_mpi_say(dpar_why *why, const char *doing, int code)
{
    char words[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) {
        return dpari_say(DPAR_E_SYSTEM, why, "%s failed: MPI says: %d", doing, (int32_t)code);
    }
    words[length] = 0;
    return dpari_say(DPAR_E_SYSTEM, why, "%s failed: MPI says: %s", doing, words);
}

DPARI_INTERNAL int dpari_mpi_class(int code)
{
    int kind = MPI_ERR_OTHER;
    MPI_Error_class(code, &kind);
    return kind;
}

DPARI_INTERNAL dpar_status dpari_mpi_status_of(int code)
{
    const int kind = dpari_mpi_class(code);
    if (kind == MPI_ERR_TRUNCATE) {
        return DPAR_E_MISMATCH;
    }
    if (kind == MPI_ERR_NO_MEM) {
        return DPAR_E_MEMORY;
    }
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
    if (kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING) {
        return DPAR_E_PEER;
    }
#endif
    return DPAR_E_SYSTEM;
}

DPARI_INTERNAL const char *dpari_mpi_host(const dpari_mpi_ctx *context, int32_t rank)
{
    const dpari_mpi_world *world = context->world;
    MPI_Group own = MPI_GROUP_NULL;
    int here = (int)rank, there = MPI_UNDEFINED;
    if (world->host == NULL || MPI_Comm_group(context->main, &own) != MPI_SUCCESS) {
        return NULL;
    }
    if (MPI_Group_translate_ranks(own, 1, &here, world->all, &there) != MPI_SUCCESS) {
        there = MPI_UNDEFINED;
    }
    MPI_Group_free(&own);
    return there != MPI_UNDEFINED ? world->host[world->host_of[there]] : NULL;
}

DPARI_INTERNAL void dpari_mpi_put_host(dpar_text *text, const char *host)
{
    if (host != NULL) {
        dpari_text_say(text, " on %s", host);
    }
}

DPARI_INTERNAL void dpari_mpi_put_rank(dpar_text *text, const dpari_mpi_ctx *context, int32_t rank)
{
    dpari_text_say(text, "rank %d", rank);
    dpari_mpi_put_host(text, dpari_mpi_host(context, rank));
}

DPARI_INTERNAL dpari_record dpari_mpi_record_of(const dpari_mpi_task *task)
{
    dpari_record r = dpari_record_of(&task->call, task->sequence);
    r.type = dpari_mpi_said_type(task);
    return r;
}

DPARI_INTERNAL void dpari_mpi_put_calls(dpar_text *text, const dpari_mpi_ctx *context,
                                        int32_t first, const dpari_record *a, int32_t second,
                                        const dpari_record *b)
{
    dpari_mpi_put_rank(text, context, first);
    dpar_text_put(text, " calls ");
    dpari_record_text(text, a);
    dpar_text_put(text, ", ");
    dpari_mpi_put_rank(text, context, second);
    dpar_text_put(text, " calls ");
    dpari_record_text(text, b);
}
