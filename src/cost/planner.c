/* SPDX-License-Identifier: MIT-0 */
/* Searches the strategies of a job. The walk has three levels, because the prices of layers depend
 * on few options and those of stages on more.
 *
 * 1. An odometer walks the outer options: tiles, tp, sp, cp, ep, etp, micro-batch. At each of its
 *    positions the layers are priced once.
 * 2. Loops walk pipelines and recomputation, and price the stages.
 * 3. Loops walk ZeRO, offload, shards and overlap, and combine the prices of the stages.
 *
 * Bounds at each level leave out strategies that cannot be among the best. Every strategy is
 * counted once: as priced, as cut by a bound, or as rejected by a rule. If an outer option breaks a
 * rule, the inner strategies are still walked, but only to count them.
 *
 * The neighbours of a plan, the nearest legal strategy and the smallest machine follow at the end.
 * */
#include "planner.h"

#include "../base/base_private.h"
#include "../base/text.h"
#include "fields.h"
#include "plan_kinds.h"
#include "terms.h"

/* ---- one configuration ----------------------------------------------------------------------- */

/* Returns tenths of a GB, rounded up. */
static int64_t dpari_tenths(double bytes)
{
    return bytes < 1e26 ? (int64_t)(bytes * 1e-8 + 0.999999) : INT64_C(1000000000000000000);
}

/* Reports how much memory is missing. If at most 10 % are missing, names the largest term and how
 * much smaller it would have to be. */
static DPARI_COLD dpar_status dpari_plan_too_big(const dpar_job *job,
                                                 const dpar_memory_usage *memory, dpar_why *why)
{
    double gpu = job->cluster->gpu.memory_bytes, over = memory->lower - gpu, share;
    int64_t need = dpari_tenths(memory->total), has = dpari_tenths(gpu);
    int32_t i, most = DPAR_MEMORY_ACTIVATIONS;
    if (over <= 0.0) { /* the GPU suffices, so the host's memory does not */
        return dpari_say(DPAR_E_MEMORY, why,
                         "offloads %ld.%ld GB per GPU, but %d GPUs share %ld GB of a node's memory",
                         dpari_tenths(memory->host) / 10, dpari_tenths(memory->host) % 10,
                         job->cluster->gpus_per_node, (int64_t)(job->cluster->host_bytes * 1e-9));
    }
    for (i = DPAR_MEMORY_LOGITS; i <= DPAR_MEMORY_TRANSIENT; i++) {
        most = memory->term[i] > memory->term[most] ? i : most;
    }
    share = over < memory->term[most] ? 100.0 * over / memory->term[most] + 1.0 : 100.0;
    if (over > 0.1 * gpu || share > 99.0) {
        return dpari_say(DPAR_E_MEMORY, why, "needs %ld.%ld GB per GPU, but the GPU has %ld.%ld GB",
                         need / 10, need % 10, has / 10, has % 10);
    }
    return dpari_say(
        DPAR_E_MEMORY, why,
        "needs %ld GB per GPU, but the GPU has %ld GB; it fits if %s (%ld GB) shrink by %ld %%",
        (need + 9) / 10, has / 10, dpar_memory_name(most), dpari_tenths(memory->term[most]) / 10,
        (int64_t)share);
}

