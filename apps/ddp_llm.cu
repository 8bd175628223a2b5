/* SPDX-License-Identifier: MIT-0 */
/* ddp_llm - runs a C/CUDA training code with its own kernels, such as llm.c, on several GPUs with
 * dpar. What such a code has in a multi-GPU file becomes calls of ddp and fsdp.
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION -I. \
 *       apps/ddp_llm.cu -o ddp_llm -ldl
 *   ./ddp_llm --ranks 4 --zero 3 --bf16 --check
 *   torchrun --no-python --nnodes 2 --nproc-per-node 4 ... ./ddp_llm
 *   and srun, mpirun
 *
 * In llm.c's zero.cuh                          here
 *   multi_gpu_config_init                      gpu_start.h: dpar_nccl_make
 *   gradients in one buffer of the caller      views: dpar_ddp_gradient, dpar_fsdp_gradient
 *   multi_gpu_async_reduce_gradient            ready(), after each layer's last kernel: on NCCL's
 *                                              stream, while the next layer's kernels run
 *   multi_gpu_get_shard_offset, its AdamW      dpar_fsdp_update; ZeRO 0: mem.optimize
 *   the norm of shards, an all-reduce, clip    dpar_fsdp_update; ZeRO 0: mem.squares, mem.clip
 *   an all-gather of the weights               before(): a layer's weights, gathered ahead
 *   multi_gpu_cpu_float_sum, of the loss       dpar_all_reduce
 *
 * The model (ddp_llm_kernels.h) predicts the next byte of a text. The text is in device memory, and
 * sample k of step n does not depend on the number of ranks. Between steps the host waits only in
 * dpar_fsdp_update. Weights are f32, or bf16 with f32 masters; activations and gradients are f32.
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one message on
 * stderr). */
static const char program[] = "ddp_llm";
#include "dpar_train.h"
static const char help[] =
    "ddp_llm: trains a small model of a text's bytes, one rank a GPU\n"
    "\n"
    "  --ranks N     processes, 1 to 64 (default 1); under torchrun, srun, mpirun: theirs\n"
    "  --zero Z      0: all on each rank (default); 1: the optimizer's state is cut; 2: gradients\n"
    "                too; 3: weights too\n"
    "  --bf16        weights that compute and travel are bf16 (zero 1 to 3)\n"
    "  --blocks N    1 to 100 (default 2)\n"
    "  --batch N     samples a step, of all ranks (default 48); --micros M: in M parts (2)\n"
    "  --steps N     (60); --rate R (0.01); --clip C: the gradients' norm at most (1)\n"
    "  --text FILE   default: README.md of the directory\n"
    "  --check       the same on one rank, too; losses are to agree to 1e-4, with bf16 to 1e-2\n"
    "  -h, --help    this text\n"
    "\n"
    "examples\n"
    "  ddp_llm --check\n"
    "  ddp_llm --ranks 2 --zero 3 --bf16\n"
    "  torchrun --no-python --nproc-per-node 8 ./ddp_llm --steps 500\n";

#include "../helpers/options.h"

#include "../helpers/gpu_start.h"

#include "ddp_llm_kernels.h"

#include <fstream>
#include <iterator>
#include <vector>

struct settings {
    double ranks, zero, blocks, batch, micros, steps, rate, clip;
    int bf16, check;
    const char *path;
    std::vector<unsigned char> text;
};

/* ---- weights, gradients and state: in a ddp (ZeRO 0) or an fsdp ------------------------------ */

enum { MOST_UNITS = 102, MOST_PARAMS = 2 * MOST_UNITS };

struct model {
    const gpu *device;
    dpar_comm *comm;
    const settings *options;
    int32_t units, params, params_of[MOST_UNITS]; /* the embedding, blocks, the head */
    int64_t numel[MOST_PARAMS], rows;             /* rows of a micro-batch */
    dpar_ddp *ddp;
    dpar_fsdp *fsdp;
    dpar_optimizer optimizer;
    float *weight[MOST_PARAMS], *mean[MOST_PARAMS], *square[MOST_PARAMS]; /* ZeRO 0 */
    double *norm; /* ZeRO 0: the square of the norm, then the clip factor */
    unsigned char *text;
    float *x[MOST_UNITS], *y[MOST_UNITS], *logits, *d[2], *loss, *losses; /* losses: of steps */
    std::vector<void *> arrays; /* memory to be released */
};

