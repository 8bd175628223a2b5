/* SPDX-License-Identifier: MIT-0 */
/* stencil - solves the heat equation in a box on GPUs, in 3-d blocks with one rank for each device.
 * Halos are exchanged over NCCL while the core of the block is computed.
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION -I. \
 *       apps/stencil.cu -o stencil -ldl
 *   ./stencil --ranks 4 --cells 512 --steps 200
 *   torchrun --no-python --nproc-per-node 4 ./stencil --check           or any launcher of one node
 *
 * du/dt = k lap(u) on n^3 cells, with explicit steps u + rate (sum of six neighbours - 6 u). There
 * are walls of 0 along z and y, and x is periodic. The first state is a product of sines, which
 * each step multiplies by a constant, so that the exact result of the scheme is known after any
 * number of steps.
 *
 * The host does not wait between steps. dpar_halo_plan_begin enqueues a kernel that packs on the
 * compute stream, and messages after it on NCCL's stream. The core's kernel follows on the compute
 * stream and runs at the same time as the messages. dpar_halo_plan_end makes the compute stream
 * wait for them and unpacks, and then the cells that need the halo are computed. The bits are the
 * same on any number of ranks, because each cell is computed by the same expression from the same
 * numbers.
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one message on
 * stderr). */
static const char program[] = "stencil";
#include "dpar_halo.h"
static const char help[] =
    "stencil: the heat equation on blocks of a cube, one rank a GPU\n"
    "\n"
    "  --ranks N     processes, 1 to 64 (default 1); under torchrun, srun, mpirun: theirs\n"
    "  --cells N     along each dim, 2 to 4096 (default 128)\n"
    "  --steps N     0 to 10000000 (default 100)\n"
    "  --rate R      of a step, above 0, to 1/6 (default 0.125)\n"
    "  --apart       exchange first, then compute: what overlap is worth\n"
    "  --check       the same on one rank, too: all bits are to be the same\n"
    "  -h, --help    this text\n"
    "\n"
    "examples\n"
    "  stencil --check\n"
    "  stencil --ranks 2 --cells 512\n"
    "  torchrun --no-python --nproc-per-node 8 ./stencil\n";

#include "../helpers/options.h"

#include "../helpers/gpu_start.h"

#include <utility>
#include <vector>

struct settings {
    double ranks, cells, steps, rate;
    int apart, check;
};

/* ---- the kernel ------------------------------------------------------------------------------ */

enum { MOST_BOXES = 6 };

/* The boxes of one launch, one for each blockIdx.y, as places in the local array. */
struct sweep {
    const double *from;
    double *to;
    double rate;
    int64_t stride[2]; /* elements between neighbours along z, y */
    int64_t first[MOST_BOXES], extent[MOST_BOXES][3];
};

__global__ static void heat(const sweep args)
{
    const int64_t *extent = args.extent[blockIdx.y], count = extent[0] * extent[1] * extent[2];
    const int64_t step = (int64_t)gridDim.x * blockDim.x, z = args.stride[0], y = args.stride[1];
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const int64_t at = args.first[blockIdx.y] + i / (extent[1] * extent[2]) * z +
                           i / extent[2] % extent[1] * y + i % extent[2];
        const double *u = args.from + at;
        args.to[at] =
            u[0] + args.rate * ((u[-z] + u[z]) + (u[-y] + u[y]) + (u[-1] + u[1]) - 6.0 * u[0]);
    }
}

/* ---- the scheme, and its effect on a product of sines ---------------------------------------- */

static const uint32_t around = 1u << 2; /* the periodic dims: x */

/* The phase of the sine along dim d from one cell to the next. */
static double angle(const settings *options, int dim)
{
    const double pi = 3.14159265358979323846;
    return (around >> dim & 1u) != 0 ? 2.0 * pi / options->cells : pi / (options->cells + 1.0);
}

/* The first state of a cell. */
static double first(const settings *options, const int64_t *cell)
{
    double u = 1.0;
    for (int dim = 0; dim < 3; dim++) {
        u *= sin(angle(options, dim) * (double)(cell[dim] + 1));
    }
    return u;
}

