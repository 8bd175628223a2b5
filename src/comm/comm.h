/* SPDX-License-Identifier: MIT-0 */
/* comm - a communicator: ranks that move and add memory together. The calls are the same over three
 * engines: shared memory (in this header), MPI (dpar_mpi.h), NCCL (dpar_nccl.h). Rank and size mean
 * what MPI means. dpar_launch and dpar_init (launch.h) make one, or dpar_mpi_make (dpar_mpi.h).
 *
 * Every operation is COLLECTIVE over the communicator (send and recv: over the two ranks): all its
 * ranks call it, in the same order, with the same type, count, op and root. That is checked at
 * every call, at no cost. A call that does not fit ends in DPAR_E_MISMATCH on all ranks, with a
 * sentence that names both sides. A rank that is gone ends every wait for it in DPAR_E_PEER. One
 * that does not come before the deadline ends it in DPAR_E_TIMEOUT; where it waits for a third, the
 * sentence says for whom (shared memory). The sentence of every error is in c->why, that of a work
 * in the why of the communicator that it was posted on.
 *
 * After such an error the communicator is broken: each later call returns the same status at once.
 * Close it. A rank that was only late may still write into registered memory of the operation that
 * was given up, until it has seen that. (MPI cannot tell: see there.) So that errors are known at
 * once, a collective returns on no rank before all have entered it.
 *
 * work: NULL waits until the operation is done. Else it is posted. It goes on inside dpar_test,
 * dpar_wait and every other call on communicators of the same world, or all the time, with
 * dpar_comm_progress. Buffers, counts and offsets stay untouched until the work is done.
 * Collectives of one communicator run in the order of their posting.
 *
 * Threads: a communicator, those split from it, their works and memory are one world. One thread at
 * a time may use it; it can be another each time, where a lock or a barrier orders them. Others may
 * compute meanwhile, on all but the buffers of what is under way. Worlds share nothing: threads
 * that call at once each need one of their own. Where messages of MPI carry anything
 * (dpar_comm_describe) this takes MPI_THREAD_FUNNELED if only the main thread calls,
 * MPI_THREAD_SERIALIZED if threads take turns, MPI_THREAD_MULTIPLE if threads with worlds of their
 * own (a dpar_mpi_make each, in the same order on all ranks) call at once.
 *
 * Counts are elements, 0 is fine, 2^31 and more are. In place: out is where in lies, exactly:
 *     reduce, all_reduce, all_to_all   out == in
 *     all_gather, gather at the root   in is rank's own piece of out
 *     reduce_scatter, scatter (root)   out is rank's own piece of in
 * any other overlap of in and out is DPAR_E_ARG.
 *
 * Reductions go in rank order, ((x0 op x1) op x2) ..., once per element: the same bits on all
 * ranks, in every run, whatever the size (shm; MPI does as it likes unless told, dpar_mpi.h).
 * F16 and BF16 add in f32 and round once. DPAR_AVG is the sum over the number of ranks; integers
 * wrap, averages of integers round towards zero. MAX and MIN give NaN where one is NaN. */
#ifndef DPARI_COMM_COMM_H
#define DPARI_COMM_COMM_H

#include "../base/box.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../index/mesh.h"
#include "mem.h"

/* One operation, as data: what the functions below fill in. Fields that a kind has no use for are
 * 0. */
typedef struct dpar_call {
    int32_t kind;             /* DPAR_ALL_REDUCE ... DPAR_BARRIER, DPAR_SEND, DPAR_RECV; must be
                                 said, as the type */
    int32_t type;             /* DPAR_F32, ... */
    int32_t op;               /* DPAR_SUM, ... where something is reduced */
    int32_t root;             /* broadcast, reduce, gather, scatter; the peer of send and recv */
    int32_t tag;              /* send, recv: 0 .. 2^31 - 1. Collectives: 0, or a number of the
                                 caller's that is compared as the count is: which buffer, layer */
    int32_t varies;           /* 1: pieces differ by rank (the _v forms), counts below */
    const void *in;           /* broadcast: the same as out */
    void *out;                /* what arrives; broadcast: what is sent, on the root */
    int64_t count;            /* elements of the rank's own piece; see each function */
    const int64_t *in_count;  /* elements of the piece for each rank */
    const int64_t *in_begin;  /* where it begins in `in`, in elements; NULL: one after the other */
    const int64_t *out_count; /* of the piece from each rank */
    const int64_t *out_begin; /* where it begins in `out`; NULL: one after the other */
} dpar_call;

