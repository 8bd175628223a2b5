/* SPDX-License-Identifier: MIT-0 */
/* Reduces by this engine's own messages, in three ways: a small input is gathered by all ranks, a
 * small all-reduce of many ranks doubles the groups that share a sum, and in a large reduction each
 * rank adds one piece of each block. The inputs are stored as rows in the order of ranks and added
 * by the loops of the shared-memory engine (../host/kernel.h), so that all ranks get the same bits.
 * levels.c uses the same functions with the nodes in place of the ranks. */
#include "rank_order.h"

#include "../host/kernel.h"
#include "exchange_v.h"
#include "mpi_types.h"
#include "task_messages.h"
#include "tasks.h"

DPARI_INTERNAL void dpari_mpi_reduce_rows(dpari_mpi_task *task, void *out, int64_t stride,
                                          int64_t n)
{
    const void **rows = task->ctx->rows;
    int32_t r;
    for (r = 0; r < task->ranks; r++) {
        rows[r] = dpari_mpi_past(task->memory, task->call.type, r * stride);
    }
    dpari_kern_reduce(&out, 1, rows, task->ranks, n, task->call.type, task->op, 0);
}

/* True if in a small all-reduce each rank sends a message to each other rank. MPI's own posted
 * collectives take 1.3 to 5 times as long. */
static int32_t dpari_mpi_each_to_each(const dpari_mpi_task *task)
{
    return task->call.kind != DPAR_CALL_REDUCE && task->ranks <= DPARI_MPI_DIRECT && !task->block;
}

DPARI_INTERNAL int dpari_mpi_gathered(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_ctx *context = task->ctx;
    MPI_Datatype type = dpari_mpi_by_bytes(dpar_type_bytes(call->type));
    dpari_mpi_count n = (dpari_mpi_count)task->elements;
    void *x = dpari_mpi_scratch(task, dpari_mpi_bytes(call->type, task->elements * task->ranks));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    task->last = 1;
    if (dpari_mpi_each_to_each(task)) {
        return dpari_mpi_trade_each(task, x, NULL, task->in, 0, task->elements);
    }
    if (call->kind == DPAR_CALL_ALL_REDUCE) {
        return DPARI_MPI_DO(task, MPI_Allgather, MPI_Iallgather, call->in, n, type, x, n, type,
                            context->main);
    }
    return DPARI_MPI_DO(task, MPI_Gather, MPI_Igather, call->in, n, type, x, n, type, call->root,
                        context->main);
}

DPARI_INTERNAL void dpari_mpi_gathered_land(dpari_mpi_task *task)
{
    if (dpari_mpi_has_result(task)) {
        dpari_mpi_reduce_rows(task, task->out, task->elements, task->elements);
    }
}

/* ---- a small all-reduce of many ranks: recursive doubling ----
 *
 * Let p = 2^k be the largest power of two up to n. In round 0 each rank from p on sends its input
 * to a rank below p. In rounds i = 1 to k, each rank below p exchanges its partial sum with the
 * rank whose number differs in bit i - 1, so that after round i each group of 2^i ranks has its
 * sum. In round k + 1 each rank from p on gets the result from the rank to which it sent. Both
 * ranks of a pair add in rank order, so that all end with the same bits. */

/* Returns k, the logarithm of the largest power of two up to n. */
static int32_t dpari_mpi_rounds(int32_t n)
{
    int32_t k = 0;
    while (2 << k <= n) {
        k++;
    }
    return k;
}

/* Returns the rank with which this one exchanges in this round, or -1. Sets *sends and *gets to 1
 * if this rank sends and receives, otherwise to 0. */
static int32_t dpari_mpi_partner(const dpari_mpi_task *task, int32_t *sends, int32_t *gets)
{
    const int32_t k = dpari_mpi_rounds(task->ranks), p = 1 << k, spare = task->me >= p;
    const int32_t first = task->round == 0, last = task->round == k + 1;
    int32_t other = task->me - p;
    if (!spare) {
        other = first || last ? task->me + p : task->me ^ 1 << (task->round - 1);
    }
    *sends = spare ? first : !first;
    *gets = spare ? last : !last;
    return other < task->ranks && (!spare || first || last) ? other : -1;
}

