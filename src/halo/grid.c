/* SPDX-License-Identifier: MIT-0 */
/* Implements grids: arrays with halos, exchanged by address.
 *
 * A grid keeps a table of known arrays and their shapes, and a list of plans. An exchange looks up
 * its arrays, and finds the plan for this combination of shapes and depth or makes one with
 * halo_exchange.c. It then binds the arrays to the plan, runs it, and fills the halos at mirrors.
 * The plan that ran last with one array is tried first, so that codes that swap two arrays pay no
 * lookup. Mirrors are lists of boxes, dim after dim, each of which also reflects the halos that the
 * dims before it have filled. */
#include "grid.h"

#include "../base/arith.h"
#include "../base/box.h"
#include "../base/inner.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/mem.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/strided.h"
#include "../comm/world.h"
#include "../index/cart.h"
#include "../index/halo.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "halo_apart.h"
#include "halo_exchange.h"

/* A grid knows arrays by their addresses. Each has a shape; ranks agree on its number when an array
 * becomes known, so that a plan is found, or missing, on all ranks alike: plans are kept by the
 * shapes of their arrays and by depth, and bound to the addresses that are handed in. */

enum {
    DPARI_GX_SHAPES = 256,
    DPARI_GX_KNOWN = 72, /* arrays in a page */
    DPARI_GX_ALIGN = 64,
    DPARI_GX_PAGE = 4096,
    DPARI_GX_SKEW = 320 /* bytes from one array to the next modulo a page: no two begin alike */
};

typedef struct dpari_gx_shape {
    struct dpari_gx_shape *next;
    dpar_halo halo;    /* as wide as there is room for */
    dpar_grid_field f; /* strides and component_stride filled in */
    int32_t number, type, components;
    int32_t reach;  /* 1 if peers may read the arrays in place */
    int32_t packed; /* 1 for arrays of desc.type, which may change from call to call: always pack */
} dpari_gx_shape;

typedef struct dpari_gx_array {
    void *at;
    const dpari_gx_shape *shape;
    void *memory; /* of dpar_grid_array, to be given back; NULL: the user's */
    int64_t number;
    int64_t low, high; /* where its points begin and end */
} dpari_gx_array;

typedef struct dpari_gx_page {
    struct dpari_gx_page *next;
    int32_t count;
    dpari_gx_array array[DPARI_GX_KNOWN];
} dpari_gx_page;

/* One box of a mirror, in bytes from the array's address. */
typedef struct dpari_gx_mirror {
    int32_t item, dim;
    int64_t to, from;
    dpari_stride stride;
    dpar_mem_box box; /* in a device's memory */
} dpari_gx_mirror;

typedef struct dpari_gx_plan {
    struct dpari_gx_plan *next;
    dpar_halo_plan *x;
    void **at;    /* of each array, or the plan's own address: to be bound again; their shapes */
    void *before; /* of a plan of one array: an array of that shape, most often the one before */
    const dpari_gx_shape **shape;
    dpar_halo *halo; /* where it is narrower than there is room */
    dpar_halo_field *field;
    void *rest; /* the exchange's memory, before it: */
    dpari_gx_mirror *mirror;
    dpar_mem_box *box;                   /* of mirrors in a device's memory; else NULL */
    int64_t bytes, rest_bytes, exchange; /* exchange: of the rest, what it needs */
    int32_t n, depth, mirrors;
    int32_t active;
} dpari_gx_plan;

typedef struct dpari_gx {
    dpar_grid head;
    dpar_grid_desc d;
    dpari_on_end ending; /* in the communicator's list */
    const dpar_mem *mem;
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS], widest;
    dpar_halo halo;
    dpari_gx_shape plain;          /* of desc.type: addresses that are not known otherwise; */
    int64_t plain_low, plain_high; /* bytes from such an address to its points' ends */
    dpari_gx_shape *shapes;
    dpari_gx_page *pages;
    dpari_gx_plan *plans;
    dpari_gx_plan *quick;  /* of one array, all halos, no mirrors: it ran last, with this array, */
    void *now;             /* which is exchanged at once; the grid itself: none is */
    dpar_halo_plan *now_x; /* its exchange */
    int64_t arrays, bytes;
    int32_t shapes_known;
    int32_t under_way; /* exchanges that have begun and not ended */
} dpari_gx;

/* NULL: there is none, or its world was closed. */
static dpari_gx *dpari_gx_of(dpar_grid *g)
{
    return g && g->comm ? (dpari_gx *)(void *)g : NULL;
}

static const dpari_gx *dpari_gx_in(const dpar_grid *g)
{
    return (const dpari_gx *)(const void *)g;
}

/* What failed for its own reason, or because another rank did, as a call without `why` says it. */
static DPARI_COLD dpar_status dpari_gx_say(dpari_gx *g, dpar_status st, const dpar_why *why)
{
    dpar_comm *comm = g->head.comm;
    if (st == DPAR_OK) {
        return st;
    }
    return comm->status < 0 ? comm->status : dpari_repeat(st, &comm->why, why->text);
}

/* ---- a grid ---------------------------------------------------------------------------------- */

static DPARI_COLD int dpari_gx_flag(int32_t v)
{
    return v == 0 || v == 1;
}

static DPARI_COLD dpar_status dpari_gx_check_dim(const dpari_gx *g, int32_t d, dpar_why *why)
{
    const dpar_grid_desc *a = &g->d;
    const int64_t most = INT64_C(1) << 60; /* as dpar_halo */
    int32_t p;
    if (a->cells[d] < 1) {
        return dpari_wrong(why, "grid: dim %d has %ld cells (1 or more)", d, a->cells[d]);
    }
    if (g->low[d] < 0 || g->high[d] < 0 || g->low[d] > most || g->high[d] > most) {
        return dpari_wrong(why, "grid: dim %d has a halo of %ld below and %ld above (0 to 2^60)", d,
                           g->low[d], g->high[d]);
    }
    if (!dpari_gx_flag(a->periodic[d]) || a->mirror_low[d] < 0 || a->mirror_high[d] < 0 ||
        a->mirror_low[d] > DPAR_GRID_MIRROR_CELL || a->mirror_high[d] > DPAR_GRID_MIRROR_CELL ||
        (a->periodic[d] && (a->mirror_low[d] | a->mirror_high[d]) != 0)) {
        return dpari_wrong(
            why,
            "grid: dim %d is periodic %d (0, 1) with mirrors %d and %d (0 to 2, none where "
            "it is periodic)",
            d, a->periodic[d], a->mirror_low[d], a->mirror_high[d]);
    }
    for (p = 0; a->cuts[d] && p < a->parts[d]; p++) {
        if (a->cuts[d][p + 1] <= a->cuts[d][p]) {
            return dpari_wrong(why, "grid: cuts of dim %d give part %d no cell: from %ld up to %ld",
                               d, p, a->cuts[d][p], a->cuts[d][p + 1]);
        }
    }
    return a->cuts[d] && a->parts[d] < 1
               ? dpari_wrong(why, "grid: dim %d has cuts for %d parts: say how many", d,
                             a->parts[d])
               : DPAR_OK;
}

/* What was given, by itself. Widths of all sides. */
static DPARI_COLD dpar_status dpari_gx_check(dpari_gx *g, const dpar_grid_desc *a, dpar_why *why)
{
    dpar_status st = DPAR_OK;
    int32_t d;
    if (a->dims < 1 || a->dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "grid: %d dims (1 to %d)", a->dims, (int32_t)DPAR_MAX_DIMS);
    }
    if (!dpari_gx_flag(a->star) || !dpari_gx_flag(a->order) || !dpari_gx_flag(a->check) ||
        !dpari_gx_flag(a->closes)) {
        return dpari_wrong(why, "grid: star %d, order %d, check %d, closes %d: each is 0 or 1",
                           a->star, a->order, a->check, a->closes);
    }
    for (d = 0; d < a->dims && st == DPAR_OK; d++) {
        g->low[d] = a->low[d] != 0 ? a->low[d] : a->halo;
        g->high[d] = a->high[d] != 0 ? a->high[d] : a->halo;
        g->widest = dpari_most(g->widest, dpari_most(g->low[d], g->high[d]));
        st = dpari_gx_check_dim(g, d, why);
    }
    return st;
}

/* The parts of each dim. Of nearly equal cuts those across earlier dims: their halos have longer
 * rows. */
static DPARI_COLD dpar_status dpari_gx_parts(dpari_gx *g, int32_t ranks, dpar_why *why)
{
    dpar_cart_choose_desc cart;
    dpar_status st;
    int32_t d, whole = 0;
    dpari_zero(&cart, sizeof cart);
    cart.ranks = ranks;
    cart.dims = g->d.dims;
    for (d = 0; d < g->d.dims; d++) {
        const int64_t width = g->low[d] + g->high[d];
        cart.cells[d] = g->d.cells[d];
        cart.weight[d] = 64 * dpari_least(width, 1024) + d + 1;
        cart.periodic |= (uint32_t)g->d.periodic[d] << d;
        g->head.parts[d] = g->d.parts[d] == 0 && width == 0 && g->widest > 0 ? 1 : g->d.parts[d];
        whole |= g->head.parts[d] != g->d.parts[d];
    }
    st = dpar_cart_choose_parts(&cart, g->head.parts, NULL, why);
    if (st != DPAR_OK && whole) { /* dims without halos, too, where others are too short */
        for (d = 0; d < g->d.dims; d++) {
            g->head.parts[d] = g->d.parts[d];
        }
        st = dpar_cart_choose_parts(&cart, g->head.parts, NULL, why);
    }
    return st;
}

