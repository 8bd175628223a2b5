/* SPDX-License-Identifier: MIT-0 */
/* train_gpt - trains a small GPT on a text, with every strategy of training at once: pipeline, data
 * (replicated or sharded: ZeRO 0 to 3), context, tensor, sequence and expert parallelism, on any
 * mesh whose degrees multiply to the number of ranks.
 *
 *   cc -O2 -DDPAR_IMPLEMENTATION -I. apps/train_gpt.c -o train_gpt -lm
 *   ./train_gpt --ranks 8 --pp 2 --dp 2 --tp 2 --sp --zero 3 --schedule zbv
 *   ./train_gpt --pp 2 --cp 2 --experts 4 --ep 2 --check          the same on one rank beside it
 *
 *   mpicc -O2 -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/train_gpt.c -o train_gpt
 *   -lm && mpirun -np 8 ./train_gpt --pp 2 --dp 2 --tp 2
 *
 * The model is in gpt.h: layers, forward and backward, over communicators of tensor, context and
 * expert parallelism. This file has everything around it: the mesh, the layers of each rank (a
 * stage of the pipeline is a run of layers), the stores of weights, gradients and optimizer state
 * (struct store), the order of work (a pipeline with any schedule, chosen by name), text, clipping,
 * learning rate, checkpoints, and a comparison of the planner's prediction with what was measured.
 *
 * dpar is used in `lay_mesh` and `open_comms` (dpar_mesh_init, dpar_comm_split_axes), `open_ddp`
 * and `open_fsdp` (dpar_ddp_make, dpar_fsdp_make), `make_list` (dpar_schedule_generate,
 * dpar_schedule_lower), `open_pipeline` (dpar_pipeline_make), `norm_of` (dpar_ddp_norm,
 * dpar_fsdp_norm), and `step_once` (dpar_pipeline_run).
 *
 * train_gpt.cu is this file for GPUs, with weights, gradients, optimizer state and activations in
 * the memory of one device for each rank.
 *
 * All reductions are sums, not averages: the loss of each token is scaled by 1 / tokens of the
 * whole step where it is computed. So the gradients of experts, which fewer ranks share, need no
 * factor of their own. The text is a sequence of bytes; sample k of step n does not depend on the
 * mesh.
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one message on
 * stderr). */
#include "dpar_cost.h"
#include "dpar_train.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef GPT_CUDA
static inline int complain(const char *what, const char *word);
#include "../helpers/gpu_start.h"
#endif

#include "gpt.h"
#include "train_options.h"
#ifndef GPT_CUDA
#include "start.h"
#endif

enum { MOST_LAYERS = 130, MOST_COMMS = 16, ARRAYS = 3, MOST_SKIPPED = 10 };

/* ---- the state of a rank --------------------------------------------------------------------- */

/* Three kinds of parameters, by the ranks that share them: those of layers (shared by all
 * data-parallel and context-parallel ranks), those of experts (by the ranks with the same experts),
 * and the table of the tied embedding. The first and the last stage have that one, and the pipeline
 * adds up its gradients of both before it is reduced. */
enum { DENSE, EXPERT, TABLE, STORES };

/* A parameter of this rank. */
typedef struct parameter {
    gpt_parameter shape;
    int64_t start;    /* where it begins in its unit, or with ZeRO 0 in the whole store */
    int64_t whole_at; /* where the whole parameter begins among all of the model, in checkpoints */
    int32_t unit;
} parameter;

/* Parameters that the same ranks share, in units of a layer each. It is a ddp with whole weights
 * (ZeRO 0), or an fsdp. */
typedef struct store {
    int32_t units, params;
    int32_t *params_of;        /* [units] */
    int64_t *numel;            /* [params] */
    uint8_t *duplicate;        /* [params] 1: a lower tensor-parallel rank has a copy, so that the
                                  norm does not count it */
    parameter *of;             /* [params] */
    dpar_comm *all;            /* ZeRO 0: the ranks that share it */
    dpar_comm *shard, *across; /* ZeRO 1 to 3: the ranks that have parts of it, and those with the
                                  same part, or NULL */
    dpar_ddp *ddp;
    dpar_fsdp *fsdp;
    gpt_real *array[ARRAYS]; /* of a ddp: weights and moments, in the order of DPAR_FSDP_MASTER,
                                each with the places and the padding of its gradients */
    gpt_real *gradients;     /* of a ddp */
    int64_t length;          /* elements of each of these arrays */
    dpar_optimizer optimizer;
    int64_t steps;
    int32_t ends;                /* ranks of a pipeline that have it: 2 for the table, if both ends
                                    are different ranks */
    int32_t opened[MOST_LAYERS]; /* [units] 1: its gradients have memory in this pass */
} store;

typedef struct trainer {
    const settings *options;
    dpar_comm *world;
    dpar_mem mem;              /* operations on the memory that the model is in */
    dpar_mem_layers of_layers; /* the same for layers and optimizers */
    dpar_mesh mesh, view;
    int32_t at[5]; /* this rank's coordinates: pp, replicate, shard, cp, tp */
    dpar_comm *comm[MOST_COMMS], *pp;
    int32_t comms;
    gpt_comms in_model;
    gpt_config config;
    gpt *model;
    dpar_schedule list;
    void *list_memory;
    dpar_pipeline *pipe;
    int32_t both_ways; /* 1: two chains, so that rank r and its mirror have the same layers */
    int32_t each;      /* 1: F and B alternate, so that gradients are reduced in each micro-batch */
    int32_t layers;
    int32_t mine[MOST_LAYERS]; /* 1: this rank has the layer */
    store stores[STORES];
    int64_t whole;                     /* elements of all parameters of the model */
    int32_t unit[STORES][MOST_LAYERS]; /* the unit of a layer, or -1 if it has none in the store */
    int32_t home[MOST_LAYERS][GPT_SLOTS];  /* the store of a layer's parameter, or -1, */
    int32_t index[MOST_LAYERS][GPT_SLOTS]; /* and its number there */
    char *shared;         /* kept for backward in memory that the host reaches, too: of each slot */
    int64_t shared_bytes; /* bytes of a slot */
    void *scratch;        /* of the model, in such memory */
    gpt_real *between[2]; /* activations between layers */
    gpt_real *wide, *tied; /* a layer's weights, converted from bf16; the table's gradient */
    int64_t tied_count;
    gpt_batch *batch;             /* [micros] */
    int32_t *ids, *sample;        /* [micros][2][tokens]; one micro-batch before it is cut */
    dpar_cross_entropy_sum *sums; /* [micros] */
    int64_t *began, *ended;       /* times of actions, with --trace on the host */
    struct trace *trace;          /* the same on a device, or NULL */
    void *memory[64], *plan[64];  /* memory of dpar_comm_alloc; plans in host memory */
    int32_t memories, plans;
    gpt_real *staged; /* host memory for values that are copied from or to a device */
    int64_t staged_count;
    int64_t registered, state_bytes, slot_bytes; /* bytes in all, in stores and in the pipeline */
    int64_t first_step, skipped; /* steps that were skipped, those before a checkpoint included */
    dpar_why why;
} trainer;

/* The results of a run, and the name and size of a parameter in them. */
typedef struct part {
    char name[40];
    int64_t count;
} part;

typedef struct result {
    double *loss;    /* [steps] */
    gpt_real *whole; /* on the first rank: all parameters, one after the other */
    part *shape;     /* their names and sizes */
    int32_t parts;
    double best, mean; /* seconds a step, without the first */
} result;

/* Allocates memory that the model computes in. NULL without memory. */
static void *take(trainer *self, int64_t bytes)
{
    void *memory = NULL;
    if (self->memories == 64 ||
        dpar_comm_alloc(self->world, bytes > 0 ? bytes : 1, &memory) != DPAR_OK) {
        return NULL;
    }
    self->registered += bytes;
    self->memory[self->memories++] = memory;
#ifndef GPT_CUDA
    gpt_large_pages(memory, bytes);
#endif
    return memory;
}

/* Allocates host memory for a plan. If the model is in host memory, too, other ranks can read it.
 */
static void *take_plan(trainer *self, int64_t bytes)
{
#ifdef GPT_CUDA
    if (self->plans == 64) {
        return NULL;
    }
    self->registered += bytes;
    return self->plan[self->plans++] = plan_memory(bytes);
#else
    return take(self, bytes);
#endif
}

/* Host memory for `count` numbers. NULL without memory. */
static gpt_real *stage(trainer *self, int64_t count)
{
    gpt_real *more = self->staged;
    if (count > self->staged_count) {
        more = (gpt_real *)realloc(self->staged, (size_t)count * sizeof *more);
        self->staged = more != NULL ? more : self->staged;
        self->staged_count = more != NULL ? count : self->staged_count;
    }
    return more;
}