/* The first parameter of a unit: its matrix. The bias is the next one. */
static int first_of(int unit)
{
    return unit == 0 ? 0 : 2 * unit - 1;
}

static int64_t outs_of(const model *net, int unit)
{
    return unit == net->units - 1 ? VOCABULARY : WIDTH;
}

/* Allocates zeroed device memory that close_model releases. */
template <class T> static T *keep(model *net, int64_t count)
{
    T *const memory = take<T>(net->comm, count);
    net->arrays.push_back(memory);
    right(cudaMemsetAsync(memory, 0, (size_t)count * sizeof(T), net->device->stream));
    return memory;
}

static void open_ddp(model *net)
{
    dpar_ddp_desc desc;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    desc.params = net->params;
    desc.count = net->numel;
    desc.type = DPAR_F32;
    desc.require_ready = 1;
    desc.first_bucket_bytes = desc.bucket_bytes =
        32768; /* otherwise this small model is one bucket */
    right(dpar_ddp_make(net->comm, &desc, &net->ddp, &why), why.text);
    for (int i = 0; i < net->params; i++) {
        net->weight[i] = keep<float>(net, net->numel[i]);
        net->mean[i] = keep<float>(net, net->numel[i]);
        net->square[i] = keep<float>(net, net->numel[i]);
    }
    net->norm = keep<double>(net, 1);
}

static void open_fsdp(model *net)
{
    dpar_fsdp_desc desc;
    dpar_why why;
    memset(&desc, 0, sizeof desc);
    desc.zero = (int32_t)net->options->zero;
    desc.type = desc.gradient_type = DPAR_F32;
    desc.compute_type = net->options->bf16 ? DPAR_BF16 : DPAR_F32;
    desc.prefetch = 1;
    desc.optimizer = net->optimizer;
    desc.units = net->units;
    desc.params_per_unit = net->params_of;
    desc.count = net->numel;
    right(dpar_fsdp_make(net->comm, &desc, &net->fsdp, &why), why.text);
}

/* Sets the first weights, the same on all ranks: uniform in +-1 / sqrt(width), the embedding's in
 * +-1. */
static void set_weights(model *net)
{
    uint32_t random = 12345;
    for (int i = 0; i < net->params; i++) {
        std::vector<float> values((size_t)net->numel[i], 0.0f);
        for (float &value : values) {
            random = random * 1664525u + 1013904223u;
            value =
                ((float)(random >> 8) * 0x1p-23f - 1.0f) * (i == 0 ? 1.0f : 1.0f / sqrtf(WIDTH));
            value = i > 0 && i % 2 == 0 ? 0.0f : value; /* biases */
        }
        float *const to = net->ddp != NULL ? net->weight[i] : take<float>(net->comm, net->numel[i]);
        right(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float),
                              cudaMemcpyHostToDevice, net->device->stream));
        if (net->fsdp != NULL) {
            right(dpar_fsdp_set(net->fsdp, i, to), net->comm->why.text);
            dpar_comm_release(net->comm, to);
        }
        right(cudaStreamSynchronize(net->device->stream)); /* before `values` is destroyed */
    }
}

