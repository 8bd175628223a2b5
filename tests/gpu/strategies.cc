/* SPDX-License-Identifier: MIT-0 */
/* Tests strategies on device memory, where dpar_cuda.h computes and dpar_nccl.h communicates, over
 * the stand-ins. They are compared bit by bit with the same strategy on the shared-memory engine in
 * host memory: ddp (averages, sums, a narrow wire), weights of fsdp that were prefetched and not
 * used, halos and their adjoint, over NCCL and over the host's ranks; operations captured in a
 * graph and replayed. On 1 to 4 ranks. */
#ifndef DPAR_APART /* dpar.h and both headers are separate objects */
#define DPAR_IMPLEMENTATION
#define DPAR_CUDA_IMPLEMENTATION
#endif
#include "dpar_train.h"
#include "dpar_debug.h"
#include "dpar_nccl.h"

#include "dpar_cuda.h"

#include "check.h"
#include "halo_plans.h"

#include <sys/wait.h>
#include <unistd.h>

struct side {
    dpar_comm *c;
    cudaStream_t stream, comm_stream;
    dpar_cuda gpu, adder;
    dpar_mem mem, adds;
};
static side device;

static void cuda(cudaError_t code)
{
    if (code != cudaSuccess) {
        printf("CUDA: %s\n", cudaGetErrorString(code));
        fflush(stdout);
        _exit(1);
    }
}

static void right(dpar_status st, const char *text)
{
    CHECK_INT(st, DPAR_OK);
    if (st != DPAR_OK) {
        printf("   %s\n", text);
        fflush(stdout);
        _exit(1);
    }
}

static void begin(dpar_comm *host)
{
    dpar_nccl_desc o;
    dpar_cuda_desc g;
    dpar_why why;
    memset(&o, 0, sizeof o);
    memset(&g, 0, sizeof g);
    int devices = 0;
    cuda(cudaGetDeviceCount(&devices));
    cuda(cudaSetDevice(host->rank % devices));
    cuda(cudaStreamCreateWithFlags(&device.stream, cudaStreamNonBlocking));
    cuda(cudaStreamCreateWithFlags(&device.comm_stream, cudaStreamNonBlocking));
    g.stream = device.stream;
    right(dpar_cuda_make(&device.gpu, &g, &why), why.text);
    g.stream = device.comm_stream;
    right(dpar_cuda_make(&device.adder, &g, &why), why.text);
    dpar_cuda_mem(&device.gpu, &device.mem);
    dpar_cuda_mem(&device.adder, &device.adds);
    o.stream = device.stream;
    o.comm_stream = device.comm_stream;
    o.mem = &device.mem;
    o.reduce_mem = &device.adds;
    o.rank_order = 1;
    o.timeout_s = 60; /* ranks may share a device */
    o.scratch_bytes = 1 << 16;
    right(dpar_nccl_make(host, &o, &device.c, &why), why.text);
    CHECK(device.c->mem == &device.mem);
}

static int end(void)
{
    CHECK_INT(dpar_comm_free(device.c), DPAR_OK);
    CHECK_INT(dpar_cuda_free(&device.gpu), DPAR_OK);
    CHECK_INT(dpar_cuda_free(&device.adder), DPAR_OK);
    cuda(cudaStreamDestroy(device.stream));
    cuda(cudaStreamDestroy(device.comm_stream));
    return checks_failed > 0;
}

static void upload(void *to, const void *from, int64_t bytes)
{
    cuda(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, device.stream));
}

static void download(void *to, const void *from, int64_t bytes)
{
    cuda(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost, device.stream));
    cuda(cudaStreamSynchronize(device.stream));
}

static float number(int64_t i, int rank, int step)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + (uint32_t)step * 97u;
    x ^= x >> 15;
    x *= 0x7feb352du;
    x ^= x >> 13;
    return (float)(x % 200001u) * 1e-3f - 100.0f;
}

/* ---- ddp ---- */

