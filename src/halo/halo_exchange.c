/* SPDX-License-Identifier: MIT-0 */
/* Plans exchanges: checks fields, compares them between ranks, and divides the plan's memory into
 * its tables.
 *
 * Planning walks the transfers of each field (halo_walk.c) and groups the boxes by peer into items.
 * Peers that share memory exchange references to staging memory and arrays; the others get one
 * message each way. Both sides make the same decisions from the same numbers, so nothing else is
 * negotiated. halo_plan.h explains how the exchange then runs. */
#include "halo_exchange.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/elements.h"
#include "../comm/group.h"
#include "../comm/kernel.h"
#include "../comm/mem.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/strided.h"
#include "../comm/world.h"
#include "../index/halo.h"
#include "../index/inner.h"
#include "../index/mesh.h"
#include "../index/reach.h"
#include "../index/redistribute.h"
#include "halo_apart.h"
#include "halo_beside.h"
#include "halo_mem.h"
#include "halo_open.h"
#include "halo_plan.h"
#include "halo_prepare.h"
#include "halo_walk.h"

/* ---- memory ---------------------------------------------------------------------------------- */

/* How large a plan is. */
typedef struct dpari_hx_size {
    int64_t items, peers, moves; /* moves: items in memory that the CPU does not reach */
    int32_t fields, ranks, steps;
    int32_t ordered; /* dim by dim */
    int32_t cut;     /* dims from the last on: along which alone ranks meet; -1: all are alike */
    int32_t forward; /* steps of a forward exchange */
} dpari_hx_size;

static int64_t dpari_hx_words(int32_t fields, int32_t steps)
{
    return DPARI_HX_HEAD * (int64_t)steps + (int64_t)fields * DPARI_HX_WORDS;
}

static dpar_halo_plan *dpari_hx_layout(const dpari_hx_size *z, void *memory, int64_t *bytes)
{
    dpari_room r;
    dpar_halo_plan none, *x;
    int64_t i;
    r.at = (unsigned char *)memory;
    r.used = 0;
    x = (dpar_halo_plan *)dpari_room_take(&r, 1, sizeof *x);
    x = memory ? x : &none;
    x->field = (dpar_halo_field *)dpari_room_take(&r, z->fields, sizeof *x->field);
    x->array = (dpari_hx_array *)dpari_room_take(&r, z->fields, sizeof *x->array);
    x->part = (unsigned char **)dpari_room_take(&r, 2 * z->fields, sizeof *x->part);
    x->peer = (dpari_hx_peer *)dpari_room_take(&r, z->peers, sizeof *x->peer);
    x->peer_of = (int32_t *)dpari_room_take(&r, z->ranks, 2 * sizeof *x->peer_of);
    x->item = (dpari_hx_item *)dpari_room_take(&r, z->items, sizeof *x->item);
    x->spot =
        (dpari_stride_spot *)dpari_room_take(&r, 2 * z->items, DPARI_STRIDE_FEW * sizeof *x->spot);
    x->box = (dpar_mem_box *)dpari_room_take(&r, z->moves, sizeof *x->box);
    x->call = (dpar_call *)dpari_room_take(&r, 2 * z->peers, sizeof *x->call);
    x->work = (dpar_work *)dpari_room_take(&r, 2 * z->peers, sizeof *x->work);
    x->span = (int64_t *)dpari_room_take(&r, z->fields, 4 * sizeof *x->span);
    x->record = (int64_t *)dpari_room_take(&r, 2 * z->peers * dpari_hx_words(z->fields, z->steps),
                                           sizeof *x->record);
    for (i = 0; i < z->peers; i++) {
        void *at = dpari_room_take(&r, 2 * z->fields, sizeof *x->peer[0].at);
        void *array = dpari_room_take(&r, z->fields, sizeof *x->array);
        void *flow = dpari_room_take(&r, z->steps, sizeof *x->peer[0].flow);
        if (memory) {
            x->peer[i].flow = (dpari_hx_flow *)flow;
            x->peer[i].at = (const unsigned char **)at;
            x->peer[i].array = (dpari_hx_array *)array;
        }
    }
    *bytes = r.used;
    return (dpar_halo_plan *)memory;
}

/* ---- fields ---------------------------------------------------------------------------------- */

static dpar_status dpari_hx_check_type(const dpar_halo_field *f, int32_t i, dpar_why *why)
{
    if (dpar_type_bytes(f->type) == 0) {
        return dpari_wrong(why, "field %d: type %s (%d) has no whole bytes", i,
                           dpar_type_name(f->type), f->type);
    }
    if (dpari_hx_wire(f) != f->type && !dpari_narrows(f->type, f->wire_type)) {
        return dpari_wrong(
            why,
            "field %d cannot be sent as %s (wire_type %d): f64 is sent as f32, f32 as f16 or bf16",
            i, dpar_type_name(f->wire_type), f->wire_type);
    }
    if (f->vector < 0 || f->vector > 2) {
        return dpari_wrong(why, "field %d: vector is %d; it must be 0 to 2", i, f->vector);
    }
    if (f->vector && !dpari_type_can_reduce(f->type)) {
        return dpari_wrong(why, "field %d: %s has no sign to change", i, dpar_type_name(f->type));
    }
    return DPAR_OK;
}

/* All ranks of the field are ranks of the communicator. */
static dpar_status dpari_hx_check_ranks(const dpar_comm *c, const dpar_halo *h, int32_t i,
                                        dpar_why *why)
{
    const dpar_mesh *m = &h->grid.mesh;
    int32_t k, last = -1;
    for (k = 0; h->owner && k < m->size; k++) {
        last = h->owner[k] > last ? h->owner[k] : last;
    }
    if ((h->owner && last >= c->size) ||
        (!h->owner && (m->first_rank < 0 || m->first_rank + (int64_t)m->size > c->size))) {
        return dpari_wrong(why, "field %d is on ranks up to %ld, but the communicator has %d ranks",
                           i, h->owner ? last : m->first_rank + (int64_t)m->size - 1, c->size);
    }
    return DPAR_OK;
}

/* Along which dims, from the last on, ranks meet. 0: not to be taken for that. */
static int dpari_hx_meetings(const dpar_halo *h, uint32_t *steps)
{
    int32_t i;
    for (i = 0; i < h->grid.dims; i++) {
        if (h->points[i] != DPAR_HALO_AT_CELLS) {
            return 0;
        }
    }
    for (i = 0; i < h->grid.mesh.axes; i++) {
        if (h->grid.mesh.axis[i].size > 1 && h->grid.axis[i].kind != DPAR_PLACEMENT_SHARD) {
            return 0;
        }
        if (h->grid.mesh.axis[i].size > 1) {
            *steps |= (uint32_t)1 << (h->grid.dims - 1 - h->grid.axis[i].dim);
        }
    }
    return 1;
}

/* True if a plan with options.ordered 0 exchanges dim by dim. Edges and corners are then no boxes
 * of their own, rows are whole along all dims but one, and ranks still meet only once. *cut is the
 * dim that is cut, whose messages wait for no other step while each rank fills the halos of the
 * other dims itself (DPARI_HX_CUT). It is -1 if no dim is cut, or only the last one. The last dim's
 * halos have no rows, only scattered points, which cost more than waiting (64^3, 2 wide: 24 us, 27
 * us so). */
static int dpari_hx_prefers_order(const dpar_halo_field *fields, int32_t n,
                                  const dpar_halo_plan_desc *o, int32_t *cut)
{
    uint32_t meetings = 0;
    int32_t i, corners = 0;
    for (i = 0; i < n; i++) {
        const dpar_halo *h = fields[i].halo;
        corners |= h->shape != DPAR_STENCIL_STAR && h->grid.dims > 1;
        if (!dpari_hx_can_order(&fields[i]) || dpari_hx_mem(&fields[i]) ||
            !dpari_hx_meetings(h, &meetings)) {
            return 0;
        }
    }
    if (o->shared || !corners || (meetings & (meetings - 1)) != 0) {
        return 0;
    }
    for (*cut = meetings > 1 ? 0 : -1; meetings > 1; meetings >>= 1) {
        ++*cut;
    }
    return 1;
}

