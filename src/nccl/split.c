/* SPDX-License-Identifier: MIT-0 */
/* Splits a communicator. The ranks first exchange colors and keys over page-locked memory, from
 * which each computes its new communicator's ranks; this also waits for everything that was
 * enqueued before. Then all call ncclCommSplit, which is polled until the deadline. */
#include "split.h"

#include "../base/arith.h"
#include "../base/type.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "communicator.h"
#include "failure.h"
#include "host_memory.h"
#include "messages.h"
#include "settle.h"
#include "state.h"
#include "world.h"

typedef struct dpari_nccl_row {
    int32_t color, key;
    int32_t world;
} dpari_nccl_row;

/* Gathers `bytes` from each rank into `all`, which already holds this rank's bytes at their
 * place. */
static dpar_status dpari_nccl_tell_all(dpari_nccl_ctx *context, char *all, int64_t bytes)
{
    dpar_call call;
    int32_t r;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_BARRIER;
    call.root = DPARI_SPLIT;
    call.type = DPAR_U8;
    for (r = 0; r < context->comm.size; r++) {
        context->piece[r].from = all + bytes * context->comm.rank;
        context->piece[r].to = all + bytes * r;
        context->piece[r].give = context->piece[r].take = bytes;
    }
    return dpari_nccl_host_move(context, &call);
}

/* True if rank a comes before rank b in the new communicator, if both have the same color. */
static int dpari_nccl_row_before(const dpari_nccl_row *row, int32_t a, int32_t b)
{
    return row[a].key < row[b].key || (row[a].key == row[b].key && a < b);
}

/* Locked. Waits for an NCCL call that makes a communicator of the context's ranks. The new one
 * exists only once the context's own communicator is no longer in progress, whatever the call
 * returned. */
static ncclResult_t dpari_nccl_made(dpari_nccl_ctx *context, ncclResult_t code, ncclComm_t *to)
{
    if (code == ncclSuccess || code == ncclInProgress) {
        code = dpari_nccl_settle(context);
    }
    if (code == ncclSuccess && context->made != NULL) {
        code = dpari_nccl_through(&context->world->api, context->made, &context->comm.status,
                                  context->comm.timeout_s);
    }
    *to = context->made;
    context->made = NULL;
    return code;
}

static dpar_status dpari_nccl_split_by_nccl(dpari_nccl_ctx *context, dpari_nccl_ctx *part,
                                            int32_t color, int32_t key)
{
    dpari_nccl_world *world = context->world;
    ncclConfig_t config;
    ncclComm_t made = NULL;
    ncclResult_t code = ncclInternalError;
    dpar_status status = DPAR_OK;
    dpari_nccl_config(world, &config);
    dpari_nccl_lock(world);
    if (context->nccl != NULL) {
        code = world->api.CommSplit(context->nccl, color < 0 ? -1 : (int)color, (int)key,
                                    &context->made, &config);
        code = dpari_nccl_made(context, code, &made);
    }
    if (part != NULL) {
        part->nccl = made;
        code = code == ncclSuccess && made == NULL ? ncclInternalError : code;
    }
    if (code == ncclInProgress) {
        dpar_why why;
        (void)dpari_say(DPAR_E_TIMEOUT, &why,
                        "split on rank %d of %d: NCCL did not finish it before the deadline",
                        context->comm.rank, context->comm.size);
        status = dpari_nccl_break(context, DPAR_E_TIMEOUT, why.text, 1);
    } else if (code != ncclSuccess) {
        status = dpari_nccl_failed(context, "split", code);
    }
    dpari_nccl_unlock(world);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_split(dpar_comm *comm, int32_t color, int32_t key,
                                            dpar_comm **out)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm), *part = NULL;
    dpari_nccl_world *world = context->world;
    const int32_t n = comm->size, me = comm->rank;
    dpari_nccl_row *row = (dpari_nccl_row *)calloc((size_t)n, sizeof *row);
    int32_t r, size = 0, rank = 0;
    dpar_status status;
    if (row == NULL) {
        return dpari_say(DPAR_E_MEMORY, &comm->why,
                         "split: no memory for the colors and keys of %d ranks (%ld bytes)", n,
                         n * (int64_t)sizeof *row);
    }
    row[me].color = color < 0 ? -1 : color;
    row[me].key = key;
    row[me].world = world->rank;
    dpari_nccl_flush(world);
    status =
        dpari_nccl_tell_all(context, (char *)row, (int64_t)sizeof *row); /* after this, everything
                                                                            that was enqueued before
                                                                            is done */
    for (r = 0; r < n && status >= 0; r++) {
        if (color >= 0 && row[r].color == color) {
            size++;
            rank += dpari_nccl_row_before(row, r, me);
        }
    }
    if (status >= 0 && color >= 0) {
        part = dpari_nccl_ctx_make(world, rank, size);
        if (part == NULL) {
            status = dpari_nccl_ctx_missing(&comm->why, "split", size);
        }
    }
    for (r = 0; r < n && status >= 0 && part != NULL; r++) {
        if (row[r].color == color) {
            int32_t at = 0, q;
            for (q = 0; q < n; q++) {
                at += row[q].color == color && dpari_nccl_row_before(row, q, r);
            }
            part->member[at] = row[r].world;
        }
    }
    free(row);
    context->splits++;
    if (part != NULL) {
        part->name = dpari_nccl_name(context, context->splits, part);
    }
    if (status >= 0) {
        status = dpari_nccl_split_by_nccl(context, part, color, key);
    }
    if (status < 0) {
        if (part != NULL) {
            dpari_nccl_ctx_free(part);
        }
        return status;
    }
    if (part != NULL) {
        part->comm.timeout_s = comm->timeout_s;
        dpari_nccl_join(part);
    }
    *out = part != NULL ? &part->comm : NULL;
    return DPAR_OK;
}