/* Converts bf16 to the model's type. `from` may be the end of `to`'s memory. */
static void from_bf16(gpt_real *to, const unsigned char *from, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++) {
        uint32_t bits = 0;
        uint16_t half;
        float number;
        memcpy(&half, from + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&number, &bits, sizeof number);
        to[i] = (gpt_real)number;
    }
}

/* Converts back in place, rounded to nearest. */
static void to_bf16(gpt_real *numbers, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++) {
        const float number = (float)numbers[i];
        uint32_t bits;
        uint16_t half;
        memcpy(&bits, &number, sizeof bits);
        half = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
        memcpy((char *)numbers + 2 * i, &half, sizeof half);
    }
}

/* Numbers of an array of `type`, GPT_TYPE or bf16, in host memory. NULL without memory. */
static gpt_real *brought(trainer *self, void *at, int64_t count, int32_t type)
{
    const int64_t each = dpar_type_bytes(type);
    unsigned char *end;
    gpt_real *to;
    if (count < 1 || (self->world->mem == NULL && type == (int32_t)GPT_TYPE)) {
        return (gpt_real *)at;
    }
    to = stage(self, count);
    if (to != NULL) {
        end = (unsigned char *)to + count * ((int64_t)sizeof *to - each);
        gpt_get(self->model, end, at, count * each);
    }
    if (to != NULL && type != (int32_t)GPT_TYPE) {
        from_bf16(to, end, count);
    }
    return to;
}

/* Copies numbers from host memory to an array of `type`. If that is bf16 they are overwritten. */
static void bring(trainer *self, void *to, gpt_real *numbers, int64_t count, int32_t type)
{
    if (type != (int32_t)GPT_TYPE) {
        to_bf16(numbers, count);
    }
    gpt_put(self->model, to, numbers, count * dpar_type_bytes(type));
}

/* If there is no message yet, takes that of whichever communicator has one. Returns st. */
static dpar_status explain(trainer *self, dpar_status st, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < self->comms && st < 0 && why->text[0] == 0; i++) {
        if (self->comm[i]->status != DPAR_OK || self->comm[i]->why.text[0] != 0) {
            *why = self->comm[i]->why;
        }
    }
    return st;
}

/* ---- mesh ------------------------------------------------------------------------------------ */

enum { AXIS_PP = 1, AXIS_REPLICATE = 2, AXIS_SHARD = 4, AXIS_CP = 8, AXIS_TP = 16 };

/* A communicator of this rank's group along axes of the mesh. NULL after an error, which is in
 * self->why. */
static dpar_comm *along(trainer *self, const dpar_mesh *mesh, uint32_t axes)
{
    dpar_comm *comm = NULL;
    if (self->why.text[0] == 0 && dpar_comm_split_axes(self->world, mesh, axes, &comm) != DPAR_OK) {
        self->why = self->world->why;
        return NULL;
    }
    if (comm != NULL) {
        self->comm[self->comms++] = comm;
    }
    return comm;
}

/* The same, but if two chains run in opposite directions the group also has the ranks of the
 * mirrored pipeline rank, because both have the same layers. */
static dpar_comm *mirrored(trainer *self, const dpar_mesh *mesh, uint32_t axes)
{
    const int32_t stages = mesh->axis[0].size;
    int32_t coord[DPAR_MAX_AXES], i, color;
    dpar_comm *comm = NULL;
    if (!self->both_ways) {
        return along(self, mesh, axes);
    }
    if (self->why.text[0] != 0 || !dpar_mesh_coords(mesh, self->world->rank, coord)) {
        return NULL;
    }
    color = coord[0] < stages - 1 - coord[0] ? coord[0] : stages - 1 - coord[0];
    for (i = 1; i < mesh->axes; i++) {
        color = color * mesh->axis[i].size + ((axes >> i & 1u) != 0 ? 0 : coord[i]);
    }
    if (dpar_comm_split(self->world, color, self->world->rank, &comm) != DPAR_OK) {
        self->why = self->world->why;
        return NULL;
    }
    self->comm[self->comms++] = comm;
    return comm;
}

/* Makes the mesh pp x replicate x shard x cp x tp, and the experts' view of it, in which ep divides
 * the three axes in the middle. */
static dpar_status lay_mesh(trainer *self)
{
    const settings *options = self->options;
    int32_t sizes[5];
    dpar_status st;
    sizes[0] = (int32_t)options->pp;
    sizes[1] = (int32_t)options->replicas;
    sizes[2] = (int32_t)(options->dp / options->replicas);
    sizes[3] = (int32_t)options->cp;
    sizes[4] = (int32_t)options->tp;
    st = dpar_mesh_init(&self->mesh, "pp replicate shard cp tp", sizes, DPAR_ORDER_LAST_FASTEST,
                        self->world->size, &self->why);
    if (st == DPAR_OK) {
        sizes[1] = (int32_t)(options->dp * options->cp / options->ep);
        sizes[2] = (int32_t)options->ep;
        sizes[3] = (int32_t)options->tp;
        st = dpar_mesh_view(&self->view, &self->mesh, "pp edp ep tp", sizes,
                            DPAR_ORDER_LAST_FASTEST, &self->why);
    }
    (void)dpar_mesh_coords(&self->mesh, self->world->rank, self->at);
    return st;
}

static dpar_status open_comms(trainer *self)
{
    const uint32_t data = AXIS_REPLICATE | AXIS_SHARD | AXIS_CP;
    const int hybrid = self->options->replicas > 1;
    self->why.text[0] = 0;
    self->pp = along(self, &self->mesh, AXIS_PP);
    self->in_model.tp = along(self, &self->mesh, AXIS_TP);
    self->in_model.cp = along(self, &self->mesh, AXIS_CP);
    self->in_model.data = along(self, &self->mesh, data);
    self->in_model.ep = along(self, &self->view, 4);
    self->stores[TABLE].all = self->in_model.data;
    self->stores[DENSE].all = mirrored(self, &self->mesh, data);
    self->stores[EXPERT].all = mirrored(self, &self->view, 2);
    self->stores[DENSE].shard = self->stores[TABLE].shard =
        along(self, &self->mesh, AXIS_SHARD | AXIS_CP);
    self->stores[EXPERT].shard = along(self, &self->view, 2);
    self->stores[TABLE].across = hybrid ? along(self, &self->mesh, AXIS_REPLICATE) : NULL;
    self->stores[DENSE].across =
        hybrid || self->both_ways ? mirrored(self, &self->mesh, AXIS_REPLICATE) : NULL;
    self->stores[EXPERT].across = self->both_ways ? mirrored(self, &self->view, 0) : NULL;
    return self->why.text[0] == 0 ? DPAR_OK : DPAR_E_ARG;
}

/* ---- stores: weights, gradients, state ------------------------------------------------------- */

/* The layers of a stage: returns the first, and sets *last to the one behind the last. Blocks are
 * divided as evenly as possible; the embedding is before them and the head behind them. */
static int32_t stage_layers(const trainer *self, int32_t stage, int32_t *last)
{
    const int32_t stages = self->list.chain, place = stage % stages, blocks = self->layers - 2;
    *last = 1 + (place + 1) * blocks / stages + (place == stages - 1);
    return place == 0 ? 0 : 1 + place * blocks / stages;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t whole_count(const gpt_parameter *shape)
{
    int64_t n = 1;
    int32_t dim;
    for (dim = 0; dim < shape->dims; dim++) {
        n *= shape->whole[dim];
    }
    return n;
}

/* The store that a parameter of a layer is in. */
static int32_t kind_of(const trainer *self, int32_t slot, const gpt_parameter *shape)
{
    if (slot == GPT_TABLE && self->config.tied) {
        return TABLE;
    }
    return shape->expert ? EXPERT : DENSE;
}

/* Adds a parameter of this rank to its store. Before the store has memory it is only counted. */
static void add_parameter(trainer *self, int32_t layer, int32_t slot, const gpt_parameter *shape,
                          int64_t whole_at)
{
    const int32_t k = kind_of(self, slot, shape);
    store *held = &self->stores[k];
    const int again = k == TABLE && held->params == 1; /* one rank has both ends, and one table */
    self->home[layer][slot] = k;
    self->index[layer][slot] = again ? 0 : held->params;
    if (self->unit[k][layer] < 0) {
        self->unit[k][layer] = again ? 0 : held->units++;
    }
    if (again) {
        return;
    }
    if (held->of != NULL) {
        parameter *entry = &held->of[held->params];
        entry->shape = *shape;
        entry->whole_at = whole_at;
        entry->unit = self->unit[k][layer];
        held->numel[held->params] = shape->numel;
        held->duplicate[held->params] = shape->copy > 0;
        if (held->params_of[entry->unit] > 0) {
            entry->start = entry[-1].start + entry[-1].shape.numel;
        }
        held->params_of[entry->unit]++;
    }
    held->params++;
}

static void list_parameters(trainer *self)
{
    int32_t layer, slot, k;
    gpt_parameter shape;
    self->whole = 0;
    for (k = 0; k < STORES; k++) {
        self->stores[k].units = self->stores[k].params = 0;
    }
    for (layer = 0; layer < self->layers; layer++) {
        for (k = 0; k < STORES; k++) {
            self->unit[k][layer] = -1;
        }
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            self->home[layer][slot] = -1;
            if (!gpt_parameter_of(self->model, layer, slot, &shape)) {
                continue;
            }
            if (self->mine[layer]) {
                add_parameter(self, layer, slot, &shape, shape.tied ? 0 : self->whole);
            }
            self->whole +=
                shape.tied ? 0 : whole_count(&shape); /* a tied head uses the embedding's table */
        }
    }
}

