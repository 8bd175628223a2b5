/* SPDX-License-Identifier: MIT-0 */
/* Checks jobs, computes lower bounds, and searches for the best schedule of a tiny job. The search
 * is a depth-first branch and bound over the decisions of the rank that is free first. A table
 * keeps the states that were searched to the end, with times relative to the state's time, so that
 * they are not searched again. optimize.c and partition.c call it. */
#include "exact.h"

#include "partial_schedule.h"

enum { DPARI_MOST_SUM = 60 }; /* sums of times and bytes are at most 2^60 */

/* ---- the job --------------------------------------------------------------------------------- */

/* Checks the numbers of a job that are not times or bytes. */
static dpar_status dpari_job_shape(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    int32_t s, r;
    if (job->ranks < 1 || job->ranks > DPARI_OPTIMIZE_MAX_RANKS || job->stages < job->ranks ||
        job->stages > DPARI_OPTIMIZE_MAX_STAGES || job->micro_batches < 1 ||
        job->micro_batches > DPAR_MAX_MICRO_BATCHES ||
        (int64_t)job->stages * job->micro_batches > (INT64_C(1) << 28)) {
        return dpari_wrong(why,
                           "%d ranks, %d stages and %d micro-batches; 1 to 4096, 16384 and 65535 "
                           "are allowed, with "
                           "stages >= ranks and stages x micro-batches <= 2^28",
                           job->ranks, job->stages, job->micro_batches);
    }
    if (job->times == NULL || job->split < 0 || job->split > 1 || job->objective < 0 ||
        job->objective > DPAR_OBJECTIVE_SPAN) {
        return dpari_wrong(why,
                           "split=%d and objective=%d must be 0 or 1, and times must not be NULL",
                           job->split, job->objective);
    }
    if (job->rank_of == NULL && job->map != DPAR_STAGE_MAP_LOOP && job->map != DPAR_STAGE_MAP_V) {
        return dpari_wrong(why, "map=%d; DPAR_STAGE_MAP_LOOP and DPAR_STAGE_MAP_V are allowed",
                           job->map);
    }
    for (s = 0; s < job->stages; s++) {
        r = dpari_pipe_rank(job, s);
        if (r >= job->ranks) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", s, r,
                               job->ranks);
        }
    }
    return DPAR_OK;
}

/* Adds value to *sum and returns 1 if both the value and the new sum are 0 to 2^60. */
static int dpari_job_add(int64_t *sum, int64_t value)
{
    const int64_t most = INT64_C(1) << DPARI_MOST_SUM;
    if (value < 0 || value > most || *sum > most - value) {
        return 0;
    }
    *sum += value;
    return 1;
}

/* Checks that times are 0 or more and that their sum over all micro-batches is at most 2^60, so
 * that no later sum overflows. */
static dpar_status dpari_job_times(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    const dpar_schedule_times *times = job->times;
    int64_t sum = 0, all;
    int32_t s;
    for (s = 0; s < job->stages; s++) {
        int64_t f = dpari_each_at(&times->forward, s), i = dpari_each_at(&times->input, s);
        int64_t w = dpari_each_at(&times->weight, s), b = dpari_each_at(&times->backward, s);
        int64_t wide = dpari_each_at(&times->bandwidth, s), lag;
        if (dpari_each_at(&times->latency, s) < 0 || dpari_each_at(&times->bytes, s) < 0 ||
            wide < 0 || wide > INT64_MAX / 10 || f < 0 || i < 0 || w < 0 || b < 0) {
            return dpari_wrong(
                why,
                "stage %d: times, latency and bytes must be 0 or more, and bandwidth "
                "0 to INT64_MAX / 10",
                s);
        }
        lag = dpari_each_at(&times->latency, s) > (INT64_C(1) << DPARI_MOST_SUM)
                  ? INT64_MAX
                  : dpari_pipe_message(times, s);
        if (!dpari_job_add(&sum, f) || !dpari_job_add(&sum, i) || !dpari_job_add(&sum, w) ||
            !dpari_job_add(&sum, b) || !dpari_job_add(&sum, lag) || !dpari_job_add(&sum, lag)) {
            return dpari_say(DPAR_E_RANGE, why,
                             "the times of stages 0 to %d add up to more than 2^60", s);
        }
    }
    if (!dpari_mul(sum, job->micro_batches, &all) || all > (INT64_C(1) << DPARI_MOST_SUM)) {
        return dpari_say(DPAR_E_RANGE, why, "%d micro-batches of %ld units of time exceed 2^60",
                         job->micro_batches, sum);
    }
    return DPAR_OK;
}

/* Checks that I and W free the bytes that F takes, and that the bytes of all micro-batches are at
 * most 2^60. */
