/* SPDX-License-Identifier: MIT-0 */
/* comm - a communicator: ranks that move and add memory together. Rank and size mean what MPI
 * means. The calls are the same over three engines: shared memory (in this header), MPI
 * (dpar_mpi.h), NCCL (dpar_nccl.h). dpar_launch_main, dpar_launch and dpar_init (launch.h) make a
 * communicator, or dpar_mpi_make (dpar_mpi.h).
 *
 *     dpar_all_reduce(world, in, out, n, DPAR_F32, DPAR_SUM, NULL);    done when it returns
 *     dpar_work work = {0};
 *     dpar_all_gather(world, mine, all, n, DPAR_F32, &work);           posted
 *     ... compute something else ...
 *     dpar_wait(&work);                                                done
 *
 * Every operation is COLLECTIVE over the communicator; send and recv over the two ranks. All its
 * ranks call it, in the same order, with the same type, count, op and root. That is checked at
 * every call, at no cost. A collective returns on no rank before all have entered it, so that
 * errors are known at once.
 *
 * Errors. A call that does not fit ends in DPAR_E_MISMATCH on all ranks, with a sentence that names
 * both sides. A rank that is gone ends every wait for it in DPAR_E_PEER. One that does not come
 * before the deadline ends it in DPAR_E_TIMEOUT. Where that rank waits for a third one, the
 * sentence says for whom (shared memory). The sentence of every error is in c->why, that of a work
 * in the why of the communicator that it was posted on.
 *
 * After such an error the communicator is broken: each later call returns the same status at once.
 * Close it. A rank that was only late may still write into registered memory of the operation that
 * was given up, until it has seen that. (MPI cannot tell: see there.)
 *
 * work: NULL waits until the operation is done. Else it is posted. It goes on inside dpar_test,
 * dpar_wait and every other call on communicators of the same world, or all the time, with
 * dpar_comm_progress. Buffers, counts and offsets stay untouched until the work is done.
 * Collectives of one communicator run in the order of their posting.
 *
 * Threads: a communicator, those split from it, their works and memory are one world. One thread at
 * a time may use it; it can be another each time, where a lock or a barrier orders them. Others may
 * compute meanwhile, on all but the buffers of what is under way. Worlds share nothing: threads
 * that call at once each need one of their own.
 *
 * Where messages of MPI carry anything (dpar_comm_describe), MPI_Init_thread must be asked for
 *
 *     MPI_THREAD_FUNNELED     if only the main thread calls
 *     MPI_THREAD_SERIALIZED   if threads take turns
 *     MPI_THREAD_MULTIPLE     if threads call at once, each with a world of its own: a
 *                             dpar_mpi_make each, in the same order on all ranks
 *
 * Counts are elements; 0 is fine, 2^31 and more are. In place, `out` is exactly where `in` lies:
 *
 *     reduce, all_reduce, all_to_all   out == in
 *     all_gather, gather at the root   in is rank's own piece of out
 *     reduce_scatter, scatter (root)   out is rank's own piece of in
 *
 * Any other overlap of in and out is DPAR_E_ARG.
 *
 * Reductions go in rank order, ((x0 op x1) op x2) ..., once per element: the same bits on all
 * ranks, in every run, whatever the size. (Over MPI only if told, see dpar_mpi.h.) F16 and BF16 add
 * in f32 and round once. DPAR_AVG is the sum over the number of ranks. Integers wrap; averages of
 * integers round towards zero. MAX and MIN give NaN where one is NaN. */
#ifndef DPARI_COMM_COMM_H
#define DPARI_COMM_COMM_H

#include "../base/box.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../index/mesh.h"
#include "mem.h"

