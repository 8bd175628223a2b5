/* SPDX-License-Identifier: MIT-0 */
/* comm - communicates: collectives and messages among the ranks of a communicator. Rank and size
 * mean what they mean in MPI. The calls are the same over three engines: shared memory (in this
 * header), MPI (dpar_mpi.h) and NCCL (dpar_nccl.h). dpar_launch_main, dpar_init_or_launch,
 * dpar_launch and dpar_init make a communicator over shared memory; dpar_mpi_make and
 * dpar_nccl_make make the others.
 *
 *     dpar_all_reduce(world, in, out, n, DPAR_F32, DPAR_SUM, NULL);    done when it returns
 *     dpar_work work = {0};
 *     dpar_all_gather(world, mine, all, n, DPAR_F32, &work);           posted
 *     ... compute something else ...
 *     dpar_wait(&work);                                                done
 *
 * All operations but messages are collective: all ranks of the communicator call them in the same
 * order with the same type, count, op and root. dpar_send and dpar_recv concern two ranks only.
 * Every call compares what the ranks pass, at no extra cost. No rank returns from a collective
 * before all ranks have entered it, so that errors are known at once.
 *
 * Errors. If the calls of two ranks do not match, all ranks get DPAR_E_MISMATCH and a message that
 * names both calls. If a rank has died, every wait for it ends with DPAR_E_PEER. If a rank makes no
 * progress before the deadline (timeout_s), waits for it end with DPAR_E_TIMEOUT. In shared memory
 * that message also says which third rank the late one waits for. The message of every error is in
 * comm->why; for posted work, in the `why` of the communicator that it was posted on. Functions
 * that take a communicator and a `why` write to *why, or to comm->why if `why` is NULL.
 *
 * After such an error the communicator is broken: each later call returns the same status at once,
 * and all that is left to do is to close or shrink it. A rank that was only late may still write
 * into registered memory of the operation that timed out, until it notices the error. (dpar_mpi.h
 * describes what differs over MPI.)
 *
 * work: NULL makes a call wait until the operation is done. Otherwise the call posts the operation
 * and returns. It then advances inside dpar_test, dpar_wait and every other call on communicators
 * of the same world, or in a thread if dpar_comm_progress is on. Leave its buffers, counts and
 * offsets untouched until the work is done. Collectives of one communicator run in the order in
 * which they are posted.
 *
 * Threads. A communicator, those split from it, their works and their memory form one world. Only
 * one thread at a time may use a world. It may be a different thread each time, if a lock or a
 * barrier orders them. Other threads may compute meanwhile, but not touch the buffers of operations
 * in progress. Worlds share nothing, so threads that communicate at the same time need one world
 * each.
 *
 * If MPI messages carry any of the traffic (dpar_comm_describe), request from MPI_Init_thread
 *
 *     MPI_THREAD_FUNNELED     if only the main thread calls dpar
 *     MPI_THREAD_SERIALIZED   if threads take turns
 *     MPI_THREAD_MULTIPLE     if threads call at the same time, each with a world of its own that
 *                             dpar_mpi_make made, in the same order on all ranks
 *
 * Counts are in elements. They may be 0, or exceed 2^31. An operation is in place if `in` and `out`
 * are at the same address, or one of them is at the rank's own piece of the other:
 *
 *     reduce, all_reduce, all_to_all   out == in
 *     all_gather, gather at the root   in is rank's own piece of out
 *     reduce_scatter, scatter (root)   out is rank's own piece of in
 *
 * Any other overlap of `in` and `out` fails with DPAR_E_ARG.
 *
 * Reductions combine in rank order, ((x0 op x1) op x2) ..., so that all ranks get the same bits in
 * every run and at every size. (Over MPI only with rank_order, see dpar_mpi.h.) F16 and BF16 are
 * added in f32 and rounded once. DPAR_AVG is the sum divided by the number of ranks. Integer sums
 * wrap; integer averages round towards zero. MAX and MIN give NaN if any value is NaN. */
#ifndef DPARI_COMM_COMM_H
#define DPARI_COMM_COMM_H

#include "../base/box.h"
#include "../base/text.h"
#include "../base/type.h"
#include "../host/mem.h"
#include "../index/mesh.h"

/* An operation as data. The functions below fill it in, and dpar_batch takes it. Fields
 * that a kind does not use are 0. */