static dpar_status dpari_job_holds(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    int64_t sum = 0, each = 0, all;
    int32_t s;
    for (s = 0; s < job->stages; s++) {
        int64_t f = dpari_pipe_hold(job->times, DPARI_F, s);
        int64_t i = dpari_pipe_hold(job->times, DPARI_I, s);
        int64_t w = dpari_pipe_hold(job->times, DPARI_W, s);
        if (f < 0 || i > 0 || w > 0 || i < -f || w != -f - i ||
            dpari_each_at(&job->times->hold_always, s) < 0) {
            return dpari_wrong(why,
                               "stage %d holds %ld for F, %ld for I and %ld for W; I and W must "
                               "free what F takes, "
                               "and hold_always must be 0 or more",
                               s, f, i, w);
        }
        if (!dpari_job_add(&sum, f) ||
            !dpari_job_add(&each, dpari_each_at(&job->times->hold_always, s))) {
            return dpari_say(DPAR_E_RANGE, why,
                             "hold_forward or hold_always of stages 0 to %d adds up to more than "
                             "2^60 bytes",
                             s);
        }
    }
    if (!dpari_mul(sum, job->micro_batches, &all) || all > (INT64_C(1) << DPARI_MOST_SUM)) {
        return dpari_say(DPAR_E_RANGE, why, "%d micro-batches of %ld bytes exceed 2^60",
                         job->micro_batches, sum);
    }
    return DPAR_OK;
}

/* Checks that a rank has a stage, and that one micro-batch fits on all its stages together. */
static dpar_status dpari_job_fits(const dpar_schedule_optimize_desc *job, int32_t rank,
                                  dpar_why *why)
{
    int64_t cap = dpari_each_at(&job->cap, rank), need = 0, always = 0, one = -1;
    int32_t s, stages = 0, alike = 1;
    for (s = 0; s < job->stages; s++) {
        int64_t f;
        if (dpari_pipe_rank(job, s) != rank) {
            continue;
        }
        f = dpari_pipe_hold(job->times, DPARI_F, s);
        alike = alike && (one < 0 || one == f);
        one = f;
        need += f;
        always += dpari_each_at(&job->times->hold_always, s);
        stages++;
    }
    if (stages == 0 || cap < 0) {
        return dpari_wrong(
            why, "rank %d has %d stages and a cap of %ld; 1 or more and 0 or more are allowed",
            rank, stages, cap);
    }
    if (cap == 0 || need <= cap - always) {
        return DPAR_OK;
    }
    if (alike && always == 0) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "cannot fit: rank %d needs %d activations of %ld bytes, its cap is %ld",
                         rank, stages, one, cap);
    }
    return dpari_say(DPAR_E_MEMORY, why,
                     "cannot fit: rank %d holds %ld bytes always and needs %ld more for one "
                     "micro-batch, its cap is %ld",
                     rank, always, need, cap);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pipe_check(const dpar_schedule_optimize_desc *job,
                                                       dpar_why *why)
{
    dpar_status st = dpari_job_shape(job, why);
    int32_t r;
    if (st == DPAR_OK) {
        st = dpari_job_times(job, why);
    }
    if (st == DPAR_OK) {
        st = dpari_job_holds(job, why);
    }
    for (r = 0; r < job->ranks && st == DPAR_OK; r++) {
        st = dpari_job_fits(job, r, why);
    }
    return st;
}

DPARI_INTERNAL int64_t dpari_pipe_actions(const dpar_schedule_optimize_desc *job)
{
    return (int64_t)job->stages * job->micro_batches * (job->split ? 3 : 2);
}

/* The least times of one micro-batch along the chain, as seen from one stage. */
typedef struct dpari_chain {
    int64_t way;  /* the whole chain: all F, all I, all messages, and the W of stage 0 */
    int64_t head; /* from the start of the chain to the start of the stage's F */
    int64_t back; /* from the end of the stage's I to the end of stage 0's I */
} dpari_chain;

/* Returns the time of a message from a stage to the next one, or 0 if both are on the same rank. */
static int64_t dpari_job_lag(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    return stage + 1 < job->stages && dpari_pipe_rank(job, stage) != dpari_pipe_rank(job, stage + 1)
               ? dpari_pipe_message(job->times, stage)
               : 0;
}

DPARI_STATIC_NOINLINE int64_t dpari_job_weight(const dpar_schedule_optimize_desc *job,
                                               int32_t stage)
{
    return job->split ? dpari_each_at(&job->times->weight, stage) : 0;
}

/* Returns the least time that a stage's activation is held, from the start of F to the end of I. */
static int64_t dpari_bound_hold(const dpar_schedule_optimize_desc *job, const dpari_chain *c)
{
    return c->way - c->head - c->back - dpari_job_weight(job, 0);
}

/* Moves *c from a stage to the next one. */
static void dpari_bound_step(const dpar_schedule_optimize_desc *job, int32_t stage, dpari_chain *c)
{
    c->head += dpari_each_at(&job->times->forward, stage) + dpari_job_lag(job, stage);
    c->back += dpari_pipe_back(job, stage) + dpari_job_lag(job, stage);
}

/* Returns the bound from the cap of a rank: the sum of bytes x time over all its activations,
 * divided by the cap. Bytes are rounded down and the cap up to multiples of about 2^-20 of the cap,
 * so that products fit into 64 bits and the result is still a lower bound. Returns 0 if a product
 * overflows nevertheless. */
