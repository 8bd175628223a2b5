/* SPDX-License-Identifier: MIT-0 */
/* Runs collectives on host memory. Every operation is an all-to-all of pieces (dpari_nccl_pieces),
 * in rounds whose chunks fit into page-locked memory: the first half of it is sent, the second half
 * is received, and the host copies between it and the user's memory. Reductions receive the inputs
 * of all ranks and add them by the loops of the shared-memory engine (../host/kernel.h). */
#include "host_memory.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../host/kernel.h"
#include "collective.h"
#include "operation.h"
#include "run.h"
#include "state.h"

/* Returns where memory is. Memory that the device reaches (its own, page-locked or managed) counts
 * as device memory. */
static int32_t dpari_nccl_where(const void *at)
{
    struct cudaPointerAttributes a;
    if (at == NULL) {
        return DPARI_NCCL_NOWHERE;
    }
    if (cudaPointerGetAttributes(&a, at) != cudaSuccess) {
        (void)cudaGetLastError();
        return DPARI_NCCL_HOST;
    }
    return a.type == cudaMemoryTypeUnregistered ? DPARI_NCCL_HOST : DPARI_NCCL_DEVICE;
}

DPARI_INTERNAL int32_t dpari_nccl_place(dpari_nccl_ctx *context, const dpar_call *call)
{
    int32_t in = dpari_call_has_in(&context->comm, call) ? dpari_nccl_where(call->in)
                                                         : (int32_t)DPARI_NCCL_NOWHERE;
    int32_t out = dpari_call_has_out(&context->comm, call) ? dpari_nccl_where(call->out)
                                                           : (int32_t)DPARI_NCCL_NOWHERE;
    if (in != DPARI_NCCL_NOWHERE && out != DPARI_NCCL_NOWHERE && in != out) {
        return dpari_wrong(&context->comm.why,
                           "%s: in and out must be both host memory or both device memory",
                           dpar_call_name(call->kind));
    }
    if (in != DPARI_NCCL_NOWHERE) {
        return in;
    }
    return out != DPARI_NCCL_NOWHERE ? out : (int32_t)DPARI_NCCL_DEVICE;
}

/* Exchanges up to `chunk` bytes of each piece, from byte `at` on, and waits for the exchange. The
 * first half of the staging memory holds what is sent, and the second half what is received. */
static dpar_status dpari_nccl_host_round(dpari_nccl_ctx *context, const dpar_call *call, int64_t at,
                                         int64_t chunk)
{
    dpari_nccl_run x;
    dpar_status status = DPAR_OK;
    dpari_nccl_slot *slot = dpari_nccl_begin(context, call, &status);
    const int32_t n = context->comm.size, me = context->comm.rank;
    char *out = context->world->staging, *in = context->world->staging + chunk * n;
    int32_t r;
    if (slot == NULL) {
        return status;
    }
    if (at > 0) {
        slot->sequence = --context->sequence - 1; /* several rounds are one operation */
        context->ring[slot->number % DPARI_RECORDS].sequence = slot->sequence;
    }
    dpari_nccl_run_init(&x, context, call);
    dpari_nccl_open(&x);
    for (r = 0; r < n; r++) {
        const dpari_nccl_piece *p = &context->piece[r];
        const int64_t give = dpari_nccl_rest(p->give, at, chunk);
        const int64_t take = dpari_nccl_rest(p->take, at, chunk);
        if (give > 0) {
            memcpy((r == me ? in : out) + r * chunk, p->from + at, (size_t)give);
        }
        if (r != me) {
            dpari_nccl_send_bytes(&x, out + r * chunk, give, r);
            dpari_nccl_recv_bytes(&x, in + r * chunk, take, r);
        }
    }
    dpari_nccl_shut(&x);
    status = dpari_nccl_end(slot, 1, dpari_nccl_result(&x));
    if (status < 0) {
        return status;
    }
    status = dpari_nccl_await(slot);
    dpari_nccl_let_go(context->world, slot);
    return status;
}

static int64_t dpari_nccl_chunk(const dpari_nccl_ctx *context)
{
    return context->world->options.staging_bytes / (2 * context->comm.size) / 64 * 64;
}

/* Returns the length of this rank's longest piece, in bytes. */
static int64_t dpari_nccl_longest(const dpari_nccl_ctx *context)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < context->comm.size; r++) {
        most = context->piece[r].give > most ? context->piece[r].give : most;
        most = context->piece[r].take > most ? context->piece[r].take : most;
    }
    return most;
}

