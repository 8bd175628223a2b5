/* SPDX-License-Identifier: MIT-0 */
/* calls - private: the engine's functions that post, test and wait. */
#ifndef DPARI_NCCL_CALLS_H
#define DPARI_NCCL_CALLS_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* Do what dpar_test and dpar_wait do. */
DPARI_INTERNAL dpar_status dpari_nccl_test(dpar_work *work);
DPARI_INTERNAL dpar_status dpari_nccl_wait(dpar_work *work);
/* Do what dpari_post does, with a work or without. */
DPARI_INTERNAL dpar_status dpari_nccl_post(dpar_comm *comm, const dpar_call *call, dpar_work *work);
DPARI_INTERNAL dpar_status dpari_nccl_run_call(dpar_comm *comm, const dpar_call *call);

/* Enqueues a batch as one group. If the caller passes no works, allocates them and waits for
 * them. */
DPARI_INTERNAL dpar_status dpari_nccl_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                            dpar_work *works);
/* Does nothing, because the device advances without calls of the host. */
DPARI_INTERNAL dpar_status dpari_nccl_progress(dpar_comm *comm, int32_t on);
/* Breaks the communicator. */
DPARI_INTERNAL void dpari_nccl_abort(dpar_comm *comm, dpar_status status, const char *text);

#endif