/* True if a compact form can hold the points that blocks share. That of a star has no corners. */
static int dpari_hx_can_share(const dpar_halo_field *f)
{
    int32_t d, between = 0;
    for (d = 0; d < f->halo->grid.dims; d++) {
        between += f->halo->points[d] != DPAR_HALO_AT_CELLS;
    }
    return between < 2 || !f->compact_halo || !dpari_halo_star(f->halo);
}

static dpar_status dpari_hx_check_way(const dpar_halo_field *f, int32_t i,
                                      const dpar_halo_plan_desc *o, dpar_why *why)
{
    if (o->ordered && !dpari_hx_can_order(f)) {
        return dpari_wrong(why,
                           "field %d has a fold, poles, a cube, masked ranks, windows, compact "
                           "halos or edges without corners: it cannot be exchanged dim by dim",
                           i);
    }
    if (o->shared && !dpari_hx_can_share(f)) {
        return dpari_wrong(
            why,
            "field %d: compact halos of a star have no place for corners that blocks "
            "share",
            i);
    }
    return DPAR_OK;
}

/* True if all addresses of the array are within 2^60 bytes of its index 0, so that later
 * differences cannot overflow. */
static int dpari_hx_reaches(const dpar_halo_field *f, const dpar_box *all)
{
    const int64_t most = INT64_C(1) << 60, unit = dpar_type_bytes(f->type);
    const int64_t component = f->component_stride != 0 ? f->component_stride : 1;
    const int strided = dpari_hx_strided(f);
    int64_t step = dpari_hx_components(f), sum = step, way = 0;
    int32_t d;
    if (component < -most || component > most ||
        !dpari_mul(sum, component < 0 ? -component : component, &sum)) {
        return 0;
    }
    for (d = all->dims - 1; d >= 0; d--) {
        const int64_t stride = strided ? f->stride[d] : step;
        const int64_t origin = strided ? f->first[d] : 0;
        if (stride < -most || stride > most || origin < -most || origin > most ||
            !dpari_mul((origin < 0 ? -origin : origin) + (all->hi[d] - all->lo[d]),
                       stride < 0 ? -stride : stride, &way) ||
            way > most || sum > most ||
            !dpari_mul(step, dpari_most(all->hi[d] - all->lo[d], 1), &step)) {
            return 0;
        }
        sum += way;
    }
    return sum <= most / unit;
}

/* True if two points are in one place. Each stride must exceed the reach of all shorter ones, as in
 * any array that is padded or permuted. */
