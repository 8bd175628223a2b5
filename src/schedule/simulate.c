/* SPDX-License-Identifier: MIT-0 */
/* Simulates schedules. One pass over the lists enters each action in a table by stage, micro-batch
 * and kind, and adds up memory, which depends only on the order. The run then advances each rank as
 * far as its inputs allow. A rank that waits is resumed when its input arrives. Each action is
 * visited a bounded number of times, so that the cost does not depend on the lengths of times. */
#include "simulate.h"

#include "../base/base_private.h"
#include "action.h"
#include "needed_bytes.h"
#include "partial_schedule.h"

/* Rows of the table that finds an action by its kind, stage and micro-batch. Add 1 to one of the
 * first three for the backward direction. */
enum {
    DPARI_AT_WORK = 0,
    DPARI_AT_SEND = 2,
    DPARI_AT_RECV = 4,
    DPARI_AT_WEIGHT = 6,
    DPARI_AT_ROWS
};

/* A stage with the values that the run needs. Side 0 is the stage before it, side 1 the stage after
 * it. Forward work gets its input from side 0 and passes its output to side 1, backward work the
 * other way round. */
typedef struct dpari_sim_stage {
    int64_t cost[DPAR_ACTION_COUNT];
    int64_t overlap;     /* time of a joined pair; 0 selects the sum of both times */
    int64_t hold[3];     /* bytes that F, I and W add */
    int64_t edge[2];     /* time of a message on each side */
    int64_t turn[2];     /* the part of `edge` during which the message occupies a shared wire */
    int64_t delay[2];    /* time from the end of the action `source` to the arrival of the input */
    int64_t source[2];   /* offset in the table of the actions that bring the input */
    int32_t stage_at[2]; /* the stage on that side, or -1 */
    int32_t rank_at[2];  /* its rank, or -1 if that is this rank */
    int32_t link[2];     /* the wire to that side, if wires are shared */
} dpari_sim_stage;

/* A message in its queue. With EAGER a SEND is in a queue of all SENDs to the same rank, and
 * `before` of its RECV is the SEND whose place in the buffer this SEND takes, or 0. */
typedef struct dpari_sim_link {
    uint32_t before, behind; /* 1 + the action, or 0 */
} dpari_sim_link;

/* A queue of a rank while it is built. */
typedef struct dpari_sim_line {
    uint32_t last;  /* 1 + the last action, or 0 */
    uint32_t taken; /* EAGER: 1 + the SEND whose place the next SEND takes if the buffer is full */
    int32_t count;  /* EAGER: SENDs so far */
} dpari_sim_line;

/* Modes of sending that follow from a transport, in addition to DPAR_SEND_MODE_x. */
enum { DPARI_SENDS_QUEUED = DPAR_SEND_MODE_COUNT, DPARI_SENDS_EAGER };

typedef struct dpari_sim_rank {
    int64_t at, end;                   /* the next action, and one past the last */
    int64_t free;                      /* when the actions before the next one have ended */
    int64_t waits;                     /* 1 + the action that the rank waits for, or 0 */
    int64_t dependency, communication; /* idle time since the last work */
    int64_t held;                      /* bytes */
    int64_t live;                      /* activations */
    dpar_rank_timing out;
} dpari_sim_rank;

/* The state of a simulation. It is at the start of the working memory, and its arrays follow it. */
typedef struct dpari_sim {
    dpar_schedule s;
    dpari_sim_stage *stage;
    dpari_sim_rank *rank;
    /* [actions], when each action ends; -1 if unknown, -2 - t for a message reached at t. */
    int64_t *end;
    /* [actions], when the output arrives. The same array as `end` unless links are shared. */
    int64_t *arrive;
    int64_t *wire;   /* when each shared wire is free */
    uint32_t *where; /* the table: 1 + the index of the action, or 0 */
    uint32_t *cause; /* [actions], 1 + the action whose end let this one start; 0 is the action
                        before it on its rank */
    int32_t *stack;  /* [tops], ranks that can continue */
    int32_t *scratch;
    dpari_sim_link *link; /* [actions], if messages wait in queues or buffers */
    dpari_sim_line *line; /* [2 ranks] */
    uint32_t moved; /* 1 + the first of a list of transferred messages whose successors may be next,
                       or 0 */
    int64_t cells;  /* entries in a row of the table */
    int64_t total;  /* the sum of all times, which no time of the run can exceed */
    int64_t last;   /* the last action of the critical path, or -1 */
    int32_t tops, lowered, sends, links, transport, room;
} dpari_sim;

/* ---- memory ---------------------------------------------------------------------------------- */

/* True if the schedule has a shape that can be simulated. */
static int dpari_sim_fits(const dpar_schedule *schedule)
{
    return schedule->ranks >= 1 && schedule->ranks <= DPAR_MAX_STAGES && schedule->stages >= 1 &&
           schedule->stages <= DPAR_MAX_STAGES && schedule->micro_batches >= 0 &&
           schedule->micro_batches <= DPAR_MAX_MICRO_BATCHES && schedule->chain >= 1 &&
           schedule->stages % schedule->chain == 0 && schedule->slices >= 1 &&
           schedule->micro_batches % schedule->slices == 0 &&
           schedule->begin[schedule->ranks] >= 0 &&
           schedule->begin[schedule->ranks] <= (int64_t)UINT32_MAX - 1;
}

/* Takes the next piece of the memory, whose size is rounded up to 8 bytes. */
DPARI_STATIC_NOINLINE void *dpari_sim_piece(char *mem, int64_t *used, int64_t bytes)
{
    void *at = mem == NULL ? NULL : mem + *used;
    *used += dpari_whole_words(bytes);
    return at;
}

/* Divides mem into the struct and its arrays, and returns their bytes. If mem is NULL, only counts
 * the bytes. */
static DPARI_COLD int64_t dpari_sim_arrange(dpari_sim *sim, const dpar_schedule *schedule,
                                            const dpar_schedule_times *times, void *mem)
{
    char *at = (char *)mem;
    const int64_t n = schedule->begin[schedule->ranks], ranks = schedule->ranks,
                  stages = schedule->stages;
    int64_t used = 0;
    (void)dpari_sim_piece(at, &used, (int64_t)sizeof(*sim));
    sim->s = *schedule;
    sim->links = times->links;
    sim->transport = times->transport;
    sim->room = times->capacity;
    sim->link = NULL;
    sim->line = NULL;
    sim->moved = 0;
    sim->cells = stages * schedule->micro_batches;
    sim->stage =
        (dpari_sim_stage *)dpari_sim_piece(at, &used, stages * (int64_t)sizeof(*sim->stage));
    sim->rank = (dpari_sim_rank *)dpari_sim_piece(at, &used, ranks * (int64_t)sizeof(*sim->rank));
    sim->end = (int64_t *)dpari_sim_piece(at, &used, 8 * n);
    sim->arrive = sim->end;
    sim->wire = NULL;
    sim->scratch = NULL;
    if (sim->links != DPAR_CONTENTION_NONE) {
        sim->arrive = (int64_t *)dpari_sim_piece(at, &used, 8 * n);
        sim->wire = (int64_t *)dpari_sim_piece(at, &used, 8 * (ranks + 2 * stages));
        sim->scratch = (int32_t *)dpari_sim_piece(at, &used, 4 * (2 * ranks + stages));
    }
    if (sim->transport >= DPAR_TRANSPORT_RANK) { /* messages wait for other messages */
        sim->link = (dpari_sim_link *)dpari_sim_piece(at, &used, n * (int64_t)sizeof(*sim->link));
        sim->line =
            (dpari_sim_line *)dpari_sim_piece(at, &used, 2 * ranks * (int64_t)sizeof(*sim->line));
    }
    sim->where = (uint32_t *)dpari_sim_piece(at, &used, 4 * DPARI_AT_ROWS * sim->cells);
    sim->cause = (uint32_t *)dpari_sim_piece(at, &used, 4 * n);
    sim->stack = (int32_t *)dpari_sim_piece(at, &used, 4 * ranks);
    return used;
}

