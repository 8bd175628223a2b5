/* SPDX-License-Identifier: MIT-0 */
/* Makes plans: lists the boxes, finds the peers, decides which boxes peers read in place, and
 * allocates the memory of packed values and messages. */
#include "blocks_plan.h"

#include "../base/type.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "../host/cpu.h"
#include "blocks_list.h"
#include "blocks_run.h"

enum {
    DPARI_BLOCKS_RUN = 64, /* bytes of the shortest rows that are read in place, as in halos */
    DPARI_BLOCKS_CROWDED = 65536, /* bytes of the smallest boxes that are read in place if there are
                                     more ranks than cores, as in halos */
    DPARI_BLOCKS_WORDS = 2        /* words that two peers send each other when they plan */
};

/* Returns the communicator whose memory the ranks of a node share. */
static dpar_comm *dpari_blocks_memory_of(const dpari_blocks_plan *plan)
{
    return plan->x.world ? plan->x.node : plan->x.comm;
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Sets the peers from the sorted boxes, and the peer of each box. With `fill` 0, only counts. */
static DPARI_COLD int32_t dpari_blocks_set_peers(dpari_blocks_plan *plan, dpari_blocks_list *list,
                                                 int fill)
{
    const int32_t me = plan->x.comm->rank;
    int32_t peers = 0, last = -1;
    int64_t k;
    for (k = 0; k < list->count; k++) {
        dpari_blocks_box *box = &list->box[list->sorted[k]];
        if (box->rank != me && box->rank != last) {
            last = box->rank;
            if (fill) {
                plan->x.peer[peers].rank = last;
                plan->x.peer[peers].world = -1;
            }
            peers++;
        }
        box->peer = box->rank == me ? -1 : peers - 1;
    }
    return peers;
}

/* Allocates the tables of a plan whose boxes are listed. The first pass counts bytes. */
static DPARI_COLD dpar_status dpari_blocks_alloc_tables(dpari_blocks_plan *plan,
                                                        dpari_blocks_list *list, dpar_why *why)
{
    const int32_t peers = dpari_blocks_set_peers(plan, list, 0);
    dpari_room room = dpari_room_of(NULL);
    dpar_status status;
    void *memory = NULL;
    int32_t pass, i;
    for (pass = 0; pass < 2; pass++) {
        const unsigned char **base;
        dpari_exchange_room(&plan->x, &room, peers, 1, plan->x.world ? plan->x.node->size : 0);
        plan->pair = (dpari_blocks_pair *)dpari_room_take(&room, peers, sizeof *plan->pair);
        plan->item = (dpari_blocks_item *)dpari_room_take(&room, list->count, sizeof *plan->item);
        plan->records = (int64_t *)dpari_room_take(&room, 2 * DPARI_BLOCKS_WORDS * (int64_t)peers,
                                                   sizeof *plan->records);
        base = (const unsigned char **)dpari_room_take(&room, (int64_t)peers * plan->arrays,
                                                       sizeof *base);
        if (pass == 0) {
            plan->tables = dpari_object_alloc(plan->x.comm, room.used + 1);
            if (!plan->tables) {
                return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for %ld bytes", room.used);
            }
            room = dpari_room_of(plan->tables);
            continue;
        }
        for (i = 0; i < peers; i++) {
            plan->pair[i].base = base + (int64_t)i * plan->arrays;
        }
    }
    plan->x.peers = peers;
    (void)dpari_blocks_set_peers(plan, list, 1);
    status =
        dpar_comm_alloc(dpari_blocks_memory_of(plan),
                        (int64_t)sizeof *plan->x.line + 2 * plan->arrays * (int64_t)8, &memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, dpari_blocks_memory_of(plan)->why.text);
    }
    plan->x.line = (dpari_exchange_line *)memory;
    plan->table = (uint64_t *)(void *)(plan->x.line + 1);
    return DPAR_OK;
}

/* Sends plan->records to the peers and receives theirs, which follow them. */
static DPARI_COLD dpar_status dpari_blocks_send_records(dpari_blocks_plan *plan)
{
    const dpar_status status = dpari_exchange_records(
        &plan->x, plan->records, plan->records + DPARI_BLOCKS_WORDS * (int64_t)plan->x.peers,
        DPARI_BLOCKS_WORDS);
    return status;
}

/* Returns the records that peer i has sent. */
static const int64_t *dpari_blocks_record_of(const dpari_blocks_plan *plan, int32_t i)
{
    return plan->records + DPARI_BLOCKS_WORDS * (int64_t)(plan->x.peers + i);
}

