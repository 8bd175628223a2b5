/* SPDX-License-Identifier: MIT-0 */
#include "planner.h"

#include "../base/text.h"
#include "price.h"

/* ---- one configuration ---------------------------------------------------------------------- */

DPAR_API dpar_status dpar_plan_of(const dpar_job *job, const dpar_strategy *s, int64_t global_batch,
                                  dpar_plan *plan, int32_t *rule, dpar_why *why)
{
    dpari_layers layers;
    dpari_stages stages;
    dpar_status st = dpar_strategy_check(job, s, global_batch, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_price_layers(job, s, &layers);
    dpari_price_stages(job, s, &layers, &stages);
    plan->strategy = *s;
    dpari_price_memory(job, s, &stages, &plan->memory);
    dpari_price_step(job, s, &stages, &plan->step);
    plan->fits = plan->memory.upper <= job->cluster->gpu.memory_bytes;
    if (plan->fits) {
        return DPAR_OK;
    }
    if (rule != NULL) {
        *rule = DPAR_RULE_MEMORY;
    }
    return dpari_say(DPAR_E_MEMORY, why, "needs # MB a GPU (up to # MB), the GPU has # MB",
                     (int64_t)(plan->memory.total * 1e-6), (int64_t)(plan->memory.upper * 1e-6),
                     (int64_t)(job->cluster->gpu.memory_bytes * 1e-6), 0);
}

/* ---- the axes of the walk ------------------------------------------------------------------- */

/* Outer options, one price of the layers each: an odometer over these lists. */
enum {
    DPARI_AXIS_TILES,
    DPARI_AXIS_TP,
    DPARI_AXIS_SP,
    DPARI_AXIS_CP,
    DPARI_AXIS_CP_KIND,
    DPARI_AXIS_EP,
    DPARI_AXIS_OVERLAP_TP,
    DPARI_AXIS_MICRO_BATCH,
    DPARI_AXES
};

/* state[]: 0..AXES-1 the odometer, then its lengths, then the position and the whole. */
enum {
    DPARI_AT = 0,
    DPARI_LENGTH = DPARI_AXES,
    DPARI_POSITION = 2 * DPARI_AXES,
    DPARI_TOTAL,
    DPARI_NEAREST_BYTES,
    DPARI_NEAREST_GPUS
};

static int32_t dpari_fixed(const dpar_search *q, int32_t field)
{
    return (q->fixed_fields >> field & 1u) != 0;
}

/* The i-th divisor of n that is a power of two (usual) or any (whole); 0 past the last. */
static int32_t dpari_divisor(int32_t n, int32_t index, int32_t whole)
{
    int32_t d;
    for (d = 1; d <= n && d > 0; d = whole ? d + 1 : d * 2) {
        if (n % d == 0 && index-- == 0) {
            return d;
        }
        if (whole && d > n / 2 && d < n) {
            d = n - 1;
        }
    }
    return 0;
}

static int32_t dpari_divisors(int32_t n, int32_t whole)
{
    int32_t k = 0;
    while (dpari_divisor(n, k, whole) > 0) {
        k++;
    }
    return k;
}

static int32_t dpari_powers_up_to(int64_t n)
{
    int32_t k = 0;
    while (k < 30 && ((int64_t)1 << k) <= n) {
        k++;
    }
    return k;
}

static int32_t dpari_axis_length(const dpar_planner *p, int32_t axis)
{
    const dpar_workload *w = p->job.work;
    const dpar_search *q = &p->search;
    int32_t whole = q->space == DPAR_SPACE_WHOLE, node = p->job.cluster->gpus_per_node;
    switch (axis) {
    case DPARI_AXIS_TILES: /* cuts in all: powers of two, of both or all axes */
        return w->dims > 0 ? dpari_powers_up_to(q->gpus) : 1;
    case DPARI_AXIS_TP:
        if (w->heads == 0) {
            return 1;
        }
        return dpari_divisors(whole ? q->gpus : (int32_t)dpari_least(q->gpus, node), whole);
    case DPARI_AXIS_SP:
    case DPARI_AXIS_OVERLAP_TP: return whole && w->heads > 0 ? 2 : 1;
    case DPARI_AXIS_CP:
        return w->heads > 0 && w->vocab > 0
                   ? dpari_powers_up_to(dpari_least(64, (int64_t)w->tokens / (whole ? 1024 : 4096)))
                   : 1;
    case DPARI_AXIS_CP_KIND: return w->heads > 0 && w->tokens >= 8192.0 ? 2 : 1;
    case DPARI_AXIS_EP:
        return w->experts > 0 ? dpari_powers_up_to(dpari_least(w->experts, q->gpus)) : 1;
    default: return dpari_powers_up_to(whole ? 512 : 64);
    }
}

/* Cuts the grid `parts` ways so that the surface is least: each factor of two goes to the axis
 * whose tiles are longest. */
static void dpari_cut_grid(const dpar_workload *w, int32_t parts, int32_t *tiles)
{
    tiles[0] = tiles[1] = tiles[2] = 1;
    for (; parts > 1; parts /= 2) {
        int32_t i, best = 0;
        for (i = 1; i < w->dims; i++) {
            if (w->extent[i] / tiles[i] > w->extent[best] / tiles[best]) {
                best = i;
            }
        }
        tiles[best] *= 2;
    }
}

/* Fixed fields replace what the odometer says; one of its positions stands for all of an axis. */
static int32_t dpari_walk_fixed(const dpar_planner *p, dpar_strategy *s, int32_t whole)
{
    const dpar_search *q = &p->search;
    const int64_t *at = p->state + DPARI_AT;
    if (dpari_fixed(q, DPAR_FIELD_TP)) {
        if (at[DPARI_AXIS_TP] > 0) {
            return 0;
        }
        s->tp = q->fixed.tp;
        s->sp = whole ? s->sp : s->tp > 1;
    }
    if (dpari_fixed(q, DPAR_FIELD_SP)) {
        s->sp = q->fixed.sp;
    }
    if (dpari_fixed(q, DPAR_FIELD_CP)) {
        if (at[DPARI_AXIS_CP] > 0) {
            return 0;
        }
        s->cp = q->fixed.cp;
    }
    if (dpari_fixed(q, DPAR_FIELD_CP_KIND)) {
        s->cp_kind = q->fixed.cp_kind;
    }
    if (dpari_fixed(q, DPAR_FIELD_EP)) {
        if (at[DPARI_AXIS_EP] > 0) {
            return 0;
        }
        s->ep = q->fixed.ep;
    }
    if (dpari_fixed(q, DPAR_FIELD_ETP)) {
        s->etp = q->fixed.etp;
    }
    if (dpari_fixed(q, DPAR_FIELD_MICRO_BATCH)) {
        if (at[DPARI_AXIS_MICRO_BATCH] > 0) {
            return 0;
        }
        s->micro_batch = q->fixed.micro_batch;
    }
    if (dpari_fixed(q, DPAR_FIELD_TILES)) {
        int32_t i;
        if (at[DPARI_AXIS_TILES] > 0) {
            return 0;
        }
        for (i = 0; i < 3; i++) {
            s->tiles[i] = q->fixed.tiles[i];
        }
    }
    return 1;
}

/* Fills the outer options of the odometer's position; 0 when a fixed field or an early rule says no
 * (the rule is counted). */
static int32_t dpari_walk_outer(dpar_planner *p, dpar_strategy *s)
{
    const dpar_search *q = &p->search;
    const dpar_workload *w = p->job.work;
    const int64_t *at = p->state + DPARI_AT;
    int32_t whole = q->space == DPAR_SPACE_WHOLE, node = p->job.cluster->gpus_per_node;
    *s = dpar_strategy_default();
    s->tp = w->heads == 0 ? 1
                          : dpari_divisor(whole ? q->gpus : (int32_t)dpari_least(q->gpus, node),
                                          (int32_t)at[DPARI_AXIS_TP], whole);
    s->sp = whole ? (int32_t)at[DPARI_AXIS_SP] : s->tp > 1;
    s->cp = (int32_t)1 << at[DPARI_AXIS_CP];
    s->cp_kind = (int32_t)at[DPARI_AXIS_CP_KIND];
    s->ep = (int32_t)1 << at[DPARI_AXIS_EP];
    s->micro_batch = (int32_t)1 << at[DPARI_AXIS_MICRO_BATCH];
    if (at[DPARI_AXIS_OVERLAP_TP] > 0) {
        s->overlap = DPAR_OVERLAP_TP;
    }
    if (w->dims > 0) {
        dpari_cut_grid(w, (int32_t)1 << at[DPARI_AXIS_TILES], s->tiles);
    }
    if (!dpari_walk_fixed(p, s, whole)) {
        return 0;
    }
    /* combinations that repeat another */
    return !((s->cp == 1 && at[DPARI_AXIS_CP_KIND] > 0) || (s->tp == 1 && s->sp) ||
             (s->tp == 1 && at[DPARI_AXIS_OVERLAP_TP] > 0) ||
             (dpari_fixed(q, DPAR_FIELD_CP_KIND) && at[DPARI_AXIS_CP_KIND] > 0) ||
             (dpari_fixed(q, DPAR_FIELD_SP) && at[DPARI_AXIS_SP] > 0));
}

/* ---- keeping the best ----------------------------------------------------------------------- */

/* Is a better than b? Samples a second; then less memory; then what was found first. */
static int dpari_better(const dpar_plan *a, const dpar_plan *b)
{
    double x = a->step.samples / a->step.total, y = b->step.samples / b->step.total;
    if (x > y * (1.0 + 1e-12) || y > x * (1.0 + 1e-12)) {
        return x > y;
    }
    return a->memory.total < b->memory.total * (1.0 - 1e-12);
}

static void dpari_keep_top(dpar_planner *p, const dpar_plan *plan)
{
    int32_t i;
    if (p->top_room == 0 || (p->tops == p->top_room && !dpari_better(plan, &p->top[p->tops - 1]))) {
        return;
    }
    if (p->tops < p->top_room) {
        p->tops++;
    }
    for (i = p->tops - 1; i > 0 && dpari_better(plan, &p->top[i - 1]); i--) {
        p->top[i] = p->top[i - 1];
    }
    p->top[i] = *plan;
}

/* Time x memory: drops what the new one dominates; fastest first. A full front keeps its ends. */
static void dpari_keep_front(dpar_planner *p, const dpar_plan *plan)
{
    double rate = plan->step.samples / plan->step.total;
    int32_t i, k = 0;
    if (p->front_room < 2) {
        return;
    }
    for (i = 0; i < p->fronts; i++) {
        const dpar_plan *f = &p->front[i];
        if (f->step.samples / f->step.total >= rate && f->memory.total <= plan->memory.total) {
            return;
        }
    }
    for (i = 0; i < p->fronts; i++) {
        const dpar_plan *f = &p->front[i];
        if (!(rate >= f->step.samples / f->step.total && plan->memory.total <= f->memory.total)) {
            p->front[k++] = *f;
        }
    }
    p->fronts = k;
    if (p->fronts == p->front_room) { /* the inner one nearest in memory to its neighbour goes */
        int32_t drop = 1;
        double best = -1.0;
        for (i = 1; i + 1 < p->fronts; i++) {
            double gap = p->front[i - 1].memory.total - p->front[i + 1].memory.total;
            if (best < 0.0 || gap < best) {
                best = gap;
                drop = i;
            }
        }
        for (i = drop; i + 1 < p->fronts; i++) {
            p->front[i] = p->front[i + 1];
        }
        p->fronts--;
    }
    for (i = p->fronts++; i > 0 && dpari_better(plan, &p->front[i - 1]); i--) {
        p->front[i] = p->front[i - 1];
    }
    p->front[i] = *plan;
}

/* ---- the inner walk ------------------------------------------------------------------------- */

static int dpari_wanted(const dpar_search *q, int32_t field, int32_t value, int32_t fixed)
{
    return !dpari_fixed(q, field) || value == fixed;
}

static void dpari_walk_memory(dpar_planner *p, const dpar_plan *plan)
{
    int64_t mb = (int64_t)(plan->memory.upper * 1e-6);
    p->rejected[DPAR_RULE_MEMORY]++;
    if (p->state[DPARI_NEAREST_BYTES] == 0 || mb < p->state[DPARI_NEAREST_BYTES]) {
        p->state[DPARI_NEAREST_BYTES] = mb;
    }
}

/* Prices one configuration, its stages known. */
static void dpari_walk_price(dpar_planner *p, const dpar_strategy *s, const dpari_stages *stages)
{
    dpar_plan plan;
    double limit =
        p->search.memory_bytes > 0.0 ? p->search.memory_bytes : p->job.cluster->gpu.memory_bytes;
    plan.strategy = *s;
    dpari_price_memory(&p->job, s, stages, &plan.memory);
    dpari_price_step(&p->job, s, stages, &plan.step);
    plan.fits = plan.memory.upper <= limit;
    p->evaluated++;
    p->walked++;
    if (!plan.fits) {
        dpari_walk_memory(p, &plan);
        return;
    }
    dpari_keep_top(p, &plan);
    dpari_keep_front(p, &plan);
}

/* Shard groups: all of dp, and the ranks of one node (HSDP). */
static void dpari_walk_shards(dpar_planner *p, dpar_strategy *s, const dpari_stages *stages)
{
    const dpar_search *q = &p->search;
    int32_t in_node = p->job.cluster->gpus_per_node / s->tp, k;
    for (k = 0; k < 2; k++) {
        int32_t shard = k == 0 ? s->dp : in_node;
        if (dpari_fixed(q, DPAR_FIELD_SHARD)) {
            shard = q->fixed.shard > 0 ? q->fixed.shard : s->dp;
            if (k == 1) {
                return;
            }
        } else if (k == 1 && (s->zero == 0 || shard < 2 || shard >= s->dp || s->dp % shard != 0)) {
            return;
        }
        if (s->dp % shard != 0) {
            p->rejected[DPAR_RULE_ZERO]++;
            p->walked++;
            return;
        }
        s->shard = shard;
        dpari_walk_price(p, s, stages);
    }
}

/* ZeRO stage, offload, overlap of data parallelism. */
static void dpari_walk_data(dpar_planner *p, const dpar_strategy *outer, const dpari_stages *stages)
{
    const dpar_search *q = &p->search;
    dpar_strategy s = *outer;
    int32_t whole = q->space == DPAR_SPACE_WHOLE, zero, offload, overlap;
    int32_t offloads = whole && p->job.cluster->host_bytes > 0.0 ? 8 : 1;
    int32_t trains = p->job.work->trains, overlaps = whole && trains ? (s.pp > 1 ? 4 : 2) : 1;
    for (zero = 0; zero < 4; zero++) {
        if (!dpari_wanted(q, DPAR_FIELD_ZERO, zero, q->fixed.zero)) {
            continue;
        }
        if (!dpari_fixed(q, DPAR_FIELD_ZERO) &&
            ((zero > 0 && (s.dp * s.cp == 1 || !trains)) || (!whole && s.pp > 1 && zero > 1) ||
             (!whole && zero == 2))) {
            continue;
        }
        s.zero = zero;
        for (offload = 0; offload < offloads; offload++) {
            for (overlap = 0; overlap < overlaps; overlap++) {
                s.offload = offload;
                if (whole) {
                    s.overlap = (outer->overlap & DPAR_OVERLAP_TP) |
                                (overlap & 1 ? DPAR_OVERLAP_DP : 0) |
                                (overlap & 2 ? DPAR_OVERLAP_PP : 0);
                }
                if (dpari_fixed(q, DPAR_FIELD_OFFLOAD)) {
                    s.offload = q->fixed.offload;
                }
                if (dpari_fixed(q, DPAR_FIELD_OVERLAP)) {
                    s.overlap = q->fixed.overlap;
                }
                dpari_walk_shards(p, &s, stages);
            }
        }
    }
}

/* Micro-batches from the global batch; a free batch takes four a stage. 0: it does not divide. */
static int32_t dpari_walk_batches(const dpar_planner *p, const dpar_strategy *s)
{
    int64_t per = (int64_t)s->dp * s->micro_batch, batch = p->search.global_batch;
    if (dpari_fixed(&p->search, DPAR_FIELD_MICRO_BATCHES)) {
        return p->search.fixed.micro_batches;
    }
    if (batch == 0) {
        return s->pp > 1 ? 4 * s->pp : 4;
    }
    return batch % per == 0 && batch / per <= INT32_MAX ? (int32_t)(batch / per) : 0;
}

static void dpari_walk_recompute(dpar_planner *p, dpar_strategy *s, const dpari_layers *layers)
{
    const dpar_search *q = &p->search;
    dpari_stages stages;
    int32_t r;
    for (r = 0; r < DPAR_RECOMPUTES; r++) {
        if (!dpari_wanted(q, DPAR_FIELD_RECOMPUTE, r, q->fixed.recompute) ||
            (!p->job.work->trains && r > 0) ||
            (r == DPAR_RECOMPUTE_SELECTIVE && !dpari_fixed(q, DPAR_FIELD_RECOMPUTE) &&
             p->job.work->attention != DPAR_ATTENTION_UNFUSED)) {
            continue;
        }
        s->recompute = r;
        s->recompute_layers =
            dpari_fixed(q, DPAR_FIELD_RECOMPUTE_LAYERS) ? q->fixed.recompute_layers : 0;
        dpari_price_stages(&p->job, s, layers, &stages);
        dpari_walk_data(p, s, &stages);
    }
}

/* Which schedules are tried with this vp: usual ones, or all. */
static int dpari_walk_schedule(const dpar_search *q, const dpar_strategy *s, int32_t schedule)
{
    if (!dpari_wanted(q, DPAR_FIELD_SCHEDULE, schedule, q->fixed.schedule)) {
        return 0;
    }
    if (dpari_fixed(q, DPAR_FIELD_SCHEDULE)) {
        return 1;
    }
    if (s->pp == 1) {
        return schedule == DPAR_1F1B;
    }
    if (q->space != DPAR_SPACE_WHOLE) {
        return s->vp == 1 ? schedule == DPAR_1F1B : schedule == DPAR_INTERLEAVED;
    }
    return s->vp == 1 ? schedule == DPAR_1F1B || schedule == DPAR_GPIPE || schedule == DPAR_ZB_H1
                      : schedule == DPAR_INTERLEAVED || schedule == DPAR_BREADTH_FIRST ||
                            (s->vp == 2 && schedule == DPAR_ZBV);
}

static void dpari_walk_pipeline(dpar_planner *p, dpar_strategy *s, const dpari_layers *layers)
{
    const dpar_search *q = &p->search;
    int32_t schedule, rule = 0, vp, blocks = p->job.work->blocks;
    for (vp = 1; vp <= (s->pp > 1 ? 16 : 1); vp++) {
        if (!dpari_wanted(q, DPAR_FIELD_VP, vp, q->fixed.vp) ||
            (vp > 1 && (int64_t)s->pp * vp > blocks) || (vp > 1 && blocks % (s->pp * vp) != 0)) {
            continue;
        }
        s->vp = vp;
        for (schedule = 0; schedule < DPAR_SCHEDULES; schedule++) {
            if (!dpari_walk_schedule(q, s, schedule)) {
                continue;
            }
            s->schedule = schedule;
            if (dpar_strategy_check(&p->job, s, 0, &rule, NULL) != DPAR_OK) {
                p->rejected[rule]++;
                p->walked++;
                continue;
            }
            dpari_walk_recompute(p, s, layers);
        }
    }
}

/* All of one outer position: layers priced once. */
static void dpari_walk_position(dpar_planner *p)
{
    const dpar_search *q = &p->search;
    dpari_layers layers;
    dpar_strategy s;
    int32_t i, rest, priced = 0, tiles;
    if (!dpari_walk_outer(p, &s)) {
        return;
    }
    tiles = s.tiles[0] * s.tiles[1] * s.tiles[2];
    rest = s.tp * s.cp * tiles;
    if (rest < 1 || q->gpus % rest != 0) {
        p->rejected[DPAR_RULE_RANKS]++;
        p->walked++;
        return;
    }
    rest = q->gpus / rest;
    for (i = 0; dpari_divisor(rest, i, 1) > 0; i++) {
        s.pp = dpari_divisor(rest, i, 1);
        if (s.pp > p->job.work->blocks) {
            break;
        }
        s.dp = rest / s.pp;
        if (!dpari_wanted(q, DPAR_FIELD_PP, s.pp, q->fixed.pp) ||
            !dpari_wanted(q, DPAR_FIELD_DP, s.dp, q->fixed.dp) ||
            (!p->job.work->trains && (s.pp > 1 || s.dp > 1) && p->job.work->dims > 0 &&
             q->global_batch <= 1)) {
            continue;
        }
        s.micro_batches = dpari_walk_batches(p, &s);
        if (s.micro_batches == 0) {
            p->rejected[DPAR_RULE_BATCH]++;
            p->walked++;
            continue;
        }
        if (!priced) {
            dpari_price_layers(&p->job, &s, &layers);
            priced = 1;
        }
        dpari_walk_pipeline(p, &s, &layers);
    }
}

/* ---- the search ----------------------------------------------------------------------------- */

DPAR_API dpar_status dpar_planner_init(dpar_planner *p, const dpar_job *job,
                                       const dpar_search *search, dpar_plan *top, int32_t top_room,
                                       dpar_plan *front, int32_t front_room, dpar_why *why)
{
    dpar_status st = dpar_workload_check(job->work, why);
    int32_t i;
    if (st == DPAR_OK) {
        st = dpar_cluster_check(job->cluster, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (search->global_batch < 0 || search->gpus < 0 ||
        (search->gpus > 0 && search->gpus != dpar_cluster_gpus(job->cluster))) {
        return dpari_say(DPAR_E_ARG, why,
                         "the search is for # GPUs and a global batch of #, the cluster has # "
                         "(resize it)",
                         search->gpus, search->global_batch, dpar_cluster_gpus(job->cluster), 0);
    }
    dpari_zero(p, sizeof(*p));
    p->job = *job;
    p->search = *search;
    p->search.gpus = dpar_cluster_gpus(job->cluster);
    p->top = top;
    p->top_room = top != NULL ? top_room : 0;
    p->front = front;
    p->front_room = front != NULL ? front_room : 0;
    p->state[DPARI_TOTAL] = 1;
    for (i = 0; i < DPARI_AXES; i++) {
        p->state[DPARI_LENGTH + i] = dpari_most(1, dpari_axis_length(p, i));
        p->state[DPARI_TOTAL] *= p->state[DPARI_LENGTH + i];
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_planner_run(dpar_planner *p, int64_t budget, dpar_why *why)
{
    int64_t until = p->walked + budget, i;
    while (p->state[DPARI_POSITION] < p->state[DPARI_TOTAL]) {
        if (p->walked >= until) {
            return DPAR_MORE;
        }
        dpari_walk_position(p);
        p->state[DPARI_POSITION]++;
        for (i = 0; i < DPARI_AXES; i++) {
            if (++p->state[DPARI_AT + i] < p->state[DPARI_LENGTH + i]) {
                break;
            }
            p->state[DPARI_AT + i] = 0;
        }
    }
    if (p->tops > 0 || p->top_room == 0) {
        return DPAR_DONE;
    }
    if (p->evaluated == 0) {
        return dpari_say(DPAR_E_NONE, why,
                         "none of # configurations is legal on # GPUs with a global batch of #",
                         p->walked, p->search.gpus, p->search.global_batch, 0);
    }
    return dpari_say(DPAR_E_NONE, why,
                     "nothing fits: the nearest of # configurations needs # MB a GPU of # MB",
                     p->evaluated, p->state[DPARI_NEAREST_BYTES],
                     (int64_t)((p->search.memory_bytes > 0.0 ? p->search.memory_bytes
                                                             : p->job.cluster->gpu.memory_bytes) *
                               1e-6),
                     0);
}

DPAR_API double dpar_planner_progress(const dpar_planner *p)
{
    return p->state[DPARI_TOTAL] > 0
               ? (double)p->state[DPARI_POSITION] / (double)p->state[DPARI_TOTAL]
               : 1.0;
}

/* ---- neighbours ----------------------------------------------------------------------------- */

/* The k-th change of a plan: its name and the changed strategy; 0 when it cannot be made. */
static int dpari_neighbour(const dpar_job *job, const dpar_strategy *s, int32_t k, dpar_strategy *n,
                           dpar_text *t)
{
    int32_t ranks = dpar_strategy_ranks(s), *at = NULL, from, twice = k % 2;
    *n = *s;
    switch (k) {
    case 0:
    case 1: at = &n->tp; break;
    case 2:
    case 3: at = &n->pp; break;
    case 4:
    case 5: at = &n->micro_batch; break;
    case 6:
    case 7:
        n->zero += twice ? 1 : -1;
        dpar_text_put(t, "zero ");
        dpar_text_int(t, s->zero);
        dpar_text_put(t, " -> ");
        dpar_text_int(t, n->zero);
        return n->zero >= 0 && n->zero <= 3 && s->dp > 1;
    case 8:
    case 9:
        n->recompute = twice ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        dpar_text_put(t, "recompute ");
        dpar_text_put(t, dpar_recompute_name(s->recompute));
        dpar_text_put(t, " -> ");
        dpar_text_put(t, dpar_recompute_name(n->recompute));
        return n->recompute != s->recompute && job->work->trains;
    default: at = &n->cp; break;
    }
    from = *at;
    if (!twice && from % 2 != 0) {
        return 0;
    }
    *at = twice ? 2 * from : from / 2;
    dpar_text_put(t, at == &n->tp ? "tp " : at == &n->pp ? "pp " : at == &n->cp ? "cp " : "mbs ");
    dpar_text_int(t, from);
    dpar_text_put(t, " -> ");
    dpar_text_int(t, *at);
    n->sp = n->tp > 1 ? (s->tp > 1 ? s->sp : 1) : 0;
    if (n->pp != s->pp) {
        n->vp = 1;
        n->schedule = DPAR_1F1B;
    }
    from = n->tp * n->cp * n->pp * n->tiles[0] * n->tiles[1] * n->tiles[2];
    if (from < 1 || ranks % from != 0) {
        return 0;
    }
    n->dp = ranks / from;
    n->shard = 0;
    return n->tp <= job->cluster->gpus_per_node;
}

static void dpari_neighbour_text(const dpar_job *job, const dpar_plan *plan, const dpar_plan *other,
                                 dpar_rejected *r, dpar_text *t)
{
    double ratio =
        other->step.total * plan->step.samples / (plan->step.total * other->step.samples);
    dpar_text_put(t, ": ");
    if (!other->fits) {
        r->rule = DPAR_RULE_MEMORY;
        r->bytes_over = other->memory.upper - job->cluster->gpu.memory_bytes;
        dpar_text_fixed(t, r->bytes_over * 1e-9, 1);
        dpar_text_put(t, " GB over ");
        dpar_text_fixed(t, job->cluster->gpu.memory_bytes * 1e-9, 0);
        dpar_text_put(t, " GB");
        return;
    }
    r->rule = DPAR_RULE_NONE;
    dpar_text_fixed(t, 100.0 * (ratio >= 1.0 ? ratio - 1.0 : 1.0 - ratio), 1);
    dpar_text_put(t, ratio >= 1.0 ? " % slower" : " % faster");
    dpar_text_put(t, ", ");
    dpar_text_fixed(t, other->memory.total * 1e-9, 1);
    dpar_text_put(t, " GB");
    if (other->strategy.pp != plan->strategy.pp) {
        dpar_text_put(t, ", bubble ");
        dpar_text_fixed(t, 100.0 * other->step.bubble, 0);
        dpar_text_put(t, " % instead of ");
        dpar_text_fixed(t, 100.0 * plan->step.bubble, 0);
        dpar_text_put(t, " %");
    }
}

DPAR_API int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                      int64_t global_batch, dpar_rejected *out, int32_t room)
{
    int32_t k, n = 0;
    for (k = 0; k < 12 && n < room; k++) {
        dpar_rejected *r = &out[n];
        dpar_plan other;
        dpar_text t;
        dpar_why why;
        int64_t per;
        dpar_status st;
        dpari_zero(r, sizeof(*r));
        dpar_text_init(&t, r->text, sizeof(r->text));
        if (!dpari_neighbour(job, &plan->strategy, k, &r->strategy, &t)) {
            continue;
        }
        per = (int64_t)r->strategy.dp * r->strategy.micro_batch;
        if (global_batch > 0 && global_batch % per == 0) {
            r->strategy.micro_batches = (int32_t)(global_batch / per);
        }
        st = dpar_plan_of(job, &r->strategy, global_batch, &other, &r->rule, &why);
        if (st == DPAR_OK || st == DPAR_E_MEMORY) {
            r->seconds = other.step.total;
            dpari_neighbour_text(job, plan, &other, r, &t);
        } else {
            dpar_text_put(&t, ": ");
            dpar_text_put(&t, why.text);
        }
        n++;
    }
    return n;
}

/* ---- nearest legal, smallest machine -------------------------------------------------------- */

/* The divisor of n nearest to v, the smaller one of two. */
static int32_t dpari_nearest_divisor(int32_t n, int32_t v)
{
    int32_t d, best = 1;
    for (d = 1; d <= n / d; d++) {
        if (n % d == 0) {
            int32_t e = n / d;
            if (dpari_most(d - v, v - d) < dpari_most(best - v, v - best)) {
                best = d;
            }
            if (dpari_most(e - v, v - e) < dpari_most(best - v, v - best)) {
                best = e;
            }
        }
    }
    return best;
}

static int32_t dpari_common(int32_t a, int32_t b)
{
    while (b != 0) {
        int32_t r = a % b;
        a = b;
        b = r;
    }
    return a > 0 ? a : 1;
}

/* Puts right what the broken rule is about, and what follows from it. */
static void dpari_repair(const dpar_job *job, dpar_strategy *s, int32_t rule, int64_t batch)
{
    const dpar_workload *w = job->work;
    int32_t gpus = dpar_cluster_gpus(job->cluster), model, heads = w->heads > 0 ? w->heads : 1;
    s->tp = (int32_t)dpari_most(1, dpari_least(s->tp, gpus));
    s->pp = (int32_t)dpari_most(1, s->pp);
    s->cp = (int32_t)dpari_most(1, s->cp);
    s->micro_batch = (int32_t)dpari_most(1, s->micro_batch);
    if (rule == DPAR_RULE_TP_HEADS || rule == DPAR_RULE_RANKS || rule == DPAR_RULE_DEGREE) {
        s->tp = dpari_nearest_divisor(dpari_common(heads, gpus), s->tp);
        s->sp = s->tp > 1 && s->sp;
    }
    if (rule == DPAR_RULE_CP) {
        s->cp /= 2;
        s->cp = s->cp > 0 ? s->cp : 1;
    }
    if (rule == DPAR_RULE_SCHEDULE || rule == DPAR_RULE_PP_LAYERS) {
        s->vp = 1;
        s->schedule = DPAR_1F1B;
    }
    s->pp = (int32_t)dpari_least(s->pp, w->blocks);
    model = gpus / s->tp;
    s->cp = dpari_nearest_divisor(model, s->cp);
    s->pp = dpari_nearest_divisor(model / s->cp, s->pp);
    s->dp = model / s->cp / s->pp;
    s->tiles[0] = s->tiles[1] = s->tiles[2] = 1;
    s->shard = 0;
    s->sp = s->sp && s->tp > 1;
    s->ep = w->experts > 0 ? dpari_common(dpari_common(w->experts, s->tp * s->cp * s->dp),
                                          (int32_t)dpari_most(1, s->ep))
                           : 1;
    s->etp = 1;
    if (batch > 0 && batch % s->dp == 0) {
        s->micro_batch =
            dpari_nearest_divisor((int32_t)dpari_least(INT32_MAX, batch / s->dp), s->micro_batch);
        s->micro_batches = (int32_t)dpari_least(INT32_MAX, batch / s->dp / s->micro_batch);
    }
    s->micro_batches = (int32_t)dpari_most(1, s->micro_batches);
    s->offload = 0;
}

DPAR_API dpar_status dpar_nearest_legal(const dpar_job *job, const dpar_strategy *s,
                                        int64_t global_batch, dpar_strategy *near_one,
                                        dpar_why *why)
{
    dpar_strategy n = *s;
    int32_t rule = 0, k;
    dpar_status st = dpar_strategy_check(job, &n, global_batch, &rule, why);
    for (k = 0; k < 8 && st != DPAR_OK; k++) {
        dpari_repair(job, &n, rule, global_batch);
        st = dpar_strategy_check(job, &n, global_batch, &rule, why);
    }
    if (st != DPAR_OK) {
        return DPAR_E_NONE;
    }
    *near_one = n;
    return DPAR_OK;
}

/* Sizes that people order: within a node the divisors of it, then nodes 1, 2, 3, 4, 6, 8, 12, ...
 */
static int32_t dpari_next_size(int32_t gpus, int32_t node)
{
    int32_t nodes, power = 1;
    if (gpus < node) {
        do {
            gpus++;
        } while (node % gpus != 0);
        return gpus;
    }
    nodes = gpus / node;
    while (power * 2 <= nodes && power < INT32_C(0x10000000)) {
        power *= 2;
    }
    return (nodes < power + power / 2 ? power + power / 2 : 2 * power) * node;
}

DPAR_API dpar_status dpar_smallest_machine(const dpar_job *job, const dpar_search *search,
                                           int32_t most_gpus, dpar_plan *plan, dpar_why *why)
{
    dpar_cluster c = *job->cluster;
    dpar_job smaller = *job;
    dpar_planner p;
    dpar_search q = *search;
    int32_t node = c.gpus_per_node, gpus;
    smaller.cluster = &c;
    if (c.nics < 1) { /* one node as described: more of them need some network */
        c.nics = node;
        c.nic_Bps = 25e9;
    }
    for (gpus = 1; gpus > 0 && gpus <= most_gpus; gpus = dpari_next_size(gpus, node)) {
        dpar_status st;
        int32_t per = gpus < node ? gpus : node;
        c.gpus_per_node = per;
        c.nodes = gpus / per;
        q.gpus = gpus;
        st = dpar_planner_init(&p, &smaller, &q, plan, 1, NULL, 0, why);
        if (st != DPAR_OK) {
            return st;
        }
        do {
            st = dpar_planner_run(&p, INT64_MAX / 2, why);
        } while (st == DPAR_MORE);
        if (st == DPAR_DONE) {
            return DPAR_OK;
        }
    }
    return dpari_say(DPAR_E_NONE, why, "it does not fit on # GPUs or fewer", most_gpus, 0, 0, 0);
}
