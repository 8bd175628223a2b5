/* SPDX-License-Identifier: MIT-0 */
/* object_memory - private: the memory of an object that a _make function makes and a _free function
 * frees. The caller provides it (desc.memory, desc.bytes), or it is allocated here. Used by halos,
 * points, training and dpar_spatial.h. */
#ifndef DPARI_COMM_OBJECT_MEMORY_H
#define DPARI_COMM_OBJECT_MEMORY_H

#include "../base/arith.h"
#include "comm.h"

/* True if closing the parts of an object was refused with DPAR_E_ARG, so that its _free must leave
 * the object unchanged. On a broken communicator DPAR_E_ARG is not a refusal but may be the status
 * of the communicator. */
DPARI_FN int dpari_object_refused(const dpar_comm *comm, dpar_status st)
{
    return st == DPAR_E_ARG && comm->status == DPAR_OK;
}

/* Allocates zeroed memory of the host at a multiple of 64. It comes from dpar_comm_alloc, so that
 * closing comm's world frees it too. If comm->mem is a device or comm is NULL, it consists of pages
 * of the host. Returns NULL if there is no memory. dpari_object_release frees it; NULL is
 * allowed. */
DPARI_API void *dpari_object_alloc(dpar_comm *comm, int64_t bytes);
DPARI_API void dpari_object_release(void *memory);
/* Ends a _free: releases `memory` unless it is NULL, and returns st. */
DPARI_API dpar_status dpari_object_end(dpar_status st, void *memory);
/* Provides memory for the struct of an object. If the descriptor has memory NULL and bytes 0,
 * allocates it with dpari_object_alloc. Otherwise *memory becomes desc.memory, or the call fails
 * with DPAR_E_ROOM if that has fewer than `need` bytes, is NULL or is not aligned to 64. Local; the
 * caller must then call dpari_agree. module: the first word of the message. */
DPARI_API dpar_status dpari_object_memory(dpar_comm *comm, void *given, int64_t bytes, int64_t need,
                                          const char *module, void **memory, dpar_why *why);
/* Ends a _make that failed with st on all ranks: releases `memory` unless the caller gave it, and
 * with DPAR_E_ROOM stores in why->bytes how many bytes this rank needs, even if only another rank
 * has too few. Returns st. */
DPARI_API dpar_status dpari_object_failed(dpar_status st, const void *given, void *memory,
                                          int64_t need, dpar_why *why);

#endif
