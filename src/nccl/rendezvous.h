/* SPDX-License-Identifier: MIT-0 */
/* rendezvous - private: how ranks find each other: over a host communicator, or by other means. */
#ifndef DPARI_NCCL_RENDEZVOUS_H
#define DPARI_NCCL_RENDEZVOUS_H

#include "../base/arith.h"
#include "../comm/comm.h"
#include "nccl_make.h"
#include "state.h"

/* Makes the world's first communicator, of the ranks of host. A failure on any rank is reported on
 * all ranks. *out may be set also on failure. */
DPARI_INTERNAL dpar_status dpari_nccl_by_host(dpar_comm *host, dpari_nccl_world *world,
                                              dpari_nccl_ctx **out, dpar_why *said);

/* Sets *m to the caller's values, fills in the missing ones from the environment, and selects a
 * method. */
DPARI_INTERNAL dpar_status dpari_nccl_find_way(const dpar_nccl_rendezvous *given,
                                               dpar_nccl_rendezvous *m, dpar_why *why);

/* Takes part in the caller's broadcast although this rank has failed. Other ranks may wait in it
 * without a deadline, and learn in this way that rank 0 could not begin. */
DPARI_INTERNAL void dpari_nccl_meet_failed(dpari_nccl_world *world, const dpar_nccl_rendezvous *m);

/* Makes the world's first communicator by any method except DPAR_NCCL_NODE. *out may be set also on
 * failure. */
DPARI_INTERNAL dpar_status dpari_nccl_meet(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                           dpari_nccl_ctx **out, dpar_why *why);

#endif
