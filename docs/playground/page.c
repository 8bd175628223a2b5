/* SPDX-License-Identifier: MIT-0 */
/* page - what docs/playground/index.html asks dpar, compiled for wasm32 by tools/playground.
 *
 * The page writes strings to page_in, each with a NUL behind it, one after another, and numbers to
 * page_given. A question answers with a status; page_number then has its numbers in a row and
 * page_text its lines. engine.js reads both in the order in which they are pushed here. */
#define DPAR_STATIC
#define DPAR_IMPLEMENTATION
#include "dpar_cost.h"

#define EXPORT(name) __attribute__((export_name(#name))) name

enum { NUMBERS = 2 << 20, TEXT = 1 << 20, MEMORY = 64 << 20 };
enum { ACTIONS = 200000, RANKS = 4096, CELLS = 16384 }; /* of a picture */

static char in[1 << 16];
static double given[64];
static double number[NUMBERS];
static int32_t numbers;
static char buffer[TEXT];
static dpar_text text;
static int64_t memory[MEMORY / 8];

/* ---- what a compiler may call --------------------------------------------------------------- */

void *memcpy(void *to, const void *from, size_t n)
{
    char *a = (char *)to;
    const char *b = (const char *)from;
    while (n-- > 0) {
        *a++ = *b++;
    }
    return to;
}

void *memset(void *to, int value, size_t n)
{
    char *a = (char *)to;
    while (n-- > 0) {
        *a++ = (char)value;
    }
    return to;
}

/* 128-bit products: of 32-bit halves. */
__int128 __multi3(__int128 x, __int128 y)
{
    const uint64_t a = (uint64_t)x, b = (uint64_t)y, half = 0xffffffffu;
    const uint64_t low = (a & half) * (b & half);
    const uint64_t left = (a >> 32) * (b & half), right = (a & half) * (b >> 32);
    const uint64_t middle = (low >> 32) + (left & half) + (right & half);
    const uint64_t high = (a >> 32) * (b >> 32) + (left >> 32) + (right >> 32) + (middle >> 32) +
                          a * (uint64_t)(y >> 64) + (uint64_t)(x >> 64) * b;
    return (__int128)(((unsigned __int128)high << 64) | (middle << 32 | (low & half)));
}

/* ---- in and out ----------------------------------------------------------------------------- */

char *EXPORT(page_in)(void)
{
    return in;
}
double *EXPORT(page_given)(void)
{
    return given;
}
double *EXPORT(page_number)(void)
{
    return number;
}
int32_t EXPORT(page_numbers)(void)
{
    return numbers;
}
char *EXPORT(page_text)(void)
{
    return buffer;
}

static void begin(void)
{
    numbers = 0;
    dpar_text_init(&text, buffer, sizeof buffer);
}

static void push(double x)
{
    if (numbers < NUMBERS) {
        number[numbers++] = x;
    }
}

static void line(const char *s)
{
    dpar_text_put(&text, s);
    dpar_text_put(&text, "\n");
}

/* The string behind this one. */
static const char *behind(const char *s)
{
    while (*s != 0) {
        s++;
    }
    return s + 1;
}

static int64_t whole(int32_t i)
{
    return (int64_t)given[i];
}

/* An error with its sentence. */
static int32_t refuse(dpar_status st, const dpar_why *why)
{
    line(why->text);
    return st;
}

/* What the library could do, and this page does not. */
static int32_t too_many(const char *sentence, dpar_why *why)
{
    dpar_text t;
    dpar_text_init(&t, why->text, sizeof why->text);
    dpar_text_put(&t, sentence);
    return DPAR_E_RANGE;
}

/* A name a line: 0 models, 1 machines, 2 GPUs, 3 precisions, 4 orders, 5 terms of memory, 6 of
 * time, 7 rules. Of machines the numbers are nodes, GPUs a node; a second line says the source. */
