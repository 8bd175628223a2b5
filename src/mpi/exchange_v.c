/* SPDX-License-Identifier: MIT-0 */
/* Posts the pieces of the _v forms as one message for each pair of ranks: first all receives, then
 * all sends. A piece that this rank sends to itself is copied. An all_to_all_v in place sends from
 * a copy of its input. */
#include "exchange_v.h"

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
    int64_t at = 0, next = 0;
    int32_t r, n = task->ctx->comm.size;
    if (copy == NULL) {
        return 0;
    }
    for (r = 0; r < n; r++) {
        int64_t begin = call->in_first != NULL ? call->in_first[r] : next;
        dpari_mpi_copy(dpari_mpi_at(copy, call->type, at),
                       dpari_mpi_past(call->in, call->type, begin),
                       dpari_mpi_bytes(call->type, call->in_count[r]));
        at += call->in_count[r];
        next += call->in_count[r];
    }
    call->in = copy;
    call->in_first = NULL;
    return 1;
}

/* True if this rank sends to rank r. In a scatter only the root sends, and in a gather only the
 * root receives. dpari_mpi_gets_from does the same for receiving. */
static int32_t dpari_mpi_sends_to(const dpari_mpi_task *task, int32_t r)
{
    const dpar_call *call = &task->call;
    switch (call->kind) {
    case DPAR_CALL_GATHER: return r == call->root;
    case DPAR_CALL_SCATTER: return task->ctx->comm.rank == call->root;
    default: return 1;
    }
}

static int32_t dpari_mpi_gets_from(const dpari_mpi_task *task, int32_t r)
{
    const dpar_call *call = &task->call;
    switch (call->kind) {
    case DPAR_CALL_SCATTER: return r == call->root;
    case DPAR_CALL_GATHER: return task->ctx->comm.rank == call->root;
    default: return 1;
    }
}

/* Returns the elements of the piece from rank r. dpari_mpi_in_piece returns those of the piece for
 * rank r. */
static int64_t dpari_mpi_out_piece(const dpar_call *call, int32_t r)
{
    return call->kind == DPAR_CALL_SCATTER ? call->count : call->out_count[r];
}

static int64_t dpari_mpi_in_piece(const dpar_call *call, int32_t rank, int32_t r)
{
    switch (call->kind) {
    case DPAR_CALL_GATHER: return call->count;
    case DPAR_CALL_ALL_GATHER: return call->out_count[rank];
    default: return call->in_count[r];
    }
}

/* Returns the element at which piece r begins: 0 with `one`, because there is a single piece;
 * otherwise first[r], or, if `first` is NULL, the pieces follow each other and `next` is the sum of
 * those before. */
static int64_t dpari_mpi_piece_begin(int32_t one, const int64_t *first, int32_t r, int64_t next)
{
    if (one) {
        return 0;
    }
    return first != NULL ? first[r] : next;
}

/* Posts the receives. Sets *mine and *own to the address and the elements of this rank's piece for
 * itself. */
static int dpari_mpi_get_pieces(dpari_mpi_task *task, void **mine, int64_t *own)
{
    const dpar_call *call = &task->call;
    int64_t next = 0;
    int32_t r, code = MPI_SUCCESS, one = call->kind == DPAR_CALL_SCATTER;
    for (r = 0; r < task->ctx->comm.size && code == MPI_SUCCESS; r++) {
        int64_t n, begin;
        if (!dpari_mpi_gets_from(task, r)) {
            continue;
        }
        n = dpari_mpi_out_piece(call, r);
        begin = dpari_mpi_piece_begin(one, call->out_first, r, next);
        next += n;
        if (r == task->ctx->comm.rank) {
            *mine = dpari_mpi_at(call->out, call->type, begin);
            *own = n;
        } else {
            code = dpari_mpi_recv_piece(task, task->ctx->side, dpari_mpi_piece_tag(task), r,
                                        dpari_mpi_at(call->out, call->type, begin), n);
        }
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_exchange(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_ctx *context = task->ctx;
    int32_t r, one = call->kind == DPAR_CALL_GATHER || call->kind == DPAR_CALL_ALL_GATHER;
    int64_t next = 0, own = 0;
    void *mine = NULL;
    int code;
    task->last = 1;
    if (!dpari_mpi_reserve(task, 2 * context->comm.size) ||
        (call->kind == DPAR_CALL_ALL_TO_ALL && call->in == call->out &&
         !dpari_mpi_set_aside(task, dpari_mpi_scratch(task, dpari_mpi_aside_bytes(task))))) {
        return MPI_ERR_NO_MEM;
    }
    code = dpari_mpi_get_pieces(task, &mine, &own);
    for (r = 0; r < context->comm.size && code == MPI_SUCCESS; r++) {
        int64_t n, begin;
        const void *from;
        if (!dpari_mpi_sends_to(task, r)) {
            continue;
        }
        n = dpari_mpi_in_piece(call, context->comm.rank, r);
        begin = dpari_mpi_piece_begin(one, call->in_first, r, next);
        next += n;
        from = dpari_mpi_past(call->in, call->type, begin);
        if (r == context->comm.rank && n != own) {
            dpari_mpi_mismatch(task, r, n, own);
            return MPI_SUCCESS;
        }
        if (r == context->comm.rank) {
            dpari_mpi_copy(mine, from, dpari_mpi_bytes(call->type, n));
        } else {
            code = dpari_mpi_send_piece(task, context->side, dpari_mpi_piece_tag(task), r, from, n);
        }
    }
    return code;
}
