/* SPDX-License-Identifier: MIT-0 */
/* collective - private: collectives on device memory. */
#ifndef DPARI_NCCL_COLLECTIVE_H
#define DPARI_NCCL_COLLECTIVE_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "state.h"

enum {
    DPARI_NCCL_LIMIT = 64
}; /* blocks in scratch memory have a multiple of this number of elements */

/* Sets context->piece[r] to what the call exchanges with each rank r. */
DPARI_INTERNAL void dpari_nccl_pieces(dpari_nccl_ctx *context, const dpar_call *call);
/* Returns the bytes of the block of at most `block` bytes that begins at byte `at`; 0 at the
 * end. */
DPARI_INTERNAL int64_t dpari_nccl_rest(int64_t bytes, int64_t at, int64_t block);

/* Returns the number of elements in the part of a reduction that rank r adds up, and sets *begin to
 * its first element. In a reduce the root adds up everything. */
DPARI_INTERNAL int64_t dpari_nccl_part(const dpari_nccl_ctx *context, const dpar_call *call,
                                       int32_t r, int64_t *begin);

/* Enqueues a collective on device memory. */
DPARI_INTERNAL dpar_status dpari_nccl_collective(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpari_nccl_slot **slot);

#endif
