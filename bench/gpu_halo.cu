/* SPDX-License-Identifier: MIT-0 */
/* gpu_halo - measures halo exchanges of dpar_halo.h between GPUs, or between ranks that share one:
 * the microseconds and the kernels of an exchange. It checks every cell.
 * *     nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION \
 *         -I. bench/gpu_halo.cu -o gpu_halo -ldl
 *     ./gpu_halo --ranks 4                              a GPU each
 *     DPAR_TEST_SHARE_GPU=1 ./gpu_halo --ranks 2        all on one, through the host, which is slow
 *
 * Each rank has --fields periodic blocks of --cells^3 f64 (without --cells 128^3, then 512^3). It
 * exchanges halos of --layers cells, first only faces and then with edges and corners, forward and
 * as the adjoint, which adds. Each exchange is called, and also replayed as a graph.
 *
 * A line has the us of the slowest rank (a median), how many of them the host needs until its calls
 * return, the MB that a rank sends (also to itself) and the GB/s of these, the kernels of an
 * exchange, and how the peers get the bytes: by messages of NCCL, or out of each other's memory
 * (with NCCL 2.29.2 and devices that reach each other; --messages switches it off).
 *
 * Exit code: 0 done; 1 a wrong cell, more than two kernels, or a failed call; 2 bad input. */
static const char program[] = "gpu_halo";
#include "dpar_halo.h"
#include "dpar_debug.h"
static const char help[] =
    "gpu_halo: times halo exchanges between GPUs\n"
    "\n"
    "  --ranks N     processes, 1 to 64 (default 1)\n"
    "  --cells N     cells of a block along each dim, 2 to 1024 (default 128, then 512)\n"
    "  --fields N    fields that are exchanged at once, 1 to 8 (default 1)\n"
    "  --layers N    width of the halo, 1 to 4 and at most --cells (default 1)\n"
    "  --times N     exchanges of which the median is taken, 1 to 1000 (default 15)\n"
    "  --messages    uses messages even if devices reach each other's memory\n"
    "  -h, --help    prints this text\n"
    "\n"
    "examples\n"
    "  gpu_halo\n"
    "  gpu_halo --ranks 2 --cells 256\n"
    "  gpu_halo --fields 4 --layers 2\n";

#include "../helpers/options.h"

#include "../helpers/gpu_start.h"

#include <algorithm>
#include <vector>

struct settings {
    double ranks, cells, fields, layers, times;
    int messages;
};

enum { MOST_FIELDS = 8 };

/* ---- cells ----------------------------------------------------------------------------------- */

/* One rank's block with its halos. */
struct cells {
    double *at;
    unsigned *wrong;
    int64_t n[3];     /* cells along each dim, with halos */
    int64_t low[3];   /* where the own cells begin in the whole array */
    int64_t whole[3]; /* cells of the whole array */
    int32_t field, layers;
    int32_t full;  /* 1 with edges and corners */
    int32_t after; /* 0 before the exchange, 1 after it, 2 after the adjoint as well */
};

/* Returns the value of a cell of the whole array: whole numbers, whose sums are exact. */
__host__ __device__ static inline double value(const cells &block, const int64_t *at)
{
    uint64_t x = (uint64_t)block.field * 0x9e3779b97f4a7c15u;
    for (int d = 0; d < 3; d++) {
        x += (uint64_t)((at[d] % block.whole[d] + block.whole[d]) % block.whole[d]);
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    }
    return (double)(x >> 44); /* below 2^20 */
}

/* Returns how many halos along dim d have a copy of a cell. */
__host__ __device__ static inline int shared_along(const cells &block, const int64_t *at, int d)
{
    const int64_t i = at[d] - block.layers, n = block.n[d] - 2 * block.layers;
    return (i < block.layers) + (i >= n - block.layers);
}

