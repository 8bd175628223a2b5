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
 * blocks processes a circle. A stage consists of a kernel that packs and messages after it
 * (dpar_halo_plan_begin on memory of dpar_cuda, with dpar_nccl between ranks), three kernels for
 * the core, one that unpacks, and three for all boxes that need the halo. The host waits only for
 * reports, files and pictures, for which it copies the state. Sums over the globe are computed on
 * the host, in integers, so that their order does not matter.
 *
 * The bits are those of the host's program if neither compiler fuses a product and a sum (nvcc
 * --fmad=false, cc -ffp-contract=off). Otherwise the states differ by rounding, which grows:
 * docs/records/gpu.md. Near the poles a thread sums everything that a filter reads, up to 2600
 * numbers at 4096 rows. */
#define ON_GPU
#define ANYWHERE __host__ __device__
#include <cuda_runtime.h>

#include "shallow_water.c"

#include "../helpers/gpu_start.h"

enum { SEEN = 5 }; /* arrays that the host also has: the state, ground and rotation */

/* The boxes of one launch. Each has `rows` rows of blocks, the first for the circle south of the
 * box. */
struct sweep {
    layer air;
    double dt;
    int base, from, to;
    int64_t rows;
    dpar_box box[RIMS];
};

__device__ static const dpar_box *my_box(const sweep &args)
{
    return &args.box[blockIdx.y / args.rows];
}

__device__ static int64_t my_circle(const sweep &args)
{
    return my_box(args)->lo[0] - 1 + blockIdx.y % args.rows;
}

__device__ static bool in_box(const sweep &args)
{
    return my_circle(args) >= my_box(args)->lo[0] && my_circle(args) < my_box(args)->hi[0];
}

__device__ static int64_t my_thread()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ static int64_t all_threads()
{
    return (int64_t)gridDim.x * blockDim.x;
}

__global__ static void diagnose_circles(const sweep args)
{
    if (my_circle(args) <= my_box(args)->hi[0]) {
        diagnose(&args.air, args.from, my_box(args), my_circle(args), my_thread(), all_threads());
    }
}

__global__ static void tend_circles(const sweep args)
{
    if (in_box(args)) {
        tend(&args.air, args.from, my_box(args), my_circle(args), my_thread(), all_threads());
    }
}

__global__ static void advance_circles(const sweep args)
{
    if (in_box(args)) {
        advance(&args.air, args.base, args.to, args.dt, my_box(args), my_circle(args), my_thread(),
                all_threads());
    }
}

static cudaStream_t stream_of(const planet *globe)
{
    return ((const gpu *)globe->options->device)->stream;
}

/* Advances `base` in n boxes (see shallow_water.c). Boxes may overlap in diagnosed values and
 * tendencies, where both write the same. */
static void compute(planet *globe, const own_block *here, const dpar_box *box, int n, int base,
                    int from, int to, double dt)
{
    const int64_t around = 2 * globe->points[H].low[1]; /* the reach of filters to both sides, and
                                                       faces */
    int64_t threads = 0;
    sweep args;
    memset(&args, 0, sizeof args);
    args.air = here->air;
    args.dt = dt;
    args.base = base;
    args.from = from;
    args.to = to;
    for (int k = 0; k < n; k++) {
        args.box[k] = box[k];
        args.rows = larger(args.rows, box[k].hi[0] - box[k].lo[0] + 2);
        threads = larger(threads, box[k].hi[1] - box[k].lo[1] + around);
    }
    launch(stream_of(globe), diagnose_circles, args, threads, n * args.rows);
    launch(stream_of(globe), tend_circles, args, threads, n * args.rows);
    launch(stream_of(globe), advance_circles, args, threads - around, n * args.rows);
}

static int64_t array_bytes(const planet *globe)
{
    return 8 * dpar_box_volume(&globe->block->box);
}

/* Allocates the arrays, zeroed, and behind them the circles. */
static dpar_status open_air(planet *globe)
{
    own_block *here = globe->block;
    const int64_t arrays = ARRAYS * array_bytes(globe);
    const int64_t circles = (globe->rows + 1) * (int64_t)sizeof *globe->row;
    const dpar_status st = dpar_comm_alloc(globe->comm, arrays + circles, &globe->memory);
    here->seen = here->air;
    if (st == DPAR_OK) {
        void *row = (char *)globe->memory + arrays, *copy = plan_memory(SEEN * array_bytes(globe));
        memset(copy, 0, (size_t)(SEEN * array_bytes(globe)));
        lay(&here->seen, SEEN, copy, dpar_box_volume(&here->box));
        lay(&here->air, ARRAYS, globe->memory, dpar_box_volume(&here->box));
        here->air.row = (const circle *)row;
        right(cudaMemcpyAsync(row, globe->row, (size_t)circles, cudaMemcpyHostToDevice,
                              stream_of(globe)));
    }
    return st;
}

static void close_air(planet *globe)
{
    free(globe->block->seen.state[0][H]);
    dpar_comm_release(globe->comm, globe->memory);
}

static void show(planet *globe)
{
    right(cudaMemcpyAsync(globe->memory, globe->block->seen.state[0][H],
                          (size_t)(SEEN * array_bytes(globe)), cudaMemcpyHostToDevice,
                          stream_of(globe)));
    right(cudaStreamSynchronize(stream_of(globe)));
}

static void look(planet *globe)
{
    right(cudaMemcpyAsync(globe->block->seen.state[0][H], globe->memory,
                          (size_t)(FIELDS * array_bytes(globe)), cudaMemcpyDeviceToHost,
                          stream_of(globe)));
    right(cudaStreamSynchronize(stream_of(globe)));
}

static int with_device(gpu *device, const void *arg)
{
    settings options = *(const settings *)arg;
    options.device = device;
    return planet_main(device->world, &options);
}

static int launched(void)
{
    dpar_launcher_info job;
    return dpar_launcher_detect(&job, NULL) == DPAR_OK && job.kind != DPAR_LAUNCHER_NONE &&
           job.rank;
}

static int run(settings *options)
{
    dpar_launcher_info job;
    double ranks = options->ranks > 0 ? options->ranks : 1;
    if (options->blocks != NULL) {
        return complain("--blocks needs the program for the host, shallow_water.c", NULL);
    }
    if (find_ranks(&job, &ranks) != 0) {
        return 2;
    }
    if (options->ranks > 0 && options->ranks != ranks) {
        return complain("the launcher sets the number of ranks: leave --ranks out", NULL);
    }
    return divide(options, (int32_t)ranks) ? 2 : run_ranks(&job, ranks, with_device, options);
}
