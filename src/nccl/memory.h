/* SPDX-License-Identifier: MIT-0 */
/* memory - private: device memory from dpar_comm_alloc. */
#ifndef DPARI_NCCL_MEMORY_H
#define DPARI_NCCL_MEMORY_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "state.h"

/* Locked. Adds memory to the world's list. Returns NULL if there is no host memory. */
DPARI_INTERNAL dpari_nccl_memory *dpari_nccl_note_memory(dpari_nccl_ctx *context, void *at);

/* Allocates zeroed device memory: from ncclMemAlloc, whose memory can be registered in every way,
 * or from cudaMalloc. */
DPARI_INTERNAL dpar_status dpari_nccl_alloc(dpar_comm *comm, int64_t bytes, void **memory);
/* Locked. Ends the registrations of memory, and frees it if it is from dpar_comm_alloc. */
DPARI_INTERNAL void dpari_nccl_memory_end(dpari_nccl_world *world, dpari_nccl_memory *memory);
/* Locked. Removes an entry from the world's list. */
DPARI_INTERNAL void dpari_nccl_forget(dpari_nccl_world *world, dpari_nccl_memory *memory);

/* Frees memory from dpar_comm_alloc and ends its registrations. First waits for everything that was
 * enqueued. */
DPARI_INTERNAL void dpari_nccl_release(dpar_comm *comm, void *memory);

/* True if the memory can become a window. Only memory from ncclMemAlloc can: for other memory NCCL
 * returns an error, which may not be the case on all ranks. */
DPARI_INTERNAL int dpari_nccl_windows(const dpari_nccl_ctx *context, const void *memory,
                                      int64_t bytes);

#endif
