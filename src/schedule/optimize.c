/* SPDX-License-Identifier: MIT-0 */
/* Makes a schedule for measured times. It runs many inexpensive constructions (the zero-bubble
 * heuristic, list schedules by several rules and limits, the published orders), keeps the best,
 * improves it by local search over the limits, and for tiny jobs proves or improves it with the
 * exact search of exact.c. The bound of exact.c tells when no better schedule exists. partition.c
 * calls this module for each cut.
 */
#include "optimize.h"

#include "action.h"
#include "exact.h"
#include "generate.h"
#include "needed_bytes.h"
#include "partial_schedule.h"

/* A rule is a number. 0 to 7 are the variants of the heuristic "rounds", the next 6 or 12 are list
 * schedules, and numbers from DPARI_PUBLISHED on are published orders. */
enum { DPARI_AUTO_ROUNDS = 8, DPARI_PREFERS = 3, DPARI_WEIGHTS = 2 };
enum { DPARI_PUBLISHED = 1024 };           /* added to a DPAR_SCHEDULE_x; above all lists */
#define DPARI_AUTO_WORK (INT32_C(1) << 25) /* actions that rules may try, in about two seconds */
enum { DPARI_AUTO_SEARCH = 48 }; /* most stages x micro-batches for which a search can finish */

/* A rule and the result of its schedule; rule is -1 if there is none. */
typedef struct dpari_found {
    int rule;
    int64_t makespan, span;
} dpari_found;

/* The working memory of one call. "Rounds", "lists" and "published" name the section that uses a
 * field. */
typedef struct dpari_auto {
    dpari_pipe q;
    int span;                  /* 1 if the span is the objective, 0 for the makespan */
    dpari_found found[2];      /* the best list schedule, and the best of all others */
    int64_t bound;             /* lower bound of the objective */
    int64_t work;              /* actions tried so far */
    int64_t most;              /* rounds: the largest of `idle` */
    int gap, back_first, fill; /* rounds: the three switches of the heuristic */
    int prefer, weights;       /* lists: the rule of preference */
    int32_t group;             /* lists: micro-batches that pass the chain together */
    int64_t period;            /* work of the busiest rank for one micro-batch */
    /* [ranks], lists: when the rank chooses its next action, or INT64_MAX if it waits for another
     * rank. Published: the number of actions that the rank has run. */
    int64_t *wake;
    int64_t *whole; /* [ranks], bytes of one micro-batch on all stages of the rank */
    int64_t *idle;  /* [stages], rounds: idle time of the stage's rank since its first action */
    int64_t *hold;  /* [stages], time from the start of F to the end of I if nothing waits */
    int32_t *want;  /* rounds: [stages], F to run; lists: [ranks], the kind that ran last */
    int32_t *limit; /* [stages], lists: the most micro-batches between F and I */
    int32_t *kept;  /* [stages], limits of the best list schedule */
    char *rest;     /* published: memory in which the schedule is made */
    int64_t rest_bytes;
} dpari_auto;

static int64_t dpari_auto_actions(const dpari_pipe *pipe)
{
    return (int64_t)pipe->stages * pipe->micros * (2 + pipe->split);
}

/* True if all actions have been run. */
static int dpari_auto_complete(const dpari_pipe *pipe)
{
    int64_t all = 0;
    int32_t r;
    for (r = 0; r < pipe->ranks; r++) {
        all += pipe->count[r];
    }
    return all == dpari_auto_actions(pipe);
}

/* ---- rounds: one stage per rank; in a round each stage runs one I ---------------------------- */

/* Appends an action and adds the gap before it to the rank's idle time. */
static void dpari_rounds_put(dpari_auto *search, int kind, int32_t s)
{
    dpari_pipe *pipe = &search->q;
    int32_t r = pipe->rank[s];
    int started = pipe->start[r] != DPARI_NEVER;
    int64_t free = pipe->free[r];
    dpari_pipe_put(pipe, kind, s);
    if (started) {
        search->idle[s] += pipe->free[r] - free - pipe->time[kind][s];
        search->most = dpari_most(search->most, search->idle[s]);
    }
}

/* Appends the W that fit into the gap before `arrival`. Appends one more, although it ends after
 * the gap, if the rule fills gaps or if the rest of the gap would make this rank the one with the
 * most idle time. */
