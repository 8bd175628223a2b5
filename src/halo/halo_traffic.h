/* SPDX-License-Identifier: MIT-0 */
/* halo_traffic - lists what an exchange moves: the peers, the bytes and the method. Private. */
#ifndef DPARI_HALO_HALO_TRAFFIC_H
#define DPARI_HALO_HALO_TRAFFIC_H

#include "halo_plan.h"

/* The values that a rank sends to one peer in each exchange. */
typedef struct dpari_hx_traffic {
    int32_t peer;
    int32_t way;    /* DPAR_HALO_MESSAGES, ...; meaningless if the peer is the rank itself */
    int32_t hops;   /* distance of the two blocks: the largest along any mesh axis, in blocks; 1 for
                       neighbours */
    int64_t pieces; /* number of boxes */
    int64_t bytes;  /* in the type in which they are sent. With DPAR_HALO_MESSAGES they are one
                       message, or one message per step if the plan is ordered */
    int64_t direct; /* how many of these bytes the peer reads in place */
    int64_t runs;   /* number of contiguous pieces of memory */
} dpari_hx_traffic;
/* Computes the traffic to peer k, from 0 on. The last peer is this rank itself. Returns 1, or 0 if
 * there is no peer k. Local. Costs O(pieces). */
DPARI_API int dpari_hx_traffic_of(const dpar_halo_plan *plan, int32_t k, dpari_hx_traffic *t);

#endif
