/* SPDX-License-Identifier: MIT-0 */
/* failure - private: how calls fail, and how communicators break. */
#ifndef DPARI_NCCL_FAILURE_H
#define DPARI_NCCL_FAILURE_H

#include "../base/arith.h"
#include "library.h"
#include "state.h"

/* Sets the message to "`doing` failed: NCCL says: ", followed by NCCL's text for the code and its
 * last error, if it has one. */
DPARI_INTERNAL void dpari_nccl_say(const dpari_nccl_api *api, dpar_why *why, const char *doing,
                                   ncclResult_t code);
/* The same for a call of CUDA. Returns the status, and clears CUDA's error. */
DPARI_INTERNAL dpar_status dpari_nccl_cuda_says(dpar_why *why, const char *doing, cudaError_t code);
/* Sets the communicator's message and returns the status, without breaking it. */
DPARI_INTERNAL dpar_status dpari_nccl_refuse(dpari_nccl_ctx *context, dpar_status status,
                                             const char *what);
/* Aborts the context's NCCL communicator. Its kernels end at once, but then NCCL frees memory,
 * which waits for all kernels of the device, including those of other communicators. The abort
 * therefore runs in a separate thread, so that other communicators can be aborted meanwhile. The
 * context is kept until the thread has ended (dpari_nccl_retire). */
DPARI_INTERNAL void dpari_nccl_abort_comm(dpari_nccl_ctx *context);

/* Locked. Waits for the threads that abort communicators of a list. Releases the lock while it
 * waits. If the watchdog begins another abort meanwhile, waits for that one, too. */
DPARI_INTERNAL void dpari_nccl_join_aborts(dpari_nccl_world *world, dpari_nccl_ctx *list);

/* Breaks the context with this status and message, unless it is broken already: the first error is
 * kept. With `tell`, the watchdog informs the other ranks. */
DPARI_INTERNAL dpar_status dpari_nccl_break(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text, int32_t tell);

/* Handles the failure of an NCCL call: breaks the context, except that wrong arguments only make
 * that call fail. */
DPARI_INTERNAL dpar_status dpari_nccl_failed(dpari_nccl_ctx *context, const char *doing,
                                             ncclResult_t code);
/* Locked. Breaks the context because a call of CUDA failed. */
DPARI_INTERNAL dpar_status dpari_nccl_cuda_failed(dpari_nccl_ctx *context, const char *doing,
                                                  cudaError_t code);

/* Calls dpari_nccl_break for a caller that does not hold the lock, which is needed because the
 * watchdog may break the context at the same time. */
DPARI_INTERNAL dpar_status dpari_nccl_broke(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text);
/* The same as dpari_nccl_cuda_failed, for a caller that does not hold the lock. */
DPARI_INTERNAL dpar_status dpari_nccl_cuda_broke(dpari_nccl_ctx *context, const char *doing,
                                                 cudaError_t code);

#endif
