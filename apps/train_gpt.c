/* SPDX-License-Identifier: MIT-0 */
/* train_gpt - trains a small GPT on a text, with every strategy of training at once: pipeline, data
 * (replicated or sharded: ZeRO 0 to 3), context, tensor, sequence and expert parallelism, on any
 * mesh whose degrees multiply to the number of ranks.
 *
 *   cc -O3 -march=native -DDPAR_IMPLEMENTATION -I. apps/train_gpt.c -o train_gpt -lm
 *   ./train_gpt --ranks 8 --pp 2 --dp 2 --tp 2 --sp --zero 3 --schedule zbv
 *   ./train_gpt --pp 2 --cp 2 --experts 4 --ep 2 --check          the same on one rank beside it
 *
 *   mpicc -O3 -march=native -DUSE_MPI -DDPAR_IMPLEMENTATION -I. apps/train_gpt.c -o train_gpt
 *   -lm && mpirun -np 8 ./train_gpt --pp 2 --dp 2 --tp 2
 *
 * The model is in gpt.h: layers, forward and backward, over communicators of tensor, context and
 * expert parallelism. This file has everything around it: the mesh, the layers of each rank (a
 * stage of the pipeline is a run of layers), the stores of weights, gradients and optimizer state
 * (struct store), the order of work (a pipeline with any schedule, chosen by name), text, clipping,
 * learning rate, checkpoints, and a comparison of the planner's prediction with what was measured.
 *
 * train_gpt.cu is this file for GPUs, with weights, gradients, optimizer state and activations in
 * the memory of one device for each rank.
 *
 * All reductions are sums, not averages: the loss of each token is scaled by 1 / tokens of the
 * whole step where it is computed. So the gradients of experts, which fewer ranks share, need no
 * factor of their own. The text is a sequence of bytes; sample k of step n does not depend on the
 * mesh.
 *
 * Exit code: 0 fine, 1 an error or a difference that should not be, 2 bad input (one sentence on
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
#include "gpu_start.h"
#endif

#include "gpt.h"
#include "train_options.h"
#ifndef GPT_CUDA
#include "apps/start.h"
#endif

enum { MOST_LAYERS = 130, MOST_COMMS = 16, ARRAYS = 3 };

/* ---- the state of a rank --------------------------------------------------------------------- */

/* Three kinds of parameters, by the ranks that share them: those of layers (shared by all
 * data-parallel and context-parallel ranks), those of experts (by the ranks with the same experts),
 * and the table of the tied embedding. The first and the last stage have that one, and the pipeline
 * adds up its gradients of both before it is reduced. */
enum { DENSE, EXPERT, TABLE, STORES };

/* A parameter of this rank. */
typedef struct parameter {
    gpt_parameter p;
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
    parameter *of;             /* [params] */
    dpar_comm *all;            /* ZeRO 0: the ranks that share it */
    dpar_comm *shard, *across; /* ZeRO 1 to 3: the ranks that have parts of it, and those with the
                                  same part, or NULL */
    dpar_ddp *ddp;
    dpar_fsdp *fsdp;
    gpt_real *array[ARRAYS]; /* of a ddp: weights and moments, in the order of DPAR_FSDP_MASTER */
    dpar_optimizer optimizer;
    int64_t steps;
    int32_t ends;                /* ranks of a pipeline that have it: 2 for the table, if both ends
                                    are different ranks */
    int32_t opened[MOST_LAYERS]; /* [units] 1: its gradients have memory in this pass */
} store;