static void dpari_rounds_fill(dpari_auto *search, int32_t s, int64_t arrival)
{
    dpari_pipe *pipe = &search->q;
    const int64_t *free = &pipe->free[pipe->rank[s]];
    while (dpari_pipe_may(pipe, DPARI_W, s) && *free + pipe->time[DPARI_W][s] <= arrival) {
        dpari_rounds_put(search, DPARI_W, s);
    }
    if (dpari_pipe_may(pipe, DPARI_W, s) && *free < arrival &&
        (search->fill || arrival - *free > search->most - search->idle[s])) {
        dpari_rounds_put(search, DPARI_W, s);
    }
}

/* Sets search->want to the number of F that each stage runs between its first F and its first I.
 * The first loop counts the F that fit before the I can start, from the last stage to the first.
 * The second loop makes each stage run fewer F than the stage before it. */
static void dpari_rounds_ahead(dpari_auto *search)
{
    dpari_pipe *pipe = &search->q;
    int64_t back = 0; /* when the first I of the next stage ends, on that stage */
    int32_t s;
    for (s = pipe->stages - 1; s >= 0; s--) {
        int32_t r = pipe->rank[s];
        int64_t at = pipe->free[r], held = pipe->held[r], f = pipe->time[DPARI_F][s];
        search->want[s] = 0;
        back = s == pipe->stages - 1 ? at : back + pipe->lag[s];
        while (s < pipe->stages - 1 && 1 + search->want[s] < pipe->micros &&
               pipe->hold[DPARI_F][s] <= pipe->cap[r] - held &&
               (search->gap ? at + f <= back : at < back)) {
            at += f;
            held += pipe->hold[DPARI_F][s];
            search->want[s]++;
        }
        back = dpari_most(at, back) + pipe->time[DPARI_I][s];
    }
    for (s = 1; s < pipe->stages; s++) {
        if (search->want[s] > search->want[s - 1] ||
            (search->want[s] == search->want[s - 1] && 1 + search->want[s] < pipe->micros)) {
            search->want[s] = (int32_t)dpari_most(search->want[s - 1] - 1, 0);
        }
    }
}

/* Appends the warm-up: the first F of all stages, the F of dpari_rounds_ahead, and the first I. */
static void dpari_rounds_begin(dpari_auto *search)
{
    dpari_pipe *pipe = &search->q;
    int32_t s;
    search->most = 0;
    for (s = 0; s < pipe->stages; s++) {
        search->idle[s] = 0;
        dpari_rounds_put(search, DPARI_F, s);
    }
    dpari_rounds_ahead(search);
    for (s = 0; s < pipe->stages; s++) {
        for (; search->want[s] > 0; search->want[s]--) {
            dpari_rounds_put(search, DPARI_F, s);
        }
    }
    for (s = pipe->stages - 1; s >= 0; s--) {
        dpari_rounds_put(search, DPARI_I, s);
    }
}

/* True if the stage may run its next F in this round. With back_first it may not if it is two or
 * more F ahead of the next stage and this F would delay its next I. */
static int dpari_rounds_wants(const dpari_auto *search, int32_t s)
{
    const dpari_pipe *pipe = &search->q;
    int64_t free = pipe->free[pipe->rank[s]], held = pipe->held[pipe->rank[s]], next, work = 0;
    if (pipe->done[DPARI_F][s] >= pipe->micros) {
        return 0;
    }
    if (!search->back_first || s + 1 == pipe->stages ||
        pipe->done[DPARI_F][s] < pipe->done[DPARI_F][s + 1] + 2) {
        return 1;
    }
    next = pipe->free[pipe->rank[s + 1]] + pipe->time[DPARI_F][s + 1] + pipe->time[DPARI_I][s + 1] +
           pipe->lag[s];
    if (free >= next) {
        return 0;
    }
    while (pipe->hold[DPARI_F][s] >
           pipe->cap[pipe->rank[s]] - held) { /* see dpari_rounds_forward */
        held += pipe->hold[DPARI_W][s];
        work += pipe->time[DPARI_W][s];
    }
    return free + pipe->time[DPARI_F][s] + work <= next ||
           next - free > search->most - search->idle[s];
}

/* Appends an F for each stage that may run one, after the W that free enough memory for it.
 *
 * The input of the F exists: no stage has run more F than the stage before it, and if both have run
 * equally many, the stage before has just run one. Once the W of all I have run, there is enough
 * memory, because no more micro-batches are in flight than before the first I.
 */
