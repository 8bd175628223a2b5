/* SPDX-License-Identifier: MIT-0 */
/* nccl_make - makes communicators over NCCL. */
#ifndef DPARI_NCCL_NCCL_MAKE_H
#define DPARI_NCCL_NCCL_MAKE_H

#include "../base/text.h"
#include "../comm/comm.h"

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

#endif
