/* SPDX-License-Identifier: MIT-0 */
/* Runs exchanges: begin, test and end, forward and adjoint.
 *
 * halo_plan.h has the protocol. An exchange is a sequence of stages for each step: pack, publish
 * `ready` and post messages, take what has arrived, wait for those who read this rank's arrays.
 * dpar_halo_plan_begin advances the stages as far as they go without waiting for later steps,
 * dpar_halo_plan_test does so without any wait, and dpar_halo_plan_end completes them. */
#include "halo_exchange.h"

#include "../base/inner.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/strided.h"
#include "../comm/strided_loops.h"
#include "../comm/world.h"
#include "halo_beside.h"
#include "halo_mem.h"
#include "halo_plan.h"
#include "halo_prepare.h"

/* ---- waiting for peers ------------------------------------------------------------------------
 */

static dpar_status dpari_hx_broken(const dpar_halo_plan *x)
{
    return x->c->status != DPAR_OK ? x->c->status : x->node->status;
}

/* Returns the rank in the plan's communicator of a rank of the world, or -1 if it has none. */
static int32_t dpari_hx_rank_of(const dpar_halo_plan *x, int32_t world)
{
    const dpari_group *g = dpari_group_of(x->node);
    int32_t i;
    for (i = 0; i < x->node->size && g->world_rank[i] != world; i++) {
    }
    return i == x->node->size ? -1 : x->node == x->c ? i : x->peer_of[x->c->size + i];
}

static uint64_t dpari_hx_kind(const dpar_halo_plan *x)
{
    return (uint64_t)(x->mode == DPAR_HALO_FORWARD ? 1 : 2 + x->op);
}

/* Writes which exchange a rank runs. kind: as dpari_hx_kind returns it. */
static void dpari_hx_put_kind(dpar_text *t, uint64_t kind)
{
    dpar_text_put(t, kind == 1              ? "a forward exchange"
                     : kind == 2 + DPAR_SUM ? "an adjoint (sum)"
                     : kind == 2 + DPAR_MAX ? "an adjoint (max)"
                     : kind == 2 + DPAR_MIN ? "an adjoint (min)"
                                            : "another operation");
}

/* Breaks the communicator with a message, because the peer has ended, or because the peer or the
 * rank that it waits for has not made the call. */
static DPARI_COLD dpar_status dpari_hx_fail(dpar_halo_plan *x, dpar_status status, int32_t peer,
                                            const dpari_peer_wait *q)
{
    dpari_group *g = dpari_group_of(x->node);
    const dpari_hx_peer *p = &x->peer[peer];
    dpar_why why;
    dpar_text t;
    dpar_text_init(&t, why.text, sizeof why.text);
    dpari_text_print(&t, "%s%ld of %d%s%d",
                     x->mode == DPAR_HALO_FORWARD ? "halo exchange #" : "halo adjoint #", x->count,
                     x->fields, x->fields == 1 ? " field: rank " : " fields: rank ",
                     status == DPAR_E_TIMEOUT ? dpari_hx_rank_of(x, q->who) : p->rank);
    dpari_put_place(&t, g);
    if (status == DPAR_E_PEER && dpari_rank_state(x->world, p->world) == DPARI_RANK_HERE) {
        dpar_text_put(&t, " closed the communicator or returned");
        dpari_put_failed(&t, x->world, p->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&t, x->world, p->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&t, " did not come in %.1f s; ", q->waited);
        if (q->links > 0) {
            dpari_text_print(&t, "%s%d%s", q->links > 1 ? "others wait for it, and rank " : "rank ",
                             p->rank, q->links > 1 ? " for them, which" : " waits for it, and");
        } else {
            dpar_text_put(&t, "it");
        }
        dpari_text_print(&t, " has begun exchange #%ld",
                         (int64_t)(DPARI_LOAD(&p->line[x->step[x->now].line].ready) >> 8));
    } else if (q) {
        dpari_put_crossed(&t, g, p->world, q->in);
        dpar_text_put(&t, " instead");
    } else {
        dpar_text_put(&t, " runs ");
        dpari_hx_put_kind(&t, DPARI_LOAD(&p->line[x->step[x->now].line].ready) & 255u);
        dpari_text_print(&t, ", rank %d ", x->c->rank);
        dpari_hx_put_kind(&t, dpari_hx_kind(x));
    }
    status = dpari_group_break(g, status, why.text);
    if (x->node != x->c) {
        dpar_comm_abort(x->c, status, x->node->why.text);
    }
    return status;
}