/* Checks that the array of this rank holds all cells that its mirrors of a dim reflect. */
static DPARI_COLD dpar_status dpari_gx_check_mirror(const dpari_gx *g, int32_t d, dpar_why *why)
{
    const int64_t n = g->head.cells[d], first = g->head.first[d], end = first + g->head.own[d];
    const int64_t below = g->low[d] - first, above = end + g->high[d] - n;
    const int64_t low = g->d.mirror_low[d], high = g->d.mirror_high[d];
    if ((low && below > 0 && below + low - 1 > dpari_least(n, end + g->high[d])) ||
        (high && above > 0 && above + high - 1 > n - dpari_most(0, first - g->low[d]))) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "grid: dim %d has a halo of %ld and %ld beside %ld own cells: too few for its "
            "mirror",
            d, g->low[d], g->high[d], g->head.own[d]);
    }
    return DPAR_OK;
}

/* The halo of cells, and the head. */
static DPARI_COLD dpar_status dpari_gx_cut(dpari_gx *g, dpar_comm *c, dpar_why *why)
{
    dpar_placement p[DPAR_MAX_DIMS];
    dpar_halo *h = &g->halo;
    dpar_mesh mesh;
    dpar_box own;
    int64_t step = 1;
    int32_t d;
    dpar_status st = dpar_mesh_init(&mesh, &"f e d c b a"[2 * (DPAR_MAX_DIMS - g->d.dims)],
                                    g -> head.parts, g->d.order, c->size, why);
    for (d = 0; d < g->d.dims; d++) {
        p[d] = dpar_shard_by(d, g->d.cuts[d] ? DPAR_SPLIT_RAGGED : DPAR_SPLIT_EVEN, 0);
        p[d].cuts = g->d.cuts[d];
        h->low[d] = g->low[d];
        h->high[d] = g->high[d];
        h->periodic |= (uint32_t)g->d.periodic[d] << d;
    }
    h->shape = g->d.star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    st = st == DPAR_OK ? dpar_layout_init(&h->grid, &mesh, g->d.dims, g->d.cells, p, why) : st;
    st = st == DPAR_OK ? dpar_halo_check(h, why) : st;
    if (st != DPAR_OK) {
        return st;
    }
    (void)dpar_halo_owned(h, c->rank, &own);
    (void)dpar_mesh_coords(&mesh, c->rank, g->head.coord);
    g->head.dims = g->d.dims;
    for (d = g->d.dims - 1; d >= 0; d--) {
        g->head.cells[d] = g->d.cells[d];
        g->head.first[d] = own.lo[d];
        g->head.own[d] = own.hi[d] - own.lo[d];
        g->head.stride[d] = step;
        if (!dpari_mul(step, g->low[d] + g->head.own[d] + g->high[d], &step) || step > INT64_C(1)
                                                                                           << 56) {
            return dpari_say(DPAR_E_RANGE, why,
                             "grid: rank %d would have more than 2^56 points: %ld cells of dim %d",
                             c->rank, g->head.own[d], d);
        }
    }
    for (d = 0; d < g->d.dims && st == DPAR_OK; d++) {
        st = dpari_gx_check_mirror(g, d, why);
    }
    return st;
}

static DPARI_COLD void dpari_gx_state(dpari_facts *f, const void *given)
{
    const dpar_grid_desc *a = (const dpar_grid_desc *)given;
    int32_t d, p;
    dpari_fact(f, "dims", 0, a->dims);
    dpari_fact(f, "star", 0, a->star);
    dpari_fact(f, "order", 0, a->order);
    dpari_fact(f, "check", 0, a->check);
    dpari_fact(f, "halo", 0, a->halo);
    dpari_fact_type(f, "type", 0, a->type);
    dpari_fact(f, "closes", 0, a->closes);
    for (d = 0; d < a->dims; d++) {
        uint64_t h = 1;
        dpari_fact(f, "cells[#]", d, a->cells[d]);
        dpari_fact(f, "low[#]", d, a->low[d]);
        dpari_fact(f, "high[#]", d, a->high[d]);
        dpari_fact(f, "periodic[#]", d, a->periodic[d]);
        dpari_fact(f, "mirror_low[#]", d, a->mirror_low[d]);
        dpari_fact(f, "mirror_high[#]", d, a->mirror_high[d]);
        dpari_fact(f, "parts[#]", d, a->parts[d]);
        for (p = 0; a->cuts[d] && p <= a->parts[d]; p++) {
            h = dpari_hash(h, a->cuts[d][p]);
        }
        dpari_fact_hash(f, "the list of cuts[#]", d, h);
    }
}

/* Allocates a grid, followed by its cuts. */
static DPARI_COLD dpar_status dpari_gx_new(const dpar_grid_desc *a, dpari_gx **grid, dpar_why *why)
{
    int64_t bytes = (int64_t)sizeof(dpari_gx), *room, i;
    dpari_gx *g;
    int32_t d;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        bytes += a->cuts[d] && a->parts[d] > 0 ? 8 * ((int64_t)a->parts[d] + 1) : 0;
    }
    g = (dpari_gx *)dpari_os_pages(bytes);
    *grid = g;
    if (!g) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes cannot be had (is ulimit -v too small?)", bytes);
    }
    g->d = *a;
    g->now = g;
    g->bytes = bytes;
    room = (int64_t *)(void *)(g + 1);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (a->cuts[d] && a->parts[d] > 0) {
            for (i = 0; i <= a->parts[d]; i++) {
                room[i] = a->cuts[d][i];
            }
            g->d.cuts[d] = room;
            room += i;
        }
    }
    return DPAR_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Points of this rank's array in a dim, with its halo. */
static int64_t dpari_gx_points(const dpari_gx *g, const dpar_grid_field *f, int32_t d)
{
    return g->low[d] + g->head.own[d] + (f->at[d] != 0) + g->high[d];
}

static DPARI_COLD dpar_status dpari_gx_check_field(const dpari_gx *g, int32_t type,
                                                   const dpar_grid_field *f, dpar_why *why)
{
    uint32_t odd = 0, none;
    int32_t d;
    if (dpar_type_bytes(type) == 0) {
        return dpari_wrong(why, "grid: arrays of type %s (%d) have no whole bytes",
                           dpar_type_name(type), type);
    }
    if (f->components < 0 || f->components > 1 << 24 || !dpari_gx_flag(f->order)) {
        return dpari_wrong(why, "grid: %d components (0 to 2^24), order %d (0, 1)", f->components,
                           f->order);
    }
    none = f->components > 31 ? 0 : ~(uint32_t)0 << (f->components > 1 ? f->components : 1);
    for (d = 0; d < g->head.dims; d++) {
        if (!dpari_gx_flag(f->at[d])) {
            return dpari_wrong(why, "grid: points of dim %d are at %d: cells (0) or faces (1)", d,
                               f->at[d]);
        }
        if (f->odd[d] & none) {
            return dpari_wrong(why,
                               "grid: odd[%d] is %ld, a bit a component: there are %d components",
                               d, (int64_t)f->odd[d], f->components > 1 ? f->components : 1);
        }
        odd |= f->odd[d];
    }
    if (odd != 0 && !dpari_type_can_reduce(type)) {
        return dpari_wrong(why, "grid: %s has no sign to change at a mirror", dpar_type_name(type));
    }
    return DPAR_OK;
}

/* The shape of an array: its strides, its halo. */
static DPARI_COLD void dpari_gx_shape_of(const dpari_gx *g, int32_t type, const dpar_grid_field *f,
                                         dpari_gx_shape *s)
{
    int64_t step;
    int32_t d, k, dense = 1;
    dpari_zero(s, sizeof *s);
    s->type = type;
    s->f = *f;
    s->components = f->components > 0 ? f->components : 1;
    s->f.components = s->components;
    s->halo = g->halo;
    step = f->component_stride != 0 ? 1 : s->components;
    s->f.component_stride = f->component_stride != 0 ? f->component_stride : 1;
    for (d = 0; d < g->head.dims; d++) {
        dense = dense && f->stride[d] == 0;
        s->halo.points[d] = f->at[d] ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
        if (f->at[d]) {
            s->halo.high[d]++; /* the shared face is the neighbour's, so that what lies beyond it in
                                  another dim is a corner, in a star, too */
            s->halo.shape = DPAR_STENCIL_BOX;
        }
    }
    for (k = 0; k < g->head.dims && dense; k++) {
        d = f->order == DPAR_ORDER_FIRST_FASTEST ? k : g->head.dims - 1 - k;
        s->f.stride[d] = step;
        step = dpari_mul(step, dpari_gx_points(g, f, d), &step) ? step : INT64_MAX;
    }
}

/* Elements from the address of an array to the first and one past the last one in memory. 0, or 1 +
 * the dim (dims: components) whose stride takes it too far. */
static DPARI_COLD int32_t dpari_gx_span(const dpari_gx *g, const dpari_gx_shape *s, int64_t *low,
                                        int64_t *high)
{
    const int64_t most = INT64_C(1) << 57;
    int32_t d;
    *low = 0;
    *high = 1;
    for (d = 0; d <= g->head.dims; d++) {
        const int comps = d == g->head.dims;
        const int64_t step = comps ? s->f.component_stride : s->f.stride[d];
        const int64_t below = comps ? 0 : g->low[d];
        const int64_t above = comps ? s->components - 1 : dpari_gx_points(g, &s->f, d) - 1 - below;
        int64_t a, b, size;
        if (step < -most || step > most) {
            return d + 1;
        }
        size = step < 0 ? -step : step;
        if (!dpari_mul(size, below, &a) || !dpari_mul(size, above, &b) || a > most || b > most) {
            return d + 1;
        }
        *low -= step < 0 ? b : a;
        *high += step < 0 ? a : b;
        if (*high - *low > most / dpar_type_bytes(s->type)) {
            return d + 1;
        }
    }
    return 0;
}

