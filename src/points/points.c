/* SPDX-License-Identifier: MIT-0 */
/* Plans exchanges of points: checks the description, compares it between ranks, and divides memory.
 *
 * points_owner.c converts ids to the lists of local indices that a rank sends and receives, and
 * points_list.c stores them as runs. Peers that share memory then exchange references to their
 * words and lists. This file also converts ids, sorts rows, and writes reports. points_plan.h
 * explains how an exchange runs. */
#include "points.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/engine.h"
#include "../comm/group.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "points_list.h"
#include "points_mail.h"
#include "points_order.h"
#include "points_owner.h"
#include "points_plan.h"
#include "points_run.h"
#include "points_sharers.h"
#include "points_widen.h"

/* ---- checks ---------------------------------------------------------------------------------- */

/* Returns the number of ids that the plan's table must hold: ghosts, and own ids if they are
 * listed. */
static int64_t dpari_pt_table_ids(const dpar_points_desc *desc)
{
    if (desc->lists || desc->shared) {
        return 0;
    }
    return (desc->own_id ? desc->own_count : 0) + desc->ghost_count;
}

/* Checks peer i of the lists. sent: the number of values that are sent to the peers before it. */
static dpar_status dpari_pt_check_list(const dpar_comm *comm, const dpar_points_desc *desc,
                                       int32_t i, int64_t sent, dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int64_t sendable = desc->mixed_count > 0 ? desc->mixed_count : desc->own_count;
    int64_t k;
    int32_t j;
    if (lists->peer[i] < 0 || lists->peer[i] >= comm->size || lists->send_count[i] < 0 ||
        lists->send_count[i] > INT32_MAX - sent || lists->receive_count[i] < 0 ||
        lists->receive_count[i] > INT32_MAX) {
        return dpari_wrong(why,
                           "peer[%d], rank %d of %d, its send_count %ld, or its receive_count, "
                           "is out of range",
                           i, lists->peer[i], comm->size, lists->send_count[i]);
    }
    for (j = 0; j < i; j++) {
        if (lists->peer[j] == lists->peer[i]) {
            return dpari_wrong(why, "rank %d is listed twice in peer, at %d and %d", lists->peer[i],
                               j, i);
        }
    }
    for (k = sent; k < sent + lists->send_count[i]; k++) {
        if (lists->send_index[k] < 0 || lists->send_index[k] >= sendable) {
            return dpari_wrong(why, "send_index[%ld], for rank %d, is %d, but %s is %ld", k,
                               lists->peer[i], lists->send_index[k],
                               desc->mixed_count > 0 ? "mixed_count" : "own_count", sendable);
        }
    }
    return DPAR_OK;
}

/* Checks receive_index, except whether a ghost is listed twice. received: its length. */
static dpar_status dpari_pt_check_receive_index(const dpar_points_desc *desc, int64_t received,
                                                dpar_why *why)
{
    const int32_t *index = desc->lists->receive_index;
    const int64_t all = desc->own_count + desc->ghost_count;
    int64_t k;
    if (desc->mixed_count > 0 && received > 0 && !index) {
        return dpari_wrong(why, "receive_index is NULL, but mixed_count is %ld", all);
    }
    for (k = 0; k < received && index; k++) {
        if (index[k] < desc->own_count || index[k] >= all) {
            return dpari_wrong(why, "receive_index[%ld] is %d, but ghosts are %ld to %ld%s", k,
                               index[k], desc->own_count, all - 1,
                               desc->mixed_count > 0 ? "" : "; mixed_count allows any other place");
        }
    }
    return DPAR_OK;
}

/* Checks the lists of this rank, except whether a ghost is listed twice, which
 * dpari_pt_check_places does. */
static dpar_status dpari_pt_check_lists(const dpar_comm *comm, const dpar_points_desc *desc,
                                        dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int partial = desc->mixed_count > 0 || desc->unsent_ghosts;
    const char *hint = "";
    int64_t sent = 0, received = 0;
    int32_t i;
    if (lists->peer_count > 0 && (!lists->peer || !lists->send_count || !lists->receive_count)) {
        return dpari_wrong(why, "peer_count is %d, and peer, send_count or receive_count is NULL",
                           lists->peer_count);
    }
    for (i = 0; i < lists->peer_count; i++) {
        dpar_status status;
        if (lists->send_count[i] > 0 && !lists->send_index) {
            return dpari_wrong(why, "send_index is NULL, but values are sent");
        }
        status = dpari_pt_check_list(comm, desc, i, sent, why);
        if (status != DPAR_OK) {
            return status;
        }
        sent += lists->send_count[i];
        received += lists->receive_count[i];
        if (received > desc->ghost_count) { /* before the sum overflows */
            break;
        }
    }
    if (received < desc->ghost_count && !partial) {
        hint = "; if no rank sends the other ghosts, set unsent_ghosts";
    }
    if (received > desc->ghost_count || *hint) {
        return dpari_wrong(
            why, "the receive_counts add up to %ld (send_counts: %ld), but %s is %ld%s", received,
            sent, desc->mixed_count > 0 ? "mixed_count" : "ghost_count", desc->ghost_count, hint);
    }
    return dpari_pt_check_receive_index(desc, received, why);
}

