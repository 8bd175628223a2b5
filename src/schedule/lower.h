/* SPDX-License-Identifier: MIT-0 */
/* lower - turns a list of computations into a list that a runner can execute. Passes add messages,
 * gathers of parameters and reductions of gradients, merge split backwards, and move receives.
 *
 *     dpar_schedule_lower_desc how = {0};                           adds messages
 *     dpar_schedule_lower(&out, &s, &how, memory, sizeof memory, &why);
 */
#ifndef DPARI_SCHEDULE_LOWER_H
#define DPARI_SCHEDULE_LOWER_H

#include "simulate.h"

/* The passes of dpar_schedule_lower.
 *
 * SHARDS, REDUCE and MESSAGES may be combined and run in this order. They are the three lowering
 * passes of PyTorch (torch/distributed/pipelining/schedules.py). The first two give PyTorch's
 * results; MESSAGES gives a better order, and PyTorch's with TURNS. MERGE and LATE_RECV each run on
 * their own. SHARDS, REDUCE, MESSAGES and MERGE drop idle actions.
 */
enum {
    /* Keeps a stage's parameters gathered while the stage is among the next `max_active` different
     * stages that the rank computes: UNSHARD gathers them, RESHARD frees them. A joined pair is not
     * divided, so that there may be one stage more. Stages that are freed at the same time are
     * freed in ascending order, where PyTorch has the order of a set. */
    DPAR_LOWER_SHARDS = 1,
    /* Puts a REDUCE_GRAD after a stage's last B or W (PyTorch: after the m-th). */
    DPAR_LOWER_REDUCE = 2,
    /* Adds SEND and RECV between neighbours of a chain that are on two ranks. Stages on the same
     * rank pass values in memory. Messages are listed in the order in which their data are made: a
     * SEND directly after the action that makes its data, and its RECV before the action that the
     * peer runs at that time. The times come from a simulation with dpar_schedule_lower_desc.times.
     * Fails with DPAR_E_STUCK if a rank can never continue; the message names it and what it waits
     * for.
     *
     * All lists follow one global order of messages. Therefore no transport that keeps the order of
     * a channel can deadlock, and both ranks of a pair see the same order. When the data of a
     * message have been made, both of its ends and all messages before it have been posted. If the
     * times are right, no message waits in a queue behind one whose data do not exist yet. If
     * messages take no time, one queue per rank (DPAR_TRANSPORT_RANK: one NCCL communicator) is
     * then as fast as a link for every message. If a receive occupies its rank (BLOCKING, EAGER),
     * run LATE_RECV on the result. */
    DPAR_LOWER_MESSAGES = 4,
    /* As TURNS, but idle actions take a turn before they are dropped, as in a direct call of
     * _add_send_recv. Other actions (UNSHARD, W) always take a turn. */
    DPAR_LOWER_IDLE = 8,
    /* Joins a W directly after the I of the same stage and micro-batch into one B. A joined I stays
     * as it is. */
    DPAR_LOWER_MERGE = 16,
    /* Moves each RECV as late as possible, so that fewer buffers hold data that nobody reads yet. A
     * RECV moves past computations, but never past the one that needs it (F; B or I) and never past
     * a message of its channel. A list made by MESSAGES stays free of deadlock over these
     * channels. */
    DPAR_LOWER_LATE_RECV = 32,
    /* Makes MESSAGES use PyTorch's order (_add_send_recv) instead, action by action. Ranks take
     * turns in ascending order. A rank appends its next action to its list if the receive that it
     * needs, or the neighbouring stage's action on the same rank, is in the list. At the same
     * moment the SEND of its result is appended after it, and the RECV to the peer's list.
     *
     * This cannot deadlock either, but turns are not times. With one queue per rank, messages that
     * are ready wait behind others that are not, and interleaved schedules take up to twice as
     * long. */
    DPAR_LOWER_TURNS = 64
};

/* The channels whose order LATE_RECV keeps. */
enum {
    /* One channel for all messages. Safe on every transport, even with blocking rendezvous. */
    DPAR_CHANNEL_ANY,
    DPAR_CHANNEL_PEER, /* a channel for each pair of ranks, in both directions */
    DPAR_CHANNEL_EDGE, /* a channel for each sender and receiver */
    DPAR_CHANNEL_COUNT
};

/* The largest max_active. */
enum { DPAR_LOWER_MAX_ACTIVE = 24 };

/* The passes to run and their settings. Zero it, then set the fields that you need. */
typedef struct dpar_schedule_lower_desc {
    int32_t passes;     /* sum of DPAR_LOWER_x; 0 selects DPAR_LOWER_MESSAGES */
    int32_t max_active; /* SHARDS: 1 to DPAR_LOWER_MAX_ACTIVE stages; 0 selects 3, as in PyTorch */
    int32_t channel;    /* LATE_RECV: DPAR_CHANNEL_x */
    /* For MESSAGES without TURNS, the times of actions and messages, each of them 0 to INT64_MAX /
     * 3 (bandwidth: / 10). sends, links, transport and memory are not read. If you have one queue
     * per rank and messages take more than a tenth of F, set latency or bytes and bandwidth too.
     * NULL means that F, I, W and RECOMPUTE take 1, B takes 2, messages take less than any of
     * these, and all other actions take nothing. */
    const dpar_schedule_times *times;
} dpar_schedule_lower_desc;

/* Runs the passes on schedule `in` and makes schedule `out` in the caller's memory.
 *
 * how:  NULL means all zero.
 * mem:  aligned as for int64_t, and not the memory of `in`. With NULL and 0 bytes the call fails
 *       with DPAR_E_ROOM, and why->bytes is how many it needs; with REDUCE this includes one action
 *       per stage. The schedule is at the front of mem, and after the call only its bytes are in
 *       use.
 *
 * MERGE needs only the bytes of the schedule. LATE_RECV needs 16 more per rank, 8 per action of the
 * longest list, and one for each stage and micro-batch. The other passes need 52 more per rank, 8
 * per stage, and 16 for each stage and micro-batch.
 *
 * Fails with DPAR_E_ARG if times are out of their domain, or the list already has actions of a kind
 * that a pass adds. Fails with DPAR_E_ARG, too, if a kind, stage or micro-batch does not exist, or
 * a stage is not on the rank that rank_of names. The same happens if a joined forward has no B or I
 * after it, or a message connects stages that are not neighbours. Fails with DPAR_E_STUCK as
 * described above, DPAR_E_RANGE if a sum of times exceeds INT64_MAX, or DPAR_E_ROOM if `bytes` is
 * too small. Costs O(actions x (max_active + log ranks)).
 */
DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_schedule_lower_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

#endif
