/* SPDX-License-Identifier: MIT-0 */
/* Makes plans of transposes: checks descriptions, chooses the grid, finds the peers and the points
 * exchanged with them in each direction, and allocates the memory. pencil_run.c runs transposes. */
#include "pencil.h"

#include "../base/base_private.h"
#include "../comm/agree.h"
#include "../comm/heap.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../host/cpu.h"
#include "pencil_copy.h"
#include "pencil_cut.h"
#include "pencil_plan.h"
#include "pencil_run.h"

#define DPARI_PENCIL_MOST_BYTES (INT64_C(1) << 56) /* of an array */
enum {
    DPARI_PENCIL_COMPONENTS = 1 << 20, /* the most components of a point */
    DPARI_PENCIL_ROUNDS = 5            /* rounds of four transposes that measure a grid */
};

/* ---- descriptions ---------------------------------------------------------------------------- */

/* Checks all fields of a description but size and grid, and that comm can be used. */
static dpar_status dpari_pencil_check_kind(const dpar_comm *comm, const dpar_pencil_desc *desc,
                                           dpar_why *why)
{
    if (dpar_type_bytes(desc->type) == 0 || desc->components < 0 ||
        desc->components > DPARI_PENCIL_COMPONENTS) {
        return dpari_wrong(
            why, "pencil: %d components of type %s (allowed: 0 to 2^20, of a type with bytes)",
            desc->components, dpar_type_name(desc->type));
    }
    if ((desc->order != DPAR_PENCIL_GLOBAL_ORDER && desc->order != DPAR_PENCIL_AXIS_LAST) ||
        !dpari_is_flag(desc->measure) || desc->tag < 0) {
        return dpari_wrong(why,
                           "pencil: order %d, measure %d, tag %d: order must be DPAR_PENCIL_x, "
                           "measure 0 or 1, and tag 0 or more",
                           desc->order, desc->measure, desc->tag);
    }
    if ((desc->rank_order != DPAR_ORDER_LAST_FASTEST &&
         desc->rank_order != DPAR_ORDER_FIRST_FASTEST) ||
        !dpari_is_flag(desc->last_larger)) {
        return dpari_wrong(
            why,
            "pencil: rank_order %d, last_larger %d: rank_order must be DPAR_ORDER_x, "
            "and last_larger 0 or 1",
            desc->rank_order, desc->last_larger);
    }
    if (comm->mem && !comm->node && !dpari_world_of(comm)) {
        return dpari_wrong(
            why, "pencil: arrays are in the host's memory, but comm sends a device's memory");
    }
    return DPAR_OK;
}

/* Checks a description, and stores the array in *cut. The grid is not chosen yet. Local. */
static dpar_status dpari_pencil_check_desc(const dpar_comm *comm, const dpar_pencil_desc *desc,
                                           dpari_pencil_cut *cut, dpar_why *why)
{
    const int64_t *size = desc->size;
    const int32_t *grid = desc->grid;
    dpar_status status = dpari_pencil_check_kind(comm, desc, why);
    int32_t d;
    if (status != DPAR_OK) {
        return status;
    }
    cut->point = dpar_type_bytes(desc->type) * (int64_t)dpari_most(desc->components, 1);
    cut->order = desc->order;
    cut->rank_order = desc->rank_order;
    cut->last_larger = desc->last_larger;
    if (size[0] < 1 || size[1] < 1 || size[2] < 1) {
        return dpari_wrong(why, "pencil: size is %ld x %ld x %ld, but each must be at least 1",
                           size[0], size[1], size[2]);
    }
    int64_t bytes = cut->point;
    for (d = 0; d < 3; d++) {
        cut->size[d] = size[d];
        if (size[d] > DPARI_PENCIL_MOST_BYTES / bytes) {
            return dpari_say(DPAR_E_RANGE, why,
                             "pencil: %ld x %ld x %ld points of %ld bytes are more than 2^56 bytes",
                             size[0], size[1], size[2], cut->point);
        }
        bytes *= size[d];
    }
    if (grid[0] < 0 || grid[1] < 0) {
        return dpari_wrong(why, "pencil: grid is %d x %d, but no number may be negative", grid[0],
                           grid[1]);
    }
    cut->grid[0] = grid[0];
    cut->grid[1] = grid[1];
    return DPAR_OK;
}

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_pencil_state(dpari_facts *facts, const void *given)
{
    const dpar_pencil_desc *desc = (const dpar_pencil_desc *)given;
    int32_t d;
    facts->of = NULL;
    for (d = 0; d < 3; d++) {
        dpari_fact(facts, "size[#]", d, desc->size[d]);
    }
    dpari_fact(facts, "grid[0]", 0, desc->grid[0]);
    dpari_fact(facts, "grid[1]", 0, desc->grid[1]);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact(facts, "components", 0, dpari_most(desc->components, 1));
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "measure", 0, desc->measure);
    dpari_fact(facts, "tag", 0, desc->tag);
    dpari_fact(facts, "rank_order", 0, desc->rank_order);
    dpari_fact(facts, "last_larger", 0, desc->last_larger);
}