DPARI_INTERNAL DPARI_COLD int64_t
dpari_schedule_simulate_bytes(const dpar_schedule *schedule, const dpar_schedule_simulate_desc *how)
{
    dpari_sim m;
    return dpari_sim_fits(schedule) ? dpari_sim_arrange(&m, schedule, how->times, NULL) : -1;
}

/* ---- times and bytes ------------------------------------------------------------------------- */

/* Adds a number of 0 or more to *sum. Returns 0 if the sum would exceed INT64_MAX. */
static int dpari_sum(int64_t *sum, int64_t more)
{
    if (more > INT64_MAX - *sum) {
        return 0;
    }
    *sum += more;
    return 1;
}

/* Computes part x 10^digits / whole, rounded down, and the remainder, by long division in 64 bits.
 * Returns -1 if the result exceeds INT64_MAX. part >= 0, whole > 0. */
DPARI_COLD DPARI_STATIC_NOINLINE int64_t dpari_sim_scale(int64_t part, int64_t whole, int digits,
                                                         int64_t *left)
{
    int64_t value = part / whole;
    part %= whole;
    for (; digits > 0; digits--) {
        int64_t sum = 0, digit = 0;
        int n;
        for (n = 0; n < 10; n++) { /* sum += part, modulo whole */
            int carry = sum >= whole - part;
            sum = carry ? sum - (whole - part) : sum + part;
            digit += carry;
        }
        if (value > (INT64_MAX - digit) / 10) {
            return -1;
        }
        value = 10 * value + digit;
        part = sum;
    }
    *left = part;
    return value;
}

/* Computes the time of a message between `stage` and the next stage, and the part of it that
 * occupies a wire. */
static dpar_status dpari_sim_edge(const dpar_schedule_times *times, int32_t stage, int64_t *edge,
                                  int64_t *turn, dpar_why *why)
{
    int64_t latency = dpari_each_at(&times->latency, stage),
            bytes = dpari_each_at(&times->bytes, stage);
    int64_t bandwidth = dpari_each_at(&times->bandwidth, stage), left = 0;
    if (latency < 0 || bytes < 0 || bandwidth < 0) {
        return dpari_wrong(why,
                           "stage %d: latency=%ld, bytes=%ld, bandwidth=%ld; 0 or more are allowed",
                           stage, latency, bytes, bandwidth);
    }
    *edge = latency;
    *turn = bandwidth == 0 ? 0 : dpari_sim_scale(bytes, bandwidth, 9, &left);
    if (*turn < 0 || !dpari_sum(turn, left > 0) || !dpari_sum(edge, *turn)) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "stage %d: a latency of %ld and %ld bytes at bandwidth %ld exceed INT64_MAX", stage,
            latency, bytes, bandwidth);
    }
    return DPAR_OK;
}

/* Sets the values of one side of a stage. */
static dpar_status dpari_sim_side(dpari_sim *sim, const dpar_schedule_times *times, int32_t stage,
                                  int side, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    dpari_sim_stage *st = &sim->stage[stage];
    int32_t beside =
        side ? dpari_schedule_behind(schedule, stage) : dpari_schedule_before(schedule, stage);
    dpar_status status;
    st->stage_at[side] = beside;
    st->rank_at[side] = beside < 0 || schedule->rank_of[beside] == schedule->rank_of[stage]
                            ? -1
                            : (int32_t)schedule->rank_of[beside];
    st->edge[side] = st->turn[side] = st->delay[side] = st->source[side] = 0;
    st->link[side] = schedule->rank_of[stage];
    if (st->rank_at[side] < 0) {
        return DPAR_OK;
    }
    st->source[side] =
        sim->lowered
            ? (DPARI_AT_RECV + side) * sim->cells + (int64_t)stage * schedule->micro_batches
            : (DPARI_AT_WORK + side) * sim->cells + (int64_t)beside * schedule->micro_batches;
    status = dpari_sim_edge(times, side ? stage : beside, &st->edge[side], &st->turn[side], why);
    st->delay[side] = sim->lowered || sim->links != DPAR_CONTENTION_NONE ? 0 : st->edge[side];
    return status;
}

/* Sets the times of all kinds of actions on a stage. */
static dpar_status dpari_sim_costs(dpari_sim_stage *st, const dpar_schedule_times *times,
                                   int32_t stage, dpar_why *why)
{
    int kind;
    for (kind = 0; kind < DPAR_ACTION_COUNT; kind++) {
        const dpar_stage_values *each = dpari_times_of(times, kind);
        st->cost[kind] = each != NULL ? dpari_each_at(each, stage) : 0;
        if (st->cost[kind] < 0) {
            return dpari_wrong(why, "stage %d: the time of %s is %ld; 0 or more are allowed", stage,
                               kind == DPAR_ACTION_IDLE ? "overlap" : dpari_action_name(kind),
                               st->cost[kind]);
        }
    }
    st->overlap = st->cost[DPAR_ACTION_IDLE];
    st->cost[DPAR_ACTION_IDLE] = 0;
    if (st->cost[DPAR_ACTION_BACKWARD] == 0) {
        st->cost[DPAR_ACTION_BACKWARD] = st->cost[DPAR_ACTION_INPUT];
        if (!dpari_sum(&st->cost[DPAR_ACTION_BACKWARD], st->cost[DPAR_ACTION_WEIGHT])) {
            return dpari_say(DPAR_E_RANGE, why,
                             "stage %d: the times of I and W, %ld + %ld, exceed INT64_MAX", stage,
                             st->cost[DPAR_ACTION_INPUT], st->cost[DPAR_ACTION_WEIGHT]);
        }
    }
    return DPAR_OK;
}

static int dpari_sim_capped(const dpar_schedule_times *times)
{
    return times->cap.each != NULL || times->cap.all != 0;
}

/* Sets the bytes that F, I and W add. If there is a cap but no bytes, activations are counted
 * instead. */
static void dpari_sim_holding(dpari_sim_stage *st, const dpar_schedule_times *times, int32_t stage)
{
    int count =
        dpari_sim_capped(times) && times->hold_forward.each == NULL && times->hold_forward.all == 0;
    st->hold[0] = count ? 1 : dpari_each_at(&times->hold_forward, stage);
    st->hold[1] = count ? 0 : dpari_each_at(&times->hold_input, stage);
    st->hold[2] = count ? -1 : dpari_each_at(&times->hold_weight, stage);
}

/* Sets the values of all stages, and adds hold_always to the bytes that each rank holds. */
static dpar_status dpari_sim_stages(dpari_sim *sim, const dpar_schedule_times *times, dpar_why *why)
{
    int32_t i;
    int side;
    for (i = 0; i < sim->s.stages; i++) {
        dpari_sim_stage *st = &sim->stage[i];
        int64_t always = dpari_each_at(&times->hold_always, i);
        dpar_status status = dpari_sim_costs(st, times, i, why);
        for (side = 0; side < 2 && status == DPAR_OK; side++) {
            status = dpari_sim_side(sim, times, i, side, why);
        }
        if (status != DPAR_OK) {
            return status;
        }
        dpari_sim_holding(st, times, i);
        if (always < 0) {
            return dpari_wrong(why, "stage %d: hold_always is %ld; 0 or more are allowed", i,
                               always);
        }
        if (!dpari_sum(&sim->rank[sim->s.rank_of[i]].held, always)) {
            return dpari_say(DPAR_E_RANGE, why,
                             "rank %d: hold_always exceeds INT64_MAX at stage %d",
                             (int32_t)sim->s.rank_of[i], i);
        }
    }
    return DPAR_OK;
}