/* Points that are filled or own; beyond open ends there need not be any. */
static DPARI_COLD int64_t dpari_gx_met(const dpari_gx *g, const dpar_grid_field *f, int32_t d)
{
    const int64_t first = g->head.first[d], after = g->head.cells[d] - first - g->head.own[d];
    const int ring = g->d.periodic[d];
    return dpari_gx_points(g, f, d) -
           (ring || g->d.mirror_low[d] ? 0 : dpari_most(g->low[d] - first, 0)) -
           (ring || g->d.mirror_high[d] ? 0 : dpari_most(g->high[d] - after, 0));
}

/* Checks that no two points are in one place: each stride must exceed the extent of all shorter
 * ones. */
static DPARI_COLD dpar_status dpari_gx_check_apart(const dpari_gx *g, const dpari_gx_shape *s,
                                                   int32_t rank, dpar_why *why)
{
    const int32_t dims = g->head.dims;
    uint32_t left = ((uint32_t)1 << (dims + 1)) - 1;
    int64_t taken = 1;
    while (left != 0) {
        int64_t step = INT64_MAX, points;
        int32_t d, next = 0;
        for (d = 0; d <= dims; d++) {
            const int64_t v = d < dims ? s->f.stride[d] : s->f.component_stride;
            if ((left >> d & 1u) && (v < 0 ? -v : v) < step) {
                step = v < 0 ? -v : v;
                next = d;
            }
        }
        left &= ~((uint32_t)1 << next);
        points = next < dims ? dpari_gx_met(g, &s->f, next) : s->components;
        if (points > 1 && step < taken) {
            return next < dims
                       ? dpari_wrong(why,
                                     "grid: rank %d has %ld points in dim %d, %ld elements apart: "
                                     "several points lie in one place",
                                     rank, points, next, step)
                       : dpari_wrong(why,
                                     "grid: rank %d has %ld components, %ld elements apart: "
                                     "several elements lie in one place",
                                     rank, points, step);
        }
        taken += (points - 1) * step;
    }
    return DPAR_OK;
}

/* Checks that the addresses of an array are not too far apart and that it does not overlap
 * itself. */
static DPARI_COLD dpar_status dpari_gx_check_span(const dpari_gx *g, const dpari_gx_shape *s,
                                                  int32_t rank, int64_t *low, int64_t *high,
                                                  dpar_why *why)
{
    const int32_t d = dpari_gx_span(g, s, low, high) - 1;
    if (d >= 0) {
        if (d == g->head.dims) {
            return dpari_say(DPAR_E_RANGE, why,
                             "grid: an array of rank %d reaches beyond 2^57 bytes: %d components, "
                             "%ld elements apart",
                             rank, s->components, s->f.component_stride);
        }
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: an array of rank %d reaches beyond 2^57 bytes: %ld points in dim "
                         "%d, %ld elements apart",
                         rank, dpari_gx_points(g, &s->f, d), d, s->f.stride[d]);
    }
    return dpari_gx_check_apart(g, s, rank, why);
}

/* The shape of addresses that are not known. Ranks do not ask each other about these arrays: the
 * shape is the same on all, whatever memory they are in, and so they are never read there. */
static DPARI_COLD dpar_status dpari_gx_plain(dpari_gx *g, int32_t rank, dpar_why *why)
{
    dpar_grid_field none;
    int64_t low, high;
    dpar_status st;
    dpari_zero(&none, sizeof none);
    st = dpari_gx_check_field(g, g->d.type, &none, why);
    if (st == DPAR_OK) {
        dpari_gx_shape_of(g, g->d.type, &none, &g->plain);
        st = dpari_gx_check_span(g, &g->plain, rank, &low, &high, why);
        g->plain_low = st == DPAR_OK ? low * dpar_type_bytes(g->d.type) : 0;
        g->plain_high = st == DPAR_OK ? high * dpar_type_bytes(g->d.type) : 0;
        g->plain.packed = 1;
        g->shapes = &g->plain;
        g->shapes_known = 1;
    }
    return st;
}

