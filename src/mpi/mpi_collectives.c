/* SPDX-License-Identifier: MIT-0 */
/* Carries operations by MPI's own collectives.
 *
 * Data that is only moved is sent as unsigned integers of the same size, and more elements than MPI
 * can count as one element of a derived type. Reductions run in blocks that MPI can count. 16-bit
 * floats are converted to f32, reduced, and rounded once. MPI_IN_PLACE is used only where all ranks
 * can use it, because in dpar each rank may call in place or not. */
#include "mpi_collectives.h"

#include "exchange_v.h"
#include "mpi_types.h"
#include "task_messages.h"
#include "tasks.h"

static int dpari_mpi_call_barrier(dpari_mpi_task *task)
{
    if (task->block) {
        return MPI_Barrier(task->ctx->main);
    }
    dpari_mpi_slot(task, -1);
    return MPI_Ibarrier(task->ctx->main, dpari_mpi_last_request(task));
}

static int dpari_mpi_all_to_all(dpari_mpi_task *task, MPI_Datatype type, dpari_mpi_count n)
{
    const dpar_call *call = &task->call;
    /* not MPI_IN_PLACE, which might select another algorithm than on ranks that do not use it */
    const void *in = dpari_mpi_apart(
        task, call->in, call->out, dpari_mpi_bytes(call->type, call->count * task->ctx->comm.size));
    if (in == NULL) {
        return MPI_ERR_NO_MEM;
    }
    return DPARI_MPI_DO(task, MPI_Alltoall, MPI_Ialltoall, in, n, type, call->out, n, type,
                        task->ctx->main);
}

