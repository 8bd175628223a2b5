/* SPDX-License-Identifier: MIT-0 */
/* Enqueues collectives on device memory.
 *
 * NCCL's own collectives are used where they exist. What NCCL lacks is composed: forms with
 * different counts from a group of sends and receives, of broadcasts or of reductions; an
 * all-to-all in place from blocks that are received into scratch memory; and reductions in rank
 * order from an all-to-all of blocks, which reduce_mem adds, and broadcasts of the sums. Data that
 * is only moved is sent as bytes. */
#include "collective.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../host/elements.h"
#include "../comm/engine.h"
#include "../comm/pair.h"
#include "../host/mem.h"
#include "operation.h"
#include "run.h"
#include "state.h"

static ncclDataType_t dpari_nccl_type(int32_t type)
{
    switch (type) {
    case DPAR_F64: return ncclFloat64;
    case DPAR_F32: return ncclFloat32;
    case DPAR_BF16: return (ncclDataType_t)9; /* ncclBfloat16, which only C++ has before 2.24 */
    case DPAR_F16: return ncclFloat16;
    case DPAR_I8: return ncclInt8;
    case DPAR_I32: return ncclInt32;
    case DPAR_U32: return ncclUint32;
    case DPAR_I64: return ncclInt64;
    case DPAR_U64: return ncclUint64;
    default: return ncclUint8;
    }
}

static ncclRedOp_t dpari_nccl_op(int32_t op)
{
    switch (op) {
    case DPAR_AVG: return ncclAvg;
    case DPAR_PRODUCT: return ncclProd;
    case DPAR_MAX: return ncclMax;
    case DPAR_MIN: return ncclMin;
    default: return ncclSum;
    }
}

DPARI_INTERNAL void dpari_nccl_pieces(dpari_nccl_ctx *context, const dpar_call *call)
{
    const int64_t unit = dpar_type_bytes(call->type);
    dpari_pair one;
    int32_t r;
    memset(&one, 0, sizeof one);
    for (r = 0; r < context->comm.size; r++) {
        dpari_nccl_piece *p = &context->piece[r];
        dpari_pair_next(&context->comm, call, r, &one);
        p->give = one.give > 0 ? one.give * unit : 0;
        p->take = one.take > 0 ? one.take * unit : 0;
        p->from = p->give > 0 ? (const char *)call->in + one.from * unit : NULL;
        p->to = p->take > 0 ? (char *)call->out + one.to * unit : NULL;
    }
}

/* Enqueues a group with a send to and a receive from each rank, and copies this rank's piece for
 * itself. */
static void dpari_nccl_exchange(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    const int32_t me = context->comm.rank;
    int32_t r;
    dpari_nccl_pieces(context, run->call);
    dpari_nccl_open(run);
    for (r = 0; r < context->comm.size; r++) {
        if (r != me) {
            dpari_nccl_send_bytes(run, context->piece[r].from, context->piece[r].give, r);
            dpari_nccl_recv_bytes(run, context->piece[r].to, context->piece[r].take, r);
        }
    }
    dpari_nccl_shut(run);
    dpari_nccl_copy(run, context->piece[me].to, context->piece[me].from, context->piece[me].give);
}

/* Returns the bytes of scratch memory for one rank's part of a block. */
static int64_t dpari_nccl_block(const dpari_nccl_ctx *context)
{
    const int64_t most = context->world->options.scratch_bytes / context->comm.size;
    return most / (8 * DPARI_NCCL_LIMIT) * (8 * DPARI_NCCL_LIMIT);
}

DPARI_INTERNAL int64_t dpari_nccl_rest(int64_t bytes, int64_t at, int64_t block)
{
    const int64_t rest = bytes - at;
    if (rest < 0) {
        return 0;
    }
    return rest < block ? rest : block;
}

/* True if this rank receives from each rank as much as it sends to it. Only then does in == out
 * mean an operation in place, because a rank that sends nothing may pass any `in`. */
static int dpari_nccl_swaps(dpari_nccl_ctx *context, const dpar_call *call)
{
    int32_t r;
    dpari_nccl_pieces(context, call);
    for (r = 0; r < context->comm.size && context->piece[r].give == context->piece[r].take; r++) {
    }
    return r == context->comm.size;
}

/* Runs an all_to_all in place: receives a block of each piece into scratch memory, and then copies
 * it over the block that was sent. */
