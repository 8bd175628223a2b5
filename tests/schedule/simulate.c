/* SPDX-License-Identifier: MIT-0 */
/* Tests simulate: the reference lists with their figures (tests/data/pipeline/metrics.tsv); random
 * lists on random maps against two naive simulations written here, one that advances tick by tick
 * and one that relaxes until nothing changes; idle times, memory and the critical path by their
 * definitions. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "data_lines.h"
#include "schedule_calls.h"

#include <stdlib.h>

enum { MOST = 4096 };

static char text[1 << 16];
static int64_t memory[1 << 15], work[1 << 20];
static int64_t from[MOST], to[MOST], path[MOST];
static dpar_rank_timing ranks[64];

static uint64_t seed = 88172645463325252u;

static int32_t any(int32_t n) /* 0 .. n - 1 */
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (int32_t)((seed >> 20) % (uint64_t)n);
}

static void load(dpar_schedule *s, const char *name, int32_t chain, int32_t slices)
{
    const size_t n = data_lines(name, text, sizeof text);
    dpar_why why;
    CHECK_INT(read_csv(s, text, n, chain, memory, sizeof memory, &why), DPAR_OK);
    s->slices = slices;
}

static dpar_status run(const dpar_schedule *s, const dpar_schedule_times *t, dpar_timing *out,
                       dpar_why *why)
{
    dpar_schedule_simulate_desc how;
    how.times = t;
    how.start = from;
    how.end = to;
    how.rank = ranks;
    how.path = path;
    return dpar_schedule_simulate(s, &how, out, work, sizeof work, why);
}

static int64_t millionths(dpar_ratio r)
{
    return (int64_t)(1e6 * (double)r.part / (double)r.whole + .5);
}

static dpar_schedule_times times(int64_t f, int64_t i, int64_t w, int64_t latency)
{
    dpar_schedule_times t;
    memset(&t, 0, sizeof t);
    t.forward.all = f;
    t.input.all = i;
    t.weight.all = w;
    t.latency.all = latency;
    return t;
}

/* ---- what an action waits for, by search ----------------------------------------------------- */

static int backward(int kind)
{
    return kind == DPAR_ACTION_BACKWARD || kind == DPAR_ACTION_INPUT;
}

/* Returns the index of an action, -1 if there is none; `backward` means B or I. */
static int64_t find(const dpar_schedule *s, int kind, int32_t stage, int32_t micro)
{
    int64_t i;
    for (i = 0; i < s->begin[s->ranks]; i++) {
        const dpar_action *a = &s->action[i];
        if (a->stage == stage && a->micro_batch == micro &&
            (a->kind == kind || (backward(a->kind) && kind == DPAR_ACTION_BACKWARD))) {
            return i;
        }
    }
    return -1;
}

static int64_t each(const dpar_stage_values *e, int32_t stage)
{
    return e->each != NULL ? e->each[stage] : e->all;
}

static int64_t cost(const dpar_schedule_times *t, const dpar_action *a)
{
    switch (a->kind) {
    case DPAR_ACTION_FORWARD: return each(&t->forward, a->stage);
    case DPAR_ACTION_INPUT: return each(&t->input, a->stage);
    case DPAR_ACTION_WEIGHT: return each(&t->weight, a->stage);
    case DPAR_ACTION_BACKWARD:
        return each(&t->backward, a->stage)
                   ? each(&t->backward, a->stage)
                   : each(&t->input, a->stage) + each(&t->weight, a->stage);
    case DPAR_ACTION_UNSHARD: return each(&t->unshard, a->stage);
    case DPAR_ACTION_RESHARD: return each(&t->reshard, a->stage);
    case DPAR_ACTION_REDUCE_GRAD: return each(&t->reduce_grad, a->stage);
    case DPAR_ACTION_RECOMPUTE: return each(&t->recompute, a->stage);
    case DPAR_ACTION_OFFLOAD: return each(&t->offload, a->stage);
    case DPAR_ACTION_RELOAD: return each(&t->reload, a->stage);
    default: return 0;
    }
}

/* Returns the time of an action or of the pair that it leads. */
static int64_t takes(const dpar_schedule_times *t, const dpar_action *a)
{
    if (!a->joined) {
        return cost(t, a);
    }
    return each(&t->overlap, a->stage) ? each(&t->overlap, a->stage) : cost(t, a) + cost(t, a + 1);
}

static int64_t turn(const dpar_schedule_times *t, int32_t edge)
{
    int64_t speed = each(&t->bandwidth, edge);
    return speed == 0 ? 0 : (each(&t->bytes, edge) * 1000000000 + speed - 1) / speed;
}

/* Returns the stage that an action's message comes from (input 1) or goes to (0); -1 if there is
 * none. */
static int32_t neighbour(const dpar_schedule *s, const dpar_action *a, int input)
{
    int up = a->kind == DPAR_ACTION_FORWARD || a->kind == DPAR_ACTION_SEND_F ||
             a->kind == DPAR_ACTION_RECV_F;
    return up == input ? dpar_schedule_partner(s, DPAR_ACTION_RECV_F, a->stage)
                       : dpar_schedule_partner(s, DPAR_ACTION_SEND_F, a->stage);
}

static int remote(const dpar_schedule *s, int32_t a, int32_t b)
{
    return a >= 0 && b >= 0 && s->rank_of[a] != s->rank_of[b];
}

static int is_lowered(const dpar_schedule *s)
{
    int64_t i;
    for (i = 0; i < s->begin[s->ranks]; i++) {
        if (is_message(s->action[i].kind)) {
            return 1;
        }
    }
    return 0;
}

/* Lists the actions that must have ended before action i starts, with -1 for one that never does.
 * Returns how many. *message is which of them is the message or remote producer that brings the
 * input, or -2. */
static int needs(const dpar_schedule *s, int64_t i, int lowered, int64_t need[4], int64_t *message)
{
    const dpar_action *a = &s->action[i];
    int n = 0, k = a->micro_batch, slices = s->slices;
    int32_t near;
    *message = -2;
    if (a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_SEND_B) {
        need[n++] =
            find(s, a->kind == DPAR_ACTION_SEND_F ? DPAR_ACTION_FORWARD : DPAR_ACTION_BACKWARD,
                 a->stage, k);
    }
    if (a->kind == DPAR_ACTION_WEIGHT) {
        need[n++] = find(s, DPAR_ACTION_INPUT, a->stage, k);
    }
    if (backward(a->kind) || a->kind == DPAR_ACTION_RECOMPUTE || a->kind == DPAR_ACTION_OFFLOAD ||
        a->kind == DPAR_ACTION_RELOAD) {
        need[n++] = find(s, DPAR_ACTION_FORWARD, a->stage, k);
    }
    if (a->kind != DPAR_ACTION_FORWARD && !backward(a->kind)) {
        return n;
    }
    if (a->kind == DPAR_ACTION_FORWARD && k % slices > 0) {
        need[n++] = find(s, DPAR_ACTION_FORWARD, a->stage, k - 1);
    }
    if (backward(a->kind) && k % slices < slices - 1 && k + 1 < s->micro_batches) {
        need[n++] = find(s, DPAR_ACTION_BACKWARD, a->stage, k + 1);
    }
    near = neighbour(s, a, 1);
    if (near >= 0) {
        int kind = backward(a->kind) ? DPAR_ACTION_BACKWARD : DPAR_ACTION_FORWARD;
        int64_t it =
            remote(s, near, a->stage) && lowered
                ? find(s, backward(a->kind) ? DPAR_ACTION_RECV_B : DPAR_ACTION_RECV_F, a->stage, k)
                : find(s, kind, near, k);
        if (remote(s, near, a->stage)) {
            *message = it;
        } else {
            need[n++] = it;
        }
    }
    return n;
}

/* ---- tick by tick ---------------------------------------------------------------------------- */

static int64_t ended[MOST], reached[MOST], arrives[MOST];

typedef struct message {
    int64_t send, recv; /* actions; recv -1: implied */
    int32_t edge, rank, peer, begun;
} message;
static message flying[MOST];
static int flights;

static void post(const dpar_schedule *s, int64_t send, int64_t recv)
{
    const dpar_action *a = &s->action[send];
    int32_t other = neighbour(s, a, 0);
    flying[flights].send = send;
    flying[flights].recv = recv;
    flying[flights].edge = other < a->stage ? other : a->stage;
    flying[flights].rank = s->rank_of[a->stage];
    flying[flights].peer = s->rank_of[other];
    flying[flights++].begun = 0;
}