DPARI_INTERNAL int dpari_mpi_move(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_ctx *context = task->ctx;
    int32_t here = context->comm.rank == call->root, bytes = dpar_type_bytes(call->type);
    int64_t total =
        call->kind == DPAR_CALL_BROADCAST ? call->count : call->count * context->comm.size;
    int64_t own = call->count * context->comm.rank;
    dpari_mpi_piece big;
    MPI_Datatype type;
    dpari_mpi_count n;
    int code;
    task->last = 1;
    if (call->kind == DPAR_CALL_BARRIER) {
        return dpari_mpi_call_barrier(task);
    }
    big.big = MPI_DATATYPE_NULL;
    code = dpari_mpi_units(&big, bytes, call->count, total, &type, &n);
    if (code != MPI_SUCCESS) {
        return code;
    }
    if (call->kind == DPAR_CALL_BROADCAST) {
        code = DPARI_MPI_DO(task, MPI_Bcast, MPI_Ibcast, call->out, n, type, call->root,
                            context->main);
    } else if (call->kind == DPAR_CALL_ALL_GATHER) {
        /* MPI_IN_PLACE on all ranks, because MPI requires it on all or on none */
        dpari_mpi_copy(dpari_mpi_at(call->out, call->type, own), call->in,
                       dpari_mpi_bytes(call->type, call->count));
        code = DPARI_MPI_DO(task, MPI_Allgather, MPI_Iallgather, MPI_IN_PLACE, n, type, call->out,
                            n, type, context->main);
    } else if (call->kind == DPAR_CALL_GATHER) {
        const void *in = here && call->in == dpari_mpi_past(call->out, call->type, own)
                             ? MPI_IN_PLACE
                             : call->in;
        code = DPARI_MPI_DO(task, MPI_Gather, MPI_Igather, in, n, type, here ? call->out : NULL, n,
                            type, call->root, context->main);
    } else if (call->kind == DPAR_CALL_SCATTER) {
        void *out = here && call->out == dpari_mpi_past(call->in, call->type, own) ? MPI_IN_PLACE
                                                                                   : call->out;
        code = DPARI_MPI_DO(task, MPI_Scatter, MPI_Iscatter, here ? call->in : NULL, n, type, out,
                            n, type, call->root, context->main);
    } else {
        code = dpari_mpi_all_to_all(task, type, n);
    }
    if (task->requests > 0) {
        task->piece[0].big = big.big;
    } else if (big.big != MPI_DATATYPE_NULL) {
        MPI_Type_free(&big.big);
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_message(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    task->last = 1;
    if (dpari_mpi_first_part(task, call->count) > 0 && !dpari_mpi_reserve(task, 1)) {
        return MPI_ERR_NO_MEM;
    }
    if (call->kind == DPAR_CALL_SEND) {
        return dpari_mpi_send_piece(task, task->ctx->main, call->tag, call->root, call->in,
                                    call->count);
    }
    return dpari_mpi_recv_piece(task, task->ctx->main, call->tag, call->root, call->out,
                                call->count);
}

/* ---- reductions that end on one rank or on all ---- */

/* Reduces n elements of the wide type from `in`, which may be `out`, to `out`, on all ranks or on
 * the root. */
static int dpari_mpi_reduce_call(dpari_mpi_task *task, const void *in, void *out, int64_t n)
{
    dpari_mpi_ctx *context = task->ctx;
    int32_t wide = dpari_mpi_wide(task->call.type);
    MPI_Datatype type = dpari_mpi_summand(wide, task->call.op);
    MPI_Op op = dpari_mpi_op(context->world, wide, task->call.op);
    const void *from = in == out && task->call.kind == DPAR_CALL_ALL_REDUCE ? MPI_IN_PLACE : in;
    if (task->call.kind == DPAR_CALL_ALL_REDUCE) {
        return DPARI_MPI_DO(task, MPI_Allreduce, MPI_Iallreduce, from, out, (dpari_mpi_count)n,
                            type, op, context->main);
    }
    return DPARI_MPI_DO(task, MPI_Reduce, MPI_Ireduce, from,
                        dpari_mpi_has_result(task) ? out : NULL, (dpari_mpi_count)n, type, op,
                        task->call.root, context->main);
}

/* Returns the input to pass to MPI. For an all-reduce MPI requires MPI_IN_PLACE on all ranks or on
 * none, while in dpar each rank may call in place or not. With Open MPI no rank uses it, because it
 * doubles the time (at 1 MiB); an input in place is copied. With MPICH, and the MPIs derived from
 * it, all ranks use it, because these begin with a copy to `out` in any case. A reduce never uses
 * it, because MPICH 4.0 crashes in MPI_Reduce. NULL if there is no memory. */
static const void *dpari_mpi_input(dpari_mpi_task *task, const void *in, void *out)
{
    int64_t bytes = dpari_mpi_bytes(task->call.type, task->len);
#if !defined(OPEN_MPI)
    if (task->call.kind == DPAR_CALL_ALL_REDUCE) {
        dpari_mpi_copy(out, in, bytes);
        return out;
    }
#endif
    return dpari_mpi_apart(task, in, out, bytes);
}

DPARI_INTERNAL int dpari_mpi_pieces(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const void *in;
    void *out = NULL;
    dpari_mpi_advance(task, call->count, dpari_mpi_most(call->type, call->op));
    if (dpari_mpi_has_result(task)) {
        out = dpari_mpi_at(call->out, call->type, task->at);
    }
    in = dpari_mpi_input(task, dpari_mpi_past(call->in, call->type, task->at), out);
    return in != NULL ? dpari_mpi_reduce_call(task, in, out, task->len) : MPI_ERR_NO_MEM;
}

DPARI_INTERNAL void dpari_mpi_pieces_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    if (call->op == DPAR_AVG && dpari_mpi_has_result(task)) {
        dpari_mpi_divide(call->type, dpari_mpi_at(call->out, call->type, task->at), task->len,
                         task->ctx->comm.size);
    }
}

static int64_t dpari_mpi_stage(const dpari_mpi_task *task)
{
    return dpari_least(task->call.count, dpari_least(DPARI_MPI_BLOCK, DPARI_MPI_LIMIT));
}

/* Returns where the sum of a block is stored: behind the block for a reduce, otherwise over it. */
static float *dpari_mpi_staged_sum(const dpari_mpi_task *task)
{
    return (float *)task->memory +
           (task->call.kind == DPAR_CALL_REDUCE ? dpari_mpi_stage(task) : 0);
}

DPARI_INTERNAL int dpari_mpi_staged(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t most = dpari_mpi_stage(task);
    float *x = (float *)dpari_mpi_scratch(task, 2 * most * (int64_t)sizeof(float));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, call->count, most);
    dpari_mpi_convert(DPAR_F32, x, call->type, dpari_mpi_past(call->in, call->type, task->at),
                      task->len);
    return dpari_mpi_reduce_call(task, x, dpari_mpi_staged_sum(task), task->len);
}

DPARI_INTERNAL void dpari_mpi_staged_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    float *sum = dpari_mpi_staged_sum(task);
    if (!dpari_mpi_has_result(task)) {
        return;
    }
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(DPAR_F32, sum, task->len, task->ctx->comm.size);
    }
    dpari_mpi_convert(call->type, dpari_mpi_at(call->out, call->type, task->at), DPAR_F32, sum,
                      task->len);
}

/* ---- reduce_scatter ---- */

/* Sets task->counts to the elements of each piece in the current block. Returns 0 if there is no
 * memory. */
static int32_t dpari_mpi_block_counts(dpari_mpi_task *task)
{
    int32_t r, n = task->ctx->comm.size;
    if (task->counts == NULL) {
        task->counts = (dpari_mpi_count *)malloc((size_t)n * sizeof *task->counts);
    }
    for (r = 0; task->counts != NULL && r < n; r++) {
        task->counts[r] = (dpari_mpi_count)dpari_mpi_clamp(dpari_mpi_piece_of(&task->call, r),
                                                           task->at, task->len);
    }
    return task->counts != NULL;
}

