/* SPDX-License-Identifier: MIT-0 */
/* comm_engine - the engines that mpi_coll.c measures in the same run as the MPI library:
 *
 *   dpar, dpar-heap   dpar_comm.h, with the caller's own memory and with that of dpar_comm_alloc
 *   copy, stream      lower bounds: each rank copies within its own memory the fewest bytes that
 * the operation has to read and write, with memcpy and with streaming stores, all ranks at the same
 * time. No rank waits for another and no data moves between cores.
 *
 *   mpicc -O2 -I. -Ibench -DENGINE_H='"comm_engine.h"' bench/mpi_coll.c -o build/mpi_coll
 *
 * -DFLOORS_ONLY leaves dpar out. With -DOVER_MPI dpar_mpi_make makes dpar's communicator, so that
 * ranks may be on several nodes. */
#include <string.h>
#include <sys/mman.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- floors ---------------------------------------------------------------------------------- */

static float *floor_memory[2][2];
static size_t floor_bytes;

/* Uses shared memory, because its pages have 4 KiB like those of dpar, while the system may use
 * larger ones for private memory. */
static int floor_open(int k, size_t bytes, float **input, float **output)
{
    floor_bytes = bytes;
    for (int i = 0; i < 2; i++) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return 1;
        }
        memset(memory, 0, bytes);
        floor_memory[k][i] = (float *)memory;
    }
    *input = floor_memory[k][0];
    *output = floor_memory[k][1];
    return 0;
}

static int copy_open(int r, int n, size_t bytes, float **input, float **output)
{
    (void)r;
    (void)n;
    return floor_open(0, bytes, input, output);
}

static void copy_close(void)
{
    munmap(floor_memory[0][0], floor_bytes);
    munmap(floor_memory[0][1], floor_bytes);
}

/* Sets output[0 .. count) to the sum of `size` blocks of input, which is what a reduce_scatter
 * reads and writes. */
static void fold(const float *input, float *output, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = input[i];
        for (size_t b = 1; b < (size_t)size; b++) {
            sum += input[b * count + i];
        }
        output[i] = sum;
    }
}

/* Returns the bytes that a rank reads and writes in one op, or 0 if the op has no lower bound here.
 * In a broadcast all ranks but the root copy. */
static size_t floor_of(int op, size_t count)
{
    size_t bytes = count * sizeof(float);
    switch (op) {
    case ALL_REDUCE:
    case REDUCE_SCATTER: return bytes;
    case ALL_GATHER:
    case ALL_TO_ALL: return bytes * (size_t)size;
    case BROADCAST: return rank ? bytes : 1;
    default: return 0;
    }
}

static int copy_run(int op, const float *input, float *output, size_t count)
{
    size_t bytes = floor_of(op, count);
    if (bytes == 0) {
        return 1;
    }
    if (op == REDUCE_SCATTER) {
        fold(input, output, count);
    } else {
        memcpy(output, input, bytes);
    }
    return 0;
}

#ifdef __SSE2__
enum { LINE_FLOATS = 16, AHEAD = 256, VECTORS = LINE_FLOATS / 4 };

static int stream_open(int r, int n, size_t bytes, float **input, float **output)
{
    (void)r;
    (void)n;
    return floor_open(1, bytes, input, output);
}

static void stream_close(void)
{
    munmap(floor_memory[1][0], floor_bytes);
    munmap(floor_memory[1][1], floor_bytes);
}

/* Sums one cache line of `blocks` blocks of input, which are `count` apart, and stores the sum past
 * the caches. */
static void stream_line(const float *input, float *output, size_t count, size_t blocks)
{
    __m128 sum[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        sum[v] = _mm_load_ps(input + 4 * v);
    }
    for (size_t b = 0; b < blocks; b++) {
        _mm_prefetch((const char *)(input + b * count + AHEAD), _MM_HINT_T0);
    }
    for (size_t b = 1; b < blocks; b++) {
        for (int v = 0; v < VECTORS; v++) {
            sum[v] = _mm_add_ps(sum[v], _mm_loadu_ps(input + b * count + 4 * v));
        }
    }
    for (int v = 0; v < VECTORS; v++) {
        _mm_stream_ps(output + 4 * v, sum[v]);
    }
}

static int stream_run(int op, const float *input, float *output, size_t count)
{
    size_t bytes = floor_of(op, count), n = bytes / sizeof(float), i = 0;
    size_t blocks = op == REDUCE_SCATTER ? (size_t)size : 1;
    if (bytes == 0) {
        return 1;
    }
    for (; i + LINE_FLOATS <= n; i += LINE_FLOATS) {
        stream_line(input + i, output + i, count, blocks);
    }
    for (; i < n; i++) {
        output[i] = input[i];
    }
    _mm_sfence();
    return 0;
}
#define STREAM_ENGINE {"stream", stream_open, stream_run, stream_close, 1},
#else
#define STREAM_ENGINE
#endif

/* ---- dpar ------------------------------------------------------------------------------------ */

#ifndef FLOORS_ONLY
#include "dpar_comm.h"
#ifdef OVER_MPI
#include "dpar_mpi.h"
#endif

static dpar_comm *dpar_world;
static int dpar_users;
static float *dpar_private[2];
static void *dpar_heap[2];

static dpar_status dpar_make(dpar_why *why)
{
#ifdef OVER_MPI
    dpar_mpi_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.timeout_s = 60;
    return dpar_mpi_make(MPI_COMM_WORLD, &desc, &dpar_world, why);
#else
    dpar_world_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.timeout_s = 60;
    return dpar_init(&dpar_world, &desc, why);
#endif
}

