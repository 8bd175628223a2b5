/* SPDX-License-Identifier: MIT-0 */
/* The passes over a schedule. Each one reads one schedule and writes another. SHARDS and REDUCE
 * read each rank's list with a window of the next stages. MESSAGES simulates all ranks with the
 * given times and lists every message at the time at which its data are made, so that all lists
 * follow one global order; with TURNS it imitates PyTorch's loop instead. LATE_RECV holds receives
 * in a queue per channel. It writes a receive, and those before it in its queue, just before the
 * action that needs it. */
#include "lower.h"

#include "../base/base_private.h"
#include "action.h"
#include "needed_bytes.h"
#include "partial_schedule.h"

/* ---- checks of the input --------------------------------------------------------------------- */

/* Writes what is wrong with an action: "rank 0, action 2: 0B0 is already in the list". */
static DPARI_COLD dpar_status dpari_lower_say(dpar_why *why, int32_t rank, int64_t index,
                                              const dpar_action *action, const char *wrong)
{
    dpar_text t;
    if (why != NULL) {
        dpari_text_why(&t, why);
        dpar_text_put(&t, "rank "); /* without dpari_text_say, which takes more stack */
        dpari_text_int(&t, rank);
        dpar_text_put(&t, ", action ");
        dpari_text_int(&t, index);
        dpar_text_put(&t, ": ");
        dpari_action_put(action, &t);
        dpar_text_put(&t, wrong);
    }
    return DPAR_E_ARG;
}

/* Returns what is wrong with action k of rank r, or NULL if nothing is. */
static const char *dpari_lower_wrong(const dpar_schedule *schedule, int32_t r, int64_t k)
{
    const dpar_action *action = &schedule->action[k];
    int32_t other;
    if (action->kind >= DPAR_ACTION_COUNT) {
        return "this kind does not exist";
    }
    if (action->joined > 1) {
        return ": joined is more than 1";
    }
    if (action->joined != 0 &&
        (action->kind != DPAR_ACTION_FORWARD || k + 1 == schedule->begin[r + 1] ||
         !dpari_action_is_gradient(action[1].kind) || action[1].joined != 0)) {
        return " is joined, but it is not an F that a B or I follows";
    }
    if (action->kind == DPAR_ACTION_IDLE) {
        return NULL;
    }
    if (action->stage >= schedule->stages || schedule->rank_of[action->stage] != r) {
        return ": its stage is not on this rank";
    }
    if (dpari_action_has_micro(action->kind) && action->micro_batch >= schedule->micro_batches) {
        return ": its micro-batch does not exist";
    }
    if (dpari_action_is_message(action->kind)) {
        other = dpar_schedule_partner(schedule, action->kind, action->stage);
        if (other < 0 || schedule->rank_of[other] != action->peer || action->peer == r) {
            return " does not connect neighbouring stages on two ranks";
        }
    }
    return NULL;
}

/* Checks that a pass can read the schedule, and that no action has a kind in the set `already`,
 * which has the kinds that the passes will add. */
static DPARI_COLD dpar_status dpari_lower_check(const dpar_schedule *schedule, uint32_t already,
                                                dpar_why *why)
{
    dpar_status st;
    int32_t r;
    int64_t k;
    if (schedule->ranks < 1 || schedule->ranks > DPAR_MAX_STAGES || schedule->stages < 1 ||
        schedule->stages > DPAR_MAX_STAGES || schedule->micro_batches < 0 ||
        schedule->micro_batches > DPAR_MAX_MICRO_BATCHES) {
        return dpari_wrong(why,
                           "the schedule has %d ranks, %d stages and %d micro-batches; 1 to 65535 "
                           "ranks and stages "
                           "and 0 to 65535 micro-batches are allowed",
                           schedule->ranks, schedule->stages, schedule->micro_batches);
    }
    if (schedule->chain < 1 || schedule->stages % schedule->chain != 0) {
        return dpari_wrong(why, "chains of %d stages do not divide %d stages", schedule->chain,
                           schedule->stages);
    }
    st = dpari_schedule_check_ranks(schedule, why);
    if (st != DPAR_OK) {
        return st;
    }
    for (r = 0; r < schedule->ranks; r++) {
        if (schedule->begin[0] != 0 || schedule->begin[r + 1] < schedule->begin[r]) {
            return dpari_wrong(why, "the list of rank %d begins at action %ld and ends at %ld", r,
                               schedule->begin[r], schedule->begin[r + 1]);
        }
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            const char *wrong = dpari_lower_wrong(schedule, r, k);
            if (wrong == NULL && (already >> schedule->action[k].kind & 1) != 0) {
                wrong = " is already in the list; the pass adds such actions";
            }
            if (wrong != NULL) {
                return dpari_lower_say(why, r, k - schedule->begin[r], &schedule->action[k], wrong);
            }
        }
    }
    return DPAR_OK;
}

/* Initialises `out` in mem with capacity for `actions` actions, and copies everything except the
 * lists from `in`. *work receives the address after it. */
static dpar_status dpari_lower_out(dpar_schedule *out, const dpar_schedule *in, int64_t actions,
                                   int64_t needed, void *mem, int64_t bytes, char **work,
                                   dpar_why *why)
{
    dpar_status st;
    int32_t i;
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why, "lowering needs %ld bytes, got %ld", needed, bytes);
    }
    st = dpari_schedule_empty(out, in->ranks, in->stages, actions, mem, bytes, why);
    if (st != DPAR_OK) {
        return st;
    }
    out->micro_batches = in->micro_batches;
    out->chain = in->chain;
    out->slices = in->slices;
    for (i = 0; i < in->stages; i++) {
        out->rank_of[i] = in->rank_of[i];
    }
    *work = (char *)mem + dpari_schedule_bytes(in->ranks, in->stages, actions);
    return DPAR_OK;
}

