/* SPDX-License-Identifier: MIT-0 */
/* action - private: facts about kinds and stages that all modules of dpar_schedule.h use.
 * Header-only. */
#ifndef DPARI_SCHEDULE_ACTION_H
#define DPARI_SCHEDULE_ACTION_H

#include "../base/arith.h"
#include "schedule.h"

/* Returns the name of a kind, such as "F" or "SEND_F", or "" for DPAR_ACTION_IDLE and any other
 * number. */
DPARI_FN const char *dpari_action_name(int32_t kind)
{
    switch (kind) { /* a table of pointers would have to be relocated at load time */
    case DPAR_ACTION_FORWARD: return "F";
    case DPAR_ACTION_BACKWARD: return "B";
    case DPAR_ACTION_INPUT: return "I";
    case DPAR_ACTION_WEIGHT: return "W";
    case DPAR_ACTION_SEND_F: return "SEND_F";
    case DPAR_ACTION_RECV_F: return "RECV_F";
    case DPAR_ACTION_SEND_B: return "SEND_B";
    case DPAR_ACTION_RECV_B: return "RECV_B";
    case DPAR_ACTION_UNSHARD: return "UNSHARD";
    case DPAR_ACTION_RESHARD: return "RESHARD";
    case DPAR_ACTION_REDUCE_GRAD: return "REDUCE_GRAD";
    case DPAR_ACTION_RECOMPUTE: return "RECOMPUTE";
    case DPAR_ACTION_OFFLOAD: return "OFFLOAD";
    case DPAR_ACTION_RELOAD: return "RELOAD";
    case DPAR_ACTION_WAIT_REDUCE: return "WAIT_REDUCE_GRAD";
    default: return "";
    }
}

/* Rounds a number of bytes up to a multiple of 8. All sizes of memory in dpar_schedule.h are
 * rounded like this, because callers place one array after another in the same memory, and each
 * must be aligned as for int64_t. */
DPARI_FN int64_t dpari_whole_words(int64_t bytes)
{
    return (bytes + 7) & ~(int64_t)7;
}

/* True if actions of this kind have a micro-batch: F, B, I, W, messages, RECOMPUTE, OFFLOAD and
 * RELOAD. */
DPARI_FN int dpari_action_has_micro(int32_t kind)
{
    return kind > DPAR_ACTION_IDLE && kind < DPAR_ACTION_COUNT &&
           (kind < DPAR_ACTION_UNSHARD || kind > DPAR_ACTION_REDUCE_GRAD) &&
           kind != DPAR_ACTION_WAIT_REDUCE;
}

/* True for SEND_F, RECV_F, SEND_B and RECV_B. */
DPARI_FN int dpari_action_is_message(int32_t kind)
{
    return kind >= DPAR_ACTION_SEND_F && kind <= DPAR_ACTION_RECV_B;
}

DPARI_FN int dpari_action_is_send(int32_t kind)
{
    return kind == DPAR_ACTION_SEND_F || kind == DPAR_ACTION_SEND_B;
}

DPARI_FN int dpari_action_is_receive(int32_t kind)
{
    return kind == DPAR_ACTION_RECV_F || kind == DPAR_ACTION_RECV_B;
}

/* Returns the direction of a message: 0 with the forward, 1 with the backward. */
DPARI_FN int dpari_message_way(int32_t kind)
{
    return kind == DPAR_ACTION_SEND_B || kind == DPAR_ACTION_RECV_B;
}

/* True for B and I, which compute the gradient of a stage's input. */
DPARI_FN int dpari_action_is_gradient(int32_t kind)
{
    return kind == DPAR_ACTION_BACKWARD || kind == DPAR_ACTION_INPUT;
}

/* Returns an action that is not joined and has no peer. */
DPARI_FN dpar_action dpari_action_of(int32_t kind, int32_t stage, int32_t micro)
{
    dpar_action action;
    action.kind = (uint8_t)kind;
    action.joined = 0;
    action.stage = (uint16_t)stage;
    action.micro_batch = (uint16_t)micro;
    action.peer = 0;
    return action;
}

/* Returns the stage before this one in its chain, or -1 if there is none. */
DPARI_FN int32_t dpari_schedule_before(const dpar_schedule *schedule, int32_t stage)
{
    return stage % schedule->chain == 0 ? -1 : stage - 1;
}

/* Returns the stage after this one in its chain, or -1 if there is none. */
DPARI_FN int32_t dpari_schedule_behind(const dpar_schedule *schedule, int32_t stage)
{
    return (stage + 1) % schedule->chain == 0 ? -1 : stage + 1;
}

/* Returns the rank that a map, DPAR_STAGE_MAP_x, puts a stage on, or -1 if a number is out of
 * range. */
DPARI_FN int32_t dpari_stage_rank(int32_t map, int32_t ranks, int32_t stage)
{
    int32_t at;
    if (ranks < 1 || stage < 0 ||
        (map == DPAR_STAGE_MAP_BIDIRECTIONAL && stage >= 2 * (int64_t)ranks) || map < 0 ||
        map >= DPAR_STAGE_MAP_COUNT) {
        return -1;
    }
    at = stage % ranks;
    return map != DPAR_STAGE_MAP_LOOP && stage / ranks % 2 == 1 ? ranks - 1 - at : at;
}

/* Writes an action, but not the other half of a joined pair, which may not exist. */
DPARI_INTERNAL void dpari_action_put(const dpar_action *action, dpar_text *text);

/* Returns the number of actions in the longest list. */
DPARI_INTERNAL int64_t dpari_schedule_longest(const dpar_schedule *schedule);

/* Checks a transport, DPAR_TRANSPORT_x, and the capacity of an eager one. */
DPARI_INTERNAL dpar_status dpari_transport_check(int32_t transport, int32_t capacity,
                                                 dpar_why *why);
/* Returns the queue of its rank in which a message for `peer` waits, 0 to 2 ranks - 1. */
DPARI_INTERNAL int32_t dpari_transport_queue(int32_t transport, int32_t kind, int32_t peer);

/* Checks that every stage is on one of the schedule's ranks. */
DPARI_INTERNAL dpar_status dpari_schedule_check_ranks(const dpar_schedule *schedule, dpar_why *why);

/* Does the same as dpar_schedule_init, with the ranks and stages as arguments. */
DPARI_INTERNAL dpar_status dpari_schedule_empty(dpar_schedule *schedule, int32_t ranks,
                                                int32_t stages, int64_t actions, void *mem,
                                                int64_t bytes, dpar_why *why);

#endif