DPARI_INTERNAL dpar_status dpari_nccl_host_move(dpari_nccl_ctx *context, const dpar_call *call)
{
    const int64_t chunk = dpari_nccl_chunk(context), most = dpari_nccl_longest(context);
    dpar_status status = DPAR_OK;
    int64_t at;
    int32_t r;
    for (at = 0; (at == 0 || at < most) && status >= 0; at += chunk) {
        status = dpari_nccl_host_round(context, call, at, chunk);
        for (r = 0; r < context->comm.size && status >= 0; r++) {
            const dpari_nccl_piece *p = &context->piece[r];
            const int64_t n = dpari_nccl_rest(p->take, at, chunk);
            if (n > 0) {
                memcpy(p->to + at, context->world->staging + (context->comm.size + r) * chunk,
                       (size_t)n);
            }
        }
    }
    return status;
}

/* Receives all ranks' versions of this rank's part, and adds them in rank order into `to`. */
static dpar_status dpari_nccl_host_add(dpari_nccl_ctx *context, const dpar_call *call, char *to)
{
    const int64_t chunk = dpari_nccl_chunk(context), most = dpari_nccl_longest(context);
    const int32_t unit = dpar_type_bytes(call->type);
    dpar_status status = DPAR_OK;
    int64_t at;
    int32_t r;
    for (at = 0; (at == 0 || at < most) && status >= 0; at += chunk) {
        const int64_t n = dpari_nccl_rest(context->piece[context->comm.rank].take, at, chunk);
        void *out = n > 0 ? to + at : NULL;
        status = dpari_nccl_host_round(context, call, at, chunk);
        for (r = 0; r < context->comm.size; r++) {
            context->parts[r] = context->world->staging + (context->comm.size + r) * chunk;
        }
        if (status >= 0 && n > 0) {
            dpari_kern_reduce(&out, 1, context->parts, context->comm.size, n / unit, call->type,
                              call->op, 0);
        }
    }
    return status;
}

/* Reduces host memory, with the same bits as the engine for shared memory. A short all-reduce sends
 * the whole input to all ranks. A longer one sends each part to the rank that adds it, and the sums
 * from there to all. */
static dpar_status dpari_nccl_host_reduce(dpari_nccl_ctx *context, const dpar_call *call)
{
    const int64_t unit = dpar_type_bytes(call->type);
    const int32_t n = context->comm.size, me = context->comm.rank;
    const int whole =
        call->kind == DPAR_CALL_ALL_REDUCE && call->count * unit <= dpari_nccl_chunk(context);
    int64_t own_begin = 0, own = dpari_nccl_part(context, call, me, &own_begin);
    char *out = NULL; /* where this rank's part of the result is stored */
    dpar_status status;
    int32_t r;
    own = whole ? call->count : own;
    own_begin = whole ? 0 : own_begin;
    for (r = 0; r < n; r++) {
        int64_t begin = 0, part = dpari_nccl_part(context, call, r, &begin);
        dpari_nccl_piece *p = &context->piece[r];
        begin = whole ? 0 : begin;
        p->give = (whole ? call->count : part) * unit;
        p->from = p->give > 0 ? (const char *)call->in + begin * unit : NULL;
        p->take = own * unit;
        p->to = NULL;
    }
    if (own > 0) {
        out = (char *)call->out;
        if (call->kind == DPAR_CALL_ALL_REDUCE) {
            out += own_begin * unit;
        }
    }
    status = dpari_nccl_host_add(context, call, out);
    if (status < 0 || call->kind != DPAR_CALL_ALL_REDUCE || whole) {
        return status;
    }
    for (r = 0; r < n; r++) {
        int64_t begin = 0, part = dpari_nccl_part(context, call, r, &begin);
        dpari_nccl_piece *p = &context->piece[r];
        p->give = own * unit;
        p->from = (const char *)call->out + own_begin * unit;
        p->take = part * unit;
        p->to = (char *)call->out + begin * unit;
    }
    context->sequence--; /* both steps are one operation */
    return dpari_nccl_host_move(context, call);
}

DPARI_INTERNAL dpar_status dpari_nccl_host(dpari_nccl_ctx *context, const dpar_call *call)
{
    if (dpari_kind_reduces(call->kind)) {
        return dpari_nccl_host_reduce(context, call);
    }
    dpari_nccl_pieces(context, call);
    return dpari_nccl_host_move(context, call);
}
