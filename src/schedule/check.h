/* SPDX-License-Identifier: MIT-0 */
/* check - proves that a schedule is correct, and that it cannot deadlock on a given transport.
 *
 *     dpar_schedule_check_desc how = {0};
 *     how.transport = DPAR_TRANSPORT_PAIR;       NCCL with a communicator per pair of ranks
 *     st = dpar_schedule_check(&lowered, &how, memory, sizeof memory, &why);
 */
#ifndef DPARI_SCHEDULE_CHECK_H
#define DPARI_SCHEDULE_CHECK_H

#include "schedule.h"

/* Bits of dpar_schedule_check_desc.flags, which change what counts as correct. */
enum {
    /* Refuses a schedule without backwards, which otherwise counts as forward-only. */
    DPAR_CHECK_TRAINS = 1,
    /* Messages have tags (MPI), so that any order of the messages between two ranks is correct. */
    DPAR_CHECK_TAGGED = 2
};

/* How messages are transported. A schedule that reaches its end with BLOCKING reaches it on every
 * transport.
 *
 * With the four transports from RANK to EDGE, messages are posted and wait in queues. A message is
 * transferred once it is the first in its queue on both ranks, and a computation waits until its
 * input has been received. With BLOCKING and EAGER a rank runs its actions in order.
 */
enum {
    DPAR_TRANSPORT_NONE,      /* messages wait for nothing but their data */
    DPAR_TRANSPORT_BLOCKING,  /* each end of a message waits for the other end (MPI_Ssend) */
    DPAR_TRANSPORT_RANK,      /* one queue per rank: one NCCL communicator */
    DPAR_TRANSPORT_DIRECTION, /* two queues per rank, for forward and for backward messages */
    DPAR_TRANSPORT_PAIR,      /* a queue per peer: NCCL communicators of 2 ranks */
    DPAR_TRANSPORT_EDGE, /* two queues per peer, for sends and receives: torch's p2p_per_edge */
    /* A first-in, first-out buffer of `capacity` messages from each rank to each other rank. A send
     * waits until the buffer has a free place, a receive until its message is at the front. */
    DPAR_TRANSPORT_EAGER,
    DPAR_TRANSPORT_COUNT
};

/* What to check. Zero it to prove the schedule without a transport. */
typedef struct dpar_schedule_check_desc {
    int32_t flags;     /* sum of DPAR_CHECK_x; a transport implies DPAR_CHECK_TAGGED */
    int32_t transport; /* DPAR_TRANSPORT_x */
    int32_t capacity;  /* EAGER: capacity of a buffer in messages, at least 1; otherwise ignored */
    /* [ranks], receives the action at which each rank is stuck, as an index of schedule->action, or
     * -1 if the rank has finished. With queues it is the first message of the queue that the rank
     * waits for. Written only if ranks get stuck on the transport; may be NULL. */
    int64_t *stuck;
} dpar_schedule_check_desc;

/* Proves that a schedule with or without messages is correct. With a transport it also proves that
 * all ranks reach the end of their lists.
 *
 * how:  NULL means all zero. A transport needs a schedule with messages (dpar_schedule_lower).
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG if the schedule is not correct; the message names the first fault, such as
 * "rank 2: 1B3 is listed twice". Fails with DPAR_E_STUCK if ranks wait for each other; the message
 * names the cycle: "pair: rank 0 at 0SEND_F1 waits for 1RECV_F1 that rank 1 has after 1SEND_F0;
 * rank 1 ...". Fails with DPAR_E_ROOM if `bytes` is too small. Costs O(actions).
 *
 * The outcome does not depend on the speed of ranks, so that one run proves all runs. (PyTorch
 * issue #172668 and PR #195760 are about such a deadlock.) A correct schedule keeps these rules:
 *
 *  - Kinds, stages and micro-batches are in range, and stages are on their rank. A joined forward
 *    is followed by a B or I of the same rank, with another stage or micro-batch.
 *  - Every micro-batch passes all stages of one chain, and all its slices pass the same chain. Each
 *    stage runs it in one F, and in one B or one I and one W unless there are no backwards at all.
 *  - In a rank's list, the actions of a stage and micro-batch are in the order F, OFFLOAD, RELOAD,
 *    RECOMPUTE, B or I, W.
 *  - A result that a stage passes to another stage on the same rank is made before it is used.
 *  - Slices run forward in ascending order and backward in descending order.
 *  - There is an OFFLOAD for every RELOAD and, if there are backwards, a RELOAD for every OFFLOAD.
 *  - If there are messages, each value that passes between neighbouring stages on different ranks
 *    has one SEND and one RECV with the right peer, and there are no other messages. A RECV is
 *    before the action that needs it, and a SEND after the action that makes its data. Messages
 *    from one rank to another are received in the order in which they are sent. (NCCL has no tags,
 *    so that another order would give wrong data without an error.)
 *  - If there are UNSHARD and RESHARD, they alternate for each stage and end with a RESHARD. F, B,
 *    I, W and RECOMPUTE are between an UNSHARD and the next RESHARD of their stage.
 *  - If there is a REDUCE_GRAD, each stage that has backwards has one, after them. At most one
 *    WAIT_REDUCE_GRAD follows it.
 *  - If actions wait only for their data, all ranks reach the end of their lists.
 */
DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *schedule,
                                         const dpar_schedule_check_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

#endif
