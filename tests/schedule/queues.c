/* SPDX-License-Identifier: MIT-0 */
/* Tests the time of a list on each transport. Compares the simulator with the equations of
 * check.h's transports, solved here slowly by repetition. Lists that lowering makes take no longer
 * on queues than with separate links; in PyTorch's order interleaved schedules do: pytorch issues
 * 188833 and 172668. Run with: tests/run test schedule. */
#include "dpar_schedule.h"

#include "check.h"
#include "schedule_calls.h"

#include <stdlib.h>

/* Bytes of each of the four buffers, of which the largest case uses less than half. The test also
 * runs on boards with 16 MB of memory (tests/compile/targets.sh), where the buffers and the stack
 * must fit. */
enum { ROOM = 1 << 21, MOST = 1 << 15 };
static int64_t made[ROOM / 8], lowered[ROOM / 8], moved[ROOM / 8], work[ROOM / 8];

/* ---- the equations --------------------------------------------------------------------------- */

static int64_t reached[MOST], done[MOST]; /* of each action; -1 if not known yet */
static int64_t half[MOST], before[MOST]; /* of a message: the other end; the one it queues behind */

static int is_send(int kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B;
}

static int is_backward_message(int kind)
{
    return kind == DPAR_ACTION_SEND_B || kind == DPAR_ACTION_RECV_B;
}

/* Returns 1 if two messages of a rank wait in one queue. */
static int together(int transport, const dpar_action *a, const dpar_action *b)
{
    switch (transport) {
    case DPAR_TRANSPORT_RANK: return 1;
    case DPAR_TRANSPORT_DIRECTION:
        return is_backward_message(a->kind) == is_backward_message(b->kind);
    case DPAR_TRANSPORT_PAIR: return a->peer == b->peer;
    case DPAR_TRANSPORT_EDGE:
    case DPAR_TRANSPORT_EAGER: return a->peer == b->peer && is_send(a->kind) == is_send(b->kind);
    default: return 0;
    }
}

static int64_t find(const dpar_schedule *s, int32_t rank, int kind, int stage, int micro)
{
    int64_t i;
    for (i = s->begin[rank]; i < s->begin[rank + 1]; i++) {
        const dpar_action *a = &s->action[i];
        if (a->kind == kind && a->stage == stage && a->micro_batch == micro) {
            return i;
        }
    }
    return -1;
}

static void pair_up(const dpar_schedule *s, int transport)
{
    int32_t r;
    int64_t i, k;
    for (r = 0; r < s->ranks; r++) {
        for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
            const dpar_action *a = &s->action[i];
            reached[i] = done[i] = half[i] = before[i] = -1;
            if (!is_message(a->kind)) {
                continue;
            }
            half[i] =
                find(s, a->peer, is_send(a->kind) ? a->kind + 1 : a->kind - 1,
                     a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_RECV_B ? a->stage + 1
                                                                                    : a->stage - 1,
                     a->micro_batch);
            for (k = i - 1; k >= s->begin[r] && before[i] < 0; k--) {
                if (is_message(s->action[k].kind) && together(transport, a, &s->action[k])) {
                    before[i] = k;
                }
            }
        }
    }
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t takes(const dpar_schedule_times *t, const dpar_action *a)
{
    const dpar_stage_values *e = a->kind == DPAR_ACTION_FORWARD  ? &t->forward
                                 : a->kind == DPAR_ACTION_INPUT  ? &t->input
                                 : a->kind == DPAR_ACTION_WEIGHT ? &t->weight
                                                                 : &t->backward;
    if (a->kind > DPAR_ACTION_WEIGHT) {
        return 0;
    }
    return e->each != NULL ? e->each[a->stage] : e->all;
}

/* Returns the time at which an action's input is there: 0 if it needs none, -1 if not known yet. */
static int64_t input(const dpar_schedule *s, const dpar_action *a)
{
    const int forward = a->kind == DPAR_ACTION_FORWARD;
    const int from = forward ? a->stage - 1 : a->stage + 1;
    int64_t i;
    if ((!forward && a->kind != DPAR_ACTION_BACKWARD && a->kind != DPAR_ACTION_INPUT) || from < 0 ||
        from >= s->stages || from / s->chain != a->stage / s->chain ||
        s->rank_of[from] == s->rank_of[a->stage]) {
        return 0;
    }
    i = find(s, s->rank_of[a->stage], forward ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B, a->stage,
             a->micro_batch);
    return done[i];
}