/* Compares the rank's block with the caller's (dpar_grid_desc.own). */
static DPARI_COLD dpar_status dpari_gx_compare_own(const dpari_gx *g, int32_t rank, dpar_why *why)
{
    int32_t d;
    for (d = 0; d < g->head.dims; d++) {
        if (g->d.own[d] != 0 && g->d.own[d] != g->head.own[d]) {
            return dpari_wrong(
                why,
                "grid: rank %d has %ld cells in dim %d, and own[] says %ld: another rule of "
                "cutting (cuts), or another order of dims (order)",
                rank, g->head.own[d], d, g->d.own[d]);
        }
    }
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_make(dpar_comm *c, const dpar_grid_desc *desc,
                                               dpar_grid **grid, dpar_why *why)
{
    dpari_gx *g = NULL;
    dpar_status st;
    if (!c) {
        dpari_wrong(why, "grid: communicator is NULL");
        return DPAR_E_ARG;
    }
    st = desc && grid ? dpari_gx_new(desc, &g, why)
                      : dpari_wrong(why, "grid: its description or result is NULL");
    st = st == DPAR_OK ? dpari_gx_check(g, desc, why) : st;
    st = st == DPAR_OK ? dpari_gx_parts(g, c->size, why) : st;
    st = st == DPAR_OK ? dpari_gx_cut(g, c, why) : st;
    st = st == DPAR_OK ? dpari_gx_compare_own(g, c->rank, why) : st;
    st = st == DPAR_OK && g->d.type != 0 ? dpari_gx_plain(g, c->rank, why) : st;
    st = dpari_agree_on(c, st, "grid", dpari_gx_state, desc, why);
    if (st < DPAR_OK) { /* so that a compiler that inlines this sees *grid written else */
        dpari_os_unmap(g, g ? g->bytes : 0);
        return st;
    }
    g->head.comm = c;
    g->mem = g->d.mem ? g->d.mem : c->mem;
    g->ending.at = &g->head.comm;
    dpari_on_end_add(c, &g->ending);
    *grid = &g->head;
    return DPAR_OK;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_free(dpar_grid *grid)
{
    dpari_gx *g = (dpari_gx *)(void *)grid;
    dpar_comm *c = g ? g->head.comm : NULL; /* NULL: the world was closed, and all its memory */
    dpari_gx_plan *p;
    const int ended = c && dpari_ended_is(c);
    dpar_why *said = g ? g->d.free_why : NULL;
    dpar_status st = DPAR_OK, closed;
    int32_t i;
    for (p = c ? g->plans : NULL; p; p = p->next) {
        if (p->active && c->status == DPAR_OK) {
            return dpari_comm_wrong(c, "grid: an exchange of %d arrays has not ended", p->n);
        }
    }
    if (c && !ended && g->d.closes && !g->plans) { /* else they wait for the others, and say why */
        st = dpar_barrier(c, NULL);
    }
    while (g && g->plans) {
        closed = c ? dpar_halo_plan_close(g->plans->x) : DPAR_OK;
        st = st == DPAR_OK && !ended ? closed : st;
        p = g->plans;
        g->plans = p->next;
        dpari_os_unmap(p->rest, p->rest_bytes);
        dpari_os_unmap(p, p->bytes);
    }
    while (g && g->pages) {
        dpari_gx_page *page = g->pages;
        for (i = 0; i < page->count; i++) {
            dpar_comm_release(c, page->array[i].memory);
        }
        g->pages = page->next;
        dpari_os_unmap(page, (int64_t)sizeof *page);
    }
    while (g && g->shapes) {
        dpari_gx_shape *s = g->shapes;
        g->shapes = s->next;
        dpari_os_unmap(s, s == &g->plain ? 0 : (int64_t)sizeof *s);
    }
    if (g) {
        const int32_t closes = g->d.closes && !ended;
        dpari_on_end_drop(c, &g->ending);
        if (st != DPAR_OK && said) {
            *said = c->why;
        }
        dpari_os_unmap(g, g->bytes);
        closed = closes ? dpar_comm_free(c) : DPAR_OK;
        if (st == DPAR_OK && closed != DPAR_OK) {
            st = dpari_say(closed, said, "grid: the close of its communicator: %s",
                           dpar_status_text(closed));
        }
    }
    return st;
}

static DPARI_COLD int dpari_gx_alike(const dpari_gx *g, const dpari_gx_shape *a,
                                     const dpari_gx_shape *b)
{
    int same = a->type == b->type && a->components == b->components && a->reach == b->reach &&
               a->f.component_stride == b->f.component_stride;
    int32_t d;
    for (d = 0; d < g->head.dims; d++) {
        same = same && a->f.at[d] == b->f.at[d] && a->f.odd[d] == b->f.odd[d] &&
               a->f.stride[d] == b->f.stride[d];
    }
    return same;
}

typedef struct dpari_gx_given {
    const dpar_grid *grid;
    const dpari_gx_shape *s;
    int64_t arrays;
} dpari_gx_given;

static DPARI_COLD void dpari_gx_state_array(dpari_facts *f, const void *given)
{
    const dpari_gx_given *a = (const dpari_gx_given *)given;
    int32_t d;
    dpari_fact(f, "the number of arrays so far", 0, a->arrays);
    dpari_fact_type(f, "type", 0, a->s->type);
    dpari_fact(f, "components", 0, a->s->components);
    for (d = 0; d < a->grid->dims; d++) {
        dpari_fact(f, "at[#]", d, a->s->f.at[d]);
        dpari_fact(f, "odd[#]", d, a->s->f.odd[d]);
    }
}

/* The shape that all ranks have for this array, of those that are known; NULL: some rank has none,
 * so that it is a new one on all. */
static DPARI_COLD dpar_status dpari_gx_known(dpari_gx *g, const dpari_gx_shape *s,
                                             dpari_gx_shape **known)
{
    uint8_t mine[DPARI_GX_SHAPES], all[DPARI_GX_SHAPES];
    dpari_gx_shape *k;
    dpar_status st;
    dpari_zero(mine, sizeof mine);
    for (k = g->shapes; k; k = k->next) {
        mine[k->number] = (uint8_t)dpari_gx_alike(g, k, s);
    }
    st = dpar_all_reduce(g->head.comm, mine, all, g->shapes_known, DPAR_U8, DPAR_MIN, NULL);
    for (k = g->shapes; st == DPAR_OK && k && !all[k->number]; k = k->next) {
    }
    *known = st == DPAR_OK ? k : NULL;
    return st;
}

static dpari_gx_array *dpari_gx_find(const dpari_gx *g, const void *at)
{
    dpari_gx_page *p;
    int32_t i;
    for (p = g->pages; p; p = p->next) {
        for (i = 0; i < p->count; i++) {
            if (p->array[i].at == at) {
                return &p->array[i];
            }
        }
    }
    return NULL;
}

/* An array of a shape, as the full API wants it. */
DPARI_STATIC_NOINLINE DPARI_COLD void dpari_gx_field(const dpari_gx *g, const dpari_gx_shape *s,
                                                     void *at, dpar_halo_field *f)
{
    int32_t d;
    f->halo = &s->halo;
    f->type = s->type;
    f->components = s->components;
    f->component_stride = s->f.component_stride;
    f->data = at;
    f->mem = g->mem;
    for (d = 0; d < g->head.dims; d++) {
        f->stride[d] = s->f.stride[d];
    }
}

/* True if the array consists of some components of another one, with the same points and
 * strides. */
static DPARI_COLD int dpari_gx_part_of(const dpari_gx *g, const dpari_gx_shape *s, const void *at,
                                       const dpari_gx_array *a)
{
    const int64_t apart = (int64_t)(uintptr_t)at - (int64_t)(uintptr_t)a->at;
    const int64_t step = s->f.component_stride * dpar_type_bytes(s->type);
    const int64_t most = dpari_most(s->components, a->shape->components);
    int same = s->type == a->shape->type && step != 0 &&
               s->f.component_stride == a->shape->f.component_stride && apart % step == 0 &&
               apart / step < most && apart / step > -most;
    int32_t d;
    for (d = 0; d < g->head.dims; d++) {
        same = same && s->f.at[d] == a->shape->f.at[d] && s->f.stride[d] == a->shape->f.stride[d];
    }
    return same;
}

/* A known array that has elements in common with one at `at`, whose points begin and end at low and
 * high; NULL: there is none. One that is a part of the other does not count. */
static dpari_gx_array *dpari_gx_met_by(const dpari_gx *g, const dpari_gx_shape *s, void *at,
                                       int64_t low, int64_t high)
{
    dpar_halo_field f[2];
    int64_t span[8];
    dpari_gx_page *p;
    int32_t i;
    for (p = g->pages; p; p = p->next) {
        for (i = 0; i < p->count; i++) {
            dpari_gx_array *a = &p->array[i];
            if (a->low >= high || low >= a->high || a->at == at || dpari_gx_part_of(g, s, at, a)) {
                continue;
            }
            dpari_zero(f, sizeof f);
            dpari_gx_field(g, a->shape, a->at, &f[0]);
            dpari_gx_field(g, s, at, &f[1]);
            if (dpari_hx_disjoint(f, 2, g->head.comm->rank, span, NULL) != DPAR_OK) {
                return a;
            }
        }
    }
    return NULL;
}

/* One that an address of desc.type has elements in common with. */
static const dpari_gx_array *dpari_gx_in_another(const dpari_gx *g, void *at)
{
    const int64_t address = (int64_t)(uintptr_t)at;
    return dpari_gx_met_by(g, &g->plain, at, address + g->plain_low, address + g->plain_high);
}

/* NULL: it is no array of the grid. */
static const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *g, void *at)
{
    const dpari_gx_array *a = dpari_gx_find(g, at);
    return a                                                            ? a->shape
           : at && g->d.type != 0 && dpari_gx_in_another(g, at) == NULL ? &g->plain
                                                                        : NULL;
}

/* The exchange under way that u takes part in; NULL: there is none. */
static dpari_gx_plan *dpari_gx_way(const dpari_gx *g, const void *u)
{
    dpari_gx_plan *p;
    int32_t i;
    for (p = g->under_way > 0 ? g->plans : NULL; p; p = p->next) {
        for (i = 0; p->active && i < p->n; i++) {
            if (p->at[i] == u) {
                return p;
            }
        }
    }
    return NULL;
}

/* Checks that an array may be attached at this address. */
static DPARI_COLD dpar_status dpari_gx_check_place(const dpari_gx *g, const dpari_gx_shape *s,
                                                   void *u, int64_t low, int64_t high,
                                                   dpar_why *why)
{
    const int32_t rank = g->head.comm->rank;
    const dpari_gx_array *a = dpari_gx_met_by(g, s, u, low, high);
    if (dpari_gx_way(g, u) || (a && dpari_gx_way(g, a->at))) {
        return dpari_wrong(
            why, "grid: the exchange of the array of rank %d at this place has not ended", rank);
    }
    return a && a->memory
               ? dpari_wrong(why,
                             "grid: the array of rank %d has elements in common with one of "
                             "dpar_grid_array, %ld bytes behind its first own point",
                             rank, (int64_t)(uintptr_t)u - (int64_t)(uintptr_t)a->at)
               : DPAR_OK;
}

/* Allocates the entry of one more array. */
static DPARI_COLD dpar_status dpari_gx_room(dpari_gx *g, dpari_gx_shape **fresh, dpar_why *why)
{
    dpari_gx_page *p = g->pages;
    *fresh = (dpari_gx_shape *)dpari_os_pages((int64_t)sizeof **fresh);
    if (!p || p->count == DPARI_GX_KNOWN) {
        p = (dpari_gx_page *)dpari_os_pages((int64_t)sizeof *p);
        if (p) {
            p->next = g->pages;
            g->pages = p;
        }
    }
    return p && *fresh ? DPAR_OK
                       : dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be had",
                                   (int64_t)(sizeof **fresh + sizeof *p));
}

/* Arrays with points between low and high, in common with this one: their memory has been given
 * back, or they are an error that their next exchange tells. */
static DPARI_COLD void dpari_gx_forget(dpari_gx *g, const dpari_gx_shape *s, void *u, int64_t low,
                                       int64_t high)
{
    dpari_gx_array *a;
    dpari_gx_plan *p;
    int32_t i;
    while ((a = dpari_gx_met_by(g, s, u, low, high)) != NULL) {
        for (p = g->plans; p; p = p->next) {
            p->before = NULL;
            g->now = g;
            for (i = 0; i < p->n; i++) {
                p->at[i] = p->at[i] == a->at ? p : p->at[i];
            }
        }
        a->at = a; /* where no array is */
        a->low = a->high = 0;
    }
}

/* Remembers it; all ranks are well. fresh: for a new shape. */
static DPARI_COLD void dpari_gx_remember(dpari_gx *g, dpari_gx_shape *known, dpari_gx_shape *fresh,
                                         void *u, void *memory, int64_t low, int64_t high)
{
    dpari_gx_array *a = dpari_gx_find(g, u);
    dpari_gx_plan *p;
    int32_t i;
    if (!known) {
        known = fresh;
        known->number = g->shapes_known++;
        known->next = g->shapes;
        g->shapes = known;
    } else {
        dpari_os_unmap(fresh, (int64_t)sizeof *fresh);
    }
    for (p = a || g->d.type != 0 ? g->plans : NULL; p; p = p->next) {
        /* another shape at an old address; those of desc.type are looked at again */
        p->before = NULL;
        g->now = g;
        for (i = 0; i < p->n && !p->active; i++) {
            p->at[i] = p->at[i] == u || p->shape[i] == &g->plain ? p : p->at[i];
        }
    }
    dpari_gx_forget(g, known, u, low, high);
    if (!a) {
        a = &g->pages->array[g->pages->count++];
        a->at = u;
        a->memory = memory;
    }
    a->shape = known;
    a->number = g->arrays++;
    a->low = low;
    a->high = high;
}

