/* SPDX-License-Identifier: MIT-0 */
/* Runs the actions of all ranks on one core, as far as they get. A rank runs until an action has to
 * wait. When a message is transferred, the rank at its other end may go on, and is put on a stack.
 * Nothing that has become possible becomes impossible later, so the order in which ranks run does
 * not matter. */
#include "proof_order.h"

#include "../base/base_private.h"
#include "proof_lists.h"

/* What is known of an action. */
typedef struct dpari_prove_step {
    int64_t partner; /* the other end of its message; -1 for WAIT */
    int64_t place;   /* its position in `queued`, where the actions of a queue are consecutive */
    int64_t buffer;  /* EAGER, for sends: the earlier send that must have been received; or -1 */
    int32_t rank;
    int32_t posted, done; /* 1 if it has begun, and if its message has been transferred */
} dpari_prove_step;

typedef struct dpari_prove_run_state {
    const dpar_proof_order_desc *order;
    dpari_prove_step *step; /* [actions] */
    int64_t *key;           /* [actions] used to sort the actions of a rank */
    int64_t *queued;        /* [actions] actions, queue after queue */
    int64_t *queue;         /* [actions] for each position, where its queue begins */
    int64_t *head;          /* [actions] at the beginning of a queue: its first message not done */
    int64_t *next;          /* [ranks] the action that each rank is at */
    int32_t *stack;         /* [ranks] ranks that may go on */
    int32_t *stacked;       /* [ranks] 1 if it is on the stack */
    int64_t stack_count;
    dpar_why *why;
} dpari_prove_run_state;

/* ---- messages and their partners ------------------------------------------------------------- */

static DPARI_COLD int dpari_prove_is_send(const dpar_proof_action *action)
{
    return action->kind == DPAR_PROOF_SEND || action->kind == DPAR_PROOF_POST_SEND;
}

static DPARI_COLD const char *dpari_prove_kind_name(int32_t kind)
{
    switch (kind) {
    case DPAR_PROOF_SEND: return "send to";
    case DPAR_PROOF_RECV: return "receive from";
    case DPAR_PROOF_POST_SEND: return "posted send to";
    default: return "posted receive from";
    }
}

static DPARI_COLD dpar_status dpari_prove_order_check(const dpar_proof_order_desc *order,
                                                      dpar_why *why)
{
    int32_t rank;
    int64_t k;
    if (order == NULL || order->first == NULL || order->action == NULL || order->ranks < 1 ||
        order->transport < DPAR_PROOF_BLOCKING || order->transport > DPAR_PROOF_PAIR ||
        order->capacity < 0) {
        return dpari_wrong(why, "dpar_proof_order: first and action must be set, ranks at least 1, "
                                "transport a DPAR_PROOF_x and capacity at least 0");
    }
    for (rank = 0; rank < order->ranks; rank++) {
        if (order->first[rank] < 0 || order->first[rank + 1] < order->first[rank] ||
            order->first[rank + 1] - order->first[rank] > INT32_MAX) {
            return dpari_wrong(why, "first[%d] is %ld and first[%d] is %ld: they must ascend", rank,
                               order->first[rank], rank + 1, order->first[rank + 1]);
        }
        for (k = order->first[rank]; k < order->first[rank + 1]; k++) {
            const dpar_proof_action *action = &order->action[k];
            if (action->kind < DPAR_PROOF_SEND || action->kind > DPAR_PROOF_WAIT ||
                (action->kind != DPAR_PROOF_WAIT &&
                 (action->peer < 0 || action->peer >= order->ranks || action->peer == rank))) {
                return dpari_wrong(
                    why,
                    "action %ld of rank %d: kind is %d and peer is %d, but must be a "
                    "DPAR_PROOF_x and another rank below %d",
                    k - order->first[rank], rank, action->kind, action->peer, order->ranks);
            }
        }
    }
    return order->first[0] == 0
               ? DPAR_OK
               : dpari_wrong(why, "first[0] is %ld, but must be 0", order->first[0]);
}

