/* SPDX-License-Identifier: MIT-0 */
/* gpu_bus - measures bandwidths between GPUs: operations of dpar_nccl.h and NCCL's own calls, on
 * the same buffers and the same stream, in turns, in one run. Bus bandwidths are defined as in
 * nccl-tests (doc/PERFORMANCE.md there): bytes a second, times a factor that makes them comparable
 * with the bandwidth of a link.
 *
 *     nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION \
 *         -I. bench/gpu_bus.cu -o gpu_bus -ldl
 *     ./gpu_bus --ranks 8                               a GPU each
 *     DPAR_TEST_SHARE_GPU=1 ./gpu_bus --ranks 2         all on one, which measures no links
 *
 * Prints NCCL's version and rows of a Markdown table: the operation, the ranks, the bytes of the
 * larger buffer (of f32; in send_recv each rank sends so many to the next), us and bus GB/s of dpar
 * and of NCCL, and NCCL's time over dpar's: above 1 dpar is faster. Times are the best of --rounds,
 * each the mean of --times operations of the slowest rank. Results are checked.
 * --windows: both register the buffers as windows of symmetric memory (NCCL 2.27).
 *
 * Exit code: 0 done; 1 a wrong result, or a call failed; 2 bad input. */
static const char program[] = "gpu_bus";
#include "dpar_comm.h"
static const char help[] =
    "gpu_bus: measures bandwidths between GPUs, of dpar and of NCCL\n"
    "\n"
    "  --ranks N     processes, 2 to 64 (default 2)\n"
    "  --bytes N     bytes of the larger buffer, 1024 to 1073741824 (default 64 KiB, then 1, 16\n"
    "                and 256 MiB)\n"
    "  --times N     operations of a round, 1 to 1000 (default 20)\n"
    "  --rounds N    rounds, of which the best counts, 1 to 100 (default 7)\n"
    "  --windows     registers the buffers as windows of NCCL's symmetric memory (2.27 and later)\n"
    "  -h, --help    prints this text\n"
    "\n"
    "examples\n"
    "  gpu_bus --ranks 8\n"
    "  gpu_bus --ranks 4 --bytes 1048576\n";

#include "../helpers/options.h"

#include "../helpers/gpu_start.h"

#include <algorithm>
#include <dlfcn.h>

struct settings {
    double ranks, bytes, times, rounds;
    int windows;
};

/* ---- NCCL itself ----------------------------------------------------------------------------- */

/* The functions of NCCL's library, which is loaded at run time, and a communicator. */
struct nccl_calls {
    decltype(&ncclGetErrorString) error;
    decltype(&ncclGetVersion) version;
    decltype(&ncclGetUniqueId) id;
    decltype(&ncclCommInitRank) init;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclAllReduce) all_reduce;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclReduceScatter) reduce_scatter;
    decltype(&ncclSend) send;
    decltype(&ncclRecv) recv;
    decltype(&ncclGroupStart) group;
    decltype(&ncclGroupEnd) group_end;
    ncclResult_t (*all_to_all)(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
                               cudaStream_t); /* NULL before 2.28.3; messages are used then */
    ncclResult_t (*window)(ncclComm_t, void *, size_t, void **, int); /* from 2.27.3 on */
    ncclResult_t (*window_end)(ncclComm_t, void *);
    ncclComm_t comm;
    void *windows[2];
    int number;
};

/* Sets the pointer at `to` to a function of a library. */
static void find(void *library, const char *name, void *to)
{
    void *at = dlsym(library, name);
    memcpy(to, &at, sizeof at);
}

/* Ends this rank if a call of NCCL failed. */
static void right(const nccl_calls &nccl, ncclResult_t code)
{
    if (code != ncclSuccess) {
        exit(complain("a call of NCCL failed:", nccl.error(code)) - 1);
    }
}

