/* SPDX-License-Identifier: MIT-0 */
/* Plans exchanges: decides about the steps, divides the plan's memory into its tables, and connects
 * it with the plans of the peers.
 *
 * Planning walks the transfers of each field (halo_walk.c) and groups the boxes by peer into items
 * (halo_items.c).
 * Peers that share memory exchange references to staging memory and arrays; other peers exchange
 * messages. Both ranks make the same decisions from the same numbers, so that nothing else needs to
 * be negotiated. halo_plan.h explains how the exchange then runs.
 *
 * First each rank checks its fields (halo_fields.c) and computes the size of its plan, so that the
 * memory can be allocated at once. Then the ranks agree that all have succeeded and describe the
 * same fields. After that, a failure on one rank is reported to the other ranks at the next
 * agreement. */
#include "halo_exchange.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/group.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "../comm/world.h"
#include "../host/cpu.h"
#include "../host/kernel.h"
#include "../host/mem.h"
#include "../index/redistribute.h"
#include "halo_box_groups.h"
#include "halo_exchange_private.h"
#include "halo_fields.h"
#include "halo_items.h"
#include "halo_mem.h"
#include "halo_overlap.h"
#include "halo_plan.h"
#include "halo_prepare.h"
#include "halo_run.h"
#include "halo_walk.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* The numbers that decide how large a plan is. items and peers are upper bounds. */
typedef struct dpari_hx_size {
    int64_t items, peers, moves; /* moves: number of items in memory that the CPU does not reach */
    int32_t fields, ranks, steps;
    int32_t ordered; /* 1 if the plan exchanges dim by dim */
    int32_t cut;     /* the only dim that is cut, counted from the last one, if it has steps of its
                        own (DPARI_HX_CUT); otherwise -1 */
    int32_t forward; /* number of steps of a forward exchange */
} dpari_hx_size;

/* Returns the most words that a rank sends to a peer in one message of planning. */
static int64_t dpari_hx_words(int32_t fields, int32_t steps)
{
    return DPARI_HX_HEAD * (int64_t)steps + (int64_t)fields * DPARI_HX_WORDS;
}

/* Divides the memory of a plan into its tables, and computes its size. If memory is NULL, only
 * computes the size and returns NULL. */