/* Checks that own_count is the number of elements that the layout assigns to this rank. */
static dpar_status dpari_pt_check_layout(const dpar_comm *comm, const dpar_points_desc *desc,
                                         dpar_why *why)
{
    const int64_t own = dpar_layout_is_primary(desc->layout, comm->rank)
                            ? dpar_layout_count(desc->layout, comm->rank)
                            : 0;
    if (!desc->own_id && own != desc->own_count) {
        return dpari_wrong(why, "the layout gives rank %d %ld values, but own_count is %ld",
                           comm->rank, own, desc->own_count);
    }
    return DPAR_OK;
}

/* Checks the description of a plan of shared ids. */
static dpar_status dpari_pt_check_shared(const dpar_points_desc *desc, dpar_why *why)
{
    int64_t i = 0;
    while (i < desc->own_count && desc->own_id && desc->own_id[i] >= -1) {
        i++;
    }
    if (i == desc->own_count && desc->shared == 1 && desc->ghost_count == 0 && !desc->lists &&
        !desc->layout && desc->mixed_count == 0) {
        return DPAR_OK;
    }
    return dpari_wrong(why,
                       "shared is %d (1), own_id[%ld] is NULL or not an id (-1 or more), "
                       "ghost_count is %ld (0), or lists, layout or mixed_count is set",
                       desc->shared, i, desc->ghost_count);
}

/* Checks the widened description of this rank, except for its counts and the contents of own_id and
 * ghost_id. */
