/* SPDX-License-Identifier: MIT-0 */
/* Packs and takes the boxes of an exchange.
 *
 * A forward exchange copies the boxes between this rank's blocks at once, and those of each peer
 * when they have arrived. An adjoint waits for all peers, and then combines the boxes of all in the
 * order of the plan. */
#include "blocks_run.h"

#include "../comm/heap.h"

/* Returns the first own point of a block of this rank. */
static unsigned char *dpari_blocks_at(const dpari_blocks_plan *plan, int32_t array, int32_t slot)
{
    return (unsigned char *)plan->array[array]->head.block[slot];
}

/* Packs boxes for peer i. */
static void dpari_blocks_pack_for(const dpari_blocks_plan *plan, int32_t i)
{
    const dpari_blocks_pair *pair = &plan->pair[i];
    unsigned char *out = plan->out + dpari_exchange_turn(&plan->x) * plan->turn + pair->out_at;
    int64_t k;
    for (k = pair->give; k < pair->give + pair->gives; k++) {
        const dpari_blocks_item *item = &plan->item[k];
        dpari_stride_run(&item->move, out + item->other_at,
                         dpari_blocks_at(plan, item->array, item->slot) + item->mine_at);
    }
}

/* Publishes the references to the arrays that peers of this node read, and packs for them. */
static dpar_status dpari_blocks_pack(void *of, int32_t s)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    uint64_t *table = plan->table + dpari_exchange_turn(&plan->x) * plan->arrays;
    int32_t i;
    (void)s;
    for (i = 0; i < plan->arrays; i++) {
        const unsigned char *memory = plan->array[i]->memory;
        table[i] = memory ? dpari_ref(plan->x.world, memory, 1) : 0;
    }
    for (i = 0; i < plan->x.peers; i++) {
        if (plan->x.peer[i].world >= 0) {
            dpari_blocks_pack_for(plan, i);
        }
    }
    return DPAR_OK;
}

/* Returns where the message from peer i arrives, or if `sends`, the address of the message to it,
 * which is packed first. */
static unsigned char *dpari_blocks_message(void *of, int32_t s, int32_t i, int sends)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    (void)s;
    if (!sends) {
        return plan->in + plan->pair[i].in_at;
    }
    dpari_blocks_pack_for(plan, i);
    return plan->out + dpari_exchange_turn(&plan->x) * plan->turn + plan->pair[i].out_at;
}

/* Takes items `first` to first + count - 1. */
static void dpari_blocks_take_items(const dpari_blocks_plan *plan, int64_t first, int64_t count)
{
    const int64_t turn = dpari_exchange_turn(&plan->x);
    int64_t k;
    for (k = first; k < first + count; k++) {
        const dpari_blocks_item *item = &plan->item[k];
        const dpari_blocks_pair *pair = item->peer >= 0 ? &plan->pair[item->peer] : NULL;
        const unsigned char *from;
        if (!pair) {
            from = dpari_blocks_at(plan, item->array, item->other);
        } else if (item->direct) {
            from = pair->base[item->array];
        } else {
            from = pair->packed ? pair->packed + turn * pair->turn : plan->in + pair->in_at;
        }
        dpari_stride_run(&item->move,
                         dpari_blocks_at(plan, item->array, item->slot) + item->mine_at,
                         from + item->other_at);
    }
}

/* Takes the boxes between this rank's blocks. An adjoint does that in dpari_blocks_finish. */
static void dpari_blocks_take_own(void *of, int32_t s)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    (void)s;
    if (plan->op == DPAR_COPY) {
        dpari_blocks_take_items(plan, plan->own, plan->owns);
    }
}

/* Finds the arrays of peer i, which is ready, and takes its boxes unless this is an adjoint. */
static dpar_status dpari_blocks_take(void *of, int32_t s, int32_t i)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    dpari_blocks_pair *pair = &plan->pair[i];
    int32_t k;
    (void)s;
    if (pair->reads) {
        const uint64_t *table = pair->table + dpari_exchange_turn(&plan->x) * plan->arrays;
        for (k = 0; k < plan->arrays; k++) {
            pair->base[k] =
                table[k] ? (const unsigned char *)dpari_at(plan->x.world, table[k]) : NULL;
            if (table[k] && !pair->base[k]) {
                return dpari_exchange_unmapped(&plan->x, table[k]);
            }
        }
    }
    if (plan->op == DPAR_COPY) {
        dpari_blocks_take_items(plan, pair->take, pair->takes);
    }
    return DPAR_OK;
}

/* Combines all boxes of an adjoint. */
static dpar_status dpari_blocks_finish(void *of, int32_t s)
{
    dpari_blocks_plan *plan = (dpari_blocks_plan *)of;
    (void)s;
    if (plan->op != DPAR_COPY) {
        dpari_blocks_take_items(plan, 0, plan->takes);
    }
    return DPAR_OK;
}

DPARI_INTERNAL void dpari_blocks_clear(const dpari_blocks_plan *plan)
{
    const uint64_t zero[2] = {0, 0};
    int64_t k;
    for (k = plan->clear; k < plan->clear + plan->clears; k++) {
        const dpari_blocks_item *item = &plan->item[k];
        dpari_stride_run(&item->move,
                         dpari_blocks_at(plan, item->array, item->slot) + item->mine_at, zero);
    }
}

DPARI_INTERNAL DPARI_COLD void dpari_blocks_set_functions(dpari_blocks_plan *plan)
{
    plan->x.plan = plan;
    plan->x.pack = plan->x.shared > 0 ? dpari_blocks_pack : NULL;
    plan->x.message = dpari_blocks_message;
    plan->x.take_own = dpari_blocks_take_own;
    plan->x.take = dpari_blocks_take;
    plan->x.finish = dpari_blocks_finish;
}