static dpar_halo_plan *dpari_hx_layout(const dpari_hx_size *size, void *memory, int64_t *bytes)
{
    dpari_room room;
    dpar_halo_plan none, *x;
    int64_t i;
    room.at = (unsigned char *)memory;
    room.used = 0;
    x = (dpar_halo_plan *)dpari_room_take(&room, 1, sizeof *x);
    x = memory ? x : &none;
    dpari_exchange_room(&x->x, &room, size->peers, size->steps, size->ranks);
    x->field = (dpar_halo_field *)dpari_room_take(&room, size->fields, sizeof *x->field);
    x->array = (dpari_hx_array *)dpari_room_take(&room, size->fields, sizeof *x->array);
    x->part = (unsigned char **)dpari_room_take(&room, 2 * size->fields, sizeof *x->part);
    x->peer = (dpari_hx_peer *)dpari_room_take(&room, size->peers, sizeof *x->peer);
    x->peer_of = (int32_t *)dpari_room_take(&room, size->ranks, sizeof *x->peer_of);
    x->item = (dpari_hx_item *)dpari_room_take(&room, size->items, sizeof *x->item);
    x->spot = (dpari_stride_spot *)dpari_room_take(&room, 2 * size->items,
                                                   DPARI_STRIDE_FEW * sizeof *x->spot);
    x->box = (dpar_mem_box *)dpari_room_take(&room, size->moves, sizeof *x->box);
    x->span = (int64_t *)dpari_room_take(&room, size->fields, 4 * sizeof *x->span);
    x->record = (int64_t *)dpari_room_take(
        &room, 2 * size->peers * dpari_hx_words(size->fields, size->steps), sizeof *x->record);
    for (i = 0; i < size->peers; i++) {
        void *at = dpari_room_take(&room, 2 * size->fields, sizeof *x->peer[0].at);
        void *array = dpari_room_take(&room, size->fields, sizeof *x->array);
        void *flow = dpari_room_take(&room, size->steps, sizeof *x->peer[0].flow);
        if (memory) {
            x->peer[i].flow = (dpari_hx_flow *)flow;
            x->peer[i].at = (const unsigned char **)at;
            x->peer[i].array = (dpari_hx_array *)array;
        }
    }
    *bytes = room.used;
    return (dpar_halo_plan *)memory;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Adds the dims that are cut to *steps, as bits counted from the last dim. Returns 0 if the points
 * are not cells or the mesh does more than cut dims: such fields are not ordered unless the caller
 * asks for it. */
static int dpari_hx_meetings(const dpar_halo *halo, uint32_t *steps)
{
    int32_t i;
    for (i = 0; i < halo->grid.dims; i++) {
        if (halo->points[i] != DPAR_HALO_AT_CELLS) {
            return 0;
        }
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (halo->grid.mesh.axis[i].size <= 1) {
            continue;
        }
        if (halo->grid.axis[i].kind != DPAR_PLACEMENT_SHARD) {
            return 0;
        }
        *steps |= (uint32_t)1 << (halo->grid.dims - 1 - halo->grid.axis[i].dim);
    }
    return 1;
}

/* True if a plan with desc.ordered 0 exchanges dim by dim, because that takes no more waits. Edges
 * and corners are then parts of other boxes, rows are complete along all dims but one, and ranks
 * still wait for each other only once.
 *
 * *cut receives the dim that is cut, counted from the last one. Its messages wait for no other
 * step, while each rank fills the halos of the other dims itself (DPARI_HX_CUT). *cut is -1 if no
 * dim is cut, or only the last one: its halos have scattered points in place of rows, which cost
 * more than waiting (blocks of 64^3 with a halo of 2: 24 us if ranks wait, 27 us if they do not).
 */
static int dpari_hx_prefers_order(const dpar_halo_plan_desc *desc, int32_t *cut)
{
    uint32_t meetings = 0;
    int32_t i, corners = 0;
    for (i = 0; i < desc->field_count; i++) {
        const dpar_halo_field *field = &desc->field[i];
        const dpar_halo *halo = field->halo;
        corners |= halo->shape != DPAR_STENCIL_STAR && halo->grid.dims > 1;
        if (!dpari_hx_can_order(field) || dpari_hx_mem(field) ||
            !dpari_hx_meetings(halo, &meetings)) {
            return 0;
        }
    }
    if (desc->shared || !corners || (meetings & (meetings - 1)) != 0) {
        return 0;
    }
    *cut = -1;
    if (meetings > 1) { /* *cut is the number of the only bit */
        *cut = 0;
        while (meetings > 1) {
            ++*cut;
            meetings >>= 1;
        }
    }
    return 1;
}

/* Computes the number of steps of a plan of `dims` dims. With a cut dim, the steps of an adjoint
 * follow those of a forward exchange. Otherwise both have the same steps. */
static void dpari_hx_count_steps(dpari_hx_size *size, int32_t dims)
{
    if (size->cut >= 0) {
        size->forward = 2 * dims - 1;
        size->steps = size->forward + dims;
        return;
    }
    size->forward = size->ordered ? dims : 1;
    size->steps = size->forward;
}

/* Returns step i of a plan, or for -1 the step that exchanges everything at once.
 *
 * With a cut dim, a forward exchange has these steps: the halos of the other dims next to own
 * planes, the cut dim, and the halos of the other dims next to the received planes. An adjoint has
 * one step for each dim. */
static dpari_hx_step dpari_hx_step_of(const dpari_hx_size *size, int32_t i)
{
    const int32_t others = size->steps - size->forward - 1; /* dims that are not cut */
    dpari_hx_step step;
    dpari_zero(&step, sizeof step);
    step.modes = 1 << DPAR_HALO_FORWARD | 1 << DPAR_HALO_ADJOINT;
    step.number = size->ordered ? i : -1;
    step.cut = size->cut;
    if (i < 0 || size->cut < 0) {
        return step;
    }
    if (i >= size->forward) {
        step.modes = 1 << DPAR_HALO_ADJOINT;
        step.along = DPARI_HX_WIDE;
        step.number = i - size->forward;
        return step;
    }
    step.modes = 1 << DPAR_HALO_FORWARD;
    if (i == others) {
        step.along = DPARI_HX_CUT;
        step.number = size->cut;
    } else {
        const int32_t k = i < others ? i : i - others - 1;
        step.along = i < others ? DPARI_HX_OWN_PLANES : DPARI_HX_HALO_PLANES;
        step.number = k + (k >= size->cut);
    }
    return step;
}

/* Adds what a step moves for one field, in both directions, to the size of the plan. */
static dpar_status dpari_hx_measure_step(const dpar_halo_plan_desc *desc,
                                         const dpar_halo_field *field, int32_t rank,
                                         const dpari_hx_step *step, dpari_hx_size *size,
                                         dpar_why *why)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t direction;
    for (direction = 0; direction < 2; direction++) {
        const dpar_status status =
            dpari_hx_begin_walk(&walk, field, rank, step, direction, dpari_hx_moves(desc), why);
        if (status == DPAR_DONE) {
            continue;
        }
        if (status != DPAR_OK) {
            return status;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(field, &transfer);
            size->items += parts;
            if (dpari_hx_mem(field)) {
                size->moves += parts;
            }
            size->peers += transfer.peer != rank;
        }
    }
    return DPAR_OK;
}

