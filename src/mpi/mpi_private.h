/* SPDX-License-Identifier: MIT-0 */
/* mpi_private - private: the data of the engine over MPI.
 *
 * dpar_mpi_make creates a dpari_mpi_world, to which all communicators belong that are split from
 * the first one; each is a dpari_mpi_ctx. A call of dpar becomes a dpari_mpi_task, whose `path` the
 * module paths selects. A task proceeds in steps, in the module progress: it posts requests to MPI,
 * and once all of them are done it processes the data that arrived ("lands") and posts the next
 * requests, until `last` is set. Nothing runs in the background: every wait and test calls
 * dpari_mpi_pump, which advances all tasks of the world.
 *
 * Two MPI communicators belong to each ctx. `main` carries the operations that the user called;
 * `side` carries the pieces of an operation, checks, and the notes by which ranks inform each other
 * of long waits and errors. MPI matches collectives by their order, so a collective may begin only
 * when all earlier ones on its communicator have posted all their steps (ctx->unfed). */
#ifndef DPARI_MPI_MPI_PRIVATE_H
#define DPARI_MPI_MPI_PRIVATE_H

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../comm/engine.h"
#include "../comm/record.h"
#include "mpi_make.h"

#include <stdlib.h>
#include <string.h>
#if defined(__unix__) || defined(__APPLE__)
#include <sched.h>
#include <unistd.h>
#define DPARI_MPI_YIELD() ((void)sched_yield())
#else
#define DPARI_MPI_YIELD() ((void)0)
#endif

#if MPI_VERSION >= 4 && !defined(DPAR_MPI_LIMIT)
#define DPARI_MPI_C(name) name##_c
#define DPARI_MPI_LIMIT INT64_MAX
typedef MPI_Count dpari_mpi_count;
#else
#define DPARI_MPI_C(name) name
#if defined(DPAR_MPI_LIMIT)
#define DPARI_MPI_LIMIT ((int64_t)(DPAR_MPI_LIMIT))
#else
#define DPARI_MPI_LIMIT INT64_C(2147483647)
#endif
typedef int dpari_mpi_count;
#endif

enum {
    DPARI_MPI_BLOCK = 1 << 20, /* elements that are staged at a time: 4 MiB, or 8 MiB of 8-byte
                                  types */
    DPARI_MPI_SMALL = 1 << 14, /* bytes of all ranks' input together up to which a reduction in rank
                                  order gathers the inputs rather than exchanging pieces */
#if defined(DPAR_MPI_LIMIT)
    DPARI_MPI_EXCHANGED = 2,
    DPARI_MPI_DIRECT = 2,
    DPARI_MPI_TRADED = 2,
    DPARI_MPI_DEALT = 64,
#else
    DPARI_MPI_DEALT = 1 << 12, /* bytes of a piece up to which an all-to-all is sent by nodes. With
                                  more than 8 ranks per node the limit is lower, because data is
                                  copied twice in the node's memory */
    DPARI_MPI_DIRECT = 8,      /* ranks up to which each rank sends a message to each other rank,
                                  also for small sizes */
    DPARI_MPI_TRADED = 64,     /* the same for pieces of at least DPARI_MPI_WORTH bytes */
    DPARI_MPI_EXCHANGED = 64,  /* ranks up to which 16-bit floats are reduced in rank order, which
                                  sends half the bytes of a sum in f32 */
#endif
    DPARI_MPI_LANES = 1 << 14,          /* bytes from which all lanes carry their part, unless this
                                           is measured; below, the first lane carries everything */
    DPARI_MPI_LANES_FIRST = 1 << 12,    /* the measurement tries sizes from here, in bytes, */
    DPARI_MPI_LANES_LAST = 1 << 16,     /* to here */
    DPARI_MPI_DEALT_FIRST = 64,         /* the smallest piece of an all-to-all that is measured */
    DPARI_MPI_SLOT = 1 << 14,           /* bytes of all slots together that a rank fills in its
                                           node */
    DPARI_MPI_SLOT_MOST = 1 << 12,      /* the most bytes of one slot */
    DPARI_MPI_WORTH = 2048,             /* bytes from which a piece is worth a separate message */
    DPARI_MPI_AT_ONCE_FIRST = 2 << 10,  /* the length of the longest message that MPI sends at once
                                           (eagerly) is searched from here, in bytes, */
    DPARI_MPI_AT_ONCE_LAST = 128 << 10, /* to here; */
    DPARI_MPI_AT_ONCE_SPARE = 64,       /* bytes by which the limit that is used is below the one
                                           that was found */
    DPARI_MPI_RANKS_TOLD = 1024,        /* in communicators with more ranks than this, ranks send no
                                           notes */
    DPARI_MPI_NAME = 64,                /* bytes of a node's name */
    DPARI_MPI_TAGS = 32000,             /* MPI guarantees tags up to 32767 */
    DPARI_MPI_FINISHED = 2,             /* a value of work->phase and of task->finished */
    DPARI_MPI_LIGHT = 3,                /* a value of work->phase: a request without a task */
    DPARI_MPI_POLLS = 32,   /* polls of a wait after which it yields the core at every poll, because
                               ranks may share cores */
    DPARI_MPI_TAG_NOTE = 0, /* tags on ctx->side: 0 for notes, from 1 on for pieces, */
    DPARI_MPI_TAG_PIECE = 1,
    DPARI_MPI_TAG_DEALT = DPARI_MPI_TAGS + 1, /* and then for the messages that a node sends to one
                                                 rank */
    DPARI_MPI_TAGS_DEALT = 700
};