static void dpari_rounds_forward(dpari_auto *search)
{
    dpari_pipe *pipe = &search->q;
    int32_t s;
    for (s = 0; s < pipe->stages; s++) {
        search->want[s] = dpari_rounds_wants(search, s);
    }
    for (s = pipe->stages - 2; s >= 0; s--) {
        search->want[s] = search->want[s] && search->want[s + 1];
    }
    for (s = 0; s < pipe->stages; s++) {
        if (!search->want[s]) {
            continue;
        }
        while (!dpari_pipe_may(pipe, DPARI_F, s)) {
            dpari_rounds_put(search, DPARI_W, s);
        }
        dpari_rounds_fill(search, s, dpari_pipe_arrival(pipe, DPARI_F, s));
        dpari_rounds_put(search, DPARI_F, s);
    }
}

/* Runs the heuristic of sail-sg's zero-bubble scheduler (Qi 2023), with the bits of `rule` as its
 * switches. Always completes the schedule, and returns 1. */
static int dpari_rounds_run(dpari_auto *search, int rule)
{
    dpari_pipe *pipe = &search->q;
    int32_t round, s;
    search->gap = rule & 1;
    search->back_first = rule >> 1 & 1;
    search->fill = rule >> 2 & 1;
    dpari_rounds_begin(search);
    for (round = 1; round < pipe->micros; round++) {
        dpari_rounds_forward(search);
        for (s = pipe->stages - 1; s >= 0; s--) {
            if (s + 1 < pipe->stages) {
                dpari_rounds_fill(search, s, dpari_pipe_arrival(pipe, DPARI_I, s));
            }
            while (s == 0 && pipe->done[DPARI_F][0] == pipe->micros &&
                   dpari_pipe_may(pipe, DPARI_W, 0)) {
                dpari_rounds_put(search, DPARI_W, 0);
            }
            dpari_rounds_put(search, DPARI_I, s);
        }
    }
    for (s = 0; s < pipe->stages; s++) {
        while (dpari_pipe_may(pipe, DPARI_W, s)) {
            dpari_rounds_put(search, DPARI_W, s);
        }
    }
    return 1;
}

/* ---- lists: any map; a free rank takes the best action that is ready ------------------------- */

/* prefer: which of F and I runs first if both are ready; IN_TURN alternates. */
enum { DPARI_BACK, DPARI_FORTH, DPARI_IN_TURN };
/* weights: a W runs if no F or I is ready; with FITS only if it also ends before the next input
 * arrives. */
enum { DPARI_W_IDLE, DPARI_W_FITS };

/* True if the stage's next F may start. For the oldest micro-batch that has not passed all stages
 * it is enough that its own activation fits. All other micro-batches must also leave free the
 * memory that one micro-batch takes on all stages of this rank. Therefore the oldest one can always
 * finish, which prevents deadlock. */
static int dpari_list_admits(const dpari_auto *search, int32_t s)
{
    const dpari_pipe *pipe = &search->q;
    int32_t r = pipe->rank[s], oldest = pipe->done[DPARI_F][pipe->stages - 1], i;
    int64_t young = pipe->always[r];
    if (!dpari_pipe_may(pipe, DPARI_F, s)) {
        return 0;
    }
    if (pipe->done[DPARI_F][s] <= oldest) {
        return 1;
    }
    if (pipe->done[DPARI_F][s] - pipe->done[DPARI_I][s] >= search->limit[s]) {
        return 0;
    }
    if (pipe->first[r + 1] - pipe->first[r] == 1 || pipe->cap[r] == INT64_MAX) {
        return 1;
    }
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        int32_t more = pipe->done[DPARI_F][pipe->list[i]] - oldest - 1;
        young += more > 0 ? more * pipe->hold[DPARI_F][pipe->list[i]] : 0;
    }
    return pipe->hold[DPARI_F][s] <= pipe->cap[r] - search->whole[r] - young;
}

/* Returns the stage of rank r whose F or I should run at time `at`, or -1 if none is ready. Earlier
 * groups of micro-batches come first. Within a group F prefers the first stage of the rank and I
 * the last one. Lowers *soon to the next known arrival. */
