/* SPDX-License-Identifier: MIT-0 */
/* dpar_mpi.h - makes the communicators of dpar_comm.h for a code that uses MPI, on any number of
 * nodes. Halo exchanges, training and everything else that takes a dpar_comm run over them.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 *     #include "dpar_mpi.h"
 *     #include <stdio.h>
 *     int main(int argc, char **argv)
 *     {
 *         float mine, sum = 0;
 *         dpar_comm *world;
 *         dpar_why why;
 *         MPI_Init(&argc, &argv);
 *         if (dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why) < 0) {
 *             puts(why.text);
 *             MPI_Abort(MPI_COMM_WORLD, 1);
 *         }
 *         mine = (float)(world->rank + 1);
 *         if (dpar_all_reduce(world, &mine, &sum, 1, DPAR_F32, DPAR_SUM, NULL) < 0) {
 *             puts(world->why.text);
 *             MPI_Abort(MPI_COMM_WORLD, 1);
 *         }
 *         printf("rank %d of %d: the sum is %g\n", (int)world->rank, (int)world->size,
 *                (double)sum);
 *         dpar_comm_free(world);
 *         return MPI_Finalize();
 *     }
 *
 *     mpicc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours && mpirun -n 4 ./yours
 *
 * One file of a program defines DPAR_IMPLEMENTATION. dpar_comm.h and dpar.h have to be in the same
 * folder as this header. If dpar_halo.h is included before it, a code with a process grid from
 * MPI_Cart_create gets its halo exchange from one call at the beginning: dpar_mpi_grid_make.
 *
 * Requires MPI 3.0 (tested: Open MPI 4 and 5, MPICH 4 and 5, and Intel MPI). Counts above 2^31 - 1
 * use the _c functions of MPI 4 if mpi.h has them. Otherwise moved data is sent as one element of a
 * derived type, and reduced data is sent in pieces. (For tests, DPAR_MPI_LIMIT sets this limit to a
 * lower number of elements and disables the _c functions.)
 *
 * If all ranks share the memory of one node, that memory carries all communication. The
 * communicator is then the same as one from dpar_init, equally fast, and the description in
 * dpar_comm.h applies without exception.
 *
 * On several nodes, ranks of the same node communicate through its memory, and MPI messages are
 * sent between nodes:
 *     send, recv, halos   to a rank of the same node: through memory
 *     barrier, broadcast, all_reduce, all_gather, reduce_scatter   in the nodes, then between them,
 *         then in the nodes. Between nodes the i-th ranks of all nodes form a lane, and each lane
 *         carries its part, so that all ports and cores work. Small operations are carried only by
 *         the first ranks of the nodes: all_reduces below 4 to 256 KiB, a limit that dpar_mpi_make
 *         measures
 *     all_to_all and all_to_all_v of small pieces   in the node, then one message from each rank to
 *         each node. Small means up to 4 KiB; with more than 8 ranks per node up to 32 KiB / ranks.
 *         Up to 64 ranks dpar_mpi_make measures up to which size, if any, this is faster
 *     the other collectives and _v forms, and rank_order   only by messages. The same holds for
 *         sums of F16 and BF16 from 4096 elements on; all_gather, all_to_all and reduce_scatter if
 *         nodes have different numbers of ranks; and reduce_scatter if the ranks of a node are not
 *         consecutive
 *     a communicator that is split off and is on one node   only through memory
 *     dpar_comm_alloc   returns memory that all ranks of the node can access
 * dpar_comm_describe reports which of these apply, and why.
 *
 * On several nodes, or with flat = 1, the calls differ from those in dpar_comm.h as follows.
 *
 * Order of reductions: it depends on the path of the data, unless rank_order is set, and therefore
 * on the number of nodes, the size of the data and the MPI. F16 and BF16 are added in f32 and
 * rounded once. Below 4096 elements they are added level by level; from 4096 elements on, up to 64
 * ranks, they are added in rank order, and with more ranks they are sent as f32 in blocks. MAX, MIN
 * and 8-bit sums use operations of dpar, because MPI does not define the result of a NaN, and some
 * MPIs compute unsigned or 8-bit integers wrongly.
 *
 * Entry: a collective may return before all ranks have called it. The root of a broadcast need not
 * wait for the other ranks.
 *
 * Mismatched calls. Calls that ranks of a node make through its memory are compared as dpar_comm.h
 * describes. Between nodes DPAR_E_MISMATCH is detected
 *
 *  - at no cost, in send, recv and the _v forms that move data. Each rank sends a message, even for
 *    an empty piece, to each rank that expects one. If the receiver gets more or fewer bytes than
 *    it expects, its call fails with a message that has both numbers of elements. A different type
 *    with the same number of bytes is not noticed. In a split, the calls of all ranks are compared.
 *  - while ranks wait for each other, after a quarter of the deadline, at most 1 s. This covers
 *    ranks whose n-th collectives differ, and an all_to_all_v by nodes in which the sender of a
 *    piece passes a small size and its receiver a large one, or the reverse. The message names both
 *    calls.
 *  - with check = 1, always and immediately, for the cost of a small all-reduce: a different kind,
 *    type, op, root, tag or count in any collective, and different pieces in all_gather_v and
 *    reduce_scatter_v. All ranks fail, with a message that names two calls that differ. Messages
 *    are not checked.
 *
 * Without check, no other mismatch is detected reliably: MPI may notice it (DPAR_E_MISMATCH if a
 * message was too long), the deadline may end the call, or the result is wrong. Unless
 * MPI_COMM_WORLD has the handler MPI_ERRORS_RETURN, MPICH ends the job at any message that is too
 * long, and Open MPI at any such message within a collective. With flat, Open MPI 4.1 writes a
 * message of more than 4 KiB that is too long and comes from the same node beyond the end of the
 * receive buffer.
 *
 * Lost ranks. The ranks of a node notice that one of them has ended (DPAR_E_PEER, within 1 s plus a
 * quarter of the deadline) and inform the other nodes. The loss of a rank that is the only one on
 * its node, or with flat of any rank, cannot be detected; a wait then ends with the deadline. A
 * rank that waits for longer than a quarter of the deadline (1 s at most) sends short notes to the
 * other ranks. The message of DPAR_E_TIMEOUT can therefore name the ranks that also wait, and where
 * they wait. Up to 1024 ranks, it also names the ranks that sent no such note, with their nodes:
 * "nothing heard from ranks: 3 on n2". A rank whose communicator breaks informs the others, which
 * notice it once they wait. A network failure that is shorter than the deadline only delays the
 * job.
 *
 * There is no deadline with blocking = 1, nor in operations that MPI only has in blocking form:
 * making and splitting communicators. A split first waits, with the deadline, until all ranks have
 * called it. If a rank dies in the millisecond or so that MPI_Comm_split takes, the other ranks
 * wait forever.
 *
 * Many MPIs end the whole job when a process dies, so that no call returns. Open MPI does not if it
 * is started with mpirun --mca orte_enable_recovery 1 (version 4) or --with-ft ulfm (version 5).
 * The other ranks of the node then notice the loss through its memory, and dpar_comm_shrink makes a
 * communicator without the lost rank. It does so on one node, and on several nodes with the ULFM of
 * Open MPI 5, which also reports which rank died. On several nodes a rank that hangs is
 * DPAR_E_TIMEOUT. After an error MPI may still use the buffers of operations that were in progress,
 * and MPI_Finalize may wait for them. Do not touch these buffers, and end with MPI_Abort.
 *
 * Cost: blocking calls are also posted to MPI, and tested until the deadline, so that one rank may
 * post an operation for which another rank waits at once. MPI's own posted reductions are slow:
 * with Open MPI 4.1 they take up to 5 times as long as the blocking ones. Therefore dpar reduces by
 * its own messages with up to 8 ranks, and with up to 64 if pieces have 2 KiB. Each rank then
 * receives one piece from all ranks, adds it up, and sends the result to all. Small reductions of
 * more ranks use recursive doubling. blocking = 1 selects MPI's blocking calls where only messages
 * carry the data.
 *
 * Posted work advances inside calls of dpar. An operation of several steps (16-bit floats,
 * rank_order, check, pieces) begins its next step only there. There is no progress thread:
 * dpar_comm_progress fails with DPAR_E_SYSTEM. dpar_comm.h describes which thread may call which
 * function, and which thread level MPI_Init_thread has to provide.
 *
 * Buffers: each rank may call in place or not. In place, reduce, all_to_all and, on Open MPI,
 * all_reduce allocate a copy of the input. dpar_comm_alloc returns memory that begins at a page.
 * All ranks must have the same byte order. Tags above MPI_TAG_UB are DPAR_E_ARG. This limit is at
 * least 32767; it is 2^28 - 1 for MPICH and 2^31 - 1 for Open MPI. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_mpi.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_mpi.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_MPI_H
#define DPAR_MPI_H

/* ==== mpi/mpi_make.h ==== */

/* mpi_make - makes communicators over MPI. */

#include <mpi.h>
#if defined(OPEN_MPI) && OMPI_MAJOR_VERSION >= 5
#include <mpi-ext.h> /* MPIX_Comm_shrink, where it has that */
#endif

/* Describes a communicator over MPI. 0 selects the default of each field. All fields but `flat`
 * must be equal on all ranks. */
typedef struct dpar_mpi_desc {
    double timeout_s;   /* deadline of one operation in seconds. 0 selects DPAR_TIMEOUT from the
                           environment, or 300 if that is not set; a negative value means none */
    int32_t rank_order; /* 1 reduces in rank order, which gives the same bits on all ranks and in
                           every run: an all-to-all of pieces, sums, and an all-gather */
    int32_t check;      /* 1 compares kind, type, count, op, root and tag before each collective */
    int32_t blocking;   /* 1 selects MPI's blocking calls for blocking collectives if they are
                           carried only by messages of MPI (no ranks share memory, or flat). They
                           have no deadline, so timeout_s must be negative. In each operation either
                           all ranks must block or all must post. Work that was posted before first
                           advances to its last step */
    int32_t flat;       /* 1, on any rank, uses only MPI messages even if ranks share memory.
                           DPAR_MPI_FLAT=1 in the environment does the same. DPAR_MPI_NODE=2 treats
                           nodes as if they had at most two ranks, to test communication between
                           nodes */
} dpar_mpi_desc;

/* Makes a communicator over the ranks of an MPI communicator: through the node's memory if all of
 * them share it, otherwise over a private duplicate of `user`. Call it after MPI_Init, and call
 * dpar_comm_free before MPI_Finalize.
 *
 * user:    stays yours.
 * desc:    NULL selects the defaults.
 *
 * Collective over `user`. MPI's own calls wait for all ranks, without a deadline. It takes about a
 * millisecond on one node, and tens of milliseconds on several nodes, where it measures which sizes
 * are faster by which path. It takes up to 20 s if MPI reports that ranks share a node's memory but
 * they do not. Code that needs many communicators makes one and splits it (dpar_comm_split), which
 * takes microseconds in a node.
 *
 * Fails with DPAR_E_ARG if MPI is not initialised or is finalised, `user` is MPI_COMM_NULL or an
 * inter-communicator, DPAR_TIMEOUT is not a number, or blocking is set with a deadline. Fails with
 * DPAR_E_MISMATCH if ranks pass different descriptors, and with DPAR_E_SYSTEM and MPI's own message
 * if an MPI call fails. */
DPAR_API dpar_status dpar_mpi_make(MPI_Comm user, const dpar_mpi_desc *desc, dpar_comm **comm,
                                   dpar_why *why);

#endif /* DPAR_MPI_H */

#if defined(DPAR_HALO_H) && !defined(DPAR_MPI_GRID_H)
#define DPAR_MPI_GRID_H

/* ==== mpi/mpi_grid.h ==== */

/* mpi_grid - makes a grid on a process grid of MPI. Available if dpar_halo.h was included before
 * dpar_mpi.h. */

/* Makes a grid on an MPI process grid: dpar_mpi_make and dpar_grid_make in one call.
 *
 * cart:    made by MPI_Cart_create. Its dims and parts are used, so that each rank's block is at
 *          its MPI_Cart_coords. A communicator without a process grid is allowed if desc sets
 *          dims, and for each of them parts or expected_count.
 * mpi:     NULL selects the defaults of dpar_mpi_make.
 * desc:    describes the grid. Its dims and parts must be 0 or the same as those of cart. A dim is
 *          periodic if it is periodic in cart or in desc. Dims are in cart's order; with desc.order
 *          DPAR_ORDER_FIRST_FASTEST they are reversed, as Fortran arrays are stored.
 * grid:    receives the grid. Its communicator is (*grid)->comm. dpar_grid_free frees both; call it
 *          before MPI_Finalize. If freeing fails, its message is written to desc.free_why if you
 *          set that.
 *
 * Collective over cart. Costs and fails as the two functions do, and also fails with DPAR_E_ARG if
 * dims or parts differ or there is no process grid. After an error nothing is left to free. */
DPAR_API dpar_status dpar_mpi_grid_make(MPI_Comm cart, const dpar_mpi_desc *mpi,
                                        const dpar_grid_desc *desc, dpar_grid **grid,
                                        dpar_why *why);

#endif /* DPAR_HALO_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_MPI_IMPLEMENTATION)) && \
    !defined(DPAR_MPI_IMPLEMENTATION_DONE)
#define DPAR_MPI_IMPLEMENTATION_DONE

/* ==== mpi/mpi_private.h ==== */

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

/* ==== mpi/mpi_types.h ==== */

/* mpi_types - private: MPI's types and operations for those of dpar, and loops over elements. */

/* True for F16 and BF16. */
DPARI_INTERNAL int32_t dpari_mpi_is_half(int32_t type);
/* Divides sums by the number of ranks, integers towards zero. 8-bit types are divided as int32_t,
 * because they cannot hold a number of ranks above 127 or 255. */
DPARI_INTERNAL void dpari_mpi_divide(int32_t type, void *values, int64_t n, int32_t ranks);
/* Returns the type in which sums of `type` are computed and sent. */
DPARI_INTERNAL int32_t dpari_mpi_wide(int32_t type);
/* Returns the bytes of n elements. */
DPARI_INTERNAL int64_t dpari_mpi_bytes(int32_t type, int64_t n);
/* Copies memory that may overlap; does nothing for 0 bytes or if `to` is `from`. */
DPARI_INTERNAL void dpari_mpi_copy(void *to, const void *from, int64_t bytes);
/* Return the address of an element. It is p for element 0, also if p is NULL. */
DPARI_INTERNAL const void *dpari_mpi_past(const void *p, int32_t type, int64_t elements);
DPARI_INTERNAL void *dpari_mpi_at(void *p, int32_t type, int64_t elements);
/* Returns the MPI type for elements of this size that are moved and not computed with. */
DPARI_INTERNAL MPI_Datatype dpari_mpi_by_bytes(int32_t bytes);
/* Returns the MPI type for a reduction. Sums and products of integers use unsigned types, which
 * wrap in C. */
DPARI_INTERNAL MPI_Datatype dpari_mpi_summand(int32_t type, int32_t op);
/* Makes dpar's own operations. Returns a code of MPI. */
DPARI_INTERNAL int dpari_mpi_make_ops(dpari_mpi_world *world);
/* Returns MPI's operation, or dpar's own one, for a reduction of the wide type. */
DPARI_INTERNAL MPI_Op dpari_mpi_op(const dpari_mpi_world *world, int32_t wide, int32_t op);
/* Returns the most elements that one reduction may have. MPI passes the count to dpar's own
 * operations as an int. */
DPARI_INTERNAL int64_t dpari_mpi_most(int32_t wide, int32_t op);
/* Copies n elements: 16-bit floats to F32, F32 to them, or any type as it is. */
DPARI_INTERNAL void dpari_mpi_convert(int32_t to_type, void *to, int32_t type, const void *from,
                                      int64_t n);

/* ==== mpi/error_text.h ==== */

/* error_text - private: writes calls, ranks and the errors of MPI into messages. */

/* Returns the record of a task's call. */
DPARI_INTERNAL dpari_record dpari_mpi_record_of(const dpari_mpi_task *task);

/* Write the call of a task, and of a note. */
DPARI_INTERNAL void dpari_mpi_describe_task(dpar_text *text, const dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_describe_note(dpar_text *text, const dpari_record *r);
/* Writes two calls that differ: "rank 0 on n1 calls barrier #1, rank 2 on n2 calls split #1". */
DPARI_INTERNAL void dpari_mpi_put_calls(dpar_text *text, const dpari_mpi_ctx *context,
                                        int32_t first, const dpari_record *a, int32_t second,
                                        const dpari_record *b);

/* Returns the name of a rank's node, or NULL if all ranks are on one node. */
DPARI_INTERNAL const char *dpari_mpi_host(const dpari_mpi_ctx *context, int32_t rank);
/* Writes " on n2", or nothing if host is NULL. */
DPARI_INTERNAL void dpari_mpi_put_host(dpar_text *text, const char *host);
/* Writes "rank 3 on n2". */
DPARI_INTERNAL void dpari_mpi_put_rank(dpar_text *text, const dpari_mpi_ctx *context, int32_t rank);

/* Sets the message to "`doing` failed: MPI says: " and MPI's text for the error code. Returns
 * DPAR_E_SYSTEM. */
DPARI_INTERNAL dpar_status dpari_mpi_say(dpar_why *why, const char *doing, int code);
/* Return MPI's class of an error code, and dpar's status for it. */
DPARI_INTERNAL int dpari_mpi_class(int code);
DPARI_INTERNAL dpar_status dpari_mpi_status_of(int code);

/* ==== mpi/notes.h ==== */

/* notes - private: how a communicator breaks, and the notes by which ranks inform each other of
 * errors and of long waits. */

/* True if all notes of this rank have been sent, so that MPI no longer uses their memory. */
DPARI_INTERNAL int32_t dpari_mpi_letters_gone(const dpari_mpi_ctx *context);
/* Breaks the communicator with this status and message, unless it is broken already: the first
 * error is kept. The node's ranks are always informed, through their memory; with `tell` all other
 * ranks are informed, too. */
DPARI_INTERNAL DPARI_COLD dpar_status dpari_mpi_break(dpari_mpi_ctx *context, dpar_status status,
                                                      const char *text, int tell);
/* Breaks the communicator if an MPI call failed, with its code. The message names `task`, or, if it
 * is NULL, what `doing` describes. Returns DPAR_OK for MPI_SUCCESS. */
DPARI_INTERNAL dpar_status dpari_mpi_failed(dpari_mpi_ctx *context, const dpari_mpi_task *task,
                                            const char *doing, int code);
/* Reads the notes that have arrived. */
DPARI_INTERNAL void dpari_mpi_listen(dpari_mpi_ctx *context);
/* Called repeatedly in a long wait: reads notes, and after a quarter of the deadline sends them now
 * and then. Returns 1 if it sent some. A note may break the communicator. now: the time by
 * MPI_Wtime. */
DPARI_INTERNAL int32_t dpari_mpi_trade_notes(dpari_mpi_task *task, double now);
/* Breaks the communicator if the deadline of the task has passed. */
DPARI_INTERNAL void dpari_mpi_check_deadline(dpari_mpi_task *task, double now);
/* Waits a moment (0.05 s) for a note that the communicator is broken, because the note contains the
 * reason. It may arrive a little later than the failure in the node's memory. */
DPARI_INTERNAL void dpari_mpi_hear_why(dpari_mpi_ctx *context);
/* Reads all notes that were sent to this rank, because MPICH 5 ends the job if a communicator is
 * freed that still has messages. All ranks are closing and none waits, so that no new notes are
 * sent. */
DPARI_INTERNAL dpar_status dpari_mpi_last_notes(dpari_mpi_ctx *context);

/* ==== mpi/tasks.h ==== */

/* tasks - private: operations in progress: their memory, their requests, and how they end. */

/* ---- memory and requests ---- */

/* Returns a new task or a spare one, or NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_take(dpari_mpi_world *world);
/* Frees the memory that a task allocated, and keeps the task itself for the next operation. */
DPARI_INTERNAL void dpari_mpi_give(dpari_mpi_task *task);
/* Returns temporary memory for a task: that of the communicator, if no other task uses it,
 * otherwise newly allocated memory. NULL if there is none. */
DPARI_INTERNAL void *dpari_mpi_scratch(dpari_mpi_task *task, int64_t bytes);
/* Returns `in`, or a copy of it in the task's temporary memory if it is the same as `out`. NULL if
 * there is no memory. */
DPARI_INTERNAL const void *dpari_mpi_apart(dpari_mpi_task *task, const void *in, const void *out,
                                           int64_t bytes);
/* Provides space for n messages, each of which may be sent in two parts. Returns 0 if there is no
 * memory. */
DPARI_INTERNAL int32_t dpari_mpi_reserve(dpari_mpi_task *task, int32_t n);
/* Appends a request to those of the task. dpari_mpi_last_request returns its address. */
DPARI_INTERNAL dpari_mpi_piece *dpari_mpi_slot(dpari_mpi_task *task, int32_t peer);
DPARI_INTERNAL MPI_Request *dpari_mpi_last_request(dpari_mpi_task *task);
/* Calls the blocking or the posting form of an MPI function, as task->block selects. */
#define DPARI_MPI_DO(t, blocking, posting, ...)                                                    \
    ((t)->block                                                                                    \
         ? DPARI_MPI_C(blocking)(__VA_ARGS__)                                                      \
         : DPARI_MPI_C(posting)(__VA_ARGS__, (dpari_mpi_slot(t, -1), dpari_mpi_last_request(t))))
/* Forgets the requests, which are done, and frees their derived types. */
DPARI_INTERNAL void dpari_mpi_release_pieces(dpari_mpi_task *task);

/* ---- beginning and end ---- */

/* Appends the task to the list of those in progress. */
DPARI_INTERNAL void dpari_mpi_link(dpari_mpi_task *task);
/* Returns the record of an operation with this number, from 1 on. */
DPARI_INTERNAL dpari_record *dpari_mpi_record_at(dpari_mpi_ctx *context, int64_t number);
/* Records the task among the communicator's last operations. */
DPARI_INTERNAL void dpari_mpi_record_task(dpari_mpi_task *task);
/* Notes that all steps of the task are posted, so that the next collective may begin. */
DPARI_INTERNAL void dpari_mpi_fed(dpari_mpi_task *task);
/* Ends a task. If MPI still works on one of its requests, the task's memory is never freed. */
DPARI_INTERNAL void dpari_mpi_end(dpari_mpi_task *task, dpar_status status);

/* ---- its data ---- */

/* Sets which ranks take part in the next step (peer, ranks, me), and which data they reduce or
 * move. */
DPARI_INTERNAL void dpari_mpi_among(dpari_mpi_task *task, const int32_t *peer, int32_t ranks,
                                    int32_t me, const void *in, void *out, int64_t elements);
/* True if this rank gets the result: all ranks, or the root of a reduce. */
DPARI_INTERNAL int32_t dpari_mpi_has_result(const dpari_mpi_task *task);
/* Advances to the next block, of at most `most` elements. */
DPARI_INTERNAL void dpari_mpi_advance(dpari_mpi_task *task, int64_t count, int64_t most);

/* ==== mpi/task_messages.h ==== */

/* task_messages - private: sends and receives the messages of a task, and compares their lengths.
 */

/* Chooses the type and count with which n elements of b bytes are sent in one call in which the
 * ranks together move `total` elements. A derived type is freed by dpari_mpi_release_pieces. */
DPARI_INTERNAL int dpari_mpi_units(dpari_mpi_piece *p, int32_t b, int64_t n, int64_t total,
                                   MPI_Datatype *type, dpari_mpi_count *count);
/* Post one message on `comm`. They and the functions below return a code of MPI. */
DPARI_INTERNAL int dpari_mpi_send_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                      const void *from, int64_t n);
DPARI_INTERNAL int dpari_mpi_recv_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                      void *to, int64_t n);
/* Returns the elements of the first part if a message of n elements is sent in two parts, otherwise
 * 0. Both ends compute the same number. The first part is a little longer than the longest message
 * in one part, so that a receiver with another count always gets a length that it did not
 * expect. */
DPARI_INTERNAL int64_t dpari_mpi_first_part(const dpari_mpi_task *task, int64_t n);
/* Post one message, in two parts if that is faster. */
DPARI_INTERNAL int dpari_mpi_send_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                        const void *from, int64_t n);
DPARI_INTERNAL int dpari_mpi_recv_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                        void *to, int64_t n);
/* Returns the tag of an operation's pieces. Correct programs would not need it, because both ends
 * post their messages in the same order. The tag makes sure that, after a mismatched call, a
 * message of another collective, or of one with another user's tag, is not received as a piece. */
DPARI_INTERNAL int dpari_mpi_piece_tag(const dpari_mpi_task *task);
/* Posts a receive of `gets` elements from the r-th rank that takes part, and a send of `gives`
 * elements to it. Posts nothing for 0 elements. */
DPARI_INTERNAL int dpari_mpi_trade(dpari_mpi_task *task, int32_t r, void *to, int64_t gets,
                                   const void *from, int64_t gives);
/* Sends n elements to each rank that takes part: the r-th rank gets those from element r * step of
 * `from` on. Receives n elements from it into row place[r] of `to`, or row r if place is NULL. */
DPARI_INTERNAL int dpari_mpi_trade_each(dpari_mpi_task *task, void *to, const int32_t *place,
                                        const void *from, int64_t step, int64_t n);

/* Breaks the communicator because a message does not have the expected length. got: its elements,
 * negative if there were more than expected. */
DPARI_INTERNAL void dpari_mpi_mismatch(dpari_mpi_task *task, int32_t peer, int64_t got,
                                       int64_t expected);
/* True if all requests are done. Compares the lengths of messages; an error breaks the
 * communicator. */
DPARI_INTERNAL int32_t dpari_mpi_requests_done(dpari_mpi_task *task);
/* Breaks the communicator if the message of request i does not have the expected length. */
DPARI_INTERNAL void dpari_mpi_measure(dpari_mpi_task *task, int32_t i);
/* Breaks the communicator because request i failed. */
DPARI_INTERNAL void dpari_mpi_request_failed(dpari_mpi_task *task, int32_t i, int code);

/* ==== mpi/exchange_v.h ==== */

/* exchange_v - private: the _v forms that move data, as a message for each pair of ranks. */

/* Return the elements of rank r's piece in a reduce_scatter, of the largest piece of n ranks, and
 * of all their pieces together. */
DPARI_INTERNAL int64_t dpari_mpi_piece_of(const dpar_call *call, int32_t r);
DPARI_INTERNAL int64_t dpari_mpi_largest(const dpar_call *call, int32_t n);
DPARI_INTERNAL int64_t dpari_mpi_elements(const dpar_call *call, int32_t n);
/* Returns how many elements of a piece with `piece` elements are in the block [at, at + len). */
DPARI_INTERNAL int64_t dpari_mpi_clamp(int64_t piece, int64_t at, int64_t len);
/* Returns the bytes of all pieces that this rank sends in an all_to_all_v. */
DPARI_INTERNAL int64_t dpari_mpi_aside_bytes(const dpari_mpi_task *task);
/* Copies the pieces that an all_to_all_v in place sends to `copy`. Returns 0 if `copy` is NULL. */
DPARI_INTERNAL int32_t dpari_mpi_set_aside(dpari_mpi_task *task, void *copy);
/* Runs a gather, scatter, all_gather or all_to_all with pieces of different sizes. */
DPARI_INTERNAL int dpari_mpi_exchange(dpari_mpi_task *task);

/* ==== mpi/mpi_collectives.h ==== */

/* mpi_collectives - private: operations that MPI's own collectives and messages carry. */

/* A function posts the next step of a task and returns a code of MPI. If there is a second one, its
 * name ends in _land, and it processes the data that arrived. */

