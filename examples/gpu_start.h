/* SPDX-License-Identifier: MIT-0 */
/* gpu_start - what stencil.cu and ddp_llm.cu begin with: options, one process a GPU, a stream,
 * dpar_cuda as the communicator's memory, dpar_nccl between ranks. Included there; `program` is
 * defined before. */
#ifndef GPU_START_H
#define GPU_START_H

#include "dpar_nccl.h"

#include "dpar_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What a rank has. */
struct gpu {
    dpar_comm *world;    /* over NCCL */
    cudaStream_t stream; /* where everything is computed */
    dpar_cuda cuda;
    dpar_mem mem; /* world->mem */
};

static int complain(const char *what, const char *word)
{
    fprintf(stderr, "%s: %s%s\n", program, what, word);
    return 2;
}

/* One sentence and the end: the watchdogs of the other ranks end their waits. */
static void right(dpar_status st, const char *text)
{
    if (st != DPAR_OK) {
        exit(complain(text[0] != 0 ? text : dpar_status_text(st), "") - 1);
    }
}

static void right(cudaError_t error)
{
    if (error != cudaSuccess) {
        exit(complain("CUDA: ", cudaGetErrorString(error)) - 1);
    }
}

/* A kernel that takes one struct, a thread an element (of `most` blocks at most: it strides). */
template <class A>
static void launch(const gpu *g, void (*kernel)(A), A args, int64_t threads, int64_t rows = 1)
{
    const int64_t blocks = (threads + 255) / 256;
    void *list[] = {&args};
    if (threads > 0 && rows > 0) {
        right(cudaLaunchKernel(kernel,
                               dim3((unsigned)(blocks < 65536 ? blocks : 65536), (unsigned)rows),
                               dim3(threads < 256 ? (unsigned)threads : 256), list, 0, g->stream));
    }
}

/* Memory of the device. */
template <class T> static T *take(dpar_comm *c, int64_t count)
{
    void *memory = NULL;
    right(dpar_comm_alloc(c, count * (int64_t)sizeof(T), &memory), c->why.text);
    return (T *)memory;
}

/* Memory of the host for a plan. */
static void *plan_memory(int64_t bytes)
{
    void *memory = aligned_alloc(64, ((size_t)bytes + 127) / 64 * 64);
    right(memory != NULL ? DPAR_OK : DPAR_E_MEMORY, "no memory for a plan");
    return memory;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- options --------------------------------------------------------------------------------- */

/* `--name N` goes to number, between low and high; `--name` alone sets flag; `--name WORD` goes to
 * word. The last of a list has no name. */
struct option {
    const char *name = NULL;
    double *number = NULL, low = 0, high = 0;
    int fraction = 0; /* 1: the number need not be whole */
    int *flag = NULL;
    const char **word = NULL;
};

/* 0; 2 after a sentence; -1: the help was asked for. */
static int read_options(int argc, char **argv, const option *list)
{
    for (int i = 1; i < argc; i++) {
        const option *o = list;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return -1;
        }
        while (o->name != NULL && strcmp(o->name, argv[i]) != 0) {
            o++;
        }
        if (o->name == NULL) {
            return complain("what is this, see --help: ", argv[i]);
        }
        if (o->flag != NULL) {
            *o->flag = 1;
        } else if (++i == argc) {
            return complain("something is missing behind ", o->name);
        } else if (o->word != NULL) {
            *o->word = argv[i];
        } else {
            char *end = NULL;
            const double v = strtod(argv[i], &end);
            if (end == argv[i] || *end != 0 || !(v >= o->low && v <= o->high) ||
                (!o->fraction && v != floor(v))) {
                return complain("not a number that fits, see --help: ", o->name);
            }
            *o->number = v;
        }
    }
    return 0;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct rank_call {
    int (*run)(gpu *g, const void *arg);
    const void *arg;
};

/* host: the ranks, where they were forked here; NULL: a launcher started this process, one of
 * `job`, on this node or on several. No rank may use CUDA before it is a process. */
static int with_gpu(dpar_comm *host, const dpar_start *job, const rank_call *call)
{
    const int32_t local = host != NULL          ? host->rank
                          : job->local_rank < 0 ? job->rank
                                                : job->local_rank;
    dpar_nccl_options nccl;
    dpar_cuda_options options;
    dpar_why why;
    gpu g;
    int devices = 0;
    memset(&options, 0, sizeof options);
    memset(&nccl, 0, sizeof nccl);
    right(cudaGetDeviceCount(&devices));
    right(cudaSetDevice(local % devices));
    right(cudaStreamCreateWithFlags(&g.stream, cudaStreamNonBlocking));
    options.stream = nccl.stream = g.stream;
    right(dpar_cuda_open(&g.cuda, &options, &why), why.text);
    dpar_cuda_mem(&g.cuda, &g.mem);
    nccl.mem = &g.mem; /* becomes world->mem: strategies work on this device */
    right(host != NULL ? dpar_nccl_comm(host, &nccl, &g.world, &why)
                       : dpar_nccl_init(NULL, &nccl, &g.world, &why),
          why.text);
    const int bad = call->run(&g, call->arg);
    right(dpar_comm_close(g.world), "the communicator could not be closed");
    right(dpar_cuda_close(&g.cuda), g.cuda.why.text);
    right(cudaStreamDestroy(g.stream));
    return bad;
}

static int forked(dpar_comm *host, void *call)
{
    return with_gpu(host, NULL, (const rank_call *)call);
}

/* How many ranks there are: a launcher's, else *ranks. 2 after a sentence. */
static int find_ranks(dpar_start *job, double *ranks)
{
    dpar_why why;
    if (dpar_start_find(job, &why) != DPAR_OK) {
        return complain(why.text, "");
    }
    *ranks = job->launcher != DPAR_LAUNCHER_NONE ? job->size : *ranks;
    return 0;
}

/* Runs it on all ranks; the exit code. */
static int run_ranks(const dpar_start *job, double ranks, int (*run)(gpu *, const void *),
                     const void *arg)
{
    rank_call call = {run, arg};
    dpar_why why;
    if (job->launcher != DPAR_LAUNCHER_NONE) {
        return with_gpu(NULL, job, &call);
    }
    return dpar_launch_with((int32_t)ranks, forked, &call, NULL, &why) == DPAR_OK
               ? 0
               : complain(why.text, "") - 1;
}

#endif
