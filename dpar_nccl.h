/* SPDX-License-Identifier: MIT-0 */
/* dpar_nccl.h - makes the communicators of dpar_comm.h over NCCL, for the memory of NVIDIA GPUs.
 * Each rank is a process with a GPU of its own. A communicator of the host's memory, from
 * dpar_launch, dpar_init or dpar_mpi_make, brings the ranks together first.
 * Version 0.2.0. GENERATED from src/ by tools/amalgamate: edit the files there.
 *
 *     #include "dpar_nccl.h"
 *     #include <stdio.h>
 *     static int each(dpar_comm *host, void *unused)
 *     {
 *         const float mine = (float)(host->rank + 1);
 *         float sum = 0, *x = NULL;                       x: in the GPU's memory
 *         dpar_comm *world;
 *         dpar_work work = {0};
 *         dpar_why why;
 *         (void)unused;
 *         cudaSetDevice(host->rank);
 *         cudaMalloc((void **)&x, sizeof *x);
 *         cudaMemcpy(x, &mine, sizeof *x, cudaMemcpyHostToDevice);
 *         if (dpar_nccl_make(host, NULL, &world, &why) < 0) {
 *             puts(why.text);
 *             return 1;
 *         }
 *         if (dpar_all_reduce(world, x, x, 1, DPAR_F32, DPAR_SUM, &work) < 0 ||
 *             dpar_wait(&work) < 0) {                     the stream waits, this thread does not
 *             puts(world->why.text);
 *             return 1;
 *         }
 *         cudaMemcpy(&sum, x, sizeof *x, cudaMemcpyDeviceToHost);
 *         printf("rank %d of %d: the sum is %g\n", (int)world->rank, (int)world->size,
 *                (double)sum);
 *         cudaFree(x);
 *         return dpar_comm_free(world) < 0;
 *     }
 *     int main(void)
 *     {
 *         return dpar_launch(2, each, NULL, NULL, NULL) < 0;          one rank for each of two GPUs
 *     }
 *
 *     cc -O2 -DDPAR_IMPLEMENTATION -I. -I/usr/local/cuda/include yours.c -o yours \
 *         -L/usr/local/cuda/lib64 -lcudart -ldl
 *
 * One file of a program defines DPAR_IMPLEMENTATION. dpar_comm.h and dpar.h have to be in the same
 * folder as this header. dpar_cuda.h has kernels for strategies and halos. docs/records/gpu.md
 * lists what was run on which machine.
 *
 * Compiling requires the CUDA runtime and nccl.h 2.18 or later, and C99 or C++11. Running requires
 * libnccl.so.2, or the file that DPAR_NCCL_LIBRARY names; with DPAR_NCCL_LINK it is linked (-lnccl)
 * instead. A feature that the installed version of NCCL lacks is replaced by another or reported as
 * missing.
 *
 * The calls differ from the description in dpar_comm.h as follows.
 *
 * Streams. An operation begins after all work that desc.stream had when the operation was posted,
 * and runs on a stream of the engine. dpar_wait makes desc.stream wait for the operation and
 * returns at once; a call without a work does the same. dpar_test checks whether the operation is
 * done. None of these calls allocates memory or synchronises the device.
 *
 * Barriers block, and so does closing or splitting a communicator. An operation in which NCCL has
 * to connect may block until the other ranks call it. NCCL connects in the first operation of a
 * communicator, in the first operation of a kind or length for which it uses other paths than
 * before, and in the first message to a rank.
 *
 * All operations can be captured in a graph, in the same way on all ranks. An operation that is
 * posted in a capture has to be waited for in the same capture. Replays of a graph have no
 * deadline. Destroy graphs before you free their communicator: dpar_comm_free waits until no graph
 * uses it.
 *
 * Order. One stream runs the operations of all communicators of a process in the order in which
 * they were posted. Therefore all ranks have to post in the same order over all communicators, not
 * only within each. Messages that are posted one by one form a group: they begin together, at this
 * rank's next collective, batch, wait or test, and do not wait for messages that are posted later.
 * A batch is also one group. In a group, NCCL starts the first message to and from each rank
 * together; on the same channel, the second messages begin when all first ones are done, and so on.
 * This delays nobody if both sides post the same messages together. If one side posts separately
 * what the other posts together, limit each group to one message to and one message from each rank.
 *
 * Messages have no tags in NCCL. The engine orders the messages of a group that go to the same rank
 * by tag, and messages with the same tag in the order in which they were posted. The two sides
 * therefore match, whatever the order in which they name their neighbours, if they use the same
 * tags and post the same messages before the next collective, batch, wait or test. Messages of 0
 * elements are not sent. A message from a rank to itself is copied.
 *
 * Host memory. If `in` and `out` are plain host memory on all ranks, the operation copies through
 * page-locked memory. A collective has then finished when its call returns, even if it was posted;
 * a message has finished when its dpar_wait returns. Reductions are in rank order and have the same
 * bits as with shared memory. Page-locked and managed memory counts as device memory.
 *
 * Levels. Within a node NCCL uses NVLink, PCIe or host memory, and between nodes rings and trees
 * over the network, however the ranks are split into groups. This engine adds no level of its own.
 * If dpar_nccl_make brought the ranks together, dpar_comm_describe reports the number of nodes.
 * dpar_nccl_doctor reports which paths NCCL chose.
 *
 * Reductions on the device are NCCL's. Their order, and the last bits, may differ between sizes,
 * versions and machines. 16-bit floats may be rounded at each step, DPAR_AVG of floats may divide
 * first, MAX and MIN may drop NaNs, and AVG of integers is DPAR_E_ARG. With desc.rank_order, floats
 * have the same bits as with shared memory, on all ranks and in every run. They are added in rank
 * order, 16-bit floats are summed in f32 and rounded once, and NaNs are treated as in dpar_comm.h.
 * This uses an all-to-all and dpar_mem.reduce.
 *
 * Entry: a collective may return, and end, before all ranks have called it.
 *
 * Mismatched calls: NCCL compares nothing, so that a call that does not match gives wrong results
 * or hangs. If a collective hangs because ranks are in different calls, the engine notices after
 * about a quarter of the deadline (1 s at most). All ranks then fail with DPAR_E_MISMATCH and a
 * message that names the calls. Messages are not compared.
 *
 * Lost ranks. A thread of the engine measures the time in which only other ranks can delay the
 * operation at the head of the stream. After the deadline, the thread aborts the communicator,
 * which is then broken with DPAR_E_TIMEOUT. The message names the operation, the ranks that are not
 * in it, and their last operations. Ranks report these to rank 0 by TCP, which is not used while
 * all is well. Rank 0 listens on the loopback interface if a host communicator shows that all ranks
 * are on its node, and otherwise at all its own addresses.
 * If a rank's process ends, its communicators break everywhere after a second with DPAR_E_PEER. The
 * kernel of the broken operation ends a moment later, and may write `out` until then. Kernels that
 * were enqueued after it still run, on input that is not what they expect.
 *
 * Authentication. Each connection to rank 0 begins with a challenge: both sides prove that they
 * know the job's key, by SipHash-2-4 of random numbers that both have just drawn. Rank 0 draws the
 * key, 128 random bits, and sends it together with the id. A client that is silent or sends
 * something else does not delay other ranks. Nothing is encrypted, and the connections of NCCL and
 * of torchrun's store are not authenticated either. The key therefore protects only against those
 * who cannot read the network and cannot reach torchrun's store, in which the key remains until the
 * store ends.
 *
 * Halos. With NCCL 2.29.2 or later, devices that reach each other's memory (one node, NVLink) read
 * packed halos directly. Otherwise halos are sent as messages: between nodes, with older versions,
 * with desc.no_watchdog, and with DPAR_NCCL_LEND=0 on any rank. dpar_halo_plan_report shows which
 * applies ("packed" or "message"). With direct reads, the streams of neighbours wait for each
 * other. This wait is an operation like others, except that the message of its deadline cannot name
 * the ranks that are missing. If a communicator breaks in it, NCCL's memory is kept until the
 * communicator is freed.
 *
 * Memory: dpar_comm_alloc returns device memory, from ncclMemAlloc if NCCL has it and otherwise
 * from cudaMalloc. This memory is registered with NCCL only by dpar_nccl_register, and by a halo
 * exchange for the halos that it packs. all_to_all in place uses desc.scratch_bytes. */

#ifndef DPAR_ALL_H
#ifdef __has_include
#if !__has_include("dpar_comm.h")
#error dpar_nccl.h needs dpar_comm.h beside it, of the same release
#endif
#endif
#include "dpar_comm.h"
#endif
#if DPAR_VERSION != 200
#error dpar_nccl.h and dpar.h are of different versions: take all headers from one release
#endif

#ifndef DPAR_NCCL_H
#define DPAR_NCCL_H

/* ==== nccl/nccl_make.h ==== */

/* nccl_make - makes communicators over NCCL. */

#include <nccl.h>

/* Methods by which ranks without a communicator find each other. */
enum {
    DPAR_NCCL_ANY,  /* DPAR_NCCL_CALLBACK if `broadcast` is given, otherwise DPAR_NCCL_NODE,
                       DPAR_NCCL_ID or DPAR_NCCL_TCP, the first for which the environment has all
                       that it needs */
    DPAR_NCCL_NODE, /* by dpar_init: all ranks are on this node */
    DPAR_NCCL_PMI,  /* not supported: pass the communicator of dpar_mpi_make as host */
    DPAR_NCCL_ID,   /* by NCCL_COMM_ID=host:port on all ranks: NCCL listens there on rank 0. If
                       ranks are missing, no message can name them */
    DPAR_NCCL_FILE, /* not supported: pass `broadcast` */
    DPAR_NCCL_TCP,  /* by `address`, or MASTER_ADDR, and `port`, or DPAR_NCCL_PORT, or MASTER_PORT.
                       If torchrun's store listens there (TORCHELASTIC_USE_AGENT_STORE), rank 0
                       sends the id over the store. Otherwise NCCL listens there on rank 0, as with
                       DPAR_NCCL_ID, so that the address has to be one of rank 0's machine */
    DPAR_NCCL_CALLBACK, /* by `broadcast` */
    DPAR_NCCL_RENDEZVOUS_COUNT
};
/* Describes how ranks find each other. 0 selects the default of each field. */
typedef struct dpar_nccl_rendezvous {
    int32_t method;      /* DPAR_NCCL_ANY, ... */
    int32_t rank, size;  /* size 0 selects both from dpar_launcher_detect */
    uint64_t job;        /* a number that is the same on all ranks, and different for other groups
                            of ranks that use the same store at the same time */
    const char *file;    /* not used */
    const char *address; /* for DPAR_NCCL_TCP */
    int32_t port;
    int32_t reserved; /* 0 */
    /* For DPAR_NCCL_CALLBACK: sends the bytes of rank `root` to all ranks. Returns 0 on success. */
    int (*broadcast)(void *user, void *buffer, size_t bytes, int root);
    void *user; /* passed to broadcast */
} dpar_nccl_rendezvous;

/* Describes a communicator over NCCL. 0 selects the default of each field. timeout_s, rank_order,
 * elastic and no_watchdog must be equal on all ranks. */
typedef struct dpar_nccl_desc {
    double timeout_s;    /* deadline in seconds of one operation, and of making a communicator. 0
                            selects 300; a negative value means none */
    cudaStream_t stream; /* the compute stream, which makes what operations read and uses what
                            they write */
    cudaStream_t comm_stream; /* stream on which operations run; NULL makes one of high priority */
    const dpar_mem *mem; /* comm->mem of the communicators: the table with which strategies compute
                            on the compute stream; NULL for none */
    int32_t rank_order;  /* 1 reduces floats in rank order: an all-to-all, and sums by reduce_mem */
    int32_t elastic;     /* 1 keeps a broken communicator for dpar_nccl_shrink */
    const dpar_mem *reduce_mem; /* for rank_order: a table (dpar_cuda_mem) whose work is enqueued on
                                   comm_stream, which must then be set too */
    int32_t work_count;    /* the most operations that may be in progress at once. Their events are
                              made at the start; 0 selects 256 */
    int32_t no_watchdog;   /* 1 starts no thread that watches deadlines and lost ranks, and uses no
                              TCP, so that operations on device memory have no deadline */
    int64_t scratch_bytes; /* device memory for rank_order, and for all_to_all in place; 0 selects
                              32 MiB */
    int64_t staging_bytes; /* page-locked memory for operations on host memory; 0 selects 4 MiB */
    const char *log_file;  /* name of a file for this rank, without %h or %p, to which NCCL writes
                              its choices, for dpar_nccl_doctor; NULL for none. Has an effect only
                              if set before the process first uses NCCL */
    /* How ranks find each other if dpar_nccl_make gets no communicator (host NULL). NULL selects
     * DPAR_NCCL_ANY. Read only by dpar_nccl_make. */
    const dpar_nccl_rendezvous *rendezvous;
} dpar_nccl_desc;

/* Makes a communicator over NCCL. Each rank uses the CUDA device that is current in its thread. The
 * same device must be current in all later calls, and no other rank may use it.
 *
 * host: a communicator of the same ranks, from dpar_launch, dpar_init or dpar_mpi_make. It is used
 *       to send the id and is not needed afterwards. NULL if the ranks have none; they then find
 *       each other as desc->rendezvous describes.
 * desc: NULL selects the defaults.
 *
 * For tests, ranks may share a device. DPAR_TEST_SHARE_GPU=1 does so as far as the version of NCCL
 * allows it. DPAR_TEST_SHARE_GPU=hosts works with all versions: each rank pretends to be on a
 * separate host, and the ranks communicate by sockets.
 *
 * Collective over host, or over the job. Takes 0.1 s to seconds. A failure is reported on all
 * ranks. Fails with DPAR_E_SYSTEM if libnccl.so.2 is missing or older than 2.18, or if a call of
 * NCCL or CUDA fails, whose own message is then included. Fails with DPAR_E_TIMEOUT if not all
 * ranks call it, and with DPAR_E_MISMATCH if ranks pass different descriptors or have different
 * versions of NCCL. Fails with DPAR_E_ARG for rank_order without reduce_mem and comm_stream, and
 * for scratch_bytes or staging_bytes that are too small for the number of ranks.
 *
 * Without a host it also fails with DPAR_E_ARG if the method is not supported or the environment
 * lacks a variable that it needs. On rank 0 the message of DPAR_E_TIMEOUT names ranks that are
 * missing, except with DPAR_NCCL_ID, with DPAR_NCCL_TCP without a store, and with no_watchdog. */
DPAR_API dpar_status dpar_nccl_make(dpar_comm *host, const dpar_nccl_desc *desc, dpar_comm **comm,
                                    dpar_why *why);

/* Returns the stream on which operations run, or NULL for a communicator of another engine.
 * Local. */
DPAR_API cudaStream_t dpar_nccl_stream(const dpar_comm *comm);
/* Replaces the compute stream (desc.stream) of comm and of all communicators that were split from
 * the same one. Codes that make their streams after the communicator call it once, for instance
 * main_stream of llm.c. Work that is already in the old stream is completed before work that is
 * added to the new one from now on, so you may destroy the old stream afterwards.
 *
 * stream: NULL selects CUDA's default stream.
 *
 * If comm->mem is set, also set it to a table for the new stream (dpar_cuda_mem). Local. Waits for
 * nothing. Fails with DPAR_E_ARG for a communicator of another engine and while the old stream is
 * being captured. Fails with DPAR_E_SYSTEM, which breaks the communicator, if a call of CUDA
 * fails. */
DPAR_API dpar_status dpar_nccl_set_stream(dpar_comm *comm, cudaStream_t stream);

/* ==== nccl/nccl_register.h ==== */

/* nccl_register - registers device memory with NCCL. */

/* Registers device memory with NCCL until the communicator is closed, or the memory is passed to
 * dpar_comm_release. In each later operation either all ranks must use memory that they registered
 * in the same call, or none may.
 *
 * memory, bytes: `bytes` must be equal on all ranks. Memory from dpar_comm_alloc becomes a window
 *                if `bytes` is a multiple of 4096 and NCCL has windows (2.27). Other memory becomes
 *                a buffer (2.19). With older versions nothing happens.
 *
 * Collective. Fails with DPAR_E_ARG, without a message, if comm is of another engine, if comm or
 * memory is NULL, or if bytes is below 1. Fails with DPAR_E_SYSTEM and NCCL's own message, or with
 * DPAR_E_MEMORY; both messages are in comm->why. */
DPAR_API dpar_status dpar_nccl_register(dpar_comm *comm, void *memory, int64_t bytes);

/* ==== nccl/nccl_shrink.h ==== */

/* nccl_shrink - makes a communicator without the ranks that are lost. */

/* Makes a communicator of the ranks of comm, without the ranks that are lost. The others keep their
 * order.
 *
 * comm: made with desc.elastic = 1. It may be broken; free it afterwards as usual.
 * gone: [n] ranks of comm that are left out, in ascending order: at least one, and not this rank.
 *
 * Collective over the ranks that stay. Fails with DPAR_E_UNKNOWN if comm is not elastic or NCCL is
 * older than 2.27, and with DPAR_E_ARG if comm is of another engine, gone is not as described or
 * out is NULL. Fails with DPAR_E_TIMEOUT if not all ranks that stay call it before comm's deadline,
 * with DPAR_E_SYSTEM and NCCL's own message, or with DPAR_E_MEMORY. */
DPAR_API dpar_status dpar_nccl_shrink(dpar_comm *comm, const int32_t *gone, int32_t n,
                                      dpar_comm **out, dpar_why *why);

/* ==== nccl/nccl_doctor.h ==== */

/* nccl_doctor - reports which choices NCCL made, and what is wrong. */

/* Writes a report about NCCL, to follow the report of dpar_doctor. Each problem, for example that
 * NCCL uses sockets, is a line "WRONG: ... -> what to do". Returns the number of these lines. The
 * report names the version, features that it lacks, whether ranks share a device for tests, and the
 * transports found in desc.log_file. On rank 0 of comm it also tells where rank 0 listens.
 *
 * comm: may be NULL.
 *
 * Local. */
DPAR_API int32_t dpar_nccl_doctor(dpar_comm *comm, dpar_text *out);

#endif /* DPAR_NCCL_H */

/* Stop here if you only want the API. All that follows is private and changes without notice. */

/* The implementation. */

#if (defined(DPAR_IMPLEMENTATION) || defined(DPAR_NCCL_IMPLEMENTATION)) && \
    !defined(DPAR_NCCL_IMPLEMENTATION_DONE)
#define DPAR_NCCL_IMPLEMENTATION_DONE

/* ==== nccl/system.h ==== */

/* system - private: the system headers that the engine needs. */

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#if !defined(DPAR_NCCL_LINK)
#include <dlfcn.h>
#endif

/* With -std=c99, a system header that was included earlier may have hidden the functions of POSIX
 * and of the network, and nothing can bring them back. */
#if !defined(IFF_UP) || !defined(CLOCK_MONOTONIC) || !defined(F_DUPFD_CLOEXEC)
#error strict C hides POSIX: define DPAR_IMPLEMENTATION and include dpar before any other header, \
    or compile with -D_GNU_SOURCE
#endif

/* ==== nccl/library.h ==== */

/* library - private: NCCL's functions, loaded or linked, as far as the installed version has them.
 */

/* An NCCL window. In 2.27 its struct has another name than in later versions. */
#if NCCL_VERSION_CODE >= 22703
typedef ncclWindow_t dpari_nccl_window;
#else
typedef struct dpari_nccl_window_of *dpari_nccl_window;
#endif

/* The functions that all supported versions have, followed by those that each later version
 * added. */