static int dpari_hx_overlaps(const dpar_halo_field *f, int32_t rank, dpar_box *array)
{
    const int32_t last = array->dims;
    int64_t reach = 0;
    uint32_t left = ((uint32_t)1 << (last + 1)) - 1;
    dpari_hx_array a;
    dpari_hx_array_of(&a, f, rank);
    dpari_hx_inside(f->halo, array);
    while (left != 0) {
        int64_t least = INT64_MAX, points = 1;
        int32_t d, next = 0;
        for (d = 0; d <= last; d++) {
            const int64_t s = d < last ? a.stride[d] : a.component;
            if ((left >> d & 1u) && (s < 0 ? -s : s) < least) {
                least = s < 0 ? -s : s;
                next = d;
            }
        }
        left &= ~((uint32_t)1 << next);
        points = next < last ? array->hi[next] - array->lo[next] : dpari_hx_components(f);
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
    const dpar_halo_field *f = &fields[i], *other;
    const int32_t there = f->pair == DPAR_HALO_PAIR_U ? i + 1 : i - 1;
    if (f->pair == 0) {
        return DPAR_OK;
    }
    if (f->pair < 0 || f->pair > DPAR_HALO_PAIR_V || there < 0 || there >= n ||
        fields[there].pair != DPAR_HALO_PAIR_U + DPAR_HALO_PAIR_V - f->pair) {
        return dpari_wrong(why,
                           "field %d of %d: pair is %d, but DPAR_HALO_PAIR_U (1) must be followed "
                           "by DPAR_HALO_PAIR_V (2)",
                           i, n, f->pair);
    }
    other = &fields[there];
    if (!f->halo->cube || f->vector == 2) {
        return dpari_wrong(
            why,
            "field %d: a pair of fields is for a cubed sphere, with vector 1 or 0, not "
            "%d",
            i, f->vector);
    }
    if (f->type != other->type || dpari_hx_wire(f) != dpari_hx_wire(other) ||
        dpari_hx_components(f) != dpari_hx_components(other) || f->vector != other->vector ||
        dpari_hx_mem(f) != dpari_hx_mem(other)) {
        return dpari_wrong(
            why,
            "fields %d and %d are a pair, but differ in type, wire_type, components, vector "
            "or memory",
            i < there ? i : there, i < there ? there : i);
    }
    return DPAR_OK;
}

/* True if points are on faces of a cube's cells, which only pairs may have. */
static int dpari_hx_needs_pair(const dpar_halo *h)
{
    const int32_t y = h->grid.dims - 2;
    return h->cube &&
           (h->points[y] != DPAR_HALO_AT_CELLS || h->points[y + 1] != DPAR_HALO_AT_CELLS);
}

/* Returns what is wrong with a field that has array_halo, or NULL. */
static const char *dpari_hx_array_halo_fault(const dpar_halo_field *f)
{
    const dpar_halo *h = f->halo, *wide = f->array_halo;
    int32_t d;
    if (f->compact_halo) {
        return "a compact halo has the width of the plan, so that array_halo must be NULL";
    }
    if (h->grid.dims != wide->grid.dims || !dpari_mesh_same(&h->grid.mesh, &wide->grid.mesh) ||
        h->owner != wide->owner) {
        return "array_halo has another grid, mesh or owners than halo";
    }
    for (d = 0; d < h->grid.dims; d++) {
        if (h->grid.extent[d] != wide->grid.extent[d]) {
            return "array_halo has a grid of another size than halo";
        }
        if (h->points[d] != wide->points[d]) {
            return "array_halo has other points than halo";
        }
    }
    return NULL;
}

/* Checks that an array with a wider halo holds the one that is exchanged. */
static dpar_status dpari_hx_check_array_halo(const dpar_halo_field *f, int32_t i, int32_t rank,
                                             dpar_why *why)
{
    const dpar_halo *h = f->halo, *wide = f->array_halo;
    const char *fault;
    dpar_box all, whole;
    int32_t d;
    dpar_status st = dpar_halo_check(wide, why);
    if (st != DPAR_OK) {
        return st;
    }
    fault = dpari_hx_array_halo_fault(f);
    if (fault != NULL) {
        return dpari_wrong(why, "field %d: %s", i, fault);
    }
    if (!dpar_halo_box(h, rank, &all)) {
        return DPAR_OK;
    }
    if (!dpar_halo_box(wide, rank, &whole)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: array_halo has no points on rank %d", i,
                         rank);
    }
    for (d = 0; d < h->grid.dims; d++) {
        if (all.lo[d] < whole.lo[d] || all.hi[d] > whole.hi[d]) {
            return dpari_say(DPAR_E_RANGE, why,
                             "field %d, dim %d: widths of %ld and %ld are more than array_halo has",
                             i, d, h->low[d], h->high[d]);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_hx_check_field(const dpar_comm *c, const dpar_halo_field *f, int32_t i,
                                        const dpar_halo_plan_desc *o, dpar_why *why)
{
    dpar_box own, all;
    dpar_status st;
    if (!f->halo) {
        return dpari_wrong(why, "field %d has no halo", i);
    }
    st = dpar_halo_check(f->halo, why);
    st = st == DPAR_OK ? dpari_hx_check_type(f, i, why) : st;
    if (st != DPAR_OK) {
        return st;
    }
    st = dpari_hx_check_ranks(c, f->halo, i, why);
    if (st != DPAR_OK) {
        return st;
    }
    if (dpari_hx_needs_pair(f->halo) && f->pair == 0) {
        return dpari_wrong(
            why,
            "field %d: faces of cells cross a cubed sphere's edges only in pairs of fields, "
            "DPAR_HALO_PAIR_U and DPAR_HALO_PAIR_V",
            i);
    }
    if ((f->vector == 2 && f->components != 2) ||
        (f->halo->cube && f->vector == 1 && f->pair == 0)) {
        return dpari_wrong(
            why,
            "field %d: vector %d with %d components: 2 is for pairs (u, v), and a cubed "
            "sphere turns pairs",
            i, f->vector, f->components);
    }
    if (f->components < 0) {
        return dpari_wrong(why, "field %d has %d components", i, f->components);
    }
    if (f->components > 1 << 24) {
        return dpari_say(DPAR_E_RANGE, why,
                         "field %d has %d components, but at most 2^24 are allowed", i,
                         f->components);
    }
    st = f->array_halo ? dpari_hx_check_array_halo(f, i, c->rank, why) : st;
    if (st != DPAR_OK) {
        return st;
    }
    if (dpar_halo_box(dpari_hx_array_halo(f), c->rank, &all) && !dpari_hx_reaches(f, &all)) {
        return dpari_say(DPAR_E_RANGE, why, "field %d: its array reaches further than 2^60 bytes",
                         i);
    }
    if ((dpari_hx_strided(f) || dpari_hx_components(f) > 1) &&
        (f->compact_halo ? dpar_halo_owned(f->halo, c->rank, &all)
                         : dpar_halo_box(f->halo, c->rank, &all)) &&
        dpari_hx_overlaps(f, c->rank, &all)) {
        return dpari_wrong(
            why,
            "field %d: with these strides (component_stride %ld) several points of rank %d "
            "have the same address",
            i, f->component_stride, c->rank);
    }
    if (!f->data && dpar_halo_owned(f->halo, c->rank, &own)) {
        return dpari_wrong(why, "field %d has no data on rank %d", i, c->rank);
    }
    if (!f->data && !f->compact_halo && dpar_halo_box(f->halo, c->rank, &all)) {
        return dpari_wrong(why, "field %d has no array for the halo of rank %d", i, c->rank);
    }
    return dpari_hx_check_way(f, i, o, why);
}

/* ---- steps ------------------------------------------------------------------------------------
 */

/* Steps of `dims` dims: of a forward exchange, and of both. */
static void dpari_hx_count_steps(dpari_hx_size *z, int32_t dims)
{
    z->forward = z->cut >= 0 ? 2 * dims - 1 : z->ordered ? dims : 1;
    z->steps = z->cut >= 0 ? z->forward + dims : z->forward;
}

/* Step i of a plan; -1: all at once. */
static dpari_hx_step dpari_hx_step_of(const dpari_hx_size *z, int32_t i)
{
    const int32_t others = z->steps - z->forward - 1; /* dims that are not cut */
    dpari_hx_step p;
    dpari_zero(&p, sizeof p);
    p.modes = 1 << DPAR_HALO_FORWARD | 1 << DPAR_HALO_ADJOINT;
    p.number = z->ordered ? i : -1;
    p.cut = z->cut;
    p.line = i;
    if (i >= 0 && z->cut >= 0) {
        const int32_t k = i < others ? i : i - others - 1;
        p.modes = 1 << (i < z->forward ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT);
        p.along = i >= z->forward ? DPARI_HX_WIDE
                  : i == others   ? DPARI_HX_CUT
                  : i < others    ? DPARI_HX_OWN_PLANES
                                  : DPARI_HX_HALO_PLANES;
        p.number = i >= z->forward ? i - z->forward : i == others ? z->cut : k + (k >= z->cut);
        p.line = 0; /* ranks meet in one step of either */
    }
    return p;
}

/* Items and peers, at most. */
static dpar_status dpari_hx_measure(const dpar_comm *c, const dpar_halo_field *fields, int32_t n,
                                    const dpar_halo_plan_desc *o, dpari_hx_size *z, dpar_why *why)
{
    dpari_hx_walk w;
    dpar_transfer t;
    dpar_status st = DPAR_OK;
    int32_t i, direction, step, end, dims = 1;
    const int32_t first = o->ordered ? 0 : -1; /* -1: other ranks may refuse */
    dpari_zero(z, sizeof *z);
    z->fields = n;
    z->ranks = c->size;
    z->cut = -1;
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_hx_check_field(c, &fields[i], i, o, why);
    }
    z->ordered = o->ordered || (st == DPAR_OK && dpari_hx_prefers_order(fields, n, o, &z->cut));
    for (i = 0; i < n && st == DPAR_OK && z->ordered; i++) {
        dims = (int32_t)dpari_most(dims, fields[i].halo->grid.dims);
    }
    dpari_hx_count_steps(z, dims);
    end = z->ordered ? z->steps : 0;
    for (i = 0; i < n && st == DPAR_OK; i++) {
        st = dpari_hx_check_pair(fields, n, i, why);
    }
    for (i = 0; i < n && st == DPAR_OK; i++) {
        for (step = first; step < end; step++) {
            const dpari_hx_step p = dpari_hx_step_of(z, step);
            for (direction = 0; direction < 2 && st == DPAR_OK; direction++) {
                dpar_status walks = dpari_hx_begin_walk(&w, &fields[i], c->rank, &p, direction,
                                                        dpari_hx_moves(o), why);
                while (walks == DPAR_OK && dpari_hx_next(&w, &t)) {
                    z->items += dpari_hx_parts(&fields[i], &t);
                    z->moves += dpari_hx_mem(&fields[i]) ? dpari_hx_parts(&fields[i], &t) : 0;
                    z->peers += t.peer != c->rank;
                }
                st = walks == DPAR_DONE ? DPAR_OK : walks;
            }
        }
    }
    z->peers = dpari_least(z->peers, c->size);
    return st;
}

/* Checks a descriptor and counts what its plan holds. Local. */
static dpar_status dpari_hx_judge(const dpar_comm *c, const dpar_halo_plan_desc *o,
                                  dpari_hx_size *z, dpar_why *why)
{
    if (!o->field) {
        return dpari_wrong(why, "halo: desc.field is NULL");
    }
    if (o->field_count < 1 || o->field_count > 4096) {
        return dpari_wrong(why, "halo: desc.field_count is %d; it must be 1 to 4096",
                           o->field_count);
    }
    if (o->shared && o->ordered) {
        return dpari_wrong(
            why, "a plan with shared 1 cannot have ordered 1: shared points are exchanged at once");
    }
    if ((o->ordered | o->shared | o->timers) & ~1) {
        return dpari_wrong(why, "ordered is %d, shared %d, timers %d, but each must be 0 or 1",
                           o->ordered, o->shared, o->timers);
    }
    if (o->method < DPAR_HALO_AUTO || o->method > DPAR_HALO_DIRECT || o->run_bytes < 0 ||
        o->tag < 0) {
        return dpari_wrong(
            why, "method is %d (0 to 3 allowed), run_bytes %ld and tag %d (0 or more allowed)",
            o->method, o->run_bytes, o->tag);
    }
    return dpari_hx_measure(c, o->field, o->field_count, o, z, why);
}

DPARI_API DPARI_COLD dpar_status dpari_hx_bytes(const dpar_comm *comm,
                                                const dpar_halo_plan_desc *desc, int64_t *bytes,
                                                dpar_why *why)
{
    dpari_hx_size z;
    const dpar_status st = dpari_hx_judge(comm, desc, &z, why);
    if (st == DPAR_OK) {
        (void)dpari_hx_layout(&z, NULL, bytes);
    }
    return st;
}

/* ---- agreeing ---------------------------------------------------------------------------------
 */

static void dpari_hx_state_window(dpari_facts *g, const dpar_window *v, int32_t d)
{
    dpari_fact(g, "halo.window[#].kernel", d, v->kernel);
    if (v->kernel != 0) {
        dpari_fact(g, "halo.window[#].stride", d, v->stride);
        dpari_fact(g, "halo.window[#].dilation", d, v->dilation);
        dpari_fact(g, "halo.window[#].pad_low", d, v->pad_low);
        dpari_fact(g, "halo.window[#].pad_high", d, v->pad_high);
        dpari_fact(g, "halo.window[#].kind", d, v->kind);
        dpari_fact(g, "halo.window[#].ceil_mode", d, v->ceil_mode != 0);
        dpari_fact(g, "halo.window[#].align_corners", d, v->align_corners != 0);
    }
}

static void dpari_hx_state_axis(dpari_facts *g, const dpar_layout *l, int32_t i)
{
    const dpar_placement *p = &l->axis[i];
    const int cuts = p->kind == DPAR_PLACEMENT_SHARD;
    uint64_t h = 1;
    int32_t k;
    for (k = 0; cuts && p->rule == DPAR_SPLIT_RAGGED && k <= l->mesh.axis[i].size; k++) {
        h = dpari_hash(h, p->cuts[k]);
    }
    dpari_fact(g, "the size of axis # of halo.grid.mesh", i, l->mesh.axis[i].size);
    dpari_fact(g, "the stride of axis # of halo.grid.mesh", i, l->mesh.axis[i].stride);
    dpari_fact(g, "halo.grid.order[#]", i, l->order[i]);
    dpari_fact(g, "the kind of placement # of halo.grid", i, p->kind);
    dpari_fact(g, "the dim of placement # of halo.grid", i, cuts ? p->dim : 0);
    dpari_fact(g, "the rule of placement # of halo.grid", i, cuts ? p->rule : 0);
    dpari_fact(g, "the block of placement # of halo.grid", i, cuts ? p->block : 0);
    dpari_fact(g, "the source of placement # of halo.grid", i, cuts ? p->source : 0);
    dpari_fact(g, "the op of placement # of halo.grid", i,
               p->kind == DPAR_PLACEMENT_PARTIAL ? p->op : 0);
    dpari_fact_hash(g, "the list of cuts of placement # of halo.grid", i, h);
}

/* Whose points, how wide, over which ends. */
static void dpari_hx_state_halo(dpari_facts *g, const dpar_halo *h)
{
    const int bends = h->folds || h->poles;
    uint64_t owners = 1;
    int32_t d;
    dpari_fact(g, "halo.grid.dims", 0, h->grid.dims);
    for (d = 0; d < h->grid.dims; d++) {
        dpari_fact(g, "halo.grid.extent[#]", d, h->grid.extent[d]);
        dpari_fact(g, "halo.low[#]", d, h->low[d]);
        dpari_fact(g, "halo.high[#]", d, h->high[d]);
        dpari_fact(g, "halo.points[#]", d, h->points[d]);
        dpari_hx_state_window(g, &h->window[d], d);
    }
    dpari_fact(g, "halo.shape", 0, h->shape);
    dpari_fact(g, "halo.periodic", 0, h->periodic);
    dpari_fact(g, "halo.folds", 0, h->folds);
    dpari_fact(g, "halo.poles", 0, h->poles);
    dpari_fact(g, "halo.cube", 0, h->cube);
    dpari_fact(g, "halo.fold", 0, bends ? h->fold : 0);
    dpari_fact(g, "halo.mirror", 0, bends ? h->mirror : 0);
    dpari_fact(g, "halo.on_row", 0, h->folds ? h->on_row : 0);
    dpari_fact(g, "halo.shift", 0, h->folds ? h->shift : 0);
    dpari_fact(g, "halo.pole_rows", 0, h->pole_rows);
    dpari_fact(g, "the number of axes of halo.grid.mesh", 0, h->grid.mesh.axes);
    dpari_fact(g, "halo.grid.mesh.first_rank", 0, h->grid.mesh.first_rank);
    for (d = 0; d < h->grid.mesh.axes; d++) {
        dpari_hx_state_axis(g, &h->grid, d);
    }
    for (d = 0; h->owner && d < h->grid.mesh.size; d++) {
        owners = dpari_hash(owners, h->owner[d]);
    }
    dpari_fact_hash(g, "halo.owner", 0, owners);
    dpari_fact_hash(g, "halo.outputs", 0, h->outputs ? dpari_hash_layout(1, h->outputs) : 0);
}

/* Lists what all ranks must pass alike. */
static DPARI_COLD void dpari_hx_state(dpari_facts *g, const void *given)
{
    const dpar_halo_plan_desc *desc = (const dpar_halo_plan_desc *)given;
    int32_t i;
    dpari_fact(g, "the number of fields", 0, desc->field_count);
    dpari_fact(g, "desc.method", 0, desc->method);
    dpari_fact(g, "desc.ordered", 0, desc->ordered);
    dpari_fact(g, "desc.shared", 0, desc->shared);
    dpari_fact(g, "desc.run_bytes", 0, desc->run_bytes);
    dpari_fact(g, "desc.tag", 0, desc->tag);
    g->of = "field #: ";
    for (i = 0; i < desc->field_count; i++) {
        const dpar_halo_field *f = &desc->field[i];
        g->of_index = i;
        dpari_fact_type(g, "type", 0, f->type);
        dpari_fact_type(g, "wire_type", 0, dpari_hx_wire(f));
        dpari_fact(g, "components", 0, dpari_hx_components(f));
        dpari_fact(g, "vector", 0, f->vector);
        dpari_fact(g, "pair", 0, f->pair);
        dpari_hx_state_halo(g, f->halo);
    }
}

/* Makes all ranks exchange dim by dim, or none. Ranks may differ, because arrays may be in device
 * memory, or compact, on some of them only. */
static dpar_status dpari_hx_agree_on_order(dpar_comm *c, dpari_hx_size *z, dpar_why *why)
{
    int32_t all = 0;
    const dpar_status st = dpar_all_reduce(c, &z->ordered, &all, 1, DPAR_I32, DPAR_MIN, NULL);
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, c->why.text);
    }
    if (!all) {
        z->ordered = 0;
        z->cut = -1;
        dpari_hx_count_steps(z, 1);
    }
    return DPAR_OK;
}

