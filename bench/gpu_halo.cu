/* SPDX-License-Identifier: MIT-0 */
/* gpu_halo - halo exchanges between GPUs, or between ranks that share one: microseconds, kernels of
 * an exchange, and whether every cell is right.
 *
 *     nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION \
 *         -I. -Iapps bench/gpu_halo.cu -o gpu_halo -ldl
 *     ./gpu_halo --ranks 4                              a GPU each
 *     DPAR_TEST_SHARE_GPU=1 ./gpu_halo --ranks 2        on one: NCCL through the host, slow
 *
 * Blocks of --cells^3 f64 on each rank (128^3 and 512^3 without it), periodic, --fields of them,
 * one layer (--layers): faces alone, and with edges and corners; forward and the adjoint (sums),
 * called, and replayed as a graph. Of each: us (median of 15, of the slowest rank), of these on the
 * host until the calls return, MB that a rank sends (to itself, too), GB/s of that, kernels, and how
 * peers get it: by messages of NCCL, or out of each other's memory (NCCL 2.29.2 and a way between the
 * devices; --messages: not so).
 *
 * Exit code: 0 fine, 1 a wrong cell, or more than two kernels, 2 bad input. */
static const char program[] = "gpu_halo";
#include "dpar_halo.h"
#include "dpar_debug.h"
static const char help[] =
    "gpu_halo: times halo exchanges between GPUs\n"
    "\n"
    "  --ranks N     processes, 1 to 64 (default 1)\n"
    "  --cells N     of a block along each dim, 2 to 1024 (default 128 and 512)\n"
    "  --fields N    1 to 8 (default 1)\n"
    "  --layers N    1 to 4, at most cells (default 1)\n"
    "  --times N     1 to 1000 (default 15)\n"
    "  --messages    by messages, also where devices reach each other's memory\n"
    "  -h, --help    this text\n"
    "\n"
    "examples\n"
    "  gpu_halo\n"
    "  gpu_halo --ranks 2 --cells 256\n"
    "  gpu_halo --fields 4 --layers 2\n";

#include "commands/options.h"

#include "gpu_start.h"

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
    int64_t n[3], low[3], all[3]; /* with halos; where it begins, of the whole */
    int64_t whole[3];
    int32_t field, layers, full, after; /* after the exchange: 1 forward, 2 adjoint, too */
};

/* Whole numbers: sums of them are exact. */
__host__ __device__ static inline double value(const cells &c, const int64_t *at)
{
    uint64_t x = (uint64_t)c.field * 0x9e3779b97f4a7c15u;
    for (int d = 0; d < 3; d++) {
        x += (uint64_t)((at[d] % c.whole[d] + c.whole[d]) % c.whole[d]);
        x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
    }
    return (double)(x >> 44); /* below 2^20 */
}

/* How many halos have a cell: of its own block, seen along d. */
__host__ __device__ static inline int shared_along(const cells &c, const int64_t *at, int d)
{
    const int64_t i = at[d] - c.layers, n = c.n[d] - 2 * c.layers;
    return (i < c.layers) + (i >= n - c.layers);
}

__host__ __device__ static inline double expected(const cells &c, int64_t i)
{
    const int64_t at[3] = {i / (c.n[1] * c.n[2]), i / c.n[2] % c.n[1], i % c.n[2]};
    int64_t global[3];
    int outside = 0, times = 1, sum = 1;
    for (int d = 0; d < 3; d++) {
        global[d] = c.low[d] + at[d] - c.layers;
        outside += at[d] < c.layers || at[d] >= c.n[d] - c.layers;
        times *= 1 + shared_along(c, at, d);
        sum += shared_along(c, at, d);
    }
    if (outside > 1 && !c.full) {
        return c.after == 0 ? 0.0 : -1.0; /* edges and corners are left alone */
    }
    if (outside > 0) {
        return c.after == 1 ? value(c, global) : 0.0;
    }
    if (c.after < 2) {
        return value(c, global);
    }
    return value(c, global) * (c.full ? times : sum);
}

__global__ static void fill(const cells c)
{
    for (EACH(i, c.n[0] * c.n[1] * c.n[2])) {
        c.at[i] = expected(c, i);
    }
}

__global__ static void check(const cells c)
{
    for (EACH(i, c.n[0] * c.n[1] * c.n[2])) {
        const double e = expected(c, i);
        if (e >= 0.0 && !(c.at[i] == e)) { /* NaN is wrong */
            atomicAdd(c.wrong, 1u);
        }
    }
}

/* ---- one case -------------------------------------------------------------------------------- */

struct plan {
    dpar_layout grid;
    dpar_halo h;
    dpar_halo_field f[MOST_FIELDS];
    dpar_halo_plan *x;
    cells c[MOST_FIELDS];
    double sent; /* bytes */
    const char *by;
    int fields;
};