DPAR_API dpar_status dpar_plan_price(const dpar_job *job, const dpar_strategy *strategy,
                                     int64_t global_batch, dpar_plan *plan, int32_t *rule,
                                     dpar_why *why)
{
    dpari_layers layers;
    dpari_stages stages;
    dpar_status st = dpari_strategy_check(job, strategy, global_batch, rule, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_recipe_check(&job->recipe, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_cluster_check(job->cluster, why);
    if (st != DPAR_OK) {
        return st;
    }
    dpari_price_layers(job, strategy, &layers);
    dpari_price_stages(job, strategy, &layers, &stages);
    plan->strategy = *strategy;
    dpari_price_memory(job, strategy, &stages, &plan->memory);
    dpari_price_step(job, strategy, &stages, &plan->step);
    plan->fits = dpari_memory_runs(job, &plan->memory);
    if (plan->fits) {
        return DPAR_OK;
    }
    if (rule != NULL) {
        *rule = DPAR_STRATEGY_RULE_MEMORY;
    }
    return dpari_plan_too_big(job, &plan->memory, why);
}

/* ---- the axes of the walk -------------------------------------------------------------------- */

/* The axes of the odometer. The prices of the layers depend on these options only. */
enum {
    DPARI_AXIS_TILES_0,
    DPARI_AXIS_TILES_1,
    DPARI_AXIS_TILES_2,
    DPARI_AXIS_TP,
    DPARI_AXIS_SP,
    DPARI_AXIS_CP,
    DPARI_AXIS_CP_KIND,
    DPARI_AXIS_EP,
    DPARI_AXIS_ETP,
    DPARI_AXIS_OVERLAP_TP,
    DPARI_AXIS_MICRO_BATCH,
    DPARI_AXES
};

/* The layout of state[]. The odometer comes first, one entry per axis. */
enum {
    DPARI_LENGTH = DPARI_AXES,       /* the lengths of the axes */
    DPARI_POSITION = 2 * DPARI_AXES, /* number of positions of the odometer that are done */
    DPARI_TOTAL,                     /* number of positions */
    DPARI_NEAREST_BYTES,             /* 1e6 bytes of the smallest plan that did not fit, or 0 */
    DPARI_OUT_RULE,                  /* rule by which strategies are counted; 0 prices them */
    DPARI_PRICED                     /* 1 if the layers of this position are priced */
};
/* A value of DPARI_OUT_RULE that is not a rule: the strategies are legal, but slower than the plans
 * that are kept. */
enum { DPARI_OUT_CUT = DPAR_STRATEGY_RULE_COUNT };

/* Returns divisor number `index` of n in ascending order, or 0 after the last. O(sqrt n). */
static int32_t dpari_divisor(int32_t n, int32_t index)
{
    int32_t d, lower = 0;
    for (d = 1; d <= n / d; d++) {
        if (n % d == 0 && lower++ == index) {
            return d;
        }
    }
    index -= lower;
    for (d--; d >= 1; d--) { /* the other divisors are n / d, for d from the root down */
        if (n % d == 0 && d != n / d && index-- == 0) {
            return n / d;
        }
    }
    return 0;
}

/* Returns 2^index, or 0 if that exceeds the limit. */
static int32_t dpari_power(int32_t index, int64_t limit)
{
    return index < 30 && ((int64_t)1 << index) <= limit ? (int32_t)1 << index : 0;
}

/* Returns a value, or 0 if it exceeds the limit. */
static int32_t dpari_up_to(int32_t value, int64_t limit)
{
    return value <= limit ? value : 0;
}

/* Returns micro-batch number `index`, or 0 after the last: powers of two up to 64, or in the whole
 * space divisors of the batch up to 512. */
static int32_t dpari_micro_batch(const dpar_planner_desc *desc, int32_t index)
{
    if (desc->space != DPAR_SPACE_WHOLE) {
        return dpari_power(index, 64);
    }
    return desc->global_batch < 1 || desc->global_batch > INT32_MAX
               ? dpari_power(index, 512)
               : dpari_up_to(dpari_divisor((int32_t)desc->global_batch, index), 512);
}

/* Returns value number `index` of an axis, or 0 after the last. The values include those that a
 * rule forbids, so that the rule can be counted, but not those without a meaning for this job. */
static DPARI_COLD int32_t dpari_axis_value(const dpar_planner *planner, int32_t axis, int32_t index)
{
    const dpar_workload *work = planner->job.work;
    const dpar_planner_desc *desc = &planner->search;
    int32_t whole = desc->space == DPAR_SPACE_WHOLE, node = planner->job.cluster->gpus_per_node;
    int32_t once = index == 0, sequence = work->heads > 0 && work->vocab > 0;
    switch (axis) {
    case DPARI_AXIS_TILES_0: /* in the usual space the number of tiles, which dpari_cut_grid
                                arranges */
        return work->dims > 0 ? dpari_divisor(desc->gpus, index) : once;
    case DPARI_AXIS_TILES_1:
    case DPARI_AXIS_TILES_2:
        return whole && work->dims > axis ? dpari_divisor(desc->gpus, index) : once;
    case DPARI_AXIS_TP:
        return work->heads > 0
                   ? dpari_up_to(dpari_divisor(desc->gpus, index), dpari_most(work->heads, node))
                   : once;
    case DPARI_AXIS_SP: return whole && work->heads > 0 ? index < 2 : once;
    case DPARI_AXIS_OVERLAP_TP: return whole && work->heads > 0 && work->trains ? index < 2 : once;
    case DPARI_AXIS_CP:
        if (!sequence) {
            return once;
        }
        if (whole) {
            return dpari_up_to(dpari_divisor(desc->gpus, index),
                               dpari_most(1, dpari_least(256, (int64_t)work->tokens / 1024)));
        }
        return dpari_power(index, dpari_most(1, dpari_least(64, (int64_t)work->tokens / 1024)));
    case DPARI_AXIS_CP_KIND:
        if (!sequence) {
            return once;
        }
        return index < (whole ? DPAR_CP_KIND_COUNT : 2);
    case DPARI_AXIS_EP: return work->experts > 0 ? dpari_divisor(work->experts, index) : once;
    case DPARI_AXIS_ETP: return whole && work->experts > 0 ? index < 2 : once;
    default: return dpari_micro_batch(desc, index);
    }
}

/* Returns the number of values of an axis, at least 1. */
static int32_t dpari_axis_length(const dpar_planner *planner, int32_t axis)
{
    int32_t n = 0;
    while (dpari_axis_value(planner, axis, n) > 0) {
        n++;
    }
    return n > 0 ? n : 1;
}

/* Cuts the grid into `parts` with a small surface: each prime factor, the greatest first, cuts the
 * axis whose tiles are the longest. */
static DPARI_COLD void dpari_cut_grid(const dpar_workload *work, int32_t parts, int32_t *tiles)
{
    tiles[0] = tiles[1] = tiles[2] = 1;
    while (parts > 1) {
        int32_t i, best = 0, rest = parts, d;
        for (d = 2; d <= rest / d; d++) {
            while (rest % d == 0 && rest > d) {
                rest /= d;
            }
        }
        /* `rest` is now the greatest prime factor */
        for (i = 1; i < work->dims; i++) {
            if (work->extent[i] / tiles[i] > work->extent[best] / tiles[best]) {
                best = i;
            }
        }
        tiles[best] *= rest;
        parts /= rest;
    }
}

/* Sets the tiles of the odometer's position. */
static void dpari_walk_tiles(const dpar_planner *planner, dpar_strategy *strategy)
{
    int32_t i;
    if (planner->search.space != DPAR_SPACE_WHOLE) {
        dpari_cut_grid(planner->job.work,
                       dpari_axis_value(planner, DPARI_AXIS_TILES_0,
                                        (int32_t)planner->state[DPARI_AXIS_TILES_0]),
                       strategy->tiles);
        return;
    }
    for (i = 0; i < 3; i++) {
        strategy->tiles[i] = dpari_axis_value(planner, DPARI_AXIS_TILES_0 + i,
                                              (int32_t)planner->state[DPARI_AXIS_TILES_0 + i]);
    }
}

/* Replaces the values of the odometer by fixed ones. Returns 0 if a fixed axis is past its first
 * position, so that its fixed value is visited only once, otherwise 1. */
static int dpari_walk_fixed(const dpar_planner *planner, dpar_strategy *strategy)
{
    static const int8_t field[8] = {DPAR_STRATEGY_FIELD_TILES,   DPAR_STRATEGY_FIELD_TP,
                                    DPAR_STRATEGY_FIELD_SP,      DPAR_STRATEGY_FIELD_CP,
                                    DPAR_STRATEGY_FIELD_CP_KIND, DPAR_STRATEGY_FIELD_EP,
                                    DPAR_STRATEGY_FIELD_ETP,     DPAR_STRATEGY_FIELD_MICRO_BATCH};
    static const int8_t axis[8] = {DPARI_AXIS_TILES_0, DPARI_AXIS_TP,         DPARI_AXIS_SP,
                                   DPARI_AXIS_CP,      DPARI_AXIS_CP_KIND,    DPARI_AXIS_EP,
                                   DPARI_AXIS_ETP,     DPARI_AXIS_MICRO_BATCH};
    dpar_strategy fixed = planner->search.fixed;
    const int64_t *at = planner->state;
    int32_t i;
    for (i = 0; i < 8; i++) {
        if (!dpari_fixed(&planner->search, field[i])) {
            continue;
        }
        if (at[axis[i]] > 0 ||
            (i == 0 && (at[DPARI_AXIS_TILES_1] > 0 || at[DPARI_AXIS_TILES_2] > 0))) {
            return 0;
        }
        *dpari_strategy_at(strategy, field[i]) = *dpari_strategy_at(&fixed, field[i]);
    }
    for (i = 1; i < 3 && dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_TILES); i++) {
        strategy->tiles[i] = fixed.tiles[i];
    }
    return 1;
}

/* Sets the outer options of the odometer's position. Returns 1, or 0 if it repeats another
 * position. */
static DPARI_COLD int dpari_walk_outer(const dpar_planner *planner, dpar_strategy *strategy)
{
    const dpar_planner_desc *desc = &planner->search;
    const int64_t *at = planner->state;
    int32_t whole = desc->space == DPAR_SPACE_WHOLE;
    dpar_strategy_init(strategy);
    strategy->tp = dpari_axis_value(planner, DPARI_AXIS_TP, (int32_t)at[DPARI_AXIS_TP]);
    strategy->cp = dpari_axis_value(planner, DPARI_AXIS_CP, (int32_t)at[DPARI_AXIS_CP]);
    strategy->cp_kind = (int32_t)at[DPARI_AXIS_CP_KIND];
    strategy->ep = dpari_axis_value(planner, DPARI_AXIS_EP, (int32_t)at[DPARI_AXIS_EP]);
    strategy->micro_batch = dpari_micro_batch(desc, (int32_t)at[DPARI_AXIS_MICRO_BATCH]);
    if (planner->job.work->dims > 0) {
        dpari_walk_tiles(planner, strategy);
    }
    if (!dpari_walk_fixed(planner, strategy)) {
        return 0;
    }
    strategy->sp = whole ? (int32_t)at[DPARI_AXIS_SP]
                         : strategy->tp > 1 && dpari_sequence_cuts(planner->job.work, strategy);
    strategy->etp = at[DPARI_AXIS_ETP] > 0 ? strategy->tp : 1;
    strategy->sp = dpari_fixed(desc, DPAR_STRATEGY_FIELD_SP) ? desc->fixed.sp : strategy->sp;
    strategy->etp = dpari_fixed(desc, DPAR_STRATEGY_FIELD_ETP) ? desc->fixed.etp : strategy->etp;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_OVERLAP)) {
        strategy->overlap = desc->fixed.overlap;
    } else if (whole && planner->job.work->trains) { /* chosen here, not left to the software */
        strategy->overlap = at[DPARI_AXIS_OVERLAP_TP] > 0 ? DPAR_OVERLAP_TP : 0;
    }
    /* an option without an effect, such as sp with tp=1, is only visited with its first value */
    return !((strategy->cp == 1 && at[DPARI_AXIS_CP_KIND] > 0) ||
             (strategy->tp == 1 && at[DPARI_AXIS_SP] > 0) ||
             (strategy->tp == 1 && at[DPARI_AXIS_OVERLAP_TP] > 0) ||
             (strategy->tp == 1 && at[DPARI_AXIS_ETP] > 0) ||
             (dpari_fixed(desc, DPAR_STRATEGY_FIELD_OVERLAP) && at[DPARI_AXIS_OVERLAP_TP] > 0));
}

/* ---- keeping the best ------------------------------------------------------------------------ */

/* Returns 1 if a is better than b: if it has more samples per second, or the same number and less
 * memory. Of equal plans the one found first stays in front. */
static int dpari_better(const dpar_plan *a, const dpar_plan *b)
{
    double x = a->step.samples / a->step.total, y = b->step.samples / b->step.total;
    if (x > y * (1.0 + 1e-12) || y > x * (1.0 + 1e-12)) {
        return x > y;
    }
    return a->memory.total < b->memory.total * (1.0 - 1e-12);
}

/* Enters a plan into the list of the best plans if it is among them. */
static void dpari_keep_top(dpar_planner *planner, const dpar_plan *plan)
{
    int32_t i;
    if (planner->top_capacity == 0 ||
        (planner->top_count == planner->top_capacity &&
         !dpari_better(plan, &planner->top[planner->top_count - 1]))) {
        return;
    }
    if (planner->top_count < planner->top_capacity) {
        planner->top_count++;
    }
    for (i = planner->top_count - 1; i > 0 && dpari_better(plan, &planner->top[i - 1]); i--) {
        planner->top[i] = planner->top[i - 1];
    }
    planner->top[i] = *plan;
}

/* Enters a plan into the front of time x memory, fastest first, and drops the plans that it
 * dominates. A full front keeps its ends. */
static void dpari_keep_front(dpar_planner *planner, const dpar_plan *plan)
{
    double rate = plan->step.samples / plan->step.total;
    int32_t i, k = 0;
    if (planner->front_capacity < 2) {
        return;
    }
    for (i = 0; i < planner->front_count; i++) {
        const dpar_plan *f = &planner->front[i];
        if (f->step.samples / f->step.total >= rate && f->memory.total <= plan->memory.total) {
            return;
        }
    }
    for (i = 0; i < planner->front_count; i++) {
        const dpar_plan *f = &planner->front[i];
        if (!(rate >= f->step.samples / f->step.total && plan->memory.total <= f->memory.total)) {
            planner->front[k++] = *f;
        }
    }
    planner->front_count = k;
    if (planner->front_count == planner->front_capacity) {
        int32_t drop = 1; /* the inner plan whose two neighbours are nearest in memory */
        double best = -1.0;
        for (i = 1; i + 1 < planner->front_count; i++) {
            double gap = planner->front[i - 1].memory.total - planner->front[i + 1].memory.total;
            if (best < 0.0 || gap < best) {
                best = gap;
                drop = i;
            }
        }
        for (i = drop; i + 1 < planner->front_count; i++) {
            planner->front[i] = planner->front[i + 1];
        }
        planner->front_count--;
    }
    for (i = planner->front_count; i > 0 && dpari_better(plan, &planner->front[i - 1]); i--) {
        planner->front[i] = planner->front[i - 1];
    }
    planner->front_count++;
    planner->front[i] = *plan;
}

/* ---- the inner walk -------------------------------------------------------------------------- */