typedef struct trainer {
    const settings *s;
    dpar_comm *world;
    dpar_mem mem;              /* operations on the memory that the model is in */
    dpar_mem_layers of_layers; /* the same for layers and optimizers */
    dpar_mesh mesh, view;
    int32_t at[5]; /* this rank's coordinates: pp, replicate, shard, cp, tp */
    dpar_comm *comm[MOST_COMMS], *pp;
    int32_t comms;
    gpt_comms in_model;
    gpt_config config;
    gpt *g;
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
    double *squares;              /* [STORES] sums of squares of gradients */
    int64_t *began, *ended;       /* times of actions, with --trace on the host */
    struct trace *trace;          /* the same on a device, or NULL */
    void *memory[64], *plan[64];  /* memory of dpar_comm_alloc; plans in host memory */
    int32_t memories, plans;
    gpt_real *staged; /* host memory for values that are copied from or to a device */
    int64_t staged_count;
    int64_t registered, state_bytes, slot_bytes; /* bytes in all, in stores and in the pipeline */
    int64_t first_step;
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
static void *take(trainer *t, int64_t bytes)
{
    void *memory = NULL;
    if (t->memories == 64 || dpar_comm_alloc(t->world, bytes > 0 ? bytes : 1, &memory) != DPAR_OK) {
        return NULL;
    }
    t->registered += bytes;
    t->memory[t->memories++] = memory;
    return memory;
}

/* Allocates host memory for a plan. If the model is in host memory, too, other ranks can read it.
 */
static void *take_plan(trainer *t, int64_t bytes)
{
#ifdef GPT_CUDA
    if (t->plans == 64) {
        return NULL;
    }
    t->registered += bytes;
    return t->plan[t->plans++] = plan_memory(bytes);
#else
    return take(t, bytes);
#endif
}

/* Host memory for `count` numbers. NULL without memory. */
static gpt_real *stage(trainer *t, int64_t count)
{
    gpt_real *more = t->staged;
    if (count > t->staged_count) {
        more = (gpt_real *)realloc(t->staged, (size_t)count * sizeof *more);
        t->staged = more != NULL ? more : t->staged;
        t->staged_count = more != NULL ? count : t->staged_count;
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
        float x;
        memcpy(&half, from + 2 * i, sizeof half);
        bits = (uint32_t)half << 16;
        memcpy(&x, &bits, sizeof x);
        to[i] = (gpt_real)x;
    }
}

/* Converts back in place, rounded to nearest. */
static void to_bf16(gpt_real *numbers, int64_t count)
{
    int64_t i;
    for (i = 0; i < count; i++) {
        const float x = (float)numbers[i];
        uint32_t bits;
        uint16_t half;
        memcpy(&bits, &x, sizeof bits);
        half = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
        memcpy((char *)numbers + 2 * i, &half, sizeof half);
    }
}

/* Numbers of an array of `type`, GPT_TYPE or bf16, in host memory. NULL without memory. */
static gpt_real *brought(trainer *t, void *at, int64_t count, int32_t type)
{
    const int64_t each = dpar_type_bytes(type);
    unsigned char *end;
    gpt_real *to;
    if (count < 1 || (t->world->mem == NULL && type == (int32_t)GPT_TYPE)) {
        return (gpt_real *)at;
    }
    to = stage(t, count);
    if (to != NULL) {
        end = (unsigned char *)to + count * ((int64_t)sizeof *to - each);
        gpt_get(t->g, end, at, count * each);
    }
    if (to != NULL && type != (int32_t)GPT_TYPE) {
        from_bf16(to, end, count);
    }
    return to;
}

/* Copies numbers from host memory to an array of `type`. If that is bf16 they are overwritten. */
static void bring(trainer *t, void *to, gpt_real *numbers, int64_t count, int32_t type)
{
    if (type != (int32_t)GPT_TYPE) {
        to_bf16(numbers, count);
    }
    gpt_put(t->g, to, numbers, count * dpar_type_bytes(type));
}

/* If there is no message yet, takes that of whichever communicator has one. Returns st. */
static dpar_status explain(trainer *t, dpar_status st, dpar_why *why)
{
    int32_t i;
    for (i = 0; i < t->comms && st < 0 && why->text[0] == 0; i++) {
        if (t->comm[i]->status != DPAR_OK || t->comm[i]->why.text[0] != 0) {
            *why = t->comm[i]->why;
        }
    }
    return st;
}

/* ---- mesh ------------------------------------------------------------------------------------ */

enum { AXIS_PP = 1, AXIS_REPLICATE = 2, AXIS_SHARD = 4, AXIS_CP = 8, AXIS_TP = 16 };

/* A communicator of this rank's group along axes of the mesh. NULL after an error, which is in
 * t->why. */
static dpar_comm *along(trainer *t, const dpar_mesh *mesh, uint32_t axes)
{
    dpar_comm *c = NULL;
    if (t->why.text[0] == 0 && dpar_comm_split_axes(t->world, mesh, axes, &c) != DPAR_OK) {
        t->why = t->world->why;
        return NULL;
    }
    if (c != NULL) {
        t->comm[t->comms++] = c;
    }
    return c;
}

/* The same, but if two chains run in opposite directions the group also has the ranks of the
 * mirrored pipeline rank, because both have the same layers. */
static dpar_comm *mirrored(trainer *t, const dpar_mesh *mesh, uint32_t axes)
{
    const int32_t p = mesh->axis[0].size;
    int32_t coord[DPAR_MAX_AXES], i, color;
    dpar_comm *c = NULL;
    if (!t->both_ways) {
        return along(t, mesh, axes);
    }
    if (t->why.text[0] != 0 || !dpar_mesh_coords(mesh, t->world->rank, coord)) {
        return NULL;
    }
    color = coord[0] < p - 1 - coord[0] ? coord[0] : p - 1 - coord[0];
    for (i = 1; i < mesh->axes; i++) {
        color = color * mesh->axis[i].size + ((axes >> i & 1u) != 0 ? 0 : coord[i]);
    }
    if (dpar_comm_split(t->world, color, t->world->rank, &c) != DPAR_OK) {
        t->why = t->world->why;
        return NULL;
    }
    t->comm[t->comms++] = c;
    return c;
}

/* Makes the mesh pp x replicate x shard x cp x tp, and the experts' view of it, in which ep divides
 * the three axes in the middle. */
static dpar_status lay_mesh(trainer *t)
{
    const settings *s = t->s;
    int32_t sizes[5];
    dpar_status st;
    sizes[0] = (int32_t)s->pp;
    sizes[1] = (int32_t)s->replicas;
    sizes[2] = (int32_t)(s->dp / s->replicas);
    sizes[3] = (int32_t)s->cp;
    sizes[4] = (int32_t)s->tp;
    st = dpar_mesh_init(&t->mesh, "pp replicate shard cp tp", sizes, DPAR_ORDER_LAST_FASTEST,
                        t->world->size, &t->why);
    if (st == DPAR_OK) {
        sizes[1] = (int32_t)(s->dp * s->cp / s->ep);
        sizes[2] = (int32_t)s->ep;
        sizes[3] = (int32_t)s->tp;
        st = dpar_mesh_view(&t->view, &t->mesh, "pp edp ep tp", sizes, DPAR_ORDER_LAST_FASTEST,
                            &t->why);
    }
    (void)dpar_mesh_coords(&t->mesh, t->world->rank, t->at);
    return st;
}

static dpar_status open_comms(trainer *t)
{
    const uint32_t data = AXIS_REPLICATE | AXIS_SHARD | AXIS_CP;
    const int hybrid = t->s->replicas > 1;
    t->why.text[0] = 0;
    t->pp = along(t, &t->mesh, AXIS_PP);
    t->in_model.tp = along(t, &t->mesh, AXIS_TP);
    t->in_model.cp = along(t, &t->mesh, AXIS_CP);
    t->in_model.data = along(t, &t->mesh, data);
    t->in_model.ep = along(t, &t->view, 4);
    t->stores[TABLE].all = t->in_model.data;
    t->stores[DENSE].all = mirrored(t, &t->mesh, data);
    t->stores[EXPERT].all = mirrored(t, &t->view, 2);
    t->stores[DENSE].shard = t->stores[TABLE].shard = along(t, &t->mesh, AXIS_SHARD | AXIS_CP);
    t->stores[EXPERT].shard = along(t, &t->view, 2);
    t->stores[TABLE].across = hybrid ? along(t, &t->mesh, AXIS_REPLICATE) : NULL;
    t->stores[DENSE].across = hybrid || t->both_ways ? mirrored(t, &t->mesh, AXIS_REPLICATE) : NULL;
    t->stores[EXPERT].across = t->both_ways ? mirrored(t, &t->view, 0) : NULL;
    return t->why.text[0] == 0 ? DPAR_OK : DPAR_E_ARG;
}

/* ---- stores: weights, gradients, state ------------------------------------------------------- */

/* The layers of a stage: returns the first, and sets *last to the one behind the last. Blocks are
 * divided as evenly as possible; the embedding is before them and the head behind them. */
static int32_t stage_layers(const trainer *t, int32_t stage, int32_t *last)
{
    const int32_t stages = t->list.chain, q = stage % stages, blocks = t->layers - 2;
    *last = 1 + (q + 1) * blocks / stages + (q == stages - 1);
    return q == 0 ? 0 : 1 + q * blocks / stages;
}

static int64_t whole_count(const gpt_parameter *p)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < p->dims; d++) {
        n *= p->whole[d];
    }
    return n;
}

/* The store that a parameter of a layer is in. */
static int32_t kind_of(const trainer *t, int32_t slot, const gpt_parameter *p)
{
    if (slot == GPT_TABLE && t->config.tied) {
        return TABLE;
    }
    return p->expert ? EXPERT : DENSE;
}

/* Adds a parameter of this rank to its store. Before the store has memory it is only counted. */
static void add_parameter(trainer *t, int32_t layer, int32_t slot, const gpt_parameter *p,
                          int64_t whole_at)
{
    const int32_t k = kind_of(t, slot, p);
    store *s = &t->stores[k];
    const int again = k == TABLE && s->params == 1; /* one rank has both ends, and one table */
    t->home[layer][slot] = k;
    t->index[layer][slot] = again ? 0 : s->params;
    if (t->unit[k][layer] < 0) {
        t->unit[k][layer] = again ? 0 : s->units++;
    }
    if (again) {
        return;
    }
    if (s->of != NULL) {
        parameter *q = &s->of[s->params];
        q->p = *p;
        q->whole_at = whole_at;
        q->unit = t->unit[k][layer];
        s->numel[s->params] = p->numel;
        if (s->params_of[q->unit]++ > 0) {
            q->start = q[-1].start + q[-1].p.numel;
        }
    }
    s->params++;
}

static void list_parameters(trainer *t)
{
    int32_t layer, slot, k;
    gpt_parameter p;
    t->whole = 0;
    for (k = 0; k < STORES; k++) {
        t->stores[k].units = t->stores[k].params = 0;
    }
    for (layer = 0; layer < t->layers; layer++) {
        for (k = 0; k < STORES; k++) {
            t->unit[k][layer] = -1;
        }
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            t->home[layer][slot] = -1;
            if (!gpt_parameter_of(t->g, layer, slot, &p)) {
                continue;
            }
            if (t->mine[layer]) {
                add_parameter(t, layer, slot, &p, p.tied ? 0 : t->whole);
            }
            t->whole += p.tied ? 0 : whole_count(&p); /* a tied head uses the embedding's table */
        }
    }
}

