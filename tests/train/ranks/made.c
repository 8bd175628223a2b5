/* SPDX-License-Identifier: MIT-0 */
/* made: tests fsdp, pipelines, attention and experts that allocate their own memory (_make) on real
 * ranks. Results are compared with those of the same object in the caller's memory (_bytes and
 * _init), or with numbers written out here.
 *
 *    made [processes|threads] [ranks]     without arguments: both, 1 to 4 ranks
 *    mpirun -np 4 made                    built with -DUSE_MPI */
#include "dpar_train.h"
#include "plan_memory.h"
#include "rank_program.h"

/* ---- fsdp: a tied embedding (unit 0), used first and last, and two layers -------------------- */

enum { UNITS = 3, NUMEL = 37 };

static const char *const unit_names[UNITS] = {"wte", "h.0", "h.1"};

/* Passes NULL as the result on the last rank only: all ranks must get the error. */
#define unless_last(c, result) ((c)->rank == (c)->size - 1 ? NULL : (result))

static double gradient_of(int rank, int step, int u, int i)
{
    return (double)((int)(scrambled((uint32_t)(rank * 97 + step * 7 + u), i) % 9u) - 4);
}

static void fsdp_begin(dpar_fsdp_desc *o, int32_t zero)
{
    static const int32_t params_of[UNITS] = {1, 1, 1};
    static const int64_t numel[UNITS] = {NUMEL, NUMEL + 4, NUMEL};
    memset(o, 0, sizeof *o);
    o->units = UNITS;
    o->params_per_unit = params_of;
    o->count = numel;
    o->zero = zero;
    o->type = o->compute_type = o->gradient_type = DPAR_F64;
    dpar_optimizer_init(&o->optimizer, DPAR_OPTIMIZER_SGD);
    o->names = unit_names;
    o->units_in_use = 2;
}

static void backward(dpar_fsdp *f, int rank, int step, int32_t u)
{
    double *g = (double *)dpar_fsdp_gradient(f, u, NULL);
    int i;
    CHECK(g != NULL);
    for (i = 0; g != NULL && i < NUMEL; i++) {
        g[i] += gradient_of(rank, step, u, i);
    }
}

/* Checks w -= rate * average, where the averages are of small whole numbers on 1 to 4 ranks. Each
 * step is exact except for one rounding of the average and one of the weight. */