/* The list that a pass writes. If `at` is NULL, its actions are only counted. */
typedef struct dpari_sink {
    dpar_action *at;
    int64_t n;
} dpari_sink;

static void dpari_sink_put(dpari_sink *to, const dpar_action *action)
{
    if (to->at != NULL) {
        to->at[to->n] = *action;
    }
    to->n++;
}

static void dpari_sink_stage(dpari_sink *to, int32_t kind, int32_t stage)
{
    const dpar_action action = dpari_action_of(kind, stage, 0);
    dpari_sink_put(to, &action);
}

/* ---- shards and gradients -------------------------------------------------------------------- */

/* The window: the stages of the actions from the current one up to `end`, in the order in which
 * they are first needed. A stage stays in the window after its last use until its RESHARD is
 * written. At most two stages wait for their RESHARD, those of a joined pair. The window may have
 * one stage more than max_active if a pair was added last. */
typedef struct dpari_window {
    int64_t end;
    int32_t stages; /* stages in the window */
    int32_t used;   /* stages in the window with uses > 0 */
    int32_t max_active;
    int64_t uses[DPAR_LOWER_MAX_ACTIVE + 3]; /* actions of the stage that are in the window */
    uint16_t stage[DPAR_LOWER_MAX_ACTIVE + 3];
    uint8_t gathered[DPAR_LOWER_MAX_ACTIVE + 3]; /* 1 after its UNSHARD */
} dpari_window;

/* Returns the position of a stage in the window, or window->stages if it is not there. */
static int32_t dpari_window_find(const dpari_window *window, int32_t stage)
{
    int32_t i = 0;
    while (i < window->stages && window->stage[i] != stage) {
        i++;
    }
    return i;
}

static void dpari_window_use(dpari_window *window, const dpar_action *action)
{
    int32_t i = dpari_window_find(window, action->stage);
    if (i == window->stages) {
        window->stages++;
        window->uses[i] = 0;
        window->stage[i] = action->stage;
        window->gathered[i] = 0;
    }
    window->used += window->uses[i]++ == 0;
}

static void dpari_window_done(dpari_window *window, const dpar_action *action)
{
    window->used -= --window->uses[dpari_window_find(window, action->stage)] == 0;
}

/* Extends the window until it has max_active stages or the list ends. */
static void dpari_window_extend(dpari_window *window, const dpar_schedule *schedule, int64_t end)
{
    while (window->used < window->max_active && window->end < end) {
        const dpar_action *action = &schedule->action[window->end];
        window->end += 1 + action->joined;
        if (action->kind != DPAR_ACTION_IDLE) {
            dpari_window_use(window, action);
        }
        if (action->joined) {
            dpari_window_use(window, action + 1);
        }
    }
}

/* Writes a RESHARD of each stage that is no longer used, in ascending order, and removes it. */
static void dpari_window_reshard(dpari_window *window, dpari_sink *to)
{
    while (window->stages > window->used) {
        int32_t i, least = -1;
        for (i = 0; i < window->stages; i++) {
            if (window->uses[i] == 0 && (least < 0 || window->stage[i] < window->stage[least])) {
                least = i;
            }
        }
        dpari_sink_stage(to, DPAR_ACTION_RESHARD, window->stage[least]);
        window->stages--;
        for (i = least; i < window->stages; i++) {
            window->uses[i] = window->uses[i + 1];
            window->stage[i] = window->stage[i + 1];
            window->gathered[i] = window->gathered[i + 1];
        }
    }
}

/* Writes an UNSHARD of each stage that entered the window. */
static void dpari_window_gather(dpari_window *window, dpari_sink *to)
{
    int32_t i;
    for (i = 0; i < window->stages; i++) {
        if (!window->gathered[i]) {
            window->gathered[i] = 1;
            dpari_sink_stage(to, DPAR_ACTION_UNSHARD, window->stage[i]);
        }
    }
}

/* Writes rank r's list without idle actions. Adds UNSHARD and RESHARD if max_active > 0, and
 * REDUCE_GRAD if `left`, the number of remaining B and W of each stage, is not NULL. */
static void dpari_lower_rank(const dpar_schedule *schedule, int32_t r, int32_t max_active,
                             int64_t *left, dpari_sink *to)
{
    dpari_window w;
    int64_t k, h;
    w.end = schedule->begin[r];
    w.stages = w.used = 0;
    w.max_active = max_active;
    for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k += 1 + schedule->action[k].joined) {
        const dpar_action *action = &schedule->action[k];
        if (action->kind == DPAR_ACTION_IDLE) {
            continue;
        }
        dpari_window_extend(&w, schedule, schedule->begin[r + 1]);
        dpari_window_reshard(&w, to);
        dpari_window_gather(&w, to);
        for (h = 0; h <= action->joined; h++) {
            dpari_sink_put(to, action + h);
        }
        for (h = 0; h <= action->joined; h++) {
            if (left != NULL &&
                (action[h].kind == DPAR_ACTION_BACKWARD || action[h].kind == DPAR_ACTION_WEIGHT) &&
                --left[action[h].stage] == 0) {
                dpari_sink_stage(to, DPAR_ACTION_REDUCE_GRAD, action[h].stage);
            }
            if (max_active > 0) {
                dpari_window_done(&w, action + h);
            }
        }
    }
    dpari_window_reshard(&w, to);
}