/* How this rank's peers get what it sends. */
static const char *how(const plan *p)
{
    char text[8000];
    dpar_text t;
    dpar_text_init(&t, text, sizeof text);
    dpar_halo_plan_report(p->x, &t);
    const bool memory = strstr(text, " packed ") != NULL, messages = strstr(text, " message ") != NULL;
    if (memory && messages) {
        return "both";
    }
    if (memory) {
        return "memory";
    }
    return messages ? "messages" : "copies";
}

static void open_plan(plan *p, gpu *g, int64_t n, const settings &s, int full)
{
    const dpar_placement cut[3] = {dpar_shard(0), dpar_shard(1), dpar_shard(2)};
    int32_t ranks[3] = {1, 1, 1};
    int64_t whole[3];
    dpar_halo_plan_desc options;
    dpar_mesh mesh;
    dpar_box own, all;
    dpar_why why;
    memset(p, 0, sizeof *p);
    for (int32_t left = g->world->size, by = 2; left > 1;) { /* prime factors, the largest last */
        if (left % by == 0) {
            *std::min_element(ranks, ranks + 3) *= by;
            left /= by;
        } else {
            by++;
        }
    }
    for (int d = 0; d < 3; d++) {
        whole[d] = n * ranks[d];
        p->h.low[d] = p->h.high[d] = (int64_t)s.layers;
    }
    right(dpar_mesh_init(&mesh, "z y x", ranks, DPAR_ORDER_LAST_FASTEST, 0, &why), why.text);
    right(dpar_layout_init(&p->h.grid, &mesh, 3, whole, cut, &why), why.text);
    p->h.periodic = 7;
    p->h.shape = full ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
    p->fields = (int)s.fields;
    right(dpar_halo_box(&p->h, g->world->rank, &all) ? DPAR_OK : DPAR_E_RANGE, "halo box");
    own = all;
    for (int d = 0; d < 3; d++) {
        own.lo[d] += p->h.low[d];
        own.hi[d] -= p->h.high[d];
    }
    unsigned *wrong = take<unsigned>(g->world, 1);
    right(cudaMemsetAsync(wrong, 0, sizeof *wrong, g->stream));
    for (int k = 0; k < p->fields; k++) {
        cells *c = &p->c[k];
        c->at = take<double>(g->world, dpar_box_volume(&all));
        c->wrong = wrong;
        c->field = k;
        c->layers = (int32_t)s.layers;
        c->full = full;
        for (int d = 0; d < 3; d++) {
            c->n[d] = all.hi[d] - all.lo[d];
            c->low[d] = own.lo[d];
            c->whole[d] = whole[d];
        }
        p->f[k].halo = &p->h;
        p->f[k].type = DPAR_F64;
        p->f[k].mem = g->world->mem;
        p->f[k].data = c->at;
    }
    p->sent = 8.0 * (double)(dpar_box_volume(&all) - dpar_box_volume(&own));
    if (!full) {
        const double side = (double)n;
        p->sent = 8.0 * 6.0 * side * side * s.layers;
    }
    p->sent *= p->fields;
    memset(&options, 0, sizeof options);
    options.field = p->f;
    options.field_count = p->fields;
    options.method = s.messages ? DPAR_HALO_MESSAGES : DPAR_HALO_AUTO;
    right(dpar_halo_plan_make(g->world, &options, &p->x, &why), why.text);
    p->by = how(p);
}

static void close_plan(plan *p, gpu *g)
{
    right(dpar_halo_plan_free(p->x), g->world->why.text);
    dpar_comm_release(g->world, p->c[0].wrong);
    for (int k = 0; k < p->fields; k++) {
        dpar_comm_release(g->world, p->c[k].at);
    }
}

static void each_cell(plan *p, gpu *g, void (*kernel)(const cells), int after)
{
    for (int k = 0; k < p->fields; k++) {
        cells c = p->c[k];
        c.after = after;
        launch(g->stream, kernel, c, c.n[0] * c.n[1] * c.n[2]);
    }
}

static void once(plan *p, gpu *g, int adjoint)
{
    right(adjoint ? dpar_halo_plan_reduce_begin(p->x, DPAR_SUM) : dpar_halo_plan_begin(p->x),
          g->world->why.text);
    right(dpar_halo_plan_end(p->x), g->world->why.text);
}

