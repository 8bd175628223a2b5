/* SPDX-License-Identifier: MIT-0 */
/* pencil_plan - the structs of a plan of transposes, and how a transpose runs. Private.
 *
 * A pair of axes, from one to another, is called a direction. In each direction a rank exchanges
 * with a peer the points that its pencil along one axis has in common with the peer's pencil along
 * the other.
 * ../exchange runs the transpose: waits for peers, publishes that arrays may be read, and posts
 * messages. All directions use one dpari_exchange, but each has its own table of flows.
 *
 * Peers that share memory read this rank's array in place, or a copy of it if it is not registered.
 * They find the array or the copy by the reference in the line of the exchange. They publish that
 * they have read it, and only then does the transpose end, so that nobody reads it any more. The
 * copy has the same shape as the array, so that readers need not know which of the two it is.
 *
 * A message holds the points of a box in the order of the sender's pencil. Boxes that are
 * contiguous are sent in place, and received in place if the receiver has the same order. */
#ifndef DPARI_PENCIL_PENCIL_PLAN_H
#define DPARI_PENCIL_PENCIL_PLAN_H

#include "../exchange/exchange.h"
#include "pencil.h"
#include "pencil_copy.h"
#include "pencil_cut.h"

/* What this rank gives to a peer, or takes from it, in a direction. */
typedef struct dpari_pencil_side {
    dpari_pencil_copy *copy; /* NULL if there are no points. When giving, copies to the message, or
                                to the copy of the array for a peer that shares memory. When taking,
                                copies from the message, or from the peer's array */
    int64_t at; /* where the message begins in out_messages or in_messages; -1 if it is in place */
} dpari_pencil_side;

typedef struct dpari_pencil {
    dpar_pencil head; /* the public struct; it must be first */
    dpari_exchange x;
    dpari_pencil_cut cut;
    dpari_pencil_side *give, *take;            /* [directions][peers] */
    dpari_exchange_flow *flow;                 /* [directions][peers] */
    int32_t meets[DPARI_PENCIL_DIRECTIONS];    /* 1 if other peers that share memory take part */
    int32_t lends[DPARI_PENCIL_DIRECTIONS];    /* 1 if such a peer reads this rank's array */
    dpari_pencil_copy *copies;                 /* those of `give` and `take` */
    unsigned char *out_messages, *in_messages; /* in memory of dpar_comm_alloc */
    unsigned char *lent;                       /* the copy of an array that is not registered */
    void *owned;                               /* the memory of this struct and its tables */
    int32_t direction;                         /* of the transpose in progress */
    const unsigned char *in;
    unsigned char *out;
} dpari_pencil;

/* Returns the plan of a handle. */
DPARI_FN dpari_pencil *dpari_pencil_of(const dpar_pencil *pencil)
{
    return (dpari_pencil *)(uintptr_t)pencil;
}

/* Returns the communicator whose memory the ranks of a node share. */
DPARI_FN dpar_comm *dpari_pencil_memory_of(const dpari_pencil *plan)
{
    return plan->x.world ? plan->x.node : plan->x.comm;
}

#endif
