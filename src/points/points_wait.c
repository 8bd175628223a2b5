/* SPDX-License-Identifier: MIT-0 */
/* Waits for peers that share memory, and reports peers that have died, are late or run another
 * operation. It uses the waits of ../comm/group.h. Called by points_run.c, and by points.c for
 * memory that cannot be mapped. */
#include "points_wait.h"

#include "../base/base_private.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/os.h"
#include "../comm/shm.h"

#define DPARI_PT_LOOK_EVERY                                                                        \
    10e-3 /* seconds between two checks for failed peers in dpar_points_test */

DPARI_INTERNAL double dpari_pt_clock(const dpari_points *plan)
{
    return plan->timers ? dpari_os_now() : 0.0;
}

DPARI_INTERNAL void dpari_pt_count(dpari_points *plan, int32_t phase, double began)
{
    if (plan->timers) {
        plan->seconds[phase] += dpari_os_now() - began;
    }
}

DPARI_INTERNAL dpar_status dpari_pt_broken(const dpari_points *plan)
{
    return plan->head.comm->status != DPAR_OK ? plan->head.comm->status : plan->node->status;
}

/* Returns the rank in the plan's communicator of a rank of the world, or -1 if it is no peer. */
static int32_t dpari_pt_rank_of(const dpari_points *plan, int32_t world)
{
    int32_t i;
    for (i = 0; i < plan->head.peer_count; i++) {
        if (plan->peer[i].world == world) {
            return plan->peer[i].rank;
        }
    }
    return -1;
}

/* Appends a description of a kind of exchange to a message. */
static void dpari_pt_put_kind(dpar_text *text, uint64_t kind)
{
    static const char name[4][20] = {"a forward exchange", "an adjoint (sum)", "an adjoint (max)",
                                     "an adjoint (min)"};
    dpar_text_put(text, name[kind & DPARI_PT_OP]);
}

/* Breaks both communicators of the plan, with a message. */
static dpar_status dpari_pt_break(dpari_points *plan, dpar_status status, const char *text)
{
    status = dpari_group_break(dpari_group_of(plan->node), status, text);
    if (plan->node != plan->head.comm) {
        dpar_comm_abort(plan->head.comm, status, plan->node->why.text);
    }
    return status;
}

/* Begins a message with the number of the exchange. */
static void dpari_pt_begin_message(const dpari_points *plan, dpar_text *text, dpar_why *why)
{
    dpari_text_why(text, why);
    dpari_text_print(text, "points exchange #%ld of %d %s: ", plan->count, plan->vectors,
                     plan->vectors == 1 ? "vector" : "vectors");
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_differs(dpari_points *plan, int32_t i, uint64_t kind)
{
    dpar_why why;
    dpar_text text;
    dpari_pt_begin_message(plan, &text, &why);
    dpari_text_print(&text, "rank %d runs ", plan->peer[i].rank);
    dpari_pt_put_kind(&text, kind);
    dpari_text_print(&text, ", rank %d ", plan->head.comm->rank);
    dpari_pt_put_kind(&text, plan->kind);
    dpar_text_put(&text,
                  (kind & DPARI_PT_OP) == (plan->kind & DPARI_PT_OP) ? " of other vectors" : "");
    return dpari_pt_break(plan, DPAR_E_MISMATCH, why.text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_unreachable(dpari_points *plan, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(plan->node, ref);
    if (plan->node != plan->head.comm) {
        dpar_comm_abort(plan->head.comm, status, plan->node->why.text);
    }
    return status;
}

/* Breaks the communicators because peer i died, timed out or runs another call. wait_state
 * describes the wait that failed. It may be NULL if status is DPAR_E_PEER. */
static DPARI_COLD dpar_status dpari_pt_fail(dpari_points *plan, dpar_status status, int32_t i,
                                            const dpari_peer_wait *wait_state)
{
    const dpari_group *group = dpari_group_of(plan->node);
    const dpari_pt_peer *peer = &plan->peer[i];
    const int32_t late =
        status == DPAR_E_TIMEOUT ? dpari_pt_rank_of(plan, wait_state->who) : peer->rank;
    dpar_why why;
    dpar_text text;
    dpari_pt_begin_message(plan, &text, &why);
    if (late >= 0) {
        dpari_text_print(&text, "rank %d", late);
    } else {
        dpari_text_print(&text, "rank %d of the world", wait_state->who);
    }
    dpari_put_place(&text, group);
    if (status == DPAR_E_PEER && dpari_rank_state(plan->world, peer->world) == DPARI_RANK_HERE) {
        dpar_text_put(&text, " closed the communicator or returned");
        dpari_put_failed(&text, plan->world, peer->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&text, plan->world, peer->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&text, " did not arrive within %.1f s", wait_state->waited);
        if (wait_state->links > 0) {
            dpari_text_print(&text, "; rank %d waits for it", peer->rank);
        }
    } else {
        dpari_put_crossed(&text, group, peer->world, wait_state->in);
        dpar_text_put(&text, " instead");
    }
    return dpari_pt_break(plan, status, why.text);
}

/* Advances messages and other work in progress while this rank waits. */
static void dpari_pt_progress(void *exchange)
{
    dpari_points *plan = (dpari_points *)exchange;
    int32_t i;
    dpari_shm_progress_all(plan->node);
    if (plan->node != plan->head.comm) {
        for (i = 0; i < plan->receives_posted + plan->sends_posted; i++) {
            (void)dpar_test(&plan->work[i]);
        }
        (void)plan->head.comm->engine.progress(plan->head.comm, 0);
    }
}

/* Waits until *word, a word of peer i, is at least `value`, and advances messages meanwhile. */
static DPARI_COLD dpar_status dpari_pt_await_slowly(dpari_points *plan, int32_t i,
                                                    const uint64_t *word, uint64_t value)
{
    const double began = dpari_pt_clock(plan);
    dpari_peer_wait wait_state;
    dpar_status status;
    dpari_zero(&wait_state, sizeof wait_state);
    wait_state.comm = plan->head.comm;
    wait_state.group = dpari_group_of(plan->node);
    wait_state.peer = plan->peer[i].world;
    wait_state.ready = &plan->peer[i].line->ready;
    wait_state.shift = 16;
    wait_state.count = plan->count;
    wait_state.progress = dpari_pt_progress;
    wait_state.exchange = plan;
    status = dpari_peer_await(&wait_state, word, value);
    dpari_pt_count(plan, DPARI_PT_WAITING, began);
    if (status == DPAR_OK || dpari_pt_broken(plan) != DPAR_OK) {
        return status;
    }
    return dpari_pt_fail(plan, status, i, &wait_state);
}

DPARI_INTERNAL dpar_status dpari_pt_await(dpari_points *plan, int32_t i, const uint64_t *word,
                                          uint64_t value, int wait)
{
    double now;
    dpar_status status;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait == DPARI_PT_PEEK) {
        return DPAR_MORE;
    }
    if (wait) {
        return dpari_pt_await_slowly(plan, i, word, value);
    }
    now = dpari_os_now();
    if (now - plan->looked < DPARI_PT_LOOK_EVERY) {
        return DPAR_MORE;
    }
    plan->looked = now;
    status = dpari_peer_look(plan->head.comm, dpari_group_of(plan->node), plan->peer[i].world);
    if (status == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        status = dpari_pt_fail(plan, status, i, NULL);
    }
    return status == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : status;
}