static dpar_status open_ddp(trainer *t, store *s)
{
    dpar_ddp_desc o;
    int64_t sum = 0;
    int32_t i;
    dpar_status st;
    memset(&o, 0, sizeof o);
    o.params = s->params;
    o.count = s->numel;
    o.type = GPT_TYPE;
    o.sum = 1;
    o.require_ready = 1;
    o.bytes = 1; /* too few, so that it returns how many bytes it needs */
    st = dpar_ddp_make(s->all, &o, &s->ddp, &t->why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    o.bytes = t->why.bytes;
    o.memory = take_plan(t, o.bytes);
    if (o.memory == NULL) {
        return DPAR_E_MEMORY;
    }
    for (i = 0; i < s->params; i++) {
        s->of[i].start = sum;
        sum += s->numel[i];
    }
    for (i = 0; i < ARRAYS; i++) {
        s->array[i] = (gpt_real *)take(t, sum * (int64_t)sizeof(gpt_real));
        if (s->array[i] == NULL) {
            return DPAR_E_MEMORY;
        }
        gpt_zero(t->g, s->array[i], sum);
    }
    t->registered += sum * (int64_t)sizeof(gpt_real); /* the gradients */
    return dpar_ddp_make(s->all, &o, &s->ddp, &t->why);
}

static dpar_fsdp_desc fsdp_options(const trainer *t, const store *s)
{
    const int table = s == &t->stores[TABLE];
    dpar_fsdp_desc o;
    memset(&o, 0, sizeof o);
    o.units = s->units;
    o.params_per_unit = s->params_of;
    o.count = s->numel;
    o.replicas = s->across;
    o.zero = (int32_t)t->s->zero;
    o.gradient_type = GPT_TYPE;
    o.type = t->s->pure ? (int32_t)DPAR_BF16 : (int32_t)GPT_TYPE;
    o.compute_type = t->s->bf16 ? (int32_t)DPAR_BF16 : (int32_t)GPT_TYPE;
    o.prefetch = t->list.ranks == 1 ? (int32_t)t->s->prefetch : 0;
    /* A pipeline's micro-batches overlap, so that gradients are accumulated over all of them. */
    o.reduce_last = !table && !t->each;
    o.sum = 1;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_ADAMW);
    o.optimizer.decay = t->s->decay;
    o.optimizer.beta2 = 0.95;   /* this and epsilon are Llama 2's. With an epsilon of 1e-8,
                                   weights */
    o.optimizer.epsilon = 1e-5; /* whose gradient is only rounding would move as far as others */
    o.optimizer.moment_type = t->s->pure ? (int32_t)DPAR_BF16 : 0;
    o.optimizer.stochastic = t->s->pure;
    o.optimizer.seed = mix((uint64_t)t->s->seed, (uint64_t)table);
    return o;
}

static dpar_status open_fsdp(trainer *t, store *s)
{
    dpar_fsdp_desc o = fsdp_options(t, s);
    dpar_fsdp_sizes sizes;
    dpar_status st = dpar_fsdp_sizes_init(&sizes, s->shard->size, &o, &t->why);
    if (st != DPAR_OK) {
        return st;
    }
    o.memory = take_plan(t, sizes.plan);
    o.bytes = sizes.plan;
    if (o.memory == NULL) {
        return DPAR_E_MEMORY;
    }
    t->registered += sizes.registered;
    return dpar_fsdp_make(s->shard, &o, &s->fsdp, &t->why);
}

/* Sets parameter i of a store to `values`, by way of `there` in the model's memory. */
static dpar_status set_parameter(trainer *t, store *s, int32_t i, gpt_real *values, gpt_real *there)
{
    int32_t type = GPT_TYPE;
    if (s->ddp != NULL) {
        bring(t, s->array[0] + s->of[i].start, values, s->numel[i], GPT_TYPE);
        return DPAR_OK;
    }
    (void)dpar_fsdp_state(s->fsdp, DPAR_FSDP_MASTER, 0, NULL, &type);
    bring(t, there, values, s->numel[i], type);
    return dpar_fsdp_set(s->fsdp, i, there);
}

static dpar_status open_store(trainer *t, int32_t k)
{
    store *s = &t->stores[k];
    int64_t most = 1;
    int32_t i;
    gpt_real *values;
    void *there = NULL;
    dpar_status st, room;
    s->optimizer = fsdp_options(t, s).optimizer;
    st = t->s->zero < 1 ? open_ddp(t, s) : open_fsdp(t, s);
    for (i = 0; i < s->params; i++) {
        most = s->numel[i] > most ? s->numel[i] : most;
    }
    values = stage(t, most);
    room = dpar_comm_alloc(t->world, most * (int64_t)sizeof *values, &there);
    for (i = 0; i < s->params && st == DPAR_OK; i++) {
        st = values == NULL ? (dpar_status)DPAR_E_MEMORY : room;
        if (st == DPAR_OK) {
            gpt_fill(t->g, &s->of[i].p, values);
            st = set_parameter(t, s, i, values, (gpt_real *)there);
        }
    }
    if (st == DPAR_OK) {
        st = t->mem.wait(t->mem.ctx);
    }
    if (room == DPAR_OK) {
        dpar_comm_release(t->world, there);
    }
    return st;
}

/* Checks that tensor-parallel ranks have parts of the same size. They round a parameter of which
 * they have copies by random numbers that depend on its place, so that copies only stay equal if
 * the place is the same on all of them. */
static dpar_status same_places(trainer *t)
{
    uint64_t hash = 0;
    int64_t sizes[2];
    int32_t k, i;
    dpar_status st;
    for (k = 0; k < STORES; k++) {
        for (i = 0; i < t->stores[k].params; i++) {
            hash = mix(hash, (uint64_t)t->stores[k].numel[i]);
        }
    }
    sizes[0] = (int64_t)(hash >> 1);
    sizes[1] = -sizes[0];
    st = dpar_all_reduce(t->in_model.tp, sizes, sizes, 2, DPAR_I64, DPAR_MAX, NULL);
    if (st == DPAR_OK && sizes[0] != -sizes[1]) {
        snprintf(t->why.text, sizeof t->why.text,
                 "--pure-bf16: --tp %d cuts something unevenly: choose other --hidden or --heads",
                 (int)t->s->tp);
        return DPAR_E_ARG;
    }
    return st;
}

static dpar_status open_stores(trainer *t)
{
    const int64_t before = t->registered;
    int32_t k, p, ends = 0;
    dpar_status st = DPAR_OK;
    list_parameters(t);
    for (k = 0; k < STORES; k++) {
        store *s = &t->stores[k];
        s->of = (parameter *)calloc((size_t)s->params + 1, sizeof *s->of);
        s->numel = (int64_t *)calloc((size_t)s->params + 1, sizeof *s->numel);
        s->params_of = (int32_t *)calloc((size_t)s->units + 1, sizeof *s->params_of);
        if (s->of == NULL || s->numel == NULL || s->params_of == NULL) {
            return DPAR_E_MEMORY;
        }
    }
    list_parameters(t);
    for (p = 0; p < t->list.ranks; p++) {
        for (k = 0; k < t->list.stages; k++) {
            if (t->list.rank_of[k] == p &&
                (dpar_schedule_partner(&t->list, DPAR_ACTION_RECV_F, k) < 0 ||
                 dpar_schedule_partner(&t->list, DPAR_ACTION_SEND_F, k) < 0)) {
                ends++;
                break;
            }
        }
    }
    if (t->s->pure && t->s->tp > 1) {
        st = same_places(t);
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        t->stores[k].ends = k == TABLE ? ends : 1;
        st = t->stores[k].params > 0 ? open_store(t, k) : DPAR_OK;
    }
    t->state_bytes = t->registered - before;
    return st;
}

/* ---- a layer's weights and gradients, for the model ------------------------------------------ */

typedef struct view {
    const gpt_real *weight[GPT_SLOTS];
    gpt_real *gradient[GPT_SLOTS];
} view;

static void see_gradients(const trainer *t, int32_t layer, view *v)
{
    int32_t slot;
    for (slot = 0; slot < GPT_SLOTS; slot++) {
        const int32_t k = t->home[layer][slot], i = t->index[layer][slot];
        v->weight[slot] = NULL;
        v->gradient[slot] = NULL;
        if (k == TABLE) {
            v->gradient[slot] = t->tied;
        } else if (k >= 0) {
            const store *s = &t->stores[k];
            v->gradient[slot] = (gpt_real *)(s->ddp != NULL ? dpar_ddp_gradient(s->ddp, i, NULL)
                                                            : dpar_fsdp_gradient(s->fsdp, i, NULL));
        }
    }
}