int32_t EXPORT(page_names)(int32_t what)
{
    int32_t i;
    begin();
    push(DPAR_VERSION);
    for (i = 0; what == 0 && dpar_model_name(i) != NULL; i++) {
        line(dpar_model_name(i));
    }
    for (i = 0; what == 1 && dpar_cluster_name(i) != NULL; i++) {
        dpar_cluster c;
        if (dpar_cluster_find(&c, dpar_cluster_name(i), NULL) == DPAR_OK) {
            line(dpar_cluster_name(i));
            line(c.gpu.name);
            line(c.source);
            push(c.nodes);
            push(c.gpus_per_node);
            push(c.gpu.memory_bytes);
        }
    }
    for (i = 0; what == 2 && dpar_gpu_name(i) != NULL; i++) {
        line(dpar_gpu_name(i));
    }
    for (i = 0; what == 3 && dpar_recipe_name(i) != NULL; i++) {
        line(dpar_recipe_name(i));
    }
    for (i = 1; what == 4 && i < DPAR_SCHEDULE_END; i++) {
        line(dpar_schedule_name(i));
    }
    for (i = 0; what == 5 && i < DPAR_MEMORY_COUNT; i++) {
        line(dpar_memory_name(i));
    }
    for (i = 0; what == 6 && i < DPAR_TIME_COUNT; i++) {
        line(dpar_time_name(i));
    }
    for (i = 0; what == 7 && i < DPAR_STRATEGY_RULE_COUNT; i++) {
        line(dpar_strategy_rule_name(i));
    }
    return DPAR_OK;
}

/* ---- plans ---------------------------------------------------------------------------------- */

enum { TOP = 8, FRONT = 32 };
static dpar_plan_query asked;
static dpar_planner planner;
static dpar_plan top[TOP], front[FRONT];
static int32_t tops, fronts;
static int64_t batch;

static int32_t gpus(void)
{
    return asked.cluster.nodes * asked.cluster.gpus_per_node;
}

/* One strategy that was given, fitting or not; DONE. */
static int32_t price(const char *model, const char *machine, const char *options)
{
    static dpar_plan_result planned;
    dpar_why why;
    const dpar_status st = dpar_plan_search(model, machine, options, &planned, &why);
    const dpar_strategy *s = &planned.query.strategy;
    dpar_strategy legal;
    if (st != DPAR_OK) {
        line(why.text);
    }
    if (st != DPAR_OK && st != DPAR_E_MEMORY) {
        if (dpar_strategy_nearest(&asked.job, s, planned.report.global_batch, &legal, NULL) ==
            DPAR_OK) {
            dpar_text_put(&text, "the nearest legal strategy is ");
            dpar_strategy_write(&legal, &text);
            line("");
        }
        return st;
    }
    top[0] = planned.plan[0];
    tops = 1;
    batch = planned.report.global_batch;
    memset(&planner, 0, sizeof planner);
    planner.evaluated = 1;
    return DPAR_DONE;
}

/* model, machine, options in; the job out, and a search is ready. DONE: there is none, the one
 * strategy that was given is priced. */
int32_t EXPORT(page_plan_ask)(void)
{
    const char *model = in, *machine = behind(model), *options = behind(machine);
    dpar_why why;
    dpar_planner_desc search;
    dpar_status st = dpar_plan_query_read(model, machine, options, &asked, &why);
    begin();
    tops = fronts = 0;
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    line(asked.work.name);
    line(asked.cluster.name);
    line(asked.cluster.gpu.name);
    line(asked.job.recipe.name);
    push(gpus());
    push(asked.cluster.nodes);
    push(asked.machine_gpus);
    push((double)asked.search.global_batch);
    push(asked.work.tokens);
    push(asked.work.params);
    push(asked.work.vocab);
    push(asked.work.dims);
    push(asked.work.trains);
    push(asked.work.time_steps);
    push(asked.cluster.gpu.memory_bytes);
    batch = asked.search.global_batch;
    if (asked.strategy_fields != 0) {
        return price(model, machine, options);
    }
    search = asked.search;
    search.top = top;
    search.top_capacity = TOP;
    search.front = front;
    search.front_capacity = FRONT;
    st = dpar_planner_init(&planner, &asked.job, &search, &why);
    return st == DPAR_OK ? DPAR_MORE : refuse(st, &why);
}