static void open_model(model *net)
{
    net->units = (int32_t)net->options->blocks + 2;
    net->rows = (int64_t)(net->options->batch / net->options->micros) / net->comm->size;
    dpar_optimizer_init(&net->optimizer, DPAR_OPTIMIZER_ADAMW);
    for (int unit = 0; unit < net->units; unit++) {
        net->params_of[unit] = unit == 0 ? 1 : 2;
        net->numel[first_of(unit)] = unit == 0 ? VOCABULARY * EMBED : outs_of(net, unit) * WIDTH;
        net->numel[first_of(unit) + (unit > 0)] =
            unit == 0 ? VOCABULARY * EMBED : outs_of(net, unit);
        net->params += net->params_of[unit];
        net->x[unit] = keep<float>(net, net->rows * WIDTH);
        net->y[unit] = keep<float>(net, net->rows * WIDTH);
    }
    net->d[0] = keep<float>(net, net->rows * WIDTH);
    net->d[1] = keep<float>(net, net->rows * WIDTH);
    net->logits = keep<float>(net, net->rows * VOCABULARY);
    net->loss = keep<float>(net, net->rows);
    net->losses = keep<float>(net, (int64_t)net->options->steps);
    net->text = keep<unsigned char>(net, (int64_t)net->options->text.size());
    right(cudaMemcpyAsync(net->text, net->options->text.data(), net->options->text.size(),
                          cudaMemcpyHostToDevice, net->device->stream));
    if (net->options->zero < 1) {
        open_ddp(net);
    } else {
        open_fsdp(net);
    }
    set_weights(net);
}

static void close_model(model *net)
{
    right(cudaStreamSynchronize(net->device->stream));
    right(dpar_ddp_free(net->ddp), net->comm->why.text);
    right(dpar_fsdp_free(net->fsdp), net->comm->why.text);
    for (void *memory : net->arrays) {
        dpar_comm_release(net->comm, memory);
    }
}

template <class W> static const W *weight_of(const model *net, int i)
{
    return (const W *)(net->fsdp != NULL ? dpar_fsdp_weight(net->fsdp, i) : net->weight[i]);
}

static float *gradient_of(const model *net, int i)
{
    return (float *)(net->fsdp != NULL ? dpar_fsdp_gradient(net->fsdp, i, NULL)
                                       : dpar_ddp_gradient(net->ddp, i, NULL));
}

static void before(model *net, int unit, int direction)
{
    right(net->fsdp != NULL ? dpar_fsdp_unshard(net->fsdp, unit, direction) : DPAR_OK,
          net->comm->why.text);
}

static void after(model *net, int unit, int direction)
{
    right(net->fsdp != NULL ? dpar_fsdp_reshard(net->fsdp, unit, direction) : DPAR_OK,
          net->comm->why.text);
}

