/* SPDX-License-Identifier: MIT-0 */
/* Writes reports of a halo exchange, and checks its results.
 *
 * Stale halos are found by comparing them with the results of a new exchange. Wrong halos are found
 * by an independent computation: rank 0 assembles each whole field from the own points, and the
 * owner of each halo cell is computed from the rules of halo.h, without the transfer lists that
 * exchanges use. */
#include "halo_check.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/world.h"
#include "../halo/halo_exchange.h"
#include "../halo/halo_exchange_private.h"
#include "../halo/halo_mem.h"
#include "../halo/halo_plan.h"
#include "../halo/halo_traffic.h"
#include "../halo/halo_view.h"
#include "../host/mem.h"
#include "../host/mem_private.h"
#include "../host/strided.h"
#include "../index/halo.h"
#include "../index/index_private.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "../index/reach.h"
#include "../index/redistribute.h"

/* ---- reports --------------------------------------------------------------------------------- */

/* Returns the name of a method, DPAR_HALO_x. */
static const char *dpari_hx_way(int32_t way)
{
    switch (way) {
    case DPAR_HALO_MESSAGES: return "message";
    case DPAR_HALO_PACKED: return "packed";
    case DPAR_HALO_DIRECT: return "direct";
    default: return "auto";
    }
}

/* Names the fields that are packed because they are not in registered memory. */
static void dpari_hx_put_unreached(dpar_text *out, const dpar_halo_plan *plan)
{
    int32_t i;
    for (i = 0; i < 2 * plan->fields; i++) {
        if (!dpari_hx_unreached(plan, i / 2, i % 2)) {
            continue;
        }
        dpari_text_print(out,
                         i % 2 ? "  the halos of field %d are packed: they are"
                               : "  field %d is packed: it is",
                         i / 2);
        dpar_text_put(out, " not in memory of dpar_comm_alloc of this communicator\n");
    }
}

DPAR_API DPARI_COLD void dpar_halo_plan_report(const dpar_halo_plan *plan, dpar_text *out)
{
    dpari_hx_traffic t;
    int32_t k, c;
    if (!plan || !out) {
        return;
    }
    dpari_text_print(out, "halo exchange of rank %d, %d field%s", plan->comm->rank, plan->fields,
                     plan->fields == 1 ? "" : "s");
    dpar_text_put(out, plan->options.ordered ? ", dim by dim\n" : "\n");
    dpar_text_put(out, "  to rank   way       hops   pieces        bytes       direct         "
                       "runs\n");
    for (k = 0; dpari_hx_traffic_of(plan, k, &t); k++) {
        int64_t column[6];
        static const int32_t place[6] = {4, 22, 31, 44, 57, 70};
        column[0] = t.peer;
        column[1] = t.hops;
        column[2] = t.pieces;
        column[3] = t.bytes;
        column[4] = t.direct;
        column[5] = t.runs;
        for (c = 0; c < 6; c++) {
            dpari_text_column(out, (size_t)place[c]);
            dpari_text_int(out, column[c]);
            if (c == 0) {
                dpari_text_column(out, 12);
                dpar_text_put(out, t.peer == plan->comm->rank ? "copy" : dpari_hx_way(t.way));
            }
        }
        dpari_text_char(out, '\n');
    }
    dpari_hx_put_exchanges(plan, out);
    dpari_hx_put_unreached(out, plan);
}

/* ---- checks POISON and UNFILLED -------------------------------------------------------------- */

/* Stores a value that no code computes: a quiet NaN, or an integer with all bits set. */
static void dpari_hx_poison_of(int32_t type, unsigned char *element)
{
    const uint64_t f64 = UINT64_C(0x7ff8) << 48;
    const uint32_t f32 = 0x7fc00000u;
    const uint16_t bf16 = 0x7fc0, f16 = 0x7e00;
    memset(element, 0xff, 8);
    switch (type) {
    case DPAR_F64: memcpy(element, &f64, 8); break;
    case DPAR_F32:
    case DPAR_TF32: memcpy(element, &f32, 4); break;
    case DPAR_BF16: memcpy(element, &bf16, 2); break;
    case DPAR_F16: memcpy(element, &f16, 2); break;
    default: break;
    }
}

/* True for any NaN, or for the integer with all bits set. */
DPARI_STATIC_NOINLINE int dpari_hx_is_poison(int32_t type, const unsigned char *at)
{
    unsigned char element[8];
    double d;
    float f;
    uint16_t h;
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); return d != d;
    case DPAR_F32:
    case DPAR_TF32: memcpy(&f, at, 4); return f != f;
    case DPAR_BF16: memcpy(&h, at, 2); return (h & 0x7fff) > 0x7f80;
    case DPAR_F16: memcpy(&h, at, 2); return (h & 0x7fff) > 0x7c00;
    default: break;
    }
    memset(element, 0xff, 8);
    return memcmp(at, element, (size_t)dpar_type_bytes(type)) == 0;
}

