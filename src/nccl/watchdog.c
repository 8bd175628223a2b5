/* SPDX-License-Identifier: MIT-0 */
/* Watches the operation at the head of the stream. A thread wakes up about every 50 ms, or when
 * something arrives on the side channel. It skips its turn if another thread holds the lock, so
 * that it never waits for a call of NCCL. */
#include "watchdog.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "../comm/record.h"
#include "failure.h"
#include "lent_flags.h"
#include "operation.h"
#include "position.h"
#include "settle.h"
#include "side_channel.h"
#include "side_connections.h"
#include "side_messages.h"
#include "socket.h"
#include "state.h"

/* Writes "; rank 3 has not reached it, its last call is all-gather #11 of ..." for up to 8 ranks
 * that are missing. */
static void dpari_nccl_put_missing(dpar_text *text, dpari_nccl_world *world,
                                   const dpari_nccl_slot *slot)
{
    const dpari_nccl_ctx *context = slot->ctx;
    int32_t r, n = 0;
    for (r = 0; r < context->comm.size; r++) {
        const int32_t at = context->member[r];
        const dpari_nccl_note *b = &world->side.note[at];
        const int known = world->side.known[at] && b->comm == context->name;
        if (r == context->comm.rank || (known && b->last.sequence >= slot->sequence)) {
            continue;
        }
        n++;
        if (n > 8) {
            continue;
        }
        dpari_text_say(text, "; rank %d %s", r, known ? "has not reached it" : "does not answer");
        if (known && b->last.sequence >= 0) {
            dpar_text_put(text, b->last.state == DPAR_MORE ? ", it is in " : ", its last call is ");
            dpari_record_text(text, &b->last);
        }
    }
    if (n > 8) {
        dpari_text_say(text, "; and %d more", n - 8);
    }
    if (n == 0) {
        dpar_text_put(text, "; all ranks have reached it");
    }
}

/* The deadline has passed: breaks the communicator with a message that names the missing ranks. */
static void dpari_nccl_late(dpari_nccl_world *world, dpari_nccl_slot *slot)
{
    dpari_nccl_ctx *context = slot->ctx;
    dpar_why why;
    dpar_text t;
    dpari_text_why(&t, &why);
    if (slot->meets > 0) {
        dpari_text_say(&t, "synchronising the devices of a halo exchange with rank %d",
                       slot->call.root);
        if (slot->meets > 1) {
            dpari_text_say(&t, " and %d more", slot->meets - 1);
        }
        dpar_text_put(&t, ",");
    } else {
        dpari_operation_text(&t, slot->call.kind, slot->sequence, slot->call.type, slot->call.count,
                             slot->call.root, slot->call.tag);
    }
    dpari_text_print(&t, " on rank %d of %d: not finished after %.3g s", context->comm.rank,
                     context->comm.size, context->comm.timeout_s);
    if (world->side.links == 0) {
        dpar_text_put(&t, "; without a side channel the missing ranks are not known");
    } else if (!slot->messages) {
        dpari_nccl_put_missing(&t, world, slot);
    }
    (void)dpari_nccl_break(context, DPAR_E_TIMEOUT, why.text, 1);
}

/* Checks the deadline of the operation at the head of the stream (dpari_nccl_head), once its
 * `ready` event is reached, after which only other ranks can delay it. After a quarter of the
 * deadline, at most 1 s, informs rank 0. At the deadline, first gets the notes of all ranks from
 * rank 0, for up to a second, because the message names the missing ranks. */
static void dpari_nccl_look_at_head(dpari_nccl_world *world)
{
    dpari_nccl_slot *slot = dpari_nccl_head(world);
    const double now = dpari_os_now();
    double limit, age;
    dpari_nccl_message m;
    if (slot == NULL || slot->ctx == NULL || slot->ctx->comm.status < 0) {
        return;
    }
    if (!slot->capture && (world->flying == slot || world->flying == NULL) &&
        cudaEventQuery(slot->ready) != cudaSuccess) {
        slot->since = -1;
        return;
    }
    if (slot->since < 0) {
        slot->since = now;
        world->looked = now;
        return;
    }
    slot->since += dpari_os_suspended(&world->looked, now);
    limit = slot->ctx->comm.timeout_s;
    age = now - slot->since;
    if (world->side.links > 0 && age > (limit > 0 && limit < 4 ? limit / 4 : 1.0) &&
        (!slot->told || age > slot->told * 2.0)) {
        slot->told = (int32_t)age + 1;
        dpari_nccl_answer(world, slot->ctx->name);
    }
    if (limit <= 0 || age < limit) {
        return;
    }
    if (world->rank != 0 && world->side.links > 0 && world->side.link[0].state == DPARI_NCCL_HERE &&
        !world->side.answered && age < limit + 1) {
        if (!world->side.wanting) {
            dpari_nccl_message_init(world, &m, DPARI_NCCL_WANT);
            dpari_nccl_tell(world, &m, -1);
            world->side.wanting = 1;
        }
        return;
    }
    world->side.answered = world->side.wanting = 0;
    dpari_nccl_late(world, slot);
}

static void dpari_nccl_look(dpari_nccl_world *world)
{
    dpari_nccl_ctx *context;
    dpari_nccl_free_waits(world);
    for (context = world->comms; context != NULL; context = context->next) {
        ncclResult_t said = ncclSuccess;
        if (context->nccl != NULL && context->comm.status >= 0 &&
            world->api.CommGetAsyncError(context->nccl, &said) == ncclSuccess &&
            said != ncclSuccess && said != ncclInProgress && !dpari_nccl_unnamed(context, said)) {
            (void)dpari_nccl_failed(context, "an operation in progress",
                                    said == ncclInvalidArgument ? ncclInternalError : said);
        }
    }
    dpari_nccl_reap(world);
    dpari_nccl_look_at_head(world);
}

static void *dpari_nccl_watch(void *arg)
{
    dpari_nccl_world *world = (dpari_nccl_world *)arg;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    (void)cudaSetDevice(world->device);
    (void)cudaThreadExchangeStreamCaptureMode(&mode); /* queries must not end another's capture */
    while (!DPARI_LOAD(&world->ending)) {
        dpari_nccl_side_wait(world, DPARI_LOAD(&world->frees) ? 1e-3 : world->period);
        /* A thread that is inside a call of NCCL holds the lock, and checks the deadline itself. */
        if (pthread_mutex_trylock(&world->lock) == 0) {
            dpari_nccl_look(world);
            dpari_nccl_side_turn(world);
            dpari_nccl_unlock(world);
        } else {
            dpari_os_sleep(1e-4);
        }
    }
    return NULL;
}

DPARI_INTERNAL void dpari_nccl_watchdog(dpari_nccl_world *world)
{
    if (world->side.card.addresses == 0) { /* also with no_watchdog and with one rank: card.c */
        world->side.links = 0;             /* there is no side channel */
    }
    if (world->options.no_watchdog) {
        return;
    }
    if (world->rank != 0 && world->side.links > 0 && world->side.link[0].state == DPARI_NCCL_AWAY) {
        dpari_nccl_link *l = &world->side.link[0];
        const double until = dpari_os_now() + 1;
        if (dpari_nccl_reach(world, l, until) == 0) {
            l->state = DPARI_NCCL_KNOCKS; /* if the wait below ends first, the watchdog continues */
        }
        while (l->state == DPARI_NCCL_KNOCKS && dpari_os_poll(l->fd, POLLIN, until)) {
            dpari_nccl_listen_to(world, 0);
        }
    }
    world->watched = dpari_os_thread(&world->thread, dpari_nccl_watch, world) == 0;
}