/* On how many GPUs it would fit. */
static void say_enough(void)
{
    const int64_t most = 64 * (int64_t)gpus();
    dpar_planner_desc q = asked.search;
    dpar_plan plan;
    q.global_batch = asked.batch > 0 ? asked.batch : 0;
    q.space = DPAR_SPACE_USUAL;
    if (dpar_plan_smallest(&asked.job, &q, (int32_t)(most < 1 << 20 ? most : 1 << 20), &plan,
                           NULL) == DPAR_OK) {
        push(dpar_strategy_ranks(&plan.strategy));
    }
}

/* Searches on; progress, configurations walked so far; E_NONE: on how many GPUs it fits, if on any.
 */
int32_t EXPORT(page_plan_run)(int32_t budget)
{
    dpar_why why;
    const dpar_status st = dpar_planner_run(&planner, budget, &why);
    begin();
    push(planner.progress);
    push((double)planner.walked);
    tops = planner.top_count;
    fronts = planner.front_count;
    if (st == DPAR_E_NONE) {
        dpar_advice nearest;
        line(why.text);
        if (dpar_plan_recommend(&asked.job, &asked.search, &nearest, &why) == DPAR_E_MEMORY) {
            line(why.text);
            top[0] = nearest.plan; /* what comes nearest, to be drawn */
            tops = 1;
            batch = 0;
        }
        say_enough();
        return st;
    }
    return st < 0 ? refuse(st, &why) : st;
}

/* engine.js and plan.js count on these. */
typedef char page_counts
    [DPAR_MEMORY_COUNT == 13 && DPAR_TIME_COUNT == 14 && DPAR_STRATEGY_RULE_COUNT == 15 ? 1 : -1];

static void push_plan(const dpar_plan *p)
{
    int32_t i;
    dpar_strategy_write(&p->strategy, &text);
    line("");
    push(p->fits);
    push(p->step.total);
    push(p->memory.total);
    push(p->memory.lower);
    push(p->memory.upper);
    push(p->memory.allocated);
    push(p->memory.late);
    push(p->memory.worst);
    push(p->memory.moment);
    push(p->step.samples);
    push(p->step.tokens_per_s_gpu);
    push(p->step.mfu);
    push(p->step.mfu_causal);
    push(p->step.bubble);
    push(p->step.link_bytes);
    push(p->step.nic_bytes);
    push(p->step.dp_hidden_s);
    push(p->strategy.pp);
    push(p->strategy.vp);
    push(p->strategy.micro_batches);
    push(p->strategy.schedule);
    for (i = 0; i < DPAR_MEMORY_COUNT; i++) {
        push(p->memory.term[i]);
    }
    for (i = 0; i < DPAR_TIME_COUNT; i++) {
        push(p->step.term[i]);
    }
}

/* The best plans, the front, why not the neighbours of plan `which` (front behind top), how many
 * configurations broke which rule. */
int32_t EXPORT(page_plan_tell)(int32_t which)
{
    dpar_plan_rejection rejected[18];
    const dpar_plan *of = which < TOP ? &top[which < 0 ? 0 : which] : &front[which - TOP];
    int32_t i, n;
    begin();
    push(tops);
    push(fronts);
    for (i = 0; i < tops; i++) {
        push_plan(&top[i]);
    }
    for (i = 0; i < fronts; i++) {
        push_plan(&front[i]);
    }
    n = tops > 0 && which < (which < TOP ? tops : TOP + fronts)
            ? dpar_plan_neighbours(&asked.job, of, batch, rejected, 18)
            : 0;
    push(n);
    for (i = 0; i < n; i++) {
        push(rejected[i].rule);
        push(rejected[i].seconds);
        push(rejected[i].bytes_over);
        line(rejected[i].text);
    }
    push((double)planner.evaluated);
    push((double)planner.cut);
    push((double)planner.walked);
    for (i = 0; i < DPAR_STRATEGY_RULE_COUNT; i++) {
        push((double)planner.rejected[i]);
    }
    return DPAR_OK;
}