/* Each peer's record for this rank in place of this rank's for it. */
static dpar_status dpari_hx_swap(dpar_halo_plan *x, int64_t words)
{
    const int64_t side = x->peers * dpari_hx_words(x->fields, x->steps);
    dpar_status s;
    int32_t i;
    for (i = 0; i < x->peers; i++) {
        dpar_call *in = &x->call[i], *out = &x->call[x->peers + i];
        dpari_zero(in, sizeof *in);
        in->kind = DPAR_CALL_RECV;
        in->type = DPAR_I64;
        in->root = x->peer[i].rank;
        in->tag = x->options.tag;
        in->count = words;
        *out = *in;
        out->kind = DPAR_CALL_SEND;
        in->out = x->record + i * words;
        out->in = x->record + side + i * words;
    }
    s = dpar_batch(x->c, x->call, 2 * x->peers, x->work);
    return s == DPAR_OK ? dpar_wait_all(x->work, 2 * x->peers) : s;
}

static int64_t *dpari_hx_to_peer(const dpar_halo_plan *x, int32_t i, int64_t words)
{
    return x->record + x->peers * dpari_hx_words(x->fields, x->steps) + i * words;
}

/* ---- peers ------------------------------------------------------------------------------------
 */

static void dpari_hx_mark_peers(dpar_halo_plan *x)
{
    dpari_hx_walk w;
    dpar_transfer t;
    int32_t i, direction, s;
    for (i = 0; i < x->fields; i++) {
        for (s = 0; s < x->steps; s++) {
            for (direction = 0; direction < 2; direction++) {
                dpar_status walks =
                    dpari_hx_begin_walk(&w, &x->field[i], x->rank, &x->step[s], direction,
                                        dpari_hx_moves(&x->options), NULL);
                while (walks == DPAR_OK && dpari_hx_next(&w, &t)) {
                    x->peer_of[t.peer] = 1;
                }
            }
        }
    }
    x->peer_of[x->rank] = 0;
    for (i = 0; i < x->c->size; i++) {
        if (x->peer_of[i]) {
            x->peer[x->peers].rank = i;
            x->peer[x->peers].world = -1;
            x->peer_of[i] = ++x->peers;
        }
    }
}

