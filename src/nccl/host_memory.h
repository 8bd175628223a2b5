/* SPDX-License-Identifier: MIT-0 */
/* host_memory - private: collectives on host memory: through page-locked memory, and blocking. */
#ifndef DPARI_NCCL_HOST_MEMORY_H
#define DPARI_NCCL_HOST_MEMORY_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "state.h"

enum { DPARI_NCCL_NOWHERE, DPARI_NCCL_DEVICE, DPARI_NCCL_HOST };

/* Returns where the call's memory is. Fails with DPAR_E_ARG, and a message, if in and out are in
 * different places. */
DPARI_INTERNAL int32_t dpari_nccl_place(dpari_nccl_ctx *context, const dpar_call *call);

/* Exchanges all pieces, in as many rounds as the staging memory requires. */
DPARI_INTERNAL dpar_status dpari_nccl_host_move(dpari_nccl_ctx *context, const dpar_call *call);
/* Runs a collective on host memory, and waits for it. */
DPARI_INTERNAL dpar_status dpari_nccl_host(dpari_nccl_ctx *context, const dpar_call *call);

#endif