/* An array of one's own, `u`, or one from the communicator. */
static DPARI_COLD void *dpari_gx_add(dpari_gx *g, int32_t type, const dpar_grid_field *field,
                                     int attached, void *u, dpar_status *st, dpar_why *why)
{
    dpar_comm *c = g->head.comm, *node = c->node ? c->node : c;
    dpari_gx_shape *fresh = NULL, *known = NULL;
    dpar_grid_field none;
    dpari_gx_given given;
    int64_t low = 0, high = 0, skew = 0;
    void *memory = NULL;
    dpari_zero(&none, sizeof none);
    field = field ? field : &none;
    given.grid = &g->head;
    given.arrays = g->arrays;
    *st = dpari_gx_room(g, &fresh, why);
    *st = *st == DPAR_OK ? dpari_gx_check_field(g, type, field, why) : *st;
    if (*st == DPAR_OK && attached && !u) {
        *st = dpari_wrong(why, "grid: the array of rank %d is NULL", c->rank);
    }
    if (*st == DPAR_OK) {
        dpari_gx_shape_of(g, type, field, fresh);
        *st = dpari_gx_check_span(g, fresh, c->rank, &low, &high, why);
        if (*st == DPAR_OK && g->shapes_known == DPARI_GX_SHAPES) {
            *st = dpari_say(DPAR_E_RANGE, why, "grid: arrays have more than %d shapes",
                            (int32_t)DPARI_GX_SHAPES);
        }
        if (*st == DPAR_OK && !attached && g->mem != c->mem) {
            *st = dpari_wrong(why,
                              "grid: arrays are in a device's memory, which the communicator has "
                              "not: allocate and attach them");
        }
    }
    if (*st == DPAR_OK && !attached) {
        const int64_t bytes = dpar_type_bytes(type);
        skew = g->arrays * DPARI_GX_SKEW % DPARI_GX_PAGE;
        skew += (-low * bytes + DPARI_GX_ALIGN - 1) / DPARI_GX_ALIGN * DPARI_GX_ALIGN;
        *st = dpar_comm_alloc(c, skew + high * bytes, &memory);
        u = memory ? (void *)((char *)memory + skew) : NULL;
        if (*st != DPAR_OK) {
            (void)dpari_repeat(*st, why, c->why.text);
        }
    }
    low = (int64_t)(uintptr_t)u + low * dpar_type_bytes(type);
    high = (int64_t)(uintptr_t)u + high * dpar_type_bytes(type);
    if (*st == DPAR_OK && attached) {
        *st = dpari_gx_check_place(g, fresh, u, low, high, why);
    }
    given.s = fresh;
    *st = dpari_agree_on(c, *st, "grid", dpari_gx_state_array, &given, why);
    if (*st == DPAR_OK) {
        const dpari_world *w = g->mem ? NULL : dpari_world_of(node);
        fresh->reach = w && dpari_ref(w, u, 1) != 0;
        *st = dpari_gx_known(g, fresh, &known);
        if (*st != DPAR_OK) {
            (void)dpari_repeat(*st, why, c->why.text);
        }
    }
    if (*st != DPAR_OK) {
        dpar_comm_release(c, memory);
        dpari_os_unmap(fresh, (int64_t)sizeof *fresh);
        return NULL;
    }
    dpari_gx_remember(g, known, fresh, u, memory, low, high);
    return u;
}

DPAR_API DPARI_COLD void *dpar_grid_array(dpar_grid *grid, int32_t type,
                                          const dpar_grid_field *field)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_why why;
    dpar_status st;
    void *u;
    if (g == NULL) {
        return NULL;
    }
    u = dpari_gx_add(g, type, field, 0, NULL, &st, &why);
    if (u == NULL) {
        (void)dpari_gx_say(g, st, &why);
    }
    return u;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                                 const dpar_grid_field *field, dpar_why *why)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_status st;
    if (!g) {
        return dpari_wrong(why, "grid: %s", grid ? "its world was closed" : "it is NULL");
    }
    (void)dpari_gx_add(g, type, field, 1, u, &st, why);
    return st;
}

/* ---- mirrors ----------------------------------------------------------------------------------
 */

/* Halo cells that an exchange of this depth fills below (side 0) or above. */
static int64_t dpari_gx_width(const dpari_gx *g, int32_t depth, int32_t d, int side)
{
    const int64_t w = side ? g->high[d] : g->low[d];
    return depth > 0 ? dpari_least(w, depth) : w;
}

/* Points of array s beyond the end of dim d, [box->lo[d], box->hi[d]) counted from its first own
 * one, and in the other dims all that holds values: what exchanges bring and, of dims before d,
 * what their mirrors have filled. 0: none. */
static DPARI_COLD int dpari_gx_beyond(const dpari_gx *g, const dpari_gx_shape *s, int32_t depth,
                                      int32_t d, int side, dpar_box *box)
{
    int32_t e;
    for (e = 0; e < g->head.dims; e++) {
        const int64_t faces = s->f.at[e] != 0, below = -g->head.first[e];
        const int64_t above = g->head.cells[e] + faces - g->head.first[e];
        const int wide = s->halo.shape == DPAR_STENCIL_BOX || e == d;
        box->lo[e] = wide ? -dpari_gx_width(g, depth, e, 0) : 0;
        box->hi[e] = g->head.own[e] + faces + (wide ? dpari_gx_width(g, depth, e, 1) : 0);
        if (e == d) {
            box->lo[e] = side ? dpari_most(above, box->lo[e]) : box->lo[e];
            box->hi[e] = side ? box->hi[e] : dpari_least(below, box->hi[e]);
        } else if (!g->d.periodic[e]) {
            box->lo[e] = e < d && g->d.mirror_low[e] ? box->lo[e] : dpari_most(below, box->lo[e]);
            box->hi[e] = e < d && g->d.mirror_high[e] ? box->hi[e] : dpari_least(above, box->hi[e]);
        }
        if (box->hi[e] <= box->lo[e]) {
            return 0;
        }
    }
    box->dims = g->head.dims;
    return 1;
}

/* The copy that fills such a box, of component k, or of all (-1). A point i beyond the low end is
 * the image of at - 1 - i, with `at` 1 where the wall goes through a cell or the points are on
 * faces, 2 for both, else 0; beyond the high end the same from there. */
static DPARI_COLD void dpari_gx_reflect(const dpari_gx *g, const dpari_gx_shape *s,
                                        const dpar_box *box, int32_t d, int side, int32_t k,
                                        dpari_gx_mirror *m)
{
    const int32_t dims = g->head.dims, bytes = dpar_type_bytes(s->type);
    const int32_t on = (side ? g->d.mirror_high[d] : g->d.mirror_low[d]) == DPAR_GRID_MIRROR_CELL;
    const int32_t faces = s->f.at[d] != 0;
    const int64_t sum = (side ? 2 * g->head.cells[d] - 1 - on : on - 1) + faces;
    dpar_mem_box *b = &m->box;
    dpari_stride_piece p;
    int64_t at = 0;
    int32_t e;
    dpari_zero(b, sizeof *b);
    dpari_zero(&p, sizeof p);
    b->to_type = b->from_type = s->type;
    b->op = DPAR_COPY;
    b->negate = k < 32 && (s->f.odd[d] >> (k < 0 ? 0 : k) & 1u) != 0;
    b->dims = dims + 1;
    for (e = 0; e < dims; e++) {
        b->extent[e] = box->hi[e] - box->lo[e];
        b->to_stride[e] = b->from_stride[e] = s->f.stride[e];
        at += box->lo[e] * s->f.stride[e];
    }
    b->extent[dims] = k < 0 ? s->components : 1;
    b->to_stride[dims] = b->from_stride[dims] = s->f.component_stride;
    b->from_stride[d] = -b->from_stride[d];
    at += k < 0 ? 0 : k * s->f.component_stride;
    m->dim = d;
    m->to = at * bytes;
    m->from = (at + (sum - 2 * (g->head.first[d] + box->lo[d])) * s->f.stride[d]) * bytes;
    p.dims = b->dims;
    p.to_type = p.from_type = s->type;
    p.op = DPAR_COPY;
    p.negate = b->negate;
    for (e = 0; e <= dims; e++) {
        p.extent[e] = b->extent[e];
        p.to[e] = b->to_stride[e];
        p.from[e] = b->from_stride[e];
    }
    dpari_stride_prepare(&m->stride, &p);
}

/* Lists the boxes that mirrors fill, dim after dim; m NULL: how many there are. */
static DPARI_COLD int32_t dpari_gx_mirrors(const dpari_gx *g, const dpari_gx_shape *const *shape,
                                           int32_t n, int32_t depth, dpari_gx_mirror *m)
{
    int32_t d, i, side, k, count = 0;
    dpar_box box;
    for (d = 0; d < g->head.dims; d++) {
        for (i = 0; i < 2 * n; i++) {
            const dpari_gx_shape *s = shape[i / 2];
            const int32_t comps = s->components;
            const uint32_t all = comps > 31 ? ~(uint32_t)0 : ((uint32_t)1 << comps) - 1;
            const uint32_t odd = s->f.odd[d] & all;
            const int apart = odd != 0 && (odd != all || comps > 32);
            side = i % 2;
            if (!(side ? g->d.mirror_high[d] : g->d.mirror_low[d]) ||
                !dpari_gx_beyond(g, s, depth, d, side, &box)) {
                continue;
            }
            for (k = apart ? 0 : -1; k < (apart ? comps : 0); k++, count++) {
                if (m) {
                    dpari_gx_reflect(g, s, &box, d, side, k, &m[count]);
                    m[count].item = i / 2;
                }
            }
        }
    }
    return count;
}

/* In a device's memory: the boxes of a dim in one call, for those of the next read them. */
static DPARI_COLD dpar_status dpari_gx_fill_there(const dpari_gx *g, dpari_gx_plan *p)
{
    dpar_status st = DPAR_OK;
    int32_t i, n = 0;
    for (i = 0; i < p->mirrors && st == DPAR_OK; i++) {
        const dpari_gx_mirror *m = &p->mirror[i];
        p->box[n] = m->box;
        p->box[n].to = (char *)p->at[m->item] + m->to;
        p->box[n++].from = (char *)p->at[m->item] + m->from;
        if (i + 1 == p->mirrors || m[1].dim != m->dim) {
            st = g->mem->move(g->mem->ctx, p->box, n);
            n = 0;
        }
    }
    st = st == DPAR_OK && g->mem != g->head.comm->mem ? g->mem->wait(g->mem->ctx) : st;
    if (st != DPAR_OK) {
        dpar_comm_abort(g->head.comm, st, "grid: mirrors in a device's memory failed");
    }
    return st;
}