/* ---- messages -------------------------------------------------------------------------------
 *
 * A small simulation decides the order, by time or by turns. By time, each rank starts an action as
 * soon as its inputs have arrived. The action is written to the rank's list when it ends; its SEND
 * follows it, and the RECV is written to the peer's list at the same moment. An action that the
 * peer computes at that moment is not in the peer's list yet, so that the RECV is before it.
 * Therefore both ends of a message, and all messages before it, are posted when the data are made.
 * By turns, each rank writes one action in a turn, and the time is the number of the turn. In both
 * cases all lists follow one order of all messages. */

enum { DPARI_NOT_GIVEN = -1, DPARI_NOT_STARTED = -1 };

/* The position of a rank. The next action is copied (both actions if they are joined), because
 * otherwise the heads of lists whose lengths are powers of two compete for the same cache lines. */
typedef struct dpari_head {
    int64_t at, end; /* index in `from` of the next action, and one past the last */
    int64_t to;      /* index in `out` at which the next action is written */
    int64_t done;    /* when the next action ends, or its turn, or DPARI_NOT_STARTED */
    dpar_action a[2];
} dpari_head;

typedef struct dpari_turns {
    const dpar_schedule *in;
    dpar_schedule *out;
    const dpar_action
        *from; /* the actions of `in`, or those that SHARDS and REDUCE left in `out` */
    const dpar_schedule_times *times; /* NULL selects the default times */
    dpari_head *head;                 /* [ranks] */
    int32_t *heap;                    /* [working] ranks; the first one ends its action first */
    int32_t working;                  /* the number of ranks in the heap */
    int64_t clock;                    /* the current time or turn */
    /* [stage][micro-batch][2], when the input and the gradient of the output arrive, or
     * DPARI_NOT_GIVEN */
    int64_t *given;
    int turns;    /* 1 by turns, 0 by time */
    int idle;     /* 1 if idle actions take a turn */
    int too_long; /* 1 if a time exceeded INT64_MAX */
} dpari_turns;

static int64_t *dpari_lower_given(const dpari_turns *turns, int32_t stage, int32_t micro,
                                  int backward)
{
    return &turns->given[2 * ((int64_t)stage * turns->in->micro_batches + micro) + backward];
}

/* Returns when the input of an action arrives: 0 if it needs none, DPARI_NOT_GIVEN if the time is
 * not known yet. */
static int64_t dpari_lower_arrival(const dpari_turns *turns, const dpar_action *action)
{
    if (action->kind == DPAR_ACTION_FORWARD) {
        return *dpari_lower_given(turns, action->stage, action->micro_batch, 0);
    }
    if (dpari_action_is_gradient(action->kind)) {
        return *dpari_lower_given(turns, action->stage, action->micro_batch, 1);
    }
    return 0;
}

static int dpari_lower_has(const dpari_turns *turns, const dpar_action *action)
{
    return dpari_lower_arrival(turns, action) != DPARI_NOT_GIVEN;
}

/* True if the rank may append its next action to its list, or start it. */
static int dpari_lower_ready(const dpari_turns *turns, int32_t rank)
{
    const dpari_head *head = &turns->head[rank];
    return head->at < head->end && head->done == DPARI_NOT_STARTED &&
           dpari_lower_has(turns, &head->a[0]) &&
           (!head->a[0].joined || dpari_lower_has(turns, &head->a[1]));
}

/* The default time of a forward. A message takes 1 by default, which is so short that it only
 * decides the order of actions that are ready at the same moment: the action whose data passed
 * fewer messages is first, as it would be if messages took time. */
#define DPARI_LOWER_UNIT (INT64_C(1) << 20)

/* Returns the time of an action that is not joined. A B without a time of its own takes as long as
 * I and W. */
static int64_t dpari_lower_cost(const dpar_schedule_times *times, const dpar_action *action)
{
    const dpar_stage_values *each;
    int64_t takes;
    if (times == NULL) {
        takes = action->kind <= DPAR_ACTION_WEIGHT || action->kind == DPAR_ACTION_RECOMPUTE
                    ? DPARI_LOWER_UNIT
                    : 0;
        return action->kind == DPAR_ACTION_BACKWARD ? 2 * takes : takes;
    }
    each = dpari_times_of(times, action->kind);
    takes = each != NULL ? dpari_each_at(each, action->stage) : 0;
    if (action->kind == DPAR_ACTION_BACKWARD && takes == 0) {
        takes = dpari_each_at(&times->input, action->stage) +
                dpari_each_at(&times->weight, action->stage);
    }
    return takes;
}

/* Returns a + b, both 0 or more. If that exceeds INT64_MAX it returns INT64_MAX and sets too_long.
 */
static int64_t dpari_lower_sum(dpari_turns *turns, int64_t a, int64_t b)
{
    if (a > INT64_MAX - b) {
        turns->too_long = 1;
        return INT64_MAX;
    }
    return a + b;
}

/* True if rank a's action ends before rank b's. If both end at the same time, the lower rank is
 * first. */
static int dpari_lower_earlier(const dpari_turns *turns, int32_t a, int32_t b)
{
    const int64_t x = turns->head[a].done, y = turns->head[b].done;
    return x != y ? x < y : a < b;
}