static dpar_status open_ddp(trainer *self, store *held)
{
    dpar_ddp_desc desc;
    int32_t i;
    dpar_status st;
    memset(&desc, 0, sizeof desc);
    desc.params = held->params;
    desc.count = held->numel;
    desc.type = GPT_TYPE;
    desc.sum = 1;
    desc.require_ready = 1;
    desc.bytes = 1; /* too few, so that it returns how many bytes it needs */
    st = dpar_ddp_make(held->all, &desc, &held->ddp, &self->why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    desc.bytes = self->why.bytes;
    desc.memory = take_plan(self, desc.bytes);
    if (desc.memory == NULL) {
        return DPAR_E_MEMORY;
    }
    st = dpar_ddp_make(held->all, &desc, &held->ddp, &self->why);
    if (st != DPAR_OK) {
        return st;
    }
    held->gradients = (gpt_real *)dpar_ddp_gradient(held->ddp, 0, NULL);
    for (i = 0; i < held->params; i++) { /* later parameters have lower addresses */
        gpt_real *at = (gpt_real *)dpar_ddp_gradient(held->ddp, i, NULL);
        held->gradients = at < held->gradients ? at : held->gradients;
    }
    for (i = 0; i < held->params; i++) {
        held->of[i].start = (gpt_real *)dpar_ddp_gradient(held->ddp, i, NULL) - held->gradients;
        held->length = larger(held->length, held->of[i].start + held->numel[i]);
    }
    for (i = 0; i < ARRAYS; i++) {
        held->array[i] = (gpt_real *)take(self, held->length * (int64_t)sizeof(gpt_real));
        if (held->array[i] == NULL) {
            return DPAR_E_MEMORY;
        }
        gpt_zero(self->model, held->array[i], held->length);
    }
    self->registered += held->length * (int64_t)sizeof(gpt_real); /* the gradients */
    return DPAR_OK;
}

static dpar_fsdp_desc fsdp_options(const trainer *self, const store *held)
{
    const int table = held == &self->stores[TABLE];
    dpar_fsdp_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.units = held->units;
    desc.params_per_unit = held->params_of;
    desc.count = held->numel;
    desc.replicas = held->across;
    desc.zero = (int32_t)self->options->zero;
    desc.gradient_type = GPT_TYPE;
    desc.type = self->options->pure ? (int32_t)DPAR_BF16 : (int32_t)GPT_TYPE;
    desc.compute_type = self->options->bf16 ? (int32_t)DPAR_BF16 : (int32_t)GPT_TYPE;
    desc.prefetch = self->list.ranks == 1 ? (int32_t)self->options->prefetch : 0;
    /* A pipeline's micro-batches overlap, so that gradients are accumulated over all of them. */
    desc.reduce_last = !table && !self->each;
    desc.sum = 1;
    dpar_optimizer_init(&desc.optimizer, DPAR_OPTIMIZER_ADAMW);
    desc.optimizer.decay = self->options->decay;
    desc.optimizer.beta2 = 0.95;   /* this and epsilon are Llama 2's. With an epsilon of 1e-8,
                                   weights */
    desc.optimizer.epsilon = 1e-5; /* whose gradient is only rounding would move as far as others */
    desc.optimizer.moment_type = self->options->pure ? (int32_t)DPAR_BF16 : 0;
    desc.optimizer.stochastic = self->options->pure;
    desc.optimizer.seed = mix((uint64_t)self->options->seed, (uint64_t)table);
    return desc;
}

static dpar_status open_fsdp(trainer *self, store *held)
{
    dpar_fsdp_desc desc = fsdp_options(self, held);
    dpar_fsdp_sizes sizes;
    dpar_status st = dpar_fsdp_sizes_init(&sizes, held->shard->size, &desc, &self->why);
    if (st != DPAR_OK) {
        return st;
    }
    desc.memory = take_plan(self, sizes.plan);
    desc.bytes = sizes.plan;
    if (desc.memory == NULL) {
        return DPAR_E_MEMORY;
    }
    self->registered += sizes.registered;
    return dpar_fsdp_make(held->shard, &desc, &held->fsdp, &self->why);
}

/* Sets parameter i of a store to `values`, by way of `there` in the model's memory. */
static dpar_status set_parameter(trainer *self, store *held, int32_t i, gpt_real *values,
                                 gpt_real *there)
{
    int32_t type = GPT_TYPE;
    if (held->ddp != NULL) {
        bring(self, held->array[0] + held->of[i].start, values, held->numel[i], GPT_TYPE);
        return DPAR_OK;
    }
    (void)dpar_fsdp_state(held->fsdp, DPAR_FSDP_MASTER, 0, NULL, &type);
    bring(self, there, values, held->numel[i], type);
    return dpar_fsdp_set(held->fsdp, i, there);
}

static dpar_status open_store(trainer *self, int32_t k)
{
    store *held = &self->stores[k];
    int64_t most = 1;
    int32_t i;
    gpt_real *values;
    void *there = NULL;
    dpar_status st, room;
    held->optimizer = fsdp_options(self, held).optimizer;
    st = self->options->zero < 1 ? open_ddp(self, held) : open_fsdp(self, held);
    for (i = 0; i < held->params; i++) {
        most = held->numel[i] > most ? held->numel[i] : most;
    }
    values = stage(self, most);
    room = dpar_comm_alloc(self->world, most * (int64_t)sizeof *values, &there);
    for (i = 0; i < held->params && st == DPAR_OK; i++) {
        st = values == NULL ? (dpar_status)DPAR_E_MEMORY : room;
        if (st == DPAR_OK) {
            gpt_fill(self->model, &held->of[i].shape, values);
            st = set_parameter(self, held, i, values, (gpt_real *)there);
        }
    }
    if (st == DPAR_OK) {
        st = self->mem.wait(self->mem.ctx);
    }
    if (room == DPAR_OK) {
        dpar_comm_release(self->world, there);
    }
    return st;
}

/* Checks that tensor-parallel ranks have parts of the same size. They round a parameter of which
 * they have copies by random numbers that depend on its place, so that copies only stay equal if
 * the place is the same on all of them. */
static dpar_status same_places(trainer *self)
{
    uint64_t hash = 0;
    int64_t sizes[2];
    int32_t k, i;
    dpar_status st;
    for (k = 0; k < STORES; k++) {
        for (i = 0; i < self->stores[k].params; i++) {
            hash = mix(hash, (uint64_t)self->stores[k].numel[i]);
        }
    }
    sizes[0] = (int64_t)(hash >> 1);
    sizes[1] = -sizes[0];
    st = dpar_all_reduce(self->in_model.tp, sizes, sizes, 2, DPAR_I64, DPAR_MAX, NULL);
    if (st == DPAR_OK && sizes[0] != -sizes[1]) {
        snprintf(self->why.text, sizeof self->why.text,
                 "--pure-bf16: --tp %d cuts something unevenly: choose other --hidden or --heads",
                 (int)self->options->tp);
        return DPAR_E_ARG;
    }
    return st;
}

static dpar_status open_stores(trainer *self)
{
    const int64_t before = self->registered;
    int32_t k, rank, ends = 0;
    dpar_status st = DPAR_OK;
    list_parameters(self);
    for (k = 0; k < STORES; k++) {
        store *held = &self->stores[k];
        held->of = (parameter *)calloc((size_t)held->params + 1, sizeof *held->of);
        held->numel = (int64_t *)calloc((size_t)held->params + 1, sizeof *held->numel);
        held->duplicate = (uint8_t *)calloc((size_t)held->params + 1, 1);
        held->params_of = (int32_t *)calloc((size_t)held->units + 1, sizeof *held->params_of);
        if (held->of == NULL || held->numel == NULL || held->duplicate == NULL ||
            held->params_of == NULL) {
            return DPAR_E_MEMORY;
        }
    }
    list_parameters(self);
    for (rank = 0; rank < self->list.ranks; rank++) {
        for (k = 0; k < self->list.stages; k++) {
            if (self->list.rank_of[k] == rank &&
                (dpar_schedule_partner(&self->list, DPAR_ACTION_RECV_F, k) < 0 ||
                 dpar_schedule_partner(&self->list, DPAR_ACTION_SEND_F, k) < 0)) {
                ends++;
                break;
            }
        }
    }
    if (self->options->pure && self->options->tp > 1) {
        st = same_places(self);
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        self->stores[k].ends = k == TABLE ? ends : 1;
        st = self->stores[k].params > 0 ? open_store(self, k) : DPAR_OK;
    }
    self->state_bytes = self->registered - before;
    return st;
}

/* ---- a layer's weights and gradients, for the model ------------------------------------------ */

typedef struct view {
    const gpt_real *weight[GPT_SLOTS];
    gpt_real *gradient[GPT_SLOTS];
} view;

static void see_gradients(const trainer *self, int32_t layer, view *seen)
{
    int32_t slot;
    for (slot = 0; slot < GPT_SLOTS; slot++) {
        const int32_t k = self->home[layer][slot], i = self->index[layer][slot];
        seen->weight[slot] = NULL;
        seen->gradient[slot] = NULL;
        if (k == TABLE) {
            seen->gradient[slot] = self->tied;
        } else if (k >= 0) {
            const store *held = &self->stores[k];
            seen->gradient[slot] =
                (gpt_real *)(held->ddp != NULL ? dpar_ddp_gradient(held->ddp, i, NULL)
                                               : dpar_fsdp_gradient(held->fsdp, i, NULL));
        }
    }
}

/* Converts bf16 weights of fsdp to the type that the model computes with. */
static dpar_status widen(const trainer *self, const void *from, int64_t count, gpt_real *to)
{
    dpar_mem_span span;
    memset(&span, 0, sizeof span);
    span.to = to;
    span.from = from;
    span.count = count;
    span.to_type = GPT_TYPE;
    span.from_type = DPAR_BF16;
    span.scale = 1.0;
    return self->mem.span(self->mem.ctx, &span, 1);
}

static dpar_status see_weights(const trainer *self, int32_t layer, view *seen)
{
    gpt_real *wide = self->wide;
    int32_t slot;
    dpar_status st = DPAR_OK;
    for (slot = 0; slot < GPT_SLOTS && st == DPAR_OK; slot++) {
        const int32_t k = self->home[layer][slot], i = self->index[layer][slot];
        const store *held = &self->stores[k < 0 ? 0 : k];
        if (k >= 0 && held->ddp != NULL) {
            seen->weight[slot] = held->array[0] + held->of[i].start;
        } else if (k >= 0 && self->options->bf16) {
            st = widen(self, dpar_fsdp_weight(held->fsdp, i), held->numel[i], wide);
            seen->weight[slot] = wide;
            wide += held->numel[i];
        } else if (k >= 0) {
            seen->weight[slot] = (const gpt_real *)dpar_fsdp_weight(held->fsdp, i);
        }
    }
    return st;
}

/* Called before a layer runs: gathers its weights, and in the first backward of a pass provides
 * memory for its gradients. */
static dpar_status open_layer(trainer *self, int32_t layer, int32_t backward, view *seen)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        const int32_t unit = self->unit[k][layer];
        store *held = &self->stores[k];
        if (unit >= 0 && held->fsdp != NULL) {
            const int first = backward && k != TABLE && !held->opened[unit];
            held->opened[unit] |= first;
            st = dpar_fsdp_unshard(held->fsdp, unit,
                                   first ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD);
        }
    }
    if (st == DPAR_OK) {
        see_gradients(self, layer, seen);
        st = see_weights(self, layer, seen);
    }
    return st;
}