static int64_t dpari_bound_area(const dpar_schedule_optimize_desc *job, int32_t first,
                                const dpari_chain *chain)
{
    dpari_chain c = *chain;
    int32_t s, r = dpari_pipe_rank(job, first);
    int64_t cap = dpari_each_at(&job->cap, r), area = 0, part, unit = 1 + (cap >> 20);
    for (s = first; s < job->stages && cap > 0; s++) {
        if (dpari_pipe_rank(job, s) == r) {
            int64_t f = dpari_pipe_hold(job->times, DPARI_F, s);
            int64_t w = job->split ? -dpari_pipe_hold(job->times, DPARI_W, s) : 0;
            if (!dpari_mul(f / unit, dpari_bound_hold(job, &c), &part) ||
                !dpari_job_add(&area, part) ||
                !dpari_mul(w / unit, dpari_job_weight(job, s), &part) ||
                !dpari_job_add(&area, part)) {
                return 0;
            }
        }
        dpari_bound_step(job, s, &c);
    }
    if (cap == 0 || !dpari_mul(area, job->micro_batches, &area)) {
        return 0;
    }
    return dpari_ceil_div(area, dpari_ceil_div(cap, unit)) +
           (job->objective == DPAR_OBJECTIVE_MAKESPAN ? chain->head : 0);
}

/* Returns the bound of a rank whose first stage is `first`; *chain is at that stage. */
static int64_t dpari_bound_rank(const dpar_schedule_optimize_desc *job, int32_t first,
                                const dpari_chain *chain)
{
    int64_t pass = 0, weight = 0; /* times of all F and I, and of all W, of the rank */
    int64_t bound;
    int32_t s, r = dpari_pipe_rank(job, first);
    for (s = first; s < job->stages; s++) {
        if (dpari_pipe_rank(job, s) == r) {
            pass += dpari_each_at(&job->times->forward, s) + dpari_pipe_back(job, s);
            weight += dpari_job_weight(job, s);
        }
    }
    pass *= job->micro_batches;
    weight *= job->micro_batches;
    bound = pass + weight;
    if (job->objective == DPAR_OBJECTIVE_MAKESPAN) {
        bound = chain->head + pass +
                dpari_most(weight, first > 0 ? chain->back + dpari_job_weight(job, 0)
                                             : dpari_job_weight(job, first));
    }
    return dpari_most(bound, dpari_bound_area(job, first, chain));
}

/* Returns the bound of a stage. One micro-batch passes the whole chain, and the stage runs the F of
 * all others before it, or the I of all others after it. If only `fit` activations fit, the
 * micro-batches of the stage also take turns. */
static int64_t dpari_bound_stage(const dpar_schedule_optimize_desc *job, int32_t s,
                                 const dpari_chain *c)
{
    int64_t f = dpari_each_at(&job->times->forward, s), i = dpari_pipe_back(job, s);
    int64_t one = dpari_pipe_hold(job->times, DPARI_F, s), best = 0, fit;
    int64_t cap = dpari_each_at(&job->cap, dpari_pipe_rank(job, s));
    int whole = !job->split || dpari_pipe_hold(job->times, DPARI_I, s) == 0;
    if (job->objective == DPAR_OBJECTIVE_MAKESPAN ||
        dpari_pipe_rank(job, s) == dpari_pipe_rank(job, 0)) {
        best = c->way + (job->micro_batches - 1) * dpari_most(f, i);
    }
    if (cap == 0 || one == 0) {
        return best;
    }
    fit = cap / one; /* at least 1, because the job was checked */
    if (fit < job->micro_batches) {
        int64_t held = dpari_bound_hold(job, c) + (whole ? dpari_job_weight(job, s) : 0);
        int64_t late = job->objective == DPAR_OBJECTIVE_MAKESPAN ? c->head : 0;
        best = dpari_most(best, late + dpari_ceil_div(job->micro_batches, fit) * held);
    }
    return best;
}

DPARI_INTERNAL int64_t dpari_pipe_bound(const dpar_schedule_optimize_desc *job)
{
    dpari_chain c;
    int64_t bound = 0;
    int32_t s;
    if (dpari_pipe_check(job, NULL) != DPAR_OK) {
        return -1;
    }
    dpari_zero(&c, sizeof(c));
    for (s = 0; s < job->stages; s++) {
        c.way += dpari_each_at(&job->times->forward, s) + dpari_pipe_back(job, s) +
                 2 * dpari_job_lag(job, s);
    }
    c.way += dpari_job_weight(job, 0);
    for (s = 0; s < job->stages; s++) {
        int32_t r = dpari_pipe_rank(job, s), k = 0;
        while (dpari_pipe_rank(job, k) != r) {
            k++;
        }
        if (k == s) {
            bound = dpari_most(bound, dpari_bound_rank(job, s, &c));
        }
        bound = dpari_most(bound, dpari_bound_stage(job, s, &c));
        dpari_bound_step(job, s, &c);
    }
    return bound;
}

/* ---- the search ------------------------------------------------------------------------------ */

/* The largest job of a search. The counts in a key have 8 bits, which limits micro-batches. */
enum { DPARI_EXACT_STAGES = 24, DPARI_EXACT_RANKS = 12, DPARI_EXACT_MICROS = 255 };
enum {
    DPARI_WAIT = 3,  /* a kind: the rank waits */
    DPARI_LATE = 3,  /* messages in flight to a stage and kind in a key, whose count has 2 bits */
    DPARI_PROBES = 4 /* slots of the table that are tried for a key */
};

