/* SPDX-License-Identifier: MIT-0 */
/* What an exchange moves, and what tells that it moved the right things. */
#include "halo_plan.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../index/halo.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "comm.h"
#include "strided.h"

/* ---- what goes where, and how long it took ----------------------------------------------------
 */

/* Blocks between two ranks along a mesh axis, at most, in the mesh of field 0. */
static int32_t dpari_hx_hops(const dpar_halo_exchange *x, int32_t a, int32_t b)
{
    const dpar_halo *h = x->field[0].halo;
    int32_t at[2][DPAR_MAX_AXES], most = 0, i, k, block[2];
    block[0] = a;
    block[1] = b;
    for (k = 0; k < 2; k++) {
        for (i = 0; h->owner && i < h->grid.mesh.size; i++) {
            if (h->owner[i] == (k ? b : a)) {
                block[k] = h->grid.mesh.offset + i;
            }
        }
        if (!dpar_mesh_coords(&h->grid.mesh, block[k], at[k])) {
            return 0;
        }
    }
    for (i = 0; i < h->grid.mesh.axes; i++) {
        const dpar_placement *p = &h->grid.axis[i];
        const int32_t size = h->grid.mesh.axis[i].size;
        int32_t n = at[0][i] > at[1][i] ? at[0][i] - at[1][i] : at[1][i] - at[0][i];
        if (p->kind == DPAR_SHARD && (h->periodic >> p->dim & 1u) && size - n < n) {
            n = size - n;
        }
        most = n > most ? n : most;
    }
    return most;
}

DPAR_API int dpar_halo_exchange_traffic(const dpar_halo_exchange *x, int32_t k,
                                        dpar_halo_traffic *t)
{
    int32_t peer = k, s;
    int64_t i;
    if (!x || !t || k < 0 || k > x->peers) {
        return 0;
    }
    dpari_zero(t, sizeof *t);
    peer = k == x->peers ? -1 : k;
    t->peer = peer < 0 ? x->rank : x->peer[peer].rank;
    t->hops = dpari_hx_hops(x, x->rank, t->peer);
    t->way = peer >= 0 && x->peer[peer].world < 0 ? DPAR_HALO_MESSAGES : DPAR_HALO_PACKED;
    for (s = 0; s < x->steps; s++) {
        for (i = x->step[s].s; i < x->step[s].s + x->step[s].s_items; i++) {
            const dpari_hx_item *it = &x->item[i];
            const int32_t type = x->field[it->field].type, width = dpar_type_bytes(type);
            const int64_t bytes =
                it->elements * dpar_type_bytes(dpari_hx_wire(&x->field[it->field]));
            if (it->peer != peer) {
                continue;
            }
            t->pieces++;
            t->bytes += bytes;
            t->direct += it->packs ? 0 : bytes;
            t->runs +=
                it->elements * width / dpari_hx_in_a_row(it->extent, it->own_step, it->dims, type);
        }
    }
    if (t->direct > 0) {
        t->way = DPAR_HALO_DIRECT;
    }
    return peer >= 0 || t->pieces > 0;
}

static const char *dpari_hx_way(int32_t way)
{
    switch (way) {
    case DPAR_HALO_MESSAGES: return "message";
    case DPAR_HALO_PACKED: return "packed";
    case DPAR_HALO_DIRECT: return "direct";
    default: return "auto";
    }
}

static void dpari_hx_put_time(dpar_text *out, const char *name, double seconds, int64_t times)
{
    dpar_text_put(out, name);
    dpar_text_fixed(out, times > 0 ? 1e6 * seconds / (double)times : 0.0, 2);
    dpar_text_put(out, " us");
}

