/* SPDX-License-Identifier: MIT-0 */
/* Runs exchanges: begin, test and end, forward and adjoint.
 *
 * halo_plan.h describes the protocol. Each step of an exchange has the same stages: pack, publish
 * `ready` and post messages, take the boxes that have arrived, and wait for the peers that read
 * this rank's arrays. dpar_halo_plan_begin begins the first step, dpar_halo_plan_test advances as
 * far as possible without waiting, and dpar_halo_plan_end completes all steps. */
#include "halo_exchange.h"

#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/world.h"
#include "../host/strided.h"
#include "../host/strided_loops.h"
#include "halo_box_groups.h"
#include "halo_mem.h"
#include "halo_plan.h"
#include "halo_prepare.h"

/* ---- waiting for peers ----------------------------------------------------------------------- */

/* Returns the status of the communicators that the plan uses. */
static dpar_status dpari_hx_broken(const dpar_halo_plan *plan)
{
    return plan->comm->status != DPAR_OK ? plan->comm->status : plan->node->status;
}

/* Returns the rank in the plan's communicator of a rank of the world, or -1 if it has none. */
static int32_t dpari_hx_rank_of(const dpar_halo_plan *plan, int32_t world)
{
    const dpari_group *group = dpari_group_of(plan->node);
    int32_t i;
    for (i = 0; i < plan->node->size; i++) {
        if (group->world_rank[i] == world) {
            return plan->node == plan->comm ? i : plan->peer_of[plan->comm->size + i];
        }
    }
    return -1;
}

/* Returns the kind of exchange that this rank runs, which is published in `ready`: 1 for a forward
 * exchange, 2 + op for an adjoint. */
static uint64_t dpari_hx_kind(const dpar_halo_plan *plan)
{
    return (uint64_t)(plan->mode == DPAR_HALO_FORWARD ? 1 : 2 + plan->op);
}

/* Writes which exchange a rank runs. kind: as dpari_hx_kind returns it. */
static void dpari_hx_put_kind(dpar_text *text, uint64_t kind)
{
    const char *name = "another operation";
    switch (kind) {
    case 1: name = "a forward exchange"; break;
    case 2 + DPAR_SUM: name = "an adjoint (sum)"; break;
    case 2 + DPAR_MAX: name = "an adjoint (max)"; break;
    case 2 + DPAR_MIN: name = "an adjoint (min)"; break;
    default: break;
    }
    dpar_text_put(text, name);
}

/* Breaks the communicator with a message, because the peer has ended, or because the peer or the
 * rank that it waits for has not made the call. */
static DPARI_COLD dpar_status dpari_hx_fail(dpar_halo_plan *plan, dpar_status status,
                                            int32_t number, const dpari_peer_wait *wait)
{
    dpari_group *group = dpari_group_of(plan->node);
    const dpari_hx_peer *peer = &plan->peer[number];
    dpar_why why;
    dpar_text text;
    dpari_text_why(&text, &why);
    dpar_text_put(&text, plan->mode == DPAR_HALO_FORWARD ? "halo exchange #" : "halo adjoint #");
    dpari_text_print(&text, "%ld of %d field%s: rank ", plan->count, plan->fields,
                     plan->fields == 1 ? "" : "s");
    dpari_text_int(&text,
                   status == DPAR_E_TIMEOUT ? dpari_hx_rank_of(plan, wait->who) : peer->rank);
    dpari_put_place(&text, group);
    if (status == DPAR_E_PEER && dpari_rank_state(plan->world, peer->world) == DPARI_RANK_HERE) {
        dpar_text_put(&text, " closed the communicator or returned");
        dpari_put_failed(&text, plan->world, peer->world);
    } else if (status == DPAR_E_PEER) {
        dpari_put_ending(&text, plan->world, peer->world);
    } else if (status == DPAR_E_TIMEOUT) {
        dpari_text_print(&text, " did not arrive within %.1f s; ", wait->waited);
        if (wait->links > 0) {
            dpari_text_print(&text, "rank %d waits for %s, and", peer->rank,
                             wait->links > 1 ? "others that wait for it" : "it");
        } else {
            dpar_text_put(&text, "it");
        }
        dpari_text_print(&text, " has begun exchange #%ld",
                         (int64_t)(DPARI_LOAD(&peer->line[plan->step[plan->now].line].ready) >> 8));
    } else if (wait) {
        dpari_put_crossed(&text, group, peer->world, wait->in);
        dpar_text_put(&text, " instead");
    } else {
        dpar_text_put(&text, " runs ");
        dpari_hx_put_kind(&text, DPARI_LOAD(&peer->line[plan->step[plan->now].line].ready) & 255u);
        dpari_text_print(&text, ", rank %d ", plan->comm->rank);
        dpari_hx_put_kind(&text, dpari_hx_kind(plan));
    }
    status = dpari_group_break(group, status, why.text);
    if (plan->node != plan->comm) {
        dpar_comm_abort(plan->comm, status, plan->node->why.text);
    }
    return status;
}