/* A decision on the path from the root of the search: rank `rank` is free at time `at`. It runs the
 * action `kind` of `stage`, or waits. free, seen and start are the rank's values before the
 * decision. */
typedef struct dpari_place {
    int64_t at, free, seen, start;
    int64_t arrives; /* the earliest time at which another input can reach the rank */
    int32_t rank;
    int32_t choice;      /* the number of alternatives that were tried */
    int32_t kind, stage; /* kind is DPARI_WAIT if no action is started */
} dpari_place;

/* The state of a search. An entry of the table has the times `since`, a hash that is not 0, and the
 * key. For the makespan there is one time, that of the state; for the span there is each rank's
 * time since its start. A state need not be searched again if it was searched before with times
 * that are not larger. */
typedef struct dpari_search {
    dpari_pipe q;
    /* [ranks], the time at which the rank decided to wait, or DPARI_NEVER. It then does not start
     * any action that was ready at that time before another input arrives. */
    int64_t *seen;
    int32_t span;        /* 1 if the objective is the span */
    int64_t best, bound; /* the smallest objective so far, and its lower bound */
    int64_t nodes, most; /* the states entered so far, and the most that may be */
    dpari_place *place;  /* the path from the root, `depth` decisions */
    int64_t depth, actions;
    uint32_t *key;  /* [keys] */
    int64_t *since; /* [sinces] */
    char *table;    /* [entries], each of `size` bytes */
    int64_t entries;
    int32_t keys, sinces, size;
} dpari_search;

/* True if the stage's next action of this kind is ready at time `at` and the rank may choose it. */
static int dpari_exact_ready(const dpari_search *search, int kind, int32_t s, int64_t at)
{
    int32_t r = search->q.rank[s];
    int64_t arrival;
    if (!dpari_pipe_may(&search->q, kind, s)) {
        return 0;
    }
    if (kind == DPARI_W) {
        return search->seen[r] == DPARI_NEVER;
    }
    arrival = dpari_pipe_arrival(&search->q, kind, s);
    return arrival != DPARI_NEVER && arrival <= at && arrival > search->seen[r];
}

/* Returns the first time at which the rank has a decision to make, or INT64_MAX if none is known.
 */
static int64_t dpari_exact_wake(const dpari_search *search, int32_t r)
{
    const dpari_pipe *pipe = &search->q;
    int64_t wake = INT64_MAX;
    int32_t i, kind;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        for (kind = DPARI_F; kind <= DPARI_W; kind++) {
            int64_t at = 0;
            if (!dpari_pipe_may(pipe, kind, pipe->list[i])) {
                continue;
            }
            if (kind != DPARI_W) {
                at = dpari_pipe_arrival(pipe, kind, pipe->list[i]);
            }
            if (at == DPARI_NEVER || at <= search->seen[r]) {
                continue;
            }
            wake = dpari_least(wake, dpari_most(at, pipe->free[r]));
        }
    }
    return wake;
}

/* Computes for each stage and kind the earliest time at which the input of its next action can
 * arrive, pipe->next. Computes for each rank the earliest time at which it can continue, pipe->sum,
 * which is INT64_MAX if it has nothing left to run. */
static void dpari_exact_arrivals(dpari_search *search)
{
    dpari_pipe *pipe = &search->q;
    int32_t k, s, r, back;
    for (r = 0; r < pipe->ranks; r++) {
        pipe->sum[r] = INT64_MAX;
    }
    for (k = 0; k < 2 * pipe->stages; k++) {
        int kind;
        int64_t at, *next;
        back = k >= pipe->stages;
        kind = back ? DPARI_I : DPARI_F;
        s = back ? 2 * pipe->stages - 1 - k : k;
        r = pipe->rank[s];
        next = &pipe->next[kind][s];
        at = dpari_pipe_arrival(pipe, kind, s);
        if (at == DPARI_NEVER) {              /* its producer has not started */
            int32_t loss = k == pipe->stages; /* the I of the last stage follows its own F */
            int32_t from = back ? s + 1 : s - 1;
            int of = loss ? DPARI_F : kind;
            if (loss) {
                from = s;
            }
            at = dpari_most(pipe->free[pipe->rank[from]], pipe->next[of][from]) +
                 pipe->time[of][from];
            if (!loss) {
                at += pipe->lag[back ? s : from];
            }
        }
        *next = at;
        if (dpari_pipe_may(pipe, kind, s) && at > search->seen[r]) {
            pipe->sum[r] = dpari_least(pipe->sum[r], at);
        }
        if (back && search->seen[r] == DPARI_NEVER && dpari_pipe_may(pipe, DPARI_W, s)) {
            pipe->sum[r] = 0;
        }
    }
    for (r = 0; r < pipe->ranks; r++) {
        pipe->sum[r] = dpari_most(pipe->sum[r], pipe->free[r]);
    }
}

/* Returns the time of all remaining actions of a stage and kind. */
static int64_t dpari_exact_left(const dpari_pipe *pipe, int kind, int32_t s)
{
    return (pipe->micros - pipe->done[kind][s]) * pipe->time[kind][s];
}

/* Returns the time from which the objective counts for a rank: 0 for the makespan, for the span its
 * start, or `fallback` if it has not started. */