/* Breaks the communicator, because the arrays of a peer cannot be addressed here. */
static DPARI_COLD dpar_status dpari_hx_unmapped(dpar_halo_plan *x, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(x->node, ref);
    if (x->node != x->c) {
        dpar_comm_abort(x->c, status, x->node->why.text);
    }
    return status;
}

/* Advances messages and other work that is under way. */
static void dpari_hx_progress(void *exchange)
{
    dpar_halo_plan *x = (dpar_halo_plan *)exchange;
    int32_t i;
    dpari_shm_progress_all(x->node);
    if (x->node != x->c) {
        for (i = 0; i < x->messages; i++) {
            (void)dpar_test(&x->work[i]);
        }
        (void)x->c->engine.progress(x->c, 0);
    }
}

/* The time for the plan's timers, or 0 if it keeps none. */
static double dpari_hx_clock(const dpar_halo_plan *x)
{
    return x->options.timers ? dpari_os_now() : 0.0;
}

static void dpari_hx_count(dpar_halo_plan *x, int32_t phase, double began)
{
    if (x->options.timers) {
        x->seconds[phase] += dpari_os_now() - began;
    }
}

static DPARI_COLD dpar_status dpari_hx_await_slowly(dpar_halo_plan *x, int32_t peer,
                                                    const uint64_t *word, uint64_t value)
{
    const double began = dpari_hx_clock(x);
    const dpari_hx_peer *p = &x->peer[peer];
    dpari_peer_wait q;
    dpar_status status;
    dpari_zero(&q, sizeof q);
    q.comm = x->c;
    q.group = dpari_group_of(x->node);
    q.peer = p->world;
    q.ready = &p->line[x->step[x->now].line].ready;
    q.shift = 8;
    q.count = x->count;
    q.progress = dpari_hx_progress;
    q.exchange = x;
    status = dpari_peer_await(&q, word, value);
    dpari_hx_count(x, DPARI_HX_WAITING, began);
    return status == DPAR_OK || dpari_hx_broken(x) != DPAR_OK ? status
                                                              : dpari_hx_fail(x, status, peer, &q);
}

/* Seconds between two checks that peers are alive, while tests run in this exchange or the one
 * before. A check asks the system, which takes 20 us. */
#define DPARI_HX_LOOK_EVERY 10e-3

/* Waits until *word >= value. If `wait` is 0, returns DPAR_MORE instead of waiting. */
static dpar_status dpari_hx_await(dpar_halo_plan *x, int32_t peer, const uint64_t *word,
                                  uint64_t value, int wait)
{
    double now;
    dpar_status st;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait) {
        return dpari_hx_await_slowly(x, peer, word, value);
    }
    now = dpari_os_now();
    if (now - x->looked < DPARI_HX_LOOK_EVERY) {
        return DPAR_MORE;
    }
    x->looked = now;
    st = dpari_peer_look(x->c, dpari_group_of(x->node), x->peer[peer].world);
    if (st == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        st = dpari_hx_fail(x, st, peer, NULL);
    }
    return st == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : st;
}

/* ---- one step ---------------------------------------------------------------------------------
 */

enum { DPARI_HX_TAKING, DPARI_HX_COMING, DPARI_HX_ADDING, DPARI_HX_LEAVING, DPARI_HX_FINISHED };