/* Breaks the communicator, because the arrays of a peer cannot be mapped into this process. */
static DPARI_COLD dpar_status dpari_hx_unmapped(dpar_halo_plan *plan, uint64_t ref)
{
    const dpar_status status = dpari_group_unmapped(plan->node, ref);
    if (plan->node != plan->comm) {
        dpar_comm_abort(plan->comm, status, plan->node->why.text);
    }
    return status;
}

/* Advances messages and other work in progress, while this rank waits for a peer. */
static void dpari_hx_progress(void *exchange)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)exchange;
    int32_t i;
    dpari_shm_progress_all(plan->node);
    if (plan->node != plan->comm) {
        for (i = 0; i < plan->messages; i++) {
            (void)dpar_test(&plan->work[i]);
        }
        (void)plan->comm->engine.progress(plan->comm, 0);
    }
}

/* Returns the time if the plan has timers, otherwise 0. */
static double dpari_hx_clock(const dpar_halo_plan *plan)
{
    return plan->options.timers ? dpari_os_now() : 0.0;
}

/* Adds the time since `began` to a phase. */
static void dpari_hx_count(dpar_halo_plan *plan, int32_t phase, double began)
{
    if (plan->options.timers) {
        plan->seconds[phase] += dpari_os_now() - began;
    }
}

/* Waits until *word, a word of a peer, is at least `value`. Fails if the peer ends, calls another
 * operation or is late. */
static DPARI_COLD dpar_status dpari_hx_await_slowly(dpar_halo_plan *plan, int32_t number,
                                                    const uint64_t *word, uint64_t value)
{
    const double began = dpari_hx_clock(plan);
    const dpari_hx_peer *peer = &plan->peer[number];
    dpari_peer_wait wait;
    dpar_status status;
    dpari_zero(&wait, sizeof wait);
    wait.comm = plan->comm;
    wait.group = dpari_group_of(plan->node);
    wait.peer = peer->world;
    wait.ready = &peer->line[plan->step[plan->now].line].ready;
    wait.shift = 8;
    wait.count = plan->count;
    wait.progress = dpari_hx_progress;
    wait.exchange = plan;
    status = dpari_peer_await(&wait, word, value);
    dpari_hx_count(plan, DPARI_HX_WAITING, began);
    if (status == DPAR_OK || dpari_hx_broken(plan) != DPAR_OK) {
        return status;
    }
    return dpari_hx_fail(plan, status, number, &wait);
}

/* Seconds between two checks in dpar_halo_plan_test that peers are alive. A check is a system call,
 * which takes 20 us. */
#define DPARI_HX_LOOK_EVERY 10e-3

/* Waits until *word is at least `value`. If `wait` is 0, returns DPAR_MORE instead of waiting. */
static dpar_status dpari_hx_await(dpar_halo_plan *plan, int32_t peer, const uint64_t *word,
                                  uint64_t value, int wait)
{
    double now;
    dpar_status status;
    if (DPARI_LOAD(word) >= value) {
        return DPAR_OK;
    }
    if (wait) {
        return dpari_hx_await_slowly(plan, peer, word, value);
    }
    now = dpari_os_now();
    if (now - plan->looked < DPARI_HX_LOOK_EVERY) {
        return DPAR_MORE;
    }
    plan->looked = now;
    status = dpari_peer_look(plan->comm, dpari_group_of(plan->node), plan->peer[peer].world);
    if (status == DPAR_E_PEER && DPARI_LOAD(word) < value) {
        status = dpari_hx_fail(plan, status, peer, NULL);
    }
    return status == DPAR_OK || DPARI_LOAD(word) >= value ? DPAR_MORE : status;
}

/* ---- one step -------------------------------------------------------------------------------- */