static dpar_status close_layer(trainer *self, int32_t layer)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        if (self->unit[k][layer] >= 0 && self->stores[k].fsdp != NULL) {
            st = dpar_fsdp_reshard(self->stores[k].fsdp, self->unit[k][layer], DPAR_ACTION_FORWARD);
        }
    }
    return st;
}

/* The gradients of a layer are complete: reduces them. Those of parameters that tensor-parallel
 * ranks share are summed first. */
static dpar_status ready_layer(trainer *self, int32_t layer, int32_t last)
{
    dpar_status st = DPAR_OK;
    int32_t k, slot;
    if (last || self->options->zero > 1) {
        view seen;
        see_gradients(self, layer, &seen);
        st = gpt_sum(self->model, layer, seen.gradient);
    }
    for (slot = 0; slot < GPT_SLOTS && st == DPAR_OK && self->options->zero < 1; slot++) {
        k = self->home[layer][slot];
        if (k == DENSE || k == EXPERT) {
            st = dpar_ddp_ready(self->stores[k].ddp, self->index[layer][slot]);
        }
    }
    for (k = 0; k < TABLE && st == DPAR_OK && self->options->zero >= 1; k++) {
        if (self->unit[k][layer] >= 0) {
            st = dpar_fsdp_ready(self->stores[k].fsdp, self->unit[k][layer]);
        }
    }
    return st;
}

/* Begins a pass: over all micro-batches of a step, or, if these run one after the other, over one.
 */
static dpar_status begin_pass(trainer *self, int32_t last)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < TABLE && st == DPAR_OK; k++) {
        store *held = &self->stores[k];
        memset(held->opened, 0, sizeof held->opened);
        if (held->ddp != NULL) {
            st = dpar_ddp_begin(held->ddp, last);
        } else if (held->fsdp != NULL) {
            st = dpar_fsdp_begin(held->fsdp, last);
        }
    }
    return st;
}

static dpar_status finish_pass(trainer *self)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < TABLE && st == DPAR_OK; k++) {
        const store *held = &self->stores[k];
        if (held->ddp != NULL) {
            st = dpar_ddp_end(held->ddp);
        } else if (held->fsdp != NULL) {
            st = dpar_fsdp_end(held->fsdp);
        }
    }
    return st;
}

/* Reduces the table's gradient, which the pipeline has added up over both ends. */
static dpar_status reduce_table(trainer *self)
{
    const store *held = &self->stores[TABLE];
    dpar_status st;
    if (held->params == 0) {
        return DPAR_OK;
    }
    if (held->ddp != NULL) {
        st = dpar_ddp_begin(held->ddp, 1);
        gpt_copy(self->model, (gpt_real *)dpar_ddp_gradient(held->ddp, 0, NULL), self->tied,
                 self->tied_count);
        if (st == DPAR_OK) {
            st = dpar_ddp_ready(held->ddp, 0);
        }
        return st == DPAR_OK ? dpar_ddp_end(held->ddp) : st;
    }
    st = dpar_fsdp_begin(held->fsdp, 1);
    if (st == DPAR_OK) {
        st = dpar_fsdp_unshard(held->fsdp, 0, DPAR_ACTION_BACKWARD);
    }
    if (st == DPAR_OK) {
        gpt_copy(self->model, (gpt_real *)dpar_fsdp_gradient(held->fsdp, 0, NULL), self->tied,
                 self->tied_count);
        st = dpar_fsdp_reshard(held->fsdp, 0, DPAR_ACTION_BACKWARD);
    }
    if (st == DPAR_OK) {
        st = dpar_fsdp_ready(held->fsdp, 0);
    }
    return st == DPAR_OK ? dpar_fsdp_end(held->fsdp) : st;
}

/* The task's slot of the memory that the host reaches, too. */
static char *shared_of(const trainer *self, const dpar_stage_task *task)
{
    return self->shared +
           (task->activation_slot > 0 ? task->activation_slot * self->shared_bytes : 0);
}

/* ---- the pipeline's callbacks ---------------------------------------------------------------- */