/* True if something is received from the peer in this mode. */
static int dpari_hx_takes(const dpari_hx_flow *w, int32_t mode)
{
    return (mode == DPAR_HALO_FORWARD ? w->boxes : w->sends) > 0;
}

/* Prefetches the cache lines where the rows of a box begin and end. */
static void dpari_hx_ask_rows(const dpar_halo_plan *x, const dpari_hx_item *it)
{
    const int64_t size = dpar_type_bytes(x->field[it->field].type);
    const int64_t step = size * it->own_step[it->row], row = it->extent[it->row] * step;
    const unsigned char *at = dpari_hx_mine(x, it);
    int64_t index[DPARI_HX_DIMS] = {0};
    int32_t d;
    do {
        dpari_stride_ask_line(at - step);
        dpari_stride_ask_line(at + row);
        for (d = 0; d < it->dims; d++) {
            if (d == it->row || (d == it->dims - 1 && it->own_step[d] == 1)) {
                continue;
            }
            at += size * it->own_step[d];
            if (++index[d] < it->extent[d]) {
                break;
            }
            at -= size * it->own_step[d] * index[d];
            index[d] = 0;
        }
    } while (d < it->dims);
}

/* Prefetches the lines at the ends of rows. Peers that read boxes in place have also read these
 * lines, which halos of other sides share. Without the prefetch, stores would wait for one line
 * after the other. Blocks of 32^3 cut along planes take a quarter less time. If there are too many
 * lines, the first are evicted before they are used: eight fields of 64^3 take 2 % less without
 * it. */
static void dpari_hx_ask(const dpar_halo_plan *x)
{
    const dpari_hx_step *last = &x->step[x->forward - 1];
    const int64_t end = last->s + last->s_items;
    int64_t k;
    for (k = 0; k < end && x->asks; k++) {
        const dpari_hx_item *it = &x->item[k];
        if (it->row >= 0) {
            dpari_hx_ask_rows(x, it);
        }
    }
}

static void dpari_hx_give(dpar_halo_plan *x, int64_t first, int64_t n)
{
    const double began = dpari_hx_clock(x);
    unsigned char *to = x->staging + dpari_hx_parity(x) * x->turn;
    int64_t k;
    for (k = first; k < first + n; k += x->item[k].given.step) {
        const dpari_hx_item *it = &x->item[k], *other = it + it->give_mate;
        if (!it->packs || it->give_mate < 0) {
            continue;
        }
        if (it->given.runs > 0) {
            dpari_stride_run_list(&it->give, x->spot + it->given.at, it->given.runs, to,
                                  x->part[it->mine]);
        } else if (it->give_mate > 0) {
            dpari_stride_run_beside(&it->give, to + it->pack_at, dpari_hx_mine(x, it), &other->give,
                                    to + other->pack_at, dpari_hx_mine(x, other));
        } else {
            dpari_stride_run(&it->give, to + it->pack_at, dpari_hx_mine(x, it));
        }
    }
    if (x->elsewhere) {
        dpari_hx_move(x, first, n, 0);
    }
    dpari_hx_count(x, DPARI_HX_PACKING, began);
}

static void dpari_hx_take(dpar_halo_plan *x, int64_t first, int64_t n)
{
    const double began = dpari_hx_clock(x);
    int64_t k;
    for (k = first; k < first + n; k += x->item[k].taken.step) {
        const dpari_hx_item *it = &x->item[k], *other = it + it->take_mate;
        if (it->take_mate < 0) {
            continue;
        }
        if (it->taken.runs > 0) {
            dpari_stride_run_list(&it->take, x->spot + it->taken.at, it->taken.runs,
                                  x->part[it->mine], dpari_hx_base(x, it));
        } else if (it->take_mate > 0) {
            dpari_stride_run_beside(&it->take, dpari_hx_mine(x, it), dpari_hx_from(x, it),
                                    &other->take, dpari_hx_mine(x, other), dpari_hx_from(x, other));
        } else {
            dpari_stride_run(&it->take, dpari_hx_mine(x, it), dpari_hx_from(x, it));
        }
    }
    dpari_hx_count(x, DPARI_HX_COPYING, began);
}