DPAR_API void dpar_halo_exchange_report(const dpar_halo_exchange *x, dpar_text *out)
{
    dpar_halo_traffic t;
    int32_t k, c;
    dpar_text_put(out, "halo exchange of rank ");
    dpar_text_int(out, x->rank);
    dpar_text_put(out, ", ");
    dpar_text_int(out, x->fields);
    dpar_text_put(out, x->fields == 1 ? " field" : " fields");
    dpar_text_put(out, x->options.ordered ? ", dim by dim\n" : "\n");
    dpar_text_put(out,
                  "  to rank   way       hops   pieces        bytes       direct         runs\n");
    for (k = 0; dpar_halo_exchange_traffic(x, k, &t); k++) {
        int64_t column[6];
        static const int32_t place[6] = {4, 22, 31, 44, 57, 70};
        column[0] = t.peer;
        column[1] = t.hops;
        column[2] = t.pieces;
        column[3] = t.bytes;
        column[4] = t.direct;
        column[5] = t.runs;
        for (c = 0; c < 6; c++) {
            dpar_text_column(out, (size_t)place[c]);
            dpar_text_int(out, column[c]);
            if (c == 0) {
                dpar_text_column(out, 12);
                dpar_text_put(out, t.peer == x->rank ? "copy" : dpari_hx_way(t.way));
            }
        }
        dpar_text_char(out, '\n');
    }
    dpar_text_put(out, "  ");
    dpar_text_int(out, x->count);
    dpar_text_put(out, " exchanges");
    if (x->options.timers) {
        dpari_hx_put_time(out, ", each: packing ", x->seconds[DPARI_HX_PACKING], x->count);
        dpari_hx_put_time(out, ", copying ", x->seconds[DPARI_HX_COPYING], x->count);
        dpari_hx_put_time(out, ", waiting ", x->seconds[DPARI_HX_WAITING], x->count);
    }
    dpar_text_char(out, '\n');
}

/* ---- looking for mistakes ---------------------------------------------------------------------
 */

/* A value that no code computes: a quiet NaN, all bits of an integer. */
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

/* Any NaN, or that integer. */
static int dpari_hx_is_poison(int32_t type, const unsigned char *at)
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

DPAR_API void dpar_halo_exchange_poison(dpar_halo_exchange *x)
{
    int32_t s;
    int64_t k;
    for (s = 0; x && s < x->steps; s++) {
        for (k = x->step[s].r; k < x->step[s].s; k++) {
            const dpari_hx_item *it = &x->item[k];
            uint64_t element[1];
            dpari_hx_poison_of(x->field[it->field].type, (unsigned char *)element);
            dpari_stride_run(&it->zero, x->part[2 * it->field + it->mine] + it->mine_at, element);
        }
    }
}

/* "field 2, point (4, -1) component 1 of rank 3" from index at[] of an item. */
static void dpari_hx_put_cell(const dpar_halo_exchange *x, const dpari_hx_item *it,
                              const int64_t *at, dpar_text *out)
{
    const dpar_halo *h = x->field[it->field].halo;
    dpar_box all;
    int32_t d;
    dpar_text_put(out, "field ");
    dpar_text_int(out, it->field);
    dpar_text_put(out, ", point (");
    if (dpar_halo_box(h, x->rank, &all)) {
        for (d = 0; d < all.dims; d++) {
            dpar_text_put(out, d ? ", " : "");
            dpar_text_int(out, all.lo[d] + it->local[d] + at[d]);
        }
    }
    dpar_text_put(out, ") component ");
    dpar_text_int(out, at[it->dims - 1]);
    dpar_text_put(out, " of rank ");
    dpar_text_int(out, x->rank);
}

/* Goes over the cells of an item: at[] in its own dims and, in elements, where it lies; 0 past the
 * last. */
static int dpari_hx_step_on(const dpari_hx_item *it, int64_t *at, int64_t *place)
{
    int32_t d;
    for (d = it->dims - 1; d >= 0; d--) {
        *place += it->own_step[d];
        if (++at[d] < it->extent[d]) {
            return 1;
        }
        *place -= it->own_step[d] * it->extent[d];
        at[d] = 0;
    }
    return 0;
}

/* Index at[] of the sender's order, in the order of this rank's array. */
static void dpari_hx_here(const dpari_hx_item *it, const int64_t *at, int64_t *here)
{
    int32_t d;
    for (d = 0; d < it->dims; d++) {
        here[it->here[d]] = it->flip >> it->here[d] & 1u ? it->extent[d] - 1 - at[d] : at[d];
    }
}

DPAR_API dpar_status dpar_halo_exchange_unpoisoned(const dpar_halo_exchange *x, dpar_why *why)
{
    int32_t s;
    int64_t k;
    for (s = 0; x && s < x->steps; s++) {
        for (k = x->step[s].r; k < x->step[s].s; k++) {
            const dpari_hx_item *it = &x->item[k];
            const int32_t type = x->field[it->field].type;
            const unsigned char *from = x->part[2 * it->field + it->mine] + it->mine_at;
            int64_t at[DPARI_HX_DIMS] = {0, 0, 0, 0, 0, 0, 0}, here[DPARI_HX_DIMS], place = 0;
            do {
                dpar_text t;
                if (!dpari_hx_is_poison(type, from + place * dpar_type_bytes(type))) {
                    continue;
                }
                dpar_text_init(&t, why ? why->text : NULL, why ? sizeof why->text : 0);
                dpari_hx_here(it, at, here);
                dpari_hx_put_cell(x, it, here, &t);
                dpar_text_put(&t, " was not filled, or came from a cell without a value");
                return DPAR_E_ARG;
            } while (dpari_hx_step_on(it, at, &place));
        }
    }
    return x ? DPAR_OK : DPAR_E_ARG;
}