static dpar_status on_forward(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    trainer *self = (trainer *)ctx;
    const gpt_real *in = (const gpt_real *)task->in;
    char *kept = (char *)task->activation_memory, *shared = shared_of(self, task);
    const int32_t micro = task->action.micro_batch;
    int32_t last, layer = stage_layers(self, task->action.stage, &last);
    dpar_status st = self->each ? begin_pass(self, micro == self->options->micros - 1) : DPAR_OK;
    for (; layer < last && st == DPAR_OK; layer++) {
        gpt_real *out = layer == last - 1 ? (gpt_real *)task->out : self->between[layer & 1];
        view seen;
        st = open_layer(self, layer, 0, &seen);
        self->batch[micro].shared = shared;
        if (st == DPAR_OK) {
            st = gpt_forward(self->model, layer, seen.weight, &self->batch[micro], in, out, kept);
        }
        if (st == DPAR_OK) {
            st = close_layer(self, layer);
        }
        kept += gpt_kept_bytes(self->model, layer);
        shared += gpt_shared_bytes(self->model, layer);
        in = out;
    }
    return explain(self, st, why);
}

/* Runs B, I or W of a stage: its layers from the last to the first. */
static dpar_status go_back(trainer *self, const dpar_stage_task *task, int32_t parts, dpar_why *why)
{
    const gpt_real *dout = (const gpt_real *)task->in;
    const int32_t micro = task->action.micro_batch;
    char *kept = (char *)task->activation_memory, *pending = (char *)task->weight_memory;
    char *shared = shared_of(self, task);
    int32_t end, layer;
    const int32_t first = stage_layers(self, task->action.stage, &end);
    dpar_status st = DPAR_OK;
    for (layer = first; layer < end; layer++) {
        kept += gpt_kept_bytes(self->model, layer);
        shared += gpt_shared_bytes(self->model, layer);
        pending += pending != NULL ? gpt_pending_bytes(self->model, layer) : 0;
    }
    for (layer = end - 1; layer >= first && st == DPAR_OK; layer--) {
        gpt_real *din = layer == first ? (gpt_real *)task->out : self->between[layer & 1];
        view seen;
        kept -= gpt_kept_bytes(self->model, layer);
        shared -= gpt_shared_bytes(self->model, layer);
        self->batch[micro].shared = shared;
        pending -= pending != NULL ? gpt_pending_bytes(self->model, layer) : 0;
        if ((parts & GPT_INPUT) != 0) {
            st = open_layer(self, layer, 1, &seen);
        } else {
            see_gradients(self, layer, &seen); /* the I of this layer has provided their memory */
        }
        if (st == DPAR_OK) {
            st = gpt_backward(self->model, layer, parts, seen.weight, seen.gradient,
                              &self->batch[micro], dout, din, kept, pending);
        }
        if (st == DPAR_OK && (parts & GPT_INPUT) != 0) {
            st = close_layer(self, layer);
        }
        if (st == DPAR_OK && self->each) {
            st = ready_layer(self, layer, micro == self->options->micros - 1);
        }
        dout = din;
    }
    if (st == DPAR_OK && self->each) {
        st = finish_pass(self);
    }
    return explain(self, st, why);
}

static dpar_status on_backward(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return go_back((trainer *)ctx, task, GPT_BOTH, why);
}

static dpar_status on_input(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return go_back((trainer *)ctx, task, GPT_INPUT, why);
}

static dpar_status on_weight(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    return go_back((trainer *)ctx, task, GPT_WEIGHT, why);
}

static dpar_status on_reduce(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    trainer *self = (trainer *)ctx;
    int32_t end, layer;
    const int32_t first = stage_layers(self, task->action.stage, &end);
    dpar_status st = DPAR_OK;
    for (layer = end - 1; layer >= first && st == DPAR_OK && !self->each; layer--) {
        st = ready_layer(self, layer, 1);
    }
    return explain(self, st, why);
}

/* ---- schedule and pipeline ------------------------------------------------------------------- */

