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

#endif
