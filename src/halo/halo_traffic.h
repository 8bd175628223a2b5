/* SPDX-License-Identifier: MIT-0 */
/* halo_traffic - lists what an exchange moves: the peers, the bytes and the method. Private. */
#ifndef DPARI_HALO_HALO_TRAFFIC_H
#define DPARI_HALO_HALO_TRAFFIC_H

#include "halo_plan.h"

/* What a rank sends to one peer at each exchange. */
typedef struct dpari_hx_traffic {
    int32_t peer;
    int32_t way;    /* DPAR_HALO_MESSAGES, ...; of no meaning for the rank itself */
    int32_t hops;   /* the most blocks from one rank to the other along any mesh axis; 1 for
                       neighbours */
    int64_t pieces; /* boxes */
    int64_t bytes;  /* as they are sent; with DPAR_HALO_MESSAGES in one message, or one per step if
                       the plan is ordered */
    int64_t direct; /* bytes of these that the peer reads in place */
    int64_t runs;   /* contiguous pieces of memory */
} dpari_hx_traffic;
/* Computes the traffic to the k-th peer. The last one is this rank itself. Returns 0 if there is
 * none. Local. Costs O(pieces). */
DPARI_API int dpari_hx_traffic_of(const dpar_halo_plan *plan, int32_t k, dpari_hx_traffic *t);

#endif
