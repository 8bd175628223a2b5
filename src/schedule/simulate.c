/* SPDX-License-Identifier: MIT-0 */
/* Simulates schedules. One pass over the lists enters each action in a table by stage, micro-batch
 * and kind, and adds up memory, which only depends on the order. The run then advances each rank as
 * far as its inputs allow. A rank that waits is resumed when its input arrives. Each action is
 * visited a bounded number of times, so that the cost does not depend on the lengths of times. */
#include "simulate.h"

#include "../base/inner.h"
#include "action.h"
#include "inner.h"

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
    int64_t come[2];     /* time from the end of the action at `look` to the arrival of the input */
    int64_t look[2];     /* row and stage in the table of the action that brings the input */
    int32_t stage_at[2]; /* the stage on that side, or -1 */
    int32_t rank_at[2];  /* its rank, or -1 if that is this rank */
    int32_t link[2];     /* the wire to that side, if wires are shared */
} dpari_sim_stage;

/* A message in its queue. With EAGER a SEND is in a queue of all SENDs to the same rank, and
 * `before` of its RECV is the SEND whose place in the buffer it takes. */
typedef struct dpari_sim_link {
    uint32_t before, behind; /* 1 + the action, or 0 */
} dpari_sim_link;

/* A queue of a rank while it is built. */
typedef struct dpari_sim_line {
    uint32_t last;  /* 1 + the last action, or 0 */
    uint32_t taken; /* EAGER: 1 + the SEND whose place the next SEND takes if the buffer is full */
    int32_t count;  /* EAGER: SENDs so far */
} dpari_sim_line;

/* Ways to send that follow from a transport, in addition to DPAR_SEND_MODE_x. */
enum { DPARI_SENDS_QUEUED = DPAR_SEND_MODE_COUNT, DPARI_SENDS_EAGER };

typedef struct dpari_sim_rank {
    int64_t at, end;                   /* the next action, and one past the last */
    int64_t free;                      /* when the actions before it are done */
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
    int64_t *end; /* [actions], when it ends; -1 if unknown, -2 - t for a message reached at t */
    /* [actions], when its output arrives. The same array as `end` unless links are shared. */
    int64_t *arrive;
    int64_t *wire;   /* when each shared wire is free */
    uint32_t *where; /* the table: 1 + the index of the action, or 0 */
    uint32_t *cause; /* [actions], 1 + the action whose end let this one start; 0 is the action
                        before it on its rank */
    int32_t *stack;  /* [tops], ranks that can continue */
    int32_t *scratch;
    dpari_sim_link *link; /* [actions], if messages wait in queues or buffers */
    dpari_sim_line *line; /* [2 ranks] */
    uint32_t
        moved; /* 1 + a transferred message whose successor may be next, the head of a list; 0 */
    int64_t cells; /* entries in a row of the table */
    int64_t total; /* the sum of all times, which no time of the run can exceed */
    int64_t last;  /* the last action of the critical path, or -1 */
    int32_t tops, lowered, sends, links, transport, room;
} dpari_sim;

/* ---- memory --------------------------------------------------------------------------------- */

/* True if the schedule has a shape that can be simulated. */
static int dpari_sim_fits(const dpar_schedule *s)
{
    return s->ranks >= 1 && s->ranks <= DPAR_MAX_STAGES && s->stages >= 1 &&
           s->stages <= DPAR_MAX_STAGES && s->micro_batches >= 0 &&
           s->micro_batches <= DPAR_MAX_MICRO_BATCHES && s->chain >= 1 &&
           s->stages % s->chain == 0 && s->slices >= 1 && s->micro_batches % s->slices == 0 &&
           s->begin[s->ranks] >= 0 && s->begin[s->ranks] <= (int64_t)UINT32_MAX - 1;
}

/* Takes the next piece of the memory, whose size is rounded up to 8 bytes. */
DPARI_STATIC_NOINLINE void *dpari_sim_piece(char *mem, int64_t *used, int64_t bytes)
{
    void *at = mem == NULL ? NULL : mem + *used;
    *used += dpari_whole_words(bytes);
    return at;
}

/* True if messages of this transport wait for other messages. */
static int dpari_sim_lines(int32_t transport)
{
    return transport >= DPAR_TRANSPORT_RANK && transport <= DPAR_TRANSPORT_EAGER;
}

/* Divides mem into the struct and its arrays, and returns their bytes. If mem is NULL they are only
 * counted. */
static int64_t dpari_sim_lay(dpari_sim *m, const dpar_schedule *s, const dpar_schedule_times *t,
                             void *mem)
{
    char *at = (char *)mem;
    const int64_t n = s->begin[s->ranks], ranks = s->ranks, stages = s->stages;
    int64_t used = 0;
    (void)dpari_sim_piece(at, &used, (int64_t)sizeof(*m));
    m->s = *s;
    m->links = t->links;
    m->transport = t->transport;
    m->room = t->capacity;
    m->link = NULL;
    m->line = NULL;
    m->moved = 0;
    m->cells = stages * s->micro_batches;
    m->stage = (dpari_sim_stage *)dpari_sim_piece(at, &used, stages * (int64_t)sizeof(*m->stage));
    m->rank = (dpari_sim_rank *)dpari_sim_piece(at, &used, ranks * (int64_t)sizeof(*m->rank));
    m->end = (int64_t *)dpari_sim_piece(at, &used, 8 * n);
    m->arrive = m->end;
    m->wire = NULL;
    m->scratch = NULL;
    if (m->links != DPAR_CONTENTION_NONE) {
        m->arrive = (int64_t *)dpari_sim_piece(at, &used, 8 * n);
        m->wire = (int64_t *)dpari_sim_piece(at, &used, 8 * (ranks + 2 * stages));
        m->scratch = (int32_t *)dpari_sim_piece(at, &used, 4 * (2 * ranks + stages));
    }
    if (dpari_sim_lines(m->transport)) {
        m->link = (dpari_sim_link *)dpari_sim_piece(at, &used, n * (int64_t)sizeof(*m->link));
        m->line =
            (dpari_sim_line *)dpari_sim_piece(at, &used, 2 * ranks * (int64_t)sizeof(*m->line));
    }
    m->where = (uint32_t *)dpari_sim_piece(at, &used, 4 * DPARI_AT_ROWS * m->cells);
    m->cause = (uint32_t *)dpari_sim_piece(at, &used, 4 * n);
    m->stack = (int32_t *)dpari_sim_piece(at, &used, 4 * ranks);
    return used;
}

DPARI_INTERNAL int64_t dpari_schedule_simulate_bytes(const dpar_schedule *s,
                                                     const dpar_schedule_simulate_desc *how)
{
    dpari_sim m;
    return dpari_sim_fits(s) ? dpari_sim_lay(&m, s, how->times, NULL) : -1;
}

/* ---- times and bytes ------------------------------------------------------------------------ */

static int64_t dpari_each(const dpar_stage_values *e, int32_t stage)
{
    return e->each != NULL ? e->each[stage] : e->all;
}

