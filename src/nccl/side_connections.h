/* SPDX-License-Identifier: MIT-0 */
/* side_connections - private: the connections between rank 0 and the other ranks. */
#ifndef DPARI_NCCL_SIDE_CONNECTIONS_H
#define DPARI_NCCL_SIDE_CONNECTIONS_H

#include "../base/arith.h"
#include "state.h"

/* On rank 0: accepts new connections and advances those that have not proved yet. Never waits. */
DPARI_INTERNAL void dpari_nccl_accept(dpari_nccl_world *world);

/* On other ranks: connects to rank 0 at one of its addresses, which share the time until the
 * deadline, and sends HELLO. Returns -1 if rank 0 is not reached. */
DPARI_INTERNAL int dpari_nccl_reach(dpari_nccl_world *world, dpari_nccl_link *l, double until);

/* Reads and processes what has arrived on a link. */
DPARI_INTERNAL void dpari_nccl_listen_to(dpari_nccl_world *world, int32_t k);

/* Handles lost connections: other ranks connect again, and rank 0 waits for that. After
 * DPARI_NCCL_GRACE the rank at the other end counts as gone. */
DPARI_INTERNAL void dpari_nccl_mend(dpari_nccl_world *world);

#endif