/* The largest of all ranks. */
static double largest(gpu *g, double mine)
{
    double most = 0.0;
    right(dpar_all_reduce(g->world, &mine, &most, 1, DPAR_F64, DPAR_MAX, NULL), g->world->why.text);
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

/* Medians, by events and by the host's clock, of the slowest rank. */
template <class F> static took timed(gpu *g, int times, F what)
{
    std::vector<double> us, host_us;
    cudaEvent_t before, behind;
    right(cudaEventCreate(&before));
    right(cudaEventCreate(&behind));
    for (int i = -2; i < times; i++) {
        float ms = 0.0f;
        right(cudaEventRecord(before, g->stream));
        const double began = options_now();
        what();
        const double host = options_now() - began;
        right(cudaEventRecord(behind, g->stream));
        right(cudaEventSynchronize(behind));
        right(cudaEventElapsedTime(&ms, before, behind));
        if (i >= 0) {
            us.push_back(1000.0 * (double)ms);
            host_us.push_back(1e6 * host);
        }
    }
    right(cudaEventDestroy(before));
    right(cudaEventDestroy(behind));
    return {largest(g, median(&us)), largest(g, median(&host_us))};
}

static void line(const gpu *g, int64_t n, int full, const char *way, const took &t, const plan &p,
                 double kernels)
{
    if (g->world->rank == 0) {
        printf("%2d ranks, %4lld^3 x %d, %-7s %-14s %9.1f us, host %7.1f us %8.3f MB %8.2f GB/s "
               "%4.1f kernels, by %s\n",
               (int)g->world->size, (long long)n, p.fields, full ? "corners" : "faces", way, t.us,
               t.host_us, p.sent * 1e-6, t.us > 0.0 ? p.sent / t.us * 1e-3 : 0.0, kernels, p.by);
        fflush(stdout);
    }
}

/* 1: something is wrong. */
static int one_case(gpu *g, int64_t n, const settings &s, int full)
{
    static const char *const ways[2][2] = {{"forward", "forward, graph"},
                                           {"adjoint", "adjoint, graph"}};
    plan p;
    unsigned wrong = 0;
    double most = 0.0;
    open_plan(&p, g, n, s, full);
    for (int adjoint = 0; adjoint < 2; adjoint++) {
        const int times = (int)s.times;
        cudaGraph_t graph = NULL;
        cudaGraphExec_t replay = NULL;
        each_cell(&p, g, fill, 0);
        once(&p, g, 0);
        each_cell(&p, g, check, 1);
        if (adjoint) { /* halos are copies of the cells, and go back */
            once(&p, g, 1);
            each_cell(&p, g, check, 2);
        }
        g->cuda.launches = 0;
        const took t = timed(g, times, [&] { once(&p, g, adjoint); });
        const double kernels = (double)g->cuda.launches / (times + 2);
        most = std::max(most, kernels);
        line(g, n, full, ways[adjoint][0], t, p, kernels);
        right(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
        once(&p, g, adjoint);
        right(cudaStreamEndCapture(g->stream, &graph));
        right(cudaGraphInstantiate(&replay, graph, 0));
        line(g, n, full, ways[adjoint][1],
             timed(g, times, [&] { right(cudaGraphLaunch(replay, g->stream)); }), p, kernels);
        if (!adjoint) {
            each_cell(&p, g, check, 1);
        }
        right(cudaStreamSynchronize(g->stream));
        right(cudaGraphExecDestroy(replay));
        right(cudaGraphDestroy(graph));
    }
    right(cudaMemcpyAsync(&wrong, p.c[0].wrong, sizeof wrong, cudaMemcpyDeviceToHost, g->stream));
    right(cudaStreamSynchronize(g->stream));
    close_plan(&p, g);
    const double bad = largest(g, (double)wrong);
    if (g->world->rank == 0 && (bad > 0.0 || most > 2.0)) {
        printf("%.0f cells are wrong on some rank; %.1f kernels an exchange (2 at most)\n", bad,
               most);
    }
    return bad > 0.0 || most > 2.0;
}

static int run(gpu *g, const void *arg)
{
    const settings &s = *(const settings *)arg;
    int bad = 0;
    for (int k = 0; k < (s.cells > 0 ? 1 : 2); k++) {
        const int64_t usual = k == 0 ? 128 : 512;
        const int64_t n = s.cells > 0 ? (int64_t)s.cells : usual;
        for (int full = 0; full < 2; full++) {
            bad |= one_case(g, n, s, full);
        }
    }
    return bad;
}

int main(int argc, char **argv)
{
    settings s = {1, 0, 1, 1, 15, 0};
    dpar_launcher_info job;
    const option list[] = {{"--ranks", OPTION_WHOLE, &s.ranks, 1, 64},
                           {"--cells", OPTION_WHOLE, &s.cells, 2, 1024},
                           {"--fields", OPTION_WHOLE, &s.fields, 1, 8},
                           {"--layers", OPTION_WHOLE, &s.layers, 1, 4},
                           {"--times", OPTION_WHOLE, &s.times, 1, 1000},
                           {"--messages", OPTION_FLAG, &s.messages, 0, 0}};
    int code = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (code >= 0) {
        return code;
    }
    code = 0;
    if (code == 0 && s.cells > 0 && s.layers > s.cells) {
        code = complain("more layers than cells, see --help:", "--layers");
    }
    code = code != 0 ? code : find_ranks(&job, &s.ranks);
    return code != 0 ? code : run_ranks(&job, s.ranks, run, &s);
}
