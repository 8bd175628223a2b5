/* SPDX-License-Identifier: MIT-0 */
/* made - private: the memory of what a _make makes. */
#ifndef DPARI_TRAIN_MADE_H
#define DPARI_TRAIN_MADE_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* Zeroed memory of the host at a multiple of 64, and what gives it back (NULL is fine): of
 * dpar_comm_alloc; where c->mem is a device's, pages of its own. NULL: there is none. */
DPARI_INTERNAL void *dpari_made_room(dpar_comm *c, int64_t bytes);
DPARI_INTERNAL void dpari_made_give(void *memory);
/* How an init in that memory ended, which is given back after an error. */
DPARI_INTERNAL dpar_status dpari_made_or(dpar_status st, void *memory);
/* How a close ended: E_ARG refused it, and the memory stays. */
DPARI_INTERNAL dpar_status dpari_made_end(dpar_status st, void *memory);
/* Provides the bookkeeping of an object that a _make makes. If the descriptor has memory NULL and
 * bytes 0, *memory becomes memory of its own, as from dpari_made_room. Otherwise it becomes
 * desc.memory, or the call fails with DPAR_E_ROOM if that has fewer than `need` bytes, is NULL or
 * is not aligned to 64. Local: ranks agree afterwards. module: what the message begins with. */
DPARI_INTERNAL dpar_status dpari_made_memory(dpar_comm *c, void *given, int64_t bytes, int64_t need,
                                             const char *module, void **memory, dpar_why *why);
/* Ends a _make that failed with `st` on all ranks: frees `memory` unless it was given, and tells
 * with DPAR_E_ROOM how many bytes this rank needs. Returns st. */
DPARI_INTERNAL dpar_status dpari_made_failed(dpar_status st, const void *given, void *memory,
                                             int64_t need, dpar_why *why);

#endif