/* Finds the peers that share memory with this rank. Collective over the node. */
static dpar_status dpari_hx_find_node(dpar_halo_plan *x)
{
    const dpari_group *g = dpari_group_of(x->node);
    const int apart = x->node != x->c;
    int32_t *told = x->peer_of + x->c->size, i; /* the rank of each in c */
    if (!x->world) {
        return DPAR_OK;
    }
    if (apart) {
        const dpar_status st = dpar_all_gather(x->node, &x->rank, told, 1, DPAR_I32, NULL);
        if (st != DPAR_OK) { /* other nodes would wait for this one */
            dpar_comm_abort(x->c, st, x->node->why.text);
            return st;
        }
    }
    for (i = 0; i < x->node->size; i++) {
        const int32_t rank = apart ? told[i] : i;
        if (rank >= 0 && rank < x->c->size && x->peer_of[rank]) {
            x->peer[x->peer_of[rank] - 1].world = g->world_rank[i];
        }
    }
    return DPAR_OK;
}

/* Exchanges the strides and references of arrays with the peers. */
static dpar_status dpari_hx_swap_arrays(dpar_halo_plan *x)
{
    const int64_t words = (int64_t)x->fields * DPARI_HX_WORDS;
    dpar_status st;
    int32_t i, f, d;
    for (i = 0; i < x->peers; i++) {
        int64_t *r = dpari_hx_to_peer(x, i, words);
        for (f = 0; f < x->fields; f++, r += DPARI_HX_WORDS) {
            const dpari_hx_array *a = &x->array[f];
            for (d = 0; d < DPAR_MAX_DIMS; d++) {
                r[d] = a->origin[d];
                r[DPAR_MAX_DIMS + d] = a->stride[d];
            }
            r[2 * DPAR_MAX_DIMS] = a->component;
            r[2 * DPAR_MAX_DIMS + 1] = a->compact + 2 * a->reach[0] + 4 * a->reach[1] +
                                       8 * (x->peer[i].world >= 0) + 16 * a->elsewhere;
        }
    }
    st = dpari_hx_swap(x, words);
    for (i = 0; i < x->peers && st == DPAR_OK; i++) {
        const int64_t *r = x->record + i * words;
        for (f = 0; f < x->fields; f++, r += DPARI_HX_WORDS) {
            dpari_hx_array *a = &x->peer[i].array[f];
            const int64_t bits = r[2 * DPAR_MAX_DIMS + 1];
            dpari_hx_dense(a, &x->field[f], x->peer[i].rank);
            for (d = 0; d < DPAR_MAX_DIMS; d++) {
                a->origin[d] = r[d];
                a->stride[d] = r[DPAR_MAX_DIMS + d];
            }
            a->component = r[2 * DPAR_MAX_DIMS];
            a->compact = (int32_t)(bits & 1);
            a->reach[0] = (int32_t)(bits >> 1 & 1);
            a->reach[1] = (int32_t)(bits >> 2 & 1);
            a->elsewhere = (int32_t)(bits >> 4 & 1);
            if ((bits >> 3 & 1) == 0) { /* the other does not reach this rank's memory */
                x->peer[i].world = -1;
            }
        }
    }
    return st;
}

/* ---- items ------------------------------------------------------------------------------------
 */

/* The steps of the message: the owner's array, closed up. */
static void dpari_hx_close_up(dpari_hx_item *it, const int64_t *owner)
{
    int32_t done = 0, d, k;
    int64_t step = 1;
    for (k = 0; k < it->dims; k++) {
        int32_t best = -1;
        for (d = it->dims - 1; d >= 0; d--) {
            const int64_t a = owner[d] < 0 ? -owner[d] : owner[d];
            const int64_t b = best < 0 ? 0 : owner[best] < 0 ? -owner[best] : owner[best];
            if (!(done >> d & 1) && (best < 0 || a < b)) {
                best = d;
            }
        }
        done |= 1 << best;
        it->dense[best] = step;
        step *= it->extent[best];
    }
    it->elements = step;
}

/* True if the receiver reads a box in place. Both sides get the same result, because the run is
 * that of the sender, and all ranks of a world have counted the same cores. Ranks that share cores
 * pack small boxes, so that they wait only for peers to be ready, and not for them to be done as
 * well (8 ranks on 2 cores, 32^3: 80 us in place, 58 us packed; boxes of 128 KiB take longer
 * packed). */
static int dpari_hx_is_direct(const dpar_halo_plan *x, const dpari_hx_array *giver,
                              const dpari_hx_array *taker, const dpari_hx_spot *p,
                              const dpari_hx_item *it, int32_t world)
{
    const int64_t run = x->options.run_bytes > 0 ? x->options.run_bytes : 64;
    const int64_t bytes = it->elements * dpar_type_bytes(x->field[it->field].type);
    const int packs = x->options.method == DPAR_HALO_PACKED ||
                      (x->options.method == DPAR_HALO_AUTO && world >= 0 && x->world->crowded &&
                       bytes < DPARI_HX_CROWDED);
    return world >= 0 && !packs && giver->reach[p->part] && !taker->elsewhere &&
           dpari_hx_in_a_row(it->extent, p->stride, it->dims, x->field[it->field].type) >= run;
}

/* The receiver's dim for the sender's dim d. */
static int32_t dpari_hx_swapped(const dpar_transfer *t, int32_t d)
{
    return d == t->swap[0] ? t->swap[1] : d == t->swap[1] ? t->swap[0] : d;
}

/* The receiver counts flipped dims backwards, and its dims are those of the sender in its order. */
static void dpari_hx_turn(const dpar_transfer *t, dpari_hx_spot *p)
{
    int64_t stride[DPAR_MAX_DIMS];
    int32_t d;
    for (d = 0; d < t->dims; d++) {
        stride[d] = p->stride[d];
        if (t->flip >> d & 1u) {
            p->at += (t->extent[dpari_hx_swapped(t, d)] - 1) * stride[d];
            stride[d] = -stride[d];
        }
    }
    for (d = 0; d < t->dims; d++) {
        p->stride[d] = stride[dpari_hx_swapped(t, d)];
    }
}

/* Finds the component that arrives as component k of a pair, and whether its sign changes. Turned
 * by 1 the pair is (-v, u), by 3 (v, -u). */
static void dpari_hx_component(dpari_hx_item *it, const dpar_transfer *t, int32_t k,
                               dpari_hx_spot *sender, dpari_hx_spot *receiver)
{
    sender->at += (1 - k) * sender->stride[t->dims];
    receiver->at += k * receiver->stride[t->dims];
    it->extent[t->dims] = 1;
    it->negate = (t->turn == 1) == (k == 0);
}

