/* SPDX-License-Identifier: MIT-0 */
/* lent_memory - private: memory that other devices of the node read directly. */
#ifndef DPARI_NCCL_LENT_MEMORY_H
#define DPARI_NCCL_LENT_MEMORY_H

#include "../base/arith.h"
#include "../base/base.h"
#include "../comm/comm.h"
#include "state.h"

/* Waits, at most 10 s, until no kernel reads the memory that a broken communicator lends, before
 * NCCL unmaps it. */
DPARI_INTERNAL void dpari_nccl_drain(dpari_nccl_ctx *context);
DPARI_INTERNAL dpar_status dpari_nccl_lend(dpar_comm *comm, int64_t bytes, int32_t can,
                                           void **memory);
DPARI_INTERNAL void *dpari_nccl_at_peer(dpar_comm *comm, void *memory, int32_t rank);
DPARI_INTERNAL dpar_status dpari_nccl_meet_near(dpar_comm *comm, void *memory, const int32_t *ranks,
                                                int32_t n, dpar_work *work);

#endif
