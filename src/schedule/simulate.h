/* SPDX-License-Identifier: MIT-0 */
/* simulate - when each action of a schedule starts and ends, how long the whole takes, where ranks
 * stand idle and why, and the memory that they hold. All in whole numbers, the same on every
 * machine.
 *
 *     dpar_schedule_times t = {0};
 *     dpar_schedule_simulate_desc how = {0};
 *     t.forward.all = 1000;                           ns, of every stage
 *     t.backward.all = 2000;
 *     how.times = &t;
 *     dpar_schedule_simulate(&s, &how, &timing, memory, sizeof memory, &why);
 *     timing.makespan, timing.bubble_of_work.part, ... */
#ifndef DPARI_SCHEDULE_SIMULATE_H
#define DPARI_SCHEDULE_SIMULATE_H

#include "check.h"

/* A number for each stage: of[stage] when `of` is given (the caller's, [stages]), else `all`. Of
 * edges, of[s] is the one between stages s and s + 1, both ways; where a chain ends it is read and
 * unused. */
typedef struct dpar_stage_values {
    int64_t all;
    const int64_t *of;
} dpar_stage_values;

/* How messages go. */
enum {
    DPAR_SEND_MODE_BUFFERED, /* a message leaves when it is sent and arrives whether or not its RECV
                            was reached; neither holds a rank. A list without messages implies this
                          */
    DPAR_SEND_MODE_POSTED, /* it leaves when both its SEND and its RECV were reached; neither holds
                          a rank, and it waits for no other message. For lists with messages */
    DPAR_SEND_MODE_BLOCKING, /* as POSTED, and each holds its rank until it is done: rendezvous in
                            the order of the list (MPI_Ssend, MPI_Recv) */
    DPAR_SEND_MODE_COUNT
};
/* Which messages take turns. */
enum {
    DPAR_CONTENTION_NONE, /* each message has a link to itself */
    DPAR_CONTENTION_PAIR, /* messages from one rank to one other take turns, in the order of their
                           sends. bytes / bandwidth is a turn, latency is not. With
                           DPAR_SEND_MODE_BUFFERED */
    DPAR_CONTENTION_RANK, /* all messages that leave a rank take turns */
    DPAR_CONTENTION_COUNT
};
/* What actions and messages take, in any unit of time, 0 or more. Zero it and fill it in. */
typedef struct dpar_schedule_times {
    dpar_stage_values forward, input, weight; /* F, I, W of a stage */
    dpar_stage_values backward;               /* B; 0: input + weight */
    dpar_stage_values overlap; /* a joined pair, of its forward's stage; 0: both in turn */
    /* These hold the rank too. WAIT_REDUCE_GRAD takes no time: its REDUCE_GRAD is over. */
    dpar_stage_values unshard, reshard, reduce_grad, recompute, offload, reload;

    /* A message takes latency + bytes * 10^9 / bandwidth, the quotient rounded up. */
    dpar_stage_values latency;
    dpar_stage_values bytes; /* of one message */
    dpar_stage_values
        bandwidth; /* bytes in 10^9 units of time: bytes/s when the unit is ns; 0: infinite */
    int32_t sends, links;

    /* The transport on which the list runs: DPAR_TRANSPORT_... of check.h. For lists with messages;
     * `sends` and `links` are then 0. NONE: they say how messages go.
     *
     * RANK, DIR, PAIR, EDGE: as POSTED, but a message leaves when it is the first in the queues of
     * both its ends, and those behind it wait until it has arrived. So a NCCL communicator does its
     * operations, one after the other. EAGER: a SEND holds its rank until the buffer to the other
     * rank has a place, a RECV until its message is the first there and has arrived. BLOCKING: as
     * DPAR_SEND_MODE_BLOCKING. */
    int32_t transport;
    int32_t room; /* EAGER: messages of a buffer, 1 or more; else ignored */

    /* Bytes that F, I and W of a micro-batch add to the rank's memory: F above 0, I and W as a rule
     * below. B adds what I and W add. What is added counts from the start of the action, what goes,
     * goes at its end; a joined pair holds both. OFFLOAD takes away what F added, RELOAD adds it
     * again. */
    dpar_stage_values hold_forward, hold_input, hold_weight;
    dpar_stage_values
        hold_always; /* parameters, gradients, optimizer: of each stage, all the time */

    /* Bytes that a rank may hold: of[rank], [ranks]; 0: no limit. A cap moves nothing. It says
     * which idle time is for want of memory, and what passes it (over_cap).
     *
     * With a cap (`of`, or `all` not 0) and no hold_forward, an activation counts as 1 from F to B
     * or W, as in a dpar_schedule_optimize_desc. hold_input and hold_weight are then not read. The
     * cap and peak_bytes count activations, on top of hold_always. */
    dpar_stage_values cap;
} dpar_schedule_times;

/* A fraction, part / whole; 0 / 0 when nothing takes time. */
typedef struct dpar_ratio {
    int64_t part, whole;
} dpar_ratio;

/* One rank. busy + the five kinds of idle = makespan. Idle time belongs to the gap before an
 * action: the rank waits there for its last input.
 *
 * When does a gap count as memory? A rank does its list in order, so memory delays no action; with
 * more of it the rank might have run ahead of its list. Take the next forward behind the action
 * that the gap is before. (With blocking sends a message may be that action. Of a joined pair the
 * forward alone counts.) The forward could start when its input has arrived, reached or not, and
 * what it needs on this rank is done. From then on the gap counts as memory when it would not fit:
 * what the rank holds before the gap, plus the forward's hold_forward, passes the cap.
 *
 * The part before that moment keeps its cause. So does the whole gap when no forward is left. A
 * larger cap never gives more of it. A list that itself passes its cap is not refused: over_cap
 * says so, and its gaps count as if the rank kept to the cap. */