enum { PARAMS = 7 };
static const int64_t numel[PARAMS] = {300, 5, 0, 1000, 64, 17, 2048};

static void *room(int64_t bytes) /* whole pages, because a plan pins parts of them */
{
    void *at = NULL;
    CHECK_INT(posix_memalign(&at, 65536, ((size_t)bytes / 65536 + 1) * 65536), 0);
    return at;
}

/* Runs two micro-batches and returns the reduced gradients. On the device the gradients are added
 * by its table (span) in the compute stream, as a backward pass would. */
static void steps(dpar_comm *c, const dpar_ddp_desc *o, int on_device, float *to)
{
    static float numbers[2048], *staged = NULL;
    dpar_ddp *d = NULL;
    dpar_why why;
    int64_t n = 0;
    void *at = NULL;
    int m, k;
    right(dpar_ddp_make(c, o, &d, &why), why.text);
    if (on_device) {
        right(dpar_comm_alloc(c, (int64_t)sizeof numbers, &at), c->why.text);
        staged = (float *)at;
    }
    dpar_ddp_zero(d);
    for (m = 0; m < 2; m++) {
        right(dpar_ddp_begin(d, m == 1), c->why.text);
        for (k = PARAMS - 1; k >= 0; k--) {
            float *g = (float *)dpar_ddp_gradient(d, k, NULL);
            int64_t i;
            for (i = 0; i < numel[k]; i++) {
                numbers[i] = number(i + 5000 * k, c->rank, m);
                if (!on_device) {
                    g[i] += numbers[i];
                }
            }
            if (on_device && numel[k] > 0) {
                dpar_mem_span span;
                memset(&span, 0, sizeof span);
                upload(staged, numbers, numel[k] * 4);
                cuda(cudaStreamSynchronize(device.stream)); /* `numbers` is used again */
                span.to = g;
                span.from = staged;
                span.count = numel[k];
                span.to_type = span.from_type = DPAR_F32;
                span.accumulate = 1;
                span.scale = 1;
                right(device.mem.span(device.mem.ctx, &span, 1), device.gpu.why.text);
            }
            right(dpar_ddp_ready(d, k), c->why.text);
        }
        right(dpar_ddp_end(d), c->why.text);
    }
    for (k = 0; k < PARAMS; k++) {
        if (on_device && numel[k] > 0) {
            download(to + n, dpar_ddp_gradient(d, k, NULL), numel[k] * 4);
        } else if (numel[k] > 0) {
            memcpy(to + n, dpar_ddp_gradient(d, k, NULL), (size_t)numel[k] * 4);
        }
        n += numel[k];
    }
    right(dpar_ddp_free(d), c->why.text);
    if (on_device) {
        dpar_comm_release(c, staged);
    }
}

static int ddp(dpar_comm *host, void *arg)
{
    static float want[4000], got[4000];
    int way;
    (void)arg;
    begin(host);
    for (way = 0; way < 4; way++) {
        dpar_ddp_desc o;
        memset(&o, 0, sizeof o);
        o.params = PARAMS;
        o.count = numel;
        o.type = DPAR_F32;
        o.require_ready = 1;
        o.sum = way == 1;
        o.wire_type = way == 2 ? (int32_t)DPAR_BF16 : 0;
        o.check_finite = way == 3;
        o.first_bucket_bytes = 1024;
        o.bucket_bytes = 4096;
        memset(want, 0, sizeof want);
        memset(got, 0x7f, sizeof got);
        steps(host, &o, 0, want);
        steps(device.c, &o, 1, got);
        CHECK(memcmp(want, got, (300 + 5 + 1000 + 64 + 17 + 2048) * 4) == 0);
        if (memcmp(want, got, (300 + 5 + 1000 + 64 + 17 + 2048) * 4) != 0) {
            printf("   ddp, way %d, rank %d of %d\n", way, (int)host->rank, (int)host->size);
        }
    }
    return end();
}

/* ---- fsdp: prefetched weights that are not used ---- */