typedef struct dpar_call {
    int32_t kind; /* DPAR_CALL_ALL_REDUCE ... DPAR_CALL_BARRIER, DPAR_CALL_SEND or DPAR_CALL_RECV;
                     no default */
    int32_t type; /* DPAR_F32, ...; no default */
    int32_t op;   /* DPAR_SUM, ..., for reductions */
    int32_t root; /* of broadcast, reduce, gather and scatter; for send and recv the peer */
    int32_t tag; /* for send and recv 0 .. 2^31 - 1. For collectives 0, or a number that you choose,
                    such as that of a buffer or layer, which ranks compare as they compare counts */
    int32_t variable_counts;  /* 1 if pieces differ by rank (the _v forms) */
    const void *in;           /* input; for broadcast the same as out */
    void *out;                /* output; for broadcast the root's is the input */
    int64_t count;            /* elements of this rank's own piece, as the function defines it */
    const int64_t *in_count;  /* [size] elements of the piece for each rank */
    const int64_t *in_first;  /* [size] first element of each piece in `in`; NULL if they are
                                 contiguous in rank order */
    const int64_t *out_count; /* [size] elements of the piece from each rank */
    const int64_t *out_first; /* [size] first element of each piece in `out`; NULL if they are
                                 contiguous in rank order */
} dpar_call;

typedef struct dpar_comm dpar_comm;

/* A posted operation, in the caller's memory. Until it is done, do not move it or post it again. A
 * zeroed work counts as done. Memory with other contents may be posted too, but before that
 * dpar_wait and dpar_test cannot always recognise that no operation is posted in it. */
typedef struct dpar_work {
    dpar_comm *comm;    /* NULL if no operation is in progress */
    dpar_status status; /* the result of the operation */
    int32_t phase;      /* private, as are all fields that follow */
    dpar_call call;
    int64_t sequence;
    dpar_comm *home;
    double began;
    int64_t record;
    int64_t state[16];
    struct dpar_work *next, *behind;
    const struct dpar_work *self; /* its own address once posted, by which dpar recognises a posted
                                     work */
} dpar_work;

/* The functions of an engine. You need them only to write an engine. */
typedef struct dpar_engine {
    char name[8];                                               /* "shm", "mpi" or "nccl" */
    dpar_status (*run)(dpar_comm *comm, const dpar_call *call); /* completes a checked call */
    dpar_status (*post)(dpar_comm *comm, const dpar_call *call, dpar_work *work);
    dpar_status (*test)(dpar_work *work); /* DPAR_OK if done, DPAR_MORE if not yet */
    dpar_status (*wait)(dpar_work *work);
    dpar_status (*batch)(dpar_comm *comm, const dpar_call *calls, int32_t n, dpar_work *works);
    dpar_status (*split)(dpar_comm *comm, int32_t color, int32_t key, dpar_comm **out);
    dpar_status (*alloc)(dpar_comm *comm, int64_t bytes, void **memory);
    void (*release)(dpar_comm *comm, void *memory);
    dpar_status (*progress)(dpar_comm *comm, int32_t on);
    void (*abort)(dpar_comm *comm, dpar_status status, const char *text);
    void (*report)(dpar_comm *comm, dpar_text *out);
    void (*describe)(dpar_comm *comm, dpar_text *out); /* NULL if the name is description enough */
    dpar_status (*close)(dpar_comm *comm);
    dpar_status (*shrink)(dpar_comm *comm, dpar_comm **out, int32_t *was,
                          dpar_why *why); /* NULL if the engine cannot shrink */
    /* Memory that the devices of other ranks can read directly. All three are NULL if there is
     * none.
     *
     * alloc_shared: allocates, as `alloc` does, but collectively. Ranks may pass different numbers
     * of bytes. If any rank has can = 0, or devices do not reach each other, the memory is private.
     *
     * peer_address: returns this rank's address of the memory that another rank got from the same
     * alloc_shared, or NULL if its device cannot reach it. Private memory is out of reach.
     *
     * sync_peers: with a work, posts an operation that notifies ranks[n], which include this rank,
     * that results computed before may be read. It ends when all of them have posted theirs.
     * Without a work, it returns which of three parts of the memory, 0 to 2, to write next; no rank
     * reads that part any more. */
    dpar_status (*alloc_shared)(dpar_comm *comm, int64_t bytes, int32_t can, void **memory);
    void *(*peer_address)(dpar_comm *comm, void *memory, int32_t rank);
    dpar_status (*sync_peers)(dpar_comm *comm, void *memory, const int32_t *ranks, int32_t n,
                              dpar_work *work);
} dpar_engine;

