/* SPDX-License-Identifier: MIT-0 */
/* pipeline: tests the pipeline runner on real ranks with each rule of dpar_schedule.h that exists
 * for the number of ranks and 1 to 16 micro-batches. Cases are with and without gathers,
 * reductions, merged backwards, sunk receives, own maps, and activations that are offloaded to the
 * host or recomputed. The model is a chain of small stages in integers modulo 2^64, whose sums are
 * the same in any order. It is compared with the same chain on one rank, written out here.
 * Gradients are summed over two steps.
 *
 *   pipeline [processes|threads] [ranks]      without arguments: both, 1 to 8 ranks
 *   mpirun -np 4 pipeline                     built with -DUSE_MPI
 *
 * With -DDEVICE_MEMORY activations, gradients and messages are in memory that the CPU cannot
 * access, and the work of the callbacks is enqueued on the device; with -DDEVICE_CUDA that is
 * CUDA. */
#include "dpar_train.h"
#include "plan_memory.h"
#include "rank_program.h"
#include "schedule_calls.h"
#ifdef DEVICE_MEMORY
#include "device_memory.h"
#else
#define ON_DEVICE(call) (call)
#endif

#include <signal.h>
#include <sys/mman.h>

enum { MICROS = 16, WIDE = 8, WORDS = 13, CHAIN = 32, STEPS = 2 };
#ifdef DEVICE_MEMORY
enum { MOST_MICROS = 12, CASES = 12 * 12 };
#else
enum { MOST_MICROS = MICROS, CASES = 16 * 12 };
#endif

/* Allocates zeroed memory that the device can access. */
static void *zeroed_there(int64_t bytes)
{
#ifdef DEVICE_MEMORY
    return device_zeroed(bytes);
#else
    return zeroed(bytes);
#endif
}