static int32_t dpari_list_head(const dpari_auto *search, int kind, int32_t r, int64_t at,
                               int64_t *soon)
{
    const dpari_pipe *pipe = &search->q;
    int32_t n = pipe->first[r + 1] - pipe->first[r], i, best = -1, lot = 0;
    for (i = 0; i < n; i++) {
        int32_t s = pipe->list[pipe->first[r] + (kind == DPARI_F ? i : n - 1 - i)];
        int32_t group = pipe->done[kind][s] / search->group;
        int64_t arrival = dpari_pipe_arrival(pipe, kind, s);
        if (arrival == DPARI_NEVER || (kind == DPARI_F && !dpari_list_admits(search, s))) {
            continue;
        }
        if (arrival > at) {
            *soon = dpari_least(*soon, arrival);
        } else if (best < 0 || group < lot) {
            best = s;
            lot = group;
        }
    }
    return best;
}

/* Returns the stage of rank r whose next W has the lowest micro-batch, or -1 if no W is ready. */
static int32_t dpari_list_weight(const dpari_pipe *pipe, int32_t r)
{
    int32_t i, best = -1;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        int32_t s = pipe->list[i];
        if (dpari_pipe_may(pipe, DPARI_W, s) &&
            (best < 0 || pipe->done[DPARI_W][s] <= pipe->done[DPARI_W][best])) {
            best = s;
        }
    }
    return best;
}

/* True if the input of an F of rank r has arrived but its activation does not fit. */
static int dpari_list_blocked(const dpari_auto *search, int32_t r, int64_t at)
{
    const dpari_pipe *pipe = &search->q;
    int32_t i;
    for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
        int32_t s = pipe->list[i];
        int64_t arrival = dpari_pipe_arrival(pipe, DPARI_F, s);
        if (pipe->done[DPARI_F][s] < pipe->micros && arrival != DPARI_NEVER && arrival <= at &&
            !dpari_pipe_may(pipe, DPARI_F, s)) {
            return 1;
        }
    }
    return 0;
}

/* True if a W whose time is `takes` should run although no F is ready: always, unless the rule only
 * runs a W that ends before the next arrival. If memory blocks an F, a W runs in any case, because
 * it frees memory. */
static int dpari_list_fills(const dpari_auto *search, int32_t r, int64_t at, int64_t soon,
                            int64_t takes)
{
    return search->weights != DPARI_W_FITS || soon == INT64_MAX || soon - at >= takes ||
           dpari_list_blocked(search, r, at);
}

/* Chooses what rank r runs at time `at`. Returns the kind and sets *stage, or returns -1 if the
 * rank waits until *soon. */
static int dpari_list_choose(const dpari_auto *search, int32_t r, int64_t at, int32_t *stage,
                             int64_t *soon)
{
    const dpari_pipe *pipe = &search->q;
    int64_t soon_i = INT64_MAX;
    int32_t i, f, w = dpari_list_weight(pipe, r);
    int forth = search->prefer == DPARI_FORTH ||
                (search->prefer == DPARI_IN_TURN && search->want[r] != DPARI_F);
    *soon = INT64_MAX;
    i = dpari_list_head(search, DPARI_I, r, at, &soon_i);
    f = dpari_list_head(search, DPARI_F, r, at, soon);
    *soon = dpari_least(*soon, soon_i);
    if (i >= 0 && !(f >= 0 && forth)) {
        *stage = i;
        return DPARI_I;
    }
    *stage = w;
    if (w >= 0 && f < 0 && dpari_list_fills(search, r, at, *soon, pipe->time[DPARI_W][w])) {
        return DPARI_W;
    }
    *stage = f;
    return f >= 0 ? DPARI_F : -1;
}

/* Makes a rank choose its next action at time `at`, or once it is free if that is later. */
static void dpari_list_wake(dpari_auto *search, int32_t r, int64_t at)
{
    search->wake[r] = dpari_least(search->wake[r], dpari_most(at, search->q.free[r]));
}

/* Runs an action and wakes the ranks that it may enable. */
static void dpari_list_do(dpari_auto *search, int kind, int32_t s, int64_t at)
{
    dpari_pipe *pipe = &search->q;
    int32_t r = pipe->rank[s], to = kind == DPARI_F ? s + 1 : s - 1, k;
    dpari_pipe_put(pipe, kind, s);
    search->want[r] = kind;
    search->wake[r] = pipe->free[r];
    if (kind != DPARI_W && to >= 0 && to < pipe->stages) {
        dpari_list_wake(search, pipe->rank[to],
                        pipe->free[r] + pipe->lag[kind == DPARI_F ? s : to]);
    }
    if (kind == DPARI_F && to == pipe->stages && pipe->stages > pipe->ranks) {
        for (k = 0; k < pipe->ranks; k++) { /* another micro-batch is now the oldest */
            dpari_list_wake(search, k, at);
        }
    }
}

