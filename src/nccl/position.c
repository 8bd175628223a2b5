/* SPDX-License-Identifier: MIT-0 */
/* Finds out in which operation a rank is: the one at the head of the stream if it waits in it,
 * otherwise its last collective. The watchdog (watchdog.c) and the notes of the side channel
 * (side_messages.c) use it. */
#include "position.h"

#include "../base/arith.h"
#include "../comm/engine.h"
#include "../comm/record.h"
#include "state.h"

DPARI_INTERNAL dpari_nccl_ctx *dpari_nccl_named(dpari_nccl_world *world, uint64_t name)
{
    dpari_nccl_ctx *context = world->comms;
    while (context != NULL && context->name != name) {
        context = context->next;
    }
    return context;
}

DPARI_INTERNAL dpari_nccl_slot *dpari_nccl_head(const dpari_nccl_world *world)
{
    dpari_nccl_slot *slot = world->flying;
    while (slot != NULL && (slot->ctx == NULL || slot->ctx->comm.status < 0)) {
        slot = slot->next;
    }
    return slot != NULL ? slot : world->entering;
}

DPARI_INTERNAL void dpari_nccl_note_own(dpari_nccl_world *world, uint64_t name, dpari_nccl_note *n)
{
    const dpari_nccl_ctx *context = dpari_nccl_named(world, name);
    const dpari_nccl_slot *slot = dpari_nccl_head(world);
    int64_t i;
    memset(n, 0, sizeof *n);
    n->comm = name;
    n->last.sequence = -1;
    if (context == NULL) {
        return;
    }
    for (i = context->records - 1; i >= 0 && i > context->records - DPARI_RECORDS; i--) {
        if (!dpari_kind_sends(context->ring[i % DPARI_RECORDS].kind)) {
            n->last = context->ring[i % DPARI_RECORDS];
            break;
        }
    }
    n->last.sequence = context->sequence - 1;
    n->last.state = DPAR_OK;
    if (slot != NULL && slot->ctx == context && slot->since >= 0) {
        n->last = dpari_record_of(&slot->call, slot->messages ? n->last.sequence : slot->sequence);
        n->last.state = DPAR_MORE;
        n->varies = slot->call.variable_counts;
    }
}

DPARI_INTERNAL int dpari_nccl_same(const dpari_nccl_note *m, const dpari_nccl_note *n)
{
    return m->varies == n->varies && dpari_record_same(&m->last, &n->last, !m->varies);
}
