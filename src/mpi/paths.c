/* SPDX-License-Identifier: MIT-0 */
/* Chooses the path of a call. Everything within a node goes through its memory. Other collectives
 * are run by nodes where ranks are distributed evenly enough, by this engine's own messages if
 * there are few ranks or the pieces are long, and otherwise by MPI's collectives. Reductions whose
 * order of additions matters (rank_order, and 16-bit floats of few ranks) use rank_order.c. */
#include "paths.h"

#include "exchange_v.h"
#include "mpi_types.h"
#include "tasks.h"

/* True if an operation with pieces of `piece` bytes uses messages from each rank to each other
 * rank. */
static int32_t dpari_mpi_direct(const dpari_mpi_ctx *context, int64_t piece)
{
    return !context->options.blocking &&
           (context->comm.size <= DPARI_MPI_DIRECT ||
            (context->comm.size <= DPARI_MPI_TRADED && piece >= DPARI_MPI_WORTH));
}

/* True if the call is run by nodes (DPARI_MPI_LEVELS). */
static int32_t dpari_mpi_by_nodes(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const dpari_mpi_levels *levels = &context->level;
    const int32_t reduces = dpari_kind_reduces(call->kind);
    const int32_t half = reduces && dpari_mpi_is_half(call->type);
    if (levels->inside == NULL || call->variable_counts ||
        (reduces && context->options.rank_order) ||
        (half && (call->kind != DPAR_CALL_ALL_REDUCE ||
                  dpari_mpi_bytes(DPAR_F32, call->count) >= DPARI_MPI_LANES))) {
        return 0; /* large sums of 16-bit floats are computed in rank order, which sends half the
                     bytes */
    }
    return call->kind == DPAR_CALL_BARRIER || call->kind == DPAR_CALL_ALL_REDUCE ||
           call->kind == DPAR_CALL_BROADCAST ||
           (call->kind == DPAR_CALL_ALL_GATHER && levels->even) ||
           (call->kind == DPAR_CALL_ALL_TO_ALL && levels->even &&
            dpari_mpi_bytes(call->type, call->count) <= context->world->dealt[0]) ||
           (call->kind == DPAR_CALL_REDUCE_SCATTER && levels->even && levels->in_order);
}

/* True if this engine's own messages carry a barrier or a call that moves data, rather than MPI's
 * operation, which is slow when it is posted. */
static int32_t dpari_mpi_by_trades(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const int64_t bytes = dpari_mpi_bytes(call->type, call->count);
    const int32_t few = context->comm.size <= DPARI_MPI_DIRECT;
    if (context->options.blocking || call->variable_counts) {
        return 0;
    }
    return call->kind == DPAR_CALL_BARRIER ||
           (call->kind == DPAR_CALL_BROADCAST && (few || bytes < DPARI_MPI_LANES)) ||
           (call->kind == DPAR_CALL_ALL_GATHER && dpari_mpi_direct(context, bytes)) ||
           (call->kind == DPAR_CALL_ALL_TO_ALL && dpari_mpi_direct(context, bytes));
}

DPARI_INTERNAL int32_t dpari_mpi_is_within(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const dpari_mpi_levels *levels = &context->level;
    return levels->inside != NULL &&
           (levels->nodes == 1 ||
            (dpari_kind_sends(call->kind) && levels->node_of[call->root] == levels->node));
}

/* Returns the path of a call. It has to be the same on all ranks, and therefore depends only on
 * values that are equal on all ranks. */
static int32_t dpari_mpi_choose(const dpari_mpi_ctx *context, const dpar_call *call)
{
    int32_t half = dpari_mpi_is_half(call->type), n = context->comm.size;
    int32_t ordered = context->options.rank_order || (half && n <= DPARI_MPI_EXCHANGED);
    int32_t bytes = dpar_type_bytes(call->type);
    if (dpari_mpi_is_within(context, call)) {
        return DPARI_MPI_WITHIN;
    }
    if (dpari_kind_sends(call->kind)) {
        return DPARI_MPI_MESSAGE;
    }
    if (call->kind == DPAR_CALL_ALL_TO_ALL && call->variable_counts &&
        context->level.inside != NULL && context->level.lanes > 1 &&
        context->world->dealt[1] >= 0) {
        return DPARI_MPI_DEALS;
    }
    if (dpari_mpi_by_nodes(context, call)) {
        return DPARI_MPI_LEVELS;
    }
    if (dpari_mpi_by_trades(context, call)) {
        return DPARI_MPI_TRADES;
    }
    if (!dpari_kind_reduces(call->kind)) {
        return call->variable_counts ? DPARI_MPI_EXCHANGE : DPARI_MPI_MOVE;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        int64_t most = dpari_mpi_most(call->type, call->op);
        ordered |= dpari_mpi_direct(context, dpari_mpi_elements(call, n) / n * bytes);
        if (ordered) {
            return DPARI_MPI_ORDERED_SCATTER;
        }
        return half || dpari_mpi_elements(call, n) > most ? DPARI_MPI_SCATTER_STAGED
                                                          : DPARI_MPI_SCATTER;
    }
    if (call->kind == DPAR_CALL_ALL_REDUCE && !half) {
        ordered |= dpari_mpi_direct(context, call->count / n * bytes);
        if (!ordered && !context->options.blocking && call->count <= DPARI_MPI_SMALL / bytes) {
            return DPARI_MPI_DOUBLING;
        }
    }
    if (!ordered) {
        return half ? DPARI_MPI_STAGED : DPARI_MPI_PIECES;
    }
    return call->count <= DPARI_MPI_SMALL / ((int64_t)n * bytes) &&
                   call->count * n <= DPARI_MPI_LIMIT
               ? DPARI_MPI_GATHERED
               : DPARI_MPI_ORDERED;
}

DPARI_INTERNAL int32_t dpari_mpi_is_empty(const dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    return call->kind != DPAR_CALL_BARRIER && task->path != DPARI_MPI_MESSAGE &&
           task->path != DPARI_MPI_EXCHANGE && task->path != DPARI_MPI_WITHIN &&
           task->path != DPARI_MPI_DEALS &&
           (call->variable_counts ? dpari_mpi_elements(call, task->ctx->comm.size) == 0
                                  : call->count == 0);
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_new(dpari_mpi_ctx *context, const dpar_call *call,
                                             dpar_work *work)
{
    dpari_mpi_task *task = dpari_mpi_take(context->world);
    if (task == NULL) {
        return NULL;
    }
    task->ctx = context;
    task->work = work;
    task->call = *call;
    task->sequence = 0;
    task->path = dpari_mpi_choose(context, call);
    task->phase = DPARI_MPI_NEW;
    task->finished = task->last = task->posted = task->told = task->cut = task->block =
        task->feeding = 0;
    task->requests = 0;
    task->status = DPAR_OK;
    task->since = -1;
    task->looked = 0;
    task->op =
        task->path == DPARI_MPI_LEVELS && call->op == DPAR_AVG ? (int32_t)DPAR_SUM : call->op;
    task->level = task->leg = task->ended = 0;
    dpari_mpi_among(task, NULL, context->comm.size, context->comm.rank, call->in, call->out,
                    call->count);
    if (work != NULL) {
        work->comm = &context->comm;
        work->call = *call;
        work->status = DPAR_MORE;
        work->phase = 1;
        work->sequence = task->sequence;
        memcpy(work->state, &task, sizeof task);
    }
    dpari_mpi_link(task);
    return task;
}