/* Checks all fields, decides about the order, and computes the size of the plan. */
static dpar_status dpari_hx_measure(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                    dpari_hx_size *size, dpar_why *why)
{
    const dpar_halo_field *fields = desc->field;
    const int32_t n = desc->field_count;
    /* If desc.ordered is 0, another rank may be unable to exchange dim by dim. Therefore the boxes
     * of an exchange of all dims at once, which is step -1, are counted too. */
    const int32_t first = desc->ordered ? 0 : -1;
    dpar_status status;
    int32_t i, number, end, dims = 1;
    dpari_zero(size, sizeof *size);
    size->fields = n;
    size->ranks = comm->size;
    size->cut = -1;
    status = dpari_hx_check_fields(comm, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    size->ordered = desc->ordered || dpari_hx_prefers_order(desc, &size->cut);
    for (i = 0; i < n && size->ordered; i++) {
        dims = (int32_t)dpari_most(dims, fields[i].halo->grid.dims);
    }
    dpari_hx_count_steps(size, dims);
    end = size->ordered ? size->steps : 0;
    for (i = 0; i < n; i++) {
        for (number = first; number < end; number++) {
            const dpari_hx_step step = dpari_hx_step_of(size, number);
            status = dpari_hx_measure_step(desc, &fields[i], comm->rank, &step, size, why);
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    size->peers = dpari_least(size->peers, comm->size);
    return DPAR_OK;
}

/* Checks a descriptor and computes the size of its plan. Local. */
static dpar_status dpari_hx_check_desc(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                       dpari_hx_size *size, dpar_why *why)
{
    if (!desc->field) {
        return dpari_wrong(why, "halo: desc.field is NULL");
    }
    if (desc->field_count < 1 || desc->field_count > 4096) {
        return dpari_wrong(why, "halo: desc.field_count is %d; it must be 1 to 4096",
                           desc->field_count);
    }
    if (desc->shared && desc->ordered) {
        return dpari_wrong(why,
                           "halo: desc.shared and desc.ordered cannot both be 1: shared points are "
                           "exchanged at once");
    }
    if (((desc->ordered | desc->shared | desc->timers) & ~1) && desc->shared != DPARI_HX_COMBINE) {
        return dpari_wrong(why,
                           "halo: desc.ordered is %d, shared %d, timers %d; each must be 0 or 1",
                           desc->ordered, desc->shared, desc->timers);
    }
    if (desc->method < DPAR_HALO_AUTO || desc->method > DPAR_HALO_DIRECT || desc->run_bytes < 0 ||
        desc->tag < 0) {
        return dpari_wrong(
            why,
            "halo: desc.method is %d (0 to 3 allowed), run_bytes %ld and tag %d (0 or more "
            "allowed)",
            desc->method, desc->run_bytes, desc->tag);
    }
    return dpari_hx_measure(comm, desc, size, why);
}

DPARI_API DPARI_COLD dpar_status dpari_hx_bytes(const dpar_comm *comm,
                                                const dpar_halo_plan_desc *desc, int64_t *bytes,
                                                dpar_why *why)
{
    dpari_hx_size size;
    const dpar_status status = dpari_hx_check_desc(comm, desc, &size, why);
    if (status == DPAR_OK) {
        (void)dpari_hx_layout(&size, NULL, bytes);
    }
    return status;
}

/* ---- agreeing -------------------------------------------------------------------------------- */

/* Makes all ranks exchange dim by dim, or none. Some ranks may be unable to, because arrays may be
 * in device memory, or compact, on some ranks only. Collective. */
static dpar_status dpari_hx_agree_on_order(dpar_comm *comm, dpari_hx_size *size, dpar_why *why)
{
    int32_t all = 0;
    const dpar_status status =
        dpar_all_reduce(comm, &size->ordered, &all, 1, DPAR_I32, DPAR_MIN, NULL);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (!all) {
        size->ordered = 0;
        size->cut = -1;
        dpari_hx_count_steps(size, 1);
    }
    return DPAR_OK;
}

/* Returns the record of `words` words that is sent to peer i. */
static int64_t *dpari_hx_to_peer(const dpar_halo_plan *plan, int32_t i, int64_t words)
{
    return plan->record + plan->x.peers * dpari_hx_words(plan->fields, plan->x.steps) + i * words;
}

/* Sends the records of dpari_hx_to_peer, and receives those of the peers in plan->record. */
static dpar_status dpari_hx_exchange_records(dpar_halo_plan *plan, int64_t words)
{
    return dpari_exchange_records(&plan->x, dpari_hx_to_peer(plan, 0, words), plan->record, words);
}

/* ---- peers ----------------------------------------------------------------------------------- */

/* Lists the ranks with which this rank exchanges boxes, in ascending order. */
static void dpari_hx_mark_peers(dpar_halo_plan *plan)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, direction, s;
    for (i = 0; i < plan->fields; i++) {
        for (s = 0; s < plan->x.steps; s++) {
            for (direction = 0; direction < 2; direction++) {
                dpar_status walks =
                    dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, &plan->step[s],
                                        direction, dpari_hx_moves(&plan->options), NULL);
                while (walks == DPAR_OK && dpari_hx_next(&walk, &transfer)) {
                    plan->peer_of[transfer.peer] = 1;
                }
            }
        }
    }
    plan->peer_of[plan->comm->rank] = 0;
    for (i = 0; i < plan->comm->size; i++) {
        if (plan->peer_of[i]) {
            plan->x.peer[plan->x.peers].rank = i;
            plan->x.peer[plan->x.peers].world = -1;
            plan->peer_of[i] = ++plan->x.peers;
        }
    }
}

/* Exchanges dpari_hx_told of all fields with the peers. */
static dpar_status dpari_hx_exchange_arrays(dpar_halo_plan *plan)
{
    const int64_t words = (int64_t)plan->fields * DPARI_HX_WORDS;
    dpar_status status;
    int32_t i, f;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *record = dpari_hx_to_peer(plan, i, words);
        for (f = 0; f < plan->fields; f++, record += DPARI_HX_WORDS) {
            dpari_hx_told *told = &plan->array[f].told;
            told->reaches = plan->x.peer[i].world >= 0;
            dpari_kern_copy(record, told, (int64_t)sizeof *told, 0);
        }
    }
    status = dpari_hx_exchange_records(plan, words);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const int64_t *record = plan->record + i * words;
        for (f = 0; f < plan->fields; f++, record += DPARI_HX_WORDS) {
            dpari_hx_array *array = &plan->peer[i].array[f];
            dpari_hx_dense(array, &plan->field[f], plan->x.peer[i].rank);
            dpari_kern_copy(&array->told, record, (int64_t)sizeof array->told, 0);
            array->compact = array->told.compact;
            if (!array->told.reaches) {
                plan->x.peer[i].world = -1;
            }
        }
    }
    return DPAR_OK;
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the first field that is not in the communicator's memory, or plan->fields if all are. */
static int32_t dpari_hx_first_outside(const dpar_halo_plan *plan)
{
    int32_t i;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_mem(&plan->field[i]) != plan->comm->mem) {
            break;
        }
    }
    return i;
}

