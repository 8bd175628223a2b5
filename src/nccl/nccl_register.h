/* SPDX-License-Identifier: MIT-0 */
/* nccl_register - registers device memory with NCCL. */
#ifndef DPARI_NCCL_NCCL_REGISTER_H
#define DPARI_NCCL_NCCL_REGISTER_H

#include "../comm/comm.h"

/* Registers device memory with NCCL until the communicator is closed, or the memory is passed to
 * dpar_comm_release. In each later operation either all ranks must use memory that they registered
 * in the same call, or none may.
 *
 * memory, bytes: `bytes` must be equal on all ranks. Memory from dpar_comm_alloc becomes a window
 *                if `bytes` is a multiple of 4096 and NCCL has windows (2.27). Other memory becomes
 *                a buffer (2.19). With older versions nothing happens.
 *
 * Collective. Fails with DPAR_E_ARG, without a message, if comm is of another engine, if comm or
 * memory is NULL, or if bytes is below 1. Fails with DPAR_E_SYSTEM and NCCL's own message, or with
 * DPAR_E_MEMORY; both messages are in comm->why. */
DPAR_API dpar_status dpar_nccl_register(dpar_comm *comm, void *memory, int64_t bytes);

#endif