/* The constant by which all steps together multiply the state. */
static double factor(const settings *options)
{
    double sum = 1.0;
    for (int dim = 0; dim < 3; dim++) {
        sum += options->rate * (2.0 * cos(angle(options, dim)) - 2.0);
    }
    return pow(sum, options->steps);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

/* Calls what(cell, its index in an array of the box `all`) for each cell of a box. */
template <class F> static void each(const dpar_box &box, const dpar_box &all, F what)
{
    int64_t i[3];
    for (i[0] = box.lo[0]; i[0] < box.hi[0]; i[0]++) {
        for (i[1] = box.lo[1]; i[1] < box.hi[1]; i[1]++) {
            for (i[2] = box.lo[2]; i[2] < box.hi[2]; i[2]++) {
                int64_t at = 0;
                for (int dim = 0; dim < 3; dim++) {
                    at = at * (all.hi[dim] - all.lo[dim]) + i[dim] - all.lo[dim];
                }
                what(i, (size_t)at);
            }
        }
    }
}

/* Divides the cube into blocks with the least surface, with a halo of one cell. */
static dpar_status lay(const settings *options, int32_t ranks, dpar_halo *halo, dpar_why *why)
{
    const int64_t n = (int64_t)options->cells, cells[3] = {n, n, n};
    const dpar_placement cut[3] = {dpar_shard(0), dpar_shard(1), dpar_shard(2)};
    int32_t parts[3] = {0, 0, 0};
    dpar_mesh mesh;
    memset(halo, 0, sizeof *halo);
    halo->periodic = around;
    halo->shape = DPAR_STENCIL_STAR;
    for (int dim = 0; dim < 3; dim++) {
        halo->low[dim] = halo->high[dim] = 1;
    }
    dpar_cart_choose_desc grid;
    memset(&grid, 0, sizeof grid);
    grid.ranks = ranks;
    grid.dims = 3;
    grid.periodic = around;
    memcpy(grid.cells, cells, sizeof cells);
    dpar_status st = dpar_cart_choose_parts(&grid, parts, NULL, why);
    if (st >= 0) {
        st = dpar_mesh_init(&mesh, "z y x", parts, DPAR_ORDER_LAST_FASTEST, ranks, why);
    }
    return st < 0 ? st : dpar_layout_init(&halo->grid, &mesh, 3, cells, cut, why);
}

/* Computes n boxes of cells in one launch. `all` is the box of the local array. */
static void compute(gpu *device, const settings *options, double *const u[2], const dpar_box &all,
                    const dpar_box *boxes, int n)
{
    sweep args;
    int64_t most = 0;
    memset(&args, 0, sizeof args);
    args.from = u[0];
    args.to = u[1];
    args.rate = options->rate;
    args.stride[1] = all.hi[2] - all.lo[2];
    args.stride[0] = args.stride[1] * (all.hi[1] - all.lo[1]);
    for (int k = 0; k < n; k++) {
        const int64_t *lo = boxes[k].lo, count = dpar_box_volume(&boxes[k]);
        args.first[k] = (lo[0] - all.lo[0]) * args.stride[0] +
                        (lo[1] - all.lo[1]) * args.stride[1] + lo[2] - all.lo[2];
        for (int dim = 0; dim < 3; dim++) {
            args.extent[k][dim] = boxes[k].hi[dim] - lo[dim];
        }
        most = count > most ? count : most;
    }
    launch(device->stream, heat, args, most, n);
}

/* Runs all steps on the ranks of `comm`. *local becomes this rank's array, of the box *all, of
 * which it owns *own. Returns the seconds. */
static double solve(gpu *device, dpar_comm *comm, const settings *options, dpar_box *own,
                    dpar_box *all, std::vector<double> *local)
{
    dpar_halo halo;
    dpar_halo_field field;
    dpar_halo_plan_desc desc;
    dpar_halo_plan *exchange = NULL;
    dpar_box core, rim[MOST_BOXES];
    dpar_why why;
    double *u[2];
    int rims = 0;
    right(lay(options, comm->size, &halo, &why), why.text);
    (void)dpar_halo_owned(&halo, comm->rank, own);
    (void)dpar_halo_box(&halo, comm->rank, all);
    const int cores = dpar_halo_interior(&halo, comm->rank, &core);
    while (rims < MOST_BOXES && dpar_halo_boundary(&halo, comm->rank, rims, &rim[rims])) {
        rims++;
    }
    /* Beyond the walls both arrays are 0, and remain 0. */
    local->assign((size_t)dpar_box_volume(all), 0.0);
    each(*own, *all, [&](const int64_t *cell, size_t at) { (*local)[at] = first(options, cell); });
    const size_t bytes = local->size() * sizeof(double);
    for (double *&array : u) {
        array = take<double>(comm, (int64_t)local->size());
        right(cudaMemsetAsync(array, 0, bytes, device->stream));
    }
    right(cudaMemcpyAsync(u[0], local->data(), bytes, cudaMemcpyHostToDevice, device->stream));
    memset(&field, 0, sizeof field);
    field.halo = &halo;
    field.type = DPAR_F64;
    field.data = u[0];
    field.mem = comm->mem; /* the device packs, so that the host does not wait */
    memset(&desc, 0, sizeof desc);
    desc.field = &field;
    desc.field_count = 1;
    right(dpar_halo_plan_make(comm, &desc, &exchange, &why), why.text);
    right(cudaStreamSynchronize(device->stream));
    right(dpar_barrier(comm, NULL), comm->why.text);
    const double began = now();
    for (int64_t step = 0; step < (int64_t)options->steps; step++) {
        right(dpar_halo_plan_bind(exchange, 0, u[0], NULL), comm->why.text);
        right(dpar_halo_plan_begin(exchange), comm->why.text);
        if (!options->apart) {
            compute(device, options, u, *all, &core, cores);
        }
        right(dpar_halo_plan_end(exchange), comm->why.text);
        if (options->apart) {
            compute(device, options, u, *all, &core, cores);
        }
        compute(device, options, u, *all, rim, rims);
        std::swap(u[0], u[1]);
    }
    right(cudaStreamSynchronize(device->stream));
    right(dpar_barrier(comm, NULL), comm->why.text);
    const double seconds = now() - began;
    right(cudaMemcpyAsync(local->data(), u[0], bytes, cudaMemcpyDeviceToHost, device->stream));
    right(cudaStreamSynchronize(device->stream));
    right(dpar_halo_plan_free(exchange), comm->why.text);
    dpar_comm_release(comm, u[0]);
    dpar_comm_release(comm, u[1]);
    return seconds;
}

/* Counts this rank's numbers whose bits differ from those of one rank, which rank 0 computes for
 * all. */
static int64_t differing(gpu *device, const settings *options, const dpar_box &own,
                         const dpar_box &all, const std::vector<double> &mine)
{
    const int64_t n = (int64_t)options->cells;
    dpar_comm *self = NULL;
    dpar_box cube, box;
    std::vector<double> alone((size_t)((n + 2) * (n + 2) * (n + 2)));
    std::vector<const double *> at_mine;
    int64_t differ = 0;
    size_t k = 0;
    right(dpar_comm_split(device->world, device->world->rank == 0 ? 0 : -1, 0, &self),
          device->world->why.text);
    if (self != NULL) {
        (void)solve(device, self, options, &box, &cube, &alone);
        right(dpar_comm_free(self), "one rank's communicator could not be closed");
    }
    right(dpar_broadcast(device->world, alone.data(), (int64_t)alone.size(), DPAR_F64, 0, NULL),
          device->world->why.text);
    cube.dims = 3;
    for (int dim = 0; dim < 3; dim++) {
        cube.lo[dim] = -1;
        cube.hi[dim] = n + 1;
    }
    each(own, all, [&](const int64_t *, size_t at) { at_mine.push_back(&mine[at]); });
    each(own, cube, [&](const int64_t *, size_t at) {
        differ += memcmp(at_mine[k++], &alone[at], sizeof(double)) != 0;
    });
    return differ;
}

static int run(gpu *device, const void *arg)
{
    const settings *options = (const settings *)arg;
    dpar_comm *const world = device->world;
    dpar_box own, all;
    std::vector<double> mine;
    const double seconds = solve(device, world, options, &own, &all, &mine);
    const double shrink = factor(options);
    double error = 0.0;
    each(own, all, [&](const int64_t *cell, size_t at) {
        const double off = fabs(mine[at] - shrink * first(options, cell));
        error = off <= error ? error : off; /* a NaN stays a NaN */
    });
    int64_t differ = options->check ? differing(device, options, own, all, mine) : 0;
    right(dpar_all_reduce(world, &error, &error, 1, DPAR_F64, DPAR_MAX, NULL), world->why.text);
    right(dpar_all_reduce(world, &differ, &differ, 1, DPAR_I64, DPAR_SUM, NULL), world->why.text);
    if (world->rank == 0) {
        const double updates = options->cells * options->cells * options->cells * options->steps;
        printf("%.0f^3 cells, %.0f steps, %d ranks: %.3g cells a second, error %.1e of %.3e\n",
               options->cells, options->steps, (int)world->size, updates / seconds, error, shrink);
        if (options->check) {
            printf("against one rank: %lld numbers differ\n", (long long)differ);
        }
        fflush(stdout);
    }
    if (differ != 0) {
        return complain("results differ from those of one rank", NULL) - 1;
    }
    if (!(error <= 1e-15 * (options->steps + 4.0))) { /* the rounding of each step */
        return complain("the error is larger than rounding allows", NULL) - 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    settings options = {1, 128, 100, 0.125, 0, 0};
    const option list[] = {{"--ranks", OPTION_WHOLE, &options.ranks, 1, 64},
                           {"--cells", OPTION_WHOLE, &options.cells, 2, 4096},
                           {"--steps", OPTION_WHOLE, &options.steps, 0, 1e7},
                           {"--rate", OPTION_REAL, &options.rate, 1e-9, 1.0 / 6.0},
                           {"--apart", OPTION_FLAG, &options.apart, 0, 0},
                           {"--check", OPTION_FLAG, &options.check, 0, 0}};
    dpar_launcher_info job;
    dpar_halo halo;
    dpar_why why;
    int bad = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (bad >= 0) {
        return bad;
    }
    bad = find_ranks(&job, &options.ranks);
    if (bad == 0 && lay(&options, (int32_t)options.ranks, &halo, &why) != DPAR_OK) {
        bad = complain(why.text, NULL);
    }
    return bad != 0 ? bad : run_ranks(&job, options.ranks, run, &options);
}