static void fsdp_made(dpar_comm *c, int32_t zero)
{
    double value[NUMEL + 4], want[UNITS][NUMEL];
    const void *at[2] = {NULL, NULL};
    dpar_fsdp_desc o;
    dpar_fsdp *f = NULL;
    dpar_why why;
    int32_t u;
    int i, r, step;
    fsdp_begin(&o, zero);
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_OK);
    for (u = 0; u < UNITS; u++) {
        for (i = 0; i < NUMEL + 4; i++) {
            value[i] = u + 0.5 * i;
            if (i < NUMEL) {
                want[u][i] = value[i];
            }
        }
        CHECK_INT(dpar_fsdp_set(f, u, value), DPAR_OK);
    }
    for (step = 0; step < 3; step++) {
        dpar_fsdp_zero(f);
        CHECK_INT(dpar_fsdp_unshard(f, 0, DPAR_ACTION_FORWARD),
                  DPAR_OK); /* allowed outside of a pass */
        if (step < 2) {
            at[step] = dpar_fsdp_weight(f, 0);
        }
        for (u = 1; u < UNITS; u++) {
            CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
            CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        }
        CHECK_INT(dpar_fsdp_reshard(f, 0, DPAR_ACTION_FORWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
        CHECK_INT(dpar_fsdp_unshard(f, 0, DPAR_ACTION_BACKWARD), DPAR_OK);
        for (u = UNITS - 1; u > 0; u--) {
            CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
            backward(f, c->rank, step, u);
            if (u == 2 && zero == 3 && step == 0) { /* only two units in use were announced */
                CHECK_INT(dpar_fsdp_unshard(f, 1, DPAR_ACTION_BACKWARD), DPAR_E_ROOM);
                CHECK_TEXT(c->why.text,
                           "fsdp: no memory is left for the weights of unit 'h.0' in "
                           "addition to those of unit 'wte', unit 'h.1', which are in use "
                           "(desc.units_in_use is the limit)");
            }
            CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
            CHECK_INT(dpar_fsdp_ready(f, u), DPAR_OK);
        }
        backward(f, c->rank, step, 0);
        CHECK_INT(dpar_fsdp_reshard(f, 0, DPAR_ACTION_BACKWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_ready(f, 0), DPAR_OK);
        CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
        CHECK_INT(dpar_fsdp_step(f, 0.25, 1.0), DPAR_OK);
        for (u = 0; u < UNITS; u++) {
            const double *w;
            CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
            w = (const double *)dpar_fsdp_weight(f, u);
            for (i = 0; i < NUMEL; i++) {
                double sum = 0.0;
                for (r = 0; r < c->size; r++) {
                    sum += gradient_of(r, step, u, i);
                }
                want[u][i] -= 0.25 * (sum / c->size);
                CHECK(fabs(w[i] - want[u][i]) <= (step + 1) * 4e-15);
            }
            CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        }
    }
    CHECK(zero == 3 || at[0] == at[1]); /* whole weights keep their address */
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
}

/* ---- bookkeeping in allocated memory and in the caller's: the same bits ---------------------- */

/* Adds gradients that depend on the weights, so that a wrong step changes all later ones. */
static void add_gradient(float *g, const float *w, int64_t n, int rank, int step)
{
    int64_t i;
    for (i = 0; i < n; i++) {
        g[i] += 0.25f * w[i] + (float)gradient_of(rank, step, (int)n, (int)i);
    }
}

static void full_step(dpar_fsdp *f, const int64_t *numel, int rank, int step, double clip)
{
    dpar_update update;
    int32_t u;
    memset(&update, 0, sizeof update);
    update.rate = 0.125;
    update.clip = clip;
    dpar_fsdp_zero(f);
    CHECK_INT(dpar_fsdp_begin(f, 1), DPAR_OK);
    for (u = 0; u < UNITS; u++) {
        CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_FORWARD), DPAR_OK);
    }
    for (u = UNITS - 1; u >= 0; u--) {
        CHECK_INT(dpar_fsdp_unshard(f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        add_gradient((float *)dpar_fsdp_gradient(f, u, NULL), (const float *)dpar_fsdp_weight(f, u),
                     numel[u], rank, step);
        CHECK_INT(dpar_fsdp_reshard(f, u, DPAR_ACTION_BACKWARD), DPAR_OK);
        CHECK_INT(dpar_fsdp_ready(f, u), DPAR_OK);
    }
    CHECK_INT(dpar_fsdp_end(f), DPAR_OK);
    CHECK_INT(dpar_fsdp_update(f, &update), DPAR_OK);
}

static void fsdp_memory(dpar_comm *c, int32_t optimizer, double clip)
{
    static const int64_t numel[UNITS] = {NUMEL, 2 * NUMEL, 5};
    static const int32_t params_of[UNITS] = {1, 1, 1};
    float values[2 * NUMEL];
    dpar_fsdp_desc o;
    dpar_fsdp_sizes sizes;
    dpar_fsdp *own = NULL, *given = NULL;
    dpar_why why;
    void *memory;
    int32_t u;
    int i, step;
    memset(&o, 0, sizeof o);
    o.units = UNITS;
    o.count = numel;
    o.prefetch = 1;
    dpar_optimizer_init(&o.optimizer, optimizer);
    CHECK_INT(dpar_fsdp_make(c, &o, &own, &why), DPAR_OK); /* all defaults: ZeRO-3, f32 */
    o.params_per_unit = params_of;
    o.zero = 3;
    o.type = o.compute_type = o.gradient_type = DPAR_F32;
    o.bytes = 1; /* a query: make fails and reports the bytes needed */
    why.bytes = 0;
    CHECK_INT(dpar_fsdp_make(c, &o, &given, &why), DPAR_E_ROOM);
    CHECK_INT(dpar_fsdp_sizes_init(&sizes, c->size, &o, NULL), DPAR_OK);
    CHECK_INT(why.bytes, sizes.plan);
    memory = NULL;
    CHECK(posix_memalign(&memory, 64, (size_t)why.bytes) == 0);
    o.memory = memory;
    o.bytes = why.bytes - (c->rank == c->size - 1);
    why.bytes = 0;
    /* the last rank's memory is too small */
    CHECK_INT(dpar_fsdp_make(c, &o, &given, &why), DPAR_E_ROOM);
    CHECK_INT(why.bytes, sizes.plan);
    o.bytes = why.bytes;
    CHECK_INT(dpar_fsdp_make(c, &o, &given, &why), DPAR_OK);
    for (u = 0; u < UNITS; u++) {
        for (i = 0; i < 2 * NUMEL; i++) {
            values[i] = (float)(u + 1) / (float)(i + 3);
        }
        CHECK_INT(dpar_fsdp_set(own, u, values), DPAR_OK);
        CHECK_INT(dpar_fsdp_set(given, u, values), DPAR_OK);
    }
    for (step = 0; step < 4; step++) {
        full_step(own, numel, c->rank, step, clip);
        full_step(given, numel, c->rank, step, clip);
        for (u = 0; u < UNITS; u++) {
            CHECK_INT(dpar_fsdp_unshard(own, u, DPAR_ACTION_FORWARD), DPAR_OK);
            CHECK_INT(dpar_fsdp_unshard(given, u, DPAR_ACTION_FORWARD), DPAR_OK);
            CHECK(memcmp(dpar_fsdp_weight(own, u), dpar_fsdp_weight(given, u),
                         (size_t)numel[u] * sizeof *values) == 0);
            CHECK_INT(dpar_fsdp_reshard(own, u, DPAR_ACTION_FORWARD), DPAR_OK);
            CHECK_INT(dpar_fsdp_reshard(given, u, DPAR_ACTION_FORWARD), DPAR_OK);
        }
    }
    CHECK_INT(dpar_fsdp_free(own), DPAR_OK);
    CHECK_INT(dpar_fsdp_free(given), DPAR_OK);
    free(memory);
}

/* Passes descriptors without units, without sizes, and with negative ones. */
static void fsdp_counts_refused(dpar_comm *c)
{
    static const int64_t numel[2] = {3, -1};
    dpar_fsdp_desc o;
    dpar_fsdp *f = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.units = 2;
    o.count = numel;
    dpar_optimizer_init(&o.optimizer, DPAR_OPTIMIZER_SGD);
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: parameter 0 of unit 1 has -1 elements, but must have 0 or more");
    o.units = -1;
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: units is -1, but must be 0 or more");
    o.units = 1;
    o.count = NULL;
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, "fsdp: count is NULL, but there are 1 units");
    o.count = numel;
    o.optimizer.kind = 0;
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_E_ARG);
    CHECK(f == NULL && c->status == DPAR_OK);
}