/* A communicator, made by an engine. You may read rank, size, status, why and sent, and set
 * timeout_s and mem. Do not touch the other fields.
 *
 * `sent` counts the bytes that an operation must send, whichever engine runs it: each element once,
 * directly from the rank that has it to the rank that needs it. Let S be the bytes of this rank's
 * input, and s[r] the part of them that is or becomes rank r's. One operation then counts
 *
 *     all_gather, gather (not the root)   s[rank] to each of the other ranks; to the root
 *     reduce_scatter, all_to_all, scatter (the root)   S - s[rank]
 *     all_reduce   a reduce-scatter of parts that differ by one element at most, the longer ones
 *                  first, and their all-gather: S - s[rank] + (size - 1) s[rank]
 *     broadcast (the root)   (size - 1) S;   reduce (not the root)   S;   send to another   S
 *
 * and nothing in all other cases. If the parts are equal, this is what a ring sends: 2 (size - 1) /
 * size S for all_reduce, and half of that for reduce_scatter and all_gather. Summed over all ranks
 * it is always that number times size. dpar_traffic_count of dpar_cost.h predicts it. Shared memory
 * moves fewer bytes. Halo exchanges that read the memory of other ranks directly are not
 * counted. */
struct dpar_comm {
    int32_t rank, size;
    /* How long an operation may wait for other ranks without progress, in seconds; there is no
     * limit if it is 0 or less. Time during which this process itself was suspended, by a batch
     * system or a sleeping laptop, does not count. Between two calls of dpar_test at most a quarter
     * of a second counts. */
    double timeout_s;
    dpar_status status;            /* 0, or the error that broke the communicator */
    dpar_why why;                  /* the message of the last error on this communicator */
    int64_t sent[DPAR_CALL_COUNT]; /* bytes that this rank has sent, by kind of operation
                                      (DPAR_CALL_ALL_REDUCE, ... DPAR_CALL_SEND), counted as above.
                                      You may set them to 0 */
    /* The device memory that training strategies on this communicator work in; NULL for the host's
     * memory. Its engine sets it, or you do so before the first strategy. It must exist as long as
     * the strategies. Communicators that are split from this one inherit it. */
    const dpar_mem *mem;
    dpar_engine engine; /* private, as are all fields that follow */
    void *context;
    dpar_status (*post_pending)(
        void *pending_owner); /* posts the remaining steps of an operation */
    void *pending_owner;      /* that operation; NULL if no operation has steps left */
    dpar_comm *node; /* communicator of the ranks that share memory with this one, where the
                        engine itself has no shared memory */
    struct dpari_on_end *ends; /* handles to be notified when the communicator is closed */
};

/* ---- collectives ----
 *
 * All of these functions are collective. They return DPAR_OK, or DPAR_E_ARG or DPAR_E_RANGE if this
 * rank refuses the call: if a number, type or pointer is not allowed, buffers overlap, `work` is in
 * progress, or data exceed 2^62 bytes. The others then wait for this rank until the deadline. It
 * has begun nothing, so it may make the call again with other arguments. To end the waits of the
 * others at once, it calls dpar_fail, dpar_require or dpar_comm_abort. The same holds for exchanges
 * that only one rank refuses.
 *
 * dpar_wait on the work of a refused call returns the same status. The functions fail with
 * DPAR_E_MISMATCH, DPAR_E_PEER or DPAR_E_TIMEOUT as described above, with DPAR_E_SYSTEM or
 * DPAR_E_MEMORY of an engine, or with the status of a broken communicator. If the operation is
 * posted, dpar_wait returns most of these errors.
 *
 * Cost: a wait for all ranks, O(size), and the bytes that `sent` counts. In shared memory a rank
 * copies or reduces the bytes of `in` and `out` about once if they are registered
 * (dpar_comm_alloc), and about twice if they are not. */

/* Waits until all ranks have called it. */
DPAR_API dpar_status dpar_barrier(dpar_comm *comm, dpar_work *work);
/* Copies buffer[count] of rank `root` to buffer[count] of all ranks. */
DPAR_API dpar_status dpar_broadcast(dpar_comm *comm, void *buffer, int64_t count, int32_t type,
                                    int32_t root, dpar_work *work);