/* Sets all halo cells that an exchange fills to the value of dpari_hx_poison_of. */
static void dpari_hx_poison(const dpar_halo_plan *plan)
{
    const dpari_hx_item *it;
    uint64_t element[1];
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        dpari_hx_poison_of(plan->field[it->field].type, (unsigned char *)element);
        dpari_hx_fill_cells(plan, it, element);
    }
}

/* Appends "field 2, point (4, -1) component 1 of rank 3" for index at[] of an item. */
static void dpari_hx_put_cell(const dpar_halo_plan *plan, const dpari_hx_item *it,
                              const int64_t *at, dpar_text *out)
{
    const dpar_halo *halo = plan->field[it->field].halo;
    dpar_box all;
    int32_t d;
    dpari_text_print(out, "field %d, point (", it->field);
    if (dpar_halo_box(halo, plan->comm->rank, &all)) {
        for (d = 0; d < all.dims; d++) {
            dpari_text_print(out, "%s%ld", d ? ", " : "", all.lo[d] + it->local[d] + at[d]);
        }
    }
    dpari_text_print(out, ") component %ld of rank %d", at[it->dims - 1], plan->comm->rank);
}

/* Advances to the next cell of an item: at[] is its index in the item's dims, and *place its offset
 * in elements, by step[] in each dim. Returns 0 after the last cell. */
static int dpari_hx_step_on(const dpari_hx_item *it, const int64_t *step, int64_t *at,
                            int64_t *place)
{
    int32_t d;
    for (d = it->dims - 1; d >= 0; d--) {
        *place += step[d];
        if (++at[d] < it->extent[d]) {
            return 1;
        }
        *place -= step[d] * it->extent[d];
        at[d] = 0;
    }
    return 0;
}

/* Converts index at[] from the sender's order to that of this rank's array. */
static void dpari_hx_here(const dpari_hx_item *it, const int64_t *at, int64_t *here)
{
    int32_t d;
    for (d = 0; d < it->dims; d++) {
        here[it->here[d]] = it->flip >> it->here[d] & 1u ? it->extent[d] - 1 - at[d] : at[d];
    }
}

/* Fails with the first halo cell that is still poisoned. */
static dpar_status dpari_hx_unfilled(const dpar_halo_plan *plan, dpar_why *why)
{
    const dpari_hx_item *it;
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        const int32_t type = plan->field[it->field].type;
        const int64_t *step;
        const unsigned char *from = dpari_hx_look_at(plan, it, &step);
        int64_t at[DPARI_HX_DIMS] = {0, 0, 0, 0, 0, 0, 0}, here[DPARI_HX_DIMS], place = 0;
        if (!from) {
            return dpari_say(DPAR_E_SYSTEM, why, "field %d cannot be read from its memory",
                             it->field);
        }
        do {
            dpar_text t;
            if (!dpari_hx_is_poison(type, from + place * dpar_type_bytes(type))) {
                continue;
            }
            dpari_text_why(&t, why);
            dpari_hx_here(it, at, here);
            dpari_hx_put_cell(plan, it, here, &t);
            dpar_text_put(&t, " was not filled, or came from a cell without a value");
            return DPAR_E_ARG;
        } while (dpari_hx_step_on(it, step, at, &place));
    }
    return DPAR_OK;
}

/* ---- check STALE: comparing with the results of a new exchange ------------------------------- */

/* Appends an element of any type. */
static void dpari_hx_put_value(dpar_text *out, int32_t type, const unsigned char *at)
{
    uint64_t bits = 0;
    double d;
    float f;
    dpar_mem_box b;
    dpari_zero(&b, sizeof b);
    switch (type) {
    case DPAR_F64: memcpy(&d, at, 8); break;
    case DPAR_F32:
    case DPAR_TF32:
    case DPAR_F16:
    case DPAR_BF16:
        memcpy(&bits, at, (size_t)dpar_type_bytes(type));
        b.to = &f;
        b.from = &bits;
        b.to_type = DPAR_F32;
        b.from_type = b.round_type = type == DPAR_TF32 ? DPAR_F32 : type;
        (void)dpari_mem_move_box(&b);
        d = (double)f;
        break;
    case DPAR_I64:
    case DPAR_U64:
        memcpy(&bits, at, 8);
        dpari_text_int(out, (int64_t)bits);
        return;
    case DPAR_I32: {
        int32_t i;
        memcpy(&i, at, 4);
        dpari_text_int(out, i);
        return;
    }
    case DPAR_U32: {
        uint32_t i;
        memcpy(&i, at, 4);
        dpari_text_int(out, i);
        return;
    }
    default: dpari_text_int(out, type == DPAR_I8 ? (signed char)at[0] : at[0]); return;
    }
    dpari_text_real(out, d, type == DPAR_F64 ? 17 : 9);
}

/* Returns the bytes of the copy of an item. */
static int64_t dpari_hx_kept_bytes(const dpar_halo_plan *plan, const dpari_hx_item *it)
{
    return (it->elements * dpar_type_bytes(plan->field[it->field].type) + 15) / 16 * 16;
}