typedef struct dpari_mpi_task dpari_mpi_task;
typedef struct dpari_mpi_ctx dpari_mpi_ctx;

/* Header of memory from dpar_comm_alloc, directly before the address that the caller gets. */
typedef struct dpari_mpi_memory {
    struct dpari_mpi_memory *before, *after;
    void *base;
} dpari_mpi_memory;

/* State that the first communicator shares with all that were split from it. */
typedef struct dpari_mpi_world {
    int32_t communicators;
    int64_t pass;
    dpari_mpi_task *tasks, *last; /* in progress, in the order of posting */
    dpari_mpi_task *spare;
    dpar_work *light; /* messages in progress that have no task */
    dpari_mpi_memory *memory;
    int32_t held;         /* 1: MPI may still use buffers of a broken communicator, so that no
                             memory is freed */
    MPI_Op max, min, sum; /* dpar's own operations, see dpari_mpi_is_own */
    int64_t at_once;      /* bytes: messages longer than this, up to twice as long, are sent in two
                             parts; 0 if none are */
    int64_t lanes_from;   /* bytes of an all-reduce from which all lanes carry their part */
    int64_t dealt[2];     /* bytes of a piece up to which all_to_all [0] and all_to_all_v [1] are
                             sent by nodes; negative if none are */
    struct dpari_mpi_ctx *open; /* list of the communicators, the newest first. The oldest is the
                                   one that dpar_mpi_make returned */
    dpari_ended closed;
    MPI_Group all;                /* the ranks of the first communicator */
    int32_t *host_of;             /* [ranks of the first communicator] number of each one's node */
    char (*host)[DPARI_MPI_NAME]; /* names of the nodes; NULL if there is only one node */
    dpar_comm *node; /* all ranks of this rank's node, over shared memory; NULL if they do not share
                        any */
    dpar_why flat;   /* the reason why `node` is NULL */
} dpari_mpi_world;

/* A message from one rank to another: "I wait in this call", with call.sequence + 1, because 0
 * marks a rank that has reported nothing; or, with a negative call.state, "this communicator is
 * broken". */
typedef struct dpari_mpi_note {
    dpari_record call;
    int32_t rank, room;
    char text[200];
} dpari_mpi_note;

