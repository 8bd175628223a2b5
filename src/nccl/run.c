/* SPDX-License-Identifier: MIT-0 */
/* Calls NCCL for an operation and keeps the first error, so that the callers need not check each
 * call: after an error, all further calls do nothing. A call that NCCL has not completed yet is
 * polled (settle.c), except in a group, whose end is polled instead. */
#include "run.h"

#include "../base/arith.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "failure.h"
#include "settle.h"
#include "state.h"

DPARI_INTERNAL int dpari_nccl_well(const dpari_nccl_run *run)
{
    return run->code == ncclSuccess && run->cuda == cudaSuccess && run->status >= 0;
}

DPARI_INTERNAL void dpari_nccl_took(dpari_nccl_run *run, ncclResult_t code, int grouped)
{
    if (grouped && code == ncclInProgress) {
        return;
    }
    if (code == ncclInProgress || code == ncclRemoteError) {
        const ncclResult_t then = dpari_nccl_settle(run->c);
        code = code == ncclInProgress || then != ncclSuccess ? then : code;
    }
    if (run->code == ncclSuccess) {
        run->code = code;
    }
}

DPARI_INTERNAL void dpari_nccl_open(dpari_nccl_run *run)
{
    if (dpari_nccl_well(run)) {
        dpari_nccl_took(run, run->api->GroupStart(), 1);
        run->grouped = run->code == ncclSuccess;
    }
}

DPARI_INTERNAL void dpari_nccl_shut(dpari_nccl_run *run)
{
    if (run->grouped) { /* a group is closed also after an error in it */
        run->grouped = 0;
        dpari_nccl_took(run, run->api->GroupEnd(), 0);
    }
}

DPARI_INTERNAL void dpari_nccl_send_bytes(dpari_nccl_run *run, const void *from, int64_t bytes,
                                          int32_t to)
{
    if (bytes > 0 && dpari_nccl_well(run)) {
        dpari_nccl_took(
            run, run->api->Send(from, (size_t)bytes, ncclUint8, (int)to, run->c->nccl, run->stream),
            1);
    }
}

DPARI_INTERNAL void dpari_nccl_recv_bytes(dpari_nccl_run *run, void *to, int64_t bytes,
                                          int32_t from)
{
    if (bytes > 0 && dpari_nccl_well(run)) {
        dpari_nccl_took(
            run, run->api->Recv(to, (size_t)bytes, ncclUint8, (int)from, run->c->nccl, run->stream),
            1);
    }
}

DPARI_INTERNAL void dpari_nccl_copy(dpari_nccl_run *run, void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && to != from && dpari_nccl_well(run)) {
        run->cuda = cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, run->stream);
    }
}

DPARI_INTERNAL void dpari_nccl_run_init(dpari_nccl_run *run, dpari_nccl_ctx *context,
                                        const dpar_call *call)
{
    memset(run, 0, sizeof *run);
    run->c = context;
    run->api = &context->world->api;
    run->call = call;
    run->stream = context->world->stream;
    run->unit = dpar_type_bytes(call->type);
    run->code = ncclSuccess;
    run->cuda = cudaSuccess;
}

DPARI_INTERNAL dpar_status dpari_nccl_result(const dpari_nccl_run *run)
{
    char words[100];
    dpar_text t;
    if (dpari_nccl_well(run)) {
        return run->c->comm.status;
    }
    dpar_text_init(&t, words, sizeof words);
    dpari_operation_text(&t, run->call->kind, run->c->sequence - 1, run->call->type,
                         run->call->count, run->call->root, run->call->tag);
    if (run->code != ncclSuccess) {
        return dpari_nccl_failed(run->c, words, run->code);
    }
    if (run->cuda != cudaSuccess) {
        return dpari_nccl_cuda_failed(run->c, words, run->cuda);
    }
    return dpari_nccl_break(run->c, run->status,
                            "reduce_mem failed to add up a reduction in rank order", 1);
}