__host__ __device__ static inline double expected(const cells &block, int64_t i)
{
    const int64_t at[3] = {i / (block.n[1] * block.n[2]), i / block.n[2] % block.n[1],
                           i % block.n[2]};
    int64_t global[3];
    int outside = 0, times = 1, sum = 1;
    for (int d = 0; d < 3; d++) {
        global[d] = block.low[d] + at[d] - block.layers;
        outside += at[d] < block.layers || at[d] >= block.n[d] - block.layers;
        times *= 1 + shared_along(block, at, d);
        sum += shared_along(block, at, d);
    }
    if (outside > 1 && !block.full) {
        return block.after == 0 ? 0.0 : -1.0; /* edges and corners are not exchanged */
    }
    if (outside > 0) {
        return block.after == 1 ? value(block, global) : 0.0;
    }
    if (block.after < 2) {
        return value(block, global);
    }
    return value(block, global) * (block.full ? times : sum);
}

__global__ static void fill(const cells block)
{
    for (EACH(i, block.n[0] * block.n[1] * block.n[2])) {
        block.at[i] = expected(block, i);
    }
}

__global__ static void check(const cells block)
{
    for (EACH(i, block.n[0] * block.n[1] * block.n[2])) {
        const double wanted = expected(block, i);
        if (wanted >= 0.0 && !(block.at[i] == wanted)) { /* NaN is wrong */
            atomicAdd(block.wrong, 1u);
        }
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

struct plan {
    dpar_layout grid;
    dpar_halo halo;
    dpar_halo_field field[MOST_FIELDS];
    dpar_halo_plan *exchange;
    cells blocks[MOST_FIELDS];
    double sent; /* bytes */
    const char *by;
    int fields;
};

/* Returns how the peers of this rank get what it sends. */
static const char *how(const plan *made)
{
    char text[8000];
    dpar_text written;
    dpar_text_init(&written, text, sizeof text);
    dpar_halo_plan_report(made->exchange, &written);
    const bool memory = strstr(text, " packed ") != NULL,
               messages = strstr(text, " message ") != NULL;
    if (memory && messages) {
        return "both";
    }
    if (memory) {
        return "memory";
    }
    return messages ? "messages" : "copies";
}

static void open_plan(plan *made, gpu *device, int64_t n, const settings &chosen, int full)
{
    const dpar_placement cut[3] = {dpar_shard(0), dpar_shard(1), dpar_shard(2)};
    int32_t ranks[3] = {1, 1, 1};
    int64_t whole[3];
    dpar_halo_plan_desc options;
    dpar_mesh mesh;
    dpar_box own, all;
    dpar_why why;
    memset(made, 0, sizeof *made);
    int32_t left = device->world->size, by = 2;
    while (left > 1) { /* gives the dim with the fewest ranks the next prime factor */
        if (left % by == 0) {
            *std::min_element(ranks, ranks + 3) *= by;
            left /= by;
        } else {
            by++;
        }
    }
    for (int d = 0; d < 3; d++) {
        whole[d] = n * ranks[d];
        made->halo.low[d] = made->halo.high[d] = (int64_t)chosen.layers;
    }
    right(dpar_mesh_init(&mesh, "z y x", ranks, DPAR_ORDER_LAST_FASTEST, 0, &why), why.text);
    right(dpar_layout_init(&made->halo.grid, &mesh, 3, whole, cut, &why), why.text);
    made->halo.periodic = 7;
    made->halo.shape = full ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
    made->fields = (int)chosen.fields;
    right(dpar_halo_box(&made->halo, device->world->rank, &all) ? DPAR_OK : DPAR_E_RANGE,
          "halo box");
    own = all;
    for (int d = 0; d < 3; d++) {
        own.lo[d] += made->halo.low[d];
        own.hi[d] -= made->halo.high[d];
    }
    unsigned *wrong = take<unsigned>(device->world, 1);
    right(cudaMemsetAsync(wrong, 0, sizeof *wrong, device->stream));
    for (int k = 0; k < made->fields; k++) {
        cells *block = &made->blocks[k];
        block->at = take<double>(device->world, dpar_box_volume(&all));
        block->wrong = wrong;
        block->field = k;
        block->layers = (int32_t)chosen.layers;
        block->full = full;
        for (int d = 0; d < 3; d++) {
            block->n[d] = all.hi[d] - all.lo[d];
            block->low[d] = own.lo[d];
            block->whole[d] = whole[d];
        }
        made->field[k].halo = &made->halo;
        made->field[k].type = DPAR_F64;
        made->field[k].mem = device->world->mem;
        made->field[k].data = block->at;
    }
    made->sent = 8.0 * (double)(dpar_box_volume(&all) - dpar_box_volume(&own));
    if (!full) {
        const double side = (double)n;
        made->sent = 8.0 * 6.0 * side * side * chosen.layers;
    }
    made->sent *= made->fields;
    memset(&options, 0, sizeof options);
    options.field = made->field;
    options.field_count = made->fields;
    options.method = chosen.messages ? DPAR_HALO_MESSAGES : DPAR_HALO_AUTO;
    right(dpar_halo_plan_make(device->world, &options, &made->exchange, &why), why.text);
    made->by = how(made);
}

static void close_plan(plan *made, gpu *device)
{
    right(dpar_halo_plan_free(made->exchange), device->world->why.text);
    dpar_comm_release(device->world, made->blocks[0].wrong);
    for (int k = 0; k < made->fields; k++) {
        dpar_comm_release(device->world, made->blocks[k].at);
    }
}

static void each_cell(plan *made, gpu *device, void (*kernel)(const cells), int after)
{
    for (int k = 0; k < made->fields; k++) {
        cells block = made->blocks[k];
        block.after = after;
        launch(device->stream, kernel, block, block.n[0] * block.n[1] * block.n[2]);
    }
}

static void once(plan *made, gpu *device, int adjoint)
{
    right(adjoint ? dpar_halo_plan_reduce_begin(made->exchange, DPAR_SUM)
                  : dpar_halo_plan_begin(made->exchange),
          device->world->why.text);
    right(dpar_halo_plan_end(made->exchange), device->world->why.text);
}

/* Returns the largest number of all ranks. */
static double largest(gpu *device, double mine)
{
    double most = 0.0;
    right(dpar_all_reduce(device->world, &mine, &most, 1, DPAR_F64, DPAR_MAX, NULL),
          device->world->why.text);
    return most;
}

struct took {
    double us, host_us;
};

static double median(std::vector<double> *of)
{
    std::sort(of->begin(), of->end());
    return (*of)[of->size() / 2];
}

/* Returns the slowest rank's medians by events and by the host's clock, after two calls that do not
 * count. */
template <class F> static took timed(gpu *device, int times, F what)
{
    std::vector<double> us, host_us;
    cudaEvent_t before, behind;
    right(cudaEventCreate(&before));
    right(cudaEventCreate(&behind));
    for (int i = -2; i < times; i++) {
        float ms = 0.0f;
        right(cudaEventRecord(before, device->stream));
        const double began = now();
        what();
        const double host = now() - began;
        right(cudaEventRecord(behind, device->stream));
        right(cudaEventSynchronize(behind));
        right(cudaEventElapsedTime(&ms, before, behind));
        if (i >= 0) {
            us.push_back(1000.0 * (double)ms);
            host_us.push_back(1e6 * host);
        }
    }
    right(cudaEventDestroy(before));
    right(cudaEventDestroy(behind));
    return {largest(device, median(&us)), largest(device, median(&host_us))};
}

static void line(const gpu *device, int64_t n, int full, const char *way, const took &time,
                 const plan &made, double kernels)
{
    const double rate = time.us > 0.0 ? made.sent / time.us * 1e-3 : 0.0;
    if (device->world->rank == 0) {
        printf("%2d ranks, %4lld^3 x %d, %-7s %-14s %9.1f us, host %7.1f us %8.3f MB %8.2f GB/s "
               "%4.1f kernels, by %s\n",
               (int)device->world->size, (long long)n, made.fields, full ? "corners" : "faces", way,
               time.us, time.host_us, made.sent * 1e-6, rate, kernels, made.by);
        fflush(stdout);
    }
}

/* Measures and prints the lines of one block size and shape. Returns 1 if a cell is wrong or an
 * exchange has more than two kernels. */
static int one_case(gpu *device, int64_t n, const settings &chosen, int full)
{
    static const char *const ways[2][2] = {{"forward", "forward, graph"},
                                           {"adjoint", "adjoint, graph"}};
    plan made;
    unsigned wrong = 0;
    double most = 0.0;
    open_plan(&made, device, n, chosen, full);
    for (int adjoint = 0; adjoint < 2; adjoint++) {
        const int times = (int)chosen.times;
        cudaGraph_t graph = NULL;
        cudaGraphExec_t replay = NULL;
        each_cell(&made, device, fill, 0);
        once(&made, device, 0);
        each_cell(&made, device, check, 1);
        if (adjoint) { /* the halos are copies now, which the adjoint adds to their cells */
            once(&made, device, 1);
            each_cell(&made, device, check, 2);
        }
        device->cuda.launches = 0;
        const took time = timed(device, times, [&] { once(&made, device, adjoint); });
        const double kernels = (double)device->cuda.launches / (times + 2);
        most = std::max(most, kernels);
        line(device, n, full, ways[adjoint][0], time, made, kernels);
        right(cudaStreamBeginCapture(device->stream, cudaStreamCaptureModeThreadLocal));
        once(&made, device, adjoint);
        right(cudaStreamEndCapture(device->stream, &graph));
        right(cudaGraphInstantiate(&replay, graph, 0));
        line(device, n, full, ways[adjoint][1],
             timed(device, times, [&] { right(cudaGraphLaunch(replay, device->stream)); }), made,
             kernels);
        if (!adjoint) {
            each_cell(&made, device, check, 1);
        }
        right(cudaStreamSynchronize(device->stream));
        right(cudaGraphExecDestroy(replay));
        right(cudaGraphDestroy(graph));
    }
    right(cudaMemcpyAsync(&wrong, made.blocks[0].wrong, sizeof wrong, cudaMemcpyDeviceToHost,
                          device->stream));
    right(cudaStreamSynchronize(device->stream));
    close_plan(&made, device);
    const double bad = largest(device, (double)wrong);
    if (device->world->rank == 0 && (bad > 0.0 || most > 2.0)) {
        printf(
            "gpu_halo: up to %.0f cells of a rank are wrong (0 allowed), and an exchange has up to "
            "%.1f kernels (2 allowed)\n",
            bad, most);
    }
    return bad > 0.0 || most > 2.0;
}

static int run(gpu *device, const void *arg)
{
    const settings &chosen = *(const settings *)arg;
    int bad = 0;
    for (int k = 0; k < (chosen.cells > 0 ? 1 : 2); k++) {
        const int64_t usual = k == 0 ? 128 : 512;
        const int64_t n = chosen.cells > 0 ? (int64_t)chosen.cells : usual;
        for (int full = 0; full < 2; full++) {
            bad |= one_case(device, n, chosen, full);
        }
    }
    return bad;
}

int main(int argc, char **argv)
{
    settings chosen = {1, 0, 1, 1, 15, 0};
    dpar_launcher_info job;
    const option list[] = {{"--ranks", OPTION_WHOLE, &chosen.ranks, 1, 64},
                           {"--cells", OPTION_WHOLE, &chosen.cells, 2, 1024},
                           {"--fields", OPTION_WHOLE, &chosen.fields, 1, 8},
                           {"--layers", OPTION_WHOLE, &chosen.layers, 1, 4},
                           {"--times", OPTION_WHOLE, &chosen.times, 1, 1000},
                           {"--messages", OPTION_FLAG, &chosen.messages, 0, 0}};
    int code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (code >= 0) {
        return code;
    }
    code = 0;
    if (code == 0 && chosen.cells > 0 && chosen.layers > chosen.cells) {
        code = complain("there may be at most as many layers as --cells:", "--layers");
    }
    code = code != 0 ? code : find_ranks(&job, &chosen.ranks);
    return code != 0 ? code : run_ranks(&job, chosen.ranks, run, &chosen);
}