/* Returns 1 if a field may have a value: if it is not fixed, or is fixed to this value. */
static int dpari_wanted(const dpar_planner_desc *desc, int32_t field, int32_t value, int32_t fixed)
{
    return !dpari_fixed(desc, field) || value == fixed;
}

/* Returns the bytes of a GPU that a plan may use. */
static double dpari_limit(const dpar_job *job, const dpar_planner_desc *search)
{
    return search->memory_bytes > 0.0 ? search->memory_bytes : job->cluster->gpu.memory_bytes;
}

/* Returns 1 if a ZeRO stage is tried. With a pipeline the usual space has at most stage 1, because
 * the higher ones communicate for every micro-batch. */
static int dpari_walk_zero(const dpar_planner *planner, const dpar_strategy *strategy, int32_t zero)
{
    const dpar_planner_desc *desc = &planner->search;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_ZERO)) {
        return zero == desc->fixed.zero;
    }
    if (zero > 0 && ((int64_t)strategy->dp * strategy->cp * dpari_tiles(strategy) == 1 ||
                     !planner->job.work->trains)) {
        return 0;
    }
    return desc->space == DPAR_SPACE_WHOLE || zero < 2 || strategy->pp == 1;
}

/* Returns the size of shard group number k: all of dp, or the ranks of one node (HSDP). Returns 0
 * if there is none. */
static int32_t dpari_walk_shard(const dpar_planner *planner, const dpar_strategy *strategy,
                                int32_t k)
{
    const dpar_planner_desc *desc = &planner->search;
    int64_t together = (int64_t)strategy->tp * strategy->cp * dpari_tiles(strategy);
    int64_t in_node = planner->job.cluster->gpus_per_node / together;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_SHARD)) {
        if (k > 0) {
            return 0;
        }
        return desc->fixed.shard > 0 ? desc->fixed.shard : strategy->dp;
    }
    if (k == 0) {
        return strategy->dp;
    }
    if (strategy->zero > 0 && in_node > 1 && in_node < strategy->dp &&
        strategy->dp % in_node == 0) {
        return (int32_t)in_node;
    }
    return 0;
}

/* Returns the number of offloads that are tried. */
static int32_t dpari_walk_offloads(const dpar_planner *planner)
{
    if (planner->search.space != DPAR_SPACE_WHOLE || !planner->job.work->trains ||
        !(planner->job.cluster->host_bytes > 0.0) ||
        dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_OFFLOAD)) {
        return 1;
    }
    return planner->job.cluster->nvme_Bps > 0.0 ? 12 : 8;
}

/* Returns offload number k: first every subset of the three offloads, then those with the optimizer
 * on NVMe. */
static int32_t dpari_walk_offload(const dpar_planner *planner, int32_t k)
{
    if (dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_OFFLOAD)) {
        return planner->search.fixed.offload;
    }
    return k < 8 ? k : DPAR_OFFLOAD_NVME + 2 * (k - 8) + 1;
}

/* Returns the number of overlaps: bit 0 is data parallelism, bit 1 the pipeline. */
static int32_t dpari_walk_overlaps(const dpar_planner *planner, const dpar_strategy *strategy)
{
    if (planner->search.space != DPAR_SPACE_WHOLE || !planner->job.work->trains ||
        dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_OVERLAP)) {
        return 1;
    }
    return strategy->pp > 1 ? 4 : 2;
}

/* Returns the number of strategies that dpari_walk_data walks. */
static int64_t dpari_walk_count(const dpar_planner *planner, const dpar_strategy *outer)
{
    dpar_strategy s = *outer;
    int64_t n = 0;
    for (s.zero = 0; s.zero < 4; s.zero++) {
        if (dpari_walk_zero(planner, &s, s.zero)) {
            n += dpari_walk_shard(planner, &s, 1) > 0 ? 2 : 1;
        }
    }
    return n * dpari_walk_offloads(planner) * dpari_walk_overlaps(planner, outer);
}

/* Counts strategies by the rule that excludes them. */
static void dpari_walk_out(dpar_planner *planner, int32_t rule, int64_t n)
{
    planner->rejected[rule] += n;
    planner->walked += n;
}

/* Counts a strategy that does not fit, and keeps the least number of bytes that one needs. */
static void dpari_walk_too_big(dpar_planner *planner, const dpar_memory_usage *memory)
{
    double limit = dpari_limit(&planner->job, &planner->search),
           bytes = memory->upper - memory->late;
    int64_t mb;
    if (bytes <= limit) { /* the GPU suffices, so the host's memory does not */
        bytes = limit + memory->host -
                planner->job.cluster->host_bytes / planner->job.cluster->gpus_per_node;
    }
    mb = bytes < 9e18 ? (int64_t)(bytes * 1e-6) : INT64_MAX;
    planner->rejected[DPAR_STRATEGY_RULE_MEMORY]++;
    if (planner->state[DPARI_NEAREST_BYTES] == 0 || mb < planner->state[DPARI_NEAREST_BYTES]) {
        planner->state[DPARI_NEAREST_BYTES] = mb;
    }
}

/* Returns 1 if plans of at most `rate` samples per second and at least `bytes` bytes cannot change
 * the plans that are kept: all of `top` are faster, and one of `front` is as fast and as small.
 * Leaving such plans out changes nothing. In the usual space a search with a front prices
 * everything. */
static int dpari_walk_beaten(const dpar_planner *planner, double rate, double bytes)
{
    const dpar_plan *worst;
    int32_t i;
    if (planner->top_count == 0 || planner->top_count < planner->top_capacity ||
        (planner->search.space != DPAR_SPACE_WHOLE && planner->front_capacity >= 2)) {
        return 0;
    }
    worst = &planner->top[planner->top_count - 1];
    if (worst->step.samples <= rate * (1.0 + 1e-9) * worst->step.total * planner->slack) {
        return 0;
    }
    for (i = 0; i < planner->front_count; i++) {
        const dpar_plan *f = &planner->front[i];
        if (f->step.samples >= rate * (1.0 + 1e-9) * f->step.total &&
            f->memory.total <= bytes * (1.0 - 1e-9)) {
            return 1;
        }
    }
    return planner->front_capacity < 2;
}

/* Prices the strategies that differ only in overlap: their memory, which is the same, and the time
 * of each if it fits. */
static void dpari_walk_price(dpar_planner *planner, const dpar_strategy *outer,
                             const dpari_stages *stages, double rate)
{
    int32_t overlaps = dpari_walk_overlaps(planner, outer), overlap;
    dpar_plan plan;
    dpari_zero(&plan, sizeof(plan)); /* including the padding, so that equal searches write equal
                                        bytes */
    plan.strategy = *outer;
    dpari_price_memory(&planner->job, outer, stages, &plan.memory);
    plan.fits = dpari_memory_fits(&planner->job, &plan.memory, planner->search.memory_bytes);
    if (plan.fits && dpari_walk_beaten(planner, rate, plan.memory.total)) {
        planner->cut += overlaps;
        planner->walked += overlaps;
        return;
    }
    for (overlap = 0; overlap < overlaps; overlap++) {
        planner->evaluated++;
        planner->walked++;
        if (!plan.fits) {
            dpari_walk_too_big(planner, &plan.memory);
            continue;
        }
        if (overlaps > 1) {
            plan.strategy.overlap = outer->overlap & DPAR_OVERLAP_TP;
            if (overlap & 1) {
                plan.strategy.overlap |= DPAR_OVERLAP_DP;
            }
            if (overlap & 2) {
                plan.strategy.overlap |= DPAR_OVERLAP_PP;
            }
        }
        dpari_price_step(&planner->job, &plan.strategy, stages, &plan.step);
        dpari_keep_top(planner, &plan);
        dpari_keep_front(planner, &plan);
        if (planner->kinds != NULL) {
            dpari_kind_keep(planner->kinds, &planner->job, &plan.strategy,
                            plan.step.total / plan.step.samples);
        }
    }
}

/* Returns 1 if no strategy of a ZeRO stage fits, whatever is offloaded and however it is sharded.
 * All of these strategies are then counted at once. The one that offloads and shards the most comes
 * nearest to fitting. */
static DPARI_COLD int dpari_walk_none_fits(dpar_planner *planner, const dpar_strategy *outer,
                                           const dpari_stages *stages)
{
    dpar_strategy s = *outer;
    dpar_memory_usage m;
    int64_t n = 0;
    int32_t k;
    s.offload = DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS;
    s.shard = dpari_walk_shard(planner, outer, 0);
    dpari_price_memory(&planner->job, &s, stages, &m);
    if (m.upper - m.late <= dpari_limit(&planner->job, &planner->search)) {
        return 0;
    }
    for (k = 0; k < 2; k++) {
        int32_t shard = dpari_walk_shard(planner, outer, k);
        if (shard > 0 && s.dp % shard != 0) {
            return 0;
        }
        n += shard > 0;
    }
    n *= dpari_walk_offloads(planner) * dpari_walk_overlaps(planner, outer);
    dpari_walk_too_big(planner, &m);
    planner->rejected[DPAR_STRATEGY_RULE_MEMORY] += n - 1;
    planner->evaluated += n;
    planner->walked += n;
    return 1;
}