/* ---- planning -------------------------------------------------------------------------------- */

/* True if `direction` is between two different axes. */
static int dpari_pencil_is_direction(int32_t direction)
{
    return direction / 3 != direction % 3;
}

/* Counts the boxes that rank `me` gives to `rank`, and those that it takes from it, in all
 * directions. */
static int64_t dpari_pencil_count_boxes(const dpari_pencil_cut *cut, int32_t me, int32_t rank)
{
    dpari_pencil_box common;
    int64_t n = 0;
    int32_t direction;
    for (direction = 0; direction < DPARI_PENCIL_DIRECTIONS; direction++) {
        if (dpari_pencil_is_direction(direction)) {
            const dpari_pencil_box mine = dpari_pencil_box_of(cut, me, direction / 3);
            const dpari_pencil_box theirs = dpari_pencil_box_of(cut, rank, direction % 3);
            n += dpari_pencil_common(&mine, &theirs, &common) > 0;
        }
    }
    /* it takes in a direction what it gives in the opposite one */
    return 2 * n;
}

/* Allocates the plan with its tables. The first pass counts bytes, the second sets pointers. */
static dpar_status dpari_pencil_alloc(dpar_comm *comm, const dpari_pencil_cut *cut,
                                      dpari_pencil **made, dpar_why *why)
{
    dpar_comm *node = comm->node ? comm->node : comm;
    dpari_world *world = dpari_world_of(node);
    dpar_comm *of = world ? node : comm;
    dpari_pencil counted, *plan = &counted;
    dpari_room room = dpari_room_of(NULL);
    int64_t peers = 0, copies = 0;
    int32_t rank, pass;
    for (rank = 0; rank < comm->size; rank++) {
        const int64_t n = dpari_pencil_count_boxes(cut, comm->rank, rank);
        peers += n > 0;
        copies += n;
    }
    for (pass = 0; pass < 2; pass++) {
        dpari_pencil *at;
        room.used = 0;
        at = (dpari_pencil *)dpari_room_take(&room, 1, sizeof *at);
        plan = pass == 0 ? &counted : at;
        plan->x.line = (dpari_exchange_line *)dpari_room_take(&room, 1, sizeof *plan->x.line);
        dpari_exchange_room(&plan->x, &room, peers, 1, world ? node->size : 0);
        plan->give = (dpari_pencil_side *)dpari_room_take(&room, DPARI_PENCIL_DIRECTIONS * peers,
                                                          sizeof *plan->give);
        plan->take = (dpari_pencil_side *)dpari_room_take(&room, DPARI_PENCIL_DIRECTIONS * peers,
                                                          sizeof *plan->take);
        plan->flow = (dpari_exchange_flow *)dpari_room_take(&room, DPARI_PENCIL_DIRECTIONS * peers,
                                                            sizeof *plan->flow);
        plan->copies = (dpari_pencil_copy *)dpari_room_take(&room, copies, sizeof *plan->copies);
        if (pass == 0) {
            void *memory = NULL;
            const dpar_status status = dpar_comm_alloc(of, room.used, &memory);
            if (status != DPAR_OK) {
                return dpari_repeat(status, why, of->why.text);
            }
            room.at = (unsigned char *)memory;
        }
    }
    plan->owned = room.at;
    plan->x.comm = comm;
    plan->x.node = node;
    plan->x.world = world;
    plan->x.peers = (int32_t)peers;
    *made = plan;
    return DPAR_OK;
}