/* Both engines use one communicator, which the first to open makes. */
static int dpar_join(void)
{
    dpar_why why;
    memset(&why, 0, sizeof why);
    if (dpar_world == NULL && dpar_make(&why) != DPAR_OK) {
        fprintf(stderr, "mpi_coll: rank %d: dpar's communicator cannot be made: %s\n", rank,
                why.text);
        return 1;
    }
    dpar_users++;
    if (dpar_world->size != size || dpar_world->rank != rank) {
        fprintf(stderr, "mpi_coll: rank %d of %d of MPI is rank %d of %d of dpar\n", rank, size,
                (int)dpar_world->rank, (int)dpar_world->size);
        return 1;
    }
    return 0;
}

static void dpar_leave(void)
{
    if (--dpar_users == 0) {
        dpar_comm_free(dpar_world);
    }
}

static int dpar_private_open(int r, int n, size_t bytes, float **input, float **output)
{
    (void)r;
    (void)n;
    for (int k = 0; k < 2; k++) {
        void *memory;
        if (posix_memalign(&memory, 4096, bytes)) {
            return 1;
        }
        dpar_private[k] = (float *)memory;
    }
    *input = dpar_private[0];
    *output = dpar_private[1];
    return dpar_join();
}

static void dpar_private_close(void)
{
    free(dpar_private[0]);
    free(dpar_private[1]);
    dpar_leave();
}

static int dpar_heap_open(int r, int n, size_t bytes, float **input, float **output)
{
    (void)r;
    (void)n;
    if (dpar_join()) {
        return 1;
    }
    for (int k = 0; k < 2; k++) {
        if (dpar_comm_alloc(dpar_world, (int64_t)bytes, &dpar_heap[k]) != DPAR_OK) {
            fprintf(stderr, "mpi_coll: rank %d: dpar_comm_alloc of %zu bytes failed: %s\n", rank,
                    bytes, dpar_world->why.text);
            return 1;
        }
    }
    *input = (float *)dpar_heap[0];
    *output = (float *)dpar_heap[1];
    return 0;
}

static void dpar_heap_close(void)
{
    dpar_comm_release(dpar_world, dpar_heap[0]);
    dpar_comm_release(dpar_world, dpar_heap[1]);
    dpar_leave();
}

/* A message there and one back; ranks above 1 do nothing. */
static dpar_status dpar_ping_pong(const float *input, float *output, int64_t n)
{
    dpar_status status = DPAR_OK;
    if (rank == 0) {
        status = dpar_send(dpar_world, input, n, DPAR_F32, 1, 0, NULL);
    }
    if (rank < 2 && status == DPAR_OK) {
        status = dpar_recv(dpar_world, output, n, DPAR_F32, 1 - rank, 0, NULL);
    }
    if (rank == 1 && status == DPAR_OK) {
        status = dpar_send(dpar_world, input, n, DPAR_F32, 0, 0, NULL);
    }
    return status;
}

/* An all_to_all with a count for each rank. */
static dpar_status dpar_stage_values(const float *input, float *output, int64_t n)
{
    static int64_t *count;
    int r;
    if (count == NULL) {
        count = (int64_t *)malloc((size_t)size * sizeof *count);
    }
    if (count == NULL) {
        return DPAR_E_MEMORY;
    }
    for (r = 0; r < size; r++) {
        count[r] = n;
    }
    return dpar_all_to_all_v(dpar_world, input, count, NULL, output, count, NULL, DPAR_F32, NULL);
}

static dpar_status dpar_one(int op, const float *input, float *output, int64_t n)
{
    switch (op) {
    case BARRIER: return dpar_barrier(dpar_world, NULL);
    case BROADCAST: /* the root's buffer is only read, so that it may be its input */
        return dpar_broadcast(dpar_world, rank == 0 ? (void *)(uintptr_t)input : output, n,
                              DPAR_F32, 0, NULL);
    case ALL_REDUCE: return dpar_all_reduce(dpar_world, input, output, n, DPAR_F32, DPAR_SUM, NULL);
    case ALL_GATHER: return dpar_all_gather(dpar_world, input, output, n, DPAR_F32, NULL);
    case REDUCE_SCATTER:
        return dpar_reduce_scatter(dpar_world, input, output, n, DPAR_F32, DPAR_SUM, NULL);
    case ALL_TO_ALL: return dpar_all_to_all(dpar_world, input, output, n, DPAR_F32, NULL);
    case ALL_TO_ALL_V: return dpar_stage_values(input, output, n);
    default: return dpar_ping_pong(input, output, n);
    }
}

/* Ends all ranks if a call fails, because nothing that is measured after an error has a meaning. */
static int dpar_run(int op, const float *input, float *output, size_t count)
{
    dpar_status status = dpar_one(op, input, output, (int64_t)count);
    if (status != DPAR_OK) {
        fprintf(stderr, "mpi_coll: rank %d: dpar's %s of %zu floats: %s: %s\n", rank, op_name[op],
                count, dpar_status_text(status), dpar_world->why.text);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return 0;
}
#define DPAR_ENGINES                                                                               \
    {"dpar", dpar_private_open, dpar_run, dpar_private_close, 0},                                  \
        {"dpar-heap", dpar_heap_open, dpar_run, dpar_heap_close, 0},
#else
#define DPAR_ENGINES
#endif

#define EXTRA_ENGINES DPAR_ENGINES{"copy", copy_open, copy_run, copy_close, 1}, STREAM_ENGINE