/* Walks ZeRO stages, offloads and shard groups. */
static void dpari_walk_data(dpar_planner *planner, const dpar_strategy *outer,
                            const dpari_stages *stages, double rate)
{
    dpar_strategy s = *outer;
    int32_t offloads = dpari_walk_offloads(planner), offload, k;
    for (s.zero = 0; s.zero < 4; s.zero++) {
        if (!dpari_walk_zero(planner, &s, s.zero) ||
            (offloads > 1 && dpari_walk_none_fits(planner, &s, stages))) {
            continue;
        }
        for (offload = 0; offload < offloads; offload++) {
            s.offload = dpari_walk_offload(planner, offload);
            for (k = 0; k < 2; k++) {
                s.shard = dpari_walk_shard(planner, &s, k);
                if (s.shard > 0 && s.dp % s.shard != 0) {
                    dpari_walk_out(planner, DPAR_STRATEGY_RULE_ZERO,
                                   dpari_walk_overlaps(planner, &s));
                } else if (s.shard > 0) {
                    dpari_walk_price(planner, &s, stages, rate);
                }
            }
        }
    }
}

/* Returns the number of micro-batches per data-parallel rank that the global batch gives, or 0 if
 * it does not divide. With a free batch there are four per stage. */
static int32_t dpari_walk_batches(const dpar_planner *planner, const dpar_strategy *strategy)
{
    int64_t per = (int64_t)strategy->dp * strategy->micro_batch,
            batch = planner->search.global_batch;
    if (dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_MICRO_BATCHES)) {
        int64_t m = planner->search.fixed.micro_batches;
        if (batch == 0 || (per > 0 && m > 0 && batch / per == m && batch % per == 0)) {
            return (int32_t)m;
        }
        return 0;
    }
    if (batch == 0) {
        return 4 * strategy->pp;
    }
    return per > 0 && batch % per == 0 && batch / per <= INT32_MAX ? (int32_t)(batch / per) : 0;
}

/* Returns a lower bound of the bytes of all plans with these stages: everything is sharded and
 * offloaded, and the buffers for that are not counted. Each term falls with the ZeRO stage and with
 * each offload. With `upper` the bound is that of memory.upper, which must fit, otherwise that of
 * memory.total. */
static DPARI_COLD double dpari_walk_least_bytes(const dpar_planner *planner,
                                                const dpar_strategy *outer,
                                                const dpari_stages *stages, int upper)
{
    dpar_strategy s = *outer;
    dpar_memory_usage m;
    s.zero = planner->job.work->trains ? 3 : 0;
    s.shard = s.dp;
    s.offload = DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS;
    dpari_price_memory(&planner->job, &s, stages, &m);
    return (upper ? m.upper : m.total) -
           1.1 * (m.term[DPAR_MEMORY_GATHERED] + m.term[DPAR_MEMORY_BUCKETS]);
}

/* Returns 1 if no plan with these stages can change the plans that are kept. *bound receives the
 * samples per second that none of them exceeds. A step takes at least the time of its micro-batches
 * on the slowest stage, of the filling and of the messages that cannot be hidden; gradients,
 * optimizer and offload are left out. */
static int dpari_walk_hopeless(const dpar_planner *planner, const dpar_strategy *outer,
                               const dpari_stages *stages, double *bound)
{
    dpar_strategy s = *outer;
    dpar_step_cost t;
    double rate, slow = 0.0;
    int32_t i;
    *bound = 1e30;
    if (planner->top_count == 0 || planner->top_count < planner->top_capacity) {
        return 0;
    }
    for (i = 0; i < stages->n; i++) { /* the slowest stage is enough to exclude most plans */
        slow = dpari_mostf(slow, stages->of[i].total);
    }
    rate = (double)s.dp * s.micro_batch / slow;
    if (planner->front_capacity < 2 && dpari_walk_beaten(planner, rate, 0.0)) {
        return 1;
    }
    if (dpari_walk_overlaps(planner, outer) > 1) {
        s.overlap |= DPAR_OVERLAP_DP | DPAR_OVERLAP_PP;
    }
    s.zero = 0;
    dpari_price_step(&planner->job, &s, stages, &t);
    rate = t.samples / (t.total - t.term[DPAR_TIME_DP] - t.term[DPAR_TIME_OPTIMIZER]);
    *bound = rate;
    if (planner->search.space != DPAR_SPACE_WHOLE) {
        return dpari_walk_beaten(planner, rate, 0.0);
    }
    return dpari_walk_least_bytes(planner, outer, stages, 1) >
               dpari_limit(&planner->job, &planner->search) ||
           dpari_walk_beaten(planner, rate, dpari_walk_least_bytes(planner, outer, stages, 0));
}

/* The prices of the layers are stored in the planner, not on the stack. Both types consist of
 * doubles. */
typedef char dpari_layers_fit[sizeof(dpari_layers) <= sizeof(((dpar_planner *)0)->layers) ? 1 : -1];

/* Returns the prices of the layers at this outer position. They are computed when the first legal
 * strategy needs them. */
static dpari_layers *dpari_walk_layers(dpar_planner *planner, const dpar_strategy *strategy)
{
    dpari_layers *layers = (dpari_layers *)(void *)planner->layers;
    if (planner->state[DPARI_PRICED] == 0) {
        dpari_price_layers(&planner->job, strategy, layers);
        planner->state[DPARI_PRICED] = 1;
    }
    return layers;
}

/* Returns 1 if no strategy of an outer position can change the plans that are kept, whatever pp and
 * schedule are. Each strategy computes every layer once, so the slowest of pp ranks takes at least
 * 1 / pp of the time. */
static DPARI_COLD int dpari_walk_position_beaten(dpar_planner *planner,
                                                 const dpar_strategy *strategy, int32_t rest)
{
    const dpari_layers *layers;
    const dpar_workload *work = planner->job.work;
    double device = 0.0, host = 0.0, bytes = 0.0;
    int32_t i;
    if (planner->top_count == 0 || planner->top_count < planner->top_capacity) {
        return 0;
    }
    layers = dpari_walk_layers(planner, strategy);
    for (i = 0; i < work->layers; i++) {
        const dpari_layer_price *l = &layers->of[i];
        if (work->layer[i].kind != DPAR_LAYER_EMBED) {
            device +=
                work->layer[i].count * (l->forward + l->backward + l->tp_forward + l->tp_backward +
                                        l->cp_forward + l->cp_backward + l->ep_forward +
                                        l->ep_backward + l->halo_forward + l->halo_backward);
            host += work->layer[i].count * (l->host_forward + l->host_backward);
        }
        bytes = work->layer[i].kind == DPAR_LAYER_BLOCK ? dpari_mostf(bytes, l->transient) : bytes;
    }
    device = dpari_mostf(device, host);
    return device > 0.0 &&
           dpari_walk_beaten(planner, (double)rest * strategy->micro_batch / device, bytes);
}

/* Prices the stages of one recomputation, then walks the third level. */
static void dpari_walk_stages(dpar_planner *planner, const dpar_strategy *strategy)
{
    int32_t out = (int32_t)planner->state[DPARI_OUT_RULE];
    dpari_stages stages;
    double rate = 0.0;
    if (out != DPAR_STRATEGY_RULE_NONE && out != DPARI_OUT_CUT) {
        dpari_walk_out(planner, out, dpari_walk_count(planner, strategy));
        return;
    }
    if (out == DPAR_STRATEGY_RULE_NONE) {
        dpari_price_stages(&planner->job, strategy, dpari_walk_layers(planner, strategy), &stages);
    }
    if (out == DPARI_OUT_CUT || dpari_walk_hopeless(planner, strategy, &stages, &rate)) {
        int64_t n = dpari_walk_count(planner, strategy);
        planner->cut += n;
        planner->walked += n;
    } else {
        dpari_walk_data(planner, strategy, &stages, rate);
    }
}

/* Returns one past the last recomputation that is tried. A fixed recomputation may be any. */
static int32_t dpari_walk_recomputes(const dpar_planner *planner)
{
    const dpar_workload *work = planner->job.work;
    if (dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_RECOMPUTE)) {
        return 32;
    }
    if (work->stack >= DPAR_MODEL_STACK_TORCH && work->vocab > 0) {
        return DPAR_RECOMPUTE_ALTERNATE + 1;
    }
    return DPAR_RECOMPUTE_FULL + 1;
}

/* Walks the recomputations: none, selective if scores are kept, full for all layers and for half of
 * the layers of a stage, and with PyTorch also every second product, which it has as an option. */
DPARI_STATIC_NOINLINE void dpari_walk_recompute(dpar_planner *planner, dpar_strategy *strategy)
{
    const dpar_planner_desc *desc = &planner->search;
    const dpar_workload *work = planner->job.work;
    int32_t half = work->blocks / strategy->pp / 2, r;
    int32_t end = dpari_walk_recomputes(planner);
    for (r = 0; r < end; r++) {
        int32_t layers = dpari_fixed(desc, DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS)
                             ? desc->fixed.recompute_layers
                             : 0;
        if (!dpari_wanted(desc, DPAR_STRATEGY_FIELD_RECOMPUTE, r, desc->fixed.recompute) ||
            (layers > 0 && (r != DPAR_RECOMPUTE_FULL || layers > work->blocks)) ||
            (!dpari_fixed(desc, DPAR_STRATEGY_FIELD_RECOMPUTE) &&
             ((!work->trains && r > 0) || (r == DPAR_RECOMPUTE_SELECTIVE &&
                                           work->attention != DPAR_MODEL_ATTENTION_UNFUSED)))) {
            continue;
        }
        strategy->recompute = r;
        strategy->recompute_layers = layers;
        dpari_walk_stages(planner, strategy);
        if (r == DPAR_RECOMPUTE_FULL && half > 0 &&
            !dpari_fixed(desc, DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS)) {
            strategy->recompute_layers = half;
            dpari_walk_stages(planner, strategy);
        }
    }
}