/* Starts the messages that may be sent now, in the order in which they were posted. */
static int fly(const dpar_schedule_times *t, int64_t now, int64_t wires[64][64])
{
    int k, moved = 0;
    for (k = 0; k < flights; k++) {
        message *f = &flying[k];
        int64_t *wire = &wires[f->rank][t->links == DPAR_CONTENTION_RANK ? 0 : f->peer];
        int64_t busy = turn(t, f->edge);
        if (f->begun || (t->links != DPAR_CONTENTION_NONE && *wire > now)) {
            continue;
        }
        f->begun = 1;
        moved = 1;
        *wire = now + busy;
        arrives[f->send] = now + busy + each(&t->latency, f->edge);
        if (f->recv >= 0) {
            arrives[f->recv] = arrives[f->send];
        }
    }
    return moved;
}

/* Returns 1 if action i may start now, because everything that it needs has ended. */
static int ready(const dpar_schedule *s, int64_t i, int lowered, int64_t now)
{
    int64_t need[4], mail;
    int n = needs(s, i, lowered, need, &mail), k;
    for (k = 0; k < n; k++) {
        if (need[k] < 0 || ended[need[k]] < 0 || ended[need[k]] > now) {
            return 0;
        }
    }
    return mail == -2 || (mail >= 0 && arrives[mail] >= 0 && arrives[mail] <= now &&
                          (!lowered || reached[mail] >= 0));
}

/* Runs the list; returns 1 if it ends. Sets ended[], reached[] (start), and arrives[] of messages
 * and producers. */
static int tick(const dpar_schedule *s, const dpar_schedule_times *t)
{
    static int64_t wires[64][64];
    int64_t at[64], hold[64], now, i, n = s->begin[s->ranks], most = 0;
    int32_t r, left = 1, lowered = is_lowered(s);
    int64_t running[64];
    memset(wires, 0, sizeof wires);
    flights = 0;
    for (i = 0; i < n; i++) {
        ended[i] = reached[i] = arrives[i] = -1;
        most += takes(t, &s->action[i]) + 2000;
    }
    for (r = 0; r < s->ranks; r++) {
        at[r] = s->begin[r];
        hold[r] = 0;
        running[r] = -1;
    }
    for (now = 0; now <= most && left; now++) {
        int moved = 1, quiet = 1;
        while (moved) {
            moved = 0;
            for (r = 0; r < s->ranks; r++) {
                const dpar_action *a;
                int32_t other;
                int64_t half;
                if (hold[r] > now) {
                    continue;
                }
                if (running[r] >= 0) { /* it ends, and its message is sent */
                    int k;
                    for (k = 0; k <= s->action[running[r]].joined && !lowered; k++) {
                        a = &s->action[running[r] + k];
                        if ((a->kind == DPAR_ACTION_FORWARD || backward(a->kind)) &&
                            remote(s, a->stage, neighbour(s, a, 0))) {
                            post(s, running[r] + k, -1);
                        }
                    }
                    running[r] = -1;
                    moved = 1;
                    continue;
                }
                if (at[r] >= s->begin[r + 1]) {
                    continue;
                }
                a = &s->action[at[r]];
                i = at[r];
                if (a->kind == DPAR_ACTION_IDLE) {
                    at[r]++;
                    moved = 1;
                } else if (!is_message(a->kind)) {
                    if (ready(s, i, lowered, now) &&
                        (!a->joined || ready(s, i + 1, lowered, now))) {
                        reached[i] = now;
                        ended[i] = hold[r] = now + takes(t, a);
                        if (a->joined) {
                            reached[i + 1] = now;
                            ended[i + 1] = ended[i];
                        }
                        running[r] = i;
                        at[r] += 1 + a->joined;
                        moved = 1;
                    }
                } else {
                    int send = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_SEND_B;
                    int32_t stage = neighbour(s, a, !send);
                    half = remote(s, stage, a->stage)
                               ? find(s, send ? a->kind + 1 : a->kind - 1, stage, a->micro_batch)
                               : -1;
                    if (half < 0 || !ready(s, i, lowered, now)) {
                        continue;
                    }
                    other = s->rank_of[stage];
                    if (t->sends == DPAR_SEND_MODE_BLOCKING) {
                        int32_t edge = stage < a->stage ? stage : a->stage;
                        if (reached[i] < 0) {
                            reached[i] = now;
                            moved = 1;
                        }
                        if (at[other] == half && hold[other] <= now && running[other] < 0 &&
                            reached[half] >= 0) {
                            ended[i] = ended[half] = arrives[i] = arrives[half] = hold[r] =
                                hold[other] = now + each(&t->latency, edge) + turn(t, edge);
                            at[r]++;
                            at[other]++;
                            moved = 1;
                        }
                        continue;
                    }
                    reached[i] = now;
                    at[r]++;
                    moved = 1;
                    if (t->sends == DPAR_SEND_MODE_BUFFERED ? send : reached[half] >= 0) {
                        post(s, send ? i : half, send ? half : i);
                    }
                }
            }
            moved |= fly(t, now, wires);
        }
        left = 0;
        for (r = 0; r < s->ranks; r++) {
            quiet &= hold[r] <= now;
            left |= at[r] < s->begin[r + 1];
        }
        for (i = 0; i < flights; i++) {
            quiet &= flying[i].begun && arrives[flying[i].send] <= now;
        }
        if (quiet && left) {
            return 0;
        }
    }
    for (i = 0; i < n; i++) {
        ended[i] = is_message(s->action[i].kind) ? arrives[i] : ended[i];
    }
    return !left;
}

/* ---- relaxation: only async, separate links -------------------------------------------------- */

static int64_t relaxed[MOST];

static void relax(const dpar_schedule *s, const dpar_schedule_times *t)
{
    int64_t i, clock, clocks[MOST], need[4], mail;
    int32_t r;
    int moved = 1, lowered = is_lowered(s);
    memset(relaxed, 0, sizeof relaxed);
    memset(clocks, 0, sizeof clocks);
    while (moved) {
        moved = 0;
        for (r = 0; r < s->ranks; r++) {
            clock = 0;
            for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
                const dpar_action *a = &s->action[i];
                int64_t end = clock, k;
                int32_t stage = -1;
                if (a->kind == DPAR_ACTION_IDLE) {
                    continue;
                }
                if (is_message(a->kind)) {
                    int send = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_SEND_B;
                    int64_t half;
                    stage = neighbour(s, a, !send);
                    half = find(s, send ? a->kind + 1 : a->kind - 1, stage, a->micro_batch);
                    clocks[i] = clock;
                    if (t->sends == DPAR_SEND_MODE_POSTED || !send) {
                        end = clocks[half] > clock && t->sends == DPAR_SEND_MODE_POSTED
                                  ? clocks[half]
                              : send || t->sends == DPAR_SEND_MODE_POSTED ? clock
                                                                          : clocks[half];
                    }
                    stage = stage < a->stage ? stage : a->stage;
                    end += each(&t->latency, stage) + turn(t, stage);
                } else {
                    for (k = 0; k <= a->joined; k++) {
                        int n = needs(s, i + k, lowered, need, &mail), j;
                        for (j = 0; j < n; j++) {
                            clock = relaxed[need[j]] > clock ? relaxed[need[j]] : clock;
                        }
                        if (mail >= 0) {
                            int32_t near = neighbour(s, &s->action[i + k], 1);
                            int32_t edge =
                                near < s->action[i + k].stage ? near : s->action[i + k].stage;
                            int64_t there = relaxed[mail];
                            there += lowered ? 0 : each(&t->latency, edge) + turn(t, edge);
                            clock = there > clock ? there : clock;
                        }
                    }
                    end = clock = clock + takes(t, a);
                }
                moved |= end != relaxed[i];
                relaxed[i] = end;
                if (a->joined) {
                    relaxed[++i] = end;
                }
            }
        }
    }
}

/* ---- definitions ----------------------------------------------------------------------------- */

static int holds(const dpar_schedule_times *t, int kind)
{
    return kind != DPAR_ACTION_IDLE && (t->sends == DPAR_SEND_MODE_BLOCKING || !is_message(kind));
}

/* Checks the critical path: each action starts when the one before it ends or when its message
 * arrives. */
