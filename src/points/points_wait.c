/* SPDX-License-Identifier: MIT-0 */
/* Waits for peers that share memory, and reports those that have died, are late or do something
 * else. It uses the waits of ../comm/group.h. Called by points_run.c. */
#include "points_wait.h"

#include "../base/inner.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/os.h"
#include "../comm/shm.h"

#define DPARI_PT_LOOK_EVERY 10e-3 /* seconds between two looks at peers while one tests */

DPARI_INTERNAL double dpari_pt_clock(const dpari_points *x)
{
    return x->timers ? dpari_os_now() : 0.0;
}

DPARI_INTERNAL void dpari_pt_count(dpari_points *x, int32_t phase, double began)
{
    if (x->timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}

DPARI_INTERNAL dpar_status dpari_pt_broken(const dpari_points *x)
{
    return x->head.comm->status != DPAR_OK ? x->head.comm->status : x->node->status;
}

/* The rank in the plan's communicator of one of the world; -1: no peer. */
static int32_t dpari_pt_rank_of(const dpari_points *x, int32_t world)
{
    int32_t i;
    for (i = 0; i < x->head.peer_count; i++) {
        if (x->peer[i].world == world) {
            return x->peer[i].rank;
        }
    }
    return -1;
}

static void dpari_pt_put_kind(dpar_text *t, uint64_t kind)
{
    static const char name[4][20] = {"a forward exchange", "an adjoint (sum)", "an adjoint (max)",
                                     "an adjoint (min)"};
    dpar_text_put(t, name[kind & DPARI_PT_OP]);
}

static dpar_status dpari_pt_break(dpari_points *x, dpar_status status, const char *text)
{
    status = dpari_group_break(dpari_group_of(x->node), status, text);
    if (x->node != x->head.comm) {
        dpar_comm_abort(x->head.comm, status, x->node->why.text);
    }
    return status;
}

static void dpari_pt_begin_sentence(const dpari_points *x, dpar_text *t, dpar_why *why)
{
    dpar_text_init(t, why->text, sizeof why->text);
    dpari_text_print(t, "points exchange #%ld of %d %s: ", x->count, x->vectors,
                     x->vectors == 1 ? "vector" : "vectors");
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_differs(dpari_points *x, int32_t i, uint64_t kind)
{
    dpar_why why;
    dpar_text t;
    dpari_pt_begin_sentence(x, &t, &why);
    dpari_text_print(&t, "rank %d runs ", x->peer[i].rank);
    dpari_pt_put_kind(&t, kind);
    dpari_text_print(&t, ", rank %d ", x->head.comm->rank);
    dpari_pt_put_kind(&t, x->kind);
    dpar_text_put(&t, (kind & DPARI_PT_OP) == (x->kind & DPARI_PT_OP) ? " of other vectors" : "");
    return dpari_pt_break(x, DPAR_E_MISMATCH, why.text);
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_pt_unreachable(dpari_points *x, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(x->node, ref);
    if (x->node != x->head.comm) {
        dpar_comm_abort(x->head.comm, status, x->node->why.text);
    }
    return status;
}

static DPARI_COLD dpar_status dpari_pt_fail(dpari_points *x, dpar_status status, int32_t i,
                                            const dpari_peer_wait *q)
{
    const dpari_group *g = dpari_group_of(x->node);
    const dpari_pt_peer *p = &x->peer[i];
    const int32_t late = status == DPAR_E_TIMEOUT ? dpari_pt_rank_of(x, q->who) : p->rank;
    dpar_why why;
    dpar_text t;
    dpari_pt_begin_sentence(x, &t, &why);
    if (late >= 0) {
        dpari_text_print(&t, "rank %d", late);
    } else {
        dpari_text_print(&t, "rank %d of the world", q->who);
    }
    dpari_put_place(&t, g);
    if (status == DPAR_E_PEER && dpari_rank_state(x->world, p->world) == DPARI_RANK_HERE) {
        dpar_text_put(&t, " closed the communicator or returned");
        dpari_put_failed(&t, x->world, p->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&t, x->world, p->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&t, " did not come in %.1f s", q->waited);
        if (q->links > 0) {
            dpari_text_print(&t, "; rank %d waits for it", p->rank);
        }
    } else {
        dpari_put_crossed(&t, g, p->world, q->in);
        dpar_text_put(&t, " instead");
    }
    return dpari_pt_break(x, status, why.text);
}

/* Messages and other work that is under way. */
static void dpari_pt_progress(void *exchange)
{
    dpari_points *x = (dpari_points *)exchange;
    int32_t i;
    dpari_shm_progress_all(x->node);
    if (x->node != x->head.comm) {
        for (i = 0; i < x->receives_posted + x->sends_posted; i++) {
            (void)dpar_test(&x->work[i]);
        }
        (void)x->head.comm->engine.progress(x->head.comm, 0);
    }
}

static DPARI_COLD dpar_status dpari_pt_await_slowly(dpari_points *x, int32_t i,
                                                    const uint64_t *word, uint64_t value)
{
    const double began = dpari_pt_clock(x);
    dpari_peer_wait q;
    dpar_status status;
    dpari_zero(&q, sizeof q);
    q.comm = x->head.comm;
    q.group = dpari_group_of(x->node);
    q.peer = x->peer[i].world;
    q.ready = &x->peer[i].line->ready;
    q.shift = 16;
    q.count = x->count;
    q.progress = dpari_pt_progress;
    q.exchange = x;
    status = dpari_peer_await(&q, word, value);
    dpari_pt_count(x, DPARI_PT_WAITING, began);
    return status == DPAR_OK || dpari_pt_broken(x) != DPAR_OK ? status
                                                              : dpari_pt_fail(x, status, i, &q);
}

DPARI_INTERNAL dpar_status dpari_pt_await(dpari_points *x, int32_t i, const uint64_t *word,
                                          uint64_t value, int wait)
{
    double now;
    dpar_status st;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait == DPARI_PT_PEEK) {
        return DPAR_MORE;
    }
    if (wait) {
        return dpari_pt_await_slowly(x, i, word, value);
    }
    now = dpari_os_now();
    if (now - x->looked < DPARI_PT_LOOK_EVERY) {
        return DPAR_MORE;
    }
    x->looked = now;
    st = dpari_peer_look(x->head.comm, dpari_group_of(x->node), x->peer[i].world);
    if (st == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        st = dpari_pt_fail(x, st, i, NULL);
    }
    return st == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : st;
}