/* Sets search->limit, the most micro-batches that a stage may have between F and I. A stage needs
 * as many as the busiest rank completes in the time from the stage's F to its I. The limit is
 * `fourths` / 4 of that number; 0 means no limit. SHARE divides the cap among the stages of a rank
 * in proportion to that time, and EVEN divides it equally. */
enum { DPARI_LIMIT_SHARE = -1, DPARI_LIMIT_EVEN = -2 };
DPARI_STATIC_NOINLINE void dpari_list_limits(dpari_auto *search, int fourths)
{
    const dpari_pipe *pipe = &search->q;
    int64_t unit = 1 + (search->hold[0] >> 40); /* hold[0] is the longest, so nothing overflows */
    int32_t r, i;
    for (r = 0; r < pipe->ranks; r++) {
        int64_t sum = 0;
        for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
            sum += search->hold[pipe->list[i]] / unit;
        }
        for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
            int32_t s = pipe->list[i];
            int64_t n = pipe->micros, fit = n;
            if (pipe->hold[DPARI_F][s] > 0) {
                fit = dpari_least((pipe->cap[r] - pipe->always[r]) / pipe->hold[DPARI_F][s], n);
            }
            if (fourths == DPARI_LIMIT_EVEN) {
                n = fit / (pipe->first[r + 1] - pipe->first[r]);
            } else if (fourths == DPARI_LIMIT_SHARE && sum > 0) {
                n = fit * (search->hold[s] / unit) / sum;
            } else if (fourths > 0 &&
                       search->period > 0) { /* hold x 16 overflows only with 1 micro-batch */
                n = (int64_t)(((uint64_t)search->hold[s] * (uint64_t)fourths +
                               (uint64_t)(4 * search->period - 1)) /
                              (uint64_t)(4 * search->period));
            }
            search->limit[s] = (int32_t)dpari_most(1, dpari_least(n, pipe->micros));
        }
    }
}

/* Makes a list schedule. The rule encodes prefer, weights and group as digits. Ranks act in the
 * order of their times. Returns 1 if all actions were run. */
static int dpari_list_run(dpari_auto *search, int rule)
{
    dpari_pipe *pipe = &search->q;
    int32_t r, stage = 0;
    search->prefer = rule % DPARI_PREFERS;
    search->weights = rule / DPARI_PREFERS % DPARI_WEIGHTS;
    rule /= DPARI_PREFERS * DPARI_WEIGHTS;
    search->group = rule == 0 ? pipe->ranks : 1;
    for (r = 0; r < pipe->ranks; r++) {
        search->wake[r] = 0;
        search->want[r] = DPARI_I;
    }
    for (;;) {
        int64_t at = INT64_MAX, soon;
        int32_t next = 0;
        int kind;
        for (r = 0; r < pipe->ranks; r++) {
            if (search->wake[r] < at) {
                at = search->wake[r];
                next = r;
            }
        }
        if (at == INT64_MAX) {
            break;
        }
        kind = dpari_list_choose(search, next, at, &stage, &soon);
        search->wake[next] = soon;
        if (kind >= 0) {
            dpari_list_do(search, kind, stage, at);
        }
    }
    return dpari_auto_complete(pipe);
}

/* ---- published orders ------------------------------------------------------------------------ */

/* Describes a published order for this job. dpari_auto_published checks whether it fits the job. */
static dpar_schedule_desc dpari_auto_order(const dpar_schedule_optimize_desc *job, int32_t rule)
{
    dpar_schedule_desc o;
    dpari_zero(&o, sizeof(o));
    o.rule = rule;
    o.ranks = job->ranks;
    o.micro_batches = job->micro_batches;
    o.chunks = job->stages / job->ranks;
    return o;
}

static int dpari_auto_kind(const dpar_action *action)
{
    if (action->kind == DPAR_ACTION_FORWARD) {
        return DPARI_F;
    }
    return action->kind == DPAR_ACTION_WEIGHT ? DPARI_W : DPARI_I;
}

