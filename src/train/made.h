/* SPDX-License-Identifier: MIT-0 */
/* made - private: memory for objects of _make functions. */
#ifndef DPARI_TRAIN_MADE_H
#define DPARI_TRAIN_MADE_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* Allocates zeroed memory of the host at a multiple of 64: with dpar_comm_alloc, or as pages of the
 * host if comm->mem is a device. Returns NULL if there is none. dpari_made_give frees it; NULL is
 * allowed. */
DPARI_INTERNAL void *dpari_made_room(dpar_comm *c, int64_t bytes);
DPARI_INTERNAL void dpari_made_give(void *memory);

#endif
