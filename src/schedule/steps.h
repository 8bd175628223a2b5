/* SPDX-License-Identifier: MIT-0 */
/* steps - assigns buffers to the actions of a schedule, as few as possible.
 *
 *     dpar_schedule_slots(&s, &how, memory, bytes, &why);         how.slots: one for each action
 *     for (i = s.begin[rank]; i < s.begin[rank + 1]; i++) {       a training step
 *         do s.action[i] in the buffers how.slots[i]; if it is `joined`, together with the next one
 *     }
 */
#ifndef DPARI_SCHEDULE_STEPS_H
#define DPARI_SCHEDULE_STEPS_H

#include "schedule.h"

/* The buffers (slots) that an action uses, numbered from 0 for each rank and kind. DPAR_SLOT_NONE
 * means none. F and B use receive, activation and send; I uses all four; W uses activation and
 * weight; RECV and SEND use their own.
 *
 *  - receive holds an input from RECV to the end of the F, B or I that uses it. What the backward
 *    needs of a stage's input belongs to the activation.
 *  - activation is taken by F and freed by B, or by W if the backward is split; without backwards
 *    it is held to the end. An OFFLOAD frees it, and its RELOAD takes another one. In a joined pair
 *    F takes a slot before B frees one.
 *  - send holds a result from the F, B or I that makes it to its SEND, and while some later sends
 *    are posted (in_flight).
 *  - weight holds what I leaves to W, the gradients in between.
 *
 * A list without messages has neither receives nor sends. Data between stages of one rank use no
 * slots.
 */
enum { DPAR_SLOT_NONE = 65535 };
typedef struct dpar_action_slots {
    uint16_t receive, activation, send, weight;
} dpar_action_slots;

/* The number of slots that a rank needs, by kind. */
typedef struct dpar_slot_counts {
    int32_t receive, activation, send, weight;
} dpar_slot_counts;

/* How many sends are in flight, and where results are stored. Zero it, then set the fields that you
 * need. */
typedef struct dpar_schedule_slots_desc {
    /* A send's slot stays taken while the next `in_flight` sends of the rank are posted. With 0, a
     * SEND has copied the data out of its slot when it returns. With k, the runner posts k sends at
     * a time and then waits for the oldest. With INT32_MAX, it waits at the end of the step only,
     * as PyTorch does.
     *
     * With 0 a runner may instead wait, before it fills a slot, for the last send that used it.
     * This cannot deadlock if the list passes DPAR_TRANSPORT_BLOCKING.
     */
    int32_t in_flight;
    dpar_action_slots *slots; /* [actions], receives the slots of each action; may be NULL */
    dpar_slot_counts *counts; /* [ranks], receives the number of slots of each rank; may be NULL */
} dpar_schedule_slots_desc;

/* Assigns slots to all actions so that no two values share a slot while both are needed. Of each
 * kind a rank gets no more slots than it has values at one time.
 *
 * mem:  aligned as for int64_t. With NULL and 0 bytes the call fails with DPAR_E_ROOM, and
 *       why->bytes is how many it needs.
 *
 * Fails with DPAR_E_ARG if dpar_schedule_check with DPAR_CHECK_TAGGED refuses the schedule or
 * in_flight is negative, DPAR_E_RANGE above 65535 slots, or DPAR_E_ROOM if `bytes` is too small.
 * Costs O(actions).
 */
DPAR_API dpar_status dpar_schedule_slots(const dpar_schedule *schedule,
                                         const dpar_schedule_slots_desc *how, void *mem,
                                         int64_t bytes, dpar_why *why);

#endif