typedef struct dpar_rank_timing {
    int64_t busy;          /* all that holds the rank, but for blocking messages */
    int64_t warm_up;       /* before its first work; all of the makespan when there is none */
    int64_t dependency;    /* the work that it waits for is not done */
    int64_t communication; /* the work is done and its message not here, or a message holds the rank
                              (BLOCKING, EAGER) */
    int64_t memory;        /* the next forward could start, but does not fit; 0 without a cap */
    int64_t drain;         /* behind its last work */
    int64_t first, last;   /* start of its first work, end of its last; 0, 0 without any */
    int64_t peak_bytes;    /* most that its stages hold at once, hold_always included */
    int64_t over_cap;      /* by how much that passes the cap; 0: it fits, or there is none */
    int32_t peak_count; /* most activations at once, in stages x micro-batches, from F through B or
                           W; without those that are offloaded */
    int32_t reserved;
} dpar_rank_timing;

/* What the simulation of a schedule says. */
typedef struct dpar_timing {
    int64_t makespan; /* from 0 until the last rank is free */
    int64_t span; /* most over ranks of last - first: the step's time when no rank waits for others
                     before its optimizer's step */
    int64_t busy; /* of all ranks */

    /* The bubble, as each source counts it. They differ: say which you mean. */
    dpar_ratio bubble_of_makespan; /* 1 - busy / (ranks x makespan): GPipe, Chimera; below 1 */
    dpar_ratio bubble_of_work;     /* idle / busy: Megatron's (p - 1) / m; may pass 1 */
    dpar_ratio bubble_of_span; /* 1 - busy / (ranks x span): zero-bubble papers; a late start of a
                                  rank does not count */
    int64_t bubble_worst;      /* idle time of the rank with most: DualPipe's table */
    int64_t bubble_first;      /* idle time of rank 0: the zero-bubble paper's formulas */

    int64_t peak_bytes; /* of the rank with most */
    int32_t peak_count; /* of the rank with most */
    int32_t lowered;    /* 1: the list has messages; 0: they were implied */
    int64_t over_cap;   /* of the rank that passes its cap by most; 0: all fit */

    /* The chain of actions that bounds the makespan: each starts when the one before it lets it. */
    int64_t path_actions;       /* how many actions */
    int64_t path_compute;       /* their time */
    int64_t path_communication; /* the rest of the makespan: messages on the chain */
} dpar_timing;

/* What to simulate, and where the answers go; NULL where they are not wanted. Zero it. */
typedef struct dpar_schedule_simulate_desc {
    const dpar_schedule_times *times;
    int64_t *start, *end;   /* [actions]: when each starts and ends. A message: from the moment that
                               it was reached to its arrival (a buffered one may have come before).
                               Both of a joined pair have the pair's */
    dpar_rank_timing *rank; /* [ranks] */
    int64_t *path; /* [actions], of which timing->path_actions are written: the critical path, first
                      action first, as indices of s->action. It has work and the messages of the
                      list; of a joined pair the forward. Of chains equally long it is the one that
                      stays on its rank, of ranks that end last the first */
} dpar_schedule_simulate_desc;

/* Bytes of working memory for this schedule: 12 an action, 28 a stage and micro-batch, 240 a stage,
 * 156 a rank. Shared links take 8 more an action, 20 a stage; transports from RANK to EAGER 8 more
 * an action, 24 a rank. -1 when the struct is no schedule (slices that do not divide micros, say)
 * or has more than 2^32 - 2 actions. O(1). */
DPAR_API int64_t dpar_schedule_simulate_bytes(const dpar_schedule *s,
                                              const dpar_schedule_simulate_desc *how);

/* Simulates the schedule. Each rank does its list in order; an action starts when the rank is free
 * and its inputs are here. A joined pair starts with the inputs of both and ends both at once. mem:
 * aligned as for int64_t. O(actions + stages + ranks), however long the times are.
 *
 * Without any SEND or RECV in the list messages are implied: between ranks an input arrives one
 * message after the end of its producer. With them work waits for the message that its RECV names.
 * Messages go where the stages are; `peer` is not read.
 *
 * E_ARG, with a sentence, is one of
 *
 *  - a negative time, size or cap;
 *  - an action out of the schedule's domain, or one that stands twice;
 *  - work before what it needs on its own rank: B before F, W before I, the V's turn, slices;
 *  - a message without its other half;
 *  - sends that are not BUFFERED on a list without messages or with shared links;
 *  - a transport on a list without messages, or beside sends and links that are not 0.
 *
 * E_STUCK: ranks wait for each other in a circle; the sentence names a rank and the actions (that
 * of dpar_schedule_check with the transport names the circle).
 * E_RANGE: times or bytes whose sum passes INT64_MAX. E_ROOM. */
DPAR_API dpar_status dpar_schedule_simulate(const dpar_schedule *s,
                                            const dpar_schedule_simulate_desc *how,
                                            dpar_timing *timing, void *mem, int64_t bytes,
                                            dpar_why *why);

#endif
