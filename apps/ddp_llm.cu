/* SPDX-License-Identifier: MIT-0 */
/* ddp_llm - runs a C/CUDA training code with its own kernels, such as llm.c, on several GPUs with
 * dpar. What such a code has in a multi-GPU file becomes calls of ddp and fsdp.
 *
 *   nvcc -std=c++17 -O3 -arch=sm_90 -DDPAR_IMPLEMENTATION -DDPAR_CUDA_IMPLEMENTATION -I. \
 *       apps/ddp_llm.cu -o ddp_llm -ldl
 *   ./ddp_llm --ranks 4 --zero 3 --bf16 --check
 *   DPAR_NCCL_PORT=29600 torchrun --no-python --nnodes 2 --nproc-per-node 4 ... ./ddp_llm
 *   and srun, mpirun
 *
 * In llm.c's zero.cuh                          here
 *   multi_gpu_config_init                      gpu_start.h: dpar_nccl_make
 *   gradients in one buffer of the caller      views: dpar_ddp_gradient, dpar_fsdp_gradient
 *   multi_gpu_async_reduce_gradient            ready(), after each layer's last kernel: on NCCL's
 *                                              stream, while the next layer's kernels run
 *   multi_gpu_get_shard_offset, its AdamW      dpar_fsdp_step; ZeRO 0: mem.optimize
 *   the norm of shards, an all-reduce, clip    dpar_fsdp_norm; ZeRO 0: mem.squares, mem.clip
 *   an all-gather of the weights               before(): a layer's weights, gathered ahead
 *   multi_gpu_cpu_float_sum, of the loss       dpar_all_reduce
 *
 * The model (ddp_llm_kernels.h) predicts the next byte of a text. The text is in device memory, and
 * sample k of step n does not depend on the number of ranks. Between steps the host waits only in
 * dpar_fsdp_norm. Weights are f32, or bf16 with f32 masters; activations and gradients are f32.
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one sentence on
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

#include "commands/options.h"

#include "gpu_start.h"

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
    const gpu *g;
    dpar_comm *c;
    const settings *s;
    int32_t units, params, params_of[MOST_UNITS]; /* the embedding, blocks, the head */
    int64_t numel[MOST_PARAMS], rows;             /* rows of a micro-batch */
    dpar_ddp *ddp;
    dpar_fsdp *fsdp;
    dpar_optimizer optimizer;
    float *weight[MOST_PARAMS], *m[MOST_PARAMS], *v[MOST_PARAMS]; /* ZeRO 0 */
    double *norm; /* ZeRO 0: the square of the norm, then the clip factor */
    unsigned char *text;
    float *x[MOST_UNITS], *y[MOST_UNITS], *logits, *d[2], *loss, *losses; /* losses: of steps */
    std::vector<void *> device; /* memory to be released */
};

/* The first parameter of a unit: its matrix. The bias is the next one. */
static int first_of(int u)
{
    return u == 0 ? 0 : 2 * u - 1;
}

static int64_t outs_of(const model *n, int u)
{
    return u == n->units - 1 ? VOCABULARY : WIDTH;
}

/* Allocates zeroed device memory that close_model releases. */
template <class T> static T *keep(model *n, int64_t count)
{
    T *const memory = take<T>(n->c, count);
    n->device.push_back(memory);
    right(cudaMemsetAsync(memory, 0, (size_t)count * sizeof(T), n->g->stream));
    return memory;
}

static void open_ddp(model *n)
{
    dpar_ddp_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.params = n->params;
    o.count = n->numel;
    o.type = DPAR_F32;
    o.require_ready = 1;
    o.first_bucket_bytes = o.bucket_bytes = 32768; /* otherwise this small model is one bucket */
    right(dpar_ddp_make(n->c, &o, &n->ddp, &why), why.text);
    for (int i = 0; i < n->params; i++) {
        n->weight[i] = keep<float>(n, n->numel[i]);
        n->m[i] = keep<float>(n, n->numel[i]);
        n->v[i] = keep<float>(n, n->numel[i]);
    }
    n->norm = keep<double>(n, 1);
}

static void open_fsdp(model *n)
{
    dpar_fsdp_desc o;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.zero = (int32_t)n->s->zero;
    o.type = o.gradient_type = DPAR_F32;
    o.compute_type = n->s->bf16 ? DPAR_BF16 : DPAR_F32;
    o.prefetch = 1;
    o.optimizer = n->optimizer;
    o.units = n->units;
    o.params_per_unit = n->params_of;
    o.count = n->numel;
    right(dpar_fsdp_make(n->c, &o, &n->fsdp, &why), why.text);
}

/* Sets the first weights, the same on all ranks: uniform in +-1 / sqrt(width), the embedding's in
 * +-1. */