/* Runs a barrier, or a collective that moves pieces of one size, as one call of MPI. */
DPARI_INTERNAL int dpari_mpi_move(dpari_mpi_task *task);
/* Runs a send or recv. */
DPARI_INTERNAL int dpari_mpi_message(dpari_mpi_task *task);
/* Run a reduce or all_reduce in blocks that MPI can count. */
DPARI_INTERNAL int dpari_mpi_pieces(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_pieces_land(dpari_mpi_task *task);
/* Run the same for 16-bit floats, which are added in f32. */
DPARI_INTERNAL int dpari_mpi_staged(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_staged_land(dpari_mpi_task *task);
/* Run a reduce_scatter. */
DPARI_INTERNAL int dpari_mpi_scatter(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_scatter_land(dpari_mpi_task *task);
/* Run a reduce_scatter of 16-bit floats, or with more elements than MPI can count. */
DPARI_INTERNAL int dpari_mpi_scatter_staged(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_scatter_staged_land(dpari_mpi_task *task);

/* ==== mpi/rank_order.h ==== */

/* rank_order - private: reductions by messages of this engine, most of them in rank order. */

/* Functions whose names end in _land process the data that arrived after a step; the others post it
 * and return a code of MPI, as in mpi_collectives. */

/* Sets the n elements of `out` to row 0 op row 1 op ... The rows are in the task's memory, `stride`
 * elements apart. */
DPARI_INTERNAL void dpari_mpi_reduce_rows(dpari_mpi_task *task, void *out, int64_t stride,
                                          int64_t n);
/* Run a small reduction: all ranks, or only the root, receive the inputs of all ranks and add them
 * up. */
DPARI_INTERNAL int dpari_mpi_gathered(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_gathered_land(dpari_mpi_task *task);
/* Run a small all_reduce of many ranks, by recursive doubling. */
DPARI_INTERNAL int dpari_mpi_doubling(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_doubling_land(dpari_mpi_task *task);
/* Returns the element at which piece r begins if a block of `len` elements is cut into n pieces. */
DPARI_INTERNAL int64_t dpari_mpi_cut(int64_t len, int32_t r, int32_t n);
/* Run a large reduction, in which each rank adds one piece. */
DPARI_INTERNAL int dpari_mpi_ordered(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_ordered_land(dpari_mpi_task *task);
/* Run a reduce_scatter. */
DPARI_INTERNAL int dpari_mpi_ordered_scatter(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_ordered_scatter_land(dpari_mpi_task *task);

/* ==== mpi/levels.h ==== */

/* levels - private: collectives in the nodes, between them, and in the nodes again.
 *
 * The ranks of a node communicate through its memory. Between nodes the i-th ranks of all nodes
 * form a lane, and each lane carries its part of the data, so that all ports and cores work. Small
 * operations are carried only by the first lane. An operation has up to three steps: FIRST in the
 * nodes, BETWEEN them, and LAST in the nodes. Each step may have several parts, which are called
 * legs.
 *
 * This module knows only messages (task_messages) and a communicator of the node's ranks. It calls
 * no function of MPI. */

/* Posts a call on the communicator of the node. If that fails, breaks the task's communicator. */
DPARI_INTERNAL int dpari_mpi_post_inside(dpari_mpi_task *task, const dpar_call *call);
/* True if it is done. */
DPARI_INTERNAL int32_t dpari_mpi_inside_done(dpari_mpi_task *task);
/* Runs the whole call in the node's memory: a message within the node, or any call if all ranks are
 * on one node. */
DPARI_INTERNAL int dpari_mpi_within(dpari_mpi_task *task);
/* Returns the call for a step in the node's memory, with the task's type and op. */
DPARI_INTERNAL dpar_call dpari_mpi_inside_call(const dpari_mpi_task *task, int32_t kind,
                                               const void *in, void *out, int64_t count);
/* Post the next step of a collective by levels, or by messages between all ranks
 * (DPARI_MPI_TRADES), and process the data that arrived. */
DPARI_INTERNAL int dpari_mpi_levels_step(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_levels_land(dpari_mpi_task *task);

/* ==== mpi/all_to_all_v.h ==== */

/* all_to_all_v - private: an all_to_all_v that sends the small pieces by nodes.
 *
 * A piece of up to world->dealt[1] bytes is small. A large piece is sent from rank to rank. The
 * small pieces of all ranks of a node for a rank b of another node are sent in one message. One
 * rank of the node carries it: the rank whose number in its node is b's number in b's node, modulo
 * the number of ranks. The message begins with the counts of all the node's pieces for b, including
 * large ones. It is not sent if all of them are large. So both ends of a message know without
 * further communication whether there is one and how long it is: b from the counts that it expects,
 * and the carrier from the counts that the ranks of its node passed to it. The ranks need not agree
 * on a method.
 *
 * Leg 0: each rank passes a slot to each other rank of the node. A slot holds a flag that is set if
 * any slot of the sender is too small, the counts of the pieces that the other rank carries, and
 * the small ones of these pieces. Leg 1 passes the small pieces of ranks whose slots were too
 * small. Leg 2 sends the messages, and passes the pieces that stay in the node.
 *
 * If the two ends have different counts, b notices because it compares its counts with those at the
 * beginning of the message. If all pieces are large by the counts of only one end, there is a
 * message that b does not expect, or it waits for one that is not sent; both are found in a long
 * wait (dpari_mpi_deal_compare). */

/* Post the next leg, and process the data that arrived. */
DPARI_INTERNAL int dpari_mpi_deals_step(dpari_mpi_task *task);
DPARI_INTERNAL void dpari_mpi_deals_land(dpari_mpi_task *task);
/* Called in a long wait, because with different counts on another node the expected messages may
 * never arrive. Compares the messages that have arrived, and searches for messages that are not
 * expected. */
DPARI_INTERNAL void dpari_mpi_deal_compare(dpari_mpi_task *task);

/* ==== mpi/check.h ==== */

/* check - private: compares the calls of all ranks, with check = 1 and before a split. */

/* Posts the next step of the comparison, and returns 1, or returns 0 if there is nothing to compare
 * any more. If calls differ, breaks the communicator with a message that names rank 0's call and
 * the first call that differs. Sets *code to MPI's return code. */
DPARI_INTERNAL int32_t dpari_mpi_check_step(dpari_mpi_task *task, int *code);

/* ==== mpi/paths.h ==== */

/* paths - private: chooses how a call is carried out, and makes its task. */

/* True if the call needs only this node's memory. */
DPARI_INTERNAL int32_t dpari_mpi_is_within(const dpari_mpi_ctx *context, const dpar_call *call);
/* True if there is nothing to do. All ranks get the same result. */
DPARI_INTERNAL int32_t dpari_mpi_is_empty(const dpari_mpi_task *task);
/* Makes a task for `call` and appends it to the list. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_new(dpari_mpi_ctx *context, const dpar_call *call,
                                             dpar_work *work);

/* ==== mpi/point_to_point.h ==== */

/* point_to_point - private: messages that have no task yet.
 *
 * A message is at first only an MPI request that is stored in its work, so that a short wait costs
 * no more than MPI's own. Once a wait for it takes longer, the message is turned into a task, which
 * has a deadline, is reported to the other ranks, and ends when the communicator breaks. */

/* Index in work->state of the number of calls of dpar_test. work->state[0] holds the request. */
enum { DPARI_MPI_LOOKS = 1 };

/* Posts a message without a task. Returns 0 if it was not posted, so that it needs a task. */
DPARI_INTERNAL int32_t dpari_mpi_post_light(dpari_mpi_ctx *context, const dpar_call *call,
                                            dpar_work *work);
/* Turns a message into a task. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_grow(dpar_work *work);
/* Abandons a message on closing, because there was no memory for its task. The world's memory is
 * kept, because MPI may still use it. */
DPARI_INTERNAL void dpari_mpi_light_lose(dpar_work *work);
/* Tests whether a message is done. */
DPARI_INTERNAL void dpari_mpi_light_test(dpar_work *work);
/* Tests a message for the look-th time. It becomes a task after DPARI_MPI_POLLS times, or at once
 * if there are other tasks, because these have to advance, too. */
DPARI_INTERNAL void dpari_mpi_light_look(dpar_work *work, int64_t look);

/* ==== mpi/progress.h ==== */

/* progress - private: advances the tasks of a world, and waits for them. */

/* Advances every message without a task, and every task once, in the order of posting. A collective
 * begins when those before it on its communicator have posted all their steps, so that MPI sees the
 * same order on all ranks. */
DPARI_INTERNAL void dpari_mpi_pump(dpari_mpi_world *world);
/* Called repeatedly in a long wait: reads notes, sends notes after a quarter of the deadline, and
 * checks the deadline. */
DPARI_INTERNAL void dpari_mpi_look_round(dpari_mpi_task *task);
/* Waits until *finished is DPARI_MPI_FINISHED. It is a field of the task, or of its work if it has
 * one, because a task with a work may be used again once it has ended. */
DPARI_INTERNAL void dpari_mpi_await(dpari_mpi_task *task, const int32_t *finished);
/* Called before a blocking MPI call: advances the operations that were posted before until all
 * their steps are posted. */
DPARI_INTERNAL void dpari_mpi_bring_along(dpari_mpi_ctx *context);
/* Makes a task and records it. The task begins now if no collective before it has steps left.
 * Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_mpi_task *dpari_mpi_begin(dpari_mpi_ctx *context, const dpar_call *call,
                                               dpar_work *work, int32_t block);

/* ==== mpi/nodes.h ==== */

/* nodes - private: finds out which ranks share the memory of a node. */

/* Returns an environment variable as a number, or 0 if it is not set. */
DPARI_INTERNAL int dpari_mpi_env(const char *name);
/* Finds out which ranks share memory, and makes the engine's communicator of this node's ranks.
 * Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_levels(dpar_comm *comm);
/* Finds the names of the nodes, which their lowest ranks send, and the node of each rank, for
 * messages. Keeps no names if there is only one node. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_hosts(dpari_mpi_ctx *context);
/* Returns the worst status of all ranks, and breaks the communicator if it is an error, with the
 * message of the rank that has it. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_all_well(dpari_mpi_ctx *context, dpar_status mine,
                                              dpar_why *said);
/* Makes a communicator of the ranks of `own` that share this rank's memory. Returns NULL, with the
 * reason in `flat`, if no two ranks share memory. This is tested, because MPI may report ranks in
 * containers to be on one node although they share no memory. Collective: either all ranks get a
 * communicator or none does. */
DPARI_INTERNAL dpar_comm *dpari_mpi_share(MPI_Comm own, const dpar_mpi_desc *o, int32_t *nodes,
                                          dpar_why *flat);

/* ==== mpi/tuning.h ==== */

/* tuning - private: measures, when the first communicator is made, which method is faster for which
 * size. */

/* Measures world->at_once. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_at_once(dpari_mpi_ctx *context);
/* Measures world->dealt. It is not measured for many ranks, because each rank would have to connect
 * to each other rank, and because sending by nodes then saves most messages in any case.
 * Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_dealt(dpar_comm *comm);
/* Measures world->lanes_from: the size from which all lanes are faster than one. Collective. */
DPARI_INTERNAL dpar_status dpari_mpi_find_lanes(dpar_comm *comm);

/* ==== mpi/engine_calls.h ==== */

/* engine_calls - private: the functions of the engine that run calls, allocate memory and report.
 */

/* The functions of dpar_engine that comm.h describes. */
DPARI_INTERNAL dpar_status dpari_mpi_post(dpar_comm *comm, const dpar_call *call, dpar_work *work);
DPARI_INTERNAL dpar_status dpari_mpi_test(dpar_work *work);
DPARI_INTERNAL dpar_status dpari_mpi_wait(dpar_work *work);
DPARI_INTERNAL dpar_status dpari_mpi_run(dpar_comm *comm, const dpar_call *call);
DPARI_INTERNAL dpar_status dpari_mpi_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                           dpar_work *works);
/* Allocates with calloc unless the node has shared memory. MPI_Alloc_mem would end the job when
 * there is no memory, unless MPI_COMM_WORLD has another error handler, and has no advantage in MPIs
 * that cache registered memory. */
DPARI_INTERNAL dpar_status dpari_mpi_alloc(dpar_comm *comm, int64_t bytes, void **memory);
DPARI_INTERNAL void dpari_mpi_release(dpar_comm *comm, void *memory);
DPARI_INTERNAL dpar_status dpari_mpi_progress(dpar_comm *comm, int32_t on);
DPARI_INTERNAL void dpari_mpi_abort(dpar_comm *comm, dpar_status status, const char *text);
/* Writes a report: this rank's last operations, and the calls in which other ranks have reported
 * that they wait. */
DPARI_INTERNAL void dpari_mpi_report(dpar_comm *comm, dpar_text *out);
DPARI_INTERNAL void dpari_mpi_describe(dpar_comm *comm, dpar_text *out);

/* ==== mpi/closing.h ==== */

/* closing - private: frees a communicator, and with the last one what they all share. */

/* Frees a communicator of the node's memory, with a deadline of at most 5 s, because other ranks
 * may never free it. */
DPARI_INTERNAL void dpari_mpi_close_part(dpar_comm *part);
/* Frees the world when its last communicator is closed. alive: 1 if MPI is not finalised yet. */
DPARI_INTERNAL void dpari_mpi_leave_world(dpari_mpi_world *world, int alive);
/* Closes a communicator, as dpar_comm_free describes. COLLECTIVE unless it is broken. */
DPARI_INTERNAL dpar_status dpari_mpi_close(dpar_comm *comm);

/* ==== mpi/shrink.h ==== */

/* shrink - private: the ranks that are left after others have died. */

/* Breaks the communicator, waits with its deadline until all remaining ranks have called this, and
 * makes *part of them. Needs ULFM. */
DPARI_INTERNAL dpar_status dpari_mpi_shrink_part(dpari_mpi_ctx *context, MPI_Comm *part,
                                                 dpar_why *why);
/* Sets was[r] to the rank that rank r of `part` has in `context`. */
DPARI_INTERNAL void dpari_mpi_shrink_map(const dpari_mpi_ctx *context, MPI_Comm part, int32_t *was);

#ifndef DPARI_PAIR_H
#define DPARI_PAIR_H

/* ==== comm/pair.h ==== */

/* pair - private: what each pair of ranks exchanges in an operation that moves data, as the
 * engines over MPI and NCCL send it. Header-only, so that only these engines contain the code. */

/* What this rank sends to one rank and receives from it, in elements. Every operation that moves
 * data is described as an all-to-all in which some messages do not exist. */
typedef struct dpari_pair {
    int64_t give, take; /* elements sent and received; -1 if there is no message, which is not the
                           same as an empty one */
    int64_t from, to;   /* the first of them in `in` and in `out` */
    int64_t in, out;    /* elements of the pieces so far; 0 before rank 0 */
} dpari_pair;

/* Sets *p to the piece of rank r, for r = 0, 1, ... one after the other. */
DPARI_FN void dpari_pair_next(const dpar_comm *comm, const dpar_call *call, int32_t r,
                              dpari_pair *p)
{
    const int64_t n = call->count;
    const int root = comm->rank == call->root;
    int in = 0, out = 0; /* 1: `in` and `out` have a piece for each rank */
    p->give = p->take = -1;
    p->from = p->to = 0;
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
        p->give = root ? n : -1;
        p->take = r == call->root ? n : -1;
        break;
    case DPAR_CALL_GATHER:
        p->give = r == call->root ? n : -1;
        out = root;
        break;
    case DPAR_CALL_SCATTER:
        p->take = r == call->root ? n : -1;
        in = root;
        break;
    case DPAR_CALL_ALL_GATHER:
        p->give = call->variable_counts ? call->out_count[comm->rank] : n;
        out = 1;
        break;
    case DPAR_CALL_ALL_TO_ALL: in = out = 1; break;
    default: break;
    }
    if (in) {
        p->give = call->variable_counts ? call->in_count[r] : n;
        p->from = call->variable_counts && call->in_first != NULL ? call->in_first[r] : p->in;
        p->in += p->give;
    }
    if (out) {
        p->take = call->variable_counts ? call->out_count[r] : n;
        p->to = call->variable_counts && call->out_first != NULL ? call->out_first[r] : p->out;
        p->out += p->take;
    }
}

#endif /* DPARI_PAIR_H */

#ifndef DPARI_BATCH_NOW_H
#define DPARI_BATCH_NOW_H

/* ==== comm/batch_now.h ==== */

/* batch_now - private: a batch for which the caller passed no works, in the engines over MPI and
 * NCCL. Header-only, so that only these engines contain the code. */

/* Posts the calls by the engine's own batch, with works that it allocates, and waits for them.
 * Returns the first failure. */
DPARI_FN dpar_status dpari_batch_now(dpar_comm *comm, const dpar_call *calls, int32_t n)
{
    enum { FEW = 16 }; /* up to this number, the works are on the stack */
    dpar_work few[FEW], *works = few;
    const int64_t bytes = n * (int64_t)sizeof *works;
    dpar_status status, waited;
    int32_t i;
    if (n > FEW) {
        works = (dpar_work *)dpari_os_pages(bytes);
        if (works == NULL) {
            return dpari_say(DPAR_E_MEMORY, &comm->why, "batch: no memory for %d calls (%ld bytes)",
                             n, bytes);
        }
    }
    for (i = 0; i < n; i++) { /* so that a wait for one that is not posted returns at once */
        works[i].self = &works[i];
        works[i].comm = NULL;
        works[i].status = DPAR_OK;
    }
    status = comm->engine.batch(comm, calls, n, works);
    waited = dpar_wait_all(works, n);
    if (works != few) {
        dpari_os_unmap(works, bytes);
    }
    return status < 0 ? status : waited;
}

#endif /* DPARI_BATCH_NOW_H */

/* ==== mpi/mpi_types.c ==== */

/* Maps the types and operations of dpar to those of MPI. Maxima, minima and sums of 8 bits are
 * operations that dpar registers with MPI (dpari_mpi_is_own says why); they call the same loops as
 * the shared-memory engine (../host/kernel.h). */

DPARI_INTERNAL int32_t dpari_mpi_is_half(int32_t type)
{
    return type == DPAR_F16 || type == DPAR_BF16;
}

/* gcc vectorises such loops only from -O3 on, clang from -O2 on. */
#if defined(__GNUC__) && !defined(__clang__)
#define DPARI_MPI_LOOP __attribute__((optimize("O3")))
#else
#define DPARI_MPI_LOOP
#endif

#define DPARI_MPI_EACH(n, statement)                                                               \
    do {                                                                                           \
        int64_t i;                                                                                 \
        for (i = 0; i < (n); i++) {                                                                \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

#define DPARI_MPI_DIVIDE(T, ranks)                                                                 \
    do {                                                                                           \
        T *v = (T *)values;                                                                        \
        const T by = (T)(ranks);                                                                   \
        DPARI_MPI_EACH(n, v[i] = (T)(v[i] / by));                                                  \
    } while (0)

DPARI_INTERNAL DPARI_MPI_LOOP void dpari_mpi_divide(int32_t type, void *values, int64_t n,
                                                    int32_t ranks)
{
    int8_t *s = (int8_t *)values;
    uint8_t *u = (uint8_t *)values;
    switch (type) {
    case DPAR_F64: DPARI_MPI_DIVIDE(double, ranks); break;
    case DPAR_I8: DPARI_MPI_EACH(n, s[i] = (int8_t)(s[i] / ranks)); break;
    case DPAR_U8: DPARI_MPI_EACH(n, u[i] = (uint8_t)((int32_t)u[i] / ranks)); break;
    case DPAR_I32: DPARI_MPI_DIVIDE(int32_t, ranks); break;
    case DPAR_U32: DPARI_MPI_DIVIDE(uint32_t, ranks); break;
    case DPAR_I64: DPARI_MPI_DIVIDE(int64_t, ranks); break;
    case DPAR_U64: DPARI_MPI_DIVIDE(uint64_t, ranks); break;
    default: DPARI_MPI_DIVIDE(float, ranks); break;
    }
}

DPARI_INTERNAL int32_t dpari_mpi_wide(int32_t type)
{
    return dpari_mpi_is_half(type) ? (int32_t)DPAR_F32 : type;
}

DPARI_INTERNAL int64_t dpari_mpi_bytes(int32_t type, int64_t n)
{
    return n * dpar_type_bytes(type);
}

DPARI_INTERNAL void dpari_mpi_copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && to != from) {
        memmove(to, from, (size_t)bytes);
    }
}

DPARI_INTERNAL void dpari_mpi_convert(int32_t to_type, void *to, int32_t type, const void *from,
                                      int64_t n)
{
    if (to_type == type) {
        dpari_mpi_copy(to, from, dpari_mpi_bytes(type, n));
    } else {
        dpari_kern_convert(to, to_type, from, type, n);
    }
}

DPARI_INTERNAL const void *dpari_mpi_past(const void *p, int32_t type, int64_t elements)
{
    return elements == 0 ? p : (const char *)p + dpari_mpi_bytes(type, elements);
}

DPARI_INTERNAL void *dpari_mpi_at(void *p, int32_t type, int64_t elements)
{
    return elements == 0 ? p : (char *)p + dpari_mpi_bytes(type, elements);
}

DPARI_INTERNAL MPI_Datatype dpari_mpi_by_bytes(int32_t bytes)
{
    switch (bytes) {
    case 2: return MPI_UINT16_T;
    case 4: return MPI_UINT32_T;
    case 8: return MPI_UINT64_T;
    default: return MPI_UINT8_T;
    }
}

DPARI_INTERNAL MPI_Datatype dpari_mpi_summand(int32_t type, int32_t op)
{
    int32_t ordered = op == DPAR_MAX || op == DPAR_MIN;
    switch (type) {
    case DPAR_F64: return MPI_DOUBLE;
    case DPAR_F32: return MPI_FLOAT;
    case DPAR_I8: return ordered ? MPI_INT8_T : MPI_UINT8_T;
    case DPAR_I32: return ordered ? MPI_INT32_T : MPI_UINT32_T;
    case DPAR_I64: return ordered ? MPI_INT64_T : MPI_UINT64_T;
    default: return dpari_mpi_by_bytes(dpar_type_bytes(type));
    }
}

/* ---- reductions that are not left to MPI's own operations ---- */

static int32_t dpari_mpi_type_of(MPI_Datatype type)
{
    const MPI_Datatype known[7] = {MPI_DOUBLE,   MPI_FLOAT,   MPI_INT8_T,  MPI_INT32_T,
                                   MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T};
    static const uint8_t its[7] = {DPAR_F64, DPAR_F32, DPAR_I8, DPAR_I32,
                                   DPAR_U32, DPAR_I64, DPAR_U64};
    int32_t i;
    for (i = 0; i < 7; i++) {
        if (type == known[i]) {
            return its[i];
        }
    }
    return DPAR_U8;
}

static void dpari_mpi_user_op(int32_t op, void *in, void *inout, int n, MPI_Datatype type)
{
    const void *both[2];
    both[0] = in;
    both[1] = inout;
    dpari_kern_reduce(&inout, 1, both, 2, n, dpari_mpi_type_of(type), op, 0);
}

static void dpari_mpi_user_max(void *in, void *inout, int *n, MPI_Datatype *type)
{
    dpari_mpi_user_op(DPAR_MAX, in, inout, *n, *type);
}

static void dpari_mpi_user_min(void *in, void *inout, int *n, MPI_Datatype *type)
{
    dpari_mpi_user_op(DPAR_MIN, in, inout, *n, *type);
}

static void dpari_mpi_user_sum(void *in, void *inout, int *n, MPI_Datatype *type)
{
    dpari_mpi_user_op(DPAR_SUM, in, inout, *n, *type);
}

DPARI_INTERNAL int dpari_mpi_make_ops(dpari_mpi_world *world)
{
    int code = MPI_Op_create(dpari_mpi_user_max, 1, &world->max);
    if (code == MPI_SUCCESS) {
        code = MPI_Op_create(dpari_mpi_user_min, 1, &world->min);
    }
    return code == MPI_SUCCESS ? MPI_Op_create(dpari_mpi_user_sum, 1, &world->sum) : code;
}

/* True if dpar's own operation is used in place of MPI's. For MAX and MIN, MPI does not define the
 * result of a NaN, and MPICH 4.0 compares unsigned integers as signed ones. Sums of 8 bits saturate
 * in Open MPI 4.1 on processors with AVX. */
static int32_t dpari_mpi_is_own(int32_t wide, int32_t op)
{
    return op == DPAR_MAX || op == DPAR_MIN ||
           (op != DPAR_PRODUCT && (wide == DPAR_I8 || wide == DPAR_U8));
}

DPARI_INTERNAL MPI_Op dpari_mpi_op(const dpari_mpi_world *world, int32_t wide, int32_t op)
{
    switch (op) {
    case DPAR_PRODUCT: return MPI_PROD;
    case DPAR_MAX: return world->max;
    case DPAR_MIN: return world->min;
    default: return dpari_mpi_is_own(wide, op) ? world->sum : MPI_SUM;
    }
}

DPARI_INTERNAL int64_t dpari_mpi_most(int32_t wide, int32_t op)
{
    return dpari_mpi_is_own(wide, op) && DPARI_MPI_LIMIT > INT_MAX ? (int64_t)INT_MAX
                                                                   : DPARI_MPI_LIMIT;
}

/* ==== mpi/error_text.c ==== */

/* Writes the parts of which the engine's messages consist. The name of a rank's node is found by
 * translating the rank to its number in the world's first communicator, for which the names were
 * gathered when that was made (nodes.c). */

/* Returns the type that the user passed. Data between nodes may be sent as another type. */
static int32_t dpari_mpi_said_type(const dpari_mpi_task *task)
{
    if (task->call.kind == DPAR_CALL_BARRIER) {
        return DPAR_TYPE_NONE;
    }
    return task->half ? task->half : task->call.type;
}

DPARI_INTERNAL void dpari_mpi_describe_task(dpar_text *text, const dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_operation_text(text, call->kind, task->sequence, dpari_mpi_said_type(task), call->count,
                         call->root, call->tag);
}

DPARI_INTERNAL void dpari_mpi_describe_note(dpar_text *text, const dpari_record *r)
{
    dpari_operation_text(text, r->kind, r->sequence - 1, r->type, r->count, r->root, r->tag);
}

DPARI_INTERNAL dpar_status dpari_mpi_say(dpar_why *why, const char *doing, int code)
{
    char words[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (MPI_Error_string(code, words, &length) != MPI_SUCCESS) {
        return dpari_say(DPAR_E_SYSTEM, why, "%s failed: MPI says: %d", doing, (int32_t)code);
    }
    words[length] = 0;
    return dpari_say(DPAR_E_SYSTEM, why, "%s failed: MPI says: %s", doing, words);
}

DPARI_INTERNAL int dpari_mpi_class(int code)
{
    int kind = MPI_ERR_OTHER;
    MPI_Error_class(code, &kind);
    return kind;
}

DPARI_INTERNAL dpar_status dpari_mpi_status_of(int code)
{
    const int kind = dpari_mpi_class(code);
    if (kind == MPI_ERR_TRUNCATE) {
        return DPAR_E_MISMATCH;
    }
    if (kind == MPI_ERR_NO_MEM) {
        return DPAR_E_MEMORY;
    }
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
    if (kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING) {
        return DPAR_E_PEER;
    }
#endif
    return DPAR_E_SYSTEM;
}

DPARI_INTERNAL const char *dpari_mpi_host(const dpari_mpi_ctx *context, int32_t rank)
{
    const dpari_mpi_world *world = context->world;
    MPI_Group own = MPI_GROUP_NULL;
    int here = (int)rank, there = MPI_UNDEFINED;
    if (world->host == NULL || MPI_Comm_group(context->main, &own) != MPI_SUCCESS) {
        return NULL;
    }
    if (MPI_Group_translate_ranks(own, 1, &here, world->all, &there) != MPI_SUCCESS) {
        there = MPI_UNDEFINED;
    }
    MPI_Group_free(&own);
    return there != MPI_UNDEFINED ? world->host[world->host_of[there]] : NULL;
}

DPARI_INTERNAL void dpari_mpi_put_host(dpar_text *text, const char *host)
{
    if (host != NULL) {
        dpari_text_say(text, " on %s", host);
    }
}

DPARI_INTERNAL void dpari_mpi_put_rank(dpar_text *text, const dpari_mpi_ctx *context, int32_t rank)
{
    dpari_text_say(text, "rank %d", rank);
    dpari_mpi_put_host(text, dpari_mpi_host(context, rank));
}

DPARI_INTERNAL dpari_record dpari_mpi_record_of(const dpari_mpi_task *task)
{
    dpari_record r = dpari_record_of(&task->call, task->sequence);
    r.type = dpari_mpi_said_type(task);
    return r;
}

DPARI_INTERNAL void dpari_mpi_put_calls(dpar_text *text, const dpari_mpi_ctx *context,
                                        int32_t first, const dpari_record *a, int32_t second,
                                        const dpari_record *b)
{
    dpari_mpi_put_rank(text, context, first);
    dpar_text_put(text, " calls ");
    dpari_record_text(text, a);
    dpar_text_put(text, ", ");
    dpari_mpi_put_rank(text, context, second);
    dpar_text_put(text, " calls ");
    dpari_record_text(text, b);
}

/* ==== mpi/notes.c ==== */

/* Breaks communicators, and exchanges notes in long waits.
 *
 * A rank that waits for long sends all other ranks a note with its call, and again from time to
 * time. Each rank compares the notes that it receives with its own call: another call with the same
 * number is a mismatch, and at the deadline the ranks that sent nothing are the missing ones. A
 * rank whose communicator breaks sends the reason in the same way. Notes are sent without waiting,
 * from a buffer for each receiver, and counted, so that closing can receive the last of them. */

static int32_t dpari_mpi_letter_gone(dpari_mpi_letter *l)
{
    int done = 0;
    return MPI_Test(&l->sent, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done;
}

DPARI_INTERNAL int32_t dpari_mpi_letters_gone(const dpari_mpi_ctx *context)
{
    int32_t r, all = 1;
    for (r = 0; r < context->comm.size; r++) {
        all &= context->waiting == NULL || dpari_mpi_letter_gone(&context->waiting[r]);
        all &= context->broken == NULL || dpari_mpi_letter_gone(&context->broken[r]);
    }
    return all;
}

/* Sends `note`, without waiting, to every other rank that has received the previous note in
 * `letters`. */
static void dpari_mpi_tell(dpari_mpi_ctx *context, dpari_mpi_letter **letters,
                           const dpari_mpi_note *note)
{
    int32_t r, n = context->comm.size;
    if (n > DPARI_MPI_RANKS_TOLD || n == 1) {
        return;
    }
    if (context->told == NULL) {
        context->told = (int32_t *)calloc((size_t)n, sizeof *context->told);
    }
    if (*letters == NULL && context->told != NULL) {
        *letters = (dpari_mpi_letter *)malloc((size_t)n * sizeof(dpari_mpi_letter));
        for (r = 0; *letters != NULL && r < n; r++) {
            (*letters)[r].sent = MPI_REQUEST_NULL;
        }
    }
    for (r = 0; *letters != NULL && r < n; r++) {
        dpari_mpi_letter *l = &(*letters)[r];
        if (r != context->comm.rank && dpari_mpi_letter_gone(l)) {
            l->note = *note;
            MPI_Isend(&l->note, (int)sizeof l->note, MPI_BYTE, r, DPARI_MPI_TAG_NOTE, context->side,
                      &l->sent);
            context->told[r]++;
        }
    }
}

/* Writes "rank 3 on n2 says: the disk is full". */
static void dpari_mpi_put_says(dpar_why *why, const dpari_mpi_ctx *context, int32_t rank,
                               const char *text)
{
    dpar_text t;
    dpari_text_why(&t, why);
    dpari_mpi_put_rank(&t, context, rank);
    dpar_text_put(&t, " says: ");
    dpar_text_put(&t, text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_mpi_break(dpari_mpi_ctx *context, dpar_status status,
                                                      const char *text, int tell)
{
    dpari_mpi_note note;
    dpar_text t;
    if (context->comm.status < 0) {
        return context->comm.status;
    }
    context->comm.status = status;
    (void)dpari_repeat(status, &context->comm.why, text);
    if (tell) {
        memset(&note, 0, sizeof note);
        note.call.state = status;
        dpar_text_init(&t, note.text, sizeof note.text);
        dpar_text_put(&t, context->comm.why.text);
        dpari_mpi_tell(context, &context->broken, &note);
    }
    context->inward = context->comm.why;
    if (tell) {
        dpari_mpi_put_says(&context->inward, context, context->comm.rank, context->comm.why.text);
    }
    if (context->level.inside != NULL) {
        dpar_comm_abort(context->level.inside, status, context->inward.text);
    }
    return status;
}

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
/* Appends ", rank 3 has died" for up to 8 ranks that MPI knows to have failed. */
static void dpari_mpi_put_dead(const dpari_mpi_ctx *context, dpar_why *why)
{
    const dpar_why said = *why;
    MPI_Group gone, all;
    dpar_text t;
    int n = 0, i, rank;
    dpari_text_why(&t, why);
    dpar_text_put(&t, said.text);
    MPIX_Comm_get_failed(context->main, &gone);
    MPI_Comm_group(context->main, &all);
    MPI_Group_size(gone, &n);
    for (i = 0; i < n && i < 8; i++) {
        MPI_Group_translate_ranks(gone, 1, &i, all, &rank);
        dpar_text_put(&t, ", ");
        dpari_mpi_put_rank(&t, context, (int32_t)rank);
        dpar_text_put(&t, " has died");
    }
    MPI_Group_free(&gone);
    MPI_Group_free(&all);
}
#endif

DPARI_INTERNAL dpar_status dpari_mpi_failed(dpari_mpi_ctx *context, const dpari_mpi_task *task,
                                            const char *doing, int code)
{
    char words[100];
    dpar_text t;
    dpar_why why;
    if (code == MPI_SUCCESS) {
        return DPAR_OK;
    }
    if (task != NULL) {
        dpar_text_init(&t, words, sizeof words);
        dpari_mpi_describe_task(&t, task);
        doing = words;
    }
    (void)dpari_mpi_say(&why, doing, code);
#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
    if (dpari_mpi_status_of(code) == DPAR_E_PEER) {
        dpari_mpi_put_dead(context, &why);
    }
#endif
    return dpari_mpi_break(context, dpari_mpi_status_of(code), why.text, 1);
}

/* Stores a note from another rank. If the note reports a broken communicator, breaks this rank's,
 * too. */
static void dpari_mpi_hear(dpari_mpi_ctx *context, const dpari_mpi_note *note)
{
    dpar_why why;
    if (note->call.state < 0) {
        dpari_mpi_put_says(&why, context, note->rank, note->text);
        dpari_mpi_break(context, note->call.state, why.text, 0);
        return;
    }
    if (context->heard == NULL) {
        context->heard =
            (dpari_mpi_note *)calloc((size_t)context->comm.size, sizeof(dpari_mpi_note));
    }
    if (context->heard != NULL && note->rank >= 0 && note->rank < context->comm.size) {
        context->heard[note->rank] = *note;
    }
}

DPARI_INTERNAL void dpari_mpi_listen(dpari_mpi_ctx *context)
{
    dpari_mpi_note note;
    int there = 1;
    while (there) {
        MPI_Status status;
        there = 0;
        if (MPI_Iprobe(MPI_ANY_SOURCE, DPARI_MPI_TAG_NOTE, context->side, &there, &status) !=
                MPI_SUCCESS ||
            !there ||
            MPI_Recv(&note, (int)sizeof note, MPI_BYTE, status.MPI_SOURCE, DPARI_MPI_TAG_NOTE,
                     context->side, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            return;
        }
        note.rank = status.MPI_SOURCE;
        note.text[sizeof note.text - 1] = 0;
        context->notes++;
        dpari_mpi_hear(context, &note);
    }
}

/* Discards notes about collectives up to `sequence`: their senders may have finished them by
 * now. */
static void dpari_mpi_forget(dpari_mpi_ctx *context, int64_t sequence)
{
    int32_t r;
    for (r = 0; context->heard != NULL && r < context->comm.size; r++) {
        if (context->heard[r].call.sequence <= sequence) {
            context->heard[r].call.sequence = 0;
        }
    }
}

/* True if `rank` has reported that it waits in the same call as this task. */
static int32_t dpari_mpi_waits_with(const dpari_mpi_task *task, int32_t rank)
{
    const dpari_record *h = task->ctx->heard == NULL ? NULL : &task->ctx->heard[rank].call;
    const dpari_record mine = dpari_mpi_record_of(task);
    return h != NULL && h->sequence == task->sequence + 1 &&
           dpari_record_same(h, &mine, !task->call.variable_counts);
}

/* Breaks the communicator if a rank has reported another call than this task's as the collective
 * with the same number. */
static void dpari_mpi_compare_heard(const dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    int32_t r;
    for (r = 0; context->heard != NULL && r < context->comm.size; r++) {
        dpari_record mine, other = context->heard[r].call;
        dpar_why why;
        dpar_text s;
        if (dpari_kind_sends(task->call.kind) || dpari_kind_sends(other.kind) ||
            other.sequence != task->sequence + 1 || dpari_mpi_waits_with(task, r)) {
            continue;
        }
        mine = dpari_mpi_record_of(task);
        other.sequence = mine.sequence;
        dpari_text_why(&s, &why);
        if (r < context->comm.rank) {
            dpari_mpi_put_calls(&s, context, r, &other, context->comm.rank, &mine);
        } else {
            dpari_mpi_put_calls(&s, context, context->comm.rank, &mine, r, &other);
        }
        dpari_mpi_break(context, DPAR_E_MISMATCH, why.text, 1);
        return;
    }
}

/* With `waiting`, writes the ranks that wait in the same call ("1, 3"), otherwise the ranks that
 * have reported nothing, with their nodes ("1 on n1, 2, 3 on n2"). Writes at most 8 of them, and
 * returns how many there are. */
static int32_t dpari_mpi_put_ranks(dpar_text *text, const dpari_mpi_task *task, int32_t waiting)
{
    const dpari_mpi_ctx *context = task->ctx;
    const char *host = NULL;
    int32_t r, n = 0;
    for (r = 0; r < context->comm.size; r++) {
        int32_t quiet = context->heard == NULL || context->heard[r].call.sequence == 0;
        if (r == context->comm.rank || (waiting ? !dpari_mpi_waits_with(task, r) : !quiet)) {
            continue;
        }
        if (n < 8) {
            const char *before = host;
            host = waiting ? NULL : dpari_mpi_host(context, r);
            if (before != host) {
                dpari_mpi_put_host(text, before);
            }
            dpar_text_put(text, n > 0 ? ", " : "");
            dpari_text_int(text, r);
        } else if (n == 8) {
            dpari_mpi_put_host(text, host);
            host = NULL;
            dpar_text_put(text, ", ...");
        }
        n++;
    }
    dpari_mpi_put_host(text, host);
    if (n == 0) {
        dpar_text_put(text, "none");
    }
    return n;
}

/* Writes the call of the first rank that waits in another call than this task. */
static void dpari_mpi_put_elsewhere(dpar_text *text, const dpari_mpi_task *task)
{
    const dpari_mpi_ctx *context = task->ctx;
    int32_t r;
    for (r = 0; context->heard != NULL && r < context->comm.size; r++) {
        const dpari_record *h = &context->heard[r].call;
        if (h->sequence != 0 && !dpari_mpi_waits_with(task, r)) {
            dpar_text_put(text, "; ");
            dpari_mpi_put_rank(text, context, r);
            dpar_text_put(text, " waits in ");
            dpari_mpi_describe_note(text, h);
            return;
        }
    }
}

/* The deadline has passed: breaks the communicator with a message that names the missing ranks. */
static void dpari_mpi_late(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_mpi_describe_task(&t, task);
    dpari_text_print(&t, " on rank %d of %d: not finished after %.3g s; ", context->comm.rank,
                     context->comm.size, context->comm.timeout_s);
    if (context->comm.size > DPARI_MPI_RANKS_TOLD) {
        dpar_text_put(&t, "MPI cannot tell which rank is missing");
    } else {
        dpar_text_put(&t, "nothing heard from ranks: ");
        dpari_mpi_put_ranks(&t, task, 0);
        if (!dpari_kind_sends(task->call.kind)) {
            dpar_text_put(&t, "; also waiting in it: ");
            dpari_mpi_put_ranks(&t, task, 1);
        }
        dpari_mpi_put_elsewhere(&t, task);
    }
    dpari_mpi_break(context, DPAR_E_TIMEOUT, why.text, 1);
}

/* Tells the other ranks that this rank waits in the task's call. */
static void dpari_mpi_announce(dpari_mpi_task *task)
{
    dpari_mpi_note note;
    memset(&note, 0, sizeof note);
    note.call = dpari_mpi_record_of(task);
    note.call.sequence++;
    dpari_mpi_tell(task->ctx, &task->ctx->waiting, &note);
}

/* Breaks the communicator if a rank of this node has ended, even if the task waits for another
 * rank. */
static void dpari_mpi_look_for_ended(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_mpi_describe_task(&t, task);
    dpar_text_put(&t, ": ");
    if (context->level.inside != NULL && dpari_group_ended(context->level.inside, &t)) {
        dpari_mpi_break(context, DPAR_E_PEER, why.text, 1);
    }
}

DPARI_INTERNAL int32_t dpari_mpi_trade_notes(dpari_mpi_task *task, double now)
{
    dpari_mpi_ctx *context = task->ctx;
    const double limit = context->comm.timeout_s, quarter = limit > 0 ? limit / 4 : 4.0;
    int due = 0;
    if (task->since < 0) {
        task->since = now;
        task->next_note = now + (quarter < 1 ? quarter : 1);
    }
    task->since += dpari_os_suspended(&task->looked, now);
    if (now - context->listened > 1e-3) {
        context->listened = now;
        dpari_mpi_listen(context);
        if (context->comm.status >= 0) {
            dpari_mpi_compare_heard(task);
        }
        due = now >= task->next_note;
    }
    if (!due || context->comm.status < 0) {
        return 0;
    }
    if (!task->told) {
        dpari_mpi_forget(context, dpari_kind_sends(task->call.kind) ? INT64_MAX : task->sequence);
    }
    task->told = 1;
    task->next_note = now + (quarter < 5 ? quarter : 5);
    dpari_mpi_announce(task);
    dpari_mpi_look_for_ended(task);
    return 1;
}

DPARI_INTERNAL void dpari_mpi_check_deadline(dpari_mpi_task *task, double now)
{
    dpari_mpi_ctx *context = task->ctx;
    const double limit = context->comm.timeout_s;
    if (!(limit > 0) || now - task->since <= limit || context->comm.status < 0) {
        return;
    }
    dpari_mpi_listen(context);
    if (context->comm.status >= 0) {
        dpari_mpi_late(task);
    }
}

DPARI_INTERNAL void dpari_mpi_hear_why(dpari_mpi_ctx *context)
{
    const double until = MPI_Wtime() + 0.05;
    while (context->comm.status >= 0 && MPI_Wtime() < until) {
        dpari_mpi_listen(context);
        DPARI_MPI_YIELD();
    }
}

/* Waits until a request is done, or `limit` seconds have passed on the stopwatch (0 means no
 * limit). Returns 1 if the request is done, otherwise 0. */
static int32_t dpari_mpi_in_time(MPI_Request *request, dpari_stopwatch *watch, double limit)
{
    int done = 0;
    while (MPI_Test(request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done &&
           (!(limit > 0) || dpari_os_waited(watch) < limit)) {
        DPARI_MPI_YIELD();
    }
    return done;
}

DPARI_INTERNAL dpar_status dpari_mpi_last_notes(dpari_mpi_ctx *context)
{
    const double limit = context->comm.timeout_s;
    dpari_stopwatch watch = {0, 0};
    MPI_Request request = MPI_REQUEST_NULL;
    int32_t r, there;
    if (context->comm.size == 1 || context->comm.size > DPARI_MPI_RANKS_TOLD) {
        return DPAR_OK;
    }
    if (context->told == NULL) {
        context->told = (int32_t *)calloc((size_t)context->comm.size, sizeof *context->told);
    }
    there = context->told != NULL &&
            MPI_Ireduce_scatter_block(context->told, &context->due, 1, MPI_INT32_T, MPI_SUM,
                                      context->main, &request) == MPI_SUCCESS &&
            dpari_mpi_in_time(&request, &watch, limit);
    for (; there && context->notes < context->due;
         context->notes++) { /* without a probe, see dpari_mpi_begin */
        there = MPI_Irecv(&context->last, (int)sizeof context->last, MPI_BYTE, MPI_ANY_SOURCE,
                          DPARI_MPI_TAG_NOTE, context->side, &request) == MPI_SUCCESS &&
                dpari_mpi_in_time(&request, &watch, limit);
    }
    for (r = 0; there && context->waiting != NULL && r < context->comm.size; r++) {
        there = dpari_mpi_in_time(&context->waiting[r].sent, &watch, limit);
    }
    return there ? (dpar_status)DPAR_OK
                 : dpari_mpi_break(context, DPAR_E_TIMEOUT,
                                   "dpar_comm_free: a rank called it, but does not finish it", 0);
}

/* ==== mpi/tasks.c ==== */

/* Manages the memory of operations in progress.
 *
 * Tasks are kept in a doubly linked list in the order of posting, and used again once they have
 * ended. A task has space for one request itself, and allocates an array for more. Scratch memory
 * is returned to the communicator, so that the next operation of the same size allocates nothing. A
 * task that failed cancels its receives; if MPI still uses a request of it, its memory is never
 * freed, nor is memory from dpar_comm_alloc (world->held). */

DPARI_INTERNAL void dpari_mpi_release_pieces(dpari_mpi_task *task)
{
    int32_t i;
    for (i = 0; i < task->requests; i++) {
        if (task->piece[i].big != MPI_DATATYPE_NULL) {
            MPI_Type_free(&task->piece[i].big);
        }
    }
    task->requests = 0;
}

DPARI_INTERNAL int32_t dpari_mpi_reserve(dpari_mpi_task *task, int32_t n)
{
    size_t one = sizeof(MPI_Request) + sizeof(MPI_Status) + sizeof(dpari_mpi_piece);
    char *memory;
    n *= 2;
    if (n <= task->room) {
        return 1;
    }
    memory = (char *)malloc((size_t)n * one + 64); /* the widest type is first, which keeps all
                                                      arrays aligned */
    if (memory == NULL) {
        return 0;
    }
    if (task->room > 1) {
        free(task->piece);
    }
    task->piece = (dpari_mpi_piece *)(void *)memory;
    task->state = (MPI_Status *)(void *)(memory + (size_t)n * sizeof(dpari_mpi_piece));
    task->request =
        (MPI_Request *)(void *)((((uintptr_t)(task->state + n)) + 15u) & ~(uintptr_t)15u);
    task->room = n;
    return 1;
}

DPARI_INTERNAL dpari_mpi_piece *dpari_mpi_slot(dpari_mpi_task *task, int32_t peer)
{
    dpari_mpi_piece *p = &task->piece[task->requests];
    task->request[task->requests] = MPI_REQUEST_NULL;
    task->requests++;
    p->type = MPI_DATATYPE_NULL;
    p->big = MPI_DATATYPE_NULL;
    p->expect = -1;
    p->before = p->whole = 0;
    p->peer = peer;
    return p;
}

DPARI_INTERNAL MPI_Request *dpari_mpi_last_request(dpari_mpi_task *task)
{
    return &task->request[task->requests - 1];
}

DPARI_INTERNAL void *dpari_mpi_scratch(dpari_mpi_task *task, int64_t bytes)
{
    dpari_mpi_ctx *context = task->ctx;
    if (task->memory != NULL && task->memory_bytes >= bytes) {
        return task->memory;
    }
    free(task->memory);
    task->memory = context->scratch;
    task->memory_bytes = context->scratch_bytes;
    context->scratch = NULL;
    context->scratch_bytes = 0;
    if (task->memory == NULL || task->memory_bytes < bytes) {
        free(task->memory);
        task->memory = malloc((size_t)bytes + 1);
        task->memory_bytes = task->memory != NULL ? bytes : 0;
    }
    return task->memory;
}

DPARI_INTERNAL const void *dpari_mpi_apart(dpari_mpi_task *task, const void *in, const void *out,
                                           int64_t bytes)
{
    void *copy;
    if (in != out) {
        return in;
    }
    copy = dpari_mpi_scratch(task, bytes);
    if (copy != NULL) {
        memcpy(copy, in, (size_t)bytes);
    }
    return copy;
}

/* Returns the temporary memory to the communicator, which keeps the largest block up to 64 MiB. */
static void dpari_mpi_return_scratch(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    if (task->memory_bytes > context->scratch_bytes && task->memory_bytes <= ((int64_t)64 << 20)) {
        free(context->scratch);
        context->scratch = task->memory;
        context->scratch_bytes = task->memory_bytes;
    } else {
        free(task->memory);
    }
    task->memory = NULL;
    task->memory_bytes = 0;
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_take(dpari_mpi_world *world)
{
    dpari_mpi_task *task = world->spare;
    if (task != NULL) {
        world->spare = task->after;
        return task;
    }
    task = (dpari_mpi_task *)calloc(1, sizeof *task);
    if (task != NULL) {
        task->request = &task->request_1;
        task->state = &task->state_1;
        task->piece = &task->piece_1;
        task->room = 1;
    }
    return task;
}

DPARI_INTERNAL void dpari_mpi_give(dpari_mpi_task *task)
{
    dpari_mpi_world *world = task->ctx->world;
    dpari_mpi_return_scratch(task);
    free(task->counts);
    free(task->calls);
    free(task->pieces);
    free(task->wide);
    free(task->aside);
    task->wide = NULL;
    task->aside = NULL;
    task->half = 0;
    task->counts = NULL;
    task->pieces = NULL;
    task->calls = NULL;
    task->after = world->spare;
    world->spare = task;
}

DPARI_INTERNAL void dpari_mpi_link(dpari_mpi_task *task)
{
    dpari_mpi_world *world = task->ctx->world;
    task->before = world->last;
    task->after = NULL;
    if (world->last != NULL) {
        world->last->after = task;
    } else {
        world->tasks = task;
    }
    world->last = task;
}

static void dpari_mpi_unlink(dpari_mpi_task *task)
{
    dpari_mpi_world *world = task->ctx->world;
    if (task->before != NULL) {
        task->before->after = task->after;
    } else {
        world->tasks = task->after;
    }
    if (task->after != NULL) {
        task->after->before = task->before;
    } else {
        world->last = task->before;
    }
}

DPARI_INTERNAL void dpari_mpi_fed(dpari_mpi_task *task)
{
    if (task->feeding) {
        task->feeding = 0;
        task->ctx->unfed--;
    }
}

/* Cancels the receives of a task that failed, because nobody will send to them any more. Sends and
 * collectives cannot be cancelled. */
static void dpari_mpi_take_back(dpari_mpi_task *task)
{
    int32_t i, held = 0;
    for (i = 0; i < task->requests; i++) {
        int done = 0;
        if (task->piece[i].expect >= 0 && task->request[i] != MPI_REQUEST_NULL) {
            MPI_Cancel(&task->request[i]);
        }
        held += MPI_Test(&task->request[i], &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done;
    }
    if (held == 0) {
        dpari_mpi_release_pieces(task);
    }
}

DPARI_INTERNAL void dpari_mpi_end(dpari_mpi_task *task, dpar_status status)
{
    int32_t held;
    dpari_mpi_unlink(task);
    dpari_mpi_fed(task);
    if (task->requests > 0) {
        dpari_mpi_take_back(task);
    }
    if (task->inside_on) { /* the abort ends the operation, so that the wait returns at once */
        dpar_comm_abort(task->ctx->level.inside, status, task->ctx->inward.text);
        (void)dpar_wait(&task->inside);
        task->inside_on = 0;
    }
    held = task->requests > 0;
    task->ctx->world->held |= held;
    task->status = status;
    task->finished = DPARI_MPI_FINISHED;
    if (task->number + DPARI_RECORDS > task->ctx->records) { /* its record was not overwritten */
        task->record->state = status;
    }
    if (task->work != NULL) {
        task->work->status = status;
        task->work->phase = DPARI_MPI_FINISHED;
        task->work->comm = NULL;
    }
    if (!held && task->work != NULL) {
        dpari_mpi_give(task);
    }
}

DPARI_INTERNAL dpari_record *dpari_mpi_record_at(dpari_mpi_ctx *context, int64_t number)
{
    return &context->ring[(uint64_t)(number - 1) % DPARI_RECORDS];
}

DPARI_INTERNAL void dpari_mpi_record_task(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    context->records++;
    task->number = context->records;
    task->record = dpari_mpi_record_at(context, task->number);
    *task->record = dpari_mpi_record_of(task);
    task->record->state = DPAR_MORE;
}

DPARI_INTERNAL void dpari_mpi_among(dpari_mpi_task *task, const int32_t *peer, int32_t ranks,
                                    int32_t me, const void *in, void *out, int64_t elements)
{
    task->peer = peer;
    task->ranks = ranks;
    task->me = me;
    task->in = in;
    task->out = out;
    task->elements = elements;
    task->at = task->len = 0;
    task->sharing = task->round = 0;
}

DPARI_INTERNAL int32_t dpari_mpi_has_result(const dpari_mpi_task *task)
{
    return task->call.kind != DPAR_CALL_REDUCE || task->ctx->comm.rank == task->call.root;
}

DPARI_INTERNAL void dpari_mpi_advance(dpari_mpi_task *task, int64_t count, int64_t most)
{
    task->at += task->len;
    task->len = count - task->at < most ? count - task->at : most;
    task->last = task->at + task->len >= count;
}

/* ==== mpi/task_messages.c ==== */

/* Sends and receives the messages of tasks, and compares their lengths.
 *
 * A message between one and two times as long as MPI's limit for sending at once is sent in two
 * parts (tuning.c). Its first part has a length that no whole message has, so that a receiver that
 * expects another count notices it. Every receive that is done is compared with the length that it
 * expected; a difference breaks the communicator with a message that names the call, the rank and
 * both counts. */

/* Makes a type whose one element holds n elements of `base`: blocks of DPARI_MPI_LIMIT, and a
 * remainder. */
static int dpari_mpi_big_type(MPI_Datatype base, int64_t n, int64_t bytes, MPI_Datatype *big)
{
    MPI_Datatype part[2];
    MPI_Aint begin[2];
    int length[2], code;
    int64_t blocks = n / DPARI_MPI_LIMIT;
    code = MPI_Type_vector((int)blocks, (int)DPARI_MPI_LIMIT, (int)DPARI_MPI_LIMIT, base, &part[0]);
    if (code != MPI_SUCCESS) {
        return code;
    }
    part[1] = base;
    length[0] = 1;
    length[1] = (int)(n % DPARI_MPI_LIMIT);
    begin[0] = 0;
    begin[1] = (MPI_Aint)(blocks * DPARI_MPI_LIMIT * bytes);
    code = MPI_Type_create_struct(2, length, begin, part, big);
    MPI_Type_free(&part[0]);
    return code == MPI_SUCCESS ? MPI_Type_commit(big) : code;
}

DPARI_INTERNAL int dpari_mpi_units(dpari_mpi_piece *p, int32_t b, int64_t n, int64_t total,
                                   MPI_Datatype *type, dpari_mpi_count *count)
{
    *type = dpari_mpi_by_bytes(b);
    *count = (dpari_mpi_count)n;
    if (total > DPARI_MPI_LIMIT && n > 0) {
        int code = dpari_mpi_big_type(*type, n, b, &p->big);
        *type = p->big;
        *count = 1;
        return code;
    }
    return MPI_SUCCESS;
}

DPARI_INTERNAL int dpari_mpi_send_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                      const void *from, int64_t n)
{
    dpari_mpi_piece *p = dpari_mpi_slot(task, to);
    MPI_Datatype type;
    dpari_mpi_count count;
    int code = dpari_mpi_units(p, dpar_type_bytes(task->call.type), n, n, &type, &count);
    if (code != MPI_SUCCESS) {
        return code;
    }
    return DPARI_MPI_C(MPI_Isend)(from, count, type, to, tag, comm, dpari_mpi_last_request(task));
}

DPARI_INTERNAL int dpari_mpi_recv_one(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                      void *to, int64_t n)
{
    dpari_mpi_piece *p = dpari_mpi_slot(task, from);
    MPI_Datatype type;
    dpari_mpi_count count;
    int code = dpari_mpi_units(p, dpar_type_bytes(task->call.type), n, n, &type, &count);
    if (code != MPI_SUCCESS) {
        return code;
    }
    if (n == 0) { /* has space for one byte, because Intel MPI 2021 would accept a short message as
                     an empty one */
        type = MPI_BYTE;
        count = 1;
        to = &p->none;
    }
    p->type = type;
    p->expect = p->whole = n;
    return DPARI_MPI_C(MPI_Irecv)(to, count, type, from, tag, comm, dpari_mpi_last_request(task));
}

/* Returns the elements of the first part of a message that is sent in two parts. No message in one
 * part has this length. -1 if no messages are sent in two parts. */
static int64_t dpari_mpi_first_of(const dpari_mpi_task *task)
{
    return task->ctx->world->at_once > 0
               ? task->ctx->world->at_once / dpar_type_bytes(task->call.type) + 1
               : -1;
}

DPARI_INTERNAL int64_t dpari_mpi_first_part(const dpari_mpi_task *task, int64_t n)
{
    const int64_t bytes = dpari_mpi_bytes(task->call.type, n), at_once = task->ctx->world->at_once;
    return bytes > at_once && bytes <= 2 * at_once ? dpari_mpi_first_of(task) : 0;
}

DPARI_INTERNAL int dpari_mpi_send_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t to,
                                        const void *from, int64_t n)
{
    const int64_t first = dpari_mpi_first_part(task, n);
    int code = MPI_SUCCESS;
    if (first > 0) {
        task->cut = 1;
        code = dpari_mpi_send_one(task, comm, tag, to, from, first);
    }
    if (code != MPI_SUCCESS) {
        return code;
    }
    return dpari_mpi_send_one(task, comm, tag, to, dpari_mpi_past(from, task->call.type, first),
                              n - first);
}

DPARI_INTERNAL int dpari_mpi_recv_piece(dpari_mpi_task *task, MPI_Comm comm, int tag, int32_t from,
                                        void *to, int64_t n)
{
    const int64_t first = dpari_mpi_first_part(task, n);
    int code = MPI_SUCCESS;
    if (first > 0) {
        task->cut = 1;
        code = dpari_mpi_recv_one(task, comm, tag, from, to, first);
        task->piece[task->requests - 1].whole = n;
    }
    if (code == MPI_SUCCESS) {
        code = dpari_mpi_recv_one(task, comm, tag, from, dpari_mpi_at(to, task->call.type, first),
                                  n - first);
        task->piece[task->requests - 1].before = first;
        task->piece[task->requests - 1].whole = n;
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_piece_tag(const dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    uint64_t h = (uint64_t)call->kind | (uint64_t)call->type << 8 | (uint64_t)call->op << 16;
    h = (h ^ (uint64_t)(uint32_t)call->root << 32) * UINT64_C(0x9e3779b97f4a7c15);
    h = ((h >> 29) ^ (uint64_t)(uint32_t)dpari_tag_compared(call->tag)) *
        UINT64_C(0x9e3779b97f4a7c15);
    return DPARI_MPI_TAG_PIECE + (int)(((h >> 33) + (uint64_t)task->sequence) % DPARI_MPI_TAGS);
}

DPARI_INTERNAL int dpari_mpi_trade(dpari_mpi_task *task, int32_t r, void *to, int64_t gets,
                                   const void *from, int64_t gives)
{
    int code = MPI_SUCCESS, tag = dpari_mpi_piece_tag(task);
    const int32_t peer = task->peer != NULL ? task->peer[r] : r;
    if (gets > 0) {
        code = dpari_mpi_recv_piece(task, task->ctx->side, tag, peer, to, gets);
    }
    if (gives > 0 && code == MPI_SUCCESS) {
        code = dpari_mpi_send_piece(task, task->ctx->side, tag, peer, from, gives);
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_trade_each(dpari_mpi_task *task, void *to, const int32_t *place,
                                        const void *from, int64_t step, int64_t n)
{
    const int32_t type = task->call.type;
    int32_t r, code = MPI_SUCCESS;
    if (!dpari_mpi_reserve(task, 2 * task->ranks)) {
        return MPI_ERR_NO_MEM;
    }
    for (r = 0; r < task->ranks && code == MPI_SUCCESS; r++) {
        void *row = dpari_mpi_at(to, type, (place != NULL ? place[r] : r) * n);
        const void *piece = dpari_mpi_past(from, type, r * step);
        if (r == task->me) {
            dpari_mpi_copy(row, piece, dpari_mpi_bytes(type, n));
        } else {
            code = dpari_mpi_trade(task, r, row, n, piece, n);
        }
    }
    return code;
}

/* ---- lengths and errors ---- */

DPARI_INTERNAL void dpari_mpi_mismatch(dpari_mpi_task *task, int32_t peer, int64_t got,
                                       int64_t expected)
{
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_mpi_describe_task(&t, task);
    dpar_text_put(&t, ": ");
    dpari_mpi_put_rank(&t, task->ctx, peer);
    dpar_text_put(&t, " sent ");
    if (got < 0) {
        dpar_text_put(&t, "more elements than the ");
    } else {
        dpari_text_int(&t, got);
        dpar_text_put(&t, got == dpari_mpi_first_of(task) ? " or more elements, not the "
                                                          : " elements, not the ");
    }
    dpari_text_say(&t, "%ld that rank %d expects", expected, task->ctx->comm.rank);
    dpari_mpi_break(task->ctx, DPAR_E_MISMATCH, why.text, 1);
}

DPARI_INTERNAL void dpari_mpi_measure(dpari_mpi_task *task, int32_t i)
{
    const dpari_mpi_piece *p = &task->piece[i];
    MPI_Count got = 0;
    if (p->expect < 0 || p->whole < 0) {
        return;
    }
    if (MPI_Get_elements_x(&task->state[i], p->type, &got) != MPI_SUCCESS || got != p->expect) {
        dpari_mpi_mismatch(task, p->peer, p->before + (got < 0 ? 0 : (int64_t)got), p->whole);
    }
}

DPARI_INTERNAL void dpari_mpi_request_failed(dpari_mpi_task *task, int32_t i, int code)
{
    if (dpari_mpi_status_of(code) == DPAR_E_MISMATCH && task->piece[i].expect >= 0) {
        dpari_mpi_mismatch(task, task->piece[i].peer, -1, task->piece[i].whole);
    } else {
        dpari_mpi_failed(task->ctx, task, NULL, code);
    }
}

/* Tests the requests one by one. If only one end cuts a message in two, one part may never arrive,
 * and the length of the other part then reveals the mismatch. */
static int32_t dpari_mpi_parts_done(dpari_mpi_task *task)
{
    int32_t i, all = 1;
    for (i = 0; i < task->requests && task->ctx->comm.status >= 0; i++) {
        int done = 1;
        if (task->request[i] != MPI_REQUEST_NULL) {
            const int code = MPI_Test(&task->request[i], &done, &task->state[i]);
            if (code != MPI_SUCCESS) {
                dpari_mpi_request_failed(task, i, code);
                return 0;
            }
            if (done) {
                dpari_mpi_measure(task, i);
            }
        }
        all = all && done;
    }
    return all && task->ctx->comm.status >= 0;
}

DPARI_INTERNAL int32_t dpari_mpi_requests_done(dpari_mpi_task *task)
{
    int done = 0, code;
    int32_t i;
    if (task->cut) {
        return dpari_mpi_parts_done(task);
    }
    if (task->requests == 1) {
        code = MPI_Test(task->request, &done, task->state);
        if (code != MPI_SUCCESS) {
            dpari_mpi_request_failed(task, 0, code);
            return 0;
        }
    } else {
        code = MPI_Testall(task->requests, task->request, &done, task->state);
        for (i = 0; code != MPI_SUCCESS && i < task->requests; i++) {
            int one = dpari_mpi_class(code) == MPI_ERR_IN_STATUS ? task->state[i].MPI_ERROR : code;
            if (one != MPI_SUCCESS && dpari_mpi_class(one) != MPI_ERR_PENDING) {
                dpari_mpi_request_failed(task, i, one);
                return 0;
            }
        }
    }
    for (i = 0; done && i < task->requests; i++) {
        dpari_mpi_measure(task, i);
    }
    return done;
}

/* ==== mpi/exchange_v.c ==== */

/* Posts the pieces of the _v forms as one message for each pair of ranks: first all receives, then
 * all sends. A piece that this rank sends to itself is copied. An all_to_all_v in place sends from
 * a copy of its input. */

static int64_t dpari_mpi_sum(const int64_t *counts, int32_t n)
{
    int64_t sum = 0;
    int32_t r;
    for (r = 0; counts != NULL && r < n; r++) {
        sum += counts[r];
    }
    return sum;
}

DPARI_INTERNAL int64_t dpari_mpi_piece_of(const dpar_call *call, int32_t r)
{
    return call->variable_counts ? call->in_count[r] : call->count;
}

DPARI_INTERNAL int64_t dpari_mpi_largest(const dpar_call *call, int32_t n)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < n; r++) {
        int64_t piece = dpari_mpi_piece_of(call, r);
        most = piece > most ? piece : most;
    }
    return most;
}

DPARI_INTERNAL int64_t dpari_mpi_elements(const dpar_call *call, int32_t n)
{
    return call->variable_counts ? dpari_mpi_sum(call->in_count, n) : call->count * n;
}

DPARI_INTERNAL int64_t dpari_mpi_clamp(int64_t piece, int64_t at, int64_t len)
{
    return piece <= at ? 0 : dpari_least(piece - at, len);
}

DPARI_INTERNAL int64_t dpari_mpi_aside_bytes(const dpari_mpi_task *task)
{
    return dpari_mpi_bytes(task->call.type,
                           dpari_mpi_sum(task->call.in_count, task->ctx->comm.size));
}

DPARI_INTERNAL int32_t dpari_mpi_set_aside(dpari_mpi_task *task, void *copy)
{
    dpar_call *call = &task->call;
    dpari_pair p;
    int64_t at = 0;
    int32_t r;
    if (copy == NULL) {
        return 0;
    }
    memset(&p, 0, sizeof p);
    for (r = 0; r < task->ctx->comm.size; r++) {
        dpari_pair_next(&task->ctx->comm, call, r, &p);
        dpari_mpi_copy(dpari_mpi_at(copy, call->type, at),
                       dpari_mpi_past(call->in, call->type, p.from),
                       dpari_mpi_bytes(call->type, p.give));
        at += p.give;
    }
    call->in = copy;
    call->in_first = NULL;
    return 1;
}

DPARI_INTERNAL int dpari_mpi_exchange(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const dpar_comm *comm = &task->ctx->comm;
    MPI_Comm side = task->ctx->side;
    const int tag = dpari_mpi_piece_tag(task);
    dpari_pair p;
    int32_t r, code = MPI_SUCCESS;
    task->last = 1;
    if (!dpari_mpi_reserve(task, 2 * comm->size) ||
        (call->kind == DPAR_CALL_ALL_TO_ALL && call->in == call->out &&
         !dpari_mpi_set_aside(task, dpari_mpi_scratch(task, dpari_mpi_aside_bytes(task))))) {
        return MPI_ERR_NO_MEM;
    }
    memset(&p, 0, sizeof p);
    for (r = 0; r < comm->size && code == MPI_SUCCESS; r++) {
        dpari_pair_next(comm, call, r, &p);
        if (p.take >= 0 && r != comm->rank) {
            code = dpari_mpi_recv_piece(task, side, tag, r,
                                        dpari_mpi_at(call->out, call->type, p.to), p.take);
        }
    }
    memset(&p, 0, sizeof p);
    for (r = 0; r < comm->size && code == MPI_SUCCESS; r++) {
        const void *from;
        dpari_pair_next(comm, call, r, &p);
        from = dpari_mpi_past(call->in, call->type, p.from);
        if (r == comm->rank && p.give != p.take) {
            dpari_mpi_mismatch(task, r, p.give, p.take);
            return MPI_SUCCESS;
        }
        if (r == comm->rank && p.give > 0) {
            dpari_mpi_copy(dpari_mpi_at(call->out, call->type, p.to), from,
                           dpari_mpi_bytes(call->type, p.give));
        } else if (r != comm->rank && p.give >= 0) {
            code = dpari_mpi_send_piece(task, side, tag, r, from, p.give);
        }
    }
    return code;
}

/* ==== mpi/mpi_collectives.c ==== */

/* Carries operations by MPI's own collectives.
 *
 * Data that is only moved is sent as unsigned integers of the same size, and more elements than MPI
 * can count as one element of a derived type. Reductions run in blocks that MPI can count. 16-bit
 * floats are converted to f32, reduced, and rounded once. MPI_IN_PLACE is used only where all ranks
 * can use it, because in dpar each rank may call in place or not. */

static int dpari_mpi_call_barrier(dpari_mpi_task *task)
{
    if (task->block) {
        return MPI_Barrier(task->ctx->main);
    }
    dpari_mpi_slot(task, -1);
    return MPI_Ibarrier(task->ctx->main, dpari_mpi_last_request(task));
}

static int dpari_mpi_all_to_all(dpari_mpi_task *task, MPI_Datatype type, dpari_mpi_count n)
{
    const dpar_call *call = &task->call;
    /* not MPI_IN_PLACE, which might select another algorithm than on ranks that do not use it */
    const void *in = dpari_mpi_apart(
        task, call->in, call->out, dpari_mpi_bytes(call->type, call->count * task->ctx->comm.size));
    if (in == NULL) {
        return MPI_ERR_NO_MEM;
    }
    return DPARI_MPI_DO(task, MPI_Alltoall, MPI_Ialltoall, in, n, type, call->out, n, type,
                        task->ctx->main);
}

DPARI_INTERNAL int dpari_mpi_move(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_ctx *context = task->ctx;
    int32_t here = context->comm.rank == call->root, bytes = dpar_type_bytes(call->type);
    int64_t total =
        call->kind == DPAR_CALL_BROADCAST ? call->count : call->count * context->comm.size;
    int64_t own = call->count * context->comm.rank;
    dpari_mpi_piece big;
    MPI_Datatype type;
    dpari_mpi_count n;
    int code;
    task->last = 1;
    if (call->kind == DPAR_CALL_BARRIER) {
        return dpari_mpi_call_barrier(task);
    }
    big.big = MPI_DATATYPE_NULL;
    code = dpari_mpi_units(&big, bytes, call->count, total, &type, &n);
    if (code != MPI_SUCCESS) {
        return code;
    }
    if (call->kind == DPAR_CALL_BROADCAST) {
        code = DPARI_MPI_DO(task, MPI_Bcast, MPI_Ibcast, call->out, n, type, call->root,
                            context->main);
    } else if (call->kind == DPAR_CALL_ALL_GATHER) {
        /* MPI_IN_PLACE on all ranks, because MPI requires it on all or on none */
        dpari_mpi_copy(dpari_mpi_at(call->out, call->type, own), call->in,
                       dpari_mpi_bytes(call->type, call->count));
        code = DPARI_MPI_DO(task, MPI_Allgather, MPI_Iallgather, MPI_IN_PLACE, n, type, call->out,
                            n, type, context->main);
    } else if (call->kind == DPAR_CALL_GATHER) {
        const void *in = here && call->in == dpari_mpi_past(call->out, call->type, own)
                             ? MPI_IN_PLACE
                             : call->in;
        code = DPARI_MPI_DO(task, MPI_Gather, MPI_Igather, in, n, type, here ? call->out : NULL, n,
                            type, call->root, context->main);
    } else if (call->kind == DPAR_CALL_SCATTER) {
        void *out = here && call->out == dpari_mpi_past(call->in, call->type, own) ? MPI_IN_PLACE
                                                                                   : call->out;
        code = DPARI_MPI_DO(task, MPI_Scatter, MPI_Iscatter, here ? call->in : NULL, n, type, out,
                            n, type, call->root, context->main);
    } else {
        code = dpari_mpi_all_to_all(task, type, n);
    }
    if (task->requests > 0) {
        task->piece[0].big = big.big;
    } else if (big.big != MPI_DATATYPE_NULL) {
        MPI_Type_free(&big.big);
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_message(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    task->last = 1;
    if (dpari_mpi_first_part(task, call->count) > 0 && !dpari_mpi_reserve(task, 1)) {
        return MPI_ERR_NO_MEM;
    }
    if (call->kind == DPAR_CALL_SEND) {
        return dpari_mpi_send_piece(task, task->ctx->main, call->tag, call->root, call->in,
                                    call->count);
    }
    return dpari_mpi_recv_piece(task, task->ctx->main, call->tag, call->root, call->out,
                                call->count);
}

/* ---- reductions that end on one rank or on all ---- */

/* Reduces n elements of the wide type from `in`, which may be `out`, to `out`, on all ranks or on
 * the root. */
static int dpari_mpi_reduce_call(dpari_mpi_task *task, const void *in, void *out, int64_t n)
{
    dpari_mpi_ctx *context = task->ctx;
    int32_t wide = dpari_mpi_wide(task->call.type);
    MPI_Datatype type = dpari_mpi_summand(wide, task->call.op);
    MPI_Op op = dpari_mpi_op(context->world, wide, task->call.op);
    const void *from = in == out && task->call.kind == DPAR_CALL_ALL_REDUCE ? MPI_IN_PLACE : in;
    if (task->call.kind == DPAR_CALL_ALL_REDUCE) {
        return DPARI_MPI_DO(task, MPI_Allreduce, MPI_Iallreduce, from, out, (dpari_mpi_count)n,
                            type, op, context->main);
    }
    return DPARI_MPI_DO(task, MPI_Reduce, MPI_Ireduce, from,
                        dpari_mpi_has_result(task) ? out : NULL, (dpari_mpi_count)n, type, op,
                        task->call.root, context->main);
}

/* Returns the input to pass to MPI. For an all-reduce MPI requires MPI_IN_PLACE on all ranks or on
 * none, while in dpar each rank may call in place or not. With Open MPI no rank uses it, because it
 * doubles the time (at 1 MiB); an input in place is copied. With MPICH, and the MPIs derived from
 * it, all ranks use it, because these begin with a copy to `out` in any case. A reduce never uses
 * it, because MPICH 4.0 crashes in MPI_Reduce. NULL if there is no memory. */
static const void *dpari_mpi_input(dpari_mpi_task *task, const void *in, void *out)
{
    int64_t bytes = dpari_mpi_bytes(task->call.type, task->len);
#if !defined(OPEN_MPI)
    if (task->call.kind == DPAR_CALL_ALL_REDUCE) {
        dpari_mpi_copy(out, in, bytes);
        return out;
    }
#endif
    return dpari_mpi_apart(task, in, out, bytes);
}

DPARI_INTERNAL int dpari_mpi_pieces(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const void *in;
    void *out = NULL;
    dpari_mpi_advance(task, call->count, dpari_mpi_most(call->type, call->op));
    if (dpari_mpi_has_result(task)) {
        out = dpari_mpi_at(call->out, call->type, task->at);
    }
    in = dpari_mpi_input(task, dpari_mpi_past(call->in, call->type, task->at), out);
    return in != NULL ? dpari_mpi_reduce_call(task, in, out, task->len) : MPI_ERR_NO_MEM;
}

DPARI_INTERNAL void dpari_mpi_pieces_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    if (call->op == DPAR_AVG && dpari_mpi_has_result(task)) {
        dpari_mpi_divide(call->type, dpari_mpi_at(call->out, call->type, task->at), task->len,
                         task->ctx->comm.size);
    }
}

static int64_t dpari_mpi_stage(const dpari_mpi_task *task)
{
    return dpari_least(task->call.count, dpari_least(DPARI_MPI_BLOCK, DPARI_MPI_LIMIT));
}

/* Returns where the sum of a block is stored: behind the block for a reduce, otherwise over it. */
static float *dpari_mpi_staged_sum(const dpari_mpi_task *task)
{
    return (float *)task->memory +
           (task->call.kind == DPAR_CALL_REDUCE ? dpari_mpi_stage(task) : 0);
}

DPARI_INTERNAL int dpari_mpi_staged(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t most = dpari_mpi_stage(task);
    float *x = (float *)dpari_mpi_scratch(task, 2 * most * (int64_t)sizeof(float));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, call->count, most);
    dpari_mpi_convert(DPAR_F32, x, call->type, dpari_mpi_past(call->in, call->type, task->at),
                      task->len);
    return dpari_mpi_reduce_call(task, x, dpari_mpi_staged_sum(task), task->len);
}

DPARI_INTERNAL void dpari_mpi_staged_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    float *sum = dpari_mpi_staged_sum(task);
    if (!dpari_mpi_has_result(task)) {
        return;
    }
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(DPAR_F32, sum, task->len, task->ctx->comm.size);
    }
    dpari_mpi_convert(call->type, dpari_mpi_at(call->out, call->type, task->at), DPAR_F32, sum,
                      task->len);
}

/* ---- reduce_scatter ---- */

/* Sets task->counts to the elements of each piece in the current block. Returns 0 if there is no
 * memory. */
static int32_t dpari_mpi_block_counts(dpari_mpi_task *task)
{
    int32_t r, n = task->ctx->comm.size;
    if (task->counts == NULL) {
        task->counts = (dpari_mpi_count *)malloc((size_t)n * sizeof *task->counts);
    }
    for (r = 0; task->counts != NULL && r < n; r++) {
        task->counts[r] = (dpari_mpi_count)dpari_mpi_clamp(dpari_mpi_piece_of(&task->call, r),
                                                           task->at, task->len);
    }
    return task->counts != NULL;
}

static int dpari_mpi_scatter_call(dpari_mpi_task *task, const void *in, void *out)
{
    dpari_mpi_ctx *context = task->ctx;
    int32_t wide = dpari_mpi_wide(task->call.type);
    MPI_Datatype type = dpari_mpi_summand(wide, task->call.op);
    MPI_Op op = dpari_mpi_op(context->world, wide, task->call.op);
    if (task->call.variable_counts) {
        return DPARI_MPI_DO(task, MPI_Reduce_scatter, MPI_Ireduce_scatter, in, out, task->counts,
                            type, op, context->main);
    }
    return DPARI_MPI_DO(task, MPI_Reduce_scatter_block, MPI_Ireduce_scatter_block, in, out,
                        (dpari_mpi_count)task->len, type, op, context->main);
}

/* True if the result lies within the input. The result is then computed in memory of the task and
 * copied, because MPI's in-place form stores it elsewhere. */
static int32_t dpari_mpi_out_in_in(const dpari_mpi_task *task)
{
    const char *in = (const char *)task->call.in, *out = (const char *)task->call.out;
    int64_t bytes =
        dpari_mpi_bytes(task->call.type, dpari_mpi_elements(&task->call, task->ctx->comm.size));
    return (uintptr_t)out >= (uintptr_t)in && (uintptr_t)out < (uintptr_t)in + (uintptr_t)bytes;
}

DPARI_INTERNAL int dpari_mpi_scatter(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t most = dpari_mpi_largest(call, task->ctx->comm.size);
    void *out = call->out;
    dpari_mpi_advance(task, most, most);
    if (call->variable_counts && !dpari_mpi_block_counts(task)) {
        return MPI_ERR_NO_MEM;
    }
    if (dpari_mpi_out_in_in(task)) {
        out = dpari_mpi_scratch(
            task, dpari_mpi_bytes(call->type, dpari_mpi_piece_of(call, task->ctx->comm.rank)));
        if (out == NULL) {
            return MPI_ERR_NO_MEM;
        }
    }
    return dpari_mpi_scatter_call(task, call->in, out);
}

DPARI_INTERNAL void dpari_mpi_scatter_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t n = dpari_mpi_piece_of(call, task->ctx->comm.rank);
    if (dpari_mpi_out_in_in(task)) {
        dpari_mpi_copy(call->out, task->memory, dpari_mpi_bytes(call->type, n));
    }
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(call->type, call->out, n, task->ctx->comm.size);
    }
}

/* Returns the elements of one block of each piece. The scratch memory holds these blocks, packed
 * and in the wide type, and the result behind them. */
static int64_t dpari_mpi_staged_block(const dpari_mpi_task *task)
{
    int32_t n = task->ctx->comm.size;
    int64_t most = dpari_least(DPARI_MPI_BLOCK, DPARI_MPI_LIMIT) / n;
    return dpari_least(most < 1 ? 1 : most, dpari_mpi_largest(&task->call, n));
}

static void *dpari_mpi_staged_result(const dpari_mpi_task *task)
{
    return dpari_mpi_at(task->memory, dpari_mpi_wide(task->call.type),
                        dpari_mpi_staged_block(task) * task->ctx->comm.size);
}

DPARI_INTERNAL int dpari_mpi_scatter_staged(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int32_t r, n = task->ctx->comm.size, wide = dpari_mpi_wide(call->type);
    int64_t block = dpari_mpi_staged_block(task), begin = 0, packed = 0;
    void *x = dpari_mpi_scratch(task, dpari_mpi_bytes(wide, block * (n + 1)));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, dpari_mpi_largest(call, n), block);
    if (!dpari_mpi_block_counts(task)) {
        return MPI_ERR_NO_MEM;
    }
    for (r = 0; r < n; r++) {
        dpari_mpi_convert(wide, dpari_mpi_at(x, wide, packed), call->type,
                          dpari_mpi_past(call->in, call->type, begin + task->at), task->counts[r]);
        packed += task->counts[r];
        begin += dpari_mpi_piece_of(call, r);
    }
    return dpari_mpi_scatter_call(task, x, dpari_mpi_staged_result(task));
}

DPARI_INTERNAL void dpari_mpi_scatter_staged_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t n = task->counts[task->ctx->comm.rank];
    void *x = dpari_mpi_staged_result(task);
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(dpari_mpi_wide(call->type), x, n, task->ctx->comm.size);
    }
    dpari_mpi_convert(call->type, dpari_mpi_at(call->out, call->type, task->at),
                      dpari_mpi_wide(call->type), x, n);
}

/* ==== mpi/rank_order.c ==== */

/* Reduces by this engine's own messages, in three ways: a small input is gathered by all ranks, a
 * small all-reduce of many ranks doubles the groups that share a sum, and in a large reduction each
 * rank adds one piece of each block. The inputs are stored as rows in the order of ranks and added
 * by the loops of the shared-memory engine (../host/kernel.h), so that all ranks get the same bits.
 * levels.c uses the same functions with the nodes in place of the ranks. */

DPARI_INTERNAL void dpari_mpi_reduce_rows(dpari_mpi_task *task, void *out, int64_t stride,
                                          int64_t n)
{
    const void **rows = task->ctx->rows;
    int32_t r;
    for (r = 0; r < task->ranks; r++) {
        rows[r] = dpari_mpi_past(task->memory, task->call.type, r * stride);
    }
    dpari_kern_reduce(&out, 1, rows, task->ranks, n, task->call.type, task->op, 0);
}

/* True if in a small all-reduce each rank sends a message to each other rank. MPI's own posted
 * collectives take 1.3 to 5 times as long. */
static int32_t dpari_mpi_each_to_each(const dpari_mpi_task *task)
{
    return task->call.kind != DPAR_CALL_REDUCE && task->ranks <= DPARI_MPI_DIRECT && !task->block;
}

DPARI_INTERNAL int dpari_mpi_gathered(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_ctx *context = task->ctx;
    MPI_Datatype type = dpari_mpi_by_bytes(dpar_type_bytes(call->type));
    dpari_mpi_count n = (dpari_mpi_count)task->elements;
    void *x = dpari_mpi_scratch(task, dpari_mpi_bytes(call->type, task->elements * task->ranks));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    task->last = 1;
    if (dpari_mpi_each_to_each(task)) {
        return dpari_mpi_trade_each(task, x, NULL, task->in, 0, task->elements);
    }
    if (call->kind == DPAR_CALL_ALL_REDUCE) {
        return DPARI_MPI_DO(task, MPI_Allgather, MPI_Iallgather, call->in, n, type, x, n, type,
                            context->main);
    }
    return DPARI_MPI_DO(task, MPI_Gather, MPI_Igather, call->in, n, type, x, n, type, call->root,
                        context->main);
}

DPARI_INTERNAL void dpari_mpi_gathered_land(dpari_mpi_task *task)
{
    if (dpari_mpi_has_result(task)) {
        dpari_mpi_reduce_rows(task, task->out, task->elements, task->elements);
    }
}

/* ---- a small all-reduce of many ranks: recursive doubling ----
 *
 * Let p = 2^k be the largest power of two up to n. In round 0 each rank from p on sends its input
 * to a rank below p. In rounds i = 1 to k, each rank below p exchanges its partial sum with the
 * rank whose number differs in bit i - 1, so that after round i each group of 2^i ranks has its
 * sum. In round k + 1 each rank from p on gets the result from the rank to which it sent. Both
 * ranks of a pair add in rank order, so that all end with the same bits. */

/* Returns k, the logarithm of the largest power of two up to n. */
static int32_t dpari_mpi_rounds(int32_t n)
{
    int32_t k = 0;
    while (2 << k <= n) {
        k++;
    }
    return k;
}

/* Returns the rank with which this one exchanges in this round, or -1. Sets *sends and *gets to 1
 * if this rank sends and receives, otherwise to 0. */
static int32_t dpari_mpi_partner(const dpari_mpi_task *task, int32_t *sends, int32_t *gets)
{
    const int32_t k = dpari_mpi_rounds(task->ranks), p = 1 << k, spare = task->me >= p;
    const int32_t first = task->round == 0, last = task->round == k + 1;
    int32_t other = task->me - p;
    if (!spare) {
        other = first || last ? task->me + p : task->me ^ 1 << (task->round - 1);
    }
    *sends = spare ? first : !first;
    *gets = spare ? last : !last;
    return other < task->ranks && (!spare || first || last) ? other : -1;
}

DPARI_INTERNAL int dpari_mpi_doubling(dpari_mpi_task *task)
{
    const int64_t bytes = dpari_mpi_bytes(task->call.type, task->elements);
    const int32_t k = dpari_mpi_rounds(task->ranks), spare = task->ranks - (1 << k);
    int32_t other, sends, gets;
    int64_t take, give;
    void *to = dpari_mpi_scratch(task, bytes);
    if (to == NULL || !dpari_mpi_reserve(task, 2)) {
        return MPI_ERR_NO_MEM;
    }
    if (task->round == 0) {
        dpari_mpi_copy(task->out, task->in, bytes);
        task->round = spare == 0;
    }
    task->last = task->round == k + (spare > 0);
    other = dpari_mpi_partner(task, &sends, &gets);
    to = task->round == k + 1 ? task->out : to;
    if (other < 0) {
        return MPI_SUCCESS;
    }
    take = gets ? task->elements : 0;
    give = sends ? task->elements : 0;
    return dpari_mpi_trade(task, other, to, take, task->out, give);
}

DPARI_INTERNAL void dpari_mpi_doubling_land(dpari_mpi_task *task)
{
    const int32_t k = dpari_mpi_rounds(task->ranks);
    int32_t sends, gets, other = dpari_mpi_partner(task, &sends, &gets);
    if (other >= 0 && gets && task->round <= k) {
        const void *both[2];
        both[other < task->me] = task->out;
        both[other > task->me] = task->memory;
        dpari_kern_reduce(&task->out, 1, both, 2, task->elements, task->call.type,
                          task->op == DPAR_AVG ? DPAR_SUM : task->op, 0);
    }
    if (task->op == DPAR_AVG && task->round == k && task->me < 1 << k) {
        dpari_mpi_divide(task->call.type, task->out, task->elements, task->ranks);
    }
    task->round++;
}

/* ---- a large reduction: each rank adds a piece ---- */

DPARI_INTERNAL int64_t dpari_mpi_cut(int64_t len, int32_t r, int32_t n)
{
    return r >= n ? len : len / n * r + dpari_least(r, len % n);
}

/* Returns the distance, in elements, between the ranks' inputs for this rank's piece in the scratch
 * memory. Behind them there is space for the result. */
static int64_t dpari_mpi_stride(const dpari_mpi_task *task)
{
    return task->len / task->ranks + 1;
}

/* Returns where this rank's reduced piece of the block is stored. */
static void *dpari_mpi_ordered_result(const dpari_mpi_task *task)
{
    if (dpari_mpi_has_result(task)) {
        return dpari_mpi_at(task->out, task->call.type,
                            task->at + dpari_mpi_cut(task->len, task->me, task->ranks));
    }
    return dpari_mpi_at(task->memory, task->call.type, dpari_mpi_stride(task) * task->ranks);
}

/* Runs the first half of a block: each rank receives its piece from all ranks. */
static int dpari_mpi_ordered_out(dpari_mpi_task *task)
{
    const int32_t n = task->ranks, type = task->call.type;
    int64_t own = dpari_mpi_cut(task->len, task->me + 1, n) - dpari_mpi_cut(task->len, task->me, n);
    int32_t r;
    int code = MPI_SUCCESS;
    for (r = 0; r < n && code == MPI_SUCCESS; r++) {
        int64_t cut = dpari_mpi_cut(task->len, r, n),
                len = dpari_mpi_cut(task->len, r + 1, n) - cut;
        const void *from = dpari_mpi_past(task->in, type, task->at + cut);
        void *row = dpari_mpi_at(task->memory, type, r * dpari_mpi_stride(task));
        if (r == task->me) {
            dpari_mpi_copy(row, from, dpari_mpi_bytes(type, len));
        } else {
            code = dpari_mpi_trade(task, r, row, own, from, len);
        }
    }
    return code;
}

/* Runs the second half of a block: the reduced pieces are sent to all ranks, or to the root. */
static int dpari_mpi_ordered_back(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const int32_t n = task->ranks, here = dpari_mpi_has_result(task);
    int64_t own = dpari_mpi_cut(task->len, task->me + 1, n) - dpari_mpi_cut(task->len, task->me, n);
    void *mine = dpari_mpi_ordered_result(task);
    int32_t r;
    int code = MPI_SUCCESS;
    for (r = 0; r < n && code == MPI_SUCCESS; r++) {
        int64_t cut = dpari_mpi_cut(task->len, r, n),
                len = dpari_mpi_cut(task->len, r + 1, n) - cut;
        const int32_t wants = call->kind != DPAR_CALL_REDUCE || r == call->root;
        if (r != task->me) {
            void *to = here ? dpari_mpi_at(task->out, call->type, task->at + cut) : NULL;
            const int64_t take = here ? len : 0;
            const int64_t give = wants ? own : 0;
            code = dpari_mpi_trade(task, r, to, take, mine, give);
        }
    }
    return code;
}

DPARI_INTERNAL int dpari_mpi_ordered(dpari_mpi_task *task)
{
    int64_t most = dpari_least(task->elements, DPARI_MPI_BLOCK);
    const int32_t n = task->ranks;
    if (task->sharing) {
        task->last = task->at + task->len >= task->elements;
        return dpari_mpi_ordered_back(task);
    }
    if (!dpari_mpi_reserve(task, 2 * n) ||
        dpari_mpi_scratch(task, dpari_mpi_bytes(task->call.type, (most / n + 1) * (n + 1))) ==
            NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, task->elements, DPARI_MPI_BLOCK);
    task->last = 0;
    return dpari_mpi_ordered_out(task);
}

DPARI_INTERNAL void dpari_mpi_ordered_land(dpari_mpi_task *task)
{
    if (!task->sharing) {
        dpari_mpi_reduce_rows(task, dpari_mpi_ordered_result(task), dpari_mpi_stride(task),
                              dpari_mpi_cut(task->len, task->me + 1, task->ranks) -
                                  dpari_mpi_cut(task->len, task->me, task->ranks));
    }
    task->sharing = !task->sharing;
}

static int64_t dpari_mpi_ordered_block(const dpari_mpi_task *task)
{
    int32_t n = task->ctx->comm.size;
    int64_t most = DPARI_MPI_BLOCK / n;
    return dpari_least(most < 1 ? 1 : most, dpari_mpi_largest(&task->call, n));
}

DPARI_INTERNAL int dpari_mpi_ordered_scatter(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int32_t r, n = task->ctx->comm.size, me = task->ctx->comm.rank, code = MPI_SUCCESS;
    int64_t block = dpari_mpi_ordered_block(task), begin = 0, own;
    if (!dpari_mpi_reserve(task, 2 * n) ||
        dpari_mpi_scratch(task, dpari_mpi_bytes(call->type, block * n)) == NULL) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_advance(task, dpari_mpi_largest(call, n), block);
    own = dpari_mpi_clamp(dpari_mpi_piece_of(call, me), task->at, task->len);
    for (r = 0; r < n && code == MPI_SUCCESS; r++) {
        int64_t len = dpari_mpi_clamp(dpari_mpi_piece_of(call, r), task->at, task->len);
        const void *from = dpari_mpi_past(call->in, call->type, begin + task->at);
        void *row = dpari_mpi_at(task->memory, call->type, r * block);
        begin += dpari_mpi_piece_of(call, r);
        if (r == me) {
            dpari_mpi_copy(row, from, dpari_mpi_bytes(call->type, len));
        } else {
            code = dpari_mpi_trade(task, r, row, own, from, len);
        }
    }
    return code;
}

DPARI_INTERNAL void dpari_mpi_ordered_scatter_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int64_t own =
        dpari_mpi_clamp(dpari_mpi_piece_of(call, task->ctx->comm.rank), task->at, task->len);
    dpari_mpi_reduce_rows(task, dpari_mpi_at(call->out, call->type, task->at),
                          dpari_mpi_ordered_block(task), own);
}

/* ==== mpi/levels.c ==== */

/* Runs collectives by levels: each operation is a list of calls in the node's memory, before and
 * after messages between the ranks of a lane.
 *
 * dpari_mpi_levels_step posts one step after the other. FIRST and LAST are calls of the
 * shared-memory engine on the communicator of the node (`inside`), and BETWEEN uses the messages
 * and reductions of task_messages.c and rank_order.c, with the ranks of the lane in place of all
 * ranks. DPARI_MPI_TRADES uses BETWEEN alone, with all ranks as one lane. The sections below
 * describe the steps of each operation. */

/* Breaks the communicator because an operation in the node's memory has failed. Its message already
 * uses the rank numbers of ctx (dpari_group_call). */
static void dpari_mpi_inside_failed(dpari_mpi_task *task)
{
    dpari_mpi_hear_why(task->ctx);
    (void)dpari_mpi_break(task->ctx, task->inside.status, task->ctx->level.inside->why.text, 1);
}

DPARI_INTERNAL int dpari_mpi_post_inside(dpari_mpi_task *task, const dpar_call *call)
{
    const dpar_status status = dpari_post(task->ctx->level.inside, call, &task->inside);
    task->inside_on = status >= 0;
    if (status < 0) {
        task->inside.status = status;
        dpari_mpi_inside_failed(task);
    }
    return MPI_SUCCESS;
}

DPARI_INTERNAL int32_t dpari_mpi_inside_done(dpari_mpi_task *task)
{
    const dpar_status status = dpar_test(&task->inside);
    task->inside_on = status == DPAR_MORE;
    if (status < 0) {
        task->inside.status = status;
        dpari_mpi_inside_failed(task);
    }
    return status == DPAR_OK;
}

DPARI_INTERNAL int dpari_mpi_within(dpari_mpi_task *task)
{
    dpar_call call = task->call;
    task->last = 1;
    if (dpari_kind_sends(call.kind)) {
        call.root = task->ctx->level.lane_of[call.root];
    } else if (call.kind == DPAR_CALL_BARRIER) {
        call.root = 0; /* the barrier of a split has DPARI_SPLIT as its root */
    }
    return dpari_mpi_post_inside(task, &call);
}

DPARI_INTERNAL dpar_call dpari_mpi_inside_call(const dpari_mpi_task *task, int32_t kind,
                                               const void *in, void *out, int64_t count)
{
    dpar_call call;
    memset(&call, 0, sizeof call);
    call.kind = kind;
    call.type = task->call.type;
    call.op = dpari_kind_reduces(kind) ? task->op : 0;
    call.tag = task->call.tag;
    call.in = in;
    call.out = out;
    call.count = count;
    return call;
}

/* ---- the parts of lanes ---- */

/* True if one lane carries everything. A broadcast has a limit 4 times as high as an all-reduce. */
static int32_t dpari_mpi_by_first(const dpari_mpi_task *task)
{
    const int64_t bytes = dpari_mpi_bytes(task->call.type, task->call.count);
    return task->path == DPARI_MPI_TRADES || task->ctx->level.lanes == 1 ||
           bytes < (task->call.kind == DPAR_CALL_BROADCAST ? 4 : 1) * task->ctx->world->lanes_from;
}

/* Returns the number of lanes that carry parts of the call's array. dpari_mpi_lane returns this
 * rank's lane. */
static int32_t dpari_mpi_carriers(const dpari_mpi_task *task)
{
    return dpari_mpi_by_first(task) ? 1 : task->ctx->level.lanes;
}

static int32_t dpari_mpi_lane(const dpari_mpi_task *task)
{
    return task->path == DPARI_MPI_LEVELS ? task->ctx->level.inside->rank : 0;
}

/* True if the root of a broadcast itself sends to the other nodes, which then need not wait for
 * other ranks of its node. */
static int32_t dpari_mpi_root_sends(const dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    return task->call.kind == DPAR_CALL_BROADCAST && task->path == DPARI_MPI_LEVELS &&
           dpari_mpi_by_first(task) && levels->lane_of[task->call.root] < levels->lanes;
}

/* Returns the lane that carries small operations: for a broadcast that of the root, otherwise the
 * first. */
static int32_t dpari_mpi_lead(const dpari_mpi_task *task)
{
    return dpari_mpi_root_sends(task) ? task->ctx->level.lane_of[task->call.root] : 0;
}

/* Returns this lane's part of call.out, and sets *elements to its length: 0 for ranks that carry
 * nothing. */
static void *dpari_mpi_part(const dpari_mpi_task *task, int64_t *elements)
{
    const int32_t n = dpari_mpi_carriers(task), own = dpari_mpi_lane(task),
                  lead = dpari_mpi_lead(task);
    int64_t begin;
    int32_t lane = own;
    if (own == lead) { /* the lane that carries small operations comes first */
        lane = 0;
    } else if (own < lead) {
        lane = own + 1;
    }
    begin = dpari_mpi_cut(task->call.count, lane, n);
    *elements = dpari_mpi_cut(task->call.count, lane + 1, n) - begin;
    return dpari_mpi_at(task->call.out, task->call.type, begin);
}

/* Sets pieces[i] to the elements of the part that the node's i-th rank carries. Returns 0 if there
 * is no memory. */
static int32_t dpari_mpi_parts(dpari_mpi_task *task)
{
    const int32_t ranks = task->ctx->level.inside->size, n = dpari_mpi_carriers(task);
    int32_t i;
    if (task->pieces == NULL) {
        task->pieces = (int64_t *)malloc((size_t)ranks * 2 * sizeof *task->pieces);
    }
    for (i = 0; task->pieces != NULL && i < ranks; i++) {
        task->pieces[i] =
            dpari_mpi_cut(task->call.count, i + 1, n) - dpari_mpi_cut(task->call.count, i, n);
    }
    return task->pieces != NULL;
}

/* Distributes all parts of call.out to all ranks of the node. */
static int dpari_mpi_join_parts(dpari_mpi_task *task)
{
    dpar_call call;
    int64_t n;
    void *part = dpari_mpi_part(task, &n);
    if (dpari_mpi_by_first(task)) {
        call = dpari_mpi_inside_call(task, DPAR_CALL_BROADCAST, task->call.out, task->call.out,
                                     task->call.count);
        call.root = dpari_mpi_lead(task);
        return dpari_mpi_post_inside(task, &call);
    }
    if (!dpari_mpi_parts(task)) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_GATHER, part, task->call.out, n);
    call.variable_counts = 1;
    call.out_count = task->pieces;
    return dpari_mpi_post_inside(task, &call);
}

/* ---- all-reduce ---- */

/* Computes the node's sum of each part on the rank that carries it. */
static int dpari_mpi_sum_inside(dpari_mpi_task *task)
{
    dpar_call call;
    int64_t n;
    void *part = dpari_mpi_part(task, &n);
    if (dpari_mpi_by_first(task)) {
        call = dpari_mpi_inside_call(task, DPAR_CALL_REDUCE, task->call.in, task->call.out,
                                     task->call.count);
        return dpari_mpi_post_inside(task, &call);
    }
    if (!dpari_mpi_parts(task)) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_REDUCE_SCATTER, task->call.in, part, n);
    call.variable_counts = 1;
    call.in_count = task->pieces;
    return dpari_mpi_post_inside(task, &call);
}

/* Turns a small sum of 16-bit floats into a sum of f32, which dpari_mpi_levels_land rounds at the
 * end. Returns 0 if there is no memory. */
static int32_t dpari_mpi_take_wide(dpari_mpi_task *task)
{
    const int64_t n = task->call.count;
    task->wide = (float *)malloc((size_t)n * 2 * sizeof *task->wide);
    if (task->wide == NULL) {
        return 0;
    }
    dpari_mpi_convert(DPAR_F32, task->wide, task->call.type, task->call.in, n);
    task->half = task->call.type;
    task->half_out = task->call.out;
    task->call.type = DPAR_F32;
    task->call.in = task->wide;
    task->call.out = task->wide + n;
    return 1;
}

/* Returns the path by which nodes reduce, which depends on their number and on the bytes. It must
 * not depend on a measurement, because it determines the order of the additions. */
static int32_t dpari_mpi_between_path(const dpari_mpi_task *task)
{
    const int64_t lanes = task->path == DPARI_MPI_LEVELS ? task->ctx->level.lanes : 1;
    const int64_t bytes = dpari_mpi_bytes(task->call.type, task->call.count) / lanes;
    if (bytes >= DPARI_MPI_LANES && bytes / task->ranks >= DPARI_MPI_WORTH) {
        return DPARI_MPI_ORDERED;
    }
    return task->ranks <= DPARI_MPI_DIRECT ? DPARI_MPI_GATHERED : DPARI_MPI_DOUBLING;
}

static int dpari_mpi_sum_between(dpari_mpi_task *task)
{
    const int32_t path = dpari_mpi_between_path(task);
    if (path == DPARI_MPI_ORDERED) {
        return dpari_mpi_ordered(task);
    }
    return path == DPARI_MPI_GATHERED ? dpari_mpi_gathered(task) : dpari_mpi_doubling(task);
}

static void dpari_mpi_sum_between_land(dpari_mpi_task *task)
{
    const int32_t path = dpari_mpi_between_path(task);
    if (path == DPARI_MPI_ORDERED) {
        dpari_mpi_ordered_land(task);
    } else if (path == DPARI_MPI_GATHERED) {
        dpari_mpi_gathered_land(task);
    } else {
        dpari_mpi_doubling_land(task);
    }
    if (task->ended && task->call.op == DPAR_AVG) {
        dpari_mpi_divide(task->call.type, task->out, task->elements, task->ctx->comm.size);
    }
}

/* ---- broadcast ----
 *
 * A small array: BETWEEN sends it from the root to the ranks of its lane, by a tree, and LAST sends
 * it in the nodes. A large array: FIRST sends it in the root's node, BETWEEN sends each lane's part
 * from there to the other nodes, and LAST distributes the parts in these nodes. */

static int dpari_mpi_spread_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpar_call call;
    if (levels->node_of[task->call.root] != levels->node) {
        return MPI_SUCCESS;
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_BROADCAST, task->call.out, task->call.out,
                                 task->call.count);
    call.root = levels->lane_of[task->call.root];
    return dpari_mpi_post_inside(task, &call);
}

/* Runs one round of the tree: each of the first 2^round members, counted from the root's, has the
 * data and sends it to a member that does not have it yet. */
static int dpari_mpi_spread_between(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t n = task->ranks, have = 1 << task->round;
    const int32_t root =
        task->path == DPARI_MPI_LEVELS ? levels->node_of[task->call.root] : task->call.root;
    const int32_t at = (task->me - root + n) % n;
    task->last = 2 * have >= n;
    if (!dpari_mpi_reserve(task, 1)) {
        return MPI_ERR_NO_MEM;
    }
    if (at < have && at + have < n) {
        return dpari_mpi_trade(task, (task->me + have) % n, NULL, 0, task->out, task->elements);
    }
    return at >= have && at < 2 * have ? dpari_mpi_trade(task, (task->me - have + n) % n, task->out,
                                                         task->elements, NULL, 0)
                                       : MPI_SUCCESS;
}

/* ---- barrier ---- */

static int dpari_mpi_meet_inside(dpari_mpi_task *task)
{
    dpar_call call = dpari_mpi_inside_call(task, DPAR_CALL_BARRIER, NULL, NULL, 0);
    call.type = DPAR_TYPE_NONE;
    return dpari_mpi_post_inside(task, &call);
}

/* ---- all-gather, if all nodes have the same number of ranks ----
 *
 * BETWEEN gathers in each lane the pieces of its ranks. LAST has one leg for each node, in which
 * this node gathers the pieces of that node from its lanes. */

static int dpari_mpi_gather_between(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    task->last = 1;
    return dpari_mpi_trade_each(task, call->out, task->peer, call->in, 0, call->count);
}

static int dpari_mpi_gather_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t n = levels->inside->size, *member = levels->member + levels->begin[task->leg];
    dpar_call call;
    int32_t i;
    if (task->pieces == NULL) {
        task->pieces = (int64_t *)malloc((size_t)n * 2 * sizeof *task->pieces);
    }
    for (i = 0; task->pieces != NULL && i < n; i++) {
        task->pieces[i] = task->call.count;
        task->pieces[n + i] = member[i] * task->call.count;
    }
    if (task->pieces == NULL) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(
        task, DPAR_CALL_ALL_GATHER,
        dpari_mpi_at(task->call.out, task->call.type, task->pieces[n + dpari_mpi_lane(task)]),
        task->call.out, task->call.count);
    call.variable_counts = 1;
    call.out_count = task->pieces;
    call.out_first = task->pieces + n;
    task->leg++;
    task->last = task->leg == levels->nodes;
    return dpari_mpi_post_inside(task, &call);
}

/* ---- all-to-all ---- */

static int dpari_mpi_all_between(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    const void *in = dpari_mpi_apart(task, call->in, call->out,
                                     dpari_mpi_bytes(call->type, call->count * task->ranks));
    task->last = 1;
    if (in == NULL) {
        return MPI_ERR_NO_MEM;
    }
    return dpari_mpi_trade_each(task, call->out, NULL, in, call->count, call->count);
}

/* ---- a small all-to-all, if all nodes have the same number of ranks ----
 *
 * FIRST collects on each rank the pieces that its node sends to the ranks of its lane. BETWEEN
 * sends one message to each of those ranks, with the pieces from all ranks of the node, in place of
 * a message from each rank to each rank. */

/* Copies the pieces of a table with these rows and columns to its transpose. */
static void dpari_mpi_transpose(void *to, const void *from, int64_t piece, int32_t rows,
                                int32_t columns)
{
    int32_t i, k;
    for (i = 0; i < rows; i++) {
        for (k = 0; k < columns; k++) {
            dpari_mpi_copy((char *)to + (k * (int64_t)rows + i) * piece,
                           (const char *)from + (i * (int64_t)columns + k) * piece, piece);
        }
    }
}

static int dpari_mpi_deal_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int64_t piece = dpari_mpi_bytes(task->call.type, task->call.count);
    const int32_t n = task->ctx->comm.size, lanes = levels->lanes;
    char *deal = (char *)dpari_mpi_scratch(task, 2 * n * piece);
    dpar_call call;
    int32_t i;
    if (deal == NULL) {
        return MPI_ERR_NO_MEM;
    }
    for (i = 0; i < n; i++) { /* [lane][node] */
        dpari_mpi_copy(deal + (i % lanes * (int64_t)levels->nodes + i / lanes) * piece,
                       (const char *)task->call.in + levels->member[i] * piece, piece);
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_TO_ALL, deal, deal + n * piece,
                                 task->call.count * levels->nodes);
    return dpari_mpi_post_inside(task, &call);
}

static int dpari_mpi_deal_between(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int64_t piece = dpari_mpi_bytes(task->call.type, task->call.count),
                  n = task->call.count * levels->lanes;
    char *dealt = (char *)task->memory + task->ctx->comm.size * piece;
    task->last = 1;
    dpari_mpi_transpose(task->memory, dealt, piece, levels->lanes,
                        levels->nodes); /* [node][lane] */
    return dpari_mpi_trade_each(task, dealt, NULL, task->memory, n, n);
}

static void dpari_mpi_deal_land(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int64_t piece = dpari_mpi_bytes(task->call.type, task->call.count);
    const int32_t n = task->ctx->comm.size;
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_mpi_copy((char *)task->call.out + levels->member[i] * piece,
                       (const char *)task->memory + (n + i) * piece, piece);
    }
}

/* ---- reduce-scatter, if all nodes have the same number of consecutive ranks ----
 *
 * FIRST has one leg for each node, in which the ranks of this node add up their pieces for that
 * node, one piece for each lane. BETWEEN sends each sum to its node, where the sums of all nodes
 * are added. */

static int dpari_mpi_scatter_inside(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const dpar_call *of = &task->call;
    dpar_call call;
    void *x = dpari_mpi_scratch(task, dpari_mpi_bytes(of->type, of->count * 2 * levels->nodes));
    if (x == NULL) {
        return MPI_ERR_NO_MEM;
    }
    call = dpari_mpi_inside_call(
        task, DPAR_CALL_REDUCE_SCATTER,
        dpari_mpi_past(of->in, of->type, levels->begin[task->leg] * of->count),
        dpari_mpi_at(x, of->type, (levels->nodes + task->leg) * of->count), of->count);
    task->leg++;
    return dpari_mpi_post_inside(task, &call);
}

static int dpari_mpi_scatter_between(dpari_mpi_task *task)
{
    const int64_t n = task->call.count;
    const void *from = dpari_mpi_past(task->memory, task->call.type, task->ranks * n);
    task->last = 1;
    return dpari_mpi_trade_each(task, task->memory, NULL, from, n, n);
}

static void dpari_mpi_scatter_between_land(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    dpari_mpi_reduce_rows(task, call->out, call->count, call->count);
    if (call->op == DPAR_AVG) {
        dpari_mpi_divide(call->type, call->out, call->count, task->ctx->comm.size);
    }
}

/* ---- the three steps ---- */

static int dpari_mpi_level_first(dpari_mpi_task *task)
{
    switch (task->call.kind) {
    case DPAR_CALL_BARRIER: return dpari_mpi_meet_inside(task);
    case DPAR_CALL_ALL_REDUCE: return dpari_mpi_sum_inside(task);
    case DPAR_CALL_BROADCAST: return dpari_mpi_spread_inside(task);
    case DPAR_CALL_REDUCE_SCATTER: return dpari_mpi_scatter_inside(task);
    case DPAR_CALL_ALL_TO_ALL: return dpari_mpi_deal_inside(task);
    default: return MPI_SUCCESS;
    }
}

static int dpari_mpi_level_between(dpari_mpi_task *task)
{
    switch (task->call.kind) {
    case DPAR_CALL_ALL_GATHER: return dpari_mpi_gather_between(task);
    case DPAR_CALL_ALL_TO_ALL:
        return task->path == DPARI_MPI_LEVELS ? dpari_mpi_deal_between(task)
                                              : dpari_mpi_all_between(task);
    case DPAR_CALL_BROADCAST: return dpari_mpi_spread_between(task);
    case DPAR_CALL_REDUCE_SCATTER: return dpari_mpi_scatter_between(task);
    default: return dpari_mpi_sum_between(task);
    }
}

static int dpari_mpi_level_last(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    task->last = 1;
    if (task->path == DPARI_MPI_TRADES) {
        return MPI_SUCCESS;
    }
    switch (task->call.kind) {
    case DPAR_CALL_BARRIER: return dpari_mpi_meet_inside(task);
    case DPAR_CALL_ALL_GATHER: return dpari_mpi_gather_inside(task);
    case DPAR_CALL_BROADCAST:
        if (levels->node_of[task->call.root] == levels->node && !dpari_mpi_root_sends(task)) {
            return MPI_SUCCESS; /* FIRST has distributed the data in the root's node */
        }
        return dpari_mpi_join_parts(task);
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_REDUCE_SCATTER: return MPI_SUCCESS;
    default: return dpari_mpi_join_parts(task);
    }
}

/* Sets the data that this rank sends between nodes: its part of an all-reduce or broadcast, one
 * number in a barrier, otherwise pieces. */
static void dpari_mpi_level_begin_between(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int64_t n = task->call.count;
    void *part = task->call.out;
    if (task->call.kind == DPAR_CALL_ALL_REDUCE || task->call.kind == DPAR_CALL_BROADCAST) {
        part = dpari_mpi_part(task, &n);
    } else if (task->call.kind == DPAR_CALL_BARRIER) {
        task->call.type = DPAR_I64;
        part = task->check;
        n = dpari_mpi_lane(task) == 0;
    }
    if (task->path == DPARI_MPI_LEVELS) {
        dpari_mpi_among(task, levels->lane, levels->nodes, levels->node, part, part, n);
    } else {
        dpari_mpi_among(task, NULL, task->ctx->comm.size, task->ctx->comm.rank, part, part, n);
    }
}

/* Returns the number of legs of FIRST. */
static int32_t dpari_mpi_legs(const dpari_mpi_task *task)
{
    if (task->path == DPARI_MPI_TRADES || task->call.kind == DPAR_CALL_ALL_GATHER ||
        dpari_mpi_root_sends(task)) {
        return 0;
    }
    return task->call.kind == DPAR_CALL_REDUCE_SCATTER ? task->ctx->level.nodes : 1;
}

DPARI_INTERNAL int dpari_mpi_levels_step(dpari_mpi_task *task)
{
    int code;
    if (task->level == DPARI_MPI_FIRST && task->leg < dpari_mpi_legs(task)) {
        task->leg += task->call.kind != DPAR_CALL_REDUCE_SCATTER;
        if (task->call.kind == DPAR_CALL_ALL_REDUCE && dpari_mpi_is_half(task->call.type) &&
            !dpari_mpi_take_wide(task)) {
            return MPI_ERR_NO_MEM;
        }
        return dpari_mpi_level_first(task);
    }
    if (task->level == DPARI_MPI_FIRST) {
        task->level = DPARI_MPI_BETWEEN;
        task->leg = 0;
        dpari_mpi_level_begin_between(task);
        task->ended = task->elements == 0; /* this rank carries nothing */
    }
    if (task->level == DPARI_MPI_BETWEEN && !task->ended) {
        code = dpari_mpi_level_between(task);
        task->ended = task->last;
        task->last = 0;
        return code;
    }
    task->level = DPARI_MPI_LAST;
    return dpari_mpi_level_last(task);
}

DPARI_INTERNAL void dpari_mpi_levels_land(dpari_mpi_task *task)
{
    if (task->level == DPARI_MPI_LAST && task->half) {
        dpari_mpi_convert(task->half, task->half_out, DPAR_F32, task->call.out, task->call.count);
    }
    if (task->level != DPARI_MPI_BETWEEN) {
        return;
    }
    switch (task->call.kind) {
    case DPAR_CALL_ALL_GATHER: break;
    case DPAR_CALL_ALL_TO_ALL:
        if (task->path == DPARI_MPI_LEVELS) {
            dpari_mpi_deal_land(task);
        }
        break;
    case DPAR_CALL_BROADCAST: task->round++; break;
    case DPAR_CALL_REDUCE_SCATTER: dpari_mpi_scatter_between_land(task); break;
    default: dpari_mpi_sum_between_land(task); break;
    }
}

/* ==== mpi/all_to_all_v.c ==== */

/* Runs an all_to_all_v by nodes, in the three legs that all_to_all_v.h describes.
 *
 * The offsets of the user's pieces are computed on the first leg and kept in task->pieces. The
 * slots, the pieces that do not fit into them and the messages are parts of one block of scratch
 * memory, whose layout dpari_mpi_deals_of computes again for each leg from numbers that do not
 * change. Called by progress.c. */

typedef struct dpari_mpi_deals {
    int32_t ranks;        /* number of ranks of this node */
    int32_t served;       /* the most ranks of other nodes for which a rank of this node carries
                             pieces */
    int64_t most;         /* the most elements of a small piece */
    int64_t room, slot;   /* bytes for the pieces in a slot, and of the whole slot */
    int64_t message;      /* the most bytes of a message for each rank whose pieces are in it */
    char *give, *got;     /* [ranks] slots that this rank passes and receives */
    char *spill, *spilt;  /* small pieces that do not fit into slots: those that are passed and
                             received */
    char *out, *in;       /* the messages that are sent, [served][ranks], and received, [ranks of
                             other nodes] */
    int64_t *begin_in;    /* [size] offsets of the pieces in the user's `in` */
    int64_t *begin_out;   /* [size] and in the user's `out` */
    int64_t *count, *at;  /* [ranks] counts and offsets of the data that is passed in the node, */
    int64_t *counts, *to; /* [ranks] and of the data that is received */
} dpari_mpi_deals;

static int32_t dpari_mpi_deal_ranks(const dpari_mpi_levels *levels, int32_t node)
{
    return levels->begin[node + 1] - levels->begin[node];
}

/* Returns the number, among the ranks of `node`, of the one that carries the node's pieces for
 * `rank`. */
static int32_t dpari_mpi_carrier(const dpari_mpi_levels *levels, int32_t node, int32_t rank)
{
    return levels->lane_of[rank] % dpari_mpi_deal_ranks(levels, node);
}

/* Returns the most ranks of other nodes for which a rank of this node carries pieces. */
static int32_t dpari_mpi_deal_served(const dpari_mpi_levels *levels)
{
    const int32_t ranks = dpari_mpi_deal_ranks(levels, levels->node);
    int32_t k, n = 0;
    for (k = 0; k < levels->nodes; k++) {
        n += k == levels->node ? 0 : (dpari_mpi_deal_ranks(levels, k) - 1) / ranks + 1;
    }
    return n;
}

/* Allocates the memory on the first call, and sets the fields of `deals`, which point into it.
 * Returns 0 if there is no memory. */
static int32_t dpari_mpi_deals_of(dpari_mpi_task *task, dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t n = task->ctx->comm.size;
    const int64_t bytes = task->ctx->world->dealt[1];
    int64_t other;
    deals->ranks = dpari_mpi_deal_ranks(levels, levels->node);
    deals->served = dpari_mpi_deal_served(levels);
    deals->most = bytes / dpar_type_bytes(task->call.type);
    deals->room = dpari_least(DPARI_MPI_SLOT_MOST, DPARI_MPI_SLOT / deals->ranks / 8 * 8);
    deals->slot = 8 * (1 + (int64_t)deals->served) + deals->room;
    deals->message = 8 + bytes;
    other = n - deals->ranks;
    if (task->pieces == NULL) {
        task->pieces =
            (int64_t *)malloc(((size_t)n * 2 + (size_t)deals->ranks * 4) * sizeof *task->pieces);
    }
    deals->give = (char *)dpari_mpi_scratch(
        task, 2 * deals->ranks * deals->slot + other * (bytes + deals->message) +
                  (int64_t)deals->served * deals->ranks * (bytes + deals->message));
    if (task->pieces == NULL || deals->give == NULL) {
        return 0;
    }
    deals->got = deals->give + deals->ranks * deals->slot;
    deals->spill = deals->got + deals->ranks * deals->slot;
    deals->spilt = deals->spill + other * bytes;
    deals->out = deals->spilt + (int64_t)deals->served * deals->ranks * bytes;
    deals->in = deals->out + (int64_t)deals->served * deals->ranks * deals->message;
    deals->begin_in = task->pieces;
    deals->begin_out = deals->begin_in + n;
    deals->count = deals->begin_out + n;
    deals->at = deals->count + deals->ranks;
    deals->counts = deals->at + deals->ranks;
    deals->to = deals->counts + deals->ranks;
    return 1;
}

/* Returns the numbers at the beginning of slot i: a flag that is 1 if any slot of its sender is too
 * small, then counts. */
static int64_t *dpari_mpi_slot_counts(const dpari_mpi_deals *deals, char *slots, int32_t i)
{
    return (int64_t *)(void *)(slots + i * deals->slot);
}

static char *dpari_mpi_slot_pieces(const dpari_mpi_deals *deals, char *slots, int32_t i)
{
    return slots + (i + 1) * deals->slot - deals->room;
}

/* Returns the bytes of a piece of n elements if it is small, otherwise 0. */
static int64_t dpari_mpi_small_bytes(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                     int64_t n)
{
    return n > deals->most ? 0 : dpari_mpi_bytes(task->call.type, n);
}

/* Computes the offsets of the pieces that this rank sends and of those that it receives. */
static void dpari_mpi_deal_begins(const dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpar_call *call = &task->call;
    int64_t in = 0, out = 0;
    int32_t r;
    for (r = 0; r < task->ctx->comm.size; r++) {
        deals->begin_in[r] = call->in_first != NULL ? call->in_first[r] : in;
        deals->begin_out[r] = call->out_first != NULL ? call->out_first[r] : out;
        in += call->in_count[r];
        out += call->out_count[r];
    }
}

/* Copies the small pieces to `to`: those that the node's i-th rank carries are stored from at[i]
 * on. */
static void dpari_mpi_deal_pack(const dpari_mpi_task *task, const dpari_mpi_deals *deals, char *to,
                                int64_t *at)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int32_t r;
    for (r = 0; r < task->ctx->comm.size; r++) {
        if (levels->node_of[r] != levels->node) {
            const int32_t i = dpari_mpi_carrier(levels, levels->node, r);
            const int64_t bytes = dpari_mpi_small_bytes(task, deals, task->call.in_count[r]);
            dpari_mpi_copy(to + at[i],
                           dpari_mpi_past(task->call.in, task->call.type, deals->begin_in[r]),
                           bytes);
            at[i] += bytes;
        }
    }
}