/* A note that is being sent to one rank. There is one for each rank, so that a rank that does not
 * receive its note does not delay the others. */
typedef struct dpari_mpi_letter {
    MPI_Request sent;
    dpari_mpi_note note;
} dpari_mpi_letter;

/* How the ranks of a communicator are distributed over nodes. */
typedef struct dpari_mpi_levels {
    dpar_comm *inside; /* this node's ranks, in their order; only the engine uses it. NULL if every
                          rank is alone on its node, or messages carry everything */
    int32_t nodes, node, lanes; /* nodes: their number; node: that of this rank; lanes: ranks of the
                                   smallest node */
    int32_t even;               /* 1: all nodes have the same number of ranks */
    int32_t in_order;           /* 1: the ranks of a node are consecutive */
    int32_t *node_of, *lane_of; /* [size] each rank's node, and its number among the ranks of that
                                   node */
    int32_t *member;            /* [size] the ranks, sorted by node */
    int32_t *begin;             /* [nodes + 1] index in `member` at which each node's ranks begin */
    int32_t *lane;              /* [nodes] the ranks of this rank's lane; -1 where a node has
                                   none */
} dpari_mpi_levels;

struct dpari_mpi_ctx {
    dpar_comm comm;
    dpari_mpi_levels level;
    dpari_mpi_world *world;
    struct dpari_mpi_ctx *older; /* the next communicator in the list world->open */
    MPI_Comm main, side;         /* main: the operations; side: pieces, checks and notes */
    dpar_mpi_desc options;
    int64_t sequence; /* collectives so far */
    int64_t records;
    int64_t pass;  /* the last pass of the world in which a collective with steps left was found */
    int64_t unfed; /* collectives that still have steps to post */
    int32_t tag_most;
    double listened;                    /* when notes were last read (MPI_Wtime) */
    dpari_mpi_letter *waiting, *broken; /* [size] notes being sent to each rank */
    dpar_why inward;                    /* the message for the node's ranks, once the communicator
                                           is broken */
    dpari_mpi_note *heard;              /* [size] the last note of each rank; NULL before the
                                           first */
    int32_t *told;                      /* [size] notes sent to each rank; NULL before the first */
    int32_t notes, due;                 /* notes received, and notes to be received before it is
                                           closed */
    dpari_mpi_note last;                /* buffer for the remaining notes on closing */
    void *scratch;                      /* memory that is kept for the next task */
    int64_t scratch_bytes;
    const void **rows; /* [size] scratch for the addresses of a reduction's input */
    dpari_record ring[DPARI_RECORDS];
};

/* The message that belongs to one request. */
typedef struct dpari_mpi_piece {
    MPI_Datatype type;     /* the base type */
    MPI_Datatype big;      /* the derived type to be freed, or MPI_DATATYPE_NULL */
    int64_t expect;        /* elements to be received; -1 if the request is no receive */
    int64_t before, whole; /* elements of the preceding part, if a message is sent in two parts, and
                              of both parts together. whole is -1 if fewer than expected may
                              arrive */
    int32_t peer;
    char none; /* buffer for a message that should be empty */
} dpari_mpi_piece;