/* The schedule of plan `which` (front behind top), simulated. */
int32_t EXPORT(page_plan_simulate)(int32_t which)
{
    dpar_plan_simulation sim;
    dpar_why why;
    const dpar_plan *of = which < TOP ? &top[which < 0 ? 0 : which] : &front[which - TOP];
    dpar_status st = dpar_plan_simulate(&asked.job, of, &sim, memory, sizeof memory, &why);
    begin();
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    push(sim.total);
    push(sim.slower);
    push(sim.bubble);
    push(sim.memory);
    push(sim.larger);
    return st;
}

/* One strategy in words: name, why, simpler, fastest, what to mind. */
int32_t EXPORT(page_plan_advise)(void)
{
    dpar_advice a;
    dpar_why why;
    dpar_status st = dpar_plan_recommend(&asked.job, &asked.search, &a, &why);
    begin();
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    line(a.name);
    line(a.why);
    line(a.runner_up);
    line(a.fastest);
    line(a.warning_text);
    push(a.plan.step.total);
    push(a.plan.memory.total);
    push(a.slower);
    return st;
}

/* ---- pipelines ------------------------------------------------------------------------------ */

/* Ticks of a unit of time: of a hundredth up to 16 parts, and many more, are whole. */
static const int64_t unit = 144144000;

/* Rules that take any number of stages a rank. */
static int takes_chunks(int32_t rule)
{
    return rule == DPAR_SCHEDULE_INTERLEAVED || rule == DPAR_SCHEDULE_BREADTH_FIRST ||
           rule == DPAR_SCHEDULE_INTERLEAVED_ZB || rule == DPAR_SCHEDULE_MOE_OVERLAP ||
           rule == DPAR_SCHEDULE_FORWARD_ONLY;
}

/* What a stage has of its rank's layers: one part of so many. Of two directions each has all. */
static int32_t share_of(int32_t rule, int32_t chunks, int32_t slices)
{
    const int v = rule == DPAR_SCHEDULE_ZBV || rule == DPAR_SCHEDULE_V_HALF ||
                  rule == DPAR_SCHEDULE_V_MIN || rule == DPAR_SCHEDULE_DUALPIPEV ||
                  rule == DPAR_SCHEDULE_1F1B_V;
    return v ? 2 : takes_chunks(rule) ? chunks : rule == DPAR_SCHEDULE_SEQ1F1B ? slices : 1;
}

static const char many_actions[] = "more than 200,000 actions are too many for a picture";

typedef struct pipe {
    dpar_schedule_desc order;
    dpar_schedule list;
    dpar_schedule_times times;
    dpar_timing timing;
    dpar_rank_timing *rank;
    int64_t *start, *end, *path;
    int32_t share;
} pipe;

/* given: ranks, micro-batches, stages a rank, slices, hundredths of F, I, W of a rank's layers, of
 * a message. */
static dpar_status make_pipe(pipe *p, int32_t rule, dpar_why *why)
{
    const int32_t chunks = (int32_t)whole(2), slices = (int32_t)whole(3);
    const int64_t tick = unit / 100;
    dpar_schedule_simulate_desc how;
    int64_t used, actions, room = sizeof memory;
    char *at = (char *)memory;
    dpar_status st;
    memset(p, 0, sizeof *p);
    memset(&how, 0, sizeof how);
    p->order.rule = rule;
    p->order.ranks = (int32_t)whole(0);
    p->order.micro_batches = (int32_t)whole(1);
    p->share = share_of(rule, chunks, slices);
    p->order.chunks = takes_chunks(rule) ? chunks : 0;
    p->order.slices = rule == DPAR_SCHEDULE_SEQ1F1B ? slices : 0;
    st = dpar_schedule_generate(&p->list, &p->order, NULL, 0, why);
    if (st != DPAR_E_ROOM) {
        return st;
    }
    if (why->bytes > room / 2) {
        return too_many(many_actions, why);
    }
    st = dpar_schedule_generate(&p->list, &p->order, at, room, why);
    if (st != DPAR_OK) {
        return st;
    }
    actions = p->list.begin[p->list.ranks];
    used = (char *)(p->list.rank_of + p->list.stages) - at; /* the last array of a schedule */
    used = (used + 7) / 8 * 8;
    at += used;
    room -= used;
    if (actions > ACTIONS) {
        return too_many(many_actions, why);
    }
    p->start = how.start = (int64_t *)at;
    p->end = how.end = p->start + actions;
    p->path = how.path = p->end + actions;
    p->rank = how.rank = (dpar_rank_timing *)(p->path + actions);
    at = (char *)(p->rank + p->list.ranks);
    room = (char *)memory + sizeof memory - at;
    p->times.forward.all = whole(4) * tick / p->share;
    p->times.input.all = whole(5) * tick / p->share;
    p->times.weight.all = whole(6) * tick / p->share;
    p->times.latency.all = whole(7) * tick;
    how.times = &p->times;
    return dpar_schedule_simulate(&p->list, &how, &p->timing, at, room, why);
}