/* The stages of a step (dpar_halo_plan.stage). */
enum {
    DPARI_HX_TAKING,  /* takes boxes from peers that share memory */
    DPARI_HX_COMING,  /* takes messages */
    DPARI_HX_ADDING,  /* adjoint: adds boxes in the order of S */
    DPARI_HX_LEAVING, /* waits until peers have read this rank's arrays, and messages are sent */
    DPARI_HX_FINISHED /* no step that involves other ranks is in progress */
};

/* True if something is received from the peer in this mode. */
static int dpari_hx_takes(const dpari_hx_flow *flow, int32_t mode)
{
    return (mode == DPAR_HALO_FORWARD ? flow->boxes : flow->sends) > 0;
}

/* Prefetches the cache lines where the rows of a box begin and end. */
static void dpari_hx_ask_rows(const dpar_halo_plan *plan, const dpari_hx_item *item)
{
    const int64_t size = dpar_type_bytes(plan->field[item->field].type);
    const int64_t step = size * item->own_step[item->row], row = item->extent[item->row] * step;
    const unsigned char *at = dpari_hx_mine(plan, item);
    int64_t index[DPARI_HX_DIMS] = {0};
    int32_t d;
    do {
        dpari_stride_ask_line(at - step);
        dpari_stride_ask_line(at + row);
        for (d = 0; d < item->dims; d++) {
            if (d == item->row || (d == item->dims - 1 && item->own_step[d] == 1)) {
                continue;
            }
            at += size * item->own_step[d];
            if (++index[d] < item->extent[d]) {
                break;
            }
            at -= size * item->own_step[d] * index[d];
            index[d] = 0;
        }
    } while (d < item->dims);
}

/* Prefetches the lines at the ends of rows. Peers that read boxes in place have also read these
 * lines, in which halos of other sides are written. Without the prefetch, stores would wait for one
 * line after the other. Blocks of 32^3 cut along planes take a quarter less time with it. If there
 * are too many lines, the first are evicted before they are used: eight fields of 64^3 take 2 %
 * less time without it. */
static void dpari_hx_ask(const dpar_halo_plan *plan)
{
    const dpari_hx_step *last = &plan->step[plan->forward - 1];
    const int64_t end = last->s + last->s_items;
    int64_t k;
    for (k = 0; k < end && plan->asks; k++) {
        const dpari_hx_item *item = &plan->item[k];
        if (item->row >= 0) {
            dpari_hx_ask_rows(plan, item);
        }
    }
}

/* Packs n items for other ranks into the staging memory. */
static void dpari_hx_give(dpar_halo_plan *plan, int64_t first, int64_t n)
{
    const double began = dpari_hx_clock(plan);
    unsigned char *to = plan->staging + dpari_hx_parity(plan) * plan->turn;
    int64_t k;
    for (k = first; k < first + n; k += plan->item[k].given.step) {
        const dpari_hx_item *item = &plan->item[k], *other = item + item->give_mate;
        if (!item->packs || item->give_mate < 0) {
            continue;
        }
        if (item->given.runs > 0) {
            dpari_stride_run_list(&item->give, plan->spot + item->given.at, item->given.runs, to,
                                  plan->part[item->mine]);
        } else if (item->give_mate > 0) {
            dpari_stride_run_beside(&item->give, to + item->pack_at, dpari_hx_mine(plan, item),
                                    &other->give, to + other->pack_at, dpari_hx_mine(plan, other));
        } else {
            dpari_stride_run(&item->give, to + item->pack_at, dpari_hx_mine(plan, item));
        }
    }
    if (plan->elsewhere) {
        dpari_hx_move(plan, first, n, 0);
    }
    dpari_hx_count(plan, DPARI_HX_PACKING, began);
}

/* Takes n items whose senders are ready into this rank's arrays. */
static void dpari_hx_take(dpar_halo_plan *plan, int64_t first, int64_t n)
{
    const double began = dpari_hx_clock(plan);
    int64_t k;
    for (k = first; k < first + n; k += plan->item[k].taken.step) {
        const dpari_hx_item *item = &plan->item[k], *other = item + item->take_mate;
        if (item->take_mate < 0) {
            continue;
        }
        if (item->taken.runs > 0) {
            dpari_stride_run_list(&item->take, plan->spot + item->taken.at, item->taken.runs,
                                  plan->part[item->mine], dpari_hx_base(plan, item));
        } else if (item->take_mate > 0) {
            dpari_stride_run_beside(&item->take, dpari_hx_mine(plan, item),
                                    dpari_hx_from(plan, item), &other->take,
                                    dpari_hx_mine(plan, other), dpari_hx_from(plan, other));
        } else {
            dpari_stride_run(&item->take, dpari_hx_mine(plan, item), dpari_hx_from(plan, item));
        }
    }
    dpari_hx_count(plan, DPARI_HX_COPYING, began);
}