/* Adds a rank to the heap. */
static void dpari_lower_push(dpari_turns *turns, int32_t rank)
{
    int32_t i = turns->working++;
    while (i > 0 && dpari_lower_earlier(turns, rank, turns->heap[(i - 1) / 2])) {
        turns->heap[i] = turns->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    turns->heap[i] = rank;
}

/* Removes the rank whose action ends first, and returns it. */
static int32_t dpari_lower_pop(dpari_turns *turns)
{
    const int32_t first = turns->heap[0], last = turns->heap[--turns->working], n = turns->working;
    int32_t i = 0, child = 1;
    while (child < n) {
        child +=
            child + 1 < n && dpari_lower_earlier(turns, turns->heap[child + 1], turns->heap[child]);
        if (dpari_lower_earlier(turns, last, turns->heap[child])) {
            break;
        }
        turns->heap[i] = turns->heap[child];
        i = child;
        child = 2 * i + 1;
    }
    turns->heap[i] = last;
    return first;
}

/* Returns when the rank's next action ends if it starts as soon as its inputs have arrived. */
static int64_t dpari_lower_end(dpari_turns *turns, int32_t rank)
{
    const dpari_head *head = &turns->head[rank];
    int64_t takes = dpari_lower_cost(turns->times, &head->a[0]), from = turns->clock;
    from = dpari_most(from, dpari_lower_arrival(turns, &head->a[0]));
    if (head->a[0].joined) {
        const int64_t both =
            turns->times == NULL ? 0 : dpari_each_at(&turns->times->overlap, head->a[0].stage);
        from = dpari_most(from, dpari_lower_arrival(turns, &head->a[1]));
        takes = both > 0
                    ? both
                    : dpari_lower_sum(turns, takes, dpari_lower_cost(turns->times, &head->a[1]));
    }
    return dpari_lower_sum(turns, from, takes);
}

/* If the rank can run its next action, enters it in the heap. By turns it runs after `later` turns.
 */
static void dpari_lower_start(dpari_turns *turns, int32_t rank, int later)
{
    if (dpari_lower_ready(turns, rank)) {
        turns->head[rank].done = turns->turns ? turns->clock + later : dpari_lower_end(turns, rank);
        dpari_lower_push(turns, rank);
    }
}

/* Moves a rank to its next action. If the rank can run it, the action starts now, or by turns in
 * the next turn. */
static void dpari_lower_next(dpari_turns *turns, int32_t rank)
{
    dpari_head *head = &turns->head[rank];
    head->done = DPARI_NOT_STARTED;
    while (!turns->idle && head->at < head->end && turns->from[head->at].kind == DPAR_ACTION_IDLE) {
        head->at++;
    }
    if (head->at < head->end) {
        head->a[0] = turns->from[head->at];
        head->a[1] = turns->from[head->at + head->a[0].joined];
    }
    dpari_lower_start(turns, rank, 1);
}

/* Appends a SEND or RECV of the action's micro-batch to a rank's list. */
static void dpari_lower_message(dpari_turns *turns, int32_t rank, const dpar_action *action,
                                int32_t kind, int32_t stage, int32_t peer)
{
    dpar_action *m = &turns->out->action[turns->head[rank].to++];
    *m = *action;
    m->kind = (uint8_t)kind;
    m->joined = 0;
    m->stage = (uint16_t)stage;
    m->peer = (uint16_t)peer;
}

/* Passes the result of an action to the neighbouring stage, in memory or by a message. If that
 * stage is on another rank which can now continue, this rank continues. By turns it does so in the
 * same turn if it has the higher number, as in PyTorch's loop. */
static void dpari_lower_give(dpari_turns *turns, int32_t rank, const dpar_action *action)
{
    int32_t stage = dpar_schedule_partner(turns->in, action->kind, action->stage), peer;
    int forward = action->kind == DPAR_ACTION_FORWARD;
    int64_t *given, takes = 1;
    if (stage < 0) {
        return;
    }
    given = dpari_lower_given(turns, stage, action->micro_batch, !forward);
    *given = turns->clock;
    peer = turns->in->rank_of[stage];
    if (peer == rank) {
        return;
    }
    if (turns->times != NULL) {
        takes = dpari_pipe_message(turns->times, (int32_t)dpari_least(action->stage, stage));
    }
    *given = dpari_lower_sum(turns, turns->clock, takes);
    dpari_lower_message(turns, rank, action, forward ? DPAR_ACTION_SEND_F : DPAR_ACTION_SEND_B,
                        action->stage, peer);
    dpari_lower_message(turns, peer, action, forward ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B,
                        stage, rank);
    dpari_lower_start(turns, peer, peer < rank);
}

/* Writes a rank's next action, or joined pair, to its list. */
static void dpari_lower_step(dpari_turns *turns, int32_t rank)
{
    dpari_head *head = &turns->head[rank];
    int32_t i, n = 1 + head->a[0].joined;
    head->at += n;
    for (i = 0; i < n && head->a[0].kind != DPAR_ACTION_IDLE; i++) {
        turns->out->action[head->to++] = head->a[i];
    }
    for (i = 0; i < n; i++) {
        dpari_lower_give(turns, rank, &head->a[i]);
    }
    dpari_lower_next(turns, rank);
}

/* Writes a message like "rank 2 waits for 2RECV_F3: F3 of stage 1 never runs". */
static DPARI_COLD dpar_status dpari_lower_stuck(const dpari_turns *turns, int32_t rank,
                                                dpar_why *why)
{
    const dpar_action *action = turns->head[rank].a;
    dpar_action wait;
    dpar_text t;
    int32_t stage, elsewhere;
    if (why == NULL) {
        return DPAR_E_STUCK;
    }
    wait = dpari_lower_has(turns, action) ? action[1] : action[0];
    wait.joined = 0;
    wait.kind = wait.kind == DPAR_ACTION_FORWARD ? DPAR_ACTION_RECV_F : DPAR_ACTION_RECV_B;
    stage = dpar_schedule_partner(turns->in, wait.kind, wait.stage);
    dpari_text_why(&t, why);
    dpari_text_say(&t, "rank %d waits for ", rank);
    elsewhere = turns->in->rank_of[stage] != rank;
    if (elsewhere) {
        dpar_action_write(&wait, &t);
        dpar_text_put(&t, ": ");
    }
    dpari_text_say(&t, "%s%d of stage %d", wait.kind == DPAR_ACTION_RECV_F ? "F" : "B",
                   (int32_t)wait.micro_batch, stage);
    dpar_text_put(&t, elsewhere ? " never runs" : ", which is later in its list or missing");
    return DPAR_E_STUCK;
}

static dpar_status dpari_lower_messages(dpari_turns *turns, dpar_why *why)
{
    int32_t r;
    turns->clock = 0;
    turns->working = turns->too_long = 0;
    for (r = 0; r < turns->in->ranks; r++) {
        dpari_lower_next(turns, r);
    }
    while (turns->working > 0) { /* writes all actions in the order in which they end */
        r = dpari_lower_pop(turns);
        turns->clock = turns->head[r].done;
        dpari_lower_step(turns, r);
    }
    if (turns->too_long) {
        return dpari_say(DPAR_E_RANGE, why, "the times add up to more than %ld", INT64_MAX);
    }
    for (r = 0; r < turns->in->ranks; r++) {
        if (turns->head[r].at < turns->head[r].end) {
            return dpari_lower_stuck(turns, r, why);
        }
    }
    return DPAR_OK;
}

/* ---- lowering -------------------------------------------------------------------------------- */

/* Checks the times that MESSAGES reads: each must be 0 or more, and so small that the sum of three
 * does not overflow. */
static DPARI_COLD dpar_status dpari_lower_times(const dpar_schedule_times *times, int32_t stages,
                                                dpar_why *why)
{
    const dpar_stage_values *const message[] = {&times->latency, &times->bytes, &times->bandwidth};
    int32_t i, k;
    for (i = 0; i < stages; i++) {
        for (k = 0; k < DPAR_ACTION_COUNT + 3; k++) { /* first the kinds, then the messages */
            const dpar_stage_values *each =
                k < DPAR_ACTION_COUNT ? dpari_times_of(times, k) : message[k - DPAR_ACTION_COUNT];
            const int64_t value = each != NULL ? dpari_each_at(each, i) : 0;
            const int64_t most = each == &times->bandwidth ? INT64_MAX / 10 : INT64_MAX / 3;
            if (value < 0 || value > most) {
                return dpari_wrong(
                    why, "stage %d: a time, size or bandwidth is %ld; 0 to %ld are allowed", i,
                    value, most);
            }
        }
    }
    return DPAR_OK;
}

/* The passes that may be combined. */
enum { DPARI_LOWER_TOGETHER = 15 | DPAR_LOWER_TURNS };

/* Copies a descriptor with its defaults filled in, and checks it and the schedule. */
static DPARI_COLD dpar_status dpari_lower_settings(dpar_schedule_lower_desc *how,
                                                   const dpar_schedule *in,
                                                   const dpar_schedule_lower_desc *given,
                                                   dpar_why *why)
{
    uint32_t already = 0;
    dpar_status status;
    dpari_zero(how, sizeof(*how));
    if (given != NULL) {
        *how = *given;
    }
    if (how->max_active == 0) {
        how->max_active = 3;
    }
    if (how->passes == DPAR_LOWER_MERGE) {
        return dpari_lower_check(in, 0, why);
    }
    if (how->passes == DPAR_LOWER_LATE_RECV) {
        if (how->channel < 0 || how->channel >= DPAR_CHANNEL_COUNT) {
            return dpari_wrong(why, "channel=%d; 0 to 2 are allowed", how->channel);
        }
        return dpari_lower_check(in, 0, why);
    }
    if (how->passes < 0 || (how->passes & ~DPARI_LOWER_TOGETHER) != 0) {
        return dpari_wrong(why,
                           "passes=%d is not a sum of DPAR_LOWER_x; MERGE and LATE_RECV cannot be "
                           "combined with others",
                           how->passes);
    }
    if (how->max_active < 1 || how->max_active > DPAR_LOWER_MAX_ACTIVE) {
        return dpari_wrong(why, "max_active=%d; 1 to %d are allowed", how->max_active,
                           (int32_t)DPAR_LOWER_MAX_ACTIVE);
    }
    if ((how->passes & ~(DPAR_LOWER_IDLE | DPAR_LOWER_TURNS)) == 0) {
        how->passes |= DPAR_LOWER_MESSAGES;
    }
    if ((how->passes & DPAR_LOWER_IDLE) != 0) {
        how->passes |= DPAR_LOWER_TURNS;
    }
    if ((how->passes & DPAR_LOWER_SHARDS) == 0) {
        how->max_active = 0;
    } else {
        already |= 1u << DPAR_ACTION_UNSHARD | 1u << DPAR_ACTION_RESHARD;
    }
    if ((how->passes & DPAR_LOWER_REDUCE) != 0) {
        already |= 1u << DPAR_ACTION_REDUCE_GRAD;
    }
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        already |= 1u << DPAR_ACTION_SEND_F | 1u << DPAR_ACTION_RECV_F | 1u << DPAR_ACTION_SEND_B |
                   1u << DPAR_ACTION_RECV_B;
    }
    status = dpari_lower_check(in, already, why);
    if (status != DPAR_OK || how->times == NULL || (how->passes & DPAR_LOWER_MESSAGES) == 0) {
        return status;
    }
    return dpari_lower_times(how->times, in->stages, why);
}