static void set_weights(model *n)
{
    uint32_t random = 12345;
    for (int i = 0; i < n->params; i++) {
        std::vector<float> values((size_t)n->numel[i], 0.0f);
        for (float &x : values) {
            random = random * 1664525u + 1013904223u;
            x = ((float)(random >> 8) * 0x1p-23f - 1.0f) * (i == 0 ? 1.0f : 1.0f / sqrtf(WIDTH));
            x = i > 0 && i % 2 == 0 ? 0.0f : x; /* biases */
        }
        float *const to = n->ddp != NULL ? n->weight[i] : take<float>(n->c, n->numel[i]);
        right(cudaMemcpyAsync(to, values.data(), values.size() * sizeof(float),
                              cudaMemcpyHostToDevice, n->g->stream));
        if (n->fsdp != NULL) {
            right(dpar_fsdp_set(n->fsdp, i, to), n->c->why.text);
            dpar_comm_release(n->c, to);
        }
        right(cudaStreamSynchronize(n->g->stream)); /* before `values` is destroyed */
    }
}

static void open_model(model *n)
{
    n->units = (int32_t)n->s->blocks + 2;
    n->rows = (int64_t)(n->s->batch / n->s->micros) / n->c->size;
    dpar_optimizer_init(&n->optimizer, DPAR_OPTIMIZER_ADAMW);
    for (int u = 0; u < n->units; u++) {
        n->params_of[u] = u == 0 ? 1 : 2;
        n->numel[first_of(u)] = u == 0 ? VOCABULARY * EMBED : outs_of(n, u) * WIDTH;
        n->numel[first_of(u) + (u > 0)] = u == 0 ? VOCABULARY * EMBED : outs_of(n, u);
        n->params += n->params_of[u];
        n->x[u] = keep<float>(n, n->rows * WIDTH);
        n->y[u] = keep<float>(n, n->rows * WIDTH);
    }
    n->d[0] = keep<float>(n, n->rows * WIDTH);
    n->d[1] = keep<float>(n, n->rows * WIDTH);
    n->logits = keep<float>(n, n->rows * VOCABULARY);
    n->loss = keep<float>(n, n->rows);
    n->losses = keep<float>(n, (int64_t)n->s->steps);
    n->text = keep<unsigned char>(n, (int64_t)n->s->text.size());
    right(cudaMemcpyAsync(n->text, n->s->text.data(), n->s->text.size(), cudaMemcpyHostToDevice,
                          n->g->stream));
    if (n->s->zero < 1) {
        open_ddp(n);
    } else {
        open_fsdp(n);
    }
    set_weights(n);
}

static void close_model(model *n)
{
    right(cudaStreamSynchronize(n->g->stream));
    right(dpar_ddp_free(n->ddp), n->c->why.text);
    right(dpar_fsdp_free(n->fsdp), n->c->why.text);
    for (void *memory : n->device) {
        dpar_comm_release(n->c, memory);
    }
}

template <class W> static const W *weight_of(const model *n, int i)
{
    return (const W *)(n->fsdp != NULL ? dpar_fsdp_weight(n->fsdp, i) : n->weight[i]);
}

static float *gradient_of(const model *n, int i)
{
    return (float *)(n->fsdp != NULL ? dpar_fsdp_gradient(n->fsdp, i, NULL)
                                     : dpar_ddp_gradient(n->ddp, i, NULL));
}

static void before(model *n, int u, int direction)
{
    right(n->fsdp != NULL ? dpar_fsdp_unshard(n->fsdp, u, direction) : DPAR_OK, n->c->why.text);
}

static void after(model *n, int u, int direction)
{
    right(n->fsdp != NULL ? dpar_fsdp_reshard(n->fsdp, u, direction) : DPAR_OK, n->c->why.text);
}

/* Called when the kernels that compute the gradients of unit u have been launched. */
static void ready(model *n, int u)
{
    if (n->fsdp != NULL) {
        right(dpar_fsdp_ready(n->fsdp, u), n->c->why.text);
        return;
    }
    for (int k = n->params_of[u] - 1; k >= 0; k--) {
        right(dpar_ddp_ready(n->ddp, first_of(u) + k), n->c->why.text);
    }
}

/* ---- training -------------------------------------------------------------------------------- */