/* Finds the peers that share memory, by sending each one the reference to this rank's words. */
static DPARI_COLD dpar_status dpari_blocks_meet(dpari_blocks_plan *plan)
{
    dpar_status status = dpari_exchange_find_node(&plan->x);
    int32_t i;
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        plan->records[DPARI_BLOCKS_WORDS * i] =
            plan->x.world && plan->x.peer[i].world >= 0
                ? (int64_t)dpari_ref(plan->x.world, plan->x.line, 1)
                : 0;
    }
    status = dpari_blocks_send_records(plan);
    for (i = 0; i < plan->x.peers && status == DPAR_OK; i++) {
        dpari_exchange_peer *peer = &plan->x.peer[i];
        const uint64_t ref = (uint64_t)*dpari_blocks_record_of(plan, i);
        if (ref == 0 || peer->world < 0) { /* one cannot reach the other's memory */
            peer->world = -1;
            continue;
        }
        plan->x.shared++;
        peer->line = (dpari_exchange_line *)dpari_at(plan->x.world, ref);
        if (!peer->line) {
            return dpari_exchange_unmapped(&plan->x, ref);
        }
        plan->pair[i].table = (const uint64_t *)(const void *)(peer->line + 1);
    }
    return status;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Decides which boxes are read in place, and where the others are among packed values. Both ranks
 * of a box get the same results. */
static DPARI_COLD void dpari_blocks_set_places(dpari_blocks_plan *plan, dpari_blocks_list *list)
{
    const int32_t mode = plan->x.step[0].modes >> DPARI_EXCHANGE_ADJOINT;
    int64_t k, in = 0;
    int32_t i;
    for (k = 0; k < list->count; k++) {
        dpari_blocks_box *box = &list->box[list->sorted[k]];
        const dpari_blocks_shape *shape = plan->shape[box->array];
        int64_t bytes = dpar_type_bytes(shape->type), *used;
        dpari_exchange_flow *flow;
        int32_t d;
        if (box->peer < 0) {
            continue;
        }
        flow = &plan->x.flow[box->peer];
        for (d = 0; d <= shape->halo.grid.dims; d++) {
            bytes *= box->extent[d];
        }
        box->direct = plan->x.peer[box->peer].world >= 0 && !shape->attached &&
                      dpari_blocks_run(plan, box) >= DPARI_BLOCKS_RUN &&
                      (!plan->x.world->crowded || bytes >= DPARI_BLOCKS_CROWDED);
        if (box->takes) {
            flow->takes[mode] = 1;
            plan->pair[box->peer].reads |= box->direct;
        } else {
            flow->packed = 1;
            flow->lends[mode] |= box->direct;
            plan->x.lends |= box->direct;
        }
        used = box->takes ? &flow->in_bytes[mode] : &flow->out_bytes[mode];
        if (!box->direct) {
            box->packed = (*used + 15) / 16 * 16;
            *used = box->packed + bytes;
        }
    }
    for (i = 0; i < plan->x.peers; i++) {
        const dpari_exchange_flow *flow = &plan->x.flow[i];
        const int shares = plan->x.peer[i].world >= 0;
        plan->x.oneway |= shares && flow->takes[mode] != flow->packed;
        plan->pair[i].out_at = plan->turn;
        plan->pair[i].in_at = in;
        plan->turn += dpari_exchange_lines(flow->out_bytes[mode]);
        in += shares ? 0 : dpari_exchange_lines(flow->in_bytes[mode]);
    }
    plan->in_bytes = in;
}

/* Adds an item for a box. clears: 1 if the item only sets its halo to 0. */
static DPARI_COLD void dpari_blocks_add_item(const dpari_blocks *blocks, dpari_blocks_plan *plan,
                                             const dpari_blocks_box *box, int32_t clears)
{
    dpari_blocks_item *item = &plan->item[plan->items++];
    const dpari_blocks_shape *shape = plan->shape[box->array];
    /* this rank's block is the one whose halo gets the box forward, or the other one */
    const int mine_is_to = box->takes == (plan->op == DPAR_COPY);
    const int32_t other = blocks->slot[mine_is_to ? box->from : box->to];
    item->array = box->array;
    item->slot = blocks->slot[mine_is_to ? box->to : box->from];
    item->other = other;
    item->peer = box->peer;
    item->direct = box->direct;
    item->mine_at = mine_is_to ? box->to_at : box->from_at;
    item->other_at = mine_is_to ? box->from_at : box->to_at;
    if (box->direct) {
        item->other_at += other * shape->bytes + shape->origin;
    } else if (box->peer >= 0) {
        item->other_at = box->packed;
    }
    dpari_blocks_prepare(plan, box, box->peer >= 0 && !box->direct,
                         box->peer >= 0 && plan->x.peer[box->peer].world >= 0, clears, item);
}

/* Makes the items of a plan from the boxes: what this rank takes, then what it packs, and then for
 * an adjoint what it clears. */