/* Allocates the plan's registered memory. It holds the lines, the references to arrays, two halves
 * of staging memory (three parts if devices of other ranks may read it), messages that arrive, and
 * a buffer for the largest item in memory that the CPU does not reach. */
static dpar_status dpari_hx_alloc(dpar_halo_plan *plan, dpar_why *why)
{
    const int64_t lines = plan->x.world ? plan->x.steps * (int64_t)sizeof(dpari_exchange_line) : 0;
    const int64_t refs =
        plan->x.world ? dpari_exchange_lines((int64_t)sizeof(uint64_t) * 2 * plan->fields) : 0;
    dpar_comm *of = plan->x.world ? plan->x.node : plan->comm;
    int64_t turns = 2;
    void *memory = NULL;
    dpar_status status;
    int32_t outside = 0;
    plan->in_order = !plan->x.world && plan->comm->mem != NULL;
    plan->nears = !plan->x.world && plan->x.steps == 1 &&
                  plan->options.method != DPAR_HALO_MESSAGES && of->engine.alloc_shared != NULL;
    turns += plan->nears;
    if (plan->in_order) {
        outside = dpari_hx_first_outside(plan);
    }
    plan->memory_bytes = lines + refs + turns * plan->turn + plan->arrive_bytes + plan->look_bytes;
    if (plan->nears) {
        status = of->engine.alloc_shared(of, plan->memory_bytes,
                                         plan->in_order && outside == plan->fields, &memory);
    } else {
        status = dpar_comm_alloc(of, plan->memory_bytes, &memory);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, of->why.text);
    }
    plan->x.memory = (unsigned char *)memory;
    if (plan->in_order && outside < plan->fields) {
        return dpari_wrong(
            why,
            "field %d of rank %d must be in the communicator's memory: its mem must be "
            "comm->mem",
            outside, plan->comm->rank);
    }
    plan->x.line = (dpari_exchange_line *)memory;
    plan->refs = (uint64_t *)(void *)(plan->x.memory + lines);
    plan->staging = plan->x.memory + lines + refs;
    plan->arrivals = plan->staging + turns * plan->turn;
    plan->look = plan->in_order ? NULL : plan->arrivals + plan->arrive_bytes;
    return DPAR_OK;
}