/* Sets the fields of a plan that do not depend on its peers. */
static void dpari_pencil_set(dpari_pencil *plan, const dpari_pencil_cut *cut, int32_t tag)
{
    int32_t d;
    plan->cut = *cut;
    plan->head.comm = plan->x.comm;
    plan->head.grid[0] = cut->grid[0];
    plan->head.grid[1] = cut->grid[1];
    for (d = 0; d < 3; d++) {
        const dpari_pencil_box box = dpari_pencil_box_of(cut, plan->x.comm->rank, d);
        plan->head.size[d] = cut->size[d];
        plan->head.bytes[d] = box.count[0] * box.count[1] * box.count[2] * cut->point;
    }
    plan->x.name = "pencil";
    plan->x.end = "dpar_pencil_end";
    plan->x.item = "array";
    plan->x.items = 1;
    plan->x.steps = 1;
    plan->x.step[0].modes = 1 << DPARI_EXCHANGE_FORWARD;
    plan->x.tag = tag;
    plan->x.self = -1;
}

/* Lists the ranks with which this one exchanges points in any of the directions, itself included.
 */
static void dpari_pencil_set_peers(dpari_pencil *plan)
{
    const int32_t me = plan->x.comm->rank;
    int32_t rank, n = 0;
    for (rank = 0; rank < plan->x.comm->size; rank++) {
        if (dpari_pencil_count_boxes(&plan->cut, me, rank) == 0) {
            continue;
        }
        plan->x.peer[n].rank = rank;
        plan->x.peer[n].world = rank == me ? 0 : -1; /* a rank sends no messages to itself */
        if (rank == me) {
            plan->x.self = n;
        }
        n++;
    }
}

/* Finds the peers that share memory, by sending each one the reference to this rank's words. */
static dpar_status dpari_pencil_meet(dpari_pencil *plan)
{
    const int32_t peers = plan->x.peers;
    dpar_comm *of = dpari_pencil_memory_of(plan);
    int64_t *record;
    void *memory = NULL;
    dpar_status status = dpari_exchange_find_node(&plan->x);
    int32_t i;
    if (status == DPAR_OK) {
        status = dpar_comm_alloc(of, 2 * peers * (int64_t)sizeof *record, &memory);
    }
    if (status != DPAR_OK) {
        return status;
    }
    record = (int64_t *)memory;
    for (i = 0; i < peers; i++) {
        record[i] = plan->x.world && plan->x.peer[i].world >= 0
                        ? (int64_t)dpari_ref(plan->x.world, plan->x.line, 1)
                        : 0;
    }
    status = dpari_exchange_records(&plan->x, record, record + peers, 1);
    for (i = 0; i < peers && status == DPAR_OK; i++) {
        dpari_exchange_peer *peer = &plan->x.peer[i];
        if (i == plan->x.self) {
            continue;
        }
        if (record[peers + i] == 0 || peer->world < 0) { /* one cannot reach the other's memory */
            peer->world = -1;
            continue;
        }
        plan->x.shared++;
        peer->line = (dpari_exchange_line *)dpari_at(plan->x.world, (uint64_t)record[peers + i]);
        if (!peer->line) {
            status = dpari_exchange_unmapped(&plan->x, (uint64_t)record[peers + i]);
        }
    }
    dpar_comm_release(of, memory);
    return status;
}

/* Prepares a copy of the box `common` between two arrays, each of which begins at the first point
 * of its box. */
static void dpari_pencil_set_copy(const dpari_pencil *plan, dpari_pencil_copy *copy,
                                  const dpari_pencil_box *common, const dpari_pencil_box *to,
                                  const dpari_pencil_box *from)
{
    int32_t d;
    dpari_pencil_prepare(copy, common->count, to->stride, from->stride, plan->cut.point,
                         dpari_cpu_wide());
    for (d = 0; d < 3; d++) {
        copy->to_at += (common->first[d] - to->first[d]) * to->stride[d] * plan->cut.point;
        copy->from_at += (common->first[d] - from->first[d]) * from->stride[d] * plan->cut.point;
    }
}