static DPARI_COLD void dpari_blocks_set_items(const dpari_blocks *blocks, dpari_blocks_plan *plan,
                                              const dpari_blocks_list *list)
{
    int64_t k;
    for (k = 0; k < list->count && plan->op != DPAR_COPY; k++) {
        if (list->box[k].takes) {
            dpari_blocks_add_item(blocks, plan, &list->box[k], 0);
        }
    }
    plan->takes = plan->items;
    for (k = 0; k < list->count; k++) {
        const dpari_blocks_box *box = &list->box[list->sorted[k]];
        dpari_blocks_pair *pair = box->peer >= 0 ? &plan->pair[box->peer] : NULL;
        int64_t *first, *count;
        if (box->takes ? plan->op != DPAR_COPY : box->direct) {
            continue;
        }
        if (box->takes) {
            first = pair ? &pair->take : &plan->own;
            count = pair ? &pair->takes : &plan->owns;
        } else {
            first = &pair->give;
            count = &pair->gives;
        }
        *first = *count == 0 ? plan->items : *first;
        ++*count;
        dpari_blocks_add_item(blocks, plan, box, 0);
    }
    plan->clear = plan->items;
    for (k = 0; k < list->count && plan->op != DPAR_COPY; k++) {
        if (!list->box[k].takes && list->box[k].direct) {
            dpari_blocks_add_item(blocks, plan, &list->box[k], 1);
        }
    }
    plan->clears = plan->items - plan->clear;
}

/* Allocates the memory of packed values, and writes the records that say where they are. */
static DPARI_COLD dpar_status dpari_blocks_alloc_values(dpari_blocks_plan *plan, dpar_why *why)
{
    dpar_comm *of = dpari_blocks_memory_of(plan);
    void *memory = NULL;
    const dpar_status status = dpar_comm_alloc(of, 2 * plan->turn + plan->in_bytes, &memory);
    int32_t i;
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, of->why.text);
    }
    plan->out = (unsigned char *)memory;
    plan->in = plan->out + 2 * plan->turn;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *record = plan->records + DPARI_BLOCKS_WORDS * (int64_t)i;
        record[0] = 0;
        if (plan->x.peer[i].world >= 0 && plan->pair[i].gives > 0) {
            record[0] = (int64_t)dpari_ref(plan->x.world, plan->out + plan->pair[i].out_at, 1);
        }
        record[1] = plan->turn;
    }
    return DPAR_OK;
}

