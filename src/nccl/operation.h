/* SPDX-License-Identifier: MIT-0 */
/* operation - private: operations on the stream: the slots that hold their events. */
#ifndef DPARI_NCCL_OPERATION_H
#define DPARI_NCCL_OPERATION_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "state.h"

/* Queries an event without ending a capture of this thread, and without leaving an error that the
 * thread's next CUDA call would report. */
DPARI_INTERNAL cudaError_t dpari_nccl_query(cudaEvent_t event);
/* True if the compute stream is being captured in a graph. */
DPARI_INTERNAL int32_t dpari_nccl_capturing(const dpari_nccl_world *world);

/* Locked. Recycles a slot that nobody needs any more. */
DPARI_INTERNAL void dpari_nccl_slot_free(dpari_nccl_world *world, dpari_nccl_slot *slot);

/* Locked. Removes the operations that have ended from the front of the list. An error of the device
 * breaks their communicators. */
DPARI_INTERNAL void dpari_nccl_reap(dpari_nccl_world *world);

/* Begins an operation: takes a slot and makes the world's stream wait for the compute stream.
 * Returns the slot, with the lock held. On failure returns NULL, without the lock, and sets
 * *status. */
DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_begin(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpar_status *status);

/* Completes the enqueuing of an operation to which `works` works refer, and releases the lock. */
DPARI_INTERNAL dpar_status dpari_nccl_end(dpari_nccl_slot *slot, int32_t works, dpar_status status);
/* Ends the reference of one work to a slot. */
DPARI_INTERNAL void dpari_nccl_let_go(dpari_nccl_world *world, dpari_nccl_slot *slot);

/* Waits until the device has finished an operation. The watchdog checks the deadline; without a
 * watchdog this function does. */
DPARI_INTERNAL dpar_status dpari_nccl_await(dpari_nccl_slot *slot);

#endif