/* Plans what this rank gives to peer i in a direction. *used: bytes of the messages so far. *next:
 * the first copy that is not used yet. */
static void dpari_pencil_set_give(dpari_pencil *plan, int32_t direction, int32_t i, int64_t *used,
                                  dpari_pencil_copy **next)
{
    const int64_t entry = (int64_t)direction * plan->x.peers + i;
    const dpari_pencil_box mine =
        dpari_pencil_box_of(&plan->cut, plan->x.comm->rank, direction / 3);
    const dpari_pencil_box theirs =
        dpari_pencil_box_of(&plan->cut, plan->x.peer[i].rank, direction % 3);
    dpari_pencil_side *give = &plan->give[entry];
    dpari_pencil_box common, packed;
    if (i == plan->x.self || dpari_pencil_common(&mine, &theirs, &common) == 0) {
        return;
    }
    give->copy = (*next)++;
    if (plan->x.peer[i].world >= 0) { /* into a copy of the array, of the same shape */
        dpari_pencil_set_copy(plan, give->copy, &common, &mine, &mine);
        plan->flow[entry].lends[DPARI_EXCHANGE_FORWARD] = 1;
        plan->lends[direction] = 1;
        plan->meets[direction] = 1;
        return;
    }
    packed = common;
    dpari_pencil_pack_strides(&plan->cut, direction / 3, &packed);
    dpari_pencil_set_copy(plan, give->copy, &common, &packed, &mine);
    plan->flow[entry].out_bytes[DPARI_EXCHANGE_FORWARD] = give->copy->bytes;
    give->at = -1;
    if (!give->copy->whole[1]) {
        give->at = *used;
        *used += dpari_exchange_lines(give->copy->bytes);
    }
}

/* Plans what this rank takes from peer i in a direction, as dpari_pencil_set_give does. */
static void dpari_pencil_set_take(dpari_pencil *plan, int32_t direction, int32_t i, int64_t *used,
                                  dpari_pencil_copy **next)
{
    const int64_t entry = (int64_t)direction * plan->x.peers + i;
    const dpari_pencil_box mine =
        dpari_pencil_box_of(&plan->cut, plan->x.comm->rank, direction % 3);
    const dpari_pencil_box theirs =
        dpari_pencil_box_of(&plan->cut, plan->x.peer[i].rank, direction / 3);
    dpari_pencil_side *take = &plan->take[entry];
    dpari_pencil_box common, packed;
    if (dpari_pencil_common(&theirs, &mine, &common) == 0) {
        return;
    }
    take->copy = (*next)++;
    plan->flow[entry].takes[DPARI_EXCHANGE_FORWARD] = i != plan->x.self;
    if (plan->x.peer[i].world >= 0) {
        dpari_pencil_set_copy(plan, take->copy, &common, &mine, &theirs);
        plan->meets[direction] |= i != plan->x.self;
        return;
    }
    packed = common;
    dpari_pencil_pack_strides(&plan->cut, direction / 3, &packed);
    dpari_pencil_set_copy(plan, take->copy, &common, &mine, &packed);
    plan->flow[entry].in_bytes[DPARI_EXCHANGE_FORWARD] = take->copy->bytes;
    take->at = -1;
    if (!take->copy->whole[0] || !take->copy->same) {
        take->at = *used;
        *used += dpari_exchange_lines(take->copy->bytes);
    }
}

/* Plans all directions, and allocates the memory of messages, which all directions share. */
static dpar_status dpari_pencil_set_ways(dpari_pencil *plan)
{
    dpari_pencil_copy *next = plan->copies;
    int64_t out = 0, in = 0;
    void *memory = NULL;
    dpar_status status;
    int32_t direction, i;
    for (direction = 0; direction < DPARI_PENCIL_DIRECTIONS; direction++) {
        int64_t sends = 0, receives = 0;
        for (i = 0; i < plan->x.peers && dpari_pencil_is_direction(direction); i++) {
            dpari_pencil_set_give(plan, direction, i, &sends, &next);
            dpari_pencil_set_take(plan, direction, i, &receives, &next);
        }
        out = dpari_most(out, sends);
        in = dpari_most(in, receives);
    }
    if (out + in == 0) {
        return DPAR_OK;
    }
    status = dpar_comm_alloc(dpari_pencil_memory_of(plan), out + in, &memory);
    plan->out_messages = (unsigned char *)memory;
    plan->in_messages = plan->out_messages + (status == DPAR_OK ? out : 0);
    return status;
}