/* Numbers the shared wires, one for each ordered pair of ranks. The number is 2 x stage + side, for
 * the sender's first stage and side that has the receiver on the other end. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_wires(dpari_sim *sim)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t *head = sim->scratch, *mark = head + schedule->ranks, *next = mark + schedule->ranks;
    int32_t r, i, side;
    dpari_zero(sim->wire, 8 * ((size_t)schedule->ranks + 2 * (size_t)schedule->stages));
    if (sim->links == DPAR_CONTENTION_RANK) {
        return;
    }
    for (r = 0; r < schedule->ranks; r++) {
        head[r] = mark[r] = -1;
    }
    for (i = schedule->stages - 1; i >= 0; i--) {
        next[i] = head[schedule->rank_of[i]];
        head[schedule->rank_of[i]] = i;
    }
    for (r = 0; r < schedule->ranks; r++) {
        for (i = head[r]; i >= 0; i = next[i]) {
            for (side = 0; side < 2; side++) {
                int32_t across = sim->stage[i].rank_at[side];
                if (across >= 0 && (mark[across] < 0 || schedule->rank_of[mark[across] / 2] != r)) {
                    mark[across] = 2 * i + side;
                }
                sim->stage[i].link[side] = across < 0 ? 0 : mark[across];
            }
        }
    }
}

/* ---- the pass over the lists ------------------------------------------------------------------
 *
 * The pass enters all actions in the table, checks the order of each rank's own actions, and adds
 * up memory. */

/* Returns the entry of the table for a row, stage and micro-batch. */
static uint32_t *dpari_sim_place(const dpari_sim *sim, int row, int32_t stage, int32_t micro)
{
    return &sim->where[row * sim->cells + (int64_t)stage * sim->s.micro_batches + micro];
}

/* Returns the direction of a kind: 0 forward, 1 backward, or -1 if it does not wait for another
 * stage. */
static int dpari_sim_way(int kind)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_SEND_F:
    case DPAR_ACTION_RECV_F: return 0;
    case DPAR_ACTION_BACKWARD:
    case DPAR_ACTION_INPUT:
    case DPAR_ACTION_SEND_B:
    case DPAR_ACTION_RECV_B: return 1;
    default: return -1;
    }
}

/* Returns the side of the stage on which a message's other end is. */
static int dpari_sim_message_side(int kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_RECV_B;
}

/* Returns the row of a kind in the table, or -1 if such actions are not entered. */
static int dpari_sim_row(int kind)
{
    const int way = dpari_sim_way(kind);
    if (way < 0) {
        return kind == DPAR_ACTION_WEIGHT ? DPARI_AT_WEIGHT : -1;
    }
    if (dpari_action_is_message(kind)) {
        return (dpari_action_is_send(kind) ? DPARI_AT_SEND : DPARI_AT_RECV) + way;
    }
    return DPARI_AT_WORK + way;
}

/* Begins a message with an action: "rank 2: 2B1". */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_name(dpar_why *why, int32_t rank,
                                                     const dpar_action *action, dpar_text *text)
{
    dpari_text_why(text, why);
    dpari_text_say(text, "rank %d: %d%s", rank, (int32_t)action->stage,
                   dpari_action_name(action->kind));
    if (dpari_action_has_micro(action->kind)) {
        dpari_text_int(text, action->micro_batch);
    }
}

/* Writes a message about an action: "rank 2: 2B1 is listed twice". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_wrong(dpar_why *why, int32_t rank,
                                                             const dpar_action *action,
                                                             const char *what)
{
    dpar_text t;
    if (why != NULL) {
        dpari_sim_name(why, rank, action, &t);
        dpar_text_put(&t, what);
    }
    return DPAR_E_ARG;
}

/* Writes a message about an action and one that it needs, given by kind, stage and micro-batch:
 * "rank 2: 2B1 comes before 2F1 or without it". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_say(dpar_why *why, int32_t rank,
                                                           const dpar_action *action,
                                                           const char *what, int kind,
                                                           int32_t stage, int32_t micro)
{
    dpar_text t;
    if (why != NULL) {
        const dpar_action other = dpari_action_of(kind, stage, micro);
        dpari_sim_name(why, rank, action, &t);
        dpar_text_put(&t, what);
        dpar_action_write(&other, &t);
        dpar_text_put(&t, " or without it");
    }
    return DPAR_E_ARG;
}

/* Checks that the actions on the same rank that action i needs are before it in the list. The
 * message names the first one that is not. */
static dpar_status dpari_sim_needs(const dpari_sim *sim, int32_t rank, int64_t i, dpar_why *why)
{
    static const char before[] = " comes before ";
    const dpar_action *action = &sim->s.action[i];
    const dpari_sim_stage *st = &sim->stage[action->stage];
    const int32_t k = action->micro_batch, slices = sim->s.slices;
    const int way = dpari_sim_way(action->kind);
    const int work = way ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD;
    if (dpari_action_is_message(action->kind)) {
        if (st->rank_at[dpari_sim_message_side(action->kind)] < 0) {
            return dpari_sim_wrong(why, rank, action, " has no partner on another rank");
        }
        if (dpari_action_is_send(action->kind) &&
            !*dpari_sim_place(sim, DPARI_AT_WORK + way, action->stage, k)) {
            return dpari_sim_say(why, rank, action, before, work, action->stage, k);
        }
        return DPAR_OK;
    }
    if (action->kind == DPAR_ACTION_WEIGHT) {
        uint32_t at = *dpari_sim_place(sim, DPARI_AT_WORK + 1, action->stage, k);
        if (at == 0 || sim->s.action[at - 1].kind != DPAR_ACTION_INPUT) {
            return dpari_sim_say(why, rank, action, before, DPAR_ACTION_INPUT, action->stage, k);
        }
        return DPAR_OK;
    }
    if (action->kind != DPAR_ACTION_FORWARD) {
        /* backward, RECOMPUTE, OFFLOAD and RELOAD need a forward that is not in their own pair */
        uint32_t at = *dpari_sim_place(sim, DPARI_AT_WORK, action->stage, k);
        if (at == 0 || ((int64_t)at == i && sim->s.action[i - 1].joined)) {
            return dpari_sim_say(why, rank, action, before, DPAR_ACTION_FORWARD, action->stage, k);
        }
    }
    if (way < 0) {
        return DPAR_OK;
    }
    if (slices > 1) {
        /* a forward needs the slice before it, a backward the one after it, if it is of the same
         * micro-batch */
        const int32_t next = way ? k + 1 : k - 1;
        const int32_t later = way ? next : k;
        if (later % slices != 0 &&
            !*dpari_sim_place(sim, DPARI_AT_WORK + way, action->stage, next)) {
            return dpari_sim_say(why, rank, action, before, work, action->stage, next);
        }
    }
    if (st->rank_at[way] >= 0 && sim->lowered &&
        !*dpari_sim_place(sim, DPARI_AT_RECV + way, action->stage, k)) {
        return dpari_sim_say(why, rank, action, before,
                             way ? DPAR_ACTION_RECV_B : DPAR_ACTION_RECV_F, action->stage, k);
    }
    if (st->stage_at[way] >= 0 && st->rank_at[way] < 0 &&
        !*dpari_sim_place(sim, DPARI_AT_WORK + way, st->stage_at[way], k)) {
        return dpari_sim_say(why, rank, action, before, work, st->stage_at[way], k);
    }
    return DPAR_OK;
}

/* Adds to the bytes that a rank holds. Returns 0 if the sum would not fit into an int64_t. */
static int dpari_sim_hold(dpari_sim_rank *q, int64_t more)
{
    if (more > 0 ? q->held > INT64_MAX - more : q->held < INT64_MIN - more) {
        return 0;
    }
    q->held += more;
    q->out.peak_bytes = dpari_most(q->out.peak_bytes, q->held);
    return 1;
}

/* Updates the memory of a rank for an action. Returns 0 if it overflows. A rank runs one action
 * after another, so that its memory depends only on the order. In a joined pair the forward is
 * first in the list: it adds its bytes before the backward frees any. */