static void check_path(const dpar_schedule *s, const dpar_schedule_times *t, const dpar_timing *out)
{
    int64_t n = out->path_actions, k, compute = 0, flight = 0;
    CHECK_INT(out->path_compute + out->path_communication, out->makespan);
    if (n == 0) {
        return;
    }
    CHECK_INT(from[path[0]], 0);
    CHECK_INT(to[path[n - 1]], out->makespan);
    for (k = 0; k < n; k++) {
        int64_t i = path[k], j = k ? path[k - 1] : -1, c;
        const dpar_action *a = &s->action[i], *b = k ? &s->action[j] : NULL;
        int linked = k == 0;
        int joins = i > s->begin[s->rank_of[a->stage]] && a[-1].joined;
        int64_t h = i - 1; /* held the rank before; if that binds too, the path stays here */
        while (h >= s->begin[s->rank_of[a->stage]] && !holds(t, s->action[h].kind)) {
            h--;
        }
        if (h >= s->begin[s->rank_of[a->stage]] && to[h] == from[i] &&
            (holds(t, a->kind) ? !is_message(a->kind) : a->kind % 2)) { /* works, or is a SEND */
            CHECK(b != NULL && (j == h || (j == h - 1 && b->joined)));
        }
        if (!is_message(a->kind)) {
            compute += to[i] - from[i];
        }
        CHECK(!joins);
        if (is_message(a->kind) && (b == NULL || !is_message(b->kind) ||
                                    b->micro_batch != a->micro_batch || to[i] != to[j])) {
            int32_t near = neighbour(s, a, a->kind % 2 == 0); /* this half released it */
            near = near < a->stage ? near : a->stage;
            CHECK(t->sends != DPAR_SEND_MODE_BUFFERED || a->kind % 2);
            if (t->links == DPAR_CONTENTION_NONE) {
                CHECK_INT(to[i] - from[i], each(&t->latency, near) + turn(t, near));
            }
        }
        if (b == NULL) {
            continue;
        }
        if (s->rank_of[a->stage] == s->rank_of[b->stage] && j < i && from[i] == to[j]) {
            linked = 1; /* one rank, one after the other; or its own RECV */
        } else if (is_message(a->kind) && is_message(b->kind)) {
            linked = a->kind + b->kind == (a->kind < DPAR_ACTION_SEND_B
                                               ? DPAR_ACTION_SEND_F + DPAR_ACTION_RECV_F
                                               : DPAR_ACTION_SEND_B + DPAR_ACTION_RECV_B) &&
                     a->micro_batch == b->micro_batch && to[i] == to[j] &&
                     (t->sends == DPAR_SEND_MODE_BUFFERED || from[j] > from[i]);
        } else {
            for (c = 0; c <= a->joined && !linked; c++) {
                int64_t need[4], mail;
                (void)needs(s, i + c, 0, need, &mail);
                linked = mail == j || (mail > 0 && mail == j + 1 && b->joined);
                if (linked && t->links == DPAR_CONTENTION_NONE) {
                    int32_t edge = neighbour(s, &s->action[i + c], 1);
                    edge = edge < s->action[i + c].stage ? edge : s->action[i + c].stage;
                    CHECK_INT(from[i] - to[j], each(&t->latency, edge) + turn(t, edge));
                }
            }
            flight += from[i] - to[j];
        }
        CHECK(linked);
    }
    CHECK_INT(compute, out->path_compute);
    if (!out->lowered) {
        CHECK_INT(compute + flight, out->makespan);
    }
}

/* Checks idle time by cause, from the times, where sends do not block. */
static void check_idle(const dpar_schedule *s, int32_t r)
{
    int64_t clock = 0, i, dependency = 0, communication = 0, k, need[4], mail, began = 0;
    int lowered = is_lowered(s);
    for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
        const dpar_action *a = &s->action[i];
        int64_t late = -1, done = 0;
        if (a->kind == DPAR_ACTION_IDLE || is_message(a->kind)) {
            continue;
        }
        for (k = 0; k <= a->joined; k++) {
            (void)needs(s, i + k, lowered, need, &mail);
            if (mail >= 0 && arrives[mail] > late) {
                late = arrives[mail];
                (void)needs(s, i + k, 0, need, &mail);
                done = ended[mail];
            }
        }
        if (from[i] > clock && began) {
            done = done < clock ? clock : done > from[i] ? from[i] : done;
            dependency += done - clock;
            communication += from[i] - done;
        }
        began |= a->kind <= DPAR_ACTION_WEIGHT || to[i] > from[i];
        clock = to[i];
        i += a->joined;
    }
    CHECK_INT(ranks[r].dependency, dependency);
    CHECK_INT(ranks[r].communication, communication);
}

static int capped(const dpar_schedule_times *t)
{
    return t->cap.each != NULL || t->cap.all != 0;
}

static int64_t adds(const dpar_schedule_times *t, const dpar_action *a)
{
    if (capped(t) && t->hold_forward.each == NULL && t->hold_forward.all == 0) { /* activations */
        return (a->kind == DPAR_ACTION_FORWARD || a->kind == DPAR_ACTION_RELOAD) -
               (a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_WEIGHT ||
                a->kind == DPAR_ACTION_OFFLOAD);
    }
    switch (a->kind) {
    case DPAR_ACTION_FORWARD:
    case DPAR_ACTION_RELOAD: return each(&t->hold_forward, a->stage);
    case DPAR_ACTION_OFFLOAD: return -each(&t->hold_forward, a->stage);
    case DPAR_ACTION_INPUT: return each(&t->hold_input, a->stage);
    case DPAR_ACTION_WEIGHT: return each(&t->hold_weight, a->stage);
    case DPAR_ACTION_BACKWARD:
        return each(&t->hold_input, a->stage) + each(&t->hold_weight, a->stage);
    default: return 0;
    }
}

static int64_t more(int64_t x)
{
    return x > 0 ? x : 0;
}

/* Checks memory while action i runs: all that ended before, and what it and its other half add. */
static void check_memory(const dpar_schedule *s, const dpar_schedule_times *t, int32_t r)
{
    int64_t base = 0, peak, i, j, live = 0, most = 0;
    int32_t k;
    for (k = 0; k < s->stages; k++) {
        base += s->rank_of[k] == r ? each(&t->hold_always, k) : 0;
    }
    peak = base;
    for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
        const dpar_action *a = &s->action[i];
        int64_t now = base;
        for (j = s->begin[r]; j < i; j++) {
            now += adds(t, &s->action[j]);
        }
        now += more(adds(t, a)) + (a->joined ? more(adds(t, a + 1)) : 0);
        peak = now > peak ? now : peak;
        live += a->kind == DPAR_ACTION_FORWARD || a->kind == DPAR_ACTION_RELOAD;
        most = live > most ? live : most; /* a joined backward comes after its forward */
        live -= a->kind == DPAR_ACTION_BACKWARD || a->kind == DPAR_ACTION_WEIGHT ||
                a->kind == DPAR_ACTION_OFFLOAD;
        i += a->joined; /* both at once */
        live -= a->joined && a[1].kind == DPAR_ACTION_BACKWARD;
    }
    CHECK_INT(ranks[r].peak_bytes, peak);
    CHECK_INT(ranks[r].over_cap,
              each(&t->cap, r) > 0 && peak > each(&t->cap, r) ? peak - each(&t->cap, r) : 0);
    CHECK_INT(ranks[r].peak_count, most);
}

/* Finds the cause of one moment of an idle rank by its definition. i is the action that it waits
 * for. */
enum { DEPENDS, TRAVELS, STARVES };
static int why_idle(const dpar_schedule *s, const dpar_schedule_times *t, int32_t r, int64_t i,
                    int64_t now)
{
    const dpar_action *a = &s->action[i];
    int64_t j, k, need[4], mail, made, held = 0, late = -1;
    int lowered = is_lowered(s), n, could = 1, cause = TRAVELS;
    for (j = i + 1; j < s->begin[r + 1] && s->action[j].kind != DPAR_ACTION_FORWARD; j++) {
    }
    if (each(&t->cap, r) > 0 && j < s->begin[r + 1]) { /* the next forward could run now */
        n = needs(s, j, lowered, need, &mail);
        for (k = 0; k < n; k++) {
            could &= ended[need[k]] <= now;
        }
        could &= mail < 0 || arrives[mail] <= now;
        for (k = 0; k < s->stages; k++) {
            held += s->rank_of[k] == r ? each(&t->hold_always, (int32_t)k) : 0;
        }
        for (k = s->begin[r]; k < i; k++) {
            held += adds(t, &s->action[k]);
        }
        if (could && held + adds(t, &s->action[j]) > each(&t->cap, r)) {
            return STARVES;
        }
    }
    if (is_message(a->kind)) {
        made = find(s, a->kind == DPAR_ACTION_RECV_F ? DPAR_ACTION_FORWARD : DPAR_ACTION_BACKWARD,
                    neighbour(s, a, 1), a->micro_batch);
        return a->kind % 2 == 0 && ended[made] > now ? DEPENDS : TRAVELS; /* RECVs are even */
    }
    for (k = 0; k <= a->joined; k++) {
        (void)needs(s, i + k, lowered, need, &mail);
        (void)needs(s, i + k, 0, need, &made);
        if (mail >= 0 && arrives[mail] > late) { /* the last to arrive */
            late = arrives[mail];
            cause = ended[made] > now ? DEPENDS : TRAVELS;
        }
    }
    return cause;
}

/* Checks idle time by cause, moment by moment. */
static void check_causes(const dpar_schedule *s, const dpar_schedule_times *t, int32_t r)
{
    int64_t now, i = s->begin[r], sum[3] = {0, 0, 0};
    for (now = ranks[r].first; now < ranks[r].last; now++) {
        while (!holds(t, s->action[i].kind) || to[i] <= now) { /* skips what is done */
            i++;
        }
        if (is_message(s->action[i].kind) || from[i] > now) {
            sum[why_idle(s, t, r, i, now)]++;
        }
    }
    CHECK_INT(ranks[r].dependency, sum[DEPENDS]);
    CHECK_INT(ranks[r].communication, sum[TRAVELS]);
    CHECK_INT(ranks[r].memory, sum[STARVES]);
}