static void fsdp_refused(dpar_comm *c)
{
    dpar_fsdp_desc o;
    dpar_fsdp *f = NULL;
    dpar_why why;
    fsdp_begin(&o, 3);
    o.gradient_buffers = 1;
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_E_ROOM);
    CHECK_TEXT(why.text,
               "fsdp: units_in_use is 2, but gradient_buffers holds the gradients of only "
               "1 units");
    o.gradient_buffers = 0;
    o.units_in_use = c->rank == c->size - 1 ? -1 : 2;
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), DPAR_E_ARG);
    o.units_in_use = c->rank == c->size - 1 ? 3 : 2;
    CHECK_INT(dpar_fsdp_make(c, &o, &f, &why), c->size > 1 ? DPAR_E_MISMATCH : DPAR_OK);
    CHECK(c->size == 1 || says_who_differs(why.text, c->size, "fsdp: units_in_use", "2", "3"));
    CHECK_INT(dpar_fsdp_free(f), DPAR_OK);
    CHECK_INT(dpar_fsdp_make(c, NULL, &f, &why), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_make(NULL, &o, &f, &why), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_make(c, &o, unless_last(c, &f), &why), DPAR_E_ARG);
    CHECK_INT(dpar_fsdp_free(NULL), DPAR_OK);
}

