/* SPDX-License-Identifier: MIT-0 */
/* schedule - holds a pipeline's order of work: for each rank a list of actions of 8 bytes each, in
 * the caller's memory. It also reads and writes schedules as the CSV text of PyTorch's pipelining.
 *
 *     dpar_schedule_generate(&s, &desc, memory, sizeof memory, &why);       generate.h
 *     for (k = s.begin[rank]; k < s.begin[rank + 1]; k++) {
 *         dpar_action_write(&s.action[k], &text);                           0F0 0F1 ... 0B7
 *     }
 */
#ifndef DPARI_SCHEDULE_SCHEDULE_H
#define DPARI_SCHEDULE_SCHEDULE_H

#include "../base/text.h"

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

#endif
