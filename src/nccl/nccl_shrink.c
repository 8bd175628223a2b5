/* SPDX-License-Identifier: MIT-0 */
/* Shrinks a communicator by ncclCommShrink. NCCL gets a list of the ranks that are gone, and aborts
 * the operations of a broken communicator itself. The new communicator belongs to the same world as
 * the old one. */
#include "nccl_shrink.h"

#include "../base/arith.h"
#include "../comm/comm.h"
#include "communicator.h"
#include "failure.h"
#include "library.h"
#include "settle.h"
#include "state.h"
#include "world.h"

/* Locked. Makes a communicator without the ranks that are gone. If the context is broken, NCCL may
 * still be revoking it, so this first waits for that. The new communicator exists only once the
 * context's own one is no longer in progress. */
static ncclResult_t dpari_nccl_shrink_to(dpari_nccl_ctx *context, int *gone, int32_t n,
                                         ncclComm_t *to, ncclConfig_t *config)
{
    const dpari_nccl_api *api = &context->world->api;
    const int flags = context->comm.status < 0 ? (int)DPARI_NCCL_SHRINK_ABORT : 0;
    ncclResult_t code = dpari_nccl_through(api, context->nccl, NULL, context->comm.timeout_s);
    if (code == ncclInProgress) {
        return code;
    }
    code = api->CommShrink(context->nccl, gone, (int)n, &context->made, config, flags);
    if (code == ncclSuccess || code == ncclInProgress) {
        code = dpari_nccl_through(api, context->nccl, NULL, context->comm.timeout_s);
    }
    if (code == ncclSuccess && context->made != NULL) {
        code = dpari_nccl_through(api, context->made, NULL, context->comm.timeout_s);
    }
    *to = context->made;
    context->made = NULL;
    return code;
}

DPAR_API dpar_status dpar_nccl_shrink(dpar_comm *comm, const int32_t *gone, int32_t n,
                                      dpar_comm **out, dpar_why *why)
{
    dpari_nccl_ctx *context, *part;
    dpari_nccl_world *world;
    ncclConfig_t config;
    ncclResult_t code;
    int32_t r, i = 0, rank = 0, at = 0;
    int *list;
    if (comm == NULL || out == NULL || gone == NULL || n < 1 ||
        strcmp(comm->engine.name, "nccl") != 0) {
        return dpari_wrong(
            why,
            "dpar_nccl_shrink: comm is not from dpar_nccl_make, gone is empty, or out is NULL");
    }
    context = dpari_nccl_ctx_of(comm);
    world = context->world;
    if (world->api.CommShrink == NULL || !world->options.elastic || context->nccl == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "dpar_nccl_shrink: needs NCCL 2.27 or later, and a communicator made with "
                         "elastic = 1");
    }
    for (r = 0; r < n; r++) {
        if (gone[r] < 0 || gone[r] >= comm->size || gone[r] == comm->rank ||
            (r > 0 && gone[r] <= gone[r - 1])) {
            return dpari_wrong(why,
                               "dpar_nccl_shrink: gone[%d] is %d, but gone must list ranks from 0 "
                               "to %d without this one, in ascending order",
                               r, gone[r], comm->size - 1);
        }
        rank += gone[r] < comm->rank;
    }
    part = dpari_nccl_ctx_make(world, comm->rank - rank, comm->size - n);
    list = (int *)calloc((size_t)n + 1, sizeof *list);
    if (part == NULL || list == NULL) {
        free(list);
        if (part != NULL) {
            dpari_nccl_ctx_free(part);
        }
        return dpari_nccl_ctx_missing(why, "dpar_nccl_shrink", comm->size - n);
    }
    for (r = 0; r < comm->size; r++) {
        if (i < n && gone[i] == r) {
            list[i++] = (int)r;
        } else {
            part->member[at++] = context->member[r];
        }
    }
    part->name = dpari_nccl_name(context, -1, part); /* -1, because ranks may have split a broken
                                                        communicator different numbers of times */
    dpari_nccl_config(world, &config);
    dpari_nccl_lock(world);
    code = dpari_nccl_shrink_to(context, list, n, &part->nccl, &config);
    dpari_nccl_unlock(world);
    free(list);
    if (code != ncclSuccess || part->nccl == NULL) {
        dpari_nccl_say(&world->api, why, "dpar_nccl_shrink",
                       code == ncclSuccess ? ncclInternalError : code);
        dpari_nccl_ctx_free(part);
        return code == ncclInProgress ? (dpar_status)DPAR_E_TIMEOUT : (dpar_status)DPAR_E_SYSTEM;
    }
    part->comm.timeout_s = comm->timeout_s;
    dpari_nccl_join(part);
    *out = &part->comm;
    return DPAR_OK;
}