/* Returns the message `room` places before this SEND in the same buffer; -1 if there is none. */
static int64_t place(int64_t send, int32_t room)
{
    while (send >= 0 && room-- > 0) {
        send = before[send];
    }
    return send;
}

/* Returns when a message that was reached at `clock` is done; -1 if not known yet. */
static int64_t message(const dpar_schedule *s, int64_t i, int64_t clock, int64_t edge,
                       const dpar_schedule_times *t)
{
    const int sends = is_send(s->action[i].kind);
    int64_t at = clock, k;
    switch (t->transport) {
    case DPAR_TRANSPORT_BLOCKING:
        return reached[half[i]] < 0 ? -1 : larger(clock, reached[half[i]]) + edge;
    case DPAR_TRANSPORT_EAGER:
        k = sends ? place(i, t->capacity) : half[i];
        if (sends) {
            return k < 0 ? at : done[half[k]] < 0 ? -1 : larger(at, done[half[k]]);
        }
        if (done[k] < 0 || (before[k] >= 0 && done[half[before[k]]] < 0)) {
            return -1;
        }
        return larger(at, done[k] + edge);
    default:
        if (reached[half[i]] < 0 || (before[i] >= 0 && done[before[i]] < 0) ||
            (before[half[i]] >= 0 && done[before[half[i]]] < 0)) {
            return -1;
        }
        at = larger(at, reached[half[i]]);
        at = before[i] >= 0 ? larger(at, done[before[i]]) : at;
        at = before[half[i]] >= 0 ? larger(at, done[before[half[i]]]) : at;
        return at + edge;
    }
}

