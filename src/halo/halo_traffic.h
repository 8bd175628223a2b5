/* SPDX-License-Identifier: MIT-0 */
/* halo_traffic - what an exchange moves: to whom, how much and in which way. Private. */
#ifndef DPARI_HALO_HALO_TRAFFIC_H
#define DPARI_HALO_HALO_TRAFFIC_H

#include "halo_plan.h"

/* What a rank sends to one peer at each exchange. */
typedef struct dpari_hx_traffic {
    int32_t peer;
    int32_t way;    /* DPAR_HALO_MESSAGES, ... ; the rank itself: a copy */
    int32_t hops;   /* blocks between the two, at most, along any mesh axis: 1 a neighbour */
    int64_t pieces; /* boxes */
    int64_t bytes;  /* on the wire; with way MESSAGES in one message, one a step where ordered */
    int64_t direct; /* of them read where they lie */
    int64_t runs;   /* pieces of memory in one piece */
} dpari_hx_traffic;
/* The k-th peer's (also oneself); 0 past the last. Local, O(pieces). */
DPARI_API int dpari_hx_traffic_of(const dpar_halo_plan *x, int32_t k, dpari_hx_traffic *t);

#endif