/* Counts the SEND and RECV actions that MESSAGES adds. If `count` is not NULL, adds those of each
 * rank to count[rank]. */
static int64_t dpari_lower_count(const dpar_schedule *schedule, int64_t *count)
{
    int64_t k, total = 0;
    int32_t r, stage;
    for (r = 0; r < schedule->ranks; r++) {
        for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
            stage = dpar_schedule_partner(schedule, schedule->action[k].kind,
                                          schedule->action[k].stage);
            if (stage >= 0 && schedule->rank_of[stage] != r) {
                total += 2;
                if (count != NULL) {
                    count[r]++;
                    count[schedule->rank_of[stage]]++;
                }
            }
        }
    }
    return total;
}

/* Returns the most actions that `out` can have, with one per stage for REDUCE. */
static int64_t dpari_lower_actions(const dpar_schedule *in, const dpar_schedule_lower_desc *how)
{
    dpari_sink counted;
    int32_t r;
    counted.at = NULL;
    counted.n = 0;
    for (r = 0; r < in->ranks; r++) {
        dpari_lower_rank(in, r, how->max_active, NULL, &counted);
    }
    if ((how->passes & DPAR_LOWER_REDUCE) != 0) {
        counted.n += in->stages;
    }
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        counted.n += dpari_lower_count(in, NULL);
    }
    return counted.n;
}