/* Adds a number of 0 or more. Returns 0 if the sum would exceed INT64_MAX. */
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
static dpar_status dpari_sim_edge(const dpar_schedule_times *t, int32_t stage, int64_t *edge,
                                  int64_t *turn, dpar_why *why)
{
    int64_t latency = dpari_each(&t->latency, stage), bytes = dpari_each(&t->bytes, stage);
    int64_t bandwidth = dpari_each(&t->bandwidth, stage), left = 0;
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

/* Fills the values of one side of a stage. */
static dpar_status dpari_sim_side(dpari_sim *m, const dpar_schedule_times *t, int32_t stage,
                                  int side, dpar_why *why)
{
    const dpar_schedule *s = &m->s;
    dpari_sim_stage *st = &m->stage[stage];
    int32_t beside = side ? dpari_schedule_behind(s, stage) : dpari_schedule_before(s, stage);
    dpar_status status;
    st->stage_at[side] = beside;
    st->rank_at[side] =
        beside < 0 || s->rank_of[beside] == s->rank_of[stage] ? -1 : (int32_t)s->rank_of[beside];
    st->edge[side] = st->turn[side] = st->come[side] = st->look[side] = 0;
    st->link[side] = s->rank_of[stage];
    if (st->rank_at[side] < 0) {
        return DPAR_OK;
    }
    st->look[side] = m->lowered
                         ? (DPARI_AT_RECV + side) * m->cells + (int64_t)stage * s->micro_batches
                         : (DPARI_AT_WORK + side) * m->cells + (int64_t)beside * s->micro_batches;
    status = dpari_sim_edge(t, side ? stage : beside, &st->edge[side], &st->turn[side], why);
    st->come[side] = m->lowered || m->links != DPAR_CONTENTION_NONE ? 0 : st->edge[side];
    return status;
}

/* Fills the times of all kinds of actions on a stage. */
static dpar_status dpari_sim_costs(dpari_sim_stage *st, const dpar_schedule_times *t, int32_t stage,
                                   dpar_why *why)
{
    int kind;
    dpari_zero(st->cost, sizeof(st->cost));
    st->cost[DPAR_ACTION_FORWARD] = dpari_each(&t->forward, stage);
    st->cost[DPAR_ACTION_BACKWARD] = dpari_each(&t->backward, stage);
    st->cost[DPAR_ACTION_INPUT] = dpari_each(&t->input, stage);
    st->cost[DPAR_ACTION_WEIGHT] = dpari_each(&t->weight, stage);
    st->cost[DPAR_ACTION_UNSHARD] = dpari_each(&t->unshard, stage);
    st->cost[DPAR_ACTION_RESHARD] = dpari_each(&t->reshard, stage);
    st->cost[DPAR_ACTION_REDUCE_GRAD] = dpari_each(&t->reduce_grad, stage);
    st->cost[DPAR_ACTION_RECOMPUTE] = dpari_each(&t->recompute, stage);
    st->cost[DPAR_ACTION_OFFLOAD] = dpari_each(&t->offload, stage);
    st->cost[DPAR_ACTION_RELOAD] = dpari_each(&t->reload, stage);
    st->cost[DPAR_ACTION_IDLE] = st->overlap = dpari_each(&t->overlap, stage);
    for (kind = 0; kind < DPAR_ACTION_COUNT; kind++) {
        if (st->cost[kind] < 0) {
            return dpari_wrong(why, "stage %d: the time of %s is %ld; 0 or more are allowed", stage,
                               kind == DPAR_ACTION_IDLE ? "overlap" : dpari_action_name(kind),
                               st->cost[kind]);
        }
    }
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

static int dpari_sim_capped(const dpar_schedule_times *t)
{
    return t->cap.each != NULL || t->cap.all != 0;
}

/* Fills the bytes that F, I and W add. If there is a cap but no bytes, activations are counted
 * instead. */
static void dpari_sim_holding(dpari_sim_stage *st, const dpar_schedule_times *t, int32_t stage)
{
    int count = dpari_sim_capped(t) && t->hold_forward.each == NULL && t->hold_forward.all == 0;
    st->hold[0] = count ? 1 : dpari_each(&t->hold_forward, stage);
    st->hold[1] = count ? 0 : dpari_each(&t->hold_input, stage);
    st->hold[2] = count ? -1 : dpari_each(&t->hold_weight, stage);
}

/* Fills the values of all stages, and adds hold_always to what each rank holds. */
static dpar_status dpari_sim_stages(dpari_sim *m, const dpar_schedule_times *t, dpar_why *why)
{
    int32_t i;
    int side;
    for (i = 0; i < m->s.stages; i++) {
        dpari_sim_stage *st = &m->stage[i];
        int64_t always = dpari_each(&t->hold_always, i);
        dpar_status status = dpari_sim_costs(st, t, i, why);
        for (side = 0; side < 2 && status == DPAR_OK; side++) {
            status = dpari_sim_side(m, t, i, side, why);
        }
        if (status != DPAR_OK) {
            return status;
        }
        dpari_sim_holding(st, t, i);
        if (always < 0) {
            return dpari_wrong(why, "stage %d: hold_always is %ld; 0 or more are allowed", i,
                               always);
        }
        if (!dpari_sum(&m->rank[m->s.rank_of[i]].held, always)) {
            return dpari_say(DPAR_E_RANGE, why,
                             "rank %d: hold_always exceeds INT64_MAX at stage %d",
                             (int32_t)m->s.rank_of[i], i);
        }
    }
    return DPAR_OK;
}

/* Numbers the shared wires, one for each ordered pair of ranks. The number is 2 x stage + side of
 * the first stage and side of the sender with that pair. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_wires(dpari_sim *m)
{
    const dpar_schedule *s = &m->s;
    int32_t *head = m->scratch, *mark = head + s->ranks, *next = mark + s->ranks;
    int32_t r, i, side;
    for (i = 0; i < s->ranks + 2 * s->stages; i++) {
        m->wire[i] = 0;
    }
    if (m->links == DPAR_CONTENTION_RANK) {
        return;
    }
    for (r = 0; r < s->ranks; r++) {
        head[r] = mark[r] = -1;
    }
    for (i = s->stages - 1; i >= 0; i--) {
        next[i] = head[s->rank_of[i]];
        head[s->rank_of[i]] = i;
    }
    for (r = 0; r < s->ranks; r++) {
        for (i = head[r]; i >= 0; i = next[i]) {
            for (side = 0; side < 2; side++) {
                int32_t across = m->stage[i].rank_at[side];
                if (across >= 0 && (mark[across] < 0 || s->rank_of[mark[across] / 2] != r)) {
                    mark[across] = 2 * i + side;
                }
                m->stage[i].link[side] = across < 0 ? 0 : mark[across];
            }
        }
    }
}

/* ---- the pass over the lists ------------------------------------------------------------------
 *
 * It fills the table, checks the order of each rank's own actions, and adds up memory. */

/* The entry of the table for a row, stage and micro-batch. */
static uint32_t *dpari_sim_place(const dpari_sim *m, int row, int32_t stage, int32_t micro)
{
    return &m->where[row * m->cells + (int64_t)stage * m->s.micro_batches + micro];
}

/* The direction of a kind: 0 forward, 1 backward, or -1 if it does not wait for another stage. */
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

static int dpari_sim_is_message(int kind)
{
    return kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B;
}

static int dpari_sim_is_send(int kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B;
}

/* The direction of a message. */
static int dpari_sim_message_way(int kind)
{
    return kind == DPAR_ACTION_SEND_B || kind == DPAR_ACTION_RECV_B;
}

/* The side of the stage on which a message's other end is. */
static int dpari_sim_message_side(int kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_RECV_B;
}

/* The row of a kind in the table, or -1 if it is not entered. */
static int dpari_sim_row(int kind)
{
    switch (kind) {
    case DPAR_ACTION_FORWARD: return DPARI_AT_WORK;
    case DPAR_ACTION_BACKWARD:
    case DPAR_ACTION_INPUT: return DPARI_AT_WORK + 1;
    case DPAR_ACTION_WEIGHT: return DPARI_AT_WEIGHT;
    case DPAR_ACTION_SEND_F: return DPARI_AT_SEND;
    case DPAR_ACTION_SEND_B: return DPARI_AT_SEND + 1;
    case DPAR_ACTION_RECV_F: return DPARI_AT_RECV;
    case DPAR_ACTION_RECV_B: return DPARI_AT_RECV + 1;
    default: return -1;
    }
}

/* "rank 2: 2B1 comes before 2F1 or without it". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_say(dpar_why *why, int32_t rank,
                                                           const dpar_action *a, const char *what,
                                                           int kind, int32_t stage, int32_t micro)
{
    dpar_text t;
    dpar_action other;
    if (why != NULL) {
        dpari_zero(&other, sizeof(other));
        other.kind = (uint8_t)kind;
        other.stage = (uint16_t)stage;
        other.micro_batch = (uint16_t)micro;
        dpar_text_init(&t, why->text, sizeof(why->text));
        dpari_text_say(&t, "rank %d: %d%s", rank, (int32_t)a->stage, dpari_action_name(a->kind));
        if (dpari_action_has_micro(a->kind)) {
            dpari_text_int(&t, a->micro_batch);
        }
        dpar_text_put(&t, what);
        dpar_action_write(&other, &t);
        dpar_text_put(&t, kind == DPAR_ACTION_IDLE ? "" : " or without it");
    }
    return DPAR_E_ARG;
}

/* Checks that the actions on the same rank which action i needs come before it. The message names
 * the first one that does not. */
static dpar_status dpari_sim_needs(const dpari_sim *m, int32_t rank, int64_t i, dpar_why *why)
{
    static const char before[] = " comes before ";
    const dpar_action *a = &m->s.action[i];
    const dpari_sim_stage *st = &m->stage[a->stage];
    const int32_t k = a->micro_batch, slices = m->s.slices;
    const int way = dpari_sim_way(a->kind);
    const int work = way ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD;
    if (dpari_sim_is_message(a->kind)) {
        if (st->rank_at[dpari_sim_message_side(a->kind)] < 0) {
            return dpari_sim_say(why, rank, a, " has no partner on another rank", DPAR_ACTION_IDLE,
                                 0, 0);
        }
        if (dpari_sim_is_send(a->kind) && !*dpari_sim_place(m, DPARI_AT_WORK + way, a->stage, k)) {
            return dpari_sim_say(why, rank, a, before, work, a->stage, k);
        }
        return DPAR_OK;
    }
    if (a->kind == DPAR_ACTION_WEIGHT) {
        uint32_t at = *dpari_sim_place(m, DPARI_AT_WORK + 1, a->stage, k);
        if (at == 0 || m->s.action[at - 1].kind != DPAR_ACTION_INPUT) {
            return dpari_sim_say(why, rank, a, before, DPAR_ACTION_INPUT, a->stage, k);
        }
        return DPAR_OK;
    }
    if (a->kind != DPAR_ACTION_FORWARD) {
        /* backward, RECOMPUTE, OFFLOAD and RELOAD need a forward that is not in their own pair */
        uint32_t at = *dpari_sim_place(m, DPARI_AT_WORK, a->stage, k);
        if (at == 0 || ((int64_t)at == i && m->s.action[i - 1].joined)) {
            return dpari_sim_say(why, rank, a, before, DPAR_ACTION_FORWARD, a->stage, k);
        }
    }
    if (way < 0) {
        return DPAR_OK;
    }
    if (slices > 1 && (way ? (k + 1) % slices != 0 : k % slices != 0) &&
        !*dpari_sim_place(m, DPARI_AT_WORK + way, a->stage, way ? k + 1 : k - 1)) {
        return dpari_sim_say(why, rank, a, before, work, a->stage, way ? k + 1 : k - 1);
    }
    if (st->rank_at[way] >= 0 && m->lowered &&
        !*dpari_sim_place(m, DPARI_AT_RECV + way, a->stage, k)) {
        return dpari_sim_say(why, rank, a, before, way ? DPAR_ACTION_RECV_B : DPAR_ACTION_RECV_F,
                             a->stage, k);
    }
    if (st->stage_at[way] >= 0 && st->rank_at[way] < 0 &&
        !*dpari_sim_place(m, DPARI_AT_WORK + way, st->stage_at[way], k)) {
        return dpari_sim_say(why, rank, a, before, work, st->stage_at[way], k);
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

/* Updates the memory of a rank for an action. A rank runs one action after the other, so that its
 * memory only depends on the order. In a joined pair the forward comes first in the list: it adds
 * its bytes before the backward frees any. */
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
static dpar_status dpari_sim_check(const dpari_sim *m, int32_t rank, int64_t i, dpar_why *why)
{
    const dpar_schedule *s = &m->s;
    const dpar_action *a = &s->action[i];
    if (a->kind >= DPAR_ACTION_COUNT || a->stage >= s->stages ||
        (dpari_action_has_micro(a->kind) && a->micro_batch >= s->micro_batches)) {
        return dpari_wrong(why, "rank %d: kind %d, stage %d, micro-batch %d does not exist", rank,
                           (int32_t)a->kind, (int32_t)a->stage, (int32_t)a->micro_batch);
    }
    if (s->rank_of[a->stage] != rank) {
        return dpari_sim_say(why, rank, a, " has a stage of another rank", DPAR_ACTION_IDLE, 0, 0);
    }
    if (a->joined && (a->kind != DPAR_ACTION_FORWARD || i + 1 >= s->begin[rank + 1] ||
                      (a[1].kind != DPAR_ACTION_BACKWARD && a[1].kind != DPAR_ACTION_INPUT))) {
        return dpari_sim_say(why, rank, a, " is joined, but it is not an F that a B or I follows",
                             DPAR_ACTION_IDLE, 0, 0);
    }
    return DPAR_OK;
}

/* True if the run sends a message after an action of this kind. */
static int dpari_sim_leaves(const dpari_sim *m, int kind)
{
    return m->lowered ? kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B
                      : dpari_sim_way(kind) >= 0;
}

/* Checks action i, enters it in the table, and adds its time and bytes. */
static dpar_status dpari_sim_enter(dpari_sim *m, int32_t rank, int64_t i, dpar_why *why)
{
    const dpar_action *a = &m->s.action[i];
    dpar_status status = DPAR_OK;
    const dpari_sim_stage *st;
    int way, row;
    m->end[i] = m->arrive[i] = -1;
    if (a->kind == DPAR_ACTION_IDLE && !a->joined) {
        return DPAR_OK;
    }
    status = dpari_sim_check(m, rank, i, why);
    if (status == DPAR_OK && dpari_action_has_micro(a->kind)) {
        status = dpari_sim_needs(m, rank, i, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    st = &m->stage[a->stage];
    row = dpari_sim_row(a->kind);
    if (row >= 0) {
        uint32_t *place = dpari_sim_place(m, row, a->stage, a->micro_batch);
        if (*place != 0) {
            return dpari_sim_say(why, rank, a, " is listed twice", DPAR_ACTION_IDLE, 0, 0);
        }
        *place = (uint32_t)i + 1;
    }
    way = dpari_sim_way(a->kind);
    if (!dpari_sum(&m->total, st->cost[a->kind]) ||
        (a->joined && !dpari_sum(&m->total, st->overlap)) ||
        (dpari_sim_leaves(m, a->kind) && !dpari_sum(&m->total, st->edge[1 - way]))) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d, action %ld: the times exceed INT64_MAX", rank,
                         i - m->s.begin[rank]);
    }
    if (!dpari_sim_memory(&m->rank[rank], st, a->kind)) {
        return dpari_say(DPAR_E_RANGE, why,
                         "rank %d, action %ld: the bytes do not fit into 64 bits", rank,
                         i - m->s.begin[rank]);
    }
    return DPAR_OK;
}

/* Clears the table and enters the actions of all ranks. */
static dpar_status dpari_sim_list(dpari_sim *m, dpar_why *why)
{
    const dpar_schedule *s = &m->s;
    const int64_t places = m->cells * DPARI_AT_ROWS;
    int32_t r;
    int64_t i;
    for (i = 0; i < places; i++) {
        m->where[i] = 0;
    }
    for (r = 0; r < s->ranks; r++) {
        dpari_sim_rank *q = &m->rank[r];
        q->at = s->begin[r];
        q->end = s->begin[r + 1];
        q->out.first = -1;
        q->out.peak_bytes = q->held;
        for (i = q->at; i < q->end; i++) {
            dpar_status status = dpari_sim_enter(m, r, i, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Resumes a rank if it waits for action i. */
static void dpari_sim_wake(dpari_sim *m, int32_t rank, int64_t i)
{
    if (m->rank[rank].waits == i + 1) {
        m->rank[rank].waits = 0;
        m->stack[m->tops++] = rank;
    }
}

/* Sends a message at time `now`. Returns when it arrives, and occupies the wire if wires are
 * shared. */
static int64_t dpari_sim_send(dpari_sim *m, const dpari_sim_stage *st, int side, int64_t now)
{
    if (m->links != DPAR_CONTENTION_NONE) {
        int64_t *wire = &m->wire[st->link[side]];
        now = dpari_most(now, *wire);
        *wire = now + st->turn[side];
    }
    return now + st->edge[side];
}

/* Looks up the input of work in direction `way`. If it arrives after *begin, moves *begin to the
 * arrival and sets *cause to the action that brings it. Returns 0 if the arrival is not known yet;
 * the rank then waits. */
static int dpari_sim_input(dpari_sim *m, dpari_sim_rank *q, const dpar_action *a, int way,
                           int64_t *begin, uint32_t *cause)
{
    const dpari_sim_stage *st = &m->stage[a->stage];
    uint32_t at;
    int64_t there;
    if (st->rank_at[way] < 0) {
        return 1;
    }
    at = m->where[st->look[way] + a->micro_batch];
    there = at == 0 ? -1 : m->arrive[at - 1];
    if (there < 0) {
        q->waits = at;
        return 0;
    }
    if (there + st->come[way] > *begin) {
        *begin = there + st->come[way];
        *cause = at;
    }
    return 1;
}

/* Returns when the work ended whose output is brought by the action `cause`. */
static int64_t dpari_sim_done(const dpari_sim *m, uint32_t cause)
{
    const dpar_action *a = &m->s.action[cause - 1];
    if (dpari_sim_is_message(a->kind)) {
        int way = dpari_sim_message_way(a->kind);
        cause = *dpari_sim_place(m, DPARI_AT_WORK + way, m->stage[a->stage].stage_at[way],
                                 a->micro_batch);
    }
    return m->end[cause - 1];
}

/* Adds idle time from q->free to `until`, in which the rank waits for the input that `cause`
 * brings. Up to the end of its producer this is a dependency, after that communication. */
static void dpari_sim_idle(dpari_sim *m, dpari_sim_rank *q, uint32_t cause, int64_t until)
{
    int64_t done = dpari_most(dpari_sim_done(m, cause), q->free);
    q->dependency += done - q->free;
    q->communication += until - done;
}

/* Sends the output of work i to another rank, if the list has no messages for that. */
static void dpari_sim_output(dpari_sim *m, const dpar_action *a, int64_t i)
{
    const dpari_sim_stage *st = &m->stage[a->stage];
    int side = 1 - dpari_sim_way(a->kind);
    if (side > 1 || m->lowered || st->rank_at[side] < 0) {
        return;
    }
    if (m->links != DPAR_CONTENTION_NONE) {
        m->arrive[i] = dpari_sim_send(m, st, side, m->end[i]);
    }
    dpari_sim_wake(m, st->rank_at[side], i);
}

/* The time of work, or of a joined pair. */
static int64_t dpari_sim_takes(const dpari_sim *m, const dpar_action *a)
{
    const dpari_sim_stage *st = &m->stage[a->stage];
    if (a->joined && st->overlap > 0) {
        return st->overlap;
    }
    return st->cost[a->kind] + (a->joined ? m->stage[a[1].stage].cost[a[1].kind] : 0);
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

/* Runs work a, the next action of rank q. Returns 0 if it has to wait. */
static int dpari_sim_work(dpari_sim *m, dpari_sim_rank *q, const dpar_action *a)
{
    const int64_t i = q->at;
    const int way = dpari_sim_way(a->kind);
    int64_t begin = q->free, end;
    uint32_t cause = 0;
    if ((way >= 0 && !dpari_sim_input(m, q, a, way, &begin, &cause)) ||
        (a->joined && !dpari_sim_input(m, q, a + 1, 1, &begin, &cause))) {
        return 0;
    }
    if (cause != 0) {
        dpari_sim_idle(m, q, cause, begin);
    }
    end = begin + dpari_sim_takes(m, a);
    m->cause[i] = cause;
    m->end[i] = end;
    if (m->links != DPAR_CONTENTION_NONE) {
        m->arrive[i] = end;
    }
    dpari_sim_book(q, a->kind, begin, end);
    dpari_sim_output(m, a, i);
    if (a->joined) {
        m->end[i + 1] = end;
        dpari_sim_output(m, a + 1, i + 1);
    }
    q->at = i + 1 + a->joined;
    return 1;
}

/* Returns 1 + the index of a message's other half, or 0 if it is in no list. *other receives its
 * rank. */
static uint32_t dpari_sim_half(const dpari_sim *m, const dpar_action *a, int32_t *other)
{
    const dpari_sim_stage *st = &m->stage[a->stage];
    int side = dpari_sim_message_side(a->kind);
    int row = dpari_sim_is_send(a->kind) ? DPARI_AT_RECV : DPARI_AT_SEND;
    *other = st->rank_at[side];
    return *dpari_sim_place(m, row + dpari_sim_message_way(a->kind), st->stage_at[side],
                            a->micro_batch);
}

/* Both halves of a message were reached, this one at `mine` and the other at `theirs`. The later
 * one starts the transfer. Returns when it ends. */
static int64_t dpari_sim_meet(dpari_sim *m, int64_t i, int64_t mine, int64_t j, int64_t theirs)
{
    const dpar_action *a = &m->s.action[i];
    int64_t end =
        dpari_most(mine, theirs) + m->stage[a->stage].edge[dpari_sim_message_side(a->kind)];
    m->end[i] = m->end[j] = end;
    m->cause[i] = theirs > mine ? (uint32_t)j + 1 : 0;
    m->cause[j] = mine > theirs ? (uint32_t)i + 1 : 0;
    return end;
}

/* A blocking message occupies rank q until `end`. */
static void dpari_sim_block(dpari_sim *m, dpari_sim_rank *q, int64_t i, int64_t end)
{
    const dpar_action *a = &m->s.action[i];
    if (!dpari_sim_is_send(a->kind)) {
        dpari_sim_idle(m, q, (uint32_t)i + 1, end);
    } else {
        q->communication += end - q->free;
    }
    q->free = end;
    q->at = i + 1;
}

/* ---- queues and buffers ---------------------------------------------------------------------- */

/* Returns the queue of its rank in which a message waits, 0 to 2 ranks - 1. */
static int32_t dpari_sim_queue(const dpari_sim *m, const dpar_action *a)
{
    const int32_t peer = m->stage[a->stage].rank_at[dpari_sim_message_side(a->kind)];
    switch (m->transport) {
    case DPAR_TRANSPORT_RANK: return 0;
    case DPAR_TRANSPORT_DIRECTION: return dpari_sim_message_way(a->kind);
    case DPAR_TRANSPORT_PAIR: return 2 * peer;
    default: return 2 * peer + dpari_sim_is_send(a->kind);
    }
}

/* Appends message i to its queue. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_line_up(dpari_sim *m, int64_t i)
{
    const dpar_action *a = &m->s.action[i];
    dpari_sim_line *line = &m->line[dpari_sim_queue(m, a)];
    dpari_sim_link *link = &m->link[i];
    int32_t other;
    uint32_t half;
    if (m->transport == DPAR_TRANSPORT_EAGER && !dpari_sim_is_send(a->kind)) {
        return; /* its SEND represents it in the queue */
    }
    link->before = line->last;
    link->behind = 0;
    if (line->last != 0) {
        m->link[line->last - 1].behind = (uint32_t)i + 1;
    } else {
        line->taken = (uint32_t)i + 1;
    }
    line->last = (uint32_t)i + 1;
    half = dpari_sim_half(m, a, &other);
    if (m->transport != DPAR_TRANSPORT_EAGER || half == 0) {
        return;
    }
    m->link[half - 1].before = 0;
    if (line->count++ >= m->room) {
        m->link[half - 1].before = line->taken;
        line->taken = m->link[line->taken - 1].behind;
    }
}

/* Builds the queues of all ranks. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_line_all(dpari_sim *m)
{
    const dpar_schedule *s = &m->s;
    int32_t r, pass;
    int64_t i;
    for (r = 0; r < s->ranks; r++) {
        for (pass = 0; pass < 2; pass++) {
            for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
                const dpar_action *a = &s->action[i];
                if (!dpari_sim_is_message(a->kind)) {
                    continue;
                }
                if (pass == 0) { /* clears only the queues that are used: a rank has few peers */
                    dpari_zero(&m->line[dpari_sim_queue(m, a)], sizeof(*m->line));
                } else {
                    dpari_sim_line_up(m, i);
                }
            }
        }
    }
}

/* Returns when the message before message i in its queue has been transferred; 0 if there is none,
 * -1 if that is not known yet. */
static int64_t dpari_sim_first(const dpari_sim *m, int64_t i)
{
    const uint32_t before = m->link[i].before;
    if (before == 0) {
        return 0;
    }
    return dpari_most(m->end[before - 1], -1);
}

/* Returns the cause for which message i was transferred at `start` and not earlier: 0 for its own
 * rank, its other half j, or the message before it in one of the two queues. */
static uint32_t dpari_sim_let(const dpari_sim *m, int64_t i, int64_t j, int64_t mine,
                              int64_t theirs, int64_t start)
{
    if (mine == start) {
        return 0;
    }
    if (theirs == start) {
        return (uint32_t)j + 1;
    }
    return dpari_sim_first(m, i) == start ? m->link[i].before : m->link[j].before;
}

/* Transfers message i, which was reached, if its other half was reached too and both are first in
 * their queues. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_leave(dpari_sim *m, int64_t i)
{
    const dpar_action *a = &m->s.action[i];
    int32_t other;
    const int64_t j = (int64_t)dpari_sim_half(m, a, &other) - 1, mine = -2 - m->end[i];
    const int64_t theirs = -2 - m->end[j], here = dpari_sim_first(m, i);
    const int64_t there = dpari_sim_first(m, j);
    int64_t start;
    if (theirs < 0 || here < 0 || there < 0) {
        return;
    }
    start = dpari_most(dpari_most(mine, theirs), dpari_most(here, there));
    m->cause[i] = dpari_sim_let(m, i, j, mine, theirs, start);
    m->cause[j] = dpari_sim_let(m, j, i, theirs, mine, start);
    m->end[i] = m->end[j] = start + m->stage[a->stage].edge[dpari_sim_message_side(a->kind)];
    m->link[i].before = m->moved; /* not needed any more, so that it links the list `moved` */
    m->link[j].before = (uint32_t)i + 1;
    m->moved = (uint32_t)j + 1;
    dpari_sim_wake(m, other, j);
    dpari_sim_wake(m, m->s.rank_of[a->stage], i);
}

/* Rank q posts message i, its next action. All messages that can be transferred then are. */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_sim_post(dpari_sim *m, dpari_sim_rank *q, int64_t i)
{
    q->at = i + 1;
    m->end[i] = -2 - q->free;
    dpari_sim_leave(m, i);
    while (m->moved != 0) {
        const dpari_sim_link *link = &m->link[m->moved - 1];
        const int64_t next = (int64_t)link->behind - 1;
        m->moved = link->before;
        if (next >= 0 && m->end[next] < -1) {
            dpari_sim_leave(m, next);
        }
    }
    return 1;
}

/* EAGER: a SEND into a buffer, or a RECV out of one, occupies rank q until it is possible. Returns
 * 0 if that time is not known yet. */
DPARI_COLD DPARI_STATIC_NOINLINE int dpari_sim_buffer(dpari_sim *m, dpari_sim_rank *q, int64_t i,
                                                      int64_t j, int32_t other)
{
    const dpar_action *a = &m->s.action[i];
    const int sends = dpari_sim_is_send(a->kind);
    const int64_t send = sends ? i : j;
    const uint32_t before = sends ? m->link[j].before : m->link[send].before;
    int32_t rank;
    uint32_t needs = 0; /* 1 + the RECV that frees the place, or that is before this one */
    int64_t time = q->free;
    if (before != 0) {
        needs = dpari_sim_half(m, &m->s.action[before - 1], &rank);
        if (needs == 0 || m->end[needs - 1] < 0) {
            q->waits = needs;
            return 0;
        }
    }
    if (!sends && m->end[j] < 0) {
        q->waits = j + 1;
        return 0;
    }
    if (sends && needs != 0) {
        time = dpari_most(time, m->end[needs - 1]);
    }
    if (!sends) {
        needs = (uint32_t)j + 1;
        time =
            dpari_most(time, m->end[j] + m->stage[a->stage].edge[dpari_sim_message_side(a->kind)]);
    }
    m->end[i] = time;
    m->cause[i] = time > q->free ? needs : 0;
    dpari_sim_block(m, q, i, time);
    dpari_sim_wake(m, other, i);
    return 1;
}

/* Runs message a, the next action of rank q. Returns 0 if it has to wait. */
static int dpari_sim_message(dpari_sim *m, dpari_sim_rank *q, const dpar_action *a)
{
    const int64_t i = q->at;
    int32_t other;
    const int64_t j = (int64_t)dpari_sim_half(m, a, &other) - 1;
    dpari_sim_rank *o = &m->rank[other];
    if (j < 0) {
        return 0;
    }
    if (m->sends == DPARI_SENDS_QUEUED) {
        return dpari_sim_post(m, q, i);
    }
    if (m->sends == DPARI_SENDS_EAGER) {
        return dpari_sim_buffer(m, q, i, j, other);
    }
    if (m->sends == DPAR_SEND_MODE_BLOCKING) {
        int64_t end;
        if (o->at != j) {
            q->waits = i + 1;
            return 0;
        }
        end = dpari_sim_meet(m, i, q->free, j, o->free);
        dpari_sim_block(m, q, i, end);
        dpari_sim_block(m, o, j, end);
        dpari_sim_wake(m, other, j);
        return 1;
    }
    q->at = i + 1;
    if (m->sends == DPAR_SEND_MODE_POSTED) {
        if (m->end[j] > -2) {
            m->end[i] = -2 - q->free;
            return 1;
        }
        (void)dpari_sim_meet(m, i, q->free, j, -2 - m->end[j]);
    } else if (dpari_sim_is_send(a->kind)) {
        m->end[i] = m->end[j] =
            dpari_sim_send(m, &m->stage[a->stage], dpari_sim_message_side(a->kind), q->free);
        m->arrive[j] = m->end[j];
        m->cause[i] = 0;
        m->cause[j] = (uint32_t)i + 1;
    }
    dpari_sim_wake(m, other, j);
    return 1;
}

/* Advances all ranks until each has finished or waits. */
static void dpari_sim_go(dpari_sim *m)
{
    int32_t r;
    m->tops = 0;
    for (r = m->s.ranks - 1; r >= 0; r--) {
        m->stack[m->tops++] = r;
    }
    while (m->tops > 0) {
        dpari_sim_rank *q = &m->rank[m->stack[--m->tops]];
        int going = 1;
        while (going && q->at < q->end) {
            const dpar_action *a = &m->s.action[q->at];
            if (a->kind == DPAR_ACTION_IDLE) {
                q->at++;
            } else {
                going = dpari_sim_is_message(a->kind) ? dpari_sim_message(m, q, a)
                                                      : dpari_sim_work(m, q, a);
            }
        }
    }
}

/* ---- results --------------------------------------------------------------------------------- */

/* "rank 3 waits at 3F0 for 2F0 of rank 2, which is at 2B0". */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_stuck(dpari_sim *m, int32_t rank,
                                                             dpar_why *why)
{
    const dpar_action *a = &m->s.action[m->rank[rank].at];
    dpar_action want = *a;
    uint32_t at = 0;
    int32_t other = rank;
    dpar_text t;
    int way = dpari_sim_way(a->kind);
    if (why == NULL) {
        return DPAR_E_STUCK;
    }
    if (dpari_sim_is_message(a->kind)) {
        at = dpari_sim_half(m, a, &other);
        want.stage = (uint16_t)m->stage[a->stage].stage_at[dpari_sim_message_side(a->kind)];
        want.kind = (uint8_t)(dpari_sim_is_send(a->kind) ? a->kind + 1 : a->kind - 1);
    } else {
        int64_t begin = 0;
        uint32_t cause = 0;
        if (a->joined && dpari_sim_input(m, &m->rank[rank], a, way, &begin, &cause)) {
            want = a[1];
            way = 1;
        }
        other = m->stage[want.stage].rank_at[way];
        want.stage = (uint16_t)m->stage[want.stage].stage_at[way];
        if (m->lowered) {
            want.kind = (uint8_t)(way ? DPAR_ACTION_SEND_B : DPAR_ACTION_SEND_F);
        } else {
            want.kind = (uint8_t)(way ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD);
        }
        at = *dpari_sim_place(m, dpari_sim_row(want.kind), want.stage, want.micro_batch);
        want = at == 0 ? want : m->s.action[at - 1];
    }
    want.joined = 0;
    dpar_text_init(&t, why->text, sizeof(why->text));
    dpari_text_say(&t, "rank %d waits at ", rank);
    dpar_action_write(a, &t);
    dpar_text_put(&t, " for ");
    dpar_action_write(&want, &t);
    dpari_text_say(&t, " of rank %d", other);
    if (at == 0) {
        dpar_text_put(&t, ", which is in no list");
    } else if (m->end[at - 1] < -1) {
        dpar_text_put(&t, ", which waits in its queue");
    } else if (m->rank[other].at == m->rank[other].end) {
        dpar_text_put(&t, ", which is behind another message");
    } else {
        dpar_text_put(&t, ", which is at ");
        dpar_action_write(&m->s.action[m->rank[other].at], &t);
    }
    return DPAR_E_STUCK;
}

/* All ranks have finished, but a message is still in its queue. */
DPARI_COLD DPARI_STATIC_NOINLINE dpar_status dpari_sim_left(int32_t rank, const dpar_action *a,
                                                            dpar_why *why)
{
    dpar_text t;
    if (why != NULL) {
        dpar_text_init(&t, why->text, sizeof(why->text));
        dpari_text_say(&t, "rank %d: ", rank);
        dpar_action_write(a, &t);
        dpar_text_put(&t, " stays in its queue");
    }
    return DPAR_E_STUCK;
}

/* Checks that all ranks have finished and all messages were transferred. */
static dpar_status dpari_sim_finished(dpari_sim *m, dpar_why *why)
{
    int32_t r;
    int64_t i;
    for (r = 0; r < m->s.ranks; r++) {
        if (m->rank[r].at < m->rank[r].end) {
            return dpari_sim_stuck(m, r, why);
        }
    }
    for (r = 0; r < m->s.ranks && m->sends == DPARI_SENDS_QUEUED; r++) {
        for (i = m->s.begin[r]; i < m->rank[r].end; i++) {
            if (m->end[i] < -1) {
                return dpari_sim_left(r, &m->s.action[i], why);
            }
        }
    }
    return DPAR_OK;
}

/* True if an action of this kind occupies its rank, as work and messages of blocking transports do.
 */
static int dpari_sim_holds(const dpari_sim *m, int kind)
{
    if (dpari_sim_is_message(kind)) {
        return m->sends == DPAR_SEND_MODE_BLOCKING || m->sends == DPARI_SENDS_EAGER;
    }
    return kind != DPAR_ACTION_IDLE;
}

/* Returns the action whose end let action i start, or -1 if it starts at 0. A joined pair is
 * represented by its forward. */
static int64_t dpari_sim_before(const dpari_sim *m, int64_t i)
{
    const dpar_schedule *s = &m->s;
    const int64_t begin = s->begin[s->rank_of[s->action[i].stage]];
    if (m->cause[i] != 0) {
        i = (int64_t)m->cause[i] - 1;
        return i > 0 && s->action[i - 1].joined ? i - 1 : i;
    }
    do {
        i--;
    } while (i >= begin &&
             (!dpari_sim_holds(m, s->action[i].kind) || (i > begin && s->action[i - 1].joined)));
    return i >= begin ? i : -1;
}

/* Returns when forward i could start if its rank were free: its input has arrived, and the previous
 * slice and the previous stage on its own rank are done. */
static int64_t dpari_sim_could(const dpari_sim *m, int64_t i)
{
    const dpar_action *a = &m->s.action[i];
    const dpari_sim_stage *st = &m->stage[a->stage];
    int64_t at = 0;
    if (st->rank_at[0] >= 0) {
        at = m->arrive[m->where[st->look[0] + a->micro_batch] - 1] + st->come[0];
    } else if (st->stage_at[0] >= 0) {
        at = m->end[*dpari_sim_place(m, DPARI_AT_WORK, st->stage_at[0], a->micro_batch) - 1];
    }
    if (a->micro_batch % m->s.slices != 0) {
        at = dpari_most(
            at, m->end[*dpari_sim_place(m, DPARI_AT_WORK, a->stage, a->micro_batch - 1) - 1]);
    }
    return at;
}

/* True if `more` on top of what is held exceeds the cap, which is above 0. */
static int dpari_sim_over(int64_t held, int64_t more, int64_t cap)
{
    return more > 0 ? held > cap - more : held > cap && held + more > cap;
}

/* The rank is idle before action i from `clock` to `until`. The part from `since` on is due to
 * memory; it is moved to o->memory from dependency and communication, to which the run added it.
 * Idle time before the first work was not added, and is left out. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_move(const dpari_sim *m, dpar_rank_timing *o,
                                                     int64_t i, int64_t clock, int64_t until,
                                                     int64_t since)
{
    const int kind = m->s.action[i].kind;
    int64_t done = clock; /* a blocking SEND: communication from the start */
    since = dpari_most(since, clock);
    if (since >= until || clock < o->first) {
        return;
    }
    if (!dpari_sim_is_send(kind)) {
        done = dpari_sim_done(m, dpari_sim_is_message(kind) ? (uint32_t)i + 1 : m->cause[i]);
    }
    done = dpari_most(done, since);
    o->dependency -= done - since;
    o->communication -= until - done;
    o->memory += until - since;
}

