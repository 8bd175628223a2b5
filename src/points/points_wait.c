/* SPDX-License-Identifier: MIT-0 */
#include "points_wait.h"

#include "../base/inner.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/os.h"
#include "../comm/shm.h"

enum { DPARI_PT_PROGRESS = 64 };  /* turns of a wait between two looks at other work */
#define DPARI_PT_LOOK_EVERY 10e-3 /* seconds between two looks at peers while one tests */

/* Who does not come: the peer, or whom that itself waits for, and so on. */
typedef struct dpari_pt_suspect {
    int32_t who, links; /* of the world; so many steps from the peer */
    double since;       /* nobody else came under suspicion; 0: not yet */
    int64_t in;         /* the collective that the peer waits in for this rank, */
    double crossed;     /* and since when; 0: in none */
} dpari_pt_suspect;

DPARI_API double dpari_pt_clock(const dpari_points *x)
{
    return x->timers ? dpari_os_now() : 0.0;
}

DPARI_API void dpari_pt_count(dpari_points *x, int32_t phase, double began)
{
    if (x->timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}

DPARI_API dpar_status dpari_pt_broken(const dpari_points *x)
{
    return x->head.comm->status != DPAR_OK ? x->head.comm->status : x->node->status;
}

/* The rank in the plan's communicator of one of the world; -1: no peer. */
static int32_t dpari_pt_rank_of(const dpari_points *x, int32_t world)
{
    int32_t i;
    for (i = 0; i < x->head.peers; i++) {
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

DPARI_API DPARI_COLD dpar_status dpari_pt_differs(dpari_points *x, int32_t i, uint64_t kind)
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

DPARI_API DPARI_COLD dpar_status dpari_pt_unreachable(dpari_points *x, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(x->node, ref);
    if (x->node != x->head.comm) {
        dpar_comm_abort(x->head.comm, status, x->node->why.text);
    }
    return status;
}

static DPARI_COLD dpar_status dpari_pt_fail(dpari_points *x, dpar_status status, int32_t i,
                                            const dpari_pt_suspect *q, double waited)
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
        dpari_text_print(&t, " did not come in %.1f s", waited);
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
static void dpari_pt_progress(dpari_points *x)
{
    int32_t i;
    dpari_shm_progress_all(x->node);
    if (x->node != x->head.comm) {
        for (i = 0; i < x->receives_posted + x->sends_posted; i++) {
            (void)dpar_test(&x->work[i]);
        }
        (void)x->head.comm->engine.progress(x->head.comm, 0);
    }
}

/* Time has passed: does it make sense to wait on? */
static DPARI_COLD dpar_status dpari_pt_look(dpari_points *x, int32_t i)
{
    const uint32_t state = dpari_rank_state(x->world, x->peer[i].world);
    dpar_status st = dpari_group_broken(dpari_group_of(x->node));
    st = st == DPAR_OK ? x->head.comm->status : st;
    if (st != DPAR_OK) {
        return st;
    }
    return state == DPARI_RANK_DEAD || state == DPARI_RANK_LEFT ||
                   dpari_group_closes(dpari_group_of(x->node), x->peer[i].world)
               ? DPAR_E_PEER
               : DPAR_OK;
}

/* Does the peer, which has not begun this exchange, wait in a collective for this rank? For as long
 * as `quiet`: a wait that this rank's progress ends is shorter. */
static DPARI_COLD int dpari_pt_crossed(const dpari_points *x, int32_t i, dpari_pt_suspect *q)
{
    const dpari_pt_peer *p = &x->peer[i];
    const double now = dpari_os_now(), timeout = x->head.comm->timeout_s;
    const double quiet = dpari_quiet(timeout > 0.0 ? timeout : 4.0);
    int64_t in = 0;
    if ((int64_t)(DPARI_LOAD(&p->line->ready) >> 16) >= x->count ||
        !dpari_group_crossed(dpari_group_of(x->node), p->world, quiet, &in)) {
        q->crossed = 0.0;
    } else if (!(q->crossed > 0.0) || q->in != in) {
        q->crossed = now;
        q->in = in;
    }
    return q->crossed > 0.0 && now - q->crossed > quiet;
}

/* Is the deadline over, and is it known who does not come? */
static DPARI_COLD int dpari_pt_late(const dpari_points *x, double began, int32_t i,
                                    dpari_pt_suspect *q)
{
    const double timeout = x->head.comm->timeout_s, quiet = dpari_quiet(timeout);
    const double now = dpari_os_now();
    int32_t who;
    if (!(timeout > 0.0) || now - began < timeout - quiet) {
        return 0;
    }
    who = dpari_group_culprit(dpari_group_of(x->node), x->peer[i].world, quiet, &q->links);
    if (who != q->who || q->since <= 0.0) {
        q->who = who;
        q->since = now;
    }
    return now - began > timeout && (now - q->since > quiet || now - began > timeout + 4.0 * quiet);
}

static DPARI_COLD dpar_status dpari_pt_await_slowly(dpari_points *x, int32_t i,
                                                    const uint64_t *word, uint64_t value)
{
    const double began = dpari_pt_clock(x);
    dpari_wait t;
    dpari_pt_suspect q = {0, 0, 0.0, 0, 0.0};
    dpar_status st = DPAR_OK;
    int32_t turn = 0, resumed = 0;
    dpari_zero(&t, sizeof t);
    while (DPARI_LOAD(word) < value && st == DPAR_OK) {
        const dpar_status passed = dpari_wait_turn(x->world, &t, x->peer[i].world);
        if (passed == DPAR_MORE || ++turn % DPARI_PT_PROGRESS == 0) {
            dpari_pt_progress(x);
        }
        if (t.resumed != resumed) { /* what was suspected of the others before is too old */
            resumed = t.resumed;
            dpari_zero(&q, sizeof q);
        }
        if (passed == DPAR_MORE && DPARI_LOAD(word) < value) {
            dpari_wait_says(x->world, x->peer[i].world);
            st = dpari_pt_look(x, i);
            st = st == DPAR_OK && dpari_pt_crossed(x, i, &q) ? DPAR_E_MISMATCH : st;
            st = st == DPAR_OK && dpari_pt_late(x, t.began, i, &q) ? DPAR_E_TIMEOUT : st;
            if (st != DPAR_OK && DPARI_LOAD(word) >= value) {
                st = DPAR_OK; /* its last words */
            }
        }
    }
    dpari_wait_end(x->world, &t);
    dpari_pt_count(x, DPARI_PT_WAITING, began);
    return st == DPAR_OK || dpari_pt_broken(x) != DPAR_OK
               ? st
               : dpari_pt_fail(x, st, i, &q, dpari_os_now() - t.began);
}

DPARI_API dpar_status dpari_pt_await(dpari_points *x, int32_t i, const uint64_t *word,
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
    st = dpari_pt_look(x, i);
    if (st == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        st = dpari_pt_fail(x, st, i, NULL, 0.0);
    }
    return st == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : st;
}