/* Loads NCCL and makes its communicator of all ranks. */
static void open_nccl(nccl_calls *nccl, gpu *device)
{
    const char *name = getenv("DPAR_NCCL_LIBRARY");
    void *library = dlopen(name != NULL && name[0] != 0 ? name : "libnccl.so.2", RTLD_NOW);
    ncclUniqueId id;
    memset(nccl, 0, sizeof *nccl);
    right(library != NULL ? DPAR_OK : DPAR_E_SYSTEM,
          "the library of NCCL cannot be loaded; set DPAR_NCCL_LIBRARY to its path");
    find(library, "ncclGetErrorString", &nccl->error);
    find(library, "ncclGetVersion", &nccl->version);
    find(library, "ncclGetUniqueId", &nccl->id);
    find(library, "ncclCommInitRank", &nccl->init);
    find(library, "ncclCommDestroy", &nccl->destroy);
    find(library, "ncclAllReduce", &nccl->all_reduce);
    find(library, "ncclAllGather", &nccl->all_gather);
    find(library, "ncclReduceScatter", &nccl->reduce_scatter);
    find(library, "ncclSend", &nccl->send);
    find(library, "ncclRecv", &nccl->recv);
    find(library, "ncclGroupStart", &nccl->group);
    find(library, "ncclGroupEnd", &nccl->group_end);
    right(*nccl, nccl->version(&nccl->number));
    if (nccl->number >= 22803) {
        find(library, "ncclAlltoAll", &nccl->all_to_all);
    }
    if (nccl->number >= 22703) {
        find(library, "ncclCommWindowRegister", &nccl->window);
        find(library, "ncclCommWindowDeregister", &nccl->window_end);
    }
    memset(&id, 0, sizeof id);
    if (device->world->rank == 0) {
        right(*nccl, nccl->id(&id));
    }
    right(dpar_broadcast(device->world, &id, (int64_t)sizeof id, DPAR_U8, 0, NULL),
          device->world->why.text);
    right(*nccl, nccl->init(&nccl->comm, device->world->size, id, device->world->rank));
}

/* ---- operations ------------------------------------------------------------------------------ */

enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, SEND_RECV, KINDS };
static const char *const names[KINDS] = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                         "send_recv"};

/* A row of the table, with its buffers. */
struct one {
    gpu *device;
    const nccl_calls *nccl;
    int kind;
    int64_t count; /* of the larger buffer */
    float *in, *out;
};

/* Returns the factor from bytes of the larger buffer per second to the bus bandwidth. */
static double bus_factor(int kind, int32_t ranks)
{
    const double n = ranks;
    if (kind == SEND_RECV) {
        return 1.0;
    }
    return kind == ALL_REDUCE ? 2.0 * (n - 1.0) / n : (n - 1.0) / n;
}

static void by_dpar(const one &operation)
{
    dpar_comm *comm = operation.device->world;
    const int64_t part = operation.count / comm->size;
    dpar_work work[2] = {};
    dpar_call call[2] = {};
    dpar_status st = DPAR_OK;
    switch (operation.kind) {
    case ALL_REDUCE:
        st = dpar_all_reduce(comm, operation.in, operation.out, operation.count, DPAR_F32, DPAR_SUM,
                             &work[0]);
        break;
    case ALL_GATHER:
        st = dpar_all_gather(comm, operation.in, operation.out, part, DPAR_F32, &work[0]);
        break;
    case REDUCE_SCATTER:
        st = dpar_reduce_scatter(comm, operation.in, operation.out, part, DPAR_F32, DPAR_SUM,
                                 &work[0]);
        break;
    case ALL_TO_ALL:
        st = dpar_all_to_all(comm, operation.in, operation.out, part, DPAR_F32, &work[0]);
        break;
    default:
        call[0].kind = DPAR_CALL_SEND;
        call[0].in = operation.in;
        call[0].root = (comm->rank + 1) % comm->size;
        call[1].kind = DPAR_CALL_RECV;
        call[1].out = operation.out;
        call[1].root = (comm->rank + comm->size - 1) % comm->size;
        call[0].type = call[1].type = DPAR_F32;
        call[0].count = call[1].count = operation.count;
        st = dpar_batch(comm, call, 2, work);
        if (st == DPAR_OK) {
            st = dpar_wait(&work[1]);
        }
        break;
    }
    right(st == DPAR_OK ? dpar_wait(&work[0]) : st, comm->why.text);
}