/* Takes all boxes of a step into memory that the CPU does not reach, after the last of them has
 * arrived. This is one batch, and therefore one launch on a device. */
static void dpari_hx_take_elsewhere(dpar_halo_plan *plan, const dpari_hx_step *step)
{
    const double began = dpari_hx_clock(plan);
    if (plan->mode == DPAR_HALO_FORWARD) {
        dpari_hx_move(plan, step->r, step->r_items, 1);
    } else {
        dpari_hx_move(plan, step->s, step->s_items, 1);
    }
    dpari_hx_count(plan, DPARI_HX_COPYING, began);
}

/* Synchronizes the streams of devices that reach each other's memory. If work is NULL, this is done
 * at once, before the rank packs; otherwise as another message, the last one. */
static dpar_status dpari_hx_sync_near(dpar_halo_plan *plan, dpar_work *work)
{
    dpar_status status = DPAR_OK;
    if (plan->reached > 0) {
        status = plan->comm->engine.sync_peers(
            plan->comm, plan->memory, plan->peer_of + plan->comm->size, plan->reached, work);
        if (work) {
            plan->messages += status == DPAR_OK;
        } else if (status >= 0) {
            plan->part_now = status;
            status = DPAR_OK;
        }
    }
    return status;
}

/* Posts the receives and then the sends of a step. */
static dpar_status dpari_hx_post(dpar_halo_plan *plan, int32_t s)
{
    const int mode = plan->mode;
    unsigned char *from = plan->staging + dpari_hx_parity(plan) * plan->turn;
    int32_t i, n = 0, pass;
    for (pass = 0; pass < 2; pass++) {
        for (i = 0; i < plan->peers; i++) {
            const dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const int64_t bytes = pass ? flow->out_bytes[mode] : flow->in_bytes[mode];
            dpar_call *call = &plan->call[n];
            if (plan->peer[i].world >= 0 || plan->peer[i].reached || bytes == 0) {
                continue;
            }
            dpari_zero(call, sizeof *call);
            call->kind = pass ? DPAR_CALL_SEND : DPAR_CALL_RECV;
            call->type = DPAR_U8;
            call->root = plan->peer[i].rank;
            call->tag = plan->options.tag;
            call->count = bytes;
            call->in = pass ? from + flow->out_at[mode] : NULL;
            call->out = pass ? NULL : plan->arrivals + flow->in_at[mode];
            n++;
        }
    }
    plan->messages = n;
    if (n > 0) {
        const dpar_status status = dpari_batch_checked(plan->comm, plan->call, n, plan->work);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return dpari_hx_sync_near(plan, &plan->work[n]);
}

/* Packs the boxes of a step that other ranks get, and publishes that this rank is ready. */
static dpar_status dpari_hx_offer(dpar_halo_plan *plan, int32_t s)
{
    const dpari_hx_step *step = &plan->step[s];
    dpar_status status = DPAR_OK;
    int32_t i;
    plan->now = s;
    status = dpari_hx_sync_near(plan, NULL);
    for (i = 0; i < plan->peers && status == DPAR_OK; i++) {
        dpari_hx_peer *peer = &plan->peer[i];
        dpari_hx_flow *flow = &peer->flow[s];
        flow->taken = peer->world < 0 || !dpari_hx_takes(flow, plan->mode);
        if (peer->world >= 0 && plan->count > 2 && flow->packed) {
            status =
                dpari_hx_await(plan, i, &peer->line[step->line].done, (uint64_t)plan->count - 2, 1);
        }
    }
    if (status != DPAR_OK) {
        return status;
    }
    if (plan->mode == DPAR_HALO_FORWARD) {
        dpari_hx_give(plan, step->s, step->s_items);
    } else {
        dpari_hx_give(plan, step->r, step->r_items);
    }
    status = plan->elsewhere ? dpari_hx_settle(plan) : status;
    if (status != DPAR_OK) {
        return status;
    }
    if (step->meets) {
        dpari_publish(plan->world, &plan->line[step->line].ready,
                      (uint64_t)plan->count << 8 | dpari_hx_kind(plan));
    }
    return dpari_hx_post(plan, s);
}

/* Begins a step: packs and publishes boxes, unless that was done at the beginning of the exchange
 * (plan->early), and takes the boxes that this rank sends to itself. */
static dpar_status dpari_hx_begin_step(dpar_halo_plan *plan, int32_t s)
{
    const dpari_hx_step *step = &plan->step[s];
    const int forward = plan->mode == DPAR_HALO_FORWARD;
    const int offered = forward && s == plan->early && plan->early > 0;
    const dpar_status status = offered ? DPAR_OK : dpari_hx_offer(plan, s);
    plan->stage = DPARI_HX_TAKING;
    if (status != DPAR_OK) {
        return status;
    }
    if (forward) {
        dpari_hx_take(plan, step->r, step->self);
    } else {
        dpari_hx_take(plan, step->s, step->own_first);
    }
    return DPAR_OK;
}

/* True if an exchange of this mode has step s. */
static int dpari_hx_has(const dpar_halo_plan *plan, int32_t s)
{
    return s >= 0 && s < plan->steps && (plan->step[s].modes >> plan->mode & 1) != 0;
}

/* Does the steps from s on that involve only this rank. plan->next is then the step after them. */
static void dpari_hx_take_alone(dpar_halo_plan *plan, int32_t s)
{
    while (dpari_hx_has(plan, s) && plan->step[s].alone) {
        const dpari_hx_step *step = &plan->step[s];
        if (plan->mode == DPAR_HALO_FORWARD) {
            dpari_hx_take(plan, step->r, step->r_items);
            s++;
        } else {
            dpari_hx_take(plan, step->s, step->s_items);
            s--;
        }
    }
    plan->next = s;
}

/* Waits until the peer is ready, checks that it runs the same kind of exchange, and reads the
 * addresses of its arrays if they have changed. */
static dpar_status dpari_hx_await_ready(dpar_halo_plan *plan, int32_t i, int32_t s, int wait)
{
    dpari_hx_peer *peer = &plan->peer[i];
    const dpari_hx_line *line = &peer->line[plan->step[s].line];
    dpar_status status = dpari_hx_await(plan, i, &line->ready, (uint64_t)plan->count << 8, wait);
    uint64_t word;
    int32_t f;
    if (status != DPAR_OK) {
        return status;
    }
    word = DPARI_LOAD(&line->ready);
    if (word >> 8 == (uint64_t)plan->count && (word & 255u) != dpari_hx_kind(plan)) {
        return dpari_hx_fail(plan, DPAR_E_MISMATCH, i, NULL);
    }
    if (peer->flow[s].in_direct[plan->mode] > 0 && line->version != peer->version) {
        for (f = 0; f < 2 * plan->fields; f++) {
            peer->at[f] = (const unsigned char *)dpari_at(plan->world, peer->refs[f]);
            if (peer->refs[f] != 0 && peer->at[f] == NULL) {
                return dpari_hx_unmapped(plan, peer->refs[f]);
            }
        }
        peer->version = line->version;
    }
    return DPAR_OK;
}

/* Takes boxes from the peers that share memory, in the order in which they are ready. */
static dpar_status dpari_hx_take_shared(dpar_halo_plan *plan, int32_t s, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, pass;
    for (pass = 0; pass < (wait ? 2 : 1); pass++) {
        all = DPAR_OK;
        for (i = 0; i < plan->peers; i++) {
            dpari_hx_flow *flow = &plan->peer[i].flow[s];
            dpar_status status;
            if (flow->taken) {
                continue;
            }
            status = dpari_hx_await_ready(plan, i, s, pass);
            if (status == DPAR_MORE) {
                all = DPAR_MORE;
            } else if (status != DPAR_OK) {
                return status;
            } else {
                flow->taken = 1;
                if (plan->mode == DPAR_HALO_FORWARD) {
                    dpari_hx_take(plan, flow->first, flow->boxes);
                }
            }
        }
        if (all == DPAR_OK) {
            break;
        }
    }
    return all;
}

/* Waits for message i, or tests it if `wait` is 0. */
static dpar_status dpari_hx_wait_message(dpar_halo_plan *plan, int32_t i, int wait)
{
    const double began = dpari_hx_clock(plan);
    const dpar_status status = wait ? dpar_wait(&plan->work[i]) : dpar_test(&plan->work[i]);
    dpari_hx_count(plan, DPARI_HX_WAITING, began);
    return status;
}

/* Takes the messages of a step. Message n is the n-th receive, in the order of the peers. */
static dpar_status dpari_hx_take_messages(dpar_halo_plan *plan, int32_t s, int wait)
{
    dpar_status all = DPAR_OK;
    int32_t i, n = 0;
    for (i = 0; i < plan->peers; i++) {
        dpari_hx_flow *flow = &plan->peer[i].flow[s];
        dpar_status status;
        if (plan->peer[i].world >= 0 || plan->peer[i].reached || flow->in_bytes[plan->mode] == 0) {
            continue;
        }
        n++;
        if (flow->taken > 1) {
            continue;
        }
        status = dpari_hx_wait_message(plan, n - 1, wait);
        if (status == DPAR_MORE) {
            all = DPAR_MORE;
        } else if (status != DPAR_OK) {
            return status;
        } else {
            flow->taken = 2;
            if (plan->mode == DPAR_HALO_FORWARD) {
                dpari_hx_take(plan, flow->first, flow->boxes);
            }
        }
    }
    if (all == DPAR_OK && plan->reached > 0) { /* posted by dpari_hx_sync_near */
        return dpari_hx_wait_message(plan, plan->messages - 1, wait);
    }
    return all;
}

/* Waits until peers have read this rank's arrays (and in an adjoint have set the halos that they
 * added to 0), and until messages have been sent. */
static dpar_status dpari_hx_leave(dpar_halo_plan *plan, int32_t s, int wait)
{
    dpar_status status = DPAR_OK;
    int32_t i;
    for (i = 0; i < plan->peers && plan->lends[plan->mode] && status == DPAR_OK; i++) {
        if (plan->peer[i].world >= 0 && plan->peer[i].flow[s].out_direct[plan->mode] > 0) {
            status = dpari_hx_await(plan, i, &plan->peer[i].line[plan->step[s].line].done,
                                    (uint64_t)plan->count, wait);
        }
    }
    for (i = 0; i < plan->messages && status == DPAR_OK; i++) {
        status = dpari_hx_wait_message(plan, i, wait);
    }
    return status;
}

/* Advances a step, and the steps after it that involve only this rank, as far as possible. Returns
 * DPAR_OK when they are finished. No peer reads the points that those steps write. */
static dpar_status dpari_hx_advance_step(dpar_halo_plan *plan, int wait)
{
    const int32_t s = plan->now;
    const dpari_hx_step *step = &plan->step[s];
    dpar_status status = DPAR_OK;
    if (plan->stage == DPARI_HX_TAKING) {
        status = dpari_hx_take_shared(plan, s, wait);
        plan->stage += status == DPAR_OK;
    }
    if (plan->stage == DPARI_HX_COMING && status == DPAR_OK) {
        status = plan->messages > 0 ? dpari_hx_take_messages(plan, s, wait) : DPAR_OK;
        plan->stage += status == DPAR_OK;
    }
    if (plan->stage == DPARI_HX_ADDING && status == DPAR_OK) {
        if (plan->mode == DPAR_HALO_ADJOINT) {
            dpari_hx_take(plan, step->s + step->own_first, step->s_items - step->own_first);
        }
        if (plan->elsewhere) {
            dpari_hx_take_elsewhere(plan, step);
            status = dpari_hx_settle(plan);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (step->meets) {
            dpari_publish(plan->world, &plan->line[step->line].done, (uint64_t)plan->count);
        }
        dpari_hx_take_alone(plan, plan->mode == DPAR_HALO_FORWARD ? s + 1 : s - 1);
        plan->stage = DPARI_HX_LEAVING;
    }
    if (plan->stage == DPARI_HX_LEAVING && status == DPAR_OK) {
        status = dpari_hx_leave(plan, s, wait);
    }
    return status;
}

/* True if this rank still has to post messages, of steps that have not begun. */
static int dpari_hx_unposted(const dpar_halo_plan *plan)
{
    const int32_t on = plan->mode == DPAR_HALO_FORWARD ? 1 : -1;
    const int begun = plan->stage != DPARI_HX_FINISHED && plan->next == plan->now;
    int32_t s = plan->next + (begun ? on : 0), i;
    for (; dpari_hx_has(plan, s); s += on) {
        for (i = 0; i < plan->peers; i++) {
            const dpari_hx_flow *flow = &plan->peer[i].flow[s];
            if (plan->peer[i].world < 0 &&
                (flow->in_bytes[plan->mode] > 0 || flow->out_bytes[plan->mode] > 0)) {
                return 1;
            }
        }
    }
    return 0;
}

/* Breaks the plan's communicator if that of the node is broken, because messages of other nodes may
 * then never arrive. */
static void dpari_hx_break_both(dpar_halo_plan *plan)
{
    if (plan->node->status != DPAR_OK && plan->comm->status == DPAR_OK) {
        dpar_comm_abort(plan->comm, plan->node->status, plan->node->why.text);
    }
}

/* Marks the exchange as ended. */
static void dpari_hx_mark_ended(dpar_halo_plan *plan)
{
    plan->active = 0;
    dpari_rest_drop(plan->comm, plan);
}

/* Ends an exchange that has failed, so that nothing of it remains in progress. */
static DPARI_COLD dpar_status dpari_hx_abandon(dpar_halo_plan *plan, dpar_status status)
{
    dpari_hx_break_both(plan);
    if (dpari_hx_broken(plan) != DPAR_OK) {
        (void)dpar_wait_all(plan->work, plan->messages);
    }
    if (plan->elsewhere) {
        (void)dpari_hx_settle(plan);
    }
    plan->messages = 0;
    dpari_hx_mark_ended(plan);
    return status;
}

/* Completes the step in progress and begins the next one. If `wait` is 0, returns DPAR_MORE instead
 * of waiting. Returns DPAR_OK if the next step has begun, or if there is none. */
static dpar_status dpari_hx_next_step(dpar_halo_plan *plan, int wait)
{
    dpar_status status =
        plan->stage == DPARI_HX_FINISHED ? DPAR_OK : dpari_hx_advance_step(plan, wait);
    if (status == DPAR_OK && dpari_hx_has(plan, plan->next)) {
        status = dpari_hx_begin_step(plan, plan->next);
    } else if (status == DPAR_OK) {
        dpari_hx_mark_ended(plan);
    }
    return status == DPAR_OK || status == DPAR_MORE ? status : dpari_hx_abandon(plan, status);
}

/* Posts the messages that an exchange still has to post, before another one begins. It is
 * comm->post_pending. */
static dpar_status dpari_hx_post_rest(void *before)
{
    dpar_halo_plan *plan = (dpar_halo_plan *)before;
    dpar_status status = DPAR_OK;
    while (status == DPAR_OK && plan->active && dpari_hx_unposted(plan)) {
        status = dpari_hx_next_step(plan, 1);
    }
    return status;
}

/* Advances an exchange through all its steps, as far as `wait` allows. */
static dpar_status dpari_hx_run(dpar_halo_plan *plan, int wait)
{
    dpar_status status = DPAR_OK;
    while (status == DPAR_OK && plan->active) {
        status = dpari_hx_next_step(plan, wait);
    }
    return status;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Begins an exchange: first offers the boxes that peers can take at once, then does the steps that
 * involve only this rank, then begins the first other step. */
static dpar_status dpari_hx_begin(dpar_halo_plan *plan, int32_t mode, int32_t op)
{
    dpar_status status = DPAR_OK;
    if (plan->world) { /* the other ranks may have timed out while they waited for this one */
        status = dpari_group_broken(dpari_group_of(plan->node));
    }
    if (status == DPAR_OK) {
        status = dpari_hx_broken(plan);
    }
    if (status != DPAR_OK) {
        dpari_hx_break_both(plan);
        return status;
    }
    if (plan->active) {
        return dpari_comm_wrong(plan->comm,
                                "halo exchange %ld has not ended; call dpar_halo_plan_end first",
                                plan->count);
    }
    status = dpari_rest_post(plan->comm);
    if (status != DPAR_OK) {
        return status;
    }
    if (mode == DPAR_HALO_FORWARD) {
        dpari_hx_ask(plan);
    }
    plan->count++;
    plan->active = 1;
    plan->mode = mode;
    plan->op = op;
    plan->messages = 0;
    if (mode == DPAR_HALO_FORWARD && plan->early > 0) {
        status = dpari_hx_offer(plan, plan->early);
    }
    if (status == DPAR_OK) {
        dpari_hx_take_alone(plan, mode == DPAR_HALO_FORWARD ? 0 : plan->steps - 1);
        plan->stage = DPARI_HX_FINISHED;
    }
    if (status == DPAR_OK && dpari_hx_has(plan, plan->next)) {
        status = dpari_hx_begin_step(plan, plan->next);
    }
    if (status == DPAR_OK && dpari_hx_unposted(plan)) {
        dpari_rest_leave(plan->comm, dpari_hx_post_rest, plan);
    }
    return status == DPAR_OK ? status : dpari_hx_abandon(plan, status);
}

DPAR_API dpar_status dpar_halo_plan_begin(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_begin(plan, DPAR_HALO_FORWARD, DPAR_COPY) : DPAR_E_ARG;
}

/* Prepares the items again if they are prepared for another op. */
DPAR_API dpar_status dpar_halo_plan_reduce_begin(dpar_halo_plan *plan, int32_t op)
{
    int32_t s, i;
    int64_t k;
    if (!plan) {
        return DPAR_E_ARG;
    }
    if (op != DPAR_SUM && op != DPAR_MAX && op != DPAR_MIN) {
        return dpari_comm_wrong(
            plan->comm,
            "dpar_halo_plan_reduce_begin: op is %d; it must be DPAR_SUM, DPAR_MAX or "
            "DPAR_MIN",
            op);
    }
    for (i = 0; i < plan->fields; i++) {
        if (!dpari_type_can_reduce(plan->field[i].type)) {
            return dpari_comm_wrong(
                plan->comm,
                "dpar_halo_plan_reduce_begin: field %d has type %s, which cannot be combined", i,
                dpar_type_name(plan->field[i].type));
        }
    }
    for (s = 0; s < plan->steps && op != plan->prepared && !plan->active; s++) {
        if (plan->step[s].modes == 1 << DPAR_HALO_FORWARD) {
            continue;
        }
        for (k = 0; k < plan->step[s].s_items; k++) {
            dpari_hx_prepare(plan, &plan->item[plan->step[s].s + k], op);
        }
        for (k = 0; k < plan->step[s].r_items; k++) {
            dpari_hx_item *item = &plan->item[plan->step[s].r + k];
            if (item->wiper != 0) { /* this halo becomes 0 with a sum, or when it is given */
                item->give.clear = item[item->wiper].take.beside == 0;
            }
        }
        dpari_hx_gather_sends(plan, &plan->step[s], 1);
    }
    if (!plan->active) {
        plan->prepared = op;
    }
    return dpari_hx_begin(plan, DPAR_HALO_ADJOINT, op);
}

/* Advances an exchange. If its communicator has been closed, the exchange is only marked as ended,
 * because its memory has been freed. */
static dpar_status dpari_hx_continue(dpar_halo_plan *plan, int wait)
{
    if (plan->active && plan->comm->status != DPAR_OK && dpari_ended_is(plan->comm)) {
        plan->active = plan->messages = 0;
    }
    return plan->active ? dpari_hx_run(plan, wait) : dpari_hx_broken(plan);
}

DPAR_API dpar_status dpar_halo_plan_test(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_continue(plan, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_end(dpar_halo_plan *plan)
{
    return plan ? dpari_hx_continue(plan, 1) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_halo_plan_exchange(dpar_halo_plan *plan)
{
    const dpar_status status = dpar_halo_plan_begin(plan);
    return status == DPAR_OK ? dpar_halo_plan_end(plan) : status;
}

DPAR_API dpar_status dpar_halo_plan_reduce(dpar_halo_plan *plan, int32_t op)
{
    const dpar_status status = dpar_halo_plan_reduce_begin(plan, op);
    return status == DPAR_OK ? dpar_halo_plan_end(plan) : status;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_free(dpar_halo_plan *plan)
{
    dpar_status status;
    if (!plan) {
        return DPAR_OK;
    }
    if (plan->comm->status != DPAR_OK && dpari_ended_is(plan->comm)) {
        plan->active = plan->messages = 0;
    }
    status = dpari_hx_broken(plan);
    if (plan->active && status == DPAR_OK) {
        return dpari_comm_wrong(
            plan->comm,
            "dpar_halo_plan_free: halo exchange %ld has not ended; call dpar_halo_plan_end first",
            plan->count);
    }
    if (status == DPAR_OK) {
        status = dpar_barrier(plan->comm, NULL); /* peers may still read this rank's words */
    } else if (plan->active) {
        /* otherwise the end of the communicator would wait for its messages */
        status = dpari_hx_abandon(plan, status);
    }
    if (plan->elsewhere) {
        (void)dpari_hx_settle(plan); /* waits for moves that a broken exchange has begun */
        (void)dpari_hx_pin_all(plan, 0);
    }
    dpar_comm_release(plan->world ? plan->node : plan->comm, plan->memory);
    return dpari_object_end(status, plan->owned);
}