/* Item k of those that a transfer makes, without its place in messages. sends: of S. */
static void dpari_hx_fill(dpar_halo_plan *x, dpari_hx_item *it, int32_t field,
                          const dpar_transfer *t, int sends, int32_t k)
{
    const dpar_halo_field *f = &x->field[field];
    const int32_t components = dpari_hx_components(f), peer = x->peer_of[t->peer] - 1;
    const int32_t owner = dpari_hx_crosses(f, t->turn) ? (int32_t)(dpari_hx_other(f) - x->field)
                                                       : field; /* whose array is its sender's */
    const int32_t here = sends ? owner : field, there = sends ? field : owner;
    const dpari_hx_array *mine = &x->array[here];
    const dpari_hx_array *theirs = peer < 0 ? &x->array[there] : &x->peer[peer].array[there];
    const int32_t bytes = dpar_type_bytes(f->type), world = peer < 0 ? -1 : x->peer[peer].world;
    dpari_hx_spot a, b;
    int32_t d;
    dpari_zero(it, sizeof *it);
    it->field = field;
    it->peer = peer;
    it->dims = t->dims + 1;
    it->negate = dpari_hx_negates(f, t->turn);
    for (d = 0; d < t->dims; d++) {
        it->extent[d] = t->extent[d];
        it->local[d] = t->mine[d];
        it->here[d] = sends ? d : dpari_hx_swapped(t, d);
    }
    it->here[t->dims] = t->dims;
    it->flip = sends ? 0 : t->flip;
    it->extent[t->dims] = components;
    dpari_hx_place(mine, t->mine, components, &a);
    dpari_hx_place(theirs, t->theirs, components, &b);
    dpari_hx_turn(t, sends ? &b : &a);
    if (dpari_hx_parts(f, t) > 1) {
        dpari_hx_component(it, t, k, sends ? &a : &b, sends ? &b : &a);
    }
    it->mine = 2 * here + a.part;
    it->theirs = 2 * there + b.part;
    it->mine_at = a.at * bytes;
    it->theirs_at = b.at * bytes;
    for (d = 0; d < it->dims; d++) {
        it->own_step[d] = a.stride[d];
        it->other_step[d] = b.stride[d];
    }
    dpari_hx_close_up(it, sends ? a.stride : b.stride);
    it->direct = peer < 0 || dpari_hx_is_direct(x, theirs, mine, &b, it, world);
    it->packs = peer >= 0 && !dpari_hx_is_direct(x, mine, theirs, &a, it, world);
    it->row = sends && peer >= 0 && !it->packs ? dpari_hx_row_of(it) : -1;
}

/* The place of the item in what goes through memory in one direction. */
static int64_t dpari_hx_append(const dpar_halo_plan *x, const dpari_hx_item *it, int64_t *bytes)
{
    const int64_t at = (*bytes + 15) / 16 * 16;
    *bytes = at + it->elements * dpar_type_bytes(dpari_hx_wire(&x->field[it->field]));
    return at;
}

static void dpari_hx_count_in(dpar_halo_plan *x, dpari_hx_item *it, int32_t s, int sends)
{
    dpari_hx_flow *w;
    const int give = sends ? DPAR_HALO_FORWARD : DPAR_HALO_ADJOINT; /* when this rank gives */
    const int take = sends ? DPAR_HALO_ADJOINT : DPAR_HALO_FORWARD;
    const int32_t modes = x->step[s].modes;
    int32_t d;
    if (it->peer < 0) {
        return;
    }
    w = &x->peer[it->peer].flow[s];
    for (d = 0; d < it->dims; d++) {
        w->hash[sends] = dpari_hash(w->hash[sends], it->extent[d] + 1024 * it->field);
    }
    if (modes >> give & 1 && it->packs) {
        it->pack_at = dpari_hx_append(x, it, &w->out_bytes[give]);
    }
    if (modes >> take & 1 && !it->direct) {
        it->take_at = dpari_hx_append(x, it, &w->in_bytes[take]);
    }
    w->out_direct[give] += modes >> give & 1 && !it->packs;
    w->in_direct[take] += modes >> take & 1 && it->direct;
}

/* The boxes of each peer (and oneself) in R, counted, or filled in where they belong. */
static void dpari_hx_list_receives(dpar_halo_plan *x, int32_t s, int fill)
{
    dpari_hx_step *p = &x->step[s];
    dpari_hx_walk w;
    dpar_transfer t;
    int32_t i, k;
    for (i = 0; i < x->fields; i++) {
        if (dpari_hx_begin_walk(&w, &x->field[i], x->rank, p, DPAR_TRANSFER_RECV,
                                dpari_hx_moves(&x->options), NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&w, &t)) {
            dpari_hx_flow *flow =
                t.peer == x->rank ? NULL : &x->peer[x->peer_of[t.peer] - 1].flow[s];
            int64_t *n = flow ? &flow->boxes : &p->self;
            for (k = 0; k < dpari_hx_parts(&x->field[i], &t); k++, ++*n) {
                if (fill) {
                    dpari_hx_item *it = &x->item[(flow ? flow->first : p->r) + *n];
                    dpari_hx_fill(x, it, i, &t, 0, k);
                    dpari_hx_count_in(x, it, s, 0);
                }
            }
        }
    }
}

/* The boxes of S that come first, or the others, from item `at` on; returns where they end. */
static int64_t dpari_hx_list_sends(dpar_halo_plan *x, int32_t s, int64_t at, int own_first)
{
    dpari_hx_walk w;
    dpar_transfer t;
    int32_t i, k;
    for (i = 0; i < x->fields; i++) {
        if (dpari_hx_begin_walk(&w, &x->field[i], x->rank, &x->step[s], DPAR_TRANSFER_SEND,
                                dpari_hx_moves(&x->options), NULL) != DPAR_OK) {
            continue;
        }
        while (dpari_hx_next(&w, &t)) {
            for (k = 0; w.own_first == own_first && k < dpari_hx_parts(&x->field[i], &t);
                 k++, at++) {
                dpari_hx_fill(x, &x->item[at], i, &t, 1, k);
                dpari_hx_count_in(x, &x->item[at], s, 1);
                if (t.peer != x->rank) {
                    x->peer[x->peer_of[t.peer] - 1].flow[s].sends++;
                }
            }
        }
    }
    return at;
}

/* Lists R (by peer, oneself first) and S of step s from item `at` on; returns where they end. */
static int64_t dpari_hx_list(dpar_halo_plan *x, int32_t s, int64_t at)
{
    dpari_hx_step *p = &x->step[s];
    int32_t i;
    p->r = at;
    dpari_hx_list_receives(x, s, 0);
    at += p->self;
    p->self = 0;
    for (i = 0; i < x->peers; i++) {
        x->peer[i].flow[s].first = at;
        at += x->peer[i].flow[s].boxes;
        x->peer[i].flow[s].boxes = 0;
    }
    dpari_hx_list_receives(x, s, 1);
    p->r_items = at - p->r;
    p->s = at;
    at = dpari_hx_list_sends(x, s, at, 1);
    p->own_first = at - p->s;
    at = dpari_hx_list_sends(x, s, at, 0);
    p->s_items = at - p->s;
    return at;
}

/* Steps of both modes that have one line pack into the same memory: those who have read it in
 * either mode must be done with it. */
static void dpari_hx_mark_packed(dpar_halo_plan *x)
{
    int32_t s, t, i;
    for (s = 0; s < x->steps; s++) {
        for (t = 0; t < x->steps; t++) {
            for (i = 0; i < x->peers && x->step[s].line == x->step[t].line; i++) {
                const dpari_hx_flow *w = &x->peer[i].flow[t];
                x->peer[i].flow[s].packed |= w->out_bytes[0] > 0 || w->out_bytes[1] > 0;
            }
        }
    }
}

/* Assigns positions in this rank's staging memory: to what it packs, by step, the same for both
 * modes, and to what it receives in messages. */