static int64_t dpari_exact_zero(const dpari_search *search, int32_t r, int64_t fallback)
{
    if (!search->span) {
        return 0;
    }
    return search->q.start[r] != DPARI_NEVER ? search->q.start[r] : fallback;
}

/* Returns a lower bound of the objective of all schedules that continue from this state. In the
 * first pass, down the chain, a stage ends its last F after all remaining F of its rank on this
 * stage and earlier ones. In the second pass, up the chain, it ends its last I after all F of the
 * rank and all I on this stage and later ones. Finally all W are added. */
static int64_t dpari_exact_bound(dpari_search *search)
{
    dpari_pipe *pipe = &search->q;
    int64_t chain = 0, bound = 0;
    int32_t s, r, last = pipe->micros - 1;
    dpari_exact_arrivals(search);
    for (r = 0; r < pipe->ranks; r++) {
        if (pipe->sum[r] == INT64_MAX) { /* nothing is left that could start after `seen` */
            pipe->sum[r] = pipe->free[r];
        }
    }
    for (s = 0; s < pipe->stages; s++) {
        int64_t left = dpari_exact_left(pipe, DPARI_F, s);
        r = pipe->rank[s];
        pipe->sum[r] += left;
        chain += s > 0 ? pipe->lag[s - 1] : 0;
        chain = left > 0 ? dpari_most(pipe->sum[r], chain + pipe->time[DPARI_F][s])
                         : pipe->end[DPARI_F][(int64_t)s * pipe->micros + last];
    }
    for (s = pipe->stages - 1; s >= 0; s--) {
        int64_t left = dpari_exact_left(pipe, DPARI_I, s), whole;
        r = pipe->rank[s];
        pipe->sum[r] += left;
        chain += pipe->lag[s];
        chain = pipe->done[DPARI_I][s] <= last
                    ? dpari_most(pipe->sum[r], chain + pipe->time[DPARI_I][s])
                    : pipe->end[DPARI_I][(int64_t)s * pipe->micros + last];
        whole =
            chain + (pipe->split && pipe->done[DPARI_W][s] <= last ? pipe->time[DPARI_W][s] : 0);
        bound = dpari_most(bound, whole - dpari_exact_zero(search, r, whole));
    }
    for (s = 0; s < pipe->stages && pipe->split; s++) {
        pipe->sum[pipe->rank[s]] += dpari_exact_left(pipe, DPARI_W, s);
    }
    for (r = 0; r < pipe->ranks; r++) {
        bound = dpari_most(bound, pipe->sum[r] - dpari_exact_zero(search, r, pipe->sum[r]));
    }
    return bound;
}

/* Appends to the key, for each message to a stage that has not arrived at time `at`, the time until
 * its arrival. Messages whose producer is still running are included. Returns the number of
 * messages, or -1 if the key has no capacity for them. */
static int32_t dpari_exact_late(const dpari_search *search, int kind, int32_t s, int64_t at,
                                int32_t *used)
{
    const dpari_pipe *pipe = &search->q;
    int32_t from = kind == DPARI_F ? s - 1 : s + 1, k, count = 0;
    if (from < 0 || from >= pipe->stages || pipe->rank[from] == pipe->rank[s]) {
        return 0;
    }
    for (k = pipe->done[kind][from] - 1; k >= pipe->done[kind][s]; k--) {
        int64_t arrival = pipe->end[kind][(int64_t)from * pipe->micros + k] +
                          pipe->lag[kind == DPARI_F ? from : s];
        if (arrival <= dpari_most(at, pipe->free[pipe->rank[s]])) {
            break;
        }
        if (count == DPARI_LATE || *used == search->keys) {
            return -1;
        }
        search->key[(*used)++] = (uint32_t)(arrival - at);
        count++;
    }
    return count;
}

/* Computes the key of the state at time `at` and its times. Times in search->key are relative to
 * `at`, those in search->since are not. Returns 0 if the state does not fit into a key. */
static int dpari_exact_key(dpari_search *search, int64_t at)
{
    const dpari_pipe *pipe = &search->q;
    int32_t s, r, used = pipe->stages + pipe->ranks;
    dpari_zero(search->key + used, 4 * (size_t)(search->keys - used));
    for (s = 0; s < pipe->stages; s++) {
        int64_t seen = search->seen[pipe->rank[s]];
        int64_t f = dpari_pipe_arrival(pipe, DPARI_F, s), i = dpari_pipe_arrival(pipe, DPARI_I, s);
        int32_t late_f = dpari_exact_late(search, DPARI_F, s, at, &used);
        int32_t late_i = dpari_exact_late(search, DPARI_I, s, at, &used);
        if (late_f < 0 || late_i < 0) {
            return 0;
        }
        search->key[s] = (uint32_t)pipe->done[0][s] | (uint32_t)pipe->done[1][s] << 8 |
                         (uint32_t)pipe->done[2][s] << 16 | (uint32_t)late_f << 24 |
                         (uint32_t)late_i << 26 | (uint32_t)(seen != DPARI_NEVER) << 28 |
                         (uint32_t)(f != DPARI_NEVER && f <= seen) << 29 |
                         (uint32_t)(i != DPARI_NEVER && i <= seen) << 30;
    }
    for (r = 0; r < pipe->ranks; r++) {
        search->key[pipe->stages + r] = (uint32_t)dpari_most(pipe->free[r] - at, 0);
        if (search->span) {
            search->since[r] = pipe->start[r] == DPARI_NEVER ? 0 : at - pipe->start[r];
        }
    }
    if (!search->span) {
        search->since[0] = at;
    }
    return 1;
}