/* Runs leg 0: passes the slots. */
static int dpari_mpi_deal_slots(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    dpar_call call;
    int32_t r, i, lacks = 0;
    if (task->call.in == task->call.out) { /* not in scratch memory, which the slots use */
        task->aside = (char *)malloc((size_t)dpari_mpi_aside_bytes(task) + 1);
        if (!dpari_mpi_set_aside(task, task->aside)) {
            return MPI_ERR_NO_MEM;
        }
    }
    if (!dpari_mpi_deals_of(task, &d)) {
        return MPI_ERR_NO_MEM;
    }
    dpari_mpi_deal_begins(task, &d);
    for (i = 0; i < d.ranks; i++) { /* ranks that carry for fewer leave some counts unset */
        memset(dpari_mpi_slot_counts(&d, d.give, i), 0, (size_t)(d.slot - d.room));
    }
    memset(d.count, 0, (size_t)d.ranks * sizeof *d.count); /* bytes */
    memset(d.at, 0, (size_t)d.ranks * sizeof *d.at);       /* pieces */
    for (r = 0; r < task->ctx->comm.size; r++) {
        if (levels->node_of[r] != levels->node) {
            i = dpari_mpi_carrier(levels, levels->node, r);
            d.at[i]++;
            dpari_mpi_slot_counts(&d, d.give, i)[d.at[i]] = task->call.in_count[r];
            d.count[i] += dpari_mpi_small_bytes(task, &d, task->call.in_count[r]);
        }
    }
    for (i = 0; i < d.ranks; i++) {
        lacks |= d.count[i] > d.room;
    }
    for (i = 0; i < d.ranks; i++) {
        dpari_mpi_slot_counts(&d, d.give, i)[0] = lacks;
        d.at[i] = dpari_mpi_slot_pieces(&d, d.give, i) - d.give;
    }
    if (!lacks) {
        dpari_mpi_deal_pack(task, &d, d.give, d.at);
    }
    call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_TO_ALL, d.give, d.got, d.slot);
    call.type = DPAR_U8;
    return dpari_mpi_post_inside(task, &call);
}

