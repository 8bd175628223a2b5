/* SPDX-License-Identifier: MIT-0 */
/* Assigns buffers by reading each rank's list: a slot is taken when a value is made and freed after
 * its last use. The slot that was freed last is taken first. A new slot is created only if none is
 * free, so that a rank never has more slots than values at one time. */
#include "slots.h"

#include "../base/arith.h"
#include "action.h"
#include "check.h"
#include "needed_bytes.h"

/* The slots of a stage and a micro-batch. Index 0 is for the forward, 1 for the backward. */
typedef struct dpari_slots_cell {
    uint16_t receive[2], send[2], activation, weight;
} dpari_slots_cell;

/* The slots of a rank and kind. `free` is a stack of the free ones. */
typedef struct dpari_slots_pool {
    uint16_t *free;
    int32_t free_count;
    int32_t count; /* slots created so far */
    int full;      /* 1 if more than 65535 slots were needed */
} dpari_slots_pool;

typedef struct dpari_slots {
    const dpar_schedule *s;
    dpari_slots_cell *cell; /* [chain][micros] */
    dpari_slots_pool receive, activation, send, weight;
    int messages;      /* 1 if the list has messages */
    int32_t in_flight; /* the number of later sends after which a send's slot is free */
    int64_t sends;     /* sends of the rank so far */
    int64_t at;        /* index after the last send whose slot was freed */
} dpari_slots;

static uint16_t dpari_slots_take(dpari_slots_pool *p)
{
    if (p->free_count > 0) {
        return p->free[--p->free_count];
    }
    if (p->count == DPAR_SLOT_NONE) {
        p->full = 1;
        return DPAR_SLOT_NONE;
    }
    return (uint16_t)p->count++;
}

static void dpari_slots_free(dpari_slots_pool *p, uint16_t slot)
{
    if (slot != DPAR_SLOT_NONE) {
        p->free[p->free_count++] = slot;
    }
}

static dpari_slots_cell *dpari_slots_at(const dpari_slots *slots, const dpar_action *action)
{
    return &slots->cell[(int64_t)(action->stage % slots->s->chain) * slots->s->micro_batches +
                        action->micro_batch];
}

/* Returns the capacity of a pool's stack: a rank has no more slots than actions. */
DPARI_STATIC_NOINLINE int64_t dpari_slots_room(const dpar_schedule *schedule)
{
    return dpari_least(dpari_schedule_longest(schedule), DPAR_SLOT_NONE);
}

DPARI_API int64_t dpari_schedule_slots_bytes(const dpar_schedule *schedule)
{
    int64_t check = dpari_schedule_check_bytes(schedule, NULL), cells;
    if (check < 0) {
        return -1;
    }
    cells = dpari_least((int64_t)schedule->chain * schedule->micro_batches,
                        schedule->begin[schedule->ranks]);
    return dpari_most(check, dpari_whole_words(cells * (int64_t)sizeof(dpari_slots_cell) +
                                               8 * dpari_slots_room(schedule)));
}

static void dpari_slots_init(dpari_slots *slots, const dpar_schedule *schedule, int32_t in_flight,
                             void *mem)
{
    int64_t i;
    dpari_zero(slots, sizeof(*slots));
    slots->s = schedule;
    slots->cell = (dpari_slots_cell *)mem;
    slots->receive.free =
        (uint16_t *)(void *)(slots->cell + (int64_t)schedule->chain * schedule->micro_batches);
    slots->activation.free = slots->receive.free + dpari_slots_room(schedule);
    slots->send.free = slots->activation.free + dpari_slots_room(schedule);
    slots->weight.free = slots->send.free + dpari_slots_room(schedule);
    slots->in_flight = in_flight;
    for (i = 0; i < schedule->begin[schedule->ranks]; i++) {
        slots->messages |= dpari_action_is_message(schedule->action[i].kind);
    }
}

/* Counts a send that was posted, and frees the slot of the send that is `in_flight` sends before
 * it. */
static void dpari_slots_sent(dpari_slots *slots)
{
    const dpar_action *action;
    if (++slots->sends <= slots->in_flight) {
        return;
    }
    do {
        action = &slots->s->action[slots->at++];
    } while (!dpari_action_is_send(action->kind));
    dpari_slots_free(&slots->send,
                     dpari_slots_at(slots, action)->send[dpari_message_way(action->kind)]);
}

/* Assigns the slots of an F, B or I: that of its received input, which becomes free, and one for
 * its result if that is sent. */
static void dpari_slots_pass(dpari_slots *slots, const dpar_action *action, dpar_action_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(slots, action);
    int way = action->kind != DPAR_ACTION_FORWARD;
    int32_t across = dpar_schedule_partner(slots->s, action->kind, action->stage);
    out->receive = cell->receive[way];
    dpari_slots_free(&slots->receive, out->receive);
    if (slots->messages && across >= 0 &&
        slots->s->rank_of[across] != slots->s->rank_of[action->stage]) {
        out->send = cell->send[way] = dpari_slots_take(&slots->send);
    }
}

static void dpari_slots_message(dpari_slots *slots, const dpar_action *action,
                                dpar_action_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(slots, action);
    const int way = dpari_message_way(action->kind);
    if (dpari_action_is_receive(action->kind)) {
        out->receive = cell->receive[way] = dpari_slots_take(&slots->receive);
    } else {
        out->send = cell->send[way];
        dpari_slots_sent(slots);
    }
}

