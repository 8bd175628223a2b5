/* SPDX-License-Identifier: MIT-0 */
/* Plans exchanges: checks fields, compares them between ranks, and divides the plan's memory into
 * its tables.
 *
 * Planning walks the transfers of each field (halo_walk.c) and groups the boxes by peer into items.
 * Peers that share memory exchange references to staging memory and arrays; other peers exchange
 * messages. Both ranks make the same decisions from the same numbers, so that nothing else needs to
 * be negotiated. halo_plan.h explains how the exchange then runs.
 *
 * First each rank checks its fields and computes the size of its plan, so that the memory can be
 * allocated at once. Then the ranks agree that all have succeeded and describe the same fields.
 * After that, a failure on one rank is reported to the other ranks at the next agreement. */
#include "halo_exchange.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/group.h"
#include "../comm/heap.h"
#include "../comm/object_memory.h"
#include "../comm/shm.h"
#include "../comm/world.h"
#include "../host/cpu.h"
#include "../host/elements.h"
#include "../host/kernel.h"
#include "../host/mem.h"
#include "../host/strided.h"
#include "../index/halo.h"
#include "../index/index_private.h"
#include "../index/mesh.h"
#include "../index/reach.h"
#include "../index/redistribute.h"
#include "halo_box_groups.h"
#include "halo_exchange_private.h"
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

/* ---- fields ---------------------------------------------------------------------------------- */

/* Checks the types of a field's values, in the array and as they are sent. */
static dpar_status dpari_hx_check_type(const dpar_halo_field *field, int32_t i, dpar_why *why)
{
    if (dpar_type_bytes(field->type) == 0) {
        return dpari_wrong(
            why,
            "field %d: type %s (%d) is not allowed: its elements have no whole number of "
            "bytes",
            i, dpar_type_name(field->type), field->type);
    }
    if (dpari_hx_wire(field) != field->type && !dpari_narrows(field->type, field->wire_type)) {
        return dpari_wrong(
            why,
            "field %d cannot be sent as %s (wire_type %d); f64 can be sent as f32, f32 as "
            "f16 or bf16",
            i, dpar_type_name(field->wire_type), field->wire_type);
    }
    if (field->vector < 0 || field->vector > 2) {
        return dpari_wrong(why, "field %d: vector is %d; it must be 0 to 2", i, field->vector);
    }
    if (field->vector && !dpari_type_can_reduce(field->type)) {
        return dpari_wrong(why, "field %d: vector must be 0, because type %s has no sign to change",
                           i, dpar_type_name(field->type));
    }
    return DPAR_OK;
}