/* Returns the slot of the table that has the key (*found is 1), or the slot in which to store it.
 */
static char *dpari_exact_slot(const dpari_search *search, uint32_t *name, int *found)
{
    uint64_t h = UINT64_C(0x9E3779B97F4A7C15);
    char *slot = NULL, *home = NULL;
    int32_t k, i;
    for (k = 0; k < search->keys; k++) {
        h = (h ^ search->key[k]) * UINT64_C(0xD6E8FEB86659FD93);
        h ^= h >> 29;
    }
    *name = (uint32_t)h | 1;
    *found = 0;
    for (i = 0; i < DPARI_PROBES; i++) {
        const uint32_t *has;
        slot = search->table + ((int64_t)((h >> 33) % (uint64_t)search->entries) + i) %
                                   search->entries * (int64_t)search->size;
        has = (const uint32_t *)(const void *)(slot + 8 * search->sinces);
        if (has[0] == *name) {
            k = 0;
            while (k < search->keys && has[k + 1] == search->key[k]) {
                k++;
            }
            if (k == search->keys) {
                *found = 1;
                return slot;
            }
        }
        if (has[0] == 0) {
            return slot;
        }
        home = home == NULL ? slot : home;
    }
    return home;
}

/* True if this state was searched to the end before, with times that are not larger. */
static int dpari_exact_known(dpari_search *search, int64_t at)
{
    uint32_t name;
    int found = 0, k;
    const int64_t *since;
    if (!dpari_exact_key(search, at)) {
        return 0;
    }
    since = (const int64_t *)(const void *)dpari_exact_slot(search, &name, &found);
    for (k = 0; found && k < search->sinces; k++) {
        found = since[k] <= search->since[k];
    }
    return found;
}

/* Stores a state that was searched to the end. */
static void dpari_exact_keep(dpari_search *search, int64_t at)
{
    uint32_t name, *has;
    int found, k;
    int64_t *since;
    if (!dpari_exact_key(search, at)) {
        return;
    }
    since = (int64_t *)(void *)dpari_exact_slot(search, &name, &found);
    has = (uint32_t *)(void *)(since + search->sinces);
    has[0] = name;
    for (k = 0; k < search->keys; k++) {
        has[k + 1] = search->key[k];
    }
    for (k = 0; k < search->sinces; k++) {
        since[k] = search->since[k];
    }
}

/* Finds the rank that decides next, and the time. Returns 0 if there is none. */
static int dpari_exact_turn(const dpari_search *search, int32_t *rank, int64_t *at)
{
    int32_t r;
    *at = INT64_MAX;
    for (r = 0; r < search->q.ranks; r++) {
        int64_t wake = dpari_exact_wake(search, r);
        if (wake < *at) {
            *at = wake;
            *rank = r;
        }
    }
    return *at != INT64_MAX;
}

/* True if an earlier stage of the rank has a W with the same time and bytes, so that this one need
 * not be tried. */
static int dpari_exact_twin(const dpari_search *search, int32_t s)
{
    const dpari_pipe *pipe = &search->q;
    int32_t i, r = pipe->rank[s];
    for (i = pipe->first[r]; pipe->list[i] < s; i++) {
        int32_t o = pipe->list[i];
        if (dpari_pipe_may(pipe, DPARI_W, o) && pipe->time[DPARI_W][o] == pipe->time[DPARI_W][s] &&
            pipe->hold[DPARI_W][o] == pipe->hold[DPARI_W][s]) {
            return 1;
        }
    }
    return 0;
}

/* True if it may help that the rank waits. It cannot help if no input can arrive, or if an action
 * that takes no memory ends before the next arrival. Without a cap an F is such an action, too,
 * except for the span, because an early F may start the clock of another rank. */
static int dpari_exact_may_wait(const dpari_search *search, const dpari_place *place)
{
    const dpari_pipe *pipe = &search->q;
    int32_t i, kind;
    if (place->arrives == INT64_MAX) {
        return 0;
    }
    for (i = pipe->first[place->rank]; i < pipe->first[place->rank + 1]; i++) {
        for (kind = DPARI_F; kind <= DPARI_W; kind++) {
            int32_t s = pipe->list[i];
            if ((kind != DPARI_F || (pipe->cap[place->rank] == INT64_MAX && !search->span)) &&
                dpari_exact_ready(search, kind, s, place->at) &&
                pipe->time[kind][s] <= place->arrives - place->at) {
                return 0;
            }
        }
    }
    return 1;
}

/* Sets the next alternative of a decision: the I of the rank's stages, then F, then W, each from
 * the last stage to the first, and finally waiting. Returns 0 if there is none left. */
