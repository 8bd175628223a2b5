/* SPDX-License-Identifier: MIT-0 */
/* dpar_schedule.h - makes, checks, simulates and draws the order in which the stages of a pipeline work.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * All functions are local. They compute in integers, so that results are the same on every machine, and work in
 * memory of the caller. Ranks cannot deadlock on a schedule that dpar_schedule_check accepts.
 *
 *     #include "dpar_schedule.h"
 *     #include <stdio.h>
 *     int main(void)
 *     {
 *         static int64_t memory[1024], work[4096];
 *         static char text[2048];
 *         dpar_schedule_desc desc = {0};
 *         dpar_schedule s;
 *         dpar_text t;
 *         dpar_why why;
 *         dpar_text_init(&t, text, sizeof text);
 *         desc.name = "zb-h1";
 *         desc.ranks = 4;
 *         desc.micro_batches = 8;
 *         if (dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why) < 0 ||
 *             dpar_schedule_sketch(&s, DPAR_SCHEDULE_DRAW_TEXT, work, sizeof work, &t, &why) < 0) {
 *             puts(why.text);
 *             return 1;
 *         }
 *         puts(text);
 *         return 0;
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && ./yours */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar.h")
#error dpar_schedule.h needs dpar.h beside it, of the same release
#endif
#endif
#include "dpar.h"
#endif
#if DPAR_VERSION != 200
#error dpar_schedule.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_SCHEDULE_H
#define DPAR_SCHEDULE_H

/* ==== schedule/schedule.h ==== */

/* schedule - holds a pipeline's order of work: for each rank a list of actions of 8 bytes each, in
 * the caller's memory. It also reads and writes schedules as the CSV text of PyTorch's pipelining.
 *
 *     dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why);       generate.h
 *     for (k = s.begin[rank]; k < s.begin[rank + 1]; k++) {
 *         dpar_action_write(&s.action[k], &text);                           0F0 0F1 ... 0B7
 *     }
 */

/* The kinds of actions, with their names in the text. Micro-batches and stages count from 0. The
 * letters are PyTorch's: I and W are the two halves of a backward, and B does both in one action.
 * Papers on zero bubbles write B for what is called I here. */
enum {
    DPAR_ACTION_IDLE, /* an explicit pause in the list; passes over the schedule may remove it */
    /* F: the forward. Needs the forward of the previous stage. Its activation is held from its
     * start on. */
    DPAR_ACTION_FORWARD,
    /* B: the gradients of input and weights. Needs the backward of the next stage. Releases the
     * activation. */
    DPAR_ACTION_BACKWARD,
    DPAR_ACTION_INPUT,  /* I: the gradient of the input only */
    DPAR_ACTION_WEIGHT, /* W: the gradient of the weights only, after I; releases the activation */
    DPAR_ACTION_SEND_F, /* sends the stage's output to the rank of the next stage */
    DPAR_ACTION_RECV_F, /* receives the stage's input from the rank of the previous stage */
    DPAR_ACTION_SEND_B, /* sends the gradient of the stage's input to the rank of the previous stage
                         */
    DPAR_ACTION_RECV_B, /* receives the gradient of the stage's output from the rank of the next
                           stage */
    DPAR_ACTION_UNSHARD,     /* gathers the stage's parameters */
    DPAR_ACTION_RESHARD,     /* frees the gathered parameters */
    DPAR_ACTION_REDUCE_GRAD, /* reduces the stage's gradients over data-parallel ranks */
    DPAR_ACTION_RECOMPUTE,   /* repeats the forward before the backward */
    DPAR_ACTION_OFFLOAD,     /* moves the activation to the host */
    DPAR_ACTION_RELOAD,      /* moves the activation back */
    DPAR_ACTION_WAIT_REDUCE, /* WAIT_REDUCE_GRAD: waits until the stage's REDUCE_GRAD has finished
                              */
    DPAR_ACTION_COUNT
};
#define DPAR_MAX_STAGES INT32_C(65535) /* the most stages of a schedule, and the most ranks */
#define DPAR_MAX_MICRO_BATCHES INT32_C(65535) /* the most micro-batches of a schedule */

/* One action in a rank's list. */
typedef struct dpar_action {
    uint8_t kind;   /* DPAR_ACTION_FORWARD, ... */
    uint8_t joined; /* 1 for a forward that runs together with the next action, a backward */
    uint16_t stage;
    uint16_t micro_batch; /* micro-batch; 0 for kinds that have none */
    uint16_t peer;        /* SEND, RECV: the other rank; otherwise 0 */
} dpar_action;

/* The actions of all ranks. The pointers point into memory that the caller provided, so the struct
 * may be copied as long as that memory lives.
 *
 * Stage s feeds s + 1 unless it ends a chain. An ordinary pipeline is one chain of all stages. A
 * bidirectional one (Chimera, DualPipe) has two chains: stages 0 .. chain - 1 run down the ranks,
 * and stages chain .. 2 chain - 1 run up. Each micro-batch passes through one of the two chains. If
 * micro-batches are sliced (Seq1F1B), dpar_action.micro_batch is micro-batch x slices + slice, and
 * the backward runs from a micro-batch's last slice to its first.
 */
typedef struct dpar_schedule {
    int32_t ranks, stages, micro_batches; /* micro_batches counts slices if there are any */
    int32_t chain;                        /* stages in a chain; `stages` is a multiple of it */
    int32_t slices;                       /* slices of a micro-batch; 1 except for Seq1F1B */
    int64_t *begin; /* [ranks + 1]; rank r has action[begin[r]] .. action[begin[r + 1] - 1] */
    dpar_action *action;
    uint16_t *rank_of; /* [stages], the rank of each stage */
} dpar_schedule;

/* The rank of each stage, for p ranks. */
enum {
    DPAR_STAGE_MAP_LOOP,          /* stage s is on rank s mod p */
    DPAR_STAGE_MAP_V,             /* down and up again: 0 1 2 3 3 2 1 0 */
    DPAR_STAGE_MAP_BIDIRECTIONAL, /* two chains of p stages, the second from the last rank to the
                                     first */
    DPAR_STAGE_MAP_COUNT
};

/* Makes an empty schedule in the caller's memory, with capacity for `actions` actions. Set
 * schedule->ranks and schedule->stages before the call. The function sets chain = stages, slices =
 * 1, micro_batches = 0 and all of begin to 0. Like all sizes in this header, that of a schedule is
 * a multiple of 8, so that an object placed right after it is aligned as well.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG, or DPAR_E_ROOM if `bytes` is too small. Costs O(ranks).
 */
DPAR_API dpar_status dpar_schedule_init(dpar_schedule *schedule, int64_t actions, void *mem,
                                        int64_t bytes, dpar_why *why);

/* Finds the stage at the other end of a message, or for F, B and I the stage that needs the result.
 * That is the next stage for F, SEND_F and RECV_B, and the previous one for B, I, SEND_B and
 * RECV_F. Returns -1 at a chain's end and for other kinds. Costs O(1). */
DPAR_API int32_t dpar_schedule_partner(const dpar_schedule *schedule, int32_t kind, int32_t stage);

/* Appends an action as text: "3F12", or "(0F7;7B3)OVERLAP_F_B" for a joined action and the one
 * after it. An idle action appends nothing. Costs O(1). */
DPAR_API void dpar_action_write(const dpar_action *action, dpar_text *text);

/* ---- schedules as text ----
 *
 * The text has one line for each rank, with cells between commas. It is PyTorch's CSV in the
 * formats compute_only and compute_comms, read strictly. A cell is <stage><name><micro-batch> or
 * (<F>;<B or I>)OVERLAP_F_B, and blanks around it are ignored. An empty cell is idle. Lines end in
 * LF or CRLF, and a line that begins with '#' is a comment. An empty line is a rank without
 * actions, and a line "" (two quotes) is a rank with a single idle action. Any other text fails
 * with DPAR_E_PARSE; the message gives line, column and what was expected.
 *
 * A stage is on the rank in whose line it appears, and peers follow from that. Reading fails with
 * DPAR_E_ARG if a stage appears in two lines, or if a stage below the largest one appears in none.
 */

/* A text to read. Zero it, then set `text` and `bytes`. */
typedef struct dpar_schedule_read_desc {
    const char *text;
    size_t bytes;
    int32_t chain; /* stages of a chain; 0 makes all stages one chain */
} dpar_schedule_read_desc;

/* Reads a schedule from text into the caller's memory. schedule->micro_batches becomes the largest
 * micro-batch + 1 and slices becomes 1; if the micro-batches are slices, set slices afterwards.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs.
 *
 * Fails with DPAR_E_PARSE or DPAR_E_ARG as described above, or DPAR_E_ROOM if `bytes` is too small.
 * Fails with DPAR_E_ARG, too, if `chain` does not divide the stages, or a message connects stages
 * that are not neighbours in a chain or are on the same rank. Costs O(text).
 */
DPAR_API dpar_status dpar_schedule_read(dpar_schedule *schedule, const dpar_schedule_read_desc *in,
                                        void *mem, int64_t bytes, dpar_why *why);

/* Appends a schedule as text, from which dpar_schedule_read makes the same actions again. `end`
 * ends each line: "\r\n" as Python's csv module writes it, or "\n". Costs O(actions). */
DPAR_API void dpar_schedule_write(const dpar_schedule *schedule, const char *end, dpar_text *text);

/* ==== schedule/generate.h ==== */

/* generate - makes the published pipeline schedules by name.
 *
 *     static int64_t memory[1000];
 *     dpar_schedule_desc desc = {0};
 *     desc.name = "zbv";
 *     desc.ranks = 4;
 *     desc.micro_batches = 8;
 *     dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why);
 *
 * The descriptor also sets stages per rank, groups, slices and the rank of each stage.
 * Afterwards dpar_schedule_lower adds messages, and dpar_schedule_simulate computes times.
 */

/* The rules, for p ranks, v stages per rank, m micro-batches and a rank r; F, B, I, W as in
 * schedule.h. "Live" is the largest number of activations that a rank holds at one time, in stages
 * x micro-batches. Each is held from its F to its B or W. */
enum {
    /* GPipe: all F, then all B in the same order (PyTorch, DeepSpeed), or with `lifo` from the last
     * micro-batch to the first (as drawn in Huang 2019). Live: m. */
    DPAR_SCHEDULE_GPIPE = 1,
    /* 1F1B: p-1-r F, then F and B in turn (PipeDream-flush; Narayanan 2021). Fewer micro-batches
     * than ranks are allowed. Live: p-r. */
    DPAR_SCHEDULE_1F1B,
    /* Interleaved 1F1B: a rank has the v stages r, r+p, r+2p and so on. Micro-batches run in groups
     * of N (`group`), and each group passes all stages of a rank before the next group starts. A
     * rank starts with (v-1) N + 2 (p-1-r) F (Narayanan 2021). Live: one more than that. */
    DPAR_SCHEDULE_INTERLEAVED,
    /* Breadth first: all micro-batches through a rank's first stage, then all through its second,
     * and so on; then back, the last micro-batch first (Lamy-Poirier 2022, PyTorch's LoopedBFS).
     * Live: m v. */
    DPAR_SCHEDULE_BREADTH_FIRST,
    /* ZB-H1 or ZB-1P, a handcrafted zero-bubble schedule (Qi 2023) with separate I and W: it starts
     * like 1F1B, and the W of an I follows r micro-batches later. Live: p on every rank. */
    DPAR_SCHEDULE_ZB_H1,
    /* ZB-2P: as ZB-H1, but it starts with 2 (p-1-r) F, and the W of an I follows 2 r micro-batches
     * later. If F = I = W, no rank pauses between its first F and its last W. Live: 2p-1 on every
     * rank. */
    DPAR_SCHEDULE_ZB_2P,
    /* ZB-V: zero bubble on a V, in which a rank has stages r and 2p-1-r. With fewer than 2p-1
     * micro-batches it is the schedule for 2p-1 without the missing ones. Live: 2p. */
    DPAR_SCHEDULE_ZBV,
    /* V-Half: the V of ZB-V with half the memory (Qi 2024). A block of 6 slots is repeated for each
     * micro-batch, then actions move forward where memory allows. Live: 2 ((p+2)/2), rounded down
     * as in C. */
    DPAR_SCHEDULE_V_HALF,
    /* V-Min: the same with a third of the memory of ZB-V. Live: 2 ((p+4)/3), rounded down as in C.
     */
    DPAR_SCHEDULE_V_MIN,
    /* DualPipe: two pipelines in opposite directions, stages 0 .. p-1 and p .. 2p-1, each with half
     * of the micro-batches. F of one runs together with B of the other (DeepSeek 2024). p and m
     * must be even, and m >= 2p. Live: p+1. */
    DPAR_SCHEDULE_DUALPIPE,
    /* DualPipeV: DualPipe folded onto a V, with m >= 2p. Live: 2p+1. */
    DPAR_SCHEDULE_DUALPIPEV,
    /* Eager 1F1B: 1F1B that starts with 2 (p-1-r) F, so that the latency between ranks counts once,
     * not for each micro-batch (Alpa's overlap-friendly 1F1B). Live: 2 (p-r) - 1. */
    DPAR_SCHEDULE_EAGER_1F1B,
    /* Interleaved zero bubble: ZB-H1 with v stages per rank and the groups of INTERLEAVED. A rank
     * starts with (v-1) N + p-1-r F (PyTorch's InterleavedZeroBubble). Live with N = p: v p. */
    DPAR_SCHEDULE_INTERLEAVED_ZB,
    /* 1F1B-V: V_HALF with unsplit backwards, and 2/3 of the memory of 1F1B (Qi 2024). Live: 2 (2p/3
     * + 1), rounded down as in C. */
    DPAR_SCHEDULE_1F1B_V,
    /* MoE overlap: INTERLEAVED, or for v = 1 EAGER_1F1B, with one more F at the start, so that each
     * F runs together with a B that does not need it (Megatron's overlap of the experts'
     * all-to-all). */
    DPAR_SCHEDULE_MOE_OVERLAP,
    /* Seq1F1B: 1F1B over slices of the sequence. A rank starts with p-2-r + slices F. The backward
     * of a micro-batch begins with its last slice (Sun 2024). Live: p-1-r + slices, in slices. */
    DPAR_SCHEDULE_SEQ1F1B,
    /* Chimera: two 1F1B pipelines in opposite directions (Li 2021). Micro-batches form units of p
     * that follow each other. In unit u, micro-batches u p .. u p + p/2 - 1 pass down the ranks and
     * the others up. F and B take equal slots. p must be even. Live: p/2+1 on the outer ranks, p on
     * the inner ones. */
    DPAR_SCHEDULE_CHIMERA,
    /* Inference: only F, a rank's stages one after another. */
    DPAR_SCHEDULE_FORWARD_ONLY,
    DPAR_SCHEDULE_END /* one past the last rule; rules are 1 to DPAR_SCHEDULE_END - 1, and 0 is no
                         rule */
};

/* A schedule to be made. Zero it, then set rule or name, ranks and micro_batches; 0 in another
 * field selects the rule's own value. A schedule has ranks x chunks stages; a rule in two
 * directions has two chains of `ranks` stages. */
typedef struct dpar_schedule_desc {
    int32_t rule;          /* DPAR_SCHEDULE_GPIPE, ...; 0 selects `name` */
    int32_t ranks;         /* 1 to 65535 */
    int32_t micro_batches; /* 1 to 65535; for SEQ1F1B, micro_batches x slices at most 65535 */
    /* Stages per rank: any number for INTERLEAVED, BREADTH_FIRST and INTERLEAVED_ZB (0 selects 2),
     * and for MOE_OVERLAP and FORWARD_ONLY (0 selects 1); 2 for rules on a V or in two directions;
     * 1 for the others. */
    int32_t chunks;
    /* For INTERLEAVED, INTERLEAVED_ZB and MOE_OVERLAP, the micro-batches of a group, at least
     * `ranks`; 0 selects `ranks`. If there are fewer micro-batches than `ranks`, they are one
     * group.
     *
     * The last group may be shorter if it has at least `ranks` micro-batches (Megatron's rule).
     * Otherwise its micro-batches are shared among the full groups as evenly as possible, and the
     * first groups get one more. If all groups are then equal, the result is also PyTorch's: 10
     * micro-batches on 4 ranks form groups of 5 and 5.
     */
    int32_t group;
    int32_t slices; /* SEQ1F1B: slices of a micro-batch; 0 selects 2 */
    int32_t lifo;   /* GPIPE: 1 runs backwards from the last micro-batch to the first */
    /* [stages], the rank of each stage. NULL selects the rule's own map: DPAR_STAGE_MAP_LOOP, _V or
     * _BIDIRECTIONAL. GPIPE, BREADTH_FIRST and FORWARD_ONLY accept any map. The other rules accept
     * their own map with renumbered ranks, so that stages which the rule puts on one rank stay
     * together. */
    const uint16_t *rank_of;
    /* For BREADTH_FIRST and FORWARD_ONLY with rank_of, the stages of all ranks together; 0 selects
     * ranks x chunks. */
    int32_t stages;
    /* The name of the rule, as for dpar_schedule_find, which also sets `lifo`. Read only by
     * dpar_schedule_generate, and only if `rule` is 0. */
    const char *name;
} dpar_schedule_desc;

/* Makes a schedule in the caller's memory. It has F, B, I and W, but no messages and no idle
 * actions.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs. After the call only the bytes of the schedule itself are
 *       in use. V_HALF, V_MIN and 1F1B_V need another 88 m + 72 p + 248 bytes per rank during the
 *       call.
 *
 * Fails with DPAR_E_UNKNOWN if there is no rule of that name, and with DPAR_E_ARG, DPAR_E_DIVIDE or
 * DPAR_E_RANGE if there is no such schedule. Fails with DPAR_E_ROOM if `bytes` is too small. Costs
 * O(actions); V_HALF, V_MIN and 1F1B_V cost O(actions + p^2), and more if many actions move.
 */
DPAR_API dpar_status dpar_schedule_generate(dpar_schedule *schedule, const dpar_schedule_desc *desc,
                                            void *mem, int64_t bytes, dpar_why *why);

/* Returns the name of a rule: "gpipe", "1f1b", "interleaved", "breadth-first", "zb-h1", "zb-2p",
 * "zbv", "v-half", "v-min", "dualpipe", "dualpipev", "eager-1f1b", "interleaved-zb", "1f1b-v",
 * "moe-overlap", "seq1f1b", "chimera", "forward-only". Returns "?" for any other number. The text
 * is static. */
DPAR_API const char *dpar_schedule_name(int32_t rule);

/* Finds the rule with a given name, and sets desc->rule and desc->lifo. Case, '-', '_' and a
 * leading "Schedule" do not matter, so PyTorch's class names are found too. Fails with
 * DPAR_E_UNKNOWN; the message lists the names. Costs O(rules).
 *
 * Further names are gpipe-lifo, interleaved-1f1b, bfs, looped-bfs, zb-1p, zb1p, zb-h2, zb2p, zb-v,
 * zbv-zero-bubble, izb, interleaved-zero-bubble, flexible-interleaved-1f1b, eager, v1f1b,
 * overlap-1f1b, seq-1f1b, inference.
 */
DPAR_API dpar_status dpar_schedule_find(dpar_schedule_desc *desc, const char *name, dpar_why *why);

/* ==== schedule/check.h ==== */

/* check - proves that a schedule is correct, and that it cannot deadlock on a given transport.
 *
 *     dpar_schedule_check_desc how = {0};
 *     how.transport = DPAR_TRANSPORT_PAIR;       NCCL with a communicator per pair of ranks
 *     st = dpar_schedule_check(&lowered, &how, memory, sizeof memory, &why);
 */

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

/* ==== schedule/simulate.h ==== */

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

/* ==== schedule/lower.h ==== */

/* lower - turns a list of computations into a list that a runner can execute. Passes add messages,
 * gathers of parameters and reductions of gradients, merge split backwards, and move receives.
 *
 *     dpar_schedule_lower_desc how = {0};                           adds messages
 *     dpar_schedule_lower(&out, &s, &how, memory, sizeof memory, &why);
 */

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

/* ==== schedule/slots.h ==== */

/* slots - assigns buffers to the actions of a schedule, as few as possible.
 *
 *     dpar_schedule_slots(&s, &how, memory, bytes, &why);         how.slots: one for each action
 *     for (i = s.begin[rank]; i < s.begin[rank + 1]; i++) {       a training step
 *         run s.action[i] in the buffers how.slots[i]; if it is `joined`, also the next action
 *     }
 */

/* The buffers (slots) that an action uses, numbered from 0 for each rank and kind. DPAR_SLOT_NONE
 * means none. F and B use receive, activation and send; I uses all four; W uses activation and
 * weight; RECV uses receive, and SEND uses send.
 *
 *  - receive holds an input from RECV to the end of the F, B or I that uses it. The part of a
 *    stage's input that the backward needs belongs to the activation.
 *  - activation is taken by F and freed by B, or by W if the backward is split; without backwards
 *    it is held to the end. An OFFLOAD frees it, and its RELOAD takes another one. In a joined pair
 *    F takes a slot before B frees one.
 *  - send holds a result from the F, B or I that makes it until its SEND and the next in_flight
 *    sends of the rank have been posted.
 *  - weight holds the intermediate gradients that I leaves for W.
 *
 * A list without messages uses neither receive nor send. Data between stages of one rank use no
 * slots.
 */
enum { DPAR_SLOT_NONE = 65535 };
typedef struct dpar_action_slots {
    uint16_t receive, activation, send, weight;
} dpar_action_slots;

/* The number of slots that a rank needs, by kind. */
typedef struct dpar_slot_counts {
    int32_t receive, activation, send, weight;
} dpar_slot_counts;

/* How many sends are in flight, and where results are stored. Zero it, then set the fields that you
 * need. */
typedef struct dpar_schedule_slots_desc {
    /* A send's slot stays taken until the next `in_flight` sends of the rank have been posted. 0 is
     * for a runner whose SEND has copied the data out of its slot when it returns. k is for a
     * runner that has at most k sends in flight and then waits for the oldest. INT32_MAX is for one
     * that waits only at the end of the step, as PyTorch does.
     *
     * With 0 a runner may instead wait, before it writes to a slot, for the last send that used it.
     * This cannot deadlock if the list passes DPAR_TRANSPORT_BLOCKING.
     */
    int32_t in_flight;
    dpar_action_slots *slots; /* [actions], receives the slots of each action; may be NULL */
    dpar_slot_counts *counts; /* [ranks], receives the number of slots of each rank; may be NULL */
} dpar_schedule_slots_desc;

/* Assigns slots to all actions so that no two values share a slot while both are needed. A rank
 * gets no more slots of a kind than it has values of that kind at one time.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG if dpar_schedule_check with DPAR_CHECK_TAGGED refuses the schedule or
 * in_flight is negative, DPAR_E_RANGE above 65535 slots, or DPAR_E_ROOM if `bytes` is too small.
 * Costs O(actions).
 */
DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *schedule,
                                         const dpar_schedule_slots_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

/* ==== schedule/closed_form.h ==== */

/* closed_form - evaluates the published formulas for pipeline schedules. A formula is given only
 * where simulation agrees with it; otherwise the call fails, and the message names the condition
 * that is not met.
 *
 *     dpar_schedule_closed_form(&order, &times, DPAR_FORMULA_MAKESPAN, 0, &formula, &why);
 *     formula.text                                     "(m + p - 1) (F + B)"
 */

/* The quantities that a formula may give, in the units of dpar_schedule_times. The times of a stage
 * are those of 1/v of a rank's layers. Activations are counted in stages x micro-batches. */
enum {
    DPAR_FORMULA_MAKESPAN, /* the makespan, with the latency term if there is a latency */
    DPAR_FORMULA_SPAN,     /* the longest time from a rank's first start to its last end */
    DPAR_FORMULA_LATENCY,  /* the time that the latency adds to the makespan */
    DPAR_FORMULA_IDLE,     /* the longest idle time of a rank */
    DPAR_FORMULA_PEAK,     /* the most activations that `rank` holds at one time */
    DPAR_FORMULA_COUNT
};

/* A formula and its value. */
typedef struct dpar_formula {
    int64_t value;
    const char *text; /* static text, such as "(m + p - 1) (F + B)" */
} dpar_formula;

/* Evaluates a formula for p ranks, v stages per rank, m micro-batches and s slices. All stages must
 * take the same times: F, B, I, W and FB (a joined pair). Messages are buffered and have a latency
 * c, and groups have p micro-batches.
 *
 * rank: 0 to p - 1; r in the formulas of DPAR_FORMULA_PEAK, otherwise without effect.
 *
 * MAKESPAN (if c > 0, LATENCY is added)
 *     gpipe, 1f1b, eager-1f1b      (m + p - 1) (F + B)
 *     interleaved, breadth-first   (m v + p - 1) (F + B)                    m >= p or v = 1
 *     zb-h1                        m (F + I + W) + (p - 1) (F + I - W)      W <= I, F; m >= p
 *     interleaved-zb               m v (F + I + W) + (p - 1) (F + I - W)    W <= I, F; m >= p
 *     zb-2p                        3 m F + (p - 1) F                        F = I = W, m >= 2p - 1
 *     zbv                          6 m F + (p - 1) F                        F = I = W, m >= 2p - 1
 *     dualpipe, dualpipev          m (F + B) + IDLE, 2 m (F + B) + IDLE     W <= I = F, FB = F + B
 *     seq1f1b                      (m s + p - 1) (F + B)
 *     chimera                      m (F + B) + (p - 2) F                    B = F, p divides m
 *                                  m (F + B) + 2 (p - 2) F                  B = 2 F, m = p
 *     moe-overlap, v = 1           p (F + B) + (m - 1) FB                   FB >= F, FB >= B
 *     forward-only                 (m v + p - 1) F                          m >= p or v = 1
 * SPAN
 *     zb-2p, zbv                   3 m F, 6 m F                             F = I = W, m >= 2p - 1
 *     forward-only, v = 1          m F
 *     the others                   MAKESPAN
 * LATENCY
 *     gpipe                        2 (p - 1) c
 *     eager-1f1b                   2 (p - 1) c                              2 c <= F + B
 *     1f1b                         (2 (p - 2) + 2 m (p - 1) / p) c          p divides m
 *     interleaved                  2 (p v - 1) c                            p divides m; c <= F, B
 *     zb-h1                        4 (p - 1) c              F = I = W, 4 c <= F, m >= 2p
 *     forward-only, v = 1          (p - 1) c
 * IDLE
 *     dualpipe, dualpipev          (h - 1) (FB + B - 3 W), h = p / 2, p  W <= I = F; B <= FB <= F+B
 *     the others, c = 0            MAKESPAN less the work of a rank
 * PEAK
 *     gpipe                        m
 *     breadth-first, forward-only  m v
 *     1f1b                         min(p - r, m)
 *     eager-1f1b                   min(2 (p - r) - 1, m)
 *     moe-overlap, v = 1           min(2 (p - r), m)
 *     interleaved                  min((v - 1) p + 2 (p - 1 - r) + 1, m v)  p divides m
 *     interleaved-zb               p v                                      p divides m
 *     zb-h1, zb-2p                 min(p, m), min(2p - 1, m)
 *     zbv                          2p                                       m >= 2p - 1
 *     v-half                       2 floor((p + 2) / 2)                     m >= 2p, 2 <= p <= 12
 *     v-min                        2 floor((p + 4) / 3)                     as v-half; rank 0 holds
 *                                                                           1 less if p mod 3 = 2
 *     dualpipe, dualpipev          p + 1, 2p + 1
 *     seq1f1b                      min(p - 1 - r + s, m s)
 *     chimera                      p / 2 + 1 + min(r, p - 1 - r)            p divides m
 *
 * Sources: Huang 2019, Narayanan 2021, Lamy-Poirier 2022, Qi 2023 and 2024, Li 2021, DeepSeek's
 * DualPipe, Victarry's visualiser for moe-overlap, Sun 2024. The conditions were found by
 * simulation.
 *
 * Fails with DPAR_E_NONE if no formula holds, or DPAR_E_ARG, DPAR_E_DIVIDE or DPAR_E_RANGE if there
 * is no such order, a time is negative, or a value exceeds INT64_MAX. Costs O(stages), for the
 * check of the order.
 */
DPAR_API dpar_status dpar_schedule_closed_form(const dpar_schedule_desc *desc,
                                               const dpar_schedule_times *times, int32_t what,
                                               int32_t rank, dpar_formula *formula, dpar_why *why);

/* ==== schedule/job.h ==== */

/* job - describes the work of a pipeline and the memory of its ranks, the input of
 * dpar_schedule_optimize. Integers only. */

/* What dpar_schedule_optimize minimises. Each action starts as early as the order of its rank
 * allows.
 */
enum {
    DPAR_OBJECTIVE_MAKESPAN, /* the time until the last rank has finished */
    /* The span, which is the longest time from a rank's first start to its last end. It is the time
     * of a step if each rank may step its optimizer and continue without waiting for the others;
     * papers on zero bubbles measure it. */
    DPAR_OBJECTIVE_SPAN
};

/* One step of a pipeline with one chain. Each micro-batch runs F on stages 0 to stages - 1, then I
 * (or B) back to stage 0; the W of a stage may run at any time after its I. Zero it, then set the
 * fields. */
typedef struct dpar_schedule_optimize_desc {
    /* At least 1 each; at most 4096 ranks, 16384 stages and 65535 micro-batches, and stages x
     * micro_batches at most 2^28. */
    int32_t ranks, stages, micro_batches;
    int32_t map;       /* DPAR_STAGE_MAP_LOOP or DPAR_STAGE_MAP_V; not read if rank_of is given */
    int32_t split;     /* 1 makes I and W two actions; 0 makes B one action */
    int32_t objective; /* DPAR_OBJECTIVE_MAKESPAN or DPAR_OBJECTIVE_SPAN */
    const uint16_t *rank_of; /* [stages]; each rank needs a stage; NULL selects `map` */
    /* Times, messages and memory, as in dpar_schedule_times. Without hold_forward an activation
     * counts as 1, from F to B or W. Messages are DPAR_SEND_MODE_BUFFERED, each on a link of its
     * own.
     *
     * Only these fields are read: forward, input, weight, backward, latency, bytes, bandwidth (at
     * most INT64_MAX / 10), hold_always, hold_forward (0 or more), hold_input and hold_weight (0 or
     * less). With hold_forward the last three must add up to 0.
     */
    const dpar_schedule_times *times;
    dpar_stage_values cap; /* [ranks], the most that each rank may hold at any time; 0 means no
                              limit */
    int64_t nodes;         /* nodes that dpar_schedule_optimize may search; 0 disables the search */
} dpar_schedule_optimize_desc;

/* How good a schedule is. */
typedef struct dpar_schedule_optimize_result {
    int64_t makespan, span; /* makespan and span of the schedule */
    /* A lower bound of the objective over all schedules. If the schedule reaches it, the schedule
     * is the best. */
    int64_t bound;
    int64_t nodes; /* nodes that the search visited; 0 if it did not search */
} dpar_schedule_optimize_result;

/* ==== schedule/optimize.h ==== */

/* optimize - makes a schedule for the times, messages and memory that a pipeline really has, stage
 * by stage.
 *
 *     job.ranks = job.stages = 4;
 *     job.micro_batches = 8;
 *     job.split = 1;                                  I and W are separate actions
 *     job.times = &times;                             measured
 *     dpar_schedule_optimize(&s, &job, &result, memory, sizeof memory, &why);
 */

/* Makes the best schedule that it can find for a job within its caps. The schedule has F, I and W,
 * or F and B, and no messages. Returns DPAR_OK if the objective equals result->bound, so that no
 * schedule is better, or DPAR_MORE if there may be a better one. The schedule is the same on every
 * machine, and never worse than those of generate.h.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is the least number that it needs. More bytes give the exact search a larger
 *       table. After the call only the bytes of the schedule itself are in use.
 *
 * The result is the best, by the objective and then by the other measure, of
 *
 *  - if each rank has one stage, the eight variants of the heuristic of sail-sg's zero-bubble
 *    scheduler (Qi 2023), here with the times and memory of each stage. In each of its rounds every
 *    stage runs an I, from the last stage to the first, with F before them and W in the gaps;
 *  - list schedules, in which a free rank runs the preferred one of the actions that are ready.
 *    There are up to twelve rules of preference, and for each nine limits on the micro-batches
 *    between a stage's F and its I. A micro-batch is admitted only if the oldest one can still
 *    finish, which prevents deadlock;
 *  - the schedules of generate.h that have the stages and ranks of the job and keep its caps;
 *  - the best list schedule, improved by changing its limits stage by stage, until nothing helps or
 *    job->nodes actions have been tried;
 *  - if stages x micro-batches is at most 48 and the bound is not reached, an exact search of at
 *    most job->nodes nodes (10^6 take about a second).
 *
 * With job->nodes = 0 the last two methods are skipped. The others try about 2^25 actions at most;
 * with 64 ranks and 512 micro-batches they take half a second. Costs O(rules x actions x ranks).
 *
 * Fails with DPAR_E_ARG for a job out of its domain, DPAR_E_RANGE if a sum of times or bytes
 * exceeds 2^60, or DPAR_E_ROOM if `bytes` is too small. Fails with DPAR_E_MEMORY if a cap cannot
 * hold one micro-batch on all stages of its rank. Every schedule needs that much, and with it there
 * is a schedule. The message is, for example, "cannot fit: rank 2 needs 3 activations of 10 bytes,
 * its cap is 20".
 */
DPAR_API dpar_status dpar_schedule_optimize(dpar_schedule *schedule,
                                            const dpar_schedule_optimize_desc *job,
                                            dpar_schedule_optimize_result *result, void *mem,
                                            int64_t bytes, dpar_why *why);

/* ==== schedule/partition.h ==== */

/* partition - chooses how many layers of a model each stage of a pipeline gets, together with the
 * schedule. An embedding at the start and a loss at the end make the outer stages heavier, and how
 * heavy a stage may be depends on when other stages wait for it.
 *
 *     how.job = &job;                                 times of layers, not of stages
 *     how.layers = 32;
 *     how.tries = 200;
 *     how.cuts = cuts;                                [stages + 1]
 *     dpar_schedule_partition(&s, &how, &result, memory, sizeof memory, &why);
 */

/* Layers to be placed on stages. Zero it, then set the fields. */
typedef struct dpar_schedule_partition_desc {
    /* The job as for dpar_schedule_optimize, but with numbers for layers. In job->times forward,
     * input, weight, backward, hold_forward, hold_input, hold_weight and hold_always are values of
     * layers, each[layers]. The value of a stage is the sum over its layers, except that without
     * hold_forward its activation counts as 1. latency, bytes and bandwidth are those of the edges
     * between stages. job->nodes is not read. */
    const dpar_schedule_optimize_desc *job;
    int32_t layers;
    /* NULL makes a schedule with dpar_schedule_optimize for each cut. Otherwise a schedule of one
     * chain with the job's ranks, stages and micro-batches, such as one from
     * dpar_schedule_generate. Its lists stay as they are while layers move, and
     * dpar_schedule_simulate computes the objective.
     */
    const dpar_schedule *given;
    int64_t tries; /* the most cuts to evaluate */
    /* [stages + 1], receives the result: stage s gets layers cuts[s] .. cuts[s + 1] - 1. */
    int64_t *cuts;
} dpar_schedule_partition_desc;

/* Cuts the layers into job->stages runs, none of them empty, so that the objective is as small as
 * the search can make it. Returns DPAR_OK, or DPAR_MORE if `tries` cuts were evaluated before the
 * search ended.
 *
 * schedule: receives the schedule of the best cut. With `given` it is unchanged and may be NULL.
 * result:   receives makespan, span and bound of this cut, and in `nodes` the number of cuts that
 *           were evaluated.
 * mem:      aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *           why->bytes is how many it needs. The schedule is at its front.
 *
 * The search starts twice: from the cut of dpar_split_balance by the time of a micro-batch, and
 * from equal numbers of layers. It moves a layer from one stage to another, and each stage in
 * between passes one on, as long as this decreases the bytes over the caps or the objective. For
 * 1450 of 1486 random small jobs the result was as good as the best of all cuts; for the others it
 * was up to 4 % longer.
 *
 * Fails with DPAR_E_MEMORY if no cut was found that keeps the caps; the message is that of
 * dpar_schedule_optimize, or names the rank with its peak. Fails with DPAR_E_ARG, DPAR_E_RANGE,
 * DPAR_E_ROOM, and as dpar_schedule_simulate does for `given`. Costs about `tries` times
 * dpar_schedule_optimize, or dpar_schedule_simulate with `given`.
 */
DPAR_API dpar_status dpar_schedule_partition(dpar_schedule *schedule,
                                             const dpar_schedule_partition_desc *how,
                                             dpar_schedule_optimize_result *result, void *mem,
                                             int64_t bytes, dpar_why *why);

/* ==== schedule/schedule_show.h ==== */

/* schedule_show - draws a schedule with the times of its actions: as a Gantt chart in plain
 * characters, as SVG, or as a Chrome trace. Integers only.
 *
 *     how.start = start;
 *     how.end = end;
 *     dpar_schedule_simulate(&s, &how, &timing, memory, sizeof memory, &why);
 *     desc.schedule = &s;
 *     desc.start = start;
 *     desc.end = end;
 *     desc.unit = 1000;
 *     dpar_schedule_draw(&text, &desc, DPAR_SCHEDULE_DRAW_SVG, &why);
 */

/* A Gantt chart to be drawn. Times are whole ticks, 0 or more, with start <= end. Only a message
 * that arrived before its RECV was reached ends before it starts. Both actions of a joined pair
 * have the pair's times.
 *
 * Times are printed as ticks / unit. If ticks are nanoseconds, unit = 1000 prints microseconds; if
 * F takes 1000 ticks, unit = 1000 prints multiples of F.
 */
typedef struct dpar_schedule_draw_desc {
    const dpar_schedule *schedule;
    const int64_t *start, *end; /* [actions], as dpar_schedule_simulate writes them */
    int64_t unit;               /* ticks of a printed unit, 1 to 10^12 */
    const char *title;          /* printable ASCII; NULL if there is none */
    int32_t width;              /* TEXT: characters of a line, 32 to 4096; 0 selects 80 */
} dpar_schedule_draw_desc;

/* The formats of a picture. */
enum {
    /* 7-bit ASCII text with one line per rank of at most `width` characters. If all time steps fit,
     * each one has the same number of columns, and slices are exact. Otherwise columns are scaled:
     * each shows what ran at its middle, and the first line says so. A wide slice is written as a
     * letter, the micro-batch and dashes: "B3--". Lower case marks the rank's odd chunks, and '*'
     * an overlapped pair, whose first half is the forward. A narrow chart has one mark per column:
     * 0-9 F, A-Z B, a-z I, '+' W. '.' is idle. Messages and collectives are left out. The legend
     * explains all this. Costs O(actions x width). */
    DPAR_SCHEDULE_DRAW_TEXT,
    /* SVG. Slices are coloured by kind, with a rank's later chunks lighter; overlapped pairs are
     * drawn as two halves, idle time is hatched, and messages are arrows. Collectives and offloads
     * are on a strip below the rank's lane. There are an axis, a legend and tooltips. The file is
     * valid XML without scripts and without fonts other than sans-serif. Costs O(actions) if
     * messages are received nearly in the order of their sends. */
    DPAR_SCHEDULE_DRAW_SVG,
    /* A trace for Perfetto (ui.perfetto.dev) or Chrome's own page. A rank is a process with threads
     * for compute, for each direction's sends and receives, and for the rest. Events are complete
     * events in microseconds = ticks / unit; an OVERLAP_F_B slice contains its F and its B. A flow
     * arrow leads from each send to its receive, and a receive is drawn from the time at which its
     * message is sent. Messages that are in flight together get threads of their own, up to 8 per
     * kind, because slices of one thread must nest. Costs O(actions) as for SVG. */
    DPAR_SCHEDULE_DRAW_TRACE
};

/* Draws a Gantt chart and appends it to a text, at the cost that is stated with the format. Fails
 * with DPAR_E_ARG and appends nothing if a time is negative, an action ends before it starts or is
 * out of range, or there is no such format. */
DPAR_API dpar_status dpar_schedule_draw(dpar_text *text, const dpar_schedule_draw_desc *desc,
                                        int32_t format, dpar_why *why);

/* ==== schedule/sketch.h ==== */

/* sketch - draws a schedule in one call, with F = I = W.
 *
 *     dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why);
 *     dpar_schedule_sketch(&s, DPAR_SCHEDULE_DRAW_TEXT, work, sizeof work, &text, &why);
 *
 * To draw with times of your own, call dpar_schedule_simulate and dpar_schedule_draw.
 */

/* Draws a schedule with F = I = W = 1, B = 2 and messages that take no time, and appends the
 * picture to a text.
 *
 * format:  DPAR_SCHEDULE_DRAW_TEXT (lines of at most 100 characters), DPAR_SCHEDULE_DRAW_SVG or
 *          DPAR_SCHEDULE_DRAW_TRACE.
 * mem:     working memory, aligned as for int64_t. With NULL and 0 bytes the call fails with
 *          DPAR_E_ROOM, and why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG if `schedule` is not a schedule, DPAR_E_STUCK if its ranks wait for each
 * other, or DPAR_E_ROOM if `bytes` is too small; nothing is appended. Costs a simulation and the
 * picture, O(actions x 100).
 */
DPAR_API dpar_status dpar_schedule_sketch(const dpar_schedule *schedule, int32_t format, void *mem,
                                          int64_t bytes, dpar_text *text, dpar_why *why);

/* ==== schedule/schedule_selftest.h ==== */

/* schedule_selftest - tests whether this compiler makes the same schedules as all others. */

/* Makes a schedule by each rule and compares their checksum with that of all other targets. Fails
 * with DPAR_E_MISMATCH. Needs about 2 KB of stack. */
DPAR_API dpar_status dpar_schedule_selftest(dpar_why *why);

#endif /* DPAR_SCHEDULE_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* Private functions that the headers above this one call. */
#ifndef DPARI_SCHEDULE_INTERNAL_H
#define DPARI_SCHEDULE_INTERNAL_H

/* ==== schedule/needed_bytes.h ==== */

/* needed_bytes - private: how many bytes of memory the functions of dpar_schedule.h need. A program
 * learns the number from why->bytes when a call without memory fails with DPAR_E_ROOM. */

/* Returns the bytes for dpar_schedule_generate: dpari_schedule_bytes, and for V_HALF, V_MIN and
 * 1F1B_V another 88 m + 72 p + 248 bytes of working memory per rank. Returns -1 if there is no such
 * schedule; `why` receives the reason. O(stages). */
DPARI_API int64_t dpari_schedule_generate_bytes(const dpar_schedule_desc *order, dpar_why *why);
/* Returns the bytes for dpar_schedule_check, or -1 if ranks, stages, chain, micro_batches, slices
 * or begin are not those of a schedule. O(ranks). */
DPARI_API int64_t dpari_schedule_check_bytes(const dpar_schedule *schedule,
                                             const dpar_schedule_check_desc *how);
/* Returns the bytes for dpar_schedule_slots, or -1 if dpari_schedule_check_bytes returns -1.
 * O(ranks). */
DPARI_API int64_t dpari_schedule_slots_bytes(const dpar_schedule *schedule);
/* Returns the bytes for dpar_schedule_lower, or -1 if it refuses the schedule or the passes; `why`
 * receives the reason. O(actions x max_active). */
DPARI_API int64_t dpari_schedule_lower_bytes(const dpar_schedule *in,
                                             const dpar_schedule_lower_desc *how, dpar_why *why);

#endif /* DPARI_SCHEDULE_INTERNAL_H */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_SCHEDULE_IMPLEMENTATION)) && \
    !defined(DPAR_SCHEDULE_IMPLEMENTATION_DONE)
#define DPAR_SCHEDULE_IMPLEMENTATION_DONE

/* ==== schedule/needed_bytes.h ==== */

/* Returns the bytes of a schedule, or -1 unless there are 1 to 65535 ranks and stages and 0 or more
 * actions. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions);
/* Returns the bytes for dpar_schedule_simulate, or -1 if the struct is not a schedule or has more
 * than 2^32 - 2 actions. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_simulate_bytes(const dpar_schedule *schedule,
                                                     const dpar_schedule_simulate_desc *how);
/* Returns the least bytes for dpar_schedule_optimize, or -1 if a job is out of its domain or cannot
 * fit; `why` receives the reason. O(stages x ranks). */
DPARI_INTERNAL int64_t dpari_schedule_auto_bytes(const dpar_schedule_optimize_desc *job,
                                                 dpar_why *why);
/* Returns the bytes for dpar_schedule_partition, or -1 if a number is out of its domain. O(1). */
DPARI_INTERNAL int64_t dpari_schedule_place_bytes(const dpar_schedule_partition_desc *how);

/* ==== schedule/action.h ==== */

/* action - private: facts about kinds and stages that all modules of dpar_schedule.h use.
 * Header-only. */

/* Returns the name of a kind, such as "F" or "SEND_F", or "" for DPAR_ACTION_IDLE and any other
 * number. */
DPARI_FN const char *dpari_action_name(int32_t kind)
{
    switch (kind) { /* a table of pointers would have to be relocated at load time */
    case DPAR_ACTION_FORWARD: return "F";
    case DPAR_ACTION_BACKWARD: return "B";
    case DPAR_ACTION_INPUT: return "I";
    case DPAR_ACTION_WEIGHT: return "W";
    case DPAR_ACTION_SEND_F: return "SEND_F";
    case DPAR_ACTION_RECV_F: return "RECV_F";
    case DPAR_ACTION_SEND_B: return "SEND_B";
    case DPAR_ACTION_RECV_B: return "RECV_B";
    case DPAR_ACTION_UNSHARD: return "UNSHARD";
    case DPAR_ACTION_RESHARD: return "RESHARD";
    case DPAR_ACTION_REDUCE_GRAD: return "REDUCE_GRAD";
    case DPAR_ACTION_RECOMPUTE: return "RECOMPUTE";
    case DPAR_ACTION_OFFLOAD: return "OFFLOAD";
    case DPAR_ACTION_RELOAD: return "RELOAD";
    case DPAR_ACTION_WAIT_REDUCE: return "WAIT_REDUCE_GRAD";
    default: return "";
    }
}

/* Rounds a number of bytes up to a multiple of 8. All sizes of memory in dpar_schedule.h are
 * rounded like this, because callers place one array after another in the same memory, and each
 * must be aligned as for int64_t. */
DPARI_FN int64_t dpari_whole_words(int64_t bytes)
{
    return (bytes + 7) & ~(int64_t)7;
}

/* True if actions of this kind have a micro-batch: F, B, I, W, messages, RECOMPUTE, OFFLOAD and
 * RELOAD. */
DPARI_FN int dpari_action_has_micro(int32_t kind)
{
    return kind > DPAR_ACTION_IDLE && kind < DPAR_ACTION_COUNT &&
           (kind < DPAR_ACTION_UNSHARD || kind > DPAR_ACTION_REDUCE_GRAD) &&
           kind != DPAR_ACTION_WAIT_REDUCE;
}

/* True for SEND_F, RECV_F, SEND_B and RECV_B. */
DPARI_FN int dpari_action_is_message(int32_t kind)
{
    return kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B;
}

DPARI_FN int dpari_action_is_send(int32_t kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B;
}

DPARI_FN int dpari_action_is_receive(int32_t kind)
{
    return kind == DPAR_ACTION_RECV_F || kind == DPAR_ACTION_RECV_B;
}

/* Returns the direction of a message: 0 with the forward, 1 with the backward. */
DPARI_FN int dpari_message_way(int32_t kind)
{
    return kind == DPAR_ACTION_SEND_B || kind == DPAR_ACTION_RECV_B;
}

/* True for B and I, which compute the gradient of a stage's input. */
DPARI_FN int dpari_action_is_gradient(int32_t kind)
{
    return kind == DPAR_ACTION_BACKWARD || kind == DPAR_ACTION_INPUT;
}

/* Returns an action that is not joined and has no peer. */
DPARI_FN dpar_action dpari_action_of(int32_t kind, int32_t stage, int32_t micro)
{
    dpar_action action;
    action.kind = (uint8_t)kind;
    action.joined = 0;
    action.stage = (uint16_t)stage;
    action.micro_batch = (uint16_t)micro;
    action.peer = 0;
    return action;
}

/* Returns the stage before this one in its chain, or -1 if there is none. */
DPARI_FN int32_t dpari_schedule_before(const dpar_schedule *schedule, int32_t stage)
{
    return stage % schedule->chain == 0 ? -1 : stage - 1;
}

/* Returns the stage after this one in its chain, or -1 if there is none. */
DPARI_FN int32_t dpari_schedule_behind(const dpar_schedule *schedule, int32_t stage)
{
    return (stage + 1) % schedule->chain == 0 ? -1 : stage + 1;
}

/* Returns the rank that a map, DPAR_STAGE_MAP_x, puts a stage on, or -1 if a number is out of
 * range. */
DPARI_FN int32_t dpari_stage_rank(int32_t map, int32_t ranks, int32_t stage)
{
    int32_t at;
    if (ranks < 1 || stage < 0 ||
        (map == DPAR_STAGE_MAP_BIDIRECTIONAL && stage >= 2 * (int64_t)ranks) || map < 0 ||
        map >= DPAR_STAGE_MAP_COUNT) {
        return -1;
    }
    at = stage % ranks;
    return map != DPAR_STAGE_MAP_LOOP && stage / ranks % 2 == 1 ? ranks - 1 - at : at;
}

/* Writes an action, but not the other half of a joined pair, which may not exist. */
DPARI_INTERNAL void dpari_action_put(const dpar_action *action, dpar_text *text);

/* Returns the number of actions in the longest list. */
DPARI_INTERNAL int64_t dpari_schedule_longest(const dpar_schedule *schedule);

/* Checks a transport, DPAR_TRANSPORT_x, and the capacity of an eager one. */
DPARI_INTERNAL dpar_status dpari_transport_check(int32_t transport, int32_t capacity,
                                                 dpar_why *why);
/* Returns the queue of its rank in which a message for `peer` waits, 0 to 2 ranks - 1. */
DPARI_INTERNAL int32_t dpari_transport_queue(int32_t transport, int32_t kind, int32_t peer);

/* Checks that every stage is on one of the schedule's ranks. */
DPARI_INTERNAL dpar_status dpari_schedule_check_ranks(const dpar_schedule *schedule, dpar_why *why);

/* Does the same as dpar_schedule_init, with the ranks and stages as arguments. */
DPARI_INTERNAL dpar_status dpari_schedule_empty(dpar_schedule *schedule, int32_t ranks,
                                                int32_t stages, int64_t actions, void *mem,
                                                int64_t bytes, dpar_why *why);

/* ==== schedule/order.h ==== */

/* order - private: functions of generate.c with which closed_form.c reads a description. */

/* Checks whether the schedule that is described exists. Fails with DPAR_E_ARG, DPAR_E_DIVIDE or
 * DPAR_E_RANGE. O(stages). */
DPARI_INTERNAL dpar_status dpari_order_check(const dpar_schedule_desc *order, dpar_why *why);
/* Returns the stages per rank: order->chunks, or the rule's default, 1 or 2. */
DPARI_INTERNAL int32_t dpari_order_chunks(const dpar_schedule_desc *order);
/* Returns the slices of a micro-batch, which are 1 unless the rule is SEQ1F1B. */
DPARI_INTERNAL int32_t dpari_order_slices(const dpar_schedule_desc *order);

/* ==== schedule/vshape.h ==== */

/* vshape - private: the orders V-Half, V-Min and 1F1B-V. They repeat a block of 6 slots on a V of 2
 * p stages (Qi 2024, Pipeline Parallelism with Controllable Memory). */

/* Returns the bytes of working memory for p ranks and m micro-batches, which dpari_order_check has
 * accepted. */
DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m);
/* Writes the lists of `schedule`, whose other fields and arrays are set. work is aligned as for
 * int64_t.
 */
DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *schedule, void *work);

/* ==== schedule/exact.h ==== */

/* exact - private: checks whether a job is possible, bounds how good its schedule can be, and finds
 * the best schedule of a tiny job by exhaustive search. Integers only. */

/* Checks whether a job is in its domain and fits. Fails with DPAR_E_ARG, with DPAR_E_RANGE if a sum
 * of times or bytes exceeds 2^60, or with DPAR_E_MEMORY if a cap cannot hold one micro-batch on all
 * stages of its rank: "cannot fit: rank 2 needs 3 activations of 10 bytes, its cap is 20". Every
 * schedule needs that much memory, and it is enough for one. O(stages x ranks). */
DPARI_INTERNAL dpar_status dpari_pipe_check(const dpar_schedule_optimize_desc *job, dpar_why *why);
/* Returns the number of actions in a schedule of this job: three per stage and micro-batch if
 * backwards are split, otherwise two. O(1). */
DPARI_INTERNAL int64_t dpari_pipe_actions(const dpar_schedule_optimize_desc *job);
/* Returns a lower bound of the objective, or -1 if dpari_pipe_check refuses the job. It is the
 * largest of these:
 *
 *  - for each rank, its work; for the makespan also the shortest time before its first stage can
 *    start, and from its last action back to stage 0;
 *  - for each stage, the time in which one micro-batch passes the whole chain, plus the time in
 *    which the other micro-batches pass that stage one after another;
 *  - for each rank with a cap, the sum of bytes x least time held over its activations, divided by
 *    the cap;
 *  - for each stage of which only A activations fit under the cap, ceil(micros / A) times the least
 *    time that one of them is held.
 *
 * O(stages x ranks).
 */
DPARI_INTERNAL int64_t dpari_pipe_bound(const dpar_schedule_optimize_desc *job);

/* The search finds the best schedule of a tiny job by depth-first branch and bound. Whenever a rank
 * is free, it runs one of the actions that are ready, or waits for the next arrival. A table keeps
 * the states that were searched to the end, so that they are not searched again. Jobs may have up
 * to 12 ranks, 24 stages and 255 micro-batches. F and I may take 1 to 2^31 - 1, W and messages 0 to
 * 2^31 - 1. In practice jobs of up to 24 stages x micro-batches can be searched to the end. */

/* Returns the bytes of working memory for a search with a table of `entries` states, 1 to 2^31. A
 * larger table shortens the search. Returns -1 if the job is out of its domain. O(stages). */
DPARI_INTERNAL int64_t dpari_exact_bytes(const dpar_schedule_optimize_desc *job, int64_t entries);
/* Searches at most `nodes` states for a schedule whose objective is smaller than `known`; 0 means
 * that none is known.
 *
 * schedule: initialised by dpar_schedule_init for the ranks and stages of the job and
 *           dpari_pipe_actions(job) actions. Receives the best schedule found. If none is better
 *           than `known`, it is unchanged and result->makespan is 0.
 * mem:      aligned as for int64_t; all of it is used.
 *
 * Returns DPAR_OK if no better schedule exists, or DPAR_MORE if the nodes were used up before that
 * was known; result->bound is then a lower bound. Fails with DPAR_E_ARG, DPAR_E_ROOM, and as
 * dpari_pipe_check does.
 */
DPARI_INTERNAL dpar_status dpari_exact_search(const dpar_schedule_optimize_desc *job, int64_t nodes,
                                              int64_t known, dpar_schedule *schedule,
                                              dpar_schedule_optimize_result *result, void *mem,
                                              int64_t bytes, dpar_why *why);

/* ==== schedule/partial_schedule.h ==== */

/* partial_schedule - private: a pipeline job in arrays, and its schedule, which grows action by
 * action. exact.c, optimize.c, partition.c and lower.c use it, and simulate.c reads times with its
 * functions. Header-only. */

/* Kinds as indices of arrays. If the job does not split backwards, B is counted as I. */
enum { DPARI_F, DPARI_I, DPARI_W };
enum { DPARI_NEVER = -1 }; /* a time that is not known yet */

/* The largest job that dpar_schedule_optimize and dpar_schedule_partition take. */
enum { DPARI_OPTIMIZE_MAX_RANKS = 4096, DPARI_OPTIMIZE_MAX_STAGES = 16384 };

/* All arrays are in the caller's memory. All micro-batches are equal, and each stage runs them in
 * ascending order, so that a count says which actions have run. */
typedef struct dpari_pipe {
    int32_t ranks, stages, micros, split;
    int64_t *time[3], *hold[3]; /* [stages], time and added bytes of F, I or B, and W */
    int64_t *lag;               /* [stages], time of a message between s and s + 1; 0 if both are on
                                   one rank */
    int64_t *cap;               /* [ranks], INT64_MAX if there is no cap */
    int32_t *rank;              /* [stages] */
    /* [ranks + 1] and [stages]: the stages of rank r in ascending order are list[first[r]] to
     * list[first[r + 1] - 1] */
    int32_t *first, *list;
    /* the schedule so far */
    int32_t *done[3];       /* [stages], the number of actions of each kind */
    int64_t *end[2];        /* [stages x micros], when F, and I or B, ended */
    int64_t *free;          /* [ranks], when the rank's last action ended */
    int64_t *held;          /* [ranks], bytes that the rank holds */
    int64_t *start;         /* [ranks], when the rank's first action started, or DPARI_NEVER */
    int64_t *count;         /* [ranks], actions of the rank */
    int64_t *always;        /* [ranks], bytes that the rank holds before its first action */
    int64_t *next[2], *sum; /* [stages] and [ranks], scratch memory for bounds */
    dpar_action *action;    /* receives the actions; NULL if they are not needed */
    int64_t *begin;         /* [ranks], where a rank's actions begin in `action` */
} dpari_pipe;

/* Returns the value of stage (or rank, or layer) i. */
DPARI_FN int64_t dpari_each_at(const dpar_stage_values *each, int64_t i)
{
    return each->each != NULL ? each->each[i] : each->all;
}

/* Returns the times of a kind, that of a joined pair for DPAR_ACTION_IDLE, or NULL if actions of
 * the kind take no time of their own. */
DPARI_FN const dpar_stage_values *dpari_times_of(const dpar_schedule_times *times, int32_t kind)
{
    switch (kind) {
    case DPAR_ACTION_IDLE: return &times->overlap;
    case DPAR_ACTION_FORWARD: return &times->forward;
    case DPAR_ACTION_BACKWARD: return &times->backward;
    case DPAR_ACTION_INPUT: return &times->input;
    case DPAR_ACTION_WEIGHT: return &times->weight;
    case DPAR_ACTION_UNSHARD: return &times->unshard;
    case DPAR_ACTION_RESHARD: return &times->reshard;
    case DPAR_ACTION_REDUCE_GRAD: return &times->reduce_grad;
    case DPAR_ACTION_RECOMPUTE: return &times->recompute;
    case DPAR_ACTION_OFFLOAD: return &times->offload;
    case DPAR_ACTION_RELOAD: return &times->reload;
    default: return NULL;
    }
}

/* Returns the rank that the job puts a stage on. */
DPARI_FN int32_t dpari_pipe_rank(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    return job->rank_of != NULL ? job->rank_of[stage]
                                : dpari_stage_rank(job->map, job->ranks, stage);
}

/* Returns the bytes that F, I or W of a stage adds. Without hold_forward an activation counts as 1,
 * from F to W. */
DPARI_FN int64_t dpari_pipe_hold(const dpar_schedule_times *times, int kind, int32_t stage)
{
    if (times->hold_forward.each == NULL && times->hold_forward.all == 0) {
        return kind == DPARI_F ? 1 : -(kind == DPARI_W);
    }
    if (kind == DPARI_F) {
        return dpari_each_at(&times->hold_forward, stage);
    }
    return dpari_each_at(kind == DPARI_I ? &times->hold_input : &times->hold_weight, stage);
}

/* Returns the time of B, or of I if the backward is split. A B without a time of its own takes as
 * long as I and W. */
DPARI_FN int64_t dpari_pipe_back(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    const dpar_schedule_times *times = job->times;
    int64_t whole = dpari_each_at(&times->backward, stage),
            input = dpari_each_at(&times->input, stage);
    if (job->split) {
        return input;
    }
    return whole > 0 ? whole : input + dpari_each_at(&times->weight, stage);
}

/* Returns the time of a message from a stage to the next one: latency + bytes x 10^9 / bandwidth,
 * rounded up. The quotient is computed digit by digit, because bytes x 10^9 may exceed 64 bits. */
DPARI_FN int64_t dpari_pipe_message(const dpar_schedule_times *times, int32_t stage)
{
    int64_t bytes = dpari_each_at(&times->bytes, stage),
            wide = dpari_each_at(&times->bandwidth, stage);
    int64_t time, left, digit;
    if (wide <= 0) {
        return dpari_each_at(&times->latency, stage);
    }
    time = bytes / wide;
    left = bytes % wide;
    for (digit = 0; digit < 9; digit++) {
        if (time > INT64_MAX / 20) {
            return INT64_MAX / 2;
        }
        time = 10 * time + 10 * left / wide;
        left = 10 * left % wide;
    }
    time += left > 0;
    return dpari_each_at(&times->latency, stage) + time;
}

/* Returns the DPAR_ACTION_x of a kind. */
DPARI_FN uint8_t dpari_pipe_kind(int32_t split, int kind)
{
    if (kind == DPARI_F) {
        return DPAR_ACTION_FORWARD;
    }
    if (kind == DPARI_W) {
        return DPAR_ACTION_WEIGHT;
    }
    return split ? DPAR_ACTION_INPUT : DPAR_ACTION_BACKWARD;
}

/* Empties the schedule. */
DPARI_FN void dpari_pipe_reset(dpari_pipe *pipe)
{
    int32_t i;
    for (i = 0; i < pipe->stages; i++) {
        pipe->done[DPARI_F][i] = pipe->done[DPARI_I][i] = pipe->done[DPARI_W][i] = 0;
    }
    for (i = 0; i < pipe->ranks; i++) {
        pipe->free[i] = pipe->count[i] = 0;
        pipe->held[i] = pipe->always[i];
        pipe->start[i] = DPARI_NEVER;
    }
}

/* Returns when the input of the stage's next F or I arrives on its rank, or DPARI_NEVER if that is
 * not known yet. */
DPARI_FN int64_t dpari_pipe_arrival(const dpari_pipe *pipe, int kind, int32_t stage)
{
    int32_t k = pipe->done[kind][stage], from = kind == DPARI_F ? stage - 1 : stage + 1;
    int last = kind == DPARI_I && from == pipe->stages; /* after the loss, I needs its own F only */
    int of = last ? DPARI_F : kind;
    int64_t end;
    if (from < 0) {
        return 0;
    }
    from = last ? stage : from;
    if (pipe->done[of][from] <= k) {
        return DPARI_NEVER;
    }
    end = pipe->end[of][(int64_t)from * pipe->micros + k];
    if (last) {
        return end;
    }
    return end + pipe->lag[kind == DPARI_F ? from : stage];
}

/* True if the stage has a next action of this kind and its memory fits, so that it may start once
 * its input has arrived. */
DPARI_FN int dpari_pipe_may(const dpari_pipe *pipe, int kind, int32_t stage)
{
    if (kind == DPARI_W) {
        return pipe->done[DPARI_W][stage] < pipe->done[DPARI_I][stage] && pipe->split;
    }
    if (pipe->done[kind][stage] >= pipe->micros) {
        return 0;
    }
    return kind == DPARI_I || pipe->hold[DPARI_F][stage] <=
                                  pipe->cap[pipe->rank[stage]] - pipe->held[pipe->rank[stage]];
}

/* Appends the stage's next action of a kind, as early as possible. The arrival of its input must be
 * known. */
DPARI_FN void dpari_pipe_put(dpari_pipe *pipe, int kind, int32_t stage)
{
    int32_t r = pipe->rank[stage], k = pipe->done[kind][stage];
    int64_t at = pipe->free[r];
    if (kind != DPARI_W) {
        at = dpari_most(at, dpari_pipe_arrival(pipe, kind, stage));
        pipe->end[kind][(int64_t)stage * pipe->micros + k] = at + pipe->time[kind][stage];
    }
    if (pipe->action != NULL) {
        pipe->action[pipe->begin[r] + pipe->count[r]] =
            dpari_action_of(dpari_pipe_kind(pipe->split, kind), stage, k);
    }
    pipe->done[kind][stage] = k + 1;
    pipe->count[r]++;
    pipe->start[r] = pipe->start[r] == DPARI_NEVER ? at : pipe->start[r];
    pipe->free[r] = at + pipe->time[kind][stage];
    pipe->held[r] += pipe->hold[kind][stage];
}

/* Sets rank_of and begin of `schedule`, and makes dpari_pipe_put write its actions there.
 * `schedule` must have capacity for all actions. */
DPARI_FN void dpari_pipe_open(dpari_pipe *pipe, dpar_schedule *schedule)
{
    int32_t r, i;
    schedule->micro_batches = pipe->micros;
    for (i = 0; i < pipe->stages; i++) {
        schedule->rank_of[i] = (uint16_t)pipe->rank[i];
    }
    for (r = 0; r < pipe->ranks; r++) {
        pipe->begin[r] = schedule->begin[r];
        schedule->begin[r + 1] =
            schedule->begin[r] +
            (int64_t)(pipe->first[r + 1] - pipe->first[r]) * pipe->micros * (pipe->split ? 3 : 2);
    }
    pipe->action = schedule->action;
}

/* Computes makespan and span of the schedule so far. */
DPARI_FN void dpari_pipe_measure(const dpari_pipe *pipe, int64_t *makespan, int64_t *span)
{
    int32_t r;
    *makespan = *span = 0;
    for (r = 0; r < pipe->ranks; r++) {
        *makespan = dpari_most(*makespan, pipe->free[r]);
        *span = dpari_most(*span, pipe->free[r] - pipe->start[r]);
    }
}

/* Returns the bytes of all arrays. */
DPARI_FN int64_t dpari_pipe_bytes(const dpar_schedule_optimize_desc *job)
{
    int64_t s = job->stages, p = job->ranks;
    return 8 * (9 * s + 8 * p + 2 * s * job->micro_batches) + 8 * ((p + 1 + 5 * s + 1) / 2);
}

/* Takes an array of `count` 8-byte numbers from the front of *mem. */
DPARI_FN int64_t *dpari_pipe_wide(char **mem, int64_t count)
{
    int64_t *at = (int64_t *)(void *)*mem;
    *mem += 8 * count;
    return at;
}

/* Takes an array of `count` 4-byte numbers from the front of *mem. */
DPARI_FN int32_t *dpari_pipe_narrow(char **mem, int64_t count)
{
    int32_t *at = (int32_t *)(void *)*mem;
    *mem += 4 * count;
    return at;
}

/* Sets the map of stages and the times of messages. */
DPARI_FN void dpari_pipe_place(dpari_pipe *pipe, const dpar_schedule_optimize_desc *job)
{
    int32_t r, s, n = 0;
    for (r = 0; r < pipe->ranks; r++) {
        pipe->first[r] = n;
        for (s = 0; s < pipe->stages; s++) {
            if (dpari_pipe_rank(job, s) == r) {
                pipe->rank[s] = r;
                pipe->list[n++] = s;
            }
        }
    }
    pipe->first[pipe->ranks] = n;
    for (s = 0; s < pipe->stages; s++) {
        pipe->lag[s] = s + 1 < pipe->stages && pipe->rank[s] != pipe->rank[s + 1]
                           ? dpari_pipe_message(job->times, s)
                           : 0;
    }
}

/* Sets the times and bytes of a checked job. */
DPARI_FN void dpari_pipe_values(dpari_pipe *pipe, const dpar_schedule_optimize_desc *job)
{
    int32_t r, s;
    for (r = 0; r < pipe->ranks; r++) {
        int64_t cap = dpari_each_at(&job->cap, r);
        pipe->cap[r] = cap > 0 ? cap : INT64_MAX;
        pipe->always[r] = 0;
    }
    for (s = 0; s < pipe->stages; s++) {
        int64_t *always = &pipe->always[pipe->rank[s]];
        *always += dpari_each_at(&job->times->hold_always, s);
        pipe->time[DPARI_F][s] = dpari_each_at(&job->times->forward, s);
        pipe->time[DPARI_I][s] = dpari_pipe_back(job, s);
        pipe->time[DPARI_W][s] = job->split ? dpari_each_at(&job->times->weight, s) : 0;
        pipe->hold[DPARI_F][s] = dpari_pipe_hold(job->times, DPARI_F, s);
        pipe->hold[DPARI_W][s] = dpari_pipe_hold(job->times, DPARI_W, s);
        pipe->hold[DPARI_I][s] =
            job->split ? dpari_pipe_hold(job->times, DPARI_I, s) : -pipe->hold[DPARI_F][s];
    }
}

/* Places the arrays of a checked job in mem, with an empty schedule. Returns the address after
 * them. */
DPARI_FN char *dpari_pipe_arrange(dpari_pipe *pipe, const dpar_schedule_optimize_desc *job,
                                  void *mem)
{
    char *at = (char *)mem;
    int64_t s = job->stages, p = job->ranks;
    int k;
    pipe->ranks = job->ranks;
    pipe->stages = job->stages;
    pipe->micros = job->micro_batches;
    pipe->split = job->split;
    for (k = 0; k < 3; k++) {
        pipe->time[k] = dpari_pipe_wide(&at, s);
        pipe->hold[k] = dpari_pipe_wide(&at, s);
    }
    for (k = 0; k < 2; k++) {
        pipe->end[k] = dpari_pipe_wide(&at, s * pipe->micros);
        pipe->next[k] = dpari_pipe_wide(&at, s);
    }
    pipe->lag = dpari_pipe_wide(&at, s);
    pipe->cap = dpari_pipe_wide(&at, p);
    pipe->free = dpari_pipe_wide(&at, p);
    pipe->held = dpari_pipe_wide(&at, p);
    pipe->start = dpari_pipe_wide(&at, p);
    pipe->count = dpari_pipe_wide(&at, p);
    pipe->always = dpari_pipe_wide(&at, p);
    pipe->begin = dpari_pipe_wide(&at, p);
    pipe->sum = dpari_pipe_wide(&at, p);
    pipe->rank = dpari_pipe_narrow(&at, s);
    pipe->list = dpari_pipe_narrow(&at, s);
    for (k = 0; k < 3; k++) {
        pipe->done[k] = dpari_pipe_narrow(&at, s);
    }
    pipe->first = dpari_pipe_narrow(&at, p + 1);
    pipe->action = NULL;
    dpari_pipe_place(pipe, job);
    dpari_pipe_values(pipe, job);
    dpari_pipe_reset(pipe);
    return (char *)mem + dpari_pipe_bytes(job);
}

/* ==== schedule/schedule.c ==== */

/* Places a schedule in the caller's memory, and reads and writes it as PyTorch's CSV. Reading takes
 * two passes over the text: the first counts ranks, stages and actions, the second writes the
 * actions. */

/* ---- maps and memory ------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions)
{
    if (ranks < 1 || ranks > DPAR_MAX_STAGES || stages < 1 || stages > DPAR_MAX_STAGES ||
        actions < 0 || actions > INT64_MAX / 16) {
        return -1;
    }
    return 8 * ((int64_t)ranks + 1) + 8 * actions + dpari_whole_words(2 * (int64_t)stages);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_schedule_empty(dpar_schedule *schedule, int32_t ranks,
                                                           int32_t stages, int64_t actions,
                                                           void *mem, int64_t bytes, dpar_why *why)
{
    int64_t needed = dpari_schedule_bytes(ranks, stages, actions);
    if (needed < 0) {
        return dpari_wrong(why,
                           "the schedule has %d ranks, %d stages and %ld actions; 1 to 65535 ranks "
                           "and stages and 0 or more actions are allowed",
                           ranks, stages, actions);
    }
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why,
                         "a schedule of %ld actions on %d ranks needs %ld bytes, got %ld", actions,
                         ranks, needed, bytes);
    }
    schedule->ranks = ranks;
    schedule->stages = stages;
    schedule->micro_batches = 0;
    schedule->chain = stages;
    schedule->slices = 1;
    schedule->begin = (int64_t *)mem;
    schedule->action = (dpar_action *)(void *)(schedule->begin + ranks + 1);
    schedule->rank_of = (uint16_t *)(void *)(schedule->action + actions);
    dpari_zero(schedule->begin, 8 * ((size_t)ranks + 1));
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_init(dpar_schedule *schedule, int64_t actions, void *mem,
                                        int64_t bytes, dpar_why *why)
{
    return dpari_schedule_empty(schedule, schedule->ranks, schedule->stages, actions, mem, bytes,
                                why);
}

DPAR_API int32_t dpar_schedule_partner(const dpar_schedule *schedule, int32_t kind, int32_t stage)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_SEND_F:
    case DPAR_ACTION_RECV_B: return dpari_schedule_behind(schedule, stage);
    case DPAR_ACTION_BACKWARD:
    case DPAR_ACTION_INPUT:
    case DPAR_ACTION_SEND_B:
    case DPAR_ACTION_RECV_F: return dpari_schedule_before(schedule, stage);
    default: return -1;
    }
}

DPARI_INTERNAL int64_t dpari_schedule_longest(const dpar_schedule *schedule)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < schedule->ranks; r++) {
        most = dpari_most(most, schedule->begin[r + 1] - schedule->begin[r]);
    }
    return most;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_schedule_check_ranks(const dpar_schedule *schedule,
                                                                 dpar_why *why)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        if (schedule->rank_of[i] >= schedule->ranks) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", i,
                               (int32_t)schedule->rank_of[i], schedule->ranks);
        }
    }
    return DPAR_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_action_put(const dpar_action *action, dpar_text *text)
{
    if (action->kind == DPAR_ACTION_IDLE || action->kind >= DPAR_ACTION_COUNT) {
        return;
    }
    dpari_text_int(text, action->stage); /* not dpari_text_say, which takes more stack */
    dpar_text_put(text, dpari_action_name(action->kind));
    if (dpari_action_has_micro(action->kind)) {
        dpari_text_int(text, action->micro_batch);
    }
}

DPAR_API DPARI_COLD void dpar_action_write(const dpar_action *action, dpar_text *text)
{
    if (action->joined) {
        dpari_text_char(text, '(');
    }
    dpari_action_put(action, text);
    if (action->joined) {
        dpari_text_char(text, ';');
        dpari_action_put(action + 1, text);
        dpar_text_put(text, ")OVERLAP_F_B");
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A position in a text, and what was counted so far. */
typedef struct dpari_csv {
    const char *s; /* the text, of n bytes */
    size_t n, at, line_start;
    int64_t line, actions;
    int32_t rows, stages, micros;
} dpari_csv;

/* Returns the byte at the position, or -1 at the end of the text. */
static int dpari_csv_peek(const dpari_csv *csv)
{
    return csv->at < csv->n ? (unsigned char)csv->s[csv->at] : -1;
}

/* Writes a message like "line 2, column 14: expected a stage's number, not 'F0xyz'". */
static dpar_status dpari_csv_say(const dpari_csv *csv, const char *expected, dpar_why *why)
{
    dpar_text t;
    size_t end = csv->at;
    while (end < csv->n && end < csv->at + 24 && csv->s[end] >= ' ' && csv->s[end] != ',') {
        end++;
    }
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpar_text_put(&t, "line ");
        dpari_text_int(&t, csv->line);
        dpar_text_put(&t, ", column ");
        dpari_text_int(&t, (int64_t)(csv->at - csv->line_start) + 1);
        dpar_text_put(&t, ": expected ");
        dpar_text_put(&t, expected);
        if (end > csv->at) {
            dpar_text_put(&t, ", not '");
            dpari_text_slice(&t, csv->s + csv->at, end - csv->at);
            dpar_text_put(&t, "'");
        }
    }
    return DPAR_E_PARSE;
}

/* Reads a number, 0 to 65534. */
static dpar_status dpari_csv_number(dpari_csv *csv, const char *what, uint16_t *value,
                                    dpar_why *why)
{
    dpari_csv start = *csv;
    int32_t v = 0;
    while (dpari_csv_peek(csv) >= '0' && dpari_csv_peek(csv) <= '9' && v < DPAR_MAX_STAGES) {
        v = 10 * v + (dpari_csv_peek(csv) - '0');
        csv->at++;
    }
    if (csv->at == start.at) {
        return dpari_csv_say(csv, what, why);
    }
    if (v >= DPAR_MAX_STAGES) {
        return dpari_csv_say(&start, "a number of 0 to 65534", why);
    }
    *value = (uint16_t)v;
    return DPAR_OK;
}

/* Reads the name of a kind, the longest one that matches. Returns DPAR_ACTION_IDLE if none does. */
static uint8_t dpari_csv_kind(dpari_csv *csv)
{
    size_t most = 0;
    int kind, best = DPAR_ACTION_IDLE;
    for (kind = DPAR_ACTION_FORWARD; kind < DPAR_ACTION_COUNT; kind++) {
        size_t n = dpari_length(dpari_action_name(kind));
        if (n > most && n <= csv->n - csv->at &&
            dpari_spells(csv->s + csv->at, n, dpari_action_name(kind))) {
            most = n;
            best = kind;
        }
    }
    csv->at += most;
    return (uint8_t)best;
}

static dpar_status dpari_csv_action(dpari_csv *csv, dpar_action *action, dpar_why *why)
{
    dpar_status st;
    dpari_zero(action, sizeof(*action));
    st = dpari_csv_number(csv, "a stage's number", &action->stage, why);
    if (st != DPAR_OK) {
        return st;
    }
    action->kind = dpari_csv_kind(csv);
    if (action->kind == DPAR_ACTION_IDLE) {
        return dpari_csv_say(csv,
                             "F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, "
                             "REDUCE_GRAD, WAIT_REDUCE_GRAD, RECOMPUTE, OFFLOAD or RELOAD",
                             why);
    }
    if (dpari_action_has_micro(action->kind)) {
        st = dpari_csv_number(csv, "a micro-batch's number", &action->micro_batch, why);
        csv->micros = (int32_t)dpari_most(csv->micros, (int32_t)action->micro_batch + 1);
    }
    csv->stages = (int32_t)dpari_most(csv->stages, (int32_t)action->stage + 1);
    return st;
}

/* Reads a fixed text. */
static dpar_status dpari_csv_word(dpari_csv *csv, const char *word, dpar_why *why)
{
    size_t n = dpari_length(word);
    if (n > csv->n - csv->at || !dpari_spells(csv->s + csv->at, n, word)) {
        return dpari_csv_say(csv, word, why);
    }
    csv->at += n;
    return DPAR_OK;
}

static void dpari_csv_blanks(dpari_csv *csv)
{
    while (dpari_csv_peek(csv) == ' ' || dpari_csv_peek(csv) == '\t') {
        csv->at++;
    }
}

/* Reads the rest of (<F>;<B or I>)OVERLAP_F_B after the "(". */
static dpar_status dpari_csv_joined(dpari_csv *csv, dpar_action *action, dpar_why *why)
{
    dpari_csv start = *csv;
    dpar_status st = dpari_csv_action(csv, action, why);
    action->joined = 1;
    if (st == DPAR_OK && action->kind != DPAR_ACTION_FORWARD) {
        return dpari_csv_say(&start, "an F, which a B or I overlaps", why);
    }
    if (st == DPAR_OK) {
        st = dpari_csv_word(csv, ";", why);
    }
    if (st == DPAR_OK) {
        start = *csv;
        st = dpari_csv_action(csv, action + 1, why);
        if (st == DPAR_OK && !dpari_action_is_gradient(action[1].kind)) {
            return dpari_csv_say(&start, "a B or I, which overlaps the F", why);
        }
    }
    return st == DPAR_OK ? dpari_csv_word(csv, ")OVERLAP_F_B", why) : st;
}

/* True at the end of a line. Moves past the CR of a CRLF. */
static int dpari_csv_line_ends(dpari_csv *csv)
{
    if (csv->n - csv->at > 1 && csv->s[csv->at] == '\r' && csv->s[csv->at + 1] == '\n') {
        csv->at++;
    }
    return dpari_csv_peek(csv) == '\n' || dpari_csv_peek(csv) == -1;
}

/* Reads a cell, which has one action or a joined pair. The position is then at the comma, the end
 * of the line or the end of the text. */
static dpar_status dpari_csv_cell(dpari_csv *csv, dpar_action a[2], int *count, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int next;
    *count = 1;
    dpari_csv_blanks(csv);
    next = dpari_csv_peek(csv);
    dpari_zero(a, 2 * sizeof(*a));
    if (next == '(') {
        csv->at++;
        *count = 2;
        st = dpari_csv_joined(csv, a, why);
    } else if (next == '"') {
        st = dpari_csv_word(csv, "\"\"", why);
    } else if (next != ',' && next != '\r' && next != '\n' && next != -1) {
        st = dpari_csv_action(csv, a, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_csv_blanks(csv);
    if (!dpari_csv_line_ends(csv) && dpari_csv_peek(csv) != ',') {
        return dpari_csv_say(csv, "a comma or the end of the line", why);
    }
    return DPAR_OK;
}

/* Skips a comment up to the end of its line. Returns 1 if there was one. */
static int dpari_csv_comment(dpari_csv *csv)
{
    int comment = dpari_csv_peek(csv) == '#';
    while (comment && csv->at < csv->n && csv->s[csv->at] != '\n') {
        csv->at++;
    }
    return comment;
}

/* Reads a line, which is the list of a rank. If `schedule` is not NULL, the actions are written to
 * it. */
static dpar_status dpari_csv_line(dpari_csv *csv, dpar_schedule *schedule, dpar_why *why)
{
    dpar_action a[2];
    dpari_csv start = *csv;
    int count, k, more = !dpari_csv_line_ends(csv);
    while (more) {
        dpar_status st = dpari_csv_cell(csv, a, &count, why);
        if (st != DPAR_OK) {
            return st;
        }
        for (k = 0; k < count && schedule != NULL; k++) {
            schedule->action[csv->actions + k] = a[k];
        }
        csv->actions += count;
        more = dpari_csv_peek(csv) == ',';
        csv->at += (size_t)more;
    }
    if (++csv->rows > DPAR_MAX_STAGES) {
        return dpari_csv_say(&start, "at most 65535 ranks", why);
    }
    return DPAR_OK;
}

/* Reads the whole text. */
static DPARI_COLD dpar_status dpari_csv_walk(dpari_csv *csv, const char *text, size_t n,
                                             dpar_schedule *schedule, dpar_why *why)
{
    dpari_zero(csv, sizeof(*csv));
    csv->s = text;
    csv->n = n;
    for (csv->line = 1; csv->at < n; csv->line++) {
        csv->line_start = csv->at;
        if (!dpari_csv_comment(csv)) {
            dpar_status st = dpari_csv_line(csv, schedule, why);
            if (st != DPAR_OK) {
                return st;
            }
            if (schedule != NULL) {
                schedule->begin[csv->rows] = csv->actions;
            }
        }
        csv->at += (size_t)(csv->at < n); /* past the line's end */
    }
    return DPAR_OK;
}

/* Sets rank_of: a stage is on the rank whose line names it. Each stage must be on one rank. */
static dpar_status dpari_csv_ranks(dpar_schedule *schedule, dpar_why *why)
{
    const uint16_t nobody = 65535;
    int32_t r, i;
    int64_t k;
    for (i = 0; i < schedule->stages; i++) {
        schedule->rank_of[i] = nobody;
    }
    for (r = 0; r < schedule->ranks; r++) {
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            const dpar_action *action = &schedule->action[k];
            if (action->kind == DPAR_ACTION_IDLE) {
                continue;
            }
            if (schedule->rank_of[action->stage] != nobody &&
                schedule->rank_of[action->stage] != r) {
                return dpari_wrong(why, "stage %d is on rank %d and on rank %d",
                                   (int32_t)action->stage,
                                   (int32_t)schedule->rank_of[action->stage], r);
            }
            schedule->rank_of[action->stage] = (uint16_t)r;
        }
    }
    for (i = 0; i < schedule->stages; i++) {
        if (schedule->rank_of[i] == nobody) {
            return dpari_wrong(why, "stage %d has no action, but stage %d is on rank %d", i,
                               schedule->stages - 1,
                               (int32_t)schedule->rank_of[schedule->stages - 1]);
        }
    }
    return DPAR_OK;
}

/* Sets the peers of messages. */
static dpar_status dpari_csv_peers(dpar_schedule *schedule, dpar_why *why)
{
    int64_t k;
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        dpar_action *action = &schedule->action[k];
        int32_t other;
        if (!dpari_action_is_message(action->kind)) {
            continue;
        }
        other = dpar_schedule_partner(schedule, action->kind, action->stage);
        if (other < 0) {
            return dpari_wrong(why, "%d%s%d has no partner, because stage %d ends its chain",
                               (int32_t)action->stage, dpari_action_name(action->kind),
                               (int32_t)action->micro_batch, (int32_t)action->stage);
        }
        if (schedule->rank_of[other] == schedule->rank_of[action->stage]) {
            return dpari_wrong(why, "%d%s%d is not needed, because stage %d is on the same rank",
                               (int32_t)action->stage, dpari_action_name(action->kind),
                               (int32_t)action->micro_batch, other);
        }
        action->peer = schedule->rank_of[other];
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_read(dpar_schedule *schedule,
                                                   const dpar_schedule_read_desc *in, void *mem,
                                                   int64_t bytes, dpar_why *why)
{
    dpari_csv c;
    dpar_schedule got;
    dpar_status st = dpari_csv_walk(&c, in->text, in->bytes, NULL, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (in->chain < 0 || (in->chain > 0 && c.stages % in->chain != 0)) {
        return dpari_wrong(why, "chains of %d stages do not divide %d stages", in->chain, c.stages);
    }
    if (c.rows < 1 || c.stages < 1) {
        return dpari_say(DPAR_E_PARSE, why,
                         "the text has %d ranks and %d stages; a schedule has 1 or more of each",
                         c.rows, c.stages);
    }
    st = dpari_schedule_empty(&got, c.rows, c.stages, c.actions, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    got.chain = in->chain > 0 ? in->chain : c.stages;
    got.micro_batches = c.micros;
    (void)dpari_csv_walk(&c, in->text, in->bytes, &got, NULL);
    st = dpari_csv_ranks(&got, why);
    if (st == DPAR_OK) {
        st = dpari_csv_peers(&got, why);
    }
    if (st == DPAR_OK) {
        *schedule = got;
    }
    return st;
}

/* ---- writing --------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD void dpar_schedule_write(const dpar_schedule *schedule, const char *end,
                                             dpar_text *text)
{
    int32_t r;
    int64_t k;
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[r + 1] == schedule->begin[r] + 1 &&
            schedule->action[schedule->begin[r]].kind == DPAR_ACTION_IDLE) {
            dpar_text_put(text, "\"\"");
        }
        for (k = schedule->begin[r]; k < schedule->begin[r + 1];
             k += 1 + schedule->action[k].joined) {
            if (k > schedule->begin[r]) {
                dpari_text_char(text, ',');
            }
            dpar_action_write(&schedule->action[k], text);
        }
        dpar_text_put(text, end);
    }
}

/* ==== schedule/generate.c ==== */

/* Makes the published schedules. With most rules a rank alternates between F and backward; these
 * rules differ in how many F a rank runs first and in the order of micro-batches. Each other rule
 * has a section. The three rules on a V with controlled memory are in vshape.c. A description is
 * first checked, then filled with its defaults (dpari_plan), then written rank by rank. */

/* ---- names ----------------------------------------------------------------------------------- */

DPAR_API const char *dpar_schedule_name(int32_t rule)
{
    static const char names[] = "?\0gpipe\0" /* in the order of DPAR_SCHEDULE_x */
                                "1f1b\0interleaved\0breadth-first\0zb-h1\0zb-2p\0zbv\0"
                                "v-half\0v-min\0dualpipe\0dualpipev\0eager-1f1b\0"
                                "interleaved-zb\0"
                                "1f1b-v\0moe-overlap\0seq1f1b\0chimera\0forward-only";
    return dpari_nth_text(names, rule > 0 && rule < DPAR_SCHEDULE_END ? rule : 0);
}

/* Returns the next character of a name in lower case and moves *at past it. Skips '-' and '_'.
 * Returns 0 at the end. */
static char dpari_name_next(const char *name, size_t *at)
{
    char c = name[*at];
    while (c == '-' || c == '_') {
        c = name[++*at];
    }
    *at += c != 0;
    return dpari_lower(c);
}

/* True if both names are equal apart from case, '-' and '_'. */
static int dpari_name_same(const char *a, const char *b)
{
    size_t i = 0, j = 0;
    char c;
    do {
        c = dpari_name_next(a, &i);
        if (c != dpari_name_next(b, &j)) {
            return 0;
        }
    } while (c != 0);
    return 1;
}

/* Returns the part of a name after the prefix `head`, or the whole name if it has no such prefix.
 */
static const char *dpari_name_past(const char *name, const char *head)
{
    size_t i = 0, j = 0;
    char c;
    while ((c = dpari_name_next(head, &j)) != 0) {
        if (dpari_name_next(name, &i) != c) {
            return name;
        }
    }
    return name + i;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_find(dpar_schedule_desc *desc, const char *name,
                                                   dpar_why *why)
{
    static const char others[] = "gpipe-lifo\0interleaved-1f1b\0flexible-interleaved-1f1b\0bfs\0"
                                 "looped-bfs\0zb-1p\0zb-h2\0zbv-zero-bubble\0eager\0izb\0"
                                 "interleaved-zero-bubble\0v1f1b\0overlap-1f1b\0inference";
    static const uint8_t other_rule[] = {DPAR_SCHEDULE_GPIPE,          DPAR_SCHEDULE_INTERLEAVED,
                                         DPAR_SCHEDULE_INTERLEAVED,    DPAR_SCHEDULE_BREADTH_FIRST,
                                         DPAR_SCHEDULE_BREADTH_FIRST,  DPAR_SCHEDULE_ZB_H1,
                                         DPAR_SCHEDULE_ZB_2P,          DPAR_SCHEDULE_ZBV,
                                         DPAR_SCHEDULE_EAGER_1F1B,     DPAR_SCHEDULE_INTERLEAVED_ZB,
                                         DPAR_SCHEDULE_INTERLEAVED_ZB, DPAR_SCHEDULE_1F1B_V,
                                         DPAR_SCHEDULE_MOE_OVERLAP,    DPAR_SCHEDULE_FORWARD_ONLY};
    const char *bare = dpari_name_past(name, "schedule");
    int32_t i;
    for (i = 1; i < DPAR_SCHEDULE_END; i++) {
        if (dpari_name_same(bare, dpar_schedule_name(i))) {
            desc->rule = i;
            desc->lifo = 0;
            return DPAR_OK;
        }
    }
    for (i = 0; i < (int32_t)sizeof other_rule; i++) {
        if (dpari_name_same(bare, dpari_nth_text(others, i))) {
            desc->rule = other_rule[i];
            desc->lifo = i == 0; /* gpipe-lifo */
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_UNKNOWN, why,
                     "no schedule '%.*s': gpipe, gpipe-lifo, 1f1b, eager-1f1b, interleaved, "
                     "breadth-first, zb-h1, zb-2p, interleaved-zb, zbv, v-half, v-min, 1f1b-v, "
                     "dualpipe, dualpipev, moe-overlap, seq1f1b, chimera, forward-only",
                     (int32_t)24, name);
}

/* ---- properties of rules --------------------------------------------------------------------- */

/* True if the caller may choose the number of stages per rank. */
static int dpari_order_loops(int32_t rule)
{
    return rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_BREADTH_FIRST ||
           rule == DPAR_SCHEDULE_INTERLEAVED_ZB || rule == DPAR_SCHEDULE_MOE_OVERLAP ||
           rule == DPAR_SCHEDULE_FORWARD_ONLY;
}

/* True if the rule runs micro-batches in groups. */
static int dpari_order_groups(int32_t rule)
{
    return rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_INTERLEAVED_ZB ||
           rule == DPAR_SCHEDULE_MOE_OVERLAP;
}

/* True if a stage runs all its micro-batches without a break, so that any map of stages works. */
static int dpari_order_sweeps(int32_t rule)
{
    return rule == DPAR_SCHEDULE_GPIPE || rule == DPAR_SCHEDULE_BREADTH_FIRST ||
           rule == DPAR_SCHEDULE_FORWARD_ONLY;
}

/* True if the rule runs two pipelines in opposite directions. */
static int dpari_order_both_ways(int32_t rule)
{
    return rule == DPAR_SCHEDULE_DUALPIPE || rule == DPAR_SCHEDULE_CHIMERA;
}

/* True if the rule runs on a V: stage s and stage 2p-1-s are on the same rank. */
static int dpari_order_folded(int32_t rule)
{
    return rule == DPAR_SCHEDULE_ZBV || rule == DPAR_SCHEDULE_V_HALF ||
           rule == DPAR_SCHEDULE_V_MIN || rule == DPAR_SCHEDULE_DUALPIPEV ||
           rule == DPAR_SCHEDULE_1F1B_V;
}

static int32_t dpari_order_map(int32_t rule)
{
    if (dpari_order_both_ways(rule)) {
        return DPAR_STAGE_MAP_BIDIRECTIONAL;
    }
    return dpari_order_folded(rule) ? DPAR_STAGE_MAP_V : DPAR_STAGE_MAP_LOOP;
}

DPARI_INTERNAL int32_t dpari_order_chunks(const dpar_schedule_desc *order)
{
    int two = dpari_order_map(order->rule) != DPAR_STAGE_MAP_LOOP ||
              order->rule == DPAR_SCHEDULE_INTERLEAVED ||
              order->rule == DPAR_SCHEDULE_BREADTH_FIRST ||
              order->rule == DPAR_SCHEDULE_INTERLEAVED_ZB;
    return order->chunks > 0 ? order->chunks : 1 + two;
}

DPARI_INTERNAL int32_t dpari_order_slices(const dpar_schedule_desc *order)
{
    if (order->rule != DPAR_SCHEDULE_SEQ1F1B) {
        return 1;
    }
    return order->slices > 0 ? order->slices : 2;
}

static int32_t dpari_order_rank(const dpar_schedule_desc *desc, int32_t stage)
{
    return desc->rank_of != NULL
               ? desc->rank_of[stage]
               : dpari_stage_rank(dpari_order_map(desc->rule), desc->ranks, stage);
}

/* A description with its defaults filled in, for p ranks, v stages per rank and m micro-batches. If
 * micro-batches are sliced, m counts slices. */
typedef struct dpari_plan {
    int32_t rule, p, v, m;
    int32_t stages, slices, lifo;
    int32_t size, wide; /* the first `wide` groups have size + 1 micro-batches, the others size */
} dpari_plan;

/* Sets the sizes of the groups as dpar_schedule_desc.group describes. A last group with fewer than
 * p micro-batches is shared among the full groups. */
static void dpari_plan_groups(dpari_plan *plan, int32_t group)
{
    int32_t n = group > 0 ? group : plan->p;
    plan->size = n < plan->m ? n : plan->m;
    plan->wide = 0;
    if (n < plan->m && plan->m % n < plan->p) {
        plan->size = plan->m / (plan->m / n);
        plan->wide = plan->m % (plan->m / n);
    }
}

static dpari_plan dpari_plan_of(const dpar_schedule_desc *desc)
{
    dpari_plan k;
    k.rule = desc->rule;
    k.p = desc->ranks;
    k.v = dpari_order_chunks(desc);
    k.stages = desc->stages > 0 ? desc->stages : k.p * k.v;
    k.slices = dpari_order_slices(desc);
    k.m = desc->micro_batches * k.slices;
    k.lifo = desc->lifo || desc->rule == DPAR_SCHEDULE_BREADTH_FIRST;
    dpari_plan_groups(&k, dpari_order_groups(desc->rule) ? desc->group : k.m);
    return k;
}

/* ---- checks of an order ---------------------------------------------------------------------- */

static dpar_status dpari_order_numbers(const dpar_schedule_desc *desc, dpar_why *why)
{
    const char *name = dpar_schedule_name(desc->rule);
    if (desc->rule == 0) {
        return dpari_wrong(why, "rule is 0; set it, for example to DPAR_SCHEDULE_1F1B");
    }
    if (desc->rule < 0 || desc->rule >= DPAR_SCHEDULE_END) {
        return dpari_wrong(why, "rule %d does not exist; rules are 1 to %d", desc->rule,
                           (int32_t)DPAR_SCHEDULE_END - 1);
    }
    if (desc->ranks < 1 || desc->ranks > DPAR_MAX_STAGES) {
        return dpari_wrong(why, "ranks=%d; 1 to %d are allowed", desc->ranks,
                           (int32_t)DPAR_MAX_STAGES);
    }
    if (desc->micro_batches < 1 || desc->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_wrong(why, "micro_batches=%d; 1 to %d are allowed", desc->micro_batches,
                           (int32_t)DPAR_MAX_MICRO_BATCHES);
    }
    if (desc->slices < 0 || (desc->slices > 1 && desc->rule != DPAR_SCHEDULE_SEQ1F1B)) {
        return dpari_wrong(why,
                           "slices=%d; seq1f1b allows 1 or more, the other rules have no slices",
                           desc->slices);
    }
    if (desc->lifo < 0 || desc->lifo > (desc->rule == DPAR_SCHEDULE_GPIPE)) {
        return dpari_wrong(why, "lifo=%d; gpipe allows 0 or 1, the other rules only 0", desc->lifo);
    }
    if (desc->group != 0 && !dpari_order_groups(desc->rule)) {
        return dpari_wrong(why, "group=%d, but %s has no groups of micro-batches; leave it 0",
                           desc->group, name);
    }
    if (desc->group != 0 && desc->group < desc->ranks) {
        return dpari_wrong(why, "group=%d; a group needs at least one micro-batch per rank, %d",
                           desc->group, desc->ranks);
    }
    return DPAR_OK;
}

static dpar_status dpari_order_shape(const dpar_schedule_desc *desc, dpar_why *why)
{
    const char *name = dpar_schedule_name(desc->rule);
    int32_t own = dpari_order_map(desc->rule) == DPAR_STAGE_MAP_LOOP ? 1 : 2;
    int64_t chunks = dpari_order_chunks(desc), slices = dpari_order_slices(desc);
    if (desc->chunks < 0 ||
        (desc->chunks > 0 && desc->chunks != own && !dpari_order_loops(desc->rule))) {
        return dpari_wrong(why, "chunks=%d; %s allows %d%s per rank", desc->chunks, name, own,
                           dpari_order_loops(desc->rule) ? " or more" : "");
    }
    if (chunks * desc->ranks > DPAR_MAX_STAGES) {
        return dpari_say(DPAR_E_RANGE, why,
                         "ranks=%d x chunks=%ld are %ld stages; at most %d are allowed",
                         desc->ranks, chunks, chunks * desc->ranks, (int32_t)DPAR_MAX_STAGES);
    }
    if (desc->stages != 0 &&
        (desc->stages < 0 || desc->stages > DPAR_MAX_STAGES || desc->chunks > 0 ||
         desc->rank_of == NULL || !dpari_order_sweeps(desc->rule) ||
         desc->rule == DPAR_SCHEDULE_GPIPE)) {
        return dpari_wrong(
            why,
            "stages=%d; only breadth-first and forward-only allow it, up to %d, with rank_of and "
            "without chunks",
            desc->stages, (int32_t)DPAR_MAX_STAGES);
    }
    if (slices * desc->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_say(DPAR_E_RANGE, why,
                         "micro_batches=%d x slices=%ld are %ld; at most %d are allowed",
                         desc->micro_batches, slices, slices * desc->micro_batches,
                         (int32_t)DPAR_MAX_MICRO_BATCHES);
    }
    if (dpari_order_both_ways(desc->rule) && desc->ranks % 2 != 0) {
        return dpari_say(DPAR_E_DIVIDE, why, "%s needs an even number of ranks, not %d", name,
                         desc->ranks);
    }
    if (desc->rule == DPAR_SCHEDULE_DUALPIPE && desc->micro_batches % 2 != 0) {
        return dpari_say(DPAR_E_DIVIDE, why,
                         "dualpipe needs an even number of micro-batches, not %d",
                         desc->micro_batches);
    }
    if ((desc->rule == DPAR_SCHEDULE_DUALPIPE || desc->rule == DPAR_SCHEDULE_DUALPIPEV) &&
        desc->micro_batches / 2 < desc->ranks) {
        return dpari_wrong(why, "%s on %d ranks needs at least %ld micro-batches, not %d", name,
                           desc->ranks, 2 * (int64_t)desc->ranks, desc->micro_batches);
    }
    return DPAR_OK;
}

/* Checks that rank_of only renumbers the ranks of the rule. Checks 1024 ranks at a time, because
 * marks for 65535 ranks would take too much stack. */
static dpar_status dpari_order_ranks(const dpar_schedule_desc *desc, dpar_why *why)
{
    enum { WINDOW = 1024 };
    dpari_plan k = dpari_plan_of(desc);
    uint8_t taken[WINDOW / 8];
    int32_t base, i, rule_rank;
    for (i = 0; i < k.stages; i++) {
        rule_rank = dpari_stage_rank(dpari_order_map(k.rule), k.p, i);
        if (desc->rank_of[i] >= k.p) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", i,
                               (int32_t)desc->rank_of[i], k.p);
        }
        if (!dpari_order_sweeps(k.rule) && desc->rank_of[i] != desc->rank_of[rule_rank]) {
            return dpari_wrong(
                why,
                "rank_of puts stage %d on rank %d; the rule needs it with stage %d, on rank %d", i,
                (int32_t)desc->rank_of[i], rule_rank, (int32_t)desc->rank_of[rule_rank]);
        }
    }
    for (base = 0; base < k.p && !dpari_order_sweeps(k.rule); base += WINDOW) {
        dpari_zero(taken, sizeof(taken));
        for (i = 0; i < k.p; i++) {
            int32_t at = (int32_t)desc->rank_of[i] - base;
            if (at < 0 || at >= WINDOW) {
                continue;
            }
            if (taken[at / 8] >> (at % 8) & 1) {
                return dpari_wrong(why, "rank_of gives rank %d the stages of two ranks of the rule",
                                   (int32_t)desc->rank_of[i]);
            }
            taken[at / 8] = (uint8_t)(taken[at / 8] | 1 << (at % 8));
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_order_check(const dpar_schedule_desc *order,
                                                        dpar_why *why)
{
    dpar_status st = dpari_order_numbers(order, why);
    if (st == DPAR_OK) {
        st = dpari_order_shape(order, why);
    }
    return st == DPAR_OK && order->rank_of != NULL ? dpari_order_ranks(order, why) : st;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

/* Counts the actions of a stage. All W of the backwards that DualPipe and DualPipeV split are
 * counted with the first stage of their rank. */
static int64_t dpari_plan_count(const dpari_plan *plan, int32_t stage)
{
    int32_t behind = plan->p - 1 - stage;
    int64_t m = plan->m;
    switch (plan->rule) {
    case DPAR_SCHEDULE_FORWARD_ONLY:
    case DPAR_SCHEDULE_CHIMERA: return m; /* F and B of the half that runs in this direction */
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_ZB_2P:
    case DPAR_SCHEDULE_INTERLEAVED_ZB:
    case DPAR_SCHEDULE_ZBV:
    case DPAR_SCHEDULE_V_HALF:
    case DPAR_SCHEDULE_V_MIN: return 3 * m;
    case DPAR_SCHEDULE_DUALPIPEV: return 2 * m + (behind >= 0 ? plan->p + behind : 0);
    case DPAR_SCHEDULE_DUALPIPE: return m + (behind >= 0 ? dpari_most(stage, behind) : 0);
    default: return 2 * m;
    }
}

/* Computes the bytes of the schedule itself and the number of its actions. */
static int64_t dpari_plan_bytes(const dpari_plan *plan, int64_t *actions)
{
    int32_t i;
    *actions = 0;
    for (i = 0; i < plan->stages; i++) {
        *actions += dpari_plan_count(plan, i);
    }
    return dpari_schedule_bytes(plan->p, plan->stages, *actions);
}

/* True if vshape.c makes the schedule, which needs working memory. */
static int dpari_plan_works(const dpari_plan *plan)
{
    return plan->rule == DPAR_SCHEDULE_V_HALF || plan->rule == DPAR_SCHEDULE_V_MIN ||
           plan->rule == DPAR_SCHEDULE_1F1B_V;
}

DPARI_API int64_t dpari_schedule_generate_bytes(const dpar_schedule_desc *order, dpar_why *why)
{
    dpari_plan k;
    int64_t actions, bytes;
    if (dpari_order_check(order, why) != DPAR_OK) {
        return -1;
    }
    k = dpari_plan_of(order);
    bytes = dpari_plan_bytes(&k, &actions);
    return dpari_plan_works(&k) ? bytes + dpari_whole_words(dpari_v_work(k.p, k.m)) : bytes;
}

/* ---- writing a rank's list ------------------------------------------------------------------- */

/* The place in a rank's list where the next action is written. */
typedef struct dpari_pen {
    dpar_action *at;
    const dpar_action *input; /* at or before the first I that has no W yet */
} dpari_pen;

DPARI_STATIC_NOINLINE void dpari_pen_put(dpari_pen *pen, int kind, int32_t stage, int32_t micro)
{
    *pen->at++ = dpari_action_of(kind, stage, micro);
}

/* Appends the W of the oldest I that has no W yet. */
static void dpari_pen_weight(dpari_pen *pen)
{
    while (pen->input->kind != DPAR_ACTION_INPUT) {
        pen->input++;
    }
    dpari_pen_put(pen, DPAR_ACTION_WEIGHT, pen->input->stage, pen->input->micro_batch);
    pen->input++;
}

/* ---- the rules that alternate between F and backward ----------------------------------------- */

/* A position in the order of micro-batches: each group passes chunk 0, then chunk 1, and so on,
 * before the next group starts. */
typedef struct dpari_turn {
    int32_t first, size; /* the group's first micro-batch and number of micro-batches */
    int32_t chunk, at;   /* the current chunk and micro-batch of the group */
    int32_t wide;        /* later groups that have one micro-batch more than the others */
} dpari_turn;

static void dpari_turn_group(dpari_turn *t, const dpari_plan *plan, int32_t first)
{
    int32_t left = plan->m - first;
    t->first = first;
    t->size = plan->size + (t->wide > 0);
    t->size = t->size < left ? t->size : left;
    t->wide -= t->wide > 0;
}

static void dpari_turn_start(dpari_turn *t, const dpari_plan *plan)
{
    t->chunk = 0;
    t->at = 0;
    t->wide = plan->wide;
    dpari_turn_group(t, plan, 0);
}

static void dpari_turn_next(dpari_turn *t, const dpari_plan *plan)
{
    if (++t->at == t->size) {
        t->at = 0;
        if (++t->chunk == plan->v) {
            t->chunk = 0;
            dpari_turn_group(t, plan, t->first + t->size);
        }
    }
}

/* Returns the number of F that a rank runs before its first backward. */
static int64_t dpari_plan_ahead(const dpari_plan *plan, int32_t rank)
{
    int64_t behind = plan->p - 1 - rank; /* ranks after this one */
    int64_t laps = (int64_t)(plan->v - 1) * (plan->size + (plan->wide > 0));
    switch (plan->rule) {
    case DPAR_SCHEDULE_1F1B:
    case DPAR_SCHEDULE_ZB_H1: return behind;
    case DPAR_SCHEDULE_INTERLEAVED_ZB: return laps + behind;
    case DPAR_SCHEDULE_SEQ1F1B: return behind + plan->slices - 1;
    case DPAR_SCHEDULE_MOE_OVERLAP: return laps + 2 * behind + 1;
    default: return laps + 2 * behind;
    }
}

/* Writes a rank's list: `ahead` F, then F and backward in turn, then the remaining backwards. If
 * the backward is split, W starts after `late` I. */
static void dpari_order_turns(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int64_t n = (int64_t)plan->m * plan->v, i;
    int64_t ahead = dpari_least(dpari_plan_ahead(plan, rank), n);
    int64_t late =
        plan->rule == DPAR_SCHEDULE_ZB_2P ? 2 * (int64_t)rank : rank; /* I's before the first W */
    int split = plan->rule == DPAR_SCHEDULE_ZB_H1 || plan->rule == DPAR_SCHEDULE_ZB_2P ||
                plan->rule == DPAR_SCHEDULE_INTERLEAVED_ZB;
    dpari_turn f, b;
    dpari_turn_start(&f, plan);
    dpari_turn_start(&b, plan);
    for (i = 0; i < n + ahead; i++) {
        if (i < n) {
            dpari_pen_put(pen, DPAR_ACTION_FORWARD, f.chunk * plan->p + rank, f.first + f.at);
            pen->at[-1].joined = plan->rule == DPAR_SCHEDULE_MOE_OVERLAP && i >= ahead;
            dpari_turn_next(&f, plan);
        }
        if (i >= ahead) {
            int32_t u = b.first + b.at;
            if (plan->slices > 1) { /* the slices of a micro-batch go back in reverse order */
                u += plan->slices - 1 - 2 * (u % plan->slices);
            }
            dpari_pen_put(pen, split ? DPAR_ACTION_INPUT : DPAR_ACTION_BACKWARD,
                          (plan->v - 1 - b.chunk) * plan->p + rank, u);
            dpari_turn_next(&b, plan);
            if (split && i - ahead >= late) {
                dpari_pen_weight(pen);
            }
        }
    }
    for (i = split ? dpari_least(late, n) : 0; i > 0; i--) {
        dpari_pen_weight(pen);
    }
}

/* ---- the rules in which a stage runs all its micro-batches without a break ------------------- */

/* Appends all F, or all B, of a stage to its rank's list. While lists are written,
 * schedule->begin[r] is the current end of rank r's list. */
static void dpari_sweep_stage(const dpari_plan *plan, dpar_schedule *schedule, int32_t stage,
                              int kind)
{
    int64_t *end = &schedule->begin[schedule->rank_of[stage]];
    dpari_pen pen;
    int32_t i;
    pen.at = schedule->action + *end;
    for (i = 0; i < plan->m; i++) {
        int turned = kind == DPAR_ACTION_BACKWARD && plan->lifo;
        dpari_pen_put(&pen, kind, stage, turned ? plan->m - 1 - i : i);
    }
    *end += plan->m;
}

static void dpari_sweep_all(const dpari_plan *plan, dpar_schedule *schedule)
{
    int32_t i;
    for (i = 0; i < plan->stages; i++) {
        dpari_sweep_stage(plan, schedule, i, DPAR_ACTION_FORWARD);
    }
    for (i = plan->stages - 1; i >= 0 && plan->rule != DPAR_SCHEDULE_FORWARD_ONLY; i--) {
        dpari_sweep_stage(plan, schedule, i, DPAR_ACTION_BACKWARD);
    }
    for (i = plan->p; i > 0; i--) { /* the end of each list is where the next list begins */
        schedule->begin[i] = schedule->begin[i - 1];
    }
    schedule->begin[0] = 0;
}

/* ---- ZBV ------------------------------------------------------------------------------------- */

/* The two stages of a rank on the V, index 0 on the way down and 1 on the way up. */
typedef struct dpari_two {
    dpari_pen *pen;
    int32_t m; /* actions of micro-batches from m on are left out */
    int32_t stage[2];
    /* the next micro-batch of each stage and kind; B is counted with I */
    int32_t next[2][DPAR_ACTION_WEIGHT + 1];
} dpari_two;

static void dpari_two_put(dpari_two *t, int kind, int way)
{
    int32_t micro = t->next[way][kind == DPAR_ACTION_BACKWARD ? DPAR_ACTION_INPUT : kind]++;
    if (micro < t->m) {
        dpari_pen_put(t->pen, kind, t->stage[way], micro);
    }
}

static void dpari_two_back(dpari_two *t, int way)
{
    dpari_two_put(t, DPAR_ACTION_INPUT, way);
    dpari_two_put(t, DPAR_ACTION_WEIGHT, way);
}

/* Writes the phases of ZB-V in Qi 2023: warm-up, steady state, and the W at the end. With fewer
 * than 2p-1 micro-batches it writes the list for 2p-1 without the missing ones. */
static void dpari_order_zbv(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int32_t n = plan->m > 2 * plan->p - 1 ? plan->m : 2 * plan->p - 1, i;
    dpari_two t;
    dpari_zero(&t, sizeof(t));
    t.pen = pen;
    t.m = plan->m;
    t.stage[0] = rank;
    t.stage[1] = 2 * plan->p - 1 - rank;
    for (i = 0; i < 2 * (plan->p - rank) - 1; i++) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 0);
    }
    for (i = 0; i < rank; i++) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 1);
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 0);
    }
    for (i = rank; i < plan->p; i++) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 1);
        dpari_two_back(&t, 1);
    }
    while (t.next[1][DPAR_ACTION_FORWARD] < n) {
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 0);
        dpari_two_back(&t, 0);
        dpari_two_put(&t, DPAR_ACTION_FORWARD, 1);
        dpari_two_back(&t, 1);
    }
    for (i = 0; i < rank; i++) {
        dpari_two_put(&t, DPAR_ACTION_INPUT, 0);
        dpari_two_put(&t, DPAR_ACTION_INPUT, 1);
    }
    for (i = rank; i < plan->p; i++) {
        dpari_two_back(&t, 0);
    }
    while (t.next[1][DPAR_ACTION_WEIGHT] < n) {
        dpari_two_put(&t, DPAR_ACTION_WEIGHT, 1);
    }
    while (t.next[0][DPAR_ACTION_WEIGHT] < n) {
        dpari_two_put(&t, DPAR_ACTION_WEIGHT, 0);
    }
}

/* ---- DualPipe and DualPipeV ------------------------------------------------------------------ */

/* The two stages of a rank belong to two directions: direction 0 starts at the end of the pipeline
 * that is nearer to this rank, direction 1 at the other end. */

/* Appends an F of direction `way` that is joined with a B of the other direction. */
static void dpari_dual_fb(dpari_two *d, int way)
{
    dpari_two_put(d, DPAR_ACTION_FORWARD, way);
    d->pen->at[-1].joined = 1;
    dpari_two_put(d, DPAR_ACTION_BACKWARD, 1 - way);
}

/* Writes the eight phases of DeepSeek's DualPipe for the rank at distance `at` from its end of the
 * pipeline, with n micro-batches in each direction. p is the distance to the middle of DualPipe, or
 * to the turn of the V. */
static void dpari_dual_steps(dpari_two *d, int32_t p, int32_t at, int32_t n)
{
    int32_t i;
    for (i = 0; i < 2 * (p - at - 1); i++) {
        dpari_two_put(d, DPAR_ACTION_FORWARD, 0);
    }
    for (i = 0; i <= at; i++) {
        dpari_two_put(d, DPAR_ACTION_FORWARD, 0);
        dpari_two_put(d, DPAR_ACTION_FORWARD, 1);
    }
    for (i = at + 1; i < p; i++) {
        dpari_two_put(d, DPAR_ACTION_INPUT, 1);
        dpari_pen_weight(d->pen);
        dpari_two_put(d, DPAR_ACTION_FORWARD, 1);
    }
    for (i = 0; i < n - 2 * p + at + 1; i++) {
        dpari_dual_fb(d, 0);
        if (i == 0 && at == p - 1) { /* in the middle the first pair is not joined: F can start
                                        before the input of B has arrived */
            d->pen->at[-2].joined = 0;
        }
        dpari_dual_fb(d, 1);
    }
    for (i = at + 1; i < p; i++) {
        dpari_two_put(d, DPAR_ACTION_BACKWARD, 1);
        dpari_dual_fb(d, 1);
    }
    for (i = 0; i < 2 * (at + 1); i++) {
        dpari_two_put(d, i <= at ? DPAR_ACTION_BACKWARD : DPAR_ACTION_INPUT, i % 2 == 0);
    }
    for (i = at + 1; i < p; i++) {
        dpari_pen_weight(d->pen);
        dpari_two_put(d, DPAR_ACTION_INPUT, 0);
    }
    for (i = 0; i <= at; i++) {
        dpari_pen_weight(d->pen);
    }
}

static void dpari_order_dual(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int faces = plan->rule == DPAR_SCHEDULE_DUALPIPE, turned = faces && rank >= plan->p / 2;
    int32_t half = faces ? plan->m / 2 : 0;
    dpari_two d;
    dpari_zero(&d, sizeof(d));
    d.pen = pen;
    d.m = plan->m;
    d.stage[turned] = rank;
    d.stage[1 - turned] = 2 * plan->p - 1 - rank;
    d.next[1 - turned][DPAR_ACTION_FORWARD] = d.next[1 - turned][DPAR_ACTION_INPUT] = half;
    if (faces) {
        dpari_dual_steps(&d, plan->p / 2, turned ? plan->p - 1 - rank : rank, half);
    } else {
        dpari_dual_steps(&d, plan->p, rank, plan->m);
    }
}

/* ---- Chimera --------------------------------------------------------------------------------- */

/* F and B take equal slots, and each rank alternates between two streams of actions. In one stream,
 * each unit of p micro-batches has p/2 F of the pipeline down and then p/2 B of the pipeline up.
 * The other stream has F of the pipeline up and B of the pipeline down. Units follow each other
 * without a gap. This function appends slot i of a stream. */
static void dpari_chimera_put(const dpari_plan *plan, int32_t rank, int up, int32_t i,
                              dpari_pen *pen)
{
    int32_t half = plan->p / 2, unit = i / plan->p, of = i % plan->p;
    int back = of >= half;
    int is_up = up != back;
    int32_t micro = unit * plan->p + of % half + (is_up ? half : 0);
    if (micro < plan->m) {
        const int32_t kind = back ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD;
        dpari_pen_put(pen, kind, is_up ? 2 * plan->p - 1 - rank : rank, micro);
    }
}

static void dpari_order_chimera(const dpari_plan *plan, int32_t rank, dpari_pen *pen)
{
    int up = rank >= plan->p / 2; /* the stream that starts first on this rank */
    int32_t lead = up ? rank - plan->p / 2 + 1 : plan->p / 2 - rank; /* by this number of slots */
    int32_t n = (plan->m + plan->p - 1) / plan->p * plan->p, i;
    for (i = 0; i < n + lead; i++) {
        if (i >= lead) {
            dpari_chimera_put(plan, rank, !up, i - lead, pen);
        }
        if (i < n) {
            dpari_chimera_put(plan, rank, up, i, pen);
        }
    }
}

/* ---- writing the lists ----------------------------------------------------------------------- */

static void dpari_order_write(const dpari_plan *plan, int32_t rank, dpar_action *at)
{
    dpari_pen pen;
    pen.at = at;
    pen.input = at;
    switch (plan->rule) {
    case DPAR_SCHEDULE_ZBV: dpari_order_zbv(plan, rank, &pen); break;
    case DPAR_SCHEDULE_DUALPIPE:
    case DPAR_SCHEDULE_DUALPIPEV: dpari_order_dual(plan, rank, &pen); break;
    case DPAR_SCHEDULE_CHIMERA: dpari_order_chimera(plan, rank, &pen); break;
    default: dpari_order_turns(plan, rank, &pen); break;
    }
}

/* Sets rank_of and begin of the schedule. */
static void dpari_order_lists(dpar_schedule *schedule, const dpari_plan *plan,
                              const dpar_schedule_desc *order)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        schedule->rank_of[i] = (uint16_t)dpari_order_rank(order, i);
        schedule->begin[schedule->rank_of[i] + 1] += dpari_plan_count(plan, i);
    }
    for (i = 0; i < plan->p; i++) {
        schedule->begin[i + 1] += schedule->begin[i];
    }
}

/* Writes the schedule to the memory, which is large enough. Not inlined, so that its frame and
 * those of the check are not on the stack at the same time. */
DPARI_STATIC_NOINLINE void dpari_order_write_all(dpar_schedule *schedule,
                                                 const dpar_schedule_desc *order, void *mem,
                                                 int64_t bytes)
{
    dpari_plan k = dpari_plan_of(order);
    int64_t actions, own = dpari_plan_bytes(&k, &actions);
    int32_t r;
    (void)dpari_schedule_empty(schedule, k.p, k.stages, actions, mem, bytes, NULL);
    schedule->micro_batches = k.m;
    schedule->slices = k.slices;
    schedule->chain = dpari_order_both_ways(k.rule) ? k.p : schedule->stages;
    dpari_order_lists(schedule, &k, order);
    if (dpari_order_sweeps(k.rule)) {
        dpari_sweep_all(&k, schedule);
    } else if (dpari_plan_works(&k)) {
        dpari_v_make(k.rule, schedule, (unsigned char *)mem + own);
    } else {
        for (r = 0; r < k.p; r++) {
            dpari_order_write(&k, r, schedule->action + schedule->begin[schedule->rank_of[r]]);
        }
    }
}

/* Checks the description and the memory. Not inlined, so that its frame is gone when the lists are
 * written, which takes the most stack. */
DPARI_STATIC_NOINLINE dpar_status dpari_order_room(const dpar_schedule_desc *order, const void *mem,
                                                   int64_t bytes, dpar_why *why)
{
    const int64_t needed = dpari_schedule_generate_bytes(order, why);
    if (needed < 0) {
        return dpari_order_check(order, NULL);
    }
    if (mem != NULL && bytes >= needed) {
        return DPAR_OK;
    }
    dpari_needs_bytes(why, needed);
    return dpari_say(DPAR_E_ROOM, why,
                     "%s on %d ranks with %d micro-batches needs %ld bytes, got %ld",
                     dpar_schedule_name(order->rule), order->ranks, order->micro_batches, needed,
                     mem == NULL ? 0 : bytes);
}

/* Generates the schedule of order->rule. */
static dpar_status dpari_order_make(dpar_schedule *schedule, const dpar_schedule_desc *order,
                                    void *mem, int64_t bytes, dpar_why *why)
{
    const dpar_status status = dpari_order_room(order, mem, bytes, why);
    if (status == DPAR_OK) {
        dpari_order_write_all(schedule, order, mem, bytes);
    }
    return status;
}

DPAR_API dpar_status dpar_schedule_generate(dpar_schedule *schedule, const dpar_schedule_desc *desc,
                                            void *mem, int64_t bytes, dpar_why *why)
{
    dpar_schedule_desc named;
    dpar_status st;
    if (desc->rule != 0 || desc->name == NULL) {
        return dpari_order_make(schedule, desc, mem, bytes, why);
    }
    named = *desc;
    st = dpar_schedule_find(&named, desc->name, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_order_make(schedule, &named, mem, bytes, why);
}

/* ==== schedule/lower.c ==== */

/* The passes over a schedule. Each one reads one schedule and writes another. SHARDS and REDUCE
 * read each rank's list with a window of the next stages. MESSAGES simulates all ranks with the
 * given times and lists every message at the time at which its data are made, so that all lists
 * follow one global order; with TURNS it imitates PyTorch's loop instead. LATE_RECV holds receives
 * in a queue per channel. It writes a receive, and those before it in its queue, just before the
 * action that needs it. */

/* ---- checks of the input --------------------------------------------------------------------- */

/* Writes what is wrong with an action: "rank 0, action 2: 0B0 is already in the list". */
static DPARI_COLD dpar_status dpari_lower_say(dpar_why *why, int32_t rank, int64_t index,
                                              const dpar_action *action, const char *wrong)
{
    dpar_text t;
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpar_text_put(&t, "rank "); /* without dpari_text_say, which takes more stack */
        dpari_text_int(&t, rank);
        dpar_text_put(&t, ", action ");
        dpari_text_int(&t, index);
        dpar_text_put(&t, ": ");
        dpari_action_put(action, &t);
        dpar_text_put(&t, wrong);
    }
    return DPAR_E_ARG;
}

/* Returns what is wrong with action k of rank r, or NULL if nothing is. */
static const char *dpari_lower_wrong(const dpar_schedule *schedule, int32_t r, int64_t k)
{
    const dpar_action *action = &schedule->action[k];
    int32_t other;
    if (action->kind >= DPAR_ACTION_COUNT) {
        return "this kind does not exist";
    }
    if (action->joined > 1) {
        return ": joined is more than 1";
    }
    if (action->joined != 0 &&
        (action->kind != DPAR_ACTION_FORWARD || k + 1 == schedule->begin[r + 1] ||
         !dpari_action_is_gradient(action[1].kind) || action[1].joined != 0)) {
        return " is joined, but it is not an F that a B or I follows";
    }
    if (action->kind == DPAR_ACTION_IDLE) {
        return NULL;
    }
    if (action->stage >= schedule->stages || schedule->rank_of[action->stage] != r) {
        return ": its stage is not on this rank";
    }
    if (dpari_action_has_micro(action->kind) && action->micro_batch >= schedule->micro_batches) {
        return ": its micro-batch does not exist";
    }
    if (dpari_action_is_message(action->kind)) {
        other = dpar_schedule_partner(schedule, action->kind, action->stage);
        if (other < 0 || schedule->rank_of[other] != action->peer || action->peer == r) {
            return " does not connect neighbouring stages on two ranks";
        }
    }
    return NULL;
}

/* Checks that a pass can read the schedule, and that no action has a kind in the set `already`,
 * which has the kinds that the passes will add. */
static DPARI_COLD dpar_status dpari_lower_check(const dpar_schedule *schedule, uint32_t already,
                                                dpar_why *why)
{
    dpar_status st;
    int32_t r;
    int64_t k;
    if (schedule->ranks < 1 || schedule->ranks > DPAR_MAX_STAGES || schedule->stages < 1 ||
        schedule->stages > DPAR_MAX_STAGES || schedule->micro_batches < 0 ||
        schedule->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_wrong(why,
                           "the schedule has %d ranks, %d stages and %d micro-batches; 1 to 65535 "
                           "ranks and stages "
                           "and 0 to 65535 micro-batches are allowed",
                           schedule->ranks, schedule->stages, schedule->micro_batches);
    }
    if (schedule->chain < 1 || schedule->stages % schedule->chain != 0) {
        return dpari_wrong(why, "chains of %d stages do not divide %d stages", schedule->chain,
                           schedule->stages);
    }
    st = dpari_schedule_check_ranks(schedule, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[0] != 0 || schedule->begin[r + 1] < schedule->begin[r]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", r,
                               schedule->begin[r], schedule->begin[r + 1]);
        }
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            const char *wrong = dpari_lower_wrong(schedule, r, k);
            if (wrong == NULL && (already >> schedule->action[k].kind & 1) != 0) {
                wrong = " is already in the list; the pass adds such actions";
            }
            if (wrong != NULL) {
                return dpari_lower_say(why, r, k - schedule->begin[r], &schedule->action[k], wrong);
            }
        }
    }
    return DPAR_OK;
}

/* Initialises `out` in mem with capacity for `actions` actions, and copies everything except the
 * lists from `in`. *work receives the address after it. */
static dpar_status dpari_lower_out(dpar_schedule *out, const dpar_schedule *in, int64_t actions,
                                   int64_t needed, void *mem, int64_t bytes, char **work,
                                   dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "lowering needs %ld bytes, got %ld", needed, bytes);
    }
    st = dpari_schedule_empty(out, in->ranks, in->stages, actions, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    out->micro_batches = in->micro_batches;
    out->chain = in->chain;
    out->slices = in->slices;
    for (i = 0; i < in->stages; i++) {
        out->rank_of[i] = in->rank_of[i];
    }
    *work = (char *)mem + dpari_schedule_bytes(in->ranks, in->stages, actions);
    return DPAR_OK;
}

/* The list that a pass writes. If `at` is NULL, its actions are only counted. */
typedef struct dpari_sink {
    dpar_action *at;
    int64_t n;
} dpari_sink;

static void dpari_sink_put(dpari_sink *to, const dpar_action *action)
{
    if (to->at != NULL) {
        to->at[to->n] = *action;
    }
    to->n++;
}

static void dpari_sink_stage(dpari_sink *to, int32_t kind, int32_t stage)
{
    const dpar_action action = dpari_action_of(kind, stage, 0);
    dpari_sink_put(to, &action);
}

/* ---- shards and gradients -------------------------------------------------------------------- */

/* The window: the stages of the actions from the current one up to `end`, in the order in which
 * they are first needed. A stage stays in the window after its last use until its RESHARD is
 * written. At most two stages wait for their RESHARD, those of a joined pair. The window may have
 * one stage more than max_active if a pair was added last. */
typedef struct dpari_window {
    int64_t end;
    int32_t stages; /* stages in the window */
    int32_t used;   /* stages in the window with uses > 0 */
    int32_t max_active;
    int64_t uses[DPAR_LOWER_MAX_ACTIVE + 3]; /* actions of the stage that are in the window */
    uint16_t stage[DPAR_LOWER_MAX_ACTIVE + 3];
    uint8_t gathered[DPAR_LOWER_MAX_ACTIVE + 3]; /* 1 after its UNSHARD */
} dpari_window;

/* Returns the position of a stage in the window, or window->stages if it is not there. */
static int32_t dpari_window_find(const dpari_window *window, int32_t stage)
{
    int32_t i = 0;
    while (i < window->stages && window->stage[i] != stage) {
        i++;
    }
    return i;
}

static void dpari_window_use(dpari_window *window, const dpar_action *action)
{
    int32_t i = dpari_window_find(window, action->stage);
    if (i == window->stages) {
        window->stages++;
        window->uses[i] = 0;
        window->stage[i] = action->stage;
        window->gathered[i] = 0;
    }
    window->used += window->uses[i]++ == 0;
}

static void dpari_window_done(dpari_window *window, const dpar_action *action)
{
    window->used -= --window->uses[dpari_window_find(window, action->stage)] == 0;
}

/* Extends the window until it has max_active stages or the list ends. */
static void dpari_window_extend(dpari_window *window, const dpar_schedule *schedule, int64_t end)
{
    while (window->used < window->max_active && window->end < end) {
        const dpar_action *action = &schedule->action[window->end];
        window->end += 1 + action->joined;
        if (action->kind != DPAR_ACTION_IDLE) {
            dpari_window_use(window, action);
        }
        if (action->joined) {
            dpari_window_use(window, action + 1);
        }
    }
}

/* Writes a RESHARD of each stage that is no longer used, in ascending order, and removes it. */
static void dpari_window_reshard(dpari_window *window, dpari_sink *to)
{
    while (window->stages > window->used) {
        int32_t i, least = -1;
        for (i = 0; i < window->stages; i++) {
            if (window->uses[i] == 0 && (least < 0 || window->stage[i] < window->stage[least])) {
                least = i;
            }
        }
        dpari_sink_stage(to, DPAR_ACTION_RESHARD, window->stage[least]);
        window->stages--;
        for (i = least; i < window->stages; i++) {
            window->uses[i] = window->uses[i + 1];
            window->stage[i] = window->stage[i + 1];
            window->gathered[i] = window->gathered[i + 1];
        }
    }
}

/* Writes an UNSHARD of each stage that entered the window. */
static void dpari_window_gather(dpari_window *window, dpari_sink *to)
{
    int32_t i;
    for (i = 0; i < window->stages; i++) {
        if (!window->gathered[i]) {
            window->gathered[i] = 1;
            dpari_sink_stage(to, DPAR_ACTION_UNSHARD, window->stage[i]);
        }
    }
}

/* Writes rank r's list without idle actions. Adds UNSHARD and RESHARD if max_active > 0, and
 * REDUCE_GRAD if `left`, the number of remaining B and W of each stage, is not NULL. */
static void dpari_lower_rank(const dpar_schedule *schedule, int32_t r, int32_t max_active,
                             int64_t *left, dpari_sink *to)
{
    dpari_window w;
    int64_t k, h;
    w.end = schedule->begin[r];
    w.stages = w.used = 0;
    w.max_active = max_active;
    for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k += 1 + schedule->action[k].joined) {
        const dpar_action *action = &schedule->action[k];
        if (action->kind == DPAR_ACTION_IDLE) {
            continue;
        }
        dpari_window_extend(&w, schedule, schedule->begin[r + 1]);
        dpari_window_reshard(&w, to);
        dpari_window_gather(&w, to);
        for (h = 0; h <= action->joined; h++) {
            dpari_sink_put(to, action + h);
        }
        for (h = 0; h <= action->joined; h++) {
            if (left != NULL &&
                (action[h].kind == DPAR_ACTION_BACKWARD || action[h].kind == DPAR_ACTION_WEIGHT) &&
                --left[action[h].stage] == 0) {
                dpari_sink_stage(to, DPAR_ACTION_REDUCE_GRAD, action[h].stage);
            }
            if (max_active > 0) {
                dpari_window_done(&w, action + h);
            }
        }
    }
    dpari_window_reshard(&w, to);
}

/* ---- messages -------------------------------------------------------------------------------
 *
 * A small simulation decides the order, by time or by turns. By time, each rank starts an action as
 * soon as its inputs have arrived. The action is written to the rank's list when it ends; its SEND
 * follows it, and the RECV is written to the peer's list at the same moment. An action that the
 * peer computes at that moment is not in the peer's list yet, so that the RECV is before it.
 * Therefore both ends of a message, and all messages before it, are posted when the data are made.
 * By turns, each rank writes one action in a turn, and the time is the number of the turn. In both
 * cases all lists follow one order of all messages. */

enum { DPARI_NOT_GIVEN = -1, DPARI_NOT_STARTED = -1 };

/* The position of a rank. The next action is copied (both actions if they are joined), because
 * otherwise the heads of lists whose lengths are powers of two compete for the same cache lines. */
typedef struct dpari_head {
    int64_t at, end; /* index in `from` of the next action, and one past the last */
    int64_t to;      /* index in `out` at which the next action is written */
    int64_t done;    /* when the next action ends, or its turn, or DPARI_NOT_STARTED */
    dpar_action a[2];
} dpari_head;

typedef struct dpari_turns {
    const dpar_schedule *in;
    dpar_schedule *out;
    const dpar_action
        *from; /* the actions of `in`, or those that SHARDS and REDUCE left in `out` */
    const dpar_schedule_times *times; /* NULL selects the default times */
    dpari_head *head;                 /* [ranks] */
    int32_t *heap;                    /* [working] ranks; the first one ends its action first */
    int32_t working;                  /* the number of ranks in the heap */
    int64_t clock;                    /* the current time or turn */
    /* [stage][micro-batch][2], when the input and the gradient of the output arrive, or
     * DPARI_NOT_GIVEN */
    int64_t *given;
    int turns;    /* 1 by turns, 0 by time */
    int idle;     /* 1 if idle actions take a turn */
    int too_long; /* 1 if a time exceeded INT64_MAX */
} dpari_turns;

static int64_t *dpari_lower_given(const dpari_turns *turns, int32_t stage, int32_t micro,
                                  int backward)
{
    return &turns->given[2 * ((int64_t)stage * turns->in->micro_batches + micro) + backward];
}

/* Returns when the input of an action arrives: 0 if it needs none, DPARI_NOT_GIVEN if the time is
 * not known yet. */
static int64_t dpari_lower_arrival(const dpari_turns *turns, const dpar_action *action)
{
    if (action->kind == DPAR_ACTION_FORWARD) {
        return *dpari_lower_given(turns, action->stage, action->micro_batch, 0);
    }
    if (dpari_action_is_gradient(action->kind)) {
        return *dpari_lower_given(turns, action->stage, action->micro_batch, 1);
    }
    return 0;
}

static int dpari_lower_has(const dpari_turns *turns, const dpar_action *action)
{
    return dpari_lower_arrival(turns, action) != DPARI_NOT_GIVEN;
}

/* True if the rank may append its next action to its list, or start it. */
static int dpari_lower_ready(const dpari_turns *turns, int32_t rank)
{
    const dpari_head *head = &turns->head[rank];
    return head->at < head->end && head->done == DPARI_NOT_STARTED &&
           dpari_lower_has(turns, &head->a[0]) &&
           (!head->a[0].joined || dpari_lower_has(turns, &head->a[1]));
}

/* The default time of a forward. A message takes 1 by default, which is so short that it only
 * decides the order of actions that are ready at the same moment: the action whose data passed
 * fewer messages is first, as it would be if messages took time. */
#define DPARI_LOWER_UNIT (INT64_C(1) << 20)

/* Returns the time of an action that is not joined. A B without a time of its own takes as long as
 * I and W. */
static int64_t dpari_lower_cost(const dpar_schedule_times *times, const dpar_action *action)
{
    const dpar_stage_values *each;
    int64_t takes;
    if (times == NULL) {
        takes = action->kind <= DPAR_ACTION_WEIGHT || action->kind == DPAR_ACTION_RECOMPUTE
                    ? DPARI_LOWER_UNIT
                    : 0;
        return action->kind == DPAR_ACTION_BACKWARD ? 2 * takes : takes;
    }
    each = dpari_times_of(times, action->kind);
    takes = each != NULL ? dpari_each_at(each, action->stage) : 0;
    if (action->kind == DPAR_ACTION_BACKWARD && takes == 0) {
        takes = dpari_each_at(&times->input, action->stage) +
                dpari_each_at(&times->weight, action->stage);
    }
    return takes;
}

/* Returns a + b, both 0 or more. If that exceeds INT64_MAX it returns INT64_MAX and sets too_long.
 */
static int64_t dpari_lower_sum(dpari_turns *turns, int64_t a, int64_t b)
{
    if (a > INT64_MAX - b) {
        turns->too_long = 1;
        return INT64_MAX;
    }
    return a + b;
}

/* True if rank a's action ends before rank b's. If both end at the same time, the lower rank is
 * first. */
static int dpari_lower_earlier(const dpari_turns *turns, int32_t a, int32_t b)
{
    const int64_t x = turns->head[a].done, y = turns->head[b].done;
    return x != y ? x < y : a < b;
}

/* Adds a rank to the heap. */
static void dpari_lower_push(dpari_turns *turns, int32_t rank)
{
    int32_t i = turns->working++;
    while (i > 0 && dpari_lower_earlier(turns, rank, turns->heap[(i - 1) / 2])) {
        turns->heap[i] = turns->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    turns->heap[i] = rank;
}

/* Removes the rank whose action ends first, and returns it. */
static int32_t dpari_lower_pop(dpari_turns *turns)
{
    const int32_t first = turns->heap[0], last = turns->heap[--turns->working], n = turns->working;
    int32_t i = 0, child = 1;
    while (child < n) {
        child +=
            child + 1 < n && dpari_lower_earlier(turns, turns->heap[child + 1], turns->heap[child]);
        if (dpari_lower_earlier(turns, last, turns->heap[child])) {
            break;
        }
        turns->heap[i] = turns->heap[child];
        i = child;
        child = 2 * i + 1;
    }
    turns->heap[i] = last;
    return first;
}

/* Returns when the rank's next action ends if it starts as soon as its inputs have arrived. */
static int64_t dpari_lower_end(dpari_turns *turns, int32_t rank)
{
    const dpari_head *head = &turns->head[rank];
    int64_t takes = dpari_lower_cost(turns->times, &head->a[0]), from = turns->clock;
    from = dpari_most(from, dpari_lower_arrival(turns, &head->a[0]));
    if (head->a[0].joined) {
        const int64_t both =
            turns->times == NULL ? 0 : dpari_each_at(&turns->times->overlap, head->a[0].stage);
        from = dpari_most(from, dpari_lower_arrival(turns, &head->a[1]));
        takes = both > 0
                    ? both
                    : dpari_lower_sum(turns, takes, dpari_lower_cost(turns->times, &head->a[1]));
    }
    return dpari_lower_sum(turns, from, takes);
}

/* If the rank can run its next action, enters it in the heap. By turns it runs after `later` turns.
 */
static void dpari_lower_start(dpari_turns *turns, int32_t rank, int later)
{
    if (dpari_lower_ready(turns, rank)) {
        turns->head[rank].done = turns->turns ? turns->clock + later : dpari_lower_end(turns, rank);
        dpari_lower_push(turns, rank);
    }
}

/* Moves a rank to its next action. If the rank can run it, the action starts now, or by turns in
 * the next turn. */
static void dpari_lower_next(dpari_turns *turns, int32_t rank)
{
    dpari_head *head = &turns->head[rank];
    head->done = DPARI_NOT_STARTED;
    while (!turns->idle && head->at < head->end && turns->from[head->at].kind == DPAR_ACTION_IDLE) {
        head->at++;
    }
    if (head->at < head->end) {
        head->a[0] = turns->from[head->at];
        head->a[1] = turns->from[head->at + head->a[0].joined];
    }
    dpari_lower_start(turns, rank, 1);
}

/* Appends a SEND or RECV of the action's micro-batch to a rank's list. */
static void dpari_lower_message(dpari_turns *turns, int32_t rank, const dpar_action *action,
                                int32_t kind, int32_t stage, int32_t peer)
{
    dpar_action *m = &turns->out->action[turns->head[rank].to++];
    *m = *action;
    m->kind = (uint8_t)kind;
    m->joined = 0;
    m->stage = (uint16_t)stage;
    m->peer = (uint16_t)peer;
}

/* Passes the result of an action to the neighbouring stage, in memory or by a message. If that
 * stage is on another rank which can now continue, this rank continues. By turns it does so in the
 * same turn if it has the higher number, as in PyTorch's loop. */
static void dpari_lower_give(dpari_turns *turns, int32_t rank, const dpar_action *action)
{
    int32_t stage = dpar_schedule_partner(turns->in, action->kind, action->stage), peer;
    int forward = action->kind == DPAR_ACTION_FORWARD;
    int64_t *given, takes = 1;
    if (stage < 0) {
        return;
    }
    given = dpari_lower_given(turns, stage, action->micro_batch, !forward);
    *given = turns->clock;
    peer = turns->in->rank_of[stage];
    if (peer == rank) {
        return;
    }
    if (turns->times != NULL) {
        takes = dpari_pipe_message(turns->times, (int32_t)dpari_least(action->stage, stage));
    }
    *given = dpari_lower_sum(turns, turns->clock, takes);
    dpari_lower_message(turns, rank, action, forward ? DPAR_ACTION_SEND_F : DPAR_ACTION_SEND_B,
                        action->stage, peer);
    dpari_lower_message(turns, peer, action, forward ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B,
                        stage, rank);
    dpari_lower_start(turns, peer, peer < rank);
}

/* Writes a rank's next action, or joined pair, to its list. */
static void dpari_lower_step(dpari_turns *turns, int32_t rank)
{
    dpari_head *head = &turns->head[rank];
    int32_t i, n = 1 + head->a[0].joined;
    head->at += n;
    for (i = 0; i < n && head->a[0].kind != DPAR_ACTION_IDLE; i++) {
        turns->out->action[head->to++] = head->a[i];
    }
    for (i = 0; i < n; i++) {
        dpari_lower_give(turns, rank, &head->a[i]);
    }
    dpari_lower_next(turns, rank);
}

/* Writes a message like "rank 2 waits for 2RECV_F3: F3 of stage 1 never runs". */
static DPARI_COLD dpar_status dpari_lower_stuck(const dpari_turns *turns, int32_t rank,
                                                dpar_why *why)
{
    const dpar_action *action = turns->head[rank].a;
    dpar_action wait;
    dpar_text t;
    int32_t stage, elsewhere;
    if (why == NULL) {
        return DPAR_E_STUCK;
    }
    wait = dpari_lower_has(turns, action) ? action[1] : action[0];
    wait.joined = 0;
    wait.kind = wait.kind == DPAR_ACTION_FORWARD ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B;
    stage = dpar_schedule_partner(turns->in, wait.kind, wait.stage);
    dpari_text_why(&t, why);
    dpari_text_say(&t, "rank %d waits for ", rank);
    elsewhere = turns->in->rank_of[stage] != rank;
    if (elsewhere) {
        dpar_action_write(&wait, &t);
        dpar_text_put(&t, ": ");
    }
    dpari_text_say(&t, "%s%d of stage %d", wait.kind == DPAR_ACTION_RECV_F ? "F" : "B",
                   (int32_t)wait.micro_batch, stage);
    dpar_text_put(&t, elsewhere ? " never runs" : ", which is later in its list or missing");
    return DPAR_E_STUCK;
}

static dpar_status dpari_lower_messages(dpari_turns *turns, dpar_why *why)
{
    int32_t r;
    turns->clock = 0;
    turns->working = turns->too_long = 0;
    for (r = 0; r < turns->in->ranks; r++) {
        dpari_lower_next(turns, r);
    }
    while (turns->working > 0) { /* writes all actions in the order in which they end */
        r = dpari_lower_pop(turns);
        turns->clock = turns->head[r].done;
        dpari_lower_step(turns, r);
    }
    if (turns->too_long) {
        return dpari_say(DPAR_E_RANGE, why, "the times add up to more than %ld", INT64_MAX);
    }
    for (r = 0; r < turns->in->ranks; r++) {
        if (turns->head[r].at < turns->head[r].end) {
            return dpari_lower_stuck(turns, r, why);
        }
    }
    return DPAR_OK;
}

/* ---- lowering -------------------------------------------------------------------------------- */

/* Checks the times that MESSAGES reads: each must be 0 or more, and so small that the sum of three
 * does not overflow. */
static DPARI_COLD dpar_status dpari_lower_times(const dpar_schedule_times *times, int32_t stages,
                                                dpar_why *why)
{
    const dpar_stage_values *const message[] = {&times->latency, &times->bytes, &times->bandwidth};
    int32_t i, k;
    for (i = 0; i < stages; i++) {
        for (k = 0; k < DPAR_ACTION_COUNT + 3; k++) { /* first the kinds, then the messages */
            const dpar_stage_values *each =
                k < DPAR_ACTION_COUNT ? dpari_times_of(times, k) : message[k - DPAR_ACTION_COUNT];
            const int64_t value = each != NULL ? dpari_each_at(each, i) : 0;
            const int64_t most = each == &times->bandwidth ? INT64_MAX / 10 : INT64_MAX / 3;
            if (value < 0 || value > most) {
                return dpari_wrong(
                    why, "stage %d: a time, size or bandwidth is %ld; 0 to %ld are allowed", i,
                    value, most);
            }
        }
    }
    return DPAR_OK;
}

/* The passes that may be combined. */
enum { DPARI_LOWER_TOGETHER = 15 | DPAR_LOWER_TURNS };

/* Copies a descriptor with its defaults filled in, and checks it and the schedule. */
static DPARI_COLD dpar_status dpari_lower_settings(dpar_schedule_lower_desc *how,
                                                   const dpar_schedule *in,
                                                   const dpar_schedule_lower_desc *given,
                                                   dpar_why *why)
{
    uint32_t already = 0;
    dpar_status status;
    dpari_zero(how, sizeof(*how));
    if (given != NULL) {
        *how = *given;
    }
    if (how->max_active == 0) {
        how->max_active = 3;
    }
    if (how->passes == DPAR_LOWER_MERGE) {
        return dpari_lower_check(in, 0, why);
    }
    if (how->passes == DPAR_LOWER_LATE_RECV) {
        if (how->channel < 0 || how->channel >= DPAR_CHANNEL_COUNT) {
            return dpari_wrong(why, "channel=%d; 0 to 2 are allowed", how->channel);
        }
        return dpari_lower_check(in, 0, why);
    }
    if (how->passes < 0 || (how->passes & ~DPARI_LOWER_TOGETHER) != 0) {
        return dpari_wrong(why,
                           "passes=%d is not a sum of DPAR_LOWER_x; MERGE and LATE_RECV cannot be "
                           "combined with others",
                           how->passes);
    }
    if (how->max_active < 1 || how->max_active > DPAR_LOWER_MAX_ACTIVE) {
        return dpari_wrong(why, "max_active=%d; 1 to %d are allowed", how->max_active,
                           (int32_t)DPAR_LOWER_MAX_ACTIVE);
    }
    if ((how->passes & ~(DPAR_LOWER_IDLE | DPAR_LOWER_TURNS)) == 0) {
        how->passes |= DPAR_LOWER_MESSAGES;
    }
    if ((how->passes & DPAR_LOWER_IDLE) != 0) {
        how->passes |= DPAR_LOWER_TURNS;
    }
    if ((how->passes & DPAR_LOWER_SHARDS) == 0) {
        how->max_active = 0;
    } else {
        already |= 1u << DPAR_ACTION_UNSHARD | 1u << DPAR_ACTION_RESHARD;
    }
    if ((how->passes & DPAR_LOWER_REDUCE) != 0) {
        already |= 1u << DPAR_ACTION_REDUCE_GRAD;
    }
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        already |= 1u << DPAR_ACTION_SEND_F | 1u << DPAR_ACTION_RECV_F | 1u << DPAR_ACTION_SEND_B |
                   1u << DPAR_ACTION_RECV_B;
    }
    status = dpari_lower_check(in, already, why);
    if (status != DPAR_OK || how->times == NULL || (how->passes & DPAR_LOWER_MESSAGES) == 0) {
        return status;
    }
    return dpari_lower_times(how->times, in->stages, why);
}

/* Counts the SEND and RECV actions that MESSAGES adds. If `count` is not NULL, adds those of each
 * rank to count[rank]. */
static int64_t dpari_lower_count(const dpar_schedule *schedule, int64_t *count)
{
    int64_t k, total = 0;
    int32_t r, stage;
    for (r = 0; r < schedule->ranks; r++) {
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            stage = dpar_schedule_partner(schedule, schedule->action[k].kind,
                                          schedule->action[k].stage);
            if (stage >= 0 && schedule->rank_of[stage] != r) {
                total += 2;
                if (count != NULL) {
                    count[r]++;
                    count[schedule->rank_of[stage]]++;
                }
            }
        }
    }
    return total;
}

/* Returns the most actions that `out` can have, with one per stage for REDUCE. */
static int64_t dpari_lower_actions(const dpar_schedule *in, const dpar_schedule_lower_desc *how)
{
    dpari_sink counted;
    int32_t r;
    counted.at = NULL;
    counted.n = 0;
    for (r = 0; r < in->ranks; r++) {
        dpari_lower_rank(in, r, how->max_active, NULL, &counted);
    }
    if ((how->passes & DPAR_LOWER_REDUCE) != 0) {
        counted.n += in->stages;
    }
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        counted.n += dpari_lower_count(in, NULL);
    }
    return counted.n;
}

/* Returns the bytes of the schedule, the heads, the heap, the counts of remaining
 * backwards, and the arrivals, or -1 if there is no such schedule. */
static int64_t dpari_lower_size(const dpar_schedule *in, int64_t actions)
{
    int64_t bytes = dpari_schedule_bytes(in->ranks, in->stages, actions);
    return bytes < 0 ? -1
                     : bytes + (int64_t)sizeof(dpari_head) * in->ranks +
                           dpari_whole_words(4 * (int64_t)in->ranks) + 8 * (int64_t)in->stages +
                           16 * (int64_t)in->stages * in->micro_batches;
}

/* Counts the B and W of each stage. */
static void dpari_lower_backwards(const dpar_schedule *schedule, int64_t *left)
{
    int64_t k;
    dpari_zero(left, sizeof(*left) * (size_t)schedule->stages);
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        const dpar_action *action = &schedule->action[k];
        left[action->stage < schedule->stages ? action->stage : 0] +=
            action->kind == DPAR_ACTION_BACKWARD || action->kind == DPAR_ACTION_WEIGHT;
    }
}

/* Places the arrays after `out`, runs SHARDS and REDUCE, and sets out->begin. These passes write
 * each rank's list to the end of the rank's part of `out`; MESSAGES then writes from the front of
 * that part. The space in front of the list is as large as the messages that MESSAGES adds, so that
 * no action is overwritten before it is read. */
static void dpari_lower_begin(dpari_turns *turns, const dpar_schedule_lower_desc *how, char *work)
{
    const dpar_schedule *schedule = turns->in;
    int first = (how->passes & (DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE)) != 0;
    int64_t *begin = turns->out->begin, *left;
    dpari_sink to;
    int32_t r;
    turns->from = first ? turns->out->action : schedule->action;
    turns->head = (dpari_head *)(void *)work;
    work = (char *)(turns->head + schedule->ranks);
    turns->heap = (int32_t *)(void *)work;
    left = (int64_t *)(void *)(work + dpari_whole_words(4 * (int64_t)schedule->ranks));
    turns->given = left + schedule->stages;
    dpari_lower_backwards(schedule, left);
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        (void)dpari_lower_count(schedule, begin + 1);
    }
    for (r = 0; r < schedule->ranks; r++) {
        dpari_head *head = &turns->head[r];
        head->to = begin[r];
        head->at = begin[r] + begin[r + 1];
        to.at = first ? turns->out->action + head->at : NULL;
        to.n = 0;
        dpari_lower_rank(schedule, r, how->max_active,
                         (how->passes & DPAR_LOWER_REDUCE) ? left : NULL, &to);
        begin[r + 1] = head->at + to.n;
        head->at = first ? head->at : schedule->begin[r];
        head->end = first ? begin[r + 1] : schedule->begin[r + 1];
    }
}

/* Marks all inputs as not given, except those at the ends of chains, which exist from the start. */
static void dpari_lower_ends(dpari_turns *turns)
{
    int32_t i, m;
    for (i = 0; i < turns->in->stages; i++) {
        const int64_t input = dpari_schedule_before(turns->in, i) < 0 ? 0 : DPARI_NOT_GIVEN;
        const int64_t gradient = dpari_schedule_behind(turns->in, i) < 0 ? 0 : DPARI_NOT_GIVEN;
        for (m = 0; m < turns->in->micro_batches; m++) {
            *dpari_lower_given(turns, i, m, 0) = input;
            *dpari_lower_given(turns, i, m, 1) = gradient;
        }
    }
}

static dpar_status dpari_lower_passes(dpar_schedule *out, const dpar_schedule *in,
                                      const dpar_schedule_lower_desc *how, void *mem, int64_t bytes,
                                      dpar_why *why)
{
    dpari_turns l;
    int64_t actions = dpari_lower_actions(in, how);
    char *work;
    dpar_status st =
        dpari_lower_out(out, in, actions, dpari_lower_size(in, actions), mem, bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    l.in = in;
    l.out = out;
    l.times = how->times;
    l.turns = (how->passes & DPAR_LOWER_TURNS) != 0;
    l.idle = (how->passes & DPAR_LOWER_IDLE) != 0;
    dpari_lower_begin(&l, how, work);
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        dpari_lower_ends(&l);
        st = dpari_lower_messages(&l, why);
    }
    return st;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Writes a rank's list without idle actions. A W directly after the I of its stage and micro-batch
 * is merged with it into a B. */
static void dpari_merge_rank(const dpar_schedule *schedule, int32_t r, dpari_sink *to)
{
    dpar_action last; /* the last action that was read, which is not written yet */
    int64_t k;
    int whole = 1; /* 0 if `last` is an I that is not part of a pair */
    dpari_zero(&last, sizeof(last));
    for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
        dpar_action a = schedule->action[k];
        if (a.kind == DPAR_ACTION_IDLE) {
            continue;
        }
        if (!whole && a.kind == DPAR_ACTION_WEIGHT && a.stage == last.stage &&
            a.micro_batch == last.micro_batch) {
            last.kind = DPAR_ACTION_BACKWARD;
            whole = 1;
            continue;
        }
        if (last.kind != DPAR_ACTION_IDLE) {
            dpari_sink_put(to, &last);
        }
        whole = a.kind != DPAR_ACTION_INPUT || last.joined;
        last = a;
    }
    if (last.kind != DPAR_ACTION_IDLE) {
        dpari_sink_put(to, &last);
    }
}

static int64_t dpari_merge_count(const dpar_schedule *schedule)
{
    dpari_sink counted;
    int32_t r;
    counted.at = NULL;
    counted.n = 0;
    for (r = 0; r < schedule->ranks; r++) {
        dpari_merge_rank(schedule, r, &counted);
    }
    return counted.n;
}

static int64_t dpari_merge_size(const dpar_schedule *in)
{
    return dpari_schedule_bytes(in->ranks, in->stages, dpari_merge_count(in));
}

static dpar_status dpari_merge(dpar_schedule *out, const dpar_schedule *in, void *mem,
                               int64_t bytes, dpar_why *why)
{
    dpari_sink to;
    char *work;
    int32_t r;
    dpar_status st = dpari_lower_out(out, in, dpari_merge_count(in), dpari_merge_size(in), mem,
                                     bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    to.at = out->action;
    to.n = 0;
    for (r = 0; r < in->ranks; r++) {
        dpari_merge_rank(in, r, &to);
        out->begin[r + 1] = to.n;
    }
    return DPAR_OK;
}

/* ---- late receives --------------------------------------------------------------------------- */

enum { DPARI_GIVEN_F = 1, DPARI_GIVEN_B = 2 };

/* The receives of a rank that are held back, in one queue per channel. Each queue is a list linked
 * by `next`. */
typedef struct dpari_held {
    const dpar_schedule *in;
    dpari_sink to;
    int64_t *first, *last; /* [ranks], the queue of each peer; with ANY only queue 0 is used */
    int64_t *next;         /* [actions of the list], the next receive of the queue */
    uint8_t *given;        /* [stage][micro-batch], DPARI_GIVEN_x for the receives that are held */
    int one_queue;
} dpari_held;

static uint8_t *dpari_held_given(const dpari_held *held, const dpar_action *action)
{
    return &held->given[(int64_t)action->stage * held->in->micro_batches + action->micro_batch];
}

/* Holds back action k, a receive. */
static void dpari_held_add(dpari_held *held, int64_t k, int64_t begin)
{
    const dpar_action *action = &held->in->action[k];
    int32_t q = held->one_queue ? 0 : action->peer;
    *dpari_held_given(held, action) |=
        (uint8_t)(action->kind == DPAR_ACTION_RECV_F ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    held->next[k - begin] = -1;
    if (held->first[q] < 0) {
        held->first[q] = k;
    } else {
        held->next[held->last[q] - begin] = k;
    }
    held->last[q] = k;
}

/* Writes the first receive of queue q to the list. */
static void dpari_held_pop(dpari_held *held, int32_t q, int64_t begin)
{
    const dpar_action *action = &held->in->action[held->first[q]];
    *dpari_held_given(held, action) &=
        (uint8_t) ~(unsigned)(action->kind == DPAR_ACTION_RECV_F ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    held->first[q] = held->next[held->first[q] - begin];
    dpari_sink_put(&held->to, action);
}

/* If the receive of the action's stage and micro-batch is held, writes it and those before it in
 * the queue.
 */
static void dpari_held_need(dpari_held *held, const dpar_action *action, int forward, int64_t begin)
{
    int32_t other = forward ? dpari_schedule_before(held->in, action->stage)
                            : dpari_schedule_behind(held->in, action->stage);
    int32_t q = other < 0 || held->one_queue ? 0 : held->in->rank_of[other];
    while ((*dpari_held_given(held, action) & (forward ? DPARI_GIVEN_F : DPARI_GIVEN_B)) != 0) {
        dpari_held_pop(held, q, begin);
    }
}

/* Writes all held receives that must be before `action`. */
static void dpari_held_before(dpari_held *held, const dpar_action *action, int32_t channel,
                              int64_t begin)
{
    int32_t i, q = held->one_queue ? 0 : action->peer;
    for (i = 0; i <= action->joined; i++) {
        int forward = action[i].kind == DPAR_ACTION_FORWARD || action[i].kind == DPAR_ACTION_RECV_F;
        if (forward || action[i].kind == DPAR_ACTION_RECV_B ||
            dpari_action_is_gradient(action[i].kind)) {
            dpari_held_need(held, &action[i], forward, begin);
        }
    }
    while (dpari_action_is_send(action->kind) && channel != DPAR_CHANNEL_EDGE &&
           held->first[q] >= 0) {
        dpari_held_pop(held, q, begin);
    }
}

/* Writes rank r's list with late receives. */
static void dpari_late_rank(dpari_held *held, int32_t r, int32_t channel)
{
    const dpar_schedule *schedule = held->in;
    int64_t k, begin = schedule->begin[r];
    int32_t i;
    for (k = begin; k < schedule->begin[r + 1]; k += 1 + schedule->action[k].joined) {
        const dpar_action *action = &schedule->action[k];
        dpari_held_before(held, action, channel, begin);
        if (dpari_action_is_receive(action->kind)) {
            dpari_held_add(held, k, begin);
            continue;
        }
        for (i = 0; i <= action->joined; i++) {
            dpari_sink_put(&held->to, action + i);
        }
    }
    for (k = begin; k < schedule->begin[r + 1];
         k++) { /* receives that no action needs, in their order */
        int32_t q = held->one_queue ? 0 : schedule->action[k].peer;
        if (dpari_action_is_receive(schedule->action[k].kind) && held->first[q] == k) {
            dpari_held_pop(held, q, begin);
        }
    }
}

static int64_t dpari_late_size(const dpar_schedule *in)
{
    int64_t bytes = dpari_schedule_bytes(in->ranks, in->stages, in->begin[in->ranks]);
    return bytes < 0 ? -1
                     : bytes + 16 * (int64_t)in->ranks + 8 * dpari_schedule_longest(in) +
                           dpari_whole_words((int64_t)in->stages * in->micro_batches);
}

static dpar_status dpari_late(dpar_schedule *out, const dpar_schedule *in, int32_t channel,
                              void *mem, int64_t bytes, dpar_why *why)
{
    dpari_held h;
    char *work;
    int32_t r;
    dpar_status st =
        dpari_lower_out(out, in, in->begin[in->ranks], dpari_late_size(in), mem, bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    h.in = in;
    h.to.at = out->action;
    h.to.n = 0;
    h.first = (int64_t *)(void *)work;
    h.last = h.first + in->ranks;
    h.next = h.last + in->ranks;
    h.given = (uint8_t *)(h.next + dpari_schedule_longest(in));
    h.one_queue = channel == DPAR_CHANNEL_ANY;
    dpari_zero(h.given, (size_t)in->stages * (size_t)in->micro_batches);
    for (r = 0; r < in->ranks; r++) {
        h.first[r] = -1;
    }
    for (r = 0; r < in->ranks; r++) {
        dpari_late_rank(&h, r, channel);
        out->begin[r + 1] = h.to.n;
    }
    return DPAR_OK;
}

/* ---- the calls ------------------------------------------------------------------------------- */

DPARI_API int64_t dpari_schedule_lower_bytes(const dpar_schedule *in,
                                             const dpar_schedule_lower_desc *how, dpar_why *why)
{
    dpar_schedule_lower_desc h;
    if (dpari_lower_settings(&h, in, how, why) != DPAR_OK) {
        return -1;
    }
    if (h.passes == DPAR_LOWER_MERGE) {
        return dpari_merge_size(in);
    }
    if (h.passes == DPAR_LOWER_LATE_RECV) {
        return dpari_late_size(in);
    }
    return dpari_lower_size(in, dpari_lower_actions(in, &h));
}

DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_schedule_lower_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    dpar_schedule_lower_desc h;
    dpar_schedule got;
    dpar_status st = dpari_lower_settings(&h, in, how, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (h.passes == DPAR_LOWER_MERGE) {
        st = dpari_merge(&got, in, mem, bytes, why);
    } else if (h.passes == DPAR_LOWER_LATE_RECV) {
        st = dpari_late(&got, in, h.channel, mem, bytes, why);
    } else {
        st = dpari_lower_passes(&got, in, &h, mem, bytes, why);
    }
    if (st == DPAR_OK) {
        *out = got;
    }
    return st;
}

/* ==== schedule/check.c ==== */

/* Proves schedules. Each action is first checked on its own, then against the earlier actions of
 * its rank. Then the set of all actions is checked. To find deadlocks the ranks run their lists as
 * far as possible under the rules of the transport. A step of one rank never disables a step of
 * another one. Therefore the order in which ranks advance does not decide whether they reach the
 * end, and one run is a proof. If the ranks get stuck, a cycle of ranks that wait for each other is
 * found and reported. */

/* Sets of kinds, with a bit for each kind. */
enum {
    DPARI_SET_F = 1 << DPAR_ACTION_FORWARD,
    DPARI_SET_B = 1 << DPAR_ACTION_BACKWARD,
    DPARI_SET_I = 1 << DPAR_ACTION_INPUT,
    DPARI_SET_W = 1 << DPAR_ACTION_WEIGHT,
    DPARI_SET_SENDS = (1 << DPAR_ACTION_SEND_F) | (1 << DPAR_ACTION_SEND_B),
    DPARI_SET_RECVS = (1 << DPAR_ACTION_RECV_F) | (1 << DPAR_ACTION_RECV_B),
    DPARI_SET_MESSAGES = DPARI_SET_SENDS | DPARI_SET_RECVS,
    DPARI_SET_SHARDING = (1 << DPAR_ACTION_UNSHARD) | (1 << DPAR_ACTION_RESHARD),
    DPARI_SET_OFFLOADS = (1 << DPAR_ACTION_OFFLOAD) | (1 << DPAR_ACTION_RELOAD),
    DPARI_SET_GRADIENT = DPARI_SET_B | DPARI_SET_I, /* they make the gradient of a stage's input */
    DPARI_SET_TRAINING = DPARI_SET_GRADIENT | DPARI_SET_W,
    DPARI_SET_COMPUTE = DPARI_SET_F | DPARI_SET_TRAINING | (1 << DPAR_ACTION_RECOMPUTE)
};
/* The state of a stage while its rank's list is read. */
enum {
    DPARI_STAGE_UNSHARDED = 1,
    DPARI_STAGE_REDUCED = 2,
    DPARI_STAGE_TRAINED = 4,
    DPARI_STAGE_WAITED = 8
};
enum { DPARI_NO_CHAIN = 65535 };

/* The actions of a stage and a micro-batch. */
typedef struct dpari_proof_cell {
    int32_t send[2]; /* SEND_F and SEND_B: first the number on its channel, then its index */
    uint16_t seen;   /* kinds in its rank's list */
    uint16_t done;   /* kinds that the run has completed */
} dpari_proof_cell;

/* A message in its queue. The record of the first message of a queue also describes the queue. */
typedef struct dpari_proof_link {
    int32_t mate;  /* the other end; after the transfer, the next message in `pending` */
    int32_t next;  /* the next message of the queue, or -1 */
    int32_t first; /* the first message of the queue */
    /* In the record of a queue's first message: the first message that was not transferred, or -1.
     * With EAGER, on the receiver's side: the number of messages in the buffer. */
    int32_t head;
} dpari_proof_link;

/* The position of a rank in its list. */
typedef struct dpari_proof_lane {
    int32_t at, end; /* the next action, and one past the last */
    int32_t queued;  /* 1 while the rank is in `ready` */
} dpari_proof_lane;

typedef struct dpari_proof {
    const dpar_schedule *s;
    dpar_why *why;
    dpari_proof_link *link; /* [actions]; NULL if messages only wait for their data */
    dpari_proof_cell *cell; /* [chain][micros] */
    dpari_proof_lane *lane; /* [ranks] */
    int32_t *ready;         /* [ranks], a stack of ranks that may be able to continue */
    int32_t *key;           /* [2 ranks], a counter or the last message of a queue */
    uint16_t *chain;        /* [micros], the chain that a micro-batch passes */
    uint8_t *stage;         /* [stages], DPARI_STAGE_x */
    uint32_t kinds;         /* the kinds of all actions */
    int32_t transport, room, ready_count;
    /* the first of a list of transferred messages whose successors may be next, or -1 */
    int32_t pending;
} dpari_proof;

/* ---- messages -------------------------------------------------------------------------------- */

/* Appends `form`, with `number` in place of '#', `action` in place of the first '@' and `other` in
 * place of the second. */
static void dpari_proof_words(dpar_text *text, const char *form, int64_t number,
                              const dpar_action *action, const dpar_action *other)
{
    for (; *form != 0; form++) {
        if (*form == '#') {
            dpari_text_int(text, number);
        } else if (*form == '@') {
            dpari_action_put(action, text);
            action = other;
        } else {
            dpari_text_char(text, *form);
        }
    }
}

/* Writes a message about actions of rank r or a peer, and a number. dpari_proof_say, _say_number
 * and _say_pair leave out what their messages do not contain. */
DPARI_STATIC_NOINLINE dpar_status dpari_proof_report(const dpari_proof *proof, int32_t r,
                                                     const dpar_action *action, const char *form,
                                                     int64_t number, const dpar_action *other)
{
    dpar_text t;
    if (proof->why != NULL) {
        dpari_text_why(&t, proof->why);
        dpar_text_put(&t, "rank "); /* not dpari_text_say, which takes more stack */
        dpari_text_int(&t, r);
        dpar_text_put(&t, ": ");
        dpari_proof_words(&t, form, number, action, other);
    }
    return DPAR_E_ARG;
}

/* Writes a message about an action: "rank 2: 1B3 is listed twice". */
static dpar_status dpari_proof_say(const dpari_proof *proof, int32_t r, const dpar_action *action,
                                   const char *form)
{
    return dpari_proof_report(proof, r, action, form, 0, NULL);
}

/* Writes a message about an action and a number: "rank 2: the stage of 1B3 is on rank 1". */
static dpar_status dpari_proof_say_number(const dpari_proof *proof, int32_t r,
                                          const dpar_action *action, const char *form,
                                          int64_t number)
{
    return dpari_proof_report(proof, r, action, form, number, NULL);
}

/* Writes a message about two actions: "rank 2: 1F3 comes after 1B3, which needs it". */
static dpar_status dpari_proof_say_pair(const dpari_proof *proof, int32_t r,
                                        const dpar_action *action, const char *form,
                                        const dpar_action *other)
{
    return dpari_proof_report(proof, r, action, form, 0, other);
}

/* Returns the smallest kind of a set. */
static int32_t dpari_proof_kind(uint32_t set)
{
    int32_t kind = 0;
    while (kind + 1 < DPAR_ACTION_COUNT && (set >> kind & 1) == 0) {
        kind++;
    }
    return kind;
}

/* ---- shape and memory ------------------------------------------------------------------------ */

static dpar_status dpari_proof_begins(const dpar_schedule *schedule, dpar_why *why)
{
    int32_t r;
    if (schedule->begin[0] != 0) {
        return dpari_wrong(why, "begin[0] is %ld; it must be 0", schedule->begin[0]);
    }
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[r + 1] < schedule->begin[r]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", r,
                               schedule->begin[r], schedule->begin[r + 1]);
        }
    }
    if (schedule->begin[schedule->ranks] >= INT32_MAX) {
        return dpari_wrong(why, "the schedule has %ld actions; at most 2147483646 can be checked",
                           schedule->begin[schedule->ranks]);
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_proof_shape(const dpar_schedule *schedule, dpar_why *why)
{
    if (schedule->ranks < 1 || schedule->ranks > DPAR_MAX_STAGES || schedule->stages < 1 ||
        schedule->stages > DPAR_MAX_STAGES) {
        return dpari_wrong(why, "the schedule has %d ranks and %d stages; 1 to 65535 are allowed",
                           schedule->ranks, schedule->stages);
    }
    if (schedule->chain < 1 || schedule->stages % schedule->chain != 0) {
        return dpari_wrong(why, "chains of %d stages do not divide %d stages", schedule->chain,
                           schedule->stages);
    }
    if (schedule->micro_batches < 1 || schedule->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_wrong(why, "the schedule has %d micro-batches; 1 to 65535 are allowed",
                           schedule->micro_batches);
    }
    if (schedule->slices < 1 || schedule->micro_batches % schedule->slices != 0) {
        return dpari_wrong(why, "slices of %d do not divide %d micro-batches", schedule->slices,
                           schedule->micro_batches);
    }
    return dpari_proof_begins(schedule, why);
}

/* Returns the number of cells, one for each stage of a chain and micro-batch, or 0 if there are
 * fewer actions than cells, because a correct schedule has a forward for each cell. */
DPARI_STATIC_NOINLINE int64_t dpari_proof_cells(const dpar_schedule *schedule)
{
    int64_t cells = (int64_t)schedule->chain * schedule->micro_batches;
    return cells <= schedule->begin[schedule->ranks] ? cells : 0;
}

/* Returns the bytes of all arrays, with `link` bytes for the link of each action, or -1 if the
 * shape is wrong. */
DPARI_STATIC_NOINLINE int64_t dpari_proof_size(const dpar_schedule *schedule, int64_t link)
{
    if (dpari_proof_shape(schedule, NULL) != DPAR_OK) {
        return -1;
    }
    return dpari_whole_words(link * schedule->begin[schedule->ranks] +
                             (int64_t)sizeof(dpari_proof_cell) * dpari_proof_cells(schedule) +
                             ((int64_t)sizeof(dpari_proof_lane) + 12) * schedule->ranks +
                             2 * (int64_t)schedule->micro_batches + schedule->stages);
}

DPARI_API int64_t dpari_schedule_check_bytes(const dpar_schedule *schedule,
                                             const dpar_schedule_check_desc *how)
{
    const int run = how != NULL && how->transport != DPAR_TRANSPORT_NONE;
    return dpari_proof_size(schedule, run ? (int64_t)sizeof(dpari_proof_link) : 0);
}

/* Places the arrays in mem and zeroes them. The shape of the schedule and the size of mem were
 * checked. */
static void dpari_proof_arrange(dpari_proof *proof, const dpar_schedule *schedule, int run,
                                void *mem, dpar_why *why)
{
    int64_t cells = dpari_proof_cells(schedule), links = run ? schedule->begin[schedule->ranks] : 0;
    int32_t r;
    dpari_zero(proof, sizeof(*proof));
    dpari_zero(mem,
               (size_t)dpari_proof_size(schedule, run ? (int64_t)sizeof(dpari_proof_link) : 0));
    proof->s = schedule;
    proof->why = why;
    proof->cell = (dpari_proof_cell *)(void *)((dpari_proof_link *)mem + links);
    proof->lane = (dpari_proof_lane *)(void *)(proof->cell + cells);
    proof->ready = (int32_t *)(void *)(proof->lane + schedule->ranks);
    proof->key = proof->ready + schedule->ranks;
    proof->chain = (uint16_t *)(void *)(proof->key + 2 * (int64_t)schedule->ranks);
    proof->stage = (uint8_t *)(void *)(proof->chain + schedule->micro_batches);
    proof->link = run ? (dpari_proof_link *)mem : NULL;
    proof->pending = -1;
    for (r = 0; r < schedule->micro_batches; r++) {
        proof->chain[r] = DPARI_NO_CHAIN;
    }
    for (r = 0; r < schedule->ranks; r++) {
        proof->lane[r].at = (int32_t)schedule->begin[r];
        proof->lane[r].end = (int32_t)schedule->begin[r + 1];
    }
}

/* ---- access ---------------------------------------------------------------------------------- */

DPARI_STATIC_NOINLINE dpari_proof_cell *dpari_proof_at(const dpari_proof *proof, int32_t stage,
                                                       int32_t micro)
{
    return &proof->cell[(int64_t)(stage % proof->s->chain) * proof->s->micro_batches + micro];
}

static int dpari_proof_is(int32_t kind, uint32_t set)
{
    return (set >> kind & 1) != 0;
}

/* Returns the cell of a message's other end. */
static dpari_proof_cell *dpari_proof_mate_cell(const dpari_proof *proof, const dpar_action *action)
{
    return dpari_proof_at(proof, dpar_schedule_partner(proof->s, action->kind, action->stage),
                          action->micro_batch);
}

/* ---- each action on its own ------------------------------------------------------------------ */

/* Collects the kinds of all actions and checks that they exist. */
static dpar_status dpari_proof_kinds(dpari_proof *proof)
{
    const dpar_schedule *schedule = proof->s;
    int32_t r;
    int64_t i;
    for (r = 0; r < schedule->ranks; r++) {
        for (i = schedule->begin[r]; i < schedule->begin[r + 1]; i++) {
            if (schedule->action[i].kind >= DPAR_ACTION_COUNT) {
                return dpari_wrong(proof->why,
                                   "rank %d: action %ld of its list has kind %d; kinds are 0 to %d",
                                   r, i - schedule->begin[r], (int32_t)schedule->action[i].kind,
                                   (int32_t)DPAR_ACTION_COUNT - 1);
            }
            proof->kinds |= 1u << schedule->action[i].kind;
        }
    }
    return DPAR_OK;
}

/* Checks a joined forward, which is the last action of its rank if `last` is 1. */
static dpar_status dpari_proof_joined(const dpari_proof *proof, int32_t r,
                                      const dpar_action *action, int last)
{
    if (action->joined != 1 || action->kind != DPAR_ACTION_FORWARD || last || action[1].joined ||
        !dpari_proof_is(action[1].kind, DPARI_SET_GRADIENT)) {
        return dpari_proof_say(proof, r, action,
                               "@ is joined, but it is not an F that a B or I follows");
    }
    if (action[1].stage == action->stage && action[1].micro_batch == action->micro_batch) {
        return dpari_proof_say_pair(proof, r, action, "@ is joined with its own @", action + 1);
    }
    return DPAR_OK;
}

/* Checks that a message connects neighbouring stages on two ranks and names the right peer. */
static dpar_status dpari_proof_message(const dpari_proof *proof, int32_t r,
                                       const dpar_action *action)
{
    int32_t there = dpar_schedule_partner(proof->s, action->kind, action->stage);
    if (there < 0) {
        return dpari_proof_say_number(
            proof, r, action, "@ has no partner, because stage # ends its chain", action->stage);
    }
    if (proof->s->rank_of[there] == r) {
        return dpari_proof_say_number(
            proof, r, action, "@ is not needed, because stage # is on the same rank", there);
    }
    if (action->peer != proof->s->rank_of[there]) {
        return dpari_proof_say_number(
            proof, r, action, "@ has peer #, but its other end is on another rank", action->peer);
    }
    return DPAR_OK;
}

/* Checks that the numbers of an action are in range, that its stage is on its rank and that its
 * micro-batch passes one chain only. After this check an action has a cell. */
static dpar_status dpari_proof_ids(dpari_proof *proof, int32_t r, const dpar_action *action)
{
    const dpar_schedule *schedule = proof->s;
    int32_t chain = action->stage / schedule->chain;
    if (action->stage >= schedule->stages) {
        return dpari_proof_say_number(proof, r, action, "@ does not exist, there are only # stages",
                                      schedule->stages);
    }
    if (schedule->rank_of[action->stage] != r) {
        return dpari_proof_say_number(proof, r, action, "the stage of @ is on rank #",
                                      schedule->rank_of[action->stage]);
    }
    if (!dpari_action_has_micro(action->kind)) {
        return DPAR_OK;
    }
    if (action->micro_batch >= schedule->micro_batches) {
        return dpari_proof_say_number(proof, r, action,
                                      "@ does not exist, there are only # micro-batches",
                                      schedule->micro_batches);
    }
    if (proof->chain[action->micro_batch] != DPARI_NO_CHAIN &&
        proof->chain[action->micro_batch] != chain) {
        return dpari_proof_say_number(proof, r, action,
                                      "the micro-batch of @ is also in the chain from stage # on",
                                      proof->chain[action->micro_batch] * (int64_t)schedule->chain);
    }
    proof->chain[action->micro_batch] = (uint16_t)chain;
    return dpari_proof_is(action->kind, DPARI_SET_MESSAGES) ? dpari_proof_message(proof, r, action)
                                                            : DPAR_OK;
}

/* ---- order in a rank ------------------------------------------------------------------------- */

/* Returns the kinds that must come after `kind` in the list, for the same stage and micro-batch. */
static uint32_t dpari_proof_later(int32_t kind)
{
    const uint32_t backward = DPARI_SET_GRADIENT, recompute = 1u << DPAR_ACTION_RECOMPUTE;
    switch (kind) {
    case DPAR_ACTION_RECV_F: return DPARI_SET_F;
    case DPAR_ACTION_FORWARD:
        return (1u << DPAR_ACTION_SEND_F) | DPARI_SET_OFFLOADS | recompute | DPARI_SET_TRAINING;
    case DPAR_ACTION_OFFLOAD: return (1u << DPAR_ACTION_RELOAD) | recompute | backward;
    case DPAR_ACTION_RELOAD: return recompute | backward;
    case DPAR_ACTION_RECOMPUTE:
    case DPAR_ACTION_RECV_B: return backward;
    case DPAR_ACTION_BACKWARD: return 1u << DPAR_ACTION_SEND_B;
    case DPAR_ACTION_INPUT: return (1u << DPAR_ACTION_SEND_B) | DPARI_SET_W;
    default: return 0;
    }
}

/* Checks that no action of `set` with this stage and micro-batch comes before `action`, which each
 * of them needs. */
static dpar_status dpari_proof_after(const dpari_proof *proof, int32_t r, const dpar_action *action,
                                     uint32_t set, int32_t stage, int32_t micro)
{
    uint32_t seen = set & dpari_proof_at(proof, stage, micro)->seen;
    dpar_action needs = dpari_action_of(dpari_proof_kind(seen), stage, micro);
    if (seen != 0) {
        return dpari_proof_say_pair(proof, r, action, "@ comes after @, which needs it", &needs);
    }
    return DPAR_OK;
}

/* Checks that an F, B or I comes before the actions on the same rank that need its result: those of
 * the neighbouring stage and of the next slice. */
static dpar_status dpari_proof_local(const dpari_proof *proof, int32_t r, const dpar_action *action)
{
    uint32_t set =
        action->kind == DPAR_ACTION_FORWARD ? (uint32_t)DPARI_SET_F : (uint32_t)DPARI_SET_GRADIENT;
    int32_t there = dpar_schedule_partner(proof->s, action->kind, action->stage),
            slice = action->micro_batch % proof->s->slices;
    int32_t next = action->kind == DPAR_ACTION_FORWARD ? 1 : -1;
    dpar_status st = DPAR_OK;
    if (there >= 0 && proof->s->rank_of[there] == r) {
        st = dpari_proof_after(proof, r, action, set, there, action->micro_batch);
    }
    if (st == DPAR_OK && slice + next >= 0 && slice + next < proof->s->slices) {
        st = dpari_proof_after(proof, r, action, set, action->stage, action->micro_batch + next);
    }
    return st;
}

/* Checks the position of an action in its rank's list and enters it in its cell. */
static dpar_status dpari_proof_order(const dpari_proof *proof, int32_t r, const dpar_action *action)
{
    dpari_proof_cell *cell = dpari_proof_at(proof, action->stage, action->micro_batch);
    uint32_t split = DPARI_SET_I | DPARI_SET_W, twin = 0;
    dpar_status st;
    if (dpari_proof_is(action->kind, cell->seen)) {
        return dpari_proof_say(proof, r, action, "@ is listed twice");
    }
    if (action->kind == DPAR_ACTION_BACKWARD) {
        twin = split & cell->seen;
    } else if (dpari_proof_is(action->kind, split)) {
        twin = (uint32_t)DPARI_SET_B & cell->seen;
    }
    if (twin != 0) {
        dpar_action other =
            dpari_action_of(dpari_proof_kind(twin), action->stage, action->micro_batch);
        return dpari_proof_say_pair(
            proof, r, &other, "@ and @ exclude each other, because a B is I and W in one", action);
    }
    st = dpari_proof_after(proof, r, action, dpari_proof_later(action->kind), action->stage,
                           action->micro_batch);
    if (st == DPAR_OK && dpari_proof_is(action->kind, DPARI_SET_F | DPARI_SET_GRADIENT)) {
        st = dpari_proof_local(proof, r, action);
    }
    cell->seen = (uint16_t)(cell->seen | 1u << action->kind);
    return st;
}

/* Checks an action against the state of its stage, sharding and reduction, and updates the state.
 */
static dpar_status dpari_proof_state(const dpari_proof *proof, int32_t r, const dpar_action *action)
{
    uint8_t *state = &proof->stage[action->stage];
    int unsharded = (*state & DPARI_STAGE_UNSHARDED) != 0;
    if (action->kind == DPAR_ACTION_UNSHARD && unsharded) {
        return dpari_proof_say_number(proof, r, action, "@, but stage # is already unsharded",
                                      action->stage);
    }
    if (!unsharded &&
        (action->kind == DPAR_ACTION_RESHARD || (dpari_proof_is(action->kind, DPARI_SET_COMPUTE) &&
                                                 (proof->kinds & DPARI_SET_SHARDING) != 0))) {
        return dpari_proof_say_number(proof, r, action, "@, but stage # is not unsharded there",
                                      action->stage);
    }
    if ((*state & DPARI_STAGE_REDUCED) != 0 &&
        dpari_proof_is(action->kind, DPARI_SET_TRAINING | 1u << DPAR_ACTION_REDUCE_GRAD)) {
        return dpari_proof_say_number(proof, r, action, "@ comes after #REDUCE_GRAD",
                                      action->stage);
    }
    if (action->kind == DPAR_ACTION_WAIT_REDUCE) {
        if ((*state & DPARI_STAGE_REDUCED) == 0 || (*state & DPARI_STAGE_WAITED) != 0) {
            return dpari_proof_say_number(proof, r, action, "@ has no #REDUCE_GRAD before it",
                                          action->stage);
        }
        *state |= DPARI_STAGE_WAITED;
    } else if (dpari_proof_is(action->kind, DPARI_SET_SHARDING)) {
        *state ^= DPARI_STAGE_UNSHARDED;
    } else if (dpari_proof_is(action->kind, DPARI_SET_TRAINING)) {
        *state |= DPARI_STAGE_TRAINED;
    } else if (action->kind == DPAR_ACTION_REDUCE_GRAD) {
        *state |= DPARI_STAGE_REDUCED;
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_list(dpari_proof *proof, int32_t r)
{
    const dpar_schedule *schedule = proof->s;
    dpar_status st = DPAR_OK;
    int64_t i;
    for (i = schedule->begin[r]; i < schedule->begin[r + 1] && st == DPAR_OK; i++) {
        const dpar_action *action = &schedule->action[i];
        if (action->joined) {
            st = dpari_proof_joined(proof, r, action, i + 1 == schedule->begin[r + 1]);
        }
        if (st == DPAR_OK && action->kind != DPAR_ACTION_IDLE) {
            st = dpari_proof_ids(proof, r, action);
            if (st == DPAR_OK) {
                st = dpari_proof_state(proof, r, action);
            }
            if (st == DPAR_OK && dpari_action_has_micro(action->kind)) {
                st = dpari_proof_order(proof, r, action);
            }
        }
    }
    return st;
}

/* ---- missing and superfluous actions --------------------------------------------------------- */

/* Returns the kinds that a stage must have for a micro-batch. `seen` decides between B, and I and
 * W. */
static uint32_t dpari_proof_expected(const dpari_proof *proof, int32_t stage, uint32_t seen)
{
    uint32_t set = DPARI_SET_F;
    int32_t kind;
    if ((seen >> DPAR_ACTION_RELOAD & 1) != 0) {
        set |= 1u << DPAR_ACTION_OFFLOAD;
    }
    if ((proof->kinds & DPARI_SET_TRAINING) != 0) {
        set |= (seen & (DPARI_SET_I | DPARI_SET_W)) != 0 ? DPARI_SET_I | DPARI_SET_W : DPARI_SET_B;
        set |= (seen & DPARI_SET_OFFLOADS) != 0 ? (uint32_t)DPARI_SET_OFFLOADS : 0;
    }
    for (kind = DPAR_ACTION_SEND_F;
         kind <= DPAR_ACTION_RECV_B && (proof->kinds & DPARI_SET_MESSAGES) != 0; kind++) {
        int32_t there = dpar_schedule_partner(proof->s, kind, stage);
        if (there >= 0 && proof->s->rank_of[there] != proof->s->rank_of[stage] &&
            (!dpari_message_way(kind) || (proof->kinds & DPARI_SET_TRAINING) != 0)) {
            set |= 1u << kind;
        }
    }
    return set;
}

static dpar_status dpari_proof_complete(const dpari_proof *proof, int32_t stage, int32_t micro)
{
    uint32_t seen = dpari_proof_at(proof, stage, micro)->seen;
    uint32_t set = dpari_proof_expected(proof, stage, seen),
             extra = seen & ~set & DPARI_SET_MESSAGES;
    dpar_action a = dpari_action_of(dpari_proof_kind((set & ~seen) | extra), stage, micro);
    if ((set & ~seen) != 0) {
        a = dpari_action_of(dpari_proof_kind(set & ~seen), stage, micro);
        return dpari_proof_say(proof, proof->s->rank_of[stage], &a, "@ is missing");
    }
    if (extra != 0) {
        return dpari_proof_say(proof, proof->s->rank_of[stage], &a,
                               "@ is not needed, because there is no backward");
    }
    return DPAR_OK;
}

static dpar_status dpari_proof_micros(const dpari_proof *proof)
{
    const dpar_schedule *schedule = proof->s;
    dpar_status st = DPAR_OK;
    int32_t m, k;
    for (m = 0; m < schedule->micro_batches; m++) {
        if (proof->chain[m] == DPARI_NO_CHAIN) {
            return dpari_wrong(proof->why, "micro-batch %d of %d is in no list", m,
                               schedule->micro_batches);
        }
        if (proof->chain[m] != proof->chain[m - m % schedule->slices]) {
            return dpari_wrong(proof->why,
                               "%d and %d are slices of one micro-batch, but pass different chains",
                               m - m % schedule->slices, m);
        }
    }
    for (k = 0; k < schedule->chain && st == DPAR_OK; k++) {
        for (m = 0; m < schedule->micro_batches && st == DPAR_OK; m++) {
            st = dpari_proof_complete(proof, proof->chain[m] * schedule->chain + k, m);
        }
    }
    return st;
}

/* Checks the final state of all stages. */
static dpar_status dpari_proof_stages(const dpari_proof *proof)
{
    const int reduces = dpari_proof_is(DPAR_ACTION_REDUCE_GRAD, proof->kinds);
    int32_t k;
    if (reduces && (proof->kinds & DPARI_SET_TRAINING) == 0) {
        return dpari_wrong(proof->why, "there is a REDUCE_GRAD, but no backward");
    }
    for (k = 0; k < proof->s->stages; k++) {
        if ((proof->stage[k] & DPARI_STAGE_UNSHARDED) != 0) {
            return dpari_wrong(proof->why, "rank %d: the last %dUNSHARD has no %dRESHARD after it",
                               (int32_t)proof->s->rank_of[k], k, k);
        }
        if (reduces && (proof->stage[k] & DPARI_STAGE_TRAINED) != 0 &&
            (proof->stage[k] & DPARI_STAGE_REDUCED) == 0) {
            return dpari_wrong(proof->why, "rank %d: %dREDUCE_GRAD is missing",
                               (int32_t)proof->s->rank_of[k], k);
        }
    }
    return DPAR_OK;
}

/* ---- order of a channel ---------------------------------------------------------------------- */

/* Resets the keys that rank r used. Only the keys of its peers are written, so that the cost is
 * O(its actions) however many ranks there are. */
static void dpari_proof_forget(const dpari_proof *proof, int32_t r, int32_t value)
{
    int64_t i;
    for (i = proof->s->begin[r]; i < proof->s->begin[r + 1]; i++) {
        if (dpari_proof_is(proof->s->action[i].kind, DPARI_SET_MESSAGES)) {
            proof->key[2 * proof->s->action[i].peer] = value;
            proof->key[2 * proof->s->action[i].peer + 1] = value;
        }
    }
}

/* Numbers the sends of rank r on each of its channels. */
static void dpari_proof_number(const dpari_proof *proof, int32_t r)
{
    int64_t i;
    for (i = proof->s->begin[r]; i < proof->s->begin[r + 1]; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_SENDS)) {
            dpari_proof_at(proof, action->stage, action->micro_batch)
                ->send[dpari_message_way(action->kind)] = proof->key[2 * action->peer]++;
        }
    }
    dpari_proof_forget(proof, r, 0);
}

/* Returns send number n of rank q to rank r, counted from 0. It must exist. */
static const dpar_action *dpari_proof_nth(const dpari_proof *proof, int32_t q, int32_t r, int32_t n)
{
    int64_t i = proof->s->begin[q];
    for (;; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_SENDS) && action->peer == r && n-- == 0) {
            return action;
        }
    }
}

/* Checks that rank r receives the messages of each peer in the order in which the peer sends them.
 */
static dpar_status dpari_proof_channel(const dpari_proof *proof, int32_t r)
{
    int64_t i;
    for (i = proof->s->begin[r]; i < proof->s->begin[r + 1]; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_RECVS)) {
            int32_t n = proof->key[2 * action->peer]++;
            if (dpari_proof_mate_cell(proof, action)->send[dpari_message_way(action->kind)] != n) {
                return dpari_proof_report(proof, r, action,
                                          "@ is in the place where rank # sends @; without tags "
                                          "(NCCL) it receives the wrong data",
                                          action->peer, dpari_proof_nth(proof, action->peer, r, n));
            }
        }
    }
    dpari_proof_forget(proof, r, 0);
    return DPAR_OK;
}

static dpar_status dpari_proof_channels(const dpari_proof *proof)
{
    dpar_status st = DPAR_OK;
    int32_t r;
    for (r = 0; r < proof->s->ranks; r++) {
        dpari_proof_number(proof, r);
    }
    for (r = 0; r < proof->s->ranks && st == DPAR_OK; r++) {
        st = dpari_proof_channel(proof, r);
    }
    return st;
}

/* ---- the run: ranks advance until each waits for another ------------------------------------- */

/* True if messages are posted and wait in queues. */
static int dpari_proof_queues(const dpari_proof *proof)
{
    return proof->link != NULL && proof->transport >= DPAR_TRANSPORT_RANK &&
           proof->transport <= DPAR_TRANSPORT_EDGE;
}

/* Adds a rank to the stack of those that may be able to continue. */
static void dpari_proof_wake(dpari_proof *proof, int32_t r)
{
    if (!proof->lane[r].queued) {
        proof->lane[r].queued = 1;
        proof->ready[proof->ready_count++] = r;
    }
}

static int dpari_proof_done(const dpari_proof *proof, int64_t i)
{
    const dpar_action *action = &proof->s->action[i];
    return dpari_proof_is(action->kind,
                          dpari_proof_at(proof, action->stage, action->micro_batch)->done);
}

static void dpari_proof_do(dpari_proof *proof, int64_t i)
{
    const dpar_action *action = &proof->s->action[i];
    if (dpari_action_has_micro(action->kind)) {
        dpari_proof_cell *cell = dpari_proof_at(proof, action->stage, action->micro_batch);
        cell->done = (uint16_t)(cell->done | 1u << action->kind);
    }
}

/* Returns the stage on another rank from which a computation gets its data, or -1 if there is none.
 */
static int32_t dpari_proof_source(const dpar_schedule *schedule, const dpar_action *action)
{
    int32_t from = -1;
    if (action->kind == DPAR_ACTION_FORWARD) {
        from = dpari_schedule_before(schedule, action->stage);
    } else if (dpari_proof_is(action->kind, DPARI_SET_GRADIENT)) {
        from = dpari_schedule_behind(schedule, action->stage);
    }
    return from >= 0 && schedule->rank_of[from] != schedule->rank_of[action->stage] ? from : -1;
}

/* True if the data that a computation needs from another rank have not arrived. */
static int dpari_proof_waits(const dpari_proof *proof, const dpar_action *action)
{
    int32_t from = dpari_proof_source(proof->s, action);
    int forward = action->kind == DPAR_ACTION_FORWARD;
    if (from < 0) {
        return 0;
    }
    if ((proof->kinds & DPARI_SET_MESSAGES) != 0) {
        return !dpari_proof_is(forward ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B,
                               dpari_proof_at(proof, action->stage, action->micro_batch)->done);
    }
    return (dpari_proof_at(proof, from, action->micro_batch)->done &
            (forward ? (uint32_t)DPARI_SET_F : (uint32_t)DPARI_SET_GRADIENT)) == 0;
}

/* Runs the rank's next computation, or both of a joined pair, unless it waits. Returns 1 if it ran.
 */
static int dpari_proof_compute(dpari_proof *proof, int32_t r)
{
    const dpar_action *action = &proof->s->action[proof->lane[r].at];
    int k, count = 1 + action->joined;
    for (k = 0; k < count; k++) {
        if (dpari_proof_waits(proof, action + k)) {
            return 0;
        }
    }
    for (k = 0; k < count; k++) {
        int32_t there = dpar_schedule_partner(proof->s, action[k].kind, action[k].stage);
        dpari_proof_do(proof, proof->lane[r].at + k);
        if (there >= 0 && (proof->kinds & DPARI_SET_MESSAGES) == 0) {
            dpari_proof_wake(proof, proof->s->rank_of[there]);
        }
    }
    proof->lane[r].at += count;
    return 1;
}

/* The next three functions run message i, the next action of its rank, and return 1, or return 0 if
 * it has to wait. Without a transport a send never waits and a receive waits for its send. */
static int dpari_proof_free(dpari_proof *proof, int32_t i)
{
    const dpar_action *action = &proof->s->action[i];
    if (dpari_proof_is(action->kind, DPARI_SET_RECVS) &&
        !dpari_proof_is(action->kind - 1 /* its send */,
                        dpari_proof_mate_cell(proof, action)->done)) {
        return 0;
    }
    dpari_proof_do(proof, i);
    dpari_proof_wake(proof, action->peer);
    return 1;
}

/* BLOCKING: both ends run at the same time, once both are the next action of their rank. */
static int dpari_proof_meet(dpari_proof *proof, int32_t i)
{
    int32_t q = proof->s->action[i].peer, mate = proof->link[i].mate;
    if (proof->lane[q].at != mate) {
        return 0;
    }
    dpari_proof_do(proof, i);
    dpari_proof_do(proof, mate);
    proof->lane[q].at++;
    dpari_proof_wake(proof, q);
    return 1;
}

/* EAGER: a send waits for a free place in the buffer, a receive until its message is at the front.
 */
static int dpari_proof_buffer(dpari_proof *proof, int32_t i)
{
    const int sends = dpari_proof_is(proof->s->action[i].kind, DPARI_SET_SENDS);
    const int32_t send = sends ? i : proof->link[i].mate;
    dpari_proof_link *queue = &proof->link[proof->link[send].first];
    int32_t *held = &proof->link[queue->mate].head;
    if (sends && *held >= proof->room) {
        return 0;
    }
    if (!sends && (queue->head != send || !dpari_proof_done(proof, send))) {
        return 0;
    }
    *held += sends ? 1 : -1;
    if (!sends) {
        queue->head = proof->link[send].next;
    }
    dpari_proof_do(proof, i);
    dpari_proof_wake(proof, proof->s->action[i].peer);
    return 1;
}

/* Returns the first message in the queue of message i that was not transferred. */
static int32_t dpari_proof_head(const dpari_proof *proof, int32_t i)
{
    return proof->link[proof->link[i].first].head;
}

/* Transfers message i if it and its other end are posted and both are first in their queues. Both
 * are then added to `pending`. */
static void dpari_proof_transfer(dpari_proof *proof, int32_t i)
{
    const dpar_action *list = proof->s->action;
    int32_t j = proof->link[i].mate, end[2], k;
    if (dpari_proof_head(proof, i) != i || dpari_proof_head(proof, j) != j ||
        i >= proof->lane[list[j].peer].at || j >= proof->lane[list[i].peer].at) {
        return;
    }
    end[0] = i;
    end[1] = j;
    for (k = 0; k < 2; k++) {
        dpari_proof_link *l = &proof->link[end[k]];
        dpari_proof_do(proof, end[k]);
        if (dpari_proof_is(list[end[k]].kind, DPARI_SET_RECVS)) {
            dpari_proof_wake(proof, list[end[1 - k]].peer);
        }
        proof->link[l->first].head = l->next;
        l->mate = proof->pending;
        proof->pending = end[k];
    }
}

/* Posts message i, then transfers all messages that this enables, one after the other. */
static int dpari_proof_post(dpari_proof *proof, int32_t r, int32_t i)
{
    proof->lane[r].at++;
    dpari_proof_transfer(proof, i);
    while (proof->pending >= 0) {
        const dpari_proof_link *l = &proof->link[proof->pending];
        proof->pending = l->mate;
        if (l->next >= 0 && dpari_proof_head(proof, l->next) == l->next) {
            dpari_proof_transfer(proof, l->next);
        }
    }
    return 1;
}

/* Runs the rank's next action. Returns 0 if it has to wait. */
static int dpari_proof_step(dpari_proof *proof, int32_t r)
{
    int32_t i = proof->lane[r].at;
    int went;
    if (!dpari_proof_is(proof->s->action[i].kind, DPARI_SET_MESSAGES)) {
        return dpari_proof_compute(proof, r);
    }
    if (dpari_proof_queues(proof)) {
        return dpari_proof_post(proof, r, i);
    }
    if (proof->link == NULL) {
        went = dpari_proof_free(proof, i);
    } else if (proof->transport == DPAR_TRANSPORT_BLOCKING) {
        went = dpari_proof_meet(proof, i);
    } else {
        went = dpari_proof_buffer(proof, i);
    }
    proof->lane[r].at += went;
    return went;
}

/* ---- stuck: which rank waits for which ------------------------------------------------------- */

/* Returns the index of the action at which a rank is stuck, or -1 if it has finished. For a
 * computation that waits for a queued message it is the first message of that queue. A rank at the
 * end of its list is stuck if one of its messages was not transferred. */
static int32_t dpari_proof_stuck(const dpari_proof *proof, int32_t r)
{
    int32_t i = proof->lane[r].at;
    const dpar_action *action = &proof->s->action[i];
    if (i < proof->lane[r].end) {
        int32_t from;
        int way;
        action += action->joined && !dpari_proof_waits(proof, action);
        if (!dpari_proof_queues(proof)) {
            return (int32_t)(action - proof->s->action);
        }
        from = dpari_proof_source(proof->s, action);
        way = action->kind != DPAR_ACTION_FORWARD;
        return dpari_proof_head(
            proof, proof->link[dpari_proof_at(proof, from, action->micro_batch)->send[way]].mate);
    }
    for (i = (int32_t)proof->s->begin[r]; i < proof->lane[r].end; i++) {
        if (dpari_proof_is(proof->s->action[i].kind, DPARI_SET_MESSAGES) &&
            !dpari_proof_done(proof, i)) {
            return i;
        }
    }
    return -1;
}

/* Why a rank is stuck: `rank` is at action `at` and waits for `needs`, an action of `other_rank`,
 * which is itself stuck at action `other`. */
typedef struct dpari_proof_wait {
    int32_t rank, at, other_rank, other;
    dpar_action needs;
} dpari_proof_wait;

/* Finds what a rank waits for if actions wait only for their data. */
static void dpari_proof_wait_data(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    const dpar_action *action = &proof->s->action[blocked->at];
    int32_t message = dpari_proof_is(action->kind, DPARI_SET_MESSAGES);
    int32_t from = message ? dpar_schedule_partner(proof->s, action->kind, action->stage)
                           : dpari_proof_source(proof->s, action);
    uint32_t seen = dpari_proof_at(proof, from, action->micro_batch)->seen;
    int32_t kind = DPAR_ACTION_FORWARD;
    if (message) { /* only a RECV waits, for its SEND */
        kind = action->kind - 1;
    } else if (action->kind != DPAR_ACTION_FORWARD) {
        kind = dpari_proof_kind(seen & DPARI_SET_GRADIENT);
    }
    blocked->needs = dpari_action_of(kind, from, action->micro_batch);
    blocked->other_rank = proof->s->rank_of[from];
    blocked->other = dpari_proof_stuck(proof, blocked->other_rank);
}

/* Finds what a rank waits for on a transport. */
static void dpari_proof_wait_message(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    const dpar_action *action = &proof->s->action[blocked->at];
    int32_t mate = proof->link[blocked->at].mate;
    blocked->other_rank = action->peer;
    if (proof->transport == DPAR_TRANSPORT_EAGER && dpari_proof_is(action->kind, DPARI_SET_SENDS)) {
        mate = proof->link[dpari_proof_head(proof, blocked->at)].mate; /* the buffer is full */
    } else if (proof->transport == DPAR_TRANSPORT_EAGER && dpari_proof_done(proof, mate)) {
        mate =
            proof->link[dpari_proof_head(proof, mate)].mate; /* another message is at the front */
        blocked->other_rank = blocked->rank;
    }
    blocked->needs = proof->s->action[mate];
    blocked->other = dpari_proof_queues(proof) && mate < proof->lane[blocked->other_rank].at
                         ? dpari_proof_head(proof, mate)
                         : dpari_proof_stuck(proof, blocked->other_rank);
}

static void dpari_proof_blocker(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    if (proof->link == NULL) {
        dpari_proof_wait_data(proof, blocked);
    } else {
        dpari_proof_wait_message(proof, blocked);
    }
}

DPARI_STATIC_NOINLINE void dpari_proof_follow(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    blocked->rank = blocked->other_rank;
    blocked->at = blocked->other;
    dpari_proof_blocker(proof, blocked);
}

/* Moves *blocked from a stuck rank to a cycle of waiting ranks, with Floyd's algorithm of a slow
 * and a fast pointer. Then moves it to the action of the cycle with the lowest index, so that the
 * message does not depend on the start of the search. */
static void dpari_proof_circle(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    dpari_proof_wait fast = *blocked, least;
    do {
        dpari_proof_follow(proof, blocked);
        dpari_proof_follow(proof, &fast);
        dpari_proof_follow(proof, &fast);
    } while (fast.at != blocked->at);
    least = *blocked;
    do {
        dpari_proof_follow(proof, blocked);
        least = blocked->at < least.at ? *blocked : least;
    } while (blocked->at != fast.at);
    *blocked = least;
}

static int dpari_proof_same(const dpar_action *action, const dpar_action *b)
{
    return action->kind == b->kind && action->stage == b->stage &&
           action->micro_batch == b->micro_batch;
}

static const char *dpari_transport_name(int32_t transport)
{
    switch (transport) { /* no table: its pointers would be data to relocate */
    case DPAR_TRANSPORT_BLOCKING: return "blocking";
    case DPAR_TRANSPORT_RANK: return "rank";
    case DPAR_TRANSPORT_DIRECTION: return "dir";
    case DPAR_TRANSPORT_PAIR: return "pair";
    case DPAR_TRANSPORT_EDGE: return "edge";
    default: return "eager";
    }
}

/* Describes the first two members of the cycle and counts the others. More would not fit into
 * dpar_why if the numbers are long. */
static void dpari_proof_say_circle(const dpari_proof *proof, dpari_proof_wait *blocked)
{
    const dpar_action *list = proof->s->action;
    int32_t start = blocked->at, count = 0;
    dpar_text t;
    dpari_text_why(&t, proof->why);
    dpar_text_put(&t, proof->link == NULL ? "endless: " : dpari_transport_name(proof->transport));
    dpar_text_put(&t, proof->link == NULL ? "" : ": ");
    do {
        if (count++ < 2) {
            dpar_text_put(&t, count > 1 ? "; " : "");
            dpari_proof_words(&t, "rank # at @ waits for ", blocked->rank, &list[blocked->at],
                              NULL);
            if (dpari_proof_same(&list[blocked->other], &blocked->needs)) {
                dpari_proof_words(&t, "@ of rank #", blocked->other_rank, &blocked->needs, NULL);
            } else {
                dpari_proof_words(&t, "@ that rank # has after @", blocked->other_rank,
                                  &blocked->needs, &list[blocked->other]);
            }
        }
        dpari_proof_follow(proof, blocked);
    } while (blocked->at != start);
    if (count > 2) {
        dpar_text_put(&t, "; and ");
        dpari_text_int(&t, count - 2);
        dpar_text_put(&t, " more");
    }
}

/* Runs all ranks as far as possible. Returns DPAR_E_STUCK if not all reach the end of their lists.
 */
static DPARI_COLD dpar_status dpari_proof_run(dpari_proof *proof, int64_t *stuck)
{
    int32_t r, through = 0;
    dpari_proof_wait k;
    for (r = proof->s->ranks - 1; r >= 0; r--) {
        dpari_proof_wake(proof, r);
    }
    while (proof->ready_count > 0) {
        r = proof->ready[--proof->ready_count];
        proof->lane[r].queued = 0;
        while (proof->lane[r].at < proof->lane[r].end && dpari_proof_step(proof, r)) {
        }
    }
    for (r = 0; r < proof->s->ranks; r++) {
        through += proof->lane[r].at == proof->lane[r].end;
    }
    /* If all lists have ended, each RECV has been done, too, because an F, B or I waits for it. */
    if (through == proof->s->ranks) {
        return DPAR_OK;
    }
    for (r = 0; r < proof->s->ranks && stuck != NULL; r++) {
        stuck[r] = dpari_proof_stuck(proof, r);
    }
    k.rank = 0;
    k.at = dpari_proof_stuck(proof, k.rank);
    while (k.at < 0) {
        k.rank++;
        k.at = dpari_proof_stuck(proof, k.rank);
    }
    if (proof->why != NULL) {
        dpari_proof_blocker(proof, &k);
        dpari_proof_circle(proof, &k);
        dpari_proof_say_circle(proof, &k);
    }
    return DPAR_E_STUCK;
}

/* ---- the check as a whole -------------------------------------------------------------------- */

/* Checks everything except the order of channels and deadlock. */
static dpar_status dpari_proof_lists(dpari_proof *proof)
{
    dpar_status st = dpari_proof_kinds(proof);
    int32_t r;
    if (st == DPAR_OK) {
        st = dpari_schedule_check_ranks(proof->s, proof->why);
    }
    for (r = 0; r < proof->s->ranks && st == DPAR_OK; r++) {
        st = dpari_proof_list(proof, r);
    }
    if (st == DPAR_OK) {
        st = dpari_proof_micros(proof);
    }
    return st == DPAR_OK ? dpari_proof_stages(proof) : st;
}

/* Proves the schedule without a transport. Not inlined, like dpari_proof_transport, so that the
 * frames of the two are not on the stack at the same time. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_proof_rules(const dpar_schedule *schedule,
                                                               int32_t flags, void *mem,
                                                               dpar_why *why)
{
    dpari_proof w;
    dpar_status st;
    dpari_proof_arrange(&w, schedule, 0, mem, why);
    st = dpari_proof_lists(&w);
    if (st == DPAR_OK && (flags & DPAR_CHECK_TRAINS) != 0 && (w.kinds & DPARI_SET_TRAINING) == 0) {
        st = dpari_wrong(why, "the schedule has no backward, which DPAR_CHECK_TRAINS requires");
    }
    if (st == DPAR_OK && (flags & DPAR_CHECK_TAGGED) == 0) {
        st = dpari_proof_channels(&w);
    }
    return st == DPAR_OK ? dpari_proof_run(&w, NULL) : st;
}

/* ---- transports ------------------------------------------------------------------------------ */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_transport_check(int32_t transport, int32_t capacity,
                                                            dpar_why *why)
{
    if (transport < 0 || transport >= DPAR_TRANSPORT_COUNT) {
        return dpari_wrong(why, "transport=%d; 0 to %d are allowed", transport,
                           (int32_t)DPAR_TRANSPORT_COUNT - 1);
    }
    if (transport == DPAR_TRANSPORT_EAGER && capacity < 1) {
        return dpari_wrong(why, "capacity=%d; an eager buffer needs 1 or more", capacity);
    }
    return DPAR_OK;
}

DPARI_INTERNAL int32_t dpari_transport_queue(int32_t transport, int32_t kind, int32_t peer)
{
    switch (transport) {
    case DPAR_TRANSPORT_DIRECTION: return dpari_message_way(kind);
    case DPAR_TRANSPORT_PAIR: return 2 * peer;
    case DPAR_TRANSPORT_EDGE:
    case DPAR_TRANSPORT_EAGER: return 2 * peer + dpari_action_is_send(kind);
    default: return 0;
    }
}

/* Links the messages of a rank into its queues and enters its sends in their cells. All keys are -1
 * before and after the call. */
static void dpari_proof_queue(dpari_proof *proof, int32_t r)
{
    int32_t i, end = (int32_t)proof->s->begin[r + 1];
    for (i = (int32_t)proof->s->begin[r]; i < end; i++) {
        const dpar_action *action = &proof->s->action[i];
        int32_t sends = dpari_proof_is(action->kind, DPARI_SET_SENDS), *last;
        if (!dpari_proof_is(action->kind, DPARI_SET_MESSAGES)) {
            continue;
        }
        last = &proof->key[dpari_transport_queue(proof->transport, action->kind, action->peer)];
        proof->link[i].next = -1;
        proof->link[i].first = *last < 0 ? i : proof->link[*last].first;
        proof->link[i].head = proof->transport == DPAR_TRANSPORT_EAGER && !sends ? 0 : i;
        if (*last >= 0) {
            proof->link[*last].next = i;
        }
        *last = i;
        if (sends) {
            dpari_proof_at(proof, action->stage, action->micro_batch)
                ->send[dpari_message_way(action->kind)] = i;
        }
    }
    proof->key[0] = proof->key[1] = -1;
    dpari_proof_forget(proof, r, -1);
}

/* Links the messages of all queues and connects the two ends of each message. */
static void dpari_proof_connect(dpari_proof *proof)
{
    int32_t r, i, count = (int32_t)proof->s->begin[proof->s->ranks];
    for (r = 0; r < 2 * proof->s->ranks; r++) {
        proof->key[r] = -1;
    }
    for (r = 0; r < proof->s->ranks; r++) {
        dpari_proof_queue(proof, r);
    }
    for (i = 0; i < count; i++) {
        const dpar_action *action = &proof->s->action[i];
        if (dpari_proof_is(action->kind, DPARI_SET_RECVS)) {
            int32_t send =
                dpari_proof_mate_cell(proof, action)->send[dpari_message_way(action->kind)];
            proof->link[i].mate = send;
            proof->link[send].mate = i;
        }
    }
}

/* Checks that a schedule without messages needs none. */
static dpar_status dpari_proof_lowered(const dpari_proof *proof)
{
    int32_t k;
    for (k = 0; k < proof->s->stages && (proof->kinds & DPARI_SET_MESSAGES) == 0; k++) {
        int32_t next = dpari_schedule_behind(proof->s, k);
        if (next >= 0 && proof->s->rank_of[k] != proof->s->rank_of[next]) {
            return dpari_wrong(
                proof->why,
                "stage %d on rank %d feeds stage %d on rank %d, but the schedule has no messages; "
                "call dpar_schedule_lower first",
                k, (int32_t)proof->s->rank_of[k], next, (int32_t)proof->s->rank_of[next]);
        }
    }
    return DPAR_OK;
}

/* Runs the schedule, which was proved before, on the transport. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_proof_transport(
    const dpar_schedule *schedule, const dpar_schedule_check_desc *how, void *mem, dpar_why *why)
{
    dpari_proof w;
    dpar_status st;
    dpari_proof_arrange(&w, schedule, 1, mem, why);
    (void)dpari_proof_kinds(&w);
    st = dpari_proof_lowered(&w);
    if (st != DPAR_OK) {
        return st;
    }
    w.transport = how->transport;
    w.room = how->capacity;
    dpari_proof_connect(&w);
    return dpari_proof_run(&w, how->stuck);
}

/* Checks the arguments: the descriptor, the shape of the schedule and the memory. Not inlined, so
 * that its frame is gone before the proof. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status
dpari_proof_arguments(const dpar_schedule *schedule, const dpar_schedule_check_desc *how,
                      int64_t bytes, dpar_why *why)
{
    int64_t needed;
    dpar_status st =
        how != NULL ? dpari_transport_check(how->transport, how->capacity, why) : DPAR_OK;
    if (st == DPAR_OK) {
        st = dpari_proof_shape(schedule, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (dpari_proof_cells(schedule) == 0) {
        return dpari_wrong(
            why, "%d stages per chain and %d micro-batches need more than %ld actions",
            schedule->chain, schedule->micro_batches, schedule->begin[schedule->ranks]);
    }
    needed = dpari_schedule_check_bytes(schedule, how);
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "the check of %ld actions needs %ld bytes, got %ld",
                         schedule->begin[schedule->ranks], needed, bytes);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_check(const dpar_schedule *schedule,
                                         const dpar_schedule_check_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    const int run = how != NULL && how->transport != DPAR_TRANSPORT_NONE;
    int32_t flags = how != NULL ? how->flags : 0;
    dpar_status st = dpari_proof_arguments(schedule, how, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (run) { /* the run itself shows whether the order of a channel matters */
        flags |= DPAR_CHECK_TAGGED;
    }
    st = dpari_proof_rules(schedule, flags, mem, why);
    if (st != DPAR_OK || !run) {
        return st;
    }
    return dpari_proof_transport(schedule, how, mem, why);
}

/* ==== schedule/slots.c ==== */

/* Assigns buffers by reading each rank's list: a slot is taken when a value is made and freed after
 * its last use. The slot that was freed last is taken first. A new slot is created only if none is
 * free, so that a rank never has more slots than values at one time. */

/* The slots of a stage and a micro-batch. Index 0 is for the forward, 1 for the backward. */
typedef struct dpari_slots_cell {
    uint16_t receive[2], send[2], activation, weight;
} dpari_slots_cell;

/* The slots of a rank and kind. `free` is a stack of the free ones. */
typedef struct dpari_slots_pool {
    uint16_t *free;
    int32_t free_count;
    int32_t count; /* slots created so far */
    int full;      /* 1 if more than 65535 slots were needed */
} dpari_slots_pool;

typedef struct dpari_slots {
    const dpar_schedule *s;
    dpari_slots_cell *cell; /* [chain][micros] */
    dpari_slots_pool receive, activation, send, weight;
    int messages;      /* 1 if the list has messages */
    int32_t in_flight; /* the number of later sends after which a send's slot is free */
    int64_t sends;     /* sends of the rank so far */
    int64_t at;        /* index after the last send whose slot was freed */
} dpari_slots;

static uint16_t dpari_slots_take(dpari_slots_pool *p)
{
    if (p->free_count > 0) {
        return p->free[--p->free_count];
    }
    if (p->count == DPAR_SLOT_NONE) {
        p->full = 1;
        return DPAR_SLOT_NONE;
    }
    return (uint16_t)p->count++;
}

static void dpari_slots_free(dpari_slots_pool *p, uint16_t slot)
{
    if (slot != DPAR_SLOT_NONE) {
        p->free[p->free_count++] = slot;
    }
}

static dpari_slots_cell *dpari_slots_at(const dpari_slots *slots, const dpar_action *action)
{
    return &slots->cell[(int64_t)(action->stage % slots->s->chain) * slots->s->micro_batches +
                        action->micro_batch];
}

/* Returns the capacity of a pool's stack: a rank has no more slots than actions. */
DPARI_STATIC_NOINLINE int64_t dpari_slots_room(const dpar_schedule *schedule)
{
    return dpari_least(dpari_schedule_longest(schedule), DPAR_SLOT_NONE);
}

DPARI_API int64_t dpari_schedule_slots_bytes(const dpar_schedule *schedule)
{
    int64_t check = dpari_schedule_check_bytes(schedule, NULL), cells;
    if (check < 0) {
        return -1;
    }
    cells = dpari_least((int64_t)schedule->chain * schedule->micro_batches,
                        schedule->begin[schedule->ranks]);
    return dpari_most(check, dpari_whole_words(cells * (int64_t)sizeof(dpari_slots_cell) +
                                               8 * dpari_slots_room(schedule)));
}

static void dpari_slots_init(dpari_slots *slots, const dpar_schedule *schedule, int32_t in_flight,
                             void *mem)
{
    int64_t i;
    dpari_zero(slots, sizeof(*slots));
    slots->s = schedule;
    slots->cell = (dpari_slots_cell *)mem;
    slots->receive.free =
        (uint16_t *)(void *)(slots->cell + (int64_t)schedule->chain * schedule->micro_batches);
    slots->activation.free = slots->receive.free + dpari_slots_room(schedule);
    slots->send.free = slots->activation.free + dpari_slots_room(schedule);
    slots->weight.free = slots->send.free + dpari_slots_room(schedule);
    slots->in_flight = in_flight;
    for (i = 0; i < schedule->begin[schedule->ranks]; i++) {
        slots->messages |= dpari_action_is_message(schedule->action[i].kind);
    }
}

/* Counts a send that was posted, and frees the slot of the send that is `in_flight` sends before
 * it. */
static void dpari_slots_sent(dpari_slots *slots)
{
    const dpar_action *action;
    if (++slots->sends <= slots->in_flight) {
        return;
    }
    do {
        action = &slots->s->action[slots->at++];
    } while (!dpari_action_is_send(action->kind));
    dpari_slots_free(&slots->send,
                     dpari_slots_at(slots, action)->send[dpari_message_way(action->kind)]);
}

/* Assigns the slots of an F, B or I: that of its received input, which becomes free, and one for
 * its result if that is sent. */
static void dpari_slots_pass(dpari_slots *slots, const dpar_action *action, dpar_action_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(slots, action);
    int way = action->kind != DPAR_ACTION_FORWARD;
    int32_t across = dpar_schedule_partner(slots->s, action->kind, action->stage);
    out->receive = cell->receive[way];
    dpari_slots_free(&slots->receive, out->receive);
    if (slots->messages && across >= 0 &&
        slots->s->rank_of[across] != slots->s->rank_of[action->stage]) {
        out->send = cell->send[way] = dpari_slots_take(&slots->send);
    }
}

static void dpari_slots_message(dpari_slots *slots, const dpar_action *action,
                                dpar_action_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(slots, action);
    const int way = dpari_message_way(action->kind);
    if (dpari_action_is_receive(action->kind)) {
        out->receive = cell->receive[way] = dpari_slots_take(&slots->receive);
    } else {
        out->send = cell->send[way];
        dpari_slots_sent(slots);
    }
}

DPARI_STATIC_NOINLINE void dpari_slots_action(dpari_slots *slots, const dpar_action *action,
                                              dpar_action_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(slots, action);
    const int takes = action->kind == DPAR_ACTION_FORWARD || action->kind == DPAR_ACTION_RELOAD;
    const int frees = action->kind == DPAR_ACTION_BACKWARD || action->kind == DPAR_ACTION_WEIGHT ||
                      action->kind == DPAR_ACTION_OFFLOAD;
    if (dpari_action_is_message(action->kind)) {
        dpari_slots_message(slots, action, out);
        return;
    }
    if (takes) {
        cell->activation = dpari_slots_take(&slots->activation);
    }
    out->activation = cell->activation;
    if (frees) {
        dpari_slots_free(&slots->activation, cell->activation);
    }
    if (action->kind == DPAR_ACTION_INPUT) {
        cell->weight = dpari_slots_take(&slots->weight);
    }
    if (action->kind == DPAR_ACTION_INPUT || action->kind == DPAR_ACTION_WEIGHT) {
        out->weight = cell->weight;
    }
    if (action->kind == DPAR_ACTION_WEIGHT) {
        dpari_slots_free(&slots->weight, cell->weight);
    }
    if (action->kind == DPAR_ACTION_FORWARD || dpari_action_is_gradient(action->kind)) {
        dpari_slots_pass(slots, action, out);
    }
}

static void dpari_slots_restart(dpari_slots_pool *p)
{
    p->free_count = p->count = 0;
}

/* Assigns the slots of rank r. `slots` is NULL or the array for all actions of the schedule. */
static void dpari_slots_rank(dpari_slots *w, int32_t r, dpar_action_slots *slots,
                             dpar_slot_counts *count)
{
    int64_t i;
    dpari_slots_restart(&w->receive);
    dpari_slots_restart(&w->activation);
    dpari_slots_restart(&w->send);
    dpari_slots_restart(&w->weight);
    w->sends = 0;
    w->at = w->s->begin[r];
    for (i = w->s->begin[r]; i < w->s->begin[r + 1]; i++) {
        dpar_action_slots out;
        out.receive = out.activation = out.send = out.weight = DPAR_SLOT_NONE;
        if (dpari_action_has_micro(w->s->action[i].kind)) {
            dpari_slots_action(w, &w->s->action[i], &out);
        }
        if (slots != NULL) {
            slots[i] = out;
        }
    }
    count->receive = w->receive.count;
    count->activation = w->activation.count;
    count->send = w->send.count;
    count->weight = w->weight.count;
}

/* Assigns the slots of all ranks. Returns the first rank that needs too many slots, or -1. */
static DPARI_COLD int32_t dpari_slots_walk(dpari_slots *w, dpar_action_slots *slots,
                                           dpar_slot_counts *counts)
{
    int64_t i, cells = (int64_t)w->s->chain * w->s->micro_batches;
    int32_t r;
    for (i = 0; i < cells; i++) {
        w->cell[i].receive[0] = DPAR_SLOT_NONE; /* stays if there are no messages */
        w->cell[i].receive[1] = DPAR_SLOT_NONE;
    }
    for (r = 0; r < w->s->ranks; r++) {
        dpar_slot_counts count;
        dpari_slots_rank(w, r, slots, &count);
        /* The other pools cannot be full before these: a micro-batch waits for one stage at a time,
         * and a W holds an activation, too. */
        if (w->activation.full || w->send.full) {
            return r;
        }
        if (counts != NULL) {
            counts[r] = count;
        }
    }
    return -1;
}

/* Assigns the slots of a schedule that was checked. Not inlined, so that its frame and those of the
 * check are not on the stack at the same time. */
DPARI_STATIC_NOINLINE dpar_status dpari_slots_assign(const dpar_schedule *schedule,
                                                     const dpar_schedule_slots_desc *how, void *mem,
                                                     dpar_why *why)
{
    dpari_slots w;
    int32_t full;
    dpari_slots_init(&w, schedule, how->in_flight, mem);
    full = dpari_slots_walk(&w, NULL, NULL); /* first without output, in case it fails */
    if (full >= 0) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d needs more than 65535 slots of a kind", full);
    }
    (void)dpari_slots_walk(&w, how->slots, how->counts);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *schedule,
                                         const dpar_schedule_slots_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    dpar_schedule_check_desc tagged;
    int64_t needed;
    dpar_status st;
    if (how->in_flight < 0) {
        return dpari_wrong(why, "in_flight=%d; 0 or more are allowed", how->in_flight);
    }
    needed = dpari_schedule_slots_bytes(schedule);
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why,
                         "assigning slots to %ld actions needs %ld bytes, got %ld",
                         schedule->begin[schedule->ranks], needed, bytes);
    }
    dpari_zero(&tagged, sizeof(tagged));
    tagged.flags = DPAR_CHECK_TAGGED;
    st = dpar_schedule_check(schedule, &tagged, mem, bytes, why);
    return st == DPAR_OK ? dpari_slots_assign(schedule, how, mem, why) : st;
}

/* ==== schedule/simulate.c ==== */

/* Simulates schedules. One pass over the lists enters each action in a table by stage, micro-batch
 * and kind, and adds up memory, which depends only on the order. The run then advances each rank as
 * far as its inputs allow. A rank that waits is resumed when its input arrives. Each action is
 * visited a bounded number of times, so that the cost does not depend on the lengths of times. */

/* Rows of the table that finds an action by its kind, stage and micro-batch. Add 1 to one of the
 * first three for the backward direction. */
enum {
    DPARI_AT_WORK = 0,
    DPARI_AT_SEND = 2,
    DPARI_AT_RECV = 4,
    DPARI_AT_WEIGHT = 6,
    DPARI_AT_ROWS
};

/* A stage with the values that the run needs. Side 0 is the stage before it, side 1 the stage after
 * it. Forward work gets its input from side 0 and passes its output to side 1, backward work the
 * other way round. */
typedef struct dpari_sim_stage {
    int64_t cost[DPAR_ACTION_COUNT];
    int64_t overlap;     /* time of a joined pair; 0 selects the sum of both times */
    int64_t hold[3];     /* bytes that F, I and W add */
    int64_t edge[2];     /* time of a message on each side */
    int64_t turn[2];     /* the part of `edge` during which the message occupies a shared wire */
    int64_t delay[2];    /* time from the end of the action `source` to the arrival of the input */
    int64_t source[2];   /* offset in the table of the actions that bring the input */
    int32_t stage_at[2]; /* the stage on that side, or -1 */
    int32_t rank_at[2];  /* its rank, or -1 if that is this rank */
    int32_t link[2];     /* the wire to that side, if wires are shared */
} dpari_sim_stage;

/* A message in its queue. With EAGER a SEND is in a queue of all SENDs to the same rank, and
 * `before` of its RECV is the SEND whose place in the buffer this SEND takes, or 0. */
typedef struct dpari_sim_link {
    uint32_t before, behind; /* 1 + the action, or 0 */
} dpari_sim_link;

/* A queue of a rank while it is built. */
typedef struct dpari_sim_line {
    uint32_t last;  /* 1 + the last action, or 0 */
    uint32_t taken; /* EAGER: 1 + the SEND whose place the next SEND takes if the buffer is full */
    int32_t count;  /* EAGER: SENDs so far */
} dpari_sim_line;

/* Modes of sending that follow from a transport, in addition to DPAR_SEND_MODE_x. */
enum { DPARI_SENDS_QUEUED = DPAR_SEND_MODE_COUNT, DPARI_SENDS_EAGER };

typedef struct dpari_sim_rank {
    int64_t at, end;                   /* the next action, and one past the last */
    int64_t free;                      /* when the actions before the next one have ended */
    int64_t waits;                     /* 1 + the action that the rank waits for, or 0 */
    int64_t dependency, communication; /* idle time since the last work */
    int64_t held;                      /* bytes */
    int64_t live;                      /* activations */
    dpar_rank_timing out;
} dpari_sim_rank;

/* The state of a simulation. It is at the start of the working memory, and its arrays follow it. */
typedef struct dpari_sim {
    dpar_schedule s;
    dpari_sim_stage *stage;
    dpari_sim_rank *rank;
    /* [actions], when each action ends; -1 if unknown, -2 - t for a message reached at t. */
    int64_t *end;
    /* [actions], when the output arrives. The same array as `end` unless links are shared. */
    int64_t *arrive;
    int64_t *wire;   /* when each shared wire is free */
    uint32_t *where; /* the table: 1 + the index of the action, or 0 */
    uint32_t *cause; /* [actions], 1 + the action whose end let this one start; 0 is the action
                        before it on its rank */
    int32_t *stack;  /* [tops], ranks that can continue */
    int32_t *scratch;
    dpari_sim_link *link; /* [actions], if messages wait in queues or buffers */
    dpari_sim_line *line; /* [2 ranks] */
    uint32_t moved; /* 1 + the first of a list of transferred messages whose successors may be next,
                       or 0 */
    int64_t cells;  /* entries in a row of the table */
    int64_t total;  /* the sum of all times, which no time of the run can exceed */
    int64_t last;   /* the last action of the critical path, or -1 */
    int32_t tops, lowered, sends, links, transport, room;
} dpari_sim;

/* ---- memory ---------------------------------------------------------------------------------- */

/* True if the schedule has a shape that can be simulated. */
static int dpari_sim_fits(const dpar_schedule *schedule)
{
    return schedule->ranks >= 1 && schedule->ranks <= DPAR_MAX_STAGES && schedule->stages >= 1 &&
           schedule->stages <= DPAR_MAX_STAGES && schedule->micro_batches >= 0 &&
           schedule->micro_batches <= DPAR_MAX_MICRO_BATCHES && schedule->chain >= 1 &&
           schedule->stages % schedule->chain == 0 && schedule->slices >= 1 &&
           schedule->micro_batches % schedule->slices == 0 &&
           schedule->begin[schedule->ranks] >= 0 &&
           schedule->begin[schedule->ranks] <= (int64_t)UINT32_MAX - 1;
}

/* Takes the next piece of the memory, whose size is rounded up to 8 bytes. */
DPARI_STATIC_NOINLINE void *dpari_sim_piece(char *mem, int64_t *used, int64_t bytes)
{
    void *at = mem == NULL ? NULL : mem + *used;
    *used += dpari_whole_words(bytes);
    return at;
}

/* Divides mem into the struct and its arrays, and returns their bytes. If mem is NULL, only counts
 * the bytes. */
static DPARI_COLD int64_t dpari_sim_arrange(dpari_sim *sim, const dpar_schedule *schedule,
                                            const dpar_schedule_times *times, void *mem)
{
    char *at = (char *)mem;
    const int64_t n = schedule->begin[schedule->ranks], ranks = schedule->ranks,
                  stages = schedule->stages;
    int64_t used = 0;
    (void)dpari_sim_piece(at, &used, (int64_t)sizeof(*sim));
    sim->s = *schedule;
    sim->links = times->links;
    sim->transport = times->transport;
    sim->room = times->capacity;
    sim->link = NULL;
    sim->line = NULL;
    sim->moved = 0;
    sim->cells = stages * schedule->micro_batches;
    sim->stage =
        (dpari_sim_stage *)dpari_sim_piece(at, &used, stages * (int64_t)sizeof(*sim->stage));
    sim->rank = (dpari_sim_rank *)dpari_sim_piece(at, &used, ranks * (int64_t)sizeof(*sim->rank));
    sim->end = (int64_t *)dpari_sim_piece(at, &used, 8 * n);
    sim->arrive = sim->end;
    sim->wire = NULL;
    sim->scratch = NULL;
    if (sim->links != DPAR_CONTENTION_NONE) {
        sim->arrive = (int64_t *)dpari_sim_piece(at, &used, 8 * n);
        sim->wire = (int64_t *)dpari_sim_piece(at, &used, 8 * (ranks + 2 * stages));
        sim->scratch = (int32_t *)dpari_sim_piece(at, &used, 4 * (2 * ranks + stages));
    }
    if (sim->transport >= DPAR_TRANSPORT_RANK) { /* messages wait for other messages */
        sim->link = (dpari_sim_link *)dpari_sim_piece(at, &used, n * (int64_t)sizeof(*sim->link));
        sim->line =
            (dpari_sim_line *)dpari_sim_piece(at, &used, 2 * ranks * (int64_t)sizeof(*sim->line));
    }
    sim->where = (uint32_t *)dpari_sim_piece(at, &used, 4 * DPARI_AT_ROWS * sim->cells);
    sim->cause = (uint32_t *)dpari_sim_piece(at, &used, 4 * n);
    sim->stack = (int32_t *)dpari_sim_piece(at, &used, 4 * ranks);
    return used;
}

DPARI_INTERNAL DPARI_COLD int64_t
dpari_schedule_simulate_bytes(const dpar_schedule *schedule, const dpar_schedule_simulate_desc *how)
{
    dpari_sim m;
    return dpari_sim_fits(schedule) ? dpari_sim_arrange(&m, schedule, how->times, NULL) : -1;
}

/* ---- times and bytes ------------------------------------------------------------------------- */

/* Adds a number of 0 or more to *sum. Returns 0 if the sum would exceed INT64_MAX. */
static int dpari_sum(int64_t *sum, int64_t more)
{
    if (more > INT64_MAX - *sum) {
        return 0;
    }
    *sum += more;
    return 1;
}

/* Computes part x 10^digits / whole, rounded down, and the remainder, by long division in 64 bits.
 * Returns -1 if the result exceeds INT64_MAX. part >= 0, whole > 0. */
DPARI_COLD DPARI_STATIC_NOINLINE int64_t dpari_sim_scale(int64_t part, int64_t whole, int digits,
                                                         int64_t *left)
{
    int64_t value = part / whole;
    part %= whole;
    for (; digits > 0; digits--) {
        int64_t sum = 0, digit = 0;
        int n;
        for (n = 0; n < 10; n++) { /* sum += part, modulo whole */
            int carry = sum >= whole - part;
            sum = carry ? sum - (whole - part) : sum + part;
            digit += carry;
        }
        if (value > (INT64_MAX - digit) / 10) {
            return -1;
        }
        value = 10 * value + digit;
        part = sum;
    }
    *left = part;
    return value;
}

/* Computes the time of a message between `stage` and the next stage, and the part of it that
 * occupies a wire. */
static dpar_status dpari_sim_edge(const dpar_schedule_times *times, int32_t stage, int64_t *edge,
                                  int64_t *turn, dpar_why *why)
{
    int64_t latency = dpari_each_at(&times->latency, stage),
            bytes = dpari_each_at(&times->bytes, stage);
    int64_t bandwidth = dpari_each_at(&times->bandwidth, stage), left = 0;
    if (latency < 0 || bytes < 0 || bandwidth < 0) {
        return dpari_wrong(why,
                           "stage %d: latency=%ld, bytes=%ld, bandwidth=%ld; 0 or more are allowed",
                           stage, latency, bytes, bandwidth);
    }
    *edge = latency;
    *turn = bandwidth == 0 ? 0 : dpari_sim_scale(bytes, bandwidth, 9, &left);
    if (*turn < 0 || !dpari_sum(turn, left > 0) || !dpari_sum(edge, *turn)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "stage %d: a latency of %ld and %ld bytes at bandwidth %ld exceed INT64_MAX", stage,
            latency, bytes, bandwidth);
    }
    return DPAR_OK;
}

/* Sets the values of one side of a stage. */
static dpar_status dpari_sim_side(dpari_sim *sim, const dpar_schedule_times *times, int32_t stage,
                                  int side, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    dpari_sim_stage *st = &sim->stage[stage];
    int32_t beside =
        side ? dpari_schedule_behind(schedule, stage) : dpari_schedule_before(schedule, stage);
    dpar_status status;
    st->stage_at[side] = beside;
    st->rank_at[side] = beside < 0 || schedule->rank_of[beside] == schedule->rank_of[stage]
                            ? -1
                            : (int32_t)schedule->rank_of[beside];
    st->edge[side] = st->turn[side] = st->delay[side] = st->source[side] = 0;
    st->link[side] = schedule->rank_of[stage];
    if (st->rank_at[side] < 0) {
        return DPAR_OK;
    }
    st->source[side] =
        sim->lowered
            ? (DPARI_AT_RECV + side) * sim->cells + (int64_t)stage * schedule->micro_batches
            : (DPARI_AT_WORK + side) * sim->cells + (int64_t)beside * schedule->micro_batches;
    status = dpari_sim_edge(times, side ? stage : beside, &st->edge[side], &st->turn[side], why);
    st->delay[side] = sim->lowered || sim->links != DPAR_CONTENTION_NONE ? 0 : st->edge[side];
    return status;
}

/* Sets the times of all kinds of actions on a stage. */
static dpar_status dpari_sim_costs(dpari_sim_stage *st, const dpar_schedule_times *times,
                                   int32_t stage, dpar_why *why)
{
    int kind;
    for (kind = 0; kind < DPAR_ACTION_COUNT; kind++) {
        const dpar_stage_values *each = dpari_times_of(times, kind);
        st->cost[kind] = each != NULL ? dpari_each_at(each, stage) : 0;
        if (st->cost[kind] < 0) {
            return dpari_wrong(why, "stage %d: the time of %s is %ld; 0 or more are allowed", stage,
                               kind == DPAR_ACTION_IDLE ? "overlap" : dpari_action_name(kind),
                               st->cost[kind]);
        }
    }
    st->overlap = st->cost[DPAR_ACTION_IDLE];
    st->cost[DPAR_ACTION_IDLE] = 0;
    if (st->cost[DPAR_ACTION_BACKWARD] == 0) {
        st->cost[DPAR_ACTION_BACKWARD] = st->cost[DPAR_ACTION_INPUT];
        if (!dpari_sum(&st->cost[DPAR_ACTION_BACKWARD], st->cost[DPAR_ACTION_WEIGHT])) {
            return dpari_say(DPAR_E_RANGE, why,
                             "stage %d: the times of I and W, %ld + %ld, exceed INT64_MAX", stage,
                             st->cost[DPAR_ACTION_INPUT], st->cost[DPAR_ACTION_WEIGHT]);
        }
    }
    return DPAR_OK;
}

static int dpari_sim_capped(const dpar_schedule_times *times)
{
    return times->cap.each != NULL || times->cap.all != 0;
}

/* Sets the bytes that F, I and W add. If there is a cap but no bytes, activations are counted
 * instead. */
static void dpari_sim_holding(dpari_sim_stage *st, const dpar_schedule_times *times, int32_t stage)
{
    int count =
        dpari_sim_capped(times) && times->hold_forward.each == NULL && times->hold_forward.all == 0;
    st->hold[0] = count ? 1 : dpari_each_at(&times->hold_forward, stage);
    st->hold[1] = count ? 0 : dpari_each_at(&times->hold_input, stage);
    st->hold[2] = count ? -1 : dpari_each_at(&times->hold_weight, stage);
}

/* Sets the values of all stages, and adds hold_always to the bytes that each rank holds. */
static dpar_status dpari_sim_stages(dpari_sim *sim, const dpar_schedule_times *times, dpar_why *why)
{
    int32_t i;
    int side;
    for (i = 0; i < sim->s.stages; i++) {
        dpari_sim_stage *st = &sim->stage[i];
        int64_t always = dpari_each_at(&times->hold_always, i);
        dpar_status status = dpari_sim_costs(st, times, i, why);
        for (side = 0; side < 2 && status == DPAR_OK; side++) {
            status = dpari_sim_side(sim, times, i, side, why);
        }
        if (status != DPAR_OK) {
            return status;
        }
        dpari_sim_holding(st, times, i);
        if (always < 0) {
            return dpari_wrong(why, "stage %d: hold_always is %ld; 0 or more are allowed", i,
                               always);
        }
        if (!dpari_sum(&sim->rank[sim->s.rank_of[i]].held, always)) {
            return dpari_say(DPAR_E_RANGE, why,
                             "rank %d: hold_always exceeds INT64_MAX at stage %d",
                             (int32_t)sim->s.rank_of[i], i);
        }
    }
    return DPAR_OK;
}

/* Numbers the shared wires, one for each ordered pair of ranks. The number is 2 x stage + side, for
 * the sender's first stage and side that has the receiver on the other end. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_wires(dpari_sim *sim)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t *head = sim->scratch, *mark = head + schedule->ranks, *next = mark + schedule->ranks;
    int32_t r, i, side;
    dpari_zero(sim->wire, 8 * ((size_t)schedule->ranks + 2 * (size_t)schedule->stages));
    if (sim->links == DPAR_CONTENTION_RANK) {
        return;
    }
    for (r = 0; r < schedule->ranks; r++) {
        head[r] = mark[r] = -1;
    }
    for (i = schedule->stages - 1; i >= 0; i--) {
        next[i] = head[schedule->rank_of[i]];
        head[schedule->rank_of[i]] = i;
    }
    for (r = 0; r < schedule->ranks; r++) {
        for (i = head[r]; i >= 0; i = next[i]) {
            for (side = 0; side < 2; side++) {
                int32_t across = sim->stage[i].rank_at[side];
                if (across >= 0 && (mark[across] < 0 || schedule->rank_of[mark[across] / 2] != r)) {
                    mark[across] = 2 * i + side;
                }
                sim->stage[i].link[side] = across < 0 ? 0 : mark[across];
            }
        }
    }
}

/* ---- the pass over the lists ------------------------------------------------------------------
 *
 * The pass enters all actions in the table, checks the order of each rank's own actions, and adds
 * up memory. */

/* Returns the entry of the table for a row, stage and micro-batch. */
static uint32_t *dpari_sim_place(const dpari_sim *sim, int row, int32_t stage, int32_t micro)
{
    return &sim->where[row * sim->cells + (int64_t)stage * sim->s.micro_batches + micro];
}

/* Returns the direction of a kind: 0 forward, 1 backward, or -1 if it does not wait for another
 * stage. */
static int dpari_sim_way(int kind)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_SEND_F:
    case DPAR_ACTION_RECV_F: return 0;
    case DPAR_ACTION_BACKWARD:
    case DPAR_ACTION_INPUT:
    case DPAR_ACTION_SEND_B:
    case DPAR_ACTION_RECV_B: return 1;
    default: return -1;
    }
}

/* Returns the side of the stage on which a message's other end is. */
static int dpari_sim_message_side(int kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_RECV_B;
}

/* Returns the row of a kind in the table, or -1 if such actions are not entered. */
static int dpari_sim_row(int kind)
{
    const int way = dpari_sim_way(kind);
    if (way < 0) {
        return kind == DPAR_ACTION_WEIGHT ? DPARI_AT_WEIGHT : -1;
    }
    if (dpari_action_is_message(kind)) {
        return (dpari_action_is_send(kind) ? DPARI_AT_SEND : DPARI_AT_RECV) + way;
    }
    return DPARI_AT_WORK + way;
}

/* Begins a message with an action: "rank 2: 2B1". */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_name(dpar_why *why, int32_t rank,
                                                     const dpar_action *action, dpar_text *text)
{
    dpari_text_why(text, why);
    dpari_text_say(text, "rank %d: %d%s", rank, (int32_t)action->stage,
                   dpari_action_name(action->kind));
    if (dpari_action_has_micro(action->kind)) {
        dpari_text_int(text, action->micro_batch);
    }
}

/* Writes a message about an action: "rank 2: 2B1 is listed twice". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_wrong(dpar_why *why, int32_t rank,
                                                             const dpar_action *action,
                                                             const char *what)
{
    dpar_text t;
    if (why != NULL) {
        dpari_sim_name(why, rank, action, &t);
        dpar_text_put(&t, what);
    }
    return DPAR_E_ARG;
}

/* Writes a message about an action and one that it needs, given by kind, stage and micro-batch:
 * "rank 2: 2B1 comes before 2F1 or without it". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_say(dpar_why *why, int32_t rank,
                                                           const dpar_action *action,
                                                           const char *what, int kind,
                                                           int32_t stage, int32_t micro)
{
    dpar_text t;
    if (why != NULL) {
        const dpar_action other = dpari_action_of(kind, stage, micro);
        dpari_sim_name(why, rank, action, &t);
        dpar_text_put(&t, what);
        dpar_action_write(&other, &t);
        dpar_text_put(&t, " or without it");
    }
    return DPAR_E_ARG;
}

/* Checks that the actions on the same rank that action i needs are before it in the list. The
 * message names the first one that is not. */
static dpar_status dpari_sim_needs(const dpari_sim *sim, int32_t rank, int64_t i, dpar_why *why)
{
    static const char before[] = " comes before ";
    const dpar_action *action = &sim->s.action[i];
    const dpari_sim_stage *st = &sim->stage[action->stage];
    const int32_t k = action->micro_batch, slices = sim->s.slices;
    const int way = dpari_sim_way(action->kind);
    const int work = way ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD;
    if (dpari_action_is_message(action->kind)) {
        if (st->rank_at[dpari_sim_message_side(action->kind)] < 0) {
            return dpari_sim_wrong(why, rank, action, " has no partner on another rank");
        }
        if (dpari_action_is_send(action->kind) &&
            !*dpari_sim_place(sim, DPARI_AT_WORK + way, action->stage, k)) {
            return dpari_sim_say(why, rank, action, before, work, action->stage, k);
        }
        return DPAR_OK;
    }
    if (action->kind == DPAR_ACTION_WEIGHT) {
        uint32_t at = *dpari_sim_place(sim, DPARI_AT_WORK + 1, action->stage, k);
        if (at == 0 || sim->s.action[at - 1].kind != DPAR_ACTION_INPUT) {
            return dpari_sim_say(why, rank, action, before, DPAR_ACTION_INPUT, action->stage, k);
        }
        return DPAR_OK;
    }
    if (action->kind != DPAR_ACTION_FORWARD) {
        /* backward, RECOMPUTE, OFFLOAD and RELOAD need a forward that is not in their own pair */
        uint32_t at = *dpari_sim_place(sim, DPARI_AT_WORK, action->stage, k);
        if (at == 0 || ((int64_t)at == i && sim->s.action[i - 1].joined)) {
            return dpari_sim_say(why, rank, action, before, DPAR_ACTION_FORWARD, action->stage, k);
        }
    }
    if (way < 0) {
        return DPAR_OK;
    }
    if (slices > 1) {
        /* a forward needs the slice before it, a backward the one after it, if it is of the same
         * micro-batch */
        const int32_t next = way ? k + 1 : k - 1;
        const int32_t later = way ? next : k;
        if (later % slices != 0 &&
            !*dpari_sim_place(sim, DPARI_AT_WORK + way, action->stage, next)) {
            return dpari_sim_say(why, rank, action, before, work, action->stage, next);
        }
    }
    if (st->rank_at[way] >= 0 && sim->lowered &&
        !*dpari_sim_place(sim, DPARI_AT_RECV + way, action->stage, k)) {
        return dpari_sim_say(why, rank, action, before,
                             way ? DPAR_ACTION_RECV_B : DPAR_ACTION_RECV_F, action->stage, k);
    }
    if (st->stage_at[way] >= 0 && st->rank_at[way] < 0 &&
        !*dpari_sim_place(sim, DPARI_AT_WORK + way, st->stage_at[way], k)) {
        return dpari_sim_say(why, rank, action, before, work, st->stage_at[way], k);
    }
    return DPAR_OK;
}

/* Adds to the bytes that a rank holds. Returns 0 if the sum would not fit into an int64_t. */
static int dpari_sim_hold(dpari_sim_rank *q, int64_t more)
{
    if (more > 0 ? q->held > INT64_MAX - more : q->held < INT64_MIN - more) {
        return 0;
    }
    q->held += more;
    q->out.peak_bytes = dpari_most(q->out.peak_bytes, q->held);
    return 1;
}

/* Updates the memory of a rank for an action. Returns 0 if it overflows. A rank runs one action
 * after another, so that its memory depends only on the order. In a joined pair the forward is
 * first in the list: it adds its bytes before the backward frees any. */
static int dpari_sim_memory(dpari_sim_rank *q, const dpari_sim_stage *st, int kind)
{
    int64_t more = 0;
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_RELOAD:
        more = st->hold[0];
        q->live++;
        break;
    case DPAR_ACTION_OFFLOAD:
        if (st->hold[0] == INT64_MIN) {
            return 0;
        }
        more = -st->hold[0];
        q->live--;
        break;
    case DPAR_ACTION_INPUT: more = st->hold[1]; break;
    case DPAR_ACTION_BACKWARD: /* the smaller one first, so that the sum in between is no peak */
        if (!dpari_sim_hold(q, dpari_least(st->hold[1], st->hold[2]))) {
            return 0;
        }
        more = dpari_most(st->hold[1], st->hold[2]);
        q->live--;
        break;
    case DPAR_ACTION_WEIGHT:
        more = st->hold[2];
        q->live--;
        break;
    default: return 1;
    }
    q->out.peak_count = (int32_t)dpari_most(q->out.peak_count, q->live);
    return dpari_sim_hold(q, more);
}

/* Checks that action i exists, is on the right rank, and has a backward after it if it is joined.
 */
static dpar_status dpari_sim_check(const dpari_sim *sim, int32_t rank, int64_t i, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    const dpar_action *action = &schedule->action[i];
    if (action->kind >= DPAR_ACTION_COUNT || action->stage >= schedule->stages ||
        (dpari_action_has_micro(action->kind) && action->micro_batch >= schedule->micro_batches)) {
        return dpari_wrong(why, "rank %d: kind %d, stage %d, micro-batch %d does not exist", rank,
                           (int32_t)action->kind, (int32_t)action->stage,
                           (int32_t)action->micro_batch);
    }
    if (schedule->rank_of[action->stage] != rank) {
        return dpari_sim_wrong(why, rank, action, " has a stage of another rank");
    }
    if (action->joined &&
        (action->kind != DPAR_ACTION_FORWARD || i + 1 >= schedule->begin[rank + 1] ||
         !dpari_action_is_gradient(action[1].kind))) {
        return dpari_sim_wrong(why, rank, action,
                               " is joined, but it is not an F that a B or I follows");
    }
    return DPAR_OK;
}

/* True if the run sends a message after an action of this kind. */
static int dpari_sim_makes_message(const dpari_sim *sim, int kind)
{
    return sim->lowered ? dpari_action_is_send(kind) : dpari_sim_way(kind) >= 0;
}

/* Checks action i, enters it in the table, and adds its time and bytes. */
static dpar_status dpari_sim_enter(dpari_sim *sim, int32_t rank, int64_t i, dpar_why *why)
{
    const dpar_action *action = &sim->s.action[i];
    dpar_status status = DPAR_OK;
    const dpari_sim_stage *st;
    int way, row;
    sim->end[i] = sim->arrive[i] = -1;
    if (action->kind == DPAR_ACTION_IDLE && !action->joined) {
        return DPAR_OK;
    }
    status = dpari_sim_check(sim, rank, i, why);
    if (status == DPAR_OK && dpari_action_has_micro(action->kind)) {
        status = dpari_sim_needs(sim, rank, i, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    st = &sim->stage[action->stage];
    row = dpari_sim_row(action->kind);
    if (row >= 0) {
        uint32_t *place = dpari_sim_place(sim, row, action->stage, action->micro_batch);
        if (*place != 0) {
            return dpari_sim_wrong(why, rank, action, " is listed twice");
        }
        *place = (uint32_t)i + 1;
    }
    way = dpari_sim_way(action->kind);
    if (!dpari_sum(&sim->total, st->cost[action->kind]) ||
        (action->joined && !dpari_sum(&sim->total, st->overlap)) ||
        (dpari_sim_makes_message(sim, action->kind) &&
         !dpari_sum(&sim->total, st->edge[1 - way]))) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d, action %ld: the times exceed INT64_MAX", rank,
                         i - sim->s.begin[rank]);
    }
    if (!dpari_sim_memory(&sim->rank[rank], st, action->kind)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "rank %d, action %ld: the bytes do not fit into 64 bits", rank,
                         i - sim->s.begin[rank]);
    }
    return DPAR_OK;
}

/* Clears the table and enters the actions of all ranks. */
static dpar_status dpari_sim_list(dpari_sim *sim, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t r;
    int64_t i;
    dpari_zero(sim->where, 4 * DPARI_AT_ROWS * (size_t)sim->cells);
    for (r = 0; r < schedule->ranks; r++) {
        dpari_sim_rank *q = &sim->rank[r];
        q->at = schedule->begin[r];
        q->end = schedule->begin[r + 1];
        q->out.first = -1;
        q->out.peak_bytes = q->held;
        for (i = q->at; i < q->end; i++) {
            dpar_status status = dpari_sim_enter(sim, r, i, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Resumes a rank if it waits for action i. */
static void dpari_sim_wake(dpari_sim *sim, int32_t rank, int64_t i)
{
    if (sim->rank[rank].waits == i + 1) {
        sim->rank[rank].waits = 0;
        sim->stack[sim->tops++] = rank;
    }
}

/* Sends a message at time `now`. Returns when it arrives, and occupies the wire if wires are
 * shared. */
static int64_t dpari_sim_send(dpari_sim *sim, const dpari_sim_stage *st, int side, int64_t now)
{
    if (sim->links != DPAR_CONTENTION_NONE) {
        int64_t *wire = &sim->wire[st->link[side]];
        now = dpari_most(now, *wire);
        *wire = now + st->turn[side];
    }
    return now + st->edge[side];
}

/* Finds the input of work in direction `way`. If it arrives after *begin, moves *begin to the
 * arrival and sets *cause to the action that brings it. Returns 0 if the arrival is not known yet;
 * the rank then waits. */
static int dpari_sim_input(dpari_sim *sim, dpari_sim_rank *q, const dpar_action *action, int way,
                           int64_t *begin, uint32_t *cause)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    uint32_t at;
    int64_t there;
    if (st->rank_at[way] < 0) {
        return 1;
    }
    at = sim->where[st->source[way] + action->micro_batch];
    there = at == 0 ? -1 : sim->arrive[at - 1];
    if (there < 0) {
        q->waits = at;
        return 0;
    }
    if (there + st->delay[way] > *begin) {
        *begin = there + st->delay[way];
        *cause = at;
    }
    return 1;
}

/* Returns when the work ended whose output is brought by the action `cause`. */
static int64_t dpari_sim_done(const dpari_sim *sim, uint32_t cause)
{
    const dpar_action *action = &sim->s.action[cause - 1];
    if (dpari_action_is_message(action->kind)) {
        int way = dpari_message_way(action->kind);
        cause = *dpari_sim_place(sim, DPARI_AT_WORK + way, sim->stage[action->stage].stage_at[way],
                                 action->micro_batch);
    }
    return sim->end[cause - 1];
}

/* Adds idle time from q->free to `until`, in which the rank waits for the input that `cause`
 * brings. Until the end of the work that makes the input this is a dependency, afterwards
 * communication. */
static void dpari_sim_idle(dpari_sim *sim, dpari_sim_rank *q, uint32_t cause, int64_t until)
{
    int64_t done = dpari_most(dpari_sim_done(sim, cause), q->free);
    q->dependency += done - q->free;
    q->communication += until - done;
}

/* Sends the output of work i to another rank if messages are implied. */
static void dpari_sim_output(dpari_sim *sim, const dpar_action *action, int64_t i)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    int side = 1 - dpari_sim_way(action->kind);
    if (side > 1 || sim->lowered || st->rank_at[side] < 0) {
        return;
    }
    if (sim->links != DPAR_CONTENTION_NONE) {
        sim->arrive[i] = dpari_sim_send(sim, st, side, sim->end[i]);
    }
    dpari_sim_wake(sim, st->rank_at[side], i);
}

/* Returns the time of work, or of a joined pair. */
static int64_t dpari_sim_takes(const dpari_sim *sim, const dpar_action *action)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    if (action->joined && st->overlap > 0) {
        return st->overlap;
    }
    return st->cost[action->kind] +
           (action->joined ? sim->stage[action[1].stage].cost[action[1].kind] : 0);
}

/* Adds work from `begin` to `end` to the rank's timing, and the idle time before it. */
static void dpari_sim_book(dpari_sim_rank *q, int kind, int64_t begin, int64_t end)
{
    q->free = end;
    if (kind > DPAR_ACTION_WEIGHT && begin == end) {
        return; /* an action that takes no time is not work */
    }
    if (q->out.first < 0) {
        q->out.first = q->out.warm_up = begin;
    } else {
        q->out.dependency += q->dependency;
        q->out.communication += q->communication;
    }
    q->dependency = q->communication = 0;
    q->out.busy += end - begin;
    q->out.last = end;
}

/* Runs work, the next action of rank q. Returns 0 if it has to wait. */
static int dpari_sim_work(dpari_sim *sim, dpari_sim_rank *q, const dpar_action *action)
{
    const int64_t i = q->at;
    const int way = dpari_sim_way(action->kind);
    int64_t begin = q->free, end;
    uint32_t cause = 0;
    if ((way >= 0 && !dpari_sim_input(sim, q, action, way, &begin, &cause)) ||
        (action->joined && !dpari_sim_input(sim, q, action + 1, 1, &begin, &cause))) {
        return 0;
    }
    if (cause != 0) {
        dpari_sim_idle(sim, q, cause, begin);
    }
    end = begin + dpari_sim_takes(sim, action);
    sim->cause[i] = cause;
    sim->end[i] = end;
    if (sim->links != DPAR_CONTENTION_NONE) {
        sim->arrive[i] = end;
    }
    dpari_sim_book(q, action->kind, begin, end);
    dpari_sim_output(sim, action, i);
    if (action->joined) {
        sim->end[i + 1] = end;
        dpari_sim_output(sim, action + 1, i + 1);
    }
    q->at = i + 1 + action->joined;
    return 1;
}

/* Returns 1 + the index of a message's other half, or 0 if it is in no list. *other receives its
 * rank. */
static uint32_t dpari_sim_half(const dpari_sim *sim, const dpar_action *action, int32_t *other)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    int side = dpari_sim_message_side(action->kind);
    int row = dpari_action_is_send(action->kind) ? DPARI_AT_RECV : DPARI_AT_SEND;
    *other = st->rank_at[side];
    return *dpari_sim_place(sim, row + dpari_message_way(action->kind), st->stage_at[side],
                            action->micro_batch);
}

/* Transfers a message whose halves were reached, half i at `mine` and half j at `theirs`. The later
 * one starts the transfer. Returns when it ends. */
static int64_t dpari_sim_meet(dpari_sim *sim, int64_t i, int64_t mine, int64_t j, int64_t theirs)
{
    const dpar_action *action = &sim->s.action[i];
    int64_t end = dpari_most(mine, theirs) +
                  sim->stage[action->stage].edge[dpari_sim_message_side(action->kind)];
    sim->end[i] = sim->end[j] = end;
    sim->cause[i] = theirs > mine ? (uint32_t)j + 1 : 0;
    sim->cause[j] = mine > theirs ? (uint32_t)i + 1 : 0;
    return end;
}

/* Makes blocking message i occupy rank q until `end`. */
static void dpari_sim_block(dpari_sim *sim, dpari_sim_rank *q, int64_t i, int64_t end)
{
    const dpar_action *action = &sim->s.action[i];
    if (!dpari_action_is_send(action->kind)) {
        dpari_sim_idle(sim, q, (uint32_t)i + 1, end);
    } else {
        q->communication += end - q->free;
    }
    q->free = end;
    q->at = i + 1;
}

/* ---- queues and buffers ---------------------------------------------------------------------- */

/* Returns the queue of its rank in which a message waits. */
static int32_t dpari_sim_queue(const dpari_sim *sim, const dpar_action *action)
{
    return dpari_transport_queue(
        sim->transport, action->kind,
        sim->stage[action->stage].rank_at[dpari_sim_message_side(action->kind)]);
}

/* Appends message i to its queue. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_line_up(dpari_sim *sim, int64_t i)
{
    const dpar_action *action = &sim->s.action[i];
    dpari_sim_line *line = &sim->line[dpari_sim_queue(sim, action)];
    dpari_sim_link *link = &sim->link[i];
    int32_t other;
    uint32_t half;
    if (sim->transport == DPAR_TRANSPORT_EAGER && !dpari_action_is_send(action->kind)) {
        return; /* its SEND represents it in the queue */
    }
    link->before = line->last;
    link->behind = 0;
    if (line->last != 0) {
        sim->link[line->last - 1].behind = (uint32_t)i + 1;
    } else {
        line->taken = (uint32_t)i + 1;
    }
    line->last = (uint32_t)i + 1;
    half = dpari_sim_half(sim, action, &other);
    if (sim->transport != DPAR_TRANSPORT_EAGER || half == 0) {
        return;
    }
    sim->link[half - 1].before = 0;
    if (line->count++ >= sim->room) {
        sim->link[half - 1].before = line->taken;
        line->taken = sim->link[line->taken - 1].behind;
    }
}

/* Builds the queues of all ranks. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_line_all(dpari_sim *sim)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t r, pass;
    int64_t i;
    for (r = 0; r < schedule->ranks; r++) {
        for (pass = 0; pass < 2; pass++) {
            for (i = schedule->begin[r]; i < schedule->begin[r + 1]; i++) {
                const dpar_action *action = &schedule->action[i];
                if (!dpari_action_is_message(action->kind)) {
                    continue;
                }
                if (pass == 0) { /* clears only the queues that are used: a rank has few peers */
                    dpari_zero(&sim->line[dpari_sim_queue(sim, action)], sizeof(*sim->line));
                } else {
                    dpari_sim_line_up(sim, i);
                }
            }
        }
    }
}

/* Returns when the message before message i in its queue has been transferred, 0 if there is none,
 * or -1 if the time is not known yet. */
static int64_t dpari_sim_first(const dpari_sim *sim, int64_t i)
{
    const uint32_t before = sim->link[i].before;
    if (before == 0) {
        return 0;
    }
    return dpari_most(sim->end[before - 1], -1);
}

/* Returns why message i was transferred at `start` and not earlier, as 1 + an action: 0 for its own
 * rank, its other half j, or the message before it in one of the two queues. */
static uint32_t dpari_sim_cause_of(const dpari_sim *sim, int64_t i, int64_t j, int64_t mine,
                                   int64_t theirs, int64_t start)
{
    if (mine == start) {
        return 0;
    }
    if (theirs == start) {
        return (uint32_t)j + 1;
    }
    return dpari_sim_first(sim, i) == start ? sim->link[i].before : sim->link[j].before;
}

/* Transfers message i, which was reached, if its other half was reached too and both are first in
 * their queues. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_transfer(dpari_sim *sim, int64_t i)
{
    const dpar_action *action = &sim->s.action[i];
    int32_t other;
    const int64_t j = (int64_t)dpari_sim_half(sim, action, &other) - 1, mine = -2 - sim->end[i];
    const int64_t theirs = -2 - sim->end[j], here = dpari_sim_first(sim, i);
    const int64_t there = dpari_sim_first(sim, j);
    int64_t start;
    if (theirs < 0 || here < 0 || there < 0) {
        return;
    }
    start = dpari_most(dpari_most(mine, theirs), dpari_most(here, there));
    sim->cause[i] = dpari_sim_cause_of(sim, i, j, mine, theirs, start);
    sim->cause[j] = dpari_sim_cause_of(sim, j, i, theirs, mine, start);
    sim->end[i] = sim->end[j] =
        start + sim->stage[action->stage].edge[dpari_sim_message_side(action->kind)];
    sim->link[i].before = sim->moved; /* not needed any more, so that it links the list `moved` */
    sim->link[j].before = (uint32_t)i + 1;
    sim->moved = (uint32_t)j + 1;
    dpari_sim_wake(sim, other, j);
    dpari_sim_wake(sim, sim->s.rank_of[action->stage], i);
}

/* Posts message i, the next action of rank q. Then transfers all messages that can be transferred.
 */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_sim_post(dpari_sim *sim, dpari_sim_rank *q, int64_t i)
{
    q->at = i + 1;
    sim->end[i] = -2 - q->free;
    dpari_sim_transfer(sim, i);
    while (sim->moved != 0) {
        const dpari_sim_link *link = &sim->link[sim->moved - 1];
        const int64_t next = (int64_t)link->behind - 1;
        sim->moved = link->before;
        if (next >= 0 && sim->end[next] < -1) {
            dpari_sim_transfer(sim, next);
        }
    }
    return 1;
}

/* EAGER: makes a SEND into a buffer, or a RECV out of one, occupy rank q until it is possible.
 * Returns 0 if that time is not known yet. */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_sim_buffer(dpari_sim *sim, dpari_sim_rank *q, int64_t i,
                                                      int64_t j, int32_t other)
{
    const dpar_action *action = &sim->s.action[i];
    const int sends = dpari_action_is_send(action->kind);
    const int64_t send = sends ? i : j;
    const uint32_t before = sends ? sim->link[j].before : sim->link[send].before;
    int32_t rank;
    uint32_t needs = 0; /* 1 + the RECV that frees the place, or that is before this one */
    int64_t time = q->free;
    if (before != 0) {
        needs = dpari_sim_half(sim, &sim->s.action[before - 1], &rank);
        if (needs == 0 || sim->end[needs - 1] < 0) {
            q->waits = needs;
            return 0;
        }
    }
    if (!sends && sim->end[j] < 0) {
        q->waits = j + 1;
        return 0;
    }
    if (sends && needs != 0) {
        time = dpari_most(time, sim->end[needs - 1]);
    }
    if (!sends) {
        needs = (uint32_t)j + 1;
        time = dpari_most(time,
                          sim->end[j] +
                              sim->stage[action->stage].edge[dpari_sim_message_side(action->kind)]);
    }
    sim->end[i] = time;
    sim->cause[i] = time > q->free ? needs : 0;
    dpari_sim_block(sim, q, i, time);
    dpari_sim_wake(sim, other, i);
    return 1;
}

/* Runs a message, the next action of rank q. Returns 0 if it has to wait. */
static int dpari_sim_message(dpari_sim *sim, dpari_sim_rank *q, const dpar_action *action)
{
    const int64_t i = q->at;
    int32_t other;
    const int64_t j = (int64_t)dpari_sim_half(sim, action, &other) - 1;
    dpari_sim_rank *o = &sim->rank[other];
    if (j < 0) {
        return 0;
    }
    if (sim->sends == DPARI_SENDS_QUEUED) {
        return dpari_sim_post(sim, q, i);
    }
    if (sim->sends == DPARI_SENDS_EAGER) {
        return dpari_sim_buffer(sim, q, i, j, other);
    }
    if (sim->sends == DPAR_SEND_MODE_BLOCKING) {
        int64_t end;
        if (o->at != j) {
            q->waits = i + 1;
            return 0;
        }
        end = dpari_sim_meet(sim, i, q->free, j, o->free);
        dpari_sim_block(sim, q, i, end);
        dpari_sim_block(sim, o, j, end);
        dpari_sim_wake(sim, other, j);
        return 1;
    }
    q->at = i + 1;
    if (sim->sends == DPAR_SEND_MODE_POSTED) {
        if (sim->end[j] > -2) {
            sim->end[i] = -2 - q->free;
            return 1;
        }
        (void)dpari_sim_meet(sim, i, q->free, j, -2 - sim->end[j]);
    } else if (dpari_action_is_send(action->kind)) {
        sim->end[i] = sim->end[j] = dpari_sim_send(sim, &sim->stage[action->stage],
                                                   dpari_sim_message_side(action->kind), q->free);
        sim->arrive[j] = sim->end[j];
        sim->cause[i] = 0;
        sim->cause[j] = (uint32_t)i + 1;
    }
    dpari_sim_wake(sim, other, j);
    return 1;
}

/* Advances all ranks until each has finished or waits. */
static void dpari_sim_run(dpari_sim *sim)
{
    int32_t r;
    sim->tops = 0;
    for (r = sim->s.ranks - 1; r >= 0; r--) {
        sim->stack[sim->tops++] = r;
    }
    while (sim->tops > 0) {
        dpari_sim_rank *q = &sim->rank[sim->stack[--sim->tops]];
        int going = 1;
        while (going && q->at < q->end) {
            const dpar_action *action = &sim->s.action[q->at];
            if (action->kind == DPAR_ACTION_IDLE) {
                q->at++;
            } else {
                going = dpari_action_is_message(action->kind) ? dpari_sim_message(sim, q, action)
                                                              : dpari_sim_work(sim, q, action);
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* Writes a message like "rank 3 waits at 3F0 for 2F0 of rank 2, which is at 2B0". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_stuck(dpari_sim *sim, int32_t rank,
                                                             dpar_why *why)
{
    const dpar_action *action = &sim->s.action[sim->rank[rank].at];
    dpar_action want = *action;
    uint32_t at = 0;
    int32_t other = rank;
    dpar_text t;
    int way = dpari_sim_way(action->kind);
    if (why == NULL) {
        return DPAR_E_STUCK;
    }
    if (dpari_action_is_message(action->kind)) {
        at = dpari_sim_half(sim, action, &other);
        want.stage =
            (uint16_t)sim->stage[action->stage].stage_at[dpari_sim_message_side(action->kind)];
        want.kind =
            (uint8_t)(dpari_action_is_send(action->kind) ? action->kind + 1 : action->kind - 1);
    } else {
        int64_t begin = 0;
        uint32_t cause = 0;
        if (action->joined && dpari_sim_input(sim, &sim->rank[rank], action, way, &begin, &cause)) {
            want = action[1];
            way = 1;
        }
        other = sim->stage[want.stage].rank_at[way];
        want.stage = (uint16_t)sim->stage[want.stage].stage_at[way];
        if (sim->lowered) {
            want.kind = (uint8_t)(way ? DPAR_ACTION_SEND_B : DPAR_ACTION_SEND_F);
        } else {
            want.kind = (uint8_t)(way ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD);
        }
        at = *dpari_sim_place(sim, dpari_sim_row(want.kind), want.stage, want.micro_batch);
        want = at == 0 ? want : sim->s.action[at - 1];
    }
    want.joined = 0;
    dpari_text_why(&t, why);
    dpari_text_say(&t, "rank %d waits at ", rank);
    dpar_action_write(action, &t);
    dpar_text_put(&t, " for ");
    dpar_action_write(&want, &t);
    dpari_text_say(&t, " of rank %d", other);
    if (at == 0) {
        dpar_text_put(&t, ", which is in no list");
    } else if (sim->end[at - 1] < -1) {
        dpar_text_put(&t, ", which waits in its queue");
    } else if (sim->rank[other].at == sim->rank[other].end) {
        dpar_text_put(&t, ", which is behind another message");
    } else {
        dpar_text_put(&t, ", which is at ");
        dpar_action_write(&sim->s.action[sim->rank[other].at], &t);
    }
    return DPAR_E_STUCK;
}

/* Writes the message for a schedule whose ranks have all finished, but with a message still in its
 * queue. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_left(int32_t rank, const dpar_action *action,
                                                            dpar_why *why)
{
    dpar_text t;
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpari_text_say(&t, "rank %d: ", rank);
        dpar_action_write(action, &t);
        dpar_text_put(&t, " stays in its queue");
    }
    return DPAR_E_STUCK;
}

/* Checks that all ranks have finished and all messages were transferred. */
static dpar_status dpari_sim_finished(dpari_sim *sim, dpar_why *why)
{
    int32_t r;
    int64_t i;
    for (r = 0; r < sim->s.ranks; r++) {
        if (sim->rank[r].at < sim->rank[r].end) {
            return dpari_sim_stuck(sim, r, why);
        }
    }
    for (r = 0; r < sim->s.ranks && sim->sends == DPARI_SENDS_QUEUED; r++) {
        for (i = sim->s.begin[r]; i < sim->rank[r].end; i++) {
            if (sim->end[i] < -1) {
                return dpari_sim_left(r, &sim->s.action[i], why);
            }
        }
    }
    return DPAR_OK;
}

/* True if an action of this kind occupies its rank: work, and messages of blocking transports. */
static int dpari_sim_holds(const dpari_sim *sim, int kind)
{
    if (dpari_action_is_message(kind)) {
        return sim->sends == DPAR_SEND_MODE_BLOCKING || sim->sends == DPARI_SENDS_EAGER;
    }
    return kind != DPAR_ACTION_IDLE;
}

/* Returns the action whose end let action i start, or -1 if it starts at 0. A joined pair is
 * represented by its forward. */
static int64_t dpari_sim_before(const dpari_sim *sim, int64_t i)
{
    const dpar_schedule *schedule = &sim->s;
    const int64_t begin = schedule->begin[schedule->rank_of[schedule->action[i].stage]];
    if (sim->cause[i] != 0) {
        i = (int64_t)sim->cause[i] - 1;
        return i > 0 && schedule->action[i - 1].joined ? i - 1 : i;
    }
    do {
        i--;
    } while (i >= begin && (!dpari_sim_holds(sim, schedule->action[i].kind) ||
                            (i > begin && schedule->action[i - 1].joined)));
    return i >= begin ? i : -1;
}

/* Returns when forward i could start if its rank were free: when its input has arrived, and the
 * previous slice and the previous stage on its own rank have ended. */
static int64_t dpari_sim_could(const dpari_sim *sim, int64_t i)
{
    const dpar_action *action = &sim->s.action[i];
    const dpari_sim_stage *st = &sim->stage[action->stage];
    int64_t at = 0;
    if (st->rank_at[0] >= 0) {
        at = sim->arrive[sim->where[st->source[0] + action->micro_batch] - 1] + st->delay[0];
    } else if (st->stage_at[0] >= 0) {
        at = sim->end[*dpari_sim_place(sim, DPARI_AT_WORK, st->stage_at[0], action->micro_batch) -
                      1];
    }
    if (action->micro_batch % sim->s.slices != 0) {
        at = dpari_most(
            at,
            sim->end[*dpari_sim_place(sim, DPARI_AT_WORK, action->stage, action->micro_batch - 1) -
                     1]);
    }
    return at;
}

/* True if held + more exceeds the cap, which is above 0. */
static int dpari_sim_over(int64_t held, int64_t more, int64_t cap)
{
    return more > 0 ? held > cap - more : held > cap && held + more > cap;
}

/* Counts idle time before action i as lack of memory. The rank is idle from `clock` to `until`, and
 * memory is the cause from `since` on. That part is moved to o->memory from dependency and
 * communication, to which the run added it. Idle time before the first work was not added there,
 * and is left out. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_move(const dpari_sim *sim, dpar_rank_timing *o,
                                                     int64_t i, int64_t clock, int64_t until,
                                                     int64_t since)
{
    const int kind = sim->s.action[i].kind;
    int64_t done = clock; /* of a blocking SEND all is communication */
    since = dpari_most(since, clock);
    if (since >= until || clock < o->first) {
        return;
    }
    if (!dpari_action_is_send(kind)) {
        done = dpari_sim_done(sim, dpari_action_is_message(kind) ? (uint32_t)i + 1 : sim->cause[i]);
    }
    done = dpari_most(done, since);
    o->dependency -= done - since;
    o->communication -= until - done;
    o->memory += until - since;
}

/* Reads a rank's list once more after the run and finds the gaps that are due to memory: those in
 * which the next forward has its input, but its activation does not fit under the cap. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_starved(dpari_sim *sim, dpari_sim_rank *q,
                                                        int64_t begin, int64_t cap)
{
    const dpar_action *list = sim->s.action;
    int64_t i, ahead = begin, clock = 0;
    q->live = 0;
    for (i = begin; i < q->end; i++) {
        const dpar_action *action = &list[i];
        if (action->kind == DPAR_ACTION_IDLE) {
            continue; /* its stage was not checked */
        }
        if (dpari_sim_holds(sim, action->kind)) {
            int64_t until = sim->end[i];
            until -= dpari_action_is_message(action->kind) ? 0 : dpari_sim_takes(sim, action);
            while (ahead < q->end && (ahead <= i || list[ahead].kind != DPAR_ACTION_FORWARD)) {
                ahead++;
            }
            if (until > clock && ahead < q->end &&
                dpari_sim_over(q->held, sim->stage[list[ahead].stage].hold[0], cap)) {
                dpari_sim_move(sim, &q->out, i, clock, until, dpari_sim_could(sim, ahead));
            }
            clock = sim->end[i];
        }
        (void)dpari_sim_memory(q, &sim->stage[action->stage], action->kind);
        if (action->joined) { /* both run at once */
            i++;
            (void)dpari_sim_memory(q, &sim->stage[list[i].stage], list[i].kind);
        }
    }
}

/* Computes the idle time that is due to caps, and by how much each rank exceeds its cap. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_caps(dpari_sim *sim,
                                                     const dpar_schedule_times *times)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t i;
    for (i = 0; i < schedule->ranks; i++) {
        sim->rank[i].held = 0;
    }
    for (i = 0; i < schedule->stages; i++) {
        sim->rank[schedule->rank_of[i]].held += dpari_each_at(&times->hold_always, i);
    }
    for (i = 0; i < schedule->ranks; i++) {
        dpari_sim_rank *q = &sim->rank[i];
        const int64_t cap = dpari_each_at(&times->cap, i);
        if (cap > 0) {
            dpari_sim_starved(sim, q, schedule->begin[i], cap);
            q->out.over_cap = dpari_most(0, q->out.peak_bytes - cap);
        }
    }
}

/* Adds up the critical path from its last action to its first one. */
static void dpari_sim_critical(const dpari_sim *sim, dpar_timing *out)
{
    int64_t i;
    for (i = sim->last; i >= 0; i = dpari_sim_before(sim, i)) {
        const dpar_action *action = &sim->s.action[i];
        out->path_actions++;
        if (!dpari_action_is_message(action->kind)) {
            out->path_compute += dpari_sim_takes(sim, action);
        }
    }
    out->path_communication = out->makespan - out->path_compute;
}

/* Completes the timing of a rank with the idle time after its last work, and adds it to the totals.
 */
static void dpari_sim_close(dpari_sim_rank *q, int64_t makespan, dpar_timing *out)
{
    dpar_rank_timing *o = &q->out;
    if (o->first < 0) {
        o->first = 0;
        o->warm_up = makespan;
    } else {
        o->drain = makespan - o->last;
    }
    out->busy += o->busy;
    out->span = dpari_most(out->span, o->last - o->first);
    out->bubble_worst = dpari_most(out->bubble_worst, makespan - o->busy);
    out->peak_bytes = dpari_most(out->peak_bytes, o->peak_bytes);
    out->peak_count = (int32_t)dpari_most(out->peak_count, o->peak_count);
    out->over_cap = dpari_most(out->over_cap, o->over_cap);
}

/* Computes the timing of the whole schedule. */
static dpar_status dpari_sim_sum(dpari_sim *sim, dpar_timing *out, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    int64_t i, whole;
    int32_t r;
    dpari_zero(out, sizeof(*out));
    sim->last = -1;
    for (r = 0; r < schedule->ranks; r++) {
        if (sim->rank[r].free > out->makespan || sim->last < 0) {
            for (i = sim->rank[r].end - 1; i >= schedule->begin[r]; i--) {
                if (dpari_sim_holds(sim, schedule->action[i].kind)) {
                    break;
                }
            }
            i -= i > schedule->begin[r] && schedule->action[i - 1].joined;
            sim->last = i >= schedule->begin[r] ? i : -1;
        }
        out->makespan = dpari_most(out->makespan, sim->rank[r].free);
    }
    if (!dpari_mul(out->makespan, schedule->ranks, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "%d ranks x a makespan of %ld exceed INT64_MAX",
                         schedule->ranks, out->makespan);
    }
    for (r = 0; r < schedule->ranks; r++) {
        dpari_sim_close(&sim->rank[r], out->makespan, out);
    }
    out->lowered = sim->lowered;
    out->bubble_first = out->makespan - sim->rank[0].out.busy;
    out->bubble_of_makespan.part = whole - out->busy;
    out->bubble_of_makespan.whole = whole;
    out->bubble_of_work.part = whole - out->busy;
    out->bubble_of_work.whole = out->busy;
    out->bubble_of_span.part = schedule->ranks * out->span - out->busy;
    out->bubble_of_span.whole = schedule->ranks * out->span;
    dpari_sim_critical(sim, out);
    return DPAR_OK;
}

/* Writes the start and end of each action. Messages that do not occupy their rank start when the
 * rank reaches them. */
static void dpari_sim_fill(const dpari_sim *sim, int64_t *start, int64_t *end)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t r;
    int64_t i, clock;
    for (r = 0; r < schedule->ranks; r++) {
        clock = 0;
        for (i = schedule->begin[r]; i < schedule->begin[r + 1]; i++) {
            const dpar_action *action = &schedule->action[i];
            const int pair = i > schedule->begin[r] && action[-1].joined;
            const int idle = action->kind == DPAR_ACTION_IDLE;
            const int64_t stop = idle ? clock : sim->end[i];
            int64_t go = clock;
            if (!idle && !dpari_action_is_message(action->kind)) {
                go = stop - dpari_sim_takes(sim, pair ? action - 1 : action);
            }
            clock = dpari_sim_holds(sim, action->kind) ? stop : clock;
            if (start != NULL) {
                start[i] = go;
            }
            if (end != NULL) {
                end[i] = stop;
            }
        }
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Checks the shape of the schedule and the settings of messages. */
static dpar_status dpari_sim_choices(const dpar_schedule *schedule,
                                     const dpar_schedule_times *times, dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (!dpari_sim_fits(schedule) || schedule->begin[0] != 0) {
        return dpari_wrong(
            why,
            "this is not a schedule: it has %d stages in chains of %d, and %d micro-batches in "
            "slices of %d",
            schedule->stages, schedule->chain, schedule->micro_batches, schedule->slices);
    }
    for (i = 0; i < schedule->ranks; i++) {
        if (schedule->begin[i] > schedule->begin[i + 1]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", i,
                               schedule->begin[i], schedule->begin[i + 1]);
        }
        if (dpari_each_at(&times->cap, i) < 0) {
            return dpari_wrong(why, "rank %d: cap is %ld; 0 or more are allowed", i,
                               dpari_each_at(&times->cap, i));
        }
    }
    st = dpari_schedule_check_ranks(schedule, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (times->sends < 0 || times->sends >= DPAR_SEND_MODE_COUNT || times->links < 0 ||
        times->links >= DPAR_CONTENTION_COUNT) {
        return dpari_wrong(why,
                           "sends=%d, links=%d; DPAR_SEND_MODE_x and DPAR_CONTENTION_x are allowed",
                           times->sends, times->links);
    }
    if (times->sends != DPAR_SEND_MODE_BUFFERED && times->links != DPAR_CONTENTION_NONE) {
        return dpari_wrong(why, "sends=%d, links=%d; only buffered sends (0) can share links",
                           times->sends, times->links);
    }
    st = dpari_transport_check(times->transport, times->capacity, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (times->transport != DPAR_TRANSPORT_NONE && (times->sends != 0 || times->links != 0)) {
        return dpari_wrong(why, "sends=%d, links=%d; both must be 0, because transport=%d is set",
                           times->sends, times->links, times->transport);
    }
    return DPAR_OK;
}

static int32_t dpari_sim_has_messages(const dpar_schedule *schedule)
{
    const int64_t n = schedule->begin[schedule->ranks];
    int64_t i;
    for (i = 0; i < n; i++) {
        if (dpari_action_is_message(schedule->action[i].kind)) {
            return 1;
        }
    }
    return 0;
}

/* True if two neighbouring stages are on different ranks. */
static int dpari_sim_crosses(const dpar_schedule *schedule)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        int32_t next = dpari_schedule_behind(schedule, i);
        if (next >= 0 && schedule->rank_of[next] != schedule->rank_of[i]) {
            return 1;
        }
    }
    return 0;
}

/* Returns how messages are sent, DPAR_SEND_MODE_x or DPARI_SENDS_x. */
static int32_t dpari_sim_sends(const dpar_schedule_times *times)
{
    switch (times->transport) {
    case DPAR_TRANSPORT_NONE: return times->sends;
    case DPAR_TRANSPORT_BLOCKING: return DPAR_SEND_MODE_BLOCKING;
    case DPAR_TRANSPORT_EAGER: return DPARI_SENDS_EAGER;
    default: return DPARI_SENDS_QUEUED;
    }
}

/* Prepares the run: the values of stages, the wires, the table and the queues. */
static dpar_status dpari_sim_ready(dpari_sim *sim, const dpar_schedule_times *times, dpar_why *why)
{
    dpar_status status;
    sim->lowered = dpari_sim_has_messages(&sim->s);
    sim->sends = dpari_sim_sends(times);
    sim->total = 0;
    if (!sim->lowered && sim->sends != DPAR_SEND_MODE_BUFFERED) {
        if (dpari_sim_crosses(&sim->s)) {
            const int by_sends = times->transport == DPAR_TRANSPORT_NONE;
            const int32_t value = by_sends ? times->sends : times->transport;
            return dpari_wrong(why, "%s=%d needs messages; call dpar_schedule_lower first",
                               by_sends ? "sends" : "transport", value);
        }
        sim->sends = DPAR_SEND_MODE_BUFFERED; /* there are no messages at all */
    }
    dpari_zero(sim->rank, (size_t)sim->s.ranks * sizeof(*sim->rank));
    status = dpari_sim_stages(sim, times, why);
    if (status == DPAR_OK && sim->links != DPAR_CONTENTION_NONE) {
        dpari_sim_wires(sim);
    }
    if (status == DPAR_OK) {
        status = dpari_sim_list(sim, why);
    }
    if (status == DPAR_OK && sim->sends > DPAR_SEND_MODE_BLOCKING) {
        dpari_sim_line_all(sim);
    }
    return status;
}

DPAR_API dpar_status dpar_schedule_simulate(const dpar_schedule *schedule,
                                            const dpar_schedule_simulate_desc *how,
                                            dpar_timing *timing, void *mem, int64_t bytes,
                                            dpar_why *why)
{
    const dpar_schedule_times *times = how->times;
    dpari_sim *sim = (dpari_sim *)mem;
    dpar_timing out;
    int64_t i, at, needed;
    int32_t r;
    dpar_status status = dpari_sim_choices(schedule, times, why);
    if (status != DPAR_OK) {
        return status;
    }
    needed = dpari_schedule_simulate_bytes(schedule, how);
    if (mem == NULL || bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "simulating %ld actions needs %ld bytes, got %ld",
                         schedule->begin[schedule->ranks], needed, bytes);
    }
    (void)dpari_sim_arrange(sim, schedule, times, mem);
    status = dpari_sim_ready(sim, times, why);
    if (status == DPAR_OK) {
        dpari_sim_run(sim);
        status = dpari_sim_finished(sim, why);
    }
    if (status == DPAR_OK && dpari_sim_capped(times)) {
        dpari_sim_caps(sim, times);
    }
    if (status == DPAR_OK) {
        status = dpari_sim_sum(sim, &out, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (how->start != NULL || how->end != NULL) {
        dpari_sim_fill(sim, how->start, how->end);
    }
    for (r = 0; r < schedule->ranks && how->rank != NULL; r++) {
        how->rank[r] = sim->rank[r].out;
    }
    if (how->path != NULL) {
        at = out.path_actions;
        for (i = sim->last; i >= 0; i = dpari_sim_before(sim, i)) {
            how->path[--at] = i;
        }
    }
    *timing = out;
    return DPAR_OK;
}

/* ==== schedule/closed_form.c ==== */

/* Evaluates published formulas under the conditions for which simulation agrees with them. A
 * function for each formula sets its text, adds up its value and notes the first condition that is
 * not met. */

/* The numbers in the formulas, named as in closed_form.h, and the value so far. */
typedef struct dpari_closed {
    int64_t p, v, m, s; /* m counts slices, m s in the formulas */
    int64_t f, b, i, w, fb, c;
    int64_t sum;         /* the value of the formula */
    const char *formula; /* its text */
    const char *unmet;   /* the first condition that is not met, or NULL */
    int32_t rule;
    int32_t over; /* 1 if the sum exceeds INT64_MAX */
} dpari_closed;

/* Adds count x time to the sum. Both are 0 or more. */
static void dpari_closed_add(dpari_closed *closed, int64_t count, int64_t time)
{
    int64_t product;
    if (!dpari_mul(count, time, &product) || product > INT64_MAX - closed->sum) {
        closed->over = 1;
        return;
    }
    closed->sum += product;
}

/* Sets the text of the formula and adds count x time. */
static void dpari_closed_term(dpari_closed *closed, const char *formula, int64_t count,
                              int64_t time)
{
    closed->formula = formula;
    dpari_closed_add(closed, count, time);
}

/* Notes a condition if it does not hold and none was noted before. An empty condition means that
 * there is no formula. Returns `holds`. */
DPARI_STATIC_NOINLINE int dpari_closed_need(dpari_closed *closed, int holds, const char *condition)
{
    if (!holds && closed->unmet == NULL) {
        closed->unmet = condition;
    }
    return holds;
}

/* Sets the text of the formula and adds count x (F + B). */
static void dpari_closed_pair(dpari_closed *closed, const char *formula, int64_t count)
{
    dpari_closed_term(closed, formula, count, closed->f);
    dpari_closed_add(closed, count, closed->b);
}

/* Computes the work of a rank, which is the same in every order. */
static void dpari_closed_work(dpari_closed *closed, int64_t *work)
{
    dpari_closed only = *closed;
    int64_t count = closed->m * closed->v;
    only.sum = 0;
    if (closed->rule == DPAR_SCHEDULE_DUALPIPE || closed->rule == DPAR_SCHEDULE_CHIMERA) {
        count /= 2; /* each stage has half of the micro-batches */
    }
    dpari_closed_pair(&only, NULL, count);
    closed->over |= only.over;
    *work = only.sum;
}

/* ---- the formulas ---------------------------------------------------------------------------- */

static void dpari_closed_zero_bubble(dpari_closed *closed)
{
    const int64_t p = closed->p, m = closed->m, f = closed->f, i = closed->i, w = closed->w;
    if (!dpari_closed_need(closed, w <= i && w <= f, "W <= I and W <= F") ||
        !dpari_closed_need(closed, m >= p, "m >= p")) {
        return;
    }
    dpari_closed_pair(closed, "m v (F + I + W) + (p - 1) (F + I - W)", m * closed->v);
    dpari_closed_add(closed, p - 1, f);
    dpari_closed_add(closed, p - 1, i - w);
}

/* Adds 3 v m F for ZB-2P and ZBV, and for the makespan (p - 1) F more. */
static void dpari_closed_no_bubble(dpari_closed *closed, int span)
{
    if (closed->rule == DPAR_SCHEDULE_ZBV) {
        closed->formula = span ? "6 m F" : "6 m F + (p - 1) F";
    } else {
        closed->formula = span ? "3 m F" : "3 m F + (p - 1) F";
    }
    (void)dpari_closed_need(closed,
                            closed->f == closed->i && closed->i == closed->w && closed->c == 0,
                            "F = I = W, no latency");
    (void)dpari_closed_need(closed, closed->m >= 2 * closed->p - 1, "m >= 2 p - 1");
    dpari_closed_add(closed, 3 * closed->v * closed->m + (span ? 0 : closed->p - 1), closed->f);
}

static void dpari_closed_dual_idle(dpari_closed *closed)
{
    const int64_t f = closed->f, b = closed->b, w = closed->w, fb = closed->fb;
    int64_t h = closed->rule == DPAR_SCHEDULE_DUALPIPE ? closed->p / 2 : closed->p;
    dpari_closed with = *closed;
    closed->formula = closed->rule == DPAR_SCHEDULE_DUALPIPE ? "(p / 2 - 1) (FB + B - 3 W)"
                                                             : "(p - 1) (FB + B - 3 W)";
    with.sum = 0;
    dpari_closed_add(&with, 1, fb);
    dpari_closed_add(&with, 1, b);
    if (with.over || !dpari_closed_need(closed, f == closed->i, "F = I") ||
        !dpari_closed_need(closed, fb >= f && fb >= b, "FB >= F and FB >= B") ||
        !dpari_closed_need(closed, fb - f <= b, "FB <= F + B") ||
        !dpari_closed_need(closed, w <= closed->i, "W <= I")) {
        closed->over |= with.over;
        return;
    }
    dpari_closed_add(closed, h - 1, with.sum - 3 * w);
}

static void dpari_closed_dual(dpari_closed *closed)
{
    int64_t work;
    dpari_closed_dual_idle(closed);
    dpari_closed_work(closed, &work);
    closed->formula = closed->rule == DPAR_SCHEDULE_DUALPIPE
                          ? "m (F + B) + (p / 2 - 1) (FB + B - 3 W)"
                          : "2 m (F + B) + (p - 1) (FB + B - 3 W)";
    (void)dpari_closed_need(closed, closed->fb - closed->f == closed->b, "FB = F + B");
    dpari_closed_add(closed, 1, work);
}

static void dpari_closed_chimera(dpari_closed *closed)
{
    int twice = closed->b / 2 == closed->f && closed->b % 2 == 0 && closed->b > 0;
    (void)dpari_closed_need(closed, closed->b == closed->f || twice, "B = F or B = 2 F");
    (void)dpari_closed_need(closed, !twice || closed->m == closed->p, "m = p, if B = 2 F");
    (void)dpari_closed_need(closed, closed->m % closed->p == 0, "p divides m");
    dpari_closed_pair(closed, twice ? "m (F + B) + 2 (p - 2) F" : "m (F + B) + (p - 2) F",
                      closed->m);
    dpari_closed_add(closed, (twice ? 2 : 1) * (closed->p - 2), closed->f);
}

static void dpari_closed_overlapped(dpari_closed *closed)
{
    (void)dpari_closed_need(closed, closed->v == 1, "v = 1");
    (void)dpari_closed_need(closed, closed->fb >= closed->b && closed->fb >= closed->f,
                            "FB >= F and FB >= B");
    dpari_closed_pair(closed, "p (F + B) + (m - 1) FB", closed->p);
    dpari_closed_add(closed, closed->m - 1, closed->fb);
}

static void dpari_closed_makespan(dpari_closed *closed)
{
    const int64_t p = closed->p, m = closed->m, v = closed->v;
    switch (closed->rule) {
    case DPAR_SCHEDULE_INTERLEAVED:
    case DPAR_SCHEDULE_BREADTH_FIRST:
        (void)dpari_closed_need(closed, v == 1 || m >= p, "m >= p, or v = 1");
        dpari_closed_pair(closed, "(m v + p - 1) (F + B)", m * v + p - 1);
        break;
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_1F1B:
    case DPAR_SCHEDULE_EAGER_1F1B:
        dpari_closed_pair(closed, "(m + p - 1) (F + B)", m + p - 1);
        break;
    case DPAR_SCHEDULE_SEQ1F1B:
        dpari_closed_pair(closed, "(m s + p - 1) (F + B)", m + p - 1);
        break;
    case DPAR_SCHEDULE_FORWARD_ONLY:
        (void)dpari_closed_need(closed, v == 1 || m >= p, "m >= p, or v = 1");
        dpari_closed_term(closed, "(m v + p - 1) F", m * v + p - 1, closed->f);
        break;
    case DPAR_SCHEDULE_ZB_H1:
    case DPAR_SCHEDULE_INTERLEAVED_ZB: dpari_closed_zero_bubble(closed); break;
    case DPAR_SCHEDULE_ZB_2P:
    case DPAR_SCHEDULE_ZBV: dpari_closed_no_bubble(closed, 0); break;
    case DPAR_SCHEDULE_DUALPIPE:
    case DPAR_SCHEDULE_DUALPIPEV: dpari_closed_dual(closed); break;
    case DPAR_SCHEDULE_CHIMERA: dpari_closed_chimera(closed); break;
    case DPAR_SCHEDULE_MOE_OVERLAP: dpari_closed_overlapped(closed); break;
    default: (void)dpari_closed_need(closed, 0, ""); break;
    }
}

static void dpari_closed_latency(dpari_closed *closed)
{
    const int64_t p = closed->p, m = closed->m, f = closed->f, b = closed->b, c = closed->c;
    switch (closed->rule) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_EAGER_1F1B:
        (void)dpari_closed_need(closed, closed->rule == DPAR_SCHEDULE_GPIPE || c <= f + b - c,
                                "2 c <= F + B");
        dpari_closed_term(closed, "2 (p - 1) c", 2 * (p - 1), c);
        break;
    case DPAR_SCHEDULE_1F1B:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        dpari_closed_term(closed, "(2 (p - 2) + 2 m (p - 1) / p) c",
                          p > 1 ? 2 * (p - 2) + 2 * (m / p) * (p - 1) : 0, c);
        break;
    case DPAR_SCHEDULE_INTERLEAVED:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        (void)dpari_closed_need(closed, c <= f && c <= b, "c <= F and c <= B");
        dpari_closed_term(closed, "2 (p v - 1) c", p > 1 ? 2 * (p * closed->v - 1) : 0, c);
        break;
    case DPAR_SCHEDULE_ZB_H1:
        (void)dpari_closed_need(closed, f == closed->i && closed->i == closed->w, "F = I = W");
        (void)dpari_closed_need(closed, c <= f / 4, "4 c <= F");
        (void)dpari_closed_need(closed, m >= 2 * p, "m >= 2 p");
        dpari_closed_term(closed, "4 (p - 1) c", 4 * (p - 1), c);
        break;
    case DPAR_SCHEDULE_FORWARD_ONLY:
        (void)dpari_closed_need(closed, closed->v == 1, "v = 1");
        dpari_closed_term(closed, "(p - 1) c", p - 1, c);
        break;
    default: (void)dpari_closed_need(closed, 0, ""); break;
    }
}

static void dpari_closed_span(dpari_closed *closed)
{
    if (closed->rule == DPAR_SCHEDULE_ZB_2P || closed->rule == DPAR_SCHEDULE_ZBV) {
        dpari_closed_no_bubble(closed, 1);
    } else if (closed->rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        (void)dpari_closed_need(closed, closed->v == 1, "v = 1");
        dpari_closed_term(closed, "m F", closed->m, closed->f);
    } else { /* rank 0 starts first and ends last, so that its span is the makespan */
        dpari_closed_makespan(closed);
        if (closed->c > 0) {
            dpari_closed_latency(closed);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_closed_idle(dpari_closed *closed)
{
    int64_t work;
    (void)dpari_closed_need(closed, closed->c == 0, "no latency");
    if (closed->rule == DPAR_SCHEDULE_DUALPIPE || closed->rule == DPAR_SCHEDULE_DUALPIPEV) {
        dpari_closed_dual_idle(closed);
        return;
    }
    (void)dpari_closed_need(
        closed, closed->rule != DPAR_SCHEDULE_MOE_OVERLAP || closed->fb - closed->f == closed->b,
        "FB = F + B");
    dpari_closed_makespan(closed);
    if (closed->rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        closed->b = 0;
    }
    dpari_closed_work(closed, &work);
    closed->sum -= closed->unmet == NULL && !closed->over ? work : 0;
}

/* ---- activations ----------------------------------------------------------------------------- */

/* Adds the peak of a rule on a V or in two directions. */
static void dpari_closed_peak_folded(dpari_closed *closed, int64_t r)
{
    const int64_t p = closed->p;
    switch (closed->rule) {
    case DPAR_SCHEDULE_ZBV:
        (void)dpari_closed_need(closed, closed->m >= 2 * p - 1, "m >= 2 p - 1");
        dpari_closed_term(closed, "2 p", 2 * p, 1);
        break;
    case DPAR_SCHEDULE_V_HALF:
        dpari_closed_term(closed, "2 floor((p + 2) / 2)", 2 * ((p + 2) / 2), 1);
        break;
    case DPAR_SCHEDULE_V_MIN:
        dpari_closed_term(
            closed, r == 0 && p % 3 == 2 ? "2 floor((p + 4) / 3) - 1" : "2 floor((p + 4) / 3)",
            2 * ((p + 4) / 3) - (r == 0 && p % 3 == 2), 1);
        break;
    case DPAR_SCHEDULE_DUALPIPE: dpari_closed_term(closed, "p + 1", p + 1, 1); break;
    case DPAR_SCHEDULE_DUALPIPEV: dpari_closed_term(closed, "2 p + 1", 2 * p + 1, 1); break;
    case DPAR_SCHEDULE_CHIMERA:
        (void)dpari_closed_need(closed, closed->m % p == 0, "p divides m");
        dpari_closed_term(closed, "p / 2 + 1 + min(r, p - 1 - r)",
                          p / 2 + 1 + dpari_least(r, p - 1 - r), 1);
        break;
    default: (void)dpari_closed_need(closed, 0, ""); break;
    }
    if (closed->rule == DPAR_SCHEDULE_V_HALF || closed->rule == DPAR_SCHEDULE_V_MIN) {
        (void)dpari_closed_need(closed, p >= 2 && p <= 12 && closed->m >= 2 * p,
                                "2 <= p <= 12, m >= 2 p");
    }
}

DPARI_STATIC_NOINLINE void dpari_closed_peak(dpari_closed *closed, int64_t r)
{
    const int64_t p = closed->p, m = closed->m, v = closed->v;
    switch (closed->rule) {
    case DPAR_SCHEDULE_GPIPE:
    case DPAR_SCHEDULE_BREADTH_FIRST:
    case DPAR_SCHEDULE_FORWARD_ONLY: dpari_closed_term(closed, "m v", m * v, 1); break;
    case DPAR_SCHEDULE_1F1B:
        dpari_closed_term(closed, "min(p - r, m)", dpari_least(p - r, m), 1);
        break;
    case DPAR_SCHEDULE_EAGER_1F1B:
        dpari_closed_term(closed, "min(2 (p - r) - 1, m)", dpari_least(2 * (p - r) - 1, m), 1);
        break;
    case DPAR_SCHEDULE_INTERLEAVED:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        dpari_closed_term(closed, "min((v - 1) p + 2 (p - 1 - r) + 1, m v)",
                          dpari_least((v - 1) * p + 2 * (p - 1 - r) + 1, m * v), 1);
        break;
    case DPAR_SCHEDULE_ZB_H1: dpari_closed_term(closed, "min(p, m)", dpari_least(p, m), 1); break;
    case DPAR_SCHEDULE_ZB_2P:
        dpari_closed_term(closed, "min(2 p - 1, m)", dpari_least(2 * p - 1, m), 1);
        break;
    case DPAR_SCHEDULE_INTERLEAVED_ZB:
        (void)dpari_closed_need(closed, m % p == 0, "p divides m");
        dpari_closed_term(closed, "p v", p * v, 1);
        break;
    case DPAR_SCHEDULE_SEQ1F1B:
        dpari_closed_term(closed, "min(p - 1 - r + s, m s)", dpari_least(p - 1 - r + closed->s, m),
                          1);
        break;
    case DPAR_SCHEDULE_MOE_OVERLAP:
        (void)dpari_closed_need(closed, v == 1, "v = 1");
        dpari_closed_term(closed, "min(2 (p - r), m)", dpari_least(2 * (p - r), m), 1);
        break;
    default: dpari_closed_peak_folded(closed, r); return;
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Checks the order and the times, and sets the numbers of the formulas. */
static dpar_status dpari_closed_read(dpari_closed *closed, const dpar_schedule_desc *order,
                                     const dpar_schedule_times *times, dpar_why *why)
{
    dpar_status status = dpari_order_check(order, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(closed, sizeof(*closed));
    closed->rule = order->rule;
    closed->p = order->ranks;
    closed->v = dpari_order_chunks(order);
    closed->s = dpari_order_slices(order);
    closed->m = (int64_t)order->micro_batches * closed->s;
    closed->f = times->forward.all;
    closed->i = times->input.all;
    closed->w = times->weight.all;
    closed->b = times->backward.all;
    closed->c = times->latency.all;
    closed->fb = times->overlap.all;
    if (closed->f < 0 || closed->i < 0 || closed->w < 0 || closed->b < 0 || closed->c < 0 ||
        closed->fb < 0) {
        return dpari_wrong(
            why, "forward=%ld, input=%ld, weight=%ld, latency=%ld; all times must be 0 or more",
            closed->f, closed->i, closed->w, closed->c);
    }
    if (closed->i > INT64_MAX / 4 || closed->w > INT64_MAX / 4 || closed->f > INT64_MAX / 4 ||
        closed->b > INT64_MAX / 4 || closed->fb > INT64_MAX / 4) {
        return dpari_say(DPAR_E_RANGE, why,
                         "forward=%ld, input=%ld, weight=%ld; times must be at most INT64_MAX / 4",
                         closed->f, closed->i, closed->w);
    }
    closed->b = closed->b == 0 ? closed->i + closed->w : closed->b;
    closed->fb = closed->fb == 0 ? closed->f + closed->b : closed->fb;
    (void)dpari_closed_need(closed, order->rank_of == NULL, "rank_of is NULL");
    (void)dpari_closed_need(closed, order->group == 0 || order->group == order->ranks,
                            "groups have p micro-batches");
    return DPAR_OK;
}

/* True if all stages take the same times, and messages are buffered and have only a latency. */
static int dpari_closed_plain(const dpar_schedule_times *times)
{
    return times->forward.each == NULL && times->input.each == NULL && times->weight.each == NULL &&
           times->backward.each == NULL && times->overlap.each == NULL &&
           times->latency.each == NULL && times->bandwidth.each == NULL &&
           times->bandwidth.all == 0 && times->sends == DPAR_SEND_MODE_BUFFERED;
}

/* Evaluates the formula `what`. */
DPARI_STATIC_NOINLINE void dpari_closed_value(dpari_closed *closed,
                                              const dpar_schedule_times *times, int32_t what,
                                              int32_t rank)
{
    const int split = closed->rule == DPAR_SCHEDULE_ZB_H1 || closed->rule == DPAR_SCHEDULE_ZB_2P ||
                      closed->rule == DPAR_SCHEDULE_INTERLEAVED_ZB ||
                      closed->rule == DPAR_SCHEDULE_ZBV || closed->rule == DPAR_SCHEDULE_DUALPIPE ||
                      closed->rule == DPAR_SCHEDULE_DUALPIPEV;
    if (what == DPAR_FORMULA_PEAK) {
        dpari_closed_peak(closed, rank);
        return;
    }
    (void)dpari_closed_need(closed, dpari_closed_plain(times),
                            "all stages alike, and messages buffered with a latency only");
    (void)dpari_closed_need(closed, !split || closed->b == closed->i + closed->w, "B = I + W");
    if (what == DPAR_FORMULA_LATENCY) {
        dpari_closed_latency(closed);
    } else if (what == DPAR_FORMULA_SPAN) {
        dpari_closed_span(closed);
    } else if (what == DPAR_FORMULA_IDLE) {
        dpari_closed_idle(closed);
    } else {
        if (closed->c > 0) {
            dpari_closed_latency(closed);
        }
        dpari_closed_makespan(closed);
    }
}

/* Writes a message like "zbv: no formula gives the makespan, unless m >= 2 p - 1". */
static dpar_status dpari_closed_say(const dpari_closed *closed, const char *what, dpar_why *why)
{
    dpar_text t;
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpari_text_say(&t, "%s: no formula gives the %s%s%s", dpar_schedule_name(closed->rule),
                       what, closed->unmet[0] != 0 ? ", unless " : "", closed->unmet);
    }
    return DPAR_E_NONE;
}

/* Returns the text of the makespan's formula with its latency term. */
static const char *dpari_closed_late(int32_t rule)
{
    switch (rule) {
    case DPAR_SCHEDULE_1F1B: return "(m + p - 1) (F + B) + (2 (p - 2) + 2 m (p - 1) / p) c";
    case DPAR_SCHEDULE_INTERLEAVED: return "(m v + p - 1) (F + B) + 2 (p v - 1) c";
    case DPAR_SCHEDULE_ZB_H1: return "m (F + I + W) + (p - 1) (F + I - W) + 4 (p - 1) c";
    case DPAR_SCHEDULE_FORWARD_ONLY: return "(m v + p - 1) F + (p - 1) c";
    default: return "(m + p - 1) (F + B) + 2 (p - 1) c"; /* gpipe, eager-1f1b */
    }
}

static const char *dpari_closed_name(int32_t what)
{
    switch (what) {
    case DPAR_FORMULA_MAKESPAN: return "makespan";
    case DPAR_FORMULA_SPAN: return "span";
    case DPAR_FORMULA_LATENCY: return "latency term";
    case DPAR_FORMULA_IDLE: return "idle time";
    default: return "peak";
    }
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_closed_form(const dpar_schedule_desc *desc,
                                                          const dpar_schedule_times *times,
                                                          int32_t what, int32_t rank,
                                                          dpar_formula *formula, dpar_why *why)
{
    dpari_closed q;
    int late;
    dpar_status status = dpari_closed_read(&q, desc, times, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (what < 0 || what >= DPAR_FORMULA_COUNT || rank < 0 || rank >= desc->ranks) {
        return dpari_wrong(why, "formula %d of rank %d; formulas are 0 to %d and ranks 0 to %d",
                           what, rank, (int32_t)DPAR_FORMULA_COUNT - 1, desc->ranks - 1);
    }
    dpari_closed_value(&q, times, what, rank);
    if (q.unmet != NULL) {
        return dpari_closed_say(&q, dpari_closed_name(what), why);
    }
    if (q.over) {
        return dpari_say(DPAR_E_RANGE, why,
                         "%d micro-batches on %d ranks: the value exceeds INT64_MAX",
                         desc->micro_batches, desc->ranks);
    }
    late = what == DPAR_FORMULA_MAKESPAN ||
           (what == DPAR_FORMULA_SPAN && q.rule != DPAR_SCHEDULE_FORWARD_ONLY);
    formula->value = q.sum;
    formula->text = late && q.c > 0 ? dpari_closed_late(q.rule) : q.formula;
    return DPAR_OK;
}

/* ==== schedule/vshape.c ==== */

/* Makes schedules on a V with controlled memory. Each rank has a row of slots. A block of 6 slots
 * is repeated for each micro-batch. Then actions are moved to earlier slots, as far as free slots
 * and the memory limit allow, and each W takes the first free slot after its I. generate.c calls
 * dpari_v_make.
 */

/* The contents of a slot. F0 and F1 are the forwards of the stage on the way down and on the way
 * up, B1 and B0 their backwards: either I, or a whole B, which takes a second slot, TAIL. Each of
 * these four needs the one before it in this list, and the same kind on a neighbouring rank: F0 and
 * B1 pass the ranks from 0 to p-1, F1 and B0 from p-1 to 0. */
enum { DPARI_V_FREE, DPARI_V_F0, DPARI_V_F1, DPARI_V_B1, DPARI_V_B0, DPARI_V_W, DPARI_V_TAIL };
/* Indices of the numbers that are kept for each rank. The number of a kind is its next micro-batch.
 * The others are the next slot in which an action can start (END), the number of I whose W is
 * missing (OWED), and the slot of the last W. */
enum { DPARI_V_END = 0, DPARI_V_OWED = 6, DPARI_V_LAST_W = 7, DPARI_V_NUMBERS = 8 };

typedef struct dpari_v {
    int32_t p, m;    /* ranks and micro-batches */
    int32_t slots;   /* slots of a rank */
    int32_t tail;    /* 1 if backwards are whole B, which take a second slot */
    int32_t *when;   /* [p][4][m], the slot of F0, F1, B1 and B0 of a micro-batch */
    int32_t *live;   /* [p][slots], activations that the rank holds after a slot */
    int32_t *owed;   /* [p][slots], the number of I before or in a slot whose W comes later */
    int32_t *number; /* [p][DPARI_V_NUMBERS] */
    uint8_t *cell;   /* [p][slots], the contents of the slots */
} dpari_v;

/* Returns the slots of a rank. The last block starts before slot 6 m and ends about 8 p slots
 * later. The other slots are for W. */
static int32_t dpari_v_slots(int32_t p, int32_t m)
{
    return 8 * m + 8 * p + 24;
}

DPARI_INTERNAL int64_t dpari_v_work(int32_t p, int32_t m)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    return 4 * (4 * (int64_t)p * m + 2 * cells + (int64_t)p * DPARI_V_NUMBERS) + cells;
}

static void dpari_v_arrange(dpari_v *v, int32_t p, int32_t m, void *work)
{
    int64_t cells = (int64_t)p * dpari_v_slots(p, m);
    v->p = p;
    v->m = m;
    v->slots = dpari_v_slots(p, m);
    v->when = (int32_t *)work;
    v->live = v->when + 4 * (int64_t)p * m;
    v->owed = v->live + cells;
    v->number = v->owed + cells;
    v->cell = (uint8_t *)(v->number + (int64_t)p * DPARI_V_NUMBERS);
    dpari_zero(v->cell, (size_t)cells);
}

static uint8_t *dpari_v_row(const dpari_v *v, int32_t rank)
{
    return v->cell + (int64_t)rank * v->slots;
}

static int32_t *dpari_v_number(const dpari_v *v, int32_t rank)
{
    return v->number + (int64_t)rank * DPARI_V_NUMBERS;
}

static int32_t *dpari_v_when(const dpari_v *v, int32_t rank, int kind, int32_t micro)
{
    return v->when + ((int64_t)rank * 4 + kind - DPARI_V_F0) * v->m + micro;
}

/* Puts `kind` into slot `at` of a rank for micro-batch 0, and 6 slots later for each further one.
 */
static void dpari_v_repeat(dpari_v *v, int32_t rank, int kind, int32_t at)
{
    int32_t k;
    for (k = 0; k < v->m; k++) {
        *dpari_v_when(v, rank, kind, k) = at + 6 * k;
        dpari_v_row(v, rank)[at + 6 * k] = (uint8_t)kind;
        if (v->tail && kind >= DPARI_V_B1) {
            dpari_v_row(v, rank)[at + 6 * k + 1] = DPARI_V_TAIL;
        }
    }
}

/* Returns the last slot of all actions that must have ended before number k of a kind, or -1 if
 * there are none. The tail of a B counts if it is on another rank; on the same rank its slot is not
 * free in any case. */
static int32_t dpari_v_needs(const dpari_v *v, int32_t rank, int kind, int32_t k)
{
    int32_t from = kind == DPARI_V_F0 || kind == DPARI_V_B1 ? rank - 1 : rank + 1;
    int32_t tail = kind >= DPARI_V_B1 ? v->tail : 0;
    int32_t last = -1, own;
    if (from >= 0 && from < v->p) {
        last = *dpari_v_when(v, from, kind, k) + tail;
    }
    if (kind > DPARI_V_F0) {
        own = *dpari_v_when(v, rank, kind - 1, k);
        last = own > last ? own : last;
    }
    if (k > 0) {
        own = *dpari_v_when(v, rank, kind, k - 1);
        last = own > last ? own : last;
    }
    return last;
}

/* Zeroes the numbers of all ranks. */
static void dpari_v_restart(dpari_v *v)
{
    dpari_zero(v->number, sizeof(int32_t) * DPARI_V_NUMBERS * (size_t)v->p);
}

/* ---- V-Half and V-Min: I and W are separate -------------------------------------------------- */

/* Updates the activations and the owed W for a slot. If W have no slots of their own (`filled` is
 * 0), a free slot runs an owed one. */
static void dpari_v_step(int cell, int filled, int32_t *live, int32_t *owed)
{
    if (cell == DPARI_V_F0 || cell == DPARI_V_F1) {
        ++*live;
    } else if (cell == DPARI_V_B1 || cell == DPARI_V_B0) {
        ++*owed;
    } else if (cell == DPARI_V_W || (!filled && *owed > 0)) {
        --*live;
        --*owed;
    }
}

/* Computes live and owed of all slots. Returns the most activations that a rank holds. */
static int32_t dpari_v_peak(dpari_v *v, int filled)
{
    int32_t rank, t, most = 0;
    for (rank = 0; rank < v->p; rank++) {
        int64_t base = (int64_t)rank * v->slots;
        int32_t live = 0, owed = 0;
        for (t = 0; t < v->slots; t++) {
            dpari_v_step(v->cell[base + t], filled, &live, &owed);
            v->live[base + t] = live;
            v->owed[base + t] = owed;
            most = live > most ? live : most;
        }
    }
    return most;
}

/* Updates the numbers of a rank after an action has moved from slot `from` to the earlier slot
 * `to`. Returns 1 if the rank stays within `limit`. Writes the new numbers only if `keep` is 1.
 *
 * Stops at the first slot after which nothing changes any more. It is enough to compare `live`:
 * after slot `from` the same F and I have run as before the move, and live - owed is the difference
 * of their numbers. In the last slot nothing is live, so that the loop ends.
 */
static int dpari_v_replay(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                          int32_t limit, int keep)
{
    int64_t base = (int64_t)rank * v->slots;
    int32_t live = v->live[base + to - 1]; /* to > 0, because each moved action is after an F0 */
    int32_t owed = v->owed[base + to - 1];
    int32_t t;
    for (t = to;; t++) {
        dpari_v_step(v->cell[base + t], filled, &live, &owed);
        if (live > limit) {
            return 0;
        }
        if (t >= from && v->live[base + t] == live) {
            return 1;
        }
        if (keep) {
            v->live[base + t] = live;
            v->owed[base + t] = owed;
        }
    }
}

/* Moves the action in slot `from` to the first free slot of [to, from) that keeps the limit.
 * Returns its new slot, or `from` if it did not move. */
static int32_t dpari_v_advance(dpari_v *v, int32_t rank, int32_t to, int32_t from, int filled,
                               int32_t limit)
{
    uint8_t *row = dpari_v_row(v, rank);
    uint8_t kind = row[from];
    for (; to < from; to++) {
        if (row[to] != DPARI_V_FREE) {
            continue;
        }
        row[to] = kind;
        row[from] = DPARI_V_FREE;
        if (dpari_v_replay(v, rank, to, from, filled, limit, 0)) {
            (void)dpari_v_replay(v, rank, to, from, filled, limit, 1);
            return to;
        }
        row[to] = DPARI_V_FREE;
        row[from] = kind;
    }
    return from;
}

/* Gives every W the first free slot after its I. */
static void dpari_v_fill(dpari_v *v)
{
    int32_t rank, t;
    for (rank = 0; rank < v->p; rank++) {
        uint8_t *row = dpari_v_row(v, rank);
        int32_t owed = 0;
        for (t = 0; t < v->slots; t++) {
            if (row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0) {
                owed++;
            } else if (row[t] == DPARI_V_FREE && owed > 0) {
                row[t] = DPARI_V_W;
                owed--;
            }
        }
    }
}

/* Returns the slot of I number k of a rank, counting both stages. `done` I are before slot t. */
static int32_t dpari_v_input(const dpari_v *v, int32_t rank, int32_t t, int32_t done, int32_t k)
{
    const uint8_t *row = dpari_v_row(v, rank);
    while (done > k) {
        t--;
        done -= row[t] == DPARI_V_B1 || row[t] == DPARI_V_B0;
    }
    return t;
}

/* Moves the action in slot t of a rank, number k of its kind, to an earlier slot if possible. */
static void dpari_v_move(dpari_v *v, int32_t rank, int32_t t, int32_t k, int filled, int32_t limit)
{
    int kind = dpari_v_row(v, rank)[t];
    int32_t *number = dpari_v_number(v, rank);
    if (kind != DPARI_V_W) {
        *dpari_v_when(v, rank, kind, k) =
            dpari_v_advance(v, rank, dpari_v_needs(v, rank, kind, k) + 1, t, filled, limit);
    } else {
        int32_t input = dpari_v_input(v, rank, t, number[DPARI_V_B1] + number[DPARI_V_B0], k);
        int32_t to = (int32_t)dpari_most(input, number[DPARI_V_LAST_W]);
        number[DPARI_V_LAST_W] = dpari_v_advance(v, rank, to + 1, t, filled, limit);
    }
}

/* Moves actions to earlier slots, as far as their inputs and the current peak of memory allow: the
 * actions after the steady state, and with `filled` also those before it. The steady state (phase
 * 1) lasts from the first B0 of rank 0 to the F0 of the last micro-batch. */
static void dpari_v_reorder(dpari_v *v, int filled)
{
    int32_t limit = dpari_v_peak(v, filled);
    int32_t t, rank;
    int phase = 0;
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            int kind = dpari_v_row(v, rank)[t];
            int32_t *number = dpari_v_number(v, rank);
            int32_t k = number[kind]++;
            if (kind == DPARI_V_FREE) {
                continue;
            }
            phase += kind == DPARI_V_B0 && rank == 0 && phase == 0;
            if (phase == 2 || (phase == 0 && filled)) {
                dpari_v_move(v, rank, t, k, filled, limit);
            } else if (kind == DPARI_V_W) {
                number[DPARI_V_LAST_W] = t;
            }
            phase += kind == DPARI_V_F0 && k == v->m - 1 && phase == 1;
        }
    }
}

/* Compacts the slots: each rank runs its actions in their order and as early as possible, one slot
 * each. W take a slot of time, but their slots are marked as free again. */
static void dpari_v_squeeze(dpari_v *v, int filled)
{
    int32_t t, rank;
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            uint8_t *cell = dpari_v_row(v, rank) + t;
            int32_t *number = dpari_v_number(v, rank);
            int kind = *cell;
            if (kind == DPARI_V_FREE && (filled || number[DPARI_V_OWED] == 0)) {
                continue;
            }
            *cell = DPARI_V_FREE;
            if (kind == DPARI_V_FREE || kind == DPARI_V_W) {
                number[DPARI_V_OWED]--;
            } else {
                int32_t k = number[kind]++;
                int32_t at = dpari_v_needs(v, rank, kind, k) + 1;
                at = number[DPARI_V_END] > at ? number[DPARI_V_END] : at;
                number[DPARI_V_OWED] += kind >= DPARI_V_B1;
                number[DPARI_V_END] = at;
                *dpari_v_when(v, rank, kind, k) = at;
                dpari_v_row(v, rank)[at] = (uint8_t)kind;
            }
            number[DPARI_V_END]++;
        }
    }
}

/* Writes the blocks of V-Half. The pause keeps the kinds of a rank in different slots modulo 6. */
static void dpari_v_half_blocks(dpari_v *v)
{
    int32_t p = v->p, i, pause = p % 2 == 0 ? 3 : 0;
    for (i = 0; i < p; i++) {
        dpari_v_repeat(v, i, DPARI_V_F0, 2 * i);
        dpari_v_repeat(v, i, DPARI_V_F1, 3 * p - i - 2);
        dpari_v_repeat(v, i, DPARI_V_B1, 3 * p + pause + 2 * i - 1);
        dpari_v_repeat(v, i, DPARI_V_B0, 6 * p + pause - i - 2);
    }
}

/* Writes the blocks of V-Min. */
static void dpari_v_min_blocks(dpari_v *v)
{
    int32_t p = v->p, i, pause = p % 3 == 0 ? 2 : 0;
    for (i = 0; i < p; i++) {
        dpari_v_repeat(v, i, DPARI_V_F0, i);
        dpari_v_repeat(v, i, DPARI_V_F1, 2 * p - i - 1);
        dpari_v_repeat(v, i, DPARI_V_B1, 2 * p + pause + i);
        dpari_v_repeat(v, i, DPARI_V_B0, 4 * p + pause - i - 1);
    }
}

/* ---- 1F1B-V: whole backwards ----------------------------------------------------------------- */

/* Puts action i of the 2 p that go down the V, on ranks 0 to p - 1, and up again. */
static void dpari_v_leg(dpari_v *v, int32_t i, int32_t down, int32_t up, int32_t at)
{
    if (i < v->p) {
        dpari_v_repeat(v, i, down, at);
    } else {
        dpari_v_repeat(v, 2 * v->p - 1 - i, up, at);
    }
}

/* Writes the blocks of 1F1B-V: the forwards down and up the V, one slot each, then the backwards,
 * two slots each, with a pause of 3 slots after every third backward, so that no two kinds of a
 * rank are in the same slot modulo 6. */
static void dpari_v_whole_blocks(dpari_v *v)
{
    int32_t p = v->p, i, at = 7; /* the first slots are free, for moves */
    int32_t third = (3 - (p + 2) % 3) % 3;
    for (i = 0; i < 2 * p; i++, at++) {
        dpari_v_leg(v, i, DPARI_V_F0, DPARI_V_F1, at);
    }
    at += p % 3 == 0 ? 3 : 0;
    for (i = 0; i < 2 * p; i++) {
        dpari_v_leg(v, i, DPARI_V_B1, DPARI_V_B0, at);
        third = (third + 1) % 3;
        at += third == 0 ? 5 : 2;
    }
}

/* Moves number k of its kind from slot t to an earlier slot, and updates v->live. An F moves while
 * the rank holds less than `limit` after the previous slot. A B moves to the first two free slots
 * after the actions that it needs; its own slots count as free. Each action can move by at least
 * one slot, because every earlier action did: slot t - 1 is free, and the actions that it needs
 * have ended before it. */
static void dpari_v_bring(dpari_v *v, int32_t rank, int32_t t, int32_t k, int32_t limit)
{
    uint8_t *row = dpari_v_row(v, rank);
    int32_t *live = v->live + (int64_t)rank * v->slots;
    int kind = row[t], whole = kind >= DPARI_V_B1;
    int32_t first = dpari_v_needs(v, rank, kind, k) + 1, to = whole ? first : t, i;
    while (to > first && live[to - 1] < limit) {
        to--;
    }
    row[t] = row[t + whole] = DPARI_V_FREE;
    while (row[to] != DPARI_V_FREE || row[to + whole] != DPARI_V_FREE) {
        to++;
    }
    for (i = to; i < t; i++) {
        live[i + whole] += whole ? -1 : 1;
    }
    row[to + whole] = DPARI_V_TAIL;
    row[to] = (uint8_t)kind;
    *dpari_v_when(v, rank, kind, k) = to;
}

/* Computes the peak of memory, then moves all actions slot by slot without exceeding it. */
static void dpari_v_whole_moves(dpari_v *v)
{
    int32_t t, rank, most = 0;
    for (rank = 0; rank < v->p; rank++) {
        int32_t live = 0;
        for (t = 0; t < v->slots; t++) {
            int kind = dpari_v_row(v, rank)[t];
            live += kind == DPARI_V_F0 || kind == DPARI_V_F1;
            live -= kind == DPARI_V_TAIL;
            v->live[(int64_t)rank * v->slots + t] = live;
            most = live > most ? live : most;
        }
    }
    dpari_v_restart(v);
    for (t = 0; t < v->slots; t++) {
        for (rank = 0; rank < v->p; rank++) {
            int kind = dpari_v_row(v, rank)[t];
            if (kind != DPARI_V_FREE) { /* a tail has moved with its B */
                dpari_v_bring(v, rank, t, dpari_v_number(v, rank)[kind]++, most);
            }
        }
    }
}

/* ---- all three rules ------------------------------------------------------------------------- */

/* Writes a rank's slots as actions. Free slots run the missing W, first those of the stage on the
 * way up. */
static void dpari_v_write(const dpari_v *v, int32_t rank, dpar_action *at)
{
    const uint8_t *row = dpari_v_row(v, rank);
    int32_t stage[2], next[DPARI_V_W] = {0, 0, 0, 0, 0}, weight[2] = {0, 0}, t, s;
    stage[0] = rank;
    stage[1] = 2 * v->p - 1 - rank;
    for (t = 0; t < v->slots; t++) {
        int kind = row[t];
        if (kind == DPARI_V_F0 || kind == DPARI_V_F1) {
            *at++ = dpari_action_of(DPAR_ACTION_FORWARD, stage[kind == DPARI_V_F1], next[kind]++);
        } else if (kind == DPARI_V_B1 || kind == DPARI_V_B0) {
            *at++ = dpari_action_of(v->tail ? DPAR_ACTION_BACKWARD : DPAR_ACTION_INPUT,
                                    stage[kind == DPARI_V_B1], next[kind]++);
        } else if (kind == DPARI_V_FREE && !v->tail) {
            s = weight[1] < next[DPARI_V_B1];
            if (s || weight[0] < next[DPARI_V_B0]) {
                *at++ = dpari_action_of(DPAR_ACTION_WEIGHT, stage[s], weight[s]++);
            }
        }
    }
}

DPARI_INTERNAL void dpari_v_make(int32_t rule, const dpar_schedule *schedule, void *work)
{
    dpari_v v;
    int32_t rank;
    dpari_v_arrange(&v, schedule->ranks, schedule->micro_batches, work);
    v.tail = rule == DPAR_SCHEDULE_1F1B_V;
    if (v.tail) {
        dpari_v_whole_blocks(&v);
        dpari_v_whole_moves(&v);
    } else {
        if (rule == DPAR_SCHEDULE_V_HALF) {
            dpari_v_half_blocks(&v);
        } else {
            dpari_v_min_blocks(&v);
        }
        dpari_v_fill(&v);
        dpari_v_reorder(&v, 1);
        dpari_v_squeeze(&v, 1);
        dpari_v_reorder(&v, 0);
        dpari_v_squeeze(&v, 0);
    }
    for (rank = 0; rank < v.p; rank++) {
        dpari_v_write(&v, rank, schedule->action + schedule->begin[schedule->rank_of[rank]]);
    }
}

/* ==== schedule/exact.c ==== */

/* Checks jobs, computes lower bounds, and searches for the best schedule of a tiny job. The search
 * is a depth-first branch and bound over the decisions of the rank that is free first. A table
 * keeps the states that were searched to the end, with times relative to the state's time, so that
 * they are not searched again. optimize.c and partition.c call it. */

enum { DPARI_MOST_SUM = 60 }; /* sums of times and bytes are at most 2^60 */

/* ---- the job --------------------------------------------------------------------------------- */

/* Checks the numbers of a job that are not times or bytes. */
static dpar_status dpari_job_shape(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    int32_t s, r;
    if (job->ranks < 1 || job->ranks > DPARI_OPTIMIZE_MAX_RANKS || job->stages < job->ranks ||
        job->stages > DPARI_OPTIMIZE_MAX_STAGES || job->micro_batches < 1 ||
        job->micro_batches > DPAR_MAX_MICRO_BATCHES ||
        (int64_t)job->stages * job->micro_batches > (INT64_C(1) << 28)) {
        return dpari_wrong(why,
                           "%d ranks, %d stages and %d micro-batches; 1 to 4096, 16384 and 65535 "
                           "are allowed, with "
                           "stages >= ranks and stages x micro-batches <= 2^28",
                           job->ranks, job->stages, job->micro_batches);
    }
    if (job->times == NULL || job->split < 0 || job->split > 1 || job->objective < 0 ||
        job->objective > DPAR_OBJECTIVE_SPAN) {
        return dpari_wrong(why,
                           "split=%d and objective=%d must be 0 or 1, and times must not be NULL",
                           job->split, job->objective);
    }
    if (job->rank_of == NULL && job->map != DPAR_STAGE_MAP_LOOP && job->map != DPAR_STAGE_MAP_V) {
        return dpari_wrong(why, "map=%d; DPAR_STAGE_MAP_LOOP and DPAR_STAGE_MAP_V are allowed",
                           job->map);
    }
    for (s = 0; s < job->stages; s++) {
        r = dpari_pipe_rank(job, s);
        if (r >= job->ranks) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", s, r,
                               job->ranks);
        }
    }
    return DPAR_OK;
}

/* Adds value to *sum and returns 1 if both the value and the new sum are 0 to 2^60. */
static int dpari_job_add(int64_t *sum, int64_t value)
{
    const int64_t most = INT64_C(1) << DPARI_MOST_SUM;
    if (value < 0 || value > most || *sum > most - value) {
        return 0;
    }
    *sum += value;
    return 1;
}

/* Checks that times are 0 or more and that their sum over all micro-batches is at most 2^60, so
 * that no later sum overflows. */
static dpar_status dpari_job_times(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    const dpar_schedule_times *times = job->times;
    int64_t sum = 0, all;
    int32_t s;
    for (s = 0; s < job->stages; s++) {
        int64_t f = dpari_each_at(&times->forward, s), i = dpari_each_at(&times->input, s);
        int64_t w = dpari_each_at(&times->weight, s), b = dpari_each_at(&times->backward, s);
        int64_t wide = dpari_each_at(&times->bandwidth, s), lag;
        if (dpari_each_at(&times->latency, s) < 0 || dpari_each_at(&times->bytes, s) < 0 ||
            wide < 0 || wide > INT64_MAX / 10 || f < 0 || i < 0 || w < 0 || b < 0) {
            return dpari_wrong(
                why,
                "stage %d: times, latency and bytes must be 0 or more, and bandwidth "
                "0 to INT64_MAX / 10",
                s);
        }
        lag = dpari_each_at(&times->latency, s) > (INT64_C(1) << DPARI_MOST_SUM)
                  ? INT64_MAX
                  : dpari_pipe_message(times, s);
        if (!dpari_job_add(&sum, f) || !dpari_job_add(&sum, i) || !dpari_job_add(&sum, w) ||
            !dpari_job_add(&sum, b) || !dpari_job_add(&sum, lag) || !dpari_job_add(&sum, lag)) {
            return dpari_say(DPAR_E_RANGE, why,
                             "the times of stages 0 to %d add up to more than 2^60", s);
        }
    }
    if (!dpari_mul(sum, job->micro_batches, &all) || all > (INT64_C(1) << DPARI_MOST_SUM)) {
        return dpari_say(DPAR_E_RANGE, why, "%d micro-batches of %ld units of time exceed 2^60",
                         job->micro_batches, sum);
    }
    return DPAR_OK;
}

/* Checks that I and W free the bytes that F takes, and that the bytes of all micro-batches are at
 * most 2^60. */
static dpar_status dpari_job_holds(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    int64_t sum = 0, each = 0, all;
    int32_t s;
    for (s = 0; s < job->stages; s++) {
        int64_t f = dpari_pipe_hold(job->times, DPARI_F, s);
        int64_t i = dpari_pipe_hold(job->times, DPARI_I, s);
        int64_t w = dpari_pipe_hold(job->times, DPARI_W, s);
        if (f < 0 || i > 0 || w > 0 || i < -f || w != -f - i ||
            dpari_each_at(&job->times->hold_always, s) < 0) {
            return dpari_wrong(why,
                               "stage %d holds %ld for F, %ld for I and %ld for W; I and W must "
                               "free what F takes, "
                               "and hold_always must be 0 or more",
                               s, f, i, w);
        }
        if (!dpari_job_add(&sum, f) ||
            !dpari_job_add(&each, dpari_each_at(&job->times->hold_always, s))) {
            return dpari_say(DPAR_E_RANGE, why,
                             "hold_forward or hold_always of stages 0 to %d adds up to more than "
                             "2^60 bytes",
                             s);
        }
    }
    if (!dpari_mul(sum, job->micro_batches, &all) || all > (INT64_C(1) << DPARI_MOST_SUM)) {
        return dpari_say(DPAR_E_RANGE, why, "%d micro-batches of %ld bytes exceed 2^60",
                         job->micro_batches, sum);
    }
    return DPAR_OK;
}

/* Checks that a rank has a stage, and that one micro-batch fits on all its stages together. */
static dpar_status dpari_job_fits(const dpar_schedule_optimize_desc *job, int32_t rank,
                                  dpar_why *why)
{
    int64_t cap = dpari_each_at(&job->cap, rank), need = 0, always = 0, one = -1;
    int32_t s, stages = 0, alike = 1;
    for (s = 0; s < job->stages; s++) {
        int64_t f;
        if (dpari_pipe_rank(job, s) != rank) {
            continue;
        }
        f = dpari_pipe_hold(job->times, DPARI_F, s);
        alike = alike && (one < 0 || one == f);
        one = f;
        need += f;
        always += dpari_each_at(&job->times->hold_always, s);
        stages++;
    }
    if (stages == 0 || cap < 0) {
        return dpari_wrong(
            why, "rank %d has %d stages and a cap of %ld; 1 or more and 0 or more are allowed",
            rank, stages, cap);
    }
    if (cap == 0 || need <= cap - always) {
        return DPAR_OK;
    }
    if (alike && always == 0) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "cannot fit: rank %d needs %d activations of %ld bytes, its cap is %ld",
                         rank, stages, one, cap);
    }
    return dpari_say(DPAR_E_MEMORY, why,
                     "cannot fit: rank %d holds %ld bytes always and needs %ld more for one "
                     "micro-batch, its cap is %ld",
                     rank, always, need, cap);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pipe_check(const dpar_schedule_optimize_desc *job,
                                                       dpar_why *why)
{
    dpar_status st = dpari_job_shape(job, why);
    int32_t r;
    if (st == DPAR_OK) {
        st = dpari_job_times(job, why);
    }
    if (st == DPAR_OK) {
        st = dpari_job_holds(job, why);
    }
    for (r = 0; r < job->ranks && st == DPAR_OK; r++) {
        st = dpari_job_fits(job, r, why);
    }
    return st;
}

DPARI_INTERNAL int64_t dpari_pipe_actions(const dpar_schedule_optimize_desc *job)
{
    return (int64_t)job->stages * job->micro_batches * (job->split ? 3 : 2);
}

/* The least times of one micro-batch along the chain, as seen from one stage. */
typedef struct dpari_chain {
    int64_t way;  /* the whole chain: all F, all I, all messages, and the W of stage 0 */
    int64_t head; /* from the start of the chain to the start of the stage's F */
    int64_t back; /* from the end of the stage's I to the end of stage 0's I */
} dpari_chain;

/* Returns the time of a message from a stage to the next one, or 0 if both are on the same rank. */
static int64_t dpari_job_lag(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    return stage + 1 < job->stages && dpari_pipe_rank(job, stage) != dpari_pipe_rank(job, stage + 1)
               ? dpari_pipe_message(job->times, stage)
               : 0;
}

DPARI_STATIC_NOINLINE int64_t dpari_job_weight(const dpar_schedule_optimize_desc *job,
                                               int32_t stage)
{
    return job->split ? dpari_each_at(&job->times->weight, stage) : 0;
}

/* Returns the least time that a stage's activation is held, from the start of F to the end of I. */
static int64_t dpari_bound_hold(const dpar_schedule_optimize_desc *job, const dpari_chain *c)
{
    return c->way - c->head - c->back - dpari_job_weight(job, 0);
}

/* Moves *c from a stage to the next one. */
static void dpari_bound_step(const dpar_schedule_optimize_desc *job, int32_t stage, dpari_chain *c)
{
    c->head += dpari_each_at(&job->times->forward, stage) + dpari_job_lag(job, stage);
    c->back += dpari_pipe_back(job, stage) + dpari_job_lag(job, stage);
}

/* Returns the bound from the cap of a rank: the sum of bytes x time over all its activations,
 * divided by the cap. Bytes are rounded down and the cap up to multiples of about 2^-20 of the cap,
 * so that products fit into 64 bits and the result is still a lower bound. Returns 0 if a product
 * overflows nevertheless. */
static int64_t dpari_bound_area(const dpar_schedule_optimize_desc *job, int32_t first,
                                const dpari_chain *chain)
{
    dpari_chain c = *chain;
    int32_t s, r = dpari_pipe_rank(job, first);
    int64_t cap = dpari_each_at(&job->cap, r), area = 0, part, unit = 1 + (cap >> 20);
    for (s = first; s < job->stages && cap > 0; s++) {
        if (dpari_pipe_rank(job, s) == r) {
            int64_t f = dpari_pipe_hold(job->times, DPARI_F, s);
            int64_t w = job->split ? -dpari_pipe_hold(job->times, DPARI_W, s) : 0;
            if (!dpari_mul(f / unit, dpari_bound_hold(job, &c), &part) ||
                !dpari_job_add(&area, part) ||
                !dpari_mul(w / unit, dpari_job_weight(job, s), &part) ||
                !dpari_job_add(&area, part)) {
                return 0;
            }
        }
        dpari_bound_step(job, s, &c);
    }
    if (cap == 0 || !dpari_mul(area, job->micro_batches, &area)) {
        return 0;
    }
    return dpari_ceil_div(area, dpari_ceil_div(cap, unit)) +
           (job->objective == DPAR_OBJECTIVE_MAKESPAN ? chain->head : 0);
}

/* Returns the bound of a rank whose first stage is `first`; *chain is at that stage. */
static int64_t dpari_bound_rank(const dpar_schedule_optimize_desc *job, int32_t first,
                                const dpari_chain *chain)
{
    int64_t pass = 0, weight = 0; /* times of all F and I, and of all W, of the rank */
    int64_t bound;
    int32_t s, r = dpari_pipe_rank(job, first);
    for (s = first; s < job->stages; s++) {
        if (dpari_pipe_rank(job, s) == r) {
            pass += dpari_each_at(&job->times->forward, s) + dpari_pipe_back(job, s);
            weight += dpari_job_weight(job, s);
        }
    }
    pass *= job->micro_batches;
    weight *= job->micro_batches;
    bound = pass + weight;
    if (job->objective == DPAR_OBJECTIVE_MAKESPAN) {
        bound = chain->head + pass +
                dpari_most(weight, first > 0 ? chain->back + dpari_job_weight(job, 0)
                                             : dpari_job_weight(job, first));
    }
    return dpari_most(bound, dpari_bound_area(job, first, chain));
}

/* Returns the bound of a stage. One micro-batch passes the whole chain, and the stage runs the F of
 * all others before it, or the I of all others after it. If only `fit` activations fit, the
 * micro-batches of the stage also take turns. */
static int64_t dpari_bound_stage(const dpar_schedule_optimize_desc *job, int32_t s,
                                 const dpari_chain *c)
{
    int64_t f = dpari_each_at(&job->times->forward, s), i = dpari_pipe_back(job, s);
    int64_t one = dpari_pipe_hold(job->times, DPARI_F, s), best = 0, fit;
    int64_t cap = dpari_each_at(&job->cap, dpari_pipe_rank(job, s));
    int whole = !job->split || dpari_pipe_hold(job->times, DPARI_I, s) == 0;
    if (job->objective == DPAR_OBJECTIVE_MAKESPAN ||
        dpari_pipe_rank(job, s) == dpari_pipe_rank(job, 0)) {
        best = c->way + (job->micro_batches - 1) * dpari_most(f, i);
    }
    if (cap == 0 || one == 0) {
        return best;
    }
    fit = cap / one; /* at least 1, because the job was checked */
    if (fit < job->micro_batches) {
        int64_t held = dpari_bound_hold(job, c) + (whole ? dpari_job_weight(job, s) : 0);
        int64_t late = job->objective == DPAR_OBJECTIVE_MAKESPAN ? c->head : 0;
        best = dpari_most(best, late + dpari_ceil_div(job->micro_batches, fit) * held);
    }
    return best;
}

DPARI_INTERNAL int64_t dpari_pipe_bound(const dpar_schedule_optimize_desc *job)
{
    dpari_chain c;
    int64_t bound = 0;
    int32_t s;
    if (dpari_pipe_check(job, NULL) != DPAR_OK) {
        return -1;
    }
    dpari_zero(&c, sizeof(c));
    for (s = 0; s < job->stages; s++) {
        c.way += dpari_each_at(&job->times->forward, s) + dpari_pipe_back(job, s) +
                 2 * dpari_job_lag(job, s);
    }
    c.way += dpari_job_weight(job, 0);
    for (s = 0; s < job->stages; s++) {
        int32_t r = dpari_pipe_rank(job, s), k = 0;
        while (dpari_pipe_rank(job, k) != r) {
            k++;
        }
        if (k == s) {
            bound = dpari_most(bound, dpari_bound_rank(job, s, &c));
        }
        bound = dpari_most(bound, dpari_bound_stage(job, s, &c));
        dpari_bound_step(job, s, &c);
    }
    return bound;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* The largest job of a search. The counts in a key have 8 bits, which limits micro-batches. */
enum { DPARI_EXACT_STAGES = 24, DPARI_EXACT_RANKS = 12, DPARI_EXACT_MICROS = 255 };
enum {
    DPARI_WAIT = 3,  /* a kind: the rank waits */
    DPARI_LATE = 3,  /* messages in flight to a stage and kind in a key, whose count has 2 bits */
    DPARI_PROBES = 4 /* slots of the table that are tried for a key */
};

/* A decision on the path from the root of the search: rank `rank` is free at time `at`. It runs the
 * action `kind` of `stage`, or waits. free, seen and start are the rank's values before the
 * decision. */
typedef struct dpari_place {
    int64_t at, free, seen, start;
    int64_t arrives; /* the earliest time at which another input can reach the rank */
    int32_t rank;
    int32_t choice;      /* the number of alternatives that were tried */
    int32_t kind, stage; /* kind is DPARI_WAIT if no action is started */
} dpari_place;

/* The state of a search. An entry of the table has the times `since`, a hash that is not 0, and the
 * key. For the makespan there is one time, that of the state; for the span there is each rank's
 * time since its start. A state need not be searched again if it was searched before with times
 * that are not larger. */
typedef struct dpari_search {
    dpari_pipe q;
    /* [ranks], the time at which the rank decided to wait, or DPARI_NEVER. It then does not start
     * any action that was ready at that time before another input arrives. */
    int64_t *seen;
    int32_t span;        /* 1 if the objective is the span */
    int64_t best, bound; /* the smallest objective so far, and its lower bound */
    int64_t nodes, most; /* the states entered so far, and the most that may be */
    dpari_place *place;  /* the path from the root, `depth` decisions */
    int64_t depth, actions;
    uint32_t *key;  /* [keys] */
    int64_t *since; /* [sinces] */
    char *table;    /* [entries], each of `size` bytes */
    int64_t entries;
    int32_t keys, sinces, size;
} dpari_search;

/* True if the stage's next action of this kind is ready at time `at` and the rank may choose it. */
static int dpari_exact_ready(const dpari_search *search, int kind, int32_t s, int64_t at)
{
    int32_t r = search->q.rank[s];
    int64_t arrival;
    if (!dpari_pipe_may(&search->q, kind, s)) {
        return 0;
    }
    if (kind == DPARI_W) {
        return search->seen[r] == DPARI_NEVER;
    }
    arrival = dpari_pipe_arrival(&search->q, kind, s);
    return arrival != DPARI_NEVER && arrival <= at && arrival > search->seen[r];
}

/* Returns the first time at which the rank has a decision to make, or INT64_MAX if none is known.
 */
static int64_t dpari_exact_wake(const dpari_search *search, int32_t r)
{
    const dpari_pipe *pipe = &search->q;
    int64_t wake = INT64_MAX;
    int32_t i, kind;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        for (kind = DPARI_F; kind <= DPARI_W; kind++) {
            int64_t at = 0;
            if (!dpari_pipe_may(pipe, kind, pipe->list[i])) {
                continue;
            }
            if (kind != DPARI_W) {
                at = dpari_pipe_arrival(pipe, kind, pipe->list[i]);
            }
            if (at == DPARI_NEVER || at <= search->seen[r]) {
                continue;
            }
            wake = dpari_least(wake, dpari_most(at, pipe->free[r]));
        }
    }
    return wake;
}

/* Computes for each stage and kind the earliest time at which the input of its next action can
 * arrive, pipe->next. Computes for each rank the earliest time at which it can continue, pipe->sum,
 * which is INT64_MAX if it has nothing left to run. */
static void dpari_exact_arrivals(dpari_search *search)
{
    dpari_pipe *pipe = &search->q;
    int32_t k, s, r, back;
    for (r = 0; r < pipe->ranks; r++) {
        pipe->sum[r] = INT64_MAX;
    }
    for (k = 0; k < 2 * pipe->stages; k++) {
        int kind;
        int64_t at, *next;
        back = k >= pipe->stages;
        kind = back ? DPARI_I : DPARI_F;
        s = back ? 2 * pipe->stages - 1 - k : k;
        r = pipe->rank[s];
        next = &pipe->next[kind][s];
        at = dpari_pipe_arrival(pipe, kind, s);
        if (at == DPARI_NEVER) {              /* its producer has not started */
            int32_t loss = k == pipe->stages; /* the I of the last stage follows its own F */
            int32_t from = back ? s + 1 : s - 1;
            int of = loss ? DPARI_F : kind;
            if (loss) {
                from = s;
            }
            at = dpari_most(pipe->free[pipe->rank[from]], pipe->next[of][from]) +
                 pipe->time[of][from];
            if (!loss) {
                at += pipe->lag[back ? s : from];
            }
        }
        *next = at;
        if (dpari_pipe_may(pipe, kind, s) && at > search->seen[r]) {
            pipe->sum[r] = dpari_least(pipe->sum[r], at);
        }
        if (back && search->seen[r] == DPARI_NEVER && dpari_pipe_may(pipe, DPARI_W, s)) {
            pipe->sum[r] = 0;
        }
    }
    for (r = 0; r < pipe->ranks; r++) {
        pipe->sum[r] = dpari_most(pipe->sum[r], pipe->free[r]);
    }
}

/* Returns the time of all remaining actions of a stage and kind. */
static int64_t dpari_exact_left(const dpari_pipe *pipe, int kind, int32_t s)
{
    return (pipe->micros - pipe->done[kind][s]) * pipe->time[kind][s];
}

/* Returns the time from which the objective counts for a rank: 0 for the makespan, for the span its
 * start, or `fallback` if it has not started. */
static int64_t dpari_exact_zero(const dpari_search *search, int32_t r, int64_t fallback)
{
    if (!search->span) {
        return 0;
    }
    return search->q.start[r] != DPARI_NEVER ? search->q.start[r] : fallback;
}

/* Returns a lower bound of the objective of all schedules that continue from this state. In the
 * first pass, down the chain, a stage ends its last F after all remaining F of its rank on this
 * stage and earlier ones. In the second pass, up the chain, it ends its last I after all F of the
 * rank and all I on this stage and later ones. Finally all W are added. */
static int64_t dpari_exact_bound(dpari_search *search)
{
    dpari_pipe *pipe = &search->q;
    int64_t chain = 0, bound = 0;
    int32_t s, r, last = pipe->micros - 1;
    dpari_exact_arrivals(search);
    for (r = 0; r < pipe->ranks; r++) {
        if (pipe->sum[r] == INT64_MAX) { /* nothing is left that could start after `seen` */
            pipe->sum[r] = pipe->free[r];
        }
    }
    for (s = 0; s < pipe->stages; s++) {
        int64_t left = dpari_exact_left(pipe, DPARI_F, s);
        r = pipe->rank[s];
        pipe->sum[r] += left;
        chain += s > 0 ? pipe->lag[s - 1] : 0;
        chain = left > 0 ? dpari_most(pipe->sum[r], chain + pipe->time[DPARI_F][s])
                         : pipe->end[DPARI_F][(int64_t)s * pipe->micros + last];
    }
    for (s = pipe->stages - 1; s >= 0; s--) {
        int64_t left = dpari_exact_left(pipe, DPARI_I, s), whole;
        r = pipe->rank[s];
        pipe->sum[r] += left;
        chain += pipe->lag[s];
        chain = pipe->done[DPARI_I][s] <= last
                    ? dpari_most(pipe->sum[r], chain + pipe->time[DPARI_I][s])
                    : pipe->end[DPARI_I][(int64_t)s * pipe->micros + last];
        whole =
            chain + (pipe->split && pipe->done[DPARI_W][s] <= last ? pipe->time[DPARI_W][s] : 0);
        bound = dpari_most(bound, whole - dpari_exact_zero(search, r, whole));
    }
    for (s = 0; s < pipe->stages && pipe->split; s++) {
        pipe->sum[pipe->rank[s]] += dpari_exact_left(pipe, DPARI_W, s);
    }
    for (r = 0; r < pipe->ranks; r++) {
        bound = dpari_most(bound, pipe->sum[r] - dpari_exact_zero(search, r, pipe->sum[r]));
    }
    return bound;
}

/* Appends to the key, for each message to a stage that has not arrived at time `at`, the time until
 * its arrival. Messages whose producer is still running are included. Returns the number of
 * messages, or -1 if the key has no capacity for them. */
static int32_t dpari_exact_late(const dpari_search *search, int kind, int32_t s, int64_t at,
                                int32_t *used)
{
    const dpari_pipe *pipe = &search->q;
    int32_t from = kind == DPARI_F ? s - 1 : s + 1, k, count = 0;
    if (from < 0 || from >= pipe->stages || pipe->rank[from] == pipe->rank[s]) {
        return 0;
    }
    for (k = pipe->done[kind][from] - 1; k >= pipe->done[kind][s]; k--) {
        int64_t arrival = pipe->end[kind][(int64_t)from * pipe->micros + k] +
                          pipe->lag[kind == DPARI_F ? from : s];
        if (arrival <= dpari_most(at, pipe->free[pipe->rank[s]])) {
            break;
        }
        if (count == DPARI_LATE || *used == search->keys) {
            return -1;
        }
        search->key[(*used)++] = (uint32_t)(arrival - at);
        count++;
    }
    return count;
}

/* Computes the key of the state at time `at` and its times. Times in search->key are relative to
 * `at`, those in search->since are not. Returns 0 if the state does not fit into a key. */
static int dpari_exact_key(dpari_search *search, int64_t at)
{
    const dpari_pipe *pipe = &search->q;
    int32_t s, r, used = pipe->stages + pipe->ranks;
    dpari_zero(search->key + used, 4 * (size_t)(search->keys - used));
    for (s = 0; s < pipe->stages; s++) {
        int64_t seen = search->seen[pipe->rank[s]];
        int64_t f = dpari_pipe_arrival(pipe, DPARI_F, s), i = dpari_pipe_arrival(pipe, DPARI_I, s);
        int32_t late_f = dpari_exact_late(search, DPARI_F, s, at, &used);
        int32_t late_i = dpari_exact_late(search, DPARI_I, s, at, &used);
        if (late_f < 0 || late_i < 0) {
            return 0;
        }
        search->key[s] = (uint32_t)pipe->done[0][s] | (uint32_t)pipe->done[1][s] << 8 |
                         (uint32_t)pipe->done[2][s] << 16 | (uint32_t)late_f << 24 |
                         (uint32_t)late_i << 26 | (uint32_t)(seen != DPARI_NEVER) << 28 |
                         (uint32_t)(f != DPARI_NEVER && f <= seen) << 29 |
                         (uint32_t)(i != DPARI_NEVER && i <= seen) << 30;
    }
    for (r = 0; r < pipe->ranks; r++) {
        search->key[pipe->stages + r] = (uint32_t)dpari_most(pipe->free[r] - at, 0);
        if (search->span) {
            search->since[r] = pipe->start[r] == DPARI_NEVER ? 0 : at - pipe->start[r];
        }
    }
    if (!search->span) {
        search->since[0] = at;
    }
    return 1;
}

/* Returns the slot of the table that has the key (*found is 1), or the slot in which to store it.
 */
static char *dpari_exact_slot(const dpari_search *search, uint32_t *name, int *found)
{
    uint64_t h = UINT64_C(0x9E3779B97F4A7C15);
    char *slot = NULL, *home = NULL;
    int32_t k, i;
    for (k = 0; k < search->keys; k++) {
        h = (h ^ search->key[k]) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 29;
    }
    *name = (uint32_t)h | 1;
    *found = 0;
    for (i = 0; i < DPARI_PROBES; i++) {
        const uint32_t *has;
        slot = search->table + ((int64_t)((h >> 33) % (uint64_t)search->entries) + i) %
                                   search->entries * (int64_t)search->size;
        has = (const uint32_t *)(const void *)(slot + 8 * search->sinces);
        if (has[0] == *name) {
            k = 0;
            while (k < search->keys && has[k + 1] == search->key[k]) {
                k++;
            }
            if (k == search->keys) {
                *found = 1;
                return slot;
            }
        }
        if (has[0] == 0) {
            return slot;
        }
        home = home == NULL ? slot : home;
    }
    return home;
}

/* True if this state was searched to the end before, with times that are not larger. */
static int dpari_exact_known(dpari_search *search, int64_t at)
{
    uint32_t name;
    int found = 0, k;
    const int64_t *since;
    if (!dpari_exact_key(search, at)) {
        return 0;
    }
    since = (const int64_t *)(const void *)dpari_exact_slot(search, &name, &found);
    for (k = 0; found && k < search->sinces; k++) {
        found = since[k] <= search->since[k];
    }
    return found;
}

/* Stores a state that was searched to the end. */
static void dpari_exact_keep(dpari_search *search, int64_t at)
{
    uint32_t name, *has;
    int found, k;
    int64_t *since;
    if (!dpari_exact_key(search, at)) {
        return;
    }
    since = (int64_t *)(void *)dpari_exact_slot(search, &name, &found);
    has = (uint32_t *)(void *)(since + search->sinces);
    has[0] = name;
    for (k = 0; k < search->keys; k++) {
        has[k + 1] = search->key[k];
    }
    for (k = 0; k < search->sinces; k++) {
        since[k] = search->since[k];
    }
}

/* Finds the rank that decides next, and the time. Returns 0 if there is none. */
static int dpari_exact_turn(const dpari_search *search, int32_t *rank, int64_t *at)
{
    int32_t r;
    *at = INT64_MAX;
    for (r = 0; r < search->q.ranks; r++) {
        int64_t wake = dpari_exact_wake(search, r);
        if (wake < *at) {
            *at = wake;
            *rank = r;
        }
    }
    return *at != INT64_MAX;
}

/* True if an earlier stage of the rank has a W with the same time and bytes, so that this one need
 * not be tried. */
static int dpari_exact_twin(const dpari_search *search, int32_t s)
{
    const dpari_pipe *pipe = &search->q;
    int32_t i, r = pipe->rank[s];
    for (i = pipe->first[r]; pipe->list[i] < s; i++) {
        int32_t o = pipe->list[i];
        if (dpari_pipe_may(pipe, DPARI_W, o) && pipe->time[DPARI_W][o] == pipe->time[DPARI_W][s] &&
            pipe->hold[DPARI_W][o] == pipe->hold[DPARI_W][s]) {
            return 1;
        }
    }
    return 0;
}

/* True if it may help that the rank waits. It cannot help if no input can arrive, or if an action
 * that takes no memory ends before the next arrival. Without a cap an F is such an action, too,
 * except for the span, because an early F may start the clock of another rank. */
static int dpari_exact_may_wait(const dpari_search *search, const dpari_place *place)
{
    const dpari_pipe *pipe = &search->q;
    int32_t i, kind;
    if (place->arrives == INT64_MAX) {
        return 0;
    }
    for (i = pipe->first[place->rank]; i < pipe->first[place->rank + 1]; i++) {
        for (kind = DPARI_F; kind <= DPARI_W; kind++) {
            int32_t s = pipe->list[i];
            if ((kind != DPARI_F || (pipe->cap[place->rank] == INT64_MAX && !search->span)) &&
                dpari_exact_ready(search, kind, s, place->at) &&
                pipe->time[kind][s] <= place->arrives - place->at) {
                return 0;
            }
        }
    }
    return 1;
}

/* Sets the next alternative of a decision: the I of the rank's stages, then F, then W, each from
 * the last stage to the first, and finally waiting. Returns 0 if there is none left. */
static int dpari_exact_choose(dpari_search *search, dpari_place *place)
{
    static const int order[] = {DPARI_I, DPARI_F, DPARI_W};
    const dpari_pipe *pipe = &search->q;
    int32_t first = pipe->first[place->rank], count = pipe->first[place->rank + 1] - first;
    for (; place->choice < 3 * count; place->choice++) {
        place->kind = order[place->choice / count];
        place->stage = pipe->list[first + count - 1 - place->choice % count];
        if (dpari_exact_ready(search, place->kind, place->stage, place->at) &&
            !(place->kind == DPARI_W && dpari_exact_twin(search, place->stage))) {
            place->choice++;
            return 1;
        }
    }
    place->kind = DPARI_WAIT;
    return place->choice++ == 3 * count && dpari_exact_may_wait(search, place);
}

/* Carries out a decision, and keeps the values that dpari_exact_undo needs. */
static void dpari_exact_do(dpari_search *search, dpari_place *place)
{
    dpari_pipe *pipe = &search->q;
    place->free = pipe->free[place->rank];
    place->seen = search->seen[place->rank];
    place->start = pipe->start[place->rank];
    if (place->kind == DPARI_WAIT) {
        search->seen[place->rank] = place->at;
    } else {
        dpari_pipe_put(pipe, place->kind, place->stage);
        search->seen[place->rank] = DPARI_NEVER;
        search->actions++;
    }
}

static void dpari_exact_undo(dpari_search *search, const dpari_place *place)
{
    dpari_pipe *pipe = &search->q;
    pipe->free[place->rank] = place->free;
    search->seen[place->rank] = place->seen;
    pipe->start[place->rank] = place->start;
    if (place->kind != DPARI_WAIT) {
        pipe->done[place->kind][place->stage]--;
        pipe->count[place->rank]--;
        pipe->held[place->rank] -= pipe->hold[place->kind][place->stage];
        search->actions--;
    }
}

/* Called when a better schedule is complete. Runs its decisions once more, which writes the actions
 * to `schedule`. */
static void dpari_exact_write(dpari_search *search, dpar_schedule *schedule,
                              dpar_schedule_optimize_result *result)
{
    dpari_pipe *pipe = &search->q;
    int64_t i;
    dpari_pipe_measure(pipe, &result->makespan, &result->span);
    search->best = search->span ? result->span : result->makespan;
    dpari_pipe_open(pipe, schedule);
    dpari_pipe_reset(pipe);
    for (i = 0; i < search->depth; i++) {
        if (search->place[i].kind != DPARI_WAIT) {
            dpari_pipe_put(pipe, search->place[i].kind, search->place[i].stage);
        }
    }
    pipe->action = NULL;
}

/* Returns the earliest time after `at` at which an input can arrive at a rank, or INT64_MAX if none
 * can. Reads pipe->next, which dpari_exact_bound computed. */
static int64_t dpari_exact_next(const dpari_search *search, int32_t r, int64_t at)
{
    const dpari_pipe *pipe = &search->q;
    int64_t next = INT64_MAX;
    int32_t i, kind;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        for (kind = DPARI_F; kind <= DPARI_I; kind++) {
            int32_t s = pipe->list[i];
            if (dpari_pipe_may(pipe, kind, s) && pipe->next[kind][s] > at) {
                next = dpari_least(next, pipe->next[kind][s]);
            }
        }
    }
    return next;
}

/* Enters the next state of the path. Returns 0 if it cannot lead to a better schedule. */
static int dpari_exact_enter(dpari_search *search, const dpar_schedule_optimize_desc *job,
                             dpar_schedule *schedule, dpar_schedule_optimize_result *result)
{
    dpari_place *place = &search->place[search->depth];
    search->nodes++;
    if (dpari_exact_bound(search) >= search->best) {
        return 0;
    }
    if (search->actions == dpari_pipe_actions(job)) {
        dpari_exact_write(search, schedule, result);
        return 0;
    }
    if (!dpari_exact_turn(search, &place->rank, &place->at) ||
        dpari_exact_known(search, place->at)) {
        return 0;
    }
    place->choice = 0;
    place->arrives = dpari_exact_next(search, place->rank, place->at);
    return 1;
}

/* Searches depth-first. Returns 0 if everything was searched or the bound was reached, or 1 if the
 * nodes were used up. */
static int dpari_exact_walk(dpari_search *search, const dpar_schedule_optimize_desc *job,
                            dpar_schedule *schedule, dpar_schedule_optimize_result *result)
{
    int more = dpari_exact_enter(search, job, schedule, result);
    while (more && search->best > search->bound) {
        dpari_place *place = &search->place[search->depth];
        if (dpari_exact_choose(search, place)) {
            if (search->nodes >= search->most) {
                return 1;
            }
            dpari_exact_do(search, place);
            search->depth++;
            if (!dpari_exact_enter(search, job, schedule, result)) {
                dpari_exact_undo(search, &search->place[--search->depth]);
            }
            continue;
        }
        dpari_exact_keep(search, place->at);
        if (search->depth == 0) {
            return 0;
        }
        dpari_exact_undo(search, &search->place[--search->depth]);
    }
    return 0;
}

/* Returns the most decisions on a path. Between two actions a rank waits at most once for the F and
 * once for the I of each of its stages, and once more. */
static int64_t dpari_exact_depth(const dpar_schedule_optimize_desc *job)
{
    return (dpari_pipe_actions(job) + job->ranks) * (2 * job->stages + 2);
}

/* Places the struct and its arrays in mem. The table gets the rest of the memory. */
static dpari_search *dpari_exact_arrange(const dpar_schedule_optimize_desc *job, void *mem,
                                         int64_t bytes)
{
    dpari_search *search = (dpari_search *)mem;
    char *at = dpari_pipe_arrange(&search->q, job, search + 1), *end = (char *)mem + bytes;
    int32_t r;
    search->span = job->objective == DPAR_OBJECTIVE_SPAN;
    search->sinces = search->span ? job->ranks : 1;
    search->keys = job->stages + 3 * job->ranks;
    search->size = 8 * search->sinces + 8 * ((search->keys + 2) / 2);
    search->seen = dpari_pipe_wide(&at, job->ranks);
    search->since = dpari_pipe_wide(&at, search->sinces);
    search->place = (dpari_place *)(void *)at;
    at += (int64_t)sizeof(dpari_place) * dpari_exact_depth(job);
    search->key = (uint32_t *)(void *)at;
    at += 8 * ((search->keys + 1) / 2);
    search->table = at;
    search->entries = dpari_least((end - at) / search->size, INT32_MAX);
    dpari_zero(search->table, (size_t)(search->entries * search->size));
    for (r = 0; r < job->ranks; r++) {
        search->seen[r] = DPARI_NEVER;
    }
    search->depth = search->actions = search->nodes = 0;
    return search;
}

static dpar_status dpari_exact_check(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    dpar_status st = dpari_pipe_check(job, why);
    int32_t s;
    if (st != DPAR_OK) {
        return st;
    }
    if (job->ranks > DPARI_EXACT_RANKS || job->stages > DPARI_EXACT_STAGES ||
        job->micro_batches > DPARI_EXACT_MICROS) {
        return dpari_wrong(
            why,
            "%d ranks, %d stages and %d micro-batches; an exact search allows up to 12, 24 and 255",
            job->ranks, job->stages, job->micro_batches);
    }
    for (s = 0; s < job->stages; s++) {
        int64_t f = dpari_each_at(&job->times->forward, s), i = dpari_pipe_back(job, s);
        int64_t w = dpari_job_weight(job, s), lag = dpari_job_lag(job, s);
        if (f < 1 || i < 1 || dpari_most(f, dpari_most(i, w)) > INT32_MAX || lag > INT32_MAX) {
            return dpari_wrong(
                why,
                "stage %d: F takes %ld and I %ld; an exact search allows 1 to 2^31 - 1, and 0 to "
                "2^31 - 1 for W and messages",
                s, f, i);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL int64_t dpari_exact_bytes(const dpar_schedule_optimize_desc *job, int64_t entries)
{
    int64_t keys, sinces;
    if (entries < 1 || entries > (INT64_C(1) << 31) || dpari_exact_check(job, NULL) != DPAR_OK) {
        return -1;
    }
    keys = job->stages + 3 * (int64_t)job->ranks;
    sinces = job->objective == DPAR_OBJECTIVE_SPAN ? job->ranks : 1;
    return (int64_t)sizeof(dpari_search) + dpari_pipe_bytes(job) + 8 * (job->ranks + sinces) +
           (int64_t)sizeof(dpari_place) * dpari_exact_depth(job) + 8 * ((keys + 1) / 2) +
           entries * (8 * sinces + 8 * ((keys + 2) / 2));
}

DPARI_INTERNAL dpar_status dpari_exact_search(const dpar_schedule_optimize_desc *job, int64_t nodes,
                                              int64_t known, dpar_schedule *schedule,
                                              dpar_schedule_optimize_result *result, void *mem,
                                              int64_t bytes, dpar_why *why)
{
    dpari_search *search;
    dpar_schedule_optimize_result got;
    dpar_status st = dpari_exact_check(job, why);
    int more;
    if (st == DPAR_OK && (nodes < 0 || known < 0)) {
        st = dpari_wrong(why, "nodes=%ld and known=%ld must be 0 or more", nodes, known);
    }
    if (st == DPAR_OK && (schedule->ranks != job->ranks || schedule->stages != job->stages)) {
        st = dpari_wrong(why, "the schedule has %d ranks and %d stages, the job has %d and %d",
                         schedule->ranks, schedule->stages, job->ranks, job->stages);
    }
    if (st == DPAR_OK && bytes < dpari_exact_bytes(job, 1)) {
        st = dpari_say(DPAR_E_ROOM, why, "the search needs %ld bytes or more, got %ld",
                       dpari_exact_bytes(job, 1), bytes);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&got, sizeof(got));
    search = dpari_exact_arrange(job, mem, bytes);
    search->most = nodes;
    search->best = known > 0 ? known : INT64_MAX;
    search->bound = dpari_pipe_bound(job);
    more = dpari_exact_walk(search, job, schedule, &got);
    got.bound = more ? search->bound : search->best;
    got.nodes = search->nodes;
    *result = got;
    return more ? DPAR_MORE : DPAR_OK;
}

/* ==== schedule/optimize.c ==== */

/* Makes a schedule for measured times. It runs many inexpensive constructions (the zero-bubble
 * heuristic, list schedules by several rules and limits, the published orders), keeps the best,
 * improves it by local search over the limits, and for tiny jobs proves or improves it with the
 * exact search of exact.c. The bound of exact.c tells when no better schedule exists. partition.c
 * calls this module for each cut.
 */

/* A rule is a number. 0 to 7 are the variants of the heuristic "rounds", the next 6 or 12 are list
 * schedules, and numbers from DPARI_PUBLISHED on are published orders. */
enum { DPARI_AUTO_ROUNDS = 8, DPARI_PREFERS = 3, DPARI_WEIGHTS = 2 };
enum { DPARI_PUBLISHED = 1024 };           /* added to a DPAR_SCHEDULE_x; above all lists */
#define DPARI_AUTO_WORK (INT32_C(1) << 25) /* actions that rules may try, in about two seconds */
enum { DPARI_AUTO_SEARCH = 48 }; /* most stages x micro-batches for which a search can finish */

/* A rule and the result of its schedule; rule is -1 if there is none. */
typedef struct dpari_found {
    int rule;
    int64_t makespan, span;
} dpari_found;

/* The working memory of one call. "Rounds", "lists" and "published" name the section that uses a
 * field. */
typedef struct dpari_auto {
    dpari_pipe q;
    int span;                  /* 1 if the span is the objective, 0 for the makespan */
    dpari_found found[2];      /* the best list schedule, and the best of all others */
    int64_t bound;             /* lower bound of the objective */
    int64_t work;              /* actions tried so far */
    int64_t most;              /* rounds: the largest of `idle` */
    int gap, back_first, fill; /* rounds: the three switches of the heuristic */
    int prefer, weights;       /* lists: the rule of preference */
    int32_t group;             /* lists: micro-batches that pass the chain together */
    int64_t period;            /* work of the busiest rank for one micro-batch */
    /* [ranks], lists: when the rank chooses its next action, or INT64_MAX if it waits for another
     * rank. Published: the number of actions that the rank has run. */
    int64_t *wake;
    int64_t *whole; /* [ranks], bytes of one micro-batch on all stages of the rank */
    int64_t *idle;  /* [stages], rounds: idle time of the stage's rank since its first action */
    int64_t *hold;  /* [stages], time from the start of F to the end of I if nothing waits */
    int32_t *want;  /* rounds: [stages], F to run; lists: [ranks], the kind that ran last */
    int32_t *limit; /* [stages], lists: the most micro-batches between F and I */
    int32_t *kept;  /* [stages], limits of the best list schedule */
    char *rest;     /* published: memory in which the schedule is made */
    int64_t rest_bytes;
} dpari_auto;

static int64_t dpari_auto_actions(const dpari_pipe *pipe)
{
    return (int64_t)pipe->stages * pipe->micros * (2 + pipe->split);
}

/* True if all actions have been run. */
static int dpari_auto_complete(const dpari_pipe *pipe)
{
    int64_t all = 0;
    int32_t r;
    for (r = 0; r < pipe->ranks; r++) {
        all += pipe->count[r];
    }
    return all == dpari_auto_actions(pipe);
}

/* ---- rounds: one stage per rank; in a round each stage runs one I ---------------------------- */

/* Appends an action and adds the gap before it to the rank's idle time. */
static void dpari_rounds_put(dpari_auto *search, int kind, int32_t s)
{
    dpari_pipe *pipe = &search->q;
    int32_t r = pipe->rank[s];
    int started = pipe->start[r] != DPARI_NEVER;
    int64_t free = pipe->free[r];
    dpari_pipe_put(pipe, kind, s);
    if (started) {
        search->idle[s] += pipe->free[r] - free - pipe->time[kind][s];
        search->most = dpari_most(search->most, search->idle[s]);
    }
}

/* Appends the W that fit into the gap before `arrival`. Appends one more, although it ends after
 * the gap, if the rule fills gaps or if the rest of the gap would make this rank the one with the
 * most idle time. */
static void dpari_rounds_fill(dpari_auto *search, int32_t s, int64_t arrival)
{
    dpari_pipe *pipe = &search->q;
    const int64_t *free = &pipe->free[pipe->rank[s]];
    while (dpari_pipe_may(pipe, DPARI_W, s) && *free + pipe->time[DPARI_W][s] <= arrival) {
        dpari_rounds_put(search, DPARI_W, s);
    }
    if (dpari_pipe_may(pipe, DPARI_W, s) && *free < arrival &&
        (search->fill || arrival - *free > search->most - search->idle[s])) {
        dpari_rounds_put(search, DPARI_W, s);
    }
}

/* Sets search->want to the number of F that each stage runs between its first F and its first I.
 * The first loop counts the F that fit before the I can start, from the last stage to the first.
 * The second loop makes each stage run fewer F than the stage before it. */
static void dpari_rounds_ahead(dpari_auto *search)
{
    dpari_pipe *pipe = &search->q;
    int64_t back = 0; /* when the first I of the next stage ends, on that stage */
    int32_t s;
    for (s = pipe->stages - 1; s >= 0; s--) {
        int32_t r = pipe->rank[s];
        int64_t at = pipe->free[r], held = pipe->held[r], f = pipe->time[DPARI_F][s];
        search->want[s] = 0;
        back = s == pipe->stages - 1 ? at : back + pipe->lag[s];
        while (s < pipe->stages - 1 && 1 + search->want[s] < pipe->micros &&
               pipe->hold[DPARI_F][s] <= pipe->cap[r] - held &&
               (search->gap ? at + f <= back : at < back)) {
            at += f;
            held += pipe->hold[DPARI_F][s];
            search->want[s]++;
        }
        back = dpari_most(at, back) + pipe->time[DPARI_I][s];
    }
    for (s = 1; s < pipe->stages; s++) {
        if (search->want[s] > search->want[s - 1] ||
            (search->want[s] == search->want[s - 1] && 1 + search->want[s] < pipe->micros)) {
            search->want[s] = (int32_t)dpari_most(search->want[s - 1] - 1, 0);
        }
    }
}

/* Appends the warm-up: the first F of all stages, the F of dpari_rounds_ahead, and the first I. */
static void dpari_rounds_begin(dpari_auto *search)
{
    dpari_pipe *pipe = &search->q;
    int32_t s;
    search->most = 0;
    for (s = 0; s < pipe->stages; s++) {
        search->idle[s] = 0;
        dpari_rounds_put(search, DPARI_F, s);
    }
    dpari_rounds_ahead(search);
    for (s = 0; s < pipe->stages; s++) {
        for (; search->want[s] > 0; search->want[s]--) {
            dpari_rounds_put(search, DPARI_F, s);
        }
    }
    for (s = pipe->stages - 1; s >= 0; s--) {
        dpari_rounds_put(search, DPARI_I, s);
    }
}

/* True if the stage may run its next F in this round. With back_first it may not if it is two or
 * more F ahead of the next stage and this F would delay its next I. */
static int dpari_rounds_wants(const dpari_auto *search, int32_t s)
{
    const dpari_pipe *pipe = &search->q;
    int64_t free = pipe->free[pipe->rank[s]], held = pipe->held[pipe->rank[s]], next, work = 0;
    if (pipe->done[DPARI_F][s] >= pipe->micros) {
        return 0;
    }
    if (!search->back_first || s + 1 == pipe->stages ||
        pipe->done[DPARI_F][s] < pipe->done[DPARI_F][s + 1] + 2) {
        return 1;
    }
    next = pipe->free[pipe->rank[s + 1]] + pipe->time[DPARI_F][s + 1] + pipe->time[DPARI_I][s + 1] +
           pipe->lag[s];
    if (free >= next) {
        return 0;
    }
    while (pipe->hold[DPARI_F][s] >
           pipe->cap[pipe->rank[s]] - held) { /* see dpari_rounds_forward */
        held += pipe->hold[DPARI_W][s];
        work += pipe->time[DPARI_W][s];
    }
    return free + pipe->time[DPARI_F][s] + work <= next ||
           next - free > search->most - search->idle[s];
}

/* Appends an F for each stage that may run one, after the W that free enough memory for it.
 *
 * The input of the F exists: no stage has run more F than the stage before it, and if both have run
 * equally many, the stage before has just run one. Once the W of all I have run, there is enough
 * memory, because no more micro-batches are in flight than before the first I.
 */
static void dpari_rounds_forward(dpari_auto *search)
{
    dpari_pipe *pipe = &search->q;
    int32_t s;
    for (s = 0; s < pipe->stages; s++) {
        search->want[s] = dpari_rounds_wants(search, s);
    }
    for (s = pipe->stages - 2; s >= 0; s--) {
        search->want[s] = search->want[s] && search->want[s + 1];
    }
    for (s = 0; s < pipe->stages; s++) {
        if (!search->want[s]) {
            continue;
        }
        while (!dpari_pipe_may(pipe, DPARI_F, s)) {
            dpari_rounds_put(search, DPARI_W, s);
        }
        dpari_rounds_fill(search, s, dpari_pipe_arrival(pipe, DPARI_F, s));
        dpari_rounds_put(search, DPARI_F, s);
    }
}

/* Runs the heuristic of sail-sg's zero-bubble scheduler (Qi 2023), with the bits of `rule` as its
 * switches. Always completes the schedule, and returns 1. */
static int dpari_rounds_run(dpari_auto *search, int rule)
{
    dpari_pipe *pipe = &search->q;
    int32_t round, s;
    search->gap = rule & 1;
    search->back_first = rule >> 1 & 1;
    search->fill = rule >> 2 & 1;
    dpari_rounds_begin(search);
    for (round = 1; round < pipe->micros; round++) {
        dpari_rounds_forward(search);
        for (s = pipe->stages - 1; s >= 0; s--) {
            if (s + 1 < pipe->stages) {
                dpari_rounds_fill(search, s, dpari_pipe_arrival(pipe, DPARI_I, s));
            }
            while (s == 0 && pipe->done[DPARI_F][0] == pipe->micros &&
                   dpari_pipe_may(pipe, DPARI_W, 0)) {
                dpari_rounds_put(search, DPARI_W, 0);
            }
            dpari_rounds_put(search, DPARI_I, s);
        }
    }
    for (s = 0; s < pipe->stages; s++) {
        while (dpari_pipe_may(pipe, DPARI_W, s)) {
            dpari_rounds_put(search, DPARI_W, s);
        }
    }
    return 1;
}

/* ---- lists: any map; a free rank takes the best action that is ready ------------------------- */

/* prefer: which of F and I runs first if both are ready; IN_TURN alternates. */
enum { DPARI_BACK, DPARI_FORTH, DPARI_IN_TURN };
/* weights: a W runs if no F or I is ready; with FITS only if it also ends before the next input
 * arrives. */
enum { DPARI_W_IDLE, DPARI_W_FITS };

/* True if the stage's next F may start. For the oldest micro-batch that has not passed all stages
 * it is enough that its own activation fits. All other micro-batches must also leave free the
 * memory that one micro-batch takes on all stages of this rank. Therefore the oldest one can always
 * finish, which prevents deadlock. */
static int dpari_list_admits(const dpari_auto *search, int32_t s)
{
    const dpari_pipe *pipe = &search->q;
    int32_t r = pipe->rank[s], oldest = pipe->done[DPARI_F][pipe->stages - 1], i;
    int64_t young = pipe->always[r];
    if (!dpari_pipe_may(pipe, DPARI_F, s)) {
        return 0;
    }
    if (pipe->done[DPARI_F][s] <= oldest) {
        return 1;
    }
    if (pipe->done[DPARI_F][s] - pipe->done[DPARI_I][s] >= search->limit[s]) {
        return 0;
    }
    if (pipe->first[r + 1] - pipe->first[r] == 1 || pipe->cap[r] == INT64_MAX) {
        return 1;
    }
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        int32_t more = pipe->done[DPARI_F][pipe->list[i]] - oldest - 1;
        young += more > 0 ? more * pipe->hold[DPARI_F][pipe->list[i]] : 0;
    }
    return pipe->hold[DPARI_F][s] <= pipe->cap[r] - search->whole[r] - young;
}

/* Returns the stage of rank r whose F or I should run at time `at`, or -1 if none is ready. Earlier
 * groups of micro-batches come first. Within a group F prefers the first stage of the rank and I
 * the last one. Lowers *soon to the next known arrival. */
static int32_t dpari_list_head(const dpari_auto *search, int kind, int32_t r, int64_t at,
                               int64_t *soon)
{
    const dpari_pipe *pipe = &search->q;
    int32_t n = pipe->first[r + 1] - pipe->first[r], i, best = -1, lot = 0;
    for (i = 0; i < n; i++) {
        int32_t s = pipe->list[pipe->first[r] + (kind == DPARI_F ? i : n - 1 - i)];
        int32_t group = pipe->done[kind][s] / search->group;
        int64_t arrival = dpari_pipe_arrival(pipe, kind, s);
        if (arrival == DPARI_NEVER || (kind == DPARI_F && !dpari_list_admits(search, s))) {
            continue;
        }
        if (arrival > at) {
            *soon = dpari_least(*soon, arrival);
        } else if (best < 0 || group < lot) {
            best = s;
            lot = group;
        }
    }
    return best;
}

/* Returns the stage of rank r whose next W has the lowest micro-batch, or -1 if no W is ready. */
static int32_t dpari_list_weight(const dpari_pipe *pipe, int32_t r)
{
    int32_t i, best = -1;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        int32_t s = pipe->list[i];
        if (dpari_pipe_may(pipe, DPARI_W, s) &&
            (best < 0 || pipe->done[DPARI_W][s] <= pipe->done[DPARI_W][best])) {
            best = s;
        }
    }
    return best;
}

/* True if the input of an F of rank r has arrived but its activation does not fit. */
static int dpari_list_blocked(const dpari_auto *search, int32_t r, int64_t at)
{
    const dpari_pipe *pipe = &search->q;
    int32_t i;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        int32_t s = pipe->list[i];
        int64_t arrival = dpari_pipe_arrival(pipe, DPARI_F, s);
        if (pipe->done[DPARI_F][s] < pipe->micros && arrival != DPARI_NEVER && arrival <= at &&
            !dpari_pipe_may(pipe, DPARI_F, s)) {
            return 1;
        }
    }
    return 0;
}

/* True if a W whose time is `takes` should run although no F is ready: always, unless the rule only
 * runs a W that ends before the next arrival. If memory blocks an F, a W runs in any case, because
 * it frees memory. */
static int dpari_list_fills(const dpari_auto *search, int32_t r, int64_t at, int64_t soon,
                            int64_t takes)
{
    return search->weights != DPARI_W_FITS || soon == INT64_MAX || soon - at >= takes ||
           dpari_list_blocked(search, r, at);
}

/* Chooses what rank r runs at time `at`. Returns the kind and sets *stage, or returns -1 if the
 * rank waits until *soon. */
static int dpari_list_choose(const dpari_auto *search, int32_t r, int64_t at, int32_t *stage,
                             int64_t *soon)
{
    const dpari_pipe *pipe = &search->q;
    int64_t soon_i = INT64_MAX;
    int32_t i, f, w = dpari_list_weight(pipe, r);
    int forth = search->prefer == DPARI_FORTH ||
                (search->prefer == DPARI_IN_TURN && search->want[r] != DPARI_F);
    *soon = INT64_MAX;
    i = dpari_list_head(search, DPARI_I, r, at, &soon_i);
    f = dpari_list_head(search, DPARI_F, r, at, soon);
    *soon = dpari_least(*soon, soon_i);
    if (i >= 0 && !(f >= 0 && forth)) {
        *stage = i;
        return DPARI_I;
    }
    *stage = w;
    if (w >= 0 && f < 0 && dpari_list_fills(search, r, at, *soon, pipe->time[DPARI_W][w])) {
        return DPARI_W;
    }
    *stage = f;
    return f >= 0 ? DPARI_F : -1;
}

/* Makes a rank choose its next action at time `at`, or once it is free if that is later. */
static void dpari_list_wake(dpari_auto *search, int32_t r, int64_t at)
{
    search->wake[r] = dpari_least(search->wake[r], dpari_most(at, search->q.free[r]));
}

/* Runs an action and wakes the ranks that it may enable. */
static void dpari_list_do(dpari_auto *search, int kind, int32_t s, int64_t at)
{
    dpari_pipe *pipe = &search->q;
    int32_t r = pipe->rank[s], to = kind == DPARI_F ? s + 1 : s - 1, k;
    dpari_pipe_put(pipe, kind, s);
    search->want[r] = kind;
    search->wake[r] = pipe->free[r];
    if (kind != DPARI_W && to >= 0 && to < pipe->stages) {
        dpari_list_wake(search, pipe->rank[to],
                        pipe->free[r] + pipe->lag[kind == DPARI_F ? s : to]);
    }
    if (kind == DPARI_F && to == pipe->stages && pipe->stages > pipe->ranks) {
        for (k = 0; k < pipe->ranks; k++) { /* another micro-batch is now the oldest */
            dpari_list_wake(search, k, at);
        }
    }
}

/* Sets search->limit, the most micro-batches that a stage may have between F and I. A stage needs
 * as many as the busiest rank completes in the time from the stage's F to its I. The limit is
 * `fourths` / 4 of that number; 0 means no limit. SHARE divides the cap among the stages of a rank
 * in proportion to that time, and EVEN divides it equally. */
enum { DPARI_LIMIT_SHARE = -1, DPARI_LIMIT_EVEN = -2 };
DPARI_STATIC_NOINLINE void dpari_list_limits(dpari_auto *search, int fourths)
{
    const dpari_pipe *pipe = &search->q;
    int64_t unit = 1 + (search->hold[0] >> 40); /* hold[0] is the longest, so nothing overflows */
    int32_t r, i;
    for (r = 0; r < pipe->ranks; r++) {
        int64_t sum = 0;
        for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
            sum += search->hold[pipe->list[i]] / unit;
        }
        for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
            int32_t s = pipe->list[i];
            int64_t n = pipe->micros, fit = n;
            if (pipe->hold[DPARI_F][s] > 0) {
                fit = dpari_least((pipe->cap[r] - pipe->always[r]) / pipe->hold[DPARI_F][s], n);
            }
            if (fourths == DPARI_LIMIT_EVEN) {
                n = fit / (pipe->first[r + 1] - pipe->first[r]);
            } else if (fourths == DPARI_LIMIT_SHARE && sum > 0) {
                n = fit * (search->hold[s] / unit) / sum;
            } else if (fourths > 0 &&
                       search->period > 0) { /* hold x 16 overflows only with 1 micro-batch */
                n = (int64_t)(((uint64_t)search->hold[s] * (uint64_t)fourths +
                               (uint64_t)(4 * search->period - 1)) /
                              (uint64_t)(4 * search->period));
            }
            search->limit[s] = (int32_t)dpari_most(1, dpari_least(n, pipe->micros));
        }
    }
}

/* Makes a list schedule. The rule encodes prefer, weights and group as digits. Ranks act in the
 * order of their times. Returns 1 if all actions were run. */
static int dpari_list_run(dpari_auto *search, int rule)
{
    dpari_pipe *pipe = &search->q;
    int32_t r, stage = 0;
    search->prefer = rule % DPARI_PREFERS;
    search->weights = rule / DPARI_PREFERS % DPARI_WEIGHTS;
    rule /= DPARI_PREFERS * DPARI_WEIGHTS;
    search->group = rule == 0 ? pipe->ranks : 1;
    for (r = 0; r < pipe->ranks; r++) {
        search->wake[r] = 0;
        search->want[r] = DPARI_I;
    }
    for (;;) {
        int64_t at = INT64_MAX, soon;
        int32_t next = 0;
        int kind;
        for (r = 0; r < pipe->ranks; r++) {
            if (search->wake[r] < at) {
                at = search->wake[r];
                next = r;
            }
        }
        if (at == INT64_MAX) {
            break;
        }
        kind = dpari_list_choose(search, next, at, &stage, &soon);
        search->wake[next] = soon;
        if (kind >= 0) {
            dpari_list_do(search, kind, stage, at);
        }
    }
    return dpari_auto_complete(pipe);
}

/* ---- published orders ------------------------------------------------------------------------ */

/* Describes a published order for this job. dpari_auto_published checks whether it fits the job. */
static dpar_schedule_desc dpari_auto_order(const dpar_schedule_optimize_desc *job, int32_t rule)
{
    dpar_schedule_desc o;
    dpari_zero(&o, sizeof(o));
    o.rule = rule;
    o.ranks = job->ranks;
    o.micro_batches = job->micro_batches;
    o.chunks = job->stages / job->ranks;
    return o;
}

static int dpari_auto_kind(const dpar_action *action)
{
    if (action->kind == DPAR_ACTION_FORWARD) {
        return DPARI_F;
    }
    return action->kind == DPAR_ACTION_WEIGHT ? DPARI_W : DPARI_I;
}

/* Runs the rank's next action if its input is known and its memory fits. Returns 1 if it ran. */
static int dpari_auto_step(dpari_auto *search, const dpar_schedule *schedule, int32_t r)
{
    dpari_pipe *pipe = &search->q;
    const dpar_action *action = &schedule->action[schedule->begin[r] + search->wake[r]];
    int kind = dpari_auto_kind(action);
    if (schedule->begin[r] + search->wake[r] >= schedule->begin[r + 1] ||
        !dpari_pipe_may(pipe, kind, action->stage) ||
        (kind != DPARI_W && dpari_pipe_arrival(pipe, kind, action->stage) == DPARI_NEVER)) {
        return 0;
    }
    dpari_pipe_put(pipe, kind, action->stage);
    search->wake[r]++;
    return 1;
}

/* Makes a published order and runs its actions. Returns 1 if its stages and ranks are those of the
 * job and it keeps the caps. Only its order of kinds and stages is used, because all micro-batches
 * are equal. */
static int dpari_auto_published(dpari_auto *search, const dpar_schedule_optimize_desc *job,
                                int32_t rule)
{
    dpar_schedule_desc o = dpari_auto_order(job, rule);
    dpar_schedule s;
    int32_t r, i, on = 1;
    if (dpar_schedule_generate(&s, &o, search->rest, search->rest_bytes, NULL) != DPAR_OK ||
        s.stages != job->stages || s.chain != s.stages || s.slices != 1 ||
        s.begin[s.ranks] != dpari_auto_actions(&search->q)) {
        return 0;
    }
    for (i = 0; i < s.stages; i++) {
        on = on && s.rank_of[i] == search->q.rank[i];
    }
    dpari_zero(search->wake, 8 * (size_t)s.ranks);
    while (on) {
        on = 0;
        for (r = 0; r < s.ranks; r++) {
            while (dpari_auto_step(search, &s, r)) {
                on = 1;
            }
        }
    }
    return dpari_auto_complete(&search->q);
}

/* ---- the best schedule ----------------------------------------------------------------------- */

/* Makes the schedule of a rule. Returns 1 if it is complete. */
static int dpari_auto_run(dpari_auto *search, const dpar_schedule_optimize_desc *job, int rule)
{
    dpari_pipe_reset(&search->q);
    if (rule >= DPARI_PUBLISHED) {
        return dpari_auto_published(search, job, rule - DPARI_PUBLISHED);
    }
    if (rule >= DPARI_AUTO_ROUNDS) {
        return dpari_list_run(search, rule - DPARI_AUTO_ROUNDS);
    }
    return dpari_rounds_run(search, rule);
}

/* True if a has the smaller objective, or the same objective and the smaller sum of makespan and
 * span. */
static int dpari_auto_better(const dpari_auto *search, const dpari_found *a, const dpari_found *b)
{
    int64_t more = search->span ? a->span - b->span : a->makespan - b->makespan;
    more = more != 0 ? more : a->makespan + a->span - b->makespan - b->span;
    return a->rule >= 0 && (b->rule < 0 || more < 0);
}

/* Runs a rule with the limits in search->limit, and keeps the rule and the limits if its schedule
 * is the best so far. Returns 1 if it is. */
static int dpari_auto_try(dpari_auto *search, const dpar_schedule_optimize_desc *job, int rule)
{
    int list = rule >= DPARI_AUTO_ROUNDS && rule < DPARI_PUBLISHED;
    dpari_found *best = &search->found[!list], got;
    int32_t s;
    search->work += dpari_auto_actions(&search->q);
    got.rule = dpari_auto_run(search, job, rule) ? rule : -1;
    dpari_pipe_measure(&search->q, &got.makespan, &got.span);
    if (!dpari_auto_better(search, &got, best)) {
        return 0;
    }
    *best = got;
    for (s = 0; s < search->q.stages && list; s++) {
        search->kept[s] = search->limit[s];
    }
    return 1;
}

/* True if a schedule has reached the bound, so that no better one exists. */
static int dpari_auto_done(const dpari_auto *search)
{
    int k, done = 0;
    for (k = 0; k < 2; k++) {
        const dpari_found *f = &search->found[k];
        done = done || (f->rule >= 0 && (search->span ? f->span : f->makespan) <= search->bound);
    }
    return done;
}

/* Tries all rules. Stops when the bound is reached, or when DPARI_AUTO_WORK actions were tried and
 * there is a list schedule. */
static void dpari_auto_rules(dpari_auto *search, const dpar_schedule_optimize_desc *job)
{
    static const int fourths[] = {0, 4, 6, 5, 8, 12, 16, DPARI_LIMIT_SHARE, DPARI_LIMIT_EVEN};
    int groups = job->stages > job->ranks ? 2 : 1;
    int lists = DPARI_PREFERS * DPARI_WEIGHTS * groups, rule, k;
    for (rule = 0; rule < DPARI_AUTO_ROUNDS && job->stages == job->ranks; rule++) {
        (void)dpari_auto_try(search, job, rule);
    }
    for (rule = 1; rule < DPAR_SCHEDULE_END && !dpari_auto_done(search); rule++) {
        (void)dpari_auto_try(search, job, DPARI_PUBLISHED + rule);
    }
    for (rule = 0; rule < lists; rule++) {
        for (k = 0; k < 9 && !dpari_auto_done(search) &&
                    (search->work < DPARI_AUTO_WORK || search->found[0].rule < 0);
             k++) {
            dpari_list_limits(search, fourths[k]);
            (void)dpari_auto_try(search, job, DPARI_AUTO_ROUNDS + rule);
        }
    }
}

/* Improves the best list schedule by lowering and raising the limit of one stage after another by
 * 1. Stops after a whole pass without improvement, or when `work` more actions were tried. */
static void dpari_auto_climb(dpari_auto *search, const dpar_schedule_optimize_desc *job,
                             int64_t work)
{
    int32_t s = 0, i, same = 0, up, better;
    work = work < INT64_MAX - search->work ? work + search->work : INT64_MAX;
    while (search->found[0].rule >= 0 && same < job->stages && search->work < work &&
           !dpari_auto_done(search)) {
        better = 0;
        for (up = -1; up <= 1; up += 2) {
            for (i = 0; i < job->stages; i++) {
                search->limit[i] = search->kept[i];
            }
            search->limit[s] = (int32_t)dpari_most(1, search->kept[s] + up);
            better |= dpari_auto_try(search, job, search->found[0].rule);
        }
        same = better ? 0 : same + 1;
        s = (s + 1) % job->stages;
    }
}

/* Returns the most bytes that a published order of this job needs. */
static int64_t dpari_auto_published_bytes(const dpar_schedule_optimize_desc *job)
{
    int64_t most = 0;
    int32_t rule;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        dpar_schedule_desc o = dpari_auto_order(job, rule);
        most = dpari_most(most, dpari_schedule_generate_bytes(&o, NULL));
    }
    return most;
}

/* Returns the bytes of the resulting schedule, which is at the front of the caller's memory. */
static int64_t dpari_auto_schedule_bytes(const dpar_schedule_optimize_desc *job)
{
    return dpari_schedule_bytes(job->ranks, job->stages, dpari_pipe_actions(job));
}

DPARI_INTERNAL int64_t dpari_schedule_auto_bytes(const dpar_schedule_optimize_desc *job,
                                                 dpar_why *why)
{
    int64_t s = job->stages, p = job->ranks;
    if (dpari_pipe_check(job, why) != DPAR_OK) {
        return -1;
    }
    return dpari_auto_schedule_bytes(job) + dpari_whole_words((int64_t)sizeof(dpari_auto)) +
           dpari_pipe_bytes(job) + 8 * (2 * p + 2 * s) + 8 * ((3 * s + 1) / 2) +
           dpari_auto_published_bytes(job);
}

/* Places the struct and its arrays in mem, because the struct is large for a stack. Sets the fields
 * that do not change between rules. */
static dpari_auto *dpari_auto_arrange(const dpar_schedule_optimize_desc *job, void *mem)
{
    dpari_auto *search = (dpari_auto *)mem;
    char *at = dpari_pipe_arrange(&search->q, job, search + 1);
    const dpari_pipe *pipe = &search->q;
    int32_t r, i, s;
    search->wake = dpari_pipe_wide(&at, job->ranks);
    search->whole = dpari_pipe_wide(&at, job->ranks);
    search->idle = dpari_pipe_wide(&at, job->stages);
    search->hold = dpari_pipe_wide(&at, job->stages);
    search->want = dpari_pipe_narrow(&at, job->stages);
    search->limit = dpari_pipe_narrow(&at, job->stages);
    search->kept = dpari_pipe_narrow(&at, job->stages);
    search->rest = at + 4 * (3 * (int64_t)job->stages % 2);
    search->rest_bytes = dpari_auto_published_bytes(job);
    search->span = job->objective == DPAR_OBJECTIVE_SPAN;
    search->found[0].rule = search->found[1].rule = -1;
    search->work = search->period = 0;
    search->bound = dpari_pipe_bound(job);
    for (s = job->stages - 1; s >= 0; s--) {
        search->hold[s] = pipe->time[DPARI_F][s] + pipe->time[DPARI_I][s] + 2 * pipe->lag[s] +
                          (s + 1 < job->stages ? search->hold[s + 1] : 0);
        search->limit[s] = job->micro_batches;
    }
    for (r = 0; r < job->ranks; r++) {
        int64_t work = 0;
        search->whole[r] = 0;
        for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
            s = pipe->list[i];
            search->whole[r] += pipe->hold[DPARI_F][s];
            work += pipe->time[DPARI_F][s] + pipe->time[DPARI_I][s] + pipe->time[DPARI_W][s];
        }
        search->period = dpari_most(search->period, work);
    }
    return search;
}

/* Runs the best rule again and writes its actions to `schedule`. */
static void dpari_auto_again(dpari_auto *search, const dpar_schedule_optimize_desc *job,
                             dpar_schedule *schedule, dpar_schedule_optimize_result *result)
{
    const dpari_found *best =
        &search->found[dpari_auto_better(search, &search->found[1], &search->found[0])];
    int32_t k;
    for (k = 0; k < job->stages; k++) {
        search->limit[k] = search->kept[k];
    }
    dpari_pipe_open(&search->q, schedule);
    (void)dpari_auto_run(search, job, best->rule);
    result->makespan = best->makespan;
    result->span = best->span;
    result->bound = search->bound;
    result->nodes = 0;
}

/* Continues with the exact search if the job is small enough. */
static dpar_status dpari_auto_search(const dpar_schedule_optimize_desc *job,
                                     dpar_schedule *schedule, dpar_schedule_optimize_result *result,
                                     void *mem, int64_t bytes)
{
    dpar_schedule_optimize_result better = *result;
    int64_t known = job->objective == DPAR_OBJECTIVE_SPAN ? result->span : result->makespan;
    int64_t least;
    dpar_status st;
    if (known <= result->bound) {
        return DPAR_OK;
    }
    least = job->nodes > 0 && (int64_t)job->stages * job->micro_batches <= DPARI_AUTO_SEARCH
                ? dpari_exact_bytes(job, 1)
                : -1;
    if (least < 0 || bytes < least) {
        return DPAR_MORE;
    }
    st = dpari_exact_search(job, job->nodes, known, schedule, &better, mem, bytes, NULL);
    result->bound = better.bound;
    result->nodes = better.nodes;
    if (better.makespan > 0) {
        result->makespan = better.makespan;
        result->span = better.span;
    }
    return st;
}

DPAR_API dpar_status dpar_schedule_optimize(dpar_schedule *schedule,
                                            const dpar_schedule_optimize_desc *job,
                                            dpar_schedule_optimize_result *result, void *mem,
                                            int64_t bytes, dpar_why *why)
{
    const int64_t needed = dpari_schedule_auto_bytes(job, NULL);
    int64_t front;
    dpari_auto *search;
    dpar_schedule got;
    dpar_schedule_optimize_result best;
    char *work;
    dpar_status st = dpari_pipe_check(job, why);
    if (st == DPAR_OK && job->nodes < 0) {
        st = dpari_wrong(why, "nodes=%ld; 0 or more are allowed", job->nodes);
    }
    if (st == DPAR_OK && bytes < needed) {
        dpari_needs_bytes(why, needed);
        st = dpari_say(DPAR_E_ROOM, why, "the scheduler needs %ld bytes, got %ld", needed, bytes);
    }
    if (st == DPAR_OK) {
        st = dpari_schedule_empty(&got, job->ranks, job->stages, dpari_pipe_actions(job), mem,
                                  bytes, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    front = dpari_auto_schedule_bytes(job);
    work = (char *)mem + front;
    search = dpari_auto_arrange(job, work);
    dpari_auto_rules(search, job);
    dpari_auto_climb(search, job, job->nodes);
    dpari_auto_again(search, job, &got, &best);
    st = dpari_auto_search(job, &got, &best, work, bytes - front);
    *schedule = got;
    *result = best;
    return st;
}

/* ==== schedule/partition.c ==== */

/* Chooses cuts of a model's layers into stages by local search: it moves one layer at a time from
 * one stage to another and keeps the move if the schedule of the new cut is better. A cut is
 * evaluated by a schedule from dpar_schedule_optimize, or by simulating the given schedule. */

enum {
    DPARI_LAYERS_SUMS = 8,  /* quantities that are summed over the layers of a stage */
    DPARI_LAYERS_STARTS = 2 /* cuts from which the search starts */
};

/* How good a cut is. The bytes over the caps count first, then the objective. */
typedef struct dpari_score {
    int64_t over, objective;
} dpari_score;

/* A cut and its result. */
typedef struct dpari_placing_cut {
    int64_t *at; /* [stages + 1], the first layer of each stage */
    dpari_score score;
    dpar_schedule_optimize_result result;
} dpari_placing_cut;

/* The state of the search. It is in the caller's memory, and its arrays follow it. */
typedef struct dpari_placing {
    const dpar_schedule_optimize_desc *job; /* the job with values for layers */
    const dpar_schedule *given;
    dpar_schedule_optimize_desc staged; /* the job with values for the stages of the cut */
    dpar_schedule_times times;          /* the times of `staged` */
    int64_t *sum[DPARI_LAYERS_SUMS];    /* [stages], the arrays of `times` */
    int64_t *cost;                      /* [layers] */
    dpar_rank_timing *rank;             /* [ranks] */
    dpar_timing timing;
    dpari_placing_cut cut[3]; /* the cut to evaluate, the best one from this start, and the best of
                                 all */
    int64_t evaluated, tries; /* cuts evaluated so far, and the most that may be */
    int32_t layers;
    void *rest; /* the first bytes of the caller's memory, for optimize or simulate */
    int64_t rest_bytes;
} dpari_placing;

/* ---- stages from layers ---------------------------------------------------------------------- */

/* Returns the values of quantity k, 0 to DPARI_LAYERS_SUMS - 1. */
static const dpar_stage_values *dpari_placing_each(const dpar_schedule_times *times, int k)
{
    switch (k) {
    case 0: return &times->forward;
    case 1: return &times->input;
    case 2: return &times->weight;
    case 3: return &times->backward;
    case 4: return &times->hold_forward;
    case 5: return &times->hold_input;
    case 6: return &times->hold_weight;
    default: return &times->hold_always;
    }
}

/* Returns quantity k of a layer. A B without a time of its own takes as long as I and W. */
static int64_t dpari_placing_value(const dpar_schedule_times *times, int k, int32_t layer)
{
    int64_t v = dpari_each_at(dpari_placing_each(times, k), layer);
    if (k == 3 && v == 0) {
        return dpari_each_at(&times->input, layer) + dpari_each_at(&times->weight, layer);
    }
    return v;
}

/* Checks the values of layers, and that no sum over layers overflows with any cut. */
static dpar_status dpari_placing_fit(const dpar_schedule_optimize_desc *job, int32_t layers,
                                     dpar_why *why)
{
    const int64_t most = INT64_C(1) << 60;
    const dpar_schedule_times *times = job->times;
    int32_t l;
    int k;
    for (k = 0; k < DPARI_LAYERS_SUMS; k++) {
        int64_t sum = 0;
        for (l = 0; l < layers; l++) {
            int64_t v = dpari_each_at(dpari_placing_each(times, k), l);
            if (k == 5 || k == 6) { /* hold_input and hold_weight */
                v = v < -most ? -1 : -v;
            }
            if (v < 0) {
                return dpari_wrong(why,
                                   "layer %d: times, hold_forward and hold_always must be 0 or "
                                   "more, hold_input and hold_weight 0 or less",
                                   l);
            }
            if (v > most - sum) {
                return dpari_say(DPAR_E_RANGE, why,
                                 "layers 0 to %d: a time or hold_x adds up to more than 2^60", l);
            }
            sum += v;
        }
    }
    for (l = 0; l < layers; l++) {
        int64_t f = dpari_each_at(&times->hold_forward, l),
                i = dpari_each_at(&times->hold_input, l);
        int64_t w = dpari_each_at(&times->hold_weight, l);
        if (f + i + w != 0) {
            return dpari_wrong(
                why, "layer %d holds %ld for F, %ld for I and %ld for W; these must add up to 0", l,
                f, i, w);
        }
    }
    return DPAR_OK;
}

/* Adds up the values of the layers of each stage of a cut. */
static void dpari_placing_sum(dpari_placing *placing, const int64_t *cuts)
{
    int32_t s, l;
    int k;
    for (k = 0; k < DPARI_LAYERS_SUMS; k++) {
        for (s = 0; s < placing->job->stages; s++) {
            placing->sum[k][s] = 0;
            for (l = (int32_t)cuts[s]; l < cuts[s + 1]; l++) {
                placing->sum[k][s] += dpari_placing_value(placing->job->times, k, l);
            }
        }
    }
}

/* ---- evaluation ------------------------------------------------------------------------------ */

DPARI_STATIC_NOINLINE int dpari_placing_better(const dpari_placing_cut *a,
                                               const dpari_placing_cut *b)
{
    return a->score.over < b->score.over ||
           (a->score.over == b->score.over && a->score.objective < b->score.objective);
}

/* Adds to *over by how much rank r exceeds its cap if it holds `holds`. The sum stops at 2^61. */
static void dpari_placing_over(const dpari_placing *placing, int32_t r, int64_t holds,
                               int64_t *over)
{
    int64_t cap = dpari_each_at(&placing->job->cap, r);
    if (cap > 0 && holds > cap) {
        *over += dpari_least(holds - cap, (INT64_C(1) << 61) - *over);
    }
}

/* True if the job has the bytes of an activation. Otherwise an activation counts as 1. */
static int dpari_placing_holds(const dpar_schedule_optimize_desc *job)
{
    return job->times->hold_forward.each != NULL || job->times->hold_forward.all != 0;
}

/* Returns the most that a rank holds in the schedule that was simulated last. */
static int64_t dpari_placing_peak(const dpari_placing *placing, int32_t r)
{
    return dpari_placing_holds(placing->job) ? placing->rank[r].peak_bytes
                                             : placing->rank[r].peak_count;
}

/* Evaluates a cut by simulating the given schedule with its stages. */
static dpar_status dpari_placing_simulate(dpari_placing *placing, dpari_placing_cut *c,
                                          dpar_why *why)
{
    dpar_schedule_simulate_desc how;
    int32_t r;
    dpar_status st;
    dpari_zero(&how, sizeof(how));
    how.times = &placing->times;
    how.rank = placing->rank;
    st = dpar_schedule_simulate(placing->given, &how, &placing->timing, placing->rest,
                                placing->rest_bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    c->result.makespan = placing->timing.makespan;
    c->result.span = placing->timing.span;
    for (r = 0; r < placing->job->ranks; r++) {
        dpari_placing_over(placing, r, dpari_placing_peak(placing, r), &c->score.over);
    }
    return DPAR_OK;
}

/* Evaluates a cut by making a schedule for its stages. Makes no schedule if a micro-batch does not
 * fit on a rank, or if the lower bound shows that the cut cannot be better than `best`. */
static dpar_status dpari_placing_auto(dpari_placing *placing, dpari_placing_cut *c,
                                      const dpari_placing_cut *best, dpar_schedule *schedule,
                                      dpar_why *why)
{
    int32_t r, k;
    dpar_status st;
    for (r = 0; r < placing->job->ranks; r++) {
        int64_t need = 0;
        for (k = 0; k < placing->job->stages; k++) {
            if (dpari_pipe_rank(placing->job, k) == r) {
                need += dpari_pipe_hold(&placing->times, DPARI_F, k) + placing->sum[7][k];
            }
        }
        dpari_placing_over(placing, r, need, &c->score.over);
    }
    c->result.makespan = c->result.span = INT64_MAX;
    if (c->score.over > 0) {
        return DPAR_OK;
    }
    c->result.bound = dpari_pipe_bound(&placing->staged);
    if (best != NULL && best->score.over == 0 && c->result.bound >= best->score.objective) {
        return DPAR_OK;
    }
    st = dpar_schedule_optimize(schedule, &placing->staged, &c->result, placing->rest,
                                placing->rest_bytes, why);
    return st < 0 ? st : DPAR_OK;
}

/* Evaluates placing->cut[0]. If it is not better than `best`, its result may be incomplete. */
static dpar_status dpari_placing_evaluate(dpari_placing *placing, const dpari_placing_cut *best,
                                          dpar_schedule *schedule, dpar_why *why)
{
    dpari_placing_cut *c = &placing->cut[0];
    dpar_status st;
    placing->evaluated++;
    c->score.over = 0;
    dpari_placing_sum(placing, c->at);
    st = placing->given != NULL ? dpari_placing_simulate(placing, c, why)
                                : dpari_placing_auto(placing, c, best, schedule, why);
    c->score.objective =
        placing->job->objective == DPAR_OBJECTIVE_SPAN ? c->result.span : c->result.makespan;
    return st;
}

static void dpari_placing_copy(const dpari_placing *placing, dpari_placing_cut *to,
                               const dpari_placing_cut *from)
{
    int32_t s;
    for (s = 0; s <= placing->job->stages; s++) {
        to->at[s] = from->at[s];
    }
    to->score = from->score;
    to->result = from->result;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Makes cut[0] from cut[1] by moving a layer from one stage to another. Each stage in between
 * passes one on. Returns 0 if stage `from` has only one layer. */
static int dpari_placing_move(dpari_placing *placing, int32_t from, int32_t to)
{
    int64_t *at = placing->cut[0].at;
    int32_t s;
    dpari_placing_copy(placing, &placing->cut[0], &placing->cut[1]);
    if (at[from + 1] - at[from] < 2) {
        return 0;
    }
    for (s = (int32_t)dpari_least(from, to); s < dpari_most(from, to); s++) {
        at[s + 1] += from < to ? -1 : 1;
    }
    return 1;
}

/* Moves layers as long as a move improves cut[1], first between neighbouring stages. Returns
 * DPAR_MORE if no tries are left. */
static dpar_status dpari_placing_descend(dpari_placing *placing, dpar_schedule *schedule,
                                         dpar_why *why)
{
    int32_t stages = placing->job->stages, away, way, better = 1;
    while (better) {
        better = 0;
        for (away = 1; away < stages; away++) {
            for (way = 0; way < 2 * (stages - away); way++) {
                const int32_t low = way / 2, high = low + away;
                const int moved = way % 2 ? dpari_placing_move(placing, low, high)
                                          : dpari_placing_move(placing, high, low);
                dpar_status st;
                if (!moved) {
                    continue;
                }
                if (placing->evaluated >= placing->tries) {
                    return DPAR_MORE;
                }
                st = dpari_placing_evaluate(placing, &placing->cut[1], schedule, why);
                if (st != DPAR_OK) {
                    return st;
                }
                if (dpari_placing_better(&placing->cut[0], &placing->cut[1])) {
                    dpari_placing_copy(placing, &placing->cut[1], &placing->cut[0]);
                    better = 1;
                }
            }
        }
    }
    return DPAR_OK;
}

/* Sets cut[0] to the cut from which the search starts: stages with equal times (start 0), or with
 * equal numbers of layers (start 1), as far as possible. */
static void dpari_placing_start(dpari_placing *placing, int start)
{
    int32_t l;
    for (l = 0; l < placing->layers; l++) {
        placing->cost[l] = 1;
        if (start == 0) { /* F and B */
            placing->cost[l] = dpari_placing_value(placing->job->times, 0, l);
            placing->cost[l] += dpari_placing_value(placing->job->times, 3, l);
        }
    }
    (void)dpar_split_balance(placing->cut[0].at, placing->layers, placing->cost,
                             placing->job->stages, NULL);
}

static dpar_status dpari_placing_search(dpari_placing *placing, dpar_schedule *schedule,
                                        dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int start;
    for (start = 0; start < DPARI_LAYERS_STARTS && st == DPAR_OK; start++) {
        dpari_placing_start(placing, start);
        st = dpari_placing_evaluate(placing, NULL, schedule, why);
        if (st != DPAR_OK) {
            break;
        }
        dpari_placing_copy(placing, &placing->cut[1], &placing->cut[0]);
        st = dpari_placing_descend(placing, schedule, why);
        if (st >= 0 && (start == 0 || dpari_placing_better(&placing->cut[1], &placing->cut[2]))) {
            dpari_placing_copy(placing, &placing->cut[2], &placing->cut[1]);
        }
    }
    return st;
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* Checks layers and stages, and the shape of the given schedule. */
static dpar_status dpari_placing_shape(const dpar_schedule_partition_desc *how, dpar_why *why)
{
    const dpar_schedule_optimize_desc *job = how->job;
    const dpar_schedule *given = how->given;
    if (job->times == NULL || job->stages < 1 || job->stages > DPARI_OPTIMIZE_MAX_STAGES ||
        how->layers < job->stages || how->layers > (INT32_C(1) << 24)) {
        return dpari_wrong(why,
                           "%d layers on %d stages; each stage needs a layer, and 2^24 layers and "
                           "16384 stages are allowed",
                           how->layers, job->stages);
    }
    if (given != NULL && (given->ranks != job->ranks || given->stages != job->stages ||
                          given->micro_batches != job->micro_batches ||
                          given->chain != given->stages || given->slices != 1)) {
        return dpari_wrong(
            why,
            "the given schedule has %d ranks, %d stages, %d micro-batches and slices=%d; it must "
            "have those of the job, one chain and slices=1",
            given->ranks, given->stages, given->micro_batches, given->slices);
    }
    return DPAR_OK;
}

/* Returns the bytes that an evaluation needs, a multiple of 8, or -1. They depend on the shape of
 * the job only, so that its times may be those of layers. */
static int64_t dpari_placing_rest(const dpar_schedule_partition_desc *how)
{
    dpar_schedule_times none;
    dpar_schedule_simulate_desc timed;
    dpar_schedule_optimize_desc shape = *how->job;
    int64_t bytes;
    dpari_zero(&none, sizeof(none));
    if (how->given != NULL) {
        dpari_zero(&timed, sizeof(timed));
        timed.times = how->job->times;
        bytes = dpari_schedule_simulate_bytes(how->given, &timed);
    } else {
        dpari_zero(&shape.cap, sizeof(shape.cap));
        shape.times = &none;
        bytes = dpari_schedule_auto_bytes(&shape, NULL);
    }
    return bytes;
}

DPARI_INTERNAL DPARI_COLD int64_t
dpari_schedule_place_bytes(const dpar_schedule_partition_desc *how)
{
    int64_t s = how->job->stages, rest;
    if (dpari_placing_shape(how, NULL) != DPAR_OK) {
        return -1;
    }
    rest = dpari_placing_rest(how);
    if (rest < 0) {
        return -1;
    }
    return rest + 8 * (DPARI_LAYERS_SUMS * s + 3 * (s + 1) + how->layers) +
           dpari_whole_words((int64_t)sizeof(dpari_placing) +
                             (int64_t)sizeof(dpar_rank_timing) * how->job->ranks);
}

/* Places the struct and its arrays in mem, after the bytes for evaluations. */
static dpari_placing *dpari_placing_arrange(const dpar_schedule_partition_desc *how, void *mem)
{
    const dpar_schedule_optimize_desc *job = how->job;
    const int64_t rest = dpari_placing_rest(how);
    char *at = (char *)mem + rest;
    dpari_placing *placing = (dpari_placing *)(void *)at;
    int k;
    at += sizeof(*placing);
    dpari_zero(placing, sizeof(*placing));
    placing->job = job;
    placing->given = how->given;
    placing->layers = how->layers;
    placing->tries = how->tries;
    placing->times = *job->times;
    placing->rest = mem;
    placing->rest_bytes = rest;
    for (k = 0; k < DPARI_LAYERS_SUMS; k++) {
        placing->sum[k] = dpari_pipe_wide(&at, job->stages);
    }
    placing->times.forward.each = placing->sum[0];
    placing->times.input.each = placing->sum[1];
    placing->times.weight.each = placing->sum[2];
    placing->times.backward.each = placing->sum[3];
    if (dpari_placing_holds(job)) {
        placing->times.hold_forward.each = placing->sum[4];
        placing->times.hold_input.each = placing->sum[5];
        placing->times.hold_weight.each = placing->sum[6];
    }
    placing->times.hold_always.each = placing->sum[7];
    placing->staged = *job;
    placing->staged.times = &placing->times;
    placing->staged.nodes = 0;
    for (k = 0; k < 3; k++) {
        placing->cut[k].at = dpari_pipe_wide(&at, (int64_t)job->stages + 1);
    }
    placing->cost = dpari_pipe_wide(&at, how->layers);
    placing->rank = (dpar_rank_timing *)(void *)at;
    return placing;
}

/* Evaluates the best cut once more, which makes its schedule. Fails with DPAR_E_MEMORY if the cut
 * exceeds a cap. */
static dpar_status dpari_placing_end(dpari_placing *placing, dpar_schedule *schedule, dpar_why *why)
{
    dpari_placing_cut *best = &placing->cut[2];
    const int64_t evaluated = placing->evaluated;
    int64_t over = 0;
    int32_t r;
    dpari_placing_copy(placing, &placing->cut[0], best);
    (void)dpari_placing_evaluate(placing, NULL, schedule, NULL); /* did not fail before */
    if (best->score.over > 0) {
        if (placing->given == NULL) {
            return dpari_pipe_check(&placing->staged, why);
        }
        r = -1;
        while (over == 0) { /* finds the first rank over its cap */
            r++;
            dpari_placing_over(placing, r, dpari_placing_peak(placing, r), &over);
        }
        return dpari_say(DPAR_E_MEMORY, why,
                         "cannot fit: rank %d holds %ld at its peak, its cap is %ld", r,
                         dpari_placing_peak(placing, r), dpari_each_at(&placing->job->cap, r));
    }
    best->result = placing->cut[0].result;
    best->result.bound = dpari_pipe_bound(&placing->staged);
    best->result.nodes = evaluated;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_partition(dpar_schedule *schedule,
                                                        const dpar_schedule_partition_desc *how,
                                                        dpar_schedule_optimize_result *result,
                                                        void *mem, int64_t bytes, dpar_why *why)
{
    const dpar_schedule_optimize_desc *job = how->job;
    dpari_placing *placing;
    dpar_schedule made;
    int64_t needed = -1;
    dpar_status st = dpari_placing_shape(how, why), ended;
    int32_t k;
    if (st == DPAR_OK) {
        st = dpari_placing_fit(job, how->layers, why);
        needed = dpari_schedule_place_bytes(how);
    }
    if (st == DPAR_OK && (how->tries < 1 || needed < 0)) {
        st = dpari_wrong(
            why,
            "tries=%ld, %d ranks and %d micro-batches; tries must be 1 or more, and the job in the "
            "domain of dpar_schedule_optimize",
            how->tries, job->ranks, job->micro_batches);
    }
    if (st == DPAR_OK && bytes < needed) {
        dpari_needs_bytes(why, needed);
        st = dpari_say(DPAR_E_ROOM, why, "placing layers needs %ld bytes, got %ld", needed, bytes);
    }
    if (st != DPAR_OK) {
        return st;
    }
    placing = dpari_placing_arrange(how, mem);
    st = dpari_placing_search(placing, &made, why);
    ended = st < 0 ? st : dpari_placing_end(placing, &made, why);
    if (ended != DPAR_OK) {
        return ended;
    }
    for (k = 0; k <= job->stages; k++) {
        how->cuts[k] = placing->cut[2].at[k];
    }
    if (how->given == NULL) {
        *schedule = made;
    }
    *result = placing->cut[2].result;
    return st;
}

/* ==== schedule/schedule_show.c ==== */

/* Draws schedules as text, as SVG and as a Chrome trace. dpari_gantt_x functions serve all three,
 * dpari_chart_x draws text, dpari_figure_x SVG, and dpari_trace_x traces. All positions are
 * computed in integers, so that pictures are the same on every machine. */

/* ---- for all three formats ------------------------------------------------------------------- */

/* True for computations, which are drawn on the rank's main lane. All other actions are messages,
 * collectives and copies. */
static int dpari_gantt_is_work(int32_t kind)
{
    return (kind >= DPAR_ACTION_FORWARD && kind <= DPAR_ACTION_WEIGHT) ||
           kind == DPAR_ACTION_RECOMPUTE;
}

/* True if the action occupies its rank, as computations, collectives and copies do. */
static int dpari_gantt_holds(int32_t kind)
{
    return kind != DPAR_ACTION_IDLE && !dpari_action_is_message(kind);
}

DPARI_STATIC_NOINLINE dpar_status dpari_gantt_check_action(const dpar_schedule_draw_desc *desc,
                                                           int64_t k, int32_t rank, dpar_why *why)
{
    const dpar_schedule *schedule = desc->schedule;
    const dpar_action *action = &schedule->action[k];
    if (action->kind >= DPAR_ACTION_COUNT || action->stage >= schedule->stages ||
        action->peer >= schedule->ranks) {
        return dpari_wrong(
            why,
            "action %ld of rank %d has kind %d and stage %d; kind, stage or peer is out of range",
            k - schedule->begin[rank], rank, (int32_t)action->kind, (int32_t)action->stage);
    }
    if (desc->start[k] < 0 ||
        desc->end[k] < (dpari_action_is_message(action->kind) ? 0 : desc->start[k])) {
        return dpari_wrong(
            why, "action %ld of rank %d runs from %ld to %ld; 0 <= start <= end must hold",
            k - schedule->begin[rank], rank, desc->start[k], desc->end[k]);
    }
    if (action->joined &&
        (k + 1 >= schedule->begin[rank + 1] || action[1].joined ||
         action->kind != DPAR_ACTION_FORWARD || !dpari_action_is_gradient(action[1].kind))) {
        return dpari_wrong(why,
                           "action %ld of rank %d is joined, but it is not an F that a B or I "
                           "follows",
                           k - schedule->begin[rank], rank);
    }
    return DPAR_OK;
}

/* Checks all values that are read. *last receives the end of the last action. */
static dpar_status dpari_gantt_check(const dpar_schedule_draw_desc *desc, int64_t *last,
                                     dpar_why *why)
{
    const dpar_schedule *schedule = desc->schedule;
    dpar_status st = DPAR_OK;
    int32_t r;
    int64_t k;
    if (schedule->ranks < 1 || schedule->ranks > DPAR_MAX_STAGES || desc->unit < 1 ||
        desc->unit > INT64_C(1000000000000)) {
        return dpari_wrong(why, "%d ranks and unit=%ld; 1 to 65535 and 1 to 1e12 are allowed",
                           schedule->ranks, desc->unit);
    }
    *last = 0;
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[r] < 0 || schedule->begin[r + 1] < schedule->begin[r]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", r,
                               schedule->begin[r], schedule->begin[r + 1]);
        }
        for (k = schedule->begin[r]; k < schedule->begin[r + 1] && st == DPAR_OK; k++) {
            st = dpari_gantt_check_action(desc, k, r, why);
            *last = dpari_most(*last, desc->end[k]);
        }
    }
    return st;
}

/* Returns ticks x width / last, rounded down, for 0 <= ticks <= last. If the product would
 * overflow, ticks and last are halved first, which is less exact. */
DPARI_STATIC_NOINLINE int64_t dpari_gantt_at(int64_t ticks, int64_t last, int64_t width)
{
    while (last > INT64_MAX / width) {
        last /= 2;
        ticks /= 2;
    }
    return last < 1 ? 0 : dpari_least(ticks, last) * width / last;
}

/* Writes ticks / unit with at most `decimals` digits after the point, without trailing zeros. */
static void dpari_gantt_time(dpar_text *text, int64_t ticks, int64_t unit, int32_t decimals)
{
    int64_t rest = ticks % unit;
    dpari_text_int(text, ticks / unit);
    if (rest > 0) {
        char digit[16];
        size_t n = 0, kept = 0;
        for (; rest > 0 && n < (size_t)decimals; n++) {
            rest *= 10;
            digit[n] = (char)('0' + (int)(rest / unit));
            kept = digit[n] != '0' ? n + 1 : kept;
            rest %= unit;
        }
        dpar_text_put(text, kept > 0 ? "." : "");
        dpari_text_slice(text, digit, kept);
    }
}

/* Returns the smallest of 1, 2, 5, 10, 20, ... that is not below `least`. */
static int64_t dpari_gantt_round(int64_t least)
{
    int64_t v = 1;
    while (v < least && v <= INT64_MAX / 10) {
        if (2 * v >= least) {
            return 2 * v;
        }
        if (5 * v >= least) {
            return 5 * v;
        }
        v *= 10;
    }
    return dpari_most(v, least);
}

/* Returns the chunk of a stage: the number of earlier stages on the same rank. */
static int32_t dpari_gantt_chunk(const dpar_schedule *schedule, int32_t stage)
{
    int32_t i, n = 0;
    for (i = 0; i < stage; i++) {
        n += schedule->rank_of[i] == schedule->rank_of[stage];
    }
    return n;
}

DPARI_STATIC_NOINLINE int32_t dpari_gantt_digits(int64_t v)
{
    int32_t n = 1;
    for (; v > 9; v /= 10) {
        n++;
    }
    return n;
}

/* Returns the length of the shortest computation that takes time, or `last` if there is none.
 * *common receives the greatest common divisor of all starts and ends of actions that occupy a
 * rank. *kinds receives a bit for each kind in the schedule, and bit 31 for an overlapped pair. */
static int64_t dpari_gantt_survey(const dpar_schedule_draw_desc *desc, int64_t last,
                                  int64_t *common, uint32_t *kinds)
{
    const dpar_schedule *schedule = desc->schedule;
    int64_t k, shortest = last;
    *common = last;
    *kinds = 0;
    for (k = schedule->begin[0]; k < schedule->begin[schedule->ranks]; k++) {
        int64_t length = desc->end[k] - desc->start[k];
        *kinds |= UINT32_C(1) << schedule->action[k].kind | (uint32_t)schedule->action[k].joined
                                                                << 31;
        if (!dpari_gantt_holds(schedule->action[k].kind) || length < 1) {
            continue;
        }
        if (dpari_gantt_is_work(schedule->action[k].kind)) {
            shortest =
                dpari_least(shortest, schedule->action[k].joined ? (length + 1) / 2 : length);
        }
        *common = dpari_gcd(dpari_gcd(*common, desc->start[k]), desc->end[k]);
    }
    return shortest;
}

/* "4 ranks, 8 stages, 16 micro-batches, makespan 51". */
static void dpari_gantt_numbers(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t last)
{
    dpari_text_say(text, "%d ranks, %d stages, %d micro-batches, makespan ", desc->schedule->ranks,
                   desc->schedule->stages, desc->schedule->micro_batches);
    dpari_gantt_time(text, last, desc->unit, 6);
}

/* The index at which the other half of the last message was found, for each kind of message and for
 * two peers. The half of the next message is usually close to it, so that the search takes a few
 * steps. Zero it at the start of a list. */
typedef struct dpari_seek {
    int64_t at[4][2];
} dpari_seek;

/* Returns the index of the other half of a message in the peer's list, or -1 if it is missing. */
static int64_t dpari_gantt_partner(const dpar_schedule *schedule, const dpar_action *action,
                                   dpari_seek *seek)
{
    int32_t stage = dpar_schedule_partner(schedule, action->kind, action->stage);
    int32_t kind = dpari_action_is_send(action->kind) ? action->kind + 1 : action->kind - 1;
    int64_t first = schedule->begin[action->peer], n = schedule->begin[action->peer + 1] - first, k;
    /* bit 1 of the peer distinguishes the usual two peers of rank r, r - 1 and r + 1 */
    int64_t *at = &seek->at[action->kind - DPAR_ACTION_SEND_F][action->peer >> 1 & 1];
    int64_t from = *at >= first && *at < first + n ? *at - first : 0;
    for (k = 0; k < n; k++) {
        int64_t there = first + (from + k < n ? from + k : from + k - n);
        const dpar_action *b = &schedule->action[there];
        if (b->kind == kind && b->stage == stage && b->micro_batch == action->micro_batch) {
            *at = there;
            return there;
        }
    }
    return -1;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* The layout of a chart. */
typedef struct dpari_chart {
    int64_t ticks;   /* time of all columns: the makespan, rounded up to whole steps */
    int64_t columns; /* columns between the bars */
    int32_t named;   /* 1 writes names like "B3--", 0 a mark in each column */
    int32_t label;   /* characters before the first column */
    int32_t exact;   /* 1 if every start and end is at a column, 0 if times are rounded */
} dpari_chart;

/* Returns the column whose left edge is nearest to a time. */
static int64_t dpari_chart_column(const dpari_chart *chart, int64_t ticks)
{
    return (dpari_gantt_at(ticks, chart->ticks, 2 * chart->columns) + 1) / 2;
}

/* Chooses the layout. If all steps of `common` ticks fit into the width, each gets the same number
 * of columns, and enough for names if possible. Otherwise times are scaled to the width. */
static void dpari_chart_layout(dpari_chart *chart, const dpar_schedule_draw_desc *desc,
                               int64_t last, int32_t width, uint32_t *kinds)
{
    int64_t common, shortest = dpari_gantt_survey(desc, last, &common, kinds);
    int64_t name = 1 + dpari_gantt_digits(dpari_most(desc->schedule->micro_batches - 1, 0)), room,
            steps;
    chart->label = 7 + dpari_gantt_digits(desc->schedule->ranks - 1);
    room = width - chart->label - 1;
    common = dpari_most(common, 1);
    steps = dpari_most(dpari_ceil_div(last, common), 1);
    chart->exact = steps <= room;
    chart->named = 0;
    chart->columns = chart->exact ? steps : room;
    chart->ticks = chart->exact ? steps * common : last;
    if (chart->exact && shortest > 0) {
        int64_t each = dpari_ceil_div(name, dpari_most(shortest / common, 1));
        chart->named = each <= room / steps;
        chart->columns = chart->named ? steps * each : steps;
    }
}

/* Returns the mark of an action for one column. */
static char dpari_chart_mark(const dpar_action *action)
{
    switch (action->kind) {
    case DPAR_ACTION_FORWARD: return (char)('0' + action->micro_batch % 10);
    case DPAR_ACTION_BACKWARD: return (char)('A' + action->micro_batch % 26);
    case DPAR_ACTION_INPUT: return (char)('a' + action->micro_batch % 26);
    case DPAR_ACTION_WEIGHT: return '+';
    case DPAR_ACTION_RECOMPUTE: return '%';
    default: return '~';
    }
}

/* Returns the letter of a named action, in lower case for odd chunks. */
static char dpari_chart_letter(const dpar_schedule *schedule, const dpar_action *action)
{
    char c = action->kind == DPAR_ACTION_RECOMPUTE ? 'R' : dpari_action_name(action->kind)[0];
    return dpari_gantt_chunk(schedule, action->stage) % 2 == 1 ? (char)(c + ('a' - 'A')) : c;
}

DPARI_STATIC_NOINLINE void dpari_chart_repeat(dpar_text *text, char c, int64_t n)
{
    for (; n > 0; n--) {
        dpari_text_char(text, c);
    }
}

/* Draws an action over `columns` columns. */
static void dpari_chart_slice(dpar_text *text, const dpari_chart *chart,
                              const dpar_schedule *schedule, const dpar_action *action,
                              int64_t columns, char dash)
{
    int64_t name = 1 + dpari_gantt_digits(action->micro_batch);
    if (!chart->named || columns < name || !dpari_gantt_is_work(action->kind)) {
        dpari_chart_repeat(text, dpari_chart_mark(action), columns);
        return;
    }
    dpari_text_char(text, dpari_chart_letter(schedule, action));
    dpari_text_int(text, action->micro_batch);
    dpari_chart_repeat(text, dash, columns - name);
}

/* Draws the line of a rank. A joined pair shares its columns, half for each action. */
static void dpari_chart_rank(dpar_text *text, const dpari_chart *chart,
                             const dpar_schedule_draw_desc *desc, int32_t rank)
{
    const dpar_schedule *schedule = desc->schedule;
    int64_t k, at = 0;
    dpar_text_put(text, "rank ");
    dpari_chart_repeat(text, ' ', chart->label - 7 - dpari_gantt_digits(rank));
    dpari_text_say(text, "%d |", rank);
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1];
         k += 1 + schedule->action[k].joined) {
        const dpar_action *action = &schedule->action[k];
        int64_t from = dpari_most(dpari_chart_column(chart, desc->start[k]), at), half;
        int64_t to = dpari_most(dpari_chart_column(chart, desc->end[k]), from);
        if (!dpari_gantt_holds(action->kind)) {
            continue;
        }
        dpari_chart_repeat(text, '.', from - at);
        half = action->joined ? from + (to - from + 1) / 2 : to;
        dpari_chart_slice(text, chart, schedule, action, half - from, action->joined ? '*' : '-');
        if (action->joined) {
            dpari_chart_slice(text, chart, schedule, action + 1, to - half, '*');
        }
        at = to;
    }
    dpari_chart_repeat(text, '.', chart->columns - at);
    dpar_text_put(text, "|\n");
}

/* Draws the axis with times at round ticks, at least 10 columns apart. */
static void dpari_chart_axis(dpar_text *text, const dpari_chart *chart,
                             const dpar_schedule_draw_desc *desc)
{
    int64_t every, at, tick;
    every = chart->ticks > INT64_MAX / 10 ? INT64_MAX
                                          : dpari_ceil_div(10 * chart->ticks, chart->columns);
    every = dpari_gantt_round(every);
    dpar_text_put(text, "time");
    dpari_chart_repeat(text, ' ', chart->label - 4);
    at = 0;
    for (tick = 0;; tick += every) {
        size_t before;
        int64_t column = dpari_chart_column(chart, tick);
        dpari_chart_repeat(text, ' ', column - at);
        before = text->used;
        dpari_gantt_time(text, tick, desc->unit, 3);
        at = dpari_most(column, at) + (int64_t)(text->used - before);
        if (tick > chart->ticks - every ||
            dpari_chart_column(chart, tick + every) + 6 > chart->columns) {
            break;
        }
    }
    dpari_text_char(text, '\n');
}

static void dpari_chart_head(dpar_text *text, const dpari_chart *chart,
                             const dpar_schedule_draw_desc *desc, int64_t last)
{
    if (desc->title != NULL) {
        dpari_text_say(text, "%s\n", desc->title);
    }
    dpari_gantt_numbers(text, desc, last);
    dpari_text_say(text, "%s%ld columns = ", chart->exact ? "; " : "; scaled: ", chart->columns);
    dpari_gantt_time(text, chart->ticks, desc->unit, 6);
    dpari_text_char(text, '\n');
}

/* Sets of kinds. KINDS_APART are collectives and copies, which are drawn below the lane. */
#define DPARI_KIND(kind) (UINT32_C(1) << (kind))
#define DPARI_KINDS_APART                                                                          \
    (DPARI_KIND(DPAR_ACTION_UNSHARD) | DPARI_KIND(DPAR_ACTION_RESHARD) |                           \
     DPARI_KIND(DPAR_ACTION_REDUCE_GRAD) | DPARI_KIND(DPAR_ACTION_OFFLOAD) |                       \
     DPARI_KIND(DPAR_ACTION_RELOAD) | DPARI_KIND(DPAR_ACTION_WAIT_REDUCE))

/* Explains the letters and marks that the chart uses. */
static void dpari_chart_legend(dpar_text *text, const dpari_chart *chart, uint32_t kinds,
                               int32_t chunks)
{
    static const struct {
        uint32_t kinds;
        char named[24], marked[24];
    } word[] = {{DPARI_KIND(DPAR_ACTION_FORWARD), "F forward  ", "0-9 forward  "},
                {DPARI_KIND(DPAR_ACTION_BACKWARD), "B backward  ", "A-Z backward  "},
                {DPARI_KIND(DPAR_ACTION_INPUT), "I input gradient  ", "a-z input gradient  "},
                {DPARI_KIND(DPAR_ACTION_WEIGHT), "W weight gradient  ", "+ weight gradient  "},
                {DPARI_KIND(DPAR_ACTION_RECOMPUTE), "R recompute  ", "% recompute  "},
                {DPARI_KINDS_APART, "~ collective  ", "~ collective  "},
                {DPARI_KIND(31), "* overlapped  ", ""}};
    size_t i;
    for (i = 0; i < sizeof(word) / sizeof(word[0]); i++) {
        if (kinds & word[i].kinds) {
            dpar_text_put(text, chart->named ? word[i].named : word[i].marked);
        }
    }
    dpar_text_put(text, ". idle\n");
    if (!chart->named) {
        dpar_text_put(text, "digits and letters: the micro-batch, from 0 and A, round and round\n");
    } else if (chunks > 1) {
        dpar_text_put(text, "lower case: a rank's odd chunks\n");
    }
}

static void dpari_chart_draw(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t last)
{
    dpari_chart c;
    uint32_t kinds;
    int32_t r;
    dpari_chart_layout(&c, desc, last, desc->width != 0 ? desc->width : 80, &kinds);
    dpari_chart_head(text, &c, desc, last);
    for (r = 0; r < desc->schedule->ranks; r++) {
        dpari_chart_rank(text, &c, desc, r);
    }
    dpari_chart_axis(text, &c, desc);
    dpari_chart_legend(text, &c, kinds, desc->schedule->stages / desc->schedule->ranks);
}

/* ---- SVG ------------------------------------------------------------------------------------- */

/* All lengths are integers in tenths of a pixel. LANE is the height of a lane, the others are
 * margins. */
enum { DPARI_SVG_LEFT = 720, DPARI_SVG_TOP = 840, DPARI_SVG_LANE = 300, DPARI_SVG_RIGHT = 1000 };

typedef struct dpari_figure {
    const dpar_schedule_draw_desc *g;
    int64_t last;   /* the makespan */
    int64_t width;  /* width of the lanes */
    int64_t pitch;  /* distance between lanes */
    uint32_t kinds; /* kinds in the schedule, as dpari_gantt_survey sets them */
} dpari_figure;

static void dpari_figure_number(dpar_text *text, const char *name, int64_t tenths)
{
    dpari_text_say(text, " %s=\"", name);
    dpari_gantt_time(text, tenths, 10, 1);
    dpari_text_char(text, '"');
}

static void dpari_figure_rect(dpar_text *text, const char *style, int32_t level, int64_t x,
                              int64_t y, int64_t w, int64_t h)
{
    dpari_text_say(text, "<rect class=\"%s", style);
    if (level >= 0) {
        dpari_text_int(text, level);
    }
    dpari_text_char(text, '"');
    dpari_figure_number(text, "x", x);
    dpari_figure_number(text, "y", y);
    dpari_figure_number(text, "width", w);
    dpari_figure_number(text, "height", h);
    dpar_text_put(text, "/>");
}

static void dpari_figure_open(dpar_text *text, const char *style, int64_t x, int64_t y)
{
    dpari_text_say(text, "<text class=\"%s\"", style);
    dpari_figure_number(text, "x", x);
    dpari_figure_number(text, "y", y);
    dpari_text_char(text, '>');
}

static void dpari_figure_text(dpar_text *text, const char *style, int64_t x, int64_t y,
                              const char *s)
{
    dpari_figure_open(text, style, x, y);
    dpari_text_say(text, "%s</text>\n", s);
}

/* Writes the title so that both XML and JSON can contain it: their special characters become
 * apostrophes, and characters other than printable ASCII become question marks. */
static void dpari_gantt_title(dpar_text *text, const char *s)
{
    for (; *s != 0; s++) {
        char c = *s >= ' ' && *s < 127 ? *s : '?';
        dpari_text_char(text, c == '&' || c == '<' || c == '>' || c == '"' || c == '\\' ? '\'' : c);
    }
}

static int64_t dpari_figure_x(const dpari_figure *figure, int64_t ticks)
{
    return DPARI_SVG_LEFT + dpari_gantt_at(ticks, figure->last, figure->width);
}

static int64_t dpari_figure_y(const dpari_figure *figure, int32_t rank)
{
    return DPARI_SVG_TOP + rank * figure->pitch;
}

static void dpari_figure_head(dpar_text *text, const dpari_figure *figure)
{
    int64_t wide = DPARI_SVG_LEFT + figure->width + DPARI_SVG_RIGHT;
    int64_t high = dpari_figure_y(figure, figure->g->schedule->ranks) + 300;
    dpari_text_say(
        text,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %ld %ld\">\n<style>text{font:12px "
        "sans-serif;fill:#222}.h{font-size:18px;font-weight:600}"
        ".s,.a,.p{fill:#555}.e{text-anchor:end}.a,.n,.q{text-anchor:middle}.n{font-size:11px}"
        ".q{font-size:8px}.p{font-size:11px}"
        ".F0{fill:#6ea6d8}.F1{fill:#b3d1ec}.F2{fill:#dbe9f6}"
        ".B0{fill:#f09a4a}.B1{fill:#f8c595}.B2{fill:#fce3cb}"
        ".I0{fill:#f4c542}.I1{fill:#f9df93}.I2{fill:#fdf1cd}"
        ".W0{fill:#76b97a}.W1{fill:#b2d9b5}.W2{fill:#dcefdd}"
        ".R0{fill:#b49ad2}.R1{fill:#d3c5e5}.R2{fill:#e9e1f2}"
        ".U{fill:#8c6bb1}.X{fill:#bbb}.G{fill:#3a8f86}.O{fill:#a0522d}"
        ".F0,.F1,.F2,.B0,.B1,.B2,.I0,.I1,.I2,.W0,.W1,.W2,.R0,.R1,.R2"
        "{stroke:#555;stroke-width:.4}.g{stroke:#ddd}.z{fill:url(#dpar-idle)}"
        ".f,.b{stroke-width:.9;opacity:.75}.f{stroke:#1f5f99}.b{stroke:#b3560b}"
        ".y{stroke-dasharray:3 2;opacity:.45}</style>\n"
        "<defs><pattern id=\"dpar-idle\" width=\"6\" height=\"6\" "
        "patternUnits=\"userSpaceOnUse\"><rect width=\"6\" height=\"6\" fill=\"#f6f6f6\"/>"
        "<path d=\"M0 6L6 0\" stroke=\"#ccc\" stroke-width=\".8\"/></pattern>"
        "<marker id=\"dpar-f\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"5\" "
        "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#1f5f99\"/></marker>"
        "<marker id=\"dpar-b\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"5\" "
        "markerHeight=\"5\" orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#b3560b\"/></marker>"
        "</defs>\n<title>",
        wide / 10, high / 10);
    dpari_gantt_title(text, figure->g->title != NULL ? figure->g->title : "pipeline schedule");
    dpar_text_put(text, "</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    dpari_figure_open(text, "h", 200, 300);
    dpari_gantt_title(text, figure->g->title != NULL ? figure->g->title : "pipeline schedule");
    dpar_text_put(text, "</text>\n");
    dpari_figure_open(text, "s", 200, 500);
    dpari_gantt_numbers(text, figure->g, figure->last);
    dpari_text_say(text, "; numbers: micro-batches%s",
                   figure->g->schedule->stages > figure->g->schedule->ranks
                       ? "; paler: later chunks of the rank</text>\n"
                       : "</text>\n");
}

/* Returns the style of a kind that is drawn on the strip below the lane, or NULL for the others. */
static const char *dpari_figure_strip(int32_t kind)
{
    switch (kind) {
    case DPAR_ACTION_UNSHARD: return "U";
    case DPAR_ACTION_RESHARD: return "X";
    case DPAR_ACTION_REDUCE_GRAD:
    case DPAR_ACTION_WAIT_REDUCE: return "G";
    case DPAR_ACTION_OFFLOAD:
    case DPAR_ACTION_RELOAD: return "O";
    default: return NULL;
    }
}

/* Draws the legend: the meaning of each colour that the picture uses. */
static void dpari_figure_legend(dpar_text *text, const dpari_figure *figure)
{
    static const struct {
        uint32_t kinds;
        char style[3], word[18];
    } entry[] = {
        {DPARI_KIND(DPAR_ACTION_FORWARD), "F0", "F forward"},
        {DPARI_KIND(DPAR_ACTION_BACKWARD), "B0", "B backward"},
        {DPARI_KIND(DPAR_ACTION_INPUT), "I0", "I input gradient"},
        {DPARI_KIND(DPAR_ACTION_WEIGHT), "W0", "W weight gradient"},
        {DPARI_KIND(DPAR_ACTION_RECOMPUTE), "R0", "R recompute"},
        {DPARI_KIND(DPAR_ACTION_IDLE) | DPARI_KIND(DPAR_ACTION_FORWARD), "z", "idle"},
        {DPARI_KIND(DPAR_ACTION_UNSHARD), "U", "unshard"},
        {DPARI_KIND(DPAR_ACTION_RESHARD), "X", "reshard"},
        {DPARI_KIND(DPAR_ACTION_REDUCE_GRAD), "G", "reduce gradients"},
        {DPARI_KIND(DPAR_ACTION_OFFLOAD) | DPARI_KIND(DPAR_ACTION_RELOAD), "O", "offload, reload"}};
    int64_t x = 200;
    size_t i;
    for (i = 0; i < sizeof(entry) / sizeof(entry[0]); i++) {
        if (figure->kinds & entry[i].kinds) {
            dpari_figure_rect(text, entry[i].style, -1, x, 600, 120, 120);
            dpari_figure_text(text, "s", x + 170, 705, entry[i].word);
            x += 400 + 66 * (int64_t)dpari_length(entry[i].word);
        }
    }
}

/* Draws vertical lines at round times, at least about 70 pixels apart. */
static void dpari_figure_axis(dpar_text *text, const dpari_figure *figure)
{
    int64_t bottom = dpari_figure_y(figure, figure->g->schedule->ranks), tick, every;
    every = figure->last > INT64_MAX / 700 ? figure->last / figure->width * 700
                                           : dpari_ceil_div(figure->last * 700, figure->width);
    every = dpari_gantt_round(dpari_most(every, 1));
    for (tick = 0; tick <= figure->last; tick += every) {
        int64_t x = dpari_figure_x(figure, tick);
        dpar_text_put(text, "<path class=\"g\" d=\"M");
        dpari_gantt_time(text, x, 10, 1);
        dpar_text_put(text, " 78V");
        dpari_gantt_time(text, bottom, 10, 1);
        dpar_text_put(text, "\"/>");
        dpari_figure_open(text, "a", x, bottom + 150);
        dpari_gantt_time(text, tick, figure->g->unit, 6);
        dpar_text_put(text, "</text>\n");
        if (tick > INT64_MAX - every) {
            break;
        }
    }
    dpari_figure_text(text, "s", 200, bottom + 150, "time");
}

/* Opens a group with a tooltip like "3F12 on rank 3, 10 to 11". */
static void dpari_figure_tip(dpar_text *text, const dpari_figure *figure, int64_t k, int32_t rank)
{
    dpar_text_put(text, "<g><title>");
    dpar_action_write(&figure->g->schedule->action[k], text);
    dpari_text_say(text, " on rank %d, ", rank);
    dpari_gantt_time(text, figure->g->start[k], figure->g->unit, 6);
    dpar_text_put(text, " to ");
    dpari_gantt_time(text, figure->g->end[k], figure->g->unit, 6);
    dpar_text_put(text, "</title>");
}

/* Draws a computation, or one half of a joined pair, with its micro-batch if the number fits. */
static void dpari_figure_slice(dpar_text *text, const dpar_schedule *schedule,
                               const dpar_action *action, int64_t x, int64_t y, int64_t w,
                               int64_t h)
{
    int32_t digits = dpari_gantt_digits(action->micro_batch);
    int64_t big = h >= 200 && w >= 64 * digits + 30;
    const char *name =
        action->kind == DPAR_ACTION_RECOMPUTE ? "R" : dpari_action_name(action->kind);
    dpari_figure_rect(text, name,
                      (int32_t)dpari_least(dpari_gantt_chunk(schedule, action->stage), 2), x, y, w,
                      h);
    if (big || w >= 46 * digits + 8) {
        const int64_t below = big ? 40 : 29; /* from the middle to the base line */
        dpari_figure_open(text, big ? "n" : "q", x + w / 2, y + h / 2 + below);
        dpari_text_say(text, "%d</text>", (int32_t)action->micro_batch);
    }
}

static void dpari_figure_action(dpar_text *text, const dpari_figure *figure, int64_t k,
                                int32_t rank)
{
    const dpar_schedule *schedule = figure->g->schedule;
    const dpar_action *action = &schedule->action[k];
    const char *strip = dpari_figure_strip(action->kind);
    int64_t x = dpari_figure_x(figure, figure->g->start[k]), y = dpari_figure_y(figure, rank);
    int64_t w = dpari_figure_x(figure, figure->g->end[k]) - x;
    if (strip == NULL && (!dpari_gantt_is_work(action->kind) || w < 1)) {
        return;
    }
    dpari_figure_tip(text, figure, k, rank);
    if (strip != NULL) {
        dpari_figure_rect(text, strip, -1, x, y + DPARI_SVG_LANE + 10, dpari_most(w, 15), 60);
    } else if (action->joined) {
        dpari_figure_slice(text, schedule, action, x, y, w, DPARI_SVG_LANE / 2);
        dpari_figure_slice(text, schedule, action + 1, x, y + DPARI_SVG_LANE / 2, w,
                           DPARI_SVG_LANE / 2);
    } else {
        dpari_figure_slice(text, schedule, action, x, y, w, DPARI_SVG_LANE);
    }
    dpar_text_put(text, "</g>\n");
}

static void dpari_figure_rank(dpar_text *text, const dpari_figure *figure, int32_t rank)
{
    const dpar_schedule *schedule = figure->g->schedule;
    int64_t y = dpari_figure_y(figure, rank), k, busy = 0;
    dpari_figure_open(text, "e", DPARI_SVG_LEFT - 90, y + 195);
    dpari_text_say(text, "rank %d</text>\n", rank);
    dpari_figure_rect(text, "z", -1, DPARI_SVG_LEFT, y, figure->width, DPARI_SVG_LANE);
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1];
         k += 1 + schedule->action[k].joined) {
        dpari_figure_action(text, figure, k, rank);
        if (dpari_gantt_holds(schedule->action[k].kind)) {
            busy += dpari_least(figure->g->end[k] - figure->g->start[k], figure->last - busy);
        }
    }
    dpari_figure_open(text, "p", DPARI_SVG_LEFT + figure->width + 80, y + 190);
    dpari_gantt_time(text, (dpari_gantt_at(figure->last - busy, figure->last, 2000) + 1) / 2, 10,
                     1);
    dpar_text_put(text, " % idle</text>\n");
}

/* Draws an arrow from the lane of the sender, at the time of the SEND, to the lane of the receiver,
 * at the time of arrival. */
static void dpari_figure_arrow(dpar_text *text, const dpari_figure *figure, int64_t k, int32_t rank,
                               dpari_seek *seek)
{
    const dpar_action *action = &figure->g->schedule->action[k];
    int64_t to = dpari_gantt_partner(figure->g->schedule, action, seek);
    int32_t down = action->peer > rank;
    const char *style = action->kind == DPAR_ACTION_SEND_F ? "f" : "b";
    if (to < 0) {
        return;
    }
    dpari_text_say(text, "<line class=\"%s%s", style,
                   action->peer - rank > 1 || rank - action->peer > 1 ? " y\"" : "\"");
    dpari_figure_number(text, "x1", dpari_figure_x(figure, figure->g->start[k]));
    dpari_figure_number(text, "y1", dpari_figure_y(figure, rank) + (down ? DPARI_SVG_LANE : 0));
    dpari_figure_number(text, "x2", dpari_figure_x(figure, figure->g->end[to]));
    dpari_figure_number(text, "y2",
                        dpari_figure_y(figure, action->peer) + (down ? 0 : DPARI_SVG_LANE));
    dpari_text_say(text, " marker-end=\"url(#dpar-%s)\"/>\n", style);
}

static void dpari_figure_draw(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t last)
{
    const dpar_schedule *schedule = desc->schedule;
    dpari_figure f;
    dpari_seek seek;
    int64_t common, shortest, k;
    int32_t r;
    f.g = desc;
    f.last = last;
    shortest = dpari_most(dpari_gantt_survey(desc, f.last, &common, &f.kinds), 1);
    f.width = dpari_least(dpari_most(f.last / shortest, 44) * 180,
                          28000); /* 18 pixels for the shortest action, 2800 in all at most */
    f.pitch = DPARI_SVG_LANE + (f.kinds & DPARI_KINDS_APART ? 220 : 140);
    dpari_figure_head(text, &f);
    dpari_figure_legend(text, &f);
    dpari_figure_axis(text, &f);
    for (r = 0; r < schedule->ranks; r++) {
        dpari_figure_rank(text, &f, r);
    }
    for (r = 0; r < schedule->ranks; r++) {
        dpari_zero(&seek, sizeof(seek));
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            if (dpari_action_is_send(schedule->action[k].kind)) {
                dpari_figure_arrow(text, &f, k, r, &seek);
            }
        }
    }
    dpar_text_put(text, "</svg>\n");
}

/* ---- Chrome trace ---------------------------------------------------------------------------- */

/* The threads of a process, which is a rank. Slices of one thread must not overlap partially. Each
 * kind of message therefore has its own threads (lanes), one for each of up to 8 messages that are
 * in flight at once. */
enum {
    DPARI_TRACE_WORK,
    DPARI_TRACE_SEND_F,
    DPARI_TRACE_RECV_F,
    DPARI_TRACE_SEND_B,
    DPARI_TRACE_RECV_B,
    DPARI_TRACE_REST,
    DPARI_TRACES,
    DPARI_TRACE_LANES = 8
};

static int32_t dpari_trace_thread(int32_t kind)
{
    if (dpari_action_is_message(kind)) {
        return kind - DPAR_ACTION_SEND_F + DPARI_TRACE_SEND_F;
    }
    return dpari_gantt_is_work(kind) ? DPARI_TRACE_WORK : DPARI_TRACE_REST;
}

static void dpari_trace_open(dpar_text *text, const char *phase, int32_t rank, int32_t thread)
{
    dpari_text_say(text, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d", phase, rank, thread);
}

static void dpari_trace_name(dpar_text *text, const char *what, int32_t rank, int32_t thread,
                             const char *name, int64_t number)
{
    dpari_trace_open(text, "M", rank, thread);
    dpari_text_say(text, ",\"name\":\"%s\",\"args\":{\"name\":\"%s", what, name);
    if (number >= 0) {
        dpari_text_int(text, number);
    }
    dpar_text_put(text, "\"}}");
}

static void dpari_trace_time(dpar_text *text, const char *name, int64_t ticks, int64_t unit)
{
    dpari_text_say(text, ",\"%s\":", name);
    dpari_gantt_time(text, ticks, unit, 6);
}

/* Writes a complete event for an action. For a joined pair this is a slice that contains those of
 * both halves. */
static void dpari_trace_slice(dpar_text *text, const dpar_schedule_draw_desc *desc,
                              const dpar_action *action, int32_t rank, int32_t lane, int64_t start,
                              int64_t end)
{
    int32_t thread = dpari_trace_thread(action->kind);
    dpari_trace_open(text, "X", rank, thread + lane * DPARI_TRACES);
    dpari_trace_time(text, "ts", start, desc->unit);
    dpari_trace_time(text, "dur", end - start, desc->unit);
    dpar_text_put(text, ",\"name\":\"");
    dpar_action_write(action, text);
    dpari_text_say(text, "\",\"cat\":\"%s\",\"args\":{\"stage\":%d",
                   thread == DPARI_TRACE_WORK ? "compute" : "communication",
                   (int32_t)action->stage);
    if (dpari_action_has_micro(action->kind)) {
        dpari_text_say(text, ",\"micro\":%d", (int32_t)action->micro_batch);
    }
    if (dpari_action_is_message(action->kind)) {
        dpari_text_say(text, ",\"peer\":%d", (int32_t)action->peer);
    }
    dpar_text_put(text, "}}");
}

static void dpari_trace_work(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t k,
                             int32_t rank)
{
    const dpar_action *action = &desc->schedule->action[k];
    dpar_action forward = *action;
    dpari_trace_slice(text, desc, action, rank, 0, desc->start[k], desc->end[k]);
    if (action->joined) {
        forward.joined = 0;
        dpari_trace_slice(text, desc, &forward, rank, 0, desc->start[k], desc->end[k]);
        dpari_trace_slice(text, desc, action + 1, rank, 0, desc->start[k], desc->end[k]);
    }
}

/* Writes one end of an arrow. Both ends have the same id, made of the edge between the stages, the
 * micro-batch and the direction. */
static void dpari_trace_flow(dpar_text *text, const dpar_schedule_draw_desc *desc,
                             const dpar_action *action, int32_t rank, int32_t lane, int64_t at)
{
    int32_t sent = dpari_action_is_send(action->kind);
    int64_t edge = (int64_t)action->stage +
                   (action->kind == DPAR_ACTION_SEND_F || action->kind == DPAR_ACTION_RECV_B);
    dpari_trace_open(text, sent ? "s" : "f", rank,
                     dpari_trace_thread(action->kind) + lane * DPARI_TRACES);
    dpari_trace_time(text, "ts", at, desc->unit);
    dpari_text_say(text, "%s,\"name\":\"message\",\"cat\":\"communication\",\"id\":%ld}",
                   sent ? "" : ",\"bp\":\"e\"",
                   (edge * 65536 + action->micro_batch) * 2 + dpari_message_way(action->kind));
}

static void dpari_trace_thread_name(dpar_text *text, int32_t rank, int32_t thread, int32_t lane)
{
    static const char name[DPARI_TRACES][18] = {
        "compute", "send forward", "receive forward", "send backward", "receive backward", "other"};
    dpari_trace_name(text, "thread_name", rank, thread + lane * DPARI_TRACES, name[thread],
                     lane > 0 ? lane + 1 : -1); /* "send forward2" */
}

/* Writes a message, a collective or a copy in the first free lane. until[lane] is the time up to
 * which a lane is in use, or -1 if it has no name yet. If all lanes are in use, the slice starts
 * when the first one becomes free. */
static void dpari_trace_rest(dpar_text *text, const dpar_schedule_draw_desc *desc, int64_t k,
                             int32_t rank, int64_t *until, dpari_seek *seek)
{
    const dpar_action *action = &desc->schedule->action[k];
    int64_t start = desc->start[k], other = -1;
    int32_t lane = 0, i;
    if (dpari_action_is_message(action->kind)) {
        other = dpari_gantt_partner(desc->schedule, action, seek);
        if (other >= 0 && dpari_action_is_receive(action->kind)) {
            start = dpari_most(start, desc->start[other]); /* before that the receive only waits */
        }
    }
    start = dpari_least(start, desc->end[k]);
    for (i = DPARI_TRACE_LANES - 1; i >= 0; i--) {
        lane = until[i] <= start || until[i] < until[lane] ? i : lane;
    }
    if (until[lane] < 0) {
        dpari_trace_thread_name(text, rank, dpari_trace_thread(action->kind), lane);
    }
    start = dpari_least(dpari_most(start, until[lane]), desc->end[k]);
    until[lane] = dpari_most(until[lane], desc->end[k]);
    dpari_trace_slice(text, desc, action, rank, lane, start, desc->end[k]);
    if (other >= 0) {
        dpari_trace_flow(text, desc, action, rank, lane, start);
    }
}

static DPARI_COLD void dpari_trace_rank(dpar_text *text, const dpar_schedule_draw_desc *desc,
                                        int32_t rank)
{
    const dpar_schedule *schedule = desc->schedule;
    int64_t k, until[DPARI_TRACES * DPARI_TRACE_LANES];
    dpari_seek seek;
    int32_t i;
    dpari_zero(&seek, sizeof(seek));
    dpari_trace_name(text, "process_name", rank, 0, "rank ", rank);
    for (i = 0; i < DPARI_TRACES; i++) {
        dpari_trace_thread_name(text, rank, i, 0);
    }
    for (i = 0; i < DPARI_TRACES * DPARI_TRACE_LANES; i++) {
        until[i] = i % DPARI_TRACE_LANES == 0 ? 0 : -1;
    }
    for (k = schedule->begin[rank]; k < schedule->begin[rank + 1];
         k += 1 + schedule->action[k].joined) {
        int32_t kind = schedule->action[k].kind;
        if (dpari_gantt_is_work(kind)) {
            dpari_trace_work(text, desc, k, rank);
        } else if (kind != DPAR_ACTION_IDLE) {
            dpari_trace_rest(text, desc, k, rank,
                             &until[dpari_trace_thread(kind) * DPARI_TRACE_LANES], &seek);
        }
    }
}

static void dpari_trace_draw(dpar_text *text, const dpar_schedule_draw_desc *desc)
{
    int32_t r;
    dpar_text_put(text, "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"title\":\"");
    dpari_gantt_title(text, desc->title != NULL ? desc->title : "pipeline schedule");
    dpar_text_put(text, "\"},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,"
                        "\"name\":\"process_labels\",\"args\":{\"labels\":\"dpar\"}}");
    for (r = 0; r < desc->schedule->ranks; r++) {
        dpari_trace_rank(text, desc, r);
    }
    dpar_text_put(text, "\n]}\n");
}

/* ---- the call -------------------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_schedule_draw(dpar_text *text,
                                                   const dpar_schedule_draw_desc *desc,
                                                   int32_t format, dpar_why *why)
{
    int64_t last = 0;
    dpar_status st = dpari_gantt_check(desc, &last, why);
    if (st != DPAR_OK) {
        return st;
    }
    switch (format) {
    case DPAR_SCHEDULE_DRAW_TEXT:
        if (desc->width != 0 && (desc->width < 32 || desc->width > 4096)) {
            return dpari_wrong(why, "width=%d; 32 to 4096 characters are allowed", desc->width);
        }
        dpari_chart_draw(text, desc, last);
        return DPAR_OK;
    case DPAR_SCHEDULE_DRAW_SVG: dpari_figure_draw(text, desc, last); return DPAR_OK;
    case DPAR_SCHEDULE_DRAW_TRACE: dpari_trace_draw(text, desc); return DPAR_OK;
    default: return dpari_wrong(why, "format=%d; 0 to 2 are allowed", format);
    }
}

/* ==== schedule/sketch.c ==== */

/* Simulates a schedule with unit times and draws it, in one call. */

DPAR_API DPARI_COLD dpar_status dpar_schedule_sketch(const dpar_schedule *schedule, int32_t format,
                                                     void *mem, int64_t bytes, dpar_text *text,
                                                     dpar_why *why)
{
    dpar_schedule_times times;
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_schedule_draw_desc picture;
    dpar_status st;
    int64_t own, need, actions;
    dpari_zero(&times, sizeof times);
    dpari_zero(&how, sizeof how);
    dpari_zero(&picture, sizeof picture);
    times.forward.all = times.input.all = times.weight.all = 1;
    how.times = &times;
    own = dpari_schedule_simulate_bytes(schedule, &how);
    if (own < 0) {
        return dpari_wrong(
            why,
            "this is not a schedule: it has %d stages in chains of %d, and %d micro-batches in "
            "slices of %d",
            schedule->stages, schedule->chain, schedule->micro_batches, schedule->slices);
    }
    actions = schedule->begin[schedule->ranks];
    need = own + 16 * actions;
    if (mem == NULL || bytes < need || (uintptr_t)mem % 8 != 0) {
        dpari_needs_bytes(why, need);
        return dpari_say(
            DPAR_E_ROOM, why,
            "a picture of %ld actions needs %ld bytes at an address that 8 divides, got %ld",
            actions, need, mem == NULL ? 0 : bytes);
    }
    how.start = (int64_t *)mem;
    how.end = how.start + actions;
    st = dpar_schedule_simulate(schedule, &how, &timing, how.end + actions, own, why);
    if (st != DPAR_OK) {
        return st;
    }
    picture.schedule = schedule;
    picture.start = how.start;
    picture.end = how.end;
    picture.unit = 1;
    picture.width = 100;
    return dpar_schedule_draw(text, &picture, format, why);
}

/* ==== schedule/schedule_selftest.c ==== */

/* Makes a schedule by each rule and compares a checksum of all actions with that of other targets.
 */

DPAR_API DPARI_COLD dpar_status dpar_schedule_selftest(dpar_why *why)
{
    int64_t memory[64], i;
    dpar_schedule_desc order;
    dpar_schedule s;
    uint32_t sum = 0;
    dpari_zero(&order, sizeof(order));
    order.ranks = 2;
    order.micro_batches = 4;
    /* Three rules need more memory. They add their status and the schedule of the rule before. */
    for (order.rule = 1; order.rule < DPAR_SCHEDULE_END; order.rule++) {
        sum = dpari_digest(sum, dpar_schedule_generate(&s, &order, memory, sizeof(memory), NULL));
        for (i = 0; i < s.begin[2]; i++) {
            const dpar_action *action = &s.action[i];
            sum = dpari_digest(sum, action->kind * INT32_C(4096) + action->stage * 256 +
                                        action->micro_batch);
        }
    }
    return dpari_differs(sum, UINT32_C(1481399199), "schedules", why);
}

#endif /* DPAR_SCHEDULE_IMPLEMENTATION */