/* Returns the bytes of the small pieces that this rank carries for the node's i-th rank. */
static int64_t dpari_mpi_deal_bytes(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                    int32_t i)
{
    const int64_t *counts = dpari_mpi_slot_counts(deals, deals->got, i) + 1;
    int64_t bytes = 0;
    int32_t j;
    for (j = 0; j < deals->served; j++) {
        bytes += dpari_mpi_small_bytes(task, deals, counts[j]);
    }
    return bytes;
}

/* Exchanges pieces in the node, with the counts and offsets in `deals`. */
static int dpari_mpi_deal_pass(dpari_mpi_task *task, const dpari_mpi_deals *deals, int32_t type,
                               const void *in, void *out)
{
    dpar_call call = dpari_mpi_inside_call(task, DPAR_CALL_ALL_TO_ALL, in, out, 0);
    call.type = type;
    call.variable_counts = 1;
    call.in_count = deals->count;
    call.in_first = deals->at;
    call.out_count = deals->counts;
    call.out_first = deals->to;
    return dpari_mpi_post_inside(task, &call);
}

/* Runs leg 1: passes the small pieces that did not fit into slots. */
static int dpari_mpi_deal_spill(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    int64_t at = 0, to = 0;
    int32_t r, i;
    if (!dpari_mpi_deals_of(task, &d)) {
        return MPI_ERR_NO_MEM;
    }
    memset(d.count, 0, (size_t)d.ranks * sizeof *d.count);
    if (dpari_mpi_slot_counts(&d, d.give, 0)[0]) {
        for (r = 0; r < task->ctx->comm.size; r++) {
            if (levels->node_of[r] != levels->node) {
                d.count[dpari_mpi_carrier(levels, levels->node, r)] +=
                    dpari_mpi_small_bytes(task, &d, task->call.in_count[r]);
            }
        }
        for (i = 0; i < d.ranks; i++) {
            d.at[i] = at;
            at += d.count[i];
        }
        dpari_mpi_deal_pack(task, &d, d.spill, d.at);
    }
    for (i = 0, at = 0; i < d.ranks; i++) {
        d.at[i] = at;
        d.to[i] = to;
        d.counts[i] =
            dpari_mpi_slot_counts(&d, d.got, i)[0] ? dpari_mpi_deal_bytes(task, &d, i) : 0;
        at += d.count[i];
        to += d.counts[i];
    }
    return dpari_mpi_deal_pass(task, &d, DPAR_U8, d.spill, d.spilt);
}