typedef struct dpar_comm dpar_comm;

/* An operation under way: the caller's memory, all zero before its first use; it neither moves nor
 * is posted again before it is done. A zeroed one counts as done. */
typedef struct dpar_work {
    dpar_comm *comm;    /* NULL: nothing is under way */
    dpar_status status; /* how it ended */
    int32_t phase;      /* private, as all that follows */
    dpar_call call;
    int64_t sequence;
    dpar_comm *home;
    double began;
    int64_t record;
    int64_t state[16];
    struct dpar_work *next, *behind;
} dpar_work;

/* What an engine does; you need it only to write one. */
typedef struct dpar_engine {
    char name[8];                                            /* "shm", "mpi", "nccl" */
    dpar_status (*run)(dpar_comm *c, const dpar_call *call); /* to the end; the call was checked */
    dpar_status (*post)(dpar_comm *c, const dpar_call *call, dpar_work *work);
    dpar_status (*test)(dpar_work *work); /* OK: done, MORE: not yet */
    dpar_status (*wait)(dpar_work *work);
    dpar_status (*batch)(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works);
    dpar_status (*split)(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out);
    dpar_status (*alloc)(dpar_comm *c, int64_t bytes, void **memory);
    void (*release)(dpar_comm *c, void *memory);
    dpar_status (*progress)(dpar_comm *c, int32_t on);
    void (*abort)(dpar_comm *c, dpar_status status, const char *text);
    void (*report)(dpar_comm *c, dpar_text *out);
    void (*describe)(dpar_comm *c, dpar_text *out); /* NULL: its name says it */
    dpar_status (*close)(dpar_comm *c);
    dpar_status (*shrink)(dpar_comm *c, dpar_comm **out, int32_t *was,
                          dpar_why *why); /* NULL: it cannot */
} dpar_engine;

/* Made by an engine; read rank, size and sent, leave the rest.
 *
 * sent counts an operation by what it is: each element goes straight from the rank that has it to
 * the one that needs it, once. With S the bytes that a rank gives in and s[r] the part that is, or
 * comes to be, rank r's:
 *     all_gather, gather (not the root)   s[rank] to each of the other ranks; to the root
 *     reduce_scatter, all_to_all, scatter (the root)   S - s[rank]
 *     all_reduce   a reduce-scatter of parts that differ by one element at most, the longer ones
 *                  first, and their all-gather: S - s[rank] + (size - 1) s[rank]
 *     broadcast (the root)   (size - 1) S;   reduce (not the root)   S;   send to another   S
 * else nothing. Where parts are equal it is what a ring sends: 2 (size - 1) / size S for
 * all_reduce, half of that for its halves; over all ranks it always adds up to that, times size. It
 * is what the planner predicts (dpar_traffic_count of dpar_cost.h), whatever way an engine really
 * goes: shared memory moves less. Halo exchanges that read memory of others directly are no such
 * operations. */
struct dpar_comm {
    int32_t rank, size;
    double
        timeout_s; /* how long an operation waits for others without getting on; <= 0: for ever */
    dpar_status status;       /* 0, or how it broke: what every further call returns */
    dpar_why why;             /* the sentence of the last error on this communicator */
    int64_t sent[DPAR_CALLS]; /* bytes that this rank has handed to others through it so far, by
                                 kind (DPAR_ALL_REDUCE, ... DPAR_SEND), see above. You may set them
                                 to 0 */
    const dpar_mem *mem; /* the memory that strategies on this communicator work in: a device's, set
                            by its engine or by you, before the first of them, and as long as they
                            are in use; NULL: the host's. All communicators split from it have it */
    dpar_engine engine;  /* private, as all that follows */
    void *context;
    dpar_status (*rest)(void *rest_of); /* posts what an operation under way has left to post */
    void *rest_of;                      /* that operation; NULL: none has left anything */
    dpar_comm *node; /* its ranks that share memory with this one, where its engine does not */
    struct dpari_on_end *ends; /* handles that are told when it goes */
};

