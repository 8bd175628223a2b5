/* SPDX-License-Identifier: MIT-0 */
/* What ranks tell each other over the side channel.
 *
 * A rank that waits for long sends a NOTE about the operation in which it waits. Rank 0 then asks
 * all ranks for theirs (ASK). If two ranks wait in different calls with the same number, it breaks
 * the communicator on all ranks (BROKEN). At its deadline, a rank asks rank 0 for the notes of all
 * ranks (WANT, which END answers last), so that its message names the missing ranks. A rank whose
 * communicator breaks for another reason reports that as BROKEN, which rank 0 passes on, and rank 0
 * reports a rank whose connection was lost as DEAD. */
#include "side_messages.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/engine.h"
#include "../comm/os.h"
#include "../comm/record.h"
#include "failure.h"
#include "position.h"
#include "socket.h"
#include "state.h"

DPARI_INTERNAL void dpari_nccl_message_init(const dpari_nccl_world *world,
                                            dpari_nccl_message *message, int32_t kind)
{
    memset(message, 0, sizeof *message);
    message->magic = DPARI_NCCL_MAGIC;
    message->job = world->side.card.job;
    message->kind = kind;
    message->rank = world->rank;
    message->size = world->size;
}

DPARI_INTERNAL void dpari_nccl_link_lost(dpari_nccl_link *l)
{
    const int32_t knocked = l->state == DPARI_NCCL_KNOCKS;
    (void)close(l->fd);
    l->fd = -1;
    l->state = knocked ? l->before : DPARI_NCCL_LOST;
    if (!knocked || l->before == DPARI_NCCL_AWAY) {
        l->lost = dpari_os_now();
    }
}

/* Sends a message over a link. The link counts as lost if the message is not sent within a second.
 * If the other end has closed the link, it is lost only once everything that arrived before has
 * been read, because that may contain the reason (dpari_nccl_listen_to). */
static void dpari_nccl_link_send(dpari_nccl_link *l, const dpari_nccl_message *message)
{
    if (l->fd >= 0 && l->state == DPARI_NCCL_HERE &&
        dpari_nccl_write(l->fd, message, sizeof *message, dpari_os_now() + 1) != 0 &&
        errno != EPIPE && errno != ECONNRESET) {
        dpari_nccl_link_lost(l);
    }
}

DPARI_INTERNAL void dpari_nccl_tell(dpari_nccl_world *world, const dpari_nccl_message *message,
                                    int32_t but)
{
    int32_t r;
    for (r = 0; r < world->side.links; r++) {
        if (r != but) {
            dpari_nccl_link_send(&world->side.link[r], message);
        }
    }
}

/* On rank 0: breaks the communicator of rank's note if another rank waits in a different call as
 * the collective with the same number. */
static void dpari_nccl_compare(dpari_nccl_world *world, int32_t rank)
{
    const dpari_nccl_note *note = world->side.note;
    const dpari_record *a = &note[rank].last;
    dpari_nccl_message m;
    dpari_nccl_ctx *context;
    dpar_text t;
    int32_t r;
    for (r = 0; r < world->size; r++) {
        const dpari_record *b = &note[r].last;
        if (r == rank || !world->side.known[r] || note[rank].comm != note[r].comm ||
            a->sequence != b->sequence || a->state != DPAR_MORE || b->state != DPAR_MORE ||
            dpari_kind_sends(a->kind) || dpari_kind_sends(b->kind) ||
            dpari_nccl_same(&note[rank], &note[r])) {
            continue;
        }
        dpari_nccl_message_init(world, &m, DPARI_NCCL_BROKEN);
        m.status = DPAR_E_MISMATCH;
        m.note.comm = note[rank].comm;
        dpar_text_init(&t, m.text, sizeof m.text);
        dpari_text_say(&t, "rank %d is in ", r < rank ? r : rank);
        dpari_record_text(&t, r < rank ? b : a);
        dpari_text_say(&t, ", rank %d in ", r < rank ? rank : r);
        dpari_record_text(&t, r < rank ? a : b);
        if (m.note.comm != 0) {
            dpar_text_put(&t, " (ranks of the whole job)");
        }
        dpari_nccl_tell(world, &m, -1);
        context = dpari_nccl_named(world, m.note.comm);
        if (context != NULL) {
            (void)dpari_nccl_break(context, DPAR_E_MISMATCH, m.text, 0);
        }
        return;
    }
}

static void dpari_nccl_heard(dpari_nccl_world *world, const dpari_nccl_message *message)
{
    if (message->rank >= 0 && message->rank < world->size) {
        world->side.note[message->rank] = message->note;
        world->side.known[message->rank] = 1;
    }
}

