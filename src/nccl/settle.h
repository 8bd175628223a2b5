/* SPDX-License-Identifier: MIT-0 */
/* settle - private: waits on the host until NCCL has completed a call. */
#ifndef DPARI_NCCL_SETTLE_H
#define DPARI_NCCL_SETTLE_H

#include "../base/arith.h"
#include "library.h"
#include "state.h"

/* Sleeps for 20 us. */
DPARI_INTERNAL void dpari_nccl_nap(void);

/* Polls an NCCL communicator that the watchdog does not know yet, until NCCL has completed the last
 * call. This is needed even if the call returned ncclSuccess, because NCCL returns that before the
 * new object exists. Returns ncclInProgress at the deadline. */
DPARI_INTERNAL ncclResult_t dpari_nccl_through(const dpari_nccl_api *api, ncclComm_t nccl,
                                               const dpar_status *broken, double timeout_s);

/* True while NCCL's report that a process has ended is to be ignored. NCCL notices that first, but
 * does not know which rank it was. The side channel reports the rank once DPARI_NCCL_GRACE has
 * passed. */
DPARI_INTERNAL int dpari_nccl_unnamed(dpari_nccl_ctx *context, ncclResult_t said);

/* Locked. Polls a communicator that the watchdog knows, until NCCL has completed the last call. The
 * lock is released in between, so that the watchdog continues: ranks that connect for their first
 * operation wait for each other here, and one of them may be missing. */
DPARI_INTERNAL ncclResult_t dpari_nccl_settle(dpari_nccl_ctx *context);

#endif