/* Returns the bytes of the schedule, the heads, the heap, the counts of remaining
 * backwards, and the arrivals, or -1 if there is no such schedule. */
static int64_t dpari_lower_size(const dpar_schedule *in, int64_t actions)
{
    int64_t bytes = dpari_schedule_bytes(in->ranks, in->stages, actions);
    return bytes < 0 ? -1
                     : bytes + (int64_t)sizeof(dpari_head) * in->ranks +
                           dpari_whole_words(4 * (int64_t)in->ranks) + 8 * (int64_t)in->stages +
                           16 * (int64_t)in->stages * in->micro_batches;
}

/* Counts the B and W of each stage. */
static void dpari_lower_backwards(const dpar_schedule *schedule, int64_t *left)
{
    int64_t k;
    dpari_zero(left, sizeof(*left) * (size_t)schedule->stages);
    for (k = 0; k < schedule->begin[schedule->ranks]; k++) {
        const dpar_action *action = &schedule->action[k];
        left[action->stage < schedule->stages ? action->stage : 0] +=
            action->kind == DPAR_ACTION_BACKWARD || action->kind == DPAR_ACTION_WEIGHT;
    }
}

/* Places the arrays after `out`, runs SHARDS and REDUCE, and sets out->begin. These passes write
 * each rank's list to the end of the rank's part of `out`; MESSAGES then writes from the front of
 * that part. The space in front of the list is as large as the messages that MESSAGES adds, so that
 * no action is overwritten before it is read. */
static void dpari_lower_begin(dpari_turns *turns, const dpar_schedule_lower_desc *how, char *work)
{
    const dpar_schedule *schedule = turns->in;
    int first = (how->passes & (DPAR_LOWER_SHARDS | DPAR_LOWER_REDUCE)) != 0;
    int64_t *begin = turns->out->begin, *left;
    dpari_sink to;
    int32_t r;
    turns->from = first ? turns->out->action : schedule->action;
    turns->head = (dpari_head *)(void *)work;
    work = (char *)(turns->head + schedule->ranks);
    turns->heap = (int32_t *)(void *)work;
    left = (int64_t *)(void *)(work + dpari_whole_words(4 * (int64_t)schedule->ranks));
    turns->given = left + schedule->stages;
    dpari_lower_backwards(schedule, left);
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        (void)dpari_lower_count(schedule, begin + 1);
    }
    for (r = 0; r < schedule->ranks; r++) {
        dpari_head *head = &turns->head[r];
        head->to = begin[r];
        head->at = begin[r] + begin[r + 1];
        to.at = first ? turns->out->action + head->at : NULL;
        to.n = 0;
        dpari_lower_rank(schedule, r, how->max_active,
                         (how->passes & DPAR_LOWER_REDUCE) ? left : NULL, &to);
        begin[r + 1] = head->at + to.n;
        head->at = first ? head->at : schedule->begin[r];
        head->end = first ? begin[r + 1] : schedule->begin[r + 1];
    }
}

/* Marks all inputs as not given, except those at the ends of chains, which exist from the start. */
static void dpari_lower_ends(dpari_turns *turns)
{
    int32_t i, m;
    for (i = 0; i < turns->in->stages; i++) {
        const int64_t input = dpari_schedule_before(turns->in, i) < 0 ? 0 : DPARI_NOT_GIVEN;
        const int64_t gradient = dpari_schedule_behind(turns->in, i) < 0 ? 0 : DPARI_NOT_GIVEN;
        for (m = 0; m < turns->in->micro_batches; m++) {
            *dpari_lower_given(turns, i, m, 0) = input;
            *dpari_lower_given(turns, i, m, 1) = gradient;
        }
    }
}

