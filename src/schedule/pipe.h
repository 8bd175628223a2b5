/* SPDX-License-Identifier: MIT-0 */
/* pipe - private: a pipeline job in arrays, and a schedule of it that grows action by action.
 * exact.c, auto.c, place.c and lower.c use it. Header-only. */
#ifndef DPARI_SCHEDULE_PIPE_H
#define DPARI_SCHEDULE_PIPE_H

#include "action.h"
#include "job.h"

/* Kinds as indices of arrays. If the job does not split backwards, B is counted as I. */
enum { DPARI_F, DPARI_I, DPARI_W };
enum { DPARI_NEVER = -1 }; /* a time that is not known yet */

/* The largest job that dpar_schedule_optimize and dpar_schedule_partition take. */
enum { DPARI_OPTIMIZE_MAX_RANKS = 4096, DPARI_OPTIMIZE_MAX_STAGES = 16384 };

/* All arrays are in the caller's memory. All micro-batches are alike and each stage runs them in
 * ascending order, so that a count says which actions have run. */
typedef struct dpari_pipe {
    int32_t ranks, stages, micros, split;
    int64_t *time[3], *hold[3]; /* [stages], time and added bytes of F, I or B, and W */
    int64_t *lag;               /* [stages], time of a message between s and s + 1; 0 on one rank */
    int64_t *cap;               /* [ranks], INT64_MAX if there is no cap */
    int32_t *rank;              /* [stages] */
    /* [ranks + 1] and [stages]: the stages of rank r in ascending order are list[first[r]] to
     * list[first[r + 1] - 1] */
    int32_t *first, *list;
    /* the schedule so far */
    int32_t *done[3];       /* [stages], the number of actions of each kind */
    int64_t *end[2];        /* [stages x micros], when F, and I or B, ended */
    int64_t *free;          /* [ranks], when the rank's last action ended */
    int64_t *held;          /* [ranks], bytes that the rank holds */
    int64_t *start;         /* [ranks], when the rank's first action started, or DPARI_NEVER */
    int64_t *count;         /* [ranks], actions of the rank */
    int64_t *always;        /* [ranks], bytes that the rank holds before its first action */
    int64_t *next[2], *sum; /* [stages] and [ranks], scratch memory for bounds */
    dpar_action *action;    /* receives the actions; NULL if they are not needed */
    int64_t *begin;         /* [ranks], where a rank's actions begin in `action` */
} dpari_pipe;

/* The value of stage (or rank, or layer) i. */
DPARI_FN int64_t dpari_each_at(const dpar_stage_values *each, int64_t i)
{
    return each->each != NULL ? each->each[i] : each->all;
}

/* The rank that the job puts a stage on. */
DPARI_FN int32_t dpari_pipe_rank(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    return job->rank_of != NULL ? job->rank_of[stage]
                                : dpari_stage_rank(job->map, job->ranks, stage);
}

/* The bytes that F, I or W of a stage adds. Without hold_forward an activation counts as 1, from F
 * to W. */
DPARI_FN int64_t dpari_pipe_hold(const dpar_schedule_times *t, int kind, int32_t stage)
{
    if (t->hold_forward.each == NULL && t->hold_forward.all == 0) {
        return kind == DPARI_F ? 1 : -(kind == DPARI_W);
    }
    if (kind == DPARI_F) {
        return dpari_each_at(&t->hold_forward, stage);
    }
    return dpari_each_at(kind == DPARI_I ? &t->hold_input : &t->hold_weight, stage);
}

/* The time of B, or of I if the backward is split. A B without a time of its own takes as long as I
 * and W. */
DPARI_FN int64_t dpari_pipe_back(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    const dpar_schedule_times *t = job->times;
    int64_t whole = dpari_each_at(&t->backward, stage), input = dpari_each_at(&t->input, stage);
    if (job->split) {
        return input;
    }
    return whole > 0 ? whole : input + dpari_each_at(&t->weight, stage);
}

/* The time of a message from a stage to the next one: latency + bytes x 10^9 / bandwidth, rounded
 * up. It is computed digit by digit, because the product may exceed 64 bits. */
DPARI_FN int64_t dpari_pipe_message(const dpar_schedule_times *t, int32_t stage)
{
    int64_t bytes = dpari_each_at(&t->bytes, stage), wide = dpari_each_at(&t->bandwidth, stage);
    int64_t time, left, digit;
    if (wide <= 0) {
        return dpari_each_at(&t->latency, stage);
    }
    time = bytes / wide;
    left = bytes % wide;
    for (digit = 0; digit < 9; digit++) {
        if (time > INT64_MAX / 20) {
            return INT64_MAX / 2;
        }
        time = 10 * time + 10 * left / wide;
        left = 10 * left % wide;
    }
    time += left > 0;
    return dpari_each_at(&t->latency, stage) + time;
}