/* Copies all halo cells that this rank receives, one item after another, to `kept`, or back if
 * `back` is 1. */
static dpar_status dpari_hx_copy_halos(const dpar_halo_plan *plan, unsigned char *kept, int back)
{
    const dpari_hx_item *it;
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        dpar_mem_box b;
        dpar_status status;
        dpari_hx_box_of(plan, it, kept, back, &b);
        status = dpari_hx_move_box(&plan->field[it->field], &b);
        if (status != DPAR_OK) {
            return status;
        }
        kept += dpari_hx_kept_bytes(plan, it);
    }
    return DPAR_OK;
}

/* Compares an item with its kept copy. Returns 1 if they differ, and describes the first cell that
 * differs in *why. */
static int dpari_hx_item_differs(const dpar_halo_plan *plan, const dpari_hx_item *it,
                                 const unsigned char *was, const unsigned char *is, dpar_why *why)
{
    const int32_t type = plan->field[it->field].type, width = dpar_type_bytes(type);
    int64_t at[DPARI_HX_DIMS] = {0, 0, 0, 0, 0, 0, 0}, here[DPARI_HX_DIMS], place = 0;
    dpar_text t;
    do {
        if (memcmp(was + place * width, is + place * width, (size_t)width) == 0) {
            continue;
        }
        dpari_text_why(&t, why);
        dpari_hx_here(it, at, here);
        dpari_hx_put_cell(plan, it, here, &t);
        dpar_text_put(&t, " is ");
        dpari_hx_put_value(&t, type, was + place * width);
        dpari_text_print(&t, "; its owner, rank %d, has ", dpari_hx_owner(plan, it, here));
        dpari_hx_put_value(&t, type, is + place * width);
        return 1;
    } while (dpari_hx_step_on(it, it->dense, at, &place));
    return 0;
}

/* Compares the kept halos with those received now. Returns the first field with a difference, or
 * -1. */
static int32_t dpari_hx_stale(const dpar_halo_plan *plan, const unsigned char *was,
                              const unsigned char *is, dpar_why *why)
{
    const dpari_hx_item *it;
    int32_t found = -1;
    int64_t k;
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        const int64_t bytes = dpari_hx_kept_bytes(plan, it);
        if ((found < 0 || it->field < found) && dpari_hx_item_differs(plan, it, was, is, why)) {
            found = it->field;
        }
        was += bytes;
        is += bytes;
    }
    return found;
}

/* Returns on all ranks the message of the rank that found the first field. field: the field that
 * this rank found, or -1. */
static dpar_status dpari_hx_tell_all(dpar_halo_plan *plan, int32_t field, dpar_why *found,
                                     dpar_why *why)
{
    const int64_t unit = INT64_C(1) << 32;
    int64_t mine = field < 0 ? INT64_MAX : field * unit + plan->comm->rank, first = 0;
    dpar_status st = dpar_all_reduce(plan->comm, &mine, &first, 1, DPAR_I64, DPAR_MIN, NULL);
    if (st == DPAR_OK && first != INT64_MAX) {
        st = dpar_broadcast(plan->comm, found->text, (int64_t)sizeof found->text, DPAR_U8,
                            (int32_t)(first % unit), NULL);
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, plan->comm->why.text);
    }
    return first == INT64_MAX ? DPAR_OK : dpari_repeat(DPAR_E_MISMATCH, why, found->text);
}

/* Copies the halos, exchanges them, compares them with the copy, and restores the copy. */
static dpar_status dpari_hx_find_stale(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_why found;
    unsigned char *was, *is;
    void *memory = NULL;
    const dpari_hx_item *it;
    int32_t field = -1;
    int64_t bytes = 0, k;
    dpar_status st, kept;
    dpari_zero(&found, sizeof found);
    for (k = 0; (it = dpari_hx_received(plan, k)) != NULL; k++) {
        bytes += dpari_hx_kept_bytes(plan, it);
    }
    st = dpar_comm_alloc(plan->comm, 2 * bytes + 64, &memory);
    if (st != DPAR_OK) {
        (void)dpari_repeat(st, why, plan->comm->why.text);
    }
    was = (unsigned char *)memory;
    is = was + bytes;
    if (st == DPAR_OK) {
        st = dpari_hx_pin(plan, memory, 2 * bytes + 64, 1);
    }
    if (st == DPAR_OK) {
        st = dpari_hx_copy_halos(plan, was, 0);
    }
    kept = st;
    st = dpari_agree(plan->comm, st, why);
    if (st == DPAR_OK) {
        st = dpar_halo_plan_exchange(plan);
    }
    if (st == DPAR_OK) {
        st = dpari_hx_copy_halos(plan, is, 0);
        field = st == DPAR_OK ? dpari_hx_stale(plan, was, is, &found) : -1;
    }
    if (kept == DPAR_OK) {
        kept = dpari_hx_copy_halos(plan, was, 1);
    }
    if (memory) {
        (void)dpari_hx_pin(plan, memory, 2 * bytes + 64, 0);
        dpar_comm_release(plan->comm, memory);
    }
    st = dpari_agree(plan->comm, st == DPAR_OK ? kept : st, why);
    return st == DPAR_OK ? dpari_hx_tell_all(plan, field, &found, why) : st;
}

