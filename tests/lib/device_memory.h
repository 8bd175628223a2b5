/* SPDX-License-Identifier: MIT-0 */
/* device_memory: memory that the CPU cannot access, for tests of strategies without a device. Its
 * pages are mapped twice. Pointers of the rank name the first mapping, which may be accessed while
 * the test computes, but not while the library runs (ON_DEVICE(call)): then a direct access ends
 * the test by SIGSEGV. The tables of mem.h and layers.h and the engine use the second mapping.
 * Their operations wait in a queue until something orders them: an operation of the communicator,
 * `wait`, or the end of ON_DEVICE (the test's own synchronisation). With DEVICE_CUDA the device is
 * CUDA's, with NCCL. */
#ifndef DPAR_DEVICE_MEMORY_H
#define DPAR_DEVICE_MEMORY_H

#include "rank_program.h"

static void *device_zeroed(int64_t bytes);
static void device_free(void *at);

/* Allocates device memory for dpar_engine. */
static dpar_status device_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    (void)c;
    *memory = device_zeroed(bytes);
    return DPAR_OK;
}

static void device_release(dpar_comm *c, void *memory)
{
    (void)c;
    if (memory != NULL) {
        device_free(memory);
    }
}

enum {
    DEVICE_MOVE,
    DEVICE_SPAN,
    DEVICE_REDUCE,
    DEVICE_FINITE,
    DEVICE_SQUARES,
    DEVICE_CLIP,
    DEVICE_OPTIMIZE,
    DEVICE_GATHER,
    DEVICE_SCATTER,
    DEVICE_COMBINE,
    DEVICE_DOT,
    DEVICE_CROSS_ENTROPY,
    DEVICE_ATTENTION_MERGE,
    DEVICE_ROUND,
    DEVICE_MOMENTS,
    DEVICE_NORM,
    DEVICE_QUANTIZE,
    DEVICE_DEQUANTIZE,
    DEVICE_MATMUL,
    DEVICE_LATER
};

typedef union device_call {
    dpar_mem_box *boxes;
    dpar_mem_span *spans;
    dpar_mem_reduce reduce;
    dpar_mem_finite finite;
    dpar_mem_squares squares;
    dpar_mem_clip clip;
    dpar_mem_optimize optimize;
    dpar_mem_gather gather;
    dpar_mem_scatter scatter;
    dpar_mem_combine combine;
    dpar_mem_dot dot;
    dpar_mem_cross_entropy cross_entropy;
    dpar_mem_attention_merge attention_merge;
    dpar_mem_round round;
    dpar_mem_moments moments;
    dpar_mem_norm norm;
    dpar_mem_quantize quantize;
    dpar_matmul matmul;
    struct {
        void (*run)(void *call);
        void *call;
    } later;
} device_call;

typedef struct device_entry {
    int32_t kind, n;
    device_call call;
    dpar_optimizer optimizer;
    dpar_optimizer_piece piece;
} device_entry;

static void *device_copied(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    if (to == NULL) {
        exit(1);
    }
    memcpy(to, from, bytes);
    return to;
}

/* Copies a call with all its pointers into the entry. */
static inline void device_take_optimize(device_entry *e, const dpar_mem_optimize *call)
{
    e->call.optimize = *call;
    e->optimizer = *call->optimizer;
    e->piece = *call->piece;
    e->call.optimize.optimizer = &e->optimizer;
    e->call.optimize.piece = &e->piece;
}

/* Replaces each address of a call by there() of it. */
#define DEVICE_AT(pointer, type) ((pointer) = (type *)there(pointer))

static void device_lists(device_entry *e, void *(*there)(const void *))
{
    int32_t i;
    for (i = 0; i < e->n; i++) {
        if (e->kind == DEVICE_MOVE) {
            DEVICE_AT(e->call.boxes[i].to, void);
            DEVICE_AT(e->call.boxes[i].from, void);
        } else {
            DEVICE_AT(e->call.spans[i].to, void);
            DEVICE_AT(e->call.spans[i].from, const void);
        }
    }
}

