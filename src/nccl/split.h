/* SPDX-License-Identifier: MIT-0 */
/* split - private: splits a communicator. */
#ifndef DPARI_NCCL_SPLIT_H
#define DPARI_NCCL_SPLIT_H

#include "../base/arith.h"
#include "../comm/comm.h"

/* Does what dpar_comm_split does. */
DPARI_INTERNAL dpar_status dpari_nccl_split(dpar_comm *comm, int32_t color, int32_t key,
                                            dpar_comm **out);

#endif
