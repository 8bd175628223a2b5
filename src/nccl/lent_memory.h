/* SPDX-License-Identifier: MIT-0 */
/* lent_memory - private: memory that other devices of the node read directly. */
#ifndef DPARI_NCCL_LENT_MEMORY_H
#define DPARI_NCCL_LENT_MEMORY_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "state.h"

/* Waits, at most 10 s, until no kernel reads the memory that a broken communicator lends, before
 * NCCL unmaps it. */
DPARI_INTERNAL void dpari_nccl_drain(dpari_nccl_ctx *context);
/* Allocates memory that other ranks may read: the engine's alloc_shared. */
DPARI_INTERNAL dpar_status dpari_nccl_lend(dpar_comm *comm, int64_t bytes, int32_t can,
                                           void **memory);
/* Returns the address at which this device reaches a rank's lent memory, or NULL. */
DPARI_INTERNAL void *dpari_nccl_at_peer(dpar_comm *comm, void *memory, int32_t rank);
/* Makes the devices of these ranks synchronise: the engine's sync_peers. */
DPARI_INTERNAL dpar_status dpari_nccl_meet_near(dpar_comm *comm, void *memory, const int32_t *ranks,
                                                int32_t n, dpar_work *work);

#endif