#define DPARI_NCCL_ALWAYS(X)                                                                       \
    X(GetVersion, (int *))                                                                         \
    X(GetUniqueId, (ncclUniqueId *))                                                               \
    X(CommInitRankConfig, (ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *))                  \
    X(CommFinalize, (ncclComm_t))                                                                  \
    X(CommDestroy, (ncclComm_t))                                                                   \
    X(CommAbort, (ncclComm_t))                                                                     \
    X(CommGetAsyncError, (ncclComm_t, ncclResult_t *))                                             \
    X(AllReduce,                                                                                   \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))       \
    X(Reduce,                                                                                      \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))  \
    X(Broadcast, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))    \
    X(AllGather, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))         \
    X(ReduceScatter,                                                                               \
      (const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))       \
    X(Send, (const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                 \
    X(Recv, (void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                       \
    X(CommSplit, (ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *))                             \
    X(GroupStart, (void))                                                                          \
    X(GroupEnd, (void))

#define DPARI_NCCL_21900(X)                                                                        \
    X(MemAlloc, (void **, size_t))                                                                 \
    X(MemFree, (void *))                                                                           \
    X(CommRegister, (const ncclComm_t, void *, size_t, void **))                                   \
    X(CommDeregister, (const ncclComm_t, void *))

#define DPARI_NCCL_22703(X)                                                                        \
    X(CommShrink, (ncclComm_t, int *, int, ncclComm_t *, ncclConfig_t *, int))                     \
    X(CommWindowRegister, (ncclComm_t, void *, size_t, dpari_nccl_window *, int))                  \
    X(CommWindowDeregister, (ncclComm_t, dpari_nccl_window))

#define DPARI_NCCL_22803(X)                                                                        \
    X(AlltoAll, (const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))          \
    X(Gather, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))       \
    X(Scatter, (const void *, void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

#define DPARI_NCCL_22807(X) X(CommRevoke, (ncclComm_t, int))

#define DPARI_NCCL_22902(X) X(GetPeerDevicePointer, (dpari_nccl_window, size_t, int, void **))

/* The functions, NULL for those that the installed version lacks. */
typedef struct dpari_nccl_api {
    void *library;
    int32_t version, room;
    const char *(*GetErrorString)(ncclResult_t);
    const char *(*GetLastError)(ncclComm_t);
#define DPARI_NCCL_FIELD(name, args) ncclResult_t(*name) args;
    DPARI_NCCL_ALWAYS(DPARI_NCCL_FIELD)
    DPARI_NCCL_21900(DPARI_NCCL_FIELD)
    DPARI_NCCL_22703(DPARI_NCCL_FIELD)
    DPARI_NCCL_22803(DPARI_NCCL_FIELD)
    DPARI_NCCL_22807(DPARI_NCCL_FIELD)
    DPARI_NCCL_22902(DPARI_NCCL_FIELD)
#undef DPARI_NCCL_FIELD
} dpari_nccl_api;

enum {
    DPARI_NCCL_OLDEST = 21801, /* 2.18.1: older versions have no ncclCommSplit */
    DPARI_NCCL_SHRINK_ABORT = 1,
    DPARI_NCCL_WIN_SYMMETRIC = 1
};

/* Writes a version number as text: "2.28.9". */
DPARI_INTERNAL void dpari_nccl_put_version(dpar_text *text, int32_t version);
/* Loads the library, or takes the linked functions. Fails if it is missing or too old. */
DPARI_INTERNAL dpar_status dpari_nccl_load(dpari_nccl_api *api, dpar_why *why);

/* ==== nccl/state.h ==== */

/* state - private: the data of the engine: worlds, communicators, operations, the side channel. */

enum {
    DPARI_NCCL_ADDRESSES = 6, /* the most addresses of rank 0 that other ranks try */
    DPARI_NCCL_PENDING = 1,   /* work->phase: the message is not enqueued yet, */
    DPARI_NCCL_ENQUEUED = 2,  /* is in progress, */
    DPARI_NCCL_FINISHED = 3   /* or has ended */
};

typedef struct dpari_nccl_ctx dpari_nccl_ctx;
typedef struct dpari_nccl_world dpari_nccl_world;

/* The same as CUstreamBatchMemOpParams of cuda.h, which is not required. tests/gpu/link.c compares
 * the two. */
typedef struct dpari_nccl_stream_op {
    int32_t operation, room_0;
    uint64_t address, value;
    uint32_t flags, room_1;
    uint64_t alias, room_2;
} dpari_nccl_stream_op;

enum { DPARI_NCCL_WAIT_32 = 1, DPARI_NCCL_WRITE_32 = 2, DPARI_NCCL_WAIT_EQ = 1 };
typedef int dpari_nccl_stream_ops(cudaStream_t stream, unsigned count, dpari_nccl_stream_op *ops,
                                  unsigned flags);

/* An enqueued operation: a collective, or a group of messages that begin together. */
typedef struct dpari_nccl_slot {
    cudaEvent_t ready, done; /* `ready` is recorded on the compute stream before the operation, and
                                `done` on the world's stream after it */
    struct dpari_nccl_slot *next;
    dpari_nccl_ctx *ctx;
    dpar_call call;           /* the call; of a group of messages, the first one's */
    int64_t sequence, number; /* numbers of the collective and of the record */
    int32_t works;            /* works that still refer to this slot */
    int32_t flying;           /* 1 until `done` was seen to be reached */
    int32_t capture;          /* 1: captured in a graph, so that its events cannot be queried */
    int32_t told;     /* 1 + seconds of waiting after which this was last reported to rank 0; 0 if
                         it was not */
    int32_t messages; /* 1: a group of messages */
    int32_t meets;    /* number of ranks whose devices synchronise in it; 0 for other operations */
    double since;     /* time from which it is at the head of the stream and only other ranks can
                         delay it; negative before that */
} dpari_nccl_slot;

/* The position of a rank in a communicator, as that rank reports it. */
typedef struct dpari_nccl_note {
    uint64_t comm;     /* name of the communicator */
    dpari_record last; /* in state DPAR_MORE if the rank waits in it */
    int32_t varies;    /* 1: it has counts for each rank, so that `count` is not compared */
    int32_t room;
} dpari_nccl_note;

/* ---- the side channel ---- */

#define DPARI_NCCL_MAGIC UINT64_C(0x647061726e63636c)

/* Messages of the side channel. A connection begins with the first three of them; see
 * dpari_nccl_prove. */
enum {
    DPARI_NCCL_HELLO = 1, /* from a rank: a random number */
    DPARI_NCCL_CHALLENGE, /* from rank 0: its random number, and its proof */
    DPARI_NCCL_PROOF,     /* from the rank: its proof */
    DPARI_NCCL_NOTE,      /* the position of a rank: dpari_nccl_note */
    DPARI_NCCL_ASK,       /* asks a rank for its note */
    DPARI_NCCL_WANT,      /* asks rank 0 for the notes of all ranks: NOTEs, then END */
    DPARI_NCCL_END,
    DPARI_NCCL_BROKEN, /* a communicator is broken; the reason is in `text` */
    DPARI_NCCL_DEAD,   /* the rank in `status` is gone */
    DPARI_NCCL_BYE     /* the sender leaves in order */
};

enum { DPARI_NCCL_TEXT = 256 };
/* 128 bits: a random number, a key or a proof. */
typedef struct dpari_nccl_bits {
    uint64_t word[2];
} dpari_nccl_bits;

/* A message of the side channel: the same bytes in each direction. */
typedef struct dpari_nccl_message {
    uint64_t magic, job;
    int32_t kind, rank, size, status;
    dpari_nccl_note note;
    char text[DPARI_NCCL_TEXT];
} dpari_nccl_message;

typedef struct dpari_nccl_address {
    int32_t family; /* AF_INET, AF_INET6 */
    unsigned char at[16];
} dpari_nccl_address;

/* What rank 0 sends to all ranks: before they make NCCL's communicator, or over it if NCCL makes
 * the id from NCCL_COMM_ID. */
typedef struct dpari_nccl_card {
    uint64_t magic, job;   /* job: a number that no other run of the job has */
    int32_t size, version; /* number of ranks; version of NCCL */
    int32_t options; /* the fields of dpar_nccl_desc that must be equal on all ranks, as bits */
    int32_t port, addresses; /* where rank 0 listens; 0 addresses if there is no side channel */
    int32_t ending;          /* 1: rank 0 could not begin */
    ncclUniqueId id;
    dpari_nccl_address address[DPARI_NCCL_ADDRESSES];
    dpari_nccl_bits key; /* of the proofs (proof.h) */
} dpari_nccl_card;

/* States of a connection. */
enum {
    DPARI_NCCL_AWAY,  /* not connected yet */
    DPARI_NCCL_HERE,  /* connected and proved */
    DPARI_NCCL_LOST,  /* lost a moment ago; may connect again */
    DPARI_NCCL_GONE,  /* lost for longer: the rank counts as dead */
    DPARI_NCCL_LEFT,  /* the rank left in order */
    DPARI_NCCL_KNOCKS /* on ranks other than 0: connected, but rank 0 has not answered yet */
};
/* A connection of the side channel: rank 0 has one to each rank, and each other rank has one to
 * rank 0. */
typedef struct dpari_nccl_link {
    int fd;
    int32_t state;
    int32_t before; /* while `state` is KNOCKS: the state to return to if nobody answers */
    int32_t got;    /* bytes of `in` that have arrived */
    double lost;    /* time at which it was lost, or, if it was never connected, last tried */
    dpari_nccl_bits drawn; /* on ranks other than 0: the random number in the last HELLO */
    dpari_nccl_message in;
} dpari_nccl_link;

/* A connection to rank 0 that has not yet proved that it belongs to the job. */
typedef struct dpari_nccl_knock {
    int fd;
    int32_t rank;                 /* the rank that it claims to be; 0 before its HELLO */
    int32_t got;                  /* bytes of `in` that have arrived */
    double since;                 /* time at which it was accepted */
    dpari_nccl_bits theirs, ours; /* the random numbers of both sides */
    dpari_nccl_message in;
} dpari_nccl_knock;

/* The side channel of a rank. */
typedef struct dpari_nccl_side {
    int listener;            /* on rank 0: the socket that listens, or -1 */
    int32_t local;           /* 1: all ranks are on this node, and rank 0 listens only there */
    dpari_nccl_knock *knock; /* [knocks_room] on rank 0, the oldest first; `knocks` are in use */
    int32_t knocks, knocks_room;
    int32_t links; /* number of links; 0 if there is no side channel */
    dpari_nccl_link *link;
    dpari_nccl_note *note; /* [size] the last note of each rank, */
    int32_t *known;        /* [size] and 1 if it has sent one */
    struct pollfd *polls;  /* for dpari_nccl_side_wait */
    double asked;          /* time at which all ranks were last asked for notes */
    int32_t wanting;       /* 1: WANT was sent, */
    int32_t answered;      /* and 1 if its answer is complete */
    dpari_nccl_card card;
} dpari_nccl_side;

/* Seconds within which a lost connection of the side channel may be restored. */
enum { DPARI_NCCL_GRACE = 1 };

/* ---- memory, worlds, communicators ---- */

/* Device memory that is allocated, registered or lent. */
typedef struct dpari_nccl_memory {
    struct dpari_nccl_memory *next;
    dpari_nccl_ctx *ctx; /* the communicator with which it is registered, or NULL */
    void *memory, *base, *handle;
    size_t bytes; /* size, if it is from dpar_comm_alloc */
    dpari_nccl_window window;
    int32_t owned;     /* 1: from dpar_comm_alloc */
    int32_t mem_alloc; /* 1: from ncclMemAlloc, otherwise from cudaMalloc */
    char **near;       /* lent memory: [size] addresses at which this device reaches each rank's
                          memory, NULL if it does not. NULL for other memory */
    int64_t flags;     /* offset of the flags in it, in bytes */
    int32_t turns;     /* exchanges so far, outside of graphs */
    int32_t part;      /* the part that the last exchange used */
} dpari_nccl_memory;

/* A part of the page-locked memory for messages that is in use. */
typedef struct dpari_nccl_used {
    int64_t begin, bytes;
} dpari_nccl_used;

/* What all communicators share that were split from one. */
struct dpari_nccl_world {
    dpari_nccl_api api;
    dpar_engine engine; /* of all its communicators */
    dpar_nccl_desc options;
    char *log; /* a copy of desc.log_file, because the caller may free its own */
    int32_t device, rank, size;
    int32_t own_stream;
    cudaStream_t stream;        /* stream on which all operations run */
    cudaStream_t freeing;       /* stream on which the flags of ranks that will not come are set;
                                   NULL if nothing is lent */
    dpari_nccl_stream_ops *ops; /* the driver's cuStreamBatchMemOp, or NULL if it has none */
    dpari_nccl_slot *slots, *spare;
    dpari_nccl_slot *flying, *last; /* operations in progress, in the order of the stream */
    dpari_nccl_slot *entering;      /* the operation that is being enqueued */
    dpari_nccl_ctx *comms;          /* in the order in which they were made */
    dpari_nccl_ctx *closed;         /* closed communicators that a thread may still abort */
    dpari_ended kept;               /* other closed communicators, to which plans may still refer */
    dpari_nccl_memory *memory;
    char *scratch;           /* device memory */
    char *staging, *letters; /* page-locked memory for collectives, and for messages */
    dpari_nccl_used *used;   /* the parts of `letters` in use, in ascending order */
    int32_t used_count;
    dpari_nccl_side side;
    uint64_t *node; /* [size] a number for the machine of each rank; NULL if not known */
    pthread_mutex_t lock;
    dpari_thread thread;
    int32_t watched; /* 1: there is a watchdog */
    uint32_t frees;  /* 1: operations wait for flags of ranks that will not come */
    uint32_t ending; /* 1: the watchdog has to end */
    double period;   /* seconds between two turns of the watchdog */
    double looked;   /* when the deadline of an operation was last checked */
    int wake[2];     /* a pipe that wakes the watchdog */
};

/* The part of an operation on host memory that is exchanged with one rank. */
typedef struct dpari_nccl_piece {
    const char *from;
    char *to;
    int64_t give, take; /* bytes */
} dpari_nccl_piece;

/* A communicator. */
struct dpari_nccl_ctx {
    dpar_comm comm;
    dpari_nccl_world *world;
    dpari_nccl_ctx *next;
    ncclComm_t nccl;  /* NULL once it was aborted */
    ncclComm_t made;  /* where a split stores the new communicator, which NCCL may do later */
    uint64_t name;    /* its name in the side channel; 0 for the world's first communicator */
    int64_t sequence; /* collectives so far */
    int64_t splits;   /* splits so far */
    int64_t records;
    double remote;               /* time since which NCCL reports a lost rank; 0 if it does not */
    dpar_work *pending, *newest; /* messages that were posted and are not enqueued yet */
    int32_t *member;             /* [size] the rank in the world of each rank */
    dpari_nccl_piece *piece;     /* [size] */
    const void **parts;          /* [size] */
    int32_t told;                /* 1: the other ranks know that it is broken */
    int32_t lends;               /* 1: some of its memory was lent */
    int32_t ends;                /* 1: the thread `ending` aborts `ended`; 2: that thread has been
                                    joined */
    ncclComm_t ended;
    dpari_thread ending;
    dpari_record ring[DPARI_RECORDS];
};

/* Returns the state of a communicator. */
DPARI_FN dpari_nccl_ctx *dpari_nccl_ctx_of(const dpar_comm *comm)
{
    return (dpari_nccl_ctx *)comm->context;
}

DPARI_FN int64_t dpari_nccl_bytes(int32_t type, int64_t n)
{
    return n * dpar_type_bytes(type);
}

/* Stores the slot in the work: work->state[0] holds it, and work->state[2] the page-locked memory
 * of a message. */
DPARI_FN void dpari_nccl_keep(dpar_work *work, dpari_nccl_slot *slot)
{
    memcpy(&work->state[0], &slot, sizeof slot);
}

DPARI_FN dpari_nccl_slot *dpari_nccl_slot_of(const dpar_work *work)
{
    dpari_nccl_slot *slot;
    memcpy(&slot, &work->state[0], sizeof slot);
    return slot;
}

DPARI_FN void dpari_nccl_set_letter(dpar_work *work, char *letter)
{
    memcpy(&work->state[2], &letter, sizeof letter);
}

DPARI_FN char *dpari_nccl_letter_of(const dpar_work *work)
{
    char *letter;
    memcpy(&letter, &work->state[2], sizeof letter);
    return letter;
}

/* The lock protects everything that both the watchdog and the callers' threads use. */
DPARI_FN void dpari_nccl_lock(dpari_nccl_world *world)
{
    (void)pthread_mutex_lock(&world->lock);
}

DPARI_FN void dpari_nccl_unlock(dpari_nccl_world *world)
{
    (void)pthread_mutex_unlock(&world->lock);
}

/* ==== nccl/lent_flags.h ==== */

/* lent_flags - private: the flags in lent memory, for which the streams of neighbours wait. */

/* Returns the bytes of all flags behind lent memory. */
DPARI_INTERNAL int64_t dpari_nccl_flag_bytes(const dpari_nccl_ctx *context);

/* Locked. Sets all flags in the memory of broken communicators, so that no stream waits for a rank
 * that will not come. */
DPARI_INTERNAL void dpari_nccl_free_waits(dpari_nccl_world *world);

/* ==== nccl/failure.h ==== */

/* failure - private: how calls fail, and how communicators break. */

/* Sets the message to "`doing` failed: NCCL says: ", followed by NCCL's text for the code and its
 * last error, if it has one. */
DPARI_INTERNAL void dpari_nccl_say(const dpari_nccl_api *api, dpar_why *why, const char *doing,
                                   ncclResult_t code);
/* The same for a call of CUDA. Returns the status, and clears CUDA's error. */
DPARI_INTERNAL dpar_status dpari_nccl_cuda_says(dpar_why *why, const char *doing, cudaError_t code);
/* Sets the communicator's message and returns the status, without breaking it. */
DPARI_INTERNAL dpar_status dpari_nccl_refuse(dpari_nccl_ctx *context, dpar_status status,
                                             const char *what);
/* Aborts the context's NCCL communicator. Its kernels end at once, but then NCCL frees memory,
 * which waits for all kernels of the device, including those of other communicators. The abort
 * therefore runs in a separate thread, so that other communicators can be aborted meanwhile. The
 * context is kept until the thread has ended (dpari_nccl_retire). */
DPARI_INTERNAL void dpari_nccl_abort_comm(dpari_nccl_ctx *context);

/* Locked. Waits for the threads that abort communicators of a list. Releases the lock while it
 * waits. If the watchdog begins another abort meanwhile, waits for that one, too. */
DPARI_INTERNAL void dpari_nccl_join_aborts(dpari_nccl_world *world, dpari_nccl_ctx *list);

/* Breaks the context with this status and message, unless it is broken already: the first error is
 * kept. With `tell`, the watchdog informs the other ranks. */
DPARI_INTERNAL dpar_status dpari_nccl_break(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text, int32_t tell);

/* Handles the failure of an NCCL call: breaks the context, except that wrong arguments only make
 * that call fail. */
DPARI_INTERNAL dpar_status dpari_nccl_failed(dpari_nccl_ctx *context, const char *doing,
                                             ncclResult_t code);
/* Locked. Breaks the context because a call of CUDA failed. */
DPARI_INTERNAL dpar_status dpari_nccl_cuda_failed(dpari_nccl_ctx *context, const char *doing,
                                                  cudaError_t code);

/* Calls dpari_nccl_break for a caller that does not hold the lock, which is needed because the
 * watchdog may break the context at the same time. */
DPARI_INTERNAL dpar_status dpari_nccl_broke(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text);
/* The same as dpari_nccl_cuda_failed, for a caller that does not hold the lock. */
DPARI_INTERNAL dpar_status dpari_nccl_cuda_broke(dpari_nccl_ctx *context, const char *doing,
                                                 cudaError_t code);

/* ==== nccl/settle.h ==== */

/* settle - private: waits on the host until NCCL has completed a call. */

/* Sleeps for 20 us. */
DPARI_INTERNAL void dpari_nccl_nap(void);

/* Polls an NCCL communicator that the watchdog does not know yet, until NCCL has completed the last
 * call. This is needed even if the call returned ncclSuccess, because NCCL returns that before the
 * new object exists. Returns ncclInProgress at the deadline. */
DPARI_INTERNAL ncclResult_t dpari_nccl_through(const dpari_nccl_api *api, ncclComm_t nccl,
                                               const dpar_status *broken, double timeout_s);

/* True while NCCL's report that a process has ended is to be ignored. NCCL notices that first, but
 * does not know which rank it was. The side channel reports the rank once DPARI_NCCL_GRACE has
 * passed. */
DPARI_INTERNAL int dpari_nccl_unnamed(dpari_nccl_ctx *context, ncclResult_t said);

/* Locked. Polls a communicator that the watchdog knows, until NCCL has completed the last call. The
 * lock is released in between, so that the watchdog continues: ranks that connect for their first
 * operation wait for each other here, and one of them may be missing. */
DPARI_INTERNAL ncclResult_t dpari_nccl_settle(dpari_nccl_ctx *context);

/* ==== nccl/operation.h ==== */

/* operation - private: operations on the stream: the slots that hold their events. */

/* Queries an event without ending a capture of this thread, and without leaving an error that the
 * thread's next CUDA call would report. */
DPARI_INTERNAL cudaError_t dpari_nccl_query(cudaEvent_t event);
/* True if the compute stream is being captured in a graph. */
DPARI_INTERNAL int32_t dpari_nccl_capturing(const dpari_nccl_world *world);

/* Locked. Recycles a slot that nobody needs any more. */
DPARI_INTERNAL void dpari_nccl_slot_free(dpari_nccl_world *world, dpari_nccl_slot *slot);

/* Locked. Removes the operations that have ended from the front of the list. An error of the device
 * breaks their communicators. */
DPARI_INTERNAL void dpari_nccl_reap(dpari_nccl_world *world);

/* Begins an operation: takes a slot and makes the world's stream wait for the compute stream.
 * Returns the slot, with the lock held. On failure returns NULL, without the lock, and sets
 * *status. */
DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_begin(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpar_status *status);

/* Completes the enqueuing of an operation to which `works` works refer, and releases the lock. */
DPARI_INTERNAL dpar_status dpari_nccl_end(dpari_nccl_slot *slot, int32_t works, dpar_status status);
/* Ends the reference of one work to a slot. */
DPARI_INTERNAL void dpari_nccl_let_go(dpari_nccl_world *world, dpari_nccl_slot *slot);

/* Waits until the device has finished an operation. The watchdog checks the deadline; without a
 * watchdog this function does. */
DPARI_INTERNAL dpar_status dpari_nccl_await(dpari_nccl_slot *slot);

/* ==== nccl/run.h ==== */

/* run - private: an operation while its work is being enqueued. */

/* An operation while it is being enqueued. The first error is kept. */
typedef struct dpari_nccl_run {
    dpari_nccl_ctx *c;
    const dpari_nccl_api *api;
    const dpar_call *call;
    cudaStream_t stream;
    int32_t unit;
    int32_t grouped; /* 1: an NCCL group is open */
    ncclResult_t code;
    cudaError_t cuda;
    dpar_status status; /* the result of reduce_mem */
} dpari_nccl_run;

/* True if nothing has failed so far. */
DPARI_INTERNAL int dpari_nccl_well(const dpari_nccl_run *run);

/* Records the result of an NCCL call. Within a group ncclInProgress counts as success, because the
 * end of the group is polled. */
DPARI_INTERNAL void dpari_nccl_took(dpari_nccl_run *run, ncclResult_t code, int grouped);
/* Open and close a group of NCCL, in which sends and receives begin together. */
DPARI_INTERNAL void dpari_nccl_open(dpari_nccl_run *run);
DPARI_INTERNAL void dpari_nccl_shut(dpari_nccl_run *run);
/* Enqueue a message, or a copy on this device, unless it is empty or something has failed. */
DPARI_INTERNAL void dpari_nccl_send_bytes(dpari_nccl_run *run, const void *from, int64_t bytes,
                                          int32_t to);
DPARI_INTERNAL void dpari_nccl_recv_bytes(dpari_nccl_run *run, void *to, int64_t bytes,
                                          int32_t from);
DPARI_INTERNAL void dpari_nccl_copy(dpari_nccl_run *run, void *to, const void *from, int64_t bytes);
/* Begins the enqueuing of a call. */
DPARI_INTERNAL void dpari_nccl_run_init(dpari_nccl_run *run, dpari_nccl_ctx *context,
                                        const dpar_call *call);

/* Returns the status of an operation that was enqueued. An error breaks the communicator. */
DPARI_INTERNAL dpar_status dpari_nccl_result(const dpari_nccl_run *run);

/* ==== nccl/collective.h ==== */

/* collective - private: collectives on device memory. */

enum {
    DPARI_NCCL_LIMIT = 64
}; /* blocks in scratch memory have a multiple of this number of elements */

/* Sets context->piece[r] to what the call exchanges with each rank r. */
DPARI_INTERNAL void dpari_nccl_pieces(dpari_nccl_ctx *context, const dpar_call *call);
/* Returns the bytes of the block of at most `block` bytes that begins at byte `at`; 0 at the
 * end. */
DPARI_INTERNAL int64_t dpari_nccl_rest(int64_t bytes, int64_t at, int64_t block);

/* Returns the number of elements in the part of a reduction that rank r adds up, and sets *begin to
 * its first element. In a reduce the root adds up everything. */
DPARI_INTERNAL int64_t dpari_nccl_part(const dpari_nccl_ctx *context, const dpar_call *call,
                                       int32_t r, int64_t *begin);

/* Enqueues a collective on device memory. */
DPARI_INTERNAL dpar_status dpari_nccl_collective(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpari_nccl_slot **slot);

/* ==== nccl/host_memory.h ==== */

/* host_memory - private: collectives on host memory: through page-locked memory, and blocking. */

enum { DPARI_NCCL_NOWHERE, DPARI_NCCL_DEVICE, DPARI_NCCL_HOST };

/* Returns where the call's memory is. Fails with DPAR_E_ARG, and a message, if in and out are in
 * different places. */
DPARI_INTERNAL int32_t dpari_nccl_place(dpari_nccl_ctx *context, const dpar_call *call);

/* Exchanges all pieces, in as many rounds as the staging memory requires. */
DPARI_INTERNAL dpar_status dpari_nccl_host_move(dpari_nccl_ctx *context, const dpar_call *call);
/* Runs a collective on host memory, and waits for it. */
DPARI_INTERNAL dpar_status dpari_nccl_host(dpari_nccl_ctx *context, const dpar_call *call);

/* ==== nccl/messages.h ==== */

/* messages - private: messages: posted one by one, enqueued together, in the same order on both
 * sides. */

/* Ends a work: copies a received message to the user's host memory, and releases the slot and the
 * memory that the work holds. */
DPARI_INTERNAL void dpari_nccl_finish(dpar_work *work, dpar_status status);

/* Fails with DPAR_E_ARG, and a message, for calls that NCCL cannot run or that cannot be captured
 * in a graph. */
DPARI_INTERNAL dpar_status dpari_nccl_can(dpari_nccl_ctx *context, const dpar_call *call,
                                          int32_t place);

/* Posts a message. It is enqueued at this rank's next collective, batch, wait or test. */
DPARI_INTERNAL dpar_status dpari_nccl_pend(dpari_nccl_ctx *context, const dpar_call *call,
                                           dpar_work *work);

/* Enqueues the pending messages of the context as one group. */
DPARI_INTERNAL dpar_status dpari_nccl_flush_one(dpari_nccl_ctx *context);

/* Enqueues the messages of all communicators, in the order in which the communicators were made,
 * which is the same on all ranks. */
DPARI_INTERNAL void dpari_nccl_flush(dpari_nccl_world *world);

/* ==== nccl/calls.h ==== */

/* calls - private: the engine's functions that post, test and wait. */

/* Do what dpar_test and dpar_wait do. */
DPARI_INTERNAL dpar_status dpari_nccl_test(dpar_work *work);
DPARI_INTERNAL dpar_status dpari_nccl_wait(dpar_work *work);
/* Do what dpari_post does, with a work or without. */
DPARI_INTERNAL dpar_status dpari_nccl_post(dpar_comm *comm, const dpar_call *call, dpar_work *work);
DPARI_INTERNAL dpar_status dpari_nccl_run_call(dpar_comm *comm, const dpar_call *call);

/* Enqueues a batch as one group. If the caller passes no works, allocates them and waits for
 * them. */
DPARI_INTERNAL dpar_status dpari_nccl_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                            dpar_work *works);
/* Does nothing, because the device advances without calls of the host. */
DPARI_INTERNAL dpar_status dpari_nccl_progress(dpar_comm *comm, int32_t on);
/* Breaks the communicator. */
DPARI_INTERNAL void dpari_nccl_abort(dpar_comm *comm, dpar_status status, const char *text);

/* ==== nccl/memory.h ==== */

/* memory - private: device memory from dpar_comm_alloc. */

/* Locked. Adds memory to the world's list. Returns NULL if there is no host memory. */
DPARI_INTERNAL dpari_nccl_memory *dpari_nccl_note_memory(dpari_nccl_ctx *context, void *at);

/* Allocates zeroed device memory: from ncclMemAlloc, whose memory can be registered in every way,
 * or from cudaMalloc. */
DPARI_INTERNAL dpar_status dpari_nccl_alloc(dpar_comm *comm, int64_t bytes, void **memory);
/* Locked. Ends the registrations of memory, and frees it if it is from dpar_comm_alloc. */
DPARI_INTERNAL void dpari_nccl_memory_end(dpari_nccl_world *world, dpari_nccl_memory *memory);
/* Locked. Removes an entry from the world's list. */
DPARI_INTERNAL void dpari_nccl_forget(dpari_nccl_world *world, dpari_nccl_memory *memory);

/* Frees memory from dpar_comm_alloc and ends its registrations. First waits for everything that was
 * enqueued. */
DPARI_INTERNAL void dpari_nccl_release(dpar_comm *comm, void *memory);

/* True if the memory can become a window. Only memory from ncclMemAlloc can: for other memory NCCL
 * returns an error, which may not be the case on all ranks. */
DPARI_INTERNAL int dpari_nccl_windows(const dpari_nccl_ctx *context, const void *memory,
                                      int64_t bytes);

/* ==== nccl/proof.h ==== */

/* proof - private: proves that a process knows the job's key, by SipHash-2-4 with a result of 128
 * bits (Aumasson and Bernstein, 2012). */

/* True if all bits are equal. Takes the same time wherever they differ, so that an attacker learns
 * nothing from it. */
DPARI_INTERNAL int dpari_nccl_alike(const dpari_nccl_bits *a, const dpari_nccl_bits *b);

/* Sets *to to a random number that nobody can predict. Returns -1 if the system provides none. */
DPARI_INTERNAL int dpari_nccl_draw(dpari_nccl_bits *to);

/* Returns the proof by which one side of a connection shows the other that it knows the key. It
 * covers the job, the size and all arguments, so that it is valid only once and only for this
 * connection.
 *
 * by_root: 1 for the proof of rank 0, and 0 for that of rank `rank`, which has connected to rank 0.
 * caller:  the random number that rank `rank` has drawn for this connection.
 * called:  the random number that rank 0 has drawn for it. */
DPARI_INTERNAL dpari_nccl_bits dpari_nccl_prove(const dpari_nccl_world *world, int by_root,
                                                int32_t rank, const dpari_nccl_bits *caller,
                                                const dpari_nccl_bits *called);

/* ==== nccl/socket.h ==== */

/* socket - private: TCP: addresses, connections, and whole messages before a deadline. */

typedef union dpari_nccl_sockaddr {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} dpari_nccl_sockaddr;

/* Send or receive all bytes. Return 0, or -1 if the connection fails or the deadline passes before
 * that, in which case some of the bytes may have been sent or received. */
DPARI_INTERNAL int dpari_nccl_write(int fd, const void *from, size_t bytes, double until);
DPARI_INTERNAL int dpari_nccl_read(int fd, void *to, size_t bytes, double until);
/* Sets *a to 127.0.0.1. */
DPARI_INTERNAL void dpari_nccl_loopback(dpari_nccl_address *a);
/* Sets *n to an address and port in the form that the system's functions take. Returns its
 * length. */
DPARI_INTERNAL socklen_t dpari_nccl_socket_name(const dpari_nccl_address *a, int32_t port,
                                                dpari_nccl_sockaddr *n);

/* Makes a socket that listens on a free port, which *port is set to: at the loopback interface if
 * local is 1, otherwise at all addresses of this machine. Returns -1 on failure. */
DPARI_INTERNAL int dpari_nccl_listen(int32_t local, int32_t *port);

/* Lists up to `room` of this machine's addresses, with loopback addresses last and without IPv6
 * addresses that are valid only on one link. Returns their number. */
DPARI_INTERNAL int32_t dpari_nccl_addresses(dpari_nccl_address *to, int32_t room);

/* Connects to an address. Returns the socket, or -1 if the address is not reached before the
 * deadline, which must be at most some seconds away. */
DPARI_INTERNAL int dpari_nccl_connect(const struct sockaddr *name, socklen_t bytes, double until);

/* ==== nccl/position.h ==== */

/* position - private: the operation in which a rank is, as ranks compare it. */

/* Returns the communicator with this name, or NULL. */
DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_named(dpari_nccl_world *world, uint64_t name);

/* Returns the operation at the head of the stream, or the one being enqueued if the stream is
 * empty, because both may wait for other ranks. Operations of broken communicators are skipped:
 * those of an elastic communicator may remain at the head, and the deadlines of operations behind
 * them still have to be checked. */
DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_head(const dpari_nccl_world *world);

/* Sets *n to this rank's position in a communicator: in the operation at the head of the stream, or
 * past its last collective. */
DPARI_INTERNAL void dpari_nccl_note_own(dpari_nccl_world *world, uint64_t name, dpari_nccl_note *n);
/* True if two ranks wait in the same call. */
DPARI_INTERNAL int dpari_nccl_same(const dpari_nccl_note *m, const dpari_nccl_note *n);

/* ==== nccl/side_messages.h ==== */

/* side_messages - private: messages of the side channel: ranks compare their calls and report
 * errors. */

/* Begins a message of this rank. */
DPARI_INTERNAL void dpari_nccl_message_init(const dpari_nccl_world *world,
                                            dpari_nccl_message *message, int32_t kind);

/* Closes a link. A link that rank 0 had not accepted yet returns to the state that it had before
 * the attempt. */
DPARI_INTERNAL void dpari_nccl_link_lost(dpari_nccl_link *l);

/* Sends a message: rank 0 sends it to all ranks except `but` (-1 for none), and other ranks send it
 * to rank 0. */
DPARI_INTERNAL void dpari_nccl_tell(dpari_nccl_world *world, const dpari_nccl_message *message,
                                    int32_t but);

/* Reports this rank's note to rank 0, which then asks the other ranks and compares the notes. */
DPARI_INTERNAL void dpari_nccl_answer(dpari_nccl_world *world, uint64_t comm);

/* Breaks the communicators of a rank that ended without leaving in order. */
DPARI_INTERNAL void dpari_nccl_died(dpari_nccl_world *world, int32_t rank);

/* Processes a message that has arrived over link k. */
DPARI_INTERNAL void dpari_nccl_obey(dpari_nccl_world *world, int32_t k,
                                    dpari_nccl_message *message);

/* ==== nccl/side_connections.h ==== */

/* side_connections - private: the connections between rank 0 and the other ranks. */

/* On rank 0: accepts new connections and advances those that have not proved yet. Never waits. */
DPARI_INTERNAL void dpari_nccl_accept(dpari_nccl_world *world);

/* On other ranks: connects to rank 0 at one of its addresses, which share the time until the
 * deadline, and sends HELLO. Returns -1 if rank 0 is not reached. */
DPARI_INTERNAL int dpari_nccl_reach(dpari_nccl_world *world, dpari_nccl_link *l, double until);

/* Reads and processes what has arrived on a link. */
DPARI_INTERNAL void dpari_nccl_listen_to(dpari_nccl_world *world, int32_t k);

/* Handles lost connections: other ranks connect again, and rank 0 waits for that. After
 * DPARI_NCCL_GRACE the rank at the other end counts as gone. */
DPARI_INTERNAL void dpari_nccl_mend(dpari_nccl_world *world);

/* ==== nccl/side_channel.h ==== */

/* side_channel - private: TCP between rank 0 and the other ranks, used when something is wrong. */

/* Allocates the side channel, and the pipe that wakes the watchdog. */
DPARI_INTERNAL dpar_status dpari_nccl_side_make(dpari_nccl_world *world, dpar_why *why);

/* Waits, without the lock, until something arrives or `seconds` have passed. */
DPARI_INTERNAL void dpari_nccl_side_wait(dpari_nccl_world *world, double seconds);

/* Locked. Reports communicators that broke on this rank to the others. */
DPARI_INTERNAL void dpari_nccl_say_broken(dpari_nccl_world *world);

/* Locked. Advances the side channel. */
DPARI_INTERNAL void dpari_nccl_side_turn(dpari_nccl_world *world);

/* ==== nccl/watchdog.h ==== */

/* watchdog - private: the thread that watches deadlines and runs the side channel. */

/* Connects to rank 0, waiting for at most a second, and starts the watchdog. */
DPARI_INTERNAL void dpari_nccl_watchdog(dpari_nccl_world *world);

/* ==== nccl/world.h ==== */

/* world - private: the state that the communicators of one dpar_nccl_make share. */

/* Reads DPAR_TEST_SHARE_GPU: returns 1 if ranks share a device as far as the version of NCCL
 * supports it, 2 ("hosts") if by the method that works with all versions, and 0 if they do not. */
DPARI_INTERNAL int32_t dpari_nccl_shares(void);
/* Frees the state of a communicator; dpari_nccl_kept_free does so for its handle, unless it is
 * NULL. */
DPARI_INTERNAL void dpari_nccl_ctx_free(dpari_nccl_ctx *context);
DPARI_INTERNAL void dpari_nccl_kept_free(dpar_comm *comm);
/* Ends the watchdog and the side channel, and frees the world. */
DPARI_INTERNAL void dpari_nccl_world_end(dpari_nccl_world *world);

/* Makes this rank's part of a world, without communication. Sets *out also on failure, unless there
 * is no memory; it then has to be ended. */
DPARI_INTERNAL dpar_status dpari_nccl_world_make(int32_t rank, int32_t size,
                                                 const dpar_nccl_desc *options,
                                                 const dpar_engine *engine, dpari_nccl_world **out,
                                                 dpar_why *why);

/* ==== nccl/card.h ==== */

/* card - private: what rank 0 sends to all ranks so that they can communicate: dpari_nccl_card. */

/* Makes rank 0's card, without the id, and begins to listen. If it cannot listen, the card has no
 * addresses, and there is no side channel. */
DPARI_INTERNAL dpar_status dpari_nccl_card_begin(dpari_nccl_world *world, uint64_t job,
                                                 dpar_why *why);
/* Stores a new id of NCCL in this rank's card, or the one that NCCL makes from NCCL_COMM_ID. */
DPARI_INTERNAL dpar_status dpari_nccl_card_id(dpari_nccl_world *world, dpar_why *why);

/* On rank 0: makes the card with the id. If that fails, the card reports it to the other ranks. */
DPARI_INTERNAL dpar_status dpari_nccl_own_card(dpari_nccl_world *world, uint64_t job,
                                               dpar_why *why);

/* Fails with DPAR_E_MISMATCH, and a message, if rank 0's card does not fit this rank, and with
 * DPAR_E_PEER if rank 0 failed. */
DPARI_INTERNAL dpar_status dpari_nccl_card_fits(const dpari_nccl_world *world,
                                                const dpari_nccl_card *card, dpar_why *why);

/* ==== nccl/communicator.h ==== */

/* communicator - private: makes and ends communicators. */

/* Makes the state of a communicator. Returns NULL if there is no memory. */
DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_ctx_make(dpari_nccl_world *world, int32_t rank,
                                                   int32_t size);

/* Fails because dpari_nccl_ctx_make had no memory for a communicator of `size` ranks. */
DPARI_INTERNAL dpar_status dpari_nccl_ctx_missing(dpar_why *why, const char *doing, int32_t size);

/* Appends the context to the world's communicators. */
DPARI_INTERNAL void dpari_nccl_join(dpari_nccl_ctx *context);
/* Sets *config to that of a communicator that does not block. */
DPARI_INTERNAL void dpari_nccl_config(const dpari_nccl_world *world, ncclConfig_t *config);

/* Returns the name of `part`, which split `number` of the context made. The name is the same on all
 * its ranks, and differs from those of all other communicators of the job, including those that
 * other ranks split off. */
DPARI_INTERNAL uint64_t dpari_nccl_name(const dpari_nccl_ctx *context, int64_t number,
                                        const dpari_nccl_ctx *part);

/* Makes the world's first communicator. */
DPARI_INTERNAL dpar_status dpari_nccl_begin_world(dpari_nccl_world *world, dpari_nccl_ctx **out,
                                                  dpar_why *why);

/* Removes the context from its world: from the slots, the list, and the registered memory. Returns
 * the number of works that nobody has waited for. */
DPARI_INTERNAL int32_t dpari_nccl_leave(dpari_nccl_ctx *context);

/* Frees the context, which was removed from its world. If a thread is still aborting it, keeps it
 * until then. */
DPARI_INTERNAL void dpari_nccl_retire(dpari_nccl_ctx *context);

/* ==== nccl/split.h ==== */

/* split - private: splits a communicator. */

/* Does what dpar_comm_split does. */
DPARI_INTERNAL dpar_status dpari_nccl_split(dpar_comm *comm, int32_t color, int32_t key,
                                            dpar_comm **out);

/* ==== nccl/lent_memory.h ==== */

/* lent_memory - private: memory that other devices of the node read directly. */

/* Waits, at most 10 s, until no kernel reads the memory that a broken communicator lends, before
 * NCCL unmaps it. */
DPARI_INTERNAL void dpari_nccl_drain(dpari_nccl_ctx *context);
/* Allocates memory that other ranks may read: the engine's alloc_shared. */
DPARI_INTERNAL dpar_status dpari_nccl_lend(dpar_comm *comm, int64_t bytes, int32_t can,
                                           void **memory);
/* Returns the address at which this device reaches a rank's lent memory, or NULL. */
DPARI_INTERNAL void *dpari_nccl_at_peer(dpar_comm *comm, void *memory, int32_t rank);
/* Makes the devices of these ranks synchronise: the engine's sync_peers. */
DPARI_INTERNAL dpar_status dpari_nccl_meet_near(dpar_comm *comm, void *memory, const int32_t *ranks,
                                                int32_t n, dpar_work *work);

/* ==== nccl/report.h ==== */

/* report - private: what a communicator reports about itself. */

/* Writes a report: this rank's last operations, and those that other ranks have reported. */
DPARI_INTERNAL void dpari_nccl_report(dpar_comm *comm, dpar_text *out);
/* Appends ", a GPU each on 2 nodes" and which paths NCCL uses. */
DPARI_INTERNAL void dpari_nccl_describe(dpar_comm *comm, dpar_text *out);

/* ==== nccl/store.h ==== */

/* store - private: torchrun's store, over which rank 0 sends its card to all ranks. */

/* Sends rank 0's n bytes, at most 400, to all ranks over torchrun's store. Rank 0 waits until all
 * ranks have them. *why may be NULL. */
DPARI_INTERNAL dpar_status dpari_nccl_by_store(const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                               double until, dpar_why *why);

/* ==== nccl/rendezvous.h ==== */

/* rendezvous - private: how ranks find each other: over a host communicator, or by other means. */

/* Makes the world's first communicator, of the ranks of host. A failure on any rank is reported on
 * all ranks. *out may be set also on failure. */
DPARI_INTERNAL dpar_status dpari_nccl_by_host(dpar_comm *host, dpari_nccl_world *world,
                                              dpari_nccl_ctx **out, dpar_why *said);

/* Sets *m to the caller's values, fills in the missing ones from the environment, and selects a
 * method. */
DPARI_INTERNAL dpar_status dpari_nccl_find_way(const dpar_nccl_rendezvous *given,
                                               dpar_nccl_rendezvous *m, dpar_why *why);

/* Takes part in the caller's broadcast although this rank has failed. Other ranks may wait in it
 * without a deadline, and learn in this way that rank 0 could not begin. */
DPARI_INTERNAL void dpari_nccl_meet_failed(dpari_nccl_world *world, const dpar_nccl_rendezvous *m);

/* Makes the world's first communicator by any method except DPAR_NCCL_NODE. *out may be set also on
 * failure. */
DPARI_INTERNAL dpar_status dpari_nccl_meet(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                           dpari_nccl_ctx **out, dpar_why *why);

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

/* ==== nccl/library.c ==== */

/* Loads NCCL with dlopen, or takes the addresses of the linked functions (DPAR_NCCL_LINK). The
 * lists of library.h name the functions of each version. Functions that are newer than the
 * library's own version are removed again, because a library may contain some that it does not
 * support yet. */

#if defined(DPAR_NCCL_LINK)
#if NCCL_VERSION_CODE >= 22902 /* it is declared only in nccl_device.h, which is C++ */
#ifdef __cplusplus
extern "C"
#endif
    ncclResult_t
    ncclGetPeerDevicePointer(ncclWindow_t, size_t, int, void **);
#endif
static dpar_status dpari_nccl_symbols(dpari_nccl_api *api, dpar_why *why)
{
    (void)why;
    api->GetErrorString = ncclGetErrorString;
    api->GetLastError = ncclGetLastError;
#define DPARI_NCCL_TAKE(name, args) api->name = nccl##name;
    DPARI_NCCL_ALWAYS(DPARI_NCCL_TAKE)
#if NCCL_VERSION_CODE >= 21900
    DPARI_NCCL_21900(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22703
    DPARI_NCCL_22703(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22803
    DPARI_NCCL_22803(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22807
    DPARI_NCCL_22807(DPARI_NCCL_TAKE)
#endif
#if NCCL_VERSION_CODE >= 22902
    DPARI_NCCL_22902(DPARI_NCCL_TAKE)
#endif
#undef DPARI_NCCL_TAKE
    return DPAR_OK;
}
#else
/* Stores the address of the library's function `name` in *to. It is copied as a pointer to data,
 * which POSIX allows. Returns 0 if the library lacks the function. */
static int32_t dpari_nccl_symbol(void *library, const char *name, void *to)
{
    void *at = dlsym(library, name);
    memcpy(to, &at, sizeof at);
    return at != NULL;
}

static dpar_status dpari_nccl_symbols(dpari_nccl_api *api, dpar_why *why)
{
    const char *name = getenv("DPAR_NCCL_LIBRARY"), *lacks = NULL, *said;
    name = name != NULL && name[0] != 0 ? name : "libnccl.so.2";
    api->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (api->library == NULL) {
        said = dlerror();
        return dpari_say(
            DPAR_E_SYSTEM, why,
            "cannot load NCCL: %s; set LD_LIBRARY_PATH to its folder, or DPAR_NCCL_LIBRARY to it",
            said != NULL ? said : name);
    }
#define DPARI_NCCL_NEED(name, args)                                                                \
    if (!dpari_nccl_symbol(api->library, "nccl" #name, &api->name)) {                              \
        lacks = "nccl" #name;                                                                      \
    }
#define DPARI_NCCL_TRY(name, args) (void)dpari_nccl_symbol(api->library, "nccl" #name, &api->name);
    DPARI_NCCL_ALWAYS(DPARI_NCCL_NEED)
    DPARI_NCCL_NEED(GetErrorString, )
    DPARI_NCCL_TRY(GetLastError, )
    DPARI_NCCL_21900(DPARI_NCCL_TRY)
    DPARI_NCCL_22703(DPARI_NCCL_TRY)
    DPARI_NCCL_22803(DPARI_NCCL_TRY)
    DPARI_NCCL_22807(DPARI_NCCL_TRY)
    DPARI_NCCL_22902(DPARI_NCCL_TRY)
#undef DPARI_NCCL_NEED
#undef DPARI_NCCL_TRY
    if (lacks != NULL) {
        return dpari_say(DPAR_E_SYSTEM, why, "the NCCL library %s has no function %s", name, lacks);
    }
    return DPAR_OK;
}
#endif

/* Removes the functions that a version does not support, even if the library has their symbols: the
 * library of 2.28.9 contains some of later versions. */
static void dpari_nccl_by_version(dpari_nccl_api *api, int32_t version)
{
    api->version = version;
#define DPARI_NCCL_DROP(name, args) api->name = NULL;
    if (version < 21901) {
        DPARI_NCCL_21900(DPARI_NCCL_DROP)
    }
    if (version < 22703) {
        DPARI_NCCL_22703(DPARI_NCCL_DROP)
    }
    if (version < 22803) {
        DPARI_NCCL_22803(DPARI_NCCL_DROP)
    }
    if (version < 22807) {
        DPARI_NCCL_22807(DPARI_NCCL_DROP)
    }
    if (version < 22902) {
        DPARI_NCCL_22902(DPARI_NCCL_DROP)
    }
#undef DPARI_NCCL_DROP
}

DPARI_INTERNAL void dpari_nccl_put_version(dpar_text *text, int32_t version)
{
    dpari_text_say(text, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

DPARI_INTERNAL dpar_status dpari_nccl_load(dpari_nccl_api *api, dpar_why *why)
{
    int version = 0;
    char text[40];
    dpar_text t;
    dpar_status status;
    memset(api, 0, sizeof *api);
    status = dpari_nccl_symbols(api, why);
    if (status < 0) {
        return status;
    }
    if (api->GetVersion(&version) != ncclSuccess || version < DPARI_NCCL_OLDEST) {
        dpar_text_init(&t, text, sizeof text);
        dpari_nccl_put_version(&t, version);
        return dpari_say(DPAR_E_SYSTEM, why, "NCCL %s is too old: dpar needs 2.18 or later", text);
    }
    dpari_nccl_by_version(api, (int32_t)version);
    return DPAR_OK;
}

/* ==== nccl/lent_flags.c ==== */

/* Ends waits for ranks that will not come. Behind the flags in lent memory are as many words of
 * value 1. Copying them over the flags, on a stream of their own, lets every wait return. */

enum { DPARI_NCCL_SETS = 4 }; /* of flags behind lent memory: lent_memory.c says why */

DPARI_INTERNAL int64_t dpari_nccl_flag_bytes(const dpari_nccl_ctx *context)
{
    return DPARI_NCCL_SETS * 4 * (int64_t)context->comm.size;
}

DPARI_INTERNAL void dpari_nccl_free_waits(dpari_nccl_world *world)
{
    const dpari_nccl_memory *memory;
    uint32_t left = 0;
    for (memory = world->memory; memory != NULL && world->freeing != NULL; memory = memory->next) {
        if (memory->near != NULL && memory->ctx != NULL && memory->ctx->comm.status < 0) {
            const int64_t bytes = dpari_nccl_flag_bytes(memory->ctx);
            char *at = (char *)memory->memory + memory->flags;
            (void)cudaMemcpyAsync(at, at + bytes, (size_t)bytes, cudaMemcpyDefault, world->freeing);
            left |= world->flying != NULL;
        }
    }
    DPARI_STORE(&world->frees, left);
}

/* ==== nccl/failure.c ==== */

/* Breaks communicators. The first error is kept; it sets the status, wakes the watchdog, which
 * informs the other ranks, and ends NCCL's operations, so that the streams continue. NCCL's abort
 * runs in a thread of its own, and the communicator is freed once that thread has ended. */

DPARI_INTERNAL void dpari_nccl_say(const dpari_nccl_api *api, dpar_why *why, const char *doing,
                                   ncclResult_t code)
{
    const char *more = api->GetLastError != NULL ? api->GetLastError(NULL) : NULL;
    (void)dpari_say(DPAR_E_SYSTEM, why, "%s failed: NCCL says: %s", doing,
                    api->GetErrorString(code));
    if (why != NULL && more != NULL && more[0] != 0) {
        size_t n = strlen(why->text);
        dpar_text t;
        dpar_text_init(&t, why->text + n, sizeof why->text - n);
        dpar_text_put(&t, "; ");
        dpar_text_put(&t, more);
    }
}

DPARI_INTERNAL dpar_status dpari_nccl_cuda_says(dpar_why *why, const char *doing, cudaError_t code)
{
    (void)cudaGetLastError(); /* clears the error, so that the next call does not report it */
    return dpari_say(code == cudaErrorMemoryAllocation ? (dpar_status)DPAR_E_MEMORY
                                                       : (dpar_status)DPAR_E_SYSTEM,
                     why, "%s failed: CUDA says: %s", doing, cudaGetErrorString(code));
}

DPARI_INTERNAL dpar_status dpari_nccl_refuse(dpari_nccl_ctx *context, dpar_status status,
                                             const char *what)
{
    return dpari_repeat(status, &context->comm.why, what);
}

/* Wakes the watchdog, which informs the other ranks. */
static void dpari_nccl_tell_broken(dpari_nccl_ctx *context)
{
    if (context->world->watched) {
        (void)!write(context->world->wake[1], "", 1);
    }
}

static void *dpari_nccl_abort_now(void *arg)
{
    dpari_nccl_ctx *context = (dpari_nccl_ctx *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaSetDevice(context->world->device);
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* freeing must not end another's capture */
    (void)context->world->api.CommAbort(context->ended);
    return NULL;
}

DPARI_INTERNAL void dpari_nccl_abort_comm(dpari_nccl_ctx *context)
{
    context->ended = context->nccl;
    context->nccl = NULL;
    context->ends = 1;
    if (dpari_os_thread(&context->ending, dpari_nccl_abort_now, context) != 0) {
        context->ends = 0;
        (void)context->world->api.CommAbort(context->ended);
    }
}

DPARI_INTERNAL void dpari_nccl_join_aborts(dpari_nccl_world *world, dpari_nccl_ctx *list)
{
    dpari_nccl_ctx *context = list;
    while (context != NULL) {
        if (context->ends != 1) {
            context = context->next;
            continue;
        }
        context->ends = 2;
        dpari_nccl_unlock(world);
        dpari_os_join(context->ending);
        dpari_nccl_lock(world);
        context = list;
    }
}

/* Ends the NCCL operations of the context, so that the streams continue. The NCCL communicator
 * itself is kept in two cases: if the context is elastic, for dpar_nccl_shrink, and if it lends
 * memory, because NCCL maps that memory and kernels may be reading it. */
static void dpari_nccl_stop(dpari_nccl_ctx *context)
{
    const dpari_nccl_api *api = &context->world->api;
    ncclComm_t nccl = context->nccl;
    if (nccl == NULL) {
        return;
    }
    dpari_nccl_free_waits(context->world);
    if (context->lends || (context->world->options.elastic && api->CommShrink != NULL)) {
        if (api->CommRevoke != NULL) {
            (void)api->CommRevoke(nccl, 0);
        }
        return;
    }
    dpari_nccl_abort_comm(context);
}

DPARI_INTERNAL dpar_status dpari_nccl_break(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text, int32_t tell)
{
    if (DPARI_LOAD(&context->comm.status) < 0) {
        return context->comm.status;
    }
    (void)dpari_repeat(status, &context->comm.why, text);
    DPARI_STORE(&context->comm.status, status);
    context->told = !tell;
    if (tell) {
        dpari_nccl_tell_broken(context);
    }
    dpari_nccl_stop(context);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_failed(dpari_nccl_ctx *context, const char *doing,
                                             ncclResult_t code)
{
    dpar_why why;
    if (DPARI_LOAD(&context->comm.status) < 0) {
        return context->comm.status;
    }
    if (code == ncclInProgress) {
        (void)dpari_say(DPAR_E_TIMEOUT, &why,
                        "%s: not enqueued before the deadline, because not all ranks connected",
                        doing);
        return dpari_nccl_break(context, DPAR_E_TIMEOUT, why.text, 1);
    }
    dpari_nccl_say(&context->world->api, &why, doing, code);
    if (code == ncclInvalidArgument) {
        return dpari_nccl_refuse(context, DPAR_E_ARG, why.text);
    }
    return dpari_nccl_break(
        context, code == ncclRemoteError ? (dpar_status)DPAR_E_PEER : (dpar_status)DPAR_E_SYSTEM,
        why.text, 1);
}

DPARI_INTERNAL dpar_status dpari_nccl_cuda_failed(dpari_nccl_ctx *context, const char *doing,
                                                  cudaError_t code)
{
    dpar_why why;
    (void)dpari_nccl_cuda_says(&why, doing, code);
    return dpari_nccl_break(context, DPAR_E_SYSTEM, why.text, 1);
}

DPARI_INTERNAL dpar_status dpari_nccl_broke(dpari_nccl_ctx *context, dpar_status status,
                                            const char *text)
{
    dpari_nccl_lock(context->world);
    status = dpari_nccl_break(context, status, text, 1);
    dpari_nccl_unlock(context->world);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_cuda_broke(dpari_nccl_ctx *context, const char *doing,
                                                 cudaError_t code)
{
    dpar_status status;
    dpari_nccl_lock(context->world);
    status = dpari_nccl_cuda_failed(context, doing, code);
    dpari_nccl_unlock(context->world);
    return status;
}

/* ==== nccl/settle.c ==== */

/* Polls NCCL. Communicators do not block, so that a call may return ncclInProgress; it is complete
 * when ncclCommGetAsyncError returns something else. A poll first only yields the core, and later
 * sleeps. */

DPARI_INTERNAL void dpari_nccl_nap(void)
{
    dpari_os_sleep(20e-6);
}

/* Called between two polls: first yields the core, and after 1000 polls sleeps. */
static void dpari_nccl_breathe(int32_t looks)
{
    if (looks < 1000) {
        (void)sched_yield();
    } else {
        dpari_nccl_nap();
    }
}

DPARI_INTERNAL ncclResult_t dpari_nccl_through(const dpari_nccl_api *api, ncclComm_t nccl,
                                               const dpar_status *broken, double timeout_s)
{
    dpari_stopwatch watch = {0, 0};
    int32_t looks = 0;
    for (;;) {
        ncclResult_t code = ncclSuccess;
        if (api->CommGetAsyncError(nccl, &code) != ncclSuccess) {
            return ncclInternalError;
        }
        if (code != ncclInProgress) {
            return code;
        }
        if (broken != NULL && DPARI_LOAD(broken) < 0) {
            return ncclInternalError;
        }
        if (timeout_s > 0 && dpari_os_waited(&watch) > timeout_s) {
            return ncclInProgress;
        }
        dpari_nccl_breathe(looks++);
    }
}

DPARI_INTERNAL int dpari_nccl_unnamed(dpari_nccl_ctx *context, ncclResult_t said)
{
    const double now = dpari_os_now();
    if (said != ncclRemoteError || context->world->side.links == 0) {
        return 0;
    }
    context->remote = context->remote > 0 ? context->remote : now;
    return now - context->remote < 1.5 * (double)(int)DPARI_NCCL_GRACE;
}

DPARI_INTERNAL ncclResult_t dpari_nccl_settle(dpari_nccl_ctx *context)
{
    dpari_nccl_world *world = context->world;
    const int watched = world->watched && world->entering != NULL; /* the watchdog then checks the
                                                                      deadline of the operation */
    dpari_stopwatch watch = {0, 0};
    int32_t looks = 0;
    for (;;) {
        ncclResult_t code = ncclSuccess;
        if (context->nccl == NULL || DPARI_LOAD(&context->comm.status) < 0 ||
            world->api.CommGetAsyncError(context->nccl, &code) != ncclSuccess) {
            return ncclInternalError;
        }
        if ((code != ncclInProgress && !dpari_nccl_unnamed(context, code)) ||
            (!watched && context->comm.timeout_s > 0 &&
             dpari_os_waited(&watch) > context->comm.timeout_s)) {
            return code;
        }
        dpari_nccl_unlock(world);
        dpari_nccl_breathe(looks++);
        dpari_nccl_lock(world);
    }
}

/* ==== nccl/operation.c ==== */

/* Enqueues operations between two events. The slots and their events are made once, with the world.
 * A slot is in the list of operations in progress until its `done` event was seen to be reached,
 * and is free again when, in addition, no work refers to it. The lock is held from dpari_nccl_begin
 * to dpari_nccl_end, so that operations of several communicators do not mix on the stream. */

DPARI_INTERNAL cudaError_t dpari_nccl_query(cudaEvent_t event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t code;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    code = cudaEventQuery(event);
    (void)(code == cudaErrorNotReady ? cudaGetLastError() : cudaSuccess);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    return code;
}

DPARI_INTERNAL int32_t dpari_nccl_capturing(const dpari_nccl_world *world)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(world->options.stream, &capture) == cudaSuccess &&
           capture != cudaStreamCaptureStatusNone;
}

static void dpari_nccl_record_ends(dpari_nccl_slot *slot, int32_t state)
{
    dpari_nccl_ctx *context = slot->ctx;
    if (context != NULL && slot->number + DPARI_RECORDS > context->records &&
        context->ring[slot->number % DPARI_RECORDS].state == DPAR_MORE) {
        context->ring[slot->number % DPARI_RECORDS].state = state;
    }
}

DPARI_INTERNAL void dpari_nccl_slot_free(dpari_nccl_world *world, dpari_nccl_slot *slot)
{
    if (slot->works == 0 && !slot->flying) {
        slot->next = world->spare;
        world->spare = slot;
    }
}

DPARI_INTERNAL void dpari_nccl_reap(dpari_nccl_world *world)
{
    while (world->flying != NULL) {
        dpari_nccl_slot *slot = world->flying;
        cudaError_t code = slot->capture ? cudaSuccess : dpari_nccl_query(slot->done);
        if (code == cudaErrorNotReady) {
            return;
        }
        if (code != cudaSuccess && slot->ctx != NULL) {
            (void)dpari_nccl_cuda_failed(slot->ctx, "an operation in progress", code);
        }
        dpari_nccl_record_ends(slot,
                               slot->ctx != NULL && slot->ctx->comm.status < 0 ? -1 : DPAR_OK);
        world->flying = slot->next;
        world->last = world->flying == NULL ? NULL : world->last;
        slot->flying = 0;
        dpari_nccl_slot_free(world, slot);
    }
}

/* Locked. Returns a free slot, or NULL with the error in *status. */
static dpari_nccl_slot *dpari_nccl_spare(dpari_nccl_ctx *context, dpar_status *status)
{
    dpari_nccl_world *world = context->world;
    dpari_nccl_slot *slot;
    for (;;) {
        *status = context->comm.status;
        if (*status < 0) {
            return NULL;
        }
        if (world->spare == NULL) {
            dpari_nccl_reap(world);
        }
        slot = world->spare;
        if (slot != NULL) {
            world->spare = slot->next;
            slot->next = NULL;
            return slot;
        }
        if (world->flying == NULL) {
            *status = dpari_say(DPAR_E_MEMORY, &context->comm.why,
                                "%d operations were posted and none of them waited for: wait for "
                                "some, or raise work_count of dpar_nccl_desc",
                                world->options.work_count);
            return NULL;
        }
        dpari_nccl_unlock(world);
        dpari_nccl_nap(); /* all are in progress, and the oldest ends first */
        dpari_nccl_lock(world);
    }
}

DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_begin(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpar_status *status)
{
    dpari_nccl_world *world = context->world;
    dpari_nccl_slot *slot;
    dpari_record *record;
    cudaError_t code;
    dpari_nccl_lock(world);
    slot = dpari_nccl_spare(context, status);
    if (slot == NULL) {
        dpari_nccl_unlock(world);
        return NULL;
    }
    slot->ctx = context;
    slot->call = *call;
    slot->messages = dpari_kind_sends(call->kind);
    slot->meets = 0;
    slot->sequence = slot->messages ? 0 : context->sequence++;
    slot->works = slot->flying = slot->told = 0;
    slot->since = -1;
    slot->number = context->records++;
    slot->capture = dpari_nccl_capturing(world);
    code = cudaEventRecord(slot->ready, world->options.stream);
    if (code == cudaSuccess) {
        code = cudaStreamWaitEvent(world->stream, slot->ready, 0);
    }
    if (code != cudaSuccess) {
        *status = dpari_nccl_cuda_failed(context, "waiting for the compute stream", code);
        dpari_nccl_slot_free(world, slot);
        dpari_nccl_unlock(world);
        return NULL;
    }
    record = &context->ring[slot->number % DPARI_RECORDS];
    *record = dpari_record_of(call, slot->sequence);
    record->state = DPAR_MORE;
    world->entering = slot;
    return slot;
}

DPARI_INTERNAL dpar_status dpari_nccl_end(dpari_nccl_slot *slot, int32_t works, dpar_status status)
{
    dpari_nccl_ctx *context = slot->ctx;
    dpari_nccl_world *world = context->world;
    cudaError_t code = cudaEventRecord(slot->done, world->stream);
    world->entering = NULL;
    if (code != cudaSuccess && status >= 0) {
        status = dpari_nccl_cuda_failed(context, "recording the event after an operation", code);
    }
    slot->works = status < 0 ? 0 : works;
    slot->flying = code == cudaSuccess;
    if (status < 0) {
        dpari_nccl_record_ends(slot, -1);
    }
    if (slot->flying) {
        if (world->last != NULL) {
            world->last->next = slot;
        } else {
            world->flying = slot;
        }
        world->last = slot;
    } else {
        dpari_nccl_slot_free(world, slot);
    }
    dpari_nccl_unlock(world);
    return status;
}

DPARI_INTERNAL void dpari_nccl_let_go(dpari_nccl_world *world, dpari_nccl_slot *slot)
{
    dpari_nccl_lock(world);
    slot->works--;
    dpari_nccl_slot_free(world, slot);
    dpari_nccl_unlock(world);
}

DPARI_INTERNAL dpar_status dpari_nccl_await(dpari_nccl_slot *slot)
{
    dpari_nccl_ctx *context = slot->ctx;
    const double limit = context->comm.timeout_s;
    dpari_stopwatch watch = {0, 0};
    int32_t polls = 0;
    for (;;) {
        cudaError_t code = dpari_nccl_query(slot->done);
        if (DPARI_LOAD(&context->comm.status) < 0) {
            return context->comm.status;
        }
        if (code == cudaSuccess) {
            return DPAR_OK;
        }
        if (code != cudaErrorNotReady) {
            return dpari_nccl_cuda_broke(context, "waiting for an operation", code);
        }
        polls++;
        if (polls < 200) {
            (void)sched_yield();
            continue;
        }
        dpari_nccl_nap();
        if (!context->world->watched && limit > 0 && dpari_os_waited(&watch) > limit) {
            return dpari_nccl_broke(
                context, DPAR_E_TIMEOUT,
                "an operation did not finish before the deadline (with no_watchdog the missing "
                "ranks are not known)");
        }
    }
}

/* ==== nccl/run.c ==== */

/* Calls NCCL for an operation and keeps the first error, so that the callers need not check each
 * call: after an error, all further calls do nothing. A call that NCCL has not completed yet is
 * polled (settle.c), except in a group, whose end is polled instead. */

DPARI_INTERNAL int dpari_nccl_well(const dpari_nccl_run *run)
{
    return run->code == ncclSuccess && run->cuda == cudaSuccess && run->status >= 0;
}

DPARI_INTERNAL void dpari_nccl_took(dpari_nccl_run *run, ncclResult_t code, int grouped)
{
    if (grouped && code == ncclInProgress) {
        return;
    }
    if (code == ncclInProgress || code == ncclRemoteError) {
        const ncclResult_t then = dpari_nccl_settle(run->c);
        code = code == ncclInProgress || then != ncclSuccess ? then : code;
    }
    if (run->code == ncclSuccess) {
        run->code = code;
    }
}

DPARI_INTERNAL void dpari_nccl_open(dpari_nccl_run *run)
{
    if (dpari_nccl_well(run)) {
        dpari_nccl_took(run, run->api->GroupStart(), 1);
        run->grouped = run->code == ncclSuccess;
    }
}

DPARI_INTERNAL void dpari_nccl_shut(dpari_nccl_run *run)
{
    if (run->grouped) { /* a group is closed also after an error in it */
        run->grouped = 0;
        dpari_nccl_took(run, run->api->GroupEnd(), 0);
    }
}

DPARI_INTERNAL void dpari_nccl_send_bytes(dpari_nccl_run *run, const void *from, int64_t bytes,
                                          int32_t to)
{
    if (bytes > 0 && dpari_nccl_well(run)) {
        dpari_nccl_took(
            run, run->api->Send(from, (size_t)bytes, ncclUint8, (int)to, run->c->nccl, run->stream),
            1);
    }
}

DPARI_INTERNAL void dpari_nccl_recv_bytes(dpari_nccl_run *run, void *to, int64_t bytes,
                                          int32_t from)
{
    if (bytes > 0 && dpari_nccl_well(run)) {
        dpari_nccl_took(
            run, run->api->Recv(to, (size_t)bytes, ncclUint8, (int)from, run->c->nccl, run->stream),
            1);
    }
}

DPARI_INTERNAL void dpari_nccl_copy(dpari_nccl_run *run, void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && to != from && dpari_nccl_well(run)) {
        run->cuda = cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, run->stream);
    }
}

DPARI_INTERNAL void dpari_nccl_run_init(dpari_nccl_run *run, dpari_nccl_ctx *context,
                                        const dpar_call *call)
{
    memset(run, 0, sizeof *run);
    run->c = context;
    run->api = &context->world->api;
    run->call = call;
    run->stream = context->world->stream;
    run->unit = dpar_type_bytes(call->type);
    run->code = ncclSuccess;
    run->cuda = cudaSuccess;
}

DPARI_INTERNAL dpar_status dpari_nccl_result(const dpari_nccl_run *run)
{
    char words[100];
    dpar_text t;
    if (dpari_nccl_well(run)) {
        return run->c->comm.status;
    }
    dpar_text_init(&t, words, sizeof words);
    dpari_operation_text(&t, run->call->kind, run->c->sequence - 1, run->call->type,
                         run->call->count, run->call->root, run->call->tag);
    if (run->code != ncclSuccess) {
        return dpari_nccl_failed(run->c, words, run->code);
    }
    if (run->cuda != cudaSuccess) {
        return dpari_nccl_cuda_failed(run->c, words, run->cuda);
    }
    return dpari_nccl_break(run->c, run->status,
                            "reduce_mem failed to add up a reduction in rank order", 1);
}

/* ==== nccl/collective.c ==== */

/* Enqueues collectives on device memory.
 *
 * NCCL's own collectives are used where they exist. What NCCL lacks is composed: forms with
 * different counts from a group of sends and receives, of broadcasts or of reductions; an
 * all-to-all in place from blocks that are received into scratch memory; and reductions in rank
 * order from an all-to-all of blocks, which reduce_mem adds, and broadcasts of the sums. Data that
 * is only moved is sent as bytes. */

static ncclDataType_t dpari_nccl_type(int32_t type)
{
    switch (type) {
    case DPAR_F64: return ncclFloat64;
    case DPAR_F32: return ncclFloat32;
    case DPAR_BF16: return (ncclDataType_t)9; /* ncclBfloat16, which only C++ has before 2.24 */
    case DPAR_F16: return ncclFloat16;
    case DPAR_I8: return ncclInt8;
    case DPAR_I32: return ncclInt32;
    case DPAR_U32: return ncclUint32;
    case DPAR_I64: return ncclInt64;
    case DPAR_U64: return ncclUint64;
    default: return ncclUint8;
    }
}

static ncclRedOp_t dpari_nccl_op(int32_t op)
{
    switch (op) {
    case DPAR_AVG: return ncclAvg;
    case DPAR_PRODUCT: return ncclProd;
    case DPAR_MAX: return ncclMax;
    case DPAR_MIN: return ncclMin;
    default: return ncclSum;
    }
}

DPARI_INTERNAL void dpari_nccl_pieces(dpari_nccl_ctx *context, const dpar_call *call)
{
    const int64_t unit = dpar_type_bytes(call->type);
    dpari_pair one;
    int32_t r;
    memset(&one, 0, sizeof one);
    for (r = 0; r < context->comm.size; r++) {
        dpari_nccl_piece *p = &context->piece[r];
        dpari_pair_next(&context->comm, call, r, &one);
        p->give = one.give > 0 ? one.give * unit : 0;
        p->take = one.take > 0 ? one.take * unit : 0;
        p->from = p->give > 0 ? (const char *)call->in + one.from * unit : NULL;
        p->to = p->take > 0 ? (char *)call->out + one.to * unit : NULL;
    }
}

/* Enqueues a group with a send to and a receive from each rank, and copies this rank's piece for
 * itself. */
static void dpari_nccl_exchange(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    const int32_t me = context->comm.rank;
    int32_t r;
    dpari_nccl_pieces(context, run->call);
    dpari_nccl_open(run);
    for (r = 0; r < context->comm.size; r++) {
        if (r != me) {
            dpari_nccl_send_bytes(run, context->piece[r].from, context->piece[r].give, r);
            dpari_nccl_recv_bytes(run, context->piece[r].to, context->piece[r].take, r);
        }
    }
    dpari_nccl_shut(run);
    dpari_nccl_copy(run, context->piece[me].to, context->piece[me].from, context->piece[me].give);
}

/* Returns the bytes of scratch memory for one rank's part of a block. */
static int64_t dpari_nccl_block(const dpari_nccl_ctx *context)
{
    const int64_t most = context->world->options.scratch_bytes / context->comm.size;
    return most / (8 * DPARI_NCCL_LIMIT) * (8 * DPARI_NCCL_LIMIT);
}

DPARI_INTERNAL int64_t dpari_nccl_rest(int64_t bytes, int64_t at, int64_t block)
{
    const int64_t rest = bytes - at;
    if (rest < 0) {
        return 0;
    }
    return rest < block ? rest : block;
}

/* True if this rank receives from each rank as much as it sends to it. Only then does in == out
 * mean an operation in place, because a rank that sends nothing may pass any `in`. */
static int dpari_nccl_swaps(dpari_nccl_ctx *context, const dpar_call *call)
{
    int32_t r;
    dpari_nccl_pieces(context, call);
    for (r = 0; r < context->comm.size && context->piece[r].give == context->piece[r].take; r++) {
    }
    return r == context->comm.size;
}

/* Runs an all_to_all in place: receives a block of each piece into scratch memory, and then copies
 * it over the block that was sent. */
static void dpari_nccl_exchange_in_place(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    char *scratch = context->world->scratch;
    const int64_t block = dpari_nccl_block(context);
    int64_t at, most = 0;
    int32_t r;
    dpari_nccl_pieces(context, run->call);
    for (r = 0; r < context->comm.size; r++) {
        most = r != context->comm.rank && context->piece[r].give > most ? context->piece[r].give
                                                                        : most;
    }
    for (at = 0; at < most && dpari_nccl_well(run); at += block) {
        dpari_nccl_open(run);
        for (r = 0; r < context->comm.size; r++) {
            const int64_t n =
                r == context->comm.rank ? 0 : dpari_nccl_rest(context->piece[r].give, at, block);
            dpari_nccl_send_bytes(run, context->piece[r].from + at, n, r);
            dpari_nccl_recv_bytes(run, scratch + r * block, n, r);
        }
        dpari_nccl_shut(run);
        for (r = 0; r < context->comm.size; r++) {
            const int64_t n =
                r == context->comm.rank ? 0 : dpari_nccl_rest(context->piece[r].give, at, block);
            dpari_nccl_copy(run, context->piece[r].to + at, scratch + r * block, n);
        }
    }
}

DPARI_INTERNAL int64_t dpari_nccl_part(const dpari_nccl_ctx *context, const dpar_call *call,
                                       int32_t r, int64_t *begin)
{
    const int64_t n = call->count / context->comm.size, more = call->count % context->comm.size;
    int32_t i;
    if (call->kind == DPAR_CALL_ALL_REDUCE) {
        *begin = n * r + (r < more ? r : more);
        return n + (r < more);
    }
    if (call->kind == DPAR_CALL_REDUCE) {
        *begin = 0;
        return r == call->root ? call->count : 0;
    }
    *begin = call->variable_counts ? 0 : call->count * r;
    for (i = 0; call->variable_counts && i < r; i++) {
        *begin += call->in_count[i];
    }
    return call->variable_counts ? call->in_count[r] : call->count;
}

static void dpari_nccl_add_block(dpari_nccl_run *run, void *to, const void *from, int64_t count,
                                 int64_t stride)
{
    const dpar_mem *adds = run->c->world->options.reduce_mem;
    dpar_mem_reduce sum;
    if (count == 0 || !dpari_nccl_well(run)) {
        return;
    }
    memset(&sum, 0, sizeof sum);
    sum.to = to;
    sum.from = from;
    sum.count = count;
    sum.parts = run->c->comm.size;
    sum.stride = stride;
    sum.to_type = sum.from_type = run->call->type;
    sum.sum_type = run->call->type == DPAR_F64 ? (int32_t)DPAR_F64 : (int32_t)DPAR_F32;
    sum.op = run->call->op;
    sum.scale = 1;
    run->status = adds->reduce(adds->ctx, &sum);
}

static void dpari_nccl_add(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    const int32_t n = context->comm.size, me = context->comm.rank;
    const char *in = (const char *)run->call->in;
    char *scratch = context->world->scratch, *out = (char *)run->call->out;
    const int64_t block = dpari_nccl_block(context);
    int64_t at, most = 0, own_begin,
                own = dpari_nccl_part(context, run->call, me, &own_begin) * run->unit;
    int32_t r;
    for (r = 0; r < n; r++) {
        int64_t begin, part = dpari_nccl_part(context, run->call, r, &begin) * run->unit;
        most = part > most ? part : most;
    }
    out += run->call->kind == DPAR_CALL_ALL_REDUCE ? own_begin * run->unit : 0;
    for (at = 0; at < most && dpari_nccl_well(run); at += block) {
        const int64_t mine = dpari_nccl_rest(own, at, block);
        dpari_nccl_open(run);
        for (r = 0; r < n; r++) {
            int64_t begin, part = dpari_nccl_part(context, run->call, r, &begin) * run->unit;
            if (r != me) {
                dpari_nccl_send_bytes(run, in + begin * run->unit + at,
                                      dpari_nccl_rest(part, at, block), r);
                dpari_nccl_recv_bytes(run, scratch + r * block, mine, r);
            }
        }
        dpari_nccl_shut(run);
        dpari_nccl_copy(run, scratch + me * block, in + own_begin * run->unit + at, mine);
        dpari_nccl_add_block(run, out + at, scratch, mine / run->unit, block / run->unit);
    }
}

/* Sends all parts of `out` to all ranks. */
static void dpari_nccl_share(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    char *out = (char *)run->call->out;
    int32_t r;
    dpari_nccl_open(run);
    for (r = 0; r < context->comm.size; r++) {
        int64_t begin, n = dpari_nccl_part(context, run->call, r, &begin);
        if (n > 0 && dpari_nccl_well(run)) {
            char *at = out + begin * run->unit;
            dpari_nccl_took(run,
                            run->api->Broadcast(at, at, (size_t)(n * run->unit), ncclUint8, (int)r,
                                                context->nccl, run->stream),
                            1);
        }
    }
    dpari_nccl_shut(run);
}

static void dpari_nccl_reduce_exactly(dpari_nccl_run *run)
{
    dpari_nccl_add(run);
    if (run->call->kind == DPAR_CALL_ALL_REDUCE && run->c->comm.size > 1 && dpari_nccl_well(run)) {
        dpari_nccl_share(run);
    }
}

/* NCCL has no all-gather or reduce-scatter with pieces of different sizes. A group of broadcasts,
 * or of reductions, replaces them. */
static void dpari_nccl_by_piece(dpari_nccl_run *run)
{
    dpari_nccl_ctx *context = run->c;
    const dpar_call *call = run->call;
    const int32_t me = context->comm.rank;
    int32_t r;
    dpari_nccl_pieces(context, call);
    dpari_nccl_open(run);
    for (r = 0; r < context->comm.size && dpari_nccl_well(run); r++) {
        const dpari_nccl_piece *p = &context->piece[r];
        ncclResult_t code = ncclSuccess;
        int64_t begin, n = 0;
        if (call->kind == DPAR_CALL_REDUCE_SCATTER) {
            n = dpari_nccl_part(context, call, r, &begin);
        }
        if (p->take > 0) {
            code = run->api->Broadcast(r == me ? call->in : p->to, p->to, (size_t)p->take,
                                       ncclUint8, (int)r, context->nccl, run->stream);
        } else if (n > 0) {
            code =
                run->api->Reduce((const char *)call->in + begin * run->unit,
                                 r == me ? call->out : NULL, (size_t)n, dpari_nccl_type(call->type),
                                 dpari_nccl_op(call->op), (int)r, context->nccl, run->stream);
        }
        dpari_nccl_took(run, code, 1);
    }
    dpari_nccl_shut(run);
}

static void dpari_nccl_reduce(dpari_nccl_run *run)
{
    const dpar_call *call = run->call;
    const dpari_nccl_api *api = run->api;
    const ncclDataType_t type = dpari_nccl_type(call->type);
    const ncclRedOp_t op = dpari_nccl_op(call->op);
    const size_t n = (size_t)call->count;
    ncclComm_t nccl = run->c->nccl;
    ncclResult_t code;
    if (call->kind == DPAR_CALL_ALL_REDUCE) {
        code = api->AllReduce(call->in, call->out, n, type, op, nccl, run->stream);
    } else if (call->kind == DPAR_CALL_REDUCE) {
        code = api->Reduce(call->in, call->out, n, type, op, (int)call->root, nccl, run->stream);
    } else {
        code = api->ReduceScatter(call->in, call->out, n, type, op, nccl, run->stream);
    }
    dpari_nccl_took(run, code, 0);
}

static void dpari_nccl_move(dpari_nccl_run *run)
{
    const dpar_call *call = run->call;
    const size_t n = (size_t)(call->count * run->unit);
    const int root = (int)call->root;
    ncclComm_t nccl = run->c->nccl;
    ncclResult_t code;
    switch (call->kind) {
    case DPAR_CALL_BROADCAST:
        code = run->api->Broadcast(call->in, call->out, n, ncclUint8, root, nccl, run->stream);
        break;
    case DPAR_CALL_ALL_GATHER:
        code = run->api->AllGather(call->in, call->out, n, ncclUint8, nccl, run->stream);
        break;
    case DPAR_CALL_GATHER:
        code = run->api->Gather(call->in, call->out, n, ncclUint8, root, nccl, run->stream);
        break;
    case DPAR_CALL_SCATTER:
        code = run->api->Scatter(call->in, call->out, n, ncclUint8, root, nccl, run->stream);
        break;
    default: code = run->api->AlltoAll(call->in, call->out, n, ncclUint8, nccl, run->stream); break;
    }
    dpari_nccl_took(run, code, 0);
}

static void dpari_nccl_enqueue(dpari_nccl_run *run)
{
    const dpar_call *call = run->call;
    const int32_t kind = call->kind, reduces = dpari_kind_reduces(kind);
    const int pairs =
        kind == DPAR_CALL_ALL_TO_ALL || kind == DPAR_CALL_GATHER || kind == DPAR_CALL_SCATTER;
    if (kind == DPAR_CALL_BARRIER) {
        char *word = run->c->world->scratch + run->c->world->options.scratch_bytes;
        dpari_nccl_took(
            run, run->api->AllReduce(word, word, 1, ncclInt32, ncclSum, run->c->nccl, run->stream),
            0);
    } else if (!call->variable_counts && call->count == 0) {
        return;
    } else if (reduces && run->c->world->options.rank_order && dpari_is_float(call->type)) {
        dpari_nccl_reduce_exactly(run);
    } else if (kind == DPAR_CALL_ALL_TO_ALL && call->in == call->out &&
               dpari_nccl_swaps(run->c, call)) {
        dpari_nccl_exchange_in_place(run);
    } else if (pairs && (call->variable_counts || run->api->AlltoAll == NULL)) {
        dpari_nccl_exchange(run);
    } else if (call->variable_counts) {
        dpari_nccl_by_piece(run);
    } else if (reduces) {
        dpari_nccl_reduce(run);
    } else {
        dpari_nccl_move(run);
    }
}

DPARI_INTERNAL dpar_status dpari_nccl_collective(dpari_nccl_ctx *context, const dpar_call *call,
                                                 dpari_nccl_slot **slot)
{
    dpari_nccl_run x;
    dpar_status status = DPAR_OK;
    dpari_nccl_slot *s = dpari_nccl_begin(context, call, &status);
    if (s == NULL) {
        return status;
    }
    dpari_nccl_run_init(&x, context, call);
    dpari_nccl_enqueue(&x);
    *slot = s;
    return dpari_nccl_end(s, 1, dpari_nccl_result(&x));
}

/* ==== nccl/host_memory.c ==== */

/* Runs collectives on host memory. Every operation is an all-to-all of pieces (dpari_nccl_pieces),
 * in rounds whose chunks fit into page-locked memory: the first half of it is sent, the second half
 * is received, and the host copies between it and the user's memory. Reductions receive the inputs
 * of all ranks and add them by the loops of the shared-memory engine (../host/kernel.h). */

/* Returns where memory is. Memory that the device reaches (its own, page-locked or managed) counts
 * as device memory. */
static int32_t dpari_nccl_where(const void *at)
{
    struct cudaPointerAttributes a;
    if (at == NULL) {
        return DPARI_NCCL_NOWHERE;
    }
    if (cudaPointerGetAttributes(&a, at) != cudaSuccess) {
        (void)cudaGetLastError();
        return DPARI_NCCL_HOST;
    }
    return a.type == cudaMemoryTypeUnregistered ? DPARI_NCCL_HOST : DPARI_NCCL_DEVICE;
}

DPARI_INTERNAL int32_t dpari_nccl_place(dpari_nccl_ctx *context, const dpar_call *call)
{
    int32_t in = dpari_call_has_in(&context->comm, call) ? dpari_nccl_where(call->in)
                                                         : (int32_t)DPARI_NCCL_NOWHERE;
    int32_t out = dpari_call_has_out(&context->comm, call) ? dpari_nccl_where(call->out)
                                                           : (int32_t)DPARI_NCCL_NOWHERE;
    if (in != DPARI_NCCL_NOWHERE && out != DPARI_NCCL_NOWHERE && in != out) {
        return dpari_wrong(&context->comm.why,
                           "%s: in and out must be both host memory or both device memory",
                           dpar_call_name(call->kind));
    }
    if (in != DPARI_NCCL_NOWHERE) {
        return in;
    }
    return out != DPARI_NCCL_NOWHERE ? out : (int32_t)DPARI_NCCL_DEVICE;
}

/* Exchanges up to `chunk` bytes of each piece, from byte `at` on, and waits for the exchange. The
 * first half of the staging memory holds what is sent, and the second half what is received. */
static dpar_status dpari_nccl_host_round(dpari_nccl_ctx *context, const dpar_call *call, int64_t at,
                                         int64_t chunk)
{
    dpari_nccl_run x;
    dpar_status status = DPAR_OK;
    dpari_nccl_slot *slot = dpari_nccl_begin(context, call, &status);
    const int32_t n = context->comm.size, me = context->comm.rank;
    char *out = context->world->staging, *in = context->world->staging + chunk * n;
    int32_t r;
    if (slot == NULL) {
        return status;
    }
    if (at > 0) {
        slot->sequence = --context->sequence - 1; /* several rounds are one operation */
        context->ring[slot->number % DPARI_RECORDS].sequence = slot->sequence;
    }
    dpari_nccl_run_init(&x, context, call);
    dpari_nccl_open(&x);
    for (r = 0; r < n; r++) {
        const dpari_nccl_piece *p = &context->piece[r];
        const int64_t give = dpari_nccl_rest(p->give, at, chunk);
        const int64_t take = dpari_nccl_rest(p->take, at, chunk);
        if (give > 0) {
            memcpy((r == me ? in : out) + r * chunk, p->from + at, (size_t)give);
        }
        if (r != me) {
            dpari_nccl_send_bytes(&x, out + r * chunk, give, r);
            dpari_nccl_recv_bytes(&x, in + r * chunk, take, r);
        }
    }
    dpari_nccl_shut(&x);
    status = dpari_nccl_end(slot, 1, dpari_nccl_result(&x));
    if (status < 0) {
        return status;
    }
    status = dpari_nccl_await(slot);
    dpari_nccl_let_go(context->world, slot);
    return status;
}

static int64_t dpari_nccl_chunk(const dpari_nccl_ctx *context)
{
    return context->world->options.staging_bytes / (2 * context->comm.size) / 64 * 64;
}

/* Returns the length of this rank's longest piece, in bytes. */
static int64_t dpari_nccl_longest(const dpari_nccl_ctx *context)
{
    int64_t most = 0;
    int32_t r;
    for (r = 0; r < context->comm.size; r++) {
        most = context->piece[r].give > most ? context->piece[r].give : most;
        most = context->piece[r].take > most ? context->piece[r].take : most;
    }
    return most;
}

DPARI_INTERNAL dpar_status dpari_nccl_host_move(dpari_nccl_ctx *context, const dpar_call *call)
{
    const int64_t chunk = dpari_nccl_chunk(context), most = dpari_nccl_longest(context);
    dpar_status status = DPAR_OK;
    int64_t at;
    int32_t r;
    for (at = 0; (at == 0 || at < most) && status >= 0; at += chunk) {
        status = dpari_nccl_host_round(context, call, at, chunk);
        for (r = 0; r < context->comm.size && status >= 0; r++) {
            const dpari_nccl_piece *p = &context->piece[r];
            const int64_t n = dpari_nccl_rest(p->take, at, chunk);
            if (n > 0) {
                memcpy(p->to + at, context->world->staging + (context->comm.size + r) * chunk,
                       (size_t)n);
            }
        }
    }
    return status;
}

/* Receives all ranks' versions of this rank's part, and adds them in rank order into `to`. */
static dpar_status dpari_nccl_host_add(dpari_nccl_ctx *context, const dpar_call *call, char *to)
{
    const int64_t chunk = dpari_nccl_chunk(context), most = dpari_nccl_longest(context);
    const int32_t unit = dpar_type_bytes(call->type);
    dpar_status status = DPAR_OK;
    int64_t at;
    int32_t r;
    for (at = 0; (at == 0 || at < most) && status >= 0; at += chunk) {
        const int64_t n = dpari_nccl_rest(context->piece[context->comm.rank].take, at, chunk);
        void *out = n > 0 ? to + at : NULL;
        status = dpari_nccl_host_round(context, call, at, chunk);
        for (r = 0; r < context->comm.size; r++) {
            context->parts[r] = context->world->staging + (context->comm.size + r) * chunk;
        }
        if (status >= 0 && n > 0) {
            dpari_kern_reduce(&out, 1, context->parts, context->comm.size, n / unit, call->type,
                              call->op, 0);
        }
    }
    return status;
}

/* Reduces host memory, with the same bits as the engine for shared memory. A short all-reduce sends
 * the whole input to all ranks. A longer one sends each part to the rank that adds it, and the sums
 * from there to all. */
static dpar_status dpari_nccl_host_reduce(dpari_nccl_ctx *context, const dpar_call *call)
{
    const int64_t unit = dpar_type_bytes(call->type);
    const int32_t n = context->comm.size, me = context->comm.rank;
    const int whole =
        call->kind == DPAR_CALL_ALL_REDUCE && call->count * unit <= dpari_nccl_chunk(context);
    int64_t own_begin = 0, own = dpari_nccl_part(context, call, me, &own_begin);
    char *out = NULL; /* where this rank's part of the result is stored */
    dpar_status status;
    int32_t r;
    own = whole ? call->count : own;
    own_begin = whole ? 0 : own_begin;
    for (r = 0; r < n; r++) {
        int64_t begin = 0, part = dpari_nccl_part(context, call, r, &begin);
        dpari_nccl_piece *p = &context->piece[r];
        begin = whole ? 0 : begin;
        p->give = (whole ? call->count : part) * unit;
        p->from = p->give > 0 ? (const char *)call->in + begin * unit : NULL;
        p->take = own * unit;
        p->to = NULL;
    }
    if (own > 0) {
        out = (char *)call->out;
        if (call->kind == DPAR_CALL_ALL_REDUCE) {
            out += own_begin * unit;
        }
    }
    status = dpari_nccl_host_add(context, call, out);
    if (status < 0 || call->kind != DPAR_CALL_ALL_REDUCE || whole) {
        return status;
    }
    for (r = 0; r < n; r++) {
        int64_t begin = 0, part = dpari_nccl_part(context, call, r, &begin);
        dpari_nccl_piece *p = &context->piece[r];
        p->give = own * unit;
        p->from = (const char *)call->out + own_begin * unit;
        p->take = part * unit;
        p->to = (char *)call->out + begin * unit;
    }
    context->sequence--; /* both steps are one operation */
    return dpari_nccl_host_move(context, call);
}

DPARI_INTERNAL dpar_status dpari_nccl_host(dpari_nccl_ctx *context, const dpar_call *call)
{
    if (dpari_kind_reduces(call->kind)) {
        return dpari_nccl_host_reduce(context, call);
    }
    dpari_nccl_pieces(context, call);
    return dpari_nccl_host_move(context, call);
}

/* ==== nccl/messages.c ==== */

/* Enqueues messages. Those that were posted since the last group are sorted by tag and enqueued as
 * one group of NCCL, as one operation with one slot. Messages of a rank to itself are copied, the
 * i-th send to the i-th receive. Messages on host memory go through page-locked memory, which is a
 * part of `letters` or, if that is full, allocated. */

/* Returns page-locked memory for a message: a part of `letters`, or newly allocated memory. NULL if
 * there is none. */
static char *dpari_nccl_letter(dpari_nccl_world *world, int64_t bytes)
{
    void *memory = NULL;
    int64_t begin = 0;
    int32_t i;
    bytes = (bytes + 63) / 64 * 64;
    for (i = 0; i < world->used_count && world->used[i].begin - begin < bytes; i++) {
        begin = world->used[i].begin + world->used[i].bytes;
    }
    if (begin + bytes <= world->options.staging_bytes &&
        world->used_count < world->options.work_count) {
        memmove(&world->used[i + 1], &world->used[i],
                (size_t)(world->used_count - i) * sizeof world->used[0]);
        world->used[i].begin = begin;
        world->used[i].bytes = bytes;
        world->used_count++;
        return world->letters + begin;
    }
    if (cudaHostAlloc(&memory, (size_t)bytes, cudaHostAllocPortable | cudaHostAllocMapped) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return (char *)memory;
}

static void dpari_nccl_letter_free(dpari_nccl_world *world, char *letter)
{
    const uintptr_t at = (uintptr_t)letter - (uintptr_t)world->letters;
    int32_t i;
    if (letter == NULL) {
        return;
    }
    if (at >= (uintptr_t)world->options.staging_bytes) {
        (void)cudaFreeHost(letter);
        return;
    }
    for (i = 0; i < world->used_count && world->used[i].begin != (int64_t)at; i++) {
    }
    if (i < world->used_count) {
        world->used_count--;
        memmove(&world->used[i], &world->used[i + 1],
                (size_t)(world->used_count - i) * sizeof world->used[0]);
    }
}

DPARI_INTERNAL void dpari_nccl_finish(dpar_work *work, dpar_status status)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    char *letter = dpari_nccl_letter_of(work);
    if (letter != NULL && status >= 0 && work->call.kind == DPAR_CALL_RECV) {
        memcpy(work->call.out, letter, (size_t)dpari_nccl_bytes(work->call.type, work->call.count));
    }
    dpari_nccl_letter_free(context->world, letter);
    dpari_nccl_set_letter(work, NULL);
    if (dpari_nccl_slot_of(work) != NULL) {
        dpari_nccl_let_go(context->world, dpari_nccl_slot_of(work));
        dpari_nccl_keep(work, NULL);
    }
    work->status = status;
    work->phase = DPARI_NCCL_FINISHED;
    work->comm = NULL;
}

DPARI_INTERNAL dpar_status dpari_nccl_can(dpari_nccl_ctx *context, const dpar_call *call,
                                          int32_t place)
{
    if (place == DPARI_NCCL_HOST && dpari_nccl_capturing(context->world)) {
        return dpari_wrong(&context->comm.why,
                           "%s on host memory blocks, and therefore cannot be captured in a graph",
                           dpar_call_name(call->kind));
    }
    if (place == DPARI_NCCL_DEVICE && dpari_kind_reduces(call->kind) && call->op == DPAR_AVG &&
        !dpari_is_float(call->type)) {
        return dpari_wrong(&context->comm.why,
                           "%s: NCCL has no average of integers that rounds towards zero: use "
                           "DPAR_SUM and divide",
                           dpar_call_name(call->kind));
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_pend(dpari_nccl_ctx *context, const dpar_call *call,
                                           dpar_work *work)
{
    const int32_t place = dpari_nccl_place(context, call);
    const int64_t bytes = dpari_nccl_bytes(call->type, call->count);
    const dpar_status can = place < 0 ? (dpar_status)place : dpari_nccl_can(context, call, place);
    char *letter = NULL;
    if (can < 0) {
        return can;
    }
    if (place == DPARI_NCCL_HOST && bytes > 0) {
        letter = dpari_nccl_letter(context->world, bytes);
        if (letter == NULL) {
            return dpari_say(DPAR_E_MEMORY, &context->comm.why,
                             "%s: no page-locked memory for a message of %ld bytes",
                             dpar_call_name(call->kind), bytes);
        }
        if (call->kind == DPAR_CALL_SEND) {
            memcpy(letter, call->in, (size_t)bytes);
        }
    }
    work->comm = &context->comm;
    work->call = *call;
    work->status = DPAR_MORE;
    work->phase = DPARI_NCCL_PENDING;
    work->next = NULL;
    dpari_nccl_keep(work, NULL);
    dpari_nccl_set_letter(work, letter);
    if (context->newest != NULL) {
        context->newest->next = work;
    } else {
        context->pending = work;
    }
    context->newest = work;
    return DPAR_OK;
}

/* Sorts a list of messages by tag, by merging, which keeps messages with the same tag as they were
 * posted. Both ranks of a pair therefore have the same order, whatever the order in which they name
 * their neighbours. */
static dpar_work *dpari_nccl_sorted(dpar_work *list)
{
    dpar_work *part[2], *out = NULL, **end = &out;
    int32_t k = 0;
    if (list == NULL || list->next == NULL) {
        return list;
    }
    {
        dpar_work *slow = list, *fast = list->next;
        while (fast != NULL && fast->next != NULL) {
            slow = slow->next;
            fast = fast->next->next;
        }
        part[1] = slow->next;
        slow->next = NULL;
        part[0] = list;
    }
    part[0] = dpari_nccl_sorted(part[0]);
    part[1] = dpari_nccl_sorted(part[1]);
    while (part[0] != NULL && part[1] != NULL) {
        k = part[1]->call.tag < part[0]->call.tag;
        *end = part[k];
        end = &part[k]->next;
        part[k] = part[k]->next;
    }
    *end = part[0] != NULL ? part[0] : part[1];
    return out;
}

/* Returns the first message of this kind, from `list` on, that a rank `me` sends to itself or
 * receives from itself. NULL if there is none. */
static dpar_work *dpari_nccl_with_self(dpar_work *list, int32_t kind, int32_t me)
{
    while (list != NULL && (list->call.kind != kind || list->call.root != me)) {
        list = list->next;
    }
    return list;
}

/* Copies the messages of this rank to itself: the i-th send of the sorted list to the i-th
 * receive. */
static void dpari_nccl_to_self(dpari_nccl_run *run, dpar_work *list)
{
    const int32_t me = run->c->comm.rank;
    dpar_work *give = dpari_nccl_with_self(list, DPAR_CALL_SEND, me);
    dpar_work *take = dpari_nccl_with_self(list, DPAR_CALL_RECV, me);
    while (give != NULL && take != NULL) {
        const char *letter = dpari_nccl_letter_of(give);
        char *box = dpari_nccl_letter_of(take);
        const void *from = letter != NULL ? (const void *)letter : give->call.in;
        void *to = box != NULL ? (void *)box : take->call.out;
        dpari_nccl_copy(run, to, from, dpari_nccl_bytes(give->call.type, give->call.count));
        give = dpari_nccl_with_self(give->next, DPAR_CALL_SEND, me);
        take = dpari_nccl_with_self(take->next, DPAR_CALL_RECV, me);
    }
}

/* Removes the messages that can be enqueued from the pending ones, and returns them. Messages of
 * this rank to itself are enqueued only in pairs; those whose other side is not posted yet stay in
 * *rest. */
static dpar_work *dpari_nccl_take_ready(dpari_nccl_ctx *context, dpar_work **rest)
{
    dpar_work *work, *next, *out = NULL, **end = &out, **left = rest;
    int32_t sends = 0, recvs = 0, meet;
    for (work = context->pending; work != NULL; work = work->next) {
        if (work->call.root == context->comm.rank) {
            sends += work->call.kind == DPAR_CALL_SEND;
            recvs += work->call.kind == DPAR_CALL_RECV;
        }
    }
    meet = sends < recvs ? sends : recvs;
    sends = recvs = 0;
    *rest = NULL;
    for (work = context->pending; work != NULL; work = next) {
        int32_t *seen = work->call.kind == DPAR_CALL_SEND ? &sends : &recvs;
        next = work->next;
        work->next = NULL;
        if (work->call.root == context->comm.rank && ++*seen > meet) {
            *left = work;
            left = &work->next;
            context->newest = work;
        } else {
            *end = work;
            end = &work->next;
        }
    }
    return out;
}

/* Checks that the sends of this rank to itself match its receives. */
static dpar_status dpari_nccl_self_fits(dpari_nccl_ctx *context, dpar_work *list)
{
    const int32_t me = context->comm.rank;
    dpar_work *give = dpari_nccl_with_self(list, DPAR_CALL_SEND, me);
    dpar_work *take = dpari_nccl_with_self(list, DPAR_CALL_RECV, me);
    while (give != NULL && take != NULL) {
        if (give->call.count != take->call.count || give->call.type != take->call.type ||
            give->call.tag != take->call.tag) {
            return dpari_nccl_broke(context, DPAR_E_MISMATCH,
                                    "a send of this rank to itself and its receive differ in "
                                    "count, type or tag");
        }
        give = dpari_nccl_with_self(give->next, DPAR_CALL_SEND, me);
        take = dpari_nccl_with_self(take->next, DPAR_CALL_RECV, me);
    }
    return DPAR_OK;
}

/* Enqueues a list of messages as one group, and then ends the operation of their slot. */
static dpar_status dpari_nccl_enqueue_group(dpari_nccl_ctx *context, dpari_nccl_slot *slot,
                                            dpar_work *list)
{
    dpari_nccl_run x;
    dpar_work *work;
    int32_t n = 0;
    dpari_nccl_run_init(&x, context, &slot->call);
    dpari_nccl_open(&x);
    for (work = list; work != NULL; work = work->next) {
        const dpar_call *call = &work->call;
        const int64_t bytes = dpari_nccl_bytes(call->type, call->count);
        char *letter = dpari_nccl_letter_of(work);
        if (call->root != context->comm.rank && call->kind == DPAR_CALL_SEND) {
            dpari_nccl_send_bytes(&x, letter != NULL ? letter : call->in, bytes, call->root);
        } else if (call->root != context->comm.rank) {
            dpari_nccl_recv_bytes(&x, letter != NULL ? letter : call->out, bytes, call->root);
        }
        n++;
    }
    dpari_nccl_shut(&x);
    dpari_nccl_to_self(&x, list);
    return dpari_nccl_end(slot, n, dpari_nccl_result(&x));
}

DPARI_INTERNAL dpar_status dpari_nccl_flush_one(dpari_nccl_ctx *context)
{
    dpar_work *list, *work, *rest = NULL;
    dpari_nccl_slot *slot;
    dpar_status status;
    if (context->pending == NULL) {
        return DPAR_OK;
    }
    context->newest = NULL;
    list = dpari_nccl_sorted(dpari_nccl_take_ready(context, &rest));
    context->pending = rest;
    if (list == NULL) {
        return DPAR_OK;
    }
    status = dpari_nccl_self_fits(context, list);
    slot = status >= 0 ? dpari_nccl_begin(context, &list->call, &status) : NULL;
    if (slot != NULL) {
        status = dpari_nccl_enqueue_group(context, slot, list);
    }
    while (list != NULL) {
        work = list;
        list = work->next;
        work->next = NULL;
        work->phase = DPARI_NCCL_ENQUEUED;
        if (status >= 0) {
            dpari_nccl_keep(work, slot);
        } else {
            dpari_nccl_finish(work, status);
        }
    }
    return status;
}

DPARI_INTERNAL void dpari_nccl_flush(dpari_nccl_world *world)
{
    dpari_nccl_ctx *context;
    for (context = world->comms; context != NULL; context = context->next) {
        if (context->pending != NULL) {
            (void)dpari_nccl_flush_one(context);
        }
    }
}

/* ==== nccl/calls.c ==== */

/* Posts, tests and waits. A collective is enqueued when it is posted; a message only joins the list
 * of pending ones, which is enqueued as a group at the next collective, batch, test or wait.
 * Waiting makes the compute stream wait for the operation's event; only barriers and messages on
 * host memory make the thread wait. */

/* True if dpar_wait has to block, because this thread needs the result: of a barrier, or of a
 * message on host memory. */
static int dpari_nccl_blocks(const dpar_work *work)
{
    return dpari_nccl_letter_of(work) != NULL || work->call.kind == DPAR_CALL_BARRIER;
}

/* Enqueues a work that is still pending. Returns the status of the work if it has ended, otherwise
 * that of the communicator. */
static dpar_status dpari_nccl_enqueued(dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    if (work->phase == DPARI_NCCL_PENDING) {
        dpari_nccl_flush(context->world);
    }
    if (work->comm == NULL) {
        return work->status;
    }
    return DPARI_LOAD(&context->comm.status);
}

/* Removes from the list of pending messages one that failed before it was enqueued. */
static void dpari_nccl_drop(dpari_nccl_ctx *context, dpar_work *work)
{
    dpar_work **at = &context->pending, *before = NULL;
    while (*at != NULL && *at != work) {
        before = *at;
        at = &(*at)->next;
    }
    if (*at == work) {
        *at = work->next;
        context->newest = context->newest == work ? before : context->newest;
    }
}

static dpar_status dpari_nccl_lone(dpari_nccl_ctx *context)
{
    return dpari_nccl_refuse(context, DPAR_E_ARG,
                             "a message to this rank itself would wait for ever, because its other "
                             "side is not posted");
}

DPARI_INTERNAL dpar_status dpari_nccl_test(dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    dpari_nccl_slot *slot;
    cudaError_t code;
    dpar_status status = dpari_nccl_enqueued(work);
    if (work->comm == NULL) {
        return status;
    }
    if (status < 0) {
        dpari_nccl_drop(context, work);
        dpari_nccl_finish(work, status);
        return status;
    }
    if (work->phase == DPARI_NCCL_PENDING) {
        return DPAR_MORE;
    }
    slot = dpari_nccl_slot_of(work);
    if (slot->capture) {
        return dpari_nccl_refuse(context, DPAR_E_ARG,
                                 "dpar_test: work that is being captured in a graph cannot be "
                                 "tested: call dpar_wait in the same capture");
    }
    code = dpari_nccl_query(slot->done);
    if (code == cudaErrorNotReady) {
        return DPAR_MORE;
    }
    status = code == cudaSuccess ? (dpar_status)DPAR_OK
                                 : dpari_nccl_cuda_broke(context, "testing an operation", code);
    dpari_nccl_finish(work, status);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_wait(dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(work->comm);
    dpar_status status = dpari_nccl_enqueued(work);
    dpari_nccl_slot *slot;
    if (work->comm == NULL) {
        return status;
    }
    if (status >= 0 && work->phase == DPARI_NCCL_PENDING) {
        status = dpari_nccl_lone(context);
    }
    if (status < 0) {
        dpari_nccl_drop(context, work);
        dpari_nccl_finish(work, status);
        return status;
    }
    slot = dpari_nccl_slot_of(work);
    if (dpari_nccl_blocks(work) && !slot->capture) {
        status = dpari_nccl_await(slot);
    } else {
        cudaError_t code = cudaStreamWaitEvent(context->world->options.stream, slot->done, 0);
        if (code != cudaSuccess) {
            status = dpari_nccl_cuda_broke(context, "waiting for an operation", code);
        }
    }
    dpari_nccl_finish(work, status);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_post(dpar_comm *comm, const dpar_call *call, dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_slot *slot = NULL;
    dpar_status status;
    int32_t place;
    if (dpari_kind_sends(call->kind)) {
        return dpari_nccl_pend(context, call, work);
    }
    place = dpari_nccl_place(context, call);
    status = place < 0 ? (dpar_status)place : dpari_nccl_can(context, call, place);
    if (status < 0) {
        return status;
    }
    dpari_nccl_flush(context->world);
    if (place == DPARI_NCCL_HOST) {
        status = dpari_nccl_host(context, call);
        work->status = status;
        work->phase = DPARI_NCCL_FINISHED;
        return status;
    }
    status = dpari_nccl_collective(context, call, &slot);
    if (status < 0) {
        return status;
    }
    work->comm = comm;
    work->call = *call;
    work->status = DPAR_MORE;
    work->phase = DPARI_NCCL_ENQUEUED;
    work->sequence = slot->sequence;
    dpari_nccl_keep(work, slot);
    dpari_nccl_set_letter(work, NULL);
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_run_call(dpar_comm *comm, const dpar_call *call)
{
    dpar_work work;
    dpar_status status;
    memset(&work, 0, sizeof work);
    status = dpari_nccl_post(comm, call, &work);
    return status < 0 || work.comm == NULL ? status : dpari_nccl_wait(&work);
}

DPARI_INTERNAL dpar_status dpari_nccl_batch(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                            dpar_work *works)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpar_status status = DPAR_OK;
    int32_t i, posted = 0;
    if (works == NULL) {
        return dpari_batch_now(comm, calls, n);
    }
    dpari_nccl_flush(context->world);
    for (i = 0; i < n && status >= 0; i++) {
        status = dpari_nccl_pend(context, &calls[i], &works[i]);
        posted += status >= 0;
    }
    if (status >= 0) {
        return dpari_nccl_flush_one(context);
    }
    for (i = 0; i < posted; i++) { /* no call of the batch is enqueued */
        dpari_nccl_drop(context, &works[i]);
        dpari_nccl_finish(&works[i], status);
    }
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_progress(dpar_comm *comm, int32_t on)
{
    (void)comm;
    (void)on;
    return DPAR_OK; /* the device advances without calls of the host */
}

DPARI_INTERNAL void dpari_nccl_abort(dpar_comm *comm, dpar_status status, const char *text)
{
    (void)dpari_nccl_broke(dpari_nccl_ctx_of(comm), status, text);
}

/* ==== nccl/memory.c ==== */

/* Keeps a list of the device memory that was allocated or registered. An allocation is cleared, and
 * aligned to 4096 bytes, so that it can become a window of NCCL. Releasing it first waits for both
 * streams and for threads that abort communicators, because these deregister memory as well. */

DPARI_INTERNAL dpari_nccl_memory *dpari_nccl_note_memory(dpari_nccl_ctx *context, void *at)
{
    dpari_nccl_memory *memory = (dpari_nccl_memory *)calloc(1, sizeof *memory);
    if (memory != NULL) {
        memory->memory = memory->base = at;
        memory->next = context->world->memory;
        context->world->memory = memory;
    }
    return memory;
}

DPARI_INTERNAL dpar_status dpari_nccl_alloc(dpar_comm *comm, int64_t bytes, void **memory)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    const dpari_nccl_api *api = &context->world->api;
    const size_t whole = ((size_t)bytes + 4095) / 4096 * 4096 + (bytes == 0 ? 4096 : 0);
    dpari_nccl_memory *m;
    void *at = NULL;
    cudaError_t code = cudaErrorMemoryAllocation;
    int32_t by_nccl = 0;
    int device = 0;
    if (bytes > INT64_MAX - 8192) {
        return dpari_say(DPAR_E_MEMORY, &comm->why,
                         "dpar_comm_alloc: %ld bytes are more than a device can have", bytes);
    }
    if (cudaGetDevice(&device) == cudaSuccess && device != context->world->device) {
        return dpari_wrong(&comm->why,
                           "dpar_comm_alloc: the communicator uses device %d, but device %d is "
                           "current in this thread: call cudaSetDevice",
                           context->world->device, (int32_t)device);
    }
    if (api->MemAlloc != NULL && api->MemAlloc(&at, whole) == ncclSuccess) {
        code = cudaSuccess;
        by_nccl = 1;
    } else {
        (void)cudaGetLastError();
        code = cudaMalloc(&at, whole + 4096);
    }
    if (code != cudaSuccess) {
        (void)dpari_nccl_cuda_says(&comm->why, "allocating device memory", code);
        return DPAR_E_MEMORY;
    }
    dpari_nccl_lock(context->world); /* the watchdog searches the list for lent memory */
    m = dpari_nccl_note_memory(context, at);
    dpari_nccl_unlock(context->world);
    if (m == NULL) {
        if (by_nccl) {
            (void)api->MemFree(at);
        } else {
            (void)cudaFree(at);
        }
        return dpari_say(DPAR_E_MEMORY, &comm->why,
                         "dpar_comm_alloc: no host memory to record the allocation (%ld bytes)",
                         (int64_t)sizeof *m);
    }
    m->owned = 1;
    m->bytes = whole;
    m->mem_alloc = by_nccl;
    m->memory = by_nccl ? at : (void *)((char *)at + (4096 - ((uintptr_t)at & 4095)) % 4096);
    code = cudaMemsetAsync(m->memory, 0, whole, context->world->stream);
    if (code == cudaSuccess) {
        code = cudaStreamSynchronize(context->world->stream);
    }
    if (code != cudaSuccess) {
        return dpari_nccl_cuda_broke(context, "clearing device memory", code);
    }
    *memory = m->memory;
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_nccl_memory_end(dpari_nccl_world *world, dpari_nccl_memory *memory)
{
    if (memory->ctx != NULL && memory->ctx->nccl != NULL) {
        if (memory->window != NULL) {
            (void)world->api.CommWindowDeregister(memory->ctx->nccl, memory->window);
        } else if (memory->handle != NULL) {
            (void)world->api.CommDeregister(memory->ctx->nccl, memory->handle);
        }
    }
    memory->ctx = NULL;
    if (memory->near != NULL) {
        (void)cudaStreamSynchronize(world->freeing); /* waits for the copies that set flags of
                                                        broken communicators */
    }
    free((void *)memory->near);
    memory->near = NULL;
    if (memory->owned && memory->mem_alloc) {
        (void)world->api.MemFree(memory->base);
    } else if (memory->owned) {
        (void)cudaFree(memory->base);
    }
}

DPARI_INTERNAL void dpari_nccl_forget(dpari_nccl_world *world, dpari_nccl_memory *memory)
{
    dpari_nccl_memory **at = &world->memory;
    while (*at != memory) {
        at = &(*at)->next;
    }
    *at = memory->next;
    free(memory);
}

DPARI_INTERNAL void dpari_nccl_release(dpar_comm *comm, void *memory)
{
    dpari_nccl_world *world = dpari_nccl_ctx_of(comm)->world;
    dpari_nccl_memory **at = &world->memory, *m;
    (void)cudaStreamSynchronize(world->stream);
    (void)cudaStreamSynchronize(world->options.stream);
    dpari_nccl_lock(world); /* deregistering calls NCCL with a communicator that the watchdog may
                           abort */
    dpari_nccl_join_aborts(world, world->closed);
    dpari_nccl_join_aborts(world, world->comms); /* the aborts deregister memory */
    while (*at != NULL) {
        m = *at;
        if (m->memory == memory) {
            *at = m->next;
            dpari_nccl_memory_end(world, m);
            free(m);
        } else {
            at = &m->next;
        }
    }
    dpari_nccl_unlock(world);
}

DPARI_INTERNAL int dpari_nccl_windows(const dpari_nccl_ctx *context, const void *memory,
                                      int64_t bytes)
{
    const uintptr_t at = (uintptr_t)memory;
    const dpari_nccl_memory *m;
    if (context->world->api.CommWindowRegister == NULL || bytes % 4096 != 0 || at % 4096 != 0) {
        return 0;
    }
    for (m = context->world->memory; m != NULL; m = m->next) {
        if (m->owned && m->mem_alloc && at >= (uintptr_t)m->memory &&
            at + (size_t)bytes <= (uintptr_t)m->memory + m->bytes) {
            return 1;
        }
    }
    return 0;
}

/* ==== nccl/nccl_register.c ==== */

/* Registers memory from dpar_comm_alloc as a window if NCCL has windows, and other memory as a
 * buffer. The registration is added to the world's list (memory.c), so that closing the
 * communicator or releasing the memory ends it. */

DPAR_API dpar_status dpar_nccl_register(dpar_comm *comm, void *memory, int64_t bytes)
{
    dpari_nccl_ctx *context;
    dpari_nccl_memory *m;
    const dpari_nccl_api *api;
    ncclResult_t code = ncclSuccess;
    dpar_status status = DPAR_OK;
    if (comm == NULL || memory == NULL || bytes < 1 || strcmp(comm->engine.name, "nccl") != 0) {
        return DPAR_E_ARG;
    }
    context = dpari_nccl_ctx_of(comm);
    api = &context->world->api;
    if (comm->status < 0 || api->CommRegister == NULL) {
        return comm->status;
    }
    dpari_nccl_flush(context->world);
    dpari_nccl_lock(context->world);
    m = context->nccl != NULL ? dpari_nccl_note_memory(context, memory) : NULL;
    if (m == NULL) {
        status = comm->status;
        if (status >= 0) {
            status = dpari_say(DPAR_E_MEMORY, &comm->why,
                               "dpar_nccl_register: no memory to record the registration (%ld "
                               "bytes)",
                               (int64_t)sizeof *m);
        }
        dpari_nccl_unlock(context->world);
        return status;
    }
    m->ctx = context;
    if (dpari_nccl_windows(context, memory, bytes)) {
        code = api->CommWindowRegister(context->nccl, memory, (size_t)bytes, &m->window,
                                       DPARI_NCCL_WIN_SYMMETRIC);
        if (code == ncclSuccess || code == ncclInProgress) {
            code = dpari_nccl_settle(context); /* the window exists only once NCCL has completed
                                                  this */
        }
    }
    if (code == ncclSuccess && m->window == NULL) {
        code = api->CommRegister(context->nccl, memory, (size_t)bytes, &m->handle);
        code = code == ncclInProgress ? dpari_nccl_settle(context) : code;
    }
    if (code != ncclSuccess) {
        status = dpari_nccl_failed(context, "registering memory", code);
        dpari_nccl_forget(context->world, m);
    }
    dpari_nccl_unlock(context->world);
    return status;
}

/* ==== nccl/proof.c ==== */

/* Computes proofs by SipHash-2-4 over the numbers that both sides have drawn, and draws random
 * numbers from /dev/urandom. There is no weaker source, because the key protects the job. */

static uint64_t dpari_nccl_turned(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void dpari_nccl_sip_rounds(uint64_t *v, int n)
{
    for (; n > 0; n--) {
        v[0] += v[1];
        v[1] = dpari_nccl_turned(v[1], 13) ^ v[0];
        v[0] = dpari_nccl_turned(v[0], 32);
        v[2] += v[3];
        v[3] = dpari_nccl_turned(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = dpari_nccl_turned(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = dpari_nccl_turned(v[1], 17) ^ v[2];
        v[2] = dpari_nccl_turned(v[2], 32);
    }
}

/* Returns the hash of n words, which are at most 31, under a key. The constants are those of the
 * paper's variant with a result of 128 bits. */
static dpari_nccl_bits dpari_nccl_sip(const dpari_nccl_bits *key, const uint64_t *word, int32_t n)
{
    dpari_nccl_bits out;
    uint64_t v[4];
    int32_t i;
    v[0] = key->word[0] ^ UINT64_C(0x736f6d6570736575);
    v[1] = key->word[1] ^ UINT64_C(0x646f72616e646f6d) ^ 0xee;
    v[2] = key->word[0] ^ UINT64_C(0x6c7967656e657261);
    v[3] = key->word[1] ^ UINT64_C(0x7465646279746573);
    for (i = 0; i <= n; i++) { /* one more word, with the number of bytes in its highest byte */
        const uint64_t m = i < n ? word[i] : (uint64_t)n * 8 << 56;
        v[3] ^= m;
        dpari_nccl_sip_rounds(v, 2);
        v[0] ^= m;
    }
    v[2] ^= 0xee;
    dpari_nccl_sip_rounds(v, 4);
    out.word[0] = v[0] ^ v[1] ^ v[2] ^ v[3];
    v[1] ^= 0xdd;
    dpari_nccl_sip_rounds(v, 4);
    out.word[1] = v[0] ^ v[1] ^ v[2] ^ v[3];
    return out;
}

DPARI_INTERNAL int dpari_nccl_alike(const dpari_nccl_bits *a, const dpari_nccl_bits *b)
{
    return ((a->word[0] ^ b->word[0]) | (a->word[1] ^ b->word[1])) == 0;
}

DPARI_INTERNAL int dpari_nccl_draw(dpari_nccl_bits *to)
{
    const int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    char *at = (char *)to;
    size_t left = sizeof *to;
    ssize_t got = -1;
    while (fd >= 0 && left > 0 && ((got = read(fd, at, left)) > 0 || (got < 0 && errno == EINTR))) {
        at += got > 0 ? got : 0;
        left -= got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return left == 0 ? 0 : -1;
}

DPARI_INTERNAL dpari_nccl_bits dpari_nccl_prove(const dpari_nccl_world *world, int by_root,
                                                int32_t rank, const dpari_nccl_bits *caller,
                                                const dpari_nccl_bits *called)
{
    uint64_t word[7];
    word[0] = (uint64_t)by_root;
    word[1] = world->side.card.job;
    word[2] = (uint64_t)rank << 32 | (uint64_t)world->size;
    memcpy(word + 3, caller, sizeof *caller);
    memcpy(word + 5, called, sizeof *called);
    return dpari_nccl_sip(&world->side.card.key, word, 7);
}

/* ==== nccl/socket.c ==== */

/* Implements TCP with deadlines: sockets do not block, and each call that cannot proceed waits in
 * poll() for at most a tenth of a second before it looks at the clock again. */

DPARI_INTERNAL int dpari_nccl_write(int fd, const void *from, size_t bytes, double until)
{
    const char *at = (const char *)from;
    while (bytes > 0) {
        ssize_t n = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n < 0 && errno != EINTR && errno != EAGAIN) {
            return -1;
        } else if (!dpari_os_poll(fd, POLLOUT, until)) {
            return -1;
        }
    }
    return 0;
}

DPARI_INTERNAL int dpari_nccl_read(int fd, void *to, size_t bytes, double until)
{
    char *at = (char *)to;
    while (bytes > 0) {
        ssize_t n = recv(fd, at, bytes, MSG_DONTWAIT);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            return -1;
        } else if (!dpari_os_poll(fd, POLLIN, until)) {
            return -1;
        }
    }
    return 0;
}

DPARI_INTERNAL void dpari_nccl_loopback(dpari_nccl_address *a)
{
    memset(a, 0, sizeof *a);
    a->family = AF_INET;
    a->at[0] = 127;
    a->at[3] = 1;
}

DPARI_INTERNAL socklen_t dpari_nccl_socket_name(const dpari_nccl_address *a, int32_t port,
                                                dpari_nccl_sockaddr *n)
{
    memset(n, 0, sizeof *n);
    if (a->family == AF_INET6) {
        n->six.sin6_family = AF_INET6;
        n->six.sin6_port = htons((uint16_t)port);
        memcpy(&n->six.sin6_addr, a->at, 16);
        return sizeof n->six;
    }
    n->four.sin_family = AF_INET;
    n->four.sin_port = htons((uint16_t)port);
    memcpy(&n->four.sin_addr, a->at, 4);
    return sizeof n->four;
}

DPARI_INTERNAL int dpari_nccl_listen(int32_t local, int32_t *port)
{
    dpari_nccl_address at;
    dpari_nccl_sockaddr name;
    const int off = 0;
    socklen_t bytes;
    int fd;
    memset(&at, 0, sizeof at);
    at.family = local ? AF_INET : AF_INET6;
    fd = dpari_os_socket(at.family, SOCK_STREAM);
    if (fd >= 0 && !local) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    } else if (fd < 0) {
        at.family = AF_INET;
        fd = dpari_os_socket(AF_INET, SOCK_STREAM);
    }
    if (fd < 0) {
        return -1;
    }
    if (local) {
        dpari_nccl_loopback(&at);
    }
    bytes = dpari_nccl_socket_name(&at, 0, &name);
    if (bind(fd, &name.any, bytes) != 0 || listen(fd, 1024) != 0 ||
        getsockname(fd, &name.any, &bytes) != 0) {
        (void)close(fd);
        return -1;
    }
    *port = (int32_t)ntohs(at.family == AF_INET6 ? name.six.sin6_port : name.four.sin_port);
    return fd;
}

DPARI_INTERNAL int32_t dpari_nccl_addresses(dpari_nccl_address *to, int32_t room)
{
    struct ifaddrs *all = NULL, *i;
    int32_t n = 0, loop;
    if (getifaddrs(&all) != 0) {
        return 0;
    }
    for (loop = 0; loop < 2; loop++) {
        for (i = all; i != NULL && n < room; i = i->ifa_next) {
            dpari_nccl_address *a = &to[n];
            if (i->ifa_addr == NULL || (i->ifa_flags & IFF_UP) == 0 ||
                ((i->ifa_flags & IFF_LOOPBACK) != 0) != loop) {
                continue;
            }
            memset(a, 0, sizeof *a);
            a->family = i->ifa_addr->sa_family;
            if (a->family == AF_INET) {
                memcpy(a->at, &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr,
                       4);
                n++;
            } else if (a->family == AF_INET6) {
                const struct sockaddr_in6 *six =
                    (const struct sockaddr_in6 *)(const void *)i->ifa_addr;
                memcpy(a->at, &six->sin6_addr, 16);
                n += !IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr);
            }
        }
    }
    freeifaddrs(all);
    return n;
}

/* Waits until a connection that is in progress is made. Returns 0 if that fails, or at the
 * deadline, which is at most some seconds away. A signal does not end the wait. */
static int dpari_nccl_connected(int fd, double until)
{
    struct pollfd p;
    int error = 0, ready;
    socklen_t bytes = sizeof error;
    p.fd = fd;
    p.events = POLLOUT;
    do {
        const double rest = until - dpari_os_now();
        p.revents = 0;
        ready = poll(&p, 1, rest > 0 ? (int)(rest * 1e3) + 1 : 0);
    } while (ready < 0 && errno == EINTR);
    return ready == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 && error == 0;
}

DPARI_INTERNAL int dpari_nccl_connect(const struct sockaddr *name, socklen_t bytes, double until)
{
    const int on = 1;
    const int fd = dpari_os_socket(name->sa_family, SOCK_STREAM);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, name, bytes) != 0 &&
        (errno != EINPROGRESS || !dpari_nccl_connected(fd, until))) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* ==== nccl/position.c ==== */

/* Finds out in which operation a rank is: the one at the head of the stream if it waits in it,
 * otherwise its last collective. The watchdog (watchdog.c) and the notes of the side channel
 * (side_messages.c) use it. */

DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_named(dpari_nccl_world *world, uint64_t name)
{
    dpari_nccl_ctx *context = world->comms;
    while (context != NULL && context->name != name) {
        context = context->next;
    }
    return context;
}

DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_head(const dpari_nccl_world *world)
{
    dpari_nccl_slot *slot = world->flying;
    while (slot != NULL && (slot->ctx == NULL || slot->ctx->comm.status < 0)) {
        slot = slot->next;
    }
    return slot != NULL ? slot : world->entering;
}

DPARI_INTERNAL void dpari_nccl_note_own(dpari_nccl_world *world, uint64_t name, dpari_nccl_note *n)
{
    const dpari_nccl_ctx *context = dpari_nccl_named(world, name);
    const dpari_nccl_slot *slot = dpari_nccl_head(world);
    int64_t i;
    memset(n, 0, sizeof *n);
    n->comm = name;
    n->last.sequence = -1;
    if (context == NULL) {
        return;
    }
    for (i = context->records - 1; i >= 0 && i > context->records - DPARI_RECORDS; i--) {
        if (!dpari_kind_sends(context->ring[i % DPARI_RECORDS].kind)) {
            n->last = context->ring[i % DPARI_RECORDS];
            break;
        }
    }
    n->last.sequence = context->sequence - 1;
    n->last.state = DPAR_OK;
    if (slot != NULL && slot->ctx == context && slot->since >= 0) {
        n->last = dpari_record_of(&slot->call, slot->messages ? n->last.sequence : slot->sequence);
        n->last.state = DPAR_MORE;
        n->varies = slot->call.variable_counts;
    }
}

DPARI_INTERNAL int dpari_nccl_same(const dpari_nccl_note *m, const dpari_nccl_note *n)
{
    return m->varies == n->varies && dpari_record_same(&m->last, &n->last, !m->varies);
}

/* ==== nccl/side_messages.c ==== */

/* What ranks tell each other over the side channel.
 *
 * A rank that waits for long sends a NOTE about the operation in which it waits. Rank 0 then asks
 * all ranks for theirs (ASK). If two ranks wait in different calls with the same number, it breaks
 * the communicator on all ranks (BROKEN). At its deadline, a rank asks rank 0 for the notes of all
 * ranks (WANT, which END answers last), so that its message names the missing ranks. A rank whose
 * communicator breaks for another reason reports that as BROKEN, which rank 0 passes on, and rank 0
 * reports a rank whose connection was lost as DEAD. */

DPARI_INTERNAL void dpari_nccl_message_init(const dpari_nccl_world *world,
                                            dpari_nccl_message *message, int32_t kind)
{
    memset(message, 0, sizeof *message);
    message->magic = DPARI_NCCL_MAGIC;
    message->job = world->side.card.job;
    message->kind = kind;
    message->rank = world->rank;
    message->size = world->size;
}

DPARI_INTERNAL void dpari_nccl_link_lost(dpari_nccl_link *l)
{
    const int32_t knocked = l->state == DPARI_NCCL_KNOCKS;
    (void)close(l->fd);
    l->fd = -1;
    l->state = knocked ? l->before : DPARI_NCCL_LOST;
    if (!knocked || l->before == DPARI_NCCL_AWAY) {
        l->lost = dpari_os_now();
    }
}

/* Sends a message over a link. The link counts as lost if the message is not sent within a second.
 * If the other end has closed the link, it is lost only once everything that arrived before has
 * been read, because that may contain the reason (dpari_nccl_listen_to). */
static void dpari_nccl_link_send(dpari_nccl_link *l, const dpari_nccl_message *message)
{
    if (l->fd >= 0 && l->state == DPARI_NCCL_HERE &&
        dpari_nccl_write(l->fd, message, sizeof *message, dpari_os_now() + 1) != 0 &&
        errno != EPIPE && errno != ECONNRESET) {
        dpari_nccl_link_lost(l);
    }
}

DPARI_INTERNAL void dpari_nccl_tell(dpari_nccl_world *world, const dpari_nccl_message *message,
                                    int32_t but)
{
    int32_t r;
    for (r = 0; r < world->side.links; r++) {
        if (r != but) {
            dpari_nccl_link_send(&world->side.link[r], message);
        }
    }
}

/* On rank 0: breaks the communicator of rank's note if another rank waits in a different call as
 * the collective with the same number. */
static void dpari_nccl_compare(dpari_nccl_world *world, int32_t rank)
{
    const dpari_nccl_note *note = world->side.note;
    const dpari_record *a = &note[rank].last;
    dpari_nccl_message m;
    dpari_nccl_ctx *context;
    dpar_text t;
    int32_t r;
    for (r = 0; r < world->size; r++) {
        const dpari_record *b = &note[r].last;
        if (r == rank || !world->side.known[r] || note[rank].comm != note[r].comm ||
            a->sequence != b->sequence || a->state != DPAR_MORE || b->state != DPAR_MORE ||
            dpari_kind_sends(a->kind) || dpari_kind_sends(b->kind) ||
            dpari_nccl_same(&note[rank], &note[r])) {
            continue;
        }
        dpari_nccl_message_init(world, &m, DPARI_NCCL_BROKEN);
        m.status = DPAR_E_MISMATCH;
        m.note.comm = note[rank].comm;
        dpar_text_init(&t, m.text, sizeof m.text);
        dpari_text_say(&t, "rank %d is in ", r < rank ? r : rank);
        dpari_record_text(&t, r < rank ? b : a);
        dpari_text_say(&t, ", rank %d in ", r < rank ? rank : r);
        dpari_record_text(&t, r < rank ? a : b);
        if (m.note.comm != 0) {
            dpar_text_put(&t, " (ranks of the whole job)");
        }
        dpari_nccl_tell(world, &m, -1);
        context = dpari_nccl_named(world, m.note.comm);
        if (context != NULL) {
            (void)dpari_nccl_break(context, DPAR_E_MISMATCH, m.text, 0);
        }
        return;
    }
}

static void dpari_nccl_heard(dpari_nccl_world *world, const dpari_nccl_message *message)
{
    if (message->rank >= 0 && message->rank < world->size) {
        world->side.note[message->rank] = message->note;
        world->side.known[message->rank] = 1;
    }
}

/* On rank 0: asks all ranks for their notes on a communicator in which some rank waits, at most
 * every tenth of a second. */
static void dpari_nccl_ask(dpari_nccl_world *world, uint64_t comm)
{
    dpari_nccl_message m;
    const double now = dpari_os_now();
    if (now - world->side.asked < 0.1) {
        return;
    }
    world->side.asked = now;
    dpari_nccl_message_init(world, &m, DPARI_NCCL_ASK);
    m.note.comm = comm;
    dpari_nccl_tell(world, &m, -1);
    dpari_nccl_note_own(world, comm, &world->side.note[0]);
    world->side.known[0] = 1;
}

DPARI_INTERNAL void dpari_nccl_answer(dpari_nccl_world *world, uint64_t comm)
{
    dpari_nccl_message m;
    dpari_nccl_message_init(world, &m, DPARI_NCCL_NOTE);
    dpari_nccl_note_own(world, comm, &m.note);
    if (world->rank == 0) {
        dpari_nccl_heard(world, &m);
        dpari_nccl_ask(world, comm);
        dpari_nccl_compare(world, 0);
    } else {
        dpari_nccl_tell(world, &m, -1);
    }
}

/* Sends all notes that rank 0 has to one rank. */
static void dpari_nccl_answer_all(dpari_nccl_world *world, dpari_nccl_link *l)
{
    dpari_nccl_message m;
    int32_t r;
    for (r = 0; r < world->size; r++) {
        if (world->side.known[r]) {
            dpari_nccl_message_init(world, &m, DPARI_NCCL_NOTE);
            m.rank = r;
            m.note = world->side.note[r];
            dpari_nccl_link_send(l, &m);
        }
    }
    dpari_nccl_message_init(world, &m, DPARI_NCCL_END);
    dpari_nccl_link_send(l, &m);
}

DPARI_INTERNAL void dpari_nccl_died(dpari_nccl_world *world, int32_t rank)
{
    dpari_nccl_ctx *context;
    int32_t r;
    char text[80];
    dpar_text t;
    for (context = world->comms; context != NULL; context = context->next) {
        for (r = 0; r < context->comm.size && context->member[r] != rank; r++) {
        }
        if (r < context->comm.size) {
            dpar_text_init(&t, text, sizeof text);
            dpari_text_say(&t, "rank %d is gone: its process ended, or no longer answers", r);
            (void)dpari_nccl_break(context, DPAR_E_PEER, text, 0);
        }
    }
}

/* Breaks a communicator that another rank reports as broken. Rank 0 passes the report on. */
static void dpari_nccl_hear_broken(dpari_nccl_world *world, const dpari_nccl_message *message)
{
    dpari_nccl_ctx *context = dpari_nccl_named(world, message->note.comm);
    char text[DPARI_NCCL_TEXT];
    dpar_text t;
    int32_t r;
    if (world->rank == 0) {
        dpari_nccl_tell(world, message, message->rank);
    }
    if (context == NULL) {
        return;
    }
    for (r = 0; r < context->comm.size && context->member[r] != message->rank; r++) {
    }
    dpar_text_init(&t, text, sizeof text);
    if (message->status != DPAR_E_MISMATCH) {
        dpari_text_say(&t, "rank %d says: ", r);
    }
    dpar_text_put(&t, message->text);
    (void)dpari_nccl_break(
        context, message->status < 0 ? message->status : (dpar_status)DPAR_E_PEER, text, 0);
}

DPARI_INTERNAL void dpari_nccl_obey(dpari_nccl_world *world, int32_t k, dpari_nccl_message *message)
{
    dpari_nccl_link *l = &world->side.link[k];
    message->text[sizeof message->text - 1] = 0;
    switch (message->kind) {
    case DPARI_NCCL_NOTE:
        dpari_nccl_heard(world, message);
        if (world->rank == 0) {
            if (message->note.last.state == DPAR_MORE) {
                dpari_nccl_ask(world, message->note.comm);
            }
            dpari_nccl_compare(world, message->rank);
        }
        break;
    case DPARI_NCCL_ASK: dpari_nccl_answer(world, message->note.comm); break;
    case DPARI_NCCL_WANT: dpari_nccl_answer_all(world, l); break;
    case DPARI_NCCL_END: world->side.answered = 1; break;
    case DPARI_NCCL_BROKEN: dpari_nccl_hear_broken(world, message); break;
    case DPARI_NCCL_DEAD: dpari_nccl_died(world, message->status); break;
    case DPARI_NCCL_BYE:
        l->state = DPARI_NCCL_LEFT;
        (void)close(l->fd);
        l->fd = -1;
        break;
    default: break;
    }
}

/* ==== nccl/side_connections.c ==== */

/* The connections of the side channel.
 *
 * A rank connects to rank 0 and sends HELLO with a random number. Rank 0 answers with CHALLENGE:
 * its own random number, and the proof that it knows the key. The rank checks the proof and sends
 * its own, PROOF, after which the connection becomes a link, in state HERE. Until then it is a
 * "knock" on rank 0: it may be from anybody, so rank 0 reads it without waiting, limits the number
 * and the age of knocks, and answers nothing that is not a HELLO of this job.
 *
 * A link that is lost may be made again within DPARI_NCCL_GRACE, after which the rank at its other
 * end counts as gone. The watchdog calls these functions with the world's lock; before it begins
 * and after it has ended, no lock is needed. */

/* Seconds that a new connection may take to prove that it belongs to the job. */
enum { DPARI_NCCL_PATIENCE = 2 };

/* Seconds between attempts to reach a rank 0 that was never reached. */
enum { DPARI_NCCL_AGAIN = 5 };

static int dpari_nccl_fits(const dpari_nccl_world *world, const dpari_nccl_message *message)
{
    return message->magic == DPARI_NCCL_MAGIC && message->job == world->side.card.job;
}

static void dpari_nccl_knock_ends(dpari_nccl_side *s, int32_t k, int close_it)
{
    if (close_it) {
        (void)close(s->knock[k].fd);
    }
    s->knocks--;
    memmove(&s->knock[k], &s->knock[k + 1], (size_t)(s->knocks - k) * sizeof *s->knock);
}

/* Answers a HELLO with a CHALLENGE. Returns 1 if the connection may continue. */
static int dpari_nccl_hello(dpari_nccl_world *world, dpari_nccl_knock *k)
{
    const dpari_nccl_message *hello = &k->in;
    dpari_nccl_message m;
    dpari_nccl_bits proof;
    if (hello->kind != DPARI_NCCL_HELLO || hello->job != world->side.card.job ||
        hello->size != world->size || hello->rank <= 0 || hello->rank >= world->size ||
        dpari_nccl_draw(&k->ours) != 0) {
        return 0;
    }
    k->rank = hello->rank;
    memcpy(&k->theirs, hello->text, sizeof k->theirs);
    dpari_nccl_message_init(world, &m, DPARI_NCCL_CHALLENGE);
    proof = dpari_nccl_prove(world, 1, k->rank, &k->theirs, &k->ours);
    memcpy(m.text, &k->ours, sizeof k->ours);
    memcpy(m.text + sizeof k->ours, &proof, sizeof proof);
    /* does not wait, because a new socket always has space for one message */
    return send(k->fd, &m, sizeof m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof m;
}

/* Checks a PROOF. If it is right, the connection becomes the link of its rank, and 1 is returned,
 * otherwise 0. */
static int dpari_nccl_proved(dpari_nccl_world *world, const dpari_nccl_knock *k)
{
    const dpari_nccl_bits proof = dpari_nccl_prove(world, 0, k->rank, &k->theirs, &k->ours);
    dpari_nccl_link *l = &world->side.link[k->rank];
    dpari_nccl_bits said;
    memcpy(&said, k->in.text, sizeof said);
    if (k->in.kind != DPARI_NCCL_PROOF || k->in.job != world->side.card.job ||
        !dpari_nccl_alike(&proof, &said)) {
        return 0;
    }
    if (l->fd >= 0) {
        (void)close(l->fd);
    }
    l->fd = k->fd;
    l->got = 0;
    l->state = DPARI_NCCL_HERE;
    return 1;
}

/* Reads what a new connection has sent so far. Returns 0 if it is not complete, 1 if it was
 * accepted, and -1 if it is to be closed. */
static int dpari_nccl_hear_knock(dpari_nccl_world *world, dpari_nccl_knock *k, double now)
{
    for (;;) {
        const ssize_t n =
            recv(k->fd, (char *)&k->in + k->got, sizeof k->in - (size_t)k->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return now - k->since > (double)(int)DPARI_NCCL_PATIENCE ? -1 : 0;
        }
        k->got += n > 0 ? (int32_t)n : 0;
        if (n <= 0 || (k->got >= 8 && k->in.magic != DPARI_NCCL_MAGIC)) {
            return -1;
        }
        if (k->got < (int32_t)sizeof k->in) {
            continue;
        }
        k->got = 0;
        if (k->rank != 0) {
            return dpari_nccl_proved(world, k) ? 1 : -1;
        }
        if (!dpari_nccl_hello(world, k)) {
            return -1;
        }
    }
}

/* Accepts a new connection. Returns 0 if there is none. If too many have not proved yet, the oldest
 * of them is closed: a rank of the job needs only one round trip, and tries again. */
static int dpari_nccl_open_door(dpari_nccl_world *world, double now)
{
    dpari_nccl_side *s = &world->side;
    const int on = 1;
    dpari_nccl_knock *k;
    const int fd = dpari_os_accept(s->listener);
    if (fd < 0) {
        if ((errno != EMFILE && errno != ENFILE) || s->knocks == 0) {
            return 0;
        }
        dpari_nccl_knock_ends(s, 0, 1);
        return 1;
    }
    if (s->knocks == s->knocks_room) {
        dpari_nccl_knock_ends(s, 0, 1);
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    k = &s->knock[s->knocks++];
    memset(k, 0, sizeof *k);
    k->fd = fd;
    k->since = now;
    return 1;
}

DPARI_INTERNAL void dpari_nccl_accept(dpari_nccl_world *world)
{
    dpari_nccl_side *s = &world->side;
    const double now = dpari_os_now();
    int32_t k, turns = 256; /* a limit, so that a flood of connections cannot keep it here */
    while (turns > 0 && dpari_nccl_open_door(world, now)) {
        turns--;
    }
    for (k = s->knocks - 1; k >= 0; k--) {
        const int how = dpari_nccl_hear_knock(world, &s->knock[k], now);
        if (how != 0) {
            dpari_nccl_knock_ends(s, k, how < 0);
        }
    }
}

DPARI_INTERNAL int dpari_nccl_reach(dpari_nccl_world *world, dpari_nccl_link *l, double until)
{
    const dpari_nccl_card *card = &world->side.card;
    dpari_nccl_message m;
    dpari_nccl_sockaddr name;
    int32_t i;
    l->got = 0;
    for (i = 0; i < card->addresses; i++) {
        const double now = dpari_os_now(), part = (until - now) / (card->addresses - i);
        const socklen_t bytes = dpari_nccl_socket_name(&card->address[i], card->port, &name);
        l->fd = dpari_nccl_connect(&name.any, bytes, now + (part < 1 ? part : 1));
        if (l->fd < 0) {
            continue;
        }
        dpari_nccl_message_init(world, &m, DPARI_NCCL_HELLO);
        if (dpari_nccl_draw(&l->drawn) == 0) {
            memcpy(m.text, &l->drawn, sizeof l->drawn);
            if (dpari_nccl_write(l->fd, &m, sizeof m, dpari_os_now() + 1) == 0) {
                return 0;
            }
        }
        (void)close(l->fd);
        l->fd = -1;
    }
    return -1;
}

/* True if the proof in a CHALLENGE is right, so that its sender knows the job's key. */
static int dpari_nccl_genuine(const dpari_nccl_world *world, const dpari_nccl_link *l,
                              const dpari_nccl_message *message)
{
    dpari_nccl_bits said[2], proof; /* the random number and the proof of rank 0 */
    memcpy(said, message->text, sizeof said);
    proof = dpari_nccl_prove(world, 1, world->rank, &l->drawn, &said[0]);
    return dpari_nccl_alike(&proof, &said[1]);
}

/* Answers a CHALLENGE with a PROOF. Returns 0 if it was sent. */
static int dpari_nccl_enter(const dpari_nccl_world *world, const dpari_nccl_link *l,
                            const dpari_nccl_message *challenge, double until)
{
    dpari_nccl_message m;
    dpari_nccl_bits said, proof;
    memcpy(&said, challenge->text, sizeof said);
    proof = dpari_nccl_prove(world, 0, world->rank, &l->drawn, &said);
    dpari_nccl_message_init(world, &m, DPARI_NCCL_PROOF);
    memcpy(m.text, &proof, sizeof proof);
    return dpari_nccl_write(l->fd, &m, sizeof m, until);
}

/* On other ranks: processes rank 0's answer to a HELLO. */
static void dpari_nccl_at_door(dpari_nccl_world *world, dpari_nccl_link *l,
                               const dpari_nccl_message *message)
{
    if (message->kind == DPARI_NCCL_CHALLENGE && dpari_nccl_genuine(world, l, message) &&
        dpari_nccl_enter(world, l, message, dpari_os_now() + 1) == 0) {
        l->state = DPARI_NCCL_HERE;
    } else {
        dpari_nccl_link_lost(l);
    }
}

DPARI_INTERNAL void dpari_nccl_listen_to(dpari_nccl_world *world, int32_t k)
{
    dpari_nccl_link *l = &world->side.link[k];
    while (l->fd >= 0) {
        char *at = (char *)&l->in + l->got;
        ssize_t n = recv(l->fd, at, sizeof l->in - (size_t)l->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            dpari_nccl_link_lost(l);
            return;
        }
        l->got += (int32_t)n;
        if (l->got == (int32_t)sizeof l->in) {
            l->got = 0;
            if (dpari_nccl_fits(world, &l->in)) {
                dpari_nccl_message m = l->in;
                if (l->state == DPARI_NCCL_KNOCKS) {
                    dpari_nccl_at_door(world, l, &m);
                } else {
                    dpari_nccl_obey(world, k, &m);
                }
            }
        }
    }
}

DPARI_INTERNAL void dpari_nccl_mend(dpari_nccl_world *world)
{
    dpari_nccl_message m;
    const double now = dpari_os_now();
    int32_t r;
    for (r = 0; r < world->side.links; r++) {
        dpari_nccl_link *l = &world->side.link[r];
        if (l->state == DPARI_NCCL_LOST && now - l->lost > (double)(int)DPARI_NCCL_GRACE) {
            l->state = DPARI_NCCL_GONE;
            dpari_nccl_died(world, world->rank == 0 ? r : 0);
            if (world->rank == 0) {
                dpari_nccl_message_init(world, &m, DPARI_NCCL_DEAD);
                m.status = r;
                dpari_nccl_tell(world, &m, r);
            }
        } else if (world->rank != 0 && (l->state == DPARI_NCCL_LOST ||
                                        (l->state == DPARI_NCCL_AWAY &&
                                         now > l->lost + (double)(int)DPARI_NCCL_AGAIN))) {
            l->before = l->state;
            /* The deadline is short, because this rank cannot enqueue anything meanwhile. */
            if (dpari_nccl_reach(world, l, now + 0.2) == 0) {
                l->state = DPARI_NCCL_KNOCKS;
            }
            l->lost = l->before == DPARI_NCCL_AWAY ? dpari_os_now() : l->lost;
        }
    }
}

/* ==== nccl/side_channel.c ==== */

/* Allocates the side channel, and gives it a turn: accept connections, read messages, restore lost
 * connections, report communicators that broke. The watchdog's thread does this between two waits
 * in poll(), which a byte in a pipe ends early. */

DPARI_INTERNAL dpar_status dpari_nccl_side_make(dpari_nccl_world *world, dpar_why *why)
{
    dpari_nccl_side *s = &world->side;
    int32_t r, links = world->rank == 0 ? world->size : 1;
    s->knocks_room = 0;
    if (world->rank == 0) {
        s->knocks_room = 64 + (world->size < 1024 ? world->size : 1024);
    }
    s->link = (dpari_nccl_link *)calloc((size_t)links, sizeof *s->link);
    s->note = (dpari_nccl_note *)calloc((size_t)world->size, sizeof *s->note);
    s->known = (int32_t *)calloc((size_t)world->size, sizeof *s->known);
    s->polls =
        (struct pollfd *)calloc((size_t)links + (size_t)s->knocks_room + 2, sizeof *s->polls);
    s->knock = (dpari_nccl_knock *)calloc((size_t)s->knocks_room + 1, sizeof *s->knock);
    if (s->link == NULL || s->note == NULL || s->known == NULL || s->polls == NULL ||
        s->knock == NULL || pipe(world->wake) != 0 ||
        (world->wake[0] = dpari_os_beyond_standard(world->wake[0])) < 0 ||
        (world->wake[1] = dpari_os_beyond_standard(world->wake[1])) < 0) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "dpar_nccl_make: no memory (%ld bytes) or no 2 file descriptors for the "
                         "connections between rank 0 and %d ranks",
                         (int64_t)links * (int64_t)(sizeof *s->link + sizeof *s->polls) +
                             (int64_t)world->size * (int64_t)(sizeof *s->note + sizeof *s->known) +
                             (int64_t)s->knocks_room *
                                 (int64_t)(sizeof *s->knock + sizeof *s->polls),
                         world->size);
    }
    for (r = 0; r < 2; r++) {
        (void)fcntl(world->wake[r], F_SETFD, FD_CLOEXEC);
        (void)fcntl(world->wake[r], F_SETFL, O_NONBLOCK);
    }
    for (r = 0; r < links; r++) {
        s->link[r].fd = -1;
    }
    s->links = links;
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_nccl_side_wait(dpari_nccl_world *world, double seconds)
{
    struct pollfd *p = world->side.polls;
    char bytes[64];
    int32_t n = 0, r;
    p[n].fd = world->wake[0];
    p[n++].events = POLLIN;
    if (world->side.listener >= 0) {
        p[n].fd = world->side.listener;
        p[n++].events = POLLIN;
    }
    for (r = 0; r < world->side.knocks; r++) {
        p[n].fd = world->side.knock[r].fd;
        p[n++].events = POLLIN;
    }
    for (r = 0; r < world->side.links; r++) {
        if (world->side.link[r].fd >= 0) {
            p[n].fd = world->side.link[r].fd;
            p[n++].events = POLLIN;
        }
    }
    if (poll(p, (nfds_t)n, (int)(seconds * 1e3) + 1) > 0 && (p[0].revents & POLLIN) != 0) {
        (void)!read(world->wake[0], bytes, sizeof bytes);
    }
}

DPARI_INTERNAL void dpari_nccl_say_broken(dpari_nccl_world *world)
{
    dpari_nccl_ctx *context;
    dpari_nccl_message m;
    dpar_text t;
    if (world->rank != 0 && world->side.links > 0 &&
        world->side.link[0].state == DPARI_NCCL_KNOCKS) {
        return; /* reported later, once rank 0 listens */
    }
    for (context = world->comms; context != NULL; context = context->next) {
        if (context->comm.status < 0 && !context->told) {
            dpari_nccl_message_init(world, &m, DPARI_NCCL_BROKEN);
            m.status = context->comm.status;
            m.note.comm = context->name;
            dpar_text_init(&t, m.text, sizeof m.text);
            dpar_text_put(&t, context->comm.why.text);
            dpari_nccl_tell(world, &m, -1);
            context->told = 1;
        }
    }
}

DPARI_INTERNAL void dpari_nccl_side_turn(dpari_nccl_world *world)
{
    int32_t r;
    if (world->side.listener >= 0) {
        dpari_nccl_accept(world);
    }
    for (r = 0; r < world->side.links; r++) {
        dpari_nccl_listen_to(world, r);
    }
    dpari_nccl_mend(world);
    dpari_nccl_say_broken(world);
}

/* ==== nccl/watchdog.c ==== */

/* Watches the operation at the head of the stream. A thread wakes up about every 50 ms, or when
 * something arrives on the side channel. It skips its turn if another thread holds the lock, so
 * that it never waits for a call of NCCL. */

/* Writes "; rank 3 has not reached it, its last call is all-gather #11 of ..." for up to 8 ranks
 * that are missing. */
static void dpari_nccl_put_missing(dpar_text *text, dpari_nccl_world *world,
                                   const dpari_nccl_slot *slot)
{
    const dpari_nccl_ctx *context = slot->ctx;
    int32_t r, n = 0;
    for (r = 0; r < context->comm.size; r++) {
        const int32_t at = context->member[r];
        const dpari_nccl_note *b = &world->side.note[at];
        const int known = world->side.known[at] && b->comm == context->name;
        if (r == context->comm.rank || (known && b->last.sequence >= slot->sequence)) {
            continue;
        }
        n++;
        if (n > 8) {
            continue;
        }
        dpari_text_say(text, "; rank %d %s", r, known ? "has not reached it" : "does not answer");
        if (known && b->last.sequence >= 0) {
            dpar_text_put(text, b->last.state == DPAR_MORE ? ", it is in " : ", its last call is ");
            dpari_record_text(text, &b->last);
        }
    }
    if (n > 8) {
        dpari_text_say(text, "; and %d more", n - 8);
    }
    if (n == 0) {
        dpar_text_put(text, "; all ranks have reached it");
    }
}

/* The deadline has passed: breaks the communicator with a message that names the missing ranks. */
static void dpari_nccl_late(dpari_nccl_world *world, dpari_nccl_slot *slot)
{
    dpari_nccl_ctx *context = slot->ctx;
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    if (slot->meets > 0) {
        dpari_text_say(&t, "synchronising the devices of a halo exchange with rank %d",
                       slot->call.root);
        if (slot->meets > 1) {
            dpari_text_say(&t, " and %d more", slot->meets - 1);
        }
        dpar_text_put(&t, ",");
    } else {
        dpari_operation_text(&t, slot->call.kind, slot->sequence, slot->call.type, slot->call.count,
                             slot->call.root, slot->call.tag);
    }
    dpari_text_print(&t, " on rank %d of %d: not finished after %.3g s", context->comm.rank,
                     context->comm.size, context->comm.timeout_s);
    if (world->side.links == 0) {
        dpar_text_put(&t, "; without a side channel the missing ranks are not known");
    } else if (!slot->messages) {
        dpari_nccl_put_missing(&t, world, slot);
    }
    (void)dpari_nccl_break(context, DPAR_E_TIMEOUT, why.text, 1);
}

/* Checks the deadline of the operation at the head of the stream (dpari_nccl_head), once its
 * `ready` event is reached, after which only other ranks can delay it. After a quarter of the
 * deadline, at most 1 s, informs rank 0. At the deadline, first gets the notes of all ranks from
 * rank 0, for up to a second, because the message names the missing ranks. */
static void dpari_nccl_look_at_head(dpari_nccl_world *world)
{
    dpari_nccl_slot *slot = dpari_nccl_head(world);
    const double now = dpari_os_now();
    double limit, age;
    dpari_nccl_message m;
    if (slot == NULL || slot->ctx == NULL || slot->ctx->comm.status < 0) {
        return;
    }
    if (!slot->capture && (world->flying == slot || world->flying == NULL) &&
        cudaEventQuery(slot->ready) != cudaSuccess) {
        slot->since = -1;
        return;
    }
    if (slot->since < 0) {
        slot->since = now;
        world->looked = now;
        return;
    }
    slot->since += dpari_os_suspended(&world->looked, now);
    limit = slot->ctx->comm.timeout_s;
    age = now - slot->since;
    if (world->side.links > 0 && age > (limit > 0 && limit < 4 ? limit / 4 : 1.0) &&
        (!slot->told || age > slot->told * 2.0)) {
        slot->told = (int32_t)age + 1;
        dpari_nccl_answer(world, slot->ctx->name);
    }
    if (limit <= 0 || age < limit) {
        return;
    }
    if (world->rank != 0 && world->side.links > 0 && world->side.link[0].state == DPARI_NCCL_HERE &&
        !world->side.answered && age < limit + 1) {
        if (!world->side.wanting) {
            dpari_nccl_message_init(world, &m, DPARI_NCCL_WANT);
            dpari_nccl_tell(world, &m, -1);
            world->side.wanting = 1;
        }
        return;
    }
    world->side.answered = world->side.wanting = 0;
    dpari_nccl_late(world, slot);
}

static void dpari_nccl_look(dpari_nccl_world *world)
{
    dpari_nccl_ctx *context;
    dpari_nccl_free_waits(world);
    for (context = world->comms; context != NULL; context = context->next) {
        ncclResult_t said = ncclSuccess;
        if (context->nccl != NULL && context->comm.status >= 0 &&
            world->api.CommGetAsyncError(context->nccl, &said) == ncclSuccess &&
            said != ncclSuccess && said != ncclInProgress && !dpari_nccl_unnamed(context, said)) {
            (void)dpari_nccl_failed(context, "an operation in progress",
                                    said == ncclInvalidArgument ? ncclInternalError : said);
        }
    }
    dpari_nccl_reap(world);
    dpari_nccl_look_at_head(world);
}

static void *dpari_nccl_watch(void *arg)
{
    dpari_nccl_world *world = (dpari_nccl_world *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaSetDevice(world->device);
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* queries must not end another's capture */
    while (!DPARI_LOAD(&world->ending)) {
        dpari_nccl_side_wait(world, DPARI_LOAD(&world->frees) ? 1e-3 : world->period);
        /* A thread that is inside a call of NCCL holds the lock, and checks the deadline itself. */
        if (pthread_mutex_trylock(&world->lock) == 0) {
            dpari_nccl_look(world);
            dpari_nccl_side_turn(world);
            dpari_nccl_unlock(world);
        } else {
            dpari_os_sleep(1e-4);
        }
    }
    return NULL;
}

DPARI_INTERNAL void dpari_nccl_watchdog(dpari_nccl_world *world)
{
    if (world->side.card.addresses == 0) { /* also with no_watchdog and with one rank: card.c */
        world->side.links = 0;             /* there is no side channel */
    }
    if (world->options.no_watchdog) {
        return;
    }
    if (world->rank != 0 && world->side.links > 0 && world->side.link[0].state == DPARI_NCCL_AWAY) {
        dpari_nccl_link *l = &world->side.link[0];
        const double until = dpari_os_now() + 1;
        if (dpari_nccl_reach(world, l, until) == 0) {
            l->state = DPARI_NCCL_KNOCKS; /* if the wait below ends first, the watchdog continues */
        }
        while (l->state == DPARI_NCCL_KNOCKS && dpari_os_poll(l->fd, POLLIN, until)) {
            dpari_nccl_listen_to(world, 0);
        }
    }
    world->watched = dpari_os_thread(&world->thread, dpari_nccl_watch, world) == 0;
}

/* ==== nccl/world.c ==== */

/* Makes and frees the state that all communicators of a job share: the options, the library,
 * streams, events, scratch and page-locked memory. Making it needs no other rank. Freeing it also
 * frees a state that was made only in part, after a failure. */

DPARI_INTERNAL int32_t dpari_nccl_shares(void)
{
    const char *wanted = getenv("DPAR_TEST_SHARE_GPU");
    if (wanted == NULL) {
        return 0;
    }
    if (strcmp(wanted, "1") == 0) {
        return 1;
    }
    return strcmp(wanted, "hosts") == 0 ? 2 : 0;
}

/* Sets the environment variables that NCCL needs for ranks that share a device, before NCCL first
 * reads them. */
static void dpari_nccl_share_device(int32_t version, int32_t rank)
{
    const int32_t way = dpari_nccl_shares();
    char host[64];
    dpar_text t;
    if (way == 0) {
        return;
    }
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    (void)setenv("NCCL_MAX_CTAS", "1", 0);
    (void)setenv("NCCL_BUFFSIZE", "1048576", 0);
    if (version >= 23003 && way == 1) {
        (void)setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);
    } else { /* each process pretends to be on a separate host */
        dpar_text_init(&t, host, sizeof host);
        dpari_text_say(&t, "dpar-%d-%ld", rank, (int64_t)getpid());
        (void)setenv("NCCL_HOSTID", host, 0);
        (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
        (void)setenv("NCCL_NET", "Socket", 0);
    }
}

static void dpari_nccl_ask_for_log(const char *log)
{
    if (log != NULL && log[0] != 0) {
        (void)setenv("NCCL_DEBUG", "INFO", 0);
        (void)setenv("NCCL_DEBUG_SUBSYS", "INIT,NET,P2P,SHM", 0);
        (void)setenv("NCCL_DEBUG_FILE", log, 0);
    }
}

static dpar_status dpari_nccl_choose(dpar_nccl_desc *o, const dpar_nccl_desc *given, int32_t size,
                                     dpar_why *why)
{
    memset(o, 0, sizeof *o);
    if (given != NULL) {
        *o = *given;
    }
    if (!(o->timeout_s < 0 || o->timeout_s > 0)) {
        o->timeout_s = 300;
    }
    if (o->work_count <= 0) {
        o->work_count = 256;
    } else if (o->work_count < 8) {
        o->work_count = 8;
    }
    o->scratch_bytes =
        o->scratch_bytes <= 0 ? (int64_t)32 << 20 : (o->scratch_bytes + 63) / 64 * 64;
    o->staging_bytes = o->staging_bytes <= 0 ? (int64_t)4 << 20 : (o->staging_bytes + 63) / 64 * 64;
    if (o->rank_order &&
        (o->reduce_mem == NULL || o->reduce_mem->reduce == NULL || o->comm_stream == NULL)) {
        return dpari_wrong(why,
                           "dpar_nccl_make: desc.rank_order needs desc.reduce_mem, with its reduce "
                           "function, and desc.comm_stream, on which that works");
    }
    if (o->scratch_bytes < (int64_t)size * 8 * DPARI_NCCL_LIMIT ||
        o->staging_bytes < (int64_t)size * 256) {
        return dpari_wrong(why,
                           "dpar_nccl_make: scratch_bytes is %ld and staging_bytes %ld: %d ranks "
                           "need at least %ld and %ld",
                           o->scratch_bytes, o->staging_bytes, size,
                           (int64_t)size * 8 * DPARI_NCCL_LIMIT, (int64_t)size * 256);
    }
    return DPAR_OK;
}

static dpar_status dpari_nccl_make_slots(dpari_nccl_world *world, dpar_why *why)
{
    const int32_t n = world->options.work_count;
    int32_t i;
    world->slots = (dpari_nccl_slot *)calloc((size_t)n, sizeof *world->slots);
    world->used = (dpari_nccl_used *)calloc((size_t)n + 1, sizeof *world->used);
    if (world->slots == NULL || world->used == NULL) {
        return dpari_say(
            DPAR_E_MEMORY, why,
            "dpar_nccl_make: no memory for the state of work_count = %d operations (%ld bytes)", n,
            (int64_t)n * (int64_t)(sizeof *world->slots + sizeof *world->used));
    }
    for (i = 0; i < n; i++) {
        dpari_nccl_slot *slot = &world->slots[i];
        cudaError_t code = cudaEventCreateWithFlags(&slot->ready, cudaEventDisableTiming);
        if (code == cudaSuccess) {
            code = cudaEventCreateWithFlags(&slot->done, cudaEventDisableTiming);
        }
        if (code != cudaSuccess) {
            return dpari_nccl_cuda_says(why, "making events", code);
        }
        slot->next = world->spare;
        world->spare = slot;
    }
    return DPAR_OK;
}

static dpar_status dpari_nccl_make_memory(dpari_nccl_world *world, dpar_why *why)
{
    const dpar_nccl_desc *o = &world->options;
    const unsigned flags = cudaHostAllocPortable | cudaHostAllocMapped;
    int low = 0, high = 0, device = 0;
    void *memory = NULL;
    cudaError_t code = cudaGetDevice(&device);
    world->device = (int32_t)device;
    world->stream = o->comm_stream;
    if (code == cudaSuccess && world->stream == NULL) {
        code = cudaDeviceGetStreamPriorityRange(&low, &high);
        if (code == cudaSuccess) {
            code = cudaStreamCreateWithPriority(&world->stream, cudaStreamNonBlocking, high);
        }
        world->own_stream = code == cudaSuccess;
    }
    if (code == cudaSuccess) {
        code = cudaMalloc(&memory, (size_t)o->scratch_bytes + 64); /* 64 more bytes: a word for
                                                                      barriers */
        world->scratch = code == cudaSuccess ? (char *)memory : NULL;
    }
    if (code == cudaSuccess) {
        code = cudaMemset(world->scratch + o->scratch_bytes, 0, 64);
    }
    if (code == cudaSuccess) {
        code = cudaHostAlloc(&memory, (size_t)o->staging_bytes, flags);
        world->staging = code == cudaSuccess ? (char *)memory : NULL;
    }
    if (code == cudaSuccess) {
        code = cudaHostAlloc(&memory, (size_t)o->staging_bytes, flags);
        world->letters = code == cudaSuccess ? (char *)memory : NULL;
    }
    if (code != cudaSuccess) {
        return dpari_nccl_cuda_says(why, "setting up a communicator", code);
    }
    memset(world->staging, 0, (size_t)o->staging_bytes);
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_nccl_ctx_free(dpari_nccl_ctx *context)
{
    free(context->member);
    free(context->piece);
    free((void *)context->parts);
    free(context);
}

DPARI_INTERNAL void dpari_nccl_kept_free(dpar_comm *comm)
{
    if (comm != NULL) {
        dpari_nccl_ctx_free(dpari_nccl_ctx_of(comm));
    }
}

DPARI_INTERNAL void dpari_nccl_world_end(dpari_nccl_world *world)
{
    dpari_nccl_message m;
    dpar_comm *comm;
    int32_t i;
    if (world->watched) {
        DPARI_STORE(&world->ending, 1u);
        (void)!write(world->wake[1], "", 1);
        dpari_os_join(world->thread);
        dpari_nccl_side_turn(world); /* sends what has not been reported yet */
    }
    dpari_nccl_message_init(world, &m, DPARI_NCCL_BYE);
    dpari_nccl_tell(world, &m, -1);
    for (i = 0; i < world->side.links; i++) {
        if (world->side.link[i].fd >= 0) {
            (void)close(world->side.link[i].fd);
        }
    }
    if (world->side.listener >= 0) {
        (void)close(world->side.listener);
    }
    for (i = 0; i < world->side.knocks; i++) {
        (void)close(world->side.knock[i].fd);
    }
    for (i = 0; i < 2; i++) {
        if (world->wake[i] >= 0) {
            (void)close(world->wake[i]);
        }
    }
    dpari_nccl_lock(world);
    dpari_nccl_join_aborts(world, world->closed);
    dpari_nccl_unlock(world);
    while (world->closed != NULL) {
        dpari_nccl_ctx *context = world->closed;
        world->closed = context->next;
        dpari_nccl_ctx_free(context);
    }
    while ((comm = dpari_ended_take(&world->kept)) != NULL) {
        dpari_nccl_kept_free(comm);
    }
    while (world->memory != NULL) {
        dpari_nccl_memory *memory = world->memory;
        world->memory = memory->next;
        dpari_nccl_memory_end(world, memory);
        free(memory);
    }
    for (i = 0; world->slots != NULL && i < world->options.work_count; i++) {
        if (world->slots[i].ready != NULL) {
            (void)cudaEventDestroy(world->slots[i].ready);
        }
        if (world->slots[i].done != NULL) {
            (void)cudaEventDestroy(world->slots[i].done);
        }
    }
    (void)(world->scratch != NULL ? cudaFree(world->scratch) : cudaSuccess);
    (void)(world->staging != NULL ? cudaFreeHost(world->staging) : cudaSuccess);
    (void)(world->letters != NULL ? cudaFreeHost(world->letters) : cudaSuccess);
    (void)(world->own_stream ? cudaStreamDestroy(world->stream) : cudaSuccess);
    (void)(world->freeing != NULL ? cudaStreamDestroy(world->freeing) : cudaSuccess);
    (void)cudaGetLastError();
    (void)pthread_mutex_destroy(&world->lock);
    free(world->side.link);
    free(world->side.note);
    free(world->side.known);
    free(world->side.polls);
    free(world->side.knock);
    free(world->node);
    free(world->log);
    free(world->slots);
    free(world->used);
    free(world);
}

DPARI_INTERNAL dpar_status dpari_nccl_world_make(int32_t rank, int32_t size,
                                                 const dpar_nccl_desc *options,
                                                 const dpar_engine *engine, dpari_nccl_world **out,
                                                 dpar_why *why)
{
    dpari_nccl_world *world = (dpari_nccl_world *)calloc(1, sizeof *world);
    dpar_status status;
    *out = world;
    if (world == NULL) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "dpar_nccl_make: no memory for the state of rank %d (%ld bytes)", rank,
                         (int64_t)sizeof *world);
    }
    world->rank = rank;
    world->size = size;
    world->engine = *engine;
    world->wake[0] = world->wake[1] = world->side.listener = -1;
    world->period = 0.05;
    (void)pthread_mutex_init(&world->lock, NULL);
    status = dpari_nccl_choose(&world->options, options, size, why);
    world->options.work_count = status < 0 ? 0 : world->options.work_count;
    if (status >= 0) {
        status = dpari_nccl_load(&world->api, why);
    }
    if (status < 0) {
        return status;
    }
    if (world->options.timeout_s > 0 && world->options.timeout_s < 0.8) {
        world->period = world->options.timeout_s / 16;
    }
    dpari_nccl_share_device(world->api.version, rank);
    world->log = world->options.log_file != NULL ? strdup(world->options.log_file) : NULL;
    world->options.log_file = world->log;
    dpari_nccl_ask_for_log(world->log);
    status = dpari_nccl_make_memory(world, why);
    return status >= 0 ? dpari_nccl_make_slots(world, why) : status;
}

/* ==== nccl/card.c ==== */

/* Makes and checks rank 0's card. It contains what ranks have to agree on, so that each rank can
 * check it when it gets it, without further messages. A rank 0 that cannot begin sends its card all
 * the same, with `ending` set, so that the others fail at once and do not wait for it. */

/* Turns a job's number into a number that no other run of the job has. */
static uint64_t dpari_nccl_nonce(uint64_t job)
{
    return job ^ (uint64_t)getpid() << 32 ^ (uint64_t)(int64_t)(dpari_os_now() * 1e9);
}

static int32_t dpari_nccl_bits_of(const dpar_nccl_desc *o)
{
    return (o->rank_order != 0) | (o->elastic != 0) << 1 | (o->timeout_s < 0) << 2 |
           (o->no_watchdog != 0) << 3;
}

DPARI_INTERNAL dpar_status dpari_nccl_card_begin(dpari_nccl_world *world, uint64_t job,
                                                 dpar_why *why)
{
    dpari_nccl_side *s = &world->side;
    dpari_nccl_card *card = &s->card;
    memset(card, 0, sizeof *card);
    card->magic = DPARI_NCCL_MAGIC;
    card->job = dpari_nccl_nonce(job);
    card->size = world->size;
    card->version = world->api.version;
    card->options = dpari_nccl_bits_of(&world->options);
    if (world->options.no_watchdog || world->size == 1) {
        return DPAR_OK;
    }
    if (dpari_nccl_draw(&card->key) != 0) {
        return dpari_say(DPAR_E_SYSTEM, why, "cannot read random numbers from /dev/urandom");
    }
    s->listener = dpari_nccl_listen(s->local, &card->port);
    if (s->local) {
        dpari_nccl_loopback(&card->address[0]);
        card->addresses = 1;
    } else {
        card->addresses = dpari_nccl_addresses(card->address, DPARI_NCCL_ADDRESSES);
    }
    if (s->listener < 0) {
        card->addresses = 0;
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_card_id(dpari_nccl_world *world, dpar_why *why)
{
    ncclResult_t code = world->api.GetUniqueId(&world->side.card.id);
    if (code != ncclSuccess) {
        dpari_nccl_say(&world->api, why, "ncclGetUniqueId", code);
        return DPAR_E_SYSTEM;
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_own_card(dpari_nccl_world *world, uint64_t job, dpar_why *why)
{
    dpar_status status = dpari_nccl_card_begin(world, job, why);
    if (status >= 0) {
        status = dpari_nccl_card_id(world, why);
    }
    world->side.card.ending = status < 0;
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_card_fits(const dpari_nccl_world *world,
                                                const dpari_nccl_card *card, dpar_why *why)
{
    char mine[24], theirs[24];
    dpar_text t;
    if (card->magic != DPARI_NCCL_MAGIC) {
        return dpari_say(DPAR_E_MISMATCH, why, "rank 0 uses another version of dpar");
    }
    if (card->size != world->size) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "rank 0 was started with %d ranks, but this rank with %d", card->size,
                         world->size);
    }
    if (card->ending != 0) {
        return dpari_say(DPAR_E_PEER, why, "rank 0 could not begin: see its own message");
    }
    if (card->version != world->api.version) {
        dpar_text_init(&t, mine, sizeof mine);
        dpari_nccl_put_version(&t, world->api.version);
        dpar_text_init(&t, theirs, sizeof theirs);
        dpari_nccl_put_version(&t, card->version);
        return dpari_say(DPAR_E_MISMATCH, why, "this rank has NCCL %s, rank 0 has %s", mine,
                         theirs);
    }
    if (card->options != dpari_nccl_bits_of(&world->options)) {
        return dpari_say(DPAR_E_MISMATCH, why,
                         "this rank and rank 0 pass different values of rank_order, elastic or "
                         "no_watchdog, or only one of them a timeout_s below 0");
    }
    return DPAR_OK;
}

/* ==== nccl/communicator.c ==== */

/* Makes and ends communicators. All calls of NCCL here are non-blocking and polled until the
 * deadline (settle.c). A communicator leaves its world before it is destroyed: its slots,
 * registrations and place in the list are removed with the lock held, so that the watchdog does not
 * see it any more. */

DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_ctx_make(dpari_nccl_world *world, int32_t rank,
                                                   int32_t size)
{
    dpari_nccl_ctx *context = (dpari_nccl_ctx *)calloc(1, sizeof *context);
    if (context == NULL) {
        return NULL;
    }
    context->member = (int32_t *)calloc((size_t)size, sizeof *context->member);
    context->piece = (dpari_nccl_piece *)calloc((size_t)size, sizeof *context->piece);
    context->parts = (const void **)calloc((size_t)size, sizeof *context->parts);
    if (context->member == NULL || context->piece == NULL || context->parts == NULL) {
        free(context->member);
        free(context->piece);
        free(context->parts);
        free(context);
        return NULL;
    }
    context->world = world;
    context->comm.rank = rank;
    context->comm.size = size;
    context->comm.timeout_s = world->options.timeout_s;
    context->comm.mem = world->options.mem;
    context->comm.context = context;
    context->comm.engine = world->engine;
    return context;
}

DPARI_INTERNAL dpar_status dpari_nccl_ctx_missing(dpar_why *why, const char *doing, int32_t size)
{
    const int64_t each = sizeof(int32_t) + sizeof(dpari_nccl_piece) + sizeof(void *);
    return dpari_say(DPAR_E_MEMORY, why, "%s: no memory for a communicator of %d ranks (%ld bytes)",
                     doing, size, (int64_t)sizeof(dpari_nccl_ctx) + size * each);
}

DPARI_INTERNAL void dpari_nccl_join(dpari_nccl_ctx *context)
{
    dpari_nccl_ctx **at = &context->world->comms;
    dpari_nccl_lock(context->world);
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = context;
    dpari_nccl_unlock(context->world);
}

DPARI_INTERNAL void dpari_nccl_config(const dpari_nccl_world *world, ncclConfig_t *config)
{
    ncclConfig_t fresh = NCCL_CONFIG_INITIALIZER;
    *config = fresh;
    config->blocking = 0;
    if ((int32_t)config->version > world->api.version) {
        config->version =
            (unsigned)world->api.version; /* an older library reads only the fields that it knows */
    }
}

DPARI_INTERNAL uint64_t dpari_nccl_name(const dpari_nccl_ctx *context, int64_t number,
                                        const dpari_nccl_ctx *part)
{
    const uint64_t prime = UINT64_C(1099511628211); /* that of the FNV-1a hash */
    uint64_t h = (context->name ^ (uint64_t)number) * prime;
    int32_t r;
    for (r = 0; r < part->comm.size; r++) {
        h = (h ^ h >> 32 ^ (uint64_t)part->member[r]) * prime;
    }
    return h == 0 ? 1 : h;
}

/* On rank 0: writes "; not connected: ranks 2, 3" for up to 8 ranks that have never connected to
 * it. */
static void dpari_nccl_put_away(dpar_text *text, dpari_nccl_world *world)
{
    int32_t r, n = 0;
    for (r = 1; world->rank == 0 && r < world->side.links; r++) {
        if (world->side.link[r].state == DPARI_NCCL_AWAY) {
            if (n < 8) {
                dpari_text_say(text, "%s%d", n == 0 ? "; not connected: ranks " : ", ", r);
            }
            n++;
        }
    }
    dpar_text_put(text, n > 8 ? ", ..." : "");
}

/* Makes the world's NCCL communicator. */
static dpar_status dpari_nccl_init_rank(dpari_nccl_world *world, dpari_nccl_ctx *context,
                                        dpar_why *why)
{
    ncclConfig_t config;
    ncclResult_t code;
    dpar_text t;
    dpari_nccl_config(world, &config);
    code = world->api.CommInitRankConfig(&context->nccl, (int)world->size, world->side.card.id,
                                         (int)world->rank, &config);
    if ((code == ncclSuccess || code == ncclInProgress) && context->nccl != NULL) {
        code = dpari_nccl_through(&world->api, context->nccl, NULL, world->options.timeout_s);
    }
    if (code == ncclSuccess) {
        return DPAR_OK;
    }
    if (code == ncclInProgress && why != NULL) {
        dpari_text_why(&t, why);
        dpari_text_print(&t,
                         "making a communicator of %d ranks: not finished after %.3g s on rank %d",
                         world->size, world->options.timeout_s, world->rank);
        dpari_nccl_put_away(&t, world);
    } else if (code != ncclInProgress) {
        dpari_nccl_say(&world->api, why, "ncclCommInitRank", code);
    }
    if (context->nccl != NULL) {
        (void)world->api.CommAbort(context->nccl);
        context->nccl = NULL;
    }
    return code == ncclInProgress ? (dpar_status)DPAR_E_TIMEOUT : (dpar_status)DPAR_E_SYSTEM;
}

DPARI_INTERNAL dpar_status dpari_nccl_begin_world(dpari_nccl_world *world, dpari_nccl_ctx **out,
                                                  dpar_why *why)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_make(world, world->rank, world->size);
    dpar_status status;
    int32_t r;
    if (context == NULL) {
        return dpari_nccl_ctx_missing(why, "dpar_nccl_make", world->size);
    }
    for (r = 0; r < world->size; r++) {
        context->member[r] = r;
    }
    status = dpari_nccl_init_rank(world, context, why);
    if (status < 0) {
        dpari_nccl_ctx_free(context);
        return status;
    }
    dpari_nccl_join(context);
    *out = context;
    return DPAR_OK;
}

DPARI_INTERNAL int32_t dpari_nccl_leave(dpari_nccl_ctx *context)
{
    dpari_nccl_world *world = context->world;
    dpari_nccl_ctx **at = &world->comms;
    dpari_nccl_memory *memory;
    int32_t i, lost = 0;
    dpari_nccl_lock(world);
    for (i = 0; i < world->options.work_count; i++) {
        dpari_nccl_slot *slot = &world->slots[i];
        if (slot->ctx == context) {
            slot->ctx = NULL;
            lost += slot->works;
            if (slot->works > 0) {
                slot->works = 0;
                dpari_nccl_slot_free(world, slot);
            }
        }
    }
    while (*at != context && *at != NULL) {
        at = &(*at)->next;
    }
    if (*at == context) {
        *at = context->next;
    }
    for (memory = world->memory; memory != NULL; memory = memory->next) {
        if (memory->ctx == context) {
            dpari_nccl_memory kept = *memory;
            kept.owned = 0;
            dpari_nccl_memory_end(world, &kept);
            memory->ctx = NULL;
            memory->near = NULL;
        }
    }
    dpari_nccl_unlock(world);
    return lost;
}

/* Ends the context's NCCL communicator: regularly, or by an abort if it is broken or the regular
 * end fails. */
static void dpari_nccl_destroy(dpari_nccl_ctx *context)
{
    const dpari_nccl_api *api = &context->world->api;
    ncclComm_t nccl = context->nccl;
    ncclResult_t code;
    if (nccl == NULL) {
        return;
    }
    code = ncclInternalError;
    if (context->comm.status >= 0) {
        code = api->CommFinalize(nccl);
        if (code == ncclSuccess || code == ncclInProgress) {
            code = dpari_nccl_through(api, nccl, &context->comm.status, context->comm.timeout_s);
        }
    }
    if (code == ncclSuccess) {
        context->nccl = NULL;
        (void)api->CommDestroy(nccl);
    } else {
        dpari_nccl_abort_comm(context);
    }
}

DPARI_INTERNAL void dpari_nccl_retire(dpari_nccl_ctx *context)
{
    dpari_nccl_destroy(context);
    if (context->ends == 1) {
        dpari_on_end_all(&context->comm);
        context->next = context->world->closed;
        context->world->closed = context;
    } else {
        dpari_nccl_kept_free(dpari_ended_keep(&context->world->kept, &context->comm));
    }
}

/* ==== nccl/split.c ==== */

/* Splits a communicator. The ranks first exchange colors and keys over page-locked memory, from
 * which each computes its new communicator's ranks; this also waits for everything that was
 * enqueued before. Then all call ncclCommSplit, which is polled until the deadline. */

typedef struct dpari_nccl_row {
    int32_t color, key;
    int32_t world;
} dpari_nccl_row;

/* Gathers `bytes` from each rank into `all`, which already holds this rank's bytes at their
 * place. */
static dpar_status dpari_nccl_tell_all(dpari_nccl_ctx *context, char *all, int64_t bytes)
{
    dpar_call call;
    int32_t r;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_BARRIER;
    call.root = DPARI_SPLIT;
    call.type = DPAR_U8;
    for (r = 0; r < context->comm.size; r++) {
        context->piece[r].from = all + bytes * context->comm.rank;
        context->piece[r].to = all + bytes * r;
        context->piece[r].give = context->piece[r].take = bytes;
    }
    return dpari_nccl_host_move(context, &call);
}

/* True if rank a comes before rank b in the new communicator, if both have the same color. */
static int dpari_nccl_row_before(const dpari_nccl_row *row, int32_t a, int32_t b)
{
    return row[a].key < row[b].key || (row[a].key == row[b].key && a < b);
}

/* Locked. Waits for an NCCL call that makes a communicator of the context's ranks. The new one
 * exists only once the context's own communicator is no longer in progress, whatever the call
 * returned. */
static ncclResult_t dpari_nccl_made(dpari_nccl_ctx *context, ncclResult_t code, ncclComm_t *to)
{
    if (code == ncclSuccess || code == ncclInProgress) {
        code = dpari_nccl_settle(context);
    }
    if (code == ncclSuccess && context->made != NULL) {
        code = dpari_nccl_through(&context->world->api, context->made, &context->comm.status,
                                  context->comm.timeout_s);
    }
    *to = context->made;
    context->made = NULL;
    return code;
}

static dpar_status dpari_nccl_split_by_nccl(dpari_nccl_ctx *context, dpari_nccl_ctx *part,
                                            int32_t color, int32_t key)
{
    dpari_nccl_world *world = context->world;
    ncclConfig_t config;
    ncclComm_t made = NULL;
    ncclResult_t code = ncclInternalError;
    dpar_status status = DPAR_OK;
    dpari_nccl_config(world, &config);
    dpari_nccl_lock(world);
    if (context->nccl != NULL) {
        code = world->api.CommSplit(context->nccl, color < 0 ? -1 : (int)color, (int)key,
                                    &context->made, &config);
        code = dpari_nccl_made(context, code, &made);
    }
    if (part != NULL) {
        part->nccl = made;
        code = code == ncclSuccess && made == NULL ? ncclInternalError : code;
    }
    if (code == ncclInProgress) {
        dpar_why why;
        (void)dpari_say(DPAR_E_TIMEOUT, &why,
                        "split on rank %d of %d: NCCL did not finish it before the deadline",
                        context->comm.rank, context->comm.size);
        status = dpari_nccl_break(context, DPAR_E_TIMEOUT, why.text, 1);
    } else if (code != ncclSuccess) {
        status = dpari_nccl_failed(context, "split", code);
    }
    dpari_nccl_unlock(world);
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_split(dpar_comm *comm, int32_t color, int32_t key,
                                            dpar_comm **out)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm), *part = NULL;
    dpari_nccl_world *world = context->world;
    const int32_t n = comm->size, me = comm->rank;
    dpari_nccl_row *row = (dpari_nccl_row *)calloc((size_t)n, sizeof *row);
    int32_t r, size = 0, rank = 0;
    dpar_status status;
    if (row == NULL) {
        return dpari_say(DPAR_E_MEMORY, &comm->why,
                         "split: no memory for the colors and keys of %d ranks (%ld bytes)", n,
                         n * (int64_t)sizeof *row);
    }
    row[me].color = color < 0 ? -1 : color;
    row[me].key = key;
    row[me].world = world->rank;
    dpari_nccl_flush(world);
    status =
        dpari_nccl_tell_all(context, (char *)row, (int64_t)sizeof *row); /* after this, everything
                                                                            that was enqueued before
                                                                            is done */
    for (r = 0; r < n && status >= 0; r++) {
        if (color >= 0 && row[r].color == color) {
            size++;
            rank += dpari_nccl_row_before(row, r, me);
        }
    }
    if (status >= 0 && color >= 0) {
        part = dpari_nccl_ctx_make(world, rank, size);
        if (part == NULL) {
            status = dpari_nccl_ctx_missing(&comm->why, "split", size);
        }
    }
    for (r = 0; r < n && status >= 0 && part != NULL; r++) {
        if (row[r].color == color) {
            int32_t at = 0, q;
            for (q = 0; q < n; q++) {
                at += row[q].color == color && dpari_nccl_row_before(row, q, r);
            }
            part->member[at] = row[r].world;
        }
    }
    free(row);
    context->splits++;
    if (part != NULL) {
        part->name = dpari_nccl_name(context, context->splits, part);
    }
    if (status >= 0) {
        status = dpari_nccl_split_by_nccl(context, part, color, key);
    }
    if (status < 0) {
        if (part != NULL) {
            dpari_nccl_ctx_free(part);
        }
        return status;
    }
    if (part != NULL) {
        part->comm.timeout_s = comm->timeout_s;
        dpari_nccl_join(part);
    }
    *out = part != NULL ? &part->comm : NULL;
    return DPAR_OK;
}

/* ==== nccl/nccl_shrink.c ==== */

/* Shrinks a communicator by ncclCommShrink. NCCL gets a list of the ranks that are gone, and aborts
 * the operations of a broken communicator itself. The new communicator belongs to the same world as
 * the old one. */

/* Locked. Makes a communicator without the ranks that are gone. If the context is broken, NCCL may
 * still be revoking it, so this first waits for that. The new communicator exists only once the
 * context's own one is no longer in progress. */
static ncclResult_t dpari_nccl_shrink_to(dpari_nccl_ctx *context, int *gone, int32_t n,
                                         ncclComm_t *to, ncclConfig_t *config)
{
    const dpari_nccl_api *api = &context->world->api;
    const int flags = context->comm.status < 0 ? (int)DPARI_NCCL_SHRINK_ABORT : 0;
    ncclResult_t code = dpari_nccl_through(api, context->nccl, NULL, context->comm.timeout_s);
    if (code == ncclInProgress) {
        return code;
    }
    code = api->CommShrink(context->nccl, gone, (int)n, &context->made, config, flags);
    if (code == ncclSuccess || code == ncclInProgress) {
        code = dpari_nccl_through(api, context->nccl, NULL, context->comm.timeout_s);
    }
    if (code == ncclSuccess && context->made != NULL) {
        code = dpari_nccl_through(api, context->made, NULL, context->comm.timeout_s);
    }
    *to = context->made;
    context->made = NULL;
    return code;
}

DPAR_API dpar_status dpar_nccl_shrink(dpar_comm *comm, const int32_t *gone, int32_t n,
                                      dpar_comm **out, dpar_why *why)
{
    dpari_nccl_ctx *context, *part;
    dpari_nccl_world *world;
    ncclConfig_t config;
    ncclResult_t code;
    int32_t r, i = 0, rank = 0, at = 0;
    int *list;
    if (comm == NULL || out == NULL || gone == NULL || n < 1 ||
        strcmp(comm->engine.name, "nccl") != 0) {
        return dpari_wrong(
            why,
            "dpar_nccl_shrink: comm is not from dpar_nccl_make, gone is empty, or out is NULL");
    }
    context = dpari_nccl_ctx_of(comm);
    world = context->world;
    if (world->api.CommShrink == NULL || !world->options.elastic || context->nccl == NULL) {
        return dpari_say(DPAR_E_UNKNOWN, why,
                         "dpar_nccl_shrink: needs NCCL 2.27 or later, and a communicator made with "
                         "elastic = 1");
    }
    for (r = 0; r < n; r++) {
        if (gone[r] < 0 || gone[r] >= comm->size || gone[r] == comm->rank ||
            (r > 0 && gone[r] <= gone[r - 1])) {
            return dpari_wrong(why,
                               "dpar_nccl_shrink: gone[%d] is %d, but gone must list ranks from 0 "
                               "to %d without this one, in ascending order",
                               r, gone[r], comm->size - 1);
        }
        rank += gone[r] < comm->rank;
    }
    part = dpari_nccl_ctx_make(world, comm->rank - rank, comm->size - n);
    list = (int *)calloc((size_t)n + 1, sizeof *list);
    if (part == NULL || list == NULL) {
        free(list);
        if (part != NULL) {
            dpari_nccl_ctx_free(part);
        }
        return dpari_nccl_ctx_missing(why, "dpar_nccl_shrink", comm->size - n);
    }
    for (r = 0; r < comm->size; r++) {
        if (i < n && gone[i] == r) {
            list[i++] = (int)r;
        } else {
            part->member[at++] = context->member[r];
        }
    }
    part->name = dpari_nccl_name(context, -1, part); /* -1, because ranks may have split a broken
                                                        communicator different numbers of times */
    dpari_nccl_config(world, &config);
    dpari_nccl_lock(world);
    code = dpari_nccl_shrink_to(context, list, n, &part->nccl, &config);
    dpari_nccl_unlock(world);
    free(list);
    if (code != ncclSuccess || part->nccl == NULL) {
        dpari_nccl_say(&world->api, why, "dpar_nccl_shrink",
                       code == ncclSuccess ? ncclInternalError : code);
        dpari_nccl_ctx_free(part);
        return code == ncclInProgress ? (dpar_status)DPAR_E_TIMEOUT : (dpar_status)DPAR_E_SYSTEM;
    }
    part->comm.timeout_s = comm->timeout_s;
    dpari_nccl_join(part);
    *out = &part->comm;
    return DPAR_OK;
}

/* ==== nccl/lent_memory.c ==== */

/* Memory that other devices of the node read directly.
 *
 * It is a window of NCCL's symmetric memory (2.27). The host can get its address at a peer
 * (2.29.2). Behind the user's bytes there are four sets of 32-bit flags, one flag for each rank in
 * each set, and as many words of value 1. Flag [set][r] of this rank is alternately set by rank r's
 * device and cleared by this one:
 *
 *     meet(set):  one -> flag [set][me] of each peer      copies of 4 bytes
 *                 until own flag [set][r] is 1, for each  the driver's waits: no kernel spins
 *                 own flag [set][r] = 0, for each
 *
 * This runs on the communicators' stream, after an event of the compute stream, as all operations
 * do, and dpar_wait lets the compute stream wait for an event after it. NCCL's own collectives by
 * copy engines synchronise in the same way (ce_coll.cc: copies of one word to peers, and waits of
 * cuStreamBatchMemOp).
 *
 * Order. What a kernel wrote is visible to all devices once it has ended. The event waits for that,
 * so it is visible before the flag is set. The peer's kernel that reads it begins after its wait
 * for the flag. Memory of a device is cached in the L2 of that device, where peers read it over
 * NVLink, so that they can have outdated copies in an L1 only, and these are empty when a kernel
 * begins.
 *
 * What is written when (an exchange writes its part, meets, and reads its peers' parts):
 *
 *     called, part k % 2:   the part of exchange k is written again in exchange k + 2, after the
 *                           meeting of k + 1. A peer joins that meeting when its stream has
 *                           finished exchange k, so that one meeting for each exchange is enough
 *     in a graph, part 2:   because a replay may follow itself directly, it also meets (set 3)
 *                           before it writes
 *
 * Therefore no flag is set twice before it is cleared. Sets 0 and 1: rank r sets its flag for
 * exchange k + 2 after the meeting of k + 1, before which this rank has cleared the flags of k,
 * because meetings are in stream order. Sets 2 and 3 alternate, and a rank sets a flag of one only
 * after the meeting of the other. Calls and graphs use different sets and parts, so that they can
 * be mixed in any order. tests/model/near.pml checks all orders.
 *
 * If a peer does not come, its deadline, or the loss of the rank, breaks the communicator, because
 * a meeting is an operation at the head of the stream like others. Then copies on another stream
 * set the flags of this rank, again and again, until everything that was enqueued has run. NCCL
 * keeps its mappings until the communicator is closed (dpari_nccl_stop). */

enum {
    DPARI_NCCL_GRAPH = 2,   /* set and part for graphs, */
    DPARI_NCCL_BEFORE = 3,  /* and the set for the meeting before they write */
    DPARI_NCCL_AT_ONCE = 64 /* the most flags in one call of the driver */
};

DPARI_INTERNAL void dpari_nccl_drain(dpari_nccl_ctx *context)
{
    dpari_nccl_world *world = context->world;
    const double until = dpari_os_now() + 10;
    while (context->lends && context->comm.status < 0 && dpari_os_now() < until &&
           (cudaStreamQuery(world->stream) == cudaErrorNotReady ||
            cudaStreamQuery(world->options.stream) == cudaErrorNotReady)) {
        dpari_nccl_lock(world);
        dpari_nccl_free_waits(world);
        dpari_nccl_unlock(world);
        dpari_nccl_nap();
    }
    (void)cudaGetLastError();
}

/* Gets the driver's cuStreamBatchMemOp through the runtime. */
static void dpari_nccl_find_ops(dpari_nccl_world *world)
{
#if CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    void *at = NULL;
    cudaError_t code;
#if CUDART_VERSION >= 12050
    code = cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &at, 12000, cudaEnableDefault,
                                            &found);
#else
    code = cudaGetDriverEntryPoint("cuStreamBatchMemOp", &at, cudaEnableDefault, &found);
#endif
    if (code == cudaSuccess && found == cudaDriverEntryPointSuccess) {
        memcpy(&world->ops, &at, sizeof at);
    }
    (void)cudaGetLastError();
#else
    (void)world;
#endif
}

/* True if this rank can lend memory, as far as that is known without trying. */
static int dpari_nccl_can_lend(dpari_nccl_world *world)
{
    const char *wanted = getenv("DPAR_NCCL_LEND");
    if (world->api.GetPeerDevicePointer == NULL || world->api.CommWindowRegister == NULL ||
        world->api.CommRevoke == NULL || !world->watched ||
        (wanted != NULL && strcmp(wanted, "0") == 0)) {
        return 0;
    }
    if (world->ops == NULL) {
        dpari_nccl_find_ops(world);
    }
    if (world->ops != NULL && world->freeing == NULL &&
        cudaStreamCreateWithFlags(&world->freeing, cudaStreamNonBlocking) != cudaSuccess) {
        (void)cudaGetLastError();
        world->freeing = NULL;
    }
    return world->ops != NULL && world->freeing != NULL;
}

/* Sets worst[0] to the most bytes that any rank needs, and worst[1] to the largest value of `says`
 * on any rank: 0 it can lend, 1 it cannot, 2 it failed. Collective. */
static dpar_status dpari_nccl_agree_to_lend(dpar_comm *comm, int64_t bytes, int64_t says,
                                            int64_t *worst)
{
    int64_t mine[2];
    mine[0] = bytes;
    mine[1] = says;
    return dpar_all_reduce(comm, mine, worst, 2, DPAR_I64, DPAR_MAX, NULL);
}

static dpari_nccl_memory *dpari_nccl_lent(const dpari_nccl_ctx *context, const void *memory)
{
    dpari_nccl_memory *m = context->world->memory;
    while (m != NULL && (m->memory != memory || m->ctx != context || m->window == NULL)) {
        m = m->next;
    }
    return m;
}

/* Prepares registered memory for lending: writes the words of value 1 (the flags are 0 already),
 * and gets the addresses of the other ranks' memory. */
static dpar_status dpari_nccl_lend_out(dpari_nccl_ctx *context, void *memory, int64_t flags)
{
    dpari_nccl_world *world = context->world;
    const int64_t bytes = dpari_nccl_flag_bytes(context);
    dpari_nccl_memory *m = dpari_nccl_lent(context, memory);
    uint32_t *ones = m != NULL ? (uint32_t *)malloc((size_t)bytes) : NULL;
    char **near = m != NULL ? (char **)calloc((size_t)context->comm.size, sizeof *near) : NULL;
    cudaError_t code = cudaSuccess;
    int64_t i;
    int32_t r;
    if (m == NULL) {
        return DPAR_OK; /* NCCL made no window, because there is no symmetric memory here */
    }
    if (near == NULL || ones == NULL) {
        free(ones);
        free((void *)near);
        return dpari_say(DPAR_E_MEMORY, &context->comm.why,
                         "no host memory to share device memory with %d ranks (%ld bytes)",
                         context->comm.size, bytes + context->comm.size * (int64_t)sizeof *near);
    }
    for (i = 0; i < bytes / 4; i++) {
        ones[i] = 1;
    }
    code = cudaMemcpyAsync((char *)memory + flags + bytes, ones, (size_t)bytes, cudaMemcpyDefault,
                           world->stream);
    free(ones); /* a copy from pageable memory has read its source when it returns */
    if (code != cudaSuccess) {
        free((void *)near);
        return dpari_nccl_cuda_broke(context, "writing the flags of shared device memory", code);
    }
    dpari_nccl_lock(world);
    context->lends = 1;
    m->flags = flags;
    m->near = near;
    for (r = 0; r < context->comm.size; r++) {
        void *at = NULL;
        if (r != context->comm.rank &&
            world->api.GetPeerDevicePointer(m->window, 0, (int)r, &at) == ncclSuccess) {
            near[r] = (char *)at;
        }
    }
    dpari_nccl_unlock(world);
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_lend(dpar_comm *comm, int64_t bytes, int32_t can,
                                           void **memory)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    const int64_t more = 2 * dpari_nccl_flag_bytes(context);
    int64_t worst[2] = {0, 1}, whole;
    dpar_status status, all;
    if (comm->size == 1 || comm->status < 0) {
        return dpari_nccl_alloc(comm, bytes, memory);
    }
    can = can && bytes < INT64_MAX / 2 && dpari_nccl_can_lend(context->world);
    status = dpari_nccl_agree_to_lend(comm, bytes, !can, worst);
    if (status < 0 || worst[1] > 0) {
        return status < 0 ? status : dpari_nccl_alloc(comm, bytes, memory);
    }
    whole = ((worst[0] + 63) / 64 * 64 + more + 4095) / 4096 * 4096; /* the same on all ranks */
    status = dpari_nccl_alloc(comm, whole, memory);
    can = status >= 0 && dpari_nccl_windows(context, *memory, whole);
    all = dpari_nccl_agree_to_lend(comm, 0, status < 0 ? 2 : !can, worst);
    if (all >= 0 && worst[1] == 0) {
        status = dpar_nccl_register(comm, *memory, whole);
        if (status >= 0) {
            status = dpari_nccl_lend_out(context, *memory, whole - more);
        }
        all = dpari_nccl_agree_to_lend(comm, 0, status < 0 ? 2 : 0, worst);
    }
    if (status >= 0 && (all < 0 || worst[1] == 2)) {
        dpari_nccl_release(comm, *memory);
        return all < 0 ? all
                       : dpari_say(DPAR_E_MEMORY, &comm->why,
                                   "another rank could not share %ld bytes of device memory: see "
                                   "its own message",
                                   whole);
    }
    return status;
}

DPARI_INTERNAL void *dpari_nccl_at_peer(dpar_comm *comm, void *memory, int32_t rank)
{
    const dpari_nccl_memory *m = dpari_nccl_lent(dpari_nccl_ctx_of(comm), memory);
    return m != NULL && m->near != NULL && rank >= 0 && rank < comm->size ? m->near[rank] : NULL;
}

static void dpari_nccl_set_flags(dpari_nccl_run *run, const dpari_nccl_memory *memory,
                                 const int32_t *ranks, int32_t n, int32_t set)
{
    const dpari_nccl_ctx *context = run->c;
    const int64_t mine =
        memory->flags + 4 * ((int64_t)set * context->comm.size + context->comm.rank);
    const char *one = (const char *)memory->memory + memory->flags + dpari_nccl_flag_bytes(context);
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_nccl_copy(run, memory->near[ranks[i]] + mine, one, 4);
    }
}

static void dpari_nccl_await_flags(dpari_nccl_run *run, const dpari_nccl_memory *memory,
                                   const int32_t *ranks, int32_t n, int32_t set)
{
    dpari_nccl_stream_op ops[2 * DPARI_NCCL_AT_ONCE];
    const uint64_t own = (uint64_t)(uintptr_t)memory->memory + (uint64_t)memory->flags;
    int32_t i, k;
    for (i = 0; i < n && dpari_nccl_well(run); i += DPARI_NCCL_AT_ONCE) {
        const int32_t some = n - i < DPARI_NCCL_AT_ONCE ? n - i : (int32_t)DPARI_NCCL_AT_ONCE;
        memset(ops, 0, sizeof ops);
        for (k = 0; k < some; k++) {
            dpari_nccl_stream_op *wait = &ops[k], *clear = &ops[some + k];
            wait->operation = DPARI_NCCL_WAIT_32;
            wait->address =
                own + 4 * ((uint64_t)set * (uint64_t)run->c->comm.size + (uint64_t)ranks[i + k]);
            wait->value = 1;
            wait->flags = DPARI_NCCL_WAIT_EQ;
            clear->operation = DPARI_NCCL_WRITE_32;
            clear->address = wait->address;
        }
        if (run->c->world->ops(run->stream, (unsigned)(2 * some), ops, 0) != 0) {
            run->cuda = cudaErrorUnknown;
        }
    }
}

/* Enqueues one meeting as an operation. */
static dpar_status dpari_nccl_meet_in(dpari_nccl_ctx *context, const dpari_nccl_memory *memory,
                                      const int32_t *ranks, int32_t n, int32_t set, dpar_work *work)
{
    dpari_nccl_run x;
    dpari_nccl_slot *slot;
    dpar_call call;
    dpar_status status = DPAR_OK;
    memset(&call, 0, sizeof call);
    call.kind = DPAR_CALL_RECV;
    call.type = DPAR_U32;
    call.count = 1;
    call.root = ranks[0];
    slot = dpari_nccl_begin(context, &call, &status);
    if (slot == NULL) {
        return status;
    }
    slot->meets = n;
    dpari_nccl_run_init(&x, context, &slot->call);
    dpari_nccl_set_flags(&x, memory, ranks, n, set);
    dpari_nccl_await_flags(&x, memory, ranks, n, set);
    status = dpari_nccl_end(slot, 1, dpari_nccl_result(&x));
    if (status >= 0) {
        memset(work, 0, sizeof *work);
        work->self = work;
        work->comm = &context->comm;
        work->call = call;
        work->status = DPAR_MORE;
        work->phase = DPARI_NCCL_ENQUEUED;
        dpari_nccl_keep(work, slot);
    }
    return status;
}

DPARI_INTERNAL dpar_status dpari_nccl_meet_near(dpar_comm *comm, void *memory, const int32_t *ranks,
                                                int32_t n, dpar_work *work)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_memory *m = dpari_nccl_lent(context, memory);
    dpar_work before;
    dpar_status status;
    if (m == NULL || m->near == NULL || n < 1) {
        return comm->status < 0 ? comm->status : (dpar_status)DPAR_E_ARG;
    }
    dpari_nccl_flush(context->world);
    if (work != NULL) {
        return dpari_nccl_meet_in(context, m, ranks, n, m->part, work);
    }
    if (!dpari_nccl_capturing(context->world)) {
        m->part = m->turns++ & 1;
        return (dpar_status)m->part;
    }
    m->part = DPARI_NCCL_GRAPH;
    status = dpari_nccl_meet_in(context, m, ranks, n, DPARI_NCCL_BEFORE, &before);
    if (status >= 0) {
        status = dpari_nccl_wait(&before);
    }
    return status < 0 ? status : (dpar_status)m->part;
}

/* ==== nccl/report.c ==== */

/* Writes reports from the ring of the last operations and from the notes that other ranks sent over
 * the side channel. */

DPARI_INTERNAL void dpari_nccl_report(dpar_comm *comm, dpar_text *out)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_world *world = context->world;
    int32_t r;
    dpari_nccl_lock(world);
    dpari_nccl_reap(world);
    dpari_record_report(out, comm, context->ring, context->records);
    for (r = 0; world->side.known != NULL && r < comm->size; r++) {
        const dpari_nccl_note *n = &world->side.note[context->member[r]];
        if (r != comm->rank && world->side.known[context->member[r]] && n->comm == context->name &&
            n->last.sequence >= 0) {
            dpari_text_say(out, "rank %d reported that it %s ", r,
                           n->last.state == DPAR_MORE ? "waits in" : "has finished");
            dpari_record_text(out, &n->last);
            dpari_text_char(out, '\n');
        }
    }
    dpari_nccl_unlock(world);
}

/* Returns the number of machines on which the context's ranks are, or 0 if it is not known. */
static int32_t dpari_nccl_nodes(const dpari_nccl_ctx *context)
{
    const uint64_t *node = context->world->node;
    int32_t r, k, nodes = 0;
    for (r = 0; node != NULL && r < context->comm.size; r++) {
        for (k = 0; k < r && node[context->member[k]] != node[context->member[r]]; k++) {
        }
        nodes += k == r;
    }
    return nodes;
}

DPARI_INTERNAL void dpari_nccl_describe(dpar_comm *comm, dpar_text *out)
{
    const int32_t nodes = dpari_nccl_nodes(dpari_nccl_ctx_of(comm));
    dpar_text_put(out, ", a GPU each");
    if (nodes > 0) {
        dpari_text_say(out, " on %d node%s", nodes, nodes == 1 ? "" : "s");
    }
    dpar_text_put(out, "; NCCL chooses the paths: in a node NVLink, PCIe or host memory");
    dpar_text_put(out, nodes == 1 ? "" : ", between nodes the network");
}

/* ==== nccl/store.c ==== */

/* torchrun's store, over which rank 0 sends its card to all ranks.
 *
 * The agent of torchrun on the first node serves a TCPStore of PyTorch (2.4 or later) at
 * MASTER_ADDR and MASTER_PORT. A request is one byte, which says what is wanted, and its arguments.
 * Numbers have the byte order of the machine; a text or a value is its length, 8 bytes, and its
 * bytes. The names of the queries are those of PyTorch's TCPStoreBackend.hpp.
 *
 * The store outlives the ranks: torchrun may restart them, each agent counts its own restarts, and
 * what ranks stored that have ended since is still there. Therefore nothing depends on counts or on
 * the state of earlier attempts. Each rank draws a ticket, a number that the store gives only once,
 * and stores it. Rank 0 stores its own ticket and the card under each ticket that it finds, and
 * asks again until every rank has stored rank 0's ticket, which shows that it has the card. */

enum {
    DPARI_NCCL_VALIDATE = 0, /* begins a connection; takes DPARI_NCCL_STORE_MAGIC */
    DPARI_NCCL_SET = 1,      /* key, value */
    DPARI_NCCL_GET = 3,      /* key; answers with its value */
    DPARI_NCCL_ADD = 4,      /* key, a number of 8 bytes; answers with the sum */
    DPARI_NCCL_WAIT = 6 /* a number of keys and each key; answers with a byte once they exist */
};

#define DPARI_NCCL_STORE_MAGIC UINT32_C(0x3C85F7CE)

/* Queries that are sent together. The longest, which stores a card and adds to two numbers, have
 * about 600 bytes. */
typedef struct dpari_nccl_request {
    char bytes[1024];
    size_t used;
} dpari_nccl_request;

static void dpari_nccl_put(dpari_nccl_request *q, const void *from, size_t bytes)
{
    memcpy(q->bytes + q->used, from, bytes);
    q->used += bytes;
}

static void dpari_nccl_put_value(dpari_nccl_request *q, const void *from, size_t bytes)
{
    const uint64_t length = bytes;
    dpari_nccl_put(q, &length, sizeof length);
    dpari_nccl_put(q, from, bytes);
}

/* Appends a query and the key "dpar_nccl/JOB/KIND/NUMBER". */
static void dpari_nccl_put_key(dpari_nccl_request *q, char query, uint64_t job, const char *kind,
                               int64_t number)
{
    const uint64_t one = 1;
    char key[80];
    dpar_text t;
    dpar_text_init(&t, key, sizeof key);
    dpari_text_say(&t, "dpar_nccl/%ld/%s/%ld", (int64_t)job, kind, number);
    dpari_nccl_put(q, &query, 1);
    if (query == DPARI_NCCL_WAIT) {
        dpari_nccl_put(q, &one, sizeof one);
    }
    dpari_nccl_put_value(q, key, strlen(key));
}

/* Appends a query that adds to a number, which is 0 if the key does not exist, and returns it. */
static void dpari_nccl_put_add(dpari_nccl_request *q, uint64_t job, const char *kind,
                               int64_t number, int64_t more)
{
    dpari_nccl_put_key(q, DPARI_NCCL_ADD, job, kind, number);
    dpari_nccl_put(q, &more, sizeof more);
}

/* Appends a query that stores a number, as a text, which ADD expects. */
static void dpari_nccl_put_number(dpari_nccl_request *q, uint64_t job, const char *kind,
                                  int64_t number, int64_t value)
{
    char digits[24];
    dpar_text t;
    dpar_text_init(&t, digits, sizeof digits);
    dpari_text_int(&t, value);
    dpari_nccl_put_key(q, DPARI_NCCL_SET, job, kind, number);
    dpari_nccl_put_value(q, digits, strlen(digits));
}

/* Sends a request and receives its answer. Returns -1 on failure. */
static int dpari_nccl_ask_store(int fd, dpari_nccl_request *q, void *answer, size_t bytes,
                                double until)
{
    const int bad = dpari_nccl_write(fd, q->bytes, q->used, until) != 0 ||
                    dpari_nccl_read(fd, answer, bytes, until) != 0;
    q->used = 0;
    return bad ? -1 : 0;
}

/* Begins the connection and draws this rank's ticket. Returns -1 on failure. */
static int dpari_nccl_draw_ticket(int fd, uint64_t job, int64_t *ticket, double until)
{
    const uint32_t magic = DPARI_NCCL_STORE_MAGIC;
    const char begin = DPARI_NCCL_VALIDATE;
    dpari_nccl_request q;
    q.used = 0;
    dpari_nccl_put(&q, &begin, 1);
    dpari_nccl_put(&q, &magic, sizeof magic);
    dpari_nccl_put_add(&q, job, "tickets", 0, 1);
    return dpari_nccl_ask_store(fd, &q, ticket, sizeof *ticket, until);
}

/* On rank 0: stores the bytes for all ranks until each of them has them, or until the deadline.
 * Returns the number of ranks that have not, with the lowest in *rank, or -1 on failure. */
static int dpari_nccl_give_card(int fd, const dpar_nccl_rendezvous *m, const void *bytes, size_t n,
                                int32_t *rank, double until)
{
    int64_t root = 0, of[2]; /* the ticket of a rank, and that of the rank 0 whose bytes it has */
    const uint64_t length = sizeof root + n;
    dpari_nccl_request q;
    int32_t r, missing;
    q.used = 0;
    if (dpari_nccl_draw_ticket(fd, m->job, &root, until) != 0) {
        return -1;
    }
    do {
        missing = 0;
        for (r = m->size - 1; r > 0; r--) {
            dpari_nccl_put_add(&q, m->job, "rank", r, 0);
            dpari_nccl_put_add(&q, m->job, "has", r, 0);
            /* a second longer than the deadline, after which the missing ranks are reported */
            if (dpari_nccl_ask_store(fd, &q, of, sizeof of, until + 1) != 0) {
                return -1;
            }
            if (of[1] == root) {
                continue;
            }
            missing++;
            *rank = r;
            if (of[0] != 0) {
                dpari_nccl_put_key(&q, DPARI_NCCL_SET, m->job, "card", of[0]);
                dpari_nccl_put(&q, &length, sizeof length);
                dpari_nccl_put(&q, &root, sizeof root);
                dpari_nccl_put(&q, bytes, n);
            }
        }
        if (missing > 0) {
            dpari_os_sleep(0.01);
        }
    } while (missing > 0 && dpari_os_now() < until);
    return missing;
}

/* On other ranks: gets the bytes that rank 0 has stored for this rank's ticket. Returns -1 on
 * failure. */
static int dpari_nccl_take_card(int fd, const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                double until)
{
    int64_t ticket = 0, root = 0;
    uint64_t length = 0;
    char exists = 1;
    dpari_nccl_request q;
    q.used = 0;
    if (dpari_nccl_draw_ticket(fd, m->job, &ticket, until) != 0) {
        return -1;
    }
    dpari_nccl_put_number(&q, m->job, "rank", m->rank, ticket);
    dpari_nccl_put_key(&q, DPARI_NCCL_WAIT, m->job, "card", ticket);
    if (dpari_nccl_ask_store(fd, &q, &exists, 1, until) != 0 || exists != 0) {
        return -1;
    }
    dpari_nccl_put_key(&q, DPARI_NCCL_GET, m->job, "card", ticket);
    if (dpari_nccl_ask_store(fd, &q, &length, sizeof length, until) != 0 ||
        length != sizeof root + n || dpari_nccl_read(fd, &root, sizeof root, until) != 0 ||
        dpari_nccl_read(fd, bytes, n, until) != 0) {
        return -1;
    }
    dpari_nccl_put_number(&q, m->job, "has", m->rank, root);
    return dpari_nccl_write(fd, q.bytes, q.used, until);
}

/* Connects to the store at m->address and m->port, trying again until the deadline. */
static dpar_status dpari_nccl_reach_store(const dpar_nccl_rendezvous *m, int *fd, double until,
                                          dpar_why *why)
{
    struct addrinfo hints, *all = NULL, *i;
    char service[16];
    dpar_text t;
    int code;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    dpar_text_init(&t, service, sizeof service);
    dpari_text_int(&t, m->port);
    code = getaddrinfo(m->address, service, &hints, &all);
    if (code != 0) {
        return dpari_wrong(why, "cannot resolve the address %s of torchrun's store: %s", m->address,
                           gai_strerror(code));
    }
    while (*fd < 0 && dpari_os_now() < until) {
        for (i = all; i != NULL && *fd < 0; i = i->ai_next) {
            const double soon = dpari_os_now() + 1;
            *fd = dpari_nccl_connect(i->ai_addr, i->ai_addrlen, soon < until ? soon : until);
        }
        if (*fd < 0) {
            dpari_os_sleep(0.02);
        }
    }
    freeaddrinfo(all);
    if (*fd < 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "torchrun's store at %s, port %d was not reached before the deadline",
                         m->address, m->port);
    }
    return DPAR_OK;
}

DPARI_INTERNAL dpar_status dpari_nccl_by_store(const dpar_nccl_rendezvous *m, void *bytes, size_t n,
                                               double until, dpar_why *why)
{
    int fd = -1, code;
    int32_t rank = 0;
    dpar_status status = dpari_nccl_reach_store(m, &fd, until, why);
    if (status < 0) {
        return status;
    }
    code = m->rank == 0 ? dpari_nccl_give_card(fd, m, bytes, n, &rank, until)
                        : dpari_nccl_take_card(fd, m, bytes, n, until);
    (void)close(fd);
    if (code == 0) {
        return DPAR_OK;
    }
    if (code > 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "torchrun's store at %s, port %d: %d of %d ranks did not come before the "
                         "deadline; the first of them is rank %d",
                         m->address, m->port, code, m->size, rank);
    }
    if (dpari_os_now() >= until && m->rank == 0) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "torchrun's store at %s, port %d did not answer before the deadline",
                         m->address, m->port);
    }
    if (dpari_os_now() >= until) {
        return dpari_say(DPAR_E_TIMEOUT, why,
                         "rank 0 stored no id in torchrun's store at %s, port %d before the "
                         "deadline",
                         m->address, m->port);
    }
    return dpari_say(DPAR_E_SYSTEM, why,
                     "the server at %s, port %d is not torchrun's store: set DPAR_NCCL_PORT to a "
                     "free port, at which NCCL then listens",
                     m->address, m->port);
}

/* ==== nccl/rendezvous.c ==== */

/* How ranks find each other, called by dpar_nccl_make.
 *
 * What has to reach all ranks is rank 0's card: NCCL's id, and the addresses and the key of the
 * side channel. It is sent over a host communicator (dpari_nccl_by_host), torchrun's store or the
 * caller's broadcast (dpari_nccl_send_card), and only then do the ranks make NCCL's communicator.
 * With NCCL_COMM_ID the order is the reverse: NCCL makes the same id on all ranks, and the card is
 * sent over the new communicator (dpari_nccl_by_id). In both cases the side channel and the
 * watchdog begin once a rank has the card. */

/* Returns a number for this machine, computed from the host's name and boot id, as NCCL does, and
 * from the network namespace. */
static uint64_t dpari_nccl_this_node(void)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    char text[512];
    dpari_site here;
    int64_t n;
    text[255] = 0;
    if (gethostname(text, 255) != 0) {
        text[0] = 0;
    }
    n = (int64_t)strlen(text);
    dpari_site_here(&here);
    if (dpari_site_read(&here, "/proc/sys/kernel/random/boot_id", text + n, 256) < 0) {
        text[n] = 0;
    }
    for (n = 0; text[n] != 0; n++) { /* FNV-1a */
        hash = (hash ^ (unsigned char)text[n]) * UINT64_C(1099511628211);
    }
    /* Containers on one host may have separate networks, which a loopback interface does not
     * connect. */
    return hash ^ dpari_os_namespace("net") * UINT64_C(0x9e3779b97f4a7c15);
}

DPARI_INTERNAL dpar_status dpari_nccl_by_host(dpar_comm *host, dpari_nccl_world *world,
                                              dpari_nccl_ctx **out, dpar_why *said)
{
    const uint64_t mine = dpari_nccl_this_node();
    dpar_status status = DPAR_OK;
    int32_t r;
    world->node = (uint64_t *)malloc((size_t)world->size * sizeof *world->node);
    if (world->node == NULL) {
        status = dpari_say(DPAR_E_MEMORY, said,
                           "dpar_nccl_make: no memory for the node numbers of %d ranks (%ld bytes)",
                           world->size, world->size * (int64_t)sizeof *world->node);
    }
    status = dpari_agree(host, status, said);
    if (status < 0) {
        return status;
    }
    status = dpar_all_gather(host, &mine, world->node, 1, DPAR_U64, NULL);
    if (status < 0) {
        *said = host->why;
        return status;
    }
    if (host->rank == 0) {
        for (r = 0; r < world->size && world->node[r] == mine; r++) {
        }
        world->side.local = r == world->size;
        status = dpari_nccl_own_card(world, 0, said);
    }
    status = dpari_agree(host, status, said);
    if (status < 0) {
        return status;
    }
    status =
        dpar_broadcast(host, &world->side.card, (int64_t)sizeof world->side.card, DPAR_U8, 0, NULL);
    if (status < 0) {
        *said = host->why;
        return status;
    }
    status = dpari_nccl_card_fits(world, &world->side.card, said);
    if (status >= 0) {
        status = dpari_nccl_side_make(world, said);
    }
    status = dpari_agree(host, status, said);
    if (status < 0) {
        return status;
    }
    dpari_nccl_watchdog(world);
    status = dpari_nccl_begin_world(world, out, said);
    return dpari_agree(host, status, said);
}

DPARI_INTERNAL dpar_status dpari_nccl_find_way(const dpar_nccl_rendezvous *given,
                                               dpar_nccl_rendezvous *m, dpar_why *why)
{
    const char *port = getenv("DPAR_NCCL_PORT");
    dpar_launcher_info job;
    int64_t number = 0;
    dpar_status status;
    memset(m, 0, sizeof *m);
    memset(&job, 0, sizeof job);
    if (given != NULL) {
        *m = *given;
    }
    if (m->method < 0 || m->method >= DPAR_NCCL_RENDEZVOUS_COUNT || m->rank < 0 ||
        (m->size > 0 && m->rank >= m->size) || m->size < 0) {
        return dpari_wrong(
            why,
            "desc.rendezvous: method is %d, but must be 0 to %d; or rank is %d and size is %d, but "
            "rank must be 0 to size - 1",
            m->method, DPAR_NCCL_RENDEZVOUS_COUNT - 1, m->rank, m->size);
    }
    if (m->port < 0 || m->port > 65535) {
        return dpari_wrong(why, "desc.rendezvous: port is %d, but must be 0 to 65535", m->port);
    }
    if (m->method == DPAR_NCCL_PMI || m->method == DPAR_NCCL_FILE) {
        return dpari_wrong(why, "desc.rendezvous: methods DPAR_NCCL_PMI and DPAR_NCCL_FILE are not "
                                "supported: pass the communicator of dpar_mpi_make as host, or set "
                                "broadcast");
    }
    if (m->size == 0) {
        status = dpar_launcher_detect(&job, why);
        if (status < 0) {
            return status;
        }
        m->rank = job.rank;
        m->size = job.size;
    }
    m->address = m->address != NULL ? m->address : getenv("MASTER_ADDR");
    port = port != NULL ? port : getenv("MASTER_PORT");
    if (m->port == 0 && port != NULL && dpari_job_number(port, 65535, &number)) {
        m->port = (int32_t)number;
    }
    if (m->method == DPAR_NCCL_ANY) {
        if (m->broadcast != NULL || m->size == 1) {
            m->method = DPAR_NCCL_CALLBACK;
        } else if (job.local_size == m->size) {
            m->method = DPAR_NCCL_NODE;
        } else if (getenv("NCCL_COMM_ID") != NULL) {
            m->method = DPAR_NCCL_ID;
        } else {
            m->method = DPAR_NCCL_TCP;
        }
    }
    if ((m->method == DPAR_NCCL_TCP && (m->address == NULL || m->port == 0)) ||
        (m->method == DPAR_NCCL_ID && getenv("NCCL_COMM_ID") == NULL) ||
        (m->method == DPAR_NCCL_CALLBACK && m->broadcast == NULL && m->size > 1)) {
        return dpari_wrong(why,
                           "ranks cannot find each other by method %d (address %s, port %d): set "
                           "MASTER_ADDR and MASTER_PORT, or NCCL_COMM_ID=host:port; or set "
                           "broadcast in desc.rendezvous, or pass a communicator as host "
                           "(dpar_mpi.h)",
                           m->method, m->address, m->port);
    }
    return DPAR_OK;
}

/* True if torchrun says that its store listens at m->port. */
static int dpari_nccl_has_store(const dpar_nccl_rendezvous *m)
{
    const char *serves = getenv("TORCHELASTIC_USE_AGENT_STORE"), *port = getenv("MASTER_PORT");
    int64_t number = 0;
    return serves != NULL && strcmp(serves, "True") == 0 && port != NULL &&
           dpari_job_number(port, 65535, &number) && number == m->port;
}

/* Sends rank 0's card to all ranks, over the store or by the caller's broadcast, checks it, and
 * makes the side channel. A rank 0 that has failed sends its card, too, which then says so. */
static dpar_status dpari_nccl_send_card(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                        dpar_why *why)
{
    dpari_nccl_card *card = &world->side.card;
    const double limit = world->options.timeout_s > 0 ? world->options.timeout_s : 1e9;
    dpar_status status = DPAR_OK, sent = DPAR_OK;
    int code;
    if (world->rank == 0) {
        status = dpari_nccl_own_card(world, m->job, why);
    }
    if (m->method == DPAR_NCCL_TCP) {
        sent = dpari_nccl_by_store(m, card, sizeof *card, dpari_os_now() + limit,
                                   status < 0 ? NULL : why);
    } else if (m->broadcast != NULL) {
        code = m->broadcast(m->user, card, sizeof *card, 0);
        if (code != 0) {
            sent = dpari_say(DPAR_E_SYSTEM, status < 0 ? NULL : why,
                             "dpar_nccl_make: desc.rendezvous->broadcast returned %d", code);
        }
    }
    if (status >= 0) {
        status = sent;
    }
    if (status >= 0) {
        status = dpari_nccl_card_fits(world, card, why);
    }
    if (status >= 0) {
        status = dpari_nccl_side_make(world, why);
    }
    return status;
}

/* Makes the world's first communicator for ranks that exchange nothing before. NCCL makes the same
 * id on all ranks from NCCL_COMM_ID, and the card is then sent over the new communicator. */
static dpar_status dpari_nccl_by_id(dpari_nccl_world *world, uint64_t job, dpari_nccl_ctx **out,
                                    dpar_why *why)
{
    dpari_nccl_card *card = &world->side.card;
    dpar_status status = dpari_nccl_card_id(world, why), sent;
    if (status >= 0) {
        status = dpari_nccl_begin_world(world, out, why);
    }
    if (status < 0) {
        return status;
    }
    if (world->rank == 0) {
        status = dpari_nccl_card_begin(world, job, why);
        card->ending = status < 0;
    }
    sent = dpar_broadcast(&(*out)->comm, card, (int64_t)sizeof *card, DPAR_U8, 0, NULL);
    if (sent < 0) { /* comm.status may still be DPAR_OK: not every failure breaks it */
        return dpari_repeat(sent, why, (*out)->comm.why.text);
    }
    (*out)->sequence = (*out)->records = 0; /* the user's first operation has number 0 */
    if (status >= 0) {
        status = dpari_nccl_card_fits(world, card, why);
    }
    if (status >= 0) {
        status = dpari_nccl_side_make(world, why);
    }
    if (status >= 0) {
        dpari_nccl_watchdog(world);
    }
    return status;
}

/* Makes NCCL listen at m->address and m->port on rank 0, by NCCL_COMM_ID. That variable gets back
 * the value that the user may have set. */
static dpar_status dpari_nccl_by_port(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                      dpari_nccl_ctx **out, dpar_why *why)
{
    const int six = strchr(m->address, ':') != NULL; /* NCCL expects [address]:port */
    const char *set = getenv("NCCL_COMM_ID");
    char name[300], *before = set != NULL ? strdup(set) : NULL;
    dpar_text t;
    dpar_status status;
    dpar_text_init(&t, name, sizeof name);
    dpari_text_say(&t, "%s%s%s%d", six ? "[" : "", m->address, six ? "]:" : ":", m->port);
    (void)setenv("NCCL_COMM_ID", name, 1);
    status = dpari_nccl_by_id(world, m->job, out, why);
    if (before != NULL) {
        (void)setenv("NCCL_COMM_ID", before, 1);
    } else {
        (void)unsetenv("NCCL_COMM_ID");
    }
    free(before);
    return status;
}

DPARI_INTERNAL void dpari_nccl_meet_failed(dpari_nccl_world *world, const dpar_nccl_rendezvous *m)
{
    dpari_nccl_card *card = &world->side.card;
    if (m->method != DPAR_NCCL_CALLBACK || m->broadcast == NULL) {
        return;
    }
    if (world->rank == 0) {
        card->magic = DPARI_NCCL_MAGIC;
        card->size = world->size;
        card->ending = 1;
    }
    (void)m->broadcast(m->user, card, sizeof *card, 0);
}

DPARI_INTERNAL dpar_status dpari_nccl_meet(dpari_nccl_world *world, const dpar_nccl_rendezvous *m,
                                           dpari_nccl_ctx **out, dpar_why *why)
{
    dpar_status status;
    if (m->method == DPAR_NCCL_ID) {
        return dpari_nccl_by_id(world, m->job, out, why);
    }
    if (m->method == DPAR_NCCL_TCP && !dpari_nccl_has_store(m)) {
        return dpari_nccl_by_port(world, m, out, why);
    }
    status = dpari_nccl_send_card(world, m, why);
    if (status < 0) {
        return status;
    }
    dpari_nccl_watchdog(world);
    return dpari_nccl_begin_world(world, out, why);
}

/* ==== nccl/nccl_make.c ==== */

/* How the engine works.
 *
 * dpar_nccl_make creates a dpari_nccl_world, to which all communicators belong that are split from
 * the first one; each is a dpari_nccl_ctx. A call of dpar takes a dpari_nccl_slot: two events,
 * between which its work is enqueued on the world's stream. That stream waits for the first event,
 * which is recorded on the compute stream; dpar_wait makes the compute stream wait for the second
 * one. NCCL communicators are non-blocking, so that no call of NCCL can hang: dpari_nccl_settle
 * polls until NCCL has completed a call.
 *
 * A thread, the watchdog, checks the operation at the head of the stream and aborts NCCL when its
 * deadline has passed. It also runs the side channel: TCP connections between rank 0 and the other
 * ranks, over which ranks compare their calls and report errors. The world's lock protects
 * everything that both threads use; "Locked" in a comment means that the caller holds it. */

static dpar_status dpari_nccl_close(dpar_comm *comm)
{
    dpari_nccl_ctx *context = dpari_nccl_ctx_of(comm);
    dpari_nccl_world *world = context->world;
    dpar_status status = DPAR_OK;
    int32_t lost = 0;
    dpari_nccl_flush(world);
    dpari_nccl_drain(context);
    while (context->pending != NULL) {
        dpar_work *work = context->pending;
        context->pending = work->next;
        dpari_nccl_finish(work, DPAR_E_ARG);
        lost++;
    }
    if (comm->status >= 0) { /* a barrier after all operations, so that all ranks leave together */
        dpar_call barrier;
        dpari_nccl_slot *slot = NULL;
        memset(&barrier, 0, sizeof barrier);
        barrier.kind = DPAR_CALL_BARRIER;
        barrier.root = DPARI_CLOSE;
        barrier.type = DPAR_U8;
        status = dpari_nccl_collective(context, &barrier, &slot);
        if (status >= 0) {
            status = dpari_nccl_await(slot);
            dpari_nccl_let_go(world, slot);
        }
    }
    dpari_nccl_lock(world);
    dpari_nccl_say_broken(world);
    dpari_nccl_unlock(world);
    lost += dpari_nccl_leave(context);
    dpari_nccl_retire(context);
    if (world->comms == NULL) {
        dpari_nccl_world_end(world);
    }
    return lost > 0 ? (dpar_status)DPAR_E_ARG : status;
}

/* Frees what a failed dpar_nccl_make has made. */
static void dpari_nccl_undo(dpari_nccl_world *world, dpari_nccl_ctx *context)
{
    if (context != NULL) {
        (void)dpari_nccl_leave(context);
        dpari_nccl_retire(context);
    }
    if (world != NULL) {
        dpari_nccl_world_end(world);
    }
}

/* Refuses dpar_comm_shrink: NCCL needs a list of the lost ranks. */
static dpar_status dpari_nccl_cannot_shrink(dpar_comm *comm, dpar_comm **out, int32_t *was,
                                            dpar_why *why)
{
    (void)comm;
    (void)out;
    (void)was;
    return dpari_say(DPAR_E_SYSTEM, why,
                     "shrink: NCCL needs a list of the ranks that are gone: call dpar_nccl_shrink");
}

static void dpari_nccl_table(dpar_engine *e)
{
    memset(e, 0, sizeof *e);
    memcpy(e->name, "nccl", 5);
    e->run = dpari_nccl_run_call;
    e->post = dpari_nccl_post;
    e->test = dpari_nccl_test;
    e->wait = dpari_nccl_wait;
    e->batch = dpari_nccl_batch;
    e->split = dpari_nccl_split;
    e->shrink = dpari_nccl_cannot_shrink;
    e->alloc = dpari_nccl_alloc;
    e->release = dpari_nccl_release;
    e->progress = dpari_nccl_progress;
    e->abort = dpari_nccl_abort;
    e->report = dpari_nccl_report;
    e->describe = dpari_nccl_describe;
    e->close = dpari_nccl_close;
    e->alloc_shared = dpari_nccl_lend;
    e->peer_address = dpari_nccl_at_peer;
    e->sync_peers = dpari_nccl_meet_near;
}

/* dpar_nccl_make with a host communicator. */
static dpar_status dpari_nccl_make_over(dpar_comm *host, const dpar_nccl_desc *options,
                                        dpar_comm **out, dpar_why *why)
{
    dpari_nccl_world *world = NULL;
    dpari_nccl_ctx *context = NULL;
    dpar_engine engine;
    dpar_why said;
    dpar_status status;
    memset(&said, 0, sizeof said);
    dpari_nccl_table(&engine);
    status = dpari_nccl_world_make(host->rank, host->size, options, &engine, &world, &said);
    status = dpari_agree(host, status, &said);
    if (status >= 0) {
        status = dpari_nccl_by_host(host, world, &context, &said);
    }
    if (status < 0) {
        dpari_nccl_undo(world, context);
        return dpari_repeat(status, why, said.text);
    }
    *out = &context->comm;
    return DPAR_OK;
}

/* Makes a communicator of ranks that are all on this node and find each other over shared
 * memory. */
static dpar_status dpari_nccl_by_node(const dpar_nccl_desc *options, dpar_comm **out, dpar_why *why)
{
    dpar_world_desc o;
    dpar_comm *host = NULL;
    dpar_status status;
    memset(&o, 0, sizeof o);
    o.timeout_s = options != NULL ? options->timeout_s : 0;
    status = dpar_init(&host, &o, why);
    if (status < 0) {
        return status;
    }
    status = dpari_nccl_make_over(host, options, out, why);
    (void)dpar_comm_free(host);
    return status;
}

/* dpar_nccl_make without a host communicator. */
static dpar_status dpari_nccl_make_by_rendezvous(const dpar_nccl_desc *options, dpar_comm **out,
                                                 dpar_why *why)
{
    dpari_nccl_world *world = NULL;
    dpari_nccl_ctx *context = NULL;
    dpar_engine engine;
    dpar_nccl_rendezvous m;
    dpar_status status = dpari_nccl_find_way(options != NULL ? options->rendezvous : NULL, &m, why);
    if (status < 0) {
        return status;
    }
    if (m.method == DPAR_NCCL_NODE) {
        return dpari_nccl_by_node(options, out, why);
    }
    dpari_nccl_table(&engine);
    status = dpari_nccl_world_make(m.rank, m.size, options, &engine, &world, why);
    if (status >= 0) {
        status = dpari_nccl_meet(world, &m, &context, why);
    } else if (world != NULL) {
        dpari_nccl_meet_failed(world, &m);
    }
    if (status < 0) {
        dpari_nccl_undo(world, context);
        return status;
    }
    *out = &context->comm;
    return DPAR_OK;
}

DPAR_API dpar_status dpar_nccl_make(dpar_comm *host, const dpar_nccl_desc *desc, dpar_comm **comm,
                                    dpar_why *why)
{
    if (comm == NULL) {
        return dpari_wrong(why, "dpar_nccl_make: comm, which receives the result, is NULL");
    }
    if (host == NULL) {
        return dpari_nccl_make_by_rendezvous(desc, comm, why);
    }
    return dpari_nccl_make_over(host, desc, comm, dpari_why_of(host, why));
}

DPAR_API cudaStream_t dpar_nccl_stream(const dpar_comm *comm)
{
    if (comm == NULL || strcmp(comm->engine.name, "nccl") != 0) {
        return NULL;
    }
    return dpari_nccl_ctx_of(comm)->world->stream;
}

DPAR_API dpar_status dpar_nccl_set_stream(dpar_comm *comm, cudaStream_t stream)
{
    dpari_nccl_world *world;
    dpar_status status = DPAR_OK;
    cudaEvent_t before;
    cudaError_t code;
    if (dpar_nccl_stream(comm) == NULL) {
        return DPAR_E_ARG;
    }
    world = dpari_nccl_ctx_of(comm)->world;
    if (dpari_nccl_capturing(world)) {
        return dpari_comm_wrong(comm, "dpar_nccl_set_stream: the compute stream is being captured");
    }
    dpari_nccl_lock(world);
    code = cudaEventCreateWithFlags(&before, cudaEventDisableTiming);
    if (code == cudaSuccess) {
        code = cudaEventRecord(before, world->options.stream);
        if (code == cudaSuccess) {
            code = cudaStreamWaitEvent(stream, before, 0);
        }
        (void)cudaEventDestroy(before);
    }
    if (code == cudaSuccess) {
        world->options.stream = stream;
    } else {
        status = dpari_nccl_cuda_failed(dpari_nccl_ctx_of(comm), "changing the stream", code);
    }
    dpari_nccl_unlock(world);
    return status;
}

/* ==== nccl/nccl_doctor.c ==== */

/* Reports on NCCL. Which transports NCCL chose is not in its API, so that its log is searched for
 * the words "via ..." and "Using network ...". */

/* Numbers of channels by transport, as NCCL logs them with NCCL_DEBUG=INFO. */
typedef struct dpari_nccl_transport {
    int64_t p2p, shm, socket, ib, other; /* lines with "via ...": NVLink or PCIe, host memory, TCP,
                                            InfiniBand or RoCE, and other plug-ins */
    char network[40];                    /* name in "Using network ...": Socket, IB, AWS Libfabric;
                                            "" if there is none */
} dpari_nccl_transport;

static int dpari_nccl_starts(const char *at, const char *end, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(end - at) >= n && memcmp(at, word, n) == 0;
}

/* Counts the transport that follows "via ". */
static void dpari_nccl_count_via(const char *by, const char *end, dpari_nccl_transport *out)
{
    if (dpari_nccl_starts(by, end, "P2P")) {
        out->p2p++;
    } else if (dpari_nccl_starts(by, end, "SHM")) {
        out->shm++;
    } else if (dpari_nccl_starts(by, end, "NET/Socket")) {
        out->socket++;
    } else if (dpari_nccl_starts(by, end, "NET/IB")) {
        out->ib++;
    } else if (dpari_nccl_starts(by, end, "NET/") || dpari_nccl_starts(by, end, "COLLNET/")) {
        out->other++;
    }
}

/* Counts the transports in the complete lines of a log. */
static void dpari_nccl_read_log(const char *text, size_t bytes, dpari_nccl_transport *out)
{
    const char *end;
    size_t i, n;
    memset(out, 0, sizeof *out);
    while (bytes > 0 && text[bytes - 1] != '\n') {
        bytes--; /* NCCL is still writing this line */
    }
    end = text + bytes;
    for (i = 0; i < bytes; i++) {
        const char *at = text + i;
        if (*at == 'v' && dpari_nccl_starts(at, end, "via ")) {
            dpari_nccl_count_via(at + 4, end, out);
        } else if (*at == 'U' && dpari_nccl_starts(at, end, "Using network ")) {
            memset(out->network, 0, sizeof out->network);
            for (at += 14, n = 0; at < end && *at >= ' ' && *at <= '~'; at++) {
                if (n + 1 < sizeof out->network) {
                    out->network[n++] = *at;
                }
            }
        }
    }
}

/* Reads the first 64 MiB of a log, which contain NCCL's choices. Returns NULL if it cannot be
 * read. */
static char *dpari_nccl_log_text(const char *log, size_t *bytes)
{
    const int fd = log != NULL && log[0] != 0 ? open(log, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct stat info;
    char *text = NULL;
    size_t room = (size_t)64 << 20;
    *bytes = 0;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) {
        room = info.st_size < (off_t)room ? (size_t)info.st_size : room;
        text = (char *)malloc(room + 1);
    }
    while (text != NULL && *bytes < room) {
        const ssize_t n = read(fd, text + *bytes, room - *bytes);
        if (n <= 0) {
            break;
        }
        *bytes += (size_t)n;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return text;
}

static void dpari_nccl_put_log(const char *log, int32_t shared, dpar_text *out, int32_t *wrong)
{
    dpari_nccl_transport t;
    size_t bytes = 0;
    char *text = dpari_nccl_log_text(log, &bytes);
    if (text == NULL) {
        dpar_text_put(out, "NCCL's transports: not known -> set log_file in dpar_nccl_desc\n");
        return;
    }
    dpari_nccl_read_log(text, bytes, &t);
    free(text);
    if (t.p2p + t.shm + t.ib + t.socket + t.other == 0) {
        dpar_text_put(out, "NCCL's transports: none yet, ranks connect in their first operation "
                           "(with one rank, or your own NCCL_DEBUG, nothing is logged)");
    } else {
        dpari_text_say(out,
                       "NCCL's transports of this rank: %ld by P2P, %ld by shared memory, %ld by "
                       "InfiniBand, %ld by sockets, %ld by others",
                       t.p2p, t.shm, t.ib, t.socket, t.other);
    }
    dpari_text_say(out, "; network %s\n", t.network[0] != 0 ? t.network : "not known");
    if (t.socket > 0 && !shared) {
        dpar_text_put(out,
                      "WRONG: NCCL moves data through TCP sockets, tens of times slower than "
                      "the network can -> InfiniBand: install its user libraries (libibverbs); "
                      "Slingshot: the plug-in aws-ofi-nccl on LD_LIBRARY_PATH and "
                      "NCCL_NET=\"AWS Libfabric\"; one node: unset NCCL_P2P_DISABLE and "
                      "NCCL_SHM_DISABLE\n");
        ++*wrong;
    }
}

/* Writes where rank 0 listens. */
static void dpari_nccl_put_door(const dpari_nccl_side *s, dpar_text *out)
{
    if (s->listener < 0) {
        return;
    }
    dpari_text_say(out, "other ranks reach rank 0 %s, port %d, with a key made for this job\n",
                   s->local ? "on the loopback interface" : "at any of its addresses",
                   s->card.port);
}

DPAR_API int32_t dpar_nccl_doctor(dpar_comm *comm, dpar_text *out)
{
    dpari_nccl_api api;
    dpar_why why;
    const int32_t shared = dpari_nccl_shares();
    const char *blocks = getenv("NCCL_COMM_BLOCKING");
    const int ours = comm != NULL && strcmp(comm->engine.name, "nccl") == 0;
    int32_t wrong = 0;
    if (dpari_nccl_load(&api, &why) < 0) {
        dpari_text_say(out, "WRONG: %s -> install NCCL (pip: nvidia-nccl-cu13)\n", why.text);
        return 1;
    }
    dpar_text_put(out, "NCCL ");
    dpari_nccl_put_version(out, api.version);
    dpar_text_put(out, ", compiled with the header of ");
    dpari_nccl_put_version(out, NCCL_VERSION_CODE);
    dpar_text_put(out, api.CommRegister == NULL ? "; no registered memory" : "");
    dpar_text_put(out, api.CommShrink == NULL ? "; no windows, no shrink" : "");
    dpar_text_put(out, api.GetPeerDevicePointer == NULL ? "; halos only by messages" : "");
    dpar_text_put(out, api.AlltoAll == NULL ? "; all-to-all, gather, scatter by messages" : "");
    dpari_text_char(out, '\n');
    if (shared) {
        dpar_text_put(out, "DPAR_TEST_SHARE_GPU: ranks share a device, for tests: slow\n");
    }
    if (blocks != NULL && blocks[0] == '1') {
        dpar_text_put(out, "WRONG: NCCL_COMM_BLOCKING=1: a rank that waits in NCCL for one that is "
                           "missing has no deadline -> unset it\n");
        wrong++;
    }
    if (ours) {
        dpari_nccl_put_door(&dpari_nccl_ctx_of(comm)->world->side, out);
        dpari_nccl_put_log(dpari_nccl_ctx_of(comm)->world->log, shared, out, &wrong);
    }
    return wrong;
}

#endif /* DPAR_NCCL_IMPLEMENTATION */