static dpar_status dpari_gx_fill(const dpari_gx *g, dpari_gx_plan *p)
{
    int32_t i;
    if (p->box) {
        return dpari_gx_fill_there(g, p);
    }
    for (i = 0; i < p->mirrors; i++) {
        const dpari_gx_mirror *m = &p->mirror[i];
        char *at = (char *)p->at[m->item];
        dpari_stride_run(&m->stride, at + m->to, at + m->from);
    }
    return DPAR_OK;
}

/* ---- plans ------------------------------------------------------------------------------------
 */

/* Array i of a plan: where the exchange is narrower, so is its halo. */
static DPARI_COLD void dpari_gx_field_of(const dpari_gx *g, dpari_gx_plan *p, int32_t i)
{
    const dpari_gx_shape *s = p->shape[i];
    dpar_halo_field *f = &p->field[i];
    int32_t d;
    dpari_gx_field(g, s, p->at[i], f);
    if (p->depth > 0) {
        p->halo[i] = s->halo;
        f->halo = &p->halo[i];
        f->room = &s->halo;
        for (d = 0; d < g->head.dims; d++) {
            p->halo[i].low[d] = dpari_gx_width(g, p->depth, d, 0);
            p->halo[i].high[d] = dpari_gx_width(g, p->depth, d, 1) + (s->f.at[d] != 0);
        }
    }
}

/* Divides a plan's two memories into pieces. With NULL it only counts bytes. */
static DPARI_COLD int64_t dpari_gx_lay_out(dpari_gx_plan *p, int32_t n, int32_t depth)
{
    dpari_gx_plan none;
    dpari_room r;
    r.at = (unsigned char *)p;
    r.used = 0;
    (void)dpari_room_take(&r, 1, sizeof *p);
    p = p ? p : &none;
    p->at = (void **)dpari_room_take(&r, n, sizeof *p->at);
    p->shape = (const dpari_gx_shape **)dpari_room_take(&r, n, sizeof *p->shape);
    p->field = (dpar_halo_field *)dpari_room_take(&r, n, sizeof *p->field);
    p->halo = (dpar_halo *)dpari_room_take(&r, depth > 0 ? n : 0, sizeof *p->halo);
    p->bytes = r.used;
    p->n = n;
    p->depth = depth;
    return r.used;
}

static DPARI_COLD void *dpari_gx_lay_out_rest(const dpari_gx *g, dpari_gx_plan *p)
{
    const int32_t there = g->mem ? p->mirrors : 0;
    dpari_room r;
    void *x;
    r.at = (unsigned char *)p->rest;
    r.used = 0;
    p->mirror = (dpari_gx_mirror *)dpari_room_take(&r, p->mirrors, sizeof *p->mirror);
    p->box = (dpar_mem_box *)dpari_room_take(&r, there, sizeof *p->box);
    p->box = there > 0 ? p->box : NULL;
    x = dpari_room_take(&r, p->exchange, 1);
    p->rest_bytes = r.used;
    return x;
}

/* Sets the options of a plan. Arrays that may change from call to call are packed on all ranks,
 * because their addresses may differ each time. */
static DPARI_COLD void dpari_gx_options(const dpari_gx_plan *p, dpar_halo_plan_desc *o)
{
    int32_t i;
    dpari_zero(o, sizeof *o);
    o->field = p->field;
    o->fields = p->n;
    for (i = 0; i < p->n; i++) {
        o->way = p->shape[i]->packed ? DPAR_HALO_PACKED : o->way;
    }
}

/* Does the local part of planning: allocates memory and describes the plan. */
static DPARI_COLD dpar_status dpari_gx_describe(const dpari_gx *g, void *const *list, int32_t n,
                                                int32_t depth, dpari_gx_plan **plan, dpar_why *why)
{
    int64_t bytes = dpari_gx_lay_out(NULL, n, depth);
    dpari_gx_plan *p = (dpari_gx_plan *)dpari_os_pages(bytes);
    dpar_halo_plan_desc o;
    dpar_status st;
    int32_t i;
    *plan = p;
    if (p) {
        (void)dpari_gx_lay_out(p, n, depth);
        for (i = 0; i < n; i++) {
            p->at[i] = list[i];
            p->shape[i] = dpari_gx_shape_at(g, list[i]);
            dpari_gx_field_of(g, p, i);
        }
        dpari_gx_options(p, &o);
        st = dpar_halo_plan_bytes(g->head.comm, &o, &p->exchange, why);
        if (st != DPAR_OK) {
            return st;
        }
        p->mirrors = dpari_gx_mirrors(g, p->shape, n, depth, NULL);
        (void)dpari_gx_lay_out_rest(g, p);
        bytes = p->rest_bytes;
        p->rest = dpari_os_pages(bytes);
        (void)dpari_gx_lay_out_rest(g, p);
    }
    if (!p || !p->rest) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes for a plan cannot be had (is ulimit -v too small?)",
                         bytes);
    }
    (void)dpari_gx_mirrors(g, p->shape, n, depth, p->mirror);
    return DPAR_OK;
}

/* Which arrays the ranks handed in. */
typedef struct dpari_gx_numbers {
    const dpari_gx *g;
    void *const *list;
    int32_t n, depth;
} dpari_gx_numbers;

/* Of what kind they are. */
static DPARI_COLD void dpari_gx_state_kinds(dpari_facts *f, const void *given)
{
    const dpari_gx_numbers *a = (const dpari_gx_numbers *)given;
    int32_t i;
    dpari_fact(f, "the number of arrays", 0, a->n);
    dpari_fact(f, "depth", 0, a->depth);
    for (i = 0; i < a->n; i++) {
        const dpari_gx_shape *s = dpari_gx_shape_at(a->g, a->list[i]);
        dpari_fact_type(f, "the type of array #", i, s->type);
        dpari_fact(f, "the number of components of array #", i, s->components);
        dpari_fact(f, "packed (1: array # is of desc.type, not made known)", i, s->packed);
    }
}

/* Plans an exchange of known arrays. COLLECTIVE. */
static DPARI_COLD dpar_status dpari_gx_new_plan(dpari_gx *g, void *const *list, int32_t n,
                                                int32_t depth, dpari_gx_plan **plan, dpar_why *why)
{
    dpar_comm *c = g->head.comm;
    dpari_gx_plan *p = NULL, **last = &g->plans;
    dpari_gx_numbers given;
    dpar_halo_plan_desc o;
    dpar_status st = dpari_gx_describe(g, list, n, depth, &p, why);
    given.g = g;
    given.list = list;
    given.n = n;
    given.depth = depth;
    st = dpari_agree_on(c, st, "grid exchange", dpari_gx_state_kinds, &given, why);
    if (st == DPAR_OK) {
        void *memory = dpari_gx_lay_out_rest(g, p);
        dpari_gx_options(p, &o);
        st = dpar_halo_plan_init(memory, p->exchange, c, &o, &p->x, why);
    }
    if (st != DPAR_OK) {
        dpari_os_unmap(p ? p->rest : NULL, p ? p->rest_bytes : 0);
        dpari_os_unmap(p, p ? p->bytes : 0);
        return st;
    }
    while (*last) { /* the order in which they were made: the same on all ranks */
        last = &(*last)->next;
    }
    *last = p;
    *plan = p;
    return DPAR_OK;
}

/* The plan of this exchange that is free; NULL: there is none. */
static dpari_gx_plan *dpari_gx_match(const dpari_gx *g, void *const *list, int32_t n, int32_t depth)
{
    dpari_gx_plan *p;
    int32_t i;
    for (p = g->plans; p; p = p->next) {
        if (p->n != n || p->depth != depth || p->active) {
            continue;
        }
        for (i = 0; i < n; i++) {
            if (p->at[i] != list[i] && dpari_gx_shape_at(g, list[i]) != p->shape[i]) {
                break;
            }
        }
        if (i == n) {
            return p;
        }
    }
    return NULL;
}

static DPARI_COLD void dpari_gx_state_list(dpari_facts *f, const void *given)
{
    const dpari_gx_numbers *a = (const dpari_gx_numbers *)given;
    int32_t i;
    dpari_fact(f, "the number of arrays", 0, a->n);
    dpari_fact(f, "depth", 0, a->depth);
    for (i = 0; i < a->n; i++) {
        const dpari_gx_array *known = dpari_gx_find(a->g, a->list[i]);
        dpari_fact(f, "array # of the list", i, known ? known->number : -1);
    }
}

static DPARI_COLD dpar_status dpari_gx_check_list(const dpari_gx *g, void *const *list, int32_t n,
                                                  int32_t depth, dpar_why *why)
{
    int32_t i;
    if (!list || n < 1 || n > 4096) {
        return dpari_wrong(why,
                           list ? "grid: a list of %d arrays (1 to 4096)"
                                : "grid: the list is NULL, of %d arrays",
                           n);
    }
    if (depth < 0 || depth > g->widest) {
        return dpari_say(DPAR_E_RANGE, why, "grid: depth %d, the halo is %ld wide", depth,
                         g->widest);
    }
    for (i = 0; i < n; i++) {
        const dpari_gx_array *a = !list[i] || g->d.type == 0 || dpari_gx_find(g, list[i])
                                      ? NULL
                                      : dpari_gx_in_another(g, list[i]);
        if (a) {
            return dpari_wrong(
                why,
                "grid: number %d of the arrays given lies in another, %ld bytes behind "
                "its first own point: wanted is the address of that",
                i, (int64_t)(uintptr_t)list[i] - (int64_t)(uintptr_t)a->at);
        }
        if (!dpari_gx_shape_at(g, list[i])) {
            return dpari_wrong(why,
                               "grid: array %d of the list of %d is not of this grid: give the "
                               "address of its first own point, which dpar_grid_array returned or "
                               "dpar_grid_attach was given",
                               i, n);
        }
    }
    return DPAR_OK;
}