static dpar_status dpari_lower_passes(dpar_schedule *out, const dpar_schedule *in,
                                      const dpar_schedule_lower_desc *how, void *mem, int64_t bytes,
                                      dpar_why *why)
{
    dpari_turns l;
    int64_t actions = dpari_lower_actions(in, how);
    char *work;
    dpar_status st =
        dpari_lower_out(out, in, actions, dpari_lower_size(in, actions), mem, bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    l.in = in;
    l.out = out;
    l.times = how->times;
    l.turns = (how->passes & DPAR_LOWER_TURNS) != 0;
    l.idle = (how->passes & DPAR_LOWER_IDLE) != 0;
    dpari_lower_begin(&l, how, work);
    if ((how->passes & DPAR_LOWER_MESSAGES) != 0) {
        dpari_lower_ends(&l);
        st = dpari_lower_messages(&l, why);
    }
    return st;
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Writes a rank's list without idle actions. A W directly after the I of its stage and micro-batch
 * is merged with it into a B. */
static void dpari_merge_rank(const dpar_schedule *schedule, int32_t r, dpari_sink *to)
{
    dpar_action last; /* the last action that was read, which is not written yet */
    int64_t k;
    int whole = 1; /* 0 if `last` is an I that is not part of a pair */
    dpari_zero(&last, sizeof(last));
    for (k = schedule->begin[r]; k < schedule->begin[r + 1]; k++) {
        dpar_action a = schedule->action[k];
        if (a.kind == DPAR_ACTION_IDLE) {
            continue;
        }
        if (!whole && a.kind == DPAR_ACTION_WEIGHT && a.stage == last.stage &&
            a.micro_batch == last.micro_batch) {
            last.kind = DPAR_ACTION_BACKWARD;
            whole = 1;
            continue;
        }
        if (last.kind != DPAR_ACTION_IDLE) {
            dpari_sink_put(to, &last);
        }
        whole = a.kind != DPAR_ACTION_INPUT || last.joined;
        last = a;
    }
    if (last.kind != DPAR_ACTION_IDLE) {
        dpari_sink_put(to, &last);
    }
}

static int64_t dpari_merge_count(const dpar_schedule *schedule)
{
    dpari_sink counted;
    int32_t r;
    counted.at = NULL;
    counted.n = 0;
    for (r = 0; r < schedule->ranks; r++) {
        dpari_merge_rank(schedule, r, &counted);
    }
    return counted.n;
}

static int64_t dpari_merge_size(const dpar_schedule *in)
{
    return dpari_schedule_bytes(in->ranks, in->stages, dpari_merge_count(in));
}

static dpar_status dpari_merge(dpar_schedule *out, const dpar_schedule *in, void *mem,
                               int64_t bytes, dpar_why *why)
{
    dpari_sink to;
    char *work;
    int32_t r;
    dpar_status st = dpari_lower_out(out, in, dpari_merge_count(in), dpari_merge_size(in), mem,
                                     bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    to.at = out->action;
    to.n = 0;
    for (r = 0; r < in->ranks; r++) {
        dpari_merge_rank(in, r, &to);
        out->begin[r + 1] = to.n;
    }
    return DPAR_OK;
}

/* ---- late receives --------------------------------------------------------------------------- */

enum { DPARI_GIVEN_F = 1, DPARI_GIVEN_B = 2 };

/* The receives of a rank that are held back, in one queue per channel. Each queue is a list linked
 * by `next`. */
typedef struct dpari_held {
    const dpar_schedule *in;
    dpari_sink to;
    int64_t *first, *last; /* [ranks], the queue of each peer; with ANY only queue 0 is used */
    int64_t *next;         /* [actions of the list], the next receive of the queue */
    uint8_t *given;        /* [stage][micro-batch], DPARI_GIVEN_x for the receives that are held */
    int one_queue;
} dpari_held;

static uint8_t *dpari_held_given(const dpari_held *held, const dpar_action *action)
{
    return &held->given[(int64_t)action->stage * held->in->micro_batches + action->micro_batch];
}

/* Holds back action k, a receive. */
static void dpari_held_add(dpari_held *held, int64_t k, int64_t begin)
{
    const dpar_action *action = &held->in->action[k];
    int32_t q = held->one_queue ? 0 : action->peer;
    *dpari_held_given(held, action) |=
        (uint8_t)(action->kind == DPAR_ACTION_RECV_F ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    held->next[k - begin] = -1;
    if (held->first[q] < 0) {
        held->first[q] = k;
    } else {
        held->next[held->last[q] - begin] = k;
    }
    held->last[q] = k;
}

/* Writes the first receive of queue q to the list. */
static void dpari_held_pop(dpari_held *held, int32_t q, int64_t begin)
{
    const dpar_action *action = &held->in->action[held->first[q]];
    *dpari_held_given(held, action) &=
        (uint8_t) ~(unsigned)(action->kind == DPAR_ACTION_RECV_F ? DPARI_GIVEN_F : DPARI_GIVEN_B);
    held->first[q] = held->next[held->first[q] - begin];
    dpari_sink_put(&held->to, action);
}

/* If the receive of the action's stage and micro-batch is held, writes it and those before it in
 * the queue.
 */
static void dpari_held_need(dpari_held *held, const dpar_action *action, int forward, int64_t begin)
{
    int32_t other = forward ? dpari_schedule_before(held->in, action->stage)
                            : dpari_schedule_behind(held->in, action->stage);
    int32_t q = other < 0 || held->one_queue ? 0 : held->in->rank_of[other];
    while ((*dpari_held_given(held, action) & (forward ? DPARI_GIVEN_F : DPARI_GIVEN_B)) != 0) {
        dpari_held_pop(held, q, begin);
    }
}

/* Writes all held receives that must be before `action`. */
static void dpari_held_before(dpari_held *held, const dpar_action *action, int32_t channel,
                              int64_t begin)
{
    int32_t i, q = held->one_queue ? 0 : action->peer;
    for (i = 0; i <= action->joined; i++) {
        int forward = action[i].kind == DPAR_ACTION_FORWARD || action[i].kind == DPAR_ACTION_RECV_F;
        if (forward || action[i].kind == DPAR_ACTION_RECV_B ||
            dpari_action_is_gradient(action[i].kind)) {
            dpari_held_need(held, &action[i], forward, begin);
        }
    }
    while (dpari_action_is_send(action->kind) && channel != DPAR_CHANNEL_EDGE &&
           held->first[q] >= 0) {
        dpari_held_pop(held, q, begin);
    }
}

/* Writes rank r's list with late receives. */
static void dpari_late_rank(dpari_held *held, int32_t r, int32_t channel)
{
    const dpar_schedule *schedule = held->in;
    int64_t k, begin = schedule->begin[r];
    int32_t i;
    for (k = begin; k < schedule->begin[r + 1]; k += 1 + schedule->action[k].joined) {
        const dpar_action *action = &schedule->action[k];
        dpari_held_before(held, action, channel, begin);
        if (dpari_action_is_receive(action->kind)) {
            dpari_held_add(held, k, begin);
            continue;
        }
        for (i = 0; i <= action->joined; i++) {
            dpari_sink_put(&held->to, action + i);
        }
    }
    for (k = begin; k < schedule->begin[r + 1];
         k++) { /* receives that no action needs, in their order */
        int32_t q = held->one_queue ? 0 : schedule->action[k].peer;
        if (dpari_action_is_receive(schedule->action[k].kind) && held->first[q] == k) {
            dpari_held_pop(held, q, begin);
        }
    }
}

static int64_t dpari_late_size(const dpar_schedule *in)
{
    int64_t bytes = dpari_schedule_bytes(in->ranks, in->stages, in->begin[in->ranks]);
    return bytes < 0 ? -1
                     : bytes + 16 * (int64_t)in->ranks + 8 * dpari_schedule_longest(in) +
                           dpari_whole_words((int64_t)in->stages * in->micro_batches);
}

static dpar_status dpari_late(dpar_schedule *out, const dpar_schedule *in, int32_t channel,
                              void *mem, int64_t bytes, dpar_why *why)
{
    dpari_held h;
    char *work;
    int32_t r;
    dpar_status st =
        dpari_lower_out(out, in, in->begin[in->ranks], dpari_late_size(in), mem, bytes, &work, why);
    if (st != DPAR_OK) {
        return st;
    }
    h.in = in;
    h.to.at = out->action;
    h.to.n = 0;
    h.first = (int64_t *)(void *)work;
    h.last = h.first + in->ranks;
    h.next = h.last + in->ranks;
    h.given = (uint8_t *)(h.next + dpari_schedule_longest(in));
    h.one_queue = channel == DPAR_CHANNEL_ANY;
    dpari_zero(h.given, (size_t)in->stages * (size_t)in->micro_batches);
    for (r = 0; r < in->ranks; r++) {
        h.first[r] = -1;
    }
    for (r = 0; r < in->ranks; r++) {
        dpari_late_rank(&h, r, channel);
        out->begin[r + 1] = h.to.n;
    }
    return DPAR_OK;
}

/* ---- the calls ------------------------------------------------------------------------------- */

DPARI_API int64_t dpari_schedule_lower_bytes(const dpar_schedule *in,
                                             const dpar_schedule_lower_desc *how, dpar_why *why)
{
    dpar_schedule_lower_desc h;
    if (dpari_lower_settings(&h, in, how, why) != DPAR_OK) {
        return -1;
    }
    if (h.passes == DPAR_LOWER_MERGE) {
        return dpari_merge_size(in);
    }
    if (h.passes == DPAR_LOWER_LATE_RECV) {
        return dpari_late_size(in);
    }
    return dpari_lower_size(in, dpari_lower_actions(in, &h));
}

DPAR_API dpar_status dpar_schedule_lower(dpar_schedule *out, const dpar_schedule *in,
                                         const dpar_schedule_lower_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    dpar_schedule_lower_desc h;
    dpar_schedule got;
    dpar_status st = dpari_lower_settings(&h, in, how, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (h.passes == DPAR_LOWER_MERGE) {
        st = dpari_merge(&got, in, mem, bytes, why);
    } else if (h.passes == DPAR_LOWER_LATE_RECV) {
        st = dpari_late(&got, in, h.channel, mem, bytes, why);
    } else {
        st = dpari_lower_passes(&got, in, &h, mem, bytes, why);
    }
    if (st == DPAR_OK) {
        *out = got;
    }
    return st;
}