static void by_nccl(const one &operation)
{
    const nccl_calls &nccl = *operation.nccl;
    const int ranks = operation.device->world->size, me = operation.device->world->rank;
    const size_t part = (size_t)(operation.count / ranks), all = (size_t)operation.count;
    cudaStream_t stream = operation.device->stream;
    switch (operation.kind) {
    case ALL_REDUCE:
        right(nccl, nccl.all_reduce(operation.in, operation.out, all, ncclFloat, ncclSum, nccl.comm,
                                    stream));
        return;
    case ALL_GATHER:
        right(nccl,
              nccl.all_gather(operation.in, operation.out, part, ncclFloat, nccl.comm, stream));
        return;
    case REDUCE_SCATTER:
        right(nccl, nccl.reduce_scatter(operation.in, operation.out, part, ncclFloat, ncclSum,
                                        nccl.comm, stream));
        return;
    case ALL_TO_ALL:
        if (nccl.all_to_all != NULL) {
            right(nccl,
                  nccl.all_to_all(operation.in, operation.out, part, ncclFloat, nccl.comm, stream));
            return;
        }
        right(nccl, nccl.group());
        for (int r = 0; r < ranks; r++) {
            right(nccl, nccl.send(operation.in + (size_t)r * part, part, ncclFloat, r, nccl.comm,
                                  stream));
            right(nccl, nccl.recv(operation.out + (size_t)r * part, part, ncclFloat, r, nccl.comm,
                                  stream));
        }
        right(nccl, nccl.group_end());
        return;
    default:
        right(nccl, nccl.group());
        right(nccl, nccl.send(operation.in, all, ncclFloat, (me + 1) % ranks, nccl.comm, stream));
        right(nccl, nccl.recv(operation.out, all, ncclFloat, (me + ranks - 1) % ranks, nccl.comm,
                              stream));
        right(nccl, nccl.group_end());
    }
}

/* ---- results --------------------------------------------------------------------------------- */

struct numbers {
    float *at;
    int64_t count, rank;
};

/* Returns element i of a rank's input: whole numbers, whose sums over 64 ranks are exact. */
__host__ __device__ static inline float value(int64_t rank, int64_t i)
{
    return (float)((rank * 5 + i) % 61);
}

__global__ static void fill(const numbers array)
{
    for (EACH(i, array.count)) {
        array.at[i] = value(array.rank, i);
    }
}

static float expected(const one &operation, int64_t i)
{
    const int64_t ranks = operation.device->world->size, me = operation.device->world->rank,
                  part = operation.count / ranks;
    float sum = 0.0f;
    switch (operation.kind) {
    case ALL_GATHER: return value(i / part, i % part);
    case ALL_TO_ALL: return value(i / part, me * part + i % part);
    case SEND_RECV: return value((me + ranks - 1) % ranks, i);
    default:
        for (int64_t r = 0; r < ranks; r++) {
            sum += value(r, operation.kind == REDUCE_SCATTER ? me * part + i : i);
        }
        return sum;
    }
}

/* Returns how many of 50 elements of the result are wrong. Then it overwrites the result, so that
 * the next operation has to write all of it. */
static int wrong(const one &operation)
{
    const int64_t count = operation.kind == REDUCE_SCATTER
                              ? operation.count / operation.device->world->size
                              : operation.count;
    int bad = 0;
    for (int k = 0; k < 50; k++) {
        const int64_t i = (count - 1) * k / 49;
        float is = -1.0f;
        right(cudaMemcpyAsync(&is, operation.out + i, sizeof is, cudaMemcpyDeviceToHost,
                              operation.device->stream));
        right(cudaStreamSynchronize(operation.device->stream));
        bad += !(is == expected(operation, i));
    }
    right(cudaMemsetAsync(operation.out, 0xff, (size_t)operation.count * sizeof *operation.out,
                          operation.device->stream));
    return bad;
}

static double largest(gpu *device, double mine)
{
    double most = 0.0;
    right(dpar_all_reduce(device->world, &mine, &most, 1, DPAR_F64, DPAR_MAX, NULL),
          device->world->why.text);
    return most;
}

/* Returns the microseconds of one operation on the slowest rank. */
static double timed(const one &operation, int times, void (*run)(const one &))
{
    cudaEvent_t before, behind;
    float ms = 0.0f;
    right(cudaEventCreate(&before));
    right(cudaEventCreate(&behind));
    run(operation);
    right(cudaStreamSynchronize(operation.device->stream));
    right(dpar_barrier(operation.device->world, NULL), operation.device->world->why.text);
    right(cudaEventRecord(before, operation.device->stream));
    for (int i = 0; i < times; i++) {
        run(operation);
    }
    right(cudaEventRecord(behind, operation.device->stream));
    right(cudaEventSynchronize(behind));
    right(cudaEventElapsedTime(&ms, before, behind));
    right(cudaEventDestroy(before));
    right(cudaEventDestroy(behind));
    return largest(operation.device, 1000.0 * (double)ms / times);
}

static void put_bytes(int64_t bytes)
{
    if (bytes >= 1 << 20) {
        printf("%lld MiB", (long long)(bytes >> 20));
    } else {
        printf("%lld KiB", (long long)(bytes >> 10));
    }
}

