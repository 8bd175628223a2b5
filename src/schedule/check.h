/* SPDX-License-Identifier: MIT-0 */
/* check - is a schedule right, and does it come to its end on a given transport? */
#ifndef DPARI_SCHEDULE_CHECK_H
#define DPARI_SCHEDULE_CHECK_H

#include "schedule.h"

/* What counts as right, beyond the rules below. */
enum {
    DPAR_CHECK_TRAINS = 1, /* a list without any backward is refused: else it is forward-only */
    DPAR_CHECK_TAGGED = 2  /* messages have tags (MPI): any order on a channel will do */
};

/* How messages travel. BLOCKING: a rank does its actions in order and stays at a message until the
 * other rank is at its other end (MPI_Ssend, MPI_Recv). RANK to EDGE: messages are posted and wait
 * in a queue; one goes over when both its ends are the first of their queues; a computation waits
 * for what it receives (NCCL). Queues are those of a rank, one for all messages (RANK: one
 * communicator), for those of the forward and of the backward (DIR), for each other rank (PAIR: 2-
 * rank communicators), for each other rank and way (EDGE: PyTorch's p2p_per_edge). EAGER: a rank
 * does its actions in order; from each rank to each other one there is a buffer of `room` messages,
 * first in first out: a send waits for a place in it, a receive for its message at the front.
 * What passes BLOCKING passes all. */
enum {
    DPAR_TRANSPORT_NONE, /* messages wait for nothing but the data */
    DPAR_TRANSPORT_BLOCKING,
    DPAR_TRANSPORT_RANK,
    DPAR_TRANSPORT_DIR,
    DPAR_TRANSPORT_PAIR,
    DPAR_TRANSPORT_EDGE,
    DPAR_TRANSPORT_EAGER,
    DPAR_TRANSPORTS
};

/* What is asked. Zero-initialise it: the proof alone. */
typedef struct dpar_checking {
    int32_t flags;     /* DPAR_CHECK_...; with a transport TAGGED is implied */
    int32_t transport; /* DPAR_TRANSPORT_... */
    int32_t room;      /* messages of an EAGER buffer, 1 and more; else ignored */
    int64_t *stuck;    /* NULL, or [ranks], written when the transport gets stuck and only then:
                          where each rank stands, the index in s->action, -1 when it is through; of
                          queued messages the first of the queue that holds up the rank */
} dpar_checking;

/* Bytes of working memory; -1 when ranks, stages, chain, micros, slices or begin are not those of a
 * schedule (the check says why). `how` may be NULL: all zero. O(ranks). */
DPAR_API int64_t dpar_schedule_check_bytes(const dpar_schedule *s, const dpar_checking *how);

/* Proves a schedule, compute alone or with messages: DPAR_OK, or E_ARG and the first fault as one
 * sentence, "rank 2: 1B3 is there twice". Any actions may stand in it. The rules:
 *  - kinds, stages, micro-batches in range; stages on their rank; a joined forward is followed by a
 *    B or I of the same rank, not its own;
 *  - every micro-batch goes through one chain, all its stages, the slices of one through the same:
 *    there F once, and B once or I and W once, or no backward anywhere; nothing twice;
 *  - in a rank's list F, OFFLOAD, RELOAD, RECOMPUTE, B or I, W in this order; what a stage gives to
 *    another of the same rank is made before it is used; slices forward in ascending, backward in
 *    descending order; an OFFLOAD for every RELOAD, and a RELOAD for every OFFLOAD where there is a
 *    backward;
 *  - messages, if there is one: both ends of each between stages that are neighbours on different
 *    ranks, once, with the right peer, and no other; RECV before its consumer, SEND after its
 *    producer; from one rank to another received in the order in which they are sent, whatever
 *    they carry (NCCL has no tags: another order is no error there but wrong data);
 *  - UNSHARD, RESHARD, if there is one: in turn for each stage, the last a RESHARD, and F, B, I, W,
 *    RECOMPUTE in between;
 *  - REDUCE_GRAD, if there is one: of each stage that has backwards once, after them; behind it
 *    WAIT_REDUCE_GRAD at most once;
 *  - all ranks together come to the end when nothing but the data is waited for; else E_STUCK and
 *    the circle.
 *
 * With a transport: does the list, which must have its messages, come to its end on it? E_STUCK and
 * the circle when it does not: "pair: rank 0 at 0SEND_F1 waits for 1RECV_F1 that rank 1 has after
 * 1SEND_F0; rank 1 ...". No run depends on the ranks' speed, so that one run proves all. Source:
 * what PyTorch issue #172668 and PR #195760 report.
 *
 * E_ROOM when mem (aligned as for int64_t) is too small. `how` may be NULL. O(actions). */
DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *s, const dpar_checking *how,
                                         void *mem, int64_t bytes, dpar_why *why);

#endif
