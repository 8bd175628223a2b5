/* SPDX-License-Identifier: MIT-0 */
/* Makes and ends communicators. All calls of NCCL here are non-blocking and polled until the
 * deadline (settle.c). A communicator leaves its world before it is destroyed: its slots,
 * registrations and place in the list are removed with the lock held, so that the watchdog does not
 * see it any more. */
#include "communicator.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/engine.h"
#include "failure.h"
#include "library.h"
#include "memory.h"
#include "operation.h"
#include "settle.h"
#include "state.h"
#include "world.h"

DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_ctx_make(dpari_nccl_world *world, int32_t rank,
                                                   int32_t size)
{
    dpari_nccl_ctx *context = (dpari_nccl_ctx *)calloc(1, sizeof *context);
    if (context == NULL) {
        return NULL;
    }
    context->member = (int32_t *)calloc((size_t)size, sizeof *context->member);
    context->piece = (dpari_nccl_piece *)calloc((size_t)size, sizeof *context->piece);
    context->parts = (const void **)calloc((size_t)size, sizeof *context->parts);
    if (context->member == NULL || context->piece == NULL || context->parts == NULL) {
        free(context->member);
        free(context->piece);
        free(context->parts);
        free(context);
        return NULL;
    }
    context->world = world;
    context->comm.rank = rank;
    context->comm.size = size;
    context->comm.timeout_s = world->options.timeout_s;
    context->comm.mem = world->options.mem;
    context->comm.context = context;
    context->comm.engine = world->engine;
    return context;
}

DPARI_INTERNAL dpar_status dpari_nccl_ctx_missing(dpar_why *why, const char *doing, int32_t size)
{
    const int64_t each = sizeof(int32_t) + sizeof(dpari_nccl_piece) + sizeof(void *);
    return dpari_say(DPAR_E_MEMORY, why, "%s: no memory for a communicator of %d ranks (%ld bytes)",
                     doing, size, (int64_t)sizeof(dpari_nccl_ctx) + size * each);
}

DPARI_INTERNAL void dpari_nccl_join(dpari_nccl_ctx *context)
{
    dpari_nccl_ctx **at = &context->world->comms;
    dpari_nccl_lock(context->world);
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = context;
    dpari_nccl_unlock(context->world);
}

DPARI_INTERNAL void dpari_nccl_config(const dpari_nccl_world *world, ncclConfig_t *config)
{
    ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    *config = fresh;
    config->blocking = 0;
    if ((int32_t)config->version > world->api.version) {
        config->version =
            (unsigned)world->api.version; /* an older library reads only the fields that it knows */
    }
}

DPARI_INTERNAL uint64_t dpari_nccl_name(const dpari_nccl_ctx *context, int64_t number,
                                        const dpari_nccl_ctx *part)
{
    const uint64_t prime = UINT64_C(1099511628211); /* that of the FNV-1a hash */
    uint64_t h = (context->name ^ (uint64_t)number) * prime;
    int32_t r;
    for (r = 0; r < part->comm.size; r++) {
        h = (h ^ h >> 32 ^ (uint64_t)part->member[r]) * prime;
    }
    return h == 0 ? 1 : h;
}

/* On rank 0: writes "; not connected: ranks 2, 3" for up to 8 ranks that have never connected to
 * it. */
static void dpari_nccl_put_away(dpar_text *text, dpari_nccl_world *world)
{
    int32_t r, n = 0;
    for (r = 1; world->rank == 0 && r < world->side.links; r++) {
        if (world->side.link[r].state == DPARI_NCCL_AWAY) {
            if (n < 8) {
                dpari_text_say(text, "%s%d", n == 0 ? "; not connected: ranks " : ", ", r);
            }
            n++;
        }
    }
    dpar_text_put(text, n > 8 ? ", ..." : "");
}

