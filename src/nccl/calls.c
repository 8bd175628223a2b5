/* SPDX-License-Identifier: MIT-0 */
/* Posts, tests and waits. A collective is enqueued when it is posted; a message only joins the list
 * of pending ones, which is enqueued as a group at the next collective, batch, test or wait.
 * Waiting makes the compute stream wait for the operation's event; only barriers and messages on
 * host memory make the thread wait. */
#include "calls.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/batch_now.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "collective.h"
#include "failure.h"
#include "host_memory.h"
#include "messages.h"
#include "operation.h"
#include "state.h"

/* True if dpar_wait has to block, because this thread needs the result: of a barrier, or of a
 * message on host memory. */
static int dpari_nccl_blocks(const dpar_work *work)
{
    return dpari_nccl_letter_of(work) != NULL || work->call.kind == DPAR_CALL_BARRIER;
}

/* Enqueues a work that is still pending. Returns the status of the work if it has ended, otherwise
 * that of the communicator. */
static dpar_status dpari_nccl_enqueued(dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    if (work->phase == DPARI_NCCL_PENDING) {
        dpari_nccl_flush(context->world);
    }
    if (work->comm == NULL) {
        return work->status;
    }
    return DPARI_LOAD(&context->comm.status);
}

/* Removes from the list of pending messages one that failed before it was enqueued. */
static void dpari_nccl_drop(dpari_nccl_ctx *context, dpar_work *work)
{
    dpar_work **at = &context->pending, *before = NULL;
    while (*at != NULL && *at != work) {
        before = *at;
        at = &(*at)->next;
    }
    if (*at == work) {
        *at = work->next;
        context->newest = context->newest == work ? before : context->newest;
    }
}

static dpar_status dpari_nccl_lone(dpari_nccl_ctx *context)
{
    return dpari_nccl_refuse(context, DPAR_E_ARG,
                             "a message to this rank itself would wait for ever, because its other "
                             "side is not posted");
}

DPARI_INTERNAL dpar_status dpari_nccl_test(dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    dpari_nccl_slot *slot;
    cudaError_t code;
    dpar_status status = dpari_nccl_enqueued(work);
    if (work->comm == NULL) {
        return status;
    }
    if (status < 0) {
        dpari_nccl_drop(context, work);
        dpari_nccl_finish(work, status);
        return status;
    }
    if (work->phase == DPARI_NCCL_PENDING) {
        return DPAR_MORE;
    }
    slot = dpari_nccl_slot_of(work);
    if (slot->capture) {
        return dpari_nccl_refuse(context, DPAR_E_ARG,
                                 "dpar_test: work that is being captured in a graph cannot be "
                                 "tested: call dpar_wait in the same capture");
    }
    code = dpari_nccl_query(slot->done);
    if (code == cudaErrorNotReady) {
        return DPAR_MORE;
    }
    status = code == cudaSuccess ? (dpar_status)DPAR_OK
                                 : dpari_nccl_cuda_broke(context, "testing an operation", code);
    dpari_nccl_finish(work, status);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_wait(dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    dpar_status status = dpari_nccl_enqueued(work);
    dpari_nccl_slot *slot;
    if (work->comm == NULL) {
        return status;
    }
    if (status >= 0 && work->phase == DPARI_NCCL_PENDING) {
        status = dpari_nccl_lone(context);
    }
    if (status < 0) {
        dpari_nccl_drop(context, work);
        dpari_nccl_finish(work, status);
        return status;
    }
    slot = dpari_nccl_slot_of(work);
    if (dpari_nccl_blocks(work) && !slot->capture) {
        status = dpari_nccl_await(slot);
    } else {
        cudaError_t code = cudaStreamWaitEvent(context->world->options.stream, slot->done, 0);
        if (code != cudaSuccess) {
            status = dpari_nccl_cuda_broke(context, "waiting for an operation", code);
        }
    }
    dpari_nccl_finish(work, status);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_slot *slot = NULL;
    dpar_status status;
    int32_t place;
    if (dpari_kind_sends(call->kind)) {
        return dpari_nccl_pend(context, call, work);
    }
    place = dpari_nccl_place(context, call);
    status = place < 0 ? (dpar_status)place : dpari_nccl_can(context, call, place);
    if (status < 0) {
        return status;
    }
    dpari_nccl_flush(context->world);
    if (place == DPARI_NCCL_HOST) {
        status = dpari_nccl_host(context, call);
        work->status = status;
        work->phase = DPARI_NCCL_FINISHED;
        return status;
    }
    status = dpari_nccl_collective(context, call, &slot);
    if (status < 0) {
        return status;
    }
    work->comm = comm;
    work->call = *call;
    work->status = DPAR_MORE;
    work->phase = DPARI_NCCL_ENQUEUED;
    work->sequence = slot->sequence;
    dpari_nccl_keep(work, slot);
    dpari_nccl_set_letter(work, NULL);
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_run_call(dpar_comm *comm, const dpar_call *call)
{
    dpar_work work;
    dpar_status status;
    memset(&work, 0, sizeof work);
    status = dpari_nccl_post(comm, call, &work);
    return status < 0 || work.comm == NULL ? status : dpari_nccl_wait(&work);
}

DPARI_INTERNAL dpar_status dpari_nccl_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                            dpar_work *works)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpar_status status = DPAR_OK;
    int32_t i, posted = 0;
    if (works == NULL) {
        return dpari_batch_now(comm, calls, n);
    }
    dpari_nccl_flush(context->world);
    for (i = 0; i < n && status >= 0; i++) {
        status = dpari_nccl_pend(context, &calls[i], &works[i]);
        posted += status >= 0;
    }
    if (status >= 0) {
        return dpari_nccl_flush_one(context);
    }
    for (i = 0; i < posted; i++) { /* no call of the batch is enqueued */
        dpari_nccl_drop(context, &works[i]);
        dpari_nccl_finish(&works[i], status);
    }
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_progress(dpar_comm *comm, int32_t on)
{
    (void)comm;
    (void)on;
    return DPAR_OK; /* the device advances without calls of the host */
}

DPARI_INTERNAL void dpari_nccl_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    (void)dpari_nccl_broke(dpari_nccl_ctx_of(comm), status, text);
}
