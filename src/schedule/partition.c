/* SPDX-License-Identifier: MIT-0 */
/* Chooses cuts of a model's layers into stages by local search: it moves one layer at a time from
 * one stage to another and keeps the move if the schedule of the new cut is better. A cut is
 * evaluated by a schedule from dpar_schedule_optimize, or by simulating the given schedule. */
#include "partition.h"

#include "../index/split.h"
#include "exact.h"
#include "needed_bytes.h"
#include "partial_schedule.h"

enum {
    DPARI_LAYERS_SUMS = 8,  /* quantities that are summed over the layers of a stage */
    DPARI_LAYERS_STARTS = 2 /* cuts from which the search starts */
};

/* How good a cut is. The bytes over the caps count first, then the objective. */
typedef struct dpari_score {
    int64_t over, objective;
} dpari_score;

/* A cut and its result. */
typedef struct dpari_placing_cut {
    int64_t *at; /* [stages + 1], the first layer of each stage */
    dpari_score score;
    dpar_schedule_optimize_result result;
} dpari_placing_cut;

/* The state of the search. It is in the caller's memory, and its arrays follow it. */
typedef struct dpari_placing {
    const dpar_schedule_optimize_desc *job; /* the job with values for layers */
    const dpar_schedule *given;
    dpar_schedule_optimize_desc staged; /* the job with values for the stages of the cut */
    dpar_schedule_times times;          /* the times of `staged` */
    int64_t *sum[DPARI_LAYERS_SUMS];    /* [stages], the arrays of `times` */
    int64_t *cost;                      /* [layers] */
    dpar_rank_timing *rank;             /* [ranks] */
    dpar_timing timing;
    dpari_placing_cut cut[3]; /* the cut to evaluate, the best one from this start, and the best of
                                 all */
    int64_t evaluated, tries; /* cuts evaluated so far, and the most that may be */
    int32_t layers;
    void *rest; /* the first bytes of the caller's memory, for optimize or simulate */
    int64_t rest_bytes;
} dpari_placing;

/* ---- stages from layers ---------------------------------------------------------------------- */

/* Returns the values of quantity k, 0 to DPARI_LAYERS_SUMS - 1. */
static const dpar_stage_values *dpari_placing_each(const dpar_schedule_times *times, int k)
{
    switch (k) {
    case 0: return &times->forward;
    case 1: return &times->input;
    case 2: return &times->weight;
    case 3: return &times->backward;
    case 4: return &times->hold_forward;
    case 5: return &times->hold_input;
    case 6: return &times->hold_weight;
    default: return &times->hold_always;
    }
}

/* Returns quantity k of a layer. A B without a time of its own takes as long as I and W. */
static int64_t dpari_placing_value(const dpar_schedule_times *times, int k, int32_t layer)
{
    int64_t v = dpari_each_at(dpari_placing_each(times, k), layer);
    if (k == 3 && v == 0) {
        return dpari_each_at(&times->input, layer) + dpari_each_at(&times->weight, layer);
    }
    return v;
}

/* Checks the values of layers, and that no sum over layers overflows with any cut. */
static dpar_status dpari_placing_fit(const dpar_schedule_optimize_desc *job, int32_t layers,
                                     dpar_why *why)
{
    const int64_t most = INT64_C(1) << 60;
    const dpar_schedule_times *times = job->times;
    int32_t l;
    int k;
    for (k = 0; k < DPARI_LAYERS_SUMS; k++) {
        int64_t sum = 0;
        for (l = 0; l < layers; l++) {
            int64_t v = dpari_each_at(dpari_placing_each(times, k), l);
            if (k == 5 || k == 6) { /* hold_input and hold_weight */
                v = v < -most ? -1 : -v;
            }
            if (v < 0) {
                return dpari_wrong(why,
                                   "layer %d: times, hold_forward and hold_always must be 0 or "
                                   "more, hold_input and hold_weight 0 or less",
                                   l);
            }
            if (v > most - sum) {
                return dpari_say(DPAR_E_RANGE, why,
                                 "layers 0 to %d: a time or hold_x adds up to more than 2^60", l);
            }
            sum += v;
        }
    }
    for (l = 0; l < layers; l++) {
        int64_t f = dpari_each_at(&times->hold_forward, l),
                i = dpari_each_at(&times->hold_input, l);
        int64_t w = dpari_each_at(&times->hold_weight, l);
        if (f + i + w != 0) {
            return dpari_wrong(
                why, "layer %d holds %ld for F, %ld for I and %ld for W; these must add up to 0", l,
                f, i, w);
        }
    }
    return DPAR_OK;
}