static void dpari_hx_flows(dpar_halo_plan *x)
{
    int32_t s, i, mode;
    int64_t k, gives = 0, comes = 0;
    for (s = 0; s < x->steps; s++) {
        if (s == x->forward) { /* the same memory again for the adjoint's steps */
            gives = comes = 0;
        }
        x->step[s].alone = !x->elsewhere;
        for (i = 0; i < x->peers; i++) {
            dpari_hx_flow *w = &x->peer[i].flow[s];
            const int64_t out = dpari_most(w->out_bytes[0], w->out_bytes[1]);
            const int64_t in = dpari_most(w->in_bytes[0], w->in_bytes[1]);
            for (mode = 0; mode < 2; mode++) {
                w->out_at[mode] = gives;
                w->in_at[mode] = comes;
                x->lends[mode] |= w->out_direct[mode] > 0;
            }
            x->step[s].meets |= x->peer[i].world >= 0 && w->boxes + w->sends > 0;
            x->step[s].alone &= w->boxes + w->sends == 0;
            gives += (out + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
            comes += x->peer[i].world < 0 ? (in + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE : 0;
        }
        x->turn = dpari_most(x->turn, gives);
        x->arrive_bytes = dpari_most(x->arrive_bytes, comes);
    }
    for (k = 0; k < x->step[x->steps - 1].s + x->step[x->steps - 1].s_items; k++) {
        const dpar_halo_field *f = &x->field[x->item[k].field];
        if (dpari_hx_mem(f)) {
            x->look_bytes =
                dpari_most(x->look_bytes, x->item[k].elements * dpar_type_bytes(f->type));
        }
    }
}

/* ---- planning ---------------------------------------------------------------------------------
 */

static int64_t dpari_hx_refs_bytes(const dpar_halo_plan *x)
{
    return ((int64_t)sizeof(uint64_t) * 2 * x->fields + DPARI_LINE - 1) / DPARI_LINE * DPARI_LINE;
}

/* Registered memory: lines, addresses, two turns of what is packed (three where devices may read
 * it), what comes by messages. */
static dpar_status dpari_hx_alloc(dpar_halo_plan *x, dpar_why *why)
{
    const int64_t lines = x->world ? x->steps * (int64_t)sizeof(dpari_hx_line) : 0;
    const int64_t refs = x->world ? dpari_hx_refs_bytes(x) : 0;
    dpar_comm *of = x->world ? x->node : x->c;
    int64_t turns = 2;
    void *memory = NULL;
    dpar_status st;
    int32_t i;
    x->in_order = !x->world && x->c->mem != NULL;
    x->nears = !x->world && x->steps == 1 && x->options.method != DPAR_HALO_MESSAGES &&
               of->engine.alloc_shared != NULL;
    turns += x->nears;
    for (i = 0; i < x->fields && x->in_order && dpari_hx_mem(&x->field[i]) == x->c->mem; i++) {
    }
    x->memory_bytes = lines + refs + turns * x->turn + x->arrive_bytes + x->look_bytes;
    st = x->nears
             ? of->engine.alloc_shared(of, x->memory_bytes, x->in_order && i == x->fields, &memory)
             : dpar_comm_alloc(of, x->memory_bytes, &memory);
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, of->why.text);
    }
    x->memory = (unsigned char *)memory;
    if (x->in_order && i < x->fields) {
        return dpari_wrong(why, "field %d of rank %d is not in the memory of its communicator", i,
                           x->rank);
    }
    x->line = (dpari_hx_line *)memory;
    x->refs = (uint64_t *)(void *)(x->memory + lines);
    x->staging = x->memory + lines + refs;
    x->arrivals = x->staging + turns * x->turn;
    x->look = x->in_order ? NULL : x->arrivals + x->arrive_bytes;
    return DPAR_OK;
}

/* Where the parts of field f are, for this rank and, as refs, for its peers. */
static DPARI_COLD void dpari_hx_bind_field(dpar_halo_plan *x, int32_t f)
{
    const dpar_halo_field *field = &x->field[f];
    x->part[2 * f] = (unsigned char *)field->data;
    x->part[2 * f + 1] = (unsigned char *)field->compact_halo;
    if (x->world) {
        x->refs[2 * f] = field->data ? dpari_ref(x->world, field->data, 1) : 0;
        x->refs[2 * f + 1] = field->compact_halo ? dpari_ref(x->world, field->compact_halo, 1) : 0;
    }
}

/* Exchanges positions in staging memory with each peer, and checks that both expect the same data
 * between them. */
static dpar_status dpari_hx_swap_places(dpar_halo_plan *x, dpar_why *why)
{
    const int64_t words = DPARI_HX_HEAD * (int64_t)x->steps;
    dpar_status st;
    int32_t i, s;
    for (i = 0; i < x->peers; i++) {
        int64_t *r = dpari_hx_to_peer(x, i, words);
        for (s = 0; s < x->steps; s++, r += DPARI_HX_HEAD) {
            const dpari_hx_flow *w = &x->peer[i].flow[s];
            r[0] = (int64_t)w->hash[1];
            r[1] = (int64_t)w->hash[0];
            r[2] = w->out_at[0];
            r[3] = w->out_bytes[0];
            r[4] = w->out_bytes[1];
            r[5] = x->turn;
            r[6] = x->world ? (int64_t)dpari_ref(x->world, x->memory, 1) : 0;
            r[7] = x->nears && x->c->engine.peer_address(x->c, x->memory, x->peer[i].rank) != NULL;
        }
    }
    st = dpari_hx_swap(x, words);
    for (i = 0; i < x->peers && st == DPAR_OK; i++) {
        dpari_hx_peer *p = &x->peer[i];
        const int64_t *r = x->record + i * words;
        if (p->world >= 0) {
            unsigned char *memory = (unsigned char *)dpari_at(x->world, (uint64_t)r[6]);
            if (memory == NULL) {
                dpar_text t;
                dpar_text_init(&t, why ? why->text : NULL, why ? sizeof why->text : 0);
                dpari_put_unmapped(&t, x->world, (uint64_t)r[6]);
                return DPAR_E_MEMORY;
            }
            p->line = (dpari_hx_line *)(void *)memory;
            p->refs = (const uint64_t *)(const void *)(p->line + x->steps);
            p->staging = memory + (x->staging - x->memory);
            p->turn = r[5];
        } else if (r[7] && x->nears) { /* staging memory that this rank can reach, or NULL */
            p->staging = (unsigned char *)x->c->engine.peer_address(x->c, x->memory, p->rank);
            p->reached = p->staging != NULL;
            p->turn = r[5];
        }
        if (p->reached) {
            x->peer_of[x->c->size + x->reached++] = p->rank;
        }
        for (s = 0; s < x->steps; s++, r += DPARI_HX_HEAD) {
            dpari_hx_flow *w = &p->flow[s];
            if ((uint64_t)r[0] != w->hash[0] || (uint64_t)r[1] != w->hash[1] ||
                r[3] != w->in_bytes[0] || r[4] != w->in_bytes[1]) {
                return dpari_say(DPAR_E_MISMATCH, why,
                                 "ranks %d and %d do not agree on what they exchange: their grids "
                                 "differ",
                                 x->rank, p->rank);
            }
            if (p->world >= 0 || p->reached) {
                w->in_at[0] = w->in_at[1] = r[2];
            }
        }
    }
    return st;
}

static dpar_status dpari_hx_pin_plan(const dpar_halo_plan *x, dpar_why *why)
{
    const dpar_status st = dpari_hx_pin_all(x, 1);
    return st == DPAR_OK ? st
                         : dpari_say(st, why, "rank %d: %ld bytes cannot be pinned: %s", x->rank,
                                     x->memory_bytes, dpar_status_text(st));
}

static dpar_status dpari_hx_plan(dpar_halo_plan *x, dpar_why *why)
{
    int32_t i, s;
    int64_t at = 0;
    dpar_status st = dpari_hx_find_node(x);
    st = st == DPAR_OK ? dpari_hx_swap_arrays(x) : st;
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, x->c->why.text);
    }
    for (s = 0; s < x->steps; s++) {
        at = dpari_hx_list(x, s, at);
    }
    dpari_hx_flows(x);
    dpari_hx_mark_packed(x);
    st = dpari_agree(x->c, dpari_hx_alloc(x, why), why);
    if (st == DPAR_OK) {
        for (i = 0; i < x->fields; i++) {
            dpari_hx_bind_field(x, i);
        }
        x->version = 1;
        for (s = 0; s < x->steps && x->world; s++) {
            x->line[s].version = 1;
        }
        st = dpari_hx_swap_places(x, why);
        st = dpari_agree(x->c, st == DPAR_OK ? dpari_hx_pin_plan(x, why) : st, why);
    }
    if (st != DPAR_OK) {
        if (x->memory) {
            (void)dpari_hx_pin_all(x, 0);
            dpar_comm_release(x->world ? x->node : x->c, x->memory);
        }
        return st;
    }
    dpari_hx_finish_items(x);
    return DPAR_OK;
}

