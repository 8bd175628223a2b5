/* SPDX-License-Identifier: MIT-0 */
/* side_messages - private: messages of the side channel: ranks compare their calls and report
 * errors. */
#ifndef DPARI_NCCL_SIDE_MESSAGES_H
#define DPARI_NCCL_SIDE_MESSAGES_H

#include "../base/arith.h"
#include "state.h"

/* Begins a message of this rank. */
DPARI_INTERNAL void dpari_nccl_message_init(const dpari_nccl_world *world,
                                            dpari_nccl_message *message, int32_t kind);

/* Closes a link. A link that rank 0 had not accepted yet returns to the state that it had before
 * the attempt. */
DPARI_INTERNAL void dpari_nccl_link_lost(dpari_nccl_link *l);

/* Sends a message: rank 0 sends it to all ranks except `but` (-1 for none), and other ranks send it
 * to rank 0. */
DPARI_INTERNAL void dpari_nccl_tell(dpari_nccl_world *world, const dpari_nccl_message *message,
                                    int32_t but);

/* Reports this rank's note to rank 0, which then asks the other ranks and compares the notes. */
DPARI_INTERNAL void dpari_nccl_answer(dpari_nccl_world *world, uint64_t comm);

/* Breaks the communicators of a rank that ended without leaving in order. */
DPARI_INTERNAL void dpari_nccl_died(dpari_nccl_world *world, int32_t rank);

/* Processes a message that has arrived over link k. */
DPARI_INTERNAL void dpari_nccl_obey(dpari_nccl_world *world, int32_t k,
                                    dpari_nccl_message *message);

#endif