static void free_there(void *at)
{
#ifdef DEVICE_MEMORY
    device_free(at);
#else
    free(at);
#endif
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * UINT64_C(0x9e3779b97f4a7c15) + b + 1;
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- the chain ------------------------------------------------------------------------------- */

/* Returns the number of outputs of link q of the chain. The first link has 4 inputs. */
static int outputs(int q)
{
    return 5 + q % 3;
}

static int inputs(int q)
{
    return q == 0 ? 4 : outputs(q - 1);
}

static uint64_t weight_of(int q, int i)
{
    return mix((uint64_t)q, (uint64_t)i) | 1u;
}

static uint64_t word_of(int i)
{
    return mix(77, (uint64_t)i);
}

/* Gradients. The words are inputs at both ends of the chain. */
typedef struct sums {
    uint64_t weight[CHAIN][WIDE], word[WORDS];
} sums;

static int first_word(int step, int m, int i)
{
    return (5 * step + 3 * m + i) % WORDS;
}

static int last_word(int step, int m, int i)
{
    return (step + m + 2 * i) % WORDS;
}

static void link_forward(int q, const uint64_t *x, uint64_t *y)
{
    int i;
    for (i = 0; i < outputs(q); i++) {
        y[i] = weight_of(q, i) * x[i % inputs(q)] + (uint64_t)(q + i);
    }
}

static void link_input(int q, const uint64_t *g, uint64_t *dx)
{
    int i;
    memset(dx, 0, (size_t)inputs(q) * sizeof *dx);
    for (i = 0; i < outputs(q); i++) {
        dx[i % inputs(q)] += weight_of(q, i) * g[i];
    }
}

static void link_weight(int q, const uint64_t *x, const uint64_t *g, sums *s)
{
    int i;
    for (i = 0; i < outputs(q); i++) {
        s->weight[q][i] += g[i] * x[i % inputs(q)];
    }
}

static void read_words(int step, int m, uint64_t *x)
{
    int i;
    for (i = 0; i < inputs(0); i++) {
        x[i] = word_of(first_word(step, m, i));
    }
}

/* Computes the gradients of the loss, the sum of y (3 y / 2 + word). */
static void loss(int q, int step, int m, const uint64_t *y, uint64_t *g)
{
    int i;
    for (i = 0; i < outputs(q); i++) {
        g[i] = 3 * y[i] + word_of(last_word(step, m, i));
    }
}

static void loss_words(int q, int step, int m, const uint64_t *y, sums *s)
{
    int i;
    for (i = 0; i < outputs(q); i++) {
        s->word[last_word(step, m, i)] += y[i];
    }
}

static void first_words(int step, int m, const uint64_t *dx, sums *s)
{
    int i;
    for (i = 0; i < inputs(0); i++) {
        s->word[first_word(step, m, i)] += dx[i];
    }
}

/* Computes all gradients on one rank, one micro-batch after the other. */
static void serial(int chain, int micros, int steps, int trains, sums *s)
{
    uint64_t x[CHAIN + 1][WIDE], g[WIDE], dx[WIDE];
    int step, m, q;
    memset(s, 0, sizeof *s);
    for (step = 0; step < steps && trains; step++) {
        for (m = 0; m < micros; m++) {
            read_words(step, m, x[0]);
            for (q = 0; q < chain; q++) {
                link_forward(q, x[q], x[q + 1]);
            }
            loss(chain - 1, step, m, x[chain], g);
            loss_words(chain - 1, step, m, x[chain], s);
            for (q = chain - 1; q >= 0; q--) {
                link_weight(q, x[q], g, s);
                link_input(q, g, dx);
                memcpy(g, dx, sizeof g);
            }
            first_words(step, m, g, s);
        }
    }
}

/* ---- the callbacks --------------------------------------------------------------------------- */

/* An activation in its slot: stage and micro-batch it belongs to, and the values that the weight
 * pass needs. `pending` is the same with a gradient. */
typedef struct kept {
    int64_t stage, micro;
    uint64_t x[WIDE], y[WIDE];
} kept;

typedef struct pending {
    int64_t stage, micro;
    uint64_t g[WIDE];
} pending;

typedef struct job {
    dpar_comm *c, *replicas;
    dpar_ddp *ddp;   /* over the replicas; NULL if there is none */
    dpar_fsdp *fsdp; /* the same; its units are the links */
    const dpar_schedule *s;
    dpar_pipeline *p;
    int32_t step, steps, live, pairs;
    int64_t ran;                   /* callbacks so far in this step */
    const dpar_action *next, *end; /* the actions that are still to run */
    int32_t reduced[2 * CHAIN], gathered[2 * CHAIN], passed[2 * CHAIN], waited[2 * CHAIN];
    int32_t dressed; /* 1: there are OFFLOADs, RELOADs and RECOMPUTEs */
    kept host[2 * CHAIN][MICROS];
    uint8_t again[2 * CHAIN][MICROS]; /* recomputed */
    /* trains: 0 for a list without backwards, whose slots are never released */
    int32_t wrong, trains;
    /* errors found on the device, which also writes live, passed, again and host */
    int32_t bad;
    int32_t more; /* padding elements at the end of messages, all equal to the first */
    int32_t fails_kind, fails_stage, fails_micro, kills; /* -1: none fails */
    dpar_slot_counts counts;
    sums *mine, *all; /* in device memory */
} job;

/* The work of a callback. It runs at once, or later on the device. Only this work dereferences the
 * pointers of the task. */
typedef struct turn turn;
struct turn {
    job *j;
    dpar_stage_task task;
    const double *weight; /* from fsdp */
    double *gradient;     /* from fsdp or ddp */
    void (*run)(turn *w);
};

#ifdef DEVICE_MEMORY
static void turn_comes(void *call)
{
    turn *w = (turn *)call;
    DEVICE_THERE(w->task.in, const void);
    DEVICE_THERE(w->task.out, void);
    DEVICE_THERE(w->task.activation_memory, void);
    DEVICE_THERE(w->task.weight_memory, void);
    DEVICE_THERE(w->weight, const double);
    DEVICE_THERE(w->gradient, double);
    w->run(w);
}
#endif

static void launch(job *j, const dpar_stage_task *t, const double *weight, double *gradient,
                   void (*run)(turn *w))
{
    turn w;
    memset(&w, 0, sizeof w);
    w.j = j;
    w.task = *t;
    w.weight = weight;
    w.gradient = gradient;
    w.run = run;
#ifdef DEVICE_MEMORY
    device_later(turn_comes, &w, sizeof w);
#else
    run(&w);
#endif
}

/* Copies from the device after all work that it was given. */
static void device_read(void *to, const void *from, int64_t bytes)
{
    (void)ON_DEVICE(0);
    memcpy(to, from, (size_t)bytes);
}

static sums *mine_of(const job *j)
{
#ifdef DEVICE_MEMORY
    return (sums *)device_there(j->mine);
#else
    return j->mine;
#endif
}

/* Checks that this callback is the next action of the list. Messages and actions that do not run
 * have no callback. */
static void follow(job *j, const dpar_stage_task *t)
{
    while (j->next < j->end &&
           (j->next->kind == DPAR_ACTION_IDLE ||
            (j->next->kind >= DPAR_ACTION_SEND_F && j->next->kind <= DPAR_ACTION_RECV_B) ||
            (j->step < j->steps - 1 && (j->next->kind == DPAR_ACTION_REDUCE_GRAD ||
                                        j->next->kind == DPAR_ACTION_WAIT_REDUCE)))) {
        j->next++;
    }
    j->wrong += j->next >= j->end || j->next->kind != t->action.kind ||
                j->next->stage != t->action.stage || j->next->micro_batch != t->action.micro_batch;
    j->wrong += t->last != (j->step == j->steps - 1);
    j->next++;
    j->ran++;
}

static int link_of(const job *j, const dpar_stage_task *t)
{
    return t->action.stage % j->s->chain;
}

/* Returns the weights for ddp and fsdp: small enough to be exact in doubles. */
static double small(uint64_t v)
{
    return (double)(v % 65536u);
}

/* Checks the buffers that are passed to a stage. */
static void look(job *j, const dpar_stage_task *t, int forward)
{
    const int q = link_of(j, t), is_first = q == 0, is_last = q == j->s->chain - 1;
    const int none_in = forward ? is_first : is_last, none_out = forward ? is_last : is_first;
    j->wrong += (t->in == NULL) != none_in || (t->out == NULL) != none_out;
    j->wrong += t->in_count != (none_in ? 0 : j->more + (forward ? inputs(q) : outputs(q)));
    j->wrong += t->out_count != (none_out ? 0 : j->more + (forward ? outputs(q) : inputs(q)));
    j->wrong += t->activation_slot < 0 || t->activation_slot >= j->counts.activation ||
                t->activation_memory == NULL;
    j->wrong += j->gathered[t->action.stage] == 0;
}

/* Returns the weights of the task's stage; NULL without fsdp. */
static const double *weights(job *j, const dpar_stage_task *t)
{
    const double *w = NULL;
    if (j->fsdp != NULL) {
        w = (const double *)dpar_fsdp_weight(j->fsdp, link_of(j, t));
        j->wrong += w == NULL;
    }
    return w;
}

static void look_at_weights(turn *w)
{
    const int q = link_of(w->j, &w->task);
    w->j->bad +=
        w->weight != NULL && (w->weight[0] != small(weight_of(q, 0)) ||
                              w->weight[outputs(q) - 1] != small(weight_of(q, outputs(q) - 1)));
}

static int fails(const job *j, const dpar_stage_task *t, dpar_why *why)
{
    if (t->action.kind != j->fails_kind || t->action.stage != j->fails_stage ||
        t->action.micro_batch != j->fails_micro) {
        return 0;
    }
    if (j->kills) {
        (void)raise(SIGKILL);
    }
    memcpy(why->text, "the data ends here", 19);
    return 1;
}

/* Does what all callbacks begin with. Returns 1 if this one is to fail. */
static int ends_here(job *j, const dpar_stage_task *t, dpar_why *why)
{
    follow(j, t);
    return fails(j, t, why);
}

/* Writes the padding of a message. */
static void pad(const job *j, uint64_t *out, int n)
{
    int i;
    for (i = 0; out != NULL && i < j->more; i++) {
        out[n + i] = out[0];
    }
}

static void look_at_padding(job *j, const uint64_t *in, int n)
{
    int i;
    for (i = 0; in != NULL && i < j->more; i++) {
        j->bad += in[n + i] != in[0];
    }
}

static void forward_turn(turn *w)
{
    job *j = w->j;
    const dpar_stage_task *t = &w->task;
    kept *k = (kept *)t->activation_memory;
    const int q = link_of(j, t);
    look_at_weights(w);
    j->bad += k->stage != 0 && j->trains; /* the slot is free */
    j->bad += ++j->live > j->counts.activation && j->trains;
    k->stage = t->action.stage + 1;
    k->micro = t->action.micro_batch;
    if (t->in != NULL) {
        memcpy(k->x, t->in, (size_t)inputs(q) * 8);
    } else {
        read_words(j->step, t->action.micro_batch, k->x);
    }
    look_at_padding(j, (const uint64_t *)t->in, inputs(q));
    link_forward(q, k->x, t->out != NULL ? (uint64_t *)t->out : k->y);
    pad(j, (uint64_t *)t->out, outputs(q));
}

static dpar_status forward(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    look(j, t, 1);
    launch(j, t, weights(j, t), NULL, forward_turn);
    return t->action.micro_batch % 2 != 0 ? DPAR_MORE : DPAR_OK; /* a condition is not an error */
}

/* Returns 1 if the activation goes to the host and back. `recomputes` does so for those that are
 * recomputed. */
static int offloads(int stage, int micro)
{
    return (stage + micro) % 2 == 0;
}

static int recomputes(int stage, int micro)
{
    return (stage + micro) % 3 != 0;
}

/* Writes the gradient of the output to g and that of the input to t->out. */
static kept *back(turn *w, uint64_t *g)
{
    job *j = w->j;
    const dpar_stage_task *t = &w->task;
    kept *k = (kept *)t->activation_memory;
    uint64_t dx[WIDE];
    const int q = link_of(j, t);
    look_at_weights(w);
    j->bad += k->stage != t->action.stage + 1 || k->micro != t->action.micro_batch;
    if (j->dressed) {
        uint8_t *again = &j->again[t->action.stage][t->action.micro_batch];
        j->bad += *again != recomputes(t->action.stage, t->action.micro_batch);
        *again = 0;
    }
    if (t->in != NULL) {
        memcpy(g, t->in, (size_t)outputs(q) * 8);
    } else {
        loss(q, j->step, t->action.micro_batch, k->y, g);
        loss_words(q, j->step, t->action.micro_batch, k->y, mine_of(j));
    }
    look_at_padding(j, (const uint64_t *)t->in, outputs(q));
    link_input(q, g, t->out != NULL ? (uint64_t *)t->out : dx);
    pad(j, (uint64_t *)t->out, inputs(q));
    if (t->out == NULL) {
        first_words(j->step, t->action.micro_batch, dx, mine_of(j));
    }
    return k;
}

static void over(job *j, const dpar_stage_task *t, kept *k, const uint64_t *g)
{
    link_weight(link_of(j, t), k->x, g, mine_of(j));
    memset(k, 0, sizeof *k);
    j->live--;
    j->passed[t->action.stage]++;
}

static void backward_turn(turn *w)
{
    uint64_t g[WIDE];
    kept *k = back(w, g);
    over(w->j, &w->task, k, g);
}

static dpar_status backward(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    look(j, t, 0);
    launch(j, t, weights(j, t), NULL, backward_turn);
    return DPAR_OK;
}

static void input_turn(turn *w)
{
    pending *p = (pending *)w->task.weight_memory;
    w->j->bad += p->stage != 0;
    p->stage = w->task.action.stage + 1;
    p->micro = w->task.action.micro_batch;
    (void)back(w, p->g);
}

static dpar_status input(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    look(j, t, 0);
    j->wrong += t->weight_slot < 0 || t->weight_slot >= j->counts.weight;
    launch(j, t, weights(j, t), NULL, input_turn);
    return DPAR_OK;
}

static void weight_turn(turn *w)
{
    pending *p = (pending *)w->task.weight_memory;
    w->j->bad += p->stage != w->task.action.stage + 1 || p->micro != w->task.action.micro_batch;
    over(w->j, &w->task, (kept *)w->task.activation_memory, p->g);
    memset(p, 0, sizeof *p);
}

static dpar_status weight(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    launch(j, t, NULL, NULL, weight_turn);
    return dpar_pipeline_progress(j->p);
}

static dpar_status both(void *ctx, const dpar_stage_task *f, const dpar_stage_task *b,
                        dpar_why *why)
{
    job *j = (job *)ctx;
    dpar_status st = forward(ctx, f, why);
    j->pairs++;
    j->wrong += f->out != NULL && (f->out == b->in || f->out == b->out || f->out == f->in);
    j->wrong += b->out != NULL && (b->out == f->in || b->out == b->in);
    return st < 0                                   ? st
           : b->action.kind == DPAR_ACTION_BACKWARD ? backward(ctx, b, why)
                                                    : input(ctx, b, why);
}

static void reduce_turn(turn *w)
{
    job *j = w->j;
    const int q = link_of(j, &w->task);
    int i;
    j->bad +=
        j->passed[w->task.action.stage] == 0 || j->passed[w->task.action.stage] % j->steps != 0;
    for (i = 0; w->gradient != NULL && i < outputs(q); i++) {
        w->gradient[i] = small(mine_of(j)->weight[q][i]);
    }
}

static dpar_status reduce(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    const int q = link_of(j, t);
    void *g = NULL;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    j->reduced[t->action.stage]++;
    if (j->ddp != NULL || j->fsdp != NULL) {
        g = j->ddp != NULL ? dpar_ddp_gradient(j->ddp, q, NULL)
                           : dpar_fsdp_gradient(j->fsdp, q, NULL);
    }
    launch(j, t, NULL, (double *)g, reduce_turn);
    return j->ddp != NULL    ? dpar_ddp_ready(j->ddp, q)
           : j->fsdp != NULL ? dpar_fsdp_ready(j->fsdp, q)
                             : (dpar_status)DPAR_OK;
}

static dpar_status unshard(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    j->wrong += j->gathered[t->action.stage] != 0 || t->activation_slot != -1 || t->in != NULL;
    j->gathered[t->action.stage] = 1;
    if (j->fsdp == NULL) {
        return DPAR_OK;
    }
    /* All micro-batches are one pass, so the first gather must reserve memory for gradients too. */
    return dpar_fsdp_unshard(j->fsdp, link_of(j, t),
                             dpar_fsdp_gradient(j->fsdp, link_of(j, t), NULL) == NULL
                                 ? DPAR_ACTION_BACKWARD
                                 : DPAR_ACTION_FORWARD);
}

static dpar_status reshard(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    j->wrong += j->gathered[t->action.stage] != 1;
    j->gathered[t->action.stage] = 0;
    return j->fsdp == NULL ? DPAR_OK
                           : dpar_fsdp_reshard(j->fsdp, link_of(j, t), DPAR_ACTION_FORWARD);
}

/* Runs a callback that has only an activation as its argument. */
static dpar_status alone(void *ctx, const dpar_stage_task *t, dpar_why *why, void (*run)(turn *w))
{
    job *j = (job *)ctx;
    j->wrong += t->in != NULL || t->out != NULL || t->in_count != 0 || t->out_count != 0;
    j->wrong += t->activation_slot < 0 || t->activation_slot >= j->counts.activation ||
                t->weight_slot != -1;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    launch(j, t, NULL, NULL, run);
    return DPAR_OK;
}

static void offload_turn(turn *w)
{
    job *j = w->j;
    const dpar_action *a = &w->task.action;
    kept *k = (kept *)w->task.activation_memory;
    j->bad += k->stage != a->stage + 1 || k->micro != a->micro_batch;
    j->host[a->stage][a->micro_batch] = *k;
    memset(k, 0, sizeof *k);
    j->live--;
}

static dpar_status offload(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    return alone(ctx, t, why, offload_turn);
}

static void reload_turn(turn *w)
{
    job *j = w->j;
    const dpar_action *a = &w->task.action;
    kept *k = (kept *)w->task.activation_memory;
    j->bad += k->stage != 0 || ++j->live > j->counts.activation;
    *k = j->host[a->stage][a->micro_batch];
    memset(&j->host[a->stage][a->micro_batch], 0, sizeof *k);
}

static dpar_status reload(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    return alone(ctx, t, why, reload_turn);
}

static void recompute_turn(turn *w)
{
    job *j = w->j;
    const dpar_action *a = &w->task.action;
    const kept *k = (const kept *)w->task.activation_memory;
    const int q = link_of(j, &w->task);
    uint64_t y[WIDE];
    j->bad += k->stage != a->stage + 1 || k->micro != a->micro_batch;
    link_forward(q, k->x, y);
    j->bad += q == j->s->chain - 1 && memcmp(y, k->y, (size_t)outputs(q) * 8) != 0;
    j->again[a->stage][a->micro_batch]++;
}

static dpar_status recompute(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    return alone(ctx, t, why, recompute_turn);
}

static dpar_status wait_reduce(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    job *j = (job *)ctx;
    if (ends_here(j, t, why)) {
        return DPAR_E_RANGE;
    }
    j->wrong += j->reduced[t->action.stage] != 1 || t->activation_slot != -1 ||
                t->activation_memory != NULL;
    j->waited[t->action.stage]++;
    return DPAR_OK;
}

/* ---- schedules ------------------------------------------------------------------------------- */

typedef struct list {
    dpar_schedule s;
    void *mem;
} list;

static void take(list *l, const dpar_schedule *s, void *mem)
{
    free(l->mem);
    l->s = *s;
    l->mem = mem;
}

/* Runs all passes of the lowering in turn, except those that a case leaves out. */
static void lower(list *l, int32_t passes, int32_t merges, int32_t sinks)
{
    dpar_schedule_lower_desc how;
    dpar_schedule out;
    dpar_why why;
    int64_t bytes;
    void *mem;
    memset(&how, 0, sizeof how);
    how.passes = passes;
    if (merges) {
        bytes = merge_list_bytes(&l->s, &why);
        mem = zeroed(bytes);
        CHECK_INT(merge_list(&out, &l->s, mem, bytes, &why), DPAR_OK);
        take(l, &out, mem);
    }
    bytes = dpari_schedule_lower_bytes(&l->s, &how, &why);
    mem = zeroed(bytes);
    CHECK_INT(dpar_schedule_lower(&out, &l->s, &how, mem, bytes, &why), DPAR_OK);
    take(l, &out, mem);
    if (sinks >= 0) {
        bytes = late_recv_bytes(&l->s, &why);
        mem = zeroed(bytes);
        CHECK_INT(late_recv(&out, &l->s, sinks, mem, bytes, &why), DPAR_OK);
        take(l, &out, mem);
    }
}

static void append(dpar_schedule *s, int64_t *n, int kind, int stage, int micro)
{
    dpar_action *a = &s->action[(*n)++];
    memset(a, 0, sizeof *a);
    a->kind = (uint8_t)kind;
    a->stage = (uint16_t)stage;
    a->micro_batch = (uint16_t)micro;
}

/* Adds OFFLOADs after forwards, RELOADs and RECOMPUTEs before backwards, and WAIT_REDUCE_GRADs at
 * the end. The list must not have joined pairs. */
static void dress(list *l)
{
    const dpar_schedule *s = &l->s;
    const int64_t actions = 4 * s->begin[s->ranks];
    dpar_schedule out;
    dpar_why why;
    void *mem;
    int64_t k, n = 0;
    int32_t r, i;
    CHECK_INT(schedule_init(&out, s->ranks, s->stages, actions, NULL, 0, &why), DPAR_E_ROOM);
    mem = zeroed(why.bytes);
    CHECK_INT(schedule_init(&out, s->ranks, s->stages, actions, mem, why.bytes, &why), DPAR_OK);
    out.micro_batches = s->micro_batches;
    out.chain = s->chain;
    out.slices = s->slices;
    memcpy(out.rank_of, s->rank_of, (size_t)s->stages * sizeof *s->rank_of);
    for (r = 0; r < s->ranks; r++) {
        uint8_t reduces[2 * CHAIN] = {0};
        for (k = s->begin[r]; k < s->begin[r + 1]; k++) {
            const dpar_action *a = &s->action[k];
            const int back = a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_INPUT;
            if (back && offloads(a->stage, a->micro_batch)) {
                append(&out, &n, DPAR_ACTION_RELOAD, a->stage, a->micro_batch);
            }
            if (back && recomputes(a->stage, a->micro_batch)) {
                append(&out, &n, DPAR_ACTION_RECOMPUTE, a->stage, a->micro_batch);
            }
            out.action[n++] = *a;
            if (a->kind == DPAR_ACTION_FORWARD && offloads(a->stage, a->micro_batch)) {
                append(&out, &n, DPAR_ACTION_OFFLOAD, a->stage, a->micro_batch);
            }
            reduces[a->stage] |= a->kind == DPAR_ACTION_REDUCE_GRAD;
        }
        for (i = 0; i < s->stages; i++) {
            if (reduces[i]) {
                append(&out, &n, DPAR_ACTION_WAIT_REDUCE, i, 0);
            }
        }
        out.begin[r + 1] = n;
    }
    take(l, &out, mem);
}

static int made(list *l, const dpar_schedule_desc *order)
{
    dpar_why why;
    const int64_t bytes = dpari_schedule_generate_bytes(order, &why);
    l->mem = NULL;
    if (bytes < 0) {
        return 0;
    }
    l->mem = zeroed(bytes);
    CHECK_INT(dpar_schedule_generate(&l->s, order, l->mem, bytes, &why), DPAR_OK);
    return 1;
}

/* Computes the slots and the peak that the schedule predicts for this rank. */
static void predict(const dpar_schedule *s, int32_t rank, int32_t flying, dpar_slot_counts *count,
                    int32_t *peak)
{
    dpar_slot_counts *counts = (dpar_slot_counts *)zeroed(s->ranks * (int64_t)sizeof *counts);
    dpar_rank_timing *timing = (dpar_rank_timing *)zeroed(s->ranks * (int64_t)sizeof *timing);
    dpar_timing all;
    dpar_schedule_times times;
    dpar_why why;
    int64_t bytes = dpari_schedule_slots_bytes(s);
    void *mem = zeroed(bytes);
    CHECK_INT(give_slots(s, flying, NULL, counts, mem, bytes, &why), DPAR_OK);
    *count = counts[rank];
    free(mem);
    memset(&times, 0, sizeof times);
    times.forward.all = times.input.all = times.weight.all = 1;
    bytes = simulate_list_bytes(s, &times);
    mem = zeroed(bytes);
    CHECK_INT(simulate_list(s, &times, NULL, NULL, &all, timing, mem, bytes, &why), DPAR_OK);
    *peak = timing[rank].peak_count;
    free(mem);
    free(timing);
    free(counts);
}

static void fill(dpar_pipeline_desc *o, job *j, int64_t *count_of)
{
    int32_t i;
    memset(o, 0, sizeof *o);
    for (i = 0; i < j->s->stages; i++) {
        count_of[i] = outputs(i % j->s->chain) + j->more;
    }
    o->schedule = j->s;
    o->type = DPAR_U64;
    o->count_per_stage = count_of;
    o->activation_bytes = (int64_t)sizeof(kept);
    o->weight_bytes = (int64_t)sizeof(pending);
    o->forward = forward;
    o->backward = backward;
    o->input = input;
    o->weight = weight;
    o->reduce = reduce;
    o->unshard = unshard;
    o->reshard = reshard;
    o->offload = offload;
    o->reload = reload;
    o->recompute = recompute;
    o->wait_reduce = wait_reduce;
    o->ctx = j;
    o->tied = j->mine->word;
    o->tied_count = WORDS;
    o->tied_type = DPAR_U64;
}

static void begin(job *j, dpar_comm *c, const dpar_schedule *s, int32_t steps)
{
    int32_t i;
    memset(j, 0, sizeof *j);
    j->c = c;
    j->s = s;
    j->steps = steps;
    j->trains = 1;
    j->mine = (sums *)zeroed_there(2 * (int64_t)sizeof(sums));
    j->all = j->mine + 1;
    j->fails_kind = j->fails_stage = j->fails_micro = -1;
    for (i = 0; i < 2 * CHAIN; i++) {
        j->gathered[i] = 1;
    }
    for (i = 0; s->begin[s->ranks] > 0 && i < (int32_t)s->begin[s->ranks]; i++) {
        if (s->action[i].kind == DPAR_ACTION_UNSHARD) {
            j->gathered[s->action[i].stage] = 0;
        }
    }
}

static void over_with(job *j)
{
    free_there(j->mine);
    free(j);
}

static int64_t own_actions(const job *j)
{
    return j->s->begin[j->c->rank + 1] - j->s->begin[j->c->rank];
}

/* Checks the times of this rank's actions: they are in order, and work begins after the action
 * before it has ended. */
static void look_at_times(const job *j, const int64_t *start, const int64_t *end)
{
    int64_t k, n = own_actions(j), before = 0, bad = 0;
    const dpar_action *a = j->s->action + j->s->begin[j->c->rank];
    for (k = 0; k < n; k++) {
        const int message = a[k].kind >= DPAR_ACTION_SEND_F && a[k].kind <= DPAR_ACTION_RECV_B;
        bad += start[k] < before || end[k] < start[k];
        before = k > 0 && a[k - 1].joined ? end[k] : start[k];
        before = !message && !a[k].joined ? end[k] : before;
    }
    CHECK_INT(bad, 0);
}

/* Returns the largest number of results that stages of this rank have passed to other stages of it
 * and that have not been used yet. */
static int32_t handed(const job *j)
{
    const dpar_schedule *s = j->s;
    int64_t k, i;
    int32_t live = 0, peak = 0;
    for (k = s->begin[j->c->rank]; k < s->begin[j->c->rank + 1]; k += 1 + s->action[k].joined) {
        int32_t used = 0;
        for (i = k; i <= k + s->action[k].joined; i++) {
            const dpar_action *a = &s->action[i];
            const int32_t before = dpar_schedule_partner(s, DPAR_ACTION_RECV_F, a->stage);
            const int32_t behind = dpar_schedule_partner(s, DPAR_ACTION_SEND_F, a->stage);
            const int32_t from = a->kind == DPAR_ACTION_FORWARD ? before : behind;
            const int32_t to = a->kind == DPAR_ACTION_FORWARD ? behind : before;
            if (a->kind < DPAR_ACTION_FORWARD || a->kind > DPAR_ACTION_INPUT) {
                continue;
            }
            live += to >= 0 && s->rank_of[to] == j->c->rank;
            used += from >= 0 && s->rank_of[from] == j->c->rank;
        }
        peak = live > peak ? live : peak;
        live -= used;
    }
    return peak;
}

/* Runs j->steps steps and compares the gradients. */
static void whole(job *j, const dpar_pipeline_desc *o)
{
    dpar_why why;
    dpar_slot_counts got;
    int64_t bytes = 0, k, own = 0;
    int32_t local = -1, i, q, peak = 0, ends = 0;
    void *memory, *begin_at;
    sums expected;
    dpar_status st = pipeline_bytes(j->c, o, &bytes, &why);
    CHECK_INT(st, DPAR_OK);
    begin_at = zeroed_aligned(bytes, &memory);
    st = (dpar_status)ON_DEVICE(pipeline_in(begin_at, bytes, j->c, o, &j->p, &why));
    CHECK_INT(st, DPAR_OK);
    if (st != DPAR_OK) {
        printf("%s\n", why.text);
        free(memory);
        return;
    }
    predict(j->s, j->c->rank, o->keep_sends ? INT32_MAX : 0, &j->counts, &peak);
    got = dpar_pipeline_slots(j->p, &local);
    CHECK_INT(memcmp(&j->counts, &got, sizeof got), 0);
    CHECK_INT(local, handed(j));
    CHECK(!j->trains || j->counts.activation == peak);
    for (k = 0; k < own_actions(j); k++) {
        const int32_t kind = j->s->action[j->s->begin[j->c->rank] + k].kind;
        own += kind < DPAR_ACTION_SEND_F || kind > DPAR_ACTION_RECV_B;
    }
    for (j->step = 0; j->step < j->steps; j->step++) {
        j->next = j->s->action + j->s->begin[j->c->rank];
        j->end = j->s->action + j->s->begin[j->c->rank + 1];
        j->ran = 0;
        st = (dpar_status)ON_DEVICE(dpar_pipeline_run(j->p, j->step == j->steps - 1, &why));
        CHECK_INT(st, DPAR_OK);
        if (st != DPAR_OK) {
            printf("%s\n", why.text);
        }
        if (o->start != NULL) {
            look_at_times(j, o->start, o->end);
        }
    }
    CHECK_INT(j->ran, own); /* in the last step all actions run */
    CHECK_INT(j->wrong, 0);
    CHECK_INT(j->bad, 0);
    CHECK(!j->trains || j->live == 0);
    serial(j->s->chain, j->s->micro_batches, j->steps, j->trains, &expected);
    CHECK_INT(ON_DEVICE(dpar_all_reduce(j->c, j->mine->weight, j->all->weight, CHAIN * WIDE,
                                        DPAR_U64, DPAR_SUM, NULL)),
              DPAR_OK);
    CHECK_INT(memcmp(j->all->weight, expected.weight, sizeof expected.weight), 0);
    for (i = 0; i < j->s->stages; i++) {
        q = i % j->s->chain;
        ends += j->s->rank_of[i] == j->c->rank && (q == 0 || q == j->s->chain - 1);
    }
    CHECK(ends == 0 || memcmp(j->mine->word, expected.word, sizeof expected.word) == 0);
    CHECK_INT(ON_DEVICE(dpar_pipeline_free(j->p)), DPAR_OK);
    free(memory);
}

/* Tests a rule with a number of micro-batches; the other choices are random. Returns 1 if there is
 * such a schedule, otherwise 0. */
static int one_case(dpar_comm *c, int32_t rule, int32_t micros)
{
    const uint64_t luck = mix((uint64_t)(rule * 100 + micros), (uint64_t)c->size);
    const int32_t chunks[6] = {0, 1, 2, 3, 2, 0};
    int64_t count_of[2 * CHAIN], *times;
    uint16_t map[2 * CHAIN];
    dpar_pipeline_desc o;
    dpar_schedule_desc order;
    list l;
    job *j;
    int32_t i, passes = DPAR_LOWER_MESSAGES, sinks = (int32_t)(luck >> 20 & 3) - 1;
    int32_t trains = rule != DPAR_SCHEDULE_FORWARD_ONLY;
#ifdef DEVICE_MEMORY /* all messages of a device are in one queue */
    sinks = sinks == DPAR_CHANNEL_PEER || sinks == DPAR_CHANNEL_EDGE ? (int32_t)DPAR_CHANNEL_ANY
                                                                     : sinks;
#endif
    order = order_of(rule, c->size, micros, 0);
    order.lifo = rule == DPAR_SCHEDULE_GPIPE && (luck >> 3 & 1);
    if (rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_INTERLEAVED_ZB ||
        rule == DPAR_SCHEDULE_MOE_OVERLAP || rule == DPAR_SCHEDULE_BREADTH_FIRST ||
        rule == DPAR_SCHEDULE_FORWARD_ONLY) {
        order.chunks = chunks[luck % 6];
    }
    if ((rule == DPAR_SCHEDULE_BREADTH_FIRST || rule == DPAR_SCHEDULE_FORWARD_ONLY) &&
        (luck >> 8 & 1)) {
        order.stages = c->size + 1 + (int32_t)(luck >> 9 & 7);
        for (i = 0; i < order.stages; i++) {
            map[i] = (uint16_t)(i < c->size ? i : (int32_t)(mix(luck, (uint64_t)i) >> 5) & 0xff);
            map[i] = (uint16_t)(map[i] % c->size);
        }
        order.rank_of = map;
        order.chunks = 0;
    }
    if (!made(&l, &order)) {
        return 0;
    }
    passes |= trains && (luck >> 12 & 1) ? DPAR_LOWER_REDUCE : 0;
    passes |= luck >> 13 & 1 ? DPAR_LOWER_SHARDS : 0;
    lower(&l, passes, (luck >> 14 & 3) == 0, sinks);
    j = (job *)zeroed(sizeof *j);
    begin(j, c, &l.s, passes & DPAR_LOWER_REDUCE ? STEPS : 1 + (int32_t)(luck >> 16 & 1));
    j->more = micros % 4 == 3 ? 1000 : 0; /* 8 KB: such a message is fetched by the receiver */
    fill(&o, j, count_of);
    o.keep_sends = sinks == DPAR_CHANNEL_EDGE || sinks == DPAR_CHANNEL_PEER || (luck >> 17 & 1);
    o.no_final_barrier = (luck >> 18 & 1) != 0;
    o.forward_backward = luck >> 19 & 1 ? both : NULL;
    times = (int64_t *)zeroed(16 * (own_actions(j) + 1));
    if (luck >> 22 & 1) {
        o.start = times;
        o.end = times + own_actions(j);
    }
    j->trains = trains;
    whole(j, &o);
    for (i = 0; i < l.s.stages; i++) {
        /* A chain that no micro-batch uses has nothing to reduce. */
        CHECK(!(passes & DPAR_LOWER_REDUCE) || j->reduced[i] == (j->passed[i] > 0));
        CHECK(j->passed[i] == 0 || l.s.rank_of[i] == c->rank);
    }
    free(times);
    over_with(j);
    free(l.mem);
    return 1;
}

/* Tests all kinds of actions: offloads, recomputes, and reductions that are waited for. */
static void dressed_case(dpar_comm *c, int32_t rule, int apart)
{
    int64_t count_of[2 * CHAIN];
    dpar_pipeline_desc o;
    dpar_schedule_desc order;
    list l;
    job *j = (job *)zeroed(sizeof *j);
    int32_t i, q;
    order = order_of(rule, c->size, 2 * c->size, 0);
    CHECK(made(&l, &order));
    lower(&l, DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE | DPAR_LOWER_SHARDS, 0, -1);
    dress(&l);
    begin(j, c, &l.s, STEPS);
    j->dressed = 1;
    fill(&o, j, count_of);
    o.no_final_barrier = apart;
    o.keep_sends = apart;
    whole(j, &o);
    for (i = 0; i < l.s.stages; i++) {
        CHECK_INT(j->waited[i], l.s.rank_of[i] == c->rank);
        for (q = 0; q < l.s.micro_batches; q++) {
            /* each was reloaded or recomputed */
            CHECK(j->host[i][q].stage == 0 && j->again[i][q] == 0);
        }
    }
    over_with(j);
    free(l.mem);
}

/* ---- replicas -------------------------------------------------------------------------------- */

/* Runs two pipelines at the same time. A ddp over the two sums the gradients of each stage. */
static void replicas(dpar_comm *c)
{
    const int32_t half = c->size / 2, mine = c->rank % half;
    int64_t count_of[2 * CHAIN], numel[CHAIN];
    dpar_comm *line = NULL, *pair = NULL;
    dpar_ddp_desc how;
    dpar_pipeline_desc o;
    dpar_schedule_desc order;
    dpar_why why;
    sums expected;
    list l;
    job *j = (job *)zeroed(sizeof *j);
    int32_t i, q;
    order = order_of(DPAR_SCHEDULE_INTERLEAVED, half, 2 * half, 0);
    CHECK_INT(dpar_comm_split(c, c->rank / half, c->rank, &line), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, mine, c->rank, &pair), DPAR_OK);
    CHECK(made(&l, &order));
    lower(&l, DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE, 0, -1);
    begin(j, line, &l.s, 1);
    fill(&o, j, count_of);
    for (q = 0; q < l.s.chain; q++) {
        numel[q] = l.s.rank_of[q] == mine ? outputs(q) : 0;
    }
    memset(&how, 0, sizeof how);
    how.params = l.s.chain;
    how.count = numel;
    how.type = DPAR_F64;
    how.sum = 1;
    how.track_used = 1;
    how.bucket_bytes = how.first_bucket_bytes = 8;
    CHECK_INT(ON_DEVICE(dpar_ddp_make(pair, &how, &j->ddp, &why)), DPAR_OK);
    (void)ON_DEVICE((dpar_ddp_zero(j->ddp), 0));
    CHECK_INT(ON_DEVICE(dpar_ddp_begin(j->ddp, 1)), DPAR_OK);
    whole(j, &o);
    CHECK_INT(ON_DEVICE(dpar_ddp_end(j->ddp)), DPAR_OK);
    serial(l.s.chain, l.s.micro_batches, 1, 1, &expected);
    for (q = 0; q < l.s.chain; q++) {
        double got[WIDE] = {0.0};
        if (numel[q] > 0) {
            device_read(got, dpar_ddp_gradient(j->ddp, q, NULL), numel[q] * 8);
        }
        for (i = 0; i < numel[q]; i++) { /* both replicas had the same gradients */
            CHECK(got[i] == 2.0 * small(expected.weight[q][i]));
        }
    }
    CHECK_INT(ON_DEVICE(dpar_ddp_free(j->ddp)), DPAR_OK);
    CHECK_INT(dpar_comm_free(pair), DPAR_OK);
    CHECK_INT(dpar_comm_free(line), DPAR_OK);
    over_with(j);
    free(l.mem);
}

