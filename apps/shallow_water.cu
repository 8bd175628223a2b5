/* SPDX-License-Identifier: MIT-0 */
/* shallow_water.cu - the planet of shallow_water.c on GPUs: circles are computed by kernels, the
 * state stays in device memory, and halos are exchanged over NCCL while the core of a block is
 * computed.
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION -I. \
 *       apps/shallow_water.cu -o shallow_water_gpu -ldl
 *   ./shallow_water_gpu --case 5 --rows 2048 --ranks 4 --save day5
 *   torchrun --no-python --nproc-per-node 4 ./shallow_water_gpu --resume day5 --days 15
 *
 * Options, output and checkpoints are those of shallow_water.c, which this file includes. Its
 * functions diagnose, tend and advance are compiled for the host and for a device, where a row of
 * blocks processes a circle. A stage consists of a kernel that packs, messages after it, three
 * kernels for the core, one that unpacks, and three for all boxes that need the halo. The host
 * waits only for reports, files and pictures, for which it copies the state. Sums over the globe
 * are computed on the host, in integers, so that their order does not matter.
 *
 * The bits are those of the host's program if neither compiler fuses a product and a sum (nvcc
 * --fmad=false, cc -ffp-contract=off). Otherwise the states differ by rounding, which grows:
 * docs/records/gpu.md. Near the poles a thread sums everything that a filter reads, up to 2600
 * numbers at 4096 rows. */
#define ON_GPU
#define ANYWHERE __host__ __device__
#include <cuda_runtime.h>

#include "shallow_water.c"

#include "gpu_start.h"

enum { SEEN = 5 }; /* arrays that the host also has: the state, ground and rotation */

/* The boxes of one launch. Each has `rows` rows of blocks, the first for the circle south of the
 * box. */
struct sweep {
    layer a;
    double dt;
    int base, from, to;
    int64_t rows;
    dpar_box box[RIMS];
};

__device__ static const dpar_box *my_box(const sweep &s)
{
    return &s.box[blockIdx.y / s.rows];
}

__device__ static int64_t my_circle(const sweep &s)
{
    return my_box(s)->lo[0] - 1 + blockIdx.y % s.rows;
}

__device__ static bool in_box(const sweep &s)
{
    return my_circle(s) >= my_box(s)->lo[0] && my_circle(s) < my_box(s)->hi[0];
}

__device__ static int64_t my_thread()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static int64_t all_threads()
{
    return (int64_t)gridDim.x * blockDim.x;
}

__global__ static void diagnose_circles(const sweep s)
{
    if (my_circle(s) <= my_box(s)->hi[0]) {
        diagnose(&s.a, s.from, my_box(s), my_circle(s), my_thread(), all_threads());
    }
}

__global__ static void tend_circles(const sweep s)
{
    if (in_box(s)) {
        tend(&s.a, s.from, my_box(s), my_circle(s), my_thread(), all_threads());
    }
}

__global__ static void advance_circles(const sweep s)
{
    if (in_box(s)) {
        advance(&s.a, s.base, s.to, s.dt, my_box(s), my_circle(s), my_thread(), all_threads());
    }
}

static cudaStream_t stream_of(const planet *p)
{
    return ((const gpu *)p->s->device)->stream;
}

/* Advances `base` in n boxes (see shallow_water.c). Boxes may overlap in diagnosed values and
 * tendencies, where both write the same. */
static void compute(planet *p, const dpar_box *box, int n, int base, int from, int to, double dt)
{
    const int64_t around = 2 * p->points[H].low[1]; /* the reach of filters to both sides, and
                                                       faces */
    int64_t threads = 0;
    sweep s;
    memset(&s, 0, sizeof s);
    s.a = p->air;
    s.dt = dt;
    s.base = base;
    s.from = from;
    s.to = to;
    for (int k = 0; k < n; k++) {
        s.box[k] = box[k];
        s.rows = larger(s.rows, box[k].hi[0] - box[k].lo[0] + 2);
        threads = larger(threads, box[k].hi[1] - box[k].lo[1] + around);
    }
    launch(stream_of(p), diagnose_circles, s, threads, n * s.rows);
    launch(stream_of(p), tend_circles, s, threads, n * s.rows);
    launch(stream_of(p), advance_circles, s, threads - around, n * s.rows);
}

static int64_t array_bytes(const planet *p)
{
    return 8 * dpar_box_volume(&p->box);
}

/* Allocates the arrays, zeroed, and behind them the circles. */
static dpar_status open_air(planet *p)
{
    const int64_t arrays = ARRAYS * array_bytes(p);
    const int64_t circles = (p->rows + 1) * (int64_t)sizeof *p->row;
    const dpar_status st = dpar_comm_alloc(p->c, arrays + circles, &p->memory);
    p->seen = p->air;
    if (st == DPAR_OK) {
        void *row = (char *)p->memory + arrays, *copy = plan_memory(SEEN * array_bytes(p));
        memset(copy, 0, (size_t)(SEEN * array_bytes(p)));
        lay(&p->seen, SEEN, copy, dpar_box_volume(&p->box));
        lay(&p->air, ARRAYS, p->memory, dpar_box_volume(&p->box));
        p->air.row = (const circle *)row;
        right(cudaMemcpyAsync(row, p->row, (size_t)circles, cudaMemcpyHostToDevice, stream_of(p)));
    }
    return st;
}

static void close_air(planet *p)
{
    free(p->seen.state[0][H]);
    dpar_comm_release(p->c, p->memory);
}

static void show(planet *p)
{
    right(cudaMemcpyAsync(p->memory, p->seen.state[0][H], (size_t)(SEEN * array_bytes(p)),
                          cudaMemcpyHostToDevice, stream_of(p)));
    right(cudaStreamSynchronize(stream_of(p)));
}

static void look(planet *p)
{
    right(cudaMemcpyAsync(p->seen.state[0][H], p->memory, (size_t)(FIELDS * array_bytes(p)),
                          cudaMemcpyDeviceToHost, stream_of(p)));
    right(cudaStreamSynchronize(stream_of(p)));
}

static int with_device(gpu *g, const void *arg)
{
    settings s = *(const settings *)arg;
    s.device = g;
    return planet_main(g->world, &s);
}

static int launched(void)
{
    dpar_launcher_info job;
    return dpar_launcher_detect(&job, NULL) == DPAR_OK && job.kind != DPAR_LAUNCHER_NONE &&
           job.rank;
}

static int run(settings *s)
{
    dpar_launcher_info job;
    double ranks = s->ranks > 0 ? s->ranks : 1;
    if (find_ranks(&job, &ranks) != 0) {
        return 2;
    }
    if (s->ranks > 0 && s->ranks != ranks) {
        return complain("the launcher sets the number of ranks: leave --ranks out", NULL);
    }
    return divide(s, (int32_t)ranks) ? 2 : run_ranks(&job, ranks, with_device, s);
}
