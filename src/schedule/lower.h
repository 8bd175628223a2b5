/* SPDX-License-Identifier: MIT-0 */
/* lower - passes over schedules, from a list of computations to one that a runner executes: when a
 * stage's parameters are gathered and let go, when its gradients are reduced, which message goes
 * before which, and how late a receive is posted. */
#ifndef DPARI_SCHEDULE_LOWER_H
#define DPARI_SCHEDULE_LOWER_H

#include "schedule.h"

/* The passes. SHARDS, REDUCE and MESSAGES go together, in this order: the three lowering passes of
 * PyTorch (torch/distributed/pipelining/schedules.py), with its results. MERGE and LATE_RECV each
 * go alone.
 *
 * SHARDS: a stage's parameters are gathered (UNSHARD) when it is among the first `max_active`
 * different stages that this rank computes from here on (both stages of a joined pair count, so
 * that there may be one more), and let go (RESHARD; of several the smaller stage
 * first, where PyTorch has a set's order) when it no longer is.
 * REDUCE: REDUCE_GRAD behind a stage's last B or W (PyTorch: the m-th). Both drop idle actions.
 *
 * MESSAGES: SEND and RECV between neighbours of a chain that are on two ranks; stages on one rank
 * hand over in memory. Turn by turn, ranks ascending, each rank puts its next action in its list if
 * the receive (or the neighbour's result on its own rank) that it needs is there already; then the
 * SEND goes behind it and the RECV into the peer's list, at the same moment. So all lists follow
 * one order of all messages: no transport that keeps the order of a channel can deadlock, and both
 * ends of each pair of ranks see the same order. Any other action (UNSHARD, W) takes its turn too;
 * idle ones are dropped, with IDLE after their turn (as in a call of _add_send_recv alone; the
 * passes before drop them). E_STUCK names a rank that can never go on and what it waits for.
 *
 * MERGE: where W stands directly behind I of the same stage and micro-batch they become one B; idle
 * actions are dropped. A joined I stays as it is.
 *
 * LATE_RECV: each RECV moves as late as it may, so that fewer buffers wait with nobody reading
 * them: past computations, never past the one that needs it (F; B or I) and never past a message of
 * its channel. A list that MESSAGES made stays free of deadlock over these channels. ANY: whatever
 * keeps order, even blocking rendezvous; PEER: a channel for each pair of ranks, or finer; EDGE:
 * one for each sender and receiver. */
enum {
    DPAR_LOWER_SHARDS = 1,
    DPAR_LOWER_REDUCE = 2,
    DPAR_LOWER_MESSAGES = 4,
    DPAR_LOWER_IDLE = 8,
    DPAR_LOWER_MERGE = 16,
    DPAR_LOWER_LATE_RECV = 32
};
enum { DPAR_CHANNEL_ANY, DPAR_CHANNEL_PEER, DPAR_CHANNEL_EDGE, DPAR_CHANNELS };
enum { DPAR_MOST_ACTIVE = 24 };

typedef struct dpar_lowering {
    int32_t passes;     /* sum of DPAR_LOWER_...; without a pass: MESSAGES */
    int32_t max_active; /* SHARDS: 1 to DPAR_MOST_ACTIVE stages; 0 is 3, as in PyTorch */
    int32_t channel;    /* LATE_RECV: DPAR_CHANNEL_... */
} dpar_lowering;

/* Bytes of memory that the passes take; -1 with a sentence for a list that no pass takes: a kind,
 * stage or micro-batch that there is not, a stage on another rank than rank_of says, a joined
 * forward without a B or I behind it, a message that is none between neighbours. `how` may be NULL:
 * all zero. Beside the schedule: nothing (MERGE); 16 bytes a rank, 8 an action of the longest list,
 * one byte for each stage and micro-batch (LATE_RECV); 41 bytes a rank, 8 a stage, one byte for
 * each stage and micro-batch (the others). The size is exact but for REDUCE, where it has room for
 * one action a stage. O(actions x max_active). */
DPAR_API int64_t dpar_schedule_lower_bytes(const dpar_schedule *in, const dpar_lowering *how,
                                           dpar_why *why);
/* Reads `in`, writes `out` into mem (aligned as for int64_t), which must not be in's and is out's
 * from then on. The schedule lies first; what the passes worked with lies behind its rank_of and is
 * free again. `out` is written on success only. E_ARG as above, and where what a pass adds is in
 * the list already; E_ROOM. O(actions x max_active). */
DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_lowering *how, void *mem, int64_t bytes,
                                         dpar_why *why);

#endif
