/* SPDX-License-Identifier: MIT-0 */
/* dpar_comm.h - starts or joins ranks and lets them communicate: collectives, messages, moves of arrays.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 * The ranks of this header are processes or threads of one machine, which communicate through shared memory (POSIX).
 * dpar_mpi.h and dpar_nccl.h provide the same calls over MPI and NCCL. If a rank dies or does not arrive in time, the
 * waits of the others end with an error whose message names it.
 *
 *     #include "dpar_comm.h"
 *     #include <stdio.h>
 *     static int work(dpar_comm *world, void *unused)
 *     {
 *         const double sum = dpar_sum(world, world->rank + 1);
 *         (void)unused;
 *         if (world->status < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         printf("rank %d of %d: the sum is %g\n", (int)world->rank, (int)world->size, sum);
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, work, NULL);
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. yours.c -o yours
 *     ./yours --ranks 4                    or, on one node: mpiexec -n 4 ./yours, srun, torchrun */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar.h")
#error dpar_comm.h needs dpar.h beside it, of the same release
#endif
#endif
#include "dpar.h"
#endif
#if DPAR_VERSION != 200
#error dpar_comm.h and dpar.h are of different versions: take all headers from one release
#endif
#if !DPARI_POSIX
#error dpar_comm.h needs POSIX (Linux, macOS, BSD) and a C library
#endif

#ifndef DPAR_COMM_H
#define DPAR_COMM_H

/* ==== host/mem.h ==== */

/* mem - describes memory that the CPU does not reach, such as a device's, by a table of functions
 * that communicators and halos call. dpar_cuda.h fills in the table for NVIDIA GPUs; for another
 * device you write the functions. dpar_mem_host returns the table of the host's memory, whose
 * functions show what each one must compute. Layers of training need more functions: layers.h.
 *
 *     dpar_cuda_mem(&gpu, &mem);           dpar_cuda.h fills the table
 *     comm->mem = &mem;                    strategies on comm now work in the GPU's memory
 *
 * dpar calls the functions from the thread that calls dpar. Each takes one struct in the host's
 * memory, which it reads before it returns, together with its arrays of boxes and spans. All
 * pointers in it, also those to scalars and indices, point to device memory, or to host memory that
 * the device reaches (pinned, managed). That memory is read and written in stream order, after all
 * work that was submitted to ctx before. The work may be done after the function has returned; only
 * `wait` waits for it. No function allocates memory.
 *
 * With a type or number that is not allowed, a function returns DPAR_E_ARG and does nothing. Sizes
 * may be 0, and pointers may then be NULL. Pointers are aligned to their type. Outputs may overlap
 * inputs only where the comment allows it.
 *
 * "In f64" means that inputs become doubles and that each product and each sum is rounded to f64
 * (not fused). The result is rounded to its type, to nearest even; BF16 and F16 are rounded to F32
 * first. Where a NaN becomes a type of fewer bits, it becomes the quiet NaN without sign and
 * payload. */

enum { DPAR_MEM_DIMS = DPAR_MAX_DIMS + 1 }; /* dims of a box; the last one is for components */

/* A box of elements to be copied, as when it is packed, unpacked or filled. For each index
 * i < extent, in all dims,
 *
 *     v = from[i . from_stride], of type from_type
 *     v is rounded to `round_type`, negated if `negate`, and converted to to_type
 *     to[i . to_stride] = v, or itself op v
 *     from[i . from_stride] = 0 if `clear`
 *
 * Both types are the same, or are two of {F64, F32}, {F32, F16}, {F32, BF16}. */
typedef struct dpar_mem_box {
    void *to, *from;            /* address of index 0 on each side; one or both in the device's
                                   memory */
    int32_t to_type, from_type; /* DPAR_F64, ... */
    int32_t round_type;         /* a type no wider than either; no rounding if it is 0 or both
                                   types */
    int32_t op;                 /* DPAR_COPY; or DPAR_SUM, DPAR_MAX, DPAR_MIN, computed in to_type,
                                   16-bit floats in F32 */
    int32_t negate;   /* 1 flips the sign bit of floats and negates integers, which wrap */
    int32_t clear;    /* 1 sets `from` to 0 afterwards */
    int32_t dims;     /* 0..DPAR_MEM_DIMS */
    int32_t reserved; /* reserved; 0 */
    int64_t extent[DPAR_MEM_DIMS];
    int64_t to_stride[DPAR_MEM_DIMS];   /* in elements, of either sign */
    int64_t from_stride[DPAR_MEM_DIMS]; /* in elements; 0 in a dim repeats the same element along
                                           that dim */
} dpar_mem_box;

/* Contiguous elements to be flattened, unflattened, converted, accumulated or filled. Computes
 * v = scale * from[i] in f64 (from[i] itself if scale is 1). Then to[i] = v, or to[i] + v in f64,
 * rounded once. */
typedef struct dpar_mem_span {
    void *to;
    const void *from; /* may equal `to` if both types have as many bytes. If NULL, v = scale */
    int64_t count;
    /* Any two of F64, F32, BF16 and F16. If both are the same, scale is 1 and add is 0, any type
     * that has bytes is allowed and every bit is copied. If from is NULL and scale 0, to_type may
     * be any type that has bytes. */
    int32_t to_type, from_type;
    int32_t accumulate; /* 1 adds to what `to` holds; 0 overwrites it */
    int32_t reserved;   /* reserved; 0 */
    double scale;
} dpar_mem_span;

/* A reduction of several parts, in the order of the collectives. Computes v = x[0] op x[1] op ...,
 * where x[p] = from[p * stride + i]; DPAR_AVG divides by the number of parts. Then v is multiplied
 * by scale, and to[i] = v, or to[i] + v. All is computed in the type `sum_type` and rounded once to
 * to_type. Sums and products of integers wrap, and DPAR_AVG divides the wrapped sum, rounding
 * towards zero. */
typedef struct dpar_mem_reduce {
    void *to; /* may be one of the parts */
    const void *from;
    int64_t count, parts, stride; /* at least 1 part; stride in elements is 0 or at least count */
    int32_t to_type, from_type;   /* F64, F32, BF16, F16; or both the same type of integers */
    int32_t sum_type;             /* F64, or F32 if neither type is F64; for integers their type */
    int32_t op;                   /* DPAR_SUM, AVG, PRODUCT, MAX or MIN; NaN if any part is NaN */
    int32_t accumulate;           /* 1 adds to what `to` holds; must be 0 for integers */
    int32_t reserved;             /* reserved; 0 */
    double scale; /* rounded to `sum_type`; 1 skips the multiplication. Must be 1 for
                     integers */
} dpar_mem_reduce;

/* A search for NaN and infinity. Sets *found to first + the smallest i for which in[i] is one, or
 * to -1 if there is none. */
typedef struct dpar_mem_finite {
    const void *in;
    int64_t count, first;
    int32_t type; /* F64, F32, BF16 or F16 */
    /* 1 leaves *found unchanged if it is 0 or more, so that several arrays can be searched one
     * after the other */
    int32_t keep_found;
    int64_t *found;
} dpar_mem_finite;

/* A device's memory, as a table of functions. They return DPAR_OK, or an error, which breaks the
 * communicator for all ranks. Halo exchanges need only `move`; training strategies document what
 * they need. If a function that is needed is NULL, the caller fails with DPAR_E_UNKNOWN. */
typedef struct dpar_mem {
    void *ctx; /* first argument of each function, such as a device or a stream */
    /* Copies n boxes, after all work that was submitted to ctx before, such as the kernels that
     * computed the packed values. It may return before the copies are done. With DPAR_COPY no box
     * writes elements that another box reads or writes, so that one kernel can copy all of them.
     * With DPAR_SUM, DPAR_MAX and DPAR_MIN several boxes may write the same elements of `to`. They
     * are then combined in the order of the array, so that results do not depend on timing. */
    dpar_status (*move)(void *ctx, const dpar_mem_box *boxes, int32_t n);
    /* Waits until all moves and operations are done. */
    dpar_status (*wait)(void *ctx);
    /* Prepares host memory for moves (page-locks and maps it) until unpin. It is this rank's memory
     * or a peer's that is mapped here. Ranks that are threads may pin the same memory twice. Whole
     * pages are locked, and CUDA cannot copy an array of which only a part is locked. Therefore the
     * memory of plans (ddp, fsdp, halos and others) should not share pages with other memory. */
    dpar_status (*pin)(void *ctx, void *memory, int64_t bytes);
    dpar_status (*unpin)(void *ctx, void *memory);
    /* Computes n spans, none of which writes elements that another one reads or writes. */
    dpar_status (*span)(void *ctx, const dpar_mem_span *spans, int32_t n);
    dpar_status (*reduce)(void *ctx, const dpar_mem_reduce *reduce);
    dpar_status (*finite)(void *ctx, const dpar_mem_finite *finite);
    /* The functions that layers of training need in addition: a dpar_mem_layers (dpar_train.h),
     * whose functions take this ctx. If NULL, layers that need it fail with DPAR_E_UNKNOWN.
     * Communicators and halos do not read it. */
    const void *layers;
} dpar_mem;

/* Returns the table of the host's memory. Its functions are plain loops that are done when they
 * return and ignore ctx. The functions of a device must give the same bits. `wait`, `pin` and
 * `unpin` do nothing, and `layers` is NULL (use dpar_mem_host_layers). Local. Costs O(1). */
DPAR_API dpar_mem dpar_mem_host(void);

/* ==== comm/comm.h ==== */

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

/* ==== comm/options.h ==== */

/* options - sets deadlines, memory sizes and mechanisms of ranks that share memory.
 *
 *     dpar_world_desc o = {0};
 *     o.timeout_s = 20;
 *     dpar_launch(4, work, NULL, &o, &why);    or dpar_init(&world, &o, &why) */

/* Options of ranks that share memory. Zero selects every default. */
typedef struct dpar_world_desc {
    double timeout_s;   /* deadline of one operation, in seconds. 0 selects 300 s, a negative number
                           no deadline. Time during which the job was suspended does not count */
    double grace_s;     /* how long ranks may go on after another one has failed, in seconds, before
                           dpar_launch kills them. Ranks that have shrunk the failed one away
                           (dpar_comm_shrink) are not killed. 0 selects 10 s */
    int64_t heap_bytes; /* the most registered memory (dpar_comm_alloc) that one rank may have at a
                           time, in whole pages; beyond it dpar_comm_alloc fails with DPAR_E_MEMORY.
                           0 selects the memory of the machine. It reserves neither memory nor
                           addresses, whatever its value: both are taken when they are needed
                           (docs/limits.md). The library's own needs do not count, about 1 MiB for
                           each communicator and 270 KiB for each rank that this one sends messages
                           to. The heap is smaller if the limit on files (ulimit -f) is */
    int64_t slot_bytes; /* staging memory of one rank in one communicator, for data that is not in
                           registered memory: a power of two, 4 KiB .. 16 MiB. 0 selects 256 KiB */
    int32_t threads;    /* dpar_launch only: 1 makes ranks threads of this process */
    int32_t disable;    /* a sum of DPAR_WORLD_NO_x, which disables mechanisms for tests and
                           comparisons */
    int32_t ranks; /* dpar_init_or_launch only: the number of ranks to start if neither --ranks nor
                      DPAR_RANKS nor a launcher sets it. 0 selects 1 */
} dpar_world_desc;

/* Bits of options.disable. */
enum {
    DPAR_WORLD_NO_CMA = 1,   /* does not read the memory of other processes (process_vm_readv) */
    DPAR_WORLD_NO_MEMFD = 2, /* uses a named segment, unlinked at once, instead of a nameless one */
    DPAR_WORLD_NO_DIRECT = 4,            /* treats registered memory as private */
    DPAR_WORLD_NO_FUTEX = 8,             /* waits only by yielding and short sleeps */
    DPAR_WORLD_NO_STREAMING_STORES = 16, /* uses no streaming stores */
    DPAR_WORLD_NO_FLAT = 32, /* runs collectives by levels from 3 ranks on, also where ranks share
                               cores. By default this begins at 17 ranks that have a core each */
    DPAR_WORLD_NO_MIGRATION = 64, /* lets the system choose on which CPU a rank runs. By default a
                                     rank that finds its peer on its own CPU moves to another CPU
                                     that it may use, if there is one for each rank */
    DPAR_WORLD_NO_DONTDUMP = 128 /* puts all shared memory that the rank has mapped into core files,
                                    with the heaps of other ranks. Such files are large, and the
                                    system then allocates memory that nobody has used. By default a
                                    core file has the rank's own first 1024 arrays of
                                    dpar_comm_alloc, as if malloc had made them, and
                                    /proc/self/coredump_filter can leave them out too */
};

/* ==== comm/launch.h ==== */

/* launch - starts ranks on this machine, as processes or threads, or joins ranks that a launcher
 * has started. For most programs dpar_launch_main or dpar_init_or_launch (simple.h) is enough.
 *
 *     dpar_launch(4, work, NULL, NULL, &why);   forks four ranks; work(world, NULL) in each
 *     dpar_init(&world, NULL, &why);            joins the ranks that mpiexec or srun started */

/* The function that a rank runs. It returns 0 on success. The communicator is closed after it
 * returns. */
typedef int (*dpar_main)(dpar_comm *world, void *arg);

/* Starts ranks on this machine, runs fn(world, arg) in each, and waits until all have ended.
 * Returns DPAR_OK if fn returned 0 on all ranks.
 *
 * ranks: 1 .. 1024. A single rank runs in this process. A rank may launch other ranks.
 * desc:  NULL selects the defaults.
 * why:   on failure says which rank failed and how; may be NULL.
 *
 * Ranks are forked, so each has its own copy of all memory, including `arg`. With desc.threads they
 * are threads, which share memory and cannot be killed. No rank outlives this process: on Linux
 * ranks are killed when it dies, elsewhere their next wait fails. Buffers of stdio are flushed
 * before the fork and when a rank ends. Functions registered with atexit run only once, in this
 * process. Other children of this process are not affected, and SIGCHLD may be ignored. A rank that
 * ends by exit, even with 0, has failed.
 *
 * Threads. A fork copies only the thread that calls it. A library that has started threads, and
 * waits for them in a rank, would wait without end. OpenMP is safe, because dpar_launch ends its
 * threads before it forks (omp_pause_resource_all, from GCC 9 and LLVM 9 on). Parallel regions
 * therefore work before, in and after the ranks, but threadprivate copies of the other threads are
 * lost. Threads that no rank waits for do no harm. If you use another library with threads (TBB, a
 * GPU's runtime), launch before it starts them, or use dpar_init_or_launch, whose ranks are new
 * processes.
 *
 * Fails with DPAR_E_PEER if a rank did not return 0, was killed, or hung. The waits of the others
 * for it end at once. Ranks that have not ended grace_s later are killed, unless they have shrunk
 * the failed rank away (dpar_comm_shrink). Once some ranks have ended, the others count as hung if,
 * for the longer of timeout_s and grace_s, they neither begin an operation nor wait in one. They
 * are then killed.
 *
 * Fails with DPAR_E_TIMEOUT if this process had several threads when it forked, and for timeout_s
 * no rank has begun an operation, waited in one or used its processor. All ranks are killed. The
 * message has the number of threads, as have messages of DPAR_E_PEER about a rank that was killed.
 * This is detected on Linux only, and not for ranks that wait in a busy loop.
 *
 * Fails with DPAR_E_ARG or DPAR_E_SYSTEM if ranks could not be started; then fn has run on none.
 * Starting four ranks takes about a millisecond. Needs POSIX. */
DPAR_API dpar_status dpar_launch(int32_t ranks, dpar_main fn, void *arg,
                                 const dpar_world_desc *desc, dpar_why *why);

/* The launchers that dpar knows, in the order in which it looks for them. The first one found
 * provides all numbers. */
enum {
    DPAR_LAUNCHER_NONE, /* not launched: a single rank */
    DPAR_LAUNCHER_DPAR, /* DPAR_RANK, DPAR_SIZE, ... */
    DPAR_LAUNCHER_TORCHRUN,
    DPAR_LAUNCHER_OPENMPI,
    DPAR_LAUNCHER_HYDRA, /* MPICH, Intel MPI */
    DPAR_LAUNCHER_PALS,  /* Cray PMI */
    DPAR_LAUNCHER_MVAPICH,
    DPAR_LAUNCHER_FLUX,
    DPAR_LAUNCHER_JSRUN,
    DPAR_LAUNCHER_SLURM, /* only inside a step (srun) */
    DPAR_LAUNCHER_COUNT
};
/* A process as its launcher numbers it, filled in by dpar_launcher_detect. */
typedef struct dpar_launcher_info {
    int32_t kind;                   /* DPAR_LAUNCHER_x */
    int32_t rank, size;             /* in the whole job */
    int32_t local_rank, local_size; /* on this node; -1 if the launcher does not say */
    char id[64];                    /* the same on all ranks of the job, different between jobs */
} dpar_launcher_info;

/* Finds out which launcher started this process, and its rank, from environment variables.
 *
 * To launch by hand, set DPAR_RANK and DPAR_SIZE, and optionally DPAR_LOCAL_RANK, DPAR_LOCAL_SIZE
 * and DPAR_JOB, a word that no other job uses. Without DPAR_JOB the parent process identifies the
 * job. Slurm's variables count only inside srun.
 *
 * Local. Fails with DPAR_E_ARG if the variables of a launcher contradict each other (a rank without
 * a size, a rank outside the size, "12x"), or if only PMIx variables are set, which lack the
 * size. */
DPAR_API dpar_status dpar_launcher_detect(dpar_launcher_info *job, dpar_why *why);

/* Joins the ranks of the job that this process belongs to, over shared memory. A process that no
 * launcher started becomes the only rank.
 *
 * world:   the communicator of all ranks; close it with dpar_comm_free.
 * desc: NULL selects the defaults. Memory sizes are those of rank 0; `threads` is ignored.
 *          DPAR_TIMEOUT (seconds) in the environment overrides timeout_s.
 *
 * Collective over the job. Ranks find each other at a socket that belongs to this user and job.
 * Fails with DPAR_E_ARG if the ranks are not all on one node; the message says what to use instead.
 * Fails on all ranks with DPAR_E_TIMEOUT if ranks do not arrive before the deadline, DPAR_E_PEER if
 * ranks end meanwhile, and DPAR_E_MISMATCH if ranks have another build or another number of ranks.
 * The message names those ranks. Takes milliseconds. */
DPAR_API dpar_status dpar_init(dpar_comm **world, const dpar_world_desc *desc, dpar_why *why);

/* ==== comm/scan.h ==== */

/* scan - combines the values of this rank with those of all lower ranks, and finds the smallest or
 * largest value together with where it is.
 *
 *     dpar_exscan(world, &count, &first, 1, DPAR_I64, DPAR_SUM);    number of this rank's first row
 *
 * simple.h has short forms for one number: dpar_first_index, dpar_min_location and
 * dpar_max_location. All functions are collective and return when they are done. */

/* Combines in[count] of rank 0 up to this rank elementwise into out[count], in rank order.
 *
 * in, out: in memory that the CPU reads, the same or disjoint.
 * op:      DPAR_SUM, DPAR_PRODUCT, DPAR_MAX or DPAR_MIN.
 *
 * The rules for numbers are those of reductions (comm.h), except that F16 and BF16 are rounded
 * after each rank. The bits are the same with every engine. Collective. Fails as dpar_all_gather
 * does, with DPAR_E_MISMATCH also if ranks pass different ops, and with DPAR_E_MEMORY on all ranks.
 *
 * Costs an all-gather of the inputs, and O(size * count). If the inputs of all ranks together
 * exceed 8 KiB, also costs a small all-reduce, and 1 MiB of memory, or that of an element of each
 * rank if this is more. */
DPAR_API dpar_status dpar_scan(dpar_comm *comm, const void *in, void *out, int64_t count,
                               int32_t type, int32_t op);
/* Combines in[count] of all lower ranks, without this one's. On rank 0, `out` becomes 0 for
 * DPAR_SUM and is left unchanged for other ops. Everything else is as for dpar_scan. */
DPAR_API dpar_status dpar_exscan(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op);

/* A value, and a number that you choose to describe where it is, such as the index of a cell. */
typedef struct dpar_location {
    double value;
    int64_t index;
} dpar_location;

/* Finds, for each i, the smallest or largest pairs[i].value of all ranks, and the index passed with
 * it. All ranks get both. If several ranks have this value, the lowest of their indices is taken.
 * If any value is NaN, the result is NaN, with the lowest index passed with a NaN.
 *
 * pairs: [count], input and output, in memory that the CPU reads. Undefined after a failure.
 * op:    DPAR_MIN or DPAR_MAX.
 *
 * Collective. Fails as dpar_all_reduce does. Costs two all-reduces per 128 pairs. */
DPAR_API dpar_status dpar_all_reduce_location(dpar_comm *comm, dpar_location *pairs, int64_t count,
                                              int32_t op);

/* ==== comm/simple.h ==== */

/* simple - makes a program parallel in a few lines: one call in main, one function that reports
 * errors, and reductions of one number.
 *
 *     static int work(dpar_comm *world, void *unused)
 *     {
 *         const double sum = dpar_sum(world, world->rank + 1);
 *         (void)unused;
 *         if (world->status < 0) {
 *             return dpar_fail(world, NULL);
 *         }
 *         ...
 *         return 0;
 *     }
 *     int main(int argc, char **argv)
 *     {
 *         return dpar_launch_main(argc, argv, work, NULL);
 *     }
 *
 *     ./sum --ranks 4         forks four ranks
 *     mpiexec -n 4 ./sum      joins the four ranks that mpiexec started; so do srun and torchrun
 *
 * A serial main becomes parallel by two calls, dpar_init_or_launch and dpar_finalize. Their ranks
 * are new processes, as OpenMP and GPUs require. All of this is built on comm.h and launch.h. */

/* Runs fn(world, arg) on every rank and returns the program's exit code. If a launcher started this
 * process (dpar_launcher_detect finds that out), it joins the launcher's ranks as dpar_init does.
 * Otherwise it forks N ranks as dpar_launch does.
 *
 * argc, argv: as main has them; they are only read. N is the number after the last `--ranks N` or
 *             `--ranks=N` before "--". Without that it is DPAR_RANKS in the environment, or else
 *             the number of cores, at most 4. Under a launcher N must be the launcher's number of
 *             ranks. If neither says N, a word that resembles --ranks (--rank, -ranks=4, --rnaks)
 *             is refused. If your program has such an option itself, also pass --ranks, or call
 *             dpar_launch_main with argc 1 and argv[0] only. All other words are yours.
 *
 * DPAR_TIMEOUT in the environment sets the deadline of operations in seconds (300). Collective over
 * the job.
 *
 * The exit code is 0 if fn returned 0 on all ranks. It is 1 if the program could not start or a
 * rank was killed, and 2 if --ranks, DPAR_TIMEOUT or the variables of a launcher are wrong.
 * Otherwise it is what fn returned on the first rank that failed, or 1 if that is not in 1 .. 255.
 * The error is printed to stderr once, unless dpar_fail has printed it. If processes of a launcher
 * do not find each other, each of them prints it. */
DPAR_API int dpar_launch_main(int argc, char **argv, dpar_main fn, void *arg);

/* Starts ranks, or joins those that a launcher started, and returns in each with its communicator:
 *
 *     int main(int argc, char **argv)
 *     {
 *         dpar_comm *world;
 *         dpar_why why;
 *         if (dpar_init_or_launch(&argc, &argv, NULL, &world, &why) < 0) {
 *             return dpar_fail(NULL, &why);
 *         }
 *         ... what main did before, on world->rank of world->size ...
 *         return dpar_finalize(world);
 *     }
 *
 * argc, argv: as main has them. --ranks and its number are removed; the rest is yours. With NULL,
 *          it can join a launcher's ranks or be the only rank, but not start ranks.
 * desc:    NULL selects the defaults. `threads` is ignored.
 * world:      the communicator of all ranks; close it with dpar_finalize.
 *
 * Under a launcher it joins, as dpar_init does. Otherwise the number of ranks is that of --ranks,
 * of DPAR_RANKS in the environment, or desc->ranks, the first that is set, and 1 if none is.
 * More than one rank are new processes of this program with the same arguments. Each runs main from
 * its start, as under mpiexec, so do nothing before dpar_init_or_launch that only one process
 * should do. New processes inherit neither threads nor locks. They are therefore safe where forked
 * ranks are not (dpar_launch): after OpenMP, with a GPU's runtime, with any library that has
 * threads.
 *
 * The process that started them does not return. It watches them as dpar_launch does, kills those
 * that hang, and calls exit with 0 or the exit status of the first rank that failed. It prints to
 * stderr which rank failed and how, unless dpar_fail did. A rank that ends without dpar_finalize
 * has failed.
 *
 * Collective; call it once. Fails with DPAR_E_ARG if --ranks, DPAR_RANKS, DPAR_TIMEOUT, desc or
 * the variables of a launcher are wrong, otherwise as dpar_init. Starting takes milliseconds. */
DPAR_API dpar_status dpar_init_or_launch(int *argc, char ***argv, const dpar_world_desc *desc,
                                         dpar_comm **world, dpar_why *why);
/* Waits for all ranks, closes the communicator of dpar_init_or_launch and returns the program's
 * exit code. The code is 0, or 1 if a rank has died, world is broken or NULL, or posted work was
 * not waited for. The reason is printed to stderr once, as by dpar_fail. Collective. */
DPAR_API int dpar_finalize(dpar_comm *world);

/* Silences stdout on all ranks except rank 0, so that a program that was serial prints each line
 * once and not once per rank. Call it right after the communicator is made:
 *
 *     dpar_quiet(world);
 *
 * File descriptor 1 is redirected to /dev/null, which also silences C++, Fortran and child
 * processes. Text that stdio has buffered is written first. stderr is not changed: error messages
 * of every rank still appear, and dpar_fail puts the number of the rank before them.
 *
 * Local. There is no call that undoes it. Does nothing if the ranks are threads, because threads
 * share stdout. Fails with DPAR_E_SYSTEM if /dev/null cannot be opened, with the reason in
 * comm->why; stdout is then unchanged. */
DPAR_API dpar_status dpar_quiet(dpar_comm *comm);

/* Reports an error and ends the job: `return dpar_fail(world, &why);`. Returns 1. The first rank
 * that calls it prints "rank 2 of 4: " and the message to stderr. The others print nothing, because
 * they were refused the same call, or their operations fail with DPAR_E_PEER now that comm is
 * broken.
 *
 * comm: NULL if the communicator could not be made; then only the message is printed.
 * why:  NULL prints the message of comm->why.
 *
 * Over MPI one rank of each node prints. Not collective: it waits for nobody. */
DPAR_API int dpar_fail(dpar_comm *comm, const dpar_why *why);
/* Ends the job if a call has failed, for codes that do nothing else with errors:
 *
 *     dpar_require(world, dpar_grid_make(world, &desc, &grid, NULL), NULL);
 *     dpar_require(world, dpar_grid_exchange(grid, u), NULL);
 *
 * If the call makes or frees the communicator, pass NULL for comm and the `why` that you passed to
 * the call, otherwise only the text of the status is printed:
 *
 *     dpar_require(NULL, dpar_mpi_make(MPI_COMM_WORLD, NULL, &world, &why), &why);
 *
 * Returns if status is not an error. Otherwise reports it as dpar_fail(comm, why) does, and ends
 * this process with exit status 1, without functions registered with atexit. The launcher then ends
 * the other ranks, whose calls fail. Not collective: it waits for nobody. */
DPAR_API void dpar_require(dpar_comm *comm, dpar_status status, const dpar_why *why);

/* Computes the largest x of all ranks, with the same bits on all ranks. Returns NaN after an error.
 * comm->status and comm->why then say which error it is, and later calls return NaN at once. If an
 * x is NaN, the result is NaN too, but comm->status stays 0. Collective. Costs an all-reduce of 8
 * bytes. */
DPAR_API double dpar_max(dpar_comm *comm, double x);
/* Computes the smallest x of all ranks, otherwise as dpar_max. */
DPAR_API double dpar_min(dpar_comm *comm, double x);
/* Computes the sum of x over all ranks, otherwise as dpar_max. */
DPAR_API double dpar_sum(dpar_comm *comm, double x);
/* Computes the mean of x over all ranks, otherwise as dpar_max. */
DPAR_API double dpar_mean(dpar_comm *comm, double x);
/* Computes the largest x of all ranks as dpar_max does, and finds where it is.
 *
 * index: input, a number that says where this rank's x is, such as the index of a cell or the rank.
 *        Receives the index of the largest x, or the lowest one if several ranks have it. If any x
 *        is NaN, receives the lowest index passed with a NaN. Undefined after an error.
 *
 * Costs two all-reduces of 8 bytes. scan.h has the form for many values. */
DPAR_API double dpar_max_location(dpar_comm *comm, double x, int64_t *index);
/* Computes the smallest x of all ranks and finds where it is, otherwise as dpar_max_location. */
DPAR_API double dpar_min_location(dpar_comm *comm, double x, int64_t *index);
/* Numbers elements in rank order: returns the global index of the first of this rank's `count`
 * elements, which is the sum of the counts of all lower ranks. Returns -1 after an error, which
 * comm->status and comm->why then describe. Collective. Costs an all-gather of 8 bytes. */
DPAR_API int64_t dpar_first_index(dpar_comm *comm, int64_t count);

/* Checks that all ranks have the same count elements of `type` at data, bit by bit, as initial
 * weights in training must be. Returns DPAR_OK if they have.
 *
 * data: [count], in memory that the CPU reads.
 *
 * Collective. Fails with DPAR_E_MISMATCH if they differ. On all ranks the message then names the
 * first element in which a rank differs from rank 0, "element 7 is 0.25 on rank 0, 0.75 on rank 3".
 * It names the count or type instead if that differs. Fails on all ranks with DPAR_E_ARG for a type
 * whose elements share bytes (F4), a negative count or NULL; otherwise as the collectives. The
 * message is in comm->why, too.
 *
 * Reads the data once and costs two all-reduces of 24 bytes. If data differ, it reads them once
 * more and costs an all-reduce for each bit of count. */
DPAR_API dpar_status dpar_comm_check_equal(dpar_comm *comm, const void *data, int64_t count,
                                           int32_t type, dpar_why *why);

/* ==== exchange/move.h ==== */

/* move - moves an array from one layout to another, or the boxes of two lists of transfers (for
 * halos or checkpoints), over any communicator. Rank n of a mesh is rank n of the communicator.
 * Arrays are in the memory of the communicator (comm->mem: a device's, otherwise the host's), dense
 * in C order.
 *
 *     dpar_redistribute_desc move = {0};
 *     move.type = DPAR_F32;
 *     move.from = &rows;                          layouts, dpar_layout_init
 *     move.to = &columns;
 *     move.in = mine;                             this rank's part of rows
 *     move.out = theirs;                          becomes its part of columns
 *     dpar_redistribute(world, &move, &why);
 *
 * The boxes that one rank sends to another form one stream, in the order of the list. Small boxes
 * share a message, large ones are cut into pieces. A move proceeds in rounds, and in each round a
 * stream has at most one message in progress. A rank therefore needs memory for one message per
 * peer, and no second copy of an array. Contiguous boxes are sent and received in place. Boxes that
 * a rank sends to itself are copied.
 *
 * Reductions combine in the order of the receiving list. A DPAR_COPY stores the first part, and
 * each op that follows combines another part: ((x0 op x1) op x2). Consecutive boxes from different
 * ranks with the same place and extents are reduced together: F16 and BF16 are added in f32 and
 * rounded once. The result does not depend on which rank is first.
 *
 * In a device's memory comm->mem packs, unpacks and adds boxes, in stream order. If the caller
 * provides scratch in both memories, the host waits for the device only where large boxes are
 * combined: for small messages in which receivers tell senders when to send. Without scratch the
 * end of a move waits for the device. Boxes of one message must not write the same elements. */

/* A move: of an array from one layout to another (from, to), or of the boxes of two lists (send,
 * receive). Zero it, then set the fields that you need. Fields type, ranks_per_node, tag and
 * piece_bytes must be equal on all ranks. */
typedef struct dpar_redistribute_desc {
    int32_t type;                 /* of the elements, DPAR_F32, ...; no default */
    int32_t ranks_per_node;       /* for layouts: ranks per node, as in dpar_redistribute_first */
    int32_t tag;                  /* of the messages */
    const dpar_layout *from;      /* for layouts: `in` is this rank's part of `from` */
    const dpar_layout *to;        /* for layouts: `out` becomes this rank's part of `to` */
    const dpar_transfer *send;    /* for lists: [sends] boxes of `in` and where they are sent */
    const dpar_transfer *receive; /* for lists: [receives] boxes that are received in `out` */
    int64_t send_count, receive_count;
    const void *in; /* NULL on a rank without a part */
    void *out;
    const int64_t *in_shape;  /* [dims] shape of the array `in`. For layouts, NULL selects the local
                                 shape; a larger shape is padding behind it in each dim */
    const int64_t *out_shape; /* [dims] the same for `out`; padding is left unchanged */
    int64_t piece_bytes;      /* the most bytes of a message; 0 selects 64 KiB .. 1 MiB */
    void *scratch; /* host memory, aligned to 64. If NULL, dpar_comm_alloc provides it (for a
                      device, the system) for the time of the call, which is as fast from the
                      second call on */
    int64_t scratch_bytes; /* size of scratch; 0 if dpar allocates it. If it is too small, the move
                              fails with DPAR_E_ROOM, and why.bytes is the size that this rank
                              needs. To query that size, set this to 1 and scratch to NULL */
    void *device_scratch;  /* for a device: as many bytes of its memory. If NULL, dpar_comm_alloc
                              provides them until the move is done */
    int64_t device_scratch_bytes;
} dpar_redistribute_desc;

/* Moves an array from one layout to another. Each rank passes its part of `from` in `in` and
 * receives its part of `to` in `out`; a rank without a part passes NULL.
 *
 * Partial sources are reduced; DPAR_AVG divides the sum by their number. If only `to` is partial,
 * ranks to which nobody sends elements get zeros. Replicas share the sends as dpar.h chooses. If
 * that could change results, as in 16-bit sums and averages, copy 0 sends everything.
 *
 * Collective over comm, including ranks without a part. Fails on all ranks, before anything is
 * moved, with DPAR_E_MISMATCH if layouts, type or tag differ between ranks, DPAR_E_ROOM if scratch
 * is too small, and DPAR_E_MEMORY if there is none. Fails with DPAR_E_ARG as
 * dpar_redistribute_check, or if a mesh has ranks that comm does not have, or `in` and `out`
 * overlap. Otherwise fails as the communicator.
 *
 * Costs O(its transfers + its elements). Sends the bytes of the transfers to other ranks, and small
 * messages in which receivers tell senders when to send. Each rank walks its transfers twice and
 * needs 104 bytes for each during the call. */
DPAR_API dpar_status dpar_redistribute(dpar_comm *comm, const dpar_redistribute_desc *move,
                                       dpar_why *why);

/* Moves the boxes of two lists: the boxes send[] of the array in[in_shape] to other ranks, and
 * those that arrive into the boxes receive[] of out[out_shape].
 *
 * The k-th send from rank a to rank b is the k-th receive of b from a, and has the same extents
 * (halo.h, redistribute.h). All boxes have the dims of the shapes. `in` may equal `out`, as for
 * halos, if no box that is sent is also written; otherwise the two must not overlap. DPAR_AVG must
 * directly follow a DPAR_COPY, or another DPAR_AVG, to the same box.
 *
 * Collective over comm: ranks without transfers pass empty lists. Before anything is sent, ranks
 * compare type, tag and piece_bytes, and each list with those of its peers. Fails on all ranks with
 * DPAR_E_MISMATCH if they do not match; the message names both ranks and the difference.
 * DPAR_E_ARG, DPAR_E_ROOM and DPAR_E_MEMORY of one rank are also returned on all ranks, and nothing
 * is moved.
 *
 * Costs O(sends + receives + elements + ranks), plus two small all-reduces and an all-to-all of 16
 * bytes per rank. */
DPAR_API dpar_status dpar_transfers_exchange(dpar_comm *comm, const dpar_redistribute_desc *move,
                                             dpar_why *why);

#endif /* DPAR_COMM_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* Private functions that the headers above this one call. */
#ifndef DPARI_COMM_INTERNAL_H
#define DPARI_COMM_INTERNAL_H

/* ==== comm/os.h ==== */

/* os - small functions for what ranks need of POSIX and Linux. Private. Only this file and
 * the doctor (src/debug) include system headers. The private functions that other headers of dpar
 * share do not need them.
 */

/* Accesses to shared words. LOAD acquires and STORE releases; the others are sequentially
 * consistent. */
#define DPARI_LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define DPARI_STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define DPARI_STORE_SEQ(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define DPARI_LOAD_SEQ(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define DPARI_ADD(p, v) __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST)
#define DPARI_CLAIM(p, old, now)                                                                   \
    __atomic_compare_exchange_n((p), (old), (now), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

/* Returns the seconds of a monotonic clock. */
DPARI_API double dpari_os_now(void);
/* Returns the seconds since the last look at the clock for which this process did not run, because
 * its job was suspended or its machine slept. A wait adds them to the time at which it began, so
 * that no rank counts as late because of time in which no rank ran. Waits look at the clock every
 * 20 ms. The first quarter of a second of a longer gap still counts as time in which the process
 * ran, because a busy machine may cause it. *looked must be 0 before the first look. */
DPARI_API double dpari_os_suspended(double *looked, double now);
/* Returns the seconds since the first call with this stopwatch, without the time for which this
 * process was suspended. The stopwatch must be zeroed before that call. Must be called at least
 * every 0.2 s. */
typedef struct dpari_stopwatch {
    double began, looked;
} dpari_stopwatch;
DPARI_API double dpari_os_waited(dpari_stopwatch *s);
DPARI_API void dpari_os_sleep(double seconds);

/* Returns zeroed private pages, or NULL if there are none. */
DPARI_API void *dpari_os_pages(int64_t bytes);
DPARI_API void dpari_os_unmap(void *at, int64_t bytes);
/* Moves a descriptor below 3 to a number of 3 or more. It has such a number if stdin, stdout or
 * stderr was closed, and what the program prints would be written into it. Returns -1 and errno if
 * fd is -1 or no descriptor is free. */
DPARI_API int dpari_os_beyond_standard(int fd);
/* Closes a descriptor; -1 does nothing. */
DPARI_API void dpari_os_close(int fd);
/* Make a socket, or accept a connection: with a descriptor of 3 or more, which exec closes, and
 * whose calls do not block. Return -1 and errno on failure. */
DPARI_API int dpari_os_socket(int family, int kind);
DPARI_API int dpari_os_accept(int listener);
/* Waits for the socket, at most 0.1 s. Returns 0 if the deadline has passed. */
DPARI_API int dpari_os_poll(int fd, short events, double until);
/* The CPUs that this thread may use, as 1024 bits. */
enum { DPARI_CPU_WORDS = 16 };
DPARI_API void dpari_os_cpus(uint64_t mask[DPARI_CPU_WORDS]);
/* Returns the CPU on which this thread runs now, or -1 if the system cannot tell. Takes 5 ns. */
DPARI_API int32_t dpari_os_cpu(void);
/* Moves this thread to a CPU that it may use. The set of these CPUs does not change, so the system
 * may move the thread again at once. Returns 1 if the thread has moved there. Takes about 10 us. */
DPARI_API int dpari_os_move_to(int32_t cpu);

/* A process whose memory is to be read, with a proof of its identity: `word`, which only the memory
 * of that process has at address `at`. A pid is no such proof, because it may belong to another
 * process in another PID namespace, or once the process has ended. */
typedef struct dpari_os_target {
    int32_t pid;
    uint64_t at, word;
} dpari_os_target;
/* Copies from another process; if bytes is 0, only checks whether it can. The word is read in the
 * same system call as the bytes, so that both are from the same memory. Returns 0, or -1 with the
 * errno of the kernel, or ESRCH if the word differs. On failure the bytes at `to` are undefined. */
DPARI_API int dpari_os_read_peer(const dpari_os_target *target, void *to, uint64_t from,
                                 int64_t bytes);
/* Publishes a name that processes of this user can see within one network namespace of one machine
 * while the returned descriptor is open. Returns -1 if that is not possible on this system.
 * dpari_os_sees tests whether this process sees such a name. */
DPARI_API int dpari_os_show(uint64_t *name);
DPARI_API int dpari_os_sees(uint64_t name);
/* Returns the number that identifies this process's namespace of a kind ("pid", "user"), or 0 if
 * unknown. */
DPARI_API uint64_t dpari_os_namespace(const char *kind);
/* Returns the bytes of physical memory, or 0 if unknown. */
DPARI_API int64_t dpari_os_memory(void);
DPARI_API int64_t dpari_os_page(void);

/* Threads. dpari_os_thread returns -1 if the program is linked without them or none can be started.
 * The handle is the system's. */
typedef struct dpari_thread {
    uint64_t handle;
} dpari_thread;
DPARI_API int dpari_os_thread(dpari_thread *thread, void *(*run)(void *), void *arg);
DPARI_API void dpari_os_join(dpari_thread thread);

/* Appends the text of an error number, for those that matter here, or "error " and the number. */
DPARI_API void dpari_os_error(dpar_text *text, int number);

/* Returns a limit of this process as getrlimit does: RLIMIT_AS is that of addresses in
 * bytes (ulimit -v), RLIMIT_FSIZE that of files (ulimit -f). INT64_MAX if unlimited. */
DPARI_API int64_t dpari_os_limit(int resource);

/* ==== comm/limits.h ==== */

/* limits - private: the memory and processors that this process may use. */

/* The available memory and processors, and what limits them. */
typedef struct dpari_available {
    int64_t bytes;      /* INT64_MAX if unknown */
    int64_t most;       /* limit of the control group; 0 if only the machine limits the memory */
    char group[128];    /* path of that group below the directory where groups are mounted */
    int32_t cpus;       /* whole processors that quotas allow, at least 1; INT32_MAX if unlimited */
    int32_t hundredths; /* hundredths of a processor that they allow; INT32_MAX if unlimited */
    uint64_t who;       /* equal for processes of one control group, and so under one quota */
} dpari_available;
/* Determines them from the machine and from each control group (version 1 or 2) of this process, up
 * to the root. Page cache that the system can drop counts as available. Processors are limited by
 * the quotas of the groups (cpu.max, cpu.cfs_quota_us). */
DPARI_API void dpari_limits_find(dpari_available *a);

/* ==== host/cpu.h ==== */

/* cpu - private: queries which vectors this CPU has, for loops that are compiled for several kinds.
 */

/* Returns 1 if this CPU has vectors of 32 bytes (AVX2) and conversions of f16 (F16C), and the
 * system saves them, otherwise 0. Takes microseconds in a virtual machine. */
DPARI_API int dpari_cpu_wide(void);

/* ==== comm/copy_choice.h ==== */

/* copy_choice - private: chooses the faster of two methods of copying private memory. */

/* There are two methods for private memory of another process. The ranks copy pieces into and out
 * of a ring, where the two copies overlap, or the kernel copies once (process_vm_readv). Which one
 * is faster depends on the kernel, on the size and on the cores. If they share a cache, the ring is
 * faster for long copies; if not, the kernel is, by up to three times. Both are therefore timed
 * while they are in use.
 *
 * There are DPARI_PACES classes of sizes. */
enum { DPARI_BY_RING, DPARI_BY_KERNEL, DPARI_PACES = 4 };
typedef struct dpari_pace {
    double per_byte[2];   /* seconds for each method; 0 if not known yet */
    double known;         /* per_byte of the chosen method when the other was last tried */
    int32_t way, trial;   /* the chosen method; number of coming copies that try the other one */
    uint32_t turns, wait; /* number of copies since the last trial, and from one trial to the
                             next */
} dpari_pace;

/* ==== comm/engine.h ==== */

/* engine - the private functions of comm.c: how strategies (halo, train, ...) post calls that they
 * describe themselves, how plans are named in messages, and what happens to handles when their
 * communicator is closed. Engines and strategies use them. */

/* Two values of `root`: for the barrier that closes a communicator, and for the collective that
 * splits one. No rank has such a number, so no other operation matches these two when ranks compare
 * calls. */
enum { DPARI_CLOSE = -1, DPARI_SPLIT = -2 };

/* Runs or posts any operation from its description; the functions of comm.h call it. Errors and
 * cost are those of the operation. */
DPARI_API dpar_status dpari_post(dpar_comm *comm, const dpar_call *call, dpar_work *work);
/* Test whether an operation of this kind combines elements, has a root, or is a message. */
DPARI_API int dpari_kind_reduces(int32_t kind);
DPARI_API int dpari_kind_rooted(int32_t kind);
DPARI_API int dpari_kind_sends(int32_t kind);
/* Returns a call with these fields, in which all others are 0 or NULL. */
DPARI_API dpar_call dpari_call(int32_t kind, const void *in, void *out, int64_t count,
                               int32_t type);
/* Test whether this rank has an input in call->in, or an output in call->out. */
DPARI_API int dpari_call_has_in(const dpar_comm *comm, const dpar_call *call);
DPARI_API int dpari_call_has_out(const dpar_comm *comm, const dpar_call *call);
/* Returns the name of an op: "sum", "avg", ..., or "copy" for any other number. */
DPARI_API const char *dpari_op_name(int32_t op);
/* Tags of collectives below this one name the plan that the collective is a part of. They are not
 * compared among the ranks. */
enum { DPARI_PLAN_TAGS = INT32_MIN + 4096 };
/* Returns the tag of the all-reduce by which ranks agree before they make a plan, so that messages
 * can name the plan. Returns 0 for a plan that messages have no name for. */
DPARI_API int32_t dpari_plan_tag(const char *plan);
/* Returns the value that ranks compare for the tag of a collective, which is 0 if the tag names a
 * plan. */
static DPARI_INLINED int32_t dpari_tag_compared(int32_t tag)
{
    return tag < DPARI_PLAN_TAGS ? 0 : tag;
}
/* Appends "the planning of a halo exchange (all-reduce #12)" and returns 1, or returns 0 if the tag
 * does not name a plan. */
DPARI_API int dpari_planning_text(dpar_text *text, int32_t kind, int64_t sequence, int32_t tag);
/* Appends "all-reduce #12 of 100 f32", "send of 5 i8 to 2" or "split #3". Used by the engines over
 * MPI and NCCL. */
DPARI_API void dpari_operation_text(dpar_text *text, int32_t kind, int64_t sequence, int32_t type,
                                    int64_t count, int32_t root, int32_t tag);
/* Does what dpar_batch does, for calls that a plan has checked and works that are not in
 * progress. */
DPARI_API dpar_status dpari_batch_checked(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                          dpar_work *works);
/* Posts an in-place all-reduce (SUM, AVG) of F32 data whose result is the same as if the data had
 * been sent as `wire` (F16, BF16): it runs dpari_kern_reduce with DPARI_KERN_THROUGH. comm->sent
 * counts the bytes of `wire`. comm must belong to the shared-memory engine. COLLECTIVE. Errors as
 * dpar_all_reduce. */
DPARI_API dpar_status dpari_all_reduce_through(dpar_comm *comm, void *data, int64_t count,
                                               int32_t wire, int32_t op, dpar_work *work);

/* ---- after the close ----
 *
 * A plan keeps a pointer to its communicator and may be run after the communicator was closed. An
 * engine therefore does not free the last DPARI_ENDED communicators that it closed while their
 * world is open. A call on one of them fails with DPAR_E_ARG and a message. */
enum { DPARI_ENDED = 16 };
typedef struct dpari_ended {
    dpar_comm *last[DPARI_ENDED];
    uint32_t count; /* communicators closed so far */
} dpari_ended;
/* Keeps comm, which its engine has closed. Returns the oldest kept communicator, which the caller
 * must free instead, or NULL. */
DPARI_API dpar_comm *dpari_ended_keep(dpari_ended *closed, dpar_comm *comm);
/* True if comm is one of those closed communicators. */
DPARI_API int dpari_ended_is(const dpar_comm *comm);
/* Returns one of the kept communicators, which the caller must free when the world ends, or NULL if
 * none is left. */
DPARI_API dpar_comm *dpari_ended_take(dpari_ended *closed);

/* An entry in a communicator's list of handles that may outlive it, because they have their own
 * memory. *at, the handle's pointer to the communicator, becomes NULL before the communicator is
 * freed. */
typedef struct dpari_on_end {
    struct dpari_on_end *next;
    dpar_comm **at;
} dpari_on_end;
DPARI_API void dpari_on_end_add(dpar_comm *comm, dpari_on_end *e);
/* Does nothing if comm is NULL, that is, if the communicator was freed before the handle. */
DPARI_API void dpari_on_end_drop(dpar_comm *comm, const dpari_on_end *e);
DPARI_API void dpari_on_end_all(dpar_comm *comm);

/* ---- operations that post their messages step by step ----
 *
 * Some operations post a part of their messages only after others have arrived, such as a halo
 * exchange that handles one dim after the other. Messages between two ranks match in the order in
 * which they are posted. If two such operations overlap, all ranks must therefore post all messages
 * of the first before any message of the second, no matter how far each rank has got. So the first
 * operation leaves a function in the communicator that posts the rest of its messages, and the
 * second has this function called before it begins:
 *
 *     st = dpari_rest_post(comm);                calls a function left before; may wait
 *     ... begin, post what can be posted ...
 *     dpari_rest_leave(comm, function, operation);
 *                                                if there are messages to post later
 *     ...
 *     dpari_rest_drop(comm, operation);          all messages are posted, or the operation failed
 *
 * Other operations (dpar_send, collectives) call none of these. `operation` must keep its address
 * until dpari_rest_drop. A communicator holds one function at a time, because only one thread at a
 * time uses it. The function is called once, whatever it returns. */
typedef dpar_status dpari_rest(void *operation);
DPARI_API void dpari_rest_leave(dpar_comm *comm, dpari_rest *post, void *operation);
DPARI_API dpar_status dpari_rest_post(dpar_comm *comm);
/* Removes the function if this operation left it. */
DPARI_API void dpari_rest_drop(dpar_comm *comm, const void *operation);

/* ==== comm/world.h ==== */

/* world - the ranks that share one mapping: the layout of their shared memory, how they join and
 * how they end. Private. wait.h, heap.h and flight.h have the other functions of a world; group.h,
 * collectives.h, p2p.h and shm.h build on them.
 *
 *     [head][dpari_rank x ranks][channel refs, ranks x ranks][heap of rank 0][heap of rank 1]...
 *
 * This is one sparse file. When they start, all ranks map everything that precedes the heaps. A
 * heap consists of extents. An extent is a range of the file that the heap's rank makes when it
 * needs one and lists in its dpari_rank. The first is small and each later one at least doubles the
 * heap, so that a few are enough. A rank maps its own extents when it makes them, and an extent of
 * another rank when it first needs an address in it. Only mapped extents take addresses, which
 * matters because sites limit them (ulimit -v).
 *
 * A `ref` names a byte of a heap to all ranks, because their addresses differ. It consists of the
 * rank, the number of the extent, and the offset in the extent; 0 is no ref. An offset within one
 * allocation may be added to a ref. If the ranks are threads, a ref is the address itself, and all
 * memory has one. The world does not know what is stored behind the refs that ranks exchange. */

enum {
    DPARI_LINE = 128,      /* two cache lines, because the prefetcher fetches lines in pairs */
    DPARI_FLIGHTS = 32,    /* operations of each rank that the flight recorder keeps */
    DPARI_MAX_RANKS = 1024 /* ranks on one node */
};
/* A ref has the rank in 10 bits, the number of its extent in 6, and the offset in 48. */
enum { DPARI_EXTENTS = 64 /* of one rank; number 0 is not used */, DPARI_REF_BITS = 48 };
#define DPARI_REF_OFFSET ((UINT64_C(1) << DPARI_REF_BITS) - 1)

/* One operation in the flight recorder. It has 64 bytes, and only its own rank writes it. */
enum { DPARI_FLIGHT_POSTED = 1, DPARI_FLIGHT_DONE, DPARI_FLIGHT_FAILED };
typedef struct dpari_flight {
    int64_t sequence; /* number of a collective in its communicator; of a message, among all
                         operations of its rank */
    int64_t count;
    uint32_t comm;                     /* number of the communicator; 0 is the world */
    int32_t kind, type, op, root, tag; /* as in dpar_call */
    int32_t state;                     /* DPARI_FLIGHT_x */
    int32_t varies;                    /* 1 if the pieces have different sizes */
    int64_t padding[2];
} dpari_flight;

enum { DPARI_RANK_AWAY, DPARI_RANK_HERE, DPARI_RANK_LEFT, DPARI_RANK_DEAD };

/* A piece of a heap: a range of the file, or of addresses if the ranks are threads. */
typedef struct dpari_extent {
    int64_t begin, bytes;
} dpari_extent;

/* dpari_rank.ending of a rank that crashed and is still writing its core file. */
#define DPARI_ENDING_DUMPS INT32_MIN

/* The shared record of one rank, which all ranks may read. */
typedef struct dpari_rank {
    uint32_t state; /* DPARI_RANK_x */
    int32_t pid;
    int32_t ending;  /* if DEAD: exit status, -signal or DPARI_ENDING_DUMPS; 0 if unknown */
    int32_t reads;   /* number of bits set in can_read; 0 if it has not tried to read yet */
    uint64_t probe;  /* address of the word that proves which process it is (dpari_world_word) */
    uint64_t member; /* ref of its first shared structure; not 0 once it has arrived */
    uint64_t cpus[DPARI_CPU_WORDS]; /* a bit for each CPU that it may run on */
    int32_t cache;   /* first CPU of the last-level cache that all of `cpus` share; -1 if none */
    uint32_t behind; /* 1 if others continue without it (dpar_comm_shrink) */
    int32_t cpu;     /* where it ran when it last waited; -1 if unknown */
    int32_t quota;   /* processors that its control group may use; INT32_MAX if unlimited */
    uint64_t group;  /* identifies the control group with this quota */
    uint64_t pid_space, user_space;          /* its namespaces, for messages; 0 if unknown */
    uint64_t can_read[DPARI_MAX_RANKS / 64]; /* a bit for each rank whose memory it can read, and
                                                for itself */
    char padding_0[DPARI_LINE - 72];
    uint32_t bell;     /* the futex word on which it sleeps */
    uint32_t asleep;   /* 1 if it must be woken. The rank that clears it also decrements sleepers */
    int32_t waits_for; /* the rank that must wake it; -1 if any rank may */
    uint32_t beat;     /* time at which it last reported that it waits, by the head's `clock` */
    int32_t needs;     /* the rank that it waited for at `beat`; -1 if several, unknown, or if it no
                          longer waits */
    char padding_1[DPARI_LINE - 20];
    uint64_t flights; /* operations recorded so far */
    uint32_t owes; /* messages that are done on its side, but that it must still report to a peer */
    char padding_2[DPARI_LINE - 12];
    dpari_flight flight[DPARI_FLIGHTS]; /* a ring buffer */
    dpari_extent extent[DPARI_EXTENTS]; /* of its heap, from 1 on; written before any ref into it */
    uint64_t pids;    /* its PID namespace if its /proc belongs to that namespace; 0 otherwise */
    uint32_t extents; /* extents made so far */
    char padding_3[DPARI_LINE - 12];
} dpari_rank;

/* The beginning of the file. */
typedef struct dpari_world_head {
    uint64_t magic; /* written last, when the rest is complete */
    uint32_t version, ranks;
    int64_t bytes;      /* size of the file */
    int64_t heap_bytes; /* the most bytes of dpar_comm_alloc that one rank may have at a time */
    int64_t slot_bytes; /* as in dpar_world_desc, made larger if there are many ranks */
    int64_t heap_begin; /* offset of the first heap in the file */
    int32_t plain;      /* dpar_world_desc.disable */
    int32_t threads;    /* 1 if the ranks are threads of one process, or there is only one */
    uint64_t nonce;     /* random number, so that the words of dpari_world_word differ between
                           worlds */
    int64_t part_bytes; /* size of the file's range for the heap of one rank */
    int64_t taking;     /* bytes that ranks are about to allocate from the system */
    char padding_0[DPARI_LINE - 80];
    uint32_t sleepers; /* ranks that are asleep or about to be */
    uint32_t said;     /* the highest `turn` of dpari_world_speaks */
    char padding_1[DPARI_LINE - 8];
    uint32_t clock; /* ms. Waiting ranks advance it by the time that has passed on their own clocks,
                       which may differ (time namespaces) */
    char padding_2[DPARI_LINE - 4];
} dpari_world_head;

/* The shared memory of a world, which is made before its ranks start. */
typedef struct dpari_segment {
    char *base;    /* address of the mapping of everything that precedes the heaps */
    int64_t bytes; /* bytes mapped there */
    int fd;        /* -1 if the memory is private to this process (threads, one rank) */
} dpari_segment;

/* An allocation, or a piece of memory that was released and is kept for the next allocation. */
typedef struct dpari_used {
    int64_t begin, bytes; /* offset in the file, or in the file that there would be, and size */
    int64_t users;        /* bytes that count against heap_bytes; 0 if kept */
    int32_t kept;         /* 1 if it is kept */
    int16_t dumped;       /* 1 if it is in core files */
    int16_t large;        /* 1 if the system was asked for large pages in all of it */
} dpari_used;

/* An extent of this rank's own heap. */
typedef struct dpari_own {
    int64_t begin, bytes; /* as in dpari_used */
    int64_t fresh;        /* from this offset on, nothing was ever allocated, so it is all zero */
} dpari_own;

/* Why the last allocation failed. */
enum {
    DPARI_LACKS_NOTHING,
    DPARI_LACKS_HEAP,      /* heap_bytes are in use */
    DPARI_LACKS_PLACE,     /* no gap in the heap is large enough, and it can have no more extents */
    DPARI_LACKS_PIECES,    /* there are DPARI_MAX_USED allocations already */
    DPARI_LACKS_MEMORY,    /* memory of the machine or of a control group */
    DPARI_LACKS_ADDRESSES, /* addresses of this process */
    DPARI_LACKS_FILE       /* the file cannot grow; dpari_world.number has the reason */
};
enum {
    DPARI_MAX_USED = 1 << 16, /* the most allocations that one rank may have at a time */
    /* The most of them that are in core files, because each may split a mapping and the system
     * limits the number of mappings. */
    DPARI_DUMPED = 1024
};
/* The most bytes of released memory that a rank keeps. It is the largest threshold from which
 * malloc of glibc gives memory back to the system. All ranks of a node together keep at most 1 /
 * DPARI_KEPT_SHARE of the memory that was available when they started. */
enum { DPARI_KEPT_MOST = 1 << 26, DPARI_KEPT_SHARE = 32 };

/* What dpari_world_close does with the segment: leaves it, closes it, or only closes the file, so
 * that the memory stays mapped. */
enum { DPARI_OWNS_NOTHING, DPARI_OWNS_SEGMENT, DPARI_OWNS_FILE };

/* A world as one rank sees it, in private memory of the rank. */
typedef struct dpari_world {
    dpari_segment segment;
    dpari_world_head *head;
    dpari_rank *rank;  /* [size] the shared records */
    uint64_t *channel; /* [to * size + from]: a ref that rank `from` publishes for rank `to`; 0 if
                          none yet */
    int32_t me, size;
    int32_t threads;    /* 1 if the ranks are threads of this process, or there is only one */
    int32_t owns;       /* DPARI_OWNS_x */
    int32_t crowded;    /* 1 if there are more ranks than cores */
    int32_t wide;       /* 1 + dpari_cpu_wide, kept by plans of halos; 0 if it is not known yet */
    int32_t thrifty;    /* 1 if spinning uses up the processor quota that other ranks need */
    int32_t slow_yield; /* number of waits for which slow yields are remembered, reduced by fast
                           yields */
    int32_t sleepy;     /* number of coming waits that sleep early, because other programs use the
                           cores */
    int32_t worked;     /* number of consecutive waits for which spinning would have been long
                           enough */
    int32_t cpu;        /* what this rank has published in rank[me].cpu */
    double moved;       /* when it last moved to another CPU because it shared one */
    int32_t vain;       /* number of consecutive waits that spun without success */
    double timeout_s;   /* 0 if there is no deadline */
    char **view; /* [rank * DPARI_EXTENTS + number]: where this rank has mapped that extent, NULL if
                    it has not. Any thread may map one (compare and swap) */
    dpari_own own[DPARI_EXTENTS]; /* this rank's extents, from index 1 on, ascending */
    int32_t owns_extents;
    dpari_used *used; /* [DPARI_MAX_USED + 2] allocations in this rank's heap and the pieces that
                         are kept, ascending. An allocation within a piece adds two elements */
    int32_t used_count;
    int64_t users;     /* bytes that count against heap_bytes */
    int64_t kept;      /* bytes of the pieces that are kept; together with `users` never more than
                          heap_bytes */
    int64_t kept_most; /* the most bytes that may be kept */
    int32_t lacks;     /* DPARI_LACKS_x of the last allocation that failed */
    int number;        /* errno of that failure */
    int64_t fresh;     /* from this offset on, nothing in the heap was ever allocated */
    int64_t floor;    /* nothing before this offset is allocated again, because a rank that was left
                        behind may still write there */
    uint64_t *probe;  /* a page with the word of this rank; fork does not copy it */
    uint32_t clock;   /* the head's clock when this rank last looked at it */
    double clock_at;  /* dpari_os_now at that look */
    uint32_t waiting; /* 1 while the user's thread waits and thus notices changes at once */
} dpari_world;

/* Appends how a rank ended: " was killed by signal 9". Waits up to 20 ms until that is known. */
DPARI_API void dpari_put_ending(dpar_text *text, const dpari_world *world, int32_t rank);
/* Decides which rank prints a report. Returns 1 to the first rank of this world that calls it with
 * this turn (1, 2, ...), unless a rank has called it with a later turn. Returns 0 to all others. */
DPARI_API int dpari_world_speaks(dpari_world *world, uint32_t turn);
/* Returns the state of a rank in the job, and notices its death (DPARI_RANK_DEAD). */
DPARI_API uint32_t dpari_rank_state(dpari_world *world, int32_t rank);

/* ==== comm/wait.h ==== */

/* wait - private: how one rank of a world waits for another, and wakes it. */

/* A wait:
 *
 *     dpari_zero(&t, sizeof t);
 *     while (!condition) {
 *         if (dpari_wait_turn(w, &t, peer) == DPAR_MORE) { check the peers and the deadline }
 *     }
 *     dpari_wait_end(w, &t);
 *
 * The first turns spin. Later turns yield if the peer needs this core, because there are more ranks
 * than cores or because the peer was last seen on this CPU. If there is a core for each rank, one
 * of the two moves to another core instead. The last turns sleep. A turn returns DPAR_OK once after
 * it has set `asleep` and before it sleeps, so that the caller tests the condition again: from then
 * on, any rank that changes it wakes this one. DPAR_MORE means that time has passed. */
typedef struct dpari_wait {
    int32_t turns;   /* turns that have spun */
    int32_t counted; /* 1 if this rank counts as a sleeper */
    int32_t peer;    /* the peer of the turn in which it was counted; -1 if any rank */
    uint32_t bell;   /* value of the rank's bell then */
    int32_t shares;  /* 1 + the peer that was last seen on this rank's CPU; 0 if none */
    int32_t resumed; /* how often this process was suspended and resumed during the wait */
    double began;    /* time of the first look at the clock, plus the time for which this process
                        was suspended; 0 if the wait has only spun so far */
    double looked;   /* last look at the clock */
} dpari_wait;
/* peer: the rank that must publish what this rank waits for; -1 if it may be any rank. */
DPARI_API dpar_status dpari_wait_turn(dpari_world *world, dpari_wait *waiting, int32_t peer);
/* Publishes that this rank waits, and for which rank (-1 if for several). Called after a turn that
 * returned DPAR_MORE. */
DPARI_API void dpari_wait_says(dpari_world *world, int32_t needs);
DPARI_API void dpari_wait_end(dpari_world *world, dpari_wait *waiting);

/* Stores the word and wakes the ranks that sleep until this rank publishes something. */
DPARI_API void dpari_publish(dpari_world *world, uint64_t *word, uint64_t value);

/* ==== comm/heap.h ==== */

/* heap - private: the heaps of a world, whose memory all ranks reach by refs (world.h). */

/* True if the addresses [low, high) are within one allocation of this rank, or outside its heap. If
 * not, *within is the number of bytes of the allocation that holds low, or 0 if none does. Costs
 * O(log allocations). */
DPARI_API int dpari_heap_holds(const dpari_world *world, int64_t low, int64_t high,
                               int64_t *within);
/* Returns the ref of `at`, or 0 if [at, at + bytes) is not within an extent of this rank's heap. */
DPARI_API uint64_t dpari_ref(const dpari_world *world, const void *at, int64_t bytes);
/* Returns this rank's address of a ref, or NULL if no addresses are left to map the extent. */
DPARI_API void *dpari_at(const dpari_world *world, uint64_t ref);
/* Appends why dpari_at returned NULL: "mapping 4194304 bytes of rank 3's memory: out of addresses
 * (...)". */
DPARI_API void dpari_put_unmapped(dpar_text *text, const dpari_world *world, uint64_t ref);

/* ==== comm/flight.h ==== */

/* flight - private: the flight recorder, which keeps the last operations of each rank for messages
 * and dpar_comm_report. */

/* Appends the last operation of a rank that failed, if there is one: " (failed: all-reduce #3
 * (...))". */
DPARI_API void dpari_put_failed(dpar_text *text, const dpari_world *world, int32_t rank);

/* ==== comm/group.h ==== */

/* group - a communicator of the shared-memory engine: its ranks, the memory through which they
 * synchronise, how it breaks, and messages about that. Private. collectives.c explains the words
 * that the ranks publish. collectives.c and p2p.c advance the operations of a group step by step;
 * shm.c decides when to take steps and how long to wait. */

enum { DPARI_INLINE = 120 }; /* bytes of payload in an entry */

/* What a rank publishes when it enters a collective. */
typedef struct dpari_entry {
    uint64_t word;        /* sequence << 32 | fingerprint of the call */
    uint64_t payload[15]; /* small input, or a dpari_offer (collectives.c) */
} dpari_entry;

typedef struct dpari_word {
    uint64_t word; /* sequence << 32 | step */
    uint64_t padding[15];
} dpari_word;

/* Why a communicator broke. The first rank that notices claims the record, fills it in, and then
 * publishes it. The record in the member of rank 0 counts. Each rank copies it into its comm.status
 * and comm.why when it looks (dpari_group_broken). */
enum { DPARI_ABORT_NONE, DPARI_ABORT_CLAIMED, DPARI_ABORT_SET };
typedef struct dpari_abort {
    uint32_t state;
    dpar_status status;
    int64_t from; /* the first collective that counts as failed; earlier ones can still complete */
    char text[DPARI_WHY_TEXT];
} dpari_abort;

/* How the ranks agree who continues after the communicator broke (dpar_comm_shrink). Each rank
 * votes to stay or to leave. Once all have voted or ended, or the deadline has passed, a rank
 * writes a list of the ranks that it has seen stay. The first rank to enter its number in `decided`
 * has the list that counts for all, even if that rank dies afterwards. */
enum { DPARI_VOTE_NONE, DPARI_VOTE_STAYS, DPARI_VOTE_LEAVES };
typedef struct dpari_vote {
    uint64_t word;    /* DPARI_VOTE_x */
    uint32_t decided; /* used only in the member of rank 0: 1 + the rank whose list counts; 0 before
                         the decision */
    uint32_t padding_0;
    uint64_t member;                     /* ref of the rank's member in the next communicator */
    int64_t sequence;                    /* the last sequence number that this member has used */
    int64_t id;                          /* the smallest id that the next communicator may have */
    uint64_t stay[DPARI_MAX_RANKS / 64]; /* the list, a bit for each rank of this communicator */
    uint64_t padding_1[11];
} dpari_vote;

/* A rank's part of a communicator. It is in the rank's own heap and the other ranks read it. Its
 * tables and slots follow it (dpari_table, dpari_staging). */
typedef struct dpari_member {
    dpari_entry entry[2];          /* by parity of the sequence number */
    dpari_word a, b, c;            /* progress inside a collective (collectives.c) */
    dpari_entry up[2], down;       /* entries that a cluster's leader passes on (arrival.h) */
    dpari_word up_last, down_last; /* the same for the last words of a collective */
    dpari_abort abort;             /* only that of rank 0 is used */
    uint64_t next;                 /* in the list of unused members: ref of the next one */
    int64_t counted;               /* in that list: the last sequence number that this member has
                                      used */
    uint64_t padding[14];
    dpari_vote vote;
} dpari_member;

/* How many ranks are divided into clusters (arrival.h). Private memory, the same on all ranks. */
enum { DPARI_CLUSTER = 8 };
typedef struct dpari_levels {
    int32_t clusters;            /* 0 if the group is too small for clusters */
    int32_t most;                /* the most ranks that a cluster may have */
    int32_t own, count;          /* this rank's cluster, and the number of its ranks */
    int32_t mine[DPARI_CLUSTER]; /* its ranks, ascending; the first one leads it */
    int32_t doubt; /* 1 if this collective has waited long, so that it checks every word instead */
    int32_t *leader, *place; /* [size] the leader of each rank's cluster, its position there */
    int32_t *leaders;        /* [clusters] */
} dpari_levels;

/* A communicator as one rank sees it, in private memory of the rank. */
typedef struct dpari_group {
    dpar_comm comm; /* must be first: dpari_group_of casts a dpar_comm of this engine */
    dpari_world *world;
    uint32_t id;             /* the same on its ranks, and different from any other's */
    int32_t blocker;         /* the rank of the world that the last step waits for; -1 if several */
    int64_t sequence;        /* number of the last collective posted */
    int64_t broken_from;     /* if broken, the first collective that failed */
    dpar_work *first, *last; /* posted collectives, in order */
    dpar_work *finished;     /* messages that are done and were not tested or waited for yet */
    int64_t slot_bytes;
    int32_t all_cma;              /* 1 if each of its ranks can read the others' memory */
    dpari_pace pace[DPARI_PACES]; /* times of broadcasts of private memory from this rank */
    dpari_pace sums[DPARI_PACES]; /* on rank 0: times of reductions of private memory */
    int64_t timed;                /* 1 + the collective that is being timed; 0 if none */
    int32_t timed_way;            /* the method that it uses, DPARI_BY_x */
    double timed_from;            /* s, when it began */
    uint64_t member_ref;          /* ref of this rank's member */
    dpari_member **member;        /* [size] */
    int32_t *world_rank;          /* [size] */
    dpari_levels levels;
    const void **in;       /* [size] scratch memory for addresses */
    void **out;            /* [size] the same */
    const int32_t *called; /* [size] numbers of the ranks in messages; NULL for their own */
    const char *place;     /* the name of their node in messages, or NULL */
} dpari_group;

/* Returns the group of a communicator of this engine. */
DPARI_FN dpari_group *dpari_group_of(dpar_comm *comm)
{
    return (dpari_group *)(void *)comm;
}

/* Where a piece begins in a rank's array, and its length, in bytes. */
typedef struct dpari_piece {
    int64_t begin, bytes;
} dpari_piece;

/* ---- how it breaks ---- */

/* Breaks the communicator on all ranks with this status and text, unless another rank was first.
 * Returns the status that counts. */
DPARI_API dpar_status dpari_group_break(dpari_group *group, dpar_status status, const char *text);
/* Copies the abort record, if it is set, into comm.status and comm.why. Returns comm.status, so
 * DPAR_OK if the communicator is not broken. */
DPARI_API dpar_status dpari_group_broken(dpari_group *group);

/* ---- finding the rank that all wait for ----
 *
 * Ranks that wait report many times a second that they do, and for which rank (wait.h). A rank
 * that has not reported for `quiet` seconds is the cause: it does other work, or nothing. This
 * function follows the chain of waits from a rank on, within the communicator, until it reaches
 * such a rank. *links is the number of steps. All ranks are numbers of the world. */
DPARI_API int32_t dpari_group_culprit(const dpari_group *group, int32_t world_rank, double quiet,
                                      int32_t *links);
/* Makes messages name the ranks as "rank number[r] on place". Used by an engine for several nodes
 * that runs this one within each node. NULL for number keeps their own numbers. Both arrays must
 * exist as long as the communicator. */
DPARI_API void dpari_group_call(dpar_comm *comm, const int32_t *number, const char *place);
/* Appends " on n2" if the group has such a place. */
DPARI_API void dpari_put_place(dpar_text *text, const dpari_group *group);
/* Tests whether one of the ranks has ended. If so, appends the message "rank 3 on n2 has ended (in
 * ...)". */
DPARI_API int dpari_group_ended(dpar_comm *comm, dpar_text *text);
/* Breaks the communicator because dpari_at returned NULL for this ref. work: the operation that
 * needs it, which the message then names; NULL if there is none. */
DPARI_API dpar_status dpari_group_unmapped(dpari_group *group, const dpar_work *work, uint64_t ref);
/* True if this rank of the world has begun to close the communicator and has completed its
 * messages. It neither sends nor receives any more. */
DPARI_API int dpari_group_closes(const dpari_group *group, int32_t world_rank);
/* Returns the seconds without a report after which a rank counts as quiet: a quarter of the
 * deadline, but at least 0.06 and at most 1. */
DPARI_API double dpari_quiet(double timeout);
/* Tests whether a rank waits for this one in a collective of the group that this one has not
 * called, as it has reported within the last `quiet` seconds. If so, *sequence is the number of
 * that collective. */
DPARI_API int dpari_group_crossed(const dpari_group *group, int32_t world_rank, double quiet,
                                  int64_t *sequence);
/* Appends the collective of dpari_group_crossed: " called barrier #7". */
DPARI_API void dpari_put_crossed(dpar_text *text, const dpari_group *group, int32_t world_rank,
                                 int64_t sequence);

/* ==== comm/shm.h ==== */

/* shm - the shared-memory engine: communicators over a world. Private. shm.c explains how
 * operations are posted and advanced, and what happens when a rank does not arrive. */

/* Returns the world of a communicator of this engine, or NULL if another engine made it. */
DPARI_API dpari_world *dpari_world_of(const dpar_comm *comm);
/* Advances all posted operations by one step, for waits outside of this engine. */
DPARI_API void dpari_shm_progress_all(dpar_comm *comm);

/* Does what dpar_comm_alloc does, but memory that was used before is not zeroed, where ranks share
 * memory. dpar_comm_release releases it. For scratch that is needed in every call. */
DPARI_API dpar_status dpari_shm_scratch(dpar_comm *comm, int64_t bytes, void **memory);

/* Decides which rank prints an error for all. Returns 1 to the first rank of a world that calls
 * this, and again to the first one after each dpar_comm_shrink. Returns 0 to all others. */
DPARI_API int dpari_shm_speaks(dpar_comm *comm);

/* ==== host/kernel.h ==== */

/* kernel - private: loops over memory that copy, convert, reduce and scale. A collective must at
 * least read every input once and write every output once; these loops come close to that cost in
 * plain C at -O2. */

/* Repeats a statement for q = 0, 1, 2 and 3. In a loop gcc would keep the vectors in memory. */
#define DPARI_FOUR(statement)                                                                      \
    do {                                                                                           \
        {                                                                                          \
            enum { q = 0 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        {                                                                                          \
            enum { q = 1 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        {                                                                                          \
            enum { q = 2 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
        {                                                                                          \
            enum { q = 3 };                                                                        \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* Reduces: sets each of `count` elements of every out[j] to in[0][e] op in[1][e] op ..., in that
 * order. F16 and BF16 accumulate in f32 and are rounded once, to nearest even. AVG is the sum (of
 * 16-bit types the sum in f32) divided by `ins`. Sums and products of integers wrap, and AVG of
 * integers divides the wrapped sum towards zero. MAX and MIN of a NaN are NaN, of +0 and -0 either
 * of them. A NaN in the result is the quiet one without sign or payload. A single input is copied
 * bit by bit. The bits of an element depend neither on alignment, `stream` and `count` nor on its
 * position.
 *
 * For type DPARI_KERN_THROUGH(wire) with wire F16 or BF16, elements are F32. Each input, also a
 * single one, and the result are rounded to `wire` as dpari_kern_convert does, and the sums between
 * are F32. The bits are those of arrays that are rounded, reduced as `wire`, and widened.
 *
 * type:   one that can be reduced, or DPARI_KERN_THROUGH for SUM and AVG.
 * stream: not 0 to bypass the cache. For outputs larger than the cache; up to 12 times slower for
 *         small ones. The outputs are visible to all that see a later store.
 *
 * op is DPAR_SUM .. DPAR_MIN; ins, outs >= 1; count >= 0. Pointers are aligned to the type. An out
 * may be exactly an in; otherwise nothing may overlap. Local; O((ins + outs) count). */
#define DPARI_KERN_THROUGH(wire) (DPAR_F32 + 256 * (wire))
DPARI_API void dpari_kern_reduce(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                                 int64_t count, int32_t type, int32_t op, int32_t stream);

/* The type of the elements in memory, and the type in which a message would have them. */
DPARI_FN int32_t dpari_kern_stored(int32_t type)
{
    return type & 255;
}
DPARI_FN int32_t dpari_kern_wire(int32_t type)
{
    return type < 256 ? type : type / 256;
}

/* Copies `bytes`, nothing if <= 0. `to` must not overlap `from`, but may be equal to it; then
 * nothing is done. `stream` as above. Local; O(bytes). */
DPARI_API void dpari_kern_copy(void *to, const void *from, int64_t bytes, int32_t stream);

/* Copies one of many rows of `bytes` each, and prefetches the next one at `next`. If stream is not
 * 0, it bypasses the cache, and dpari_kern_rows_end must be called after the last row. */
DPARI_API void dpari_kern_row(void *to, const void *from, const void *next, int64_t bytes,
                              int32_t stream);
DPARI_API void dpari_kern_rows_end(int32_t stream);

/* Prefetches memory that will be read soon, at most its first 4 KiB. */
DPARI_API void dpari_kern_ask(const void *at, int64_t bytes);

/* Computes to[e] = 0 + by[0] row[0][e] + by[1] row[1][e] + ... with n terms for e < count, in f64
 * and in that order, rounded once. type is F64 or F32. `ahead` rows of next[] are prefetched.
 * stream as in dpari_kern_row. */
DPARI_API void dpari_kern_mix(void *to, const void *const *row, const double *by, int32_t n,
                              const void *const *next, int32_t ahead, int64_t count, int32_t type,
                              int32_t stream);
/* Computes to[i] = by x[i] for n f32, rounded once. `by` must be exact in f32. `to` may be x. */
DPARI_API void dpari_kern_scale(void *to, const void *x, double by, int64_t n);

/* Converts `count` elements: F64 to F32 and F32 to F16 or BF16, to nearest even, where a NaN
 * becomes the quiet one without sign or payload; and back, exactly, where a NaN keeps sign and
 * payload, and becomes quiet if it is F16 or becomes F64. Runs at the speed of memory, f16 at half
 * of it. The arrays must not overlap. */
DPARI_API void dpari_kern_convert(void *to, int32_t to_type, const void *from, int32_t from_type,
                                  int64_t count);

/* Returns the index of the first of `count` floats (F64, F32, F16, BF16) that is NaN or infinite,
 * or count if there is none. */
DPARI_API int64_t dpari_kern_finite(const void *in, int64_t count, int32_t type);

/* ==== host/strided.h ==== */

/* strided - private: copies boxes between strided arrays. A halo exchange moves the same boxes at
 * every step. Each box is therefore prepared once, which merges dims and chooses their order and a
 * loop. Running it then needs no division and no decision per element.
 *
 *     dpari_stride_piece p = {0};
 *     p.dims = 3; p.extent[i] = ...; p.to[i] = ...; p.from[i] = ...;
 *     p.to_type = p.from_type = DPAR_F64;
 *     dpari_stride_prepare(&s, &p);
 *     dpari_stride_run(&s, to, from);                   (as often as you like) */

enum { DPARI_STRIDE_DIMS = DPAR_MAX_DIMS + 1 }; /* the last one is for components */

enum { DPARI_STRIDE_TO = 1, DPARI_STRIDE_FROM = 2 };

/* Describes a copy of one box. Zero it and set the fields that differ; the types must be set. */
typedef struct dpari_stride_piece {
    int32_t dims; /* 0 .. DPARI_STRIDE_DIMS, in any order */
    int32_t to_type, from_type;
    int32_t through; /* a narrower type to which values are rounded before they are stored; 0 if
                        none */
    int32_t op;      /* DPAR_COPY, or DPAR_SUM, DPAR_MAX, DPAR_MIN for to = to op value */
    int32_t negate;  /* 1 to negate the value (flips the sign bit of floats; integers wrap) */
    int32_t clear;   /* 1 to set the elements that were read to 0 */
    int32_t back;    /* 1 to walk from the last element to the first, because a walk in the other
                        direction has just used the same memory */
    int32_t ahead;   /* the side (DPARI_STRIDE_TO or _FROM) that is dense and was last used by
                        another core, so that its lines are prefetched; 0 if none */
    int32_t wide;    /* dpari_cpu_wide */
    int64_t beside;  /* distance, in elements of `to`, from each sum to an element that is set to 0
                        with it; 0 if none is */
    /* Number of elements along each dim, 0 if there is nothing to do; and the steps from one to the
     * next on both sides, in elements, of either sign. If all steps of `from` are 0, one element is
     * copied to all. */
    int64_t extent[DPARI_STRIDE_DIMS], to[DPARI_STRIDE_DIMS], from[DPARI_STRIDE_DIMS];
} dpari_stride_piece;

typedef struct dpari_stride_dim {
    int64_t count, to, from; /* steps in bytes */
} dpari_stride_dim;

/* A prepared copy. Callers may read elements and run. */
typedef struct dpari_stride {
    int64_t elements;   /* elements of the box */
    int64_t run;        /* bytes that are contiguous on both sides */
    int32_t loop, dims; /* DPARI_STRIDE_x of strided_loops.h, and the number of dims in dim */
    int32_t asks;       /* 1 to prefetch the lines that are written next */
    int32_t clear, ahead, back; /* as in dpari_stride_piece */
    int32_t simple;             /* 1 if one call of the loop is enough */
    int32_t wide;               /* 1 to use vectors of 32 bytes */
    int32_t packs;              /* 1 to copy through a local buffer to memory that another core used
                                   last */
    int32_t op;          /* DPAR_x; used with the types below if values are not just copied */
    int64_t part, turn;  /* number of rows at a time, and of elements or runs of each row */
    int64_t first, each; /* bytes to prefetch at the beginning, and for each element or run */
    int64_t beside;      /* bytes from each sum to the element that is set to 0 with it; 0 if none
                            is */
    int64_t to_start, from_start;            /* bytes from index 0 to where the walk begins */
    dpari_stride_dim dim[DPARI_STRIDE_DIMS]; /* the innermost first */
    int32_t to_type, from_type, through, negate;
    int32_t to_bytes, from_bytes; /* of an element */
} dpari_stride;

/* Prepares a copy. The types must have bytes and be equal, or two of {F64, F32}, or two of {F32,
 * F16, BF16} of which one is F32. If op is not DPAR_COPY, or negate or through is set, they must be
 * types that can be reduced. No element of `to` may occur twice, and no offset may overflow 63 bits
 * in bytes. O(dims^2). */
DPARI_API void dpari_stride_prepare(dpari_stride *stride, const dpari_stride_piece *piece);

/* Runs a prepared copy. to, from: the addresses of index 0 of the box on both sides, aligned to
 * their types; with negative steps, elements precede them. The two sides must not overlap. Combines
 * values as dpari_kern_reduce does, `to` first: 16-bit floats in f32, rounded to nearest even. A
 * NaN that results from a narrowing conversion, SUM, MAX or MIN is the quiet one. Copies keep every
 * bit. Local. */
DPARI_API void dpari_stride_run(const dpari_stride *stride, void *to, const void *from);

/* ---- for halo_box_groups, which runs two boxes in one loop, and lists of tiny boxes ---- */

/* Rows of n runs each. Steps are from run to run and from row to row, in bytes. */
typedef struct dpari_stride_rows {
    unsigned char *to;
    const unsigned char *from;
    unsigned char *zero; /* if zeroes is set: the memory that is set to 0 after the first run has
                            been moved */
    int64_t n, rows, to_step, from_step, zero_step, to_row, from_row, zero_row;
    int64_t run; /* bytes */
    int zeroes;
} dpari_stride_rows;

/* Moves the rows by a loop of strided_loops.h. rows->zeroes may be set only if the loop can do
 * it. */
DPARI_API void dpari_stride_move(const dpari_stride_rows *rows, int32_t loop);

/* Prefetches `bytes` bytes of the side stride->ahead, which another core used last, from `after`
 * bytes after the position of a walk on. */
DPARI_API void dpari_stride_ask_ahead(const dpari_stride *stride, const unsigned char *to,
                                      const unsigned char *from, int64_t after, int64_t bytes);

/* Runs one piece, or two pieces of the same shape alternately: `part` rows of each, `turn` runs of
 * each row at a time. */
DPARI_API void dpari_stride_walk(const dpari_stride *const *s, unsigned char **to,
                                 const unsigned char **from, int32_t pieces, int64_t part,
                                 int64_t turn);

/* ==== host/elements.h ==== */

/* elements - private: loads and stores floats of any type as blocks of doubles, so that loops over
 * parameters have one form for all types. Header-only. */

enum { DPARI_ELEMENTS = 128 }; /* elements of a block, which is 1 KiB of doubles */

DPARI_FN int dpari_is_float(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32 || type == DPAR_BF16 || type == DPAR_F16;
}

/* True for F64 and F32, the types of the host's loops over scores, gates and moments. */
DPARI_FN int dpari_is_wide(int32_t type)
{
    return type == DPAR_F64 || type == DPAR_F32;
}

/* Returns the wide type for sums and weights of a type: F64 for F64, otherwise F32. */
DPARI_FN int32_t dpari_wide_type(int32_t type)
{
    return type == DPAR_F64 ? DPAR_F64 : DPAR_F32;
}

/* True for the roundings that are allowed: F64 to F32, and F32 to 16 bits. */
DPARI_FN int dpari_narrows(int32_t from, int32_t to)
{
    return (from == DPAR_F64 && to == DPAR_F32) ||
           (from == DPAR_F32 && (to == DPAR_F16 || to == DPAR_BF16));
}

/* Read and write one element of F64 or F32. */
DPARI_FN double dpari_element_get(const void *data, int32_t type, int64_t at)
{
    return type == DPAR_F64 ? ((const double *)data)[at] : (double)((const float *)data)[at];
}

DPARI_FN void dpari_element_put(void *data, int32_t type, int64_t at, double v)
{
    if (type == DPAR_F64) {
        ((double *)data)[at] = v;
    } else {
        ((float *)data)[at] = (float)v;
    }
}

/* Copies the bits of a value into a variable of another type. */
#if defined(__GNUC__)
#define dpari_elements_bits(to, from, bytes) __builtin_memcpy(to, from, bytes)
#else
#define dpari_elements_bits(to, from, bytes) dpari_kern_copy(to, from, bytes, 0)
#endif

/* Gives all NaNs the same bits. */
DPARI_FN void dpari_elements_quiet(float *x, int64_t n)
{
    const uint32_t quiet = 0x7fc00000u;
    int64_t i;
    for (i = 0; i < n; i++) {
        if (x[i] != x[i]) {
            dpari_elements_bits(x + i, &quiet, 4);
        }
    }
}

/* Loads elements i .. i + n - 1, n <= DPARI_ELEMENTS, of F64, F32, BF16 or F16. */
DPARI_FN void dpari_elements_load(double *to, const void *from, int64_t i, int64_t n, int32_t type)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    float f[DPARI_ELEMENTS];
    if (type == DPAR_F64) {
        dpari_kern_copy(to, at, n * 8, 0);
    } else if (type == DPAR_F32) {
        dpari_kern_convert(to, DPAR_F64, at, DPAR_F32, n);
    } else {
        dpari_kern_convert(f, DPAR_F32, at, type, n);
        dpari_kern_convert(to, DPAR_F64, f, DPAR_F32, n);
    }
}

/* Stores n doubles as elements i .. i + n - 1 of `type`, rounded to nearest even. For 16-bit types
 * they are rounded to F32 first. */
DPARI_FN void dpari_elements_store(void *to, const double *from, int64_t i, int64_t n, int32_t type)
{
    unsigned char *at = (unsigned char *)to + i * dpar_type_bytes(type);
    float f[DPARI_ELEMENTS];
    if (type == DPAR_F64) {
        dpari_kern_copy(at, from, n * 8, 0);
        return;
    }
    if (type == DPAR_F32) {
        dpari_kern_convert(at, DPAR_F32, from, DPAR_F64, n);
        return;
    }
    dpari_kern_convert(f, DPAR_F32, from, DPAR_F64, n);
    dpari_kern_convert(at, type, f, DPAR_F32, n);
}

/* The CPU's instruction for square roots, which rounds correctly. sqrt of the C library would set
 * errno and need -lm. */
#if defined(__GNUC__) && defined(__AVX__) && !defined(DPARI_NO_VECTOR)
#define DPARI_ELEMENTS_ROOT(y, x) __asm__("vsqrtsd %1, %1, %0" : "=x"(y) : "x"(x))
#elif defined(__GNUC__) && defined(__x86_64__) && !defined(DPARI_NO_VECTOR)
#define DPARI_ELEMENTS_ROOT(y, x) __asm__("sqrtsd %1, %0" : "=x"(y) : "x"(x))
#elif defined(__GNUC__) && defined(__aarch64__) && !defined(DPARI_NO_VECTOR)
#define DPARI_ELEMENTS_ROOT(y, x) __asm__("fsqrt %d0, %d1" : "=w"(y) : "w"(x))
#endif

/* Returns sqrt(x), or 0 for x <= 0. */
#if defined(DPARI_ELEMENTS_ROOT)
DPARI_FN double dpari_elements_sqrt(double x)
{
    double y = 0.0;
    if (x > 0.0 || x != x) {
        DPARI_ELEMENTS_ROOT(y, x);
    }
    return y;
}
#else
/* Computes it without such an instruction, with a relative error of at most 2^-52; below 1e-300 it
 * returns 0. A first approximation of 1 / sqrt(x) comes from the bits of x (Lomont 2003). Four
 * Newton steps, which need no division, and one Heron step improve it. */
DPARI_FN double dpari_elements_sqrt(double x)
{
    uint64_t bits;
    double y, s;
    int32_t i;
    if (!(x > 1e-300) || !dpari_finite(x)) {
        return x > 1e-300 || x != x ? x : 0.0;
    }
    dpari_elements_bits(&bits, &x, 8);
    bits = UINT64_C(0x5fe6eb50c7b537a9) - (bits >> 1);
    dpari_elements_bits(&y, &bits, 8);
    for (i = 0; i < 4; i++) {
        y = y * (1.5 - 0.5 * x * y * y);
    }
    s = x * y;
    return s + 0.5 * y * (x - s * s);
}
#endif

/* ==== host/mem_private.h ==== */

/* mem_private - private: the operations of mem.h in the host's memory. */

/* Describes a box as a piece of strided.h. */
DPARI_FN void dpari_mem_piece(const dpar_mem_box *box, dpari_stride_piece *piece)
{
    int32_t d;
    piece->back = piece->ahead = piece->wide = 0;
    piece->beside = 0;
    piece->dims = 0;
    piece->to_type = box->to_type;
    piece->from_type = box->from_type;
    piece->through = box->round_type;
    piece->op = box->op;
    piece->negate = box->negate;
    piece->clear = box->clear;
    for (d = 0; d < box->dims; d++) {
        if (box->extent[d] != 1) { /* without a condition gcc would call memcpy for each array */
            piece->extent[piece->dims] = box->extent[d];
            piece->to[piece->dims] = box->to_stride[d];
            piece->from[piece->dims] = box->from_stride[d];
            piece->dims++;
        }
    }
}
/* Copies one box, as the `move` of a table does. Fails with DPAR_E_ARG, without a message, if types
 * or op are not allowed. */
DPARI_API dpar_status dpari_mem_move_box(const dpar_mem_box *box);
/* Does what dpar_mem.span does. */
DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n);

/* ==== comm/record.h ==== */

/* record - private: operations as the engines over MPI and NCCL record them, for messages and
 * reports. Header-only, so that only these engines contain the code. */

typedef struct dpari_record {
    int64_t sequence, count;
    int32_t kind, type, op, root, tag;
    int32_t state; /* DPAR_MORE while in progress, then the status with which it ended */
} dpari_record;

enum { DPARI_RECORDS = 32 }; /* the last operations of a communicator, which are kept in a ring */

DPARI_FN dpari_record dpari_record_of(const dpar_call *call, int64_t sequence)
{
    dpari_record r;
    r.sequence = sequence;
    r.count = call->count;
    r.kind = call->kind;
    r.type = call->type;
    r.op = call->op;
    r.root = call->root;
    r.tag = call->tag;
    r.state = DPAR_OK;
    return r;
}

/* True if both are the same call. counts: 0 if the ranks may pass different counts. */
DPARI_FN int dpari_record_same(const dpari_record *a, const dpari_record *b, int counts)
{
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
           dpari_tag_compared(a->tag) == dpari_tag_compared(b->tag) &&
           (!counts || a->count == b->count);
}

/* Writes "all-reduce #12 of 100 f32 sum", with all that ranks have to agree on. */
DPARI_FN void dpari_record_text(dpar_text *text, const dpari_record *r)
{
    dpari_operation_text(text, r->kind, r->sequence, r->type, r->count, r->root, r->tag);
    if (dpari_tag_compared(r->tag) != r->tag) {
        return;
    }
    if (dpari_kind_reduces(r->kind)) {
        dpari_text_say(text, " %s", dpari_op_name(r->op));
    }
    if (dpari_kind_rooted(r->kind)) {
        dpari_text_say(text, " root %d", r->root);
    }
    if (!dpari_kind_sends(r->kind) && r->tag != 0) {
        dpari_text_say(text, " tag %d", r->tag);
    }
}

/* Writes "rank 0 of 4, mpi", and a line for each operation in the ring. count: operations so far.
 */
DPARI_FN void dpari_record_report(dpar_text *text, const dpar_comm *comm, const dpari_record *ring,
                                  int64_t count)
{
    int64_t i = count > DPARI_RECORDS ? count - DPARI_RECORDS : 0;
    dpari_text_say(text, "rank %d of %d, %s\n", comm->rank, comm->size, comm->engine.name);
    for (; i < count; i++) {
        const dpari_record *r = &ring[i % DPARI_RECORDS];
        dpar_text_put(text, "  ");
        dpari_record_text(text, r);
        if (r->state == DPAR_MORE) {
            dpar_text_put(text, ": in progress\n");
        } else {
            dpar_text_put(text, r->state < 0 ? ": failed\n" : ": done\n");
        }
    }
}

/* ==== comm/memory_calls.h ==== */

/* memory_calls - private: the operations of mem.h in the memory of a communicator, in which its
 * strategies work. That is the memory of the table comm->mem, or the host's if comm->mem is NULL. A
 * failure breaks the communicator, so that all ranks fail. */

/* Run the operations of dpar_mem in the memory of comm. */
DPARI_API dpar_status dpari_do_move(dpar_comm *comm, const dpar_mem_box *boxes, int32_t n);
DPARI_API dpar_status dpari_do_wait(dpar_comm *comm);
DPARI_API dpar_status dpari_do_span(dpar_comm *comm, const dpar_mem_span *spans, int32_t n);
DPARI_API dpar_status dpari_do_reduce(dpar_comm *comm, const dpar_mem_reduce *reduce);
DPARI_API dpar_status dpari_do_finite(dpar_comm *comm, const dpar_mem_finite *f);
/* Breaks comm if the operation `what` of its table has returned an error, st. Returns st, or
 * DPAR_OK if it is no error. */
DPARI_API dpar_status dpari_do_ended(dpar_comm *comm, dpar_status st, const char *what);
/* Copies bytes, or writes zeros if `from` is NULL. */
DPARI_API dpar_status dpari_do_copy(dpar_comm *comm, void *to, const void *from, int64_t bytes);
/* Copies rows of `count` elements that begin to_step and from_step elements apart, or adds them if
 * op is DPAR_SUM. */
DPARI_API dpar_status dpari_do_rows(dpar_comm *comm, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op);
/* Sets to[i] to from[i], or to to[i] + from[i] if `add` is set. The types may differ. */
DPARI_API dpar_status dpari_do_convert(dpar_comm *comm, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add);

/* ==== comm/agree.h ==== */

/* agree - private: compares the arguments of all ranks before they make a plan together, reports
 * wrong calls, and divides the caller's memory into pieces. */

/* Continue the hash h with a number, or with all fields of a layout, and return it. */
DPARI_API uint64_t dpari_hash(uint64_t h, int64_t v);
DPARI_API uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *layout);

/* Makes all ranks fail if one has failed. A rank that has failed passes its status as st, and gets
 * it back with its own *why. The other ranks return the worst status, and write "rank 2: " and the
 * message of that rank, or the text of the status if its why is NULL. COLLECTIVE: one all-reduce of
 * 24 bytes, and a broadcast if a rank has failed. */
DPARI_API dpar_status dpari_agree(dpar_comm *comm, dpar_status st, dpar_why *why);

/* Returns where a message is written: to `why`, or to comm->why if `why` is NULL, where
 * dpar_fail(comm, NULL) finds it. Removes an older message from comm->why then, so that it is not
 * reported as the cause of a failure that has no message. A communicator that has failed keeps the
 * message of its failure. */
DPARI_API dpar_why *dpari_why_of(dpar_comm *comm, dpar_why *why);

/* Facts are the arguments that must be equal on all ranks, as a sequence of numbers with names. A
 * function of type dpari_state adds them in a fixed order, from the arguments in `given`. It is
 * called several times, because only the hash of all facts and one of the facts are stored. In
 * messages, `index` replaces a '#' in the name. */
typedef struct dpari_facts {
    uint64_t hash;       /* hash of all facts so far */
    int64_t count;       /* number of facts so far */
    const char *of;      /* prefix for the names of the facts added next, such as "field #: "; NULL
                            if none */
    int64_t of_index;    /* the number that replaces the '#' in `of` */
    int64_t keep;        /* position of the fact to store, counted from 0 */
    uint64_t before;     /* hash of the facts before the stored one; of all facts if none is
                            stored */
    int64_t value;       /* value of the stored fact */
    const char *name;    /* its name; NULL if there are at most `keep` facts */
    const char *kept_of; /* its prefix */
    int64_t index, kept_of_index; /* the numbers that replace a '#' in its name and prefix */
    int32_t kind;                 /* number, type, real or hash (agree.c) */
} dpari_facts;
typedef void dpari_state(dpari_facts *f, const void *given);

/* Add one fact. */
DPARI_API void dpari_fact(dpari_facts *facts, const char *name, int64_t index, int64_t value);
DPARI_API void dpari_fact_type(dpari_facts *facts, const char *name, int64_t index, int32_t type);
DPARI_API void dpari_fact_real(dpari_facts *facts, const char *name, int64_t index, double value);
/* Adds the hash of a value that is too long for a message. If it differs, the message names the
 * fact and the ranks, but no values. */
DPARI_API void dpari_fact_hash(dpari_facts *facts, const char *name, int64_t index, uint64_t hash);

/* Returns the hash of the plan's name and of all its facts, which is never 0. */
DPARI_API uint64_t dpari_facts_hash(const char *plan, dpari_state *state, const void *given);

/* Does what dpari_agree does, and also compares the facts if no rank has failed. If they differ,
 * all ranks fail with DPAR_E_MISMATCH, and the message names the first fact in which two ranks
 * differ: "halo: field 0: halo.low[1] is 2 on rank 0, 1 on rank 3".
 *
 * plan:  name of the kind of plan; the message begins with it.
 * state: NULL if there is nothing to compare.
 * given: read only if st is DPAR_OK.
 *
 * COLLECTIVE. Costs what dpari_agree costs and, if facts differ, about 2 log2(number of facts)
 * small broadcasts. */
DPARI_API dpar_status dpari_agree_on(dpar_comm *comm, dpar_status st, const char *plan,
                                     dpari_state *state, const void *given, dpar_why *why);

DPARI_API uint64_t dpari_hash_real(uint64_t h, double v);

/* Posts a collective whose tag is a hash of arguments that must be equal on all ranks. Engines that
 * compare calls thus compare these arguments too, at no cost. If they differ, comm->why begins with
 * `what`. */
DPARI_API dpar_status dpari_post_alike(dpar_comm *comm, dpar_call *call, uint64_t hash,
                                       const char *what, dpar_work *work);

/* Reports a wrong call of this rank: returns st and writes the message into comm->why, as dpari_say
 * does. If the communicator is broken, returns its status and keeps its message, which describes
 * the first error. */
DPARI_API dpar_status dpari_comm_say(dpar_comm *comm, dpar_status st, const char *form, ...)
    DPARI_PRINTF(3, 4);
/* The same with DPAR_E_ARG. */
DPARI_API dpar_status dpari_comm_wrong(dpar_comm *comm, const char *form, ...) DPARI_PRINTF(2, 3);
/* Reports a failure of this rank in a call in which other ranks may already wait: breaks the
 * communicator, so that all ranks fail with st and this message. */
DPARI_API dpar_status dpari_comm_wrong_all(dpar_comm *comm, dpar_status st, const char *form, ...)
    DPARI_PRINTF(3, 4);

enum { DPARI_ROOM_ALIGN = 64 };
DPARI_FN int64_t dpari_room_up(int64_t bytes)
{
    return dpari_ceil_div(bytes, DPARI_ROOM_ALIGN) * DPARI_ROOM_ALIGN;
}

/* Memory that is divided into pieces at multiples of DPARI_ROOM_ALIGN. If `at` is NULL, the bytes
 * are only counted. */
typedef struct dpari_room {
    unsigned char *at;
    int64_t used;
} dpari_room;
DPARI_FN dpari_room dpari_room_of(void *memory)
{
    dpari_room room;
    room.at = (unsigned char *)memory;
    room.used = 0;
    return room;
}
DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes);

/* ==== comm/peer_arrays.h ==== */

/* peer_arrays - private: lets ranks read each other's arrays in place. In the shared-memory engine
 * a rank can read the registered memory of the others in any order. That takes one pass, whereas an
 * all-to-all needs the pieces packed before and sorted afterwards.
 *
 *     st = dpari_peers_open(&p, comm, tag, arrays, n, peer);
 *     if (st == DPAR_OK && p.direct) {
 *         ... read from dpari_peers_at(&p, rank, i) what this rank needs ...
 *         st = dpari_peers_close(&p, bytes);
 *     } else if (st == DPAR_OK) {
 *         ... the all-to-all ...
 *     } */

enum { DPARI_PEERS_MOST = 3 }; /* arrays of one rank */

/* An array of this rank that others may read; they must not read it if bytes is 0. */
typedef struct dpari_peers_array {
    const void *at;
    int64_t bytes;
} dpari_peers_array;

/* What each rank publishes about its arrays. */
typedef struct dpari_peer {
    uint64_t ref[DPARI_PEERS_MOST];
    uint64_t reach; /* 1 if all of its arrays can be reached */
} dpari_peer;

typedef struct dpari_peers {
    dpar_comm *comm;
    const dpari_peer *peer; /* [size] */
    int32_t direct;         /* 1 if every array of every rank can be reached */
} dpari_peers;

/* Exchanges references to the arrays of all ranks, which must not change until dpari_peers_close.
 *
 * peer: [size] memory of the caller.
 * tag:  0 .. 2^31 - 1, identifies what is exchanged; ranks with different tags get DPAR_E_MISMATCH.
 *
 * Collective: an all-gather of 32 bytes for each rank, which comm->sent does not count. Over
 * another engine, or if a rank works in the memory of a device, peers->direct is 0; another engine
 * exchanges nothing. Errors as in comm.h. */
DPARI_API dpar_status dpari_peers_open(dpari_peers *peers, dpar_comm *comm, int32_t tag,
                                       const dpari_peers_array *array, int32_t n, dpari_peer *peer);
/* Returns this rank's address of array i of a rank, or NULL if that array has no bytes. */
DPARI_API const void *dpari_peers_at(const dpari_peers *peers, int32_t rank, int32_t i);
/* Waits until all ranks have finished reading. sent: the number of bytes that other ranks have read
 * from this one, which comm->sent counts as an all-to-all. Collective: a barrier. */
DPARI_API dpar_status dpari_peers_close(const dpari_peers *peers, int64_t sent);
/* True if an output of this many bytes should be written with streaming stores, which bypass the
 * cache. */
DPARI_API int32_t dpari_peers_stream(const dpari_peers *peers, int64_t bytes);

/* ==== comm/job.h ==== */

/* job - private: detects which launcher started this process. All variables and files are read
 * through a dpari_site, so that tests can supply another environment and other files. */

/* Where the environment and the files under /proc, /sys and /dev are read. */
typedef struct dpari_site {
    const char *(*env)(const void *user, const char *name); /* returns NULL if not set */
    const void *user;
    const char *root; /* precedes absolute paths; "" for the files of this machine */
} dpari_site;

/* Selects the real environment and the real files. */
DPARI_API void dpari_site_here(dpari_site *site);
/* Returns the text of a variable, or NULL if it is not set. */
DPARI_API const char *dpari_site_env(const dpari_site *site, const char *name);
/* Reads at most room - 1 bytes of the file root + path and appends a NUL. Returns the number of
 * bytes, or -1 if the file cannot be opened. */
DPARI_API int64_t dpari_site_read(const dpari_site *site, const char *path, char *text,
                                  size_t room);

/* Returns "torchrun", "Open MPI", ..., "none", or "?" if the number is not a launcher. Static text.
 */
DPARI_API const char *dpari_launcher_name(int32_t launcher);

/* Reads a number. Returns 1 if the text has only digits and the value is at most `most`. */
DPARI_API int dpari_job_number(const char *text, int64_t most, int64_t *value);
/* Does what dpar_launcher_detect does, and also finds the number of nodes, 0 if unknown. */
DPARI_API dpar_status dpari_job_here(dpar_launcher_info *job, int32_t *nodes, dpar_why *why);

/* ==== comm/launch_private.h ==== */

/* launch_private - private: functions of launch.c that other engines and simple.c call. */

/* Joins the ranks of a job, which must all be on this node. COLLECTIVE over the job. */
DPARI_API dpar_status dpari_job_join(const dpar_launcher_info *job, const dpar_world_desc *options,
                                     dpar_comm **world, dpar_why *why);
/* Checks whether dpari_job_join would fail on this rank alone, before the other ranks wait for it.
 * Local. */
DPARI_API dpar_status dpari_job_try(const dpar_launcher_info *job, const dpar_world_desc *options,
                                    dpar_why *why);

/* If the variable DPAR_TIMEOUT is set, replaces the deadline in the options by its value, in
 * seconds. Fails with DPAR_E_ARG if it is not a number. */
DPARI_API dpar_status dpari_timeout_here(const dpari_site *site, dpar_world_desc *o, dpar_why *why);

/* How a job failed. Set by the launch. */
typedef struct dpari_verdict {
    int32_t said;   /* 1 if one of its ranks has printed the reason (dpari_shm_speaks) */
    int32_t result; /* what the rank that failed first returned; 1 if it did not return */
} dpari_verdict;
/* Does what dpar_launch does, and also sets *verdict. */
DPARI_API dpar_status dpari_launch_verdict(int32_t n, dpar_main fn, void *arg,
                                           const dpar_world_desc *options, dpari_verdict *verdict,
                                           dpar_why *why);
/* Does the same with ranks that are new processes of this program, started with the arguments
 * `words`, which end with NULL. Each finds its segment by dpari_job_join. */
DPARI_API dpar_status dpari_launch_programs(int32_t n, char **words, const dpar_world_desc *options,
                                            dpari_verdict *verdict, dpar_why *why);

/* ==== comm/object_memory.h ==== */

/* object_memory - private: the memory of an object that a _make function makes and a _free function
 * frees. The caller provides it (desc.memory, desc.bytes), or it is allocated here. Used by halos,
 * points, training and dpar_spatial.h. */

/* True if closing the parts of an object was refused with DPAR_E_ARG, so that its _free must leave
 * the object unchanged. On a broken communicator DPAR_E_ARG is not a refusal but may be the status
 * of the communicator. */
DPARI_FN int dpari_object_refused(const dpar_comm *comm, dpar_status st)
{
    return st == DPAR_E_ARG && comm->status == DPAR_OK;
}

/* Allocates zeroed memory of the host at a multiple of 64. It comes from dpar_comm_alloc, so that
 * closing comm's world frees it too. If comm->mem is a device or comm is NULL, it consists of pages
 * of the host. Returns NULL if there is no memory. dpari_object_release frees it; NULL is
 * allowed. */
DPARI_API void *dpari_object_alloc(dpar_comm *comm, int64_t bytes);
DPARI_API void dpari_object_release(void *memory);
/* Ends a _free: releases `memory` unless it is NULL, and returns st. */
DPARI_API dpar_status dpari_object_end(dpar_status st, void *memory);
/* Provides memory for the struct of an object. If the descriptor has memory NULL and bytes 0,
 * allocates it with dpari_object_alloc. Otherwise *memory becomes desc.memory, or the call fails
 * with DPAR_E_ROOM if that has fewer than `need` bytes, is NULL or is not aligned to 64. Local; the
 * caller must then call dpari_agree. module: the first word of the message. */
DPARI_API dpar_status dpari_object_memory(dpar_comm *comm, void *given, int64_t bytes, int64_t need,
                                          const char *module, void **memory, dpar_why *why);
/* Ends a _make that failed with st on all ranks: releases `memory` unless the caller gave it, and
 * with DPAR_E_ROOM stores in why->bytes how many bytes this rank needs, even if only another rank
 * has too few. Returns st. */
DPARI_API dpar_status dpari_object_failed(dpar_status st, const void *given, void *memory,
                                          int64_t need, dpar_why *why);

/* ==== exchange/exchange.h ==== */

/* exchange - runs the exchanges of halos and of points. Private.
 *
 * A plan (of a halo, of points) knows which values go to which rank and how they are packed. It
 * contains a dpari_exchange, which knows the peers and does the rest: waits for them, publishes
 * what this rank has packed, posts messages, takes what has arrived, and ends with an error that
 * names the rank at fault. The plan passes functions that pack and take.
 *
 * An exchange has one or more steps, one after the other. In each step this rank packs, publishes
 * `ready` and posts messages, takes what the peers have sent, and waits for the peers that read its
 * arrays. There are two modes: forward, and the adjoint, in which values go back and are combined.
 *
 * Values are packed into staging memory, which has two halves, called turns, that exchanges use
 * alternately. Peers that do not share memory get one message each. Peers that share memory read
 * the turn. Each rank publishes two words for them:
 *
 *     ready = exchange << 16 | kind    my values are packed, and my arrays may be read
 *     done  = exchange                 I have taken all values that are for me
 *
 * Before a rank packs into a turn again, its readers must be done with the values that the turn
 * holds, which are those of the exchange before the last one. Usually it need not wait for `done`,
 * because a peer that is ready for an exchange is done with all exchanges before it. It waits for
 * `done` if a peer only receives from it or reads its arrays in place. Only then does the peer wake
 * it at once. A plan also waits for `done` before it replaces its staging memory.
 *
 * Peers whose devices reach each other's memory (dpar_engine.alloc_shared) neither send messages
 * nor publish words. They synchronize their streams before a rank packs and after it has packed. */

enum {
    DPARI_EXCHANGE_FORWARD, /* modes: as DPAR_HALO_FORWARD and DPAR_HALO_ADJOINT */
    DPARI_EXCHANGE_ADJOINT,
    DPARI_EXCHANGE_PACKING = 0, /* phases that are timed: indices of dpari_exchange.seconds */
    DPARI_EXCHANGE_COPYING,
    DPARI_EXCHANGE_WAITING
};

/* The words that a rank publishes to its peers, one struct for each step that may be in progress.
 * `done` is in a cache line of its own, because it is written at other times than `ready`. */
typedef struct dpari_exchange_line {
    uint64_t ready;
    uint64_t place[2]; /* words of the plan, by which peers find its memory; the plan changes them
                          only while no peer reads them: between exchanges, before `ready` */
    char padding_0[DPARI_LINE - 24];
    uint64_t done;
    char padding_1[DPARI_LINE - 8];
} dpari_exchange_line;

typedef struct dpari_exchange_peer {
    int32_t rank;    /* in the communicator */
    int32_t world;   /* its rank in the world; -1 if it does not share memory with this rank */
    int32_t reached; /* 1 if this rank's device reads its packed values, so that it sends none */
    int32_t lends;   /* 1 if it lends arrays to be read in place in the exchange in progress */
    int64_t seen;    /* number of the last exchange for which it was ready */
    dpari_exchange_line *line; /* its lines; NULL unless it shares memory */
} dpari_exchange_peer;

/* What a peer and this rank exchange in one step. Arrays are indexed by mode. The plan fills it in,
 * and may change it between exchanges and while it packs. */
typedef struct dpari_exchange_flow {
    int64_t in_bytes[2], out_bytes[2]; /* packed bytes; 0 if there is no message */
    int32_t takes[2];                  /* 1 if this rank takes values of the peer */
    int32_t lends[2]; /* 1 if the peer reads arrays of this rank in place, so that the exchange ends
                         after the peer is done */
    int32_t packed;   /* 1 if the peer reads packed values of this rank in some exchange */
    int32_t taken;    /* private: 1 if the values of the exchange in progress have been taken */
} dpari_exchange_flow;

typedef struct dpari_exchange_step {
    int32_t modes; /* bits of the modes that have this step: 1 << DPARI_EXCHANGE_FORWARD, ... */
    int32_t line;  /* number of the dpari_exchange_line in which ranks publish its progress */
    int32_t meets; /* 1 if values are exchanged with another rank that shares memory */
    int32_t alone; /* 1 if no other rank takes part */
} dpari_exchange_step;

/* The kind of an exchange in the word `ready`: the operation (0 is forward, 1 sum, 2 max, 3 min), a
 * hash of what is exchanged, and whether some array is read in place. */
enum { DPARI_EXCHANGE_OP = 3, DPARI_EXCHANGE_KIND = 0x7fff, DPARI_EXCHANGE_LENT = 0x8000 };

typedef struct dpari_exchange {
    /* Set by the plan. */
    dpar_comm *comm;
    dpar_comm *node;    /* comm->node, or comm if that is NULL */
    dpari_world *world; /* memory shared in the node; NULL if only messages are used */
    void *plan;         /* passed to the functions */
    /* Packs the values of step s for the peers that share memory, and may pack all others. NULL if
     * there is nothing to pack. */
    dpar_status (*pack)(void *plan, int32_t s);
    /* Returns where the message from peer i arrives, or with `sends` the address of the message to
     * it, which it packs unless `pack` has. */
    unsigned char *(*message)(void *plan, int32_t s, int32_t i, int sends);
    /* Takes values that this rank sends to itself, at the beginning of step s. May be NULL if no
     * step is `alone`. */
    void (*take_own)(void *plan, int32_t s);
    /* Takes the values of peer i, which have arrived. An adjoint takes the peers in the order of
     * ranks. */
    dpar_status (*take)(void *plan, int32_t s, int32_t i);
    /* Does what must wait until the values of all peers have arrived. May be NULL. */
    dpar_status (*finish)(void *plan, int32_t s);
    const char *name; /* for messages: "halo", "points" */
    const char *end;  /* for messages: the public function that ends an exchange */
    const char *item; /* what is exchanged: "field", "vector" */
    int32_t items;    /* the number of them */
    int32_t peers, steps, tag, timers;
    int32_t self;     /* index of this rank among its peers; -1 if it is not one of them */
    int32_t together; /* 1 if receives and sends are posted at once, after packing; otherwise the
                         receives are posted before */
    int32_t early;    /* the step that a forward exchange offers before the first one; 0 if none */
    int32_t shared;   /* number of other peers that share memory with this rank */
    int32_t oneway;   /* 1 if such a peer only sends to this rank or only receives from it */
    int32_t lends;    /* 1 if some peer reads arrays of this rank in place in this exchange */
    int32_t reached;  /* number of peers whose memory this rank's device reads */
    unsigned char *memory;     /* the memory that these devices read */
    dpari_exchange_peer *peer; /* in ascending order of ranks */
    dpari_exchange_flow *flow; /* [peers][steps] */
    dpari_exchange_step *step;
    dpari_exchange_line *line; /* of this rank */
    int32_t *rank_of; /* ranks in comm of the ranks of the node, or of the peers that are reached */
    dpar_call *call;  /* [2 * peers] receives, then sends */
    dpar_work *work;  /* [2 * peers + 1] of them, and of a synchronization of devices */
    /* Set by the functions below; plans may read them. */
    int64_t count; /* number of exchanges begun */
    int32_t active, mode, op;
    double seconds[3]; /* spent in each phase */
    /* Private. */
    uint64_t kind;
    int32_t left;     /* 1 if dpari_exchange_post_rest was left in the communicator (engine.h) */
    int32_t lent;     /* 1 if a peer lends arrays to be read in place in this exchange */
    int32_t now;      /* the step in progress */
    int32_t next;     /* the step after it */
    int32_t stage;    /* of the step in progress: DPARI_EXCHANGE_TAKING, ... (exchange.c) */
    int32_t receives; /* numbers of messages of this step: those that are received, and all */
    int32_t posted;
    int32_t part;  /* with devices that are reached: the part of the staging memory in use */
    double looked; /* time of the last check that peers are alive, in seconds */
} dpari_exchange;

/* Takes the memory of the tables for at most `peers` peers and `nodes` ranks of a node. With
 * room->at NULL, only counts bytes. */
DPARI_API void dpari_exchange_room(dpari_exchange *x, dpari_room *room, int64_t peers,
                                   int64_t steps, int64_t nodes);
/* Finds the peers that share memory with this rank. Collective over the node. */
DPARI_API dpar_status dpari_exchange_find_node(dpari_exchange *x);
/* Sends `words` words to each peer and receives as many, in the order of peers. Returns the status
 * of the messages. Collective. */
DPARI_API dpar_status dpari_exchange_records(const dpari_exchange *x, const int64_t *mine,
                                             int64_t *theirs, int64_t words);

/* Checks that an exchange may begin: nothing is broken, and the last one has ended. Then posts the
 * messages that another exchange still has to post, because peers that the plan waits for may need
 * them. */
DPARI_API dpar_status dpari_exchange_may_begin(dpari_exchange *x);
/* Checks that no exchange is in progress. caller: how the message begins, such as "f: ", or "". */
DPARI_API dpar_status dpari_exchange_is_over(const dpari_exchange *x, const char *caller);
/* Waits until the peers that share memory have taken all values of exchange `last`. */
DPARI_API dpar_status dpari_exchange_await_done(dpari_exchange *x, int64_t last);
/* Begins an exchange, after dpari_exchange_may_begin. op: DPAR_COPY for a forward exchange, or the
 * operation of the adjoint. hash: of what is exchanged, compared with that of the peers. */
DPARI_API dpar_status dpari_exchange_begin(dpari_exchange *x, int32_t op, uint64_t hash);
/* Advances the exchange in progress, to its end if wait is 1. Otherwise returns DPAR_MORE instead
 * of waiting. */
DPARI_API dpar_status dpari_exchange_advance(dpari_exchange *x, int wait);
/* Ends what is in progress before the plan is freed, so that no peer reads this rank's memory any
 * more. Refuses with DPAR_E_ARG if an exchange has not ended; `*refused` is then 1. Collective. */
DPARI_API dpar_status dpari_exchange_close(dpari_exchange *x, const char *caller, int32_t *refused);

/* Breaks the communicators, because dpari_at returned NULL for a reference of a peer. Returns the
 * status that counts. */
DPARI_API dpar_status dpari_exchange_unmapped(dpari_exchange *x, uint64_t ref);
/* Writes the average times of the phases of an exchange: "packing 1.2 us, copying ...". */
DPARI_API void dpari_exchange_put_times(const dpari_exchange *x, dpar_text *out);
/* Rounds a number of bytes up to whole lines, so that no two pieces of memory share one. */
DPARI_FN int64_t dpari_exchange_lines(int64_t bytes)
{
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}
/* Returns the time in seconds if the plan has timers, otherwise 0. */
DPARI_FN double dpari_exchange_clock(const dpari_exchange *x)
{
    return x->timers ? dpari_os_now() : 0.0;
}
/* Adds the time since `began` to a phase if the plan has timers. */
DPARI_FN void dpari_exchange_time(dpari_exchange *x, int32_t phase, double began)
{
    if (x->timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}
/* Returns the part of the staging memory that the exchange in progress uses. */
DPARI_FN int64_t dpari_exchange_turn(const dpari_exchange *x)
{
    return x->reached > 0 ? x->part : x->count & 1;
}
/* True if peer i gets messages. */
DPARI_FN int dpari_exchange_sends(const dpari_exchange *x, int32_t i)
{
    return x->peer[i].world < 0 && !x->peer[i].reached;
}

#endif /* DPARI_COMM_INTERNAL_H */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_COMM_IMPLEMENTATION)) && \
    !defined(DPAR_COMM_IMPLEMENTATION_DONE)
#define DPAR_COMM_IMPLEMENTATION_DONE

/* ==== comm/os.h ==== */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/prctl.h>
#include <sys/syscall.h>
#endif
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if !defined(MSG_NOSIGNAL) /* os.c then sets SO_NOSIGPIPE */
#define MSG_NOSIGNAL 0
#endif

/* dpar uses POSIX 2008 and common extensions that compilers offer by default, but not under
 * -std=c99 and the like. os.c declares what glibc offers only with _GNU_SOURCE. If a system header
 * was included before under -std=c99, it has hidden POSIX, which cannot be undone here. */
#if !defined(MAP_ANONYMOUS) || !defined(CLOCK_MONOTONIC) || !defined(F_DUPFD_CLOEXEC)
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* Pauses briefly between two looks at a word that another core will write. */
DPARI_INTERNAL void dpari_os_pause(void);
/* Sleeps while *word is `value`, at most `seconds`. May return early. Without futexes it sleeps up
 * to 50 us. dpari_os_futex_wake wakes all that sleep on the word. own: 1 if all of them are threads
 * of this process. */
DPARI_INTERNAL void dpari_os_futex_wait(uint32_t *word, uint32_t value, double seconds, int own);
DPARI_INTERNAL void dpari_os_futex_wake(uint32_t *word, int own);

/* Makes a file of `bytes` that processes can share by its descriptor, which exec closes. It has no
 * name, or, without memfd, its name is removed before this returns. Returns -1 and errno on
 * failure.
 */
DPARI_INTERNAL int dpari_os_segment(int64_t bytes, int without_memfd);
/* Maps [begin, begin + bytes) of the file. Returns NULL and errno on failure. */
DPARI_INTERNAL void *dpari_os_map(int fd, int64_t begin, int64_t bytes);
/* Leaves mapped memory out of core files, or includes it again. By default the system writes all of
 * a shared mapping, and allocates a page for each page of it that was never used. */
DPARI_INTERNAL void dpari_os_dump(void *at, int64_t bytes, int dumped);
/* True if this process is writing a core file. */
DPARI_INTERNAL int dpari_os_dumps(int32_t pid);
/* Returns the PID namespace of this process if /proc shows its processes, or 0. */
DPARI_INTERNAL uint64_t dpari_os_pids(void);
/* Appends "out of addresses (ulimit -v is 4000000 KiB)". */
DPARI_INTERNAL void dpari_os_put_addresses(dpar_text *text);
/* Allocates these bytes of the file. Returns 0 or an error number (ENOSPC, ENOMEM). */
DPARI_INTERNAL int dpari_os_reserve(int fd, int64_t begin, int64_t bytes);
/* Replaces small pages in a range by large ones, wherever whole large pages fit into the range and
 * the system supports it. It also works if the system gives shared memory no large pages by
 * default. Takes a second for each GB. */
enum { DPARI_OS_LARGE = 1 << 21 };
DPARI_INTERNAL void dpari_os_large_pages(void *at, int64_t bytes);

/* dpari_os_hold locks byte `at` of the file until this process ends. dpari_os_is_held tests whether
 * another process has locked it. */
DPARI_INTERNAL int dpari_os_hold(int fd, int64_t at);
DPARI_INTERNAL int dpari_os_is_held(int fd, int64_t at);

/* Reads at most room - 1 bytes from the beginning of a file and appends a NUL. Returns the number
 * of bytes, or -1 and the text "" if the file cannot be opened. */
DPARI_INTERNAL int64_t dpari_os_text(const char *path, char *text, size_t room);
/* Finds the first number after `key` in a file. Returns -1 if there is none, as for "max". */
DPARI_INTERNAL int64_t dpari_os_number_in(const char *path, const char *key);
/* Reads the digits at the beginning of a text, 0 if there are none, INT64_MAX if there are more
 * than
 * 18. Returns what follows them. */
DPARI_INTERNAL const char *dpari_os_digits(const char *text, int64_t *number);
/* Returns how many CPUs are in a set. */
DPARI_INTERNAL int32_t dpari_os_cpu_count(const uint64_t mask[DPARI_CPU_WORDS]);
/* Returns the first CPU of the last-level cache that all these CPUs share, or -1 if they share none
 * or that is unknown. */
DPARI_INTERNAL int32_t dpari_os_cache(const uint64_t mask[DPARI_CPU_WORDS]);

/* Returns the environment: texts "NAME=value", then NULL. */
DPARI_INTERNAL char **dpari_os_environment(void);
/* Returns the nanoseconds of processor time that all threads of a process have used, or -1 if
 * unknown. */
DPARI_INTERNAL int64_t dpari_os_used(int32_t pid);
/* Stores the path of the program that this process runs, or `name` (its argv[0]) if the system does
 * not tell. Returns 0, or -1 if it is too long. */
DPARI_INTERNAL int dpari_os_program(const char *name, char *path, size_t bytes);

/* Makes an OpenMP runtime in this process end its threads, if there is one. os.c has the reason. */
enum { DPARI_OPENMP_SOFT = 1, DPARI_OPENMP_HARD = 2 };
DPARI_INTERNAL void dpari_os_pause_openmp(int kind);

/* Finds the process and user at the other end of a local socket; *pid is 0 if unknown. Returns -1
 * if the system cannot tell. */
DPARI_INTERNAL int dpari_os_peer(int fd, int64_t *pid, int64_t *user);

/* Converts the remaining time for poll, to at most 100 ms, so that other conditions are checked
 * too. */
DPARI_INTERNAL int dpari_os_milliseconds(double seconds);

/* Continues a hash (64-bit FNV-1a) with n bytes. It begins with DPARI_OS_HASH. */
#define DPARI_OS_HASH UINT64_C(14695981039346656037)
DPARI_INTERNAL uint64_t dpari_os_hash(uint64_t h, const void *bytes, size_t n);
/* Appends 16 hexadecimal digits. */
DPARI_INTERNAL void dpari_os_put_hex(dpar_text *text, uint64_t number);
/* Returns a random number, different for each call on any machine. */
DPARI_INTERNAL uint64_t dpari_os_random(void);
/* Returns one zeroed page that reads as zeros in children that this process forks, or NULL if there
 * is no memory. */
DPARI_INTERNAL uint64_t *dpari_os_own_page(void);
/* Returns the number that this process's user has outside of its user namespace, if known,
 * otherwise the number inside. */
DPARI_INTERNAL int64_t dpari_os_user(void);

/* Fails with DPAR_E_SYSTEM and the message "what bytes bytes: error", or "what: error" if bytes is
 * 0. */
DPARI_INTERNAL dpar_status dpari_os_why(dpar_why *why, const char *what, int64_t bytes, int number);

/* ==== comm/limits.h ==== */

/* Determines the limits of control groups only, from the text of /proc/self/cgroup and the
 * directory where groups are mounted. Lowers bytes, cpus and hundredths of *a. */
DPARI_INTERNAL void dpari_limits_groups(dpari_available *a, const char *text, const char *root);

/* ==== comm/copy_choice.h ==== */

/* Returns the record of the class for copies of `bytes` bytes. pace is [DPARI_PACES]. */
DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes);
/* Chooses the method of the next copy: the ring if it is at least 15 % faster, otherwise the
 * kernel. Now and then it tries the other method, in case that has become faster. */
DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *pace);
/* Records the time that a copy with this method took. */
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *pace, int32_t way, int64_t bytes, double seconds);

/* ==== comm/world.h ==== */

DPARI_FN int64_t dpari_in_units(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Return the head of a segment and its ranks. */
DPARI_FN dpari_world_head *dpari_segment_head(const dpari_segment *segment)
{
    return (dpari_world_head *)(void *)segment->base;
}

DPARI_FN dpari_rank *dpari_segment_ranks(const dpari_segment *segment)
{
    return (dpari_rank *)(void *)(segment->base + sizeof(dpari_world_head));
}

/* Makes the memory for `ranks` ranks (1 .. DPARI_MAX_RANKS) and maps it. NULL options select the
 * defaults. Fails with DPAR_E_ARG or DPAR_E_SYSTEM and a message. */
DPARI_INTERNAL dpar_status dpari_segment_make(dpari_segment *segment, int32_t ranks,
                                              const dpar_world_desc *options, dpar_why *why);
/* Maps a segment that another process made and passed on as `fd`, which the segment then owns.
 * Checks size, magic and version before it uses any other field. */
DPARI_INTERNAL dpar_status dpari_segment_open(dpari_segment *segment, int fd, dpar_why *why);
DPARI_INTERNAL void dpari_segment_close(dpari_segment *segment);

/* Returns the deadline of an operation that the options select, in seconds; 0 if there is none. */
DPARI_INTERNAL double dpari_world_timeout(const dpar_world_desc *options);
/* Makes this rank's view of the world in a segment, without announcing the rank to the others. own:
 * DPARI_OWNS_x. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_world *dpari_world_make(const dpari_segment *segment, int32_t me, int32_t own,
                                             const dpar_world_desc *options);
/* Announces this rank to the others and publishes `member`, the ref of its first shared structure
 * (not 0). Returns when all ranks have arrived, so that their `member` can be read. Fails with
 * DPAR_E_TIMEOUT (the message names the missing ranks), DPAR_E_PEER (a rank died) or
 * DPAR_E_SYSTEM. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_world_enter(dpari_world *world, uint64_t member, dpar_why *why);
/* Records that a rank has ended, with an exit status or by -signal, and wakes all others, so that
 * all waits for it end at once. ending: 0 if unknown. A rank that left in order stays
 * DPARI_RANK_LEFT. */
DPARI_INTERNAL void dpari_segment_ended(const dpari_segment *segment, int32_t rank, int32_t ending);
/* True if any rank has printed an error. */
DPARI_INTERNAL int dpari_segment_said(const dpari_segment *segment);
/* True if the rank has left in order, by closing the world's communicator. */
DPARI_INTERNAL int dpari_segment_has_left(const dpari_segment *segment, int32_t rank);
/* True if others continue without the rank (dpar_comm_shrink). */
DPARI_INTERNAL int dpari_segment_is_behind(const dpari_segment *segment, int32_t rank);
/* Returns a number that changes with each operation that the rank begins, and while it waits. */
DPARI_INTERNAL uint64_t dpari_segment_pulse(const dpari_segment *segment, int32_t rank);
/* Announces that this rank leaves, and frees its view of the world. */
DPARI_INTERNAL void dpari_world_close(dpari_world *world);

/* Copies the bytes at a ref, without a dpari_world. Returns 0 if they cannot be read. */
DPARI_INTERNAL int dpari_segment_copy(const dpari_segment *segment, uint64_t ref, void *to,
                                      int64_t bytes);

/* Appends which ranks cannot be read, if any: "; 2 of 3 other ranks cannot be read: rank 2 (another
 * PID namespace), ...". */
DPARI_INTERNAL void dpari_put_unread(dpar_text *text, dpari_world *world);

/* True if `reader` may read the memory of `rank` (process_vm_readv). Each rank tries all others
 * when it enters. */
DPARI_INTERNAL int dpari_world_reads(const dpari_world *world, int32_t reader, int32_t rank);
/* Copies from a rank's private memory. Returns 0, or -1 and errno. After a failure
 * dpari_world_reads is false for the two ranks, so that reading is not tried again. */
DPARI_INTERNAL int dpari_world_read(dpari_world *world, int32_t rank, void *to, uint64_t from,
                                    int64_t bytes);
/* Does what dpari_put_ending does, but does not wait. */
DPARI_INTERNAL void dpari_put_end(dpar_text *text, const dpari_rank *record);

/* ==== comm/wait.h ==== */

/* Returns the seconds since a rank last reported that it waits, by the clock that all share. */
DPARI_INTERNAL double dpari_beat_age(dpari_world *world, int32_t rank);
/* Wakes all ranks, after an event that concerns all of them. */
DPARI_INTERNAL void dpari_ring_all(const dpari_segment *segment);

/* Takes a rank off the count of sleepers. Several ranks may try this at once, but only one of them
 * succeeds. Returns 1 for that one, otherwise 0. */
DPARI_INTERNAL int dpari_uncount(dpari_world_head *head, dpari_rank *record);

/* ==== comm/heap.h ==== */

/* Returns the offset in the file at which the range for this rank's heap begins. */
DPARI_INTERNAL int64_t dpari_part_begin(const dpari_world *world);
/* What memory of a heap is for. Scratch memory is not zeroed. Only user memory is in core files.
 * The library's own memory does not count against heap_bytes. */
enum { DPARI_HEAP_LIBRARY, DPARI_HEAP_USER, DPARI_HEAP_SCRATCH };
/* Allocates memory in this rank's heap, which all ranks can reach. purpose: DPARI_HEAP_x. Fails
 * with DPAR_E_MEMORY and sets world->lacks and world->number. */
DPARI_INTERNAL dpar_status dpari_heap_alloc(dpari_world *world, int64_t bytes, int purpose,
                                            void **memory);
/* Releases memory. Some user and scratch memory is kept for later allocations, which then take no
 * new memory from the system and cause no page faults. */
DPARI_INTERNAL void dpari_heap_release(dpari_world *world, void *memory);
/* Appends the reason of the last failed allocation, with numbers. If world is NULL or world->lacks
 * is DPARI_LACKS_NOTHING, private memory could not be allocated. */
DPARI_INTERNAL void dpari_put_lack(dpar_text *text, const dpari_world *world);

/* ==== comm/flight.h ==== */

/* Begins a record of an operation. Returns its number for dpari_flight_end. */
DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *world, uint32_t comm, int64_t sequence,
                                          const dpar_call *call);
/* In place of a sequence number: the last operation, and the last one that failed. */
enum { DPARI_FLIGHT_LAST = -1, DPARI_FLIGHT_LAST_FAILED = -2 };
/* Copies the record of an operation to *out. Returns 0 if there is no such record, or no longer. */
DPARI_INTERNAL int dpari_flight_find(const dpari_world *world, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out);
/* Returns a rank's record with this number, which may be written at the same time, and a record of
 * a call that is not in the recorder. */
DPARI_INTERNAL dpari_flight dpari_flight_read(const dpari_rank *record, uint64_t number);
DPARI_INTERNAL dpari_flight dpari_flight_of(const dpar_call *call, int64_t sequence);
/* Sets the state of a record, unless a newer record has replaced it. */
DPARI_INTERNAL void dpari_flight_end(dpari_world *world, int64_t number, int32_t state);
/* Appends "all-reduce #12 (1024 f32, sum)". */
DPARI_INTERNAL void dpari_flight_text(dpar_text *text, const dpari_flight *flight);
/* Appends the last operation of a rank and its state: " (in all-reduce #12 (...))". */
DPARI_INTERNAL void dpari_put_last(dpar_text *text, const dpari_world *world, int32_t rank);

/* ==== comm/group.h ==== */

/* Publishes this rank's vote. If it stays, the other fields of the vote are filled in before. */
DPARI_INTERNAL void dpari_vote_cast(dpari_group *group, uint64_t word);
/* Counts the ranks that have voted or, if `look` is set, ended. */
DPARI_INTERNAL int32_t dpari_vote_known(const dpari_group *group, int look);
/* Returns the list that counts. Proposes the list of this rank if there is none yet. */
DPARI_INTERNAL const uint64_t *dpari_vote_decide(dpari_group *group);
DPARI_INTERNAL int dpari_vote_is_decided(const dpari_group *group);
DPARI_INTERNAL int dpari_vote_stays(const uint64_t *stay, int32_t rank);

/* The memory of a member: the struct, two tables of pieces (one for each parity), and the staging
 * memory, which is two slots. */
DPARI_INTERNAL int64_t dpari_member_bytes(const dpari_world *world);
DPARI_INTERNAL dpari_piece *dpari_table(const dpari_group *group, int32_t rank, int64_t parity);
DPARI_INTERNAL char *dpari_staging(const dpari_group *group, int32_t rank);

/* Breaks the communicator because a rank that the operation needs has ended or left. */
DPARI_INTERNAL dpar_status dpari_fail_peer(dpari_group *group, const dpar_work *work, int32_t rank);
/* Copies the message with which the world's communicator broke to *why, for the process that
 * supervises the ranks. Returns 0 if it is not broken. */
DPARI_INTERNAL int dpari_segment_broke(const dpari_segment *segment, dpar_why *why);

/* ---- messages ---- */

/* Appends "all-reduce #12 (4 f32, sum) of group 3 of 4 ranks: ". */
DPARI_INTERNAL void dpari_put_work(dpar_text *text, const dpari_group *group,
                                   const dpar_work *work);
/* Appends "all-reduce #12 (4 f32, sum)". */
DPARI_INTERNAL void dpari_put_flight_of(dpar_text *text, const dpari_group *group,
                                        const dpari_flight *flight);
/* Appends "rank 2 (6 in the world)" or "rank 6 on n2". */
DPARI_INTERNAL void dpari_put_rank(dpar_text *text, const dpari_group *group, int32_t rank);

/* Returns the number in the communicator of a rank of the world, or -1 if it is not in it. */
DPARI_INTERNAL int32_t dpari_group_rank(const dpari_group *group, int32_t world_rank);

/* ==== comm/shm.h ==== */

/* Joins the world of a segment as rank `me` and makes its communicator. Returns when all ranks have
 * arrived. Fails with DPAR_E_TIMEOUT (the message names the missing ranks) or DPAR_E_PEER (a rank
 * died). own: DPARI_OWNS_x; on failure, the segment is left to the caller. COLLECTIVE. */
DPARI_INTERNAL dpar_status dpari_shm_join(const dpari_segment *segment, int32_t me, int32_t own,
                                          const dpar_world_desc *options, dpar_comm **comm,
                                          dpar_why *why);
/* lent: 1 if dpar_launch closes the world's communicator and the user must not, otherwise 0. */
DPARI_INTERNAL void dpari_shm_lend(dpar_comm *world, int32_t lent);

/* ==== host/kernel.h ==== */

/* Computes to[i] = by x[i], the product in f64, rounded once. A NaN has no sign or payload. `to`
 * may be x. */
DPARI_INTERNAL void dpari_kern_scaled(float *to, const float *x, double by, int64_t n);
/* Adds x, of BF16 or F16, to `to`. A NaN has no sign or payload. */
DPARI_INTERNAL void dpari_kern_add_to(float *to, const void *x, int32_t type, int64_t n);

/* Does what dpari_kern_copy does, for memory that another core has just written: copies line by
 * line and prefetches. */
DPARI_INTERNAL void dpari_kern_fetch(void *to, const void *from, int64_t bytes);
/* Runs two dpari_kern_fetch in turns, line by line. */
DPARI_INTERNAL void dpari_kern_fetch_beside(void *to, const void *from, void *to_2,
                                            const void *from_2, int64_t bytes);

/* ==== host/mem_private.h ==== */

/* Do what the functions of a dpar_mem do. */
DPARI_INTERNAL dpar_status dpari_mem_move(void *ctx, const dpar_mem_box *boxes, int32_t n);
DPARI_INTERNAL dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *reduce);
DPARI_INTERNAL dpar_status dpari_mem_finite(void *ctx, const dpar_mem_finite *f);

/* ==== comm/job.h ==== */

/* Returns one field of /proc/PID/stat. Fields are numbered from 1, as in proc(5), and `field` must
 * be at least 3. Field 3, the state, is returned as its letter. Returns 0 if there is no such
 * file. */
enum { DPARI_PROCESS_STATE = 3, DPARI_PROCESS_THREADS = 20, DPARI_PROCESS_STARTED = 22 };
DPARI_INTERNAL int64_t dpari_job_process(int64_t pid, int32_t field);

/* Returns the descriptor of the segment that dpar_init_or_launch made before it started this rank,
 * or -1 if this process was not started like that. DPAR_SEGMENT is "fd.pid". The pid is compared
 * because a process that a rank starts inherits the rank's environment but has another pid. */
#define DPARI_JOB_SEGMENT "DPAR_SEGMENT"
DPARI_INTERNAL int dpari_job_segment(const dpari_site *site);

/* Reads Slurm's "4(x2),3", which means two nodes with 4 tasks and one with 3. Sets *tasks to
 * the number of tasks on node `node`. If `node` is -1, sets it to the number of tasks on each node,
 * which must be the same on all. Sets *nodes to the
 * number of nodes. Returns 0 if the text has another form, the node is not in it, or `node` is -1
 * and the nodes differ. */
DPARI_INTERNAL int dpari_job_tasks(const char *text, int32_t node, int32_t *tasks, int32_t *nodes);
/* The part of dpar_launcher_detect that only reads the site. job->id is empty if no variable
 * distinguishes jobs. *nodes is the number of nodes of the whole job, 0 if unknown. */
DPARI_INTERNAL dpar_status dpari_job_from(const dpari_site *site, dpar_launcher_info *job,
                                          int32_t *nodes, dpar_why *why);

/* ==== comm/arrival.h ==== */

/* arrival - how the ranks of a large group learn, by levels, that all have arrived. Private.
 *
 * In a step of a collective, every rank publishes a word (collectives.c), and a rank may proceed
 * once all words are published. If each of n ranks looked at all words, each would read n - 1 cache
 * lines of other cores. More than 16 ranks are therefore divided into clusters of at most 8, which
 * share a last-level cache if the ranks are bound to one. The first rank of a cluster leads it:
 *
 *     1. it looks at the words of its cluster, and publishes `up` when all are there;
 *     2. it looks at `up` of the other leaders;
 *     3. it publishes `down`, the only word that the other ranks of its cluster look at.
 *
 * A leader reads 7 + n / 8 - 1 lines, every other rank one. The levels only speed up what a rank
 * can also learn from the words. If a rank has not learned it after a few looks, because its leader
 * is busy or dead, it looks at all words itself. No rank depends on a leader. tests/model/gate.pml
 * models the protocol.
 *
 * In the first step of a collective, small data is included: `up` carries the inputs of the ranks
 * of the cluster if 8 of them fit into its line, and `down` the result of a reduction. */

enum { DPARI_WORD_ENTRY, DPARI_WORD_A, DPARI_WORD_B, DPARI_WORD_C };
/* Returns the word of this kind that a rank publishes for a collective. */
DPARI_INTERNAL const uint64_t *dpari_word_of(const dpari_group *group, const dpar_work *work,
                                             int32_t rank, int32_t which);

/* How far a rank has got in a wait; all zero before its first look. */
typedef struct dpari_watch {
    int32_t cursor; /* number of words that have reached the target in this stage */
    int16_t looks;  /* number of looks by levels that found nothing */
    int16_t stage;  /* one of the following */
} dpari_watch;
enum {
    DPARI_AT_CLUSTER, /* a leader looks at its cluster, another rank at `down` */
    DPARI_AT_LEADERS, /* a leader looks at the other leaders */
    DPARI_AT_ALL,     /* looks at every word, because levels were too slow or there are none */
    DPARI_BY_LEVELS   /* has passed by levels, so that `down` may be read */
};

/* Divides a group into clusters, with the same result on all its ranks. tables: memory of
 * dpari_gate_bytes(size) bytes. */
DPARI_INTERNAL int64_t dpari_gate_bytes(int32_t size);
DPARI_INTERNAL void dpari_gate_cut(dpari_group *group, void *tables);
/* Looks once, by levels, whether all words `which` of a collective have reached the target. Returns
 * 1 if they have, 0 if not yet, and -1 if the caller must look at all words, from cursor 0 on. An
 * entry that has reached the target is equal to it, or belongs to a later collective. */
DPARI_INTERNAL int dpari_gate_look(dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target);
/* Publishes the words of a leader that has passed, by levels or not: `up`, unless it is published
 * already, then `down` with `result` (`bytes` of it). Other ranks do nothing. */
DPARI_INTERNAL void dpari_gate_tell(dpari_group *group, const dpar_work *work,
                                    const dpari_watch *at, int32_t which, uint64_t target,
                                    const void *result, int64_t bytes);

/* Returns the inline data of a rank in a collective, which all have entered with the word `target`.
 * It is in the line of the rank's leader if it fits there, otherwise in the rank's entry. */
DPARI_INTERNAL const void *dpari_gate_given(const dpari_group *group, const dpar_work *work,
                                            int32_t rank, uint64_t target);
/* Returns the result in `down` for a rank that has passed by levels, or NULL if there is none. */
DPARI_INTERNAL const void *dpari_gate_result(const dpari_group *group, const dpari_watch *at);

/* ==== comm/collectives.h ==== */

/* coll - the collectives of a group over shared memory, as steps that never wait. Private. The
 * protocol is described at the top of collectives.c and modelled in tests/model. */

/* Advances `work`, the first collective in the queue, as far as is possible without waiting. Its
 * phase is 0 at the start. Returns DPAR_OK if it is done, DPAR_MORE if it waits for others
 * (group->blocker says for which rank), or a negative status if it failed. */
DPARI_INTERNAL dpar_status dpari_coll_advance(dpari_group *group, dpar_work *work);
/* True if that rank has not yet done what `work` waits for. */
DPARI_INTERNAL int dpari_coll_missing(const dpari_group *group, const dpar_work *work,
                                      int32_t rank);

/* ==== comm/p2p.h ==== */

/* p2p - messages between the ranks of a world over shared memory, as steps that never wait.
 * Private. The protocol is described at the top of p2p.c and modelled in tests/model.
 *
 * Channels belong to a world and carry the messages of all its communicators. A message that is
 * done is removed from its channel and is in `finished` of its group. */

typedef struct dpari_p2p dpari_p2p; /* a rank's private state of all its channels */

/* Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_p2p *dpari_p2p_open(dpari_world *world);
DPARI_INTERNAL void dpari_p2p_close(dpari_p2p *p2p);
/* Starts a message. Returns DPAR_OK if it is done already, or DPAR_MORE if it is in progress; its
 * channel then refers to `work` until the message is done. */
DPARI_INTERNAL dpar_status dpari_p2p_start(dpari_p2p *p2p, dpari_group *group,
                                           const dpar_call *call, dpar_work *work);
/* Advances a message. Returns DPAR_OK if it is done, DPAR_MORE if it waits for the rank
 * group->blocker, or a negative status if it failed. */
DPARI_INTERNAL dpar_status dpari_p2p_advance(dpari_p2p *p2p, dpari_group *group, dpar_work *work);
/* Advances the messages of all channels. */
DPARI_INTERNAL void dpari_p2p_progress(dpari_p2p *p2p);
/* Removes the messages of a group that is broken or closed, because they cannot end any more.
 * Returns how many there were. */
DPARI_INTERNAL int32_t dpari_p2p_forget(dpari_p2p *p2p, dpari_group *group);

/* ==== comm/rendezvous.h ==== */

/* rendezvous - private: lets the ranks of a job that a launcher started find each other and share
 * one segment.
 *
 *     1. Rank 0 makes the segment and listens on a local socket, whose name it makes of user and
 *        job.
 *     2. Each other rank connects and sends HELLO with its rank. Rank 0 answers WELCOME, with the
 *        descriptor of the segment.
 *     3. The rank maps the segment and sends MAPPED.
 *     4. Once all ranks have done so, rank 0 sends GO to all, or REFUSED with a message if the job
 *        cannot start.
 *
 * On Linux the name is abstract: it disappears with its process in any case, and is visible within
 * one network namespace. If ranks do not meet there within a second, they also try a file in /tmp,
 * which network namespaces may share. On other systems that file is the only name. It is unlinked
 * once all ranks have arrived. If rank 0 is killed before that, the next job of this user that
 * starts at least a minute later removes the file. Both sides ask the system for the user of the
 * other. A connection that does not speak this protocol is dropped, and tried again until the
 * deadline. */

enum { DPARI_HELLO = 1, DPARI_WELCOME, DPARI_MAPPED, DPARI_GO, DPARI_REFUSED };

/* The only message of the protocol, with the same bytes in each direction. */
typedef struct dpari_hello {
    uint64_t magic;
    uint64_t job;    /* hash of launcher and id */
    uint64_t nonce;  /* chosen by the rank that connects; answers repeat it */
    uint32_t layout; /* hash of the version and of the layout of the segment */
    int32_t kind;    /* DPARI_HELLO ... */
    int32_t rank, size;
    int32_t status;            /* in MAPPED and REFUSED: the error, */
    char text[DPARI_WHY_TEXT]; /* and its message */
    char padding[4];
} dpari_hello;

/* Writes name number k of a job's socket, and returns its length in bytes. There are DPARI_NAMES
 * names, because another user may have taken one. named: 1 for the file in /tmp, 0 for the abstract
 * name. */
enum { DPARI_NAMES = 4 };
DPARI_INTERNAL socklen_t dpari_meet_name(const dpar_launcher_info *job, int32_t k, int32_t named,
                                         struct sockaddr_un *name);
/* Returns the segment once all ranks have mapped it. Fails with DPAR_E_TIMEOUT if ranks do not
 * arrive, DPAR_E_MISMATCH if a rank has another version of dpar or another size, and DPAR_E_PEER if
 * a rank ends meanwhile. The message names these ranks. COLLECTIVE over the job. */
DPARI_INTERNAL dpar_status dpari_meet_ranks(const dpar_launcher_info *job, const dpar_world_desc *o,
                                            dpari_segment *segment, dpar_why *why);

/* ==== exchange/peer_wait.h ==== */

/* peer_wait - waits for a word of a peer that shares memory, until it changes, the peer fails or
 * the deadline passes, and finds the rank that is at fault. Private. */

typedef struct dpari_peer_wait {
    dpar_comm *comm;       /* the communicator of the exchange, whose deadline counts */
    dpari_group *group;    /* the ranks of this node, including the peer */
    int32_t peer;          /* number in the world */
    int32_t shift;         /* see ready */
    const uint64_t *ready; /* *ready >> shift is the number of exchanges that the peer has begun */
    int64_t count;         /* the number of exchanges that this rank has begun */
    void (*progress)(void *exchange); /* advances messages and other work in progress */
    void *exchange;
    /* The late rank: the peer, or the rank that the peer itself waits for, and so on. All zero at
     * the beginning. */
    int32_t who;    /* number in the world */
    int32_t links;  /* 0 if it is the peer, 1 if it is the rank that the peer waits for, ... */
    double since;   /* s, when this rank became the suspect; 0 if there is no suspect yet */
    int64_t in;     /* sequence number of the collective in which the peer waits */
    double crossed; /* s, since when it waits there; 0 if it does not */
    double waited;  /* seconds that the wait took, set if it failed */
} dpari_peer_wait;

/* Checks whether a wait for the peer can still succeed. Returns DPAR_OK if it can, DPAR_E_PEER if
 * the peer has ended or closes the communicator, or the status of a broken communicator. */
DPARI_INTERNAL dpar_status dpari_peer_look(const dpar_comm *comm, dpari_group *group, int32_t peer);
/* Waits until *word >= value. Fails with DPAR_E_PEER if the peer has ended, DPAR_E_MISMATCH if it
 * has not begun this exchange and waits in a collective that this rank has not called, and
 * DPAR_E_TIMEOUT after the deadline; p->who is then the late rank. */
DPARI_INTERNAL dpar_status dpari_peer_await(dpari_peer_wait *p, const uint64_t *word,
                                            uint64_t value);

/* ==== exchange/move_items.h ==== */

/* move_items - the boxes of a move, one item for each transfer: checks them, copies parts of them
 * to messages and back, and combines parts. Private. */

enum {
    DPARI_MOVE_BOXES = 64,      /* boxes that a device moves in one call */
    DPARI_MOVE_BOXES_HERE = 8,  /* boxes that the host moves in one call, which prepares equal ones
                                   once */
    DPARI_MOVE_STAGE = 1 << 16, /* bytes of one part in `stage` */
    DPARI_MOVE_ZERO = 64        /* bytes of memory for dpari_array_zero */
};

/* The boxes that are copied next, in the memory of the communicator. A copy is done at the latest
 * in dpari_boxes_flush. */
typedef struct dpari_move_boxes {
    dpar_comm *comm;
    int32_t type, bytes;  /* of the elements */
    int32_t count, most;  /* number of boxes in `box`, and the most that it holds */
    dpar_mem_box *box;    /* [most] */
    unsigned char *stage; /* for a device: memory in which parts are reduced together */
} dpari_move_boxes;

/* A local array. One of the two pointers is set, depending on whether it is read or written. */
typedef struct dpari_move_array {
    int32_t dims;
    int64_t step[DPAR_MAX_DIMS]; /* distance of two neighbours along each dim, in elements */
    const unsigned char *from;
    unsigned char *to;
} dpari_move_array;

/* A box of a list, and its place in the stream with its peer. */
typedef struct dpari_move_item {
    int64_t extent[DPAR_MAX_DIMS], volume;
    int64_t at;   /* offset in the array, in elements, of the first element of its message */
    int64_t done; /* for receives: number of elements that have been stored or combined */
    int64_t next; /* next item of the same stream; -1 for the last one */
    int32_t stream, op;
    int32_t continues; /* 1 if it is another part of the same box as the item before it */
    uint32_t flip;     /* bit d is set if dim d of the message runs backwards in the array */
    int32_t swap[2];   /* two dims of the message that are exchanged in the array; equal if none
                          are */
} dpari_move_item;

/* Checks the shape of an array of elements of `bytes` bytes, and computes its steps and its number
 * of elements. */
DPARI_INTERNAL dpar_status dpari_array_init(dpari_move_array *array, int32_t dims,
                                            const int64_t *shape, int32_t bytes, int64_t *elements,
                                            dpar_why *why);
/* Checks a transfer of elements of `type`: that its box is inside the array, and its op. arrives: 1
 * for a receive, 0 for a send. */
DPARI_INTERNAL dpar_status dpari_transfer_check(const dpar_transfer *t, int32_t dims,
                                                const int64_t *shape, int32_t type, int arrives,
                                                dpar_why *why);
/* True if b is another part of the same box as a, the transfer directly before it. */
DPARI_INTERNAL int dpari_transfer_continues(const dpar_transfer *a, const dpar_transfer *b);
/* Makes the item of a transfer from or to the array. */
DPARI_INTERNAL void dpari_item_init(dpari_move_item *it, const dpar_transfer *t,
                                    const dpari_move_array *array);
/* Returns the number of elements of a box that are contiguous in the array. Contiguous runs begin
 * at multiples of it. */
DPARI_INTERNAL int64_t dpari_item_run(const dpari_move_array *array, const dpari_move_item *it);
/* Returns the position of element i in the array. */
DPARI_INTERNAL int64_t dpari_item_at(const dpari_move_array *array, const dpari_move_item *it,
                                     int64_t i);

/* Copies the boxes that are waiting. A failure on a device breaks the communicator. */
DPARI_INTERNAL void dpari_boxes_flush(dpari_move_boxes *boxes);
/* Copy elements [begin, end) of a box from the array to a message, and back. */
DPARI_INTERNAL void dpari_item_pack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                    const dpari_move_item *it, int64_t begin, int64_t end,
                                    unsigned char *message);
DPARI_INTERNAL void dpari_item_unpack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                      const dpari_move_item *it, int64_t begin, int64_t end,
                                      const unsigned char *message);
/* Combines parts: elements x of [begin, end) become x op part[1] op ... op part[parts - 1], where
 * each part begins at element `begin`. part[0] and part[parts ..] are scratch of this function. */
DPARI_INTERNAL void dpari_item_combine(dpari_move_boxes *boxes, const dpari_move_array *array,
                                       const dpari_move_item *it, int64_t begin, int64_t end,
                                       const void **part, int32_t parts, int32_t op);
/* Copies a box of one array to the corresponding box of another array. */
DPARI_INTERNAL void dpari_item_copy(dpari_move_boxes *boxes, const dpari_move_array *to,
                                    const dpari_move_item *there, const dpari_move_array *from,
                                    const dpari_move_item *here);
/* Sets the first elements along each dim of an array to zero. zero: DPARI_MOVE_ZERO bytes of the
 * communicator's memory, aligned to 64. */
DPARI_INTERNAL void dpari_array_zero(dpari_move_boxes *boxes, const dpari_move_array *array,
                                     const int64_t *extent, unsigned char *zero);

/* ==== exchange/move_streams.h ==== */

/* move_streams - the data of a move: its transfers as items, grouped by peer into streams, and the
 * memory for them. Private. */

/* All data from one rank to another, cut into messages. The present message is the one that was cut
 * last. */
typedef struct dpari_move_stream {
    int32_t peer, ops;           /* ops: 1 if a box is combined, so that the receiver decides when
                                    messages are sent */
    int32_t loaded, fresh;       /* for receives: 1 if the present message has parts that are not
                                    combined yet; 1 if it is received in this round */
    int64_t first, last;         /* first and last item; -1 if there is none */
    int64_t elements, messages;  /* of the whole stream */
    int64_t item, offset;        /* where the next message begins: its item, and the element in
                                    it */
    int64_t message;             /* number of the next message */
    int64_t m_item, m_offset;    /* where the present message begins */
    int64_t m_count;             /* its number of elements */
    const unsigned char *memory; /* its address; NULL if it was received directly into the array */
    int64_t take, take_offset;   /* item and element of its next part to combine */
    int64_t take_at;             /* number of elements of the message before that part */
    int64_t stamp;               /* dpari_move.stamp of the last group that has an item of this
                                    stream */
    unsigned char *slot;         /* memory for one message */
    int32_t *round;              /* [messages] round in which each message is sent; NULL if message
                                    k is sent in round k */
    dpar_work work;
} dpari_move_stream;

/* The sends or the receives of a move. */
typedef struct dpari_move_side {
    dpari_move_array array;
    dpari_move_item *item;
    int64_t items;
    dpari_move_stream *stream;
    int32_t streams;
    int32_t *of_peer; /* [ranks] 1 + the stream of each peer; 0 if there is none */
} dpari_move_side;

/* The transfers of a move: two lists, or the walks over a redistribution. */
typedef struct dpari_move_source {
    const dpar_transfer *list[2]; /* DPAR_TRANSFER_RECV, DPAR_TRANSFER_SEND */
    int64_t count[2], at;         /* at: number of transfers that have been walked */
    const dpar_layout *from, *to; /* NULL if there are two lists */
    int32_t rank, per_node, direction;
    dpar_redistribute_cursor walk;
    dpar_transfer transfer[2]; /* the current one and the one before it */
    int32_t continues;         /* 1 if it is another part of the same box as that one */
} dpari_move_source;

/* Totals of the transfers of one direction. */
typedef struct dpari_move_totals {
    int64_t items, elements;
    int64_t own;     /* elements of them from this rank to itself */
    int32_t own_ops; /* 1 if a transfer from this rank to itself is combined */
    int32_t ops;     /* 1 if a transfer is combined */
    int32_t apart; /* 1 if such a transfer does not directly follow another part of the same box */
} dpari_move_totals;

typedef struct dpari_move {
    dpar_comm *comm;
    const dpar_redistribute_desc *desc; /* the caller's, or `none` if that is NULL, which fails in
                                           the agreement, so that all ranks learn of it */
    dpar_redistribute_desc none;
    dpari_move_source source;
    dpari_move_totals sum[2]; /* DPAR_TRANSFER_RECV, DPAR_TRANSFER_SEND */
    dpari_move_boxes boxes;
    int64_t piece, alone;    /* the most elements of a message; boxes with `alone` or more elements
                                share no message */
    dpari_move_side out, in; /* sends, receives */
    int64_t head;            /* the first receive that is not complete */
    int64_t stamp;
    const void **part; /* [2 (receiving streams + 1)] addresses of parts that are reduced together,
                          and the same again as scratch */
    int64_t *word;     /* [4 * ranks] numbers by which lists are compared: own ones, received
                          ones */
    /* Scratch in the host's memory and, if the arrays are on a device, in the device's memory. */
    void *scratch, *there;
    int64_t bytes;             /* bytes of each that are needed; also set if the caller's scratch is
                                  too small */
    unsigned char *next;       /* the unused rest of scratch */
    unsigned char *next_there; /* for a device: the unused rest of its scratch, which holds
                                  messages */
    unsigned char *zero;       /* memory for dpari_array_zero */
} dpari_move;

/* Begins a move: checks the fields of desc that lists and layouts have in common. desc: may be
 * NULL. */
DPARI_INTERNAL dpar_status dpari_move_init(dpari_move *move, dpar_comm *comm,
                                           const dpar_redistribute_desc *desc, dpar_why *why);
/* Adds the arguments that must be equal on all ranks, for lists and for layouts. given: the
 * move. */
DPARI_INTERNAL void dpari_move_state(dpari_facts *facts, const void *given);
/* Walks the transfers of move->source in both directions and adds up what they move. */
DPARI_INTERNAL dpar_status dpari_move_count(dpari_move *move, dpar_why *why);
/* Returns the most bytes of scratch that move->sum needs, or -1 if that is more than 2^62. */
DPARI_INTERNAL int64_t dpari_move_bytes(const dpari_move *move);
/* Provides that many bytes of scratch: the caller's, or memory of the communicator. */
DPARI_INTERNAL dpar_status dpari_move_scratch(dpari_move *move, int64_t bytes, dpar_why *why);
/* Makes the streams in scratch. */
DPARI_INTERNAL void dpari_move_build(dpari_move *move);
/* Releases scratch at the end of a move that ended with `status`. Returns it. */
DPARI_INTERNAL dpar_status dpari_move_end(const dpari_move *move, dpar_status status,
                                          dpar_why *why);
/* Copies the message of a failed call on the communicator. Returns status. */
DPARI_INTERNAL dpar_status dpari_move_failed(const dpari_move *move, dpar_status status,
                                             dpar_why *why);
/* True if `in` and `out`, of these sizes, overlap. */
DPARI_INTERNAL int dpari_move_overlaps(const dpari_move *move, int64_t in_bytes, int64_t out_bytes);

/* Cuts the next message of a stream: a piece of a large box, or several small boxes. Both ends cut
 * equally, because only the extents decide. */
DPARI_INTERNAL void dpari_stream_cut(const dpari_move *move, const dpari_move_side *side,
                                     dpari_move_stream *stream);
/* Begins with the first message again. */
DPARI_INTERNAL void dpari_stream_rewind(dpari_move_stream *stream);

/* ==== exchange/move_order.h ==== */

/* move_order - stores what a move receives, and combines it in the order of the list. Private. */

/* Returns the end of the group of items that begins at item `begin`: parts of one box, each from a
 * different rank, which are reduced together. */
DPARI_INTERNAL int64_t dpari_group_end(dpari_move *move, int64_t begin);
/* Combines the parts that have arrived, in the order of the list, as far as possible. With `dry` it
 * only counts them. */
DPARI_INTERNAL void dpari_move_combine(dpari_move *move, int dry);
/* Handles the present message of a stream when it has arrived: stores its copies in the array,
 * unless they were received there, and notes the first part to combine. With `dry` it stores
 * nothing. */
DPARI_INTERNAL void dpari_stream_arrive(dpari_move *move, dpari_move_stream *stream, int dry);
/* Copies the boxes that this rank sends to itself, unless some of them are combined. */
DPARI_INTERNAL void dpari_move_self(dpari_move *move, int dry);
/* Finds out in which round each message is received, by receiving without data. */
DPARI_INTERNAL void dpari_move_plan(dpari_move *move);
/* True if the next message of a stream is received in this round. A message with parts to combine
 * is received once all parts of the message before it have been combined; the receiver tells the
 * sender in which round that is. */
DPARI_FN int dpari_receives_now(const dpari_move_stream *stream)
{
    return stream->message < stream->messages && !stream->loaded;
}

/* ==== exchange/move_rounds.h ==== */

/* move_rounds - sends and receives the messages of a move. Private. */

/* Plans and runs the rounds of a move whose streams have been built. */
DPARI_INTERNAL dpar_status dpari_move_go(dpari_move *move, dpar_why *why);

#ifndef DPARI_STRIDED_LOOPS_H
#define DPARI_STRIDED_LOOPS_H

/* ==== host/strided_loops.h ==== */

/* strided_loops - private: copies or adds one run of a box. These functions are inlined with
 * constant arguments into the loops of strided.c and of halo_box_groups. */

/* The loops, named for the bytes that are moved at a time. A run between two powers of 2 is moved
 * as two overlapping pieces at its ends (TWO), and one of 33 to 64 bytes as two from each end
 * (FOUR). */
enum {
    DPARI_STRIDE_NONE,
    DPARI_STRIDE_1,
    DPARI_STRIDE_2,
    DPARI_STRIDE_TWO_2,
    DPARI_STRIDE_4,
    DPARI_STRIDE_TWO_4,
    DPARI_STRIDE_8,
    DPARI_STRIDE_TWO_8,
    DPARI_STRIDE_16,
    DPARI_STRIDE_TWO_16,
    DPARI_STRIDE_FOUR_16,
    DPARI_STRIDE_LONG,
    DPARI_STRIDE_MIDDLE,  /* long, but too short for memcpy; vectors of 32 bytes */
    DPARI_STRIDE_SUM_F32, /* single elements; the next ones are for runs of 2, 3, 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F32_2,
    DPARI_STRIDE_SUM_F32_3,
    DPARI_STRIDE_SUM_F32_4,
    DPARI_STRIDE_SUM_F32_7,
    DPARI_STRIDE_SUM_F64, /* single elements; the next ones are for runs of 2, 3 to 4, and 5 to 7 */
    DPARI_STRIDE_SUM_F64_2,
    DPARI_STRIDE_SUM_F64_4,
    DPARI_STRIDE_SUM_F64_7,
    DPARI_STRIDE_DENSE, /* combined in place, row by row */
    DPARI_STRIDE_BUFFER /* all other cases, through a small dense buffer */
};

#define DPARI_STRIDE_TURN 32    /* runs of one piece before those of the other one (measured) */
#define DPARI_STRIDE_AHEAD 1024 /* bytes by which short runs are prefetched ahead (measured) */
#define DPARI_STRIDE_LINE 64
#define DPARI_STRIDE_PACK 2048 /* bytes packed at a time (measured, EPYC) */

/* Sums are not computed with x87, which rounds when it stores and not when it adds. */
#if defined(__i386__) && !defined(__SSE2_MATH__)
#define DPARI_STRIDE_ADDS 0
#else
#define DPARI_STRIDE_ADDS 1
#endif

#if defined(__GNUC__)
#define dpari_stride_copy(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#define DPARI_STRIDE_INLINE static DPARI_INLINED __attribute__((always_inline))
#define DPARI_STRIDE_ALIGNED __attribute__((aligned(64)))
#else
#define dpari_stride_copy(to, from, bytes) dpari_kern_copy(to, from, (int64_t)(bytes), 0)
#define DPARI_STRIDE_INLINE static DPARI_INLINED
#define DPARI_STRIDE_ALIGNED
#endif

#if defined(__GNUC__) && DPARI_STRIDE_ADDS && !defined(DPARI_NO_VECTOR)
#define DPARI_STRIDE_VECTOR 1
#else
#define DPARI_STRIDE_VECTOR 0
#endif

/* Vectors of 32 bytes are used if the CPU has them, because a store of 32 bytes takes as long as
 * one of 16. */
#if DPARI_STRIDE_VECTOR && defined(__x86_64__)
#define DPARI_STRIDE_WIDE 1
#define DPARI_STRIDE_IN_WIDE __attribute__((target("avx2")))
#else
#define DPARI_STRIDE_WIDE 0
#endif

DPARI_STRIDE_INLINE unsigned char *dpari_stride_writable(const unsigned char *at)
{
    return (unsigned char *)(uintptr_t)at;
}

/* ---- prefetching ---- */

/* Prefetches the line at t, which will be written. */
DPARI_STRIDE_INLINE void dpari_stride_ask_line(const unsigned char *t)
{
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*t)); /* the builtin would prefetch the line for reading */
#elif defined(__GNUC__)
    __builtin_prefetch(t, 1);
#else
    (void)t;
#endif
}

DPARI_STRIDE_INLINE void dpari_stride_ask_lines(const unsigned char *at, int64_t bytes)
{
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += DPARI_STRIDE_LINE) {
        dpari_stride_ask_line(at);
    }
}

/* Prefetches the lines that are written next. Stores wait for their lines one after the other,
 * whereas prefetches run in parallel. */
DPARI_STRIDE_INLINE void dpari_stride_ask(const dpari_stride *stride, unsigned char *to,
                                          int64_t rows, int64_t n)
{
    const int64_t step = stride->dim[0].to;
    int64_t row, i;
    for (row = 0; row < rows; row++, to += stride->dim[1].to) {
        const unsigned char *t = to;
        for (i = n; i > 0; i--, t += step) {
            dpari_stride_ask_line(t);
        }
    }
}

/* ---- one run: inlined with a constant loop ---- */

/* True if the loop computes sums. */
DPARI_STRIDE_INLINE int dpari_stride_sums(int32_t loop)
{
    return loop >= DPARI_STRIDE_SUM_F32 && loop <= DPARI_STRIDE_SUM_F64_7;
}

/* True if the loop can set to 0 what it has moved. */
DPARI_STRIDE_INLINE int dpari_stride_zeroes(int32_t loop)
{
    return loop < DPARI_STRIDE_LONG || dpari_stride_sums(loop);
}

/* Returns the bytes of a piece; the next function returns the number of pieces of a run. */
DPARI_STRIDE_INLINE int32_t dpari_stride_width(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_1: return 1;
    case DPARI_STRIDE_2:
    case DPARI_STRIDE_TWO_2: return 2;
    case DPARI_STRIDE_4:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_SUM_F32: return 4;
    case DPARI_STRIDE_8:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_SUM_F32_2:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F64: return 8;
    default: return 16;
    }
}

DPARI_STRIDE_INLINE int32_t dpari_stride_pieces(int32_t loop)
{
    switch (loop) {
    case DPARI_STRIDE_TWO_2:
    case DPARI_STRIDE_TWO_4:
    case DPARI_STRIDE_TWO_8:
    case DPARI_STRIDE_TWO_16:
    case DPARI_STRIDE_SUM_F32_3:
    case DPARI_STRIDE_SUM_F32_7:
    case DPARI_STRIDE_SUM_F64_4: return 2;
    case DPARI_STRIDE_FOUR_16:
    case DPARI_STRIDE_SUM_F64_7: return 4;
    default: return 1;
    }
}

/* Reads the whole run before it writes. last: offset of the last piece of the run, in bytes. */
DPARI_STRIDE_INLINE void dpari_stride_copy_run(unsigned char *t, const unsigned char *f,
                                               int64_t last, int32_t width, int32_t pieces)
{
    unsigned char a[16], b[16], c[16], d[16];
    dpari_stride_copy(a, f, width);
    if (pieces > 1) {
        dpari_stride_copy(b, f + last, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(c, f + width, width);
        dpari_stride_copy(d, f + last - width, width);
    }
    dpari_stride_copy(t, a, width);
    if (pieces > 1) {
        dpari_stride_copy(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(t + width, c, width);
        dpari_stride_copy(t + last - width, d, width);
    }
}

DPARI_STRIDE_INLINE void dpari_stride_zero_run(unsigned char *z, int64_t last, int32_t width,
                                               int32_t pieces)
{
    const unsigned char zero[16] = {0};
    dpari_stride_copy(z, zero, width);
    if (pieces > 1) {
        dpari_stride_copy(z + last, zero, width);
    }
    if (pieces > 2) {
        dpari_stride_copy(z + width, zero, width);
        dpari_stride_copy(z + last - width, zero, width);
    }
}

/* Adds f to t. Each NaN becomes the same one, as in dpari_kern_reduce. */
DPARI_STRIDE_INLINE void dpari_stride_sum_f32(unsigned char *t, const unsigned char *f)
{
    const uint32_t quiet = 0x7fc00000u;
    float x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

DPARI_STRIDE_INLINE void dpari_stride_sum_f64(unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    double x, y;
    dpari_stride_copy(&x, t, sizeof x);
    dpari_stride_copy(&y, f, sizeof y);
    x += y;
    if (x != x) {
        dpari_stride_copy(&x, &quiet, sizeof x);
    }
    dpari_stride_copy(t, &x, sizeof x);
}

#if DPARI_STRIDE_VECTOR
typedef double dpari_stride_d2 __attribute__((vector_size(16)));
typedef float dpari_stride_f4 __attribute__((vector_size(16)));
typedef uint64_t dpari_stride_u2 __attribute__((vector_size(16)));

/* Load and store the first `bytes` bytes, 8 or 16, of a vector. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_get(const unsigned char *from, int32_t bytes)
{
    dpari_stride_u2 v = {0, 0};
    if (bytes == 8) {
        uint64_t x;
        dpari_stride_copy(&x, from, 8);
        v[0] = x;
    } else {
        dpari_stride_copy(&v, from, 16);
    }
    return v;
}

DPARI_STRIDE_INLINE void dpari_stride_put(unsigned char *to, dpari_stride_u2 v, int32_t bytes)
{
    dpari_stride_copy(to, &v, bytes);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_plus(dpari_stride_u2 x, dpari_stride_u2 y,
                                                      int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x + (dpari_stride_d2)y)
               : (dpari_stride_u2)((dpari_stride_f4)x + (dpari_stride_f4)y);
}

DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_nan(dpari_stride_u2 x, int32_t f64)
{
    return f64 ? (dpari_stride_u2)((dpari_stride_d2)x != (dpari_stride_d2)x)
               : (dpari_stride_u2)((dpari_stride_f4)x != (dpari_stride_f4)x);
}

/* True if a mask has any bit set. Marked as unlikely, so the code after it may be slow. */
DPARI_STRIDE_INLINE int dpari_stride_any(dpari_stride_u2 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_stride_f4)mask) != 0, 0) != 0;
#else
    return __builtin_expect((mask[0] | mask[1]) != 0, 0) != 0;
#endif
}

/* Returns the sum of the elements at t and f. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_met(const unsigned char *t, const unsigned char *f,
                                                     int32_t bytes, int32_t f64)
{
    return dpari_stride_plus(dpari_stride_get(t, bytes), dpari_stride_get(f, bytes), f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_INLINE dpari_stride_u2 dpari_stride_quiet(dpari_stride_u2 x, int32_t f64)
{
    const uint64_t quiet = f64 ? UINT64_C(0x7ff8) << 48 : UINT64_C(0x7fc000007fc00000);
    const dpari_stride_u2 both = {quiet, quiet}, bad = dpari_stride_nan(x, f64);
    return (x & ~bad) | (both & bad);
}

/* Adds a run, as dpari_stride_copy_run copies one. The sum of all elements is NaN if one of them
 * is.
 */
DPARI_STRIDE_INLINE void dpari_stride_sum_run(unsigned char *t, const unsigned char *f,
                                              int64_t last, int32_t width, int32_t pieces,
                                              int32_t f64)
{
    dpari_stride_u2 a = dpari_stride_met(t, f, width, f64), b = a, c = a, d = a, all = a;
    if (pieces > 1) {
        b = dpari_stride_met(t + last, f + last, width, f64);
        all = dpari_stride_plus(a, b, f64);
    }
    if (pieces > 2) {
        c = dpari_stride_met(t + width, f + width, width, f64);
        d = dpari_stride_met(t + last - width, f + last - width, width, f64);
        all = dpari_stride_plus(all, dpari_stride_plus(c, d, f64), f64);
    }
    if (dpari_stride_any(dpari_stride_nan(all, f64))) {
        a = dpari_stride_quiet(a, f64);
        b = dpari_stride_quiet(b, f64);
        c = dpari_stride_quiet(c, f64);
        d = dpari_stride_quiet(d, f64);
    }
    dpari_stride_put(t, a, width);
    if (pieces > 1) {
        dpari_stride_put(t + last, b, width);
    }
    if (pieces > 2) {
        dpari_stride_put(t + width, c, width);
        dpari_stride_put(t + last - width, d, width);
    }
}
#endif

/* Copies the run at f to t, or adds it there. If `zero` is set, the run at z becomes 0. */
DPARI_STRIDE_INLINE void dpari_stride_one(unsigned char *t, const unsigned char *f,
                                          unsigned char *z, int64_t last, int32_t loop, int zero)
{
    const int32_t width = dpari_stride_width(loop), pieces = dpari_stride_pieces(loop);
    if (loop == DPARI_STRIDE_SUM_F32) {
        dpari_stride_sum_f32(t, f);
    } else if (loop == DPARI_STRIDE_SUM_F64) {
        dpari_stride_sum_f64(t, f);
    } else if (!dpari_stride_sums(loop)) {
        dpari_stride_copy_run(t, f, last, width, pieces);
    } else {
#if DPARI_STRIDE_VECTOR
        dpari_stride_sum_run(t, f, last, width, pieces, loop > DPARI_STRIDE_SUM_F64);
#endif
    }
    if (zero) {
        dpari_stride_zero_run(z, last, width, pieces);
    }
}

#if DPARI_STRIDE_WIDE
typedef uint64_t dpari_stride_u4 __attribute__((vector_size(32)));

typedef double dpari_stride_d4 __attribute__((vector_size(32)));
typedef float dpari_stride_f8 __attribute__((vector_size(32)));

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_plus_wide(const dpari_stride_u4 *x, const dpari_stride_u4 *y, int32_t f64)
{
    return f64 ? (dpari_stride_u4)((dpari_stride_d4)*x + (dpari_stride_d4)*y)
               : (dpari_stride_u4)((dpari_stride_f8)*x + (dpari_stride_f8)*y);
}

/* Returns the sum of the vectors at t and f. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_met_wide(const unsigned char *t, const unsigned char *f, int32_t f64)
{
    dpari_stride_u4 x, y;
    dpari_stride_copy(&x, t, 32);
    dpari_stride_copy(&y, f, 32);
    return dpari_stride_plus_wide(&x, &y, f64);
}

/* Replaces each NaN by the same one. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE dpari_stride_u4
dpari_stride_quiet_wide(const unsigned char *t, const unsigned char *f)
{
    const uint64_t quiet = UINT64_C(0x7ff8) << 48;
    const dpari_stride_u4 all = {quiet, quiet, quiet, quiet};
    const dpari_stride_u4 sum = dpari_stride_met_wide(t, f, 1);
    const dpari_stride_u4 bad = (dpari_stride_u4)((dpari_stride_d4)sum != (dpari_stride_d4)sum);
    return (sum & ~bad) | (all & bad);
}

#endif

/* Sets in `rows` the steps of the two innermost dims, and the memory that is set to 0. */
DPARI_STRIDE_INLINE void dpari_stride_steps(const dpari_stride *stride, dpari_stride_rows *rows)
{
    rows->to_step = stride->dim[0].to;
    rows->from_step = stride->dim[0].from;
    rows->to_row = stride->dim[1].to;
    rows->from_row = stride->dim[1].from;
    rows->run = stride->run;
    rows->zeroes = stride->beside != 0 || (stride->clear && dpari_stride_zeroes(stride->loop));
    if (stride->beside != 0) {
        rows->zero = rows->to + stride->beside;
        rows->zero_step = rows->to_step;
        rows->zero_row = rows->to_row;
    } else {
        rows->zero = dpari_stride_writable(rows->from);
        rows->zero_step = rows->from_step;
        rows->zero_row = rows->from_row;
    }
}

DPARI_STRIDE_INLINE int64_t dpari_stride_size(int64_t step)
{
    return step < 0 ? -step : step;
}

/* Lists of all loops of short copies and of sums. */
#define DPARI_STRIDE_COPIES(X)                                                                     \
    X(DPARI_STRIDE_1)                                                                              \
    X(DPARI_STRIDE_2)                                                                              \
    X(DPARI_STRIDE_TWO_2)                                                                          \
    X(DPARI_STRIDE_4)                                                                              \
    X(DPARI_STRIDE_TWO_4)                                                                          \
    X(DPARI_STRIDE_8)                                                                              \
    X(DPARI_STRIDE_TWO_8)                                                                          \
    X(DPARI_STRIDE_16)                                                                             \
    X(DPARI_STRIDE_TWO_16)                                                                         \
    X(DPARI_STRIDE_FOUR_16)
#if DPARI_STRIDE_VECTOR
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F32_2)                                                                      \
    X(DPARI_STRIDE_SUM_F32_3)                                                                      \
    X(DPARI_STRIDE_SUM_F32_4)                                                                      \
    X(DPARI_STRIDE_SUM_F64)                                                                        \
    X(DPARI_STRIDE_SUM_F64_2)                                                                      \
    X(DPARI_STRIDE_SUM_F64_4)
#define DPARI_STRIDE_OTHER_SUMS(X)                                                                 \
    X(DPARI_STRIDE_SUM_F32_7)                                                                      \
    X(DPARI_STRIDE_SUM_F64_7)
#elif DPARI_STRIDE_ADDS
#define DPARI_STRIDE_SUMS(X)                                                                       \
    X(DPARI_STRIDE_SUM_F32)                                                                        \
    X(DPARI_STRIDE_SUM_F64)
#define DPARI_STRIDE_OTHER_SUMS(X)
#else
#define DPARI_STRIDE_SUMS(X)
#define DPARI_STRIDE_OTHER_SUMS(X)
#endif

#endif /* DPARI_STRIDED_LOOPS_H */

/* ==== comm/os.c ==== */

/* Wraps what dpar needs of POSIX and Linux: clocks, futexes, mappings, files, processes, CPUs,
 * reading another process's memory, sockets, and threads.
 *
 * The functions allocate nothing and keep no state, so that every other file of the engine and the
 * other engines may call them at any time. Each one handles a missing feature itself, in one of two
 * ways. Either it uses a substitute (a file in /dev/shm instead of a memfd, short sleeps instead of
 * a futex), or its result says that the feature is missing (dpari_os_read_peer fails with ENOSYS,
 * dpari_os_cpu returns -1), and the caller uses a slower method. Numbers are read from /proc and
 * /sys because these need no library. If a file cannot be read, the number is unknown, which is
 * never an error. System calls that glibc shows only with _GNU_SOURCE are made through syscall, so
 * that a program may include dpar without defining it. */

/* ---- time and waiting ------------------------------------------------------------------------ */

DPARI_API DPARI_NOINLINE double dpari_os_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

DPARI_API double dpari_os_suspended(double *looked, double now)
{
    const double most = 0.25; /* s, how long a busy machine may delay a look at the clock */
    const double gap = *looked > 0.0 ? now - *looked : 0.0;
    *looked = now;
    return gap > most ? gap - most : 0.0;
}

DPARI_API double dpari_os_waited(dpari_stopwatch *watch)
{
    const double now = dpari_os_now();
    if (!(watch->looked > 0.0)) {
        watch->began = now;
        watch->looked = now;
    }
    watch->began += dpari_os_suspended(&watch->looked, now);
    return now - watch->began;
}

DPARI_INTERNAL void dpari_os_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ volatile("yield");
#endif
}

/* Converts a duration for system calls, limited to 0 .. 1e6 seconds so that it fits a time_t of 32
 * bits. */
static struct timespec dpari_os_span(double seconds)
{
    const double limited = dpari_leastf(dpari_mostf(seconds, 0.0), 1e6);
    struct timespec span;
    span.tv_sec = (time_t)limited;
    span.tv_nsec = (long)((limited - (double)span.tv_sec) * 1e9);
    return span;
}

DPARI_API void dpari_os_sleep(double seconds)
{
    struct timespec span = dpari_os_span(seconds);
    nanosleep(&span, NULL);
}

/* The numbers of linux/futex.h, because not every system that has the call has the header. */
enum { DPARI_OS_FUTEX_WAIT = 0, DPARI_OS_FUTEX_WAKE = 1, DPARI_OS_FUTEX_PRIVATE = 128 };

DPARI_INTERNAL void dpari_os_futex_wait(uint32_t *word, uint32_t value, double seconds, int own)
{
#if defined(__linux__) && defined(SYS_futex)
    struct timespec span = dpari_os_span(seconds);
    const int op = DPARI_OS_FUTEX_WAIT | (own ? DPARI_OS_FUTEX_PRIVATE : 0);
    syscall(SYS_futex, word, op, value, &span, NULL, 0);
#else
    (void)own;
    if (DPARI_LOAD(word) == value) {
        dpari_os_sleep(seconds < 50e-6 ? seconds : 50e-6);
    }
#endif
}

DPARI_INTERNAL void dpari_os_futex_wake(uint32_t *word, int own)
{
#if defined(__linux__) && defined(SYS_futex)
    const int op = DPARI_OS_FUTEX_WAKE | (own ? DPARI_OS_FUTEX_PRIVATE : 0);
    syscall(SYS_futex, word, op, INT32_MAX, NULL, NULL, 0);
#else
    (void)word;
    (void)own;
#endif
}

/* ---- memory ---------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void *dpari_os_pages(int64_t bytes)
{
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

DPARI_API DPARI_COLD void dpari_os_unmap(void *at, int64_t bytes)
{
    if (at) {
        munmap(at, (size_t)bytes);
    }
}

#if defined(O_TMPFILE)
#define DPARI_OS_TMPFILE O_TMPFILE
#elif defined(__O_TMPFILE) /* glibc without _GNU_SOURCE */
#define DPARI_OS_TMPFILE __O_TMPFILE
#endif

DPARI_INTERNAL DPARI_COLD uint64_t *dpari_os_own_page(void)
{
    uint64_t *page = (uint64_t *)dpari_os_pages(dpari_os_page());
#if defined(__linux__) && !defined(__hppa__)
    const int wipe = 18; /* MADV_WIPEONFORK since Linux 4.14; before that children keep a copy */
    if (page != NULL) {
        (void)madvise(page, (size_t)dpari_os_page(), wipe);
    }
#endif
    return page;
}

/* Opens a new file in /dev/shm, for systems without memfd. It has no name, or its name is removed
 * at once; until then, mode 0600 keeps other users out. Returns the descriptor, or -1 with
 * errno. */
static int dpari_os_named(void)
{
    char name[64];
    dpar_text out;
    int fd = -1;
#if defined(__linux__) && defined(DPARI_OS_TMPFILE) /* the file never has a name */
    fd = open("/dev/shm", DPARI_OS_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600);
#endif
    for (int32_t attempt = 0; attempt < 100 && fd < 0; attempt++) {
        dpar_text_init(&out, name, sizeof name);
#if defined(__linux__)
        dpar_text_put(&out, "/dev/shm");
#endif
        dpari_text_print(&out, "/dpar.%ld.%ld.%d", (int64_t)getpid(),
                         (int64_t)(dpari_os_now() * 1e9), attempt);
#if defined(__linux__) /* not shm_open, which needed -lrt before glibc 2.34 */
        fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
#else
        fd = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
#endif
        if (fd >= 0) {
#if defined(__linux__)
            unlink(name);
#else
            shm_unlink(name);
#endif
        } else if (errno != EEXIST) {
            return -1;
        }
    }
    return fd;
}

DPARI_API DPARI_COLD int dpari_os_beyond_standard(int fd)
{
    int high = fd, number;
    if (fd >= 0 && fd <= 2) {
        high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        number = errno;
        close(fd);
        errno = number;
    }
    return high;
}

DPARI_API void dpari_os_close(int fd)
{
    if (fd >= 0) {
        close(fd);
    }
}

DPARI_INTERNAL DPARI_COLD int dpari_os_segment(int64_t bytes, int without_memfd)
{
    int fd = -1;
    /* ftruncate past this limit raises a signal that ends the program */
    if (dpari_os_limit(RLIMIT_FSIZE) < bytes) {
        errno = EFBIG;
        return -1;
    }
#if defined(__linux__) && defined(SYS_memfd_create)
    if (!without_memfd) {
        fd = (int)syscall(SYS_memfd_create, "dpar", 1U /* MFD_CLOEXEC */);
    }
#else
    (void)without_memfd;
#endif
    fd = dpari_os_beyond_standard(fd >= 0 ? fd : dpari_os_named());
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        int number = errno;
        close(fd);
        errno = number;
        fd = -1;
    }
    return fd;
}

/* Places the mapping at a multiple of a large page, so that the system can use large pages for it.
 * For that it reserves addresses for one more large page, and releases those before and after the
 * mapping. If there are not enough addresses, the system chooses the place. */
DPARI_INTERNAL DPARI_COLD void *dpari_os_map(int fd, int64_t begin, int64_t bytes)
{
    const size_t unit = (size_t)DPARI_OS_LARGE, size = (size_t)bytes;
    char *place = NULL;
    void *at;
    if ((uint64_t)bytes > (uint64_t)SIZE_MAX / 4) {
        errno = ENOMEM;
        return NULL;
    }
    char *room = (char *)mmap(NULL, size + unit, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if ((void *)room != MAP_FAILED) {
        const size_t before = (unit - (uintptr_t)room % unit) % unit;
        place = room + before;
        munmap(place + size, unit - before);
        if (before > 0) {
            munmap(room, before);
        }
    }
    at = mmap(place, size, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_NORESERVE | (place ? MAP_FIXED : 0), fd, (off_t)begin);
    if (at == MAP_FAILED && place) {
        const int number = errno;
        munmap(place, size);
        errno = number;
    }
    return at == MAP_FAILED ? NULL : at;
}

DPARI_INTERNAL DPARI_COLD void dpari_os_dump(void *at, int64_t bytes, int dumped)
{
#if defined(__linux__) && defined(MADV_DONTDUMP)
    (void)madvise(at, (size_t)bytes, dumped ? MADV_DODUMP : MADV_DONTDUMP);
#else
    (void)at;
    (void)bytes;
    (void)dumped;
#endif
}

DPARI_API DPARI_COLD int64_t dpari_os_limit(int resource)
{
    struct rlimit limit;
    int got;
    /* glibc has a type of its own for the resource */
#if defined(__GLIBC__) && !defined(__cplusplus)
    got = getrlimit((__rlimit_resource_t)resource, &limit);
#elif defined(__GLIBC__)
    got = getrlimit(static_cast<__rlimit_resource_t>(resource), &limit);
#else
    got = getrlimit(resource, &limit);
#endif
    if (got != 0 || limit.rlim_cur == RLIM_INFINITY ||
        (uint64_t)limit.rlim_cur > (uint64_t)INT64_MAX) {
        return INT64_MAX;
    }
    return (int64_t)limit.rlim_cur;
}

DPARI_INTERNAL DPARI_COLD void dpari_os_put_addresses(dpar_text *out)
{
    const int64_t most = dpari_os_limit(RLIMIT_AS);
    if (most < INT64_MAX) {
        dpari_text_print(out, "out of addresses (ulimit -v is %ld KiB)", most / 1024);
    } else {
        dpar_text_put(out, "out of addresses (or of mappings: vm.max_map_count)");
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_os_large_pages(void *at, int64_t bytes)
{
#if defined(__linux__) && !defined(__hppa__)
    const int collapse = 25; /* MADV_COLLAPSE since Linux 6.1 */
    const uintptr_t unit = (uintptr_t)DPARI_OS_LARGE;
    const uintptr_t begin = ((uintptr_t)at + unit - 1) / unit * unit;
    const uintptr_t end = ((uintptr_t)at + (uintptr_t)bytes) / unit * unit;
    if (begin < end) {
        (void)madvise((void *)begin, end - begin, collapse);
    }
#else
    (void)at;
    (void)bytes;
#endif
}

DPARI_INTERNAL DPARI_COLD int dpari_os_reserve(int fd, int64_t begin, int64_t bytes)
{
#if defined(__APPLE__)
    (void)fd;
    (void)begin;
    (void)bytes;
    return 0; /* nothing to do, because memory is backed by swap */
#else
    int number;
    do {
        number = posix_fallocate(fd, (off_t)begin, (off_t)bytes);
    } while (number == EINTR);
    return number;
#endif
}

/* ---- signs of life ----------------------------------------------------------------------------
 *
 * A rank proves that it is alive by a lock on one byte of the shared file. The system releases the
 * lock whenever and however the process ends, and a forked child does not inherit it. */

static struct flock dpari_os_byte(int64_t at, short kind)
{
    struct flock lock;
    memset(&lock, 0, sizeof lock);
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = (off_t)at;
    lock.l_len = 1;
    return lock;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_hold(int fd, int64_t at)
{
    struct flock lock = dpari_os_byte(at, F_WRLCK);
    return fcntl(fd, F_SETLK, &lock);
}

DPARI_INTERNAL DPARI_COLD int dpari_os_is_held(int fd, int64_t at)
{
    struct flock lock = dpari_os_byte(at, F_WRLCK);
    return fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_os_cpus(uint64_t mask[DPARI_CPU_WORDS])
{
    long count = 1;
    memset(mask, 0, DPARI_CPU_WORDS * sizeof mask[0]);
#if defined(__linux__) && defined(SYS_sched_getaffinity)
    if (syscall(SYS_sched_getaffinity, 0, DPARI_CPU_WORDS * sizeof mask[0], mask) > 0) {
        return;
    }
#endif
#if defined(_SC_NPROCESSORS_ONLN)
    count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    for (long i = 0; i < count && i < 64 * DPARI_CPU_WORDS; i++) {
        mask[i / 64] |= UINT64_C(1) << (i % 64);
    }
}

DPARI_API int32_t dpari_os_cpu(void)
{
#if defined(__linux__)
#if !defined(__cplusplus) /* glibc shows it only with _GNU_SOURCE, which C++ compilers define */
    extern int sched_getcpu(void);
#endif
    return (int32_t)sched_getcpu();
#else
    return -1;
#endif
}

DPARI_INTERNAL int32_t dpari_os_cpu_count(const uint64_t mask[DPARI_CPU_WORDS])
{
    int32_t count = 0;
    for (int32_t i = 0; i < DPARI_CPU_WORDS; i++) {
        for (uint64_t word = mask[i]; word != 0; word &= word - 1) {
            count++;
        }
    }
    return count;
}

/* Restricts this thread to the CPU, which moves it there at once, and then allows the same CPUs as
 * before. */
DPARI_API DPARI_COLD int dpari_os_move_to(int32_t cpu)
{
#if defined(__linux__) && defined(SYS_sched_getaffinity) && defined(SYS_sched_setaffinity)
    uint64_t allowed[DPARI_CPU_WORDS], there[DPARI_CPU_WORDS];
    int moved;
    memset(allowed, 0, sizeof allowed);
    memset(there, 0, sizeof there);
    if (cpu < 0 || cpu >= 64 * DPARI_CPU_WORDS ||
        syscall(SYS_sched_getaffinity, 0, sizeof allowed, allowed) <= 0) {
        return 0;
    }
    there[cpu / 64] = UINT64_C(1) << (cpu % 64);
    if ((allowed[cpu / 64] & there[cpu / 64]) == 0) {
        return 0;
    }
    moved = syscall(SYS_sched_setaffinity, 0, sizeof there, there) == 0;
    return moved && syscall(SYS_sched_setaffinity, 0, sizeof allowed, allowed) == 0;
#else
    (void)cpu;
    return 0;
#endif
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_text(const char *path, char *text, size_t room)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    ssize_t got = 1;
    text[0] = '\0';
    if (fd < 0) {
        return -1;
    }
    while (used + 1 < room && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(fd, text + used, room - 1 - used);
        used += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    text[used] = '\0';
    return (int64_t)used;
}

DPARI_INTERNAL DPARI_COLD const char *dpari_os_digits(const char *text, int64_t *number)
{
    const char *at = text;
    *number = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        *number = at - text < 18 ? *number * 10 + (*at - '0') : INT64_MAX;
    }
    return at;
}

/* Converts a list of CPUs such as "0-3,8-11" to bits. CPUs from number 1024 on are ignored. */
static void dpari_os_list(const char *text, uint64_t mask[DPARI_CPU_WORDS])
{
    memset(mask, 0, DPARI_CPU_WORDS * sizeof mask[0]);
    while (*text >= '0' && *text <= '9') {
        int64_t first, last;
        text = dpari_os_digits(text, &first);
        last = first;
        if (*text == '-') {
            text = dpari_os_digits(text + 1, &last);
        }
        for (int64_t i = first; i <= last && i < 64 * DPARI_CPU_WORDS; i++) {
            mask[i / 64] |= UINT64_C(1) << (i % 64);
        }
        text += *text == ',';
    }
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_os_cache(const uint64_t mask[DPARI_CPU_WORDS])
{
    uint64_t shares[DPARI_CPU_WORDS];
    char path[96], list[1024];
    int32_t cpu = 0, first = 0, level = 4;
    dpar_text out;
    while (cpu < 64 * DPARI_CPU_WORDS && (mask[cpu / 64] >> (cpu % 64) & 1) == 0) {
        cpu++;
    }
    list[0] = '\0';
    /* index4 down to index1, until the system describes one; most machines have index3 as the
     * last */
    for (; level > 0 && list[0] == '\0'; level--) {
        dpar_text_init(&out, path, sizeof path);
        dpari_text_print(&out, "/sys/devices/system/cpu/cpu%d/cache/index%d/shared_cpu_list", cpu,
                         level);
        (void)dpari_os_text(path, list, sizeof list);
    }
    dpari_os_list(list, shares);
    for (int32_t i = 0; i < DPARI_CPU_WORDS; i++) {
        if (mask[i] & ~shares[i]) {
            return -1;
        }
    }
    while (first < cpu && (shares[first / 64] >> (first % 64) & 1) == 0) {
        first++;
    }
    return first;
}

DPARI_INTERNAL DPARI_COLD char **dpari_os_environment(void)
{
    extern char **environ; /* POSIX requires this declaration, because no header has it */
    return environ;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_used(int32_t pid)
{
#if defined(__linux__)
    clockid_t clock;
    struct timespec time;
    if (clock_getcpuclockid((pid_t)pid, &clock) == 0 && clock_gettime(clock, &time) == 0) {
        return (int64_t)time.tv_sec * 1000000000 + (int64_t)time.tv_nsec;
    }
#else
    (void)pid;
#endif
    return -1;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_program(const char *name, char *path, size_t bytes)
{
    size_t length = dpari_length(name);
#if defined(__linux__)
    /* Not /proc/self/exe itself: ps would then show all ranks as "exe". */
    const ssize_t got = readlink("/proc/self/exe", path, bytes);
    if (got > 0 && (size_t)got < bytes) {
        path[got] = 0;
        if (access(path, X_OK) == 0) {
            return 0;
        }
        name = "/proc/self/exe"; /* works even if the file was deleted */
        length = dpari_length(name);
    }
#endif
    if (length == 0 || length >= bytes) {
        return -1;
    }
    dpari_copy_text(path, bytes, name, length);
    return 0;
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_os_random(void)
{
    uint64_t number = 0;
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, &number, sizeof number) : -1;
    struct timespec time;
    dpari_os_close(fd);
    if (got == (ssize_t)sizeof number) {
        return number;
    }
    /* a minimal container has no such device: mix the time, the pid and the address of the stack */
    clock_gettime(CLOCK_REALTIME, &time);
    number ^= (uint64_t)time.tv_sec << 32 ^ (uint64_t)time.tv_nsec ^ (uint64_t)getpid() << 40;
    return (number ^ (uint64_t)(uintptr_t)&number) * UINT64_C(0x9e3779b97f4a7c15);
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_os_hash(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *at = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ at[i]) * UINT64_C(1099511628211);
    }
    return h;
}

DPARI_INTERNAL DPARI_COLD void dpari_os_put_hex(dpar_text *out, uint64_t number)
{
    for (int digit = 60; digit >= 0; digit -= 4) {
        dpari_text_char(out, "0123456789abcdef"[number >> digit & 15]);
    }
}

DPARI_API DPARI_COLD uint64_t dpari_os_namespace(const char *kind)
{
#if defined(__linux__)
    char path[32];
    struct stat about;
    dpar_text out;
    dpar_text_init(&out, path, sizeof path);
    dpari_text_print(&out, "/proc/self/ns/%s", kind);
    return stat(path, &about) == 0 ? (uint64_t)about.st_ino : 0;
#else
    (void)kind;
    return 0;
#endif
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_user(void)
{
    const int64_t user = (int64_t)getuid();
#if defined(__linux__)
    char text[1024];
    const char *at = text;
    (void)dpari_os_text("/proc/self/uid_map", text, sizeof text);
    /* each line has three numbers: first user inside, first user outside, how many */
    while (*at != '\0') {
        int64_t number[3];
        for (int32_t i = 0; i < 3; i++) {
            at = dpari_os_digits(at + strspn(at, " \n"), &number[i]);
        }
        if (user >= number[0] && user - number[0] < number[2]) {
            return number[1] + (user - number[0]);
        }
        at += strcspn(at, "\n");
        at += strspn(at, "\n");
    }
#endif
    return user;
}

/* ---- sockets --------------------------------------------------------------------------------- */

/* Prepares a socket that was made or accepted, as dpari_os_socket says. */
static DPARI_COLD int dpari_os_prepare(int made)
{
    const int fd = dpari_os_beyond_standard(made);
#if defined(SO_NOSIGPIPE)
    const int on = 1;
#endif
    if (fd >= 0) {
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        (void)fcntl(fd, F_SETFL, O_NONBLOCK);
#if defined(SO_NOSIGPIPE)
        (void)setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    }
    return fd;
}

DPARI_API DPARI_COLD int dpari_os_socket(int family, int kind)
{
    return dpari_os_prepare(socket(family, kind, 0));
}

DPARI_API DPARI_COLD int dpari_os_accept(int listener)
{
    return dpari_os_prepare(accept(listener, NULL, NULL));
}

DPARI_INTERNAL DPARI_COLD int dpari_os_milliseconds(double seconds)
{
    if (seconds <= 0.0) {
        return 0;
    }
    return seconds > 0.1 ? 100 : (int)(seconds * 1e3) + 1;
}

DPARI_API DPARI_COLD int dpari_os_poll(int fd, short events, double until)
{
    const double left = until - dpari_os_now();
    struct pollfd p;
    if (left <= 0.0) {
        return 0;
    }
    p.fd = fd;
    p.events = events;
    p.revents = 0;
    (void)poll(&p, 1, dpari_os_milliseconds(left));
    return 1;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_peer(int fd, int64_t *pid, int64_t *user)
{
#if defined(__linux__) && defined(SO_PEERCRED)
    struct { /* struct ucred, which glibc shows only with _GNU_SOURCE */
        pid_t pid;
        uid_t uid;
        gid_t gid;
    } peer;
    socklen_t bytes = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
        return -1;
    }
    *pid = (int64_t)peer.pid;
    *user = (int64_t)peer.uid;
    return 0;
#elif defined(__linux__)
    (void)fd;
    (void)pid;
    (void)user;
    return -1;
#else
    uid_t uid;
    gid_t gid;
    if (getpeereid(fd, &uid, &gid) != 0) {
        return -1;
    }
    *pid = 0;
    *user = (int64_t)uid;
    return 0;
#endif
}

/* Writes a socket's address with an abstract name, as Linux has. Such names have no file, disappear
 * with their socket, and are visible within one network namespace. Returns the bytes of the
 * address. */
static DPARI_COLD socklen_t dpari_os_shown(uint64_t name, struct sockaddr_un *at)
{
    dpar_text out;
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    dpar_text_init(&out, at->sun_path + 1, sizeof at->sun_path - 1);
    dpari_text_print(&out, "dpar.%ld.seen.%ld", dpari_os_user(), (int64_t)(name >> 1));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + out.used);
}

DPARI_API DPARI_COLD int dpari_os_show(uint64_t *name)
{
#if defined(__linux__)
    const int fd = dpari_os_socket(AF_UNIX, SOCK_DGRAM);
    struct sockaddr_un at;
    socklen_t bytes;
    *name = dpari_os_random();
    bytes = dpari_os_shown(*name, &at);
    if (fd < 0 || bind(fd, (struct sockaddr *)(void *)&at, bytes) == 0) {
        return fd;
    }
    close(fd);
#else
    *name = 0;
#endif
    return -1;
}

DPARI_API DPARI_COLD int dpari_os_sees(uint64_t name)
{
    const int fd = dpari_os_socket(AF_UNIX, SOCK_DGRAM);
    struct sockaddr_un at;
    const socklen_t bytes = dpari_os_shown(name, &at);
    const int sees = fd >= 0 && connect(fd, (struct sockaddr *)(void *)&at, bytes) == 0;
    dpari_os_close(fd);
    return sees;
}

DPARI_API int dpari_os_read_peer(const dpari_os_target *target, void *to, uint64_t from,
                                 int64_t bytes)
{
#if defined(__linux__) && defined(SYS_process_vm_readv)
    do {
        /* the system copies at most 2 GiB in one call, and returns how much it has copied */
        const int64_t piece = dpari_least(bytes, INT64_C(1) << 30);
        struct iovec mine[2], theirs[2];
        uint64_t word = 0;
        long got;
        mine[0].iov_base = &word;
        mine[0].iov_len = sizeof word;
        theirs[0].iov_base = (void *)(uintptr_t)target->at;
        theirs[0].iov_len = sizeof word;
        mine[1].iov_base = to;
        mine[1].iov_len = (size_t)piece;
        theirs[1].iov_base = (void *)(uintptr_t)from;
        theirs[1].iov_len = (size_t)piece;
        got = syscall(SYS_process_vm_readv, (pid_t)target->pid, mine, 2UL, theirs, 2UL, 0UL);
        if (got < 0) {
            return -1;
        }
        if (word != target->word) {
            errno = ESRCH;
            return -1;
        }
        if (bytes == 0) {
            return 0;
        }
        got -= (long)sizeof word;
        if (got <= 0) {
            errno = EFAULT;
            return -1;
        }
        to = (char *)to + got;
        from += (uint64_t)got;
        bytes -= got;
    } while (bytes > 0);
    return 0;
#else
    (void)target;
    (void)to;
    (void)from;
    (void)bytes;
    errno = ENOSYS;
    return -1;
#endif
}

DPARI_API int64_t dpari_os_page(void)
{
    long page = sysconf(_SC_PAGESIZE);
    return page > 0 ? page : 4096;
}

DPARI_API DPARI_COLD int64_t dpari_os_memory(void)
{
#if defined(_SC_PHYS_PAGES)
    long pages = sysconf(_SC_PHYS_PAGES);
    return pages > 0 ? (int64_t)pages * dpari_os_page() : 0;
#else
    return 0;
#endif
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_os_number_in(const char *path, const char *key)
{
    char text[4096];
    const char *at;
    int64_t value;
    (void)dpari_os_text(path, text, sizeof text);
    at = strstr(text, key);
    if (!at) {
        return -1;
    }
    at += strlen(key);
    at += strspn(at, " \t");
    return dpari_os_digits(at, &value) > at ? value : -1;
}

DPARI_INTERNAL DPARI_COLD int dpari_os_dumps(int32_t pid)
{
    char path[64];
    dpar_text out;
    dpar_text_init(&out, path, sizeof path);
    dpari_text_print(&out, "/proc/%d/status", pid);
    return dpari_os_number_in(path, "\nCoreDumping:") > 0; /* since Linux 4.15 */
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_os_pids(void)
{
    struct stat about;
    char text[32];
    int64_t pid;
    const ssize_t got = readlink("/proc/self", text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    dpari_os_digits(text, &pid);
    if (got <= 0 || pid != (int64_t)getpid() || stat("/proc/self/ns/pid", &about) != 0) {
        return 0; /* /proc shows the processes of another namespace, or does not exist */
    }
    return (uint64_t)about.st_ino;
}

/* ---- threads --------------------------------------------------------------------------------- */

/* omp_pause_resource_all of OpenMP 5.0, which libgomp (GNU), libomp (LLVM) and Intel's runtime
 * have. The declaration is weak, so that its address is NULL in a program without OpenMP, and has a
 * name of our own, because omp.h declares the function with an enumeration.
 *
 * It is called before ranks are forked, because libgomp keeps its threads after a parallel region.
 * A fork does not copy them, but the child still counts on them and waits for them for ever in its
 * first parallel region. After the call, parent and child start new threads when they need them.
 *
 * A forked rank calls it before it ends by _exit, because libomp writes a file
 * /dev/shm/__KMP_REGISTERED_LIB_pid_uid in every process that runs a parallel region. It removes
 * the file in a destructor, which _exit does not run; a hard pause removes it too. */
#if defined(__ELF__) && defined(__GNUC__)
extern int dpari_os_openmp(int kind) __asm__("omp_pause_resource_all") __attribute__((weak));
#define DPARI_HAS_OPENMP (&dpari_os_openmp != NULL)
#else
#define DPARI_HAS_OPENMP 0
#define dpari_os_openmp(kind) ((void)(kind))
#endif

DPARI_INTERNAL DPARI_COLD void dpari_os_pause_openmp(int kind)
{
    if (DPARI_HAS_OPENMP) {
        (void)dpari_os_openmp(kind);
    }
}

/* Before 2.34, glibc had threads in a separate library (-lpthread), which a program may not be
 * linked with. */
#if defined(__GLIBC__) && (__GLIBC__ == 2 && __GLIBC_MINOR__ < 34)
#pragma weak pthread_create
#pragma weak pthread_join
#define DPARI_HAS_THREADS (&pthread_create != NULL)
#else
#define DPARI_HAS_THREADS 1
#endif

DPARI_API DPARI_COLD int dpari_os_thread(dpari_thread *thread, void *(*run)(void *), void *arg)
{
    pthread_t made;
    thread->handle = 0;
    if (!(DPARI_HAS_THREADS) || sizeof made > sizeof thread->handle ||
        pthread_create(&made, NULL, run, arg) != 0) {
        return -1;
    }
    memcpy(&thread->handle, &made, sizeof made);
    return 0;
}

DPARI_API DPARI_COLD void dpari_os_join(dpari_thread thread)
{
    pthread_t made;
    memcpy(&made, &thread.handle, sizeof made);
    pthread_join(made, NULL);
}

DPARI_API DPARI_COLD void dpari_os_error(dpar_text *out, int number)
{
    switch (number) {
    case ENOMEM: dpar_text_put(out, "out of memory"); break;
    case ENOSPC: dpar_text_put(out, "no space left (is /dev/shm too small?)"); break;
    case EACCES:
    case EPERM: dpar_text_put(out, "not permitted"); break;
    case EMFILE:
    case ENFILE: dpar_text_put(out, "too many open files"); break;
    case EAGAIN: dpar_text_put(out, "too many processes or threads"); break;
    case EFBIG: dpar_text_put(out, "larger than the limit on files (ulimit -f)"); break;
    case ENOSYS: dpar_text_put(out, "this system has no such call"); break;
    default: dpar_text_put(out, "error "); dpari_text_int(out, number);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_os_why(dpar_why *why, const char *what, int64_t bytes,
                                                   int number)
{
    dpar_text out;
    if (why) {
        dpari_text_why(&out, why);
        dpar_text_put(&out, what);
        if (bytes > 0) {
            dpari_text_print(&out, "%ld bytes", bytes);
        }
        dpar_text_put(&out, ": ");
        dpari_os_error(&out, number);
    }
    return DPAR_E_SYSTEM;
}

/* ==== comm/limits.c ==== */

/* Finds the limits of the machine and of control groups, which a container or a batch job has.
 *
 * A process is in one group of each hierarchy, and every group around that group may have a limit
 * of its own. All of them are therefore read, from the process's own group up to the root. Version
 * 1 has a hierarchy for memory and one for cpu, version 2 has one for everything. */

/* Bytes of a group's path. The system allows 4096 characters (PATH_MAX), and paths of Kubernetes
 * have more than 300. */
enum { DPARI_LIMITS_PATH = 4096 };

/* Reads a number from a file of a control group. Returns -1 if there is none. */
static int64_t dpari_limits_number(const char *group, const char *file, const char *key)
{
    char path[DPARI_LIMITS_PATH + 32];
    dpar_text out;
    dpar_text_init(&out, path, sizeof path);
    dpari_text_print(&out, "%s/%s", group, file);
    return dpari_os_number_in(path, key);
}

/* Lowers the bytes in *available to those of one group: what is left below its limit, plus the page
 * cache of files, which the system can drop. This library's shared memory is not part of that
 * cache, because the system counts it as anonymous. */
static void dpari_limits_memory(dpari_available *available, const char *group, size_t root,
                                int version)
{
    const char *const limits[] = {"memory.limit_in_bytes", "memory.max"};
    const char *const uses[] = {"memory.usage_in_bytes", "memory.current"};
    /* version 1 includes the groups inside a group only in the numbers that begin with "total" */
    const char *const inactive[] = {"\ntotal_inactive_file", "\ninactive_file"};
    const char *const active[] = {"\ntotal_active_file", "\nactive_file"};
    const int row = version - 1;
    const int64_t most = dpari_limits_number(group, limits[row], "");
    const int64_t used = dpari_limits_number(group, uses[row], "");
    int64_t left;
    if (most < 0 || used < 0 || most == INT64_MAX) { /* version 1 has about 2^63 for no limit */
        return;
    }
    left = dpari_most(most - used, 0) +
           dpari_most(dpari_limits_number(group, "memory.stat", inactive[row]), 0) +
           dpari_most(dpari_limits_number(group, "memory.stat", active[row]), 0);
    if (left < available->bytes) {
        dpar_text out;
        available->bytes = left;
        available->most = most;
        dpar_text_init(&out, available->group, sizeof available->group);
        dpar_text_put(&out, group[root] == '\0' ? "/" : group + root);
    }
}

/* Lowers the processors in *available to those that the quota of one group allows. The quota is the
 * processor time that the group may use in each period. */
static void dpari_limits_cpus(dpari_available *available, const char *group, int version)
{
    int64_t quota, period;
    if (version == 1) {
        quota = dpari_limits_number(group, "cpu.cfs_quota_us", "");
        period = dpari_limits_number(group, "cpu.cfs_period_us", "");
    } else { /* one line "quota period" */
        quota = dpari_limits_number(group, "cpu.max", "");
        period = dpari_limits_number(group, "cpu.max", " ");
    }
    if (quota > 0 && period > 0) {
        const double hundredths = (double)quota / (double)period * 100.0 + 0.5;
        available->cpus = (int32_t)dpari_least(available->cpus, dpari_most(quota / period, 1));
        if (hundredths < (double)available->hundredths) {
            available->hundredths = (int32_t)hundredths;
        }
    }
}

/* True if `name` is one of the names in [list, end), which commas separate. */
static int dpari_limits_lists(const char *list, const char *end, const char *name)
{
    const size_t length = strlen(name);
    while (list < end) {
        const char *comma = list;
        while (comma < end && *comma != ',') {
            comma++;
        }
        if ((size_t)(comma - list) == length && memcmp(list, name, length) == 0) {
            return 1;
        }
        list = comma + 1;
    }
    return 0;
}

/* Applies the limits of the group in one line of /proc/self/cgroup ("4:memory:/a/b", "1:cpu:/a" or
 * "0::/a/b"), and of all groups around it. A container may see only part of the path, because its
 * own group is mounted as the root. Groups in the part that it does not see have no files and so
 * change nothing. Not inlined, so that its buffer is not in the caller's frame too. */
DPARI_STATIC_NOINLINE void dpari_limits_line(dpari_available *available, const char *line,
                                             size_t bytes, const char *root)
{
    const char *const end = line + bytes;
    const char *list = (const char *)memchr(line, ':', bytes);
    const char *path = list ? (const char *)memchr(list + 1, ':', (size_t)(end - list - 1)) : NULL;
    char group[DPARI_LIMITS_PATH];
    size_t least, length;
    int version, memory, cpu;
    dpar_text out;
    if (!path) {
        return;
    }
    version = path == list + 1 ? 2 : 1;
    memory = version == 2 || dpari_limits_lists(list + 1, path, "memory");
    cpu = version == 2 || dpari_limits_lists(list + 1, path, "cpu");
    if (!memory && !cpu) {
        return;
    }
    dpar_text_init(&out, group, sizeof group);
    dpar_text_put(&out, root);
    if (version == 1) {
        dpar_text_put(&out, memory ? "/memory" : "/cpu");
    }
    least = strlen(group);
    length = (size_t)(end - path - 1);
    if (least + length + 1 > sizeof group) {
        length = 0; /* the path is too long: read only the root */
    }
    memcpy(group + least, path + 1, length);
    length += least;
    while (length > least && group[length - 1] == '/') {
        length--;
    }
    group[length] = '\0';
    for (;;) {
        if (memory) {
            dpari_limits_memory(available, group, strlen(root), version);
        }
        if (cpu) {
            dpari_limits_cpus(available, group, version);
        }
        if (length <= least) {
            return;
        }
        while (length > least && group[length - 1] != '/') {
            length--;
        }
        length -= length > least;
        group[length] = '\0';
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_limits_groups(dpari_available *available, const char *text,
                                                   const char *root)
{
    while (*text) {
        const char *end = strchr(text, '\n');
        const size_t bytes = end ? (size_t)(end - text) : strlen(text);
        dpari_limits_line(available, text, bytes, root);
        text += bytes + (end != NULL);
    }
}

DPARI_API DPARI_COLD void dpari_limits_find(dpari_available *available)
{
    const int64_t kib = dpari_os_number_in("/proc/meminfo", "MemAvailable:");
    char text[2 * DPARI_LIMITS_PATH]; /* version 1 has a line for each of about 12 hierarchies */
    available->bytes = kib < 0 ? INT64_MAX : kib * 1024;
    available->most = 0;
    available->group[0] = '\0';
    available->cpus = available->hundredths = INT32_MAX;
    (void)dpari_os_text("/proc/self/cgroup", text, sizeof text);
    available->who = dpari_os_hash(dpari_os_namespace("cgroup"), text, strlen(text));
    dpari_limits_groups(available, text, "/sys/fs/cgroup");
}

/* ==== host/cpu.c ==== */

/* Queries which vectors the CPU has, and whether the system saves their registers. */

DPARI_API DPARI_COLD int dpari_cpu_wide(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    uint32_t eax = 0, ebx, ecx = 0, kept;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx) : : "edx");
    if (eax < 7) {
        return 0;
    }
    eax = 1;
    ecx = 0;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx) : : "edx");
    if ((ecx >> 27 & 7) != 7) { /* OSXSAVE (xgetbv may be used), AVX, F16C */
        return 0;
    }
    __asm__ volatile("xgetbv" : "=a"(kept) : "c"(0) : "edx");
    eax = 7;
    ecx = 0;
    __asm__ volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx) : : "edx");
    /* the system saves the registers of vectors (bits 1 and 2); AVX2 */
    return (kept & 6) == 6 && (ebx >> 5 & 1) != 0;
#else
    return 0;
#endif
}

/* ==== host/kernel.c ==== */

/* Implements the loops over memory: copy, fill, convert, reduce and scale.
 *
 * The cost of a collective is to read every input and write every output once, and these loops come
 * close to the bandwidth of the memory. There is one loop for each type and operation, in plain C
 * or in vector types of the compiler. Conversions are also compiled for vectors of 32 bytes, which
 * are used if the CPU has them. Large copies may use streaming stores, which bypass the caches.
 * Called by the collectives and messages of comm, by moves, points and the strategies of
 * dpar_train.h, and by the other modules of host. */

/* x87 rounds when it stores, not when it adds. With x87, or without vector types, the loops over
 * elements further below are used. */
#if defined(__GNUC__) && !defined(DPARI_NO_VECTOR) &&                                              \
    !(defined(__i386__) && !defined(__SSE2_MATH__))
#define DPARI_KERN_VECTOR 1
#else
#define DPARI_KERN_VECTOR 0
#endif

#if DPARI_KERN_VECTOR && defined(__SSE2__)
#define DPARI_KERN_STREAM 1
#else
#define DPARI_KERN_STREAM 0
#endif

/* In bytes: a cache line, and how far ahead of a read memory is prefetched into the first-level and
 * the second-level cache. */
enum { DPARI_KERN_LINE = 64, DPARI_KERN_AHEAD = 1024, DPARI_KERN_FAR_AHEAD = 2048 };

#if defined(__GNUC__)
#define dpari_kern_move(to, from, bytes) __builtin_memcpy(to, from, (size_t)(bytes))
#else
static void dpari_kern_move(void *to, const void *from, int64_t bytes)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    int64_t i;
    for (i = 0; i < bytes; i++) {
        t[i] = f[i];
    }
}
#endif

/* The arguments of a reduction. Bytes [at, end) of the arrays are whole cache lines. */
typedef struct dpari_kern_job {
    void *const *out;
    const void *const *in;
    int64_t bytes, at, end;
    int32_t outs, ins, type, op, stream;
} dpari_kern_job;

/* The types of integers, with the vectors in which sums and products wrap and in which elements are
 * compared, the type of an element, and that of a quotient by a number of inputs. */
#define DPARI_KERN_INTS(X)                                                                         \
    X(DPAR_I8, dpari_kern_u16, dpari_kern_i16, int8_t, int32_t)                                    \
    X(DPAR_U8, dpari_kern_u16, dpari_kern_u16, uint8_t, int32_t)                                   \
    X(DPAR_I32, dpari_kern_u4, dpari_kern_i4, int32_t, int32_t)                                    \
    X(DPAR_U32, dpari_kern_u4, dpari_kern_u4, uint32_t, uint32_t)                                  \
    X(DPAR_I64, dpari_kern_u2, dpari_kern_i2, int64_t, int64_t)                                    \
    X(DPAR_U64, dpari_kern_u2, dpari_kern_u2, uint64_t, uint64_t)

#if DPARI_KERN_VECTOR

#define DPARI_KERN_INLINE static DPARI_INLINED __attribute__((always_inline))

typedef float dpari_kern_f4 __attribute__((vector_size(16)));
typedef double dpari_kern_d2 __attribute__((vector_size(16)));
typedef int8_t dpari_kern_i16 __attribute__((vector_size(16)));
typedef uint8_t dpari_kern_u16 __attribute__((vector_size(16)));
typedef int32_t dpari_kern_i4 __attribute__((vector_size(16)));
typedef uint32_t dpari_kern_u4 __attribute__((vector_size(16)));
typedef int64_t dpari_kern_i2 __attribute__((vector_size(16)));
typedef uint64_t dpari_kern_u2 __attribute__((vector_size(16)));

/* The unit of a reduction: a line of memory, or half a line of 16-bit elements converted to f32. */
typedef struct dpari_kern_quad {
    dpari_kern_u4 v[4];
} dpari_kern_quad;

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_get(const unsigned char *from)
{
    dpari_kern_u4 v;
    __builtin_memcpy(&v, from, 16);
    return v;
}

/* Returns a where `mask` is set, and b elsewhere. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_pick(dpari_kern_u4 mask, dpari_kern_u4 a,
                                                dpari_kern_u4 b)
{
    return (a & mask) | (b & ~mask);
}

/* True if any bit of a mask of whole elements is set. The compiler assumes that this is unlikely,
 * so the code behind it may be slow. */
DPARI_KERN_INLINE int dpari_kern_some(dpari_kern_u4 mask)
{
#if defined(__SSE2__)
    return __builtin_expect(__builtin_ia32_movmskps((dpari_kern_f4)mask) != 0, 0) != 0;
#else
    const dpari_kern_u2 m = (dpari_kern_u2)mask;
    return __builtin_expect((m[0] | m[1]) != 0, 0) != 0;
#endif
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_all(uint32_t x)
{
    const dpari_kern_u4 v = {x, x, x, x};
    return v;
}

/* Converts the f16 in the high half of each word to f32. Exponents move from bias 15 to 127, and
 * twice as far for infinity and NaN. Subnormals get the exponent of 2^-14, which is then subtracted
 * again. This is exact, and no f32 is subnormal, so no mode of the floating-point unit matters. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_widen_f16(dpari_kern_u4 half)
{
    const dpari_kern_u4 size = (half >> 3) & 0x0fffe000u;
    const dpari_kern_u4 top = (dpari_kern_u4)((dpari_kern_i4)size > 0x0f7fffff);
    const dpari_kern_u4 under = (dpari_kern_u4)((dpari_kern_i4)size < 0x00800000);
    const dpari_kern_u4 moved = size + 0x38000000u + (top & 0x38000000u) + (under & 0x00800000u);
    const dpari_kern_f4 less = (dpari_kern_f4)(under & 0x38800000u);
    return (dpari_kern_u4)((dpari_kern_f4)moved - less) | (half & 0x80000000u);
}

/* Converts f32 below 65536 to f16 in the low half of each word, to nearest even. Adding 2^13 times
 * the power of two below the value (at least 2^-14) leaves the rounded digits in the last bits of
 * the sum. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_f16(dpari_kern_u4 x)
{
    const dpari_kern_u4 size = x & 0x7fffffffu, exponent = size & 0x7f800000u;
    const dpari_kern_u4 normal = (dpari_kern_u4)((dpari_kern_i4)exponent > 0x38800000);
    const dpari_kern_u4 above = (exponent - 0x38800000u) & normal;
    const dpari_kern_u4 shifter = above + 0x3f000000u;
    const dpari_kern_u4 sum = (dpari_kern_u4)((dpari_kern_f4)size + (dpari_kern_f4)shifter);
    return (sum - shifter + (above >> 13)) | ((x ^ size) >> 16);
}

/* Does the same for values that may be too large, infinite or NaN. 0x477fffff is the largest f32
 * below 65536. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_any_f16(dpari_kern_u4 x)
{
    const dpari_kern_u4 size = x & 0x7fffffffu;
    const dpari_kern_u4 nan = (dpari_kern_u4)((dpari_kern_i4)size > 0x7f800000);
    const dpari_kern_u4 over = (dpari_kern_u4)((dpari_kern_i4)size > 0x477fffff);
    const dpari_kern_u4 top = (((x >> 16) & 0x8000u & ~nan) | (nan & 0x200u)) + 0x7c00u;
    return dpari_kern_pick(over, top, dpari_kern_narrow_f16(x));
}

/* Converts f32 to bf16 in the high half of each word, to nearest even. The low half is undefined.
 */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_bf16(dpari_kern_u4 x)
{
    return x + 0x7fffu + ((x >> 16) & 1u);
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow_any_bf16(dpari_kern_u4 x)
{
    const dpari_kern_u4 nan = (dpari_kern_u4)((dpari_kern_i4)(x & 0x7fffffffu) > 0x7f800000);
    return dpari_kern_pick(nan, dpari_kern_all(0x7fc00000u), dpari_kern_narrow_bf16(x));
}

/* These do the same, but are not inlined, because a loop seldom needs them and would otherwise
 * contain them many times. */
DPARI_STATIC_NOINLINE dpari_kern_u4 dpari_kern_narrow_rare_f16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_any_f16(x);
}

DPARI_STATIC_NOINLINE dpari_kern_u4 dpari_kern_narrow_rare_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_any_bf16(x);
}

/* Converts eight 16-bit elements to f32: those in the low halves of words, and those in the high
 * halves. This needs no shuffles and does not depend on the byte order. */
DPARI_KERN_INLINE void dpari_kern_widen(dpari_kern_u4 raw, int32_t type, dpari_kern_u4 *low,
                                        dpari_kern_u4 *high)
{
    if (type == DPAR_BF16) {
        *low = raw << 16;
        *high = raw & 0xffff0000u;
    } else {
        *low = dpari_kern_widen_f16(raw << 16);
        *high = dpari_kern_widen_f16(raw);
    }
}

/* Converts them back. For bf16 only NaN needs special care, and the sum of both numbers is NaN if
 * one of them is. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_narrow(dpari_kern_u4 low, dpari_kern_u4 high,
                                                  int32_t type)
{
    if (type == DPAR_BF16) {
        const dpari_kern_f4 sum = (dpari_kern_f4)low + (dpari_kern_f4)high;
        if (dpari_kern_some((dpari_kern_u4)(sum != sum))) {
            low = dpari_kern_narrow_rare_bf16(low);
            high = dpari_kern_narrow_rare_bf16(high);
        } else {
            low = dpari_kern_narrow_bf16(low);
            high = dpari_kern_narrow_bf16(high);
        }
        return (low >> 16) | (high & 0xffff0000u);
    }
    if (dpari_kern_some((dpari_kern_u4)((dpari_kern_i4)(low & 0x7fffffffu) > 0x477fffff) |
                        (dpari_kern_u4)((dpari_kern_i4)(high & 0x7fffffffu) > 0x477fffff))) {
        return dpari_kern_narrow_rare_f16(low) | (dpari_kern_narrow_rare_f16(high) << 16);
    }
    return dpari_kern_narrow_f16(low) | (dpari_kern_narrow_f16(high) << 16);
}

DPARI_KERN_INLINE int dpari_kern_is16(int32_t type)
{
    return type == DPAR_BF16 || type == DPAR_F16;
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_f16(dpari_kern_u4 x)
{
    return dpari_kern_widen_f16(dpari_kern_narrow_any_f16(x) << 16);
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_bf16(x) & 0xffff0000u;
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_any_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_any_bf16(x) & 0xffff0000u;
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_round_rare_bf16(dpari_kern_u4 x)
{
    return dpari_kern_narrow_rare_bf16(x) & 0xffff0000u;
}

/* Rounds f32 to values that bf16 has. The sum of four numbers is NaN if one of them is. */
DPARI_KERN_INLINE void dpari_kern_round(dpari_kern_quad *x)
{
    const dpari_kern_f4 sum = ((dpari_kern_f4)x->v[0] + (dpari_kern_f4)x->v[1]) +
                              ((dpari_kern_f4)x->v[2] + (dpari_kern_f4)x->v[3]);
    if (dpari_kern_some((dpari_kern_u4)(sum != sum))) {
        DPARI_FOUR(x->v[q] = dpari_kern_round_rare_bf16(x->v[q]));
    } else {
        DPARI_FOUR(x->v[q] = dpari_kern_round_bf16(x->v[q]));
    }
}

/* Loads elements and converts them to the type in which they are accumulated. */
DPARI_KERN_INLINE void dpari_kern_load(dpari_kern_quad *x, const unsigned char *from, int32_t type)
{
    if (dpari_kern_is16(type)) {
        dpari_kern_widen(dpari_kern_get(from), type, &x->v[0], &x->v[1]);
        dpari_kern_widen(dpari_kern_get(from + 16), type, &x->v[2], &x->v[3]);
    } else {
        DPARI_FOUR(x->v[q] = dpari_kern_get(from + 16 * q));
        if (type == DPARI_KERN_THROUGH(DPAR_BF16)) {
            dpari_kern_round(x);
        }
    }
}

/* Returns x + y for floats. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_plus(dpari_kern_u4 x, dpari_kern_u4 y, int32_t type)
{
    return type == DPAR_F64 ? (dpari_kern_u4)((dpari_kern_d2)x + (dpari_kern_d2)y)
                            : (dpari_kern_u4)((dpari_kern_f4)x + (dpari_kern_f4)y);
}

DPARI_KERN_INLINE void dpari_kern_add(dpari_kern_quad *x, const dpari_kern_quad *y, int32_t type)
{
    DPARI_FOUR(x->v[q] = dpari_kern_plus(x->v[q], y->v[q], type));
}

/* A mask of the elements that are NaN, in F64 or F32. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_nan(dpari_kern_u4 x, int32_t type)
{
    return type == DPAR_F64 ? (dpari_kern_u4)((dpari_kern_d2)x != (dpari_kern_d2)x)
                            : (dpari_kern_u4)((dpari_kern_f4)x != (dpari_kern_f4)x);
}

/* Replaces each NaN by the same one. Which of two NaN a sum returns depends on the order of the
 * operands of an instruction, which compilers choose freely. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_quiet(dpari_kern_u4 x, int32_t type)
{
    const dpari_kern_u2 f64 = {UINT64_C(0x7ff8) << 48, UINT64_C(0x7ff8) << 48};
    return dpari_kern_pick(dpari_kern_nan(x, type),
                           type == DPAR_F64 ? (dpari_kern_u4)f64 : dpari_kern_all(0x7fc00000u), x);
}

/* Does that for a line. The sum of four numbers is NaN if one of them is. If only infinities or an
 * overflow make it NaN, no element changes. */
DPARI_KERN_INLINE void dpari_kern_one_nan(dpari_kern_quad *x, int32_t type)
{
    const dpari_kern_u4 sum = dpari_kern_plus(dpari_kern_plus(x->v[0], x->v[1], type),
                                              dpari_kern_plus(x->v[2], x->v[3], type), type);
    if (dpari_kern_some(dpari_kern_nan(sum, type))) {
        DPARI_FOUR(x->v[q] = dpari_kern_quiet(x->v[q], type));
    }
}

/* Return x / n and x * n for floats. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_over(dpari_kern_u4 x, int32_t type, int32_t n)
{
    const float nf = (float)n;
    const double nd = n;
    const dpari_kern_f4 f = {nf, nf, nf, nf};
    const dpari_kern_d2 d = {nd, nd};
    return type == DPAR_F64 ? (dpari_kern_u4)((dpari_kern_d2)x / d)
                            : (dpari_kern_u4)((dpari_kern_f4)x / f);
}

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_times(dpari_kern_u4 x, float n)
{
    const dpari_kern_f4 f = {n, n, n, n};
    return (dpari_kern_u4)((dpari_kern_f4)x * f);
}

/* Stores 16 bytes without using the cache. `to` is aligned to 16. */
DPARI_KERN_INLINE void dpari_kern_past(unsigned char *to, dpari_kern_u4 v)
{
#if !DPARI_KERN_STREAM
    __builtin_memcpy(to, &v, 16);
#elif defined(__clang__)
    __builtin_nontemporal_store(v, (dpari_kern_u4 *)(void *)to);
#else
    __builtin_ia32_movntps((float *)(void *)to, (dpari_kern_f4)v);
#endif
}

/* Orders streaming stores before later stores, which only a fence does. */
static void dpari_kern_fence(void)
{
#if DPARI_KERN_STREAM
    __asm__ __volatile__("sfence" : : : "memory");
#endif
}

DPARI_KERN_INLINE void dpari_kern_store(unsigned char *to, const dpari_kern_quad *x, int32_t stream)
{
    if (stream && ((uintptr_t)to & 15) == 0) {
        DPARI_FOUR(dpari_kern_past(to + 16 * q, x->v[q]));
    } else {
        DPARI_FOUR(__builtin_memcpy(to + 16 * q, &x->v[q], 16));
    }
}

/* Prefetches. The address may be past the array, because a prefetch never faults. It is computed as
 * a number, because a pointer out of bounds would be undefined. */
DPARI_KERN_INLINE void dpari_kern_ahead(const unsigned char *from)
{
    __builtin_prefetch((const void *)((uintptr_t)from + DPARI_KERN_AHEAD));
}

/* Prefetches memory that will be written, because stores wait for their lines one after the other.
 * left: the bytes from `to` to the end. Lines after it may be those that another core writes. */
DPARI_KERN_INLINE void dpari_kern_ahead_to(const void *to, int64_t left)
{
    const unsigned char *line = (const unsigned char *)to + DPARI_KERN_AHEAD;
    if (left > DPARI_KERN_AHEAD) {
#if defined(__x86_64__) /* the builtin would prefetch the line for reading */
        __asm__ volatile("prefetchw %0" : : "m"(*line));
#else
        __builtin_prefetch(line, 1);
#endif
    }
}

/* Divides accumulators by divide_by, unless it is 0, multiplies those of f16 by `times`, and
 * converts them to the type that is stored. */
DPARI_KERN_INLINE void dpari_kern_finish(dpari_kern_quad *x, int32_t type, int32_t divide_by,
                                         float times)
{
    if (divide_by > 0) {
        DPARI_FOUR(x->v[q] = dpari_kern_over(x->v[q], type, divide_by));
    }
    if (type == DPAR_F16) {
        DPARI_FOUR(x->v[q] = dpari_kern_times(x->v[q], times));
    }
    if (type == DPAR_F32 || type == DPAR_F64) {
        dpari_kern_one_nan(x, type);
    } else if (type == DPARI_KERN_THROUGH(DPAR_BF16)) {
        dpari_kern_round(x);
    } else if (dpari_kern_is16(type)) {
        x->v[0] = dpari_kern_narrow(x->v[0], x->v[1], type);
        x->v[1] = dpari_kern_narrow(x->v[2], x->v[3], type);
    }
}

DPARI_KERN_INLINE const unsigned char *dpari_kern_at(const void *in, int64_t at)
{
    const unsigned char *from = (const unsigned char *)in + at;
    dpari_kern_ahead(from);
    return from;
}

/* Sums the lines of [at, end), all of them whole. It is inlined with constant arguments where that
 * makes it faster. A line of 16-bit elements is two quads, which a core can work on at the same
 * time. */
DPARI_KERN_INLINE void dpari_kern_sum(void *const *out, int32_t outs, const void *const *in,
                                      int32_t ins, const dpari_kern_job *job, int32_t type)
{
    const int32_t average = job->op == DPAR_AVG, stream = job->stream;
    const int32_t two = dpari_kern_is16(type);
    /* for a power of two a product gives the same bits as a division, and without a branch the sums
     * stay in registers */
    const int32_t product = type == DPAR_F16 && (ins & (ins - 1)) == 0;
    const int32_t divide_by = average && !product ? ins : 0;
    const float times = average && product ? 1 / (float)ins : 1;
    const int64_t end = job->end;
    int64_t at;
    int32_t i;
    for (at = job->at; at < end; at += DPARI_KERN_LINE) {
        const unsigned char *from = dpari_kern_at(in[0], at);
        dpari_kern_quad x, high, y;
        dpari_kern_load(&x, from, type);
        if (two) {
            dpari_kern_load(&high, from + 32, type);
        }
        for (i = 1; i < ins; i++) {
            from = dpari_kern_at(in[i], at);
            dpari_kern_load(&y, from, type);
            dpari_kern_add(&x, &y, type);
            if (two) {
                dpari_kern_load(&y, from + 32, type);
                dpari_kern_add(&high, &y, type);
            }
        }
        dpari_kern_finish(&x, type, divide_by, times);
        if (two) {
            dpari_kern_finish(&high, type, divide_by, times);
            x.v[2] = high.v[0];
            x.v[3] = high.v[1];
        }
        if (two && !stream) {
            dpari_kern_ahead_to((const unsigned char *)out[0] + at, end - at);
        }
        dpari_kern_store((unsigned char *)out[0] + at, &x, stream);
        for (i = 1; i < outs; i++) {
            dpari_kern_store((unsigned char *)out[i] + at, &x, stream);
        }
    }
}

/* ---- any type and operation, block by block: one loop for each ---- */

enum { DPARI_KERN_BLOCK = 32 }; /* vectors, few enough to stay in the first-level cache */

/* Returns n vectors of accumulators for the memory at `from`: converted into `room`, or `from`
 * itself if no conversion is needed. */
static const unsigned char *dpari_kern_load_any(dpari_kern_u4 *room, const unsigned char *from,
                                                int32_t n, int32_t type)
{
    int32_t k;
    if (type == DPAR_BF16) {
        for (k = 0; k < n; k += 2) {
            dpari_kern_widen(dpari_kern_get(from + 8 * k), DPAR_BF16, &room[k], &room[k + 1]);
        }
    } else if (type == DPAR_F16) {
        for (k = 0; k < n; k += 2) {
            dpari_kern_widen(dpari_kern_get(from + 8 * k), DPAR_F16, &room[k], &room[k + 1]);
        }
    } else if (type == DPARI_KERN_THROUGH(DPAR_BF16)) {
        for (k = 0; k < n; k++) {
            room[k] = dpari_kern_round_any_bf16(dpari_kern_get(from + 16 * k));
        }
    } else if (type == DPARI_KERN_THROUGH(DPAR_F16)) {
        for (k = 0; k < n; k++) {
            room[k] = dpari_kern_round_f16(dpari_kern_get(from + 16 * k));
        }
    } else {
        return from;
    }
    return (const unsigned char *)room;
}

/* Computes to = x op y for n vectors; `to` may be x. s and t are the vectors of x and y. */
#define DPARI_KERN_EACH(VECTOR, RESULT)                                                            \
    for (k = 0; k < n; k++) {                                                                      \
        const VECTOR s = (VECTOR)dpari_kern_get(x + 16 * k);                                       \
        const VECTOR t = (VECTOR)dpari_kern_get(y + 16 * k);                                       \
        to[k] = (dpari_kern_u4)(RESULT);                                                           \
    }

/* Returns s where `above` is greater than `below` (x and y, or y and x) or s is NaN, otherwise t.
 */
#define DPARI_KERN_BEYOND(VECTOR)                                                                  \
    DPARI_KERN_EACH(VECTOR,                                                                        \
                    dpari_kern_pick((dpari_kern_u4)((VECTOR)dpari_kern_get(above + 16 * k) >       \
                                                    (VECTOR)dpari_kern_get(below + 16 * k)) |      \
                                        (dpari_kern_u4)(s != s),                                   \
                                    (dpari_kern_u4)s, (dpari_kern_u4)t))

/* Defines a case of the switch below. */
#define DPARI_KERN_MEET(kind, wraps, compares, one, quotient)                                      \
    case kind:                                                                                     \
        if (op == DPAR_MAX || op == DPAR_MIN) {                                                    \
            DPARI_KERN_BEYOND(compares)                                                            \
        } else if (op == DPAR_PRODUCT) {                                                           \
            DPARI_KERN_EACH(wraps, s *t)                                                           \
        } else {                                                                                   \
            DPARI_KERN_EACH(wraps, s + t)                                                          \
        }                                                                                          \
        break;

static void dpari_kern_meet_any(dpari_kern_u4 *to, const unsigned char *x, const unsigned char *y,
                                int32_t n, int32_t type, int32_t op)
{
    const unsigned char *above = op == DPAR_MAX ? x : y;
    const unsigned char *below = op == DPAR_MAX ? y : x;
    int32_t k;
    switch (type < DPAR_TYPE_COUNT && !dpari_kern_is16(type) ? type : DPAR_F32) {
        DPARI_KERN_INTS(DPARI_KERN_MEET)
        DPARI_KERN_MEET(DPAR_F64, dpari_kern_d2, dpari_kern_d2, double, double)
        DPARI_KERN_MEET(DPAR_F32, dpari_kern_f4, dpari_kern_f4, float, float)
    default: break;
    }
}

/* Defines a case that divides integers one by one, because compilers have no better method. */
#define DPARI_KERN_DIVIDE(kind, wraps, compares, one, quotient)                                    \
    case kind:                                                                                     \
        for (k = 0; k < n * (int32_t)(16 / sizeof(one)); k++) {                                    \
            one each;                                                                              \
            __builtin_memcpy(&each, (unsigned char *)x + k * (int32_t)sizeof each, sizeof each);   \
            each = (one)((quotient)each / (quotient)by);                                           \
            __builtin_memcpy((unsigned char *)x + k * (int32_t)sizeof each, &each, sizeof each);   \
        }                                                                                          \
        break;

/* Computes x = x / by. by is >= 1, so that nothing overflows. */
static void dpari_kern_divide_any(dpari_kern_u4 *x, int32_t n, int32_t type, int32_t by)
{
    int32_t k;
    switch (type) {
        DPARI_KERN_INTS(DPARI_KERN_DIVIDE)
    default:
        for (k = 0; k < n; k++) {
            x[k] = dpari_kern_over(x[k], type, by);
        }
        break;
    }
}

/* Converts accumulators to the type that is stored. */
static void dpari_kern_finish_any(dpari_kern_u4 *x, int32_t n, int32_t type)
{
    int32_t k;
    switch (type) {
    case DPAR_F64:
        for (k = 0; k < n; k++) {
            x[k] = dpari_kern_quiet(x[k], DPAR_F64);
        }
        break;
    case DPAR_F32:
        for (k = 0; k < n; k++) {
            x[k] = dpari_kern_quiet(x[k], DPAR_F32);
        }
        break;
    case DPAR_BF16:
        for (k = 0; k < n; k += 2) {
            x[k / 2] = dpari_kern_narrow(x[k], x[k + 1], DPAR_BF16);
        }
        break;
    case DPAR_F16:
        for (k = 0; k < n; k += 2) {
            x[k / 2] = dpari_kern_narrow(x[k], x[k + 1], DPAR_F16);
        }
        break;
    default:
        if (type >= DPAR_TYPE_COUNT) {
            (void)dpari_kern_load_any(x, (const unsigned char *)x, n, type);
        }
        break;
    }
}

static void dpari_kern_store_any(unsigned char *to, const dpari_kern_u4 *x, int64_t bytes,
                                 int32_t stream)
{
    int64_t at = 0;
    if (stream && ((uintptr_t)to & 15) == 0) {
        for (; bytes - at >= 16; at += 16) {
            dpari_kern_past(to + at, x[at / 16]);
        }
    }
    __builtin_memcpy(to + at, (const unsigned char *)x + at, (size_t)(bytes - at));
}

/* Reduces bytes [at, end) of the arrays, of any type and operation. */
DPARI_STATIC_NOINLINE void dpari_kern_any(const dpari_kern_job *job, int64_t at, int64_t end)
{
    const int32_t wide = dpari_kern_is16(job->type) ? 2 : 1;
    dpari_kern_u4 x[DPARI_KERN_BLOCK], y[DPARI_KERN_BLOCK], spare[2][DPARI_KERN_BLOCK];
    int64_t bytes, ask;
    int32_t i;
    for (; at < end; at += bytes) {
        const unsigned char *sum = NULL;
        int32_t n;
        bytes = dpari_least(end - at, 16 * DPARI_KERN_BLOCK / wide);
        n = wide * (int32_t)((bytes + 15) / 16);
        for (i = 0; i < job->ins; i++) {
            const unsigned char *from = (const unsigned char *)job->in[i] + at;
            for (ask = 0; ask < bytes; ask += DPARI_KERN_LINE) {
                dpari_kern_ahead(from + ask);
            }
            if (bytes % 16 != 0) {
                spare[i > 0][bytes / 16] = dpari_kern_all(0);
                from = (const unsigned char *)__builtin_memcpy(spare[i > 0], from, (size_t)bytes);
            }
            from = dpari_kern_load_any(i == 0 ? x : y, from, n, job->type);
            if (i > 0) {
                dpari_kern_meet_any(x, sum, from, n, job->type, job->op);
                from = (const unsigned char *)x;
            }
            sum = from;
        }
        if (job->ins == 1 && sum != (const unsigned char *)x) {
            __builtin_memcpy(x, sum, (size_t)(16 * n));
        }
        if (job->op == DPAR_AVG) {
            dpari_kern_divide_any(x, n, job->type, job->ins);
        }
        dpari_kern_finish_any(x, n, job->type);
        for (i = 0; i < job->outs; i++) {
            dpari_kern_store_any((unsigned char *)job->out[i] + at, x, bytes, job->stream);
        }
    }
}

/* ---- sums of gradients, for which training waits ---- */

DPARI_KERN_INLINE void dpari_kern_sum_many(const dpari_kern_job *job, int32_t type)
{
    dpari_kern_sum(job->out, job->outs, job->in, job->ins, job, type);
}

/* Sums two inputs, whose pointers stay in registers. */
DPARI_KERN_INLINE void dpari_kern_sum_two(const dpari_kern_job *job, int32_t outs, int32_t type)
{
    const void *in[2];
    void *out[2];
    in[0] = job->in[0];
    in[1] = job->in[1];
    out[0] = job->out[0];
    out[1] = job->out[job->outs - 1];
    dpari_kern_sum(out, outs, in, 2, job, type);
}

/* The fewer instructions an element needs, the more constant arguments help. For f32 and f64 the
 * numbers of inputs and of outputs are constant (otherwise 26 % slower in the first-level cache),
 * for f32 through bf16 none (6 %), and for bf16 and f16 none, because two long arrays use vectors
 * of 32 bytes if the CPU has them. There is no loop for f32 through f16, because block
 * by block it takes only 8 % longer. */
#define DPARI_KERN_SUMS(name, type)                                                                \
    DPARI_STATIC_NOINLINE void name(const dpari_kern_job *job)                                     \
    {                                                                                              \
        if (job->ins != 2 || job->outs > 2) {                                                      \
            dpari_kern_sum_many(job, type);                                                        \
        } else if (job->outs == 2) {                                                               \
            dpari_kern_sum_two(job, 2, type);                                                      \
        } else {                                                                                   \
            dpari_kern_sum_two(job, 1, type);                                                      \
        }                                                                                          \
    }
DPARI_KERN_SUMS(dpari_kern_sum_f32, DPAR_F32)
DPARI_KERN_SUMS(dpari_kern_sum_f64, DPAR_F64)

DPARI_STATIC_NOINLINE void dpari_kern_sum_bf16(const dpari_kern_job *job)
{
    dpari_kern_sum_many(job, DPAR_BF16);
}

DPARI_STATIC_NOINLINE void dpari_kern_sum_through_bf16(const dpari_kern_job *job)
{
    dpari_kern_sum_many(job, DPARI_KERN_THROUGH(DPAR_BF16));
}

DPARI_STATIC_NOINLINE void dpari_kern_sum_f16(const dpari_kern_job *job)
{
    dpari_kern_sum_many(job, DPAR_F16);
}

/* ---- MAX and MIN, which are NaN if one input is ---- */

DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_choose(dpari_kern_u4 s, dpari_kern_u4 t, int32_t type,
                                                  int32_t most)
{
    const dpari_kern_u4 above = most ? s : t;
    const dpari_kern_u4 below = most ? t : s;
    dpari_kern_u4 more = (dpari_kern_u4)((dpari_kern_i4)above > (dpari_kern_i4)below);
    if (type == DPAR_F32) {
        more = (dpari_kern_u4)((dpari_kern_f4)above > (dpari_kern_f4)below);
    } else if (type == DPAR_F64) {
        more = (dpari_kern_u4)((dpari_kern_d2)above > (dpari_kern_d2)below);
    }
    return dpari_kern_pick(type == DPAR_I32 ? more : more | dpari_kern_nan(s, type), s, t);
}

DPARI_KERN_INLINE void dpari_kern_most(const dpari_kern_job *job, int32_t type, int32_t most)
{
    int64_t at;
    int32_t i;
    for (at = job->at; at < job->end; at += DPARI_KERN_LINE) {
        dpari_kern_quad x, y;
        dpari_kern_load(&x, dpari_kern_at(job->in[0], at), type);
        for (i = 1; i < job->ins; i++) {
            dpari_kern_load(&y, dpari_kern_at(job->in[i], at), type);
            DPARI_FOUR(x.v[q] = dpari_kern_choose(x.v[q], y.v[q], type, most));
        }
        dpari_kern_finish(&x, type, 0, 1.0f);
        for (i = 0; i < job->outs; i++) {
            dpari_kern_store((unsigned char *)job->out[i] + at, &x, job->stream);
        }
    }
}

#define DPARI_KERN_MOST(name, type)                                                                \
    DPARI_STATIC_NOINLINE void name(const dpari_kern_job *job)                                     \
    {                                                                                              \
        if (job->op == DPAR_MAX) {                                                                 \
            dpari_kern_most(job, type, 1);                                                         \
        } else {                                                                                   \
            dpari_kern_most(job, type, 0);                                                         \
        }                                                                                          \
    }
DPARI_KERN_MOST(dpari_kern_most_f32, DPAR_F32)
DPARI_KERN_MOST(dpari_kern_most_f64, DPAR_F64)
DPARI_KERN_MOST(dpari_kern_most_i32, DPAR_I32)

static int dpari_kern_whole_most(const dpari_kern_job *job)
{
    switch (job->op == DPAR_MAX || job->op == DPAR_MIN ? job->type : DPAR_TYPE_COUNT) {
    case DPAR_F32: dpari_kern_most_f32(job); return 1;
    case DPAR_F64: dpari_kern_most_f64(job); return 1;
    case DPAR_I32: dpari_kern_most_i32(job); return 1;
    default: return 0;
    }
}

static void dpari_kern_whole(const dpari_kern_job *job)
{
    switch (job->op == DPAR_SUM || job->op == DPAR_AVG ? job->type : DPAR_TYPE_COUNT) {
    case DPAR_F32: dpari_kern_sum_f32(job); break;
    case DPAR_F64: dpari_kern_sum_f64(job); break;
    case DPAR_F16: dpari_kern_sum_f16(job); break;
    case DPAR_BF16: dpari_kern_sum_bf16(job); break;
    case DPARI_KERN_THROUGH(DPAR_BF16): dpari_kern_sum_through_bf16(job); break;
    default:
        if (!dpari_kern_whole_most(job)) {
            dpari_kern_any(job, job->at, job->end);
        }
        break;
    }
}

#if defined(__x86_64__)
static int64_t dpari_kern_wide_sum(const dpari_kern_job *job);
#endif

/* Runs a reduction. Lines are those of the first destination. */
static void dpari_kern_run(dpari_kern_job *job)
{
    const uintptr_t past = (uintptr_t)job->out[0] & (DPARI_KERN_LINE - 1);
    job->at = job->bytes < 512 || past == 0 ? 0 : DPARI_KERN_LINE - (int64_t)past;
    job->end = job->bytes - (job->bytes - job->at) % DPARI_KERN_LINE;
    if (job->at > 0) {
        dpari_kern_any(job, 0, job->at);
    }
#if defined(__x86_64__)
    job->at = dpari_kern_wide_sum(job);
#endif
    if (job->at < job->end) {
        dpari_kern_whole(job);
    }
    if (job->end < job->bytes) {
        dpari_kern_any(job, job->end, job->bytes);
    }
    if (job->stream) {
        dpari_kern_fence();
    }
}

#else /* by elements */

/* Returns the bits of one element. The bits of an accumulator are those of an element, or of an f32
 * for 16-bit types. */
static uint64_t dpari_kern_get(const unsigned char *from, int32_t width)
{
    uint8_t a = 0;
    uint16_t b = 0;
    uint32_t c = 0;
    uint64_t d = 0;
    switch (width) {
    case 1: dpari_kern_move(&a, from, 1); return a;
    case 2: dpari_kern_move(&b, from, 2); return b;
    case 4: dpari_kern_move(&c, from, 4); return c;
    default: dpari_kern_move(&d, from, 8); return d;
    }
}

static void dpari_kern_put(unsigned char *to, uint64_t bits, int32_t width)
{
    const uint8_t a = (uint8_t)(bits & 0xff);
    const uint16_t b = (uint16_t)(bits & 0xffff);
    const uint32_t c = (uint32_t)(bits & 0xffffffffu);
    switch (width) {
    case 1: dpari_kern_move(to, &a, 1); break;
    case 2: dpari_kern_move(to, &b, 2); break;
    case 4: dpari_kern_move(to, &c, 4); break;
    default: dpari_kern_move(to, &bits, 8); break;
    }
}

static uint64_t dpari_kern_widen(uint64_t bits, int32_t type)
{
    const uint32_t h = (uint32_t)bits, sign = (h & 0x8000u) << 16;
    uint32_t size = h & 0x7fffu, exponent = 0x38800000u;
    if (type == DPAR_BF16) {
        return h << 16;
    }
    if (type != DPAR_F16) {
        return bits;
    }
    if (size >= 0x7c00u) { /* infinity, or NaN, which becomes quiet as in arithmetic */
        return sign | (size << 13) | (size > 0x7c00u ? 0x7fc00000u : 0x7f800000u);
    }
    if (size >= 0x400u) {
        return sign | ((size << 13) + 0x38000000u);
    }
    if (size == 0) {
        return sign;
    }
    while (size < 0x400u) { /* a subnormal is shifted at most 10 times */
        size <<= 1;
        exponent -= 0x800000u;
    }
    return sign | (exponent + ((size & 0x3ffu) << 13));
}

/* Shifts `bits` out, rounding to nearest even. */
static uint32_t dpari_kern_shift(uint32_t x, uint32_t bits)
{
    const uint32_t half = (uint32_t)1 << (bits - 1);
    return (x + half - 1 + ((x >> bits) & 1u)) >> bits;
}

static uint64_t dpari_kern_narrow(uint64_t bits, int32_t type)
{
    const uint32_t x = (uint32_t)bits, sign = (x >> 16) & 0x8000u, size = x & 0x7fffffffu;
    const uint32_t exponent = size >> 23;
    if (type == DPAR_BF16) {
        return size > 0x7f800000u ? 0x7fc0u : dpari_kern_shift(x, 16);
    }
    if (type == DPAR_F32) {
        return size > 0x7f800000u ? 0x7fc00000u : x;
    }
    if (type == DPAR_F64) {
        return (bits & INT64_MAX) > UINT64_C(0x7ff) << 52 ? UINT64_C(0x7ff8) << 48 : bits;
    }
    if (type != DPAR_F16) {
        return bits;
    }
    if (size >= 0x47800000u) { /* 65536 and above, infinity and NaN */
        return size > 0x7f800000u ? 0x7e00u : sign | 0x7c00u;
    }
    if (exponent >= 113) {
        return sign | dpari_kern_shift(size - 0x38000000u, 13);
    }
    if (exponent < 102) { /* below half the smallest subnormal */
        return sign;
    }
    return sign | dpari_kern_shift((size & 0x7fffffu) | 0x800000u, 126 - exponent);
}

/* Returns the number whose bits these are: an f64, or an f32. */
static double dpari_kern_number(uint64_t bits, int32_t type)
{
    const uint32_t low = (uint32_t)bits;
    double d;
    float f;
    dpari_kern_move(&d, &bits, 8);
    dpari_kern_move(&f, &low, 4);
    return type == DPAR_F64 ? d : (double)f;
}

/* Computes x op y for floats. AVG divides by the integer y. Each result is stored in memory,
 * because x87 rounds only then: f64 perhaps twice, and f32 correctly, because the result of an
 * operation in f64, rounded to f32, equals that in f32. */
static uint64_t dpari_kern_meet_floats(uint64_t x, uint64_t y, int32_t type, int32_t op)
{
    const double a = dpari_kern_number(x, type);
    const double b = op == DPAR_AVG ? (double)y : dpari_kern_number(y, type);
    volatile double exact;
    volatile float f;
    double d;
    float rounded;
    uint32_t low;
    switch (op) {
    case DPAR_PRODUCT: exact = a * b; break;
    case DPAR_MAX: return a > b || a != a ? x : y;
    case DPAR_MIN: return a < b || a != a ? x : y;
    case DPAR_AVG: exact = a / b; break;
    default: exact = a + b; break;
    }
    d = exact;
    f = (float)d;
    rounded = f;
    dpari_kern_move(&x, &d, 8);
    dpari_kern_move(&low, &rounded, 4);
    return type == DPAR_F64 ? x : low;
}

#define DPARI_KERN_MEET(kind, wraps, compares, one, quotient)                                      \
    case kind:                                                                                     \
        switch (op) {                                                                              \
        case DPAR_PRODUCT: return x * y;                                                           \
        case DPAR_MAX: return (one)x > (one)y ? x : y;                                             \
        case DPAR_MIN: return (one)x > (one)y ? y : x;                                             \
        case DPAR_AVG: return (uint64_t)((quotient)(one)x / (quotient)y);                          \
        default: return x + y;                                                                     \
        }

/* Computes x op y for accumulators. AVG divides x by the number y. */
static uint64_t dpari_kern_meet(uint64_t x, uint64_t y, int32_t type, int32_t op)
{
    switch (type) {
        DPARI_KERN_INTS(DPARI_KERN_MEET)
    default: return dpari_kern_meet_floats(x, y, type, op);
    }
}

/* Rounds an accumulator to the type `wire`. */
static uint64_t dpari_kern_round(uint64_t x, int32_t wire, int32_t type)
{
    return wire == type ? x : dpari_kern_widen(dpari_kern_narrow(x, wire), wire);
}

static void dpari_kern_run(dpari_kern_job *job)
{
    const int32_t type = dpari_kern_stored(job->type), wire = dpari_kern_wire(job->type);
    const int32_t width = dpar_type_bytes(type);
    const int32_t op = job->op == DPAR_AVG ? DPAR_SUM : job->op;
    const uint64_t all = UINT64_MAX >> (64 - 8 * (width == 2 ? 4 : width));
    int64_t at;
    int32_t i;
    for (at = 0; at < job->bytes; at += width) {
        uint64_t x =
            dpari_kern_widen(dpari_kern_get((const unsigned char *)job->in[0] + at, width), type);
        x = dpari_kern_round(x, wire, type);
        for (i = 1; i < job->ins; i++) {
            const unsigned char *from = (const unsigned char *)job->in[i] + at;
            uint64_t y = dpari_kern_widen(dpari_kern_get(from, width), type);
            x = dpari_kern_meet(x, dpari_kern_round(y, wire, type), type, op) & all;
        }
        if (job->op == DPAR_AVG && job->ins > 1) {
            x = dpari_kern_meet(x, (uint64_t)job->ins, type, DPAR_AVG);
        }
        x = dpari_kern_narrow(dpari_kern_round(x, wire, type), type);
        for (i = 0; i < job->outs; i++) {
            dpari_kern_put((unsigned char *)job->out[i] + at, x, width);
        }
    }
}

#endif /* DPARI_KERN_VECTOR */

#if DPARI_KERN_STREAM
/* Copies whole lines of the destination with streaming stores, after an unaligned head. `to` has at
 * least one line. */
static void dpari_kern_copy_past(unsigned char *to, const unsigned char *from, int64_t bytes)
{
    const int64_t head = (int64_t)((0 - (uintptr_t)to) & (DPARI_KERN_LINE - 1));
    int64_t at;
    dpari_kern_move(to, from, head);
    for (at = head; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        dpari_kern_quad x;
        dpari_kern_ahead(from + at);
        dpari_kern_load(&x, from + at, DPAR_U8);
        dpari_kern_store(to + at, &x, 1);
    }
    dpari_kern_move(to + at, from + at, bytes - at);
    dpari_kern_fence();
}
#endif

DPARI_API DPARI_NOINLINE void dpari_kern_copy(void *to, const void *from, int64_t bytes,
                                              int32_t stream)
{
    if (bytes <= 0 || to == from) {
        return;
    }
#if DPARI_KERN_STREAM
    if (stream && bytes >= 4 * DPARI_KERN_LINE) {
        dpari_kern_copy_past((unsigned char *)to, (const unsigned char *)from, bytes);
        return;
    }
#endif
    (void)stream;
    dpari_kern_move(to, from, bytes);
}

#if DPARI_KERN_VECTOR
DPARI_KERN_INLINE void dpari_kern_fetch_line(unsigned char *to, const unsigned char *from)
{
    dpari_kern_quad x;
    dpari_kern_load(&x, from, DPAR_U8);
    /* into the second-level cache, because more lines can be fetched into it at a time than into
     * the first */
    __builtin_prefetch((const void *)((uintptr_t)from + DPARI_KERN_FAR_AHEAD), 0, 2);
    dpari_kern_store(to, &x, 0);
}
#endif

DPARI_INTERNAL void dpari_kern_fetch(void *to, const void *from, int64_t bytes)
{
    int64_t at = 0;
#if DPARI_KERN_VECTOR
    for (; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        dpari_kern_fetch_line((unsigned char *)to + at, (const unsigned char *)from + at);
    }
#endif
    dpari_kern_copy((unsigned char *)to + at, (const unsigned char *)from + at, bytes - at, 0);
}

DPARI_INTERNAL void dpari_kern_fetch_beside(void *to, const void *from, void *to_2,
                                            const void *from_2, int64_t bytes)
{
    int64_t at = 0;
#if DPARI_KERN_VECTOR
    for (; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        dpari_kern_fetch_line((unsigned char *)to + at, (const unsigned char *)from + at);
        dpari_kern_fetch_line((unsigned char *)to_2 + at, (const unsigned char *)from_2 + at);
    }
#endif
    dpari_kern_copy((unsigned char *)to + at, (const unsigned char *)from + at, bytes - at, 0);
    dpari_kern_copy((unsigned char *)to_2 + at, (const unsigned char *)from_2 + at, bytes - at, 0);
}

DPARI_API void dpari_kern_row(void *to, const void *from, const void *next, int64_t bytes,
                              int32_t stream)
{
    unsigned char *t = (unsigned char *)to;
    const unsigned char *f = (const unsigned char *)from;
    int64_t at = 0;
#if DPARI_KERN_VECTOR
    const int64_t ahead = dpari_least(bytes, DPARI_KERN_FAR_AHEAD);
    if (stream && bytes >= 4 * DPARI_KERN_LINE) {
        at = (int64_t)((0 - (uintptr_t)t) & (DPARI_KERN_LINE - 1));
        dpari_kern_move(t, f, at);
    }
    for (; bytes - at >= DPARI_KERN_LINE; at += DPARI_KERN_LINE) {
        const int64_t then = at + ahead;
        const uintptr_t of = (uintptr_t)(then < bytes ? from : next);
        dpari_kern_quad x;
        __builtin_prefetch((const void *)(of + (uintptr_t)(then < bytes ? then : then - bytes)), 0,
                           2);
        dpari_kern_load(&x, f + at, DPAR_U8);
        dpari_kern_store(t + at, &x, stream);
    }
#else
    (void)next;
    (void)stream;
#endif
    dpari_kern_move(t + at, f + at, bytes - at);
}

DPARI_API void dpari_kern_rows_end(int32_t stream)
{
#if DPARI_KERN_VECTOR
    if (stream) {
        dpari_kern_fence();
    }
#else
    (void)stream;
#endif
}

DPARI_API void dpari_kern_ask(const void *at, int64_t bytes)
{
#if DPARI_KERN_VECTOR
    const int64_t end = dpari_least(bytes, 4096);
    int64_t i;
    for (i = 0; i < end; i += DPARI_KERN_LINE) {
        __builtin_prefetch((const unsigned char *)at + i, 0, 2);
    }
#else
    (void)at;
    (void)bytes;
#endif
}

#if DPARI_KERN_VECTOR
/* Reduces one f32, such as a loss or a norm, faster than a whole line would be and with the same
 * bits. */
static void dpari_kern_one_f32(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                               int32_t average)
{
    float x, y;
    uint32_t quiet = 0x7fc00000u;
    __builtin_memcpy(&x, in[0], 4);
    for (int32_t i = 1; i < ins; i++) {
        __builtin_memcpy(&y, in[i], 4);
        x += y;
    }
    x = average ? x / (float)ins : x;
    if (x != x) {
        __builtin_memcpy(&x, &quiet, 4);
    }
    for (int32_t i = 0; i < outs; i++) {
        __builtin_memcpy(out[i], &x, 4);
    }
}
#endif

/* Copies one input to many outputs, in pieces that stay in the cache until all outputs have them.
 */
static void dpari_kern_spread(const dpari_kern_job *job)
{
    const int64_t piece = 16384;
    int64_t at;
    int32_t i;
    for (at = 0; at < job->bytes; at += piece) {
        for (i = 0; i < job->outs; i++) {
            dpari_kern_copy((unsigned char *)job->out[i] + at,
                            (const unsigned char *)job->in[0] + at,
                            dpari_least(piece, job->bytes - at), job->stream);
        }
    }
}

DPARI_API void dpari_kern_reduce(void *const *out, int32_t outs, const void *const *in, int32_t ins,
                                 int64_t count, int32_t type, int32_t op, int32_t stream)
{
    dpari_kern_job job;
#if DPARI_KERN_VECTOR
    if (count == 1 && ins > 1 && type == DPAR_F32 && (op == DPAR_SUM || op == DPAR_AVG)) {
        dpari_kern_one_f32(out, outs, in, ins, op == DPAR_AVG);
        return;
    }
#endif
    job.out = out;
    job.in = in;
    job.bytes = count * dpar_type_bytes(dpari_kern_stored(type));
    job.outs = outs;
    job.ins = ins;
    job.type = type;
    job.op = op;
    job.stream = stream;
    if (ins > 1 || type >= DPAR_TYPE_COUNT) {
        dpari_kern_run(&job);
    } else if (outs == 1) {
        dpari_kern_copy(out[0], in[0], job.bytes, stream);
    } else {
        dpari_kern_spread(&job);
    }
}

/* ---- conversions ----------------------------------------------------------------------------- */

#if DPARI_KERN_VECTOR
enum { DPARI_KERN_GROUP = 16 }; /* elements, a line of f32 */

/* Returns the vector of words i, j, k and l, where 0 .. 3 are those of a and 4 .. 7 those of b. */
#if defined(__clang__)
#define DPARI_KERN_WORDS(a, b, i, j, k, l)                                                         \
    ((dpari_kern_u4)__builtin_shufflevector(a, b, i, j, k, l))
#else
#define DPARI_KERN_WORDS(a, b, i, j, k, l) dpari_kern_words(a, b, i, j, k, l)
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_words(dpari_kern_u4 a, dpari_kern_u4 b, uint32_t i,
                                                 uint32_t j, uint32_t k, uint32_t l)
{
    const dpari_kern_u4 which = {i, j, k, l};
    return __builtin_shuffle(a, b, which);
}
#endif

DPARI_KERN_INLINE void dpari_kern_put(unsigned char *to, dpari_kern_u4 v)
{
    __builtin_memcpy(to, &v, 16);
}

/* In memory, even 16-bit elements come first. They are the low halves of words, or the high halves
 * on a big-endian CPU. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
enum { DPARI_KERN_HIGH_FIRST = 1 };
#else
enum { DPARI_KERN_HIGH_FIRST = 0 };
#endif

/* Convert eight 16-bit elements to f32, and back. */
DPARI_KERN_INLINE void dpari_kern_wide(unsigned char *to, const unsigned char *from, int32_t type)
{
    dpari_kern_u4 low, high, even, odd;
    dpari_kern_widen(dpari_kern_get(from), type, &low, &high);
    even = DPARI_KERN_HIGH_FIRST ? high : low;
    odd = DPARI_KERN_HIGH_FIRST ? low : high;
    dpari_kern_put(to, DPARI_KERN_WORDS(even, odd, 0, 4, 1, 5));
    dpari_kern_put(to + 16, DPARI_KERN_WORDS(even, odd, 2, 6, 3, 7));
}

DPARI_KERN_INLINE void dpari_kern_thin(unsigned char *to, const unsigned char *from, int32_t type)
{
    const dpari_kern_u4 a = dpari_kern_get(from), b = dpari_kern_get(from + 16);
    const dpari_kern_u4 even = DPARI_KERN_WORDS(a, b, 0, 2, 4, 6);
    const dpari_kern_u4 odd = DPARI_KERN_WORDS(a, b, 1, 3, 5, 7);
    dpari_kern_put(to, DPARI_KERN_HIGH_FIRST ? dpari_kern_narrow(odd, even, type)
                                             : dpari_kern_narrow(even, odd, type));
}

/* Convert four f64 to f32, and back. */
DPARI_KERN_INLINE void dpari_kern_thin_f64(unsigned char *to, const unsigned char *from)
{
    const dpari_kern_d2 a = (dpari_kern_d2)dpari_kern_get(from);
    const dpari_kern_d2 b = (dpari_kern_d2)dpari_kern_get(from + 16);
    const dpari_kern_f4 f = {(float)a[0], (float)a[1], (float)b[0], (float)b[1]};
    const dpari_kern_u4 nan = (dpari_kern_u4)(f != f);
    dpari_kern_put(to, dpari_kern_pick(nan, dpari_kern_all(0x7fc00000u), (dpari_kern_u4)f));
}

/* Loads two f32 as f64, which compilers turn into one instruction. */
DPARI_KERN_INLINE dpari_kern_d2 dpari_kern_two(const unsigned char *from)
{
    float f[2];
    __builtin_memcpy(f, from, 8);
    {
        const dpari_kern_d2 d = {(double)f[0], (double)f[1]};
        return d;
    }
}
DPARI_KERN_INLINE void dpari_kern_wide_f64(unsigned char *to, const unsigned char *from)
{
    dpari_kern_put(to, (dpari_kern_u4)dpari_kern_two(from));
    dpari_kern_put(to + 16, (dpari_kern_u4)dpari_kern_two(from + 8));
}

/* Converts one group of DPARI_KERN_GROUP elements. */
DPARI_KERN_INLINE void dpari_kern_group(unsigned char *to, int32_t to_type,
                                        const unsigned char *from, int32_t from_type)
{
    int32_t i;
    for (i = 0; i < DPARI_KERN_GROUP; i += 8) {
        if (dpari_kern_is16(from_type)) {
            dpari_kern_wide(to + 4 * i, from + 2 * i, from_type);
        } else if (dpari_kern_is16(to_type)) {
            dpari_kern_thin(to + 2 * i, from + 4 * i, to_type);
        } else if (to_type == DPAR_F64) {
            dpari_kern_wide_f64(to + 8 * i, from + 4 * i);
            dpari_kern_wide_f64(to + 8 * i + 32, from + 4 * i + 16);
        } else {
            dpari_kern_thin_f64(to + 4 * i, from + 8 * i);
            dpari_kern_thin_f64(to + 4 * i + 16, from + 8 * i + 32);
        }
    }
}

DPARI_STATIC_NOINLINE void dpari_kern_group_any(unsigned char *to, int32_t to_type,
                                                const unsigned char *from, int32_t from_type)
{
    dpari_kern_group(to, to_type, from, from_type);
}

/* Defines a function for each pair of types, which converts `count` elements, a multiple of a
 * group. */
#define DPARI_KERN_GROUPS(name, to_type, to_bytes, from_type, from_bytes)                          \
    DPARI_STATIC_NOINLINE void name(unsigned char *to, const unsigned char *from, int64_t count)   \
    {                                                                                              \
        int64_t i;                                                                                 \
        for (i = 0; i < count; i += DPARI_KERN_GROUP) {                                            \
            dpari_kern_ahead(from + i * (from_bytes));                                             \
            if ((to_type) == DPAR_F64) {                                                           \
                dpari_kern_ahead_to(to + 8 * i, 8 * (count - i));                                  \
                dpari_kern_ahead_to(to + 8 * i + 64, 8 * (count - i) - 64);                        \
            }                                                                                      \
            dpari_kern_group(to + i * (to_bytes), to_type, from + i * (from_bytes), from_type);    \
        }                                                                                          \
    }

DPARI_KERN_GROUPS(dpari_kern_bf16_f32, DPAR_F32, 4, DPAR_BF16, 2)
DPARI_KERN_GROUPS(dpari_kern_f16_f32, DPAR_F32, 4, DPAR_F16, 2)
DPARI_KERN_GROUPS(dpari_kern_f32_bf16, DPAR_BF16, 2, DPAR_F32, 4)
DPARI_KERN_GROUPS(dpari_kern_f32_f16, DPAR_F16, 2, DPAR_F32, 4)
DPARI_KERN_GROUPS(dpari_kern_f32_f64, DPAR_F64, 8, DPAR_F32, 4)
DPARI_KERN_GROUPS(dpari_kern_f64_f32, DPAR_F32, 4, DPAR_F64, 8)

/* ---- the same with vectors of 32 bytes ---- */

#if defined(__x86_64__)
#define DPARI_KERN_WIDE 1
#define DPARI_KERN_IN_WIDE __attribute__((target("avx2,f16c"))) static
enum { DPARI_KERN_ASKS = 131072 }; /* elements from which a query of the CPU's features pays off */
typedef uint32_t dpari_kern_w8 __attribute__((vector_size(32)));
typedef int32_t dpari_kern_s8 __attribute__((vector_size(32)));
typedef float dpari_kern_f8 __attribute__((vector_size(32)));
typedef long long dpari_kern_l4 __attribute__((vector_size(32)));

/* Loads eight f16 as f32. */
__attribute__((target("avx2,f16c"), always_inline)) static DPARI_INLINED void
dpari_kern_wide_half(dpari_kern_f8 *to, const unsigned char *from)
{
    const dpari_kern_u4 x = dpari_kern_get(from);
    __asm__("vcvtph2ps %1, %0" : "=x"(*to) : "x"(x));
}

/* Stores 16 floats as 16-bit elements. Returns 0 if one of them is NaN; then nothing is stored. */
__attribute__((target("avx2,f16c"), always_inline)) static DPARI_INLINED int
dpari_kern_wide_put(unsigned char *to, const dpari_kern_f8 *low, const dpari_kern_f8 *high,
                    int32_t type)
{
    const dpari_kern_f8 sum = *low + *high;
    dpari_kern_w8 a = (dpari_kern_w8)*low, b = (dpari_kern_w8)*high;
    dpari_kern_l4 all;
    dpari_kern_u4 x, y;
    if (__builtin_expect(__builtin_ia32_movmskps256((dpari_kern_f8)(sum != sum)) != 0, 0)) {
        return 0;
    }
    if (type == DPAR_F16) { /* $0 rounds to nearest even */
        __asm__("vcvtps2ph $0, %1, %0" : "=x"(x) : "x"(*low));
        __asm__("vcvtps2ph $0, %1, %0" : "=x"(y) : "x"(*high));
        dpari_kern_put(to, x);
        dpari_kern_put(to + 16, y);
        return 1;
    }
    a = (a + 0x7fffu + ((a >> 16) & 1u)) >> 16;
    b = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    all = (dpari_kern_l4)__builtin_ia32_packusdw256((dpari_kern_s8)a, (dpari_kern_s8)b);
    all = __builtin_ia32_permdi256(all, 0xd8); /* halves of a and of b side by side */
    __builtin_memcpy(to, &all, 32);
    return 1;
}

/* Converts f32 to 16 bits. Groups with a NaN, which are rare, are converted without wide vectors.
 */
__attribute__((target("avx2,f16c"), always_inline)) static DPARI_INLINED void
dpari_kern_wide_thin(unsigned char *to, const unsigned char *from, int64_t count, int32_t type)
{
    int64_t i;
    for (i = 0; i < count; i += DPARI_KERN_GROUP) {
        dpari_kern_f8 a, b;
        dpari_kern_ahead(from + 4 * i);
        __builtin_memcpy(&a, from + 4 * i, 32);
        __builtin_memcpy(&b, from + 4 * i + 32, 32);
        if (!dpari_kern_wide_put(to + 2 * i, &a, &b, type)) {
            dpari_kern_group_any(to + 2 * i, type, from + 4 * i, DPAR_F32);
        }
    }
}

DPARI_KERN_IN_WIDE void dpari_kern_wide_f32_bf16(unsigned char *to, const unsigned char *from,
                                                 int64_t count)
{
    dpari_kern_wide_thin(to, from, count, DPAR_BF16);
}

DPARI_KERN_IN_WIDE void dpari_kern_wide_f32_f16(unsigned char *to, const unsigned char *from,
                                                int64_t count)
{
    dpari_kern_wide_thin(to, from, count, DPAR_F16);
}

DPARI_KERN_IN_WIDE void dpari_kern_wide_f16_f32(unsigned char *to, const unsigned char *from,
                                                int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i += 8) {
        dpari_kern_f8 a;
        dpari_kern_ahead(from + 2 * i);
        dpari_kern_wide_half(&a, from + 2 * i);
        __builtin_memcpy(to + 4 * i, &a, 32);
    }
}

/* Sums two inputs of f16 from job->at on. Returns where the rest begins. If 16 elements have a NaN
 * among them, dpari_kern_any sums them. */
DPARI_KERN_IN_WIDE int64_t dpari_kern_wide_sum_f16(const dpari_kern_job *job)
{
    const unsigned char *x = (const unsigned char *)job->in[0];
    const unsigned char *y = (const unsigned char *)job->in[1];
    unsigned char *to = (unsigned char *)job->out[0];
    int64_t at;
    for (at = job->at; at + 32 <= job->end; at += 32) {
        dpari_kern_f8 low, high, other;
        dpari_kern_ahead(x + at);
        dpari_kern_ahead(y + at);
        dpari_kern_wide_half(&low, x + at);
        dpari_kern_wide_half(&other, y + at);
        low += other;
        dpari_kern_wide_half(&high, x + at + 16);
        dpari_kern_wide_half(&other, y + at + 16);
        high += other;
        if (!dpari_kern_wide_put(to + at, &low, &high, DPAR_F16)) {
            dpari_kern_any(job, at, at + 32);
        }
    }
    return at;
}

static int64_t dpari_kern_wide_sum(const dpari_kern_job *job)
{
    if (job->op != DPAR_SUM || job->ins != 2 || job->outs != 1 || job->stream ||
        job->end - job->at < 2 * DPARI_KERN_ASKS || job->type != DPAR_F16 || !dpari_cpu_wide()) {
        return job->at;
    }
    return dpari_kern_wide_sum_f16(job);
}

/* Converts groups if there is a loop with wide vectors for these types. Returns 0 if there is
 * none. */
static int dpari_kern_wide_groups(unsigned char *to, int32_t to_type, const unsigned char *from,
                                  int32_t from_type, int64_t count)
{
    if (from_type == DPAR_F16) {
        dpari_kern_wide_f16_f32(to, from, count);
    } else if (to_type == DPAR_BF16) {
        dpari_kern_wide_f32_bf16(to, from, count);
    } else if (to_type == DPAR_F16) {
        dpari_kern_wide_f32_f16(to, from, count);
    } else {
        return 0;
    }
    return 1;
}
#else
#define DPARI_KERN_WIDE 0
#endif

static void dpari_kern_groups(unsigned char *to, int32_t to_type, const unsigned char *from,
                              int32_t from_type, int64_t count)
{
#if DPARI_KERN_WIDE
    if (count >= DPARI_KERN_ASKS && dpari_cpu_wide() &&
        dpari_kern_wide_groups(to, to_type, from, from_type, count)) {
        return;
    }
#endif
    if (from_type == DPAR_BF16) {
        dpari_kern_bf16_f32(to, from, count);
    } else if (from_type == DPAR_F16) {
        dpari_kern_f16_f32(to, from, count);
    } else if (to_type == DPAR_BF16) {
        dpari_kern_f32_bf16(to, from, count);
    } else if (to_type == DPAR_F16) {
        dpari_kern_f32_f16(to, from, count);
    } else if (to_type == DPAR_F64) {
        dpari_kern_f32_f64(to, from, count);
    } else {
        dpari_kern_f64_f32(to, from, count);
    }
}
#else
#define DPARI_KERN_WIDE 0
enum { DPARI_KERN_GROUP = 1 };

/* Converts one element. The f32 of an f64 is stored in memory, because x87 rounds only then. */
static void dpari_kern_group_any(unsigned char *to, int32_t to_type, const unsigned char *from,
                                 int32_t from_type)
{
    const int32_t width = dpar_type_bytes(from_type);
    volatile float f;
    double d;
    uint64_t x = dpari_kern_get(from, width);
    uint32_t bits = (uint32_t)x;
    float value;
    if (from_type == DPAR_F64) {
        dpari_kern_move(&d, &x, 8);
        f = (float)d;
        value = f;
        dpari_kern_move(&bits, &value, 4);
        x = dpari_kern_narrow(bits, DPAR_F32);
    } else if (to_type == DPAR_F64) {
        dpari_kern_move(&value, &bits, 4);
        d = (double)value;
        dpari_kern_move(&x, &d, 8);
    } else {
        x = to_type == DPAR_F32 ? dpari_kern_widen(x, from_type) : dpari_kern_narrow(x, to_type);
    }
    dpari_kern_put(to, x, dpar_type_bytes(to_type));
}

static void dpari_kern_groups(unsigned char *to, int32_t to_type, const unsigned char *from,
                              int32_t from_type, int64_t count)
{
    const int32_t to_size = dpar_type_bytes(to_type), from_size = dpar_type_bytes(from_type);
    int64_t i;
    for (i = 0; i < count; i++) {
        dpari_kern_group_any(to + i * to_size, to_type, from + i * from_size, from_type);
    }
}
#endif

DPARI_API void dpari_kern_convert(void *to, int32_t to_type, const void *from, int32_t from_type,
                                  int64_t count)
{
    unsigned char in[8 * DPARI_KERN_GROUP] = {0}, out[8 * DPARI_KERN_GROUP];
    const int32_t to_size = dpar_type_bytes(to_type), from_size = dpar_type_bytes(from_type);
    const int64_t left = count % DPARI_KERN_GROUP, whole = count - left;
    if (whole > 0) {
        dpari_kern_groups((unsigned char *)to, to_type, (const unsigned char *)from, from_type,
                          whole);
    }
    if (left > 0) {
        dpari_kern_move(in, (const unsigned char *)from + whole * from_size, left * from_size);
        dpari_kern_group_any(out, to_type, in, from_type);
        dpari_kern_move((unsigned char *)to + whole * to_size, out, left * to_size);
    }
}

/* ---- rows and scaling ------------------------------------------------------------------------ */

#if DPARI_KERN_VECTOR
/* Rounds four f64 to f32. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_four(dpari_kern_d2 a, dpari_kern_d2 b)
{
#if defined(__SSE2__)
    const dpari_kern_f4 x = __builtin_ia32_cvtpd2ps(a), y = __builtin_ia32_cvtpd2ps(b);
    return DPARI_KERN_WORDS((dpari_kern_u4)x, (dpari_kern_u4)y, 0, 1, 4, 5);
#else
    const dpari_kern_f4 f = {(float)a[0], (float)a[1], (float)b[0], (float)b[1]};
    return (dpari_kern_u4)f;
#endif
}

/* Mixes a line of f32. */
DPARI_KERN_INLINE void dpari_kern_mix_line(dpari_kern_quad *x, const void *const *row,
                                           const double *by, int32_t n, int64_t at)
{
    dpari_kern_d2 low[4] = {{0.0, 0.0}}, high[4] = {{0.0, 0.0}};
    int32_t j;
    for (j = 0; j < n; j++) {
        const unsigned char *from = (const unsigned char *)row[j] + at;
        const dpari_kern_d2 w = {by[j], by[j]};
        DPARI_FOUR(low[q] += w * dpari_kern_two(from + 16 * q);
                   high[q] += w * dpari_kern_two(from + 16 * q + 8));
    }
    DPARI_FOUR(x->v[q] = dpari_kern_four(low[q], high[q]));
}
#endif

DPARI_API void dpari_kern_mix(void *to, const void *const *row, const double *by, int32_t n,
                              const void *const *next, int32_t ahead, int64_t count, int32_t type,
                              int32_t stream)
{
    int64_t e = 0;
    int32_t j;
#if DPARI_KERN_VECTOR
    for (; type == DPAR_F32 && count - e >= 16; e += 16) {
        dpari_kern_quad x;
        for (j = 0; j < ahead; j++) {
            __builtin_prefetch((const float *)next[j] + e, 0, 2);
        }
        dpari_kern_mix_line(&x, row, by, n, e * 4);
        dpari_kern_store((unsigned char *)to + e * 4, &x, stream);
    }
#else
    (void)next;
    (void)ahead;
    (void)stream;
#endif
    for (; e < count; e++) {
        double sum = 0.0;
        for (j = 0; j < n; j++) {
            sum += by[j] * (type == DPAR_F32 ? (double)((const float *)row[j])[e]
                                             : ((const double *)row[j])[e]);
        }
        if (type == DPAR_F32) {
            ((float *)to)[e] = (float)sum;
        } else {
            ((double *)to)[e] = sum;
        }
    }
}

/* Scales at most 8 elements; each NaN becomes the same one. */
static void dpari_kern_scaled_some(float *to, const float *x, double by, int64_t n)
{
    const uint32_t quiet = 0x7fc00000u;
    int64_t i;
    for (i = 0; i < n; i++) {
        to[i] = (float)(by * (double)x[i]);
        if (to[i] != to[i]) {
            dpari_kern_move(to + i, &quiet, 4);
        }
    }
}

DPARI_INTERNAL void dpari_kern_scaled(float *to, const float *x, double by, int64_t n)
{
    int64_t i, k;
    for (i = 0; i < n; i += k) {
        k = dpari_least(8, n - i);
#if DPARI_KERN_VECTOR
        if (k == 8) {
            const dpari_kern_d2 times = {by, by};
            const unsigned char *at = (const unsigned char *)(x + i);
            dpari_kern_ahead(at);
            dpari_kern_ahead_to(to + i, 4 * (n - i));
            const dpari_kern_u4 c =
                dpari_kern_four(times * dpari_kern_two(at), times * dpari_kern_two(at + 8));
            const dpari_kern_u4 d =
                dpari_kern_four(times * dpari_kern_two(at + 16), times * dpari_kern_two(at + 24));
            const dpari_kern_f4 sum = (dpari_kern_f4)c + (dpari_kern_f4)d;
            if (!dpari_kern_some((dpari_kern_u4)(sum != sum))) {
                dpari_kern_put((unsigned char *)(to + i), c);
                dpari_kern_put((unsigned char *)(to + i + 4), d);
                continue;
            }
        }
#endif
        dpari_kern_scaled_some(to + i, x + i, by, k);
    }
}

#if DPARI_KERN_VECTOR
/* Adds eight elements of BF16 or F16 at `from` to the f32 at `to`. */
DPARI_KERN_INLINE void dpari_kern_add_eight(unsigned char *to, const unsigned char *from,
                                            int32_t type)
{
    dpari_kern_u4 low, high, even, odd;
    dpari_kern_f4 a = (dpari_kern_f4)dpari_kern_get(to), sum;
    dpari_kern_f4 b = (dpari_kern_f4)dpari_kern_get(to + 16);
    dpari_kern_widen(dpari_kern_get(from), type, &low, &high);
    even = DPARI_KERN_HIGH_FIRST ? high : low;
    odd = DPARI_KERN_HIGH_FIRST ? low : high;
    a += (dpari_kern_f4)DPARI_KERN_WORDS(even, odd, 0, 4, 1, 5);
    b += (dpari_kern_f4)DPARI_KERN_WORDS(even, odd, 2, 6, 3, 7);
    sum = a + b;
    if (dpari_kern_some((dpari_kern_u4)(sum != sum))) {
        a = (dpari_kern_f4)dpari_kern_quiet((dpari_kern_u4)a, DPAR_F32);
        b = (dpari_kern_f4)dpari_kern_quiet((dpari_kern_u4)b, DPAR_F32);
    }
    dpari_kern_put(to, (dpari_kern_u4)a);
    dpari_kern_put(to + 16, (dpari_kern_u4)b);
}
#endif

DPARI_INTERNAL void dpari_kern_add_to(float *to, const void *from, int32_t type, int64_t n)
{
    const unsigned char *f = (const unsigned char *)from;
    float x[8];
    void *out[1];
    const void *in[2];
    int64_t i = 0;
#if DPARI_KERN_VECTOR
    for (; n - i >= 8; i += 8) {
        dpari_kern_ahead(f + 2 * i);
        dpari_kern_ahead_to(to + i, 4 * (n - i));
        if (type == DPAR_BF16) {
            dpari_kern_add_eight((unsigned char *)(to + i), f + 2 * i, DPAR_BF16);
        } else {
            dpari_kern_add_eight((unsigned char *)(to + i), f + 2 * i, DPAR_F16);
        }
    }
#endif
    for (; i < n; i += 8) {
        const int64_t some = dpari_least(8, n - i);
        out[0] = to + i;
        in[0] = to + i;
        in[1] = x;
        dpari_kern_convert(x, DPAR_F32, f + 2 * i, type, some);
        dpari_kern_reduce(out, 1, in, 2, some, DPAR_F32, DPAR_SUM, 0);
    }
}

DPARI_API void dpari_kern_scale(void *to, const void *x, double by, int64_t n)
{
    int64_t i = 0;
#if DPARI_KERN_VECTOR
    /* the product of two f32 is exact in f64, so a product in f32 rounds it equally */
    const dpari_kern_f4 times = {(float)by, (float)by, (float)by, (float)by};
    for (; n - i >= 4; i += 4) {
        dpari_kern_f4 v = (dpari_kern_f4)dpari_kern_get((const unsigned char *)x + i * 4);
        v *= times;
        __builtin_memcpy((unsigned char *)to + i * 4, &v, 16);
    }
#endif
    for (; i < n; i++) {
        ((float *)to)[i] = (float)(by * (double)((const float *)x)[i]);
    }
}

/* ---- searching for NaN and infinity ---------------------------------------------------------- */

/* True if all bits of the exponent are set, as in NaN and infinity. */
static int dpari_kern_odd(const unsigned char *at, int32_t type)
{
    uint64_t f64;
    uint32_t f32;
    uint16_t f16;
    switch (type) {
    case DPAR_F64: dpari_kern_move(&f64, at, 8); return (~f64 & UINT64_C(0x7ff0000000000000)) == 0;
    case DPAR_F32: dpari_kern_move(&f32, at, 4); return (~f32 & 0x7f800000u) == 0;
    default:
        dpari_kern_move(&f16, at, 2);
        return (~(uint32_t)f16 & (type == DPAR_F16 ? 0x7c00u : 0x7f80u)) == 0;
    }
}

#if DPARI_KERN_VECTOR
typedef uint16_t dpari_kern_u8 __attribute__((vector_size(16)));

/* A vector that repeats 8 bytes. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_mask(uint64_t bits)
{
    const dpari_kern_u2 v = {bits, bits};
    return (dpari_kern_u4)v;
}

/* Compares exponents with `found`. The half of an f64 that has no exponent never matches. */
DPARI_KERN_INLINE dpari_kern_u4 dpari_kern_hits(const unsigned char *at, dpari_kern_u4 exponent,
                                                dpari_kern_u4 found, int32_t halves)
{
    const dpari_kern_u4 x = dpari_kern_get(at) & exponent;
    return halves ? (dpari_kern_u4)((dpari_kern_u8)x == (dpari_kern_u8)found)
                  : (dpari_kern_u4)(x == found);
}

/* Returns the first line of [0, end) with a NaN or infinity, or end. */
DPARI_KERN_INLINE int64_t dpari_kern_seek(const unsigned char *in, int64_t end, uint64_t exponent,
                                          uint64_t found, int32_t halves)
{
    const dpari_kern_u4 e = dpari_kern_mask(exponent), f = dpari_kern_mask(found);
    int64_t at;
    for (at = 0; at < end; at += DPARI_KERN_LINE) {
        const unsigned char *line = in + at;
        dpari_kern_u4 hits;
        dpari_kern_ahead(line);
        hits =
            (dpari_kern_hits(line, e, f, halves) | dpari_kern_hits(line + 16, e, f, halves)) |
            (dpari_kern_hits(line + 32, e, f, halves) | dpari_kern_hits(line + 48, e, f, halves));
        if (dpari_kern_some(halves ? hits | hits << 16 : hits)) {
            break;
        }
    }
    return at;
}
#endif

/* Returns the bytes of the whole lines at the beginning that have no NaN or infinity. */
static int64_t dpari_kern_skip(const unsigned char *in, int64_t bytes, int32_t type)
{
#if DPARI_KERN_VECTOR
    const int64_t end = bytes - bytes % DPARI_KERN_LINE;
    switch (type) {
    case DPAR_F64:
        return dpari_kern_seek(in, end, UINT64_C(0x7ff0000000000000), UINT64_C(0x7ff0000000000001),
                               0);
    case DPAR_F32:
        return dpari_kern_seek(in, end, UINT64_C(0x7f8000007f800000), UINT64_C(0x7f8000007f800000),
                               0);
    case DPAR_F16:
        return dpari_kern_seek(in, end, UINT64_C(0x7c007c007c007c00), UINT64_C(0x7c007c007c007c00),
                               1);
    default:
        return dpari_kern_seek(in, end, UINT64_C(0x7f807f807f807f80), UINT64_C(0x7f807f807f807f80),
                               1);
    }
#else
    (void)in;
    (void)bytes;
    (void)type;
    return 0;
#endif
}

DPARI_API int64_t dpari_kern_finite(const void *in, int64_t count, int32_t type)
{
    const int32_t each = dpar_type_bytes(type);
    const unsigned char *at = (const unsigned char *)in;
    int64_t i = dpari_kern_skip(at, count * each, type) / each;
    while (i < count && !dpari_kern_odd(at + i * each, type)) {
        i++;
    }
    return i;
}

/* ==== host/strided.c ==== */

/* Copies boxes between strided arrays. strided.h has the calls.
 *
 * dpari_stride_prepare makes all decisions once: it drops dims of one element, merges dims that are
 * contiguous on both sides, sorts the others, and chooses a loop by run length, types and
 * operation. dpari_stride_run then only walks. Conversions and long sums go through a small buffer.
 * Called by halo_prepare.c, grid_mirrors.c and mem.c. */

/* The numbers marked "measured" are from an AMD EPYC. */
#define DPARI_STRIDE_ROOM 128 /* elements of a buffer */
#define DPARI_STRIDE_NEAR 64  /* runs whose lines are surely all still in the cache afterwards */
#define DPARI_STRIDE_NEAR_BYTES 16384
#define DPARI_STRIDE_FIRST 32768  /* bytes of long runs that are prefetched first (one L1 cache) */
#define DPARI_STRIDE_LONGEST 1024 /* bytes; memcpy is faster for longer rows (measured) */
#define DPARI_STRIDE_ZEROS 256
#define DPARI_STRIDE_FULL 8     /* elements from which a row is combined as a whole (measured) */
#define DPARI_STRIDE_SOME 512   /* number of elements from which lines are prefetched (measured) */
#define DPARI_STRIDE_WITHIN 512 /* bytes; sides this close modulo a page evict each other */
#define DPARI_STRIDE_PAGE 4096
#define DPARI_STRIDE_PACKED 65536 /* bytes up to which boxes are packed (measured) */

static void dpari_stride_ask_to_read(const unsigned char *f)
{
#if defined(__GNUC__)
    __builtin_prefetch(f);
#else
    (void)f;
#endif
}

/* ---- loops over runs ---- */

DPARI_STRIDE_INLINE void dpari_stride_rows_of(const dpari_stride_rows *rows, int32_t loop, int zero)
{
    const int apart = dpari_stride_sums(loop);
    const int64_t n = rows->n, to_step = rows->to_step, from_step = rows->from_step;
    const int64_t zero_step = rows->zero_step, last = rows->run - dpari_stride_width(loop);
    unsigned char *to = rows->to, *z_row = rows->zero;
    const unsigned char *from = rows->from;
    int64_t row, i;
    for (row = rows->rows; row > 0; row--) {
        unsigned char *t = to, *z = z_row;
        const unsigned char *f = from;
        for (i = n; i > 0; i--) {
            dpari_stride_one(t, f, apart ? z : dpari_stride_writable(f), last, loop, zero);
            t += to_step;
            f += from_step;
            z += apart ? zero_step : 0;
        }
        to += rows->to_row;
        from += rows->from_row;
        z_row += apart ? rows->zero_row : 0;
    }
}

#if DPARI_STRIDE_WIDE
/* Copies a run of 65 to 1024 bytes. memcpy has a higher cost per call: full halos of 24^3 take 1.9
 * us with it and 1.55 us with this. */
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void
dpari_stride_middle(unsigned char *t, const unsigned char *f, int64_t run)
{
    const int64_t last = run - 32;
    dpari_stride_u4 v[4];
    int64_t at = 0;
    for (; at <= last - 96; at += 128) {
        DPARI_FOUR(dpari_stride_copy(&v[q], f + at + 32 * q, 32));
        DPARI_FOUR(dpari_stride_copy(t + at + 32 * q, &v[q], 32));
    }
    for (; at < last; at += 32) {
        dpari_stride_copy(&v[0], f + at, 32);
        dpari_stride_copy(t + at, &v[0], 32);
    }
    dpari_stride_copy(&v[0], f + last, 32);
    dpari_stride_copy(t + last, &v[0], 32);
}

DPARI_STRIDE_IN_WIDE static void dpari_stride_middle_rows(const dpari_stride_rows *rows)
{
    const int64_t n = rows->n, to_step = rows->to_step, from_step = rows->from_step,
                  run = rows->run;
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t row, i;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        unsigned char *t = to;
        const unsigned char *f = from;
        for (i = n; i > 0; i--, t += to_step, f += from_step) {
            dpari_stride_middle(t, f, run);
        }
    }
}
#endif

static void dpari_stride_long_rows(const dpari_stride_rows *rows)
{
    const int64_t n = rows->n, to_step = rows->to_step, from_step = rows->from_step,
                  run = rows->run;
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t row, i;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        unsigned char *t = to;
        const unsigned char *f = from;
        for (i = n; i > 0; i--, t += to_step, f += from_step) {
            dpari_stride_copy(t, f, run);
        }
    }
}

DPARI_API DPARI_STRIDE_ALIGNED void dpari_stride_move(const dpari_stride_rows *rows, int32_t loop)
{
    const dpari_stride_rows r = *rows; /* a copy, so that the loops need not read it again */
    switch (2 * loop + rows->zeroes) {
#define DPARI_STRIDE_CASE(id)                                                                      \
    case 2 * id: dpari_stride_rows_of(&r, id, 0); break;                                           \
    case 2 * id + 1: dpari_stride_rows_of(&r, id, 1); break;
        DPARI_STRIDE_COPIES(DPARI_STRIDE_CASE)
        DPARI_STRIDE_SUMS(DPARI_STRIDE_CASE)
        DPARI_STRIDE_OTHER_SUMS(DPARI_STRIDE_CASE)
#undef DPARI_STRIDE_CASE
#if DPARI_STRIDE_WIDE
    case 2 * DPARI_STRIDE_MIDDLE: dpari_stride_middle_rows(rows); break;
#endif
    default: dpari_stride_long_rows(rows); break;
    }
}

/* Returns the loop that copies runs of `run` bytes. */
static int32_t dpari_stride_loop_of(int64_t run)
{
    if (run > 64) {
        return DPARI_STRIDE_LONG;
    }
    if (run > 16) {
        return run > 32 ? DPARI_STRIDE_FOUR_16 : DPARI_STRIDE_TWO_16;
    }
    if (run > 8) {
        return run < 16 ? DPARI_STRIDE_TWO_8 : DPARI_STRIDE_16;
    }
    if (run > 4) {
        return run < 8 ? DPARI_STRIDE_TWO_4 : DPARI_STRIDE_8;
    }
    if (run > 2) {
        return run < 4 ? DPARI_STRIDE_TWO_2 : DPARI_STRIDE_4;
    }
    return run < 2 ? DPARI_STRIDE_1 : DPARI_STRIDE_2;
}

/* ---- through a buffer ---- */

static void dpari_stride_negate(void *values, int64_t count, int32_t type)
{
    const int32_t width = dpar_type_bytes(type);
    const int real = dpari_is_float(type);
    unsigned char *at = (unsigned char *)values;
    int64_t i;
    for (i = 0; i < count; i++, at += width) {
        uint64_t x8;
        uint32_t x4;
        uint16_t x2;
        switch (width) {
        case 8:
            dpari_stride_copy(&x8, at, 8);
            x8 = real ? x8 ^ (UINT64_C(1) << 63) : 0 - x8;
            dpari_stride_copy(at, &x8, 8);
            break;
        case 4:
            dpari_stride_copy(&x4, at, 4);
            x4 = real ? x4 ^ ((uint32_t)1 << 31) : 0 - x4;
            dpari_stride_copy(at, &x4, 4);
            break;
        case 2: /* only floats */
            dpari_stride_copy(&x2, at, 2);
            x2 = (uint16_t)(x2 ^ 0x8000u);
            dpari_stride_copy(at, &x2, 2);
            break;
        default: *at = (unsigned char)(0 - *at); break;
        }
    }
}

/* Copies to a dense buffer, whose rows follow each other; the next function copies from one. */
static void dpari_stride_gather(void *dense, const dpari_stride_rows *rows, int32_t size)
{
    dpari_stride_rows g = *rows;
    g.to = (unsigned char *)dense;
    g.to_step = g.run = size;
    g.to_row = rows->n * size;
    dpari_stride_move(&g, dpari_stride_loop_of(size));
}

static void dpari_stride_scatter(const dpari_stride_rows *rows, const void *dense, int32_t size)
{
    dpari_stride_rows g = *rows;
    g.from = (const unsigned char *)dense;
    g.from_step = g.run = size;
    g.from_row = rows->n * size;
    dpari_stride_move(&g, dpari_stride_loop_of(size));
}

/* Converts, negates and combines at most DPARI_STRIDE_ROOM elements in a buffer. */
static void dpari_stride_small(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    uint64_t room[2][DPARI_STRIDE_ROOM];
    const int32_t from_size = stride->from_bytes, to_size = stride->to_bytes;
    const int64_t count = rows->n * rows->rows;
    const void *in[2];
    void *out = room[1], *value = room[0];
    dpari_stride_rows target = *rows;
    dpari_stride_gather(value, rows, from_size);
    if (stride->through != stride->from_type) {
        dpari_kern_convert(room[1], stride->through, room[0], stride->from_type, count);
        value = room[1];
        out = room[0];
    }
    if (stride->through != stride->to_type) {
        void *before = value;
        dpari_kern_convert(out, stride->to_type, value, stride->through, count);
        value = out;
        out = before;
    }
    if (stride->negate) {
        dpari_stride_negate(value, count, stride->to_type);
    }
    if (stride->op != DPAR_COPY) {
        target.from = rows->to;
        target.from_step = rows->to_step;
        target.from_row = rows->to_row;
        dpari_stride_gather(out, &target, to_size);
        in[0] = out;
        in[1] = value;
        dpari_kern_reduce(&value, 1, in, 2, count, stride->to_type, stride->op, 0);
    }
    dpari_stride_scatter(rows, value, to_size);
}

/* Adds rows with the results of dpari_kern_reduce but without the cost of a call, because rows of a
 * box are short. First, single elements until vectors are aligned, because a vector across two
 * lines is stored twice. Then four vectors at a time, as long as their sum is not NaN, which it is
 * if one element is NaN. Then single vectors, and last the remaining elements. */
#if DPARI_STRIDE_VECTOR
/* A row: a pointer into each array, and its end. If `zero` is set, the elements that were read
 * become 0. */
typedef struct dpari_stride_sides {
    unsigned char *t;
    const unsigned char *f, *end;
    int zero;
} dpari_stride_sides;

/* Adds all elements before `end`, `width` bytes at a time, which is one element or a vector. */
DPARI_STRIDE_INLINE void dpari_stride_dense_by(dpari_stride_sides *sides, const unsigned char *end,
                                               int32_t width, int32_t f64)
{
    for (; end - sides->f >= width; sides->t += width, sides->f += width) {
        if (width == 16) {
            dpari_stride_sum_run(sides->t, sides->f, 0, 16, 1, f64);
        } else if (f64) {
            dpari_stride_sum_f64(sides->t, sides->f);
        } else {
            dpari_stride_sum_f32(sides->t, sides->f);
        }
        if (sides->zero) {
            dpari_stride_zero_run(dpari_stride_writable(sides->f), 0, width, 1);
        }
    }
}

DPARI_STRIDE_INLINE void dpari_stride_dense_four(dpari_stride_sides *sides, int32_t f64)
{
    for (; sides->end - sides->f >= 64; sides->t += 64, sides->f += 64) {
        dpari_stride_u2 v[4], all;
        DPARI_FOUR(v[q] = dpari_stride_met(sides->t + 16 * q, sides->f + 16 * q, 16, f64));
        all = dpari_stride_plus(dpari_stride_plus(v[0], v[1], f64),
                                dpari_stride_plus(v[2], v[3], f64), f64);
        if (dpari_stride_any(dpari_stride_nan(all, f64))) {
            break;
        }
        DPARI_FOUR(dpari_stride_put(sides->t + 16 * q, v[q], 16));
        if (sides->zero) {
            dpari_stride_zero_run(dpari_stride_writable(sides->f), 48, 16, 4);
        }
    }
}

#if DPARI_STRIDE_WIDE
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE int dpari_stride_nan_wide(const dpari_stride_u4 *x,
                                                                   int32_t f64)
{
    const dpari_stride_f8 mask =
        f64 ? (dpari_stride_f8)((dpari_stride_d4)*x != (dpari_stride_d4)*x)
            : (dpari_stride_f8)((dpari_stride_f8)*x != (dpari_stride_f8)*x);
    return __builtin_expect(__builtin_ia32_movmskps256(mask) != 0, 0) != 0;
}

DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_dense_wide(dpari_stride_sides *sides,
                                                                      int32_t f64)
{
    const dpari_stride_u4 zero = {0, 0, 0, 0};
    unsigned char *read;
    for (; sides->end - sides->f >= 128; sides->t += 128, sides->f += 128) {
        dpari_stride_u4 v[4], low, high;
        DPARI_FOUR(v[q] = dpari_stride_met_wide(sides->t + 32 * q, sides->f + 32 * q, f64));
        low = dpari_stride_plus_wide(&v[0], &v[1], f64);
        high = dpari_stride_plus_wide(&v[2], &v[3], f64);
        low = dpari_stride_plus_wide(&low, &high, f64);
        if (dpari_stride_nan_wide(&low, f64)) {
            break;
        }
        DPARI_FOUR(dpari_stride_copy(sides->t + 32 * q, &v[q], 32));
        if (sides->zero) {
            read = dpari_stride_writable(sides->f);
            DPARI_FOUR(dpari_stride_copy(read + 32 * q, &zero, 32));
        }
    }
    for (; sides->end - sides->f >= 32; sides->t += 32, sides->f += 32) {
        const dpari_stride_u4 a = dpari_stride_met_wide(sides->t, sides->f, f64);
        if (dpari_stride_nan_wide(&a, f64)) {
            break;
        }
        dpari_stride_copy(sides->t, &a, 32);
        if (sides->zero) {
            dpari_stride_copy(dpari_stride_writable(sides->f), &zero, 32);
        }
    }
}
#endif

/* Begins a row of `bytes` bytes at sides->t and sides->f. width: bytes of the vectors that are
 * aligned. */
DPARI_STRIDE_INLINE void dpari_stride_dense_begin(dpari_stride_sides *sides, int64_t bytes,
                                                  int32_t width, int32_t f64)
{
    const uintptr_t first = (0 - (uintptr_t)sides->t) % (uintptr_t)width;
    sides->end = sides->f + bytes;
    dpari_stride_dense_by(sides, sides->f + dpari_least((int64_t)first, bytes), f64 ? 8 : 4, f64);
}

DPARI_STRIDE_INLINE void dpari_stride_dense_end(dpari_stride_sides *sides, int32_t f64)
{
    dpari_stride_dense_by(sides, sides->end, 16, f64);
    dpari_stride_dense_by(sides, sides->end, f64 ? 8 : 4, f64);
}

DPARI_STRIDE_INLINE void dpari_stride_dense_of(const dpari_stride_rows *rows, int32_t f64)
{
    const int64_t bytes = rows->n * (f64 ? 8 : 4);
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    dpari_stride_sides d;
    int64_t row;
    d.zero = rows->zeroes;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        d.t = to;
        d.f = from;
        dpari_stride_dense_begin(&d, bytes, 16, f64);
        dpari_stride_dense_four(&d, f64);
        dpari_stride_dense_end(&d, f64);
    }
}

DPARI_STATIC_NOINLINE void dpari_stride_dense_f32(const dpari_stride_rows *rows)
{
    dpari_stride_dense_of(rows, 0);
}

DPARI_STATIC_NOINLINE void dpari_stride_dense_f64(const dpari_stride_rows *rows)
{
    dpari_stride_dense_of(rows, 1);
}

#if DPARI_STRIDE_WIDE
DPARI_STRIDE_IN_WIDE DPARI_STRIDE_INLINE void dpari_stride_wide_of(const dpari_stride_rows *rows,
                                                                   int32_t f64, int zero)
{
    const int64_t bytes = rows->n * (f64 ? 8 : 4);
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    dpari_stride_sides d;
    int64_t row;
    d.zero = zero;
    for (row = rows->rows; row > 0; row--, to += rows->to_row, from += rows->from_row) {
        d.t = to;
        d.f = from;
        dpari_stride_dense_begin(&d, bytes, 32, f64);
        dpari_stride_dense_wide(&d, f64);
        dpari_stride_dense_by(&d, d.end, f64 ? 8 : 4, f64);
    }
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void dpari_stride_wide_f32(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 0, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void dpari_stride_wide_f64(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 1, 0);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_wide_zero_f32(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 0, 1);
}

DPARI_STRIDE_IN_WIDE DPARI_STATIC_NOINLINE void
dpari_stride_wide_zero_f64(const dpari_stride_rows *rows)
{
    dpari_stride_wide_of(rows, 1, 1);
}
#endif

typedef void dpari_stride_loop(const dpari_stride_rows *k);

/* Returns the loop for a dense row, or NULL if there is none. clear: 1 if the elements that were
 * read become 0; it must be equal to rows->zeroes. */
static dpari_stride_loop *dpari_stride_dense_loop(const dpari_stride *stride, int clear)
{
    const int32_t f64 = stride->to_type == DPAR_F64;
    if (stride->op != DPAR_SUM || (!f64 && stride->to_type != DPAR_F32)) {
        return NULL;
    }
#if DPARI_STRIDE_WIDE
    if (stride->wide) {
        if (clear) {
            return f64 ? dpari_stride_wide_zero_f64 : dpari_stride_wide_zero_f32;
        }
        return f64 ? dpari_stride_wide_f64 : dpari_stride_wide_f32;
    }
#endif
    (void)clear;
    return f64 ? dpari_stride_dense_f64 : dpari_stride_dense_f32;
}

/* True if two addresses are twins, which means that a Zen core keeps only one of their lines in its
 * first-level cache. It finds lines there by bits 6 to 11 of their addresses and by a hash: bits 12
 * to 19, each xor one of 27, 26, 25, 20 to 24 (Lipp et al. 2020, "Take A Way"). Lines that agree in
 * both are twins. */
static int dpari_stride_twins(const unsigned char *t, const unsigned char *f)
{
    const uint64_t both = (uint64_t)((uintptr_t)t ^ (uintptr_t)f), high = both >> 20;
    return (((both >> 12) ^ (high >> 7 & 1) ^ (high >> 5 & 2) ^ (high >> 3 & 4) ^ high << 3) &
            255) == 0;
}

/* Adds rows through the buffer `room`, and sets the elements that were read to 0. */
static void dpari_stride_add_aside(const dpari_stride_rows *rows, unsigned char *room,
                                   dpari_stride_loop *add, int64_t size)
{
    const int64_t bytes = rows->n * size;
    dpari_stride_rows aside = *rows;
    aside.to = room;
    aside.to_row = bytes;
    aside.zero = dpari_stride_writable(rows->from);
    aside.zero_row = rows->from_row;
    aside.run = bytes % 16 == 0 ? 16 : 8;
    aside.to_step = aside.from_step = aside.zero_step = aside.run;
    aside.n = bytes / aside.run;
    dpari_stride_move(&aside, bytes % 16 == 0 ? DPARI_STRIDE_16 : DPARI_STRIDE_8);
    aside = *rows;
    aside.from = room;
    aside.from_row = bytes;
    aside.zeroes = 0;
    add(&aside);
}

/* Adds rows and sets the elements that were read to 0. If rows are twins, each access would evict a
 * line that the next one needs. Such rows are copied to a buffer first, as many as fit into it. For
 * 64^3 with halos of 2, where a quarter of the rows are twins, this takes 15 us instead of 17.5. */
static void dpari_stride_dense_clear(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    unsigned char room[DPARI_STRIDE_PACK];
    const int64_t size = stride->to_bytes, most = (int64_t)sizeof room / size;
    dpari_stride_loop *add = dpari_stride_dense_loop(stride, 0),
                      *both = dpari_stride_dense_loop(stride, 1);
    dpari_stride_rows some = *rows;
    int64_t at, row, group;
    if (rows->to_row != rows->from_row || rows->n * size % 8 != 0 ||
        ((uintptr_t)rows->to - (uintptr_t)rows->from + DPARI_STRIDE_WITHIN) % DPARI_STRIDE_PAGE >
            2 * DPARI_STRIDE_WITHIN) {
        both(rows);
        return;
    }
    for (at = 0; at < rows->n; at += some.n) {
        some.n = dpari_least(rows->n - at, most);
        group = most / some.n;
        for (row = 0; row < rows->rows; row += some.rows) {
            some.to = rows->to + at * size + row * rows->to_row;
            some.from = rows->from + at * size + row * rows->from_row;
            some.rows = dpari_least(rows->rows - row, group);
            if (dpari_stride_twins(some.to, some.from)) {
                dpari_stride_add_aside(&some, room, add, size);
                continue;
            }
            while (some.rows < rows->rows - row &&
                   !dpari_stride_twins(some.to + some.rows * rows->to_row,
                                       some.from + some.rows * rows->from_row)) {
                some.rows = dpari_least(rows->rows - row, some.rows + group);
            }
            both(&some);
        }
    }
}
#endif

/* Combines dense rows. Returns 1 if elements that must be set to 0 are 0 already. */
static int dpari_stride_dense(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    unsigned char *to = rows->to;
    const unsigned char *from = rows->from;
    int64_t row;
#if DPARI_STRIDE_VECTOR
    dpari_stride_loop *loop = dpari_stride_dense_loop(stride, 0);
    if (loop && rows->zeroes) {
        dpari_stride_dense_clear(stride, rows);
        return 1;
    }
    if (loop) {
        loop(rows);
        return 1;
    }
#endif
    for (row = 0; row < rows->rows; row++, to += rows->to_row, from += rows->from_row) {
        const void *in[2];
        void *out = to;
        in[0] = to;
        in[1] = from;
        dpari_kern_reduce(&out, 1, in, 2, rows->n, stride->to_type, stride->op, 0);
    }
    return 0;
}

/* ---- the walk ---- */

/* Sets the elements that were read to 0, while they are still in the cache. */
DPARI_STATIC_NOINLINE void dpari_stride_wipe(const dpari_stride_rows *rows, int64_t run,
                                             int32_t loop)
{
    static const unsigned char zero[DPARI_STRIDE_ZEROS] = {0};
    dpari_stride_rows z = *rows;
    const unsigned char *from = rows->from;
    int64_t at;
    z.from = zero;
    z.from_step = z.from_row = 0;
    z.zeroes = 0;
    z.to_step = rows->from_step;
    z.to_row = rows->from_row;
    for (at = 0; at < run; at += z.run) {
        z.run = run - at < DPARI_STRIDE_ZEROS ? run - at : DPARI_STRIDE_ZEROS;
        z.to = dpari_stride_writable(from + at);
        dpari_stride_move(&z, z.run > 64 ? loop : dpari_stride_loop_of(z.run));
    }
}

/* Packs runs into lines that another core has used last. They are gathered in a local buffer while
 * those lines are fetched, and then stored in one piece, as whole lines. All runs together must
 * have at most DPARI_STRIDE_PACK bytes. */
static void dpari_stride_pack(const dpari_stride *stride, const dpari_stride_rows *rows)
{
    unsigned char room[DPARI_STRIDE_PACK];
    dpari_stride_rows nearby = *rows;
    const int64_t row = rows->n * stride->run;
    dpari_stride_ask_lines(rows->to, rows->rows * row);
    nearby.to = room;
    nearby.to_row = row;
    dpari_stride_move(&nearby, stride->loop);
    dpari_stride_copy(rows->to, room, rows->rows * row);
}

/* Runs `rows` rows of n runs. */
static void dpari_stride_some(const dpari_stride *stride, unsigned char *to,
                              const unsigned char *from, int64_t rows, int64_t n)
{
    dpari_stride_rows k;
    k.to = to;
    k.from = from;
    k.rows = rows;
    k.n = n;
    dpari_stride_steps(stride, &k);
    if (stride->packs) {
        dpari_stride_pack(stride, &k);
        return;
    }
    switch (stride->loop) {
    case DPARI_STRIDE_DENSE:
        k.zeroes = stride->clear;
        if (dpari_stride_dense(stride, &k)) {
            return;
        }
        break;
    case DPARI_STRIDE_BUFFER: dpari_stride_small(stride, &k); break;
    default: dpari_stride_move(&k, stride->loop); break;
    }
    if (stride->clear && !dpari_stride_zeroes(stride->loop)) {
        dpari_stride_wipe(&k,
                          stride->loop < DPARI_STRIDE_SUM_F32 ? stride->run : stride->from_bytes,
                          stride->loop);
    }
}

DPARI_API void dpari_stride_ask_ahead(const dpari_stride *stride, const unsigned char *to,
                                      const unsigned char *from, int64_t after, int64_t bytes)
{
    const int64_t line = stride->back ? -DPARI_STRIDE_LINE : DPARI_STRIDE_LINE;
    const unsigned char *at = stride->ahead == DPARI_STRIDE_TO ? to : from;
    at += stride->back ? -after : after;
    for (; bytes > 0; bytes -= DPARI_STRIDE_LINE, at += line) {
        if (stride->ahead == DPARI_STRIDE_FROM) {
            dpari_stride_ask_to_read(at);
        } else {
            dpari_stride_ask_line(at);
        }
    }
}

/* Runs `rows` rows of each piece, alternating between the pieces every `turn` runs. */
static void dpari_stride_turns(const dpari_stride *const *s, unsigned char *const *to,
                               const unsigned char *const *from, int32_t pieces, int64_t row,
                               int64_t rows, int64_t turn)
{
    const int64_t n = s[0]->dim[0].count;
    int64_t at;
    int32_t p;
    for (at = 0; at < n; at += turn) {
        const int64_t some = n - at < turn ? n - at : turn;
        for (p = 0; p < pieces; p++) {
            unsigned char *t = to[p] + row * s[p]->dim[1].to + at * s[p]->dim[0].to;
            const unsigned char *f = from[p] + row * s[p]->dim[1].from + at * s[p]->dim[0].from;
            if (s[p]->asks) {
                dpari_stride_ask(s[p], t, rows, some);
            }
            dpari_stride_ask_ahead(s[p], t, f, DPARI_STRIDE_AHEAD, rows * some * s[p]->each);
        }
        for (p = 0; p < pieces; p++) {
            dpari_stride_some(s[p], to[p] + row * s[p]->dim[1].to + at * s[p]->dim[0].to,
                              from[p] + row * s[p]->dim[1].from + at * s[p]->dim[0].from, rows,
                              some);
        }
    }
}

DPARI_API void dpari_stride_walk(const dpari_stride *const *s, unsigned char **to,
                                 const unsigned char **from, int32_t pieces, int64_t part,
                                 int64_t turn)
{
    int64_t index[DPARI_STRIDE_DIMS] = {0};
    const int64_t rows = s[0]->dim[1].count;
    int32_t p, d;
    for (p = 0; p < pieces; p++) {
        dpari_stride_ask_ahead(s[p], to[p], from[p], 0, s[p]->first);
    }
    for (;;) {
        int64_t row;
        for (row = 0; row < rows; row += part) {
            dpari_stride_turns(s, to, from, pieces, row, rows - row < part ? rows - row : part,
                               turn);
        }
        for (d = 2; d < s[0]->dims && ++index[d] == s[0]->dim[d].count; d++) {
            for (p = 0; p < pieces; p++) {
                to[p] -= (index[d] - 1) * s[p]->dim[d].to;
                from[p] -= (index[d] - 1) * s[p]->dim[d].from;
            }
            index[d] = 0;
        }
        if (d >= s[0]->dims) {
            return;
        }
        for (p = 0; p < pieces; p++) {
            to[p] += s[p]->dim[d].to;
            from[p] += s[p]->dim[d].from;
        }
    }
}

DPARI_API void dpari_stride_run(const dpari_stride *stride, void *to, const void *from)
{
    unsigned char *t = (unsigned char *)to + stride->to_start;
    const unsigned char *f = (const unsigned char *)from + stride->from_start;
    if (stride->simple) {
        dpari_stride_ask_ahead(stride, t, f, 0, stride->first);
        dpari_stride_some(stride, t, f, stride->dim[1].count, stride->dim[0].count);
    } else if (stride->loop != DPARI_STRIDE_NONE) {
        dpari_stride_walk(&stride, &t, &f, 1, stride->part, stride->turn);
    }
}

/* ---- preparing ---- */

/* Lists the dims of more than one element, with steps in bytes, ordered by step from the smallest
 * one. Dims that go backwards on both sides are reversed. */
static void dpari_stride_sort(dpari_stride *stride, const dpari_stride_piece *piece)
{
    const int64_t to_size = stride->to_bytes, from_size = stride->from_bytes;
    int32_t d, i;
    for (d = piece->dims - 1; d >= 0; d--) {
        const int64_t n = piece->extent[d];
        int64_t to = piece->to[d] * to_size, from = piece->from[d] * from_size;
        if (n == 1) {
            continue;
        }
        if (to < 0 && from <= 0) {
            stride->to_start += (n - 1) * to;
            stride->from_start += (n - 1) * from;
            to = -to;
            from = -from;
        }
        for (i = stride->dims; i > 0 && dpari_stride_size(stride->dim[i - 1].to) +
                                                dpari_stride_size(stride->dim[i - 1].from) >
                                            dpari_stride_size(to) + dpari_stride_size(from);
             i--) {
            stride->dim[i] = stride->dim[i - 1];
        }
        stride->dim[i].count = n;
        stride->dim[i].to = to;
        stride->dim[i].from = from;
        stride->dims++;
    }
}

/* Removes dim d. */
DPARI_STATIC_NOINLINE void dpari_stride_drop(dpari_stride *stride, int32_t d)
{
    for (stride->dims--; d < stride->dims; d++) {
        stride->dim[d] = stride->dim[d + 1];
    }
}

/* Merges a dim with the next inner one if, on both sides, it continues where that one ends. */
static void dpari_stride_merge(dpari_stride *stride)
{
    int32_t d = 0;
    while (d + 1 < stride->dims) {
        if (stride->dim[d + 1].to == stride->dim[d].count * stride->dim[d].to &&
            stride->dim[d + 1].from == stride->dim[d].count * stride->dim[d].from) {
            const int64_t n = stride->dim[d].count * stride->dim[d + 1].count;
            dpari_stride_drop(stride, d + 1);
            stride->dim[d].count = n;
        } else {
            d++;
        }
    }
}

/* Exchanges a dim of less than 8 elements with the next one if that is longer, because a short loop
 * is slow. */
DPARI_STATIC_NOINLINE void dpari_stride_lengthen(dpari_stride *stride, int32_t d)
{
    if (stride->dims > d + 1 && stride->dim[d].count < 8 &&
        stride->dim[d + 1].count > stride->dim[d].count) {
        const dpari_stride_dim first = stride->dim[d];
        stride->dim[d] = stride->dim[d + 1];
        stride->dim[d + 1] = first;
    }
}

/* Chooses the loop for a box that is not just copied. `together` is set if the innermost dim is
 * contiguous on both sides. */
static int32_t dpari_stride_choose(const dpari_stride *stride, int together)
{
    static const int32_t f32[DPARI_STRIDE_FULL] = {DPARI_STRIDE_NONE,      DPARI_STRIDE_SUM_F32,
                                                   DPARI_STRIDE_SUM_F32_2, DPARI_STRIDE_SUM_F32_3,
                                                   DPARI_STRIDE_SUM_F32_4, DPARI_STRIDE_SUM_F32_7,
                                                   DPARI_STRIDE_SUM_F32_7, DPARI_STRIDE_SUM_F32_7};
    static const int32_t f64[DPARI_STRIDE_FULL] = {DPARI_STRIDE_NONE,      DPARI_STRIDE_SUM_F64,
                                                   DPARI_STRIDE_SUM_F64_2, DPARI_STRIDE_SUM_F64_4,
                                                   DPARI_STRIDE_SUM_F64_4, DPARI_STRIDE_SUM_F64_7,
                                                   DPARI_STRIDE_SUM_F64_7, DPARI_STRIDE_SUM_F64_7};
    const int plain = stride->op != DPAR_COPY && stride->from_type == stride->to_type &&
                      stride->through == stride->to_type && !stride->negate;
    if (plain && together && stride->dim[0].count >= DPARI_STRIDE_FULL) {
        return DPARI_STRIDE_DENSE;
    }
    if (plain && DPARI_STRIDE_ADDS && stride->op == DPAR_SUM) {
        if (stride->to_type == DPAR_F64) {
            return f64[DPARI_STRIDE_VECTOR && together ? stride->dim[0].count : 1];
        }
        if (stride->to_type == DPAR_F32) {
            return f32[DPARI_STRIDE_VECTOR && together ? stride->dim[0].count : 1];
        }
    }
    return DPARI_STRIDE_BUFFER;
}

static void dpari_stride_turn_back(dpari_stride *stride)
{
    int32_t d;
    for (d = 0; d < stride->dims; d++) {
        if (stride->loop == DPARI_STRIDE_DENSE && d == 0) {
            continue;
        }
        stride->to_start += (stride->dim[d].count - 1) * stride->dim[d].to;
        stride->from_start += (stride->dim[d].count - 1) * stride->dim[d].from;
        stride->dim[d].to = -stride->dim[d].to;
        stride->dim[d].from = -stride->dim[d].from;
    }
}

/* Plans how memory that another core used last is prefetched. Short runs are prefetched as the walk
 * proceeds. Long runs are prefetched at the beginning if they are written; if they are read, the
 * processor prefetches them itself. Returns how many runs or elements may be moved at a time. */
static int64_t dpari_stride_plan_ahead(dpari_stride *stride, const dpari_stride_piece *piece,
                                       int64_t room)
{
    const int32_t size = piece->ahead == DPARI_STRIDE_TO ? stride->to_bytes : stride->from_bytes;
    const int64_t bytes = stride->elements * size;
    stride->ahead = piece->ahead;
    stride->back = piece->back;
    if (stride->ahead == 0 || bytes < DPARI_STRIDE_AHEAD / 2) {
        return room;
    }
    if (stride->loop == DPARI_STRIDE_LONG || stride->loop == DPARI_STRIDE_MIDDLE) {
        stride->first =
            stride->ahead == DPARI_STRIDE_TO ? dpari_least(bytes, DPARI_STRIDE_FIRST) : 0;
        return room;
    }
    stride->packs = piece->ahead == DPARI_STRIDE_TO && !piece->back &&
                    stride->loop < DPARI_STRIDE_LONG && bytes <= DPARI_STRIDE_PACKED &&
                    stride->dim[0].to == stride->run &&
                    stride->dim[0].count * stride->run <= DPARI_STRIDE_PACK &&
                    (stride->dims < 2 || stride->dim[1].to == stride->dim[0].count * stride->run);
    if (stride->packs) {
        return dpari_least(room, DPARI_STRIDE_PACK / stride->run);
    }
    if (stride->loop != DPARI_STRIDE_DENSE) {
        stride->first = DPARI_STRIDE_AHEAD;
        stride->each = stride->loop == DPARI_STRIDE_BUFFER ? size : stride->run;
        return stride->loop == DPARI_STRIDE_BUFFER ? room : dpari_least(room, DPARI_STRIDE_TURN);
    }
    return room;
}

static void dpari_stride_plan(dpari_stride *stride, const dpari_stride_piece *piece)
{
    const int32_t size = stride->from_bytes;
    const int together =
        stride->dims > 0 && stride->dim[0].to == stride->to_bytes && stride->dim[0].from == size;
    int64_t room = INT64_MAX;
    stride->run = together ? stride->dim[0].count * size : size;
    if (stride->op == DPAR_COPY && stride->from_type == stride->to_type &&
        stride->through == stride->to_type && !stride->negate) {
        if (together) {
            dpari_stride_drop(stride, 0);
        }
        stride->loop = piece->wide && stride->run > 64 && stride->run <= DPARI_STRIDE_LONGEST
                           ? DPARI_STRIDE_MIDDLE
                           : dpari_stride_loop_of(stride->run);
    } else {
        stride->loop = dpari_stride_choose(stride, together);
        if (dpari_stride_sums(stride->loop)) {
            if (stride->loop != DPARI_STRIDE_SUM_F32 && stride->loop != DPARI_STRIDE_SUM_F64) {
                dpari_stride_drop(stride, 0);
            } else {
                stride->run = size;
            }
        }
    }
    if (dpari_stride_sums(stride->loop) && !stride->clear) {
        stride->beside = piece->beside * size;
    }
    if (stride->loop == DPARI_STRIDE_DENSE) {
        dpari_stride_lengthen(stride, 1);
    } else if (stride->run <= 64) {
        dpari_stride_lengthen(stride, 0);
    }
    for (int32_t d = stride->dims; d < DPARI_STRIDE_DIMS; d++) {
        stride->dim[d].count = 1;
        stride->dim[d].to = stride->dim[d].from = 0;
    }
    if (stride->loop == DPARI_STRIDE_BUFFER) {
        room = DPARI_STRIDE_ROOM;
    } else if (stride->clear) {
        room = DPARI_STRIDE_NEAR;
        if (stride->loop == DPARI_STRIDE_DENSE) {
            room = DPARI_STRIDE_NEAR_BYTES / size;
        } else if (stride->run > DPARI_STRIDE_NEAR_BYTES / DPARI_STRIDE_NEAR) {
            room = 1 + DPARI_STRIDE_NEAR_BYTES / stride->run;
        }
    }
    if (stride->loop < DPARI_STRIDE_LONG && stride->elements >= DPARI_STRIDE_SOME &&
        dpari_stride_size(stride->dim[0].to) >= 64 && dpari_stride_size(stride->dim[0].from) < 64) {
        stride->asks = 1;
        room = room < DPARI_STRIDE_TURN ? room : DPARI_STRIDE_TURN;
    }
    room = dpari_stride_plan_ahead(stride, piece, room);
    if (piece->back) {
        dpari_stride_turn_back(stride);
    }
    stride->turn = room < stride->dim[0].count ? room : stride->dim[0].count;
    stride->part = room / stride->turn;
    stride->simple = !stride->asks && stride->each == 0 && stride->dims <= 2 &&
                     stride->turn == stride->dim[0].count && stride->part >= stride->dim[1].count;
}

DPARI_API DPARI_COLD void dpari_stride_prepare(dpari_stride *stride,
                                               const dpari_stride_piece *piece)
{
    const int32_t to_bytes = dpar_type_bytes(piece->to_type);
    const int32_t from_bytes =
        piece->from_type == piece->to_type ? to_bytes : dpar_type_bytes(piece->from_type);
    const int32_t width = piece->through == 0 ? 0 : dpar_type_bytes(piece->through);
    int32_t d;
    stride->loop = DPARI_STRIDE_NONE;
    stride->dims = stride->asks = stride->ahead = stride->back = 0;
    stride->first = stride->each = 0;
    stride->simple = stride->packs = 0;
    stride->wide = piece->wide;
    stride->beside = 0;
    stride->run = stride->part = stride->turn = stride->to_start = stride->from_start = 0;
    stride->to_type = piece->to_type;
    stride->from_type = piece->from_type;
    stride->to_bytes = to_bytes;
    stride->from_bytes = from_bytes;
    stride->through =
        width > 0 && width < to_bytes && width < from_bytes ? piece->through : piece->from_type;
    stride->op = piece->op;
    stride->negate = piece->negate;
    stride->clear = piece->clear;
    stride->elements = 1;
    for (d = 0; d < piece->dims; d++) {
        stride->elements *= piece->extent[d];
    }
    if (stride->elements > 0) {
        dpari_stride_sort(stride, piece);
        dpari_stride_merge(stride);
        dpari_stride_plan(stride, piece);
    }
}

/* ==== host/mem.c ==== */

/* Implements the operations of mem.h in the host's memory as plain loops, which define what the
 * functions of a device must compute, bit for bit. */

/* ---- boxes ----------------------------------------------------------------------------------- */

/* True if both types are the same, or are {F64, F32}, {F32, F16} or {F32, BF16}. */
static int dpari_mem_box_meet(int32_t a, int32_t b)
{
    return a == b || dpari_narrows(a, b) || dpari_narrows(b, a);
}

/* True if types, dims and operation of a box are allowed. */
static int dpari_mem_box_fits(const dpar_mem_box *b)
{
    return dpar_type_bytes(b->to_type) > 0 && dpar_type_bytes(b->from_type) > 0 && b->dims >= 0 &&
           b->dims <= DPAR_MEM_DIMS && dpari_mem_box_meet(b->to_type, b->from_type) &&
           (b->round_type == DPAR_TYPE_NONE || (dpari_mem_box_meet(b->from_type, b->round_type) &&
                                                dpari_mem_box_meet(b->round_type, b->to_type))) &&
           (b->op == DPAR_COPY || b->op == DPAR_SUM || b->op == DPAR_MAX || b->op == DPAR_MIN) &&
           ((b->op == DPAR_COPY && !b->negate) || dpari_type_can_reduce(b->to_type));
}

/* True if two boxes differ in their addresses only. */
static int dpari_mem_box_same(const dpar_mem_box *a, const dpar_mem_box *b)
{
    int32_t d;
    if (a->dims != b->dims || a->to_type != b->to_type || a->from_type != b->from_type ||
        a->round_type != b->round_type || a->op != b->op || a->negate != b->negate ||
        a->clear != b->clear) {
        return 0;
    }
    for (d = 0; d < a->dims; d++) {
        if (a->extent[d] != b->extent[d] || a->to_stride[d] != b->to_stride[d] ||
            a->from_stride[d] != b->from_stride[d]) {
            return 0;
        }
    }
    return 1;
}

/* Prepares the copy of a box that dpari_mem_box_fits has checked. */
static void dpari_mem_box_prepare(dpari_stride *stride, const dpar_mem_box *box)
{
    dpari_stride_piece piece;
    dpari_mem_piece(box, &piece);
    dpari_stride_prepare(stride, &piece);
}

/* Many lists have boxes of the same shape, which are checked and prepared once. */
DPARI_INTERNAL dpar_status dpari_mem_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    dpari_stride stride;
    int32_t i;
    (void)ctx;
    for (i = 0; i < n; i++) {
        if ((i == 0 || !dpari_mem_box_same(&boxes[i], &boxes[i - 1])) &&
            !dpari_mem_box_fits(&boxes[i])) {
            return DPAR_E_ARG;
        }
    }
    for (i = 0; i < n; i++) {
        if (i == 0 || !dpari_mem_box_same(&boxes[i], &boxes[i - 1])) {
            dpari_mem_box_prepare(&stride, &boxes[i]);
        }
        dpari_stride_run(&stride, boxes[i].to, boxes[i].from);
    }
    return DPAR_OK;
}

DPARI_API dpar_status dpari_mem_move_box(const dpar_mem_box *box)
{
    return dpari_mem_move(NULL, box, 1);
}

/* ---- spans ----------------------------------------------------------------------------------- */

/* True if types and numbers of a span are allowed. */
static int dpari_mem_span_fits(const dpar_mem_span *s)
{
    const int floats = dpari_is_float(s->to_type) && dpari_is_float(s->from_type);
    const int one = s->scale >= 1.0 && s->scale <= 1.0;
    const int zero = s->scale >= 0.0 && s->scale <= 0.0;
    if (s->count < 0 || (s->accumulate != 0 && s->accumulate != 1) ||
        dpar_type_bytes(s->to_type) == 0 || (s->count > 0 && s->to == NULL)) {
        return 0;
    }
    if (s->from == NULL) {
        return dpari_is_float(s->to_type) || (zero && !s->accumulate);
    }
    return floats || (s->to_type == s->from_type && one && !s->accumulate);
}

/* Computes a span of any types in f64, DPARI_ELEMENTS elements at a time. */
static void dpari_mem_span_some(const dpar_mem_span *s)
{
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS] = {0.0};
    int64_t i, k;
    for (i = 0; i < s->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, s->count - i);
        for (k = 0; k < DPARI_ELEMENTS; k++) {
            x[k] = 1.0;
        }
        if (s->from != NULL) {
            dpari_elements_load(x, s->from, i, n, s->from_type);
        }
        for (k = 0; k < n; k++) {
            x[k] *= s->scale;
        }
        if (s->accumulate) {
            dpari_elements_load(y, s->to, i, n, s->to_type);
            for (k = 0; k < n; k++) {
                x[k] = y[k] + x[k];
            }
        }
        dpari_elements_store(s->to, x, i, n, s->to_type);
    }
}

/* Adds a span to one of the same type, or 16-bit elements to F32, in the wider of F32 and the type.
 * The result is that of sums in f64, because the sum of two F32 or 16-bit numbers in f64, rounded
 * to F32, equals their sum in F32 (Figueroa 1995). */
static void dpari_mem_span_add(const dpar_mem_span *s)
{
    const void *in[2];
    void *out[1];
    if (s->to_type != s->from_type) {
        dpari_kern_add_to((float *)s->to, s->from, s->from_type, s->count);
        return;
    }
    out[0] = s->to;
    in[0] = s->to;
    in[1] = s->from;
    dpari_kern_reduce(out, 1, in, 2, s->count, s->to_type, DPAR_SUM, 0);
}

/* Computes one span by the fastest kernel that it allows. */
static void dpari_mem_span_one(const dpar_mem_span *s)
{
    const int32_t a = s->to_type, b = s->from_type, bytes = dpar_type_bytes(a);
    const int one = s->scale >= 1.0 && s->scale <= 1.0 && s->from != NULL;
    const int differ = s->to != s->from;
    if (one && !s->accumulate && a == b) {
        dpari_kern_copy(s->to, s->from, s->count * bytes, 0);
    } else if (one && !s->accumulate && differ && (a == DPAR_F32) != (b == DPAR_F32)) {
        dpari_kern_convert(s->to, a, s->from, b, s->count);
    } else if (one && s->accumulate && (a == b || (a == DPAR_F32 && b != DPAR_F64))) {
        dpari_mem_span_add(s);
    } else if (s->from != NULL && !s->accumulate && a == DPAR_F32 && b == DPAR_F32) {
        dpari_kern_scaled((float *)s->to, (const float *)s->from, s->scale, s->count);
    } else if (s->from == NULL && !s->accumulate && s->scale >= 0.0 && s->scale <= 0.0) {
        dpari_zero(s->to, (size_t)(s->count * bytes));
    } else {
        dpari_mem_span_some(s);
    }
}

DPARI_API dpar_status dpari_mem_span(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    int32_t i;
    (void)ctx;
    for (i = 0; i < n; i++) {
        if (!dpari_mem_span_fits(&spans[i])) {
            return DPAR_E_ARG;
        }
    }
    for (i = 0; i < n; i++) {
        dpari_mem_span_one(&spans[i]);
    }
    return DPAR_OK;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Loads elements i .. i + n - 1 of a part and converts them to the type `sums`. */
static void dpari_mem_load(void *to, int32_t sums, const void *from, int32_t type, int64_t i,
                           int64_t n)
{
    const unsigned char *at = (const unsigned char *)from + i * dpar_type_bytes(type);
    if (sums == DPAR_F64) {
        dpari_elements_load((double *)to, from, i, n, type);
    } else if (type == sums) {
        dpari_kern_copy(to, at, n * dpar_type_bytes(type), 0);
    } else {
        dpari_kern_convert(to, DPAR_F32, at, type, n);
    }
}

/* Stores n results, which are in f64 or f32: divides them by the number of parts (AVG), multiplies
 * them by the scale, and adds the old values if required. */
static void dpari_mem_reduce_end(const dpar_mem_reduce *reduce, double *x, int64_t i, int64_t n)
{
    double y[DPARI_ELEMENTS] = {0.0};
    float *f = (float *)(void *)x, g;
    const int one = reduce->scale >= 1.0 && reduce->scale <= 1.0;
    const float scale = (float)reduce->scale, parts = (float)reduce->parts;
    int64_t k;
    if (reduce->accumulate) {
        dpari_elements_load(y, reduce->to, i, n, reduce->to_type);
    }
    for (k = 0; k < n && reduce->sum_type == DPAR_F64; k++) {
        x[k] = reduce->op == DPAR_AVG && reduce->parts > 1 ? x[k] / (double)reduce->parts : x[k];
        x[k] = one ? x[k] : x[k] * reduce->scale;
        x[k] = reduce->accumulate ? y[k] + x[k] : x[k];
    }
    for (k = 0; k < n && reduce->sum_type != DPAR_F64; k++) {
        g = reduce->op == DPAR_AVG && reduce->parts > 1 ? f[k] / parts : f[k];
        g = one ? g : g * scale;
        f[k] = reduce->accumulate ? (float)y[k] + g : g;
    }
    if (reduce->sum_type == DPAR_F64) {
        dpari_elements_store(reduce->to, x, i, n, reduce->to_type);
    } else if (reduce->to_type == DPAR_F32) {
        dpari_kern_copy((unsigned char *)reduce->to + 4 * i, f, n * 4, 0);
    } else {
        dpari_kern_convert((unsigned char *)reduce->to + 2 * i, reduce->to_type, f, DPAR_F32, n);
    }
}

/* Loads an integer, sign-extended to 64 bits. */
static uint64_t dpari_mem_int(const void *at, int64_t i, int32_t type)
{
    switch (type) {
    case DPAR_I8: return (uint64_t)((const int8_t *)at)[i];
    case DPAR_U8: return ((const uint8_t *)at)[i];
    case DPAR_I32: return (uint64_t)((const int32_t *)at)[i];
    case DPAR_U32: return ((const uint32_t *)at)[i];
    default: return ((const uint64_t *)at)[i];
    }
}

static void dpari_mem_put_int(void *at, int64_t i, int32_t type, uint64_t x)
{
    switch (dpar_type_bytes(type)) {
    case 1: ((uint8_t *)at)[i] = (uint8_t)x; break;
    case 4: ((uint32_t *)at)[i] = (uint32_t)x; break;
    default: ((uint64_t *)at)[i] = x; break;
    }
}

/* Divides n sums of integers, which have wrapped to their type, by the number of parts. */
static void dpari_mem_divide(void *sums, int64_t n, int32_t type, int64_t parts)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        uint64_t x = dpari_mem_int(sums, i, type);
        x = type != DPAR_U64 ? (uint64_t)((int64_t)x / parts) : x / (uint64_t)parts;
        dpari_mem_put_int(sums, i, type, x);
    }
}

/* True if types and numbers of a reduction are allowed. */
static int dpari_mem_reduce_fits(const dpar_mem_reduce *reduce)
{
    const int ints = dpari_type_can_reduce(reduce->to_type) && !dpari_is_float(reduce->to_type);
    if (reduce->count < 0 || reduce->parts < 1 ||
        (reduce->stride != 0 && reduce->stride < reduce->count) || reduce->op < DPAR_SUM ||
        reduce->op > DPAR_MIN ||
        (reduce->count > 0 && (reduce->to == NULL || reduce->from == NULL))) {
        return 0;
    }
    if (ints) {
        return reduce->from_type == reduce->to_type && reduce->sum_type == reduce->to_type &&
               reduce->accumulate == 0 && reduce->scale >= 1.0 && reduce->scale <= 1.0;
    }
    return dpari_is_float(reduce->to_type) && dpari_is_float(reduce->from_type) &&
           dpari_is_wide(reduce->sum_type) &&
           (reduce->sum_type == DPAR_F64 ||
            (reduce->to_type != DPAR_F64 && reduce->from_type != DPAR_F64)) &&
           (reduce->accumulate == 0 || reduce->accumulate == 1);
}

DPARI_INTERNAL dpar_status dpari_mem_reduce(void *ctx, const dpar_mem_reduce *reduce)
{
    const int32_t op = reduce->op == DPAR_AVG ? DPAR_SUM : reduce->op,
                  bytes = dpar_type_bytes(reduce->from_type);
    double x[DPARI_ELEMENTS], y[DPARI_ELEMENTS];
    void *const out[1] = {x};
    const void *in[2];
    int64_t i, p;
    (void)ctx;
    if (!dpari_mem_reduce_fits(reduce)) {
        return DPAR_E_ARG;
    }
    in[0] = x;
    in[1] = y;
    for (i = 0; i < reduce->count; i += DPARI_ELEMENTS) {
        const int64_t n = dpari_least(DPARI_ELEMENTS, reduce->count - i);
        dpari_mem_load(x, reduce->sum_type, reduce->from, reduce->from_type, i, n);
        for (p = 1; p < reduce->parts; p++) {
            const unsigned char *part =
                (const unsigned char *)reduce->from + p * reduce->stride * bytes;
            dpari_mem_load(y, reduce->sum_type, part, reduce->from_type, i, n);
            dpari_kern_reduce(out, 1, in, 2, n, reduce->sum_type, op, 0);
        }
        if (dpari_is_float(reduce->to_type)) {
            dpari_mem_reduce_end(reduce, x, i, n);
            continue;
        }
        if (reduce->op == DPAR_AVG) {
            dpari_mem_divide(x, n, reduce->to_type, reduce->parts);
        }
        dpari_kern_copy((unsigned char *)reduce->to + i * bytes, x, n * bytes, 0);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_mem_finite(void *ctx, const dpar_mem_finite *f)
{
    int64_t at;
    (void)ctx;
    if (f->count < 0 || !dpari_is_float(f->type) || f->found == NULL ||
        (f->count > 0 && f->in == NULL) || (f->keep_found != 0 && f->keep_found != 1)) {
        return DPAR_E_ARG;
    }
    if (f->keep_found && *f->found >= 0) {
        return DPAR_OK;
    }
    at = dpari_kern_finite(f->in, f->count, f->type);
    *f->found = at < f->count ? f->first + at : -1;
    return DPAR_OK;
}

/* ---- tables ---------------------------------------------------------------------------------- */

static dpar_status dpari_mem_wait(void *ctx)
{
    (void)ctx;
    return DPAR_OK;
}

static dpar_status dpari_mem_pin(void *ctx, void *memory, int64_t bytes)
{
    (void)ctx;
    (void)memory;
    (void)bytes;
    return DPAR_OK;
}

static dpar_status dpari_mem_unpin(void *ctx, void *memory)
{
    (void)ctx;
    (void)memory;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_mem dpar_mem_host(void)
{
    dpar_mem m;
    dpari_zero(&m, sizeof m);
    m.move = dpari_mem_move;
    m.wait = dpari_mem_wait;
    m.pin = dpari_mem_pin;
    m.unpin = dpari_mem_unpin;
    m.span = dpari_mem_span;
    m.reduce = dpari_mem_reduce;
    m.finite = dpari_mem_finite;
    return m;
}

/* ==== comm/comm.c ==== */

/* Implements the public functions of a communicator: they fill in a dpar_call, check it, and pass
 * it to the engine.
 *
 * dpari_post checks kind, type, counts, pointers and overlap of a call on this rank only; the
 * engine then compares the calls of all ranks. The file also writes messages about calls and tracks
 * posted work. It keeps a list of the handles that use a communicator, so that it can notify them
 * when the communicator is closed (engine.h). It does not depend on any engine: it calls every
 * engine through the table dpar_engine. */

/* ---- messages -------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_comm_bad(dpar_comm *comm, const dpar_call *call,
                                             const char *what)
{
    return dpari_wrong(&comm->why, "%s: %s", dpar_call_name(call->kind), what);
}

static DPARI_COLD dpar_status dpari_comm_bad_number(dpar_comm *comm, const dpar_call *call,
                                                    const char *name, int64_t got,
                                                    const char *domain)
{
    return dpari_wrong(&comm->why, "%s: %s %ld is not %s", dpar_call_name(call->kind), name, got,
                       domain);
}

static DPARI_COLD dpar_status dpari_comm_bad_type(dpar_comm *comm, const dpar_call *call,
                                                  const char *domain)
{
    return dpari_wrong(&comm->why, "%s: type %s (%d) is not %s", dpar_call_name(call->kind),
                       dpar_type_name(call->type), call->type, domain);
}

/* Fails because an argument is NULL. Writes no message if the communicator is NULL. */
static DPARI_COLD dpar_status dpari_comm_null(dpar_comm *comm, const char *what)
{
    return dpari_repeat(DPAR_E_ARG, comm ? &comm->why : NULL, what);
}

DPARI_API DPARI_COLD const char *dpari_op_name(int32_t op)
{
    switch (op) {
    case DPAR_SUM: return "sum";
    case DPAR_AVG: return "avg";
    case DPAR_PRODUCT: return "product";
    case DPAR_MAX: return "max";
    case DPAR_MIN: return "min";
    default: return "copy";
    }
}

/* The plans that messages can name. Each entry is "=plan|text": the plan's name in the source and
 * the text that a user knows it by. The tag of a plan is INT32_MIN + the position of its text. */
static const char *dpari_plan_words(void)
{
    return "=grid|dpar_grid_make, _array, _attach, _gather or _scatter"
           "=grid exchange|a first dpar_grid_exchange=halo|a halo exchange=ddp|ddp"
           "=zero1|zero1=update refused|a rejected step=fsdp|fsdp"
           "=fsdp load|dpar_fsdp_load"
           "=pipeline|a pipeline=experts|experts=attention|an attention=spatial|a spatial layer"
           "=points|an exchange of points=transfers|dpar_transfers_exchange"
           "=redistribute|dpar_redistribute=dpar_comm_check_equal|dpar_comm_check_equal=";
}

DPARI_API DPARI_COLD int32_t dpari_plan_tag(const char *plan)
{
    const char *words = dpari_plan_words();
    for (const char *w = words; plan && *w != 0; w++) {
        int32_t length = 0;
        if (*w != '=') {
            continue;
        }
        while (plan[length] != 0 && w[1 + length] == plan[length]) {
            length++;
        }
        if (plan[length] == 0 && w[1 + length] == '|') {
            return INT32_MIN + (int32_t)(w - words) + 2 + length;
        }
    }
    return 0;
}

DPARI_API DPARI_COLD int dpari_planning_text(dpar_text *text, int32_t kind, int64_t sequence,
                                             int32_t tag)
{
    const char *w = dpari_plan_words();
    int32_t at;
    if (tag >= DPARI_PLAN_TAGS || (kind != DPAR_CALL_ALL_REDUCE && kind != DPAR_CALL_BROADCAST)) {
        return 0;
    }
    at = tag - INT32_MIN; /* past the end if a user passed such a tag: the loop stops there */
    dpar_text_put(text, "the planning of ");
    for (; *w != 0 && at > 0; at--) {
        w++;
    }
    for (; *w != 0 && *w != '='; w++) {
        dpari_text_char(text, *w);
    }
    dpari_text_print(text, " (%s #%ld)", dpar_call_name(kind), sequence);
    return 1;
}

DPARI_API DPARI_COLD void dpari_operation_text(dpar_text *text, int32_t kind, int64_t sequence,
                                               int32_t type, int64_t count, int32_t root,
                                               int32_t tag)
{
    const int message = kind == DPAR_CALL_SEND || kind == DPAR_CALL_RECV;
    const int own = kind == DPAR_CALL_BARRIER;
    const char *name = dpar_call_name(kind);
    if (dpari_planning_text(text, kind, sequence, tag)) {
        return;
    }
    if (own && root == DPARI_SPLIT) {
        name = "split";
    } else if (own && root == DPARI_CLOSE) {
        name = "close";
    }
    dpar_text_put(text, name);
    if (!message) {
        dpari_text_print(text, " #%ld", sequence);
    }
    if (!own) {
        dpari_text_print(text, " of %ld %s", count, dpar_type_name(type));
    }
    if (message) {
        dpari_text_print(text, "%s%d", kind == DPAR_CALL_SEND ? " to " : " from ", root);
    }
}

/* ---- which arguments each kind uses ---------------------------------------------------------- */

DPARI_API int dpari_kind_reduces(int32_t kind)
{
    return kind == DPAR_CALL_ALL_REDUCE || kind == DPAR_CALL_REDUCE ||
           kind == DPAR_CALL_REDUCE_SCATTER;
}

DPARI_API int dpari_kind_rooted(int32_t kind)
{
    return kind == DPAR_CALL_BROADCAST || kind == DPAR_CALL_REDUCE || kind == DPAR_CALL_GATHER ||
           kind == DPAR_CALL_SCATTER;
}

DPARI_API int dpari_kind_sends(int32_t kind)
{
    return kind == DPAR_CALL_SEND || kind == DPAR_CALL_RECV;
}

/* True if this rank's `in` has one piece for each rank. The next function tests the same for
 * `out`. */
static int dpari_call_cuts_in(const dpar_comm *comm, const dpar_call *call)
{
    return call->kind == DPAR_CALL_REDUCE_SCATTER || call->kind == DPAR_CALL_ALL_TO_ALL ||
           (call->kind == DPAR_CALL_SCATTER && call->root == comm->rank);
}

static int dpari_call_cuts_out(const dpar_comm *comm, const dpar_call *call)
{
    return call->kind == DPAR_CALL_ALL_GATHER || call->kind == DPAR_CALL_ALL_TO_ALL ||
           (call->kind == DPAR_CALL_GATHER && call->root == comm->rank);
}

DPARI_API int dpari_call_has_in(const dpar_comm *comm, const dpar_call *call)
{
    if (call->kind == DPAR_CALL_SCATTER || call->kind == DPAR_CALL_BROADCAST) {
        return call->root == comm->rank;
    }
    return call->kind != DPAR_CALL_BARRIER && call->kind != DPAR_CALL_RECV;
}

DPARI_API int dpari_call_has_out(const dpar_comm *comm, const dpar_call *call)
{
    if (call->kind == DPAR_CALL_REDUCE || call->kind == DPAR_CALL_GATHER) {
        return call->root == comm->rank;
    }
    return call->kind != DPAR_CALL_BARRIER && call->kind != DPAR_CALL_SEND;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_comm_too_large(dpar_comm *comm, const dpar_call *call,
                                                   int64_t count)
{
    return dpari_say(DPAR_E_RANGE, &comm->why,
                     "%s: %ld elements of %s for %d ranks are more than 2^62 bytes",
                     dpar_call_name(call->kind), count, dpar_type_name(call->type), comm->size);
}

/* Fails if two pieces overlap. Pieces in ascending order are checked in one pass; only others are
 * compared pair by pair. */
static DPARI_COLD dpar_status dpari_pieces_overlap(dpar_comm *comm, const dpar_call *call,
                                                   const int64_t *count, const int64_t *begin)
{
    int32_t i, j, sorted = 1;
    for (i = 1; i < comm->size && sorted; i++) {
        sorted = begin[i] >= begin[i - 1] + count[i - 1];
    }
    for (i = 0; i < comm->size && !sorted; i++) {
        for (j = 0; j < i; j++) {
            if (count[i] > 0 && count[j] > 0 && begin[i] < begin[j] + count[j] &&
                begin[j] < begin[i] + count[i]) {
                return dpari_comm_bad_number(comm, call, "the piece from rank", i,
                                             "disjoint from the other pieces in out");
            }
        }
    }
    return DPAR_OK;
}

/* Checks pieces of different sizes in `in` or `out`. If `disjoint` is set, they must not overlap.
 * Sets *extent to the number of elements from the beginning of the buffer to the end of the last
 * piece. */
static DPARI_COLD dpar_status dpari_check_pieces(dpar_comm *comm, const dpar_call *call,
                                                 const int64_t *count, const int64_t *begin,
                                                 int disjoint, int64_t *extent)
{
    const int64_t most = (INT64_C(1) << 62) / dpar_type_bytes(call->type);
    int64_t sum = 0, end = 0;
    if (!count) {
        return dpari_comm_bad(comm, call, "the counts are NULL");
    }
    for (int32_t r = 0; r < comm->size; r++) {
        int64_t from = begin ? begin[r] : sum;
        if (count[r] < 0) {
            return dpari_comm_bad_number(comm, call, "a count of", count[r], ">= 0");
        }
        if (from < 0) {
            return dpari_comm_bad_number(comm, call, "a begin of", from, ">= 0");
        }
        if (count[r] > most || from > most - count[r] || sum > most - count[r]) {
            return dpari_comm_too_large(comm, call, count[r]);
        }
        sum += count[r];
        end = count[r] > 0 && from + count[r] > end ? from + count[r] : end;
    }
    *extent = end;
    return begin && disjoint ? dpari_pieces_overlap(comm, call, count, begin) : DPAR_OK;
}

/* Computes how many elements this rank's `in` and `out` must have; 0 if this rank does not use
 * them. */
static dpar_status dpari_call_extents(dpar_comm *comm, const dpar_call *call, int64_t *in,
                                      int64_t *out)
{
    int cut_in = dpari_call_cuts_in(comm, call), cut_out = dpari_call_cuts_out(comm, call);
    dpar_status s = DPAR_OK;
    *in = cut_in ? call->count * comm->size : call->count;
    *out = cut_out ? call->count * comm->size : call->count;
    if (call->variable_counts && cut_in) {
        s = dpari_check_pieces(comm, call, call->in_count, call->in_first, 0, in);
    }
    if (call->variable_counts && cut_out && s == DPAR_OK) {
        s = dpari_check_pieces(comm, call, call->out_count, call->out_first, 1, out);
    }
    *in = dpari_call_has_in(comm, call) ? *in : 0;
    *out = dpari_call_has_out(comm, call) ? *out : 0;
    return s;
}

/* Returns the offset, in elements, of this rank's own piece in the buffer that `count` and `begin`
 * describe. */
static int64_t dpari_piece_begin(const dpar_comm *comm, const dpar_call *call, const int64_t *count,
                                 const int64_t *begin)
{
    int64_t sum = 0;
    if (!call->variable_counts) {
        return call->count * comm->rank;
    }
    for (int32_t r = 0; r < comm->rank && !begin; r++) {
        sum += count[r];
    }
    return begin ? begin[comm->rank] : sum;
}

/* True if the pieces of `in` have the same sizes and offsets as those of `out`. */
static int dpari_same_pieces(const dpar_comm *comm, const dpar_call *call)
{
    int64_t in = 0, out = 0;
    for (int32_t r = 0; r < comm->size && call->variable_counts; r++) {
        const int64_t in_first = call->in_first ? call->in_first[r] : in;
        const int64_t out_first = call->out_first ? call->out_first[r] : out;
        if (call->in_count[r] != call->out_count[r] || in_first != out_first) {
            return 0;
        }
        in += call->in_count[r];
        out += call->out_count[r];
    }
    return 1;
}

/* True if `in` and `out` are at the addresses that an in-place call of this kind requires: at the
 * same address, or the smaller buffer at this rank's own piece of the larger one. */
static int dpari_call_in_place(const dpar_comm *comm, const dpar_call *call)
{
    const uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    const uintptr_t unit = (uintptr_t)dpar_type_bytes(call->type);
    switch (call->kind) {
    case DPAR_CALL_ALL_TO_ALL: return in == out && dpari_same_pieces(comm, call);
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_GATHER:
        return in == out + unit * (uintptr_t)dpari_piece_begin(comm, call, call->out_count,
                                                               call->out_first);
    case DPAR_CALL_REDUCE_SCATTER:
    case DPAR_CALL_SCATTER:
        return out ==
               in + unit * (uintptr_t)dpari_piece_begin(comm, call, call->in_count, call->in_first);
    default: return in == out;
    }
}

static dpar_status dpari_check_memory(dpar_comm *comm, const dpar_call *call)
{
    const uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    const uintptr_t unit = (uintptr_t)dpar_type_bytes(call->type);
    int64_t holds_in = 0, holds_out = 0;
    dpar_status s = dpari_call_extents(comm, call, &holds_in, &holds_out);
    if (s != DPAR_OK) {
        return s;
    }
    if (holds_in > 0 && !call->in) {
        return dpari_comm_bad(comm, call, "in is NULL");
    }
    if (holds_out > 0 && !call->out) {
        return dpari_comm_bad(comm, call, "out is NULL");
    }
    if (holds_in > 0 && holds_out > 0 && in < out + unit * (uintptr_t)holds_out &&
        out < in + unit * (uintptr_t)holds_in && !dpari_call_in_place(comm, call)) {
        return dpari_comm_bad(comm, call,
                              "in and out overlap, but not as an in-place call requires");
    }
    return DPAR_OK;
}

/* Checks a call against the size of its communicator. On failure the message is in comm->why. */
static dpar_status dpari_call_check(dpar_comm *comm, const dpar_call *call)
{
    int32_t unit = dpar_type_bytes(call->type);
    if (call->kind <= DPAR_CALL_NONE || call->kind >= DPAR_CALL_COUNT ||
        call->kind == DPAR_CALL_SEND_RECV) {
        return dpari_comm_bad_number(comm, call, "kind", call->kind, "an operation");
    }
    if (call->kind == DPAR_CALL_BARRIER) {
        return DPAR_OK;
    }
    if (dpari_kind_reduces(call->kind)) {
        if (!dpari_type_can_reduce(call->type)) {
            return dpari_comm_bad_type(comm, call, "a type that can be reduced");
        }
        if (call->op <= DPAR_COPY || call->op >= DPAR_OP_COUNT) {
            return dpari_comm_bad_number(comm, call, "op", call->op,
                                         "DPAR_SUM, AVG, PRODUCT, MAX or MIN");
        }
    } else if (unit == 0) {
        return dpari_comm_bad_type(comm, call, "a type with elements of whole bytes");
    }
    if ((dpari_kind_rooted(call->kind) || dpari_kind_sends(call->kind)) &&
        (call->root < 0 || call->root >= comm->size)) {
        return dpari_comm_bad_number(comm, call, dpari_kind_rooted(call->kind) ? "root" : "peer",
                                     call->root, "a rank of this communicator");
    }
    if (dpari_kind_sends(call->kind) && call->tag < 0) {
        return dpari_comm_bad_number(comm, call, "tag", call->tag, ">= 0");
    }
    if (call->count < 0) {
        return dpari_comm_bad_number(comm, call, "count", call->count, ">= 0");
    }
    /* smaller counts are below 2^62 bytes for any number of ranks, and need no divisions */
    if (call->count > 1 << 26 && call->count > (INT64_C(1) << 62) / unit / comm->size) {
        return dpari_comm_too_large(comm, call, call->count);
    }
    return dpari_check_memory(comm, call);
}

/* ---- counting the bytes sent to other ranks -------------------------------------------------- */

/* Counts the elements of all pieces except this rank's own. Pieces may have different sizes. */
static int64_t dpari_sent_pieces(const dpar_comm *comm, const dpar_call *call)
{
    int64_t sum = 0;
    int32_t r;
    if (!call->variable_counts) {
        return call->count * (comm->size - 1);
    }
    for (r = 0; call->in_count && r < comm->size; r++) {
        sum += r != comm->rank ? call->in_count[r] : 0;
    }
    return sum;
}

static int64_t dpari_sent_elements(const dpar_comm *comm, const dpar_call *call)
{
    const int64_t others = comm->size - 1, n = call->count;
    const int root = call->root == comm->rank;
    int64_t own;
    switch (call->kind) {
    case DPAR_CALL_ALL_REDUCE:
        own = n / comm->size + (comm->rank < n % comm->size);
        return n - own + others * own;
    case DPAR_CALL_ALL_GATHER: return others * n;
    case DPAR_CALL_REDUCE_SCATTER:
    case DPAR_CALL_ALL_TO_ALL: return dpari_sent_pieces(comm, call);
    case DPAR_CALL_BROADCAST: return root ? others * n : 0;
    case DPAR_CALL_SCATTER: return root ? dpari_sent_pieces(comm, call) : 0;
    case DPAR_CALL_REDUCE:
    case DPAR_CALL_GATHER:
    case DPAR_CALL_SEND: return root ? 0 : n;
    default: return 0;
    }
}

/* Returns the bytes that a call adds to comm->sent (comm.h). */
static int64_t dpari_call_sent(const dpar_comm *comm, const dpar_call *call)
{
    return comm && call && comm->size > 1
               ? dpari_sent_elements(comm, call) * dpar_type_bytes(dpari_kern_wire(call->type))
               : 0;
}

/* Adds the call to comm->sent if the engine accepted it. Returns s. */
static dpar_status dpari_counted(dpar_comm *comm, const dpar_call *call, dpar_status s)
{
    if (s == DPAR_OK) {
        comm->sent[call->kind] += dpari_call_sent(comm, call);
    }
    return s;
}

/* ---- dispatch -------------------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_work_is_busy(dpar_comm *comm, const dpar_work *work)
{
    return dpari_wrong(&comm->why,
                       "this work is still in progress (%s): wait for it before you post it again",
                       dpar_call_name(work->call.kind));
}

/* True if the operation is in progress. Memory that was never posted may contain any bytes, but not
 * its own address in `self`. */
static int dpari_is_in_progress(const dpar_work *work)
{
    return work->comm && work->self == work;
}

/* Prepares memory that may never have been posted, before the engine uses it. From here on, `comm`
 * is NULL unless the operation is in progress. */
static void dpari_work_mark(dpar_work *work)
{
    if (work->self != work) {
        work->self = work;
        work->comm = NULL;
    }
}

/* Stores the status of an operation that could not be posted, so that a later wait returns it. */
static DPARI_COLD dpar_status dpari_not_posted(dpar_work *work, dpar_status s)
{
    if (s != DPAR_OK && work && !dpari_is_in_progress(work)) {
        work->comm = NULL;
        work->status = s;
    }
    return s;
}

/* Checks a call, and that `work` can be posted, unless it is NULL. */
static dpar_status dpari_post_check(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    /* a thread of the engine may have set it; it writes comm->why first */
    dpar_status s = DPARI_LOAD(&comm->status);
    if (s == DPAR_OK) {
        s = dpari_call_check(comm, call);
    }
    if (s == DPAR_OK && work && dpari_is_in_progress(work)) {
        s = dpari_work_is_busy(comm, work);
    }
    return dpari_not_posted(work, s);
}

DPARI_API dpar_status dpari_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpar_status s;
    if (!comm || !call) {
        return dpari_not_posted(work, dpari_comm_null(comm, "post: the call is NULL"));
    }
    s = dpari_post_check(comm, call, work);
    if (s != DPAR_OK) {
        return s;
    }
    if (!work) {
        return dpari_counted(comm, call, comm->engine.run(comm, call));
    }
    dpari_work_mark(work);
    return dpari_counted(comm, call, dpari_not_posted(work, comm->engine.post(comm, call, work)));
}

static dpar_status dpari_batch_check(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                     dpar_work *works)
{
    dpar_status s = DPARI_LOAD(&comm->status);
    for (int32_t i = 0; i < n && s == DPAR_OK; i++) {
        if (!dpari_kind_sends(calls[i].kind)) {
            return dpari_comm_bad(comm, &calls[i],
                                  "a batch takes only DPAR_CALL_SEND and DPAR_CALL_RECV");
        }
        s = dpari_post_check(comm, &calls[i], works ? &works[i] : NULL);
    }
    return s;
}

DPARI_API dpar_status dpari_batch_checked(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                          dpar_work *works)
{
    dpar_status s = DPARI_LOAD(&comm->status);
    for (int32_t i = 0; works && i < n; i++) {
        dpari_work_mark(&works[i]);
    }
    if (s == DPAR_OK && n > 0) {
        s = comm->engine.batch(comm, calls, n, works);
    }
    for (int32_t i = 0; i < n && s == DPAR_OK; i++) {
        if (calls[i].kind == DPAR_CALL_SEND) {
            comm->sent[DPAR_CALL_SEND] += dpari_call_sent(comm, &calls[i]);
        }
    }
    return s;
}

DPAR_API dpar_status dpar_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                dpar_work *works)
{
    dpar_status s;
    if (!comm || n < 0 || (n > 0 && !calls)) {
        return dpari_comm_null(comm, "batch: the number of calls is negative, or calls is NULL");
    }
    s = dpari_batch_check(comm, calls, n, works);
    if (s == DPAR_OK) {
        return dpari_batch_checked(comm, calls, n, works);
    }
    for (int32_t i = 0; i < n && works; i++) {
        dpari_not_posted(&works[i], s);
    }
    return s;
}

DPAR_API dpar_status dpar_test(dpar_work *work)
{
    dpar_comm *comm;
    if (!work) {
        return DPAR_E_ARG;
    }
    comm = DPARI_LOAD(&work->comm); /* a progress thread may finish it meanwhile */
    if (comm && work->self != work) {
        return DPAR_E_ARG;
    }
    return comm ? comm->engine.test(work) : work->status;
}

DPAR_API dpar_status dpar_wait(dpar_work *work)
{
    dpar_comm *comm;
    if (!work) {
        return DPAR_E_ARG;
    }
    comm = DPARI_LOAD(&work->comm);
    if (comm && work->self != work) {
        return DPAR_E_ARG;
    }
    return comm ? comm->engine.wait(work) : work->status;
}

DPAR_API dpar_status dpar_wait_all(dpar_work *works, int32_t n)
{
    dpar_status first = !works && n > 0 ? DPAR_E_ARG : DPAR_OK;
    for (int32_t i = 0; works && i < n; i++) {
        dpar_status s = dpar_wait(&works[i]);
        if (first == DPAR_OK) {
            first = s;
        }
    }
    return first;
}

/* ---- operations that post their messages step by step (engine.h) ----------------------------- */

DPARI_API void dpari_rest_leave(dpar_comm *comm, dpari_rest *post, void *operation)
{
    comm->post_pending = post;
    comm->pending_owner = operation;
}

DPARI_API dpar_status dpari_rest_post(dpar_comm *comm)
{
    dpari_rest *post = comm->post_pending;
    void *operation = comm->pending_owner;
    dpari_rest_leave(comm, NULL, NULL);
    return post ? post(operation) : DPAR_OK;
}

DPARI_API void dpari_rest_drop(dpar_comm *comm, const void *operation)
{
    if (comm->pending_owner == operation) {
        dpari_rest_leave(comm, NULL, NULL);
    }
}

/* ---- the operations: each describes its arguments in a dpar_call ----------------------------- */

DPARI_API dpar_call dpari_call(int32_t kind, const void *in, void *out, int64_t count, int32_t type)
{
    dpar_call call = {0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL};
    call.kind = kind;
    call.in = in;
    call.out = out;
    call.count = count;
    call.type = type;
    return call;
}

DPAR_API dpar_status dpar_barrier(dpar_comm *comm, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_BARRIER, NULL, NULL, 0, DPAR_U8);
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_broadcast(dpar_comm *comm, void *buffer, int64_t count, int32_t type,
                                    int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_BROADCAST, buffer, buffer, count, type);
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_reduce(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_REDUCE, in, out, count, type);
    call.op = op;
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_reduce(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, int32_t op, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_REDUCE, in, out, count, type);
    call.op = op;
    return dpari_post(comm, &call, work);
}

DPARI_API dpar_status dpari_all_reduce_through(dpar_comm *comm, void *data, int64_t count,
                                               int32_t wire, int32_t op, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_REDUCE, data, data, count, DPAR_F32);
    dpar_status s;
    call.op = op;
    s = dpari_post_check(comm, &call, work);
    if (s != DPAR_OK) {
        return s;
    }
    dpari_work_mark(work);
    call.type = DPARI_KERN_THROUGH(wire);
    return dpari_counted(comm, &call, dpari_not_posted(work, comm->engine.post(comm, &call, work)));
}

DPAR_API dpar_status dpar_all_gather(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, in, out, count, type);
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_reduce_scatter(dpar_comm *comm, const void *in, void *out, int64_t count,
                                         int32_t type, int32_t op, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_REDUCE_SCATTER, in, out, count, type);
    call.op = op;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_to_all(dpar_comm *comm, const void *in, void *out, int64_t count,
                                     int32_t type, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_TO_ALL, in, out, count, type);
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_gather(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_GATHER, in, out, count, type);
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_scatter(dpar_comm *comm, const void *in, void *out, int64_t count,
                                  int32_t type, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_SCATTER, in, out, count, type);
    call.root = root;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_gather_v(dpar_comm *comm, const void *in, void *out,
                                       const int64_t *count, const int64_t *first, int32_t type,
                                       dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, in, out, 0, type);
    call.variable_counts = 1;
    call.count = comm && count ? count[comm->rank] : 0;
    call.out_count = count;
    call.out_first = first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_reduce_scatter_v(dpar_comm *comm, const void *in, void *out,
                                           const int64_t *count, int32_t type, int32_t op,
                                           dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_REDUCE_SCATTER, in, out, 0, type);
    call.variable_counts = 1;
    call.op = op;
    call.count = comm && count ? count[comm->rank] : 0;
    call.in_count = count;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_all_to_all_v(dpar_comm *comm, const void *in, const int64_t *in_count,
                                       const int64_t *in_first, void *out, const int64_t *out_count,
                                       const int64_t *out_first, int32_t type, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_ALL_TO_ALL, in, out, 0, type);
    call.variable_counts = 1;
    call.in_count = in_count;
    call.in_first = in_first;
    call.out_count = out_count;
    call.out_first = out_first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_gather_v(dpar_comm *comm, const void *in, int64_t in_count, void *out,
                                   const int64_t *count, const int64_t *first, int32_t type,
                                   int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_GATHER, in, out, in_count, type);
    call.variable_counts = 1;
    call.root = root;
    call.out_count = count;
    call.out_first = first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_scatter_v(dpar_comm *comm, const void *in, const int64_t *count,
                                    const int64_t *first, void *out, int64_t out_count,
                                    int32_t type, int32_t root, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_SCATTER, in, out, out_count, type);
    call.variable_counts = 1;
    call.root = root;
    call.in_count = count;
    call.in_first = first;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_send(dpar_comm *comm, const void *in, int64_t count, int32_t type,
                               int32_t to, int32_t tag, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_SEND, in, NULL, count, type);
    call.root = to;
    call.tag = tag;
    return dpari_post(comm, &call, work);
}

DPAR_API dpar_status dpar_recv(dpar_comm *comm, void *out, int64_t count, int32_t type,
                               int32_t from, int32_t tag, dpar_work *work)
{
    dpar_call call = dpari_call(DPAR_CALL_RECV, NULL, out, count, type);
    call.root = from;
    call.tag = tag;
    return dpari_post(comm, &call, work);
}

/* ---- groups, closed communicators, memory, reports ------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_comm_split(dpar_comm *comm, int32_t color, int32_t key,
                                                dpar_comm **out)
{
    dpar_status st;
    if (!comm || !out) {
        return dpari_comm_null(comm, "split: out is NULL");
    }
    st = DPARI_LOAD(&comm->status);
    if (st == DPAR_OK) {
        st = comm->engine.split(comm, color, key, out);
    }
    if (st == DPAR_OK && *out) {
        (*out)->mem = comm->mem;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_comm_split_axes(dpar_comm *comm, const dpar_mesh *mesh,
                                                     uint32_t axes, dpar_comm **out)
{
    int32_t coord[DPAR_MAX_AXES], color = -1, key = 0;
    int64_t last = 0;
    if (!comm || !mesh || !out) {
        return dpari_comm_null(comm, "split: the mesh or out is NULL");
    }
    for (int32_t a = 0; a < mesh->axes; a++) {
        last += (int64_t)(mesh->axis[a].size - 1) * mesh->axis[a].stride;
    }
    if (!dpari_mesh_injective(mesh) || mesh->first_rank < 0 ||
        mesh->first_rank + last >= comm->size) {
        return dpari_wrong(&comm->why,
                           "split: the mesh's ranks %d to %ld are outside this communicator of %d "
                           "ranks, or occur twice",
                           mesh->first_rank, mesh->first_rank + last, comm->size);
    }
    if (dpar_mesh_coords(mesh, comm->rank, coord)) {
        color = dpar_mesh_group_index(mesh, ~axes, comm->rank);
        key = dpar_mesh_group_index(mesh, axes, comm->rank);
    }
    return dpar_comm_split(comm, color, key, out);
}

DPAR_API DPARI_COLD dpar_status dpar_comm_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                                 dpar_why *why)
{
    dpar_status st;
    if (!comm || !out) {
        return dpari_wrong(why, "shrink: the communicator or out is NULL");
    }
    if (!comm->engine.shrink) {
        return dpari_say(DPAR_E_SYSTEM, why,
                         "shrink: the engine %s cannot continue without the ranks that failed",
                         comm->engine.name);
    }
    st = comm->engine.shrink(comm, out, was, why);
    if (st == DPAR_OK) {
        (*out)->mem = comm->mem;
    }
    return st;
}

/* The dpari_ended_x functions are the engine of a closed communicator. */
static DPARI_COLD dpar_status dpari_ended_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                                 dpar_why *why)
{
    const dpar_why closed = comm->why; /* a copy, because why may be &comm->why */
    (void)out;
    (void)was;
    return dpari_say(comm->status, why, "shrink: %s", closed.text);
}

static dpar_status dpari_ended_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    (void)bytes;
    *memory = NULL;
    return comm->status;
}

static void dpari_ended_release(dpar_comm *comm, void *memory)
{
    (void)comm;
    (void)memory;
}

static dpar_status dpari_ended_progress(dpar_comm *comm, int32_t on)
{
    (void)on;
    return comm->status;
}

static void dpari_ended_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    (void)comm;
    (void)status;
    (void)text;
}

static void dpari_ended_report(dpar_comm *comm, dpar_text *out)
{
    dpari_text_print(out, "%s\n", comm->why.text);
}

static void dpari_ended_describe(dpar_comm *comm, dpar_text *out)
{
    (void)comm;
    dpar_text_put(out, ", closed");
}

static dpar_status dpari_ended_close(dpar_comm *comm)
{
    (void)comm;
    return DPAR_E_ARG;
}

DPARI_API DPARI_COLD int dpari_ended_is(const dpar_comm *comm)
{
    return comm->engine.close == dpari_ended_close;
}

DPARI_API DPARI_COLD void dpari_on_end_add(dpar_comm *comm, dpari_on_end *e)
{
    e->next = comm->ends;
    comm->ends = e;
}

DPARI_API DPARI_COLD void dpari_on_end_drop(dpar_comm *comm, const dpari_on_end *e)
{
    dpari_on_end **link = comm ? &comm->ends : NULL;
    while (link && *link) {
        if (*link == e) {
            *link = e->next;
            return;
        }
        link = &(*link)->next;
    }
}

DPARI_API DPARI_COLD void dpari_on_end_all(dpar_comm *comm)
{
    for (; comm && comm->ends; comm->ends = comm->ends->next) {
        *comm->ends->at = NULL;
    }
}

/* Replaces the engine's functions that are called without a check of comm->status. Callers of the
 * others, such as run and post, check it first. */
DPARI_API DPARI_COLD dpar_comm *dpari_ended_keep(dpari_ended *closed, dpar_comm *comm)
{
    dpar_comm **at = &closed->last[closed->count++ % DPARI_ENDED], *gone = *at;
    *at = comm;
    (void)dpari_wrong(&comm->why, "this communicator was closed before");
    DPARI_STORE(&comm->status, (dpar_status)DPAR_E_ARG);
    comm->engine.shrink = dpari_ended_shrink;
    comm->engine.alloc = dpari_ended_alloc;
    comm->engine.release = dpari_ended_release;
    comm->engine.progress = dpari_ended_progress;
    comm->engine.abort = dpari_ended_abort;
    comm->engine.report = dpari_ended_report;
    comm->engine.describe = dpari_ended_describe;
    comm->engine.close = dpari_ended_close;
    dpari_on_end_all(gone);
    return gone;
}

DPARI_API DPARI_COLD dpar_comm *dpari_ended_take(dpari_ended *closed)
{
    for (int32_t i = 0; i < DPARI_ENDED; i++) {
        dpar_comm *comm = closed->last[i];
        closed->last[i] = NULL;
        if (comm) {
            dpari_on_end_all(comm);
            return comm;
        }
    }
    return NULL;
}

DPAR_API dpar_status dpar_comm_free(dpar_comm *comm)
{
    return comm ? comm->engine.close(comm) : DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_comm_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    if (!comm || !memory) {
        return dpari_comm_null(comm, "alloc: memory is NULL");
    }
    if (bytes < 0) {
        return dpari_wrong(&comm->why, "alloc: %ld bytes cannot be allocated", bytes);
    }
    return comm->engine.alloc(comm, bytes, memory);
}

DPAR_API void dpar_comm_release(dpar_comm *comm, void *memory)
{
    if (comm && memory) {
        comm->engine.release(comm, memory);
    }
}

DPAR_API dpar_status dpar_comm_progress(dpar_comm *comm, int32_t on)
{
    return comm ? comm->engine.progress(comm, on) : DPAR_E_ARG;
}

DPAR_API void dpar_comm_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    if (!comm) {
        return;
    }
    if (status >= 0) {
        status = DPAR_E_PEER;
    }
    comm->engine.abort(comm, status, text ? text : "aborted");
}

DPAR_API DPARI_COLD void dpar_comm_describe(dpar_comm *comm, dpar_text *out)
{
    if (comm && out) {
        dpari_text_print(out, "%s: %d%s", comm->engine.name, comm->size,
                         comm->size == 1 ? " rank" : " ranks");
        if (comm->engine.describe) {
            comm->engine.describe(comm, out);
        }
    }
}

DPAR_API DPARI_COLD void dpar_comm_report(dpar_comm *comm, dpar_text *out)
{
    if (comm && out) {
        comm->engine.report(comm, out);
    }
}

/* ==== comm/memory_calls.c ==== */

/* Calls the functions of comm->mem, or the loops of mem.c if comm->mem is NULL, and breaks the
 * communicator if a function fails. The moves and the strategies of dpar_train.h call it. */

DPARI_API dpar_status dpari_do_ended(dpar_comm *comm, dpar_status st, const char *what)
{
    dpar_why why;
    if (st < 0 && comm->status >= 0) {
        (void)dpari_say(st, &why, "rank %d: %s of its dpar_mem failed", comm->rank, what);
        dpar_comm_abort(comm, st, why.text);
    }
    return st < 0 ? st : DPAR_OK;
}

DPARI_API dpar_status dpari_do_move(dpar_comm *comm, const dpar_mem_box *boxes, int32_t n)
{
    const dpar_mem *m = comm->mem;
    if (m == NULL) {
        return dpari_mem_move(NULL, boxes, n);
    }
    return dpari_do_ended(comm, m->move == NULL ? DPAR_E_UNKNOWN : m->move(m->ctx, boxes, n),
                          "move");
}

DPARI_API dpar_status dpari_do_wait(dpar_comm *comm)
{
    const dpar_mem *m = comm->mem;
    return m == NULL || m->wait == NULL ? DPAR_OK : dpari_do_ended(comm, m->wait(m->ctx), "wait");
}

DPARI_API dpar_status dpari_do_span(dpar_comm *comm, const dpar_mem_span *call, int32_t n)
{
    const dpar_mem *m = comm->mem;
    if (m == NULL) {
        return dpari_mem_span(NULL, call, n);
    }
    return dpari_do_ended(comm, m->span == NULL ? DPAR_E_UNKNOWN : m->span(m->ctx, call, n),
                          "span");
}

/* Defines dpari_do_reduce and dpari_do_finite. */
#define DPARI_DO(name)                                                                             \
    DPARI_API dpar_status dpari_do_##name(dpar_comm *comm, const dpar_mem_##name *call)            \
    {                                                                                              \
        const dpar_mem *m = comm->mem;                                                             \
        if (m == NULL) {                                                                           \
            return dpari_mem_##name(NULL, call);                                                   \
        }                                                                                          \
        return dpari_do_ended(comm, m->name == NULL ? DPAR_E_UNKNOWN : m->name(m->ctx, call),      \
                              #name);                                                              \
    }
DPARI_DO(reduce)
DPARI_DO(finite)

DPARI_API dpar_status dpari_do_convert(dpar_comm *comm, void *to, int32_t to_type, const void *from,
                                       int32_t from_type, int64_t count, int add)
{
    dpar_mem_span s;
    dpari_zero(&s, sizeof s);
    s.to = to;
    s.from = from;
    s.count = count;
    s.to_type = to_type;
    s.from_type = from_type;
    s.accumulate = add != 0;
    s.scale = from != NULL ? 1.0 : 0.0;
    return count > 0 ? dpari_do_span(comm, &s, 1) : DPAR_OK;
}

DPARI_API dpar_status dpari_do_copy(dpar_comm *comm, void *to, const void *from, int64_t bytes)
{
    return to == from ? DPAR_OK : dpari_do_convert(comm, to, DPAR_U8, from, DPAR_U8, bytes, 0);
}

DPARI_API dpar_status dpari_do_rows(dpar_comm *comm, void *to, int64_t to_step, const void *from,
                                    int64_t from_step, int64_t count, int64_t rows, int32_t type,
                                    int32_t op)
{
    dpar_mem_box b;
    if (count <= 0 || rows <= 0) {
        return DPAR_OK;
    }
    dpari_zero(&b, sizeof b);
    b.to = to;
    b.from = (void *)(uintptr_t)from; /* read only */
    b.to_type = b.from_type = b.round_type = type;
    b.op = op;
    b.dims = 2;
    b.extent[0] = rows;
    b.extent[1] = count;
    b.to_stride[0] = to_step;
    b.from_stride[0] = from_step;
    b.to_stride[1] = b.from_stride[1] = 1;
    return dpari_do_move(comm, &b, 1);
}

/* ==== comm/agree.c ==== */

/* Compares descriptions across ranks before they plan something together, and divides the caller's
 * memory into pieces.
 *
 * A collective constructor describes its arguments as facts: names with numbers. dpari_agree_on
 * hashes them, and compares the hashes and the ranks' own statuses in one small all-reduce. If the
 * hashes differ, the all-reduce also finds two ranks whose hashes differ, and these find the first
 * fact that differs by bisection. All ranks then fail with DPAR_E_MISMATCH, and the message names
 * the fact, the two ranks and both values. If a rank had failed before, it returns its own status,
 * and the other ranks return the worst status of all. Called by the moves of ../exchange, simple.c
 * and the functions of dpar_halo.h, dpar_points.h, dpar_train.h and dpar_spatial.h that make plans.
 */

/* The multiplier is 2^64 divided by the golden ratio, as in Fibonacci hashing. The shift mixes the
 * upper bits of the product, which depend on all bits of the factors, into the lower ones. */
DPARI_API DPARI_NOINLINE uint64_t dpari_hash(uint64_t h, int64_t v)
{
    h = (h ^ (uint64_t)v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Returns the bits of a real number as an integer. */
static int64_t dpari_real_bits(double v)
{
    int64_t bits;
    v += 0.0; /* makes -0.0 equal to 0.0 */
    dpari_elements_bits(&bits, &v, 8);
    return bits;
}

DPARI_API DPARI_COLD uint64_t dpari_hash_real(uint64_t h, double v)
{
    return dpari_hash(h, dpari_real_bits(v));
}

/* Two small numbers share a step: dims (at most 6) and placement kinds are below 16, and `dim` is
 * below 64. */
DPARI_API DPARI_COLD uint64_t dpari_hash_layout(uint64_t h, const dpar_layout *layout)
{
    int32_t i, k;
    h = dpari_hash(h, layout->dims + 16 * layout->mesh.axes);
    h = dpari_hash(h, layout->mesh.first_rank);
    for (i = 0; i < layout->dims; i++) {
        h = dpari_hash(h, layout->extent[i]);
    }
    for (i = 0; i < layout->mesh.axes; i++) {
        const dpar_placement *placement = &layout->axis[i];
        h = dpari_hash(h, layout->mesh.axis[i].size);
        h = dpari_hash(h, layout->mesh.axis[i].stride);
        h = dpari_hash(h, placement->kind + 16 * layout->order[i]);
        if (placement->kind == DPAR_PLACEMENT_PARTIAL) {
            h = dpari_hash(h, placement->op);
        }
        if (placement->kind == DPAR_PLACEMENT_SHARD) {
            h = dpari_hash(h, placement->dim + 64 * placement->rule);
            h = dpari_hash(h, placement->block);
            h = dpari_hash(h, placement->source);
            for (k = 0; placement->rule == DPAR_SPLIT_RAGGED && k <= layout->mesh.axis[i].size;
                 k++) {
                h = dpari_hash(h, placement->cuts[k]);
            }
        }
    }
    return h;
}

/* Rank `who` has failed with the status `worst`. Broadcasts its message, which the ranks that have
 * not failed themselves return with that status. */
static dpar_status dpari_agree_failed(dpar_comm *comm, dpar_status mine, dpar_status worst,
                                      int32_t who, dpar_why *why)
{
    dpar_why said;
    dpar_status s;
    dpari_zero(&said, sizeof said);
    if (why != NULL && comm->rank == who) {
        said = *why;
    }
    s = dpar_broadcast(comm, said.text, sizeof said.text, DPAR_U8, who, NULL);
    if (mine != DPAR_OK) {
        return mine;
    }
    if (s != DPAR_OK) {
        return dpari_repeat(s, why, comm->why.text);
    }
    if (said.text[0] == 0) {
        return dpari_say(worst, why, "rank %d: %s", who, dpar_status_text(worst));
    }
    return dpari_say(worst, why, "rank %d: %s", who, said.text);
}

/* Compares the statuses and hashes of all ranks. If two hashes differ, stores the two ranks in
 * who[2], the lower one first, and returns DPAR_E_MISMATCH without a message. Otherwise sets both
 * to -1, and returns DPAR_OK or, with a message, an error: a rank has failed, has not called this
 * function, or the communicator has failed.
 *
 * One all-reduce finds three minima: the worst status with its rank, the smallest hash with its
 * rank, and the negative of the largest hash with its rank. The rank is in the low bits of each
 * number: below 2^32 for the status, and below 2^20 for the hash. Only the upper 42 bits of the
 * hash are compared, so that it fits in 62 bits together with the rank. A result that cannot be
 * such a minimum means that the all-reduce was matched with another operation, which an engine that
 * does not compare calls allows. */
static DPARI_COLD dpar_status dpari_agree_pair(dpar_comm *comm, dpar_status st, const char *plan,
                                               uint64_t hash, int32_t *who, dpar_why *why)
{
    const int64_t unit = INT64_C(1) << 32, ranks = INT64_C(1) << 20;
    const int64_t mine = (int64_t)(hash >> 22) * ranks + comm->rank;
    const int64_t in[3] = {st * unit + comm->rank, mine, -mine};
    int64_t out[3] = {0, 0, 0}, rank[2];
    dpar_status run, worst;
    int32_t i, impossible = 0;
    dpar_call call = dpari_call(DPAR_CALL_ALL_REDUCE, in, out, 3, DPAR_I64);
    call.op = DPAR_MIN;
    call.tag = dpari_plan_tag(plan);
    who[0] = who[1] = -1;
    run = dpari_post(comm, &call, NULL);
    if (run != DPAR_OK) {
        return dpari_repeat(run, why, comm->why.text);
    }
    for (i = 0; i < 3; i++) {
        impossible |= out[i] > in[i] || out[i] == INT64_MIN;
        out[i] = impossible ? 0 : out[i];
    }
    worst = (dpar_status)dpari_floor_div(out[0], unit);
    rank[0] = worst != DPAR_OK ? out[0] - worst * unit : out[1] % ranks;
    rank[1] = worst != DPAR_OK ? rank[0] : -out[2] % ranks;
    impossible |= out[1] / ranks != -out[2] / ranks && worst == DPAR_OK && rank[0] == rank[1];
    if (impossible || worst > 0 || rank[0] < 0 || rank[0] >= comm->size || rank[1] < 0 ||
        rank[1] >= comm->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank %d: the all-reduce of %d ranks before a plan has a result that no "
                         "rank gave: another rank called another operation",
                         comm->rank, comm->size);
    }
    if (worst != DPAR_OK) {
        return dpari_agree_failed(comm, st, worst, (int32_t)rank[0], why);
    }
    if (out[1] / ranks == -out[2] / ranks) {
        return DPAR_OK;
    }
    if (out[1] / ranks == 0) { /* a hash of 0 means that the rank does not make a plan */
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank %ld begins a plan, but rank %ld called another operation", rank[1],
                         rank[0]);
    }
    who[0] = (int32_t)dpari_least(rank[0], rank[1]);
    who[1] = (int32_t)dpari_most(rank[0], rank[1]);
    return DPAR_E_MISMATCH;
}

DPARI_API dpar_why *dpari_why_of(dpar_comm *comm, dpar_why *why)
{
    if (why != NULL || comm->status != DPAR_OK) {
        return why;
    }
    comm->why.text[0] = 0;
    comm->why.bytes = 0;
    return &comm->why;
}

DPARI_API dpar_status dpari_agree(dpar_comm *comm, dpar_status st, dpar_why *why)
{
    int32_t who[2];
    return dpari_agree_pair(comm, st, NULL, 0, who, why);
}

/* ---- facts ----------------------------------------------------------------------------------- */

enum { DPARI_FACT_NUMBER, DPARI_FACT_TYPE, DPARI_FACT_REAL, DPARI_FACT_HASH };

/* Adds a fact to the hash, and stores it if it is the one at position `keep`. */
static DPARI_COLD void dpari_fact_of(dpari_facts *facts, const char *name, int64_t index,
                                     int64_t value, int32_t kind)
{
    if (facts->count == facts->keep) {
        facts->before = facts->hash;
        facts->name = name;
        facts->index = index;
        facts->kept_of = facts->of;
        facts->kept_of_index = facts->of_index;
        facts->value = value;
        facts->kind = kind;
    }
    facts->hash = dpari_hash(facts->hash, value);
    facts->count++;
}

DPARI_API DPARI_COLD void dpari_fact(dpari_facts *facts, const char *name, int64_t index,
                                     int64_t value)
{
    dpari_fact_of(facts, name, index, value, DPARI_FACT_NUMBER);
}

DPARI_API DPARI_COLD void dpari_fact_type(dpari_facts *facts, const char *name, int64_t index,
                                          int32_t type)
{
    dpari_fact_of(facts, name, index, type, DPARI_FACT_TYPE);
}

DPARI_API DPARI_COLD void dpari_fact_real(dpari_facts *facts, const char *name, int64_t index,
                                          double value)
{
    dpari_fact_of(facts, name, index, dpari_real_bits(value), DPARI_FACT_REAL);
}

DPARI_API DPARI_COLD void dpari_fact_hash(dpari_facts *facts, const char *name, int64_t index,
                                          uint64_t hash)
{
    dpari_fact_of(facts, name, index, (int64_t)hash, DPARI_FACT_HASH);
}

/* Returns the hash of a plan's name, with which the hash of its facts begins. */
static uint64_t dpari_facts_plan(const char *plan)
{
    uint64_t h = 1;
    for (; *plan != 0; plan++) {
        h = dpari_hash(h, *plan);
    }
    return h;
}

/* Computes the hash of all facts of a plan, and stores the fact at position `keep`. */
static void dpari_facts_state(dpari_facts *facts, const char *plan, dpari_state *state,
                              const void *given, int64_t keep)
{
    dpari_zero(facts, sizeof *facts);
    facts->hash = dpari_facts_plan(plan);
    facts->keep = keep;
    state(facts, given);
    if (facts->name == NULL) {
        facts->before = facts->hash;
    }
}

DPARI_API DPARI_COLD uint64_t dpari_facts_hash(const char *plan, dpari_state *state,
                                               const void *given)
{
    dpari_facts f;
    dpari_facts_state(&f, plan, state, given, 0);
    return f.hash | UINT64_C(1) << 63; /* not 0, even if compared without its lower bits */
}

/* Finds the position of the first fact in which ranks who[0] and who[1] differ, by bisection. In
 * each step who[0] broadcasts the hash of its facts up to the middle one, and who[1] broadcasts
 * whether it has the same hash. COLLECTIVE. */
static dpar_status dpari_facts_first_difference(dpar_comm *comm, const int32_t *who,
                                                const char *plan, dpari_state *state,
                                                const void *given, int64_t *first)
{
    dpari_facts f;
    int64_t low = 0, high;
    dpar_status st;
    dpari_facts_state(&f, plan, state, given, 0);
    high = f.count;
    st = dpar_broadcast(comm, &high, 1, DPAR_I64, who[0], NULL);
    while (low < high && st == DPAR_OK) {
        const int64_t middle = low + (high - low) / 2;
        uint64_t before;
        int32_t equal;
        dpari_facts_state(&f, plan, state, given, middle + 1);
        before = f.before;
        st = dpar_broadcast(comm, &before, 1, DPAR_I64, who[0], NULL);
        equal = before == f.before;
        if (st == DPAR_OK) {
            st = dpar_broadcast(comm, &equal, 1, DPAR_I32, who[1], NULL);
        }
        low = equal ? middle + 1 : low;
        high = equal ? high : middle;
    }
    *first = low;
    return st;
}

/* Appends a name, with the index in place of '#'. */
static void dpari_fact_put_name(dpar_text *text, const char *name, int64_t index)
{
    for (; name != NULL && *name != 0; name++) {
        if (*name == '#') {
            dpari_text_int(text, index);
        } else {
            dpari_text_char(text, *name);
        }
    }
}

static double dpari_fact_real_of(int64_t value)
{
    double real;
    dpari_elements_bits(&real, &value, 8);
    return real;
}

/* Appends a value of a fact. Real numbers have 6 digits, or 17, which distinguish any two doubles,
 * if `other` differs by less than 1e-4 of the value. */
static void dpari_fact_put_value(dpar_text *text, int32_t kind, int64_t value, int64_t other)
{
    if (kind == DPARI_FACT_REAL) {
        const double x = dpari_fact_real_of(value), y = dpari_fact_real_of(other);
        const double difference = x > y ? x - y : y - x;
        const double size = x > 0.0 ? x : -x;
        dpari_text_real(text, x, difference < 1e-4 * size ? 17 : 6);
    } else if (kind == DPARI_FACT_TYPE) {
        dpar_text_put(text, dpar_type_name((int32_t)value));
    } else {
        dpari_text_int(text, value);
    }
}

/* Writes the message about the stored fact, on rank who[1]. other: its value on rank who[0].
 * comparable: 1 if rank who[0] makes the same kind of plan and also has this fact, so that the
 * values can be compared. */
static void dpari_facts_say(const dpari_facts *facts, const char *plan, int comparable,
                            int64_t other, const int32_t *who, dpar_why *found)
{
    const int64_t value[2] = {other, facts->value};
    dpar_text t;
    int32_t i;
    dpari_text_why(&t, found);
    dpari_text_print(&t, "%s: ", plan);
    if (facts->name == NULL || !comparable) {
        dpari_text_print(&t, "rank %d begins such a plan, but rank %d another one", who[1], who[0]);
        return;
    }
    dpari_fact_put_name(&t, facts->kept_of, facts->kept_of_index);
    dpari_fact_put_name(&t, facts->name, facts->index);
    for (i = 0; i < 2; i++) {
        if (facts->kind == DPARI_FACT_HASH) {
            dpar_text_put(&t, i ? " and " : " is not the same on ranks ");
        } else {
            dpar_text_put(&t, i ? ", " : " is ");
            dpari_fact_put_value(&t, facts->kind, value[i], value[1 - i]);
            dpar_text_put(&t, " on rank ");
        }
        dpari_text_int(&t, who[i]);
    }
}

DPARI_API DPARI_COLD dpar_status dpari_agree_on(dpar_comm *comm, dpar_status st, const char *plan,
                                                dpari_state *state, const void *given,
                                                dpar_why *why)
{
    dpari_facts f;
    dpar_why found;
    int64_t first = 0, shown[3];
    int32_t who[2];
    uint64_t hash = 0;
    if (st == DPAR_OK && state) {
        hash = dpari_facts_hash(plan, state, given);
    }
    st = dpari_agree_pair(comm, st, plan, hash, who, why);
    if (who[0] == who[1]) {
        return st;
    }
    dpari_zero(&found, sizeof found);
    st = dpari_facts_first_difference(comm, who, plan, state, given, &first);
    dpari_facts_state(&f, plan, state, given, first);
    shown[0] = f.name != NULL;
    shown[1] = f.value;
    shown[2] = (int64_t)dpari_facts_plan(plan);
    if (st == DPAR_OK) {
        st = dpar_broadcast(comm, shown, 3, DPAR_I64, who[0], NULL);
    }
    if (st == DPAR_OK && comm->rank == who[1]) {
        const int alike = shown[0] != 0 && shown[2] == (int64_t)dpari_facts_plan(plan);
        dpari_facts_say(&f, plan, alike, shown[1], who, &found);
    }
    if (st == DPAR_OK) {
        st = dpar_broadcast(comm, found.text, (int64_t)sizeof found.text, DPAR_U8, who[1], NULL);
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, comm->why.text);
    }
    return dpari_repeat(DPAR_E_MISMATCH, why, found.text);
}

DPARI_API dpar_status dpari_post_alike(dpar_comm *comm, dpar_call *call, uint64_t hash,
                                       const char *what, dpar_work *work)
{
    dpar_status st;
    call->tag = 1 + (int32_t)(hash % INT32_MAX);
    st = dpari_post(comm, call, work);
    if (st == DPAR_E_MISMATCH && comm->status == st) {
        const dpar_why said = comm->why;
        dpar_text t;
        dpari_text_why(&t, &comm->why);
        dpari_text_print(&t, "%s: %s", what, said.text);
    }
    return st;
}

/* ---- reporting wrong calls ------------------------------------------------------------------- */

static DPARI_COLD dpar_status dpari_comm_say_list(dpar_comm *comm, dpar_status st, const char *form,
                                                  va_list *list)
{
    return comm->status < 0 ? comm->status : dpari_say_list(st, &comm->why, form, list);
}

DPARI_API DPARI_COLD dpar_status dpari_comm_say(dpar_comm *comm, dpar_status st, const char *form,
                                                ...)
{
    va_list list;
    va_start(list, form);
    st = dpari_comm_say_list(comm, st, form, &list);
    va_end(list);
    return st;
}

DPARI_API DPARI_COLD dpar_status dpari_comm_wrong(dpar_comm *comm, const char *form, ...)
{
    dpar_status st;
    va_list list;
    va_start(list, form);
    st = dpari_comm_say_list(comm, DPAR_E_ARG, form, &list);
    va_end(list);
    return st;
}

DPARI_API DPARI_COLD dpar_status dpari_comm_wrong_all(dpar_comm *comm, dpar_status st,
                                                      const char *form, ...)
{
    dpar_why why;
    va_list list;
    if (comm->status < 0) {
        return comm->status;
    }
    va_start(list, form);
    (void)dpari_say_list(st, &why, form, &list);
    va_end(list);
    dpar_comm_abort(comm, st, why.text);
    return dpari_repeat(st, &comm->why, why.text);
}

/* ---- memory ---------------------------------------------------------------------------------- */

DPARI_API void *dpari_room_take(dpari_room *r, int64_t n, size_t bytes)
{
    int64_t at = r->used;
    r->used += dpari_room_up(n * (int64_t)bytes);
    return r->at != NULL ? r->at + at : NULL;
}

/* ==== comm/copy_choice.c ==== */

/* Chooses the faster of two methods of copying by measuring both in use. copy_choice.h explains the
 * methods.
 *
 * Each size class keeps the time per byte of both. The faster one is used, and now and then the
 * other one is tried again, less often the longer it has been slower. Called by collectives.c and
 * p2p.c. */

DPARI_INTERNAL dpari_pace *dpari_pace_of(dpari_pace *pace, int64_t bytes)
{
    if (bytes < INT64_C(32) << 10) {
        return &pace[0];
    }
    if (bytes < INT64_C(512) << 10) {
        return &pace[1];
    }
    return &pace[bytes < INT64_C(8) << 20 ? 2 : 3];
}

/* True if it is time to try the other method: after `wait` copies, a number that doubles with each
 * trial up to 1024, or as soon as the chosen method takes 1.4 times as long as at the last
 * trial. */
static int32_t dpari_pace_is_due(dpari_pace *pace)
{
    const uint32_t last = 1024;
    if (++pace->turns <= pace->wait &&
        !(pace->known > 0.0 && pace->per_byte[pace->way] > 1.4 * pace->known)) {
        return 0;
    }
    pace->turns = 0;
    pace->wait = pace->wait < last / 2 ? 2 * pace->wait : last;
    pace->known = pace->per_byte[pace->way];
    pace->per_byte[!pace->way] = 0.0;
    return 1;
}

DPARI_INTERNAL int32_t dpari_pace_choose(dpari_pace *pace)
{
    enum {
        TRIALS = 3, /* copies of a trial: several, because the first one is slow */
        FIRST = 64  /* copies until the first trial */
    };
    const double ring = pace->per_byte[DPARI_BY_RING], kernel = pace->per_byte[DPARI_BY_KERNEL];
    const int32_t way = ring < 0.85 * kernel ? DPARI_BY_RING : DPARI_BY_KERNEL;
    if (pace->trial > 0) {
        pace->trial--;
        return !pace->way;
    }
    if (way != pace->way || pace->wait == 0) {
        pace->way = way;
        pace->turns = 0;
        pace->wait = pace->per_byte[!way] > 0.0 ? FIRST : TRIALS;
        pace->known = pace->per_byte[way];
    }
    if (!dpari_pace_is_due(pace)) {
        return way;
    }
    pace->trial = TRIALS - 1;
    return !way;
}

/* A copy may take longer because another rank is late, but nothing makes it faster than it is. A
 * better time therefore counts at once, a worse one only gradually. */
DPARI_INTERNAL void dpari_pace_tell(dpari_pace *pace, int32_t way, int64_t bytes, double seconds)
{
    double *known = &pace->per_byte[way];
    const double now = seconds / (double)bytes;
    if (*known <= 0.0 || now < *known) {
        *known = now;
    } else {
        *known += ((now < 2 * *known ? now : 2 * *known) - *known) / 8;
    }
}

/* ==== comm/wait.c ==== */

/* Implements waiting: a rank that waits polls, then yields, then sleeps on a futex until another
 * rank wakes it. wait.h has the loop of a wait.
 *
 * A rank goes to sleep in this order: it counts itself in head->sleepers, sets `asleep`, and tests
 * its condition once more. A rank that publishes a word stores it first and then reads `sleepers`.
 * All these accesses are sequentially consistent, so that either the sleeper sees the word or the
 * publisher sees the sleeper and wakes it. */

DPARI_INTERNAL int dpari_uncount(dpari_world_head *head, dpari_rank *record)
{
    uint32_t asleep = 1;
    if (!DPARI_CLAIM(&record->asleep, &asleep, 0U)) {
        return 0;
    }
    DPARI_ADD(&head->sleepers, (uint32_t)-1);
    return 1;
}

static void dpari_ring(dpari_world_head *head, dpari_rank *record)
{
    if (dpari_uncount(head, record)) {
        DPARI_ADD(&record->bell, 1U);
        dpari_os_futex_wake(&record->bell, head->threads);
    }
}

DPARI_INTERNAL void dpari_ring_all(const dpari_segment *segment)
{
    dpari_world_head *head = dpari_segment_head(segment);
    for (uint32_t i = 0; i < head->ranks; i++) {
        dpari_ring(head, &dpari_segment_ranks(segment)[i]);
    }
}

/* Wakes the ranks that sleep until this one publishes something. It is a function of its own
 * because dpari_publish seldom finds a rank asleep. */
static void dpari_ring_sleepers(dpari_world *world)
{
    for (int32_t i = 0; i < world->size; i++) {
        dpari_rank *record = &world->rank[i];
        if (DPARI_LOAD_SEQ(&record->asleep)) {
            int32_t peer = DPARI_LOAD(&record->waits_for);
            if (peer < 0 || peer == world->me) {
                dpari_ring(world->head, record);
            }
        }
    }
}

DPARI_API void dpari_publish(dpari_world *world, uint64_t *word, uint64_t value)
{
    DPARI_STORE_SEQ(word, value);
    if (DPARI_LOAD_SEQ(&world->head->sleepers)) {
        dpari_ring_sleepers(world);
    }
}

enum {
    DPARI_SPINS = 8192,        /* about 0.1 ms, as long as a sleep and its wake-up take */
    DPARI_SPINS_SHARED = 8,    /* if the peer needs this core, which spinning keeps from it */
    DPARI_SPINS_BLIND = 64,    /* 1 to 3 us, after which a wait checks on which CPU its peer is */
    DPARI_SPINS_MORE = 1024,   /* spins until a wait looks at the clock again */
    DPARI_SPINS_SLEEPY = 1024, /* if there are cores for all, but other programs keep them busy */
    DPARI_VAIN = 3,            /* consecutive waits that spin without success before waits spin
                                  less */
    DPARI_SLEEPY = 1000,       /* waits for which one slow yield is remembered */
    DPARI_SLEEPY_MOST = 64000, /* the most such waits; each further slow yield doubles their
                                  number */
    DPARI_SLEEPY_LOST = 64     /* waits for which the loss of a time slice is remembered */
};
/* All in seconds. */
#define DPARI_SPIN_FOR 1e-3 /* ten times as long as a sleep and its wake-up on an active core */
#define DPARI_YIELD_FOR 2e-3
#define DPARI_YIELD_IS_SLOW 500e-6 /* less than a time slice, more than a brief interruption */
#define DPARI_SLEEP_FOR 20e-3
#define DPARI_MOVE_EVERY 2e-3 /* the least time between two moves of a rank, half a time slice */
#define DPARI_SLICE_LOST 2e-3 /* from such a gap between two looks on, another program ran */

/* Looks at the clock. Time for which this process was suspended does not count as waiting. Returns
 * the seconds since the last look. */
static double dpari_wait_look_at_clock(dpari_wait *waiting, double now)
{
    const double since = waiting->looked > 0.0 ? now - waiting->looked : 0.0;
    const double suspended = dpari_os_suspended(&waiting->looked, now);
    if (suspended > 0.0) {
        waiting->resumed++;
        waiting->began += waiting->began > 0.0 ? suspended : 0.0;
    }
    return since;
}

/* Publishes on which CPU this rank runs, and checks whether the peer (any rank if -1) was last seen
 * on the same CPU. In that case the peer cannot make progress while this rank spins. */
static DPARI_COLD void dpari_wait_look_around(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    const int32_t cpu = dpari_os_cpu();
    const int32_t first = peer < 0 ? 0 : peer;
    const int32_t end = peer < 0 ? world->size : peer + 1;
    waiting->shares = 0;
    if (cpu != world->cpu) {
        world->cpu = cpu;
        DPARI_STORE(&world->rank[world->me].cpu, cpu);
    }
    for (int32_t i = first; i < end && cpu >= 0; i++) {
        if (i != world->me && DPARI_LOAD(&world->rank[i].cpu) == cpu) {
            waiting->shares = i + 1;
            return;
        }
    }
}

/* Moves this rank to another CPU if it shares its CPU with a lower rank, although there are enough
 * CPUs for all ranks. The system often leaves two such ranks there for long, because each of them
 * sleeps or yields while the other one runs. The new CPU is one on which no rank was last seen. If
 * another program runs there, that program slows down one rank instead of two. */
static DPARI_COLD void dpari_wait_move_away(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    uint64_t is_free[DPARI_CPU_WORDS];
    int32_t cpu = 0;
    if (waiting->shares > world->me || waiting->looked - world->moved < DPARI_MOVE_EVERY ||
        (world->head->plain & DPAR_WORLD_NO_MIGRATION)) {
        return;
    }
    world->moved = waiting->looked;
    dpari_os_cpus(is_free);
    for (int32_t i = 0; i < world->size; i++) {
        const int32_t taken = DPARI_LOAD(&world->rank[i].cpu);
        if (taken >= 0 && taken < 64 * DPARI_CPU_WORDS) {
            is_free[taken / 64] &= ~(UINT64_C(1) << (taken % 64));
        }
    }
    while (cpu < 64 * DPARI_CPU_WORDS && (is_free[cpu / 64] >> (cpu % 64) & 1) == 0) {
        cpu++;
    }
    if (cpu < 64 * DPARI_CPU_WORDS && dpari_os_move_to(cpu)) {
        dpari_wait_look_around(world, waiting, peer);
    }
}

/* Sleeps until the rank is woken or DPARI_SLEEP_FOR has passed. Then adapts how long the next waits
 * spin before they sleep. */
static dpar_status dpari_wait_asleep(dpari_world *world, dpari_wait *waiting)
{
    dpari_rank *record = &world->rank[world->me];
    dpari_os_futex_wait(&record->bell, waiting->bell, DPARI_SLEEP_FOR, world->threads);
    (void)dpari_wait_look_at_clock(waiting, dpari_os_now());
    waiting->counted = 0;
    dpari_uncount(world->head, record);
    if (world->crowded || world->thrifty || waiting->shares) {
        return DPAR_MORE;
    }
    /* There are cores for all ranks. If waits nevertheless spin without success again and again,
     * another program runs on these cores, perhaps on the one that the peer needs. In that case
     * this rank spins less for a while. It spins as before once several consecutive waits were
     * short enough that a spin would have been sufficient. */
    if (world->sleepy > 0) {
        const double waited = dpari_os_now() - waiting->began;
        world->worked =
            waited > DPARI_SPIN_FOR / 10 && waited < DPARI_SPIN_FOR ? world->worked + 1 : 0;
        if (world->worked >= DPARI_VAIN) {
            world->sleepy = world->vain = world->worked = 0;
        }
    } else if (waiting->turns >= DPARI_SPINS && ++world->vain >= DPARI_VAIN) {
        world->sleepy =
            DPARI_SLEEPY >> (world->vain < 2 * DPARI_VAIN ? 2 * DPARI_VAIN - world->vain : 0);
    }
    return DPAR_MORE;
}

/* Takes this rank off the count of sleepers, because it need not be woken any more. */
static void dpari_wait_uncount(dpari_world *world, dpari_wait *waiting)
{
    if (waiting->counted) {
        waiting->counted = 0;
        dpari_uncount(world->head, &world->rank[world->me]);
    } else if (waiting->turns < DPARI_SPINS && world->sleepy == 0) {
        world->vain = 0;
    }
}

DPARI_API void dpari_wait_end(dpari_world *world, dpari_wait *waiting)
{
    if (waiting->began > 0.0) { /* so that dpari_group_culprit, which follows the chain of waits,
                                   stops at this rank */
        DPARI_STORE(&world->rank[world->me].needs, -1);
    }
    dpari_wait_uncount(world, waiting);
}

/* Yields the core to another rank. If the yield takes long, another program wants the core and gets
 * a whole time slice at each yield, so the next waits sleep instead. */
static void dpari_wait_yield(dpari_world *world, dpari_wait *waiting, double now)
{
    double back;
    sched_yield();
    back = dpari_os_now();
    (void)dpari_wait_look_at_clock(waiting, back);
    if (back - now <= DPARI_YIELD_IS_SLOW) {
        world->slow_yield -= world->slow_yield > 0;
        return;
    }
    if (!world->crowded) { /* this rank and its peer may soon run on different CPUs */
        world->sleepy = DPARI_SLEEPY_LOST;
        return;
    }
    if (world->slow_yield < DPARI_SLEEPY) {
        world->slow_yield = DPARI_SLEEPY;
    } else if (world->slow_yield < DPARI_SLEEPY_MOST) {
        world->slow_yield *= 2;
    }
    world->sleepy = world->slow_yield;
}

/* A turn of a wait that has spun long enough. It spins more, moves to another CPU, yields, or
 * sleeps, depending on whether other ranks need this core. */
static DPARI_COLD dpar_status dpari_wait_slow(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    dpari_rank *record = &world->rank[world->me];
    double now, since;
    if (waiting->counted && (waiting->peer == peer || waiting->peer < 0)) {
        return dpari_wait_asleep(world, waiting);
    }
    /* if it was counted, it was for another peer, which has published by now */
    dpari_wait_uncount(world, waiting);
    if (!world->crowded) { /* the system may have moved one of the two since the last look */
        dpari_wait_look_around(world, waiting, peer);
    }
    now = dpari_os_now();
    since = dpari_wait_look_at_clock(waiting, now);
    if (!(waiting->began > 0.0)) {
        waiting->began = now;
        world->sleepy -= world->sleepy > 0;
    }
    if (waiting->shares && !world->crowded) {
        dpari_wait_move_away(world, waiting, peer);
        if (!waiting->shares) {
            return DPAR_OK;
        }
    }
    if (!world->crowded && !waiting->shares && since > DPARI_SLICE_LOST &&
        world->sleepy < DPARI_SLEEPY_LOST) {
        world->sleepy = DPARI_SLEEPY_LOST;
    }
    if (!world->crowded && !world->thrifty && !waiting->shares && world->sleepy == 0 &&
        now - waiting->began < DPARI_SPIN_FOR) {
        waiting->turns -= DPARI_SPINS_MORE; /* as far as this rank knows, nothing else needs this
                                               core */
        return DPAR_OK;
    }
    if ((world->crowded || waiting->shares) && world->sleepy == 0 &&
        now - waiting->began < DPARI_YIELD_FOR) {
        dpari_wait_yield(world, waiting, now);
        return DPAR_OK;
    }
    if (world->head->plain & DPAR_WORLD_NO_FUTEX) {
        dpari_os_sleep(20e-6);
        (void)dpari_wait_look_at_clock(waiting, dpari_os_now());
        return DPAR_MORE;
    }
    /* The rank is counted before it sets `asleep`, because the rank that clears `asleep` decrements
     * the count. The fence keeps the caller's next test of its condition from moving before the
     * exchange. On POWER the exchange does not prevent that by itself (tests/model/order.c). */
    waiting->bell = DPARI_LOAD_SEQ(&record->bell);
    waiting->counted = 1;
    waiting->peer = peer;
    DPARI_ADD(&world->head->sleepers, 1U);
    DPARI_STORE(&record->waits_for, peer);
    __atomic_exchange_n(&record->asleep, 1U, __ATOMIC_SEQ_CST);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return DPAR_OK;
}

DPARI_API dpar_status dpari_wait_turn(dpari_world *world, dpari_wait *waiting, int32_t peer)
{
    int32_t spins = world->sleepy || world->thrifty ? DPARI_SPINS_SLEEPY : DPARI_SPINS;
    if (world->crowded || waiting->shares) {
        spins = DPARI_SPINS_SHARED;
    }
    if (waiting->turns >= spins) {
        return dpari_wait_slow(world, waiting, peer);
    }
    waiting->turns++;
    if (waiting->turns == DPARI_SPINS_BLIND) {
        dpari_wait_look_around(world, waiting, peer);
    }
    dpari_os_pause();
    return DPAR_OK;
}

/* Advances the clock that all ranks share and returns it, in ms. Ranks cannot compare their
 * CLOCK_MONOTONIC, because it differs between time namespaces. A rank that finds the shared clock
 * unchanged since its last look sets it forward by the time that has passed since then. A rank that
 * finds it changed takes the new value. The shared clock therefore runs while at least one rank
 * waits, and never faster than real time, even if many ranks wait. */
static uint32_t dpari_clock(dpari_world *world)
{
    const double now = dpari_os_now();
    const double passed = (now - world->clock_at) * 1000.0;
    uint32_t seen = DPARI_LOAD(&world->head->clock);
    if (seen != world->clock) {
        world->clock = seen;
        world->clock_at = now;
        return seen;
    }
    if (passed >= 1.0) {
        const uint32_t next = seen + (uint32_t)dpari_leastf(passed, 1e9);
        world->clock = DPARI_CLAIM(&world->head->clock, &seen, next) ? next : seen;
        world->clock_at = now;
    }
    return world->clock;
}

DPARI_INTERNAL DPARI_COLD double dpari_beat_age(dpari_world *world, int32_t rank)
{
    const uint32_t beat = DPARI_LOAD(&world->rank[rank].beat);
    return (double)(dpari_clock(world) - beat) / 1000.0;
}

DPARI_API DPARI_COLD void dpari_wait_says(dpari_world *world, int32_t needs)
{
    dpari_rank *record = &world->rank[world->me];
    DPARI_STORE(&record->needs, needs);
    DPARI_STORE(&record->beat, dpari_clock(world));
}

/* ==== comm/heap.c ==== */

/* Implements the heaps: each rank allocates from its own extents, without locks, and maps those of
 * other ranks when it needs an address in them. world.h has the memory layout.
 *
 * Memory that users release is kept, up to world->kept_most bytes. It stays mapped and allocated
 * from the system, so that the next allocation only has to clear it. Clearing takes about 0.05 ms
 * per MB, and taking memory from the system 1 ms per MB. Kept pieces have elements in world->used,
 * because new memory must not be placed there. If an allocation fails, or a released piece would
 * exceed the limit, all kept memory is returned to the system. */

/* ---- extents --------------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_part_begin(const dpari_world *world)
{
    return world->head->heap_begin + world->me * world->head->part_bytes;
}

/* Maps an extent, or allocates memory for it if the ranks are threads. */
static char *dpari_extent_map(const dpari_world *world, int64_t begin, int64_t bytes)
{
    char *at;
    if (world->segment.fd < 0) {
        return (uint64_t)bytes > (uint64_t)SIZE_MAX / 4 ? NULL : (char *)dpari_os_pages(bytes);
    }
    at = (char *)dpari_os_map(world->segment.fd, begin, bytes);
    if (at && !(world->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(at, bytes, 0);
    }
    return at;
}

/* Maps the extent that belongs at view[index], unless another thread has just done so. Returns its
 * address, or NULL if this process has no addresses left. */
static DPARI_COLD char *dpari_view_make(const dpari_world *world, uint64_t index)
{
    const uint64_t rank = index / DPARI_EXTENTS, number = index % DPARI_EXTENTS;
    const dpari_extent *e;
    char *at, *none = NULL;
    if (rank >= (uint64_t)world->size || number == 0) {
        return NULL;
    }
    e = &world->rank[rank].extent[number];
    at = dpari_extent_map(world, e->begin, e->bytes);
    if (!at) {
        return DPARI_LOAD(&world->view[index]);
    }
    if (!DPARI_CLAIM(&world->view[index], &none, at)) {
        dpari_os_unmap(at, e->bytes);
        return none;
    }
    return at;
}

DPARI_API DPARI_NOINLINE void *dpari_at(const dpari_world *world, uint64_t ref)
{
    char *view;
    if (world->threads) {
        return (void *)(uintptr_t)ref;
    }
    view = DPARI_LOAD(&world->view[ref >> DPARI_REF_BITS]);
    if (!view) {
        view = dpari_view_make(world, ref >> DPARI_REF_BITS);
    }
    return view ? (void *)(view + (ref & DPARI_REF_OFFSET)) : NULL;
}

DPARI_API DPARI_COLD void dpari_put_unmapped(dpar_text *text, const dpari_world *world,
                                             uint64_t ref)
{
    const uint64_t index = ref >> DPARI_REF_BITS;
    const int32_t rank = (int32_t)(index / DPARI_EXTENTS);
    if (rank < world->size) {
        dpari_text_print(text, "mapping %ld bytes of rank %d's memory: ",
                         world->rank[rank].extent[index % DPARI_EXTENTS].bytes, rank);
    }
    dpari_os_put_addresses(text);
}

/* Returns the address at which this rank has mapped an extent of its own heap. */
static char *dpari_own_view(const dpari_world *world, int32_t number)
{
    return DPARI_LOAD(&world->view[world->me * DPARI_EXTENTS + number]);
}

/* Finds the extent of this rank's heap that holds `address`. Returns its number and sets *offset to
 * the address's offset in it, or returns 0 if no extent holds it. */
static int32_t dpari_own_find(const dpari_world *world, uint64_t address, uint64_t *offset)
{
    const int32_t n = DPARI_LOAD(&world->owns_extents);
    for (int32_t i = 1; i <= n; i++) {
        const char *view = dpari_own_view(world, i);
        *offset = address - (uint64_t)(uintptr_t)view;
        if (view && *offset < (uint64_t)world->own[i].bytes) {
            return i;
        }
    }
    return 0;
}

DPARI_API uint64_t dpari_ref(const dpari_world *world, const void *at, int64_t bytes)
{
    const uint64_t address = (uint64_t)(uintptr_t)at;
    uint64_t offset;
    int32_t i;
    if (world->threads) {
        return address;
    }
    i = dpari_own_find(world, address, &offset);
    if (i == 0 || (uint64_t)bytes > (uint64_t)world->own[i].bytes - offset) {
        return 0;
    }
    return ((uint64_t)world->me * DPARI_EXTENTS + (uint64_t)i) << DPARI_REF_BITS | offset;
}

/* Computes the size of the next extent: that of all extents so far, which keeps their number small.
 * If the process has a limit on addresses, it is only a quarter of that, because the program needs
 * the other addresses. */
static int64_t dpari_extent_want(const dpari_world *world, int64_t least, int64_t left)
{
    const int64_t first = INT64_C(4) << 20, most = INT64_C(1) << 46;
    const int64_t total = left < world->head->part_bytes ? world->head->part_bytes - left : 0;
    int64_t want = dpari_os_limit(RLIMIT_AS) < INT64_MAX ? total / 4 : total;
    want = dpari_in_units(dpari_most(want, first), DPARI_OS_LARGE);
    want = dpari_least(dpari_least(want, left), most);
    return dpari_most(want, least);
}

/* Makes a new extent that can hold an allocation of `bytes`. Returns its number, or 0 if there can
 * be none; world->lacks has the reason. */
static DPARI_COLD int32_t dpari_extent_make(dpari_world *world, int64_t bytes)
{
    dpari_rank *record = &world->rank[world->me];
    const int32_t n = world->owns_extents;
    const int64_t begin =
        n > 0 ? world->own[n].begin + world->own[n].bytes : dpari_part_begin(world);
    const int64_t left = dpari_part_begin(world) + world->head->part_bytes - begin;
    const int64_t least = dpari_in_units(bytes, DPARI_OS_LARGE);
    int64_t want;
    char *at;
    if (least > left || n + 1 == DPARI_EXTENTS) {
        world->lacks = DPARI_LACKS_PLACE;
        return 0;
    }
    want = dpari_extent_want(world, least, left);
    at = dpari_extent_map(world, begin, want);
    while (!at && want > least) { /* there are too few addresses: try a smaller extent */
        want = dpari_most(dpari_in_units(want / 2, DPARI_OS_LARGE), least);
        at = dpari_extent_map(world, begin, want);
    }
    if (!at) {
        world->lacks = DPARI_LACKS_ADDRESSES;
        return 0;
    }
    world->own[n + 1].begin = world->own[n + 1].fresh = begin;
    world->own[n + 1].bytes = want;
    record->extent[n + 1].begin = world->segment.fd < 0 ? (int64_t)(uintptr_t)at : begin;
    record->extent[n + 1].bytes = want;
    DPARI_STORE(&world->view[world->me * DPARI_EXTENTS + n + 1], at);
    DPARI_STORE(&record->extents, (uint32_t)n + 1U);
    DPARI_STORE(&world->owns_extents, n + 1); /* another thread may look for an address */
    return n + 1;
}

/* ---- the heap of this rank ------------------------------------------------------------------- */

/* Allocations from this size on check the free memory. */
#define DPARI_ASK_FROM (INT64_C(4) << 20)
enum { DPARI_TAKING = 20000 }; /* ms for which such an allocation waits for those of other ranks */

/* Returns the index of the first allocation that begins at `at` or later. */
static int32_t dpari_heap_find(const dpari_world *world, int64_t at)
{
    int32_t low = 0, high = world->used_count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (world->used[middle].begin < at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Finds the first gap of `bytes` in extent `number`; the gap must begin at a multiple of `unit`.
 * Returns where it begins, or -1 if there is none. *place is the index in `used` for a new
 * allocation there. */
static int64_t dpari_extent_gap(const dpari_world *world, int32_t number, int64_t bytes,
                                int64_t unit, int32_t *place)
{
    const dpari_own *e = &world->own[number];
    const int64_t end = e->begin + e->bytes;
    int64_t at = dpari_in_units(dpari_most(e->begin, world->floor), unit);
    int32_t i = dpari_heap_find(world, e->begin);
    for (; i < world->used_count && world->used[i].begin < end && world->used[i].begin - at < bytes;
         i++) {
        at = dpari_most(at, dpari_in_units(world->used[i].begin + world->used[i].bytes, unit));
    }
    *place = i;
    return end - at >= bytes ? at : -1;
}

/* Finds a gap in any of this rank's extents and maps that extent if necessary. Returns where the
 * gap begins and sets *number to the extent, or returns -1; see world->lacks. */
static DPARI_COLD int64_t dpari_heap_gap(dpari_world *world, int64_t bytes, int64_t unit,
                                         int32_t *place, int32_t *number)
{
    int64_t at = -1;
    for (int32_t i = 1; i <= world->owns_extents; i++) {
        char **view = &world->view[world->me * DPARI_EXTENTS + i];
        at = dpari_extent_gap(world, i, bytes, unit, place);
        if (at < 0) {
            continue;
        }
        if (!*view) { /* the extent was unmapped when it became empty */
            DPARI_STORE(view, dpari_extent_map(world, world->own[i].begin, world->own[i].bytes));
        }
        if (*view) {
            *number = i;
            return at;
        }
        world->lacks = DPARI_LACKS_ADDRESSES;
    }
    return -1;
}

/* Finds a place for `take` bytes. Large allocations begin at a large page, in a new extent if
 * necessary. With small pages, elements of a box that are a page apart would each cause a TLB miss.
 */
static DPARI_COLD int64_t dpari_heap_place(dpari_world *world, int64_t take, int32_t *place,
                                           int32_t *number)
{
    const int64_t page = dpari_os_page();
    int64_t unit = take >= DPARI_OS_LARGE ? (int64_t)DPARI_OS_LARGE : page;
    int64_t at = dpari_heap_gap(world, take, unit, place, number);
    if (at < 0 && dpari_extent_make(world, take) > 0) {
        at = dpari_heap_gap(world, take, unit, place, number);
    }
    return at >= 0 || unit == page ? at : dpari_heap_gap(world, take, page, place, number);
}

/* True if there is not enough memory. The allocation must then be refused, because the system would
 * kill some process instead. Ranks often allocate at the same time, and each sees the memory that
 * is free before the others have taken theirs. They therefore announce allocations, and if the
 * memory is not enough for all, a rank waits until earlier allocations are done. If the result is
 * 0, the caller must end the announcement by dpari_heap_took. */
static DPARI_COLD int dpari_heap_is_short(dpari_world *world, int64_t take)
{
    dpari_available now;
    int64_t before = 1;
    for (int32_t i = 0; i < DPARI_TAKING && before > 0; i++) {
        before = DPARI_ADD(&world->head->taking, take);
        dpari_limits_find(&now);
        if (before + take <= now.bytes) {
            return 0;
        }
        DPARI_ADD(&world->head->taking, -take);
        dpari_os_sleep(before > 0 ? 1e-3 : 0.0);
    }
    return 1;
}

/* Ends the announcement of dpari_heap_is_short. */
static void dpari_heap_took(dpari_world *world, int64_t take)
{
    if (take >= DPARI_ASK_FROM) {
        DPARI_ADD(&world->head->taking, -take);
    }
}

/* Unmaps an extent if it is empty, which frees its addresses. The extent keeps its range of the
 * file. The first extent stays mapped because it is seldom empty. Heaps of ranks that are threads
 * stay mapped because other threads may still read them. */
static void dpari_extent_rest(dpari_world *world, int32_t number)
{
    const dpari_own *e = &world->own[number];
    const int32_t i = dpari_heap_find(world, e->begin);
    char **view = &world->view[world->me * DPARI_EXTENTS + number];
    char *at = *view;
    if (number == 1 || world->segment.fd < 0 ||
        (i < world->used_count && world->used[i].begin < e->begin + e->bytes)) {
        return;
    }
    DPARI_STORE(view, (char *)NULL);
    dpari_os_unmap(at, e->bytes);
}

/* ---- memory that is kept --------------------------------------------------------------------- */

/* Makes room for an element at `index` of world->used, and zeroes it. */
static DPARI_COLD dpari_used *dpari_used_insert(dpari_world *world, int32_t index)
{
    dpari_used *u = &world->used[index];
    memmove(u + 1, u, (size_t)(world->used_count - index) * sizeof *u);
    world->used_count++;
    memset(u, 0, sizeof *u);
    return u;
}

static DPARI_COLD void dpari_used_remove(dpari_world *world, int32_t index)
{
    dpari_used *u = &world->used[index];
    world->used_count--;
    memmove(u, u + 1, (size_t)(world->used_count - index) * sizeof *u);
}

/* Returns the extent that holds the offset `at`. */
static DPARI_COLD int32_t dpari_extent_of(const dpari_world *world, int64_t at)
{
    int32_t i = 1;
    while (at >= world->own[i].begin + world->own[i].bytes) {
        i++;
    }
    return i;
}

/* Returns the memory of a range to the system, unless it is smaller than 1 MiB. */
static DPARI_COLD void dpari_heap_drop(const dpari_world *world, int64_t at, int64_t bytes)
{
#if defined(__linux__) && defined(MADV_REMOVE)
    if (world->segment.fd >= 0 && bytes >= INT64_C(1) << 20) {
        const int32_t number = dpari_extent_of(world, at);
        char *address = dpari_own_view(world, number) + (at - world->own[number].begin);
        madvise(address, (size_t)bytes, MADV_REMOVE);
    }
#else
    (void)world;
    (void)at;
    (void)bytes;
#endif
}

/* Returns all kept memory to the system. */
static DPARI_COLD void dpari_kept_drop(dpari_world *world)
{
    int32_t n = 0;
    for (int32_t i = 0; i < world->used_count; i++) {
        if (world->used[i].kept) {
            dpari_heap_drop(world, world->used[i].begin, world->used[i].bytes);
        } else {
            world->used[n++] = world->used[i];
        }
    }
    world->used_count = n;
    world->kept = 0;
    for (int32_t i = 1; i <= world->owns_extents; i++) {
        dpari_extent_rest(world, i);
    }
}

/* Finds the smallest kept piece that has `take` bytes at a multiple of `unit`. Returns where they
 * begin, as close to the end of the piece as possible, and sets *index to its element. Returns -1
 * if there is no such piece. */
static DPARI_COLD int64_t dpari_kept_find(const dpari_world *world, int64_t take, int64_t unit,
                                          int32_t *index)
{
    int64_t least = INT64_MAX, found = -1;
    for (int32_t i = 0; i < world->used_count; i++) {
        const dpari_used *u = &world->used[i];
        if (u->kept && u->bytes >= take && u->bytes < least) {
            const int64_t at = (u->begin + u->bytes - take) / unit * unit;
            if (at >= dpari_most(u->begin, world->floor)) {
                least = u->bytes;
                found = at;
                *index = i;
            }
        }
    }
    return found;
}

/* Takes [at, at + take) out of a kept piece and returns its element. The parts of the piece before
 * and after it stay kept. */
static DPARI_COLD dpari_used *dpari_kept_take(dpari_world *world, int32_t index, int64_t at,
                                              int64_t take)
{
    const dpari_used piece = world->used[index];
    const int64_t after = piece.begin + piece.bytes - (at + take);
    dpari_used *u = &world->used[index];
    world->kept -= take;
    if (after > 0) {
        *dpari_used_insert(world, index + 1) = piece;
        u[1].begin = at + take;
        u[1].bytes = after;
    }
    if (at > piece.begin) {
        u->bytes = at - piece.begin;
        u = dpari_used_insert(world, index + 1);
    }
    *u = piece;
    u->begin = at;
    u->bytes = take;
    u->kept = 0;
    return u;
}

/* Keeps an allocation, and joins it to kept pieces directly before and after it. Pieces with large
 * pages are not joined to others, because large pages would have to be requested again for all. */
static DPARI_COLD void dpari_kept_add(dpari_world *world, int32_t index, const dpari_own *e)
{
    dpari_used *u = &world->used[index];
    u->kept = 1;
    u->users = 0;
    world->kept += u->bytes;
    /* the first round joins the piece that follows, the second the piece that precedes */
    for (int32_t i = index; i >= index - 1 && i >= 0; i--) {
        u = &world->used[i];
        if (i + 1 < world->used_count && u[0].kept && u[1].kept && u[0].large == u[1].large &&
            u->begin + u->bytes == u[1].begin && u->begin >= e->begin &&
            u[1].begin < e->begin + e->bytes) {
            u->bytes += u[1].bytes;
            dpari_used_remove(world, i + 1);
        }
    }
}

/* True if an allocation is kept when it is released. If the process has a limit on addresses, no
 * part of an extent larger than DPARI_KEPT_MOST is kept, so that the extent is unmapped once it is
 * empty. */
static DPARI_COLD int dpari_is_kept(const dpari_world *world, const dpari_used *u,
                                    const dpari_own *e)
{
    return world->segment.fd >= 0 && u->users > 0 && u->bytes <= world->kept_most &&
           (e->bytes <= DPARI_KEPT_MOST || dpari_os_limit(RLIMIT_AS) == INT64_MAX);
}

/* ---- allocations ----------------------------------------------------------------------------- */

/* Takes memory for an allocation from the system. Returns its element, or NULL; see world->lacks.
 */
static DPARI_COLD dpari_used *dpari_heap_new(dpari_world *world, int64_t take)
{
    int32_t place = 0, number = 0;
    int64_t at;
    dpari_used *u;
    world->lacks = DPARI_LACKS_MEMORY;
    if (take >= DPARI_ASK_FROM && dpari_heap_is_short(world, take)) {
        return NULL;
    }
    at = dpari_heap_place(world, take, &place, &number);
    if (at >= 0) {
        world->number = world->segment.fd >= 0 ? dpari_os_reserve(world->segment.fd, at, take) : 0;
    }
    dpari_heap_took(world, take);
    if (at < 0) {
        return NULL;
    }
    if (world->number != 0) {
        world->lacks = DPARI_LACKS_FILE;
        dpari_extent_rest(world, number);
        return NULL;
    }
    u = dpari_used_insert(world, place);
    u->begin = at;
    u->bytes = take;
    return u;
}

/* Allocates `take` bytes, which are whole pages. Returns the element, or NULL; see world->lacks. */
static DPARI_COLD dpari_used *dpari_heap_find_or_new(dpari_world *world, int64_t take, int purpose)
{
    const int64_t unit = take >= DPARI_OS_LARGE ? (int64_t)DPARI_OS_LARGE : dpari_os_page();
    const int64_t rest = world->head->heap_bytes - world->users;
    int32_t index = 0;
    int64_t at;
    if (purpose != DPARI_HEAP_LIBRARY && take > rest) {
        world->lacks = DPARI_LACKS_HEAP;
        return NULL;
    }
    if (world->used_count >= DPARI_MAX_USED) {
        world->lacks = DPARI_LACKS_PIECES;
        return NULL;
    }
    if (purpose != DPARI_HEAP_LIBRARY && world->kept > 0) {
        at = dpari_kept_find(world, take, unit, &index);
        if (at >= 0) {
            return dpari_kept_take(world, index, at, take);
        }
        if (take > rest - world->kept) {
            return NULL; /* the caller tries again without kept memory */
        }
    }
    return dpari_heap_new(world, take);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_heap_alloc(dpari_world *world, int64_t bytes,
                                                       int purpose, void **memory)
{
    int64_t take = bytes < 1 ? 1 : bytes;
    dpari_used *u;
    dpari_own *e;
    char *address;
    world->number = ENOMEM;
    world->lacks = DPARI_LACKS_HEAP;
    if (take > world->head->part_bytes) {
        return DPAR_E_MEMORY;
    }
    take = dpari_in_units(take, dpari_os_page());
    u = dpari_heap_find_or_new(world, take, purpose);
    if (!u && world->kept > 0) {
        dpari_kept_drop(world);
        u = dpari_heap_find_or_new(world, take, purpose);
    }
    if (!u) {
        return DPAR_E_MEMORY;
    }
    e = &world->own[dpari_extent_of(world, u->begin)];
    address = dpari_own_view(world, (int32_t)(e - world->own)) + (u->begin - e->begin);
    world->lacks = DPARI_LACKS_NOTHING;
    if (world->segment.fd >= 0) {
        if (!u->large) {
            dpari_os_large_pages(address, take);
            u->large = take >= DPARI_OS_LARGE;
        }
        u->dumped = purpose == DPARI_HEAP_USER && world->used_count <= DPARI_DUMPED;
        if (u->dumped) {
            dpari_os_dump(address, take, 1);
        }
    }
    if (u->begin < e->fresh && purpose != DPARI_HEAP_SCRATCH) {
        memset(address, 0, (size_t)dpari_least(e->fresh - u->begin, take));
    }
    e->fresh = dpari_most(e->fresh, u->begin + take);
    world->fresh = dpari_most(world->fresh, u->begin + take);
    u->users = purpose != DPARI_HEAP_LIBRARY ? take : 0;
    world->users += u->users;
    *memory = address;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void dpari_put_lack(dpar_text *text, const dpari_world *world)
{
    const int32_t lacks = world ? world->lacks : DPARI_LACKS_NOTHING;
    dpari_available now;
    switch (lacks) {
    case DPARI_LACKS_HEAP:
        dpar_text_put(text, "dpar_world_desc.heap_bytes is the limit");
        if (dpari_os_limit(RLIMIT_FSIZE) < INT64_MAX) {
            dpar_text_put(text, ", reduced to what ulimit -f allows");
        }
        return;
    case DPARI_LACKS_PLACE: dpar_text_put(text, "no gap in the heap is large enough"); return;
    case DPARI_LACKS_PIECES: dpar_text_put(text, "too many allocations (65536)"); return;
    case DPARI_LACKS_ADDRESSES: dpari_os_put_addresses(text); return;
    case DPARI_LACKS_FILE: dpari_os_error(text, world->number); return;
    default: break;
    }
    if (lacks == DPARI_LACKS_NOTHING && dpari_os_limit(RLIMIT_AS) < INT64_MAX) {
        dpari_os_put_addresses(text); /* this limit is the most likely reason why private memory was
                                         refused */
        return;
    }
    dpari_limits_find(&now);
    dpar_text_put(text, "out of memory");
    if (lacks == DPARI_LACKS_MEMORY && now.most > 0) {
        dpari_text_print(text, ": %ld left of %ld of control group %s", now.bytes, now.most,
                         now.group);
    } else if (lacks == DPARI_LACKS_MEMORY && now.bytes < INT64_MAX) {
        dpari_text_print(text, ": %ld are available on this machine", now.bytes);
    }
}

DPARI_API DPARI_COLD int dpari_heap_holds(const dpari_world *world, int64_t low, int64_t high,
                                          int64_t *within)
{
    *within = 0;
    for (int32_t i = 1; i <= world->owns_extents && low < high; i++) {
        const dpari_own *e = &world->own[i];
        const int64_t view = (int64_t)(uintptr_t)dpari_own_view(world, i);
        const dpari_used *u;
        int64_t at;
        int32_t k;
        if (view == 0 || high <= view || low >= view + e->bytes) {
            continue;
        }
        at = low - view + e->begin;
        k = low < view ? 0 : dpari_heap_find(world, at + 1);
        u = k > 0 ? &world->used[k - 1] : NULL;
        if (u == NULL || u->kept || at >= u->begin + u->bytes) {
            return 0;
        }
        *within = u->bytes;
        return high - view + e->begin <= u->begin + u->bytes;
    }
    return 1;
}

DPARI_INTERNAL DPARI_COLD void dpari_heap_release(dpari_world *world, void *memory)
{
    uint64_t offset = 0;
    const int32_t number = dpari_own_find(world, (uint64_t)(uintptr_t)memory, &offset);
    const dpari_own *e = &world->own[number];
    const int64_t at = e->begin + (int64_t)offset;
    int32_t low = number > 0 ? dpari_heap_find(world, at) : world->used_count;
    dpari_used *u = &world->used[low];
    if (low == world->used_count || u->begin != at || u->kept) {
        return;
    }
    if (u->dumped && !(world->head->plain & DPAR_WORLD_NO_DONTDUMP)) {
        dpari_os_dump(memory, u->bytes, 0);
    }
    world->users -= u->users;
    if (dpari_is_kept(world, u, e)) {
        if (world->kept + u->bytes > world->kept_most) {
            dpari_kept_drop(world);
            low = dpari_heap_find(world, at);
        }
        dpari_kept_add(world, low, e);
        return;
    }
    dpari_heap_drop(world, at, u->bytes);
    dpari_used_remove(world, low);
    dpari_extent_rest(world, number);
}

/* ==== comm/flight.c ==== */

/* Implements the flight recorder. Each rank writes the ring of its own records, and the others may
 * read them at any time, also after the rank has died. */

/* A record as words. */
typedef union dpari_flight_words {
    dpari_flight f;
    uint64_t word[sizeof(dpari_flight) / sizeof(uint64_t)];
} dpari_flight_words;

/* Copies a record that another rank may be writing or reading at the same time. The copy is made
 * word by word with atomic accesses, so that no word is half old and half new. */
static void dpari_flight_copy(uint64_t *to, const uint64_t *from)
{
    for (uint32_t i = 0; i < sizeof(dpari_flight) / sizeof(uint64_t); i++) {
        uint64_t v = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
        __atomic_store_n(&to[i], v, __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL dpari_flight dpari_flight_read(const dpari_rank *record, uint64_t number)
{
    const dpari_flight *from = &record->flight[number % DPARI_FLIGHTS];
    dpari_flight_words now;
    dpari_flight_copy(now.word, (const uint64_t *)(const void *)from);
    return now.f;
}

DPARI_INTERNAL dpari_flight dpari_flight_of(const dpar_call *call, int64_t sequence)
{
    dpari_flight f;
    f.sequence = sequence;
    f.count = call->count;
    f.comm = 0;
    f.kind = call->kind;
    f.type = call->type;
    f.op = call->op;
    f.root = call->root;
    f.tag = call->tag;
    f.state = DPARI_FLIGHT_POSTED;
    f.varies = call->variable_counts;
    f.padding[0] = 0;
    f.padding[1] = 0;
    return f;
}

DPARI_INTERNAL int64_t dpari_flight_begin(dpari_world *world, uint32_t comm, int64_t sequence,
                                          const dpar_call *call)
{
    dpari_rank *record = &world->rank[world->me];
    uint64_t number = record->flights;
    dpari_flight_words now;
    dpari_flight *slot = &record->flight[number % DPARI_FLIGHTS];
    now.f = dpari_flight_of(call, sequence);
    now.f.comm = comm;
    dpari_flight_copy((uint64_t *)(void *)slot, now.word);
    DPARI_STORE(&record->flights, number + 1);
    return (int64_t)number;
}

DPARI_INTERNAL void dpari_flight_end(dpari_world *world, int64_t number, int32_t state)
{
    dpari_rank *record = &world->rank[world->me];
    if (record->flights - (uint64_t)number <= DPARI_FLIGHTS) {
        __atomic_store_n(&record->flight[(uint64_t)number % DPARI_FLIGHTS].state, state,
                         __ATOMIC_RELAXED);
    }
}

DPARI_INTERNAL int dpari_flight_find(const dpari_world *world, int32_t rank, uint32_t comm,
                                     int64_t sequence, dpari_flight *out)
{
    const dpari_rank *record = &world->rank[rank];
    uint64_t n = DPARI_LOAD(&record->flights), k;
    for (k = n; k > 0 && n - k < DPARI_FLIGHTS; k--) {
        const dpari_flight f = dpari_flight_read(record, k - 1);
        if (sequence == DPARI_FLIGHT_LAST ||
            (sequence == DPARI_FLIGHT_LAST_FAILED && f.state == DPARI_FLIGHT_FAILED) ||
            (f.comm == comm && f.sequence == sequence && f.kind < DPAR_CALL_COLLECTIVE_COUNT)) {
            *out = f;
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD void dpari_flight_text(dpar_text *text, const dpari_flight *flight)
{
    const int own = flight->root == DPARI_CLOSE || flight->root == DPARI_SPLIT;
    const char *name = dpar_call_name(flight->kind);
    if (dpari_planning_text(text, flight->kind, flight->sequence, flight->tag)) {
        return;
    }
    if (own) {
        name = flight->root == DPARI_CLOSE ? "close" : "split";
    }
    dpari_text_print(text, "%s #%ld", name, flight->sequence);
    if (flight->kind == DPAR_CALL_BARRIER || own) {
        return;
    }
    dpar_text_put(text, " (");
    if (flight->varies) {
        dpar_text_put(text, "pieces of ");
    } else {
        dpari_text_print(text, "%ld ", flight->count);
    }
    dpar_text_put(text, dpar_type_name(dpari_kern_stored(flight->type)));
    if (flight->type >= DPAR_TYPE_COUNT) {
        dpari_text_print(text, " as %s", dpar_type_name(dpari_kern_wire(flight->type)));
    }
    if (flight->op != DPAR_COPY) {
        dpari_text_print(text, ", %s", dpari_op_name(flight->op));
    }
    if (flight->kind >= DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_text_print(text, "%s%d, tag %d",
                         flight->kind == DPAR_CALL_SEND ? ", to rank " : ", from rank ",
                         flight->root, flight->tag);
    } else if (flight->kind == DPAR_CALL_BROADCAST || flight->kind == DPAR_CALL_REDUCE ||
               flight->kind == DPAR_CALL_GATHER || flight->kind == DPAR_CALL_SCATTER) {
        dpari_text_print(text, ", root %d", flight->root);
    }
    if (flight->kind < DPAR_CALL_COLLECTIVE_COUNT && flight->tag != 0) {
        dpari_text_print(text, ", tag %d", flight->tag);
    }
    dpari_text_char(text, ')');
}

static void dpari_put_flight(dpar_text *text, const dpari_flight *flight)
{
    const char *state = " (in ";
    if (flight->state == DPARI_FLIGHT_DONE) {
        state = " (last done: ";
    } else if (flight->state == DPARI_FLIGHT_FAILED) {
        state = " (failed: ";
    }
    dpar_text_put(text, state);
    dpari_flight_text(text, flight);
    if (flight->comm != 0) {
        dpari_text_print(text, " of group %ld", (int64_t)flight->comm);
    }
    dpari_text_char(text, ')');
}

DPARI_INTERNAL DPARI_COLD void dpari_put_last(dpar_text *text, const dpari_world *world,
                                              int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(world, rank, 0, DPARI_FLIGHT_LAST, &f)) {
        dpari_put_flight(text, &f);
    } else {
        dpar_text_put(text, " (it has begun no operation yet)");
    }
}

DPARI_API DPARI_COLD void dpari_put_failed(dpar_text *text, const dpari_world *world, int32_t rank)
{
    dpari_flight f;
    if (dpari_flight_find(world, rank, 0, DPARI_FLIGHT_LAST_FAILED, &f)) {
        dpari_put_flight(text, &f);
    }
}

/* ==== comm/world.c ==== */

/* Implements the world: the segment that ranks share, how they join it, and signs of life. world.h
 * has the memory layout.
 *
 * Segment: a memfd or an unlinked file that each rank maps. Life: each rank holds a lock on the
 * file. When the rank dies, the system releases the lock, and the others notice. Called by all
 * other modules of the shared-memory engine. */

#define DPARI_MAGIC UINT64_C(0x31646c726f775064) /* "dPworld1" */
enum { DPARI_VERSION = 3 };                      /* of the layout of the segment */

/* The first value of the shared clock, in ms. It is large, so that a beat of 0, of a rank that has
 * not reported a wait yet, counts as older than any quiet time that a deadline allows. */
enum { DPARI_CLOCK_FIRST = 1 << 20 };

/* ---- segments -------------------------------------------------------------------------------- */

/* Returns the bytes of the part of the segment that every rank maps: everything before the
 * heaps. */
static int64_t dpari_head_bytes(int64_t ranks)
{
    int64_t table = ranks * ranks * (int64_t)sizeof(uint64_t);
    int64_t bytes = (int64_t)sizeof(dpari_world_head) + ranks * (int64_t)sizeof(dpari_rank) + table;
    return dpari_in_units(bytes, INT64_C(65536)); /* the largest base page that systems use */
}

static int64_t dpari_heap_begin(int64_t ranks)
{
    return dpari_in_units(dpari_head_bytes(ranks), DPARI_OS_LARGE);
}

DPARI_STATIC_NOINLINE dpar_status dpari_segment_options(int32_t ranks, const dpar_world_desc *o,
                                                        dpar_why *why)
{
    if (ranks < 1 || ranks > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "a node has 1 to 1024 ranks, not %d", ranks);
    }
    if (!o) {
        return DPAR_OK;
    }
    if (o->heap_bytes < 0 || o->heap_bytes > INT64_C(1) << 50) {
        return dpari_wrong(why, "heap_bytes must be 0 to 2^50, not %ld", o->heap_bytes);
    }
    if (o->slot_bytes != 0 && (o->slot_bytes < 4096 || o->slot_bytes > INT64_C(16) << 20 ||
                               (o->slot_bytes & (o->slot_bytes - 1)) != 0)) {
        return dpari_wrong(why, "slot_bytes must be a power of two from 4096 to 2^24, not %ld",
                           o->slot_bytes);
    }
    if (o->disable < 0 || o->disable >= 2 * DPAR_WORLD_NO_DONTDUMP) {
        return dpari_wrong(why, "disable must be a sum of DPAR_WORLD_NO_x, not %d", o->disable);
    }
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD double dpari_world_timeout(const dpar_world_desc *options)
{
    if (options && options->timeout_s < 0.0) {
        return 0.0;
    }
    return options && options->timeout_s > 0.0 ? options->timeout_s : 300.0;
}

/* Makes a file of `bytes` and maps its first `head` bytes. If `is_private` is set, the segment is
 * private to this process and there is no file. Returns 0 or an errno value. */
static int dpari_segment_map(dpari_segment *segment, int64_t head, int64_t bytes, int is_private,
                             int without_memfd)
{
    segment->bytes = head;
    segment->fd = is_private ? -1 : dpari_os_segment(bytes, without_memfd);
    if (!is_private && segment->fd < 0) {
        return errno ? errno : ENOSYS;
    }
    segment->base =
        (char *)(is_private ? dpari_os_pages(head) : dpari_os_map(segment->fd, 0, head));
    if (!segment->base) {
        int number = errno;
        dpari_os_close(segment->fd);
        return number ? number : ENOMEM;
    }
    return 0;
}

/* Returns the most bytes that a file may have (off_t and ulimit -f). */
static int64_t dpari_file_most(void)
{
    return dpari_least(dpari_os_limit(RLIMIT_FSIZE), sizeof(off_t) < 8 ? INT32_MAX : INT64_MAX / 2);
}

/* Makes the file. Each rank's part of it is twice what the users may have in use, so that gaps
 * between allocations do not matter, plus what the library itself needs. The file may be this large
 * because it is sparse: its unused parts take neither memory nor addresses. If a limit on files
 * makes the parts smaller, *heap becomes what a part still has for the users. */
static int dpari_segment_size(dpari_segment *segment, int32_t ranks, int64_t *heap, int64_t *part,
                              int is_private, int without_memfd)
{
    /* a channel to each other rank has about 270 KiB; 8 MiB are enough for a few communicators */
    const int64_t begin = dpari_heap_begin(ranks), channels = ranks * (INT64_C(512) << 10);
    const int64_t library = (INT64_C(8) << 20) + channels;
    const int64_t least = dpari_in_units(library + 1, DPARI_OS_LARGE);
    const int64_t bound = is_private ? INT64_MAX / 2 : dpari_file_most();
    const int64_t most = (bound - begin) / ranks / DPARI_OS_LARGE * DPARI_OS_LARGE;
    int number = EFBIG;
    *part = dpari_in_units(2 * *heap + (INT64_C(4) << 30) + channels, DPARI_OS_LARGE);
    *part = dpari_most(dpari_least(*part, most), least);
    while (*part <= most) {
        number = dpari_segment_map(segment, dpari_head_bytes(ranks), begin + ranks * *part,
                                   is_private, without_memfd);
        if (number == 0 || *part == least) {
            break;
        }
        *part = dpari_most(dpari_in_units(*part / 2, DPARI_OS_LARGE), least);
    }
    *heap = dpari_least(*heap, *part - library);
    return number;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_segment_make(dpari_segment *segment, int32_t ranks,
                                                         const dpar_world_desc *options,
                                                         dpar_why *why)
{
    const int32_t plain = options ? options->disable : 0;
    const int32_t threads = options ? options->threads : 0;
    dpar_status status = dpari_segment_options(ranks, options, why);
    int64_t heap = options && options->heap_bytes > 0 ? options->heap_bytes : dpari_os_memory();
    int64_t part = 0;
    int number;
    dpari_world_head *head;
    if (status != DPAR_OK) {
        return status;
    }
    heap = dpari_in_units(heap > 0 ? heap : INT64_C(64) << 20, dpari_os_page());
    number = dpari_segment_size(segment, ranks, &heap, &part, ranks == 1 || threads,
                                plain & DPAR_WORLD_NO_MEMFD);
    if (number == 0 && segment->fd >= 0) {
        number = dpari_os_reserve(segment->fd, 0, segment->bytes);
        if (number != 0) {
            dpari_segment_close(segment);
        }
    }
    if (number != 0) {
        const int64_t file = dpari_heap_begin(ranks) + ranks * part;
        return dpari_os_why(why, "shared memory of ",
                            number == EFBIG ? file : dpari_head_bytes(ranks), number);
    }
    head = dpari_segment_head(segment);
    head->version = DPARI_VERSION;
    head->ranks = (uint32_t)ranks;
    head->bytes = dpari_heap_begin(ranks) + ranks * part;
    head->heap_bytes = heap;
    head->part_bytes = part;
    head->heap_begin = dpari_heap_begin(ranks);
    head->slot_bytes = options && options->slot_bytes ? options->slot_bytes : INT64_C(256) << 10;
    /* so that a chunk, which is half a slot, has at least DPARI_LINE bytes for each rank */
    while (head->slot_bytes < 256 * (int64_t)ranks) {
        head->slot_bytes *= 2;
    }
    head->plain = plain;
    head->threads = threads || ranks == 1;
    head->nonce = dpari_os_random();
    head->clock = DPARI_CLOCK_FIRST;
    for (int32_t i = 0; i < ranks; i++) {
        dpari_segment_ranks(segment)[i].cpu = -1; /* 0 would be a CPU */
    }
    DPARI_STORE(&head->magic, DPARI_MAGIC); /* last: all the fields above are complete */
    return DPAR_OK;
}

/* True if the head belongs to a segment of this version and its sizes fit a file of `bytes`. */
static int dpari_head_is_sound(const dpari_world_head *head, int64_t bytes)
{
    return head->magic == DPARI_MAGIC && head->version == DPARI_VERSION && head->bytes == bytes &&
           head->ranks >= 1 && head->ranks <= DPARI_MAX_RANKS &&
           head->heap_begin == dpari_heap_begin((int64_t)head->ranks) && head->part_bytes > 0 &&
           head->heap_bytes > 0 &&
           head->part_bytes <= (bytes - head->heap_begin) / (int64_t)head->ranks;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_segment_open(dpari_segment *segment, int fd,
                                                         dpar_why *why)
{
    struct stat about;
    dpari_world_head head;
    dpar_status status;
    if (fstat(fd, &about) != 0) {
        return dpari_os_why(why, "the shared memory passed to this rank", 0, errno);
    }
    segment->fd = fd;
    segment->base = NULL;
    if (pread(fd, &head, sizeof head, 0) == (ssize_t)sizeof head &&
        dpari_head_is_sound(&head, (int64_t)about.st_size)) {
        segment->bytes = dpari_head_bytes((int64_t)head.ranks);
        segment->base = (char *)dpari_os_map(fd, 0, segment->bytes);
        if (segment->base) {
            return DPAR_OK;
        }
        status = dpari_os_why(why, "shared memory of ", segment->bytes, errno);
    } else {
        status = dpari_wrong(why,
                             "the shared memory passed to this rank (%ld bytes) is not of this "
                             "version of dpar",
                             (int64_t)about.st_size);
    }
    close(fd);
    segment->fd = -1;
    return status;
}

/* Frees the heaps of ranks that are threads. Such heaps are memory of this process and are released
 * together with the segment. */
static void dpari_segment_unmap_heaps(const dpari_segment *segment)
{
    const dpari_world_head *head = dpari_segment_head(segment);
    for (uint32_t r = 0; r < head->ranks; r++) {
        const dpari_rank *rank = &dpari_segment_ranks(segment)[r];
        for (uint32_t e = 1; e <= rank->extents; e++) {
            dpari_os_unmap((void *)(uintptr_t)rank->extent[e].begin, rank->extent[e].bytes);
        }
    }
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_copy(const dpari_segment *segment, uint64_t ref,
                                                 void *to, int64_t bytes)
{
    const dpari_world_head *head = dpari_segment_head(segment);
    const uint32_t rank = (uint32_t)(ref >> (DPARI_REF_BITS + 6));
    const uint32_t extent = (uint32_t)(ref >> DPARI_REF_BITS) % DPARI_EXTENTS;
    int64_t at;
    if (ref == 0) {
        return 0;
    }
    if (head->threads) {
        memcpy(to, (const void *)(uintptr_t)ref, (size_t)bytes);
        return 1;
    }
    if (rank >= head->ranks || extent == 0) {
        return 0;
    }
    at =
        dpari_segment_ranks(segment)[rank].extent[extent].begin + (int64_t)(ref & DPARI_REF_OFFSET);
    return pread(segment->fd, to, (size_t)bytes, (off_t)at) == (ssize_t)bytes;
}

DPARI_INTERNAL DPARI_COLD void dpari_segment_close(dpari_segment *segment)
{
    if (segment->base && segment->fd < 0) {
        dpari_segment_unmap_heaps(segment);
    }
    dpari_os_unmap(segment->base, segment->bytes);
    segment->base = NULL;
    dpari_os_close(segment->fd);
    segment->fd = -1;
}

/* ---- life and death -------------------------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_segment_ended(const dpari_segment *segment, int32_t rank,
                                                   int32_t ending)
{
    dpari_rank *record = &dpari_segment_ranks(segment)[rank];
    uint32_t state = DPARI_LOAD(&record->state);
    if (state == DPARI_RANK_LEFT) {
        return;
    }
    if (ending == DPARI_ENDING_DUMPS) { /* must not replace an exit status that the launcher has
                                           reported */
        int32_t none = 0;
        (void)DPARI_CLAIM(&record->ending, &none, ending);
    } else if (ending != 0) { /* a peer may have noticed the death first, without the status */
        __atomic_store_n(&record->ending, ending, __ATOMIC_RELAXED);
    }
    if (state != DPARI_RANK_DEAD &&
        DPARI_CLAIM(&record->state, &state, (uint32_t)DPARI_RANK_DEAD)) {
        dpari_uncount(dpari_segment_head(segment), record);
        dpari_ring_all(segment);
    }
}

DPARI_API DPARI_COLD int dpari_world_speaks(dpari_world *world, uint32_t turn)
{
    uint32_t said = DPARI_LOAD(&world->head->said);
    while (said < turn) {
        if (DPARI_CLAIM(&world->head->said, &said, turn)) {
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_said(const dpari_segment *segment)
{
    return DPARI_LOAD(&dpari_segment_head(segment)->said) != 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_has_left(const dpari_segment *segment, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(segment)[rank].state) == DPARI_RANK_LEFT;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_is_behind(const dpari_segment *segment, int32_t rank)
{
    return DPARI_LOAD(&dpari_segment_ranks(segment)[rank].behind) != 0;
}

DPARI_INTERNAL DPARI_COLD uint64_t dpari_segment_pulse(const dpari_segment *segment, int32_t rank)
{
    const dpari_rank *record = &dpari_segment_ranks(segment)[rank];
    return DPARI_LOAD(&record->flights) + ((uint64_t)DPARI_LOAD(&record->beat) << 32);
}

/* A rank that reported within the last DPARI_BEAT_FRESH seconds that it waits has not crashed. This
 * saves reading /proc. */
#define DPARI_BEAT_FRESH 0.1

/* True if the rank has crashed and is writing a core file. It keeps its lock until that is done,
 * which may take minutes. */
static int dpari_rank_dumps(dpari_world *world, int32_t rank)
{
    const dpari_rank *record = &world->rank[rank];
    return record->pids != 0 && record->pids == world->rank[world->me].pids &&
           dpari_beat_age(world, rank) > DPARI_BEAT_FRESH && dpari_os_dumps(record->pid);
}

DPARI_API uint32_t dpari_rank_state(dpari_world *world, int32_t rank)
{
    uint32_t state = DPARI_LOAD(&world->rank[rank].state);
    if (state != DPARI_RANK_HERE || world->threads || rank == world->me) {
        return state;
    }
    if (dpari_os_is_held(world->segment.fd, rank)) {
        if (dpari_rank_dumps(world, rank)) {
            dpari_segment_ended(&world->segment, rank, DPARI_ENDING_DUMPS);
        }
        return DPARI_LOAD(&world->rank[rank].state);
    }
    /* a rank that leaves sets its state before it releases its lock: so read the state again */
    state = DPARI_LOAD(&world->rank[rank].state);
    if (state == DPARI_RANK_HERE) {
        dpari_segment_ended(&world->segment, rank, 0);
    }
    return DPARI_LOAD(&world->rank[rank].state);
}

DPARI_INTERNAL DPARI_COLD void dpari_put_end(dpar_text *text, const dpari_rank *record)
{
    int32_t ending = __atomic_load_n(&record->ending, __ATOMIC_RELAXED);
    uint32_t state = DPARI_LOAD(&record->state);
    if (state == DPARI_RANK_LEFT) {
        dpar_text_put(text, " has left");
    } else if (ending == DPARI_ENDING_DUMPS) {
        dpar_text_put(text, " has crashed and is writing a core file");
    } else if (ending < 0) {
        dpari_text_print(text, " was killed by signal %ld", -(int64_t)ending);
    } else {
        dpar_text_put(text, " has ended");
        if (ending > 0) {
            dpari_text_print(text, " with status %d", ending);
        }
    }
}

DPARI_API DPARI_COLD void dpari_put_ending(dpar_text *text, const dpari_world *world, int32_t rank)
{
    const dpari_rank *record = &world->rank[rank];
    /* The lock of a dead rank is released at once, but the process that started the rank reports a
     * moment later how it ended. */
    for (int32_t i = 0; i < 20; i++) {
        if (DPARI_LOAD(&record->state) != DPARI_RANK_DEAD ||
            __atomic_load_n(&record->ending, __ATOMIC_RELAXED) != 0) {
            break;
        }
        dpari_os_sleep(1e-3);
    }
    dpari_put_end(text, record);
}

/* ---- joining --------------------------------------------------------------------------------- */

static int64_t dpari_view_bytes(const dpari_world *world)
{
    return world->size * (int64_t)DPARI_EXTENTS * (int64_t)sizeof(char *);
}

/* Unmaps all extents that this rank has mapped, its own and those of other ranks. */
static void dpari_world_unmap(dpari_world *world)
{
    for (int32_t i = 0; i < world->size * DPARI_EXTENTS; i++) {
        if (world->view[i]) {
            dpari_os_unmap(world->view[i],
                           world->rank[i / DPARI_EXTENTS].extent[i % DPARI_EXTENTS].bytes);
        }
    }
}

#define DPARI_USED_BYTES ((DPARI_MAX_USED + 2) * (int64_t)sizeof(dpari_used))

/* Frees the private memory of a world. */
static void dpari_world_free(dpari_world *world)
{
    dpari_os_unmap(world->used, DPARI_USED_BYTES);
    dpari_os_unmap(world->view, dpari_view_bytes(world));
    dpari_os_unmap(world->probe, dpari_os_page());
    dpari_os_unmap(world, (int64_t)sizeof *world);
}

DPARI_INTERNAL DPARI_COLD void dpari_world_close(dpari_world *world)
{
    DPARI_STORE(&world->rank[world->me].state, (uint32_t)DPARI_RANK_LEFT);
    dpari_ring_all(&world->segment);
    if (!world->threads && world->owns != DPARI_OWNS_FILE) {
        dpari_world_unmap(world);
    }
    if (world->owns) {
        world->segment.base = world->owns == DPARI_OWNS_FILE ? NULL : world->segment.base;
        dpari_segment_close(&world->segment);
    }
    dpari_world_free(world);
}

DPARI_INTERNAL DPARI_COLD dpari_world *dpari_world_make(const dpari_segment *segment, int32_t me,
                                                        int32_t own, const dpar_world_desc *options)
{
    dpari_world_head *head = dpari_segment_head(segment);
    dpari_world *world = (dpari_world *)dpari_os_pages((int64_t)sizeof *world);
    if (!world) {
        return NULL;
    }
    world->segment = *segment;
    world->head = head;
    world->rank = dpari_segment_ranks(segment);
    world->channel = (uint64_t *)(void *)(world->rank + head->ranks);
    world->me = me;
    world->size = (int32_t)head->ranks;
    world->threads = head->threads;
    world->owns = own;
    world->timeout_s = dpari_world_timeout(options);
    world->used = (dpari_used *)dpari_os_pages(DPARI_USED_BYTES);
    world->view = (char **)dpari_os_pages(dpari_view_bytes(world));
    world->fresh = dpari_part_begin(world);
    world->clock = DPARI_LOAD(&head->clock);
    world->clock_at = dpari_os_now();
    world->probe = dpari_os_own_page();
    if (!world->used || !world->view || !world->probe) {
        dpari_world_free(world);
        return NULL;
    }
    return world;
}

/* Writes the message that names the ranks that have not arrived. Returns DPAR_E_PEER if one of them
 * has ended, otherwise DPAR_E_TIMEOUT. */
static dpar_status dpari_join_missing(dpari_world *world, double waited, dpar_why *why)
{
    dpar_status status = DPAR_E_TIMEOUT;
    int32_t named = 0;
    dpar_text t;
    dpari_text_why(&t, why);
    dpar_text_put(&t, "start: ");
    for (int32_t i = 0; i < world->size; i++) {
        uint32_t state = dpari_rank_state(world, i);
        if (DPARI_LOAD(&world->rank[i].member) != 0) {
            continue;
        }
        if (state != DPARI_RANK_AWAY) {
            status = DPAR_E_PEER;
        }
        if (named++ < 8) {
            dpar_text_put(&t, named > 1 ? ", rank " : "rank ");
            dpari_text_int(&t, i);
            dpar_text_put(&t, state == DPARI_RANK_AWAY ? " has not arrived" : " has ended");
        }
    }
    dpari_text_print(&t, " (%d of %d ranks) after %.1f s", named, world->size, waited);
    return status;
}

/* Waits until every rank has published its `member`. */
static dpar_status dpari_join_all(dpari_world *world, dpar_why *why)
{
    dpari_wait t;
    memset(&t, 0, sizeof t);
    for (int32_t i = 0; i < world->size; i++) {
        /* a rank that arrived and has left again has set `member`, so it counts */
        while (DPARI_LOAD(&world->rank[i].member) == 0) {
            if (dpari_wait_turn(world, &t, -1) != DPAR_MORE) {
                continue;
            }
            double waited = dpari_os_now() - t.began;
            uint32_t state = dpari_rank_state(world, i);
            int late = world->timeout_s > 0.0 && waited > world->timeout_s;
            if ((late || state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT) &&
                DPARI_LOAD(&world->rank[i].member) == 0) {
                dpari_wait_end(world, &t);
                return dpari_join_missing(world, waited, why);
            }
        }
    }
    dpari_wait_end(world, &t);
    return DPAR_OK;
}

/* ---- reading the memory of other ranks --------------------------------------------------------
 *
 * process_vm_readv takes a pid. Whether it is permitted depends on both processes: on their users
 * and namespaces, on seccomp, on Yama, and on whether they can be dumped. dpar checks none of these
 * but tries the call. Each rank keeps a word in its private memory that no other process has. A
 * rank that reads from it reads this word in the same call, which proves that the pid is that of
 * the right process. When a rank enters, it tries to read from all others and publishes from which
 * it could, so that the ranks can agree on a method that works for all of them. */

/* Computes the word of a rank, a hash of the world's nonce and the rank (splitmix64). */
static uint64_t dpari_world_word(const dpari_world *world, int32_t rank)
{
    uint64_t h = world->head->nonce + (uint64_t)(rank + 1) * UINT64_C(0x9e3779b97f4a7c15);
    h = (h ^ h >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    h = (h ^ h >> 27) * UINT64_C(0x94d049bb133111eb);
    return h ^ h >> 31;
}

static int dpari_world_fetch(const dpari_world *world, int32_t rank, void *to, uint64_t from,
                             int64_t bytes)
{
    dpari_os_target target;
    target.pid = world->rank[rank].pid;
    target.at = world->rank[rank].probe;
    target.word = dpari_world_word(world, rank);
    return dpari_os_read_peer(&target, to, from, bytes);
}

DPARI_INTERNAL int dpari_world_reads(const dpari_world *world, int32_t reader, int32_t rank)
{
    const dpari_rank *record = &world->rank[reader];
    const int32_t count = DPARI_LOAD(&record->reads);
    if (count == 0 || count == world->size) {
        return count != 0;
    }
    return (int)(__atomic_load_n(&record->can_read[rank / 64], __ATOMIC_RELAXED) >> rank % 64 & 1U);
}

DPARI_INTERNAL int dpari_world_read(dpari_world *world, int32_t rank, void *to, uint64_t from,
                                    int64_t bytes)
{
    dpari_rank *record = &world->rank[world->me];
    const uint64_t bit = UINT64_C(1) << rank % 64;
    if (bytes == 0) {
        return 0;
    }
    if (dpari_world_fetch(world, rank, to, from, bytes) == 0) {
        return 0;
    }
    if (record->can_read[rank / 64] & bit) {
        __atomic_store_n(&record->can_read[rank / 64], record->can_read[rank / 64] & ~bit,
                         __ATOMIC_RELAXED);
        DPARI_STORE(&record->reads, record->reads - 1);
    }
    return -1;
}

/* Tries to read from each other rank and publishes from which ranks that works. */
static DPARI_COLD void dpari_world_prove(dpari_world *world)
{
    dpari_rank *record = &world->rank[world->me];
    int32_t count = 1;
    if (world->threads || world->size == 1 || (world->head->plain & DPAR_WORLD_NO_CMA)) {
        return;
    }
    memset(record->can_read, 0, sizeof record->can_read);
    record->can_read[world->me / 64] = UINT64_C(1) << world->me % 64;
    for (int32_t i = 1; i < world->size;
         i++) { /* each rank starts at the next one, to spread the reads */
        const int32_t peer = (world->me + i) % world->size;
        if (dpari_world_fetch(world, peer, NULL, 0, 0) == 0) {
            record->can_read[peer / 64] |= UINT64_C(1) << peer % 64;
            count++;
        } else if (errno == ENOSYS) {
            break;
        }
    }
    DPARI_STORE(&record->reads, count);
}

/* Returns why this rank cannot read another one's memory, as far as that is known. */
static DPARI_COLD const char *dpari_unread_why(const dpari_world *world, int32_t rank)
{
    const dpari_rank *mine = &world->rank[world->me], *theirs = &world->rank[rank];
    if (dpari_world_fetch(world, rank, NULL, 0, 0) == 0) {
        return "a read failed before";
    }
    if (errno == ENOSYS) {
        return "process_vm_readv does not exist, or seccomp hides it";
    }
    if (mine->pid_space != theirs->pid_space) {
        return "another PID namespace";
    }
    if (mine->user_space != theirs->user_space) {
        return "another user namespace";
    }
    if (errno == EPERM || errno == EACCES) {
        return "not permitted: another user, seccomp, or Yama's ptrace_scope";
    }
    return "no process has its pid";
}

DPARI_INTERNAL DPARI_COLD void dpari_put_unread(dpar_text *text, dpari_world *world)
{
    int32_t first = -1, count = 0;
    for (int32_t i = 0; i < world->size; i++) {
        if (i == world->me || dpari_world_reads(world, world->me, i)) {
            continue;
        }
        first = first < 0 ? i : first;
        count++;
    }
    if (count > 0) {
        dpari_text_print(text, "; %d of %d other ranks cannot be read: rank %d (%s)", count,
                         world->size - 1, first, dpari_unread_why(world, first));
        dpar_text_put(text, count > 1 ? ", ..." : "");
    }
}

/* True if the control group of this rank may use fewer processors than it has ranks. */
static int dpari_world_quota_is_short(const dpari_world *world)
{
    const dpari_rank *record = &world->rank[world->me];
    int32_t together = 0;
    if (record->quota >= world->size) {
        return 0;
    }
    for (int32_t i = 0; i < world->size; i++) {
        together += world->rank[i].group == record->group;
    }
    return record->quota < together;
}

/* Determines what is known only once all ranks have arrived: whether there are cores for all of
 * them, and which ranks' memory this rank can read. */
static void dpari_world_look(dpari_world *world)
{
    uint64_t any[DPARI_CPU_WORDS] = {0};
    for (int32_t i = 0; i < world->size * DPARI_CPU_WORDS; i++) {
        any[i % DPARI_CPU_WORDS] |= world->rank[i / DPARI_CPU_WORDS].cpus[i % DPARI_CPU_WORDS];
    }
    world->crowded = dpari_os_cpu_count(any) < world->size;
    world->thrifty = dpari_world_quota_is_short(world);
    dpari_world_prove(world);
}

/* Returns the most bytes of released memory that this rank may keep. Where the file is in /dev/shm,
 * that may be much smaller than the memory. */
static int64_t dpari_world_keeps(const dpari_world *world, int64_t available)
{
    struct statvfs place;
    if (world->segment.fd >= 0 && fstatvfs(world->segment.fd, &place) == 0 && place.f_blocks > 0) {
        available = dpari_least(available, (int64_t)place.f_bavail * (int64_t)place.f_frsize);
    }
    return dpari_least(DPARI_KEPT_MOST, available / DPARI_KEPT_SHARE / world->size);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_world_enter(dpari_world *world, uint64_t member,
                                                        dpar_why *why)
{
    dpari_rank *record = &world->rank[world->me];
    dpari_available available;
    dpar_status status;
    if (world->segment.fd >= 0 && dpari_os_hold(world->segment.fd, world->me) != 0) {
        return dpari_os_why(why, "start: taking the lock of this rank", 0, errno);
    }
    record->pid = (int32_t)getpid();
    record->pids = dpari_os_pids();
    world->cpu = dpari_os_cpu();
    DPARI_STORE(&record->cpu, world->cpu); /* ranks that arrived before look at it */
    *world->probe = dpari_world_word(world, world->me);
    record->probe = (uint64_t)(uintptr_t)world->probe;
    dpari_limits_find(&available);
    world->kept_most = dpari_world_keeps(world, available.bytes);
    record->quota = available.cpus;
    record->group = available.who;
    record->pid_space = dpari_os_namespace("pid");
    record->user_space = dpari_os_namespace("user");
    dpari_os_cpus(record->cpus);
    record->cache = dpari_os_cache(record->cpus);
    DPARI_STORE(&record->state, (uint32_t)DPARI_RANK_HERE);
    dpari_publish(world, &record->member, member);
    status = dpari_join_all(world, why);
    if (status == DPAR_OK) {
        dpari_world_look(world);
    }
    return status;
}

/* ==== comm/group.c ==== */

/* Implements groups: the ranks of a world that share a communicator.
 *
 * A group finds the memory of each member, breaks on all ranks if one fails, and decides which
 * ranks continue when it shrinks. Most of the file writes error messages: which rank is missing,
 * where each rank waits, and which rank is the cause. Called by collectives.c, p2p.c, shm.c and
 * ../exchange. */

/* ---- the memory that follows a member -------------------------------------------------------- */

static int64_t dpari_table_bytes(const dpari_world *world)
{
    int64_t bytes = world->size * (int64_t)sizeof(dpari_piece);
    return (bytes + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

DPARI_INTERNAL int64_t dpari_member_bytes(const dpari_world *world)
{
    return (int64_t)sizeof(dpari_member) + 2 * dpari_table_bytes(world) +
           2 * world->head->slot_bytes;
}

DPARI_INTERNAL dpari_piece *dpari_table(const dpari_group *group, int32_t rank, int64_t parity)
{
    char *behind = (char *)(group->member[rank] + 1);
    return (dpari_piece *)(void *)(behind + (parity & 1) * dpari_table_bytes(group->world));
}

DPARI_INTERNAL char *dpari_staging(const dpari_group *group, int32_t rank)
{
    char *behind = (char *)(group->member[rank] + 1);
    return behind + 2 * dpari_table_bytes(group->world);
}

/* ---- how it breaks --------------------------------------------------------------------------- */

DPARI_API dpar_status dpari_group_broken(dpari_group *group)
{
    const dpari_abort *record = &group->member[0]->abort;
    if (group->comm.status == DPAR_OK && DPARI_LOAD(&record->state) == DPARI_ABORT_SET) {
        /* so that a rank that sees what this rank writes from here on also sees the record
         * (tests/model/order.c) */
        __atomic_thread_fence(__ATOMIC_RELEASE);
        (void)dpari_repeat(record->status, &group->comm.why, record->text);
        group->broken_from = record->from;
        group->comm.status = record->status;
    }
    return group->comm.status;
}

DPARI_API DPARI_COLD dpar_status dpari_group_break(dpari_group *group, dpar_status status,
                                                   const char *text)
{
    dpari_abort *record = &group->member[0]->abort;
    uint32_t none = DPARI_ABORT_NONE;
    if (group->comm.status != DPAR_OK) {
        return group->comm.status;
    }
    if (DPARI_CLAIM(&record->state, &none, (uint32_t)DPARI_ABORT_CLAIMED)) {
        dpar_text t;
        dpar_text_init(&t, record->text, sizeof record->text);
        dpar_text_put(&t, text);
        record->status = status;
        record->from = group->first ? group->first->sequence : group->sequence + 1;
        DPARI_STORE(&record->state, (uint32_t)DPARI_ABORT_SET);
        dpari_ring_all(&group->world->segment);
    }
    /* Another rank may have claimed the record first: wait up to 0.1 s until it has filled the
     * record in. If it has died before that, this rank's own status and text count here. */
    for (int32_t i = 0; i < 1000 && dpari_group_broken(group) == DPAR_OK; i++) {
        dpari_os_sleep(100e-6);
    }
    if (group->comm.status == DPAR_OK) {
        group->comm.status = dpari_repeat(status, &group->comm.why, text);
    }
    return group->comm.status;
}

DPARI_INTERNAL DPARI_COLD int dpari_segment_broke(const dpari_segment *segment, dpar_why *why)
{
    const uint64_t ref = DPARI_LOAD(&dpari_segment_ranks(segment)->member);
    dpari_abort record;
    if (ref == 0 ||
        !dpari_segment_copy(segment, ref + offsetof(dpari_member, abort), &record, sizeof record) ||
        record.state != DPARI_ABORT_SET) {
        return 0;
    }
    (void)dpari_repeat(record.status, why, record.text);
    return 1;
}

/* ---- which ranks continue (dpari_vote) ------------------------------------------------------- */

DPARI_INTERNAL DPARI_COLD void dpari_vote_cast(dpari_group *group, uint64_t word)
{
    dpari_publish(group->world, &group->member[group->comm.rank]->vote.word, word);
}

static DPARI_COLD int dpari_vote_is_gone(const dpari_group *group, int32_t rank)
{
    const uint32_t state = dpari_rank_state(group->world, group->world_rank[rank]);
    return state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT;
}

DPARI_INTERNAL DPARI_COLD int32_t dpari_vote_known(const dpari_group *group, int look)
{
    int32_t r, n = 0;
    for (r = 0; r < group->comm.size; r++) {
        n += DPARI_LOAD(&group->member[r]->vote.word) != DPARI_VOTE_NONE ||
             (look && dpari_vote_is_gone(group, r));
    }
    return n;
}

DPARI_INTERNAL DPARI_COLD int dpari_vote_is_decided(const dpari_group *group)
{
    return DPARI_LOAD(&group->member[0]->vote.decided) != 0;
}

DPARI_INTERNAL DPARI_COLD const uint64_t *dpari_vote_decide(dpari_group *group)
{
    uint64_t *stay = group->member[group->comm.rank]->vote.stay;
    uint32_t none = 0, *decided = &group->member[0]->vote.decided;
    int32_t r;
    for (r = 0; r < group->comm.size && !dpari_vote_is_decided(group); r++) {
        if (DPARI_LOAD(&group->member[r]->vote.word) == DPARI_VOTE_STAYS &&
            !dpari_vote_is_gone(group, r)) {
            stay[r / 64] |= UINT64_C(1) << r % 64;
        }
    }
    if (!dpari_vote_is_decided(group) &&
        DPARI_CLAIM(decided, &none, (uint32_t)group->comm.rank + 1U)) {
        dpari_ring_all(&group->world->segment);
    }
    return group->member[DPARI_LOAD(decided) - 1U]->vote.stay;
}

DPARI_INTERNAL DPARI_COLD int dpari_vote_stays(const uint64_t *stay, int32_t rank)
{
    return (int)(stay[rank / 64] >> rank % 64 & 1U);
}

/* ---- messages -------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_put_place(dpar_text *text, const dpari_group *group)
{
    if (group->place != NULL) {
        dpari_text_print(text, " on %s", group->place);
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_put_rank(dpar_text *text, const dpari_group *group,
                                              int32_t rank)
{
    dpar_text_put(text, "rank ");
    if (group->called != NULL) {
        dpari_text_int(text, group->called[rank]);
        dpari_put_place(text, group);
        return;
    }
    dpari_text_int(text, rank);
    if (group->world_rank[rank] != rank) {
        dpari_text_print(text, " (%d in the world)", group->world_rank[rank]);
    }
}

DPARI_API void dpari_group_call(dpar_comm *comm, const int32_t *number, const char *place)
{
    dpari_group_of(comm)->called = number;
    dpari_group_of(comm)->place = place;
}

DPARI_INTERNAL DPARI_COLD void dpari_put_flight_of(dpar_text *text, const dpari_group *group,
                                                   const dpari_flight *flight)
{
    dpari_flight shown = *flight;
    if (group->called != NULL && flight->kind != DPAR_CALL_BARRIER && flight->root >= 0 &&
        flight->root < group->comm.size) {
        shown.root = group->called[flight->root];
    }
    dpari_flight_text(text, &shown);
}

DPARI_INTERNAL DPARI_COLD void dpari_put_work(dpar_text *text, const dpari_group *group,
                                              const dpar_work *work)
{
    const dpari_flight f = dpari_flight_of(&work->call, work->sequence);
    dpari_put_flight_of(text, group, &f);
    if (group->called != NULL) {
        dpari_text_print(text, " in the memory of %s: ", group->place);
        return;
    }
    dpar_text_put(text, " of ");
    if (group->id != 0) {
        dpari_text_print(text, "group %ld of ", (int64_t)group->id);
    }
    dpari_text_print(text, "%d ranks: ", group->comm.size);
}

enum { DPARI_NAMED = 8 }; /* the most ranks that a message names */

/* Appends the other ranks that died, because the one that was noticed first need not be the cause.
 */
static DPARI_COLD void dpari_put_others_dead(dpar_text *text, const dpari_group *group,
                                             int32_t rank)
{
    int32_t dead = 1;
    for (int32_t r = 0; r < group->comm.size; r++) {
        if (r != rank && dpari_rank_state(group->world, group->world_rank[r]) == DPARI_RANK_DEAD &&
            dead++ < DPARI_NAMED) {
            dpar_text_put(text, dead > 2 ? ", " : "; also ended: ");
            dpari_put_rank(text, group, r);
        }
    }
    if (dead > DPARI_NAMED) {
        dpari_text_print(text, " and %d more", dead - DPARI_NAMED);
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_fail_peer(dpari_group *group, const dpar_work *work,
                                                      int32_t rank)
{
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_put_work(&t, group, work);
    dpari_put_rank(&t, group, rank);
    if (dpari_rank_state(group->world, group->world_rank[rank]) == DPARI_RANK_HERE) {
        dpar_text_put(&t, " closed the communicator or returned");
        dpari_put_failed(&t, group->world, group->world_rank[rank]); /* most likely the reason */
    } else {
        dpari_put_ending(&t, group->world, group->world_rank[rank]);
        dpari_put_last(&t, group->world, group->world_rank[rank]);
    }
    dpari_put_others_dead(&t, group, rank);
    return dpari_group_break(group, DPAR_E_PEER, why.text);
}

DPARI_API DPARI_COLD dpar_status dpari_group_unmapped(dpari_group *group, const dpar_work *work,
                                                      uint64_t ref)
{
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    if (work) {
        dpari_put_work(&t, group, work);
    }
    dpari_put_rank(&t, group, group->comm.rank);
    dpar_text_put(&t, ": ");
    dpari_put_unmapped(&t, group->world, ref);
    return dpari_group_break(group, DPAR_E_MEMORY, why.text);
}

DPARI_API DPARI_COLD int dpari_group_ended(dpar_comm *comm, dpar_text *text)
{
    const dpari_group *group = dpari_group_of(comm);
    int32_t r = 0;
    while (r < comm->size &&
           dpari_rank_state(group->world, group->world_rank[r]) != DPARI_RANK_DEAD) {
        r++;
    }
    if (r == comm->size) {
        return 0;
    }
    dpari_put_rank(text, group, r);
    dpari_put_ending(text, group->world, group->world_rank[r]);
    dpari_put_last(text, group->world, group->world_rank[r]);
    dpari_put_others_dead(text, group, r);
    return 1;
}

/* A rank that closes the communicator sends nothing new on it. If its `owes` is 0 afterwards, all
 * that it had to report is in the channels, so the caller needs only one more look at them. */
DPARI_API DPARI_COLD int dpari_group_closes(const dpari_group *group, int32_t world_rank)
{
    dpari_flight f;
    return dpari_flight_find(group->world, world_rank, 0, DPARI_FLIGHT_LAST, &f) &&
           f.kind == DPAR_CALL_BARRIER && f.root == DPARI_CLOSE && f.comm == group->id &&
           DPARI_LOAD(&group->world->rank[world_rank].owes) == 0;
}

DPARI_API DPARI_COLD int dpari_group_crossed(const dpari_group *group, int32_t world_rank,
                                             double quiet, int64_t *sequence)
{
    dpari_world *world = group->world;
    const dpari_rank *record = &world->rank[world_rank];
    dpari_flight f, mine;
    if (DPARI_LOAD(&record->needs) != world->me || dpari_beat_age(world, world_rank) > quiet ||
        !dpari_flight_find(world, world_rank, 0, DPARI_FLIGHT_LAST, &f) ||
        f.state != DPARI_FLIGHT_POSTED || f.kind >= DPAR_CALL_COLLECTIVE_COUNT ||
        f.comm != group->id || dpari_flight_find(world, world->me, group->id, f.sequence, &mine)) {
        return 0;
    }
    *sequence = f.sequence;
    return 1;
}

DPARI_API DPARI_COLD void dpari_put_crossed(dpar_text *text, const dpari_group *group,
                                            int32_t world_rank, int64_t sequence)
{
    dpari_flight f;
    dpar_text_put(text, " called ");
    if (dpari_flight_find(group->world, world_rank, group->id, sequence, &f)) {
        dpari_put_flight_of(text, group, &f);
    }
}

DPARI_INTERNAL int32_t dpari_group_rank(const dpari_group *group, int32_t world_rank)
{
    int32_t r;
    for (r = 0; r < group->comm.size; r++) {
        if (group->world_rank[r] == world_rank) {
            return r;
        }
    }
    return -1;
}

DPARI_API DPARI_COLD int32_t dpari_group_culprit(const dpari_group *group, int32_t world_rank,
                                                 double quiet, int32_t *links)
{
    const dpari_rank *record = group->world->rank;
    int32_t who = world_rank, n;
    for (n = 0; n < group->world->size && dpari_beat_age(group->world, who) <= quiet; n++) {
        const int32_t next = DPARI_LOAD(&record[who].needs);
        if (next == group->world->me || next == world_rank || dpari_group_rank(group, next) < 0) {
            break;
        }
        who = next;
    }
    *links = n;
    return who;
}

DPARI_API DPARI_COLD double dpari_quiet(double timeout)
{
    const double least = 0.06; /* a rank that sleeps reports every 0.02 s */
    return dpari_mostf(least, dpari_leastf(timeout / 4.0, 1.0));
}

/* ==== comm/arrival.c ==== */

/* Tells the ranks of a large group that all have arrived, by levels. arrival.h has the idea and the
 * protocol; collectives.c calls it while it waits for words.
 *
 * One cache line of `down` is enough, and two lines of `up`, used alternately like the entries of
 * collectives.c, for these reasons:
 *
 * `up` of k + 1 is written once the leader's cluster has entered k + 1, while another leader may
 * still read `up` of k. Therefore there are two lines. `up` of k + 2 is written once all have
 * entered k + 1, which each rank does after it is done with k.
 *
 * `down` of k + 1 is written once all have entered k + 1 and so are done with `down` of k.
 *
 * A word that is ahead of the target implies the target, because its leader has passed this gate.
 * After a barrier that closes a communicator, words may be ahead because their rank has reused its
 * member for another communicator. A barrier carries no data, so that does no harm. */

enum {
    DPARI_LEVELS_FROM = 17,  /* fewer ranks can look at all words within a microsecond */
    DPARI_LEVELS_LOOKS = 512 /* looks by levels before a rank looks at all words */
};

DPARI_INTERNAL const uint64_t *dpari_word_of(const dpari_group *group, const dpar_work *work,
                                             int32_t rank, int32_t which)
{
    const dpari_member *member = group->member[rank];
    switch (which) {
    case DPARI_WORD_ENTRY: return &member->entry[work->sequence & 1].word;
    case DPARI_WORD_A: return &member->a.word;
    case DPARI_WORD_B: return &member->b.word;
    default: return &member->c.word;
    }
}

/* ---- clusters -------------------------------------------------------------------------------- */

DPARI_INTERNAL int64_t dpari_gate_bytes(int32_t size)
{
    return 3 * size * (int64_t)sizeof(int32_t);
}

/* Returns the leader of the cluster that rank r joins: the last cluster with the same cache that
 * has fewer than `most` ranks. Returns r itself if there is none. */
static int32_t dpari_cluster_of(const dpari_group *group, int32_t r, int32_t *members, int32_t most)
{
    const dpari_levels *levels = &group->levels;
    const int32_t cache = group->world->rank[group->world_rank[r]].cache;
    for (int32_t c = levels->clusters - 1; c >= 0; c--) {
        const int32_t lead = levels->leaders[c];
        if (group->world->rank[group->world_rank[lead]].cache == cache && members[lead] < most) {
            return lead;
        }
    }
    return r;
}

DPARI_INTERNAL void dpari_gate_cut(dpari_group *group, void *tables)
{
    dpari_levels *levels = &group->levels;
    const int32_t size = group->comm.size;
    const int asked = (group->world->head->plain & DPAR_WORLD_NO_FLAT) != 0;
    /* the sizes of the clusters by leader, in memory that `place` takes over below */
    int32_t *members = (int32_t *)tables;
    levels->clusters = 0;
    /* levels are slow for ranks that share a core, because each level costs a context switch */
    if (asked ? size < 3 : size < DPARI_LEVELS_FROM || group->world->crowded) {
        return;
    }
    levels->most = size < DPARI_LEVELS_FROM ? 2 : DPARI_CLUSTER;
    levels->place = (int32_t *)tables;
    levels->leader = levels->place + size;
    levels->leaders = levels->leader + size;
    for (int32_t r = 0; r < size; r++) {
        const int32_t lead = dpari_cluster_of(group, r, members, levels->most);
        members[r] = 0;
        members[lead]++;
        levels->leader[r] = lead;
        if (lead == r) {
            levels->leaders[levels->clusters++] = r;
        }
    }
    for (int32_t c = 0; c < levels->clusters; c++) {
        int32_t n = 0;
        for (int32_t r = levels->leaders[c]; r < size; r++) {
            if (levels->leader[r] == levels->leaders[c]) {
                if (levels->leaders[c] == levels->leader[group->comm.rank]) {
                    levels->own = c;
                    levels->mine[n] = r;
                    levels->count = n + 1;
                }
                levels->place[r] = n++;
            }
        }
    }
}

/* ---- data in `up` and `down` ----------------------------------------------------------------- */

/* Returns the bytes of input of each rank that `up` carries in this collective, or 0 if it carries
 * none. */
static int64_t dpari_gate_carries(const dpari_group *group, const dpar_work *work)
{
    const int64_t bytes = work->call.count * dpar_type_bytes(dpari_kern_stored(work->call.type));
    const int all =
        work->call.kind == DPAR_CALL_ALL_REDUCE || work->call.kind == DPAR_CALL_ALL_GATHER;
    return all && !work->call.variable_counts && bytes <= DPARI_INLINE / group->levels.most ? bytes
                                                                                            : 0;
}

DPARI_INTERNAL const void *dpari_gate_given(const dpari_group *group, const dpar_work *work,
                                            int32_t rank, uint64_t target)
{
    const dpari_levels *levels = &group->levels;
    const int64_t bytes = levels->clusters > 0 ? dpari_gate_carries(group, work) : 0;
    const dpari_entry *up =
        bytes > 0 ? &group->member[levels->leader[rank]]->up[work->sequence & 1] : NULL;
    if (!up || DPARI_LOAD(&up->word) != target) {
        return group->member[rank]->entry[work->sequence & 1].payload;
    }
    return (const char *)(const void *)up->payload + levels->place[rank] * bytes;
}

DPARI_INTERNAL const void *dpari_gate_result(const dpari_group *group, const dpari_watch *at)
{
    const int32_t lead = at->stage == DPARI_BY_LEVELS ? group->levels.leader[group->comm.rank] : -1;
    return lead < 0 || lead == group->comm.rank ? NULL : group->member[lead]->down.payload;
}

/* ---- words ----------------------------------------------------------------------------------- */

static uint64_t *dpari_gate_up(const dpari_group *group, const dpar_work *work, int32_t rank,
                               int32_t which)
{
    dpari_member *member = group->member[rank];
    return which == DPARI_WORD_ENTRY ? &member->up[work->sequence & 1].word : &member->up_last.word;
}

static uint64_t *dpari_gate_down(const dpari_group *group, int32_t rank, int32_t which)
{
    dpari_member *member = group->member[rank];
    return which == DPARI_WORD_ENTRY ? &member->down.word : &member->down_last.word;
}

/* Returns 1 if the word has reached the target, 0 if not yet, and -1 if it is an entry with the
 * same number but another fingerprint. */
static int dpari_gate_came(const uint64_t *at, int32_t which, uint64_t target)
{
    const uint64_t word = DPARI_LOAD(at);
    const int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(target >> 32));
    if (ahead == 0 && word != target && which == DPARI_WORD_ENTRY) {
        return -1;
    }
    return (int64_t)(word - target) >= 0;
}

/* Publishes to the other leaders that this cluster has arrived, together with its small input. */
static void dpari_gate_tell_leaders(dpari_group *group, const dpar_work *work, int32_t which,
                                    uint64_t target)
{
    const dpari_levels *levels = &group->levels;
    const size_t bytes = (size_t)(which == DPARI_WORD_ENTRY ? dpari_gate_carries(group, work) : 0);
    char *to = (char *)(void *)group->member[group->comm.rank]->up[work->sequence & 1].payload;
    for (int32_t i = 0; i < levels->count && bytes > 0; i++) {
        memcpy(to + (size_t)i * bytes,
               group->member[levels->mine[i]]->entry[work->sequence & 1].payload, bytes);
    }
    dpari_publish(group->world, dpari_gate_up(group, work, group->comm.rank, which), target);
}

static int dpari_gate_cluster_came(const dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    int came = 1;
    if (at->cursor == 0) {
        at->cursor = 1; /* the leader itself has arrived */
    }
    for (; at->cursor < group->levels.count; at->cursor++) {
        came = dpari_gate_came(dpari_word_of(group, work, group->levels.mine[at->cursor], which),
                               which, target);
        if (came != 1) {
            break;
        }
    }
    return came;
}

static int dpari_gate_leaders_came(const dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    const dpari_levels *levels = &group->levels;
    int came = 1;
    /* each leader begins with the next one, so that not all read the same line at once */
    for (; at->cursor < levels->clusters - 1; at->cursor++) {
        const int32_t c = (levels->own + 1 + at->cursor) % levels->clusters;
        came =
            dpari_gate_came(dpari_gate_up(group, work, levels->leaders[c], which), which, target);
        if (came != 1) {
            break;
        }
    }
    return came;
}

DPARI_INTERNAL int dpari_gate_look(dpari_group *group, const dpar_work *work, dpari_watch *at,
                                   int32_t which, uint64_t target)
{
    const int32_t me = group->comm.rank;
    int came = 1;
    if (group->levels.clusters == 0 || group->levels.doubt || group->comm.status != DPAR_OK ||
        at->stage == DPARI_AT_ALL) {
        at->cursor = at->stage == DPARI_AT_ALL ? at->cursor : 0;
        at->stage = DPARI_AT_ALL;
        return -1;
    }
    if (group->levels.leader[me] != me) {
        came =
            dpari_gate_came(dpari_gate_down(group, group->levels.leader[me], which), which, target);
    } else if (at->stage == DPARI_AT_CLUSTER) {
        came = dpari_gate_cluster_came(group, work, at, which, target);
        if (came == 1) {
            dpari_gate_tell_leaders(group, work, which, target);
            at->stage = DPARI_AT_LEADERS;
            at->cursor = 0;
        }
    }
    if (came == 1 && at->stage == DPARI_AT_LEADERS) {
        came = dpari_gate_leaders_came(group, work, at, which, target);
    }
    if (came == 1) {
        at->stage = DPARI_BY_LEVELS;
    } else if (came < 0 || ++at->looks >= DPARI_LEVELS_LOOKS) {
        at->stage = DPARI_AT_ALL; /* the words themselves show which rank is missing or differs */
        at->cursor = 0;
        return -1;
    }
    group->blocker = -1;
    return came;
}

DPARI_INTERNAL void dpari_gate_tell(dpari_group *group, const dpar_work *work,
                                    const dpari_watch *at, int32_t which, uint64_t target,
                                    const void *result, int64_t bytes)
{
    const int32_t me = group->comm.rank;
    if (group->levels.clusters == 0 || group->levels.leader[me] != me) {
        return;
    }
    if (at->stage == DPARI_AT_ALL && DPARI_LOAD(dpari_gate_up(group, work, me, which)) !=
                                         target) { /* only this rank writes it */
        dpari_gate_tell_leaders(group, work, which, target);
    }
    if (bytes > 0) {
        memcpy(group->member[me]->down.payload, result, (size_t)bytes);
    }
    dpari_publish(group->world, dpari_gate_down(group, me, which), target);
}

/* ==== comm/collectives.c ==== */

/* Implements the collectives of the shared-memory engine as steps that never wait. shm.c calls the
 * steps, and decides when and for how long to wait between them.
 *
 * Collective k of a communicator proceeds in these steps on every rank:
 *
 *   1. Input is put where others can read it: small input into the rank's entry line, other input
 *      into the slot of parity k & 1, unless it is in registered memory already. Then the rank
 *      publishes its entry: word = k << 32 | fingerprint of the call.
 *   2. The rank waits for the entries of ALL ranks (many ranks do so by levels: arrival.h), and
 *      compares their fingerprints. If ranks have called different operations, all of them notice
 *      here. Because of this wait, two sets of entries and slots, used alternately, are enough. A
 *      rank that begins k + 2 has seen all entries of k + 1, and a rank that has entered k + 1 has
 *      finished reading k.
 *   3. All ranks have now seen the same entries, so they choose the same method:
 *      box     All input is readable, and each rank takes what it needs. If some of it is in users'
 *              memory, nobody returns before all have published (word a) that they are done.
 *      push    For reductions whose outputs can be reached too. A rank reduces its part of all
 *              inputs and stores it into all outputs, so that each byte is read and written once.
 *      cma     The kernel copies from the other processes.
 *      chunks  Pieces are passed through the slots, four buffers deep. In step j a
 *              rank waits until all are done with chunk j - 4, writes its chunk j and sets word a
 *              to j + 1. It then reduces or takes chunk j (word b) and takes the results of the
 *              others (word c).
 *
 * Each word has one writer and only grows. A published word makes everything visible that its
 * writer wrote before, so release and acquire are sufficient. */

enum {
    /* All but DPARI_BUFFERS are in bytes. */
    DPARI_DIRECT_FROM = 1024,        /* from this size on, two waits take less time than a copy */
    DPARI_BUFFERS = 4,               /* chunks of a rank that are in the slots at a time */
    DPARI_BLOCK = 64 << 10,          /* the most that method cma reads from one rank before it
                                        reduces */
    DPARI_CMA_PIECE = 32 << 10,      /* from this size on, one copy by the kernel is faster than two
                                        through a slot */
    DPARI_BROADCAST_BOX = 8 << 10,   /* larger broadcasts are faster in several pieces */
    DPARI_BROADCAST_LEAST = 8 << 10, /* the smallest size of such a piece */
    DPARI_BROADCAST_MOST = 128 << 10, /* the largest size of such a piece */
    DPARI_BROADCAST_CMA = 12 << 10,   /* from this size on, the kernel may copy broadcasts */
    DPARI_REDUCTION_CMA = 256 << 10   /* and may copy the inputs of reductions */
};
/* If a rank writes at least this many bytes, streaming stores, which bypass the cache, are faster.
 * Measured on two cores of a server (docs/records/performance.md). */
#define DPARI_STREAM_FROM (INT64_C(16) << 20)
#define DPARI_STREAM_COPY_FROM (INT64_C(64) << 20)

/* The phase of a collective, in the low 8 bits of dpar_work.phase. The bits above hold the kind of
 * word that the collective waits for, DPARI_WORD_x. */
enum { DPARI_ENTER, DPARI_ENTRIES, DPARI_CHUNKS, DPARI_CMA_RESULTS, DPARI_FINAL };

/* What a rank publishes in its entry if its input is not inline. */
typedef struct dpari_offer {
    uint64_t in, out;       /* refs of its input and output; 0 if the others cannot reach them */
    uint64_t in_at, out_at; /* their addresses in its process */
    int64_t largest;        /* bytes of the largest piece that it sends to one rank */
    int64_t flags;          /* a sum of the following */
} dpari_offer;
enum {
    DPARI_BOXED = 1,     /* its input is a copy in its slot */
    DPARI_IN_PLACE = 2,  /* its output overwrites its input (dpari_in_place) */
    DPARI_CAN_CMA = 4,   /* it can read the private memory of all ranks of the group */
    DPARI_OWN_TAKEN = 8, /* it has copied its own piece already */
    DPARI_KERNEL = 16    /* set by the rank that chooses the method if the kernel is to copy */
};

/* The layout of dpar_work.state for collectives. It includes copies of what this rank has
 * published, because reading a published cache line back after others have read it costs as much as
 * reading one of theirs. */
typedef struct dpari_coll {
    dpari_watch at;            /* progress of the wait for the other ranks, from the right neighbour
                                  on */
    int64_t target;            /* value that the word must reach */
    int64_t in_step, mid_step; /* number of chunks put into the slots, and reduced or taken */
    int64_t out_step;          /* number of chunks of which the results are taken */
    int64_t steps;             /* number of chunks */
    int64_t piece;             /* bytes of one piece of a chunk */
    int64_t buffers;           /* number of chunks that fit in the slots of a rank */
    int64_t inline_bytes;      /* bytes of each inline input; -1 if entries have offers */
    uint64_t mine;             /* word of this rank's entry */
    dpari_offer offer;
} dpari_coll;

static dpari_coll *dpari_coll_of(dpar_work *work)
{
    return (dpari_coll *)(void *)work->state;
}

static const dpari_coll *dpari_coll_of_const(const dpar_work *work)
{
    return (const dpari_coll *)(const void *)work->state;
}

static const dpari_offer *dpari_offer_of(const dpari_group *group, const dpar_work *work,
                                         int32_t rank)
{
    if (rank == group->comm.rank) {
        return &dpari_coll_of_const(work)->offer;
    }
    return (const dpari_offer *)(const void *)group->member[rank]
        ->entry[work->sequence & 1]
        .payload;
}

static uint64_t dpari_step_word(const dpar_work *work, int64_t step)
{
    return (uint64_t)(uint32_t)work->sequence << 32 | (uint64_t)step;
}

/* ---- pieces: what each rank sends to each other ---------------------------------------------- */

/* Returns the bytes of an element in memory. */
static int64_t dpari_unit(const dpar_call *call)
{
    return dpar_type_bytes(dpari_kern_stored(call->type));
}

static int64_t dpari_sum_before(const int64_t *count, int32_t rank)
{
    int64_t sum = 0;
    for (int32_t r = 0; r < rank; r++) {
        sum += count[r];
    }
    return sum;
}

/* Returns piece r of an array that has one piece for each rank. count and first are NULL if all
 * pieces have call->count elements; first is NULL too if pieces are contiguous. */
static dpari_piece dpari_piece_at(const dpar_call *call, const int64_t *count, const int64_t *first,
                                  int32_t r)
{
    const int64_t unit = dpari_unit(call);
    dpari_piece p = {call->count * unit * r, call->count * unit};
    if (call->variable_counts) {
        p.begin = unit * (first ? first[r] : dpari_sum_before(count, r));
        p.bytes = unit * count[r];
    }
    return p;
}

/* Returns the piece of this rank's `in` that rank `to` receives. */
static dpari_piece dpari_piece_to(const dpari_group *group, const dpar_call *call, int32_t to)
{
    const int root = call->root == group->comm.rank;
    const dpari_piece none = {0, 0}, whole = {0, call->count * dpari_unit(call)};
    switch (call->kind) {
    case DPAR_CALL_BROADCAST: return root ? whole : none;
    case DPAR_CALL_GATHER: return call->root == to ? whole : none;
    case DPAR_CALL_ALL_GATHER: return whole;
    case DPAR_CALL_SCATTER:
        return root ? dpari_piece_at(call, call->in_count, call->in_first, to) : none;
    case DPAR_CALL_ALL_TO_ALL: return dpari_piece_at(call, call->in_count, call->in_first, to);
    default: return none;
    }
}

/* Returns the piece of this rank's `out` that receives the data of rank `from`. */
static dpari_piece dpari_piece_from(const dpari_group *group, const dpar_call *call, int32_t from)
{
    const dpari_piece none = {0, 0}, whole = {0, call->count * dpari_unit(call)};
    const int takes = call->kind != DPAR_CALL_GATHER || call->root == group->comm.rank;
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
    case DPAR_CALL_SCATTER: return call->root == from ? whole : none;
    case DPAR_CALL_GATHER:
    case DPAR_CALL_ALL_GATHER:
    case DPAR_CALL_ALL_TO_ALL:
        return takes ? dpari_piece_at(call, call->out_count, call->out_first, from) : none;
    default: return none;
    }
}

/* True if a rank sends the same bytes to every other rank. */
static int dpari_gives_one(const dpar_call *call)
{
    return call->kind == DPAR_CALL_BROADCAST || call->kind == DPAR_CALL_GATHER ||
           call->kind == DPAR_CALL_ALL_GATHER;
}

/* Returns part q of a reduction, the elements that rank q reduces. */
static dpari_piece dpari_part(const dpari_group *group, const dpar_call *call, int32_t q)
{
    const int64_t unit = dpari_unit(call), n = group->comm.size;
    dpari_piece p;
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        const int64_t before =
            call->variable_counts ? dpari_sum_before(call->in_count, q) : call->count * q;
        p.begin = unit * before;
        p.bytes = unit * (call->variable_counts ? call->in_count[q] : call->count);
        return p;
    }
    /* equal shares of whole cache lines */
    int64_t all = call->count * unit, lines = (all + 63) / 64, share = (lines + n - 1) / n * 64;
    p.begin = q * share < all ? q * share : all;
    p.bytes = all - p.begin < share ? all - p.begin : share;
    return p;
}

/* Returns the bytes of a rank's whole input, which is the same on all ranks unless sizes vary. */
static int64_t dpari_gives(const dpari_group *group, const dpar_call *call)
{
    const int64_t one = call->count * dpari_unit(call);
    switch (call->kind) {
    case DPAR_CALL_BARRIER: return 0;
    case DPAR_CALL_SCATTER:
    case DPAR_CALL_ALL_TO_ALL:
    case DPAR_CALL_REDUCE_SCATTER: return one * group->comm.size;
    default: return one;
    }
}

static int dpari_is_reduction(const dpar_call *call)
{
    return call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE ||
           call->kind == DPAR_CALL_REDUCE_SCATTER;
}

/* True if this rank has an input. */
static int dpari_gives_any(const dpari_group *group, const dpar_call *call)
{
    return (call->kind != DPAR_CALL_BROADCAST && call->kind != DPAR_CALL_SCATTER) ||
           call->root == group->comm.rank;
}

/* ---- fingerprints ---------------------------------------------------------------------------- */

/* Adds v to the hash h, as dpari_hash does (agree.c). */
static uint64_t dpari_coll_mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

/* Hashes everything in a call that must be equal on all ranks. The first word packs five fields
 * without overlap: kind (8 bits), op (4), type (12), variable_counts (8) and root (32). */
static uint32_t dpari_fingerprint(const dpari_group *group, const dpar_call *call)
{
    uint64_t h = (uint64_t)(uint32_t)call->kind | (uint64_t)(uint32_t)call->op << 8 |
                 (uint64_t)(uint32_t)call->type << 12 |
                 (uint64_t)(uint32_t)call->variable_counts << 24 |
                 (uint64_t)(uint32_t)call->root << 32;
    h = dpari_coll_mix(h, 1 | (uint64_t)(uint32_t)dpari_tag_compared(call->tag) << 32);
    if (!call->variable_counts) {
        h = dpari_coll_mix(h, (uint64_t)call->count);
    } else if (call->kind == DPAR_CALL_ALL_GATHER || call->kind == DPAR_CALL_REDUCE_SCATTER) {
        const int64_t *count = call->in_count ? call->in_count : call->out_count;
        for (int32_t r = 0; r < group->comm.size; r++) {
            h = dpari_coll_mix(h, (uint64_t)count[r]);
        }
    }
    return (uint32_t)(h >> 32);
}

/* ---- waiting for words ----------------------------------------------------------------------- */

/* Returns 1 if the words of all ranks have reached the target. Otherwise sets group->blocker to the
 * first rank whose word has not, and returns 0. */
static int dpari_reached(dpari_group *group, dpar_work *work, int32_t which, uint64_t target)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int32_t n = group->comm.size;
    for (; coll->at.cursor < n - 1; coll->at.cursor++) {
        int32_t r = group->comm.rank + 1 + coll->at.cursor;
        r = r >= n ? r - n : r;
        if ((int64_t)(DPARI_LOAD(dpari_word_of(group, work, r, which)) - target) < 0) {
            group->blocker = group->world_rank[r];
            coll->target = (int64_t)target;
            work->phase = (work->phase & 0xff) | which << 8;
            return 0;
        }
    }
    coll->at.cursor = 0;
    return 1;
}

DPARI_INTERNAL int dpari_coll_missing(const dpari_group *group, const dpar_work *work, int32_t rank)
{
    const dpari_coll *coll = (const dpari_coll *)(const void *)work->state;
    if (rank == group->comm.rank || (work->phase & 0xff) == DPARI_ENTER) {
        return 0;
    }
    return (int64_t)(DPARI_LOAD(dpari_word_of(group, work, rank, work->phase >> 8)) -
                     (uint64_t)coll->target) < 0;
}

/* ---- entering -------------------------------------------------------------------------------- */

/* Copies this rank's pieces for all ranks, one after the other, into `box`, which is its slot. The
 * table of pieces has their sizes. */
static void dpari_fill_box(const dpari_group *group, const dpar_call *call, char *box,
                           int64_t bytes)
{
    int64_t at = 0;
    if (dpari_is_reduction(call) || !call->variable_counts || dpari_gives_one(call)) {
        memcpy(box, call->in, (size_t)bytes);
        return;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_piece_to(group, call, r);
        if (p.bytes > 0) {
            memcpy(box + at, (const char *)call->in + p.begin, (size_t)p.bytes);
        }
        at += p.bytes;
    }
}

/* Fills in the table of pieces of different sizes. Their positions are those in the slot if
 * `packed`, otherwise those in `in`. Returns the bytes of all pieces in the slot. *largest is the
 * largest piece. */
static int64_t dpari_table_fill(const dpari_group *group, const dpar_work *work, int packed,
                                int64_t *largest)
{
    dpari_piece *table = dpari_table(group, group->comm.rank, work->sequence);
    int64_t at = 0;
    *largest = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_piece_to(group, &work->call, r);
        *largest = p.bytes > *largest ? p.bytes : *largest;
        if (packed) {
            p.begin = dpari_gives_one(&work->call) ? 0 : at;
        }
        table[r] = p;
        at = dpari_gives_one(&work->call) ? *largest : at + p.bytes;
    }
    return at;
}

/* Returns a reference to `in` if all ranks can reach it from its first to its last byte, otherwise
 * 0. */
static uint64_t dpari_in_ref(const dpari_group *group, const dpar_call *call)
{
    int64_t bytes = dpari_gives(group, call);
    if (!call->in || (group->world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return 0;
    }
    if (call->variable_counts && call->in_count) {
        bytes = 0;
        for (int32_t r = 0; r < group->comm.size; r++) {
            int64_t begin =
                call->in_first ? call->in_first[r] : dpari_sum_before(call->in_count, r);
            int64_t end = (begin + call->in_count[r]) * dpari_unit(call);
            bytes = end > bytes ? end : bytes;
        }
    }
    return dpari_ref(group->world, call->in, bytes);
}

/* Returns a reference to `out` if other ranks may store results there, otherwise 0. */
static uint64_t dpari_out_ref(const dpari_group *group, const dpar_call *call)
{
    int takes = call->kind == DPAR_CALL_ALL_REDUCE ||
                (call->kind == DPAR_CALL_REDUCE && call->root == group->comm.rank);
    if (!takes || (group->world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return 0;
    }
    return dpari_ref(group->world, call->out, call->count * dpari_unit(call));
}

/* Returns DPARI_IN_PLACE if this rank's output overwrites its input. That is a problem only if
 * others read the input in the user's buffer. */
static int64_t dpari_in_place(const dpar_call *call)
{
    int over = call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE ||
               call->kind == DPAR_CALL_ALL_TO_ALL;
    return over && call->in == call->out ? DPARI_IN_PLACE : 0;
}

/* True if this rank may read the memory of all others in its group (process_vm_readv). */
static int dpari_reads_all(const dpari_group *group, int32_t rank)
{
    const dpari_world *world = group->world;
    const int32_t reader = group->world_rank[rank], count = DPARI_LOAD(&world->rank[reader].reads);
    int32_t r = 0;
    if (count == 0 || count == world->size) {
        return count != 0;
    }
    while (r < group->comm.size && dpari_world_reads(world, reader, group->world_rank[r])) {
        r++;
    }
    return r == group->comm.size;
}

/* True if each rank can read the memory of all others. A result of 1 is not checked again, because
 * a rank that can no longer read stops offering DPARI_CAN_CMA. */
static int dpari_all_cma(dpari_group *group)
{
    for (int32_t r = 0; r < group->comm.size && !group->all_cma; r++) {
        if (!dpari_reads_all(group, r)) {
            return 0;
        }
    }
    group->all_cma = 1;
    return 1;
}

/* Returns the bytes up to which an input should be copied into the slot. */
static int64_t dpari_box_most(dpari_group *group, const dpar_call *call, int64_t largest)
{
    int64_t n = group->comm.size < 4 ? 4 : group->comm.size;
    /* Each rank reads the whole slots of all others. With many ranks, chunks are faster, because
     * each rank then reads only its part of them. */
    if (dpari_is_reduction(call)) {
        return group->slot_bytes * 4 / n;
    }
    if (call->kind == DPAR_CALL_BROADCAST) {
        const int64_t most = DPARI_BROADCAST_BOX;
        return most < group->slot_bytes ? most : group->slot_bytes;
    }
    if (largest >= DPARI_CMA_PIECE && !dpari_in_place(call) && dpari_all_cma(group)) {
        return 0;
    }
    return group->slot_bytes;
}

/* Returns the bytes of this rank's input. If sizes vary, a table lists what each other rank may
 * take. */
static int64_t dpari_gives_here(const dpari_group *group, const dpar_work *work, dpari_offer *offer)
{
    const dpar_call *call = &work->call;
    offer->largest = dpari_gives_any(group, call) ? call->count * dpari_unit(call) : 0;
    if (!call->variable_counts) {
        return dpari_gives_any(group, call) ? dpari_gives(group, call) : 0;
    }
    if (dpari_is_reduction(call)) {
        return dpari_sum_before(call->in_count, group->comm.size) * dpari_unit(call);
    }
    return dpari_table_fill(group, work, 1, &offer->largest);
}

/* Returns the record (copy_choice.h) of how long each copy method takes for private memory of this
 * call's size, and sets *bytes to that size. Returns NULL if this rank does not choose the method,
 * or the call is small. In a broadcast the root chooses. In a reduction rank 0 does, because all
 * ranks copy the same amount. */
static dpari_pace *dpari_pace_of_call(dpari_group *group, const dpar_call *call, int64_t *bytes)
{
    const int reduces =
        call->kind == DPAR_CALL_ALL_REDUCE || call->kind == DPAR_CALL_REDUCE_SCATTER;
    if (group->comm.rank != (reduces ? 0 : call->root) ||
        (!reduces && call->kind != DPAR_CALL_BROADCAST)) {
        return NULL;
    }
    *bytes = call->variable_counts
                 ? dpari_sum_before(call->in_count, group->comm.size) * dpari_unit(call)
                 : dpari_gives(group, call);
    if (*bytes < (reduces ? DPARI_REDUCTION_CMA : DPARI_BROADCAST_CMA)) {
        return NULL;
    }
    return dpari_pace_of(reduces ? group->sums : group->pace, *bytes);
}

/* Fills in this rank's offer, and copies the input into the slot if that is better. */
static void dpari_offer_make(dpari_group *group, dpar_work *work, dpari_offer *offer)
{
    const dpar_call *call = &work->call;
    char *slot = dpari_staging(group, group->comm.rank) + (work->sequence & 1) * group->slot_bytes;
    const int64_t bytes = dpari_gives_here(group, work, offer);
    int64_t paced;
    dpari_pace *pace = dpari_pace_of_call(group, call, &paced);
    offer->in_at = (uint64_t)(uintptr_t)call->in;
    offer->out_at = (uint64_t)(uintptr_t)call->out;
    offer->out = dpari_out_ref(group, call);
    offer->in = 0;
    offer->flags =
        dpari_in_place(call) | (dpari_reads_all(group, group->comm.rank) ? DPARI_CAN_CMA : 0);
    if (pace && dpari_pace_choose(pace) == DPARI_BY_KERNEL) {
        offer->flags |= DPARI_KERNEL;
    }
    if (bytes >= DPARI_DIRECT_FROM &&
        !(call->kind == DPAR_CALL_ALL_TO_ALL && (offer->flags & DPARI_IN_PLACE))) {
        offer->in = dpari_in_ref(group, call);
    }
    if (!offer->in && bytes <= dpari_box_most(group, call, offer->largest)) {
        if (bytes > 0) {
            dpari_fill_box(group, call, slot, bytes);
        }
        offer->in = dpari_ref(group->world, slot, bytes);
        offer->flags |= DPARI_BOXED;
    } else if (call->variable_counts && !dpari_is_reduction(call)) {
        dpari_table_fill(group, work, 0, &offer->largest);
    }
}

/* True if an output of this many bytes should be written with streaming stores. */
static int32_t dpari_streams(const dpari_group *group, int64_t bytes)
{
    return bytes >= DPARI_STREAM_FROM &&
           !(group->world->head->plain & DPAR_WORLD_NO_STREAMING_STORES);
}

/* Copies the rank's own piece from `in` to `out`. */
static void dpari_take_own(dpari_group *group, const dpar_call *call, int32_t stream)
{
    const dpari_piece to = dpari_piece_from(group, call, group->comm.rank);
    const dpari_piece from = dpari_piece_to(group, call, group->comm.rank);
    if (to.bytes > 0 && call->kind != DPAR_CALL_BROADCAST) {
        dpari_kern_copy((char *)call->out + to.begin, (const char *)call->in + from.begin, to.bytes,
                        stream);
    }
}

/* The first step: makes the input readable and publishes the entry. */
static void dpari_enter(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    dpari_entry *entry = &group->member[group->comm.rank]->entry[work->sequence & 1];
    const int64_t bytes = dpari_gives(group, &work->call);
    memset(&coll->at, 0, sizeof coll->at);
    group->levels.doubt = 0;
    coll->inline_bytes = !work->call.variable_counts && bytes <= DPARI_INLINE ? bytes : -1;
    if (coll->inline_bytes < 0) {
        dpari_offer_make(group, work, &coll->offer);
        memcpy(entry->payload, &coll->offer, sizeof coll->offer);
    } else if (bytes > 0 && dpari_gives_any(group, &work->call)) {
        memcpy(entry->payload, work->call.in, (size_t)bytes);
    }
    work->phase = DPARI_ENTRIES;
    coll->mine = dpari_step_word(work, (int64_t)dpari_fingerprint(group, &work->call));
    dpari_publish(group->world, &entry->word, coll->mine);
    /* copies the own piece, which needs no other rank, while the others enter */
    if (work->call.kind == DPAR_CALL_ALL_GATHER && coll->inline_bytes < 0 && coll->offer.in &&
        !(coll->offer.flags & DPARI_BOXED)) {
        dpari_take_own(group, &work->call, dpari_streams(group, bytes * group->comm.size));
        coll->offer.flags |= DPARI_OWN_TAKEN;
    }
}

/* Appends the call that a rank has published. Returns 1 if that call closes the communicator. */
static int dpari_put_called(dpar_text *text, const dpari_group *group, const dpar_work *work,
                            int32_t rank)
{
    dpari_flight f;
    dpari_put_rank(text, group, rank);
    if (!dpari_flight_find(group->world, group->world_rank[rank], group->id, work->sequence, &f)) {
        dpar_text_put(text, " called a different operation");
        return 0;
    }
    if (f.root == DPARI_CLOSE) {
        dpar_text_put(text, " closed the communicator or returned");
        dpari_put_failed(text, group->world, group->world_rank[rank]); /* most likely the reason */
        return 1;
    }
    dpar_text_put(text, " called ");
    dpari_put_flight_of(text, group, &f);
    return 0;
}

/* True if both calls have variable counts and agree in everything that the message shows. Then only
 * their counts can differ. */
static int dpari_same_but_counts(const dpari_group *group, const dpar_work *work, int32_t other)
{
    dpari_flight f;
    return dpari_flight_find(group->world, group->world_rank[other], group->id, work->sequence,
                             &f) &&
           f.varies && work->call.variable_counts && f.kind == work->call.kind &&
           f.type == work->call.type && f.op == work->call.op && f.root == work->call.root;
}

/* Breaks the communicator because another rank has called a different operation. */
static DPARI_COLD dpar_status dpari_coll_mismatch(dpari_group *group, const dpar_work *work,
                                                  int32_t other)
{
    const int32_t me = group->comm.rank, first = me < other ? me : other;
    dpar_why why;
    dpar_text t;
    int left;
    /* if a rank has died, that is why the others call different operations */
    for (int32_t r = 0; r < group->comm.size; r++) {
        if (dpari_rank_state(group->world, group->world_rank[r]) == DPARI_RANK_DEAD) {
            return dpari_fail_peer(group, work, r);
        }
    }
    dpari_text_why(&t, &why);
    if (group->id != 0 && group->called == NULL) {
        dpari_text_print(&t, "group %ld: ", (int64_t)group->id);
    }
    left = dpari_put_called(&t, group, work, first);
    dpar_text_put(&t, ", ");
    left |= dpari_put_called(&t, group, work, first == me ? other : me);
    dpar_text_put(&t, dpari_same_but_counts(group, work, other) ? ": their counts differ" : "");
    return dpari_group_break(group, left ? DPAR_E_PEER : DPAR_E_MISMATCH, why.text);
}

/* Returns DPAR_OK if all ranks have entered the same call, DPAR_MORE if some have not entered, and
 * DPAR_E_MISMATCH if calls differ. */
static dpar_status dpari_entries_of_all(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int32_t n = group->comm.size;
    const uint64_t mine = coll->mine;
    for (; coll->at.cursor < n - 1; coll->at.cursor++) {
        int32_t r = group->comm.rank + 1 + coll->at.cursor;
        r = r >= n ? r - n : r;
        uint64_t word = DPARI_LOAD(&group->member[r]->entry[work->sequence & 1].word);
        int32_t ahead = (int32_t)((uint32_t)(word >> 32) - (uint32_t)(mine >> 32));
        /* If ahead > 0, the rank has compared this entry already and has reused its member for
         * another communicator. That is possible only after the barrier that closes a
         * communicator, and a barrier reads no data. */
        if (word == mine || ahead > 0) {
            continue;
        }
        if (ahead < 0) {
            group->blocker = group->world_rank[r];
            coll->target = (int64_t)(mine >> 32 << 32);
            work->phase = DPARI_ENTRIES | DPARI_WORD_ENTRY << 8;
            return DPAR_MORE;
        }
        return dpari_coll_mismatch(group, work, r);
    }
    coll->at.cursor = 0;
    return DPAR_OK;
}

/* Does the same as dpari_entries_of_all, by levels (arrival.h) if possible. */
static dpar_status dpari_entries(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int came = dpari_gate_look(group, work, &coll->at, DPARI_WORD_ENTRY, coll->mine);
    if (came < 0) {
        return dpari_entries_of_all(group, work);
    }
    coll->target = (int64_t)(coll->mine >> 32 << 32);
    work->phase = DPARI_ENTRIES | DPARI_WORD_ENTRY << 8;
    return came ? DPAR_OK : DPAR_MORE;
}

/* True if all ranks have published their last word for this operation. */
static int dpari_last_words(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int32_t which = work->phase >> 8;
    const uint64_t target = (uint64_t)coll->target;
    int came = dpari_gate_look(group, work, &coll->at, which, target);
    came = came < 0 ? dpari_reached(group, work, which, target) : came;
    if (came) {
        dpari_gate_tell(group, work, &coll->at, which, target, NULL, 0);
    }
    return came;
}

/* ---- all input is readable ------------------------------------------------------------------- */

/* True if a reduction writes over its own input. Those lines are in the caches, where streaming
 * stores would take three times as long. */
static int dpari_over_input(const dpari_group *group, int32_t outs)
{
    for (int32_t j = 0; j < outs; j++) {
        for (int32_t r = 0; r < group->comm.size; r++) {
            if (group->out[j] == group->in[r]) {
                return 1;
            }
        }
    }
    return 0;
}

/* Reduces `bytes` bytes at group->in[r] of all ranks r into the `outs` outputs group->out. */
static void dpari_reduce_range(dpari_group *group, const dpar_call *call, int32_t outs,
                               int64_t bytes, int64_t written)
{
    const int32_t stream = dpari_streams(group, written) && !dpari_over_input(group, outs);
    dpari_kern_reduce(group->out, outs, group->in, group->comm.size, bytes / dpari_unit(call),
                      call->type, call->op, stream);
}

/* Returns the inline input of another rank. */
static const char *dpari_inline_given(const dpari_group *group, const dpar_work *work, int32_t rank)
{
    return (const char *)dpari_gate_given(group, work, rank, dpari_coll_of_const(work)->mine);
}

static void dpari_inline_reduce(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    int64_t begin = 0, bytes = call->count * dpari_unit(call);
    const void *result;
    if (bytes == 0 || (call->kind == DPAR_CALL_REDUCE && call->root != group->comm.rank)) {
        return; /* if there are no elements, `in` and `out` may be NULL */
    }
    result = call->kind == DPAR_CALL_ALL_REDUCE
                 ? dpari_gate_result(group, &dpari_coll_of_const(work)->at)
                 : NULL;
    if (result) {
        memcpy(call->out, result, (size_t)bytes);
        return;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        begin = bytes * group->comm.rank;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        group->in[r] =
            (r == group->comm.rank ? (const char *)call->in : dpari_inline_given(group, work, r)) +
            begin;
    }
    group->out[0] = call->out;
    dpari_reduce_range(group, call, 1, bytes, 0);
}

static void dpari_inline_take(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    if (dpari_is_reduction(call)) {
        dpari_inline_reduce(group, work);
        return;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_piece_from(group, call, r);
        int64_t from = dpari_gives_one(call) ? 0 : p.bytes * group->comm.rank;
        if (r == group->comm.rank) {
            dpari_take_own(group, call, 0);
        } else if (p.bytes > 0) {
            memcpy((char *)call->out + p.begin, dpari_inline_given(group, work, r) + from,
                   (size_t)p.bytes);
        }
    }
}

/* ---- reductions on offers -------------------------------------------------------------------- */

/* Method push: this rank reduces its part of all inputs and stores it into all outputs. */
static dpar_status dpari_push(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    const dpari_piece part = dpari_part(group, call, group->comm.rank);
    int32_t outs = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        const dpari_offer *offer = dpari_offer_of(group, work, r);
        const char *in = (const char *)dpari_at(group->world, offer->in);
        if (!in) {
            return dpari_group_unmapped(group, work, offer->in);
        }
        group->in[r] = in + part.begin;
        if (call->kind == DPAR_CALL_ALL_REDUCE ||
            (call->kind == DPAR_CALL_REDUCE && r == call->root)) {
            char *out = (char *)dpari_at(group->world, offer->out);
            if (!out) {
                return dpari_group_unmapped(group, work, offer->out);
            }
            group->out[outs++] = out + part.begin;
        }
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        group->out[outs++] = call->out;
    }
    if (part.bytes > 0) {
        dpari_reduce_range(group, call, outs, part.bytes, part.bytes * outs);
    }
    return DPAR_OK;
}

/* Method box of a reduction: this rank reduces all elements of its own output. */
static dpar_status dpari_pull_reduce(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    if (call->kind == DPAR_CALL_REDUCE && call->root != group->comm.rank) {
        return DPAR_OK;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        const uint64_t ref = dpari_offer_of(group, work, r)->in;
        group->in[r] = r == group->comm.rank ? call->in : dpari_at(group->world, ref);
        if (!group->in[r]) {
            return dpari_group_unmapped(group, work, ref);
        }
    }
    group->out[0] = call->out;
    dpari_reduce_range(group, call, 1, call->count * dpari_unit(call),
                       call->count * dpari_unit(call));
    return DPAR_OK;
}

/* A summary of all offers, which is the same on all ranks. */
typedef struct dpari_offers {
    int readable;    /* 1 if all inputs can be read */
    int writable;    /* 1 if all outputs that are needed can be written by others */
    int boxed;       /* 1 if no input is in a user's memory */
    int in_place;    /* 1 if a rank overwrites input that the others read in its buffer */
    int cma;         /* 1 if all ranks can read the others' memory */
    int kernel;      /* 1 if the kernel is to copy (DPARI_KERNEL) */
    int64_t largest; /* bytes of the largest piece */
} dpari_offers;

static dpari_offers dpari_survey(const dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    dpari_offers all = {1, 1, 1, 0, 1, 0, 0};
    for (int32_t r = 0; r < group->comm.size; r++) {
        const dpari_offer *offer = dpari_offer_of(group, work, r);
        const int boxed = (offer->flags & DPARI_BOXED) != 0;
        all.readable &= offer->in != 0;
        all.writable &= offer->out != 0 || call->kind == DPAR_CALL_REDUCE_SCATTER ||
                        (call->kind == DPAR_CALL_REDUCE && r != call->root);
        all.boxed &= boxed;
        all.in_place |= !boxed && (offer->flags & DPARI_IN_PLACE);
        all.cma &= (offer->flags & DPARI_CAN_CMA) != 0;
        all.kernel |= (offer->flags & DPARI_KERNEL) != 0;
        all.largest = offer->largest > all.largest ? offer->largest : all.largest;
    }
    return all;
}

/* ---- method cma: a reduction that reads through the kernel ----------------------------------- */

/* Breaks the communicator because a rank's memory could not be read. number: errno of the read. */
static DPARI_COLD dpar_status dpari_cma_failed(dpari_group *group, const dpar_work *work,
                                               int32_t rank, int number)
{
    dpar_text t;
    dpar_why why;
    /* a process that dies loses its memory some time before its lock, so wait up to 0.2 s */
    for (int32_t i = 0; i < 2000; i++) {
        if (dpari_rank_state(group->world, group->world_rank[rank]) != DPARI_RANK_HERE) {
            return dpari_fail_peer(group, work, rank);
        }
        dpari_os_sleep(100e-6);
    }
    dpari_text_why(&t, &why);
    dpari_put_work(&t, group, work);
    dpar_text_put(&t, "the memory of ");
    dpari_put_rank(&t, group, rank);
    dpar_text_put(&t, " cannot be read any more (");
    dpari_os_error(&t, number);
    if (number == EPERM) {
        dpar_text_put(&t, ": perhaps one of the two processes has changed its user, its seccomp "
                          "filter or PR_SET_DUMPABLE since the start");
    }
    dpar_text_put(
        &t, "). To copy without such reads, set DPAR_WORLD_NO_CMA in dpar_world_desc.disable");
    return dpari_group_break(group, DPAR_E_SYSTEM, why.text);
}

/* Reduces this rank's part of all inputs into its own output, block by block. The blocks of the
 * other ranks are read into this rank's slots. */
static dpar_status dpari_cma_reduce(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    const dpari_piece part = dpari_part(group, call, group->comm.rank);
    const int32_t n = group->comm.size, me = group->comm.rank;
    const int64_t most = DPARI_BLOCK;
    int64_t block = 2 * group->slot_bytes / n / 64 * 64;
    char *slots = dpari_staging(group, me);
    block = block < most ? block : most;
    for (int64_t at = 0; at < part.bytes; at += block) {
        int64_t bytes = part.bytes - at < block ? part.bytes - at : block;
        for (int32_t r = 0; r < n; r++) {
            char *copy = slots + r * block;
            uint64_t from = dpari_offer_of(group, work, r)->in_at + (uint64_t)(part.begin + at);
            group->in[r] = r == me ? (const char *)call->in + part.begin + at : copy;
            if (r != me &&
                dpari_world_read(group->world, group->world_rank[r], copy, from, bytes) != 0) {
                return dpari_cma_failed(group, work, r, errno);
            }
        }
        group->out[0] =
            (char *)call->out + at + (call->kind == DPAR_CALL_REDUCE_SCATTER ? 0 : part.begin);
        dpari_reduce_range(group, call, 1, bytes, 0);
    }
    return DPAR_OK;
}

/* Reads the parts that the other ranks have reduced. */
static dpar_status dpari_cma_results(dpari_group *group, const dpar_work *work)
{
    for (int32_t i = 1; i < group->comm.size; i++) {
        const int32_t r = (group->comm.rank + i) % group->comm.size;
        const dpari_piece part = dpari_part(group, &work->call, r);
        uint64_t from = dpari_offer_of(group, work, r)->out_at + (uint64_t)part.begin;
        char *to = (char *)work->call.out + part.begin;
        if (dpari_world_read(group->world, group->world_rank[r], to, from, part.bytes) != 0) {
            return dpari_cma_failed(group, work, r, errno);
        }
    }
    return DPAR_OK;
}

/* ---- moves (operations that do not reduce) on offers ----------------------------------------- */

static dpar_status dpari_size_mismatch(dpari_group *group, const dpar_work *work, int32_t from,
                                       int64_t gives, int64_t takes)
{
    const int64_t unit = dpari_unit(&work->call);
    dpar_why why;
    (void)dpari_say(DPAR_E_MISMATCH, &why,
                    "%s #%ld: rank %d sends %ld elements to rank %d, which expects %ld",
                    dpar_call_name(work->call.kind), work->sequence, from, gives / unit,
                    group->comm.rank, takes / unit);
    return dpari_group_break(group, DPAR_E_MISMATCH, why.text);
}

/* Returns the piece for this rank in the input that rank `from` offers. */
static dpari_piece dpari_offered(const dpari_group *group, const dpar_work *work, int32_t from)
{
    const dpar_call *call = &work->call;
    dpari_piece p = {0, call->count * dpari_unit(call)};
    if (call->variable_counts) {
        return dpari_table(group, from, work->sequence)[group->comm.rank];
    }
    p.begin = dpari_gives_one(call) ? 0 : p.bytes * group->comm.rank;
    return p;
}

/* If sizes vary, checks that each rank sends as many bytes to this rank as this rank expects. */
static dpar_status dpari_sizes_check(dpari_group *group, const dpar_work *work)
{
    for (int32_t r = 0; r < group->comm.size && work->call.variable_counts; r++) {
        const int64_t gives = dpari_table(group, r, work->sequence)[group->comm.rank].bytes;
        const int64_t takes = dpari_piece_from(group, &work->call, r).bytes;
        if (gives != takes) {
            return dpari_size_mismatch(group, work, r, gives, takes);
        }
    }
    return DPAR_OK;
}

/* Copies this rank's own piece of an all-to-all and the one from its right neighbour alternately,
 * line by line, because one copy can proceed while the other waits for a line of another core.
 * Returns 0 if that is not possible here. */
static int dpari_pull_two(dpari_group *group, const dpar_work *work)
{
    const dpar_call *call = &work->call;
    const int32_t me = group->comm.rank, r = me + 1 < group->comm.size ? me + 1 : 0;
    const uint64_t ref = dpari_offer_of(group, work, r)->in;
    const dpari_piece own = dpari_piece_to(group, call, me), other = dpari_offered(group, work, r);
    const char *in;
    if (call->kind != DPAR_CALL_ALL_TO_ALL || call->variable_counts || call->in == call->out ||
        r == me || !ref) {
        return 0;
    }
    in = (const char *)dpari_at(group->world, ref);
    if (!in) {
        return 0; /* the caller tries again and writes the message */
    }
    dpari_kern_fetch_beside((char *)call->out + dpari_piece_from(group, call, me).begin,
                            (const char *)call->in + own.begin,
                            (char *)call->out + dpari_piece_from(group, call, r).begin,
                            in + other.begin, own.bytes);
    return 1;
}

/* Copies all pieces for this rank from the offered memory, or through the kernel where it cannot be
 * reached. */
static dpar_status dpari_pull(dpari_group *group, const dpar_work *work, int64_t largest)
{
    const dpar_call *call = &work->call;
    const int32_t n = group->comm.size;
    const int32_t stream =
        dpari_streams(group, call->kind == DPAR_CALL_BROADCAST ? largest / 2 : largest * n);
    /* if the others read this rank's input in its buffer, the own piece is copied first, before
     * their reads take its lines out of the cache */
    const int32_t first = (dpari_coll_of_const(work)->offer.flags & DPARI_BOXED) != 0;
    const int32_t done = !stream && !first && dpari_pull_two(group, work) ? 2 : 0;
    for (int32_t i = done; i < n; i++) {
        const int32_t r = (group->comm.rank + first + i) % n;
        const dpari_offer *offer = dpari_offer_of(group, work, r);
        const dpari_piece to = dpari_piece_from(group, call, r),
                          from = dpari_offered(group, work, r);
        const char *in;
        if (to.bytes == 0) {
            continue;
        }
        in = offer->in && r != group->comm.rank ? (const char *)dpari_at(group->world, offer->in)
                                                : NULL;
        if (r == group->comm.rank) {
            if (!(offer->flags & DPARI_OWN_TAKEN)) {
                dpari_take_own(group, call, stream);
            }
        } else if (offer->in && !in) {
            return dpari_group_unmapped(group, work, offer->in);
        } else if (offer->in && !stream) {
            dpari_kern_fetch((char *)call->out + to.begin, in + from.begin, to.bytes);
        } else if (offer->in) {
            dpari_kern_copy((char *)call->out + to.begin, in + from.begin, to.bytes, stream);
        } else if (dpari_world_read(group->world, group->world_rank[r],
                                    (char *)call->out + to.begin,
                                    offer->in_at + (uint64_t)from.begin, to.bytes) != 0) {
            return dpari_cma_failed(group, work, r, errno);
        }
    }
    return DPAR_OK;
}

/* ---- method chunks --------------------------------------------------------------------------- */

/* Returns the buffer in the slots of a rank that chunk `step` uses. */
static char *dpari_buffer(const dpari_group *group, const dpari_coll *coll, int32_t rank,
                          int64_t step)
{
    return dpari_staging(group, rank) +
           (step % coll->buffers) * (2 * group->slot_bytes / coll->buffers);
}

/* Returns the part of a piece that is in chunk `step`, with 0 bytes past the end of the piece. */
static dpari_piece dpari_chunk(dpari_piece p, int64_t size, int64_t step)
{
    int64_t skip = step * size;
    dpari_piece c = {p.begin + skip, dpari_least(p.bytes - skip, size)};
    c.bytes = dpari_most(c.bytes, 0);
    return c;
}

/* Chooses the bytes of a chunk and the number of buffers. A broadcast is sent in small chunks, so
 * that the others begin soon, and its root fills all buffers before it has to wait. */
static void dpari_chunks_cut(const dpari_group *group, const dpar_call *call, dpari_coll *coll,
                             int64_t largest)
{
    const int64_t room = 2 * group->slot_bytes, least = DPARI_BROADCAST_LEAST;
    const int64_t limit = DPARI_BROADCAST_MOST;
    coll->buffers = DPARI_BUFFERS;
    if (call->kind == DPAR_CALL_BROADCAST) {
        /* about 8 chunks of whole cache lines */
        int64_t piece = largest / 8 / 64 * 64, most = room / DPARI_BUFFERS;
        most = most < limit ? most : limit;
        piece = piece < least ? least : piece;
        coll->piece = piece < most ? piece : most;
        coll->buffers = room / coll->piece;
    } else {
        coll->piece = dpari_gives_one(call) ? room / DPARI_BUFFERS
                                            : room / DPARI_BUFFERS / group->comm.size / 64 * 64;
    }
    coll->steps = (largest + coll->piece - 1) / coll->piece;
}

/* Begins the chunks. A rank that sends nothing sets its word `a` to the last step at once, and a
 * rank that receives nothing does the same with its word `b`. */
static void dpari_chunks_begin(dpari_group *group, dpar_work *work, int64_t largest)
{
    dpari_coll *coll = dpari_coll_of(work);
    dpari_member *mine = group->member[group->comm.rank];
    const int32_t kind = work->call.kind;
    const int root = work->call.root == group->comm.rank;
    const int from_root = kind == DPAR_CALL_BROADCAST || kind == DPAR_CALL_SCATTER;
    dpari_chunks_cut(group, &work->call, coll, largest);
    coll->in_step = coll->mid_step = coll->out_step = 0;
    work->phase = DPARI_CHUNKS;
    if ((from_root && !root) || (kind == DPAR_CALL_GATHER && root)) {
        coll->in_step = coll->steps;
        dpari_publish(group->world, &mine->a.word, dpari_step_word(work, coll->steps));
    } else if ((from_root && root) || (kind == DPAR_CALL_GATHER && !root)) {
        coll->mid_step = coll->steps;
        dpari_publish(group->world, &mine->b.word, dpari_step_word(work, coll->steps));
    }
}

/* Writes the part of this chunk that the others will take or reduce. */
static void dpari_chunk_in(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    char *buffer = dpari_buffer(group, coll, group->comm.rank, coll->in_step);
    for (int32_t r = 0; r < group->comm.size; r++) {
        dpari_piece p = dpari_is_reduction(&work->call) ? dpari_part(group, &work->call, r)
                                                        : dpari_piece_to(group, &work->call, r);
        if (r == group->comm.rank || p.bytes == 0) {
            continue;
        }
        p = dpari_chunk(p, coll->piece, coll->in_step);
        if (p.bytes > 0) {
            memcpy(buffer + (dpari_gives_one(&work->call) ? 0 : r * coll->piece),
                   (const char *)work->call.in + p.begin, (size_t)p.bytes);
        }
        if (dpari_gives_one(&work->call)) {
            return;
        }
    }
}

/* Takes this rank's pieces of the chunk. */
static void dpari_chunk_take(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    const dpar_call *call = &work->call;
    for (int32_t i = 1; i < group->comm.size; i++) {
        const int32_t r = (group->comm.rank + i) % group->comm.size;
        const dpari_piece p =
            dpari_chunk(dpari_piece_from(group, call, r), coll->piece, coll->mid_step);
        const char *from = dpari_buffer(group, coll, r, coll->mid_step) +
                           (dpari_gives_one(call) ? 0 : group->comm.rank * coll->piece);
        if (p.bytes > 0) {
            dpari_kern_copy((char *)call->out + p.begin, from, p.bytes,
                            coll->steps * coll->piece >= DPARI_STREAM_COPY_FROM &&
                                dpari_streams(group, DPARI_STREAM_FROM));
        }
    }
}

/* Reduces this rank's part of the chunk into its own output and, for the others to take, into its
 * buffer. */
static void dpari_chunk_reduce(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    const dpar_call *call = &work->call;
    const int32_t me = group->comm.rank;
    const dpari_piece part = dpari_part(group, call, me);
    const dpari_piece p = dpari_chunk(part, coll->piece, coll->mid_step);
    int32_t outs = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        group->in[r] = r == me ? (const char *)call->in + p.begin
                               : dpari_buffer(group, coll, r, coll->mid_step) + me * coll->piece;
    }
    if (call->kind != DPAR_CALL_REDUCE_SCATTER) {
        group->out[outs++] = dpari_buffer(group, coll, me, coll->mid_step) + me * coll->piece;
    }
    if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
        group->out[outs++] = (char *)call->out + (p.begin - part.begin);
    } else if (call->kind == DPAR_CALL_ALL_REDUCE || call->root == me) {
        group->out[outs++] = (char *)call->out + p.begin;
    }
    if (p.bytes > 0) {
        dpari_reduce_range(group, call, outs, p.bytes, 0);
    }
}

/* Takes the parts of the chunk that the other ranks have reduced. */
static void dpari_chunk_results(dpari_group *group, const dpar_work *work, const dpari_coll *coll)
{
    const dpar_call *call = &work->call;
    if (call->kind == DPAR_CALL_REDUCE && call->root != group->comm.rank) {
        return;
    }
    for (int32_t i = 1; i < group->comm.size; i++) {
        const int32_t r = (group->comm.rank + i) % group->comm.size;
        const dpari_piece p = dpari_chunk(dpari_part(group, call, r), coll->piece, coll->out_step);
        if (p.bytes > 0) {
            dpari_kern_fetch((char *)call->out + p.begin,
                             dpari_buffer(group, coll, r, coll->out_step) + r * coll->piece,
                             p.bytes);
        }
    }
}

/* Advances the chunks. Chunk j is put in while j - 1 is reduced or taken and the results of j - 2
 * are taken. */
static dpar_status dpari_chunks(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    dpari_member *mine = group->member[group->comm.rank];
    const int32_t kind = work->call.kind;
    const int results = kind == DPAR_CALL_ALL_REDUCE || kind == DPAR_CALL_REDUCE;
    /* the word that a rank publishes last for a chunk */
    const int32_t last = results ? DPARI_WORD_C : DPARI_WORD_B;
    while (coll->in_step < coll->steps || coll->mid_step < coll->steps ||
           (last == DPARI_WORD_C && coll->out_step < coll->steps)) {
        if (coll->in_step < coll->steps && coll->in_step <= coll->mid_step + 1 &&
            (last == DPARI_WORD_B || coll->in_step <= coll->out_step + 2)) {
            if (coll->in_step >= coll->buffers &&
                !dpari_reached(group, work, last,
                               dpari_step_word(work, coll->in_step - coll->buffers + 1))) {
                return DPAR_MORE;
            }
            dpari_chunk_in(group, work, coll);
            dpari_publish(group->world, &mine->a.word, dpari_step_word(work, ++coll->in_step));
        } else if (coll->mid_step < coll->in_step &&
                   (last == DPARI_WORD_B || coll->mid_step <= coll->out_step + 1)) {
            if (!dpari_reached(group, work, DPARI_WORD_A,
                               dpari_step_word(work, coll->mid_step + 1))) {
                return DPAR_MORE;
            }
            if (dpari_is_reduction(&work->call)) {
                dpari_chunk_reduce(group, work, coll);
            } else {
                dpari_chunk_take(group, work, coll);
            }
            dpari_publish(group->world, &mine->b.word, dpari_step_word(work, ++coll->mid_step));
        } else {
            if (!dpari_reached(group, work, DPARI_WORD_B,
                               dpari_step_word(work, coll->out_step + 1))) {
                return DPAR_MORE;
            }
            dpari_chunk_results(group, work, coll);
            dpari_publish(group->world, &mine->c.word, dpari_step_word(work, ++coll->out_step));
        }
    }
    if (!dpari_is_reduction(&work->call)) {
        dpari_take_own(group, &work->call, 0);
    }
    coll->target = (int64_t)dpari_step_word(work, coll->steps);
    work->phase = DPARI_FINAL | last << 8;
    return DPAR_MORE;
}

/* ---- choosing the method --------------------------------------------------------------------- */

/* Publishes that this rank is done with the memory of the others. The collective ends once all are.
 */
static void dpari_done_with_others(dpari_group *group, dpar_work *work, int32_t phase, int64_t step)
{
    dpari_coll *coll = dpari_coll_of(work);
    work->phase = phase | DPARI_WORD_A << 8;
    coll->target = (int64_t)dpari_step_word(work, step);
    dpari_publish(group->world, &group->member[group->comm.rank]->a.word, (uint64_t)coll->target);
}

/* Begins to time the method of a collective, on the rank that chose it. dpari_time_end records the
 * time once all ranks are done. */
static void dpari_time_begin(dpari_group *group, dpar_work *work)
{
    int64_t bytes;
    if (dpari_pace_of_call(group, &work->call, &bytes)) {
        group->timed = work->sequence + 1;
        group->timed_way =
            dpari_coll_of(work)->offer.flags & DPARI_KERNEL ? DPARI_BY_KERNEL : DPARI_BY_RING;
        group->timed_from = dpari_os_now();
    }
}

/* Records how long the collective took with its method. */
static void dpari_time_end(dpari_group *group, const dpar_work *work)
{
    int64_t bytes;
    dpari_pace *pace = dpari_pace_of_call(group, &work->call, &bytes);
    group->timed = 0;
    if (pace) {
        dpari_pace_tell(pace, group->timed_way, bytes, dpari_os_now() - group->timed_from);
    }
}

/* Chooses the method of a reduction and takes its first step. Returns DPAR_OK if the reduction is
 * done then, or DPAR_MORE if it continues at work->phase. */
static dpar_status dpari_choose_reduction(dpari_group *group, dpar_work *work)
{
    const dpari_offers all = dpari_survey(group, work);
    dpar_status status = DPAR_OK;
    int64_t largest = 0;
    if (all.readable && all.writable &&
        (!all.boxed || dpari_gives(group, &work->call) >= DPARI_DIRECT_FROM ||
         work->call.kind == DPAR_CALL_REDUCE_SCATTER)) {
        status = dpari_push(group, work);
        if (status != DPAR_OK || (all.boxed && work->call.kind == DPAR_CALL_REDUCE_SCATTER)) {
            return status;
        }
        dpari_done_with_others(group, work, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    if (all.readable && !all.in_place) {
        status = dpari_pull_reduce(group, work);
        if (status != DPAR_OK || all.boxed) {
            return status;
        }
        dpari_done_with_others(group, work, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    for (int32_t q = 0; q < group->comm.size; q++) {
        int64_t bytes = dpari_part(group, &work->call, q).bytes;
        largest = bytes > largest ? bytes : largest;
    }
    if (all.cma) {
        dpari_time_begin(group, work);
    }
    if (all.cma && all.kernel) {
        status = dpari_cma_reduce(group, work);
        dpari_done_with_others(
            group, work, work->call.kind == DPAR_CALL_ALL_REDUCE ? DPARI_CMA_RESULTS : DPARI_FINAL,
            1);
        return status != DPAR_OK ? status : DPAR_MORE;
    }
    dpari_chunks_begin(group, work, largest);
    return DPAR_MORE;
}

/* Does the same for an operation that does not reduce. */
static dpar_status dpari_choose_move(dpari_group *group, dpar_work *work)
{
    const dpari_offers all = dpari_survey(group, work);
    dpar_status status = dpari_sizes_check(group, work);
    if (status != DPAR_OK) {
        return status;
    }
    if (all.cma && !all.readable) {
        dpari_time_begin(group, work);
    }
    if (all.readable ||
        (all.cma && !all.in_place && (work->call.kind != DPAR_CALL_BROADCAST || all.kernel))) {
        status = dpari_pull(group, work, all.largest);
        if (status != DPAR_OK || (all.boxed && !work->call.variable_counts)) {
            return status;
        }
        dpari_done_with_others(group, work, DPARI_FINAL, 1);
        return DPAR_MORE;
    }
    dpari_chunks_begin(group, work, all.largest);
    return DPAR_MORE;
}

/* Called when all ranks have entered. A leader publishes that to the other ranks (arrival.h), and
 * the collective begins. */
static dpar_status dpari_coll_choose(dpari_group *group, dpar_work *work)
{
    dpari_coll *coll = dpari_coll_of(work);
    const int result = coll->inline_bytes > 0 && work->call.kind == DPAR_CALL_ALL_REDUCE;
    if (!result) {
        dpari_gate_tell(group, work, &coll->at, DPARI_WORD_ENTRY, coll->mine, NULL, 0);
    }
    if (coll->inline_bytes >= 0) {
        dpari_inline_take(group, work);
        if (result) {
            dpari_gate_tell(group, work, &coll->at, DPARI_WORD_ENTRY, coll->mine, work->call.out,
                            coll->inline_bytes);
        }
        return DPAR_OK;
    }
    memset(&coll->at, 0, sizeof coll->at);
    return dpari_is_reduction(&work->call) ? dpari_choose_reduction(group, work)
                                           : dpari_choose_move(group, work);
}

DPARI_INTERNAL dpar_status dpari_coll_advance(dpari_group *group, dpar_work *work)
{
    dpar_status status = DPAR_MORE;
    if ((work->phase & 0xff) == DPARI_ENTER) {
        dpari_enter(group, work);
    }
    if ((work->phase & 0xff) == DPARI_ENTRIES) {
        status = dpari_entries(group, work);
        if (status == DPAR_OK) {
            status = dpari_coll_choose(group, work);
        }
    }
    if (status == DPAR_MORE && (work->phase & 0xff) == DPARI_CHUNKS) {
        status = dpari_chunks(group, work);
    }
    if (status == DPAR_MORE && (work->phase & 0xff) == DPARI_CMA_RESULTS &&
        dpari_reached(group, work, DPARI_WORD_A, dpari_step_word(work, 1))) {
        status = dpari_cma_results(group, work);
        if (status == DPAR_OK) {
            dpari_done_with_others(group, work, DPARI_FINAL, 2);
            status = DPAR_MORE;
        }
    }
    if (status == DPAR_MORE && (work->phase & 0xff) == DPARI_FINAL) {
        status = dpari_last_words(group, work) ? DPAR_OK : DPAR_MORE;
    }
    if (status == DPAR_OK && group->timed == work->sequence + 1) {
        dpari_time_end(group, work);
    }
    return status;
}

/* ==== comm/p2p.c ==== */

/* Implements messages of the shared-memory engine as steps that never wait. Called by shm.c.
 *
 * There is one channel for each ordered pair of ranks, a ring of cells with a block each. It is in
 * the sender's heap and is made when the first record is written. A cell's word is 1 + the index of
 * its record, and is written last. The receiver always takes the records of a channel in order, and
 * counts them in `consumed`. A message whose receive is not posted yet is moved into a note in
 * private memory, so that the ring becomes free regardless of the order in which receives are
 * posted. Records are:
 *
 *     EAGER  the envelope and the first bytes, in the cell or in its block. DATA records with the
 *            rest follow. The sender is done when the last one is in the ring.
 *     RTS    the envelope of a large message. Once it is matched, the receiver copies from the
 *            sender's registered memory, or from its process, and answers FIN. Or the receiver
 *            answers CTS. With a ref to its own registered memory, the sender copies there and
 *            sends PUT; without one the sender sends DATA. If both memories are registered and the
 *            sender waits, each copies a half: CTS, both copy, PUT and FIN.
 *     DATA   a piece of a message, in the block or in the cell. `bytes` is its offset in the
 *            message, `tag` its length.
 *
 * CTS and FIN are sent in the channel of the opposite direction. An id is the sender's number of
 * the message; answers and pieces carry it. A record with an unknown id is dropped, because its
 * communicator has broken on this rank.
 *
 * A blocking wait checks one channel, and now and then all of them, so that every waiting rank also
 * receives what other ranks send to it. */

enum {
    DPARI_P2P_CELLS = 32, /* cells of a channel */
    DPARI_P2P_TELL = 8,   /* number of records after which the receiver updates `consumed` */
    DPARI_P2P_HEAD = 32,  /* bytes of a cell before the payload */
    DPARI_P2P_INLINE = DPARI_LINE - DPARI_P2P_HEAD,
    DPARI_P2P_BLOCK = 8192,
    DPARI_P2P_DIRECT = 4096,       /* bytes from which registered memory is copied only once */
    DPARI_P2P_EAGER = 65536,       /* bytes above which a private message waits for its receive */
    DPARI_P2P_EAGER_CMA = 12288,   /* the same if the kernel can copy it */
    DPARI_P2P_EAGER_CROWD = 32768, /* the same if ranks also share cores, because waits are then
                                      long */
    DPARI_P2P_SHARE = 32768,       /* bytes from which both ranks copy a half if they can */
    DPARI_P2P_STREAM = 8 << 20,    /* bytes from which copies bypass the cache */
    DPARI_P2P_OFTEN = 16,          /* number of checks of its own channel after which a wait checks
                                      all channels */
    DPARI_P2P_PATIENT = 256,       /* number of checks without success after which it checks all
                                      channels each time */
    DPARI_P2P_CLASSES = 12,        /* size classes of notes, 128 B to 256 KiB */
    DPARI_P2P_CHUNK = 1 << 20      /* bytes allocated at a time for notes */
};

enum {
    DPARI_P2P_IS_EAGER = 1,
    DPARI_P2P_IS_RTS,
    DPARI_P2P_IS_CTS,
    DPARI_P2P_IS_DATA,
    DPARI_P2P_IS_PUT,
    DPARI_P2P_IS_FIN
};

/* The values of dpar_work.phase for messages. */
enum {
    DPARI_P2P_POSTED = 1, /* a receive without a message */
    DPARI_P2P_ARRIVING,   /* a receive of which a part has not arrived yet */
    DPARI_P2P_QUEUED,     /* a send whose envelope is not written yet */
    DPARI_P2P_SENDING,    /* a send that is writing its data */
    DPARI_P2P_WAITING,    /* a send that waits for an answer */
    DPARI_P2P_DONE
};

/* The indices of dpar_work.state for messages: id, size, bytes sent or received so far, and the
 * time in ns at which a timed transfer began, or 0. */
enum { DPARI_P2P_ID, DPARI_P2P_BYTES, DPARI_P2P_AT, DPARI_P2P_BEGAN };

/* The envelope of a record. */
typedef struct dpari_p2p_head {
    uint32_t comm; /* id of the group */
    int32_t tag;
    uint32_t id;         /* the sender's number of the message */
    uint16_t kind, type; /* DPARI_P2P_IS_x, and the type of the elements */
    int64_t bytes;       /* size of the message; of DATA, the offset in it */
} dpari_p2p_head;

typedef struct dpari_p2p_cell {
    uint64_t word;
    dpari_p2p_head head;
    char payload[DPARI_P2P_INLINE];
} dpari_p2p_cell;

/* The payload of RTS and CTS: memory of the rank that wrote it. */
typedef struct dpari_p2p_where {
    uint64_t ref;     /* 0 if the memory is not registered */
    uint64_t address; /* in its process */
    int64_t begin;    /* in a CTS, the offset from which on the sender must copy */
    int64_t present;  /* in an RTS, 1 if the sender waits in a call and so will answer at once */
} dpari_p2p_where;

typedef struct dpari_p2p_channel {
    uint64_t consumed; /* written by the receiver */
    char padding[DPARI_LINE - 8];
    dpari_p2p_cell cell[DPARI_P2P_CELLS];
    char block[DPARI_P2P_CELLS][DPARI_P2P_BLOCK];
} dpari_p2p_channel;

/* A record that was taken out of the ring before its receive was posted, or an answer that the ring
 * was too full for. The payload of a message follows it. */
typedef struct dpari_p2p_note {
    struct dpari_p2p_note *next;
    int64_t got;        /* bytes of the payload that have arrived */
    int32_t size_class; /* the note has 128 << size_class bytes */
    dpari_p2p_head head;
    dpari_p2p_where where;
} dpari_p2p_note;

typedef struct dpari_p2p_works {
    dpar_work *first;
    dpar_work **end; /* the NULL pointer at the end of the list, if the list is not empty */
} dpari_p2p_works;

typedef struct dpari_p2p_notes {
    dpari_p2p_note *first, *last;
} dpari_p2p_notes;

/* This rank's state for one peer, which may be itself. */
typedef struct dpari_p2p_link {
    dpari_p2p_channel *in;     /* the channel from the peer; NULL if it is not open yet */
    uint64_t in_next, in_told; /* records taken, and the last value written to `consumed` */
    dpari_p2p_works posted;    /* receives without a message */
    dpari_p2p_works arriving;  /* receives of which a part has not arrived yet */
    dpari_p2p_notes early;     /* messages without a receive */
    dpari_p2p_channel *out;    /* the channel to the peer; NULL if it is not open yet */
    uint64_t out_next;         /* records written */
    uint64_t out_free;         /* records known to be consumed */
    dpari_p2p_works queue;     /* sends that wait for a free cell; the first may be partly sent */
    dpari_p2p_works waiting;   /* sends whose RTS is sent; to itself, sends without a receive */
    dpari_p2p_works streams;   /* sends whose data a CTS has requested */
    dpari_p2p_notes answers;   /* CTS, FIN and PUT that wait for a free cell */
    uint32_t ids;              /* ids used so far */
    dpari_pace pace[DPARI_PACES]; /* of large private messages from the peer while it waits */
    int32_t rang;                 /* 1 if the peer was woken because its ring is full */
} dpari_p2p_link;

/* A piece of private memory for notes, which follow it. */
typedef struct dpari_p2p_chunk {
    struct dpari_p2p_chunk *next;
    int64_t bytes;
} dpari_p2p_chunk;

struct dpari_p2p {
    dpari_world *world;
    int64_t bytes;       /* size of this struct with its links */
    int32_t open;        /* works that are not done */
    int32_t idle;        /* number of checks without success since the last successful one */
    int32_t direct, cma; /* 1 if registered memory, and other processes, may be read directly */
    dpari_p2p_note *idle_notes[DPARI_P2P_CLASSES]; /* unused notes by size class */
    char *fresh, *fresh_end;                       /* the unused part of the last chunk */
    dpari_p2p_chunk *chunks;
    dpari_p2p_link link[1]; /* [world->size] */
};

DPARI_INTERNAL dpari_p2p *dpari_p2p_open(dpari_world *world)
{
    int64_t bytes =
        (int64_t)sizeof(dpari_p2p) + (world->size - 1) * (int64_t)sizeof(dpari_p2p_link);
    dpari_p2p *p2p = (dpari_p2p *)dpari_os_pages(bytes);
    if (!p2p) {
        return NULL;
    }
    p2p->world = world;
    p2p->bytes = bytes;
    p2p->direct = !(world->head->plain & DPAR_WORLD_NO_DIRECT);
    p2p->cma = !(world->head->plain & DPAR_WORLD_NO_CMA) && !world->threads;
    return p2p;
}

DPARI_INTERNAL void dpari_p2p_close(dpari_p2p *p2p)
{
    if (!p2p) {
        return;
    }
    while (p2p->chunks) {
        dpari_p2p_chunk *c = p2p->chunks;
        p2p->chunks = c->next;
        dpari_os_unmap(c, c->bytes);
    }
    dpari_os_unmap(p2p, p2p->bytes);
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void dpari_p2p_append(dpari_p2p_works *list, dpar_work *work)
{
    work->next = NULL;
    *(list->first ? list->end : &list->first) = work;
    list->end = &work->next;
}

/* Takes the operation at *link off the list and returns it. */
static dpar_work *dpari_p2p_unlink(dpari_p2p_works *list, dpar_work **link)
{
    dpar_work *work = *link;
    *link = work->next;
    if (list->end == &work->next) {
        list->end = link;
    }
    work->next = NULL;
    return work;
}

/* Takes the first work of this communicator and tag off the list. Returns NULL if there is none. */
static dpar_work *dpari_p2p_match(dpari_p2p_works *list, uint32_t comm, int32_t tag)
{
    for (dpar_work **link = &list->first; *link; link = &(*link)->next) {
        if ((*link)->call.tag == tag && dpari_group_of((*link)->comm)->id == comm) {
            return dpari_p2p_unlink(list, link);
        }
    }
    return NULL;
}

static dpar_work *dpari_p2p_find(const dpari_p2p_works *list, uint32_t id)
{
    dpar_work *work = list->first;
    while (work && work->state[DPARI_P2P_ID] != (int64_t)id) {
        work = work->next;
    }
    return work;
}

/* Takes an operation off the list. */
static void dpari_p2p_take_off(dpari_p2p_works *list, dpar_work *work)
{
    dpar_work **link = &list->first;
    while (*link != work) {
        link = &(*link)->next;
    }
    (void)dpari_p2p_unlink(list, link);
}

/* Moves a message that is no longer in a list to the finished works of its group. */
DPARI_STATIC_NOINLINE void dpari_p2p_finish(dpari_p2p *p2p, dpar_work *work, dpar_status status)
{
    dpari_group *group = dpari_group_of(work->home);
    work->status = status;
    work->phase = DPARI_P2P_DONE;
    work->behind = group->finished;
    group->finished = work;
    p2p->open--;
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Takes a note with space for `bytes` after it. Sizes are powers of two, and freed notes are used
 * again. Returns NULL if there is no memory. */
static dpari_p2p_note *dpari_p2p_note_make(dpari_p2p *p2p, int64_t bytes)
{
    const int64_t need = bytes + (int64_t)sizeof(dpari_p2p_note);
    int32_t size_class = 0;
    dpari_p2p_note *note;
    int64_t take;
    while (INT64_C(128) << size_class < need) {
        size_class++;
    }
    take = INT64_C(128) << size_class;
    note = p2p->idle_notes[size_class];
    if (note) {
        p2p->idle_notes[size_class] = note->next;
    } else {
        if (p2p->fresh_end - p2p->fresh < take) {
            dpari_p2p_chunk *c = (dpari_p2p_chunk *)dpari_os_pages(DPARI_P2P_CHUNK);
            if (!c) {
                return NULL;
            }
            c->bytes = DPARI_P2P_CHUNK;
            c->next = p2p->chunks;
            p2p->chunks = c;
            p2p->fresh = (char *)c + DPARI_LINE;
            p2p->fresh_end = (char *)c + DPARI_P2P_CHUNK;
        }
        note = (dpari_p2p_note *)(void *)p2p->fresh;
        p2p->fresh += take;
    }
    note->size_class = size_class;
    note->next = NULL;
    note->got = 0;
    return note;
}

static void dpari_p2p_note_free(dpari_p2p *p2p, dpari_p2p_note *note)
{
    note->next = p2p->idle_notes[note->size_class];
    p2p->idle_notes[note->size_class] = note;
}

static void dpari_p2p_note_append(dpari_p2p_notes *list, dpari_p2p_note *note)
{
    if (list->first) {
        list->last->next = note;
    } else {
        list->first = note;
    }
    list->last = note;
}

static void dpari_p2p_note_unlink(dpari_p2p_notes *list, dpari_p2p_note *before,
                                  dpari_p2p_note *note)
{
    if (before) {
        before->next = note->next;
    } else {
        list->first = note->next;
    }
    if (list->last == note) {
        list->last = before;
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static void dpari_p2p_copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0) {
        memcpy(to, from, (size_t)bytes);
    }
}

static void dpari_p2p_copy_large(const dpari_world *world, void *to, const void *from,
                                 int64_t bytes)
{
    const int32_t plain = world->head->plain;
    dpari_kern_copy(to, from, bytes,
                    bytes >= DPARI_P2P_STREAM && !(plain & DPAR_WORLD_NO_STREAMING_STORES));
}

/* ---- writing into a channel ------------------------------------------------------------------ */

/* Makes the channel to the peer if there is none yet. */
static dpar_status dpari_p2p_channel_open(dpari_world *world, dpari_p2p_link *link, int32_t peer)
{
    uint64_t *ref = &world->channel[(int64_t)peer * world->size + world->me];
    void *memory = NULL;
    dpar_status s;
    if (link->out) {
        return DPAR_OK;
    }
    s = dpari_heap_alloc(world, (int64_t)sizeof(dpari_p2p_channel), DPARI_HEAP_LIBRARY,
                         &memory); /* zeroed */
    if (s == DPAR_OK) {
        link->out = (dpari_p2p_channel *)memory;
        DPARI_STORE(ref, dpari_ref(world, memory, (int64_t)sizeof(dpari_p2p_channel)));
    }
    return s;
}

/* Returns the next cell of the channel to the peer, or NULL if the ring is full. */
static dpari_p2p_cell *dpari_p2p_room(dpari_world *world, dpari_p2p_link *link)
{
    if (link->out_next - link->out_free == DPARI_P2P_CELLS) {
        link->out_free = DPARI_LOAD(&link->out->consumed);
        if (link->out_next - link->out_free == DPARI_P2P_CELLS) {
            /* the receiver may sleep in a wait from which only another rank wakes it */
            if (!link->rang && DPARI_LOAD(&world->head->sleepers)) {
                link->rang = 1;
                dpari_ring_all(&world->segment);
            }
            return NULL;
        }
        link->rang = 0;
    }
    return &link->out->cell[link->out_next % DPARI_P2P_CELLS];
}

/* Publishes the record in the next cell. */
static void dpari_p2p_push(dpari_world *world, dpari_p2p_link *link, dpari_p2p_cell *cell)
{
    link->out_next++;
    dpari_publish(world, &cell->word, link->out_next);
}

static void dpari_p2p_send_answer(dpari_world *world, dpari_p2p_link *link, dpari_p2p_cell *cell,
                                  const dpari_p2p_head *head, const dpari_p2p_where *where)
{
    cell->head = *head;
    memcpy(cell->payload, where, sizeof *where);
    dpari_p2p_push(world, link, cell);
}

/* Sends CTS, FIN or PUT for the message `id`, now or as soon as a cell is free. Returns 0 if there
 * is no memory to keep it until then. */
static int dpari_p2p_answer(dpari_p2p *p2p, int32_t peer, int kind, uint32_t id,
                            const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    dpari_p2p_link *link = &p2p->link[peer];
    dpari_p2p_note *note;
    dpari_p2p_head head = {0, 0, 0, 0, 0, 0};
    head.id = id;
    head.kind = (uint16_t)kind;
    if (!link->answers.first && dpari_p2p_channel_open(world, link, peer) == DPAR_OK) {
        dpari_p2p_cell *cell = dpari_p2p_room(world, link);
        if (cell) {
            dpari_p2p_send_answer(world, link, cell, &head, where);
            return 1;
        }
    }
    note = dpari_p2p_note_make(p2p, 0);
    if (!note) {
        return 0;
    }
    note->head = head;
    note->where = *where;
    dpari_p2p_note_append(&link->answers, note);
    DPARI_STORE(&world->rank[world->me].owes, world->rank[world->me].owes + 1);
    return 1;
}

/* Returns the size of the piece at offset `at` if `left` bytes remain. The first pieces are small,
 * so that the receiver can begin to copy soon. */
static int64_t dpari_p2p_piece(int64_t at, int64_t left)
{
    const int64_t most = at < DPARI_P2P_BLOCK ? DPARI_P2P_BLOCK / 2 : DPARI_P2P_BLOCK;
    return left < most ? left : most;
}

static void dpari_p2p_envelope(const dpar_work *work, dpari_p2p_head *head)
{
    head->comm = dpari_group_of(work->comm)->id;
    head->tag = work->call.tag;
    head->id = (uint32_t)work->state[DPARI_P2P_ID];
    head->type = (uint16_t)work->call.type;
    head->bytes = work->state[DPARI_P2P_BYTES];
}

/* Returns the ref of this memory if others can copy from or to it directly, otherwise 0. */
static uint64_t dpari_p2p_ref(const dpari_p2p *p2p, const void *at, int64_t bytes)
{
    return p2p->direct ? dpari_ref(p2p->world, at, bytes) : 0;
}

/* Returns the largest private message that is sent without waiting for its receive. */
static int64_t dpari_p2p_eager(const dpari_p2p *p2p, int32_t peer)
{
    const dpari_world *world = p2p->world;
    if (!p2p->cma || !dpari_world_reads(world, peer, world->me)) {
        return DPARI_P2P_EAGER;
    }
    return world->crowded ? DPARI_P2P_EAGER_CROWD : DPARI_P2P_EAGER_CMA;
}

/* Writes the envelope of a queued send into the cell. Returns the next phase of the send. */
static int32_t dpari_p2p_put_envelope(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer,
                                      dpar_work *work, dpari_p2p_cell *cell)
{
    dpari_world *world = p2p->world;
    const int64_t bytes = work->state[DPARI_P2P_BYTES], first = dpari_p2p_piece(0, bytes);
    dpari_p2p_where where = {0, 0, 0, 0};
    int32_t phase = DPARI_P2P_DONE;
    dpari_p2p_envelope(work, &cell->head);
    cell->head.kind = DPARI_P2P_IS_EAGER;
    if (bytes >= DPARI_P2P_DIRECT) {
        where.ref = dpari_p2p_ref(p2p, work->call.in, bytes);
    }
    if (where.ref || (bytes > DPARI_P2P_EAGER_CMA && bytes > dpari_p2p_eager(p2p, peer))) {
        where.address = (uint64_t)(uintptr_t)work->call.in;
        where.present = !world->crowded && DPARI_LOAD(&world->waiting);
        cell->head.kind = DPARI_P2P_IS_RTS;
        memcpy(cell->payload, &where, sizeof where);
        phase = DPARI_P2P_WAITING;
    } else if (bytes <= DPARI_P2P_INLINE) {
        dpari_p2p_copy(cell->payload, work->call.in, bytes);
    } else {
        dpari_p2p_copy(link->out->block[link->out_next % DPARI_P2P_CELLS], work->call.in, first);
        work->state[DPARI_P2P_AT] = first;
        phase = DPARI_P2P_SENDING;
    }
    dpari_p2p_push(world, link, cell);
    return phase;
}

/* Puts the next pieces of a send into the ring. Returns 1 if the last one is in. */
static int dpari_p2p_put_data(dpari_world *world, dpari_p2p_link *link, dpar_work *work)
{
    const int64_t bytes = work->state[DPARI_P2P_BYTES];
    while (work->state[DPARI_P2P_AT] < bytes) {
        const int64_t at = work->state[DPARI_P2P_AT], piece = dpari_p2p_piece(at, bytes - at);
        char *block = link->out->block[link->out_next % DPARI_P2P_CELLS];
        dpari_p2p_cell *cell = dpari_p2p_room(world, link);
        if (!cell) {
            return 0;
        }
        dpari_p2p_envelope(work, &cell->head);
        cell->head.kind = DPARI_P2P_IS_DATA;
        cell->head.bytes = at;
        cell->head.tag = (int32_t)piece;
        dpari_p2p_copy(piece <= DPARI_P2P_INLINE ? cell->payload : block,
                       (const char *)work->call.in + at, piece);
        dpari_p2p_push(world, link, cell);
        work->state[DPARI_P2P_AT] = at + piece;
    }
    return 1;
}

/* Sends the answers that wait for a free cell. Returns 0 if the ring is full before the last
 * one. */
static int dpari_p2p_push_answers(dpari_p2p *p2p, dpari_p2p_link *link)
{
    dpari_world *world = p2p->world;
    while (link->answers.first) {
        dpari_p2p_note *note = link->answers.first;
        dpari_p2p_cell *cell = dpari_p2p_room(world, link);
        if (!cell) {
            return 0;
        }
        dpari_p2p_send_answer(world, link, cell, &note->head, &note->where);
        dpari_p2p_note_unlink(&link->answers, NULL, note);
        dpari_p2p_note_free(p2p, note);
        DPARI_STORE(&world->rank[world->me].owes, world->rank[world->me].owes - 1);
    }
    return 1;
}

/* Sends the queued messages. Returns 0 if the ring is full before the end of the last one. */
static int dpari_p2p_push_queue(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer)
{
    dpari_world *world = p2p->world;
    while (link->queue.first) {
        dpar_work *work = link->queue.first;
        if (work->phase == DPARI_P2P_QUEUED) {
            dpari_p2p_cell *cell = dpari_p2p_room(world, link);
            if (!cell) {
                return 0;
            }
            work->phase = dpari_p2p_put_envelope(p2p, link, peer, work, cell);
        }
        if (work->phase == DPARI_P2P_SENDING && !dpari_p2p_put_data(world, link, work)) {
            return 0;
        }
        (void)dpari_p2p_unlink(&link->queue, &link->queue.first);
        if (work->phase == DPARI_P2P_WAITING) {
            dpari_p2p_append(&link->waiting, work);
        } else {
            dpari_p2p_finish(p2p, work, DPAR_OK);
        }
    }
    return 1;
}

/* Writes records as long as the channel has space: answers first, then messages in their order,
 * then the data that receivers have requested. */
static void dpari_p2p_pump(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer)
{
    dpari_world *world = p2p->world;
    if (!link->answers.first && !link->queue.first && !link->streams.first) {
        return;
    }
    if (dpari_p2p_channel_open(world, link, peer) != DPAR_OK ||
        !dpari_p2p_push_answers(p2p, link) || !dpari_p2p_push_queue(p2p, link, peer)) {
        return;
    }
    while (link->streams.first) {
        if (!dpari_p2p_put_data(world, link, link->streams.first)) {
            return;
        }
        dpari_p2p_finish(p2p, dpari_p2p_unlink(&link->streams, &link->streams.first), DPAR_OK);
    }
}

/* ---- a message is matched with its receive --------------------------------------------------- */

/* Breaks the communicator with the same message on all ranks, as in "recv #7 of 4 f32 on rank 0
 * from rank 1, tag 3: rank 1 sent 8 f32". */
static DPARI_COLD void dpari_p2p_mismatch(dpari_p2p *p2p, dpar_work *work,
                                          const dpari_p2p_head *head)
{
    dpari_group *group = dpari_group_of(work->comm);
    const int32_t unit = dpar_type_bytes(head->type);
    char buffer[DPARI_WHY_TEXT];
    dpar_text t;
    dpar_text_init(&t, buffer, sizeof buffer);
    dpari_text_print(&t, "recv #%ld of %ld %s on ", work->sequence, work->call.count,
                     dpar_type_name(work->call.type));
    dpari_put_rank(&t, group, group->comm.rank);
    dpar_text_put(&t, " from ");
    dpari_put_rank(&t, group, work->call.root);
    dpari_text_print(&t, ", tag %d: ", work->call.tag);
    dpari_put_rank(&t, group, work->call.root);
    dpari_text_print(&t, " sent %ld %s", unit > 0 ? head->bytes / unit : head->bytes,
                     dpar_type_name(head->type));
    dpari_p2p_finish(p2p, work, dpari_group_break(group, DPAR_E_MISMATCH, buffer));
}

/* Fails the work and returns 1 if its communicator has broken. The memory of the other rank may
 * then be in use for something else, so it must not be read or written any more. */
static int dpari_p2p_is_lost(dpari_p2p *p2p, dpar_work *work)
{
    dpar_status s = dpari_group_broken(dpari_group_of(work->comm));
    if (s != DPAR_OK) {
        dpari_p2p_finish(p2p, work, s);
    }
    return s != DPAR_OK;
}

/* True if the message has the size and type of its receive. */
static int dpari_p2p_fits(const dpar_work *work, const dpari_p2p_head *head)
{
    return work->state[DPARI_P2P_BYTES] == head->bytes && work->call.type == (int32_t)head->type;
}

/* Takes the first `got` bytes of an EAGER message. */
static void dpari_p2p_meet_eager(dpari_p2p *p2p, dpari_p2p_link *link, dpar_work *work,
                                 const dpari_p2p_head *head, const char *from, int64_t got)
{
    if (!dpari_p2p_fits(work, head)) {
        dpari_p2p_mismatch(p2p, work, head);
        return;
    }
    dpari_p2p_copy(work->call.out, from, got);
    if (got == head->bytes) {
        dpari_p2p_finish(p2p, work, DPAR_OK);
        return;
    }
    work->state[DPARI_P2P_ID] = head->id;
    work->state[DPARI_P2P_AT] = got;
    work->phase = DPARI_P2P_ARRIVING;
    dpari_p2p_append(&link->arriving, work);
}

/* Copies a message from the sender's process. Returns 0 without copying if that is not possible or
 * the ring is faster. The ring is considered only if the sender is present, since otherwise this
 * rank would have to wait for it. */
static int dpari_p2p_read(const dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer, dpar_work *work,
                          const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    const int64_t bytes = work->state[DPARI_P2P_BYTES];
    double began = 0.0;
    int read;
    if (!p2p->cma || !dpari_world_reads(world, world->me, peer)) {
        return 0;
    }
    if (where->present) {
        began = dpari_os_now();
        if (dpari_pace_choose(dpari_pace_of(link->pace, bytes)) == DPARI_BY_RING) {
            work->state[DPARI_P2P_BEGAN] = (int64_t)(began * 1e9);
            return 0;
        }
    }
    read = dpari_world_read(world, peer, work->call.out, where->address, bytes) == 0;
    if (where->present && read) {
        dpari_pace_tell(dpari_pace_of(link->pace, bytes), DPARI_BY_KERNEL, bytes,
                        dpari_os_now() - began);
    }
    return read;
}

/* Requests the bytes from offset `begin` on from the sender. The operation then waits for them. */
static void dpari_p2p_ask(dpari_p2p *p2p, int32_t peer, dpar_work *work, uint32_t id, uint64_t ref,
                          int64_t begin)
{
    dpari_p2p_where where = {0, 0, 0, 0};
    where.ref = ref;
    where.begin = begin;
    work->state[DPARI_P2P_ID] = id;
    work->state[DPARI_P2P_AT] = 0;
    work->phase = DPARI_P2P_ARRIVING;
    if (dpari_p2p_answer(p2p, peer, DPARI_P2P_IS_CTS, id, &where)) {
        dpari_p2p_append(&p2p->link[peer].arriving, work);
    } else {
        dpari_p2p_finish(p2p, work, DPAR_E_MEMORY);
    }
}

/* Takes the envelope of a large message: copies the message, or requests it from the sender, or
 * both, a half each. */
static void dpari_p2p_meet_large(dpari_p2p *p2p, int32_t peer, dpar_work *work,
                                 const dpari_p2p_head *head, const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    const dpari_p2p_where none = {0, 0, 0, 0};
    int64_t mine = head->bytes; /* bytes that this rank copies */
    const void *from;
    uint64_t ref;
    int told;
    if (!dpari_p2p_fits(work, head)) {
        dpari_p2p_mismatch(p2p, work, head);
        return;
    }
    if (dpari_p2p_is_lost(p2p, work)) {
        return;
    }
    ref = dpari_p2p_ref(p2p, work->call.out, head->bytes);
    from = where->ref ? dpari_at(world, where->ref) : NULL; /* also NULL if no addresses are left */
    if (from) {
        if (ref && where->present && mine >= DPARI_P2P_SHARE) {
            mine = mine / 2 / DPARI_P2P_BLOCK * DPARI_P2P_BLOCK;
            dpari_p2p_ask(p2p, peer, work, head->id, ref, mine);
        }
        dpari_p2p_copy_large(world, work->call.out, from, mine);
    } else if (!dpari_p2p_read(p2p, &p2p->link[peer], peer, work, where)) {
        dpari_p2p_ask(p2p, peer, work, head->id, ref, 0);
        return;
    }
    told = dpari_p2p_answer(p2p, peer, DPARI_P2P_IS_FIN, head->id, &none);
    if (mine == head->bytes) {
        dpari_p2p_finish(p2p, work, told ? DPAR_OK : DPAR_E_MEMORY);
    }
}

/* ---- reading a channel ----------------------------------------------------------------------- */

/* Stores a message whose receive is not posted yet in a note. Returns 0 if there is no memory. */
static int dpari_p2p_store(dpari_p2p *p2p, dpari_p2p_link *link, const dpari_p2p_head *head,
                           const char *from, int64_t got)
{
    const int large = head->kind == DPARI_P2P_IS_RTS;
    dpari_p2p_note *note = dpari_p2p_note_make(p2p, large ? 0 : head->bytes);
    if (!note) {
        return 0;
    }
    note->head = *head;
    note->got = got;
    if (large) {
        memcpy(&note->where, from, sizeof note->where);
    } else {
        dpari_p2p_copy((char *)(note + 1), from, got);
    }
    dpari_p2p_note_append(&link->early, note);
    return 1;
}

/* Stores a piece of a message whose receive is not posted yet. It belongs to the last note, because
 * the pieces of a message follow its envelope. */
static void dpari_p2p_store_data(const dpari_p2p_link *link, const dpari_p2p_head *head,
                                 const char *from)
{
    dpari_p2p_note *note = link->early.last;
    if (note && note->head.kind == DPARI_P2P_IS_EAGER && note->head.id == head->id &&
        note->got == head->bytes && note->head.bytes - note->got >= head->tag) {
        dpari_p2p_copy((char *)(note + 1) + note->got, from, head->tag);
        note->got += head->tag;
    }
}

/* Records the time of a transfer through the ring, if it was timed. */
static void dpari_p2p_tell_pace(dpari_p2p_link *link, const dpar_work *work)
{
    const int64_t bytes = work->state[DPARI_P2P_BYTES], began = work->state[DPARI_P2P_BEGAN];
    if (began != 0) {
        dpari_pace_tell(dpari_pace_of(link->pace, bytes), DPARI_BY_RING, bytes,
                        dpari_os_now() - (double)began * 1e-9);
    }
}

/* Takes a DATA record. */
static void dpari_p2p_take_data(dpari_p2p *p2p, dpari_p2p_link *link, const dpari_p2p_head *head,
                                const char *from)
{
    dpar_work *work = dpari_p2p_find(&link->arriving, head->id);
    const int64_t piece = head->tag;
    if (!work) {
        dpari_p2p_store_data(link, head, from);
        return;
    }
    if (head->bytes != work->state[DPARI_P2P_AT] ||
        piece > work->state[DPARI_P2P_BYTES] - head->bytes) {
        return;
    }
    dpari_p2p_copy((char *)work->call.out + head->bytes, from, piece);
    work->state[DPARI_P2P_AT] += piece;
    if (work->state[DPARI_P2P_AT] == work->state[DPARI_P2P_BYTES]) {
        dpari_p2p_tell_pace(link, work);
        dpari_p2p_take_off(&link->arriving, work);
        dpari_p2p_finish(p2p, work, DPAR_OK);
    }
}

/* Takes a CTS, by which the peer requests a message: copies into the peer's registered memory, or
 * begins to send the data. */
static void dpari_p2p_take_cts(dpari_p2p *p2p, int32_t peer, uint32_t id,
                               const dpari_p2p_where *where)
{
    dpari_world *world = p2p->world;
    const dpari_p2p_where none = {0, 0, 0, 0};
    dpari_p2p_link *link = &p2p->link[peer];
    dpar_work *work = dpari_p2p_find(&link->waiting, id);
    char *to;
    if (!work) {
        return;
    }
    dpari_p2p_take_off(&link->waiting, work);
    if (dpari_p2p_is_lost(p2p, work)) {
        return;
    }
    /* if no addresses are left to map that memory, all of the message is sent as data */
    to = where->ref ? (char *)dpari_at(world, where->ref) : NULL;
    if (to) {
        dpari_p2p_copy_large(world, to + where->begin, (const char *)work->call.in + where->begin,
                             work->state[DPARI_P2P_BYTES] - where->begin);
        if (!dpari_p2p_answer(p2p, peer, DPARI_P2P_IS_PUT, id, &none)) {
            dpari_p2p_finish(p2p, work, DPAR_E_MEMORY);
        } else if (where->begin > 0) {
            dpari_p2p_append(&link->waiting, work); /* for the FIN of the receiver's own part */
        } else {
            dpari_p2p_finish(p2p, work, DPAR_OK);
        }
        return;
    }
    work->phase = DPARI_P2P_SENDING;
    dpari_p2p_append(&link->streams, work);
}

/* Takes a PUT or FIN, which ends the work with this id. */
static void dpari_p2p_take_end(dpari_p2p *p2p, dpari_p2p_works *list, uint32_t id)
{
    dpar_work *work = dpari_p2p_find(list, id);
    if (work) {
        dpari_p2p_take_off(list, work);
        dpari_p2p_finish(p2p, work, DPAR_OK);
    }
}

/* True if the payload of a record is in its cell, false if it is in the block. */
static int dpari_p2p_is_inline(const dpari_p2p_head *head)
{
    if (head->kind == DPARI_P2P_IS_DATA) {
        return head->tag <= DPARI_P2P_INLINE;
    }
    return head->kind != DPARI_P2P_IS_EAGER || head->bytes <= DPARI_P2P_INLINE;
}

/* Takes one record. Returns 0, and leaves the record in the ring, if there is no memory for it. */
static int dpari_p2p_take(dpari_p2p *p2p, int32_t peer, const dpari_p2p_cell *cell,
                          const char *block)
{
    dpari_p2p_link *link = &p2p->link[peer];
    const dpari_p2p_head *head = &cell->head;
    const char *from = dpari_p2p_is_inline(head) ? cell->payload : block;
    dpari_p2p_where where = {0, 0, 0, 0};
    dpar_work *work;
    switch (head->kind) {
    case DPARI_P2P_IS_EAGER:
        work = dpari_p2p_match(&link->posted, head->comm, head->tag);
        if (!work) {
            return dpari_p2p_store(p2p, link, head, from, dpari_p2p_piece(0, head->bytes));
        }
        dpari_p2p_meet_eager(p2p, link, work, head, from, dpari_p2p_piece(0, head->bytes));
        return 1;
    case DPARI_P2P_IS_RTS:
        work = dpari_p2p_match(&link->posted, head->comm, head->tag);
        if (!work) {
            return dpari_p2p_store(p2p, link, head, from, 0);
        }
        memcpy(&where, from, sizeof where);
        dpari_p2p_meet_large(p2p, peer, work, head, &where);
        return 1;
    case DPARI_P2P_IS_DATA: dpari_p2p_take_data(p2p, link, head, from); return 1;
    case DPARI_P2P_IS_CTS:
        memcpy(&where, from, sizeof where);
        dpari_p2p_take_cts(p2p, peer, head->id, &where);
        return 1;
    case DPARI_P2P_IS_PUT: dpari_p2p_take_end(p2p, &link->arriving, head->id); return 1;
    default: dpari_p2p_take_end(p2p, &link->waiting, head->id); return 1;
    }
}

/* Breaks the communicators of these works because the channel from the peer cannot be mapped. */
static DPARI_COLD void dpari_p2p_fail_works(const dpari_p2p_works *list, uint64_t ref)
{
    for (const dpar_work *work = list->first; work; work = work->next) {
        (void)dpari_group_unmapped(dpari_group_of(work->comm), work, ref);
    }
}

static dpari_p2p_channel *dpari_p2p_channel_find(const dpari_world *world, dpari_p2p_link *link,
                                                 int32_t peer)
{
    uint64_t ref = DPARI_LOAD(&world->channel[(int64_t)world->me * world->size + peer]);
    link->in = ref ? (dpari_p2p_channel *)dpari_at(world, ref) : NULL;
    if (ref && !link->in) { /* otherwise all works that wait for this peer would wait for ever */
        dpari_p2p_fail_works(&link->posted, ref);
        dpari_p2p_fail_works(&link->waiting, ref);
        dpari_p2p_fail_works(&link->queue, ref);
    }
    return link->in;
}

/* Takes all records that are in the channel from the peer. */
static void dpari_p2p_drain(dpari_p2p *p2p, dpari_p2p_link *link, int32_t peer)
{
    dpari_world *world = p2p->world;
    dpari_p2p_channel *in = link->in ? link->in : dpari_p2p_channel_find(world, link, peer);
    while (in) {
        const uint64_t at = link->in_next % DPARI_P2P_CELLS;
        if (DPARI_LOAD(&in->cell[at].word) != link->in_next + 1 ||
            !dpari_p2p_take(p2p, peer, &in->cell[at], in->block[at])) {
            return;
        }
        link->in_next++;
        if (link->in_next - link->in_told == DPARI_P2P_TELL) {
            link->in_told = link->in_next;
            dpari_publish(world, &in->consumed, link->in_next);
        }
    }
}

/* ---- messages of a rank to itself ------------------------------------------------------------ */

static void dpari_p2p_meet_self(dpari_p2p *p2p, dpar_work *from, dpar_work *to)
{
    dpari_p2p_head head = {0, 0, 0, 0, 0, 0};
    dpari_p2p_envelope(from, &head);
    if (!dpari_p2p_fits(to, &head)) {
        dpari_p2p_mismatch(p2p, to, &head);
        dpari_p2p_finish(p2p, from, to->status);
        return;
    }
    dpari_p2p_copy(to->call.out, from->call.in, head.bytes);
    dpari_p2p_finish(p2p, from, DPAR_OK);
    dpari_p2p_finish(p2p, to, DPAR_OK);
}

static void dpari_p2p_self(dpari_p2p *p2p, dpari_p2p_link *link, uint32_t comm, dpar_work *work)
{
    const int sends = work->call.kind == DPAR_CALL_SEND;
    dpari_p2p_works *others = sends ? &link->posted : &link->waiting;
    dpar_work *other = dpari_p2p_match(others, comm, work->call.tag);
    if (!other) {
        work->phase = sends ? DPARI_P2P_WAITING : DPARI_P2P_POSTED;
        dpari_p2p_append(sends ? &link->waiting : &link->posted, work);
    } else if (sends) {
        dpari_p2p_meet_self(p2p, work, other);
    } else {
        dpari_p2p_meet_self(p2p, other, work);
    }
}

/* ---- the functions of p2p.h ------------------------------------------------------------------ */

/* Matches a receive with a message that arrived before it was posted. Returns 1 if there is such a
 * message. */
static int dpari_p2p_recv_early(dpari_p2p *p2p, int32_t peer, uint32_t comm, dpar_work *work)
{
    dpari_p2p_link *link = &p2p->link[peer];
    dpari_p2p_note *before = NULL, *n;
    for (n = link->early.first; n; before = n, n = n->next) {
        if (n->head.comm == comm && n->head.tag == work->call.tag) {
            dpari_p2p_note_unlink(&link->early, before, n);
            if (n->head.kind == DPARI_P2P_IS_RTS) {
                dpari_p2p_meet_large(p2p, peer, work, &n->head, &n->where);
            } else {
                dpari_p2p_meet_eager(p2p, link, work, &n->head, (char *)(n + 1), n->got);
            }
            dpari_p2p_note_free(p2p, n);
            return 1;
        }
    }
    return 0;
}

DPARI_INTERNAL dpar_status dpari_p2p_start(dpari_p2p *p2p, dpari_group *group,
                                           const dpar_call *call, dpar_work *work)
{
    dpari_world *world = p2p->world;
    const int32_t peer = group->world_rank[call->root];
    dpari_p2p_link *link = &p2p->link[peer];
    if (call->kind == DPAR_CALL_SEND && peer != world->me) {
        dpar_status status = dpari_p2p_channel_open(world, link, peer);
        if (status != DPAR_OK) { /* breaks it, because the peer would wait for ever */
            return dpari_group_break(group, status,
                                     "send: no shared memory for a channel between two ranks");
        }
    }
    work->state[DPARI_P2P_ID] = link->ids++;
    work->state[DPARI_P2P_BYTES] = call->count * dpar_type_bytes(call->type);
    work->state[DPARI_P2P_AT] = 0;
    work->state[DPARI_P2P_BEGAN] = 0;
    p2p->open++;
    if (peer == world->me) {
        dpari_p2p_self(p2p, link, group->id, work);
    } else if (call->kind == DPAR_CALL_SEND) {
        work->phase = DPARI_P2P_QUEUED;
        dpari_p2p_append(&link->queue, work);
        dpari_p2p_pump(p2p, link, peer);
    } else if (!link->early.first || !dpari_p2p_recv_early(p2p, peer, group->id, work)) {
        work->phase = DPARI_P2P_POSTED;
        dpari_p2p_append(&link->posted, work);
        dpari_p2p_drain(p2p, link, peer);
    }
    return work->phase == DPARI_P2P_DONE ? work->status : DPAR_MORE;
}

static void dpari_p2p_poll(dpari_p2p *p2p, int32_t peer)
{
    dpari_p2p_link *link = &p2p->link[peer];
    dpari_p2p_drain(p2p, link, peer);
    dpari_p2p_pump(p2p, link, peer);
}

DPARI_INTERNAL void dpari_p2p_progress(dpari_p2p *p2p)
{
    dpari_world *world = p2p->world;
    for (int32_t i = 0; i < world->size; i++) {
        if (i != world->me) {
            dpari_p2p_poll(p2p, i);
        }
    }
}

DPARI_INTERNAL dpar_status dpari_p2p_advance(dpari_p2p *p2p, dpari_group *group, dpar_work *work)
{
    const dpari_world *world = p2p->world;
    const int32_t peer = group->world_rank[work->call.root];
    if (work->phase != DPARI_P2P_DONE && peer != world->me) {
        dpari_p2p_poll(p2p, peer);
    }
    if (work->phase != DPARI_P2P_DONE) {
        p2p->idle = p2p->idle < DPARI_P2P_PATIENT * DPARI_P2P_OFTEN ? p2p->idle + 1 : p2p->idle;
        if (p2p->idle % DPARI_P2P_OFTEN == 0 || p2p->idle > DPARI_P2P_PATIENT) {
            dpari_p2p_progress(p2p);
        }
    }
    if (work->phase == DPARI_P2P_DONE) {
        p2p->idle = 0;
        return work->status;
    }
    group->blocker = p2p->open > 1 ? -1 : peer;
    return DPAR_MORE;
}

/* Ends the works of a group in one list. Returns how many there were. */
static int32_t dpari_p2p_forget_works(dpari_p2p *p2p, dpari_p2p_works *list,
                                      const dpari_group *group)
{
    const dpar_status status = group->comm.status != DPAR_OK ? group->comm.status : DPAR_E_ARG;
    dpar_work **link = &list->first;
    int32_t n = 0;
    while (*link) {
        if ((*link)->comm == &group->comm) {
            dpari_p2p_finish(p2p, dpari_p2p_unlink(list, link), status);
            n++;
        } else {
            link = &(*link)->next;
        }
    }
    return n;
}

DPARI_INTERNAL int32_t dpari_p2p_forget(dpari_p2p *p2p, dpari_group *group)
{
    const dpari_world *world = p2p->world;
    int32_t n = 0;
    for (int32_t i = 0; i < world->size; i++) {
        dpari_p2p_link *link = &p2p->link[i];
        dpari_p2p_note *before = NULL, *note = link->early.first;
        n += dpari_p2p_forget_works(p2p, &link->posted, group);
        n += dpari_p2p_forget_works(p2p, &link->arriving, group);
        n += dpari_p2p_forget_works(p2p, &link->queue, group);
        n += dpari_p2p_forget_works(p2p, &link->waiting, group);
        n += dpari_p2p_forget_works(p2p, &link->streams, group);
        while (note) {
            dpari_p2p_note *next = note->next;
            if (note->head.comm == group->id) {
                dpari_p2p_note_unlink(&link->early, before, note);
                dpari_p2p_note_free(p2p, note);
            } else {
                before = note;
            }
            note = next;
        }
    }
    return n;
}

/* ==== comm/shm.c ==== */

/* Implements the shared-memory engine: its table of functions, posted work, waiting, and what
 * happens if a rank does not arrive. The collectives are in collectives.c, messages in p2p.c, and
 * how a communicator breaks in group.c.
 *
 * Operations are state machines that never block (collectives.c, p2p.c), and this file advances
 * them. Collectives of a communicator run in the order in which they were posted. Between two looks
 * at its operation a waiting rank spins, and later sleeps. Now and then it checks whether the
 * others are alive and whether the deadline has passed.
 *
 * A member (a rank's part of a communicator) is never returned to the heap, because a slow peer may
 * still read its words after the last operation. It is kept for the next communicator of its rank,
 * whose sequence numbers continue where those of its members ended, so that words still only
 * grow. */

/* A communicator of this rank. */
typedef struct dpari_shm {
    dpari_group group; /* must be first: dpari_shm_of casts a dpar_comm of this engine */
    struct dpari_node *node;
    struct dpari_shm *next; /* in the list of open communicators */
    int64_t bytes;          /* bytes allocated for this struct and its tables */
    int32_t closing;        /* 1 while the barrier that closes it is in progress */
    int32_t voted;          /* 1 if this rank has shrunk it, or tried to */
    int32_t generation;     /* how many times the world was shrunk to get this communicator */
} dpari_shm;

/* What all communicators of this rank share, in private memory. */
typedef struct dpari_node {
    dpari_world *world;
    dpari_p2p *p2p;
    dpari_shm *open; /* list of open communicators */
    dpari_ended closed;
    uint64_t spare;    /* ref of an unused member, the head of a list; 0 if none */
    uint32_t highest;  /* the highest id of a communicator that this rank was in */
    int32_t lent;      /* 1 if dpar_launch closes the world's communicator, not the user */
    int32_t posted;    /* number of works in progress */
    uint32_t tests;    /* calls of dpar_test so far that found nothing done */
    double looked;     /* when dpar_test last checked peers and deadlines */
    double suspended;  /* s between these checks that do not count (dpari_os_suspended) */
    uint64_t seen;     /* hash of the state at the last check of a wait's progress */
    uint32_t lock;     /* protects this struct and its communicators from the progress thread */
    uint32_t progress; /* 1 while there is a progress thread, 2 while it must end */
    dpari_thread thread;
} dpari_node;

static dpari_shm *dpari_shm_of(dpar_comm *comm)
{
    return (dpari_shm *)(void *)comm;
}

/* ---- locks: only with a progress thread ------------------------------------------------------ */

DPARI_STATIC_NOINLINE void dpari_lock_shared(dpari_node *node)
{
    uint32_t free_now = 0;
    while (!DPARI_CLAIM(&node->lock, &free_now, 1U)) {
        free_now = 0;
        dpari_os_pause();
        sched_yield();
    }
}

static void dpari_lock(dpari_node *node)
{
    if (DPARI_LOAD(&node->progress)) {
        dpari_lock_shared(node);
    }
}

static void dpari_unlock(dpari_node *node)
{
    if (DPARI_LOAD(&node->progress)) {
        DPARI_STORE(&node->lock, 0U);
    }
}

/* ---- messages -------------------------------------------------------------------------------- */

/* True if the operation waits for this rank. */
static int dpari_work_misses(const dpari_group *group, const dpar_work *work, int32_t rank)
{
    return work->call.kind < DPAR_CALL_COLLECTIVE_COUNT ? dpari_coll_missing(group, work, rank)
                                                        : rank == work->call.root;
}

/* Appends the first missing rank that itself waits for a rank that has arrived at the operation,
 * and the name of the latter. */
static void dpari_put_behind(dpar_text *text, const dpari_group *group, const dpar_work *work)
{
    const double quiet = dpari_quiet(group->comm.timeout_s);
    for (int32_t r = 0; r < group->comm.size; r++) {
        int32_t links = 0, who;
        if (!dpari_work_misses(group, work, r)) {
            continue;
        }
        who = dpari_group_rank(group,
                               dpari_group_culprit(group, group->world_rank[r], quiet, &links));
        if (links > 0 && !dpari_work_misses(group, work, who)) {
            dpar_text_put(text, ", ");
            dpari_put_rank(text, group, r);
            dpar_text_put(text, links > 1 ? " waits for others, they for " : " waits for ");
            dpari_put_rank(text, group, who);
            return;
        }
    }
}

/* Breaks the communicator because its deadline has passed. The message names the missing ranks with
 * the last operation of each. */
static DPARI_COLD dpar_status dpari_fail_late(dpari_group *group, const dpar_work *work,
                                              double waited)
{
    int32_t missing = 0;
    dpar_why why;
    dpar_text t;
    for (int32_t r = 0; r < group->comm.size; r++) {
        missing += dpari_work_misses(group, work, r);
    }
    dpari_text_why(&t, &why);
    dpari_put_work(&t, group, work);
    dpari_text_print(&t, "%d did not arrive within %.1f s", missing, waited);
    dpari_put_behind(&t, group, work);
    dpar_text_put(&t, ": ");
    for (int32_t r = 0, named = 0; r < group->comm.size && t.used + 60 < t.capacity; r++) {
        if (dpari_work_misses(group, work, r)) {
            dpar_text_put(&t, named++ ? ", " : "");
            dpari_put_rank(&t, group, r);
            dpari_put_last(&t, group->world, group->world_rank[r]);
        }
    }
    return dpari_group_break(group, DPAR_E_TIMEOUT, why.text);
}

/* Returns the operation that `work` waits for: if it is a collective, the first one in the queue,
 * because collectives run in the order of posting, otherwise `work`. */
static const dpar_work *dpari_awaited(const dpari_group *group, const dpar_work *work)
{
    return work->call.kind < DPAR_CALL_COLLECTIVE_COUNT && group->first ? group->first : work;
}

/* True if closing this communicator must not wait because another communicator of this rank is
 * broken: the other ranks may have seen that error before they even made this communicator. It is
 * then broken by the same error. Communicators of earlier generations do not count, because all
 * ranks that shrank them have seen their errors. */
static int dpari_close_in_vain(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    for (dpari_shm *other = shm->node->open; other && shm->closing; other = other->next) {
        if (other->generation >= shm->generation && dpari_group_broken(&other->group) != DPAR_OK) {
            dpari_group_break(group, other->group.comm.status, other->group.comm.why.text);
            return 1;
        }
    }
    return 0;
}

/* Checks whether a wait can still succeed. Waits call it now and then. Returns DPAR_OK if it can,
 * DPAR_E_PEER if *rank has ended or left, DPAR_E_TIMEOUT if the deadline has passed, or the status
 * of a broken communicator. */
static dpar_status dpari_shm_look(dpari_shm *shm, const dpar_work *work, double began,
                                  int32_t *rank)
{
    dpari_group *group = &shm->group;
    const dpar_work *awaited = dpari_awaited(group, work);
    int32_t missing = 0;
    uint32_t gone = 0;
    group->levels.doubt = 1;
    if (dpari_group_broken(group) != DPAR_OK || dpari_close_in_vain(shm)) {
        return group->comm.status;
    }
    for (int32_t r = 0; r < group->comm.size && gone != DPARI_RANK_DEAD; r++) {
        uint32_t state;
        if (!dpari_work_misses(group, awaited, r)) {
            continue;
        }
        missing++;
        state = dpari_rank_state(group->world, group->world_rank[r]);
        if (state == DPARI_RANK_HERE && awaited->call.kind >= DPAR_CALL_COLLECTIVE_COUNT &&
            dpari_group_closes(group, group->world_rank[r])) {
            state = DPARI_RANK_LEFT;
        }
        /* a rank that died counts before one that left, because ranks leave when another dies */
        if (state == DPARI_RANK_DEAD || (state == DPARI_RANK_LEFT && !gone)) {
            gone = state;
            *rank = r;
        }
    }
    if (gone) {
        return DPAR_E_PEER;
    }
    if (missing > 0 && group->comm.timeout_s > 0.0 &&
        dpari_os_now() - began > group->comm.timeout_s) {
        return DPAR_E_TIMEOUT;
    }
    return DPAR_OK;
}

/* ---- progress -------------------------------------------------------------------------------- */

/* Ends an operation with this status. */
static void dpari_work_done(dpari_shm *shm, dpar_work *work, dpar_status status)
{
    dpari_group *group = &shm->group;
    for (dpar_work **link = &group->finished; *link; link = &(*link)->behind) {
        if (*link == work) {
            *link = work->behind;
            break;
        }
    }
    shm->node->posted--;
    dpari_flight_end(group->world, work->record,
                     status == DPAR_OK ? DPARI_FLIGHT_DONE : DPARI_FLIGHT_FAILED);
    work->status = status;
    DPARI_STORE(&work->comm, NULL); /* last, because from here on the user may reuse it */
}

/* Advances the collectives of one communicator in order, until one must wait. If the communicator
 * is broken, fails those that cannot end any more. */
static void dpari_queue_progress(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    while (group->first) {
        dpar_work *work = group->first;
        const dpar_status broken = group->comm.status;
        dpar_status status = broken;
        /* a collective before the first failed one succeeds on all ranks, because all its words are
         * published */
        if (broken == DPAR_OK || work->sequence < group->broken_from) {
            status = dpari_coll_advance(group, work);
        }
        /* If this rank was stopped for long, the collective may have failed on the others, which
         * may have written to memory that this rank has just read. They break the communicator
         * before they write, hence this second check. */
        if (status == DPAR_OK) {
            __atomic_thread_fence(__ATOMIC_ACQUIRE);
            status = dpari_group_broken(group);
            status = work->sequence < group->broken_from ? (dpar_status)DPAR_OK : status;
        }
        if (status == DPAR_MORE && broken == DPAR_OK) {
            return;
        }
        status = status == DPAR_MORE ? broken : status;
        group->first = work->next;
        group->last = group->first ? group->last : NULL;
        dpari_work_done(shm, work, status);
    }
}

/* Advances one operation, a collective together with those before it in the queue. */
static void dpari_step(dpari_shm *shm, dpar_work *work)
{
    dpari_group *group = &shm->group;
    if (work->call.kind < DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_queue_progress(shm);
    } else {
        dpar_status status = group->comm.status;
        if (status == DPAR_OK) {
            status = dpari_p2p_advance(shm->node->p2p, group, work);
        } else {
            dpari_p2p_forget(shm->node->p2p, group);
        }
        if (status != DPAR_MORE) {
            dpari_work_done(shm, work, status);
        }
    }
}

static void dpari_progress_all(dpari_node *node)
{
    for (dpari_shm *shm = node->open; shm; shm = shm->next) {
        dpari_queue_progress(shm);
    }
    dpari_p2p_progress(node->p2p);
}

DPARI_API void dpari_shm_progress_all(dpar_comm *comm)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    if (node->posted > 0) {
        dpari_lock(node);
        dpari_progress_all(node);
        dpari_unlock(node);
    }
}

/* Fails an operation that can no longer complete. */
static void dpari_fail_work(dpari_shm *shm, dpar_work *work, dpar_status status)
{
    dpari_group *group = &shm->group;
    if (!work->comm) {
        return;
    }
    if (work->call.kind < DPAR_CALL_COLLECTIVE_COUNT) {
        dpari_queue_progress(shm); /* fails all collectives, because the communicator is broken */
    } else {
        dpari_p2p_forget(shm->node->p2p, group);
        dpari_work_done(shm, work, status);
    }
}

/* True if the operation has made progress since the last call, that is, if the hash of its state
 * has changed. The deadline limits only waits without progress. */
static int dpari_has_progressed(dpari_node *node, const dpar_work *work)
{
    uint64_t seen = (uint64_t)work->sequence * 31 + (uint64_t)work->phase;
    uint64_t before = node->seen;
    for (int32_t i = 0; i < 16; i++) {
        seen = (seen ^ (uint64_t)work->state[i]) * UINT64_C(0x9e3779b97f4a7c15);
    }
    node->seen = seen;
    return seen != before;
}

/* Checks the deadline of an operation and the ranks that it waits for. Fails it if one of them will
 * not arrive. */
static DPARI_COLD void dpari_shm_check(dpari_shm *shm, dpar_work *work, double *began)
{
    dpari_group *group = &shm->group;
    dpar_status status;
    int32_t rank = 0;
    dpari_progress_all(shm->node);
    if (work->comm) {
        dpari_step(shm, work);
    }
    if (!work->comm) {
        return;
    }
    if (dpari_has_progressed(shm->node, dpari_awaited(group, work))) {
        *began = dpari_os_now();
    }
    status = dpari_shm_look(shm, work, *began, &rank);
    if (status == DPAR_OK) {
        return;
    }
    dpari_step(shm, work); /* a rank that has ended may have published its part just before */
    if (!work->comm) {
        return;
    }
    if (status == DPAR_E_PEER && group->comm.status == DPAR_OK) {
        status = dpari_fail_peer(group, dpari_awaited(group, work), rank);
    } else if (status == DPAR_E_TIMEOUT && group->comm.status == DPAR_OK) {
        status = dpari_fail_late(group, dpari_awaited(group, work), dpari_os_now() - *began);
    }
    dpari_fail_work(shm, work, status);
}

enum { DPARI_ALL_EVERY = 64 }; /* turns after which a wait advances all communicators */

/* Waits until an operation is done and returns its status. The caller holds the lock, which is
 * released during each turn of the wait. */
static dpar_status dpari_shm_await(dpari_shm *shm, dpar_work *work)
{
    dpari_group *group = &shm->group;
    dpari_world *world = group->world;
    dpari_node *node = shm->node;
    dpari_wait t;
    int32_t turn = 0;
    memset(&t, 0, sizeof t);
    for (;;) {
        int32_t peer, needs;
        dpar_status passed;
        dpari_step(shm, work);
        needs = work->call.kind == DPAR_CALL_SEND || work->call.kind == DPAR_CALL_RECV
                    ? group->world_rank[work->call.root]
                    : group->blocker;
        peer = node->posted > 1 ? -1 : group->blocker;
        if (work->comm && (node->posted > 1 || ++turn % DPARI_ALL_EVERY == 0)) {
            dpari_progress_all(node);
        }
        if (!work->comm) {
            break;
        }
        dpari_unlock(node);
        passed = dpari_wait_turn(world, &t, peer);
        dpari_lock(node);
        if (passed == DPAR_MORE && work->comm) {
            dpari_wait_says(world, needs);
            dpari_shm_check(shm, work, &t.began);
        }
        if (!work->comm) {
            break;
        }
    }
    dpari_wait_end(world, &t);
    return work->status;
}

/* ---- the engine's functions ------------------------------------------------------------------ */

/* Starts an operation in `work`. work->comm is NULL afterwards if it is done already. */
static void dpari_shm_begin(dpari_shm *shm, const dpar_call *call, dpar_work *work)
{
    dpari_group *group = &shm->group;
    dpari_world *world = group->world;
    const int is_message = call->kind >= DPAR_CALL_COLLECTIVE_COUNT;
    dpar_status status;
    work->comm = work->home = &group->comm;
    work->self = work;
    work->status = DPAR_MORE;
    work->phase = 0;
    work->call = *call;
    work->began = 0.0;
    work->next = NULL;
    /* a message has the number of this rank's operation */
    work->sequence = is_message ? (int64_t)world->rank[world->me].flights + 1 : ++group->sequence;
    work->record = dpari_flight_begin(world, group->id, work->sequence, call);
    shm->node->posted++;
    status = dpari_group_broken(group); /* if so, the others do not wait for this operation */
    if (status != DPAR_OK) {
        dpari_work_done(shm, work, status);
        return;
    }
    if (is_message) {
        status = dpari_p2p_start(shm->node->p2p, group, call, work);
        if (status != DPAR_MORE) {
            dpari_work_done(shm, work, status);
        }
        return;
    }
    if (group->last) {
        group->last->next = work;
    } else {
        group->first = work;
    }
    group->last = work;
}

static dpar_status dpari_shm_run(dpar_comm *comm, const dpar_call *call)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_world *world = shm->node->world;
    dpar_work k;
    dpar_status status;
    dpari_lock(shm->node);
    DPARI_STORE(&world->waiting, 1U);
    dpari_shm_begin(shm, call, &k);
    status = k.comm ? dpari_shm_await(shm, &k) : k.status;
    DPARI_STORE(&world->waiting, 0U);
    dpari_unlock(shm->node);
    return status;
}

static dpar_status dpari_shm_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_lock(shm->node);
    dpari_shm_begin(shm, call, work);
    if (work->comm) {
        dpari_step(shm, work);
    }
    dpari_unlock(shm->node);
    return DPAR_OK;
}

static dpar_status dpari_shm_wait(dpar_work *work)
{
    dpari_shm *shm = dpari_shm_of(work->home);
    dpari_world *world = shm->node->world;
    dpar_status status;
    dpari_lock(shm->node);
    DPARI_STORE(&world->waiting, 1U);
    status = work->comm ? dpari_shm_await(shm, work) : work->status;
    DPARI_STORE(&world->waiting, 0U);
    dpari_unlock(shm->node);
    return status;
}

enum { DPARI_TESTS_CROWDED = 16 }; /* tests after which a rank sleeps briefly if cores are shared */
#define DPARI_LOOK_EVERY 10e-3     /* seconds between two checks of peers and deadline */

static dpar_status dpari_shm_test(dpar_work *work)
{
    dpari_shm *shm = dpari_shm_of(work->home);
    dpari_node *node = shm->node;
    dpar_status status;
    dpari_lock(node);
    dpari_progress_all(node);
    if (work->comm) {
        dpari_step(shm, work);
    }
    if (work->comm) {
        const double now = dpari_os_now();
        const int look = now - node->looked > DPARI_LOOK_EVERY;
        if (look) {
            node->suspended += dpari_os_suspended(&node->looked, now);
        }
        if (!(work->began > 0.0)) {
            work->began = now - node->suspended;
        }
        node->tests++;
        if (look) {
            double began = work->began + node->suspended;
            dpari_shm_check(shm, work, &began);
            work->began = began - node->suspended;
        }
    }
    status = work->comm ? DPAR_MORE : work->status;
    dpari_unlock(node);
    if (status == DPAR_MORE && node->world->crowded && node->tests % DPARI_TESTS_CROWDED == 0) {
        dpari_os_sleep(10e-6); /* a yield would return at once or only after a whole time slice */
    }
    return status;
}

enum { DPARI_BATCH = 12 }; /* the most works that are kept on the stack */

/* Posts receives first, so that messages are copied directly to their destination. */
static dpar_status dpari_shm_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                   dpar_work *works)
{
    dpar_work few[DPARI_BATCH];
    dpar_work *work = works;
    int64_t bytes = n * (int64_t)sizeof *work;
    dpar_status status = DPAR_OK;
    if (!works) {
        work = n <= DPARI_BATCH ? few : (dpar_work *)dpari_os_pages(bytes);
        if (!work) {
            return dpari_say(DPAR_E_MEMORY, &comm->why, "batch: no memory for %d calls", n);
        }
    }
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < n; i++) {
            if ((calls[i].kind == DPAR_CALL_SEND) == pass) {
                dpari_shm_post(comm, &calls[i], &work[i]);
            }
        }
    }
    if (!works) {
        status = dpar_wait_all(work, n);
        if (work != few) {
            dpari_os_unmap(work, bytes);
        }
    }
    return status;
}

static DPARI_COLD dpar_status dpari_shm_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    const dpari_world *world = node->world;
    dpar_status status;
    dpar_text t;
    dpari_lock(node);
    status = dpari_heap_alloc(node->world, bytes, DPARI_HEAP_USER, memory);
    dpari_unlock(node);
    if (status != DPAR_OK) {
        dpari_text_why(&t, &comm->why);
        dpari_text_print(&t,
                         "no shared memory for %ld more bytes: this rank has %ld of at most %ld in "
                         "use, in %d of at most 65536 allocations (",
                         bytes, world->users, world->head->heap_bytes, world->used_count);
        dpari_put_lack(&t, world);
        dpari_text_char(&t, ')');
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_shm_scratch(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpar_comm *here = comm->node ? comm->node : comm;
    if (dpari_world_of(here)) {
        dpari_node *node = dpari_shm_of(here)->node;
        dpar_status status;
        dpari_lock(node);
        status = dpari_heap_alloc(node->world, bytes, DPARI_HEAP_SCRATCH, memory);
        dpari_unlock(node);
        if (status == DPAR_OK) {
            return DPAR_OK;
        }
    }
    return dpar_comm_alloc(comm, bytes, memory); /* which also writes the message */
}

static DPARI_COLD void dpari_shm_release(dpar_comm *comm, void *memory)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    dpari_lock(node);
    dpari_heap_release(node->world, memory);
    dpari_unlock(node);
}

static void dpari_shm_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    dpari_group_break(dpari_group_of(comm), status, text);
}

/* ---- the progress thread --------------------------------------------------------------------- */

static void *dpari_progress_main(void *arg)
{
    dpari_node *node = (dpari_node *)arg;
    int32_t idle = 0;
    while (DPARI_LOAD(&node->progress) == 1) {
        int32_t posted = 0;
        /* while the user's thread waits, it makes progress itself, and this thread would only
         * compete with it */
        if (!DPARI_LOAD(&node->world->waiting)) {
            dpari_lock(node);
            dpari_progress_all(node);
            posted = node->posted;
            dpari_unlock(node);
        }
        idle = posted ? idle + 1 : 1000;
        if (idle > 100) { /* spins at first, then naps; naps at once if nothing is posted */
            dpari_os_sleep(posted ? 20e-6 : 100e-6);
        } else {
            dpari_os_pause();
        }
    }
    return NULL;
}

static dpar_status dpari_shm_progress(dpar_comm *comm, int32_t on)
{
    dpari_node *node = dpari_shm_of(comm)->node;
    if (on && !node->progress) {
        DPARI_STORE(&node->progress, 1U);
        if (dpari_os_thread(&node->thread, dpari_progress_main, node) != 0) {
            DPARI_STORE(&node->progress, 0U);
            return dpari_say(DPAR_E_SYSTEM, &comm->why, "no thread could be started for progress");
        }
    } else if (!on && node->progress) {
        DPARI_STORE(&node->progress,
                    2U); /* not 0, because the thread may take the lock once more */
        dpari_os_join(node->thread);
        DPARI_STORE(&node->progress, 0U);
    }
    return DPAR_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */

enum { DPARI_REPORTED = 4 }; /* operations that a report shows of each rank */

static void dpari_report_rank(dpari_world *world, int32_t rank, dpar_text *out)
{
    const dpari_rank *record = &world->rank[rank];
    uint64_t n = DPARI_LOAD(&record->flights), k = n < DPARI_REPORTED ? 0 : n - DPARI_REPORTED;
    dpari_text_print(out, "rank %d (process %d)", rank, record->pid);
    if (dpari_rank_state(world, rank) != DPARI_RANK_HERE) {
        dpari_put_end(out, record);
    }
    dpar_text_put(out, n ? "" : ": nothing yet");
    for (; k < n; k++) {
        const dpari_flight f = dpari_flight_read(record, k);
        dpar_text_put(out, "\n    ");
        dpari_flight_text(out, &f);
        if (f.state == DPARI_FLIGHT_DONE) {
            dpar_text_put(out, " done");
        } else {
            dpar_text_put(out, f.state == DPARI_FLIGHT_FAILED ? " failed" : " not done");
        }
        if (f.comm) {
            dpari_text_print(out, ", group %ld", (int64_t)f.comm);
        }
    }
    dpari_text_char(out, '\n');
}

static DPARI_COLD void dpari_shm_report(dpar_comm *comm, dpar_text *out)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_group *group = &shm->group;
    for (int32_t r = 0; r < comm->size; r++) {
        dpari_report_rank(group->world, group->world_rank[r], out);
    }
}

static DPARI_COLD void dpari_shm_describe(dpar_comm *comm, dpar_text *out)
{
    dpari_world *world = dpari_group_of(comm)->world;
    int32_t reads;
    if (world->size == 1) {
        return;
    }
    if (world->threads) {
        dpar_text_put(out, ", threads of one process");
        return;
    }
    reads = DPARI_LOAD(&world->rank[world->me].reads);
    dpar_text_put(out, " of one node; memory of dpar_comm_alloc is read in place, other ");
    if (reads == 0) {
        dpar_text_put(out, "memory is copied twice: process_vm_readv is not allowed here");
        return;
    }
    dpar_text_put(out, reads > 1 ? "memory by process_vm_readv" : "memory is copied twice");
    dpari_put_unread(out, world);
}

/* ---- making and closing communicators -------------------------------------------------------- */

/* Takes an unused member, or allocates one with its tables and slots in this rank's heap. *sequence
 * is the last sequence number that the member has used. */
static dpar_status dpari_member_make(dpari_node *node, uint64_t *ref, int64_t *sequence)
{
    dpari_world *world = node->world;
    void *memory = NULL;
    dpar_status status;
    if (node->spare) {
        dpari_member *member = (dpari_member *)dpari_at(world, node->spare);
        *ref = node->spare;
        node->spare = member->next;
        *sequence = member->counted;
        memset(&member->abort, 0, sizeof member->abort);
        return DPAR_OK;
    }
    status = dpari_heap_alloc(world, dpari_member_bytes(world), DPARI_HEAP_LIBRARY, &memory);
    if (status == DPAR_OK) {
        *ref = dpari_ref(world, memory, 1);
        *sequence = 0;
    }
    return status;
}

/* Ends the works that the user has not waited for, and returns how many of them were not done. If
 * there are any, the communicator is broken, so that the other ranks do not wait for them. */
static int32_t dpari_shm_lost(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    int32_t lost = dpari_p2p_forget(shm->node->p2p, group);
    dpar_text t;
    dpar_why why;
    for (dpar_work *work = group->first; work; work = work->next) {
        lost++;
    }
    if (lost > 0) {
        dpari_text_why(&t, &why);
        dpari_put_rank(&t, group, group->comm.rank);
        dpari_text_print(&t, " closed the communicator without waiting for %d%s", lost,
                         lost == 1 ? " operation" : " operations");
        dpari_group_break(group, DPAR_E_ARG, why.text);
    }
    while (group->finished) {
        dpari_work_done(shm, group->finished, group->finished->status);
    }
    if (lost > 0) {
        dpari_queue_progress(shm); /* fails all collectives, because the communicator is broken */
    }
    return lost;
}

static dpari_node *dpari_node_make(const dpari_segment *segment, int32_t me, int32_t own,
                                   const dpar_world_desc *options)
{
    dpari_node *node = (dpari_node *)dpari_os_pages((int64_t)sizeof *node);
    dpari_world *world = node ? dpari_world_make(segment, me, own, options) : NULL;
    dpari_p2p *p2p = world ? dpari_p2p_open(world) : NULL;
    if (!p2p) {
        if (world) {
            world->owns = DPARI_OWNS_NOTHING;
            dpari_world_close(world);
        }
        dpari_os_unmap(node, (int64_t)sizeof *node);
        return NULL;
    }
    node->world = world;
    node->p2p = p2p;
    return node;
}

static void dpari_shm_free(dpar_comm *comm)
{
    if (comm) {
        dpari_os_unmap(comm, dpari_shm_of(comm)->bytes);
    }
}

static void dpari_node_close(dpari_node *node)
{
    dpar_comm *comm;
    while ((comm = dpari_ended_take(&node->closed)) != NULL) {
        dpari_shm_free(comm);
    }
    dpari_p2p_close(node->p2p);
    dpari_world_close(node->world);
    dpari_os_unmap(node, (int64_t)sizeof *node);
}

/* Moves a communicator from the list of open ones to the closed ones. */
static void dpari_shm_drop(dpari_shm *shm)
{
    dpari_shm **link = &shm->node->open;
    while (*link && *link != shm) {
        link = &(*link)->next;
    }
    *link = shm->next;
    dpari_shm_free(dpari_ended_keep(&shm->node->closed, &shm->group.comm));
}

static DPARI_COLD dpar_status dpari_shm_close(dpar_comm *comm)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_node *node = shm->node;
    const int last = shm->group.id == 0;
    dpar_status status = DPAR_OK;
    int32_t lost;
    if (last && node->lent) {
        return dpari_wrong(&comm->why, "close: dpar_launch closes this communicator itself");
    }
    dpari_lock(node);
    shm->closing = 1;
    lost = dpari_shm_lost(shm);
    if (!shm->voted && dpari_group_broken(&shm->group) != DPAR_OK) {
        /* so that ranks that shrink the communicator do not wait for this rank */
        dpari_vote_cast(&shm->group, DPARI_VOTE_LEAVES);
    }
    dpari_unlock(node);
    if (comm->status == DPAR_OK && !dpari_close_in_vain(shm)) {
        dpar_call leave = dpari_call(DPAR_CALL_BARRIER, NULL, NULL, 0, 0);
        leave.root = DPARI_CLOSE;
        status = dpari_shm_run(comm, &leave);
    }
    if (last) {
        dpari_shm_progress(comm, 0);
        while (node->open) {
            node->open->closing = 1;
            dpari_shm_lost(node->open);
            dpari_shm_drop(node->open);
        }
        dpari_node_close(node);
    } else {
        dpari_lock(node);
        if (comm->status == DPAR_OK) { /* a later communicator uses the member again */
            dpari_member *member = shm->group.member[comm->rank];
            member->counted = shm->group.sequence;
            member->next = node->spare;
            node->spare = shm->group.member_ref;
        }
        dpari_shm_drop(shm);
        dpari_unlock(node);
    }
    return lost ? DPAR_E_ARG : status;
}

static void dpari_engine_shm(dpar_engine *e); /* at the end of this file */

DPARI_API dpari_world *dpari_world_of(const dpar_comm *comm)
{
    return comm->engine.run == dpari_shm_run ? ((const dpari_group *)(const void *)comm)->world
                                             : NULL;
}

DPARI_API DPARI_COLD int dpari_shm_speaks(dpar_comm *comm)
{
    const dpari_shm *shm = dpari_shm_of(comm);
    return dpari_world_speaks(shm->group.world, (uint32_t)shm->generation + 1);
}

DPARI_INTERNAL DPARI_COLD void dpari_shm_lend(dpar_comm *world, int32_t lent)
{
    dpari_shm_of(world)->node->lent = lent;
}

/* A rank of a new communicator. */
typedef struct dpari_card {
    int32_t color, key; /* of a split; in a shrink, the key is the rank in the old communicator */
    int32_t world_rank;
    int32_t good;     /* 1 if it has memory for its member */
    uint64_t member;  /* ref of its member */
    int64_t sequence; /* the last sequence number that this member has used */
    int64_t id;       /* the smallest id that the communicator may have */
} dpari_card;

/* Makes a communicator of the ranks card[size], of which this one is number `rank`. from: the one
 * that it is split from or shrunk from; NULL for the world's. */
static dpar_status dpari_shm_make(dpari_node *node, const dpari_shm *from, const dpari_card *card,
                                  int32_t size, int32_t rank, dpar_comm **out)
{
    dpari_world *world = node->world;
    const int64_t pointers = size * (int64_t)sizeof(void *);
    const int64_t bytes = (int64_t)sizeof(dpari_shm) + 3 * pointers + (int64_t)sizeof(void *) +
                          size * (int64_t)sizeof(int32_t) + dpari_gate_bytes(size);
    dpari_shm *shm = (dpari_shm *)dpari_os_pages(bytes);
    dpari_group *group;
    if (!shm) {
        return DPAR_E_MEMORY;
    }
    group = &shm->group;
    shm->node = node;
    shm->bytes = bytes;
    group->world = world;
    group->slot_bytes = world->head->slot_bytes;
    group->member = (dpari_member **)(void *)(shm + 1);
    group->in = (const void **)(void *)(group->member + size);
    group->out = (void **)(void *)(group->in + size);
    /* `out` has size + 1 elements: a rank's own result and the places from which the others take
     * it */
    group->world_rank = (int32_t *)(void *)(group->out + size + 1);
    for (int32_t r = 0; r < size; r++) {
        group->member[r] = (dpari_member *)dpari_at(world, card[r].member);
        group->world_rank[r] = card[r].world_rank;
        group->sequence = dpari_most(group->sequence, card[r].sequence);
        group->id = (uint32_t)dpari_most(group->id, card[r].id);
        if (!group->member[r]) {
            world->lacks = DPARI_LACKS_ADDRESSES;
            dpari_os_unmap(shm, bytes);
            return DPAR_E_MEMORY;
        }
    }
    group->member_ref = card[rank].member;
    group->comm.rank = rank;
    group->comm.size = size;
    group->comm.timeout_s = from ? from->group.comm.timeout_s : world->timeout_s;
    shm->generation = from ? from->generation : 0;
    dpari_gate_cut(group, group->world_rank + size);
    dpari_engine_shm(&group->comm.engine);
    shm->next = node->open;
    node->open = shm;
    node->highest = group->id; /* so that no two groups that have two ranks in common have the same
                                  id */
    *out = &group->comm;
    return DPAR_OK;
}

/* Makes the world's communicator from the members that all ranks have published. */
static dpar_status dpari_shm_make_first(dpari_node *node, dpar_comm **out)
{
    const dpari_world *world = node->world;
    const int64_t bytes = world->size * (int64_t)sizeof(dpari_card);
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    dpar_status st;
    if (!card) {
        return DPAR_E_MEMORY;
    }
    for (int32_t i = 0; i < world->size; i++) {
        card[i].member = world->rank[i].member;
        card[i].world_rank = i;
    }
    st = dpari_shm_make(node, NULL, card, world->size, world->me, out);
    dpari_os_unmap(card, bytes);
    return st;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_shm_join(const dpari_segment *segment, int32_t me,
                                                     int32_t own, const dpar_world_desc *options,
                                                     dpar_comm **comm, dpar_why *why)
{
    dpari_node *node = dpari_node_make(segment, me, own, options);
    uint64_t member = 0;
    int64_t none = 0;
    dpar_text t;
    dpar_status status = node ? dpari_member_make(node, &member, &none) : DPAR_E_MEMORY;
    dpar_status entered = status == DPAR_OK ? dpari_world_enter(node->world, member, why) : DPAR_OK;
    if (status == DPAR_OK && entered == DPAR_OK) {
        status = dpari_shm_make_first(node, comm);
    }
    if (status != DPAR_OK) {
        dpari_text_why(&t, why);
        dpar_text_put(&t, "memory for this rank: ");
        dpari_put_lack(&t, node ? node->world : NULL);
    }
    if (!node) { /* so that the other ranks do not wait for this one */
        dpari_segment_ended(segment, me, 1);
    }
    if (status == DPAR_OK) {
        status = entered;
    }
    if (status != DPAR_OK && node) {
        node->world->owns = DPARI_OWNS_NOTHING;
        dpari_node_close(node);
    }
    return status;
}

/* Copies the cards of this rank's color to `mates`, ordered by key and then by rank. *rank is the
 * position of this rank. Returns how many there are. */
static int32_t dpari_split_mates(const dpari_card *card, int32_t n, int32_t me, dpari_card *mates,
                                 int32_t *rank)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t place = 0;
        if (card[i].color != card[me].color) {
            continue;
        }
        for (int32_t j = 0; j < n; j++) {
            const int before = card[j].key < card[i].key || (card[j].key == card[i].key && j < i);
            place += card[j].color == card[me].color && before;
        }
        mates[place] = card[i];
        *rank = i == me ? place : *rank;
        count++;
    }
    return count;
}

static dpar_status dpari_split_failed(dpar_comm *comm, int32_t rank)
{
    dpar_text t;
    dpari_text_why(&t, &comm->why);
    dpari_text_print(&t, "split: rank %d has no memory for a communicator", rank);
    if (rank == comm->rank) {
        dpar_text_put(&t, ": ");
        dpari_put_lack(&t, dpari_group_of(comm)->world);
    }
    return DPAR_E_MEMORY;
}

static DPARI_COLD dpar_status dpari_shm_split(dpar_comm *comm, int32_t color, int32_t key,
                                              dpar_comm **out)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_node *node = shm->node;
    const int64_t bytes = 2 * comm->size * (int64_t)sizeof(dpari_card);
    dpari_card mine;
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    dpar_call call;
    dpar_status status;
    memset(&mine, 0, sizeof mine);
    mine.color = color;
    mine.key = key;
    mine.world_rank = node->world->me;
    dpari_lock(node);
    mine.good = color < 0 || dpari_member_make(node, &mine.member, &mine.sequence) == DPAR_OK;
    dpari_unlock(node);
    mine.id = (int64_t)node->highest + 1;
    if (!card) {
        return dpari_split_failed(comm, comm->rank); /* the others fail with a timeout */
    }
    call = dpari_call(DPAR_CALL_ALL_GATHER, &mine, card, (int64_t)sizeof mine, DPAR_U8);
    call.root = DPARI_SPLIT; /* so that it does not match an all-gather of the user */
    status = dpari_shm_run(comm, &call);
    for (int32_t r = 0; r < comm->size && status == DPAR_OK; r++) {
        status = card[r].good ? DPAR_OK : dpari_split_failed(comm, r);
    }
    if (status == DPAR_OK && color >= 0) {
        dpari_card *mates = card + comm->size;
        int32_t rank = 0;
        const int32_t size = dpari_split_mates(card, comm->size, comm->rank, mates, &rank);
        dpari_lock(node);
        status = dpari_shm_make(node, shm, mates, size, rank, out);
        dpari_unlock(node);
        if (status != DPAR_OK) {
            status = dpari_split_failed(comm, comm->rank);
        }
    } else if (status == DPAR_OK) {
        *out = NULL;
    }
    dpari_os_unmap(card, bytes);
    return status;
}

/* ---- shrinking --------------------------------------------------------------------------------
 *
 * The new communicator belongs to the same world and has members that the ranks which are left
 * behind do not know. Such a rank may only be stopped, in the middle of a copy into memory of its
 * operation. The memory that this rank's heap has used so far is therefore not allocated again,
 * unless all ranks that are left behind are dead. */

/* Waits until all ranks have voted or the deadline has passed. */
static void dpari_shrink_wait(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    dpari_world *world = group->world;
    dpari_wait t;
    int32_t known = 0, before = 0;
    int late = 0;
    memset(&t, 0, sizeof t);
    while (!late && known < group->comm.size && !dpari_vote_is_decided(group)) {
        dpar_status passed;
        dpari_unlock(shm->node);
        passed = dpari_wait_turn(world, &t, -1);
        dpari_lock(shm->node);
        known = dpari_vote_known(group, passed == DPAR_MORE);
        if (passed == DPAR_MORE) {
            const double now = dpari_os_now();
            dpari_wait_says(world, -1);
            dpari_progress_all(shm->node);
            t.began = known != before ? now : t.began;
            late = group->comm.timeout_s > 0.0 && now - t.began > group->comm.timeout_s;
            before = known;
        }
    }
    dpari_wait_end(world, &t);
}

/* Appends the ranks that stay: "rank 1, 3". */
static void dpari_put_stayers(dpar_text *text, const dpari_group *group, const uint64_t *stay)
{
    int32_t named = 0;
    for (int32_t r = 0; r < group->comm.size && text->used + 40 < text->capacity; r++) {
        if (dpari_vote_stays(stay, r)) {
            dpari_text_print(text, "%s%d", named++ ? ", " : "rank ", r);
        }
    }
}

static dpar_status dpari_shrink_late(const dpari_group *group, const uint64_t *stay, dpar_why *why)
{
    dpar_text t;
    dpari_text_why(&t, why);
    dpar_text_put(&t, "shrink: ");
    dpari_put_rank(&t, group, group->comm.rank);
    dpar_text_put(&t, " arrived too late: the others continue without it: ");
    dpari_put_stayers(&t, group, stay);
    return DPAR_E_TIMEOUT;
}

/* Marks the ranks that are left behind, for the launcher. If all of them are dead, this rank's heap
 * may be allocated again from floor_before on. */
static void dpari_shrink_leave(const dpari_group *group, const uint64_t *stay, int64_t floor_before)
{
    dpari_world *world = group->world;
    int alive = 0;
    for (int32_t r = 0; r < group->comm.size; r++) {
        if (!dpari_vote_stays(stay, r)) {
            DPARI_STORE(&world->rank[group->world_rank[r]].behind, 1U);
            alive |= dpari_rank_state(world, group->world_rank[r]) == DPARI_RANK_HERE;
        }
    }
    world->floor = alive ? world->floor : floor_before;
}

static dpar_status dpari_shrink_make(dpari_shm *shm, const uint64_t *stay, dpar_comm **out,
                                     int32_t *was)
{
    dpari_group *group = &shm->group;
    const int64_t bytes = group->comm.size * (int64_t)sizeof(dpari_card);
    dpari_card *card = (dpari_card *)dpari_os_pages(bytes);
    int32_t size = 0, rank = 0;
    dpar_status status;
    if (!card) {
        return DPAR_E_MEMORY;
    }
    for (int32_t r = 0; r < group->comm.size; r++) {
        const dpari_vote *v = &group->member[r]->vote;
        if (dpari_vote_stays(stay, r)) {
            rank = r == group->comm.rank ? size : rank;
            card[size].key = r;
            card[size].world_rank = group->world_rank[r];
            card[size].member = v->member;
            card[size].sequence = v->sequence;
            card[size++].id = v->id;
        }
    }
    status = dpari_shm_make(shm->node, shm, card, size, rank, out);
    if (status == DPAR_OK) {
        dpari_shm_of(*out)->generation++;
        for (int32_t r = 0; r < size && was; r++) {
            was[r] = card[r].key;
        }
    }
    dpari_os_unmap(card, bytes);
    return status;
}

/* Fails all operations that are posted on the communicator, on all ranks. */
static void dpari_shrink_break(dpari_shm *shm)
{
    dpari_group *group = &shm->group;
    dpar_why why;
    dpar_text t;
    if (dpari_group_broken(group) == DPAR_OK) {
        dpari_text_why(&t, &why);
        dpari_put_rank(&t, group, group->comm.rank);
        dpar_text_put(&t, " shrinks this communicator");
        dpari_group_break(group, DPAR_E_PEER, why.text);
    }
    dpari_shm_lost(shm);
}

/* Publishes this rank's vote, with a member for its next communicator. */
static dpar_status dpari_shrink_vote(dpari_shm *shm, dpar_why *why)
{
    dpari_group *group = &shm->group;
    dpari_node *node = shm->node;
    dpari_vote *v = &group->member[group->comm.rank]->vote;
    dpar_status status;
    shm->voted = 1;
    dpari_shrink_break(shm);
    node->world->floor = node->world->fresh;
    status = dpari_member_make(node, &v->member, &v->sequence);
    v->id = (int64_t)node->highest + 1;
    dpari_vote_cast(group, status == DPAR_OK ? DPARI_VOTE_STAYS : DPARI_VOTE_LEAVES);
    if (status != DPAR_OK) {
        return dpari_say(status, why, "shrink: rank %d has no memory for a communicator",
                         group->comm.rank);
    }
    return DPAR_OK;
}

static DPARI_COLD dpar_status dpari_shm_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                               dpar_why *why)
{
    dpari_shm *shm = dpari_shm_of(comm);
    dpari_group *group = &shm->group;
    const int64_t floor_before = shm->node->world->floor;
    const uint64_t *stay;
    dpar_status status;
    if (shm->voted) {
        return dpari_wrong(why, "shrink: rank %d has shrunk this communicator before", comm->rank);
    }
    dpari_lock(shm->node);
    status = dpari_shrink_vote(shm, why);
    if (status == DPAR_OK) {
        dpari_shrink_wait(shm);
        stay = dpari_vote_decide(group);
        if (!dpari_vote_stays(stay, comm->rank)) {
            status = dpari_shrink_late(group, stay, why);
        } else {
            dpari_shrink_leave(group, stay, floor_before);
            status = dpari_shrink_make(shm, stay, out, was);
            if (status != DPAR_OK) {
                (void)dpari_say(status, why, "shrink: rank %d has no memory for a communicator",
                                comm->rank);
            }
        }
    }
    dpari_unlock(shm->node);
    return status;
}

/* ---- the engine ------------------------------------------------------------------------------ */

static void dpari_engine_shm(dpar_engine *e)
{
    memset(e, 0, sizeof *e);
    memcpy(e->name, "shm", 4);
    e->run = dpari_shm_run;
    e->post = dpari_shm_post;
    e->test = dpari_shm_test;
    e->wait = dpari_shm_wait;
    e->batch = dpari_shm_batch;
    e->split = dpari_shm_split;
    e->shrink = dpari_shm_shrink;
    e->alloc = dpari_shm_alloc;
    e->release = dpari_shm_release;
    e->progress = dpari_shm_progress;
    e->abort = dpari_shm_abort;
    e->report = dpari_shm_report;
    e->describe = dpari_shm_describe;
    e->close = dpari_shm_close;
}

/* ==== comm/peer_arrays.c ==== */

/* Lets a rank read the registered arrays of all other ranks in place. peer_arrays.h has the calls
 * in order.
 *
 * Ranks exchange references to their arrays in an all-gather, and then read what they need. A final
 * barrier ensures that no rank changes its array while others read it. If any array is not in
 * registered memory, all ranks find that out in the all-gather and use an all-to-all instead.
 * Called by train/expert_rows.c and train/ulysses.c. */

/* Copies of at least this many bytes use streaming stores, which bypass the cache. */
#define DPARI_PEERS_STREAM (INT64_C(4) << 20)

/* Gathers the references of all ranks. Does not call dpar_all_gather, because comm->sent must not
 * count this. */
static dpar_status dpari_peers_tell(dpar_comm *comm, int32_t tag, const dpari_peer *mine,
                                    dpari_peer *peer)
{
    const int64_t count = (int64_t)(sizeof *mine / 8);
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, mine, peer, count, DPAR_U64);
    call.tag = tag;
    return comm->engine.run(comm, &call);
}

DPARI_API DPARI_COLD dpar_status dpari_peers_open(dpari_peers *peers, dpar_comm *comm, int32_t tag,
                                                  const dpari_peers_array *array, int32_t n,
                                                  dpari_peer *peer)
{
    const dpari_world *world = comm->mem == NULL ? dpari_world_of(comm) : NULL;
    dpari_peer mine;
    dpar_status st = comm->status;
    int32_t i;
    peers->comm = comm;
    peers->peer = peer;
    peers->direct = 0;
    if (st != DPAR_OK || world == NULL || (world->head->plain & DPAR_WORLD_NO_DIRECT)) {
        return st;
    }
    dpari_zero(&mine, sizeof mine);
    mine.reach = comm->mem == NULL;
    for (i = 0; i < n; i++) {
        if (array[i].bytes > 0) {
            mine.ref[i] = dpari_ref(world, array[i].at, array[i].bytes);
            mine.reach &= mine.ref[i] != 0;
        }
    }
    st = dpari_peers_tell(comm, tag, &mine, peer);
    peers->direct = st == DPAR_OK;
    for (i = 0; i < comm->size && peers->direct; i++) {
        peers->direct = peer[i].reach != 0;
    }
    for (i = 0; i < comm->size * DPARI_PEERS_MOST && peers->direct; i++) {
        const uint64_t ref = peer[i / DPARI_PEERS_MOST].ref[i % DPARI_PEERS_MOST];
        if (ref != 0 && dpari_at(world, ref) == NULL) {
            return dpari_group_unmapped(dpari_group_of(comm), NULL, ref);
        }
    }
    return st;
}

DPARI_API const void *dpari_peers_at(const dpari_peers *peers, int32_t rank, int32_t i)
{
    const uint64_t ref = peers->peer[rank].ref[i];
    return ref != 0 ? dpari_at(dpari_world_of(peers->comm), ref) : NULL;
}

DPARI_API DPARI_COLD dpar_status dpari_peers_close(const dpari_peers *peers, int64_t sent)
{
    const dpar_status st = dpar_barrier(peers->comm, NULL);
    if (st == DPAR_OK) {
        peers->comm->sent[DPAR_CALL_ALL_TO_ALL] += sent;
    }
    return st;
}

DPARI_API int32_t dpari_peers_stream(const dpari_peers *peers, int64_t bytes)
{
    return bytes >= DPARI_PEERS_STREAM &&
           !(dpari_world_of(peers->comm)->head->plain & DPAR_WORLD_NO_STREAMING_STORES);
}

/* ==== comm/job.c ==== */

/* Finds out which launcher started this process, and its rank and size.
 *
 * A table has a row of environment variables for each launcher. Because launchers start each other
 * and set each other's variables (Slurm sets PMI variables for an MPI, for example), dpari_job_seen
 * decides which launcher really started the job. All numbers are then taken from the row of that
 * launcher. Variables and files are read through a dpari_site, which tests replace. Called by
 * dpar_launcher_detect, and by launch.c and simple.c. */

/* The name of one launcher in messages, and its variables. A variable is read if those before it
 * are not set; missing ones are NULL. */
typedef struct dpari_job_row {
    const char *title;
    const char *rank[3], *size[3], *local_rank[3], *local_size[3];
} dpari_job_row;

/* Does what getenv does, which the library does not call (tools/lint). */
static DPARI_COLD const char *dpari_job_environ(const void *user, const char *name)
{
    char **at = dpari_os_environment();
    size_t n = dpari_length(name);
    (void)user;
    for (; at != NULL && *at != NULL; at++) {
        size_t i = 0;
        while (i < n && (*at)[i] == name[i]) {
            i++;
        }
        if (i == n && (*at)[n] == '=') {
            return *at + n + 1;
        }
    }
    return NULL;
}

DPARI_API DPARI_COLD void dpari_site_here(dpari_site *site)
{
    site->env = dpari_job_environ;
    site->user = NULL;
    site->root = "";
}

DPARI_API DPARI_COLD const char *dpari_site_env(const dpari_site *site, const char *name)
{
    return site->env(site->user, name);
}

DPARI_API DPARI_COLD int64_t dpari_site_read(const dpari_site *site, const char *path, char *text,
                                             size_t room)
{
    char full[512];
    dpar_text t;
    dpar_text_init(&t, full, sizeof full);
    dpari_text_print(&t, "%s%s", site->root, path);
    if (t.used >= sizeof full || room == 0) {
        return -1;
    }
    return dpari_os_text(full, text, room);
}

DPARI_API DPARI_COLD int dpari_job_number(const char *text, int64_t most, int64_t *value)
{
    int64_t v;
    const char *end = dpari_os_digits(text, &v);
    if (end == text || *end != 0 || v > most || v == INT64_MAX) {
        return 0;
    }
    *value = v;
    return 1;
}

/* Reads digits at text[*at] and moves *at past them. Returns 0 if there are none or the value is
 * above INT32_MAX. */
static int dpari_job_digits(const char *text, size_t *at, int32_t *value)
{
    int64_t v;
    const char *begin = text + *at, *end = dpari_os_digits(begin, &v);
    if (end == begin || v > INT32_MAX) {
        return 0;
    }
    *at += (size_t)(end - begin);
    *value = (int32_t)v;
    return 1;
}

/* Reads one "4" or "4(x2)" at text[*at] and the comma after it, and moves *at past them. Returns 0
 * if the text has another form. */
static int dpari_job_group(const char *text, size_t *at, int32_t *tasks, int32_t *times)
{
    size_t i = *at;
    *times = 1;
    if (!dpari_job_digits(text, &i, tasks)) {
        return 0;
    }
    if (text[i] == '(') {
        i++;
        if (text[i++] != 'x' || !dpari_job_digits(text, &i, times) || text[i++] != ')') {
            return 0;
        }
    }
    if (text[i] == ',' && text[i + 1] != 0) {
        i++;
    } else if (text[i] != 0) {
        return 0;
    }
    *at = i;
    return *times > 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_job_tasks(const char *text, int32_t node, int32_t *tasks,
                                              int32_t *nodes)
{
    int32_t count = 0, found = -1, here, times;
    size_t at = 0;
    int same = 1;
    while (text[at] != 0) {
        if (!dpari_job_group(text, &at, &here, &times) || times > INT32_MAX - count) {
            return 0;
        }
        if (node >= count && node - count < times) {
            found = here;
        }
        if (node < 0) {
            same = same && (found < 0 || found == here);
            found = here;
        }
        count += times;
    }
    if (found < 0 || !same) {
        return 0;
    }
    *tasks = found;
    *nodes = count;
    return 1;
}

static dpari_job_row dpari_job_row_make(const char *title, const char *rank, const char *size,
                                        const char *local_rank, const char *local_size)
{
    dpari_job_row row;
    dpari_zero(&row, sizeof row);
    row.title = title;
    row.rank[0] = rank;
    row.size[0] = size;
    row.local_rank[0] = local_rank;
    row.local_size[0] = local_size;
    return row;
}

/* The table. */
DPARI_STATIC_NOINLINE DPARI_COLD dpari_job_row dpari_job_row_of(int32_t launcher)
{
    dpari_job_row row;
    switch (launcher) {
    case DPAR_LAUNCHER_NONE: return dpari_job_row_make("none", NULL, NULL, NULL, NULL);
    case DPAR_LAUNCHER_DPAR:
        return dpari_job_row_make("dpar", "DPAR_RANK", "DPAR_SIZE", "DPAR_LOCAL_RANK",
                                  "DPAR_LOCAL_SIZE");
    case DPAR_LAUNCHER_TORCHRUN:
        return dpari_job_row_make("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                                  "LOCAL_WORLD_SIZE");
    case DPAR_LAUNCHER_OPENMPI:
        return dpari_job_row_make("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                  "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    case DPAR_LAUNCHER_HYDRA:
        return dpari_job_row_make("Hydra (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE",
                                  "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    case DPAR_LAUNCHER_PALS:
        row = dpari_job_row_make("PALS (Cray)", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK",
                                 "PMI_LOCAL_SIZE");
        row.rank[1] = "PALS_RANKID";
        row.size[1] = "PALS_NRANKS";
        row.size[2] = "PALS_SIZE";
        row.local_rank[1] = "PALS_LOCAL_RANKID";
        row.local_size[1] = "PALS_LOCAL_SIZE";
        return row;
    case DPAR_LAUNCHER_MVAPICH:
        return dpari_job_row_make("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                                  "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE");
    case DPAR_LAUNCHER_FLUX:
        return dpari_job_row_make("Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID",
                                  NULL);
    case DPAR_LAUNCHER_JSRUN:
        return dpari_job_row_make("jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
                                  "JSM_NAMESPACE_LOCAL_RANK", NULL);
    case DPAR_LAUNCHER_SLURM:
        return dpari_job_row_make("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                                  NULL);
    default: return dpari_job_row_make("?", NULL, NULL, NULL, NULL);
    }
}

DPARI_API DPARI_COLD const char *dpari_launcher_name(int32_t launcher)
{
    return dpari_job_row_of(launcher).title;
}

/* Returns the text of the first of up to n names that is set and sets *name to that name, or
 * returns NULL. */
static const char *dpari_job_pick(const dpari_site *site, const char *const *names, int n,
                                  const char **name)
{
    int i;
    *name = names[0];
    for (i = 0; i < n && names[i] != NULL; i++) {
        const char *text = dpari_site_env(site, names[i]);
        if (text != NULL) {
            *name = names[i];
            return text;
        }
    }
    return NULL;
}

static int dpari_job_has(const dpari_site *site, const char *name)
{
    return dpari_site_env(site, name) != NULL;
}

/* True if both variables are set to the same text. */
static int dpari_job_equal(const dpari_site *site, const char *a, const char *b)
{
    const char *x = dpari_site_env(site, a), *y = dpari_site_env(site, b);
    return x != NULL && y != NULL && dpari_same(x, y);
}

/* True in a step of Slurm that runs ranks. The batch script and the shell of an allocation are in
 * no step, or in a special step, whose number is 2^32 - 16 or more. */
static int dpari_job_in_step(const dpari_site *site)
{
    const char *step = dpari_site_env(site, "SLURM_STEP_ID");
    int64_t number;
    return step != NULL && dpari_job_has(site, "SLURM_STEP_NUM_TASKS") &&
           !(dpari_job_number(step, INT64_MAX, &number) && number >= INT64_C(4294967280));
}

/* True if PMI or PALS variables are set and agree with the variables `rank` and `size`. */
static int dpari_job_is_of(const dpari_site *site, const char *rank, const char *size)
{
    const int pmi = dpari_job_has(site, "PMI_RANK"), pals = dpari_job_has(site, "PALS_RANKID");
    return (pmi || pals) && (!pmi || dpari_job_equal(site, "PMI_RANK", rank)) &&
           (!pals || dpari_job_equal(site, "PALS_RANKID", rank)) &&
           (!dpari_job_has(site, "PMI_SIZE") || dpari_job_equal(site, "PMI_SIZE", size));
}

/* True if Slurm (--mpi=pmi2, cray_shasta) or Flux set the PMI or PALS variables for the MPI of
 * their jobs. PALS_RANKID may then lack a size, whereas the row of Slurm or Flux is complete and
 * has the nodes, so it is used. False if Hydra's own variables are set. */
static int dpari_job_serves(const dpari_site *site)
{
    return !dpari_job_has(site, "MPI_LOCALNRANKS") && !dpari_job_has(site, "MPI_LOCALRANKID") &&
           ((dpari_job_in_step(site) &&
             dpari_job_is_of(site, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")) ||
            dpari_job_is_of(site, "FLUX_TASK_RANK", "FLUX_JOB_SIZE"));
}

static int dpari_job_is_pals(const dpari_site *site)
{
    return dpari_job_has(site, "PALS_RANKID") || dpari_job_has(site, "PALS_APID") ||
           dpari_job_has(site, "PMI_LOCAL_RANK");
}

/* Splits "fd.pid". Returns 0 if the text has another form. */
static int dpari_job_segment_read(const char *text, int32_t *fd, int32_t *pid)
{
    size_t at = 0;
    if (!dpari_job_digits(text, &at, fd) || text[at++] != '.') {
        return 0;
    }
    return dpari_job_digits(text, &at, pid) && text[at] == 0;
}

DPARI_INTERNAL DPARI_COLD int dpari_job_segment(const dpari_site *site)
{
    const char *text = dpari_site_env(site, DPARI_JOB_SEGMENT);
    int32_t fd, pid;
    if (text == NULL || !dpari_job_segment_read(text, &fd, &pid) || pid != (int32_t)getpid()) {
        return -1;
    }
    return fd;
}

/* True if DPAR_RANK and DPAR_SIZE belong to another process, a rank of dpar_init_or_launch that
 * started this process as its child. */
static int dpari_job_is_anothers(const dpari_site *site)
{
    return dpari_job_has(site, DPARI_JOB_SEGMENT) && dpari_job_segment(site) < 0;
}

/* True if this launcher started the process, by the variables that it sets. */
DPARI_STATIC_NOINLINE int dpari_job_seen(const dpari_site *site, int32_t launcher)
{
    switch (launcher) {
    case DPAR_LAUNCHER_DPAR:
        return (dpari_job_has(site, "DPAR_RANK") || dpari_job_has(site, "DPAR_SIZE")) &&
               !dpari_job_is_anothers(site);
    case DPAR_LAUNCHER_TORCHRUN: return dpari_job_has(site, "RANK");
    case DPAR_LAUNCHER_OPENMPI: return dpari_job_has(site, "OMPI_COMM_WORLD_RANK");
    case DPAR_LAUNCHER_HYDRA:
        return dpari_job_has(site, "PMI_RANK") &&
               (dpari_job_has(site, "MPI_LOCALRANKID") ||
                (!dpari_job_is_pals(site) && !dpari_job_serves(site)));
    case DPAR_LAUNCHER_PALS:
        return !dpari_job_serves(site) &&
               (dpari_job_has(site, "PALS_RANKID") ||
                (dpari_job_has(site, "PMI_RANK") && dpari_job_is_pals(site)));
    case DPAR_LAUNCHER_MVAPICH: return dpari_job_has(site, "MV2_COMM_WORLD_RANK");
    case DPAR_LAUNCHER_FLUX: return dpari_job_has(site, "FLUX_TASK_RANK");
    case DPAR_LAUNCHER_JSRUN: return dpari_job_has(site, "JSM_NAMESPACE_RANK");
    case DPAR_LAUNCHER_SLURM: return dpari_job_in_step(site);
    default: return 0;
    }
}

/* Counts the lines that are not empty in the file that PBS_NODEFILE names, which has a line for
 * each rank. Returns 0 if there is no such file. */
static int32_t dpari_job_nodefile(const dpari_site *site)
{
    const char *path = dpari_site_env(site, "PBS_NODEFILE");
    char text[4096];
    dpari_site other = *site;
    int64_t bytes, i, lines = 0;
    if (path == NULL) {
        return 0;
    }
    bytes = dpari_site_read(&other, path, text, sizeof text);
    if (bytes < 0 || bytes >= (int64_t)sizeof text - 1) {
        return 0; /* a job with such a large file runs on several nodes anyway */
    }
    for (i = 0; i < bytes; i++) {
        lines += text[i] != '\n' && (text[i + 1] == '\n' || text[i + 1] == 0);
    }
    return (int32_t)lines;
}

/* Reads a number of a row into *value, or sets it to `absent` if none of the names is set. */
static dpar_status dpari_job_value(const dpari_site *site, const char *const *names, int n,
                                   int32_t absent, int32_t *value, dpar_why *why)
{
    const char *name, *text = dpari_job_pick(site, names, n, &name);
    int64_t v;
    if (text == NULL) {
        *value = absent;
        return DPAR_OK;
    }
    if (!dpari_job_number(text, INT32_MAX, &v)) {
        return dpari_wrong(why, "%s is \"%s\", not a whole number from 0 to 2147483647", name,
                           text);
    }
    *value = (int32_t)v;
    return DPAR_OK;
}

/* Reads the four numbers of a launcher, or -1 for a number that is not set. Fails if the rank or
 * the size is missing. */
DPARI_STATIC_NOINLINE dpar_status dpari_job_take(const dpari_site *site, int32_t launcher,
                                                 dpar_launcher_info *job, dpar_why *why)
{
    const dpari_job_row row = dpari_job_row_of(launcher);
    const char *const *const names[] = {row.rank, row.size, row.local_rank, row.local_size};
    int32_t *const values[] = {&job->rank, &job->size, &job->local_rank, &job->local_size};
    dpar_status status = DPAR_OK;
    for (int i = 0; i < 4 && status == DPAR_OK; i++) {
        status = dpari_job_value(site, names[i], 3, -1, values[i], why);
    }
    if (status == DPAR_OK && job->size < 0 && launcher == DPAR_LAUNCHER_PALS) {
        job->size = dpari_job_nodefile(site);
        job->size = job->size > 0 ? job->size : -1;
    }
    if (status == DPAR_OK && (job->rank < 0 || job->size < 0)) {
        const char *present = job->rank < 0 ? row.size[0] : row.rank[0];
        const char *missing = job->rank < 0 ? row.rank[0] : row.size[0];
        if (launcher == DPAR_LAUNCHER_PALS && job->rank >= 0) {
            dpari_job_pick(site, row.rank, 3, &present);
            missing = "none of PMI_SIZE, PALS_NRANKS, PALS_SIZE, PBS_NODEFILE";
            return dpari_wrong(why, "%s: %s is set but %s", row.title, present, missing);
        }
        return dpari_wrong(why, "%s: %s is set but %s is not: set both, or neither for one rank",
                           row.title, present, missing);
    }
    return status;
}

/* Reads the number of nodes, the only such number that Flux sets. If it divides the number of
 * ranks, all nodes have equally many ranks. */
static dpar_status dpari_job_flux(const dpari_site *site, dpar_launcher_info *job, int32_t *nodes,
                                  dpar_why *why)
{
    const char *name = "FLUX_JOB_NNODES";
    dpar_status status = dpari_job_value(site, &name, 1, 0, nodes, why);
    if (status == DPAR_OK && *nodes > 0 && job->size % *nodes == 0) {
        job->local_size = job->size / *nodes;
    }
    return status;
}

static dpar_status dpari_job_slurm(const dpari_site *site, dpar_launcher_info *job, int32_t *nodes,
                                   dpar_why *why)
{
    const char *name = "SLURM_NODEID", *text = dpari_site_env(site, "SLURM_STEP_TASKS_PER_NODE");
    int32_t node;
    dpar_status status = dpari_job_value(site, &name, 1, -1, &node, why);
    if (status != DPAR_OK || text == NULL) {
        return status;
    }
    if (!dpari_job_tasks(text, node, &job->local_size, nodes)) {
        return dpari_wrong(why,
                           "SLURM_STEP_TASKS_PER_NODE is \"%s\", which does not contain the number "
                           "of tasks of this node%s",
                           text, node < 0 ? " (SLURM_NODEID is not set)" : "");
    }
    return DPAR_OK;
}

/* Checks that the numbers of a launcher are consistent. */
static dpar_status dpari_job_is_sound(const dpar_launcher_info *job, dpar_why *why)
{
    const char *name = dpari_launcher_name(job->kind);
    if (job->size < 1) {
        return dpari_wrong(why, "%s: the job has %d ranks, but must have at least 1", name,
                           job->size);
    }
    if (job->rank >= job->size) {
        return dpari_wrong(why, "%s: rank %d is not in a job of %d ranks (0 .. %d)", name,
                           job->rank, job->size, job->size - 1);
    }
    if (job->local_size == 0 || job->local_size > job->size) {
        return dpari_wrong(why, "%s: %d ranks on this node, but %d in the whole job", name,
                           job->local_size, job->size);
    }
    if (job->local_rank >= (job->local_size > 0 ? job->local_size : job->size)) {
        return dpari_wrong(why, "%s: local rank %d does not fit %d ranks on the node", name,
                           job->local_rank, job->local_size > 0 ? job->local_size : job->size);
    }
    return DPAR_OK;
}

/* If the variable is set and not empty, appends `before` and its text. */
static void dpari_job_part(const dpari_site *site, dpar_text *out, const char *before,
                           const char *name)
{
    const char *text = dpari_site_env(site, name);
    if (text != NULL && text[0] != 0) {
        dpari_text_print(out, "%s%s", before, text);
    }
}

/* Appends what distinguishes this job from other jobs of the same user, such as job and step
 * numbers. Appends nothing if no variable contains that. */
static void dpari_job_id(const dpari_site *site, int32_t launcher, dpar_text *text)
{
    switch (launcher) {
    case DPAR_LAUNCHER_DPAR: dpari_job_part(site, text, "", "DPAR_JOB"); break;
    case DPAR_LAUNCHER_TORCHRUN:
        if (dpari_job_has(site, "MASTER_PORT") || dpari_job_has(site, "TORCHELASTIC_RUN_ID")) {
            dpari_job_part(site, text, "", "TORCHELASTIC_RUN_ID");
            dpari_job_part(site, text, "@", "MASTER_ADDR");
            dpari_job_part(site, text, ":", "MASTER_PORT");
            dpari_job_part(site, text, "#", "TORCHELASTIC_RESTART_COUNT");
        }
        break;
    case DPAR_LAUNCHER_OPENMPI:
        dpari_job_part(site, text, "",
                       dpari_job_has(site, "PMIX_NAMESPACE") ? "PMIX_NAMESPACE"
                                                             : "OMPI_MCA_ess_base_jobid");
        break;
    case DPAR_LAUNCHER_PALS:
        if (dpari_job_has(site, "PALS_APID")) {
            dpari_job_part(site, text, "", "PBS_JOBID");
            dpari_job_part(site, text, "+", "PALS_APID");
        }
        break;
    case DPAR_LAUNCHER_MVAPICH:
        if (dpari_job_has(site, "MPIRUN_ID")) {
            dpari_job_part(site, text, "", "MPIRUN_HOST");
            dpari_job_part(site, text, ":", "MPIRUN_ID");
        }
        break;
    case DPAR_LAUNCHER_FLUX: dpari_job_part(site, text, "", "FLUX_JOB_ID"); break;
    case DPAR_LAUNCHER_JSRUN:
        dpari_job_part(site, text, "", "LSB_JOBID");
        dpari_job_part(site, text, ".", "JSM_NAMESPACE_ID");
        break;
    case DPAR_LAUNCHER_SLURM:
        dpari_job_part(site, text, "",
                       dpari_job_has(site, "SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID");
        dpari_job_part(site, text, ".", "SLURM_STEP_ID");
        break;
    default: break; /* Hydra sets no such variable */
    }
}

/* Stores the id. If it has 64 characters or more, stores its first 46, a '~' and 16 hexadecimal
 * digits of the hash of the whole id. */
static void dpari_job_fold(const char *text, size_t n, char id[64])
{
    dpar_text digits;
    dpari_copy_text(id, 64, text, n);
    if (n >= 64) {
        id[46] = '~';
        dpar_text_init(&digits, id + 47, 17);
        dpari_os_put_hex(&digits, dpari_os_hash(DPARI_OS_HASH, text, n));
    }
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_job_from(const dpari_site *site,
                                                     dpar_launcher_info *job, int32_t *nodes,
                                                     dpar_why *why)
{
    dpar_launcher_info found;
    dpar_status status = DPAR_OK;
    char id[512];
    dpar_text t;
    int32_t l = DPAR_LAUNCHER_DPAR, many = 0;
    while (l < DPAR_LAUNCHER_COUNT && !dpari_job_seen(site, l)) {
        l++;
    }
    dpari_zero(&found, sizeof found);
    found.size = found.local_size = 1;
    if (l == DPAR_LAUNCHER_COUNT && dpari_job_has(site, "PMIX_RANK")) {
        return dpari_wrong(why, "PMIX_RANK is set but no variable has the number of ranks: start "
                                "with mpirun or srun, or set DPAR_RANK, DPAR_SIZE and DPAR_JOB");
    }
    if (l < DPAR_LAUNCHER_COUNT) {
        found.kind = l;
        status = dpari_job_take(site, l, &found, why);
        if (status == DPAR_OK && l == DPAR_LAUNCHER_FLUX) {
            status = dpari_job_flux(site, &found, &many, why);
        } else if (status == DPAR_OK && l == DPAR_LAUNCHER_SLURM) {
            status = dpari_job_slurm(site, &found, &many, why);
        }
        if (status == DPAR_OK) {
            status = dpari_job_is_sound(&found, why);
        }
        dpar_text_init(&t, id, sizeof id);
        dpari_job_id(site, l, &t);
        if (status == DPAR_OK && t.used >= sizeof id) { /* cut off, two jobs might have the same
                                                           id */
            status = dpari_wrong(
                why, "the name of this job has %ld characters, but at most %ld are allowed",
                (int64_t)t.used, (int64_t)sizeof id - 1);
        }
        dpari_job_fold(id, dpari_length(id), found.id);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (many == 0 && found.local_size == found.size) {
        many = 1;
    }
    *job = found;
    *nodes = many;
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD int64_t dpari_job_process(int64_t pid, int32_t wanted)
{
    char path[64], text[512];
    const char *at;
    dpar_text t;
    int64_t field = 2, value;
    dpar_text_init(&t, path, sizeof path);
    dpari_text_print(&t, "/proc/%ld/stat", pid);
    (void)dpari_os_text(path, text, sizeof text);
    at = strchr(text, ')'); /* the end of field 2, the name in parentheses, which may have some */
    if (at == NULL) {
        return 0;
    }
    while (strchr(at + 1, ')') != NULL) {
        at = strchr(at + 1, ')');
    }
    for (; *at != 0 && field < wanted; at++) {
        field += *at == ' ';
    }
    (void)dpari_os_digits(at, &value);
    return wanted == DPARI_PROCESS_STATE ? *at : value;
}

/* Returns the pid of the process at the other end of the socket in PMI_FD, or 0 if unknown. That
 * process is Hydra's proxy, which all ranks of a node have in common, even if other processes run
 * between it and them. */
static int64_t dpari_job_proxy(const dpari_site *site)
{
    const char *text = dpari_site_env(site, "PMI_FD");
    int64_t fd, pid, user;
    if (text == NULL || !dpari_job_number(text, INT32_MAX, &fd) ||
        dpari_os_peer((int)fd, &pid, &user) != 0) {
        return 0;
    }
    return dpari_most(pid, 0);
}

DPARI_API DPARI_COLD dpar_status dpari_job_here(dpar_launcher_info *job, int32_t *nodes,
                                                dpar_why *why)
{
    dpari_site here;
    dpar_text t;
    dpar_status status;
    int64_t starter = 0;
    dpari_site_here(&here);
    status = dpari_job_from(&here, job, nodes, why);
    if (status != DPAR_OK || job->id[0] != 0) {
        return status;
    }
    /* No variable distinguishes this job from others, so the process that started its ranks must.
     * Because pids are reused, the id also has the time at which that process started. */
    if (job->kind == DPAR_LAUNCHER_HYDRA) {
        starter = dpari_job_proxy(&here);
    }
    if (job->kind == DPAR_LAUNCHER_NONE) {
        starter = (int64_t)getpid();
    }
    starter = starter > 0 ? starter : (int64_t)getppid();
    dpar_text_init(&t, job->id, sizeof job->id);
    dpari_text_print(&t, "process %ld of %ld", starter,
                     dpari_job_process(starter, DPARI_PROCESS_STARTED));
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_launcher_detect(dpar_launcher_info *job, dpar_why *why)
{
    int32_t nodes;
    if (job == NULL) {
        return dpari_wrong(why, "dpar_launcher_detect: job is NULL");
    }
    return dpari_job_here(job, &nodes, why);
}

/* ==== comm/rendezvous.c ==== */

/* Lets the ranks of a job that a launcher started find each other and share one segment.
 * rendezvous.h has the protocol; launch.c calls it.
 *
 * Rank 0 is the host. It serves all connections in one poll loop, and drops those that do not speak
 * the protocol or belong to other users. The other ranks are guests, which retry until the
 * deadline. Words such as `named` refer to the socket: 1 if it is a file, 0 if its name is
 * abstract. */

#define DPARI_MEET_MAGIC UINT64_C(0x3174656d72617064) /* "dparmet1" */

#if !defined(MSG_CMSG_CLOEXEC)
#define MSG_CMSG_CLOEXEC 0
#endif

/* Space for a descriptor that is passed with a message. */
typedef union dpari_rights {
    struct cmsghdr head;
    char space[CMSG_SPACE(sizeof(int))];
} dpari_rights;

/* A connection to rank 0. */
enum { DPARI_GUEST_NEW, DPARI_GUEST_WELCOME, DPARI_GUEST_MAPPED };
typedef struct dpari_guest {
    int32_t state, rank; /* rank is -1 until its HELLO */
    size_t got;          /* bytes of `in` so far */
    dpari_hello in;
} dpari_guest;

/* The state of rank 0 while it waits for the others. */
typedef struct dpari_host {
    const dpar_launcher_info *job;
    dpari_segment *segment;
    int32_t guests;    /* the most connections at a time */
    int32_t mapped;    /* ranks that have mapped the segment */
    int32_t named;     /* 1 if the only listener is in /tmp */
    int32_t strangers; /* connections of other users, or that did not speak the protocol */
    double deadline, began;
    double looked;           /* last look at the clock */
    struct sockaddr_un name; /* address of the listener that was made last */
    struct sockaddr_un file; /* address of the listener in /tmp, if there is one */
    struct pollfd *poll;     /* [guests + 2] the listener, the guests, a second listener in /tmp;
                                fd is -1 for one that does not exist */
    dpari_guest *guest;      /* [guests] */
    int32_t *place;          /* [size] 1 + the guest of this rank; 0 if it has not arrived */
} dpari_host;

/* ---- names, messages, sockets ---------------------------------------------------------------- */

static uint64_t dpari_meet_id(const dpar_launcher_info *job)
{
    const uint64_t kind = dpari_os_hash(DPARI_OS_HASH, &job->kind, sizeof job->kind);
    return dpari_os_hash(kind, job->id, dpari_length(job->id));
}

DPARI_INTERNAL DPARI_COLD socklen_t dpari_meet_name(const dpar_launcher_info *job, int32_t k,
                                                    int32_t named, struct sockaddr_un *name)
{
    const size_t begin = named ? 0 : 1; /* an abstract name follows a NUL */
    dpar_text t;
    dpari_zero(name, sizeof *name);
    name->sun_family = AF_UNIX;
    dpar_text_init(&t, name->sun_path + begin, sizeof name->sun_path - begin);
    dpari_text_print(&t, "%s%ld.", named ? "/tmp/dpar." : "dpar.", dpari_os_user());
    dpari_os_put_hex(&t, dpari_meet_id(job));
    dpari_text_print(&t, ".%d", k);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + begin + t.used + (named ? 1 : 0));
}

/* Fills in a HELLO of this rank. */
static DPARI_COLD void dpari_meet_greet(const dpar_launcher_info *job, dpari_hello *h)
{
    const uint64_t sizes[] = {sizeof(dpari_world_head), sizeof(dpari_rank), sizeof(dpari_hello),
                              DPAR_VERSION_MAJOR * 10000 + DPAR_VERSION_MINOR * 100 +
                                  DPAR_VERSION_PATCH};
    const uint64_t layout = dpari_os_hash(DPARI_OS_HASH, sizes, sizeof sizes);
    dpari_zero(h, sizeof *h);
    h->magic = DPARI_MEET_MAGIC;
    h->job = dpari_meet_id(job);
    h->layout = (uint32_t)(layout ^ layout >> 32);
    h->kind = DPARI_HELLO;
    h->rank = job->rank;
    h->size = job->size;
}

/* Returns 1 if the socket must be a file, because only Linux has abstract names. Tests define
 * DPARI_MEET_NAMED to do on Linux what other systems do. */
static int32_t dpari_meet_is_named(void)
{
#if defined(__linux__) && !defined(DPARI_MEET_NAMED)
    return 0;
#else
    return 1;
#endif
}

/* True if the process at the other end of the socket runs as this user. */
static int dpari_meet_is_mine(int fd)
{
    int64_t pid, user;
    return dpari_os_peer(fd, &pid, &user) == 0 && user == (int64_t)getuid();
}

/* Sends one message, with a descriptor unless it is -1. Returns 1 if all of it was sent. */
static int dpari_meet_send(int fd, const dpari_hello *h, int pass)
{
    dpari_hello copy = *h;
    dpari_rights rights;
    struct msghdr m;
    struct iovec part;
    ssize_t sent;
    part.iov_base = &copy;
    part.iov_len = sizeof copy;
    memset(&m, 0, sizeof m);
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    if (pass >= 0) {
        memset(&rights, 0, sizeof rights);
        rights.head.cmsg_level = SOL_SOCKET;
        rights.head.cmsg_type = SCM_RIGHTS;
        rights.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&rights.head), &pass, sizeof pass);
        m.msg_control = &rights;
        m.msg_controllen = sizeof rights;
    }
    do {
        sent = sendmsg(fd, &m, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof copy;
}

/* Continues to read a message into h from byte *got. A descriptor that arrives with it is stored in
 * *passed, whose previous one is closed; it is closed itself if `passed` is NULL. Returns 1 if the
 * message is complete, 0 if not yet, and -1 if the other end is closed. */
static int dpari_meet_read(int fd, dpari_hello *h, size_t *got, int *passed)
{
    dpari_rights rights;
    struct msghdr m;
    struct iovec part;
    ssize_t n;
    part.iov_base = (char *)h + *got;
    part.iov_len = sizeof *h - *got;
    memset(&m, 0, sizeof m);
    memset(&rights, 0, sizeof rights);
    m.msg_iov = &part;
    m.msg_iovlen = 1;
    m.msg_control = &rights;
    m.msg_controllen = sizeof rights;
    n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    if (n < 0) {
        return errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    }
    if (m.msg_controllen >= CMSG_LEN(sizeof(int)) && rights.head.cmsg_level == SOL_SOCKET &&
        rights.head.cmsg_type == SCM_RIGHTS) {
        int given;
        memcpy(&given, CMSG_DATA(&rights.head), sizeof given);
        dpari_os_close(passed != NULL ? *passed : given);
        if (passed != NULL) {
            *passed = dpari_os_beyond_standard(given);
        }
    }
    *got += (size_t)n;
    return n == 0 ? -1 : *got == sizeof *h;
}

/* Unlinks a socket of this user in /tmp at which no process listens. It must be at least a minute
 * old, because a new one refuses connections as well until its process listens. */
DPARI_STATIC_NOINLINE void dpari_meet_end_stale(const char *entry)
{
    struct sockaddr_un name;
    struct stat about;
    dpar_text t;
    int fd;
    dpari_zero(&name, sizeof name);
    name.sun_family = AF_UNIX;
    dpar_text_init(&t, name.sun_path, sizeof name.sun_path);
    dpari_text_print(&t, "/tmp/%s", entry);
    if (t.used >= sizeof name.sun_path || lstat(name.sun_path, &about) != 0 ||
        !S_ISSOCK(about.st_mode) || about.st_uid != getuid() || time(NULL) - about.st_mtime < 60) {
        return;
    }
    fd = dpari_os_socket(AF_UNIX, SOCK_STREAM);
    if (fd >= 0 && connect(fd, (struct sockaddr *)(void *)&name, (socklen_t)sizeof name) != 0 &&
        errno == ECONNREFUSED) {
        unlink(name.sun_path);
    }
    dpari_os_close(fd);
}

/* Removes the sockets that jobs of this user left in /tmp when their rank 0 was killed. */
static void dpari_meet_sweep(void)
{
    char begin[32];
    dpar_text t;
    DIR *folder = opendir("/tmp");
    struct dirent *entry;
    dpar_text_init(&t, begin, sizeof begin);
    dpari_text_print(&t, "dpar.%ld.", dpari_os_user());
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, begin, t.used) == 0) {
            dpari_meet_end_stale(entry->d_name);
        }
    }
    if (folder != NULL) {
        closedir(folder);
    }
}

/* ---- rank 0 ---------------------------------------------------------------------------------- */

/* Listens at a name of the job. If this user has already taken a name, a process of the same job
 * that has not ended yet answers there; if none answers, the name is an old file, which is
 * unlinked. A name that another user has taken is skipped. Returns 1 and sets *listener, 0 if the
 * caller must try again, or -1 and errno if it fails. */
static int dpari_host_listen(dpari_host *host, int32_t named, int *listener)
{
    int32_t k;
    for (k = 0; k < DPARI_NAMES; k++) {
        socklen_t bytes = dpari_meet_name(host->job, k, named, &host->name);
        int fd = dpari_os_socket(AF_UNIX, SOCK_STREAM), other, mine, number;
        if (fd < 0) {
            return -1;
        }
        if (bind(fd, (struct sockaddr *)(void *)&host->name, bytes) == 0 && listen(fd, 128) == 0) {
            host->file = named ? host->name : host->file;
            *listener = fd;
            return 1;
        }
        number = errno;
        close(fd);
        if (number != EADDRINUSE) {
            errno = number;
            return -1;
        }
        other = dpari_os_socket(AF_UNIX, SOCK_STREAM);
        if (other < 0) {
            return -1;
        }
        mine = 1;
        if (connect(other, (struct sockaddr *)(void *)&host->name, bytes) == 0) {
            mine = dpari_meet_is_mine(other);
        } else if (named && errno == ECONNREFUSED) {
            struct stat about;
            mine = lstat(host->name.sun_path, &about) == 0 && about.st_uid == getuid();
            if (mine) {
                unlink(host->name.sun_path);
            }
        }
        close(other);
        if (mine) {
            return 0;
        }
    }
    return 0;
}

/* Closes the connection of guest i. */
static void dpari_host_drop(dpari_host *host, int32_t i)
{
    dpari_guest *g = &host->guest[i];
    close(host->poll[1 + i].fd);
    host->poll[1 + i].fd = -1;
    if (g->rank > 0) {
        host->place[g->rank] = 0;
    }
    host->mapped -= g->state == DPARI_GUEST_MAPPED;
    dpari_zero(g, sizeof *g);
    g->rank = -1;
}

static void dpari_host_accept(dpari_host *host, int listener)
{
    const int fd = dpari_os_accept(listener);
    int32_t i = 0;
    if (fd < 0) {
        return;
    }
    while (i < host->guests && host->poll[1 + i].fd >= 0) {
        i++;
    }
    if (i == host->guests || !dpari_meet_is_mine(fd)) {
        host->strangers++;
        close(fd);
        return;
    }
    host->poll[1 + i].fd = fd;
    host->poll[1 + i].events = POLLIN;
    host->poll[1 + i].revents = 0;
    host->guest[i].rank = -1;
}

static void dpari_host_accept_all(dpari_host *host)
{
    if (host->poll[0].revents != 0) {
        dpari_host_accept(host, host->poll[0].fd);
    }
    if (host->poll[1 + host->guests].revents != 0) {
        dpari_host_accept(host, host->poll[1 + host->guests].fd);
    }
}

/* True if the guest has closed its connection, which the host may not have noticed yet. */
static int dpari_host_is_gone(const dpari_host *host, int32_t i)
{
    char byte;
    return recv(host->poll[1 + i].fd, &byte, 1, MSG_PEEK) == 0;
}

/* Checks the first message of a guest: it must be a rank of this job, of the same build, and the
 * first guest with its rank. */
static dpar_status dpari_host_hello(dpari_host *host, int32_t i, dpar_why *why)
{
    dpari_guest *g = &host->guest[i];
    dpari_hello mine;
    int32_t rank = g->in.rank;
    dpari_meet_greet(host->job, &mine);
    if (g->in.magic != mine.magic || g->in.job != mine.job || g->in.kind != DPARI_HELLO) {
        host->strangers++;
        dpari_host_drop(host, i);
        return DPAR_OK;
    }
    if (g->in.layout != mine.layout) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank %d is built with another version of dpar.h than rank 0", rank);
    }
    if (g->in.size != host->job->size || rank < 1 || rank >= host->job->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "a process says that it is rank %d of %d, but rank 0 says that there are "
                         "%d ranks",
                         rank, g->in.size, host->job->size);
    }
    if (host->place[rank] != 0 && dpari_host_is_gone(host, host->place[rank] - 1)) {
        dpari_host_drop(host, host->place[rank] - 1);
    }
    if (host->place[rank] != 0) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "two processes say that they are rank %d of %d: perhaps two jobs have the "
                         "same id",
                         rank, host->job->size);
    }
    g->rank = rank;
    g->state = DPARI_GUEST_WELCOME;
    host->place[rank] = i + 1;
    mine.kind = DPARI_WELCOME;
    mine.nonce = g->in.nonce;
    if (!dpari_meet_send(host->poll[1 + i].fd, &mine, host->segment->fd)) {
        dpari_host_drop(host, i);
    }
    return DPAR_OK;
}

/* Handles a message from a guest. Fails if the job cannot start. */
static dpar_status dpari_host_receive(dpari_host *host, int32_t i, dpar_why *why)
{
    dpari_guest *g = &host->guest[i];
    const int whole = dpari_meet_read(host->poll[1 + i].fd, &g->in, &g->got, NULL);
    if (whole < 0) {
        int32_t rank = g->rank, mapped = g->state == DPARI_GUEST_MAPPED;
        dpari_host_drop(host, i);
        if (!mapped) {
            return DPAR_OK; /* it may connect again */
        }
        return dpari_say(DPAR_E_PEER, why, "rank %d ended while %d ranks were starting", rank,
                         host->job->size);
    }
    if (whole == 0) {
        return DPAR_OK;
    }
    g->got = 0;
    if (g->state == DPARI_GUEST_NEW) {
        return dpari_host_hello(host, i, why);
    }
    if (g->in.kind != DPARI_MAPPED || g->state != DPARI_GUEST_WELCOME) {
        dpari_host_drop(host, i);
        return DPAR_OK;
    }
    if (g->in.status != DPAR_OK) {
        g->in.text[sizeof g->in.text - 1] = 0;
        return dpari_say(DPAR_E_SYSTEM, why, "rank %d cannot map the segment: %s", g->rank,
                         g->in.text);
    }
    g->state = DPARI_GUEST_MAPPED;
    host->mapped++;
    return DPAR_OK;
}

/* Appends possible reasons why ranks do not find each other. */
static void dpari_meet_put_reasons(dpar_text *text, const dpar_launcher_info *job)
{
    if (strncmp(job->id, "process ", 8) == 0) { /* the id that dpari_job_here derives from a pid */
        dpar_text_put(text, "; its id differs between PID namespaces: set DPAR_JOB");
    }
    dpar_text_put(text, "; ranks must share a user, and a network namespace or /tmp");
    if (job->local_size < 0) { /* the launcher does not report how many ranks are on this node */
        dpar_text_put(text, "; if some are on other nodes, use dpar_mpi.h or dpar_nccl.h");
    }
}

/* Fails with "ranks 2, 3 of 4 did not arrive within 5.0 s". */
static dpar_status dpari_host_late(const dpari_host *host, dpar_why *why)
{
    int32_t r, named = 0, missing = host->job->size - 1 - host->mapped;
    dpar_text t;
    dpari_text_why(&t, why);
    if (host->poll[0].fd < 0) {
        dpari_text_print(&t, "another process is rank 0 of this job (%s, %s) and did not end",
                         dpari_launcher_name(host->job->kind), host->job->id);
    } else {
        dpar_text_put(&t, missing == 1 ? "rank " : "ranks ");
        for (r = 1; r < host->job->size; r++) {
            if ((host->place[r] == 0 ||
                 host->guest[host->place[r] - 1].state != DPARI_GUEST_MAPPED) &&
                named++ < 16) {
                dpari_text_print(&t, "%s%d", named > 1 ? ", " : "", r);
            }
        }
        dpari_text_print(&t, "%s%d did not arrive", named > 16 ? ", ... of " : " of ",
                         host->job->size);
    }
    dpari_text_print(&t, " within %.1f s", dpari_os_now() - host->began);
    if (host->strangers > 0) {
        dpari_text_print(&t, "; %d connections did not belong to ranks of this job",
                         host->strangers);
    }
    dpari_meet_put_reasons(&t, host->job);
    return DPAR_E_TIMEOUT;
}

/* Seconds after which ranks also try the file in /tmp: ranks that have not arrived by then may be
 * in another network namespace, where abstract names are not visible but files are. */
#define DPARI_MEET_WIDER 1.0

/* Also listens at the file in /tmp if ranks are still missing after DPARI_MEET_WIDER. */
static void dpari_host_widen(dpari_host *host)
{
    struct pollfd *second = &host->poll[1 + host->guests];
    if (host->named || second->fd >= 0 || dpari_os_now() - host->began < DPARI_MEET_WIDER) {
        return;
    }
    dpari_meet_sweep();
    (void)dpari_host_listen(host, 1, &second->fd); /* if that fails, the first listener must be
                                                      enough */
}

/* Waits until all ranks have mapped the segment, or the job cannot start. */
static dpar_status dpari_host_wait(dpari_host *host, dpar_why *why)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    while (status == DPAR_OK && host->mapped < host->job->size - 1) {
        const double now = dpari_os_now();
        double left;
        host->deadline += dpari_os_suspended(&host->looked, now);
        left = host->deadline - now;
        if (left <= 0.0) {
            return dpari_host_late(host, why);
        }
        if (host->poll[0].fd < 0) {
            int listens = dpari_host_listen(host, host->named, &host->poll[0].fd);
            if (listens < 0) {
                return dpari_os_why(why, "the socket where ranks meet", 0, errno);
            }
            if (listens == 0) {
                dpari_os_sleep(dpari_leastf(left, 5e-3));
                continue;
            }
        }
        dpari_host_widen(host);
        if (poll(host->poll, (nfds_t)host->guests + 2, dpari_os_milliseconds(left)) <= 0) {
            continue;
        }
        for (i = 0; i < host->guests && status == DPAR_OK; i++) {
            if (host->poll[1 + i].fd >= 0 && host->poll[1 + i].revents != 0) {
                status = dpari_host_receive(host, i, why);
            }
        }
        dpari_host_accept_all(host);
    }
    return status;
}

/* Sends the result to a guest that has identified itself. */
static void dpari_host_answer(dpari_host *host, int32_t i, dpar_status status, const dpar_why *why)
{
    dpari_hello mine;
    dpari_meet_greet(host->job, &mine);
    mine.kind = status == DPAR_OK ? DPARI_GO : DPARI_REFUSED;
    mine.status = status;
    mine.nonce = host->guest[i].in.nonce;
    dpari_copy_text(mine.text, sizeof mine.text, status != DPAR_OK ? why->text : "",
                    sizeof mine.text);
    dpari_meet_send(host->poll[1 + i].fd, &mine, -1);
    dpari_host_drop(host, i);
}

/* Waits up to a second for ranks that arrive after the job has failed to start, so that they fail
 * with the same message. answered: number of ranks that have the message already. */
static void dpari_host_linger(dpari_host *host, dpar_status status, const dpar_why *why,
                              int32_t answered)
{
    const double end = dpari_leastf(host->deadline, dpari_os_now() + 1.0);
    int32_t i;
    while (answered < host->job->size - 1 && host->poll[0].fd >= 0 && dpari_os_now() < end) {
        if (poll(host->poll, (nfds_t)host->guests + 2, dpari_os_milliseconds(0.05)) <= 0) {
            continue;
        }
        for (i = 0; i < host->guests; i++) {
            dpari_guest *g = &host->guest[i];
            int whole;
            if (host->poll[1 + i].fd < 0 || host->poll[1 + i].revents == 0) {
                continue;
            }
            whole = dpari_meet_read(host->poll[1 + i].fd, &g->in, &g->got, NULL);
            if (whole > 0) {
                answered++;
                dpari_host_answer(host, i, status, why);
            } else if (whole < 0) {
                dpari_host_drop(host, i);
            }
        }
        dpari_host_accept_all(host);
    }
}

/* Sends the result to all guests and closes the listeners. */
static void dpari_host_end(dpari_host *host, dpar_status status, const dpar_why *why)
{
    int32_t i, answered = 0;
    struct pollfd *second = &host->poll[1 + host->guests];
    if (status == DPAR_OK || status == DPAR_E_TIMEOUT) {
        dpari_os_close(host->poll[0].fd);
        dpari_os_close(second->fd);
        host->poll[0].fd = second->fd = -1;
    }
    for (i = 0; i < host->guests; i++) {
        if (host->poll[1 + i].fd >= 0 && host->guest[i].in.magic != 0) {
            answered++;
            dpari_host_answer(host, i, status, why);
        }
    }
    dpari_host_linger(host, status, why, answered);
    for (i = 0; i <= host->guests + 1; i++) {
        dpari_os_close(host->poll[i].fd);
    }
    if (host->file.sun_path[0] != 0) {
        unlink(host->file.sun_path);
    }
}

/* Runs the protocol on rank 0. */
static DPARI_COLD dpar_status dpari_meet_host(const dpar_launcher_info *job,
                                              const dpar_world_desc *o, double deadline,
                                              dpari_segment *segment, dpar_why *why)
{
    const int64_t places = (int64_t)job->size + 33; /* guests + 2, as poll needs */
    const int64_t bytes =
        places * (int64_t)(sizeof(dpari_guest) + sizeof(struct pollfd) + sizeof(int32_t)) + 64;
    dpari_host h;
    dpar_why said;
    int32_t i;
    char *memory;
    dpar_status status = dpari_segment_make(segment, job->size, o, why);
    if (status != DPAR_OK) {
        return status;
    }
    memory = (char *)dpari_os_pages(bytes);
    if (memory == NULL) {
        dpari_segment_close(segment);
        return dpari_os_why(why, "the table of ranks", 0, ENOMEM);
    }
    dpari_zero(&h, sizeof h);
    h.job = job;
    h.segment = segment;
    h.guests = job->size + 31; /* all other ranks, and up to 32 strangers at a time */
    h.named = dpari_meet_is_named();
    h.began = dpari_os_now();
    h.deadline = deadline;
    h.guest = (dpari_guest *)(void *)memory;
    h.poll = (struct pollfd *)(void *)(h.guest + places);
    h.place = (int32_t *)(void *)(h.poll + places);
    for (i = 0; i <= h.guests + 1; i++) {
        h.poll[i].fd = -1;
        h.poll[i].events = POLLIN;
    }
    if (h.named) {
        dpari_meet_sweep();
    }
    status = dpari_host_wait(&h, &said);
    dpari_host_end(&h, status, &said);
    dpari_os_unmap(memory, bytes);
    if (status != DPAR_OK) {
        dpari_segment_close(segment);
        if (why != NULL) {
            *why = said;
        }
    }
    return status;
}

/* ---- the other ranks ------------------------------------------------------------------------- */

/* Waits for a whole message. Returns 1 if it has arrived, 0 after the deadline, and -1 if the other
 * end is closed. */
static int dpari_meet_receive(int fd, dpari_hello *h, int *passed, double deadline)
{
    size_t got = 0;
    double looked = 0.0;
    for (;;) {
        int whole;
        deadline += dpari_os_suspended(&looked, dpari_os_now());
        if (!dpari_os_poll(fd, POLLIN, deadline)) {
            return 0;
        }
        whole = dpari_meet_read(fd, h, &got, passed);
        if (whole != 0) {
            return whole;
        }
    }
}

/* True if this is the answer of this job's rank 0 to this hello. */
static int dpari_meet_answers(const dpari_hello *answer, const dpari_hello *mine)
{
    return answer->magic == mine->magic && answer->job == mine->job &&
           answer->nonce == mine->nonce && answer->rank == 0;
}

/* Fails with the status and message of a refusal. */
static dpar_status dpari_meet_refused(dpari_hello *answer, dpar_why *why)
{
    answer->text[sizeof answer->text - 1] = 0;
    return dpari_repeat(answer->status < 0 ? answer->status : DPAR_E_PEER, why, answer->text);
}

/* Runs steps 3 and 4 of the protocol, once rank 0 has sent the descriptor: maps the segment,
 * reports that, and waits for GO. */
static dpar_status dpari_meet_map(int fd, int passed, dpari_hello *mine, double deadline,
                                  dpari_segment *segment, dpar_why *why)
{
    dpari_hello answer;
    dpar_why said;
    int got, answers;
    dpar_status status = dpari_segment_open(segment, passed, &said);
    mine->kind = DPARI_MAPPED;
    mine->status = status;
    dpari_copy_text(mine->text, sizeof mine->text, status != DPAR_OK ? said.text : "",
                    sizeof mine->text);
    dpari_meet_send(fd, mine, -1); /* if this fails, rank 0 may have sent the reason before */
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, said.text);
    }
    /* waits longer than rank 0, whose message is better because it names the missing ranks */
    got = dpari_meet_receive(fd, &answer, NULL, deadline + 5.0);
    answers = got > 0 && dpari_meet_answers(&answer, mine);
    if (answers && answer.kind == DPARI_GO) {
        return DPAR_OK;
    }
    dpari_segment_close(segment);
    if (answers) {
        return dpari_meet_refused(&answer, why);
    }
    if (got == 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "rank 0 of %d accepted rank %d, but then did not answer any more",
                         mine->size, mine->rank);
    }
    return dpari_say(DPAR_E_PEER, why, "rank 0 ended while %d ranks were starting", mine->size);
}

/* Tries to connect at one name. Returns DPAR_MORE if no process listens there, or one that is not
 * rank 0 of this job. */
static dpar_status dpari_meet_call(const struct sockaddr_un *name, socklen_t bytes,
                                   dpari_hello *mine, double deadline, dpari_segment *segment,
                                   int32_t *strangers, dpar_why *why)
{
    struct sockaddr_un to = *name;
    dpari_hello answer;
    int passed = -1, got, fd = dpari_os_socket(AF_UNIX, SOCK_STREAM);
    dpar_status status = DPAR_MORE;
    if (fd < 0) {
        return dpari_os_why(why, "the socket where ranks meet", 0, errno);
    }
    if (connect(fd, (struct sockaddr *)(void *)&to, bytes) != 0) {
        close(fd);
        return DPAR_MORE;
    }
    mine->kind = DPARI_HELLO;
    mine->status = DPAR_OK;
    mine->nonce = dpari_os_random();
    got = dpari_meet_is_mine(fd) && dpari_meet_send(fd, mine, -1) ? 1 : -1;
    if (got > 0) { /* rank 0 answers at once, unless it is stopped */
        got =
            dpari_meet_receive(fd, &answer, &passed, dpari_leastf(deadline, dpari_os_now() + 2.0));
    }
    if (got > 0 && dpari_meet_answers(&answer, mine) && answer.kind == DPARI_REFUSED) {
        status = dpari_meet_refused(&answer, why);
    } else if (got > 0 && passed >= 0 && dpari_meet_answers(&answer, mine) &&
               answer.kind == DPARI_WELCOME) {
        status = dpari_meet_map(fd, passed, mine, deadline, segment, why);
        passed = -1;
    } else {
        *strangers += 1;
    }
    dpari_os_close(passed);
    close(fd);
    return status;
}

/* Runs the protocol on every other rank. */
static dpar_status dpari_meet_guest(const dpar_launcher_info *job, double deadline,
                                    dpari_segment *segment, dpar_why *why)
{
    /* rank 0 makes the segment meanwhile, which takes about 0.1 ms */
    double began = dpari_os_now(), nap = 20e-6, now = began, looked = 0.0;
    int32_t k, strangers = 0, named = dpari_meet_is_named(), widens = !named;
    dpari_hello mine;
    dpar_text t;
    dpari_meet_greet(job, &mine);
    while (now < deadline) {
        for (k = 0; k < DPARI_NAMES; k++) {
            struct sockaddr_un name;
            socklen_t bytes = dpari_meet_name(job, k, named, &name);
            dpar_status status =
                dpari_meet_call(&name, bytes, &mine, deadline, segment, &strangers, why);
            if (status != DPAR_MORE) {
                return status;
            }
        }
        looked = dpari_os_now(); /* so that the 2 s of a connection to a stopped rank 0 count as
                                    waiting */
        dpari_os_sleep(nap);
        nap = dpari_leastf(1.5 * nap, 20e-3);
        now = dpari_os_now();
        deadline += dpari_os_suspended(&looked, now);
        if (widens && now - began > DPARI_MEET_WIDER) {
            named = !named; /* tries both kinds of names in turn */
        }
    }
    dpari_text_why(&t, why);
    dpari_text_print(&t, "rank 0 of %d did not arrive within %.1f s (job %s of %s)%s", job->size,
                     dpari_os_now() - began, job->id, dpari_launcher_name(job->kind),
                     strangers > 0 ? "; another process has its socket, or it ended early" : "");
    dpari_meet_put_reasons(&t, job);
    return DPAR_E_TIMEOUT;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_meet_ranks(const dpar_launcher_info *job,
                                                       const dpar_world_desc *o,
                                                       dpari_segment *segment, dpar_why *why)
{
    const double timeout = dpari_world_timeout(o);
    const double deadline = dpari_os_now() + (timeout > 0.0 ? timeout : 1e15);
    if (job->rank == 0) {
        return dpari_meet_host(job, o, deadline, segment, why);
    }
    return dpari_meet_guest(job, deadline, segment, why);
}

/* ==== comm/launch.c ==== */

/* Starts ranks on this machine and supervises them (dpar_launch, dpar_launch_main,
 * dpar_init_or_launch), or joins ranks that a launcher has started (dpar_init).
 *
 * Starting. The calling process makes the shared segment, then one rank after the other: a forked
 * process that runs the user's function, a new process of the same program that inherits the
 * segment as an open file (dpar_init_or_launch), or a thread. A single rank of dpar_launch runs in
 * the calling process. Each rank has a seat, a record in memory that all processes share. The rank
 * writes into it what its function returned, and the supervisor writes how the process ended.
 *
 * Supervising processes. The caller sleeps until a rank may have ended (a pidfd for each rank, or
 * short naps), and then
 *   1. reaps the ranks that have ended and marks them dead in the segment, which ends all waits for
 *      them at once;
 *   2. once a rank has failed, gives the others grace_s to end, and then kills them, unless they
 *      have shrunk the failed rank away;
 *   3. once a rank has ended, kills the others if none of them has made progress for the longer of
 *      timeout_s and grace_s. Progress means that the rank's pulse changes, a number that advances
 *      with each operation that it begins and while it waits in one (dpari_segment_pulse);
 *   4. kills all ranks if none has ended, this process had several threads when it forked, and for
 *      timeout_s no rank has advanced its pulse or used its processor, and all of them are asleep.
 * Threads cannot be killed, and are only joined.
 *
 * Result. The rank that failed first on its own, rather than because another one had failed,
 * determines status and message.
 *
 * Joining. dpar_init opens the segment that it inherited, if dpar_init_or_launch started this
 * process; otherwise the ranks of the job agree on one through a socket (rendezvous.c). dpar_mpi.h
 * also uses dpari_job_join, for ranks that are all on one node. */

/* The state of one rank in a launch, in memory that the rank and the supervisor share. The rank
 * writes the first four fields, `ended` and `follows` before it ends, the supervisor the rest. */
typedef struct dpari_seat {
    int32_t returned;   /* 1 if fn has returned */
    int32_t result;     /* what fn returned; 0 is success */
    dpar_status status; /* of joining and closing */
    dpar_why why;       /* why joining, closing or starting the program failed */
    double ended;       /* s, when fn returned or the rank was found ended; orders the failures */
    double found;       /* s, when it was found ended; until then, when its pulse last changed */
    uint64_t pulse;     /* dpari_segment_pulse at `found` */
    uint64_t heard;     /* the pulse when the supervisor last checked whether all are silent */
    int64_t used;       /* ns of processor time that it had used then */
    int32_t follows;    /* 1 if its communicator was already broken by another rank's failure */
    pid_t pid;
    dpari_thread thread;
    int32_t gone;                /* 1 if it has ended and was waited for */
    int32_t ending;              /* exit status, or -signal, or DPARI_ENDING_UNKNOWN */
    int32_t killed;              /* 1 if the supervisor killed it */
    struct dpari_launch *launch; /* for a thread, to which only its seat is passed */
} dpari_seat;

/* How to start ranks that are new processes of this program. The environment begins with dpar's own
 * variables, in `text`, whose numbers each child fills in after the fork. */
enum { DPARI_IMAGE_TEXTS = 5 };
typedef struct dpari_image {
    char path[4096];
    char **words;
    char **environment;
    int64_t bytes; /* size of `environment` */
    char text[DPARI_IMAGE_TEXTS][48];
} dpari_image;

typedef struct dpari_launch {
    int32_t n, left; /* number of ranks, and of ranks that have not ended */
    dpar_main fn;
    void *arg;
    dpari_image *image; /* NULL if ranks run fn */
    const dpar_world_desc *options;
    double grace_s, timeout_s; /* timeout_s is 0 if there is no deadline */
    double forgiven;           /* s, when it last checked whether the whole job was suspended */
    pid_t parent;
    int64_t threads;      /* threads of this process when it forked; 1 if that does not matter */
    double looked;        /* s, when it last checked whether ranks are silent */
    double silent_s;      /* s for which all ranks have been silent */
    int32_t silent;       /* 1 if all ranks were killed because they were silent */
    int32_t hung;         /* 1 if the remaining ranks were killed because they made no progress */
    double nap;           /* s to sleep next if there are no pidfds */
    int32_t watching;     /* 1 if every rank has a pidfd */
    struct pollfd *watch; /* [n]; fd is -1 if the rank has ended */
    dpari_seat *seat;     /* [n] */
    dpari_segment segment;
} dpari_launch;

/* The exit status is unknown because the system discarded it, as it does if the program ignores
 * SIGCHLD. The value is larger than any exit status. */
enum { DPARI_ENDING_UNKNOWN = 1 << 20 };

/* Checks the options that matter to a launch. dpari_segment_make checks the others. */
static dpar_status dpari_launch_options(const dpar_world_desc *options, dpar_why *why)
{
    if (options == NULL) {
        return DPAR_OK;
    }
    if (!(options->grace_s >= 0.0 && options->grace_s <= 1e9)) {
        return dpari_wrong(why, "grace_s must be 0 .. 1e9 seconds");
    }
    if (!dpari_finite(options->timeout_s)) {
        return dpari_wrong(why, "timeout_s is not a finite number");
    }
    if (options->threads != 0 && options->threads != 1) {
        return dpari_wrong(why, "threads must be 0 or 1, not %d", options->threads);
    }
    return DPAR_OK;
}

static dpar_status dpari_launch_check(int32_t n, dpar_main fn, const dpar_world_desc *options,
                                      dpar_why *why)
{
    if (fn == NULL) {
        return dpari_wrong(why, "dpar_launch: the function is NULL");
    }
    if (n < 1 || n > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "dpar_launch: %d ranks, but 1 .. %d are allowed", n,
                           (int32_t)DPARI_MAX_RANKS);
    }
    return dpari_launch_options(options, why);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Joins the world, runs fn, closes the communicator, and stores the results in the seat. */
static void dpari_seat_run(dpari_launch *launch, int32_t rank)
{
    dpari_seat *seat = &launch->seat[rank];
    dpar_comm *world = NULL;
    dpar_why why;
    dpar_text out;
    dpar_status status;
    int result, broken;
    seat->status = dpari_shm_join(&launch->segment, rank, 0, launch->options, &world, &seat->why);
    if (seat->status != DPAR_OK) {
        seat->follows = seat->status == DPAR_E_PEER;
        seat->ended = dpari_os_now();
        /* needed for threads, whose end no supervisor reports */
        dpari_segment_ended(&launch->segment, rank, 1);
        return;
    }
    dpari_shm_lend(world, 1);
    result = launch->fn(world, launch->arg);
    dpari_shm_lend(world, 0);
    broken = world->status != DPAR_OK;
    seat->ended = dpari_os_now();
    seat->follows = broken;
    seat->result = result;
    seat->returned = 1;
    if (result != 0) { /* so that the others need not wait until the supervisor notices it */
        dpari_text_why(&out, &why);
        dpari_text_print(&out, "rank %d returned %d", rank, result);
        dpari_put_failed(&out, dpari_world_of(world), rank);
        dpar_comm_abort(world, DPAR_E_PEER, why.text);
    }
    status = dpar_comm_free(world);
    /* DPAR_E_ARG means that operations were not waited for. If the communicator was broken before,
     * the rank that broke it has the better message. */
    if (status == DPAR_E_ARG && !broken) {
        seat->status = status;
        dpari_copy_text(seat->why.text, sizeof seat->why.text, dpar_status_text(status),
                        sizeof seat->why.text);
        seat->ended = dpari_os_now();
        seat->follows = status == DPAR_E_PEER;
    }
}

/* On Linux, makes this child die with the process that launched it. */
static void dpari_seat_bind(const dpari_launch *launch)
{
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL, 0UL, 0UL, 0UL);
#endif
    if (getppid() != launch->parent) {
        _exit(1); /* the parent died before the line above */
    }
}

/* Runs a forked rank to its end; does not return. Uses _exit because functions registered with
 * atexit should run only once, in the process that launched. */
static void dpari_seat_live(dpari_launch *launch, int32_t rank)
{
    int fine;
    dpari_seat_run(launch, rank);
    fine = launch->seat[rank].returned && launch->seat[rank].result == 0 &&
           launch->seat[rank].status == DPAR_OK;
    dpari_os_pause_openmp(DPARI_OPENMP_HARD);
    fflush(NULL);
    _exit(fine ? 0 : 1);
}

/* ---- ranks that are new processes of this program ----------------------------------------------
 * A fork copies only one thread, so locks that other threads hold stay locked and work that they
 * should do is never done. A new process does not depend on the threads of its parent: it runs main
 * from the start, finds in its environment which rank it is (dpari_job_join), and ends by itself.
 * It inherits the segment of the launching process as an open file, so the supervisor watches it in
 * the same way as forked ranks. */

/* True if this entry of the environment sets a variable that dpari_image_fill also sets. */
static int dpari_image_sets(const dpari_image *image, const char *entry)
{
    for (int i = 0; i < DPARI_IMAGE_TEXTS; i++) {
        const char *name = image->text[i];
        size_t at = 0;
        while (name[at] != '=' && entry[at] == name[at]) {
            at++;
        }
        if (name[at] == '=' && entry[at] == '=') {
            return 1;
        }
    }
    return 0;
}

/* Writes text i as NAME=value, or as NAME=value.more unless more is negative. */
static void dpari_image_put(dpari_image *image, int i, const char *name, int64_t value,
                            int64_t more)
{
    dpar_text out;
    dpar_text_init(&out, image->text[i], sizeof image->text[i]);
    dpari_text_print(&out, "%s=%ld", name, value);
    if (more >= 0) {
        dpari_text_print(&out, ".%ld", more);
    }
}

static void dpari_image_fill(dpari_image *image, const dpari_launch *launch, int32_t rank)
{
    dpari_image_put(image, 0, "DPAR_RANK", rank, -1);
    dpari_image_put(image, 1, "DPAR_SIZE", launch->n, -1);
    dpari_image_put(image, 2, "DPAR_LOCAL_RANK", rank, -1);
    dpari_image_put(image, 3, "DPAR_LOCAL_SIZE", launch->n, -1);
    dpari_image_put(image, 4, DPARI_JOB_SEGMENT, launch->segment.fd, (int64_t)getpid());
}

/* Copies the environment of this process, in which dpar's variables replace those of the same
 * names. */
static dpar_status dpari_image_make(dpari_image *image, const dpari_launch *launch, char **words,
                                    dpar_why *why)
{
    char **mine = dpari_os_environment();
    int64_t count = 0, used = 0;
    if (words == NULL || words[0] == NULL || dpari_os_program(words[0], image->path, 4096) != 0) {
        return dpari_wrong(why, "%d ranks cannot be started: argv[0] does not name this program",
                           launch->n);
    }
    while (mine != NULL && mine[count] != NULL) {
        count++;
    }
    image->words = words;
    image->bytes = (count + DPARI_IMAGE_TEXTS + 1) * (int64_t)sizeof(char *);
    image->environment = (char **)dpari_os_pages(image->bytes);
    if (image->environment == NULL) {
        return dpari_os_why(why, "a copy of the environment", image->bytes, ENOMEM);
    }
    dpari_image_fill(image, launch, 0);
    for (int i = 0; i < DPARI_IMAGE_TEXTS; i++) {
        image->environment[used++] = image->text[i];
    }
    for (int64_t i = 0; i < count; i++) {
        if (!dpari_image_sets(image, mine[i])) {
            image->environment[used++] = mine[i];
        }
    }
    return DPAR_OK;
}

/* Becomes a new process of the program; does not return. If that fails, the seat has the reason. */
static void dpari_seat_exec(dpari_launch *launch, int32_t rank)
{
    dpari_image *image = launch->image;
    dpari_seat *seat = &launch->seat[rank];
    dpar_text out;
    dpari_image_fill(image, launch, rank);
    fcntl(launch->segment.fd, F_SETFD, 0); /* otherwise execve would close it */
    execve(image->path, image->words, image->environment);
    dpari_text_why(&out, &seat->why);
    dpari_text_print(&out, "%s cannot be started: ", image->path);
    dpari_os_error(&out, errno);
    seat->status = DPAR_E_SYSTEM;
    _exit(127);
}

/* ---- the supervisor -------------------------------------------------------------------------- */

static int dpari_seat_failed(const dpari_seat *seat)
{
    return !seat->returned || seat->result != 0 || seat->status != DPAR_OK || seat->ending != 0;
}

/* Returns 1 if a rank has ended, and records how it ended. Waits for each rank by its own process
 * id, because the program may have other children that it waits for itself. */
static int dpari_seat_reap(const dpari_launch *launch, dpari_seat *seat)
{
    int ending = 0;
    pid_t got;
    do {
        got = waitpid(seat->pid, &ending, WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return 0;
    }
    seat->gone = 1;
    if (launch->image != NULL) { /* a forked rank has written this itself */
        seat->returned = dpari_segment_has_left(&launch->segment, (int32_t)(seat - launch->seat));
    }
    if (got > 0) {
        seat->ending = WIFSIGNALED(ending) ? -WTERMSIG(ending) : WEXITSTATUS(ending);
    } else if (!seat->returned) { /* the exit status was discarded */
        seat->ending = DPARI_ENDING_UNKNOWN;
    } else {
        seat->ending = seat->result != 0 || seat->status != DPAR_OK;
    }
    return 1;
}

/* Reaps the ranks that have ended, and ends the waits of the others for them. */
static void dpari_launch_reap(dpari_launch *launch)
{
    for (int32_t r = 0; r < launch->n; r++) {
        dpari_seat *seat = &launch->seat[r];
        if (seat->gone || (launch->watching && launch->watch[r].revents == 0) ||
            !dpari_seat_reap(launch, seat)) {
            continue;
        }
        launch->left--;
        launch->nap = 0.0;
        if (launch->watching) {
            close(launch->watch[r].fd);
            launch->watch[r].fd = -1;
        }
        dpari_segment_ended(&launch->segment, r, seat->ending);
        seat->found = dpari_os_now();
        if (!(seat->ended > 0.0)) {
            seat->ended = seat->found;
        }
    }
}

/* Returns the time at which the first rank failed that the others have not shrunk away, or 0 if
 * there is none. */
static double dpari_launch_failed(const dpari_launch *launch)
{
    double first = 0.0;
    for (int32_t r = 0; r < launch->n; r++) {
        const dpari_seat *seat = &launch->seat[r];
        if (seat->gone && dpari_seat_failed(seat) &&
            !dpari_segment_is_behind(&launch->segment, r) &&
            (first <= 0.0 || seat->found < first)) {
            first = seat->found;
        }
    }
    return first;
}

/* Returns the last time at which a rank ended or a remaining rank made progress. */
static double dpari_launch_still(dpari_launch *launch, double now)
{
    double last = 0.0;
    for (int32_t r = 0; r < launch->n; r++) {
        dpari_seat *seat = &launch->seat[r];
        const uint64_t pulse = dpari_segment_pulse(&launch->segment, r);
        if (!seat->gone && (pulse != seat->pulse || seat->found <= 0.0)) {
            seat->pulse = pulse;
            seat->found = now;
        }
        last = dpari_mostf(last, seat->found);
    }
    return last;
}

/* True if this rank has neither begun an operation, nor waited in one, nor used its processor since
 * the last look. */
static int dpari_launch_is_silent(dpari_launch *launch, int32_t rank)
{
    dpari_seat *seat = &launch->seat[rank];
    const uint64_t pulse = dpari_segment_pulse(&launch->segment, rank);
    const int64_t used = dpari_os_used((int32_t)seat->pid);
    const int silent = used >= 0 && used == seat->used && pulse == seat->heard;
    seat->heard = pulse;
    seat->used = used;
    return silent;
}

/* Counts for how long all ranks have been silent. A library whose threads were lost in the fork
 * waits for them in every rank, outside of dpar, so that no deadline of an operation ever passes.
 * This is done only if this process had other threads. Without such threads, ranks may wait for
 * events of their own as long as they like. */
static void dpari_launch_listen(dpari_launch *launch)
{
    const double now = dpari_os_now();
    int32_t silent = launch->threads > 1 && launch->left == launch->n;
    for (int32_t r = 0; r < launch->n && launch->threads > 1; r++) {
        if (!launch->seat[r].gone && !dpari_launch_is_silent(launch, r)) {
            silent = 0;
        }
    }
    launch->silent_s = silent ? launch->silent_s + (now - launch->looked) : 0.0;
    launch->looked = now;
    if (launch->timeout_s > 0.0 && launch->silent_s >= launch->timeout_s) {
        for (int32_t r = 0; r < launch->n && silent; r++) {
            /* sleeps until an event, and is not stopped by a debugger or waiting for a disk */
            silent = dpari_job_process(launch->seat[r].pid, DPARI_PROCESS_STATE) == 'S';
        }
        launch->silent = silent;
        launch->silent_s = silent ? launch->silent_s : 0.0;
    }
}

/* Returns the seconds until the remaining ranks must be killed, or a negative number if there is no
 * reason to kill them. Without this a rank that hangs would keep this process waiting for ever,
 * after the others have seen their deadline pass and have returned. */
static double dpari_launch_left(dpari_launch *launch)
{
    const double now = dpari_os_now();
    const double failed = dpari_launch_failed(launch);
    const double still = launch->left < launch->n ? dpari_launch_still(launch, now) : 0.0;
    if (failed > 0.0) {
        return dpari_mostf(failed + launch->grace_s - now, 0.0);
    }
    if (launch->silent) {
        return 0.0;
    }
    if (still > 0.0 && launch->timeout_s > 0.0) {
        return dpari_mostf(still + dpari_mostf(launch->timeout_s, launch->grace_s) - now, 0.0);
    }
    return -1.0;
}

static void dpari_launch_kill(dpari_launch *launch)
{
    for (int32_t r = 0; r < launch->n; r++) {
        /* a rank that writes a core file ends by itself, with the signal of its crash */
        if (!launch->seat[r].gone && !launch->seat[r].killed &&
            !dpari_os_dumps((int32_t)launch->seat[r].pid)) {
            kill(launch->seat[r].pid, SIGKILL);
            launch->seat[r].killed = 1;
        }
    }
}

/* Opens a descriptor (pidfd) for each rank that becomes readable when the rank ends. If that fails
 * (an old kernel, too many files), the supervisor naps between looks instead. */
static void dpari_launch_watch(dpari_launch *launch)
{
    int32_t r;
    launch->watching = 0;
#if defined(__linux__) && defined(SYS_pidfd_open)
    launch->watching = 1;
    for (r = 0; r < launch->n; r++) {
        launch->watch[r].events = POLLIN;
        launch->watch[r].fd = (int)syscall(SYS_pidfd_open, launch->seat[r].pid, 0U);
        if (launch->watch[r].fd < 0) {
            launch->watching = 0;
            break;
        }
    }
    if (!launch->watching) {
        while (--r >= 0) {
            close(launch->watch[r].fd);
        }
    }
#else
    (void)r;
#endif
}

/* Sleeps until a rank may have ended, at most `seconds` and at most 0.2 s, so that
 * dpari_launch_forgive notices when the job was suspended. */
static void dpari_launch_pause(dpari_launch *launch, double seconds)
{
    if (launch->watching) {
        double ms = seconds * 1e3 + 1.0;
        if (poll(launch->watch, (nfds_t)launch->n, ms < 200.0 ? (int)ms : 200) < 0) {
            for (int32_t r = 0; r < launch->n; r++) { /* interrupted by a signal: look at all */
                launch->watch[r].revents = launch->watch[r].fd >= 0 ? POLLIN : 0;
            }
        }
        return;
    }
    launch->nap = dpari_leastf(launch->nap < 50e-6 ? 50e-6 : 1.5 * launch->nap, 5e-3);
    dpari_os_sleep(dpari_leastf(launch->nap, seconds));
}

/* Moves all deadlines by the time for which this process, and with it the whole job, was suspended.
 * The ranks do not count as silent in that time. */
static void dpari_launch_forgive(dpari_launch *launch)
{
    const double suspended = dpari_os_suspended(&launch->forgiven, dpari_os_now());
    launch->looked += suspended;
    for (int32_t r = 0; r < launch->n && suspended > 0.0; r++) {
        launch->seat[r].found += launch->seat[r].found > 0.0 ? suspended : 0.0;
    }
}

/* Returns the seconds to the next look at the ranks. */
static double dpari_launch_look(const dpari_launch *launch)
{
    if (launch->threads > 1 && launch->timeout_s > 0.0) {
        return dpari_leastf(1.0, dpari_mostf(launch->timeout_s - launch->silent_s, 0.01));
    }
    return 1.0;
}

static void dpari_launch_supervise(dpari_launch *launch)
{
    dpari_launch_watch(launch);
    launch->looked = dpari_os_now();
    while (launch->left > 0) {
        const double left = dpari_launch_left(launch);
        dpari_launch_pause(launch, left < 0.0 ? dpari_launch_look(launch) : left);
        dpari_launch_forgive(launch);
        dpari_launch_reap(launch);
        dpari_launch_listen(launch);
        if (launch->left > 0 && dpari_launch_left(launch) == 0.0) {
            launch->hung = dpari_launch_failed(launch) <= 0.0 && !launch->silent;
            dpari_launch_kill(launch);
        }
    }
}

/* Forks all ranks and supervises them to their end. If one cannot be forked, kills the others. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_launch_fork(dpari_launch *launch, dpar_why *why)
{
    int32_t started;
    int number = 0;
    dpar_text out;
    launch->parent = getpid();
    launch->threads = 1;
    if (launch->image == NULL) {
        dpari_os_pause_openmp(DPARI_OPENMP_SOFT);
        launch->threads = dpari_job_process(launch->parent, DPARI_PROCESS_THREADS);
    }
    fflush(NULL); /* otherwise each rank would print what is in the buffers now */
    for (started = 0; started < launch->n; started++) {
        pid_t pid = fork();
        if (pid == 0) {
            dpari_seat_bind(launch);
            if (launch->image != NULL) {
                dpari_seat_exec(launch, started);
            }
            dpari_seat_live(launch, started);
        }
        if (pid < 0) {
            number = errno;
            break;
        }
        launch->seat[started].pid = pid;
    }
    if (started == launch->n) {
        dpari_launch_supervise(launch);
        return DPAR_OK;
    }
    for (int32_t r = 0; r < started; r++) { /* they wait for the missing ranks and have not begun
                                               fn */
        kill(launch->seat[r].pid, SIGKILL);
        while (waitpid(launch->seat[r].pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    dpari_text_why(&out, why);
    dpari_text_print(&out, "rank %d of %d could not be forked: ", started, launch->n);
    dpari_os_error(&out, number);
    return DPAR_E_SYSTEM;
}

static void *dpari_seat_thread(void *at)
{
    dpari_seat *seat = (dpari_seat *)at;
    dpari_seat_run(seat->launch, (int32_t)(seat - seat->launch->seat));
    return NULL;
}

/* Starts all ranks as threads and joins them. */
static dpar_status dpari_launch_threads(dpari_launch *launch, dpar_why *why)
{
    int32_t started;
    for (started = 0; started < launch->n; started++) {
        dpari_seat *seat = &launch->seat[started];
        seat->launch = launch;
        if (dpari_os_thread(&seat->thread, dpari_seat_thread, seat) != 0) {
            break;
        }
    }
    for (int32_t r = started; r < launch->n; r++) {
        dpari_segment_ended(&launch->segment, r, 1); /* so that the others do not wait for it */
    }
    for (int32_t r = 0; r < started; r++) {
        dpari_os_join(launch->seat[r].thread);
    }
    if (started < launch->n) {
        return dpari_say(DPAR_E_SYSTEM, why, "thread %d of %d could not be started", started,
                         launch->n);
    }
    return DPAR_OK;
}

/* ---- the result: which rank failed first, and the message ------------------------------------ */

static const char *dpari_signal_name(int number)
{
    switch (number) {
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    case SIGQUIT: return "SIGQUIT";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGKILL: return "SIGKILL";
    case SIGSEGV: return "SIGSEGV";
    case SIGPIPE: return "SIGPIPE";
    case SIGALRM: return "SIGALRM";
    case SIGTERM: return "SIGTERM";
    case SIGUSR1: return "SIGUSR1";
    case SIGUSR2: return "SIGUSR2";
    case SIGXCPU: return "SIGXCPU";
    default: return "?";
    }
}

/* Writes how a rank ended, if it was a new process and was not killed by a signal. */
static void dpari_seat_say_program(const dpari_seat *seat, int32_t rank, dpar_text *out)
{
    if (seat->status != DPAR_OK) {
        dpari_text_print(out, "rank %d: %s", rank, seat->why.text);
    } else if (seat->ending == DPARI_ENDING_UNKNOWN) {
        dpari_text_print(out,
                         "rank %d ended before dpar_finalize (its exit status is not known, "
                         "because SIGCHLD is ignored)",
                         rank);
    } else {
        dpari_text_print(out, "rank %d ended with exit status %d%s", rank, seat->ending,
                         seat->returned ? "" : " before dpar_finalize");
    }
}

/* Writes how a rank failed, as "rank 2 was killed by signal 9 (SIGKILL)". */
static void dpari_seat_say(const dpari_launch *launch, int32_t rank, dpar_text *out)
{
    const dpari_seat *seat = &launch->seat[rank];
    if (launch->image != NULL && seat->ending >= 0) {
        dpari_seat_say_program(seat, rank, out);
        return;
    }
    dpari_text_print(out, "rank %d", rank);
    if (seat->ending < 0) {
        dpari_text_print(out, "%s was killed by signal %d (%s)",
                         seat->returned ? " returned and then" : "", -seat->ending,
                         dpari_signal_name(-seat->ending));
    } else if (seat->status != DPAR_OK && seat->returned) {
        dpar_text_put(out, " returned 0 without waiting for all operations that it had posted");
    } else if (seat->status != DPAR_OK) {
        dpari_text_print(out, " could not join: %s", seat->why.text);
    } else if (seat->returned) {
        dpari_text_print(out, " returned %d", seat->result);
    } else if (seat->ending == DPARI_ENDING_UNKNOWN) {
        dpar_text_put(out, " ended before its function returned (its exit status is not known, "
                           "because SIGCHLD is ignored)");
    } else {
        dpari_text_print(out, " left the program with status %d before its function returned",
                         seat->ending);
    }
}

/* Returns the rank that failed first, or -1 if none did. Ranks that failed on their own count
 * before ranks that failed after another rank had broken their communicator. */
static int32_t dpari_launch_culprit(const dpari_launch *launch)
{
    const dpari_seat *first = NULL;
    for (int32_t r = 0; r < launch->n; r++) {
        const dpari_seat *seat = &launch->seat[r];
        if (!dpari_seat_failed(seat) || seat->killed) {
            continue;
        }
        if (first == NULL || seat->follows < first->follows ||
            (seat->follows == first->follows && seat->ended < first->ended)) {
            first = seat;
        }
    }
    return first != NULL ? (int32_t)(first - launch->seat) : -1;
}

/* Appends which ranks were killed and why, and returns their number. Names at most 8 of them. */
static int32_t dpari_launch_put_killed(const dpari_launch *launch, dpar_text *out)
{
    int32_t killed = 0;
    for (int32_t r = 0; r < launch->n; r++) {
        if (!launch->seat[r].killed || !dpari_seat_failed(&launch->seat[r])) {
            continue;
        }
        killed++;
        if (killed == 1) {
            dpar_text_put(out, out->used > 0 ? "; killed because they " : "killed because they ");
            dpar_text_put(out, launch->hung ? "made no progress after others had ended: rank "
                                            : "did not end: rank ");
        }
        if (killed <= 8) {
            dpari_text_print(out, "%s%d", killed > 1 ? ", " : "", r);
        }
    }
    dpar_text_put(out, killed > 8 ? ", ..." : "");
    return killed;
}

static dpar_status dpari_launch_say_silent(const dpari_launch *launch, dpar_why *why)
{
    dpar_text out;
    dpari_text_why(&out, why);
    dpari_text_print(&out,
                     "no rank made a call or used its processor for %.1f s. This process had %ld "
                     "threads when it forked its ranks, and some libraries do not work after that: "
                     "start the ranks before any library starts threads, or use "
                     "dpar_init_or_launch",
                     launch->timeout_s, launch->threads);
    return DPAR_E_TIMEOUT;
}

/* Returns the status of the launch and writes the message. */
static dpar_status dpari_launch_result(const dpari_launch *launch, dpar_why *why)
{
    const int32_t first = dpari_launch_culprit(launch);
    int32_t killed;
    dpar_why broke;
    dpar_text out;
    if (launch->silent) {
        return dpari_launch_say_silent(launch, why);
    }
    if (first < 0 && !launch->hung) {
        return DPAR_OK;
    }
    dpari_text_why(&out, why);
    if (first >= 0) {
        dpari_seat_say(launch, first, &out);
        if (launch->seat[first].follows && dpari_segment_broke(&launch->segment, &broke)) {
            dpari_text_print(&out, " after: %s", broke.text);
        }
        if (dpari_segment_is_behind(&launch->segment, first)) {
            dpar_text_put(&out, "; the others continue without it");
        }
    }
    killed = dpari_launch_put_killed(launch, &out);
    if (launch->threads > 1 && (killed > 0 || (first >= 0 && launch->seat[first].ending < 0))) {
        dpari_text_print(&out, "; this process had %ld threads when it forked its ranks",
                         launch->threads);
    }
    return first < 0 && killed == 0 ? DPAR_OK : DPAR_E_PEER;
}

/* ---- a whole launch -------------------------------------------------------------------------- */

/* Returns the exit code that a failed rank chose for the program, or 0 if it chose none. */
static int32_t dpari_seat_result(const dpari_launch *launch, const dpari_seat *seat)
{
    if (launch->image != NULL) {
        return seat->ending > 0 && seat->ending < 256 ? seat->ending : 0;
    }
    return seat->returned ? seat->result : 0;
}

/* Makes the segment, runs all ranks to their end and determines the result. */
static dpar_status dpari_launch_run(dpari_launch *launch, dpari_verdict *verdict, dpar_why *why)
{
    dpar_status status = dpari_segment_make(&launch->segment, launch->n, launch->options, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (launch->n == 1 && launch->image == NULL) {
        dpari_seat_run(launch, 0);
    } else if (launch->options != NULL && launch->options->threads) {
        status = dpari_launch_threads(launch, why);
    } else {
        status = dpari_launch_fork(launch, why);
    }
    if (status == DPAR_OK) { /* all ranks were started and have ended */
        const int32_t first = dpari_launch_culprit(launch);
        const int32_t result = first >= 0 ? dpari_seat_result(launch, &launch->seat[first]) : 0;
        verdict->said = dpari_segment_said(&launch->segment);
        verdict->result = result != 0 ? result : 1;
        status = dpari_launch_result(launch, why);
    }
    dpari_segment_close(&launch->segment);
    return status;
}

static void dpari_launch_begin(dpari_launch *launch, int32_t n, const dpar_world_desc *options,
                               dpari_verdict *verdict)
{
    dpari_zero(launch, sizeof *launch);
    launch->n = launch->left = n;
    launch->options = options;
    launch->timeout_s = dpari_world_timeout(options);
    launch->grace_s = options != NULL && options->grace_s > 0.0 ? options->grace_s : 10.0;
    verdict->said = 0;
    verdict->result = 1;
}

/* Starts all ranks and waits for them. The caller has called dpari_launch_begin and set the
 * function or the image. */
static dpar_status dpari_launch_all(dpari_launch *launch, dpari_verdict *verdict, dpar_why *why)
{
    const int64_t bytes = launch->n * (int64_t)(sizeof(dpari_seat) + sizeof(struct pollfd));
    dpar_status status;
    /* zeroed pages that forked ranks share with this process */
    void *seats =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (seats == MAP_FAILED) {
        return dpari_say(DPAR_E_SYSTEM, why, "no memory: %ld bytes are needed to watch %d ranks",
                         bytes, launch->n);
    }
    launch->seat = (dpari_seat *)seats;
    launch->watch = (struct pollfd *)(void *)(launch->seat + launch->n);
    status = dpari_launch_run(launch, verdict, why);
    dpari_os_unmap(launch->seat, bytes);
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_launch_verdict(int32_t n, dpar_main fn, void *arg,
                                                      const dpar_world_desc *options,
                                                      dpari_verdict *verdict, dpar_why *why)
{
    const dpar_status status = dpari_launch_check(n, fn, options, why);
    dpari_launch launch;
    dpari_launch_begin(&launch, n, options, verdict);
    if (status != DPAR_OK) {
        return status;
    }
    launch.fn = fn;
    launch.arg = arg;
    return dpari_launch_all(&launch, verdict, why);
}

DPARI_API DPARI_COLD dpar_status dpari_launch_programs(int32_t n, char **words,
                                                       const dpar_world_desc *options,
                                                       dpari_verdict *verdict, dpar_why *why)
{
    dpari_image image;
    dpari_launch launch;
    dpar_status status = dpari_launch_options(options, why);
    dpari_launch_begin(&launch, n, options, verdict);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&image, sizeof image);
    launch.image = &image;
    status = dpari_image_make(&image, &launch, words, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_launch_all(&launch, verdict, why);
    dpari_os_unmap(image.environment, image.bytes);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_launch(int32_t ranks, dpar_main fn, void *arg,
                                            const dpar_world_desc *desc, dpar_why *why)
{
    dpari_verdict verdict;
    return dpari_launch_verdict(ranks, fn, arg, desc, &verdict, why);
}

/* ---- ranks that a launcher started ----------------------------------------------------------- */

DPARI_API dpar_status dpari_timeout_here(const dpari_site *site, dpar_world_desc *options,
                                         dpar_why *why)
{
    const char *text = dpari_site_env(site, "DPAR_TIMEOUT");
    double value;
    size_t length;
    if (text == NULL) {
        return DPAR_OK;
    }
    length = dpari_length(text);
    if (length == 0 || dpari_text_number(text, length, &value) != length || !dpari_finite(value)) {
        return dpari_wrong(why, "DPAR_TIMEOUT is \"%s\", which is not a number of seconds", text);
    }
    options->timeout_s = value;
    return DPAR_OK;
}

/* The end of the messages below. The engine of this header works only within a node. */
#define DPARI_OTHER_NODES                                                                          \
    "across nodes add dpar_mpi.h and compile with mpicc, or dpar_nccl.h for GPUs"

/* Checks that all ranks are on one node, as far as the launcher's variables show. */
static dpar_status dpari_init_one_node(const dpar_launcher_info *job, int32_t nodes, dpar_why *why)
{
    const char *name = dpari_launcher_name(job->kind);
    if (job->size > DPARI_MAX_RANKS) {
        return dpari_wrong(
            why,
            "%s reports %d ranks: dpar_comm.h joins at most %d, on one node; " DPARI_OTHER_NODES,
            name, job->size, (int32_t)DPARI_MAX_RANKS);
    }
    if (job->local_size > 0 && job->local_size != job->size) {
        return dpari_wrong(why,
                           "%s reports %d ranks, %d of them on this node: dpar_comm.h joins only "
                           "ranks of one node; " DPARI_OTHER_NODES,
                           name, job->size, job->local_size);
    }
    if (nodes > 1) {
        return dpari_wrong(why,
                           "%s reports %d ranks on %d nodes: dpar_comm.h joins only ranks of one "
                           "node; " DPARI_OTHER_NODES,
                           name, job->size, nodes);
    }
    return DPAR_OK;
}

/* Opens the segment that was made by the process that started this rank. Opens a copy of the
 * descriptor, and closes the original only if it was a segment: in a second dpar_init the number
 * may belong to another file, which must stay open. */
static dpar_status dpari_job_inherit(int fd, dpari_segment *segment, dpar_why *why)
{
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    dpar_status status;
    if (copy < 0) {
        return dpari_os_why(why, "the memory that dpar_init_or_launch made for this rank", 0,
                            errno);
    }
    status = dpari_segment_open(segment, copy, why);
    if (status == DPAR_OK) {
        close(fd);
    }
    return status;
}

/* Finds the segment that the ranks of this job share. A single rank makes it; otherwise it is
 * inherited, or the ranks agree on one through a socket. */
static dpar_status dpari_job_segment_find(const dpar_launcher_info *job,
                                          const dpar_world_desc *options, dpari_segment *segment,
                                          dpar_why *why)
{
    dpari_site here;
    int fd;
    if (job->size == 1) {
        return dpari_segment_make(segment, 1, options, why);
    }
    dpari_site_here(&here);
    fd = job->kind == DPAR_LAUNCHER_DPAR ? dpari_job_segment(&here) : -1;
    if (fd >= 0) {
        return dpari_job_inherit(fd, segment, why);
    }
    return dpari_meet_ranks(job, options, segment, why);
}

DPARI_API DPARI_COLD dpar_status dpari_job_join(const dpar_launcher_info *job,
                                                const dpar_world_desc *options, dpar_comm **world,
                                                dpar_why *why)
{
    dpari_segment segment;
    dpar_status status = dpari_job_segment_find(job, options, &segment, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_shm_join(&segment, job->rank, 1, options, world, why);
    if (status != DPAR_OK) {
        dpari_segment_close(&segment);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_job_try(const dpar_launcher_info *job,
                                               const dpar_world_desc *options, dpar_why *why)
{
    dpari_segment segment;
    dpar_status status = dpari_launch_options(options, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (job->size > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "%d ranks, but shared memory joins at most %d", job->size,
                           (int32_t)DPARI_MAX_RANKS);
    }
    if (job->rank != 0) { /* rank 0 makes the segment */
        return DPAR_OK;
    }
    status = dpari_segment_make(&segment, job->size, options, why);
    if (status == DPAR_OK) {
        dpari_segment_close(&segment);
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_init(dpar_comm **world, const dpar_world_desc *desc,
                                          dpar_why *why)
{
    dpar_launcher_info job;
    dpar_world_desc own;
    dpari_site site;
    int32_t nodes = 0;
    dpar_status status;
    if (world == NULL) {
        return dpari_wrong(why, "dpar_init: world is NULL");
    }
    dpari_zero(&own, sizeof own);
    if (desc != NULL) {
        own = *desc;
    }
    own.threads = 0;
    dpari_site_here(&site);
    status = dpari_launch_options(&own, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_timeout_here(&site, &own, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_job_here(&job, &nodes, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_init_one_node(&job, nodes, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_job_join(&job, &own, world, why);
}

/* ==== comm/object_memory.c ==== */

/* Provides the memory of objects. A small header in front of it records where it came from, so that
 * releasing it needs only the pointer. */

/* The header before the memory. */
typedef struct dpari_object_head {
    dpar_comm *comm;
    int64_t pages; /* bytes of the host's pages, this header included; 0 if from dpar_comm_alloc */
} dpari_object_head;

DPARI_API DPARI_COLD void *dpari_object_alloc(dpar_comm *comm, int64_t bytes)
{
    const int64_t all = bytes + DPARI_ROOM_ALIGN;
    void *at = NULL;
    int64_t pages = 0;
    dpari_object_head *m;
    if (comm == NULL || comm->mem != NULL) {
        at = dpari_os_pages(all);
        pages = all;
    } else if (dpar_comm_alloc(comm, all, &at) != DPAR_OK) {
        at = NULL;
    }
    if (at == NULL) {
        return NULL;
    }
    m = (dpari_object_head *)at;
    m->comm = comm;
    m->pages = pages;
    return (unsigned char *)at + DPARI_ROOM_ALIGN;
}

DPARI_API DPARI_COLD void dpari_object_release(void *memory)
{
    if (memory != NULL) {
        dpari_object_head *m =
            (dpari_object_head *)(void *)((unsigned char *)memory - DPARI_ROOM_ALIGN);
        if (m->pages > 0) {
            dpari_os_unmap(m, m->pages);
        } else {
            dpar_comm_release(m->comm, m);
        }
    }
}

DPARI_API DPARI_COLD dpar_status dpari_object_end(dpar_status st, void *memory)
{
    dpari_object_release(memory);
    return st;
}

DPARI_API DPARI_COLD dpar_status dpari_object_memory(dpar_comm *comm, void *given, int64_t bytes,
                                                     int64_t need, const char *module,
                                                     void **memory, dpar_why *why)
{
    const int64_t past = (int64_t)((uintptr_t)given % DPARI_ROOM_ALIGN);
    if (given == NULL && bytes == 0) {
        *memory = dpari_object_alloc(comm, need);
        if (*memory == NULL) {
            return dpari_say(DPAR_E_MEMORY, why, "%s: no memory for %ld bytes", module, need);
        }
        return DPAR_OK;
    }
    *memory = given;
    if (given != NULL && past == 0 && bytes >= need) {
        return DPAR_OK;
    }
    return dpari_say(
        DPAR_E_ROOM, why,
        "%s: desc.memory must have %ld bytes at a multiple of 64, but has %ld bytes and begins %ld "
        "bytes past one",
        module, need, given != NULL ? bytes : 0, past);
}

DPARI_API DPARI_COLD dpar_status dpari_object_failed(dpar_status st, const void *given,
                                                     void *memory, int64_t need, dpar_why *why)
{
    if (given == NULL) {
        dpari_object_release(memory);
    }
    if (st == DPAR_E_ROOM) {
        dpari_needs_bytes(why, need);
    }
    return st;
}

/* ==== comm/scan.c ==== */

/* Implements scans by an all-gather of the inputs, which each rank then combines in rank order.
 * That gives the same bits with all engines, and costs only one collective in the most frequent
 * case, a scan of one number per rank. Long inputs are gathered piece by piece. */

enum {
    DPARI_SCAN_STACK = 8192,   /* bytes on the stack for the inputs of all ranks */
    DPARI_SCAN_PIECE = 1 << 20 /* bytes that are gathered at a time if they exceed that */
};

/* The arguments of a scan. */
typedef struct dpari_scan_call {
    const unsigned char *in;
    unsigned char *out;
    int64_t count;
    int32_t type, op;
    int32_t exclusive; /* 1 leaves this rank's input out */
    int32_t unit;      /* bytes of an element */
} dpari_scan_call;

/* True if the arguments are allowed. */
static DPARI_COLD int dpari_scan_allowed(const dpar_comm *comm, const dpari_scan_call *scan)
{
    const uintptr_t in = (uintptr_t)scan->in, out = (uintptr_t)scan->out;
    const uintptr_t bytes = (uintptr_t)scan->count * (uintptr_t)scan->unit;
    if (!dpari_type_can_reduce(scan->type) || scan->op <= DPAR_COPY || scan->op >= DPAR_OP_COUNT ||
        scan->op == DPAR_AVG || scan->count < 0 ||
        scan->count > (INT64_C(1) << 62) / scan->unit / comm->size) {
        return 0;
    }
    return bytes == 0 || (in && out && (in == out || in >= out + bytes || out >= in + bytes));
}

/* Scans the next n elements. room: memory for n elements of each rank. */
static DPARI_COLD dpar_status dpari_scan_piece(dpar_comm *comm, const dpari_scan_call *scan,
                                               int64_t n, unsigned char *room)
{
    const int64_t bytes = n * scan->unit;
    const int32_t end = comm->rank + 1 - scan->exclusive;
    dpar_call call = dpari_call(DPAR_CALL_ALL_GATHER, scan->in, room, n, scan->type);
    const dpar_status status = dpari_post_alike(
        comm, &call,
        16 * (uint64_t)scan->count + 2 * (uint64_t)scan->op + (uint64_t)scan->exclusive,
        "dpar_scan", NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (int32_t rank = 1; rank < end; rank++) {
        const void *both[2];
        void *result = room;
        both[0] = room;
        both[1] = room + rank * bytes;
        dpari_kern_reduce(&result, 1, both, 2, n, scan->type, scan->op, 0);
    }
    if (end > 0) {
        dpari_kern_copy(scan->out, room, bytes, 0);
    } else if (scan->op == DPAR_SUM) {
        dpari_zero(scan->out, (size_t)bytes);
    }
    return DPAR_OK;
}

/* Scans inputs that are too long for the stack. */
DPARI_STATIC_NOINLINE DPARI_COLD dpar_status dpari_scan_long(dpar_comm *comm, dpari_scan_call *scan)
{
    const int64_t all = (int64_t)scan->unit * comm->size;
    const int64_t most = all < DPARI_SCAN_PIECE ? DPARI_SCAN_PIECE / all : 1;
    void *room = NULL;
    dpar_status status =
        dpari_object_memory(comm, NULL, 0, most * all, "dpar_scan", &room, &comm->why);
    status = dpari_agree(comm, status, &comm->why);
    for (int64_t left = scan->count; left > 0 && status == DPAR_OK; left -= most) {
        status = dpari_scan_piece(comm, scan, dpari_least(most, left), (unsigned char *)room);
        scan->in += most * scan->unit;
        scan->out += most * scan->unit;
    }
    dpari_object_release(room);
    return status;
}

static DPARI_COLD dpar_status dpari_scan_run(dpar_comm *comm, const void *in, void *out,
                                             int64_t count, int32_t type, int32_t op,
                                             int32_t exclusive)
{
    int64_t room[DPARI_SCAN_STACK / 8];
    dpari_scan_call scan;
    if (!comm) {
        return DPAR_E_ARG;
    }
    scan.in = (const unsigned char *)in;
    scan.out = (unsigned char *)out;
    scan.count = count;
    scan.type = type;
    scan.op = op;
    scan.exclusive = exclusive;
    scan.unit = dpar_type_bytes(type);
    if (!dpari_scan_allowed(comm, &scan)) {
        return dpari_comm_wrong(comm,
                                "dpar_scan: type %s, op %d, count %ld: the type must be one that "
                                "can be reduced, op SUM, PRODUCT, MAX or MIN, count 0 to 2^62 "
                                "bytes, and in and out the same or disjoint",
                                dpar_type_name(type), op, count);
    }
    if (count > DPARI_SCAN_STACK / scan.unit / comm->size) {
        return dpari_scan_long(comm, &scan);
    }
    return dpari_scan_piece(comm, &scan, count, (unsigned char *)room);
}

DPAR_API dpar_status dpar_scan(dpar_comm *comm, const void *in, void *out, int64_t count,
                               int32_t type, int32_t op)
{
    return dpari_scan_run(comm, in, out, count, type, op, 0);
}

DPAR_API dpar_status dpar_exscan(dpar_comm *comm, const void *in, void *out, int64_t count,
                                 int32_t type, int32_t op)
{
    return dpari_scan_run(comm, in, out, count, type, op, 1);
}

/* ---- extremes and their locations ---- */

enum { DPARI_LOCATIONS = 128 }; /* the most pairs that are reduced at a time */

/* Does what dpar_all_reduce_location does, for n pairs. */
static DPARI_COLD dpar_status dpari_location_piece(dpar_comm *comm, dpar_location *pairs, int32_t n,
                                                   int32_t op)
{
    double value[DPARI_LOCATIONS];
    int64_t index[DPARI_LOCATIONS];
    dpar_status status;
    for (int32_t i = 0; i < n; i++) {
        value[i] = pairs[i].value;
    }
    status = dpar_all_reduce(comm, value, value, n, DPAR_F64, op, NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (int32_t i = 0; i < n; i++) {
        const double mine = pairs[i].value;
        const int is_nan = mine != mine;
        index[i] = INT64_MAX;
        if (mine == value[i] || is_nan) {
            index[i] = pairs[i].index;
        }
        pairs[i].value = value[i];
    }
    status = dpar_all_reduce(comm, index, index, n, DPAR_I64, DPAR_MIN, NULL);
    for (int32_t i = 0; i < n; i++) {
        pairs[i].index = index[i];
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_all_reduce_location(dpar_comm *comm, dpar_location *pairs,
                                                         int64_t count, int32_t op)
{
    dpar_status status = DPAR_OK;
    if (!comm) {
        return DPAR_E_ARG;
    }
    if ((op != DPAR_MIN && op != DPAR_MAX) || count < 0 || count > INT64_C(1) << 58 ||
        (count > 0 && !pairs)) {
        return dpari_comm_wrong(comm,
                                "dpar_all_reduce_location: op is %d; it must be DPAR_MIN or _MAX, "
                                "count (%ld) 0 to 2^58, and pairs not NULL",
                                op, count);
    }
    for (int64_t at = 0; at < count && status == DPAR_OK; at += DPARI_LOCATIONS) {
        const int64_t n = dpari_least(DPARI_LOCATIONS, count - at);
        status = dpari_location_piece(comm, pairs + at, (int32_t)n, op);
    }
    return status;
}

/* ==== comm/simple.c ==== */

/* Implements the short forms: dpar_launch_main, dpar_init_or_launch and dpar_finalize, dpar_fail,
 * dpar_max and the like, and dpar_comm_check_equal.
 *
 * dpar_fail prints one message for the whole job. If ranks share memory, the first rank that fails
 * claims a word in the segment and prints. Without shared memory, rank 0 prints, and so does a rank
 * whose communicator is not broken yet. dpar_comm_check_equal compares hashes. If they differ, it
 * finds the first different element by bisection, with one all-reduce for each bit of the count. */

/* ---- the error exit -------------------------------------------------------------------------- */

/* Writes a line to stderr in one piece, after flushing what the program has printed so far. */
static void dpari_main_write(dpar_text *text)
{
    size_t done = 0, n;
    dpari_text_char(text, '\n');
    n = text->used < text->capacity ? text->used : text->capacity - 1;
    text->buffer[n - 1] = '\n'; /* also if the line was too long and was cut off */
    fflush(NULL);
    while (done < n) {
        const ssize_t got = write(2, text->buffer + done, n - done);
        if (got < 0 && errno != EINTR) {
            break;
        }
        done += got > 0 ? (size_t)got : 0;
    }
}

/* True if this rank prints the error for all ranks. */
static int dpari_fail_speaks(dpar_comm *comm)
{
    dpar_comm *shared = dpari_world_of(comm) != NULL ? comm : comm->node;
    if (shared != NULL && dpari_world_of(shared) != NULL) {
        return dpari_shm_speaks(shared);
    }
    return comm->rank == 0 || comm->status == DPAR_OK;
}

/* Prints "rank 2 of 4" and the text to stderr, if no rank has printed anything so far, and breaks
 * comm. */
static void dpari_fail_text(dpar_comm *comm, const char *between, const char *text)
{
    char line[400];
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    dpari_text_print(&t, "rank %d failed: %s", comm->rank, text);
    dpar_text_init(&t, line, sizeof line);
    dpari_text_print(&t, "rank %d of %d%s%s", comm->rank, comm->size, between, text);
    if (dpari_fail_speaks(comm)) {
        dpari_main_write(&t);
    }
    dpar_comm_abort(comm, DPAR_E_PEER, why.text);
}

DPAR_API DPARI_COLD int dpar_fail(dpar_comm *comm, const dpar_why *why)
{
    const char *text = "";
    char line[400];
    dpar_text t;
    if (why != NULL) {
        text = why->text;
    } else if (comm != NULL) {
        text = comm->why.text;
    }
    if (text[0] == 0) {
        text = "it failed without a message";
    }
    if (comm != NULL) {
        dpari_fail_text(comm, ": ", text);
        return 1;
    }
    dpar_text_init(&t, line, sizeof line);
    dpar_text_put(&t, text);
    dpari_main_write(&t);
    return 1;
}

DPAR_API DPARI_COLD void dpar_require(dpar_comm *comm, dpar_status status, const dpar_why *why)
{
    dpar_why general;
    if (status >= 0) {
        return;
    }
    if (!comm && !why) {
        (void)dpari_say(status, &general, "%s; pass a dpar_why to the call to learn more",
                        dpar_status_text(status));
        why = &general;
    }
    (void)dpar_fail(comm, why);
    fflush(NULL); /* dpar_fail flushes only on the rank that prints the error */
    _exit(1);
}

/* ---- stdout of one rank ---------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_quiet(dpar_comm *comm)
{
    const dpari_world *world;
    int fd, moved;
    if (comm == NULL) {
        return DPAR_E_ARG;
    }
    world = dpari_world_of(comm);
    if (comm->rank == 0 || (world != NULL && world->threads)) {
        return DPAR_OK;
    }
    fflush(NULL);
    fd = open("/dev/null", O_WRONLY);
    moved = fd < 0 ? -1 : dup2(fd, 1);
    if (fd > 1) {
        close(fd);
    }
    if (moved < 0) {
        return dpari_os_why(&comm->why, "/dev/null in place of stdout", 0, errno);
    }
    return DPAR_OK;
}

/* ---- main ------------------------------------------------------------------------------------ */

/* Prints "heat: " and the message, where heat is the name of the program. */
static void dpari_main_says(const char *program, const char *text)
{
    const char *name = program != NULL ? program : "dpar";
    char line[400];
    dpar_text t;
    for (; program != NULL && *program != 0; program++) {
        name = *program == '/' ? program + 1 : name;
    }
    dpar_text_init(&t, line, sizeof line);
    dpari_text_print(&t, "%s: %s", name, text);
    dpari_main_write(&t);
}

/* Returns the value of the last --ranks, "" if it has none, or NULL if there is no --ranks. */
static const char *dpari_main_ranks(int argc, char **argv)
{
    static const char name[] = "--ranks";
    const size_t n = sizeof name - 1;
    const char *found = NULL;
    int i;
    for (i = 1; i < argc && argv[i] != NULL && !dpari_same(argv[i], "--"); i++) {
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') {
            found = argv[i] + n + 1;
        } else if (dpari_same(argv[i], name)) {
            found = i + 1 < argc && argv[i + 1] != NULL ? argv[++i] : "";
        }
    }
    return found;
}

/* True if a word resembles --ranks. The part between its dashes and '=' or a digit must be "nranks"
 * or "ranks", ignoring case. One letter except the first may be wrong, added or missing, or two
 * adjacent ones exchanged. */
static DPARI_COLD int dpari_main_nearly(const char *word)
{
    static const char name[] = "ranks";
    char s[8];
    size_t n = 0, head = 0, tail = 0, rest;
    if (*word != '-') {
        return 0;
    }
    while (*word == '-') {
        word++;
    }
    for (; *word != 0 && *word != '=' && !(*word >= '0' && *word <= '9'); word++) {
        if (n == 6) {
            return 0;
        }
        s[n++] = dpari_lower(*word);
    }
    s[n] = 0;
    while (head < n && head < 5 && s[head] == name[head]) {
        head++;
    }
    while (tail < n - head && tail < 5 - head && s[n - 1 - tail] == name[4 - tail]) {
        tail++;
    }
    rest = n - head - tail;
    return dpari_same(s, "nranks") ||
           (head > 0 &&
            ((rest <= 1 && 5 - head - tail <= 1) ||
             (rest == 2 && n == 5 && s[head] == name[head + 1] && s[head + 1] == name[head])));
}

/* Takes --ranks and its number out of the arguments, as dpari_main_ranks reads them. */
static void dpari_main_take(int *argc, char **argv)
{
    int i = 1, kept = 1;
    while (i < *argc && argv[i] != NULL && !dpari_same(argv[i], "--")) {
        if (dpari_same(argv[i], "--ranks")) {
            i += 2;
        } else if (strncmp(argv[i], "--ranks=", 8) == 0) {
            i++;
        } else {
            argv[kept++] = argv[i++];
        }
    }
    while (i < *argc) {
        argv[kept++] = argv[i++];
    }
    if (kept < *argc) {
        argv[kept] = NULL;
        *argc = kept;
    }
}

/* Fails if an argument looks like a misspelled --ranks. Called if the number of ranks is not set,
 * because such an argument would otherwise be ignored without a message. */
static DPARI_COLD dpar_status dpari_main_misspelled(int argc, char **argv, dpar_why *why)
{
    int i;
    for (i = 1; i < argc && argv[i] != NULL && !dpari_same(argv[i], "--"); i++) {
        if (dpari_main_nearly(argv[i])) {
            return dpari_wrong(why, "\"%s\" is unknown: --ranks N sets the number of ranks",
                               argv[i]);
        }
    }
    return DPAR_OK;
}

/* Returns the default number of ranks: the cores that this process may use, at most 4. */
static int32_t dpari_main_cores(void)
{
    uint64_t mask[DPARI_CPU_WORDS];
    dpari_os_cpus(mask);
    return (int32_t)dpari_most(1, dpari_least(4, dpari_os_cpu_count(mask)));
}

/* Reads a number of ranks. Sets *asked to 0 if there is no text. */
static dpar_status dpari_main_number(const char *name, const char *text, int64_t *asked,
                                     dpar_why *why)
{
    char line[64];
    dpar_text t;
    *asked = 0;
    if (text == NULL || (dpari_job_number(text, DPARI_MAX_RANKS, asked) && *asked > 0)) {
        return DPAR_OK;
    }
    dpar_text_init(&t, line, sizeof line);
    dpari_text_print(&t, "%s takes a number from 1 to %d, not \"", name, DPARI_MAX_RANKS);
    return dpari_wrong(why, "%s%s\"", line, text);
}

/* Finds out which launcher started this process, and sets *n to the number of ranks, or to 0 if it
 * is not set. If a launcher started only one process, as in an interactive allocation, --ranks or
 * DPAR_RANKS sets the number. */
static dpar_status dpari_main_read(int argc, char **argv, dpar_launcher_info *job, int32_t *n,
                                   dpar_why *why)
{
    const char *text = dpari_main_ranks(argc, argv);
    dpar_status st = dpar_launcher_detect(job, why);
    dpari_site site;
    int64_t asked = 0, usual = 0;
    dpari_site_here(&site);
    if (st == DPAR_OK && job->size <= 1 && text == NULL) {
        st = dpari_main_number("DPAR_RANKS", dpari_site_env(&site, "DPAR_RANKS"), &usual, why);
    }
    if (st == DPAR_OK && job->size <= 1 && text == NULL && usual == 0) {
        st = dpari_main_misspelled(argc, argv, why);
    }
    if (st == DPAR_OK) {
        st = dpari_main_number("--ranks", text, &asked, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (job->size > 1 && asked > 0 && asked != job->size) {
        const char *name = dpari_launcher_name(job->kind);
        return dpari_wrong(why, "--ranks %ld, but %s has started %d ranks", asked, name, job->size);
    }
    *n = (int32_t)(asked > 0 ? asked : usual);
    if (*n == 0 && job->kind != DPAR_LAUNCHER_NONE) {
        *n = job->size;
    }
    return DPAR_OK;
}

/* Converts the result of a rank into an exit code, which is 1 if the result is not in 0 .. 255. */
static int dpari_main_code(int result)
{
    return result > 0 && result < 256 ? result : result != 0;
}

/* Returns the program's exit code after a launch, and prints the error if no rank has printed
 * one. */
static int dpari_main_ends(const char *program, dpar_status st, const dpari_verdict *verdict,
                           const dpar_why *why)
{
    if (st == DPAR_OK) {
        return 0;
    }
    if (!verdict->said) {
        dpari_main_says(program, why->text);
    }
    return dpari_main_code(verdict->result);
}

/* Launches n ranks that run fn. */
static int dpari_main_fork(int32_t n, const char *program, dpar_main fn, void *arg)
{
    dpari_verdict verdict;
    dpari_site site;
    dpar_world_desc o;
    dpar_why why;
    dpar_status st;
    dpari_zero(&o, sizeof o);
    dpari_site_here(&site);
    if (dpari_timeout_here(&site, &o, &why) != DPAR_OK) {
        dpari_main_says(program, why.text);
        return 2;
    }
    st = dpari_launch_verdict(n, fn, arg, &o, &verdict, &why);
    return dpari_main_ends(program, st, &verdict, &why);
}

/* Joins the ranks of a launcher and runs fn. There is no supervisor, so each rank reports its own
 * failure. */
static int dpari_main_join(const char *program, dpar_main fn, void *arg)
{
    dpar_comm *world = NULL;
    dpar_why why;
    dpar_text t;
    int result, whole;
    if (dpar_init(&world, NULL, &why) != DPAR_OK) {
        dpari_main_says(program, why.text);
        return 1;
    }
    result = fn(world, arg);
    whole = world->status == DPAR_OK;
    if (result != 0) {
        dpari_text_why(&t, &why);
        dpari_text_print(&t, " returned %d%s", result, whole ? "" : " after: ");
        dpari_fail_text(world, why.text, whole ? "" : world->why.text);
    }
    if (dpar_comm_free(world) == DPAR_E_ARG && whole && result == 0) {
        dpari_main_says(program, "a rank returned 0 without waiting for all operations that it "
                                 "had posted");
        return 1;
    }
    return dpari_main_code(result);
}

DPAR_API DPARI_COLD int dpar_launch_main(int argc, char **argv, dpar_main fn, void *arg)
{
    const char *program = argc > 0 && argv != NULL ? argv[0] : NULL;
    dpar_launcher_info job;
    dpar_why why;
    int32_t n = 0;
    dpari_zero(&job, sizeof job);
    if (dpari_main_read(argv != NULL ? argc : 0, argv, &job, &n, &why) != DPAR_OK) {
        if (job.rank == 0) {
            dpari_main_says(program, why.text);
        }
        return 2;
    }
    if (job.size > 1) {
        return dpari_main_join(program, fn, arg);
    }
    return dpari_main_fork(n > 0 ? n : dpari_main_cores(), program, fn, arg);
}

/* ---- two calls in a main that was serial ----------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_init_or_launch(int *argc, char ***argv,
                                                    const dpar_world_desc *desc, dpar_comm **world,
                                                    dpar_why *why)
{
    dpari_verdict verdict;
    dpari_site site;
    dpar_launcher_info job;
    dpar_world_desc o;
    dpar_why said;
    dpar_status st;
    char **words = argc != NULL && argv != NULL ? *argv : NULL;
    int32_t n = 0;
    dpari_zero(&o, sizeof o);
    o = desc != NULL ? *desc : o;
    o.threads = 0;
    if (world == NULL) {
        return dpari_wrong(why, "dpar_init_or_launch: world is NULL");
    }
    if (o.ranks < 0 || o.ranks > DPARI_MAX_RANKS) {
        return dpari_wrong(why, "dpar_init_or_launch: ranks must be 0 to %d, not %d",
                           (int32_t)DPARI_MAX_RANKS, o.ranks);
    }
    dpari_site_here(&site);
    st = dpari_timeout_here(&site, &o, why);
    if (st == DPAR_OK) {
        st = dpari_main_read(words != NULL ? *argc : 0, words, &job, &n, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    n = n > 0 ? n : o.ranks;
    if (job.size <= 1 && n > 1) {
        st = dpari_launch_programs(n, words, &o, &verdict, &said);
        exit(dpari_main_ends(words != NULL ? words[0] : NULL, st, &verdict, &said));
    }
    st = dpar_init(world, &o, why);
    if (st == DPAR_OK && words != NULL) {
        dpari_main_take(argc, words);
    }
    return st;
}

DPAR_API DPARI_COLD int dpar_finalize(dpar_comm *world)
{
    if (world == NULL) {
        return 1;
    }
    dpar_barrier(world, NULL); /* dpar_fail can still print why this fails, but not why the close
                                  fails */
    if (world->status < 0) {
        dpar_fail(world, NULL);
        (void)dpar_comm_free(world);
        return 1;
    }
    if (dpar_comm_free(world) == DPAR_E_ARG) {
        dpari_main_says(NULL, "a rank ended without waiting for all operations that it had posted");
        return 1;
    }
    return 0;
}

/* ---- reductions of one number ---------------------------------------------------------------- */

/* Returns NaN if the all-reduce fails. */
DPARI_STATIC_NOINLINE double dpari_scalar(dpar_comm *comm, double x, int32_t op)
{
    double all = 0.0;
    if (dpar_all_reduce(comm, &x, &all, 1, DPAR_F64, op, NULL) != DPAR_OK) {
        const uint64_t nan = UINT64_C(0x7ff8000000000000);
        dpari_elements_bits(&all, &nan, 8);
    }
    return all;
}

DPAR_API double dpar_max(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_MAX);
}

DPAR_API double dpar_min(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_MIN);
}

DPAR_API double dpar_sum(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_SUM);
}

DPAR_API double dpar_mean(dpar_comm *comm, double x)
{
    return dpari_scalar(comm, x, DPAR_AVG);
}

DPARI_STATIC_NOINLINE DPARI_COLD double dpari_scalar_location(dpar_comm *comm, double x,
                                                              int64_t *index, int32_t op)
{
    dpar_location all;
    all.value = x;
    all.index = *index;
    if (dpar_all_reduce_location(comm, &all, 1, op) != DPAR_OK) {
        return dpari_scalar(NULL, x, op);
    }
    *index = all.index;
    return all.value;
}

DPAR_API double dpar_max_location(dpar_comm *comm, double x, int64_t *index)
{
    return dpari_scalar_location(comm, x, index, DPAR_MAX);
}

DPAR_API double dpar_min_location(dpar_comm *comm, double x, int64_t *index)
{
    return dpari_scalar_location(comm, x, index, DPAR_MIN);
}

DPAR_API DPARI_COLD int64_t dpar_first_index(dpar_comm *comm, int64_t count)
{
    int64_t first = -1;
    if (dpar_exscan(comm, &count, &first, 1, DPAR_I64, DPAR_SUM) != DPAR_OK) {
        return -1;
    }
    return first;
}

/* ---- comparing data of all ranks ------------------------------------------------------------- */

/* The data of one rank, as passed to dpar_comm_check_equal. */
typedef struct dpari_equal_data {
    const unsigned char *data;
    int64_t count;
    int32_t type;
    int64_t unit; /* bytes of an element */
} dpari_equal_data;

/* Adds the arguments that must be equal before the data can be compared (agree.h). */
static DPARI_COLD void dpari_equal_state(dpari_facts *facts, const void *given)
{
    const dpari_equal_data *s = (const dpari_equal_data *)given;
    dpari_fact(facts, "count", 0, s->count);
    dpari_fact_type(facts, "type", 0, s->type);
}

/* Hashes n bytes in four independent lanes of 8-byte words, because one step of a hash takes longer
 * than loading a word. A step maps different words to different hashes, so that a difference in a
 * single word is always noticed. */
static uint64_t dpari_equal_hash(const unsigned char *at, int64_t n)
{
    uint64_t lane[4] = {1, 2, 3, 4}, h = (uint64_t)n;
    int64_t word[4], i, last = 0;
    int32_t k;
    for (i = 0; i + 32 <= n; i += 32) {
        dpari_elements_bits(word, at + i, 32);
        for (k = 0; k < 4; k++) {
            lane[k] = dpari_hash(lane[k], word[k]);
        }
    }
    for (; i + 8 <= n; i += 8) {
        dpari_elements_bits(word, at + i, 8);
        lane[0] = dpari_hash(lane[0], word[0]);
    }
    for (; i < n; i++) {
        last = last * 256 + at[i];
    }
    for (k = 0; k < 4; k++) {
        h = dpari_hash(h, (int64_t)lane[k]);
    }
    return dpari_hash(h, last);
}

/* Tests whether elements [low, high) have the same hash on all ranks. Returns 1 if they have, 0 if
 * not, or an error. The minimum of the complemented hashes is the complement of the largest
 * hash. */
static dpar_status dpari_equal_part(dpar_comm *comm, const dpari_equal_data *s, int64_t low,
                                    int64_t high)
{
    uint64_t in[2], out[2] = {0, 0};
    dpar_status st;
    in[0] = dpari_equal_hash(s->data + low * s->unit, (high - low) * s->unit);
    in[1] = ~in[0];
    st = dpar_all_reduce(comm, in, out, 2, DPAR_U64, DPAR_MIN, NULL);
    return st != DPAR_OK ? st : out[0] == ~out[1];
}

/* Returns the bits of an element in the first bytes of a word. */
static int64_t dpari_equal_bits(const dpari_equal_data *s, int64_t at)
{
    int64_t bits = 0;
    dpari_kern_copy(&bits, s->data + at * s->unit, s->unit, 0);
    return bits;
}

/* Appends an element, whose bits are at `bits`. digits: number of significant digits of a float. */
DPARI_STATIC_NOINLINE void dpari_equal_put(dpar_text *text, const int64_t *bits, int32_t type,
                                           int32_t digits)
{
    const void *at = bits;
    double real;
    if (dpari_is_float(type) || type == DPAR_TF32) {
        dpari_elements_load(&real, at, 0, 1, type == DPAR_TF32 ? DPAR_F32 : type);
        dpari_text_real(text, real, digits);
        return;
    }
    switch (type) {
    case DPAR_I8: dpari_text_int(text, *(const int8_t *)at); return;
    case DPAR_I32: dpari_text_int(text, *(const int32_t *)at); return;
    case DPAR_U32: dpari_text_int(text, *(const uint32_t *)at); return;
    case DPAR_I64: dpari_text_int(text, *bits); return;
    case DPAR_U64:
        if (*bits < 0) {
            dpari_text_print(text, "%ld%ld", (int64_t)((uint64_t)*bits / 10),
                             (int64_t)((uint64_t)*bits % 10));
            return;
        }
        dpari_text_int(text, *bits);
        return;
    default: dpari_text_int(text, *(const uint8_t *)at); return;
    }
}

/* Writes "element 7 is 0.25 on rank 0, 0.75 on rank 3", with enough digits to distinguish the two
 * values: 6, and then up to 17 for F64 and 9 or more for other types. Values whose texts never
 * differ, such as two NaN, have "other bits". */
static void dpari_equal_say(dpar_why *found, int64_t at, int32_t type, const int64_t *bits,
                            int32_t who)
{
    char word[2][48];
    dpar_text t;
    int32_t i, digits;
    for (digits = 6; digits < 20; digits += type == DPAR_F64 ? 11 : 3) {
        for (i = 0; i < 2; i++) {
            dpar_text_init(&t, word[i], sizeof word[i]);
            dpari_equal_put(&t, bits + i, type, digits);
        }
        if (!dpari_same(word[0], word[1])) {
            break;
        }
    }
    dpari_text_why(&t, found);
    dpari_text_print(&t, "element %ld is %s on rank 0, %s%s%d", at, word[0], word[1],
                     digits < 20 ? " on rank " : " with other bits on rank ", who);
}

/* Finds the first element in which a rank differs from rank 0, by bisection. */
static dpar_status dpari_equal_find(dpar_comm *comm, const dpari_equal_data *s, dpar_why *found)
{
    int64_t low = 0, high = s->count, bits[2];
    int32_t mine, who = 0;
    dpar_status st = DPAR_OK;
    while (high - low > 1 && st >= 0) {
        const int64_t middle = low + (high - low) / 2;
        st = dpari_equal_part(comm, s, low, middle);
        low = st == 1 ? middle : low;
        high = st == 1 ? high : middle;
    }
    bits[0] = bits[1] = dpari_equal_bits(s, low);
    if (st >= 0) {
        st = dpar_broadcast(comm, &bits[0], 8, DPAR_U8, 0, NULL);
    }
    mine = bits[0] != bits[1] ? comm->rank : comm->size - 1;
    if (st >= 0) {
        st = dpar_all_reduce(comm, &mine, &who, 1, DPAR_I32, DPAR_MIN, NULL);
    }
    if (st >= 0) {
        st = dpar_broadcast(comm, &bits[1], 8, DPAR_U8, who, NULL);
    }
    if (st < 0) {
        return st;
    }
    dpari_equal_say(found, low, s->type, bits, who);
    return DPAR_E_MISMATCH;
}

static dpar_status dpari_equal_check(const dpari_equal_data *s, dpar_why *why)
{
    if (s->unit == 0) {
        return dpari_wrong(why, "dpar_comm_check_equal: type %s has no elements of whole bytes",
                           dpar_type_name(s->type));
    }
    if (s->count < 0 || s->count > (INT64_C(1) << 62) / s->unit) {
        return dpari_wrong(why, "dpar_comm_check_equal: count must be 0 to 2^62 bytes, not %ld",
                           s->count);
    }
    if (s->count > 0 && s->data == NULL) {
        return dpari_wrong(why, "dpar_comm_check_equal: data is NULL");
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_comm_check_equal(dpar_comm *comm, const void *data,
                                                      int64_t count, int32_t type, dpar_why *why)
{
    dpari_equal_data s;
    dpar_why found;
    dpar_status st;
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_comm_check_equal: the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    s.data = (const unsigned char *)data;
    s.count = count;
    s.type = type;
    s.unit = dpar_type_bytes(type);
    dpari_zero(&found, sizeof found);
    st = dpari_equal_check(&s, &found);
    st = dpari_agree_on(comm, st, "dpar_comm_check_equal", st == DPAR_OK ? dpari_equal_state : NULL,
                        &s, &found);
    if (st == DPAR_OK) {
        st = dpari_equal_part(comm, &s, 0, count);
        if (st == 0) {
            st = dpari_equal_find(comm, &s, &found);
        } else if (st == 1) {
            st = DPAR_OK;
        }
    }
    if (st != DPAR_OK) {
        comm->why = found.text[0] != 0 ? found : comm->why;
        if (why != NULL) {
            *why = comm->why;
        }
    }
    return st;
}

/* ==== exchange/peer_wait.c ==== */

/* Waits for a peer of an exchange. The waits of wait.h do the spinning and sleeping; this file
 * decides when a wait has failed, and whose fault it is. */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_peer_look(const dpar_comm *comm, dpari_group *group,
                                                      int32_t peer)
{
    const uint32_t state = dpari_rank_state(group->world, peer);
    const dpar_status broken = dpari_group_broken(group);
    if (broken != DPAR_OK) {
        return broken;
    }
    if (comm->status != DPAR_OK) {
        return comm->status;
    }
    if (state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT || dpari_group_closes(group, peer)) {
        return DPAR_E_PEER;
    }
    return DPAR_OK;
}

/* True if the peer has not begun this exchange and waits in a collective that this rank has not
 * called. This counts only after `quiet` seconds, because a wait that the progress of this rank can
 * end is shorter. */
static DPARI_COLD int dpari_peer_crossed(dpari_peer_wait *p)
{
    const double now = dpari_os_now(), timeout = p->comm->timeout_s;
    const double quiet = dpari_quiet(timeout > 0.0 ? timeout : 4.0);
    int64_t in = 0;
    if ((int64_t)(DPARI_LOAD(p->ready) >> p->shift) >= p->count ||
        !dpari_group_crossed(p->group, p->peer, quiet, &in)) {
        p->crossed = 0.0;
    } else if (!(p->crossed > 0.0) || p->in != in) {
        p->crossed = now;
        p->in = in;
    }
    return p->crossed > 0.0 && now - p->crossed > quiet;
}

/* True if the deadline has passed and the late rank is known: the suspect has been the same for
 * `quiet` seconds (a quarter of the deadline, at most a second). If the suspect keeps changing, the
 * last one counts after four times that. */
static DPARI_COLD int dpari_peer_late(dpari_peer_wait *p, double began)
{
    const double timeout = p->comm->timeout_s, quiet = dpari_quiet(timeout);
    const double now = dpari_os_now();
    int32_t who;
    if (!(timeout > 0.0) || now - began < timeout - quiet) {
        return 0;
    }
    who = dpari_group_culprit(p->group, p->peer, quiet, &p->links);
    if (who != p->who || p->since <= 0.0) {
        p->who = who;
        p->since = now;
    }
    return now - began > timeout && (now - p->since > quiet || now - began > timeout + 4.0 * quiet);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_peer_await(dpari_peer_wait *p, const uint64_t *word,
                                                       uint64_t value)
{
    enum { PROGRESS = 64 }; /* turns of the wait between two steps of other work */
    dpari_world *world = p->group->world;
    dpar_status status = DPAR_OK;
    int32_t turn = 0, resumed = 0;
    dpari_wait t;
    dpari_zero(&t, sizeof t);
    while (DPARI_LOAD(word) < value && status == DPAR_OK) {
        const dpar_status passed = dpari_wait_turn(world, &t, p->peer);
        if (passed == DPAR_MORE || ++turn % PROGRESS == 0) {
            p->progress(p->exchange);
        }
        if (t.resumed != resumed) { /* this process was suspended: earlier suspicions are void */
            resumed = t.resumed;
            p->since = p->crossed = 0.0;
        }
        if (passed != DPAR_MORE || DPARI_LOAD(word) >= value) {
            continue;
        }
        dpari_wait_says(world, p->peer);
        status = dpari_peer_look(p->comm, p->group, p->peer);
        if (status == DPAR_OK && dpari_peer_crossed(p)) {
            status = DPAR_E_MISMATCH;
        }
        if (status == DPAR_OK && dpari_peer_late(p, t.began)) {
            status = DPAR_E_TIMEOUT;
        }
        if (status != DPAR_OK && DPARI_LOAD(word) >= value) {
            status = DPAR_OK; /* the peer published the word before it ended */
        }
    }
    dpari_wait_end(world, &t);
    if (status != DPAR_OK) {
        p->waited = dpari_os_now() - t.began;
    }
    return status;
}

/* ==== exchange/exchange.c ==== */

/* Runs the exchanges of halos and of points: begin, test, end, forward and adjoint.
 *
 * exchange.h describes the protocol. Each step of an exchange has the same stages: offer (pack,
 * publish `ready`, post messages), take what has arrived, and leave (wait for the peers that read
 * this rank's arrays). Begin offers the first step, test advances as far as possible without
 * waiting, and end completes all steps. */

/* ---- planning -------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_exchange_room(dpari_exchange *x, dpari_room *room, int64_t peers,
                                              int64_t steps, int64_t nodes)
{
    x->peer = (dpari_exchange_peer *)dpari_room_take(room, peers, sizeof *x->peer);
    x->flow = (dpari_exchange_flow *)dpari_room_take(room, peers * steps, sizeof *x->flow);
    x->step = (dpari_exchange_step *)dpari_room_take(room, steps, sizeof *x->step);
    x->rank_of = (int32_t *)dpari_room_take(room, nodes, sizeof *x->rank_of);
    x->call = (dpar_call *)dpari_room_take(room, 2 * peers, sizeof *x->call);
    x->work = (dpar_work *)dpari_room_take(room, 2 * peers + 1, sizeof *x->work);
}

/* Returns the rank in x->comm of rank i of the node. */
static int32_t dpari_exchange_node_rank(const dpari_exchange *x, int32_t i)
{
    return x->node == x->comm ? i : x->rank_of[i];
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_find_node(dpari_exchange *x)
{
    const dpari_group *group = dpari_group_of(x->node);
    int32_t i, k;
    if (!x->world) {
        return DPAR_OK;
    }
    if (x->node != x->comm) {
        const dpar_status status =
            dpar_all_gather(x->node, &x->comm->rank, x->rank_of, 1, DPAR_I32, NULL);
        if (status != DPAR_OK) { /* otherwise the other nodes would wait for this one */
            dpar_comm_abort(x->comm, status, x->node->why.text);
            return status;
        }
    }
    for (i = 0; i < x->node->size; i++) {
        const int32_t rank = dpari_exchange_node_rank(x, i);
        for (k = 0; k < x->peers; k++) {
            if (x->peer[k].rank == rank) {
                x->peer[k].world = group->world_rank[i];
            }
        }
    }
    return DPAR_OK;
}

/* Describes a message. The other fields of the calls stay 0. */
static void dpari_exchange_call(const dpari_exchange *x, dpar_call *call, int32_t i, int sends,
                                int32_t type, int64_t count, void *at)
{
    call->kind = sends ? DPAR_CALL_SEND : DPAR_CALL_RECV;
    call->type = type;
    call->root = x->peer[i].rank;
    call->tag = x->tag;
    call->count = count;
    call->in = sends ? at : NULL;
    call->out = sends ? NULL : at;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_records(const dpari_exchange *x,
                                                        const int64_t *mine, int64_t *theirs,
                                                        int64_t words)
{
    dpar_status status;
    int32_t i, n = 0, pass;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < x->peers; i++) {
            if (i == x->self) {
                continue;
            }
            dpari_exchange_call(x, &x->call[n++], i, pass, DPAR_I64, words,
                                pass ? (void *)(uintptr_t)(mine + i * words) : theirs + i * words);
        }
    }
    status = dpar_batch(x->comm, x->call, n, x->work);
    return status == DPAR_OK ? dpar_wait_all(x->work, n) : status;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Returns the status of the communicators: DPAR_OK unless one of them is broken. */
static dpar_status dpari_exchange_broken(const dpari_exchange *x)
{
    return x->comm->status != DPAR_OK ? x->comm->status : x->node->status;
}

/* Breaks the communicators with a status and a message. Returns the status that counts. */
static DPARI_COLD dpar_status dpari_exchange_break(dpari_exchange *x, dpar_status status,
                                                   const char *text)
{
    status = dpari_group_break(dpari_group_of(x->node), status, text);
    if (x->node != x->comm) {
        dpar_comm_abort(x->comm, status, x->node->why.text);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_unmapped(dpari_exchange *x, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(dpari_group_of(x->node), NULL, ref);
    if (x->node != x->comm) {
        dpar_comm_abort(x->comm, status, x->node->why.text);
    }
    return status;
}

/* Breaks the communicator if that of the node is broken, because messages of other nodes may then
 * never arrive. */
static void dpari_exchange_break_both(dpari_exchange *x)
{
    if (x->node->status != DPAR_OK && x->comm->status == DPAR_OK) {
        dpar_comm_abort(x->comm, x->node->status, x->node->why.text);
    }
}

/* Returns the rank in x->comm of a rank of the world, or -1 if it has none. */
static int32_t dpari_exchange_rank_of(const dpari_exchange *x, int32_t world)
{
    const dpari_group *group = dpari_group_of(x->node);
    int32_t i;
    for (i = 0; i < x->node->size; i++) {
        if (group->world_rank[i] == world) {
            return dpari_exchange_node_rank(x, i);
        }
    }
    return -1;
}

/* Returns the word `ready` of peer i for the step in progress. */
static const uint64_t *dpari_exchange_ready(const dpari_exchange *x, int32_t i)
{
    return &x->peer[i].line[x->step[x->now].line].ready;
}

/* Appends a description of a kind of exchange to a message. */
static void dpari_exchange_put_kind(dpar_text *text, uint64_t kind)
{
    static const char name[4][20] = {"a forward exchange", "an adjoint (sum)", "an adjoint (max)",
                                     "an adjoint (min)"};
    dpar_text_put(text, name[kind & DPARI_EXCHANGE_OP]);
}

/* Breaks the communicators with a message: peer i has ended, it or the rank that it waits for has
 * not made the call, or it runs another exchange. word: `ready` of peer i, as it was read. wait:
 * the wait that failed, or NULL if none did. */
static DPARI_COLD dpar_status dpari_exchange_fail(dpari_exchange *x, dpar_status status, int32_t i,
                                                  uint64_t word, const dpari_peer_wait *wait)
{
    const dpari_group *group = dpari_group_of(x->node);
    const dpari_exchange_peer *peer = &x->peer[i];
    dpar_why why;
    dpar_text text;
    dpari_text_why(&text, &why);
    dpari_text_print(&text, "%s %s #%ld of %d %s%s: rank ", x->name,
                     x->mode == DPARI_EXCHANGE_FORWARD ? "exchange" : "adjoint", x->count, x->items,
                     x->item, x->items == 1 ? "" : "s");
    dpari_text_int(&text,
                   status == DPAR_E_TIMEOUT ? dpari_exchange_rank_of(x, wait->who) : peer->rank);
    dpari_put_place(&text, group);
    if (status == DPAR_E_PEER && dpari_rank_state(x->world, peer->world) == DPARI_RANK_HERE) {
        dpar_text_put(&text, " closed the communicator or returned");
        dpari_put_failed(&text, x->world, peer->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&text, x->world, peer->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&text, " did not arrive within %.1f s; ", wait->waited);
        if (wait->links > 0) {
            dpari_text_print(&text, "rank %d waits for %s, and", peer->rank,
                             wait->links > 1 ? "others that wait for it" : "it");
        } else {
            dpar_text_put(&text, "it");
        }
        dpari_text_print(&text, " has begun exchange #%ld", (int64_t)(word >> 16));
    } else if (wait) {
        dpari_put_crossed(&text, group, peer->world, wait->in);
        dpar_text_put(&text, " instead");
    } else {
        dpar_text_put(&text, " runs ");
        dpari_exchange_put_kind(&text, word);
        dpari_text_print(&text, ", rank %d ", x->comm->rank);
        dpari_exchange_put_kind(&text, x->kind);
        if (((word ^ x->kind) & DPARI_EXCHANGE_OP) == 0) {
            dpari_text_print(&text, " of other %ss", x->item);
        }
    }
    return dpari_exchange_break(x, status, why.text);
}

/* ---- times ----------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_exchange_put_times(const dpari_exchange *x, dpar_text *out)
{
    const double us = x->count > 0 ? 1e6 / (double)x->count : 0.0;
    dpari_text_print(out, "packing %.2f us, copying %.2f us, waiting %.2f us",
                     x->seconds[DPARI_EXCHANGE_PACKING] * us,
                     x->seconds[DPARI_EXCHANGE_COPYING] * us,
                     x->seconds[DPARI_EXCHANGE_WAITING] * us);
}

/* ---- waiting for peers ----------------------------------------------------------------------- */

/* Values of `wait`, in addition to 0 (do not wait) and 1 (wait). */
enum {
    DPARI_EXCHANGE_PEEK = -2, /* does not wait, nor check whether the peer has failed, because a
                                 wait follows */
    DPARI_EXCHANGE_NODE = -1  /* waits for peers that share memory, but not for messages */
};

/* Seconds between two checks in a test that peers are alive. A check is a system call, which takes
 * 20 us. */
#define DPARI_EXCHANGE_LOOK_EVERY 10e-3

/* Advances messages and other work in progress, while this rank waits for a peer. */
static void dpari_exchange_progress(void *exchange)
{
    dpari_exchange *x = (dpari_exchange *)exchange;
    int32_t i;
    dpari_shm_progress_all(x->node);
    if (x->node != x->comm) {
        for (i = 0; i < x->posted; i++) {
            (void)dpar_test(&x->work[i]);
        }
        (void)x->comm->engine.progress(x->comm, 0);
    }
}

/* Waits until *word, a word of peer i, is at least `value`. Fails if the peer ends, calls another
 * operation or is late. */
static DPARI_COLD dpar_status dpari_exchange_await_slowly(dpari_exchange *x, int32_t i,
                                                          const uint64_t *word, uint64_t value)
{
    const double began = dpari_exchange_clock(x);
    dpari_peer_wait wait;
    dpar_status status;
    dpari_zero(&wait, sizeof wait);
    wait.comm = x->comm;
    wait.group = dpari_group_of(x->node);
    wait.peer = x->peer[i].world;
    wait.ready = dpari_exchange_ready(x, i);
    wait.shift = 16;
    wait.count = x->count;
    wait.progress = dpari_exchange_progress;
    wait.exchange = x;
    status = dpari_peer_await(&wait, word, value);
    dpari_exchange_time(x, DPARI_EXCHANGE_WAITING, began);
    if (status == DPAR_OK || dpari_exchange_broken(x) != DPAR_OK) {
        return status;
    }
    return dpari_exchange_fail(x, status, i, DPARI_LOAD(wait.ready), &wait);
}

/* Waits until *word, a word of peer i, is at least `value`. Returns DPAR_MORE instead of waiting
 * unless `wait` is 1. */
static dpar_status dpari_exchange_await(dpari_exchange *x, int32_t i, const uint64_t *word,
                                        uint64_t value, int wait)
{
    double now;
    dpar_status status;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait == DPARI_EXCHANGE_PEEK) {
        return DPAR_MORE;
    }
    if (wait) {
        return dpari_exchange_await_slowly(x, i, word, value);
    }
    now = dpari_os_now();
    if (now - x->looked < DPARI_EXCHANGE_LOOK_EVERY) {
        return DPAR_MORE;
    }
    x->looked = now;
    status = dpari_peer_look(x->comm, dpari_group_of(x->node), x->peer[i].world);
    if (status == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        status = dpari_exchange_fail(x, status, i, 0, NULL);
    }
    return status == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : status;
}

/* Waits until peer i has taken all values of exchange `last`. A peer that was ready for a later
 * exchange has taken them. */
static dpar_status dpari_exchange_await_peer_done(dpari_exchange *x, int32_t i, int64_t last)
{
    const dpari_exchange_peer *peer = &x->peer[i];
    if (peer->world < 0 || i == x->self || peer->seen > last) {
        return DPAR_OK;
    }
    return dpari_exchange_await(x, i, &peer->line[x->step[x->now].line].done, (uint64_t)last, 1);
}

DPARI_API dpar_status dpari_exchange_await_done(dpari_exchange *x, int64_t last)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->peers && status == DPAR_OK && last > 0; i++) {
        status = dpari_exchange_await_peer_done(x, i, last);
    }
    return status;
}

/* Waits until peer i is ready for this exchange, and checks that it runs the same one. */
static dpar_status dpari_exchange_meet(dpari_exchange *x, int32_t i, int wait)
{
    dpari_exchange_peer *peer = &x->peer[i];
    const uint64_t *ready = dpari_exchange_ready(x, i);
    const dpar_status status = dpari_exchange_await(x, i, ready, (uint64_t)x->count << 16, wait);
    const uint64_t word = DPARI_LOAD(ready);
    if (status != DPAR_OK) {
        return status;
    }
    peer->seen = (int64_t)(word >> 16);
    peer->lends = (word & DPARI_EXCHANGE_LENT) != 0 && peer->seen == x->count;
    x->lent |= peer->lends;
    if (peer->seen != x->count) { /* it is ahead, so that it lends nothing */
        return DPAR_OK;
    }
    if (((word ^ x->kind) & DPARI_EXCHANGE_KIND) != 0) {
        return dpari_exchange_fail(x, DPAR_E_MISMATCH, i, word, NULL);
    }
    return DPAR_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Describes the message of step s from peer i, or to it, if there is one. */
DPARI_ALWAYS_INLINE void dpari_exchange_describe(dpari_exchange *x, int32_t s, int32_t i, int sends)
{
    const dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
    const int64_t bytes = sends ? flow->out_bytes[x->mode] : flow->in_bytes[x->mode];
    if (bytes > 0 && dpari_exchange_sends(x, i)) {
        dpari_exchange_call(x, &x->call[x->posted++], i, sends, DPAR_U8, bytes,
                            x->message(x->plan, s, i, sends));
    }
}

/* Posts the described messages, from number `first` on. */
static dpar_status dpari_exchange_post(dpari_exchange *x, int32_t first)
{
    const int32_t n = x->posted - first;
    return n > 0 ? dpari_batch_checked(x->comm, x->call + first, n, x->work + first) : DPAR_OK;
}

/* Synchronizes the streams of devices that reach each other's memory. If work is NULL, this is done
 * at once, before the rank packs; otherwise as another message, the last one. */
static dpar_status dpari_exchange_sync_near(dpari_exchange *x, dpar_work *work)
{
    dpar_status status;
    if (x->reached == 0) {
        return DPAR_OK;
    }
    status = x->comm->engine.sync_peers(x->comm, x->memory, x->rank_of, x->reached, work);
    if (work) {
        x->posted += status == DPAR_OK;
        return status;
    }
    if (status < 0) {
        return status;
    }
    x->part = status;
    return DPAR_OK;
}

/* Waits for message n if wait is 1, or tests it if wait is 0. With DPARI_EXCHANGE_PEEK or
 * _NODE it does neither. */
static dpar_status dpari_exchange_message(dpari_exchange *x, int32_t n, int wait)
{
    const double began = dpari_exchange_clock(x);
    dpar_status status;
    if (wait < 0) {
        return DPAR_MORE;
    }
    status = wait ? dpar_wait(&x->work[n]) : dpar_test(&x->work[n]);
    dpari_exchange_time(x, DPARI_EXCHANGE_WAITING, began);
    return status;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* The stages of a step. */
enum {
    DPARI_EXCHANGE_TAKING,  /* takes the values of the peers */
    DPARI_EXCHANGE_LEAVING, /* waits until peers have read this rank's arrays, and messages are
                               sent */
    DPARI_EXCHANGE_FINISHED /* no step that involves other ranks is in progress */
};

/* Publishes that the values of step s are packed. */
static void dpari_exchange_publish(dpari_exchange *x, int32_t s)
{
    const uint64_t lent = x->lends ? (uint64_t)DPARI_EXCHANGE_LENT : 0;
    if (x->step[s].meets) {
        dpari_publish(x->world, &x->line[x->step[s].line].ready,
                      (uint64_t)x->count << 16 | x->kind | lent);
    }
}

/* Packs and publishes the values of step s, after the peers have taken those that this turn held
 * before, and posts its messages. */
static dpar_status dpari_exchange_offer(dpari_exchange *x, int32_t s)
{
    dpar_status status = dpari_exchange_sync_near(x, NULL);
    int32_t i;
    x->now = s;
    x->posted = 0;
    for (i = 0; i < x->peers && status == DPAR_OK; i++) {
        dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
        flow->taken = !flow->takes[x->mode] || x->peer[i].reached;
        if (flow->packed && x->count > 2) {
            status = dpari_exchange_await_peer_done(x, i, x->count - 2);
        }
        dpari_exchange_describe(x, s, i, 0);
    }
    if (status != DPAR_OK) {
        x->posted = 0;
        return status;
    }
    x->receives = x->posted;
    if (!x->together) {
        status = dpari_exchange_post(x, 0);
    }
    if (status == DPAR_OK && x->pack) {
        status = x->pack(x->plan, s);
    }
    if (status != DPAR_OK) {
        return status;
    }
    dpari_exchange_publish(x, s);
    for (i = 0; i < x->peers; i++) {
        dpari_exchange_describe(x, s, i, 1);
    }
    status = dpari_exchange_post(x, x->together ? 0 : x->receives);
    return status == DPAR_OK ? dpari_exchange_sync_near(x, &x->work[x->posted]) : status;
}

/* Begins a step: offers it, unless that was done at the beginning of the exchange, and takes the
 * values that this rank sends to itself. */
static dpar_status dpari_exchange_begin_step(dpari_exchange *x, int32_t s)
{
    const int offered = x->mode == DPARI_EXCHANGE_FORWARD && s == x->early && x->early > 0;
    const dpar_status status = offered ? DPAR_OK : dpari_exchange_offer(x, s);
    x->stage = DPARI_EXCHANGE_TAKING;
    if (status == DPAR_OK && x->take_own) {
        x->take_own(x->plan, s);
    }
    return status;
}

/* True if an exchange of this mode has step s. */
static int dpari_exchange_has(const dpari_exchange *x, int32_t s)
{
    return s >= 0 && s < x->steps && (x->step[s].modes >> x->mode & 1) != 0;
}

/* Returns the number of the step after step s. An adjoint takes the steps backwards. */
static int32_t dpari_exchange_after(const dpari_exchange *x, int32_t s)
{
    return x->mode == DPARI_EXCHANGE_FORWARD ? s + 1 : s - 1;
}

/* Does the steps from s on that involve only this rank. x->next is then the step after them. */
static void dpari_exchange_take_alone(dpari_exchange *x, int32_t s)
{
    while (dpari_exchange_has(x, s) && x->step[s].alone) {
        x->take_own(x->plan, s);
        s = dpari_exchange_after(x, s);
    }
    x->next = s;
}

/* Takes the values of peer i, once they are ready. message: the number of its message. */
static dpar_status dpari_exchange_take(dpari_exchange *x, int32_t s, int32_t i, int32_t message,
                                       int wait)
{
    dpar_status status = DPAR_OK;
    if (i != x->self) {
        status = x->peer[i].world >= 0 ? dpari_exchange_meet(x, i, wait)
                                       : dpari_exchange_message(x, message, wait);
    }
    return status == DPAR_OK ? x->take(x->plan, s, i) : status;
}

/* Takes the values of all peers. A forward exchange first takes those that are ready, then waits
 * for the peers that share memory, which come soon, and then for messages. An adjoint takes the
 * peers in the order of ranks, so that sums do not depend on arrival. */
static dpar_status dpari_exchange_take_peers(dpari_exchange *x, int32_t s, int wait)
{
    const int peeks = wait && x->mode == DPARI_EXCHANGE_FORWARD && x->shared > 0;
    dpar_status all = DPAR_MORE, status;
    int32_t i, pass, n;
    /* the passes are PEEK, NODE and 1, or only 1, or only 0 */
    for (pass = peeks ? DPARI_EXCHANGE_PEEK : wait; pass <= wait && all != DPAR_OK;
         pass += pass == DPARI_EXCHANGE_NODE ? 2 : 1) {
        all = DPAR_OK;
        n = 0;
        for (i = 0; i < x->peers; i++) {
            dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
            const int32_t message = n;
            n += flow->in_bytes[x->mode] > 0 && dpari_exchange_sends(x, i);
            if (flow->taken) {
                continue;
            }
            status = dpari_exchange_take(x, s, i, message, pass);
            if (status == DPAR_MORE && x->mode == DPARI_EXCHANGE_FORWARD) {
                all = DPAR_MORE;
                continue;
            }
            if (status != DPAR_OK) {
                return status;
            }
            flow->taken = 1;
        }
    }
    if (all == DPAR_OK && x->reached > 0) { /* posted by dpari_exchange_sync_near */
        return dpari_exchange_message(x, x->posted - 1, wait);
    }
    return all;
}

/* Does what follows once all values have been taken, and publishes that they have. Peers are woken
 * only if one may wait for that. */
static dpar_status dpari_exchange_taken(dpari_exchange *x, int32_t s)
{
    const dpari_exchange_step *step = &x->step[s];
    dpar_status status = x->finish ? x->finish(x->plan, s) : DPAR_OK;
    if (status == DPAR_OK && step->meets) {
        /* A peer that had timed out may have packed other values while this rank read. */
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        status = dpari_group_broken(dpari_group_of(x->node));
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (step->meets && (x->lent || x->oneway)) {
        dpari_publish(x->world, &x->line[step->line].done, (uint64_t)x->count);
    } else if (step->meets) {
        DPARI_STORE(&x->line[step->line].done, (uint64_t)x->count);
    }
    dpari_exchange_take_alone(x, dpari_exchange_after(x, s));
    return DPAR_OK;
}

/* Waits until peers have read this rank's arrays, and until messages have been sent. */
static dpar_status dpari_exchange_leave(dpari_exchange *x, int32_t s, int wait)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->peers && x->lends && status == DPAR_OK; i++) {
        if (x->flow[i * x->steps + s].lends[x->mode] && x->peer[i].world >= 0) {
            status = dpari_exchange_await(x, i, &x->peer[i].line[x->step[s].line].done,
                                          (uint64_t)x->count, wait);
        }
    }
    for (i = x->receives; i < x->posted && status == DPAR_OK; i++) {
        status = dpari_exchange_message(x, i, wait);
    }
    return status;
}

/* Advances the step in progress as far as possible. Returns DPAR_OK when it is finished. Before it
 * waits for the readers of this rank's arrays, it does the steps that follow and involve only this
 * rank, because no peer reads the points that these write. */
static dpar_status dpari_exchange_advance_step(dpari_exchange *x, int wait)
{
    const int32_t s = x->now;
    if (x->stage == DPARI_EXCHANGE_TAKING) {
        dpar_status status = dpari_exchange_take_peers(x, s, wait);
        if (status == DPAR_OK) {
            status = dpari_exchange_taken(x, s);
        }
        if (status != DPAR_OK) {
            return status;
        }
        x->stage = DPARI_EXCHANGE_LEAVING;
    }
    return x->stage == DPARI_EXCHANGE_LEAVING ? dpari_exchange_leave(x, s, wait) : DPAR_OK;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Marks the exchange as ended. */
static void dpari_exchange_mark_ended(dpari_exchange *x)
{
    x->active = 0;
    if (x->left) {
        x->left = 0;
        dpari_rest_drop(x->comm, x);
    }
}

/* Ends an exchange that has failed, so that nothing of it remains in progress. */
static DPARI_COLD dpar_status dpari_exchange_abandon(dpari_exchange *x, dpar_status status)
{
    dpari_exchange_break_both(x);
    if (dpari_exchange_broken(x) != DPAR_OK) {
        (void)dpar_wait_all(x->work, x->posted);
    }
    x->posted = 0;
    dpari_exchange_mark_ended(x);
    return status;
}

/* Completes the step in progress and begins the next one. If `wait` is 0, returns DPAR_MORE instead
 * of waiting. Returns DPAR_OK if the next step has begun, or if there is none. */
static dpar_status dpari_exchange_next_step(dpari_exchange *x, int wait)
{
    dpar_status status = dpari_exchange_advance_step(x, wait);
    if (status == DPAR_OK && dpari_exchange_has(x, x->next)) {
        status = dpari_exchange_begin_step(x, x->next);
    } else if (status == DPAR_OK) {
        dpari_exchange_mark_ended(x);
    }
    return status == DPAR_OK || status == DPAR_MORE ? status : dpari_exchange_abandon(x, status);
}

/* True if this rank still has to post messages, of steps that have not begun. */
static int dpari_exchange_unposted(const dpari_exchange *x)
{
    const int begun = x->stage != DPARI_EXCHANGE_FINISHED && x->next == x->now;
    int32_t s = begun ? dpari_exchange_after(x, x->next) : x->next, i;
    for (; dpari_exchange_has(x, s); s = dpari_exchange_after(x, s)) {
        for (i = 0; i < x->peers; i++) {
            const dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
            if (x->peer[i].world < 0 &&
                (flow->in_bytes[x->mode] > 0 || flow->out_bytes[x->mode] > 0)) {
                return 1;
            }
        }
    }
    return 0;
}

/* Posts the messages that an exchange still has to post, before another one begins. It is
 * comm->post_pending. */
static dpar_status dpari_exchange_post_rest(void *before)
{
    dpari_exchange *x = (dpari_exchange *)before;
    dpar_status status = DPAR_OK;
    while (status == DPAR_OK && x->active && dpari_exchange_unposted(x)) {
        status = dpari_exchange_next_step(x, 1);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_is_over(const dpari_exchange *x, const char *caller)
{
    if (!x->active) {
        return DPAR_OK;
    }
    return dpari_comm_wrong(x->comm, "%s%s exchange %ld has not ended; call %s first", caller,
                            x->name, x->count, x->end);
}

DPARI_API dpar_status dpari_exchange_may_begin(dpari_exchange *x)
{
    dpar_status status = DPAR_OK;
    if (x->world) { /* the other ranks may have timed out while they waited for this one */
        status = dpari_group_broken(dpari_group_of(x->node));
    }
    if (status == DPAR_OK) {
        status = dpari_exchange_broken(x);
    }
    if (status != DPAR_OK) {
        dpari_exchange_break_both(x);
        return status;
    }
    return x->active ? dpari_exchange_is_over(x, "") : dpari_rest_post(x->comm);
}

/* Returns the bits DPARI_EXCHANGE_OP of an operation. */
static uint64_t dpari_exchange_op(int32_t op)
{
    switch (op) {
    case DPAR_SUM: return 1;
    case DPAR_MAX: return 2;
    case DPAR_MIN: return 3;
    default: return 0;
    }
}

/* Offers first what peers can take at once, then does the steps that involve only this rank, then
 * begins the first other step. */
DPARI_API dpar_status dpari_exchange_begin(dpari_exchange *x, int32_t op, uint64_t hash)
{
    const int forward = op == DPAR_COPY;
    dpar_status status = DPAR_OK;
    x->count++;
    x->active = 1;
    x->mode = forward ? DPARI_EXCHANGE_FORWARD : DPARI_EXCHANGE_ADJOINT;
    x->op = op;
    x->kind = (hash & (DPARI_EXCHANGE_KIND - DPARI_EXCHANGE_OP)) | dpari_exchange_op(op);
    x->lent = 0;
    x->posted = 0;
    if (forward && x->early > 0) {
        status = dpari_exchange_offer(x, x->early);
    }
    if (status == DPAR_OK) {
        dpari_exchange_take_alone(x, forward ? 0 : x->steps - 1);
        x->stage = DPARI_EXCHANGE_FINISHED;
    }
    if (status == DPAR_OK && dpari_exchange_has(x, x->next)) {
        status = dpari_exchange_begin_step(x, x->next);
    }
    if (status != DPAR_OK) {
        return dpari_exchange_abandon(x, status);
    }
    if (x->steps > 1 && dpari_exchange_unposted(x)) {
        x->left = 1;
        dpari_rest_leave(x->comm, dpari_exchange_post_rest, x);
    }
    return DPAR_OK;
}

/* If the communicator has been closed, only marks the exchange as ended, because its memory has
 * been freed. */
static void dpari_exchange_check_closed(dpari_exchange *x)
{
    if (x->active && x->comm->status != DPAR_OK && dpari_ended_is(x->comm)) {
        x->active = 0;
        x->posted = 0;
    }
}

DPARI_API dpar_status dpari_exchange_advance(dpari_exchange *x, int wait)
{
    dpar_status status = DPAR_OK;
    dpari_exchange_check_closed(x);
    if (!x->active) {
        return dpari_exchange_broken(x);
    }
    while (status == DPAR_OK && x->active) {
        status = dpari_exchange_next_step(x, wait);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_close(dpari_exchange *x, const char *caller,
                                                      int32_t *refused)
{
    dpar_status status;
    dpari_exchange_check_closed(x);
    status = dpari_exchange_broken(x);
    *refused = x->active && status == DPAR_OK;
    if (*refused) {
        return dpari_exchange_is_over(x, caller);
    }
    if (status == DPAR_OK) {
        return dpar_barrier(x->comm, NULL); /* peers may still read this rank's words */
    }
    if (x->active) { /* otherwise the end of the communicator would wait for its messages */
        return dpari_exchange_abandon(x, status);
    }
    return status;
}

/* ==== exchange/move_items.c ==== */

/* The boxes of a move. A message has the elements of a box in the sender's order. A part of it,
 * elements [begin, end), is divided into the largest boxes that are contiguous in the message, and
 * each of them becomes a box of ../host/mem.h, which ../comm/memory_calls.h copies in the host's
 * memory and in a device's. Called by move_order, move_rounds, move_lists and move. */

enum { DPARI_MOVE_RUN = 64 }; /* elements of a run that is combined in place */

/* Returns the dim of the array that a dim of the message becomes if two are swapped. */
static int32_t dpari_swapped(const int32_t *swap, int32_t dim)
{
    if (dim == swap[0]) {
        return swap[1];
    }
    return dim == swap[1] ? swap[0] : dim;
}

/* ---- checking the caller's arguments --------------------------------------------------------- */

DPARI_INTERNAL dpar_status dpari_array_init(dpari_move_array *array, int32_t dims,
                                            const int64_t *shape, int32_t bytes, int64_t *elements,
                                            dpar_why *why)
{
    int64_t n = 1, all;
    int32_t d;
    dpari_zero(array, sizeof *array);
    array->dims = dims;
    if (dims < 0 || dims > DPAR_MAX_DIMS || (dims > 0 && shape == NULL)) {
        return dpari_wrong(why, "the array has %d dims, but must have 0 to 6, and a shape", dims);
    }
    for (d = dims - 1; d >= 0; d--) {
        array->step[d] = n;
        if (shape[d] < 0) {
            return dpari_wrong(why, "dim %d of a shape is %ld, but must be 0 or more", d, shape[d]);
        }
        if (!dpari_mul(n, shape[d], &n)) {
            return dpari_say(DPAR_E_RANGE, why, "a shape has 2^63 elements or more");
        }
    }
    if (!dpari_mul(n, bytes, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "%ld elements of %d bytes are 2^63 bytes or more", n,
                         bytes);
    }
    *elements = n;
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_transfer_check(const dpar_transfer *t, int32_t dims,
                                                const int64_t *shape, int32_t type, int arrives,
                                                dpar_why *why)
{
    int32_t d;
    if (t->dims != dims) {
        return dpari_wrong(why, "a transfer has %d dims, but its array has %d", t->dims, dims);
    }
    if (t->swap[0] != t->swap[1] &&
        (t->swap[0] < 0 || t->swap[0] >= dims || t->swap[1] < 0 || t->swap[1] >= dims)) {
        return dpari_wrong(why, "dims %d and %d of %d cannot be exchanged", t->swap[0], t->swap[1],
                           dims);
    }
    for (d = 0; d < dims; d++) {
        int64_t n = t->extent[arrives ? dpari_swapped(t->swap, d) : d];
        if (n < 1 || t->mine[d] < 0 || t->mine[d] > shape[d] - n) {
            return dpari_wrong(why,
                               "dim %d: %ld elements from %ld on are not inside an array of %ld", d,
                               n, t->mine[d], shape[d]);
        }
    }
    if (t->op < DPAR_COPY || t->op >= DPAR_OP_COUNT) {
        return dpari_wrong(why, "op %d does not exist", t->op);
    }
    if (t->op != DPAR_COPY && !dpari_type_can_reduce(type)) {
        const char *name = dpar_type_name(type);
        return dpari_wrong(why, "elements of %s cannot be combined", name);
    }
    return DPAR_OK;
}

/* ---- items ----------------------------------------------------------------------------------- */

DPARI_INTERNAL int dpari_transfer_continues(const dpar_transfer *a, const dpar_transfer *b)
{
    int32_t d;
    if (b->op == DPAR_COPY || (a->op != DPAR_COPY && a->op != b->op) ||
        dpari_swapped(a->swap, b->swap[0]) != b->swap[1]) {
        return 0;
    }
    for (d = b->dims - 1; d >= 0; d--) { /* mostly, the last dim differs */
        const uint32_t flips = (a->flip ^ b->flip) >> dpari_swapped(b->swap, d);
        if (a->extent[d] != b->extent[d] || a->mine[d] != b->mine[d] ||
            (b->extent[d] > 1 && (flips & 1u) != 0)) {
            return 0;
        }
    }
    return 1;
}

DPARI_INTERNAL void dpari_item_init(dpari_move_item *it, const dpar_transfer *t,
                                    const dpari_move_array *array)
{
    const int arrives = array->to != NULL; /* messages have the sender's order, so only receives
                                              flip and swap */
    int32_t d;
    dpari_zero(it, sizeof *it);
    it->op = t->op;
    it->next = -1;
    it->volume = 1;
    it->swap[0] = arrives ? t->swap[0] : 0;
    it->swap[1] = arrives ? t->swap[1] : 0;
    for (d = 0; d < array->dims; d++) {
        const int32_t there = dpari_swapped(it->swap, d);
        const int back = arrives && (t->flip >> there & 1u) != 0 && t->extent[d] > 1;
        it->extent[d] = t->extent[d];
        it->volume *= t->extent[d];
        it->at += (t->mine[there] + (back ? t->extent[d] - 1 : 0)) * array->step[there];
        it->flip |= back ? (uint32_t)1 << d : 0;
    }
}

static int64_t dpari_item_step(const dpari_move_array *array, const dpari_move_item *it, int32_t d)
{
    const int64_t step = array->step[dpari_swapped(it->swap, d)];
    return it->flip >> d & 1u ? -step : step;
}

DPARI_INTERNAL int64_t dpari_item_run(const dpari_move_array *array, const dpari_move_item *it)
{
    int64_t run = 1;
    int32_t d;
    for (d = array->dims - 1; d >= 0; d--) {
        if (it->extent[d] > 1) {
            if (dpari_item_step(array, it, d) != run) {
                break;
            }
            run *= it->extent[d];
        }
    }
    return run;
}

DPARI_INTERNAL int64_t dpari_item_at(const dpari_move_array *array, const dpari_move_item *it,
                                     int64_t i)
{
    int64_t at = it->at;
    int32_t d;
    for (d = array->dims - 1; d >= 0; d--) {
        at += i % it->extent[d] * dpari_item_step(array, it, d);
        i /= it->extent[d];
    }
    return at;
}

/* ---- boxes ----------------------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_boxes_flush(dpari_move_boxes *boxes)
{
    if (boxes->count > 0) {
        (void)dpari_do_move(boxes->comm, boxes->box, boxes->count);
    }
    boxes->count = 0;
}

/* Returns the next box, whose memory, extents and strides the caller sets. Boxes of one call have
 * the same op, so another op begins a new call. */
static dpar_mem_box *dpari_boxes_next(dpari_move_boxes *boxes, int32_t op, int32_t dims)
{
    dpar_mem_box *b;
    if (boxes->count == boxes->most || (boxes->count > 0 && boxes->box[0].op != op)) {
        dpari_boxes_flush(boxes);
    }
    b = &boxes->box[boxes->count++];
    b->op = op;
    b->to_type = b->from_type = b->round_type = boxes->type;
    b->negate = b->clear = b->reserved = 0;
    b->dims = dims;
    return b;
}

/* Finds the largest box that is contiguous in the message, begins at element `begin` and does not
 * pass `end`. Stores its offset in the array and its lengths, and returns its number of
 * elements. */
static int64_t dpari_item_rect(const dpari_move_item *it, int32_t dims, const int64_t *step,
                               int64_t begin, int64_t end, int64_t *at, int64_t *length)
{
    int64_t rest = begin, inner = 1, index = 0, per = 1;
    int32_t d, cut = dims;
    *at = it->at;
    /* `cut` is the outermost dim along which the box has several elements; all dims inside it are
     * whole */
    for (d = dims - 1; d >= 0; d--) {
        int64_t i = rest % it->extent[d];
        rest /= it->extent[d];
        *at += i * step[d];
        length[d] = 1;
        if (cut == d + 1 && begin % inner == 0 && end - begin >= inner) {
            cut = d;
            per = inner;
            index = i;
            inner *= it->extent[d];
        }
    }
    if (cut == dims) { /* an array of 0 dims has one element */
        return 1;
    }
    for (d = cut + 1; d < dims; d++) {
        length[d] = it->extent[d];
    }
    length[cut] = dpari_least(it->extent[cut] - index, (end - begin) / per);
    return length[cut] * per;
}

/* Copies elements [begin, end) of a box between its array and a message, or combines them with the
 * array's. */
static void dpari_item_move(dpari_move_boxes *boxes, const dpari_move_array *a,
                            const dpari_move_item *it, int64_t begin, int64_t end,
                            unsigned char *message, int pack, int32_t op)
{
    unsigned char *array = pack ? (unsigned char *)(uintptr_t)a->from : a->to;
    int64_t step[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < a->dims; d++) {
        step[d] = dpari_item_step(a, it, d);
    }
    while (begin < end) {
        int64_t at, dense, length[DPAR_MAX_DIMS];
        const int64_t n = dpari_item_rect(it, a->dims, step, begin, end, &at, length);
        dpar_mem_box *b = dpari_boxes_next(boxes, op, a->dims);
        b->to = pack ? message : array + at * boxes->bytes;
        b->from = pack ? array + at * boxes->bytes : message;
        for (d = 0, dense = n; d < a->dims; d++) {
            dense /= length[d];
            b->extent[d] = length[d];
            b->to_stride[d] = pack ? dense : step[d];
            b->from_stride[d] = pack ? step[d] : dense;
        }
        message += n * boxes->bytes;
        begin += n;
    }
}

DPARI_INTERNAL void dpari_item_pack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                    const dpari_move_item *it, int64_t begin, int64_t end,
                                    unsigned char *message)
{
    dpari_item_move(boxes, array, it, begin, end, message, 1, DPAR_COPY);
}

DPARI_INTERNAL void dpari_item_unpack(dpari_move_boxes *boxes, const dpari_move_array *array,
                                      const dpari_move_item *it, int64_t begin, int64_t end,
                                      const unsigned char *message)
{
    dpari_item_move(boxes, array, it, begin, end, (unsigned char *)(uintptr_t)message, 0,
                    DPAR_COPY);
}

DPARI_INTERNAL void dpari_item_copy(dpari_move_boxes *boxes, const dpari_move_array *to,
                                    const dpari_move_item *there, const dpari_move_array *from,
                                    const dpari_move_item *here)
{
    dpar_mem_box *b = dpari_boxes_next(boxes, DPAR_COPY, to->dims);
    int32_t d;
    b->to = to->to + there->at * boxes->bytes;
    b->from = (unsigned char *)(uintptr_t)from->from + here->at * boxes->bytes;
    for (d = 0; d < to->dims; d++) {
        b->extent[d] = here->extent[d];
        b->to_stride[d] = dpari_item_step(to, there, d);
        b->from_stride[d] = dpari_item_step(from, here, d);
    }
}

DPARI_INTERNAL void dpari_array_zero(dpari_move_boxes *boxes, const dpari_move_array *array,
                                     const int64_t *extent, unsigned char *zero)
{
    dpar_mem_box *b;
    int32_t d;
    (void)dpari_do_copy(boxes->comm, zero, NULL, DPARI_MOVE_ZERO);
    b = dpari_boxes_next(boxes, DPAR_COPY, array->dims);
    b->to = array->to;
    b->from = zero;
    for (d = 0; d < array->dims; d++) {
        b->extent[d] = extent[d];
        b->to_stride[d] = array->step[d];
        b->from_stride[d] = 0;
    }
    dpari_boxes_flush(boxes);
}

/* ---- combining ------------------------------------------------------------------------------- */

/* On a device: copies all parts next to each other, and reduces them in one operation. */
static void dpari_item_reduce(dpari_move_boxes *boxes, const dpari_move_array *array,
                              const dpari_move_array *read, const dpari_move_item *it,
                              int64_t begin, int64_t end, const void **part, int32_t parts,
                              int32_t op)
{
    const int64_t most = DPARI_MOVE_STAGE / boxes->bytes;
    unsigned char *result = boxes->stage + (int64_t)parts * DPARI_MOVE_STAGE;
    dpar_mem_reduce r;
    int64_t i, n;
    int32_t k;
    dpari_zero(&r, sizeof r);
    r.to = result;
    r.from = boxes->stage;
    r.parts = parts;
    r.stride = most;
    r.to_type = r.from_type = boxes->type;
    r.sum_type = boxes->bytes == 2 ? (int32_t)DPAR_F32 : boxes->type;
    r.op = op;
    r.scale = 1.0;
    for (i = begin; i < end; i += n) {
        n = r.count = dpari_least(end - i, most);
        dpari_item_pack(boxes, read, it, i, i + n, boxes->stage);
        for (k = 1; k < parts; k++) {
            dpar_mem_box *b = dpari_boxes_next(boxes, DPAR_COPY, 1);
            b->to = boxes->stage + (int64_t)k * DPARI_MOVE_STAGE;
            b->from = (unsigned char *)(uintptr_t)part[k] + (i - begin) * boxes->bytes;
            b->extent[0] = n;
            b->to_stride[0] = b->from_stride[0] = 1;
        }
        dpari_boxes_flush(boxes);
        (void)dpari_do_reduce(boxes->comm, &r);
        dpari_item_unpack(boxes, array, it, i, i + n, result);
        dpari_boxes_flush(boxes);
    }
}

/* In the host's memory: runs of at least DPARI_MOVE_RUN elements are reduced in place, shorter
 * ones in a buffer of BYTES bytes. */
static void dpari_item_reduce_here(dpari_move_boxes *boxes, const dpari_move_array *array,
                                   const dpari_move_array *read, const dpari_move_item *it,
                                   int64_t begin, int64_t end, const void **part, int32_t parts,
                                   int32_t op)
{
    enum { BYTES = 4096 };
    union {
        double aligned;
        unsigned char byte[BYTES];
    } buffer;
    const int64_t run = dpari_item_run(array, it);
    const void **shifted = part + parts;
    int64_t i, n;
    for (i = begin; i < end; i += n) {
        const int64_t row = dpari_least(end - i, run - i % run);
        void *result = buffer.byte;
        int32_t k;
        if (row >= DPARI_MOVE_RUN) {
            n = row;
            result = array->to + dpari_item_at(array, it, i) * boxes->bytes;
        } else {
            n = dpari_least(end - i, BYTES / boxes->bytes);
            dpari_item_pack(boxes, read, it, i, i + n, buffer.byte);
            dpari_boxes_flush(boxes);
        }
        shifted[0] = result;
        for (k = 1; k < parts; k++) {
            shifted[k] = (const unsigned char *)part[k] + (i - begin) * boxes->bytes;
        }
        dpari_kern_reduce(&result, 1, shifted, parts, n, boxes->type, op, 0);
        if (row < DPARI_MOVE_RUN) {
            dpari_item_unpack(boxes, array, it, i, i + n, buffer.byte);
            dpari_boxes_flush(boxes);
        }
    }
}

/* True if the operation is one of those of boxes, so that parts are combined one after the other
 * with the array. Not for more than two parts of 16 bits, which are rounded once. */
static int dpari_boxes_combine(const dpari_move_boxes *boxes, int32_t parts, int32_t op)
{
    return op != DPAR_AVG && op != DPAR_PRODUCT && (boxes->bytes != 2 || parts == 2);
}

DPARI_INTERNAL void dpari_item_combine(dpari_move_boxes *boxes, const dpari_move_array *array,
                                       const dpari_move_item *it, int64_t begin, int64_t end,
                                       const void **part, int32_t parts, int32_t op)
{
    const int here = boxes->comm->mem == NULL;
    dpari_move_array read = *array;
    int32_t k;
    read.from = array->to;
    dpari_boxes_flush(boxes);
    if (dpari_boxes_combine(boxes, parts, op) &&
        (!here || (parts == 2 && dpari_item_run(array, it) < DPARI_MOVE_RUN))) {
        for (k = 1; k < parts; k++) { /* boxes that write the same elements are combined in this
                                         order */
            dpari_item_move(boxes, array, it, begin, end, (unsigned char *)(uintptr_t)part[k], 0,
                            op);
        }
        dpari_boxes_flush(boxes);
    } else if (here) {
        dpari_item_reduce_here(boxes, array, &read, it, begin, end, part, parts, op);
    } else {
        dpari_item_reduce(boxes, array, &read, it, begin, end, part, parts, op);
    }
}

/* ==== exchange/move_streams.c ==== */

/* Makes the streams of a move.
 *
 * The transfers are walked twice: once to know how much scratch they need at most, and once more to
 * make their items in it. The items of one peer form a stream, which is cut into messages of about
 * piece_bytes. Called by move_order, move_rounds, move_lists and move. */

/* ---- checks and messages --------------------------------------------------------------------- */

DPARI_INTERNAL dpar_status dpari_move_init(dpari_move *move, dpar_comm *comm,
                                           const dpar_redistribute_desc *desc, dpar_why *why)
{
    /* bytes: by default the messages of all peers have ALL together, and each one LEAST to MOST;
     * boxes from ALONE on share no message */
    enum { LEAST = 1 << 16, MOST = 1 << 20, ALL = 1 << 25, ALONE = 1 << 14 };
    const int64_t usual = dpari_most(LEAST, dpari_least(MOST, ALL / comm->size));
    int32_t bytes;
    dpari_zero(move, sizeof *move);
    desc = desc != NULL ? desc : &move->none;
    bytes = dpar_type_bytes(desc->type);
    move->comm = move->boxes.comm = comm;
    move->source.rank = comm->rank;
    move->desc = desc;
    move->boxes.type = desc->type;
    move->boxes.bytes = bytes;
    if (bytes == 0) {
        return dpari_wrong(why, "type %s (%d) has no elements of whole bytes",
                           dpar_type_name(desc->type), desc->type);
    }
    if (desc->tag < 0 || desc->piece_bytes < 0 || desc->scratch_bytes < 0) {
        return dpari_wrong(
            why, "tag is %d, piece_bytes %ld, scratch_bytes %ld, but none may be negative",
            desc->tag, desc->piece_bytes, desc->scratch_bytes);
    }
    move->piece = dpari_most(1, (desc->piece_bytes > 0 ? desc->piece_bytes : usual) / bytes);
    move->alone = dpari_least(move->piece, ALONE / bytes);
    return DPAR_OK;
}

DPARI_INTERNAL DPARI_COLD void dpari_move_state(dpari_facts *facts, const void *given)
{
    const dpari_move *move = (const dpari_move *)given;
    dpari_fact_type(facts, "type", 0, move->desc->type);
    dpari_fact(facts, "tag", 0, move->desc->tag);
    dpari_fact(facts, "elements of a message", 0, move->piece);
}

DPARI_INTERNAL dpar_status dpari_move_failed(const dpari_move *move, dpar_status status,
                                             dpar_why *why)
{
    if (why != NULL && status < 0) {
        *why = move->comm->why;
    }
    return status;
}

DPARI_INTERNAL int dpari_move_overlaps(const dpari_move *move, int64_t in_bytes, int64_t out_bytes)
{
    const uintptr_t in = (uintptr_t)move->desc->in, out = (uintptr_t)move->desc->out;
    return in_bytes > 0 && out_bytes > 0 && in < out + (uintptr_t)out_bytes &&
           out < in + (uintptr_t)in_bytes;
}

/* ---- walking the transfers ------------------------------------------------------------------- */

static dpar_status dpari_source_begin(dpari_move_source *source, int32_t direction, dpar_why *why)
{
    source->direction = direction;
    source->at = 0;
    if (source->from == NULL) {
        return DPAR_OK;
    }
    if (source->per_node < DPAR_REDISTRIBUTE_PRIMARY) {
        return dpari_wrong(why, "ranks_per_node is %d, but must be -1 or more", source->per_node);
    }
    if (dpar_redistribute_check(source->from, source->to, why) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    return dpar_redistribute_first(&source->walk, source->from, source->to, source->rank, direction,
                                   source->per_node);
}

/* Returns the next transfer, or NULL if there is none, and notes whether it continues the one
 * before it. */
static const dpar_transfer *dpari_source_next(dpari_move_source *source)
{
    dpar_transfer *t = &source->transfer[source->at % 2];
    if (source->from != NULL) {
        if (!dpar_redistribute_next(&source->walk, t)) {
            return NULL;
        }
    } else if (source->at == source->count[source->direction]) {
        return NULL;
    } else {
        *t = source->list[source->direction][source->at];
    }
    source->at++;
    source->continues =
        source->at > 1 && dpari_transfer_continues(&source->transfer[source->at % 2], t);
    return t;
}

/* Counts the transfers of one direction. */
static DPARI_COLD dpar_status dpari_source_total(dpari_move_source *source, int32_t direction,
                                                 dpari_move_totals *sum, dpar_why *why)
{
    const dpar_transfer *t;
    const dpar_status status = dpari_source_begin(source, direction, why);
    dpari_zero(sum, sizeof *sum);
    if (status != DPAR_OK) {
        return status;
    }
    while ((t = dpari_source_next(source)) != NULL) {
        const int64_t volume = dpar_transfer_volume(t);
        if (volume < 0 || volume > (INT64_C(1) << 62) - sum->elements) {
            return dpari_say(DPAR_E_RANGE, why, "more than 2^62 elements are moved");
        }
        if (t->op != DPAR_COPY) {
            sum->ops = 1;
            sum->apart |= !source->continues;
            sum->own_ops |= t->peer == source->rank;
        }
        if (t->peer == source->rank) {
            sum->own += volume;
        }
        sum->elements += volume;
        sum->items++;
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_move_count(dpari_move *move, dpar_why *why)
{
    const dpar_status status =
        dpari_source_total(&move->source, DPAR_TRANSFER_SEND, &move->sum[DPAR_TRANSFER_SEND], why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_source_total(&move->source, DPAR_TRANSFER_RECV, &move->sum[DPAR_TRANSFER_RECV],
                              why);
}

/* ---- scratch --------------------------------------------------------------------------------- */

/* Adds n * each bytes to *a, rounded up to cache lines. Returns 0 if the sum would exceed 2^62. */
static int dpari_scratch_add(int64_t *a, int64_t n, int64_t each)
{
    int64_t more;
    if (!dpari_mul(n, each, &more) || more > (INT64_C(1) << 62) - 128 - *a) {
        return 0;
    }
    *a += more / 64 * 64 + 64;
    return 1;
}

/* True if messages from this rank to itself need slots, because their boxes are combined. All other
 * boxes of this rank are copied from array to array. */
static DPARI_COLD int dpari_own_has_slots(const dpari_move *move)
{
    return move->sum[DPAR_TRANSFER_SEND].own_ops || move->sum[DPAR_TRANSFER_RECV].own_ops;
}

static DPARI_COLD int dpari_scratch_side(int64_t *bytes, const dpari_move *move,
                                         const dpari_move_totals *sum)
{
    const int64_t piece = move->piece, streams = dpari_least(sum->items, move->comm->size);
    const int64_t own = dpari_own_has_slots(move) ? 0 : sum->own;
    const int64_t messages = streams - (own > 0);
    const int64_t slots = dpari_least(
        sum->elements - own, piece <= INT64_MAX / (messages + 1) ? piece * messages : INT64_MAX);
    return dpari_scratch_add(bytes, sum->items, (int64_t)sizeof(dpari_move_item)) &&
           dpari_scratch_add(bytes, streams, (int64_t)sizeof(dpari_move_stream)) &&
           dpari_scratch_add(bytes, move->comm->size, 4) &&
           dpari_scratch_add(bytes, slots, move->boxes.bytes) &&
           dpari_scratch_add(bytes, streams, 128) && /* slots and tables of rounds begin at cache
                                                        lines */
           (!sum->ops || dpari_scratch_add(bytes, sum->items + sum->elements / piece + 1, 4));
}

DPARI_INTERNAL int64_t dpari_move_bytes(const dpari_move *move)
{
    const dpari_move_totals *in = &move->sum[DPAR_TRANSFER_RECV];
    const int64_t streams = dpari_least(in->items, move->comm->size);
    const int64_t stages = move->comm->mem != NULL && in->ops ? streams + 2 : 0;
    int64_t bytes = 64; /* to reach the first cache line */
    if (!dpari_scratch_side(&bytes, move, &move->sum[DPAR_TRANSFER_SEND]) ||
        !dpari_scratch_side(&bytes, move, in) ||
        !dpari_scratch_add(&bytes, 2 * (streams + 1), (int64_t)sizeof(void *)) ||
        !dpari_scratch_add(&bytes, move->comm->size, 4 * 8) ||
        !dpari_scratch_add(&bytes,
                           move->comm->mem != NULL ? DPARI_MOVE_BOXES : DPARI_MOVE_BOXES_HERE,
                           (int64_t)sizeof(dpar_mem_box)) ||
        !dpari_scratch_add(&bytes, stages, DPARI_MOVE_STAGE) ||
        !dpari_scratch_add(&bytes, 1, DPARI_MOVE_ZERO)) {
        return -1;
    }
    return bytes;
}

DPARI_INTERNAL dpar_status dpari_move_scratch(dpari_move *move, int64_t bytes, dpar_why *why)
{
    const dpar_redistribute_desc *desc = move->desc;
    const int there = move->comm->mem != NULL;
    dpar_status status = DPAR_OK;
    if (bytes < 0) {
        return dpari_say(DPAR_E_RANGE, why, "more than 2^62 bytes of scratch are needed");
    }
    move->bytes = bytes;
    if ((desc->scratch != NULL || desc->scratch_bytes > 0) && bytes > desc->scratch_bytes) {
        return dpari_say(DPAR_E_ROOM, why, "scratch has %ld bytes, but %ld are needed",
                         desc->scratch_bytes, bytes);
    }
    if (there && desc->device_scratch != NULL && bytes > desc->device_scratch_bytes) {
        return dpari_say(DPAR_E_ROOM, why, "scratch has %ld bytes, but %ld are needed",
                         desc->device_scratch_bytes, bytes);
    }
    move->scratch = desc->scratch;
    if (there) {
        move->there = desc->device_scratch;
        if (desc->device_scratch == NULL) {
            status = dpar_comm_alloc(move->comm, bytes, &move->there);
        }
        if (desc->scratch == NULL) { /* also after a failure; dpari_move_end releases it */
            move->scratch = dpari_os_pages(bytes);
        }
        if (status == DPAR_OK && move->scratch == NULL) {
            return dpari_say(DPAR_E_MEMORY, why, "no %ld bytes of scratch", bytes);
        }
    } else if (desc->scratch == NULL) {
        status = dpari_shm_scratch(move->comm, bytes, &move->scratch);
    }
    return dpari_move_failed(move, status, why);
}

DPARI_INTERNAL dpar_status dpari_move_end(const dpari_move *move, dpar_status status, dpar_why *why)
{
    const int there = move->comm->mem != NULL;
    if (there && move->desc->device_scratch == NULL && move->there != NULL) {
        (void)dpari_do_wait(move->comm); /* until nothing uses it any more; over NCCL the release
                                            waits */
        dpar_comm_release(move->comm, move->there);
    }
    if (move->desc->scratch == NULL && move->scratch != NULL) {
        if (there) {
            dpari_os_unmap(move->scratch, move->bytes);
        } else {
            dpar_comm_release(move->comm, move->scratch);
        }
    }
    if (status == DPAR_E_ROOM) {
        dpari_needs_bytes(why, move->bytes);
    }
    return status;
}

/* Takes memory for n elements of `each` bytes from scratch, at a cache line. */
static void *dpari_carve(dpari_move *move, int64_t n, int64_t each)
{
    unsigned char *at = move->next;
    move->next += n * each / 64 * 64 + 64;
    return at;
}

/* ---- lists into streams ---------------------------------------------------------------------- */

DPARI_INTERNAL void dpari_stream_cut(const dpari_move *move, const dpari_move_side *side,
                                     dpari_move_stream *stream)
{
    const dpari_move_item *it = &side->item[stream->item];
    stream->m_item = stream->item;
    stream->m_offset = stream->offset;
    stream->m_count = 0;
    stream->message++;
    if (it->volume >= move->alone) {
        stream->m_count = dpari_least(move->piece, it->volume - stream->offset);
        stream->offset += stream->m_count;
        if (stream->offset == it->volume) {
            stream->item = it->next;
            stream->offset = 0;
        }
        return;
    }
    while (stream->item >= 0 && side->item[stream->item].volume < move->alone &&
           stream->m_count + side->item[stream->item].volume <= move->piece) {
        stream->m_count += side->item[stream->item].volume;
        stream->item = side->item[stream->item].next;
    }
}

DPARI_INTERNAL void dpari_stream_rewind(dpari_move_stream *stream)
{
    stream->item = stream->first;
    stream->offset = 0;
    stream->message = 0;
    stream->loaded = 0;
    stream->m_count = 0;
}

/* Returns the stream of a peer, which it makes if there is none yet. */
static dpari_move_stream *dpari_stream_of(dpari_move_side *side, int32_t peer)
{
    dpari_move_stream *stream;
    if (side->of_peer[peer] == 0) {
        stream = &side->stream[side->streams++];
        dpari_zero(stream, sizeof *stream);
        stream->peer = peer;
        stream->first = stream->last = -1;
        side->of_peer[peer] = side->streams;
    }
    return &side->stream[side->of_peer[peer] - 1];
}

static void dpari_side_fill(dpari_move_side *side, dpari_move_source *source)
{
    const dpar_transfer *t;
    while ((t = dpari_source_next(source)) != NULL) {
        dpari_move_item *it = &side->item[side->items];
        dpari_move_stream *stream = dpari_stream_of(side, t->peer);
        dpari_item_init(it, t, &side->array);
        it->continues = source->continues;
        it->stream = side->of_peer[t->peer] - 1;
        if (stream->last >= 0) {
            side->item[stream->last].next = side->items;
        } else {
            stream->first = side->items;
        }
        stream->last = side->items++;
        stream->ops |= t->op != DPAR_COPY;
        stream->elements += it->volume;
    }
}

/* Counts the messages of each stream, and takes memory for one of them and for the table of
 * rounds. */
static void dpari_side_cut(dpari_move *move, dpari_move_side *side)
{
    unsigned char **next = move->comm->mem != NULL ? &move->next_there : &move->next;
    int32_t i;
    for (i = 0; i < side->streams; i++) {
        dpari_move_stream *s = &side->stream[i];
        int64_t most = 0;
        dpari_stream_rewind(s);
        while (s->item >= 0) {
            dpari_stream_cut(move, side, s);
            most = dpari_most(most, s->m_count);
        }
        s->messages = s->message;
        dpari_stream_rewind(s);
        s->slot = *next;
        if (s->peer != move->comm->rank || dpari_own_has_slots(move)) {
            *next += dpari_room_up(most * move->boxes.bytes);
        }
        if (s->ops && s->messages > 1) {
            s->round = (int32_t *)dpari_carve(move, s->messages, 4);
        }
    }
}

static DPARI_COLD void dpari_side_build(dpari_move *move, dpari_move_side *side, int32_t direction)
{
    const int64_t items = move->sum[direction].items;
    const int64_t streams = dpari_least(items, move->comm->size);
    side->item = (dpari_move_item *)dpari_carve(move, items, (int64_t)sizeof(dpari_move_item));
    side->stream =
        (dpari_move_stream *)dpari_carve(move, streams, (int64_t)sizeof(dpari_move_stream));
    side->of_peer = (int32_t *)dpari_carve(move, move->comm->size, 4);
    dpari_zero(side->of_peer, (size_t)move->comm->size * 4);
    (void)dpari_source_begin(&move->source, direction, NULL); /* cannot fail, because it succeeded
                                                                 before */
    dpari_side_fill(side, &move->source);
    dpari_side_cut(move, side);
}

DPARI_INTERNAL void dpari_move_build(dpari_move *move)
{
    unsigned char *scratch = (unsigned char *)move->scratch, *there = (unsigned char *)move->there;
    dpari_move_boxes *boxes = &move->boxes;
    move->next = scratch + (64 - (uintptr_t)scratch % 64) % 64;
    boxes->most = DPARI_MOVE_BOXES_HERE;
    if (move->comm->mem != NULL) {
        boxes->most = DPARI_MOVE_BOXES;
        move->zero = there + (64 - (uintptr_t)there % 64) % 64;
        move->next_there = move->zero + DPARI_MOVE_ZERO;
    } else {
        move->zero = (unsigned char *)dpari_carve(move, 1, DPARI_MOVE_ZERO);
    }
    boxes->box = (dpar_mem_box *)dpari_carve(move, boxes->most, (int64_t)sizeof(dpar_mem_box));
    dpari_side_build(move, &move->out, DPAR_TRANSFER_SEND);
    dpari_side_build(move, &move->in, DPAR_TRANSFER_RECV);
    move->part =
        (const void **)dpari_carve(move, 2 * (move->in.streams + 1), (int64_t)sizeof(void *));
    move->word = (int64_t *)dpari_carve(move, move->comm->size, 32);
    boxes->stage = move->next_there;
}

/* ==== exchange/move_order.c ==== */

/* Stores and combines what a move receives.
 *
 * Parts that are reduced must be combined in the order of the list, not of arrival. A message
 * therefore stays in scratch until the parts before it have been combined, and only then is the
 * next message of its stream received. Since this depends only on the lists, a receiver can
 * simulate it without data: with `dry`, the functions only count. Called by move_rounds and
 * move_lists. */

DPARI_INTERNAL int64_t dpari_group_end(dpari_move *move, int64_t begin)
{
    dpari_move_side *in = &move->in;
    int64_t i = begin;
    move->stamp++;
    do {
        in->stream[in->item[i].stream].stamp = move->stamp;
        i++;
    } while (i < in->items && in->item[i].continues &&
             in->stream[in->item[i].stream].stamp != move->stamp);
    return i;
}

/* Returns how many elements of a group can be reduced now. The messages of all its streams must
 * have them, and `leader`, the copy to which they are added, must have stored them. leader is NULL
 * if they are added to elements that are complete. */
static int64_t dpari_group_ready(const dpari_move *move, const dpari_move_item *leader,
                                 int64_t begin, int64_t end)
{
    const int64_t done = move->in.item[begin].done;
    int64_t n = move->in.item[begin].volume - done, i;
    for (i = begin; i < end; i++) {
        const dpari_move_stream *stream = &move->in.stream[move->in.item[i].stream];
        if (!stream->loaded) { /* if loaded is set, this part is the next one of its stream */
            return 0;
        }
        n = dpari_least(n, stream->m_count - stream->take_at);
    }
    return leader == NULL || leader->done >= done + n ? n : 0;
}

/* Marks n elements of a stream's next part as combined, and skips copies that follow it. */
static void dpari_stream_take(const dpari_move_side *in, dpari_move_stream *stream, int64_t n)
{
    stream->take_offset += n;
    stream->take_at += n;
    if (stream->take_offset == in->item[stream->take].volume) {
        stream->take_offset = 0;
        stream->take = in->item[stream->take].next;
        while (stream->take_at < stream->m_count && in->item[stream->take].op == DPAR_COPY) {
            stream->take_at += in->item[stream->take].volume;
            stream->take = in->item[stream->take].next;
        }
    }
    stream->loaded = stream->take_at < stream->m_count;
}

/* Reduces n elements of a group, and advances its streams. With `dry` it only does the latter. */
static void dpari_group_reduce(dpari_move *move, int64_t begin, int64_t end, int64_t n, int dry)
{
    dpari_move_side *in = &move->in;
    const dpari_move_item *it = &in->item[begin];
    const int64_t done = it->done;
    int64_t i;
    for (i = begin; i < end; i++) {
        const dpari_move_stream *stream = &in->stream[in->item[i].stream];
        move->part[1 + i - begin] =
            dry ? NULL : stream->memory + stream->take_at * move->boxes.bytes;
    }
    if (!dry) {
        dpari_item_combine(&move->boxes, &in->array, it, done, done + n, move->part,
                           (int32_t)(1 + end - begin), it->op);
    }
    for (i = begin; i < end; i++) {
        dpari_stream_take(in, &in->stream[in->item[i].stream], n);
        in->item[i].done += n;
    }
}

DPARI_INTERNAL void dpari_move_combine(dpari_move *move, int dry)
{
    dpari_move_side *in = &move->in;
    while (move->head < in->items) {
        const dpari_move_item *it = &in->item[move->head], *leader = NULL;
        int64_t begin = move->head, end, n;
        if (it->op == DPAR_COPY) {
            if (begin + 1 < in->items && in->item[begin + 1].continues) {
                leader = it;
                begin++;
            } else if (it->done < it->volume) {
                return;
            } else {
                move->head++;
                continue;
            }
        }
        end = dpari_group_end(move, begin);
        n = dpari_group_ready(move, leader, begin, end);
        if (n == 0) {
            return;
        }
        dpari_group_reduce(move, begin, end, n, dry);
        if (in->item[begin].done == in->item[begin].volume) {
            move->head = end;
        }
    }
}

DPARI_INTERNAL void dpari_stream_arrive(dpari_move *move, dpari_move_stream *stream, int dry)
{
    dpari_move_side *in = &move->in;
    int64_t i = stream->m_item, offset = stream->m_offset, at = 0;
    while (at < stream->m_count) {
        dpari_move_item *it = &in->item[i];
        const int64_t n = dpari_least(it->volume - offset, stream->m_count - at);
        if (it->op != DPAR_COPY && !stream->loaded) {
            stream->loaded = 1;
            stream->take = i;
            stream->take_offset = offset;
            stream->take_at = at;
        } else if (it->op == DPAR_COPY) {
            if (!dry && stream->memory != NULL) {
                dpari_item_unpack(&move->boxes, &in->array, it, offset, offset + n,
                                  stream->memory + at * move->boxes.bytes);
            }
            it->done += n;
        }
        at += n;
        offset = 0;
        i = it->next;
    }
    dpari_boxes_flush(&move->boxes);
}

DPARI_INTERNAL void dpari_move_self(dpari_move *move, int dry)
{
    const int32_t me = move->comm->rank;
    dpari_move_stream *to, *from;
    int64_t i, k;
    if (move->in.of_peer[me] == 0 || move->out.of_peer[me] == 0) {
        return;
    }
    to = &move->in.stream[move->in.of_peer[me] - 1];
    from = &move->out.stream[move->out.of_peer[me] - 1];
    if (to->ops) {
        return;
    }
    for (i = to->first, k = from->first; i >= 0;
         i = move->in.item[i].next, k = move->out.item[k].next) {
        if (!dry) {
            dpari_item_copy(&move->boxes, &move->in.array, &move->in.item[i], &move->out.array,
                            &move->out.item[k]);
        }
        move->in.item[i].done = move->in.item[i].volume;
    }
    dpari_boxes_flush(&move->boxes);
    to->messages = from->messages = 0;
}

DPARI_INTERNAL void dpari_move_plan(dpari_move *move)
{
    int64_t round, i;
    int32_t k, more = 0;
    for (k = 0; k < move->in.streams; k++) {
        more |= move->in.stream[k].round != NULL;
    }
    if (!more) {
        return;
    }
    dpari_move_self(move, 1);
    for (round = 0; more; round++) {
        more = 0;
        for (k = 0; k < move->in.streams; k++) {
            dpari_move_stream *stream = &move->in.stream[k];
            if (dpari_receives_now(stream)) {
                if (stream->round != NULL) {
                    stream->round[stream->message] = (int32_t)round;
                }
                dpari_stream_cut(move, &move->in, stream);
                dpari_stream_arrive(move, stream, 1);
                more = 1;
            }
        }
        dpari_move_combine(move, 1);
    }
    for (k = 0; k < move->in.streams; k++) {
        dpari_stream_rewind(&move->in.stream[k]);
    }
    for (i = 0; i < move->in.items; i++) {
        move->in.item[i].done = 0;
    }
    move->head = 0;
}

/* ==== exchange/move_rounds.c ==== */

/* Sends and receives the messages of a move.
 *
 * In each round at most one message of each stream is sent or received, so that scratch holds one
 * message per peer. The receivers plan in which round they receive the messages that are combined,
 * and tell the senders before the first round. Called by move_lists and move. */

/* True if the present message is contiguous in the array. Sets *at to its offset there, in
 * elements. */
static int dpari_stream_in_place(const dpari_move_side *side, const dpari_move_stream *stream,
                                 int64_t *at)
{
    const dpari_move_item *it = &side->item[stream->m_item];
    int64_t run;
    if (stream->m_count > it->volume - stream->m_offset) {
        return 0;
    }
    run = dpari_item_run(&side->array, it);
    if (stream->m_offset / run != (stream->m_offset + stream->m_count - 1) / run) {
        return 0;
    }
    *at = dpari_item_at(&side->array, it, stream->m_offset);
    return 1;
}

/* Cuts the next message of a send and returns its address: in the array if it is contiguous there,
 * otherwise in the slot, into which it is packed. */
static const unsigned char *dpari_stream_load(dpari_move *move, dpari_move_stream *stream)
{
    int64_t i, offset, at = 0;
    dpari_stream_cut(move, &move->out, stream);
    if (dpari_stream_in_place(&move->out, stream, &at)) {
        return move->out.array.from + at * move->boxes.bytes;
    }
    i = stream->m_item;
    offset = stream->m_offset;
    for (at = 0; at < stream->m_count; i = move->out.item[i].next) {
        const dpari_move_item *it = &move->out.item[i];
        const int64_t n = dpari_least(it->volume - offset, stream->m_count - at);
        dpari_item_pack(&move->boxes, &move->out.array, it, offset, offset + n,
                        stream->slot + at * move->boxes.bytes);
        at += n;
        offset = 0;
    }
    dpari_boxes_flush(&move->boxes);
    return stream->slot;
}

/* Returns a stream by its number: sends first, then receives. */
static dpari_move_stream *dpari_move_stream_at(dpari_move *move, int32_t number)
{
    if (number < move->out.streams) {
        return &move->out.stream[number];
    }
    return &move->in.stream[number - move->out.streams];
}

/* Waits for the operations of all streams, also after a failure, because the memory of messages is
 * released next. Returns `first` or, if that is DPAR_OK, the first failure of a wait. */
static dpar_status dpari_move_wait(dpari_move *move, dpar_status first)
{
    int32_t i;
    for (i = 0; i < move->out.streams + move->in.streams; i++) {
        const dpar_status status = dpar_wait(&dpari_move_stream_at(move, i)->work);
        if (first == DPAR_OK) {
            first = status;
        }
    }
    return first;
}

/* Sends the table of rounds from receivers to senders. Only streams that combine parts and have
 * several messages have one. */
static dpar_status dpari_move_tell(dpari_move *move)
{
    dpar_comm *comm = move->comm;
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < move->out.streams + move->in.streams && status == DPAR_OK; i++) {
        dpari_move_stream *stream = dpari_move_stream_at(move, i);
        if (stream->round == NULL || stream->peer == comm->rank) {
            continue;
        }
        if (i < move->out.streams) {
            status = dpar_recv(comm, stream->round, stream->messages, DPAR_I32, stream->peer,
                               move->desc->tag, &stream->work);
        } else {
            status = dpar_send(comm, stream->round, stream->messages, DPAR_I32, stream->peer,
                               move->desc->tag, &stream->work);
        }
    }
    return dpari_move_wait(move, status);
}

/* Handles the next message from this rank to itself as if it had arrived, because it has parts to
 * combine. */
static void dpari_move_own(dpari_move *move, dpari_move_stream *stream)
{
    dpari_move_stream *from = &move->out.stream[move->out.of_peer[move->comm->rank] - 1];
    dpari_stream_cut(move, &move->in, stream);
    stream->memory = dpari_stream_load(move, from);
    dpari_stream_arrive(move, stream, 0);
}

static int dpari_sends_now(const dpari_move *move, const dpari_move_stream *stream, int64_t round)
{
    return stream->peer != move->comm->rank && stream->message < stream->messages &&
           (stream->round != NULL ? stream->round[stream->message] : stream->message) == round;
}

/* Posts the receives of a round: into the array if the message is a copy and contiguous there,
 * otherwise into the slot. */
static dpar_status dpari_round_receive(dpari_move *move)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        dpari_move_stream *stream = &move->in.stream[k];
        unsigned char *place = stream->slot;
        int64_t at;
        dpar_status st;
        stream->fresh = dpari_receives_now(stream) && stream->peer != move->comm->rank;
        if (!stream->fresh) {
            continue;
        }
        dpari_stream_cut(move, &move->in, stream);
        stream->memory = place;
        if (move->in.item[stream->m_item].op == DPAR_COPY &&
            dpari_stream_in_place(&move->in, stream, &at)) {
            stream->memory = NULL;
            place = move->in.array.to + at * move->boxes.bytes;
        }
        st = dpar_recv(move->comm, place, stream->m_count, move->boxes.type, stream->peer,
                       move->desc->tag, &stream->work);
        if (st < 0) {
            return st;
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_round_send(dpari_move *move, int64_t round, int32_t *more)
{
    int32_t k;
    for (k = 0; k < move->out.streams; k++) {
        dpari_move_stream *stream = &move->out.stream[k];
        dpar_status st;
        *more |= stream->peer != move->comm->rank && stream->message < stream->messages;
        if (!dpari_sends_now(move, stream, round)) {
            continue;
        }
        st = dpar_wait(&stream->work); /* the slot must be free; on a device dpari_round_free has
                                          waited already */
        if (st == DPAR_OK) {
            const unsigned char *message = dpari_stream_load(move, stream);
            st = dpar_send(move->comm, message, stream->m_count, move->boxes.type, stream->peer,
                           move->desc->tag, &stream->work);
        }
        if (st < 0) {
            return st;
        }
    }
    return DPAR_OK;
}

/* Waits for the receives of a round, handles its messages, and combines what can be combined. Sets
 * *more to 1 if messages may be left. */
static dpar_status dpari_round_end(dpari_move *move, int32_t *more)
{
    int32_t k;
    for (k = 0; k < move->in.streams; k++) {
        dpari_move_stream *stream = &move->in.stream[k];
        dpar_status st;
        *more |= stream->message < stream->messages;
        if (stream->peer == move->comm->rank && dpari_receives_now(stream)) {
            dpari_move_own(move, stream);
        }
        if (stream->fresh) {
            st = dpar_wait(&stream->work);
            if (st < 0) {
                return st;
            }
            dpari_stream_arrive(move, stream, 0);
        }
    }
    dpari_move_combine(move, 0);
    return DPAR_OK;
}

/* On a device, waits until the slots of all sends of this round are free, before the first message
 * of the round is posted, so that all messages begin together. Otherwise the wait of one stream
 * would delay the others. */
static dpar_status dpari_round_free(dpari_move *move, int64_t round)
{
    int32_t i;
    if (move->comm->mem == NULL) {
        return DPAR_OK;
    }
    for (i = 0; i < move->out.streams; i++) {
        if (dpari_sends_now(move, &move->out.stream[i], round)) {
            const dpar_status status = dpar_wait(&move->out.stream[i].work);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* Runs one round, with at most one message of each stream. Sets *more to 1 if messages may be
 * left. */
static dpar_status dpari_move_round(dpari_move *move, int64_t round, int32_t *more)
{
    dpar_status status = dpari_round_free(move, round);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_round_receive(move);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_round_send(move, round, more);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_round_end(move, more);
}

static dpar_status dpari_move_p2p(dpari_move *move)
{
    dpar_status status = dpari_move_tell(move);
    int64_t round;
    int32_t more = 1;
    for (round = 0; status == DPAR_OK && more; round++) {
        more = 0;
        status = dpari_move_round(move, round, &more);
    }
    return dpari_move_wait(move, status);
}

DPARI_INTERNAL dpar_status dpari_move_go(dpari_move *move, dpar_why *why)
{
    dpar_status status;
    dpari_move_plan(move);
    dpari_move_self(move, 0);
    dpari_move_combine(move, 0);
    status = dpari_move_p2p(move);
    if (status == DPAR_OK) {
        status = move->comm->status; /* includes failures on the device */
    }
    if (status != DPAR_OK) {
        return dpari_move_failed(move, status, why);
    }
    if (move->head != move->in.items) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "only %ld of %ld boxes arrived: the lists do not match", move->head,
                         move->in.items);
    }
    return DPAR_OK;
}

/* ==== exchange/move_lists.c ==== */

/* Performs two lists of transfers: dpar_transfers_exchange of move.h. Ranks compare their lists
 * before anything is sent, because users write them. */

/* Checks the list of one direction. */
static dpar_status dpari_list_check(const dpari_move *move, int32_t direction, const int64_t *shape,
                                    int32_t dims, dpar_why *why)
{
    const dpar_transfer *list = move->source.list[direction];
    int64_t i;
    for (i = 0; i < move->source.count[direction]; i++) {
        const dpar_status status = dpari_transfer_check(&list[i], dims, shape, move->boxes.type,
                                                        direction == DPAR_TRANSFER_RECV, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (list[i].peer < 0 || list[i].peer >= move->comm->size) {
            return dpari_wrong(why, "transfer %ld: peer %d is not a rank of %d ranks", i,
                               list[i].peer, move->comm->size);
        }
    }
    return DPAR_OK;
}

/* Fails if an average does not follow a copy to the same box, because it needs all its parts at
 * once. */
static dpar_status dpari_list_averages(dpari_move *move, dpar_why *why)
{
    int64_t i, end;
    for (i = 0; i < move->in.items; i = end) {
        end = i + 1;
        if (move->in.item[i].op == DPAR_COPY && end < move->in.items &&
            move->in.item[end].continues) {
            end = dpari_group_end(move, end);
        } else if (move->in.item[i].op == DPAR_AVG) {
            return dpari_wrong(why, "receive %ld: an average must follow a copy to the same box",
                               i);
        }
    }
    return DPAR_OK;
}

/* Writes two numbers for each peer: the number of boxes of its stream, and a hash of what must be
 * equal at both ends. word: [2 * ranks]. */
static void dpari_side_words(const dpari_move *move, const dpari_move_side *side, int64_t *word)
{
    int32_t k, d;
    dpari_zero(word, (size_t)move->comm->size * 16);
    for (k = 0; k < side->streams; k++) {
        const dpari_move_stream *stream = &side->stream[k];
        int64_t *of = &word[2 * stream->peer], i;
        uint64_t hash = dpari_hash((uint64_t)side->array.dims, stream->round != NULL);
        for (i = stream->first; i >= 0; i = side->item[i].next) {
            for (d = 0; d < side->array.dims; d++) {
                hash = dpari_hash(hash, side->item[i].extent[d]);
            }
            of[0]++;
        }
        of[1] = (int64_t)hash;
    }
}

/* Compares the lists of all ranks: each must receive what the others send to it. If any two differ,
 * all ranks fail. */
static dpar_status dpari_lists_fit(dpari_move *move, dpar_why *why)
{
    const int32_t me = move->comm->rank;
    int64_t *mine = move->word, *theirs = mine + 2 * (int64_t)move->comm->size;
    dpar_status st;
    int32_t k;
    dpari_side_words(move, &move->out, mine);
    st = dpar_all_to_all(move->comm, mine, theirs, 2, DPAR_I64, NULL);
    if (st != DPAR_OK) {
        return dpari_move_failed(move, st, why);
    }
    dpari_side_words(move, &move->in, mine);
    for (k = 0; k < move->comm->size && st == DPAR_OK; k++) {
        if (theirs[2 * k] != mine[2 * k]) {
            st = dpari_say(DPAR_E_MISMATCH, why,
                           "rank %d sends %ld boxes to rank %d, whose list expects %ld", k,
                           theirs[2 * k], me, mine[2 * k]);
        } else if (theirs[2 * k + 1] != mine[2 * k + 1]) {
            st = dpari_say(
                DPAR_E_MISMATCH, why,
                "rank %d sends rank %d %ld boxes, but their extents or ops are not as expected", k,
                me, mine[2 * k]);
        }
    }
    return dpari_agree(move->comm, st, why);
}

/* Checks the arrays and lists of one rank. */
static dpar_status dpari_lists_check(dpari_move *move, dpar_why *why)
{
    const dpar_redistribute_desc *desc = move->desc;
    const int64_t sends = desc->send_count, receives = desc->receive_count;
    int32_t dims = 0; /* those of the first transfer, which all others must have */
    int64_t reads = 0, writes = 0;
    dpar_status status = DPAR_OK;
    if (sends < 0 || receives < 0 || (sends > 0 && (!desc->send || !desc->in)) ||
        (receives > 0 && (!desc->receive || !desc->out))) {
        return dpari_wrong(why,
                           "%ld sends or %ld receives: below 0, or their list or array is NULL",
                           sends, receives);
    }
    if (sends > 0) {
        dims = desc->send->dims;
        status = dpari_array_init(&move->out.array, dims, desc->in_shape, move->boxes.bytes, &reads,
                                  why);
    } else if (receives > 0) {
        dims = desc->receive->dims;
    }
    if (status == DPAR_OK && receives > 0) {
        status = dpari_array_init(&move->in.array, dims, desc->out_shape, move->boxes.bytes,
                                  &writes, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_list_check(move, DPAR_TRANSFER_SEND, desc->in_shape, dims, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_list_check(move, DPAR_TRANSFER_RECV, desc->out_shape, dims, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->out.array.from = (const unsigned char *)desc->in;
    move->in.array.to = (unsigned char *)desc->out;
    if (sends > 0 && receives > 0 && desc->in != desc->out &&
        dpari_move_overlaps(move, reads * move->boxes.bytes, writes * move->boxes.bytes)) {
        return dpari_wrong(why, "in and out overlap, but are not the same");
    }
    return DPAR_OK;
}

/* Does the local part of dpar_transfers_exchange: checks the arguments, provides scratch and builds
 * the streams in it. */
static dpar_status dpari_lists_build(dpari_move *move, dpar_comm *comm,
                                     const dpar_redistribute_desc *desc, dpar_why *why)
{
    dpar_status status = dpari_move_init(move, comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    move->source.list[DPAR_TRANSFER_SEND] = desc->send;
    move->source.list[DPAR_TRANSFER_RECV] = desc->receive;
    move->source.count[DPAR_TRANSFER_SEND] = desc->send_count;
    move->source.count[DPAR_TRANSFER_RECV] = desc->receive_count;
    status = dpari_lists_check(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_move_count(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_move_scratch(move, dpari_move_bytes(move), why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_move_build(move);
    return dpari_list_averages(move, why);
}

/* Does the collective part. Every rank calls it with the status of its local part; if that failed
 * on one rank, all ranks fail. */
static dpar_status dpari_lists_move(dpari_move *move, dpar_status status, dpar_why *why)
{
    status = dpari_agree_on(move->comm, status, "transfers", dpari_move_state, move, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_lists_fit(move, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_move_go(move, why);
}

DPAR_API DPARI_COLD dpar_status dpar_transfers_exchange(dpar_comm *comm,
                                                        const dpar_redistribute_desc *move,
                                                        dpar_why *why)
{
    dpari_move lists;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_lists_build(&lists, comm, move, why);
    status = dpari_lists_move(&lists, status, why);
    return dpari_move_end(&lists, status, why);
}

/* ==== exchange/move.c ==== */

/* Moves arrays between layouts: dpar_redistribute of move.h.
 *
 * The modules of a move, lowest first:
 *
 *     move_items    the boxes of an array, and how parts of them are copied and combined
 *     move_streams  transfers become items, grouped by peer into streams, in scratch
 *     move_order    what has arrived is combined in the order of the list
 *     move_rounds   the messages
 *     move_lists    dpar_transfers_exchange: the user's lists of transfers
 *     move          dpar_redistribute: the lists of dpar_redistribute_next of dpar.h */

typedef struct dpari_redistribution {
    dpari_move move;              /* its `sum` counts what is moved if replicas share the sends */
    dpari_move_totals primary[2]; /* the same if copy 0 sends everything */
    int64_t bytes;                /* of scratch, enough for both; -1 if more than 2^62 */
    int32_t may_split_sums;       /* 1 if replicas might cut parts of a sum differently */
} dpari_redistribution;

static DPARI_COLD dpar_status dpari_mesh_fits(const dpar_comm *comm, const dpar_mesh *mesh,
                                              dpar_why *why)
{
    int64_t last = mesh->first_rank;
    int32_t i;
    for (i = 0; i < mesh->axes; i++) {
        last += (int64_t)(mesh->axis[i].size - 1) * mesh->axis[i].stride;
    }
    if (mesh->first_rank < 0 || last >= comm->size) {
        return dpari_wrong(why, "a layout has ranks %d to %ld, but the communicator has %d ranks",
                           mesh->first_rank, last, comm->size);
    }
    return DPAR_OK;
}

/* True if replicas must not cut parts of one sum differently, because results would depend on it:
 * 16-bit sums round at every step, and averages need all their parts at once. */
static int dpari_sums_depend(const dpar_layout *from, int32_t type)
{
    int32_t i, sums = 0, averages = 0;
    for (i = 0; i < from->mesh.axes; i++) {
        sums |= from->axis[i].kind == DPAR_PLACEMENT_PARTIAL;
        averages |= from->axis[i].kind == DPAR_PLACEMENT_PARTIAL && from->axis[i].op == DPAR_AVG;
    }
    return (averages || (sums && dpar_type_bytes(type) == 2)) && dpari_layout_copies(from) > 1;
}

/* Counts what this rank moves if replicas share the sends, or, with per_node
 * DPAR_REDISTRIBUTE_PRIMARY, if copy 0 sends everything, and makes all->bytes large enough. */
static DPARI_COLD dpar_status dpari_redistribution_total(dpari_redistribution *all,
                                                         int32_t per_node, dpar_why *why)
{
    dpar_status status;
    int64_t bytes;
    all->move.source.per_node = per_node;
    status = dpari_move_count(&all->move, why);
    bytes = dpari_move_bytes(&all->move);
    if ((uint64_t)bytes > (uint64_t)all->bytes) { /* -1 exceeds all others */
        all->bytes = bytes;
    }
    return status;
}

/* Checks the layouts of this rank and counts what it moves, without the other ranks. */
static DPARI_COLD dpar_status dpari_redistribution_count(dpari_redistribution *all, dpar_comm *comm,
                                                         const dpar_redistribute_desc *desc,
                                                         dpar_why *why)
{
    dpari_move *move = &all->move;
    const dpari_move_totals *sum = move->sum;
    dpar_status status = dpari_move_init(move, comm, desc, why);
    const dpar_layout *from = move->desc->from, *to = move->desc->to;
    move->source.from = from;
    move->source.to = to;
    all->bytes = 0;
    if (status != DPAR_OK) {
        return status;
    }
    if (from == NULL || to == NULL) {
        return dpari_wrong(why, "a layout is NULL");
    }
    status = dpari_mesh_fits(comm, &from->mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_mesh_fits(comm, &to->mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    all->may_split_sums =
        dpari_sums_depend(from, desc->type) && desc->ranks_per_node != DPAR_REDISTRIBUTE_PRIMARY;
    if (all->may_split_sums) {
        status = dpari_redistribution_total(all, DPAR_REDISTRIBUTE_PRIMARY, why);
        if (status != DPAR_OK) {
            return status;
        }
        all->primary[0] = sum[0];
        all->primary[1] = sum[1];
    }
    status = dpari_redistribution_total(all, desc->ranks_per_node, why);
    if (status != DPAR_OK) {
        return status;
    }
    if ((sum[0].ops || sum[1].ops) && !dpari_type_can_reduce(desc->type)) {
        const char *name = dpar_type_name(desc->type);
        return dpari_wrong(why, "elements of %s cannot be combined", name);
    }
    return DPAR_OK;
}

/* Describes the array of one side. This rank's part is the corner of an array of shape `whole`, or
 * all of it if `whole` is NULL. Stores the shape of the part, and the bytes of the array. */
static DPARI_COLD dpar_status dpari_side_array(dpari_move_array *array, const dpar_layout *layout,
                                               int32_t rank, const int64_t *whole, int32_t width,
                                               int64_t *shape, int64_t *bytes, dpar_why *why)
{
    int64_t elements = 0;
    int32_t coord[DPAR_MAX_AXES], d, empty = 0;
    dpar_status st;
    if (!dpar_mesh_coords(&layout->mesh, rank, coord)) {
        whole = NULL;
        empty = 1;
    }
    dpar_layout_local(layout, rank, shape, NULL);
    for (d = 0; d < layout->dims; d++) {
        if (whole != NULL && whole[d] < shape[d]) {
            return dpari_wrong(why, "dim %d: the shape is %ld, but this rank has %ld elements", d,
                               whole[d], shape[d]);
        }
        empty |= shape[d] == 0;
    }
    st = dpari_array_init(array, layout->dims, whole ? whole : shape, width, &elements, why);
    *bytes = empty ? 0 : elements * width;
    return st;
}

/* Does the rest of the local part of dpar_redistribute: describes both arrays and provides
 * scratch. */
static DPARI_COLD dpar_status dpari_redistribution_arrays(dpari_redistribution *all, dpar_why *why)
{
    dpari_move *move = &all->move;
    const dpar_redistribute_desc *desc = move->desc;
    const int32_t rank = move->comm->rank, width = move->boxes.bytes;
    int64_t shape[DPAR_MAX_DIMS], reads, writes;
    dpar_status status = dpari_side_array(&move->out.array, desc->from, rank, desc->in_shape, width,
                                          shape, &reads, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_side_array(&move->in.array, desc->to, rank, desc->out_shape, width, shape,
                              &writes, why);
    if (status != DPAR_OK) {
        return status;
    }
    if ((reads > 0 && desc->in == NULL) || (writes > 0 && desc->out == NULL)) {
        return dpari_wrong(why, "in has %ld bytes, out %ld bytes, but one of them is NULL", reads,
                           writes);
    }
    if (dpari_move_overlaps(move, reads, writes)) {
        return dpari_wrong(why, "in and out overlap");
    }
    move->out.array.from = (const unsigned char *)desc->in;
    move->in.array.to = (unsigned char *)desc->out;
    return dpari_move_scratch(move, all->bytes, why);
}

static DPARI_COLD void dpari_fact_layout(dpari_facts *facts, const char *of,
                                         const dpar_layout *layout)
{
    int32_t d;
    facts->of = of;
    dpari_fact(facts, "dims", 0, layout->dims);
    for (d = 0; d < layout->dims; d++) {
        dpari_fact(facts, "extent[#]", d, layout->extent[d]);
    }
    dpari_fact(facts, "mesh.axes", 0, layout->mesh.axes);
    for (d = 0; d < layout->mesh.axes; d++) {
        dpari_fact(facts, "mesh.axis[#].size", d, layout->mesh.axis[d].size);
    }
    dpari_fact_hash(facts, "axis", 0, dpari_hash_layout(1, layout));
    facts->of = NULL;
}

/* Adds the arguments that must be equal on all ranks. */
static void dpari_redistribution_state(dpari_facts *facts, const void *given)
{
    const dpari_move *move = (const dpari_move *)given;
    dpari_move_state(facts, move);
    dpari_fact_layout(facts, "from->", move->source.from);
    dpari_fact_layout(facts, "to->", move->source.to);
    dpari_fact(facts, "ranks_per_node", 0, move->source.per_node);
}

/* Sets this rank's part to zeros if nobody sends to it: it then holds no part of a sum of which
 * `to` has only parts. */
static void dpari_move_zeros(dpari_move *move)
{
    const dpar_layout *to = move->source.to;
    int64_t extent[DPAR_MAX_DIMS];
    int32_t coord[DPAR_MAX_AXES], d;
    if (move->in.items > 0 || !dpar_mesh_coords(&to->mesh, move->comm->rank, coord)) {
        return;
    }
    dpar_layout_local(to, move->comm->rank, extent, NULL);
    for (d = 0; d < to->dims; d++) {
        if (extent[d] == 0) {
            return;
        }
    }
    dpari_array_zero(&move->boxes, &move->in.array, extent, move->zero);
}

/* The collective part of dpar_redistribute. Every rank calls it, with the status of its local part.
 * If sums would be split differently on any rank, only copy 0 sends, on all ranks. */
static dpar_status dpari_redistribution_move(dpari_redistribution *all, dpar_status status,
                                             dpar_why *why)
{
    dpari_move *move = &all->move;
    int32_t apart = 0;
    status =
        dpari_agree_on(move->comm, status, "redistribute", dpari_redistribution_state, move, why);
    if (status == DPAR_OK && all->may_split_sums) {
        status = dpar_all_reduce(move->comm, &move->sum[DPAR_TRANSFER_RECV].apart, &apart, 1,
                                 DPAR_I32, DPAR_MAX, NULL);
        (void)dpari_move_failed(move, status, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (apart) {
        move->source.per_node = DPAR_REDISTRIBUTE_PRIMARY;
        move->sum[0] = all->primary[0];
        move->sum[1] = all->primary[1];
    }
    dpari_move_build(move);
    dpari_move_zeros(move);
    return dpari_move_go(move, why);
}

DPAR_API DPARI_COLD dpar_status dpar_redistribute(dpar_comm *comm,
                                                  const dpar_redistribute_desc *move, dpar_why *why)
{
    dpari_redistribution all;
    dpar_status status;
    if (comm == NULL) {
        return dpari_wrong(why, "the communicator is NULL");
    }
    why = dpari_why_of(comm, why);
    status = dpari_redistribution_count(&all, comm, move, why);
    if (status == DPAR_OK) {
        status = dpari_redistribution_arrays(&all, why);
    }
    status = dpari_redistribution_move(&all, status, why);
    return dpari_move_end(&all.move, status, why);
}

#endif /* DPAR_COMM_IMPLEMENTATION */