/* Shards the weights over the two pipelines: UNSHARD gathers them, RESHARD releases them,
 * REDUCE_GRAD reduces the gradients to the shards. An SGD step of rate 1 makes the gradients
 * visible. */
static void sharded(dpar_comm *c, int32_t rule, int32_t zero)
{
    const int32_t half = c->size / 2, mine = c->rank % half;
    int32_t params_of[CHAIN];
    int64_t count_of[2 * CHAIN], numel[CHAIN];
    dpar_comm *line = NULL, *pair = NULL;
    dpar_fsdp_desc how;
    dpar_fsdp_sizes sizes;
    dpar_pipeline_desc o;
    dpar_schedule_desc order;
    dpar_why why;
    sums expected;
    list l;
    job *j = (job *)zeroed(sizeof *j);
    void *memory;
    double *values;
    int32_t i, q;
    order = order_of(rule, half, 2 * half, 0);
    CHECK_INT(dpar_comm_split(c, c->rank / half, c->rank, &line), DPAR_OK);
    CHECK_INT(dpar_comm_split(c, mine, c->rank, &pair), DPAR_OK);
    CHECK(made(&l, &order));
    lower(&l, DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE | DPAR_LOWER_SHARDS, 0, -1);
    begin(j, line, &l.s, 1);
    fill(&o, j, count_of);
    memset(&how, 0, sizeof how);
    how.zero = zero;
    how.type = how.compute_type = how.gradient_type = DPAR_F64;
    how.sum = 1;
    dpar_optimizer_init(&how.optimizer, DPAR_OPTIMIZER_SGD);
    for (q = 0; q < l.s.chain; q++) {
        params_of[q] = 1;
        numel[q] = l.s.rank_of[q] == mine ? outputs(q) : 0;
        how.prefetch += numel[q] > 0; /* memory for each of this rank's stages */
    }
    how.gradient_buffers = how.prefetch;
    how.units = l.s.chain;
    how.params_per_unit = params_of;
    how.count = numel;
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, 2, &how, &why), DPAR_OK);
    how.memory = zeroed_aligned(sizes.plan, &memory);
    how.bytes = sizes.plan;
    CHECK_INT(ON_DEVICE(dpar_fsdp_make(pair, &how, &j->fsdp, &why)), DPAR_OK);
    values = (double *)zeroed_there(WIDE * 8);
    for (q = 0; q < l.s.chain; q++) {
        for (i = 0; i < numel[q]; i++) {
            values[i] = small(weight_of(q, i));
        }
        CHECK_INT(ON_DEVICE(dpar_fsdp_set(j->fsdp, q, values)), DPAR_OK);
    }
    free_there(values);
    (void)ON_DEVICE((dpar_fsdp_zero(j->fsdp), 0));
    CHECK_INT(ON_DEVICE(dpar_fsdp_begin(j->fsdp, 1)), DPAR_OK);
    whole(j, &o);
    CHECK_INT(ON_DEVICE(dpar_fsdp_end(j->fsdp)), DPAR_OK);
    CHECK_INT(ON_DEVICE(dpar_fsdp_step(j->fsdp, 1.0, 1.0)), DPAR_OK);
    serial(l.s.chain, l.s.micro_batches, 1, 1, &expected);
    for (q = 0; q < l.s.chain; q++) {
        const double *w = (const double *)dpar_fsdp_state(j->fsdp, DPAR_FSDP_MASTER, q, NULL, NULL);
        double got[WIDE] = {0.0};
        dpar_piece piece;
        if (!dpar_fsdp_piece(j->fsdp, q, &piece) || piece.count == 0) {
            continue;
        }
        device_read(got, w + piece.in_shard, piece.count * 8);
        for (i = 0; i < piece.count; i++) {
            const int64_t e = piece.in_param + i;
            CHECK(got[i] == small(weight_of(q, (int)e)) - 2.0 * small(expected.weight[q][e]));
        }
    }
    CHECK_INT(ON_DEVICE(dpar_fsdp_free(j->fsdp)), DPAR_OK);
    CHECK_INT(dpar_comm_free(pair), DPAR_OK);
    CHECK_INT(dpar_comm_free(line), DPAR_OK);
    free(memory);
    over_with(j);
    free(l.mem);
}