/* Takes all boxes of a step into memory that the CPU does not reach, in one batch and therefore one
 * launch, once the last of them has arrived. */
static void dpari_hx_take_elsewhere(dpar_halo_plan *x, const dpari_hx_step *p)
{
    const double began = dpari_hx_clock(x);
    if (x->mode == DPAR_HALO_FORWARD) {
        dpari_hx_move(x, p->r, p->r_items, 1);
    } else {
        dpari_hx_move(x, p->s, p->s_items, 1);
    }
    dpari_hx_count(x, DPARI_HX_COPYING, began);
}

/* Synchronizes the streams of devices that reach each other's memory: without a work before this
 * rank packs, and then as one more message, the last one. */
static dpar_status dpari_hx_meet_near(dpar_halo_plan *x, dpar_work *work)
{
    dpar_status st = DPAR_OK;
    if (x->reached > 0) {
        st = x->c->engine.sync_peers(x->c, x->memory, x->peer_of + x->c->size, x->reached, work);
        if (work) {
            x->messages += st == DPAR_OK;
        } else if (st >= 0) {
            x->part_now = st;
            st = DPAR_OK;
        }
    }
    return st;
}

/* Lists the receives and then the sends of a step. */
static dpar_status dpari_hx_post(dpar_halo_plan *x, int32_t s)
{
    const int mode = x->mode;
    unsigned char *from = x->staging + dpari_hx_parity(x) * x->turn;
    int32_t i, n = 0, pass;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < x->peers; i++) {
            const dpari_hx_flow *w = &x->peer[i].flow[s];
            const int64_t bytes = pass ? w->out_bytes[mode] : w->in_bytes[mode];
            dpar_call *call = &x->call[n];
            if (x->peer[i].world >= 0 || x->peer[i].reached || bytes == 0) {
                continue;
            }
            dpari_zero(call, sizeof *call);
            call->kind = pass ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call->type = DPAR_U8;
            call->root = x->peer[i].rank;
            call->tag = x->options.tag;
            call->count = bytes;
            call->in = pass ? from + w->out_at[mode] : NULL;
            call->out = pass ? NULL : x->arrivals + w->in_at[mode];
            n++;
        }
    }
    x->messages = n;
    if (n > 0) {
        const dpar_status st = dpari_batch_checked(x->c, x->call, n, x->work);
        if (st != DPAR_OK) {
            return st;
        }
    }
    return dpari_hx_meet_near(x, &x->work[n]);
}

/* Packs what other ranks get from this rank in a step, and publishes that it is ready. */
static dpar_status dpari_hx_offer(dpar_halo_plan *x, int32_t s)
{
    const dpari_hx_step *p = &x->step[s];
    dpar_status st = DPAR_OK;
    int32_t i;
    x->now = s;
    st = dpari_hx_meet_near(x, NULL);
    for (i = 0; i < x->peers && st == DPAR_OK; i++) {
        dpari_hx_peer *peer = &x->peer[i];
        dpari_hx_flow *w = &peer->flow[s];
        w->taken = peer->world < 0 || !dpari_hx_takes(w, x->mode);
        if (peer->world >= 0 && x->count > 2 && w->packed) {
            st = dpari_hx_await(x, i, &peer->line[p->line].done, (uint64_t)x->count - 2, 1);
        }
    }
    if (st != DPAR_OK) {
        return st;
    }
    if (x->mode == DPAR_HALO_FORWARD) {
        dpari_hx_give(x, p->s, p->s_items);
    } else {
        dpari_hx_give(x, p->r, p->r_items);
    }
    st = x->elsewhere ? dpari_hx_settle(x) : st;
    if (st != DPAR_OK) {
        return st;
    }
    if (p->meets) {
        dpari_publish(x->world, &x->line[p->line].ready,
                      (uint64_t)x->count << 8 | dpari_hx_kind(x));
    }
    return dpari_hx_post(x, s);
}