/* ---- collectives ----
 *
 * All of these: OK, or E_ARG, E_RANGE (refused: see dpar_post), else E_MISMATCH, E_PEER, E_TIMEOUT
 * as above, or E_SYSTEM, E_MEMORY of an engine, or the status of a communicator that is broken;
 * with a work most of these come from dpar_wait.
 * Cost: a wait for all ranks, O(size), and the bytes that `sent` counts. In shared memory a rank
 * copies or reduces what `in` and `out` hold, about once where they are registered
 * (dpar_comm_alloc) and about twice where they are not. */

/* All ranks have come before any goes on. */
DPAR_API dpar_status dpar_barrier(dpar_comm *c, dpar_work *work);
/* buffer[count] of rank `root` goes into buffer[count] of all. */
DPAR_API dpar_status dpar_broadcast(dpar_comm *c, void *buffer, int64_t count, int32_t type,
                                    int32_t root, dpar_work *work);
/* out[i] on the root becomes in[i] of rank 0 op in[i] of rank 1 op ...; out is not touched on the
 * other ranks (NULL is fine there). i < count. */
DPAR_API dpar_status dpar_reduce(dpar_comm *c, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op, int32_t root, dpar_work *work);
/* The same, into the out of every rank. */
DPAR_API dpar_status dpar_all_reduce(dpar_comm *c, const void *in, void *out, int64_t count,
                                     int32_t type, int32_t op, dpar_work *work);
/* in[count] of rank r comes to out[r * count] of every rank; out holds size * count. */
DPAR_API dpar_status dpar_all_gather(dpar_comm *c, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work);
/* in[size * count] is reduced; elements rank * count ... come to out[count]. */
DPAR_API dpar_status dpar_reduce_scatter(dpar_comm *c, const void *in, void *out, int64_t count,
                                         int32_t type, int32_t op, dpar_work *work);
/* Piece s of in[size * count] goes to rank s, which puts it at out[rank * count]. */
DPAR_API dpar_status dpar_all_to_all(dpar_comm *c, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work);
/* in[count] of rank r comes to out[r * count] of the root (elsewhere out may be NULL). */
DPAR_API dpar_status dpar_gather(dpar_comm *c, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t root, dpar_work *work);
/* Piece r of in[size * count] of the root comes to out[count] of rank r (elsewhere in may be
 * NULL). */
DPAR_API dpar_status dpar_scatter(dpar_comm *c, const void *in, void *out, int64_t count,
                                  int32_t type, int32_t root, dpar_work *work);

/* The same with pieces of different sizes. Counts and begins are arrays of `size` numbers, in
 * elements; begin NULL: one piece after the other. all_gather_v and reduce_scatter_v: all ranks
 * give the same counts. Pieces of an `out` must not overlap. A piece that its two ranks give
 * different sizes is DPAR_E_MISMATCH. */
DPAR_API dpar_status dpar_all_gather_v(dpar_comm *c, const void *in, void *out,
                                       const int64_t *count, const int64_t *begin, int32_t type,
                                       dpar_work *work);
DPAR_API dpar_status dpar_reduce_scatter_v(dpar_comm *c, const void *in, void *out,
                                           const int64_t *count, int32_t type, int32_t op,
                                           dpar_work *work);
DPAR_API dpar_status dpar_all_to_all_v(dpar_comm *c, const void *in, const int64_t *in_count,
                                       const int64_t *in_begin, void *out, const int64_t *out_count,
                                       const int64_t *out_begin, int32_t type, dpar_work *work);
