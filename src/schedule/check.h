/* SPDX-License-Identifier: MIT-0 */
/* check - is a schedule right, and does it come to its end on a given transport?
 *
 *     dpar_schedule_check_desc how = {0};
 *     how.transport = DPAR_TRANSPORT_PAIR;                 NCCL, a communicator for each pair
 *     st = dpar_schedule_check(&lowered, &how, memory, sizeof memory, &why); */
#ifndef DPARI_SCHEDULE_CHECK_H
#define DPARI_SCHEDULE_CHECK_H

#include "schedule.h"

/* What counts as right, beyond the rules below. */
enum {
    DPAR_CHECK_TRAINS =
        1, /* a list without any backward is refused; without the flag it counts as forward-only */
    DPAR_CHECK_TAGGED = 2 /* messages have tags (MPI): any order on a channel is right */
};

/* How messages travel. What passes BLOCKING passes all.
 *
 *     BLOCKING   a rank does its actions in order and stays at a message until the other rank
 *                is at its other end (MPI_Ssend, MPI_Recv)
 *     RANK       messages are posted and wait in a queue; one goes when both its ends are first
 *                in their queues; a computation waits for what it receives (NCCL).
 *                One queue a rank, for all messages: one communicator
 *     DIR        the same, a queue for the forward's and one for the backward's
 *     PAIR       a queue for each other rank: communicators of 2 ranks
 *     EDGE       a queue for each other rank and direction: PyTorch's p2p_per_edge
 *     EAGER      a rank does its actions in order. From each rank to each other one there is a
 *                buffer of `room` messages, first in first out. A send waits for a place in it,
 *                a receive for its message at the front */
enum {
    DPAR_TRANSPORT_NONE, /* messages wait for nothing but the data */
    DPAR_TRANSPORT_BLOCKING,
    DPAR_TRANSPORT_RANK,
    DPAR_TRANSPORT_DIRECTION,
    DPAR_TRANSPORT_PAIR,
    DPAR_TRANSPORT_EDGE,
    DPAR_TRANSPORT_EAGER,
    DPAR_TRANSPORT_COUNT
};

/* What is checked. Zero it: the proof alone. */
typedef struct dpar_schedule_check_desc {
    int32_t flags;     /* DPAR_CHECK_...; with a transport TAGGED is implied */
    int32_t transport; /* DPAR_TRANSPORT_... */
    int32_t room;      /* messages of an EAGER buffer, 1 and more; else ignored */
    int64_t *stuck; /* NULL, or [ranks], written only when the transport gets stuck: where each rank
                       stands, as an index in s->action; -1 when it is through. Of queued messages
                       it is the first of the queue that holds up the rank */
} dpar_schedule_check_desc;

/* Bytes of working memory. -1 when ranks, stages, chain, micros, slices or begin are not those of a
 * schedule; the check says why. `how` may be NULL: all zero. O(ranks). */
DPAR_API int64_t dpar_schedule_check_bytes(const dpar_schedule *s,
                                           const dpar_schedule_check_desc *how);

/* Proves a schedule, with messages or without: DPAR_OK, or E_ARG with the first fault in one
 * sentence, "rank 2: 1B3 is there twice". mem is aligned as for int64_t; E_ROOM when it is too
 * small. `how` may be NULL. O(actions). A right schedule keeps these rules:
 *
 *  - Kinds, stages and micro-batches are in range, stages on their rank. Behind a joined forward
 *    comes a B or I of the same rank, of another stage or micro-batch.
 *  - Every micro-batch goes through all stages of one chain, its slices through the same. Each
 *    stage has F once, and B once or I and W once; or no backward is anywhere.
 *  - In a rank's list F, OFFLOAD, RELOAD, RECOMPUTE, B or I, W come in this order.
 *  - What a stage gives to another of the same rank is made before it is used.
 *  - Slices go forward in ascending, backward in descending order.
 *  - There is an OFFLOAD for every RELOAD, and with backwards a RELOAD for every OFFLOAD.
 *  - Messages, if there is one: what goes between neighbouring stages on different ranks has its
 *    SEND and its RECV once, with the right peer, and there is no other message. RECV comes before
 *    its consumer, SEND after its producer. What one rank sends to another is received in the order
 *    in which it is sent, whatever it carries. (NCCL has no tags: another order is no error there
 *    but wrong data.)
 *  - UNSHARD and RESHARD, if there is one: they alternate for each stage, the last is a RESHARD,
 *    and F, B, I, W, RECOMPUTE stand in between.
 *  - REDUCE_GRAD, if there is one: once for each stage that has backwards, after them; at most one
 *    WAIT_REDUCE_GRAD behind it.
 *  - All ranks together come to the end when they wait for the data alone; else E_STUCK and the
 *    circle.
 *
 * With a transport it also asks whether the list, which must have its messages, comes to its end on
 * it. When not: E_STUCK and the circle, "pair: rank 0 at 0SEND_F1 waits for 1RECV_F1 that rank 1
 * has after 1SEND_F0; rank 1 ...". The outcome does not depend on the ranks' speed, so that one run
 * proves all. (The case of PyTorch issue #172668 and PR #195760.) */
DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *s,
                                         const dpar_schedule_check_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

#endif
