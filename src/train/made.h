/* SPDX-License-Identifier: MIT-0 */
/* made - private: the memory of what a _make makes. */
#ifndef DPARI_TRAIN_MADE_H
#define DPARI_TRAIN_MADE_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* Zeroed memory of the host at a multiple of 64, and what gives it back (NULL is fine): of
 * dpar_comm_alloc; where c->mem is a device's, pages of its own. E_MEMORY without a sentence. */
DPARI_API dpar_status dpari_made_take(dpar_comm *c, int64_t bytes, void **memory);
DPARI_API void dpari_made_give(void *memory);
/* The same for a plan, on all ranks: st is how this one has fared so far; name: of its kind.
 * COLLECTIVE. */
DPARI_API dpar_status dpari_made_plan(dpar_comm *c, dpar_status st, int64_t bytes, void **memory,
                                      dpar_why *why);

#endif