/* Reads where the packed values of the peers are. */
static DPARI_COLD dpar_status dpari_blocks_read_records(dpari_blocks_plan *plan)
{
    int32_t i;
    for (i = 0; i < plan->x.peers; i++) {
        const int64_t *record = dpari_blocks_record_of(plan, i);
        if (plan->x.peer[i].world >= 0 && record[0] != 0) {
            plan->pair[i].packed =
                (const unsigned char *)dpari_at(plan->x.world, (uint64_t)record[0]);
            plan->pair[i].turn = record[1];
            if (!plan->pair[i].packed) {
                return dpari_exchange_unmapped(&plan->x, (uint64_t)record[0]);
            }
        }
    }
    return DPAR_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Lists what must be equal on all ranks. */
static DPARI_COLD void dpari_blocks_state(dpari_facts *facts, const void *given)
{
    const dpari_blocks_plan *plan = (const dpari_blocks_plan *)given;
    int32_t i;
    dpari_fact(facts, "op", 0, plan->op);
    dpari_fact(facts, "number of arrays", 0, plan->arrays);
    for (i = 0; i < plan->arrays; i++) {
        dpari_fact(facts, "shape of array #", i, plan->shape[i]->number);
    }
}

/* Allocates a plan and sets what does not depend on its boxes. */
static DPARI_COLD dpari_blocks_plan *dpari_blocks_new_plan(const dpari_blocks *blocks,
                                                           dpar_blocks_array *const *arrays,
                                                           int32_t count, int32_t op)
{
    dpar_comm *comm = blocks->head.comm;
    const int64_t bytes =
        (int64_t)sizeof(dpari_blocks_plan) + 2 * count * (int64_t)sizeof(void *) + 64;
    dpari_blocks_plan *plan = (dpari_blocks_plan *)dpari_object_alloc(comm, bytes);
    int32_t i;
    if (!plan) {
        return NULL;
    }
    plan->shape = (const dpari_blocks_shape **)(void *)(plan + 1);
    plan->array = (dpari_blocks_array **)(void *)(plan->shape + count);
    for (i = 0; i < count; i++) {
        plan->shape[i] = dpari_blocks_array_of(arrays[i])->shape;
    }
    plan->number = blocks->plans_made;
    plan->arrays = count;
    plan->op = op;
    plan->wide = dpari_cpu_wide();
    plan->x.comm = comm;
    plan->x.node = comm->node ? comm->node : comm;
    plan->x.world = dpari_world_of(plan->x.node);
    plan->x.name = "blocks";
    plan->x.end = "dpar_blocks_end";
    plan->x.item = "array";
    plan->x.items = count;
    plan->x.steps = 1;
    plan->x.self = -1;
    return plan;
}

/* Releases the memory of a plan. */
static DPARI_COLD void dpari_blocks_release_plan(dpari_blocks_plan *plan)
{
    dpar_comm *of = dpari_blocks_memory_of(plan);
    dpar_comm_release(of, plan->out);
    dpar_comm_release(of, plan->x.line);
    dpari_object_release(plan->tables);
    dpari_object_release(plan);
}

/* Does what needs no other rank: makes the plan, lists the boxes, and allocates the tables. */
static DPARI_COLD dpar_status dpari_blocks_begin_plan(const dpari_blocks *blocks,
                                                      dpar_blocks_array *const *arrays,
                                                      int32_t count, int32_t op,
                                                      dpari_blocks_list *list,
                                                      dpari_blocks_plan **made, dpar_why *why)
{
    dpari_blocks_plan *plan = dpari_blocks_new_plan(blocks, arrays, count, op);
    dpar_status status;
    *made = plan;
    if (!plan) {
        return dpari_say(DPAR_E_MEMORY, why, "blocks: no memory for a plan");
    }
    status = dpari_blocks_list_boxes(blocks, plan, list, why);
    if (status == DPAR_OK) {
        status = dpari_blocks_alloc_tables(plan, list, why);
    }
    if (status == DPAR_OK) {
        plan->x.step[0].modes =
            1 << (op == DPAR_COPY ? DPARI_EXCHANGE_FORWARD : DPARI_EXCHANGE_ADJOINT);
    }
    return status;
}

/* Makes a plan. Collective. */
static DPARI_COLD dpar_status dpari_blocks_make_plan(dpari_blocks *blocks,
                                                     dpar_blocks_array *const *arrays,
                                                     int32_t count, int32_t op,
                                                     dpari_blocks_plan **made)
{
    dpar_comm *comm = blocks->head.comm;
    dpar_why *why = dpari_why_of(comm, NULL);
    dpari_blocks_plan *plan = NULL;
    dpari_blocks_list list;
    dpar_status status;
    dpari_zero(&list, sizeof list);
    status = dpari_blocks_begin_plan(blocks, arrays, count, op, &list, &plan, why);
    status = dpari_agree_on(comm, status, "blocks", dpari_blocks_state, plan, why);
    if (status == DPAR_OK) {
        status = dpari_blocks_meet(plan);
        if (status == DPAR_OK) {
            dpari_blocks_set_places(plan, &list);
            dpari_blocks_set_items(blocks, plan, &list);
            plan->x.step[0].meets = plan->x.shared > 0;
            dpari_blocks_set_functions(plan);
            status = dpari_blocks_alloc_values(plan, why);
        }
        status = dpari_agree_on(comm, status, "blocks", NULL, NULL, why);
    }
    if (status == DPAR_OK) {
        status = dpari_blocks_send_records(plan);
        if (status == DPAR_OK) {
            status = dpari_blocks_read_records(plan);
        }
        status = dpari_agree_on(comm, status, "blocks", NULL, NULL, why);
    }
    dpari_object_release(list.box);
    if (status != DPAR_OK && plan) {
        dpari_blocks_release_plan(plan);
    }
    *made = plan;
    return status;
}

DPARI_INTERNAL dpar_status dpari_blocks_find_plan(dpari_blocks *blocks,
                                                  dpar_blocks_array *const *arrays, int32_t count,
                                                  int32_t op, dpari_blocks_plan **found)
{
    dpari_blocks_plan **at = &blocks->plans;
    dpar_status status;
    for (; *at; at = &(*at)->next) {
        dpari_blocks_plan *plan = *at;
        int32_t i = 0;
        while (plan->arrays == count && i < count &&
               plan->shape[i] == dpari_blocks_array_of(arrays[i])->shape) {
            i++;
        }
        if (i == count && plan->op == op && !plan->in_use && plan->arrays == count) {
            *found = plan;
            return DPAR_OK;
        }
    }
    status = dpari_blocks_make_plan(blocks, arrays, count, op, found);
    if (status == DPAR_OK) {
        blocks->plans_made++;
        *at = *found;
    }
    return status;
}

DPARI_INTERNAL DPARI_COLD dpar_status dpari_blocks_free_plans(dpari_blocks *blocks)
{
    dpar_status first = DPAR_OK;
    while (blocks->plans) {
        dpari_blocks_plan *plan = blocks->plans;
        int32_t refused;
        const dpar_status status = dpari_exchange_close(&plan->x, "dpar_blocks_free: ", &refused);
        first = first == DPAR_OK ? status : first;
        blocks->plans = plan->next;
        dpari_blocks_release_plan(plan);
    }
    return first;
}