/* ---- check WRONG: comparing with the whole array --------------------------------------------- */

/* A field while it is compared. */
typedef struct dpari_hx_whole {
    const dpar_halo_plan *x;
    int32_t f, components, width; /* number of the field, its components, bytes of a component */
    dpar_box own, all;            /* own points and local box of the rank that is checked */
    unsigned char *points[2];     /* rank 0: all points of the field and of a pair's other field */
    unsigned char *known[2];      /* rank 0: 1 for each point that has an owner */
    unsigned char *local;         /* the local box of one rank */
    dpar_why *why;
} dpari_hx_whole;

DPARI_STATIC_NOINLINE int64_t dpari_hx_volume(const dpar_box *b)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        n *= b->hi[d] - b->lo[d];
    }
    return n;
}

/* Returns the offset of point p in a dense box, in bytes. */
static int64_t dpari_hx_at(const dpari_hx_whole *whole, const dpar_box *b, const int64_t *p)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        at = at * (b->hi[d] - b->lo[d]) + p[d] - b->lo[d];
    }
    return at * whole->components * whole->width;
}

static int dpari_hx_next_point(const dpar_box *b, int64_t *p)
{
    int32_t d;
    for (d = b->dims - 1; d >= 0; d--) {
        if (++p[d] < b->hi[d]) {
            return 1;
        }
        p[d] = b->lo[d];
    }
    return 0;
}

/* Copies some points of this rank's array of field f to `local`, which is dense. */
static dpar_status dpari_hx_collect_box(const dpar_halo_plan *plan, const dpari_hx_whole *whole,
                                        int32_t field, const dpar_box *part)
{
    const dpar_halo_field *f = &plan->field[field];
    const int32_t dims = part->dims;
    int64_t at[DPAR_MAX_DIMS], step = whole->components;
    dpar_mem_box b;
    int32_t d;
    if (dpari_hx_volume(part) == 0) {
        return DPAR_OK;
    }
    for (d = 0; d < dims; d++) {
        at[d] = part->lo[d] - whole->all.lo[d];
    }
    dpari_zero(&b, sizeof b);
    b.dims = dims + 1;
    b.to_type = b.from_type = b.round_type = f->type;
    b.to = whole->local + dpari_hx_at(whole, &whole->all, part->lo);
    b.from = (void *)(uintptr_t)dpari_hx_point(plan, field, at, b.from_stride); /* read only */
    b.extent[dims] = whole->components;
    b.to_stride[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        b.extent[d] = part->hi[d] - part->lo[d];
        b.to_stride[d] = step;
        step *= whole->all.hi[d] - whole->all.lo[d];
    }
    return dpari_hx_move_box(f, &b);
}

/* Returns the points of the local box that may be compared. Points beyond an end of the grid, where
 * nothing is exchanged, are images of no point, and the array need not have them. */
static dpar_box dpari_hx_compared(const dpari_hx_whole *whole, const dpar_halo *halo)
{
    dpar_box part = whole->all;
    int32_t d;
    for (d = 0; d < part.dims; d++) {
        const int ends = !(halo->periodic >> d & 1u) && d != halo->fold &&
                         !(halo->cube && d >= part.dims - 2);
        if (ends) {
            part.lo[d] = dpari_most(part.lo[d], 0);
            part.hi[d] = dpari_least(part.hi[d], dpar_halo_points(halo, d));
            part.hi[d] = dpari_most(part.hi[d], part.lo[d]);
        }
    }
    return part;
}

/* Copies this rank's local box of a field to `local`, which is dense. Points that a compact form
 * does not store, or that are not compared, are left out. */
static dpar_status dpari_hx_collect(const dpar_halo_plan *plan, const dpari_hx_whole *whole,
                                    int32_t field)
{
    dpar_box slab;
    dpar_status st;
    int32_t n;
    if (!plan->array[field].compact) {
        slab = dpari_hx_compared(whole, plan->array[field].halo);
        return dpari_hx_collect_box(plan, whole, field, &slab);
    }
    st = dpari_hx_collect_box(plan, whole, field, &whole->own);
    for (n = 0;
         st == DPAR_OK && dpar_halo_slab(plan->array[field].halo, plan->comm->rank, n, &slab);
         n++) {
        st = dpari_hx_collect_box(plan, whole, field, &slab);
    }
    return st;
}

/* Copies the own points of a rank's local box to the whole array of the field, or, if `other` is 1,
 * of the other field of a pair. */
