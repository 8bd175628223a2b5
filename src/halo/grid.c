/* SPDX-License-Identifier: MIT-0 */
/* Implements grids: arrays with halos, exchanged by address.
 *
 * A grid keeps a table of known arrays and their shapes, and a list of plans. An exchange looks up
 * its arrays, and finds the plan for this combination of shapes and depth or makes one with
 * halo_exchange.c. It then binds the arrays to the plan, runs it, and fills the halos at mirrors.
 * The plan that ran last with one array is tried first, so that codes that swap two arrays pay no
 * lookup. Mirrors are lists of boxes, dim after dim, each of which also reflects the halos that the
 * dims before it have filled.
 *
 * Plans are found by shapes and not by addresses, because making a plan is collective: either all
 * ranks must find a plan, or none. Ranks agree on the number of a shape when an array is attached
 * or allocated. Addresses may then differ and change on each rank independently. */
#include "grid.h"

#include "../base/arith.h"
#include "../base/base_private.h"
#include "../base/box.h"
#include "../base/type.h"
#include "../comm/agree.h"
#include "../comm/comm.h"
#include "../comm/engine.h"
#include "../comm/object_memory.h"
#include "../comm/os.h"
#include "../comm/shm.h"
#include "../comm/world.h"
#include "../host/mem.h"
#include "../host/mem_private.h"
#include "../host/strided.h"
#include "../index/cart.h"
#include "../index/halo.h"
#include "../index/layout.h"
#include "../index/mesh.h"
#include "halo_exchange.h"
#include "halo_overlap.h"
#include "halo_plan.h"

enum {
    DPARI_GX_SHAPES = 256, /* the most shapes; dpari_gx_known compares them, a byte each */
    DPARI_GX_KNOWN = 72,   /* number of entries of arrays that are allocated together */
    DPARI_GX_ALIGN = 64,   /* alignment of the first own point, in bytes: a cache line */
    DPARI_GX_PAGE = 4096,  /* bytes of a page */
    DPARI_GX_SKEW = 320    /* each array begins this number of bytes further in a page than the one
                              before it, so that arrays do not use the same sets of a cache */
};

/* The kind of an array. Arrays of one shape can be exchanged with the same plan. */
typedef struct dpari_gx_shape {
    struct dpari_gx_shape *next;
    dpar_halo halo;        /* the whole halo of the array */
    dpar_grid_field field; /* with strides and component_stride, also if the array is dense */
    int32_t number;        /* the same on all ranks */
    int32_t type, components;
    int32_t reach;  /* 1 if peers may read the arrays in place */
    int32_t packed; /* 1 for arrays of desc.type: their addresses may change from call to call, so
                       that they are always packed */
} dpari_gx_shape;

/* An array that was allocated by dpar_grid_array or attached. */
typedef struct dpari_gx_array {
    void *at; /* the address of its first own point */
    const dpari_gx_shape *shape;
    void *memory;      /* the allocation of dpar_grid_array; NULL if the array is the caller's */
    int64_t number;    /* in the order in which arrays became known; the same on all ranks */
    int64_t low, high; /* addresses where its points begin and end */
} dpari_gx_array;

/* Entries of arrays are allocated in pages, because they must not move. */
typedef struct dpari_gx_page {
    struct dpari_gx_page *next;
    int32_t count;
    dpari_gx_array array[DPARI_GX_KNOWN];
} dpari_gx_page;

/* One box of halo cells beyond a mirror, and the copy that fills it. */
typedef struct dpari_gx_mirror {
    int32_t item;        /* number of the array in the plan */
    int32_t dim;         /* of the mirror */
    int64_t to, from;    /* bytes from the address of the array */
    dpari_stride stride; /* the copy by the CPU */
    dpar_mem_box box;    /* the same copy in a device's memory */
} dpari_gx_mirror;

/* A planned exchange of some arrays to some depth. */
typedef struct dpari_gx_plan {
    struct dpari_gx_plan *next;
    dpar_halo_plan *exchange;
    void **at;    /* [count] the arrays that are bound. The address of this plan, which no array
                 has, if an array must be bound again */
    void *before; /* in a plan of one array: the array that was bound before this one, or NULL */
    const dpari_gx_shape **shape; /* [count] */
    dpar_halo *halo;              /* [count] the halos to exchange if depth is not 0 */
    dpar_halo_field *field;       /* [count] */
    void *rest;                   /* memory of the next two lists */
    dpari_gx_mirror *mirror;      /* [mirrors] dim after dim */
    dpar_mem_box *box;            /* [mirrors] of arrays in a device's memory, otherwise NULL */
    int64_t bytes, rest_bytes;    /* sizes of this struct's memory and of `rest` */
    int32_t count;                /* number of arrays */
    int32_t depth;                /* in cells; 0 is the whole halo */
    int32_t mirrors;
    int32_t active; /* 1 if its exchange has begun and not ended */
} dpari_gx_plan;

/* A grid. The caller has a pointer to its first field. */
typedef struct dpari_gx {
    dpar_grid head;
    dpar_grid_desc desc;
    dpari_on_end ending; /* its entry in the communicator's list, which sets head.comm to NULL */
    const dpar_mem *mem; /* functions for arrays in a device's memory; NULL for the host's */
    /* the halo's width on each side of each dim, and the largest of these */
    int64_t low[DPAR_MAX_DIMS], high[DPAR_MAX_DIMS], widest;
    dpar_halo halo;                /* of cells */
    dpari_gx_shape plain;          /* the shape of unknown addresses, if desc.type is set */
    int64_t plain_low, plain_high; /* bytes from such an address to the ends of its points */
    dpari_gx_shape *shapes;
    dpari_gx_page *pages;
    dpari_gx_plan *plans; /* in the order in which they were made, which is the same on all ranks */
    /* The plan that ran last, of those with one array, the whole halo and no mirrors, in a grid
     * without desc.check. dpar_grid_exchange runs it at once if its array is passed again. */
    dpari_gx_plan *quick;
    void *now; /* the array bound to `quick`, or the grid's own address if there is none */
    dpar_halo_plan *now_exchange; /* quick->exchange */
    int64_t arrays;               /* number of arrays that became known so far */
    int64_t bytes;                /* size of this struct's memory */
    int32_t shapes_known;         /* number of shapes */
    int32_t under_way;            /* number of exchanges that have begun and not ended */
} dpari_gx;

/* Returns the grid behind a handle, or NULL if the handle is NULL or its world was closed. */
static dpari_gx *dpari_gx_of(dpar_grid *grid)
{
    return grid && grid->comm ? (dpari_gx *)(void *)grid : NULL;
}

/* Returns the grid behind a handle, even if its world was closed, for functions that only read it.
 */
static const dpari_gx *dpari_gx_in(const dpar_grid *grid)
{
    return (const dpari_gx *)(const void *)grid;
}

/* Reports the failure of a call that has no `why`: leaves its message in comm->why. If the
 * communicator is broken, keeps the first error's status and message. */
static DPARI_COLD dpar_status dpari_gx_say(dpari_gx *grid, dpar_status status, const dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    if (status == DPAR_OK) {
        return status;
    }
    return comm->status < 0 ? comm->status : dpari_repeat(status, &comm->why, why->text);
}

/* ---- a grid ---------------------------------------------------------------------------------- */

/* True if the value is 0 or 1. */
static DPARI_COLD int dpari_gx_flag(int32_t v)
{
    return v == 0 || v == 1;
}

/* Checks the fields of the description that concern one dim: cells, halo, ends and cuts. */
static DPARI_COLD dpar_status dpari_gx_check_dim(const dpari_gx *grid, int32_t d, dpar_why *why)
{
    const dpar_grid_desc *desc = &grid->desc;
    const int64_t most = INT64_C(1) << 60; /* the limit of dpar_halo_check */
    int32_t part;
    if (desc->cells[d] < 1) {
        return dpari_wrong(why, "grid: desc.cells[%d] is %ld; it must be at least 1", d,
                           desc->cells[d]);
    }
    if (grid->low[d] < 0 || grid->high[d] < 0 || grid->low[d] > most || grid->high[d] > most) {
        return dpari_wrong(
            why, "grid: dim %d: the halo is %ld wide below and %ld above; each must be 0 to 2^60",
            d, grid->low[d], grid->high[d]);
    }
    if (!dpari_gx_flag(desc->periodic[d]) || desc->mirror_low[d] < 0 || desc->mirror_high[d] < 0 ||
        desc->mirror_low[d] > DPAR_GRID_MIRROR_CELL ||
        desc->mirror_high[d] > DPAR_GRID_MIRROR_CELL ||
        (desc->periodic[d] && (desc->mirror_low[d] | desc->mirror_high[d]) != 0)) {
        return dpari_wrong(
            why,
            "grid: dim %d: periodic is %d (0 or 1 allowed), mirror_low %d and mirror_high "
            "%d (0 to 2 allowed, only 0 if periodic)",
            d, desc->periodic[d], desc->mirror_low[d], desc->mirror_high[d]);
    }
    if (!desc->cuts[d]) {
        return DPAR_OK;
    }
    if (desc->parts[d] < 1) {
        return dpari_wrong(
            why,
            "grid: desc.cuts[%d] is set, but desc.parts[%d] is %d; it must be the number "
            "of parts",
            d, d, desc->parts[d]);
    }
    for (part = 0; part < desc->parts[d]; part++) {
        if (desc->cuts[d][part + 1] <= desc->cuts[d][part]) {
            return dpari_wrong(
                why,
                "grid: desc.cuts[%d] gives part %d no cell: the part begins at %ld and ends at "
                "%ld",
                d, part, desc->cuts[d][part], desc->cuts[d][part + 1]);
        }
    }
    return DPAR_OK;
}

