/* SPDX-License-Identifier: MIT-0 */
/* slots - assigns buffers to the actions of a schedule, as few as possible.
 *
 *     dpar_schedule_slots(&s, &how, memory, bytes, &why);         how.slots: one for each action
 *     for (i = s.begin[rank]; i < s.begin[rank + 1]; i++) {       a training step
 *         run s.action[i] in the buffers how.slots[i]; if it is `joined`, also the next action
 *     }
 */
#ifndef DPARI_SCHEDULE_SLOTS_H
#define DPARI_SCHEDULE_SLOTS_H

#include "schedule.h"

/* The buffers (slots) that an action uses, numbered from 0 for each rank and kind. DPAR_SLOT_NONE
 * means none. F and B use receive, activation and send; I uses all four; W uses activation and
 * weight; RECV uses receive, and SEND uses send.
 *
 *  - receive holds an input from RECV to the end of the F, B or I that uses it. The part of a
 *    stage's input that the backward needs belongs to the activation.
 *  - activation is taken by F and freed by B, or by W if the backward is split; without backwards
 *    it is held to the end. An OFFLOAD frees it, and its RELOAD takes another one. In a joined pair
 *    F takes a slot before B frees one.
 *  - send holds a result from the F, B or I that makes it until its SEND and the next in_flight
 *    sends of the rank have been posted.
 *  - weight holds the intermediate gradients that I leaves for W.
 *
 * A list without messages uses neither receive nor send. Data between stages of one rank use no
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
    /* A send's slot stays taken until the next `in_flight` sends of the rank have been posted. 0 is
     * for a runner whose SEND has copied the data out of its slot when it returns. k is for a
     * runner that has at most k sends in flight and then waits for the oldest. INT32_MAX is for one
     * that waits only at the end of the step, as PyTorch does.
     *
     * With 0 a runner may instead wait, before it writes to a slot, for the last send that used it.
     * This cannot deadlock if the list passes DPAR_TRANSPORT_BLOCKING.
     */
    int32_t in_flight;
    dpar_action_slots *slots; /* [actions], receives the slots of each action; may be NULL */
    dpar_slot_counts *counts; /* [ranks], receives the number of slots of each rank; may be NULL */
} dpar_schedule_slots_desc;

/* Assigns slots to all actions so that no two values share a slot while both are needed. A rank
 * gets no more slots of a kind than it has values of that kind at one time.
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
