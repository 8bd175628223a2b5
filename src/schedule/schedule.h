/* SPDX-License-Identifier: MIT-0 */
/* schedule - a pipeline's order of work: for each rank a list of actions, 8 bytes each, in the
 * caller's memory. As text it is the CSV that PyTorch's pipelining reads and writes.
 *
 *     dpar_schedule_make(memory, sizeof memory, "1f1b", 4, 8, &s, &why);    generate.h
 *     for (k = s.begin[rank]; k < s.begin[rank + 1]; k++) {
 *         dpar_action_write(&s.action[k], &text);                           0F0 0F1 ... 0B7
 *     } */
#ifndef DPARI_SCHEDULE_SCHEDULE_H
#define DPARI_SCHEDULE_SCHEDULE_H

#include "../base/text.h"

/* What an action does, and its name in the text. Micro-batches and stages count from 0. B is I and
 * W in one, as in PyTorch; papers on zero bubbles write B for what is I here. */
enum {
    DPAR_ACTION_IDLE,    /* a pause that somebody wrote down; passes may drop it */
    DPAR_ACTION_FORWARD, /* F: needs the forward of the stage before; its activation lives from here
                            on */
    DPAR_ACTION_BACKWARD,    /* B: gradients of input and weights; needs the backward of the stage
                         behind;    ends the activation */
    DPAR_ACTION_INPUT,       /* I: gradient of the input alone */
    DPAR_ACTION_WEIGHT,      /* W: gradient of the weights alone, after I; ends the activation */
    DPAR_ACTION_SEND_F,      /* the stage's output, to the rank of the stage behind */
    DPAR_ACTION_RECV_F,      /* the stage's input, from the rank of the stage before */
    DPAR_ACTION_SEND_B,      /* the gradient of its input, to the rank of the stage before */
    DPAR_ACTION_RECV_B,      /* the gradient of its output, from the rank of the stage behind */
    DPAR_ACTION_UNSHARD,     /* gather the stage's parameters */
    DPAR_ACTION_RESHARD,     /* let go of them */
    DPAR_ACTION_REDUCE_GRAD, /* reduce the stage's gradients over data-parallel ranks */
    DPAR_ACTION_RECOMPUTE,   /* the forward again, before the backward */
    DPAR_ACTION_OFFLOAD,     /* the activation to the host */
    DPAR_ACTION_RELOAD,      /* and back */
    DPAR_ACTION_WAIT_REDUCE, /* WAIT_REDUCE_GRAD: until the stage's REDUCE_GRAD is through */
    DPAR_ACTION_COUNT
};
#define DPAR_MAX_STAGES INT32_C(65535) /* and ranks */
#define DPAR_MAX_MICRO_BATCHES INT32_C(65535)

/* What a rank does at one place of its list. */
typedef struct dpar_action {
    uint8_t kind;   /* DPAR_ACTION_FORWARD, ... */
    uint8_t joined; /* 1: a forward that runs together with the backward next in the list */
    uint16_t stage;
    uint16_t micro; /* micro-batch; 0 for kinds that have none */
    uint16_t peer;  /* SEND, RECV: the other rank; else 0 */
} dpar_action;

/* The actions of all ranks. Pointers lead into the memory that was handed over: copy the struct
 * freely while that lives.
 *
 * Stage s feeds s + 1 unless it ends a chain. One pipeline is one chain of all stages. A
 * bidirectional one (Chimera, DualPipe) has two: stages 0 .. chain-1 down and chain .. 2 chain - 1
 * up. A micro-batch goes through one of them. Sliced micro-batches (Seq1F1B): micro = micro-batch x
 * slices + slice. Backward goes from a micro-batch's last slice to its first. */