/* Records where the parts of field f are, as addresses for this rank and as references for its
 * peers. */
static DPARI_COLD void dpari_hx_bind_field(dpar_halo_plan *plan, int32_t f)
{
    const dpar_halo_field *field = &plan->field[f];
    plan->part[2 * f] = (unsigned char *)field->data;
    plan->part[2 * f + 1] = (unsigned char *)field->compact_halo;
    if (plan->x.world) { /* the reference is 0 if there is no array or peers cannot read it */
        plan->refs[2 * f] = field->data ? dpari_ref(plan->x.world, field->data, 1) : 0;
        plan->refs[2 * f + 1] =
            field->compact_halo ? dpari_ref(plan->x.world, field->compact_halo, 1) : 0;
    }
}

/* Finds the memory of the plan of peer i: its words and staging memory if the peer shares memory
 * with this rank, or only its staging memory if this rank's device can reach it. record: the peer's
 * record. */
static dpar_status dpari_hx_reach_peer(dpar_halo_plan *plan, int32_t i, const int64_t *record,
                                       dpar_why *why)
{
    dpari_hx_peer *peer = &plan->peer[i];
    dpari_exchange_peer *run = &plan->x.peer[i];
    unsigned char *memory;
    if (run->world >= 0) {
        memory = (unsigned char *)dpari_at(plan->x.world, (uint64_t)record[6]);
        if (memory == NULL) {
            dpar_text text;
            dpari_text_why(&text, why);
            dpari_put_unmapped(&text, plan->x.world, (uint64_t)record[6]);
            return DPAR_E_MEMORY;
        }
        run->line = (dpari_exchange_line *)(void *)memory;
        peer->refs = (const uint64_t *)(const void *)(run->line + plan->x.steps);
        peer->staging = memory + (plan->staging - plan->x.memory);
        plan->x.shared++;
        peer->turn = record[5];
        return DPAR_OK;
    }
    if (record[7] && plan->nears) { /* both must reach the other's memory */
        peer->staging =
            (unsigned char *)plan->comm->engine.peer_address(plan->comm, plan->x.memory, run->rank);
        run->reached = peer->staging != NULL;
        peer->turn = record[5];
    }
    if (run->reached) {
        plan->x.rank_of[plan->x.reached] = run->rank;
        plan->x.reached++;
    }
    return DPAR_OK;
}

/* Exchanges positions in staging memory with each peer, and checks that each rank sends the boxes
 * that the other one expects. */
