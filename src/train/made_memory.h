/* SPDX-License-Identifier: MIT-0 */
/* made_memory - private: what a _make does with the memory of its descriptor. dpar_spatial.h calls
 * it too. */
#ifndef DPARI_TRAIN_MADE_MEMORY_H
#define DPARI_TRAIN_MADE_MEMORY_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* True if the close of an object's parts refused, so that its _free leaves it as it is. A broken
 * communicator never refuses: it hands its own status on, which may be DPAR_E_ARG too. */
DPARI_FN int dpari_made_refused(const dpar_comm *c, dpar_status st)
{
    return st == DPAR_E_ARG && c->status == DPAR_OK;
}

/* Ends a _free: frees `memory` unless it is NULL, and returns st. */
DPARI_API dpar_status dpari_made_end(dpar_status st, void *memory);
/* Provides the bookkeeping of an object that a _make makes. If the descriptor has memory NULL and
 * bytes 0, *memory becomes memory of its own, zeroed, which dpari_made_end frees. Otherwise it
 * becomes desc.memory, or the call fails with DPAR_E_ROOM if that has fewer than `need` bytes, is
 * NULL or is not aligned to 64. Local: ranks agree afterwards. module: what the message begins
 * with. */
DPARI_API dpar_status dpari_made_memory(dpar_comm *c, void *given, int64_t bytes, int64_t need,
                                        const char *module, void **memory, dpar_why *why);
/* Ends a _make that failed with `st` on all ranks: frees `memory` unless it was given, and tells
 * with DPAR_E_ROOM how many bytes this rank needs. Returns st. */
DPARI_API dpar_status dpari_made_failed(dpar_status st, const void *given, void *memory,
                                        int64_t need, dpar_why *why);

#endif