/* ---- pipelines: stage s computes 2 x + s; its gradient is 2 g -------------------------------- */

enum { MICROS = 8, COUNT = 5 };

typedef struct pipe {
    int stages, wrong, reduced, forward, backward;
} pipe_state;

/* Returns element i of micro-batch m after stage s: f_s = 2 f_(s-1) + s, where f_(-1) = m + i. */
static double value_of(int s, int m, int i)
{
    double v = m + i;
    int k;
    for (k = 0; k <= s; k++) {
        v = 2.0 * v + k;
    }
    return v;
}

static dpar_status pipe_forward(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    pipe_state *p = (pipe_state *)ctx;
    int i;
    (void)why;
    p->forward++;
    for (i = 0; i < COUNT; i++) {
        const double in =
            t->in != NULL ? ((const double *)t->in)[i] : (double)(t->action.micro_batch + i);
        const double out = 2.0 * in + t->action.stage;
        p->wrong += out != value_of(t->action.stage, t->action.micro_batch, i);
        if (t->out != NULL) {
            ((double *)t->out)[i] = out;
        }
    }
    return DPAR_OK;
}

static dpar_status pipe_backward(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    pipe_state *p = (pipe_state *)ctx;
    int i;
    (void)why;
    p->backward++;
    for (i = 0; i < COUNT; i++) {
        const double in = t->in != NULL ? ((const double *)t->in)[i] : 1.0 + i;
        p->wrong += in != ldexp(1.0 + i, p->stages - 1 - t->action.stage);
        if (t->out != NULL) {
            ((double *)t->out)[i] = 2.0 * in;
        }
    }
    return DPAR_OK;
}

static dpar_status pipe_reduce(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    (void)t;
    (void)why;
    ((pipe_state *)ctx)->reduced++;
    return DPAR_OK;
}

static dpar_status pipe_nothing(void *ctx, const dpar_stage_task *t, dpar_why *why)
{
    (void)ctx;
    (void)t;
    (void)why;
    return DPAR_OK;
}

static void pipeline_made(dpar_comm *c, const char *order, int chunks, int reduces)
{
    pipe_state state;
    dpar_pipeline_desc o;
    dpar_pipeline *p = NULL;
    dpar_why why;
    int step;
    memset(&state, 0, sizeof state);
    memset(&o, 0, sizeof o);
    state.stages = c->size * chunks;
    o.type = DPAR_F64;
    o.count = COUNT;
    o.forward = pipe_forward;
    o.backward = o.input = pipe_backward;
    o.weight = pipe_nothing;
    o.reduce = reduces ? pipe_reduce : NULL;
    o.ctx = &state;
    o.order = order;
    o.micro_batches = MICROS;
    CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_OK);
    for (step = 1; step <= 2; step++) {
        CHECK_INT(dpar_pipeline_run(p, 1, &why), DPAR_OK);
        CHECK_INT(state.wrong, 0);
        CHECK_INT(state.forward, step * MICROS * chunks);
        CHECK_INT(state.backward, step * MICROS * chunks);
        CHECK_INT(state.reduced, reduces ? step * chunks : 0);
    }
    CHECK_INT(dpar_pipeline_free(p), DPAR_OK);
}

/* Checks that the runner's list equals the list that lowering makes, and that messages are posted
 * in its order. So the order that is proved and timed with one queue per rank is the one that
 * runs. */