static void device_norm_pointers(dpar_mem_norm *c, void *(*there)(const void *))
{
    DEVICE_AT(c->x.data, void);
    DEVICE_AT(c->dy.data, void);
    DEVICE_AT(c->to.data, void);
    DEVICE_AT(c->scale, const void);
    DEVICE_AT(c->shift, const void);
    DEVICE_AT(c->all, const double);
    DEVICE_AT(c->saved, double);
    DEVICE_AT(c->sums, double);
    DEVICE_AT(c->total, double);
    DEVICE_AT(c->scale_gradient, double);
    DEVICE_AT(c->shift_gradient, double);
}

static void device_optimize_pointers(device_entry *e, void *(*there)(const void *))
{
    e->call.optimize.optimizer = &e->optimizer;
    e->call.optimize.piece = &e->piece;
    DEVICE_AT(e->piece.weight, void);
    DEVICE_AT(e->piece.gradient, const void);
    DEVICE_AT(e->piece.m, void);
    DEVICE_AT(e->piece.v, void);
    DEVICE_AT(e->call.optimize.factor_at, const double);
    DEVICE_AT(e->call.optimize.copy, void);
    DEVICE_AT(e->call.optimize.remainder, int16_t);
}

/* Replaces the pointers of rows that an index names. */
static void device_row_pointers(device_entry *e, void *(*there)(const void *))
{
    device_call *c = &e->call;
    switch (e->kind) {
    case DEVICE_GATHER:
        DEVICE_AT(c->gather.to, void);
        DEVICE_AT(c->gather.from, const void);
        DEVICE_AT(c->gather.index.at, const void);
        break;
    case DEVICE_SCATTER:
        DEVICE_AT(c->scatter.to, void);
        DEVICE_AT(c->scatter.from, const void);
        DEVICE_AT(c->scatter.index.at, const void);
        break;
    case DEVICE_COMBINE:
        DEVICE_AT(c->combine.to, void);
        DEVICE_AT(c->combine.from, const void);
        DEVICE_AT(c->combine.weight, const void);
        DEVICE_AT(c->combine.index.at, const void);
        break;
    case DEVICE_DOT:
        DEVICE_AT(c->dot.to, void);
        DEVICE_AT(c->dot.a, const void);
        DEVICE_AT(c->dot.b, const void);
        DEVICE_AT(c->dot.index.at, const void);
        break;
    default:
        DEVICE_AT(c->cross_entropy.logits, void);
        DEVICE_AT(c->cross_entropy.partial, void);
        DEVICE_AT(c->cross_entropy.all, const void);
        DEVICE_AT(c->cross_entropy.lse, double);
        DEVICE_AT(c->cross_entropy.loss, double);
        DEVICE_AT(c->cross_entropy.sum, dpar_cross_entropy_sum);
        DEVICE_AT(c->cross_entropy.target.at, const void);
    }
}

