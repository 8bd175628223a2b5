/* SPDX-License-Identifier: MIT-0 */
/* communicator - private: makes and ends communicators. */
#ifndef DPARI_NCCL_COMMUNICATOR_H
#define DPARI_NCCL_COMMUNICATOR_H

#include "../base/arith.h"
#include "state.h"

/* Makes the state of a communicator. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_ctx_make(dpari_nccl_world *world, int32_t rank,
                                                   int32_t size);

/* Fails because dpari_nccl_ctx_make had no memory for a communicator of `size` ranks. */
DPARI_INTERNAL dpar_status dpari_nccl_ctx_missing(dpar_why *why, const char *doing, int32_t size);

/* Appends the context to the world's communicators. */
DPARI_INTERNAL void dpari_nccl_join(dpari_nccl_ctx *context);
/* Sets *config to that of a communicator that does not block. */
DPARI_INTERNAL void dpari_nccl_config(const dpari_nccl_world *world, ncclConfig_t *config);

/* Returns the name of `part`, which split `number` of the context made. The name is the same on all
 * its ranks, and differs from those of all other communicators of the job, including those that
 * other ranks split off. */
DPARI_INTERNAL uint64_t dpari_nccl_name(const dpari_nccl_ctx *context, int64_t number,
                                        const dpari_nccl_ctx *part);

/* Makes the world's first communicator. */
DPARI_INTERNAL dpar_status dpari_nccl_begin_world(dpari_nccl_world *world, dpari_nccl_ctx **out,
                                                  dpar_why *why);

/* Removes the context from its world: from the slots, the list, and the registered memory. Returns
 * the number of works that nobody has waited for. */
DPARI_INTERNAL int32_t dpari_nccl_leave(dpari_nccl_ctx *context);

/* Frees the context, which was removed from its world. If a thread is still aborting it, keeps it
 * until then. */
DPARI_INTERNAL void dpari_nccl_retire(dpari_nccl_ctx *context);

#endif