/* On rank 0: asks all ranks for their notes on a communicator in which some rank waits, at most
 * every tenth of a second. */
static void dpari_nccl_ask(dpari_nccl_world *world, uint64_t comm)
{
    dpari_nccl_message m;
    const double now = dpari_os_now();
    if (now - world->side.asked < 0.1) {
        return;
    }
    world->side.asked = now;
    dpari_nccl_message_init(world, &m, DPARI_NCCL_ASK);
    m.note.comm = comm;
    dpari_nccl_tell(world, &m, -1);
    dpari_nccl_note_own(world, comm, &world->side.note[0]);
    world->side.known[0] = 1;
}

DPARI_INTERNAL void dpari_nccl_answer(dpari_nccl_world *world, uint64_t comm)
{
    dpari_nccl_message m;
    dpari_nccl_message_init(world, &m, DPARI_NCCL_NOTE);
    dpari_nccl_note_own(world, comm, &m.note);
    if (world->rank == 0) {
        dpari_nccl_heard(world, &m);
        dpari_nccl_ask(world, comm);
        dpari_nccl_compare(world, 0);
    } else {
        dpari_nccl_tell(world, &m, -1);
    }
}

/* Sends all notes that rank 0 has to one rank. */
static void dpari_nccl_answer_all(dpari_nccl_world *world, dpari_nccl_link *l)
{
    dpari_nccl_message m;
    int32_t r;
    for (r = 0; r < world->size; r++) {
        if (world->side.known[r]) {
            dpari_nccl_message_init(world, &m, DPARI_NCCL_NOTE);
            m.rank = r;
            m.note = world->side.note[r];
            dpari_nccl_link_send(l, &m);
        }
    }
    dpari_nccl_message_init(world, &m, DPARI_NCCL_END);
    dpari_nccl_link_send(l, &m);
}

DPARI_INTERNAL void dpari_nccl_died(dpari_nccl_world *world, int32_t rank)
{
    dpari_nccl_ctx *context;
    int32_t r;
    char text[80];
    dpar_text t;
    for (context = world->comms; context != NULL; context = context->next) {
        for (r = 0; r < context->comm.size && context->member[r] != rank; r++) {
        }
        if (r < context->comm.size) {
            dpar_text_init(&t, text, sizeof text);
            dpari_text_say(&t, "rank %d is gone: its process ended, or no longer answers", r);
            (void)dpari_nccl_break(context, DPAR_E_PEER, text, 0);
        }
    }
}

/* Breaks a communicator that another rank reports as broken. Rank 0 passes the report on. */
static void dpari_nccl_hear_broken(dpari_nccl_world *world, const dpari_nccl_message *message)
{
    dpari_nccl_ctx *context = dpari_nccl_named(world, message->note.comm);
    char text[DPARI_NCCL_TEXT];
    dpar_text t;
    int32_t r;
    if (world->rank == 0) {
        dpari_nccl_tell(world, message, message->rank);
    }
    if (context == NULL) {
        return;
    }
    for (r = 0; r < context->comm.size && context->member[r] != message->rank; r++) {
    }
    dpar_text_init(&t, text, sizeof text);
    if (message->status != DPAR_E_MISMATCH) {
        dpari_text_say(&t, "rank %d says: ", r);
    }
    dpar_text_put(&t, message->text);
    (void)dpari_nccl_break(
        context, message->status < 0 ? message->status : (dpar_status)DPAR_E_PEER, text, 0);
}

DPARI_INTERNAL void dpari_nccl_obey(dpari_nccl_world *world, int32_t k, dpari_nccl_message *message)
{
    dpari_nccl_link *l = &world->side.link[k];
    message->text[sizeof message->text - 1] = 0;
    switch (message->kind) {
    case DPARI_NCCL_NOTE:
        dpari_nccl_heard(world, message);
        if (world->rank == 0) {
            if (message->note.last.state == DPAR_MORE) {
                dpari_nccl_ask(world, message->note.comm);
            }
            dpari_nccl_compare(world, message->rank);
        }
        break;
    case DPARI_NCCL_ASK: dpari_nccl_answer(world, message->note.comm); break;
    case DPARI_NCCL_WANT: dpari_nccl_answer_all(world, l); break;
    case DPARI_NCCL_END: world->side.answered = 1; break;
    case DPARI_NCCL_BROKEN: dpari_nccl_hear_broken(world, message); break;
    case DPARI_NCCL_DEAD: dpari_nccl_died(world, message->status); break;
    case DPARI_NCCL_BYE:
        l->state = DPARI_NCCL_LEFT;
        (void)close(l->fd);
        l->fd = -1;
        break;
    default: break;
    }
}