/* ---- comparing with the whole array -----------------------------------------------------------
 */

/* Field f on rank 0, while it is compared: all points, components last; one rank's local box. */
typedef struct dpari_hx_whole {
    const dpar_halo_exchange *x;
    int32_t f, components, width;
    dpar_box own, all; /* of the rank that is looked at */
    unsigned char *points, *local;
    dpar_why *why;
} dpari_hx_whole;

static int64_t dpari_hx_volume(const dpar_box *b)
{
    int64_t n = 1;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        n *= b->hi[d] - b->lo[d];
    }
    return n;
}

/* Bytes to point p of a dense box. */
static int64_t dpari_hx_at(const dpari_hx_whole *w, const dpar_box *b, const int64_t *p)
{
    int64_t at = 0;
    int32_t d;
    for (d = 0; d < b->dims; d++) {
        at = at * (b->hi[d] - b->lo[d]) + p[d] - b->lo[d];
    }
    return at * w->components * w->width;
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

/* This rank's local box of field f, point by point, densely into `to`. Points that a compact form
 * has no place for stay 0. */
static void dpari_hx_collect(const dpar_halo_exchange *x, dpari_hx_whole *w)
{
    const dpari_hx_array *a = &x->array[w->f];
    int64_t p[DPAR_MAX_DIMS], at[DPAR_MAX_DIMS];
    int32_t d, k;
    for (d = 0; d < w->all.dims; d++) {
        p[d] = w->all.lo[d];
    }
    do {
        dpari_hx_spot spot;
        const unsigned char *from;
        for (d = 0; d < w->all.dims; d++) {
            at[d] = p[d] - w->all.lo[d];
        }
        dpari_hx_place(a, at, w->components, &spot);
        if (spot.part < 0) {
            continue;
        }
        from = x->part[2 * w->f + spot.part] + spot.at * w->width;
        for (k = 0; k < w->components; k++) {
            memcpy(w->local + dpari_hx_at(w, &w->all, p) + k * w->width,
                   from + k * spot.stride[w->all.dims] * w->width, (size_t)w->width);
        }
    } while (dpari_hx_next_point(&w->all, p));
}

/* Own points of a rank's local box into the whole. */
static void dpari_hx_assemble(dpari_hx_whole *w, const dpar_box *grid)
{
    int64_t p[DPAR_MAX_DIMS];
    int32_t d;
    if (dpari_hx_volume(&w->own) == 0) {
        return;
    }
    for (d = 0; d < w->own.dims; d++) {
        p[d] = w->own.lo[d];
    }
    do {
        memcpy(w->points + dpari_hx_at(w, grid, p), w->local + dpari_hx_at(w, &w->all, p),
               (size_t)(w->components * w->width));
    } while (dpari_hx_next_point(&w->own, p));
}

/* Which point does p show? The rules of halo.h in their own words, without its walk. 0: none, or it
 * is itself. *sign: -1 where vectors change it. */
static int dpari_hx_image(const dpari_hx_whole *w, const int64_t *p, int64_t *q, int *sign)
{
    const dpar_halo *h = w->x->field[w->f].halo;
    const int32_t m = h->mirror;
    int64_t columns = 0, shift = 0;
    int32_t d, outside = 0, over = 0, seam = 0, box = h->shape == DPAR_STENCIL_BOX;
    *sign = 1;
    for (d = 0; d < w->all.dims; d++) {
        const int64_t n = dpar_halo_points(h, d);
        const int bends = d == h->fold;
        box |= h->window[d].kernel != 0;
        outside += p[d] < w->own.lo[d] || p[d] >= w->own.hi[d];
        q[d] = p[d];
        if (h->periodic >> d & 1u) {
            q[d] = p[d] - dpari_floor_div(p[d], n) * n;
        } else if (bends && p[d] >= n && (h->folds || (h->poles & DPAR_POLE_HIGH))) {
            over = h->folds ? 1 : 2;
            q[d] = 2 * (n - 1) + 1 - p[d] -
                   (h->folds ? h->on_row : (h->pole_rows & DPAR_POLE_HIGH) != 0);
        } else if (bends && p[d] < 0 && (h->poles & DPAR_POLE_LOW)) {
            over = 2;
            q[d] = ((h->pole_rows & DPAR_POLE_LOW) != 0) - 1 - p[d];
        } else if (p[d] < 0 || p[d] >= n) {
            return 0;
        }
        seam |= bends && h->folds && h->on_row && p[d] == n - 1;
    }
    if (outside > 1 && !box) {
        return 0;
    }
    if (over == 2) {
        columns = dpar_halo_points(h, m);
        shift = q[m] + columns / 2;
    } else if (over == 1 || seam) {
        columns = dpar_halo_points(h, m);
        shift = columns - 1 + h->shift - q[m];
        shift -= dpari_floor_div(shift, columns) * columns;
        if (!over && shift >= q[m]) { /* of a pair on the fold the later one shows the first */
            return outside > 0;
        }
    }
    if (columns > 0) {
        q[m] = shift - dpari_floor_div(shift, columns) * columns;
        *sign = -1;
    }
    return outside > 0 || columns > 0;
}

/* What the exchange makes of an element: narrowed, with its sign changed. */
static void dpari_hx_passed(const dpari_hx_whole *w, int sign, void *to, const void *from)
{
    const dpar_halo_field *f = &w->x->field[w->f];
    dpari_stride_piece p;
    dpari_stride one;
    dpari_zero(&p, sizeof p);
    p.to_type = p.from_type = f->type;
    p.through = dpari_hx_wire(f);
    p.negate = f->vector && sign < 0;
    dpari_stride_prepare(&one, &p);
    dpari_stride_run(&one, to, from);
}

static dpar_status dpari_hx_differs(const dpari_hx_whole *w, int32_t rank, const int64_t *p,
                                    const int64_t *q, int32_t k)
{
    dpar_text t;
    int32_t d, pass;
    dpar_text_init(&t, w->why->text, sizeof w->why->text);
    dpar_text_put(&t, "field ");
    dpar_text_int(&t, w->f);
    for (pass = 0; pass < 2; pass++) {
        dpar_text_put(&t, pass ? " differs from its owner's at (" : ", point (");
        for (d = 0; d < w->all.dims; d++) {
            dpar_text_put(&t, d ? ", " : "");
            dpar_text_int(&t, pass ? q[d] : p[d]);
        }
        dpar_text_char(&t, ')');
        if (pass == 0) {
            dpar_text_put(&t, " component ");
            dpar_text_int(&t, k);
            dpar_text_put(&t, " of rank ");
            dpar_text_int(&t, rank);
        }
    }
    return DPAR_E_MISMATCH;
}

/* All cells of one rank's local box that have an image with an owner. */
static dpar_status dpari_hx_look_up(const dpari_hx_whole *w, const dpar_box *grid, int32_t rank,
                                    const unsigned char *known)
{
    int64_t p[DPAR_MAX_DIMS], q[DPAR_MAX_DIMS];
    int32_t d, k;
    int sign;
    for (d = 0; d < w->all.dims; d++) {
        p[d] = w->all.lo[d];
    }
    do {
        int64_t from;
        if (!dpari_hx_image(w, p, q, &sign)) {
            continue;
        }
        from = dpari_hx_at(w, grid, q);
        for (k = 0; k < w->components && known[from / (w->components * w->width)]; k++) {
            uint64_t want[1] = {0};
            const unsigned char *got = w->local + dpari_hx_at(w, &w->all, p) + k * w->width;
            dpari_hx_passed(w, sign, want, w->points + from + k * w->width);
            if (memcmp(want, got, (size_t)w->width) != 0) {
                return dpari_hx_differs(w, rank, p, q, k);
            }
        }
    } while (dpari_hx_next_point(&w->all, p));
    return DPAR_OK;
}

/* Rank 0 with everybody's local boxes, one after the other: puts own points together, then looks
 * halos up. */
static dpar_status dpari_hx_compare_all(dpar_halo_exchange *x, dpari_hx_whole *w,
                                        const dpar_box *grid, unsigned char *known)
{
    dpar_status st = DPAR_OK;
    int32_t pass, r;
    int64_t p[DPAR_MAX_DIMS];
    for (pass = 0; pass < 2; pass++) {
        for (r = 0; r < x->c->size && st >= DPAR_OK; r++) {
            if (!dpari_hx_boxes(x->field[w->f].halo, r, &w->own, &w->all)) {
                continue;
            }
            if (r == x->rank) {
                dpari_hx_collect(x, w);
            } else {
                const int64_t n = dpari_hx_volume(&w->all) * w->components * w->width;
                st = dpar_recv(x->c, w->local, n, DPAR_U8, r, x->options.tag, NULL);
            }
            if (st != DPAR_OK) {
                return st;
            }
            if (pass == 1) {
                if (w->why->text[0] == 0) {
                    (void)dpari_hx_look_up(w, grid, r, known); /* what it finds it writes there */
                }
                continue;
            }
            dpari_hx_assemble(w, grid);
            if (dpari_hx_volume(&w->own) > 0) {
                int32_t d;
                for (d = 0; d < w->own.dims; d++) {
                    p[d] = w->own.lo[d];
                }
                do {
                    known[dpari_hx_at(w, grid, p) / (w->components * w->width)] = 1;
                } while (dpari_hx_next_point(&w->own, p));
            }
        }
    }
    return st;
}

/* Memory for field f: a local box, the largest of any rank on rank 0, and there the whole. */
static dpar_status dpari_hx_compare_field(dpar_halo_exchange *x, int32_t f, dpar_why *found)
{
    const dpar_halo *h = x->field[f].halo;
    dpari_hx_whole w;
    dpar_box grid;
    void *memory = NULL;
    int64_t local = 0, whole = 1;
    int32_t r, d, has;
    dpar_status st;
    dpari_zero(&w, sizeof w);
    w.x = x;
    w.f = f;
    w.components = dpari_hx_components(&x->field[f]);
    w.width = dpar_type_bytes(x->field[f].type);
    w.why = found;
    grid.dims = h->grid.dims;
    for (d = 0; d < grid.dims; d++) {
        grid.lo[d] = 0;
        grid.hi[d] = dpar_halo_points(h, d);
        whole *= grid.hi[d];
    }
    for (r = x->rank; r < (x->rank == 0 ? x->c->size : x->rank + 1); r++) {
        if (dpari_hx_boxes(h, r, &w.own, &w.all)) {
            local = dpari_most(local, dpari_hx_volume(&w.all) * w.components * w.width);
        }
    }
    whole = x->rank == 0 ? whole : 0;
    st = dpar_comm_alloc(x->c, local + 64 + whole * (w.components * w.width + 1), &memory);
    st = dpari_hx_agree(x->c, st, 0, NULL);
    if (st != DPAR_OK) {
        if (memory) {
            dpar_comm_release(x->c, memory);
        }
        return st;
    }
    w.local = (unsigned char *)memory;
    w.points = w.local + (local + 63) / 64 * 64;
    has = dpari_hx_boxes(h, x->rank, &w.own, &w.all);
    if (x->rank == 0) {
        st = dpari_hx_compare_all(x, &w, &grid, w.points + whole * w.components * w.width);
    } else if (has) {
        dpari_hx_collect(x, &w);
        for (r = 0; r < 2 && st == DPAR_OK; r++) {
            st = dpar_send(x->c, w.local, local, DPAR_U8, 0, x->options.tag, NULL);
        }
    }
    dpar_comm_release(x->c, memory);
    return st;
}

DPAR_API dpar_status dpar_halo_exchange_compare(dpar_halo_exchange *x, dpar_why *why)
{
    dpar_why found;
    dpar_status st = DPAR_OK;
    int32_t f;
    if (!x || x->active) {
        return dpari_say(DPAR_E_ARG, why, "no plan, or an exchange that has not ended", 0, 0, 0, 0);
    }
    dpari_zero(&found, sizeof found);
    for (f = 0; f < x->fields && st == DPAR_OK; f++) {
        if (x->field[f].halo->cube) {
            return dpari_say(DPAR_E_ARG, why, "field # is on a cubed sphere: not compared", f, 0, 0,
                             0);
        }
        st = dpari_hx_compare_field(x, f, &found);
    }
    if (st == DPAR_OK) {
        st = dpar_broadcast(x->c, found.text, (int64_t)sizeof found.text, DPAR_U8, 0, NULL);
    }
    if (st != DPAR_OK) {
        return dpari_say_word(st, why, "@", x->c->why.text, sizeof x->c->why.text, 0, 0, 0, 0);
    }
    return found.text[0] == 0 ? DPAR_OK
                              : dpari_say_word(DPAR_E_MISMATCH, why, "@", found.text,
                                               sizeof found.text, 0, 0, 0, 0);
}