/* ---- pictures -------------------------------------------------------------------------------- */

static int64_t times_in(const char *text, const char *word)
{
    int64_t n = 0;
    for (text = strstr(text, word); text != NULL; text = strstr(text + 1, word)) {
        n++;
    }
    return n;
}

/* Checks that the trace of a run is drawn like that of a simulation: the same slices, names and
 * arrows. */
static void picture(dpar_comm *c)
{
    int64_t count_of[2 * CHAIN], n, m, *own, *start, *end;
#if !defined(USE_MPI) && !defined(DEVICE_CUDA)
    int64_t k;
#endif
    dpar_pipeline_desc o;
    dpar_schedule_desc order;
    dpar_why why;
    list l;
    job *j = (job *)zeroed(sizeof *j);
    order = order_of(DPAR_SCHEDULE_ZBV, c->size, 2 * c->size, 0);
    CHECK(made(&l, &order));
    lower(&l, DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE, 0, -1);
    begin(j, c, &l.s, 1);
    fill(&o, j, count_of);
    j->counts.activation = j->counts.weight = 65535;
    n = l.s.begin[l.s.ranks];
    own = (int64_t *)zeroed(16 * n);
    start = (int64_t *)zeroed(8 * n);
    end = (int64_t *)zeroed(8 * n);
    CHECK_INT(dpar_pipeline_make(c, &o, &j->p, &why), DPAR_OK);
    CHECK_INT(dpar_pipeline_times(j->p, start, end, &why), DPAR_E_ARG);
    CHECK_INT(dpar_pipeline_free(j->p), DPAR_OK);
    o.start = own;
    o.end = own + n;
    o.keep_sends = 1;
    CHECK_INT(dpar_pipeline_make(c, &o, &j->p, &why), DPAR_OK);
    j->next = l.s.action + l.s.begin[c->rank];
    j->end = l.s.action + l.s.begin[c->rank + 1];
    CHECK_INT(ON_DEVICE(dpar_pipeline_run(j->p, 1, &why)), DPAR_OK);
    CHECK_INT(j->wrong, 0);
    CHECK_INT(dpar_pipeline_times(j->p, start, end, &why), DPAR_OK);
    m = l.s.begin[1];
    CHECK(c->rank != 0 || memcmp(start, o.start, (size_t)m * 8) == 0);
    CHECK(c->rank != 0 || memcmp(end, o.end, (size_t)m * 8) == 0);
#if !defined(USE_MPI) &&                                                                           \
    !defined(                                                                                      \
        DEVICE_CUDA) /* small messages are sent at once, which is seen before the step ends */
    for (k = 0; c->rank == 0 && k < m && l.s.action[k].kind != DPAR_ACTION_SEND_F; k++) {
    }
    CHECK(c->rank != 0 || k == m || end[k] <= start[m - 1]);
#endif
    CHECK_INT(dpar_pipeline_free(j->p), DPAR_OK);
    if (c->rank == 0) {
        const int32_t room = 1 << 22;
        const char *words[5] = {"\"ph\":\"X\"", "\"ph\":\"s\"", "\"ph\":\"f\"",
                                "\"cat\":\"compute\"", "\"name\":\"0F1\""};
        char *ran = (char *)zeroed(room), *simulated = (char *)zeroed(room);
        dpar_timing timing;
        dpar_schedule_times t;
        dpar_schedule_draw_desc g;
        dpar_text out;
        int64_t *s = (int64_t *)zeroed(16 * n), need;
        void *mem;
        int i;
        g.schedule = &l.s;
        g.start = start;
        g.end = end;
        g.unit = 1000;
        g.title = "pipeline";
        dpar_text_init(&out, ran, (size_t)room);
        CHECK_INT(dpar_schedule_draw(&out, &g, DPAR_SCHEDULE_DRAW_TRACE, &why), DPAR_OK);
        memset(&t, 0, sizeof t);
        t.forward.all = t.input.all = t.weight.all = t.reduce_grad.all = 1000;
        need = simulate_list_bytes(&l.s, &t);
        mem = zeroed(need);
        CHECK_INT(simulate_list(&l.s, &t, s, s + n, &timing, NULL, mem, need, &why), DPAR_OK);
        g.start = s;
        g.end = s + n;
        dpar_text_init(&out, simulated, (size_t)room);
        CHECK_INT(dpar_schedule_draw(&out, &g, DPAR_SCHEDULE_DRAW_TRACE, &why), DPAR_OK);
        for (i = 0; i < 5; i++) {
            CHECK(times_in(ran, words[i]) > 0 || (c->size == 1 && (i == 1 || i == 2)));
            CHECK_INT(times_in(ran, words[i]), times_in(simulated, words[i]));
        }
        free(mem);
        free(s);
        free(ran);
        free(simulated);
    }
    free(own);
    free(start);
    free(end);
    over_with(j);
    free(l.mem);
}