/* Runs the rank's next action if its input is known and its memory fits. Returns 1 if it ran. */
static int dpari_auto_step(dpari_auto *search, const dpar_schedule *schedule, int32_t r)
{
    dpari_pipe *pipe = &search->q;
    const dpar_action *action = &schedule->action[schedule->begin[r] + search->wake[r]];
    int kind = dpari_auto_kind(action);
    if (schedule->begin[r] + search->wake[r] >= schedule->begin[r + 1] ||
        !dpari_pipe_may(pipe, kind, action->stage) ||
        (kind != DPARI_W && dpari_pipe_arrival(pipe, kind, action->stage) == DPARI_NEVER)) {
        return 0;
    }
    dpari_pipe_put(pipe, kind, action->stage);
    search->wake[r]++;
    return 1;
}

/* Makes a published order and runs its actions. Returns 1 if its stages and ranks are those of the
 * job and it keeps the caps. Only its order of kinds and stages is used, because all micro-batches
 * are equal. */
static int dpari_auto_published(dpari_auto *search, const dpar_schedule_optimize_desc *job,
                                int32_t rule)
{
    dpar_schedule_desc o = dpari_auto_order(job, rule);
    dpar_schedule s;
    int32_t r, i, on = 1;
    if (dpar_schedule_generate(&s, &o, search->rest, search->rest_bytes, NULL) != DPAR_OK ||
        s.stages != job->stages || s.chain != s.stages || s.slices != 1 ||
        s.begin[s.ranks] != dpari_auto_actions(&search->q)) {
        return 0;
    }
    for (i = 0; i < s.stages; i++) {
        on = on && s.rank_of[i] == search->q.rank[i];
    }
    dpari_zero(search->wake, 8 * (size_t)s.ranks);
    while (on) {
        on = 0;
        for (r = 0; r < s.ranks; r++) {
            while (dpari_auto_step(search, &s, r)) {
                on = 1;
            }
        }
    }
    return dpari_auto_complete(&search->q);
}

/* ---- the best schedule ----------------------------------------------------------------------- */

/* Makes the schedule of a rule. Returns 1 if it is complete. */
static int dpari_auto_run(dpari_auto *search, const dpar_schedule_optimize_desc *job, int rule)
{
    dpari_pipe_reset(&search->q);
    if (rule >= DPARI_PUBLISHED) {
        return dpari_auto_published(search, job, rule - DPARI_PUBLISHED);
    }
    if (rule >= DPARI_AUTO_ROUNDS) {
        return dpari_list_run(search, rule - DPARI_AUTO_ROUNDS);
    }
    return dpari_rounds_run(search, rule);
}

/* True if a has the smaller objective, or the same objective and the smaller sum of makespan and
 * span. */
static int dpari_auto_better(const dpari_auto *search, const dpari_found *a, const dpari_found *b)
{
    int64_t more = search->span ? a->span - b->span : a->makespan - b->makespan;
    more = more != 0 ? more : a->makespan + a->span - b->makespan - b->span;
    return a->rule >= 0 && (b->rule < 0 || more < 0);
}

/* Runs a rule with the limits in search->limit, and keeps the rule and the limits if its schedule
 * is the best so far. Returns 1 if it is. */
static int dpari_auto_try(dpari_auto *search, const dpar_schedule_optimize_desc *job, int rule)
{
    int list = rule >= DPARI_AUTO_ROUNDS && rule < DPARI_PUBLISHED;
    dpari_found *best = &search->found[!list], got;
    int32_t s;
    search->work += dpari_auto_actions(&search->q);
    got.rule = dpari_auto_run(search, job, rule) ? rule : -1;
    dpari_pipe_measure(&search->q, &got.makespan, &got.span);
    if (!dpari_auto_better(search, &got, best)) {
        return 0;
    }
    *best = got;
    for (s = 0; s < search->q.stages && list; s++) {
        search->kept[s] = search->limit[s];
    }
    return 1;
}

/* True if a schedule has reached the bound, so that no better one exists. */
static int dpari_auto_done(const dpari_auto *search)
{
    int k, done = 0;
    for (k = 0; k < 2; k++) {
        const dpari_found *f = &search->found[k];
        done = done || (f->rule >= 0 && (search->span ? f->span : f->makespan) <= search->bound);
    }
    return done;
}

/* Tries all rules. Stops when the bound is reached, or when DPARI_AUTO_WORK actions were tried and
 * there is a list schedule. */