static int dpari_mpi_deal_tag(const dpari_mpi_task *task)
{
    return DPARI_MPI_TAG_DEALT + (int)(task->sequence % DPARI_MPI_TAGS_DEALT);
}

/* Converts bytes to a number of elements of the call's type. */
static int64_t dpari_mpi_deal_elements(const dpari_mpi_task *task, int64_t bytes)
{
    return bytes / dpar_type_bytes(task->call.type);
}

/* True if this rank expects a message from `node`: another node whose pieces are not all large. */
static int32_t dpari_mpi_deal_comes(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                    int32_t node)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int32_t k;
    for (k = levels->begin[node]; k < levels->begin[node + 1]; k++) {
        if (task->call.out_count[levels->member[k]] <= deals->most) {
            return node != levels->node;
        }
    }
    return 0;
}

/* Returns where the message from a node is received. */
static char *dpari_mpi_deal_in(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                               int32_t node)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t before = levels->begin[node] - (node > levels->node ? deals->ranks : 0);
    return deals->in + before * deals->message;
}

static int dpari_mpi_deal_receive(dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const dpar_call *call = &task->call;
    int32_t node, k, code = MPI_SUCCESS;
    for (node = 0; node < levels->nodes && code == MPI_SUCCESS; node++) {
        const int32_t ranks = dpari_mpi_deal_ranks(levels, node);
        if (node == levels->node) {
            continue;
        }
        if (dpari_mpi_deal_comes(task, deals, node)) {
            const int32_t from =
                levels->member[levels->begin[node] +
                               dpari_mpi_carrier(levels, node, task->ctx->comm.rank)];
            code = dpari_mpi_recv_one(task, task->ctx->side, dpari_mpi_deal_tag(task), from,
                                      dpari_mpi_deal_in(task, deals, node),
                                      dpari_mpi_deal_elements(task, ranks * deals->message));
            task->piece[task->requests - 1].whole =
                -1; /* its length follows from the counts in it */
        }
        for (k = levels->begin[node]; k < levels->begin[node + 1] && code == MPI_SUCCESS; k++) {
            const int32_t r = levels->member[k];
            if (call->out_count[r] > deals->most) {
                code = dpari_mpi_recv_piece(
                    task, task->ctx->side, dpari_mpi_piece_tag(task), r,
                    dpari_mpi_at(call->out, call->type, deals->begin_out[r]), call->out_count[r]);
            }
        }
    }
    return code;
}

/* Builds the message for the j-th rank for which this one carries pieces. Returns its bytes, or 0
 * if none is sent. deals->at[i], the offset from `give` of the next piece from the node's i-th
 * rank, advances. */
static int64_t dpari_mpi_deal_message(const dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                      int32_t j, char *out)
{
    char *to = out + 8 * deals->ranks;
    int32_t i, small = 0;
    for (i = 0; i < deals->ranks; i++) {
        const int64_t n = dpari_mpi_slot_counts(deals, deals->got, i)[1 + j];
        const int64_t bytes = dpari_mpi_small_bytes(task, deals, n);
        small |= n <= deals->most;
        memcpy(out + 8 * i, &n, 8);
        dpari_mpi_copy(to, deals->give + deals->at[i], bytes);
        to += bytes;
        deals->at[i] += bytes;
    }
    return small ? to - out : 0;
}

static int dpari_mpi_deal_send(dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const dpar_call *call = &task->call;
    char *out = deals->out;
    int64_t spilt = deals->spilt - deals->give;
    int32_t r, i, j = 0, code = MPI_SUCCESS;
    for (i = 0; i < deals->ranks; i++) {
        const int32_t lacks = dpari_mpi_slot_counts(deals, deals->got, i)[0] != 0;
        deals->at[i] = lacks ? spilt : dpari_mpi_slot_pieces(deals, deals->got, i) - deals->give;
        spilt += lacks ? dpari_mpi_deal_bytes(task, deals, i) : 0;
    }
    for (r = 0; r < task->ctx->comm.size && code == MPI_SUCCESS; r++) {
        if (levels->node_of[r] == levels->node) {
            continue;
        }
        if (levels->member[levels->begin[levels->node] +
                           dpari_mpi_carrier(levels, levels->node, r)] == task->ctx->comm.rank) {
            const int64_t bytes = dpari_mpi_deal_message(task, deals, j, out);
            if (bytes > 0) {
                code = dpari_mpi_send_one(task, task->ctx->side, dpari_mpi_deal_tag(task), r, out,
                                          dpari_mpi_deal_elements(task, bytes));
            }
            out += deals->ranks * deals->message;
            j++;
        }
        if (call->in_count[r] > deals->most && code == MPI_SUCCESS) {
            code = dpari_mpi_send_piece(task, task->ctx->side, dpari_mpi_piece_tag(task), r,
                                        dpari_mpi_past(call->in, call->type, deals->begin_in[r]),
                                        call->in_count[r]);
        }
    }
    return code;
}