static void dpari_hx_assemble(dpari_hx_whole *whole, const dpar_box *grid, int other)
{
    int64_t p[DPAR_MAX_DIMS];
    int32_t d;
    if (dpari_hx_volume(&whole->own) == 0) {
        return;
    }
    for (d = 0; d < whole->own.dims; d++) {
        p[d] = whole->own.lo[d];
    }
    do {
        const int64_t at = dpari_hx_at(whole, grid, p), bytes = whole->components * whole->width;
        memcpy(whole->points[other] + at, whole->local + dpari_hx_at(whole, &whole->all, p),
               (size_t)bytes);
        whole->known[other][at / bytes] = 1;
    } while (dpari_hx_next_point(&whole->own, p));
}

/* Moves a point over an edge of a cube's face, in dim k of at[] (0 is y, 1 is x). at[] is in half
 * cells. half: the position of points in their cells, in half cells. */
static void dpari_hx_over_edge(int64_t n, int32_t k, int64_t *face, int64_t *at, int32_t *half,
                               int32_t *turn)
{
    const int up = at[k] > n;
    int32_t more = 0;
    *face = dpari_halo_edge((int32_t)*face, (k ? DPARI_EDGE_WEST : DPARI_EDGE_SOUTH) + up, &more);
    *turn = (*turn + more) % 4;
    at[k] += up ? -2 * n : 2 * n;
    if (more != 0) { /* the other face is rotated by a quarter turn */
        const int64_t across = at[k];
        const int32_t was = half[k];
        at[k] = 2 * n - at[1 - k];
        at[1 - k] = across;
        half[k] = half[1 - k];
        half[1 - k] = was;
    }
}

/* Computes q, the point of a cubed sphere at the position of p, which is beyond an edge or on a
 * border that another face owns. Returns 0 if p is beyond two edges, where three faces meet. */
static int dpari_hx_on_cube(const dpar_halo *halo, const int64_t *p, int64_t *q, int32_t *turn)
{
    const int32_t y = halo->grid.dims - 2;
    const int64_t n = halo->grid.extent[y];
    int64_t at[2];
    int32_t half[2], k, hops;
    for (k = 0; k < 2; k++) {
        const int32_t points = halo->points[y + k];
        half[k] = 1;
        if (points != DPAR_HALO_AT_CELLS) {
            half[k] = points == DPAR_HALO_AT_LOW_FACES ? 0 : 2;
        }
        at[k] = 2 * p[y + k] + half[k];
    }
    for (hops = 0; hops < 3; hops++) {
        int beyond[2], ends[2];
        for (k = 0; k < 2; k++) {
            beyond[k] = at[k] < 0 || at[k] > 2 * n;
            ends[k] = at[k] - half[k] < 0 || at[k] - half[k] >= 2 * n;
        }
        if (beyond[0] && beyond[1]) {
            return 0;
        }
        if (!ends[0] && !ends[1]) {
            break;
        }
        dpari_hx_over_edge(n, beyond[0] || beyond[1] ? beyond[1] : ends[1], &q[0], at, half, turn);
    }
    for (k = 0; k < 2; k++) {
        q[y + k] = (at[k] - half[k]) / 2;
    }
    return 1;
}

/* Computes the column of q. over: 1 if the point is beyond a fold, 2 if beyond a pole. seam: 1 if
 * it is on the fold. Returns 0 if the point is no image of another one. */
static int dpari_hx_turned(const dpar_halo *halo, int over, int seam, int64_t *q)
{
    const int32_t m = halo->mirror;
    int64_t columns, to;
    if (!over && !seam) {
        return 0;
    }
    columns = dpar_halo_points(halo, m);
    to = over == 2 ? q[m] + columns / 2 : columns - 1 + halo->shift - q[m];
    to -= dpari_floor_div(to, columns) * columns;
    if (!over && to >= q[m]) { /* in a pair of points on the fold, the later one is the image */
        return 0;
    }
    q[m] = to;
    return 1;
}

/* Computes the point of which cell p is an image, by the rules of halo.h but independently of its
 * code. Returns 0 if there is none, or if p is that point itself. Sets *turn to the quarter turns
 * of vectors. */