static void check_ranks(const dpar_schedule *s, const dpar_schedule_times *t,
                        const dpar_timing *out)
{
    int64_t busy = 0, span = 0, i, worst = 0, over = 0;
    int32_t r;
    for (r = 0; r < s->ranks; r++) {
        const dpar_rank_timing *q = &ranks[r];
        int64_t own = 0, first = -1, last = 0;
        for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
            const dpar_action *a = &s->action[i];
            if (holds(t, a->kind) && !is_message(a->kind) &&
                (a->kind <= DPAR_ACTION_WEIGHT || to[i] > from[i])) {
                own += to[i] - from[i];
                first = first < 0 ? from[i] : first;
                last = to[i];
                i += a->joined;
            }
        }
        CHECK_INT(q->busy, own);
        CHECK_INT(q->first, first < 0 ? 0 : first);
        CHECK_INT(q->last, last);
        CHECK_INT(q->warm_up, first < 0 ? out->makespan : first);
        CHECK_INT(q->drain, first < 0 ? 0 : out->makespan - last);
        CHECK(q->memory >= 0 && q->dependency >= 0 && q->communication >= 0);
        CHECK_INT(q->busy + q->warm_up + q->dependency + q->communication + q->memory + q->drain,
                  out->makespan);
        busy += own;
        over = q->over_cap > over ? q->over_cap : over;
        span = q->last - q->first > span ? q->last - q->first : span;
        worst = out->makespan - own > worst ? out->makespan - own : worst;
        if (t->sends != DPAR_SEND_MODE_BLOCKING && each(&t->cap, r) == 0) {
            check_idle(s, r);
        }
        check_causes(s, t, r);
        check_memory(s, t, r);
    }
    CHECK_INT(out->over_cap, over);
    CHECK_INT(out->busy, busy);
    CHECK_INT(out->span, span);
    CHECK_INT(out->bubble_worst, worst);
    CHECK_INT(out->bubble_first, out->makespan - ranks[0].busy);
    CHECK_INT(out->bubble_of_makespan.part, s->ranks * out->makespan - busy);
    CHECK_INT(out->bubble_of_makespan.whole, s->ranks * out->makespan);
    CHECK_INT(out->bubble_of_work.part, s->ranks * out->makespan - busy);
    CHECK_INT(out->bubble_of_work.whole, busy);
    CHECK_INT(out->bubble_of_span.part, s->ranks * span - busy);
    CHECK_INT(out->bubble_of_span.whole, s->ranks * span);
}

/* Checks one list with one set of times against everything above. Returns 1 if it ran. */
static int against(const dpar_schedule *s, const dpar_schedule_times *t)
{
    dpar_timing out;
    dpar_why why;
    int64_t i;
    int ends = tick(s, t);
    dpar_status st;
    memset(&out, 77, sizeof out);
    why.text[0] = 0;
    st = run(s, t, &out, &why);
    CHECK_INT(st, ends                                     ? DPAR_OK
                  : strstr(why.text, " waits at ") != NULL ? DPAR_E_STUCK
                                                           : DPAR_E_ARG);
    if (st != DPAR_OK) {
        CHECK(why.text[0] != 0);
        CHECK_INT(out.makespan, 77 * 0x101010101010101); /* nothing was written */
        return 0;
    }
    for (i = 0; i < s->begin[s->ranks]; i++) {
        if (s->action[i].kind != DPAR_ACTION_IDLE) {
            CHECK_INT(from[i], reached[i]);
            CHECK_INT(to[i], ended[i]);
        }
    }
    check_ranks(s, t, &out);
    check_path(s, t, &out);
    if (t->sends != DPAR_SEND_MODE_BLOCKING && t->links == DPAR_CONTENTION_NONE) {
        relax(s, t);
        for (i = 0; i < s->begin[s->ranks]; i++) {
            if (s->action[i].kind != DPAR_ACTION_IDLE) {
                CHECK_INT(to[i], relaxed[i]);
            }
        }
    }
    return 1;
}

/* ---- the reference lists --------------------------------------------------------------------- */

/* Compares every row of metrics.tsv, whose decimals are multiples of a quarter and of a half. */
static void test_metrics(void)
{
    FILE *f = fopen("tests/data/pipeline/metrics.tsv", "r");
    char line[512], name[128], peaks[64], joined[32];
    int rows = 0;
    CHECK(f != NULL);
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        int p, stages, m, r, at = 0;
        double makespan, bubble, span, late, uneven;
        dpar_schedule s;
        dpar_timing out;
        dpar_schedule_times t = times(4, 4, 4, 0);
        if (sscanf(line, "%127[^.].csv %d %d %d %lf %lf %63s %lf %lf %lf %31s", name, &p, &stages,
                   &m, &makespan, &bubble, peaks, &span, &late, &uneven, joined) != 11) {
            continue;
        }
        load(&s, name,
             strncmp(name, "dualpipe", 8) == 0 || strncmp(name, "chimera", 7) == 0 ? 4 : 0,
             strncmp(name, "seq1f1b", 7) == 0 ? 2 : 1);
        rows++;
        CHECK_INT(s.ranks, p);
        CHECK_INT(s.stages, stages);
        CHECK_INT(s.micro_batches, m);
        CHECK(against(&s, &t));
        CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
        CHECK_INT(out.makespan, 4 * makespan);
        CHECK_INT(out.span, 4 * span);
        CHECK_INT(millionths(out.bubble_of_makespan), bubble * 1e6 + .5);
        for (r = 0; r < p; r++) {
            int peak = -1, used = 0;
            CHECK_INT(sscanf(peaks + at, "%d%n", &peak, &used), 1);
            at += used + 1;
            CHECK_INT(ranks[r].peak_count, peak);
        }
        t.latency.all = 1;
        CHECK(against(&s, &t));
        CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
        CHECK_INT(out.makespan, 4 * late);
        t = times(2, 3, 1, 0);
        CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
        CHECK_INT(out.makespan, uneven);
        t = times(2, 2, 2, 0);
        t.overlap.all = 5;
        CHECK(against(&s, &t));
        CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
        CHECK_INT(out.makespan, 2 * (joined[0] == '-' ? makespan : atof(joined)));
    }
    CHECK_INT(rows, 22);
    if (f != NULL) {
        fclose(f);
    }
}

/* Checks the two lowered references with every kind of sending, and the list that hangs. */
static void test_messages(void)
{
    dpar_schedule s;
    dpar_timing out;
    dpar_schedule_times t = times(1, 1, 1, 0);
    static const char *const file[] = {"1f1b_p4_m8_comms", "interleaved1f1b_p4_v2_m8_comms"};
    int k;
    for (k = 0; k < 2; k++) {
        load(&s, file[k], 0, 1);
        for (t.sends = 0; t.sends < DPAR_SEND_MODE_COUNT; t.sends++) {
            for (t.latency.all = 0; t.latency.all < 4; t.latency.all++) {
                CHECK(against(&s, &t));
                CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
                CHECK_INT(out.lowered, 1);
                if (t.sends == 0 && t.latency.all == 0) { /* metrics.tsv: same as compute only */
                    CHECK_INT(out.makespan, k ? 57 : 33);
                }
            }
        }
    }
    /* The list that hangs where sends wait for their receives, as its file states: the message has
     * the two stuck lines of the report (PyTorch #172668). It runs where sends do not wait. */
    load(&s, "pt_interleaved_p2_v2_m4_recv_late_DEADLOCK", 0, 1);
    t = times(1, 1, 1, 1);
    for (t.sends = 0; t.sends < DPAR_SEND_MODE_COUNT; t.sends++) {
        dpar_why why;
        CHECK_INT(against(&s, &t), t.sends != DPAR_SEND_MODE_BLOCKING);
        if (t.sends == DPAR_SEND_MODE_BLOCKING) {
            CHECK_INT(run(&s, &t, &out, &why), DPAR_E_STUCK);
            CHECK_TEXT(why.text, "rank 0 waits at 0SEND_F1 for 1RECV_F1 of rank 1, which is at "
                                 "1SEND_F0");
        }
    }
}

/* Checks that buffered messages do not change memory either, and that without bytes the peak's
 * bytes are activations. */
