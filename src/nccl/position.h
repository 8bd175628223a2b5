/* SPDX-License-Identifier: MIT-0 */
/* position - private: the operation in which a rank is, as ranks compare it. */
#ifndef DPARI_NCCL_POSITION_H
#define DPARI_NCCL_POSITION_H

#include "../base/arith.h"
#include "state.h"

/* Returns the communicator with this name, or NULL. */
DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_named(dpari_nccl_world *world, uint64_t name);

/* Returns the operation at the head of the stream, or the one being enqueued if the stream is
 * empty, because both may wait for other ranks. Operations of broken communicators are skipped:
 * those of an elastic communicator may remain at the head, and the deadlines of operations behind
 * them still have to be checked. */
DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_head(const dpari_nccl_world *world);

/* Sets *n to this rank's position in a communicator: in the operation at the head of the stream, or
 * past its last collective. */
DPARI_INTERNAL void dpari_nccl_note_own(dpari_nccl_world *world, uint64_t name, dpari_nccl_note *n);
/* True if two ranks wait in the same call. */
DPARI_INTERNAL int dpari_nccl_same(const dpari_nccl_note *m, const dpari_nccl_note *n);

#endif