/* Checks that all ranks of a field are ranks of the communicator. */
static dpar_status dpari_hx_check_ranks(const dpar_comm *comm, const dpar_halo *halo, int32_t i,
                                        dpar_why *why)
{
    const dpar_mesh *mesh = &halo->grid.mesh;
    int64_t last = mesh->first_rank + (int64_t)mesh->size - 1;
    int32_t k;
    if (halo->owner) {
        last = -1;
        for (k = 0; k < mesh->size; k++) {
            last = dpari_most(last, halo->owner[k]);
        }
    }
    if (last >= comm->size || (!halo->owner && mesh->first_rank < 0)) {
        return dpari_wrong(why, "field %d is on ranks up to %ld, but the communicator has %d ranks",
                           i, last, comm->size);
    }
    return DPAR_OK;
}

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
static int dpari_hx_prefers_order(const dpar_halo_field *fields, int32_t n,
                                  const dpar_halo_plan_desc *desc, int32_t *cut)
{
    uint32_t meetings = 0;
    int32_t i, corners = 0;
    for (i = 0; i < n; i++) {
        const dpar_halo *halo = fields[i].halo;
        corners |= halo->shape != DPAR_STENCIL_STAR && halo->grid.dims > 1;
        if (!dpari_hx_can_order(&fields[i]) || dpari_hx_mem(&fields[i]) ||
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

/* True if the arrays of a field can hold the points that blocks share. If points are between cells
 * in two dims, blocks share corners, which the compact halo of a star does not have. */
static int dpari_hx_can_share(const dpar_halo_field *field)
{
    int32_t d, between = 0;
    for (d = 0; d < field->halo->grid.dims; d++) {
        between += field->halo->points[d] != DPAR_HALO_AT_CELLS;
    }
    return between < 2 || !field->compact_halo || !dpari_halo_star(field->halo);
}

/* Checks that a field can be exchanged dim by dim, or as shared points, if the plan asks for it. */
static dpar_status dpari_hx_check_options(const dpar_halo_field *field, int32_t i,
                                          const dpar_halo_plan_desc *desc, dpar_why *why)
{
    if (desc->ordered && !dpari_hx_can_order(field)) {
        return dpari_wrong(
            why,
            "field %d has a fold, poles, a cube, masked owners, windows, compact halos or "
            "edges without corners: it cannot be exchanged dim by dim, so that "
            "desc.ordered must be 0",
            i);
    }
    if (desc->shared && !dpari_hx_can_share(field)) {
        return dpari_wrong(
            why,
            "field %d: with desc.shared 1, a star needs data with the whole halo, because "
            "a compact halo has no place for the corners that blocks share",
            i);
    }
    return DPAR_OK;
}

/* True if all addresses of the array are within 2^60 bytes of its index 0, so that differences of
 * addresses cannot overflow. */
static int dpari_hx_reaches(const dpar_halo_field *field, const dpar_box *all)
{
    const int64_t most = INT64_C(1) << 60, unit = dpar_type_bytes(field->type);
    const int64_t component = field->component_stride != 0 ? field->component_stride : 1;
    const int strided = dpari_hx_strided(field);
    int64_t step = dpari_hx_components(field); /* the default stride */
    int64_t sum = step;
    int32_t d;
    if (component < -most || component > most || !dpari_mul(sum, dpari_size(component), &sum)) {
        return 0;
    }
    for (d = all->dims - 1; d >= 0; d--) {
        const int64_t stride = strided ? field->stride[d] : step;
        const int64_t origin = strided ? field->first[d] : 0;
        const int64_t points = all->hi[d] - all->lo[d];
        int64_t distance;
        if (stride < -most || stride > most || origin < -most || origin > most) {
            return 0;
        }
        if (!dpari_mul(dpari_size(origin) + points, dpari_size(stride), &distance) ||
            distance > most || sum > most || !dpari_mul(step, dpari_most(points, 1), &step)) {
            return 0;
        }
        sum += distance;
    }
    return sum <= most / unit;
}

/* True if two points may have the same address. Otherwise each stride exceeds the extent of all
 * dims with shorter strides, as in any array that is padded or permuted. */
static int dpari_hx_overlaps(const dpar_halo_field *field, int32_t rank, dpar_box *box)
{
    const int32_t last = box->dims;
    int64_t reach = 0;
    uint32_t left = ((uint32_t)1 << (last + 1)) - 1; /* bits of dims still to check */
    dpari_hx_array array;
    dpari_hx_array_of(&array, field, rank);
    dpari_hx_inside(field->halo, box);
    while (left != 0) {
        int64_t least = INT64_MAX, points = 1;
        int32_t d, next = 0;
        for (d = 0; d <= last; d++) {
            const int64_t stride = dpari_size(d < last ? array.stride[d] : array.component);
            if ((left >> d & 1u) && stride < least) {
                least = stride;
                next = d;
            }
        }
        left &= ~((uint32_t)1 << next);
        points = next < last ? box->hi[next] - box->lo[next] : dpari_hx_components(field);
        if (points > 1) {
            if (least <= reach) {
                return 1;
            }
            reach += (points - 1) * least;
        }
    }
    return 0;
}

/* Checks that field i and the next one form a pair (DPAR_HALO_PAIR_U, DPAR_HALO_PAIR_V). */
static dpar_status dpari_hx_check_pair(const dpar_halo_field *fields, int32_t n, int32_t i,
                                       dpar_why *why)
{
    const dpar_halo_field *field = &fields[i], *other;
    const int32_t there = field->pair == DPAR_HALO_PAIR_U ? i + 1 : i - 1;
    if (field->pair == 0) {
        return DPAR_OK;
    }
    if (field->pair < 0 || field->pair > DPAR_HALO_PAIR_V || there < 0 || there >= n ||
        fields[there].pair != DPAR_HALO_PAIR_U + DPAR_HALO_PAIR_V - field->pair) {
        return dpari_wrong(why,
                           "field %d of %d: pair is %d, but DPAR_HALO_PAIR_U (1) must be followed "
                           "by DPAR_HALO_PAIR_V (2)",
                           i, n, field->pair);
    }
    other = &fields[there];
    if (!field->halo->cube || field->vector == 2) {
        return dpari_wrong(
            why, "field %d: pair is only for cubed spheres and vector 0 or 1, but vector is %d", i,
            field->vector);
    }
    if (field->type != other->type || dpari_hx_wire(field) != dpari_hx_wire(other) ||
        dpari_hx_components(field) != dpari_hx_components(other) ||
        field->vector != other->vector || dpari_hx_mem(field) != dpari_hx_mem(other)) {
        return dpari_wrong(
            why,
            "fields %d and %d are a pair, but differ in type, wire_type, components, vector "
            "or memory",
            (int32_t)dpari_least(i, there), (int32_t)dpari_most(i, there));
    }
    return DPAR_OK;
}

/* True if points are on faces of a cube's cells, which only pairs may have. */
static int dpari_hx_needs_pair(const dpar_halo *halo)
{
    const int32_t y = halo->grid.dims - 2;
    return halo->cube &&
           (halo->points[y] != DPAR_HALO_AT_CELLS || halo->points[y + 1] != DPAR_HALO_AT_CELLS);
}

/* Returns what is wrong with a field that has array_halo, or NULL. */
static const char *dpari_hx_array_halo_fault(const dpar_halo_field *field)
{
    const dpar_halo *halo = field->halo, *wide = field->array_halo;
    int32_t d;
    if (field->compact_halo) {
        return "a compact halo has the width of the plan, so that array_halo must be NULL";
    }
    if (halo->grid.dims != wide->grid.dims ||
        !dpari_mesh_same(&halo->grid.mesh, &wide->grid.mesh) || halo->owner != wide->owner) {
        return "array_halo has another grid, mesh or owners than halo";
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (halo->grid.extent[d] != wide->grid.extent[d]) {
            return "array_halo has a grid of another size than halo";
        }
        if (halo->points[d] != wide->points[d]) {
            return "array_halo has other points than halo";
        }
    }
    return NULL;
}

/* Checks that the wider halo of an array (array_halo) includes the halo that is exchanged. */
static dpar_status dpari_hx_check_array_halo(const dpar_halo_field *field, int32_t i, int32_t rank,
                                             dpar_why *why)
{
    const dpar_halo *halo = field->halo, *wide = field->array_halo;
    const char *fault;
    dpar_box all, whole;
    int32_t d;
    dpar_status status = dpar_halo_check(wide, why);
    if (status != DPAR_OK) {
        return status;
    }
    fault = dpari_hx_array_halo_fault(field);
    if (fault != NULL) {
        return dpari_wrong(why, "field %d: %s", i, fault);
    }
    if (!dpar_halo_box(halo, rank, &all)) {
        return DPAR_OK;
    }
    if (!dpar_halo_box(wide, rank, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: array_halo has no points on rank %d", i,
                         rank);
    }
    for (d = 0; d < halo->grid.dims; d++) {
        if (all.lo[d] < whole.lo[d] || all.hi[d] > whole.hi[d]) {
            return dpari_say(DPAR_E_RANGE, why,
                             "field %d, dim %d: widths of %ld and %ld are more than array_halo has",
                             i, d, halo->low[d], halo->high[d]);
        }
    }
    return DPAR_OK;
}

/* Checks field i of a plan, without the other ranks. */
static dpar_status dpari_hx_check_field(const dpar_comm *comm, const dpar_halo_field *field,
                                        int32_t i, const dpar_halo_plan_desc *desc, dpar_why *why)
{
    dpar_box own, all;
    dpar_status status;
    if (!field->halo) {
        return dpari_wrong(why, "field %d: halo is NULL", i);
    }
    status = dpar_halo_check(field->halo, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_hx_check_type(field, i, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_hx_check_ranks(comm, field->halo, i, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (dpari_hx_needs_pair(field->halo) && field->pair == 0) {
        return dpari_wrong(
            why,
            "field %d: on a cubed sphere, points on faces of cells need a pair of fields: "
            "set pair to DPAR_HALO_PAIR_U and DPAR_HALO_PAIR_V",
            i);
    }
    if ((field->vector == 2 && field->components != 2) ||
        (field->halo->cube && field->vector == 1 && field->pair == 0)) {
        return dpari_wrong(
            why,
            "field %d: vector is %d with %d components; vector 2 needs 2 components, and "
            "on a cubed sphere vector 1 needs a pair of fields",
            i, field->vector, field->components);
    }
    if (field->components < 0) {
        return dpari_wrong(why, "field %d: components is %d; it must be 0 to 2^24", i,
                           field->components);
    }
    if (field->components > 1 << 24) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: components is %d; at most 2^24 are allowed",
                         i, field->components);
    }
    if (field->array_halo) {
        status = dpari_hx_check_array_halo(field, i, comm->rank, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    if (dpar_halo_box(dpari_hx_array_halo(field), comm->rank, &all) &&
        !dpari_hx_reaches(field, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: its array extends over more than 2^60 bytes",
                         i);
    }
    if ((dpari_hx_strided(field) || dpari_hx_components(field) > 1) &&
        (field->compact_halo ? dpar_halo_owned(field->halo, comm->rank, &all)
                             : dpar_halo_box(field->halo, comm->rank, &all)) &&
        dpari_hx_overlaps(field, comm->rank, &all)) {
        return dpari_wrong(
            why,
            "field %d: with these strides (component_stride %ld) several points of rank %d "
            "have the same address",
            i, field->component_stride, comm->rank);
    }
    if (!field->data && dpar_halo_owned(field->halo, comm->rank, &own)) {
        return dpari_wrong(why, "field %d: data is NULL on rank %d, which owns points", i,
                           comm->rank);
    }
    if (!field->data && !field->compact_halo && dpar_halo_box(field->halo, comm->rank, &all)) {
        return dpari_wrong(why,
                           "field %d: data and compact_halo are NULL on rank %d, which has a halo",
                           i, comm->rank);
    }
    return dpari_hx_check_options(field, i, desc, why);
}

/* ---- steps ----------------------------------------------------------------------------------- */

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
static dpar_status dpari_hx_measure(const dpar_comm *comm, const dpar_halo_field *fields, int32_t n,
                                    const dpar_halo_plan_desc *desc, dpari_hx_size *size,
                                    dpar_why *why)
{
    /* If desc.ordered is 0, another rank may be unable to exchange dim by dim. Therefore the boxes
     * of an exchange of all dims at once, which is step -1, are counted too. */
    const int32_t first = desc->ordered ? 0 : -1;
    dpar_status status;
    int32_t i, number, end, dims = 1;
    dpari_zero(size, sizeof *size);
    size->fields = n;
    size->ranks = comm->size;
    size->cut = -1;
    for (i = 0; i < n; i++) {
        status = dpari_hx_check_field(comm, &fields[i], i, desc, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    size->ordered = desc->ordered || dpari_hx_prefers_order(fields, n, desc, &size->cut);
    for (i = 0; i < n && size->ordered; i++) {
        dims = (int32_t)dpari_most(dims, fields[i].halo->grid.dims);
    }
    dpari_hx_count_steps(size, dims);
    for (i = 0; i < n; i++) {
        status = dpari_hx_check_pair(fields, n, i, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
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
    if ((desc->ordered | desc->shared | desc->timers) & ~1) {
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
    return dpari_hx_measure(comm, desc->field, desc->field_count, desc, size, why);
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

/* Lists the fields of a window that must be equal on all ranks. */
static void dpari_hx_state_window(dpari_facts *facts, const dpar_window *window, int32_t d)
{
    dpari_fact(facts, "halo.window[#].kernel", d, window->kernel);
    if (window->kernel != 0) {
        dpari_fact(facts, "halo.window[#].stride", d, window->stride);
        dpari_fact(facts, "halo.window[#].dilation", d, window->dilation);
        dpari_fact(facts, "halo.window[#].pad_low", d, window->pad_low);
        dpari_fact(facts, "halo.window[#].pad_high", d, window->pad_high);
        dpari_fact(facts, "halo.window[#].kind", d, window->kind);
        dpari_fact(facts, "halo.window[#].ceil_mode", d, window->ceil_mode != 0);
        dpari_fact(facts, "halo.window[#].align_corners", d, window->align_corners != 0);
    }
}

/* Lists the fields of axis i of a layout that must be equal on all ranks. A field that the kind of
 * placement does not use is listed as 0. */
static void dpari_hx_state_axis(dpari_facts *facts, const dpar_layout *layout, int32_t i)
{
    const dpar_placement *placement = &layout->axis[i];
    const int cuts = placement->kind == DPAR_PLACEMENT_SHARD;
    uint64_t h = 1;
    int32_t k;
    for (k = 0; cuts && placement->rule == DPAR_SPLIT_RAGGED && k <= layout->mesh.axis[i].size;
         k++) {
        h = dpari_hash(h, placement->cuts[k]);
    }
    dpari_fact(facts, "the size of axis # of halo.grid.mesh", i, layout->mesh.axis[i].size);
    dpari_fact(facts, "the stride of axis # of halo.grid.mesh", i, layout->mesh.axis[i].stride);
    dpari_fact(facts, "halo.grid.order[#]", i, layout->order[i]);
    dpari_fact(facts, "the kind of placement # of halo.grid", i, placement->kind);
    dpari_fact(facts, "the dim of placement # of halo.grid", i, cuts ? placement->dim : 0);
    dpari_fact(facts, "the rule of placement # of halo.grid", i, cuts ? placement->rule : 0);
    dpari_fact(facts, "the block of placement # of halo.grid", i, cuts ? placement->block : 0);
    dpari_fact(facts, "the source of placement # of halo.grid", i, cuts ? placement->source : 0);
    dpari_fact(facts, "the op of placement # of halo.grid", i,
               placement->kind == DPAR_PLACEMENT_PARTIAL ? placement->op : 0);
    dpari_fact_hash(facts, "the list of cuts of placement # of halo.grid", i, h);
}

/* Lists the fields of a halo that must be equal on all ranks: points, owners, widths and ends. */
static void dpari_hx_state_halo(dpari_facts *facts, const dpar_halo *halo)
{
    const int bends = halo->folds || halo->poles;
    uint64_t owners = 1;
    int32_t d;
    dpari_fact(facts, "halo.grid.dims", 0, halo->grid.dims);
    for (d = 0; d < halo->grid.dims; d++) {
        dpari_fact(facts, "halo.grid.extent[#]", d, halo->grid.extent[d]);
        dpari_fact(facts, "halo.low[#]", d, halo->low[d]);
        dpari_fact(facts, "halo.high[#]", d, halo->high[d]);
        dpari_fact(facts, "halo.points[#]", d, halo->points[d]);
        dpari_hx_state_window(facts, &halo->window[d], d);
    }
    dpari_fact(facts, "halo.shape", 0, halo->shape);
    dpari_fact(facts, "halo.periodic", 0, halo->periodic);
    dpari_fact(facts, "halo.folds", 0, halo->folds);
    dpari_fact(facts, "halo.poles", 0, halo->poles);
    dpari_fact(facts, "halo.cube", 0, halo->cube);
    dpari_fact(facts, "halo.fold", 0, bends ? halo->fold : 0);
    dpari_fact(facts, "halo.mirror", 0, bends ? halo->mirror : 0);
    dpari_fact(facts, "halo.on_row", 0, halo->folds ? halo->on_row : 0);
    dpari_fact(facts, "halo.shift", 0, halo->folds ? halo->shift : 0);
    dpari_fact(facts, "halo.pole_rows", 0, halo->pole_rows);
    dpari_fact(facts, "the number of axes of halo.grid.mesh", 0, halo->grid.mesh.axes);
    dpari_fact(facts, "halo.grid.mesh.first_rank", 0, halo->grid.mesh.first_rank);
    for (d = 0; d < halo->grid.mesh.axes; d++) {
        dpari_hx_state_axis(facts, &halo->grid, d);
    }
    for (d = 0; halo->owner && d < halo->grid.mesh.size; d++) {
        owners = dpari_hash(owners, halo->owner[d]);
    }
    dpari_fact_hash(facts, "halo.owner", 0, owners);
    dpari_fact_hash(facts, "halo.outputs", 0,
                    halo->outputs ? dpari_hash_layout(1, halo->outputs) : 0);
}

/* Lists the fields of a descriptor that must be equal on all ranks. */
static DPARI_COLD void dpari_hx_state(dpari_facts *facts, const void *given)
{
    const dpar_halo_plan_desc *desc = (const dpar_halo_plan_desc *)given;
    int32_t i;
    dpari_fact(facts, "the number of fields", 0, desc->field_count);
    dpari_fact(facts, "desc.method", 0, desc->method);
    dpari_fact(facts, "desc.ordered", 0, desc->ordered);
    dpari_fact(facts, "desc.shared", 0, desc->shared);
    dpari_fact(facts, "desc.run_bytes", 0, desc->run_bytes);
    dpari_fact(facts, "desc.tag", 0, desc->tag);
    facts->of = "field #: ";
    for (i = 0; i < desc->field_count; i++) {
        const dpar_halo_field *field = &desc->field[i];
        facts->of_index = i;
        dpari_fact_type(facts, "type", 0, field->type);
        dpari_fact_type(facts, "wire_type", 0, dpari_hx_wire(field));
        dpari_fact(facts, "components", 0, dpari_hx_components(field));
        dpari_fact(facts, "vector", 0, field->vector);
        dpari_fact(facts, "pair", 0, field->pair);
        dpari_hx_state_halo(facts, field->halo);
    }
}

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

/* Exchanges the strides and references of arrays with the peers. */
static dpar_status dpari_hx_exchange_arrays(dpar_halo_plan *plan)
{
    const int64_t words = (int64_t)plan->fields * DPARI_HX_WORDS;
    dpar_status status;
    int32_t i, f, d;
    for (i = 0; i < plan->x.peers; i++) {
        int64_t *r = dpari_hx_to_peer(plan, i, words);
        for (f = 0; f < plan->fields; f++, r += DPARI_HX_WORDS) {
            const dpari_hx_array *array = &plan->array[f];
            for (d = 0; d < DPAR_MAX_DIMS; d++) {
                r[d] = array->origin[d];
                r[DPAR_MAX_DIMS + d] = array->stride[d];
            }
            r[2 * DPAR_MAX_DIMS] = array->component;
            r[2 * DPAR_MAX_DIMS + 1] = array->compact + 2 * array->reach[0] + 4 * array->reach[1] +
                                       8 * (plan->x.peer[i].world >= 0) + 16 * array->elsewhere;
        }
    }
    status = dpari_hx_exchange_records(plan, words);
    if (status != DPAR_OK) {
        return status;
    }
    for (i = 0; i < plan->x.peers; i++) {
        const int64_t *r = plan->record + i * words;
        for (f = 0; f < plan->fields; f++, r += DPARI_HX_WORDS) {
            dpari_hx_array *array = &plan->peer[i].array[f];
            const int64_t bits = r[2 * DPAR_MAX_DIMS + 1];
            dpari_hx_dense(array, &plan->field[f], plan->x.peer[i].rank);
            for (d = 0; d < DPAR_MAX_DIMS; d++) {
                array->origin[d] = r[d];
                array->stride[d] = r[DPAR_MAX_DIMS + d];
            }
            array->component = r[2 * DPAR_MAX_DIMS];
            array->compact = (int32_t)(bits & 1);
            array->reach[0] = (int32_t)(bits >> 1 & 1);
            array->reach[1] = (int32_t)(bits >> 2 & 1);
            array->elsewhere = (int32_t)(bits >> 4 & 1);
            if ((bits >> 3 & 1) == 0) { /* the other rank does not reach this rank's memory */
                plan->x.peer[i].world = -1;
            }
        }
    }
    return DPAR_OK;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Computes the strides of an item in staging memory. The item is dense there, with its dims in the
 * order of the owner's strides, so that the owner walks its array in the order of addresses. */
static void dpari_hx_close_up(dpari_hx_item *item, const int64_t *owner)
{
    int32_t done = 0, d, k;
    int64_t step = 1;
    for (k = 0; k < item->dims; k++) {
        int32_t best = -1;
        int64_t least = 0;
        for (d = item->dims - 1; d >= 0; d--) {
            const int64_t a = dpari_size(owner[d]);
            if (!(done >> d & 1) && (best < 0 || a < least)) {
                best = d;
                least = a;
            }
        }
        done |= 1 << best;
        item->dense[best] = step;
        step *= item->extent[best];
    }
    item->elements = step;
}

/* True if the receiver reads a box in place. Sender and receiver get the same result, because both
 * use the sender's run, and all ranks of a world have counted the same cores. Ranks that share
 * cores pack small boxes, so that they wait only until peers are ready, and not also until peers
 * are done (8 ranks on 2 cores, 32^3: 80 us in place, 58 us packed; boxes of 128 KiB take longer
 * packed). */
static int dpari_hx_is_direct(const dpar_halo_plan *plan, const dpari_hx_array *giver,
                              const dpari_hx_array *taker, const dpari_hx_spot *spot,
                              const dpari_hx_item *item, int32_t world)
{
    const int64_t run = plan->options.run_bytes > 0 ? plan->options.run_bytes : 64;
    const int64_t bytes = item->elements * dpar_type_bytes(plan->field[item->field].type);
    const int packs = plan->options.method == DPAR_HALO_PACKED ||
                      (plan->options.method == DPAR_HALO_AUTO && world >= 0 &&
                       plan->x.world->crowded && bytes < DPARI_HX_CROWDED);
    return world >= 0 && !packs && giver->reach[spot->part] && !taker->elsewhere &&
           dpari_hx_in_a_row(item->extent, spot->stride, item->dims,
                             plan->field[item->field].type) >= run;
}

/* Returns the receiver's dim for the sender's dim d. */
static int32_t dpari_hx_swapped(const dpar_transfer *transfer, int32_t d)
{
    if (d == transfer->swap[0]) {
        return transfer->swap[1];
    }
    if (d == transfer->swap[1]) {
        return transfer->swap[0];
    }
    return d;
}

/* Changes the receiver's place of a box so that its dims match those of the sender: puts dims into
 * the sender's order, and begins at the other end of flipped dims, with a negative stride. */
static void dpari_hx_turn(const dpar_transfer *transfer, dpari_hx_spot *spot)
{
    int64_t stride[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < transfer->dims; d++) {
        stride[d] = spot->stride[d];
        if (transfer->flip >> d & 1u) {
            spot->at += (transfer->extent[dpari_hx_swapped(transfer, d)] - 1) * stride[d];
            stride[d] = -stride[d];
        }
    }
    for (d = 0; d < transfer->dims; d++) {
        spot->stride[d] = stride[dpari_hx_swapped(transfer, d)];
    }
}

/* Finds the component of the sender that arrives as component k of a vector (u, v), and whether its
 * sign changes. Turned by 1 quarter turn the vector is (-v, u), by 3 it is (v, -u). */
static void dpari_hx_component(dpari_hx_item *item, const dpar_transfer *transfer, int32_t k,
                               dpari_hx_spot *sender, dpari_hx_spot *receiver)
{
    sender->at += (1 - k) * sender->stride[transfer->dims];
    receiver->at += k * receiver->stride[transfer->dims];
    item->extent[transfer->dims] = 1;
    item->negate = (transfer->turn == 1) == (k == 0);
}

/* Sets item k of the items into which a transfer is divided, except for its place in staging
 * memory. sends: 1 for an item of S. */
static void dpari_hx_fill(dpar_halo_plan *plan, dpari_hx_item *item, int32_t index,
                          const dpar_transfer *transfer, int sends, int32_t k)
{
    const dpar_halo_field *field = &plan->field[index];
    const int32_t components = dpari_hx_components(field), peer = plan->peer_of[transfer->peer] - 1;
    /* the field whose array the sender reads, which is the other one if a pair is turned */
    const int32_t owner = dpari_hx_crosses(field, transfer->turn)
                              ? (int32_t)(dpari_hx_other(field) - plan->field)
                              : index;
    const int32_t here = sends ? owner : index;
    const int32_t there = sends ? index : owner;
    const dpari_hx_array *mine = &plan->array[here];
    const dpari_hx_array *theirs = peer < 0 ? &plan->array[there] : &plan->peer[peer].array[there];
    const int32_t bytes = dpar_type_bytes(field->type),
                  world = peer < 0 ? -1 : plan->x.peer[peer].world;
    dpari_hx_spot my_spot, their_spot;
    dpari_hx_spot *sender = sends ? &my_spot : &their_spot;
    dpari_hx_spot *receiver = sends ? &their_spot : &my_spot;
    int32_t d;
    dpari_zero(item, sizeof *item);
    item->field = index;
    item->peer = peer;
    item->dims = transfer->dims + 1;
    item->negate = dpari_hx_negates(field, transfer->turn);
    for (d = 0; d < transfer->dims; d++) {
        item->extent[d] = transfer->extent[d];
        item->local[d] = transfer->mine[d];
        item->here[d] = sends ? d : dpari_hx_swapped(transfer, d);
    }
    item->here[transfer->dims] = transfer->dims;
    item->flip = sends ? 0 : transfer->flip;
    item->extent[transfer->dims] = components;
    dpari_hx_place(mine, transfer->mine, components, &my_spot);
    dpari_hx_place(theirs, transfer->theirs, components, &their_spot);
    dpari_hx_turn(transfer, receiver);
    if (dpari_hx_parts(field, transfer) > 1) {
        dpari_hx_component(item, transfer, k, sender, receiver);
    }
    item->mine = 2 * here + my_spot.part;
    item->theirs = 2 * there + their_spot.part;
    item->mine_at = my_spot.at * bytes;
    item->theirs_at = their_spot.at * bytes;
    for (d = 0; d < item->dims; d++) {
        item->own_step[d] = my_spot.stride[d];
        item->other_step[d] = their_spot.stride[d];
    }
    dpari_hx_close_up(item, sender->stride);
    item->direct = peer < 0 || dpari_hx_is_direct(plan, theirs, mine, &their_spot, item, world);
    item->packs = peer >= 0 && !dpari_hx_is_direct(plan, mine, theirs, &my_spot, item, world);
    item->row = sends && peer >= 0 && !item->packs ? dpari_hx_row_of(item) : -1;
}

/* Appends an item to the bytes that are packed in one direction. Returns its offset, a multiple of
 * 16. */
static int64_t dpari_hx_append(const dpar_halo_plan *plan, const dpari_hx_item *item,
                               int64_t *bytes)
{
    const int64_t at = (*bytes + 15) / 16 * 16;
    *bytes = at + item->elements * dpar_type_bytes(dpari_hx_wire(&plan->field[item->field]));
    return at;
}

/* Adds an item to what its peer exchanges with this rank in step s, and assigns its places in the
 * staging memory. */
static void dpari_hx_count_in(dpar_halo_plan *plan, dpari_hx_item *item, int32_t s, int sends)
{
    dpari_hx_flow *flow;
    const int give = sends ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT; /* when this rank gives */
    const int take = sends ? DPAR_HALO_ADJOINT : DPAR_HALO_FORWARD;
    dpari_exchange_flow *run;
    const int32_t modes = plan->step[s].modes;
    int32_t d;
    if (item->peer < 0) {
        return;
    }
    flow = &plan->peer[item->peer].flow[s];
    run = &plan->x.flow[item->peer * plan->x.steps + s];
    for (d = 0; d < item->dims; d++) {
        flow->hash[sends] = dpari_hash(flow->hash[sends], item->extent[d] + 1024 * item->field);
    }
    if (modes >> give & 1 && item->packs) {
        item->pack_at = dpari_hx_append(plan, item, &run->out_bytes[give]);
    }
    if (modes >> take & 1 && !item->direct) {
        item->take_at = dpari_hx_append(plan, item, &run->in_bytes[take]);
    }
    run->lends[give] |= modes >> give & 1 && !item->packs;
    run->takes[take] |= modes >> take & 1;
    flow->reads[take] |= modes >> take & 1 && item->direct;
}

/* Counts the items of list R of step s for each peer and for this rank itself. With `fill`, which
 * requires that the first item of each peer is known, also sets the items. */
static void dpari_hx_list_receives(dpar_halo_plan *plan, int32_t s, int fill)
{
    dpari_hx_step *step = &plan->step[s];
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, k;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, step, DPAR_TRANSFER_RECV,
                                dpari_hx_moves(&plan->options), NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(&plan->field[i], &transfer);
            int64_t *count = &step->self;
            int64_t first = step->r;
            if (transfer.peer != plan->comm->rank) {
                dpari_hx_flow *flow = &plan->peer[plan->peer_of[transfer.peer] - 1].flow[s];
                count = &flow->boxes;
                first = flow->first;
            }
            for (k = 0; k < parts; k++) {
                if (fill) {
                    dpari_hx_item *item = &plan->item[first + *count];
                    dpari_hx_fill(plan, item, i, &transfer, 0, k);
                    dpari_hx_count_in(plan, item, s, 0);
                }
                ++*count;
            }
        }
    }
}

/* Sets items of list S of step s from item `at` on: with own_first the items that this rank adds
 * without waiting for peers, otherwise all other items. Returns the index after the last one. */
static int64_t dpari_hx_list_sends(dpar_halo_plan *plan, int32_t s, int64_t at, int own_first)
{
    dpari_hx_walk walk;
    dpar_transfer transfer;
    int32_t i, k;
    for (i = 0; i < plan->fields; i++) {
        if (dpari_hx_begin_walk(&walk, &plan->field[i], plan->comm->rank, &plan->step[s],
                                DPAR_TRANSFER_SEND, dpari_hx_moves(&plan->options),
                                NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&walk, &transfer)) {
            const int32_t parts = dpari_hx_parts(&plan->field[i], &transfer);
            if (walk.own_first != own_first) {
                continue;
            }
            for (k = 0; k < parts; k++) {
                dpari_hx_fill(plan, &plan->item[at], i, &transfer, 1, k);
                dpari_hx_count_in(plan, &plan->item[at], s, 1);
                at++;
                if (transfer.peer != plan->comm->rank) {
                    plan->peer[plan->peer_of[transfer.peer] - 1].flow[s].sends++;
                }
            }
        }
    }
    return at;
}

/* Sets the lists R (first the items that this rank sends to itself, then by peer) and S of step s,
 * from item `at` on. Returns the index after the last item. */
static int64_t dpari_hx_list(dpar_halo_plan *plan, int32_t s, int64_t at)
{
    dpari_hx_step *step = &plan->step[s];
    int32_t i;
    step->r = at;
    dpari_hx_list_receives(plan, s, 0);
    at += step->self;
    step->self = 0;
    for (i = 0; i < plan->x.peers; i++) {
        plan->peer[i].flow[s].first = at;
        at += plan->peer[i].flow[s].boxes;
        plan->peer[i].flow[s].boxes = 0;
    }
    dpari_hx_list_receives(plan, s, 1);
    step->r_items = at - step->r;
    step->s = at;
    at = dpari_hx_list_sends(plan, s, at, 1);
    step->own_first = at - step->s;
    at = dpari_hx_list_sends(plan, s, at, 0);
    step->s_items = at - step->s;
    return at;
}

/* Sets `packed` of the flows. Steps that share a line pack into the same memory, in either mode. A
 * rank may therefore write it only when all peers that read it in any of these steps are done. */
static void dpari_hx_mark_packed(dpar_halo_plan *plan)
{
    int32_t s, t, i;
    for (s = 0; s < plan->x.steps; s++) {
        for (t = 0; t < plan->x.steps; t++) {
            if (plan->x.step[s].line != plan->x.step[t].line) {
                continue;
            }
            for (i = 0; i < plan->x.peers; i++) {
                dpari_exchange_flow *flow = &plan->x.flow[i * plan->x.steps];
                flow[s].packed |= flow[t].out_bytes[0] > 0 || flow[t].out_bytes[1] > 0;
            }
        }
    }
}

/* Assigns positions in the staging memory to the boxes that this rank packs, and positions in the
 * memory for arrivals to the messages that it receives. They are in the order of steps and peers,
 * and the same for both modes. */
static void dpari_hx_flows(dpar_halo_plan *plan)
{
    dpari_exchange_step *step;
    int32_t s, i;
    int64_t k, gives = 0, comes = 0;
    for (s = 0; s < plan->x.steps; s++) {
        if (s == plan->forward) { /* the steps of the adjoint use the same memory */
            gives = 0;
            comes = 0;
        }
        step = &plan->x.step[s];
        step->alone = !plan->elsewhere;
        for (i = 0; i < plan->x.peers; i++) {
            dpari_hx_flow *flow = &plan->peer[i].flow[s];
            const dpari_exchange_flow *run = &plan->x.flow[i * plan->x.steps + s];
            const int64_t out = dpari_most(run->out_bytes[0], run->out_bytes[1]);
            const int64_t in = dpari_most(run->in_bytes[0], run->in_bytes[1]);
            const int shares = plan->x.peer[i].world >= 0;
            flow->out_at = gives;
            flow->in_at = comes;
            plan->lends[0] |= run->lends[0];
            plan->lends[1] |= run->lends[1];
            step->meets |= shares && flow->boxes + flow->sends > 0;
            step->alone &= flow->boxes + flow->sends == 0;
            plan->x.oneway |= shares && (flow->boxes == 0) != (flow->sends == 0);
            gives += (out + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
            if (plan->x.peer[i].world < 0) {
                comes += (in + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
            }
        }
        plan->turn = dpari_most(plan->turn, gives);
        plan->arrive_bytes = dpari_most(plan->arrive_bytes, comes);
    }
    for (k = 0; k < plan->step[plan->x.steps - 1].s + plan->step[plan->x.steps - 1].s_items; k++) {
        const dpar_halo_field *field = &plan->field[plan->item[k].field];
        if (dpari_hx_mem(field)) {
            plan->look_bytes =
                dpari_most(plan->look_bytes, plan->item[k].elements * dpar_type_bytes(field->type));
        }
    }
}

/* ---- planning -------------------------------------------------------------------------------- */

/* Returns the number of bytes of the references to this rank's arrays, rounded up to whole lines.
 */
static int64_t dpari_hx_refs_bytes(const dpar_halo_plan *plan)
{
    return ((int64_t)sizeof(uint64_t) * 2 * plan->fields + DPARI_LINE - 1) / DPARI_LINE *
           DPARI_LINE;
}

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
    const int64_t refs = plan->x.world ? dpari_hx_refs_bytes(plan) : 0;
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

/* Pins all memory of the plan for the devices that hold fields. */
static dpar_status dpari_hx_pin_plan(const dpar_halo_plan *plan, dpar_why *why)
{
    const dpar_status status = dpari_hx_pin_all(plan, 1);
    if (status == DPAR_OK) {
        return DPAR_OK;
    }
    return dpari_say(status, why, "rank %d: the plan's memory (%ld bytes) cannot be pinned: %s",
                     plan->comm->rank, plan->memory_bytes, dpar_status_text(status));
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
        status = dpari_hx_pin_plan(plan, why);
    }
    return dpari_agree(plan->comm, status, why);
}

/* Does the collective part of planning, after the ranks have agreed on the fields. */
static dpar_status dpari_hx_plan(dpar_halo_plan *plan, dpar_why *why)
{
    int32_t s;
    int64_t at = 0;
    dpar_status status = dpari_exchange_find_node(&plan->x);
    if (status == DPAR_OK) {
        status = dpari_hx_exchange_arrays(plan);
    }
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, plan->comm->why.text);
    }
    for (s = 0; s < plan->x.steps; s++) {
        at = dpari_hx_list(plan, s, at);
    }
    dpari_hx_flows(plan);
    dpari_hx_mark_packed(plan);
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
        plan->array[i].reach[0] = shares && !plan->array[i].elsewhere && field->data &&
                                  (later || dpari_ref(plan->x.world, field->data, 1) != 0);
        plan->array[i].reach[1] = shares && !plan->array[i].elsewhere && field->compact_halo &&
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
    plan->wide = dpari_cpu_wide();
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
    if ((array->reach[0] && dpari_ref(plan->x.world, data, 1) == 0) ||
        (array->reach[1] && dpari_ref(plan->x.world, halos, 1) == 0)) {
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