/* Combines in[count] of all ranks elementwise into out[count] of the root, in rank order. On other
 * ranks `out` is not used and may be NULL. */
DPAR_API dpar_status dpar_reduce(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op, int32_t root, dpar_work *work);
/* Combines in[count] of all ranks elementwise into out[count] of every rank, in rank order. */
DPAR_API dpar_status dpar_all_reduce(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, int32_t op, dpar_work *work);
/* Copies in[count] of each rank r to out[r * count] of every rank; `out` has size * count
 * elements. */
DPAR_API dpar_status dpar_all_gather(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work);
/* Combines in[size * count] of all ranks elementwise, in rank order, and stores elements rank *
 * count .. (rank + 1) * count - 1 of the result in out[count]. */
DPAR_API dpar_status dpar_reduce_scatter(dpar_comm *comm, const void *in, void *out, int64_t count,
                                         int32_t type, int32_t op, dpar_work *work);
/* Sends piece s of in[size * count] to rank s, which receives it at out[rank * count]. */
DPAR_API dpar_status dpar_all_to_all(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work);
/* Copies in[count] of each rank r to out[r * count] of the root. On other ranks `out` may be
 * NULL. */
DPAR_API dpar_status dpar_gather(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t root, dpar_work *work);
/* Copies piece r of in[size * count] of the root to out[count] of each rank r. On other ranks `in`
 * may be NULL. */
DPAR_API dpar_status dpar_scatter(dpar_comm *comm, const void *in, void *out, int64_t count,
                                  int32_t type, int32_t root, dpar_work *work);

/* Gathers pieces of different sizes from all ranks on all ranks, as dpar_all_gather does for equal
 * ones.
 *
 * count: [size] elements of each rank's piece, equal on all ranks.
 * first: [size] first element of each piece; NULL if the pieces are contiguous in rank order.
 *        Pieces of `out` must not overlap.
 *
 * Fails with DPAR_E_MISMATCH if ranks pass different counts. */
DPAR_API dpar_status dpar_all_gather_v(dpar_comm *comm, const void *in, void *out,
                                       const int64_t *count, const int64_t *first, int32_t type,
                                       dpar_work *work);
/* Combines `in` of all ranks elementwise, in rank order. Each rank r gets the next count[r]
 * elements of the result. count is [size] and must be equal on all ranks; otherwise the call fails
 * with DPAR_E_MISMATCH. */
DPAR_API dpar_status dpar_reduce_scatter_v(dpar_comm *comm, const void *in, void *out,
                                           const int64_t *count, int32_t type, int32_t op,
                                           dpar_work *work);
/* Sends a piece from each rank to each other, where every pair of ranks may use a different size.
 * Counts and firsts are [size], as in dpar_all_gather_v. Fails with DPAR_E_MISMATCH if two ranks
 * pass different sizes for the piece between them. */
DPAR_API dpar_status dpar_all_to_all_v(dpar_comm *comm, const void *in, const int64_t *in_count,
                                       const int64_t *in_first, void *out, const int64_t *out_count,
                                       const int64_t *out_first, int32_t type, dpar_work *work);
/* Gathers in_count elements of each rank into `out` of the root, at `first`. Only the root reads
 * count and first, which are as in dpar_all_gather_v. */
DPAR_API dpar_status dpar_gather_v(dpar_comm *comm, const void *in, int64_t in_count, void *out,
                                   const int64_t *count, const int64_t *first, int32_t type,
                                   int32_t root, dpar_work *work);
/* Sends pieces of the root's `in` to all ranks, each of which receives out_count elements. Only the
 * root reads count and first, which are as in dpar_all_gather_v. */
DPAR_API dpar_status dpar_scatter_v(dpar_comm *comm, const void *in, const int64_t *count,
                                    const int64_t *first, void *out, int64_t out_count,
                                    int32_t type, int32_t root, dpar_work *work);

/* ---- messages, and any operation ---- */

/* Sends a message to another rank. Messages between two ranks with the same tag are received in the
 * order in which they were sent. (NCCL has no tags: it matches messages in the order of posting and
 * requires equal tags.)
 *
 * If a rank sends to itself, it must post at least one of the two calls. A blocking send may or may
 * not return before its receive is posted; do not rely on either. Fails as the collectives do: with
 * DPAR_E_MISMATCH if counts or types of the two sides differ, and in shared memory with DPAR_E_PEER
 * if the other rank has closed comm. Costs O(count). */