static int dpari_hx_image(const dpari_hx_whole *whole, const int64_t *p, int64_t *q, int32_t *turn)
{
    const dpar_halo *halo = whole->x->field[whole->f].halo;
    int32_t d, outside = 0, over = 0, seam = 0,
               most = dpari_stencil_axes(halo->shape, whole->all.dims);
    *turn = 0;
    for (d = 0; d < whole->all.dims; d++) {
        const int64_t n = dpar_halo_points(halo, d);
        const int bends = d == halo->fold;
        most = halo->window[d].kernel != 0 || whole->x->options.shared ? whole->all.dims : most;
        outside += p[d] < whole->own.lo[d] || p[d] >= whole->own.hi[d];
        q[d] = p[d];
        if (halo->periodic >> d & 1u) {
            q[d] = p[d] - dpari_floor_div(p[d], n) * n;
        } else if (bends && p[d] >= n && (halo->folds || (halo->poles & DPAR_HALO_POLE_HIGH))) {
            over = halo->folds ? 1 : 2;
            q[d] = 2 * (n - 1) + 1 - p[d] -
                   (halo->folds ? halo->on_row : (halo->pole_rows & DPAR_HALO_POLE_HIGH) != 0);
        } else if (bends && p[d] < 0 && (halo->poles & DPAR_HALO_POLE_LOW)) {
            over = 2;
            q[d] = ((halo->pole_rows & DPAR_HALO_POLE_LOW) != 0) - 1 - p[d];
        } else if ((p[d] < 0 || p[d] >= n) && (!halo->cube || d == 0 || d < whole->all.dims - 2)) {
            return 0;
        }
        seam |= bends && halo->folds && halo->on_row && p[d] == n - 1;
    }
    if (outside > most) {
        return 0;
    }
    if (dpari_hx_turned(halo, over, seam, q)) {
        *turn = 2;
        return 1;
    }
    return outside > 0 && (!halo->cube || dpari_hx_on_cube(halo, p, q, turn));
}

/* True if p is among the points that blocks share: an own point, or on the face next to the own
 * points.
 */
static int dpari_hx_is_shared(const dpari_hx_whole *whole, const int64_t *p)
{
    const dpar_halo *halo = whole->x->field[whole->f].halo;
    int32_t d, n = 0;
    for (d = 0; d < whole->all.dims; d++) {
        n += p[d] >= whole->own.lo[d] - (halo->points[d] == DPAR_HALO_AT_HIGH_FACES) &&
             p[d] < whole->own.hi[d] + (halo->points[d] == DPAR_HALO_AT_LOW_FACES) &&
             ((halo->periodic >> d & 1u) || (halo->cube && d >= whole->all.dims - 2) ||
              (p[d] >= 0 && p[d] < dpar_halo_points(halo, d)));
    }
    return n == whole->all.dims;
}

/* Computes component k of a point as it arrives after `turn` quarter turns: rounded to the type in
 * which it is sent, with the sign of vectors. A pair (u, v) becomes (-v, u), (-u, -v) or (v, -u).
 */
static void dpari_hx_passed(const dpari_hx_whole *whole, int32_t turn, int32_t k, void *to,
                            const unsigned char *point)
{
    const dpar_halo_field *field = &whole->x->field[whole->f];
    const int pair = field->vector == 2 && (turn & 1) != 0;
    dpari_stride_piece p;
    dpari_stride one;
    dpari_zero(&p, sizeof p);
    p.to_type = p.from_type = field->type;
    p.through = dpari_hx_wire(field);
    p.negate = pair ? (turn == 1) == (k == 0) : dpari_hx_negates(field, turn);
    dpari_stride_prepare(&one, &p);
    dpari_stride_run(&one, to, point + (pair ? 1 - k : k) * whole->width);
}

/* Writes the message about a halo cell that differs from its owner's. */
static dpar_status dpari_hx_differs(const dpari_hx_whole *whole, int32_t rank, const int64_t *p,
                                    const int64_t *q, int32_t k, const unsigned char *got,
                                    const unsigned char *want)
{
    const int32_t type = whole->x->field[whole->f].type;
    dpar_text t;
    int32_t d, pass;
    dpari_text_why(&t, whole->why);
    dpari_text_print(&t, "field %d", whole->f);
    for (pass = 0; pass < 2; pass++) {
        const int64_t *at = pass ? q : p;
        dpar_text_put(&t, pass ? "; its owner's, point (" : ", point (");
        for (d = 0; d < whole->all.dims; d++) {
            dpari_text_print(&t, "%s%ld", d ? ", " : "", at[d]);
        }
        dpari_text_char(&t, ')');
        if (pass == 0) {
            dpari_text_print(&t, " component %d of rank %d", k, rank);
        }
        dpar_text_put(&t, " is ");
        dpari_hx_put_value(&t, type, pass ? want : got);
    }
    return DPAR_E_MISMATCH;
}

/* True if component k of a halo cell is received: its direction leads from there into the block. */
static int dpari_hx_leads_in(const dpari_hx_whole *whole, const int64_t *p, int32_t k)
{
    const int8_t *direction = whole->x->field[whole->f].direction;
    int32_t d;
    for (d = 0; direction && d < whole->all.dims; d++) {
        const int8_t moves = direction[k * DPAR_MAX_DIMS + d];
        if ((p[d] < whole->own.lo[d] && moves <= 0) || (p[d] >= whole->own.hi[d] && moves >= 0)) {
            return 0;
        }
    }
    return 1;
}

