/* SPDX-License-Identifier: MIT-0 */
/* gpu_start - starts programs on GPUs: one process for each GPU, with a stream, dpar_cuda for the
 * memory, and dpar_nccl between ranks. A program that includes it has declared `complain` before
 * (by options.h). */
#ifndef DPAR_HELPERS_GPU_START_H
#define DPAR_HELPERS_GPU_START_H

#include "dpar_nccl.h"

#include "dpar_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a rank has. */
struct gpu {
    dpar_comm *world;    /* over NCCL */
    cudaStream_t stream; /* where everything is computed */
    dpar_cuda cuda;
    dpar_mem mem; /* world->mem */
};

/* Ends this rank with a message and exit code 1 if st is an error. The watchdogs of the other ranks
 * end their waits. */
static void right(dpar_status st, const char *text)
{
    if (st != DPAR_OK) {
        exit(complain(text[0] != 0 ? text : dpar_status_text(st), NULL) - 1);
    }
}

static void right(cudaError_t error)
{
    if (error != cudaSuccess) {
        exit(complain("CUDA:", cudaGetErrorString(error)) - 1);
    }
}

/* For kernels: in for (EACH(i, count)) each thread visits its share of the elements. */
#define EACH(i, count)                                                                             \
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;                                    \
    (i) < (count);                                                                                 \
    (i) += (int64_t)gridDim.x * blockDim.x

/* Launches a kernel that takes one struct. */
template <class A>
static void launch_blocks(cudaStream_t stream, void (*kernel)(A), A args, dim3 blocks, dim3 threads)
{
    void *list[] = {&args};
    right(cudaLaunchKernel(kernel, blocks, threads, list, 0, stream));
}

/* Launches a kernel with a thread for each element, or with 65536 blocks if that is less, for each
 * of up to 65535 rows (blockIdx.y). */
template <class A>
static void launch(cudaStream_t stream, void (*kernel)(A), A args, int64_t threads,
                   int64_t rows = 1)
{
    const int64_t blocks = (threads + 255) / 256;
    const unsigned across = blocks < 65536 ? (unsigned)blocks : 65536;
    const unsigned each = threads < 256 ? (unsigned)threads : 256;
    if (threads > 0 && rows > 0) {
        launch_blocks(stream, kernel, args, dim3(across, (unsigned)rows), dim3(each));
    }
}

/* Allocates device memory. */
template <class T> static T *take(dpar_comm *comm, int64_t count)
{
    void *memory = NULL;
    right(dpar_comm_alloc(comm, count * (int64_t)sizeof(T), &memory), comm->why.text);
    return (T *)memory;
}

/* Allocates host memory for a plan, in pages of its own, because parts of it are page-locked, and
 * CUDA does not copy to memory that is page-locked in part. */
static inline void *plan_memory(int64_t bytes)
{
    void *memory = aligned_alloc(65536, ((size_t)bytes + 65536) / 65536 * 65536);
    right(memory != NULL ? DPAR_OK : DPAR_E_MEMORY, "no host memory for a plan");
    return memory;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct rank_call {
    int (*run)(gpu *device, const void *arg);
    const void *arg;
};

/* The number of this process on its node. */
static int32_t local_number(const dpar_comm *host, const dpar_launcher_info *job)
{
    if (host != NULL) {
        return host->rank;
    }
    return job->local_rank < 0 ? job->rank : job->local_rank;
}

/* Runs a rank on its GPU. host: the ranks that were forked here, or NULL if a launcher started this
 * process as one of `job`, on one node or several. CUDA may be used only after the fork. */
static int with_gpu(dpar_comm *host, const dpar_launcher_info *job, const rank_call *call)
{
    const int32_t local = local_number(host, job);
    dpar_nccl_desc nccl;
    dpar_cuda_desc options;
    dpar_why why;
    gpu device;
    int devices = 0;
    memset(&options, 0, sizeof options);
    memset(&nccl, 0, sizeof nccl);
    right(cudaGetDeviceCount(&devices));
    right(cudaSetDevice(local % devices));
    right(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
    options.stream = nccl.stream = device.stream;
    right(dpar_cuda_make(&device.cuda, &options, &why), why.text);
    dpar_cuda_mem(&device.cuda, &device.mem);
    nccl.mem = &device.mem; /* becomes world->mem, so that strategies use this device */
    right(dpar_nccl_make(host, &nccl, &device.world, &why), why.text);
    const int bad = call->run(&device, call->arg);
    right(dpar_comm_free(device.world),
          "dpar_comm_free failed: an operation or another rank failed");
    right(dpar_cuda_free(&device.cuda), device.cuda.why.text);
    right(cudaStreamDestroy(device.stream));
    return bad;
}

static int forked(dpar_comm *host, void *call)
{
    return with_gpu(host, NULL, (const rank_call *)call);
}

/* Sets *ranks to the number of ranks that a launcher has started, if there is one. Returns 2 after
 * a message, otherwise 0. */
static int find_ranks(dpar_launcher_info *job, double *ranks)
{
    dpar_why why;
    if (dpar_launcher_detect(job, &why) != DPAR_OK) {
        return complain(why.text, NULL);
    }
    *ranks = job->kind != DPAR_LAUNCHER_NONE ? job->size : *ranks;
    return 0;
}

/* Runs a program on all ranks. Returns the exit code. */
static int run_ranks(const dpar_launcher_info *job, double ranks, int (*run)(gpu *, const void *),
                     const void *arg)
{
    rank_call call = {run, arg};
    dpar_why why;
    if (job->kind != DPAR_LAUNCHER_NONE) {
        return with_gpu(NULL, job, &call);
    }
    if (dpar_launch((int32_t)ranks, forked, &call, NULL, &why) == DPAR_OK) {
        return 0;
    }
    if (strstr(why.text, "returned 2") != NULL) {
        return 2; /* the rank has printed its message already */
    }
    return complain(why.text, NULL) - 1;
}

#endif