static dpar_status dpari_pt_check(const dpar_comm *comm, const dpar_points_desc *desc,
                                  dpar_why *why)
{
    dpar_status status;
    if (desc->order < 0 || desc->order > DPAR_POINTS_ORDER_BY_OWNER || desc->method < 0 ||
        desc->method > DPAR_POINTS_DIRECT || desc->tag < 0 || desc->run_bytes < 0) {
        return dpari_wrong(
            why, "order %d (0 or 1), method %d (0 to 3), tag %d or run_bytes %ld is out of range",
            desc->order, desc->method, desc->tag, desc->run_bytes);
    }
    status = dpari_po_host(comm, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (desc->shared) {
        return dpari_pt_check_shared(desc, why);
    }
    if (desc->lists) {
        return dpari_pt_check_lists(comm, desc, why);
    }
    if (desc->ghost_count > 0 && !desc->ghost_id) {
        return dpari_wrong(why, "ghost_id is NULL, but ghost_count is %ld", desc->ghost_count);
    }
    return desc->layout ? dpari_pt_check_layout(comm, desc, why) : DPAR_OK;
}

/* Checks that receive_index lists no ghost twice, and that no value of a mixed array is both sent
 * and received. Notes in the plan which ghosts are received. */
static dpar_status dpari_pt_check_places(dpari_points *plan, const dpar_points_desc *desc,
                                         dpar_why *why)
{
    const dpar_points_lists *lists = desc->lists;
    const int64_t received = dpari_pt_total(lists->receive_count, lists->peer_count);
    const int64_t sent = dpari_pt_total(lists->send_count, lists->peer_count);
    int64_t k;
    for (k = 0; k < received; k++) {
        const int64_t g = lists->receive_index ? lists->receive_index[k] - desc->own_count : k;
        if (dpari_pt_set_received(plan, g)) {
            return dpari_wrong(why, "receive_index lists %ld twice", g + desc->own_count);
        }
    }
    for (k = 0; k < sent && desc->mixed_count > 0; k++) {
        if (dpari_pt_is_received(plan, lists->send_index[k])) {
            return dpari_wrong(why,
                               "send_index[%ld] is %d, which receive_index lists too: a value that "
                               "is sent must not be received in the same exchange",
                               k, lists->send_index[k]);
        }
    }
    return DPAR_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Divides the memory of a plan into the plan, its table and, if it is needed, a bit for each ghost.
 * If memory is NULL, only counts the bytes and returns NULL. */
static dpari_points *dpari_pt_layout(const dpar_points_desc *desc, void *memory, int64_t *bytes)
{
    dpari_room room;
    dpari_points *plan;
    dpari_pt_entry *entry;
    uint64_t *received;
    const int64_t bits = desc->lists || desc->unsent_ghosts ? (desc->ghost_count + 63) / 64 : 0;
    room.at = (unsigned char *)memory;
    room.used = 0;
    plan = (dpari_points *)dpari_room_take(&room, 1, sizeof *plan);
    entry = (dpari_pt_entry *)dpari_room_take(&room, dpari_pt_table_room(dpari_pt_table_ids(desc)),
                                              sizeof *entry);
    received = (uint64_t *)dpari_room_take(&room, bits, sizeof *received);
    if (plan) {
        plan->received = bits > 0 ? received : NULL;
        plan->table.entry = entry;
        plan->table.mask = -1;
    }
    *bytes = room.used;
    return plan;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

/* Indices of the numbers by which ranks compare what they pass: 1 if some rank with own values
 * passes own_id, 1 if some such rank does not; the same for ranks with ghosts and owner; and the
 * number of own values of all ranks. */
enum {
    DPARI_PT_OWN_ID,
    DPARI_PT_NO_OWN_ID,
    DPARI_PT_OWNER,
    DPARI_PT_NO_OWNER,
    DPARI_PT_GLOBAL_COUNT,
    DPARI_PT_ALL
};
typedef struct dpari_pt_given {
    const dpar_points_desc *desc;
    int64_t own_count, ghost_count; /* as the public struct has them */
    int64_t all[DPARI_PT_ALL];
} dpari_pt_given;

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pt_state(dpari_facts *facts, const void *given)
{
    const dpar_points_desc *desc = ((const dpari_pt_given *)given)->desc;
    facts->of = NULL;
    dpari_fact(facts, "lists (0: ids)", 0, desc->lists != NULL);
    dpari_fact(facts, "shared", 0, desc->shared);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "method", 0, desc->method);
    dpari_fact(facts, "run_bytes", 0, desc->run_bytes);
    dpari_fact(facts, "tag", 0, desc->tag);
    dpari_fact(facts, "layout (0: none)", 0, desc->layout != NULL);
    if (desc->layout) {
        dpari_fact_hash(facts, "the layout", 0, dpari_hash_layout(0, desc->layout));
    }
}

static dpar_status dpari_pt_not_alike(const char *what, dpar_why *why)
{
    return dpari_say(DPAR_E_MISMATCH, why, "points: %s is NULL on some ranks, not on others", what);
}

/* Checks that all ranks pass the same optional arrays. Ranks without own values may leave out
 * own_id, and ranks without ghosts may leave out owner. Collective. */
static dpar_status dpari_pt_kinds(dpar_comm *comm, dpari_pt_given *given, dpar_why *why)
{
    const dpar_points_desc *desc = given->desc;
    int64_t *all = given->all;
    dpar_status status;
    all[DPARI_PT_OWN_ID] = desc->own_count > 0 && desc->own_id;
    all[DPARI_PT_NO_OWN_ID] = desc->own_count > 0 && !desc->own_id;
    all[DPARI_PT_OWNER] = desc->ghost_count > 0 && desc->owner;
    all[DPARI_PT_NO_OWNER] = desc->ghost_count > 0 && !desc->owner;
    status = dpar_all_reduce(comm, all, all, DPARI_PT_GLOBAL_COUNT, DPAR_I64, DPAR_MAX, NULL);
    if (status == DPAR_OK) {
        status = dpar_all_reduce(comm, &given->own_count, &all[DPARI_PT_GLOBAL_COUNT], 1, DPAR_I64,
                                 DPAR_SUM, NULL);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (desc->lists) {
        return DPAR_OK;
    }
    if (all[DPARI_PT_OWN_ID] && all[DPARI_PT_NO_OWN_ID]) {
        return dpari_pt_not_alike("own_id", why);
    }
    if (all[DPARI_PT_OWNER] && all[DPARI_PT_NO_OWNER]) {
        return dpari_pt_not_alike("owner", why);
    }
    return DPAR_OK;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Counts the peers. Returns how many int32_t numbers their lists need. */
static int64_t dpari_pt_count_peers(const dpari_points *plan, const dpari_pt_both *both,
                                    int32_t *peers)
{
    int64_t numbers = 0, s = 0, r = 0;
    dpari_pt_list list;
    int32_t i;
    *peers = 0;
    for (i = 0; i < plan->head.comm->size; i++) {
        numbers += dpari_pt_measure(&list, both->send_at + s, both->sends[i]);
        numbers += dpari_pt_measure(&list, both->receive_at + r, both->receives[i]);
        s += both->sends[i];
        r += both->receives[i];
        *peers += both->sends[i] + both->receives[i] > 0;
    }
    return numbers;
}

/* Allocates the registered memory of a plan. The first pass counts bytes, the second sets pointers.
 */
static dpar_status dpari_pt_alloc(dpari_points *plan, int32_t peers, int64_t numbers, dpar_why *why)
{
    dpar_comm *of = plan->x.world ? plan->x.node : plan->head.comm;
    void *memory = NULL;
    dpari_room room;
    dpar_status status;
    int32_t pass;
    room.at = NULL;
    for (pass = 0; pass < 2; pass++) {
        room.used = 0;
        plan->x.line = (dpari_exchange_line *)dpari_room_take(&room, 1, sizeof *plan->x.line);
        dpari_exchange_room(&plan->x, &room, peers, 1, plan->x.world ? plan->x.node->size : 0);
        plan->peer = (dpari_pt_peer *)dpari_room_take(&room, peers, sizeof *plan->peer);
        plan->record = (dpari_pt_record *)dpari_room_take(&room, 2 * peers, sizeof *plan->record);
        plan->numbers = (int32_t *)dpari_room_take(&room, numbers, sizeof *plan->numbers);
        if (pass == 0) {
            status = dpar_comm_alloc(of, room.used, &memory);
            if (status != DPAR_OK) {
                return dpari_repeat(status, why, of->why.text);
            }
            plan->lists = room.at = (unsigned char *)memory;
        }
    }
    plan->head.peer_count = peers;
    plan->x.peers = peers;
    plan->x.steps = 1;
    plan->x.step[0].modes = 1 << DPARI_EXCHANGE_FORWARD | 1 << DPARI_EXCHANGE_ADJOINT;
    return DPAR_OK;
}

/* Stores a list at *at, and advances *at past it. */
static void dpari_pt_set_list(dpari_pt_list *list, const int32_t *index, int64_t n, int32_t **at)
{
    const int64_t numbers = dpari_pt_measure(list, index, n);
    dpari_pt_fill(list, index, *at);
    *at += numbers;
}

/* Sets the peers and their lists, in ascending order of ranks. */
static void dpari_pt_set_peers(dpari_points *plan, const dpari_pt_both *both)
{
    int32_t i, n = 0, *at = plan->numbers;
    for (i = 0; i < plan->head.comm->size; i++) {
        dpari_pt_peer *peer = &plan->peer[n];
        dpari_exchange_flow *flow = &plan->x.flow[n];
        const int self = i == plan->head.comm->rank;
        if (both->sends[i] + both->receives[i] == 0) {
            continue;
        }
        plan->x.peer[n].rank = i;
        plan->x.peer[n].world = self ? 0 : -1; /* a rank sends no messages to itself */
        flow->takes[DPARI_EXCHANGE_FORWARD] = both->receives[i] > 0 && !self;
        flow->takes[DPARI_EXCHANGE_ADJOINT] = both->sends[i] > 0;
        peer->sends_before = plan->sends;
        peer->receives_before = plan->receives;
        dpari_pt_set_list(&peer->send, both->send_at + plan->sends, both->sends[i], &at);
        dpari_pt_set_list(&peer->receive, both->receive_at + plan->receives, both->receives[i],
                          &at);
        if (self) {
            plan->x.self = n;
        }
        plan->sends += both->sends[i];
        plan->receives += both->receives[i];
        n++;
    }
}

/* Describes this rank's memory and list to peer i. */
static void dpari_pt_write_record(const dpari_points *plan, int32_t i, dpari_pt_record *record)
{
    const dpari_pt_peer *peer = &plan->peer[i];
    record->line = plan->x.peer[i].world >= 0 && plan->x.world
                       ? (int64_t)dpari_ref(plan->x.world, plan->x.line, 1)
                       : 0;
    record->number = i;
    record->sends = peer->send.count;
    record->receives = peer->receive.count;
    record->sends_before = peer->sends_before;
    record->receives_before = peer->receives_before;
    record->runs = peer->send.runs;
    record->kind = peer->send.kind;
    record->first = peer->send.first;
    record->at =
        record->line && peer->send.at ? (int64_t)dpari_ref(plan->x.world, peer->send.at, 1) : 0;
}

/* Reads peer i's description of its memory, and counts the peers that are reached by messages and
 * by memory. */
static dpar_status dpari_pt_read_record(dpari_points *plan, int32_t i)
{
    dpari_pt_peer *peer = &plan->peer[i];
    dpari_exchange_peer *run = &plan->x.peer[i];
    const dpari_pt_record *record = &peer->theirs;
    if (record->line == 0 || run->world < 0) { /* one of the two cannot reach the other's memory */
        run->world = -1;
        plan->messages_to++;
        return DPAR_OK;
    }
    plan->x.shared++;
    plan->x.oneway |= peer->send.count == 0 || peer->receive.count == 0;
    plan->x.flow[i].packed = 1;
    run->line = (dpari_exchange_line *)dpari_at(plan->x.world, (uint64_t)record->line);
    if (run->line == NULL) {
        return dpari_exchange_unmapped(&plan->x, (uint64_t)record->line);
    }
    peer->source.count = record->sends;
    peer->source.runs = record->runs;
    peer->source.kind = (int32_t)record->kind;
    peer->source.first = (int32_t)record->first;
    peer->source.step = 0;
    peer->source.at = NULL;
    if (record->at) {
        peer->source.at = (const int32_t *)dpari_at(plan->x.world, (uint64_t)record->at);
        if (peer->source.at == NULL) {
            return dpari_exchange_unmapped(&plan->x, (uint64_t)record->at);
        }
    }
    return DPAR_OK;
}

/* Exchanges records with the peers. */
static dpar_status dpari_pt_swap(dpari_points *plan, dpar_why *why)
{
    dpari_pt_record *mine = plan->record, *theirs = plan->record + plan->x.peers;
    dpar_status status;
    int32_t i;
    for (i = 0; i < plan->x.peers; i++) {
        dpari_pt_write_record(plan, i, &mine[i]);
    }
    status = dpari_exchange_records(&plan->x, (const int64_t *)(const void *)mine,
                                    (int64_t *)(void *)theirs, DPARI_PT_WORDS);
    for (i = 0; i < plan->x.peers && status == DPAR_OK; i++) {
        if (i != plan->x.self) {
            plan->peer[i].theirs = theirs[i];
            status = dpari_pt_read_record(plan, i);
        }
    }
    plan->x.step[0].meets = plan->x.shared > 0;
    dpari_pt_set_functions(plan);
    return dpari_po_explain(plan->head.comm, status, why);
}

/* Makes a plan from the lists of what this rank sends and receives. Collective. */
static dpar_status dpari_pt_plan(dpari_points *plan, const dpari_pt_both *both, dpar_why *why)
{
    int32_t peers;
    const int64_t numbers = dpari_pt_count_peers(plan, both, &peers);
    dpar_status status;
    if (both->sent > INT32_MAX) {
        status = dpari_say(DPAR_E_RANGE, why, "points: %ld values to send, but at most %d allowed",
                           both->sent, (int32_t)INT32_MAX);
    } else {
        status = dpari_pt_alloc(plan, peers, numbers, why);
    }
    status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    if (status == DPAR_OK) {
        dpari_pt_set_peers(plan, both);
        status = dpari_po_explain(plan->head.comm, dpari_exchange_find_node(&plan->x), why);
        if (status == DPAR_OK) {
            status = dpari_pt_swap(plan, why);
        }
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
    }
    if (status != DPAR_OK && plan->lists) {
        dpar_comm_release(plan->x.world ? plan->x.node : plan->head.comm, plan->lists);
    }
    return status;
}

/* Sets the fields of a plan that do not depend on its lists. */
static void dpari_pt_set(dpari_points *plan, dpar_comm *comm, const dpari_pt_given *given)
{
    const dpar_points_desc *desc = given->desc;
    plan->head.comm = comm;
    plan->head.own_count = given->own_count;
    plan->head.ghost_count = given->ghost_count;
    plan->mixed = desc->mixed_count > 0;
    plan->first_ghost = desc->own_count;
    plan->head.global_count = given->all[DPARI_PT_GLOBAL_COUNT];
    plan->x.comm = comm;
    plan->x.name = "points";
    plan->x.end = "dpar_points_end";
    plan->x.item = "vector";
    plan->x.node = comm->node ? comm->node : comm;
    plan->x.world = desc->method == DPAR_POINTS_MESSAGES ? NULL : dpari_world_of(plan->x.node);
    plan->method = desc->method;
    plan->x.tag = desc->tag;
    plan->x.timers = desc->timers;
    plan->listed = desc->lists != NULL || desc->shared;
    plan->hashed = !plan->listed && given->all[DPARI_PT_OWN_ID] != 0;
    plan->given_owner = given->all[DPARI_PT_OWNER] != 0;
    plan->run_bytes = desc->run_bytes > 0 ? desc->run_bytes : (int64_t)DPARI_PT_RUN_BYTES;
    plan->x.self = -1;
    if (desc->layout) {
        plan->layout = *desc->layout;
        plan->has_layout = 1;
    }
}

/* Finds the lists of what this rank sends and receives, and makes the plan from them. Collective.
 */
static dpar_status dpari_pt_connect(dpari_points *plan, const dpar_points_desc *desc, dpar_why *why)
{
    dpari_pt_both both;
    dpar_status status;
    dpari_zero(&both, sizeof both);
    if (desc->lists) {
        status = dpari_pt_check_places(plan, desc, why);
        status = dpari_agree_on(plan->head.comm, status, "points", NULL, NULL, why);
        if (status == DPAR_OK) {
            status = dpari_pt_by_lists(plan, desc, &both, why);
        }
    } else if (desc->shared) {
        status = dpari_pt_by_shared(plan, desc, &both, why);
    } else {
        status = dpari_pt_by_ids(plan, desc, &both, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pt_plan(plan, &both, why);
    }
    if (status != DPAR_OK) {
        dpar_comm_release(plan->head.comm, plan->shared.memory);
    }
    dpari_po_free(&both.pages);
    return status;
}

/* Checks and widens what this rank passes, and provides the memory of the plan. Local. */
static dpar_status dpari_pt_prepare(dpar_comm *comm, const dpar_points_desc *desc,
                                    dpari_pt_wide *wide, dpari_pt_given *given, int64_t *need,
                                    void **memory, dpar_why *why)
{
    dpar_status status;
    if (!desc) {
        return dpari_wrong(why, "dpar_points_make: desc or points is NULL");
    }
    status = dpari_pt_widen(wide, comm, desc, why);
    if (status == DPAR_OK) {
        status = dpari_pt_check(comm, &wide->desc, why);
    }
    if (status != DPAR_OK) {
        return status;
    }
    given->own_count = wide->desc.own_count;
    given->ghost_count = wide->desc.ghost_count;
    if (desc->mixed_count > 0) {
        given->ghost_count = dpari_pt_total(wide->lists.receive_count, wide->lists.peer_count);
        given->own_count = desc->mixed_count - given->ghost_count;
    }
    (void)dpari_pt_layout(&wide->desc, NULL, need);
    return dpari_object_memory(comm, desc->memory, desc->bytes, *need, "points", memory, why);
}

/* Makes a plan as dpar_points_make does. wide: zeroed memory for a copy of desc. */
static DPARI_COLD dpar_status dpari_pt_make(dpar_comm *comm, const dpar_points_desc *desc,
                                            dpari_pt_wide *wide, dpar_points **points,
                                            dpar_why *why)
{
    dpari_pt_given given;
    dpari_points *plan;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status status;
    dpari_zero(&given, sizeof given);
    given.desc = &wide->desc;
    status = dpari_pt_prepare(comm, points ? desc : NULL, wide, &given, &need, &memory, why);
    status = dpari_agree_on(comm, status, "points", dpari_pt_state, &given, why);
    if (status == DPAR_OK) {
        status = dpari_pt_kinds(comm, &given, why);
    }
    if (status == DPAR_OK) {
        dpari_zero(memory, (size_t)need);
        plan = dpari_pt_layout(given.desc, memory, &need);
        plan->owned = desc->memory == NULL ? memory : NULL;
        dpari_pt_set(plan, comm, &given);
        status = dpari_pt_connect(plan, given.desc, why);
    }
    if (status != DPAR_OK) {
        return dpari_object_failed(status, desc != NULL ? desc->memory : NULL, memory, need, why);
    }
    *points = &plan->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_points_make(dpar_comm *comm, const dpar_points_desc *desc,
                                                 dpar_points **points, dpar_why *why)
{
    dpari_pt_wide wide;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_points_make: comm is NULL");
    }
    dpari_zero(&wide, sizeof wide);
    status = dpari_pt_make(comm, desc, &wide, points, dpari_why_of(comm, why));
    dpari_po_free(&wide.pages);
    return status;
}

/* ---- numbering ------------------------------------------------------------------------------- */

/* Converts ids, of which one of the two arrays is NULL. */
static dpar_status dpari_pt_convert(const dpar_points *points, const int64_t *ids,
                                    const int32_t *ids32, int64_t count, int32_t *index)
{
    const dpari_points *plan = dpari_pt_of(points);
    int64_t i, lost = -1, unknown = 0; /* where the first unknown id is, and this id */
    if (!points) {
        return DPAR_E_ARG;
    }
    if (plan->listed || (count > 0 && ((!ids && !ids32) || !index))) {
        return dpari_comm_wrong(
            points->comm,
            "dpar_points_to_local: the plan is by lists or shared ids, or ids or index is NULL");
    }
    for (i = 0; i < count; i++) {
        const int64_t id = ids ? ids[i] : ids32[i];
        index[i] = (int32_t)dpari_pt_index(plan, id);
        if (index[i] < 0 && lost < 0) {
            lost = i;
            unknown = id;
        }
    }
    if (lost >= 0) {
        return dpari_comm_wrong(points->comm, "ids[%ld] is %ld: rank %d neither owns nor reads it",
                                lost, unknown, points->comm->rank);
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_points_to_local(const dpar_points *points, const int64_t *ids,
                                          int64_t count, int32_t *index)
{
    return dpari_pt_convert(points, ids, NULL, count, index);
}

DPAR_API dpar_status dpar_points_to_local32(const dpar_points *points, const int32_t *ids,
                                            int64_t count, int32_t *index)
{
    return dpari_pt_convert(points, NULL, ids, count, index);
}

/* The rows of a sparse matrix. One of begin and begin32 is NULL. */
typedef struct dpari_pt_rows {
    const int64_t *begin;
    const int32_t *begin32, *column;
} dpari_pt_rows;

/* Returns the index of the first entry of row i. */
static int64_t dpari_pt_row_begin(const dpari_pt_rows *of, int64_t i)
{
    return of->begin ? of->begin[i] : of->begin32[i];
}

/* Returns 1 if row i reads a ghost that exchanges set, otherwise 0; -1 if a column is not a local
 * index, or if the row ends before it begins. */
static int dpari_pt_reads_ghost(const dpar_points *points, const dpari_pt_rows *of, int64_t i)
{
    const int64_t end = dpari_pt_row_begin(of, i + 1);
    int64_t k = dpari_pt_row_begin(of, i);
    int reads = 0;
    if (k > end || (k < end && !of->column)) {
        return -1;
    }
    for (; k < end; k++) {
        if (of->column[k] < 0 || of->column[k] >= points->own_count + points->ghost_count) {
            return -1;
        }
        reads |= dpari_pt_is_received(dpari_pt_of(points), of->column[k]);
    }
    return reads;
}

/* Sorts rows as dpar_points_interior_rows does. */
static dpar_status dpari_pt_sort_rows(const dpar_points *points, int64_t rows,
                                      const dpari_pt_rows *of, int32_t *row, int64_t *interior)
{
    int64_t i, n = 0, boundary;
    if (!points) {
        return DPAR_E_ARG;
    }
    if (rows < 0 || rows > INT32_MAX || !interior ||
        (rows > 0 && ((!of->begin && !of->begin32) || !row))) {
        return dpari_comm_wrong(
            points->comm, "dpar_points_interior_rows: rows is %ld, or a pointer is NULL", rows);
    }
    for (i = 0; i < rows; i++) {
        const int reads = dpari_pt_reads_ghost(points, of, i);
        if (reads < 0) {
            return dpari_comm_wrong(points->comm,
                                    "row %ld (columns %ld to %ld) has a column that is not a local "
                                    "index below %ld, or begin descends",
                                    i, dpari_pt_row_begin(of, i), dpari_pt_row_begin(of, i + 1) - 1,
                                    points->own_count + points->ghost_count);
        }
        n += !reads;
    }
    *interior = n;
    boundary = n;
    n = 0;
    for (i = 0; i < rows; i++) {
        if (dpari_pt_reads_ghost(points, of, i)) {
            row[boundary++] = (int32_t)i;
        } else {
            row[n++] = (int32_t)i;
        }
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_points_interior_rows(const dpar_points *points, int64_t rows,
                                               const int64_t *begin, const int32_t *column,
                                               int32_t *row, int64_t *interior)
{
    const dpari_pt_rows of = {begin, NULL, column};
    return dpari_pt_sort_rows(points, rows, &of, row, interior);
}

DPAR_API dpar_status dpar_points_interior_rows32(const dpar_points *points, int64_t rows,
                                                 const int32_t *begin, const int32_t *column,
                                                 int32_t *row, int64_t *interior)
{
    const dpari_pt_rows of = {NULL, begin, column};
    return dpari_pt_sort_rows(points, rows, &of, row, interior);
}

/* ---- reports --------------------------------------------------------------------------------- */

DPAR_API int dpar_points_peer(const dpar_points *points, int32_t k, dpar_points_traffic *traffic)
{
    const dpari_points *plan = dpari_pt_of(points);
    if (!points || !traffic || k < 0 || k >= points->peer_count) {
        return 0;
    }
    traffic->rank = plan->x.peer[k].rank;
    traffic->method = plan->x.peer[k].world < 0 ? DPAR_POINTS_MESSAGES : DPAR_POINTS_PACKED;
    traffic->send_count = plan->peer[k].send.count;
    traffic->receive_count = plan->peer[k].receive.count;
    traffic->send_runs = plan->peer[k].send.runs;
    traffic->receive_runs = plan->peer[k].receive.runs;
    return 1;
}

DPAR_API DPARI_COLD void dpar_points_report(const dpar_points *points, dpar_text *out)
{
    const dpari_points *plan = dpari_pt_of(points);
    dpar_points_traffic traffic;
    int32_t k;
    if (!points) {
        return;
    }
    dpari_text_print(out, "rank %d: %ld own values, %ld ghosts, %ld exchanges\n",
                     points->comm->rank, points->own_count, points->ghost_count, plan->x.count);
    dpar_text_put(out, "  rank   method     sends      runs  receives      runs\n");
    for (k = 0; dpar_points_peer(points, k, &traffic); k++) {
        const char *method = traffic.method == DPAR_POINTS_MESSAGES ? "messages" : "memory";
        dpari_text_print(out, "%6d %8s %9ld %9ld %9ld %9ld\n", traffic.rank,
                         k == plan->x.self ? "itself" : method, traffic.send_count,
                         traffic.send_runs, traffic.receive_count, traffic.receive_runs);
    }
    if (plan->x.timers && plan->x.count > 0) {
        dpar_text_put(out, "each exchange: ");
        dpari_exchange_put_times(&plan->x, out);
        dpar_text_put(out, "\n");
    }
}

enum { DPARI_PT_DRAWN = 64 }; /* the most ranks of a drawn matrix, so that rows fit on a screen */

DPAR_API DPARI_COLD dpar_status dpar_points_draw(const dpar_points *points, dpar_text *out)
{
    const dpari_points *plan = dpari_pt_of(points);
    int64_t row[DPARI_PT_DRAWN] = {0}, *all;
    void *memory = NULL;
    dpar_comm *comm;
    dpar_status status;
    int32_t i, k;
    if (!points) {
        return DPAR_E_ARG;
    }
    comm = points->comm;
    if (comm->size > DPARI_PT_DRAWN) {
        return dpari_comm_say(comm, DPAR_E_RANGE,
                              "dpar_points_draw: %d ranks, but at most %d allowed", comm->size,
                              (int32_t)DPARI_PT_DRAWN);
    }
    for (i = 0; i < points->peer_count; i++) {
        row[plan->x.peer[i].rank] = plan->peer[i].send.count;
    }
    status = dpar_comm_alloc(comm, (int64_t)sizeof *row * comm->size * comm->size, &memory);
    status = dpari_agree_on(comm, status, "points", NULL, NULL, NULL);
    all = (int64_t *)memory;
    if (status == DPAR_OK) {
        status = dpar_all_gather(comm, row, all, comm->size, DPAR_I64, NULL);
    }
    for (i = -1; i < comm->size && status == DPAR_OK && out; i++) { /* -1: the heading */
        if (i < 0) {
            dpar_text_put(out, "values from\\to");
        } else {
            dpari_text_print(out, "%14d", i);
        }
        for (k = 0; k < comm->size; k++) {
            if (i < 0) {
                dpari_text_print(out, " %9d", k);
            } else if (all[i * comm->size + k] == 0) {
                dpar_text_put(out, "         .");
            } else {
                dpari_text_print(out, " %9ld", all[i * comm->size + k]);
            }
        }
        dpar_text_put(out, "\n");
    }
    dpar_comm_release(comm, memory);
    return status;
}