/* Returns 1 if a schedule is tried with this pp and vp: a usual one, or in the whole space any that
 * allows them. */
static int dpari_walk_schedule(const dpar_planner_desc *desc, const dpar_strategy *strategy,
                               int32_t schedule)
{
    int whole = desc->space == DPAR_SPACE_WHOLE;
    if (dpari_fixed(desc, DPAR_STRATEGY_FIELD_SCHEDULE)) {
        return schedule == desc->fixed.schedule;
    }
    if (strategy->pp == 1) {
        return schedule == DPAR_SCHEDULE_1F1B;
    }
    if (strategy->vp == 1) {
        return schedule == DPAR_SCHEDULE_1F1B ||
               (whole && (schedule == DPAR_SCHEDULE_GPIPE || schedule == DPAR_SCHEDULE_ZB_H1 ||
                          schedule == DPAR_SCHEDULE_ZB_2P || schedule == DPAR_SCHEDULE_DUALPIPE));
    }
    return schedule == DPAR_SCHEDULE_INTERLEAVED ||
           (whole && (schedule == DPAR_SCHEDULE_BREADTH_FIRST ||
                      (strategy->vp == 2 &&
                       (schedule == DPAR_SCHEDULE_ZBV || schedule == DPAR_SCHEDULE_V_HALF ||
                        schedule == DPAR_SCHEDULE_V_MIN || schedule == DPAR_SCHEDULE_DUALPIPEV))));
}

/* Returns 1 if an interleaving is tried. Its chunks must have equal lengths, except that those of
 * the last round may be shorter, as if 126 layers are cut for 128. Otherwise chunks would wait for
 * longer ones in every round. */
static int dpari_walk_chunks(const dpar_workload *work, const dpar_strategy *strategy)
{
    int64_t chunks = (int64_t)strategy->pp * strategy->vp;
    return strategy->vp == 1 ||
           (chunks <= work->blocks && (chunks - work->blocks % chunks) % chunks < strategy->pp);
}

/* Walks the chunks per rank and the schedules of one pp. */
static void dpari_walk_pipeline(dpar_planner *planner, dpar_strategy *strategy)
{
    const dpar_planner_desc *desc = &planner->search;
    int32_t schedule, rule = 0, vp, blocks = planner->job.work->blocks;
    int32_t most = strategy->pp == 1 ? 1 : (blocks + 2) / strategy->pp;
    int64_t out = planner->state[DPARI_OUT_RULE];
    for (vp = 1; vp <= most || vp == 1; vp++) {
        strategy->vp = vp;
        if (!dpari_wanted(desc, DPAR_STRATEGY_FIELD_VP, vp, desc->fixed.vp) ||
            (!dpari_fixed(desc, DPAR_STRATEGY_FIELD_VP) &&
             !dpari_walk_chunks(planner->job.work, strategy))) {
            continue;
        }
        for (schedule = 1; schedule < DPAR_SCHEDULE_PRICED_END; schedule++) {
            if (!dpari_walk_schedule(desc, strategy, schedule)) {
                continue;
            }
            strategy->schedule = schedule;
            if ((out == DPAR_STRATEGY_RULE_NONE || out == DPARI_OUT_CUT) &&
                dpari_strategy_check(&planner->job, strategy, 0, &rule, NULL) != DPAR_OK) {
                planner->state[DPARI_OUT_RULE] = rule;
            }
            dpari_walk_recompute(planner, strategy);
            planner->state[DPARI_OUT_RULE] = out;
        }
    }
}

/* Walks the values of pp that divide the remaining `rest` ranks; the quotient is dp. */
DPARI_STATIC_NOINLINE void dpari_walk_ranks(dpar_planner *planner, dpar_strategy *strategy,
                                            int32_t rest)
{
    const dpar_planner_desc *desc = &planner->search;
    const dpar_workload *work = planner->job.work;
    int64_t out = planner->state[DPARI_OUT_RULE];
    planner->state[DPARI_PRICED] = 0;
    if (out == DPAR_STRATEGY_RULE_NONE && dpari_walk_position_beaten(planner, strategy, rest)) {
        planner->state[DPARI_OUT_RULE] = out = DPARI_OUT_CUT;
    }
    for (strategy->pp = 1; strategy->pp <= rest && strategy->pp <= dpari_most(1, work->blocks);
         strategy->pp++) {
        strategy->dp = rest / strategy->pp;
        if (rest % strategy->pp != 0 ||
            !dpari_wanted(desc, DPAR_STRATEGY_FIELD_PP, strategy->pp, desc->fixed.pp) ||
            !dpari_wanted(desc, DPAR_STRATEGY_FIELD_DP, strategy->dp, desc->fixed.dp) ||
            (!work->trains && (strategy->pp > 1 || strategy->dp > 1) && work->dims > 0 &&
             desc->global_batch <= 1)) {
            continue;
        }
        strategy->micro_batches = dpari_walk_batches(planner, strategy);
        if (strategy->micro_batches == 0) {
            strategy->micro_batches = 1;
            if (out == DPAR_STRATEGY_RULE_NONE || out == DPARI_OUT_CUT) {
                planner->state[DPARI_OUT_RULE] = DPAR_STRATEGY_RULE_BATCH;
            }
        }
        dpari_walk_pipeline(planner, strategy);
        planner->state[DPARI_OUT_RULE] = out;
    }
}

/* Returns the rule that an outer position breaks whatever the inner options are, or NONE. The least
 * expensive checks come first. */
static DPARI_COLD int32_t dpari_walk_early(const dpar_planner *planner,
                                           const dpar_strategy *strategy, int64_t ranks)
{
    const dpar_workload *work = planner->job.work;
    int32_t node = planner->job.cluster->gpus_per_node;
    if (ranks < 1 || planner->search.gpus % ranks != 0) {
        return DPAR_STRATEGY_RULE_RANKS;
    }
    if (strategy->tp > 1 && (work->heads % strategy->tp != 0 || work->hidden % strategy->tp != 0)) {
        return DPAR_STRATEGY_RULE_TP_HEADS;
    }
    if (planner->search.space != DPAR_SPACE_WHOLE &&
        !dpari_fixed(&planner->search, DPAR_STRATEGY_FIELD_TP) && node % strategy->tp != 0) {
        return DPAR_STRATEGY_RULE_TP_WIDE;
    }
    return DPAR_STRATEGY_RULE_NONE;
}

/* Walks all strategies of one outer position. */
DPARI_STATIC_NOINLINE void dpari_walk_position(dpar_planner *planner)
{
    dpar_strategy s;
    int64_t ranks = 1;
    int32_t i, rule;
    if (!dpari_walk_outer(planner, &s)) {
        return;
    }
    for (i = 0; i < 3; i++) {
        if (s.tiles[i] < 1 || !dpari_mul(ranks, s.tiles[i], &ranks)) {
            ranks = 0;
        }
    }
    if (s.tp < 1 || s.cp < 1 || !dpari_mul(ranks, s.tp, &ranks) ||
        !dpari_mul(ranks, s.cp, &ranks)) {
        ranks = 0;
    }
    rule = dpari_walk_early(planner, &s, ranks);
    if (rule == DPAR_STRATEGY_RULE_RANKS) { /* it has no pp and dp, so it is counted with pp and dp
                                               of 1 */
        s.tp = s.cp = s.tiles[0] = s.tiles[1] = s.tiles[2] = 1;
        ranks = planner->search.gpus;
    }
    planner->state[DPARI_OUT_RULE] = rule;
    dpari_walk_ranks(planner, &s, (int32_t)(planner->search.gpus / ranks));
    planner->state[DPARI_OUT_RULE] = DPAR_STRATEGY_RULE_NONE;
}

/* ---- the search ------------------------------------------------------------------------------ */