/* One operation, as data: the functions below fill it in. Fields that a kind does not use are 0. */
typedef struct dpar_call {
    int32_t kind; /* DPAR_CALL_ALL_REDUCE ... DPAR_CALL_BARRIER, DPAR_CALL_SEND, DPAR_CALL_RECV;
                     must be said, as the type */
    int32_t type; /* DPAR_F32, ... */
    int32_t op;   /* DPAR_SUM, ... where something is reduced */
    int32_t root; /* broadcast, reduce, gather, scatter; the peer of send and recv */
    int32_t tag; /* send, recv: 0 .. 2^31 - 1. Collectives: 0, or a number of yours that is compared
                    as the count is: which buffer, which layer */
    int32_t varies;           /* 1: pieces differ by rank (the _v forms); counts below */
    const void *in;           /* broadcast: the same as out */
    void *out;                /* what arrives; broadcast: what is sent, on the root */
    int64_t count;            /* elements of the rank's own piece; each function says more */
    const int64_t *in_count;  /* elements of the piece for each rank */
    const int64_t *in_begin;  /* where it begins in `in`, in elements; NULL: one after the other */
    const int64_t *out_count; /* of the piece from each rank */
    const int64_t *out_begin; /* where it begins in `out`; NULL: one after the other */
} dpar_call;

typedef struct dpar_comm dpar_comm;

/* An operation under way, in your memory. Until it is done it neither moves nor is posted again. A
 * zeroed one counts as done. Memory with any other content may be posted, too, but before that
 * dpar_wait and dpar_test cannot always recognise that nothing is under way in it. */
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
    const struct dpar_work *self; /* its own address once posted: other bytes were never posted */
} dpar_work;

/* What an engine does. Only who writes one needs this. */
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
    /* Memory that devices of other ranks read where it lies. All NULL: there is none.
     *
     * lend: as alloc, and COLLECTIVE. Ranks give different bytes; where one has can = 0, or devices
     * do not reach each other, it is plain memory.
     *
     * reach: this rank's address of what another one has got from the same lend; NULL: out of its
     * device's reach, as all of plain memory.
     *
     * meet: with a work, an operation: tells ranks[n], which name this one too, that what was
     * computed before may be read, and ends when they have said so. Without one, before it: which
     * of three parts of the memory is to be written, 0 to 2; nobody reads that any more. */
    dpar_status (*lend)(dpar_comm *c, int64_t bytes, int32_t can, void **memory);
    void *(*reach)(dpar_comm *c, void *memory, int32_t rank);
    dpar_status (*meet)(dpar_comm *c, void *memory, const int32_t *ranks, int32_t n,
                        dpar_work *work);
} dpar_engine;

/* A communicator. An engine makes it. Read rank, size and sent, leave the rest.
 *
 * `sent` counts an operation by what it is: each element goes once, straight from the rank that has
 * it to the one that needs it. S is the bytes that a rank gives in, s[r] the part that is, or comes
 * to be, rank r's:
 *
 *     all_gather, gather (not the root)   s[rank] to each of the other ranks; to the root
 *     reduce_scatter, all_to_all, scatter (the root)   S - s[rank]
 *     all_reduce   a reduce-scatter of parts that differ by one element at most, the longer ones
 *                  first, and their all-gather: S - s[rank] + (size - 1) s[rank]
 *     broadcast (the root)   (size - 1) S;   reduce (not the root)   S;   send to another   S
 *
 * All else counts nothing. Where parts are equal it is what a ring sends: 2 (size - 1) / size S for
 * all_reduce, half of that for its halves. Over all ranks it always adds up to that, times size.
 * dpar_traffic_count of dpar_cost.h predicts it, whatever way an engine goes: shared memory moves
 * less. Halo exchanges that read other ranks' memory directly do not count. */