/* Releases the memory of a plan. */
static void dpari_pencil_release(dpari_pencil *plan)
{
    dpar_comm *of = dpari_pencil_memory_of(plan);
    dpar_comm_release(of, plan->out_messages);
    dpar_comm_release(of, plan->lent);
    dpar_comm_release(of, plan->owned);
}

/* Makes a plan for a grid. Collective. */
static dpar_status dpari_pencil_plan_grid(dpar_comm *comm, const dpari_pencil_cut *cut, int32_t tag,
                                          dpari_pencil **made, dpar_why *why)
{
    dpari_pencil *plan = NULL;
    dpar_status status = dpari_pencil_alloc(comm, cut, &plan, why);
    status = dpari_agree_on(comm, status, "pencil", NULL, NULL, why);
    if (status == DPAR_OK) {
        dpari_pencil_set(plan, cut, tag);
        dpari_pencil_set_peers(plan);
        status = dpari_pencil_meet(plan);
        if (status == DPAR_OK) {
            status = dpari_pencil_set_ways(plan);
        }
        if (status != DPAR_OK) {
            const dpar_comm *of = comm->status != DPAR_OK ? comm : dpari_pencil_memory_of(plan);
            status = dpari_repeat(status, why, of->why.text);
        }
        status = dpari_agree_on(comm, status, "pencil", NULL, NULL, why);
        dpari_pencil_set_functions(plan);
    }
    if (status != DPAR_OK && plan) {
        dpari_pencil_release(plan);
        return status;
    }
    *made = plan;
    return status;
}

/* ---- choosing the grid by measuring ---------------------------------------------------------- */

/* Transposes from 2 over 1 to 0 and back a few times. Each rank times its fastest round, and
 * *seconds is the longest of these times. */
static dpar_status dpari_pencil_time(dpari_pencil *plan, void *a, void *b, double *seconds)
{
    static const int32_t axis[5] = {2, 1, 0, 1, 2};
    dpar_comm *comm = plan->head.comm;
    double least = 0.0;
    int32_t round, k;
    for (round = 0; round < DPARI_PENCIL_ROUNDS; round++) {
        dpar_status status = dpar_barrier(comm, NULL);
        const double began = dpari_os_now();
        for (k = 0; k < 4 && status == DPAR_OK; k++) {
            const int odd = k % 2;
            status =
                dpar_pencil_transpose(&plan->head, axis[k], axis[k + 1], odd ? b : a, odd ? a : b);
        }
        if (status != DPAR_OK) {
            return status;
        }
        if (round == 0 || dpari_os_now() - began < least) {
            least = dpari_os_now() - began;
        }
    }
    return dpar_all_reduce(comm, &least, seconds, 1, DPAR_F64, DPAR_MAX, NULL);
}

/* Makes a plan for a grid, measures it and frees the plan. Collective. */
static dpar_status dpari_pencil_try(dpar_comm *comm, const dpari_pencil_cut *cut, int32_t tag,
                                    double *seconds, dpar_why *why)
{
    dpari_pencil *plan = NULL;
    void *a, *b = NULL;
    dpar_status status = dpari_pencil_plan_grid(comm, cut, tag, &plan, why);
    if (status != DPAR_OK) {
        return status;
    }
    a = dpar_pencil_array(&plan->head);
    if (a) {
        b = dpar_pencil_array(&plan->head);
    }
    if (!b) {
        status = dpari_repeat(DPAR_E_MEMORY, why, comm->why.text);
    }
    status = dpari_agree_on(comm, status, "pencil", NULL, NULL, why);
    if (status == DPAR_OK) {
        status = dpari_pencil_time(plan, a, b, seconds);
        if (status != DPAR_OK) {
            status = dpari_repeat(status, why, comm->why.text);
        }
    }
    dpar_comm_release(comm, a);
    dpar_comm_release(comm, b);
    (void)dpar_pencil_free(&plan->head);
    return status;
}