static void dpari_auto_rules(dpari_auto *search, const dpar_schedule_optimize_desc *job)
{
    static const int fourths[] = {0, 4, 6, 5, 8, 12, 16, DPARI_LIMIT_SHARE, DPARI_LIMIT_EVEN};
    int groups = job->stages > job->ranks ? 2 : 1;
    int lists = DPARI_PREFERS * DPARI_WEIGHTS * groups, rule, k;
    for (rule = 0; rule < DPARI_AUTO_ROUNDS && job->stages == job->ranks; rule++) {
        (void)dpari_auto_try(search, job, rule);
    }
    for (rule = 1; rule < DPAR_SCHEDULE_END && !dpari_auto_done(search); rule++) {
        (void)dpari_auto_try(search, job, DPARI_PUBLISHED + rule);
    }
    for (rule = 0; rule < lists; rule++) {
        for (k = 0; k < 9 && !dpari_auto_done(search) &&
                    (search->work < DPARI_AUTO_WORK || search->found[0].rule < 0);
             k++) {
            dpari_list_limits(search, fourths[k]);
            (void)dpari_auto_try(search, job, DPARI_AUTO_ROUNDS + rule);
        }
    }
}

/* Improves the best list schedule by lowering and raising the limit of one stage after another by
 * 1. Stops after a whole pass without improvement, or when `work` more actions were tried. */
static void dpari_auto_climb(dpari_auto *search, const dpar_schedule_optimize_desc *job,
                             int64_t work)
{
    int32_t s = 0, i, same = 0, up, better;
    work = work < INT64_MAX - search->work ? work + search->work : INT64_MAX;
    while (search->found[0].rule >= 0 && same < job->stages && search->work < work &&
           !dpari_auto_done(search)) {
        better = 0;
        for (up = -1; up <= 1; up += 2) {
            for (i = 0; i < job->stages; i++) {
                search->limit[i] = search->kept[i];
            }
            search->limit[s] = (int32_t)dpari_most(1, search->kept[s] + up);
            better |= dpari_auto_try(search, job, search->found[0].rule);
        }
        same = better ? 0 : same + 1;
        s = (s + 1) % job->stages;
    }
}

/* Returns the most bytes that a published order of this job needs. */
static int64_t dpari_auto_published_bytes(const dpar_schedule_optimize_desc *job)
{
    int64_t most = 0;
    int32_t rule;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        dpar_schedule_desc o = dpari_auto_order(job, rule);
        most = dpari_most(most, dpari_schedule_generate_bytes(&o, NULL));
    }
    return most;
}

/* Returns the bytes of the resulting schedule, which is at the front of the caller's memory. */
static int64_t dpari_auto_schedule_bytes(const dpar_schedule_optimize_desc *job)
{
    return dpari_schedule_bytes(job->ranks, job->stages, dpari_pipe_actions(job));
}

DPARI_INTERNAL int64_t dpari_schedule_auto_bytes(const dpar_schedule_optimize_desc *job,
                                                 dpar_why *why)
{
    int64_t s = job->stages, p = job->ranks;
    if (dpari_pipe_check(job, why) != DPAR_OK) {
        return -1;
    }
    return dpari_auto_schedule_bytes(job) + dpari_whole_words((int64_t)sizeof(dpari_auto)) +
           dpari_pipe_bytes(job) + 8 * (2 * p + 2 * s) + 8 * ((3 * s + 1) / 2) +
           dpari_auto_published_bytes(job);
}

/* Places the struct and its arrays in mem, because the struct is large for a stack. Sets the fields
 * that do not change between rules. */