typedef struct dpar_schedule {
    int32_t ranks, stages, micros; /* micros: with slices, all of them */
    int32_t chain;                 /* stages of a chain; divides stages */
    int32_t slices;                /* slices of a micro-batch: 1, but for Seq1F1B */
    int64_t *begin; /* [ranks + 1]: rank r has action[begin[r]] .. begin[r + 1] - 1 */
    dpar_action *action;
    uint16_t *rank_of; /* [stages] */
} dpar_schedule;

/* Which rank a stage is on. LOOP: s mod p. V: down and up again, 0 1 2 3 3 2 1 0. BIDIRECTIONAL:
 * two chains of p stages, the second from the last rank to the first. */
enum { DPAR_STAGE_MAP_LOOP, DPAR_STAGE_MAP_V, DPAR_STAGE_MAP_BIDIRECTIONAL, DPAR_STAGE_MAP_COUNT };

/* Bytes of memory for a schedule, rounded up to a multiple of 8 as all sizes of this header are, so
 * that memory behind it is aligned, too. -1 when a number is out of its domain: 1 to 65535 ranks
 * and stages, 0 or more actions. O(1). */
DPAR_API int64_t dpar_schedule_bytes(int32_t ranks, int32_t stages, int64_t actions);
/* Makes an empty schedule in mem (aligned as for int64_t), with room for `actions`. Set s->ranks
 * and s->stages first. It writes chain = stages, slices = 1, micros = 0, all begins 0. E_ARG,
 * E_ROOM with a sentence. O(ranks). */
DPAR_API dpar_status dpar_schedule_init(dpar_schedule *s, int64_t actions, void *mem, int64_t bytes,
                                        dpar_why *why);

/* The stage at the other end of a message, or of F, B and I the stage that needs the result.
 * SEND_F, RECV_B: the stage that this one feeds. RECV_F, SEND_B: the stage that feeds it. -1 at a
 * chain's end and for other kinds. O(1). */
DPAR_API int32_t dpar_schedule_partner(const dpar_schedule *s, int32_t kind, int32_t stage);
/* Appends an action as text: "3F12", "(0F7;7B3)OVERLAP_F_B" for a joined one and the next, "" for
 * an idle one. O(1). */
DPAR_API void dpar_action_write(const dpar_action *a, dpar_text *t);

/* ---- the text: one line a rank, cells between commas, an empty cell is idle ----
 *
 * PyTorch's CSV, format compute_only or compute_comms, read strictly. A cell is
 * <stage><name><micro-batch> or (<F>;<B or I>)OVERLAP_F_B, with blanks around it or without. Lines
 * end in LF or CRLF; one that begins with '#' is a comment. A line of nothing is a rank without
 * actions, "" (quoted) a single idle one. Anything else is E_PARSE with line, column and what was
 * expected.
 *
 * A stage is on the rank in whose line it stands. E_ARG: it stands in two, or a stage below the
 * largest stands in none. Peers follow from that. */

/* A text to read. Zero it, then set the first two. */
typedef struct dpar_schedule_read_desc {
    const char *text;
    size_t bytes;
    int32_t chain; /* stages of a chain; 0: all are one chain */
} dpar_schedule_read_desc;

/* Bytes of memory that reading this text takes. -1 with a sentence: as dpar_schedule_read.
 * O(text). */
DPAR_API int64_t dpar_schedule_read_bytes(const dpar_schedule_read_desc *in, dpar_why *why);
/* Reads a text into mem. micros is the largest + 1. slices is 1: set yours after it. E_PARSE: see
 * above. E_ARG: that too, or a message between stages that are no neighbours in a chain, or on one
 * rank. E_ROOM. O(text). */
DPAR_API dpar_status dpar_schedule_read(dpar_schedule *s, const dpar_schedule_read_desc *in,
                                        void *mem, int64_t bytes, dpar_why *why);
/* Appends a schedule as text, which reads back as the same actions. `end` ends the lines: "\r\n" as
 * Python's csv writes it, or "\n". O(actions). */
DPAR_API void dpar_schedule_write(const dpar_schedule *s, const char *end, dpar_text *t);

#endif