struct dpar_comm {
    int32_t rank, size;
    /* How long an operation waits for others without getting on, in seconds; <= 0: for ever. Time
     * for which this process itself was suspended (a batch system stops the job, a laptop sleeps)
     * does not count: between two calls of dpar_test a quarter of a second at most. */
    double timeout_s;
    dpar_status status;            /* 0, or how it broke: then every further call returns it */
    dpar_why why;                  /* the sentence of the last error on this communicator */
    int64_t sent[DPAR_CALL_COUNT]; /* bytes that this rank has handed to others through it so far,
                                 by kind (DPAR_CALL_ALL_REDUCE, ... DPAR_CALL_SEND), as said above.
                                 You may set them to 0 */
    /* The memory that strategies on this communicator work in: a device's; NULL: the host's. Its
     * engine sets it, or you do, before the first strategy. It lives as long as they are in use.
     * All communicators split from this one have it. */
    const dpar_mem *mem;
    dpar_engine engine; /* private, as all that follows */
    void *context;
    dpar_status (*rest)(void *rest_of); /* posts what an operation under way has left to post */
    void *rest_of;                      /* that operation; NULL: none has left anything */
    dpar_comm *node; /* its ranks that share memory with this one, where its engine has none */
    struct dpari_on_end *ends; /* handles that are told when it goes */
};

/* ---- collectives ----
 *
 * All of these return OK, or E_ARG, E_RANGE where dpar_post refuses the call. Else E_MISMATCH,
 * E_PEER, E_TIMEOUT as above, E_SYSTEM, E_MEMORY of an engine, or the status of a communicator that
 * is broken. With a work most of these come from dpar_wait.
 *
 * Cost: a wait for all ranks, O(size), and the bytes that `sent` counts. In shared memory a rank
 * copies or reduces what `in` and `out` hold. It does so about once where they are registered
 * (dpar_comm_alloc), about twice where they are not. */

/* Returns when all ranks have come. */
DPAR_API dpar_status dpar_barrier(dpar_comm *c, dpar_work *work);
/* buffer[count] of rank `root` goes into buffer[count] of all. */
DPAR_API dpar_status dpar_broadcast(dpar_comm *c, void *buffer, int64_t count, int32_t type,
                                    int32_t root, dpar_work *work);
/* out[i] on the root becomes in[i] of rank 0 op in[i] of rank 1 op ..., for i < count. On the other
 * ranks out is untouched and may be NULL. */
DPAR_API dpar_status dpar_reduce(dpar_comm *c, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op, int32_t root, dpar_work *work);
/* A reduction into the out of every rank; else as dpar_reduce. */
DPAR_API dpar_status dpar_all_reduce(dpar_comm *c, const void *in, void *out, int64_t count,
                                     int32_t type, int32_t op, dpar_work *work);
/* in[count] of rank r goes to out[r * count] of every rank; out holds size * count elements. */
DPAR_API dpar_status dpar_all_gather(dpar_comm *c, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work);
/* in[size * count] is reduced; elements rank * count ... of the result go to out[count]. */
DPAR_API dpar_status dpar_reduce_scatter(dpar_comm *c, const void *in, void *out, int64_t count,
                                         int32_t type, int32_t op, dpar_work *work);
/* Piece s of in[size * count] goes to rank s, which puts it at out[rank * count]. */
DPAR_API dpar_status dpar_all_to_all(dpar_comm *c, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work);
/* in[count] of rank r goes to out[r * count] of the root; elsewhere out may be NULL. */
DPAR_API dpar_status dpar_gather(dpar_comm *c, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t root, dpar_work *work);
/* Piece r of in[size * count] of the root goes to out[count] of rank r; elsewhere in may be NULL.
 * O(count). */
DPAR_API dpar_status dpar_scatter(dpar_comm *c, const void *in, void *out, int64_t count,
                                  int32_t type, int32_t root, dpar_work *work);

/* Collectives with pieces of different sizes. Counts and begins are arrays of `size` numbers, in
 * elements; begin NULL: one piece after the other. For all_gather_v and reduce_scatter_v all ranks
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
/* Each rank gives in_count elements; count and begin matter on the root alone. */
DPAR_API dpar_status dpar_gather_v(dpar_comm *c, const void *in, int64_t in_count, void *out,
                                   const int64_t *count, const int64_t *begin, int32_t type,
                                   int32_t root, dpar_work *work);