/* Finds out whether peers can read this rank's arrays in place. For arrays that are bound later,
 * either all can, if `later` asks for it, or none. */
static void dpari_hx_own_arrays(dpar_halo_plan *x, int32_t later)
{
    const int32_t way = x->options.method;
    const int shares = x->world && (later ? way == DPAR_HALO_DIRECT : way != DPAR_HALO_PACKED);
    int32_t i;
    for (i = 0; i < x->fields; i++) {
        const dpar_halo_field *f = &x->field[i];
        dpari_hx_array_of(&x->array[i], f, x->rank);
        x->array[i].reach[0] = shares && !x->array[i].elsewhere && f->data &&
                               (later || dpari_ref(x->world, f->data, 1) != 0);
        x->array[i].reach[1] = shares && !x->array[i].elsewhere && f->compact_halo &&
                               dpari_ref(x->world, f->compact_halo, 1) != 0;
    }
}

/* Arrays that were allocated too small, where that is known: span as dpari_hx_disjoint says. */
static dpar_status dpari_hx_check_heap(const dpari_world *w, const dpar_halo_field *fields,
                                       int32_t n, int32_t rank, const int64_t *span, dpar_why *why)
{
    int64_t within;
    int32_t p;
    for (p = 0; p < 2 * n && w; p++) {
        if (!dpari_hx_mem(&fields[p / 2]) &&
            !dpari_heap_holds(w, span[2 * p], span[2 * p + 1], &within)) {
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
static dpar_status dpari_hx_check_overlaps(const dpar_comm *c, const dpar_halo_plan_desc *desc,
                                           const dpari_hx_size *z, void *memory, int64_t need,
                                           dpar_why *why)
{
    const dpar_comm *node = c->node ? c->node : c;
    int64_t bytes, *span;
    dpar_status st = dpari_hx_clear_of(desc->field, z->fields, c->rank, memory, need, why);
    if (st != DPAR_OK) {
        return st;
    }
    span = dpari_hx_layout(z, memory, &bytes)->span;
    st = dpari_hx_disjoint(desc->field, z->fields, c->rank, span, why);
    if (st != DPAR_OK) {
        return st;
    }
    return dpari_hx_check_heap(dpari_world_of(node), desc->field, z->fields, c->rank, span, why);
}

/* Does what this rank can do alone: checks the descriptor, and provides and checks the memory. */
static dpar_status dpari_hx_prepare_plan(const dpar_comm *c, const dpar_halo_plan_desc *desc,
                                         int32_t later, dpari_hx_size *z, int64_t *need,
                                         void **memory, dpar_why *why)
{
    dpar_status st = dpari_hx_judge(c, desc, z, why);
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpari_hx_layout(z, NULL, need);
    /* Pages of the host, because the memory of the communicator may be on a device. */
    st = dpari_object_memory(NULL, desc->memory, desc->bytes, *need, "halo", memory, why);
    if (st != DPAR_OK || later) {
        return st;
    }
    return dpari_hx_check_overlaps(c, desc, z, *memory, *need, why);
}

/* Lays the plan out in its memory, as far as this rank knows it without the others. */
static dpar_halo_plan *dpari_hx_describe_plan(dpar_comm *c, const dpar_halo_plan_desc *desc,
                                              const dpari_hx_size *z, void *memory, int64_t need)
{
    dpar_halo_plan *x;
    int64_t bytes;
    int32_t i;
    dpari_zero(memory, (size_t)need);
    x = dpari_hx_layout(z, memory, &bytes);
    x->c = c;
    x->node = c->node ? c->node : c;
    x->world = desc->method == DPAR_HALO_MESSAGES ? NULL : dpari_world_of(x->node);
    x->options = *desc;
    x->options.field = x->field;
    x->rank = c->rank;
    x->wide = dpari_os_wide();
    x->fields = desc->field_count;
    x->steps = z->steps;
    x->items = z->items;
    for (i = 0; i < x->fields; i++) {
        x->field[i] = desc->field[i];
        x->elsewhere |= dpari_hx_mem(&desc->field[i]) != NULL;
    }
    for (i = 0; i < x->steps; i++) {
        x->step[i] = dpari_hx_step_of(z, i);
    }
    x->forward = z->forward;
    x->early = z->cut < 0 ? 0 : z->steps - z->forward - 1;
    return x;
}

DPARI_API DPARI_COLD dpar_status dpari_hx_open(dpar_comm *c, const dpar_halo_plan_desc *desc,
                                               int32_t later, dpar_halo_plan **plan, dpar_why *why)
{
    dpar_halo_plan *x;
    dpari_hx_size z;
    void *memory = NULL;
    int64_t need = 0;
    dpar_status st;
    if (!c) {
        return dpari_wrong(why, "dpar_halo_plan_make: comm is NULL");
    }
    if (desc && plan) {
        st = dpari_hx_prepare_plan(c, desc, later, &z, &need, &memory, why);
    } else {
        st = dpari_wrong(why, "dpar_halo_plan_make: desc or plan is NULL");
    }
    st = dpari_agree_on(c, st, "halo", dpari_hx_state, desc, why);
    if (st == DPAR_OK && !desc->ordered && !desc->shared) {
        st = dpari_hx_agree_on_order(c, &z, why);
    }
    if (st == DPAR_OK) {
        x = dpari_hx_describe_plan(c, desc, &z, memory, need);
        x->owned = desc->memory == NULL ? memory : NULL;
        dpari_hx_own_arrays(x, later);
        dpari_hx_mark_peers(x);
        st = dpari_hx_plan(x, why);
    }
    if (st != DPAR_OK) {
        return dpari_object_failed(st, desc ? desc->memory : NULL, memory, need, why);
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

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_bind(dpar_halo_plan *x, int32_t f, void *data,
                                                    void *halos)
{
    dpari_hx_array *a;
    int32_t s;
    if (!x) {
        return DPAR_E_ARG;
    }
    if (f < 0 || f >= x->fields || x->active) {
        return dpari_comm_wrong(
            x->c, "dpar_halo_plan_bind: field is %d of %d fields, and %d exchanges have not ended",
            f, x->fields, x->active);
    }
    if ((data != NULL) != (x->part[2 * f] != NULL) ||
        (halos != NULL) != (x->part[2 * f + 1] != NULL)) {
        return dpari_comm_wrong(x->c,
                                "dpar_halo_plan_bind: field %d was planned with %d, this is %d (1: "
                                "data, 2: halos, 3: both)",
                                f, (x->part[2 * f] != NULL) + 2 * (x->part[2 * f + 1] != NULL),
                                (data != NULL) + 2 * (halos != NULL));
    }
    a = &x->array[f];
    if ((a->reach[0] && dpari_ref(x->world, data, 1) == 0) ||
        (a->reach[1] && dpari_ref(x->world, halos, 1) == 0)) {
        return dpari_comm_wrong(
            x->c,
            "dpar_halo_plan_bind: field %d was planned in memory of dpar_comm_alloc, where peers "
            "may read it, but the new array is not in such memory",
            f);
    }
    x->field[f].data = data;
    x->field[f].compact_halo = halos;
    dpari_hx_bind_field(x, f);
    if (!x->bound) {
        x->bound = 1;
        dpari_hx_gather_all(x);
    }
    x->version++;
    for (s = 0; s < x->steps && x->world; s++) {
        x->line[s].version = x->version;
    }
    return DPAR_OK;
}
