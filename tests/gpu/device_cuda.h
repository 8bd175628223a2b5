/* SPDX-License-Identifier: MIT-0 */
/* device_cuda: the functions of device_memory.h on top of dpar_cuda.h and dpar_nccl.h: the same
 * tests of strategies, on a device or on the stand-ins. The test's arrays are page-locked host
 * memory, which CPU and device can access. Its kernels are host functions in the order of the
 * stream. */
#ifndef DPAR_DEVICE_CUDA_H
#define DPAR_DEVICE_CUDA_H

#include "dpar_cuda.h"
#include "dpar_nccl.h"

#include <unistd.h>

typedef struct device_memory {
    unsigned char *first; /* NULL if not allocated yet */
    size_t bytes, used;
    int64_t pieces; /* that were not freed; if 0 all memory is free again */
    int64_t calls;
    dpar_cuda gpu;
    dpar_mem table, real; /* the table that strategies get, and the one that does the work */
    dpar_mem_layers layers;
    dpar_engine engine; /* the communicator's real engine */
    cudaStream_t stream;
    dpar_comm *host; /* the communicator that it was made over */
} device_memory;
static __thread device_memory the_device;

static void device_right(cudaError_t error)
{
    CHECK_INT(error, cudaSuccess);
    if (error != cudaSuccess) {
        printf("CUDA: %s\n", cudaGetErrorString(error));
        exit(1);
    }
}

static void device_begin(size_t bytes)
{
    memset(&the_device, 0, sizeof the_device);
    the_device.bytes = bytes;
}

static void device_end(void)
{
    memset(&the_device, 0, sizeof the_device);
}

/* ---- the table: checks that the device can access each address that it gets ---- */

static void *device_reached(const void *at)
{
    struct cudaPointerAttributes about;
    if (at != NULL) {
        device_right(cudaPointerGetAttributes(&about, at));
        if (about.type == cudaMemoryTypeUnregistered) {
            printf("memory of the host that the device does not reach: %p\n",
                   (void *)(uintptr_t)at);
            fflush(stdout);
            abort(); /* a debugger shows the caller */
        }
    }
    return (void *)(uintptr_t)at;
}

#define DEVICE_OPERATION(name, member, type, number)                                               \
    static dpar_status device_##name(void *ctx, const type *call)                                  \
    {                                                                                              \
        device_entry e;                                                                            \
        e.kind = number;                                                                           \
        e.call.member = *call;                                                                     \
        device_pointers(&e, device_reached);                                                       \
        return (DEVICE_REAL)->name(ctx, call);                                                     \
    }
#define DEVICE_REAL (&the_device.real)
DEVICE_OPERATIONS
#undef DEVICE_REAL
#define DEVICE_REAL ((const dpar_mem_layers *)the_device.real.layers)
DEVICE_LAYERS

static dpar_status device_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    device_entry e;
    e.kind = DEVICE_MOVE;
    e.n = n;
    e.call.boxes = (dpar_mem_box *)device_copied(boxes, (size_t)n * sizeof *boxes);
    device_pointers(&e, device_reached);
    free(e.call.boxes);
    return the_device.real.move(ctx, boxes, n);
}

static dpar_status device_span(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    device_entry e;
    e.kind = DEVICE_SPAN;
    e.n = n;
    e.call.spans = (dpar_mem_span *)device_copied(spans, (size_t)n * sizeof *spans);
    device_pointers(&e, device_reached);
    free(e.call.spans);
    return the_device.real.span(ctx, spans, n);
}

static dpar_status device_optimize(void *ctx, const dpar_mem_optimize *call)
{
    device_entry e;
    e.kind = DEVICE_OPTIMIZE;
    device_take_optimize(&e, call);
    device_pointers(&e, device_reached);
    return DEVICE_REAL->optimize(ctx, call);
}

/* ---- the communicator: what strategies allocate from it is page-locked, like the test's arrays,
 * because the test's own kernels work in it ---- */

static void device_wrap(dpar_comm *c);

static dpar_status device_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out)
{
    const dpar_status st = the_device.engine.split(c, color, key, out);
    if (st == DPAR_OK && *out != NULL) {
        device_wrap(*out);
    }
    return st;
}

/* Memory of the engine is left to the engine. */
static void device_give(dpar_comm *c, void *memory)
{
    if ((unsigned char *)memory >= the_device.first &&
        (unsigned char *)memory < the_device.first + the_device.bytes) {
        device_release(c, memory);
    } else {
        the_device.engine.release(c, memory);
    }
}

static void device_wrap(dpar_comm *c)
{
    c->engine.alloc = device_alloc;
    c->engine.release = device_give;
    c->engine.split = device_split;
}