/* Launches forward and backward of one micro-batch. */
template <class W> static void forward_backward(model *n, int64_t step, int64_t part)
{
    const int64_t rows = n->rows, micros = (int64_t)n->s->micros;
    const int last = n->units - 1;
    const samples s = {n->text, (int64_t)n->s->text.size(), step,
                       (n->c->rank * micros + part) * rows, rows};
    for (int u = 0; u <= last; u++) {
        const int i = first_of(u);
        before(n, u, DPAR_ACTION_FORWARD);
        if (u == 0) {
            launch(n->g->stream, embed<W>, embedding<W>{s, weight_of<W>(n, 0), n->x[0]},
                   rows * WIDTH);
        } else {
            const linear<W> a = {weight_of<W>(n, i),
                                 weight_of<W>(n, i + 1),
                                 n->x[u - 1],
                                 u < last ? n->y[u] : n->logits,
                                 u < last ? n->x[u] : NULL,
                                 rows,
                                 outs_of(n, u)};
            launch(n->g->stream, forward<W>, a, rows * a.outs);
        }
        after(n, u, DPAR_ACTION_FORWARD);
    }
    /* The loss is a mean over this rank's samples, because the ranks' gradients are averaged. */
    launch(n->g->stream, cross_entropy, guess{s, n->logits, n->loss, 1.0f / (float)(rows * micros)},
           32, rows);
    launch(n->g->stream, add_losses, total{n->loss, n->losses + step, rows}, 1);
    for (int u = last; u >= 0; u--) {
        const int i = first_of(u);
        before(n, u, DPAR_ACTION_BACKWARD);
        if (u == 0) {
            launch(n->g->stream, embed_backward, to_table{s, n->d[0], gradient_of(n, 0)},
                   VOCABULARY * EMBED);
        } else {
            const backward<W> a = {weight_of<W>(n, i),
                                   n->x[u - 1],
                                   u < last ? n->d[u % 2] : n->logits,
                                   u < last ? n->y[u] : NULL,
                                   gradient_of(n, i),
                                   gradient_of(n, i + 1),
                                   n->d[(u + 1) % 2],
                                   rows,
                                   outs_of(n, u)};
            launch(n->g->stream, to_weights<W>, a, a.outs * (WIDTH + 1));
            launch(n->g->stream, to_input<W>, a, rows * WIDTH);
        }
        after(n, u, DPAR_ACTION_BACKWARD);
        ready(n, u);
    }
}

/* With ZeRO 0: enqueues norm, clip and AdamW, without any wait of the host. */
static void update_all(model *n, int64_t step)
{
    const dpar_mem *mem = n->c->mem;
    const dpar_mem_layers *layers = (const dpar_mem_layers *)mem->layers;
    const dpar_mem_clip clip = {n->norm, n->norm, n->s->clip, 1.0};
    for (int i = 0; i < n->params; i++) {
        const dpar_mem_squares q = {gradient_of(n, i), n->numel[i], DPAR_F32, i > 0, n->norm};
        right(layers->squares(mem->ctx, &q), n->g->cuda.why.text);
    }
    right(layers->clip(mem->ctx, &clip), n->g->cuda.why.text);
    for (int i = 0; i < n->params; i++) {
        const dpar_optimizer_piece p = {n->weight[i], gradient_of(n, i), n->m[i],     n->v[i],
                                        DPAR_F32,     DPAR_F32,          n->numel[i], 0};
        const dpar_mem_optimize o = {&n->optimizer, &p,   step + 1, n->s->rate, 1.0,
                                     n->norm,       NULL, NULL,     0,          0};
        right(layers->optimize(mem->ctx, &o), n->g->cuda.why.text);
    }
}

template <class W> static void train_step(model *n, int64_t step)
{
    const int64_t micros = (int64_t)n->s->micros;
    double norm = 0.0;
    if (n->fsdp != NULL) {
        dpar_fsdp_zero(n->fsdp);
    } else {
        dpar_ddp_zero(n->ddp);
    }
    for (int64_t part = 0; part < micros; part++) {
        const int last = part == micros - 1;
        right(n->fsdp != NULL ? dpar_fsdp_begin(n->fsdp, last) : dpar_ddp_begin(n->ddp, last),
              n->c->why.text);
        forward_backward<W>(n, step, part);
        right(n->fsdp != NULL ? dpar_fsdp_end(n->fsdp) : dpar_ddp_end(n->ddp), n->c->why.text);
    }
    if (n->fsdp == NULL) {
        update_all(n, step);
    } else {
        right(dpar_fsdp_norm(n->fsdp, &norm), n->c->why.text);
        right(dpar_fsdp_step(n->fsdp, n->s->rate, dpar_optimizer_clip(norm, n->s->clip)),
              n->c->why.text);
    }
}