static dpar_status dpari_hx_begin_step(dpar_halo_plan *x, int32_t s)
{
    const dpari_hx_step *p = &x->step[s];
    const int forward = x->mode == DPAR_HALO_FORWARD;
    const int offered = forward && s == x->early && x->early > 0;
    const dpar_status st = offered ? DPAR_OK : dpari_hx_offer(x, s);
    x->stage = DPARI_HX_TAKING;
    if (st == DPAR_OK) {
        dpari_hx_take(x, forward ? p->r : p->s, forward ? p->self : p->own_first);
    }
    return st;
}

/* True if an exchange of this mode has step s. */
static int dpari_hx_has(const dpar_halo_plan *x, int32_t s)
{
    return s >= 0 && s < x->steps && (x->step[s].modes >> x->mode & 1) != 0;
}

/* Does the steps from s on that only concern this rank. x->next is then the first other step. */
static void dpari_hx_take_alone(dpar_halo_plan *x, int32_t s)
{
    const int forward = x->mode == DPAR_HALO_FORWARD;
    for (; dpari_hx_has(x, s) && x->step[s].alone; s += forward ? 1 : -1) {
        const dpari_hx_step *p = &x->step[s];
        dpari_hx_take(x, forward ? p->r : p->s, forward ? p->r_items : p->s_items);
    }
    x->next = s;
}

/* Waits until the peer is ready, checks that it runs the same exchange and reads the addresses of
 * its arrays. */
static dpar_status dpari_hx_meet(dpar_halo_plan *x, int32_t i, int32_t s, int wait)
{
    dpari_hx_peer *p = &x->peer[i];
    const dpari_hx_line *line = &p->line[x->step[s].line];
    dpar_status st = dpari_hx_await(x, i, &line->ready, (uint64_t)x->count << 8, wait);
    uint64_t word;
    int32_t f;
    if (st != DPAR_OK) {
        return st;
    }
    word = DPARI_LOAD(&line->ready);
    if (word >> 8 == (uint64_t)x->count && (word & 255u) != dpari_hx_kind(x)) {
        return dpari_hx_fail(x, DPAR_E_MISMATCH, i, NULL);
    }
    if (p->flow[s].in_direct[x->mode] > 0 && line->version != p->version) {
        for (f = 0; f < 2 * x->fields; f++) {
            p->at[f] = (const unsigned char *)dpari_at(x->world, p->refs[f]);
            if (p->refs[f] != 0 && p->at[f] == NULL) {
                return dpari_hx_unmapped(x, p->refs[f]);
            }
        }
        p->version = line->version;
    }
    return DPAR_OK;
}

/* Takes boxes from the peers that share memory, in the order in which they are ready. */
static dpar_status dpari_hx_take_shared(dpar_halo_plan *x, int32_t s, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass;
    for (pass = 0; pass < (wait ? 2 : 1); pass++) {
        all = DPAR_OK;
        for (i = 0; i < x->peers; i++) {
            dpari_hx_flow *w = &x->peer[i].flow[s];
            dpar_status st;
            if (w->taken) {
                continue;
            }
            st = dpari_hx_meet(x, i, s, pass);
            if (st == DPAR_MORE) {
                all = DPAR_MORE;
            } else if (st != DPAR_OK) {
                return st;
            } else {
                w->taken = 1;
                if (x->mode == DPAR_HALO_FORWARD) {
                    dpari_hx_take(x, w->first, w->boxes);
                }
            }
        }
        if (all == DPAR_OK) {
            break;
        }
    }
    return all;
}