/* Called when the kernels that compute the gradients of unit u have been launched. */
static void ready(model *net, int unit)
{
    if (net->fsdp != NULL) {
        right(dpar_fsdp_ready(net->fsdp, unit), net->comm->why.text);
        return;
    }
    for (int k = net->params_of[unit] - 1; k >= 0; k--) {
        right(dpar_ddp_ready(net->ddp, first_of(unit) + k), net->comm->why.text);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* Launches forward and backward of one micro-batch. */
template <class W> static void forward_backward(model *net, int64_t step, int64_t part)
{
    const int64_t rows = net->rows, micros = (int64_t)net->options->micros;
    const int last = net->units - 1;
    const samples batch = {net->text, (int64_t)net->options->text.size(), step,
                           (net->comm->rank * micros + part) * rows, rows};
    for (int unit = 0; unit <= last; unit++) {
        const int i = first_of(unit);
        before(net, unit, DPAR_ACTION_FORWARD);
        if (unit == 0) {
            launch(net->device->stream, embed<W>,
                   embedding<W>{batch, weight_of<W>(net, 0), net->x[0]}, rows * WIDTH);
        } else {
            float *const out = unit < last ? net->y[unit] : net->logits;
            float *const next = unit < last ? net->x[unit] : NULL;
            const linear<W> args = {
                weight_of<W>(net, i), weight_of<W>(net, i + 1), net->x[unit - 1], out, next, rows,
                outs_of(net, unit)};
            launch(net->device->stream, forward<W>, args, rows * args.outs);
        }
        after(net, unit, DPAR_ACTION_FORWARD);
    }
    /* The loss is a mean over this rank's samples, because the ranks' gradients are averaged. */
    launch(net->device->stream, cross_entropy,
           guess{batch, net->logits, net->loss, 1.0f / (float)(rows * micros)}, 32, rows);
    launch(net->device->stream, add_losses, total{net->loss, net->losses + step, rows}, 1);
    for (int unit = last; unit >= 0; unit--) {
        const int i = first_of(unit);
        before(net, unit, DPAR_ACTION_BACKWARD);
        if (unit == 0) {
            launch(net->device->stream, embed_backward,
                   to_table{batch, net->d[0], gradient_of(net, 0)}, VOCABULARY * EMBED);
        } else {
            const float *const d = unit < last ? net->d[unit % 2] : net->logits;
            const float *const y = unit < last ? net->y[unit] : NULL;
            const backward<W> args = {weight_of<W>(net, i),
                                      net->x[unit - 1],
                                      d,
                                      y,
                                      gradient_of(net, i),
                                      gradient_of(net, i + 1),
                                      net->d[(unit + 1) % 2],
                                      rows,
                                      outs_of(net, unit)};
            launch(net->device->stream, to_weights<W>, args, args.outs * (WIDTH + 1));
            launch(net->device->stream, to_input<W>, args, rows * WIDTH);
        }
        after(net, unit, DPAR_ACTION_BACKWARD);
        ready(net, unit);
    }
}

/* With ZeRO 0: enqueues norm, clip and AdamW, without any wait of the host. */
static void update_all(model *net, int64_t step)
{
    const dpar_mem *mem = net->comm->mem;
    const dpar_mem_layers *layers = (const dpar_mem_layers *)mem->layers;
    const dpar_mem_clip clip = {net->norm, net->norm, net->options->clip, 1.0};
    for (int i = 0; i < net->params; i++) {
        const dpar_mem_squares squares = {gradient_of(net, i), net->numel[i], DPAR_F32, i > 0,
                                          net->norm};
        right(layers->squares(mem->ctx, &squares), net->device->cuda.why.text);
    }
    right(layers->clip(mem->ctx, &clip), net->device->cuda.why.text);
    for (int i = 0; i < net->params; i++) {
        const dpar_optimizer_piece piece = {net->weight[i], gradient_of(net, i),
                                            net->mean[i],   net->square[i],
                                            DPAR_F32,       DPAR_F32,
                                            net->numel[i],  0};
        const dpar_mem_optimize desc = {&net->optimizer,
                                        &piece,
                                        step + 1,
                                        net->options->rate,
                                        1.0,
                                        net->norm,
                                        NULL,
                                        NULL,
                                        0,
                                        0};
        right(layers->optimize(mem->ctx, &desc), net->device->cuda.why.text);
    }
}

template <class W> static void train_step(model *net, int64_t step)
{
    const int64_t micros = (int64_t)net->options->micros;
    dpar_update update{};
    if (net->fsdp != NULL) {
        dpar_fsdp_zero(net->fsdp);
    } else {
        dpar_ddp_zero(net->ddp);
    }
    for (int64_t part = 0; part < micros; part++) {
        const int last = part == micros - 1;
        right(net->fsdp != NULL ? dpar_fsdp_begin(net->fsdp, last) : dpar_ddp_begin(net->ddp, last),
              net->comm->why.text);
        forward_backward<W>(net, step, part);
        right(net->fsdp != NULL ? dpar_fsdp_end(net->fsdp) : dpar_ddp_end(net->ddp),
              net->comm->why.text);
    }
    if (net->fsdp == NULL) {
        update_all(net, step);
    } else {
        update.rate = net->options->rate;
        update.clip = net->options->clip;
        right(dpar_fsdp_update(net->fsdp, &update), net->comm->why.text);
    }
}

/* Trains on the ranks of `comm`. Returns the losses of all steps. */
static std::vector<float> train(const gpu *device, dpar_comm *comm, const settings *options,
                                int quiet)
{
    model *const net = new model();
    const int64_t steps = (int64_t)options->steps, some = steps < 10 ? 1 : steps / 10;
    std::vector<float> losses((size_t)steps);
    const double began = now();
    net->device = device;
    net->comm = comm;
    net->options = options;
    open_model(net);
    for (int64_t step = 0, told = 0; step < steps; step++) {
        if (options->bf16) {
            train_step<uint16_t>(net, step);
        } else {
            train_step<float>(net, step);
        }
        if ((step + 1) % some == 0 || step == steps - 1) {
            const int64_t count = step + 1 - told;
            float *const at = net->losses + told;
            double sum = 0.0;
            right(dpar_all_reduce(comm, at, at, count, DPAR_F32, DPAR_AVG, NULL), comm->why.text);
            right(cudaMemcpyAsync(&losses[(size_t)told], at, (size_t)count * sizeof *at,
                                  cudaMemcpyDeviceToHost, device->stream));
            right(cudaStreamSynchronize(device->stream));
            for (; told <= step; told++) {
                sum += losses[(size_t)told];
            }
            if (comm->rank == 0 && !quiet) {
                printf("step %6lld  loss %.4f  %.0f samples/s\n", (long long)step + 1,
                       sum / (double)count,
                       options->batch * (double)(step + 1) / (now() - began));
                fflush(stdout);
            }
        }
    }
    close_model(net);
    delete net;
    return losses;
}

static int run(gpu *device, const void *arg)
{
    const settings *options = (const settings *)arg;
    const double bound = options->bf16 ? 1e-2 : 1e-4;
    const std::vector<float> all = train(device, device->world, options, 0);
    dpar_comm *self = NULL;
    double worst = 0.0;
    if (!options->check) {
        return 0;
    }
    right(dpar_comm_split(device->world, device->world->rank == 0 ? 0 : -1, 0, &self),
          device->world->why.text);
    if (self != NULL) {
        settings one = *options;
        one.zero = options->bf16 ? 1 : 0;
        const std::vector<float> alone = train(device, self, &one, 1);
        right(dpar_comm_free(self), "dpar_comm_free of the one rank's communicator failed");
        for (size_t i = 0; i < all.size(); i++) {
            const double apart = fabs((double)all[i] - alone[i]) / alone[i];
            worst = apart <= worst ? worst : apart;
        }
        printf("against one rank: losses differ by %.1e at most\n", worst);
        fflush(stdout);
    }
    right(dpar_barrier(device->world, NULL), device->world->why.text);
    if (worst <= bound) {
        return 0;
    }
    return complain(options->bf16 ? "the losses differ by more than 1e-2"
                                  : "the losses differ by more than 1e-4",
                    NULL) -
           1;
}

int main(int argc, char **argv)
{
    settings options = {1, 0, 2, 48, 2, 60, 0.01, 1, 0, 0, "README.md", {}};
    const option list[] = {{"--ranks", OPTION_WHOLE, &options.ranks, 1, 64},
                           {"--zero", OPTION_WHOLE, &options.zero, 0, 3},
                           {"--bf16", OPTION_FLAG, &options.bf16, 0, 0},
                           {"--blocks", OPTION_WHOLE, &options.blocks, 1, MOST_UNITS - 2},
                           {"--batch", OPTION_WHOLE, &options.batch, 1, 65535},
                           {"--micros", OPTION_WHOLE, &options.micros, 1, 65535},
                           {"--steps", OPTION_WHOLE, &options.steps, 1, 1e7},
                           {"--rate", OPTION_REAL, &options.rate, 0, 1},
                           {"--clip", OPTION_REAL, &options.clip, 0, 1e9},
                           {"--text", OPTION_WORD, &options.path, 0, 0},
                           {"--check", OPTION_FLAG, &options.check, 0, 0}};
    dpar_launcher_info job;
    int bad = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (bad >= 0) {
        return bad;
    }
    bad = 0;
    if (options.bf16 && options.zero < 1) {
        bad = complain("--bf16 needs f32 masters: --zero 1, 2 or 3", NULL);
    }
    if (bad == 0) {
        bad = find_ranks(&job, &options.ranks);
    }
    if (bad == 0 && fmod(options.batch, options.ranks * options.micros) != 0.0) {
        bad = complain("--batch must be a multiple of the ranks times --micros", NULL);
    }
    std::ifstream file(options.path, std::ios::binary);
    options.text.assign(std::istreambuf_iterator<char>(file), {});
    if (bad == 0 && options.text.size() < 2 * WINDOW) {
        bad = complain("cannot be read, or has fewer than 16 bytes:", options.path);
    }
    return bad != 0 ? bad : run_ranks(&job, options.ranks, run, &options);
}
