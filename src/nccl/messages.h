/* SPDX-License-Identifier: MIT-0 */
/* messages - private: messages: posted one by one, enqueued together, in the same order on both
 * sides. */
#ifndef DPARI_NCCL_MESSAGES_H
#define DPARI_NCCL_MESSAGES_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "state.h"

/* Ends a work: copies a received message to the user's host memory, and releases the slot and the
 * memory that the work holds. */
DPARI_INTERNAL void dpari_nccl_finish(dpar_work *work, dpar_status status);

/* Fails with DPAR_E_ARG, and a message, for calls that NCCL cannot run or that cannot be captured
 * in a graph. */
DPARI_INTERNAL dpar_status dpari_nccl_can(dpari_nccl_ctx *context, const dpar_call *call,
                                          int32_t place);

/* Posts a message. It is enqueued at this rank's next collective, batch, wait or test. */
DPARI_INTERNAL dpar_status dpari_nccl_pend(dpari_nccl_ctx *context, const dpar_call *call,
                                           dpar_work *work);

/* Enqueues the pending messages of the context as one group. */
DPARI_INTERNAL dpar_status dpari_nccl_flush_one(dpari_nccl_ctx *context);

/* Enqueues the messages of all communicators, in the order in which the communicators were made,
 * which is the same on all ranks. */
DPARI_INTERNAL void dpari_nccl_flush(dpari_nccl_world *world);

#endif