/* Checks the description, without the other ranks, and sets the halo's width on each side. */
static DPARI_COLD dpar_status dpari_gx_check(dpari_gx *grid, const dpar_grid_desc *desc,
                                             dpar_why *why)
{
    int32_t d;
    if (desc->dims < 1 || desc->dims > DPAR_MAX_DIMS) {
        return dpari_wrong(why, "grid: desc.dims is %d; it must be 1 to %d", desc->dims,
                           (int32_t)DPAR_MAX_DIMS);
    }
    if (!dpari_gx_flag(desc->star) || !dpari_gx_flag(desc->order) || !dpari_gx_flag(desc->check) ||
        !dpari_gx_flag(desc->owns_comm)) {
        return dpari_wrong(
            why, "grid: desc.star is %d, order %d, check %d, owns_comm %d; each must be 0 or 1",
            desc->star, desc->order, desc->check, desc->owns_comm);
    }
    for (d = 0; d < desc->dims; d++) {
        dpar_status status;
        grid->low[d] = desc->halo_low[d] != 0 ? desc->halo_low[d] : desc->halo;
        grid->high[d] = desc->halo_high[d] != 0 ? desc->halo_high[d] : desc->halo;
        grid->widest = dpari_most(grid->widest, dpari_most(grid->low[d], grid->high[d]));
        status = dpari_gx_check_dim(grid, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Chooses the number of parts of each dim. If two choices are nearly equal, it prefers to cut
 * earlier dims, whose halos have longer rows. Dims without a halo are not cut, unless the other
 * dims have too few cells for all ranks. */
static DPARI_COLD dpar_status dpari_gx_parts(dpari_gx *grid, int32_t ranks, dpar_why *why)
{
    dpar_cart_choose_desc cart;
    dpar_status status;
    int32_t d, whole = 0;
    dpari_zero(&cart, sizeof cart);
    cart.ranks = ranks;
    cart.dims = grid->desc.dims;
    for (d = 0; d < grid->desc.dims; d++) {
        const int64_t width = grid->low[d] + grid->high[d];
        cart.cells[d] = grid->desc.cells[d];
        cart.weight[d] = 64 * dpari_least(width, 1024) + d + 1;
        cart.periodic |= (uint32_t)grid->desc.periodic[d] << d;
        grid->head.parts[d] =
            grid->desc.parts[d] == 0 && width == 0 && grid->widest > 0 ? 1 : grid->desc.parts[d];
        whole |= grid->head.parts[d] != grid->desc.parts[d];
    }
    status = dpar_cart_choose_parts(&cart, grid->head.parts, NULL, why);
    if (status != DPAR_OK && whole) {
        for (d = 0; d < grid->desc.dims; d++) {
            grid->head.parts[d] = grid->desc.parts[d];
        }
        status = dpar_cart_choose_parts(&cart, grid->head.parts, NULL, why);
    }
    return status;
}

/* Checks that the array of this rank holds all cells that its mirrors of a dim reflect. */
static DPARI_COLD dpar_status dpari_gx_check_mirror(const dpari_gx *grid, int32_t d, dpar_why *why)
{
    const int64_t n = grid->head.cells[d];
    const int64_t first = grid->head.first[d];
    const int64_t end = first + grid->head.count[d];
    const int64_t below = grid->low[d] - first; /* halo cells beyond the low end */
    const int64_t above = end + grid->high[d] - n;
    const int64_t low = grid->desc.mirror_low[d], high = grid->desc.mirror_high[d];
    if ((low && below > 0 && below + low - 1 > dpari_least(n, end + grid->high[d])) ||
        (high && above > 0 && above + high - 1 > n - dpari_most(0, first - grid->low[d]))) {
        return dpari_say(
            DPAR_E_RANGE, why,
            "grid: dim %d: a mirror needs more cells than this rank has: it owns %ld, and "
            "its halo is %ld wide below and %ld above",
            d, grid->head.count[d], grid->low[d], grid->high[d]);
    }
    return DPAR_OK;
}

/* Makes grid->halo, the halo of the grid's cells, which the mesh distributes. */
static DPARI_COLD dpar_status dpari_gx_cut_halo(dpari_gx *grid, const dpar_mesh *mesh,
                                                dpar_why *why)
{
    dpar_placement placement[DPAR_MAX_DIMS];
    dpar_halo *halo = &grid->halo;
    dpar_status status;
    int32_t d;
    for (d = 0; d < grid->desc.dims; d++) {
        placement[d] =
            dpar_shard_by(d, grid->desc.cuts[d] ? DPAR_SPLIT_RAGGED : DPAR_SPLIT_EVEN, 0);
        placement[d].cuts = grid->desc.cuts[d];
        halo->low[d] = grid->low[d];
        halo->high[d] = grid->high[d];
        halo->periodic |= (uint32_t)grid->desc.periodic[d] << d;
    }
    halo->shape = grid->desc.star ? DPAR_STENCIL_STAR : DPAR_STENCIL_BOX;
    status = dpar_layout_init(&halo->grid, mesh, grid->desc.dims, grid->desc.cells, placement, why);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_check(halo, why);
}

/* Cuts the cells into one block per rank. Sets grid->halo and the public head of the grid. */
static DPARI_COLD dpar_status dpari_gx_cut(dpari_gx *grid, dpar_comm *comm, dpar_why *why)
{
    const char *axes = &"f e d c b a"[2 * (DPAR_MAX_DIMS - grid->desc.dims)];
    dpar_mesh mesh;
    dpar_box own;
    int64_t step = 1;
    int32_t d;
    dpar_status status =
        dpar_mesh_init(&mesh, axes, grid->head.parts, grid->desc.order, comm->size, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_cut_halo(grid, &mesh, why);
    if (status != DPAR_OK) {
        return status;
    }
    (void)dpar_halo_owned(&grid->halo, comm->rank, &own);
    (void)dpar_mesh_coords(&mesh, comm->rank, grid->head.coord);
    grid->head.dims = grid->desc.dims;
    for (d = grid->desc.dims - 1; d >= 0; d--) {
        const int64_t most = INT64_C(1) << 56;
        const int64_t count = own.hi[d] - own.lo[d];
        grid->head.cells[d] = grid->desc.cells[d];
        grid->head.first[d] = own.lo[d];
        grid->head.count[d] = count;
        grid->head.stride[d] = step;
        if (!dpari_mul(step, grid->low[d] + count + grid->high[d], &step) || step > most) {
            return dpari_say(
                DPAR_E_RANGE, why,
                "grid: the array of rank %d would have more than 2^56 points, with %ld own "
                "cells in dim %d",
                comm->rank, count, d);
        }
    }
    for (d = 0; d < grid->desc.dims; d++) {
        status = dpari_gx_check_mirror(grid, d, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return DPAR_OK;
}

/* Lists the fields of a description that must be equal on all ranks. */
static DPARI_COLD void dpari_gx_state(dpari_facts *facts, const void *given)
{
    const dpar_grid_desc *desc = (const dpar_grid_desc *)given;
    int32_t d, p;
    dpari_fact(facts, "dims", 0, desc->dims);
    dpari_fact(facts, "star", 0, desc->star);
    dpari_fact(facts, "order", 0, desc->order);
    dpari_fact(facts, "check", 0, desc->check);
    dpari_fact(facts, "halo", 0, desc->halo);
    dpari_fact_type(facts, "type", 0, desc->type);
    dpari_fact(facts, "owns_comm", 0, desc->owns_comm);
    for (d = 0; d < desc->dims; d++) {
        uint64_t h = 1;
        dpari_fact(facts, "cells[#]", d, desc->cells[d]);
        dpari_fact(facts, "halo_low[#]", d, desc->halo_low[d]);
        dpari_fact(facts, "halo_high[#]", d, desc->halo_high[d]);
        dpari_fact(facts, "periodic[#]", d, desc->periodic[d]);
        dpari_fact(facts, "mirror_low[#]", d, desc->mirror_low[d]);
        dpari_fact(facts, "mirror_high[#]", d, desc->mirror_high[d]);
        dpari_fact(facts, "parts[#]", d, desc->parts[d]);
        for (p = 0; desc->cuts[d] && p <= desc->parts[d]; p++) {
            h = dpari_hash(h, desc->cuts[d][p]);
        }
        dpari_fact_hash(facts, "the list of cuts[#]", d, h);
    }
}

/* Allocates a grid and, after it in memory, copies of its cuts. */
static DPARI_COLD dpar_status dpari_gx_new(const dpar_grid_desc *desc, dpari_gx **grid,
                                           dpar_why *why)
{
    int64_t bytes = (int64_t)sizeof(dpari_gx);
    int64_t *room;
    dpari_gx *made;
    int32_t d, i;
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > 0) {
            bytes += 8 * ((int64_t)desc->parts[d] + 1);
        }
    }
    made = (dpari_gx *)dpari_os_pages(bytes);
    *grid = made;
    if (!made) {
        return dpari_say(DPAR_E_MEMORY, why,
                         "grid: %ld bytes cannot be allocated (is ulimit -v too small?)", bytes);
    }
    made->desc = *desc;
    made->now = made;
    made->bytes = bytes;
    room = (int64_t *)(void *)(made + 1);
    for (d = 0; d < DPAR_MAX_DIMS; d++) {
        if (desc->cuts[d] && desc->parts[d] > 0) {
            for (i = 0; i <= desc->parts[d]; i++) {
                room[i] = desc->cuts[d][i];
            }
            made->desc.cuts[d] = room;
            room += i;
        }
    }
    return DPAR_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Returns the number of points of this rank's array in a dim, with its halo. */
static int64_t dpari_gx_points(const dpari_gx *grid, const dpar_grid_field *field, int32_t d)
{
    return grid->low[d] + grid->head.count[d] + (field->location[d] != 0) + grid->high[d];
}

/* Checks type, components and points of an array, without the other ranks. */
static DPARI_COLD dpar_status dpari_gx_check_field(const dpari_gx *grid, int32_t type,
                                                   const dpar_grid_field *field, dpar_why *why)
{
    uint32_t odd = 0;
    uint32_t none; /* bits that belong to no component */
    int32_t d, count;
    if (dpar_type_bytes(type) == 0) {
        return dpari_wrong(
            why, "grid: type %s (%d) is not allowed: its elements have no whole number of bytes",
            dpar_type_name(type), type);
    }
    if (field->components < 0 || field->components > 1 << 24 || !dpari_gx_flag(field->order)) {
        return dpari_wrong(
            why,
            "grid: field.components is %d (0 to 2^24 allowed) and field.order %d (0 or 1 "
            "allowed)",
            field->components, field->order);
    }
    count = field->components > 1 ? field->components : 1;
    none = count > 31 ? 0 : ~(uint32_t)0 << count;
    for (d = 0; d < grid->head.dims; d++) {
        if (!dpari_gx_flag(field->location[d])) {
            return dpari_wrong(why,
                               "grid: field.location[%d] is %d; it must be 0 (cells) or 1 (faces)",
                               d, field->location[d]);
        }
        if (field->odd[d] & none) {
            return dpari_wrong(
                why,
                "grid: field.odd[%d] is %ld, which has bits beyond the number of components, %d", d,
                (int64_t)field->odd[d], count);
        }
        odd |= field->odd[d];
    }
    if (odd != 0 && !dpari_type_can_reduce(type)) {
        return dpari_wrong(
            why,
            "grid: field.odd must be 0 for type %s, because %s has no sign to change at a "
            "mirror",
            dpar_type_name(type), dpar_type_name(type));
    }
    return DPAR_OK;
}

/* Describes the shape of an array: its halo, and the default strides if the field sets none. */
static DPARI_COLD void dpari_gx_shape_of(const dpari_gx *grid, int32_t type,
                                         const dpar_grid_field *field, dpari_gx_shape *shape)
{
    int64_t step;
    int32_t d, k, dense = 1;
    dpari_zero(shape, sizeof *shape);
    shape->type = type;
    shape->field = *field;
    shape->components = field->components > 0 ? field->components : 1;
    shape->field.components = shape->components;
    shape->halo = grid->halo;
    step = field->component_stride != 0 ? 1 : shape->components;
    shape->field.component_stride = field->component_stride != 0 ? field->component_stride : 1;
    for (d = 0; d < grid->head.dims; d++) {
        dense = dense && field->stride[d] == 0;
        shape->halo.points[d] = field->location[d] ? DPAR_HALO_AT_LOW_FACES : DPAR_HALO_AT_CELLS;
        if (field->location[d]) {
            /* The upper outer face is owned by the neighbour. Points next to it in another dim are
             * then corners of the halo, which a star would not exchange. */
            shape->halo.high[d]++;
            shape->halo.shape = DPAR_STENCIL_BOX;
        }
    }
    if (!dense) {
        return;
    }
    for (k = 0; k < grid->head.dims; k++) {
        d = field->order == DPAR_ORDER_FIRST_FASTEST ? k : grid->head.dims - 1 - k;
        shape->field.stride[d] = step;
        if (!dpari_mul(step, dpari_gx_points(grid, field, d), &step)) {
            step = INT64_MAX; /* dpari_gx_span rejects it */
        }
    }
}

/* Computes the distance in elements from the address of an array to its first element in memory
 * (*low) and to one past the last (*high). Returns 0, or 1 + the dim whose stride reaches further
 * than 2^57 bytes, where dim number `dims` means the components. */
static DPARI_COLD int32_t dpari_gx_span(const dpari_gx *grid, const dpari_gx_shape *shape,
                                        int64_t *low, int64_t *high)
{
    const int64_t most = INT64_C(1) << 57;
    int32_t d;
    *low = 0;
    *high = 1;
    for (d = 0; d <= grid->head.dims; d++) {
        const int comps = d == grid->head.dims;
        const int64_t step = comps ? shape->field.component_stride : shape->field.stride[d];
        const int64_t below = comps ? 0 : grid->low[d];
        const int64_t above =
            comps ? shape->components - 1 : dpari_gx_points(grid, &shape->field, d) - 1 - below;
        int64_t a, b, size;
        if (step < -most || step > most) {
            return d + 1;
        }
        size = dpari_size(step);
        if (!dpari_mul(size, below, &a) || !dpari_mul(size, above, &b) || a > most || b > most) {
            return d + 1;
        }
        *low -= step < 0 ? b : a;
        *high += step < 0 ? a : b;
        if (*high - *low > most / dpar_type_bytes(shape->type)) {
            return d + 1;
        }
    }
    return 0;
}

/* Returns the number of points in a dim that are own or filled by exchanges and mirrors. Points
 * beyond open ends need no memory. */
static DPARI_COLD int64_t dpari_gx_used_points(const dpari_gx *grid, const dpar_grid_field *field,
                                               int32_t d)
{
    const int64_t first = grid->head.first[d],
                  after = grid->head.cells[d] - first - grid->head.count[d];
    int64_t points = dpari_gx_points(grid, field, d);
    if (!grid->desc.periodic[d] && !grid->desc.mirror_low[d]) {
        points -= dpari_most(grid->low[d] - first, 0);
    }
    if (!grid->desc.periodic[d] && !grid->desc.mirror_high[d]) {
        points -= dpari_most(grid->high[d] - after, 0);
    }
    return points;
}

/* Checks that no two points have the same address: in ascending order of strides, each stride must
 * exceed the extent of the dims before it. */
static DPARI_COLD dpar_status dpari_gx_check_apart(const dpari_gx *grid,
                                                   const dpari_gx_shape *shape, int32_t rank,
                                                   dpar_why *why)
{
    const int32_t dims = grid->head.dims;
    uint32_t left = ((uint32_t)1 << (dims + 1)) - 1; /* bits of dims still to check */
    int64_t taken = 1; /* extent of the dims that were checked, in elements */
    while (left != 0) {
        int64_t step = INT64_MAX, points;
        int32_t d, next = 0;
        for (d = 0; d <= dims; d++) {
            const int64_t size =
                dpari_size(d < dims ? shape->field.stride[d] : shape->field.component_stride);
            if ((left >> d & 1u) && size < step) {
                step = size;
                next = d;
            }
        }
        left &= ~((uint32_t)1 << next);
        points = next < dims ? dpari_gx_used_points(grid, &shape->field, next) : shape->components;
        if (points > 1 && step < taken) {
            if (next < dims) {
                return dpari_wrong(
                    why,
                    "grid: rank %d has %ld points in dim %d, %ld elements apart: several points "
                    "have the same address",
                    rank, points, next, step);
            }
            return dpari_wrong(
                why,
                "grid: rank %d has %ld components, %ld elements apart: several elements have "
                "the same address",
                rank, points, step);
        }
        taken += (points - 1) * step;
    }
    return DPAR_OK;
}

/* Checks that the addresses of an array are not too far apart and that it does not overlap
 * itself. */
static DPARI_COLD dpar_status dpari_gx_check_span(const dpari_gx *grid, const dpari_gx_shape *shape,
                                                  int32_t rank, int64_t *low, int64_t *high,
                                                  dpar_why *why)
{
    const int32_t d = dpari_gx_span(grid, shape, low, high) - 1;
    if (d >= 0) {
        if (d == grid->head.dims) {
            return dpari_say(DPAR_E_RANGE, why,
                             "grid: an array of rank %d reaches beyond 2^57 bytes: %d components, "
                             "%ld elements apart",
                             rank, shape->components, shape->field.component_stride);
        }
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: an array of rank %d reaches beyond 2^57 bytes: %ld points in dim "
                         "%d, %ld elements apart",
                         rank, dpari_gx_points(grid, &shape->field, d), d, shape->field.stride[d]);
    }
    return dpari_gx_check_apart(grid, shape, rank, why);
}

/* Makes grid->plain, the shape of unknown addresses. Ranks do not tell each other where arrays of
 * this shape are. The shape is therefore the same for all kinds of memory, and peers never read
 * such arrays in place. */
static DPARI_COLD dpar_status dpari_gx_make_plain(dpari_gx *grid, int32_t rank, dpar_why *why)
{
    const int32_t type = grid->desc.type;
    dpar_grid_field none;
    int64_t low, high;
    dpar_status status;
    dpari_zero(&none, sizeof none);
    status = dpari_gx_check_field(grid, type, &none, why);
    if (status != DPAR_OK) {
        return status;
    }
    dpari_gx_shape_of(grid, type, &none, &grid->plain);
    status = dpari_gx_check_span(grid, &grid->plain, rank, &low, &high, why);
    if (status != DPAR_OK) {
        return status;
    }
    grid->plain_low = low * dpar_type_bytes(type);
    grid->plain_high = high * dpar_type_bytes(type);
    grid->plain.packed = 1;
    grid->shapes = &grid->plain;
    grid->shapes_known = 1;
    return DPAR_OK;
}

/* Checks that the rank's block has the size that the caller expects
 * (dpar_grid_desc.expected_count).
 */
static DPARI_COLD dpar_status dpari_gx_compare_own(const dpari_gx *grid, int32_t rank,
                                                   dpar_why *why)
{
    int32_t d;
    for (d = 0; d < grid->head.dims; d++) {
        if (grid->desc.expected_count[d] != 0 &&
            grid->desc.expected_count[d] != grid->head.count[d]) {
            return dpari_wrong(
                why,
                "grid: rank %d has %ld cells in dim %d, but expected_count is %ld: your code "
                "cuts by another rule (set desc.cuts) or has its dims or ranks in another order",
                rank, grid->head.count[d], d, grid->desc.expected_count[d]);
        }
    }
    return DPAR_OK;
}

/* Does the local part of making a grid. *grid is NULL if it could not be allocated; if a later
 * check fails, the caller must free it. */
static DPARI_COLD dpar_status dpari_gx_build(dpar_comm *comm, const dpar_grid_desc *desc,
                                             dpari_gx **grid, dpar_why *why)
{
    dpar_status status = dpari_gx_new(desc, grid, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_check(*grid, desc, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_parts(*grid, comm->size, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_cut(*grid, comm, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_compare_own(*grid, comm->rank, why);
    if (status != DPAR_OK || desc->type == 0) {
        return status;
    }
    return dpari_gx_make_plain(*grid, comm->rank, why);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_make(dpar_comm *comm, const dpar_grid_desc *desc,
                                               dpar_grid **grid, dpar_why *why)
{
    dpari_gx *made = NULL;
    dpar_status status;
    if (!comm) {
        dpari_wrong(why, "dpar_grid_make: comm is NULL");
        return DPAR_E_ARG;
    }
    why = dpari_why_of(comm, why);
    if (desc && grid) {
        status = dpari_gx_build(comm, desc, &made, why);
    } else {
        status = dpari_wrong(why, "dpar_grid_make: desc or grid is NULL");
    }
    status = dpari_agree_on(comm, status, "grid", dpari_gx_state, desc, why);
    if (status < DPAR_OK) { /* not !=, so that compilers see that *grid is set otherwise */
        dpari_os_unmap(made, made ? made->bytes : 0);
        return status;
    }
    made->head.comm = comm;
    made->mem = made->desc.mem ? made->desc.mem : comm->mem;
    made->ending.at = &made->head.comm; /* set to NULL when the world is closed */
    dpari_on_end_add(comm, &made->ending);
    *grid = &made->head;
    return DPAR_OK;
}

/* Frees all plans and their memory. Returns the first failure. comm is NULL if its world was
 * closed, which has freed the plans themselves. */
static DPARI_COLD dpar_status dpari_gx_free_plans(dpari_gx *grid, const dpar_comm *comm)
{
    dpar_status first = DPAR_OK;
    while (grid->plans) {
        dpari_gx_plan *plan = grid->plans;
        if (comm) {
            const dpar_status status = dpar_halo_plan_free(plan->exchange);
            if (first == DPAR_OK) {
                first = status;
            }
        } else {
            dpari_object_release(plan->exchange->owned);
        }
        grid->plans = plan->next;
        dpari_os_unmap(plan->rest, plan->rest_bytes);
        dpari_os_unmap(plan, plan->bytes);
    }
    return first;
}

/* Frees the arrays of dpar_grid_array and the tables of arrays and shapes. */
static DPARI_COLD void dpari_gx_free_arrays(dpari_gx *grid, dpar_comm *comm)
{
    int32_t i;
    while (grid->pages) {
        dpari_gx_page *page = grid->pages;
        for (i = 0; i < page->count; i++) {
            dpar_comm_release(comm, page->array[i].memory);
        }
        grid->pages = page->next;
        dpari_os_unmap(page, (int64_t)sizeof *page);
    }
    while (grid->shapes) {
        dpari_gx_shape *shape = grid->shapes;
        grid->shapes = shape->next;
        if (shape != &grid->plain) {
            dpari_os_unmap(shape, (int64_t)sizeof *shape);
        }
    }
}

DPAR_API DPARI_COLD dpar_status dpar_grid_free(dpar_grid *grid)
{
    dpari_gx *freed = (dpari_gx *)(void *)grid;
    dpari_gx_plan *plan;
    dpar_comm *comm;
    dpar_why *said;
    dpar_status status = DPAR_OK;
    dpar_status closed;
    int ended;  /* the communicator was closed before the grid */
    int closes; /* this call closes the communicator */
    if (!freed) {
        return DPAR_OK;
    }
    comm = freed->head.comm; /* NULL if the world was closed, with all its memory */
    ended = comm && dpari_ended_is(comm);
    closes = freed->desc.owns_comm && !ended;
    said = freed->desc.free_why;
    if (comm && comm->status == DPAR_OK) {
        for (plan = freed->plans; plan; plan = plan->next) {
            if (plan->active) {
                return dpari_comm_wrong(
                    comm,
                    "dpar_grid_free: an exchange of %d arrays has not ended; call dpar_grid_end "
                    "first",
                    plan->count);
            }
        }
    }
    if (comm && closes && !freed->plans) { /* freeing a plan is a barrier as well */
        status = dpar_barrier(comm, NULL);
    }
    closed = dpari_gx_free_plans(freed, comm);
    if (status == DPAR_OK && !ended) {
        status = closed;
    }
    dpari_gx_free_arrays(freed, comm);
    dpari_on_end_drop(comm, &freed->ending);
    if (status != DPAR_OK && said) {
        *said = comm->why;
    }
    dpari_os_unmap(freed, freed->bytes);
    if (!closes) {
        return status;
    }
    closed = dpar_comm_free(comm);
    if (status == DPAR_OK && closed != DPAR_OK) {
        status = dpari_say(closed, said,
                           "dpar_grid_free: the grid's communicator was not closed well: %s",
                           dpar_status_text(closed));
    }
    return status;
}

/* True if two shapes are the same, so that a plan for one can exchange arrays of the other. */
static DPARI_COLD int dpari_gx_alike(const dpari_gx *grid, const dpari_gx_shape *a,
                                     const dpari_gx_shape *b)
{
    int32_t d;
    if (a->type != b->type || a->components != b->components || a->reach != b->reach ||
        a->field.component_stride != b->field.component_stride) {
        return 0;
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (a->field.location[d] != b->field.location[d] || a->field.odd[d] != b->field.odd[d] ||
            a->field.stride[d] != b->field.stride[d]) {
            return 0;
        }
    }
    return 1;
}

/* An array that is being added, for dpari_gx_state_array. */
typedef struct dpari_gx_given {
    const dpar_grid *grid;
    const dpari_gx_shape *shape;
    int64_t arrays;
} dpari_gx_given;

/* Lists what must be equal on all ranks when an array becomes known. */
static DPARI_COLD void dpari_gx_state_array(dpari_facts *facts, const void *given)
{
    const dpari_gx_given *args = (const dpari_gx_given *)given;
    int32_t d;
    dpari_fact(facts, "the number of arrays so far", 0, args->arrays);
    dpari_fact_type(facts, "type", 0, args->shape->type);
    dpari_fact(facts, "components", 0, args->shape->components);
    for (d = 0; d < args->grid->dims; d++) {
        dpari_fact(facts, "location[#]", d, args->shape->field.location[d]);
        dpari_fact(facts, "odd[#]", d, args->shape->field.odd[d]);
    }
}

/* Finds the known shape that the new array has on all ranks. *known is NULL if there is none; all
 * ranks then add a new shape. Collective. */
static DPARI_COLD dpar_status dpari_gx_known(dpari_gx *grid, const dpari_gx_shape *wanted,
                                             dpari_gx_shape **known)
{
    uint8_t mine[DPARI_GX_SHAPES], all[DPARI_GX_SHAPES];
    dpari_gx_shape *shape;
    dpar_status status;
    *known = NULL;
    dpari_zero(mine, sizeof mine);
    for (shape = grid->shapes; shape; shape = shape->next) {
        mine[shape->number] = (uint8_t)dpari_gx_alike(grid, shape, wanted);
    }
    status =
        dpar_all_reduce(grid->head.comm, mine, all, grid->shapes_known, DPAR_U8, DPAR_MIN, NULL);
    if (status != DPAR_OK) {
        return status;
    }
    for (shape = grid->shapes; shape; shape = shape->next) {
        if (all[shape->number]) {
            *known = shape;
            break;
        }
    }
    return DPAR_OK;
}

/* Returns the known array at this address, or NULL. */
static dpari_gx_array *dpari_gx_find(const dpari_gx *grid, const void *at)
{
    dpari_gx_page *page;
    int32_t i;
    for (page = grid->pages; page; page = page->next) {
        for (i = 0; i < page->count; i++) {
            if (page->array[i].at == at) {
                return &page->array[i];
            }
        }
    }
    return NULL;
}

/* Describes an array as a field of a plan. */
DPARI_STATIC_NOINLINE DPARI_COLD void
dpari_gx_field(const dpari_gx *grid, const dpari_gx_shape *shape, void *at, dpar_halo_field *field)
{
    int32_t d;
    field->halo = &shape->halo;
    field->type = shape->type;
    field->components = shape->components;
    field->component_stride = shape->field.component_stride;
    field->data = at;
    field->mem = grid->mem;
    for (d = 0; d < grid->head.dims; d++) {
        field->stride[d] = shape->field.stride[d];
    }
}

/* True if the array consists of some components of another one, with the same points and
 * strides. */
static DPARI_COLD int dpari_gx_part_of(const dpari_gx *grid, const dpari_gx_shape *shape,
                                       const void *at, const dpari_gx_array *array)
{
    const dpari_gx_shape *other = array->shape;
    const int64_t apart = (int64_t)(uintptr_t)at - (int64_t)(uintptr_t)array->at;
    const int64_t step = shape->field.component_stride * dpar_type_bytes(shape->type);
    const int64_t most = dpari_most(shape->components, other->components);
    int32_t d;
    if (shape->type != other->type || step == 0 ||
        shape->field.component_stride != other->field.component_stride || apart % step != 0 ||
        apart / step >= most || apart / step <= -most) {
        return 0;
    }
    for (d = 0; d < grid->head.dims; d++) {
        if (shape->field.location[d] != other->field.location[d] ||
            shape->field.stride[d] != other->field.stride[d]) {
            return 0;
        }
    }
    return 1;
}

/* Returns a known array that has elements in common with an array at `at` whose points are between
 * the addresses low and high, or NULL. Arrays that are components of each other do not count. */
static dpari_gx_array *dpari_gx_overlapping(const dpari_gx *grid, const dpari_gx_shape *shape,
                                            void *at, int64_t low, int64_t high)
{
    dpar_halo_field field[2];
    int64_t span[8];
    dpari_gx_page *page;
    int32_t i;
    for (page = grid->pages; page; page = page->next) {
        for (i = 0; i < page->count; i++) {
            dpari_gx_array *array = &page->array[i];
            if (array->low >= high || low >= array->high || array->at == at ||
                dpari_gx_part_of(grid, shape, at, array)) {
                continue;
            }
            dpari_zero(field, sizeof field);
            dpari_gx_field(grid, array->shape, array->at, &field[0]);
            dpari_gx_field(grid, shape, at, &field[1]);
            if (dpari_hx_disjoint(field, 2, grid->head.comm->rank, span, NULL) != DPAR_OK) {
                return array;
            }
        }
    }
    return NULL;
}

/* Returns a known array that has elements in common with an array of desc.type at this address, or
 * NULL. */
static const dpari_gx_array *dpari_gx_in_another(const dpari_gx *grid, void *at)
{
    const int64_t address = (int64_t)(uintptr_t)at;
    return dpari_gx_overlapping(grid, &grid->plain, at, address + grid->plain_low,
                                address + grid->plain_high);
}

/* Returns the shape of the array at this address, or NULL if it is not an array of the grid. An
 * address that is not known has the shape of desc.type, unless it is inside a known array. */
static const dpari_gx_shape *dpari_gx_shape_at(const dpari_gx *grid, void *at)
{
    const dpari_gx_array *array = dpari_gx_find(grid, at);
    if (array) {
        return array->shape;
    }
    if (!at || grid->desc.type == 0 || dpari_gx_in_another(grid, at)) {
        return NULL;
    }
    return &grid->plain;
}

/* Returns the plan of the exchange in progress that u takes part in, or NULL. */
static dpari_gx_plan *dpari_gx_in_progress(const dpari_gx *grid, const void *u)
{
    dpari_gx_plan *plan;
    int32_t i;
    if (grid->under_way == 0) {
        return NULL;
    }
    for (plan = grid->plans; plan; plan = plan->next) {
        for (i = 0; plan->active && i < plan->count; i++) {
            if (plan->at[i] == u) {
                return plan;
            }
        }
    }
    return NULL;
}

/* Checks that an array may be attached at this address. */
static DPARI_COLD dpar_status dpari_gx_check_place(const dpari_gx *grid,
                                                   const dpari_gx_shape *shape, void *at,
                                                   int64_t low, int64_t high, dpar_why *why)
{
    const int32_t rank = grid->head.comm->rank;
    const dpari_gx_array *array = dpari_gx_overlapping(grid, shape, at, low, high);
    if (dpari_gx_in_progress(grid, at) || (array && dpari_gx_in_progress(grid, array->at))) {
        return dpari_wrong(
            why,
            "dpar_grid_attach: rank %d has an exchange of the array at this address that "
            "has not ended",
            rank);
    }
    if (array && array->memory) {
        return dpari_wrong(
            why,
            "dpar_grid_attach: the array of rank %d has elements in common with one of "
            "dpar_grid_array, and begins %ld bytes after its first own point",
            rank, (int64_t)(uintptr_t)at - (int64_t)(uintptr_t)array->at);
    }
    return DPAR_OK;
}

/* Allocates the entry of another array, and a shape in case the array has a new one. */
static DPARI_COLD dpar_status dpari_gx_new_entry(dpari_gx *grid, dpari_gx_shape **fresh,
                                                 dpar_why *why)
{
    dpari_gx_page *page = grid->pages;
    *fresh = (dpari_gx_shape *)dpari_os_pages((int64_t)sizeof **fresh);
    if (!page || page->count == DPARI_GX_KNOWN) {
        page = (dpari_gx_page *)dpari_os_pages((int64_t)sizeof *page);
        if (page) {
            page->next = grid->pages;
            grid->pages = page;
        }
    }
    if (!page || !*fresh) {
        return dpari_say(DPAR_E_MEMORY, why, "grid: %ld bytes cannot be allocated",
                         (int64_t)(sizeof **fresh + sizeof *page));
    }
    return DPAR_OK;
}

/* Removes the arrays that have elements in common with a new one. Usually their memory was freed
 * and used again. If it was not, their next exchange reports an unknown address. */
static DPARI_COLD void dpari_gx_forget(dpari_gx *grid, const dpari_gx_shape *shape, void *u,
                                       int64_t low, int64_t high)
{
    dpari_gx_array *array;
    dpari_gx_plan *plan;
    int32_t i;
    for (;;) {
        array = dpari_gx_overlapping(grid, shape, u, low, high);
        if (array == NULL) {
            return;
        }
        for (plan = grid->plans; plan; plan = plan->next) {
            plan->before = NULL;
            grid->now = grid;
            for (i = 0; i < plan->count; i++) {
                if (plan->at[i] == array->at) {
                    plan->at[i] = plan; /* bind again */
                }
            }
        }
        array->at = array; /* an address that no array has */
        array->low = array->high = 0;
    }
}

/* Adds an array to the table, after all ranks have agreed on it. Its shape is `known`, or the new
 * shape `fresh` if `known` is NULL. */
static DPARI_COLD void dpari_gx_remember(dpari_gx *grid, dpari_gx_shape *known,
                                         dpari_gx_shape *fresh, void *u, void *memory, int64_t low,
                                         int64_t high)
{
    dpari_gx_array *array = dpari_gx_find(grid, u);
    dpari_gx_plan *plan;
    int32_t i;
    if (!known) {
        known = fresh;
        known->number = grid->shapes_known++;
        known->next = grid->shapes;
        grid->shapes = known;
    } else {
        dpari_os_unmap(fresh, (int64_t)sizeof *fresh);
    }
    if (array || grid->desc.type != 0) {
        /* This address may have had another shape before, and addresses that were taken for arrays
         * of desc.type may now be inside this array, so that all are looked up again. */
        for (plan = grid->plans; plan; plan = plan->next) {
            plan->before = NULL;
            grid->now = grid;
            for (i = 0; i < plan->count && !plan->active; i++) {
                if (plan->at[i] == u || plan->shape[i] == &grid->plain) {
                    plan->at[i] = plan; /* bind again */
                }
            }
        }
    }
    dpari_gx_forget(grid, known, u, low, high);
    if (!array) {
        array = &grid->pages->array[grid->pages->count++];
        array->at = u;
        array->memory = memory;
    }
    array->shape = known;
    array->number = grid->arrays++;
    array->low = low;
    array->high = high;
}

/* Allocates an array from the communicator. *at receives the address of its first own point. Arrays
 * begin at different places of a page, because equal places in several pages use the same set of a
 * cache. */
static DPARI_COLD dpar_status dpari_gx_alloc(dpari_gx *grid, int64_t bytes_each, int64_t low,
                                             int64_t high, void **memory, void **at, dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    const int64_t below = -low * bytes_each;
    const int64_t skew = grid->arrays * DPARI_GX_SKEW % DPARI_GX_PAGE +
                         (below + DPARI_GX_ALIGN - 1) / DPARI_GX_ALIGN * DPARI_GX_ALIGN;
    const dpar_status status = dpar_comm_alloc(comm, skew + high * bytes_each, memory);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    *at = (char *)*memory + skew;
    return DPAR_OK;
}

/* One array that is being added. */
typedef struct dpari_gx_adding {
    const dpar_grid_field *field;
    dpari_gx_shape *fresh; /* allocated, in case the shape is a new one */
    void *at;              /* the address of its first own point */
    void *memory;          /* its allocation; NULL if the array is the caller's */
    int64_t low, high;     /* addresses where its points begin and end */
    int32_t type;
    int32_t attached; /* 1 if the array is the caller's */
} dpari_gx_adding;

/* Does the local part of adding an array: checks it and allocates its entry and, for
 * dpar_grid_array, its memory. */
static DPARI_COLD dpar_status dpari_gx_add_here(dpari_gx *grid, dpari_gx_adding *adding,
                                                dpar_why *why)
{
    const dpar_comm *comm = grid->head.comm;
    const int64_t bytes = dpar_type_bytes(adding->type);
    int64_t low, high;
    dpar_status status = dpari_gx_new_entry(grid, &adding->fresh, why);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpari_gx_check_field(grid, adding->type, adding->field, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (adding->attached && !adding->at) {
        return dpari_wrong(why, "dpar_grid_attach: the array of rank %d is NULL", comm->rank);
    }
    dpari_gx_shape_of(grid, adding->type, adding->field, adding->fresh);
    status = dpari_gx_check_span(grid, adding->fresh, comm->rank, &low, &high, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!adding->attached) {
        if (grid->mem != comm->mem) {
            return dpari_wrong(
                why,
                "dpar_grid_array: desc.mem is not the memory of the communicator, so that dpar "
                "cannot allocate in it; use dpar_grid_attach with an array of your own");
        }
        status = dpari_gx_alloc(grid, bytes, low, high, &adding->memory, &adding->at, why);
        if (status != DPAR_OK) {
            return status;
        }
    }
    adding->low = (int64_t)(uintptr_t)adding->at + low * bytes;
    adding->high = (int64_t)(uintptr_t)adding->at + high * bytes;
    if (!adding->attached) {
        return DPAR_OK;
    }
    return dpari_gx_check_place(grid, adding->fresh, adding->at, adding->low, adding->high, why);
}

/* Does the collective part of adding an array. Every rank calls it with the status of its local
 * part. *known receives the array's shape if all ranks have it already, otherwise NULL. */
static DPARI_COLD dpar_status dpari_gx_add_together(dpari_gx *grid, dpari_gx_adding *adding,
                                                    dpar_status status, dpari_gx_shape **known,
                                                    dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    dpari_gx_given given;
    given.grid = &grid->head;
    given.arrays = grid->arrays;
    given.shape = adding->fresh;
    status = dpari_agree_on(comm, status, "grid", dpari_gx_state_array, &given, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (!grid->mem) {
        const dpari_world *world = dpari_world_of(comm->node ? comm->node : comm);
        adding->fresh->reach = world && dpari_ref(world, adding->at, 1) != 0;
    }
    status = dpari_gx_known(grid, adding->fresh, known);
    if (status != DPAR_OK) {
        return dpari_repeat(status, why, comm->why.text);
    }
    if (*known == NULL && grid->shapes_known == DPARI_GX_SHAPES) { /* the same on all ranks */
        return dpari_say(
            DPAR_E_RANGE, why,
            "grid: its arrays have more than %d different shapes (a shape is a type and a "
            "field)",
            (int32_t)DPARI_GX_SHAPES);
    }
    return DPAR_OK;
}

/* Adds the caller's array at `at`, or one from the communicator. Returns its address, or NULL. */
static DPARI_COLD void *dpari_gx_add(dpari_gx *grid, int32_t type, const dpar_grid_field *field,
                                     int attached, void *at, dpar_status *status, dpar_why *why)
{
    dpari_gx_shape *known = NULL;
    dpar_grid_field none;
    dpari_gx_adding adding;
    dpari_zero(&none, sizeof none);
    dpari_zero(&adding, sizeof adding);
    adding.field = field ? field : &none;
    adding.at = at;
    adding.type = type;
    adding.attached = attached;
    *status = dpari_gx_add_here(grid, &adding, why);
    *status = dpari_gx_add_together(grid, &adding, *status, &known, why);
    if (*status != DPAR_OK) {
        dpar_comm_release(grid->head.comm, adding.memory);
        dpari_os_unmap(adding.fresh, (int64_t)sizeof *adding.fresh);
        return NULL;
    }
    dpari_gx_remember(grid, known, adding.fresh, adding.at, adding.memory, adding.low, adding.high);
    return adding.at;
}

DPAR_API DPARI_COLD void *dpar_grid_array(dpar_grid *grid, int32_t type,
                                          const dpar_grid_field *field)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_why why;
    dpar_status status;
    void *u;
    if (g == NULL) {
        return NULL;
    }
    u = dpari_gx_add(g, type, field, 0, NULL, &status, &why);
    if (u == NULL) {
        (void)dpari_gx_say(g, status, &why);
    }
    return u;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_attach(dpar_grid *grid, void *u, int32_t type,
                                                 const dpar_grid_field *field, dpar_why *why)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpar_status status;
    if (!g) {
        return dpari_wrong(why, "dpar_grid_attach: grid %s",
                           grid ? "was closed with its world" : "is NULL");
    }
    (void)dpari_gx_add(g, type, field, 1, u, &status, why);
    return status;
}

/* ---- mirrors --------------------------------------------------------------------------------- */

/* Returns the number of halo cells in a dim that an exchange of this depth fills below the block
 * (side 0) or above it (side 1). */
static int64_t dpari_gx_width(const dpari_gx *grid, int32_t depth, int32_t d, int side)
{
    const int64_t w = side ? grid->high[d] : grid->low[d];
    return depth > 0 ? dpari_least(w, depth) : w;
}

/* Computes the box of points that the mirror at an end of dim d fills, counted from the first own
 * point. In dim d it spans the points beyond the end. In the other dims it spans all points that
 * have values: own points, points that exchanges fill, and points that mirrors of dims before d
 * have filled. Returns 0 if the box is empty. */
static DPARI_COLD int dpari_gx_beyond(const dpari_gx *grid, const dpari_gx_shape *shape,
                                      int32_t depth, int32_t d, int side, dpar_box *box)
{
    int32_t e;
    for (e = 0; e < grid->head.dims; e++) {
        const int64_t faces = shape->field.location[e] != 0, below = -grid->head.first[e];
        const int64_t above = grid->head.cells[e] + faces - grid->head.first[e];
        const int wide = shape->halo.shape == DPAR_STENCIL_BOX || e == d;
        box->lo[e] = wide ? -dpari_gx_width(grid, depth, e, 0) : 0;
        box->hi[e] = grid->head.count[e] + faces + (wide ? dpari_gx_width(grid, depth, e, 1) : 0);
        if (e == d) {
            if (side) {
                box->lo[e] = dpari_most(above, box->lo[e]);
            } else {
                box->hi[e] = dpari_least(below, box->hi[e]);
            }
        } else if (!grid->desc.periodic[e]) {
            if (e > d || !grid->desc.mirror_low[e]) {
                box->lo[e] = dpari_most(below, box->lo[e]);
            }
            if (e > d || !grid->desc.mirror_high[e]) {
                box->hi[e] = dpari_least(above, box->hi[e]);
            }
        }
        if (box->hi[e] <= box->lo[e]) {
            return 0;
        }
    }
    box->dims = grid->head.dims;
    return 1;
}

/* Makes the copy that fills a box beyond a mirror, for component k or for all (-1).
 *
 * Point i, counted from the grid's first point, receives the value of point sum - i. If the mirror
 * is the outer face of the end cell and points are in the middle of cells, sum is -1 at the low end
 * and 2 * cells - 1 at the high end. If the mirror goes through the middle of the end cell, sum is
 * 1 more at the low end and 1 less at the high end. If points are on faces, sum is 1 more. */
static DPARI_COLD void dpari_gx_reflect(const dpari_gx *grid, const dpari_gx_shape *shape,
                                        const dpar_box *box, int32_t d, int side, int32_t k,
                                        dpari_gx_mirror *mirror)
{
    const int32_t dims = grid->head.dims, bytes = dpar_type_bytes(shape->type);
    const int32_t on =
        (side ? grid->desc.mirror_high[d] : grid->desc.mirror_low[d]) == DPAR_GRID_MIRROR_CELL;
    const int32_t faces = shape->field.location[d] != 0;
    const int64_t sum = (side ? 2 * grid->head.cells[d] - 1 - on : on - 1) + faces;
    dpar_mem_box *copy = &mirror->box;
    dpari_stride_piece piece;
    int64_t at = 0;
    int32_t e;
    dpari_zero(copy, sizeof *copy);
    dpari_zero(&piece, sizeof piece);
    copy->to_type = copy->from_type = shape->type;
    copy->op = DPAR_COPY;
    copy->negate = k < 32 && (shape->field.odd[d] >> (k < 0 ? 0 : k) & 1u) != 0;
    copy->dims = dims + 1;
    for (e = 0; e < dims; e++) {
        copy->extent[e] = box->hi[e] - box->lo[e];
        copy->to_stride[e] = copy->from_stride[e] = shape->field.stride[e];
        at += box->lo[e] * shape->field.stride[e];
    }
    copy->extent[dims] = k < 0 ? shape->components : 1;
    copy->to_stride[dims] = copy->from_stride[dims] = shape->field.component_stride;
    copy->from_stride[d] = -copy->from_stride[d];
    at += k < 0 ? 0 : k * shape->field.component_stride;
    mirror->dim = d;
    mirror->to = at * bytes;
    mirror->from =
        (at + (sum - 2 * (grid->head.first[d] + box->lo[d])) * shape->field.stride[d]) * bytes;
    piece.dims = copy->dims;
    piece.to_type = piece.from_type = shape->type;
    piece.op = DPAR_COPY;
    piece.negate = copy->negate;
    for (e = 0; e <= dims; e++) {
        piece.extent[e] = copy->extent[e];
        piece.to[e] = copy->to_stride[e];
        piece.from[e] = copy->from_stride[e];
    }
    dpari_stride_prepare(&mirror->stride, &piece);
}

/* Lists the boxes that mirrors fill, dim after dim, and returns their number. If `mirror` is NULL,
 * only counts them. */
static DPARI_COLD int32_t dpari_gx_mirrors(const dpari_gx *grid, const dpari_gx_shape *const *shape,
                                           int32_t n, int32_t depth, dpari_gx_mirror *mirror)
{
    int32_t d, i, side, k, end, count = 0;
    dpar_box box;
    for (d = 0; d < grid->head.dims; d++) {
        for (i = 0; i < 2 * n; i++) {
            const dpari_gx_shape *field = shape[i / 2];
            const int32_t comps = field->components;
            const uint32_t all = comps > 31 ? ~(uint32_t)0 : ((uint32_t)1 << comps) - 1;
            const uint32_t odd = field->field.odd[d] & all;
            const int apart = odd != 0 && (odd != all || comps > 32);
            side = i % 2;
            if (!(side ? grid->desc.mirror_high[d] : grid->desc.mirror_low[d]) ||
                !dpari_gx_beyond(grid, field, depth, d, side, &box)) {
                continue;
            }
            /* One box for each component, or one for all (-1) if all of them change their sign or
             * none does. */
            end = apart ? comps : 0;
            for (k = apart ? 0 : -1; k < end; k++) {
                if (mirror) {
                    dpari_gx_reflect(grid, field, &box, d, side, k, &mirror[count]);
                    mirror[count].item = i / 2;
                }
                count++;
            }
        }
    }
    return count;
}

/* Moves the boxes at mirrors in a device's memory, with one call per dim, because the boxes of a
 * dim read values that the boxes of earlier dims have written. In the communicator's memory, later
 * operations are ordered after these moves, so that nothing waits for them here. */
static DPARI_COLD dpar_status dpari_gx_move_mirrors(const dpari_gx *grid, dpari_gx_plan *plan)
{
    int32_t i, count = 0;
    for (i = 0; i < plan->mirrors; i++) {
        const dpari_gx_mirror *mirror = &plan->mirror[i];
        dpar_mem_box *box = &plan->box[count];
        *box = mirror->box;
        box->to = (char *)plan->at[mirror->item] + mirror->to;
        box->from = (char *)plan->at[mirror->item] + mirror->from;
        count++;
        if (i + 1 == plan->mirrors || mirror[1].dim != mirror->dim) {
            const dpar_status status = grid->mem->move(grid->mem->ctx, plan->box, count);
            if (status != DPAR_OK) {
                return status;
            }
            count = 0;
        }
    }
    if (grid->mem == grid->head.comm->mem) {
        return DPAR_OK;
    }
    return grid->mem->wait(grid->mem->ctx);
}

/* Fills the halos at mirrors in a device's memory. A failure breaks the communicator. */
static DPARI_COLD dpar_status dpari_gx_fill_there(const dpari_gx *grid, dpari_gx_plan *plan)
{
    const dpar_status status = dpari_gx_move_mirrors(grid, plan);
    if (status != DPAR_OK) {
        dpar_comm_abort(grid->head.comm, status,
                        "grid: the halos at mirrors could not be filled in the device's memory");
    }
    return status;
}

/* Fills the halos at mirrors, after an exchange. */
static dpar_status dpari_gx_fill(const dpari_gx *grid, dpari_gx_plan *plan)
{
    int32_t i;
    if (plan->box) {
        return dpari_gx_fill_there(grid, plan);
    }
    for (i = 0; i < plan->mirrors; i++) {
        const dpari_gx_mirror *mirror = &plan->mirror[i];
        char *at = (char *)plan->at[mirror->item];
        dpari_stride_run(&mirror->stride, at + mirror->to, at + mirror->from);
    }
    return DPAR_OK;
}

/* ---- plans ----------------------------------------------------------------------------------- */

/* Describes array i of a plan as a field. With a depth, the halo to exchange is narrower than the
 * array's. */
static DPARI_COLD void dpari_gx_field_of(const dpari_gx *grid, dpari_gx_plan *plan, int32_t i)
{
    const dpari_gx_shape *shape = plan->shape[i];
    dpar_halo_field *field = &plan->field[i];
    int32_t d;
    dpari_gx_field(grid, shape, plan->at[i], field);
    if (plan->depth > 0) {
        plan->halo[i] = shape->halo;
        field->halo = &plan->halo[i];
        field->array_halo = &shape->halo;
        for (d = 0; d < grid->head.dims; d++) {
            plan->halo[i].low[d] = dpari_gx_width(grid, plan->depth, d, 0);
            plan->halo[i].high[d] =
                dpari_gx_width(grid, plan->depth, d, 1) + (shape->field.location[d] != 0);
        }
    }
}

/* Divides a plan's memory into its lists, and returns the number of bytes. If plan is NULL, only
 * counts the bytes. */
static DPARI_COLD int64_t dpari_gx_lay_out(dpari_gx_plan *plan, int32_t n, int32_t depth)
{
    dpari_gx_plan none;
    dpari_room room;
    room.at = (unsigned char *)plan;
    room.used = 0;
    (void)dpari_room_take(&room, 1, sizeof *plan);
    plan = plan ? plan : &none;
    plan->at = (void **)dpari_room_take(&room, n, sizeof *plan->at);
    plan->shape = (const dpari_gx_shape **)dpari_room_take(&room, n, sizeof *plan->shape);
    plan->field = (dpar_halo_field *)dpari_room_take(&room, n, sizeof *plan->field);
    plan->halo = (dpar_halo *)dpari_room_take(&room, depth > 0 ? n : 0, sizeof *plan->halo);
    plan->bytes = room.used;
    plan->count = n;
    plan->depth = depth;
    return room.used;
}

/* Divides the memory of mirrors, plan->rest, into its two lists, and counts its bytes. It is not a
 * part of the plan's memory, because the number of mirrors is not known when that is allocated. */
static DPARI_COLD void dpari_gx_lay_out_rest(const dpari_gx *grid, dpari_gx_plan *plan)
{
    const int32_t there = grid->mem ? plan->mirrors : 0;
    dpari_room room;
    room.at = (unsigned char *)plan->rest;
    room.used = 0;
    plan->mirror = (dpari_gx_mirror *)dpari_room_take(&room, plan->mirrors, sizeof *plan->mirror);
    plan->box = (dpar_mem_box *)dpari_room_take(&room, there, sizeof *plan->box);
    plan->box = there > 0 ? plan->box : NULL;
    plan->rest_bytes = room.used;
}

/* Sets the options of a plan. If an array may change from call to call, everything is packed,
 * because the next one may be in memory that peers cannot read. */
static DPARI_COLD void dpari_gx_options(const dpari_gx_plan *plan, dpar_halo_plan_desc *desc)
{
    int32_t i;
    dpari_zero(desc, sizeof *desc);
    desc->field = plan->field;
    desc->field_count = plan->count;
    for (i = 0; i < plan->count; i++) {
        if (plan->shape[i]->packed) {
            desc->method = DPAR_HALO_PACKED;
        }
    }
}

/* Reports that the memory of a plan cannot be allocated. */
static DPARI_COLD dpar_status dpari_gx_no_memory(int64_t bytes, dpar_why *why)
{
    return dpari_say(DPAR_E_MEMORY, why,
                     "grid: %ld bytes for a plan cannot be allocated (is ulimit -v too small?)",
                     bytes);
}

/* Does the local part of planning: allocates memory and describes the plan. *plan is NULL if it
 * could not be allocated; if a later step fails, the caller must free it. */
static DPARI_COLD dpar_status dpari_gx_describe(const dpari_gx *grid, void *const *list, int32_t n,
                                                int32_t depth, dpari_gx_plan **plan, dpar_why *why)
{
    const int64_t bytes = dpari_gx_lay_out(NULL, n, depth);
    dpari_gx_plan *made = (dpari_gx_plan *)dpari_os_pages(bytes);
    int32_t i;
    *plan = made;
    if (!made) {
        return dpari_gx_no_memory(bytes, why);
    }
    (void)dpari_gx_lay_out(made, n, depth);
    for (i = 0; i < n; i++) {
        made->at[i] = list[i];
        made->shape[i] = dpari_gx_shape_at(grid, list[i]);
        dpari_gx_field_of(grid, made, i);
    }
    made->mirrors = dpari_gx_mirrors(grid, made->shape, n, depth, NULL);
    dpari_gx_lay_out_rest(grid, made);
    if (made->rest_bytes == 0) {
        return DPAR_OK;
    }
    made->rest = dpari_os_pages(made->rest_bytes);
    if (!made->rest) {
        return dpari_gx_no_memory(made->rest_bytes, why);
    }
    dpari_gx_lay_out_rest(grid, made);
    (void)dpari_gx_mirrors(grid, made->shape, n, depth, made->mirror);
    return DPAR_OK;
}

/* The arrays and the depth of an exchange, which the ranks compare. */
typedef struct dpari_gx_numbers {
    const dpari_gx *grid;
    void *const *list;
    int32_t count, depth;
} dpari_gx_numbers;

/* Lists types and components of the arrays, which are compared before a plan is made. */
static DPARI_COLD void dpari_gx_state_kinds(dpari_facts *facts, const void *given)
{
    const dpari_gx_numbers *args = (const dpari_gx_numbers *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, args->count);
    dpari_fact(facts, "depth", 0, args->depth);
    for (i = 0; i < args->count; i++) {
        const dpari_gx_shape *shape = dpari_gx_shape_at(args->grid, args->list[i]);
        dpari_fact_type(facts, "the type of array #", i, shape->type);
        dpari_fact(facts, "the number of components of array #", i, shape->components);
        dpari_fact(facts, "whether array # is of desc.type (1) or was attached (0)", i,
                   shape->packed);
    }
}

/* Plans an exchange of known arrays. Collective. */
static DPARI_COLD dpar_status dpari_gx_new_plan(dpari_gx *grid, void *const *list, int32_t n,
                                                int32_t depth, dpari_gx_plan **plan, dpar_why *why)
{
    dpar_comm *comm = grid->head.comm;
    dpari_gx_plan *made = NULL, **last = &grid->plans;
    dpari_gx_numbers given;
    dpar_halo_plan_desc desc;
    dpar_status status = dpari_gx_describe(grid, list, n, depth, &made, why);
    given.grid = grid;
    given.list = list;
    given.count = n;
    given.depth = depth;
    status = dpari_agree_on(comm, status, "grid exchange", dpari_gx_state_kinds, &given, why);
    if (status == DPAR_OK) {
        dpari_gx_options(made, &desc);
        status = dpar_halo_plan_make(comm, &desc, &made->exchange, why);
    }
    if (status != DPAR_OK) {
        if (made) {
            dpari_os_unmap(made->rest, made->rest_bytes);
            dpari_os_unmap(made, made->bytes);
        }
        return status;
    }
    while (*last) {
        last = &(*last)->next;
    }
    *last = made;
    *plan = made;
    return DPAR_OK;
}

/* Returns a plan for arrays of these shapes and this depth whose exchange is not in progress, or
 * NULL. */
static dpari_gx_plan *dpari_gx_match(const dpari_gx *grid, void *const *list, int32_t n,
                                     int32_t depth)
{
    dpari_gx_plan *plan;
    int32_t i;
    for (plan = grid->plans; plan; plan = plan->next) {
        if (plan->count != n || plan->depth != depth || plan->active) {
            continue;
        }
        for (i = 0; i < n; i++) {
            if (plan->at[i] != list[i] && dpari_gx_shape_at(grid, list[i]) != plan->shape[i]) {
                break;
            }
        }
        if (i == n) {
            return plan;
        }
    }
    return NULL;
}

/* Lists the numbers of the arrays, which are compared in grids with desc.check and before
 * gathering. */
static DPARI_COLD void dpari_gx_state_list(dpari_facts *facts, const void *given)
{
    const dpari_gx_numbers *args = (const dpari_gx_numbers *)given;
    int32_t i;
    dpari_fact(facts, "the number of arrays", 0, args->count);
    dpari_fact(facts, "depth", 0, args->depth);
    for (i = 0; i < args->count; i++) {
        const dpari_gx_array *known = dpari_gx_find(args->grid, args->list[i]);
        dpari_fact(facts, "array # of the list", i, known ? known->number : -1);
    }
}

/* Checks the arrays and the depth of an exchange, without the other ranks. */
static DPARI_COLD dpar_status dpari_gx_check_list(const dpari_gx *grid, void *const *list,
                                                  int32_t count, int32_t depth, dpar_why *why)
{
    int32_t i;
    if (!list) {
        return dpari_wrong(why, "grid: the list of %d arrays is NULL", count);
    }
    if (count < 1 || count > 4096) {
        return dpari_wrong(why, "grid: the list has %d arrays; it must have 1 to 4096", count);
    }
    if (depth < 0 || depth > grid->widest) {
        return dpari_say(DPAR_E_RANGE, why,
                         "grid: depth is %d; it must be 0 to %ld, the width of the halo", depth,
                         grid->widest);
    }
    for (i = 0; i < count; i++) {
        const dpari_gx_array *other = NULL;
        if (list[i] && grid->desc.type != 0 && !dpari_gx_find(grid, list[i])) {
            other = dpari_gx_in_another(grid, list[i]);
        }
        if (other) {
            return dpari_wrong(
                why,
                "grid: array %d of the list points into another array, %ld bytes after its "
                "first own point; pass the address of that point",
                i, (int64_t)(uintptr_t)list[i] - (int64_t)(uintptr_t)other->at);
        }
        if (!dpari_gx_shape_at(grid, list[i])) {
            return dpari_wrong(
                why,
                "grid: array %d of the list of %d does not belong to this grid; pass the "
                "address of its first own point, as dpar_grid_array returned it or "
                "dpar_grid_attach got it",
                i, count);
        }
    }
    return DPAR_OK;
}

/* Checks the arrays of an exchange, compares them between ranks if desc.check is 1, and makes the
 * plan if *plan is NULL. Called if there is no plan yet, and for every exchange of a grid with
 * desc.check. Collective. */
static DPARI_COLD dpar_status dpari_gx_check_and_plan(dpari_gx *grid, void *const *list, int32_t n,
                                                      int32_t depth, dpari_gx_plan **plan)
{
    dpari_gx_numbers given;
    dpar_why why;
    dpar_status status = dpari_gx_check_list(grid, list, n, depth, &why);
    given.grid = grid;
    given.list = list;
    given.count = n;
    given.depth = depth;
    if (grid->desc.check) {
        status = dpari_agree_on(grid->head.comm, status, "grid", dpari_gx_state_list, &given, &why);
    }
    if (status == DPAR_OK && !*plan) {
        status = dpari_gx_new_plan(grid, list, n, depth, plan, &why);
    }
    return dpari_gx_say(grid, status, &why);
}

/* Finds or makes the plan of an exchange, and binds the arrays to it. */
static dpar_status dpari_gx_bind_plan(dpari_gx *grid, void *const *list, int32_t n, int32_t depth,
                                      dpari_gx_plan **plan)
{
    dpar_status status;
    int32_t i;
    if (depth == grid->widest) {
        depth = 0;
    }
    *plan = list && depth >= 0 ? dpari_gx_match(grid, list, n, depth) : NULL;
    if (!*plan || grid->desc.check) {
        status = dpari_gx_check_and_plan(grid, list, n, depth, plan);
        if (status != DPAR_OK) {
            return status;
        }
    }
    for (i = 0; i < n; i++) {
        if ((*plan)->at[i] != list[i]) {
            status = dpar_halo_plan_bind((*plan)->exchange, i, list[i], NULL);
            if (status != DPAR_OK) {
                return status;
            }
            (*plan)->before = (*plan)->at[i];
            (*plan)->at[i] = list[i];
        }
    }
    if (n == 1 && depth == 0 && (*plan)->mirrors == 0 && !grid->desc.check) {
        grid->quick = *plan;
        grid->now = list[0];
        grid->now_exchange = (*plan)->exchange;
    }
    return DPAR_OK;
}

/* Fast path for codes that swap two arrays: if u was bound to grid->quick before the array that is
 * bound now, binds u again and returns 1, otherwise returns 0. */
static int dpari_gx_rebind(dpari_gx *grid, void *u)
{
    dpari_gx_plan *plan = grid->quick;
    if (grid->now == grid || plan->before != u || !u || grid->under_way > 0 ||
        dpar_halo_plan_bind(plan->exchange, 0, u, NULL) != DPAR_OK) {
        return 0;
    }
    plan->before = plan->at[0];
    plan->at[0] = grid->now = u;
    return 1;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

/* Checks that none of these arrays takes part in an exchange that has begun and not ended. */
static DPARI_COLD dpar_status dpari_gx_check_idle(const dpari_gx *grid, void *const *list,
                                                  int32_t n)
{
    int32_t i;
    for (i = 0; list && i < n; i++) {
        if (dpari_gx_in_progress(grid, list[i])) {
            return dpari_comm_wrong(
                grid->head.comm,
                "grid: an exchange of array %d of the list of %d has begun and not ended; call "
                "dpar_grid_end first",
                i, n);
        }
    }
    return DPAR_OK;
}

/* Finds the plan of an exchange and binds the arrays to it. Fails if an array takes part in another
 * exchange that has not ended. */
static dpar_status dpari_gx_ready(dpari_gx *grid, void *const *list, int32_t count, int32_t depth,
                                  dpari_gx_plan **plan)
{
    if (grid->under_way > 0) {
        const dpar_status status = dpari_gx_check_idle(grid, list, count);
        if (status != DPAR_OK) {
            return status;
        }
    }
    return dpari_gx_bind_plan(grid, list, count, depth, plan);
}

/* Exchanges some arrays, from begin to end. */
static dpar_status dpari_gx_run(dpari_gx *grid, void *const *list, int32_t count, int32_t depth)
{
    dpari_gx_plan *plan;
    dpar_status status = dpari_gx_ready(grid, list, count, depth, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_exchange(plan->exchange);
    if (status != DPAR_OK || plan->mirrors == 0) {
        return status;
    }
    return dpari_gx_fill(grid, plan);
}

DPAR_API dpar_status dpar_grid_exchange(dpar_grid *grid, void *u)
{
    dpari_gx *g = dpari_gx_of(grid);
    if (!g) {
        return DPAR_E_ARG;
    }
    if (g->now == u || dpari_gx_rebind(g, u)) {
        return dpar_halo_plan_exchange(g->now_exchange);
    }
    return dpari_gx_run(g, &u, 1, 0);
}

DPAR_API dpar_status dpar_grid_exchange_many(dpar_grid *grid, void *const *arrays, int32_t count,
                                             int32_t depth)
{
    dpari_gx *g = dpari_gx_of(grid);
    return g ? dpari_gx_run(g, arrays, count, depth) : DPAR_E_ARG;
}

/* Begins an exchange of some arrays. */
static dpar_status dpari_gx_start(dpari_gx *grid, void *const *list, int32_t count, int32_t depth)
{
    dpari_gx_plan *plan;
    dpar_status status = dpari_gx_ready(grid, list, count, depth, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_begin(plan->exchange);
    if (status != DPAR_OK) {
        return status;
    }
    plan->active = 1;
    grid->under_way++;
    grid->now = grid;
    return DPAR_OK;
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

/* Finds the plan of the exchange in progress that an array takes part in. */
static dpar_status dpari_gx_active(dpar_grid *handle, const void *array, dpari_gx_plan **plan)
{
    const dpari_gx *grid = dpari_gx_of(handle);
    *plan = NULL;
    if (!grid) {
        return DPAR_E_ARG;
    }
    *plan = dpari_gx_in_progress(grid, array);
    if (!*plan) {
        return dpari_comm_wrong(handle->comm, "grid: no exchange of this array has begun");
    }
    return DPAR_OK;
}

DPAR_API dpar_status dpar_grid_test(dpar_grid *grid, void *u)
{
    dpari_gx_plan *plan;
    const dpar_status status = dpari_gx_active(grid, u, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    return dpar_halo_plan_test(plan->exchange);
}

DPAR_API dpar_status dpar_grid_end(dpar_grid *grid, void *u)
{
    dpari_gx_plan *plan;
    dpar_status status = dpari_gx_active(grid, u, &plan);
    if (status != DPAR_OK) {
        return status;
    }
    status = dpar_halo_plan_end(plan->exchange);
    plan->active = 0;
    dpari_gx_of(grid)->under_way--;
    if (status != DPAR_OK || plan->mirrors == 0) {
        return status;
    }
    return dpari_gx_fill(dpari_gx_of(grid), plan);
}

DPAR_API DPARI_COLD dpar_halo_plan *dpar_grid_plan(dpar_grid *grid, void *const *list, int32_t n)
{
    dpari_gx *g = dpari_gx_of(grid);
    dpari_gx_plan *plan;
    if (!g || dpari_gx_bind_plan(g, list, n, 0, &plan) != DPAR_OK) {
        return NULL;
    }
    return plan->exchange;
}

DPAR_API const dpar_halo *dpar_grid_halo(const dpar_grid *grid)
{
    return grid ? &dpari_gx_in(grid)->halo : NULL;
}

/* ---- interior and boundary ------------------------------------------------------------------- */

/* Computes the own cells of a dim, lo to hi - 1, that can be computed during an exchange, because
 * no halo cell that an exchange or a mirror fills is within the halo's width of them. */
static void dpari_gx_inner(const dpari_gx *grid, int32_t d, int64_t *lo, int64_t *hi)
{
    const int64_t first = grid->head.first[d], own = grid->head.count[d];
    const int below = first > 0 || grid->desc.periodic[d] || grid->desc.mirror_low[d];
    const int above =
        first + own < grid->head.cells[d] || grid->desc.periodic[d] || grid->desc.mirror_high[d];
    *lo = dpari_least(below ? grid->low[d] : 0, own);
    *hi = dpari_most(above ? own - grid->high[d] : own, *lo);
}

DPAR_API int dpar_grid_interior(const dpar_grid *grid, dpar_box *box)
{
    dpar_box inner;
    int32_t d, some = 1;
    dpari_zero(&inner, sizeof inner);
    inner.dims = grid ? grid->dims : 0;
    for (d = 0; d < inner.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &inner.lo[d], &inner.hi[d]);
        some = some && inner.lo[d] < inner.hi[d];
    }
    if (grid && box && some) {
        *box = inner;
        return 1;
    }
    return 0;
}

/* The boxes below and above the interior in dim 0 span all other dims. The boxes of dim 1 are
 * between these two, and so on. */
DPAR_API int dpar_grid_boundary(const dpar_grid *grid, int32_t n, dpar_box *box)
{
    dpar_box next;
    int64_t lo, hi;
    int32_t d, side;
    dpari_zero(&next, sizeof next);
    next.dims = grid && box ? grid->dims : 0;
    for (d = 0; d < next.dims; d++) {
        next.hi[d] = grid->count[d];
    }
    for (d = 0; d < next.dims; d++) {
        dpari_gx_inner(dpari_gx_in(grid), d, &lo, &hi);
        for (side = 0; side < 2; side++) {
            next.lo[d] = side ? hi : 0;
            next.hi[d] = side ? grid->count[d] : lo;
            if (next.lo[d] < next.hi[d] && n-- == 0) {
                *box = next;
                return 1;
            }
        }
        next.lo[d] = lo;
        next.hi[d] = hi;
        if (lo == hi) {
            return 0; /* there are no cells between the two boxes */
        }
    }
    return 0;
}

/* ---- the whole array ------------------------------------------------------------------------- */

/* The memory between which dpar_grid_gather and dpar_grid_scatter move blocks. */
typedef struct dpari_gx_block {
    const dpari_gx_shape *shape;
    char *array; /* this rank's array */
    char *whole; /* on rank 0: the whole array */
    char *dense; /* one block, dense in C order, as it is sent */
    int back;    /* 0 gathers, 1 scatters */
} dpari_gx_block;

/* Computes the box of points that a rank owns, and returns the number of their elements. */
static DPARI_COLD int64_t dpari_gx_owned(const dpari_gx_shape *shape, int32_t rank, dpar_box *own)
{
    (void)dpar_halo_owned(&shape->halo, rank, own);
    return dpar_box_volume(own) * shape->components;
}

/* Copies a block between block->dense and this rank's array or, with `whole`, rank 0's whole array.
 * block->back determines the direction. */
static DPARI_COLD dpar_status dpari_gx_copy(const dpari_gx *grid, const dpari_gx_block *block,
                                            const dpar_box *own, int whole)
{
    const dpari_gx_shape *shape = block->shape;
    const int32_t dims = grid->head.dims;
    const int out = block->back == whole; /* 1 copies into block->dense */
    dpar_mem_box box;
    dpar_status status;
    int64_t dense = shape->components, step = dense, at = 0;
    int64_t *there = out ? box.from_stride : box.to_stride;
    int64_t *here = out ? box.to_stride : box.from_stride;
    char *array = whole ? block->whole : block->array;
    int32_t d;
    dpari_zero(&box, sizeof box);
    box.to_type = box.from_type = shape->type;
    box.op = DPAR_COPY;
    box.dims = dims + 1;
    box.extent[dims] = dense;
    there[dims] = whole ? 1 : shape->field.component_stride;
    here[dims] = 1;
    for (d = dims - 1; d >= 0; d--) {
        box.extent[d] = own->hi[d] - own->lo[d];
        there[d] = whole ? step : shape->field.stride[d];
        here[d] = dense;
        at += whole ? own->lo[d] * step : 0;
        step *= dpar_halo_points(&shape->halo, d);
        dense *= box.extent[d];
    }
    array += at * dpar_type_bytes(shape->type);
    box.to = out ? block->dense : array;
    box.from = out ? array : block->dense;
    if (!grid->mem) {
        return dpari_mem_move_box(&box);
    }
    status = grid->mem->move(grid->mem->ctx, &box, 1);
    if (status != DPAR_OK) {
        return status;
    }
    return grid->mem->wait(grid->mem->ctx);
}

/* Moves the blocks, rank after rank. To gather, the owner copies its array into a dense block and
 * sends it to rank 0, which copies it into the whole array. To scatter, the steps are done in
 * reverse order. */
static DPARI_COLD dpar_status dpari_gx_blocks(const dpari_gx *grid, const dpari_gx_block *block)
{
    enum { ARRAY, MESSAGE, WHOLE, STEPS };
    dpar_comm *comm = grid->head.comm;
    const int32_t end = comm->rank > 0 ? comm->rank + 1 : comm->size;
    const int receives = block->back == (comm->rank > 0);
    const int32_t type = block->shape->type;
    dpar_box own;
    int32_t r, i;
    for (r = comm->rank; r < end; r++) { /* rank 0 handles all blocks, other ranks only their own */
        const int64_t count = dpari_gx_owned(block->shape, r, &own);
        const int32_t other = comm->rank > 0 ? 0 : r;
        for (i = 0; i < STEPS; i++) {
            const int step = block->back ? WHOLE - i : i;
            dpar_status status = DPAR_OK;
            if (step == MESSAGE && other == comm->rank) {
                continue;
            }
            if (step == MESSAGE && receives) {
                status = dpar_recv(comm, block->dense, count, type, other, 0, NULL);
            } else if (step == MESSAGE) {
                status = dpar_send(comm, block->dense, count, type, other, 0, NULL);
            } else if ((step == ARRAY && r == comm->rank) || (step == WHOLE && comm->rank == 0)) {
                status = dpari_gx_copy(grid, block, &own, step == WHOLE);
            }
            if (status != DPAR_OK) {
                return status;
            }
        }
    }
    return DPAR_OK;
}

/* Does the local part of gathering and scattering: checks the array and allocates *block, as large
 * as the largest block that this rank handles. Rank 0 handles all blocks. */
static DPARI_COLD dpar_status dpari_gx_whole_block(dpari_gx *grid, void *at, const void *whole,
                                                   int pins, void **block, dpar_why *why)
{
    const dpar_comm *comm = grid->head.comm;
    const int32_t end = comm->rank > 0 ? comm->rank + 1 : comm->size;
    const dpari_gx_shape *shape;
    int64_t bytes = 0;
    dpar_box own;
    int32_t r;
    dpar_status status = dpari_gx_check_list(grid, &at, 1, 0, why);
    if (status != DPAR_OK) {
        return status;
    }
    if (comm->rank == 0 && !whole) {
        return dpari_wrong(why, "grid: the whole array is NULL on rank 0");
    }
    shape = dpari_gx_shape_at(grid, at);
    for (r = comm->rank; r < end; r++) {
        bytes = dpari_most(bytes, dpari_gx_owned(shape, r, &own));
    }
    bytes *= dpar_type_bytes(shape->type);
    status = dpar_comm_alloc(grid->head.comm, bytes, block);
    if (status == DPAR_OK && pins) {
        status = grid->mem->pin(grid->mem->ctx, *block, bytes);
    }
    if (status == DPAR_OK) {
        return DPAR_OK;
    }
    return dpari_say(status, why, "grid: %ld bytes for a block cannot be allocated", bytes);
}

/* Gathers the array on rank 0, or with `back` scatters it from there. Collective. */
static DPARI_COLD dpar_status dpari_gx_whole(dpari_gx *grid, void *at, void *whole, int back)
{
    dpari_gx_numbers given;
    dpari_gx_block part;
    void *block = NULL;
    dpar_comm *comm;
    dpar_status status;
    dpar_why why;
    int pins;
    if (!grid) {
        return DPAR_E_ARG;
    }
    comm = grid->head.comm;
    pins = grid->mem && grid->mem != comm->mem;
    status = dpari_gx_whole_block(grid, at, whole, pins, &block, &why);
    given.grid = grid;
    given.list = &at;
    given.count = 1;
    given.depth = 0;
    status = dpari_agree_on(comm, status, "grid", dpari_gx_state_list, &given, &why);
    status = dpari_gx_say(grid, status, &why);
    if (status == DPAR_OK) {
        part.shape = dpari_gx_shape_at(grid, at);
        part.array = (char *)at;
        part.whole = (char *)whole;
        part.dense = (char *)block;
        part.back = back;
        status = dpari_gx_blocks(grid, &part);
        if (pins) {
            (void)grid->mem->unpin(grid->mem->ctx, block);
        }
    }
    dpar_comm_release(comm, block);
    return status;
}

DPAR_API DPARI_COLD dpar_status dpar_grid_gather(dpar_grid *grid, void *u, void *whole)
{
    return dpari_gx_whole(dpari_gx_of(grid), u, whole, 0);
}

DPAR_API DPARI_COLD dpar_status dpar_grid_scatter(dpar_grid *grid, void *u, const void *whole)
{
    union { /* `whole` is only read, but dpari_gx_whole also gathers */
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
    dpari_gx_shape shape;
    dpar_grid_field none;
    int64_t low, high;
    dpar_box own;
    int32_t d;
    dpari_zero(&none, sizeof none);
    field = field ? field : &none;
    if (!g || !g->head.comm || !part || dpari_gx_check_field(g, DPAR_F64, field, NULL) != DPAR_OK) {
        return DPAR_E_ARG;
    }
    dpari_gx_shape_of(g, DPAR_F64, field, &shape);
    if (dpari_gx_span(g, &shape, &low, &high) != 0) {
        return DPAR_E_RANGE;
    }
    (void)dpar_halo_owned(&shape.halo, g->head.comm->rank, &own);
    dpari_zero(part, sizeof *part);
    for (d = 0; d < g->head.dims; d++) {
        part->global_count[d] = dpar_halo_points(&shape.halo, d);
        part->start[d] = own.lo[d];
        part->count[d] = own.hi[d] - own.lo[d];
        part->local_count[d] = dpari_gx_points(g, field, d);
        part->local_start[d] = g->low[d];
        part->stride[d] = shape.field.stride[d];
    }
    part->component_stride = shape.field.component_stride;
    return DPAR_OK;
}

/* ---- ownership as text ----------------------------------------------------------------------- */

/* Writes n numbers with a separator between them. */
static DPARI_COLD void dpari_gx_list(dpar_text *text, const int64_t *v, int32_t n, const char *by)
{
    int32_t i;
    for (i = 0; i < n; i++) {
        dpari_text_print(text, "%s%ld", i > 0 ? by : "", v[i]);
    }
}

/* Writes the cells of part p of a dim, such as "40..79". */
static DPARI_COLD void dpari_gx_put_cells(dpar_text *text, const dpari_gx *grid, int32_t d,
                                          int32_t p)
{
    int32_t coord[DPAR_MAX_DIMS] = {0};
    dpar_box own;
    coord[d] = p;
    (void)dpar_halo_owned(&grid->halo, dpar_mesh_rank(&grid->halo.grid.mesh, coord), &own);
    dpari_text_print(text, "%ld..%ld", own.lo[d], own.hi[d] - 1);
}

/* Writes the ranks of the last two dims as a table, for one part of each of the other dims (coord).
 * The last dim runs to the right. */
static DPARI_COLD void dpari_gx_put_table(dpar_text *text, const dpari_gx *grid, int32_t *coord)
{
    const int32_t x = grid->head.dims - 1, y = x - 1;
    int32_t i, j;
    for (i = -1; i < (y < 0 ? 1 : grid->head.parts[y]); i++) {
        for (j = 0; j < grid->head.parts[x]; j++) {
            dpari_text_column(text, (size_t)(14 + 14 * j));
            if (i < 0) {
                dpari_gx_put_cells(text, grid, x, j);
                continue;
            }
            coord[x] = j;
            if (y >= 0) {
                coord[y] = i;
            }
            dpari_text_print(text, "rank %d", dpar_mesh_rank(&grid->halo.grid.mesh, coord));
        }
        dpar_text_put(text, "\n");
        if (y >= 0 && i + 1 < grid->head.parts[y]) {
            dpar_text_put(text, "  ");
            dpari_gx_put_cells(text, grid, y, i + 1);
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
    do { /* for each part of the dims before the last two */
        for (d = 0; d < g->head.dims - 2; d++) {
            dpari_text_print(out, "%s%d: ", d > 0 ? ", dim " : "dim ", d);
            dpari_gx_put_cells(out, g, d, coord[d]);
        }
        dpar_text_put(out, g->head.dims > 2 ? "\n" : "");
        dpari_gx_put_table(out, g, coord);
        for (k = g->head.dims - 3; k >= 0; k--) { /* next part; the last of these dims is fastest */
            coord[k]++;
            if (coord[k] < g->head.parts[k]) {
                break;
            }
            coord[k] = 0;
        }
    } while (k >= 0);
}