/* Converts bf16 weights of fsdp to the type that the model computes with. */
static dpar_status widen(const trainer *t, const void *from, int64_t count, gpt_real *to)
{
    dpar_mem_span span;
    memset(&span, 0, sizeof span);
    span.to = to;
    span.from = from;
    span.count = count;
    span.to_type = GPT_TYPE;
    span.from_type = DPAR_BF16;
    span.scale = 1.0;
    return t->mem.span(t->mem.ctx, &span, 1);
}

static dpar_status see_weights(const trainer *t, int32_t layer, view *v)
{
    gpt_real *wide = t->wide;
    int32_t slot;
    dpar_status st = DPAR_OK;
    for (slot = 0; slot < GPT_SLOTS && st == DPAR_OK; slot++) {
        const int32_t k = t->home[layer][slot], i = t->index[layer][slot];
        const store *s = &t->stores[k < 0 ? 0 : k];
        if (k >= 0 && s->ddp != NULL) {
            v->weight[slot] = s->array[0] + s->of[i].start;
        } else if (k >= 0 && t->s->bf16) {
            st = widen(t, dpar_fsdp_weight(s->fsdp, i), s->numel[i], wide);
            v->weight[slot] = wide;
            wide += s->numel[i];
        } else if (k >= 0) {
            v->weight[slot] = (const gpt_real *)dpar_fsdp_weight(s->fsdp, i);
        }
    }
    return st;
}

/* Called before a layer runs: gathers its weights, and in the first backward of a pass provides
 * memory for its gradients. */
static dpar_status open_layer(trainer *t, int32_t layer, int32_t backward, view *v)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        const int32_t u = t->unit[k][layer];
        store *s = &t->stores[k];
        if (u >= 0 && s->fsdp != NULL) {
            const int first = backward && k != TABLE && !s->opened[u];
            s->opened[u] |= first;
            st = dpar_fsdp_unshard(s->fsdp, u, first ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD);
        }
    }
    if (st == DPAR_OK) {
        see_gradients(t, layer, v);
        st = see_weights(t, layer, v);
    }
    return st;
}

static dpar_status close_layer(trainer *t, int32_t layer)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        if (t->unit[k][layer] >= 0 && t->stores[k].fsdp != NULL) {
            st = dpar_fsdp_reshard(t->stores[k].fsdp, t->unit[k][layer], DPAR_ACTION_FORWARD);
        }
    }
    return st;
}

/* The gradients of a layer are complete: reduces them. Those of parameters that tensor-parallel
 * ranks share are summed first. */
static dpar_status ready_layer(trainer *t, int32_t layer, int32_t last)
{
    dpar_status st = DPAR_OK;
    int32_t k, slot;
    if (last || t->s->zero > 1) {
        view v;
        see_gradients(t, layer, &v);
        st = gpt_sum(t->g, layer, v.gradient);
    }
    for (slot = 0; slot < GPT_SLOTS && st == DPAR_OK && t->s->zero < 1; slot++) {
        k = t->home[layer][slot];
        if (k == DENSE || k == EXPERT) {
            st = dpar_ddp_ready(t->stores[k].ddp, t->index[layer][slot]);
        }
    }
    for (k = 0; k < TABLE && st == DPAR_OK && t->s->zero >= 1; k++) {
        if (t->unit[k][layer] >= 0) {
            st = dpar_fsdp_ready(t->stores[k].fsdp, t->unit[k][layer]);
        }
    }
    return st;
}

/* Begins a pass: over all micro-batches of a step, or, if these run one after the other, over one.
 */
static dpar_status begin_pass(trainer *t, int32_t last)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < TABLE && st == DPAR_OK; k++) {
        store *s = &t->stores[k];
        memset(s->opened, 0, sizeof s->opened);
        if (s->ddp != NULL) {
            st = dpar_ddp_begin(s->ddp, last);
        } else if (s->fsdp != NULL) {
            st = dpar_fsdp_begin(s->fsdp, last);
        }
    }
    return st;
}

static dpar_status finish_pass(trainer *t)
{
    dpar_status st = DPAR_OK;
    int32_t k;
    for (k = 0; k < TABLE && st == DPAR_OK; k++) {
        const store *s = &t->stores[k];
        if (s->ddp != NULL) {
            st = dpar_ddp_end(s->ddp);
        } else if (s->fsdp != NULL) {
            st = dpar_fsdp_end(s->fsdp);
        }
    }
    return st;
}

/* Reduces the table's gradient, which the pipeline has added up over both ends. */
static dpar_status reduce_table(trainer *t)
{
    const store *s = &t->stores[TABLE];
    dpar_status st;
    if (s->params == 0) {
        return DPAR_OK;
    }
    if (s->ddp != NULL) {
        st = dpar_ddp_begin(s->ddp, 1);
        gpt_copy(t->g, (gpt_real *)dpar_ddp_gradient(s->ddp, 0, NULL), t->tied, t->tied_count);
        if (st == DPAR_OK) {
            st = dpar_ddp_ready(s->ddp, 0);
        }
        return st == DPAR_OK ? dpar_ddp_end(s->ddp) : st;
    }
    st = dpar_fsdp_begin(s->fsdp, 1);
    if (st == DPAR_OK) {
        st = dpar_fsdp_unshard(s->fsdp, 0, DPAR_ACTION_BACKWARD);
    }
    if (st == DPAR_OK) {
        gpt_copy(t->g, (gpt_real *)dpar_fsdp_gradient(s->fsdp, 0, NULL), t->tied, t->tied_count);
        st = dpar_fsdp_reshard(s->fsdp, 0, DPAR_ACTION_BACKWARD);
    }
    if (st == DPAR_OK) {
        st = dpar_fsdp_ready(s->fsdp, 0);
    }
    return st == DPAR_OK ? dpar_fsdp_end(s->fsdp) : st;
}

/* The task's slot of the memory that the host reaches, too. */
static char *shared_of(const trainer *t, const dpar_stage_task *task)
{
    return t->shared + (task->activation_slot > 0 ? task->activation_slot * t->shared_bytes : 0);
}

/* ---- the pipeline's callbacks ---------------------------------------------------------------- */

static dpar_status on_forward(void *ctx, const dpar_stage_task *task, dpar_why *why)
{
    trainer *t = (trainer *)ctx;
    const gpt_real *in = (const gpt_real *)task->in;
    char *kept = (char *)task->activation_memory, *shared = shared_of(t, task);
    const int32_t micro = task->action.micro_batch;
    int32_t last, layer = stage_layers(t, task->action.stage, &last);
    dpar_status st = t->each ? begin_pass(t, micro == t->s->micros - 1) : DPAR_OK;
    for (; layer < last && st == DPAR_OK; layer++) {
        gpt_real *out = layer == last - 1 ? (gpt_real *)task->out : t->between[layer & 1];
        view v;
        st = open_layer(t, layer, 0, &v);
        t->batch[micro].shared = shared;
        if (st == DPAR_OK) {
            st = gpt_forward(t->g, layer, v.weight, &t->batch[micro], in, out, kept);
        }
        if (st == DPAR_OK) {
            st = close_layer(t, layer);
        }
        kept += gpt_kept_bytes(t->g, layer);
        shared += gpt_shared_bytes(t->g, layer);
        in = out;
    }
    return explain(t, st, why);
}

