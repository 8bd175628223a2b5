/* SPDX-License-Identifier: MIT-0 */
/* Runs the exchanges of halos and of points: begin, test, end, forward and adjoint.
 *
 * exchange.h describes the protocol. Each step of an exchange has the same stages: offer (pack,
 * publish `ready`, post messages), take what has arrived, and leave (wait for the peers that read
 * this rank's arrays). Begin offers the first step, test advances as far as possible without
 * waiting, and end completes all steps. */
#include "exchange.h"

#include "../base/base_private.h"
#include "../comm/engine.h"
#include "../comm/flight.h"
#include "../comm/group.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/wait.h"
#include "peer_wait.h"

/* ---- planning -------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_exchange_room(dpari_exchange *x, dpari_room *room, int64_t peers,
                                              int64_t steps, int64_t nodes)
{
    x->peer = (dpari_exchange_peer *)dpari_room_take(room, peers, sizeof *x->peer);
    x->flow = (dpari_exchange_flow *)dpari_room_take(room, peers * steps, sizeof *x->flow);
    x->step = (dpari_exchange_step *)dpari_room_take(room, steps, sizeof *x->step);
    x->rank_of = (int32_t *)dpari_room_take(room, nodes, sizeof *x->rank_of);
    x->call = (dpar_call *)dpari_room_take(room, 2 * peers, sizeof *x->call);
    x->work = (dpar_work *)dpari_room_take(room, 2 * peers + 1, sizeof *x->work);
}

/* Returns the rank in x->comm of rank i of the node. */
static int32_t dpari_exchange_node_rank(const dpari_exchange *x, int32_t i)
{
    return x->node == x->comm ? i : x->rank_of[i];
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_find_node(dpari_exchange *x)
{
    const dpari_group *group = dpari_group_of(x->node);
    int32_t i, k;
    if (!x->world) {
        return DPAR_OK;
    }
    if (x->node != x->comm) {
        const dpar_status status =
            dpar_all_gather(x->node, &x->comm->rank, x->rank_of, 1, DPAR_I32, NULL);
        if (status != DPAR_OK) { /* otherwise the other nodes would wait for this one */
            dpar_comm_abort(x->comm, status, x->node->why.text);
            return status;
        }
    }
    for (i = 0; i < x->node->size; i++) {
        const int32_t rank = dpari_exchange_node_rank(x, i);
        for (k = 0; k < x->peers; k++) {
            if (x->peer[k].rank == rank) {
                x->peer[k].world = group->world_rank[i];
            }
        }
    }
    return DPAR_OK;
}

/* Describes a message. The other fields of the calls stay 0. */
static void dpari_exchange_call(const dpari_exchange *x, dpar_call *call, int32_t i, int sends,
                                int32_t type, int64_t count, void *at)
{
    call->kind = sends ? DPAR_CALL_SEND : DPAR_CALL_RECV;
    call->type = type;
    call->root = x->peer[i].rank;
    call->tag = x->tag;
    call->count = count;
    call->in = sends ? at : NULL;
    call->out = sends ? NULL : at;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_records(const dpari_exchange *x,
                                                        const int64_t *mine, int64_t *theirs,
                                                        int64_t words)
{
    dpar_status status;
    int32_t i, n = 0, pass;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < x->peers; i++) {
            if (i == x->self) {
                continue;
            }
            dpari_exchange_call(x, &x->call[n++], i, pass, DPAR_I64, words,
                                pass ? (void *)(uintptr_t)(mine + i * words) : theirs + i * words);
        }
    }
    status = dpar_batch(x->comm, x->call, n, x->work);
    return status == DPAR_OK ? dpar_wait_all(x->work, n) : status;
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Returns the status of the communicators: DPAR_OK unless one of them is broken. */
static dpar_status dpari_exchange_broken(const dpari_exchange *x)
{
    return x->comm->status != DPAR_OK ? x->comm->status : x->node->status;
}

/* Breaks the communicators with a status and a message. Returns the status that counts. */
static DPARI_COLD dpar_status dpari_exchange_break(dpari_exchange *x, dpar_status status,
                                                   const char *text)
{
    status = dpari_group_break(dpari_group_of(x->node), status, text);
    if (x->node != x->comm) {
        dpar_comm_abort(x->comm, status, x->node->why.text);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_unmapped(dpari_exchange *x, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(dpari_group_of(x->node), NULL, ref);
    if (x->node != x->comm) {
        dpar_comm_abort(x->comm, status, x->node->why.text);
    }
    return status;
}

/* Breaks the communicator if that of the node is broken, because messages of other nodes may then
 * never arrive. */
static void dpari_exchange_break_both(dpari_exchange *x)
{
    if (x->node->status != DPAR_OK && x->comm->status == DPAR_OK) {
        dpar_comm_abort(x->comm, x->node->status, x->node->why.text);
    }
}

/* Returns the rank in x->comm of a rank of the world, or -1 if it has none. */
static int32_t dpari_exchange_rank_of(const dpari_exchange *x, int32_t world)
{
    const dpari_group *group = dpari_group_of(x->node);
    int32_t i;
    for (i = 0; i < x->node->size; i++) {
        if (group->world_rank[i] == world) {
            return dpari_exchange_node_rank(x, i);
        }
    }
    return -1;
}

/* Returns the word `ready` of peer i for the step in progress. */
static const uint64_t *dpari_exchange_ready(const dpari_exchange *x, int32_t i)
{
    return &x->peer[i].line[x->step[x->now].line].ready;
}

/* Appends a description of a kind of exchange to a message. */
static void dpari_exchange_put_kind(dpar_text *text, uint64_t kind)
{
    static const char name[4][20] = {"a forward exchange", "an adjoint (sum)", "an adjoint (max)",
                                     "an adjoint (min)"};
    dpar_text_put(text, name[kind & DPARI_EXCHANGE_OP]);
}

/* Breaks the communicators with a message: peer i has ended, it or the rank that it waits for has
 * not made the call, or it runs another exchange. word: `ready` of peer i, as it was read. wait:
 * the wait that failed, or NULL if none did. */
static DPARI_COLD dpar_status dpari_exchange_fail(dpari_exchange *x, dpar_status status, int32_t i,
                                                  uint64_t word, const dpari_peer_wait *wait)
{
    const dpari_group *group = dpari_group_of(x->node);
    const dpari_exchange_peer *peer = &x->peer[i];
    dpar_why why;
    dpar_text text;
    dpari_text_why(&text, &why);
    dpari_text_print(&text, "%s %s #%ld of %d %s%s: rank ", x->name,
                     x->mode == DPARI_EXCHANGE_FORWARD ? "exchange" : "adjoint", x->count, x->items,
                     x->item, x->items == 1 ? "" : "s");
    dpari_text_int(&text,
                   status == DPAR_E_TIMEOUT ? dpari_exchange_rank_of(x, wait->who) : peer->rank);
    dpari_put_place(&text, group);
    if (status == DPAR_E_PEER && dpari_rank_state(x->world, peer->world) == DPARI_RANK_HERE) {
        dpar_text_put(&text, " closed the communicator or returned");
        dpari_put_failed(&text, x->world, peer->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&text, x->world, peer->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&text, " did not arrive within %.1f s; ", wait->waited);
        if (wait->links > 0) {
            dpari_text_print(&text, "rank %d waits for %s, and", peer->rank,
                             wait->links > 1 ? "others that wait for it" : "it");
        } else {
            dpar_text_put(&text, "it");
        }
        dpari_text_print(&text, " has begun exchange #%ld", (int64_t)(word >> 16));
    } else if (wait) {
        dpari_put_crossed(&text, group, peer->world, wait->in);
        dpar_text_put(&text, " instead");
    } else {
        dpar_text_put(&text, " runs ");
        dpari_exchange_put_kind(&text, word);
        dpari_text_print(&text, ", rank %d ", x->comm->rank);
        dpari_exchange_put_kind(&text, x->kind);
        if (((word ^ x->kind) & DPARI_EXCHANGE_OP) == 0) {
            dpari_text_print(&text, " of other %ss", x->item);
        }
    }
    return dpari_exchange_break(x, status, why.text);
}

/* ---- times ----------------------------------------------------------------------------------- */

DPARI_API DPARI_COLD void dpari_exchange_put_times(const dpari_exchange *x, dpar_text *out)
{
    const double us = x->count > 0 ? 1e6 / (double)x->count : 0.0;
    dpari_text_print(out, "packing %.2f us, copying %.2f us, waiting %.2f us",
                     x->seconds[DPARI_EXCHANGE_PACKING] * us,
                     x->seconds[DPARI_EXCHANGE_COPYING] * us,
                     x->seconds[DPARI_EXCHANGE_WAITING] * us);
}

/* ---- waiting for peers ----------------------------------------------------------------------- */

/* Values of `wait`, in addition to 0 (do not wait) and 1 (wait). */
enum {
    DPARI_EXCHANGE_PEEK = -2, /* does not wait, nor check whether the peer has failed, because a
                                 wait follows */
    DPARI_EXCHANGE_NODE = -1  /* waits for peers that share memory, but not for messages */
};

/* Seconds between two checks in a test that peers are alive. A check is a system call, which takes
 * 20 us. */
#define DPARI_EXCHANGE_LOOK_EVERY 10e-3

/* Advances messages and other work in progress, while this rank waits for a peer. */
static void dpari_exchange_progress(void *exchange)
{
    dpari_exchange *x = (dpari_exchange *)exchange;
    int32_t i;
    dpari_shm_progress_all(x->node);
    if (x->node != x->comm) {
        for (i = 0; i < x->posted; i++) {
            (void)dpar_test(&x->work[i]);
        }
        (void)x->comm->engine.progress(x->comm, 0);
    }
}

/* Waits until *word, a word of peer i, is at least `value`. Fails if the peer ends, calls another
 * operation or is late. */
static DPARI_COLD dpar_status dpari_exchange_await_slowly(dpari_exchange *x, int32_t i,
                                                          const uint64_t *word, uint64_t value)
{
    const double began = dpari_exchange_clock(x);
    dpari_peer_wait wait;
    dpar_status status;
    dpari_zero(&wait, sizeof wait);
    wait.comm = x->comm;
    wait.group = dpari_group_of(x->node);
    wait.peer = x->peer[i].world;
    wait.ready = dpari_exchange_ready(x, i);
    wait.shift = 16;
    wait.count = x->count;
    wait.progress = dpari_exchange_progress;
    wait.exchange = x;
    status = dpari_peer_await(&wait, word, value);
    dpari_exchange_time(x, DPARI_EXCHANGE_WAITING, began);
    if (status == DPAR_OK || dpari_exchange_broken(x) != DPAR_OK) {
        return status;
    }
    return dpari_exchange_fail(x, status, i, DPARI_LOAD(wait.ready), &wait);
}

/* Waits until *word, a word of peer i, is at least `value`. Returns DPAR_MORE instead of waiting
 * unless `wait` is 1. */
static dpar_status dpari_exchange_await(dpari_exchange *x, int32_t i, const uint64_t *word,
                                        uint64_t value, int wait)
{
    double now;
    dpar_status status;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait == DPARI_EXCHANGE_PEEK) {
        return DPAR_MORE;
    }
    if (wait) {
        return dpari_exchange_await_slowly(x, i, word, value);
    }
    now = dpari_os_now();
    if (now - x->looked < DPARI_EXCHANGE_LOOK_EVERY) {
        return DPAR_MORE;
    }
    x->looked = now;
    status = dpari_peer_look(x->comm, dpari_group_of(x->node), x->peer[i].world);
    if (status == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        status = dpari_exchange_fail(x, status, i, 0, NULL);
    }
    return status == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : status;
}

/* Waits until peer i has taken all values of exchange `last`. A peer that was ready for a later
 * exchange has taken them. */
static dpar_status dpari_exchange_await_peer_done(dpari_exchange *x, int32_t i, int64_t last)
{
    const dpari_exchange_peer *peer = &x->peer[i];
    if (peer->world < 0 || i == x->self || peer->seen > last) {
        return DPAR_OK;
    }
    return dpari_exchange_await(x, i, &peer->line[x->step[x->now].line].done, (uint64_t)last, 1);
}

DPARI_API dpar_status dpari_exchange_await_done(dpari_exchange *x, int64_t last)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->peers && status == DPAR_OK && last > 0; i++) {
        status = dpari_exchange_await_peer_done(x, i, last);
    }
    return status;
}

