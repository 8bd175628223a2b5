/* SPDX-License-Identifier: MIT-0 */
/* Compares the calls of all ranks by one all-reduce over the side communicator. Each rank passes
 * the fields of its call and their negatives, so that one maximum gives the largest and the
 * smallest value of each field; the calls are the same if these are equal. If they differ, all
 * ranks know it, and an all-gather of the calls provides those that the message names. Called by
 * progress.c before the first step of an operation. */
#include "check.h"

#include "error_text.h"
#include "notes.h"
#include "tasks.h"

/* Returns a hash of the piece sizes, for the calls in which they must be equal on all ranks. */
static int64_t dpari_mpi_pieces_hash(const dpar_call *call, int32_t n)
{
    const int64_t *counts = NULL;
    uint64_t h = 1 + (uint64_t)(call->variable_counts != 0);
    int32_t r;
    if (call->kind == DPAR_CALL_ALL_GATHER) {
        counts = call->out_count;
    } else if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        counts = call->in_count;
    }
    for (r = 0; call->variable_counts && counts != NULL && r < n; r++) {
        h = (h ^ (uint64_t)counts[r]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return (int64_t)(h >> 2);
}

/* Posts the comparison of the calls of all ranks. */
static int dpari_mpi_check(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int32_t i;
    task->check[0] = call->kind;
    task->check[1] = call->type;
    task->check[2] = call->op;
    task->check[3] = call->root;
    task->check[4] = call->variable_counts ? 0 : call->count;
    task->check[5] = dpari_mpi_pieces_hash(call, task->ctx->comm.size);
    task->check[6] = dpari_tag_compared(call->tag);
    for (i = 0; i < 7; i++) {
        task->check[7 + i] = -task->check[i];
    }
    return DPARI_MPI_DO(task, MPI_Allreduce, MPI_Iallreduce, MPI_IN_PLACE, task->check, 14,
                        MPI_INT64_T, MPI_MAX, task->ctx->side);
}

static int32_t dpari_mpi_agrees(const dpari_mpi_task *task)
{
    int32_t i, same = 1;
    for (i = 0; i < 7; i++) {
        same = same && task->check[i] == -task->check[7 + i];
    }
    return same;
}

/* Sends this rank's call to all ranks, for the message. Called when all ranks know that their calls
 * differ. */
static int dpari_mpi_ask_all(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    dpari_record *mine;
    int bytes = (int)sizeof(dpari_record);
    task->calls = (dpari_record *)calloc((size_t)context->comm.size, sizeof *task->calls);
    if (task->calls == NULL) {
        return MPI_ERR_NO_MEM;
    }
    mine = &task->calls[context->comm.rank];
    *mine = dpari_mpi_record_of(task);
    mine->state = (int32_t)(dpari_mpi_pieces_hash(&task->call, context->comm.size) & 0x7fffffff);
    return DPARI_MPI_DO(task, MPI_Allgather, MPI_Iallgather, MPI_IN_PLACE, bytes, MPI_BYTE,
                        task->calls, bytes, MPI_BYTE, context->side);
}

static void dpari_mpi_disagree(dpari_mpi_task *task)
{
    const dpari_record *a = task->calls;
    int32_t r = 1;
    dpar_why why;
    dpar_text s;
    while (r + 1 < task->ctx->comm.size && a->state == task->calls[r].state &&
           dpari_record_same(a, &task->calls[r], 1)) {
        r++;
    }
    dpari_text_why(&s, &why);
    dpari_mpi_put_calls(&s, task->ctx, 0, a, r, &task->calls[r]);
    if (a->state != task->calls[r].state) {
        dpar_text_put(&s, ", with different counts of the pieces");
    }
    dpari_mpi_break(task->ctx, DPAR_E_MISMATCH, why.text, 0);
}

DPARI_INTERNAL int32_t dpari_mpi_check_step(dpari_mpi_task *task, int *code)
{
    const int split = task->call.kind == DPAR_CALL_BARRIER && task->call.root == DPARI_SPLIT;
    *code = MPI_SUCCESS;
    switch (task->phase) {
    case DPARI_MPI_NEW:
        if (!split && (!task->ctx->options.check || dpari_kind_sends(task->call.kind))) {
            return 0;
        }
        task->phase = DPARI_MPI_CHECKING;
        *code = dpari_mpi_check(task);
        return 1;
    case DPARI_MPI_CHECKING:
        if (dpari_mpi_agrees(task)) {
            return 0;
        }
        task->phase = DPARI_MPI_TELLING;
        *code = dpari_mpi_ask_all(task);
        return 1;
    case DPARI_MPI_TELLING: dpari_mpi_disagree(task); return 1;
    default: return 0;
    }
}