static dpar_status dpari_hx_exchange_places(dpar_halo_plan *plan, dpar_why *why)
{
    const int64_t words = DPARI_HX_HEAD * (int64_t)plan->x.steps;
    dpar_status status;
    int32_t i, s;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *r = dpari_hx_to_peer(plan, i, words);
        for (s = 0; s < plan->x.steps; s++, r += DPARI_HX_HEAD) {
            const dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            r[0] = (int64_t)flow->hash[1]; /* the peer compares it with the hash of its R */
            r[1] = (int64_t)flow->hash[0];
            r[2] = flow->out_at;
            r[3] = run->out_bytes[0];
            r[4] = run->out_bytes[1];
            r[5] = plan->turn;
            r[6] = plan->x.world ? (int64_t)dpari_ref(plan->x.world, plan->x.memory, 1) : 0;
            /* 1 if this rank's device reaches the peer's memory */
            r[7] = plan->nears && plan->comm->engine.peer_address(plan->comm, plan->x.memory,
                                                                  plan->x.peer[i].rank) != NULL;
        }
    }
    status = dpari_hx_exchange_records(plan, words);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const dpari_exchange_peer *peer = &plan->x.peer[i];
        const int64_t *r = plan->record + i * words;
        status = dpari_hx_reach_peer(plan, i, r, why);
        if (status != DPAR_OK) {
            return status;
        }
        for (s = 0; s < plan->x.steps; s++, r += DPARI_HX_HEAD) {
            dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            if ((uint64_t)r[0] != flow->hash[0] || (uint64_t)r[1] != flow->hash[1] ||
                r[3] != run->in_bytes[0] || r[4] != run->in_bytes[1]) {
                return dpari_say(
                    DPAR_E_MISMATCH, why,
                    "ranks %d and %d expect different boxes from each other: their grids differ",
                    plan->comm->rank, peer->rank);
            }
            if (!dpari_exchange_sends(&plan->x, i)) {
                flow->in_at = r[2];
            }
        }
    }
    return DPAR_OK;
}

/* Connects the plan's memory, which all ranks have allocated, with that of the peers. */
static dpar_status dpari_hx_connect(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_status status;
    int32_t i, s;
    for (i = 0; i < plan->fields; i++) {
        dpari_hx_bind_field(plan, i);
    }
    plan->version = 1;
    for (s = 0; s < plan->x.steps && plan->x.world; s++) {
        plan->x.line[s].place[DPARI_HX_VERSION] = 1;
    }
    status = dpari_hx_exchange_places(plan, why);
    if (status == DPAR_OK) {
        status = dpari_hx_pin_all(plan, 1);
        if (status != DPAR_OK) {
            (void)dpari_say(status, why,
                            "rank %d: the plan's memory (%ld bytes) cannot be pinned: %s",
                            plan->comm->rank, plan->memory_bytes, dpar_status_text(status));
        }
    }
    return dpari_agree(plan->comm, status, why);
}

/* Does the collective part of planning, after the ranks have agreed on the fields. */
static dpar_status dpari_hx_plan(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_status status = dpari_exchange_find_node(&plan->x);
    if (status == DPAR_OK) {
        status = dpari_hx_exchange_arrays(plan);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, plan->comm->why.text);
    }
    dpari_hx_list_items(plan);
    status = dpari_agree(plan->comm, dpari_hx_alloc(plan, why), why);
    if (status == DPAR_OK) {
        status = dpari_hx_connect(plan, why);
    }
    if (status != DPAR_OK) {
        if (plan->x.memory) {
            (void)dpari_hx_pin_all(plan, 0);
            dpar_comm_release(plan->x.world ? plan->x.node : plan->comm, plan->x.memory);
        }
        return status;
    }
    dpari_hx_finish_items(plan);
    return DPAR_OK;
}

/* Describes this rank's arrays, and finds out whether peers can read them in place. If arrays are
 * bound later, their memory is not known yet. Peers then read them in place only if the method is
 * DPAR_HALO_DIRECT, in which case dpar_halo_plan_bind requires registered memory. */
static void dpari_hx_own_arrays(dpar_halo_plan *plan, int32_t later)
{
    const int32_t method = plan->options.method;
    const int allowed = later ? method == DPAR_HALO_DIRECT : method != DPAR_HALO_PACKED;
    const int shares = plan->x.world && allowed;
    int32_t i;
    for (i = 0; i < plan->fields; i++) {
        const dpar_halo_field *field = &plan->field[i];
        dpari_hx_array_of(&plan->array[i], field, plan->comm->rank);
        plan->array[i].told.reach[0] = shares && !plan->array[i].told.elsewhere && field->data &&
                                       (later || dpari_ref(plan->x.world, field->data, 1) != 0);
        plan->array[i].told.reach[1] = shares && !plan->array[i].told.elsewhere &&
                                       field->compact_halo &&
                                       dpari_ref(plan->x.world, field->compact_halo, 1) != 0;
    }
}

/* Checks that arrays in memory of dpar_comm_alloc end inside their allocation. span: set by
 * dpari_hx_disjoint. */