enum { UNITS = 5 };
static const int64_t sizes_of[UNITS] = {700, 96, 1311, 260, 33}; /* pieces are not contiguous */

static dpar_fsdp *weights_open(dpar_comm *c)
{
    dpar_fsdp_desc o;
    dpar_fsdp *f = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.compute_type = DPAR_BF16;
    o.prefetch = 1;
    o.optimizer.kind = DPAR_OPTIMIZER_SGD;
    o.units = UNITS;
    o.count = sizes_of;
    right(dpar_fsdp_make(c, &o, &f, &why), why.text);
    return f;
}

/* Changes the weights of unit u: `staged` is device memory, or not used. */
static void weights_set(dpar_fsdp *f, const dpar_comm *c, int u, int step, float *staged)
{
    static float numbers[1311];
    for (int64_t i = 0; i < sizes_of[u]; i++) {
        numbers[i] = number(i + 3000 * u, 0, step);
    }
    if (staged != NULL) {
        upload(staged, numbers, sizes_of[u] * 4);
        cuda(cudaStreamSynchronize(device.stream)); /* `numbers` is used again */
    }
    right(dpar_fsdp_set(f, u, staged != NULL ? staged : numbers), c->why.text);
}

/* Appends the weights of unit u to those that were read before. */
static uint16_t *weights_read(dpar_fsdp *f, const dpar_comm *c, int u, int on_device, uint16_t *to)
{
    right(dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD), c->why.text);
    if (on_device) {
        download(to, dpar_fsdp_weight(f, u), sizes_of[u] * 2);
    } else {
        memcpy(to, dpar_fsdp_weight(f, u), (size_t)sizes_of[u] * 2);
    }
    right(dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD), c->why.text);
    return to + sizes_of[u];
}

/* Twice the transfer of unit 1 into the pool is in progress when its memory is given to another
 * unit: because that one is needed (0, with 1 ahead; 3, with 4 ahead), and because all that was
 * gathered is outdated (set). */
static void weights(dpar_comm *c, int on_device, uint16_t *to)
{
    void *staged = NULL;
    dpar_fsdp *f = weights_open(c);
    if (on_device) {
        right(dpar_comm_alloc(c, 1311 * 4, &staged), c->why.text);
    }
    for (int u = 0; u < UNITS; u++) {
        weights_set(f, c, u, 1, (float *)staged);
    }
    to = weights_read(f, c, 0, on_device, to);
    to = weights_read(f, c, 3, on_device, to);
    to = weights_read(f, c, 4, on_device, to);
    to = weights_read(f, c, 0, on_device, to);
    weights_set(f, c, 4, 2, (float *)staged);
    to = weights_read(f, c, 3, on_device, to);
    (void)weights_read(f, c, 4, on_device, to);
    right(dpar_fsdp_free(f), c->why.text);
    if (on_device) {
        dpar_comm_release(c, staged);
    }
}

static int fsdp(dpar_comm *host, void *arg)
{
    static uint16_t want[2 * (700 + 260 + 33)], got[2 * (700 + 260 + 33)];
    (void)arg;
    begin(host);
    memset(got, 0x7f, sizeof got);
    weights(host, 0, want);
    weights(device.c, 1, got);
    CHECK(memcmp(want, got, sizeof want) == 0);
    return end();
}

/* ---- halos ---- */

/* on_device: the fields are in device memory. c may be the host's: then data goes through the host,
 * which waits for the device. Halos that an exchange fills are NaN before. */
