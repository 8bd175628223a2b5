/* SPDX-License-Identifier: MIT-0 */
#include "position.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/text.h"
#include "../comm/engine.h"
#include "state.h"

DPARI_INTERNAL void dpari_nccl_describe_record(dpar_text *text, const dpari_nccl_record *n)
{
    dpari_operation_text(text, n->kind, n->sequence, n->type, n->count, n->root, n->tag);
    if (dpari_tag_compared(n->tag) != n->tag) {
        return;
    }
    if (dpari_kind_reduces(n->kind)) {
        dpari_text_char(text, ' ');
        dpar_text_put(text, dpari_op_name(n->op));
    }
    if (dpari_kind_rooted(n->kind)) {
        dpar_text_put(text, " root ");
        dpari_text_int(text, n->root);
    }
    if (n->tag != 0) {
        dpar_text_put(text, " tag ");
        dpari_text_int(text, n->tag);
    }
}

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
    for (i = context->records - 1; i >= 0 && i > context->records - DPARI_NCCL_RING; i--) {
        if (!dpari_kind_sends(context->ring[i % DPARI_NCCL_RING].kind)) {
            n->last = context->ring[i % DPARI_NCCL_RING];
            break;
        }
    }
    n->last.sequence = context->sequence - 1;
    n->last.state = DPAR_OK;
    if (slot != NULL && slot->ctx == context && slot->since >= 0) {
        dpari_nccl_record_of(&slot->call, slot->messages ? n->last.sequence : slot->sequence,
                             &n->last);
    }
}

DPARI_INTERNAL int dpari_nccl_same(const dpari_nccl_record *a, const dpari_nccl_record *b)
{
    return a->kind == b->kind && a->type == b->type && a->op == b->op && a->root == b->root &&
           dpari_tag_compared(a->tag) == dpari_tag_compared(b->tag) && a->varies == b->varies &&
           (a->varies || a->count == b->count);
}
