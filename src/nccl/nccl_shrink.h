/* SPDX-License-Identifier: MIT-0 */
/* nccl_shrink - makes a communicator without the ranks that are lost. */
#ifndef DPARI_NCCL_NCCL_SHRINK_H
#define DPARI_NCCL_NCCL_SHRINK_H

#include "../comm/comm.h"

/* Makes a communicator of the ranks of comm, without the ranks that are lost. The others keep their
 * order.
 *
 * comm: made with desc.elastic = 1. It may be broken; free it afterwards as usual.
 * gone: [n] ranks of comm that are left out, in ascending order: at least one, and not this rank.
 *
 * Collective over the ranks that stay. Fails with DPAR_E_UNKNOWN if comm is not elastic or NCCL is
 * older than 2.27, and with DPAR_E_ARG if comm is of another engine, gone is not as described or
 * out is NULL. Fails with DPAR_E_TIMEOUT if not all ranks that stay call it before comm's deadline,
 * with DPAR_E_SYSTEM and NCCL's own message, or with DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_nccl_shrink(dpar_comm *comm, const int32_t *gone, int32_t n,
                                      dpar_comm **out, dpar_why *why);

#endif
