/* SPDX-License-Identifier: MIT-0 */
/* made_memory - private: the memory of a descriptor in _make and _free functions. dpar_spatial.h
 * uses it, too. */
#ifndef DPARI_TRAIN_MADE_MEMORY_H
#define DPARI_TRAIN_MADE_MEMORY_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* True if closing the parts of an object was refused with DPAR_E_ARG, so that its _free must leave
 * the object as it is. On a broken communicator it was not refused, because st is then the status
 * of the communicator, which may also be DPAR_E_ARG. */
DPARI_FN int dpari_made_refused(const dpar_comm *c, dpar_status st)
{
    return st == DPAR_E_ARG && c->status == DPAR_OK;
}

/* Ends a _free: frees `memory` unless it is NULL, and returns st. */
DPARI_API dpar_status dpari_made_end(dpar_status st, void *memory);
/* Provides memory for the struct of an object. If the descriptor has memory NULL and bytes 0,
 * allocates zeroed memory, which dpari_made_end frees. Otherwise *memory becomes desc.memory, or
 * the call fails with DPAR_E_ROOM if that has fewer than `need` bytes, is NULL or is not aligned to
 * 64. Local; ranks agree afterwards. module: the first word of the message. */
DPARI_API dpar_status dpari_made_memory(dpar_comm *c, void *given, int64_t bytes, int64_t need,
                                        const char *module, void **memory, dpar_why *why);
/* Ends a _make that failed with st on all ranks: frees `memory` unless the caller gave it, and with
 * DPAR_E_ROOM stores in why->bytes how many bytes this rank needs. Returns st. */
DPARI_API dpar_status dpari_made_failed(dpar_status st, const void *given, void *memory,
                                        int64_t need, dpar_why *why);

#endif
