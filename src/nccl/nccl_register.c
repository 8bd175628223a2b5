/* SPDX-License-Identifier: MIT-0 */
/* Registers memory from dpar_comm_alloc as a window if NCCL has windows, and other memory as a
 * buffer. The registration is added to the world's list (memory.c), so that closing the
 * communicator or releasing the memory ends it. */
#include "nccl_register.h"

#include "../base/arith.h"
#include "../comm/comm.h"
#include "failure.h"
#include "library.h"
#include "memory.h"
#include "messages.h"
#include "settle.h"
#include "state.h"

DPAR_API dpar_status dpar_nccl_register(dpar_comm *comm, void *memory, int64_t bytes)
{
    dpari_nccl_ctx *context;
    dpari_nccl_memory *m;
    const dpari_nccl_api *api;
    ncclResult_t code = ncclSuccess;
    dpar_status status = DPAR_OK;
    if (comm == NULL || memory == NULL || bytes < 1 || strcmp(comm->engine.name, "nccl") != 0) {
        return DPAR_E_ARG;
    }
    context = dpari_nccl_ctx_of(comm);
    api = &context->world->api;
    if (comm->status < 0 || api->CommRegister == NULL) {
        return comm->status;
    }
    dpari_nccl_flush(context->world);
    dpari_nccl_lock(context->world);
    m = context->nccl != NULL ? dpari_nccl_note_memory(context, memory) : NULL;
    if (m == NULL) {
        status = comm->status;
        if (status >= 0) {
            status = dpari_say(DPAR_E_MEMORY, &comm->why,
                               "dpar_nccl_register: no memory to record the registration (%ld "
                               "bytes)",
                               (int64_t)sizeof *m);
        }
        dpari_nccl_unlock(context->world);
        return status;
    }
    m->ctx = context;
    if (dpari_nccl_windows(context, memory, bytes)) {
        code = api->CommWindowRegister(context->nccl, memory, (size_t)bytes, &m->window,
                                       DPARI_NCCL_WIN_SYMMETRIC);
        if (code == ncclSuccess || code == ncclInProgress) {
            code = dpari_nccl_settle(context); /* the window exists only once NCCL has completed
                                                  this */
        }
    }
    if (code == ncclSuccess && m->window == NULL) {
        code = api->CommRegister(context->nccl, memory, (size_t)bytes, &m->handle);
        code = code == ncclInProgress ? dpari_nccl_settle(context) : code;
    }
    if (code != ncclSuccess) {
        status = dpari_nccl_failed(context, "registering memory", code);
        dpari_nccl_forget(context->world, m);
    }
    dpari_nccl_unlock(context->world);
    return status;
}