static void dpari_nccl_exchange_in_place(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    char *scratch = context->world->scratch;
    const int64_t block = dpari_nccl_block(context);
    int64_t at, most = 0;
    int32_t r;
    dpari_nccl_pieces(context, run->call);
    for (r = 0; r < context->comm.size; r++) {
        most = r != context->comm.rank && context->piece[r].give > most ? context->piece[r].give
                                                                        : most;
    }
    for (at = 0; at < most && dpari_nccl_well(run); at += block) {
        dpari_nccl_open(run);
        for (r = 0; r < context->comm.size; r++) {
            const int64_t n =
                r == context->comm.rank ? 0 : dpari_nccl_rest(context->piece[r].give, at, block);
            dpari_nccl_send_bytes(run, context->piece[r].from + at, n, r);
            dpari_nccl_recv_bytes(run, scratch + r * block, n, r);
        }
        dpari_nccl_shut(run);
        for (r = 0; r < context->comm.size; r++) {
            const int64_t n =
                r == context->comm.rank ? 0 : dpari_nccl_rest(context->piece[r].give, at, block);
            dpari_nccl_copy(run, context->piece[r].to + at, scratch + r * block, n);
        }
    }
}

DPARI_INTERNAL int64_t dpari_nccl_part(const dpari_nccl_ctx *context, const dpar_call *call,
                                       int32_t r, int64_t *begin)
{
    const int64_t n = call->count / context->comm.size, more = call->count % context->comm.size;
    int32_t i;
    if (call->kind == DPAR_CALL_ALL_REDUCE) {
        *begin = n * r + (r < more ? r : more);
        return n + (r < more);
    }
    if (call->kind == DPAR_CALL_REDUCE) {
        *begin = 0;
        return r == call->root ? call->count : 0;
    }
    *begin = call->variable_counts ? 0 : call->count * r;
    for (i = 0; call->variable_counts && i < r; i++) {
        *begin += call->in_count[i];
    }
    return call->variable_counts ? call->in_count[r] : call->count;
}

static void dpari_nccl_add_block(dpari_nccl_run *run, void *to, const void *from, int64_t count,
                                 int64_t stride)
{
    const dpar_mem *adds = run->c->world->options.reduce_mem;
    dpar_mem_reduce sum;
    if (count == 0 || !dpari_nccl_well(run)) {
        return;
    }
    memset(&sum, 0, sizeof sum);
    sum.to = to;
    sum.from = from;
    sum.count = count;
    sum.parts = run->c->comm.size;
    sum.stride = stride;
    sum.to_type = sum.from_type = run->call->type;
    sum.sum_type = run->call->type == DPAR_F64 ? (int32_t)DPAR_F64 : (int32_t)DPAR_F32;
    sum.op = run->call->op;
    sum.scale = 1;
    run->status = adds->reduce(adds->ctx, &sum);
}

static void dpari_nccl_add(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    const int32_t n = context->comm.size, me = context->comm.rank;
    const char *in = (const char *)run->call->in;
    char *scratch = context->world->scratch, *out = (char *)run->call->out;
    const int64_t block = dpari_nccl_block(context);
    int64_t at, most = 0, own_begin,
                own = dpari_nccl_part(context, run->call, me, &own_begin) * run->unit;
    int32_t r;
    for (r = 0; r < n; r++) {
        int64_t begin, part = dpari_nccl_part(context, run->call, r, &begin) * run->unit;
        most = part > most ? part : most;
    }
    out += run->call->kind == DPAR_CALL_ALL_REDUCE ? own_begin * run->unit : 0;
    for (at = 0; at < most && dpari_nccl_well(run); at += block) {
        const int64_t mine = dpari_nccl_rest(own, at, block);
        dpari_nccl_open(run);
        for (r = 0; r < n; r++) {
            int64_t begin, part = dpari_nccl_part(context, run->call, r, &begin) * run->unit;
            if (r != me) {
                dpari_nccl_send_bytes(run, in + begin * run->unit + at,
                                      dpari_nccl_rest(part, at, block), r);
                dpari_nccl_recv_bytes(run, scratch + r * block, mine, r);
            }
        }
        dpari_nccl_shut(run);
        dpari_nccl_copy(run, scratch + me * block, in + own_begin * run->unit + at, mine);
        dpari_nccl_add_block(run, out + at, scratch, mine / run->unit, block / run->unit);
    }
}

/* Sends all parts of `out` to all ranks. */
static void dpari_nccl_share(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    char *out = (char *)run->call->out;
    int32_t r;
    dpari_nccl_open(run);
    for (r = 0; r < context->comm.size; r++) {
        int64_t begin, n = dpari_nccl_part(context, run->call, r, &begin);
        if (n > 0 && dpari_nccl_well(run)) {
            char *at = out + begin * run->unit;
            dpari_nccl_took(run,
                            run->api->Broadcast(at, at, (size_t)(n * run->unit), ncclUint8, (int)r,
                                                context->nccl, run->stream),
                            1);
        }
    }
    dpari_nccl_shut(run);
}

static void dpari_nccl_reduce_exactly(dpari_nccl_run *run)
{
    dpari_nccl_add(run);
    if (run->call->kind == DPAR_CALL_ALL_REDUCE && run->c->comm.size > 1 && dpari_nccl_well(run)) {
        dpari_nccl_share(run);
    }
}

/* NCCL has no all-gather or reduce-scatter with pieces of different sizes. A group of broadcasts,
 * or of reductions, replaces them. */