/* Chooses the grid. Collective if it is measured. */
static dpar_status dpari_pencil_choose(dpar_comm *comm, const dpar_pencil_desc *desc,
                                       dpari_pencil_cut *cut, dpar_why *why)
{
    int32_t grid[DPARI_PENCIL_MOST_GRIDS][2], best = 0, i;
    const int32_t n = dpari_pencil_grids(cut, comm->size, grid);
    double least = 0.0, seconds;
    if (n == 0) {
        return dpari_wrong(
            why,
            "pencil: grid is %d x %d, but the product of its numbers must be %d, the "
            "number of ranks",
            cut->grid[0], cut->grid[1], comm->size);
    }
    for (i = 0; i < n && n > 1 && desc->measure; i++) {
        dpar_status status;
        cut->grid[0] = grid[i][0];
        cut->grid[1] = grid[i][1];
        status = dpari_pencil_try(comm, cut, desc->tag, &seconds, why);
        if (status != DPAR_OK) {
            return status;
        }
        if (i == 0 || seconds < least) {
            least = seconds;
            best = i;
        }
    }
    cut->grid[0] = grid[best][0];
    cut->grid[1] = grid[best][1];
    return DPAR_OK;
}

/* ---- the public functions -------------------------------------------------------------------- */

DPAR_API DPARI_COLD dpar_status dpar_pencil_make(dpar_comm *comm, const dpar_pencil_desc *desc,
                                                 dpar_pencil **pencil, dpar_why *why)
{
    dpari_pencil_cut cut;
    dpari_pencil *plan = NULL;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_pencil_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    dpari_zero(&cut, sizeof cut);
    if (!desc || !pencil) {
        status = dpari_wrong(why, "dpar_pencil_make: desc or pencil is NULL");
    } else {
        status = dpari_pencil_check_desc(comm, desc, &cut, why);
    }
    status = dpari_agree_on(comm, status, "pencil", dpari_pencil_state, desc, why);
    if (status == DPAR_OK) {
        status = dpari_pencil_choose(comm, desc, &cut, why);
    }
    if (status == DPAR_OK) {
        status = dpari_pencil_plan_grid(comm, &cut, desc->tag, &plan, why);
    }
    if (status == DPAR_OK) {
        *pencil = &plan->head;
    }
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_pencil_free(dpar_pencil *pencil)
{
    dpari_pencil *plan = dpari_pencil_of(pencil);
    dpar_status status;
    int32_t refused;
    if (!pencil) {
        return DPAR_OK;
    }
    status = dpari_exchange_close(&plan->x, "dpar_pencil_free: ", &refused);
    if (!refused) {
        dpari_pencil_release(plan);
    }
    return status;
}

DPAR_API dpar_status dpar_pencil_box(const dpar_pencil *pencil, int32_t axis, int64_t *first,
                                     int64_t *count, int64_t *stride)
{
    const dpari_pencil *plan = dpari_pencil_of(pencil);
    dpari_pencil_box box;
    int32_t d;
    if (!pencil) {
        return DPAR_E_ARG;
    }
    if (axis < 0 || axis > 2) {
        return dpari_comm_wrong(pencil->comm, "dpar_pencil_box: axis %d is not 0, 1 or 2", axis);
    }
    box = dpari_pencil_box_of(&plan->cut, pencil->comm->rank, axis);
    for (d = 0; d < 3; d++) {
        if (first) {
            first[d] = box.first[d];
        }
        if (count) {
            count[d] = box.count[d];
        }
        if (stride) {
            stride[d] = box.stride[d];
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD void *dpar_pencil_array(dpar_pencil *pencil)
{
    const int64_t *bytes;
    void *memory = NULL;
    if (!pencil) {
        return NULL;
    }
    bytes = pencil->bytes;
    (void)dpar_comm_alloc(pencil->comm, dpari_most(bytes[0], dpari_most(bytes[1], bytes[2])),
                          &memory); /* NULL if it fails */
    return memory;
}