static void device_pointers(device_entry *e, void *(*there)(const void *))
{
    device_call *c = &e->call;
    switch (e->kind) {
    case DEVICE_MOVE:
    case DEVICE_SPAN: device_lists(e, there); break;
    case DEVICE_REDUCE:
        DEVICE_AT(c->reduce.to, void);
        DEVICE_AT(c->reduce.from, const void);
        break;
    case DEVICE_FINITE:
        DEVICE_AT(c->finite.in, const void);
        DEVICE_AT(c->finite.found, int64_t);
        break;
    case DEVICE_SQUARES:
        DEVICE_AT(c->squares.in, const void);
        DEVICE_AT(c->squares.sum, double);
        break;
    case DEVICE_CLIP:
        DEVICE_AT(c->clip.squares, const double);
        DEVICE_AT(c->clip.factor, double);
        break;
    case DEVICE_OPTIMIZE: device_optimize_pointers(e, there); break;
    case DEVICE_ROUND:
        DEVICE_AT(c->round.to, void);
        DEVICE_AT(c->round.from, const void);
        break;
    case DEVICE_ATTENTION_MERGE:
        DEVICE_AT(c->attention_merge.out, void);
        DEVICE_AT(c->attention_merge.lse, void);
        DEVICE_AT(c->attention_merge.more, const void);
        DEVICE_AT(c->attention_merge.more_lse, const void);
        break;
    case DEVICE_MOMENTS:
        DEVICE_AT(c->moments.x, const void);
        DEVICE_AT(c->moments.to, double);
        break;
    case DEVICE_NORM: device_norm_pointers(&c->norm, there); break;
    case DEVICE_QUANTIZE:
    case DEVICE_DEQUANTIZE:
        DEVICE_AT(c->quantize.x, void);
        DEVICE_AT(c->quantize.code, void);
        DEVICE_AT(c->quantize.scale, void);
        DEVICE_AT(c->quantize.tensor, const float);
        break;
    case DEVICE_LATER: break; /* replaces its pointers itself */
    case DEVICE_MATMUL:
        DEVICE_AT(c->matmul.a, const void);
        DEVICE_AT(c->matmul.b, const void);
        DEVICE_AT(c->matmul.c, void);
        break;
    default: device_row_pointers(e, there);
    }
}

/* DEVICE_OPERATION(name, member, type, number) for each operation of the table with one
 * argument. */
#define DEVICE_OPERATIONS                                                                          \
    DEVICE_OPERATION(reduce, reduce, dpar_mem_reduce, DEVICE_REDUCE)                               \
    DEVICE_OPERATION(finite, finite, dpar_mem_finite, DEVICE_FINITE)

/* The same for the table of layers. */
#define DEVICE_LAYERS                                                                              \
    DEVICE_OPERATION(squares, squares, dpar_mem_squares, DEVICE_SQUARES)                           \
    DEVICE_OPERATION(clip, clip, dpar_mem_clip, DEVICE_CLIP)                                       \
    DEVICE_OPERATION(gather, gather, dpar_mem_gather, DEVICE_GATHER)                               \
    DEVICE_OPERATION(scatter, scatter, dpar_mem_scatter, DEVICE_SCATTER)                           \
    DEVICE_OPERATION(combine, combine, dpar_mem_combine, DEVICE_COMBINE)                           \
    DEVICE_OPERATION(dot, dot, dpar_mem_dot, DEVICE_DOT)                                           \
    DEVICE_OPERATION(cross_entropy, cross_entropy, dpar_mem_cross_entropy, DEVICE_CROSS_ENTROPY)   \
    DEVICE_OPERATION(attention_merge, attention_merge, dpar_mem_attention_merge,                   \
                     DEVICE_ATTENTION_MERGE)                                                       \
    DEVICE_OPERATION(round, round, dpar_mem_round, DEVICE_ROUND)                                   \
    DEVICE_OPERATION(moments, moments, dpar_mem_moments, DEVICE_MOMENTS)                           \
    DEVICE_OPERATION(norm, norm, dpar_mem_norm, DEVICE_NORM)                                       \
    DEVICE_OPERATION(quantize, quantize, dpar_mem_quantize, DEVICE_QUANTIZE)                       \
    DEVICE_OPERATION(dequantize, quantize, dpar_mem_quantize, DEVICE_DEQUANTIZE)

/* Sets the pointers of the tables. */
#define DEVICE_FILL(m, l)                                                                          \
    ((m)->move = device_move, (m)->span = device_span, (m)->reduce = device_reduce,                \
     (m)->finite = device_finite, (m)->layers = (l), (l)->squares = device_squares,                \
     (l)->clip = device_clip, (l)->optimize = device_optimize, (l)->round = device_round,          \
     (l)->gather = device_gather, (l)->scatter = device_scatter, (l)->combine = device_combine,    \
     (l)->dot = device_dot, (l)->cross_entropy = device_cross_entropy,                             \
     (l)->attention_merge = device_attention_merge, (l)->moments = device_moments,                 \
     (l)->norm = device_norm, (l)->quantize = device_quantize,                                     \
     (l)->dequantize = device_dequantize)

