/* SPDX-License-Identifier: MIT-0 */
/* simulate - computes when each action of a schedule starts and ends, how long the schedule takes,
 * where ranks are idle and why, and how much memory they hold. Integers only, so that results are
 * the same on every machine.
 *
 *     dpar_schedule_times t = {0};
 *     dpar_schedule_simulate_desc how = {0};
 *     t.forward.all = 1000;                           ns, of every stage
 *     t.backward.all = 2000;
 *     how.times = &t;
 *     dpar_schedule_simulate(&s, &how, &timing, memory, sizeof memory, &why);
 *     timing.makespan, timing.bubble_of_work.part, ...
 */
#ifndef DPARI_SCHEDULE_SIMULATE_H
#define DPARI_SCHEDULE_SIMULATE_H

#include "check.h"

/* A number for each stage: each[stage] if `each` is not NULL, otherwise `all`. For numbers of
 * edges, each[s] belongs to the edge between stages s and s + 1, in both directions; the entry of a
 * stage that ends a chain is read but not used. */
typedef struct dpar_stage_values {
    int64_t all;
    /* [stages], the caller's; may be NULL */
    const int64_t *each;
} dpar_stage_values;

/* How messages are sent. */
enum {
    /* A message starts when its SEND is reached, and arrives whether or not its RECV has been
     * reached. Neither occupies its rank. A list without messages implies this mode. */
    DPAR_SEND_MODE_BUFFERED,
    /* A message starts when both its SEND and its RECV have been reached. Neither occupies its
     * rank, and the message waits for no other message. For lists with messages. */
    DPAR_SEND_MODE_POSTED,
    /* As POSTED, but each end occupies its rank until the message has arrived: rendezvous in the
     * order of the list (MPI_Ssend, MPI_Recv). */
    DPAR_SEND_MODE_BLOCKING,
    DPAR_SEND_MODE_COUNT
};

/* Which messages share a link. */
enum {
    DPAR_CONTENTION_NONE, /* each message has its own link */
    /* All messages from one rank to another use one link in turn, in the order of their sends. A
     * turn takes bytes / bandwidth; the latency is not part of it. Only with
     * DPAR_SEND_MODE_BUFFERED. */
    DPAR_CONTENTION_PAIR,
    DPAR_CONTENTION_RANK, /* all messages that a rank sends use one link in turn */
    DPAR_CONTENTION_COUNT
};

/* The times of actions and messages, in any unit, 0 or more. Zero it, then set the fields that you
 * need. */
typedef struct dpar_schedule_times {
    dpar_stage_values forward, input, weight; /* F, I and W of a stage */
    dpar_stage_values backward;               /* B; 0 selects input + weight */
    dpar_stage_values overlap; /* a joined pair, by the stage of its forward; 0 runs F and B one
                                  after the other */
    /* These actions occupy the rank, too. WAIT_REDUCE_GRAD takes no time, because its REDUCE_GRAD
     * has ended. */
    dpar_stage_values unshard, reshard, reduce_grad, recompute, offload, reload;

    /* A message takes latency + bytes * 10^9 / bandwidth, with the quotient rounded up. */
    dpar_stage_values latency;
    dpar_stage_values bytes;     /* bytes of one message */
    dpar_stage_values bandwidth; /* bytes in 10^9 units of time, which is bytes/s if the unit is ns;
                                    0 is infinite */
    /* DPAR_SEND_MODE_x and DPAR_CONTENTION_x */
    int32_t sends, links;

    /* The transport, DPAR_TRANSPORT_x of check.h, for lists with messages; `sends` and `links` must
     * then be 0. With DPAR_TRANSPORT_NONE, `sends` and `links` say how messages are sent.
     *
     * RANK, DIRECTION, PAIR and EDGE are as POSTED, but a message starts when it is the first in
     * its queue on both ranks. Messages behind it wait until it has arrived, because an NCCL
     * communicator runs its operations one after another. With EAGER, a SEND occupies its rank
     * until the buffer to the other rank has a free place, and a RECV until its message is at the
     * front of the buffer and has arrived. BLOCKING is as DPAR_SEND_MODE_BLOCKING.
     */
    int32_t transport;
    int32_t capacity; /* EAGER: capacity of a buffer in messages, at least 1; otherwise ignored */

    /* Bytes that F, I and W of a micro-batch add to the rank's memory. F adds a positive number; I
     * and W usually add negative ones. B adds what I and W add. Memory grows at the start of an
     * action and shrinks at its end; a joined pair holds both. OFFLOAD subtracts what F added, and
     * RELOAD adds it again. */
    dpar_stage_values hold_forward, hold_input, hold_weight;
    dpar_stage_values
        hold_always; /* bytes of each stage at all times: parameters, gradients, optimizer */

    /* [ranks], bytes that each rank may hold; 0 means no limit. A cap does not change any time. It
     * decides which idle time is counted as lack of memory, and over_cap reports by how much it is
     * exceeded.
     *
     * With a cap (`each` not NULL, or `all` not 0) and no hold_forward, an activation counts as 1
     * from F to B or W, as in a dpar_schedule_optimize_desc, and hold_input and hold_weight are not
     * read. The cap and peak_bytes then count activations, on top of hold_always.
     */
    dpar_stage_values cap;
} dpar_schedule_times;

/* A fraction, part / whole; 0 / 0 if nothing takes time. */
typedef struct dpar_ratio {
    int64_t part, whole;
} dpar_ratio;

