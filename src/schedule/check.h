/* SPDX-License-Identifier: MIT-0 */
/* check - proves that a schedule is correct, and that it cannot deadlock on a given transport.
 *
 *     dpar_schedule_check_desc how = {0};
 *     how.transport = DPAR_TRANSPORT_PAIR;                 NCCL, a communicator for each pair
 *     st = dpar_schedule_check(&lowered, &how, memory, sizeof memory, &why);
 */
#ifndef DPARI_SCHEDULE_CHECK_H
#define DPARI_SCHEDULE_CHECK_H

#include "schedule.h"

/* Bits that change what counts as correct. */
enum {
    /* Refuses a list without any backward, which otherwise counts as forward-only. */
    DPAR_CHECK_TRAINS = 1,
    /* Says that messages have tags (MPI), so that any order on a channel is correct. */
    DPAR_CHECK_TAGGED = 2
};

/* How messages are transported. A schedule that passes BLOCKING passes all.
 *
 * With the four kinds from RANK to EDGE, messages are posted and wait in queues. A message is
 * transferred once it is first in the queues of both its ends, and a computation waits for what it
 * receives. With BLOCKING and EAGER a rank does its actions in order.
 */
enum {
    DPAR_TRANSPORT_NONE,      /* messages wait for nothing but their data */
    DPAR_TRANSPORT_BLOCKING,  /* a message holds each end until the other arrives (MPI_Ssend) */
    DPAR_TRANSPORT_RANK,      /* one queue per rank: one NCCL communicator */
    DPAR_TRANSPORT_DIRECTION, /* one queue for the forward's, one for the backward's messages */
    DPAR_TRANSPORT_PAIR,      /* a queue for each other rank: communicators of 2 ranks */
    DPAR_TRANSPORT_EDGE,      /* a queue for each other rank and direction: torch's p2p_per_edge */
    /* From each rank to each other one there is a first-in, first-out buffer of `capacity`
     * messages. A send waits until the buffer has a free place, a receive until its message is at
     * the front. */
    DPAR_TRANSPORT_EAGER,
    DPAR_TRANSPORT_COUNT
};

/* What to check. Zero it to prove the schedule without a transport. */
typedef struct dpar_schedule_check_desc {
    int32_t flags;     /* DPAR_CHECK_x; DPAR_CHECK_TAGGED is implied by a transport */
    int32_t transport; /* DPAR_TRANSPORT_x */
    int32_t capacity;  /* EAGER: capacity of a buffer in messages, at least 1; otherwise ignored */
    /* [ranks], receives where each rank is stuck, as an index of s->action, or -1 if it has
     * finished. For queued messages it is the first of the queue that holds up the rank. Written
     * only if the transport gets stuck; may be NULL. */
    int64_t *stuck;
} dpar_schedule_check_desc;

/* Proves that a schedule is correct, with messages or without. With a transport it also proves that
 * all ranks reach their end on it.
 *
 * how:  NULL means all zero. With a transport, the schedule must have its messages.
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG if the schedule is not correct, and the message names the first fault,
 * "rank 2: 1B3 is listed twice". Fails with DPAR_E_STUCK if ranks wait for each other, and the
 * message names the circle: "pair: rank 0 at 0SEND_F1 waits for 1RECV_F1 that rank 1 has after
 * 1SEND_F0; rank 1 ...". Fails with DPAR_E_ROOM if `bytes` is too small. Costs O(actions).
 *
 * The outcome does not depend on the speed of ranks, so that one run proves all runs. (PyTorch
 * issue #172668 and PR #195760 are about such a deadlock.) A correct schedule keeps these rules:
 *
 *  - Kinds, stages and micro-batches are in range, and stages are on their rank. After a joined
 *    forward comes a B or I of the same rank, of another stage or micro-batch.
 *  - Every micro-batch passes all stages of one chain, and its slices the same chain. Each stage
 *    has F once, and B once or I and W once, unless there is no backward at all.
 *  - In a rank's list F, OFFLOAD, RELOAD, RECOMPUTE, B or I, W of a stage and micro-batch come in
 *    this order.
 *  - What a stage gives to another stage of the same rank is made before it is used.
 *  - Slices go forward in ascending and backward in descending order.
 *  - There is an OFFLOAD for every RELOAD, and with backwards a RELOAD for every OFFLOAD.
 *  - If there are messages, each value between neighbouring stages on different ranks has one SEND
 *    and one RECV with the right peer, and there is no other message. RECV comes before its
 *    consumer and SEND after its producer. The messages from one rank to another are received in
 *    the order in which they are sent. (NCCL has no tags, so another order there gives wrong data
 *    without an error.)
 *  - If there are UNSHARD and RESHARD, they alternate for each stage, the last is a RESHARD, and F,
 *    B, I, W and RECOMPUTE are between them.
 *  - If there is a REDUCE_GRAD, there is one for each stage that has backwards, after them, and at
 *    most one WAIT_REDUCE_GRAD after it.
 *  - All ranks together reach the end if actions wait for their data only.
 */
DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *schedule,
                                         const dpar_schedule_check_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

#endif
