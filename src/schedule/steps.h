/* SPDX-License-Identifier: MIT-0 */
/* steps - what a runner needs of a schedule: numbers of buffers, as few as there can be, and the
 * next thing to do.
 *
 *     dpar_schedule_slots(&s, &how, memory, bytes, &why);         how.slots: one for each action
 *     n = dpar_steps_first(&steps, &s, how.slots, rank, &task);
 *     while (n > 0) {                                             a training step
 *         do task.action[0], and with n == 2 task.action[1] beside it
 *         n = dpar_steps_next(&steps, &task);
 *     } */
#ifndef DPARI_SCHEDULE_STEPS_H
#define DPARI_SCHEDULE_STEPS_H

#include "schedule.h"

/* The buffers that an action uses, numbered from 0 in each rank and kind; DPAR_SLOT_NONE: none. F
 * uses receive, activation and send; I all four; W activation and weight; RECV and SEND their own.
 *
 *  - receive: what comes in, from RECV to the end of the F, B or I that uses it. What the backward
 *    needs of a stage's input belongs to the activation.
 *  - activation: from F to B, or to W where the backward is split; without backwards to the end. An
 *    OFFLOAD frees it, its RELOAD takes another. In a joined pair F takes before B frees.
 *  - send: what goes out, from the F, B or I that makes it to the SEND, and some sends more
 *    (in_flight).
 *  - weight: what I leaves to W, the gradients in between.
 *
 * A list without messages has neither receives nor sends. Between stages of one rank data goes from
 * hand to hand, without slots. */
enum { DPAR_SLOT_NONE = 65535 };
typedef struct dpar_action_slots {
    uint16_t receive, activation, send, weight;
} dpar_action_slots;
/* How many slots a rank needs. */
typedef struct dpar_slot_counts {
    int32_t receive, activation, send, weight;
} dpar_slot_counts;

/* How sends wait, and where the slots go. Zero it. */
typedef struct dpar_schedule_slots_desc {
    /* A send's slot stays taken while the next `in_flight` sends of the rank are posted. 0: a SEND
     * has the data out of its slot when it returns. k: the runner posts k sends at a time, then
     * waits for the oldest. INT32_MAX: it waits at the end of the step only, as PyTorch does.
     *
     * With 0 a runner may also wait, before it fills a slot, for the send that was the last to use
     * it. A list that passes DPAR_TRANSPORT_BLOCKING stands that. */
    int32_t in_flight;
    dpar_action_slots *slots; /* NULL, or one for each of s->action */
    dpar_slot_counts *counts; /* NULL, or [ranks] */
} dpar_schedule_slots_desc;

/* Bytes of working memory; -1 as dpar_schedule_check_bytes. O(ranks). */
DPAR_API int64_t dpar_schedule_slots_bytes(const dpar_schedule *s);
/* Assigns slots: no two live things share one, and of each kind a rank has no more than are alive
 * at once. E_ARG: dpar_schedule_check (tagged) refuses s, or in_flight < 0. E_RANGE: more than
 * 65535 slots. E_ROOM. O(actions). */
DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *s,
                                         const dpar_schedule_slots_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

/* A rank's way through its list. Both pointers are the caller's and must live. */
typedef struct dpar_steps {
    const dpar_schedule *schedule;
    const dpar_action_slots *slots; /* NULL: every step says DPAR_SLOT_NONE */
    int64_t at, end;
} dpar_steps;
/* What to do next: one action, or a forward and a backward that run together. */
typedef struct dpar_task {
    int64_t index; /* of the first, in schedule->action */
    dpar_action action[2];
    dpar_action_slots slots[2];
} dpar_task;

/* The first task of `rank`; call it for each training step. Returns the number of actions in *task:
 * 1, or 2 that are joined; 0 at the end, *task untouched. Idle actions are passed over. A rank
 * outside has nothing to do. dpar_schedule_check must have taken the list. O(1). */
DPAR_API int dpar_steps_first(dpar_steps *steps, const dpar_schedule *s,
                              const dpar_action_slots *slots, int32_t rank, dpar_task *task);
/* The next task, as dpar_steps_first. O(1). */
DPAR_API int dpar_steps_next(dpar_steps *steps, dpar_task *task);

#endif