DPARI_STATIC_NOINLINE void dpari_slots_action(dpari_slots *slots, const dpar_action *action,
                                              dpar_action_slots *out)
{
    dpari_slots_cell *cell = dpari_slots_at(slots, action);
    const int takes = action->kind == DPAR_ACTION_FORWARD || action->kind == DPAR_ACTION_RELOAD;
    const int frees = action->kind == DPAR_ACTION_BACKWARD || action->kind == DPAR_ACTION_WEIGHT ||
                      action->kind == DPAR_ACTION_OFFLOAD;
    if (dpari_action_is_message(action->kind)) {
        dpari_slots_message(slots, action, out);
        return;
    }
    if (takes) {
        cell->activation = dpari_slots_take(&slots->activation);
    }
    out->activation = cell->activation;
    if (frees) {
        dpari_slots_free(&slots->activation, cell->activation);
    }
    if (action->kind == DPAR_ACTION_INPUT) {
        cell->weight = dpari_slots_take(&slots->weight);
    }
    if (action->kind == DPAR_ACTION_INPUT || action->kind == DPAR_ACTION_WEIGHT) {
        out->weight = cell->weight;
    }
    if (action->kind == DPAR_ACTION_WEIGHT) {
        dpari_slots_free(&slots->weight, cell->weight);
    }
    if (action->kind == DPAR_ACTION_FORWARD || dpari_action_is_gradient(action->kind)) {
        dpari_slots_pass(slots, action, out);
    }
}

static void dpari_slots_restart(dpari_slots_pool *p)
{
    p->free_count = p->count = 0;
}

/* Assigns the slots of rank r. `slots` is NULL or the array for all actions of the schedule. */
static void dpari_slots_rank(dpari_slots *w, int32_t r, dpar_action_slots *slots,
                             dpar_slot_counts *count)
{
    int64_t i;
    dpari_slots_restart(&w->receive);
    dpari_slots_restart(&w->activation);
    dpari_slots_restart(&w->send);
    dpari_slots_restart(&w->weight);
    w->sends = 0;
    w->at = w->s->begin[r];
    for (i = w->s->begin[r]; i < w->s->begin[r + 1]; i++) {
        dpar_action_slots out;
        out.receive = out.activation = out.send = out.weight = DPAR_SLOT_NONE;
        if (dpari_action_has_micro(w->s->action[i].kind)) {
            dpari_slots_action(w, &w->s->action[i], &out);
        }
        if (slots != NULL) {
            slots[i] = out;
        }
    }
    count->receive = w->receive.count;
    count->activation = w->activation.count;
    count->send = w->send.count;
    count->weight = w->weight.count;
}

/* Assigns the slots of all ranks. Returns the first rank that needs too many slots, or -1. */
static DPARI_COLD int32_t dpari_slots_walk(dpari_slots *w, dpar_action_slots *slots,
                                           dpar_slot_counts *counts)
{
    int64_t i, cells = (int64_t)w->s->chain * w->s->micro_batches;
    int32_t r;
    for (i = 0; i < cells; i++) {
        w->cell[i].receive[0] = DPAR_SLOT_NONE; /* stays if there are no messages */
        w->cell[i].receive[1] = DPAR_SLOT_NONE;
    }
    for (r = 0; r < w->s->ranks; r++) {
        dpar_slot_counts count;
        dpari_slots_rank(w, r, slots, &count);
        /* The other pools cannot be full before these: a micro-batch waits for one stage at a time,
         * and a W holds an activation, too. */
        if (w->activation.full || w->send.full) {
            return r;
        }
        if (counts != NULL) {
            counts[r] = count;
        }
    }
    return -1;
}

/* Assigns the slots of a schedule that was checked. Not inlined, so that its frame and those of the
 * check are not on the stack at the same time. */
DPARI_STATIC_NOINLINE dpar_status dpari_slots_assign(const dpar_schedule *schedule,
                                                     const dpar_schedule_slots_desc *how, void *mem,
                                                     dpar_why *why)
{
    dpari_slots w;
    int32_t full;
    dpari_slots_init(&w, schedule, how->in_flight, mem);
    full = dpari_slots_walk(&w, NULL, NULL); /* first without output, in case it fails */
    if (full >= 0) {
        return dpari_say(DPAR_E_RANGE, why, "rank %d needs more than 65535 slots of a kind", full);
    }
    (void)dpari_slots_walk(&w, how->slots, how->counts);
    return DPAR_OK;
}

DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *schedule,
                                         const dpar_schedule_slots_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why)
{
    dpar_schedule_check_desc tagged;
    int64_t needed;
    dpar_status st;
    if (how->in_flight < 0) {
        return dpari_wrong(why, "in_flight=%d; 0 or more are allowed", how->in_flight);
    }
    needed = dpari_schedule_slots_bytes(schedule);
    if (bytes < needed) {
        dpari_needs_bytes(why, needed);
        return dpari_say(DPAR_E_ROOM, why,
                         "assigning slots to %ld actions needs %ld bytes, got %ld",
                         schedule->begin[schedule->ranks], needed, bytes);
    }
    dpari_zero(&tagged, sizeof(tagged));
    tagged.flags = DPAR_CHECK_TAGGED;
    st = dpar_schedule_check(schedule, &tagged, mem, bytes, why);
    return st == DPAR_OK ? dpari_slots_assign(schedule, how, mem, why) : st;
}