DPAR_API dpar_status dpar_send(dpar_comm *comm, const void *in, int64_t count, int32_t type,
                               int32_t to, int32_t tag, dpar_work *work);
/* Receives a message of another rank, under the rules of dpar_send. */
DPAR_API dpar_status dpar_recv(dpar_comm *comm, void *out, int64_t count, int32_t type,
                               int32_t from, int32_t tag, dpar_work *work);
/* Starts n sends and receives at once. Their order does not matter, because none of them waits for
 * another.
 *
 * works: [n]; NULL returns only when all are done.
 *
 * Fails with DPAR_E_ARG if a kind is neither DPAR_CALL_SEND nor DPAR_CALL_RECV, otherwise with the
 * first error of any of them. Costs O(n + their elements). */
DPAR_API dpar_status dpar_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                dpar_work *works);

/* Tests whether a posted operation is done. Returns DPAR_OK if it is, DPAR_MORE if it is not yet,
 * or the error with which it failed. Local: it makes progress without waiting. Fails with
 * DPAR_E_ARG if `work` is NULL, or recognisably neither zeroed nor posted. */
DPAR_API dpar_status dpar_test(dpar_work *work);
/* Waits until a posted operation is done and returns its result. Over NCCL it waits only until the
 * operation is ordered on the stream. Returns DPAR_OK for a zeroed work. Fails with DPAR_E_ARG if
 * `work` is NULL, or recognisably neither zeroed nor posted. */
DPAR_API dpar_status dpar_wait(dpar_work *work);
/* Waits for works[n], even after one has failed, and returns the first failure. Fails with
 * DPAR_E_ARG if `works` is NULL. */
DPAR_API dpar_status dpar_wait_all(dpar_work *works, int32_t n);

/* ---- communicators ---- */

/* Splits a communicator: the ranks that pass the same color form a new one.
 *
 * color: at least 0; ranks with a negative color get *out = NULL.
 * key:   orders the ranks of the new communicator; ties are ordered by rank in comm.
 *
 * With color 0 and key 0 on all ranks, *out has the same ranks as comm, and its operations are
 * independent of those of comm. The new communicator inherits the deadline. Collective. Fails with
 * DPAR_E_MEMORY if a rank has no memory for it. Costs an all-gather of 40 bytes. In shared memory
 * each communicator takes twice options.slot_bytes and a few pages per rank, which are used again
 * for the next one after it is closed. */
DPAR_API dpar_status dpar_comm_split(dpar_comm *comm, int32_t color, int32_t key, dpar_comm **out);
/* Splits off the group of this rank along some axes of a mesh over the ranks of comm.
 *
 * axes: bit i is set for axis i. The group consists of the ranks that differ from this rank only in
 *       these coordinates, in the order of dpar_mesh_group_member.
 *
 * Ranks outside the mesh get *out = NULL. Fails with DPAR_E_ARG if the mesh has a rank that comm
 * does not have or has a rank twice; otherwise as dpar_comm_split. Collective. */
DPAR_API dpar_status dpar_comm_split_axes(dpar_comm *comm, const dpar_mesh *mesh, uint32_t axes,
                                          dpar_comm **out);
/* Makes a communicator of the ranks that are still alive and call this function, in their old order
 * and with comm's deadline. A program that keeps a copy of its state calls it on all ranks:
 *
 *     st = steps(comm);                                   E_PEER, E_TIMEOUT: a rank died, or hangs
 *     while (st == DPAR_E_PEER || st == DPAR_E_TIMEOUT) {
 *         st = dpar_comm_shrink(comm, &next, was, &why);  rank r of next is rank was[r] of comm
 *         if (st == DPAR_OK) {
 *             comm = next;
 *             st = restore(comm, was);
 *         }
 *         if (st == DPAR_OK) {
 *             st = steps(comm);
 *         }
 *     }
 *
 * was: [comm->size], receives the old ranks; may be NULL.
 *
 * Collective over the ranks of comm that are alive. It breaks comm with DPAR_E_PEER unless comm is
 * broken already, and ends the operations that are posted on it. All ranks that take part get the
 * same communicator. A rank that waits on another communicator for a rank that shrinks is not
 * notified, so call dpar_comm_abort on such communicators first.
 *
 * The call does not wait for ranks that have died or have closed comm. It waits for a late or
 * stopped rank until comm's deadline has passed since the last other rank arrived. A rank that
 * arrives later gets DPAR_E_TIMEOUT and a message that names the ranks that went on. A rank that
 * dies after it has arrived may still be in the new communicator, whose first operation then fails
 * with DPAR_E_PEER: shrink that communicator too.
 *
 * Fails with DPAR_E_ARG if this rank has shrunk or closed comm before, DPAR_E_MEMORY if it has no
 * memory for a communicator, and DPAR_E_SYSTEM if the engine cannot shrink. That is MPI on several
 * nodes without ULFM (see dpar_mpi.h), and NCCL, which has dpar_nccl_shrink.
 *
 * In shared memory *out belongs to comm's world, as if it were split from comm: close it before
 * comm. Close comm like any broken communicator; the close waits for nobody. Registered memory
 * stays valid, also for operations on *out. But a rank that is only stopped may still write into
 * the buffers of its last operations on comm. Therefore use other memory on *out, from
 * dpar_comm_alloc of *out, where such a rank never writes.
 *
 * dpar_launch does not end ranks that have shrunk a dead rank away. Other launchers end the job
 * when a rank dies, unless they are configured not to. Costs O(size) and the wait. */