/* Returns the makespan; -1 if the list gets stuck. */
static int64_t solve(const dpar_schedule *s, const dpar_schedule_times *t)
{
    const int holds =
        t->transport == DPAR_TRANSPORT_BLOCKING || t->transport == DPAR_TRANSPORT_EAGER;
    int64_t i, clock, last = 0;
    int32_t r;
    int changed = 1;
    CHECK(s->begin[s->ranks] <= MOST);
    pair_up(s, t->transport);
    while (changed) {
        changed = 0;
        for (r = 0; r < s->ranks; r++) {
            clock = 0;
            for (i = s->begin[r]; i < s->begin[r + 1]; i++) {
                const dpar_action *a = &s->action[i];
                int64_t there, end = done[i];
                changed += reached[i] < 0;
                reached[i] = clock;
                if (is_message(a->kind)) {
                    const int low = a->kind == DPAR_ACTION_SEND_F || a->kind == DPAR_ACTION_RECV_B
                                        ? a->stage
                                        : a->stage - 1;
                    end =
                        message(s, i, clock,
                                t->latency.each != NULL ? t->latency.each[low] : t->latency.all, t);
                    changed += end != done[i];
                    done[i] = end;
                    if (holds && end < 0) {
                        break;
                    }
                    clock = holds ? end : clock;
                    continue;
                }
                there = input(s, a);
                if (there >= 0 && a->joined) {
                    const int64_t second = input(s, a + 1);
                    there = second < 0 ? -1 : larger(there, second);
                }
                if (there < 0) {
                    break;
                }
                clock = larger(clock, there) + takes(t, a) + (a->joined ? takes(t, a + 1) : 0);
                changed += done[i] != clock;
                done[i] = clock;
                if (a->joined) {
                    i++;
                    reached[i] = done[i] = clock;
                }
            }
            if (i < s->begin[r + 1]) {
                last = -1;
            }
            last = last < 0 ? -1 : larger(last, clock);
        }
        last = changed ? 0 : last;
    }
    return last;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static uint64_t seed = 88172645463325252u;

static int below(int n)
{
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (int)((seed >> 11) % (uint64_t)n);
}

static int make(dpar_schedule *s, int32_t rule, int32_t ranks, int32_t chunks, int32_t micros)
{
    dpar_schedule_desc o;
    memset(&o, 0, sizeof o);
    o.rule = rule;
    o.ranks = ranks;
    o.chunks = chunks;
    o.micro_batches = micros;
    return dpar_schedule_generate(s, &o, made, sizeof made, NULL) == DPAR_OK;
}

static dpar_schedule lower(const dpar_schedule *s, int32_t passes, const dpar_schedule_times *t)
{
    dpar_schedule_lower_desc how = lowering_of(passes, 0);
    dpar_schedule out;
    dpar_why why;
    how.times = t;
    memset(&out, 0, sizeof out);
    CHECK_INT(dpar_schedule_lower(&out, s, &how, lowered, sizeof lowered, &why), DPAR_OK);
    return out;
}

static dpar_schedule_times units(int64_t f, int64_t i, int64_t w)
{
    dpar_schedule_times t;
    memset(&t, 0, sizeof t);
    t.forward.all = f;
    t.input.all = i;
    t.weight.all = w;
    t.backward.all = i + w;
    t.capacity = 1;
    return t;
}

/* Returns the simulator's result after checking that the equations agree; -1 if the list is
 * stuck. */
static int64_t timed(const dpar_schedule *s, dpar_schedule_times *t, int32_t transport)
{
    static int64_t start[MOST], end[MOST], path[MOST];
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_why why;
    dpar_status status;
    int64_t expected, i, sum = 0;
    t->transport = transport;
    t->sends = transport == DPAR_TRANSPORT_NONE ? DPAR_SEND_MODE_POSTED : DPAR_SEND_MODE_BUFFERED;
    memset(&how, 0, sizeof how);
    how.times = t;
    how.start = start;
    how.end = end;
    how.path = path;
    CHECK(dpari_schedule_simulate_bytes(s, &how) <= (int64_t)sizeof work);
    status = dpar_schedule_simulate(s, &how, &timing, work, sizeof work, &why);
    expected = solve(s, t);
    CHECK_INT(status, expected < 0 ? DPAR_E_STUCK : DPAR_OK);
    if (status != DPAR_OK || expected < 0) {
        return -1;
    }
    CHECK_INT(timing.makespan, expected);
    for (i = 0; i < s->begin[s->ranks]; i++) {
        if (end[i] != done[i]) {
            CHECK_INT(end[i], done[i]);
            break;
        }
    }
    for (i = 0; i < timing.path_actions; i++) { /* each starts where the one before it ended */
        const dpar_action *a = &s->action[path[i]];
        sum += is_message(a->kind) ? 0 : takes(t, a) + (a->joined ? takes(t, a + 1) : 0);
    }
    CHECK_INT(sum, timing.path_compute);
    return timing.makespan;
}

static void proven(const dpar_schedule *s, int32_t transport)
{
    dpar_why why;
    dpar_schedule_check_desc how;
    memset(&how, 0, sizeof how);
    how.transport = transport;
    how.capacity = 1;
    CHECK_INT(dpar_schedule_check(s, &how, work, sizeof work, &why), DPAR_OK);
}

/* ---- tests ----------------------------------------------------------------------------------- */

/* Checks the time on one queue in PyTorch's order of messages, and with separate links. The first
 * is that of the reported issue; the others were computed with the equations above. */
static void test_reported(void)
{
    static const struct {
        int32_t rule, ranks, chunks, micros;
        int64_t turns, own;
    } each[] = {{DPAR_SCHEDULE_INTERLEAVED, 8, 2, 16, 168, 117},
                {DPAR_SCHEDULE_INTERLEAVED, 8, 4, 16, 360, 213},
                {DPAR_SCHEDULE_INTERLEAVED, 16, 2, 32, 467, 237},
                {DPAR_SCHEDULE_1F1B, 8, 0, 32, 117, 117},
                {DPAR_SCHEDULE_BREADTH_FIRST, 8, 2, 16, 213, 117},
                {DPAR_SCHEDULE_ZBV, 8, 0, 16, 115, 103},
                {DPAR_SCHEDULE_DUALPIPEV, 8, 0, 16, 153, 110}};
    size_t k;
    int32_t transport;
    for (k = 0; k < sizeof each / sizeof each[0]; k++) {
        dpar_schedule s, l;
        dpar_schedule_times t = units(1, 1, 1);
        CHECK(make(&s, each[k].rule, each[k].ranks, each[k].chunks, each[k].micros));
        l = lower(&s, DPAR_LOWER_TURNS, NULL);
        CHECK_INT(timed(&l, &t, DPAR_TRANSPORT_RANK), each[k].turns);
        CHECK_INT(timed(&l, &t, DPAR_TRANSPORT_NONE), each[k].own);
        l = lower(&s, DPAR_LOWER_MESSAGES, NULL);
        for (transport = DPAR_TRANSPORT_RANK; transport <= DPAR_TRANSPORT_EDGE; transport++) {
            CHECK_INT(timed(&l, &t, transport), each[k].own);
        }
    }
}

/* Checks the claim of simulated.h: messages that take a fifth of a forward cost little more on one
 * queue per rank than with separate links. By the equations above it is at most 8.0 %
 * (breadth-first). It was 17 % (interleaved) when the rank's number decided which of two ready
 * messages goes first. */
static void test_short_messages(void)
{
    static const struct {
        int32_t rule, chunks;
    } each[] = {{DPAR_SCHEDULE_1F1B, 0},        {DPAR_SCHEDULE_GPIPE, 0},
                {DPAR_SCHEDULE_INTERLEAVED, 2}, {DPAR_SCHEDULE_BREADTH_FIRST, 2},
                {DPAR_SCHEDULE_ZB_H1, 0},       {DPAR_SCHEDULE_ZBV, 0},
                {DPAR_SCHEDULE_DUALPIPEV, 0}};
    size_t k;
    for (k = 0; k < sizeof each / sizeof each[0]; k++) {
        dpar_schedule s, l;
        dpar_schedule_times t = units(5, 5, 5);
        int64_t own;
        t.latency.all = 1;
        CHECK(make(&s, each[k].rule, 8, each[k].chunks, 16));
        l = lower(&s, DPAR_LOWER_MESSAGES, NULL);
        own = timed(&l, &t, DPAR_TRANSPORT_NONE);
        CHECK(own > 0);
        CHECK(100 * timed(&l, &t, DPAR_TRANSPORT_RANK) <= 109 * own);
    }
}

/* Checks that a schedule with any durations, if lowered with them, takes on queues what it takes
 * without. The simulator agrees with the equations on every transport, also with messages that take
 * time. */
static void sweep(int32_t rule, int32_t ranks, int32_t chunks, int32_t micros)
{
    static int64_t f[256], i[256], w[256], b[256], latency[256];
    dpar_schedule s, l, late;
    dpar_schedule_times t = units(1, 1, 1);
    int32_t k, transport;
    int64_t own;
    if (!make(&s, rule, ranks, chunks, micros)) {
        return;
    }
    for (k = 0; k < s.stages; k++) {
        f[k] = 1 + below(9);
        i[k] = 1 + below(9);
        w[k] = below(9);
        b[k] = i[k] + w[k];
        latency[k] = below(4);
    }
    l = lower(&s, DPAR_LOWER_MESSAGES, NULL);
    own = timed(&l, &t, DPAR_TRANSPORT_NONE);
    for (transport = 1; transport < DPAR_TRANSPORT_COUNT; transport++) {
        const int64_t time = timed(&l, &t, transport);
        proven(&l, transport);
        CHECK(time >= own);
        CHECK(time == own || transport == DPAR_TRANSPORT_BLOCKING ||
              transport == DPAR_TRANSPORT_EAGER);
    }
    t.forward.each = f;
    t.input.each = i;
    t.weight.each = w;
    t.backward.each = b;
    l = lower(&s, DPAR_LOWER_MESSAGES, &t);
    own = timed(&l, &t, DPAR_TRANSPORT_NONE);
    for (transport = 1; transport < DPAR_TRANSPORT_COUNT; transport++) {
        const int64_t time = timed(&l, &t, transport);
        proven(&l, transport);
        CHECK(time == own || transport == DPAR_TRANSPORT_BLOCKING ||
              transport == DPAR_TRANSPORT_EAGER);
    }
    t.latency.each = latency;
    for (k = 0; k < 3;
         k++) { /* in other orders, with late receives, with messages that take time */
        l = lower(&s, k == 0 ? DPAR_LOWER_TURNS : DPAR_LOWER_MESSAGES, k == 2 ? &t : NULL);
        late = l;
        if (k > 0) {
            CHECK_INT(late_recv(&late, &l, below(3), moved, sizeof moved, NULL), DPAR_OK);
        }
        t.capacity = 1 + below(3);
        for (transport = 1; transport < DPAR_TRANSPORT_COUNT; transport++) {
            (void)timed(&late, &t, transport);
        }
    }
}

static void test_sweep(void)
{
    int32_t rule, ranks, chunks, micros;
    for (rule = 1; rule < DPAR_SCHEDULE_END; rule++) {
        for (ranks = 1; ranks <= 5; ranks++) {
            for (chunks = 0; chunks <= 3; chunks++) {
                for (micros = 1; micros <= 2 * ranks; micros += 1 + below(4)) {
                    sweep(rule, ranks, chunks, micros);
                }
            }
        }
    }
    sweep(DPAR_SCHEDULE_INTERLEAVED, 8, 2, 16);
}

/* Checks messages that nothing uses, each before the other: only a queue makes them wait. */
static void test_stuck(void)
{
    static const char text[] = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1RECV_F0\n";
    static const char lost[] = "0F0,0SEND_F0,0F1,0SEND_F1\n1RECV_F1,1F1\n";
    static const char circle[] = "0F0,0RECV_B0,0SEND_F0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n";
    dpar_schedule s;
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_schedule_times t = units(1, 1, 1);
    dpar_why why;
    memset(&how, 0, sizeof how);
    how.times = &t;
    CHECK_INT(read_csv(&s, text, sizeof text - 1, 0, made, sizeof made, &why), DPAR_OK);
    t.transport = DPAR_TRANSPORT_RANK;
    CHECK_INT(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text, "rank 0: 0SEND_F0 stays in its queue");
    CHECK_INT(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, NULL), DPAR_E_STUCK);
    t.transport = DPAR_TRANSPORT_EAGER;
    t.capacity = 2;
    CHECK_INT(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text,
               "rank 1 waits at 1RECV_F1 for 0SEND_F1 of rank 0, which is behind another message");
    CHECK_INT(read_csv(&s, circle, sizeof circle - 1, 0, made, sizeof made, &why), DPAR_OK);
    t.transport = DPAR_TRANSPORT_PAIR;
    CHECK_INT(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text, "rank 0 waits at 0B0 for 1SEND_B0 of rank 1, which is at 1F0");
    t.transport = DPAR_TRANSPORT_EDGE;
    CHECK_INT(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_OK);
    CHECK_INT(timing.makespan, 6);
    /* nobody receives the first message, whose place the second one needs */
    CHECK_INT(read_csv(&s, lost, sizeof lost - 1, 0, made, sizeof made, &why), DPAR_OK);
    t.transport = DPAR_TRANSPORT_EAGER;
    t.capacity = 1;
    CHECK_INT(dpar_schedule_simulate(&s, &how, &timing, work, sizeof work, &why), DPAR_E_STUCK);
    CHECK_TEXT(why.text, "rank 0 waits at 0SEND_F0 for 1RECV_F0 of rank 1, which is in no list");
}