/* Measures and prints a row. Returns 1 if a result was wrong. */
static int row(const one &operation, const settings &chosen)
{
    static void (*const ways[2])(const one &) = {by_dpar, by_nccl};
    const int32_t ranks = operation.device->world->size;
    const int64_t bytes = operation.count * (int64_t)sizeof(float);
    double best[2] = {0.0, 0.0}, bus[2], bad = 0.0;
    for (int round = 0; round < (int)chosen.rounds; round++) {
        for (int w = 0; w < 2; w++) {
            const double us = timed(operation, (int)chosen.times, ways[w]);
            best[w] = round == 0 || us < best[w] ? us : best[w];
            bad += wrong(operation);
        }
    }
    for (int w = 0; w < 2; w++) {
        bus[w] = best[w] > 0.0 ? (double)bytes / best[w] * 1e-3 * bus_factor(operation.kind, ranks)
                               : 0.0;
    }
    bad = largest(operation.device, bad);
    const double ratio = best[0] > 0.0 ? best[1] / best[0] : 0.0;
    if (operation.device->world->rank == 0) {
        printf("| %s%s | %d | ", names[operation.kind], chosen.windows ? ", windows" : "",
               (int)ranks);
        put_bytes(bytes);
        printf(" | %.1f us, %.1f GB/s | %.1f us, %.1f GB/s | %.2f |%s\n", best[0], bus[0], best[1],
               bus[1], ratio, bad > 0.0 ? " WRONG" : "");
        fflush(stdout);
    }
    return bad > 0.0;
}

static int run(gpu *device, const void *arg)
{
    const settings &chosen = *(const settings *)arg;
    const int64_t few[4] = {65536, 1 << 20, 16 << 20, 256 << 20};
    const int sizes = chosen.bytes > 0 ? 1 : 4;
    const int64_t most = chosen.bytes > 0 ? (int64_t)chosen.bytes : few[3];
    nccl_calls nccl;
    int bad = 0;
    open_nccl(&nccl, device);
    if (chosen.windows && nccl.window == NULL) {
        if (device->world->rank == 0) {
            printf("--windows: this NCCL is version %d.%d.%d; 2.27.3 or later is needed\n",
                   nccl.number / 10000, nccl.number / 100 % 100, nccl.number % 100);
        }
        right(nccl, nccl.destroy(nccl.comm));
        return 0;
    }
    one operation = {device,
                     &nccl,
                     0,
                     0,
                     take<float>(device->world, most / 4),
                     take<float>(device->world, most / 4)};
    float *const both[2] = {operation.in, operation.out};
    for (int k = 0; k < 2 && chosen.windows; k++) {
        right(dpar_nccl_register(device->world, both[k], most), device->world->why.text);
        right(nccl, nccl.window(nccl.comm, both[k], (size_t)most, &nccl.windows[k], 1));
    }
    const numbers all = {operation.in, most / 4, device->world->rank};
    launch(device->stream, fill, all, all.count);
    right(cudaMemsetAsync(operation.out, 0xff, (size_t)most, device->stream));
    if (device->world->rank == 0) {
        printf("NCCL %d.%d.%d\n", nccl.number / 10000, nccl.number / 100 % 100, nccl.number % 100);
    }
    for (operation.kind = 0; operation.kind < KINDS; operation.kind++) {
        for (int k = 0; k < sizes; k++) {
            operation.count =
                (sizes == 1 ? most : few[k]) / 4 / device->world->size * device->world->size;
            bad |= row(operation, chosen);
        }
    }
    right(cudaStreamSynchronize(device->stream));
    for (int k = 0; k < 2 && chosen.windows; k++) {
        right(nccl, nccl.window_end(nccl.comm, nccl.windows[k]));
    }
    right(nccl, nccl.destroy(nccl.comm));
    dpar_comm_release(device->world, operation.in);
    dpar_comm_release(device->world, operation.out);
    return bad;
}

int main(int argc, char **argv)
{
    settings chosen = {2, 0, 20, 7, 0};
    dpar_launcher_info job;
    const option list[] = {{"--ranks", OPTION_WHOLE, &chosen.ranks, 2, 64},
                           {"--bytes", OPTION_WHOLE, &chosen.bytes, 1024, 1073741824},
                           {"--times", OPTION_WHOLE, &chosen.times, 1, 1000},
                           {"--rounds", OPTION_WHOLE, &chosen.rounds, 1, 100},
                           {"--windows", OPTION_FLAG, &chosen.windows, 0, 0}};
    int code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (code >= 0) {
        return code;
    }
    code = find_ranks(&job, &chosen.ranks);
    if (code == 0 && chosen.ranks < 2) {
        code = complain("the launcher has started 1 rank; 2 or more are needed for", "--ranks");
    }
    return code != 0 ? code : run_ranks(&job, chosen.ranks, run, &chosen);
}