/* Runs B, I or W of a stage: its layers from the last to the first. */
static dpar_status go_back(trainer *t, const dpar_stage_task *task, int32_t parts, dpar_why *why)
{
    const gpt_real *dout = (const gpt_real *)task->in;
    const int32_t micro = task->action.micro_batch;
    char *kept = (char *)task->activation_memory, *pending = (char *)task->weight_memory;
    char *shared = shared_of(t, task);
    int32_t end, layer;
    const int32_t first = stage_layers(t, task->action.stage, &end);
    dpar_status st = DPAR_OK;
    for (layer = first; layer < end; layer++) {
        kept += gpt_kept_bytes(t->g, layer);
        shared += gpt_shared_bytes(t->g, layer);
        pending += pending != NULL ? gpt_pending_bytes(t->g, layer) : 0;
    }
    for (layer = end - 1; layer >= first && st == DPAR_OK; layer--) {
        gpt_real *din = layer == first ? (gpt_real *)task->out : t->between[layer & 1];
        view v;
        kept -= gpt_kept_bytes(t->g, layer);
        shared -= gpt_shared_bytes(t->g, layer);
        t->batch[micro].shared = shared;
        pending -= pending != NULL ? gpt_pending_bytes(t->g, layer) : 0;
        if ((parts & GPT_INPUT) != 0) {
            st = open_layer(t, layer, 1, &v);
        } else {
            see_gradients(t, layer, &v); /* the I of this layer has provided their memory */
        }
        if (st == DPAR_OK) {
            st = gpt_backward(t->g, layer, parts, v.weight, v.gradient, &t->batch[micro], dout, din,
                              kept, pending);
        }
        if (st == DPAR_OK && (parts & GPT_INPUT) != 0) {
            st = close_layer(t, layer);
        }
        if (st == DPAR_OK && t->each) {
            st = ready_layer(t, layer, micro == t->s->micros - 1);
        }
        dout = din;
    }
    if (st == DPAR_OK && t->each) {
        st = finish_pass(t);
    }
    return explain(t, st, why);
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
    trainer *t = (trainer *)ctx;
    int32_t end, layer;
    const int32_t first = stage_layers(t, task->action.stage, &end);
    dpar_status st = DPAR_OK;
    for (layer = end - 1; layer >= first && st == DPAR_OK && !t->each; layer--) {
        st = ready_layer(t, layer, 1);
    }
    return explain(t, st, why);
}

/* ---- schedule and pipeline ------------------------------------------------------------------- */