static void exchange(dpar_comm *c, int on_device, int adjoint, int32_t axes_periodic, double *out,
                     int64_t room_for, int64_t *n)
{
    dpar_comm *const owner = on_device ? device.c : c;
    const int moves = c->size > 1 || axes_periodic != 0;
    const int64_t cells[2] = {24, 10};
    const dpar_placement cut[1] = {dpar_shard(0)};
    dpar_mesh mesh;
    dpar_halo h;
    dpar_halo_field f[2];
    dpar_halo_plan *x = NULL;
    dpar_box box;
    dpar_why why;
    int64_t bytes = 0, i;
    void *memory = NULL, *data = NULL;
    int k, turn;
    memset(&h, 0, sizeof h);
    memset(f, 0, sizeof f);
    right(dpar_mesh_init(&mesh, "rows", &c->size, DPAR_ORDER_LAST_FASTEST, 0, &why), why.text);
    right(dpar_layout_init(&h.grid, &mesh, 2, cells, cut, &why), why.text);
    h.low[0] = h.high[0] = 2;
    h.low[1] = h.high[1] = 1;
    h.periodic = (uint32_t)axes_periodic;
    CHECK(dpar_halo_box(&h, c->rank, &box));
    *n = dpar_box_volume(&box);
    CHECK(2 * *n <= room_for);
    for (k = 0; k < 2; k++) {
        f[k].halo = &h;
        f[k].type = DPAR_F64;
        f[k].mem = owner->mem;
        right(dpar_comm_alloc(owner, *n * 8, &data), owner->why.text);
        f[k].data = data;
        for (i = 0; i < *n; i++) {
            out[i] = number(i + 1000 * k, c->rank, 0);
        }
        if (on_device) {
            upload(data, out, *n * 8);
            cuda(cudaStreamSynchronize(device.stream));
        } else {
            memcpy(data, out, (size_t)*n * 8);
        }
    }
    right(plan_bytes(c, f, 2, NULL, &bytes, &why), why.text);
    memory = room(bytes);
    right(plan_init(memory, bytes, c, f, 2, NULL, &x, &why), why.text);
    if (!adjoint && c != owner) {
        (void)dpar_halo_plan_check(x, DPAR_HALO_POISON, NULL);
        CHECK_INT(dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why), moves ? DPAR_E_ARG : DPAR_OK);
    }
    for (turn = 0; turn < 3; turn++) {
        right(adjoint ? dpar_halo_plan_reduce_begin(x, DPAR_SUM) : dpar_halo_plan_begin(x),
              c->why.text);
        right(dpar_halo_plan_end(x), c->why.text);
    }
    right(c != owner ? dpar_halo_plan_check(x, DPAR_HALO_UNFILLED, &why) : (dpar_status)DPAR_OK,
          why.text);
    for (k = 0; k < 2; k++) {
        if (on_device) {
            download(out + k * *n, f[k].data, *n * 8);
        } else {
            memcpy(out + k * *n, f[k].data, (size_t)*n * 8);
        }
    }
    right(dpar_halo_plan_free(x), c->why.text);
    for (k = 0; k < 2; k++) {
        dpar_comm_release(owner, f[k].data);
    }
    free(memory);
}

static int halos(dpar_comm *host, void *arg)
{
    static double want[2000], got[2000];
    int adjoint, periodic;
    (void)arg;
    begin(host);
    for (adjoint = 0; adjoint < 2; adjoint++) {
        for (periodic = 0; periodic < 4; periodic += 3) { /* on axes of 1, 2, 3, 4 ranks */
            dpar_comm *const over[2] = {device.c, host};
            int64_t n = 0, m = 0;
            exchange(host, 0, adjoint, periodic, want, 2000, &n);
            for (int way = 0; way < 2; way++) {
                exchange(over[way], 1, adjoint, periodic, got, 2000, &m);
                CHECK_INT(n, m);
                CHECK(memcmp(want, got, (size_t)n * 16) == 0);
                if (memcmp(want, got, (size_t)n * 16) != 0) {
                    printf("   halo, adjoint %d, periodic %d, rank %d of %d, over %s\n", adjoint,
                           periodic, (int)host->rank, (int)host->size, way ? "the host" : "NCCL");
                }
            }
        }
    }
    return end();
}

/* ---- a graph ---- */