static int dpari_sim_memory(dpari_sim_rank *q, const dpari_sim_stage *st, int kind)
{
    int64_t more = 0;
    switch (kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_RELOAD:
        more = st->hold[0];
        q->live++;
        break;
    case DPAR_ACTION_OFFLOAD:
        if (st->hold[0] == INT64_MIN) {
            return 0;
        }
        more = -st->hold[0];
        q->live--;
        break;
    case DPAR_ACTION_INPUT: more = st->hold[1]; break;
    case DPAR_ACTION_BACKWARD: /* the smaller one first, so that the sum in between is no peak */
        if (!dpari_sim_hold(q, dpari_least(st->hold[1], st->hold[2]))) {
            return 0;
        }
        more = dpari_most(st->hold[1], st->hold[2]);
        q->live--;
        break;
    case DPAR_ACTION_WEIGHT:
        more = st->hold[2];
        q->live--;
        break;
    default: return 1;
    }
    q->out.peak_count = (int32_t)dpari_most(q->out.peak_count, q->live);
    return dpari_sim_hold(q, more);
}

/* Checks that action i exists, is on the right rank, and has a backward after it if it is joined.
 */
static dpar_status dpari_sim_check(const dpari_sim *sim, int32_t rank, int64_t i, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    const dpar_action *action = &schedule->action[i];
    if (action->kind >= DPAR_ACTION_COUNT || action->stage >= schedule->stages ||
        (dpari_action_has_micro(action->kind) && action->micro_batch >= schedule->micro_batches)) {
        return dpari_wrong(why, "rank %d: kind %d, stage %d, micro-batch %d does not exist", rank,
                           (int32_t)action->kind, (int32_t)action->stage,
                           (int32_t)action->micro_batch);
    }
    if (schedule->rank_of[action->stage] != rank) {
        return dpari_sim_wrong(why, rank, action, " has a stage of another rank");
    }
    if (action->joined &&
        (action->kind != DPAR_ACTION_FORWARD || i + 1 >= schedule->begin[rank + 1] ||
         !dpari_action_is_gradient(action[1].kind))) {
        return dpari_sim_wrong(why, rank, action,
                               " is joined, but it is not an F that a B or I follows");
    }
    return DPAR_OK;
}

/* True if the run sends a message after an action of this kind. */
static int dpari_sim_makes_message(const dpari_sim *sim, int kind)
{
    return sim->lowered ? dpari_action_is_send(kind) : dpari_sim_way(kind) >= 0;
}

/* Checks action i, enters it in the table, and adds its time and bytes. */
static dpar_status dpari_sim_enter(dpari_sim *sim, int32_t rank, int64_t i, dpar_why *why)
{
    const dpar_action *action = &sim->s.action[i];
    dpar_status status = DPAR_OK;
    const dpari_sim_stage *st;
    int way, row;
    sim->end[i] = sim->arrive[i] = -1;
    if (action->kind == DPAR_ACTION_IDLE && !action->joined) {
        return DPAR_OK;
    }
    status = dpari_sim_check(sim, rank, i, why);
    if (status == DPAR_OK && dpari_action_has_micro(action->kind)) {
        status = dpari_sim_needs(sim, rank, i, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    st = &sim->stage[action->stage];
    row = dpari_sim_row(action->kind);
    if (row >= 0) {
        uint32_t *place = dpari_sim_place(sim, row, action->stage, action->micro_batch);
        if (*place != 0) {
            return dpari_sim_wrong(why, rank, action, " is listed twice");
        }
        *place = (uint32_t)i + 1;
    }
    way = dpari_sim_way(action->kind);
    if (!dpari_sum(&sim->total, st->cost[action->kind]) ||
        (action->joined && !dpari_sum(&sim->total, st->overlap)) ||
        (dpari_sim_makes_message(sim, action->kind) &&
         !dpari_sum(&sim->total, st->edge[1 - way]))) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d, action %ld: the times exceed INT64_MAX", rank,
                         i - sim->s.begin[rank]);
    }
    if (!dpari_sim_memory(&sim->rank[rank], st, action->kind)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "rank %d, action %ld: the bytes do not fit into 64 bits", rank,
                         i - sim->s.begin[rank]);
    }
    return DPAR_OK;
}

