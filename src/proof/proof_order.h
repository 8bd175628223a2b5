/* SPDX-License-Identifier: MIT-0 */
/* proof_order - proves that ranks which send and receive in a given order cannot deadlock. */
#ifndef DPARI_PROOF_PROOF_ORDER_H
#define DPARI_PROOF_PROOF_ORDER_H

#include "proof.h"

/* What a rank does next. */
enum {
    DPAR_PROOF_SEND,      /* sends a message to `peer` and waits until it is sent (MPI_Send) */
    DPAR_PROOF_RECV,      /* receives a message from `peer` and waits for it (MPI_Recv) */
    DPAR_PROOF_POST_SEND, /* begins to send (MPI_Isend; ncclSend) */
    DPAR_PROOF_POST_RECV, /* begins to receive */
    DPAR_PROOF_WAIT       /* waits until all messages of the rank are done (MPI_Waitall) */
};

/* How messages are transported. The names mean the same as those of dpar_schedule_check. */
enum {
    /* A message is transferred when both of its ends have been posted (MPI_Ssend; Infiniband). */
    DPAR_PROOF_BLOCKING,
    /* A send is done at once while at most `capacity` messages from this rank to this peer have
     * been sent but not received. */
    DPAR_PROOF_EAGER,
    /* Messages wait in queues, and a message is transferred once it is the first in its queue on
     * both ranks. RANK: one queue per rank (one NCCL communicator). */
    DPAR_PROOF_RANK,
    DPAR_PROOF_PAIR /* one queue per peer (NCCL communicators of 2 ranks) */
};

/* One action of a rank. */
typedef struct dpar_proof_action {
    int32_t kind; /* DPAR_PROOF_SEND, ... */
    int32_t peer; /* the other rank; ignored by WAIT */
    /* Consecutive actions with the same group other than 0 enter a queue together, as between
     * ncclGroupStart and ncclGroupEnd. */
    int32_t group;
} dpar_proof_action;

/* The actions of all ranks. */
typedef struct dpar_proof_order_desc {
    int32_t ranks;
    const int64_t *first; /* [ranks + 1], the index of each rank's first action; the last entry is
                             the number of all actions */
    const dpar_proof_action *action;
    int32_t transport; /* DPAR_PROOF_BLOCKING, ... */
    int32_t capacity;  /* of EAGER, in messages per pair of ranks, 0 or more */
    void *memory;      /* working memory, aligned as for int64_t */
    int64_t bytes;     /* its size */
} dpar_proof_order_desc;

/* Proves that all ranks reach the end of their actions, however fast each of them is.
 *
 * The k-th send from a to b is received by the k-th receive of b from a. The ranks are run on one
 * core, as far as they get. Because a message that can be transferred can still be transferred
 * later, the speed of ranks does not change how far that is, and one run proves all runs.
 *
 * Fails with DPAR_E_STUCK if ranks wait for each other; the message names the cycle. Fails with
 * DPAR_E_MISMATCH if a send or receive has no partner, DPAR_E_ARG if an action is not valid, and
 * DPAR_E_ROOM, with the needed size in why->bytes, if the memory is too small. Costs O(actions x
 * (log(actions of a rank) + messages between two waits)).
 */
DPAR_API dpar_status dpar_proof_order(const dpar_proof_order_desc *order, dpar_why *why);

#endif