/* Each rank gets out_count elements; count and begin matter on the root alone. */
DPAR_API dpar_status dpar_scatter_v(dpar_comm *c, const void *in, const int64_t *count,
                                    const int64_t *begin, void *out, int64_t out_count,
                                    int32_t type, int32_t root, dpar_work *work);

/* ---- messages, and any operation ---- */

/* One message to another rank, or from it. Of messages between two ranks with the same tag the
 * first sent is the first received. (NCCL has no tags: it matches in the order of posting and wants
 * equal tags.) Counts and types of both sides are equal, else DPAR_E_MISMATCH.
 *
 * To oneself: post one of the two. A blocking send may return before its receive is posted, or not:
 * do not count on either. Errors as the collectives'; E_PEER where the other rank has closed c
 * (shared memory). O(count). */
DPAR_API dpar_status dpar_send(dpar_comm *c, const void *in, int64_t count, int32_t type,
                               int32_t to, int32_t tag, dpar_work *work);
DPAR_API dpar_status dpar_recv(dpar_comm *c, void *out, int64_t count, int32_t type, int32_t from,
                               int32_t tag, dpar_work *work);
/* n sends and receives at once, in any order: they do not wait for each other. works: n of them;
 * NULL: return when all are done. E_ARG: a kind that is neither DPAR_CALL_SEND nor DPAR_CALL_RECV.
 * Else the first error of any. O(n + their elements). */
DPAR_API dpar_status dpar_batch(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works);
/* Any operation from its description; the functions above call it. Errors and cost are those of the
 * operation.
 *
 * A call is refused with E_ARG for a number, type, pointer or overlap out of its domain, or a work
 * that is under way; with E_RANGE above 2^62 bytes. Only this rank refuses; the others wait for it
 * until the deadline. A work that was not posted keeps that status for dpar_wait. */
DPAR_API dpar_status dpar_post(dpar_comm *c, const dpar_call *call, dpar_work *work);

/* Is it done? OK: yes, MORE: not yet, negative: it failed. E_ARG: NULL, or not zeroed and never
 * posted, where that shows. Local: it makes progress without waiting. */
DPAR_API dpar_status dpar_test(dpar_work *work);
/* Waits until it is done (over NCCL: until the stream will be) and says how it ended. OK for a
 * zeroed one. E_ARG: NULL, or not zeroed and never posted, where that shows. */
DPAR_API dpar_status dpar_wait(dpar_work *work);
/* Waits for all of them, even after one failed, and returns the first failure. E_ARG: works is
 * NULL. */
DPAR_API dpar_status dpar_wait_all(dpar_work *works, int32_t n);

/* ---- communicators ---- */

/* The ranks that give the same color (>= 0) become a communicator, ordered by key, then by rank. A
 * negative color gets none: *out = NULL. With color 0 and key 0 on all ranks it is a second one
 * over the same ranks, whose operations are independent of the first's. It inherits the deadline.
 * COLLECTIVE.
 *
 * E_MEMORY: a rank has no room for it. Costs an all-gather of 40 bytes. With shared memory each
 * takes twice options.slot_bytes and a few pages of a rank; when it is closed, the next one takes
 * them over. */
DPAR_API dpar_status dpar_comm_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out);
/* The group of this rank along some axes of a mesh (bit i: axis i) over the ranks of c: those that
 * differ from it in these coordinates only, in the order of dpar_mesh_group_member. Ranks outside
 * the mesh get *out = NULL. E_ARG: the mesh does not hold ranks of c, each once. COLLECTIVE; else
 * as dpar_comm_split. */
DPAR_API dpar_status dpar_comm_split_axes(dpar_comm *c, const dpar_mesh *mesh, uint32_t axes,
                                          dpar_comm **out);
