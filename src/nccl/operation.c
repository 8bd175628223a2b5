/* SPDX-License-Identifier: MIT-0 */
/* Enqueues operations between two events. The slots and their events are made once, with the world.
 * A slot is in the list of operations in progress until its `done` event was seen to be reached,
 * and is free again when, in addition, no work refers to it. The lock is held from dpari_nccl_begin
 * to dpari_nccl_end, so that operations of several communicators do not mix on the stream. */
#include "operation.h"

#include "../base/arith.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "../comm/record.h"
#include "failure.h"
#include "settle.h"
#include "state.h"

DPARI_INTERNAL cudaError_t dpari_nccl_query(cudaEvent_t event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t code;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    code = cudaEventQuery(event);
    (void)(code == cudaErrorNotReady ? cudaGetLastError() : cudaSuccess);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return code;
}

DPARI_INTERNAL int32_t dpari_nccl_capturing(const dpari_nccl_world *world)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(world->options.stream, &capture) == cudaSuccess &&
           capture != cudaStreamCaptureStatusNone;
}

static void dpari_nccl_record_ends(dpari_nccl_slot *slot, int32_t state)
{
    dpari_nccl_ctx *context = slot->ctx;
    if (context != NULL && slot->number + DPARI_RECORDS > context->records &&
        context->ring[slot->number % DPARI_RECORDS].state == DPAR_MORE) {
        context->ring[slot->number % DPARI_RECORDS].state = state;
    }
}

DPARI_INTERNAL void dpari_nccl_slot_free(dpari_nccl_world *world, dpari_nccl_slot *slot)
{
    if (slot->works == 0 && !slot->flying) {
        slot->next = world->spare;
        world->spare = slot;
    }
}

DPARI_INTERNAL void dpari_nccl_reap(dpari_nccl_world *world)
{
    while (world->flying != NULL) {
        dpari_nccl_slot *slot = world->flying;
        cudaError_t code = slot->capture ? cudaSuccess : dpari_nccl_query(slot->done);
        if (code == cudaErrorNotReady) {
            return;
        }
        if (code != cudaSuccess && slot->ctx != NULL) {
            (void)dpari_nccl_cuda_failed(slot->ctx, "an operation in progress", code);
        }
        dpari_nccl_record_ends(slot,
                               slot->ctx != NULL && slot->ctx->comm.status < 0 ? -1 : DPAR_OK);
        world->flying = slot->next;
        world->last = world->flying == NULL ? NULL : world->last;
        slot->flying = 0;
        dpari_nccl_slot_free(world, slot);
    }
}

/* Locked. Returns a free slot, or NULL with the error in *status. */
static dpari_nccl_slot *dpari_nccl_spare(dpari_nccl_ctx *context, dpar_status *status)
{
    dpari_nccl_world *world = context->world;
    dpari_nccl_slot *slot;
    for (;;) {
        *status = context->comm.status;
        if (*status < 0) {
            return NULL;
        }
        if (world->spare == NULL) {
            dpari_nccl_reap(world);
        }
        slot = world->spare;
        if (slot != NULL) {
            world->spare = slot->next;
            slot->next = NULL;
            return slot;
        }
        if (world->flying == NULL) {
            *status = dpari_say(DPAR_E_MEMORY, &context->comm.why,
                                "%d operations were posted and none of them waited for: wait for "
                                "some, or raise work_count of dpar_nccl_desc",
                                world->options.work_count);
            return NULL;
        }
        dpari_nccl_unlock(world);
        dpari_nccl_nap(); /* all are in progress, and the oldest ends first */
        dpari_nccl_lock(world);
    }
}

DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_begin(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpar_status *status)
{
    dpari_nccl_world *world = context->world;
    dpari_nccl_slot *slot;
    dpari_record *record;
    cudaError_t code;
    dpari_nccl_lock(world);
    slot = dpari_nccl_spare(context, status);
    if (slot == NULL) {
        dpari_nccl_unlock(world);
        return NULL;
    }
    slot->ctx = context;
    slot->call = *call;
    slot->messages = dpari_kind_sends(call->kind);
    slot->meets = 0;
    slot->sequence = slot->messages ? 0 : context->sequence++;
    slot->works = slot->flying = slot->told = 0;
    slot->since = -1;
    slot->number = context->records++;
    slot->capture = dpari_nccl_capturing(world);
    code = cudaEventRecord(slot->ready, world->options.stream);
    if (code == cudaSuccess) {
        code = cudaStreamWaitEvent(world->stream, slot->ready, 0);
    }
    if (code != cudaSuccess) {
        *status = dpari_nccl_cuda_failed(context, "waiting for the compute stream", code);
        dpari_nccl_slot_free(world, slot);
        dpari_nccl_unlock(world);
        return NULL;
    }
    record = &context->ring[slot->number % DPARI_RECORDS];
    *record = dpari_record_of(call, slot->sequence);
    record->state = DPAR_MORE;
    world->entering = slot;
    return slot;
}

DPARI_INTERNAL dpar_status dpari_nccl_end(dpari_nccl_slot *slot, int32_t works, dpar_status status)
{
    dpari_nccl_ctx *context = slot->ctx;
    dpari_nccl_world *world = context->world;
    cudaError_t code = cudaEventRecord(slot->done, world->stream);
    world->entering = NULL;
    if (code != cudaSuccess && status >= 0) {
        status = dpari_nccl_cuda_failed(context, "recording the event after an operation", code);
    }
    slot->works = status < 0 ? 0 : works;
    slot->flying = code == cudaSuccess;
    if (status < 0) {
        dpari_nccl_record_ends(slot, -1);
    }
    if (slot->flying) {
        if (world->last != NULL) {
            world->last->next = slot;
        } else {
            world->flying = slot;
        }
        world->last = slot;
    } else {
        dpari_nccl_slot_free(world, slot);
    }
    dpari_nccl_unlock(world);
    return status;
}

DPARI_INTERNAL void dpari_nccl_let_go(dpari_nccl_world *world, dpari_nccl_slot *slot)
{
    dpari_nccl_lock(world);
    slot->works--;
    dpari_nccl_slot_free(world, slot);
    dpari_nccl_unlock(world);
}

DPARI_INTERNAL dpar_status dpari_nccl_await(dpari_nccl_slot *slot)
{
    dpari_nccl_ctx *context = slot->ctx;
    const double limit = context->comm.timeout_s;
    dpari_stopwatch watch = {0, 0};
    int32_t polls = 0;
    for (;;) {
        cudaError_t code = dpari_nccl_query(slot->done);
        if (DPARI_LOAD(&context->comm.status) < 0) {
            return context->comm.status;
        }
        if (code == cudaSuccess) {
            return DPAR_OK;
        }
        if (code != cudaErrorNotReady) {
            return dpari_nccl_cuda_broke(context, "waiting for an operation", code);
        }
        polls++;
        if (polls < 200) {
            (void)sched_yield();
            continue;
        }
        dpari_nccl_nap();
        if (!context->world->watched && limit > 0 && dpari_os_waited(&watch) > limit) {
            return dpari_nccl_broke(
                context, DPAR_E_TIMEOUT,
                "an operation did not finish before the deadline (with no_watchdog the missing "
                "ranks are not known)");
        }
    }
}