/* Clears the table and enters the actions of all ranks. */
static dpar_status dpari_sim_list(dpari_sim *sim, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t r;
    int64_t i;
    dpari_zero(sim->where, 4 * DPARI_AT_ROWS * (size_t)sim->cells);
    for (r = 0; r < schedule->ranks; r++) {
        dpari_sim_rank *q = &sim->rank[r];
        q->at = schedule->begin[r];
        q->end = schedule->begin[r + 1];
        q->out.first = -1;
        q->out.peak_bytes = q->held;
        for (i = q->at; i < q->end; i++) {
            dpar_status status = dpari_sim_enter(sim, r, i, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Resumes a rank if it waits for action i. */
static void dpari_sim_wake(dpari_sim *sim, int32_t rank, int64_t i)
{
    if (sim->rank[rank].waits == i + 1) {
        sim->rank[rank].waits = 0;
        sim->stack[sim->tops++] = rank;
    }
}

/* Sends a message at time `now`. Returns when it arrives, and occupies the wire if wires are
 * shared. */
static int64_t dpari_sim_send(dpari_sim *sim, const dpari_sim_stage *st, int side, int64_t now)
{
    if (sim->links != DPAR_CONTENTION_NONE) {
        int64_t *wire = &sim->wire[st->link[side]];
        now = dpari_most(now, *wire);
        *wire = now + st->turn[side];
    }
    return now + st->edge[side];
}

/* Finds the input of work in direction `way`. If it arrives after *begin, moves *begin to the
 * arrival and sets *cause to the action that brings it. Returns 0 if the arrival is not known yet;
 * the rank then waits. */
static int dpari_sim_input(dpari_sim *sim, dpari_sim_rank *q, const dpar_action *action, int way,
                           int64_t *begin, uint32_t *cause)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    uint32_t at;
    int64_t there;
    if (st->rank_at[way] < 0) {
        return 1;
    }
    at = sim->where[st->source[way] + action->micro_batch];
    there = at == 0 ? -1 : sim->arrive[at - 1];
    if (there < 0) {
        q->waits = at;
        return 0;
    }
    if (there + st->delay[way] > *begin) {
        *begin = there + st->delay[way];
        *cause = at;
    }
    return 1;
}

/* Returns when the work ended whose output is brought by the action `cause`. */
static int64_t dpari_sim_done(const dpari_sim *sim, uint32_t cause)
{
    const dpar_action *action = &sim->s.action[cause - 1];
    if (dpari_action_is_message(action->kind)) {
        int way = dpari_message_way(action->kind);
        cause = *dpari_sim_place(sim, DPARI_AT_WORK + way, sim->stage[action->stage].stage_at[way],
                                 action->micro_batch);
    }
    return sim->end[cause - 1];
}

/* Adds idle time from q->free to `until`, in which the rank waits for the input that `cause`
 * brings. Until the end of the work that makes the input this is a dependency, afterwards
 * communication. */
static void dpari_sim_idle(dpari_sim *sim, dpari_sim_rank *q, uint32_t cause, int64_t until)
{
    int64_t done = dpari_most(dpari_sim_done(sim, cause), q->free);
    q->dependency += done - q->free;
    q->communication += until - done;
}

/* Sends the output of work i to another rank if messages are implied. */
static void dpari_sim_output(dpari_sim *sim, const dpar_action *action, int64_t i)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    int side = 1 - dpari_sim_way(action->kind);
    if (side > 1 || sim->lowered || st->rank_at[side] < 0) {
        return;
    }
    if (sim->links != DPAR_CONTENTION_NONE) {
        sim->arrive[i] = dpari_sim_send(sim, st, side, sim->end[i]);
    }
    dpari_sim_wake(sim, st->rank_at[side], i);
}

/* Returns the time of work, or of a joined pair. */
static int64_t dpari_sim_takes(const dpari_sim *sim, const dpar_action *action)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    if (action->joined && st->overlap > 0) {
        return st->overlap;
    }
    return st->cost[action->kind] +
           (action->joined ? sim->stage[action[1].stage].cost[action[1].kind] : 0);
}

/* Adds work from `begin` to `end` to the rank's timing, and the idle time before it. */
static void dpari_sim_book(dpari_sim_rank *q, int kind, int64_t begin, int64_t end)
{
    q->free = end;
    if (kind > DPAR_ACTION_WEIGHT && begin == end) {
        return; /* an action that takes no time is not work */
    }
    if (q->out.first < 0) {
        q->out.first = q->out.warm_up = begin;
    } else {
        q->out.dependency += q->dependency;
        q->out.communication += q->communication;
    }
    q->dependency = q->communication = 0;
    q->out.busy += end - begin;
    q->out.last = end;
}

/* Runs work, the next action of rank q. Returns 0 if it has to wait. */
static int dpari_sim_work(dpari_sim *sim, dpari_sim_rank *q, const dpar_action *action)
{
    const int64_t i = q->at;
    const int way = dpari_sim_way(action->kind);
    int64_t begin = q->free, end;
    uint32_t cause = 0;
    if ((way >= 0 && !dpari_sim_input(sim, q, action, way, &begin, &cause)) ||
        (action->joined && !dpari_sim_input(sim, q, action + 1, 1, &begin, &cause))) {
        return 0;
    }
    if (cause != 0) {
        dpari_sim_idle(sim, q, cause, begin);
    }
    end = begin + dpari_sim_takes(sim, action);
    sim->cause[i] = cause;
    sim->end[i] = end;
    if (sim->links != DPAR_CONTENTION_NONE) {
        sim->arrive[i] = end;
    }
    dpari_sim_book(q, action->kind, begin, end);
    dpari_sim_output(sim, action, i);
    if (action->joined) {
        sim->end[i + 1] = end;
        dpari_sim_output(sim, action + 1, i + 1);
    }
    q->at = i + 1 + action->joined;
    return 1;
}

/* Returns 1 + the index of a message's other half, or 0 if it is in no list. *other receives its
 * rank. */
static uint32_t dpari_sim_half(const dpari_sim *sim, const dpar_action *action, int32_t *other)
{
    const dpari_sim_stage *st = &sim->stage[action->stage];
    int side = dpari_sim_message_side(action->kind);
    int row = dpari_action_is_send(action->kind) ? DPARI_AT_RECV : DPARI_AT_SEND;
    *other = st->rank_at[side];
    return *dpari_sim_place(sim, row + dpari_message_way(action->kind), st->stage_at[side],
                            action->micro_batch);
}

/* Transfers a message whose halves were reached, half i at `mine` and half j at `theirs`. The later
 * one starts the transfer. Returns when it ends. */
static int64_t dpari_sim_meet(dpari_sim *sim, int64_t i, int64_t mine, int64_t j, int64_t theirs)
{
    const dpar_action *action = &sim->s.action[i];
    int64_t end = dpari_most(mine, theirs) +
                  sim->stage[action->stage].edge[dpari_sim_message_side(action->kind)];
    sim->end[i] = sim->end[j] = end;
    sim->cause[i] = theirs > mine ? (uint32_t)j + 1 : 0;
    sim->cause[j] = mine > theirs ? (uint32_t)i + 1 : 0;
    return end;
}

/* Makes blocking message i occupy rank q until `end`. */
static void dpari_sim_block(dpari_sim *sim, dpari_sim_rank *q, int64_t i, int64_t end)
{
    const dpar_action *action = &sim->s.action[i];
    if (!dpari_action_is_send(action->kind)) {
        dpari_sim_idle(sim, q, (uint32_t)i + 1, end);
    } else {
        q->communication += end - q->free;
    }
    q->free = end;
    q->at = i + 1;
}

/* ---- queues and buffers ---------------------------------------------------------------------- */

/* Returns the queue of its rank in which a message waits. */
static int32_t dpari_sim_queue(const dpari_sim *sim, const dpar_action *action)
{
    return dpari_transport_queue(
        sim->transport, action->kind,
        sim->stage[action->stage].rank_at[dpari_sim_message_side(action->kind)]);
}

/* Appends message i to its queue. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_line_up(dpari_sim *sim, int64_t i)
{
    const dpar_action *action = &sim->s.action[i];
    dpari_sim_line *line = &sim->line[dpari_sim_queue(sim, action)];
    dpari_sim_link *link = &sim->link[i];
    int32_t other;
    uint32_t half;
    if (sim->transport == DPAR_TRANSPORT_EAGER && !dpari_action_is_send(action->kind)) {
        return; /* its SEND represents it in the queue */
    }
    link->before = line->last;
    link->behind = 0;
    if (line->last != 0) {
        sim->link[line->last - 1].behind = (uint32_t)i + 1;
    } else {
        line->taken = (uint32_t)i + 1;
    }
    line->last = (uint32_t)i + 1;
    half = dpari_sim_half(sim, action, &other);
    if (sim->transport != DPAR_TRANSPORT_EAGER || half == 0) {
        return;
    }
    sim->link[half - 1].before = 0;
    if (line->count++ >= sim->room) {
        sim->link[half - 1].before = line->taken;
        line->taken = sim->link[line->taken - 1].behind;
    }
}

/* Builds the queues of all ranks. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_line_all(dpari_sim *sim)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t r, pass;
    int64_t i;
    for (r = 0; r < schedule->ranks; r++) {
        for (pass = 0; pass < 2; pass++) {
            for (i = schedule->begin[r]; i < schedule->begin[r + 1]; i++) {
                const dpar_action *action = &schedule->action[i];
                if (!dpari_action_is_message(action->kind)) {
                    continue;
                }
                if (pass == 0) { /* clears only the queues that are used: a rank has few peers */
                    dpari_zero(&sim->line[dpari_sim_queue(sim, action)], sizeof(*sim->line));
                } else {
                    dpari_sim_line_up(sim, i);
                }
            }
        }
    }
}

/* Returns when the message before message i in its queue has been transferred, 0 if there is none,
 * or -1 if the time is not known yet. */
static int64_t dpari_sim_first(const dpari_sim *sim, int64_t i)
{
    const uint32_t before = sim->link[i].before;
    if (before == 0) {
        return 0;
    }
    return dpari_most(sim->end[before - 1], -1);
}

/* Returns why message i was transferred at `start` and not earlier, as 1 + an action: 0 for its own
 * rank, its other half j, or the message before it in one of the two queues. */
static uint32_t dpari_sim_cause_of(const dpari_sim *sim, int64_t i, int64_t j, int64_t mine,
                                   int64_t theirs, int64_t start)
{
    if (mine == start) {
        return 0;
    }
    if (theirs == start) {
        return (uint32_t)j + 1;
    }
    return dpari_sim_first(sim, i) == start ? sim->link[i].before : sim->link[j].before;
}

/* Transfers message i, which was reached, if its other half was reached too and both are first in
 * their queues. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_transfer(dpari_sim *sim, int64_t i)
{
    const dpar_action *action = &sim->s.action[i];
    int32_t other;
    const int64_t j = (int64_t)dpari_sim_half(sim, action, &other) - 1, mine = -2 - sim->end[i];
    const int64_t theirs = -2 - sim->end[j], here = dpari_sim_first(sim, i);
    const int64_t there = dpari_sim_first(sim, j);
    int64_t start;
    if (theirs < 0 || here < 0 || there < 0) {
        return;
    }
    start = dpari_most(dpari_most(mine, theirs), dpari_most(here, there));
    sim->cause[i] = dpari_sim_cause_of(sim, i, j, mine, theirs, start);
    sim->cause[j] = dpari_sim_cause_of(sim, j, i, theirs, mine, start);
    sim->end[i] = sim->end[j] =
        start + sim->stage[action->stage].edge[dpari_sim_message_side(action->kind)];
    sim->link[i].before = sim->moved; /* not needed any more, so that it links the list `moved` */
    sim->link[j].before = (uint32_t)i + 1;
    sim->moved = (uint32_t)j + 1;
    dpari_sim_wake(sim, other, j);
    dpari_sim_wake(sim, sim->s.rank_of[action->stage], i);
}