DPARI_INTERNAL int dpari_mpi_doubling(dpari_mpi_task *task)
{
    const int64_t bytes = dpari_mpi_bytes(task->call.type, task->elements);
    const int32_t k = dpari_mpi_rounds(task->ranks), spare = task->ranks - (1 << k);
    int32_t other, sends, gets;
    int64_t take, give;
    void *to = dpari_mpi_scratch(task, bytes);
    if (to == NULL || !dpari_mpi_reserve(task, 2)) {
        return MPI_ERR_NO_MEM;
    }
    if (task->round == 0) {
        dpari_mpi_copy(task->out, task->in, bytes);
        task->round = spare == 0;
    }
    task->last = task->round == k + (spare > 0);
    other = dpari_mpi_partner(task, &sends, &gets);
    to = task->round == k + 1 ? task->out : to;
    if (other < 0) {
        return MPI_SUCCESS;
    }
    take = gets ? task->elements : 0;
    give = sends ? task->elements : 0;
    return dpari_mpi_trade(task, other, to, take, task->out, give);
}

DPARI_INTERNAL void dpari_mpi_doubling_land(dpari_mpi_task *task)
{
    const int32_t k = dpari_mpi_rounds(task->ranks);
    int32_t sends, gets, other = dpari_mpi_partner(task, &sends, &gets);
    if (other >= 0 && gets && task->round <= k) {
        const void *both[2];
        both[other < task->me] = task->out;
        both[other > task->me] = task->memory;
        dpari_kern_reduce(&task->out, 1, both, 2, task->elements, task->call.type,
                          task->op == DPAR_AVG ? DPAR_SUM : task->op, 0);
    }
    if (task->op == DPAR_AVG && task->round == k && task->me < 1 << k) {
        dpari_mpi_divide(task->call.type, task->out, task->elements, task->ranks);
    }
    task->round++;
}

/* ---- a large reduction: each rank adds a piece ---- */

DPARI_INTERNAL int64_t dpari_mpi_cut(int64_t len, int32_t r, int32_t n)
{
    return r >= n ? len : len / n * r + dpari_least(r, len % n);
}

/* Returns the distance, in elements, between the ranks' inputs for this rank's piece in the scratch
 * memory. Behind them there is space for the result. */
static int64_t dpari_mpi_stride(const dpari_mpi_task *task)
{
    return task->len / task->ranks + 1;
}

/* Returns where this rank's reduced piece of the block is stored. */
static void *dpari_mpi_ordered_result(const dpari_mpi_task *task)
{
    if (dpari_mpi_has_result(task)) {
        return dpari_mpi_at(task->out, task->call.type,
                            task->at + dpari_mpi_cut(task->len, task->me, task->ranks));
    }
    return dpari_mpi_at(task->memory, task->call.type, dpari_mpi_stride(task) * task->ranks);
}

/* Runs the first half of a block: each rank receives its piece from all ranks. */
static int dpari_mpi_ordered_out(dpari_mpi_task *task)
{
    const int32_t n = task->ranks, type = task->call.type;
    int64_t own = dpari_mpi_cut(task->len, task->me + 1, n) - dpari_mpi_cut(task->len, task->me, n);
    int32_t r;
    int code = MPI_SUCCESS;
    for (r = 0; r < n && code == MPI_SUCCESS; r++) {
        int64_t cut = dpari_mpi_cut(task->len, r, n),
                len = dpari_mpi_cut(task->len, r + 1, n) - cut;
        const void *from = dpari_mpi_past(task->in, type, task->at + cut);
        void *row = dpari_mpi_at(task->memory, type, r * dpari_mpi_stride(task));
        if (r == task->me) {
            dpari_mpi_copy(row, from, dpari_mpi_bytes(type, len));
        } else {
            code = dpari_mpi_trade(task, r, row, own, from, len);
        }
    }
    return code;
}