/* Goes on without ranks that are gone: those that call it become a communicator, in their old
 * order, with c's deadline. A program that keeps a copy of its state does this on all ranks:
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
 * (E_PEER) if nothing has, and ends what is posted on it. All that go on have the same
 * communicator. A rank that waits on another communicator, for one that shrinks, does not hear of
 * it: first abort those (dpar_comm_abort).
 *
 * It does not wait for a rank that is dead or has closed c. It waits for one that is late or
 * stopped until c's deadline has passed since the last other one came. A rank that comes later gets
 * E_TIMEOUT and a sentence that names those that went on. One that dies after it came may still be
 * in the new communicator, whose first operation then says E_PEER: shrink that.
 *
 * E_ARG: this rank has shrunk or closed c before. E_MEMORY: it has no room for a communicator.
 * E_SYSTEM: the engine cannot (MPI on several nodes, but with ULFM, see dpar_mpi.h; NCCL, which has
 * dpar_nccl_shrink).
 *
 * In shared memory *out is of c's world, as one that is split from c: close it before that. Close c
 * as any that broke; that waits for nobody. Registered memory stays, and may be used on *out. But a
 * rank that is only stopped may still write into what its last operations on c were given. So let
 * *out move other memory, from dpar_comm_alloc of *out, where such a rank never writes.
 *
 * dpar_launch lets ranks work on that have left a dead one behind. Other launchers end the job when
 * a rank dies, unless told not to. O(size), and the wait. */
DPAR_API dpar_status dpar_comm_shrink(dpar_comm *c, dpar_comm **out, int32_t *was, dpar_why *why);
/* Closes a communicator. Closing the world's ends the rank's part in the job and all communicators
 * split from it. NULL is fine. COLLECTIVE, a barrier, in the same order on all ranks, unless it or
 * another of the world is broken. Close plans that use it before it.
 *
 * It returns how the wait for the others ended. E_ARG: work on it was not waited for; that work is
 * lost, and ends broken on the other ranks. E_ARG too for the one that dpar_launch gave:
 * dpar_launch closes it. While the world is open, a call on one of its last 16 that were closed, by
 * a plan or directly, is E_ARG: "closed before". */
DPAR_API dpar_status dpar_comm_free(dpar_comm *c);

/* Registered memory: other ranks reach it directly, so that collectives on it read and write each
 * byte once. It is zeroed and aligned to 4096. Release it before its communicator's world closes,
 * or let the close do so. Not collective. E_MEMORY: there is not so much. E_ARG: bytes below 0.
 * O(bytes) for memory that was in use before, else O(allocations). */
DPAR_API dpar_status dpar_comm_alloc(dpar_comm *c, int64_t bytes, void **memory);
DPAR_API void dpar_comm_release(dpar_comm *c, void *memory);

/* Lets posted work go on by itself, in a thread of the engine, until turned off. Starts a thread,
 * or waits for its end. Not collective. E_ARG: NULL. E_SYSTEM: there are no threads, or messages of
 * MPI carry anything; then the sentence says whether MPI would allow a thread
 * (MPI_THREAD_MULTIPLE). */
DPAR_API dpar_status dpar_comm_progress(dpar_comm *c, int32_t on);
/* Breaks a communicator on all ranks: their waits end with `status` (negative; else E_PEER) and the
 * text. The first rank to break it counts. Local: it waits for nobody. O(size). */
DPAR_API void dpar_comm_abort(dpar_comm *c, dpar_status status, const char *text);
/* How its ranks reach each other, as a line of text: the engine, how many nodes, how they share
 * memory, and why no faster way is taken. Local. O(1). */
DPAR_API void dpar_comm_describe(dpar_comm *c, dpar_text *out);
/* What each rank did last, as text: its last operations with sequence number, type, count and
 * state. Ranks that were killed are there too. Not collective. O(size). */
DPAR_API void dpar_comm_report(dpar_comm *c, dpar_text *out);

#endif