static int dpari_mpi_scatter_call(dpari_mpi_task *task, const void *in, void *out)
{
    dpari_mpi_ctx *context = task->ctx;
    int32_t wide = dpari_mpi_wide(task->call.type);
    MPI_Datatype type = dpari_mpi_summand(wide, task->call.op);
    MPI_Op op = dpari_mpi_op(context->world, wide, task->call.op);
    if (task->call.variable_counts) {
        return DPARI_MPI_DO(task, MPI_Reduce_scatter, MPI_Ireduce_scatter, in, out, task->counts,
                            type, op, context->main);
    }
    return DPARI_MPI_DO(task, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, in, out,
                        (dpari_mpi_count)task->len, type, op, context->main);
}

/* True if the result lies within the input. The result is then computed in memory of the task and
 * copied, because MPI's in-place form stores it elsewhere. */
static int32_t dpari_mpi_out_in_in(const dpari_mpi_task *task)
{
    const char *in = (const char *)task->call.in, *out = (const char *)task->call.out;
    int64_t bytes =
        dpari_mpi_bytes(task->call.type, dpari_mpi_elements(&task->call, task->ctx->comm.size));
    return (uintptr_t)out >= (uintptr_t)in && (uintptr_t)out < (uintptr_t)in + (uintptr_t)bytes;
}

DPARI_INTERNAL int dpari_mpi_scatter(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t most = dpari_mpi_largest(call, task->ctx->comm.size);
    void *out = call->out;
    dpari_mpi_advance(task, most, most);
    if (call->variable_counts && !dpari_mpi_block_counts(task)) {
        return MPI_ERR_NO_MEM;
    }
    if (dpari_mpi_out_in_in(task)) {
        out = dpari_mpi_scratch(
            task, dpari_mpi_bytes(call->type, dpari_mpi_piece_of(call, task->ctx->comm.rank)));
        if (out == NULL) {
            return MPI_ERR_NO_MEM;
        }
    }
    return dpari_mpi_scatter_call(task, call->in, out);
}

DPARI_INTERNAL void dpari_mpi_scatter_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t n = dpari_mpi_piece_of(call, task->ctx->comm.rank);
    if (dpari_mpi_out_in_in(task)) {
        dpari_mpi_copy(call->out, task->memory, dpari_mpi_bytes(call->type, n));
    }
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(call->type, call->out, n, task->ctx->comm.size);
    }
}

/* Returns the elements of one block of each piece. The scratch memory holds these blocks, packed
 * and in the wide type, and the result behind them. */
static int64_t dpari_mpi_staged_block(const dpari_mpi_task *task)
{
    int32_t n = task->ctx->comm.size;
    int64_t most = dpari_least(DPARI_MPI_BLOCK, DPARI_MPI_LIMIT) / n;
    return dpari_least(most < 1 ? 1 : most, dpari_mpi_largest(&task->call, n));
}

static void *dpari_mpi_staged_result(const dpari_mpi_task *task)
{
    return dpari_mpi_at(task->memory, dpari_mpi_wide(task->call.type),
                        dpari_mpi_staged_block(task) * task->ctx->comm.size);
}

DPARI_INTERNAL int dpari_mpi_scatter_staged(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int32_t r, n = task->ctx->comm.size, wide = dpari_mpi_wide(call->type);
    int64_t block = dpari_mpi_staged_block(task), begin = 0, packed = 0;
    void *x = dpari_mpi_scratch(task, dpari_mpi_bytes(wide, block * (n + 1)));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, dpari_mpi_largest(call, n), block);
    if (!dpari_mpi_block_counts(task)) {
        return MPI_ERR_NO_MEM;
    }
    for (r = 0; r < n; r++) {
        dpari_mpi_convert(wide, dpari_mpi_at(x, wide, packed), call->type,
                          dpari_mpi_past(call->in, call->type, begin + task->at), task->counts[r]);
        packed += task->counts[r];
        begin += dpari_mpi_piece_of(call, r);
    }
    return dpari_mpi_scatter_call(task, x, dpari_mpi_staged_result(task));
}

DPARI_INTERNAL void dpari_mpi_scatter_staged_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t n = task->counts[task->ctx->comm.rank];
    void *x = dpari_mpi_staged_result(task);
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(dpari_mpi_wide(call->type), x, n, task->ctx->comm.size);
    }
    dpari_mpi_convert(call->type, dpari_mpi_at(call->out, call->type, task->at),
                      dpari_mpi_wide(call->type), x, n);
}