/* The paths of a task. Those before DPARI_MPI_WITHIN may use MPI's blocking calls. */
enum {
    DPARI_MPI_MOVE,            /* one MPI collective that moves data */
    DPARI_MPI_MESSAGE,         /* send, recv */
    DPARI_MPI_EXCHANGE,        /* the _v forms that move data: a message for each pair of ranks */
    DPARI_MPI_PIECES,          /* MPI's reduce or all-reduce, in pieces below the count limit */
    DPARI_MPI_STAGED,          /* the same for 16-bit floats, converted to f32 */
    DPARI_MPI_SCATTER,         /* MPI's reduce_scatter(_v) */
    DPARI_MPI_SCATTER_STAGED,  /* the same in f32, or beyond the count limit */
    DPARI_MPI_GATHERED,        /* small reduction in rank order: the whole input is gathered */
    DPARI_MPI_DOUBLING,        /* small all-reduce by recursive doubling */
    DPARI_MPI_ORDERED,         /* reduce or all-reduce in rank order: each rank adds one piece */
    DPARI_MPI_ORDERED_SCATTER, /* reduce_scatter(_v) in rank order */
    DPARI_MPI_WITHIN,          /* everything in the node's memory */
    DPARI_MPI_LEVELS,          /* in the nodes, between them, and in the nodes again */
    DPARI_MPI_TRADES,          /* a barrier, or moved data, by messages between all ranks */
    DPARI_MPI_DEALS            /* all_to_all_v by nodes */
};
enum { DPARI_MPI_FIRST, DPARI_MPI_BETWEEN, DPARI_MPI_LAST }; /* task->level */
enum { DPARI_MPI_NEW, DPARI_MPI_CHECKING, DPARI_MPI_TELLING, DPARI_MPI_RUNNING };

/* An operation in progress. It posts requests, and when these are done, it posts the next ones. */
struct dpari_mpi_task {
    dpari_mpi_task *before, *after;
    dpari_mpi_ctx *ctx;
    dpar_work *work; /* NULL if the caller waits for it at once */
    dpar_call call;
    int64_t sequence;
    int32_t path, phase, finished;
    dpar_status status;
    int32_t block;       /* 1: calls MPI's blocking functions */
    int32_t last;        /* 1: the step in progress is the last one */
    int32_t feeding;     /* 1: the task is counted in ctx->unfed */
    int32_t posted;      /* 1: a step was posted, and its result is not processed yet */
    int32_t cut;         /* 1: some of its messages are sent in two parts */
    const int32_t *peer; /* the ranks that take part; NULL for all */
    int32_t ranks, me;   /* number of ranks that take part, and this rank's number among them */
    const void *in;      /* data that they reduce or move; may be `out` */
    void *out;
    int64_t elements;
    int32_t op;
    int32_t sharing;         /* 1: the reduced pieces of a reduction in rank order are being sent
                                back */
    int32_t round;           /* the round of recursive doubling or of a tree */
    dpar_work inside;        /* an operation in the node's memory */
    int32_t inside_on;       /* 1 while `inside` is in progress */
    int32_t level, leg;      /* the next step (FIRST, BETWEEN or LAST), and its leg */
    int32_t ended;           /* 1: everything between the nodes is posted */
    int64_t *pieces;         /* counts and offsets of the pieces of the node's ranks */
    int32_t half;            /* the 16-bit type of a sum that is computed in f32, or 0 */
    float *wide;             /* the input and the result of such a sum in f32 */
    void *half_out;          /* address at which its result is stored */
    char *aside;             /* copy of the input of an all_to_all_v in place */
    int32_t told;            /* 1: the other ranks have been informed that this rank waits in it */
    double since, next_note; /* time at which the wait began (negative before), and at which the
                                next note is due */
    double looked;           /* time at which the clock was last read; 0 before */
    int64_t number;          /* number of the record */
    int64_t at, len;         /* first element, and number of elements, of the step in progress */
    int64_t check[14];       /* kind, type, op, root, count, hash of the piece sizes, and tag; then
                                their negatives, so that one maximum gives the largest and the
                                smallest value of each */
    dpari_record *calls;     /* [size] the calls of all ranks, after a failed check */
    dpari_record *record;
    void *memory;
    int64_t memory_bytes;
    dpari_mpi_count *counts;
    int32_t requests, room;
    MPI_Request *request;
    MPI_Status *state;
    dpari_mpi_piece *piece;
    MPI_Request request_1;
    MPI_Status state_1;
    dpari_mpi_piece piece_1;
};

/* Returns the engine's part of a communicator. */
DPARI_FN dpari_mpi_ctx *dpari_mpi_ctx_of(const dpar_comm *comm)
{
    return (dpari_mpi_ctx *)comm->context;
}

#endif