static void push_pipe(const pipe *p)
{
    const double one = (double)unit;
    const dpar_ratio idle = p->timing.bubble_of_makespan, work = p->timing.bubble_of_work;
    push((double)p->timing.makespan / one);
    push((double)p->timing.span / one);
    push(idle.whole > 0 ? (double)idle.part / (double)idle.whole : 0.0);
    push(work.whole > 0 ? (double)work.part / (double)work.whole : 0.0);
    push((double)p->timing.peak_count / p->share);
    push(p->list.stages);
    push(p->list.chain);
    push(p->list.ranks);
    push(p->share);
}

/* A rule's name in; its times by rank and action out, and the formula that holds, or why none does.
 */
int32_t EXPORT(page_pipeline)(void)
{
    static pipe p;
    dpar_schedule_desc order;
    dpar_formula formula;
    dpar_why why;
    dpar_status st;
    int64_t k;
    int32_t r;
    begin();
    memset(&order, 0, sizeof order);
    st = dpar_schedule_find(&order, in, &why);
    st = st == DPAR_OK ? make_pipe(&p, order.rule, &why) : st;
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    push_pipe(&p);
    for (r = 0; r < p.list.ranks; r++) {
        const dpar_rank_timing *t = &p.rank[r];
        push((double)t->busy / (double)unit);
        push((double)t->warm_up / (double)unit);
        push((double)t->dependency / (double)unit);
        push((double)t->communication / (double)unit);
        push((double)t->drain / (double)unit);
        push((double)t->peak_count / p.share);
        push((double)(p.list.begin[r + 1] - p.list.begin[r]));
    }
    for (k = 0; k < p.list.begin[p.list.ranks]; k++) {
        const dpar_action *a = &p.list.action[k];
        push(a->kind);
        push(a->joined);
        push(a->stage);
        push(a->micro_batch);
        push((double)p.start[k] / (double)unit);
        push((double)p.end[k] / (double)unit);
    }
    push((double)p.timing.path_actions);
    for (k = 0; k < p.timing.path_actions; k++) {
        push((double)p.path[k]);
    }
    st = dpar_schedule_closed_form(&p.order, &p.times, DPAR_FORMULA_MAKESPAN, 0, &formula, &why);
    line(st == DPAR_OK ? formula.text : "");
    line(st == DPAR_OK ? "" : why.text);
    push(st == DPAR_OK ? (double)formula.value / (double)unit : -1.0);
    return DPAR_OK;
}

/* All rules: a status each, and its numbers or its sentence. */
int32_t EXPORT(page_compare)(void)
{
    static pipe p;
    dpar_why why;
    int32_t rule;
    begin();
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        const dpar_status st = make_pipe(&p, rule, &why);
        line(dpar_schedule_name(rule));
        push(st);
        if (st == DPAR_OK) {
            push_pipe(&p);
        } else {
            line(why.text);
        }
    }
    return DPAR_OK;
}

/* ---- who owns what -------------------------------------------------------------------------- */

static dpar_layout layout;

/* The names of the axes in; given: the order of ranks, how many axes, rows, columns, then of each
 * axis its size, kind of placement, dim, rule, block. */