#ifdef DEVICE_CUDA
#include "../gpu/device_cuda.h"
#else

#include <sys/mman.h>
#include <unistd.h>

enum { DEVICE_QUEUE = 4096, DEVICE_TABLES = 4 };

typedef struct device_memory {
    unsigned char *first, *second; /* the two mappings */
    size_t bytes, used;
    int64_t pieces; /* that were not freed; if 0 all memory is free again */
    int open;       /* 1 if the CPU may access the first mapping */
    int64_t calls;  /* calls of the table so far */
    int queued;
    device_entry *queue;
    dpar_mem table;
    dpar_mem_layers layers;
    dpar_engine engine; /* the communicator's real engine */
} device_memory;
static __thread device_memory the_device; /* ranks may be threads */

static void device_begin(size_t bytes)
{
    device_memory *d = &the_device;
    char name[] = "/dev/shm/dpar_device_XXXXXX";
    const int file = mkstemp(name);
    if (file < 0 || unlink(name) != 0 || ftruncate(file, (off_t)bytes) != 0) {
        perror("device memory");
        exit(1);
    }
    memset(d, 0, sizeof *d);
    d->first = (unsigned char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    d->second = (unsigned char *)mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    d->queue = (device_entry *)calloc(DEVICE_QUEUE, sizeof *d->queue);
    if (d->first == MAP_FAILED || d->second == MAP_FAILED || d->queue == NULL) {
        perror("device memory");
        exit(1);
    }
    close(file);
    d->bytes = bytes;
    d->open = 1;
}

static void device_end(void)
{
    device_memory *d = &the_device;
    (void)munmap(d->first, d->bytes);
    (void)munmap(d->second, d->bytes);
    free(d->queue);
    memset(d, 0, sizeof *d);
}

static inline int device_has(const void *at)
{
    return (uintptr_t)at >= (uintptr_t)the_device.first &&
           (uintptr_t)at < (uintptr_t)(the_device.first + the_device.bytes);
}

/* Allocates zeroed device memory at a multiple of 64. */
static void *device_zeroed(int64_t bytes)
{
    device_memory *d = &the_device;
    const size_t at = d->used;
    d->used += ((size_t)bytes + 127) / 64 * 64;
    if (d->used > d->bytes) {
        printf("device memory: %lld bytes are not enough\n", (long long)d->bytes);
        exit(1);
    }
    d->pieces++;
    memset(d->second + at, 0, (size_t)bytes);
    return d->first + at;
}

/* Frees memory of the device, or of the host. */
static void device_free(void *at)
{
    if (!device_has(at)) {
        free(at);
    } else if (--the_device.pieces == 0) {
        the_device.used = 0;
    }
}

/* Returns the same byte in the second mapping; other pointers are returned unchanged. */
static void *device_there(const void *at)
{
    return device_has(at) ? the_device.second + ((uintptr_t)at - (uintptr_t)the_device.first)
                          : (void *)(uintptr_t)at;
}

#define DEVICE_THERE(pointer, type) ((pointer) = (type *)device_there(pointer))

static dpar_status device_entry_run(const dpar_mem *host, const dpar_mem_layers *layers,
                                    device_entry *e)
{
    device_call *c = &e->call;
    dpar_status st;
    device_pointers(e, device_there);
    switch (e->kind) {
    case DEVICE_MOVE:
        st = host->move(NULL, c->boxes, e->n);
        free(c->boxes);
        return st;
    case DEVICE_SPAN:
        st = host->span(NULL, c->spans, e->n);
        free(c->spans);
        return st;
    case DEVICE_REDUCE: return host->reduce(NULL, &c->reduce);
    case DEVICE_FINITE: return host->finite(NULL, &c->finite);
    case DEVICE_SQUARES: return layers->squares(NULL, &c->squares);
    case DEVICE_CLIP: return layers->clip(NULL, &c->clip);
    case DEVICE_OPTIMIZE: return layers->optimize(NULL, &c->optimize);
    case DEVICE_GATHER: return layers->gather(NULL, &c->gather);
    case DEVICE_SCATTER: return layers->scatter(NULL, &c->scatter);
    case DEVICE_COMBINE: return layers->combine(NULL, &c->combine);
    case DEVICE_DOT: return layers->dot(NULL, &c->dot);
    case DEVICE_CROSS_ENTROPY: return layers->cross_entropy(NULL, &c->cross_entropy);
    case DEVICE_ATTENTION_MERGE: return layers->attention_merge(NULL, &c->attention_merge);
    case DEVICE_ROUND: return layers->round(NULL, &c->round);
    case DEVICE_MOMENTS: return layers->moments(NULL, &c->moments);
    case DEVICE_NORM: return layers->norm(NULL, &c->norm);
    case DEVICE_QUANTIZE: return layers->quantize(NULL, &c->quantize);
    case DEVICE_DEQUANTIZE: return layers->dequantize(NULL, &c->quantize);
    case DEVICE_LATER:
        c->later.run(c->later.call);
        free(c->later.call);
        return DPAR_OK;
    default: return dpar_matmul_host(NULL, &c->matmul);
    }
}

/* Runs all queued operations in order. */
static dpar_status device_flush(void)
{
    const dpar_mem host = dpar_mem_host();
    const dpar_mem_layers layers = dpar_mem_host_layers();
    dpar_status st = DPAR_OK;
    int i;
    for (i = 0; i < the_device.queued; i++) {
        const dpar_status one = device_entry_run(&host, &layers, &the_device.queue[i]);
        if (one != DPAR_OK) {
            CHECK_INT(one, DPAR_OK);
            printf("operation %d of the device's memory\n", (int)the_device.queue[i].kind);
        }
        st = st == DPAR_OK ? one : st;
    }
    the_device.queued = 0;
    return st;
}

static device_entry *device_push(int32_t kind)
{
    device_entry *e;
    if (the_device.queued == DEVICE_QUEUE) {
        (void)device_flush();
    }
    e = &the_device.queue[the_device.queued++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    the_device.calls++;
    return e;
}

/* Enqueues a kernel of the test: run(copy of call), which uses DEVICE_THERE. */
static inline void device_later(void (*run)(void *call), const void *call, size_t bytes)
{
    device_entry *e = device_push(DEVICE_LATER);
    e->call.later.run = run;
    e->call.later.call = device_copied(call, bytes);
}

static dpar_status device_move(void *ctx, const dpar_mem_box *boxes, int32_t n)
{
    device_entry *e = device_push(DEVICE_MOVE);
    (void)ctx;
    e->n = n;
    e->call.boxes = (dpar_mem_box *)device_copied(boxes, (size_t)n * sizeof *boxes);
    return DPAR_OK;
}

static dpar_status device_span(void *ctx, const dpar_mem_span *spans, int32_t n)
{
    device_entry *e = device_push(DEVICE_SPAN);
    (void)ctx;
    e->n = n;
    e->call.spans = (dpar_mem_span *)device_copied(spans, (size_t)n * sizeof *spans);
    return DPAR_OK;
}

#define DEVICE_OPERATION(name, member, type, number)                                               \
    static dpar_status device_##name(void *ctx, const type *call)                                  \
    {                                                                                              \
        (void)ctx;                                                                                 \
        device_push(number)->call.member = *call;                                                  \
        return DPAR_OK;                                                                            \
    }
DEVICE_OPERATIONS
DEVICE_LAYERS
DPARI_UNUSED DEVICE_OPERATION(matmul, matmul, dpar_matmul, DEVICE_MATMUL)

    static dpar_status device_optimize(void *ctx, const dpar_mem_optimize *call)
{
    device_entry *e = device_push(DEVICE_OPTIMIZE);
    (void)ctx;
    device_take_optimize(e, call);
    return DPAR_OK;
}

static dpar_status device_wait(void *ctx)
{
    (void)ctx;
    return device_flush();
}

static void device_fill_table(device_memory *d)
{
    memset(&d->table, 0, sizeof d->table);
    d->table.wait = device_wait;
    DEVICE_FILL(&d->table, &d->layers);
}

/* ---- the engine: runs after the queue, on the second mapping ---- */

static dpar_call device_moved(const dpar_call *call)
{
    dpar_call c = *call;
    DEVICE_THERE(c.in, const void);
    DEVICE_THERE(c.out, void);
    (void)device_flush();
    return c;
}

static dpar_status device_run(dpar_comm *c, const dpar_call *call)
{
    const dpar_call moved = device_moved(call);
    return the_device.engine.run(c, &moved);
}

static dpar_status device_post(dpar_comm *c, const dpar_call *call, dpar_work *work)
{
    const dpar_call moved = device_moved(call);
    return the_device.engine.post(c, &moved, work);
}

static dpar_status device_batch(dpar_comm *c, const dpar_call *calls, int32_t n, dpar_work *works)
{
    dpar_call *moved = (dpar_call *)device_copied(calls, (size_t)n * sizeof *calls);
    dpar_status st;
    int32_t i;
    for (i = 0; i < n; i++) {
        moved[i] = device_moved(&calls[i]);
    }
    st = the_device.engine.batch(c, moved, n, works);
    free(moved);
    return st;
}

static dpar_status device_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out);

static void device_wrap(dpar_comm *c)
{
    memcpy(c->engine.name, "fake", 5);
    c->engine.run = device_run;
    c->engine.post = device_post;
    c->engine.batch = device_batch;
    c->engine.alloc = device_alloc;
    c->engine.release = device_release;
    c->engine.split = device_split;
}

static dpar_status device_split(dpar_comm *c, int32_t color, int32_t key, dpar_comm **out)
{
    const dpar_status st = the_device.engine.split(c, color, key, out);
    if (st == DPAR_OK && *out != NULL) {
        device_wrap(*out);
    }
    return st;
}

/* Makes all strategies on c work in device memory from now on. */
static dpar_comm *device_take(dpar_comm *c)
{
    the_device.engine = c->engine;
    device_fill_table(&the_device);
    c->mem = &the_device.table;
    device_wrap(c);
    return c;
}

static inline dpar_comm *device_return(dpar_comm *c)
{
    c->engine = the_device.engine;
    c->mem = NULL;
    return c;
}

/* ---- access to the first mapping ---- */

static void device_close(void)
{
    if (the_device.first != NULL && the_device.open) {
        CHECK(mprotect(the_device.first, the_device.bytes, PROT_NONE) == 0);
        the_device.open = 0;
    }
}

static void device_open(void)
{
    if (the_device.first != NULL && !the_device.open) {
        (void)device_flush();
        CHECK(mprotect(the_device.first, the_device.bytes, PROT_READ | PROT_WRITE) == 0);
        the_device.open = 1;
    }
}

static inline int64_t device_opened(int64_t result)
{
    device_open();
    return result;
}

/* Allocates memory of a plan on the host, because registered memory is the device's. */
static inline dpar_status host_alloc(dpar_comm *c, int64_t bytes, void **memory)
{
    (void)c;
    *memory = aligned_alloc(64, ((size_t)bytes + 127) / 64 * 64);
    return *memory != NULL ? DPAR_OK : DPAR_E_MEMORY;
}

/* Makes a library call that returns a status or a number. */
#define ON_DEVICE(call) (device_close(), device_opened((int64_t)(call)))

#endif /* DEVICE_CUDA */

#endif