/* Generates the schedule of --schedule, with its messages. It is the same on all ranks. */
static dpar_status make_list(trainer *t)
{
    const settings *s = t->s;
    dpar_schedule_lower_desc how;
    dpar_schedule_desc order;
    dpar_schedule made;
    void *memory;
    int64_t bytes, k;
    dpar_status st;
    memset(&order, 0, sizeof order);
    st = dpar_schedule_find(&order, s->schedule, &t->why);
    if (st != DPAR_OK) {
        return st;
    }
    if (order.rule == DPAR_SCHEDULE_FORWARD_ONLY || order.rule == DPAR_SCHEDULE_SEQ1F1B) {
        snprintf(t->why.text, sizeof t->why.text, "--schedule %s does not train whole sequences",
                 s->schedule);
        return DPAR_E_ARG;
    }
    order.ranks = (int32_t)s->pp;
    order.micro_batches = s->micros;
    order.chunks = (int32_t)s->chunks;
    st = dpar_schedule_generate(&made, &order, NULL, 0, &t->why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    bytes = t->why.bytes;
    memory = malloc((size_t)bytes);
    if (memory == NULL) {
        return DPAR_E_MEMORY;
    }
    st = dpar_schedule_generate(&made, &order, memory, bytes, &t->why);
    memset(&how, 0, sizeof how);
    how.passes = DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE;
    if (st == DPAR_OK) {
        st = dpar_schedule_lower(&t->list, &made, &how, NULL, 0, &t->why);
    }
    if (st == DPAR_E_ROOM) {
        bytes = t->why.bytes;
        t->list_memory = malloc((size_t)bytes);
        st = DPAR_E_MEMORY;
        if (t->list_memory != NULL) {
            st = dpar_schedule_lower(&t->list, &made, &how, t->list_memory, bytes, &t->why);
        }
    }
    free(memory);
    if (st != DPAR_OK) {
        return st;
    }
    t->both_ways = t->list.chain < t->list.stages;
    t->layers = (int32_t)s->blocks + 2;
    t->each = t->list.ranks == 1 && t->list.stages == 1;
    for (k = 0; k < 2 * s->micros && t->each; k++) {
        t->each =
            t->list.action[k].kind == (k % 2 == 0 ? DPAR_ACTION_FORWARD : DPAR_ACTION_BACKWARD);
    }
    if (t->list.chain > t->layers - 2) {
        snprintf(t->why.text, sizeof t->why.text,
                 "--blocks %d are too few for a pipeline of %d stages: each needs one",
                 (int)s->blocks, (int)t->list.chain);
        return DPAR_E_ARG;
    }
    for (k = 0; k < t->list.stages; k++) {
        int32_t end, layer = stage_layers(t, (int32_t)k, &end);
        for (; layer < end && t->list.rank_of[k] == t->at[0]; layer++) {
            t->mine[layer] = 1;
        }
    }
    return DPAR_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The recording of --trace, which uses the callbacks above. */
#include "train_trace.h"

static dpar_status open_pipeline(trainer *t)
{
    const int64_t between = (int64_t)t->g->own * t->config.width;
    dpar_pipeline_desc o;
    dpar_slot_counts slots;
    int32_t k, local = 0;
    dpar_status st;
    memset(&o, 0, sizeof o);
    o.schedule = &t->list;
    o.type = GPT_TYPE;
    o.count = between;
    o.forward = on_forward;
    o.backward = on_backward;
    o.input = on_input;
    o.weight = on_weight;
    o.reduce = on_reduce;
    trace_callbacks(&o);
    o.ctx = t;
    for (k = 0; k < t->list.stages; k++) {
        int64_t kept = 0, shared = 0, pending = 0;
        int32_t end, layer = stage_layers(t, k, &end);
        for (; layer < end && t->list.rank_of[k] == t->at[0]; layer++) {
            kept += gpt_kept_bytes(t->g, layer);
            shared += gpt_shared_bytes(t->g, layer);
            pending += gpt_pending_bytes(t->g, layer);
        }
        o.activation_bytes = larger(o.activation_bytes, kept);
        t->shared_bytes = larger(t->shared_bytes, shared);
        o.weight_bytes = larger(o.weight_bytes, pending);
    }
    o.tied = t->tied;
    o.tied_count = t->config.tied ? t->tied_count : 0;
    o.tied_type = GPT_TYPE;
    o.start = t->began;
    o.end = t->ended;
    o.bytes = 1; /* too few, so that it returns how many bytes it needs */
    st = dpar_pipeline_make(t->pp, &o, &t->pipe, &t->why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    o.bytes = t->why.bytes;
    o.memory = take_plan(t, o.bytes);
    if (o.memory == NULL) {
        return DPAR_E_MEMORY;
    }
    st = dpar_pipeline_make(t->pp, &o, &t->pipe, &t->why);
    if (st == DPAR_OK) {
        slots = dpar_pipeline_slots(t->pipe, &local);
        t->slot_bytes = (slots.receive + slots.send + local) * between * (int64_t)sizeof(gpt_real) +
                        slots.activation * o.activation_bytes + slots.weight * o.weight_bytes;
        t->registered += t->slot_bytes;
        t->shared = (char *)gpt_open_shared(slots.activation * t->shared_bytes);
        st = t->shared != NULL ? DPAR_OK : DPAR_E_MEMORY;
    }
    return st;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Reads this rank's tokens of all micro-batches of a step. The place of a sample in the text
 * depends only on the step and the sample's number. */
static void read_samples(trainer *t, int64_t step, double scale)
{
    const settings *s = t->s;
    const int64_t length = (int64_t)s->length, micro = (int64_t)s->micro;
    const int64_t copies = (int64_t)s->dp, copy = t->at[1] * t->mesh.axis[2].size + t->at[2];
    int64_t m, j, k;
    for (m = 0; m < s->micros; m++) {
        int32_t *ids = t->ids + 2 * m * t->g->tokens;
        for (j = 0; j < micro; j++) {
            const uint64_t which = (uint64_t)((m * copies + copy) * micro + j);
            const uint64_t place = mix(mix((uint64_t)s->seed, (uint64_t)step), which);
            const unsigned char *from = s->bytes + place % (uint64_t)(s->count - length);
            for (k = 0; k <= length; k++) {
                t->sample[j * (length + 1) + k] = from[k];
            }
        }
        gpt_pick(t->g, t->sample, length + 1, ids);
        gpt_pick(t->g, t->sample + 1, length + 1, ids + t->g->tokens);
        memset(&t->batch[m], 0, sizeof t->batch[m]);
        t->batch[m].ids = ids;
        t->batch[m].targets = ids + t->g->tokens;
        t->batch[m].scale = scale;
        t->batch[m].balance = 1.0 / s->micros;
        t->batch[m].sum = &t->sums[m];
        memset(&t->sums[m], 0, sizeof t->sums[m]);
    }
}

/* ---- a step ---------------------------------------------------------------------------------- */

static dpar_status add_squares(const trainer *t, const void *in, int64_t count, int32_t type,
                               double *sum)
{
    dpar_mem_squares q;
    memset(&q, 0, sizeof q);
    q.in = in;
    q.count = count;
    q.type = type;
    q.accumulate = 1;
    q.sum = sum;
    return t->of_layers.squares(t->mem.ctx, &q);
}

/* Sum of squares of a store's gradients. Of parameters that tensor-parallel ranks have copies of
 * only the first copy counts. */
static dpar_status squares_of(const trainer *t, const store *s, double *sum)
{
    int32_t i;
    dpar_status st = DPAR_OK;
    *sum = 0.0;
    for (i = 0; i < s->params && st == DPAR_OK; i++) {
        const parameter *q = &s->of[i];
        dpar_piece piece;
        if (q->p.copy > 0) {
            continue;
        }
        if (s->ddp != NULL) {
            st = add_squares(t, dpar_ddp_gradient(s->ddp, i, NULL), s->numel[i], GPT_TYPE, sum);
        } else if (dpar_fsdp_piece(s->fsdp, i, &piece)) {
            int64_t count;
            int32_t type;
            const char *at =
                (const char *)dpar_fsdp_state(s->fsdp, DPAR_FSDP_GRADIENT, q->unit, &count, &type);
            st =
                add_squares(t, at + piece.in_shard * dpar_type_bytes(type), piece.count, type, sum);
        }
    }
    return st;
}

/* The 2-norm of all gradients of the model, each counted once: what several ranks have after the
 * reduction is divided by their number. */
static dpar_status norm_of(trainer *t, double *norm)
{
    double sum = 0.0;
    int32_t k;
    dpar_status st = DPAR_OK;
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        st = squares_of(t, &t->stores[k], &t->squares[k]);
    }
    if (st == DPAR_OK) {
        st = t->mem.wait(t->mem.ctx);
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        const store *s = &t->stores[k];
        int32_t alike = 1;
        if (s->ddp != NULL) {
            alike = s->all->size;
        } else if (s->across != NULL) {
            alike = s->across->size;
        }
        sum += t->squares[k] / ((double)alike * s->ends);
    }
    if (st == DPAR_OK) {
        st = dpar_all_reduce(t->world, &sum, &sum, 1, DPAR_F64, DPAR_SUM, NULL);
    }
    *norm = sqrt(sum);
    return st;
}

static dpar_status update(trainer *t, store *s, double rate, double factor)
{
    int32_t i;
    dpar_status st = DPAR_OK;
    if (s->fsdp != NULL) {
        return dpar_fsdp_step(s->fsdp, rate, factor);
    }
    s->steps++;
    for (i = 0; i < s->params && st == DPAR_OK; i++) {
        dpar_optimizer_piece piece;
        dpar_mem_optimize o;
        memset(&piece, 0, sizeof piece);
        memset(&o, 0, sizeof o);
        piece.weight = s->array[DPAR_FSDP_MASTER] + s->of[i].start;
        piece.gradient = dpar_ddp_gradient(s->ddp, i, NULL);
        piece.m = s->array[DPAR_FSDP_MOMENT_1] + s->of[i].start;
        piece.v = s->array[DPAR_FSDP_MOMENT_2] + s->of[i].start;
        piece.weight_type = piece.gradient_type = GPT_TYPE;
        piece.count = s->numel[i];
        o.optimizer = &s->optimizer;
        o.piece = &piece;
        o.step = s->steps;
        o.rate = rate;
        o.factor = factor;
        st = t->of_layers.optimize(t->mem.ctx, &o);
    }
    return st;
}

/* The learning rate: a linear warm-up, then half a cosine down to a tenth. */
static double rate_at(const settings *s, int64_t step)
{
    const double warm = s->warmup, done = (double)step - warm, all = s->steps - warm;
    if ((double)step < warm) {
        return s->rate * (double)(step + 1) / warm;
    }
    return s->rate * (0.55 + 0.45 * cos(3.14159265358979323846 * done / (all > 1.0 ? all : 1.0)));
}

/* The mean loss of the step's tokens, on all ranks. One of the tensor-parallel ranks counts, and
 * for the balancing loss, which is the same on all data-parallel ranks, one of these. */
static dpar_status loss_of(trainer *t, double scale, double *loss)
{
    double sum = 0.0;
    int64_t m;
    for (m = 0; m < t->s->micros && t->at[4] == 0; m++) {
        sum += scale * (t->sums[m].loss + t->sums[m].z_loss);
        sum += t->in_model.data->rank == 0 ? t->batch[m].balancing : 0.0;
    }
    *loss = sum;
    return dpar_all_reduce(t->world, loss, loss, 1, DPAR_F64, DPAR_SUM, NULL);
}

static dpar_status step_once(trainer *t, int64_t step, double *loss, double *norm)
{
    const settings *s = t->s;
    const double scale = 1.0 / (s->batch * s->length);
    dpar_status st = DPAR_OK;
    int32_t k;
    read_samples(t, step, scale);
    for (k = 0; k < STORES; k++) {
        dpar_ddp_zero(t->stores[k].ddp);
        dpar_fsdp_zero(t->stores[k].fsdp);
    }
    if (t->tied != NULL) {
        gpt_zero(t->g, t->tied, t->tied_count);
    }
    st = t->each ? DPAR_OK : begin_pass(t, 1);
    if (st == DPAR_OK) {
        st = trace_begin(t, step);
    }
    if (st == DPAR_OK) {
        st = dpar_pipeline_run(t->pipe, 1, &t->why);
    }
    trace_end(t);
    if (st == DPAR_OK && !t->each) {
        st = finish_pass(t);
    }
    if (st == DPAR_OK) {
        st = reduce_table(t);
    }
    if (st == DPAR_OK) {
        st = norm_of(t, norm);
    }
    for (k = 0; k < STORES && st == DPAR_OK; k++) {
        store *one = &t->stores[k];
        if (one->params > 0) {
            st = update(t, one, rate_at(s, step), dpar_optimizer_clip(*norm, s->clip));
        }
    }
    return st == DPAR_OK ? loss_of(t, scale, loss) : st;
}

/* Checkpoints and the planner's prediction, which use the trainer above. */
#include "train_files.h"
#include "train_plan.h"

/* ---- a run ----------------------------------------------------------------------------------- */

static void configure(trainer *t)
{
    const settings *s = t->s;
    gpt_config *c = &t->config;
    c->vocab = 256;
    c->width = (int32_t)s->width;
    c->blocks = (int32_t)s->blocks;
    c->heads = (int32_t)s->heads;
    c->groups = (int32_t)(s->groups > 0 ? s->groups : s->heads);
    c->hidden = (int32_t)(s->hidden > 0 ? s->hidden : 4 * s->width);
    c->samples = (int32_t)s->micro;
    c->length = (int32_t)s->length;
    c->layer_norm = s->layer_norm;
    c->gelu = s->gelu;
    c->tied = !s->untied;
    c->sp = s->sp;
    c->ulysses = s->ulysses;
    c->experts = (int32_t)s->experts;
    c->choices = (int32_t)s->choices;
    c->every = 2;
    c->shared = (int32_t)s->shared;
    c->drop = s->capacity > 0 ? DPAR_EXPERTS_DROP_POSITION : DPAR_EXPERTS_DROP_NONE;
    c->factor = s->capacity;
    c->balance = s->balance;
    c->seed = (uint64_t)s->seed;
}

static dpar_status open_model(trainer *t)
{
    int64_t bytes[GPT_PIECES];
    void *memory[GPT_PIECES];
    dpar_status st = gpt_bytes(&t->config, &t->in_model, bytes, &t->why);
    if (anyone(t->world, st != DPAR_OK)) {
        return st != DPAR_OK ? st : DPAR_E_PEER;
    }
    memory[GPT_PLANS] = take_plan(t, bytes[GPT_PLANS]);
    memory[GPT_ARRAYS] = take(t, bytes[GPT_ARRAYS]);
    memory[GPT_SHARED] = t->scratch = gpt_open_shared(bytes[GPT_SHARED]);
    if (anyone(t->world, memory[GPT_PLANS] == NULL || memory[GPT_ARRAYS] == NULL ||
                             memory[GPT_SHARED] == NULL)) {
        return DPAR_E_MEMORY;
    }
    return gpt_init(memory, bytes, &t->config, &t->in_model, &t->g, &t->why);
}

/* Allocates the memory that is not in the stores or the pipeline. */
static dpar_status open_rooms(trainer *t)
{
    const int64_t between = (int64_t)t->g->own * t->config.width * (int64_t)sizeof(gpt_real);
    const int64_t micros = t->s->micros;
    int64_t wide = 0;
    int32_t layer, slot;
    gpt_parameter p;
    for (layer = 0; layer < t->layers; layer++) {
        int64_t sum = 0;
        for (slot = 0; slot < GPT_SLOTS; slot++) {
            sum += gpt_parameter_of(t->g, layer, slot, &p) ? p.numel : 0;
        }
        wide = t->s->bf16 ? larger(wide, sum) : 0;
    }
    if (gpt_parameter_of(t->g, 0, GPT_TABLE, &p)) {
        t->tied_count = p.numel;
    }
    t->between[0] = (gpt_real *)take(t, between);
    t->between[1] = (gpt_real *)take(t, between);
    t->wide = (gpt_real *)take(t, wide * (int64_t)sizeof(gpt_real));
    t->tied = t->stores[TABLE].params > 0
                  ? (gpt_real *)take(t, t->tied_count * (int64_t)sizeof(gpt_real))
                  : NULL;
    t->batch = (gpt_batch *)calloc((size_t)micros, sizeof *t->batch);
    t->ids = (int32_t *)gpt_open_shared(2 * micros * t->g->tokens * (int64_t)sizeof *t->ids);
    t->sums = (dpar_cross_entropy_sum *)gpt_open_shared(micros * (int64_t)sizeof *t->sums);
    t->squares = (double *)gpt_open_shared(STORES * (int64_t)sizeof *t->squares);
    t->sample = (int32_t *)calloc((size_t)(t->s->micro * (t->s->length + 1)), sizeof *t->sample);
    if (t->between[0] == NULL || t->between[1] == NULL || t->wide == NULL || t->batch == NULL ||
        t->ids == NULL || t->sums == NULL || t->squares == NULL || t->sample == NULL ||
        (t->stores[TABLE].params > 0 && t->tied == NULL)) {
        return DPAR_E_MEMORY;
    }
    return DPAR_OK;
}

static dpar_status open_all(trainer *t)
{
    dpar_status st = lay_mesh(t);
    configure(t);
    if (st == DPAR_OK) {
        st = make_list(t);
    }
    if (st == DPAR_OK) {
        st = open_comms(t);
    }
    if (st == DPAR_OK) {
        st = open_model(t);
    }
    if (st == DPAR_OK) {
        st = open_stores(t);
    }
    if (st == DPAR_OK) {
        st = open_rooms(t);
    }
    if (st == DPAR_OK) {
        st = trace_open(t);
    }
    return st == DPAR_OK ? open_pipeline(t) : st;
}

static int close_all(trainer *t, int bad)
{
    int32_t k;
    dpar_status st = DPAR_OK;
    if (!bad) {
        st = t->mem.wait(t->mem.ctx);
        if (st == DPAR_OK) {
            st = dpar_pipeline_free(t->pipe);
        }
        for (k = 0; k < STORES && st == DPAR_OK; k++) {
            st = dpar_ddp_free(t->stores[k].ddp);
            if (st == DPAR_OK) {
                st = dpar_fsdp_free(t->stores[k].fsdp);
            }
        }
        if (st == DPAR_OK) {
            st = gpt_close(t->g);
        }
        if (st == DPAR_OK) {
            st = dpar_barrier(t->world, NULL);
        }
        for (k = 0; k < t->memories; k++) {
            dpar_comm_release(t->world, t->memory[k]);
        }
        for (k = t->comms - 1; k >= 0 && st == DPAR_OK; k--) {
            st = dpar_comm_free(t->comm[k]);
        }
    }
    for (k = 0; k < STORES; k++) {
        free(t->stores[k].of);
        free(t->stores[k].numel);
        free(t->stores[k].params_of);
    }
    for (k = 0; k < t->plans; k++) {
        free(t->plan[k]);
    }
    gpt_close_shared(t->shared);
    gpt_close_shared(t->scratch);
    gpt_close_shared(t->ids);
    gpt_close_shared(t->sums);
    gpt_close_shared(t->squares);
    free(t->batch);
    free(t->staged);
    free(t->sample);
    trace_close(t);
    free(t->list_memory);
    free(t);
    return bad != 0 ? bad : st != DPAR_OK;
}

static void tell_step(const trainer *t, int64_t step, double loss, double norm, double took,
                      double left)
{
    const settings *s = t->s;
    const int64_t all = (int64_t)s->steps, tenth = all / 10 > 0 ? all / 10 : 1;
    if (t->world->rank == 0 && !s->quiet && (step < 3 || (step + 1) % tenth == 0)) {
        printf("step %5lld  loss %.6f  norm %.3f  rate %.2e  %.0f tokens/s  %d:%02d left\n",
               (long long)step + 1, loss, norm, rate_at(s, step), s->batch * s->length / took,
               (int)left / 60, (int)left % 60);
        fflush(stdout);
    }
}

/* Runs all steps. Returns 0, or 1 after a message. */
static int go(trainer *t, result *r)
{
    const settings *s = t->s;
    const int64_t all = (int64_t)s->steps;
    double began = now(), sum = 0.0, norm = 0.0;
    int64_t step;
    for (step = t->first_step; step < all; step++) {
        const double before = now();
        double took;
        dpar_status st;
        if (step == s->kill_step && t->world->rank == s->kill_rank && t->world->size > 1) {
            (void)raise(SIGKILL);
        }
        st = step_once(t, step, &r->loss[step], &norm);
        if (st != DPAR_OK) {
            (void)explain(t, st, &t->why);
            dpar_comm_abort(t->world, st, t->why.text);
            return complain(t->why.text[0] != 0 ? t->why.text : dpar_status_text(st), NULL) - 1;
        }
        if (!(r->loss[step] < 1e9)) {
            return complain("the loss is no longer a finite number: lower --rate", NULL) - 1;
        }
        took = now() - before;
        if (step > t->first_step) {
            sum += took;
            r->best = r->best > 0.0 && r->best < took ? r->best : took;
        }
        tell_step(t, step, r->loss[step], norm, took,
                  (now() - began) / (double)(step + 1 - t->first_step) * (double)(all - 1 - step));
        if (s->save != NULL &&
            (step == all - 1 || (s->every > 0 && (step + 1) % (int64_t)s->every == 0)) &&
            save(t, step + 1)) {
            return 1;
        }
    }
    r->mean = all - 1 > t->first_step ? sum / (double)(all - 1 - t->first_step) : 0.0;
    return 0;
}

/* Prints memory and time as measured and as planned. Returns 1 on failure. */
static int compare_plan(trainer *t, const result *r, double seconds, double bytes)
{
    int64_t most[3];
    most[0] = t->registered;
    most[1] = t->state_bytes;
    most[2] = t->slot_bytes;
    if (dpar_all_reduce(t->world, most, most, 3, DPAR_I64, DPAR_MAX, NULL) != DPAR_OK) {
        return 1;
    }
    if (t->world->rank == 0 && !t->s->quiet && r->mean > 0.0) {
        printf("memory of the rank that has most: %.3f MB, of them weights, gradients and "
               "optimizer %.3f, activations and messages %.3f, else scratch",
               (double)most[0] / 1e6, (double)most[1] / 1e6, (double)most[2] / 1e6);
        printf(bytes > 0.0 ? "; planned %.3f (measured / planned %.2f)\n" : "\n", bytes / 1e6,
               (double)most[0] / (bytes > 0.0 ? bytes : 1.0));
        printf("step: %.3f ms on average, %.3f at best", r->mean * 1e3, r->best * 1e3);
        printf(seconds > 0.0 ? "; planned %.3f (measured / planned %.2f)\n" : "\n", seconds * 1e3,
               r->mean / (seconds > 0.0 ? seconds : 1.0));
    }
    return 0;
}

/* Trains on all ranks of world. whole: also gathers all parameters in *r. Returns the exit code. */
static int train(dpar_comm *world, const settings *s, result *r, int whole)
{
    trainer *t = (trainer *)calloc(1, sizeof *t);
    double seconds = 0.0, bytes = 0.0;
    int bad;
    dpar_status st;
    if (t == NULL) {
        return complain("no memory for the trainer", NULL) - 1;
    }
    t->s = s;
    t->world = world;
    t->mem = world->mem != NULL ? *world->mem : dpar_mem_host();
    t->of_layers =
        t->mem.layers != NULL ? *(const dpar_mem_layers *)t->mem.layers : dpar_mem_host_layers();
    st = open_all(t);
    if (anyone(world, st != DPAR_OK)) {
        (void)explain(t, st, &t->why);
        (void)complain(t->why.text[0] != 0 ? t->why.text : dpar_status_text(st), NULL);
        (void)dpar_barrier(world, NULL); /* no rank ends before all messages are printed */
        return close_all(t, 2);
    }
    bad = s->resume != NULL ? resume(t) : 0;
    if (!bad && world->rank == 0 && !s->quiet) {
        printf("%lld parameters; %d x %d x %d x %d x %d ranks (pp, replicas, shards, cp, tp), ep "
               "%d, engine %s; %d micro-batches of %d x %d tokens\n",
               (long long)t->whole, (int)s->pp, (int)s->replicas, (int)(s->dp / s->replicas),
               (int)s->cp, (int)s->tp, (int)s->ep, world->engine.name, s->micros, (int)s->micro,
               (int)s->length);
        fflush(stdout);
    }
    if (bad == 0) {
        bad = (!s->quiet && plan(t, &seconds, &bytes)) || go(t, r) ||
              compare_plan(t, r, seconds, bytes) || (s->trace != NULL && write_trace(t)) ||
              (whole && gather_whole(t, r));
    }
    return close_all(t, bad);
}

/* ---- --check: the same on one rank ----------------------------------------------------------- */

/* The settings for one rank: the same number of micro-batches, with the samples of all replicas. */
static settings alone(const settings *s)
{
    settings one = *s;
    one.micro = s->micro * s->dp;
    one.ranks = one.pp = one.dp = one.replicas = one.cp = one.tp = one.ep = 1;
    one.sp = one.ulysses = 0;
    one.zero = s->bf16 ? 1 : 0;
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
static int agree(const settings *s, const result *one, const result *all)
{
    double bound = sizeof(gpt_real) == 8 ? 1e-11 : 1e-5, loss = 0.0, worst = 0.0, single = 0.0;
    char text[80];
    const char *name = "";
    int64_t at = 0, i;
    int32_t n;
    if (s->pure && (s->tp > 1 || s->pp > 1 || s->ep > 1)) {
        bound = 3e-2; /* elements have other places, and so other random numbers for rounding */
    } else if (s->bf16) {
        bound = 1e-3;
    }
    for (i = 0; i < (int64_t)s->steps; i++) {
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
           (int)s->steps, loss, worst, name, single);
    if (loss <= bound && worst <= bound) {
        return 0;
    }
    snprintf(text, sizeof text, "losses or parameters differ by more than %.0e", bound);
    return complain(text, NULL) - 1;
}

static void forget(result *r)
{
    free(r->loss);
    free(r->whole);
    free(r->shape);
}

/* What each rank runs. */
static int rank_main(dpar_comm *world, void *arg)
{
    const settings *s = (const settings *)arg;
    result all, one;
    dpar_comm *self = NULL;
    int bad = 0;
    options_quiet = world->rank != 0;
    memset(&all, 0, sizeof all);
    memset(&one, 0, sizeof one);
    all.loss = (double *)calloc((size_t)s->steps + 1, sizeof *all.loss);
    one.loss = (double *)calloc((size_t)s->steps + 1, sizeof *one.loss);
    bad = all.loss == NULL || one.loss == NULL;
    if (bad) {
        (void)complain("no memory for the losses of all steps", NULL);
    }
    if (s->check) {
        bad |= dpar_comm_split(world, world->rank == 0 ? 0 : -1, 0, &self) != DPAR_OK;
        if (self != NULL && !bad) {
            const settings first = alone(s);
            bad = train(self, &first, &one, 1);
            (void)dpar_comm_free(self);
        }
    }
    bad = worst(world, bad);
    if (bad == 0) {
        bad = train(world, s, &all, s->check);
    }
    if (s->check && !bad && world->rank == 0) {
        bad = agree(s, &one, &all);
    }
    forget(&all);
    forget(&one);
    if (world->rank == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        bad = complain("the results could not be written to standard output", NULL) - 1;
    }
    return bad;
}

#ifdef GPT_CUDA
static int on_gpu(gpu *g, const void *arg)
{
    settings s = *(const settings *)arg;
    return rank_main(g->world, &s);
}

/* Runs on a launcher's ranks, or on ranks that are started here. Returns the exit code. */
static int run(settings *s, int none)
{
    dpar_launcher_info job;
    double ranks = none;
    if (find_ranks(&job, &ranks)) {
        return 2;
    }
    options_quiet = job.kind != DPAR_LAUNCHER_NONE && job.rank > 0;
    return settle_ranks(s, (int)ranks) || settle(s) ? 2 : run_ranks(&job, s->ranks, on_gpu, s);
}

int main(int argc, char **argv)
{
    settings s = defaults();
    int code = read_words(argc, argv, &s);
    if (code < 0) {
        code = run(&s, 0);
    }
    free(s.bytes);
    return code;
}
#else
static int reads(int argc, char **argv, int *ranks, void *at)
{
    settings *s = (settings *)at;
    const int code = read_words(argc, argv, s);
    if (code >= 0) {
        return code;
    }
    if (settle_ranks(s, *ranks) || settle(s)) {
        return 2;
    }
    *ranks = (int)s->ranks;
    return -1;
}

int main(int argc, char **argv)
{
    settings s = defaults();
    const int code = start(argc, argv, reads, rank_main, &s);
    free(s.bytes);
    return code;
}
#endif
