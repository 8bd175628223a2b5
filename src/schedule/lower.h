/* SPDX-License-Identifier: MIT-0 */
/* lower - from a list of computations to a list that a runner executes. Passes add messages,
 * gathers of a stage's parameters and reductions of its gradients, merge a split backward, and move
 * receives.
 *
 *     dpar_schedule_lower_desc how = {0};                           messages
 *     bytes = dpar_schedule_lower_bytes(&s, &how, &why);
 *     dpar_schedule_lower(&out, &s, &how, memory, bytes, &why); */
#ifndef DPARI_SCHEDULE_LOWER_H
#define DPARI_SCHEDULE_LOWER_H

#include "simulate.h"

/* The passes. SHARDS, REDUCE and MESSAGES go together, in this order. They are the three lowering
 * passes of PyTorch (torch/distributed/pipelining/schedules.py): the first two with its results,
 * MESSAGES in a better order, and with TURNS in PyTorch's. MERGE and LATE_RECV each go alone.
 *
 * SHARDS: a stage's parameters are gathered (UNSHARD) while it is among the first `max_active`
 * different stages that this rank computes from here on. Both stages of a joined pair count, so
 * that there may be one more. Else they are let go of (RESHARD). Of several the smaller stage goes
 * first, where PyTorch has a set's order. REDUCE: REDUCE_GRAD comes behind a stage's last B or W
 * (PyTorch: the m-th). Both passes drop idle actions.
 *
 * MESSAGES: adds SEND and RECV between neighbours of a chain that are on two ranks. Stages on one
 * rank hand over in memory. Messages are listed in the order in which their data are made: the SEND
 * directly behind the action that makes them, the RECV before whatever the peer computes at that
 * moment. The moments are those of a simulation with `times`, or without them of F = I = W = 1,
 * B = 2, and messages that take next to nothing. Idle actions are dropped. E_STUCK names a rank
 * that can never go on and what it waits for.
 *
 * All lists follow one order of all messages. So no transport that keeps the order of a channel can
 * deadlock, and both ends of a pair of ranks see the same order. When the data of a message are
 * there, both of its ends and all messages before it were posted. If the times are right, none
 * waits in a queue behind one whose data are still to come. A schedule whose messages take no time
 * is then as fast with one queue a rank (DPAR_TRANSPORT_RANK: one NCCL communicator) as with links
 * of its own. Where a receive holds its rank (BLOCKING, EAGER), run LATE_RECV on the result.
 *
 * TURNS: the order of PyTorch (_add_send_recv), action by action, instead. Ranks take turns in
 * ascending order. A rank puts its next action in its list when the receive that it needs, or the
 * neighbour's result on its own rank, is there. The SEND then goes behind the action and the RECV
 * into the peer's list, at the same moment. This is free of deadlock too, but a turn is not a time.
 * On one queue a rank, messages that are ready wait for others that are not, and interleaved
 * schedules take up to twice as long. IDLE: TURNS, and idle actions take their turn before they are
 * dropped, as in a call of _add_send_recv alone. Other actions (UNSHARD, W) always do.
 *
 * MERGE: W directly behind I of the same stage and micro-batch becomes one B with it. Idle actions
 * are dropped. A joined I stays as it is.
 *
 * LATE_RECV: each RECV moves as late as it may, so that fewer buffers wait with nobody reading
 * them. It passes computations, but never the one that needs it (F; B or I) and never a message of
 * its channel. A list that MESSAGES made stays free of deadlock over these channels. ANY is safe
 * whatever keeps order, even blocking rendezvous. PEER is a channel for each pair of ranks, or
 * finer. EDGE is one for each sender and receiver. */
enum {
    DPAR_LOWER_SHARDS = 1,
    DPAR_LOWER_REDUCE = 2,
    DPAR_LOWER_MESSAGES = 4,
    DPAR_LOWER_IDLE = 8,
    DPAR_LOWER_MERGE = 16,
    DPAR_LOWER_LATE_RECV = 32,
    DPAR_LOWER_TURNS = 64
};
enum { DPAR_CHANNEL_ANY, DPAR_CHANNEL_PEER, DPAR_CHANNEL_EDGE, DPAR_CHANNEL_COUNT };
enum { DPAR_LOWER_MAX_ACTIVE = 24 };

/* Which passes, and how. Zero it and fill it in. */
typedef struct dpar_schedule_lower_desc {
    int32_t passes;     /* sum of DPAR_LOWER_...; 0: MESSAGES */
    int32_t max_active; /* SHARDS: 1 to DPAR_LOWER_MAX_ACTIVE stages; 0 is 3, as in PyTorch */
    int32_t channel;    /* LATE_RECV: DPAR_CHANNEL_... */
    /* MESSAGES, but not by turns: what actions and messages take, each of them 0 to INT64_MAX / 3
     * (bandwidth: / 10). sends, links, transport and memory are not read. On one queue a rank give
     * latency or bytes and bandwidth, too, where messages take more than a tenth of F. NULL: F, I,
     * W and RECOMPUTE take 1, B 2, messages less than all of these, all others nothing. */
    const dpar_schedule_times *times;
} dpar_schedule_lower_desc;

/* Bytes of memory that the passes take. `how` may be NULL: all zero. O(actions x max_active).
 *
 * -1 with a sentence for times out of their domain, or a list that no pass takes. It has a kind,
 * stage or micro-batch that does not exist, or a stage on another rank than rank_of says. Or a
 * joined forward has no B or I behind it, or a message goes between stages that are no neighbours.
 *
 * The size is exact; REDUCE has room for one action a stage. Beside the schedule MERGE takes
 * nothing. LATE_RECV takes 16 bytes a rank, 8 an action of the longest list, and one for each stage
 * and micro-batch. The others take 52 bytes a rank (by turns 48 and a few bits), 8 a stage, and 16
 * for each stage and micro-batch. */
DPAR_API int64_t dpar_schedule_lower_bytes(const dpar_schedule *in,
                                           const dpar_schedule_lower_desc *how, dpar_why *why);
/* Reads `in`, writes `out` into mem (aligned as for int64_t). mem must not be in's; it is out's
 * from then on. The schedule lies first, and what is behind its rank_of is free again. E_ARG: as
 * above, or the list already has what a pass adds. E_RANGE: times whose sum passes INT64_MAX.
 * E_ROOM. `out` is written on success only. O(actions x (max_active + log ranks)). */
DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_schedule_lower_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

#endif