/* Exchanges the pieces that stay in the node. */
static int dpari_mpi_deal_stay(dpari_mpi_task *task, const dpari_mpi_deals *deals)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    int32_t i;
    for (i = 0; i < deals->ranks; i++) {
        const int32_t r = levels->member[levels->begin[levels->node] + i];
        deals->count[i] = task->call.in_count[r];
        deals->at[i] = deals->begin_in[r];
        deals->counts[i] = task->call.out_count[r];
        deals->to[i] = deals->begin_out[r];
    }
    return dpari_mpi_deal_pass(task, deals, task->call.type, task->call.in, task->call.out);
}

DPARI_INTERNAL int dpari_mpi_deals_step(dpari_mpi_task *task)
{
    dpari_mpi_deals d;
    int code;
    if (task->leg < 2) {
        return task->leg == 0 ? dpari_mpi_deal_slots(task) : dpari_mpi_deal_spill(task);
    }
    task->last = 1;
    if (!dpari_mpi_deals_of(task, &d) ||
        !dpari_mpi_reserve(task, 3 * (task->ctx->comm.size - d.ranks))) {
        return MPI_ERR_NO_MEM;
    }
    code = dpari_mpi_deal_receive(task, &d);
    if (code == MPI_SUCCESS) {
        code = dpari_mpi_deal_send(task, &d);
    }
    return code == MPI_SUCCESS ? dpari_mpi_deal_stay(task, &d) : code;
}

/* Compares the counts in the message from a node with those that this rank expects, and copies the
 * pieces to their places if all counts agree. */
static void dpari_mpi_deal_take(dpari_mpi_task *task, const dpari_mpi_deals *deals, int32_t node,
                                const char *in)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int32_t ranks = dpari_mpi_deal_ranks(levels, node),
                  *member = levels->member + levels->begin[node];
    const char *from = in + 8 * ranks;
    int32_t i;
    for (i = 0; i < ranks; i++) {
        int64_t n;
        memcpy(&n, in + 8 * i, 8);
        if (n != task->call.out_count[member[i]]) {
            dpari_mpi_mismatch(task, member[i], n, task->call.out_count[member[i]]);
            return;
        }
    }
    for (i = 0; i < ranks; i++) {
        const int64_t bytes = dpari_mpi_small_bytes(task, deals, task->call.out_count[member[i]]);
        dpari_mpi_copy(dpari_mpi_at(task->call.out, task->call.type, deals->begin_out[member[i]]),
                       from, bytes);
        from += bytes;
    }
}

DPARI_INTERNAL void dpari_mpi_deals_land(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    int32_t i, spills = 0;
    (void)dpari_mpi_deals_of(task, &d); /* cannot fail: the memory exists already */
    if (task->leg == 0) {
        for (i = 0; i < d.ranks; i++) {
            spills |= dpari_mpi_slot_counts(&d, d.got, i)[0] != 0;
        }
        task->leg = spills ? 1 : 2;
        return;
    }
    if (task->leg == 1) {
        task->leg = 2;
        return;
    }
    for (i = 0; i < levels->nodes && task->ctx->comm.status >= 0; i++) {
        if (dpari_mpi_deal_comes(task, &d, i)) {
            dpari_mpi_deal_take(task, &d, i, dpari_mpi_deal_in(task, &d, i));
        }
    }
}

/* Breaks the communicator if a large piece has arrived from rank r, whose piece should be small. */
static void dpari_mpi_deal_probe_large(dpari_mpi_task *task, int32_t r)
{
    MPI_Status status;
    MPI_Count n = 0;
    int there = 0;
    if (MPI_Iprobe(r, dpari_mpi_piece_tag(task), task->ctx->side, &there, &status) == MPI_SUCCESS &&
        there) {
        MPI_Get_elements_x(&status, dpari_mpi_by_bytes(dpar_type_bytes(task->call.type)), &n);
        dpari_mpi_mismatch(task, r, (int64_t)n, task->call.out_count[r]);
    }
}

/* Receives and compares a message from a node, if one has arrived although none is expected. */
static void dpari_mpi_deal_probe_node(dpari_mpi_task *task, const dpari_mpi_deals *deals,
                                      int32_t node)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    const int bytes = (int)(dpari_mpi_deal_ranks(levels, node) * deals->message);
    const int32_t from =
        levels->member[levels->begin[node] + dpari_mpi_carrier(levels, node, task->ctx->comm.rank)];
    char *in = dpari_mpi_deal_in(task, deals, node);
    int there = 0;
    if (MPI_Iprobe(from, dpari_mpi_deal_tag(task), task->ctx->side, &there, MPI_STATUS_IGNORE) ==
            MPI_SUCCESS &&
        there &&
        MPI_Recv(in, bytes, MPI_BYTE, from, dpari_mpi_deal_tag(task), task->ctx->side,
                 MPI_STATUS_IGNORE) == MPI_SUCCESS) {
        dpari_mpi_deal_take(task, deals, node, in);
    }
}

DPARI_INTERNAL void dpari_mpi_deal_compare(dpari_mpi_task *task)
{
    const dpari_mpi_levels *levels = &task->ctx->level;
    dpari_mpi_deals d;
    int32_t i;
    if (task->leg < 2 || !dpari_mpi_deals_of(task, &d)) {
        return;
    }
    for (i = 0; i < task->requests && task->ctx->comm.status >= 0; i++) {
        int done = 0;
        if (task->piece[i].whole < 0 && /* a request that is done already may be tested again */
            MPI_Test(&task->request[i], &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done) {
            const int32_t node = levels->node_of[task->piece[i].peer];
            dpari_mpi_deal_take(task, &d, node, dpari_mpi_deal_in(task, &d, node));
        }
    }
    for (i = 0; i < task->ctx->comm.size && task->ctx->comm.status >= 0; i++) {
        if (levels->node_of[i] != levels->node && task->call.out_count[i] <= d.most) {
            dpari_mpi_deal_probe_large(task, i);
        }
    }
    for (i = 0; i < levels->nodes && task->ctx->comm.status >= 0; i++) {
        if (i != levels->node && !dpari_mpi_deal_comes(task, &d, i)) {
            dpari_mpi_deal_probe_node(task, &d, i);
        }
    }
}

/* ==== mpi/check.c ==== */

/* Compares the calls of all ranks by one all-reduce over the side communicator. Each rank passes
 * the fields of its call and their negatives, so that one maximum gives the largest and the
 * smallest value of each field; the calls are the same if these are equal. If they differ, all
 * ranks know it, and an all-gather of the calls provides those that the message names. Called by
 * progress.c before the first step of an operation. */

/* Returns a hash of the piece sizes, for the calls in which they must be equal on all ranks. */
static int64_t dpari_mpi_pieces_hash(const dpar_call *call, int32_t n)
{
    const int64_t *counts = NULL;
    uint64_t h = 1 + (uint64_t)(call->variable_counts != 0);
    int32_t r;
    if (call->kind == DPAR_CALL_ALL_GATHER) {
        counts = call->out_count;
    } else if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        counts = call->in_count;
    }
    for (r = 0; call->variable_counts && counts != NULL && r < n; r++) {
        h = (h ^ (uint64_t)counts[r]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 29;
    }
    return (int64_t)(h >> 2);
}

/* Posts the comparison of the calls of all ranks. */
static int dpari_mpi_check(dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    int32_t i;
    task->check[0] = call->kind;
    task->check[1] = call->type;
    task->check[2] = call->op;
    task->check[3] = call->root;
    task->check[4] = call->variable_counts ? 0 : call->count;
    task->check[5] = dpari_mpi_pieces_hash(call, task->ctx->comm.size);
    task->check[6] = dpari_tag_compared(call->tag);
    for (i = 0; i < 7; i++) {
        task->check[7 + i] = -task->check[i];
    }
    return DPARI_MPI_DO(task, MPI_Allreduce, MPI_Iallreduce, MPI_IN_PLACE, task->check, 14,
                        MPI_INT64_T, MPI_MAX, task->ctx->side);
}

static int32_t dpari_mpi_agrees(const dpari_mpi_task *task)
{
    int32_t i, same = 1;
    for (i = 0; i < 7; i++) {
        same = same && task->check[i] == -task->check[7 + i];
    }
    return same;
}

/* Sends this rank's call to all ranks, for the message. Called when all ranks know that their calls
 * differ. */
static int dpari_mpi_ask_all(dpari_mpi_task *task)
{
    dpari_mpi_ctx *context = task->ctx;
    dpari_record *mine;
    int bytes = (int)sizeof(dpari_record);
    task->calls = (dpari_record *)calloc((size_t)context->comm.size, sizeof *task->calls);
    if (task->calls == NULL) {
        return MPI_ERR_NO_MEM;
    }
    mine = &task->calls[context->comm.rank];
    *mine = dpari_mpi_record_of(task);
    mine->state = (int32_t)(dpari_mpi_pieces_hash(&task->call, context->comm.size) & 0x7fffffff);
    return DPARI_MPI_DO(task, MPI_Allgather, MPI_Iallgather, MPI_IN_PLACE, bytes, MPI_BYTE,
                        task->calls, bytes, MPI_BYTE, context->side);
}

static void dpari_mpi_disagree(dpari_mpi_task *task)
{
    const dpari_record *a = task->calls;
    int32_t r = 1;
    dpar_why why;
    dpar_text s;
    while (r + 1 < task->ctx->comm.size && a->state == task->calls[r].state &&
           dpari_record_same(a, &task->calls[r], 1)) {
        r++;
    }
    dpari_text_why(&s, &why);
    dpari_mpi_put_calls(&s, task->ctx, 0, a, r, &task->calls[r]);
    if (a->state != task->calls[r].state) {
        dpar_text_put(&s, ", with different counts of the pieces");
    }
    dpari_mpi_break(task->ctx, DPAR_E_MISMATCH, why.text, 0);
}

DPARI_INTERNAL int32_t dpari_mpi_check_step(dpari_mpi_task *task, int *code)
{
    const int split = task->call.kind == DPAR_CALL_BARRIER && task->call.root == DPARI_SPLIT;
    *code = MPI_SUCCESS;
    switch (task->phase) {
    case DPARI_MPI_NEW:
        if (!split && (!task->ctx->options.check || dpari_kind_sends(task->call.kind))) {
            return 0;
        }
        task->phase = DPARI_MPI_CHECKING;
        *code = dpari_mpi_check(task);
        return 1;
    case DPARI_MPI_CHECKING:
        if (dpari_mpi_agrees(task)) {
            return 0;
        }
        task->phase = DPARI_MPI_TELLING;
        *code = dpari_mpi_ask_all(task);
        return 1;
    case DPARI_MPI_TELLING: dpari_mpi_disagree(task); return 1;
    default: return 0;
    }
}

/* ==== mpi/paths.c ==== */

/* Chooses the path of a call. Everything within a node goes through its memory. Other collectives
 * are run by nodes where ranks are distributed evenly enough, by this engine's own messages if
 * there are few ranks or the pieces are long, and otherwise by MPI's collectives. Reductions whose
 * order of additions matters (rank_order, and 16-bit floats of few ranks) use rank_order.c. */

/* True if an operation with pieces of `piece` bytes uses messages from each rank to each other
 * rank. */
static int32_t dpari_mpi_direct(const dpari_mpi_ctx *context, int64_t piece)
{
    return !context->options.blocking &&
           (context->comm.size <= DPARI_MPI_DIRECT ||
            (context->comm.size <= DPARI_MPI_TRADED && piece >= DPARI_MPI_WORTH));
}

/* True if the call is run by nodes (DPARI_MPI_LEVELS). */
static int32_t dpari_mpi_by_nodes(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const dpari_mpi_levels *levels = &context->level;
    const int32_t reduces = dpari_kind_reduces(call->kind);
    const int32_t half = reduces && dpari_mpi_is_half(call->type);
    if (levels->inside == NULL || call->variable_counts ||
        (reduces && context->options.rank_order) ||
        (half && (call->kind != DPAR_CALL_ALL_REDUCE ||
                  dpari_mpi_bytes(DPAR_F32, call->count) >= DPARI_MPI_LANES))) {
        return 0; /* large sums of 16-bit floats are computed in rank order, which sends half the
                     bytes */
    }
    return call->kind == DPAR_CALL_BARRIER || call->kind == DPAR_CALL_ALL_REDUCE ||
           call->kind == DPAR_CALL_BROADCAST ||
           (call->kind == DPAR_CALL_ALL_GATHER && levels->even) ||
           (call->kind == DPAR_CALL_ALL_TO_ALL && levels->even &&
            dpari_mpi_bytes(call->type, call->count) <= context->world->dealt[0]) ||
           (call->kind == DPAR_CALL_REDUCE_SCATTER && levels->even && levels->in_order);
}

/* True if this engine's own messages carry a barrier or a call that moves data, rather than MPI's
 * operation, which is slow when it is posted. */
static int32_t dpari_mpi_by_trades(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const int64_t bytes = dpari_mpi_bytes(call->type, call->count);
    const int32_t few = context->comm.size <= DPARI_MPI_DIRECT;
    if (context->options.blocking || call->variable_counts) {
        return 0;
    }
    return call->kind == DPAR_CALL_BARRIER ||
           (call->kind == DPAR_CALL_BROADCAST && (few || bytes < DPARI_MPI_LANES)) ||
           (call->kind == DPAR_CALL_ALL_GATHER && dpari_mpi_direct(context, bytes)) ||
           (call->kind == DPAR_CALL_ALL_TO_ALL && dpari_mpi_direct(context, bytes));
}

DPARI_INTERNAL int32_t dpari_mpi_is_within(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const dpari_mpi_levels *levels = &context->level;
    return levels->inside != NULL &&
           (levels->nodes == 1 ||
            (dpari_kind_sends(call->kind) && levels->node_of[call->root] == levels->node));
}

/* Returns the path of a call. It has to be the same on all ranks, and therefore depends only on
 * values that are equal on all ranks. */
static int32_t dpari_mpi_choose(const dpari_mpi_ctx *context, const dpar_call *call)
{
    int32_t half = dpari_mpi_is_half(call->type), n = context->comm.size;
    int32_t ordered = context->options.rank_order || (half && n <= DPARI_MPI_EXCHANGED);
    int32_t bytes = dpar_type_bytes(call->type);
    if (dpari_mpi_is_within(context, call)) {
        return DPARI_MPI_WITHIN;
    }
    if (dpari_kind_sends(call->kind)) {
        return DPARI_MPI_MESSAGE;
    }
    if (call->kind == DPAR_CALL_ALL_TO_ALL && call->variable_counts &&
        context->level.inside != NULL && context->level.lanes > 1 &&
        context->world->dealt[1] >= 0) {
        return DPARI_MPI_DEALS;
    }
    if (dpari_mpi_by_nodes(context, call)) {
        return DPARI_MPI_LEVELS;
    }
    if (dpari_mpi_by_trades(context, call)) {
        return DPARI_MPI_TRADES;
    }
    if (!dpari_kind_reduces(call->kind)) {
        return call->variable_counts ? DPARI_MPI_EXCHANGE : DPARI_MPI_MOVE;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        int64_t most = dpari_mpi_most(call->type, call->op);
        ordered |= dpari_mpi_direct(context, dpari_mpi_elements(call, n) / n * bytes);
        if (ordered) {
            return DPARI_MPI_ORDERED_SCATTER;
        }
        return half || dpari_mpi_elements(call, n) > most ? DPARI_MPI_SCATTER_STAGED
                                                          : DPARI_MPI_SCATTER;
    }
    if (call->kind == DPAR_CALL_ALL_REDUCE && !half) {
        ordered |= dpari_mpi_direct(context, call->count / n * bytes);
        if (!ordered && !context->options.blocking && call->count <= DPARI_MPI_SMALL / bytes) {
            return DPARI_MPI_DOUBLING;
        }
    }
    if (!ordered) {
        return half ? DPARI_MPI_STAGED : DPARI_MPI_PIECES;
    }
    return call->count <= DPARI_MPI_SMALL / ((int64_t)n * bytes) &&
                   call->count * n <= DPARI_MPI_LIMIT
               ? DPARI_MPI_GATHERED
               : DPARI_MPI_ORDERED;
}

DPARI_INTERNAL int32_t dpari_mpi_is_empty(const dpari_mpi_task *task)
{
    const dpar_call *call = &task->call;
    return call->kind != DPAR_CALL_BARRIER && task->path != DPARI_MPI_MESSAGE &&
           task->path != DPARI_MPI_EXCHANGE && task->path != DPARI_MPI_WITHIN &&
           task->path != DPARI_MPI_DEALS &&
           (call->variable_counts ? dpari_mpi_elements(call, task->ctx->comm.size) == 0
                                  : call->count == 0);
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_new(dpari_mpi_ctx *context, const dpar_call *call,
                                             dpar_work *work)
{
    dpari_mpi_task *task = dpari_mpi_take(context->world);
    if (task == NULL) {
        return NULL;
    }
    task->ctx = context;
    task->work = work;
    task->call = *call;
    task->sequence = 0;
    task->path = dpari_mpi_choose(context, call);
    task->phase = DPARI_MPI_NEW;
    task->finished = task->last = task->posted = task->told = task->cut = task->block =
        task->feeding = 0;
    task->requests = 0;
    task->status = DPAR_OK;
    task->since = -1;
    task->looked = 0;
    task->op =
        task->path == DPARI_MPI_LEVELS && call->op == DPAR_AVG ? (int32_t)DPAR_SUM : call->op;
    task->level = task->leg = task->ended = 0;
    dpari_mpi_among(task, NULL, context->comm.size, context->comm.rank, call->in, call->out,
                    call->count);
    if (work != NULL) {
        work->comm = &context->comm;
        work->call = *call;
        work->status = DPAR_MORE;
        work->phase = 1;
        work->sequence = task->sequence;
        memcpy(work->state, &task, sizeof task);
    }
    dpari_mpi_link(task);
    return task;
}

/* ==== mpi/point_to_point.c ==== */

/* Keeps messages without a task in a list of works, the newest first. A work holds its MPI request
 * and the number of its record. Whenever tasks advance, all of these messages are tested, because
 * MPI advances them only when it is called. A message that fails, or has another length than
 * expected, becomes a task, which writes the error. */

static int32_t dpari_mpi_is_light(const dpari_mpi_ctx *context, const dpar_call *call)
{
    const int64_t bytes = dpari_mpi_bytes(call->type, call->count), most = context->world->at_once;
    return context->comm.status >= 0 && dpari_kind_sends(call->kind) && call->count > 0 &&
           call->count <= dpari_least(DPARI_MPI_LIMIT, INT_MAX) &&
           (bytes <= most || bytes > 2 * most) && !dpari_mpi_is_within(context, call);
}

static MPI_Request dpari_mpi_light_request(const dpar_work *work)
{
    MPI_Request request;
    memcpy(&request, work->state, sizeof request);
    return request;
}

static void dpari_mpi_light_link(dpari_mpi_world *world, dpar_work *work)
{
    work->behind = NULL;
    work->next = world->light;
    if (world->light != NULL) {
        world->light->behind = work;
    }
    world->light = work;
}

static void dpari_mpi_light_unlink(dpari_mpi_world *world, dpar_work *work)
{
    if (work->behind != NULL) {
        work->behind->next = work->next;
    } else {
        world->light = work->next;
    }
    if (work->next != NULL) {
        work->next->behind = work->behind;
    }
}

DPARI_INTERNAL int32_t dpari_mpi_post_light(dpari_mpi_ctx *context, const dpar_call *call,
                                            dpar_work *work)
{
    const MPI_Datatype type = dpari_mpi_by_bytes(dpar_type_bytes(call->type));
    const dpari_mpi_count n = (dpari_mpi_count)call->count;
    dpari_record *r;
    MPI_Request request;
    int code;
    if (!dpari_mpi_is_light(context, call)) {
        return 0;
    }
    code = call->kind == DPAR_CALL_SEND
               ? DPARI_MPI_C(MPI_Isend)(call->in, n, type, call->root, call->tag, context->main,
                                        &request)
               : DPARI_MPI_C(MPI_Irecv)(call->out, n, type, call->root, call->tag, context->main,
                                        &request);
    if (code != MPI_SUCCESS) { /* a task will get the same error, and report it */
        return 0;
    }
    context->records++;
    r = dpari_mpi_record_at(context, context->records);
    *r = dpari_record_of(call, 0);
    r->state = DPAR_MORE;
    work->comm = &context->comm;
    work->status = DPAR_MORE;
    work->phase = DPARI_MPI_LIGHT;
    work->call = *call;
    work->sequence = 0;
    work->record = context->records;
    memcpy(work->state, &request, sizeof request);
    work->state[DPARI_MPI_LOOKS] = 0;
    dpari_mpi_light_link(context->world, work);
    if (call->kind == DPAR_CALL_SEND) { /* a short message is often done at once */
        dpari_mpi_light_test(work);
    }
    return 1;
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_grow(dpar_work *work)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
    const MPI_Request request = dpari_mpi_light_request(work);
    const dpar_call call = work->call;
    const int64_t record = work->record;
    dpari_mpi_task *task;
    dpari_mpi_piece *p;
    dpari_mpi_light_unlink(context->world, work);
    task = dpari_mpi_new(context, &call, work);
    if (task == NULL) {
        dpari_mpi_light_link(context->world, work);
        return NULL;
    }
    task->number = record;
    task->record = dpari_mpi_record_at(context, record);
    task->phase = DPARI_MPI_RUNNING;
    task->last = task->posted = 1;
    p = dpari_mpi_slot(task, call.root);
    if (call.kind == DPAR_CALL_RECV) {
        p->type = dpari_mpi_by_bytes(dpar_type_bytes(call.type));
        p->expect = p->whole = call.count;
    }
    *dpari_mpi_last_request(task) = request;
    return task;
}

/* Turns a message that failed, or that does not have the expected length, into a task, which
 * reports that. */
static void dpari_mpi_light_failed(dpar_work *work, int code, const MPI_Status *state)
{
    dpari_mpi_task *task = dpari_mpi_grow(work);
    if (task == NULL) { /* no memory: the error message does not name the operation */
        dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
        dpari_mpi_light_unlink(context->world, work);
        work->status = dpari_mpi_failed(context, NULL, "a message",
                                        code != MPI_SUCCESS ? code : MPI_ERR_NO_MEM);
        work->phase = DPARI_MPI_FINISHED;
        work->comm = NULL;
        return;
    }
    task->request[0] = MPI_REQUEST_NULL;
    task->state[0] = *state;
    if (code != MPI_SUCCESS) {
        dpari_mpi_request_failed(task, 0, code);
    } else {
        dpari_mpi_measure(task, 0);
    }
    dpari_mpi_end(task, task->ctx->comm.status);
}

static void dpari_mpi_light_done(dpar_work *work)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
    dpari_mpi_light_unlink(context->world, work);
    if (work->record + DPARI_RECORDS > context->records) {
        dpari_mpi_record_at(context, work->record)->state = DPAR_OK;
    }
    work->status = DPAR_OK;
    work->phase = DPARI_MPI_FINISHED;
    work->comm = NULL;
}

DPARI_INTERNAL void dpari_mpi_light_lose(dpar_work *work)
{
    dpari_mpi_world *world = dpari_mpi_ctx_of(work->comm)->world;
    dpari_mpi_light_unlink(world, work);
    world->held = 1;
    work->comm = NULL;
    work->status = DPAR_E_ARG;
    work->phase = DPARI_MPI_FINISHED;
}

DPARI_INTERNAL void dpari_mpi_light_test(dpar_work *work)
{
    MPI_Request request = dpari_mpi_light_request(work);
    MPI_Status state;
    int done = 0, got = 0;
    const int code = MPI_Test(&request, &done, &state);
    if (code == MPI_SUCCESS && !done) {
        return;
    }
    if (code == MPI_SUCCESS && work->call.kind == DPAR_CALL_RECV) {
        MPI_Get_count(&state, dpari_mpi_by_bytes(dpar_type_bytes(work->call.type)), &got);
    }
    if (code != MPI_SUCCESS || (work->call.kind == DPAR_CALL_RECV && got != work->call.count)) {
        dpari_mpi_light_failed(work, code, &state);
    } else {
        dpari_mpi_light_done(work);
    }
}

DPARI_INTERNAL void dpari_mpi_light_look(dpar_work *work, int64_t look)
{
    const dpari_mpi_ctx *context = dpari_mpi_ctx_of(work->comm);
    if ((look < DPARI_MPI_POLLS && context->comm.status >= 0 && context->world->tasks == NULL) ||
        dpari_mpi_grow(work) == NULL) {
        dpari_mpi_light_test(work);
    }
}

/* ==== mpi/progress.c ==== */

/* Advances tasks step by step, in the order in which they were posted.
 *
 * A step posts requests; when all of them are done, its data is processed, and the next step is
 * posted. The two switches below select the functions of the task's path. A collective begins only
 * when all steps of the collectives before it on its communicator are posted (ctx->unfed), and it
 * is skipped in a pass in which an earlier one did not finish posting. After a few polls, a wait
 * also looks after notes and the deadline. */

static int dpari_mpi_post_step(dpari_mpi_task *task)
{
    if (dpari_mpi_is_empty(task)) {
        task->last = 1;
        return MPI_SUCCESS;
    }
    task->posted = 1;
    switch (task->path) {
    case DPARI_MPI_MOVE: return dpari_mpi_move(task);
    case DPARI_MPI_MESSAGE: return dpari_mpi_message(task);
    case DPARI_MPI_EXCHANGE: return dpari_mpi_exchange(task);
    case DPARI_MPI_PIECES: return dpari_mpi_pieces(task);
    case DPARI_MPI_STAGED: return dpari_mpi_staged(task);
    case DPARI_MPI_SCATTER: return dpari_mpi_scatter(task);
    case DPARI_MPI_SCATTER_STAGED: return dpari_mpi_scatter_staged(task);
    case DPARI_MPI_GATHERED: return dpari_mpi_gathered(task);
    case DPARI_MPI_DOUBLING: return dpari_mpi_doubling(task);
    case DPARI_MPI_WITHIN: return dpari_mpi_within(task);
    case DPARI_MPI_LEVELS:
    case DPARI_MPI_TRADES: return dpari_mpi_levels_step(task);
    case DPARI_MPI_DEALS: return dpari_mpi_deals_step(task);
    case DPARI_MPI_ORDERED: return dpari_mpi_ordered(task);
    default: return dpari_mpi_ordered_scatter(task);
    }
}

/* Processes the data that arrived, once all requests of a step are done. */
static void dpari_mpi_land(dpari_mpi_task *task)
{
    task->posted = 0;
    switch (task->path) {
    case DPARI_MPI_PIECES: dpari_mpi_pieces_land(task); break;
    case DPARI_MPI_STAGED: dpari_mpi_staged_land(task); break;
    case DPARI_MPI_SCATTER: dpari_mpi_scatter_land(task); break;
    case DPARI_MPI_SCATTER_STAGED: dpari_mpi_scatter_staged_land(task); break;
    case DPARI_MPI_GATHERED: dpari_mpi_gathered_land(task); break;
    case DPARI_MPI_DOUBLING: dpari_mpi_doubling_land(task); break;
    case DPARI_MPI_LEVELS:
    case DPARI_MPI_TRADES: dpari_mpi_levels_land(task); break;
    case DPARI_MPI_DEALS: dpari_mpi_deals_land(task); break;
    case DPARI_MPI_ORDERED: dpari_mpi_ordered_land(task); break;
    case DPARI_MPI_ORDERED_SCATTER: dpari_mpi_ordered_scatter_land(task); break;
    default: break;
    }
}

/* Posts the requests of the next step: first those of the check (check = 1, or a split), then those
 * of the operation. */
static int dpari_mpi_step(dpari_mpi_task *task)
{
    int code;
    if (dpari_mpi_check_step(task, &code)) {
        return code;
    }
    task->phase = DPARI_MPI_RUNNING;
    return dpari_mpi_post_step(task);
}

/* True if everything that was posted is done, in the node's memory and between nodes. */
static int32_t dpari_mpi_posted_done(dpari_mpi_task *task)
{
    return (!task->inside_on || dpari_mpi_inside_done(task)) &&
           (task->requests == 0 || dpari_mpi_requests_done(task));
}

/* Advances a task as far as is possible now, which may end it. Without `tests` it only posts, and
 * does not test requests that were posted. */
static void dpari_mpi_proceed(dpari_mpi_task *task, int32_t tests)
{
    dpari_mpi_ctx *context = task->ctx;
    for (;;) {
        int code;
        if (context->comm.status < 0 ||
            ((task->requests > 0 || task->inside_on) && !(tests && dpari_mpi_posted_done(task)))) {
            break;
        }
        dpari_mpi_release_pieces(task);
        if (task->posted) {
            dpari_mpi_land(task);
        }
        if (task->last || context->comm.status < 0) {
            break;
        }
        code = dpari_mpi_step(task);
        if (code != MPI_SUCCESS) {
            dpari_mpi_failed(context, task, NULL, code);
            break;
        }
        if (task->last) {
            dpari_mpi_fed(task);
        }
    }
    if (context->comm.status < 0) {
        dpari_mpi_end(task, context->comm.status);
    } else if (task->last && task->requests == 0 && !task->inside_on && !task->posted) {
        dpari_mpi_end(task, DPAR_OK);
    }
}

DPARI_INTERNAL void dpari_mpi_pump(dpari_mpi_world *world)
{
    dpari_mpi_task *task, *after;
    dpar_work *work, *next;
    for (work = world->light; work != NULL; work = next) {
        next = work->next;
        if (work->comm->status >= 0) {
            dpari_mpi_light_test(work);
        }
    }
    world->pass++;
    for (task = world->tasks; task != NULL; task = after) {
        dpari_mpi_ctx *context = task->ctx;
        int64_t unfed = context->unfed;
        int32_t feeding = task->feeding;
        after = task->after;
        if (feeding && context->pass == world->pass && context->comm.status >= 0) {
            continue;
        }
        dpari_mpi_proceed(task, 1);
        if (feeding && context->unfed == unfed) {
            context->pass = world->pass;
        }
    }
}

DPARI_INTERNAL void dpari_mpi_look_round(dpari_mpi_task *task)
{
    const double now = MPI_Wtime();
    if (dpari_mpi_trade_notes(task, now) && task->path == DPARI_MPI_DEALS &&
        task->ctx->comm.status >= 0) {
        dpari_mpi_deal_compare(task);
    }
    dpari_mpi_check_deadline(task, now);
}

DPARI_INTERNAL void dpari_mpi_await(dpari_mpi_task *task, const int32_t *finished)
{
    dpari_mpi_world *world = task->ctx->world;
    int32_t polls = 0;
    for (;;) {
        dpari_mpi_pump(world);
        if (*finished == DPARI_MPI_FINISHED) {
            return;
        }
        polls++;
        if (polls >= DPARI_MPI_POLLS) {
            polls = DPARI_MPI_POLLS;
            DPARI_MPI_YIELD();
            dpari_mpi_look_round(task);
        } else if (polls % 128 == 0) {
            dpari_mpi_look_round(task);
        }
    }
}

DPARI_INTERNAL void dpari_mpi_bring_along(dpari_mpi_ctx *context)
{
    dpari_mpi_task *task = context->world->tasks;
    while (task != NULL) {
        if (task->feeding) {
            dpari_mpi_pump(context->world);
            task = context->world->tasks;
            if (task != NULL && task->feeding) {
                dpari_mpi_look_round(task);
            }
        } else {
            task = task->after;
        }
    }
}

DPARI_INTERNAL dpari_mpi_task *dpari_mpi_begin(dpari_mpi_ctx *context, const dpar_call *call,
                                               dpar_work *work, int32_t block)
{
    dpari_mpi_task *task = dpari_mpi_new(context, call, work);
    const int32_t message = dpari_kind_sends(call->kind);
    if (task == NULL) {
        (void)dpari_say(DPAR_E_MEMORY, &context->comm.why,
                        "%s: no memory for the state of the operation (%ld bytes)",
                        dpar_call_name(call->kind), (int64_t)sizeof *task);
        return NULL;
    }
    if (!message) {
        task->sequence = context->sequence++;
        task->feeding = 1;
        task->block = block && task->path < DPARI_MPI_WITHIN;
        if (work != NULL) {
            work->sequence = task->sequence;
        }
    }
    dpari_mpi_record_task(task);
    context->unfed += task->feeding;
    /* Notes are read every 256 collectives, so that they do not accumulate. The last ones are read
     * here and not by dpari_mpi_close, because MPICH 4.0 over UCX may hang in MPI_Finalize if the
     * last call before it was a probe. */
    if (!message && (task->sequence % 256 == 255 || call->root == DPARI_CLOSE)) {
        dpari_mpi_listen(context);
    }
    if (message || context->unfed == 1) {
        /* Without tests: a test between a receive and the send that is posted next would slow down
         * long messages in both directions, by a factor of 1.3 to 1.8. */
        dpari_mpi_proceed(task, 0);
    }
    return task;
}

/* ==== mpi/nodes.c ==== */

/* Finds out which ranks share the memory of a node, and names the nodes.
 *
 * MPI_Comm_split_type reports the ranks of a node. Because containers and machines with the same
 * name deceive it, a rank then publishes a name that only processes of its node see, and the ranks
 * that do not see it are split off. The ranks that remain make a communicator of the shared-memory
 * engine, as a job that was started by dpar. All ranks then gather the lowest rank of each rank's
 * node, from which they compute the same tables of nodes and lanes. */

DPARI_INTERNAL int dpari_mpi_env(const char *name)
{
    const char *text;
    dpari_site site;
    dpari_site_here(&site);
    text = dpari_site_env(&site, name);
    return text != NULL ? atoi(text) : 0;
}

/* Describes the ranks of a node as a job started by dpar, with an id that no other job has. */
static int dpari_mpi_name(MPI_Comm node, dpar_launcher_info *job)
{
    int rank = 0, size = 1;
    dpar_text t;
    memset(job, 0, sizeof *job);
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    job->kind = DPAR_LAUNCHER_DPAR;
    job->rank = job->local_rank = (int32_t)rank;
    job->size = job->local_size = (int32_t)size;
    dpar_text_init(&t, job->id, sizeof job->id);
    dpari_text_say(&t, "node %ld %ld", (int64_t)getpid(), (int64_t)(MPI_Wtime() * 1e9));
    return MPI_Bcast(job->id, (int)sizeof job->id, MPI_CHAR, 0, node);
}

/* Returns the worst status of all ranks, and sets *why to the message of the rank that has it.
 * DPAR_E_PEER and DPAR_E_TIMEOUT count as less bad than other errors, because they usually follow
 * from another rank's failure. Collective. */
static dpar_status dpari_mpi_worst(MPI_Comm user, dpar_status mine, dpar_why *said, dpar_why *why)
{
    enum { CAUSE = 1000 };
    struct {
        int status, rank;
    } own, worst;
    int code;
    own.status = (int)mine;
    own.status -= mine < 0 && mine != DPAR_E_PEER && mine != DPAR_E_TIMEOUT ? (int)CAUSE : 0;
    MPI_Comm_rank(user, &own.rank);
    worst = own;
    code = MPI_Allreduce(&own, &worst, 1, MPI_2INT, MPI_MINLOC, user);
    worst.status += worst.status <= -CAUSE ? (int)CAUSE : 0;
    if (code == MPI_SUCCESS && worst.status < 0) {
        code = MPI_Bcast(said->text, (int)sizeof said->text, MPI_CHAR, worst.rank, user);
    }
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "comparing the results of all ranks", code);
    }
    if (worst.status < 0) {
        (void)dpari_repeat((dpar_status)worst.status, why, said->text);
    }
    return (dpar_status)worst.status;
}