/* ---- what is refused, and what ends a step --------------------------------------------------- */

/* Rank 0 sends two micro-batches before it receives, and rank 1 answers the first one at once. By
 * rendezvous both wait in their sends. */
static const char circle[] = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                             "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
/* The same actions in another order. */
static const char other[] = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";
static const char without[] = "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n";

static void read_list(list *l, const char *text)
{
    dpar_why why;
    const int64_t bytes = read_csv_bytes(text, strlen(text), &why);
    l->mem = zeroed(bytes);
    CHECK_INT(read_csv(&l->s, text, strlen(text), 0, l->mem, bytes, &why), DPAR_OK);
}

/* Makes a pipeline and frees it. little: this rank passes only 64 bytes of memory. */
static dpar_status tried(dpar_comm *c, const dpar_pipeline_desc *o, int little, dpar_why *why)
{
    dpar_pipeline_desc there = *o;
    dpar_pipeline *p = NULL;
    void *memory;
    dpar_status st;
    there.memory = little ? zeroed_aligned(64, &memory) : NULL;
    there.bytes = little ? 64 : 0;
    st = dpar_pipeline_make(c, &there, &p, why);
    CHECK((p != NULL) == (st == DPAR_OK));
    CHECK_INT(dpar_pipeline_free(p), DPAR_OK);
    if (little) {
        free(memory);
    }
    return st;
}