static dpari_auto *dpari_auto_arrange(const dpar_schedule_optimize_desc *job, void *mem)
{
    dpari_auto *search = (dpari_auto *)mem;
    char *at = dpari_pipe_arrange(&search->q, job, search + 1);
    const dpari_pipe *pipe = &search->q;
    int32_t r, i, s;
    search->wake = dpari_pipe_wide(&at, job->ranks);
    search->whole = dpari_pipe_wide(&at, job->ranks);
    search->idle = dpari_pipe_wide(&at, job->stages);
    search->hold = dpari_pipe_wide(&at, job->stages);
    search->want = dpari_pipe_narrow(&at, job->stages);
    search->limit = dpari_pipe_narrow(&at, job->stages);
    search->kept = dpari_pipe_narrow(&at, job->stages);
    search->rest = at + 4 * (3 * (int64_t)job->stages % 2);
    search->rest_bytes = dpari_auto_published_bytes(job);
    search->span = job->objective == DPAR_OBJECTIVE_SPAN;
    search->found[0].rule = search->found[1].rule = -1;
    search->work = search->period = 0;
    search->bound = dpari_pipe_bound(job);
    for (s = job->stages - 1; s >= 0; s--) {
        search->hold[s] = pipe->time[DPARI_F][s] + pipe->time[DPARI_I][s] + 2 * pipe->lag[s] +
                          (s + 1 < job->stages ? search->hold[s + 1] : 0);
        search->limit[s] = job->micro_batches;
    }
    for (r = 0; r < job->ranks; r++) {
        int64_t work = 0;
        search->whole[r] = 0;
        for (i = pipe->first[r]; i < pipe->first[r + 1]; i++) {
            s = pipe->list[i];
            search->whole[r] += pipe->hold[DPARI_F][s];
            work += pipe->time[DPARI_F][s] + pipe->time[DPARI_I][s] + pipe->time[DPARI_W][s];
        }
        search->period = dpari_most(search->period, work);
    }
    return search;
}

/* Runs the best rule again and writes its actions to `schedule`. */
static void dpari_auto_again(dpari_auto *search, const dpar_schedule_optimize_desc *job,
                             dpar_schedule *schedule, dpar_schedule_optimize_result *result)
{
    const dpari_found *best =
        &search->found[dpari_auto_better(search, &search->found[1], &search->found[0])];
    int32_t k;
    for (k = 0; k < job->stages; k++) {
        search->limit[k] = search->kept[k];
    }
    dpari_pipe_open(&search->q, schedule);
    (void)dpari_auto_run(search, job, best->rule);
    result->makespan = best->makespan;
    result->span = best->span;
    result->bound = search->bound;
    result->nodes = 0;
}

/* Continues with the exact search if the job is small enough. */
static dpar_status dpari_auto_search(const dpar_schedule_optimize_desc *job,
                                     dpar_schedule *schedule, dpar_schedule_optimize_result *result,
                                     void *mem, int64_t bytes)
{
    dpar_schedule_optimize_result better = *result;
    int64_t known = job->objective == DPAR_OBJECTIVE_SPAN ? result->span : result->makespan;
    int64_t least;
    dpar_status st;
    if (known <= result->bound) {
        return DPAR_OK;
    }
    least = job->nodes > 0 && (int64_t)job->stages * job->micro_batches <= DPARI_AUTO_SEARCH
                ? dpari_exact_bytes(job, 1)
                : -1;
    if (least < 0 || bytes < least) {
        return DPAR_MORE;
    }
    st = dpari_exact_search(job, job->nodes, known, schedule, &better, mem, bytes, NULL);
    result->bound = better.bound;
    result->nodes = better.nodes;
    if (better.makespan > 0) {
        result->makespan = better.makespan;
        result->span = better.span;
    }
    return st;
}

DPAR_API dpar_status dpar_schedule_optimize(dpar_schedule *schedule,
                                            const dpar_schedule_optimize_desc *job,
                                            dpar_schedule_optimize_result *result, void *mem,
                                            int64_t bytes, dpar_why *why)
{
    const int64_t needed = dpari_schedule_auto_bytes(job, NULL);
    int64_t front;
    dpari_auto *search;
    dpar_schedule got;
    dpar_schedule_optimize_result best;
    char *work;
    dpar_status st = dpari_pipe_check(job, why);
    if (st == DPAR_OK && job->nodes < 0) {
        st = dpari_wrong(why, "nodes=%ld; 0 or more are allowed", job->nodes);
    }
    if (st == DPAR_OK && bytes < needed) {
        dpari_needs_bytes(why, needed);
        st = dpari_say(DPAR_E_ROOM, why, "the scheduler needs %ld bytes, got %ld", needed, bytes);
    }
    if (st == DPAR_OK) {
        st = dpari_schedule_empty(&got, job->ranks, job->stages, dpari_pipe_actions(job), mem,
                                  bytes, why);
    }
    if (st != DPAR_OK) {
        return st;
    }
    front = dpari_auto_schedule_bytes(job);
    work = (char *)mem + front;
    search = dpari_auto_arrange(job, work);
    dpari_auto_rules(search, job);
    dpari_auto_climb(search, job, job->nodes);
    dpari_auto_again(search, job, &got, &best);
    st = dpari_auto_search(job, &got, &best, work, bytes - front);
    *schedule = got;
    *result = best;
    return st;
}