/* in_count elements of each rank; count and begin matter on the root alone. */
DPAR_API dpar_status dpar_gather_v(dpar_comm *c, const void *in, int64_t in_count, void *out,
                                   const int64_t *count, const int64_t *begin, int32_t type,
                                   int32_t root, dpar_work *work);
/* count and begin matter on the root alone; out_count elements of each rank. */
DPAR_API dpar_status dpar_scatter_v(dpar_comm *c, const void *in, const int64_t *count,
                                    const int64_t *begin, void *out, int64_t out_count,
                                    int32_t type, int32_t root, dpar_work *work);

/* ---- messages, and any operation ---- */

/* One message. Of those between two ranks with the same tag the first sent is the first received
 * (an engine without tags, NCCL, matches in the order of posting and wants equal tags). Counts and
 * types of both sides are equal, else DPAR_E_MISMATCH. To oneself: post one of the two. A blocking
 * send may return before its receive is posted, or not: do not count on either. Errors as the
 * collectives'; E_PEER where the other rank has closed c (shared memory). O(count). */
DPAR_API dpar_status dpar_send(dpar_comm *c, const void *in, int64_t count, int32_t type,
                               int32_t to, int32_t tag, dpar_work *work);
DPAR_API dpar_status dpar_recv(dpar_comm *c, void *out, int64_t count, int32_t type, int32_t from,
                               int32_t tag, dpar_work *work);
/* n sends and receives at once (calls[i].kind DPAR_SEND or DPAR_RECV), in any order: they do not
 * wait for each other. works: n of them, or NULL: return when all are done. E_ARG: another kind;
 * else errors as theirs, the first. O(n + their elements). */
DPAR_API dpar_status dpar_batch(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works);
/* Any operation from its description; what the functions above call. A call that is refused (E_ARG:
 * a number, type, pointer or overlap that is none, a work that is under way; E_RANGE: above 2^62
 * bytes) is refused on this rank alone, and its others wait for it until the deadline; a work that
 * was not posted keeps that status for dpar_wait. Errors and cost of the operation. */
DPAR_API dpar_status dpar_post(dpar_comm *c, const dpar_call *call, dpar_work *work);

/* Is it done? OK: yes, MORE: not yet, negative: it failed. E_ARG: NULL. Local; makes progress, as
 * far as that goes without waiting. */
DPAR_API dpar_status dpar_test(dpar_work *work);
/* Waits until it is done (engine NCCL: until the stream will be) and says how it ended; OK for one
 * that is zeroed; E_ARG: NULL. */
DPAR_API dpar_status dpar_wait(dpar_work *work);
/* All of them, even after one failed; the first failure is returned. E_ARG: works is NULL. */
DPAR_API dpar_status dpar_wait_all(dpar_work *works, int32_t n);

/* ---- communicators ---- */

/* The ranks that give the same color (>= 0) become a communicator, ordered by key, then by rank; a
 * negative color gets none: *out = NULL. With color 0 and key 0 on all ranks: a second one over the
 * same ranks, whose operations are independent of the first's. COLLECTIVE. The deadline is
 * inherited. E_MEMORY where a rank has no room for it. Costs an all-gather of 40 bytes; with shared
 * memory each takes twice options.slot_bytes and a few pages of a rank; after closing it, the next
 * one has them. */
DPAR_API dpar_status dpar_comm_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out);
/* The group of this rank along some axes of a mesh (bit i: axis i) over the ranks of c: those that
 * differ from it in these coordinates only, in the order of dpar_mesh_group_member. The mesh holds
 * ranks of c, each once (else E_ARG); ranks outside it get *out = NULL. COLLECTIVE; as
 * dpar_comm_split. */
DPAR_API dpar_status dpar_comm_split_axes(dpar_comm *c, const dpar_mesh *mesh, uint32_t axes,
                                          dpar_comm **out);