static dpar_status dpari_hx_wait_message(dpar_halo_plan *x, int32_t i, int wait)
{
    const double began = dpari_hx_clock(x);
    const dpar_status st = wait ? dpar_wait(&x->work[i]) : dpar_test(&x->work[i]);
    dpari_hx_count(x, DPARI_HX_WAITING, began);
    return st;
}

/* Takes the messages. Receives were posted first, in the order of the peers. */
static dpar_status dpari_hx_take_messages(dpar_halo_plan *x, int32_t s, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, n = 0;
    for (i = 0; i < x->peers; i++) {
        dpari_hx_flow *w = &x->peer[i].flow[s];
        dpar_status st;
        if (x->peer[i].world >= 0 || x->peer[i].reached || w->in_bytes[x->mode] == 0) {
            continue;
        }
        n++;
        if (w->taken > 1) {
            continue;
        }
        st = dpari_hx_wait_message(x, n - 1, wait);
        if (st == DPAR_MORE) {
            all = DPAR_MORE;
        } else if (st != DPAR_OK) {
            return st;
        } else {
            w->taken = 2;
            if (x->mode == DPAR_HALO_FORWARD) {
                dpari_hx_take(x, w->first, w->boxes);
            }
        }
    }
    return all == DPAR_OK && x->reached > 0 ? dpari_hx_wait_message(x, x->messages - 1, wait) : all;
}

/* Waits until peers have read this rank's arrays (and have set halos to 0 that were added), and
 * until messages have been sent. */
static dpar_status dpari_hx_leave(dpar_halo_plan *x, int32_t s, int wait)
{
    dpar_status st = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->peers && x->lends[x->mode] && st == DPAR_OK; i++) {
        if (x->peer[i].world >= 0 && x->peer[i].flow[s].out_direct[x->mode] > 0) {
            st = dpari_hx_await(x, i, &x->peer[i].line[x->step[s].line].done, (uint64_t)x->count,
                                wait);
        }
    }
    for (i = 0; i < x->messages && st == DPAR_OK; i++) {
        st = dpari_hx_wait_message(x, i, wait);
    }
    return st;
}

/* Advances a step, and the steps after it that only concern this rank, as far as possible. Returns
 * DPAR_OK when they are finished. No peer reads what those steps write. */
static dpar_status dpari_hx_go(dpar_halo_plan *x, int wait)
{
    const int32_t s = x->now;
    const dpari_hx_step *p = &x->step[s];
    dpar_status st = DPAR_OK;
    if (x->stage == DPARI_HX_TAKING) {
        st = dpari_hx_take_shared(x, s, wait);
        x->stage += st == DPAR_OK;
    }
    if (x->stage == DPARI_HX_COMING && st == DPAR_OK) {
        st = x->messages > 0 ? dpari_hx_take_messages(x, s, wait) : DPAR_OK;
        x->stage += st == DPAR_OK;
    }
    if (x->stage == DPARI_HX_ADDING && st == DPAR_OK) {
        if (x->mode == DPAR_HALO_ADJOINT) {
            dpari_hx_take(x, p->s + p->own_first, p->s_items - p->own_first);
        }
        if (x->elsewhere) {
            dpari_hx_take_elsewhere(x, p);
            st = dpari_hx_settle(x);
        }
        if (st != DPAR_OK) {
            return st;
        }
        if (p->meets) {
            dpari_publish(x->world, &x->line[p->line].done, (uint64_t)x->count);
        }
        dpari_hx_take_alone(x, x->mode == DPAR_HALO_FORWARD ? s + 1 : s - 1);
        x->stage = DPARI_HX_LEAVING;
    }
    if (x->stage == DPARI_HX_LEAVING && st == DPAR_OK) {
        st = dpari_hx_leave(x, s, wait);
    }
    return st;
}