int32_t EXPORT(page_layout)(void)
{
    int32_t sizes[DPAR_MAX_AXES], axes = (int32_t)whole(1), i, r;
    const int64_t extent[2] = {whole(2), whole(3)};
    int64_t index[2];
    dpar_placement placement[DPAR_MAX_AXES];
    dpar_mesh mesh;
    dpar_why why;
    dpar_status st;
    begin();
    for (i = 0; i < axes; i++) {
        const int32_t at = 4 + 5 * i, kind = (int32_t)whole(at + 1);
        sizes[i] = (int32_t)whole(at);
        placement[i] =
            kind == DPAR_PLACEMENT_SHARD
                ? dpar_shard_by((int32_t)whole(at + 2), (int32_t)whole(at + 3), whole(at + 4))
            : kind == DPAR_PLACEMENT_PARTIAL ? dpar_partial(DPAR_SUM)
                                             : dpar_replicate();
    }
    st = dpar_mesh_init(&mesh, in, sizes, (int32_t)whole(0), 0, &why);
    if (st == DPAR_OK && (mesh.size > RANKS / 4 || extent[0] * extent[1] > CELLS)) {
        st = too_many("this page draws at most 1,024 ranks and 16,384 elements", &why);
    }
    st = st == DPAR_OK ? dpar_layout_init(&layout, &mesh, 2, extent, placement, &why) : st;
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    push(mesh.size);
    for (r = 0; r < mesh.size; r++) {
        int32_t coord[DPAR_MAX_AXES];
        int64_t shape[DPAR_MAX_DIMS], offset[DPAR_MAX_DIMS];
        dpar_box_cursor cursor;
        dpar_box box;
        int32_t boxes = numbers;
        dpar_mesh_coords(&mesh, r, coord);
        dpar_layout_local(&layout, r, shape, offset);
        for (i = 0; i < axes; i++) {
            push(coord[i]);
        }
        push((double)shape[0]);
        push((double)shape[1]);
        push((double)offset[0]);
        push((double)offset[1]);
        push((double)dpar_layout_count(&layout, r));
        push(dpar_layout_is_primary(&layout, r));
        boxes = numbers;
        push(0.0);
        memset(&cursor, 0, sizeof cursor);
        while (dpar_layout_next(&layout, r, &cursor, &box, NULL)) {
            number[boxes] += 1.0;
            push((double)box.lo[0]);
            push((double)box.hi[0]);
            push((double)box.lo[1]);
            push((double)box.hi[1]);
        }
    }
    for (index[0] = 0; index[0] < extent[0]; index[0]++) {
        for (index[1] = 0; index[1] < extent[1]; index[1]++) {
            push(dpar_layout_owner(&layout, index, 0, NULL));
        }
    }
    return DPAR_OK;
}

/* given: row, column. Each rank that holds the element, and where in its array; primary first. */
int32_t EXPORT(page_owner)(void)
{
    const int64_t index[2] = {whole(0), whole(1)};
    int64_t local[DPAR_MAX_DIMS];
    int32_t copy, rank;
    begin();
    for (copy = 0; (rank = dpar_layout_owner(&layout, index, copy, local)) >= 0; copy++) {
        push(rank);
        push((double)local[0]);
        push((double)local[1]);
    }
    return DPAR_OK;
}

/* ---- grids ---------------------------------------------------------------------------------- */

enum { CUT_LEAST, CUT_PLACED, CUT_MPI, CUT_OWN };
static dpar_halo halo;
static int32_t owner[RANKS];

typedef struct cut {
    int32_t dims, ranks, per_node, parts[DPAR_MAX_DIMS];
    int64_t cells[DPAR_MAX_DIMS], halo, bytes;
    uint32_t periodic;
    int32_t shape;
} cut;

/* Blocks count with their largest size. */
static dpar_stencil stencil_of(const cut *c, const int32_t *parts)
{
    dpar_stencil s;
    int32_t d;
    memset(&s, 0, sizeof s);
    s.shape = c->shape;
    s.bytes = c->bytes;
    for (d = 0; d < c->dims; d++) {
        s.block[d] = (c->cells[d] + parts[d] - 1) / parts[d];
        s.width[d] = c->halo;
    }
    return s;
}