/* Runs the second half of a block: the reduced pieces are sent to all ranks, or to the root. */
static int dpari_mpi_ordered_back(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const int32_t n = task->ranks, here = dpari_mpi_has_result(task);
    int64_t own = dpari_mpi_cut(task->len, task->me + 1, n) - dpari_mpi_cut(task->len, task->me, n);
    void *mine = dpari_mpi_ordered_result(task);
    int32_t r;
    int code = MPI_SUCCESS;
    for (r = 0; r < n && code == MPI_SUCCESS; r++) {
        int64_t cut = dpari_mpi_cut(task->len, r, n),
                len = dpari_mpi_cut(task->len, r + 1, n) - cut;
        const int32_t wants = call->kind != DPAR_CALL_REDUCE || r == call->root;
        if (r != task->me) {
            void *to = here ? dpari_mpi_at(task->out, call->type, task->at + cut) : NULL;
            const int64_t take = here ? len : 0;
            const int64_t give = wants ? own : 0;
            code = dpari_mpi_trade(task, r, to, take, mine, give);
        }
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_ordered(dpari_mpi_task *task)
{
    int64_t most = dpari_least(task->elements, DPARI_MPI_BLOCK);
    const int32_t n = task->ranks;
    if (task->sharing) {
        task->last = task->at + task->len >= task->elements;
        return dpari_mpi_ordered_back(task);
    }
    if (!dpari_mpi_reserve(task, 2 * n) ||
        dpari_mpi_scratch(task, dpari_mpi_bytes(task->call.type, (most / n + 1) * (n + 1))) ==
            NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, task->elements, DPARI_MPI_BLOCK);
    task->last = 0;
    return dpari_mpi_ordered_out(task);
}

DPARI_INTERNAL void dpari_mpi_ordered_land(dpari_mpi_task *task)
{
    if (!task->sharing) {
        dpari_mpi_reduce_rows(task, dpari_mpi_ordered_result(task), dpari_mpi_stride(task),
                              dpari_mpi_cut(task->len, task->me + 1, task->ranks) -
                                  dpari_mpi_cut(task->len, task->me, task->ranks));
    }
    task->sharing = !task->sharing;
}

static int64_t dpari_mpi_ordered_block(const dpari_mpi_task *task)
{
    int32_t n = task->ctx->comm.size;
    int64_t most = DPARI_MPI_BLOCK / n;
    return dpari_least(most < 1 ? 1 : most, dpari_mpi_largest(&task->call, n));
}

DPARI_INTERNAL int dpari_mpi_ordered_scatter(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int32_t r, n = task->ctx->comm.size, me = task->ctx->comm.rank, code = MPI_SUCCESS;
    int64_t block = dpari_mpi_ordered_block(task), begin = 0, own;
    if (!dpari_mpi_reserve(task, 2 * n) ||
        dpari_mpi_scratch(task, dpari_mpi_bytes(call->type, block * n)) == NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, dpari_mpi_largest(call, n), block);
    own = dpari_mpi_clamp(dpari_mpi_piece_of(call, me), task->at, task->len);
    for (r = 0; r < n && code == MPI_SUCCESS; r++) {
        int64_t len = dpari_mpi_clamp(dpari_mpi_piece_of(call, r), task->at, task->len);
        const void *from = dpari_mpi_past(call->in, call->type, begin + task->at);
        void *row = dpari_mpi_at(task->memory, call->type, r * block);
        begin += dpari_mpi_piece_of(call, r);
        if (r == me) {
            dpari_mpi_copy(row, from, dpari_mpi_bytes(call->type, len));
        } else {
            code = dpari_mpi_trade(task, r, row, own, from, len);
        }
    }
    return code;
}

DPARI_INTERNAL void dpari_mpi_ordered_scatter_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t own =
        dpari_mpi_clamp(dpari_mpi_piece_of(call, task->ctx->comm.rank), task->at, task->len);
    dpari_mpi_reduce_rows(task, dpari_mpi_at(call->out, call->type, task->at),
                          dpari_mpi_ordered_block(task), own);
}