/* Goes on without ranks that are gone: those that call it become a communicator, in their old
 * order, with c's deadline. What all ranks of a program do that keeps a copy of its state:
 *
 *     st = steps(c);                                 E_PEER, E_TIMEOUT: a rank died, or hangs
 *     while (st == DPAR_E_PEER || st == DPAR_E_TIMEOUT) {
 *         st = dpar_comm_shrink(c, &next, was, &why);     was[r]: what rank r of next is in c
 *         if (st == DPAR_OK) {
 *             c = next;
 *             st = restore(c, was) == DPAR_OK ? steps(c) : c->status;
 *         }
 *     }
 *
 * was: c->size numbers, or NULL. COLLECTIVE over the ranks of c that are alive. It breaks c
 * (E_PEER) if nothing has, and ends what is posted on it. A rank that is dead, or has closed c, is
 * not waited for; one that is late, or stopped, is until c's deadline has passed since the last
 * other one came. All that go on have the same communicator. A rank that comes later gets E_TIMEOUT
 * and a sentence that names them. One that dies when it has come may still be in the new one, whose
 * first operation then says E_PEER: shrink that. E_ARG: this rank has shrunk or closed c before.
 * E_MEMORY: it has no room for a communicator. E_SYSTEM: the engine cannot (MPI on several
 * nodes, but with ULFM: dpar_mpi.h; NCCL, which has dpar_nccl_shrink).
 *
 * In shared memory *out is of c's world, as one that is split from c: to be closed before that. c
 * is closed as any that broke, which waits for nobody. Registered memory stays, and may be used on
 * *out. But a rank that is left behind and only stopped may still write into what its last
 * operations on c were given. So let *out move other memory, from dpar_comm_alloc of *out: such a
 * rank never writes there. dpar_launch lets ranks work on that have left the dead one behind; other
 * launchers end the job when a rank dies, unless told not to. O(size), and the wait. */
DPAR_API dpar_status dpar_comm_shrink(dpar_comm *c, dpar_comm **out, int32_t *was, dpar_why *why);
/* Ends it; the world's ends the rank's part in the job and all communicators split from it. Work
 * that was not waited for is lost: then E_ARG, and it ends broken on the other ranks. Else: how the
 * wait for the others ended. The one that dpar_launch gave is closed by dpar_launch: E_ARG. NULL is
 * fine. COLLECTIVE, in the same order on all ranks, unless it or another of the world is broken.
 * A barrier. Close plans that use it before it. While the world is open, what is asked of one of
 * its last 16 that were closed, by a plan or directly, is E_ARG: "closed before". */
DPAR_API dpar_status dpar_comm_close(dpar_comm *c);

/* Registered memory: other ranks reach it directly, so that collectives on it read and write each
 * byte once. Zeroed, aligned to 4096; of the communicator's world, to be released before the world
 * closes (or with it). Not collective. E_MEMORY when there is not so much, E_ARG for bytes below 0.
 * O(bytes) for memory that was in use before, else O(allocations). */
DPAR_API dpar_status dpar_comm_alloc(dpar_comm *c, int64_t bytes, void **memory);
DPAR_API void dpar_comm_release(dpar_comm *c, void *memory);

/* Posted work goes on by itself, in a thread of the engine, until turned off. Not collective.
 * E_SYSTEM when there are no threads, and where messages of MPI carry anything: there is none, and
 * the sentence says whether MPI would allow one (MPI_THREAD_MULTIPLE). E_ARG: NULL. Starts a
 * thread, or waits for its end. */
DPAR_API dpar_status dpar_comm_progress(dpar_comm *c, int32_t on);
/* Breaks it on all ranks: their waits end with `status` (negative; else E_PEER) and the text. The
 * first to break it counts. Local, it waits for nobody. O(size). */
DPAR_API void dpar_comm_abort(dpar_comm *c, dpar_status status, const char *text);
/* How its ranks reach each other, as a line of text: the engine, how many nodes, the ways of
 * sharing memory, and why it is not a faster one. Local. O(1). */
DPAR_API void dpar_comm_describe(dpar_comm *c, dpar_text *out);
/* What each rank did last, from the flight recorder, as text: the last operations with sequence
 * number, type, count and state; also of ranks that were killed. Not collective. O(size). */
DPAR_API void dpar_comm_report(dpar_comm *c, dpar_text *out);

#endif