static void refused(dpar_comm *c)
{
    int64_t count_of[2 * CHAIN];
    dpar_pipeline_desc o;
    dpar_why why;
    list l, bare, turned;
    char word[120];
    int k = 0;
#ifdef DEVICE_MEMORY
    dpar_schedule stuck;
#endif
    job *j = (job *)zeroed(sizeof *j);
    read_list(&l, circle);
    read_list(&bare, without);
    read_list(&turned, other);
    begin(j, c, &l.s, 1);
    fill(&o, j, count_of);
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_STUCK);
    CHECK(strstr(why.text, "0SEND_F1") != NULL && strstr(why.text, "1SEND_B0") != NULL);
    o.keep_sends = 1;
#ifdef DEVICE_MEMORY /* nor does a slot for each message help if all messages share one queue */
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_STUCK);
    CHECK(strncmp(why.text + (strncmp(why.text, "rank ", 5) == 0 ? 8 : 0), "rank: ", 6) == 0);
    o.keep_sends = 0;
    stuck = l.s;
    l.s = turned.s;
    turned.s = stuck;
#else
    whole(j, &o);
#endif
    o.schedule = &bare.s;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_ARG);
    o.schedule = c->rank == 0 ? &l.s : &bare.s;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_MISMATCH);
    (void)snprintf(word, sizeof word, "pipeline: schedule->begin[1] is %d on rank 0, %d on rank 1",
                   (int)l.s.begin[1], (int)bare.s.begin[1]);
    CHECK_TEXT(why.text, word);
    o.schedule = c->rank == 0 ? &l.s : &turned.s;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_MISMATCH);
    while (l.s.action[k].kind == turned.s.action[k].kind) {
        k++;
    }
    (void)snprintf(word, sizeof word,
                   "pipeline: schedule->action[%d].kind is %d on rank 0, %d on rank 1", k,
                   (int)l.s.action[k].kind, (int)turned.s.action[k].kind);
    CHECK_TEXT(why.text, word);
    o.schedule = &l.s;
    why.bytes = 0;
    CHECK_INT(tried(c, &o, c->rank, &why), DPAR_E_ROOM);
    CHECK(why.bytes > 64);
    CHECK(strncmp(why.text, c->rank == 0 ? "rank 1: pipeline: " : "pipeline: ", 10) == 0);
    o.backward = c->rank == 1 ? NULL : backward;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text,
               c->rank == 1
                   ? "pipeline: rank 1 has 1B0 in its list, but its callback is NULL"
                   : "rank 1: pipeline: rank 1 has 1B0 in its list, but its callback is NULL");
    o.backward = backward;
    count_of[1] = c->rank == 0 ? 5 : -1;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_ARG);
    count_of[1] = outputs(1);
    o.type = -1;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_ARG);
    o.type = DPAR_U64;
    o.tied = NULL;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_ARG);
    o.tied_count = 0;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_OK);
    o.start = count_of;
    CHECK_INT(tried(c, &o, 0, &why), DPAR_E_ARG);
    CHECK_INT(dpar_pipeline_make(NULL, &o, &j->p, &why), DPAR_E_ARG);
    CHECK_INT(dpar_pipeline_run(NULL, 1, &why), DPAR_E_ARG);
    CHECK_INT(dpar_pipeline_progress(NULL), DPAR_E_ARG);
    CHECK_INT(dpar_pipeline_slots(NULL, NULL).receive, 0);
    over_with(j);
    free(l.mem);
    free(bare.mem);
    free(turned.mem);
}