/* Goes through a rank's list once more, after the run, and finds the gaps that are due to memory:
 * those in which the next forward has its input, but its activation does not fit under the cap. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_starved(dpari_sim *m, dpari_sim_rank *q,
                                                        int64_t begin, int64_t cap)
{
    const dpar_action *list = m->s.action;
    int64_t i, ahead = begin, clock = 0;
    q->live = 0;
    for (i = begin; i < q->end; i++) {
        const dpar_action *a = &list[i];
        if (a->kind == DPAR_ACTION_IDLE) {
            continue; /* its stage was not checked */
        }
        if (dpari_sim_holds(m, a->kind)) {
            int64_t until = m->end[i];
            until -= dpari_sim_is_message(a->kind) ? 0 : dpari_sim_takes(m, a);
            while (ahead < q->end && (ahead <= i || list[ahead].kind != DPAR_ACTION_FORWARD)) {
                ahead++;
            }
            if (until > clock && ahead < q->end &&
                dpari_sim_over(q->held, m->stage[list[ahead].stage].hold[0], cap)) {
                dpari_sim_move(m, &q->out, i, clock, until, dpari_sim_could(m, ahead));
            }
            clock = m->end[i];
        }
        (void)dpari_sim_memory(q, &m->stage[a->stage], a->kind);
        if (a->joined) { /* both run at once */
            i++;
            (void)dpari_sim_memory(q, &m->stage[list[i].stage], list[i].kind);
        }
    }
}