/* Adds up the values of the layers of each stage of a cut. */
static void dpari_placing_sum(dpari_placing *placing, const int64_t *cuts)
{
    int32_t s, l;
    int k;
    for (k = 0; k < DPARI_LAYERS_SUMS; k++) {
        for (s = 0; s < placing->job->stages; s++) {
            placing->sum[k][s] = 0;
            for (l = (int32_t)cuts[s]; l < cuts[s + 1]; l++) {
                placing->sum[k][s] += dpari_placing_value(placing->job->times, k, l);
            }
        }
    }
}

/* ---- evaluation ------------------------------------------------------------------------------ */

DPARI_STATIC_NOINLINE int dpari_placing_better(const dpari_placing_cut *a,
                                               const dpari_placing_cut *b)
{
    return a->score.over < b->score.over ||
           (a->score.over == b->score.over && a->score.objective < b->score.objective);
}

/* Adds to *over by how much rank r exceeds its cap if it holds `holds`. The sum stops at 2^61. */
static void dpari_placing_over(const dpari_placing *placing, int32_t r, int64_t holds,
                               int64_t *over)
{
    int64_t cap = dpari_each_at(&placing->job->cap, r);
    if (cap > 0 && holds > cap) {
        *over += dpari_least(holds - cap, (INT64_C(1) << 61) - *over);
    }
}

/* True if the job has the bytes of an activation. Otherwise an activation counts as 1. */
static int dpari_placing_holds(const dpar_schedule_optimize_desc *job)
{
    return job->times->hold_forward.each != NULL || job->times->hold_forward.all != 0;
}

/* Returns the most that a rank holds in the schedule that was simulated last. */
static int64_t dpari_placing_peak(const dpari_placing *placing, int32_t r)
{
    return dpari_placing_holds(placing->job) ? placing->rank[r].peak_bytes
                                             : placing->rank[r].peak_count;
}