/* Where survivors write the status and message that they got. */
typedef struct heard {
    dpar_status status;
    char text[256];
} heard;

/* Runs one step in which an action fails, or its rank is killed. */
static dpar_status breaking(dpar_comm *c, int rule, int kind, int stage, int micro, int kills,
                            dpar_why *why)
{
    int64_t count_of[2 * CHAIN];
    dpar_pipeline_desc o;
    dpar_schedule_desc order;
    list l;
    job *j = (job *)zeroed(sizeof *j);
    dpar_status st;
    order = order_of(rule, c->size, 2 * c->size, 0);
    CHECK(made(&l, &order));
    lower(&l, DPAR_LOWER_MESSAGES | DPAR_LOWER_REDUCE | DPAR_LOWER_SHARDS, 0, -1);
    dress(&l);
    begin(j, c, &l.s, 1);
    j->dressed = 1;
    fill(&o, j, count_of);
    j->counts.activation = j->counts.weight = 65535;
    j->fails_kind = kind;
    j->fails_stage = stage;
    j->fails_micro = micro;
    j->kills = kills;
    CHECK_INT(dpar_pipeline_make(c, &o, &j->p, why), DPAR_OK);
    j->next = l.s.action + l.s.begin[c->rank];
    j->end = l.s.action + l.s.begin[c->rank + 1];
    st = (dpar_status)ON_DEVICE(dpar_pipeline_run(j->p, 1, why));
    CHECK_INT(dpar_pipeline_run(j->p, 1, NULL), st); /* the pipeline remains broken */
    (void)dpar_pipeline_free(j->p);
    over_with(j);
    free(l.mem);
    return st;
}