/* The DPAR_ACTION_x of a kind. */
DPARI_FN uint8_t dpari_pipe_kind(int32_t split, int kind)
{
    if (kind == DPARI_F) {
        return DPAR_ACTION_FORWARD;
    }
    if (kind == DPARI_W) {
        return DPAR_ACTION_WEIGHT;
    }
    return split ? DPAR_ACTION_INPUT : DPAR_ACTION_BACKWARD;
}

/* Empties the schedule. */
DPARI_FN void dpari_pipe_reset(dpari_pipe *q)
{
    int32_t i;
    for (i = 0; i < q->stages; i++) {
        q->done[DPARI_F][i] = q->done[DPARI_I][i] = q->done[DPARI_W][i] = 0;
    }
    for (i = 0; i < q->ranks; i++) {
        q->free[i] = q->count[i] = 0;
        q->held[i] = q->always[i];
        q->start[i] = DPARI_NEVER;
    }
}

/* When the input of the stage's next F or I arrives on its rank, or DPARI_NEVER if that is not
 * known yet. */
DPARI_FN int64_t dpari_pipe_arrival(const dpari_pipe *q, int kind, int32_t stage)
{
    int32_t k = q->done[kind][stage], from = kind == DPARI_F ? stage - 1 : stage + 1;
    int last = kind == DPARI_I && from == q->stages; /* after the loss, I needs its own F only */
    int of = last ? DPARI_F : kind;
    if (from < 0) {
        return 0;
    }
    from = last ? stage : from;
    if (q->done[of][from] <= k) {
        return DPARI_NEVER;
    }
    return q->end[of][(int64_t)from * q->micros + k] +
           (last ? 0 : q->lag[kind == DPARI_F ? from : stage]);
}

/* True if the stage has a next action of this kind and its memory fits, so that it may start once
 * its input has arrived. */
DPARI_FN int dpari_pipe_may(const dpari_pipe *q, int kind, int32_t stage)
{
    if (kind == DPARI_W) {
        return q->done[DPARI_W][stage] < q->done[DPARI_I][stage] && q->split;
    }
    if (q->done[kind][stage] >= q->micros) {
        return 0;
    }
    return kind == DPARI_I ||
           q->hold[DPARI_F][stage] <= q->cap[q->rank[stage]] - q->held[q->rank[stage]];
}

/* Appends the stage's next action of a kind, as early as possible. The arrival of its input must be
 * known. */
DPARI_FN void dpari_pipe_put(dpari_pipe *q, int kind, int32_t stage)
{
    int32_t r = q->rank[stage], k = q->done[kind][stage];
    int64_t at = q->free[r];
    if (kind != DPARI_W) {
        at = dpari_most(at, dpari_pipe_arrival(q, kind, stage));
        q->end[kind][(int64_t)stage * q->micros + k] = at + q->time[kind][stage];
    }
    if (q->action != NULL) {
        dpar_action *a = &q->action[q->begin[r] + q->count[r]];
        dpari_zero(a, sizeof(*a));
        a->kind = dpari_pipe_kind(q->split, kind);
        a->stage = (uint16_t)stage;
        a->micro_batch = (uint16_t)k;
    }
    q->done[kind][stage] = k + 1;
    q->count[r]++;
    q->start[r] = q->start[r] == DPARI_NEVER ? at : q->start[r];
    q->free[r] = at + q->time[kind][stage];
    q->held[r] += q->hold[kind][stage];
}

/* Fills rank_of and begin of s and makes dpari_pipe_put write its actions there. s must have
 * capacity for all actions. */
DPARI_FN void dpari_pipe_open(dpari_pipe *q, dpar_schedule *s)
{
    int32_t r, i;
    s->micro_batches = q->micros;
    for (i = 0; i < q->stages; i++) {
        s->rank_of[i] = (uint16_t)q->rank[i];
    }
    for (r = 0; r < q->ranks; r++) {
        q->begin[r] = s->begin[r];
        s->begin[r + 1] =
            s->begin[r] + (int64_t)(q->first[r + 1] - q->first[r]) * q->micros * (q->split ? 3 : 2);
    }
    q->action = s->action;
}

/* Computes makespan and span of the schedule so far. */
DPARI_FN void dpari_pipe_measure(const dpari_pipe *q, int64_t *makespan, int64_t *span)
{
    int32_t r;
    *makespan = *span = 0;
    for (r = 0; r < q->ranks; r++) {
        *makespan = dpari_most(*makespan, q->free[r]);
        *span = dpari_most(*span, q->free[r] - q->start[r]);
    }
}