/* Waits until peer i is ready for this exchange, and checks that it runs the same one. */
static dpar_status dpari_exchange_meet(dpari_exchange *x, int32_t i, int wait)
{
    dpari_exchange_peer *peer = &x->peer[i];
    const uint64_t *ready = dpari_exchange_ready(x, i);
    const dpar_status status = dpari_exchange_await(x, i, ready, (uint64_t)x->count << 16, wait);
    const uint64_t word = DPARI_LOAD(ready);
    if (status != DPAR_OK) {
        return status;
    }
    peer->seen = (int64_t)(word >> 16);
    peer->lends = (word & DPARI_EXCHANGE_LENT) != 0 && peer->seen == x->count;
    x->lent |= peer->lends;
    if (peer->seen != x->count) { /* it is ahead, so that it lends nothing */
        return DPAR_OK;
    }
    if (((word ^ x->kind) & DPARI_EXCHANGE_KIND) != 0) {
        return dpari_exchange_fail(x, DPAR_E_MISMATCH, i, word, NULL);
    }
    return DPAR_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

/* Describes the message of step s from peer i, or to it, if there is one. */
DPARI_ALWAYS_INLINE void dpari_exchange_describe(dpari_exchange *x, int32_t s, int32_t i, int sends)
{
    const dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
    const int64_t bytes = sends ? flow->out_bytes[x->mode] : flow->in_bytes[x->mode];
    if (bytes > 0 && dpari_exchange_sends(x, i)) {
        dpari_exchange_call(x, &x->call[x->posted++], i, sends, DPAR_U8, bytes,
                            x->message(x->plan, s, i, sends));
    }
}

/* Posts the described messages, from number `first` on. */
static dpar_status dpari_exchange_post(dpari_exchange *x, int32_t first)
{
    const int32_t n = x->posted - first;
    return n > 0 ? dpari_batch_checked(x->comm, x->call + first, n, x->work + first) : DPAR_OK;
}

/* Synchronizes the streams of devices that reach each other's memory. If work is NULL, this is done
 * at once, before the rank packs; otherwise as another message, the last one. */
static dpar_status dpari_exchange_sync_near(dpari_exchange *x, dpar_work *work)
{
    dpar_status status;
    if (x->reached == 0) {
        return DPAR_OK;
    }
    status = x->comm->engine.sync_peers(x->comm, x->memory, x->rank_of, x->reached, work);
    if (work) {
        x->posted += status == DPAR_OK;
        return status;
    }
    if (status < 0) {
        return status;
    }
    x->part = status;
    return DPAR_OK;
}

/* Waits for message n if wait is 1, or tests it if wait is 0. With DPARI_EXCHANGE_PEEK or
 * _NODE it does neither. */
static dpar_status dpari_exchange_message(dpari_exchange *x, int32_t n, int wait)
{
    const double began = dpari_exchange_clock(x);
    dpar_status status;
    if (wait < 0) {
        return DPAR_MORE;
    }
    status = wait ? dpar_wait(&x->work[n]) : dpar_test(&x->work[n]);
    dpari_exchange_time(x, DPARI_EXCHANGE_WAITING, began);
    return status;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* The stages of a step. */
enum {
    DPARI_EXCHANGE_TAKING,  /* takes the values of the peers */
    DPARI_EXCHANGE_LEAVING, /* waits until peers have read this rank's arrays, and messages are
                               sent */
    DPARI_EXCHANGE_FINISHED /* no step that involves other ranks is in progress */
};

/* Publishes that the values of step s are packed. */
static void dpari_exchange_publish(dpari_exchange *x, int32_t s)
{
    const uint64_t lent = x->lends ? (uint64_t)DPARI_EXCHANGE_LENT : 0;
    if (x->step[s].meets) {
        dpari_publish(x->world, &x->line[x->step[s].line].ready,
                      (uint64_t)x->count << 16 | x->kind | lent);
    }
}

/* Packs and publishes the values of step s, after the peers have taken those that this turn held
 * before, and posts its messages. */
static dpar_status dpari_exchange_offer(dpari_exchange *x, int32_t s)
{
    dpar_status status = dpari_exchange_sync_near(x, NULL);
    int32_t i;
    x->now = s;
    x->posted = 0;
    for (i = 0; i < x->peers && status == DPAR_OK; i++) {
        dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
        flow->taken = !flow->takes[x->mode] || x->peer[i].reached;
        if (flow->packed && x->count > 2) {
            status = dpari_exchange_await_peer_done(x, i, x->count - 2);
        }
        dpari_exchange_describe(x, s, i, 0);
    }
    if (status != DPAR_OK) {
        x->posted = 0;
        return status;
    }
    x->receives = x->posted;
    if (!x->together) {
        status = dpari_exchange_post(x, 0);
    }
    if (status == DPAR_OK && x->pack) {
        status = x->pack(x->plan, s);
    }
    if (status != DPAR_OK) {
        return status;
    }
    dpari_exchange_publish(x, s);
    for (i = 0; i < x->peers; i++) {
        dpari_exchange_describe(x, s, i, 1);
    }
    status = dpari_exchange_post(x, x->together ? 0 : x->receives);
    return status == DPAR_OK ? dpari_exchange_sync_near(x, &x->work[x->posted]) : status;
}

/* Begins a step: offers it, unless that was done at the beginning of the exchange, and takes the
 * values that this rank sends to itself. */
static dpar_status dpari_exchange_begin_step(dpari_exchange *x, int32_t s)
{
    const int offered = x->mode == DPARI_EXCHANGE_FORWARD && s == x->early && x->early > 0;
    const dpar_status status = offered ? DPAR_OK : dpari_exchange_offer(x, s);
    x->stage = DPARI_EXCHANGE_TAKING;
    if (status == DPAR_OK && x->take_own) {
        x->take_own(x->plan, s);
    }
    return status;
}

/* True if an exchange of this mode has step s. */
static int dpari_exchange_has(const dpari_exchange *x, int32_t s)
{
    return s >= 0 && s < x->steps && (x->step[s].modes >> x->mode & 1) != 0;
}

/* Returns the number of the step after step s. An adjoint takes the steps backwards. */
static int32_t dpari_exchange_after(const dpari_exchange *x, int32_t s)
{
    return x->mode == DPARI_EXCHANGE_FORWARD ? s + 1 : s - 1;
}

/* Does the steps from s on that involve only this rank. x->next is then the step after them. */
static void dpari_exchange_take_alone(dpari_exchange *x, int32_t s)
{
    while (dpari_exchange_has(x, s) && x->step[s].alone) {
        x->take_own(x->plan, s);
        s = dpari_exchange_after(x, s);
    }
    x->next = s;
}

/* Takes the values of peer i, once they are ready. message: the number of its message. */
static dpar_status dpari_exchange_take(dpari_exchange *x, int32_t s, int32_t i, int32_t message,
                                       int wait)
{
    dpar_status status = DPAR_OK;
    if (i != x->self) {
        status = x->peer[i].world >= 0 ? dpari_exchange_meet(x, i, wait)
                                       : dpari_exchange_message(x, message, wait);
    }
    return status == DPAR_OK ? x->take(x->plan, s, i) : status;
}

/* Takes the values of all peers. A forward exchange first takes those that are ready, then waits
 * for the peers that share memory, which come soon, and then for messages. An adjoint takes the
 * peers in the order of ranks, so that sums do not depend on arrival. */
static dpar_status dpari_exchange_take_peers(dpari_exchange *x, int32_t s, int wait)
{
    const int peeks = wait && x->mode == DPARI_EXCHANGE_FORWARD && x->shared > 0;
    dpar_status all = DPAR_MORE, status;
    int32_t i, pass, n;
    /* the passes are PEEK, NODE and 1, or only 1, or only 0 */
    for (pass = peeks ? DPARI_EXCHANGE_PEEK : wait; pass <= wait && all != DPAR_OK;
         pass += pass == DPARI_EXCHANGE_NODE ? 2 : 1) {
        all = DPAR_OK;
        n = 0;
        for (i = 0; i < x->peers; i++) {
            dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
            const int32_t message = n;
            n += flow->in_bytes[x->mode] > 0 && dpari_exchange_sends(x, i);
            if (flow->taken) {
                continue;
            }
            status = dpari_exchange_take(x, s, i, message, pass);
            if (status == DPAR_MORE && x->mode == DPARI_EXCHANGE_FORWARD) {
                all = DPAR_MORE;
                continue;
            }
            if (status != DPAR_OK) {
                return status;
            }
            flow->taken = 1;
        }
    }
    if (all == DPAR_OK && x->reached > 0) { /* posted by dpari_exchange_sync_near */
        return dpari_exchange_message(x, x->posted - 1, wait);
    }
    return all;
}

/* Does what follows once all values have been taken, and publishes that they have. Peers are woken
 * only if one may wait for that. */
static dpar_status dpari_exchange_taken(dpari_exchange *x, int32_t s)
{
    const dpari_exchange_step *step = &x->step[s];
    dpar_status status = x->finish ? x->finish(x->plan, s) : DPAR_OK;
    if (status == DPAR_OK && step->meets) {
        /* A peer that had timed out may have packed other values while this rank read. */
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        status = dpari_group_broken(dpari_group_of(x->node));
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (step->meets && (x->lent || x->oneway)) {
        dpari_publish(x->world, &x->line[step->line].done, (uint64_t)x->count);
    } else if (step->meets) {
        DPARI_STORE(&x->line[step->line].done, (uint64_t)x->count);
    }
    dpari_exchange_take_alone(x, dpari_exchange_after(x, s));
    return DPAR_OK;
}

/* Waits until peers have read this rank's arrays, and until messages have been sent. */
static dpar_status dpari_exchange_leave(dpari_exchange *x, int32_t s, int wait)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < x->peers && x->lends && status == DPAR_OK; i++) {
        if (x->flow[i * x->steps + s].lends[x->mode] && x->peer[i].world >= 0) {
            status = dpari_exchange_await(x, i, &x->peer[i].line[x->step[s].line].done,
                                          (uint64_t)x->count, wait);
        }
    }
    for (i = x->receives; i < x->posted && status == DPAR_OK; i++) {
        status = dpari_exchange_message(x, i, wait);
    }
    return status;
}

/* Advances the step in progress as far as possible. Returns DPAR_OK when it is finished. Before it
 * waits for the readers of this rank's arrays, it does the steps that follow and involve only this
 * rank, because no peer reads the points that these write. */
static dpar_status dpari_exchange_advance_step(dpari_exchange *x, int wait)
{
    const int32_t s = x->now;
    if (x->stage == DPARI_EXCHANGE_TAKING) {
        dpar_status status = dpari_exchange_take_peers(x, s, wait);
        if (status == DPAR_OK) {
            status = dpari_exchange_taken(x, s);
        }
        if (status != DPAR_OK) {
            return status;
        }
        x->stage = DPARI_EXCHANGE_LEAVING;
    }
    return x->stage == DPARI_EXCHANGE_LEAVING ? dpari_exchange_leave(x, s, wait) : DPAR_OK;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Marks the exchange as ended. */
static void dpari_exchange_mark_ended(dpari_exchange *x)
{
    x->active = 0;
    if (x->left) {
        x->left = 0;
        dpari_rest_drop(x->comm, x);
    }
}

/* Ends an exchange that has failed, so that nothing of it remains in progress. */
static DPARI_COLD dpar_status dpari_exchange_abandon(dpari_exchange *x, dpar_status status)
{
    dpari_exchange_break_both(x);
    if (dpari_exchange_broken(x) != DPAR_OK) {
        (void)dpar_wait_all(x->work, x->posted);
    }
    x->posted = 0;
    dpari_exchange_mark_ended(x);
    return status;
}

/* Completes the step in progress and begins the next one. If `wait` is 0, returns DPAR_MORE instead
 * of waiting. Returns DPAR_OK if the next step has begun, or if there is none. */
static dpar_status dpari_exchange_next_step(dpari_exchange *x, int wait)
{
    dpar_status status = dpari_exchange_advance_step(x, wait);
    if (status == DPAR_OK && dpari_exchange_has(x, x->next)) {
        status = dpari_exchange_begin_step(x, x->next);
    } else if (status == DPAR_OK) {
        dpari_exchange_mark_ended(x);
    }
    return status == DPAR_OK || status == DPAR_MORE ? status : dpari_exchange_abandon(x, status);
}

/* True if this rank still has to post messages, of steps that have not begun. */
static int dpari_exchange_unposted(const dpari_exchange *x)
{
    const int begun = x->stage != DPARI_EXCHANGE_FINISHED && x->next == x->now;
    int32_t s = begun ? dpari_exchange_after(x, x->next) : x->next, i;
    for (; dpari_exchange_has(x, s); s = dpari_exchange_after(x, s)) {
        for (i = 0; i < x->peers; i++) {
            const dpari_exchange_flow *flow = &x->flow[i * x->steps + s];
            if (x->peer[i].world < 0 &&
                (flow->in_bytes[x->mode] > 0 || flow->out_bytes[x->mode] > 0)) {
                return 1;
            }
        }
    }
    return 0;
}

/* Posts the messages that an exchange still has to post, before another one begins. It is
 * comm->post_pending. */
static dpar_status dpari_exchange_post_rest(void *before)
{
    dpari_exchange *x = (dpari_exchange *)before;
    dpar_status status = DPAR_OK;
    while (status == DPAR_OK && x->active && dpari_exchange_unposted(x)) {
        status = dpari_exchange_next_step(x, 1);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_is_over(const dpari_exchange *x, const char *caller)
{
    if (!x->active) {
        return DPAR_OK;
    }
    return dpari_comm_wrong(x->comm, "%s%s exchange %ld has not ended; call %s first", caller,
                            x->name, x->count, x->end);
}

DPARI_API dpar_status dpari_exchange_may_begin(dpari_exchange *x)
{
    dpar_status status = DPAR_OK;
    if (x->world) { /* the other ranks may have timed out while they waited for this one */
        status = dpari_group_broken(dpari_group_of(x->node));
    }
    if (status == DPAR_OK) {
        status = dpari_exchange_broken(x);
    }
    if (status != DPAR_OK) {
        dpari_exchange_break_both(x);
        return status;
    }
    return x->active ? dpari_exchange_is_over(x, "") : dpari_rest_post(x->comm);
}

/* Returns the bits DPARI_EXCHANGE_OP of an operation. */
static uint64_t dpari_exchange_op(int32_t op)
{
    switch (op) {
    case DPAR_SUM: return 1;
    case DPAR_MAX: return 2;
    case DPAR_MIN: return 3;
    default: return 0;
    }
}

/* Offers first what peers can take at once, then does the steps that involve only this rank, then
 * begins the first other step. */
DPARI_API dpar_status dpari_exchange_begin(dpari_exchange *x, int32_t op, uint64_t hash)
{
    const int forward = op == DPAR_COPY;
    dpar_status status = DPAR_OK;
    x->count++;
    x->active = 1;
    x->mode = forward ? DPARI_EXCHANGE_FORWARD : DPARI_EXCHANGE_ADJOINT;
    x->op = op;
    x->kind = (hash & (DPARI_EXCHANGE_KIND - DPARI_EXCHANGE_OP)) | dpari_exchange_op(op);
    x->lent = 0;
    x->posted = 0;
    if (forward && x->early > 0) {
        status = dpari_exchange_offer(x, x->early);
    }
    if (status == DPAR_OK) {
        dpari_exchange_take_alone(x, forward ? 0 : x->steps - 1);
        x->stage = DPARI_EXCHANGE_FINISHED;
    }
    if (status == DPAR_OK && dpari_exchange_has(x, x->next)) {
        status = dpari_exchange_begin_step(x, x->next);
    }
    if (status != DPAR_OK) {
        return dpari_exchange_abandon(x, status);
    }
    if (x->steps > 1 && dpari_exchange_unposted(x)) {
        x->left = 1;
        dpari_rest_leave(x->comm, dpari_exchange_post_rest, x);
    }
    return DPAR_OK;
}

/* If the communicator has been closed, only marks the exchange as ended, because its memory has
 * been freed. */
static void dpari_exchange_check_closed(dpari_exchange *x)
{
    if (x->active && x->comm->status != DPAR_OK && dpari_ended_is(x->comm)) {
        x->active = 0;
        x->posted = 0;
    }
}

DPARI_API dpar_status dpari_exchange_advance(dpari_exchange *x, int wait)
{
    dpar_status status = DPAR_OK;
    dpari_exchange_check_closed(x);
    if (!x->active) {
        return dpari_exchange_broken(x);
    }
    while (status == DPAR_OK && x->active) {
        status = dpari_exchange_next_step(x, wait);
    }
    return status;
}

DPARI_API DPARI_COLD dpar_status dpari_exchange_close(dpari_exchange *x, const char *caller,
                                                      int32_t *refused)
{
    dpar_status status;
    dpari_exchange_check_closed(x);
    status = dpari_exchange_broken(x);
    *refused = x->active && status == DPAR_OK;
    if (*refused) {
        return dpari_exchange_is_over(x, caller);
    }
    if (status == DPAR_OK) {
        return dpar_barrier(x->comm, NULL); /* peers may still read this rank's words */
    }
    if (x->active) { /* otherwise the end of the communicator would wait for its messages */
        return dpari_exchange_abandon(x, status);
    }
    return status;
}