/* Returns a communicator of the same ranks over NCCL; all strategies on it work in device
 * memory. */
static dpar_comm *device_take(dpar_comm *c)
{
    dpar_nccl_desc o;
    dpar_cuda_desc g;
    dpar_comm *made = NULL;
    dpar_why why;
    int devices = 0;
    why.text[0] = 0;
    device_right(cudaGetDeviceCount(&devices));
    device_right(cudaSetDevice(c->rank % devices));
    device_right(cudaStreamCreateWithFlags(&the_device.stream, cudaStreamNonBlocking));
    memset(&g, 0, sizeof g);
    g.stream = the_device.stream;
    CHECK_INT(dpar_cuda_make(&the_device.gpu, &g, &why), DPAR_OK);
    dpar_cuda_mem(&the_device.gpu, &the_device.real);
    the_device.table = the_device.real;
    DEVICE_FILL(&the_device.table, &the_device.layers);
    memset(&o, 0, sizeof o);
    o.stream = the_device.stream;
    o.mem = &the_device.table;
    o.timeout_s = 60.0;
    CHECK_INT(dpar_nccl_make(c, &o, &made, &why), DPAR_OK);
    if (made == NULL) {
        printf("rank %d: %s\n", (int)c->rank, why.text);
        exit(1);
    }
    the_device.host = c;
    device_right(
        cudaHostAlloc((void **)&the_device.first, the_device.bytes, cudaHostAllocPortable));
    the_device.engine = made->engine;
    device_wrap(made);
    return made;
}

static dpar_comm *device_return(dpar_comm *c)
{
    dpar_comm *host = the_device.host;
    device_right(cudaStreamSynchronize(the_device.stream));
    (void)dpar_comm_free(c);
    device_right(cudaFreeHost(the_device.first));
    CHECK_INT(dpar_cuda_free(&the_device.gpu), DPAR_OK);
    device_right(cudaStreamDestroy(the_device.stream));
    return host;
}

static inline void *device_zeroed(int64_t bytes)
{
    const size_t at = the_device.used;
    the_device.used += ((size_t)bytes + 127) / 64 * 64;
    if (the_device.used > the_device.bytes) {
        printf("device memory: %lld bytes are not enough\n", (long long)the_device.bytes);
        exit(1);
    }
    the_device.pieces++;
    memset(the_device.first + at, 0, (size_t)bytes);
    return the_device.first + at;
}

static inline void device_free(void *at)
{
    if ((uintptr_t)at < (uintptr_t)the_device.first ||
        (uintptr_t)at >= (uintptr_t)(the_device.first + the_device.bytes)) {
        free(at);
    } else if (--the_device.pieces == 0) {
        the_device.used = 0;
    }
}

static inline void *device_there(const void *at)
{
    return (void *)(uintptr_t)at;
}
#define DEVICE_THERE(pointer, type) ((pointer) = (type *)device_there(pointer))

typedef struct device_turn {
    void (*run)(void *call);
    void *call;
} device_turn;

static void device_turn_comes(void *at)
{
    device_turn *t = (device_turn *)at;
    t->run(t->call);
    free(t->call);
    free(t);
}

/* Enqueues run(copy of call) in the order of the stream. */
static inline void device_later(void (*run)(void *call), const void *call, size_t bytes)
{
    device_turn *t = (device_turn *)malloc(sizeof *t);
    if (t == NULL || (t->call = malloc(bytes)) == NULL) {
        exit(1);
    }
    t->run = run;
    memcpy(t->call, call, bytes);
    device_right(cudaLaunchHostFunc(the_device.stream, device_turn_comes, t));
}

static void device_multiply(void *call)
{
    CHECK_INT(dpar_matmul_host(NULL, (const dpar_matmul *)call), DPAR_OK);
}

static inline dpar_status device_matmul(void *user, const dpar_matmul *call)
{
    (void)user;
    device_later(device_multiply, call, sizeof *call);
    return DPAR_OK;
}

/* Allocates whole pages: a plan pins its memory, so nothing else may share a page with it. */
static inline dpar_status host_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)c;
    *memory = aligned_alloc(page, ((size_t)bytes + page - 1 + (bytes == 0)) / page * page);
    return *memory != NULL ? DPAR_OK : DPAR_E_MEMORY;
}

static inline int64_t device_done(int64_t result)
{
    if (the_device.first != NULL) {
        device_right(cudaStreamSynchronize(the_device.stream));
        the_device.calls = the_device.gpu.launches;
        if (the_device.gpu.why.text[0] != 0) {
            printf("dpar_cuda: %s\n", the_device.gpu.why.text);
            the_device.gpu.why.text[0] = 0;
        }
    }
    return result;
}

#define ON_DEVICE(call) device_done((int64_t)(call))

#endif