static void refused(const dpar_schedule *s, const dpar_schedule_times *t, const char *sentence)
{
    dpar_schedule_simulate_desc how;
    dpar_timing timing;
    dpar_why why;
    memset(&how, 0, sizeof how);
    how.times = t;
    CHECK_INT(dpar_schedule_simulate(s, &how, &timing, work, sizeof work, &why), DPAR_E_ARG);
    CHECK_TEXT(why.text, sentence);
}

static void test_refusals(void)
{
    dpar_schedule s;
    dpar_schedule_times t = units(1, 1, 1);
    CHECK(make(&s, DPAR_SCHEDULE_1F1B, 2, 0, 2));
    t.transport = DPAR_TRANSPORT_RANK;
    refused(&s, &t, "transport=2 needs messages; call dpar_schedule_lower first");
    s = lower(&s, 0, NULL);
    t.sends = DPAR_SEND_MODE_POSTED;
    refused(&s, &t, "sends=1, links=0; both must be 0, because transport=2 is set");
    t.sends = 0;
    t.links = 1;
    refused(&s, &t, "sends=0, links=1; both must be 0, because transport=2 is set");
    t.links = 0;
    t.transport = -1;
    refused(&s, &t, "transport=-1; 0 to 6 are allowed");
    t.transport = DPAR_TRANSPORT_COUNT;
    refused(&s, &t, "transport=7; 0 to 6 are allowed");
    t.transport = DPAR_TRANSPORT_EAGER;
    t.capacity = 0;
    refused(&s, &t, "capacity=0; an eager buffer needs 1 or more");
}

int main(void)
{
    test_reported();
    test_short_messages();
    test_sweep();
    test_stuck();
    test_refusals();
    return CHECK_DONE();
}