/* True if this rank has messages of steps that have not begun. */
static int dpari_hx_unposted(const dpar_halo_plan *x)
{
    const int32_t on = x->mode == DPAR_HALO_FORWARD ? 1 : -1;
    const int begun = x->stage != DPARI_HX_FINISHED && x->next == x->now;
    int32_t s = x->next + (begun ? on : 0), i;
    for (; dpari_hx_has(x, s); s += on) {
        for (i = 0; i < x->peers; i++) {
            const dpari_hx_flow *w = &x->peer[i].flow[s];
            if (x->peer[i].world < 0 && (w->in_bytes[x->mode] > 0 || w->out_bytes[x->mode] > 0)) {
                return 1;
            }
        }
    }
    return 0;
}

/* If the communicator of the node is broken, breaks the plan's too, because messages of other ranks
 * may then never arrive. */
static void dpari_hx_break_both(dpar_halo_plan *x)
{
    if (x->node->status != DPAR_OK && x->c->status == DPAR_OK) {
        dpar_comm_abort(x->c, x->node->status, x->node->why.text);
    }
}

static void dpari_hx_over(dpar_halo_plan *x)
{
    x->active = 0;
    dpari_rest_drop(x->c, x);
}

/* Ends what is under way of an exchange that has failed. */
static DPARI_COLD dpar_status dpari_hx_drop(dpar_halo_plan *x, dpar_status st)
{
    dpari_hx_break_both(x);
    if (dpari_hx_broken(x) != DPAR_OK) {
        (void)dpar_wait_all(x->work, x->messages);
    }
    if (x->elsewhere) {
        (void)dpari_hx_settle(x);
    }
    x->messages = 0;
    dpari_hx_over(x);
    return st;
}

/* Begins the step after those that have begun, waiting for them if `wait` allows it. Returns
 * DPAR_OK if it has begun, or if there is no further step. */
static dpar_status dpari_hx_on(dpar_halo_plan *x, int wait)
{
    dpar_status st = x->stage == DPARI_HX_FINISHED ? DPAR_OK : dpari_hx_go(x, wait);
    if (st == DPAR_OK && dpari_hx_has(x, x->next)) {
        st = dpari_hx_begin_step(x, x->next);
    } else if (st == DPAR_OK) {
        dpari_hx_over(x);
    }
    return st == DPAR_OK || st == DPAR_MORE ? st : dpari_hx_drop(x, st);
}

/* Posts what an exchange that began before this one still has to post. It is comm->post_pending. */
static dpar_status dpari_hx_post_rest(void *before)
{
    dpar_halo_plan *x = (dpar_halo_plan *)before;
    dpar_status st = DPAR_OK;
    while (st == DPAR_OK && x->active && dpari_hx_unposted(x)) {
        st = dpari_hx_on(x, 1);
    }
    return st;
}