static void check_caps_lowered(const dpar_schedule *s, const dpar_schedule *l,
                               dpar_schedule_times t)
{
    static dpar_rank_timing plain[64];
    dpar_timing out, with;
    int32_t r;
    t.cap.all = 1 + any(6);
    CHECK_INT(run(s, &t, &out, NULL), DPAR_OK);
    memcpy(plain, ranks, sizeof plain);
    CHECK_INT(run(l, &t, &with, NULL), DPAR_OK);
    for (r = 0; r < s->ranks; r++) {
        CHECK_INT(ranks[r].memory, plain[r].memory);
        CHECK_INT(ranks[r].over_cap, plain[r].over_cap);
        CHECK_INT(plain[r].peak_bytes, plain[r].peak_count);
    }
    CHECK_INT(out.peak_bytes - out.over_cap, /* one cap for all: both peaks are on one rank */
              out.peak_bytes < t.cap.all ? out.peak_bytes : t.cap.all);
}

/* Checks every order of the library, lowered: with buffered sends it takes as long as without
 * messages, since each is sent right after its work; posted sends are no faster; and none hangs,
 * even when blocking. */
static void test_lowered(void)
{
    static int64_t plain[1 << 16], lower[1 << 16];
    int32_t rule, p, m;
    int tried = 0;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        for (p = 2; p <= 4; p++) {
            for (m = 1; m <= 3 * p; m++) {
                dpar_schedule_desc o;
                dpar_schedule s, l;
                dpar_timing out, with;
                dpar_schedule_times t = times(3, 4, 2, 1);
                memset(&o, 0, sizeof o);
                o.rule = rule;
                o.ranks = p;
                o.micro_batches = m;
                if (dpar_schedule_generate(&s, &o, plain, sizeof plain, NULL) != DPAR_OK) {
                    continue;
                }
                CHECK_INT(dpar_schedule_lower(&l, &s, NULL, lower, sizeof lower, NULL), DPAR_OK);
                CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
                CHECK_INT(run(&l, &t, &with, NULL), DPAR_OK);
                CHECK_INT(with.makespan, out.makespan);
                CHECK_INT(with.span, out.span);
                CHECK_INT(with.busy, out.busy);
                CHECK_INT(with.peak_count, out.peak_count);
                check_caps_lowered(&s, &l, t);
                t.sends = DPAR_SEND_MODE_POSTED;
                CHECK_INT(run(&l, &t, &with, NULL), DPAR_OK);
                CHECK(with.makespan >= out.makespan);
                t.sends = DPAR_SEND_MODE_BLOCKING;
                CHECK_INT(run(&l, &t, &with, NULL), DPAR_OK);
                CHECK(with.makespan >= out.makespan);
                tried++;
            }
        }
    }
    CHECK(tried > 300);
}

/* ---- random lists
 * -------------------------------------------------------------------------------- */

static dpar_action lists[4][MOST];
static int64_t counts[4];
static int64_t table[20][64];

static void put(dpar_schedule *s, int kind, int32_t stage, int32_t micro, int joined)
{
    int32_t r = s->rank_of[stage];
    dpar_action *a = &lists[r][counts[r]++];
    memset(a, 0, sizeof *a);
    a->kind = (uint8_t)kind;
    a->stage = (uint16_t)stage;
    a->micro_batch = (uint16_t)micro;
    a->joined = (uint8_t)joined;
}

static void put_message(dpar_schedule *s, int kind, int32_t stage, int32_t micro)
{
    int32_t other = kind == DPAR_ACTION_SEND_F
                        ? dpar_schedule_partner(s, DPAR_ACTION_SEND_F, stage)
                        : dpar_schedule_partner(s, DPAR_ACTION_RECV_F, stage);
    if (remote(s, stage, other)) {
        put(s, kind, stage, micro, 0);
        put(s, kind + 1, other, micro, 0);
    }
}

/* Returns which of F, B and W may come next here, 0 if none. done[stage][micro]: 0 nothing, 1 F, 2
 * I, 3 all. */
static int next(const dpar_schedule *s, char done[16][16], int32_t stage, int32_t k)
{
    int32_t before = dpar_schedule_partner(s, DPAR_ACTION_RECV_F, stage),
            behind = dpar_schedule_partner(s, DPAR_ACTION_SEND_F, stage);
    if (stage / s->chain != k / s->slices % (s->stages / s->chain)) {
        return 0; /* belongs to the other chain */
    }
    switch (done[stage][k]) {
    case 0:
        return (before < 0 || done[before][k] > 0) && (k % s->slices == 0 || done[stage][k - 1] > 0)
                   ? DPAR_ACTION_FORWARD
                   : 0;
    case 1:
        return (behind < 0 || done[behind][k] > 1) &&
                       ((k + 1) % s->slices == 0 || done[stage][k + 1] > 1)
                   ? DPAR_ACTION_BACKWARD
                   : 0;
    case 2: return DPAR_ACTION_WEIGHT;
    default: return 0;
    }
}

static void make(dpar_schedule *s, int lowered)
{
    static const int other[] = {DPAR_ACTION_UNSHARD, DPAR_ACTION_RESHARD, DPAR_ACTION_REDUCE_GRAD,
                                DPAR_ACTION_IDLE};
    char done[16][16];
    int32_t p = 1 + any(4), chains = 1 + any(2), stages = chains * (1 + any(5)), i, left = 1, at;
    memset(done, 0, sizeof done);
    memset(counts, 0, sizeof counts);
    CHECK_INT(schedule_init(s, p, stages, 1000, memory, sizeof memory, NULL), DPAR_OK);
    s->chain = stages / chains;
    s->slices = 1 + any(2);
    s->micro_batches = s->slices * (1 + any(4));
    for (i = 0; i < stages; i++) {
        s->rank_of[i] = (uint16_t)(any(3) ? i % p : any(p));
    }
    while (left) {
        int32_t first = any(stages * s->micro_batches), n;
        left = 0;
        for (n = 0; n < stages * s->micro_batches; n++) {
            int32_t c = (first + n) % (stages * s->micro_batches), g = c / s->micro_batches,
                    k = c % s->micro_batches;
            int32_t g2 = any(stages), k2 = any(s->micro_batches);
            int kind = next(s, done, g, k), split = any(2), pair;
            if (kind == 0) {
                continue;
            }
            left = 1;
            pair = kind == DPAR_ACTION_FORWARD && s->rank_of[g] == s->rank_of[g2] &&
                   next(s, done, g2, k2) == DPAR_ACTION_BACKWARD;
            done[g][k] = (char)(kind == DPAR_ACTION_FORWARD             ? 1
                                : kind == DPAR_ACTION_BACKWARD && split ? 2
                                                                        : 3);
            put(s, kind == DPAR_ACTION_BACKWARD && split ? DPAR_ACTION_INPUT : kind, g, k, pair);
            if (pair) {
                split = any(2);
                put(s, split ? DPAR_ACTION_INPUT : DPAR_ACTION_BACKWARD, g2, k2, 0);
                done[g2][k2] = split ? 2 : 3;
            }
            if (lowered && kind != DPAR_ACTION_WEIGHT) {
                put_message(
                    s, kind == DPAR_ACTION_FORWARD ? DPAR_ACTION_SEND_F : DPAR_ACTION_SEND_B, g, k);
            }
            if (lowered && pair) {
                put_message(s, DPAR_ACTION_SEND_B, g2, k2);
            }
            if (any(8) == 0) {
                put(s, other[any(4)], any(stages), 0, 0);
            }
            if (any(12) == 0 && kind == DPAR_ACTION_FORWARD && !pair) {
                put(s, DPAR_ACTION_OFFLOAD, g, k, 0);
                put(s, DPAR_ACTION_RELOAD, g, k, 0);
                put(s, DPAR_ACTION_RECOMPUTE, g, k, 0);
            }
            break;
        }
    }
    for (i = at = 0; i < p; i++) {
        memcpy(s->action + at, lists[i], (size_t)counts[i] * sizeof lists[i][0]);
        at += (int32_t)counts[i];
        s->begin[i + 1] = at;
    }
    CHECK(at <= 1000);
}

static void random_each(dpar_stage_values *e, int k, int32_t least, int32_t n)
{
    int32_t i;
    e->all = least + any(n);
    e->each = any(3) ? NULL : table[k];
    for (i = 0; i < 64; i++) {
        table[k][i] = least + any(n);
    }
}

static void random_times(dpar_schedule_times *t)
{
    memset(t, 0, sizeof *t);
    random_each(&t->forward, 0, 0, 6);
    random_each(&t->input, 1, 0, 6);
    random_each(&t->weight, 2, 0, 4);
    if (any(2)) {
        random_each(&t->backward, 3, 0, 9);
        random_each(&t->overlap, 4, 0, 12);
    }
    if (any(2)) {
        random_each(&t->unshard, 5, 0, 3);
        random_each(&t->reshard, 6, 0, 2);
        random_each(&t->reduce_grad, 7, 0, 3);
        random_each(&t->recompute, 8, 0, 3);
        random_each(&t->offload, 9, 0, 3);
        random_each(&t->reload, 10, 0, 3);
    }
    random_each(&t->latency, 11, 0, 5);
    if (any(2)) { /* a turn of up to 4 actions */
        random_each(&t->bytes, 12, 0, 9);
        random_each(&t->bandwidth, 13, 2, 7);
        t->bandwidth.all *= 1000000000;
        for (int k = 0; k < 64; k++) {
            table[13][k] *= 1000000000;
        }
    }
    random_each(&t->hold_forward, 14, 0, 100);
    random_each(&t->hold_input, 15, -50, 60);
    random_each(&t->hold_weight, 16, -50, 60);
    random_each(&t->hold_always, 17, 0, 100);
}

