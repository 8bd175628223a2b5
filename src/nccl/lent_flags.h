/* SPDX-License-Identifier: MIT-0 */
/* lent_flags - private: the flags in lent memory, for which the streams of neighbours wait. */
#ifndef DPARI_NCCL_LENT_FLAGS_H
#define DPARI_NCCL_LENT_FLAGS_H

#include "../base/arith.h"
#include "state.h"

/* Returns the bytes of all flags behind lent memory. */
DPARI_INTERNAL int64_t dpari_nccl_flag_bytes(const dpari_nccl_ctx *context);

/* Locked. Sets all flags in the memory of broken communicators, so that no stream waits for a rank
 * that will not come. */
DPARI_INTERNAL void dpari_nccl_free_waits(dpari_nccl_world *world);

#endif