/* Divides the memory of the caller. */
static DPARI_COLD dpar_status dpari_prove_order_room(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    const int64_t actions = order->first[order->ranks], ranks = order->ranks;
    const int64_t each = (int64_t)sizeof(dpari_prove_step) + 4 * 8;
    int64_t needed = INT64_MAX;
    if (actions <= (INT64_MAX - 16 * ranks) / each) {
        needed = actions * each + 16 * ranks;
    }
    if (order->memory == NULL || order->bytes < needed) {
        return dpari_prove_no_room(state->why, order->bytes, needed);
    }
    state->step = (dpari_prove_step *)order->memory;
    state->key = (int64_t *)(void *)(state->step + actions);
    state->queued = state->key + actions;
    state->queue = state->queued + actions;
    state->head = state->queue + actions;
    state->next = state->head + actions;
    state->stack = (int32_t *)(void *)(state->next + ranks);
    state->stacked = state->stack + ranks;
    dpari_zero(order->memory, (size_t)needed);
    return DPAR_OK;
}

/* Returns the first action of `rank` whose sort key is at least `key`, as a position in state->key.
 */
static DPARI_COLD int64_t dpari_prove_order_find(const dpari_prove_run_state *state, int32_t rank,
                                                 int64_t key)
{
    int64_t low = state->order->first[rank], high = state->order->first[rank + 1];
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (state->key[middle] < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Sorts the messages of each rank by direction, peer and place. The key is 2 peer + direction, and
 * below it the number of the action. WAITs come last. */
static DPARI_COLD void dpari_prove_order_sort(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    int32_t rank;
    int64_t k;
    for (rank = 0; rank < order->ranks; rank++) {
        const int64_t first = order->first[rank];
        for (k = first; k < order->first[rank + 1]; k++) {
            const dpar_proof_action *action = &order->action[k];
            int64_t group = UINT32_MAX >> 1;
            if (action->kind != DPAR_PROOF_WAIT) {
                group = action->peer;
            }
            state->key[k] = group << 32 | (int64_t)dpari_prove_is_send(action) << 31 | (k - first);
        }
        dpari_prove_sort(state->key + first, order->first[rank + 1] - first);
    }
}

/* Finds the partner of each message, and for EAGER the send whose place in the buffer each send
 * takes. */
static DPARI_COLD dpar_status dpari_prove_partners(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    const int64_t number = INT64_C(0x7fffffff);
    int32_t rank;
    int64_t k, i;
    for (rank = 0; rank < order->ranks; rank++) {
        const int64_t first = order->first[rank], end = order->first[rank + 1];
        for (k = first; k < end; k = i) {
            const int64_t group = state->key[k] >> 31;
            const int32_t peer = (int32_t)(group >> 1), sends = (int32_t)(group & 1);
            int64_t there;
            if (peer == INT32_MAX) {
                for (i = k; i < end; i++) {
                    state->step[first + (state->key[i] & number)].partner = -1;
                    state->step[first + (state->key[i] & number)].rank = rank;
                }
                continue;
            }
            there =
                dpari_prove_order_find(state, peer, (int64_t)rank << 32 | (int64_t)!sends << 31);
            for (i = k; i < end && state->key[i] >> 31 == group; i++) {
                const int64_t other = there + (i - k);
                dpari_prove_step *step = &state->step[first + (state->key[i] & number)];
                if (other >= order->first[peer + 1] ||
                    state->key[other] >> 31 != ((int64_t)rank << 1 | !sends)) {
                    return dpari_say(DPAR_E_MISMATCH, state->why,
                                     "partner: action %ld of rank %d, a %s rank %d, has no partner "
                                     "among the actions of that rank",
                                     state->key[i] & number, rank,
                                     sends ? "send to" : "receive from", peer);
                }
                step->partner = order->first[peer] + (state->key[other] & number);
                step->rank = rank;
                step->buffer = -1;
                if (sends && i - k >= order->capacity) {
                    /* with capacity 0 a send waits for its own receive */
                    step->buffer = first + (state->key[i - order->capacity] & number);
                }
            }
        }
    }
    return DPAR_OK;
}

/* Lists the queues of RANK and PAIR. Messages of the same group count as one place. */
static DPARI_COLD void dpari_prove_queues(dpari_prove_run_state *state)
{
    const dpar_proof_order_desc *order = state->order;
    const int64_t number = INT64_C(0x7fffffff);
    int32_t rank;
    int64_t k, begin;
    for (rank = 0; rank < order->ranks; rank++) {
        const int64_t first = order->first[rank], end = order->first[rank + 1];
        for (k = first; k < end; k++) { /* sorts by queue, then by the number of the action */
            const dpar_proof_action *action = &order->action[k];
            int64_t queue = order->transport == DPAR_PROOF_PAIR ? action->peer : 0;
            if (action->kind == DPAR_PROOF_WAIT) {
                queue = INT32_MAX;
            }
            state->key[k] = queue << 31 | (k - first);
        }
        dpari_prove_sort(state->key + first, end - first);
        begin = first;
        for (k = first; k < end; k++) {
            if (state->key[k] >> 31 != state->key[begin] >> 31) {
                begin = k;
            }
            state->queued[k] = first + (state->key[k] & number);
            state->queue[k] = begin;
            state->head[k] = k;
            state->step[state->queued[k]].place = k;
        }
    }
}

/* ---- the run --------------------------------------------------------------------------------- */

/* True if all messages in front of this one in its queue are done. */
static DPARI_COLD int dpari_prove_is_first(const dpari_prove_run_state *state, int64_t action)
{
    const dpari_prove_step *step = &state->step[action];
    int64_t *head = &state->head[state->queue[step->place]];
    int64_t front;
    const int32_t group = state->order->action[action].group;
    while (*head < step->place && state->step[state->queued[*head]].done) {
        (*head)++;
    }
    if (*head >= step->place) {
        return 1;
    }
    for (front = *head; front < step->place && group != 0; front++) {
        if (state->order->action[state->queued[front]].group != group) {
            return 0;
        }
    }
    return front == step->place;
}

static DPARI_COLD void dpari_prove_wake(dpari_prove_run_state *state, int32_t rank)
{
    if (!state->stacked[rank]) {
        state->stacked[rank] = 1;
        state->stack[state->stack_count++] = rank;
    }
}

/* Transfers the message of an action if both of its ends allow it. Returns 1 if it is done. */
static DPARI_COLD int dpari_prove_transfer(dpari_prove_run_state *state, int64_t action)
{
    dpari_prove_step *step = &state->step[action], *other = &state->step[step->partner];
    const int queues = state->order->transport >= DPAR_PROOF_RANK;
    if (step->done) {
        return 1;
    }
    if (!step->posted || !other->posted) {
        return 0;
    }
    if (queues &&
        (!dpari_prove_is_first(state, action) || !dpari_prove_is_first(state, step->partner))) {
        return 0;
    }
    step->done = other->done = 1;
    dpari_prove_wake(state, step->rank);
    dpari_prove_wake(state, other->rank);
    return 1;
}

/* True if the rank need not wait for this action any more. */
static DPARI_COLD int dpari_prove_completes(dpari_prove_run_state *state, int64_t action)
{
    const dpari_prove_step *step = &state->step[action];
    if (dpari_prove_transfer(state, action)) {
        return 1;
    }
    return state->order->transport == DPAR_PROOF_EAGER &&
           dpari_prove_is_send(&state->order->action[action]) &&
           (step->buffer < 0 || state->step[step->buffer].done);
}

/* Returns the action for which a WAIT or a blocking action at `at` has to wait, or -1. */
static DPARI_COLD int64_t dpari_prove_waits(dpari_prove_run_state *state, int32_t rank, int64_t at)
{
    const int32_t kind = state->order->action[at].kind;
    int64_t k;
    if (kind == DPAR_PROOF_SEND || kind == DPAR_PROOF_RECV) {
        return dpari_prove_completes(state, at) ? -1 : at;
    }
    if (kind != DPAR_PROOF_WAIT) {
        (void)dpari_prove_transfer(state, at);
        return -1;
    }
    for (k = at - 1; k >= state->order->first[rank]; k--) {
        if (state->order->action[k].kind == DPAR_PROOF_WAIT) {
            return -1; /* an earlier WAIT has waited for what is before it */
        }
        if (!dpari_prove_completes(state, k)) {
            return k;
        }
    }
    return -1;
}

/* Runs a rank until it has to wait. */
static DPARI_COLD void dpari_prove_run_rank(dpari_prove_run_state *state, int32_t rank)
{
    int64_t *at = &state->next[rank];
    int64_t k;
    while (*at < state->order->first[rank + 1]) {
        state->step[*at].posted = 1;
        if (dpari_prove_waits(state, rank, *at) >= 0) {
            break;
        }
        (*at)++;
    }
    /* A message of this rank may have become the first in its queue. */
    for (k = *at - 1; state->order->transport >= DPAR_PROOF_RANK && k >= state->order->first[rank];
         k--) {
        if (state->order->action[k].kind != DPAR_PROOF_WAIT) {
            (void)dpari_prove_transfer(state, k);
        }
    }
}

/* Returns the action at which a rank is stuck: that for which it waits or, if it has reached its
 * end, its first message that is not done. */
static DPARI_COLD int64_t dpari_prove_stuck_at(dpari_prove_run_state *state, int32_t rank)
{
    int64_t k = state->order->first[rank];
    if (state->next[rank] < state->order->first[rank + 1]) {
        return dpari_prove_waits(state, rank, state->next[rank]);
    }
    while (state->step[k].partner < 0 || state->step[k].done) {
        k++; /* ends, because another rank waits for this one */
    }
    return k;
}

/* Appends "rank 0 waits at action 1 for its send to rank 2". */
static DPARI_COLD void dpari_prove_put_stuck(dpari_prove_run_state *state, int32_t rank,
                                             dpar_text *out)
{
    const int64_t on = dpari_prove_stuck_at(state, rank);
    const dpar_proof_action *action = &state->order->action[on];
    dpari_text_say(out, "rank %d waits at action %ld for its %s rank %d", rank,
                   state->next[rank] - state->order->first[rank],
                   dpari_prove_kind_name(action->kind), action->peer);
}

/* Returns the rank for which a stuck rank waits. */
static DPARI_COLD int32_t dpari_prove_waits_for(dpari_prove_run_state *state, int32_t rank)
{
    int64_t on = dpari_prove_stuck_at(state, rank);
    if (state->order->transport >= DPAR_PROOF_RANK && !dpari_prove_is_first(state, on)) {
        on = state->queued[state->head[state->queue[state->step[on].place]]];
    } else if (state->order->transport == DPAR_PROOF_EAGER && state->step[on].buffer >= 0 &&
               dpari_prove_is_send(&state->order->action[on])) {
        on = state->step[on].buffer;
    }
    return state->order->action[on].peer;
}

/* Writes a cycle of ranks that wait for each other. */
static DPARI_COLD dpar_status dpari_prove_stuck(dpari_prove_run_state *state, int32_t rank)
{
    int32_t i, begin, ranks = 0;
    dpar_text out;
    for (i = 0; i < state->order->ranks; i++) { /* goes on until it is within a cycle */
        rank = dpari_prove_waits_for(state, rank);
    }
    begin = rank;
    do {
        ranks++;
        rank = dpari_prove_waits_for(state, rank);
    } while (rank != begin);
    dpari_text_why(&out, state->why);
    dpari_text_say(&out, "%d rank%s wait for each other: ", ranks, ranks == 1 ? "" : "s");
    for (i = 0; i < ranks && i < 3; i++) {
        dpar_text_put(&out, i == 0 ? "" : "; ");
        dpari_prove_put_stuck(state, rank, &out);
        rank = dpari_prove_waits_for(state, rank);
    }
    dpar_text_put(&out, ranks > 3 ? "; ..." : "");
    return DPAR_E_STUCK;
}

DPAR_API DPARI_COLD dpar_status dpar_proof_order(const dpar_proof_order_desc *order, dpar_why *why)
{
    dpari_prove_run_state state;
    dpar_status status = dpari_prove_order_check(order, why);
    int32_t rank;
    if (status != DPAR_OK) {
        return status;
    }
    dpari_zero(&state, sizeof state);
    state.order = order;
    state.why = why;
    status = dpari_prove_order_room(&state);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_prove_order_sort(&state);
    status = dpari_prove_partners(&state);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_prove_queues(&state);
    for (rank = order->ranks - 1; rank >= 0; rank--) {
        state.next[rank] = order->first[rank];
        dpari_prove_wake(&state, rank);
    }
    while (state.stack_count > 0) {
        rank = state.stack[--state.stack_count];
        state.stacked[rank] = 0;
        dpari_prove_run_rank(&state, rank);
    }
    for (rank = 0; rank < order->ranks; rank++) {
        if (state.next[rank] < order->first[rank + 1]) {
            return dpari_prove_stuck(&state, rank);
        }
    }
    return DPAR_OK;
}
