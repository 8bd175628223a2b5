/* SPDX-License-Identifier: MIT-0 */
/* pencil_plan - the structs of a plan of transposes, and how a transpose runs. Private.
 *
 * A transpose from one axis to another is called a way. In each way a rank exchanges with a peer
 * the points that its pencil along one axis has in common with the peer's pencil along the other.
 * ../exchange runs the transpose: waits for peers, publishes that arrays may be read, and posts
 * messages. All ways share its peers and its words, and each has its own table of flows.
 *
 * Peers that share memory read this rank's array in place, or a copy of it if it is not registered.
 * The reference to what they read is in the line of the exchange. They publish when they have read,
 * and the transpose ends after that, so that neither the array nor the copy is read any more. The
 * copy has the same shape as the array, so that the readers do the same in both cases.
 *
 * A message holds the points of a box in the order of the sender's pencil. Boxes that are
 * contiguous are sent in place, and received in place if the receiver has the same order. */
#ifndef DPARI_PENCIL_PENCIL_PLAN_H
#define DPARI_PENCIL_PENCIL_PLAN_H

#include "../exchange/exchange.h"
#include "pencil.h"
#include "pencil_copy.h"
#include "pencil_cut.h"

/* Where the message to or from a peer is, and the copy that packs or takes the points. */
typedef struct dpari_pencil_side {
    dpari_pencil_copy *copy; /* NULL if there are no points. give: into a message, or for peers that
                                share memory into the copy of the array. take: from there */
    int64_t at;              /* bytes from the begin of the messages; -1 if it is in place */
} dpari_pencil_side;

typedef struct dpari_pencil {
    dpar_pencil head; /* the public struct; it must be first */
    dpari_exchange x;
    dpari_pencil_cut cut;
    dpari_pencil_side *give, *take;            /* [ways][peers] */
    dpari_exchange_flow *flow;                 /* [ways][peers] */
    int32_t meets[DPARI_PENCIL_WAYS];          /* 1 if it involves peers that share memory */
    int32_t lends[DPARI_PENCIL_WAYS];          /* 1 if such a peer reads this rank's array */
    dpari_pencil_copy *copies;                 /* of all sides */
    unsigned char *out_messages, *in_messages; /* in memory of dpar_comm_alloc */
    unsigned char *lent;                       /* the copy of an array that is not registered */
    void *owned;                               /* the memory of this struct and its tables */
    int32_t way;                               /* of the transpose in progress */
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