static void pipeline_order(dpar_comm *c)
{
    enum { ROOM = 1 << 20 };
    pipe_state state;
    dpar_schedule_desc order;
    dpar_schedule plain, list;
    dpar_pipeline_desc o;
    dpar_pipeline *p = NULL;
    dpar_why why;
    int64_t *made = (int64_t *)malloc(ROOM), *lowered = (int64_t *)malloc(ROOM), *times, k, n;
    int64_t before = 0;
    memset(&order, 0, sizeof order);
    CHECK_INT(dpar_schedule_find(&order, "interleaved", &why), DPAR_OK);
    order.ranks = c->size;
    order.micro_batches = MICROS;
    CHECK_INT(dpar_schedule_generate(&plain, &order, made, ROOM, &why), DPAR_OK);
    CHECK_INT(dpar_schedule_lower(&list, &plain, NULL, lowered, ROOM, &why), DPAR_OK);
    n = list.begin[c->rank + 1] - list.begin[c->rank];
    times = (int64_t *)malloc(16 * (size_t)n);
    memset(&state, 0, sizeof state);
    memset(&o, 0, sizeof o);
    state.stages = list.stages;
    o.type = DPAR_F64;
    o.count = COUNT;
    o.forward = pipe_forward;
    o.backward = pipe_backward;
    o.ctx = &state;
    o.start = times;
    o.end = times + n;
    o.order = "interleaved";
    o.micro_batches = MICROS;
    CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_OK);
    /* Reads the private field with the list that dpari_pl_list has lowered. */
    CHECK_INT(p->desc.schedule->begin[c->size], list.begin[c->size]);
    CHECK(memcmp(p->desc.schedule->action, list.action,
                 sizeof *list.action * (size_t)list.begin[c->size]) == 0);
    CHECK_INT(dpar_pipeline_run(p, 1, &why), DPAR_OK);
    for (k = 0; k < n; k++) {
        const int32_t kind = list.action[list.begin[c->rank] + k].kind;
        if (kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B) {
            CHECK(times[k] >= before);
            before = times[k];
        }
    }
    CHECK_INT(dpar_pipeline_free(p), DPAR_OK);
    free(made);
    free(lowered);
    free(times);
}

static void pipeline_refused(dpar_comm *c)
{
    const int last = c->rank == c->size - 1;
    dpar_pipeline_desc o;
    dpar_pipeline *p = NULL;
    dpar_why why;
    memset(&o, 0, sizeof o);
    o.type = DPAR_F64;
    o.count = COUNT;
    o.forward = o.backward = pipe_nothing;
    o.order = last ? "zigzag" : "1f1b";
    o.micro_batches = 4;
    CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_E_UNKNOWN);
    CHECK(strstr(why.text, "zigzag") != NULL);
    o.order = "1f1b";
    o.micro_batches = last ? 0 : 4;
    CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_E_ARG);
    if (c->size > 1) {
        o.order = "1f1b";
        o.micro_batches = last ? 5 : 4;
        CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_E_MISMATCH);
        o.count = last ? 6 : 5;
        o.order = "1f1b";
        o.micro_batches = 4;
        CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_E_MISMATCH);
        o.count = COUNT;
    }
    o.backward = NULL;
    o.order = "1f1b";
    o.micro_batches = 4;
    CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_E_ARG);
    CHECK_INT(dpar_pipeline_make(c, NULL, &p, &why), DPAR_E_ARG);
    o.backward = pipe_nothing;
    o.order = last ? NULL : "1f1b";
    CHECK_INT(dpar_pipeline_make(c, &o, &p, &why), DPAR_E_ARG);
    CHECK(strstr(why.text, "exactly one of order and schedule") != NULL);
    o.order = "1f1b";
    CHECK_INT(dpar_pipeline_make(c, &o, unless_last(c, &p), &why), DPAR_E_ARG);
    CHECK(p == NULL);
    CHECK_INT(dpar_pipeline_free(NULL), DPAR_OK);
}

/* ---- attention: the same bits as the plan in the caller's memory ----------------------------- */

