/* SPDX-License-Identifier: MIT-0 */
/* peer_wait - waits for a word of a peer that shares memory, until it changes, the peer fails or
 * the deadline passes, and finds the rank that is at fault. Private. */
#ifndef DPARI_EXCHANGE_PEER_WAIT_H
#define DPARI_EXCHANGE_PEER_WAIT_H

#include "../comm/group.h"

typedef struct dpari_peer_wait {
    dpar_comm *comm;       /* the communicator of the exchange, whose deadline counts */
    dpari_group *group;    /* the ranks of this node, including the peer */
    int32_t peer;          /* number in the world */
    int32_t shift;         /* see ready */
    const uint64_t *ready; /* *ready >> shift is the number of exchanges that the peer has begun */
    int64_t count;         /* the number of exchanges that this rank has begun */
    void (*progress)(void *exchange); /* advances messages and other work in progress */
    void *exchange;
    /* The late rank: the peer, or the rank that the peer itself waits for, and so on. All zero at
     * the beginning. */
    int32_t who;    /* number in the world */
    int32_t links;  /* 0 if it is the peer, 1 if it is the rank that the peer waits for, ... */
    double since;   /* s, when this rank became the suspect; 0 if there is no suspect yet */
    int64_t in;     /* sequence number of the collective in which the peer waits */
    double crossed; /* s, since when it waits there; 0 if it does not */
    double waited;  /* seconds that the wait took, set if it failed */
} dpari_peer_wait;

/* Checks whether a wait for the peer can still succeed. Returns DPAR_OK if it can, DPAR_E_PEER if
 * the peer has ended or closes the communicator, or the status of a broken communicator. */
DPARI_INTERNAL dpar_status dpari_peer_look(const dpar_comm *comm, dpari_group *group, int32_t peer);
/* Waits until *word >= value. Fails with DPAR_E_PEER if the peer has ended, DPAR_E_MISMATCH if it
 * has not begun this exchange and waits in a collective that this rank has not called, and
 * DPAR_E_TIMEOUT after the deadline; p->who is then the late rank. */
DPARI_INTERNAL dpar_status dpari_peer_await(dpari_peer_wait *p, const uint64_t *word,
                                            uint64_t value);

#endif