DPAR_API dpar_status dpar_comm_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                      dpar_why *why);
/* Closes a communicator. NULL does nothing. Closing the world also ends this rank's part in the job
 * and closes all communicators split from it. Close plans that use a communicator before it.
 *
 * Collective: it is a barrier, called in the same order on all ranks, unless this or another
 * communicator of the world is broken. Returns the result of that wait. Fails with DPAR_E_ARG if
 * posted work on it was not waited for; that work is lost and fails on the other ranks. Fails with
 * DPAR_E_ARG also for the communicator that dpar_launch passes to a rank, because dpar_launch
 * closes it. While the world is open, a call on one of its last 16 closed communicators, directly
 * or by a plan, fails with DPAR_E_ARG and "closed before". */
DPAR_API dpar_status dpar_comm_free(dpar_comm *comm);

/* Allocates registered memory. Other ranks reach it directly, so that collectives on it read and
 * write each byte once. It is zeroed and aligned to 4096 bytes. Release it before its
 * communicator's world is closed, or let the close release it.
 *
 * Not collective. Fails with DPAR_E_MEMORY if there is not enough memory and DPAR_E_ARG if `bytes`
 * is negative. Costs O(allocations) and, in shared memory, about 1 ms for each MB from the system,
 * but only 0.05 ms, for setting it to zero, if it was released before and is kept. */
DPAR_API dpar_status dpar_comm_alloc(dpar_comm *comm, int64_t bytes, void **memory);
/* Releases memory of dpar_comm_alloc. NULL does nothing. Not collective.
 *
 * In shared memory a rank keeps up to 64 MiB of released memory for its next allocations. All ranks
 * of a node together keep at most 1/32 of the memory that was available when they started. The
 * rest, and all of it when an allocation of this rank would fail otherwise, is given back to the
 * system. An allocation of another rank can fail although this rank keeps memory. */
DPAR_API void dpar_comm_release(dpar_comm *comm, void *memory);

/* Starts a thread of the engine that advances posted work, or ends that thread if `on` is 0. Not
 * collective. Fails with DPAR_E_ARG if comm is NULL, and with DPAR_E_SYSTEM if the engine has no
 * such thread or MPI messages carry any of the traffic. In the latter case the message says whether
 * MPI would allow a thread (MPI_THREAD_MULTIPLE). */
DPAR_API dpar_status dpar_comm_progress(dpar_comm *comm, int32_t on);
/* Breaks a communicator on all ranks: their waits fail with `status` and the message `text`. A
 * status that is not negative is replaced by DPAR_E_PEER. If several ranks abort, the first one
 * counts. Local: it waits for nobody. Costs O(size). */
DPAR_API void dpar_comm_abort(dpar_comm *comm, dpar_status status, const char *text);
/* Describes in one line of text how the ranks reach each other: the engine, the number of nodes,
 * how ranks share memory, and why no faster method is used. Local. Costs O(1). */
DPAR_API void dpar_comm_describe(dpar_comm *comm, dpar_text *out);
/* Lists the last operations of each rank as text, with sequence number, type, count and state. It
 * includes ranks that were killed. Not collective. Costs O(size). */
DPAR_API void dpar_comm_report(dpar_comm *comm, dpar_text *out);

#endif