/* Sets caps in bytes, or in activations if there are no bytes. */
static void random_caps(dpar_schedule_times *t)
{
    if (any(2)) {
        random_each(&t->cap, 18, 0, 400);
        return;
    }
    memset(&t->hold_forward, 0, sizeof t->hold_forward);
    t->hold_always.each = NULL;
    t->hold_always.all = any(2);
    random_each(&t->cap, 18, 0, 6);
}

/* Checks that larger caps never give more idle time for memory, and large ones none, so that the
 * time is counted as other causes. Returns that under t's own caps. */
static int64_t check_monotone(const dpar_schedule *s, const dpar_schedule_times *t)
{
    static dpar_rank_timing last[64];
    int64_t caps[64], sum = 0;
    dpar_schedule_times u = *t;
    dpar_timing out;
    int32_t r, step;
    CHECK_INT(run(s, t, &out, NULL), DPAR_OK);
    for (r = 0; r < s->ranks; r++) {
        caps[r] = each(&t->cap, r);
        sum += ranks[r].memory;
    }
    u.cap.each = caps;
    for (step = 0; step < 3; step++) {
        memcpy(last, ranks, sizeof last);
        for (r = 0; r < s->ranks; r++) { /* a 0 means no limit */
            caps[r] = caps[r] == 0 ? 0 : step == 2 ? INT64_MAX : caps[r] + any(step ? 200 : 3);
        }
        CHECK_INT(run(s, &u, &out, NULL), DPAR_OK);
        for (r = 0; r < s->ranks; r++) {
            CHECK(ranks[r].memory <= last[r].memory && ranks[r].over_cap <= last[r].over_cap);
            CHECK(ranks[r].dependency >= last[r].dependency);
            CHECK(ranks[r].communication >= last[r].communication);
            CHECK(step < 2 || (ranks[r].memory == 0 && ranks[r].over_cap == 0));
        }
    }
    return sum;
}

/* Swaps two neighbours or removes one. */
static void disturb(dpar_schedule *s)
{
    int64_t n = s->begin[s->ranks], i;
    dpar_action a;
    int32_t r;
    if (n < 2) {
        return;
    }
    i = any((int32_t)n - 1);
    for (r = 0; s->begin[r + 1] <= i; r++) {
    }
    if (s->action[i].joined || (i > 0 && s->action[i - 1].joined)) {
        return;
    }
    if (any(4) == 0) {
        s->action[i].kind = DPAR_ACTION_IDLE;
    } else if (i + 1 < s->begin[r + 1] && !s->action[i + 1].joined) {
        a = s->action[i];
        s->action[i] = s->action[i + 1];
        s->action[i + 1] = a;
    }
}

static void test_random(void)
{
    int round, k, ran = 0, stuck = 0, refused = 0, starved[2][3] = {{0, 0, 0}, {0, 0, 0}};
    for (round = 0; round < 3000; round++) {
        dpar_schedule s;
        dpar_schedule_times t;
        int lowered = any(2), valid;
        make(&s, lowered);
        random_times(&t);
        lowered = is_lowered(&s);
        t.sends = lowered ? any(3) : 0;
        t.links = t.sends == DPAR_SEND_MODE_BUFFERED ? any(3) : 0;
        valid = against(&s, &t);
        CHECK(valid); /* made in a common order, so that no kind of sending can hang */
        ran += valid;
        if (any(2)) {
            random_caps(&t);
            CHECK(against(&s, &t));
            starved[lowered][t.sends] += check_monotone(&s, &t) > 0;
        }
        for (k = 0; k < 2; k++) {
            disturb(&s);
        }
        if (is_lowered(&s) == lowered) {
            dpar_why why;
            dpar_timing out;
            if (!against(&s, &t)) {
                (void)run(&s, &t, &out, &why);
                stuck += strstr(why.text, "waits at") != NULL;
                refused++;
            }
        }
    }
    CHECK_INT(ran, 3000);
    CHECK(stuck > 100 && refused > stuck + 100); /* both occur */
    CHECK(starved[0][0] > 100 && starved[1][0] > 20 && starved[1][1] > 20 && starved[1][2] > 20);
}

/* ---- small lists by hand
 * -------------------------------------------------------------------------- */

static void small(dpar_schedule *s, const char *csv, int32_t chain)
{
    dpar_why why;
    CHECK_INT(read_csv(s, csv, strlen(csv), chain, memory, sizeof memory, &why), DPAR_OK);
}

static void refuses(const dpar_schedule *s, const dpar_schedule_times *t, dpar_status st,
                    const char *says)
{
    dpar_timing out;
    dpar_why why;
    int64_t one = 77, other = 77;
    memset(&out, 77, sizeof out);
    st = strstr(says, " waits at ") != NULL ? DPAR_E_STUCK : st;
    CHECK_INT(simulate_list(s, t, &one, &other, &out, ranks, work, sizeof work, &why), st);
    CHECK_TEXT(why.text, says);
    CHECK(one == 77 && other == 77 && out.busy == 77 * 0x101010101010101); /* nothing was written */
    CHECK_INT(simulate_list(s, t, NULL, NULL, &out, NULL, work, sizeof work, NULL), st);
}

static void test_order(void)
{
    static const struct {
        const char *csv, *says;
    } bad[] = {
        {"0B0,0F0", "rank 0: 0B0 comes before 0F0 or without it"},
        {"0F0,0W0,0I0", "rank 0: 0W0 comes before 0I0 or without it"},
        {"0F0,0B0,0W0", "rank 0: 0W0 comes before 0I0 or without it"},
        {"0F0,0F0", "rank 0: 0F0 is listed twice"},
        {"0F0,0I0,0B0", "rank 0: 0B0 is listed twice"},
        {"0F0,0I0,0W0,0W0", "rank 0: 0W0 is listed twice"},
        {"1F0,0F0", "rank 0: 1F0 comes before 0F0 or without it"},
        {"0F0,1F0,0B0,1B0", "rank 0: 0B0 comes before 1B0 or without it"},
        {"0RECOMPUTE0,0F0", "rank 0: 0RECOMPUTE0 comes before 0F0 or without it"},
        {"(0F0;0B0)OVERLAP_F_B", "rank 0: 0B0 comes before 0F0 or without it"},
        {"0SEND_F0,0F0\n1RECV_F0,1F0", "rank 0: 0SEND_F0 comes before 0F0 or without it"},
        {"0F0,0SEND_F0\n1F0,1RECV_F0", "rank 1: 1F0 comes before 1RECV_F0 or without it"},
        {"0F0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n2F0",
         "rank 1: 1B0 comes before 1RECV_B0 or without it"},
        {"0F0\n1RECV_F0,1F0",
         "rank 1 waits at 1RECV_F0 for 0SEND_F0 of rank 0, which is in no list"},
        {"0F0,0SEND_F0\n1RESHARD",
         "rank 0 waits at 0SEND_F0 for 1RECV_F0 of rank 1, which is in no list"},
        {"0RESHARD\n1F0", "rank 1 waits at 1F0 for 0F0 of rank 0, which is in no list"},
        {"0F0,0B0\n1F0", "rank 0 waits at 0B0 for 1B0 of rank 1, which is in no list"},
        {"0F0,0B0,0F1\n1F1,1I1,1F0,1I0", "rank 0 waits at 0B0 for 1I0 of rank 1, which is at 1F1"},
        {"0F0,(0F1;0B0)OVERLAP_F_B\n1F0,1F1,1B0",
         "rank 0 waits at (0F1;0B0)OVERLAP_F_B for 1B0 of rank 1, which is at 1F1"},
        {"1F0,(1F1;1B0)OVERLAP_F_B\n0F0,0B0",
         "rank 0 waits at (1F1;1B0)OVERLAP_F_B for 0F1 of rank 1, which is in no list"}};
    dpar_schedule_times t = times(1, 1, 1, 1);
    dpar_schedule s;
    size_t k;
    for (k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        small(&s, bad[k].csv, 0);
        refuses(&s, &t, DPAR_E_ARG, bad[k].says);
    }
    small(&s, "0F0,0F1,0B0,0B1", 0); /* one micro-batch in two slices: backward from the last */
    s.slices = 2;
    refuses(&s, &t, DPAR_E_ARG, "rank 0: 0B0 comes before 0B1 or without it");
    small(&s, "0F1,0F0,0B1,0B0", 0);
    s.slices = 2;
    refuses(&s, &t, DPAR_E_ARG, "rank 0: 0F1 comes before 0F0 or without it");
    s.slices = 4;
    refuses(&s, &t, DPAR_E_ARG,
            "this is not a schedule: it has 1 stages in chains of 1, and 2 micro-batches in slices "
            "of 4");
    CHECK_INT(simulate_list_bytes(&s, &t), -1);
}

