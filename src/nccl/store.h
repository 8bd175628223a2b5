/* SPDX-License-Identifier: MIT-0 */
/* store - private: torchrun's store, over which rank 0 sends its card to all ranks. */
#ifndef DPARI_NCCL_STORE_H
#define DPARI_NCCL_STORE_H

#include "../base/arith.h"
#include "nccl_make.h"

/* Sends rank 0's n bytes, at most 400, to all ranks over torchrun's store. Rank 0 waits until all
 * ranks have them. *why may be NULL. */
DPARI_INTERNAL dpar_status dpari_nccl_by_store(const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                               double until, dpar_why *why);

#endif