/* Finds the idle time that is due to caps, and by how much each rank exceeds its cap. */
DPARI_COLD DPARI_STATIC_NOINLINE void dpari_sim_caps(dpari_sim *m, const dpar_schedule_times *t)
{
    const dpar_schedule *s = &m->s;
    int32_t i;
    for (i = 0; i < s->ranks; i++) {
        m->rank[i].held = 0;
    }
    for (i = 0; i < s->stages; i++) {
        m->rank[s->rank_of[i]].held += dpari_each(&t->hold_always, i);
    }
    for (i = 0; i < s->ranks; i++) {
        dpari_sim_rank *q = &m->rank[i];
        const int64_t cap = dpari_each(&t->cap, i);
        if (cap > 0) {
            dpari_sim_starved(m, q, s->begin[i], cap);
            q->out.over_cap = dpari_most(0, q->out.peak_bytes - cap);
        }
    }
}

/* Adds up the critical path from its last action to its first one. */
static void dpari_sim_critical(const dpari_sim *m, dpar_timing *out)
{
    int64_t i;
    for (i = m->last; i >= 0; i = dpari_sim_before(m, i)) {
        const dpar_action *a = &m->s.action[i];
        out->path_actions++;
        if (!dpari_sim_is_message(a->kind)) {
            out->path_compute += dpari_sim_takes(m, a);
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
static dpar_status dpari_sim_sum(dpari_sim *m, dpar_timing *out, dpar_why *why)
{
    const dpar_schedule *s = &m->s;
    int64_t i, whole;
    int32_t r;
    dpari_zero(out, sizeof(*out));
    m->last = -1;
    for (r = 0; r < s->ranks; r++) {
        if (m->rank[r].free > out->makespan || m->last < 0) {
            for (i = m->rank[r].end - 1; i >= s->begin[r]; i--) {
                if (dpari_sim_holds(m, s->action[i].kind)) {
                    break;
                }
            }
            i -= i > s->begin[r] && s->action[i - 1].joined;
            m->last = i >= s->begin[r] ? i : -1;
        }
        out->makespan = dpari_most(out->makespan, m->rank[r].free);
    }
    if (!dpari_mul(out->makespan, s->ranks, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "%d ranks x a makespan of %ld exceed INT64_MAX",
                         s->ranks, out->makespan);
    }
    for (r = 0; r < s->ranks; r++) {
        dpari_sim_close(&m->rank[r], out->makespan, out);
    }
    out->lowered = m->lowered;
    out->bubble_first = out->makespan - m->rank[0].out.busy;
    out->bubble_of_makespan.part = whole - out->busy;
    out->bubble_of_makespan.whole = whole;
    out->bubble_of_work.part = whole - out->busy;
    out->bubble_of_work.whole = out->busy;
    out->bubble_of_span.part = s->ranks * out->span - out->busy;
    out->bubble_of_span.whole = s->ranks * out->span;
    dpari_sim_critical(m, out);
    return DPAR_OK;
}

/* Writes the start and end of each action. Messages that do not occupy their rank start when the
 * rank reaches them. */
static void dpari_sim_fill(const dpari_sim *m, int64_t *start, int64_t *end)
{
    const dpar_schedule *s = &m->s;
    int32_t r;
    int64_t i, clock;
    for (r = 0; r < s->ranks; r++) {
        clock = 0;
        for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
            const dpar_action *a = &s->action[i];
            int pair = i > s->begin[r] && a[-1].joined;
            int64_t stop = a->kind == DPAR_ACTION_IDLE ? clock : m->end[i];
            int64_t go = dpari_sim_is_message(a->kind) || a->kind == DPAR_ACTION_IDLE
                             ? clock
                             : stop - dpari_sim_takes(m, pair ? a - 1 : a);
            clock = dpari_sim_holds(m, a->kind) ? stop : clock;
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
static dpar_status dpari_sim_choices(const dpar_schedule *s, const dpar_schedule_times *t,
                                     dpar_why *why)
{
    int32_t i;
    if (!dpari_sim_fits(s) || s->begin[0] != 0) {
        return dpari_wrong(
            why,
            "this is not a schedule: it has %d stages in chains of %d, and %d micro-batches in "
            "slices of %d",
            s->stages, s->chain, s->micro_batches, s->slices);
    }
    for (i = 0; i < s->ranks; i++) {
        if (s->begin[i] > s->begin[i + 1]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", i,
                               s->begin[i], s->begin[i + 1]);
        }
        if (dpari_each(&t->cap, i) < 0) {
            return dpari_wrong(why, "rank %d: cap is %ld; 0 or more are allowed", i,
                               dpari_each(&t->cap, i));
        }
    }
    for (i = 0; i < s->stages; i++) {
        if (s->rank_of[i] >= s->ranks) {
            return dpari_wrong(why, "rank_of[%d] is %d, but there are only %d ranks", i,
                               (int32_t)s->rank_of[i], s->ranks);
        }
    }
    if (t->sends < 0 || t->sends >= DPAR_SEND_MODE_COUNT || t->links < 0 ||
        t->links >= DPAR_CONTENTION_COUNT) {
        return dpari_wrong(why,
                           "sends=%d, links=%d; DPAR_SEND_MODE_x and DPAR_CONTENTION_x are allowed",
                           t->sends, t->links);
    }
    if (t->sends != DPAR_SEND_MODE_BUFFERED && t->links != DPAR_CONTENTION_NONE) {
        return dpari_wrong(why, "sends=%d, links=%d; only buffered sends (0) can share links",
                           t->sends, t->links);
    }
    if (t->transport < 0 || t->transport >= DPAR_TRANSPORT_COUNT) {
        return dpari_wrong(why, "transport=%d; 0 to %d are allowed", t->transport,
                           (int32_t)DPAR_TRANSPORT_COUNT - 1);
    }
    if (t->transport == DPAR_TRANSPORT_EAGER && t->capacity < 1) {
        return dpari_wrong(why, "capacity=%d; an eager buffer needs 1 or more", t->capacity);
    }
    if (t->transport != DPAR_TRANSPORT_NONE && (t->sends != 0 || t->links != 0)) {
        return dpari_wrong(why, "sends=%d, links=%d; both must be 0, because transport=%d is set",
                           t->sends, t->links, t->transport);
    }
    return DPAR_OK;
}

static int32_t dpari_sim_has_messages(const dpar_schedule *s)
{
    const int64_t n = s->begin[s->ranks];
    int64_t i;
    for (i = 0; i < n; i++) {
        if (dpari_sim_is_message(s->action[i].kind)) {
            return 1;
        }
    }
    return 0;
}

/* True if two neighbouring stages are on different ranks. */
static int dpari_sim_crosses(const dpar_schedule *s)
{
    int32_t i;
    for (i = 0; i < s->stages; i++) {
        int32_t next = dpari_schedule_behind(s, i);
        if (next >= 0 && s->rank_of[next] != s->rank_of[i]) {
            return 1;
        }
    }
    return 0;
}

/* Returns how messages are sent, DPAR_SEND_MODE_x or DPARI_SENDS_x. */
static int32_t dpari_sim_sends(const dpar_schedule_times *t)
{
    switch (t->transport) {
    case DPAR_TRANSPORT_NONE: return t->sends;
    case DPAR_TRANSPORT_BLOCKING: return DPAR_SEND_MODE_BLOCKING;
    case DPAR_TRANSPORT_EAGER: return DPARI_SENDS_EAGER;
    default: return DPARI_SENDS_QUEUED;
    }
}

/* Prepares the run: the values of stages, the wires, the table and the queues. */
static dpar_status dpari_sim_ready(dpari_sim *m, const dpar_schedule_times *t, dpar_why *why)
{
    dpar_status status;
    m->lowered = dpari_sim_has_messages(&m->s);
    m->sends = dpari_sim_sends(t);
    m->total = 0;
    if (!m->lowered && m->sends != DPAR_SEND_MODE_BUFFERED) {
        if (dpari_sim_crosses(&m->s)) {
            return dpari_wrong(why,
                               t->transport == DPAR_TRANSPORT_NONE
                                   ? "sends=%d needs messages; call dpar_schedule_lower first"
                                   : "transport=%d needs messages; call dpar_schedule_lower first",
                               t->transport == DPAR_TRANSPORT_NONE ? t->sends : t->transport);
        }
        m->sends = DPAR_SEND_MODE_BUFFERED; /* there are no messages at all */
    }
    dpari_zero(m->rank, (size_t)m->s.ranks * sizeof(*m->rank));
    status = dpari_sim_stages(m, t, why);
    if (status == DPAR_OK && m->links != DPAR_CONTENTION_NONE) {
        dpari_sim_wires(m);
    }
    if (status == DPAR_OK) {
        status = dpari_sim_list(m, why);
    }
    if (status == DPAR_OK && m->sends > DPAR_SEND_MODE_BLOCKING) {
        dpari_sim_line_all(m);
    }
    return status;
}

DPAR_API dpar_status dpar_schedule_simulate(const dpar_schedule *s,
                                            const dpar_schedule_simulate_desc *how,
                                            dpar_timing *timing, void *mem, int64_t bytes,
                                            dpar_why *why)
{
    const dpar_schedule_times *t = how->times;
    dpari_sim *m = (dpari_sim *)mem;
    dpar_timing out;
    int64_t i, at, needed;
    int32_t r;
    dpar_status status = dpari_sim_choices(s, t, why);
    if (status != DPAR_OK) {
        return status;
    }
    needed = dpari_schedule_simulate_bytes(s, how);
    if (mem == NULL || bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "simulating %ld actions needs %ld bytes, got %ld",
                         s->begin[s->ranks], needed, bytes);
    }
    (void)dpari_sim_lay(m, s, t, mem);
    status = dpari_sim_ready(m, t, why);
    if (status == DPAR_OK) {
        dpari_sim_go(m);
        status = dpari_sim_finished(m, why);
    }
    if (status == DPAR_OK && dpari_sim_capped(t)) {
        dpari_sim_caps(m, t);
    }
    if (status == DPAR_OK) {
        status = dpari_sim_sum(m, &out, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (how->start != NULL || how->end != NULL) {
        dpari_sim_fill(m, how->start, how->end);
    }
    for (r = 0; r < s->ranks && how->rank != NULL; r++) {
        how->rank[r] = m->rank[r].out;
    }
    if (how->path != NULL) {
        at = out.path_actions;
        for (i = m->last; i >= 0; i = dpari_sim_before(m, i)) {
            how->path[--at] = i;
        }
    }
    *timing = out;
    return DPAR_OK;
}