static int dpari_exact_choose(dpari_search *search, dpari_place *place)
{
    static const int order[] = {DPARI_I, DPARI_F, DPARI_W};
    const dpari_pipe *pipe = &search->q;
    int32_t first = pipe->first[place->rank], count = pipe->first[place->rank + 1] - first;
    for (; place->choice < 3 * count; place->choice++) {
        place->kind = order[place->choice / count];
        place->stage = pipe->list[first + count - 1 - place->choice % count];
        if (dpari_exact_ready(search, place->kind, place->stage, place->at) &&
            !(place->kind == DPARI_W && dpari_exact_twin(search, place->stage))) {
            place->choice++;
            return 1;
        }
    }
    place->kind = DPARI_WAIT;
    return place->choice++ == 3 * count && dpari_exact_may_wait(search, place);
}

/* Carries out a decision, and keeps the values that dpari_exact_undo needs. */
static void dpari_exact_do(dpari_search *search, dpari_place *place)
{
    dpari_pipe *pipe = &search->q;
    place->free = pipe->free[place->rank];
    place->seen = search->seen[place->rank];
    place->start = pipe->start[place->rank];
    if (place->kind == DPARI_WAIT) {
        search->seen[place->rank] = place->at;
    } else {
        dpari_pipe_put(pipe, place->kind, place->stage);
        search->seen[place->rank] = DPARI_NEVER;
        search->actions++;
    }
}

static void dpari_exact_undo(dpari_search *search, const dpari_place *place)
{
    dpari_pipe *pipe = &search->q;
    pipe->free[place->rank] = place->free;
    search->seen[place->rank] = place->seen;
    pipe->start[place->rank] = place->start;
    if (place->kind != DPARI_WAIT) {
        pipe->done[place->kind][place->stage]--;
        pipe->count[place->rank]--;
        pipe->held[place->rank] -= pipe->hold[place->kind][place->stage];
        search->actions--;
    }
}

/* Called when a better schedule is complete. Runs its decisions once more, which writes the actions
 * to `schedule`. */
static void dpari_exact_write(dpari_search *search, dpar_schedule *schedule,
                              dpar_schedule_optimize_result *result)
{
    dpari_pipe *pipe = &search->q;
    int64_t i;
    dpari_pipe_measure(pipe, &result->makespan, &result->span);
    search->best = search->span ? result->span : result->makespan;
    dpari_pipe_open(pipe, schedule);
    dpari_pipe_reset(pipe);
    for (i = 0; i < search->depth; i++) {
        if (search->place[i].kind != DPARI_WAIT) {
            dpari_pipe_put(pipe, search->place[i].kind, search->place[i].stage);
        }
    }
    pipe->action = NULL;
}

/* Returns the earliest time after `at` at which an input can arrive at a rank, or INT64_MAX if none
 * can. Reads pipe->next, which dpari_exact_bound computed. */
static int64_t dpari_exact_next(const dpari_search *search, int32_t r, int64_t at)
{
    const dpari_pipe *pipe = &search->q;
    int64_t next = INT64_MAX;
    int32_t i, kind;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        for (kind = DPARI_F; kind <= DPARI_I; kind++) {
            int32_t s = pipe->list[i];
            if (dpari_pipe_may(pipe, kind, s) && pipe->next[kind][s] > at) {
                next = dpari_least(next, pipe->next[kind][s]);
            }
        }
    }
    return next;
}

/* Enters the next state of the path. Returns 0 if it cannot lead to a better schedule. */
static int dpari_exact_enter(dpari_search *search, const dpar_schedule_optimize_desc *job,
                             dpar_schedule *schedule, dpar_schedule_optimize_result *result)
{
    dpari_place *place = &search->place[search->depth];
    search->nodes++;
    if (dpari_exact_bound(search) >= search->best) {
        return 0;
    }
    if (search->actions == dpari_pipe_actions(job)) {
        dpari_exact_write(search, schedule, result);
        return 0;
    }
    if (!dpari_exact_turn(search, &place->rank, &place->at) ||
        dpari_exact_known(search, place->at)) {
        return 0;
    }
    place->choice = 0;
    place->arrives = dpari_exact_next(search, place->rank, place->at);
    return 1;
}

/* Searches depth-first. Returns 0 if everything was searched or the bound was reached, or 1 if the
 * nodes were used up. */
static int dpari_exact_walk(dpari_search *search, const dpar_schedule_optimize_desc *job,
                            dpar_schedule *schedule, dpar_schedule_optimize_result *result)
{
    int more = dpari_exact_enter(search, job, schedule, result);
    while (more && search->best > search->bound) {
        dpari_place *place = &search->place[search->depth];
        if (dpari_exact_choose(search, place)) {
            if (search->nodes >= search->most) {
                return 1;
            }
            dpari_exact_do(search, place);
            search->depth++;
            if (!dpari_exact_enter(search, job, schedule, result)) {
                dpari_exact_undo(search, &search->place[--search->depth]);
            }
            continue;
        }
        dpari_exact_keep(search, place->at);
        if (search->depth == 0) {
            return 0;
        }
        dpari_exact_undo(search, &search->place[--search->depth]);
    }
    return 0;
}

/* Returns the most decisions on a path. Between two actions a rank waits at most once for the F and
 * once for the I of each of its stages, and once more. */
static int64_t dpari_exact_depth(const dpar_schedule_optimize_desc *job)
{
    return (dpari_pipe_actions(job) + job->ranks) * (2 * job->stages + 2);
}

