/* SPDX-License-Identifier: MIT-0 */
/* world - private: the state that the communicators of one dpar_nccl_make share. */
#ifndef DPARI_NCCL_WORLD_H
#define DPARI_NCCL_WORLD_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "nccl_make.h"
#include "state.h"

/* Reads DPAR_TEST_SHARE_GPU: returns 1 if ranks share a device as far as the version of NCCL
 * supports it, 2 ("hosts") if by the method that works with all versions, and 0 if they do not. */
DPARI_INTERNAL int32_t dpari_nccl_shares(void);
/* Frees the state of a communicator; dpari_nccl_kept_free does so for its handle, unless it is
 * NULL. */
DPARI_INTERNAL void dpari_nccl_ctx_free(dpari_nccl_ctx *context);
DPARI_INTERNAL void dpari_nccl_kept_free(dpar_comm *comm);
/* Ends the watchdog and the side channel, and frees the world. */
DPARI_INTERNAL void dpari_nccl_world_end(dpari_nccl_world *world);

/* Makes this rank's part of a world, without communication. Sets *out also on failure, unless there
 * is no memory; it then has to be ended. */
DPARI_INTERNAL dpar_status dpari_nccl_world_make(int32_t rank, int32_t size,
                                                 const dpar_nccl_desc *options,
                                                 const dpar_engine *engine, dpari_nccl_world **out,
                                                 dpar_why *why);

#endif