/* Makes the world's NCCL communicator. */
static dpar_status dpari_nccl_init_rank(dpari_nccl_world *world, dpari_nccl_ctx *context,
                                        dpar_why *why)
{
    ncclConfig_t config;
    ncclResult_t code;
    dpar_text t;
    dpari_nccl_config(world, &config);
    code = world->api.CommInitRankConfig(&context->nccl, (int)world->size, world->side.card.id,
                                         (int)world->rank, &config);
    if ((code == ncclSuccess || code == ncclInProgress) && context->nccl != NULL) {
        code = dpari_nccl_through(&world->api, context->nccl, NULL, world->options.timeout_s);
    }
    if (code == ncclSuccess) {
        return DPAR_OK;
    }
    if (code == ncclInProgress && why != NULL) {
        dpari_text_why(&t, why);
        dpari_text_print(&t,
                         "making a communicator of %d ranks: not finished after %.3g s on rank %d",
                         world->size, world->options.timeout_s, world->rank);
        dpari_nccl_put_away(&t, world);
    } else if (code != ncclInProgress) {
        dpari_nccl_say(&world->api, why, "ncclCommInitRank", code);
    }
    if (context->nccl != NULL) {
        (void)world->api.CommAbort(context->nccl);
        context->nccl = NULL;
    }
    return code == ncclInProgress ? (dpar_status)DPAR_E_TIMEOUT : (dpar_status)DPAR_E_SYSTEM;
}

DPARI_INTERNAL dpar_status dpari_nccl_begin_world(dpari_nccl_world *world, dpari_nccl_ctx **out,
                                                  dpar_why *why)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_make(world, world->rank, world->size);
    dpar_status status;
    int32_t r;
    if (context == NULL) {
        return dpari_nccl_ctx_missing(why, "dpar_nccl_make", world->size);
    }
    for (r = 0; r < world->size; r++) {
        context->member[r] = r;
    }
    status = dpari_nccl_init_rank(world, context, why);
    if (status < 0) {
        dpari_nccl_ctx_free(context);
        return status;
    }
    dpari_nccl_join(context);
    *out = context;
    return DPAR_OK;
}

DPARI_INTERNAL int32_t dpari_nccl_leave(dpari_nccl_ctx *context)
{
    dpari_nccl_world *world = context->world;
    dpari_nccl_ctx **at = &world->comms;
    dpari_nccl_memory *memory;
    int32_t i, lost = 0;
    dpari_nccl_lock(world);
    for (i = 0; i < world->options.work_count; i++) {
        dpari_nccl_slot *slot = &world->slots[i];
        if (slot->ctx == context) {
            slot->ctx = NULL;
            lost += slot->works;
            if (slot->works > 0) {
                slot->works = 0;
                dpari_nccl_slot_free(world, slot);
            }
        }
    }
    while (*at != context && *at != NULL) {
        at = &(*at)->next;
    }
    if (*at == context) {
        *at = context->next;
    }
    for (memory = world->memory; memory != NULL; memory = memory->next) {
        if (memory->ctx == context) {
            dpari_nccl_memory kept = *memory;
            kept.owned = 0;
            dpari_nccl_memory_end(world, &kept);
            memory->ctx = NULL;
            memory->near = NULL;
        }
    }
    dpari_nccl_unlock(world);
    return lost;
}

/* Ends the context's NCCL communicator: regularly, or by an abort if it is broken or the regular
 * end fails. */
static void dpari_nccl_destroy(dpari_nccl_ctx *context)
{
    const dpari_nccl_api *api = &context->world->api;
    ncclComm_t nccl = context->nccl;
    ncclResult_t code;
    if (nccl == NULL) {
        return;
    }
    code = ncclInternalError;
    if (context->comm.status >= 0) {
        code = api->CommFinalize(nccl);
        if (code == ncclSuccess || code == ncclInProgress) {
            code = dpari_nccl_through(api, nccl, &context->comm.status, context->comm.timeout_s);
        }
    }
    if (code == ncclSuccess) {
        context->nccl = NULL;
        (void)api->CommDestroy(nccl);
    } else {
        dpari_nccl_abort_comm(context);
    }
}

DPARI_INTERNAL void dpari_nccl_retire(dpari_nccl_ctx *context)
{
    dpari_nccl_destroy(context);
    if (context->ends == 1) {
        dpari_on_end_all(&context->comm);
        context->next = context->world->closed;
        context->world->closed = context;
    } else {
        dpari_nccl_kept_free(dpari_ended_keep(&context->world->kept, &context->comm));
    }
}