/* Evaluates a cut by simulating the given schedule with its stages. */
static dpar_status dpari_placing_simulate(dpari_placing *placing, dpari_placing_cut *c,
                                          dpar_why *why)
{
    dpar_schedule_simulate_desc how;
    int32_t r;
    dpar_status st;
    dpari_zero(&how, sizeof(how));
    how.times = &placing->times;
    how.rank = placing->rank;
    st = dpar_schedule_simulate(placing->given, &how, &placing->timing, placing->rest,
                                placing->rest_bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    c->result.makespan = placing->timing.makespan;
    c->result.span = placing->timing.span;
    for (r = 0; r < placing->job->ranks; r++) {
        dpari_placing_over(placing, r, dpari_placing_peak(placing, r), &c->score.over);
    }
    return DPAR_OK;
}

/* Evaluates a cut by making a schedule for its stages. Makes no schedule if a micro-batch does not
 * fit on a rank, or if the lower bound shows that the cut cannot be better than `best`. */
static dpar_status dpari_placing_auto(dpari_placing *placing, dpari_placing_cut *c,
                                      const dpari_placing_cut *best, dpar_schedule *schedule,
                                      dpar_why *why)
{
    int32_t r, k;
    dpar_status st;
    for (r = 0; r < placing->job->ranks; r++) {
        int64_t need = 0;
        for (k = 0; k < placing->job->stages; k++) {
            if (dpari_pipe_rank(placing->job, k) == r) {
                need += dpari_pipe_hold(&placing->times, DPARI_F, k) + placing->sum[7][k];
            }
        }
        dpari_placing_over(placing, r, need, &c->score.over);
    }
    c->result.makespan = c->result.span = INT64_MAX;
    if (c->score.over > 0) {
        return DPAR_OK;
    }
    c->result.bound = dpari_pipe_bound(&placing->staged);
    if (best != NULL && best->score.over == 0 && c->result.bound >= best->score.objective) {
        return DPAR_OK;
    }
    st = dpar_schedule_optimize(schedule, &placing->staged, &c->result, placing->rest,
                                placing->rest_bytes, why);
    return st < 0 ? st : DPAR_OK;
}

/* Evaluates placing->cut[0]. If it is not better than `best`, its result may be incomplete. */
static dpar_status dpari_placing_evaluate(dpari_placing *placing, const dpari_placing_cut *best,
                                          dpar_schedule *schedule, dpar_why *why)
{
    dpari_placing_cut *c = &placing->cut[0];
    dpar_status st;
    placing->evaluated++;
    c->score.over = 0;
    dpari_placing_sum(placing, c->at);
    st = placing->given != NULL ? dpari_placing_simulate(placing, c, why)
                                : dpari_placing_auto(placing, c, best, schedule, why);
    c->score.objective =
        placing->job->objective == DPAR_OBJECTIVE_SPAN ? c->result.span : c->result.makespan;
    return st;
}

static void dpari_placing_copy(const dpari_placing *placing, dpari_placing_cut *to,
                               const dpari_placing_cut *from)
{
    int32_t s;
    for (s = 0; s <= placing->job->stages; s++) {
        to->at[s] = from->at[s];
    }
    to->score = from->score;
    to->result = from->result;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* Makes cut[0] from cut[1] by moving a layer from one stage to another. Each stage in between
 * passes one on. Returns 0 if stage `from` has only one layer. */
static int dpari_placing_move(dpari_placing *placing, int32_t from, int32_t to)
{
    int64_t *at = placing->cut[0].at;
    int32_t s;
    dpari_placing_copy(placing, &placing->cut[0], &placing->cut[1]);
    if (at[from + 1] - at[from] < 2) {
        return 0;
    }
    for (s = (int32_t)dpari_least(from, to); s < dpari_most(from, to); s++) {
        at[s + 1] += from < to ? -1 : 1;
    }
    return 1;
}

/* Moves layers as long as a move improves cut[1], first between neighbouring stages. Returns
 * DPAR_MORE if no tries are left. */
static dpar_status dpari_placing_descend(dpari_placing *placing, dpar_schedule *schedule,
                                         dpar_why *why)
{
    int32_t stages = placing->job->stages, away, way, better = 1;
    while (better) {
        better = 0;
        for (away = 1; away < stages; away++) {
            for (way = 0; way < 2 * (stages - away); way++) {
                const int32_t low = way / 2, high = low + away;
                const int moved = way % 2 ? dpari_placing_move(placing, low, high)
                                          : dpari_placing_move(placing, high, low);
                dpar_status st;
                if (!moved) {
                    continue;
                }
                if (placing->evaluated >= placing->tries) {
                    return DPAR_MORE;
                }
                st = dpari_placing_evaluate(placing, &placing->cut[1], schedule, why);
                if (st != DPAR_OK) {
                    return st;
                }
                if (dpari_placing_better(&placing->cut[0], &placing->cut[1])) {
                    dpari_placing_copy(placing, &placing->cut[1], &placing->cut[0]);
                    better = 1;
                }
            }
        }
    }
    return DPAR_OK;
}

/* Sets cut[0] to the cut from which the search starts: stages with equal times (start 0), or with
 * equal numbers of layers (start 1), as far as possible. */
static void dpari_placing_start(dpari_placing *placing, int start)
{
    int32_t l;
    for (l = 0; l < placing->layers; l++) {
        placing->cost[l] = 1;
        if (start == 0) { /* F and B */
            placing->cost[l] = dpari_placing_value(placing->job->times, 0, l);
            placing->cost[l] += dpari_placing_value(placing->job->times, 3, l);
        }
    }
    (void)dpar_split_balance(placing->cut[0].at, placing->layers, placing->cost,
                             placing->job->stages, NULL);
}

static dpar_status dpari_placing_search(dpari_placing *placing, dpar_schedule *schedule,
                                        dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int start;
    for (start = 0; start < DPARI_LAYERS_STARTS && st == DPAR_OK; start++) {
        dpari_placing_start(placing, start);
        st = dpari_placing_evaluate(placing, NULL, schedule, why);
        if (st != DPAR_OK) {
            break;
        }
        dpari_placing_copy(placing, &placing->cut[1], &placing->cut[0]);
        st = dpari_placing_descend(placing, schedule, why);
        if (st >= 0 && (start == 0 || dpari_placing_better(&placing->cut[1], &placing->cut[2]))) {
            dpari_placing_copy(placing, &placing->cut[2], &placing->cut[1]);
        }
    }
    return st;
}

/* ---- the calls ------------------------------------------------------------------------------- */

/* Checks layers and stages, and the shape of the given schedule. */
static dpar_status dpari_placing_shape(const dpar_schedule_partition_desc *how, dpar_why *why)
{
    const dpar_schedule_optimize_desc *job = how->job;
    const dpar_schedule *given = how->given;
    if (job->times == NULL || job->stages < 1 || job->stages > DPARI_OPTIMIZE_MAX_STAGES ||
        how->layers < job->stages || how->layers > (INT32_C(1) << 24)) {
        return dpari_wrong(why,
                           "%d layers on %d stages; each stage needs a layer, and 2^24 layers and "
                           "16384 stages are allowed",
                           how->layers, job->stages);
    }
    if (given != NULL && (given->ranks != job->ranks || given->stages != job->stages ||
                          given->micro_batches != job->micro_batches ||
                          given->chain != given->stages || given->slices != 1)) {
        return dpari_wrong(
            why,
            "the given schedule has %d ranks, %d stages, %d micro-batches and slices=%d; it must "
            "have those of the job, one chain and slices=1",
            given->ranks, given->stages, given->micro_batches, given->slices);
    }
    return DPAR_OK;
}

/* Returns the bytes that an evaluation needs, a multiple of 8, or -1. They depend on the shape of
 * the job only, so that its times may be those of layers. */
static int64_t dpari_placing_rest(const dpar_schedule_partition_desc *how)
{
    dpar_schedule_times none;
    dpar_schedule_simulate_desc timed;
    dpar_schedule_optimize_desc shape = *how->job;
    int64_t bytes;
    dpari_zero(&none, sizeof(none));
    if (how->given != NULL) {
        dpari_zero(&timed, sizeof(timed));
        timed.times = how->job->times;
        bytes = dpari_schedule_simulate_bytes(how->given, &timed);
    } else {
        dpari_zero(&shape.cap, sizeof(shape.cap));
        shape.times = &none;
        bytes = dpari_schedule_auto_bytes(&shape, NULL);
    }
    return bytes;
}

DPARI_INTERNAL DPARI_COLD int64_t
dpari_schedule_place_bytes(const dpar_schedule_partition_desc *how)
{
    int64_t s = how->job->stages, rest;
    if (dpari_placing_shape(how, NULL) != DPAR_OK) {
        return -1;
    }
    rest = dpari_placing_rest(how);
    if (rest < 0) {
        return -1;
    }
    return rest + 8 * (DPARI_LAYERS_SUMS * s + 3 * (s + 1) + how->layers) +
           dpari_whole_words((int64_t)sizeof(dpari_placing) +
                             (int64_t)sizeof(dpar_rank_timing) * how->job->ranks);
}

/* Places the struct and its arrays in mem, after the bytes for evaluations. */
static dpari_placing *dpari_placing_arrange(const dpar_schedule_partition_desc *how, void *mem)
{
    const dpar_schedule_optimize_desc *job = how->job;
    const int64_t rest = dpari_placing_rest(how);
    char *at = (char *)mem + rest;
    dpari_placing *placing = (dpari_placing *)(void *)at;
    int k;
    at += sizeof(*placing);
    dpari_zero(placing, sizeof(*placing));
    placing->job = job;
    placing->given = how->given;
    placing->layers = how->layers;
    placing->tries = how->tries;
    placing->times = *job->times;
    placing->rest = mem;
    placing->rest_bytes = rest;
    for (k = 0; k < DPARI_LAYERS_SUMS; k++) {
        placing->sum[k] = dpari_pipe_wide(&at, job->stages);
    }
    placing->times.forward.each = placing->sum[0];
    placing->times.input.each = placing->sum[1];
    placing->times.weight.each = placing->sum[2];
    placing->times.backward.each = placing->sum[3];
    if (dpari_placing_holds(job)) {
        placing->times.hold_forward.each = placing->sum[4];
        placing->times.hold_input.each = placing->sum[5];
        placing->times.hold_weight.each = placing->sum[6];
    }
    placing->times.hold_always.each = placing->sum[7];
    placing->staged = *job;
    placing->staged.times = &placing->times;
    placing->staged.nodes = 0;
    for (k = 0; k < 3; k++) {
        placing->cut[k].at = dpari_pipe_wide(&at, (int64_t)job->stages + 1);
    }
    placing->cost = dpari_pipe_wide(&at, how->layers);
    placing->rank = (dpar_rank_timing *)(void *)at;
    return placing;
}

/* Evaluates the best cut once more, which makes its schedule. Fails with DPAR_E_MEMORY if the cut
 * exceeds a cap. */
static dpar_status dpari_placing_end(dpari_placing *placing, dpar_schedule *schedule, dpar_why *why)
{
    dpari_placing_cut *best = &placing->cut[2];
    const int64_t evaluated = placing->evaluated;
    int64_t over = 0;
    int32_t r;
    dpari_placing_copy(placing, &placing->cut[0], best);
    (void)dpari_placing_evaluate(placing, NULL, schedule, NULL); /* did not fail before */
    if (best->score.over > 0) {
        if (placing->given == NULL) {
            return dpari_pipe_check(&placing->staged, why);
        }
        r = -1;
        while (over == 0) { /* finds the first rank over its cap */
            r++;
            dpari_placing_over(placing, r, dpari_placing_peak(placing, r), &over);
        }
        return dpari_say(DPAR_E_MEMORY, why,
                         "cannot fit: rank %d holds %ld at its peak, its cap is %ld", r,
                         dpari_placing_peak(placing, r), dpari_each_at(&placing->job->cap, r));
    }
    best->result = placing->cut[0].result;
    best->result.bound = dpari_pipe_bound(&placing->staged);
    best->result.nodes = evaluated;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_schedule_partition(dpar_schedule *schedule,
                                                        const dpar_schedule_partition_desc *how,
                                                        dpar_schedule_optimize_result *result,
                                                        void *mem, int64_t bytes, dpar_why *why)
{
    const dpar_schedule_optimize_desc *job = how->job;
    dpari_placing *placing;
    dpar_schedule made;
    int64_t needed = -1;
    dpar_status st = dpari_placing_shape(how, why), ended;
    int32_t k;
    if (st == DPAR_OK) {
        st = dpari_placing_fit(job, how->layers, why);
        needed = dpari_schedule_place_bytes(how);
    }
    if (st == DPAR_OK && (how->tries < 1 || needed < 0)) {
        st = dpari_wrong(
            why,
            "tries=%ld, %d ranks and %d micro-batches; tries must be 1 or more, and the job in the "
            "domain of dpar_schedule_optimize",
            how->tries, job->ranks, job->micro_batches);
    }
    if (st == DPAR_OK && bytes < needed) {
        dpari_needs_bytes(why, needed);
        st = dpari_say(DPAR_E_ROOM, why, "placing layers needs %ld bytes, got %ld", needed, bytes);
    }
    if (st != DPAR_OK) {
        return st;
    }
    placing = dpari_placing_arrange(how, mem);
    st = dpari_placing_search(placing, &made, why);
    ended = st < 0 ? st : dpari_placing_end(placing, &made, why);
    if (ended != DPAR_OK) {
        return ended;
    }
    for (k = 0; k <= job->stages; k++) {
        how->cuts[k] = placing->cut[2].at[k];
    }
    if (how->given == NULL) {
        *schedule = made;
    }
    *result = placing->cut[2].result;
    return st;
}