/* The bytes of all arrays. */
DPARI_FN int64_t dpari_pipe_bytes(const dpar_schedule_optimize_desc *job)
{
    int64_t s = job->stages, p = job->ranks;
    return 8 * (9 * s + 8 * p + 2 * s * job->micro_batches) + 8 * ((p + 1 + 5 * s + 1) / 2);
}

/* Takes an array of `count` 8-byte numbers from the front of *mem. */
DPARI_FN int64_t *dpari_pipe_wide(char **mem, int64_t count)
{
    int64_t *at = (int64_t *)(void *)*mem;
    *mem += 8 * count;
    return at;
}

/* The same with 4-byte numbers. */
DPARI_FN int32_t *dpari_pipe_narrow(char **mem, int64_t count)
{
    int32_t *at = (int32_t *)(void *)*mem;
    *mem += 4 * count;
    return at;
}

/* Fills the map of stages and the times of messages. */
DPARI_FN void dpari_pipe_place(dpari_pipe *q, const dpar_schedule_optimize_desc *job)
{
    int32_t r, s, n = 0;
    for (r = 0; r < q->ranks; r++) {
        q->first[r] = n;
        for (s = 0; s < q->stages; s++) {
            if (dpari_pipe_rank(job, s) == r) {
                q->rank[s] = r;
                q->list[n++] = s;
            }
        }
    }
    q->first[q->ranks] = n;
    for (s = 0; s < q->stages; s++) {
        q->lag[s] = s + 1 < q->stages && q->rank[s] != q->rank[s + 1]
                        ? dpari_pipe_message(job->times, s)
                        : 0;
    }
}

/* Fills the times and bytes of a checked job. */
DPARI_FN void dpari_pipe_fill(dpari_pipe *q, const dpar_schedule_optimize_desc *job)
{
    int32_t r, s;
    for (r = 0; r < q->ranks; r++) {
        int64_t cap = dpari_each_at(&job->cap, r);
        q->cap[r] = cap > 0 ? cap : INT64_MAX;
        q->always[r] = 0;
    }
    for (s = 0; s < q->stages; s++) {
        int64_t *always = &q->always[q->rank[s]];
        *always += dpari_each_at(&job->times->hold_always, s);
        q->time[DPARI_F][s] = dpari_each_at(&job->times->forward, s);
        q->time[DPARI_I][s] = dpari_pipe_back(job, s);
        q->time[DPARI_W][s] = job->split ? dpari_each_at(&job->times->weight, s) : 0;
        q->hold[DPARI_F][s] = dpari_pipe_hold(job->times, DPARI_F, s);
        q->hold[DPARI_W][s] = dpari_pipe_hold(job->times, DPARI_W, s);
        q->hold[DPARI_I][s] =
            job->split ? dpari_pipe_hold(job->times, DPARI_I, s) : -q->hold[DPARI_F][s];
    }
}

/* Places the arrays of a checked job in mem, with an empty schedule. Returns the address after
 * them. */
DPARI_FN char *dpari_pipe_lay(dpari_pipe *q, const dpar_schedule_optimize_desc *job, void *mem)
{
    char *at = (char *)mem;
    int64_t s = job->stages, p = job->ranks;
    int k;
    q->ranks = job->ranks;
    q->stages = job->stages;
    q->micros = job->micro_batches;
    q->split = job->split;
    for (k = 0; k < 3; k++) {
        q->time[k] = dpari_pipe_wide(&at, s);
        q->hold[k] = dpari_pipe_wide(&at, s);
    }
    for (k = 0; k < 2; k++) {
        q->end[k] = dpari_pipe_wide(&at, s * q->micros);
        q->next[k] = dpari_pipe_wide(&at, s);
    }
    q->lag = dpari_pipe_wide(&at, s);
    q->cap = dpari_pipe_wide(&at, p);
    q->free = dpari_pipe_wide(&at, p);
    q->held = dpari_pipe_wide(&at, p);
    q->start = dpari_pipe_wide(&at, p);
    q->count = dpari_pipe_wide(&at, p);
    q->always = dpari_pipe_wide(&at, p);
    q->begin = dpari_pipe_wide(&at, p);
    q->sum = dpari_pipe_wide(&at, p);
    q->rank = dpari_pipe_narrow(&at, s);
    q->list = dpari_pipe_narrow(&at, s);
    for (k = 0; k < 3; k++) {
        q->done[k] = dpari_pipe_narrow(&at, s);
    }
    q->first = dpari_pipe_narrow(&at, p + 1);
    q->action = NULL;
    dpari_pipe_place(q, job);
    dpari_pipe_fill(q, job);
    dpari_pipe_reset(q);
    return (char *)mem + dpari_pipe_bytes(job);
}

#endif