static dpar_status dpari_hx_check_heap(const dpari_world *world, const dpar_halo_field *fields,
                                       int32_t n, int32_t rank, const int64_t *span, dpar_why *why)
{
    int64_t within;
    int32_t p;
    if (!world) {
        return DPAR_OK;
    }
    for (p = 0; p < 2 * n; p++) {
        if (!dpari_hx_mem(&fields[p / 2]) &&
            !dpari_heap_holds(world, span[2 * p], span[2 * p + 1], &within)) {
            return dpari_wrong(
                why,
                "field %d: its elements on rank %d extend over %ld bytes, but the allocation "
                "of dpar_comm_alloc that has the first of them ends after %ld bytes",
                p / 2, rank, span[2 * p + 1] - span[2 * p], within);
        }
    }
    return DPAR_OK;
}

/* Checks that neither the arrays nor the plan's memory overlap. `memory` is used as scratch. */
static dpar_status dpari_hx_check_overlaps(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                           const dpari_hx_size *size, void *memory, int64_t need,
                                           dpar_why *why)
{
    const dpar_comm *node = comm->node ? comm->node : comm;
    int64_t bytes, *span;
    dpar_status status =
        dpari_hx_clear_of(desc->field, size->fields, comm->rank, memory, need, why);
    if (status != DPAR_OK) {
        return status;
    }
    span = dpari_hx_layout(size, memory, &bytes)->span;
    status = dpari_hx_disjoint(desc->field, size->fields, comm->rank, span, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpari_hx_check_heap(dpari_world_of(node), desc->field, size->fields, comm->rank, span,
                               why);
}

/* Does the local part of planning: checks the descriptor, and provides and checks the memory. */
static dpar_status dpari_hx_prepare_plan(const dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                         int32_t later, dpari_hx_size *size, int64_t *need,
                                         void **memory, dpar_why *why)
{
    dpar_status status = dpari_hx_check_desc(comm, desc, size, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpari_hx_layout(size, NULL, need);
    /* allocates pages of the host, because the communicator's memory may be on a device */
    status = dpari_object_memory(NULL, desc->memory, desc->bytes, *need, "halo", memory, why);
    if (status != DPAR_OK || later) {
        return status;
    }
    return dpari_hx_check_overlaps(comm, desc, size, *memory, *need, why);
}

/* Sets what the exchange needs of the descriptor. */
static void dpari_hx_set_exchange(dpar_halo_plan *plan, dpar_comm *comm,
                                  const dpar_halo_plan_desc *desc)
{
    dpari_exchange *x = &plan->x;
    x->comm = comm;
    x->node = comm->node ? comm->node : comm;
    x->world = desc->method == DPAR_HALO_MESSAGES ? NULL : dpari_world_of(x->node);
    x->name = "halo";
    x->end = "dpar_halo_plan_end";
    x->item = "field";
    x->items = desc->field_count;
    x->tag = desc->tag;
    x->timers = desc->timers;
    x->together = 1; /* a device orders its operations: a receive alone would wait for ever */
    x->self = -1;
    dpari_hx_set_functions(plan);
}

/* Returns dpari_cpu_wide. It is asked once for each world, because a virtual machine takes 30 us to
 * answer. */
static int32_t dpari_hx_wide(dpari_world *world)
{
    if (!world) {
        return dpari_cpu_wide();
    }
    if (world->wide == 0) {
        world->wide = 1 + dpari_cpu_wide();
    }
    return world->wide - 1;
}

/* Divides the plan's memory into tables, and sets the fields that need no other rank. */
static dpar_halo_plan *dpari_hx_describe_plan(dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                              const dpari_hx_size *size, void *memory, int64_t need)
{
    dpar_halo_plan *plan;
    int64_t bytes;
    int32_t i;
    dpari_zero(memory, (size_t)need);
    plan = dpari_hx_layout(size, memory, &bytes);
    plan->comm = comm;
    dpari_hx_set_exchange(plan, comm, desc);
    plan->options = *desc;
    plan->options.field = plan->field;
    plan->wide = dpari_hx_wide(plan->x.world);
    plan->fields = desc->field_count;
    plan->x.steps = size->steps;
    plan->items = size->items;
    for (i = 0; i < plan->fields; i++) {
        plan->field[i] = desc->field[i];
        plan->elsewhere |= dpari_hx_mem(&desc->field[i]) != NULL;
    }
    for (i = 0; i < plan->x.steps; i++) {
        plan->step[i] = dpari_hx_step_of(size, i);
        plan->x.step[i].modes = plan->step[i].modes;
        plan->x.step[i].line = size->cut < 0 ? i : 0; /* ranks meet in only one step of each mode */
    }
    plan->forward = size->forward;
    plan->x.early = size->cut < 0 ? 0 : size->steps - size->forward - 1;
    return plan;
}

DPARI_API DPARI_COLD dpar_status dpari_hx_open(dpar_comm *comm, const dpar_halo_plan_desc *desc,
                                               int32_t later, dpar_halo_plan **plan, dpar_why *why)
{
    dpar_halo_plan *x;
    dpari_hx_size size;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status status;
    if (!comm) {
        return dpari_wrong(why, "dpar_halo_plan_make: comm is NULL");
    }
    why = dpari_why_of(comm, why);
    if (desc && plan) {
        status = dpari_hx_prepare_plan(comm, desc, later, &size, &need, &memory, why);
    } else {
        status = dpari_wrong(why, "dpar_halo_plan_make: desc or plan is NULL");
    }
    status = dpari_agree_on(comm, status, "halo", dpari_hx_state, desc, why);
    if (status == DPAR_OK && !desc->ordered && !desc->shared) {
        status = dpari_hx_agree_on_order(comm, &size, why);
    }
    if (status == DPAR_OK) {
        x = dpari_hx_describe_plan(comm, desc, &size, memory, need);
        x->owned = desc->memory == NULL ? memory : NULL;
        dpari_hx_own_arrays(x, later);
        dpari_hx_mark_peers(x);
        status = dpari_hx_plan(x, why);
    }
    if (status != DPAR_OK) {
        return dpari_object_failed(status, desc ? desc->memory : NULL, memory, need, why);
    }
    *plan = x;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_make(dpar_comm *comm,
                                                    const dpar_halo_plan_desc *desc,
                                                    dpar_halo_plan **plan, dpar_why *why)
{
    return dpari_hx_open(comm, desc, 0, plan, why);
}

DPARI_INTERNAL void *dpari_hx_bound(const dpar_halo_plan *plan, int32_t field)
{
    return plan->field[field].data;
}

DPARI_INTERNAL DPARI_COLD void dpari_hx_release(dpar_halo_plan *plan)
{
    dpari_object_release(plan->owned);
}

/* Returns words for a message that name the arrays that are not NULL. */
static DPARI_COLD const char *dpari_hx_given(const void *data, const void *halos)
{
    if (data && halos) {
        return "data and halos";
    }
    if (data) {
        return "data only";
    }
    return halos ? "halos only" : "no array";
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_bind(dpar_halo_plan *plan, int32_t field, void *data,
                                                    void *halos)
{
    dpari_hx_array *array;
    int32_t s;
    if (!plan) {
        return DPAR_E_ARG;
    }
    if (field < 0 || field >= plan->fields) {
        return dpari_comm_wrong(
            plan->comm, "dpar_halo_plan_bind: field %d does not exist (the plan has 0 to %d)",
            field, plan->fields - 1);
    }
    if (dpari_exchange_is_over(&plan->x, "dpar_halo_plan_bind: ") != DPAR_OK) {
        return DPAR_E_ARG;
    }
    if ((data != NULL) != (plan->part[2 * field] != NULL) ||
        (halos != NULL) != (plan->part[2 * field + 1] != NULL)) {
        return dpari_comm_wrong(plan->comm,
                                "dpar_halo_plan_bind: field %d was planned with %s, but this call "
                                "passes %s",
                                field,
                                dpari_hx_given(plan->part[2 * field], plan->part[2 * field + 1]),
                                dpari_hx_given(data, halos));
    }
    array = &plan->array[field];
    if ((array->told.reach[0] && dpari_ref(plan->x.world, data, 1) == 0) ||
        (array->told.reach[1] && dpari_ref(plan->x.world, halos, 1) == 0)) {
        return dpari_comm_wrong(
            plan->comm,
            "dpar_halo_plan_bind: field %d was planned in memory of dpar_comm_alloc, where peers "
            "may read it, but the new array is not in such memory",
            field);
    }
    plan->field[field].data = data;
    plan->field[field].compact_halo = halos;
    dpari_hx_bind_field(plan, field);
    if (!plan->bound) {
        plan->bound = 1;
        dpari_hx_gather_all(plan);
    }
    plan->version++;
    for (s = 0; s < plan->x.steps && plan->x.world; s++) {
        plan->x.line[s].place[DPARI_HX_VERSION] = plan->version;
    }
    return DPAR_OK;
}
