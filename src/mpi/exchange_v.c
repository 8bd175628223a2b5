/* SPDX-License-Identifier: MIT-0 */
/* Posts the pieces of the _v forms as one message for each pair of ranks: first all receives, then
 * all sends. A piece that this rank sends to itself is copied. An all_to_all_v in place sends from
 * a copy of its input. */
#include "exchange_v.h"

#include "../comm/pair.h"
#include "mpi_types.h"
#include "task_messages.h"
#include "tasks.h"

static int64_t dpari_mpi_sum(const int64_t *counts, int32_t n)
{
    int64_t sum = 0;
    int32_t r;
    for (r = 0; counts != NULL && r < n; r++) {
        sum += counts[r];
    }
    return sum;
}

DPARI_INTERNAL int64_t dpari_mpi_piece_of(const dpar_call *call, int32_t r)
{
    return call->variable_counts ? call->in_count[r] : call->count;
}

DPARI_INTERNAL int64_t dpari_mpi_largest(const dpar_call *call, int32_t n)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < n; r++) {
        int64_t piece = dpari_mpi_piece_of(call, r);
        most = piece > most ? piece : most;
    }
    return most;
}

DPARI_INTERNAL int64_t dpari_mpi_elements(const dpar_call *call, int32_t n)
{
    return call->variable_counts ? dpari_mpi_sum(call->in_count, n) : call->count * n;
}

DPARI_INTERNAL int64_t dpari_mpi_clamp(int64_t piece, int64_t at, int64_t len)
{
    return piece <= at ? 0 : dpari_least(piece - at, len);
}

DPARI_INTERNAL int64_t dpari_mpi_aside_bytes(const dpari_mpi_task *task)
{
    return dpari_mpi_bytes(task->call.type,
                           dpari_mpi_sum(task->call.in_count, task->ctx->comm.size));
}

DPARI_INTERNAL int32_t dpari_mpi_set_aside(dpari_mpi_task *task, void *copy)
{
    dpar_call *call = &task->call;
    dpari_pair p;
    int64_t at = 0;
    int32_t r;
    if (copy == NULL) {
        return 0;
    }
    memset(&p, 0, sizeof p);
    for (r = 0; r < task->ctx->comm.size; r++) {
        dpari_pair_next(&task->ctx->comm, call, r, &p);
        dpari_mpi_copy(dpari_mpi_at(copy, call->type, at),
                       dpari_mpi_past(call->in, call->type, p.from),
                       dpari_mpi_bytes(call->type, p.give));
        at += p.give;
    }
    call->in = copy;
    call->in_first = NULL;
    return 1;
}

DPARI_INTERNAL int dpari_mpi_exchange(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const dpar_comm *comm = &task->ctx->comm;
    MPI_Comm side = task->ctx->side;
    const int tag = dpari_mpi_piece_tag(task);
    dpari_pair p;
    int32_t r, code = MPI_SUCCESS;
    task->last = 1;
    if (!dpari_mpi_reserve(task, 2 * comm->size) ||
        (call->kind == DPAR_CALL_ALL_TO_ALL && call->in == call->out &&
         !dpari_mpi_set_aside(task, dpari_mpi_scratch(task, dpari_mpi_aside_bytes(task))))) {
        return MPI_ERR_NO_MEM;
    }
    memset(&p, 0, sizeof p);
    for (r = 0; r < comm->size && code == MPI_SUCCESS; r++) {
        dpari_pair_next(comm, call, r, &p);
        if (p.take >= 0 && r != comm->rank) {
            code = dpari_mpi_recv_piece(task, side, tag, r,
                                        dpari_mpi_at(call->out, call->type, p.to), p.take);
        }
    }
    memset(&p, 0, sizeof p);
    for (r = 0; r < comm->size && code == MPI_SUCCESS; r++) {
        const void *from;
        dpari_pair_next(comm, call, r, &p);
        from = dpari_mpi_past(call->in, call->type, p.from);
        if (r == comm->rank && p.give != p.take) {
            dpari_mpi_mismatch(task, r, p.give, p.take);
            return MPI_SUCCESS;
        }
        if (r == comm->rank && p.give > 0) {
            dpari_mpi_copy(dpari_mpi_at(call->out, call->type, p.to), from,
                           dpari_mpi_bytes(call->type, p.give));
        } else if (r != comm->rank && p.give >= 0) {
            code = dpari_mpi_send_piece(task, side, tag, r, from, p.give);
        }
    }
    return code;
}