/* Posts message i, the next action of rank q. Then transfers all messages that can be transferred.
 */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_sim_post(dpari_sim *sim, dpari_sim_rank *q, int64_t i)
{
    q->at = i + 1;
    sim->end[i] = -2 - q->free;
    dpari_sim_transfer(sim, i);
    while (sim->moved != 0) {
        const dpari_sim_link *link = &sim->link[sim->moved - 1];
        const int64_t next = (int64_t)link->behind - 1;
        sim->moved = link->before;
        if (next >= 0 && sim->end[next] < -1) {
            dpari_sim_transfer(sim, next);
        }
    }
    return 1;
}

/* EAGER: makes a SEND into a buffer, or a RECV out of one, occupy rank q until it is possible.
 * Returns 0 if that time is not known yet. */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_sim_buffer(dpari_sim *sim, dpari_sim_rank *q, int64_t i,
                                                      int64_t j, int32_t other)
{
    const dpar_action *action = &sim->s.action[i];
    const int sends = dpari_action_is_send(action->kind);
    const int64_t send = sends ? i : j;
    const uint32_t before = sends ? sim->link[j].before : sim->link[send].before;
    int32_t rank;
    uint32_t needs = 0; /* 1 + the RECV that frees the place, or that is before this one */
    int64_t time = q->free;
    if (before != 0) {
        needs = dpari_sim_half(sim, &sim->s.action[before - 1], &rank);
        if (needs == 0 || sim->end[needs - 1] < 0) {
            q->waits = needs;
            return 0;
        }
    }
    if (!sends && sim->end[j] < 0) {
        q->waits = j + 1;
        return 0;
    }
    if (sends && needs != 0) {
        time = dpari_most(time, sim->end[needs - 1]);
    }
    if (!sends) {
        needs = (uint32_t)j + 1;
        time = dpari_most(time,
                          sim->end[j] +
                              sim->stage[action->stage].edge[dpari_sim_message_side(action->kind)]);
    }
    sim->end[i] = time;
    sim->cause[i] = time > q->free ? needs : 0;
    dpari_sim_block(sim, q, i, time);
    dpari_sim_wake(sim, other, i);
    return 1;
}

/* Runs a message, the next action of rank q. Returns 0 if it has to wait. */
static int dpari_sim_message(dpari_sim *sim, dpari_sim_rank *q, const dpar_action *action)
{
    const int64_t i = q->at;
    int32_t other;
    const int64_t j = (int64_t)dpari_sim_half(sim, action, &other) - 1;
    dpari_sim_rank *o = &sim->rank[other];
    if (j < 0) {
        return 0;
    }
    if (sim->sends == DPARI_SENDS_QUEUED) {
        return dpari_sim_post(sim, q, i);
    }
    if (sim->sends == DPARI_SENDS_EAGER) {
        return dpari_sim_buffer(sim, q, i, j, other);
    }
    if (sim->sends == DPAR_SEND_MODE_BLOCKING) {
        int64_t end;
        if (o->at != j) {
            q->waits = i + 1;
            return 0;
        }
        end = dpari_sim_meet(sim, i, q->free, j, o->free);
        dpari_sim_block(sim, q, i, end);
        dpari_sim_block(sim, o, j, end);
        dpari_sim_wake(sim, other, j);
        return 1;
    }
    q->at = i + 1;
    if (sim->sends == DPAR_SEND_MODE_POSTED) {
        if (sim->end[j] > -2) {
            sim->end[i] = -2 - q->free;
            return 1;
        }
        (void)dpari_sim_meet(sim, i, q->free, j, -2 - sim->end[j]);
    } else if (dpari_action_is_send(action->kind)) {
        sim->end[i] = sim->end[j] = dpari_sim_send(sim, &sim->stage[action->stage],
                                                   dpari_sim_message_side(action->kind), q->free);
        sim->arrive[j] = sim->end[j];
        sim->cause[i] = 0;
        sim->cause[j] = (uint32_t)i + 1;
    }
    dpari_sim_wake(sim, other, j);
    return 1;
}