static void dpari_nccl_by_piece(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    const dpar_call *call = run->call;
    const int32_t me = context->comm.rank;
    int32_t r;
    dpari_nccl_pieces(context, call);
    dpari_nccl_open(run);
    for (r = 0; r < context->comm.size && dpari_nccl_well(run); r++) {
        const dpari_nccl_piece *p = &context->piece[r];
        ncclResult_t code = ncclSuccess;
        int64_t begin, n = 0;
        if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
            n = dpari_nccl_part(context, call, r, &begin);
        }
        if (p->take > 0) {
            code = run->api->Broadcast(r == me ? call->in : p->to, p->to, (size_t)p->take,
                                       ncclUint8, (int)r, context->nccl, run->stream);
        } else if (n > 0) {
            code =
                run->api->Reduce((const char *)call->in + begin * run->unit,
                                 r == me ? call->out : NULL, (size_t)n, dpari_nccl_type(call->type),
                                 dpari_nccl_op(call->op), (int)r, context->nccl, run->stream);
        }
        dpari_nccl_took(run, code, 1);
    }
    dpari_nccl_shut(run);
}

static void dpari_nccl_reduce(dpari_nccl_run *run)
{
    const dpar_call *call = run->call;
    const dpari_nccl_api *api = run->api;
    const ncclDataType_t type = dpari_nccl_type(call->type);
    const ncclRedOp_t op = dpari_nccl_op(call->op);
    const size_t n = (size_t)call->count;
    ncclComm_t nccl = run->c->nccl;
    ncclResult_t code;
    if (call->kind == DPAR_CALL_ALL_REDUCE) {
        code = api->AllReduce(call->in, call->out, n, type, op, nccl, run->stream);
    } else if (call->kind == DPAR_CALL_REDUCE) {
        code = api->Reduce(call->in, call->out, n, type, op, (int)call->root, nccl, run->stream);
    } else {
        code = api->ReduceScatter(call->in, call->out, n, type, op, nccl, run->stream);
    }
    dpari_nccl_took(run, code, 0);
}

static void dpari_nccl_move(dpari_nccl_run *run)
{
    const dpar_call *call = run->call;
    const size_t n = (size_t)(call->count * run->unit);
    const int root = (int)call->root;
    ncclComm_t nccl = run->c->nccl;
    ncclResult_t code;
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
        code = run->api->Broadcast(call->in, call->out, n, ncclUint8, root, nccl, run->stream);
        break;
    case DPAR_CALL_ALL_GATHER:
        code = run->api->AllGather(call->in, call->out, n, ncclUint8, nccl, run->stream);
        break;
    case DPAR_CALL_GATHER:
        code = run->api->Gather(call->in, call->out, n, ncclUint8, root, nccl, run->stream);
        break;
    case DPAR_CALL_SCATTER:
        code = run->api->Scatter(call->in, call->out, n, ncclUint8, root, nccl, run->stream);
        break;
    default: code = run->api->AlltoAll(call->in, call->out, n, ncclUint8, nccl, run->stream); break;
    }
    dpari_nccl_took(run, code, 0);
}

static void dpari_nccl_enqueue(dpari_nccl_run *run)
{
    const dpar_call *call = run->call;
    const int32_t kind = call->kind, reduces = dpari_kind_reduces(kind);
    const int pairs =
        kind == DPAR_CALL_ALL_TO_ALL || kind == DPAR_CALL_GATHER || kind == DPAR_CALL_SCATTER;
    if (kind == DPAR_CALL_BARRIER) {
        char *word = run->c->world->scratch + run->c->world->options.scratch_bytes;
        dpari_nccl_took(
            run, run->api->AllReduce(word, word, 1, ncclInt32, ncclSum, run->c->nccl, run->stream),
            0);
    } else if (!call->variable_counts && call->count == 0) {
        return;
    } else if (reduces && run->c->world->options.rank_order && dpari_is_float(call->type)) {
        dpari_nccl_reduce_exactly(run);
    } else if (kind == DPAR_CALL_ALL_TO_ALL && call->in == call->out &&
               dpari_nccl_swaps(run->c, call)) {
        dpari_nccl_exchange_in_place(run);
    } else if (pairs && (call->variable_counts || run->api->AlltoAll == NULL)) {
        dpari_nccl_exchange(run);
    } else if (call->variable_counts) {
        dpari_nccl_by_piece(run);
    } else if (reduces) {
        dpari_nccl_reduce(run);
    } else {
        dpari_nccl_move(run);
    }
}

DPARI_INTERNAL dpar_status dpari_nccl_collective(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpari_nccl_slot **slot)
{
    dpari_nccl_run x;
    dpar_status status = DPAR_OK;
    dpari_nccl_slot *s = dpari_nccl_begin(context, call, &status);
    if (s == NULL) {
        return status;
    }
    dpari_nccl_run_init(&x, context, call);
    dpari_nccl_enqueue(&x);
    *slot = s;
    return dpari_nccl_end(s, 1, dpari_nccl_result(&x));
}
