/* SPDX-License-Identifier: MIT-0 */
/* run - private: an operation while its work is being enqueued. */
#ifndef DPARI_NCCL_RUN_H
#define DPARI_NCCL_RUN_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "library.h"
#include "state.h"

/* An operation while it is being enqueued. The first error is kept. */
typedef struct dpari_nccl_run {
    dpari_nccl_ctx *c;
    const dpari_nccl_api *api;
    const dpar_call *call;
    cudaStream_t stream;
    int32_t unit;
    int32_t grouped; /* 1: an NCCL group is open */
    ncclResult_t code;
    cudaError_t cuda;
    dpar_status status; /* the result of reduce_mem */
} dpari_nccl_run;

/* True if nothing has failed so far. */
DPARI_INTERNAL int dpari_nccl_well(const dpari_nccl_run *run);

/* Records the result of an NCCL call. Within a group ncclInProgress counts as success, because the
 * end of the group is polled. */
DPARI_INTERNAL void dpari_nccl_took(dpari_nccl_run *run, ncclResult_t code, int grouped);
/* Open and close a group of NCCL, in which sends and receives begin together. */
DPARI_INTERNAL void dpari_nccl_open(dpari_nccl_run *run);
DPARI_INTERNAL void dpari_nccl_shut(dpari_nccl_run *run);
/* Enqueue a message, or a copy on this device, unless it is empty or something has failed. */
DPARI_INTERNAL void dpari_nccl_send_bytes(dpari_nccl_run *run, const void *from, int64_t bytes,
                                          int32_t to);
DPARI_INTERNAL void dpari_nccl_recv_bytes(dpari_nccl_run *run, void *to, int64_t bytes,
                                          int32_t from);
DPARI_INTERNAL void dpari_nccl_copy(dpari_nccl_run *run, void *to, const void *from, int64_t bytes);
/* Begins the enqueuing of a call. */
DPARI_INTERNAL void dpari_nccl_run_init(dpari_nccl_run *run, dpari_nccl_ctx *context,
                                        const dpar_call *call);

/* Returns the status of an operation that was enqueued. An error breaks the communicator. */
DPARI_INTERNAL dpar_status dpari_nccl_result(const dpari_nccl_run *run);

#endif