/* Generates the schedule of --schedule, with its messages. It is the same on all ranks. */
static dpar_status make_list(trainer *self)
{
    const settings *options = self->options;
    dpar_schedule_lower_desc how;
    dpar_schedule_desc order;
    dpar_schedule made;
    void *memory;
    int64_t bytes, k;
    dpar_status st;
    memset(&order, 0, sizeof order);
    st = dpar_schedule_find(&order, options->schedule, &self->why);
    if (st != DPAR_OK) {
        return st;
    }
    if (order.rule == DPAR_SCHEDULE_FORWARD_ONLY || order.rule == DPAR_SCHEDULE_SEQ1F1B) {
        snprintf(self->why.text, sizeof self->why.text,
                 "--schedule %s does not train whole sequences", options->schedule);
        return DPAR_E_ARG;
    }
    order.ranks = (int32_t)options->pp;
    order.micro_batches = options->micros;
    order.chunks = (int32_t)options->chunks;
    st = dpar_schedule_generate(&made, &order, NULL, 0, &self->why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    bytes = self->why.bytes;
    memory = malloc((size_t)bytes);
    if (memory == NULL) {
        return DPAR_E_MEMORY;
    }
    st = dpar_schedule_generate(&made, &order, memory, bytes, &self->why);
    memset(&how, 0, sizeof how);
    how.passes = DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE;
    if (st == DPAR_OK) {
        st = dpar_schedule_lower(&self->list, &made, &how, NULL, 0, &self->why);
    }
    if (st == DPAR_E_ROOM) {
        bytes = self->why.bytes;
        self->list_memory = malloc((size_t)bytes);
        st = DPAR_E_MEMORY;
        if (self->list_memory != NULL) {
            st =
                dpar_schedule_lower(&self->list, &made, &how, self->list_memory, bytes, &self->why);
        }
    }
    free(memory);
    if (st != DPAR_OK) {
        return st;
    }
    self->both_ways = self->list.chain < self->list.stages;
    self->layers = (int32_t)options->blocks + 2;
    self->each = self->list.ranks == 1 && self->list.stages == 1;
    for (k = 0; k < 2 * options->micros && self->each; k++) {
        self->each =
            self->list.action[k].kind == (k % 2 == 0 ? DPAR_ACTION_FORWARD : DPAR_ACTION_BACKWARD);
    }
    if (self->list.chain > self->layers - 2) {
        snprintf(self->why.text, sizeof self->why.text,
                 "--blocks %d are too few for a pipeline of %d stages: each needs one",
                 (int)options->blocks, (int)self->list.chain);
        return DPAR_E_ARG;
    }
    for (k = 0; k < self->list.stages; k++) {
        int32_t end, layer = stage_layers(self, (int32_t)k, &end);
        for (; layer < end && self->list.rank_of[k] == self->at[0]; layer++) {
            self->mine[layer] = 1;
        }
    }
    return DPAR_OK;
}

/* The recording of --trace, which uses the callbacks above. */
#include "train_trace.h"

static dpar_status open_pipeline(trainer *self)
{
    const int64_t between = (int64_t)self->model->own * self->config.width;
    dpar_pipeline_desc desc;
    dpar_slot_counts slots;
    int32_t k, local = 0;
    dpar_status st;
    memset(&desc, 0, sizeof desc);
    desc.schedule = &self->list;
    desc.type = GPT_TYPE;
    desc.count = between;
    desc.forward = on_forward;
    desc.backward = on_backward;
    desc.input = on_input;
    desc.weight = on_weight;
    desc.reduce = on_reduce;
    trace_callbacks(&desc);
    desc.ctx = self;
    for (k = 0; k < self->list.stages; k++) {
        int64_t kept = 0, shared = 0, pending = 0;
        int32_t end, layer = stage_layers(self, k, &end);
        for (; layer < end && self->list.rank_of[k] == self->at[0]; layer++) {
            kept += gpt_kept_bytes(self->model, layer);
            shared += gpt_shared_bytes(self->model, layer);
            pending += gpt_pending_bytes(self->model, layer);
        }
        desc.activation_bytes = larger(desc.activation_bytes, kept);
        self->shared_bytes = larger(self->shared_bytes, shared);
        desc.weight_bytes = larger(desc.weight_bytes, pending);
    }
    desc.tied = self->tied;
    desc.tied_count = self->config.tied ? self->tied_count : 0;
    desc.tied_type = GPT_TYPE;
    desc.start = self->began;
    desc.end = self->ended;
    desc.bytes = 1; /* too few, so that it returns how many bytes it needs */
    st = dpar_pipeline_make(self->pp, &desc, &self->pipe, &self->why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    desc.bytes = self->why.bytes;
    desc.memory = take_plan(self, desc.bytes);
    if (desc.memory == NULL) {
        return DPAR_E_MEMORY;
    }
    st = dpar_pipeline_make(self->pp, &desc, &self->pipe, &self->why);
    if (st == DPAR_OK) {
        slots = dpar_pipeline_slots(self->pipe, &local);
        self->slot_bytes =
            (slots.receive + slots.send + local) * between * (int64_t)sizeof(gpt_real) +
            slots.activation * desc.activation_bytes + slots.weight * desc.weight_bytes;
        self->registered += self->slot_bytes;
        self->shared = (char *)gpt_open_shared(slots.activation * self->shared_bytes);
        st = self->shared != NULL ? DPAR_OK : DPAR_E_MEMORY;
    }
    return st;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Reads this rank's tokens of all micro-batches of a step. The place of a sample in the text
 * depends only on the step and the sample's number. */
static void read_samples(trainer *self, int64_t step, double scale)
{
    const settings *options = self->options;
    const int64_t length = (int64_t)options->length, micro = (int64_t)options->micro;
    const int64_t copies = (int64_t)options->dp;
    const int64_t copy = self->at[1] * self->mesh.axis[2].size + self->at[2];
    int64_t number, j, k;
    for (number = 0; number < options->micros; number++) {
        int32_t *ids = self->ids + 2 * number * self->model->tokens;
        for (j = 0; j < micro; j++) {
            const uint64_t which = (uint64_t)((number * copies + copy) * micro + j);
            const uint64_t place = mix(mix((uint64_t)options->seed, (uint64_t)step), which);
            const unsigned char *from =
                options->bytes + place % (uint64_t)(options->count - length);
            for (k = 0; k <= length; k++) {
                self->sample[j * (length + 1) + k] = from[k];
            }
        }
        gpt_pick(self->model, self->sample, length + 1, ids);
        gpt_pick(self->model, self->sample + 1, length + 1, ids + self->model->tokens);
        memset(&self->batch[number], 0, sizeof self->batch[number]);
        self->batch[number].ids = ids;
        self->batch[number].targets = ids + self->model->tokens;
        self->batch[number].scale =
            step == options->overflow && copy == 0 && number == 0 ? HUGE_VAL : scale;
        self->batch[number].balance = 1.0 / options->micros;
        self->batch[number].sum = &self->sums[number];
        memset(&self->sums[number], 0, sizeof self->sums[number]);
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

/* The 2-norm of all gradients of the model, each counted once, and the number by which the update
 * multiplies them. The norm of a store is equal on all ranks that share it, so that each of them
 * adds its share of the square. If a gradient is NaN or infinite, the norm is so on every rank. */
static dpar_status norm_of(trainer *self, dpar_update *step)
{
    double sum = 0.0;
    int32_t k;
    dpar_status st = DPAR_OK;
    for (k = 0; k < STORES && st >= DPAR_OK; k++) {
        const store *held = &self->stores[k];
        int32_t ranks = held->ends;
        dpar_update one;
        if (held->params == 0) {
            continue;
        }
        memset(&one, 0, sizeof one);
        one.duplicate = self->options->tp > 1 ? held->duplicate : NULL;
        if (held->ddp != NULL) {
            st = dpar_ddp_norm(held->ddp, &one);
            ranks *= held->all->size;
        } else {
            st = dpar_fsdp_norm(held->fsdp, &one);
            ranks *= held->shard->size * (held->across != NULL ? held->across->size : 1);
        }
        sum += one.norm * one.norm / (double)ranks;
    }
    if (st >= DPAR_OK) { /* also DPAR_SKIPPED: the other stores and ranks have to learn of it */
        st = dpar_all_reduce(self->world, &sum, &sum, 1, DPAR_F64, DPAR_SUM, NULL);
    }
    step->norm = sqrt(sum);
    step->scale = dpar_optimizer_clip(step->norm, step->clip);
    if (st != DPAR_OK) {
        return st;
    }
    return isfinite(step->norm) ? DPAR_OK : DPAR_SKIPPED;
}

static dpar_status update_store(const trainer *self, store *held, const dpar_update *update)
{
    dpar_optimizer_piece piece;
    dpar_mem_optimize desc;
    if (held->fsdp != NULL) {
        return dpar_fsdp_step(held->fsdp, update->rate, update->scale);
    }
    held->steps++;
    memset(&piece, 0, sizeof piece);
    memset(&desc, 0, sizeof desc);
    piece.weight = held->array[DPAR_FSDP_MASTER];
    piece.gradient = held->gradients;
    piece.m = held->array[DPAR_FSDP_MOMENT_1];
    piece.v = held->array[DPAR_FSDP_MOMENT_2];
    piece.weight_type = piece.gradient_type = GPT_TYPE;
    piece.count = held->length; /* the padding stays 0 */
    desc.optimizer = &held->optimizer;
    desc.piece = &piece;
    desc.step = held->steps;
    desc.rate = update->rate;
    desc.factor = update->scale;
    return self->of_layers.optimize(self->mem.ctx, &desc);
}

/* The learning rate: a linear warm-up, then half a cosine down to a tenth. */
static double rate_at(const settings *options, int64_t step)
{
    const double warm = options->warmup, done = (double)step - warm, all = options->steps - warm;
    if ((double)step < warm) {
        return options->rate * (double)(step + 1) / warm;
    }
    return options->rate *
           (0.55 + 0.45 * cos(3.14159265358979323846 * done / (all > 1.0 ? all : 1.0)));
}

/* The mean loss of the step's tokens, on all ranks. One of the tensor-parallel ranks counts, and
 * for the balancing loss, which is the same on all data-parallel ranks, one of these. */
static dpar_status loss_of(trainer *self, double scale, double *loss)
{
    double sum = 0.0;
    int64_t number;
    for (number = 0; number < self->options->micros && self->at[4] == 0; number++) {
        sum += scale * (self->sums[number].loss + self->sums[number].z_loss);
        sum += self->in_model.data->rank == 0 ? self->batch[number].balancing : 0.0;
    }
    *loss = sum;
    return dpar_all_reduce(self->world, loss, loss, 1, DPAR_F64, DPAR_SUM, NULL);
}

/* Runs a step. If a gradient is NaN or infinite, no rank changes any weight, moment or number of
 * updates, and the result is DPAR_SKIPPED on all ranks. Sets *loss and update->norm. */
static dpar_status step_once(trainer *self, int64_t step, double *loss, dpar_update *update)
{
    const settings *options = self->options;
    const double scale = 1.0 / (options->batch * options->length);
    dpar_status st = DPAR_OK, lost;
    int32_t k;
    memset(update, 0, sizeof *update);
    update->rate = rate_at(options, step);
    update->clip = options->clip;
    read_samples(self, step, scale);
    for (k = 0; k < STORES; k++) {
        dpar_ddp_zero(self->stores[k].ddp);
        dpar_fsdp_zero(self->stores[k].fsdp);
    }
    if (self->tied != NULL) {
        gpt_zero(self->model, self->tied, self->tied_count);
    }
    st = self->each ? DPAR_OK : begin_pass(self, 1);
    if (st == DPAR_OK) {
        st = trace_begin(self, step);
    }
    if (st == DPAR_OK) {
        st = dpar_pipeline_run(self->pipe, 1, &self->why);
    }
    trace_end(self);
    if (st == DPAR_OK && !self->each) {
        st = finish_pass(self);
    }
    if (st == DPAR_OK) {
        st = reduce_table(self);
    }
    if (st == DPAR_OK) {
        st = norm_of(self, update);
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        store *one = &self->stores[k];
        if (one->params > 0) {
            st = update_store(self, one, update);
        }
    }
    if (st < DPAR_OK) {
        return st;
    }
    lost = loss_of(self, scale, loss);
    return lost == DPAR_OK ? st : lost;
}

/* Bytes of the weights of the largest layer, converted from bf16; 0 if they need no conversion. */
static int64_t wide_bytes(const trainer *self)
{
    int64_t most = 0;
    int32_t layer, slot;
    gpt_parameter shape;
    for (layer = 0; layer < self->layers && self->options->bf16; layer++) {
        int64_t sum = 0;
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            sum += gpt_parameter_of(self->model, layer, slot, &shape) ? shape.numel : 0;
        }
        most = larger(most, sum * (int64_t)sizeof(gpt_real));
    }
    return most;
}

/* Checkpoints and the planner's prediction, which use the trainer above. */
#include "train_files.h"
#include "train_plan.h"

/* ---- a run ----------------------------------------------------------------------------------- */

static void configure(trainer *self)
{
    const settings *options = self->options;
    gpt_config *config = &self->config;
    config->vocab = 256;
    config->width = (int32_t)options->width;
    config->blocks = (int32_t)options->blocks;
    config->heads = (int32_t)options->heads;
    config->groups = (int32_t)(options->groups > 0 ? options->groups : options->heads);
    config->hidden = (int32_t)(options->hidden > 0 ? options->hidden : 4 * options->width);
    config->samples = (int32_t)options->micro;
    config->length = (int32_t)options->length;
    config->layer_norm = options->layer_norm;
    config->gelu = options->gelu;
    config->tied = !options->untied;
    config->sp = options->sp;
    config->ulysses = options->ulysses;
    config->experts = (int32_t)options->experts;
    config->choices = (int32_t)options->choices;
    config->every = 2;
    config->shared = (int32_t)options->shared;
    config->drop = options->capacity > 0 ? DPAR_EXPERTS_DROP_POSITION : DPAR_EXPERTS_DROP_NONE;
    config->factor = options->capacity;
    config->balance = options->balance;
    config->seed = (uint64_t)options->seed;
}

static dpar_status open_model(trainer *self)
{
    int64_t bytes[GPT_PIECES];
    void *memory[GPT_PIECES];
    dpar_status st = gpt_bytes(&self->config, &self->in_model, bytes, &self->why);
    if (anyone(self->world, st != DPAR_OK)) {
        return st != DPAR_OK ? st : DPAR_E_PEER;
    }
    memory[GPT_PLANS] = take_plan(self, bytes[GPT_PLANS]);
    memory[GPT_ARRAYS] = take(self, bytes[GPT_ARRAYS]);
    memory[GPT_SHARED] = self->scratch = gpt_open_shared(bytes[GPT_SHARED]);
    if (anyone(self->world, memory[GPT_PLANS] == NULL || memory[GPT_ARRAYS] == NULL ||
                                memory[GPT_SHARED] == NULL)) {
        return DPAR_E_MEMORY;
    }
    return gpt_init(memory, bytes, &self->config, &self->in_model, &self->model, &self->why);
}

/* Allocates the memory that is not in the stores or the pipeline. */
static dpar_status open_rooms(trainer *self)
{
    const int64_t between =
        (int64_t)self->model->own * self->config.width * (int64_t)sizeof(gpt_real);
    const int64_t micros = self->options->micros;
    gpt_parameter shape;
    if (gpt_parameter_of(self->model, 0, GPT_TABLE, &shape)) {
        self->tied_count = shape.numel;
    }
    self->between[0] = (gpt_real *)take(self, between);
    self->between[1] = (gpt_real *)take(self, between);
    self->wide = (gpt_real *)take(self, wide_bytes(self));
    self->tied = self->stores[TABLE].params > 0
                     ? (gpt_real *)take(self, self->tied_count * (int64_t)sizeof(gpt_real))
                     : NULL;
    self->batch = (gpt_batch *)calloc((size_t)micros, sizeof *self->batch);
    self->ids =
        (int32_t *)gpt_open_shared(2 * micros * self->model->tokens * (int64_t)sizeof *self->ids);
    self->sums = (dpar_cross_entropy_sum *)gpt_open_shared(micros * (int64_t)sizeof *self->sums);
    self->sample = (int32_t *)calloc((size_t)(self->options->micro * (self->options->length + 1)),
                                     sizeof *self->sample);
    if (self->between[0] == NULL || self->between[1] == NULL || self->wide == NULL ||
        self->batch == NULL || self->ids == NULL || self->sums == NULL || self->sample == NULL ||
        (self->stores[TABLE].params > 0 && self->tied == NULL)) {
        return DPAR_E_MEMORY;
    }
    return DPAR_OK;
}

static dpar_status open_all(trainer *self)
{
    dpar_status st = lay_mesh(self);
    configure(self);
    if (st == DPAR_OK) {
        st = make_list(self);
    }
    if (st == DPAR_OK) {
        st = open_comms(self);
    }
    if (st == DPAR_OK) {
        st = open_model(self);
    }
    if (st == DPAR_OK) {
        st = open_stores(self);
    }
    if (st == DPAR_OK) {
        st = open_rooms(self);
    }
    if (st == DPAR_OK) {
        st = trace_open(self);
    }
    return st == DPAR_OK ? open_pipeline(self) : st;
}

static int close_all(trainer *self, int bad)
{
    int32_t k;
    dpar_status st = DPAR_OK;
    if (!bad) {
        st = self->mem.wait(self->mem.ctx);
        if (st == DPAR_OK) {
            st = dpar_pipeline_free(self->pipe);
        }
        for (k = 0; k < STORES && st == DPAR_OK; k++) {
            st = dpar_ddp_free(self->stores[k].ddp);
            if (st == DPAR_OK) {
                st = dpar_fsdp_free(self->stores[k].fsdp);
            }
        }
        if (st == DPAR_OK) {
            st = gpt_close(self->model);
        }
        if (st == DPAR_OK) {
            st = dpar_barrier(self->world, NULL);
        }
        for (k = 0; k < self->memories; k++) {
            dpar_comm_release(self->world, self->memory[k]);
        }
        for (k = self->comms - 1; k >= 0 && st == DPAR_OK; k--) {
            st = dpar_comm_free(self->comm[k]);
        }
    }
    for (k = 0; k < STORES; k++) {
        free(self->stores[k].of);
        free(self->stores[k].numel);
        free(self->stores[k].duplicate);
        free(self->stores[k].params_of);
    }
    for (k = 0; k < self->plans; k++) {
        free(self->plan[k]);
    }
    gpt_close_shared(self->shared);
    gpt_close_shared(self->scratch);
    gpt_close_shared(self->ids);
    gpt_close_shared(self->sums);
    free(self->batch);
    free(self->staged);
    free(self->sample);
    trace_close(self);
    free(self->list_memory);
    free(self);
    return bad != 0 ? bad : st != DPAR_OK;
}

static void tell_step(const trainer *self, int64_t step, double loss, const dpar_update *update,
                      double took, double left)
{
    const settings *options = self->options;
    const int64_t all = (int64_t)options->steps, tenth = all / 10 > 0 ? all / 10 : 1;
    if (self->world->rank == 0 && !options->quiet && !isfinite(update->norm)) {
        printf("step %5lld  loss %.6f  norm %.3f  skipped, because a gradient is not finite\n",
               (long long)step + 1, loss, update->norm);
        fflush(stdout);
        return;
    }
    if (self->world->rank == 0 && !options->quiet && (step < 3 || (step + 1) % tenth == 0)) {
        printf("step %5lld  loss %.6f  norm %.3f  rate %.2e  %.0f tokens/s  %d:%02d left\n",
               (long long)step + 1, loss, update->norm, update->rate,
               options->batch * options->length / took, (int)left / 60, (int)left % 60);
        fflush(stdout);
    }
}

/* Runs all steps. Returns 0, or 1 after a message. */
static int go(trainer *self, result *results)
{
    const settings *options = self->options;
    const int64_t all = (int64_t)options->steps;
    double began = now(), sum = 0.0;
    int64_t step, in_row = 0;
    dpar_update update;
    for (step = self->first_step; step < all; step++) {
        const double before = now();
        double took;
        dpar_status st;
        if (step == options->kill_step && self->world->rank == options->kill_rank &&
            self->world->size > 1) {
            (void)raise(SIGKILL);
        }
        st = step_once(self, step, &results->loss[step], &update);
        if (st < DPAR_OK) {
            (void)explain(self, st, &self->why);
            dpar_comm_abort(self->world, st, self->why.text);
            return complain(self->why.text[0] != 0 ? self->why.text : dpar_status_text(st), NULL) -
                   1;
        }
        self->skipped += st == DPAR_SKIPPED;
        in_row = st == DPAR_SKIPPED ? in_row + 1 : 0;
        if (in_row == MOST_SKIPPED) {
            return complain("10 steps in a row were skipped, because a gradient was not finite: "
                            "lower --rate",
                            NULL) -
                   1;
        }
        if (st == DPAR_OK && !(results->loss[step] < 1e9)) {
            return complain("the loss is no longer a finite number: lower --rate", NULL) - 1;
        }
        took = now() - before;
        if (step > self->first_step) {
            sum += took;
            results->best = results->best > 0.0 && results->best < took ? results->best : took;
        }
        tell_step(self, step, results->loss[step], &update, took,
                  (now() - began) / (double)(step + 1 - self->first_step) *
                      (double)(all - 1 - step));
        if (options->save != NULL &&
            (step == all - 1 ||
             (options->every > 0 && (step + 1) % (int64_t)options->every == 0)) &&
            save(self, step + 1)) {
            return 1;
        }
    }
    results->mean = all - 1 > self->first_step ? sum / (double)(all - 1 - self->first_step) : 0.0;
    return 0;
}

/* Ends a line with the planned value next to the measured one, or without it if nothing is planned.
 */
static void print_planned(double planned, double measured)
{
    if (planned > 0.0) {
        printf("; planned %.3f (measured / planned %.2f)", planned, measured / planned);
    }
    printf("\n");
}

/* Prints memory and time as measured and as planned. Returns 1 on failure. */
static int compare_plan(trainer *self, const result *results, const forecast *expected)
{
    int64_t most[3];
    most[0] = self->registered;
    most[1] = self->state_bytes;
    most[2] = self->slot_bytes;
    if (dpar_all_reduce(self->world, most, most, 3, DPAR_I64, DPAR_MAX, NULL) != DPAR_OK) {
        return 1;
    }
    if (self->world->rank == 0 && !self->options->quiet && results->mean > 0.0) {
        printf("memory of the rank that has most: %.3f MB, of them weights, gradients and "
               "optimizer %.3f, activations and messages %.3f, else scratch",
               (double)most[0] / 1e6, (double)most[1] / 1e6, (double)most[2] / 1e6);
        print_planned(expected->bytes / 1e6, (double)most[0] / 1e6);
        printf("step: %.3f ms on average, %.3f at best", results->mean * 1e3, results->best * 1e3);
        print_planned(expected->seconds * 1e3, results->mean * 1e3);
    }
    return 0;
}

/* Trains on all ranks of world. whole: also gathers all parameters in *results. Returns the exit
 * code. */
static int train(dpar_comm *world, const settings *options, result *results, int whole)
{
    trainer *self = (trainer *)calloc(1, sizeof *self);
    forecast expected;
    int bad;
    dpar_status st;
    if (self == NULL) {
        return complain("no memory for the trainer", NULL) - 1;
    }
    memset(&expected, 0, sizeof expected);
    self->options = options;
    self->world = world;
    self->mem = world->mem != NULL ? *world->mem : dpar_mem_host();
    self->of_layers = self->mem.layers != NULL ? *(const dpar_mem_layers *)self->mem.layers
                                               : dpar_mem_host_layers();
    st = open_all(self);
    if (anyone(world, st != DPAR_OK)) {
        (void)explain(self, st, &self->why);
        (void)complain(self->why.text[0] != 0 ? self->why.text : dpar_status_text(st), NULL);
        (void)dpar_barrier(world, NULL); /* no rank ends before all messages are printed */
        return close_all(self, 2);
    }
    bad = options->resume != NULL ? resume(self) : 0;
    if (!bad && world->rank == 0 && !options->quiet) {
        printf("%lld parameters; %d x %d x %d x %d x %d ranks (pp, replicas, shards, cp, tp), ep "
               "%d, engine %s; %d micro-batches of %d x %d tokens\n",
               (long long)self->whole, (int)options->pp, (int)options->replicas,
               (int)(options->dp / options->replicas), (int)options->cp, (int)options->tp,
               (int)options->ep, world->engine.name, options->micros, (int)options->micro,
               (int)options->length);
        fflush(stdout);
    }
    if (bad == 0) {
        bad = (!options->quiet && plan(self, &expected)) || go(self, results) ||
              compare_plan(self, results, &expected) ||
              (options->trace != NULL && write_trace(self)) ||
              (whole && gather_whole(self, results));
    }
    return close_all(self, bad);
}

/* ---- --check: the same on one rank ----------------------------------------------------------- */

/* The settings for one rank: the same number of micro-batches, with the samples of all replicas. */
static settings alone(const settings *options)
{
    settings one = *options;
    one.micro = options->micro * options->dp;
    one.ranks = one.pp = one.dp = one.replicas = one.cp = one.tp = one.ep = 1;
    one.sp = one.ulysses = 0;
    one.zero = options->bf16 ? 1 : 0;
    one.chunks = 0;
    one.schedule = "1f1b";
    one.quiet = 1;
    one.save = one.trace = NULL;
    one.kill_step = -1;
    return one;
}

/* Compares the losses, by their largest relative difference, and the parameters, by the 2-norm of
 * the difference over that of the parameter. The largest difference of a single number, relative to
 * the parameter's largest, is only printed, because where a gradient is almost 0 the steps of AdamW
 * are made of rounding. Returns 0, or 1 after a message. */
static int agree(const settings *options, const result *one, const result *all)
{
    double bound = sizeof(gpt_real) == 8 ? 1e-11 : 1e-5, loss = 0.0, worst = 0.0, single = 0.0;
    char text[80];
    const char *name = "";
    int64_t at = 0, i;
    int32_t n;
    if (options->pure && (options->tp > 1 || options->pp > 1 || options->ep > 1)) {
        bound = 3e-2; /* elements have other places, and so other random numbers for rounding */
    } else if (options->bf16) {
        bound = 1e-3;
    }
    for (i = 0; i < (int64_t)options->steps; i++) {
        const double x = one->loss[i], y = fabs(all->loss[i] - x);
        loss = y <= loss * fabs(x) ? loss : y / fabs(x);
    }
    for (n = 0; n < one->parts; n++) {
        double most = 0.0, apart = 0.0, squares = 0.0, of = 1e-60;
        for (i = at; i < at + one->shape[n].count; i++) {
            const double x = (double)one->whole[i], y = fabs((double)all->whole[i] - x);
            most = fabs(x) > most ? fabs(x) : most;
            apart = y <= apart ? apart : y;
            squares += y * y;
            of += x * x;
        }
        at += one->shape[n].count;
        single = apart <= single * most ? single : apart / most;
        if (!(sqrt(squares / of) <= worst)) {
            worst = sqrt(squares / of);
            name = one->shape[n].name;
        }
    }
    printf("against one rank, %d steps: losses differ by %.1e, parameters by %.1e (%s), single "
           "numbers by %.1e of the largest\n",
           (int)options->steps, loss, worst, name, single);
    if (loss <= bound && worst <= bound) {
        return 0;
    }
    snprintf(text, sizeof text, "losses or parameters differ by more than %.0e", bound);
    return complain(text, NULL) - 1;
}

static void forget(result *results)
{
    free(results->loss);
    free(results->whole);
    free(results->shape);
}

/* What each rank runs. */
static int rank_main(dpar_comm *world, void *arg)
{
    const settings *options = (const settings *)arg;
    result all, one;
    dpar_comm *self = NULL;
    int bad = 0;
    options_quiet = world->rank != 0;
    memset(&all, 0, sizeof all);
    memset(&one, 0, sizeof one);
    all.loss = (double *)calloc((size_t)options->steps + 1, sizeof *all.loss);
    one.loss = (double *)calloc((size_t)options->steps + 1, sizeof *one.loss);
    bad = all.loss == NULL || one.loss == NULL;
    if (bad) {
        (void)complain("no memory for the losses of all steps", NULL);
    }
    if (options->check) {
        bad |= dpar_comm_split(world, world->rank == 0 ? 0 : -1, 0, &self) != DPAR_OK;
        if (self != NULL && !bad) {
            const settings first = alone(options);
            bad = train(self, &first, &one, 1);
            (void)dpar_comm_free(self);
        }
    }
    bad = worst(world, bad);
    if (bad == 0) {
        bad = train(world, options, &all, options->check);
    }
    if (options->check && !bad && world->rank == 0) {
        bad = agree(options, &one, &all);
    }
    forget(&all);
    forget(&one);
    if (world->rank == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        bad = complain("the results could not be written to standard output", NULL) - 1;
    }
    return bad;
}

#ifdef GPT_CUDA
static int on_gpu(gpu *device, const void *arg)
{
    settings options = *(const settings *)arg;
    return rank_main(device->world, &options);
}

/* Runs on a launcher's ranks, or on ranks that are started here. Returns the exit code. */
static int run(settings *options, int none)
{
    dpar_launcher_info job;
    double ranks = none;
    if (find_ranks(&job, &ranks)) {
        return 2;
    }
    options_quiet = job.kind != DPAR_LAUNCHER_NONE && job.rank > 0;
    return settle_ranks(options, (int)ranks) || settle(options)
               ? 2
               : run_ranks(&job, options->ranks, on_gpu, options);
}

int main(int argc, char **argv)
{
    settings options = defaults();
    int code = read_words(argc, argv, &options);
    if (code < 0) {
        code = run(&options, 0);
    }
    free(options.bytes);
    return code;
}
#else
static int reads(int argc, char **argv, int *ranks, void *at)
{
    settings *options = (settings *)at;
    const int code = read_words(argc, argv, options);
    if (code >= 0) {
        return code;
    }
    if (settle_ranks(options, *ranks) || settle(options)) {
        return 2;
    }
    *ranks = (int)options->ranks;
    return -1;
}

int main(int argc, char **argv)
{
    settings options = defaults();
    const int code = start(argc, argv, reads, rank_main, &options);
    free(options.bytes);
    return code;
}
#endif
