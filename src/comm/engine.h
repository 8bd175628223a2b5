/* SPDX-License-Identifier: MIT-0 */
/* engine - the private functions of comm.c: how strategies (halo, train, ...) post calls that they
 * describe themselves, how plans are named in messages, and what happens to handles when their
 * communicator is closed. Engines and strategies use them. */
#ifndef DPARI_COMM_ENGINE_H
#define DPARI_COMM_ENGINE_H

#include "../base/arith.h"
#include "comm.h"

/* Two values of `root`: for the barrier that closes a communicator, and for the collective that
 * splits one. No rank has such a number, so no other operation matches these two when ranks compare
 * calls. */
enum { DPARI_CLOSE = -1, DPARI_SPLIT = -2 };

/* Runs or posts any operation from its description; the functions of comm.h call it. Errors and
 * cost are those of the operation. */
DPARI_API dpar_status dpari_post(dpar_comm *comm, const dpar_call *call, dpar_work *work);
/* Test whether an operation of this kind combines elements, has a root, or is a message. */
DPARI_API int dpari_kind_reduces(int32_t kind);
DPARI_API int dpari_kind_rooted(int32_t kind);
DPARI_API int dpari_kind_sends(int32_t kind);
/* Returns a call with these fields, in which all others are 0 or NULL. */
DPARI_API dpar_call dpari_call(int32_t kind, const void *in, void *out, int64_t count,
                               int32_t type);
/* Test whether this rank has an input in call->in, or an output in call->out. */
DPARI_API int dpari_call_has_in(const dpar_comm *comm, const dpar_call *call);
DPARI_API int dpari_call_has_out(const dpar_comm *comm, const dpar_call *call);
/* Returns the name of an op: "sum", "avg", ..., or "copy" for any other number. */
DPARI_API const char *dpari_op_name(int32_t op);
/* Tags of collectives below this one name the plan that the collective is a part of. They are not
 * compared among the ranks. */
enum { DPARI_PLAN_TAGS = INT32_MIN + 4096 };
/* Returns the tag of the all-reduce by which ranks agree before they make a plan, so that messages
 * can name the plan. Returns 0 for a plan that messages have no name for. */
DPARI_API int32_t dpari_plan_tag(const char *plan);
/* Returns the value that ranks compare for the tag of a collective, which is 0 if the tag names a
 * plan. */
static DPARI_INLINED int32_t dpari_tag_compared(int32_t tag)
{
    return tag < DPARI_PLAN_TAGS ? 0 : tag;
}
/* Appends "the planning of a halo exchange (all-reduce #12)" and returns 1, or returns 0 if the tag
 * does not name a plan. */
DPARI_API int dpari_planning_text(dpar_text *text, int32_t kind, int64_t sequence, int32_t tag);
/* Appends "all-reduce #12 of 100 f32", "send of 5 i8 to 2" or "split #3". Used by the engines over
 * MPI and NCCL. */
DPARI_API void dpari_operation_text(dpar_text *text, int32_t kind, int64_t sequence, int32_t type,
                                    int64_t count, int32_t root, int32_t tag);
/* Does what dpar_batch does, for calls that a plan has checked and works that are not in
 * progress. */
DPARI_API dpar_status dpari_batch_checked(dpar_comm *comm, const dpar_call *calls, int32_t n,
                                          dpar_work *works);
/* Posts an in-place all-reduce (SUM, AVG) of F32 data whose result is the same as if the data had
 * been sent as `wire` (F16, BF16): it runs dpari_kern_reduce with DPARI_KERN_THROUGH. comm->sent
 * counts the bytes of `wire`. comm must belong to the shared-memory engine. COLLECTIVE. Errors as
 * dpar_all_reduce. */
DPARI_API dpar_status dpari_all_reduce_through(dpar_comm *comm, void *data, int64_t count,
                                               int32_t wire, int32_t op, dpar_work *work);

/* ---- after the close ----
 *
 * A plan keeps a pointer to its communicator and may be run after the communicator was closed. An
 * engine therefore does not free the last DPARI_ENDED communicators that it closed while their
 * world is open. A call on one of them fails with DPAR_E_ARG and a message. */
enum { DPARI_ENDED = 16 };
typedef struct dpari_ended {
    dpar_comm *last[DPARI_ENDED];
    uint32_t count; /* communicators closed so far */
} dpari_ended;
/* Keeps comm, which its engine has closed. Returns the oldest kept communicator, which the caller
 * must free instead, or NULL. */
DPARI_API dpar_comm *dpari_ended_keep(dpari_ended *closed, dpar_comm *comm);
/* True if comm is one of those closed communicators. */
DPARI_API int dpari_ended_is(const dpar_comm *comm);
/* Returns one of the kept communicators, which the caller must free when the world ends, or NULL if
 * none is left. */
DPARI_API dpar_comm *dpari_ended_take(dpari_ended *closed);

/* An entry in a communicator's list of handles that may outlive it, because they have their own
 * memory. *at, the handle's pointer to the communicator, becomes NULL before the communicator is
 * freed. */
typedef struct dpari_on_end {
    struct dpari_on_end *next;
    dpar_comm **at;
} dpari_on_end;
DPARI_API void dpari_on_end_add(dpar_comm *comm, dpari_on_end *e);
/* Does nothing if comm is NULL, that is, if the communicator was freed before the handle. */
DPARI_API void dpari_on_end_drop(dpar_comm *comm, const dpari_on_end *e);
DPARI_API void dpari_on_end_all(dpar_comm *comm);

/* ---- operations that post their messages step by step ----
 *
 * Some operations post a part of their messages only after others have arrived, such as a halo
 * exchange that handles one dim after the other. Messages between two ranks match in the order in
 * which they are posted. If two such operations overlap, all ranks must therefore post all messages
 * of the first before any message of the second, no matter how far each rank has got. So the first
 * operation leaves a function in the communicator that posts the rest of its messages, and the
 * second has this function called before it begins:
 *
 *     st = dpari_rest_post(comm);                calls a function left before; may wait
 *     ... begin, post what can be posted ...
 *     dpari_rest_leave(comm, function, operation);
 *                                                if there are messages to post later
 *     ...
 *     dpari_rest_drop(comm, operation);          all messages are posted, or the operation failed
 *
 * Other operations (dpar_send, collectives) call none of these. `operation` must keep its address
 * until dpari_rest_drop. A communicator holds one function at a time, because only one thread at a
 * time uses it. The function is called once, whatever it returns. */
typedef dpar_status dpari_rest(void *operation);
DPARI_API void dpari_rest_leave(dpar_comm *comm, dpari_rest *post, void *operation);
DPARI_API dpar_status dpari_rest_post(dpar_comm *comm);
/* Removes the function if this operation left it. */
DPARI_API void dpari_rest_drop(dpar_comm *comm, const void *operation);

#endif
