/* SPDX-License-Identifier: MIT-0 */
/* Polls NCCL. Communicators do not block, so that a call may return ncclInProgress; it is complete
 * when ncclCommGetAsyncError returns something else. A poll first only yields the core, and later
 * sleeps. */
#include "settle.h"

#include "../base/arith.h"
#include "../comm/os.h"
#include "library.h"
#include "state.h"

DPARI_INTERNAL void dpari_nccl_nap(void)
{
    dpari_os_sleep(20e-6);
}

/* Called between two polls: first yields the core, and after 1000 polls sleeps. */
static void dpari_nccl_breathe(int32_t looks)
{
    if (looks < 1000) {
        (void)sched_yield();
    } else {
        dpari_nccl_nap();
    }
}

DPARI_INTERNAL ncclResult_t dpari_nccl_through(const dpari_nccl_api *api, ncclComm_t nccl,
                                               const dpar_status *broken, double timeout_s)
{
    dpari_stopwatch watch = {0, 0};
    int32_t looks = 0;
    for (;;) {
        ncclResult_t code = ncclSuccess;
        if (api->CommGetAsyncError(nccl, &code) != ncclSuccess) {
            return ncclInternalError;
        }
        if (code != ncclInProgress) {
            return code;
        }
        if (broken != NULL && DPARI_LOAD(broken) < 0) {
            return ncclInternalError;
        }
        if (timeout_s > 0 && dpari_os_waited(&watch) > timeout_s) {
            return ncclInProgress;
        }
        dpari_nccl_breathe(looks++);
    }
}

DPARI_INTERNAL int dpari_nccl_unnamed(dpari_nccl_ctx *context, ncclResult_t said)
{
    const double now = dpari_os_now();
    if (said != ncclRemoteError || context->world->side.links == 0) {
        return 0;
    }
    context->remote = context->remote > 0 ? context->remote : now;
    return now - context->remote < 1.5 * (double)(int)DPARI_NCCL_GRACE;
}

DPARI_INTERNAL ncclResult_t dpari_nccl_settle(dpari_nccl_ctx *context)
{
    dpari_nccl_world *world = context->world;
    const int watched = world->watched && world->entering != NULL; /* the watchdog then checks the
                                                                      deadline of the operation */
    dpari_stopwatch watch = {0, 0};
    int32_t looks = 0;
    for (;;) {
        ncclResult_t code = ncclSuccess;
        if (context->nccl == NULL || DPARI_LOAD(&context->comm.status) < 0 ||
            world->api.CommGetAsyncError(context->nccl, &code) != ncclSuccess) {
            return ncclInternalError;
        }
        if ((code != ncclInProgress && !dpari_nccl_unnamed(context, code)) ||
            (!watched && context->comm.timeout_s > 0 &&
             dpari_os_waited(&watch) > context->comm.timeout_s)) {
            return code;
        }
        dpari_nccl_unlock(world);
        dpari_nccl_breathe(looks++);
        dpari_nccl_lock(world);
    }
}