DPARI_INTERNAL dpar_status dpari_mpi_all_well(dpari_mpi_ctx *context, dpar_status mine,
                                              dpar_why *said)
{
    dpar_why *why = &context->comm.why;
    const dpar_status status = dpari_mpi_worst(context->main, mine, said, why);
    return status < 0 ? dpari_mpi_break(context, status, why->text, 0) : status;
}

/* Makes the communicator of a node's memory, once the node's ranks are known. Fails on all ranks if
 * it fails on any. Collective. */
static dpar_status dpari_mpi_meet(MPI_Comm user, MPI_Comm own, const dpar_world_desc *options,
                                  dpar_comm **node, dpar_why *why)
{
    dpar_launcher_info job;
    dpar_world_desc o;
    dpar_comm *made = NULL;
    dpar_why said;
    dpar_status status = DPAR_OK;
    int code = dpari_mpi_name(own, &job);
    memset(&o, 0, sizeof o);
    if (options != NULL) {
        o = *options;
    }
    o.threads = 0;
    memset(&said, 0, sizeof said);
    if (code != MPI_SUCCESS) {
        status = dpari_mpi_say(&said, "MPI_Bcast", code);
    } else {
        status = dpari_job_try(&job, &o, &said);
    }
    status = dpari_mpi_worst(user, status, &said, why);
    if (status < 0) {
        return status;
    }
    status = dpari_job_join(&job, &o, &made, &said);
    status = dpari_mpi_worst(user, status, &said, why);
    if (status < 0) {
        (void)dpar_comm_free(made); /* it may have failed only on another node */
        return status;
    }
    *node = made;
    return DPAR_OK;
}

/* Seconds after which ranks time out that MPI reports to be on one node but that share no
 * memory. */
enum { DPARI_MPI_MEETING = 20 };

/* Makes *node: the ranks of this node, in the order of `own`. With DPAR_MPI_NODE=n, each node is
 * treated as several nodes of at most n ranks. Collective. */
static int dpari_mpi_node_of(MPI_Comm own, MPI_Comm *node)
{
    MPI_Comm whole = MPI_COMM_NULL;
    const int most = dpari_mpi_env("DPAR_MPI_NODE");
    int code = MPI_Comm_split_type(own, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &whole), rank = 0;
    if (code == MPI_SUCCESS) {
        MPI_Comm_rank(whole, &rank);
        code = MPI_Comm_split(whole, most > 0 ? rank / most : 0, 0, node);
        MPI_Comm_free(&whole);
    }
    return code;
}

/* Splits ranks that MPI reports to be on one node but that may be on several: in containers of one
 * machine, or on machines with the same name. The first rank publishes a name (dpari_os_show).
 * Ranks that see it are on its node, and the others repeat this among themselves. Collective over
 * *node, which becomes this rank's part of it. */
static int dpari_mpi_part_node(MPI_Comm *node)
{
    int code = MPI_SUCCESS, all = 0, sees = 0;
    while (code == MPI_SUCCESS && !sees) {
        MPI_Comm part = MPI_COMM_NULL;
        uint64_t shown[2] = {0, 0}; /* the name, and 1 if it was published */
        int rank = 0, fd = -1;
        MPI_Comm_rank(*node, &rank);
        if (rank == 0) {
            fd = dpari_os_show(&shown[0]);
            shown[1] = fd >= 0;
        }
        code = MPI_Bcast(shown, (int)sizeof shown, MPI_BYTE, 0, *node);
        sees = rank == 0 || shown[1] == 0 || dpari_os_sees(shown[0]);
        if (code == MPI_SUCCESS) { /* also waits until all ranks have looked for the name, before it
                                      is removed */
            code = MPI_Allreduce(&sees, &all, 1, MPI_INT, MPI_MIN, *node);
        }
        if (fd >= 0) {
            close(fd);
        }
        if (code == MPI_SUCCESS && !all) {
            code = MPI_Comm_split(*node, sees, 0, &part);
            MPI_Comm_free(node);
            *node = part;
        }
    }
    return code;
}

DPARI_INTERNAL dpar_comm *dpari_mpi_share(MPI_Comm own, const dpar_mpi_desc *o, int32_t *nodes,
                                          dpar_why *flat)
{
    MPI_Comm node = MPI_COMM_NULL;
    dpar_world_desc options;
    dpar_comm *made = NULL;
    int size = 0, here = 0, first = 0, all = 0;
    memset(flat, 0, sizeof *flat);
    memset(&options, 0, sizeof options);
    if (o->flat) {
        (void)dpari_repeat(DPAR_OK, flat, "flat = 1 or DPAR_MPI_FLAT is set");
        return NULL;
    }
    if (dpari_mpi_node_of(own, &node) != MPI_SUCCESS || dpari_mpi_part_node(&node) != MPI_SUCCESS) {
        (void)dpari_repeat(DPAR_OK, flat, "MPI cannot tell which ranks share memory");
        return NULL;
    }
    MPI_Comm_size(own, &size);
    MPI_Comm_rank(node, &here);
    first = here == 0;
    if (MPI_Allreduce(&first, &all, 1, MPI_INT, MPI_SUM, own) != MPI_SUCCESS ||
        (all == size && size > 1)) {
        (void)dpari_repeat(DPAR_OK, flat, "no two ranks are on the same node");
    } else {
        options.timeout_s = DPARI_MPI_MEETING;
        if (o->timeout_s > 0) {
            options.timeout_s = dpari_leastf(o->timeout_s, options.timeout_s);
        }
        (void)dpari_mpi_meet(own, node, &options, &made, flat);
    }
    MPI_Comm_free(&node);
    *nodes = (int32_t)all;
    if (made != NULL) {
        made->timeout_s = o->timeout_s;
    }
    return made;
}

/* Sets the fields of `levels` from first[r], the lowest rank of r's node. The ranks of a node keep
 * their order. */
static void dpari_mpi_sort_nodes(dpari_mpi_levels *levels, const int *first, int32_t n)
{
    int32_t r, k;
    levels->nodes = 0;
    for (r = 0; r < n; r++) {
        levels->node_of[r] = first[r] == r ? levels->nodes++ : levels->node_of[first[r]];
    }
    levels->begin = levels->member + n;
    levels->lane = levels->begin + levels->nodes + 1;
    memset(levels->begin, 0, (size_t)(levels->nodes + 1) * sizeof *levels->begin);
    for (r = 0; r < n; r++) { /* begin[k + 1] counts the ranks of node k */
        levels->lane_of[r] = levels->begin[levels->node_of[r] + 1]++;
    }
    levels->lanes = n;
    levels->even = 1;
    for (k = 0; k < levels->nodes; k++) {
        levels->lanes = (int32_t)dpari_least(levels->lanes, levels->begin[k + 1]);
        levels->even &= levels->begin[k + 1] == levels->begin[1];
        levels->begin[k + 1] += levels->begin[k];
    }
    levels->in_order = 1;
    for (r = 0; r < n; r++) {
        const int32_t at = levels->begin[levels->node_of[r]] + levels->lane_of[r];
        levels->member[at] = r;
        levels->in_order &= at == r;
    }
}

DPARI_INTERNAL dpar_status dpari_mpi_find_levels(dpar_comm *comm)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_levels *levels = &context->level;
    const size_t n = (size_t)comm->size;
    int mine = (int)comm->rank, *first;
    dpar_status status;
    dpar_why said;
    int32_t k, lane;
    if (comm->node == NULL) {
        return DPAR_OK;
    }
    status = dpar_broadcast(comm->node, &mine, 1, DPAR_I32, 0, NULL);
    said = comm->node->why;
    first = (int *)malloc(n * sizeof *first);
    levels->node_of = (int32_t *)malloc((5 * n + 1) * sizeof *levels->node_of);
    if (first == NULL || levels->node_of == NULL) {
        status = dpari_say(DPAR_E_MEMORY, &said, "no memory for the nodes of %d ranks (%ld bytes)",
                           comm->size,
                           (int64_t)(n * sizeof *first + (5 * n + 1) * sizeof *levels->node_of));
    }
    status = dpari_mpi_all_well(context, status, &said);
    if (status >= 0) {
        status =
            dpari_mpi_failed(context, NULL, "finding the nodes",
                             MPI_Allgather(&mine, 1, MPI_INT, first, 1, MPI_INT, context->main));
    }
    if (status >= 0) {
        levels->lane_of = levels->node_of + n;
        levels->member = levels->lane_of + n;
        dpari_mpi_sort_nodes(levels, first, comm->size);
    }
    free(first);
    if (status < 0) {
        return status;
    }
    levels->node = levels->node_of[comm->rank];
    lane = levels->lane_of[comm->rank];
    for (k = 0; k < levels->nodes; k++) {
        levels->lane[k] = levels->begin[k] + lane < levels->begin[k + 1]
                              ? levels->member[levels->begin[k] + lane]
                              : -1;
    }
    if (levels->nodes == comm->size) {
        return DPAR_OK;
    }
    status = dpar_comm_split(comm->node, 0, 0, &levels->inside);
    said = comm->node->why;
    status = dpari_mpi_all_well(context, status, &said);
    if (status >= 0) {
        levels->inside->timeout_s = -1; /* `comm` has the deadline */
    }
    return status;
}

/* Sets *first, which holds this rank, to the lowest rank of its node. Collective. */
static int dpari_mpi_first_here(const dpari_mpi_ctx *context, int *first)
{
    MPI_Comm node = MPI_COMM_NULL;
    int code;
    if (context->level.node_of != NULL) {
        *first = (int)context->level.member[context->level.begin[context->level.node]];
        return MPI_SUCCESS;
    }
    code = dpari_mpi_node_of(context->main, &node);
    if (code == MPI_SUCCESS) {
        code = MPI_Bcast(first, 1, MPI_INT, 0, node);
        MPI_Comm_free(&node);
    }
    return code;
}

/* Numbers the nodes in the order of their lowest ranks: of[r], which held the lowest rank of r's
 * node, becomes the number of that node. Sets count[r] to the bytes of the name that rank r sends,
 * and begin[r] to the offset at which they are stored. Returns the number of nodes. */
static int32_t dpari_mpi_number_hosts(int *of, int *count, int *begin, int32_t n)
{
    int32_t r, hosts = 0;
    for (r = 0; r < n; r++) {
        const int first = of[r] == r;
        begin[r] = (int)hosts * DPARI_MPI_NAME;
        count[r] = first ? (int)DPARI_MPI_NAME : 0;
        of[r] = first ? (int)hosts : of[of[r]];
        hosts += first;
    }
    return hosts;
}

static void dpari_mpi_host_here(char *name, int number)
{
    char words[MPI_MAX_PROCESSOR_NAME + 1];
    int length = 0;
    dpar_text t;
    memset(name, 0, DPARI_MPI_NAME);
    memset(words, 0, sizeof words);
    dpar_text_init(&t, name, DPARI_MPI_NAME - 8);
    if (MPI_Get_processor_name(words, &length) == MPI_SUCCESS) {
        dpar_text_put(&t, words);
    }
    if (dpari_mpi_env("DPAR_MPI_NODE") > 0) { /* simulated nodes have the same name, so number
                                                 them */
        dpar_text_init(&t, name + strlen(name), 8);
        dpari_text_say(&t, "#%d", (int32_t)number);
    }
}

DPARI_INTERNAL dpar_status dpari_mpi_find_hosts(dpari_mpi_ctx *context)
{
    dpari_mpi_world *world = context->world;
    const int32_t n = context->comm.size;
    const char *finding = "finding the nodes";
    int *count = (int *)malloc((size_t)n * 2 * sizeof *count), first = (int)context->comm.rank,
        code;
    int32_t hosts = 0;
    char name[DPARI_MPI_NAME];
    dpar_status status = DPAR_OK;
    dpar_why said;
    memset(&said, 0, sizeof said);
    world->host_of = (int32_t *)malloc((size_t)n * sizeof *world->host_of);
    if (count == NULL || world->host_of == NULL) {
        status = dpari_say(DPAR_E_MEMORY, &said, "no memory for the nodes of %d ranks (%ld bytes)",
                           n, n * (int64_t)(2 * sizeof *count + sizeof *world->host_of));
    }
    code = dpari_mpi_first_here(context, &first);
    if (code == MPI_SUCCESS) {
        status = dpari_mpi_all_well(context, status, &said);
    } else {
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    if (status >= 0) {
        code = MPI_Allgather(&first, 1, MPI_INT, world->host_of, 1, MPI_INT, context->main);
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    if (status >= 0) {
        hosts = dpari_mpi_number_hosts(world->host_of, count, count + n, n);
    }
    if (hosts > 1) {
        world->host = (char(*)[DPARI_MPI_NAME])calloc((size_t)hosts, DPARI_MPI_NAME);
        if (world->host == NULL) {
            status =
                dpari_say(DPAR_E_MEMORY, &said, "no memory for the names of %d nodes (%ld bytes)",
                          hosts, (int64_t)hosts * DPARI_MPI_NAME);
        }
        status = dpari_mpi_all_well(context, status, &said);
        dpari_mpi_host_here(name, world->host_of[context->comm.rank]);
    }
    if (hosts > 1 && status >= 0) {
        code = MPI_Allgatherv(name, count[context->comm.rank], MPI_CHAR, world->host, count,
                              count + n, MPI_CHAR, context->main);
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    free(count);
    if (status >= 0) {
        code = MPI_Comm_group(context->main, &world->all);
        status = dpari_mpi_failed(context, NULL, finding, code);
    }
    return status;
}

/* ==== mpi/tuning.c ==== */

/* Measures which sizes are faster by which path. Each measurement tries a few sizes, takes the
 * shortest of several times by one rank's clock, and sends that rank's result to all, because all
 * ranks must choose the same path. Only paths that give the same bits depend on it. */

/* Returns zeroed memory on all ranks. Returns NULL on all, and breaks the communicator, if one has
 * none. Collective. */
static void *dpari_mpi_buffers(dpari_mpi_ctx *context, int64_t bytes, dpar_status *status)
{
    void *memory = calloc(1, (size_t)bytes + 1);
    dpar_why said;
    memset(&said, 0, sizeof said);
    *status = DPAR_OK;
    if (memory == NULL) {
        *status = dpari_say(DPAR_E_MEMORY, &said,
                            "no memory for the buffers of a measurement (%ld bytes)", bytes);
    }
    *status = dpari_mpi_all_well(context, *status, &said);
    if (*status < 0) {
        free(memory);
        memory = NULL;
    }
    return memory;
}

/* ---- which messages are sent in two parts ----
 *
 * MPI sends short messages at once (eagerly), but announces long ones first, which takes another
 * round trip (the rendezvous protocol). Two messages just below this limit may therefore be faster
 * than one above it. The limit, and whether two messages are faster, is measured once, between the
 * first two nodes, in both directions at a time, as in a halo exchange. The times of the first of
 * the two ranks decide, because both have to take the same steps. */

typedef struct dpari_mpi_probe {
    MPI_Comm comm;
    int peer, decides;
    unsigned char *memory; /* two halves: for messages that are received, and for those that are
                              sent */
} dpari_mpi_probe;

/* Returns the seconds of an exchange of `bytes` as `parts` messages in each direction: the shortest
 * of TURNS times. 0 if MPI fails. */
static double dpari_mpi_exchange_time(const dpari_mpi_probe *p, int bytes, int parts)
{
    enum { TURNS = 6, MOST = 2 };
    const int part = bytes / parts, tag = DPARI_MPI_TAG_PIECE;
    MPI_Request request[2 * MOST];
    MPI_Status state[2 * MOST];
    double best = 0, time[2];
    int turn, i, code = MPI_SUCCESS;
    for (turn = 0; turn < TURNS && code == MPI_SUCCESS; turn++) {
        const double began = MPI_Wtime();
        for (i = 0; i < parts; i++) {
            MPI_Irecv(p->memory + i * part, part, MPI_BYTE, p->peer, tag, p->comm, &request[i]);
        }
        for (i = 0; i < parts; i++) {
            MPI_Isend(p->memory + 2 * DPARI_MPI_AT_ONCE_LAST + i * part, part, MPI_BYTE, p->peer,
                      tag, p->comm, &request[parts + i]);
        }
        code = MPI_Waitall(2 * parts, request, state);
        time[0] = MPI_Wtime() - began;
        best = turn == 0 || time[0] < best ? time[0] : best;
    }
    time[0] = time[1] = best;
    if (code == MPI_SUCCESS && p->decides) {
        code = MPI_Send(time, 1, MPI_DOUBLE, p->peer, tag, p->comm);
    } else if (code == MPI_SUCCESS) {
        code = MPI_Recv(time + 1, 1, MPI_DOUBLE, p->peer, tag, p->comm, MPI_STATUS_IGNORE);
    }
    return code == MPI_SUCCESS ? time[1] : 0;
}

/* Returns the bytes of the longest message that MPI sends at once, if two such messages are clearly
 * faster than one above the limit, otherwise 0. Finds the largest jump of the times, by a factor of
 * at least 1.5, and narrows it down by bisection. */
static int dpari_mpi_measure_at_once(const dpari_mpi_probe *p)
{
    int bytes, low = 0, high = 0;
    double before = dpari_mpi_exchange_time(p, DPARI_MPI_AT_ONCE_FIRST, 1), jump = 1.5, border = 0;
    for (bytes = DPARI_MPI_AT_ONCE_FIRST; bytes < DPARI_MPI_AT_ONCE_LAST; bytes += bytes / 4) {
        const double now = dpari_mpi_exchange_time(p, bytes + bytes / 4, 1);
        if (now > jump * before) {
            jump = now / before;
            border = (now + before) / 2;
            low = bytes;
            high = bytes + bytes / 4;
        }
        before = now;
    }
    while (high - low > low / 64) {
        const int middle = low + (high - low) / 2;
        const int above = dpari_mpi_exchange_time(p, middle, 1) > border;
        low = above ? low : middle;
        high = above ? middle : high;
    }
    bytes = low + low / 2;
    return low > 0 && dpari_mpi_exchange_time(p, bytes, 2) <
                          0.85 * dpari_mpi_exchange_time(p, bytes, 1)
               ? low - DPARI_MPI_AT_ONCE_SPARE
               : 0;
}

DPARI_INTERNAL dpar_status dpari_mpi_find_at_once(dpari_mpi_ctx *context)
{
    const dpari_mpi_levels *levels = &context->level;
    const int first = levels->node_of != NULL ? levels->member[0] : 0;
    const int second =
        levels->node_of != NULL && levels->nodes > 1 ? levels->member[levels->begin[1]] : 1;
    const int me = (int)context->comm.rank, measures = me == first || me == second;
    dpari_mpi_probe probe;
    dpar_status status;
    int found = 0;
    if (context->comm.size == 1 || levels->nodes == 1) {
        return DPAR_OK;
    }
    probe.comm = context->side;
    probe.peer = me == first ? second : first;
    probe.decides = me == first;
    probe.memory = (unsigned char *)dpari_mpi_buffers(
        context, measures ? 4 * DPARI_MPI_AT_ONCE_LAST : 0, &status);
    if (status < 0) {
        return status;
    }
    if (measures) {
        found = dpari_mpi_measure_at_once(&probe);
    }
    free(probe.memory);
    status = dpari_mpi_failed(context, NULL, "measuring messages",
                              MPI_Bcast(&found, 1, MPI_INT, first, context->side));
    context->world->at_once = found;
    return status;
}

/* Sets *best, on all ranks, to the seconds of an all-reduce of `bytes`: the shortest of TURNS times
 * on rank 0. */
static dpar_status dpari_mpi_sum_time(dpar_comm *comm, int64_t bytes, int64_t lanes_from, float *in,
                                      double *best)
{
    enum { TURNS = 5 };
    dpari_mpi_world *world = dpari_mpi_ctx_of(comm)->world;
    dpar_status status = DPAR_OK;
    double time = 0;
    int32_t turn;
    world->lanes_from = lanes_from;
    for (turn = 0; turn < TURNS && status == DPAR_OK; turn++) {
        const double began = MPI_Wtime();
        status = dpar_all_reduce(comm, in, in + bytes / 4, bytes / 4, DPAR_F32, DPAR_SUM, NULL);
        time = MPI_Wtime() - began;
        *best = turn == 0 || time < *best ? time : *best;
    }
    return status == DPAR_OK ? dpar_broadcast(comm, best, 1, DPAR_F64, 0, NULL) : status;
}

/* Sets *faster to 1 if an all-to-all with pieces of `bytes` is clearly faster by nodes, as rank 0
 * measures it, otherwise to 0. Several calls between barriers are timed together, because a single
 * call seems short on a rank that enters last. The two methods alternate, and the shortest time of
 * each counts. counts: [size] scratch. */
static dpar_status dpari_mpi_deal_time(dpar_comm *comm, int32_t varies, int64_t bytes, char *in,
                                       int64_t *counts, int32_t *faster)
{
    enum { TURNS = 4, CALLS = 5 };
    dpari_mpi_world *world = dpari_mpi_ctx_of(comm)->world;
    dpar_status status = DPAR_OK;
    double best[2] = {0, 0};
    dpar_call call;
    int32_t turn, k, r;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_ALL_TO_ALL;
    call.type = DPAR_U8;
    call.in = in;
    call.out = in + bytes * comm->size;
    call.variable_counts = varies;
    call.count = varies ? 0 : bytes;
    call.in_count = call.out_count = varies ? counts : NULL;
    for (r = 0; r < comm->size; r++) {
        counts[r] = bytes;
    }
    for (turn = 0; turn < 2 * TURNS && status == DPAR_OK; turn++) {
        double time, began;
        world->dealt[varies] = turn % 2 ? bytes : -1;
        status = dpar_barrier(comm, NULL);
        began = MPI_Wtime();
        for (k = 0; k < CALLS && status == DPAR_OK; k++) {
            status = dpari_post(comm, &call, NULL);
        }
        if (status == DPAR_OK) {
            status = dpar_barrier(comm, NULL);
        }
        time = MPI_Wtime() - began;
        if (turn < 2 || time < best[turn % 2]) {
            best[turn % 2] = time;
        }
    }
    *faster = best[1] < 0.85 * best[0];
    return status == DPAR_OK ? dpar_broadcast(comm, faster, 1, DPAR_I32, 0, NULL) : status;
}

DPARI_INTERNAL dpar_status dpari_mpi_find_dealt(dpar_comm *comm)
{
    dpari_mpi_ctx *x = dpari_mpi_ctx_of(comm);
    const int32_t lanes = x->level.lanes;
    const int64_t last = lanes <= 8 ? DPARI_MPI_DEALT : 8 * DPARI_MPI_DEALT / lanes / 8 * 8;
    int64_t *counts;
    int32_t varies;
    dpar_status status;
    char *in;
    x->world->dealt[0] = x->world->dealt[1] = last;
    if (x->level.inside == NULL || lanes == 1 || x->level.nodes == 1 ||
        comm->size > DPARI_MPI_TRADED) {
        return DPAR_OK;
    }
    counts = (int64_t *)dpari_mpi_buffers(x, comm->size * (8 + 2 * last), &status);
    if (status < 0) {
        return status;
    }
    in = (char *)(counts + comm->size);
    for (varies = 0; varies < 2; varies++) {
        int64_t bytes, found = -1;
        int32_t faster = 1;
        for (bytes = dpari_least(DPARI_MPI_DEALT_FIRST, last);
             status == DPAR_OK && faster && bytes <= last; bytes *= 8) {
            status = dpari_mpi_deal_time(comm, varies, bytes, in, counts, &faster);
            found = faster ? bytes : found;
        }
        x->world->dealt[varies] = found;
    }
    free(counts);
    x->records = 0; /* a report shows what the user called */
    return status;
}

DPARI_INTERNAL dpar_status dpari_mpi_find_lanes(dpar_comm *comm)
{
    dpari_mpi_ctx *x = dpari_mpi_ctx_of(comm);
    const int64_t first = DPARI_MPI_LANES_FIRST, last = DPARI_MPI_LANES_LAST;
    int64_t bytes, found = 4 * last;
    dpar_status status;
    float *in;
    if (x->level.inside == NULL || x->level.lanes == 1 || x->level.nodes == 1) {
        return DPAR_OK;
    }
    in = (float *)dpari_mpi_buffers(x, 2 * last, &status);
    if (status < 0) {
        return status;
    }
    for (bytes = first; status == DPAR_OK && bytes <= last && found > last; bytes *= 4) {
        double alone = 0, lanes = 0;
        status = dpari_mpi_sum_time(comm, bytes, 2 * bytes, in, &alone);
        if (status == DPAR_OK) {
            status = dpari_mpi_sum_time(comm, bytes, 0, in, &lanes);
        }
        found = lanes < alone ? bytes : found;
    }
    free(in);
    x->world->lanes_from = found;
    x->records = 0; /* a report shows what the user called */
    return status;
}

/* ==== mpi/engine_calls.c ==== */

/* Implements the functions of dpar_engine that do not make or free communicators.
 *
 * A message is posted as a plain MPI request if possible (point_to_point.c), and every other call
 * becomes a task (progress.c). A blocking collective is a task without a work. Memory is that of
 * the node's communicator, so that the node's ranks can access it; without one it is the C
 * library's, with a header that links it into the world's list. */

/* Fails with DPAR_E_ARG, and a message, for a tag that MPI does not allow. */
static dpar_status dpari_mpi_tag_fits(dpari_mpi_ctx *context, const dpar_call *call)
{
    if (!dpari_kind_sends(call->kind) || call->tag <= context->tag_most) {
        return DPAR_OK;
    }
    return dpari_wrong(&context->comm.why, "%s: the tag is %d, but this MPI allows at most %d",
                       dpar_call_name(call->kind), call->tag, context->tag_most);
}

/* Waits for a task without a work, and recycles it. */
static dpar_status dpari_mpi_settle(dpari_mpi_task *task)
{
    dpar_status status;
    if (task->finished != DPARI_MPI_FINISHED) {
        dpari_mpi_await(task, &task->finished);
    }
    status = task->status;
    if (task->requests == 0) {
        dpari_mpi_give(task);
    }
    return status;
}

static dpar_status dpari_mpi_run_collective(dpar_comm *comm, const dpar_call *call)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_task *task;
    int32_t block = context->options.blocking;
    int finalized = 0;
    if (call->kind == DPAR_CALL_BARRIER) { /* freeing a plan or grid begins with a barrier */
        MPI_Finalized(&finalized);
        if (finalized) {
            comm->status =
                dpari_wrong(&comm->why, "MPI is finalised already: free plans, grids and "
                                        "communicators before MPI_Finalize");
            return comm->status;
        }
    }
    if (block) {
        dpari_mpi_bring_along(context);
    }
    task = dpari_mpi_begin(context, call, NULL, block);
    return task != NULL ? dpari_mpi_settle(task) : (dpar_status)DPAR_E_MEMORY;
}

static dpar_status dpari_mpi_post_one(dpari_mpi_ctx *context, const dpar_call *call,
                                      dpar_work *work)
{
    return dpari_mpi_post_light(context, call, work) ||
                   dpari_mpi_begin(context, call, work, 0) != NULL
               ? (dpar_status)DPAR_OK
               : (dpar_status)DPAR_E_MEMORY;
}

DPARI_INTERNAL dpar_status dpari_mpi_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpar_status status = dpari_mpi_tag_fits(context, call);
    if (status < 0) {
        return status;
    }
    status = dpari_mpi_post_one(context, call, work);
    return status >= 0 && work->status < 0 ? work->status : status;
}

DPARI_INTERNAL dpar_status dpari_mpi_test(dpar_work *work)
{
    dpari_mpi_task *task;
    if (work->phase == DPARI_MPI_LIGHT) {
        dpari_mpi_light_look(work, work->state[DPARI_MPI_LOOKS]++);
        if (work->phase == DPARI_MPI_LIGHT) {
            return DPAR_MORE;
        }
    }
    if (work->phase != DPARI_MPI_FINISHED) {
        memcpy(&task, work->state, sizeof task);
        dpari_mpi_pump(task->ctx->world);
        if (work->phase != DPARI_MPI_FINISHED) {
            dpari_mpi_look_round(task);
            return DPAR_MORE;
        }
    }
    return work->status;
}

DPARI_INTERNAL dpar_status dpari_mpi_wait(dpar_work *work)
{
    dpari_mpi_task *task;
    int64_t look;
    for (look = 0; work->phase == DPARI_MPI_LIGHT; look++) {
        dpari_mpi_light_look(work, look);
    }
    if (work->phase != DPARI_MPI_FINISHED) {
        memcpy(&task, work->state, sizeof task);
        dpari_mpi_await(task, &work->phase);
    }
    return work->status;
}

DPARI_INTERNAL dpar_status dpari_mpi_run(dpar_comm *comm, const dpar_call *call)
{
    dpar_work work;
    dpar_status status;
    if (!dpari_kind_sends(call->kind)) {
        return dpari_mpi_run_collective(comm, call);
    }
    status = dpari_mpi_post(comm, call, &work);
    return status < 0 ? status : dpari_mpi_wait(&work);
}

DPARI_INTERNAL dpar_status dpari_mpi_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                           dpar_work *works)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpar_status status = DPAR_OK;
    int32_t i;
    if (works == NULL) {
        return dpari_batch_now(comm, calls, n);
    }
    for (i = 0; i < n && status >= 0; i++) {
        status = dpari_mpi_tag_fits(context, &calls[i]);
    }
    for (i = 0; i < n && status >= 0; i++) {
        status = dpari_mpi_post_one(context, &calls[i], &works[i]);
    }
    return status;
}