/* Before an exchange for which there is no plan, and before each one in a grid that checks. */
static DPARI_COLD dpar_status dpari_gx_look(dpari_gx *g, void *const *list, int32_t n,
                                            int32_t depth, dpari_gx_plan **plan)
{
    dpari_gx_numbers given;
    dpar_why why;
    dpar_status st = dpari_gx_check_list(g, list, n, depth, &why);
    given.g = g;
    given.list = list;
    given.n = n;
    given.depth = depth;
    if (g->d.check) {
        st = dpari_agree_on(g->head.comm, st, "grid", dpari_gx_state_list, &given, &why);
    }
    if (st == DPAR_OK && !*plan) {
        st = dpari_gx_new_plan(g, list, n, depth, plan, &why);
    }
    return dpari_gx_say(g, st, &why);
}

/* Its plan, over these arrays. */
static dpar_status dpari_gx_take(dpari_gx *g, void *const *list, int32_t n, int32_t depth,
                                 dpari_gx_plan **plan)
{
    dpar_status st;
    int32_t i;
    depth = depth == g->widest ? 0 : depth; /* all that there is */
    *plan = list && depth >= 0 ? dpari_gx_match(g, list, n, depth) : NULL;
    if (!*plan || g->d.check) {
        st = dpari_gx_look(g, list, n, depth, plan);
        if (st != DPAR_OK) {
            return st;
        }
    }
    for (i = 0; i < n; i++) {
        if ((*plan)->at[i] != list[i]) {
            st = dpar_halo_plan_bind((*plan)->x, i, list[i], NULL);
            if (st != DPAR_OK) {
                return st;
            }
            (*plan)->before = (*plan)->at[i];
            (*plan)->at[i] = list[i];
        }
    }
    if (n == 1 && depth == 0 && (*plan)->mirrors == 0 && !g->d.check) {
        g->quick = *plan;
        g->now = list[0];
        g->now_x = (*plan)->x;
    }
    return DPAR_OK;
}

/* Fast path for codes that swap two arrays: if u was the array of the plan that ran last before its
 * current one, binds it again and returns 1. */
static int dpari_gx_back(dpari_gx *g, void *u)
{
    dpari_gx_plan *p = g->quick;
    if (g->now == g || p->before != u || !u || g->under_way > 0 ||
        dpar_halo_plan_bind(p->x, 0, u, NULL) != DPAR_OK) {
        return 0;
    }
    p->before = p->at[0];
    p->at[0] = g->now = u;
    return 1;
}

/* ---- exchanges --------------------------------------------------------------------------------
 */

/* Checks that none of these arrays takes part in an exchange that has begun and not ended. */
static DPARI_COLD dpar_status dpari_gx_check_way(const dpari_gx *g, void *const *list, int32_t n)
{
    int32_t i;
    for (i = 0; list && i < n; i++) {
        if (dpari_gx_way(g, list[i])) {
            return dpari_comm_wrong(g->head.comm,
                                    "grid: the exchange of number %d of the %d arrays given has "
                                    "begun and not ended: dpar_grid_end first",
                                    i, n);
        }
    }
    return DPAR_OK;
}

static dpar_status dpari_gx_run(dpari_gx *g, void *const *list, int32_t n, int32_t depth)
{
    dpari_gx_plan *p;
    dpar_status st = g->under_way > 0 ? dpari_gx_check_way(g, list, n) : DPAR_OK;
    st = st == DPAR_OK ? dpari_gx_take(g, list, n, depth, &p) : st;
    st = st == DPAR_OK ? dpar_halo_plan_exchange(p->x) : st;
    return st == DPAR_OK && p->mirrors > 0 ? dpari_gx_fill(g, p) : st;
}

DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    if (!g) {
        return DPAR_E_ARG;
    }
    return g->now == u || dpari_gx_back(g, u) ? dpar_halo_plan_exchange(g->now_x)
                                              : dpari_gx_run(g, &u, 1, 0);
}

DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                             int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    return g ? dpari_gx_run(g, arrays, count, depth) : DPAR_E_ARG;
}

static dpar_status dpari_gx_start(dpari_gx *g, void *const *list, int32_t n, int32_t depth)
{
    dpari_gx_plan *p;
    dpar_status st = g->under_way > 0 ? dpari_gx_check_way(g, list, n) : DPAR_OK;
    st = st == DPAR_OK ? dpari_gx_take(g, list, n, depth, &p) : st;
    st = st == DPAR_OK ? dpar_halo_plan_begin(p->x) : st;
    if (st == DPAR_OK) {
        p->active = 1;
        g->under_way++;
        g->now = g;
    }
    return st;
}

DPAR_API dpar_status dpar_grid_begin(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    return g ? dpari_gx_start(g, &u, 1, 0) : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_grid_begin_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                          int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    return g ? dpari_gx_start(g, arrays, count, depth) : DPAR_E_ARG;
}

/* The plan of the exchange under way that u takes part in. */
static dpar_status dpari_gx_active(dpar_grid *grid, const void *u, dpari_gx_plan **plan)
{
    const dpari_gx *g = dpari_gx_of(grid);
    *plan = g ? dpari_gx_way(g, u) : NULL;
    return *plan ? DPAR_OK
           : g   ? dpari_comm_wrong(grid->comm, "grid: no exchange of this array has begun")
                 : DPAR_E_ARG;
}

DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u)
{
    dpari_gx_plan *p;
    const dpar_status st = dpari_gx_active(grid, u, &p);
    return st == DPAR_OK ? dpar_halo_plan_test(p->x) : st;
}

DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u)
{
    dpari_gx_plan *p;
    dpar_status st = dpari_gx_active(grid, u, &p);
    if (st == DPAR_OK) {
        st = dpar_halo_plan_end(p->x);
        p->active = 0;
        dpari_gx_of(grid)->under_way--;
        st = st == DPAR_OK && p->mirrors > 0 ? dpari_gx_fill(dpari_gx_of(grid), p) : st;
    }
    return st;
}

DPAR_API DPARI_COLD dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *p;
    return g && dpari_gx_take(g, list, n, 0, &p) == DPAR_OK ? p->x : NULL;
}

DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid)
{
    return grid ? &dpari_gx_in(grid)->halo : NULL;
}

/* ---- core and rim -----------------------------------------------------------------------------
 */

/* Own cells of a dim that have all that they read: those further than the halo from a side that an
 * exchange or a mirror fills. */
static void dpari_gx_inner(const dpari_gx *g, int32_t d, int64_t *lo, int64_t *hi)
{
    const int64_t first = g->head.first[d], own = g->head.own[d];
    const int below = first > 0 || g->d.periodic[d] || g->d.mirror_low[d];
    const int above = first + own < g->head.cells[d] || g->d.periodic[d] || g->d.mirror_high[d];
    *lo = dpari_least(below ? g->low[d] : 0, own);
    *hi = dpari_most(above ? own - g->high[d] : own, *lo);
}

DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box)
{
    dpar_box b;
    int32_t d, some = 1;
    dpari_zero(&b, sizeof b);
    b.dims = grid ? grid->dims : 0;
    for (d = 0; d < b.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &b.lo[d], &b.hi[d]);
        some = some && b.lo[d] < b.hi[d];
    }
    if (grid && box && some) {
        *box = b;
        return 1;
    }
    return 0;
}

/* Below and above the core in dim 0, whole; then those of dim 1 between them, and so on. */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box)
{
    dpar_box b;
    int64_t lo, hi;
    int32_t d, side;
    dpari_zero(&b, sizeof b);
    b.dims = grid && box ? grid->dims : 0;
    for (d = 0; d < b.dims; d++) {
        b.hi[d] = grid->own[d];
    }
    for (d = 0; d < b.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &lo, &hi);
        for (side = 0; side < 2; side++) {
            b.lo[d] = side ? hi : 0;
            b.hi[d] = side ? grid->own[d] : lo;
            if (b.lo[d] < b.hi[d] && n-- == 0) {
                *box = b;
                return 1;
            }
        }
        b.lo[d] = lo;
        b.hi[d] = hi;
        if (lo == hi) {
            return 0; /* nothing lies between them */
        }
    }
    return 0;
}

/* ---- the whole array --------------------------------------------------------------------------
 */

/* A block that goes to or comes from rank 0. */
typedef struct dpari_gx_block {
    const dpari_gx_shape *shape;
    char *array, *whole, *dense; /* dense: its points one after the other */
    int back;                    /* from the whole to the parts */
} dpari_gx_block;

/* The points that a rank owns; elements of them. */
static DPARI_COLD int64_t dpari_gx_owned(const dpari_gx_shape *s, int32_t rank, dpar_box *own)
{
    (void)dpar_halo_owned(&s->halo, rank, own);
    return dpar_box_volume(own) * s->components;
}