/* Trains on the ranks of c. Returns the losses of all steps. */
static std::vector<float> train(const gpu *g, dpar_comm *c, const settings *s, int quiet)
{
    model *const n = new model();
    const int64_t steps = (int64_t)s->steps, some = steps < 10 ? 1 : steps / 10;
    std::vector<float> losses((size_t)steps);
    const double began = options_now();
    n->g = g;
    n->c = c;
    n->s = s;
    open_model(n);
    for (int64_t step = 0, told = 0; step < steps; step++) {
        if (s->bf16) {
            train_step<uint16_t>(n, step);
        } else {
            train_step<float>(n, step);
        }
        if ((step + 1) % some == 0 || step == steps - 1) {
            const int64_t count = step + 1 - told;
            float *const at = n->losses + told;
            double sum = 0.0;
            right(dpar_all_reduce(c, at, at, count, DPAR_F32, DPAR_AVG, NULL), c->why.text);
            right(cudaMemcpyAsync(&losses[(size_t)told], at, (size_t)count * sizeof *at,
                                  cudaMemcpyDeviceToHost, g->stream));
            right(cudaStreamSynchronize(g->stream));
            for (; told <= step; told++) {
                sum += losses[(size_t)told];
            }
            if (c->rank == 0 && !quiet) {
                printf("step %6lld  loss %.4f  %.0f samples/s\n", (long long)step + 1,
                       sum / (double)count,
                       s->batch * (double)(step + 1) / (options_now() - began));
                fflush(stdout);
            }
        }
    }
    close_model(n);
    delete n;
    return losses;
}

static int run(gpu *g, const void *arg)
{
    const settings *s = (const settings *)arg;
    const double bound = s->bf16 ? 1e-2 : 1e-4;
    const std::vector<float> all = train(g, g->world, s, 0);
    dpar_comm *self = NULL;
    double worst = 0.0;
    if (!s->check) {
        return 0;
    }
    right(dpar_comm_split(g->world, g->world->rank == 0 ? 0 : -1, 0, &self), g->world->why.text);
    if (self != NULL) {
        settings one = *s;
        one.zero = s->bf16 ? 1 : 0;
        const std::vector<float> alone = train(g, self, &one, 1);
        right(dpar_comm_free(self), "dpar_comm_free of the one rank's communicator failed");
        for (size_t i = 0; i < all.size(); i++) {
            const double apart = fabs((double)all[i] - alone[i]) / alone[i];
            worst = apart <= worst ? worst : apart;
        }
        printf("against one rank: losses differ by %.1e at most\n", worst);
        fflush(stdout);
    }
    right(dpar_barrier(g->world, NULL), g->world->why.text);
    if (worst <= bound) {
        return 0;
    }
    return complain(s->bf16 ? "the losses differ by more than 1e-2"
                            : "the losses differ by more than 1e-4",
                    NULL) -
           1;
}

int main(int argc, char **argv)
{
    settings s = {1, 0, 2, 48, 2, 60, 0.01, 1, 0, 0, "README.md", {}};
    const option list[] = {{"--ranks", OPTION_WHOLE, &s.ranks, 1, 64},
                           {"--zero", OPTION_WHOLE, &s.zero, 0, 3},
                           {"--bf16", OPTION_FLAG, &s.bf16, 0, 0},
                           {"--blocks", OPTION_WHOLE, &s.blocks, 1, MOST_UNITS - 2},
                           {"--batch", OPTION_WHOLE, &s.batch, 1, 65535},
                           {"--micros", OPTION_WHOLE, &s.micros, 1, 65535},
                           {"--steps", OPTION_WHOLE, &s.steps, 1, 1e7},
                           {"--rate", OPTION_REAL, &s.rate, 0, 1},
                           {"--clip", OPTION_REAL, &s.clip, 0, 1e9},
                           {"--text", OPTION_WORD, &s.path, 0, 0},
                           {"--check", OPTION_FLAG, &s.check, 0, 0}};
    dpar_launcher_info job;
    int bad = options_read(argc, argv, list, sizeof list / sizeof *list, NULL, 0);
    if (bad >= 0) {
        return bad;
    }
    bad = 0;
    if (s.bf16 && s.zero < 1) {
        bad = complain("--bf16 needs f32 masters: --zero 1, 2 or 3", NULL);
    }
    if (bad == 0) {
        bad = find_ranks(&job, &s.ranks);
    }
    if (bad == 0 && fmod(s.batch, s.ranks * s.micros) != 0.0) {
        bad = complain("--batch must be a multiple of the ranks times --micros", NULL);
    }
    std::ifstream file(s.path, std::ios::binary);
    s.text.assign(std::istreambuf_iterator<char>(file), {});
    if (bad == 0 && s.text.size() < 2 * WINDOW) {
        bad = complain("cannot be read, or has fewer than 16 bytes:", s.path);
    }
    return bad != 0 ? bad : run_ranks(&job, s.ranks, run, &s);
}