/* The timing of one rank. busy + the five kinds of idle time = makespan. Idle time belongs to the
 * gap before an action, in which the rank waits for the action's last input.
 *
 * A gap counts as lack of memory under the following rule. A rank runs its list in order, so that
 * memory delays no action; but with more memory the rank might have run ahead of its list. Take the
 * next forward after the action that ends the gap. (With blocking sends that action may be a
 * message. Of a joined pair only the forward counts.) The forward could start once its input has
 * arrived and the actions that it needs on this rank have ended, whether or not the list has
 * reached it. From that moment on the gap counts as memory if the forward would not fit, which
 * means that the bytes that the rank holds before the gap plus hold_forward exceed the cap.
 *
 * The part of the gap before that moment keeps its cause, and so does the whole gap if there is no
 * forward left. A larger cap never increases this time. A list that itself exceeds its cap is
 * not refused: over_cap reports it, and its gaps count as if the rank kept to the cap.
 */
typedef struct dpar_rank_timing {
    int64_t busy;       /* everything that occupies the rank except blocking messages */
    int64_t warm_up;    /* before its first work; the whole makespan if it has none */
    int64_t dependency; /* the work that the rank waits for has not ended */
    /* That work has ended but its message has not arrived, or a message occupies the rank
     * (BLOCKING, EAGER). */
    int64_t communication;
    int64_t memory;      /* the next forward could start but does not fit; 0 without a cap */
    int64_t drain;       /* after its last work */
    int64_t first, last; /* start of its first work and end of its last; 0, 0 if it has none */
    int64_t peak_bytes;  /* the most bytes that its stages hold at once, with hold_always */
    int64_t over_cap;    /* by how much peak_bytes exceeds the cap; 0 if it does not or there is no
                            cap */
    /* The most activations at once, in stages x micro-batches, each from F through B or W, without
     * those that are offloaded. */
    int32_t peak_count;
    int32_t reserved;
} dpar_rank_timing;

/* The results of a simulation. */
typedef struct dpar_timing {
    int64_t makespan; /* from 0 until the last rank has finished */
    /* The largest last - first of any rank: the time of a step if no rank waits for others before
     * its optimizer's step. */
    int64_t span;
    int64_t busy; /* busy time of all ranks together */

    /* The bubble as different sources define it. The values differ, so state which one you mean. */
    dpar_ratio bubble_of_makespan; /* 1 - busy / (ranks x makespan): GPipe, Chimera; below 1 */
    dpar_ratio bubble_of_work;     /* idle / busy: Megatron's (p - 1) / m; may exceed 1 */
    /* 1 - busy / (ranks x span): zero-bubble papers; a late start of a rank does not count */
    dpar_ratio bubble_of_span;
    int64_t bubble_worst; /* the longest idle time of a rank: DualPipe's table */
    int64_t bubble_first; /* idle time of rank 0: the zero-bubble paper's formulas */

    int64_t peak_bytes; /* the largest peak_bytes of a rank */
    int32_t peak_count; /* the largest peak_count of a rank */
    int32_t lowered;    /* 1 if the list has messages; 0 if they were implied */
    int64_t over_cap;   /* the largest over_cap of a rank; 0 if all fit */

    /* The critical path, a chain of actions that determines the makespan, because each starts as
     * soon as the one before it allows. */
    int64_t path_actions;       /* number of actions */
    int64_t path_compute;       /* time of these actions */
    int64_t path_communication; /* the rest of the makespan: messages on the path */
} dpar_timing;

/* What to simulate, and where results are stored. Zero it, then set `times`, and the arrays of the
 * results that you want. */
typedef struct dpar_schedule_simulate_desc {
    const dpar_schedule_times *times;
    /* [actions], receive when each action starts and ends; may be NULL. A SEND or RECV starts when
     * it is reached and ends when its message arrives, which for a buffered message may be earlier.
     * Both actions of a joined pair have the pair's times. */
    int64_t *start, *end;
    dpar_rank_timing *rank; /* [ranks], receives the timing of each rank; may be NULL */
    /* [actions], receives the critical path, first action first, as timing->path_actions indices of
     * schedule->action; may be NULL. It contains work and messages of the list; a joined pair is
     * represented by its forward. Of equally long chains it is the one that stays on its rank, and
     * it ends on the first of the ranks that end last. */
    int64_t *path;
} dpar_schedule_simulate_desc;

/* Simulates a schedule. Each rank runs its list in order, and an action starts when the rank is
 * free and its inputs have arrived. A joined pair starts when the inputs of both actions have
 * arrived, and both end at the same time.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs: 12 per action, 28 per stage and micro-batch, 248 per
 *       stage, 156 per rank. Shared links take 8 more per action and 20 per stage; transports from
 *       RANK to EAGER take 8 more per action and 24 per rank.
 *
 * If the list has no SEND or RECV, messages are implied: between ranks an input arrives one message
 * time after the end of its producer. Otherwise work waits for the message of its RECV. Messages
 * are sent to the ranks of the stages; `peer` is not read.
 *
 * Fails with DPAR_E_ARG for
 *
 *  - a negative time, size or cap;
 *  - an action that is out of the schedule's domain or appears twice;
 *  - work before other work that it needs on its own rank: B before F, W before I, a stage or slice
 *    before the previous one;
 *  - a message without its other half;
 *  - sends that are not BUFFERED on a list without messages or with shared links;
 *  - a transport on a list without messages, or with sends and links that are not 0.
 *
 * Fails with DPAR_E_STUCK if ranks wait for each other in a cycle; the message names a rank and the
 * actions, and dpar_schedule_check with the transport names the cycle. Fails with DPAR_E_RANGE if a
 * sum of times or bytes exceeds INT64_MAX, or DPAR_E_ROOM if `bytes` is too small. Costs O(actions
 * + stages + ranks), however long the times are.
 */
DPAR_API dpar_status dpar_schedule_simulate(const dpar_schedule *schedule,
                                            const dpar_schedule_simulate_desc *how,
                                            dpar_timing *timing, void *mem, int64_t bytes,
                                            dpar_why *why);

#endif
