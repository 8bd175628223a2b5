/* SPDX-License-Identifier: MIT-0 */
/* Keeps a list of the device memory that was allocated or registered. An allocation is cleared, and
 * aligned to 4096 bytes, so that it can become a window of NCCL. Releasing it first waits for both
 * streams and for threads that abort communicators, because these deregister memory as well. */
#include "memory.h"

#include "../base/arith.h"
#include "../comm/comm.h"
#include "failure.h"
#include "library.h"
#include "state.h"

DPARI_INTERNAL dpari_nccl_memory *dpari_nccl_note_memory(dpari_nccl_ctx *context, void *at)
{
    dpari_nccl_memory *memory = (dpari_nccl_memory *)calloc(1, sizeof *memory);
    if (memory != NULL) {
        memory->memory = memory->base = at;
        memory->next = context->world->memory;
        context->world->memory = memory;
    }
    return memory;
}

DPARI_INTERNAL dpar_status dpari_nccl_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    const dpari_nccl_api *api = &context->world->api;
    const size_t whole = ((size_t)bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0);
    dpari_nccl_memory *m;
    void *at = NULL;
    cudaError_t code = cudaErrorMemoryAllocation;
    int32_t by_nccl = 0;
    int device = 0;
    if (bytes > INT64_MAX - 8192) {
        return dpari_say(DPAR_E_MEMORY, &comm->why,
                         "dpar_comm_alloc: %ld bytes are more than a device can have", bytes);
    }
    if (cudaGetDevice(&device) == cudaSuccess && device != context->world->device) {
        return dpari_wrong(&comm->why,
                           "dpar_comm_alloc: the communicator uses device %d, but device %d is "
                           "current in this thread: call cudaSetDevice",
                           context->world->device, (int32_t)device);
    }
    if (api->MemAlloc != NULL && api->MemAlloc(&at, whole) == ncclSuccess) {
        code = cudaSuccess;
        by_nccl = 1;
    } else {
        (void)cudaGetLastError();
        code = cudaMalloc(&at, whole + 4096);
    }
    if (code != cudaSuccess) {
        (void)dpari_nccl_cuda_says(&comm->why, "allocating device memory", code);
        return DPAR_E_MEMORY;
    }
    dpari_nccl_lock(context->world); /* the watchdog searches the list for lent memory */
    m = dpari_nccl_note_memory(context, at);
    dpari_nccl_unlock(context->world);
    if (m == NULL) {
        if (by_nccl) {
            (void)api->MemFree(at);
        } else {
            (void)cudaFree(at);
        }
        return dpari_say(DPAR_E_MEMORY, &comm->why,
                         "dpar_comm_alloc: no host memory to record the allocation (%ld bytes)",
                         (int64_t)sizeof *m);
    }
    m->owned = 1;
    m->bytes = whole;
    m->mem_alloc = by_nccl;
    m->memory = by_nccl ? at : (void *)((char *)at + (4096 - ((uintptr_t)at & 4095)) % 4096);
    code = cudaMemsetAsync(m->memory, 0, whole, context->world->stream);
    if (code == cudaSuccess) {
        code = cudaStreamSynchronize(context->world->stream);
    }
    if (code != cudaSuccess) {
        return dpari_nccl_cuda_broke(context, "clearing device memory", code);
    }
    *memory = m->memory;
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_nccl_memory_end(dpari_nccl_world *world, dpari_nccl_memory *memory)
{
    if (memory->ctx != NULL && memory->ctx->nccl != NULL) {
        if (memory->window != NULL) {
            (void)world->api.CommWindowDeregister(memory->ctx->nccl, memory->window);
        } else if (memory->handle != NULL) {
            (void)world->api.CommDeregister(memory->ctx->nccl, memory->handle);
        }
    }
    memory->ctx = NULL;
    if (memory->near != NULL) {
        (void)cudaStreamSynchronize(world->freeing); /* waits for the copies that set flags of
                                                        broken communicators */
    }
    free((void *)memory->near);
    memory->near = NULL;
    if (memory->owned && memory->mem_alloc) {
        (void)world->api.MemFree(memory->base);
    } else if (memory->owned) {
        (void)cudaFree(memory->base);
    }
}

DPARI_INTERNAL void dpari_nccl_forget(dpari_nccl_world *world, dpari_nccl_memory *memory)
{
    dpari_nccl_memory **at = &world->memory;
    while (*at != memory) {
        at = &(*at)->next;
    }
    *at = memory->next;
    free(memory);
}

DPARI_INTERNAL void dpari_nccl_release(dpar_comm *comm, void *memory)
{
    dpari_nccl_world *world = dpari_nccl_ctx_of(comm)->world;
    dpari_nccl_memory **at = &world->memory, *m;
    (void)cudaStreamSynchronize(world->stream);
    (void)cudaStreamSynchronize(world->options.stream);
    dpari_nccl_lock(world); /* deregistering calls NCCL with a communicator that the watchdog may
                           abort */
    dpari_nccl_join_aborts(world, world->closed);
    dpari_nccl_join_aborts(world, world->comms); /* the aborts deregister memory */
    while (*at != NULL) {
        m = *at;
        if (m->memory == memory) {
            *at = m->next;
            dpari_nccl_memory_end(world, m);
            free(m);
        } else {
            at = &m->next;
        }
    }
    dpari_nccl_unlock(world);
}

DPARI_INTERNAL int dpari_nccl_windows(const dpari_nccl_ctx *context, const void *memory,
                                      int64_t bytes)
{
    const uintptr_t at = (uintptr_t)memory;
    const dpari_nccl_memory *m;
    if (context->world->api.CommWindowRegister == NULL || bytes % 4096 != 0 || at % 4096 != 0) {
        return 0;
    }
    for (m = context->world->memory; m != NULL; m = m->next) {
        if (m->owned && m->mem_alloc && at >= (uintptr_t)m->memory &&
            at + (size_t)bytes <= (uintptr_t)m->memory + m->bytes) {
            return 1;
        }
    }
    return 0;
}
