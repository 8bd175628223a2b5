/* SPDX-License-Identifier: MIT-0 */
/* engine - what engines and strategies share of a communicator beyond its operations. Private;
 * comm.c has it. */
#ifndef DPARI_COMM_ENGINE_H
#define DPARI_COMM_ENGINE_H

#include "../base/arith.h"
#include "comm.h"

/* The roots of the barrier that closes a communicator and of the all-gather that splits one: no
 * other operation fits them. */
enum { DPARI_CLOSE = -1, DPARI_SPLIT = -2 };

/* Runs or posts any operation from its description; the functions of comm.h call it. Errors and
 * cost are those of the operation. */
DPARI_API dpar_status dpari_post(dpar_comm *c, const dpar_call *call, dpar_work *work);
/* Test whether an operation of this kind combines elements, has a root, or is a message. */
DPARI_API int dpari_kind_reduces(int32_t kind);
DPARI_API int dpari_kind_rooted(int32_t kind);
DPARI_API int dpari_kind_sends(int32_t kind);
/* Test whether this rank has an input in call->in, or an output in call->out. */
DPARI_API int dpari_call_has_in(const dpar_comm *c, const dpar_call *call);
DPARI_API int dpari_call_has_out(const dpar_comm *c, const dpar_call *call);
/* "sum", "avg", ... */
DPARI_API const char *dpari_op_name(int32_t op);
/* Tags of collectives that are below name what the ranks plan by them, and are not compared. */
enum { DPARI_PLAN_TAGS = INT32_MIN + 4096 };
/* The tag of the all-reduce by which ranks agree before a plan, so that messages name the plan. 0:
 * a plan that messages have no words for. */
DPARI_API int32_t dpari_plan_tag(const char *plan);
/* A collective's tag as ranks compare it. */
static inline int32_t dpari_tag_compared(int32_t tag)
{
    return tag < DPARI_PLAN_TAGS ? 0 : tag;
}
/* "the planning of a halo exchange (all-reduce #12)", and 1; nothing, and 0, where the tag names no
 * plan. */
DPARI_API int dpari_planning_text(dpar_text *t, int32_t kind, int64_t sequence, int32_t tag);
/* "all-reduce #12 of 100 f32", "send of 5 i8 to 2", "split #3": as the engines over MPI and NCCL
 * say it. */
DPARI_API void dpari_operation_text(dpar_text *t, int32_t kind, int64_t sequence, int32_t type,
                                    int64_t count, int32_t root, int32_t tag);
/* dpar_batch of messages that a plan has checked, in works that are free. */
DPARI_API dpar_status dpari_batch_checked(dpar_comm *c, const dpar_call *calls, int32_t n,
                                          dpar_work *works);
/* An all-reduce (SUM, AVG) of F32 where it lies, rounded to `wire` (F16, BF16) as if it had
 * travelled as that: dpari_kern_reduce with DPARI_KERN_THROUGH, and counted as that. c must have a
 * world. COLLECTIVE. Errors as dpar_all_reduce. */
DPARI_API dpar_status dpari_all_reduce_through(dpar_comm *c, void *data, int64_t count,
                                               int32_t wire, int32_t op, dpar_work *work);

/* ---- after the close ----
 *
 * Plans hold their communicator, and may be run when it was closed. An engine keeps the last ones
 * that it closed, for as long as their world is open: each call of such a one is E_ARG with a
 * message. */
enum { DPARI_ENDED = 16 };
typedef struct dpari_ended {
    dpar_comm *last[DPARI_ENDED];
    uint32_t count; /* so far */
} dpari_ended;
/* Keeps c, whose engine has nothing left to do; returns one that is to be freed now, or NULL. */
DPARI_API dpar_comm *dpari_ended_keep(dpari_ended *closed, dpar_comm *c);
/* True if c is one of those closed communicators. */
DPARI_API int dpari_ended_is(const dpar_comm *c);
/* At the end: the next one to be freed, NULL when there is none. */
DPARI_API dpar_comm *dpari_ended_take(dpari_ended *closed);

/* Handles that have memory of their own and may outlive their communicator: *at becomes NULL before
 * its memory goes. */
typedef struct dpari_on_end {
    struct dpari_on_end *next;
    dpar_comm **at;
} dpari_on_end;
DPARI_API void dpari_on_end_add(dpar_comm *c, dpari_on_end *e);
/* c NULL: it has gone. */
DPARI_API void dpari_on_end_drop(dpar_comm *c, const dpari_on_end *e);
DPARI_API void dpari_on_end_all(dpar_comm *c);

/* ---- operations that post their messages bit by bit ----
 *
 * One that has begun may have messages that it posts later, when others have come (a halo exchange
 * that goes dim after dim). Those of two such operations meet in the order in which they are
 * posted, which therefore has to be the same on all ranks: all of the first come before any of the
 * second, however far a rank is. So the first leaves word in the communicator of how to post what
 * it has left, and the second has that done before it begins:
 *
 *     st = dpari_rest_post(c);                   waits, if it must; nobody's word is left
 *     ... begin, post what can be posted ...
 *     dpari_rest_leave(c, function, operation);  if there is more to come
 *     ...
 *     dpari_rest_drop(c, operation);             all is posted, or it failed
 *
 * Other operations (dpar_send, collectives) neither leave word nor ask. The word is the
 * operation's, which stays where it is until it has dropped it; there is one at a time, as one
 * thread at a time uses a communicator. The function is called once, whatever it returns. */
typedef dpar_status dpari_rest(void *operation);
DPARI_API void dpari_rest_leave(dpar_comm *c, dpari_rest *post, void *operation);
DPARI_API dpar_status dpari_rest_post(dpar_comm *c);
/* Only that operation's. */
DPARI_API void dpari_rest_drop(dpar_comm *c, const void *operation);

#endif