/* Makes a callback of each kind fail: the error on all ranks names it. Kinds without a name here
 * have no callback. */
static DPARI_UNUSED const char *name_of(int kind)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD: return "F";
    case DPAR_ACTION_BACKWARD: return "B";
    case DPAR_ACTION_INPUT: return "I";
    case DPAR_ACTION_WEIGHT: return "W";
    case DPAR_ACTION_UNSHARD: return "UNSHARD";
    case DPAR_ACTION_RESHARD: return "RESHARD";
    case DPAR_ACTION_REDUCE_GRAD: return "REDUCE_GRAD";
    case DPAR_ACTION_RECOMPUTE: return "RECOMPUTE";
    case DPAR_ACTION_OFFLOAD: return "OFFLOAD";
    case DPAR_ACTION_RELOAD: return "RELOAD";
    case DPAR_ACTION_WAIT_REDUCE: return "WAIT_REDUCE_GRAD";
    default: return "?";
    }
}
static DPARI_UNUSED void each_fails(dpar_comm *c)
{
    int kind;
    for (kind = DPAR_ACTION_FORWARD; kind < DPAR_ACTION_COUNT; kind++) {
        const int rule = kind == DPAR_ACTION_BACKWARD ? DPAR_SCHEDULE_1F1B : DPAR_SCHEDULE_ZB_H1;
        const int micro = kind < DPAR_ACTION_UNSHARD ||
                          (kind > DPAR_ACTION_REDUCE_GRAD && kind != DPAR_ACTION_WAIT_REDUCE);
        char expected[80], number[4];
        dpar_comm *apart = NULL;
        dpar_why why;
        if (kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B) {
            continue;
        }
        (void)snprintf(number, sizeof number, "%d", micro);
        (void)snprintf(expected, sizeof expected, "rank 1: 1%s%s: the data ends here",
                       name_of(kind), micro ? number : "");
        CHECK_INT(dpar_comm_split(c, 0, 0, &apart), DPAR_OK);
        CHECK_INT(breaking(apart, rule, kind, 1, micro, 0, &why), DPAR_E_RANGE);
        CHECK_TEXT(why.text, expected);
        (void)dpar_comm_free(apart);
    }
}

static int killed(dpar_comm *c, void *arg)
{
    heard *h = (heard *)arg + c->rank;
    dpar_why why;
    h->status = breaking(c, DPAR_SCHEDULE_ZB_H1, DPAR_ACTION_FORWARD, 1, 2, 1, &why);
    memcpy(h->text, why.text, sizeof why.text < sizeof h->text ? sizeof why.text : sizeof h->text);
    return 0;
}

/* Kills rank 1: the error on all others names it. */
static void kill_one(int n)
{
    dpar_world_desc o;
    dpar_why why;
    int i;
    heard *h = (heard *)mmap(NULL, 4096 * sizeof *h, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    memset(&o, 0, sizeof o);
    o.timeout_s = 20;
    CHECK(h != (heard *)MAP_FAILED);
    CHECK(dpar_launch(n, killed, h, &o, &why) != DPAR_OK);
    for (i = 0; i < n; i++) {
        CHECK_INT(h[i].status, i == 1 ? DPAR_OK : DPAR_E_PEER);
        CHECK(i == 1 || strstr(h[i].text, "rank 1") != NULL);
    }
    (void)munmap(h, 4096 * sizeof *h);
}

static int everything(dpar_comm *c, void *arg)
{
    int32_t rule, micros, cases = 0;
    (void)arg;
#ifdef DEVICE_MEMORY
    device_begin((size_t)1 << 22);
    c = device_take(c);
#endif
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        int32_t of_rule = 0;
        for (micros = 1; micros <= MOST_MICROS && failures() == 0; micros++) {
            of_rule += one_case(c, rule, micros);
            if (failures() > 0) {
                printf("%s, %d micro-batches on rank %d of %d\n", dpar_schedule_name(rule),
                       (int)micros, (int)c->rank, (int)c->size);
            }
        }
        /* DualPipe and Chimera need an even number of ranks; each other rule has a schedule. */
        CHECK(of_rule > 0 || c->size % 2 == 1 || failures() > 0);
        cases += of_rule;
    }
    CHECK(cases >= CASES || failures() > 0);
    if (failures() > 0) { /* a broken communicator makes all later tests fail */
        fflush(stdout);
        return 1;
    }
    for (micros = 0; micros < 5 && failures() == 0; micros++) {
        const int32_t rules[5] = {DPAR_SCHEDULE_GPIPE, DPAR_SCHEDULE_1F1B,
                                  DPAR_SCHEDULE_INTERLEAVED, DPAR_SCHEDULE_ZB_H1,
                                  DPAR_SCHEDULE_ZBV};
        dressed_case(c, rules[micros], (micros + c->size) % 2);
    }
    picture(c);
    if (c->size % 2 == 0) {
        replicas(c);
        sharded(c, DPAR_SCHEDULE_INTERLEAVED, 3);
        sharded(c, DPAR_SCHEDULE_ZBV, 1 + c->size / 2 % 3);
    }
    if (c->size == 2) {
        refused(c);
    }
#if !defined(USE_MPI) && !defined(DEVICE_CUDA) /* a rank fails while others continue */
    if (c->size > 1) {
        dpar_comm *apart = NULL;
        dpar_why why;
        CHECK_INT(dpar_comm_split(c, 0, 0, &apart), DPAR_OK);
        CHECK_INT(breaking(apart, DPAR_SCHEDULE_ZB_H1, DPAR_ACTION_FORWARD, 1, 2, 0, &why),
                  DPAR_E_RANGE);
        CHECK_TEXT(why.text, "rank 1: 1F2: the data ends here");
        (void)dpar_comm_free(apart);
        /* Fails in the last action of all, when the other ranks have nothing left but to get the
         * error. */
        CHECK_INT(dpar_comm_split(c, 0, 0, &apart), DPAR_OK);
        CHECK_INT(
            breaking(apart, DPAR_SCHEDULE_ZB_H1, DPAR_ACTION_WEIGHT, 0, 2 * c->size - 1, 0, &why),
            DPAR_E_RANGE);
        CHECK(strncmp(why.text, "rank 0: 0W", 10) == 0);
        (void)dpar_comm_free(apart);
    }
    if (c->size == 2 || c->size == 3) {
        each_fails(c);
    }
#endif
#ifdef DEVICE_MEMORY
    CHECK(c->size == 1 || c->sent[DPAR_CALL_SEND] > 0);
    c = device_return(c);
    device_end();
#endif
    return failures() > 0;
}

static void also(int n, const dpar_world_desc *o)
{
    if (!o->threads && n > 1) {
        kill_one(n);
    }
}

int main(int argc, char **argv)
{
#ifdef DEVICE_MEMORY
    (void)also;
    return rank_program(argc, argv, everything, NULL, 4, 2, NULL);
#endif
    return rank_program(argc, argv, everything, NULL, 8, 8, also);
}