static dpar_status dpari_hx_run(dpar_halo_plan *x, int wait)
{
    dpar_status st = DPAR_OK;
    while (st == DPAR_OK && x->active) {
        st = dpari_hx_on(x, wait);
    }
    return st;
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

static dpar_status dpari_hx_begin(dpar_halo_plan *x, int32_t mode, int32_t op)
{
    dpar_status st = DPAR_OK;
    if (x->world) { /* the others may have taken this rank for lost */
        st = dpari_group_broken(dpari_group_of(x->node));
    }
    st = st == DPAR_OK ? dpari_hx_broken(x) : st;
    if (st != DPAR_OK) {
        dpari_hx_break_both(x);
        return st;
    }
    if (x->active) {
        return dpari_comm_wrong(x->c, "halo exchange %ld has not ended", x->count);
    }
    st = dpari_rest_post(x->c);
    if (st != DPAR_OK) {
        return st;
    }
    if (mode == DPAR_HALO_FORWARD) {
        dpari_hx_ask(x);
    }
    x->count++;
    x->active = 1;
    x->mode = mode;
    x->op = op;
    x->messages = 0;
    if (mode == DPAR_HALO_FORWARD && x->early > 0) {
        st = dpari_hx_offer(x, x->early);
    }
    if (st == DPAR_OK) {
        dpari_hx_take_alone(x, mode == DPAR_HALO_FORWARD ? 0 : x->steps - 1);
        x->stage = DPARI_HX_FINISHED;
    }
    if (st == DPAR_OK && dpari_hx_has(x, x->next)) {
        st = dpari_hx_begin_step(x, x->next);
    }
    if (st == DPAR_OK && dpari_hx_unposted(x)) {
        dpari_rest_leave(x->c, dpari_hx_post_rest, x);
    }
    return st == DPAR_OK ? st : dpari_hx_drop(x, st);
}

DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *x)
{
    return x ? dpari_hx_begin(x, DPAR_HALO_FORWARD, DPAR_COPY) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *x, int32_t op)
{
    int32_t s, i;
    int64_t k;
    if (!x) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(x->c, "operation %d: sum, max and min are possible", op);
    }
    for (i = 0; i < x->fields; i++) {
        if (!dpari_type_can_reduce(x->field[i].type)) {
            return dpari_comm_wrong(x->c, "field %d of %s cannot be combined", i,
                                    dpar_type_name(x->field[i].type));
        }
    }
    for (s = 0; s < x->steps && op != x->prepared && !x->active; s++) {
        if (x->step[s].modes == 1 << DPAR_HALO_FORWARD) {
            continue;
        }
        for (k = 0; k < x->step[s].s_items; k++) {
            dpari_hx_prepare(x, &x->item[x->step[s].s + k], op);
        }
        for (k = 0; k < x->step[s].r_items; k++) {
            dpari_hx_item *it = &x->item[x->step[s].r + k];
            it->give.clear = it->wiper == 0 ? it->give.clear : (it + it->wiper)->take.beside == 0;
        }
        dpari_hx_gather_sends(x, &x->step[s], 1);
    }
    x->prepared = x->active ? x->prepared : op;
    return dpari_hx_begin(x, DPAR_HALO_ADJOINT, op);
}

/* Advances an exchange. If its communicator has ended, everything that was under way has ended too,
 * and nothing is touched. */
static dpar_status dpari_hx_further(dpar_halo_plan *x, int wait)
{
    if (x->active && x->c->status != DPAR_OK && dpari_ended_is(x->c)) {
        x->active = x->messages = 0;
    }
    return x->active ? dpari_hx_run(x, wait) : dpari_hx_broken(x);
}

DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *x)
{
    return x ? dpari_hx_further(x, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *x)
{
    return x ? dpari_hx_further(x, 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *x)
{
    const dpar_status st = dpar_halo_plan_begin(x);
    return st == DPAR_OK ? dpar_halo_plan_end(x) : st;
}

DPAR_API dpar_status dpar_halo_plan_reduce(dpar_halo_plan *x, int32_t op)
{
    const dpar_status st = dpar_halo_plan_reduce_begin(x, op);
    return st == DPAR_OK ? dpar_halo_plan_end(x) : st;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_free(dpar_halo_plan *x)
{
    dpar_status st;
    if (!x) {
        return DPAR_OK;
    }
    if (x->c->status != DPAR_OK && dpari_ended_is(x->c)) {
        x->active = x->messages = 0;
    }
    st = dpari_hx_broken(x);
    if (x->active && st == DPAR_OK) {
        return dpari_comm_wrong(x->c, "halo exchange %ld has not ended", x->count);
    }
    if (st == DPAR_OK) {
        st = dpar_barrier(x->c, NULL); /* peers may still read this rank's words */
    } else if (x->active) {
        st = dpari_hx_drop(
            x, st); /* because the end of the communicator would wait for its messages */
    }
    if (x->elsewhere) {
        (void)dpari_hx_settle(x); /* waits for moves that a broken exchange has begun */
        (void)dpari_hx_pin_all(x, 0);
    }
    dpar_comm_release(x->world ? x->node : x->c, x->memory);
    return dpari_object_end(st, x->owned);
}
