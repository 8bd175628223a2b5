/* SPDX-License-Identifier: MIT-0 */
/* Breaks communicators. The first error is kept; it sets the status, wakes the watchdog, which
 * informs the other ranks, and ends NCCL's operations, so that the streams continue. NCCL's abort
 * runs in a thread of its own, and the communicator is freed once that thread has ended. */
#include "failure.h"

#include "../base/arith.h"
#include "../base/text.h"
#include "../comm/os.h"
#include "lent_flags.h"
#include "library.h"
#include "state.h"

DPARI_INTERNAL void dpari_nccl_say(const dpari_nccl_api *api, dpar_why *why, const char *doing,
                                   ncclResult_t code)
{
    const char *more = api->GetLastError != NULL ? api->GetLastError(NULL) : NULL;
    (void)dpari_say(DPAR_E_SYSTEM, why, "%s failed: NCCL says: %s", doing,
                    api->GetErrorString(code));
    if (why != NULL && more != NULL && more[0] != 0) {
        size_t n = strlen(why->text);
        dpar_text t;
        dpar_text_init(&t, why->text + n, sizeof why->text - n);
        dpar_text_put(&t, "; ");
        dpar_text_put(&t, more);
    }
}

DPARI_INTERNAL dpar_status dpari_nccl_cuda_says(dpar_why *why, const char *doing, cudaError_t code)
{
    (void)cudaGetLastError(); /* clears the error, so that the next call does not report it */
    return dpari_say(code == cudaErrorMemoryAllocation ? (dpar_status)DPAR_E_MEMORY
                                                       : (dpar_status)DPAR_E_SYSTEM,
                     why, "%s failed: CUDA says: %s", doing, cudaGetErrorString(code));
}

DPARI_INTERNAL dpar_status dpari_nccl_refuse(dpari_nccl_ctx *context, dpar_status status,
                                             const char *what)
{
    return dpari_repeat(status, &context->comm.why, what);
}

/* Wakes the watchdog, which informs the other ranks. */
static void dpari_nccl_tell_broken(dpari_nccl_ctx *context)
{
    if (context->world->watched) {
        (void)!write(context->world->wake[1], "", 1);
    }
}

static void *dpari_nccl_abort_now(void *arg)
{
    dpari_nccl_ctx *context = (dpari_nccl_ctx *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaSetDevice(context->world->device);
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* freeing must not end another's capture */
    (void)context->world->api.CommAbort(context->ended);
    return NULL;
}

DPARI_INTERNAL void dpari_nccl_abort_comm(dpari_nccl_ctx *context)
{
    context->ended = context->nccl;
    context->nccl = NULL;
    context->ends = 1;
    if (dpari_os_thread(&context->ending, dpari_nccl_abort_now, context) != 0) {
        context->ends = 0;
        (void)context->world->api.CommAbort(context->ended);
    }
}

DPARI_INTERNAL void dpari_nccl_join_aborts(dpari_nccl_world *world, dpari_nccl_ctx *list)
{
    dpari_nccl_ctx *context = list;
    while (context != NULL) {
        if (context->ends != 1) {
            context = context->next;
            continue;
        }
        context->ends = 2;
        dpari_nccl_unlock(world);
        dpari_os_join(context->ending);
        dpari_nccl_lock(world);
        context = list;
    }
}

/* Ends the NCCL operations of the context, so that the streams continue. The NCCL communicator
 * itself is kept in two cases: if the context is elastic, for dpar_nccl_shrink, and if it lends
 * memory, because NCCL maps that memory and kernels may be reading it. */
static void dpari_nccl_stop(dpari_nccl_ctx *context)
{
    const dpari_nccl_api *api = &context->world->api;
    ncclComm_t nccl = context->nccl;
    if (nccl == NULL) {
        return;
    }
    dpari_nccl_free_waits(context->world);
    if (context->lends || (context->world->options.elastic && api->CommShrink != NULL)) {
        if (api->CommRevoke != NULL) {
            (void)api->CommRevoke(nccl, 0);
        }
        return;
    }
    dpari_nccl_abort_comm(context);
}

DPARI_INTERNAL dpar_status dpari_nccl_break(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text, int32_t tell)
{
    if (DPARI_LOAD(&context->comm.status) < 0) {
        return context->comm.status;
    }
    (void)dpari_repeat(status, &context->comm.why, text);
    DPARI_STORE(&context->comm.status, status);
    context->told = !tell;
    if (tell) {
        dpari_nccl_tell_broken(context);
    }
    dpari_nccl_stop(context);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_failed(dpari_nccl_ctx *context, const char *doing,
                                             ncclResult_t code)
{
    dpar_why why;
    if (DPARI_LOAD(&context->comm.status) < 0) {
        return context->comm.status;
    }
    if (code == ncclInProgress) {
        (void)dpari_say(DPAR_E_TIMEOUT, &why,
                        "%s: not enqueued before the deadline, because not all ranks connected",
                        doing);
        return dpari_nccl_break(context, DPAR_E_TIMEOUT, why.text, 1);
    }
    dpari_nccl_say(&context->world->api, &why, doing, code);
    if (code == ncclInvalidArgument) {
        return dpari_nccl_refuse(context, DPAR_E_ARG, why.text);
    }
    return dpari_nccl_break(
        context, code == ncclRemoteError ? (dpar_status)DPAR_E_PEER : (dpar_status)DPAR_E_SYSTEM,
        why.text, 1);
}

DPARI_INTERNAL dpar_status dpari_nccl_cuda_failed(dpari_nccl_ctx *context, const char *doing,
                                                  cudaError_t code)
{
    dpar_why why;
    (void)dpari_nccl_cuda_says(&why, doing, code);
    return dpari_nccl_break(context, DPAR_E_SYSTEM, why.text, 1);
}

DPARI_INTERNAL dpar_status dpari_nccl_broke(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text)
{
    dpari_nccl_lock(context->world);
    status = dpari_nccl_break(context, status, text, 1);
    dpari_nccl_unlock(context->world);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_cuda_broke(dpari_nccl_ctx *context, const char *doing,
                                                 cudaError_t code)
{
    dpar_status status;
    dpari_nccl_lock(context->world);
    status = dpari_nccl_cuda_failed(context, doing, code);
    dpari_nccl_unlock(context->world);
    return status;
}
