/* SPDX-License-Identifier: MIT-0 */
/* partial_schedule - private: a pipeline job in arrays, and its schedule, which grows action by
 * action. exact.c, optimize.c, partition.c and lower.c use it, and simulate.c reads times with its
 * functions. Header-only. */
#ifndef DPARI_SCHEDULE_PARTIAL_SCHEDULE_H
#define DPARI_SCHEDULE_PARTIAL_SCHEDULE_H

#include "action.h"
#include "job.h"

/* Kinds as indices of arrays. If the job does not split backwards, B is counted as I. */
enum { DPARI_F, DPARI_I, DPARI_W };
enum { DPARI_NEVER = -1 }; /* a time that is not known yet */

/* The largest job that dpar_schedule_optimize and dpar_schedule_partition take. */
enum { DPARI_OPTIMIZE_MAX_RANKS = 4096, DPARI_OPTIMIZE_MAX_STAGES = 16384 };

/* All arrays are in the caller's memory. All micro-batches are equal, and each stage runs them in
 * ascending order, so that a count says which actions have run. */
typedef struct dpari_pipe {
    int32_t ranks, stages, micros, split;
    int64_t *time[3], *hold[3]; /* [stages], time and added bytes of F, I or B, and W */
    int64_t *lag;               /* [stages], time of a message between s and s + 1; 0 if both are on
                                   one rank */
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

/* Returns the value of stage (or rank, or layer) i. */
DPARI_FN int64_t dpari_each_at(const dpar_stage_values *each, int64_t i)
{
    return each->each != NULL ? each->each[i] : each->all;
}

/* Returns the times of a kind, that of a joined pair for DPAR_ACTION_IDLE, or NULL if actions of
 * the kind take no time of their own. */
DPARI_FN const dpar_stage_values *dpari_times_of(const dpar_schedule_times *times, int32_t kind)
{
    switch (kind) {
    case DPAR_ACTION_IDLE: return &times->overlap;
    case DPAR_ACTION_FORWARD: return &times->forward;
    case DPAR_ACTION_BACKWARD: return &times->backward;
    case DPAR_ACTION_INPUT: return &times->input;
    case DPAR_ACTION_WEIGHT: return &times->weight;
    case DPAR_ACTION_UNSHARD: return &times->unshard;
    case DPAR_ACTION_RESHARD: return &times->reshard;
    case DPAR_ACTION_REDUCE_GRAD: return &times->reduce_grad;
    case DPAR_ACTION_RECOMPUTE: return &times->recompute;
    case DPAR_ACTION_OFFLOAD: return &times->offload;
    case DPAR_ACTION_RELOAD: return &times->reload;
    default: return NULL;
    }
}

/* Returns the rank that the job puts a stage on. */
DPARI_FN int32_t dpari_pipe_rank(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    return job->rank_of != NULL ? job->rank_of[stage]
                                : dpari_stage_rank(job->map, job->ranks, stage);
}

/* Returns the bytes that F, I or W of a stage adds. Without hold_forward an activation counts as 1,
 * from F to W. */
DPARI_FN int64_t dpari_pipe_hold(const dpar_schedule_times *times, int kind, int32_t stage)
{
    if (times->hold_forward.each == NULL && times->hold_forward.all == 0) {
        return kind == DPARI_F ? 1 : -(kind == DPARI_W);
    }
    if (kind == DPARI_F) {
        return dpari_each_at(&times->hold_forward, stage);
    }
    return dpari_each_at(kind == DPARI_I ? &times->hold_input : &times->hold_weight, stage);
}

/* Returns the time of B, or of I if the backward is split. A B without a time of its own takes as
 * long as I and W. */
DPARI_FN int64_t dpari_pipe_back(const dpar_schedule_optimize_desc *job, int32_t stage)
{
    const dpar_schedule_times *times = job->times;
    int64_t whole = dpari_each_at(&times->backward, stage),
            input = dpari_each_at(&times->input, stage);
    if (job->split) {
        return input;
    }
    return whole > 0 ? whole : input + dpari_each_at(&times->weight, stage);
}

/* Returns the time of a message from a stage to the next one: latency + bytes x 10^9 / bandwidth,
 * rounded up. The quotient is computed digit by digit, because bytes x 10^9 may exceed 64 bits. */
DPARI_FN int64_t dpari_pipe_message(const dpar_schedule_times *times, int32_t stage)
{
    int64_t bytes = dpari_each_at(&times->bytes, stage),
            wide = dpari_each_at(&times->bandwidth, stage);
    int64_t time, left, digit;
    if (wide <= 0) {
        return dpari_each_at(&times->latency, stage);
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
    return dpari_each_at(&times->latency, stage) + time;
}

/* Returns the DPAR_ACTION_x of a kind. */
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
DPARI_FN void dpari_pipe_reset(dpari_pipe *pipe)
{
    int32_t i;
    for (i = 0; i < pipe->stages; i++) {
        pipe->done[DPARI_F][i] = pipe->done[DPARI_I][i] = pipe->done[DPARI_W][i] = 0;
    }
    for (i = 0; i < pipe->ranks; i++) {
        pipe->free[i] = pipe->count[i] = 0;
        pipe->held[i] = pipe->always[i];
        pipe->start[i] = DPARI_NEVER;
    }
}

/* Returns when the input of the stage's next F or I arrives on its rank, or DPARI_NEVER if that is
 * not known yet. */
DPARI_FN int64_t dpari_pipe_arrival(const dpari_pipe *pipe, int kind, int32_t stage)
{
    int32_t k = pipe->done[kind][stage], from = kind == DPARI_F ? stage - 1 : stage + 1;
    int last = kind == DPARI_I && from == pipe->stages; /* after the loss, I needs its own F only */
    int of = last ? DPARI_F : kind;
    int64_t end;
    if (from < 0) {
        return 0;
    }
    from = last ? stage : from;
    if (pipe->done[of][from] <= k) {
        return DPARI_NEVER;
    }
    end = pipe->end[of][(int64_t)from * pipe->micros + k];
    if (last) {
        return end;
    }
    return end + pipe->lag[kind == DPARI_F ? from : stage];
}

/* True if the stage has a next action of this kind and its memory fits, so that it may start once
 * its input has arrived. */
DPARI_FN int dpari_pipe_may(const dpari_pipe *pipe, int kind, int32_t stage)
{
    if (kind == DPARI_W) {
        return pipe->done[DPARI_W][stage] < pipe->done[DPARI_I][stage] && pipe->split;
    }
    if (pipe->done[kind][stage] >= pipe->micros) {
        return 0;
    }
    return kind == DPARI_I || pipe->hold[DPARI_F][stage] <=
                                  pipe->cap[pipe->rank[stage]] - pipe->held[pipe->rank[stage]];
}

/* Appends the stage's next action of a kind, as early as possible. The arrival of its input must be
 * known. */
DPARI_FN void dpari_pipe_put(dpari_pipe *pipe, int kind, int32_t stage)
{
    int32_t r = pipe->rank[stage], k = pipe->done[kind][stage];
    int64_t at = pipe->free[r];
    if (kind != DPARI_W) {
        at = dpari_most(at, dpari_pipe_arrival(pipe, kind, stage));
        pipe->end[kind][(int64_t)stage * pipe->micros + k] = at + pipe->time[kind][stage];
    }
    if (pipe->action != NULL) {
        pipe->action[pipe->begin[r] + pipe->count[r]] =
            dpari_action_of(dpari_pipe_kind(pipe->split, kind), stage, k);
    }
    pipe->done[kind][stage] = k + 1;
    pipe->count[r]++;
    pipe->start[r] = pipe->start[r] == DPARI_NEVER ? at : pipe->start[r];
    pipe->free[r] = at + pipe->time[kind][stage];
    pipe->held[r] += pipe->hold[kind][stage];
}

/* Sets rank_of and begin of `schedule`, and makes dpari_pipe_put write its actions there.
 * `schedule` must have capacity for all actions. */
DPARI_FN void dpari_pipe_open(dpari_pipe *pipe, dpar_schedule *schedule)
{
    int32_t r, i;
    schedule->micro_batches = pipe->micros;
    for (i = 0; i < pipe->stages; i++) {
        schedule->rank_of[i] = (uint16_t)pipe->rank[i];
    }
    for (r = 0; r < pipe->ranks; r++) {
        pipe->begin[r] = schedule->begin[r];
        schedule->begin[r + 1] =
            schedule->begin[r] +
            (int64_t)(pipe->first[r + 1] - pipe->first[r]) * pipe->micros * (pipe->split ? 3 : 2);
    }
    pipe->action = schedule->action;
}

/* Computes makespan and span of the schedule so far. */
DPARI_FN void dpari_pipe_measure(const dpari_pipe *pipe, int64_t *makespan, int64_t *span)
{
    int32_t r;
    *makespan = *span = 0;
    for (r = 0; r < pipe->ranks; r++) {
        *makespan = dpari_most(*makespan, pipe->free[r]);
        *span = dpari_most(*span, pipe->free[r] - pipe->start[r]);
    }
}

/* Returns the bytes of all arrays. */
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

/* Takes an array of `count` 4-byte numbers from the front of *mem. */
DPARI_FN int32_t *dpari_pipe_narrow(char **mem, int64_t count)
{
    int32_t *at = (int32_t *)(void *)*mem;
    *mem += 4 * count;
    return at;
}

/* Sets the map of stages and the times of messages. */
DPARI_FN void dpari_pipe_place(dpari_pipe *pipe, const dpar_schedule_optimize_desc *job)
{
    int32_t r, s, n = 0;
    for (r = 0; r < pipe->ranks; r++) {
        pipe->first[r] = n;
        for (s = 0; s < pipe->stages; s++) {
            if (dpari_pipe_rank(job, s) == r) {
                pipe->rank[s] = r;
                pipe->list[n++] = s;
            }
        }
    }
    pipe->first[pipe->ranks] = n;
    for (s = 0; s < pipe->stages; s++) {
        pipe->lag[s] = s + 1 < pipe->stages && pipe->rank[s] != pipe->rank[s + 1]
                           ? dpari_pipe_message(job->times, s)
                           : 0;
    }
}

/* Sets the times and bytes of a checked job. */
DPARI_FN void dpari_pipe_values(dpari_pipe *pipe, const dpar_schedule_optimize_desc *job)
{
    int32_t r, s;
    for (r = 0; r < pipe->ranks; r++) {
        int64_t cap = dpari_each_at(&job->cap, r);
        pipe->cap[r] = cap > 0 ? cap : INT64_MAX;
        pipe->always[r] = 0;
    }
    for (s = 0; s < pipe->stages; s++) {
        int64_t *always = &pipe->always[pipe->rank[s]];
        *always += dpari_each_at(&job->times->hold_always, s);
        pipe->time[DPARI_F][s] = dpari_each_at(&job->times->forward, s);
        pipe->time[DPARI_I][s] = dpari_pipe_back(job, s);
        pipe->time[DPARI_W][s] = job->split ? dpari_each_at(&job->times->weight, s) : 0;
        pipe->hold[DPARI_F][s] = dpari_pipe_hold(job->times, DPARI_F, s);
        pipe->hold[DPARI_W][s] = dpari_pipe_hold(job->times, DPARI_W, s);
        pipe->hold[DPARI_I][s] =
            job->split ? dpari_pipe_hold(job->times, DPARI_I, s) : -pipe->hold[DPARI_F][s];
    }
}

/* Places the arrays of a checked job in mem, with an empty schedule. Returns the address after
 * them. */
DPARI_FN char *dpari_pipe_arrange(dpari_pipe *pipe, const dpar_schedule_optimize_desc *job,
                                  void *mem)
{
    char *at = (char *)mem;
    int64_t s = job->stages, p = job->ranks;
    int k;
    pipe->ranks = job->ranks;
    pipe->stages = job->stages;
    pipe->micros = job->micro_batches;
    pipe->split = job->split;
    for (k = 0; k < 3; k++) {
        pipe->time[k] = dpari_pipe_wide(&at, s);
        pipe->hold[k] = dpari_pipe_wide(&at, s);
    }
    for (k = 0; k < 2; k++) {
        pipe->end[k] = dpari_pipe_wide(&at, s * pipe->micros);
        pipe->next[k] = dpari_pipe_wide(&at, s);
    }
    pipe->lag = dpari_pipe_wide(&at, s);
    pipe->cap = dpari_pipe_wide(&at, p);
    pipe->free = dpari_pipe_wide(&at, p);
    pipe->held = dpari_pipe_wide(&at, p);
    pipe->start = dpari_pipe_wide(&at, p);
    pipe->count = dpari_pipe_wide(&at, p);
    pipe->always = dpari_pipe_wide(&at, p);
    pipe->begin = dpari_pipe_wide(&at, p);
    pipe->sum = dpari_pipe_wide(&at, p);
    pipe->rank = dpari_pipe_narrow(&at, s);
    pipe->list = dpari_pipe_narrow(&at, s);
    for (k = 0; k < 3; k++) {
        pipe->done[k] = dpari_pipe_narrow(&at, s);
    }
    pipe->first = dpari_pipe_narrow(&at, p + 1);
    pipe->action = NULL;
    dpari_pipe_place(pipe, job);
    dpari_pipe_values(pipe, job);
    dpari_pipe_reset(pipe);
    return (char *)mem + dpari_pipe_bytes(job);
}

#endif