static void test_garbage(void)
{
    static const int64_t caps[] = {0, -3};
    dpar_schedule_times t = times(1, 1, 1, 1);
    dpar_schedule s;
    dpar_action *a;
    dpar_timing out;
    dpar_why why;
    small(&s, "0F0,0B0\n1F0,1B0", 0);
    a = &s.action[2];
    a->kind = DPAR_ACTION_COUNT;
    refuses(&s, &t, DPAR_E_ARG, "rank 1: kind 16, stage 1, micro-batch 0 does not exist");
    a->kind = DPAR_ACTION_FORWARD;
    a->stage = 2;
    refuses(&s, &t, DPAR_E_ARG, "rank 1: kind 1, stage 2, micro-batch 0 does not exist");
    a->stage = 0;
    refuses(&s, &t, DPAR_E_ARG, "rank 1: 0F0 has a stage of another rank");
    a->stage = 1;
    a->micro_batch = 1;
    refuses(&s, &t, DPAR_E_ARG, "rank 1: kind 1, stage 1, micro-batch 1 does not exist");
    a->micro_batch = 0;
    a[1].joined = 1;
    refuses(&s, &t, DPAR_E_ARG, "rank 1: 1B0 is joined, but it is not an F that a B or I follows");
    a[1].joined = 0;
    s.action[1].kind = DPAR_ACTION_IDLE;
    s.action[1].joined = 1;
    refuses(&s, &t, DPAR_E_ARG, "rank 0: 0 is joined, but it is not an F that a B or I follows");
    s.action[1].joined = 0;
    s.action[1].kind =
        DPAR_ACTION_FORWARD; /* the last of its rank; the next rank's B comes behind it */
    s.action[1].joined = 1;
    a->kind = DPAR_ACTION_BACKWARD;
    s.action[0].kind = DPAR_ACTION_IDLE;
    refuses(&s, &t, DPAR_E_ARG, "rank 0: 0F0 is joined, but it is not an F that a B or I follows");
    s.begin[1] = 5;
    refuses(&s, &t, DPAR_E_ARG, "the list of rank 1 begins at action 5 and ends at 4");
    s.begin[1] = 2;
    s.rank_of[1] = 2;
    refuses(&s, &t, DPAR_E_ARG, "rank_of[1] is 2, but there are only 2 ranks");
    small(&s, "0F0,0B0\n1F0,1B0", 0);
    t.sends = 3;
    refuses(&s, &t, DPAR_E_ARG,
            "sends=3, links=0; DPAR_SEND_MODE_x and DPAR_CONTENTION_x are allowed");
    t.sends = DPAR_SEND_MODE_BLOCKING;
    refuses(&s, &t, DPAR_E_ARG, "sends=2 needs messages; call dpar_schedule_lower first");
    t.links = DPAR_CONTENTION_RANK;
    refuses(&s, &t, DPAR_E_ARG, "sends=2, links=2; only buffered sends (0) can share links");
    t = times(1, 1, 1, 1);
    t.weight.all = -1;
    refuses(&s, &t, DPAR_E_ARG, "stage 0: the time of W is -1; 0 or more are allowed");
    t = times(1, 1, 1, -1);
    refuses(&s, &t, DPAR_E_ARG, "stage 0: latency=-1, bytes=0, bandwidth=0; 0 or more are allowed");
    t = times(1, 1, 1, 1);
    t.hold_always.all = -1;
    refuses(&s, &t, DPAR_E_ARG, "stage 0: hold_always is -1; 0 or more are allowed");
    t = times(1, 1, 1, 1);
    t.cap.each = caps;
    refuses(&s, &t, DPAR_E_ARG, "rank 1: cap is -3; 0 or more are allowed");
    t = times(1, 1, 1, 1);
    CHECK_INT(
        simulate_list(&s, &t, NULL, NULL, &out, NULL, work, simulate_list_bytes(&s, &t) - 1, &why),
        DPAR_E_ROOM);
    CHECK_INT(
        simulate_list(&s, &t, NULL, NULL, &out, NULL, work, simulate_list_bytes(&s, &t), &why),
        DPAR_OK);
    CHECK_INT(out.makespan, 8); /* 1 + 1 + 1 + 2 + 1 + 2 */
}

/* Checks that sums above INT64_MAX are refused and those just below are right. */
static void test_large(void)
{
    const int64_t most = INT64_MAX;
    dpar_schedule_times t = times(0, 0, 0, most);
    dpar_schedule s;
    dpar_timing out;
    small(&s, "0F0\n1F0", 0);
    refuses(&s, &t, DPAR_E_RANGE, "2 ranks x a makespan of 9223372036854775807 exceed INT64_MAX");
    t.latency.all = most / 2;
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(out.makespan, most / 2);
    t.forward.all = most - most / 2;
    refuses(&s, &t, DPAR_E_RANGE, "rank 1, action 0: the times exceed INT64_MAX");
    t = times(1, 0, 0, most);
    refuses(&s, &t, DPAR_E_RANGE, "rank 0, action 0: the times exceed INT64_MAX");
    t = times(0, most, 1, 0);
    refuses(&s, &t, DPAR_E_RANGE,
            "stage 0: the times of I and W, 9223372036854775807 + 1, exceed INT64_MAX");
    t = times(1, 1, 1, most);
    t.bytes.all = 1;
    t.bandwidth.all = 1000000000;
    refuses(&s, &t, DPAR_E_RANGE,
            "stage 0: a latency of 9223372036854775807 and 1 bytes at bandwidth 1000000000 exceed "
            "INT64_MAX");
    small(&s, "0F0,(0F1;0B0)OVERLAP_F_B", 0);
    t = times(1, 1, 1, 0);
    t.overlap.all = most;
    refuses(&s, &t, DPAR_E_RANGE, "rank 0, action 1: the times exceed INT64_MAX");
    t.overlap.all = most - 5; /* F, F, B and the overlap */
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(out.makespan, most - 4);
    t.overlap.all = 0;
    t.hold_forward.all = most / 2 + 1;
    refuses(&s, &t, DPAR_E_RANGE, "rank 0, action 1: the bytes do not fit into 64 bits");
    t.hold_forward.all = INT64_MIN;
    refuses(&s, &t, DPAR_E_RANGE, "rank 0, action 1: the bytes do not fit into 64 bits");
    t = times(1, 1, 1, 0); /* INT64_MAX held, and the smaller one that B adds */
    t.hold_forward.all = most;
    t.hold_input.all = t.hold_weight.all = 1;
    small(&s, "0F0,0B0", 0);
    refuses(&s, &t, DPAR_E_RANGE, "rank 0, action 1: the bytes do not fit into 64 bits");
    {
        static const int64_t holds[] = {INT64_C(1) << 62, -(INT64_C(1) << 62)};
        t = times(1, 1, 1, 0); /* 2^62, 0, 2^62, and what the second stage freed */
        t.hold_forward.each = holds;
        small(&s, "0F0,1F0,0F1,1OFFLOAD0", 0);
        refuses(&s, &t, DPAR_E_RANGE, "rank 0, action 3: the bytes do not fit into 64 bits");
    }
    small(&s, "0F0,1F0", 0);
    t = times(1, 1, 1, 0);
    t.hold_always.all = most;
    refuses(&s, &t, DPAR_E_RANGE, "rank 0: hold_always exceeds INT64_MAX at stage 1");
}

/* Checks bytes x 10^9 / bandwidth, rounded up, and millionths to the nearest, by hand. */
static void test_rounding(void)
{
    static const struct {
        int64_t bytes, bandwidth, turn;
    } row[] = {{0, 1, 0},
               {1, 0, 0},
               {1, 3, 333333334},
               {3, 1000000000, 3},
               {1, 1000000001, 1},
               {1, INT64_MAX, 1},
               {INT64_MAX, INT64_MAX, 1000000000},
               {INT64_MAX / 7, INT64_MAX, 142857143},
               {12500000000, 25000000000, 500000000},
               {9223372035, 1, 9223372035000000000}};
    size_t k;
    dpar_schedule s;
    dpar_timing out;
    small(&s, "0F0\n1F0", 0);
    for (k = 0; k < sizeof row / sizeof row[0]; k++) {
        dpar_schedule_times t = times(0, 0, 0, 0);
        t.bytes.all = row[k].bytes;
        t.bandwidth.all = row[k].bandwidth;
        if (row[k].turn < INT64_MAX / 2) {
            CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
            CHECK_INT(out.makespan, row[k].turn);
            CHECK_INT(ranks[1].warm_up, row[k].turn);
        } else { /* twice as much is too much */
            CHECK_INT(run(&s, &t, &out, NULL), DPAR_E_RANGE);
        }
    }
}