DPARI_INTERNAL DPARI_COLD dpar_status dpari_search_check(const dpar_job *job,
                                                         const dpar_planner_desc *search,
                                                         dpar_why *why)
{
    int32_t gpus;
    dpar_status status = dpari_workload_check(job->work, why);
    if (status == DPAR_OK) {
        status = dpari_cluster_check(job->cluster, why);
    }
    if (status == DPAR_OK) {
        status = dpari_recipe_check(&job->recipe, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    gpus = dpari_cluster_gpus(job->cluster);
    if (search->global_batch < 0 || (search->gpus != 0 && search->gpus != gpus)) {
        return dpari_wrong(
            why,
            "gpus=%d must be 0 or the cluster's %d (dpar_cluster_resize), global_batch=%ld at "
            "least 0",
            search->gpus, gpus, search->global_batch);
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_planner_init(dpar_planner *planner, const dpar_job *job,
                                                  const dpar_planner_desc *search, dpar_why *why)
{
    dpar_status st = dpari_search_check(job, search, why);
    int32_t i;
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(planner, sizeof(*planner));
    planner->job = *job;
    planner->search = *search;
    planner->search.gpus = dpari_cluster_gpus(job->cluster);
    planner->top = search->top;
    planner->top_capacity = planner->top != NULL ? (int32_t)dpari_most(0, search->top_capacity) : 0;
    planner->front = search->front;
    planner->front_capacity =
        planner->front != NULL ? (int32_t)dpari_most(0, search->front_capacity) : 0;
    planner->slack = 1.0;
    planner->state[DPARI_TOTAL] = 1;
    for (i = 0; i < DPARI_AXES; i++) {
        planner->state[DPARI_LENGTH + i] = dpari_most(1, dpari_axis_length(planner, i));
        planner->state[DPARI_TOTAL] *= planner->state[DPARI_LENGTH + i];
    }
    return DPAR_OK;
}

/* Reports that no strategy is legal, with the rule that most of them break. */
static DPARI_COLD dpar_status dpari_planner_none(const dpar_planner *planner, dpar_why *why)
{
    const char *name;
    int32_t i, most = DPAR_STRATEGY_RULE_NONE;
    for (i = 1; i < DPAR_STRATEGY_RULE_COUNT; i++) {
        most = planner->rejected[i] > planner->rejected[most] ? i : most;
    }
    name = dpar_strategy_rule_name(most);
    return dpari_say(DPAR_E_NONE, why,
                     "none of %ld configurations is legal on %d GPUs with a global batch of %ld: "
                     "most break the rule '%s' (see DPAR_STRATEGY_RULE_*)",
                     planner->walked, planner->search.gpus, planner->search.global_batch, name);
}

DPAR_API DPARI_COLD dpar_status dpar_planner_run(dpar_planner *planner, int64_t budget,
                                                 dpar_why *why)
{
    int64_t until = budget < 1 ? 1 : budget, near_tenths, i;
    until = until > INT64_MAX - planner->walked ? INT64_MAX : planner->walked + until;
    while (planner->state[DPARI_POSITION] < planner->state[DPARI_TOTAL]) {
        if (planner->walked >= until) {
            return DPAR_MORE;
        }
        dpari_walk_position(planner);
        planner->state[DPARI_POSITION]++;
        planner->progress =
            (double)planner->state[DPARI_POSITION] / (double)planner->state[DPARI_TOTAL];
        for (i = 0; i < DPARI_AXES; i++) { /* advance the odometer; its first axis is the fastest */
            planner->state[i]++;
            if (planner->state[i] < planner->state[DPARI_LENGTH + i]) {
                break;
            }
            planner->state[i] = 0;
        }
    }
    if (planner->top_count > 0 || planner->top_capacity == 0) {
        return DPAR_DONE;
    }
    if (planner->evaluated == 0) {
        return dpari_planner_none(planner, why);
    }
    near_tenths = dpari_tenths((double)planner->state[DPARI_NEAREST_BYTES] * 1e6);
    return dpari_say(
        DPAR_E_NONE, why,
        "nothing fits: the nearest of %ld configurations needs %ld.%ld GB, the GPU has %ld GB",
        planner->evaluated, near_tenths / 10, near_tenths % 10,
        (int64_t)(dpari_limit(&planner->job, &planner->search) * 1e-9 + 0.5));
}

/* ---- neighbours ------------------------------------------------------------------------------ */

/* The changes that make neighbours. Each has two directions: down, then up. */
enum {
    DPARI_CHANGE_TP,
    DPARI_CHANGE_PP,
    DPARI_CHANGE_MICRO_BATCH,
    DPARI_CHANGE_ZERO,
    DPARI_CHANGE_RECOMPUTE,
    DPARI_CHANGE_VP,
    DPARI_CHANGE_SHARD,
    DPARI_CHANGE_EP,
    DPARI_CHANGE_CP,
    DPARI_CHANGES
};

static void dpari_arrow(dpar_text *text, const char *name, int32_t from, int32_t to)
{
    dpari_text_print(text, "%s %d -> %d", name, from, to);
}

/* Changes one of the options ZeRO stage, recomputation and shard group. Returns 1, or 0 if it
 * cannot be changed. */
static int dpari_neighbour_option(const dpar_job *job, const dpar_strategy *strategy,
                                  int32_t change, int32_t up, dpar_strategy *n, dpar_text *text)
{
    int32_t in_node = job->cluster->gpus_per_node / strategy->tp / strategy->cp;
    int32_t all = strategy->shard < 1 ? strategy->dp : strategy->shard;
    if (change == DPARI_CHANGE_ZERO) {
        n->zero += up ? 1 : -1;
        dpari_arrow(text, "zero", strategy->zero, n->zero);
        return n->zero >= 0 && n->zero <= 3 && strategy->dp > 1 && job->work->trains;
    }
    if (change == DPARI_CHANGE_RECOMPUTE) {
        n->recompute = up ? DPAR_RECOMPUTE_FULL : DPAR_RECOMPUTE_NONE;
        n->recompute_layers = 0;
        dpar_text_put(text, "recompute ");
        dpari_write_recompute(text, strategy->recompute);
        dpar_text_put(text, strategy->recompute_layers > 0 ? " (part) -> " : " -> ");
        dpari_write_recompute(text, n->recompute);
        return (n->recompute != strategy->recompute ||
                n->recompute_layers != strategy->recompute_layers) &&
               job->work->trains;
    }
    n->shard = up ? strategy->dp : in_node;
    dpari_arrow(text, "shard", all, n->shard);
    return strategy->zero > 0 && n->shard > 1 && n->shard != all && strategy->dp % n->shard == 0;
}

/* Makes neighbour number k of a strategy and appends the change in words. Returns 1, or 0 if it
 * cannot be made. */
static int dpari_neighbour(const dpar_job *job, const dpar_strategy *strategy, int32_t k,
                           dpar_strategy *n, dpar_text *text)
{
    static const char name[DPARI_CHANGES][8] = {"tp", "pp", "mbs", "", "", "vp", "", "ep", "cp"};
    static const int8_t field[DPARI_CHANGES] = {
        DPAR_STRATEGY_FIELD_TP,    DPAR_STRATEGY_FIELD_PP,        DPAR_STRATEGY_FIELD_MICRO_BATCH,
        DPAR_STRATEGY_FIELD_ZERO,  DPAR_STRATEGY_FIELD_RECOMPUTE, DPAR_STRATEGY_FIELD_VP,
        DPAR_STRATEGY_FIELD_SHARD, DPAR_STRATEGY_FIELD_EP,        DPAR_STRATEGY_FIELD_CP};
    int32_t ranks = dpar_strategy_ranks(strategy), change = k / 2, up = k % 2, from, *at;
    int64_t model;
    *n = *strategy;
    if (change == DPARI_CHANGE_ZERO || change == DPARI_CHANGE_RECOMPUTE ||
        change == DPARI_CHANGE_SHARD) {
        return dpari_neighbour_option(job, strategy, change, up, n, text);
    }
    at = dpari_strategy_at(n, field[change]);
    from = *at;
    if ((!up && from % 2 != 0) || from > INT32_C(0x20000000) ||
        (change == DPARI_CHANGE_EP && job->work->experts == 0) ||
        (change == DPARI_CHANGE_VP && strategy->pp == 1) ||
        (change == DPARI_CHANGE_CP && job->work->vocab == 0)) {
        return 0;
    }
    *at = up ? 2 * from : from / 2;
    dpari_arrow(text, name[change], from, *at);
    if (strategy->tp <= 1) { /* tensor parallelism begins together with sequence parallelism */
        n->sp = 1;
    }
    if (n->tp <= 1) {
        n->sp = 0;
    }
    if (change == DPARI_CHANGE_PP) {
        n->vp = 1;
        n->schedule = DPAR_SCHEDULE_1F1B;
    } else if (change == DPARI_CHANGE_VP) {
        n->schedule = n->vp > 1 ? DPAR_SCHEDULE_INTERLEAVED : DPAR_SCHEDULE_1F1B;
    }
    model = (int64_t)n->tp * n->cp * n->pp * dpari_tiles(n);
    if (model < 1 || ranks % model != 0 || !dpari_walk_chunks(job->work, n)) {
        return 0;
    }
    n->dp = (int32_t)(ranks / model);
    n->shard = n->dp == strategy->dp ? strategy->shard : 0;
    return n->tp <= job->cluster->gpus_per_node || n->tp <= strategy->tp;
}

/* Appends why a neighbour was not chosen, and sets its rule. */
static void dpari_neighbour_text(const dpar_job *job, const dpar_plan *plan, const dpar_plan *other,
                                 dpar_plan_rejection *r, dpar_text *text)
{
    double ratio =
        other->step.total * plan->step.samples / (plan->step.total * other->step.samples);
    dpar_text_put(text, ": ");
    if (!other->fits && other->memory.lower <= job->cluster->gpu.memory_bytes) {
        r->rule = DPAR_STRATEGY_RULE_MEMORY;
        dpar_text_put(text, "offloads more than a node's memory holds");
        return;
    }
    if (!other->fits) {
        r->rule = DPAR_STRATEGY_RULE_MEMORY;
        r->bytes_over = other->memory.lower - job->cluster->gpu.memory_bytes;
        dpari_text_print(text, "up to %.1f GB, a GPU has %.0f", other->memory.upper * 1e-9,
                         job->cluster->gpu.memory_bytes * 1e-9);
        return;
    }
    r->rule = DPAR_STRATEGY_RULE_NONE;
    if (ratio > 0.9995 && ratio < 1.0005) {
        dpar_text_put(text, "as fast");
    } else if (ratio >= 1.0) {
        dpari_text_print(text, "%.1f %% slower", 100.0 * (ratio - 1.0));
    } else {
        dpari_text_print(text, "%.1f %% faster", 100.0 * (1.0 - ratio));
    }
    dpari_text_print(text, ", %.1f GB", other->memory.total * 1e-9);
    if ((int32_t)(100.0 * other->step.bubble + 0.5) != (int32_t)(100.0 * plan->step.bubble + 0.5)) {
        dpari_text_print(text, ", bubble %.0f %% instead of %.0f %%", 100.0 * other->step.bubble,
                         100.0 * plan->step.bubble);
    }
}

DPAR_API DPARI_COLD int32_t dpar_plan_neighbours(const dpar_job *job, const dpar_plan *plan,
                                                 int64_t global_batch, dpar_plan_rejection *plans,
                                                 int32_t capacity)
{
    const dpar_strategy *strategy = &plan->strategy;
    int64_t batch = (int64_t)strategy->dp * strategy->micro_batch * strategy->micro_batches;
    int32_t k, n = 0;
    for (k = 0; k < 2 * DPARI_CHANGES && n < capacity; k++) {
        dpar_plan_rejection *r = &plans[n];
        dpar_plan other;
        dpar_text t;
        dpar_why why;
        int64_t per;
        dpar_status st;
        dpari_zero(r, sizeof(*r));
        dpar_text_init(&t, r->text, sizeof(r->text));
        if (!dpari_neighbour(job, strategy, k, &r->strategy, &t)) {
            continue;
        }
        per = (int64_t)r->strategy.dp * r->strategy.micro_batch;
        if (batch % per == 0 && batch / per <= INT32_MAX) { /* the neighbour has the same batch,
                                                               even if the batch is free */
            r->strategy.micro_batches = (int32_t)(batch / per);
        }
        st = dpar_plan_price(job, &r->strategy, global_batch, &other, &r->rule, &why);
        if (st == DPAR_OK || st == DPAR_E_MEMORY) {
            r->seconds = other.step.total;
            dpari_neighbour_text(job, plan, &other, r, &t);
        } else {
            dpari_text_print(&t, ": %s", why.text);
        }
        n++;
    }
    return n;
}

/* ---- nearest legal --------------------------------------------------------------------------- */

enum { DPARI_NEAR = 6 }; /* number of values that are tried for each degree */

/* Returns the ratio of two degrees, the larger over the smaller. A degree below 1 counts as 1. */
static double dpari_apart(int32_t a, int32_t b)
{
    const double x = a > 0 ? a : 1;
    const double y = b > 0 ? b : 1;
    return x > y ? x / y : y / x;
}

/* Lists the divisors of n up to `limit` that are nearest to `want` in ratio, the nearest first. */
static DPARI_COLD int32_t dpari_near_divisors(int32_t n, int32_t want, int64_t limit, int32_t *list)
{
    int32_t i, count = 0;
    for (i = 0;; i++) {
        const int32_t d = dpari_divisor(n, i);
        int32_t k = count;
        if (d < 1 || d > limit) {
            return count;
        }
        if (count < DPARI_NEAR) {
            count++;
        }
        for (; k > 0 && dpari_apart(list[k - 1], want) > dpari_apart(d, want); k--) {
            if (k < DPARI_NEAR) {
                list[k] = list[k - 1];
            }
        }
        if (k < DPARI_NEAR) {
            list[k] = d;
        }
    }
}

static int32_t dpari_nearest_divisor(int32_t n, int32_t want)
{
    int32_t list[DPARI_NEAR];
    n = (int32_t)dpari_most(n, 1);
    return dpari_near_divisors(n, want, INT32_MAX, list) > 0 ? list[0] : 1;
}

/* Returns the greatest common divisor, at least 1. */
static int32_t dpari_common(int32_t a, int32_t b)
{
    return (int32_t)dpari_most(1, dpari_gcd(a, b));
}

static double dpari_factor(int32_t a, int32_t b)
{
    return a != b ? 2.0 * dpari_apart(a, b) : 1.0;
}

/* Returns the distance of two strategies: the product of twice the ratio for each degree that
 * differs and of 2 for each option that differs. It is 1 if they are equal. */
static double dpari_distance(dpar_strategy a, dpar_strategy b)
{
    static const int8_t degree[] = {DPAR_STRATEGY_FIELD_TP,
                                    DPAR_STRATEGY_FIELD_CP,
                                    DPAR_STRATEGY_FIELD_DP,
                                    DPAR_STRATEGY_FIELD_PP,
                                    DPAR_STRATEGY_FIELD_VP,
                                    DPAR_STRATEGY_FIELD_EP,
                                    DPAR_STRATEGY_FIELD_ETP,
                                    DPAR_STRATEGY_FIELD_MICRO_BATCH,
                                    DPAR_STRATEGY_FIELD_MICRO_BATCHES,
                                    DPAR_STRATEGY_FIELD_SHARD};
    int32_t options = (a.sp != b.sp) + (a.cp_kind != b.cp_kind) + (a.zero != b.zero) +
                      (a.schedule != b.schedule) + (a.recompute != b.recompute) +
                      (a.offload != b.offload);
    double far_apart = 1.0;
    int32_t i;
    for (i = 0; i < (int32_t)sizeof(degree); i++) {
        far_apart *=
            dpari_factor(*dpari_strategy_at(&a, degree[i]), *dpari_strategy_at(&b, degree[i]));
    }
    far_apart *= (double)(1 << options);
    for (i = 0; i < 3; i++) {
        far_apart *= dpari_factor(a.tiles[i], b.tiles[i]);
    }
    return far_apart;
}

/* Moves the options into their ranges and switches off those without an effect for this job. */
static void dpari_sane(const dpar_job *job, dpar_strategy *strategy)
{
    const dpar_workload *work = job->work;
    int32_t i;
    strategy->zero = dpari_within(strategy->zero, 0, 3);
    strategy->recompute = work->trains ? dpari_within(strategy->recompute, 0, 31) : 0;
    strategy->recompute =
        (strategy->recompute & 3) > 1 ? strategy->recompute & 3 : strategy->recompute;
    strategy->schedule = dpari_within(strategy->schedule, 1, DPAR_SCHEDULE_PRICED_END - 1);
    strategy->cp_kind = dpari_within(strategy->cp_kind, 0, DPAR_CP_KIND_COUNT - 1);
    strategy->recompute_layers = strategy->recompute == DPAR_RECOMPUTE_FULL
                                     ? dpari_within(strategy->recompute_layers, 0, work->blocks)
                                     : 0;
    strategy->vp = dpari_within(strategy->vp, 1, INT32_MAX);
    strategy->micro_batch = dpari_within(strategy->micro_batch, 1, INT32_MAX);
    strategy->micro_batches = dpari_within(strategy->micro_batches, 1, INT32_MAX);
    strategy->offload = job->cluster->host_bytes > 0.0 ? strategy->offload & 15 : 0;
    if (!(job->cluster->nvme_Bps > 0.0) || !(strategy->offload & DPAR_OFFLOAD_OPTIMIZER)) {
        strategy->offload &= 7;
    }
    for (i = 0; i < 3; i++) {
        strategy->tiles[i] = i < work->dims ? dpari_within(strategy->tiles[i], 1, INT32_MAX) : 1;
    }
    strategy->etp = work->experts > 0 ? dpari_within(strategy->etp, 1, INT32_MAX) : 1;
}

/* Sets dp to `rest`, the ranks that tp, cp and pp leave, and then the fields that follow: experts,
 * shards, micro-batches. */
static void dpari_follow(const dpar_job *job, dpar_strategy *n, int32_t rest, int64_t batch)
{
    const dpar_workload *work = job->work;
    int32_t ranks, each;
    n->dp = rest;
    n->sp = (n->sp > 0 || work->experts > 0) && n->tp > 1 && dpari_sequence_cuts(work, n);
    n->vp = n->pp > 1 ? n->vp : 1;
    n->shard = n->shard < 1 || n->dp % n->shard != 0 ? 0 : n->shard;
    ranks = n->tp * n->cp * n->dp;
    n->etp = ranks % n->etp == 0 ? n->etp : 1;
    n->ep = work->experts > 0
                ? dpari_nearest_divisor(dpari_common(work->experts, ranks / n->etp), n->ep)
                : 1;
    if (batch > 0 && batch % n->dp == 0) {
        each = (int32_t)dpari_least(INT32_MAX, batch / n->dp);
        n->micro_batch = dpari_nearest_divisor(each, n->micro_batch);
        n->micro_batches = each / n->micro_batch;
    }
}

/* Tries a strategy as it is, and then with a plain pipeline. Returns the distance if one is legal
 * and nearer than `best`, otherwise `best`. `best` is 0 as long as none was found. */
static double dpari_try_near(const dpar_job *job, const dpar_strategy *given, dpar_strategy *n,
                             int64_t batch, double best, dpar_strategy *near_one)
{
    int32_t plain;
    for (plain = 0; plain < 2; plain++) {
        double apart;
        if (plain) {
            n->vp = 1;
            n->schedule = DPAR_SCHEDULE_1F1B;
        }
        apart = dpari_distance(*given, *n);
        if ((best <= 0.0 || apart < best) &&
            dpari_strategy_check(job, n, batch, NULL, NULL) == DPAR_OK) {
            *near_one = *n;
            return apart;
        }
    }
    return best;
}

/* Tries all degrees near those of the given strategy, with the tiles of `sane`. */
static DPARI_COLD double dpari_search_near(const dpar_job *job, const dpar_strategy *given,
                                           const dpar_strategy *sane, int32_t rest, int64_t batch,
                                           double best, dpar_strategy *near_one)
{
    const dpar_workload *work = job->work;
    int32_t tp[DPARI_NEAR], cp[DPARI_NEAR], pp[DPARI_NEAR], tps, cps, pps, i, j, k;
    tps = dpari_near_divisors(
        work->heads > 0 ? dpari_common(dpari_common(work->heads, work->hidden), rest) : 1, sane->tp,
        INT32_MAX, tp);
    for (i = 0; i < tps; i++) {
        cps = dpari_near_divisors(work->heads > 0 ? rest / tp[i] : 1, sane->cp, INT32_C(65536), cp);
        for (j = 0; j < cps; j++) {
            int32_t left = rest / tp[i] / cp[j];
            pps = dpari_near_divisors(left, sane->pp, work->blocks, pp);
            for (k = 0; k < pps; k++) {
                dpar_strategy n = *sane;
                n.tp = tp[i];
                n.cp = cp[j];
                n.pp = pp[k];
                dpari_follow(job, &n, left / pp[k], batch);
                best = dpari_try_near(job, given, &n, batch, best, near_one);
            }
        }
    }
    return best;
}

DPAR_API DPARI_COLD dpar_status dpar_strategy_nearest(const dpar_job *job,
                                                      const dpar_strategy *strategy,
                                                      int64_t global_batch, dpar_strategy *near_one,
                                                      dpar_why *why)
{
    dpar_strategy sane = *strategy, found = *strategy;
    int32_t gpus = dpari_cluster_gpus(job->cluster), i;
    int64_t tiles = 1;
    double best = 0.0;
    dpar_status st = dpari_strategy_check(job, strategy, global_batch, NULL, why);
    if (st == DPAR_OK) {
        *near_one = *strategy;
        return DPAR_OK;
    }
    dpari_sane(job, &sane);
    for (i = 0; i < 3; i++) {
        tiles = dpari_mul(tiles, sane.tiles[i], &tiles) ? tiles : 0;
    }
    if (tiles > 0 && gpus % tiles == 0) {
        best = dpari_search_near(job, strategy, &sane, gpus / (int32_t)tiles, global_batch, best,
                                 &found);
    }
    for (i = 0; best <= 0.0 && job->work->dims > 0 && dpari_divisor(gpus, i) > 0; i++) {
        int32_t parts = dpari_divisor(gpus, i);
        dpari_cut_grid(job->work, parts, sane.tiles);
        best = dpari_search_near(job, strategy, &sane, gpus / parts, global_batch, best, &found);
    }
    if (best <= 0.0) {
        return DPAR_E_NONE; /* *why names the rule that *strategy breaks */
    }
    *near_one = found;
    return DPAR_OK;
}

/* ---- smallest machine ------------------------------------------------------------------------ */

/* Returns the next larger size of a machine: parts of a node, then whole nodes. With `coarse` the
 * steps are a sixteenth from 32 nodes on. Returns 0 beyond 2^31 - 1. */
static int32_t dpari_size_after(int32_t gpus, int32_t node, int32_t coarse)
{
    int64_t nodes = gpus / node, next;
    if (gpus < node) {
        return gpus + 1;
    }
    next = (nodes + (coarse && nodes >= 32 ? nodes / 16 : 1)) * node;
    return next <= INT32_MAX ? (int32_t)next : 0;
}

/* Finds the best plan on a number of GPUs of the cluster's kind. */
static DPARI_COLD dpar_status dpari_size_search(const dpar_job *job,
                                                const dpar_planner_desc *search, int32_t gpus,
                                                dpar_plan *plan, int64_t *nearest, dpar_why *why)
{
    dpar_cluster c = *job->cluster;
    dpar_job resized = *job;
    dpar_planner p;
    dpar_planner_desc q = *search;
    dpar_status st;
    resized.cluster = &c;
    if (c.nics < 1) { /* a machine of one node; more nodes need some network */
        c.nics = c.gpus_per_node;
        c.nic_Bps = 25e9;
    }
    c.gpus_per_node = (int32_t)dpari_least(gpus, c.gpus_per_node);
    c.nodes = gpus / c.gpus_per_node;
    q.gpus = gpus;
    q.top = plan;
    q.top_capacity = 1;
    q.front = NULL;
    st = dpar_planner_init(&p, &resized, &q, why);
    if (st != DPAR_OK) {
        return st;
    }
    do {
        st = dpar_planner_run(&p, INT64_MAX, why);
    } while (st == DPAR_MORE);
    *nearest = p.state[DPARI_NEAREST_BYTES];
    return st;
}

/* Fixes a field of a search unless it is fixed already. */
static void dpari_size_fix(dpar_planner_desc *desc, int32_t field, int32_t *at, int32_t value)
{
    if (!dpari_fixed(desc, field)) {
        *at = value;
        desc->fixed_fields |= (uint32_t)1 << field;
    }
}

/* Returns DPAR_DONE if some plan fits on a number of GPUs. It first searches where the memory is
 * least: micro-batches of one sample, everything recomputed and, if the search may offload,
 * offloaded. If these plans exceed the limit by less than a quarter, it searches all plans, because
 * a single layer in flight needs less without recomputation. *priced is increased if a strategy was
 * legal. */
static DPARI_COLD dpar_status dpari_size_fits(const dpar_job *job, const dpar_planner_desc *search,
                                              int32_t gpus, int64_t *priced, dpar_why *why)
{
    dpar_planner_desc q = *search;
    dpar_plan plan;
    int64_t nearest = 0;
    double limit = dpari_limit(job, search);
    dpar_status st;
    dpari_size_fix(&q, DPAR_STRATEGY_FIELD_VP, &q.fixed.vp, 1);
    dpari_size_fix(&q, DPAR_STRATEGY_FIELD_MICRO_BATCH, &q.fixed.micro_batch, 1);
    if (job->work->trains) {
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_RECOMPUTE, &q.fixed.recompute, DPAR_RECOMPUTE_FULL);
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_RECOMPUTE_LAYERS, &q.fixed.recompute_layers, 0);
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_OVERLAP, &q.fixed.overlap, 0);
    }
    if (q.space == DPAR_SPACE_WHOLE && job->work->trains && job->cluster->host_bytes > 0.0) {
        dpari_size_fix(&q, DPAR_STRATEGY_FIELD_OFFLOAD, &q.fixed.offload,
                       DPAR_OFFLOAD_OPTIMIZER | DPAR_OFFLOAD_WEIGHTS | DPAR_OFFLOAD_ACTIVATIONS);
    }
    st = dpari_size_search(job, &q, gpus, &plan, &nearest, why);
    *priced += nearest; /* 0 if nothing was legal */
    if (st != DPAR_E_NONE || (double)nearest > limit * 1.25e-6) {
        return st;
    }
    return dpari_size_search(job, search, gpus, &plan, &nearest, why);
}

/* Returns a number of GPUs below which not even weights, gradients and optimizer fit. */
static int32_t dpari_size_least(const dpar_job *job, const dpar_planner_desc *search)
{
    const dpar_recipe *recipe = &job->recipe;
    double bytes = job->work->trains ? dpari_zero_bytes(recipe, job->work->params, 0, 1)
                                     : job->work->params * recipe->weight;
    double least = bytes / dpari_limit(job, search);
    int offload =
        search->space == DPAR_SPACE_WHOLE || dpari_fixed(search, DPAR_STRATEGY_FIELD_OFFLOAD);
    int32_t node = job->cluster->gpus_per_node;
    if (offload || !(least > 1.0)) {
        return 1;
    }
    if (least >= 2e9) {
        return INT32_MAX;
    }
    return least < node ? (int32_t)least : (int32_t)(least / node) * node;
}

DPAR_API DPARI_COLD dpar_status dpar_plan_smallest(const dpar_job *job,
                                                   const dpar_planner_desc *search,
                                                   int32_t most_gpus, dpar_plan *plan,
                                                   dpar_why *why)
{
    int32_t node = job->cluster->gpus_per_node, least, gpus, enough;
    int64_t nearest = 0, priced = 0;
    dpar_status st = dpari_cluster_check(job->cluster, why);
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_workload_check(job->work, why);
    if (st != DPAR_OK) {
        return st;
    }
    least = dpari_size_least(job, search);
    st = DPAR_E_NONE;
    for (enough = least; enough > 0 && enough <= most_gpus;
         enough = dpari_size_after(enough, node, 1)) {
        st = dpari_size_fits(job, search, enough, &priced, why);
        if (st != DPAR_E_NONE) {
            break;
        }
    }
    if (st == DPAR_E_NONE && priced > 0) {
        return dpari_say(DPAR_E_NONE, why, "the job does not fit on %d GPUs or fewer", most_gpus);
    }
    if (st == DPAR_E_NONE) {
        return dpari_say(DPAR_E_NONE, why,
                         "no number of GPUs up to %d has a legal strategy with the fixed values "
                         "and a global batch of %ld",
                         most_gpus, search->global_batch);
    }
    if (st != DPAR_DONE) {
        return st;
    }
    for (gpus = least; gpus < enough; gpus = dpari_size_after(gpus, node, 0)) {
        if (dpari_size_fits(job, search, gpus, &priced, why) == DPAR_DONE) {
            enough = gpus;
        }
    }
    st = dpari_size_search(job, search, enough, plan, &nearest, why);
    return st == DPAR_DONE ? DPAR_OK : DPAR_E_NONE;
}