/* The parts of a way to cut, and its ranks on their nodes. */
static dpar_status place(const cut *c, int32_t way, dpar_mapping *out, dpar_why *why)
{
    int32_t parts[DPAR_MAX_DIMS] = {0}, d;
    dpar_cart cart;
    dpar_stencil s;
    dpar_status st = DPAR_OK;
    for (d = 0; way == CUT_OWN && d < c->dims; d++) {
        parts[d] = c->parts[d];
    }
    if (way == CUT_MPI) {
        st = dpar_cart_dims(c->ranks, c->dims, parts, why);
    } else if (way != CUT_OWN) {
        dpar_cart_choose_desc grid;
        memset(&grid, 0, sizeof grid);
        grid.ranks = c->ranks;
        grid.dims = c->dims;
        grid.periodic = c->periodic;
        memcpy(grid.cells, c->cells, sizeof grid.cells);
        st = dpar_cart_choose_parts(&grid, parts, NULL, why);
    }
    st = st == DPAR_OK ? dpar_cart_init(&cart, c->dims, parts, c->periodic, why) : st;
    if (st == DPAR_OK && way == CUT_PLACED) {
        s = stencil_of(c, parts);
        return dpar_mapping_choose(out, &cart, c->per_node, &s, why);
    }
    return st == DPAR_OK ? dpar_mapping_init(out, &cart, DPAR_MAPPING_ROW_MAJOR, c->per_node, why)
                         : st;
}

/* An edge carries its bytes both ways: all ranks send twice the total. */
static dpar_status push_traffic(const cut *c, const dpar_mapping *p, dpar_why *why)
{
    const dpar_stencil s = stencil_of(c, p->grid.parts);
    dpar_mapping apart;
    int64_t all, rank, between, node;
    int32_t d;
    dpar_status st = dpar_mapping_init(&apart, &p->grid, DPAR_MAPPING_ROW_MAJOR, 1, why);
    st = st == DPAR_OK ? dpar_mapping_cost(&apart, &s, &all, &rank, why) : st;
    st = st == DPAR_OK ? dpar_mapping_cost(p, &s, &between, &node, why) : st;
    push(st);
    if (st != DPAR_OK) {
        return st;
    }
    for (d = 0; d < c->dims; d++) {
        push(p->grid.parts[d]);
    }
    push(p->kind);
    push(2.0 * (double)all);
    push((double)rank);
    push(2.0 * (double)between);
    push((double)node);
    return st;
}

/* The blocks of a process grid: who owns each, as the placement has it. */
static dpar_status set_halo(const cut *c, const dpar_mapping *p, dpar_why *why)
{
    static const char *const names[] = {"", "x", "x y", "x y z"};
    dpar_placement by[DPAR_MAX_DIMS];
    dpar_mesh mesh;
    dpar_status st;
    int32_t d, b, coord[DPAR_MAX_DIMS];
    memset(&halo, 0, sizeof halo);
    for (d = 0; d < c->dims; d++) {
        by[d] = dpar_shard_by(d, DPAR_SPLIT_EVEN, 0);
        halo.low[d] = halo.high[d] = c->halo;
    }
    halo.shape = c->shape;
    halo.periodic = c->periodic;
    st = dpar_mesh_init(&mesh, names[c->dims], p->grid.parts, DPAR_ORDER_LAST_FASTEST, 0, why);
    st = st == DPAR_OK ? dpar_layout_init(&halo.grid, &mesh, c->dims, c->cells, by, why) : st;
    for (b = 0; st == DPAR_OK && b < mesh.size; b++) {
        dpar_mesh_coords(&mesh, b, coord);
        owner[b] = dpar_mapping_rank(p, coord);
    }
    halo.owner = owner;
    return st == DPAR_OK ? dpar_halo_check(&halo, why) : st;
}

static void push_box(int32_t dims, int there, const dpar_box *box)
{
    int32_t d;
    push(there);
    for (d = 0; there && d < dims; d++) {
        push((double)box->lo[d]);
        push((double)box->hi[d]);
    }
}