/* Between the block and this rank's array, or (whole) rank 0's whole one. */
static DPARI_COLD dpar_status dpari_gx_copy(const dpari_gx *g, const dpari_gx_block *k,
                                            const dpar_box *own, int whole)
{
    const dpari_gx_shape *s = k->shape;
    const int32_t dims = g->head.dims;
    const int out = k->back == whole; /* into the block */
    dpar_mem_box b;
    dpar_status st;
    int64_t dense = s->components, step = dense, at = 0;
    int64_t *there = out ? b.from_stride : b.to_stride, *here = out ? b.to_stride : b.from_stride;
    char *array = whole ? k->whole : k->array;
    int32_t d;
    dpari_zero(&b, sizeof b);
    b.to_type = b.from_type = s->type;
    b.op = DPAR_COPY;
    b.dims = dims + 1;
    b.extent[dims] = dense;
    there[dims] = whole ? 1 : s->f.component_stride;
    here[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        b.extent[d] = own->hi[d] - own->lo[d];
        there[d] = whole ? step : s->f.stride[d];
        here[d] = dense;
        at += whole ? own->lo[d] * step : 0;
        step *= dpar_halo_points(&s->halo, d);
        dense *= b.extent[d];
    }
    array += at * dpar_type_bytes(s->type);
    b.to = out ? k->dense : array;
    b.from = out ? array : k->dense;
    if (!g->mem) {
        return dpar_mem_move_box(&b);
    }
    st = g->mem->move(g->mem->ctx, &b, 1);
    return st == DPAR_OK ? g->mem->wait(g->mem->ctx) : st;
}

/* Rank after rank: its array, its block, a message, rank 0's whole array; or the other way. */
static DPARI_COLD dpar_status dpari_gx_blocks(const dpari_gx *g, const dpari_gx_block *k)
{
    dpar_comm *c = g->head.comm;
    dpar_status st = DPAR_OK;
    dpar_box own;
    int32_t r, i;
    for (r = c->rank; r < (c->rank > 0 ? c->rank + 1 : c->size); r++) {
        const int64_t n = dpari_gx_owned(k->shape, r, &own);
        const int32_t other = c->rank > 0 ? 0 : r;
        for (i = 0; i < 3 && st == DPAR_OK; i++) {
            const int step = k->back ? 2 - i : i;
            if (step == 1 && other != c->rank) {
                st = k->back == (c->rank > 0)
                         ? dpar_recv(c, k->dense, n, k->shape->type, other, 0, NULL)
                         : dpar_send(c, k->dense, n, k->shape->type, other, 0, NULL);
            } else if ((step == 0 && r == c->rank) || (step == 2 && c->rank == 0)) {
                st = dpari_gx_copy(g, k, &own, step / 2);
            }
        }
    }
    return st;
}

static DPARI_COLD dpar_status dpari_gx_whole(dpari_gx *g, void *u, void *whole, int back)
{
    dpar_comm *c = g ? g->head.comm : NULL;
    const int pins = g && g->mem && g->mem != c->mem;
    dpari_gx_numbers given;
    dpari_gx_block k;
    int64_t bytes = 0;
    void *block = NULL;
    dpar_status st;
    dpar_why why;
    dpar_box own;
    int32_t r;
    if (!g) {
        return DPAR_E_ARG;
    }
    st = dpari_gx_check_list(g, &u, 1, 0, &why);
    k.shape = dpari_gx_shape_at(g, u);
    k.array = (char *)u;
    if (st == DPAR_OK && c->rank == 0 && !whole) {
        st = dpari_wrong(&why, "grid: rank 0 gave NULL for the whole array");
    }
    if (st == DPAR_OK) {
        for (r = c->rank; r < (c->rank > 0 ? c->rank + 1 : c->size); r++) {
            bytes = dpari_most(bytes, dpari_gx_owned(k.shape, r, &own));
        }
        bytes *= dpar_type_bytes(k.shape->type);
        st = dpar_comm_alloc(c, bytes, &block);
        st = st == DPAR_OK && pins ? g->mem->pin(g->mem->ctx, block, bytes) : st;
        (void)dpari_say(st, &why, "grid: %ld bytes for a block cannot be had", bytes);
    }
    given.g = g;
    given.list = &u;
    given.n = 1;
    given.depth = 0;
    st = dpari_gx_say(g, dpari_agree_on(c, st, "grid", dpari_gx_state_list, &given, &why), &why);
    if (st == DPAR_OK) {
        k.whole = (char *)whole;
        k.dense = (char *)block;
        k.back = back;
        st = dpari_gx_blocks(g, &k);
        if (pins) {
            (void)g->mem->unpin(g->mem->ctx, block);
        }
    }
    dpar_comm_release(c, block);
    return st;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole)
{
    return dpari_gx_whole(dpari_gx_of(grid), u, whole, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole)
{
    union {
        const void *given;
        void *read;
    } w;
    w.given = whole;
    return dpari_gx_whole(dpari_gx_of(grid), u, w.read, 1);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_block(const dpar_grid *grid, const dpar_grid_field *field,
                                                dpar_grid_part *part)
{
    const dpari_gx *g = dpari_gx_in(grid);
    dpari_gx_shape s;
    dpar_grid_field none;
    int64_t low, high;
    dpar_box own;
    int32_t d;
    dpari_zero(&none, sizeof none);
    field = field ? field : &none;
    if (!g || !g->head.comm || !part || dpari_gx_check_field(g, DPAR_F64, field, NULL) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_gx_shape_of(g, DPAR_F64, field, &s);
    if (dpari_gx_span(g, &s, &low, &high) != 0) {
        return DPAR_E_RANGE;
    }
    (void)dpar_halo_owned(&s.halo, g->head.comm->rank, &own);
    dpari_zero(part, sizeof *part);
    for (d = 0; d < g->head.dims; d++) {
        part->whole[d] = dpar_halo_points(&s.halo, d);
        part->start[d] = own.lo[d];
        part->count[d] = own.hi[d] - own.lo[d];
        part->memory[d] = dpari_gx_points(g, field, d);
        part->inside[d] = g->low[d];
        part->stride[d] = s.f.stride[d];
    }
    part->component_stride = s.f.component_stride;
    return DPAR_OK;
}

/* ---- who owns what, as text -------------------------------------------------------------------
 */

static DPARI_COLD void dpari_gx_list(dpar_text *t, const int64_t *v, int32_t n, const char *by)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_text_print(t, "%s%ld", i > 0 ? by : "", v[i]);
    }
}

/* "40..79": cells of part p of a dim. */
static DPARI_COLD void dpari_gx_put_cells(dpar_text *t, const dpari_gx *g, int32_t d, int32_t p)
{
    int32_t coord[DPAR_MAX_DIMS] = {0};
    dpar_box own;
    coord[d] = p;
    (void)dpar_halo_owned(&g->halo, dpar_mesh_rank(&g->halo.grid.mesh, coord), &own);
    dpari_text_print(t, "%ld..%ld", own.lo[d], own.hi[d] - 1);
}

static DPARI_COLD void dpari_gx_put_table(dpar_text *t, const dpari_gx *g, int32_t *coord)
{
    const int32_t x = g->head.dims - 1, y = x - 1;
    int32_t i, j;
    for (i = -1; i < (y < 0 ? 1 : g->head.parts[y]); i++) {
        for (j = 0; j < g->head.parts[x]; j++) {
            dpari_text_column(t, (size_t)(14 + 14 * j));
            if (i < 0) {
                dpari_gx_put_cells(t, g, x, j);
                continue;
            }
            coord[x] = j;
            if (y >= 0) {
                coord[y] = i;
            }
            dpari_text_print(t, "rank %d", dpar_mesh_rank(&g->halo.grid.mesh, coord));
        }
        dpar_text_put(t, "\n");
        if (y >= 0 && i + 1 < g->head.parts[y]) {
            dpar_text_put(t, "  ");
            dpari_gx_put_cells(t, g, y, i + 1);
        }
    }
}

DPAR_API DPARI_COLD void dpar_grid_draw(const dpar_grid *grid, dpar_text *out)
{
    const dpari_gx *g = dpari_gx_in(grid);
    int32_t coord[DPAR_MAX_DIMS] = {0};
    int64_t parts[DPAR_MAX_DIMS];
    int32_t d, k;
    if (!g || !out) {
        return;
    }
    for (d = 0; d < g->head.dims; d++) {
        parts[d] = g->head.parts[d];
    }
    dpari_gx_list(out, g->head.cells, g->head.dims, " x ");
    dpar_text_put(out, " cells on ");
    dpari_gx_list(out, parts, g->head.dims, " x ");
    dpar_text_put(out, " ranks, halo ");
    dpari_gx_list(out, g->low, g->head.dims, " ");
    for (d = 0; d < g->head.dims; d++) {
        if (g->low[d] != g->high[d]) {
            dpar_text_put(out, " below, ");
            dpari_gx_list(out, g->high, g->head.dims, " ");
            dpar_text_put(out, " above");
            break;
        }
    }
    dpar_text_put(out, "\n");
    for (k = 0; k >= 0;) { /* each part of the dims before the last two */
        for (d = 0; d < g->head.dims - 2; d++) {
            dpari_text_print(out, "%s%d: ", d > 0 ? ", dim " : "dim ", d);
            dpari_gx_put_cells(out, g, d, coord[d]);
        }
        dpar_text_put(out, g->head.dims > 2 ? "\n" : "");
        dpari_gx_put_table(out, g, coord);
        for (k = g->head.dims - 3; k >= 0 && ++coord[k] == g->head.parts[k]; k--) {
            coord[k] = 0;
        }
    }
}