/* Advances all ranks until each has finished or waits. */
static void dpari_sim_run(dpari_sim *sim)
{
    int32_t r;
    sim->tops = 0;
    for (r = sim->s.ranks - 1; r >= 0; r--) {
        sim->stack[sim->tops++] = r;
    }
    while (sim->tops > 0) {
        dpari_sim_rank *q = &sim->rank[sim->stack[--sim->tops]];
        int going = 1;
        while (going && q->at < q->end) {
            const dpar_action *action = &sim->s.action[q->at];
            if (action->kind == DPAR_ACTION_IDLE) {
                q->at++;
            } else {
                going = dpari_action_is_message(action->kind) ? dpari_sim_message(sim, q, action)
                                                              : dpari_sim_work(sim, q, action);
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* Writes a message like "rank 3 waits at 3F0 for 2F0 of rank 2, which is at 2B0". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_stuck(dpari_sim *sim, int32_t rank,
                                                             dpar_why *why)
{
    const dpar_action *action = &sim->s.action[sim->rank[rank].at];
    dpar_action want = *action;
    uint32_t at = 0;
    int32_t other = rank;
    dpar_text t;
    int way = dpari_sim_way(action->kind);
    if (why == NULL) {
        return DPAR_E_STUCK;
    }
    if (dpari_action_is_message(action->kind)) {
        at = dpari_sim_half(sim, action, &other);
        want.stage =
            (uint16_t)sim->stage[action->stage].stage_at[dpari_sim_message_side(action->kind)];
        want.kind =
            (uint8_t)(dpari_action_is_send(action->kind) ? action->kind + 1 : action->kind - 1);
    } else {
        int64_t begin = 0;
        uint32_t cause = 0;
        if (action->joined && dpari_sim_input(sim, &sim->rank[rank], action, way, &begin, &cause)) {
            want = action[1];
            way = 1;
        }
        other = sim->stage[want.stage].rank_at[way];
        want.stage = (uint16_t)sim->stage[want.stage].stage_at[way];
        if (sim->lowered) {
            want.kind = (uint8_t)(way ? DPAR_ACTION_SEND_B : DPAR_ACTION_SEND_F);
        } else {
            want.kind = (uint8_t)(way ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD);
        }
        at = *dpari_sim_place(sim, dpari_sim_row(want.kind), want.stage, want.micro_batch);
        want = at == 0 ? want : sim->s.action[at - 1];
    }
    want.joined = 0;
    dpari_text_why(&t, why);
    dpari_text_say(&t, "rank %d waits at ", rank);
    dpar_action_write(action, &t);
    dpar_text_put(&t, " for ");
    dpar_action_write(&want, &t);
    dpari_text_say(&t, " of rank %d", other);
    if (at == 0) {
        dpar_text_put(&t, ", which is in no list");
    } else if (sim->end[at - 1] < -1) {
        dpar_text_put(&t, ", which waits in its queue");
    } else if (sim->rank[other].at == sim->rank[other].end) {
        dpar_text_put(&t, ", which is behind another message");
    } else {
        dpar_text_put(&t, ", which is at ");
        dpar_action_write(&sim->s.action[sim->rank[other].at], &t);
    }
    return DPAR_E_STUCK;
}

/* Writes the message for a schedule whose ranks have all finished, but with a message still in its
 * queue. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_left(int32_t rank, const dpar_action *action,
                                                            dpar_why *why)
{
    dpar_text t;
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpari_text_say(&t, "rank %d: ", rank);
        dpar_action_write(action, &t);
        dpar_text_put(&t, " stays in its queue");
    }
    return DPAR_E_STUCK;
}

/* Checks that all ranks have finished and all messages were transferred. */
static dpar_status dpari_sim_finished(dpari_sim *sim, dpar_why *why)
{
    int32_t r;
    int64_t i;
    for (r = 0; r < sim->s.ranks; r++) {
        if (sim->rank[r].at < sim->rank[r].end) {
            return dpari_sim_stuck(sim, r, why);
        }
    }
    for (r = 0; r < sim->s.ranks && sim->sends == DPARI_SENDS_QUEUED; r++) {
        for (i = sim->s.begin[r]; i < sim->rank[r].end; i++) {
            if (sim->end[i] < -1) {
                return dpari_sim_left(r, &sim->s.action[i], why);
            }
        }
    }
    return DPAR_OK;
}

/* True if an action of this kind occupies its rank: work, and messages of blocking transports. */
static int dpari_sim_holds(const dpari_sim *sim, int kind)
{
    if (dpari_action_is_message(kind)) {
        return sim->sends == DPAR_SEND_MODE_BLOCKING || sim->sends == DPARI_SENDS_EAGER;
    }
    return kind != DPAR_ACTION_IDLE;
}

/* Returns the action whose end let action i start, or -1 if it starts at 0. A joined pair is
 * represented by its forward. */
static int64_t dpari_sim_before(const dpari_sim *sim, int64_t i)
{
    const dpar_schedule *schedule = &sim->s;
    const int64_t begin = schedule->begin[schedule->rank_of[schedule->action[i].stage]];
    if (sim->cause[i] != 0) {
        i = (int64_t)sim->cause[i] - 1;
        return i > 0 && schedule->action[i - 1].joined ? i - 1 : i;
    }
    do {
        i--;
    } while (i >= begin && (!dpari_sim_holds(sim, schedule->action[i].kind) ||
                            (i > begin && schedule->action[i - 1].joined)));
    return i >= begin ? i : -1;
}

/* Returns when forward i could start if its rank were free: when its input has arrived, and the
 * previous slice and the previous stage on its own rank have ended. */
static int64_t dpari_sim_could(const dpari_sim *sim, int64_t i)
{
    const dpar_action *action = &sim->s.action[i];
    const dpari_sim_stage *st = &sim->stage[action->stage];
    int64_t at = 0;
    if (st->rank_at[0] >= 0) {
        at = sim->arrive[sim->where[st->source[0] + action->micro_batch] - 1] + st->delay[0];
    } else if (st->stage_at[0] >= 0) {
        at = sim->end[*dpari_sim_place(sim, DPARI_AT_WORK, st->stage_at[0], action->micro_batch) -
                      1];
    }
    if (action->micro_batch % sim->s.slices != 0) {
        at = dpari_most(
            at,
            sim->end[*dpari_sim_place(sim, DPARI_AT_WORK, action->stage, action->micro_batch - 1) -
                     1]);
    }
    return at;
}

/* True if held + more exceeds the cap, which is above 0. */
static int dpari_sim_over(int64_t held, int64_t more, int64_t cap)
{
    return more > 0 ? held > cap - more : held > cap && held + more > cap;
}

/* Counts idle time before action i as lack of memory. The rank is idle from `clock` to `until`, and
 * memory is the cause from `since` on. That part is moved to o->memory from dependency and
 * communication, to which the run added it. Idle time before the first work was not added there,
 * and is left out. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_move(const dpari_sim *sim, dpar_rank_timing *o,
                                                     int64_t i, int64_t clock, int64_t until,
                                                     int64_t since)
{
    const int kind = sim->s.action[i].kind;
    int64_t done = clock; /* of a blocking SEND all is communication */
    since = dpari_most(since, clock);
    if (since >= until || clock < o->first) {
        return;
    }
    if (!dpari_action_is_send(kind)) {
        done = dpari_sim_done(sim, dpari_action_is_message(kind) ? (uint32_t)i + 1 : sim->cause[i]);
    }
    done = dpari_most(done, since);
    o->dependency -= done - since;
    o->communication -= until - done;
    o->memory += until - since;
}

/* Reads a rank's list once more after the run and finds the gaps that are due to memory: those in
 * which the next forward has its input, but its activation does not fit under the cap. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_starved(dpari_sim *sim, dpari_sim_rank *q,
                                                        int64_t begin, int64_t cap)
{
    const dpar_action *list = sim->s.action;
    int64_t i, ahead = begin, clock = 0;
    q->live = 0;
    for (i = begin; i < q->end; i++) {
        const dpar_action *action = &list[i];
        if (action->kind == DPAR_ACTION_IDLE) {
            continue; /* its stage was not checked */
        }
        if (dpari_sim_holds(sim, action->kind)) {
            int64_t until = sim->end[i];
            until -= dpari_action_is_message(action->kind) ? 0 : dpari_sim_takes(sim, action);
            while (ahead < q->end && (ahead <= i || list[ahead].kind != DPAR_ACTION_FORWARD)) {
                ahead++;
            }
            if (until > clock && ahead < q->end &&
                dpari_sim_over(q->held, sim->stage[list[ahead].stage].hold[0], cap)) {
                dpari_sim_move(sim, &q->out, i, clock, until, dpari_sim_could(sim, ahead));
            }
            clock = sim->end[i];
        }
        (void)dpari_sim_memory(q, &sim->stage[action->stage], action->kind);
        if (action->joined) { /* both run at once */
            i++;
            (void)dpari_sim_memory(q, &sim->stage[list[i].stage], list[i].kind);
        }
    }
}

/* Computes the idle time that is due to caps, and by how much each rank exceeds its cap. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_caps(dpari_sim *sim,
                                                     const dpar_schedule_times *times)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t i;
    for (i = 0; i < schedule->ranks; i++) {
        sim->rank[i].held = 0;
    }
    for (i = 0; i < schedule->stages; i++) {
        sim->rank[schedule->rank_of[i]].held += dpari_each_at(&times->hold_always, i);
    }
    for (i = 0; i < schedule->ranks; i++) {
        dpari_sim_rank *q = &sim->rank[i];
        const int64_t cap = dpari_each_at(&times->cap, i);
        if (cap > 0) {
            dpari_sim_starved(sim, q, schedule->begin[i], cap);
            q->out.over_cap = dpari_most(0, q->out.peak_bytes - cap);
        }
    }
}

/* Adds up the critical path from its last action to its first one. */
static void dpari_sim_critical(const dpari_sim *sim, dpar_timing *out)
{
    int64_t i;
    for (i = sim->last; i >= 0; i = dpari_sim_before(sim, i)) {
        const dpar_action *action = &sim->s.action[i];
        out->path_actions++;
        if (!dpari_action_is_message(action->kind)) {
            out->path_compute += dpari_sim_takes(sim, action);
        }
    }
    out->path_communication = out->makespan - out->path_compute;
}

/* Completes the timing of a rank with the idle time after its last work, and adds it to the totals.
 */
static void dpari_sim_close(dpari_sim_rank *q, int64_t makespan, dpar_timing *out)
{
    dpar_rank_timing *o = &q->out;
    if (o->first < 0) {
        o->first = 0;
        o->warm_up = makespan;
    } else {
        o->drain = makespan - o->last;
    }
    out->busy += o->busy;
    out->span = dpari_most(out->span, o->last - o->first);
    out->bubble_worst = dpari_most(out->bubble_worst, makespan - o->busy);
    out->peak_bytes = dpari_most(out->peak_bytes, o->peak_bytes);
    out->peak_count = (int32_t)dpari_most(out->peak_count, o->peak_count);
    out->over_cap = dpari_most(out->over_cap, o->over_cap);
}

/* Computes the timing of the whole schedule. */
static dpar_status dpari_sim_sum(dpari_sim *sim, dpar_timing *out, dpar_why *why)
{
    const dpar_schedule *schedule = &sim->s;
    int64_t i, whole;
    int32_t r;
    dpari_zero(out, sizeof(*out));
    sim->last = -1;
    for (r = 0; r < schedule->ranks; r++) {
        if (sim->rank[r].free > out->makespan || sim->last < 0) {
            for (i = sim->rank[r].end - 1; i >= schedule->begin[r]; i--) {
                if (dpari_sim_holds(sim, schedule->action[i].kind)) {
                    break;
                }
            }
            i -= i > schedule->begin[r] && schedule->action[i - 1].joined;
            sim->last = i >= schedule->begin[r] ? i : -1;
        }
        out->makespan = dpari_most(out->makespan, sim->rank[r].free);
    }
    if (!dpari_mul(out->makespan, schedule->ranks, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "%d ranks x a makespan of %ld exceed INT64_MAX",
                         schedule->ranks, out->makespan);
    }
    for (r = 0; r < schedule->ranks; r++) {
        dpari_sim_close(&sim->rank[r], out->makespan, out);
    }
    out->lowered = sim->lowered;
    out->bubble_first = out->makespan - sim->rank[0].out.busy;
    out->bubble_of_makespan.part = whole - out->busy;
    out->bubble_of_makespan.whole = whole;
    out->bubble_of_work.part = whole - out->busy;
    out->bubble_of_work.whole = out->busy;
    out->bubble_of_span.part = schedule->ranks * out->span - out->busy;
    out->bubble_of_span.whole = schedule->ranks * out->span;
    dpari_sim_critical(sim, out);
    return DPAR_OK;
}