DPARI_INTERNAL dpar_status dpari_mpi_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_memory *m;
    void *base;
    uintptr_t at;
    if (context->world->node != NULL) { /* memory that the node's ranks can access */
        dpar_status status = dpar_comm_alloc(context->world->node, bytes, memory);
        if (status < 0) {
            comm->why = context->world->node->why;
        }
        return status;
    }
    base = bytes > PTRDIFF_MAX - 8192 ? NULL : calloc(1, (size_t)bytes + 8192);
    if (base == NULL) {
        return dpari_say(DPAR_E_MEMORY, &comm->why, "dpar_comm_alloc: no memory for %ld bytes",
                         bytes);
    }
    at = ((uintptr_t)base + sizeof *m + 4095u) & ~(uintptr_t)4095u;
    m = (dpari_mpi_memory *)(void *)((char *)base + (at - (uintptr_t)base) - sizeof *m);
    m->base = base;
    m->before = NULL;
    m->after = context->world->memory;
    if (m->after != NULL) {
        m->after->before = m;
    }
    context->world->memory = m;
    *memory = m + 1;
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_mpi_release(dpar_comm *comm, void *memory)
{
    dpari_mpi_world *world = dpari_mpi_ctx_of(comm)->world;
    dpari_mpi_memory *m = (dpari_mpi_memory *)memory;
    if (m == NULL) {
        return;
    }
    if (world->node != NULL) {
        dpar_comm_release(world->node, memory);
        return;
    }
    m--;
    if (m->before != NULL) {
        m->before->after = m->after;
    } else {
        world->memory = m->after;
    }
    if (m->after != NULL) {
        m->after->before = m->before;
    }
    if (!world->held) {
        free(m->base);
    }
}

DPARI_INTERNAL dpar_status dpari_mpi_progress(dpar_comm *comm, int32_t on)
{
    int level = MPI_THREAD_SINGLE;
    if (!on) { /* waits in a node's memory call this to advance MPI messages */
        dpari_mpi_pump(dpari_mpi_ctx_of(comm)->world);
        return DPAR_OK;
    }
    MPI_Query_thread(&level);
    if (level == MPI_THREAD_MULTIPLE) {
        return dpari_say(DPAR_E_SYSTEM, &comm->why,
                         "dpar_comm_progress: the MPI engine has no progress thread: call "
                         "dpar_test now and then, or enable MPI's own progress thread");
    }
    return dpari_say(DPAR_E_SYSTEM, &comm->why,
                     "dpar_comm_progress: no progress thread is possible: MPI was initialised "
                     "without MPI_THREAD_MULTIPLE");
}

DPARI_INTERNAL void dpari_mpi_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    dpari_mpi_break(dpari_mpi_ctx_of(comm), status < 0 ? status : (dpar_status)DPAR_E_PEER,
                    text != NULL ? text : "aborted", 1);
}

DPARI_INTERNAL void dpari_mpi_report(dpar_comm *comm, dpar_text *out)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    int32_t r;
    dpari_mpi_listen(context);
    dpari_record_report(out, comm, context->ring, context->records);
    for (r = 0; context->heard != NULL && r < comm->size; r++) {
        const dpari_record *h = &context->heard[r].call;
        if (h->sequence != 0) {
            dpari_text_say(out, "rank %d reported that it waits in ", r);
            dpari_mpi_describe_note(out, h);
            dpari_text_char(out, '\n');
        }
    }
}

DPARI_INTERNAL void dpari_mpi_describe(dpar_comm *comm, dpar_text *out)
{
    const dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    if (comm->node == NULL) {
        dpar_text_put(out, ", all communication by MPI messages: ");
        dpar_text_put(out, context->world->flat.text);
        return;
    }
    dpari_text_say(out, " on %d node%s; the %d rank%s of this node by its shared memory",
                   context->level.nodes,
                   context->level.nodes == 1 ? "" : "s that exchange MPI messages",
                   comm->node->size, comm->node->size == 1 ? "" : "s");
}

/* ==== mpi/closing.c ==== */

/* Frees a communicator in an order that leaves no rank waiting.
 *
 * A barrier comes first, so that all ranks have begun to close. Then all notes that are still on
 * their way are received, works that nobody has waited for are ended, the node's communicator is
 * closed, and at last MPI's communicators are freed. If the communicator is broken, or MPI is
 * finalised, the steps that need other ranks are left out. Memory that MPI may still use is kept
 * for ever. The data of the world is freed with its last communicator. */

/* Ends works of the context that nobody has waited for. Keeps their memory, because MPI may still
 * use it. Returns their number. */
static int32_t dpari_mpi_lose_tasks(dpari_mpi_ctx *context)
{
    dpari_mpi_task *task, *after;
    int32_t lost = 0;
    dpar_work *work, *next;
    for (work = context->world->light; work != NULL; work = next) {
        next = work->next;
        if (work->comm == &context->comm && dpari_mpi_grow(work) == NULL) {
            dpari_mpi_light_lose(work);
            lost++;
        }
    }
    for (task = context->world->tasks; task != NULL; task = after) {
        after = task->after;
        if (task->ctx == context) {
            work = task->work;
            task->work = NULL;
            dpari_mpi_end(task, DPAR_E_ARG);
            if (work != NULL) {
                work->comm = NULL; /* it counts as finished */
                work->status = DPAR_E_ARG;
                work->phase = DPARI_MPI_FINISHED;
            }
            lost++;
        }
    }
    return lost;
}

DPARI_INTERNAL void dpari_mpi_close_part(dpar_comm *part)
{
    if (part != NULL) {
        part->timeout_s = part->timeout_s > 0 ? dpari_leastf(part->timeout_s, 5) : 5;
        (void)dpar_comm_free(part);
    }
}

DPARI_INTERNAL void dpari_mpi_leave_world(dpari_mpi_world *world, int alive)
{
    dpari_mpi_task *task, *next;
    dpari_mpi_memory *m, *after;
    dpar_comm *comm;
    world->communicators--;
    if (world->communicators > 0) {
        return;
    }
    if (world->held && world->node != NULL) {
        dpari_group_of(world->node)->world->owns = DPARI_OWNS_FILE;
    }
    dpari_mpi_close_part(world->node);
    for (task = world->spare; task != NULL; task = next) {
        next = task->after;
        if (task->room > 1) {
            free(task->piece);
        }
        free(task);
    }
    for (m = world->held ? NULL : world->memory; m != NULL; m = after) {
        after = m->after;
        free(m->base);
    }
    while ((comm = dpari_ended_take(&world->closed)) != NULL) {
        free(dpari_mpi_ctx_of(comm));
    }
    free(world->host_of);
    free(world->host);
    if (alive) {
        if (world->all != MPI_GROUP_NULL) {
            MPI_Group_free(&world->all);
        }
        MPI_Op_free(&world->max);
        MPI_Op_free(&world->min);
        MPI_Op_free(&world->sum);
    }
    free(world);
}

static void dpari_mpi_close_inside(dpari_mpi_ctx *context)
{
    dpari_mpi_close_part(context->level.inside);
    context->level.inside = NULL;
    free(context->level.node_of);
    context->level.node_of = NULL;
}

/* Runs the barrier with which closing begins. While it waits, all operations in progress advance,
 * also those of other communicators of the world, which would not advance while the node's memory
 * is closed. After it all ranks have begun to close, so that no rank needs works any more that
 * nobody has waited for. */
static dpar_status dpari_mpi_meet_at_end(dpar_comm *comm)
{
    dpar_call barrier;
    memset(&barrier, 0, sizeof barrier);
    barrier.kind = DPAR_CALL_BARRIER;
    barrier.root = DPARI_CLOSE;
    return dpari_mpi_run(comm, &barrier);
}

/* Closing the world's first communicator closes those that were split from it. If it is broken,
 * these are broken first, because other ranks may be waiting in them. */
static void dpari_mpi_close_split(dpari_mpi_ctx *context, int finalized)
{
    dpari_mpi_ctx *part;
    while (context->older == NULL && (part = context->world->open) != context) {
        if (!finalized && context->comm.status < 0) {
            (void)dpari_mpi_break(part, context->comm.status, context->comm.why.text, 1);
        }
        dpari_mpi_close_part(&part->comm);
    }
}

static void dpari_mpi_unlist(dpari_mpi_ctx *context)
{
    dpari_mpi_ctx **link = &context->world->open;
    while (*link != context) {
        link = &(*link)->older;
    }
    *link = context->older;
}

DPARI_INTERNAL dpar_status dpari_mpi_close(dpar_comm *comm)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    dpari_mpi_world *world = context->world;
    int finalized = 0, kept;
    int32_t lost;
    dpar_status met = DPAR_OK, read = DPAR_OK;
    MPI_Finalized(&finalized);
    if (!finalized && comm->status >= 0) {
        met = dpari_mpi_meet_at_end(comm);
        read = met >= 0 ? dpari_mpi_last_notes(context) : (dpar_status)DPAR_OK;
    }
    dpari_mpi_close_split(context, finalized);
    dpari_mpi_unlist(context);
    lost = dpari_mpi_lose_tasks(context);
    dpari_mpi_close_inside(context);
    if (comm->node != NULL && comm->status < 0) {
        dpar_comm_abort(comm->node, comm->status, context->inward.text);
    }
    if (comm->node != context->world->node) {
        dpari_mpi_close_part(comm->node);
    }
    if (!finalized && context->comm.status < 0) { /* if it is not broken, dpari_mpi_begin has read
                                                     the notes */
        dpari_mpi_listen(context);
    }
    kept = finalized || read < 0 || !dpari_mpi_letters_gone(context);
    if (!finalized && context->comm.status >= 0) { /* to free a broken one might never return */
        MPI_Comm_free(&context->main);
        MPI_Comm_free(&context->side);
    }
    if (!kept) { /* MPI no longer uses this memory */
        free(context->waiting);
        free(context->broken);
        free(context->heard);
        free(context->told);
        free(context->scratch);
        comm = dpari_ended_keep(&world->closed, comm);
        free(comm != NULL ? dpari_mpi_ctx_of(comm) : NULL);
    } else {
        dpari_on_end_all(comm);
    }
    dpari_mpi_leave_world(world, !finalized);
    if (lost > 0) {
        return DPAR_E_ARG;
    }
    return met < 0 ? met : read;
}

/* ==== mpi/shrink.c ==== */

/* Shrinks a communicator by ULFM, the fault tolerance of Open MPI 5: breaks it, so that no rank
 * waits in it any more, agrees with the ranks that are left, with a deadline, and lets MPI make a
 * communicator of them. Without ULFM it only reports that. */

#if defined(OMPI_HAVE_MPI_EXT_FTMPI)
/* Waits, with the deadline, until all remaining ranks have called shrink. MPIX_Comm_shrink has no
 * deadline. */
static dpar_status dpari_mpi_shrink_meet(dpari_mpi_ctx *context, dpar_why *why)
{
    dpari_stopwatch watch = {0, 0};
    MPI_Request request;
    int flag = 1, done = 0, code = MPIX_Comm_iagree(context->main, &flag, &request);
    while (code == MPI_SUCCESS && !done) { /* if a rank has died the test fails when it is done */
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
            break;
        }
        if (context->comm.timeout_s > 0 && dpari_os_waited(&watch) > context->comm.timeout_s) {
            return dpari_say(DPAR_E_TIMEOUT, why,
                             "shrink on rank %d: not all remaining ranks called it within %ld ms",
                             context->comm.rank, (int64_t)(context->comm.timeout_s * 1e3));
        }
        DPARI_MPI_YIELD();
    }
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "MPIX_Comm_iagree", code);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_mpi_shrink_part(dpari_mpi_ctx *context, MPI_Comm *part,
                                                 dpar_why *why)
{
    dpar_comm *comm = &context->comm;
    dpar_status status;
    dpar_why said;
    int code;
    /* If the communicator is broken already, its first error is kept. */
    (void)dpari_say(DPAR_E_PEER, &said, "rank %d called dpar_comm_shrink", comm->rank);
    dpar_comm_abort(comm, DPAR_E_PEER, said.text);
    status = dpari_mpi_shrink_meet(context, why);
    if (status < 0) {
        return status;
    }
    code = MPIX_Comm_shrink(context->main, part);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "MPIX_Comm_shrink", code);
    }
    return DPAR_OK;
}
#else
DPARI_INTERNAL dpar_status dpari_mpi_shrink_part(dpari_mpi_ctx *context, MPI_Comm *part,
                                                 dpar_why *why)
{
    (void)context;
    (void)part;
    return dpari_say(DPAR_E_SYSTEM, why,
                     "shrink: this MPI has no ULFM (MPIX_Comm_shrink): a job on several nodes "
                     "cannot continue after a rank has died");
}
#endif

DPARI_INTERNAL void dpari_mpi_shrink_map(const dpari_mpi_ctx *context, MPI_Comm part, int32_t *was)
{
    MPI_Group of, in;
    int n = 0, r, old;
    MPI_Comm_size(part, &n);
    MPI_Comm_group(part, &of);
    MPI_Comm_group(context->main, &in);
    for (r = 0; r < n && was != NULL; r++) {
        MPI_Group_translate_ranks(of, 1, &r, in, &old);
        was[r] = (int32_t)old;
    }
    MPI_Group_free(&of);
    MPI_Group_free(&in);
}

/* ==== mpi/mpi_make.c ==== */

/* Makes, splits and shrinks communicators over MPI.
 *
 * All ranks first compare their options, and find out which of them share memory (nodes.c). If all
 * ranks share one node's memory, the shared-memory engine's communicator is returned, and nothing
 * of this engine remains. Otherwise the first communicator makes the world, finds its nodes, and
 * measures which paths are faster (tuning.c). A split does the same without the measurements. Each
 * step that may fail on one rank is followed by a comparison of the results, so that all ranks fail
 * together. */

static int32_t dpari_mpi_tag_most(MPI_Comm comm)
{
    void *value = NULL;
    int found = 0;
    if (MPI_Comm_get_attr(comm, MPI_TAG_UB, &value, &found) != MPI_SUCCESS || !found) {
        return 32767;
    }
    return (int32_t) * (int *)value;
}

/* Makes a communicator of the world over *main, which it owns from now on, also on failure. */
static dpar_status dpari_mpi_make(dpari_mpi_world *world, MPI_Comm *main,
                                  const dpar_mpi_desc *options, const dpar_engine *engine,
                                  dpar_comm **out, dpar_why *why)
{
    int rank = 0, size = 1, code;
    dpari_mpi_ctx *context;
    MPI_Comm_rank(*main, &rank);
    MPI_Comm_size(*main, &size);
    context = (dpari_mpi_ctx *)calloc(1, sizeof *context + (size_t)size * sizeof *context->rows);
    if (context == NULL) {
        MPI_Comm_free(main);
        return dpari_say(DPAR_E_MEMORY, why, "no memory for a communicator of %d ranks (%ld bytes)",
                         (int32_t)size,
                         (int64_t)(sizeof *context + (size_t)size * sizeof *context->rows));
    }
    context->main = *main;
    MPI_Comm_set_errhandler(context->main, MPI_ERRORS_RETURN);
    code = MPI_Comm_dup(context->main, &context->side);
    if (code != MPI_SUCCESS) {
        (void)dpari_mpi_say(why, "MPI_Comm_dup", code);
        MPI_Comm_free(main);
        free(context);
        return DPAR_E_SYSTEM;
    }
    MPI_Comm_set_errhandler(context->side, MPI_ERRORS_RETURN);
    context->rows = (const void **)(void *)(context + 1);
    context->world = world;
    world->communicators++;
    context->older = world->open;
    world->open = context;
    context->options = *options;
    context->tag_most = dpari_mpi_tag_most(context->main);
    context->comm.rank = (int32_t)rank;
    context->comm.size = (int32_t)size;
    context->comm.timeout_s = options->timeout_s;
    context->comm.context = context;
    context->comm.engine = *engine;
    *out = &context->comm;
    return DPAR_OK;
}

/* Finds the nodes of a new communicator, and measures sizes if it is the world's first one. Closes
 * it on failure. */
static dpar_status dpari_mpi_complete(dpar_comm **out, dpar_why *why)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(*out);
    dpari_mpi_levels *levels = &context->level;
    dpar_status status = dpari_mpi_find_levels(*out);
    if (status >= 0 && context->world->host_of == NULL) {
        status = dpari_mpi_find_hosts(context);
    }
    if (status >= 0 && context->world->host != NULL) {
        const char *here = dpari_mpi_host(context, context->comm.rank);
        if (levels->inside != NULL) {
            dpari_group_call(levels->inside, levels->member + levels->begin[levels->node], here);
        }
        if ((*out)->node != NULL) {
            dpari_group_call((*out)->node, NULL, here);
        }
    }
    if (status >= 0 && context->world->communicators == 1) {
        status = dpari_mpi_find_at_once(context);
        if (status == DPAR_OK) {
            status = dpari_mpi_find_lanes(*out);
        }
        if (status == DPAR_OK) {
            status = dpari_mpi_find_dealt(*out);
        }
    }
    if (status < 0) {
        (void)dpari_repeat(status, why, (*out)->why.text);
        (void)dpari_mpi_close(*out);
        *out = NULL;
    }
    return status;
}

/* MPI_Comm_split has no deadline. Therefore a check and a barrier, which have one, precede it.
 * There are two, because a rank that calls after the others have timed out may find the first one
 * complete, and then waits in the second. */
static dpar_status dpari_mpi_split(dpar_comm *comm, int32_t color, int32_t key, dpar_comm **out)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    MPI_Comm part = MPI_COMM_NULL;
    dpar_comm *node = NULL;
    dpar_call barrier;
    dpar_status status;
    dpar_why said;
    int code;
    memset(&barrier, 0, sizeof barrier);
    barrier.kind = DPAR_CALL_BARRIER;
    barrier.root = DPARI_SPLIT;
    status = dpari_mpi_run(comm, &barrier); /* after it, all earlier collectives have posted all
                                               their steps */
    if (status < 0) {
        return status;
    }
    code = MPI_Comm_split(context->main, color < 0 ? MPI_UNDEFINED : (int)color, (int)key, &part);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_failed(context, NULL, "split", code);
    }
    if (comm->node != NULL) {
        status = dpar_comm_split(comm->node, color, key, &node);
        said = comm->node->why;
        status = dpari_mpi_all_well(context, status, &said);
        if (status < 0) { /* it failed on this node or on another */
            dpari_mpi_close_part(node);
            if (part != MPI_COMM_NULL) {
                MPI_Comm_free(&part);
            }
            return status;
        }
    }
    if (part == MPI_COMM_NULL) {
        *out = NULL;
        return DPAR_OK;
    }
    status =
        dpari_mpi_make(context->world, &part, &context->options, &comm->engine, out, &comm->why);
    if (status < 0) {
        (void)dpar_comm_free(node);
        return status;
    }
    (*out)->timeout_s = comm->timeout_s;
    (*out)->node = node;
    return dpari_mpi_complete(out, &comm->why);
}

/* Shrinks a communicator of several nodes. On one node dpar_mpi_make returns a communicator of the
 * node's memory, which has its own shrink. */
static dpar_status dpari_mpi_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was, dpar_why *why)
{
    dpari_mpi_ctx *context = dpari_mpi_ctx_of(comm);
    MPI_Comm part = MPI_COMM_NULL;
    dpar_status status = dpari_mpi_shrink_part(context, &part, why);
    if (status < 0) {
        return status;
    }
    status = dpar_mpi_make(part, &context->options, out, why);
    if (status >= 0) {
        dpari_mpi_shrink_map(context, part, was);
    }
    MPI_Comm_free(&part);
    return status;
}

static void dpari_mpi_table(dpar_engine *e)
{
    memset(e, 0, sizeof *e);
    memcpy(e->name, "mpi", 4);
    e->run = dpari_mpi_run;
    e->post = dpari_mpi_post;
    e->test = dpari_mpi_test;
    e->wait = dpari_mpi_wait;
    e->batch = dpari_mpi_batch;
    e->split = dpari_mpi_split;
    e->shrink = dpari_mpi_shrink;
    e->alloc = dpari_mpi_alloc;
    e->release = dpari_mpi_release;
    e->progress = dpari_mpi_progress;
    e->abort = dpari_mpi_abort;
    e->report = dpari_mpi_report;
    e->describe = dpari_mpi_describe;
    e->close = dpari_mpi_close;
}

/* Fails with DPAR_E_ARG, and a message, if MPI is not running or `user` cannot be used. */
static dpar_status dpari_mpi_usable(MPI_Comm user, dpar_why *why)
{
    int yes = 0;
    MPI_Initialized(&yes);
    if (!yes) {
        return dpari_wrong(why, "MPI is not initialised: call MPI_Init first");
    }
    MPI_Finalized(&yes);
    if (yes) {
        return dpari_wrong(why, "MPI is finalised already");
    }
    if (user == MPI_COMM_NULL) {
        return dpari_wrong(why, "the communicator is MPI_COMM_NULL");
    }
    MPI_Comm_test_inter(user, &yes);
    if (yes) {
        return dpari_wrong(why, "the communicator is an inter-communicator, which has two groups: "
                                "join them with MPI_Intercomm_merge");
    }
    return DPAR_OK;
}

/* Sets the deadline if the options do not: to DPAR_TIMEOUT, or 300 s if that is not set. */
static dpar_status dpari_mpi_deadline(dpar_mpi_desc *o, dpar_why *why)
{
    dpari_site site;
    dpar_world_desc chosen;
    dpar_status status = DPAR_OK;
    memset(&chosen, 0, sizeof chosen);
    if (!(o->timeout_s < 0 || o->timeout_s > 0)) {
        dpari_site_here(&site);
        status = dpari_timeout_here(&site, &chosen, why);
        o->timeout_s = chosen.timeout_s < 0 || chosen.timeout_s > 0 ? chosen.timeout_s : 300;
    }
    return status;
}

/* Compares the options of all ranks, and sets flat if any rank sets it. Ranks with different
 * options would call different MPI functions, or wait for ranks that have timed out. */
static dpar_status dpari_mpi_same_options(MPI_Comm comm, dpar_mpi_desc *o, dpar_why *why)
{
    const dpar_status own = dpari_mpi_deadline(o, why);
    const int32_t bits = (o->rank_order != 0) | (o->check != 0) << 1 | (o->blocking != 0) << 2;
    double v[6];
    dpar_text t;
    int code;
    v[0] = bits;
    v[1] = -bits;
    v[2] = o->flat != 0 || dpari_mpi_env("DPAR_MPI_FLAT") != 0;
    v[3] = o->timeout_s;
    v[4] = -o->timeout_s;
    v[5] = own < 0;
    code = MPI_Allreduce(MPI_IN_PLACE, v, 6, MPI_DOUBLE, MPI_MAX, comm);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "comparing the options", code);
    }
    if (v[5] > 0) {
        if (own == DPAR_OK) {
            (void)dpari_wrong(why, "DPAR_TIMEOUT of another rank is not a number of seconds");
        }
        return DPAR_E_ARG;
    }
    o->flat = v[2] > 0;
    if (v[0] + v[1] > 0) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "ranks pass different values of rank_order, check or blocking");
    }
    if (v[3] + v[4] > 0) {
        dpari_text_why(&t, why);
        dpari_text_print(
            &t, "ranks have different deadlines (timeout_s or DPAR_TIMEOUT), from %.6g to %.6g s",
            -v[4], v[3]);
        return DPAR_E_MISMATCH;
    }
    if (o->blocking && o->timeout_s >= 0) {
        return dpari_wrong(why, "blocking = 1 waits inside MPI, which has no deadline: set "
                                "timeout_s below 0 with it");
    }
    return DPAR_OK;
}

static dpari_mpi_world *dpari_mpi_new_world(dpar_why *why)
{
    dpari_mpi_world *world = (dpari_mpi_world *)calloc(1, sizeof *world);
    int code;
    if (world == NULL) {
        (void)dpari_say(DPAR_E_MEMORY, why, "no memory for a communicator (%ld bytes)",
                        (int64_t)sizeof *world);
        return NULL;
    }
    world->lanes_from = DPARI_MPI_LANES;
    world->dealt[0] = -1; /* not used before it is measured */
    world->dealt[1] = -1;
    world->all = MPI_GROUP_NULL;
    code = dpari_mpi_make_ops(world);
    if (code != MPI_SUCCESS) {
        (void)dpari_mpi_say(why, "MPI_Op_create", code);
        free(world);
        return NULL;
    }
    return world;
}

DPAR_API dpar_status dpar_mpi_make(MPI_Comm user, const dpar_mpi_desc *desc, dpar_comm **comm,
                                   dpar_why *why)
{
    dpar_mpi_desc chosen;
    dpari_mpi_world *world;
    dpar_engine engine;
    MPI_Comm own = MPI_COMM_NULL;
    dpar_comm *node;
    dpar_why flat;
    int32_t nodes = 0;
    dpar_status status = dpari_mpi_usable(user, why);
    int code;
    if (status == DPAR_OK && comm == NULL) {
        status = dpari_wrong(why, "dpar_mpi_make: out, which receives the result, is NULL");
    }
    if (status < 0) {
        return status;
    }
    memset(&chosen, 0, sizeof chosen);
    if (desc != NULL) {
        chosen = *desc;
    }
    code = MPI_Comm_dup(user, &own);
    if (code != MPI_SUCCESS) {
        return dpari_mpi_say(why, "MPI_Comm_dup", code);
    }
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    status = dpari_mpi_same_options(own, &chosen, why);
    node = status >= 0 ? dpari_mpi_share(own, &chosen, &nodes, &flat) : NULL;
    if (node != NULL) { /* while MPI blocks, operations in the node's memory would not advance */
        chosen.blocking = 0;
    }
    if (node != NULL && nodes == 1) {
        MPI_Comm_free(&own);
        *comm = node;
        return DPAR_OK;
    }
    world = status >= 0 ? dpari_mpi_new_world(why) : NULL;
    if (world == NULL) {
        (void)dpar_comm_free(node);
        MPI_Comm_free(&own);
        return status < 0 ? status : (dpar_status)DPAR_E_SYSTEM;
    }
    world->flat = flat;
    dpari_mpi_table(&engine);
    status = dpari_mpi_make(world, &own, &chosen, &engine, comm, why);
    if (status < 0) {
        (void)dpar_comm_free(node);
        world->communicators = 1;
        dpari_mpi_leave_world(world, 1);
        return status;
    }
    (*comm)->node = world->node = node;
    return dpari_mpi_complete(comm, why);
}

#endif /* DPAR_MPI_IMPLEMENTATION */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_MPI_IMPLEMENTATION)) && \
    defined(DPAR_HALO_H) && !defined(DPAR_MPI_GRID_DONE)
#define DPAR_MPI_GRID_DONE

/* ==== mpi/mpi_grid.c ==== */

/* Makes a communicator from the process grid, and a grid on it. Dims, parts and periodicity are
 * copied from the process grid to the description, in reverse for DPAR_ORDER_FIRST_FASTEST. The
 * grid owns the communicator, so that dpar_grid_free frees both. */

#include <string.h>

/* Sets d's dims, parts and periodicity to those of cart's process grid. */
static dpar_status dpari_mpi_cart(MPI_Comm cart, dpar_grid_desc *d, dpar_why *why)
{
    int parts[DPAR_MAX_DIMS], periods[DPAR_MAX_DIMS], coords[DPAR_MAX_DIMS];
    int kind = MPI_UNDEFINED, n = 0, k;
    MPI_Topo_test(cart, &kind);
    if (kind != MPI_CART) {
        for (k = 0; k < DPAR_MAX_DIMS && k < d->dims; k++) {
            n += d->parts[k] > 0 || d->expected_count[k] > 0;
        }
        if (d->dims > 0 && n == d->dims) {
            return DPAR_OK;
        }
        return dpari_wrong(why,
                           "dpar_mpi_grid_make: the communicator has no process grid: pass one "
                           "that MPI_Cart_create made, or set desc.dims, and desc.parts or "
                           "desc.expected_count of each dim");
    }
    MPI_Cartdim_get(cart, &n);
    if (n > DPAR_MAX_DIMS || (d->dims != 0 && d->dims != n)) {
        return dpari_wrong(why,
                           "dpar_mpi_grid_make: the process grid has %d dims, but must have at "
                           "most %d, and desc.dims is %d, but must be 0 or the same",
                           n, (int32_t)DPAR_MAX_DIMS, d->dims);
    }
    MPI_Cart_get(cart, n, parts, periods, coords);
    d->dims = (int32_t)n;
    for (k = 0; k < n; k++) {
        const int at = d->order == DPAR_ORDER_FIRST_FASTEST ? n - 1 - k : k;
        if (d->parts[at] != 0 && d->parts[at] != parts[k]) {
            return dpari_wrong(
                why, "dpar_mpi_grid_make: desc.parts[%d] is %d, but the process grid has %d parts",
                at, d->parts[at], parts[k]);
        }
        d->parts[at] = (int32_t)parts[k];
        d->periodic[at] |= periods[k] != 0;
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_mpi_grid_make(MPI_Comm cart, const dpar_mpi_desc *mpi,
                                        const dpar_grid_desc *desc, dpar_grid **grid, dpar_why *why)
{
    dpar_grid_desc d;
    dpar_comm *world;
    dpar_why said;
    dpar_status status = dpar_mpi_make(cart, mpi, &world, why);
    if (status < DPAR_OK) {
        return status;
    }
    memset(&said, 0, sizeof said);
    if (desc == NULL || grid == NULL) {
        status = dpari_wrong(&said, "dpar_mpi_grid_make: desc or grid is NULL");
    }
    if (status == DPAR_OK) {
        d = *desc;
        d.owns_comm = 1;
        status = dpari_mpi_cart(cart, &d, &said);
    }
    status = dpari_agree(world, status, &said); /* it may have failed only on some ranks */
    if (status >= DPAR_OK) {
        status = dpar_grid_make(world, &d, grid, &said);
    }
    if (status < DPAR_OK) { /* returns here, so that compilers know that *grid is set below */
        (void)dpar_comm_free(world);
        if (why) {
            *why = said;
        }
        return status;
    }
    return DPAR_OK;
}

#endif /* DPAR_HALO_H */