static void attention_made(dpar_comm *c, int ulysses)
{
    enum { HEADS = 4, WIDTH = 3, ROW = HEADS * WIDTH };
    const int64_t ends[2] = {0, 16 * c->size};
    dpar_attention_desc layer;
    dpar_attention_plan *plan[2] = {NULL, NULL};
    dpar_attention_arrays a;
    dpar_why why;
    double *q, *out[2], *lse;
    void *memory = NULL, *kept;
    int64_t bytes = 0, i;
    int k;
    memset(&layer, 0, sizeof layer);
    CHECK_INT(dpar_packed_init(&layer.tokens, 1, ends, c->size,
                               ulysses ? DPAR_SPLIT_EVEN : DPAR_SPLIT_ZIGZAG, &why),
              DPAR_OK);
    layer.method = ulysses ? dpar_attention_ulysses : NULL;
    layer.heads = HEADS;
    layer.width = WIDTH;
    layer.type = DPAR_F64;
    layer.causal = 1;
    CHECK_INT(dpar_attention_make(c, &layer, &plan[1], &why), DPAR_OK);
    CHECK_INT(attention_bytes(c, &layer, &bytes, &why), DPAR_OK);
    CHECK(bytes > 64);
    CHECK_INT(dpar_comm_alloc(c, bytes, &memory), DPAR_OK);
    why.bytes = 0; /* the last rank's memory is too small */
    CHECK_INT(attention_in(memory, bytes - (c->rank == c->size - 1), c, &layer, &plan[0], &why),
              DPAR_E_ROOM);
    CHECK_INT(why.bytes, bytes);
    CHECK_INT(attention_in(memory, bytes, c, &layer, &plan[0], &why), DPAR_OK);
    CHECK_INT(plan[0]->tokens, plan[1]->tokens);
    q = (double *)zeroed(3 * 16 * ROW * 8);
    lse = (double *)zeroed(16 * HEADS * 8);
    kept = zeroed(plan[1]->saved_bytes + 64);
    for (i = 0; i < 3 * plan[1]->tokens * ROW; i++) {
        q[i] = (double)(scrambled((uint32_t)c->rank, i) % 1000u) / 500.0 - 1.0;
    }
    for (k = 0; k < 2; k++) {
        out[k] = (double *)zeroed(16 * ROW * 8);
        memset(&a, 0, sizeof a);
        a.q = q;
        a.k = q + plan[k]->tokens * ROW;
        a.v = q + 2 * plan[k]->tokens * ROW;
        a.out = out[k];
        a.lse = lse;
        a.saved = kept;
        CHECK_INT(dpar_attention_forward(plan[k], &a), DPAR_OK);
    }
    CHECK(memcmp(out[0], out[1], (size_t)(plan[1]->tokens * ROW * 8)) == 0);
    CHECK(out[0][0] != 0.0);
    CHECK_INT(dpar_attention_free(plan[1]), DPAR_OK);
    CHECK_INT(dpar_attention_free(plan[0]), DPAR_OK);
    CHECK_INT(dpar_attention_make(c, &layer, unless_last(c, &plan[1]), &why), DPAR_E_ARG);
    layer.heads = c->rank == c->size - 1 ? -1 : HEADS;
    CHECK_INT(dpar_attention_make(c, &layer, &plan[1], &why), DPAR_E_ARG);
    CHECK_INT(dpar_attention_make(NULL, &layer, &plan[1], &why), DPAR_E_ARG);
    CHECK_INT(dpar_attention_free(NULL), DPAR_OK);
    dpar_comm_release(c, memory);
    free(q);
    free(lse);
    free(kept);
    free(out[0]);
    free(out[1]);
}

/* ---- experts: expert e multiplies each row by e + 1 ------------------------------------------ */