/* The pieces that a rank receives: from whom, where they lie there and where they arrive. */
static dpar_status push_receives(const cut *c, int32_t rank, dpar_why *why)
{
    dpar_halo_cursor w;
    dpar_transfer t;
    dpar_box mine, theirs;
    int32_t count = numbers, d;
    dpar_status st = dpar_halo_first(&w, &halo, rank, DPAR_TRANSFER_RECV, DPAR_HALO_FORWARD, why);
    push(0.0);
    dpar_halo_box(&halo, rank, &mine);
    while (st == DPAR_OK && dpar_halo_next(&w, &t)) {
        number[count] += 1.0;
        dpar_halo_box(&halo, t.peer, &theirs);
        push(t.peer);
        push((double)dpar_transfer_volume(&t));
        for (d = 0; d < c->dims; d++) {
            push((double)t.extent[d]);
            push((double)(mine.lo[d] + t.mine[d]));
            push((double)(theirs.lo[d] + t.theirs[d]));
        }
    }
    return st;
}

static dpar_status push_sends(int32_t rank, dpar_why *why)
{
    dpar_halo_cursor w;
    dpar_transfer t;
    int32_t count = numbers;
    dpar_status st = dpar_halo_first(&w, &halo, rank, DPAR_TRANSFER_SEND, DPAR_HALO_FORWARD, why);
    push(0.0);
    while (st == DPAR_OK && dpar_halo_next(&w, &t)) {
        number[count] += 1.0;
        push(t.peer);
        push((double)dpar_transfer_volume(&t));
    }
    return st;
}

/* given: dims, ranks, ranks a node, halo, bytes, periodic bits, shape, way, rank, then cells[3] and
 * parts[3]. Traffic of all ways, then of the chosen one the blocks and a rank's halo. */
int32_t EXPORT(page_grid)(void)
{
    static dpar_mapping p, chosen;
    cut c;
    dpar_why why;
    dpar_status st;
    dpar_box box;
    int32_t d, way, r, rank = (int32_t)whole(8), mine = (int32_t)whole(7);
    begin();
    memset(&c, 0, sizeof c);
    c.dims = (int32_t)whole(0);
    c.ranks = (int32_t)whole(1);
    c.per_node = (int32_t)whole(2);
    c.halo = whole(3);
    c.bytes = whole(4);
    c.periodic = (uint32_t)whole(5);
    c.shape = whole(6) != 0 ? DPAR_STENCIL_BOX : DPAR_STENCIL_STAR;
    for (d = 0; d < c.dims; d++) {
        c.cells[d] = whole(9 + d);
        c.parts[d] = (int32_t)whole(12 + d);
    }
    st = place(&c, mine, &chosen, &why);
    if (st == DPAR_OK && chosen.grid.size > RANKS) {
        st = too_many("this page draws at most 4,096 ranks", &why);
    }
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    c.ranks = chosen.grid.size;
    push(c.ranks);
    for (way = CUT_LEAST; way <= CUT_OWN; way++) {
        if (way == CUT_OWN && mine != CUT_OWN) {
            push(1.0); /* not asked for */
            continue;
        }
        st = place(&c, way, &p, &why);
        if (st == DPAR_OK) {
            st = push_traffic(&c, &p, &why);
        } else {
            push(st);
        }
        if (st != DPAR_OK) {
            line(why.text);
        }
    }
    st = set_halo(&c, &chosen, &why);
    if (st != DPAR_OK) {
        return refuse(st, &why);
    }
    for (d = 0; d < c.dims; d++) {
        push(chosen.grid.parts[d]);
    }
    for (r = 0; r < c.ranks; r++) {
        push_box(c.dims, dpar_halo_owned(&halo, r, &box), &box);
    }
    rank = rank < c.ranks ? rank : c.ranks - 1;
    push(rank);
    push_box(c.dims, dpar_halo_box(&halo, rank, &box), &box);
    push_box(c.dims, dpar_halo_interior(&halo, rank, &box), &box);
    st = push_receives(&c, rank, &why);
    st = st == DPAR_OK ? push_sends(rank, &why) : st;
    return st == DPAR_OK ? DPAR_OK : refuse(st, &why);
}