/* Places the struct and its arrays in mem. The table gets the rest of the memory. */
static dpari_search *dpari_exact_arrange(const dpar_schedule_optimize_desc *job, void *mem,
                                         int64_t bytes)
{
    dpari_search *search = (dpari_search *)mem;
    char *at = dpari_pipe_arrange(&search->q, job, search + 1), *end = (char *)mem + bytes;
    int32_t r;
    search->span = job->objective == DPAR_OBJECTIVE_SPAN;
    search->sinces = search->span ? job->ranks : 1;
    search->keys = job->stages + 3 * job->ranks;
    search->size = 8 * search->sinces + 8 * ((search->keys + 2) / 2);
    search->seen = dpari_pipe_wide(&at, job->ranks);
    search->since = dpari_pipe_wide(&at, search->sinces);
    search->place = (dpari_place *)(void *)at;
    at += (int64_t)sizeof(dpari_place) * dpari_exact_depth(job);
    search->key = (uint32_t *)(void *)at;
    at += 8 * ((search->keys + 1) / 2);
    search->table = at;
    search->entries = dpari_least((end - at) / search->size, INT32_MAX);
    dpari_zero(search->table, (size_t)(search->entries * search->size));
    for (r = 0; r < job->ranks; r++) {
        search->seen[r] = DPARI_NEVER;
    }
    search->depth = search->actions = search->nodes = 0;
    return search;
}

static dpar_status dpari_exact_check(const dpar_schedule_optimize_desc *job, dpar_why *why)
{
    dpar_status st = dpari_pipe_check(job, why);
    int32_t s;
    if (st != DPAR_OK) {
        return st;
    }
    if (job->ranks > DPARI_EXACT_RANKS || job->stages > DPARI_EXACT_STAGES ||
        job->micro_batches > DPARI_EXACT_MICROS) {
        return dpari_wrong(
            why,
            "%d ranks, %d stages and %d micro-batches; an exact search allows up to 12, 24 and 255",
            job->ranks, job->stages, job->micro_batches);
    }
    for (s = 0; s < job->stages; s++) {
        int64_t f = dpari_each_at(&job->times->forward, s), i = dpari_pipe_back(job, s);
        int64_t w = dpari_job_weight(job, s), lag = dpari_job_lag(job, s);
        if (f < 1 || i < 1 || dpari_most(f, dpari_most(i, w)) > INT32_MAX || lag > INT32_MAX) {
            return dpari_wrong(
                why,
                "stage %d: F takes %ld and I %ld; an exact search allows 1 to 2^31 - 1, and 0 to "
                "2^31 - 1 for W and messages",
                s, f, i);
        }
    }
    return DPAR_OK;
}

DPARI_INTERNAL int64_t dpari_exact_bytes(const dpar_schedule_optimize_desc *job, int64_t entries)
{
    int64_t keys, sinces;
    if (entries < 1 || entries > (INT64_C(1) << 31) || dpari_exact_check(job, NULL) != DPAR_OK) {
        return -1;
    }
    keys = job->stages + 3 * (int64_t)job->ranks;
    sinces = job->objective == DPAR_OBJECTIVE_SPAN ? job->ranks : 1;
    return (int64_t)sizeof(dpari_search) + dpari_pipe_bytes(job) + 8 * (job->ranks + sinces) +
           (int64_t)sizeof(dpari_place) * dpari_exact_depth(job) + 8 * ((keys + 1) / 2) +
           entries * (8 * sinces + 8 * ((keys + 2) / 2));
}

DPARI_INTERNAL dpar_status dpari_exact_search(const dpar_schedule_optimize_desc *job, int64_t nodes,
                                              int64_t known, dpar_schedule *schedule,
                                              dpar_schedule_optimize_result *result, void *mem,
                                              int64_t bytes, dpar_why *why)
{
    dpari_search *search;
    dpar_schedule_optimize_result got;
    dpar_status st = dpari_exact_check(job, why);
    int more;
    if (st == DPAR_OK && (nodes < 0 || known < 0)) {
        st = dpari_wrong(why, "nodes=%ld and known=%ld must be 0 or more", nodes, known);
    }
    if (st == DPAR_OK && (schedule->ranks != job->ranks || schedule->stages != job->stages)) {
        st = dpari_wrong(why, "the schedule has %d ranks and %d stages, the job has %d and %d",
                         schedule->ranks, schedule->stages, job->ranks, job->stages);
    }
    if (st == DPAR_OK && bytes < dpari_exact_bytes(job, 1)) {
        st = dpari_say(DPAR_E_ROOM, why, "the search needs %ld bytes or more, got %ld",
                       dpari_exact_bytes(job, 1), bytes);
    }
    if (st != DPAR_OK) {
        return st;
    }
    dpari_zero(&got, sizeof(got));
    search = dpari_exact_arrange(job, mem, bytes);
    search->most = nodes;
    search->best = known > 0 ? known : INT64_MAX;
    search->bound = dpari_pipe_bound(job);
    more = dpari_exact_walk(search, job, schedule, &got);
    got.bound = more ? search->bound : search->best;
    got.nodes = search->nodes;
    *result = got;
    return more ? DPAR_MORE : DPAR_OK;
}