/* Checks all cells of one rank's local box that are an image of a point with an owner. */
static DPARI_COLD dpar_status dpari_hx_compare_box(const dpari_hx_whole *whole,
                                                   const dpar_box *grid, int32_t rank)
{
    int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
    int32_t d, k, turn;
    for (d = 0; d < whole->all.dims; d++) {
        p[d] = whole->all.lo[d];
    }
    do {
        const unsigned char *points, *known;
        int64_t from;
        if ((whole->x->options.shared && !dpari_hx_is_shared(whole, p)) ||
            !dpari_hx_image(whole, p, q, &turn)) {
            continue;
        }
        from = dpari_hx_at(whole, grid, q);
        points = whole->points[dpari_hx_crosses(&whole->x->field[whole->f], turn)];
        known = whole->known[dpari_hx_crosses(&whole->x->field[whole->f], turn)];
        for (k = 0; k < whole->components && known[from / (whole->components * whole->width)];
             k++) {
            uint64_t want[1] = {0};
            const unsigned char *got =
                whole->local + dpari_hx_at(whole, &whole->all, p) + k * whole->width;
            if (!dpari_hx_leads_in(whole, p, k)) {
                continue;
            }
            dpari_hx_passed(whole, turn, k, want, points + from);
            if (memcmp(want, got, (size_t)whole->width) != 0) {
                return dpari_hx_differs(whole, rank, p, q, k, got,
                                        (const unsigned char *)(const void *)want);
            }
        }
    } while (dpari_hx_next_point(&whole->all, p));
    return DPAR_OK;
}

/* Returns the copy of the grid that a rank's block belongs to, or -1. Mesh axes that do not cut the
 * grid number its copies. */
static int64_t dpari_hx_copy_of(const dpar_halo *halo, int32_t rank)
{
    int32_t coord[DPAR_MAX_AXES], i;
    int64_t copy = 0;
    if (!dpari_halo_coords(halo, rank, coord)) {
        return -1;
    }
    for (i = 0; i < halo->grid.mesh.axes; i++) {
        if (halo->grid.axis[i].kind != DPAR_PLACEMENT_SHARD) {
            copy = copy * halo->grid.mesh.axis[i].size + coord[i];
        }
    }
    return copy;
}

/* Returns the bytes of the largest local box of field f: of all ranks on rank 0, of this rank on
 * other ranks. */
static int64_t dpari_hx_local_bytes(const dpar_halo_plan *plan, int32_t f)
{
    const int64_t point =
        dpari_hx_components(&plan->field[f]) * dpar_type_bytes(plan->field[f].type);
    int64_t most = 0;
    dpar_box own, all;
    int32_t r;
    for (r = plan->comm->rank;
         r < (plan->comm->rank == 0 ? plan->comm->size : plan->comm->rank + 1); r++) {
        if (dpari_hx_boxes(plan->field[f].halo, r, &own, &all)) {
            most = dpari_most(most, dpari_hx_volume(&all) * point);
        }
    }
    return most;
}

/* Returns the field of a pass, or -1 if there is none. The passes are the own points of the field,
 * the own points of the other field of a pair, and the halos of the field. */
static int32_t dpari_hx_pass_field(const dpari_hx_whole *whole, int32_t pass)
{
    const dpar_halo_field *field = &whole->x->field[whole->f];
    if (pass != 1) {
        return whole->f;
    }
    return field->pair ? (int32_t)(dpari_hx_other(field) - whole->x->field) : -1;
}

/* Rank 0: receives the local boxes of all ranks that have one copy of the grid, one after another.
 * First assembles own points, then compares halos and writes the first difference. Receives all
 * boxes even after an error, because the other ranks send them. */
static dpar_status dpari_hx_compare_copy(dpar_halo_plan *plan, dpari_hx_whole *whole,
                                         const dpar_box *grid, int64_t copy)
{
    dpar_status st = DPAR_OK, now;
    int32_t pass, r;
    for (pass = 0; pass < 3; pass++) {
        const int32_t f = dpari_hx_pass_field(whole, pass);
        for (r = 0; f >= 0 && r < plan->comm->size; r++) {
            const dpar_halo *halo = plan->field[f].halo;
            if (dpari_hx_copy_of(halo, r) != copy ||
                !dpari_hx_boxes(halo, r, &whole->own, &whole->all)) {
                continue;
            }
            if (r == plan->comm->rank) {
                now = dpari_hx_collect(plan, whole, f);
            } else {
                const int64_t n = dpari_hx_volume(&whole->all) * whole->components * whole->width;
                now = dpar_recv(plan->comm, whole->local, n, DPAR_U8, r, plan->options.tag, NULL);
            }
            if (st == DPAR_OK) {
                st = now;
            }
            if (st == DPAR_OK && pass < 2) {
                dpari_hx_assemble(whole, grid, pass);
            } else if (st == DPAR_OK && whole->why->text[0] == 0) {
                (void)dpari_hx_compare_box(whole, grid, r);
            }
        }
    }
    return st;
}