/* Checks times, idle time and path of a few lists that were drawn by hand. */
static void test_by_hand(void)
{
    dpar_schedule s;
    dpar_timing out;
    dpar_schedule_times t = times(2, 1, 1, 3);
    /* rank 0: F 0-2, F 2-4, B 12-14, B 16-18; rank 1: F 5-7, B 7-9, F 9-11, B 11-13 */
    small(&s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1", 0);
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(out.makespan, 18);
    CHECK_INT(from[2], 12);                   /* 9 + 3 */
    CHECK_INT(to[3], 18);                     /* 13 + 3 + 2 */
    CHECK_INT(ranks[0].dependency, 5);        /* 4 to 9 */
    CHECK_INT(ranks[0].communication, 3 + 2); /* 9 to 12; 14 to 16 */
    CHECK_INT(ranks[1].warm_up, 5);
    CHECK_INT(ranks[1].drain, 5);
    CHECK_INT(out.path_actions, 6); /* 0F0, 1F0, 1B0, 1F1, 1B1, 0B1 */
    CHECK_INT(out.path_compute, 12);
    CHECK_INT(out.path_communication, 6);
    CHECK(path[0] == 0 && path[1] == 4 && path[4] == 7 && path[5] == 3);
    /* a pair at the end counts once */
    small(&s, "0F0,(0F1;0B0)OVERLAP_F_B", 0);
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(out.path_actions, 2);
    CHECK_INT(out.path_compute, 6);
    CHECK(path[0] == 0 && path[1] == 1);
    /* two ranks that end at once: the first counts; no actions at all; a rank without work */
    small(&s, "0F0\n1F0", 1);
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(out.path_actions, 1);
    CHECK_INT(path[0], 0);
    small(&s, "0RESHARD\n1RESHARD\n,", 0);
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(out.makespan, 0);
    CHECK_INT(out.path_actions, 1);
    CHECK_INT(out.bubble_of_makespan.part, 0);
    /* one link out of rank 0 for the stages that send to ranks 1 and 2: the second waits */
    small(&s, "0F0,2F0\n1F0\n3F0", 2);
    t.bytes.all = 5;
    t.bandwidth.all = 1000000000;
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(from[3], 4 + 5 + 3);
    t.links = DPAR_CONTENTION_PAIR;
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(from[3], 4 + 5 + 3);
    t.links = DPAR_CONTENTION_RANK;
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(from[2], 2 + 5 + 3);
    CHECK_INT(from[3], 2 + 5 + 5 + 3);
    small(&s, "0F0,2F0\n1F0,3F0", 2);
    t.links = DPAR_CONTENTION_PAIR;
    CHECK_INT(run(&s, &t, &out, NULL), DPAR_OK);
    CHECK_INT(from[3], 2 + 5 + 5 + 3);
}

/* Checks dependency, communication, memory and over_cap of one rank. */
static void causes(const dpar_schedule *s, const dpar_schedule_times *t, int32_t r,
                   int64_t dependency, int64_t communication, int64_t starved, int64_t over)
{
    dpar_timing out;
    CHECK_INT(run(s, t, &out, NULL), DPAR_OK);
    CHECK_INT(ranks[r].dependency, dependency);
    CHECK_INT(ranks[r].communication, communication);
    CHECK_INT(ranks[r].memory, starved);
    CHECK_INT(ranks[r].over_cap, over);
}

/* Checks which gaps are caused by memory, drawn by hand. */
static void test_caps(void)
{
    int64_t caps[3] = {0, 1, 0}, forward[3] = {5, 2, 2};
    dpar_schedule s;
    dpar_schedule_times t = times(1, 1, 1, 0);
    /* 1F1B. Rank 0: F0 0-1, F1 1-2, B0 4-6, F2 6-7, B1 7-9, F3 9-10, B2 10-12, B3 13-15; rank 1 has
     * no gap. The gap 2-4 is before B0, with two activations held, and F2 could start; after the
     * gap 12-13 no forward is left. */
    small(&s, "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3", 0);
    causes(&s, &t, 0, 3, 0, 0, 0);
    t.cap.all = 3;
    causes(&s, &t, 0, 3, 0, 0, 0);
    t.cap.all = 2;
    causes(&s, &t, 0, 1, 0, 2, 0);
    t.cap.all = 1;
    causes(&s, &t, 0, 1, 0, 2, 1);
    causes(&s, &t, 1, 0, 0, 0, 0);
    /* in bytes: 2 activations of 10 in addition to 5; the third just fits, or exceeds the cap by
     * one */
    t.hold_forward.all = 10;
    t.hold_weight.all = -10;
    t.hold_always.all = 5;
    t.cap.all = 35;
    causes(&s, &t, 0, 3, 0, 0, 0);
    t.cap.all = 34;
    causes(&s, &t, 0, 1, 0, 2, 0);
    t.cap.all = 20;
    causes(&s, &t, 0, 1, 0, 2, 5);
    /* a forward that frees a byte: 10, 9, 8 are held, and 7 after F2, which is exactly the cap */
    t.hold_forward.all = -1;
    t.hold_weight.all = 1;
    t.hold_always.all = 10;
    t.cap.all = 7;
    causes(&s, &t, 0, 3, 0, 0, 3);
    t.cap.all = 6;
    causes(&s, &t, 0, 1, 0, 2, 4);
    /* numbers at the end of their range: a sum that overflows exceeds every cap */
    t.hold_forward.all = INT64_MAX / 2;
    t.hold_weight.all = -t.hold_forward.all;
    t.hold_always.all = 1;
    t.cap.all = INT64_MAX; /* 1 + 2 x half = INT64_MAX fits, the third exceeds every cap */
    causes(&s, &t, 0, 1, 0, 2, 0);
    /* an activation on the host is not held: one in the gap 2-4 */
    t = times(1, 1, 1, 0);
    small(&s, "0F0,0F1,0OFFLOAD1,0B0,0F2,0RELOAD1,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2", 0);
    t.cap.all = 2; /* B1 7-9, B2 10-12: the gap 9-10 is dependency */
    causes(&s, &t, 0, 3, 0, 0, 0);
    t.cap.all = 1;
    causes(&s, &t, 0, 1, 0, 2, 1);
    /* The middle of three ranks. 0F0 0-5, 0F1 5-10, 1F0 8-10, 2F0 13-15, 2B0 15-17, 1B0 20-22: in
     * the gap 10-20 the part from 13 on, when 0F1 has arrived, is memory. 1F1 22-24, 2F1 27-29, 2B1
     * 29-31, 1B1 34-36: no forward is left. */
    small(&s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1", 0);
    t = times(2, 1, 1, 3);
    t.forward.each = forward;
    causes(&s, &t, 1, 7 + 7, 3 + 3, 0, 0);
    t.cap.each = caps;
    causes(&s, &t, 1, 3 + 7, 3, 7, 0);
    caps[1] = 2;
    causes(&s, &t, 1, 7 + 7, 3 + 3, 0, 0);
    /* 0F0 0-11, 0F1 11-22, 1F0 14-16, 2F0 19-21, 2B0 21-23, 1B0 26-28: 0F1 arrives at 25 */
    caps[1] = 1;
    forward[0] = 11;
    causes(&s, &t, 1, 7 + 7, 2 + 3, 1, 0);
    forward[0] = 12; /* and here when 1B0 starts, at 27 */
    causes(&s, &t, 1, 7 + 7, 3 + 3, 0, 0);
    /* 0F0 0-8, 0F1 8-16, 1F0 8-10, 2F0 10-12, 1F1 16-18: the cap is one, and two are held, but the
     * next forward after 1F1 needs exactly that. At the end four are held. */
    small(&s, "0F0,0F1\n1F0,2F0,1F1,2F1", 0);
    s.rank_of[2] = 1;
    t.latency.all = 0;
    forward[0] = 8;
    causes(&s, &t, 1, 4, 0, 0, 3);
}

/* All stages on one rank: there are no messages, so that any kind of sending is right: F F B B, 2 x
 * (1 + 1) x 2. */
static void test_one_rank(void)
{
    dpar_schedule s;
    dpar_schedule_times t = times(1, 1, 0, 1);
    dpar_timing out;
    dpar_why why;
    small(&s, "0F0,1F0,1B0,0B0,0F1,1F1,1B1,0B1", 0);
    t.backward.all = 1;
    for (t.sends = 0; t.sends < DPAR_SEND_MODE_COUNT; t.sends++) {
        CHECK_INT(run(&s, &t, &out, &why), DPAR_OK);
        CHECK_INT(out.makespan, 8);
    }
}

int main(void)
{
    test_caps();
    test_order();
    test_garbage();
    test_large();
    test_rounding();
    test_by_hand();
    test_metrics();
    test_messages();
    test_lowered();
    test_random();
    test_one_rank();
    return CHECK_DONE();
}
