/* SPDX-License-Identifier: MIT-0 */
/* Ends waits for ranks that will not come. Behind the flags in lent memory are as many words of
 * value 1. Copying them over the flags, on a stream of their own, lets every wait return. */
#include "lent_flags.h"

#include "../base/arith.h"
#include "state.h"

enum { DPARI_NCCL_SETS = 4 }; /* of flags behind lent memory: lent_memory.c says why */

DPARI_INTERNAL int64_t dpari_nccl_flag_bytes(const dpari_nccl_ctx *context)
{
    return DPARI_NCCL_SETS * 4 * (int64_t)context->comm.size;
}

DPARI_INTERNAL void dpari_nccl_free_waits(dpari_nccl_world *world)
{
    const dpari_nccl_memory *memory;
    uint32_t left = 0;
    for (memory = world->memory; memory != NULL && world->freeing != NULL; memory = memory->next) {
        if (memory->near != NULL && memory->ctx != NULL && memory->ctx->comm.status < 0) {
            const int64_t bytes = dpari_nccl_flag_bytes(memory->ctx);
            char *at = (char *)memory->memory + memory->flags;
            (void)cudaMemcpyAsync(at, at + bytes, (size_t)bytes, cudaMemcpyDefault, world->freeing);
            left |= world->flying != NULL;
        }
    }
    DPARI_STORE(&world->frees, left);
}