/* Writes the start and end of each action. Messages that do not occupy their rank start when the
 * rank reaches them. */
static void dpari_sim_fill(const dpari_sim *sim, int64_t *start, int64_t *end)
{
    const dpar_schedule *schedule = &sim->s;
    int32_t r;
    int64_t i, clock;
    for (r = 0; r < schedule->ranks; r++) {
        clock = 0;
        for (i = schedule->begin[r]; i < schedule->begin[r + 1]; i++) {
            const dpar_action *action = &schedule->action[i];
            const int pair = i > schedule->begin[r] && action[-1].joined;
            const int idle = action->kind == DPAR_ACTION_IDLE;
            const int64_t stop = idle ? clock : sim->end[i];
            int64_t go = clock;
            if (!idle && !dpari_action_is_message(action->kind)) {
                go = stop - dpari_sim_takes(sim, pair ? action - 1 : action);
            }
            clock = dpari_sim_holds(sim, action->kind) ? stop : clock;
            if (start != NULL) {
                start[i] = go;
            }
            if (end != NULL) {
                end[i] = stop;
            }
        }
    }
}

/* ---- the call -------------------------------------------------------------------------------- */

/* Checks the shape of the schedule and the settings of messages. */
static dpar_status dpari_sim_choices(const dpar_schedule *schedule,
                                     const dpar_schedule_times *times, dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (!dpari_sim_fits(schedule) || schedule->begin[0] != 0) {
        return dpari_wrong(
            why,
            "this is not a schedule: it has %d stages in chains of %d, and %d micro-batches in "
            "slices of %d",
            schedule->stages, schedule->chain, schedule->micro_batches, schedule->slices);
    }
    for (i = 0; i < schedule->ranks; i++) {
        if (schedule->begin[i] > schedule->begin[i + 1]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", i,
                               schedule->begin[i], schedule->begin[i + 1]);
        }
        if (dpari_each_at(&times->cap, i) < 0) {
            return dpari_wrong(why, "rank %d: cap is %ld; 0 or more are allowed", i,
                               dpari_each_at(&times->cap, i));
        }
    }
    st = dpari_schedule_check_ranks(schedule, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (times->sends < 0 || times->sends >= DPAR_SEND_MODE_COUNT || times->links < 0 ||
        times->links >= DPAR_CONTENTION_COUNT) {
        return dpari_wrong(why,
                           "sends=%d, links=%d; DPAR_SEND_MODE_x and DPAR_CONTENTION_x are allowed",
                           times->sends, times->links);
    }
    if (times->sends != DPAR_SEND_MODE_BUFFERED && times->links != DPAR_CONTENTION_NONE) {
        return dpari_wrong(why, "sends=%d, links=%d; only buffered sends (0) can share links",
                           times->sends, times->links);
    }
    st = dpari_transport_check(times->transport, times->capacity, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (times->transport != DPAR_TRANSPORT_NONE && (times->sends != 0 || times->links != 0)) {
        return dpari_wrong(why, "sends=%d, links=%d; both must be 0, because transport=%d is set",
                           times->sends, times->links, times->transport);
    }
    return DPAR_OK;
}

static int32_t dpari_sim_has_messages(const dpar_schedule *schedule)
{
    const int64_t n = schedule->begin[schedule->ranks];
    int64_t i;
    for (i = 0; i < n; i++) {
        if (dpari_action_is_message(schedule->action[i].kind)) {
            return 1;
        }
    }
    return 0;
}

/* True if two neighbouring stages are on different ranks. */
static int dpari_sim_crosses(const dpar_schedule *schedule)
{
    int32_t i;
    for (i = 0; i < schedule->stages; i++) {
        int32_t next = dpari_schedule_behind(schedule, i);
        if (next >= 0 && schedule->rank_of[next] != schedule->rank_of[i]) {
            return 1;
        }
    }
    return 0;
}

/* Returns how messages are sent, DPAR_SEND_MODE_x or DPARI_SENDS_x. */
static int32_t dpari_sim_sends(const dpar_schedule_times *times)
{
    switch (times->transport) {
    case DPAR_TRANSPORT_NONE: return times->sends;
    case DPAR_TRANSPORT_BLOCKING: return DPAR_SEND_MODE_BLOCKING;
    case DPAR_TRANSPORT_EAGER: return DPARI_SENDS_EAGER;
    default: return DPARI_SENDS_QUEUED;
    }
}

/* Prepares the run: the values of stages, the wires, the table and the queues. */
static dpar_status dpari_sim_ready(dpari_sim *sim, const dpar_schedule_times *times, dpar_why *why)
{
    dpar_status status;
    sim->lowered = dpari_sim_has_messages(&sim->s);
    sim->sends = dpari_sim_sends(times);
    sim->total = 0;
    if (!sim->lowered && sim->sends != DPAR_SEND_MODE_BUFFERED) {
        if (dpari_sim_crosses(&sim->s)) {
            const int by_sends = times->transport == DPAR_TRANSPORT_NONE;
            const int32_t value = by_sends ? times->sends : times->transport;
            return dpari_wrong(why, "%s=%d needs messages; call dpar_schedule_lower first",
                               by_sends ? "sends" : "transport", value);
        }
        sim->sends = DPAR_SEND_MODE_BUFFERED; /* there are no messages at all */
    }
    dpari_zero(sim->rank, (size_t)sim->s.ranks * sizeof(*sim->rank));
    status = dpari_sim_stages(sim, times, why);
    if (status == DPAR_OK && sim->links != DPAR_CONTENTION_NONE) {
        dpari_sim_wires(sim);
    }
    if (status == DPAR_OK) {
        status = dpari_sim_list(sim, why);
    }
    if (status == DPAR_OK && sim->sends > DPAR_SEND_MODE_BLOCKING) {
        dpari_sim_line_all(sim);
    }
    return status;
}

DPAR_API dpar_status dpar_schedule_simulate(const dpar_schedule *schedule,
                                            const dpar_schedule_simulate_desc *how,
                                            dpar_timing *timing, void *mem, int64_t bytes,
                                            dpar_why *why)
{
    const dpar_schedule_times *times = how->times;
    dpari_sim *sim = (dpari_sim *)mem;
    dpar_timing out;
    int64_t i, at, needed;
    int32_t r;
    dpar_status status = dpari_sim_choices(schedule, times, why);
    if (status != DPAR_OK) {
        return status;
    }
    needed = dpari_schedule_simulate_bytes(schedule, how);
    if (mem == NULL || bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "simulating %ld actions needs %ld bytes, got %ld",
                         schedule->begin[schedule->ranks], needed, bytes);
    }
    (void)dpari_sim_arrange(sim, schedule, times, mem);
    status = dpari_sim_ready(sim, times, why);
    if (status == DPAR_OK) {
        dpari_sim_run(sim);
        status = dpari_sim_finished(sim, why);
    }
    if (status == DPAR_OK && dpari_sim_capped(times)) {
        dpari_sim_caps(sim, times);
    }
    if (status == DPAR_OK) {
        status = dpari_sim_sum(sim, &out, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (how->start != NULL || how->end != NULL) {
        dpari_sim_fill(sim, how->start, how->end);
    }
    for (r = 0; r < schedule->ranks && how->rank != NULL; r++) {
        how->rank[r] = sim->rank[r].out;
    }
    if (how->path != NULL) {
        at = out.path_actions;
        for (i = sim->last; i >= 0; i = dpari_sim_before(sim, i)) {
            how->path[--at] = i;
        }
    }
    *timing = out;
    return DPAR_OK;
}