/* Other ranks: sends the local boxes in the order in which rank 0 receives them. */
static dpar_status dpari_hx_compare_send(dpar_halo_plan *plan, dpari_hx_whole *whole)
{
    dpar_status st = DPAR_OK, now;
    int32_t pass;
    for (pass = 0; pass < 3; pass++) {
        const int32_t f = dpari_hx_pass_field(whole, pass);
        if (f >= 0 &&
            dpari_hx_boxes(plan->field[f].halo, plan->comm->rank, &whole->own, &whole->all)) {
            const int64_t n = dpari_hx_volume(&whole->all) * whole->components * whole->width;
            now = dpari_hx_collect(plan, whole, f);
            if (st == DPAR_OK) {
                st = now;
            }
            now = dpar_send(plan->comm, whole->local, n, DPAR_U8, 0, plan->options.tag, NULL);
            if (st == DPAR_OK) {
                st = now;
            }
        }
    }
    return st;
}

/* Compares field f. Allocates memory for a local box, and on rank 0 also for the whole field and
 * the other field of a pair. */
static dpar_status dpari_hx_compare_field(dpar_halo_plan *plan, int32_t f, dpar_why *found)
{
    const dpar_halo *halo = plan->field[f].halo;
    const int32_t fields = plan->field[f].pair ? 2 : 1;
    const int32_t wholes = plan->comm->rank == 0 ? fields : 0;
    dpari_hx_whole w;
    dpar_box grid;
    void *memory = NULL;
    int64_t local, points = 1, bytes, copy;
    int32_t d;
    dpar_status st;
    dpari_zero(&w, sizeof w);
    w.x = plan;
    w.f = f;
    w.components = dpari_hx_components(&plan->field[f]);
    w.width = dpar_type_bytes(plan->field[f].type);
    w.why = found;
    grid.dims = halo->grid.dims;
    for (d = 0; d < grid.dims; d++) {
        grid.lo[d] = 0;
        grid.hi[d] = dpar_halo_points(halo, d);
        points *= grid.hi[d];
    }
    local = dpari_hx_local_bytes(plan, f);
    d = dpari_hx_pass_field(&w, 1);
    local = d >= 0 ? dpari_most(local, dpari_hx_local_bytes(plan, d)) : local;
    bytes = local + 64 + wholes * points * (w.components * w.width + 1);
    st = dpar_comm_alloc(plan->comm, bytes, &memory);
    if (st == DPAR_OK) {
        st = dpari_hx_pin(plan, memory, bytes, 1);
    }
    w.local = (unsigned char *)memory;
    for (d = 0; d < wholes; d++) {
        w.points[d] = w.local + dpari_room_up(local) + d * points * w.components * w.width;
        w.known[d] =
            w.local + dpari_room_up(local) + wholes * points * w.components * w.width + d * points;
    }
    st = dpari_agree(plan->comm, st, NULL);
    for (copy = 0;
         plan->comm->rank == 0 && copy < dpari_layout_copies(&halo->grid) && st == DPAR_OK;
         copy++) {
        dpari_zero(w.known[0], (size_t)(wholes * points));
        st = dpari_hx_compare_copy(plan, &w, &grid, copy);
    }
    if (plan->comm->rank != 0 && st == DPAR_OK) {
        st = dpari_hx_compare_send(plan, &w);
    }
    st = dpari_agree(plan->comm, st, NULL);
    if (memory) {
        (void)dpari_hx_pin(plan, memory, bytes, 0);
        dpar_comm_release(plan->comm, memory);
    }
    return st;
}

static dpar_status dpari_hx_find_wrong(dpar_halo_plan *plan, dpar_why *why)
{
    dpar_why found;
    dpar_status st = DPAR_OK;
    int32_t f;
    dpari_zero(&found, sizeof found);
    for (f = 0; f < plan->fields && st == DPAR_OK; f++) {
        st = dpari_hx_compare_field(plan, f, &found);
    }
    if (st == DPAR_OK) {
        st = dpar_broadcast(plan->comm, found.text, (int64_t)sizeof found.text, DPAR_U8, 0, NULL);
    }
    if (st != DPAR_OK) {
        return dpari_repeat(st, why, plan->comm->why.text);
    }
    return found.text[0] == 0 ? DPAR_OK : dpari_repeat(DPAR_E_MISMATCH, why, found.text);
}

DPAR_API DPARI_COLD dpar_status dpar_halo_plan_check(dpar_halo_plan *plan, int32_t what,
                                                     dpar_why *why)
{
    const dpar_status st = dpari_hx_may_look(plan, why);
    if (st != DPAR_OK) {
        return st;
    }
    switch (what) {
    case DPAR_HALO_POISON: dpari_hx_poison(plan); return DPAR_OK;
    case DPAR_HALO_UNFILLED: return dpari_hx_unfilled(plan, why);
    case DPAR_HALO_STALE: return dpari_hx_find_stale(plan, why);
    case DPAR_HALO_WRONG: return dpari_hx_find_wrong(plan, why);
    default:
        return dpari_wrong(why,
                           "dpar_halo_plan_check: check %d does not exist; use DPAR_HALO_POISON "
                           "(1) to DPAR_HALO_WRONG (4)",
                           what);
    }
}