static void experts_made(dpar_comm *c)
{
    enum { EXPERTS = 6, TOKENS = 11, WIDTH = 3, CHOICES = 2 };
    dpar_experts_desc layer;
    dpar_experts_plan *plan = NULL;
    dpar_experts_routing *route = NULL;
    dpar_experts_choices choices;
    dpar_experts_arrays a;
    dpar_why why;
    int32_t chosen[TOKENS * CHOICES], e;
    double x[TOKENS * WIDTH], y[TOKENS * WIDTH], weight[TOKENS * CHOICES], *rows;
    int64_t i;
    int turn, k;
    memset(&layer, 0, sizeof layer);
    memset(&choices, 0, sizeof choices);
    CHECK_INT(dpar_split_init(&layer.experts, DPAR_SPLIT_EVEN, EXPERTS, c->size, 1, &why), DPAR_OK);
    layer.choices = CHOICES;
    layer.drop = DPAR_EXPERTS_DROP_NONE;
    layer.max_tokens = TOKENS;
    layer.width = WIDTH;
    layer.type = DPAR_F64;
    CHECK_INT(dpar_experts_make(c, &layer, &plan, &why), DPAR_OK);
    rows = (double *)zeroed(plan->max_rows * WIDTH * 8 + 8);
    for (turn = 0; turn < 2; turn++) { /* both turns use the same memory */
        choices.tokens = TOKENS - turn;
        choices.chosen = chosen;
        for (i = 0; i < TOKENS; i++) {
            chosen[2 * i] = (int32_t)((i + c->rank + turn) % EXPERTS);
            chosen[2 * i + 1] = (int32_t)((chosen[2 * i] + 1 + i % 3) % EXPERTS);
            weight[2 * i] = 0.5;
            weight[2 * i + 1] = 0.25;
        }
        for (i = 0; i < TOKENS * WIDTH; i++) {
            x[i] = (double)(100 * c->rank + i);
        }
        CHECK_INT(dpar_experts_route(plan, NULL, 0, &choices, &route, &why), DPAR_OK);
        memset(&a, 0, sizeof a);
        a.x = x;
        a.rows = rows;
        a.results = rows;
        a.weight = weight;
        a.y = y;
        CHECK_INT(dpar_experts_dispatch(plan, route, &a), DPAR_OK);
        for (e = 0; e < plan->count; e++) {
            for (i = route->first[e] * WIDTH; i < (route->first[e] + route->count[e]) * WIDTH;
                 i++) {
                rows[i] *= plan->first + e + 1;
            }
        }
        CHECK_INT(dpar_experts_combine(plan, route, &a), DPAR_OK);
        for (i = 0; i < choices.tokens; i++) { /* halves and quarters of whole numbers are exact */
            const double by = 0.5 * (chosen[2 * i] + 1) + 0.25 * (chosen[2 * i + 1] + 1);
            for (k = 0; k < WIDTH; k++) {
                CHECK(y[i * WIDTH + k] == by * x[i * WIDTH + k]);
            }
        }
    }
    CHECK_INT(dpar_experts_free(plan), DPAR_OK);
    CHECK_INT(dpar_experts_make(c, &layer, unless_last(c, &plan), &why), DPAR_E_ARG);
    layer.choices = c->rank == c->size - 1 ? 0 : CHOICES;
    CHECK_INT(dpar_experts_make(c, &layer, &plan, &why), DPAR_E_ARG);
    CHECK_INT(dpar_experts_make(NULL, &layer, &plan, &why), DPAR_E_ARG);
    CHECK_INT(dpar_experts_free(NULL), DPAR_OK);
    free(rows);
}

static int everything(dpar_comm *c, void *arg)
{
    int zero;
    (void)arg;
    for (zero = 1; zero <= 3; zero++) {
        fsdp_made(c, zero);
    }
    fsdp_refused(c);
    fsdp_memory(c, DPAR_OPTIMIZER_ADAMW, 0.5);
    fsdp_memory(c, DPAR_OPTIMIZER_SGD, 0.0);
    fsdp_counts_refused(c);
    pipeline_made(c, "1f1b", 1, 1);
    pipeline_made(c, "zbv", 2, 0);
    pipeline_made(c, "Interleaved-1F1B", 2, 1);
    pipeline_order(c);
    pipeline_refused(c);
    attention_made(c, 0);
    attention_made(c, 1);
    experts_made(c);
    return failures() > 0;
}

int main(int argc, char **argv)
{
    return rank_program(argc, argv, everything, NULL, 4, 3, NULL);
}