/* Computes sum += 1 on all ranks three times: captured once and replayed. */
static int graph(dpar_comm *host, void *arg)
{
    static float numbers[500], sums[500];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    dpar_work work;
    void *at = NULL;
    float *a, *b;
    int i, bad = 0;
    (void)arg;
    begin(host);
    right(dpar_comm_alloc(device.c, (int64_t)sizeof numbers, &at), device.c->why.text);
    a = (float *)at;
    right(dpar_comm_alloc(device.c, (int64_t)sizeof numbers, &at), device.c->why.text);
    b = (float *)at;
    memset(&work, 0, sizeof work);
    for (i = 0; i < 500; i++) {
        numbers[i] = (float)(i + host->rank);
    }
    upload(a, numbers, (int64_t)sizeof numbers);
    right(dpar_all_reduce(device.c, a, b, 500, DPAR_F32, DPAR_SUM, NULL), device.c->why.text);
    cuda(cudaStreamSynchronize(device.stream)); /* NCCL has connected its ranks */
    cuda(cudaStreamBeginCapture(device.stream, cudaStreamCaptureModeThreadLocal));
    right(dpar_all_reduce(device.c, a, b, 500, DPAR_F32, DPAR_SUM, &work), device.c->why.text);
    CHECK_INT(dpar_test(&work), DPAR_E_ARG);
    right(dpar_wait(&work), device.c->why.text);
    cuda(cudaMemcpyAsync(a, b, sizeof numbers, cudaMemcpyDeviceToDevice, device.stream));
    cuda(cudaStreamEndCapture(device.stream, &graph));
    cuda(cudaGraphInstantiate(&exec, graph, 0));
    for (i = 0; i < 3; i++) {
        cuda(cudaGraphLaunch(exec, device.stream));
    }
    download(sums, a, (int64_t)sizeof sums);
    for (i = 0; i < 500; i++) {
        const int n = host->size; /* (i n + n (n - 1) / 2) n n */
        bad += sums[i] != (float)((i * n + n * (n - 1) / 2) * n * n);
    }
    CHECK_INT(bad, 0);
    cuda(cudaGraphExecDestroy(exec));
    cuda(cudaGraphDestroy(graph));
    right(dpar_all_reduce(device.c, a, b, 500, DPAR_F32, DPAR_SUM, NULL), device.c->why.text);
    CHECK_INT(dpar_barrier(device.c, NULL), DPAR_OK);
    return end();
}

#include "strategies_halo.h"

/* Runs one rank in a new process: after the first CUDA call a process cannot fork ranks. */
static dpar_status alone(dpar_main each)
{
    int status = 1;
    const pid_t child = fork();
    if (child == 0) {
        const dpar_status st = dpar_launch(1, each, NULL, NULL, NULL);
        fflush(stdout);
        _exit(st != DPAR_OK);
    }
    return waitpid(child, &status, 0) == child && status == 0 ? (dpar_status)DPAR_OK
                                                              : (dpar_status)DPAR_E_PEER;
}

static void section(const char *name, dpar_main each, const char *wanted)
{
    dpar_world_desc o;
    dpar_why why;
    int n;
    memset(&o, 0, sizeof o);
    o.timeout_s = 40;
    for (n = 1; n <= 4 && (wanted == NULL || strcmp(wanted, name) == 0); n++) {
        dpar_status st;
        fflush(stdout);
        memset(&why, 0, sizeof why);
        st = n == 1 ? alone(each) : dpar_launch(n, each, NULL, &o, &why);
        CHECK_INT(st, DPAR_OK);
        if (st != DPAR_OK) {
            printf("%s, %d ranks: %s\n", name, n, why.text);
        }
    }
}

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : NULL;
    section("ddp", ddp, wanted);
    section("fsdp", fsdp, wanted);
    section("halos", halos, wanted);
    section("graph", graph, wanted);
    section("halo_kernels", halo_kernels, wanted);
    section("near", halo_near, wanted);
#if defined(FAKE_CUDA)
    section("near", halo_two_nodes, wanted);
#endif
    return CHECK_DONE();
}
